/* What a caller brings himself: a functor in the epilogue of SM90's and PORTABLE's kernels, and kernels that take their tiles
 * from a snapshot. */
#define TEGROUP_IMPLEMENTATION
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "mirror.h"
#include "graph.h"
#include "product.h"
#include "test.h"

#if defined(TEGROUP_NO_BACKWARD)
enum { OPS = 1 };
#else
enum { OPS = 3 };
#endif
static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
static const tegroup_backend bundled[] = {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_PORTABLE};

static int here(tegroup_backend backend) {
    const char *wanted = getenv("TEGROUP_TEST_BACKENDS");
    int device = 0, major = 0;
    if (wanted != NULL && strstr(wanted, tegroup_backend_name(backend)) == NULL) return 0;
    if (!(tegroup_impl_built() >> backend & 1u)) return 0;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return backend == TEGROUP_BACKEND_PORTABLE ? major >= 8 : major == 9;
}

struct identity {
    __device__ float operator()(float x, const tegroup_element &) const { return x; }
};
/* scale[row] * (x + bias[group][col]), and how often it is called for each element. */
struct biased {
    const float *bias, *scale;
    int *calls;
    int64_t cols;
    __device__ float operator()(float x, const tegroup_element &at) const {
        atomicAdd(&calls[at.row * cols + at.col], 1);
        return scale[at.row] * (x + bias[at.group * cols + at.col]);
    }
};
static biased given; /* in host memory; its twins are in device memory */

static identity functor_of(identity f) { return f; }
static biased functor_of(biased) {
    biased f = given;
    f.bias = (const float *)device_of(given.bias);
    f.scale = (const float *)device_of(given.scale);
    f.calls = (int *)device_of(given.calls);
    return f;
}

template <tegroup_op OP, tegroup_dtype DTYPE, typename FUNCTOR>
static tegroup_status run_with(tegroup_plan *plan, const tegroup_gemm_desc *desc, tegroup_error *error) {
    tegroup_status status = tegroup_plan_with<OP, DTYPE, FUNCTOR>(plan, error);
    if (status == TEGROUP_OK) status = tegroup_gemm_check(plan, desc, error);
    return status == TEGROUP_OK ? tegroup_gemm_with(plan, desc, functor_of(FUNCTOR()), NULL, error) : status;
}
template <typename FUNCTOR> static tegroup_status run_bf16(tegroup_plan *plan, const tegroup_gemm_desc *desc, tegroup_error *error) {
#if !defined(TEGROUP_NO_BACKWARD)
    if (desc->op == TEGROUP_OP_DGRAD) return run_with<TEGROUP_OP_DGRAD, TEGROUP_DTYPE_BF16, FUNCTOR>(plan, desc, error);
    if (desc->op == TEGROUP_OP_WGRAD) return run_with<TEGROUP_OP_WGRAD, TEGROUP_DTYPE_BF16, FUNCTOR>(plan, desc, error);
#endif
    return run_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, FUNCTOR>(plan, desc, error);
}
#if !defined(TEGROUP_NO_F16)
static tegroup_status run_f16(tegroup_plan *plan, const tegroup_gemm_desc *desc, tegroup_error *error) { return run_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_F16, identity>(plan, desc, error); }
#endif

/* A problem that a functor may have, with any tile of the backend. */
static spec functor_spec(rng *r, int op, tegroup_backend backend) {
    spec s = random_half_spec(r, ops[op], 300, 400, backend == TEGROUP_BACKEND_SM90);
    s.in = TEGROUP_DTYPE_BF16;
    if (s.out != TEGROUP_DTYPE_F32) s.out = s.in;
    if (s.c == C_ACCUMULATE) s.c = C_IN_PLACE;
    if (s.c == C_IN_PLACE) s.lists = (s.lists & ~4) | ((s.lists & 8) >> 1);
    if (backend == TEGROUP_BACKEND_SM90) s.ng = s.kg = NULL, s.pack = PACK_DENSE;
    return s;
}

/* Every byte that is mirrored. */
static size_t all_bytes(const problem *p, unsigned char *to) {
    size_t used = 0;
    for (guarded_node *node = guarded_top; node != (guarded_node *)p->mark; node = node->older) {
        if (node->scratch) continue;
        if (to != NULL) memcpy(to + used, node->data, node->bytes);
        used += node->bytes;
    }
    return used;
}

static void identity_gives_the_bits(tegroup_backend backend, tegroup_dtype dtype, int count, int op_count) {
    rng r = rng_seed(4001 + (uint64_t)backend);
    mirror_tile = MIRROR_ANY_TILE;
    for (int i = 0; i < count; i++) {
        void *mark = guards_mark();
        spec s = functor_spec(&r, i % op_count, backend);
        problem p;
        if (s.out == s.in) s.out = dtype;
        s.in = dtype;
        problem_make(&p, &s);
        p.desc.options.backend = backend;
        mirror_run = mirror_gemm;
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
        const size_t bytes = all_bytes(&p, NULL);
        unsigned char *plain = (unsigned char *)malloc(2 * bytes + 1), *with = plain + bytes;
        all_bytes(&p, plain);
        problem_reset(&p);
        p.desc.functor = 1;
#if !defined(TEGROUP_NO_F16)
        mirror_run = dtype == TEGROUP_DTYPE_F16 ? run_f16 : run_bf16<identity>;
#else
        mirror_run = run_bf16<identity>;
#endif
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
        all_bytes(&p, with);
        ASSERT_EQ(0, memcmp(plain, with, bytes));
        ASSERT_EQ(0, guards_changed() + workspace_guards_changed());
        free(plain);
        problem_release(&p);
        guards_release(mark);
    }
}
TEST(functor, identity_gives_the_bits_of_the_product_without) {
    for (int b = 0; b < 2; b++)
        if (here(bundled[b])) identity_gives_the_bits(bundled[b], TEGROUP_DTYPE_BF16, (int)scaled(240), OPS);
}
#if !defined(TEGROUP_NO_F16)
TEST(functor, identity_gives_the_bits_in_f16) {
    for (int b = 0; b < 2; b++)
        if (here(bundled[b])) identity_gives_the_bits(bundled[b], TEGROUP_DTYPE_F16, (int)scaled(60), 1);
}
#endif

/* Every kernel with a functor of this program is launched, whatever the scale. */
static void every_kernel(tegroup_backend backend, int op, tegroup_dtype dtype, tegroup_status (*run)(tegroup_plan *, const tegroup_gemm_desc *, tegroup_error *)) {
    static const int64_t m[] = {40, 0, 67};
    mirror_run = run;
    mirror_tiles = 1;
    for (mirror_tile = 0; mirror_tile < mirror_tiles; mirror_tile++) {
        spec s;
        problem p;
        memset(&s, 0, sizeof s);
        s.op = ops[op];
        s.groups = 3;
        s.m = m;
        s.n = 72;
        s.k = 136;
        s.in = s.out = dtype;
        s.aligned = 1;
        problem_make(&p, &s);
        const int64_t cols = s.op == TEGROUP_OP_FORWARD ? s.n : s.k, rows = s.op == TEGROUP_OP_WGRAD ? s.groups * s.n : p.capacity;
        float *bias = (float *)guarded((size_t)(s.groups * cols) * 4), *scale = (float *)guarded((size_t)rows * 4);
        given.cols = cols;
        given.calls = (int *)guarded((size_t)(rows * cols) * 4);
        memset(bias, 0, (size_t)(s.groups * cols) * 4);
        for (int64_t e = 0; e < rows; e++) scale[e] = 1;
        memset(given.calls, 0, (size_t)(rows * cols) * 4);
        given.bias = bias;
        given.scale = scale;
        p.desc.options.backend = backend;
        p.desc.functor = 1;
        problem_reference(&p);
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
        ASSERT_LE(problem_compare(&p).worst, 1.0);
        problem_release(&p);
    }
}
TEST(functor, every_kernel) {
    for (int b = 0; b < 2; b++)
        for (int op = 0; op < OPS && here(bundled[b]); op++) {
            every_kernel(bundled[b], op, TEGROUP_DTYPE_BF16, run_bf16<identity>);
            every_kernel(bundled[b], op, TEGROUP_DTYPE_BF16, run_bf16<biased>);
#if !defined(TEGROUP_NO_F16)
            if (op == 0) every_kernel(bundled[b], op, TEGROUP_DTYPE_F16, run_f16);
#endif
        }
}

/* Row i of group g as a functor is told it. */
static int64_t told_row(const problem *p, int32_t g, int64_t i) { return p->s.op == TEGROUP_OP_WGRAD ? g * p->s.n + i : p->start[g] + i; }

static void bias_and_scale(tegroup_backend backend, int count) {
    rng r = rng_seed(4101 + (uint64_t)backend);
    double worst = 0;
    mirror_tile = MIRROR_ANY_TILE;
    mirror_run = run_bf16<biased>;
    for (int i = 0; i < count; i++) {
        void *mark = guards_mark();
        spec s = functor_spec(&r, i % OPS, backend);
        problem p;
        s.ng = s.kg = NULL;
        s.pack = PACK_DENSE;
        problem_make(&p, &s);
        p.desc.options.backend = backend;
        p.desc.functor = 1;
        problem_reference(&p);
        const int64_t cols = s.op == TEGROUP_OP_FORWARD ? s.n : s.k, rows = s.op == TEGROUP_OP_WGRAD ? s.groups * s.n : s.m == NULL ? s.groups * s.rows_each : p.capacity;
        given.cols = cols;
        given.bias = (const float *)guarded((size_t)(s.groups * cols) * 4);
        given.scale = (const float *)guarded((size_t)rows * 4);
        given.calls = (int *)guarded((size_t)(rows * cols) * 4);
        for (int64_t e = 0; e < s.groups * cols; e++) store(TEGROUP_DTYPE_F32, (void *)given.bias, e, rng_normal(&r));
        for (int64_t e = 0; e < rows; e++) store(TEGROUP_DTYPE_F32, (void *)given.scale, e, rng_normal(&r));
        memset(given.calls, 0, (size_t)(rows * cols) * 4);
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
        int64_t elements = 0, calls = 0;
        verdict v = {0, 0, 0, 0, 0};
        for (int32_t g = 0; g < s.groups; g++) {
            if (s.op == TEGROUP_OP_WGRAD && group_skipped(&s, g)) continue;
            for (int64_t line = 0; line < p.d.rows[g]; line++)
                for (int64_t j = 0; j < cols; j++, elements++) {
                    const int64_t row = told_row(&p, g, line), e = line * cols + j;
                    const double x = p.want[g][e], b = given.bias[g * cols + j], by = given.scale[row], want = by * (x + b);
                    compare(&v, value_at(&p.d, g, line, j), want,
                            fabs(by) * (p.bound[g][e] + 0x1p-22 * (fabs(x) + fabs(b))) + check_bound(0, 0, 0, p.s.out, want), 0);
                    ASSERT_EQ(1, given.calls[row * cols + j]); /* once for each element that is stored */
                }
        }
        for (int64_t e = 0; e < rows * cols; e++) calls += given.calls[e];
        ASSERT_EQ(elements, calls); /* and for no other */
        ASSERT_LE(v.worst, 1.0);
        if (v.worst > worst) worst = v.worst;
        ASSERT_EQ(0, guards_changed() + workspace_guards_changed());
        if (s.tail == TEGROUP_TAIL_KEEP) {
            memset(given.calls, 0, (size_t)(rows * cols) * 4);
            ASSERT_EQ(0, problem_disturbed(&p));
        }
        problem_release(&p);
        guards_release(mark);
    }
    ASSERT_LT(0.0, worst); /* something was compared */
}
TEST(functor, bias_and_scale_against_fp64_portable) { if (here(TEGROUP_BACKEND_PORTABLE)) bias_and_scale(TEGROUP_BACKEND_PORTABLE, (int)scaled(240)); }
TEST(functor, bias_and_scale_against_fp64_sm90) { if (here(TEGROUP_BACKEND_SM90)) bias_and_scale(TEGROUP_BACKEND_SM90, (int)scaled(240)); }

/* One graph of prepare and product, replayed with sizes that are honest, that lie, and that are none, beside the same product
 * without a functor. */
TEST(functor, hostile_sizes_in_a_graph) {
    enum { SETS = 5, GROUPS = 6, ROWS = 500 };
    static const int64_t said[SETS][GROUPS] = {{100, 0, 1, 150, 200, 17}, {-5, ROWS, 3, INT64_MAX, 7, 1}, {0, 0, 0, 0, 0, 0}, {INT64_MIN, 77, -2, 200, INT64_MAX / 2, 0}, {1, 1, 1, 1, 1, 1}};
    for (int b = 0; b < 2; b++) {
        product p, q;
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t replay;
        if (!here(bundled[b])) continue;
        memset(&p, 0, sizeof p);
        p.op = TEGROUP_OP_FORWARD;
        p.in = p.out = TEGROUP_DTYPE_BF16;
        p.groups = GROUPS;
        p.rows = ROWS;
        p.n = 136;
        p.k = 264;
        p.seed = 77;
        q = p;
        product_make(&p, bundled[b]);
        product_make(&q, bundled[b]);
        q.desc.functor = 1;
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        ASSERT_EQ(TEGROUP_OK, product_plan(&q));
        ASSERT_EQ(TEGROUP_OK, (tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, biased>(&q.plan, &q.error)));
        biased f;
        float *bias, *scale;
        const size_t elements = (size_t)ROWS * (size_t)p.n;
        f.cols = p.n;
        MUST(cudaMallocManaged(&bias, (size_t)(GROUPS * p.n) * 4));
        MUST(cudaMallocManaged(&scale, ROWS * 4));
        MUST(cudaMallocManaged(&f.calls, elements * 4 + 2 * GUARD_BYTES));
        memset(bias, 0, (size_t)(GROUPS * p.n) * 4);
        for (int i = 0; i < ROWS; i++) scale[i] = 1; /* so that it is an identity, and counts */
        f.bias = bias;
        f.scale = scale;
        f.calls += GUARD_BYTES / 4;
        MUST(cudaStreamCreate(&stream));
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, stream));
        ASSERT_EQ(TEGROUP_OK, product_prepare(&q, stream));
        ASSERT_EQ(TEGROUP_OK, tegroup_gemm_with(&q.plan, &q.desc, f, stream, &q.error));
        MUST(cudaStreamEndCapture(stream, &graph));
        ASSERT_TRUE(only_kernels(graph));
        MUST(cudaGraphInstantiate(&replay, graph, 0));
        f.bias = f.scale = NULL; /* a graph has its own copy */
        for (int i = 0; i < SETS; i++) {
            tegroup_snapshot_header header;
            int64_t calls = 0;
            MUST(cudaMemcpy((void *)p.desc.a.shape.row_sizes.data, said[i], sizeof *said, cudaMemcpyDefault));
            MUST(cudaMemcpy((void *)q.desc.a.shape.row_sizes.data, said[i], sizeof *said, cudaMemcpyDefault));
            product_poison(&p, stream);
            product_poison(&q, stream);
            MUST(cudaStreamSynchronize(stream));
            memset(f.calls - GUARD_BYTES / 4, 0, elements * 4 + 2 * GUARD_BYTES);
            MUST(cudaGraphLaunch(replay, stream));
            MUST(cudaStreamSynchronize(stream));
            MUST(cudaMemcpy(&header, q.desc.a.shape.snapshot, sizeof header, cudaMemcpyDefault));
            ASSERT_EQ(product_hash(&p, stream), product_hash(&q, stream));
            ASSERT_EQ(0, product_bands_changed(&q));
            for (size_t e = 0; e < elements; e++) calls += f.calls[e];
            ASSERT_EQ(header.rows_total * p.n, calls);
            for (size_t e = 0; e < GUARD_BYTES / 4; e++) ASSERT_EQ(0, f.calls[elements + e] | f.calls[(ptrdiff_t)e - GUARD_BYTES / 4]);
        }
        MUST(cudaGraphExecDestroy(replay));
        MUST(cudaGraphDestroy(graph));
        MUST(cudaStreamDestroy(stream));
        product_free(&p);
        product_free(&q);
        MUST(cudaFree(bias));
        MUST(cudaFree(scale));
        MUST(cudaFree(f.calls - GUARD_BYTES / 4));
    }
}

#define REFUSED(call, code, name, want, came)                    \
    do {                                                         \
        memset(&error, 0, sizeof error);                         \
        ASSERT_EQ(TEGROUP_ERROR_##code, (call));                 \
        ASSERT_STREQ(name, error.field);                         \
        ASSERT_EQ((int64_t)(want), error.expected);              \
        ASSERT_EQ((int64_t)(came), error.got);                   \
    } while (0)

TEST(functor, what_does_not_fit_is_refused) {
    const identity same = {};
    for (int b = 0; b < 2; b++) {
        product p;
        tegroup_plan plan, untouched;
        tegroup_error error;
        if (!here(bundled[b])) continue;
        memset(&p, 0, sizeof p);
        p.op = TEGROUP_OP_FORWARD;
        p.in = p.out = TEGROUP_DTYPE_BF16;
        p.groups = 2;
        p.rows = p.n = p.k = 64;
        product_make(&p, bundled[b]);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        plan = untouched = p.plan;
        REFUSED((tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, identity>(&plan, &error)), PLAN, "plan.problem.functor", 1, 0);
        REFUSED(tegroup_gemm_with(&plan, &p.desc, same, NULL, &error), PLAN, "plan.problem.functor", 1, 0);
        p.desc.functor = 1;
        REFUSED(tegroup_gemm(&plan, &p.desc, NULL, &error), PLAN, "functor", 0, 1);
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&p.desc, NULL, &plan, &error));
        REFUSED(tegroup_gemm(&plan, &p.desc, NULL, &error), UNSUPPORTED, "functor", 0, 1);
        REFUSED(tegroup_gemm_with(&plan, &p.desc, same, NULL, &error), PLAN, "plan", 1, 0);
#if !defined(TEGROUP_NO_BACKWARD)
        REFUSED((tegroup_plan_with<TEGROUP_OP_DGRAD, TEGROUP_DTYPE_BF16, identity>(&plan, &error)), PLAN, "plan.problem.op", TEGROUP_OP_DGRAD, TEGROUP_OP_FORWARD);
#endif
#if !defined(TEGROUP_NO_F16)
        REFUSED((tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_F16, identity>(&plan, &error)), PLAN, "plan.problem.a", TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16);
#endif
        ASSERT_EQ(TEGROUP_OK, (tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, biased>(&plan, &error)));
        REFUSED(tegroup_gemm_with(&plan, &p.desc, same, NULL, &error), PLAN, "plan", 1, 0);
        ASSERT_EQ(TEGROUP_OK, (tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, identity>(&plan, &error)));
        REFUSED(tegroup_gemm(&plan, &p.desc, NULL, &error), UNSUPPORTED, "functor", 0, 1);
        p.desc.functor = 0;
        REFUSED(tegroup_gemm_with(&plan, &p.desc, same, NULL, &error), PLAN, "functor", 1, 0);
        plan.backend = TEGROUP_BACKEND_CPU; /* nothing of a plan that is no plan is written */
        plan.magic = 0;
        untouched = plan;
        REFUSED((tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, identity>(&plan, &error)), PLAN, "plan", TEGROUP_PLAN_MAGIC, 0);
        ASSERT_EQ(0, memcmp(&plan, &untouched, sizeof plan));
        ASSERT_EQ(product_hash(&p, NULL), product_hash(&p, NULL));
        product_free(&p);
    }
}

/* ---- tiles ------------------------------------------------------------------------------------------------------------- */

/* Each block adds one to the place of every element of its tiles, and writes what the tile says. */
static __global__ void take_tiles(const __grid_constant__ tegroup_tiles tiles, int *covered, int64_t rows_each, unsigned long long *wrong) {
    __shared__ tegroup_tile_walk walk;
    tegroup_tile tile;
    const int thread = (int)(threadIdx.x + blockDim.x * threadIdx.y), threads = (int)(blockDim.x * blockDim.y);
    for (int32_t round = 0; tegroup_tile_take(&walk, &tiles, round, &tile); round++) {
        if (thread == 0 && (tile.start != tiles.view.start[tile.group] || tile.group_rows != tiles.view.rows[tile.group])) atomicAdd(wrong, 1ull);
        for (int e = thread; e < tile.rows * tile.cols; e += threads) {
            const int64_t row = tile.row + e / tile.cols, first = tiles.op == TEGROUP_OP_WGRAD ? tile.group * rows_each : tile.start;
            atomicAdd(&covered[(first + row) * tiles.n + tile.col + e % tile.cols], 1);
        }
    }
    if (tile.group != -1) atomicAdd(wrong, 1ull);
}

TEST(tiles, each_is_taken_once) {
    rng r = rng_seed(4301);
    static const int grids[] = {1, 3, 64, 1000};
    for (int i = 0; i < (int)scaled(120); i++) {
        const int wgrad = i % 2, hostile = rng_chance(&r, 40);
        const int32_t groups = (int32_t)(rng_chance(&r, 20) ? rng_int(&r, 200, 2000) : rng_int(&r, 0, 40));
        const int64_t capacity = rng_int(&r, 0, 3000), m = wgrad ? rng_int(&r, 0, 70) : 0, n = rng_int(&r, 0, 90);
        int64_t *counts, room = capacity;
        const int64_t elements = (wgrad ? groups * m : capacity) * n;
        int *covered;
        void *snapshot;
        unsigned long long *wrong;
        tegroup_layout layout;
        tegroup_tiles tiles;
        tegroup_error error;
        MUST(cudaMallocManaged(&counts, (size_t)groups * 8 + 8));
        MUST(cudaMallocManaged(&covered, (size_t)elements * 4 + 4));
        MUST(cudaMallocManaged(&wrong, 8));
        for (int32_t g = 0; g < groups; g++) {
            counts[g] = hostile && rng_chance(&r, 20) ? (int64_t)rng_next(&r) : rng_chance(&r, 20) ? -1 : rng_int(&r, 0, room / 3);
            if (!hostile && counts[g] > 0) room -= counts[g];
        }
        *wrong = 0;
        memset(covered, 0, (size_t)elements * 4);
        tegroup_shape rows = tegroup_shape_of(groups, capacity, 8, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
        ASSERT_EQ(TEGROUP_OK, tegroup_snapshot_layout(&rows, &layout, &error));
        MUST(cudaMallocManaged(&snapshot, layout.total_bytes));
        ASSERT_EQ(TEGROUP_OK, tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error));
        ASSERT_EQ(TEGROUP_OK, tegroup_tiles_of(wgrad ? TEGROUP_OP_WGRAD : TEGROUP_OP_DGRAD, &rows, m, n, (int32_t)rng_int(&r, 1, 40), (int32_t)rng_int(&r, 1, 40), &tiles, &error));
        take_tiles<<<grids[i / 2 % 4], i % 3 ? dim3(64) : dim3(6, 9)>>>(tiles, covered, m, wrong);
        MUST(cudaGetLastError());
        MUST(cudaDeviceSynchronize());
        ASSERT_EQ(0, (int64_t)*wrong);
        int64_t sum = 0, owned = 0;
        const tegroup_snapshot_view view = tegroup_snapshot_read(snapshot);
        for (int32_t g = 0; g < groups; g++) {
            const int64_t first = wgrad ? g * m : view.start[g], lines = view.rows[g] < 0 ? 0 : wgrad ? m : view.rows[g];
            for (int64_t e = 0; e < lines * n; e++, owned++) ASSERT_EQ(1, covered[first * n + e]);
        }
        for (int64_t e = 0; e < elements; e++) sum += covered[e];
        ASSERT_EQ(owned, sum);
        ((tegroup_snapshot_header *)snapshot)->magic++; /* and of a snapshot that is none, no tile */
        take_tiles<<<7, 64>>>(tiles, covered, m, wrong);
        MUST(cudaDeviceSynchronize());
        for (int64_t e = 0; e < elements; e++) sum -= covered[e];
        ASSERT_EQ(0, sum);
        MUST(cudaFree(counts));
        MUST(cudaFree(covered));
        MUST(cudaFree(wrong));
        MUST(cudaFree(snapshot));
    }
}

TEST_MAIN()
