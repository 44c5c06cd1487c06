/* What kernels of a caller's own take from a snapshot: tiles, here on the host; and which backends take a functor. */
#define TEGROUP_IMPLEMENTATION
#include "support.h"
#include "test.h"

/* Rows of a routing, some of which lie where clamp is set, and their snapshot. */
static tegroup_shape routing(rng *r, int32_t groups, int64_t capacity, int lies) {
    int64_t *counts = (int64_t *)guarded((size_t)groups * 8), room = capacity;
    tegroup_layout layout;
    tegroup_prepare_desc desc;
    for (int32_t g = 0; g < groups; g++) {
        counts[g] = lies && rng_chance(r, 20) ? (int64_t)rng_next(r) : rng_chance(r, 20) ? -1 : rng_int(r, 0, room / 2);
        if (counts[g] > 0 && !lies) room -= counts[g];
    }
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.shape = tegroup_shape_of(groups, capacity, 8, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    desc.space = TEGROUP_SPACE_HOST;
    desc.clamp = lies;
    if (tegroup_snapshot_layout(&desc.shape, &layout, NULL) != TEGROUP_OK) exit(1);
    desc.snapshot = guarded(layout.total_bytes);
    desc.snapshot_bytes = layout.total_bytes;
    if (tegroup_prepare(&desc, NULL, NULL) != TEGROUP_OK) exit(1);
    desc.shape.snapshot = desc.snapshot;
    return desc.shape;
}

/* Tiles as the comment says: each group's in stripes of eight tile rows, column by column, one group after another. */
TEST(own, tiles_are_numbered_through_all_groups) {
    rng r = rng_seed(5001);
    int64_t found = 0;
    for (int64_t i = scaled(400); i > 0; i--) {
        void *mark = guards_mark();
        const int wgrad = rng_chance(&r, 50);
        const int32_t groups = (int32_t)rng_int(&r, 0, 12), tile_m = (int32_t)rng_int(&r, 1, 30), tile_n = (int32_t)rng_int(&r, 1, 30);
        const int64_t m = wgrad ? rng_int(&r, 0, 300) : 0, n = rng_int(&r, 0, 90);
        const tegroup_shape rows = routing(&r, groups, rng_int(&r, 0, 900), rng_chance(&r, 30));
        const tegroup_snapshot_view view = tegroup_snapshot_read(rows.snapshot);
        tegroup_tiles tiles;
        tegroup_tile tile;
        int64_t number = 0;
        ASSERT_EQ(TEGROUP_OK, tegroup_tiles_of(wgrad ? TEGROUP_OP_WGRAD : rng_chance(&r, 50) ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, &rows, m, n, tile_m, tile_n, &tiles, NULL));
        for (int32_t g = 0; g < groups; g++) {
            const int64_t height = view.rows[g] < 0 ? 0 : wgrad ? m : view.rows[g];
            for (int64_t stripe = 0; stripe < height; stripe += 8 * tile_m)
                for (int64_t col = 0; col < n; col += tile_n)
                    for (int64_t row = stripe; row < height && row < stripe + 8 * tile_m; row += tile_m) {
                        ASSERT_TRUE(tegroup_tile_find(&tiles, number++, &tile));
                        ASSERT_EQ(g, tile.group);
                        ASSERT_EQ(row, tile.row);
                        ASSERT_EQ(col, tile.col);
                        ASSERT_EQ(height - row < tile_m ? height - row : tile_m, tile.rows);
                        ASSERT_EQ(n - col < tile_n ? n - col : tile_n, tile.cols);
                        ASSERT_EQ(view.start[g], tile.start);
                        ASSERT_EQ(view.rows[g], tile.group_rows);
                    }
        }
        found += number;
        ASSERT_FALSE(tegroup_tile_find(&tiles, number, &tile));
        ASSERT_EQ(-1, tile.group);
        ASSERT_FALSE(tegroup_tile_find(&tiles, INT64_MAX, &tile));
        ASSERT_FALSE(tegroup_tile_find(&tiles, -1, &tile));
        ASSERT_EQ(0, guards_changed());
        guards_release(mark);
    }
    ASSERT_GT(found, 1000);
}

/* Of a snapshot that is not one for these buffers there is no tile. */
TEST(own, no_tile_of_a_snapshot_that_does_not_fit) {
    rng r = rng_seed(5002);
    void *mark = guards_mark();
    int64_t counts[] = {3, 4};
    tegroup_shape rows = routing(&r, 2, 20, 0);
    tegroup_snapshot_header *header = (tegroup_snapshot_header *)(uintptr_t)rows.snapshot;
    tegroup_tiles tiles;
    tegroup_tile tile;
    tegroup_layout layout;
    rows.row_sizes.data = counts;
    if (tegroup_snapshot_layout(&rows, &layout, NULL) != TEGROUP_OK) exit(1);
    ASSERT_EQ(TEGROUP_OK, tegroup_shape_prepare(&rows, header, layout.total_bytes, NULL, NULL));
    ASSERT_EQ(TEGROUP_OK, tegroup_tiles_of(TEGROUP_OP_FORWARD, &rows, 0, 5, 8, 8, &tiles, NULL));
    ASSERT_TRUE(tegroup_tile_find(&tiles, 1, &tile));
    rows.rows = 6; /* a buffer that does not hold the seven */
    ASSERT_EQ(TEGROUP_OK, tegroup_tiles_of(TEGROUP_OP_FORWARD, &rows, 0, 5, 8, 8, &tiles, NULL));
    ASSERT_FALSE(tegroup_tile_find(&tiles, 0, &tile));
    rows.rows = 7;
    rows.groups = 1;
    ASSERT_EQ(TEGROUP_OK, tegroup_tiles_of(TEGROUP_OP_FORWARD, &rows, 0, 5, 8, 8, &tiles, NULL));
    ASSERT_FALSE(tegroup_tile_find(&tiles, 0, &tile));
    rows.groups = 2;
    ASSERT_EQ(TEGROUP_OK, tegroup_tiles_of(TEGROUP_OP_FORWARD, &rows, 0, 5, 8, 8, &tiles, NULL));
    ASSERT_TRUE(tegroup_tile_find(&tiles, 0, &tile));
    header->magic++;
    ASSERT_FALSE(tegroup_tile_find(&tiles, 0, &tile));
    guards_release(mark);
}

TEST(own, tiles_that_cannot_be_are_refused) {
    rng r = rng_seed(5003);
    void *mark = guards_mark();
    const tegroup_shape good = routing(&r, 3, 50, 0);
    tegroup_tiles tiles, before;
    tegroup_error error;
    memset(&tiles, 0x5A, sizeof tiles);
    before = tiles;
#define REFUSED(spoil, op, m, n, tile_m, tile_n, code, name, want, came)                                                            \
    do {                                                                                                                            \
        tegroup_shape rows = good;                                                                                                  \
        spoil;                                                                                                                      \
        ASSERT_EQ(TEGROUP_ERROR_##code, tegroup_tiles_of((tegroup_op)(op), &rows, m, n, tile_m, tile_n, &tiles, &error));           \
        ASSERT_STREQ(name, error.field);                                                                                            \
        ASSERT_EQ((int64_t)(want), error.expected);                                                                                 \
        ASSERT_EQ((int64_t)(came), error.got);                                                                                      \
        ASSERT_EQ(0, memcmp(&tiles, &before, sizeof tiles));                                                                        \
    } while (0)
    REFUSED((void)0, 0, 0, 5, 8, 8, UNSET, "op", TEGROUP_OP_FORWARD, 0);
    REFUSED((void)0, 4, 0, 5, 8, 8, VALUE, "op", TEGROUP_OP_WGRAD, 4);
    REFUSED(rows.groups = -1, TEGROUP_OP_FORWARD, 0, 5, 8, 8, VALUE, "rows.groups", TEGROUP_MAX_GROUPS, -1);
    REFUSED(rows.groups = TEGROUP_MAX_GROUPS + 1, TEGROUP_OP_FORWARD, 0, 5, 8, 8, VALUE, "rows.groups", TEGROUP_MAX_GROUPS, TEGROUP_MAX_GROUPS + 1);
    REFUSED(rows.rows = -2, TEGROUP_OP_DGRAD, 0, 5, 8, 8, VALUE, "rows.rows", 0, -2);
    REFUSED(memset(&rows.row_sizes, 0, sizeof rows.row_sizes), TEGROUP_OP_FORWARD, 0, 5, 8, 8, UNSET, "rows.row_sizes.encoding", TEGROUP_ENCODING_COUNTS, 0);
    REFUSED(rows.elements = 9, TEGROUP_OP_FORWARD, 0, 5, 8, 8, UNSUPPORTED, "rows.col_sizes", 0, 1);
    REFUSED(rows.snapshot = NULL, TEGROUP_OP_FORWARD, 0, 5, 8, 8, NULL_ARGUMENT, "rows.snapshot", 1, 0);
    REFUSED(rows.snapshot = (const char *)rows.snapshot + 8, TEGROUP_OP_FORWARD, 0, 5, 8, 8, ALIGNMENT, "rows.snapshot", TEGROUP_ALIGNMENT, 8);
    REFUSED((void)0, TEGROUP_OP_WGRAD, -1, 5, 8, 8, VALUE, "m", 0, -1);
    REFUSED((void)0, TEGROUP_OP_FORWARD, 7, 5, 8, 8, COMBINATION, "m", 0, 7);
    REFUSED((void)0, TEGROUP_OP_FORWARD, 0, -5, 8, 8, VALUE, "n", 0, -5);
    REFUSED((void)0, TEGROUP_OP_FORWARD, 0, 5, 0, 8, VALUE, "tile_m", 1, 0);
    REFUSED((void)0, TEGROUP_OP_FORWARD, 0, 5, 8, -8, VALUE, "tile_n", 1, -8);
    REFUSED((void)0, TEGROUP_OP_WGRAD, INT64_C(1) << 31, 1, 1, 1, UNSUPPORTED, "tile_m", INT32_MAX, INT64_C(1) << 31);
    REFUSED((void)0, TEGROUP_OP_WGRAD, INT64_MAX, INT64_MAX, 1, 1, UNSUPPORTED, "tile_m", INT32_MAX, INT64_MAX);
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_tiles_of(TEGROUP_OP_FORWARD, NULL, 0, 5, 8, 8, &tiles, &error));
    ASSERT_STREQ("rows", error.field);
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_tiles_of(TEGROUP_OP_FORWARD, &good, 0, 5, 8, 8, NULL, NULL));
    guards_release(mark);
}

/* The verdict of one backend on a product with a functor, on a machine that has everything. */
static tegroup_verdict functor_verdict(tegroup_backend backend, tegroup_op op, tegroup_space space, tegroup_dtype in, tegroup_scaling scaling) {
    tegroup_shape rows = tegroup_shape_of(4, 64, 64, tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, space));
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1], none;
    tegroup_gemm_desc gemm;
    tegroup_target target;
    memset(&none, 0, sizeof none);
    memset(&gemm, 0, sizeof gemm);
    gemm.struct_size = sizeof gemm;
    gemm.op = op;
    gemm.space = space;
    gemm.a = tegroup_tensor_of(rows, 64, in, NULL);
    gemm.b = op == TEGROUP_OP_WGRAD ? gemm.a : tegroup_tensor_uniform(4, 64, 64, in, NULL);
    gemm.a.scaling = gemm.b.scaling = scaling;
    gemm.d = op == TEGROUP_OP_WGRAD ? tegroup_tensor_uniform(4, 64, 64, TEGROUP_DTYPE_F32, NULL) : tegroup_tensor_of(rows, 64, TEGROUP_DTYPE_F32, NULL);
    gemm.functor = 1;
    memset(&target, 0, sizeof target);
    target.struct_size = sizeof target;
    target.sm = 90;
    target.cublaslt_version = 131000;
    target.built = 0x3E;
    none.status = tegroup_explain(&gemm, &target, verdicts, NULL);
    for (int i = 0; none.status == TEGROUP_OK && i < TEGROUP_BACKEND_COUNT - 1; i++)
        if (verdicts[i].backend == backend) return verdicts[i];
    return none;
}

TEST(own, explain_says_which_backends_take_a_functor) {
    static const tegroup_backend bundled[] = {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_PORTABLE};
    tegroup_verdict v;
    for (int b = 0; b < 2; b++) {
        for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++)
            for (int h = 0; h < 2; h++) {
                v = functor_verdict(bundled[b], (tegroup_op)op, TEGROUP_SPACE_DEVICE, h ? TEGROUP_DTYPE_F16 : TEGROUP_DTYPE_BF16, TEGROUP_SCALING_NONE);
                ASSERT_EQ(TEGROUP_OK, v.status);
                ASSERT_EQ(b == 0, v.chosen);
            }
        v = functor_verdict(bundled[b], TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALING_TENSOR);
        ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, v.status);
        ASSERT_STREQ("functor", v.field);
        ASSERT_EQ(0, v.expected);
        ASSERT_EQ(1, v.got);
        v = functor_verdict(bundled[b], TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_BF16, TEGROUP_SCALING_MXFP8);
        ASSERT_NE(TEGROUP_OK, v.status);
    }
    v = functor_verdict(TEGROUP_BACKEND_PORTABLE, TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_F32, TEGROUP_SCALING_NONE);
    ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, v.status);
    ASSERT_STREQ("a.dtype", v.field);
    ASSERT_EQ(TEGROUP_DTYPE_F32, v.got);
    v = functor_verdict(TEGROUP_BACKEND_CPU, TEGROUP_OP_WGRAD, TEGROUP_SPACE_HOST, TEGROUP_DTYPE_F32, TEGROUP_SCALING_NONE);
    ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, v.status);
    ASSERT_STREQ("functor", v.field);
    v = functor_verdict(TEGROUP_BACKEND_CUBLASLT_GROUPED, TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_BF16, TEGROUP_SCALING_NONE);
    ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, v.status);
    ASSERT_STREQ("functor", v.field);
}

/* A call that runs no functor refuses a product that has one, and writes nothing. */
TEST(own, a_functor_needs_its_own_call) {
    spec s;
    problem p;
    tegroup_layout layout;
    static const int64_t m[] = {3, 2};
    memset(&s, 0, sizeof s);
    s.op = TEGROUP_OP_FORWARD;
    s.groups = 2;
    s.m = m;
    s.n = s.k = 8;
    problem_make(&p, &s);
    ASSERT_EQ(TEGROUP_OK, problem_plan(&p));
    ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
    p.desc.functor = 1;
    ASSERT_EQ(TEGROUP_ERROR_PLAN, tegroup_gemm(&p.plan, &p.desc, NULL, &p.error));
    ASSERT_STREQ("functor", p.error.field);
    p.plan.problem.functor = 1; /* as if a backend of this build had taken it */
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm_check(&p.plan, &p.desc, &p.error));
    ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, tegroup_gemm(&p.plan, &p.desc, NULL, &p.error));
    ASSERT_STREQ("functor", p.error.field);
    ASSERT_EQ(1, p.error.got);
    ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, tegroup_gemm_once_layout(&p.desc, &layout, &p.error));
    ASSERT_STREQ("functor", p.error.field);
    ASSERT_EQ(0, check_written(p.desc.d.data, (size_t)(5 * 8) * 4));
    problem_release(&p);
}

TEST_MAIN()
