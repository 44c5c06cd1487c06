/* Products of quantised operands on PORTABLE: random ones of every pair, operation and storage order against FP64 products of what
 * codes and scales mean, which tests/unit/quantised.h works out by itself; every code with every scale, and products whose scales
 * are of 8 bits, have the bits of the BF16 kernel on the values; sizes that change under a graph, or lie. */
#define TEGROUP_EXTERN
#define TEGROUP_NO_SM90
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "mirror.h"
#include "quantised_problem.h"
#include "test.h"

static int portable_here(void) {
    const char *wanted = getenv("TEGROUP_TEST_BACKENDS");
    int device, major;
    if (wanted != NULL && strstr(wanted, "portable") == NULL) return 0;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 8;
}

static struct { double worst; int64_t problems, elements, first, weights; } totals;

/* options.expected_rows: weights are decoded in registers where they can be, else operands on the way to shared memory;
 * or, where that can be, first; or the plan chooses. */
static const int64_t ways[3] = {1, INT64_MAX / 2, 0};

static void say(const char *wrong, const problem *p, const scaling_row *fa, const scaling_row *fb, const quantised q[2], uint64_t seed) {
    fprintf(stderr, "%s: %s x %s, op %d, seed %llu, groups %d n %ld k %ld uniform %d ng %d kg %d lists %d parts %ld %ld transposed %d %d columnwise %d %d strides %d %d types %d %d out %d bias %d: %s %s\n",
            wrong, name_of(fa), name_of(fb), (int)p->s.op, (unsigned long long)seed, (int)p->s.groups, (long)p->s.n, (long)p->s.k, p->s.m == NULL, p->s.ng != NULL, p->s.kg != NULL,
            (int)p->s.lists, (long)q[0].parts, (long)q[1].parts, q[0].transposed, q[1].transposed, q[0].columnwise, q[1].columnwise, q[0].outer_stride > 0, q[1].outer_stride > 0,
            (int)p->desc.a.dtype, (int)p->desc.b.dtype, (int)p->s.out, p->s.bias, p->error.field ? p->error.field : "", p->error.rule ? p->error.rule : "");
}

/* shape: as quantised_for_sm90 says. */
static int run_one(uint64_t seed, const scaling_row *fa, const scaling_row *fb, tegroup_op op, int shape) {
    rng r = rng_seed(seed);
    problem p;
    quantised q[2];
    const char *wrong = NULL;
    memset(q, 0, sizeof q);
    quantised_for_sm90 = shape;
    quantised_problem(&p, &r, fa, fb, op, q, 1);
    quantised_for_sm90 = 0;
    p.desc.options.backend = TEGROUP_BACKEND_PORTABLE;
    p.desc.options.expected_rows = ways[seed % 3];
    if (seed % 2) p.desc.options.check_level = TEGROUP_CHECK_DEEP;
    problem_reference(&p);
    if (problem_run_on_device(&p) != TEGROUP_OK) wrong = "refused";
    else {
        const verdict v = problem_compare(&p), b = problem_compare_bias(&p);
        totals.problems++;
        totals.weights += portable_decodes_weights(&p.plan);
        totals.first += !portable_decodes_weights(&p.plan) && p.plan.workspace_bytes > 0;
        totals.elements += v.count + b.count;
        totals.worst = fmax(totals.worst, fmax(v.worst, b.worst));
        if (!(v.worst <= 1)) wrong = "result";
        else if (!(b.worst <= 1)) wrong = "bias gradient";
        else if (guards_changed() + workspace_guards_changed() != 0) wrong = "guard bytes changed";
        else if (problem_tail_wrong(&p) != 0) wrong = "rows that are no group's are not what tail asks for";
        else if (problem_disturbed(&p) != 0) wrong = "bytes changed that are not the result's";
        if (wrong != NULL) fprintf(stderr, "error / bound %g, bias gradient %g\n", v.worst, b.worst);
    }
    if (wrong != NULL) say(wrong, &p, fa, fb, q, seed);
    problem_release(&p);
    return wrong == NULL;
}

TEST(formats_gpu, fp64) {
    int64_t pairs = 0;
    if (!portable_here()) return;
    for (int64_t i = 0; i < scaled(in_the_long_suite(700, 12)); i++)
        for (int a = -1; a < SCALINGS; a++)
            for (int b = -1; b < SCALINGS; b++)
                for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) {
                    const scaling_row *fa = a < 0 ? NULL : &scaling_rows[a], *fb = b < 0 ? NULL : &scaling_rows[b];
                    if ((a < 0 && b < 0) || !goes(fa, fb, (tegroup_op)op)) continue;
                    pairs += i == 0;
                    const uint64_t seed = (uint64_t)(((a + 1) * 16 + b + 1) * 4 + op) * 1000003u + (uint64_t)i;
                    const int whole_steps = fb != NULL && (fb->scale != TEGROUP_DTYPE_F32 || seed / 6 % 2);
                    ASSERT_TRUE(run_one(seed, fa, fb, (tegroup_op)op, seed / 3 % 2 == 0 ? 0 : whole_steps ? 3 : 1));
                }
    ASSERT_EQ(pairs, 3 * (25 + 9 + 4 + 10) + 10);
    if (totals.problems > 1000) {
        ASSERT_TRUE(totals.first > totals.problems / 5 && totals.weights > totals.problems / 50);
        ASSERT_LT(totals.first + totals.weights, totals.problems * 4 / 5);
    }
    printf("%ld pairs and ops, %ld problems, %ld of them decoded first, weights of %ld in registers, ", (long)pairs,
           (long)totals.problems, (long)totals.first, (long)totals.weights);
    printf("%ld elements, error/bound at most %.3f\n", (long)totals.elements, totals.worst);
}

/* The operand as a plain one of BF16, in the places of its F64 grid. */
static void narrow(tegroup_tensor *to, const grid *t) {
    const int64_t count = (int64_t)(guarded_find(t->tensor.data)->bytes / 8);
    const tegroup_shape shape = to->shape;
    void *data = elements_new(TEGROUP_DTYPE_BF16, count, 0);
    for (int64_t i = 0; i < count; i++) {
        const double x = ((const double *)t->tensor.data)[i];
        store(TEGROUP_DTYPE_BF16, data, i, x == x ? x : 0); /* what lies between rows */
    }
    *to = t->tensor;
    to->shape = shape;
    to->dtype = TEGROUP_DTYPE_BF16;
    to->data = data;
}

/* Where values times their scales are exact in BF16, D and the bias gradient have the bits of the BF16 kernel on them. Parts of
 * rows that are summed are excepted: each is filled up to whole steps. */
TEST(formats_gpu, bits_of_bf16) {
    int64_t compared = 0, weights = 0;
    if (!portable_here()) return;
    for (int64_t i = 0; i < scaled(600); i++) {
        rng r = rng_seed(88000000u + (uint64_t)i);
        const scaling_row *exact[] = {NULL, &scaling_rows[5], &scaling_rows[6], &scaling_rows[7], &scaling_rows[8], &scaling_rows[9]};
        const scaling_row *fa = exact[rng_int(&r, 0, 5)], *fb = exact[rng_int(&r, 0, 5)];
        const tegroup_op op = (tegroup_op)rng_int(&r, 1, 3);
        problem p;
        quantised q[2];
        int64_t count, again;
        memset(q, 0, sizeof q);
        if ((fa == NULL && fb == NULL) || !goes(fa, fb, op)) continue;
        quantised_for_sm90 = i % 2 ? 3 : 0;
        quantised_problem(&p, &r, fa, fb, op, q, 1);
        quantised_for_sm90 = 0;
        if (q[0].global || q[1].global || (p.s.lists & 3) || (q[0].parts > 1 && op == TEGROUP_OP_WGRAD) || (q[1].parts > 1 && op != TEGROUP_OP_FORWARD)) {
            problem_release(&p);
            continue;
        }
        p.desc.options.backend = TEGROUP_BACKEND_PORTABLE;
        p.desc.options.expected_rows = ways[i % 2 ? 0 : i % 3];
        ASSERT_EQ(problem_run_on_device(&p), TEGROUP_OK);
        weights += portable_decodes_weights(&p.plan);
        double *quantised_bits = results_of(&p, &count);
        problem_reset(&p);
        if (fa != NULL) narrow(&p.desc.a, &p.a);
        if (fb != NULL) narrow(&p.desc.b, &p.b);
        ASSERT_EQ(problem_run_on_device(&p), TEGROUP_OK);
        double *plain_bits = results_of(&p, &again);
        ASSERT_EQ(count, again);
        const int same = memcmp(quantised_bits, plain_bits, (size_t)count * 8) == 0;
        if (!same) say("other bits", &p, fa, fb, q, 88000000u + (uint64_t)i);
        ASSERT_TRUE(same);
        compared += count;
        free(quantised_bits);
        free(plain_bits);
        problem_release(&p);
    }
    ASSERT_TRUE(compared > 0 && (weights > 0 || scaled(600) < 600));
    printf("%ld results of the same bits, weights of %ld products in registers\n", (long)compared, (long)weights);
}

/* Weights that are decoded in registers, beside rows of BF16 and of every format, into results of every type. */
TEST(formats_gpu, weights_in_registers) {
    if (!portable_here()) return;
    memset(&totals, 0, sizeof totals);
    for (int64_t i = 0; i < scaled(in_the_long_suite(300, 12)); i++)
        for (int b = 0; b < SCALINGS; b++)
            for (int a = -1; a < SCALINGS; a++)
                for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_DGRAD; op++) {
                    const scaling_row *fa = a < 0 ? NULL : &scaling_rows[a], *fb = &scaling_rows[b];
                    if (!goes(fa, fb, (tegroup_op)op)) continue;
                    const uint64_t seed = (uint64_t)(((a + 1) * 16 + b) * 4 + op) * 3000009u + (uint64_t)i * 3;
                    ASSERT_TRUE(run_one(seed, fa, fb, (tegroup_op)op, 3)); /* by ways[0] */
                }
    printf("%ld problems, weights of %ld in registers, error/bound at most %.3f\n", (long)totals.problems,
           (long)totals.weights, totals.worst);
    ASSERT_TRUE(totals.weights * 6 > totals.problems);
}

/* Products with scales of F32 have the same bits wherever operands are decoded: first, and in registers or on the way
 * to shared memory. */
TEST(formats_gpu, all_ways_have_the_same_bits) {
    int64_t compared = 0, first = 0, weights = 0;
    if (!portable_here()) return;
    /* However few are asked for, one of them is decoded first, and weights of one in registers. */
    for (int64_t i = 0; i < scaled(1200) || ((first == 0 || weights == 0) && i < 1200); i++) {
        rng r = rng_seed(99000000u + (uint64_t)i);
        const scaling_row *fa = rng_int(&r, 0, 5) ? &scaling_rows[rng_int(&r, 0, 4)] : NULL,
                          *fb = rng_int(&r, 0, 5) ? &scaling_rows[rng_int(&r, 0, 4)] : NULL;
        const tegroup_op op = (tegroup_op)rng_int(&r, 1, 3);
        problem p;
        quantised q[2];
        int64_t count, again;
        memset(q, 0, sizeof q);
        if ((fa == NULL && fb == NULL) || !goes(fa, fb, op)) continue;
        quantised_for_sm90 = i % 2 == 0 ? 0 : i % 4 == 1 && fb != NULL ? 3 : 1; /* of several blocks */
        quantised_problem(&p, &r, fa, fb, op, q, 1);
        quantised_for_sm90 = 0;
        p.desc.options.backend = TEGROUP_BACKEND_PORTABLE;
        p.desc.options.expected_rows = ways[0];
        ASSERT_EQ(problem_run_on_device(&p), TEGROUP_OK);
        const int in_registers = portable_decodes_weights(&p.plan);
        weights += in_registers;
        ASSERT_TRUE(p.plan.workspace_bytes == 0 || in_registers);
        double *not_first = results_of(&p, &count);
        problem_reset(&p);
        p.desc.options.expected_rows = ways[1];
        ASSERT_EQ(problem_run_on_device(&p), TEGROUP_OK);
        first += p.plan.workspace_bytes > 0;
        double *decoded_first = results_of(&p, &again);
        ASSERT_EQ(count, again);
        const int same = memcmp(not_first, decoded_first, (size_t)count * 8) == 0;
        if (!same) say("other bits", &p, fa, fb, q, 99000000u + (uint64_t)i);
        ASSERT_TRUE(same);
        compared += count;
        free(not_first);
        free(decoded_first);
        problem_release(&p);
    }
    ASSERT_TRUE(compared > 0 && first > 0 && weights > 0);
    printf("%ld results of the same bits, %ld products decoded first, weights of %ld in registers\n", (long)compared,
           (long)first, (long)weights);
}

/* ---- operands that the test lays out itself --------------------------------------------------------------------------- */

static void *up_to_device(const void *host, size_t bytes) {
    void *to;
    MUST(cudaMalloc(&to, bytes));
    copy_up(to, host, bytes);
    return to;
}

static tegroup_gemm_desc forward_of(tegroup_tensor a, tegroup_tensor b, tegroup_tensor d) {
    tegroup_gemm_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.op = TEGROUP_OP_FORWARD;
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.a = a;
    desc.b = b;
    desc.d = d;
    desc.options.backend = TEGROUP_BACKEND_PORTABLE;
    return desc;
}

/* Makes the plan of a call, and gives it workspace, which holds NaN. */
static tegroup_status planned(tegroup_gemm_desc *desc, tegroup_plan *plan, tegroup_error *error) {
    const tegroup_status status = tegroup_plan_make(desc, NULL, plan, error);
    if (status != TEGROUP_OK || plan->workspace_bytes == 0) return status;
    desc->options.workspace_bytes = plan->workspace_bytes;
    MUST(cudaMalloc(&desc->options.workspace, plan->workspace_bytes));
    MUST(cudaMemset(desc->options.workspace, 0xff, plan->workspace_bytes));
    return status;
}
static tegroup_status planned_and_run(tegroup_gemm_desc desc) {
    tegroup_plan plan;
    tegroup_error error;
    tegroup_status status = planned(&desc, &plan, &error);
    if (status == TEGROUP_OK) status = tegroup_gemm(&plan, &desc, NULL, &error);
    if (status != TEGROUP_OK) fprintf(stderr, "%s %s\n", error.field, error.rule);
    MUST(cudaDeviceSynchronize());
    MUST(cudaFree(desc.options.workspace));
    return status;
}

/* D = 1 * b in F32 for `lines` rows of b of `k` elements, whose first holds a value and whose others are 0; NaN in any
 * payload. way: one of ways. */
static int first_elements(int way, tegroup_dtype one, tegroup_tensor b, int64_t lines, int64_t k, float *got) {
    void *d;
    uint16_t *row = (uint16_t *)calloc((size_t)k, 2);
    store(one, row, 0, 1);
    void *a = up_to_device(row, (size_t)k * 2);
    MUST(cudaMalloc(&d, (size_t)lines * 4));
    MUST(cudaMemset(d, 0xff, (size_t)lines * 4));
    tegroup_gemm_desc desc = forward_of(tegroup_tensor_uniform(1, 1, k, one, a), b,
                                        tegroup_tensor_uniform(1, 1, lines, TEGROUP_DTYPE_F32, d));
    desc.options.expected_rows = ways[way];
    const tegroup_status status = planned_and_run(desc);
    MUST(cudaMemcpy(got, d, (size_t)lines * 4, cudaMemcpyDeviceToHost));
    MUST(cudaFree(a));
    MUST(cudaFree(d));
    free(row);
    return status == TEGROUP_OK;
}

static int same_float(float x, float y) { return (x != x && y != y) || memcmp(&x, &y, 4) == 0; }

/* Every code of FP8, in rows that are aligned, in rows that are not, and in rows that are long enough for E4M3 to be
 * decoded in registers, beside BF16 and F16: what the format says. */
TEST(formats_gpu, every_code) {
    if (!portable_here()) return;
    for (int e5m2 = 0; e5m2 < 2; e5m2++)
        for (int width = 0; width < 3; width++)
            for (int turn = 0; turn < 4; turn++) {
                const int64_t k = width == 0 ? 1 : width == 1 ? 16 : 64;
                const int f16 = turn % 2, way = turn / 2;
                const tegroup_dtype type = e5m2 ? TEGROUP_DTYPE_F8E5M2 : TEGROUP_DTYPE_F8E4M3;
                unsigned char codes[256 * 64] = {0};
                const float scale = 1;
                float got[256];
                for (int code = 0; code < 256; code++) codes[code * k] = (unsigned char)code;
                tegroup_tensor b = tegroup_tensor_uniform(1, 256, k, type, up_to_device(codes, sizeof codes));
                b.scaling = TEGROUP_SCALING_TENSOR;
                b.scale_inv = up_to_device(&scale, 4);
                ASSERT_TRUE(first_elements(way, f16 ? TEGROUP_DTYPE_F16 : TEGROUP_DTYPE_BF16, b, 256, k, got));
                for (int code = 0; code < 256; code++) {
                    const float want = (float)decode_small(type, (unsigned)code) + 0.0f; /* a sum of -0 and 0 is 0 */
                    if (!same_float(got[code], want)) fprintf(stderr, "type %d code %d beside %s: %g for %g\n", (int)type, code, f16 ? "F16" : "BF16", (double)got[code], (double)want);
                    ASSERT_TRUE(same_float(got[code], want));
                }
                MUST(cudaFree(b.data));
                MUST(cudaFree(b.scale_inv));
            }
}

/* Every code with every scale of 8 bits: what the BF16 kernel makes of the product, rounded to BF16 once. */
TEST(formats_gpu, every_code_and_scale) {
    static const struct { tegroup_scaling scaling; tegroup_dtype type, scale; } formats[] = {
        {TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E8M0}, {TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F8E8M0},
        {TEGROUP_SCALING_MXFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E8M0}, {TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3}};
    enum { MOST = 65536 };
    if (!portable_here()) return;
    for (int turn = 0; turn < 12; turn++) { /* the second four decoded first, of the third E4M3 and E2M1 in registers */
        const int f = turn % 4, way = turn / 4 % 2, K = turn < 8 ? 16 : 64;
        const tegroup_dtype type = formats[f].type;
        const int count = type == TEGROUP_DTYPE_F4E2M1 ? 16 : 256, lines = count * 256, row = type == TEGROUP_DTYPE_F4E2M1 ? K / 2 : K;
        unsigned char *codes = (unsigned char *)calloc((size_t)lines, (size_t)row), *scales = (unsigned char *)calloc((size_t)lines, 4);
        uint16_t *values = (uint16_t *)calloc((size_t)lines * K, 2);
        float *got = (float *)malloc(MOST * 4), *want = (float *)malloc(MOST * 4);
        for (int i = 0; i < lines; i++) {
            const unsigned code = (unsigned)(i % count), scale = (unsigned)(i / count);
            codes[i * row] = (unsigned char)code;
            scales[i / 128 * 512 + i % 32 * 16 + i / 32 % 4 * 4] = (unsigned char)scale; /* one block a row, padded to four */
            store(TEGROUP_DTYPE_BF16, values, (int64_t)i * K, rounded(TEGROUP_DTYPE_BF16, decode_small(type, code) * decode_small(formats[f].scale, scale)));
        }
        tegroup_tensor b = tegroup_tensor_uniform(1, lines, K, type, up_to_device(codes, (size_t)lines * (size_t)row));
        b.scaling = formats[f].scaling;
        b.scale_inv = up_to_device(scales, (size_t)lines * 4);
        ASSERT_TRUE(first_elements(way, TEGROUP_DTYPE_BF16, b, lines, K, got));
        MUST(cudaFree(b.data));
        MUST(cudaFree(b.scale_inv));
        b = tegroup_tensor_uniform(1, lines, K, TEGROUP_DTYPE_BF16, up_to_device(values, (size_t)lines * K * 2));
        ASSERT_TRUE(first_elements(way, TEGROUP_DTYPE_BF16, b, lines, K, want));
        MUST(cudaFree(b.data));
        for (int i = 0; i < lines; i++) {
            /* NaN is one value, whose zeros are NaN, too, where it is the scale's */
            if (!same_float(got[i], want[i])) fprintf(stderr, "%s type %d code %d scale %d: %g for %g\n", tegroup_scaling_info(formats[f].scaling)->name, (int)type, i % count, i / count, (double)got[i], (double)want[i]);
            ASSERT_TRUE(same_float(got[i], want[i]));
        }
        free(codes), free(scales), free(values), free(got), free(want);
    }
}

/* ---- sizes that change, and lie --------------------------------------------------------------------------------------- */

enum { GROUPS = 3, ROWS = 300, N = 136 };

/* Rows of E4M3 with a scale each, times weights in blocks of 128 x 128, both as the test drew them. */
static double row_times_weight(const unsigned char *x, const float *x_scale, const unsigned char *w,
                               const float *w_scale, tegroup_dtype type, int K, int row, int g, int j, double *size) {
    double sum = 0;
    *size = 0;
    for (int q = 0; q < K; q++) {
        const double term = decode_small(TEGROUP_DTYPE_F8E4M3, x[row * K + q]) * x_scale[row]
                          * decode_small(type, w[(g * N + j) * K + q]) * w_scale[(g * 2 + j / 128) * 4 + q / 128];
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

/* One graph of prepare and product, replayed with 100 arrays of sizes. In one of them one leads out of the buffer and one is
 * negative: what is written lies within D all the same, and the group before them is right. way: one of ways, by which
 * weights of E5M2 are decoded on the way or first; 2: those of E4M3, in registers. */
static void sizes_of_a_graph(int way) {
    const tegroup_dtype type = way == 2 ? TEGROUP_DTYPE_F8E4M3 : TEGROUP_DTYPE_F8E5M2;
    const int K = way == 2 ? 192 : 200;
    static const int64_t counts[][GROUPS] = {{140, 0, 60}, {10, 255, 35}, {0, 0, 0}, {129, 1, 100}, {50, INT64_MAX, -7}};
    enum { GIVEN = sizeof counts / sizeof *counts, BAD = GIVEN - 1, TURNS = 100 }; /* the others are drawn */
    rng r = rng_seed(4711);
    unsigned char *x = (unsigned char *)malloc((size_t)ROWS * K), *w = (unsigned char *)malloc((size_t)GROUPS * N * K);
    float x_scale[ROWS], w_scale[GROUPS * 2 * 4];
    const size_t d_bytes = (size_t)ROWS * N * 4;
    float *got = (float *)malloc(d_bytes + 2 * GUARD_BYTES), *const inside = got + GUARD_BYTES / 4;
    for (int i = 0; i < ROWS * K; i++) x[i] = (unsigned char)nearest_small(TEGROUP_DTYPE_F8E4M3, 4 * rng_unit(&r) - 2);
    for (int i = 0; i < GROUPS * N * K; i++) w[i] = (unsigned char)nearest_small(type, 4 * rng_unit(&r) - 2);
    for (int i = 0; i < ROWS; i++) x_scale[i] = (float)exp2(6 * rng_unit(&r) - 3);
    for (int i = 0; i < GROUPS * 2 * 4; i++) w_scale[i] = (float)exp2(6 * rng_unit(&r) - 3);
    x[3 * K + 77] = 0x7f; /* a NaN in row 3, and nowhere else */

    tegroup_shape rows = tegroup_shape_of(GROUPS, ROWS, K, tegroup_sizes_of(up_to_device(counts[0], sizeof counts[0]), TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    tegroup_layout layout;
    tegroup_error error;
    void *snapshot;
    char *d;
    ASSERT_EQ(tegroup_snapshot_layout(&rows, &layout, &error), TEGROUP_OK);
    MUST(cudaMalloc(&snapshot, layout.total_bytes));
    MUST(cudaMalloc((void **)&d, d_bytes + 2 * GUARD_BYTES));
    rows.snapshot = snapshot;
    void *const x_there = up_to_device(x, (size_t)ROWS * K), *const w_there = up_to_device(w, (size_t)GROUPS * N * K);
    tegroup_gemm_desc desc = forward_of(tegroup_tensor_of(rows, K, TEGROUP_DTYPE_F8E4M3, x_there),
                                        tegroup_tensor_uniform(GROUPS, N, K, type, w_there),
                                        tegroup_tensor_of(rows, N, TEGROUP_DTYPE_F32, d + GUARD_BYTES));
    desc.a.scaling = TEGROUP_SCALING_ROW;
    desc.a.scale_inv = up_to_device(x_scale, sizeof x_scale);
    desc.b.scaling = TEGROUP_SCALING_BLOCK_128X128;
    desc.b.scale_inv = up_to_device(w_scale, sizeof w_scale);
    tegroup_plan plan;
    desc.options.expected_rows = ways[way % 2];
    ASSERT_EQ(planned(&desc, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(portable_decodes_weights(&plan), way == 2);
    ASSERT_EQ(plan.workspace_bytes > 0, way > 0);
    tegroup_gemm_desc lost = desc; /* scales that are not on the device */
    lost.options.check_level = TEGROUP_CHECK_DEEP;
    lost.a.scale_inv = x_scale;
    ASSERT_EQ(tegroup_gemm(&plan, &lost, NULL, &error), TEGROUP_ERROR_VALUE);
    ASSERT_STREQ("a.scale_inv", error.field);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t step;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int captured = 0; captured < 2; captured++) { /* kernels are loaded when they first run, so the capture comes second */
        if (captured) MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        tegroup_shape prepared = rows;
        ASSERT_EQ(tegroup_shape_prepare(&prepared, snapshot, layout.total_bytes, stream, &error), TEGROUP_OK);
        ASSERT_EQ(tegroup_gemm(&plan, &desc, stream, &error), TEGROUP_OK);
        if (captured) MUST(cudaStreamEndCapture(stream, &graph));
        MUST(cudaDeviceSynchronize());
    }
    MUST(cudaGraphInstantiate(&step, graph, 0));
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t sizes[GROUPS], left = ROWS;
        for (int g = 0; g < GROUPS; g++) {
            sizes[g] = turn < GIVEN ? counts[turn][g] : rng_int(&r, 0, left);
            if (turn >= GIVEN) left -= sizes[g];
        }
        copy_up((void *)rows.row_sizes.data, sizes, sizeof sizes);
        MUST(cudaMemset(d, 0xff, d_bytes + 2 * GUARD_BYTES));
        MUST(cudaDeviceSynchronize());
        MUST(cudaGraphLaunch(step, stream));
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemcpy(got, d, d_bytes + 2 * GUARD_BYTES, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < GUARD_BYTES; i++) ASSERT_TRUE(((unsigned char *)got)[i] == 0xff && ((unsigned char *)got)[GUARD_BYTES + d_bytes + i] == 0xff);
        int row = 0;
        for (int g = 0; g < (turn == BAD ? 1 : GROUPS); g++)
            for (int64_t i = 0; i < sizes[g]; i++, row++)
                for (int j = turn < GIVEN ? 0 : turn % 17; j < N; j += turn < GIVEN ? 1 : 17) {
                    double size;
                    const double want = row_times_weight(x, x_scale, w, w_scale, type, K, row, g, j, &size),
                                 have = inside[row * N + j];
                    ASSERT_TRUE(row == 3 ? have != have : fabs(have - want) <= (K + 8) * 0x1p-23 * size);
                }
        for (size_t i = (size_t)row * N; turn != BAD && i < (size_t)ROWS * N; i++) ASSERT_TRUE(inside[i] != inside[i]); /* as it was */
    }
    MUST(cudaGraphExecDestroy(step));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    void *const all[] = {(void *)rows.row_sizes.data, snapshot, d, desc.a.data, desc.b.data, desc.a.scale_inv,
                         desc.b.scale_inv, desc.options.workspace};
    for (int i = 0; i < 8; i++) MUST(cudaFree(all[i]));
    free(x), free(w), free(got);
}
TEST(formats_gpu, sizes_of_a_graph) { if (portable_here()) sizes_of_a_graph(0); }
TEST(formats_gpu, sizes_of_a_graph_decoded_first) { if (portable_here()) sizes_of_a_graph(1); }
TEST(formats_gpu, sizes_of_a_graph_weights_in_registers) { if (portable_here()) sizes_of_a_graph(2); }

TEST_MAIN()
