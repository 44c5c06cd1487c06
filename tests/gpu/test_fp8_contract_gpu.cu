/* What SM90's products of FP8 promise beside their values: one graph of prepare, quantise and product serves every routing, also one
 * that lies; a row's bits do not depend on the rows that come with it; and calls repeat. Every scaling, operation and way of
 * summing. Values are small whole numbers, which codes, scales that are powers of two, and sums hold exactly: results are whole
 * numbers, too. */
#define TEGROUP_EXTERN
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_NO_F16
#define TEGROUP_NO_PORTABLE
#include "mirror.h"
#include "test.h"

enum { GROUPS = 5, ROWS = 700, N = 336, K = 400, BAND = 4096, POISON = 0xff };

static int sm90_here(void) {
    const char *wanted = getenv("TEGROUP_TEST_BACKENDS");
    int device, major;
    if (wanted != NULL && strstr(wanted, "sm90") == NULL) return 0;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major == 9;
}

typedef struct kind {
    tegroup_op op;
    tegroup_scaling a, b;
    tegroup_compute compute;
} kind;
static const kind kinds[] = {
    {TEGROUP_OP_FORWARD, TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_TENSOR, TEGROUP_COMPUTE_F32},
    {TEGROUP_OP_FORWARD, TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW, TEGROUP_COMPUTE_F32},
    {TEGROUP_OP_FORWARD, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128, TEGROUP_COMPUTE_F32},
    {TEGROUP_OP_FORWARD, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_COMPUTE_F32},
    {TEGROUP_OP_FORWARD, TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_TENSOR, TEGROUP_COMPUTE_FAST_ACCUM},
    {TEGROUP_OP_FORWARD, TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW, TEGROUP_COMPUTE_FAST_ACCUM},
    {TEGROUP_OP_DGRAD, TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW, TEGROUP_COMPUTE_F32},
    {TEGROUP_OP_DGRAD, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128, TEGROUP_COMPUTE_F32},
    {TEGROUP_OP_DGRAD, TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_ROW, TEGROUP_COMPUTE_FAST_ACCUM},
    {TEGROUP_OP_WGRAD, TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_TENSOR, TEGROUP_COMPUTE_F32},
    {TEGROUP_OP_WGRAD, TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW, TEGROUP_COMPUTE_F32},
    {TEGROUP_OP_WGRAD, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_COMPUTE_F32},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* A product and what comes before it, all in device memory. X [ROWS, K], Y [ROWS, N], W [GROUPS, N, K] in BF16. */
typedef struct step {
    void *kept[40]; /* what is to be freed */
    int count;
    int64_t *sizes;
    tegroup_prepare_desc prepare; /* shapes differ in their columns alone, so that one snapshot serves all */
    tegroup_quantize_desc quantize[2];
    tegroup_gemm_desc gemm;
    tegroup_plan plan;
    char *d; /* behind a band */
    size_t d_bytes;
} step;

static void *room(step *s, size_t bytes, const void *from) {
    void *to;
    MUST(cudaMalloc(&to, bytes + 1));
    MUST(cudaMemset(to, POISON, bytes + 1));
    if (from) copy_up(to, from, bytes);
    return s->kept[s->count++] = to;
}
static uint16_t bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)(bits >> 16); /* of what BF16 has */
}
static void *bf16_up(step *s, const float *x, int64_t count) {
    uint16_t *halves = (uint16_t *)malloc((size_t)count * 2);
    for (int64_t i = 0; i < count; i++) halves[i] = bf16_of(x[i]);
    void *to = room(s, (size_t)count * 2, halves);
    free(halves);
    return to;
}

/* The copy of a plain tensor that the product reads, and how it is made. */
static void quantised_as(step *s, int which, tegroup_tensor plain, tegroup_scaling scaling, int columnwise) {
    tegroup_quantize_desc *q = &s->quantize[which];
    tegroup_layout layout;
    memset(q, 0, sizeof *q);
    q->struct_size = sizeof *q;
    q->space = TEGROUP_SPACE_DEVICE;
    q->input = q->output = plain;
    q->output.data = NULL;
    q->output.dtype = TEGROUP_DTYPE_F8E4M3;
    q->output.scaling = scaling;
    q->output.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    q->rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_BLOCK); /* powers of two */
    ASSERT_EQ(tegroup_tensor_layout(&q->output, columnwise ? TEGROUP_COPIES_COLUMNWISE : TEGROUP_COPIES_ROWWISE, &layout, NULL), TEGROUP_OK);
    void **const to[] = {&q->output.data, (void **)&q->output.scale_inv, &q->output.columnwise_data, (void **)&q->output.columnwise_scale_inv};
    for (int i = 0; i < 4; i++)
        if (layout.items[i].bytes > 0) *to[i] = room(s, layout.items[i].bytes, NULL);
    if (scaling == TEGROUP_SCALING_TENSOR) q->output.amax = (float *)room(s, GROUPS * 4, NULL);
}

/* few: a hint that groups are short, by which the lower tile is taken. */
static void step_make(step *s, const kind *k, const float *x, const float *y, const float *w, int few) {
    const int wgrad = k->op == TEGROUP_OP_WGRAD, forward = k->op == TEGROUP_OP_FORWARD;
    tegroup_error error;
    tegroup_layout layout;
    memset(s, 0, sizeof *s);
    s->sizes = (int64_t *)room(s, GROUPS * 8, NULL);
    MUST(cudaMemset(s->sizes, 0, GROUPS * 8));
    tegroup_shape shape = tegroup_shape_of(GROUPS, ROWS, K, tegroup_sizes_of(s->sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, &error), TEGROUP_OK);
    s->prepare.struct_size = sizeof s->prepare;
    s->prepare.space = TEGROUP_SPACE_DEVICE;
    s->prepare.shape = shape;
    s->prepare.snapshot = room(s, layout.total_bytes, NULL);
    shape.snapshot = s->prepare.snapshot;
    s->prepare.snapshot_bytes = layout.total_bytes;
    tegroup_shape of_y = shape;
    of_y.cols = N;
    const tegroup_tensor of_x = tegroup_tensor_of(shape, K, TEGROUP_DTYPE_BF16, forward || wgrad ? bf16_up(s, x, ROWS * K) : NULL),
                         dy = tegroup_tensor_of(of_y, N, TEGROUP_DTYPE_BF16, forward ? NULL : bf16_up(s, y, ROWS * N)),
                         weights = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_BF16, wgrad ? NULL : bf16_up(s, w, GROUPS * N * K));
    quantised_as(s, 0, forward ? of_x : dy, k->a, wgrad);
    quantised_as(s, 1, wgrad ? of_x : weights, k->b, !forward);
    s->d_bytes = 4 * (size_t)(wgrad ? GROUPS * N * K : forward ? ROWS * N : ROWS * K);
    s->d = (char *)room(s, s->d_bytes + 2 * BAND, NULL);
    s->gemm.struct_size = sizeof s->gemm;
    s->gemm.op = k->op;
    s->gemm.space = TEGROUP_SPACE_DEVICE;
    s->gemm.a = s->quantize[0].output;
    s->gemm.b = s->quantize[1].output;
    s->gemm.d = wgrad ? weights : forward ? dy : of_x;
    s->gemm.d.dtype = TEGROUP_DTYPE_F32;
    s->gemm.d.data = s->d + BAND;
    s->gemm.options.backend = TEGROUP_BACKEND_SM90;
    s->gemm.options.compute = k->compute;
    s->gemm.options.expected_rows = few ? GROUPS * 20 : 0;
    ASSERT_EQ(tegroup_plan_make(&s->gemm, NULL, &s->plan, &error), TEGROUP_OK);
    s->gemm.options.workspace_bytes = s->plan.workspace_bytes;
    s->gemm.options.workspace = room(s, s->plan.workspace_bytes, NULL);
    if (!wgrad) ASSERT_EQ(tegroup_quantize(&s->quantize[1], NULL, &error), TEGROUP_OK);
    MUST(cudaDeviceSynchronize());
}
static void step_release(step *s) {
    for (int i = 0; i < s->count; i++) MUST(cudaFree(s->kept[i]));
}
static void step_run(step *s, cudaStream_t stream) {
    tegroup_error error;
    ASSERT_EQ(tegroup_prepare(&s->prepare, stream, &error), TEGROUP_OK);
    ASSERT_EQ(tegroup_quantize(&s->quantize[0], stream, &error), TEGROUP_OK);
    if (s->gemm.op == TEGROUP_OP_WGRAD) ASSERT_EQ(tegroup_quantize(&s->quantize[1], stream, &error), TEGROUP_OK);
    ASSERT_EQ(tegroup_gemm(&s->plan, &s->gemm, stream, &error), TEGROUP_OK);
}
static cudaGraphExec_t step_capture(step *s, cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    step_run(s, stream); /* kernels are loaded when they first run */
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    step_run(s, stream);
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&replay, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return replay;
}
/* Poison everywhere that the step writes, and other sizes. */
static void step_poison(step *s, const int64_t *sizes, cudaStream_t stream) {
    MUST(cudaMemcpyAsync(s->sizes, sizes, GROUPS * 8, cudaMemcpyHostToDevice, stream));
    MUST(cudaMemsetAsync(s->prepare.snapshot, POISON, s->prepare.snapshot_bytes, stream));
    MUST(cudaMemsetAsync(s->d, POISON, s->d_bytes + 2 * BAND, stream));
    if (s->plan.workspace_bytes) MUST(cudaMemsetAsync(s->gemm.options.workspace, POISON, s->plan.workspace_bytes, stream));
    MUST(cudaStreamSynchronize(stream));
}

static void draw_whole(rng *r, float *to, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = (float)rng_int(r, -3, 3);
}
/* A whole number of a step's result, and where it is. */
static int64_t whole(const kind *k, const float *x, const float *y, const float *w, int g, int64_t start, int64_t rows, int64_t i, int64_t j) {
    int64_t sum = 0;
    if (k->op == TEGROUP_OP_FORWARD)
        for (int64_t q = 0; q < K; q++) sum += (int64_t)(x[(start + i) * K + q] * w[(g * N + j) * K + q]);
    else if (k->op == TEGROUP_OP_DGRAD)
        for (int64_t q = 0; q < N; q++) sum += (int64_t)(y[(start + i) * N + q] * w[(g * N + q) * K + j]);
    else
        for (int64_t q = 0; q < rows; q++) sum += (int64_t)(y[(start + q) * N + i] * x[(start + q) * K + j]);
    return sum;
}

TEST(fp8_contract_gpu, one_graph_for_every_routing) {
    static const int64_t given[][GROUPS] = {{140, 0, 60, 500, 0}, {10, 255, 35, 0, 400}, {0, 0, 0, 0, 0}, {129, 1, 100, 127, 128}, {0, 0, 700, 0, 0}, {50, INT64_MAX, -7, 3, 4}};
    enum { GIVEN = sizeof given / sizeof *given, LIES = GIVEN - 1 };
    if (!sm90_here()) return;
    rng r = rng_seed(2718);
    float *x = (float *)malloc(ROWS * K * 4), *y = (float *)malloc(ROWS * N * 4), *w = (float *)malloc(GROUPS * N * K * 4);
    draw_whole(&r, x, ROWS * K), draw_whole(&r, y, ROWS * N), draw_whole(&r, w, GROUPS * N * K);
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int64_t compared = 0;
    for (int n = 0; n < KINDS; n++) {
        const kind *k = &kinds[n];
        const int wgrad = k->op == TEGROUP_OP_WGRAD;
        const int64_t cols = k->op == TEGROUP_OP_FORWARD ? N : K;
        step s;
        step_make(&s, k, x, y, w, n % 2);
        cudaGraphExec_t replay = step_capture(&s, stream);
        char *got = (char *)malloc(s.d_bytes + 2 * BAND);
        const float *d = (const float *)(void *)(got + BAND);
        for (int64_t turn = 0; turn < GIVEN + scaled(94); turn++) {
            int64_t sizes[GROUPS], left = ROWS, start = 0;
            for (int g = 0; g < GROUPS; g++) {
                sizes[g] = turn < GIVEN ? given[turn][g] : rng_int(&r, 0, left);
                if (turn >= GIVEN) left -= sizes[g];
            }
            step_poison(&s, sizes, stream);
            MUST(cudaGraphLaunch(replay, stream));
            MUST(cudaStreamSynchronize(stream));
            MUST(cudaMemcpy(got, s.d, s.d_bytes + 2 * BAND, cudaMemcpyDeviceToHost));
            for (int i = 0; i < BAND; i++) ASSERT_TRUE((unsigned char)got[i] == POISON && (unsigned char)got[BAND + s.d_bytes + i] == POISON);
            for (int g = 0; g < (turn == LIES ? 1 : GROUPS); start += sizes[g], g++)
                for (int64_t i = 0; i < (wgrad ? N : sizes[g]); i++)
                    for (int64_t j = (turn + i) % 29; j < cols; j += 29, compared++)
                        ASSERT_EQ((double)d[(wgrad ? g * (int64_t)N + i : start + i) * cols + j], (double)whole(k, x, y, w, g, start, sizes[g], i, j));
            if (wgrad || turn == LIES) continue;
            for (size_t i = (size_t)(start * cols) * 4; i < s.d_bytes; i++) ASSERT_TRUE((unsigned char)got[BAND + i] == POISON); /* rows of no group */
        }
        MUST(cudaGraphExecDestroy(replay));
        step_release(&s);
        free(got);
    }
    MUST(cudaStreamDestroy(stream));
    printf("%ld whole numbers\n", (long)compared);
    free(x), free(y), free(w);
}

/* Sums without terms read no scale, whose address may be NULL or lie behind the buffer: of products with K = 0, of
 * groups without rows in a list, and of more groups than a buffer has rows. All codes and scales are 1, so that each
 * result is the number of its terms. */
static void no_terms(tegroup_scaling scaling, tegroup_compute compute, int wgrad, int lists) {
    enum { FEW = 8, WIDE = 64, PADDED = 32 }; /* columns of a transposed copy begin at multiples of PADDED codes */
    static const int64_t even[FEW] = {16, 16, 16, 16, 16, 16, 16, 16}, uneven[FEW] = {2, 0, 1, 1, 0, 0, 0, 0};
    const int64_t rows = wgrad ? 4 : 128, k = wgrad ? WIDE : 0, *sizes = wgrad ? uneven : even;
    step s;
    tegroup_error error;
    tegroup_layout layout;
    memset(&s, 0, sizeof s);
    const int64_t *on_device = (const int64_t *)room(&s, sizeof even, sizes);
    const tegroup_sizes counts = tegroup_sizes_of(on_device, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    tegroup_shape of_x = tegroup_shape_of(FEW, rows, k, counts);
    ASSERT_EQ(tegroup_snapshot_layout(&of_x, &layout, &error), TEGROUP_OK);
    void *snapshot = room(&s, layout.total_bytes, NULL);
    ASSERT_EQ(tegroup_shape_prepare(&of_x, snapshot, layout.total_bytes, NULL, &error), TEGROUP_OK);
    tegroup_shape of_y = of_x;
    of_y.cols = WIDE;
    tegroup_tensor x = tegroup_tensor_of(of_x, k, TEGROUP_DTYPE_F8E4M3, NULL),
                   y = tegroup_tensor_of(of_y, WIDE, TEGROUP_DTYPE_F8E4M3, NULL),
                   w = tegroup_tensor_uniform(FEW, WIDE, k, TEGROUP_DTYPE_F8E4M3, NULL);
    tegroup_tensor *operand[] = {&s.gemm.a, &s.gemm.b};
    s.gemm.struct_size = sizeof s.gemm;
    s.gemm.space = TEGROUP_SPACE_DEVICE;
    s.gemm.op = wgrad ? TEGROUP_OP_WGRAD : TEGROUP_OP_FORWARD;
    s.gemm.a = wgrad ? y : x;
    s.gemm.b = wgrad ? x : w;
    s.gemm.d = wgrad ? w : y;
    s.gemm.d.dtype = TEGROUP_DTYPE_F32;
    s.d_bytes = 4 * (size_t)(wgrad ? FEW * WIDE * WIDE : rows * WIDE);
    s.gemm.d.data = s.d = (char *)room(&s, s.d_bytes, NULL);
    for (int i = 0; i < 2; i++) {
        operand[i]->scaling = scaling;
        operand[i]->scale_dtype = TEGROUP_DTYPE_F32;
        operand[i]->columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
        if (!wgrad) continue; /* No code and no scale is needed where K is 0. */
        unsigned char codes[FEW][WIDE][PADDED];
        float scales[FEW * WIDE];
        void *code_list[FEW], *scale_list[FEW];
        memset(codes, 0, sizeof codes);
        for (int j = 0; j < FEW * WIDE; j++) scales[j] = 1;
        int kept = 0; /* groups of the buffer that have columns: those with rows */
        for (int g = 0; g < FEW; g++) {
            const int to = lists ? g : kept;
            kept += sizes[g] > 0;
            code_list[g] = scale_list[g] = NULL;
            for (int j = 0; j < WIDE && sizes[g] > 0; j++) memset(codes[to][j], 0x38, (size_t)sizes[g]); /* 1 */
            if (!lists || sizes[g] == 0) continue;
            code_list[g] = room(&s, sizeof *codes, codes[g]);
            scale_list[g] = room(&s, sizeof scales, scales);
        }
        if (lists) {
            operand[i]->pointers_space = TEGROUP_SPACE_DEVICE;
            operand[i]->columnwise_pointers = (void **)room(&s, sizeof code_list, code_list);
            operand[i]->columnwise_scale_pointers = (void **)room(&s, sizeof scale_list, scale_list);
            continue;
        }
        ASSERT_EQ(tegroup_tensor_layout(operand[i], TEGROUP_COPIES_COLUMNWISE, &layout, &error), TEGROUP_OK);
        ASSERT_GE(layout.items[2].bytes, (size_t)kept * sizeof *codes);
        ASSERT_LE(layout.items[2].bytes, sizeof codes);
        ASSERT_LE(layout.items[3].bytes, sizeof scales);
        operand[i]->columnwise_data = room(&s, layout.items[2].bytes, codes);
        operand[i]->columnwise_scale_inv = room(&s, layout.items[3].bytes, scales);
    }
    s.gemm.options.backend = TEGROUP_BACKEND_SM90;
    s.gemm.options.compute = compute;
    ASSERT_EQ(tegroup_plan_make(&s.gemm, NULL, &s.plan, &error), TEGROUP_OK);
    s.gemm.options.workspace_bytes = s.plan.workspace_bytes;
    s.gemm.options.workspace = room(&s, s.plan.workspace_bytes, NULL);
    ASSERT_EQ(tegroup_gemm(&s.plan, &s.gemm, NULL, &error), TEGROUP_OK);
    MUST(cudaDeviceSynchronize());
    float *d = (float *)malloc(s.d_bytes);
    MUST(cudaMemcpy(d, s.d, s.d_bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < s.d_bytes / 4; i++) ASSERT_EQ(d[i], wgrad ? (float)sizes[i / (WIDE * WIDE)] : 0.0f);
    free(d);
    step_release(&s);
}
TEST(fp8_contract_gpu, sums_without_terms) {
    if (!sm90_here()) return;
    const tegroup_scaling scalings[] = {TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_ROW};
    for (int i = 0; i < 2; i++) {
        no_terms(scalings[i], TEGROUP_COMPUTE_F32, 0, 0);
        no_terms(scalings[i], TEGROUP_COMPUTE_FAST_ACCUM, 0, 0);
        no_terms(scalings[i], TEGROUP_COMPUTE_F32, 1, 1);
        no_terms(scalings[i], TEGROUP_COMPUTE_F32, 1, 0);
    }
}

/* Rows and weights of any values: those of a group, here group 2, give the same bits with other groups of any size beside them, in
 * either tile, and again and again. */
TEST(fp8_contract_gpu, company_and_repetition) {
    enum { MINE = 173 };
    if (!sm90_here()) return;
    rng r = rng_seed(3141);
    float *x = (float *)malloc(ROWS * K * 4), *y = (float *)malloc(ROWS * N * 4), *w = (float *)malloc(GROUPS * N * K * 4), *all[] = {x, y, w};
    const int64_t counts[] = {ROWS * K, ROWS * N, GROUPS * N * K};
    for (int t = 0; t < 3; t++)
        for (int64_t i = 0; i < counts[t]; i++) {
            const float value = (float)ldexp(rng_normal(&r), (int)rng_int(&r, -6, 6));
            uint32_t bits;
            memcpy(&bits, &value, 4);
            bits &= 0xffff0000u; /* what BF16 has */
            memcpy(&all[t][i], &bits, 4);
        }
    for (int n = 0; n < KINDS; n++) {
        const kind *k = &kinds[n];
        const int wgrad = k->op == TEGROUP_OP_WGRAD;
        const int64_t cols = k->op == TEGROUP_OP_FORWARD ? N : K;
        const size_t bytes = 4 * (size_t)(wgrad ? N * K : MINE * cols);
        char *first = (char *)malloc(bytes), *again = (char *)malloc(bytes);
        float *moved_x = (float *)malloc(ROWS * K * 4), *moved_y = (float *)malloc(ROWS * N * 4);
        int64_t runs = 0;
        for (int64_t company = 0; company < 2 + scaled(20); company++) {
            int64_t sizes[GROUPS] = {0, 0, MINE, 0, 0}, left = ROWS - MINE, before;
            for (int g = 0; g < GROUPS && company > 0; g++)
                if (g != 2) sizes[g] = rng_int(&r, 0, left), left -= sizes[g];
            before = sizes[0] + sizes[1];
            /* the first rows become those of group 2 */
            memcpy(moved_x, x + MINE * K, (size_t)(before * K) * 4), memcpy(moved_x + before * K, x, MINE * K * 4);
            memcpy(moved_x + (before + MINE) * K, x + (before + MINE) * K, (size_t)((ROWS - before - MINE) * K) * 4);
            memcpy(moved_y, y + MINE * N, (size_t)(before * N) * 4), memcpy(moved_y + before * N, y, MINE * N * 4);
            memcpy(moved_y + (before + MINE) * N, y + (before + MINE) * N, (size_t)((ROWS - before - MINE) * N) * 4);
            step s;
            step_make(&s, k, moved_x, moved_y, w, company % 2);
            for (int64_t repeat = 0; repeat < (company == 1 ? scaled(1000) : 1); repeat++, runs++) {
                step_poison(&s, sizes, NULL);
                step_run(&s, NULL);
                MUST(cudaDeviceSynchronize());
                MUST(cudaMemcpy(runs ? again : first, s.d + BAND + (wgrad ? 2 * bytes : (size_t)(before * cols) * 4), bytes, cudaMemcpyDeviceToHost));
                if (runs) ASSERT_EQ(memcmp(first, again, bytes), 0);
            }
            step_release(&s);
        }
        ASSERT_GT(runs, 2);
        for (size_t i = 0; i < bytes / 4; i++) ASSERT_TRUE(((const float *)(void *)first)[i] == ((const float *)(void *)first)[i]);
        free(first), free(again), free(moved_x), free(moved_y);
    }
    free(x), free(y), free(w);
}

TEST_MAIN()
