/* nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -I. tests/bench/bench_portable.cu -o bench_portable -lcublas */

/* The portable backend against one dense cuBLAS product of equal FLOPs on a few shapes of public models, BF16, groups of equal size.
 * Contestants take turns in random order, 256 MB are written before each (L2 is cold), medians of 30 rounds. */
#include <cublas_v2.h>
#include <stdlib.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include <algorithm>
#include <vector>

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int code_ = (int)(call);                                                                                       \
        if (code_ != 0) {                                                                                              \
            fprintf(stderr, "%s:%d: code %d\n", __FILE__, __LINE__, code_);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static __global__ void fill_random(uint16_t *x, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u;
        h ^= h >> 15;
        h *= 2246822519u;
        h ^= h >> 13;
        x[i] = (uint16_t)((h & 0x80ffu) | 0x3f00u); /* of either sign, 0.5 to 2 */
    }
}

static void *device(size_t bytes) {
    void *p;
    MUST(cudaMalloc(&p, bytes));
    fill_random<<<1024, 256>>>((uint16_t *)p, bytes / 2);
    return p;
}

int main() {
    struct { const char *name; int64_t E, T, N, K; } shapes[] = {
        {"mixtral fc1", 8, 16384, 28672, 4096}, {"dsv3 ep32 fc1", 8, 32768, 4096, 7168}, {"dsv3 ep8 fc2", 32, 32768, 7168, 2048},
        {"qwen3-30b fc1", 128, 65536, 1536, 2048}, {"dsv3 decode", 32, 256, 4096, 7168}};
    static const char *const names[] = {"forward", "dgrad", "wgrad"};
    char *flush;
    cublasHandle_t cublas;
    cudaEvent_t begin, end;
    MUST(cudaMalloc((void **)&flush, (size_t)256 << 20));
    MUST(cublasCreate(&cublas));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    printf("%-16s %-8s %6s %14s %14s %8s %12s\n", "shape", "op", "tile", "ours TFLOP/s", "dense TFLOP/s", "ratio", "weights TB/s");
    for (auto &s : shapes)
        for (int op = 1; op <= 3; op++) {
            size_t x_bytes = (size_t)(s.T * s.K * 2), w_bytes = (size_t)(s.E * s.N * s.K * 2), y_bytes = (size_t)(s.T * s.N * 2);
            void *x = device(x_bytes), *w = device(w_bytes), *y = device(y_bytes);
            std::vector<int64_t> counts(s.E, s.T / s.E);
            void *sizes;
            MUST(cudaMalloc(&sizes, s.E * 8));
            MUST(cudaMemcpy(sizes, counts.data(), s.E * 8, cudaMemcpyHostToDevice));
            tegroup_prepare_desc prepare;
            tegroup_gemm_desc desc;
            tegroup_layout layout;
            tegroup_plan plan;
            tegroup_error error;
            char text[256];
            memset(&prepare, 0, sizeof prepare);
            memset(&desc, 0, sizeof desc);
            prepare.struct_size = sizeof prepare;
            prepare.space = TEGROUP_SPACE_DEVICE;
            prepare.shape.groups = (int32_t)s.E;
            prepare.shape.rows = s.T;
            prepare.shape.row_sizes.data = sizes;
            prepare.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
            prepare.shape.row_sizes.dtype = TEGROUP_DTYPE_I64;
            prepare.shape.row_sizes.space = TEGROUP_SPACE_DEVICE;
            MUST(tegroup_snapshot_layout(&prepare.shape, &layout, &error));
            MUST(cudaMalloc(&prepare.snapshot, layout.total_bytes));
            prepare.snapshot_bytes = layout.total_bytes;
            prepare.shape.snapshot = prepare.snapshot;
            desc.struct_size = sizeof desc;
            desc.op = (tegroup_op)op;
            desc.space = TEGROUP_SPACE_DEVICE;
            tegroup_tensor X, W, Y;
            memset(&X, 0, sizeof X);
            X.dtype = TEGROUP_DTYPE_BF16;
            W = Y = X;
            X.shape = Y.shape = prepare.shape;
            X.shape.cols = s.K;
            Y.shape.cols = s.N;
            W.shape.groups = (int32_t)s.E;
            W.shape.rows = s.N;
            W.shape.cols = s.K;
            X.data = x;
            W.data = w;
            Y.data = y;
            desc.a = op == 1 ? X : Y;
            desc.b = op == 3 ? X : W;
            desc.d = op == 1 ? Y : op == 2 ? X : W;
            if (tegroup_plan_make(&desc, NULL, &plan, &error) || tegroup_prepare(&prepare, NULL, &error)) {
                tegroup_error_text(&error, text, sizeof text);
                puts(text);
                return 1;
            }
            std::vector<float> ours, dense;
            const float one = 1, zero = 0;
            for (int round = -2; round < 30; round++)
                for (int turn = 0, first = rand() % 2; turn < 2; turn++) {
                    float ms;
                    MUST(cudaMemsetAsync(flush, round, (size_t)256 << 20));
                    MUST(cudaEventRecord(begin));
                    if ((turn ^ first) == 0) MUST(tegroup_gemm(&plan, &desc, NULL, &error));
                    else if (op == 1)
                        MUST(cublasGemmEx(cublas, CUBLAS_OP_T, CUBLAS_OP_N, (int)s.N, (int)s.T, (int)s.K, &one, w, CUDA_R_16BF, (int)s.K, x, CUDA_R_16BF, (int)s.K,
                                          &zero, y, CUDA_R_16BF, (int)s.N, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
                    else
                        MUST(cublasGemmEx(cublas, CUBLAS_OP_N, CUBLAS_OP_N, (int)s.K, (int)s.T, (int)s.N, &one, w, CUDA_R_16BF, (int)s.K, y, CUDA_R_16BF, (int)s.N,
                                          &zero, x, CUDA_R_16BF, (int)s.K, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
                    MUST(cudaEventRecord(end));
                    MUST(cudaEventSynchronize(end));
                    MUST(cudaEventElapsedTime(&ms, begin, end));
                    if (round >= 0) ((turn ^ first) == 0 ? ours : dense).push_back(ms * 1e-3f);
                }
            std::sort(ours.begin(), ours.end());
            std::sort(dense.begin(), dense.end());
            double flops = 2.0 * (double)s.T * (double)s.N * (double)s.K;
            printf("%-16s %-8s %3dx%3d %13.1f %14.1f %8.2f %12.2f\n", s.name, names[op - 1], plan.tile_m, plan.tile_n, flops / ours[15] * 1e-12, flops / dense[15] * 1e-12,
                   (double)(dense[15] / ours[15]), (double)w_bytes / ours[15] * 1e-12);
            MUST(cudaFree(x));
            MUST(cudaFree(w));
            MUST(cudaFree(y));
            MUST(cudaFree(sizes));
            MUST(cudaFree(prepare.snapshot));
        }
    return 0;
}
