/* What planted kernel faults are run against (gpu.sh): random products against FP64 by every tile of both bundled backends, in BF16, and
 * large ones, so that it compiles in seconds. A fault that ends in a hang or an error of CUDA is caught as well. */
#define TEGROUP_IMPLEMENTATION
#define TEGROUP_NO_F16
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_NO_CUBLASLT
#define SUPPORT_SUM_SHARE sum_share
static double sum_share; /* of SM90's FP8, whose sums of 128 of k are not those of FP32 */
#include "product.h"
#include "quantised_problem.h"
#include "test.h"

static const tegroup_op ops[3] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
static const tegroup_backend bundled[2] = {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_PORTABLE};

/* p by tile number `tile` of its backend's table; -1: the one that the plan takes. */
static tegroup_status run_by_tile(problem *p, int32_t tile) {
    mirror_up(p->mark);
    tegroup_gemm_desc desc = desc_to_device(&p->desc);
    tegroup_status status = tegroup_plan_make(&desc, NULL, &p->plan, &p->error);
    if (status == TEGROUP_OK && tile >= 0 && !plan_take_tile(&p->plan, tile)) return TEGROUP_ERROR_UNSUPPORTED;
    if (status == TEGROUP_OK) status = problem_prepare_on_device(p, NULL);
    desc.options.workspace_bytes = p->plan.workspace_bytes;
    desc.options.workspace = workspace_of(desc.options.workspace_bytes);
    if (status == TEGROUP_OK) status = tegroup_gemm(&p->plan, &desc, NULL, &p->error);
    MUST(cudaDeviceSynchronize());
    mirror_down();
    return status;
}

TEST(teeth, random_products) {
    rng r = rng_seed(77);
    int64_t ran = 0;
    for (int i = 0; i < 240; i++) {
        void *mark = guards_mark();
        const tegroup_backend backend = bundled[i % 2];
        spec s = random_half_spec(&r, ops[i / 2 % 3], 150, 300, 1);
        s.in = TEGROUP_DTYPE_BF16;
        s.out = rng_chance(&r, 50) ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16;
        s.bias = rng_chance(&r, 40);
        if (s.bias && s.op == TEGROUP_OP_FORWARD && rng_chance(&r, 50)) s.row_scale_dtype = TEGROUP_DTYPE_F32, s.lists &= ~1;
        if (backend == TEGROUP_BACKEND_SM90) { /* columns that end within 16 bytes, rows that are picked */
            s.ng = s.kg = NULL;
            s.pad = s.n >= 8 && s.k >= 8 ? (int32_t)rng_int(&r, 0, 7) : 0;
            s.n -= s.pad;
            s.k -= s.pad;
            random_gather(&r, &s, 30);
        }
        for (int32_t tile = -1, tiles = 0; tile < tiles; tile++) {
            problem p;
            problem_make(&p, &s);
            p.desc.options.backend = backend;
            problem_reference(&p);
            const tegroup_status status = run_by_tile(&p, tile);
            if (status == TEGROUP_ERROR_UNSUPPORTED) {
                problem_release(&p);
                break;
            }
            ASSERT_EQ(status, TEGROUP_OK);
            if (tile < 0) tiles = plan_tiles(&p.plan);
            const verdict v = problem_compare(&p), bias = problem_compare_bias(&p);
            ASSERT_TRUE(v.worst <= 1 && bias.worst <= 1);
            ASSERT_EQ(guards_changed(), 0);
            if (s.tail == TEGROUP_TAIL_KEEP) ASSERT_EQ(problem_disturbed(&p), 0);
            problem_release(&p);
            ran++;
        }
        guards_release(mark);
    }
    ASSERT_GT(ran, 300);
}

/* Groups of many tiles, which are balanced by what they cost, in widths that end in narrow tiles. */
TEST(teeth, large_products) {
    static const int64_t counts[6] = {700, 0, 3000, 64, 65, 1};
    rng r = rng_seed(78);
    for (int i = 0; i < 6; i++) {
        product p;
        int64_t disturbed;
        uint64_t hash = 0;
        memset(&p, 0, sizeof p);
        p.op = ops[i % 3];
        p.in = p.out = TEGROUP_DTYPE_BF16;
        if (i == 5) p.out = TEGROUP_DTYPE_F32, p.accumulate = 1;
        p.bias = i == 0;
        p.groups = 6;
        p.rows = 4000;
        p.n = i < 3 ? 2048 : 1000; /* tiles of 192 and of 256 leave columns for a narrow one */
        p.k = i < 3 ? 1064 : 3880; /* of a weight gradient more tiles in a stripe than blocks */
        p.seed = 5 + (uint64_t)i;
        product_make(&p, TEGROUP_BACKEND_SM90);
        product_counts(&p, counts);
        ASSERT_EQ(product_plan(&p), TEGROUP_OK);
        for (int32_t tile = 0; tile < plan_tiles(&p.plan); tile++) {
            ASSERT_TRUE(plan_take_tile(&p.plan, tile));
            product_poison(&p, NULL);
            ASSERT_EQ(product_run(&p, &p.plan, NULL), TEGROUP_OK);
            if (tile == 0) hash = product_hash(&p, NULL);
            ASSERT_EQ(product_hash(&p, NULL), hash);
            const verdict v = product_sample(&p, 2000, &r, &disturbed);
            ASSERT_LE(v.worst, 1);
            ASSERT_EQ(disturbed, 0);
            ASSERT_EQ(product_steps_left(), 0);
        }
        product_free(&p);
    }
}

/* Quantised operands of every format. */
TEST(teeth, quantised_products) {
    int ran = 0, weights = 0; /* these in registers */
    for (int i = 0; i < 1000; i++) {
        rng r = rng_seed(7900 + (uint64_t)i);
        const scaling_row *fb = &scaling_rows[i % SCALINGS], *fa = rng_chance(&r, 20) ? NULL : &scaling_rows[rng_int(&r, 0, SCALINGS - 1)];
        problem p;
        quantised q[2];
        if (!goes(fa, fb, ops[i / SCALINGS % 3])) continue;
        const int first = i / SCALINGS / 3 % 2; /* decoded first, else in registers or on the way */
        const int shape = fb->scale == TEGROUP_DTYPE_F32 && first ? 1 : 3; /* of several blocks */
        quantised_for_sm90 = i / SCALINGS / 6 % 2 * shape;
        quantised_problem(&p, &r, fa, fb, ops[i / SCALINGS % 3], q, 1);
        quantised_for_sm90 = 0;
        const tegroup_tensor *of[] = {&p.desc.a, &p.desc.b, &p.desc.c, &p.desc.d, &p.desc.bias};
        int built = 1; /* without F16 */
        for (int t = 0; t < 5; t++) built = built && of[t]->dtype != TEGROUP_DTYPE_F16;
        if (!built) {
            problem_release(&p);
            continue;
        }
        p.desc.options.backend = TEGROUP_BACKEND_PORTABLE;
        p.desc.options.expected_rows = first ? INT64_MAX / 2 : 1;
        problem_reference(&p);
        ASSERT_EQ(run_by_tile(&p, -1), TEGROUP_OK);
        ran++;
        weights += portable_decodes_weights(&p.plan);
        const verdict v = problem_compare(&p), bias = problem_compare_bias(&p);
        ASSERT_TRUE(v.worst <= 1 && bias.worst <= 1);
        ASSERT_EQ(guards_changed(), 0);
        problem_release(&p);
    }
    ASSERT_TRUE(ran > 100 && weights > 5);
}

/* Those that SM90 decodes, in any storage order. */
TEST(teeth, decoded_products) {
    static const scaling_row *const formats[] = {NULL, &scaling_rows[5], &scaling_rows[6], &scaling_rows[7], &scaling_rows[8], &scaling_rows[9]};
    for (int i = 0; i < 400; i++) {
        rng r = rng_seed(8100 + (uint64_t)i);
        const scaling_row *fa = formats[rng_int(&r, 0, 5)], *fb = formats[rng_int(&r, 0, 5)];
        problem p;
        quantised q[2];
        if ((fa == NULL && fb == NULL) || !goes(fa, fb, ops[i % 3])) continue;
        quantised_problem(&p, &r, fa, fb, ops[i % 3], q, 2);
        p.desc.options.backend = TEGROUP_BACKEND_SM90;
        problem_reference(&p);
        ASSERT_EQ(run_by_tile(&p, -1), TEGROUP_OK);
        const verdict v = problem_compare(&p), bias = problem_compare_bias(&p);
        ASSERT_TRUE(v.worst <= 1 && bias.worst <= 1);
        ASSERT_EQ(guards_changed(), 0);
        problem_release(&p);
    }
}

/* Those whose weights SM90 decodes in registers, by both of its tiles. */
TEST(teeth, weights_in_registers) {
    quantised_for_sm90 = 2;
    for (int i = 0; i < 120; i++)
        for (int32_t tile = 0, tiles = 1; tile < tiles; tile++) {
            rng r = rng_seed(8100 + (uint64_t)i);
            problem p;
            quantised q[2];
            const scaling_row *const fb = &scaling_rows[5 + i % 5], *const fa = i / 5 % 3 == 2 ? fb : NULL;
            quantised_problem(&p, &r, fa, fb, TEGROUP_OP_FORWARD, q, 2);
            p.desc.options.backend = TEGROUP_BACKEND_SM90;
            problem_reference(&p);
            ASSERT_EQ(run_by_tile(&p, tile), TEGROUP_OK);
            tiles = sm90_decodes_weights(&p.plan) ? plan_tiles(&p.plan) : 1;
            ASSERT_TRUE(problem_compare(&p).worst <= 1);
            ASSERT_EQ(guards_changed(), 0);
            problem_release(&p);
        }
    quantised_for_sm90 = 0;
}

/* FP8 by SM90's kernels, every one that can run a problem. */
TEST(teeth, fp8_products) {
    quantised_for_sm90 = 1;
    sum_share = 0x1p-9;
    for (int i = 0; i < 192; i++)
        for (int32_t tile = 0, tiles = 1; tile < tiles; tile++) {
            rng r = rng_seed(8100 + (uint64_t)i);
            problem p;
            quantised q[2];
            quantised_problem(&p, &r, &scaling_rows[i % 4], &scaling_rows[i / 4 % 4], ops[i / 16 % 3], q, 1);
            p.desc.options.backend = TEGROUP_BACKEND_SM90;
            problem_reference(&p);
            ASSERT_EQ(run_by_tile(&p, tile), TEGROUP_OK);
            tiles = plan_tiles(&p.plan);
            const verdict v = problem_compare(&p), bias = problem_compare_bias(&p);
            ASSERT_TRUE(v.worst <= 1 && bias.worst <= 1);
            ASSERT_EQ(guards_changed(), 0);
            problem_release(&p);
        }
    quantised_for_sm90 = 0;
    sum_share = 0;
}

/* A snapshot that is one but for its mark: nothing is written. */
TEST(teeth, unprepared) {
    static const int64_t counts[2] = {30, 40};
    for (int i = 0; i < 4; i++) {
        const int b = i % 2, too_short = i / 2; /* D holds a row less than A, and one too few */
        product p;
        memset(&p, 0, sizeof p);
        p.op = TEGROUP_OP_FORWARD;
        p.in = p.out = TEGROUP_DTYPE_BF16;
        p.groups = 2;
        p.rows = 70;
        p.n = p.k = 64;
        product_make(&p, bundled[b]);
        product_counts(&p, counts);
        ASSERT_EQ(product_plan(&p), TEGROUP_OK);
        ASSERT_EQ(product_run(&p, &p.plan, NULL), TEGROUP_OK);
        product_poison(&p, NULL);
        const uint64_t before = product_hash(&p, NULL);
        if (too_short) p.desc.d.shape.rows--;
        else MUST(cudaMemset((void *)p.desc.a.shape.snapshot, 0, sizeof(uint32_t)));
        ASSERT_EQ(tegroup_gemm(&p.plan, &p.desc, NULL, &p.error), TEGROUP_OK);
        MUST(cudaDeviceSynchronize());
        ASSERT_EQ(product_hash(&p, NULL), before);
        product_free(&p);
    }
}

/* By its place alone, so that a wrong place shows: what is stored is known, and so is what is called how often. */
struct placed {
    int *calls;
    int64_t n;
    __device__ float operator()(float x, const tegroup_element &at) const {
        atomicAdd(&calls[at.row * n + at.col], 1);
        return x * 0 + (float)(at.group * 64 + at.row % 16 * 4 + at.col % 4);
    }
};
TEST(teeth, functor) {
    enum { GROUPS = 4 };
    static const int64_t counts[GROUPS] = {100, 0, 130, 70};
    for (int b = 0; b < 2; b++)
        for (int32_t tile = 0, tiles = tegroup_impl_built() >> bundled[b] & 1u; tile < tiles; tile++) {
            product p;
            placed f;
            memset(&p, 0, sizeof p);
            p.op = TEGROUP_OP_FORWARD;
            p.in = p.out = TEGROUP_DTYPE_BF16;
            p.groups = GROUPS;
            p.rows = 320;
            p.n = 200;
            p.k = 136;
            product_make(&p, bundled[b]);
            product_counts(&p, counts);
            p.desc.functor = 1;
            ASSERT_EQ(TEGROUP_OK, product_plan(&p));
            tiles = plan_tiles(&p.plan);
            ASSERT_TRUE(plan_take_tile(&p.plan, tile));
            ASSERT_EQ(TEGROUP_OK, (tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, placed>(&p.plan, &p.error)));
            ASSERT_EQ(TEGROUP_OK, product_prepare(&p, NULL));
            MUST(cudaMallocManaged(&f.calls, (size_t)(p.rows * p.n) * 4));
            memset(f.calls, 0, (size_t)(p.rows * p.n) * 4);
            f.n = p.n;
            ASSERT_EQ(TEGROUP_OK, tegroup_gemm_with(&p.plan, &p.desc, f, NULL, &p.error));
            MUST(cudaDeviceSynchronize());
            uint16_t *d = (uint16_t *)malloc((size_t)(p.rows * p.n) * 2);
            MUST(cudaMemcpy(d, p.desc.d.data, (size_t)(p.rows * p.n) * 2, cudaMemcpyDeviceToHost));
            for (int32_t g = 0; g < GROUPS; g++)
                for (int64_t e = p.start[g] * p.n; e < (p.start[g] + counts[g]) * p.n; e++)
                    ASSERT_EQ(g * 64 + e / p.n % 16 * 4 + e % p.n % 4, load(TEGROUP_DTYPE_BF16, d, e));
            for (int64_t e = 0; e < p.rows * p.n; e++) ASSERT_EQ(e < p.filled * p.n, f.calls[e]);
            free(d);
            MUST(cudaFree(f.calls));
            product_free(&p);
        }
}

static __global__ void take_tiles(const __grid_constant__ tegroup_tiles tiles, int *covered) {
    __shared__ tegroup_tile_walk walk;
    tegroup_tile tile;
    for (int32_t round = 0; tegroup_tile_take(&walk, &tiles, round, &tile); round++)
        for (int e = (int)threadIdx.x; e < tile.rows * tile.cols; e += (int)blockDim.x)
            atomicAdd(&covered[(tile.start + tile.row + e / tile.cols) * tiles.n + tile.col + e % tile.cols], 1);
}
TEST(teeth, tiles) {
    enum { GROUPS = 100, ROWS = 3000, N = 70 };
    product p;
    int64_t counts[GROUPS];
    tegroup_tiles tiles;
    int *covered;
    memset(&p, 0, sizeof p);
    p.op = TEGROUP_OP_FORWARD;
    p.in = p.out = TEGROUP_DTYPE_BF16;
    p.groups = GROUPS;
    p.rows = ROWS;
    p.n = N;
    p.k = 8;
    product_make(&p, TEGROUP_BACKEND_PORTABLE);
    for (int g = 0; g < GROUPS; g++) counts[g] = g * 37 % 59;
    product_counts(&p, counts);
    ASSERT_EQ(TEGROUP_OK, product_prepare(&p, NULL));
    ASSERT_EQ(TEGROUP_OK, tegroup_tiles_of(TEGROUP_OP_FORWARD, &p.desc.a.shape, 0, N, 16, 32, &tiles, &p.error));
    MUST(cudaMallocManaged(&covered, ROWS * N * 4));
    memset(covered, 0, ROWS * N * 4);
    take_tiles<<<37, 64>>>(tiles, covered);
    MUST(cudaDeviceSynchronize());
    for (int64_t e = 0; e < ROWS * N; e++) ASSERT_EQ(e < p.filled * N, covered[e]);
    MUST(cudaFree(covered));
    product_free(&p);
}

TEST_MAIN()
