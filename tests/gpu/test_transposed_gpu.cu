/* Products whose operands lie transposed, as docs/concepts.md has them: groups are windows side by side in the rows of one buffer. All
 * five ways on PORTABLE, in F32 and BF16; values are whole numbers, so that results are exact. */
#define TEGROUP_EXTERN
#define TEGROUP_NO_SM90
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_FP8
#define TEGROUP_NO_F16
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#include "mirror.h"
#include "test.h"

enum { GROUPS = 3, N = 70, K = 44, ROWS = 150 };

static int portable_here(void) {
    const char *wanted = getenv("TEGROUP_TEST_BACKENDS");
    int device, major;
    if (wanted != NULL && strstr(wanted, "portable") == NULL) return 0;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major >= 8;
}

static void *kept[64];
static int kept_count;
static void *on_gpu(const void *from, size_t bytes) {
    void *to;
    MUST(cudaMalloc(&to, bytes + 1));
    if (from) copy_up(to, from, bytes);
    else MUST(cudaMemset(to, 0xff, bytes + 1));
    return kept[kept_count++] = to;
}
static void *values_on_gpu(const float *x, int64_t count, tegroup_dtype dtype) {
    void *there = malloc((size_t)count * size_of(dtype)), *to;
    for (int64_t i = 0; i < count; i++) store(dtype, there, i, x[i]);
    to = on_gpu(there, (size_t)count * size_of(dtype));
    free(there);
    return to;
}

/* A tensor of groups with row_sizes, and col_sizes where they are windows of a buffer that is `ld` wide, from column `first` on. */
static tegroup_tensor tensor_of(void *data, tegroup_dtype dtype, int64_t rows, int64_t cols, int64_t elements, const int64_t *row_sizes, const int64_t *col_sizes,
                                const int64_t *first) {
    tegroup_tensor t;
    memset(&t, 0, sizeof t);
    t.shape = tegroup_shape_of(GROUPS, rows, cols, tegroup_sizes_of(row_sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    if (col_sizes) {
        t.shape.col_sizes = tegroup_sizes_of(col_sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
        t.shape.offsets = first;
        t.shape.elements = elements;
    }
    t.ld = cols;
    t.dtype = dtype;
    t.data = data;
    tegroup_prepare_desc prepare;
    tegroup_layout layout;
    tegroup_error error;
    memset(&prepare, 0, sizeof prepare);
    prepare.struct_size = sizeof prepare;
    prepare.space = TEGROUP_SPACE_DEVICE;
    prepare.shape = t.shape;
    prepare.ld = t.ld;
    if (tegroup_snapshot_layout(&t.shape, &layout, &error) != TEGROUP_OK) return t;
    prepare.snapshot = on_gpu(NULL, layout.total_bytes);
    prepare.snapshot_bytes = layout.total_bytes;
    const tegroup_status status = tegroup_prepare(&prepare, NULL, &error);
    if (status != TEGROUP_OK) fprintf(stderr, "%s %s\n", error.field, error.rule);
    t.shape.snapshot = status == TEGROUP_OK ? prepare.snapshot : NULL;
    return t;
}

static void in_type(tegroup_dtype dtype) {
    static const int64_t n_each[GROUPS] = {N, N, N}, k_each[GROUPS] = {K, K, K}, counts[GROUPS] = {83, 0, 67}, start[GROUPS] = {0, 83, 83};
    static float x[ROWS][K], x_t[K][ROWS], dy[ROWS][N], dy_t[N][ROWS], w[GROUPS][N][K], w_t[GROUPS][K][N];
    rng r = rng_seed(1617);
    kept_count = 0;
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < K; i++) x[row][i] = x_t[i][row] = (float)rng_int(&r, -9, 9);
        for (int i = 0; i < N; i++) dy[row][i] = dy_t[i][row] = (float)rng_int(&r, -9, 9);
    }
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < N; i++)
            for (int j = 0; j < K; j++) w[g][i][j] = w_t[g][j][i] = (float)rng_int(&r, -9, 9);
    const int64_t *n = (const int64_t *)on_gpu(n_each, sizeof n_each), *k = (const int64_t *)on_gpu(k_each, sizeof k_each), *rows = (const int64_t *)on_gpu(counts, sizeof counts),
                  *first = (const int64_t *)on_gpu(start, sizeof start);
    enum { WEIGHTS = GROUPS * N * K, MOST = WEIGHTS > ROWS * N ? WEIGHTS : ROWS * N };
    float *d = (float *)on_gpu(NULL, MOST * 4), *got = (float *)malloc(MOST * 4);
    const tegroup_tensor rows_x = tensor_of(values_on_gpu(x[0], ROWS * K, dtype), dtype, ROWS, K, 0, rows, NULL, NULL),
                         rows_dy = tensor_of(values_on_gpu(dy[0], ROWS * N, dtype), dtype, ROWS, N, 0, rows, NULL, NULL),
                         rows_y = tensor_of(d, TEGROUP_DTYPE_F32, ROWS, N, 0, rows, NULL, NULL),
                         lies_x = tensor_of(values_on_gpu(x_t[0], ROWS * K, dtype), dtype, GROUPS * K, ROWS, K * ROWS, k, rows, first),
                         lies_dy = tensor_of(values_on_gpu(dy_t[0], ROWS * N, dtype), dtype, GROUPS * N, ROWS, N * ROWS, n, rows, first),
                         lies_y = tensor_of(d, TEGROUP_DTYPE_F32, GROUPS * N, ROWS, N * ROWS, n, rows, first),
                         each_w = tensor_of(values_on_gpu(w[0][0], WEIGHTS, dtype), dtype, GROUPS * N, K, 0, n, NULL, NULL),
                         each_w_t = tensor_of(values_on_gpu(w_t[0][0], WEIGHTS, dtype), dtype, GROUPS * K, N, 0, k, NULL, NULL),
                         each_dw = tensor_of(d, TEGROUP_DTYPE_F32, GROUPS * N, K, 0, n, NULL, NULL), each_dw_t = tensor_of(d, TEGROUP_DTYPE_F32, GROUPS * K, N, 0, k, NULL, NULL);
    const struct { tegroup_op op; tegroup_tensor a, b, d; } ways[] = {{TEGROUP_OP_DGRAD, lies_dy, rows_x, each_dw}, {TEGROUP_OP_FORWARD, lies_dy, lies_x, each_dw},
        {TEGROUP_OP_DGRAD, lies_x, rows_dy, each_dw_t}, {TEGROUP_OP_WGRAD, lies_x, each_w_t, rows_y}, {TEGROUP_OP_DGRAD, each_w, lies_x, lies_y}};
    for (int way = 0; way < 5; way++) {
        tegroup_gemm_desc desc;
        tegroup_plan plan;
        tegroup_error error;
        memset(&desc, 0, sizeof desc);
        desc.struct_size = sizeof desc;
        desc.op = ways[way].op;
        desc.space = TEGROUP_SPACE_DEVICE;
        desc.a = ways[way].a;
        desc.b = ways[way].b;
        desc.d = ways[way].d;
        desc.options.backend = TEGROUP_BACKEND_PORTABLE;
        const tegroup_status planned = tegroup_plan_make(&desc, NULL, &plan, &error);
        if (planned != TEGROUP_OK) fprintf(stderr, "way %d: %s %s\n", way, error.field, error.rule);
        ASSERT_EQ(planned, TEGROUP_OK);
        MUST(cudaMemset(d, 0xff, MOST * 4));
        ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
        MUST(cudaMemcpy(got, d, MOST * 4, cudaMemcpyDeviceToHost));
        for (int g = 0; g < GROUPS; g++)
            for (int i = 0; i < N; i++)
                for (int j = 0; j < K && way < 3; j++) {
                    float want = 0;
                    for (int64_t row = start[g]; row < start[g] + counts[g]; row++) want += dy[row][i] * x[row][j];
                    ASSERT_EQ(got[way < 2 ? (g * N + i) * K + j : (g * K + j) * N + i], want);
                }
        for (int g = 0; g < GROUPS && way >= 3; g++)
            for (int64_t row = start[g]; row < start[g] + counts[g]; row++)
                for (int i = 0; i < N; i++) {
                    float want = 0;
                    for (int j = 0; j < K; j++) want += x[row][j] * w[g][i][j];
                    ASSERT_EQ(got[way == 3 ? row * N + i : i * ROWS + row], want);
                }
    }
    for (int i = 0; i < kept_count; i++) MUST(cudaFree(kept[i]));
    free(got);
}

TEST(transposed_gpu, f32) {
    if (portable_here()) in_type(TEGROUP_DTYPE_F32);
}
TEST(transposed_gpu, bf16) {
    if (portable_here()) in_type(TEGROUP_DTYPE_BF16);
}

TEST_MAIN()
