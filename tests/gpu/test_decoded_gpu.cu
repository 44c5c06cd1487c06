/* Products that SM90 decodes to BF16 in workspace: random ones of every pair, operation and storage order against FP64 products of
 * what codes and scales mean, and bit for bit against SM90's product of these numbers in BF16; large ones, bit for bit, against SM90's product of what tegroup_dequantize gives; sizes that change
 * under a graph, or lie; more rows than planned. */
#define TEGROUP_EXTERN
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_NO_F16
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "mirror.h"
#include "graph.h"
#include "quantised_problem.h"
#include "test.h"

static const scaling_row *const formats[] = {NULL, &scaling_rows[5], &scaling_rows[6], &scaling_rows[7], &scaling_rows[8], &scaling_rows[9]};
enum { FORMATS = sizeof formats / sizeof *formats };

static void say(const char *wrong, const problem *p, const scaling_row *fa, const scaling_row *fb, const quantised q[2], uint64_t seed) {
    fprintf(stderr, "%s: %s x %s, op %d, seed %llu, groups %d n %ld k %ld uniform %d lists %d parts %ld %ld transposed %d %d columnwise %d %d strides %d %d types %d %d out %d bias %d: %s %s (%ld, %ld)\n",
            wrong, name_of(fa), name_of(fb), (int)p->s.op, (unsigned long long)seed, (int)p->s.groups, (long)p->s.n, (long)p->s.k, p->s.m == NULL, (int)p->s.lists,
            (long)q[0].parts, (long)q[1].parts, q[0].transposed, q[1].transposed, q[0].columnwise, q[1].columnwise, q[0].outer_stride > 0, q[1].outer_stride > 0,
            (int)p->desc.a.dtype, (int)p->desc.b.dtype, (int)p->s.out, p->s.bias, p->error.field ? p->error.field : "", p->error.rule ? p->error.rule : "", (long)p->error.expected, (long)p->error.got);
}

/* The operand as a plain one of BF16, in the places of its F64 grid. */
static void narrow(tegroup_tensor *to, const grid *t) {
    const int64_t count = (int64_t)(guarded_find(t->tensor.data)->bytes / 8);
    const tegroup_shape shape = to->shape;
    void *data = elements_new(TEGROUP_DTYPE_BF16, count, 1);
    for (int64_t i = 0; i < count; i++) {
        const double x = ((const double *)t->tensor.data)[i];
        store(TEGROUP_DTYPE_BF16, data, i, x == x ? x : 0); /* what lies between rows */
    }
    *to = t->tensor;
    to->shape = shape;
    to->dtype = TEGROUP_DTYPE_BF16;
    to->data = data;
}

/* The bits of the same problem with its operands in BF16: another one of the same seed, as results may be added to what was there. */
static const char *differs_in_bf16(uint64_t seed, const scaling_row *fa, const scaling_row *fb, tegroup_op op, const double *here, int64_t count) {
    rng r = rng_seed(seed);
    problem p;
    quantised q[2];
    const char *wrong = NULL;
    double *there;
    int64_t again;
    memset(q, 0, sizeof q);
    q[0].parts = q[1].parts = 1;
    quantised_problem(&p, &r, fa, fb, op, q, 2);
    p.desc.options.backend = TEGROUP_BACKEND_SM90;
    problem_reference(&p);
    if (fa != NULL) narrow(&p.desc.a, &p.a);
    if (fb != NULL) narrow(&p.desc.b, &p.b);
    if (problem_run_on_device(&p) != TEGROUP_OK) wrong = "refused in BF16";
    there = results_of(&p, &again);
    if (wrong == NULL && (count != again || memcmp(here, there, (size_t)count * 8) != 0)) wrong = "other bits than in BF16";
    free(there);
    problem_release(&p);
    return wrong;
}

static int64_t of_weights[SM90_WEIGHTS_KERNELS]; /* products by each kernel that decodes weights */

static int run_one(uint64_t seed, const scaling_row *fa, const scaling_row *fb, tegroup_op op, int64_t *elements, int64_t *compared) {
    rng r = rng_seed(seed);
    problem p;
    quantised q[2];
    const char *wrong = NULL;
    int64_t count;
    memset(q, 0, sizeof q);
    q[0].parts = q[1].parts = 1;
    quantised_problem(&p, &r, fa, fb, op, q, 2);
    p.desc.options.backend = TEGROUP_BACKEND_SM90;
    if (seed % 2) p.desc.options.check_level = TEGROUP_CHECK_DEEP;
    problem_reference(&p);
    mirror_tile = seed % 3 ? MIRROR_ANY_TILE : MIRROR_PLANNED_TILE;
    const tegroup_status status = problem_run_on_device(&p);
    if (status == TEGROUP_OK && sm90_decodes_weights(&p.plan))
        of_weights[sm90_weights_kernel(&p.plan)]++;
    if (status != TEGROUP_OK) wrong = "refused";
    else {
        const verdict v = problem_compare(&p), b = problem_compare_bias(&p);
        *elements += v.count + b.count;
        if (!(v.worst <= 1)) wrong = "result";
        else if (!(b.worst <= 1)) wrong = "bias gradient";
        else if (guards_changed() + workspace_guards_changed() != 0) wrong = "guard bytes changed";
        else if (problem_tail_wrong(&p) != 0) wrong = "rows that are no group's are not what tail asks for";
        else if (problem_disturbed(&p) != 0) wrong = "bytes changed that are not the result's";
        if (wrong != NULL) fprintf(stderr, "error / bound %g, bias gradient %g\n", v.worst, b.worst);
    }
    mirror_tile = MIRROR_PLANNED_TILE;
    if (wrong == NULL && !(p.s.lists & 3) && !q[0].global && !q[1].global) {
        double *here = results_of(&p, &count);
        wrong = differs_in_bf16(seed, fa, fb, op, here, count);
        *compared += count;
        free(here);
    }
    if (wrong != NULL) say(wrong, &p, fa, fb, q, seed);
    problem_release(&p);
    return wrong == NULL;
}

TEST(decoded_gpu, fp64_and_bits_of_bf16) {
    int64_t problems = 0, elements = 0, compared = 0;
    if (!hopper_here()) return;
    for (int64_t i = 0; i < scaled(in_the_long_suite(700, 25)); i++)
        for (int a = 0; a < FORMATS; a++)
            for (int b = 0; b < FORMATS; b++)
                for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) {
                    if ((a == 0 && b == 0) || !goes(formats[a], formats[b], (tegroup_op)op)) continue;
                    problems++;
                    ASSERT_TRUE(run_one((uint64_t)((a * 16 + b) * 4 + op) * 1000003u + (uint64_t)i, formats[a], formats[b], (tegroup_op)op, &elements, &compared));
                }
    ASSERT_TRUE(elements > problems && compared > problems);
    printf("%ld problems, %ld elements, %ld of the bits of BF16\n", (long)problems, (long)elements, (long)compared);
}

/* Weights that are decoded in registers, beside rows of BF16 and of their format. */
TEST(decoded_gpu, weights_in_registers) {
    int64_t problems = 0, elements = 0, compared = 0;
    if (!hopper_here()) return;
    quantised_for_sm90 = 2;
    memset(of_weights, 0, sizeof of_weights);
    for (int64_t i = 0; i < scaled(in_the_long_suite(1500, 60)); i++)
        for (int b = 1; b < FORMATS; b++)
            for (int a = 0; a < FORMATS; a++)
                for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_DGRAD; op++) {
                    if (a != 0 && !goes(formats[a], formats[b], (tegroup_op)op)) continue;
                    problems++;
                    ASSERT_TRUE(run_one((uint64_t)((a * 16 + b) * 2 + op) * 1000033u + (uint64_t)i, formats[a], formats[b], (tegroup_op)op, &elements, &compared));
                }
    quantised_for_sm90 = 0;
    int64_t by_all = 0;
    printf("%ld problems, %ld elements, %ld of the bits of BF16; by each kernel", (long)problems, (long)elements, (long)compared);
    for (int i = 0; i < SM90_WEIGHTS_KERNELS; i++) {
        printf(" %ld", (long)of_weights[i]);
        by_all += of_weights[i];
    }
    printf("\n");
    for (int i = 0; i < SM90_WEIGHTS_KERNELS; i++) ASSERT_GT(of_weights[i], 0);
    ASSERT_GT(3 * by_all, problems);
}

/* ---- large ones: operands that tegroup_quantize makes ------------------------------------------------------------------- */

static void *room(size_t bytes, int value) {
    void *to;
    MUST(cudaMalloc(&to, bytes + 2 * GUARD_BYTES));
    MUST(cudaMemset(to, value, bytes + 2 * GUARD_BYTES));
    return (char *)to + GUARD_BYTES;
}
static void room_free(void *at) {
    if (at != NULL) MUST(cudaFree((char *)at - GUARD_BYTES));
}
static int bands_changed(const void *at, size_t bytes, int value) {
    unsigned char bands[2 * GUARD_BYTES];
    int changed = 0;
    MUST(cudaMemcpy(bands, (const char *)at - GUARD_BYTES, GUARD_BYTES, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(bands + GUARD_BYTES, (const char *)at + bytes, GUARD_BYTES, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < sizeof bands; i++) changed += bands[i] != (unsigned char)value;
    return changed;
}

enum { GROUPS = 5, ROWS = 900, TURNS = 5 };
/* What large products are of: two widths, elements between rows of D (0: none between them), what FP8 weights are, how many rows a
 * plan expects (0: as many as there may be), whether weights are interleaved. */
static struct { int64_t n, k, d_ld; tegroup_dtype weights; int64_t expected; int interleaved; } large_of;
static const int64_t splits[TURNS][GROUPS] = {{300, 0, 1, 500, 99}, {0, 0, 0, 0, 0}, {1, 17, 700, 64, 33}, {900, 0, 0, 0, 0}, {40, INT64_MAX, -7, 3, 5}};

typedef struct large {
    tegroup_shape rows;
    size_t snapshot_bytes;
    tegroup_gemm_desc quantised, plain; /* SM90's products of the codes, and of what they mean */
    void *memory[32];
    int count;
} large;

static void *keep(large *l, void *at) { return l->memory[l->count++] = at; }

/* Operand `which` in both products. columns: it is quantised along them, and only so. */
static int large_operand(large *l, int which, tegroup_tensor source, const scaling_row *f, int columns, int transposed, rng *r) {
    const int64_t count = source.shape.cols * (source.shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET ? ROWS : GROUPS * source.shape.rows);
    uint16_t *values = (uint16_t *)malloc((size_t)count * 2);
    tegroup_tensor *quantised = which ? &l->quantised.b : &l->quantised.a, *plain = which ? &l->plain.b : &l->plain.a;
    tegroup_layout layout;
    tegroup_error error;
    for (int64_t i = 0; i < count; i++) store(TEGROUP_DTYPE_BF16, values, i, (2 * rng_unit(r) - 1) * exp2(3 * rng_unit(r)));
    source.data = keep(l, room((size_t)count * 2, 0xff));
    copy_up(source.data, values, (size_t)count * 2);
    free(values);
    *quantised = *plain = source;
    if (f == NULL) return 1;
    quantised->dtype = is_fp4(f->scaling) ? TEGROUP_DTYPE_F4E2M1 : which ? large_of.weights : TEGROUP_DTYPE_F8E4M3;
    quantised->scaling = f->scaling;
    quantised->data = NULL;
    quantised->columnwise_order = transposed ? TEGROUP_COLUMNWISE_TRANSPOSED : TEGROUP_COLUMNWISE_AS_DATA;
    if (tegroup_tensor_layout(quantised, columns ? TEGROUP_COPIES_COLUMNWISE : TEGROUP_COPIES_ROWWISE, &layout, &error) != TEGROUP_OK) return 0;
    for (int i = 0; i < 4; i++) {
        void **const at[] = {&quantised->data, &quantised->scale_inv, &quantised->columnwise_data, &quantised->columnwise_scale_inv};
        if (layout.items[i].bytes > 0) *at[i] = keep(l, room(layout.items[i].bytes, 0xff));
    }
    if (which && large_of.interleaved) quantised->code_order = TEGROUP_CODES_INTERLEAVED;
    plain->data = keep(l, room((size_t)count * 2, 0xff));
    return 1;
}

/* Quantises the source that `plain` begins as, and then makes `plain` what that means. */
static int large_fill(large *l, int which, void *source, cudaStream_t stream) {
    tegroup_tensor *quantised = which ? &l->quantised.b : &l->quantised.a, *plain = which ? &l->plain.b : &l->plain.a;
    tegroup_quantize_desc to;
    tegroup_dequantize_desc back;
    tegroup_error error;
    if (quantised->scaling == TEGROUP_SCALING_NONE) return 1;
    memset(&to, 0, sizeof to);
    memset(&back, 0, sizeof back);
    to.struct_size = sizeof to;
    back.struct_size = sizeof back;
    to.space = back.space = TEGROUP_SPACE_DEVICE;
    to.input = back.output = *plain;
    to.input.data = source;
    to.output = back.input = *quantised;
    to.output.code_order = back.input.code_order = TEGROUP_CODES_IN_ORDER;
    back.columnwise = quantised->data == NULL;
    to.rule = tegroup_scale_rule_of(tegroup_scaling_info(quantised->scaling)->scale_dtype == TEGROUP_DTYPE_F8E4M3 ? TEGROUP_SCALE_TE_NVFP4 : TEGROUP_SCALE_OCP_MX);
    if (tegroup_quantize(&to, stream, &error) != TEGROUP_OK || tegroup_dequantize(&back, stream, &error) != TEGROUP_OK) {
        fprintf(stderr, "%s %s\n", error.field, error.rule);
        return 0;
    }
    tegroup_code_convert_desc convert = {sizeof convert, TEGROUP_SPACE_DEVICE, back.columnwise, to.output, *quantised}; /* in place */
    return quantised->code_order == TEGROUP_CODES_IN_ORDER || tegroup_code_convert(&convert, stream, &error) == TEGROUP_OK;
}

/* One graph of prepare and product, replayed with other splits, the last of which lies: what groups the snapshot has are right, as
 * the plain product of the same snapshot says, and nothing is written outside. */
static int large_one(uint64_t seed, const scaling_row *fa, const scaling_row *fb, tegroup_op op, int transposed) {
    const int wgrad = op == TEGROUP_OP_WGRAD, a_columns = wgrad, b_columns = op != TEGROUP_OP_FORWARD;
    const int64_t N = large_of.n, K = large_of.k, d_cols = op == TEGROUP_OP_FORWARD ? N : K, d_ld = large_of.d_ld > 0 ? large_of.d_ld : d_cols,
                  d_count = wgrad ? (int64_t)GROUPS * N * K : (int64_t)ROWS * d_ld;
    rng r = rng_seed(seed);
    large l;
    tegroup_layout layout;
    tegroup_error error;
    tegroup_plan plan, plain_plan;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t step;
    int right = 1;
    memset(&l, 0, sizeof l);
    int64_t *counts = (int64_t *)keep(&l, room(sizeof splits[0], 0));
    l.rows = tegroup_shape_of(GROUPS, ROWS, 0, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    if (tegroup_snapshot_layout(&l.rows, &layout, &error) != TEGROUP_OK) return 0;
    l.snapshot_bytes = layout.total_bytes;
    l.rows.snapshot = keep(&l, room(layout.total_bytes, 0));
    l.quantised.struct_size = sizeof l.quantised;
    l.quantised.op = op;
    l.quantised.space = TEGROUP_SPACE_DEVICE;
    l.quantised.options.backend = TEGROUP_BACKEND_SM90;
    l.plain = l.quantised;
    if (!large_operand(&l, 0, tegroup_tensor_of(l.rows, op == TEGROUP_OP_FORWARD ? K : N, TEGROUP_DTYPE_BF16, NULL), fa, a_columns, transposed, &r)) return 0;
    void *const a_source = l.plain.a.data == l.quantised.a.data ? NULL : l.memory[2];
    const int before_b = l.count;
    if (!large_operand(&l, 1, wgrad ? tegroup_tensor_of(l.rows, K, TEGROUP_DTYPE_BF16, NULL) : tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_BF16, NULL), fb, b_columns, transposed, &r)) return 0;
    void *const b_source = l.memory[before_b];
    l.quantised.d = wgrad ? tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_BF16, NULL) : tegroup_tensor_of(l.rows, d_cols, TEGROUP_DTYPE_BF16, NULL);
    if (!wgrad) l.quantised.d.ld = d_ld;
    l.quantised.options.expected_rows = large_of.expected;
    l.plain.d = l.quantised.d;
    l.quantised.d.data = keep(&l, room((size_t)d_count * 2, 0xff));
    l.plain.d.data = keep(&l, room((size_t)d_count * 2, 0xff));
    if (tegroup_plan_make(&l.quantised, NULL, &plan, &error) != TEGROUP_OK || tegroup_plan_make(&l.plain, NULL, &plain_plan, &error) != TEGROUP_OK) {
        fprintf(stderr, "%s %s\n", error.field, error.rule);
        return 0;
    }
    if (large_of.weights == TEGROUP_DTYPE_F8E4M3 && (!sm90_decodes_weights(&plan) || plan.tile_m != (large_of.expected > 0 ? 64 : 256))) {
        fprintf(stderr, "weights are not decoded in registers, or by tiles of %d rows\n", (int)plan.tile_m);
        return 0;
    }
    l.quantised.options.workspace_bytes = plan.workspace_bytes;
    l.quantised.options.workspace = (void *)(((uintptr_t)keep(&l, room(plan.workspace_bytes + 256, 0xff)) + 255) / 256 * 256);
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int captured = 0; captured < 2; captured++) {
        tegroup_shape prepared = l.rows;
        if (captured) MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        right &= tegroup_shape_prepare(&prepared, (void *)l.rows.snapshot, l.snapshot_bytes, stream, &error) == TEGROUP_OK;
        right &= tegroup_gemm(&plan, &l.quantised, stream, &error) == TEGROUP_OK;
        if (captured) MUST(cudaStreamEndCapture(stream, &graph));
        MUST(cudaDeviceSynchronize());
    }
    right &= only_kernels(graph) > 0;
    MUST(cudaGraphInstantiate(&step, graph, 0));
    uint16_t *got = (uint16_t *)malloc((size_t)d_count * 2), *want = (uint16_t *)malloc((size_t)d_count * 2);
    for (int turn = 0; turn < TURNS && right; turn++) {
        tegroup_shape prepared = l.rows;
        copy_up(counts, splits[turn], sizeof splits[turn]);
        right &= tegroup_shape_prepare(&prepared, (void *)l.rows.snapshot, l.snapshot_bytes, stream, &error) == TEGROUP_OK;
        right &= (a_source == NULL || large_fill(&l, 0, a_source, stream)) && large_fill(&l, 1, b_source, stream);
        MUST(cudaMemsetAsync(l.quantised.d.data, 0xff, (size_t)d_count * 2, stream));
        MUST(cudaMemsetAsync(l.plain.d.data, 0xff, (size_t)d_count * 2, stream));
        MUST(cudaMemsetAsync(l.quantised.options.workspace, 0xff, plan.workspace_bytes, stream)); /* NaN */
        right &= tegroup_gemm(&plain_plan, &l.plain, stream, &error) == TEGROUP_OK;
        MUST(cudaGraphLaunch(step, stream));
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemcpy(got, l.quantised.d.data, (size_t)d_count * 2, cudaMemcpyDeviceToHost));
        MUST(cudaMemcpy(want, l.plain.d.data, (size_t)d_count * 2, cudaMemcpyDeviceToHost));
        int64_t other = 0, finite = 0;
        for (int64_t i = 0; i < d_count; i++) {
            other += got[i] != want[i];
            finite += want[i] != 0xffff;
        }
        const int outside = bands_changed(l.quantised.d.data, (size_t)d_count * 2, 0xff)
                          + bands_changed((char *)l.quantised.options.workspace, plan.workspace_bytes, 0xff);
        if (other != 0 || outside != 0 || (turn == 0 && finite == 0))
            fprintf(stderr, "%s x %s, op %d, transposed %d, turn %d: %ld of %ld other, %d bytes outside, %ld written\n", name_of(fa), name_of(fb), (int)op, transposed, turn,
                    (long)other, (long)d_count, outside, (long)finite), right = 0;
    }
    /* more rows than planned have no room in the workspace; a buffer of fewer is none the worse */
    tegroup_gemm_desc more = l.quantised;
    more.a.shape.rows++;
    more.d.shape.rows += !wgrad;
    if (fa != NULL) {
        right &= tegroup_gemm_check(&plan, &more, &error) == TEGROUP_ERROR_PLAN && strcmp(error.field, "a.shape.rows") == 0 && error.expected == ROWS && error.got == ROWS + 1;
        if (!right) fprintf(stderr, "more rows: %s %s\n", error.field, error.rule);
    }
    MUST(cudaGraphExecDestroy(step));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    while (l.count > 0) room_free(l.memory[--l.count]);
    free(got), free(want);
    return right;
}

TEST(decoded_gpu, bits_of_what_is_dequantised) {
    int64_t ran = 0;
    if (!hopper_here()) return;
    large_of.n = 328, large_of.k = 776, large_of.weights = TEGROUP_DTYPE_F8E5M2; /* neither width is a multiple of 16 */
    for (int a = 0; a < FORMATS; a++)
        for (int b = 0; b < FORMATS; b++)
            for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++)
                for (int transposed = 0; transposed < 1 + (op != TEGROUP_OP_FORWARD); transposed++) {
                    if ((a == 0 && b == 0) || !goes(formats[a], formats[b], (tegroup_op)op)) continue;
                    ASSERT_TRUE(large_one((uint64_t)((a * 16 + b) * 4 + op), formats[a], formats[b], (tegroup_op)op, transposed));
                    ran++;
                }
    printf("%ld products, each of %d splits\n", (long)ran, (int)TURNS);
    ASSERT_GT(ran, 60);
}

/* The same of weights that are decoded in registers, by tiles of both kinds; D's columns end off 16 bytes. */
TEST(decoded_gpu, bits_of_weights_in_registers) {
    if (!hopper_here()) return;
    for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_DGRAD; op++)
        for (int tall = 0; tall < 2; tall++)
            for (int b = 1; b < FORMATS; b++)
                for (int a = 0; a < FORMATS; a++)
                    for (int interleaved = 0; interleaved < 2; interleaved++) {
                        const int dgrad = op == TEGROUP_OP_DGRAD;
                        large_of.n = dgrad ? 832 : 333, large_of.k = !dgrad ? 832 : interleaved ? 384 : 344, large_of.d_ld = !dgrad ? 336 : interleaved ? 384 : 352;
                        large_of.weights = TEGROUP_DTYPE_F8E4M3, large_of.expected = tall ? 0 : 100, large_of.interleaved = interleaved;
                        if (a == 0 || goes(formats[a], formats[b], (tegroup_op)op))
                            ASSERT_TRUE(large_one((uint64_t)((a * 16 + b) * 2 + op), formats[a], formats[b], (tegroup_op)op, dgrad));
                    }
    memset(&large_of, 0, sizeof large_of);
}

/* Every code with every scale of 8 bits: decoded to what the number means, rounded to BF16 once. D is 1 * b. */
TEST(decoded_gpu, every_code_and_scale) {
    static const struct { tegroup_scaling scaling; tegroup_dtype type, scale; } all[] = {
        {TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E8M0}, {TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F8E8M0},
        {TEGROUP_SCALING_MXFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E8M0}, {TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3}};
    enum { WIDE = 16, MOST = 65536 };
    if (!hopper_here()) return;
    for (int f = 0; f < 4; f++) {
        const tegroup_dtype type = all[f].type;
        const int count = type == TEGROUP_DTYPE_F4E2M1 ? 16 : 256, lines = count * 256, row = type == TEGROUP_DTYPE_F4E2M1 ? WIDE / 2 : WIDE;
        unsigned char *codes = (unsigned char *)calloc((size_t)lines, (size_t)row), *scales = (unsigned char *)calloc((size_t)lines, 4);
        uint16_t *one = (uint16_t *)calloc(WIDE, 2), *decoded = (uint16_t *)malloc((size_t)lines * WIDE * 2);
        tegroup_gemm_desc desc;
        tegroup_plan plan;
        tegroup_layout layout;
        tegroup_error error;
        for (int i = 0; i < lines; i++) {
            codes[i * row] = (unsigned char)(i % count);
            scales[i / 128 * 512 + i % 32 * 16 + i / 32 % 4 * 4] = (unsigned char)(i / count); /* one block a row, padded to four */
        }
        store(TEGROUP_DTYPE_BF16, one, 0, 1);
        memset(&desc, 0, sizeof desc);
        desc.struct_size = sizeof desc;
        desc.op = TEGROUP_OP_FORWARD;
        desc.space = TEGROUP_SPACE_DEVICE;
        desc.a = tegroup_tensor_uniform(1, 1, WIDE, TEGROUP_DTYPE_BF16, room(WIDE * 2, 0));
        desc.b = tegroup_tensor_uniform(1, lines, WIDE, type, room((size_t)lines * (size_t)row, 0));
        desc.b.scaling = all[f].scaling;
        desc.b.scale_inv = room((size_t)lines * 4, 0);
        desc.d = tegroup_tensor_uniform(1, 1, lines, TEGROUP_DTYPE_F32, room((size_t)lines * 4, 0));
        desc.options.backend = TEGROUP_BACKEND_SM90;
        copy_up(desc.a.data, one, WIDE * 2);
        copy_up(desc.b.data, codes, (size_t)lines * (size_t)row);
        copy_up(desc.b.scale_inv, scales, (size_t)lines * 4);
        ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
        ASSERT_EQ(tegroup_plan_layout(&plan, &layout, &error), TEGROUP_OK);
        ASSERT_EQ((int64_t)layout.items[1].bytes, (int64_t)lines * WIDE * 2);
        desc.options.workspace_bytes = plan.workspace_bytes;
        desc.options.workspace = room(plan.workspace_bytes, 0xff);
        ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
        MUST(cudaDeviceSynchronize());
        MUST(cudaMemcpy(decoded, (char *)desc.options.workspace + layout.items[1].offset_bytes, (size_t)lines * WIDE * 2, cudaMemcpyDeviceToHost));
        for (int i = 0; i < lines; i++) {
            const double value = decode_small(type, (unsigned)(i % count)), scale = decode_small(all[f].scale, (unsigned)(i / count));
            uint16_t want;
            store(TEGROUP_DTYPE_BF16, &want, 0, rounded(TEGROUP_DTYPE_BF16, value * scale));
            const uint16_t have = decoded[(int64_t)i * WIDE];
            const int nan = value * scale != value * scale;
            ASSERT_TRUE(nan ? (have & 0x7fff) > 0x7f80 : have == want);
        }
        void *const used[] = {desc.a.data, desc.b.data, desc.b.scale_inv, desc.d.data, desc.options.workspace};
        for (int i = 0; i < 5; i++) room_free(used[i]);
        free(codes), free(scales), free(one), free(decoded);
    }
}

/* The same in registers: D is the sum of a line's one code, at some place of it, times one. */
TEST(decoded_gpu, every_code_and_scale_in_registers) {
    static const struct { tegroup_scaling scaling; tegroup_dtype type, scale; int shared, interleaved; } all[] = {
        {TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E8M0, 32, 0},
        {TEGROUP_SCALING_MXFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E8M0, 32, 0}, {TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3, 16, 0},
        {TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E8M0, 32, 1},
        {TEGROUP_SCALING_MXFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E8M0, 32, 1}, {TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3, 16, 1}};
    enum { WIDE = 192 };
    if (!hopper_here()) return;
    for (int f = 0; f < 6; f++)
        for (int tall = 0; tall < 2; tall++) {
            const tegroup_dtype type = all[f].type;
            const int count = type == TEGROUP_DTYPE_F4E2M1 ? 16 : 256, lines = count * 256, row = type == TEGROUP_DTYPE_F4E2M1 ? WIDE / 2 : WIDE, blocks = (WIDE / all[f].shared + 3) / 4 * 4;
            const size_t code_bytes = (size_t)lines * (size_t)row, scale_bytes = (size_t)lines * (size_t)blocks;
            unsigned char *codes = (unsigned char *)calloc(code_bytes, 1), *scales = (unsigned char *)calloc(scale_bytes, 1);
            uint16_t one[WIDE], *got = (uint16_t *)malloc((size_t)lines * 2);
            int64_t counts = 1;
            tegroup_gemm_desc desc;
            tegroup_plan plan;
            tegroup_layout layout;
            tegroup_error error;
            for (int i = 0; i < lines; i++) {
                const int at = i * 7 % WIDE, block = at / all[f].shared, code = i % count;
                if (all[f].interleaved) store_interleaved(type, codes, (int64_t)i * WIDE + at, (unsigned)code);
                else store_small(type, codes, (int64_t)i * WIDE + at, (unsigned)code);
                scales[(size_t)(i / 128 * (blocks / 4) + block / 4) * 512 + (size_t)(i % 32 * 16 + i / 32 % 4 * 4 + block % 4)] = (unsigned char)(i / count);
            }
            for (int i = 0; i < WIDE; i++) store(TEGROUP_DTYPE_BF16, one, i, 1);
            memset(&desc, 0, sizeof desc);
            desc.struct_size = sizeof desc;
            desc.op = TEGROUP_OP_FORWARD;
            desc.space = TEGROUP_SPACE_DEVICE;
            void *const sizes = room(8, 0);
            copy_up(sizes, &counts, 8);
            tegroup_shape rows = tegroup_shape_of(1, 1, WIDE, tegroup_sizes_of(sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
            ASSERT_EQ(tegroup_snapshot_layout(&rows, &layout, &error), TEGROUP_OK);
            void *const snapshot = room(layout.total_bytes, 0);
            ASSERT_EQ(tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error), TEGROUP_OK);
            desc.a = tegroup_tensor_of(rows, WIDE, TEGROUP_DTYPE_BF16, room(sizeof one, 0));
            desc.b = tegroup_tensor_uniform(1, lines, WIDE, type, room(code_bytes, 0));
            desc.b.scaling = all[f].scaling;
            desc.b.code_order = all[f].interleaved ? TEGROUP_CODES_INTERLEAVED : TEGROUP_CODES_IN_ORDER;
            desc.b.scale_inv = room(scale_bytes, 0);
            desc.d = tegroup_tensor_of(rows, lines, TEGROUP_DTYPE_BF16, room((size_t)lines * 2, 0xff));
            desc.options.backend = TEGROUP_BACKEND_SM90;
            copy_up(desc.a.data, one, sizeof one);
            copy_up(desc.b.data, codes, code_bytes);
            copy_up(desc.b.scale_inv, scales, scale_bytes);
            desc.options.expected_rows = tall ? 300 : 1;
            ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
            ASSERT_EQ(plan.workspace_bytes, 0);
            ASSERT_EQ(plan.tile_m, tall ? 256 : 64);
            ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
            MUST(cudaDeviceSynchronize());
            MUST(cudaMemcpy(got, desc.d.data, (size_t)lines * 2, cudaMemcpyDeviceToHost));
            for (int i = 0; i < lines; i++) {
                const double exact = decode_small(type, (unsigned)(i % count)) * decode_small(all[f].scale, (unsigned)(i / count));
                uint16_t want;
                store(TEGROUP_DTYPE_BF16, &want, 0, rounded(TEGROUP_DTYPE_BF16, exact));
                const int nan = exact != exact, zero = (got[i] & 0x7fff) == 0 && (want & 0x7fff) == 0; /* -0 and zeros add up to 0 */
                if (!(nan ? (got[i] & 0x7fff) > 0x7f80 : zero || got[i] == want)) fprintf(stderr, "%d: code %d, scale %d: %04x, not %04x\n", f, i % count, i / count, got[i], want);
                ASSERT_TRUE(nan ? (got[i] & 0x7fff) > 0x7f80 : zero || got[i] == want);
            }
            void *const used[] = {desc.a.data, desc.b.data, desc.b.scale_inv, desc.d.data, sizes, snapshot};
            for (int i = 0; i < 6; i++) room_free(used[i]);
            free(codes), free(scales), free(got);
        }
}

/* Codes from one order to the other and back, by the picture in docs/formats.md, at any address, of one buffer and of a list, which
 * is in device memory; what lies between lines and around them stays as it was. */
TEST(decoded_gpu, orders_of_codes) {
    enum { GROUPS = 3, ROWS = 64, COLS = 192 };
    rng r = rng_seed(58);
    tegroup_error error;
    for (int how = 0; how < 8; how++)
        for (int skew = 0; skew < 16; skew += 5) {
            const int columnwise = how & 1, listed = how & 2, bits = how & 4 ? 8 : 4;
            const tegroup_dtype dtype = bits == 8 ? TEGROUP_DTYPE_F8E4M3 : TEGROUP_DTYPE_F4E2M1;
            const int64_t lines = columnwise ? COLS : ROWS, length = columnwise ? ROWS : COLS, ld = columnwise ? ROWS : COLS + 128, pitch = ld * bits / 8,
                          group = lines * pitch + (columnwise ? 0 : 64 * bits / 8);
            const size_t bytes = (size_t)(GROUPS * group + 16);
            unsigned char *codes = (unsigned char *)malloc(bytes), *want = (unsigned char *)malloc(bytes), *got = (unsigned char *)malloc(bytes);
            char *const from = (char *)room(bytes, 0x33), *const to = (char *)room(bytes, 0x33), *const lists = (char *)room(2 * GROUPS * sizeof(void *), 0);
            void *list[2 * GROUPS];
            for (size_t i = 0; i < bytes; i++) {
                codes[i] = (unsigned char)rng_int(&r, 0, 255);
                want[i] = 0x5a;
            }
            for (int64_t g = 0; g < GROUPS; g++) {
                list[g] = from + skew + g * group;
                list[GROUPS + g] = to + skew + g * group;
                for (int64_t i = 0; i < lines; i++)
                    for (int64_t k = 0; k < length; k++) {
                        const int64_t line = skew + g * group + i * pitch;
                        store_interleaved(dtype, want + line, k, bits == 8 ? codes[line + k] : codes[line + k / 2] >> k % 2 * 4 & 15u);
                    }
            }
            copy_up(from, codes, bytes);
            copy_up(lists, list, sizeof list);
            MUST(cudaMemset(to, 0x5a, bytes));
            tegroup_code_convert_desc desc;
            memset(&desc, 0, sizeof desc);
            desc.struct_size = sizeof desc;
            desc.space = TEGROUP_SPACE_DEVICE;
            desc.columnwise = columnwise;
            desc.from = tegroup_tensor_uniform(GROUPS, ROWS, COLS, dtype, NULL);
            desc.from.scaling = bits == 8 ? TEGROUP_SCALING_MXFP8 : TEGROUP_SCALING_NVFP4;
            desc.from.columnwise_order = columnwise ? TEGROUP_COLUMNWISE_TRANSPOSED : TEGROUP_COLUMNWISE_AS_DATA;
            if (!columnwise) desc.from.ld = ld, desc.from.group_stride = group * 8 / bits;
            if (listed) desc.from.pointers_space = TEGROUP_SPACE_DEVICE, desc.from.group_stride = 0;
            desc.to = desc.from;
            desc.to.code_order = TEGROUP_CODES_INTERLEAVED;
            for (int which = 0; which < 2; which++) {
                tegroup_tensor *t = which ? &desc.to : &desc.from;
                void *const data = listed ? NULL : (which ? to : from) + skew;
                void **const pointers = listed ? (void **)lists + which * GROUPS : NULL;
                if (columnwise) t->columnwise_data = data, t->columnwise_pointers = pointers;
                else t->data = data, t->pointers = pointers;
            }
            ASSERT_EQ(tegroup_code_convert(&desc, NULL, &error), TEGROUP_OK);
            MUST(cudaMemcpy(got, to, bytes, cudaMemcpyDeviceToHost));
            ASSERT_EQ(memcmp(got, want, bytes), 0);
            MUST(cudaMemcpy(got, from, bytes, cudaMemcpyDeviceToHost));
            ASSERT_EQ(memcmp(got, codes, bytes), 0);
            desc.from = desc.to; /* and back, in place */
            desc.to.code_order = TEGROUP_CODES_IN_ORDER;
            ASSERT_EQ(tegroup_code_convert(&desc, NULL, &error), TEGROUP_OK);
            MUST(cudaMemcpy(got, to, bytes, cudaMemcpyDeviceToHost));
            for (int64_t g = 0; g < GROUPS; g++)
                for (int64_t i = 0; i < lines; i++)
                    ASSERT_EQ(memcmp(got + skew + g * group + i * pitch, codes + skew + g * group + i * pitch, (size_t)(length * bits / 8)), 0);
            ASSERT_EQ(bands_changed(to, bytes, 0x33) + bands_changed(from, bytes, 0x33), 0);
            room_free(from), room_free(to), room_free(lists);
            free(codes), free(want), free(got);
        }
}

/* Weights in registers: a call whose codes or scales lie where TMA cannot load them, or whose scales are in parts, is refused; of a
 * list, groups whose codes or scales lie so are NaN, and the others right. */
TEST(decoded_gpu, weights_that_tma_cannot_load) {
    enum { GROUPS = 3, ROWS = 6, N = 64, K = 128, CODES = N * K / 2, SCALES = 512 };
    if (!hopper_here()) return;
    tegroup_layout layout;
    tegroup_error error;
    tegroup_plan plan;
    tegroup_gemm_desc desc, other;
    int64_t counts[GROUPS] = {2, 2, 2};
    uint16_t x[ROWS * K], got[ROWS * N];
    void *const sizes = room(sizeof counts, 0);
    copy_up(sizes, counts, sizeof counts);
    for (int i = 0; i < ROWS * K; i++) store(TEGROUP_DTYPE_BF16, x, i, 1);
    memset(&desc, 0, sizeof desc);
    tegroup_shape rows = tegroup_shape_of(GROUPS, ROWS, K, tegroup_sizes_of(sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    ASSERT_EQ(tegroup_snapshot_layout(&rows, &layout, &error), TEGROUP_OK);
    void *const snapshot = room(layout.total_bytes, 0);
    ASSERT_EQ(tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error), TEGROUP_OK);
    desc.struct_size = sizeof desc;
    desc.op = TEGROUP_OP_FORWARD;
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.a = tegroup_tensor_of(rows, K, TEGROUP_DTYPE_BF16, room(sizeof x, 0));
    desc.b = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_F4E2M1, room(GROUPS * CODES + 16, 0x22)); /* 1 */
    desc.b.scaling = TEGROUP_SCALING_MXFP4;
    desc.b.scale_inv = room(GROUPS * SCALES + 16, 127); /* 1 */
    desc.d = tegroup_tensor_of(rows, N, TEGROUP_DTYPE_BF16, room(sizeof got, 0xff));
    desc.options.backend = TEGROUP_BACKEND_SM90;
    copy_up(desc.a.data, x, sizeof x);
    ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
    ASSERT_TRUE(sm90_decodes_weights(&plan));
    ASSERT_EQ(tegroup_gemm_check(&plan, &desc, &error), TEGROUP_OK);
    other = desc;
    other.b.data = (char *)desc.b.data + 8;
    ASSERT_EQ(tegroup_gemm_check(&plan, &other, &error), TEGROUP_ERROR_ALIGNMENT);
    ASSERT_STREQ("b.data", error.field);
    ASSERT_EQ(error.got, 8);
    other = desc;
    other.b.scale_inv = (char *)desc.b.scale_inv + 4;
    ASSERT_EQ(tegroup_gemm_check(&plan, &other, &error), TEGROUP_ERROR_ALIGNMENT);
    ASSERT_STREQ("b.scale_inv", error.field);
    ASSERT_EQ(error.got, 4);
    other = desc;
    other.b.scale_parts = 2;
    ASSERT_EQ(tegroup_gemm_check(&plan, &other, &error), TEGROUP_ERROR_PLAN);
    ASSERT_STREQ("b.scale_parts", error.field);
    void *codes[GROUPS], *scales[GROUPS], **lists = (void **)room(sizeof codes + sizeof scales, 0);
    for (int g = 0; g < GROUPS; g++) {
        codes[g] = (char *)desc.b.data + g * CODES + (g == 0 ? 8 : 0);
        scales[g] = (char *)desc.b.scale_inv + g * SCALES + (g == 2 ? 4 : 0);
    }
    copy_up(lists, codes, sizeof codes);
    copy_up(lists + GROUPS, scales, sizeof scales);
    other = desc;
    other.b.data = other.b.scale_inv = NULL;
    other.b.pointers = lists;
    other.b.scale_pointers = lists + GROUPS;
    other.b.pointers_space = TEGROUP_SPACE_DEVICE;
    const tegroup_status status = tegroup_plan_make(&other, NULL, &plan, &error);
    if (status != TEGROUP_OK) fprintf(stderr, "%s %s\n", error.field, error.rule);
    ASSERT_EQ(status, TEGROUP_OK);
    ASSERT_TRUE(sm90_decodes_weights(&plan));
    ASSERT_EQ(tegroup_gemm(&plan, &other, NULL, &error), TEGROUP_OK);
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(got, desc.d.data, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < ROWS * N; i++) {
        const double y = load(TEGROUP_DTYPE_BF16, (unsigned char *)got, i);
        ASSERT_TRUE(i / N / 2 == 1 ? y == K : y != y);
    }
    void *const used[] = {sizes, snapshot, desc.a.data, desc.b.data, desc.b.scale_inv, desc.d.data, lists};
    for (int i = 0; i < 7; i++) room_free(used[i]);
}

/* Without groups there is nothing to decode; the tail is filled, and no operand that TMA could not take is described to it. */
TEST(decoded_gpu, no_groups) {
    enum { ROWS = 40, N = 24, K = 100 };
    if (!hopper_here()) return;
    tegroup_layout layout;
    tegroup_error error;
    tegroup_plan plan;
    tegroup_gemm_desc desc;
    float got[ROWS * N];
    memset(&desc, 0, sizeof desc);
    tegroup_shape rows = tegroup_shape_of(0, ROWS, K, tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    ASSERT_EQ(tegroup_snapshot_layout(&rows, &layout, &error), TEGROUP_OK);
    void *const snapshot = room(layout.total_bytes, 0);
    ASSERT_EQ(tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error), TEGROUP_OK);
    desc.struct_size = sizeof desc;
    desc.op = TEGROUP_OP_FORWARD;
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.tail = TEGROUP_TAIL_ZERO;
    desc.a = tegroup_tensor_of(rows, K, TEGROUP_DTYPE_F8E4M3, NULL);
    desc.a.scaling = TEGROUP_SCALING_MXFP8;
    ASSERT_EQ(tegroup_tensor_layout(&desc.a, TEGROUP_COPIES_ROWWISE, &layout, &error), TEGROUP_OK);
    void *const copy = room(layout.total_bytes, 0x7f), *const scales = room(layout.total_bytes, 0xff); /* NaN */
    desc.a.data = copy;
    desc.a.scale_inv = scales;
    desc.b = tegroup_tensor_uniform(0, N, K, TEGROUP_DTYPE_F8E4M3, NULL);
    desc.b.scaling = TEGROUP_SCALING_MXFP8;
    desc.d = tegroup_tensor_of(rows, N, TEGROUP_DTYPE_F32, room(sizeof got, 0xff));
    desc.options.backend = TEGROUP_BACKEND_SM90;
    ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
    desc.options.workspace_bytes = plan.workspace_bytes;
    desc.options.workspace = room(plan.workspace_bytes, 0xff);
    ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(got, desc.d.data, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < ROWS * N; i++) ASSERT_EQ(got[i], 0);
    ASSERT_EQ(bands_changed(desc.d.data, sizeof got, 0xff), 0);
    void *const used[] = {snapshot, copy, scales, desc.d.data, desc.options.workspace};
    for (int i = 0; i < 5; i++) room_free(used[i]);
}

TEST_MAIN()
