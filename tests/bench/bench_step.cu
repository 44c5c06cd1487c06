/* nvcc -std=c++17 -O3 -DTEGROUP_NO_CUBLASLT -DTEGROUP_NO_MOE -DTEGROUP_NO_F16 -gencode arch=compute_90a,code=sm_90a -I. tests/bench/bench_step.cu -o bench_step */

/* A training step of a grouped MLP in block FP8 beside the same in BF16: forward, dgrad and wgrad, SwiGLU, row probabilities and
 * their gradient, main_grad in FP32. In FP8 rows are E4M3 in 1x128 blocks and weights E4M3 in 128x128 ones; every quantise counts
 * but that of the weights, which are kept: that of X and of dY, one call each for both copies, and those within the MLP. "Mixed"
 * has weight gradients of BF16: rows are quantised rowwise, and wgrad reads them as they were (TEGROUP_COLUMNWISE_BF16). In BF16
 * activations are in epilogues where AUTO has them.
 *
 * Arguments: a layer's name for that one alone; tensor, row, mxfp8, mxfp4 or nvfp4: operands in that scaling, weights, too, in
 * place of blocks; clamped or limited: SwiGLU of that kind; pairs: gates and ups alternate; accumulate: main_grad is added to;
 * e5m2: gradients are of that type; nodes: each launch by itself, as a captured step has them.
 * Calls take turns in random order, 256 MB are written before each, medians of ROUNDS. Results are held against those of BF16: the
 * larger distance, relative to the size, is the last column, and must be below 0.1, of FP4 0.4. Operands are random normal numbers. */
#include <math.h>
#include <stdlib.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include <algorithm>
#include <cxxabi.h>
#include <string>
#include <vector>
#include "bench.h"

enum { X, DY, FORWARD, DGRAD, WGRAD, STEP, WORKS, ROUNDS = 11 };
enum { IN_BF16, IN_FP8, MIXED, KINDS };
static const char *const kinds[KINDS] = {"BF16", "FP8", "mixed"};
static const char *const works[WORKS] = {"quantise X", "quantise dY", "forward", "dgrad", "wgrad", "step"};

/* rows: tokens times experts a token. Widths and rows are those of tests/bench/shapes.json; dsv3's also with other numbers of experts. */
static const struct layer { const char *name; int groups; int64_t rows, d, h; } layers[] = {
    {"dsv3 2 experts", 2, 32768, 7168, 2048}, {"dsv3 8 experts", 8, 32768, 7168, 2048}, {"dsv3 16 experts", 16, 32768, 7168, 2048},
    {"dsv3 32 experts", 32, 32768, 7168, 2048}, {"mixtral", 8, 16384, 4096, 14336}, {"qwen3-30b", 128, 65536, 2048, 768},
    {"gpt-oss", 32, 16384, 2880, 2880}, {"kimi-k2", 48, 32768, 7168, 2048}};

/* sums[0] += |a - b|^2, sums[1] += |b|^2; NaN anywhere shows. */
static __global__ void distance(const void *a, const void *b, bool wide, size_t count, double *sums) {
    double off = 0, size = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        const float x = wide ? ((const float *)a)[i] : __uint_as_float((unsigned)((const uint16_t *)a)[i] << 16),
                    y = wide ? ((const float *)b)[i] : __uint_as_float((unsigned)((const uint16_t *)b)[i] << 16);
        off += (double)(x - y) * (x - y), size += (double)y * y;
    }
    atomicAdd(&sums[0], off), atomicAdd(&sums[1], size);
}

/* How operands are quantised. */
static const struct format { const char *name; tegroup_dtype code; tegroup_scaling rows, weights; tegroup_scale_preset rule; } formats[] = {
    {"block", TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128, TEGROUP_SCALE_TE_BLOCK},
    {"tensor", TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_TENSOR, TEGROUP_SCALE_TE_CURRENT},
    {"row", TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW, TEGROUP_SCALE_FBGEMM_ROW},
    {"mxfp8", TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALING_MXFP8, TEGROUP_SCALING_MXFP8, TEGROUP_SCALE_TE_MXFP8},
    {"mxfp4", TEGROUP_DTYPE_F4E2M1, TEGROUP_SCALING_MXFP4, TEGROUP_SCALING_MXFP4, TEGROUP_SCALE_OCP_MX},
    {"nvfp4", TEGROUP_DTYPE_F4E2M1, TEGROUP_SCALING_NVFP4, TEGROUP_SCALING_NVFP4, TEGROUP_SCALE_TE_NVFP4}};
static format chosen = formats[0];

/* A tensor as it is quantised, with room for both copies; or rowwise, with these values beside it. */
static tegroup_tensor room_for(tegroup_tensor t, tegroup_dtype dtype, tegroup_scaling scaling, void *values = NULL) {
    tegroup_layout layout;
    t.dtype = dtype, t.scaling = scaling, t.data = NULL;
    t.columnwise_order = values ? TEGROUP_COLUMNWISE_BF16 : TEGROUP_COLUMNWISE_TRANSPOSED;
    MUST(tegroup_tensor_layout(&t, TEGROUP_COPIES_BOTH, &layout, &error));
    void **const buffers[] = {&t.data, &t.scale_inv, &t.columnwise_data, &t.columnwise_scale_inv};
    for (int i = 0; i < (values ? 2 : 4); i++) *buffers[i] = device((int64_t)layout.items[i].bytes);
    if (values) t.columnwise_data = values;
    if (scaling == TEGROUP_SCALING_TENSOR || scaling == TEGROUP_SCALING_NVFP4) t.amax = (float *)device(4 * t.shape.groups);
    if (scaling == TEGROUP_SCALING_NVFP4) t.global_scale_inv = (float *)device(4 * t.shape.groups);
    return t;
}
static tegroup_quantize_desc quantise_of(const tegroup_tensor &from, const tegroup_tensor &to) {
    tegroup_quantize_desc q;
    memset(&q, 0, sizeof q);
    q.struct_size = sizeof q;
    q.space = TEGROUP_SPACE_DEVICE;
    q.input = from, q.output = to;
    if (to.columnwise_order == TEGROUP_COLUMNWISE_BF16) q.output.columnwise_data = NULL; /* which is `from` */
    q.rule = tegroup_scale_rule_of(chosen.rule);
    return q;
}

/* A step in one precision. */
struct contestant {
    tegroup_mlp_desc mlp;
    tegroup_mlp_plan plan;
    tegroup_quantize_desc quantise[2];
    bool quantises;
    void run(int work, cudaStream_t stream) {
        for (int i = 0; i < 2; i++)
            if (quantises && (work == X + i || work == STEP)) MUST(tegroup_quantize(&quantise[i], stream, &error));
        if (work == FORWARD || work == STEP) MUST(tegroup_mlp_forward(&plan, &mlp, stream, &error));
        if (work == DGRAD || work == STEP) MUST(tegroup_mlp_dgrad(&plan, &mlp, stream, &error));
        if (work == WGRAD || work == STEP) MUST(tegroup_mlp_wgrad(&plan, &mlp, stream, &error));
    }
};

/* Each launch of a captured step, timed by itself. */
static void print_nodes(contestant &of, const char *name) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaEvent_t begin, end;
    size_t count = 0;
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    of.run(STEP, stream);
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphGetNodes(graph, NULL, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    MUST(cudaGraphGetNodes(graph, nodes.data(), &count)); /* in the order of the stream */
    for (size_t i = 0; i < count; i++) {
        cudaKernelNodeParams p;
        const char *mangled = NULL;
        MUST(cudaGraphKernelNodeGetParams(nodes[i], &p));
        MUST(cudaFuncGetName(&mangled, p.func));
        std::vector<float> times;
        for (int round = 0; round < 7; round++) {
            float ms;
            MUST(cudaEventRecord(begin, stream));
            MUST(cudaLaunchKernel(p.func, p.gridDim, p.blockDim, p.kernelParams, p.sharedMemBytes, stream));
            MUST(cudaEventRecord(end, stream));
            MUST(cudaEventSynchronize(end));
            MUST(cudaEventElapsedTime(&ms, begin, end));
            times.push_back(ms * 1e3f);
        }
        std::sort(times.begin(), times.end());
        char *plain = abi::__cxa_demangle(mangled, NULL, NULL, NULL);
        std::string said = plain ? plain : mangled;
        for (const char *without : {"tegroup_impl_", "void ", "(anonymous namespace)::"})
            for (size_t at; (at = said.find(without)) != std::string::npos;) said.erase(at, strlen(without));
        printf("    %s %9.1f us  %5u blocks  %s\n", name, times[3], p.gridDim.x * p.gridDim.y, said.substr(0, said.find("(tegroup")).substr(0, 90).c_str());
        free(plain);
    }
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
}

int main(int count_of_arguments, char **arguments) {
    int accumulate = 0, e5m2 = 0, nodes = 0, pairs = 0;
    tegroup_activation activation = TEGROUP_ACTIVATION_SWIGLU;
    const char *only = NULL;
    for (int i = 1; i < count_of_arguments; i++) {
        accumulate |= strcmp(arguments[i], "accumulate") == 0;
        e5m2 |= strcmp(arguments[i], "e5m2") == 0;
        nodes |= strcmp(arguments[i], "nodes") == 0;
        pairs |= strcmp(arguments[i], "pairs") == 0;
        if (strcmp(arguments[i], "clamped") == 0) activation = TEGROUP_ACTIVATION_SWIGLU_CLAMPED;
        if (strcmp(arguments[i], "limited") == 0) activation = TEGROUP_ACTIVATION_SWIGLU_LIMITED;
        for (const format &f : formats) chosen = strcmp(arguments[i], f.name) == 0 ? f : chosen;
        for (const layer &l : layers) only = strcmp(arguments[i], l.name) == 0 ? l.name : only;
    }
    const tegroup_dtype bf16 = TEGROUP_DTYPE_BF16, f32 = TEGROUP_DTYPE_F32, code = chosen.code, gradient = e5m2 ? TEGROUP_DTYPE_F8E5M2 : code;
    const tegroup_scaling row = chosen.rows, square = chosen.weights;
    const double bound = code == TEGROUP_DTYPE_F4E2M1 ? 0.4 : 0.1;
    char *flush;
    double *sums, mean[KINDS] = {0};
    int count = 0, wrong = 0;
    cudaEvent_t begin, end;
    MUST(cudaMalloc((void **)&flush, (size_t)256 << 20));
    MUST(cudaMalloc((void **)&sums, 2 * sizeof *sums));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    printf("%-16s %-7s %-12s %10s %10s %7s %10s %7s %9s\n", "layer", "split", "work", "BF16 us", "FP8 us", "ratio", "mixed us", "ratio", "distance");
    for (const layer &l : layers)
        for (int uneven = 0; uneven < 2 && (!only || only == l.name); uneven++) {
            std::vector<int64_t> sizes((size_t)l.groups, l.rows / l.groups);
            sizes[0] += l.rows % l.groups;
            if (uneven) { /* weights 1 / rank^0.8 in no order, the rest to group 0 */
                double sum = 0;
                int64_t left = l.rows;
                for (int g = 0; g < l.groups; g++) sum += pow(1 + g * 7 % l.groups, -0.8);
                for (int g = 0; g < l.groups; g++) left -= sizes[(size_t)g] = (int64_t)((double)l.rows * pow(1 + g * 7 % l.groups, -0.8) / sum);
                sizes[0] += left;
            }
            void *counts = device((int64_t)sizeof(int64_t) * l.groups);
            MUST(cudaMemcpy(counts, sizes.data(), sizeof(int64_t) * (size_t)l.groups, cudaMemcpyHostToDevice));
            tegroup_shape rows = tegroup_shape_of(l.groups, l.rows, l.d, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
            tegroup_layout layout;
            MUST(tegroup_snapshot_layout(&rows, &layout, &error));
            MUST(tegroup_shape_prepare(&rows, device((int64_t)layout.total_bytes), layout.total_bytes, 0, &error));
            auto routed = [&](int64_t cols, tegroup_dtype dtype, void *data) { return tegroup_tensor_of(rows, cols, dtype, data); };
            auto each = [&](int64_t r, int64_t cols, tegroup_dtype dtype, void *data) { return tegroup_tensor_uniform(l.groups, r, cols, dtype, data); };
            contestant of[KINDS];
            std::vector<float> scales((size_t)l.rows);
            for (int64_t i = 0; i < l.rows; i++) scales[(size_t)i] = (float)(1 + i % 97) / 100;
            void *row_scale = device(4 * l.rows);
            MUST(cudaMemcpy(row_scale, scales.data(), 4 * (size_t)l.rows, cudaMemcpyHostToDevice));
            for (int kind = 0; kind < KINDS; kind++) {
                contestant &c = of[kind];
                tegroup_mlp_desc &m = c.mlp;
                memset(&c, 0, sizeof c);
                c.quantises = kind != IN_BF16;
                m.struct_size = sizeof m;
                m.space = TEGROUP_SPACE_DEVICE;
                m.activation = activation;
                m.interleaved = pairs;
                m.row_scale = row_scale;
                m.row_scale_dtype = f32;
                m.accumulate = accumulate;
                m.options.expected_rows = l.rows;
                m.options.expected_rows_max = *std::max_element(sizes.begin(), sizes.end());
                m.out = routed(l.d, bf16, device(l.rows * l.d * 2));
                m.dgrad_out = routed(l.d, bf16, device(l.rows * l.d * 2));
                m.preactivation = routed(2 * l.h, bf16, device(l.rows * l.h * 4));
                m.grad_row_scale = tegroup_tensor_of(rows, 1, f32, device(l.rows * 4));
                m.fc1.main_grad = each(2 * l.h, l.d, f32, device(l.groups * 2 * l.h * l.d * 4));
                m.fc2.main_grad = each(l.d, l.h, f32, device(l.groups * l.h * l.d * 4));
                MUST(cudaMemset(m.fc1.main_grad.data, 0, (size_t)(l.groups * 2 * l.h * l.d * 4)));
                MUST(cudaMemset(m.fc2.main_grad.data, 0, (size_t)(l.groups * l.h * l.d * 4)));
                if (kind == IN_BF16) {
                    m.input = routed(l.d, bf16, normal(l.rows * l.d, 1));
                    m.grad_output = routed(l.d, bf16, normal(l.rows * l.d, 1));
                    m.fc1.weight = each(2 * l.h, l.d, bf16, normal(l.groups * 2 * l.h * l.d, 1 / sqrtf((float)l.d)));
                    m.fc2.weight = each(l.d, l.h, bf16, normal(l.groups * l.h * l.d, 1 / sqrtf((float)l.h)));
                    m.activated = routed(l.h, bf16, device(l.rows * l.h * 2));
                    m.grad_preactivation = routed(2 * l.h, bf16, device(l.rows * l.h * 4));
                } else {
                    const tegroup_mlp_desc &b = of[0].mlp;
                    const bool mixed = kind == MIXED;
                    m.activated_rule = m.grad_rule = tegroup_scale_rule_of(chosen.rule);
                    m.input = room_for(b.input, code, row, mixed ? b.input.data : NULL);
                    m.grad_output = room_for(b.grad_output, gradient, row, mixed ? b.grad_output.data : NULL);
                    m.activated = room_for(b.activated, code, row, mixed ? device(l.rows * l.h * 2) : NULL);
                    m.grad_preactivation = room_for(b.grad_preactivation, gradient, row, mixed ? device(l.rows * l.h * 4) : NULL);
                    c.quantise[0] = quantise_of(b.input, m.input);
                    c.quantise[1] = quantise_of(b.grad_output, m.grad_output);
                    m.fc1.weight = room_for(b.fc1.weight, code, square);
                    m.fc2.weight = room_for(b.fc2.weight, code, square);
                    const tegroup_quantize_desc weights[2] = {quantise_of(b.fc1.weight, m.fc1.weight), quantise_of(b.fc2.weight, m.fc2.weight)};
                    for (const tegroup_quantize_desc &w : weights) MUST(tegroup_quantize(&w, 0, &error));
                }
                MUST(tegroup_mlp_plan_make(&m, nullptr, &c.plan, &error));
                m.options.workspace_bytes = std::max(c.plan.workspace_bytes, c.plan.wgrad_workspace_bytes);
                m.options.workspace = device((int64_t)m.options.workspace_bytes);
                c.run(STEP, 0);
            }
            double worst = 0;
            auto compare = [&](const tegroup_tensor &a, const tegroup_tensor &b, int64_t numbers) {
                double both[2];
                MUST(cudaMemset(sums, 0, sizeof both));
                distance<<<1024, 256>>>(a.data, b.data, a.dtype == f32, (size_t)numbers, sums);
                MUST(cudaMemcpy(both, sums, sizeof both, cudaMemcpyDeviceToHost));
                const double off = sqrt(both[0] / both[1]);
                if (!(off <= worst)) worst = off;
            };
            for (int kind = IN_FP8; kind < KINDS; kind++) {
                const tegroup_mlp_desc &a = of[kind].mlp, &b = of[0].mlp;
                compare(a.out, b.out, l.rows * l.d);
                compare(a.dgrad_out, b.dgrad_out, l.rows * l.d);
                compare(a.grad_row_scale, b.grad_row_scale, l.rows);
                compare(a.fc1.main_grad, b.fc1.main_grad, l.groups * 2 * l.h * l.d);
                compare(a.fc2.main_grad, b.fc2.main_grad, l.groups * l.h * l.d);
            }
            std::vector<float> times[KINDS * WORKS];
            for (int round = -1; round < ROUNDS; round++) {
                int order[KINDS * WORKS];
                for (int i = 0; i < KINDS * WORKS; i++) order[i] = i;
                for (int i = KINDS * WORKS - 1; i > 0; i--) std::swap(order[i], order[rand() % (i + 1)]);
                for (int which : order) {
                    float ms;
                    if (which % KINDS == IN_BF16 && which / KINDS <= DY) continue;
                    MUST(cudaMemsetAsync(flush, round, (size_t)256 << 20));
                    MUST(cudaEventRecord(begin));
                    of[which % KINDS].run(which / KINDS, 0);
                    MUST(cudaEventRecord(end));
                    MUST(cudaEventSynchronize(end));
                    MUST(cudaEventElapsedTime(&ms, begin, end));
                    if (round >= 0) times[which].push_back(ms * 1e3f);
                }
            }
            for (auto &t : times) std::sort(t.begin(), t.end());
            for (int work = 0; work < WORKS; work++) {
                double us[KINDS];
                for (int kind = 0; kind < KINDS; kind++) us[kind] = kind == IN_BF16 && work <= DY ? 0 : (double)times[KINDS * work + kind][ROUNDS / 2];
                printf("%-16s %-7s %-12s", l.name, uneven ? "uneven" : "even", works[work]);
                if (work <= DY) printf(" %10s %10.1f %7s %10.1f\n", "", us[IN_FP8], "", us[MIXED]);
                else printf(" %10.1f %10.1f %7.3f %10.1f %7.3f", us[IN_BF16], us[IN_FP8], us[IN_BF16] / us[IN_FP8], us[MIXED], us[IN_BF16] / us[MIXED]);
                if (work == STEP) {
                    printf(" %9.4f%s", worst, worst < bound ? "" : "  WRONG"), count++;
                    for (int kind = IN_FP8; kind < KINDS; kind++) mean[kind] += log(us[IN_BF16] / us[kind]);
                }
                if (work > DY) printf("\n");
            }
            wrong += !(worst < bound);
            if (nodes)
                for (int kind = 0; kind < KINDS; kind++) print_nodes(of[kind], kinds[kind]);
            fflush(stdout);
            for (void *p : held) MUST(cudaFree(p));
            held.clear();
        }
    printf("geometric mean of steps: FP8 %.3f, mixed %.3f\n", exp(mean[IN_FP8] / count), exp(mean[MIXED] / count));
    return wrong != 0;
}
