/* What a functor costs: a forward product in BF16 without one, with an identity, and with a bias and a scale, interleaved, on
 * the bundled backends. Prints a line of each shape: medians in us, and the medians of ratios to the product without.
 *
 *   nvcc -std=c++17 -O2 -I. -gencode arch=compute_90a,code=sm_90a tests/bench/bench_functor.cu -o bench_functor && ./bench_functor
 */
#define TEGROUP_NO_F16
#define TEGROUP_NO_BACKWARD
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_NO_FP8
#define TEGROUP_IMPLEMENTATION
#include <algorithm>
#include <vector>
#include "tegroup.h"
#include "../../examples/check.h"

#define MUST(call)                                                                \
    do {                                                                          \
        if ((call) != 0) { printf("%s failed: %s\n", #call, error.rule ? error.rule : ""); exit(1); } \
    } while (0)
static tegroup_error error;

struct identity {
    __device__ float operator()(float x, const tegroup_element &) const { return x; }
};
struct biased {
    const float *bias, *scale;
    int64_t n;
    __device__ float operator()(float x, const tegroup_element &at) const { return scale[at.row] * (x + bias[at.group * n + at.col]); }
};

static __global__ void fill(uint16_t *data, int64_t count) {
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256) {
        const uint64_t h = ((uint64_t)i + 1) * UINT64_C(0x9E3779B97F4A7C15);
        data[i] = (uint16_t)(__float_as_uint((float)(int)(h >> 40 & 255) / 128 - 1) >> 16);
    }
}

static double median(std::vector<double> x) {
    std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
    return x[x.size() / 2];
}

static void shape(tegroup_backend backend, int32_t groups, int64_t rows_all, int64_t n, int64_t k, int rounds) {
    enum { CONTESTANTS = 4, CALLS = 8 }; /* plain, identity, bias and scale, the built-in bias and scale */
    uint16_t *x, *w, *y[CONTESTANTS];
    int64_t *counts;
    float *bias, *scale;
    void *snapshot;
    tegroup_layout layout;
    tegroup_plan plans[CONTESTANTS];
    cudaEvent_t begin, end;
    std::vector<double> us[CONTESTANTS], ratio[CONTESTANTS];
    const size_t y_bytes = (size_t)(rows_all * n) * 2;
    MUST(cudaMalloc(&x, (size_t)(rows_all * k) * 2));
    MUST(cudaMalloc(&w, (size_t)(groups * n * k) * 2));
    for (int c = 0; c < CONTESTANTS; c++) MUST(cudaMalloc(&y[c], y_bytes));
    MUST(cudaMallocManaged(&counts, (size_t)groups * 8));
    MUST(cudaMalloc(&bias, (size_t)(groups * n) * 4));
    MUST(cudaMalloc(&scale, (size_t)rows_all * 4));
    MUST(cudaMemset(bias, 0, (size_t)(groups * n) * 4));
    std::vector<float> ones((size_t)rows_all, 1.0f);
    MUST(cudaMemcpy(scale, ones.data(), (size_t)rows_all * 4, cudaMemcpyHostToDevice));
    fill<<<1024, 256>>>(x, rows_all * k);
    fill<<<1024, 256>>>(w, groups * n * k);
    int64_t left = rows_all;
    for (int32_t g = 0; g < groups; g++) left -= counts[g] = g + 1 == groups ? left : std::min(left, rows_all / groups * (g % 5 + 8) / 10);
    MUST(cudaDeviceSynchronize());
    tegroup_shape rows = tegroup_shape_of(groups, rows_all, k, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    MUST(tegroup_snapshot_layout(&rows, &layout, &error));
    MUST(cudaMalloc(&snapshot, layout.total_bytes));
    MUST(tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error));
    tegroup_gemm_desc gemm = {sizeof gemm, TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE};
    gemm.a = tegroup_tensor_of(rows, k, TEGROUP_DTYPE_BF16, x);
    gemm.b = tegroup_tensor_uniform(groups, n, k, TEGROUP_DTYPE_BF16, w);
    gemm.d = tegroup_tensor_of(rows, n, TEGROUP_DTYPE_BF16, y[0]);
    gemm.options.backend = backend;
    MUST(tegroup_plan_make(&gemm, NULL, &plans[0], &error));
    gemm.functor = 1;
    MUST(tegroup_plan_make(&gemm, NULL, &plans[1], &error));
    plans[2] = plans[1];
    gemm.functor = 0;
    gemm.bias = tegroup_tensor_uniform(groups, 1, n, TEGROUP_DTYPE_F32, bias);
    gemm.row_scale = scale;
    gemm.row_scale_dtype = TEGROUP_DTYPE_F32;
    MUST(tegroup_plan_make(&gemm, NULL, &plans[3], &error));
    const tegroup_gemm_desc with_bias = gemm;
    memset(&gemm.bias, 0, sizeof gemm.bias);
    gemm.row_scale = NULL;
    gemm.row_scale_dtype = TEGROUP_DTYPE_UNSET;
    MUST((tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, identity>(&plans[1], &error)));
    MUST((tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, biased>(&plans[2], &error)));
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int round = -3; round < rounds; round++) {
        double now[CONTESTANTS];
        for (int i = 0; i < CONTESTANTS; i++) {
            const int c = (i + round + 3) % CONTESTANTS; /* each has every place equally often */
            float ms;
            tegroup_gemm_desc desc = c == 3 ? with_bias : gemm;
            desc.functor = c == 1 || c == 2;
            desc.d.data = y[c];
            MUST(cudaEventRecord(begin));
            for (int call = 0; call < CALLS; call++)
                MUST(c == 1   ? tegroup_gemm_with(&plans[1], &desc, identity(), NULL, &error)
                     : c == 2 ? tegroup_gemm_with(&plans[2], &desc, biased{bias, scale, n}, NULL, &error)
                              : tegroup_gemm(&plans[c], &desc, NULL, &error));
            MUST(cudaEventRecord(end));
            MUST(cudaEventSynchronize(end));
            MUST(cudaEventElapsedTime(&ms, begin, end));
            now[c] = ms * 1000 / CALLS;
        }
        for (int c = 0; round >= 0 && c < CONTESTANTS; c++) {
            us[c].push_back(now[c]);
            ratio[c].push_back(now[c] / now[0]);
        }
    }
    std::vector<uint16_t> got[CONTESTANTS];
    for (int c = 0; c < CONTESTANTS; c++) {
        got[c].resize((size_t)(rows_all * n));
        MUST(cudaMemcpy(got[c].data(), y[c], y_bytes, cudaMemcpyDeviceToHost));
    }
    printf("%-8s E %3d rows %6lld n %5lld k %5lld tile %3d x %3d: plain %8.2f us, identity %.4f, bias and scale %.4f of it, built-in bias %.4f; bits %s\n",
           tegroup_backend_name(backend), (int)groups, (long long)rows_all, (long long)n, (long long)k, plans[0].tile_m, plans[0].tile_n, median(us[0]),
           median(ratio[1]), median(ratio[2]), median(ratio[3]), got[0] == got[1] && got[0] == got[2] ? "the same" : "OTHER");
    MUST(cudaFree(x));
    MUST(cudaFree(w));
    for (int c = 0; c < CONTESTANTS; c++) MUST(cudaFree(y[c]));
    MUST(cudaFree(counts));
    MUST(cudaFree(bias));
    MUST(cudaFree(scale));
    MUST(cudaFree(snapshot));
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 45;
    for (tegroup_backend backend : {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_PORTABLE}) {
        shape(backend, 8, 16384, 4096, 4096, rounds);
        shape(backend, 32, 16384, 4096, 2048, rounds);
        shape(backend, 64, 8192, 2816, 2048, rounds);
        shape(backend, 128, 4096, 1536, 4096, rounds);
        shape(backend, 64, 512, 4096, 2048, rounds);
        shape(backend, 16, 16384, 8192, 512, rounds);
    }
    return 0;
}
