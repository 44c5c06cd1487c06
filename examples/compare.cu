/* nvcc -t 0 -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90a,code=sm_90a -I. examples/compare.cu -o compare && ./compare */

/* One product on the GPU and on the CPU: the descriptors are the same but for the kind of memory. Sizes that the GPU reads come from
 * the device, and a second routing runs by the same plan. Every element must agree within what rounding allows. */
#include <stdio.h>
#include <stdlib.h>
#include <cuda_bf16.h>
#define TEGROUP_NO_F16 /* the six leave out kernels that this page does not run */
#define TEGROUP_NO_BACKWARD
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_NO_EP
#define TEGROUP_NO_FP8
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

enum { EXPERTS = 5, ROWS = 300, IN = 96, OUT = 80, ROUTINGS = 2 };

static tegroup_error error;

#define MUST(call) /* of CUDA and of tegroup alike: 0 is fine */ \
    do { \
        const int code = (int)(call); \
        char text[256] = ""; \
        if (code == 0) break; \
        tegroup_error_text(&error, text, sizeof text); \
        printf("%s gave %d; tegroup: %s\n", #call, code, text); \
        exit(1); \
    } while (0)

/* Managed, so that both machines can read it; a program would use cudaMalloc. */
static void *memory(size_t bytes) {
    void *p;
    MUST(cudaMallocManaged(&p, bytes + TEGROUP_ALIGNMENT)); /* none is needed at times, and CUDA refuses 0 bytes */
    return p;
}

/* y[ROWS][OUT] of each routing */
static void multiply(tegroup_space space, const __nv_bfloat16 *x, const __nv_bfloat16 *w, float *y) {
    static const int64_t routings[ROUTINGS][EXPERTS] = {{129, 0, 1, 127, 0}, {0, 256, 0, 0, 44}};
    int64_t *counts = (int64_t *)memory(sizeof *routings);
    tegroup_shape rows = tegroup_shape_of(EXPERTS, ROWS, IN, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, space));
    tegroup_layout layout;
    tegroup_plan plan;
    MUST(tegroup_snapshot_layout(&rows, &layout, &error));
    void *snapshot = memory(layout.total_bytes);

    tegroup_gemm_desc gemm = {sizeof gemm, TEGROUP_OP_FORWARD, space};
    gemm.a = tegroup_tensor_of(rows, IN, TEGROUP_DTYPE_BF16, x);
    gemm.b = tegroup_tensor_uniform(EXPERTS, OUT, IN, TEGROUP_DTYPE_BF16, w);
    gemm.d = tegroup_tensor_of(rows, OUT, TEGROUP_DTYPE_F32, NULL);
    gemm.d.shape.snapshot = gemm.a.shape.snapshot = snapshot;
    MUST(tegroup_plan_make(&gemm, NULL, &plan, &error));
    gemm.options.workspace_bytes = plan.workspace_bytes;
    gemm.options.workspace = memory(plan.workspace_bytes);
    printf("%s: %s\n", space == TEGROUP_SPACE_DEVICE ? "GPU" : "CPU", tegroup_backend_name(plan.backend));

    for (int routing = 0; routing < ROUTINGS; routing++) {
        memcpy(counts, routings[routing], sizeof *routings);
        gemm.d.data = y + (size_t)routing * ROWS * OUT;
        MUST(tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error));
        MUST(tegroup_gemm(&plan, &gemm, NULL, &error));
        MUST(cudaDeviceSynchronize()); /* before the host writes the next counts */
    }
}

int main() {
    const size_t results = (size_t)ROUTINGS * ROWS * OUT;
    __nv_bfloat16 *x = (__nv_bfloat16 *)memory(ROWS * IN * sizeof *x);
    __nv_bfloat16 *w = (__nv_bfloat16 *)memory(EXPERTS * OUT * IN * sizeof *w);
    float *gpu = (float *)memory(results * sizeof *gpu), *cpu = (float *)memory(results * sizeof *cpu), worst = 0;
    for (int i = 0; i < ROWS * IN; i++) x[i] = __float2bfloat16((i * 7 % 31 - 15) / 16.0f);
    for (int i = 0; i < EXPERTS * OUT * IN; i++) w[i] = __float2bfloat16((i * 11 % 29 - 14) / 16.0f);
    memset(gpu, 0, results * sizeof *gpu); /* rows that no expert owns are left as they are */
    memset(cpu, 0, results * sizeof *cpu);
    multiply(TEGROUP_SPACE_DEVICE, x, w, gpu);
    multiply(TEGROUP_SPACE_HOST, x, w, cpu);
    for (size_t i = 0; i < results; i++) {
        const float off = fabsf(gpu[i] - cpu[i]);
        if (worst == worst && !(off <= worst)) worst = off; /* a NaN stays */
    }
    /* |terms| < 1: FP32 sums of IN exact products are off by at most IN * IN units of 2^-24 each, in any order */
    printf("largest difference between GPU and CPU: %g\n", worst);
    return !(worst <= 2.0f * IN * IN / 16777216);
}
