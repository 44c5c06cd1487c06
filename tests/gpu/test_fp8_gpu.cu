/* SM90's products of FP8: random ones of every pair of scalings, types and operations, in every tile, against FP64 products of what
 * codes and scales mean, which tests/unit/quantised.h works out by itself; bits that do not depend on the tile; long sums, which the
 * instruction alone gets wrong. test_fp8_contract_gpu.cu has the rest of what is promised. */
#define TEGROUP_EXTERN
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_NO_F16
#define SUPPORT_SUM_ROUNDING 0x1p-23
/* An instruction adds 32 products with about 14 bits below the largest; 2^-10.3 of the magnitudes was seen. */
#define SUPPORT_SUM_SHARE 0x1p-9
#include "mirror.h"
#include "quantised_problem.h"
#include "test.h"

static int sm90_here(void) {
    const char *wanted = getenv("TEGROUP_TEST_BACKENDS");
    int device, major;
    if (wanted != NULL && strstr(wanted, "sm90") == NULL) return 0;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major == 9;
}

static struct { double worst; int64_t problems, elements; } totals;

static void say(const char *wrong, const problem *p, const scaling_row *fa, const scaling_row *fb, const quantised q[2], uint64_t seed) {
    fprintf(stderr, "%s: %s x %s, op %d, seed %llu, groups %d n %ld k %ld uniform %d lists %d strides %d %d types %d %d out %d c %d bias %d tile %d x %d: %s %s\n", wrong, name_of(fa),
            name_of(fb), (int)p->s.op, (unsigned long long)seed, (int)p->s.groups, (long)p->s.n, (long)p->s.k, p->s.m == NULL, (int)p->s.lists, q[0].outer_stride > 0,
            q[1].outer_stride > 0, (int)p->desc.a.dtype, (int)p->desc.b.dtype, (int)p->s.out, (int)p->s.c, p->s.bias, p->plan.tile_m, p->plan.tile_n,
            p->error.field ? p->error.field : "", p->error.rule ? p->error.rule : "");
}

/* Runs a problem in one of the tiles. Its results, or NULL if something is wrong; k: the length of its sums. */
static double *run_tile(uint64_t seed, const scaling_row *fa, const scaling_row *fb, tegroup_op op, tegroup_compute compute, int32_t tile, int64_t *count, int64_t *k) {
    rng r = rng_seed(seed);
    problem p;
    quantised q[2];
    const char *wrong = NULL;
    double *bits = NULL;
    memset(q, 0, sizeof q);
    quantised_for_sm90 = 1;
    quantised_problem(&p, &r, fa, fb, op, q, 1);
    p.desc.options.backend = TEGROUP_BACKEND_SM90;
    p.s.compute = p.desc.options.compute = compute;
    *k = op == TEGROUP_OP_FORWARD ? p.s.k : p.s.n;
    if (seed % 2) p.desc.options.check_level = TEGROUP_CHECK_DEEP;
    problem_reference(&p);
    mirror_tile = tile;
    if (problem_run_on_device(&p) != TEGROUP_OK) wrong = "refused";
    else {
        const verdict v = problem_compare(&p), b = problem_compare_bias(&p);
        bits = results_of(&p, count);
        totals.problems++;
        totals.elements += v.count + b.count;
        totals.worst = fmax(totals.worst, fmax(v.worst, b.worst));
        if (!(v.worst <= 1)) wrong = "result";
        else if (!(b.worst <= 1)) wrong = "bias gradient";
        else if (guards_changed() + workspace_guards_changed() != 0) wrong = "guard bytes changed";
        else if (problem_tail_wrong(&p) != 0) wrong = "rows that are no group's are not what tail asks for";
        else if (problem_disturbed(&p) != 0) wrong = "bytes changed that are not the result's";
        if (wrong != NULL) fprintf(stderr, "error / bound %g, bias gradient %g\n", v.worst, b.worst);
    }
    mirror_tile = MIRROR_PLANNED_TILE;
    if (wrong != NULL) say(wrong, &p, fa, fb, q, seed);
    problem_release(&p);
    if (wrong == NULL) return bits;
    free(bits);
    return NULL;
}

/* Runs a problem in every tile: each result within the bound, all of the same bits. */
static int run_one(uint64_t seed, const scaling_row *fa, const scaling_row *fb, tegroup_op op) {
    int64_t count, again, k;
    double *first = run_tile(seed, fa, fb, op, TEGROUP_COMPUTE_F32, 0, &count, &k);
    int same = first != NULL;
    for (int32_t tile = 1; tile < mirror_tiles && same; tile++) {
        double *other = run_tile(seed, fa, fb, op, TEGROUP_COMPUTE_F32, tile, &again, &k);
        same = other != NULL && count == again && memcmp(first, other, (size_t)count * 8) == 0;
        if (!same) fprintf(stderr, "seed %llu: other bits in tile %d\n", (unsigned long long)seed, tile);
        free(other);
    }
    free(first);
    return same;
}

/* The scalings that the kernels know. */
static const scaling_row *known(int i) { return &scaling_rows[i]; }
enum { KNOWN = 4 };

TEST(fp8_gpu, fp64) {
    if (!sm90_here()) return;
    int bad = 0;
    for (int64_t i = 0; i < scaled(in_the_long_suite(700, 12)); i++) /* 2,100 a pair */
        for (int a = 0; a < KNOWN; a++)
            for (int b = 0; b < KNOWN; b++)
                for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++)
                    if (bad < 12) bad += !run_one((uint64_t)((a * 16 + b) * 4 + op) * 1000003u + (uint64_t)i, known(a), known(b), (tegroup_op)op);
    ASSERT_EQ(bad, 0);
    ASSERT_GT(totals.elements, 0);
    printf("%ld problems, %ld elements, error/bound at most %.3f\n", (long)totals.problems, (long)totals.elements, totals.worst);
}

/* Fast accumulation: within its own bound in each tile, which all give the same bits; and where it changes nothing, since scales are
 * for blocks, sums go over rows or over no more than an instruction's promoted sum, F32's bits. */
static int run_fast(uint64_t seed, const scaling_row *fa, const scaling_row *fb, tegroup_op op, int64_t *others) {
    const int own = op != TEGROUP_OP_WGRAD && fa->inner == 0 && fb->inner == 0;
    int64_t count, again, k;
    double *plain = run_tile(seed, fa, fb, op, TEGROUP_COMPUTE_F32, 0, &count, &k), *first = run_tile(seed, fa, fb, op, TEGROUP_COMPUTE_FAST_ACCUM, 0, &again, &k);
    int right = plain != NULL && first != NULL && count == again;
    if (right) {
        const int differ = memcmp(plain, first, (size_t)count * 8) != 0;
        *others += differ;
        if (differ && (!own || k <= 128)) right = 0, fprintf(stderr, "seed %llu: other bits than F32's\n", (unsigned long long)seed);
    }
    for (int32_t tile = 1; tile < mirror_tiles && right; tile++) {
        double *other = run_tile(seed, fa, fb, op, TEGROUP_COMPUTE_FAST_ACCUM, tile, &again, &k);
        right = other != NULL && count == again && memcmp(first, other, (size_t)count * 8) == 0;
        if (!right) fprintf(stderr, "seed %llu: other bits in tile %d\n", (unsigned long long)seed, tile);
        free(other);
    }
    free(plain), free(first);
    return right;
}

TEST(fp8_gpu, fast_accumulation) {
    if (!sm90_here()) return;
    int bad = 0;
    int64_t others = 0;
    for (int64_t i = 0; i < scaled(8); i++)
        for (int a = 0; a < KNOWN; a++)
            for (int b = 0; b < KNOWN; b++)
                for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++)
                    for (int j = 0; j < (a < 2 && b < 2 && op != TEGROUP_OP_WGRAD ? 4 : 1); j++)
                        if (bad < 12) bad += !run_fast((uint64_t)(((a * 16 + b) * 4 + op) * 4 + j) * 1000033u + (uint64_t)i, known(a), known(b), (tegroup_op)op, &others);
    ASSERT_EQ(bad, 0);
    ASSERT_GT(others, 0); /* sums of more than 128 of k are not F32's */
}

/* ---- operands that the test lays out itself --------------------------------------------------------------------------- */

static void *up_to_device(const void *host, size_t bytes) {
    void *to;
    MUST(cudaMalloc(&to, bytes));
    copy_up(to, host, bytes);
    return to;
}

/* Positive values, so that a sum grows with each term: one that wgmma carries over all of k loses a term's low bits, the later
 * the more, and ends some percent off, as fast accumulation does. */
TEST(fp8_gpu, long_sums) {
    enum { M = 160, N = 64, LONG = 16384 };
    static const tegroup_scaling scalings[4][2] = {{TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_TENSOR},
                                                   {TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128},
                                                   {TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_1X128},
                                                   {TEGROUP_SCALING_ROW, TEGROUP_SCALING_TENSOR}};
    if (!sm90_here()) return;
    rng r = rng_seed(99);
    unsigned char *x = (unsigned char *)malloc((size_t)M * LONG), *w = (unsigned char *)malloc((size_t)N * LONG);
    float *ones = (float *)malloc((size_t)M * LONG / 128 * 4), *got = (float *)malloc(M * N * 4), worst[2] = {0, 0};
    for (int i = 0; i < M * LONG; i++) x[i] = (unsigned char)nearest_small(TEGROUP_DTYPE_F8E4M3, 1 + 0.9 * rng_unit(&r));
    for (int i = 0; i < N * LONG; i++) w[i] = (unsigned char)nearest_small(TEGROUP_DTYPE_F8E4M3, 1 + 0.9 * rng_unit(&r));
    for (int i = 0; i < M * LONG / 128; i++) ones[i] = 1;
    const double *value = small_values(TEGROUP_DTYPE_F8E4M3);
    double *want = (double *)calloc(M * N, 8);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            for (int q = 0; q < LONG; q++) want[i * N + j] += value[x[i * LONG + q]] * value[w[j * LONG + q]];
    for (int s = 0; s < 8; s++) { /* for many rows and for few, in a tile for each */
        const int fast = s % 4 == 3;
        tegroup_gemm_desc desc;
        tegroup_plan plan;
        tegroup_error error;
        memset(&desc, 0, sizeof desc);
        desc.struct_size = sizeof desc;
        desc.op = TEGROUP_OP_FORWARD;
        desc.space = TEGROUP_SPACE_DEVICE;
        desc.a = tegroup_tensor_uniform(1, M, LONG, TEGROUP_DTYPE_F8E4M3, up_to_device(x, (size_t)M * LONG));
        desc.b = tegroup_tensor_uniform(1, N, LONG, TEGROUP_DTYPE_F8E4M3, up_to_device(w, (size_t)N * LONG));
        desc.d = tegroup_tensor_uniform(1, M, N, TEGROUP_DTYPE_F32, up_to_device(got, M * N * 4));
        desc.a.scaling = scalings[s % 4][0];
        desc.b.scaling = scalings[s % 4][1];
        desc.a.scale_inv = desc.b.scale_inv = up_to_device(ones, (size_t)M * LONG / 128 * 4);
        desc.options.backend = TEGROUP_BACKEND_SM90;
        desc.options.compute = fast ? TEGROUP_COMPUTE_FAST_ACCUM : TEGROUP_COMPUTE_F32;
        desc.options.expected_rows = s < 4 ? M : 1;
        ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
        ASSERT_EQ(plan.tile_m, s < 4 ? 128 : 64);
        ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
        MUST(cudaMemcpy(got, desc.d.data, M * N * 4, cudaMemcpyDeviceToHost));
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                const double off = fabs(got[i * N + j] - want[i * N + j]) / want[i * N + j];
                worst[fast] = fmaxf(worst[fast], (float)off);
                ASSERT_TRUE(off <= (fast ? 0.5 : 0x1p-12));
            }
        void *const all[] = {desc.a.data, desc.b.data, desc.d.data, desc.a.scale_inv};
        for (int i = 0; i < 4; i++) MUST(cudaFree(all[i]));
    }
    printf("relative error of %d positive terms at most 2^%.1f, with fast accumulation 2^%.1f\n", LONG, log2(worst[0]), log2(worst[1]));
    ASSERT_TRUE(worst[1] > worst[0]);
    free(x), free(w), free(ones), free(got), free(want);
}

/* Uneven groups of tiles that blocks share by their cost, narrow ones at the end of each tile row, and an empty group: samples. */
TEST(fp8_gpu, balanced_tiles) {
    enum { GROUPS = 4, ROWS = 2500, N = 448, K = 2304, BLOCKS = K / 128, B_BLOCKS = 20 };
    static const int64_t counts[GROUPS] = {701, 0, 1299, 500};
    if (!sm90_here()) return;
    rng r = rng_seed(321);
    unsigned char *x = (unsigned char *)malloc((size_t)ROWS * K), *w = (unsigned char *)malloc((size_t)GROUPS * N * K);
    float *x_scale = (float *)malloc((ROWS + 4 * GROUPS) * BLOCKS * 4), *w_scale = (float *)malloc(GROUPS * 4 * B_BLOCKS * 4), *got = (float *)malloc((size_t)ROWS * N * 4);
    for (int i = 0; i < ROWS * K; i++) x[i] = (unsigned char)nearest_small(TEGROUP_DTYPE_F8E4M3, 4 * rng_unit(&r) - 2);
    for (int i = 0; i < GROUPS * N * K; i++) w[i] = (unsigned char)nearest_small(TEGROUP_DTYPE_F8E4M3, 4 * rng_unit(&r) - 2);
    for (int i = 0; i < (ROWS + 4 * GROUPS) * BLOCKS; i++) x_scale[i] = (float)exp2(4 * rng_unit(&r) - 2);
    for (int i = 0; i < GROUPS * 4 * B_BLOCKS; i++) w_scale[i] = (float)exp2(4 * rng_unit(&r) - 2);
    tegroup_shape rows = tegroup_shape_of(GROUPS, ROWS, K, tegroup_sizes_of(up_to_device(counts, sizeof counts), TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    tegroup_layout layout;
    tegroup_error error;
    tegroup_plan plan;
    void *snapshot, *d;
    ASSERT_EQ(tegroup_snapshot_layout(&rows, &layout, &error), TEGROUP_OK);
    MUST(cudaMalloc(&snapshot, layout.total_bytes));
    MUST(cudaMalloc(&d, (size_t)ROWS * N * 4));
    MUST(cudaMemset(d, 0, (size_t)ROWS * N * 4)); /* rows of no group are copied, too */
    ASSERT_EQ(tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error), TEGROUP_OK);
    tegroup_gemm_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.op = TEGROUP_OP_FORWARD;
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.a = tegroup_tensor_of(rows, K, TEGROUP_DTYPE_F8E4M3, up_to_device(x, (size_t)ROWS * K));
    desc.b = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_F8E4M3, up_to_device(w, (size_t)GROUPS * N * K));
    desc.d = tegroup_tensor_of(rows, N, TEGROUP_DTYPE_F32, d);
    desc.a.scaling = TEGROUP_SCALING_BLOCK_1X128;
    desc.b.scaling = TEGROUP_SCALING_BLOCK_128X128;
    desc.a.scale_inv = up_to_device(x_scale, (ROWS + 4 * GROUPS) * BLOCKS * 4);
    desc.b.scale_inv = up_to_device(w_scale, GROUPS * 4 * B_BLOCKS * 4);
    desc.options.backend = TEGROUP_BACKEND_SM90;
    ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(plan.tile_n, 192);
    ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
    MUST(cudaMemcpy(got, d, (size_t)ROWS * N * 4, cudaMemcpyDeviceToHost));
    const double *value = small_values(TEGROUP_DTYPE_F8E4M3);
    int64_t start = 0, scales = 0;
    for (int g = 0; g < GROUPS; start += counts[g], scales += BLOCKS * up(counts[g], 4), g++)
        for (int sample = 0; sample < 4000 && counts[g] > 0; sample++) {
            const int64_t i = rng_int(&r, 0, counts[g] - 1), j = rng_int(&r, 0, N - 1);
            double want = 0, size = 0;
            for (int64_t q = 0; q < K; q++) {
                const double term = value[x[(start + i) * K + q]] * x_scale[scales + q / 128 * up(counts[g], 4) + i] * value[w[(g * N + j) * K + q]]
                                  * w_scale[(g * 4 + j / 128) * B_BLOCKS + q / 128];
                want += term;
                size += fabs(term);
            }
            const double off = fabs(got[(start + i) * N + j] - want);
            if (!(off <= 0x1p-10 * size)) fprintf(stderr, "group %d, %ld, %ld: %g for %g\n", g, (long)i, (long)j, (double)got[(start + i) * N + j], want);
            ASSERT_TRUE(off <= 0x1p-10 * size);
        }
    void *const all[] = {(void *)rows.row_sizes.data, snapshot, d, desc.a.data, desc.b.data, desc.a.scale_inv, desc.b.scale_inv};
    for (int i = 0; i < 7; i++) MUST(cudaFree(all[i]));
    free(x), free(w), free(x_scale), free(w_scale), free(got);
}

/* tegroup_plan_tune tells what a product takes with its quantise, and what that of BF16 takes, which is left as it is. */
TEST(fp8_gpu, tuned_beside_bf16) {
    enum { GROUPS = 2, ROWS = 200, N = 256, K = 384, SCALES = (ROWS + 4 * GROUPS) * K / 128, W_SCALES = GROUPS * 4 * K / 128 };
    if (!sm90_here()) return;
    rng r = rng_seed(11);
    uint16_t *values = (uint16_t *)malloc(GROUPS * N * K * 2);
    for (int i = 0; i < GROUPS * N * K; i++) values[i] = (uint16_t)(0x3f80 + (int)rng_int(&r, -40, 40) + 0x8000 * (int)rng_int(&r, 0, 1));
    void *x = up_to_device(values, GROUPS * ROWS * K * 2), *w = up_to_device(values, GROUPS * N * K * 2), *d, *bytes;
    MUST(cudaMalloc(&d, GROUPS * ROWS * N * 2));
    MUST(cudaMemset(d, 0xff, GROUPS * ROWS * N * 2)); /* initcheck does not see what TMA stores */
    MUST(cudaMalloc(&bytes, GROUPS * (ROWS + N) * K + 16 + (GROUPS * SCALES + W_SCALES) * 4));
    tegroup_quantize_desc quantize[2];
    tegroup_gemm_desc desc, rival;
    tegroup_tune_desc tune;
    tegroup_plan plan, tuned, of_rival;
    tegroup_error error;
    memset(quantize, 0, sizeof quantize);
    memset(&desc, 0, sizeof desc);
    memset(&tune, 0, sizeof tune);
    desc.struct_size = sizeof desc;
    desc.op = TEGROUP_OP_FORWARD;
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.a = tegroup_tensor_uniform(GROUPS, ROWS, K, TEGROUP_DTYPE_BF16, x);
    desc.b = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_BF16, w);
    desc.d = tegroup_tensor_uniform(GROUPS, ROWS, N, TEGROUP_DTYPE_BF16, d);
    desc.options.backend = TEGROUP_BACKEND_SM90;
    rival = desc;
    for (int i = 0; i < 2; i++) {
        tegroup_tensor *const t = i ? &desc.b : &desc.a;
        quantize[i].struct_size = sizeof quantize[i];
        quantize[i].space = TEGROUP_SPACE_DEVICE;
        quantize[i].input = *t;
        t->dtype = TEGROUP_DTYPE_F8E4M3;
        t->scaling = i ? TEGROUP_SCALING_BLOCK_128X128 : TEGROUP_SCALING_BLOCK_1X128;
        t->data = (char *)bytes + i * GROUPS * ROWS * K;
        t->scale_inv = (char *)bytes + GROUPS * (ROWS + N) * K + i * GROUPS * SCALES * 4;
        quantize[i].output = *t;
        quantize[i].rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_BLOCK);
    }
    ASSERT_EQ(tegroup_quantize(&quantize[1], NULL, &error), TEGROUP_OK);
    ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(tegroup_plan_make(&rival, NULL, &of_rival, &error), TEGROUP_OK);
    const tegroup_plan rival_was = of_rival;
    float milliseconds[TEGROUP_TUNE_CANDIDATES], of_both[2] = {0, 0}, least = 1e9f;
    cudaEvent_t events[2];
    for (int i = 0; i < 2; i++) MUST(cudaEventCreate(&events[i]));
    tune.struct_size = sizeof tune;
    tune.gemm = &desc;
    tune.overwrite = 1;
    tune.rounds = 3;
    tune.begin = events[0];
    tune.end = events[1];
    tune.milliseconds = milliseconds;
    tune.rival_plan = &of_rival;
    tune.rival = &rival;
    tune.quantize = quantize;
    tune.quantize_count = 1; /* weights are kept */
    tune.rival_milliseconds = of_both;
    tuned = plan;
    ASSERT_EQ(tegroup_plan_tune(&tuned, &tune, NULL, &error), TEGROUP_OK);
    for (int i = 0; i < TEGROUP_TUNE_CANDIDATES; i++) least = milliseconds[i] > 0 ? fminf(least, milliseconds[i]) : least;
    ASSERT_TRUE(of_both[0] > least && of_both[1] > 0);
    ASSERT_EQ(memcmp(&of_rival, &rival_was, sizeof of_rival), 0);
    /* what was quantised is there, and the tuned plan multiplies it */
    uint16_t *got = (uint16_t *)malloc(GROUPS * ROWS * N * 2), *again = (uint16_t *)malloc(GROUPS * ROWS * N * 2);
    ASSERT_EQ(tegroup_gemm(&tuned, &desc, NULL, &error), TEGROUP_OK);
    MUST(cudaMemcpy(got, d, GROUPS * ROWS * N * 2, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2000; i++) {
        const int64_t g = rng_int(&r, 0, GROUPS - 1), row = rng_int(&r, 0, ROWS - 1), col = rng_int(&r, 0, N - 1);
        double want = 0, size = 0;
        for (int k = 0; k < K; k++) {
            const double term = load(TEGROUP_DTYPE_BF16, values, (g * ROWS + row) * K + k) * load(TEGROUP_DTYPE_BF16, values, (g * N + col) * K + k);
            want += term;
            size += fabs(term);
        }
        ASSERT_TRUE(fabs(load(TEGROUP_DTYPE_BF16, got, (g * ROWS + row) * N + col) - want) <= 0x1p-3 * size); /* two roundings to E4M3 */
    }
    /* an error of the rival, or of what quantises, is the call's, and the plan stays */
    for (int i = 0; i < 2; i++) {
        tegroup_plan other = plan;
        if (i == 0) quantize[0].output.scale_inv = NULL;
        else quantize[0].output.scale_inv = desc.a.scale_inv, rival.a.data = NULL;
        ASSERT_EQ(tegroup_plan_tune(&other, &tune, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT);
        ASSERT_STREQ(error.field, i == 0 ? "output.scale_inv" : "a.data");
        ASSERT_STREQ(error.within, i == 0 ? "quantize" : "rival");
        ASSERT_EQ(memcmp(&other, &plan, sizeof other), 0);
    }
    ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
    MUST(cudaMemcpy(again, d, GROUPS * ROWS * N * 2, cudaMemcpyDeviceToHost));
    ASSERT_EQ(memcmp(got, again, GROUPS * ROWS * N * 2), 0);
    for (int i = 0; i < 2; i++) MUST(cudaEventDestroy(events[i]));
    void *const all[] = {x, w, d, bytes};
    for (int i = 0; i < 4; i++) MUST(cudaFree(all[i]));
    free(values), free(got), free(again);
}

/* A weight gradient whose operands have their own snapshots sums the rows that both have: what the longer one holds beyond them is
 * NaN here, and must not show, whichever operand that is. */
TEST(fp8_gpu, snapshots_that_differ) {
    enum { GROUPS = 3, ROWS = 500, N = 144, K = 208, LONGEST = ROWS + 32 * GROUPS, WIDEST = K, BLOCKS = ROWS / 128 + 4 * GROUPS };
    static const int64_t counts[2][GROUPS] = {{37, 200, 129}, {150, 131, 129}};
    if (!sm90_here()) return;
    rng r = rng_seed(77);
    const double *value = small_values(TEGROUP_DTYPE_F8E4M3);
    for (int swap = 0; swap < 2; swap++) {
        const int64_t cols[2] = {N, K};
        unsigned char *codes[2];
        float *scales[2], *got = (float *)malloc(GROUPS * N * K * 4);
        tegroup_gemm_desc desc;
        tegroup_plan plan;
        tegroup_error error;
        tegroup_layout layout;
        memset(&desc, 0, sizeof desc);
        for (int which = 0; which < 2; which++) {
            const int64_t *mine = counts[which ^ swap], *other = counts[which ^ swap ^ 1], width = cols[which];
            codes[which] = (unsigned char *)calloc(LONGEST, WIDEST);
            scales[which] = (float *)malloc(BLOCKS * WIDEST * 4);
            for (int i = 0; i < BLOCKS * WIDEST; i++) scales[which][i] = (float)exp2(swap ? (double)rng_int(&r, -2, 2) : 4 * rng_unit(&r) - 2);
            int64_t at = 0; /* where a group's copy begins: [width][its rows, padded to 32] */
            for (int g = 0; g < GROUPS; at += width * up(mine[g], 32), g++)
                for (int64_t j = 0; j < width; j++)
                    for (int64_t i = 0; i < mine[g]; i++)
                        codes[which][at + j * up(mine[g], 32) + i] = i < other[g] ? (unsigned char)nearest_small(TEGROUP_DTYPE_F8E4M3, 4 * rng_unit(&r) - 2) : 0x7f;
            tegroup_shape rows = tegroup_shape_of(GROUPS, ROWS, width, tegroup_sizes_of(up_to_device(mine, sizeof counts[0]), TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
            void *snapshot;
            ASSERT_EQ(tegroup_snapshot_layout(&rows, &layout, &error), TEGROUP_OK);
            MUST(cudaMalloc(&snapshot, layout.total_bytes));
            ASSERT_EQ(tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error), TEGROUP_OK);
            tegroup_tensor *t = which ? &desc.b : &desc.a;
            *t = tegroup_tensor_of(rows, width, TEGROUP_DTYPE_F8E4M3, NULL);
            t->scaling = TEGROUP_SCALING_BLOCK_1X128;
            t->columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
            t->columnwise_data = up_to_device(codes[which], (size_t)LONGEST * WIDEST);
            t->columnwise_scale_inv = up_to_device(scales[which], (size_t)BLOCKS * WIDEST * 4);
        }
        desc.struct_size = sizeof desc;
        desc.op = TEGROUP_OP_WGRAD;
        desc.space = TEGROUP_SPACE_DEVICE;
        desc.d = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_F32, up_to_device(got, GROUPS * N * K * 4));
        desc.options.backend = TEGROUP_BACKEND_SM90;
        ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
        desc.options.workspace_bytes = plan.workspace_bytes;
        MUST(cudaMalloc(&desc.options.workspace, plan.workspace_bytes));
        MUST(cudaMemset(desc.options.workspace, 0xF1, plan.workspace_bytes));
        ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
        MUST(cudaMemcpy(got, desc.d.data, GROUPS * N * K * 4, cudaMemcpyDeviceToHost));
        int64_t at[2] = {0, 0}, scale_at[2] = {0, 0};
        for (int g = 0; g < GROUPS; g++) {
            const int64_t ld[2] = {up(counts[swap][g], 32), up(counts[swap ^ 1][g], 32)}, both = counts[0][g] < counts[1][g] ? counts[0][g] : counts[1][g];
            for (int64_t i = 0; i < N; i++)
                for (int64_t j = 0; j < K; j++) {
                    double want = 0, size = 0;
                    for (int64_t q = 0; q < both; q++) {
                        const double term = value[codes[0][at[0] + i * ld[0] + q]] * value[codes[1][at[1] + j * ld[1] + q]]
                                          * scales[0][scale_at[0] + q / 128 * up(N, 4) + i] * scales[1][scale_at[1] + q / 128 * up(K, 4) + j];
                        want += term;
                        size += fabs(term);
                    }
                    ASSERT_TRUE(fabs(got[(g * N + i) * K + j] - want) <= 0x1p-9 * size);
                }
            for (int which = 0; which < 2; which++) {
                at[which] += cols[which] * ld[which];
                scale_at[which] += (counts[which ^ swap][g] + 127) / 128 * up(cols[which], 4);
            }
        }
        void *const all[] = {(void *)desc.a.shape.row_sizes.data, (void *)desc.a.shape.snapshot, desc.a.columnwise_data, desc.a.columnwise_scale_inv,
                             (void *)desc.b.shape.row_sizes.data, (void *)desc.b.shape.snapshot, desc.b.columnwise_data, desc.b.columnwise_scale_inv, desc.d.data, desc.options.workspace};
        for (int i = 0; i < 10; i++) MUST(cudaFree(all[i]));
        free(codes[0]), free(codes[1]), free(scales[0]), free(scales[1]), free(got);
    }
}

TEST_MAIN()
