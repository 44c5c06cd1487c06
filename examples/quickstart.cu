/* nvcc -t 0 -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90a,code=sm_90a -I. examples/quickstart.cu -o quickstart_gpu && ./quickstart_gpu */
#include <stdio.h>
#include <cuda_bf16.h>
#define TEGROUP_NO_F16 /* the six leave out kernels that this page does not run: it compiles in a sixth of the time */
#define TEGROUP_NO_BACKWARD
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_NO_EP
#define TEGROUP_NO_FP8
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

int main() { /* Y = X W^T: three experts with 64, 0 and 1 rows of X; 64 features in, 32 out */
    __nv_bfloat16 *x, *w;
    float *y;
    int64_t *counts;
    void *snapshot;
    tegroup_layout layout;
    tegroup_plan plan;
    tegroup_error error;
    char text[256];
    /* managed: this page need not copy; a program would use cudaMalloc, and look at each status */
    if (cudaMallocManaged(&x, 65 * 64 * sizeof *x) != cudaSuccess) return puts("no GPU that can be used"), 2;
    cudaMallocManaged(&w, 3 * 32 * 64 * sizeof *w);
    cudaMallocManaged(&y, 65 * 32 * sizeof *y);
    cudaMallocManaged(&counts, 3 * sizeof *counts);
    for (int i = 0; i < 65 * 64; i++) x[i] = __float2bfloat16((i * 7 % 31 - 15) / 16.0f);
    for (int i = 0; i < 3 * 32 * 64; i++) w[i] = __float2bfloat16((i * 11 % 29 - 14) / 16.0f);
    for (int g = 0; g < 3; g++) counts[g] = g == 0 ? 64 : g == 2;

    tegroup_shape rows = tegroup_shape_of(3, 65, 64, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    tegroup_gemm_desc gemm = {sizeof gemm, TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE};
    if (tegroup_snapshot_layout(&rows, &layout, &error)) goto failed;
    cudaMallocManaged(&snapshot, layout.total_bytes);
    if (tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error)) goto failed; /* once a routing */
    gemm.a = tegroup_tensor_of(rows, 64, TEGROUP_DTYPE_BF16, x);
    gemm.b = tegroup_tensor_uniform(3, 32, 64, TEGROUP_DTYPE_BF16, w);
    gemm.d = tegroup_tensor_of(rows, 32, TEGROUP_DTYPE_F32, y);
    if (tegroup_plan_make(&gemm, NULL, &plan, &error)) goto failed; /* once: such aligned rows need no workspace */
    if (tegroup_gemm(&plan, &gemm, NULL, &error)) goto failed;      /* as often as you like, also in a CUDA graph */
    if (cudaDeviceSynchronize() != cudaSuccess) return 2;
    printf("%s: y[0][0] = %g, y[64][31] = %g\n", tegroup_backend_name(plan.backend), y[0], y[64 * 32 + 31]);
    return 0;
failed:
    tegroup_error_text(&error, text, sizeof text);
    puts(text);
    return 1;
}
