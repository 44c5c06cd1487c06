/* nvcc -std=c++17 -O3 -DTEGROUP_NO_CUBLASLT -gencode arch=compute_90a,code=sm_90a -I. tests/bench/bench_mlp.cu -o bench_mlp -lcublas */

/* A grouped MLP with activations in epilogues, where AUTO has them, beside the same with kernels of their own: layers of public
 * models, BF16, SwiGLU, even groups and uneven ones, row probabilities and their gradient.
 *
 *   inference   forward that keeps neither preactivation nor activated
 *   forward     of training: it keeps preactivation, and activated is computed again
 *   gradient    what dgrad does without fc1's: fc2's dgrad, gradient of the activation, row sums, activated again; beside a dense
 *               GEMM of as many FLOPs by cuBLAS
 *   dgrad       all of it, fc1's dgrad too
 *   step        forward, dgrad, wgrad
 *
 * Arguments: interleaved; portable, whose epilogues AUTO leaves alone, and which must be there; a layer's name for that one alone.
 * Contestants take turns in random order, 256 MB are written before each, medians of ROUNDS; results must be equal bit for bit.
 * Operands are random normal numbers. */
#include <math.h>
#include <cublas_v2.h>
#include <stdlib.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include <algorithm>
#include <vector>
#include "bench.h"

enum { INFERENCE, FORWARD, GRADIENT, BACKWARD, STEP, WORKS, DENSE = 2 * WORKS, CONTESTANTS, ROUNDS = 15 };
static const char *const works[WORKS] = {"inference", "forward", "gradient", "dgrad", "step"};

/* rows: tokens times experts a token. */
static const struct layer { const char *name; int groups; int64_t rows, d, h; } layers[] = {
    {"7b fine-grained", 128, 196608, 1536, 256}, {"qwen3-30b", 128, 131072, 2048, 768}, {"dsv3 ep8", 32, 65536, 7168, 2048}, {"mixtral", 8, 16384, 4096, 14336},
    {"qwen3-30b decode", 128, 512, 2048, 768}, {"dsv3 ep32", 8, 32768, 7168, 2048}, {"qwen3-30b half", 128, 65536, 2048, 768}, {"gpt-oss", 32, 16384, 2880, 2880}, {"kimi-k2 ep8", 48, 32768, 7168, 2048}};

static __global__ void differ(const uint16_t *a, const uint16_t *b, size_t count, unsigned long long *found) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        if (a[i] != b[i]) atomicAdd(found, 1ull);
}


int main(int count_of_arguments, char **arguments) {
    int interleaved = 0, portable = 0; /* gate, up, gate, up ...; the backend for every GPU */
    const char *only = NULL;
    for (int i = 1; i < count_of_arguments; i++) {
        interleaved |= strcmp(arguments[i], "interleaved") == 0;
        portable |= strcmp(arguments[i], "portable") == 0;
        for (const layer &l : layers) only = strcmp(arguments[i], l.name) == 0 ? l.name : only;
    }
    char *flush;
    unsigned long long *found, differences;
    cudaEvent_t begin, end;
    MUST(cudaMalloc((void **)&flush, (size_t)256 << 20));
    MUST(cudaMalloc((void **)&found, sizeof *found));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    cublasHandle_t cublas;
    MUST(cublasCreate(&cublas));
    double mean[WORKS] = {0};
    int count = 0;
    printf("%-16s %-7s %-10s %10s %10s %7s\n", "layer", "split", "work", "unfused us", "fused us", "ratio");
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
            tegroup_mlp_desc base;
            memset(&base, 0, sizeof base);
            base.struct_size = sizeof base;
            base.space = TEGROUP_SPACE_DEVICE;
            void *counts = device((int64_t)sizeof(int64_t) * l.groups);
            MUST(cudaMemcpy(counts, sizes.data(), sizeof(int64_t) * (size_t)l.groups, cudaMemcpyHostToDevice));
            const tegroup_sizes each_size = tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
            tegroup_shape rows = tegroup_shape_of(l.groups, l.rows, l.d, each_size);
            tegroup_layout layout;
            MUST(tegroup_snapshot_layout(&rows, &layout, &error));
            MUST(tegroup_shape_prepare(&rows, device((int64_t)layout.total_bytes), layout.total_bytes, 0, &error));
            const tegroup_dtype bf16 = TEGROUP_DTYPE_BF16;
            auto routed = [&](int64_t cols, void *data) { return tegroup_tensor_of(rows, cols, bf16, data); };
            auto each = [&](int64_t r, int64_t cols, void *data) {
                return tegroup_tensor_uniform(l.groups, r, cols, bf16, data);
            };
            base.activation = TEGROUP_ACTIVATION_SWIGLU;
            base.interleaved = interleaved;
            if (portable) base.options.backend = TEGROUP_BACKEND_PORTABLE;
            base.fc1.weight = each(2 * l.h, l.d, normal(l.groups * 2 * l.h * l.d, 1 / sqrtf((float)l.d)));
            base.fc2.weight = each(l.d, l.h, normal(l.groups * l.h * l.d, 1 / sqrtf((float)l.h)));
            base.input = routed(l.d, normal(l.rows * l.d, 1));
            std::vector<float> scales((size_t)l.rows);
            for (int64_t i = 0; i < l.rows; i++) scales[(size_t)i] = (float)(1 + i % 97) / 100;
            base.row_scale = device(4 * l.rows);
            MUST(cudaMemcpy((void *)base.row_scale, scales.data(), 4 * (size_t)l.rows, cudaMemcpyHostToDevice));
            base.row_scale_dtype = TEGROUP_DTYPE_F32;
            base.options.expected_rows = l.rows;
            base.options.expected_rows_max = *std::max_element(sizes.begin(), sizes.end());
            base.out = routed(l.d, nullptr);
            tegroup_mlp_desc mlp[WORKS][2], way[2];
            tegroup_mlp_plan plan[WORKS][2];
            void *workspace = nullptr;
            size_t most = 0;
            for (int fused = 0; fused < 2; fused++) {
                tegroup_mlp_desc &w = way[fused];
                w = base;
                w.fusion = !fused ? TEGROUP_FUSION_NEVER : portable ? TEGROUP_FUSION_REQUIRED : TEGROUP_FUSION_AUTO;
                w.out.data = device(l.rows * l.d * 2);
                mlp[INFERENCE][fused] = w;
                w.preactivation = routed(2 * l.h, device(l.rows * l.h * 4));
                w.activated = routed(l.h, device(l.rows * l.h * 2));
                w.recompute = 1;
                w.grad_output = routed(l.d, fused ? way[0].grad_output.data : normal(l.rows * l.d, 1));
                w.grad_preactivation = routed(2 * l.h, device(l.rows * l.h * 4));
                w.grad_row_scale = tegroup_tensor_of(rows, 1, TEGROUP_DTYPE_F32, device(l.rows * 4));
                mlp[GRADIENT][fused] = w;
                memset(&mlp[GRADIENT][fused].out, 0, sizeof(tegroup_tensor));
                w.dgrad_out = routed(l.d, device(l.rows * l.d * 2));
                w.fc1.main_grad = each(2 * l.h, l.d, device(l.groups * 2 * l.h * l.d * 2));
                w.fc2.main_grad = each(l.d, l.h, device(l.groups * l.h * l.d * 2));
                mlp[FORWARD][fused] = mlp[BACKWARD][fused] = mlp[STEP][fused] = w;
                for (int work = 0; work < WORKS; work++) {
                    MUST(tegroup_mlp_plan_make(&mlp[work][fused], nullptr, &plan[work][fused], &error));
                    most = std::max(most, (size_t)std::max(plan[work][fused].workspace_bytes, plan[work][fused].wgrad_workspace_bytes));
                }
            }
            workspace = device((int64_t)most + 1);
            void *dense = device(l.rows * l.h * 2);
            std::vector<float> times[CONTESTANTS];
            auto run = [&](int which) {
                if (which == DENSE) { /* row-major [rows, d] x [d, h] */
                    const float one = 1, zero = 0;
                    MUST(cublasGemmEx(cublas, CUBLAS_OP_N, CUBLAS_OP_N, (int)l.h, (int)l.rows, (int)l.d, &one, base.fc2.weight.data, CUDA_R_16BF, (int)l.h, way[0].grad_output.data,
                                      CUDA_R_16BF, (int)l.d, &zero, dense, CUDA_R_16BF, (int)l.h, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
                    return;
                }
                const int work = which / 2, fused = which % 2;
                tegroup_mlp_desc &w = mlp[work][fused];
                const tegroup_mlp_plan *p = &plan[work][fused];
                w.options.workspace = workspace;
                w.options.workspace_bytes = most;
                if (work != GRADIENT && work != BACKWARD) MUST(tegroup_mlp_forward(p, &w, 0, &error));
                if (work == GRADIENT || work == BACKWARD || work == STEP) MUST(tegroup_mlp_dgrad(p, &w, 0, &error));
                if (work == STEP) MUST(tegroup_mlp_wgrad(p, &w, 0, &error));
            };
            for (int which : {(int)STEP * 2, (int)STEP * 2 + 1}) run(which); /* there is a preactivation from here on */
            for (int round = -2; round < ROUNDS; round++) {
                int order[CONTESTANTS];
                for (int i = 0; i < CONTESTANTS; i++) order[i] = i;
                for (int i = CONTESTANTS - 1; i > 0; i--) std::swap(order[i], order[rand() % (i + 1)]);
                for (int which : order) {
                    float ms;
                    MUST(cudaMemsetAsync(flush, round, (size_t)256 << 20));
                    MUST(cudaEventRecord(begin));
                    run(which);
                    MUST(cudaEventRecord(end));
                    MUST(cudaEventSynchronize(end));
                    MUST(cudaEventElapsedTime(&ms, begin, end));
                    if (round >= 0) times[which].push_back(ms * 1e3f);
                }
            }
            MUST(cudaMemset(found, 0, sizeof *found));
            auto compare = [&](const tegroup_tensor &a, const tegroup_tensor &b, int64_t words) { differ<<<1024, 256>>>((const uint16_t *)a.data, (const uint16_t *)b.data, (size_t)words, found); };
            compare(way[0].out, way[1].out, l.rows * l.d);
            compare(way[0].preactivation, way[1].preactivation, l.rows * l.h * 2);
            compare(way[0].activated, way[1].activated, l.rows * l.h);
            compare(way[0].grad_preactivation, way[1].grad_preactivation, l.rows * l.h * 2);
            compare(way[0].grad_row_scale, way[1].grad_row_scale, l.rows * 2);
            compare(way[0].dgrad_out, way[1].dgrad_out, l.rows * l.d);
            MUST(cudaMemcpy(&differences, found, sizeof differences, cudaMemcpyDeviceToHost));
            for (auto &t : times) std::sort(t.begin(), t.end());
            auto median = [&](int which) { return (double)times[which][ROUNDS / 2]; };
            count++;
            for (int work = 0; work < WORKS; work++) {
                const double plain = median(2 * work), fused = median(2 * work + 1);
                mean[work] += log(plain / fused);
                printf("%-16s %-7s %-10s %10.1f %10.1f %7.3f", l.name, uneven ? "uneven" : "even", works[work], plain, fused, plain / fused);
                if (work == GRADIENT) printf("  %.0f TFLOP/s, dense %.0f, %.3f of it", 2e-6 * (double)l.rows * (double)l.d * (double)l.h / fused, 2e-6 * (double)l.rows * (double)l.d * (double)l.h / median(DENSE), median(DENSE) / fused);
                printf("%s%s\n", plan[work][1].planned.fused ? "" : "  not fused", differences ? "  BITS DIFFER" : "");
            }
            fflush(stdout);
            for (void *p : held) MUST(cudaFree(p));
            held.clear();
            if (differences) return 1;
        }
    printf("geometric means:");
    for (int work = 0; work < WORKS; work++) printf(" %s %.3f", works[work], exp(mean[work] / count));
    printf("\n");
    return 0;
}
