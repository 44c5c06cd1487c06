/* nvcc -std=c++17 -O3 -DTEGROUP_NO_CUBLASLT -DTEGROUP_NO_ACTIVATION -DTEGROUP_NO_MOE -DTEGROUP_NO_F16 \
 *   -gencode arch=compute_90a,code=sm_90a -I. tests/bench/bench_decoded.cu -o bench_decoded */

/* Products of quantised operands on SM90 or PORTABLE beside its product of what they mean in BF16: the shapes of
 * tests/bench/shapes.json, with groups as 1 / rank^0.8 shares rows; weights with codes in order and interleaved.
 * Contestants take turns in random order, 256 MB are read before each (L2 is cold), medians of 15 rounds of whole calls. The results are compared first, bit for bit.
 * PORTABLE has another contestant, planned for one row: it decodes weights in registers, or operands on the way to
 * shared memory. Block FP8 is 1x128 times 128x128 (wgrad: 1x128 twice); its bits are compared between both plans. */
#include <stdlib.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int code_ = (int)(call);                                                                                       \
        if (code_ != 0) {                                                                                              \
            fprintf(stderr, "%s:%d: code %d: %s %s\n", __FILE__, __LINE__, code_, error.field ? error.field : "",      \
                    error.rule ? error.rule : "");                                                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
static tegroup_error error;

/* Of either sign, up to 2, as BF16. */
static __global__ void fill(uint16_t *x, int64_t count) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        x[i] = (uint16_t)(((h ^ h >> 13) & 0x81ffu) | 0x3e00u);
    }
}
static __global__ void count_other(const uint16_t *x, const uint16_t *y, int64_t count, unsigned long long *other) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x)
        if (x[i] != y[i]) atomicAdd(other, 1ull);
}

static std::mt19937 random_order(1);
static std::vector<void *> held;
static void *device(size_t bytes) {
    void *p;
    MUST(cudaMalloc(&p, bytes + 256));
    held.push_back(p);
    return p;
}

struct shape { const char *name; int32_t groups; int64_t rows, n, k; };
struct format {
    const char *name;
    tegroup_scaling scaling;
    tegroup_dtype dtype;
    tegroup_scale_preset rule;
    bool both;               /* operands are quantised, else the weights alone */
    tegroup_scaling weights; /* theirs, with scales of F32; UNSET: as of the other operand */
    bool interleaved;        /* their codes */
};

/* A BF16 operand quantised in the copy that the op reads, a dgrad's weights transposed, and `plain` made what that means. */
static tegroup_tensor quantised_of(tegroup_tensor *plain, const format &f, tegroup_scaling scaling, bool columns,
                                   bool transposed) {
    tegroup_tensor q = *plain;
    tegroup_layout layout;
    q.dtype = f.dtype;
    q.scaling = scaling;
    if (transposed) q.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    q.data = NULL;
    MUST(tegroup_tensor_layout(&q, columns ? TEGROUP_COPIES_COLUMNWISE : TEGROUP_COPIES_ROWWISE, &layout, &error));
    void **const buffers[] = {&q.data, &q.scale_inv, &q.columnwise_data, &q.columnwise_scale_inv};
    for (int i = 0; i < 4; i++)
        if (layout.items[i].bytes > 0) *buffers[i] = device(layout.items[i].bytes);
    tegroup_quantize_desc to = {sizeof to};
    to.space = TEGROUP_SPACE_DEVICE;
    to.input = *plain;
    to.output = q;
    to.rule = tegroup_scale_rule_of(f.rule);
    MUST(tegroup_quantize(&to, NULL, &error));
    tegroup_dequantize_desc back = {sizeof back};
    back.space = TEGROUP_SPACE_DEVICE;
    back.input = q;
    back.columnwise = columns;
    back.output = *plain;
    MUST(tegroup_dequantize(&back, NULL, &error));
    if (!f.interleaved || plain->shape.row_sizes.encoding) return q;
    tegroup_code_convert_desc convert = {sizeof convert, TEGROUP_SPACE_DEVICE, columns, q, q};
    convert.to.code_order = q.code_order = TEGROUP_CODES_INTERLEAVED;
    MUST(tegroup_code_convert(&convert, NULL, &error));
    return q;
}

static void compare(tegroup_backend backend, const shape &s, const format &f, tegroup_op op,
                    const std::vector<int64_t> &counts, const void *flush, size_t flush_bytes) {
    const int contestants = backend == TEGROUP_BACKEND_PORTABLE ? 3 : 2;
    const bool wgrad = op == TEGROUP_OP_WGRAD;
    const int64_t a_cols = op == TEGROUP_OP_FORWARD ? s.k : s.n, d_cols = op == TEGROUP_OP_FORWARD ? s.n : s.k, d_count = wgrad ? s.groups * s.n * s.k : s.rows * d_cols;
    void *sizes = device(s.groups * 8);
    MUST(cudaMemcpy(sizes, counts.data(), s.groups * 8, cudaMemcpyHostToDevice));
    tegroup_shape rows = tegroup_shape_of(s.groups, s.rows, s.k, tegroup_sizes_of(sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    tegroup_layout layout;
    MUST(tegroup_snapshot_layout(&rows, &layout, &error));
    MUST(tegroup_shape_prepare(&rows, device(layout.total_bytes), layout.total_bytes, NULL, &error));
    tegroup_gemm_desc desc[3] = {{sizeof desc[0], op, TEGROUP_SPACE_DEVICE}};
    desc[0].a = tegroup_tensor_of(rows, a_cols, TEGROUP_DTYPE_BF16, device(s.rows * a_cols * 2));
    desc[0].b = wgrad ? tegroup_tensor_of(rows, s.k, TEGROUP_DTYPE_BF16, device(s.rows * s.k * 2)) : tegroup_tensor_uniform(s.groups, s.n, s.k, TEGROUP_DTYPE_BF16, device(s.groups * s.n * s.k * 2));
    desc[0].d = wgrad ? tegroup_tensor_uniform(s.groups, s.n, s.k, TEGROUP_DTYPE_BF16, NULL) : tegroup_tensor_of(rows, d_cols, TEGROUP_DTYPE_BF16, NULL);
    desc[0].options.backend = backend;
    desc[0].options.expected_rows = s.rows;
    desc[0].options.expected_rows_max = *std::max_element(counts.begin(), counts.end());
    fill<<<1024, 256>>>((uint16_t *)desc[0].a.data, s.rows * a_cols);
    fill<<<1024, 256>>>((uint16_t *)desc[0].b.data, wgrad ? s.rows * s.k : s.groups * s.n * s.k);
    desc[1] = desc[0];
    if (f.both) desc[1].a = quantised_of(&desc[0].a, f, f.scaling, wgrad, false);
    desc[1].b = quantised_of(&desc[0].b, f, f.weights && !wgrad ? f.weights : f.scaling, op != TEGROUP_OP_FORWARD,
                             op == TEGROUP_OP_DGRAD);
    desc[2] = desc[1];
    desc[2].options.expected_rows = 1;
    desc[2].options.expected_rows_max = 1;
    tegroup_plan plan[3];
    std::vector<float> times[3];
    cudaEvent_t begin, end;
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int i = 0; i < contestants; i++) {
        desc[i].d.data = device(d_count * 2);
        MUST(cudaMemset(desc[i].d.data, 0xff, d_count * 2));
        MUST(tegroup_plan_make(&desc[i], NULL, &plan[i], &error));
        desc[i].options.workspace_bytes = plan[i].workspace_bytes;
        if (plan[i].workspace_bytes > 0) desc[i].options.workspace = device(plan[i].workspace_bytes);
        MUST(tegroup_gemm(&plan[i], &desc[i], NULL, &error));
    }
    unsigned long long *other = (unsigned long long *)device(8), differ;
    MUST(cudaMemset(other, 0, 8));
    /* Sums that scales of F32 multiply are not those of BF16. */
    const uint16_t *const same = (const uint16_t *)desc[f.weights ? contestants - 1 : 0].d.data;
    for (int i = 1; i < contestants; i++)
        count_other<<<1024, 256>>>(same, (const uint16_t *)desc[i].d.data, d_count, other);
    MUST(cudaMemcpy(&differ, other, 8, cudaMemcpyDeviceToHost));
    int order[3] = {0, 1, 2};
    for (int turn = 0; turn < 15 * contestants; turn++) {
        if (turn % contestants == 0) std::shuffle(order, order + contestants, random_order);
        const int i = order[turn % contestants];
        float ms;
        MUST(tegroup_impl_flush(flush, flush_bytes, NULL));
        MUST(cudaEventRecord(begin));
        MUST(tegroup_gemm(&plan[i], &desc[i], NULL, &error));
        MUST(cudaEventRecord(end));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        times[i].push_back(ms * 1000);
    }
    for (int i = 0; i < contestants; i++)
        std::nth_element(times[i].begin(), times[i].begin() + times[i].size() / 2, times[i].end());
    const float bf16 = times[0][times[0].size() / 2], decoded = times[1][times[1].size() / 2];
    static const char *const ops[] = {"", "forward", "dgrad", "wgrad"};
    printf("| %s | %s | %s | %.0f | %.0f | %.2f | %.0f |", s.name, ops[op], f.name, bf16, decoded, bf16 / decoded,
           plan[1].workspace_bytes / 1e6);
    if (contestants == 3) printf(" %.0f |", times[2][times[2].size() / 2]);
    printf("%s\n", differ ? " OTHER BITS" : "");
    fflush(stdout);
    for (void *p : held) MUST(cudaFree(p));
    held.clear();
}

/* bench_decoded [portable] [OP [SHAPE [FORMAT]]]: of SM90 or PORTABLE, of all operations (0) or of one, 1 forward to
 * 3 wgrad; of what has these in its name */
int main(int argc, char **argv) {
    static const shape shapes[] = {{"mixtral fc1", 8, 16384, 28672, 4096}, {"mixtral fc2", 8, 16384, 4096, 14336}, {"dsv3 ep32 fc1", 8, 32768, 4096, 7168},
                                   {"dsv3 ep32 fc2", 8, 32768, 7168, 2048}, {"dsv3 ep8 fc1", 32, 32768, 4096, 7168}, {"dsv3 ep8 fc2", 32, 32768, 7168, 2048},
                                   {"qwen3-30b fc1", 128, 65536, 1536, 2048}, {"gpt-oss fc1", 32, 16384, 5760, 2880}, {"dsv3 ep8 decode fc1", 32, 256, 4096, 7168},
                                   {"qwen3-30b decode fc1", 128, 512, 1536, 2048}, {"gpt-oss decode fc1", 32, 256, 5760, 2880},
                                   {"gpt-oss, 64 rows, fc2", 32, 2048, 2880, 2880},
                                   {"gpt-oss decode fc2", 32, 256, 2880, 2880},
                                   {"kimi decode fc1", 48, 384, 4096, 7168},
                                   {"one row fc1", 32, 32, 5760, 2880},
                                   {"gpt-oss 32 rows fc1", 32, 1024, 5760, 2880},
                                   {"qwen3-30b 32 rows fc1", 128, 4096, 1536, 2048},
                                   {"qwen3-30b 64 rows fc1", 128, 8192, 1536, 2048}};
    static const format formats[] = {{"MXFP8", TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALE_TE_MXFP8, true},
                                     {"NVFP4", TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_SCALE_TE_NVFP4, true},
                                     {"MXFP8 weights", TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALE_TE_MXFP8, false},
                                     {"NVFP4 weights", TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_SCALE_TE_NVFP4, false},
                                     {"MXFP4 weights", TEGROUP_SCALING_MXFP4, TEGROUP_DTYPE_F4E2M1,
                                      TEGROUP_SCALE_OCP_MX, false},
                                     {"MXFP8 interleaved", TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E4M3,
                                      TEGROUP_SCALE_TE_MXFP8, false, TEGROUP_SCALING_NONE, true},
                                     {"NVFP4 interleaved", TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F4E2M1,
                                      TEGROUP_SCALE_TE_NVFP4, false, TEGROUP_SCALING_NONE, true},
                                     {"MXFP4 interleaved", TEGROUP_SCALING_MXFP4, TEGROUP_DTYPE_F4E2M1,
                                      TEGROUP_SCALE_OCP_MX, false, TEGROUP_SCALING_NONE, true},
                                     {"MXFP8 both, interleaved", TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E4M3,
                                      TEGROUP_SCALE_TE_MXFP8, true, TEGROUP_SCALING_NONE, true},
                                     {"NVFP4 both, interleaved", TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F4E2M1,
                                      TEGROUP_SCALE_TE_NVFP4, true, TEGROUP_SCALING_NONE, true},
                                     {"block FP8", TEGROUP_SCALING_BLOCK_1X128, TEGROUP_DTYPE_F8E4M3,
                                      TEGROUP_SCALE_TE_BLOCK, true, TEGROUP_SCALING_BLOCK_128X128},
                                     {"block FP8 weights", TEGROUP_SCALING_BLOCK_128X128, TEGROUP_DTYPE_F8E4M3,
                                      TEGROUP_SCALE_TE_BLOCK, false, TEGROUP_SCALING_BLOCK_128X128}};
    const size_t flush_bytes = (size_t)256 << 20;
    void *flush;
    MUST(cudaMalloc(&flush, flush_bytes));
    const bool portable = argc > 1 && strcmp(argv[1], "portable") == 0;
    if (portable) argc--, argv++;
    printf("| shape | op | operands | BF16, us | decoded, us | ratio | workspace, MB |%s\n",
           portable ? " for one row, us |" : "");
    printf("|---|---|---|---:|---:|---:|---:|%s\n", portable ? "---:|" : "");
    for (const shape &s : shapes) {
        std::vector<int64_t> counts(s.groups);
        double sum = 0;
        int64_t left = s.rows;
        for (int32_t g = 0; g < s.groups; g++) sum += pow(1 + g * 37 % s.groups, -0.8);
        for (int32_t g = 0; g < s.groups; g++) left -= counts[g] = (int64_t)(pow(1 + g * 37 % s.groups, -0.8) / sum * s.rows);
        counts[0] += left;
        for (const format &f : formats)
            for (int op = TEGROUP_OP_FORWARD; op <= (f.both ? TEGROUP_OP_WGRAD : TEGROUP_OP_DGRAD); op++)
                if ((portable ? !f.interleaved : !f.weights) && (argc < 2 || atoi(argv[1]) == 0 || atoi(argv[1]) == op)
                    && (argc < 3 || strstr(s.name, argv[2])) && (argc < 4 || strstr(f.name, argv[3])))
                    compare(portable ? TEGROUP_BACKEND_PORTABLE : TEGROUP_BACKEND_SM90, s, f, (tegroup_op)op, counts,
                            flush, flush_bytes);
    }
    return 0;
}
