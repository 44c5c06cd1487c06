/* nvcc -t 0 -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90a,code=sm_90a -I. examples/quickstart.cu -o quickstart_gpu && ./quickstart_gpu */
#include <stdio.h>
#include <string.h>
#include <cuda_bf16.h>
#define TEGROUP_NO_F16 /* the four leave out kernels that this page does not run: it compiles in a fifth of the time */
#define TEGROUP_NO_BACKWARD
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

#define MUST(call) /* of CUDA and of tegroup alike: 0 is fine */ \
    do { int code = (int)(call); if (code) { tegroup_error_text(&error, text, sizeof text); \
         printf("%s gave %d; tegroup: %s\n", #call, code, text); return 1; } } while (0)

enum { EXPERTS = 3, ROWS = 65, IN = 64, OUT = 32 };

/* Y = X W^T: three experts with 64, 0 and 1 rows of X, on the GPU and on the CPU. Only the kind of memory differs. */
int main() {
    static const int64_t routing[EXPERTS] = {64, 0, 1};
    __nv_bfloat16 *x[2], *w[2]; float *y[2], worst = 0; int64_t *counts[2]; void *snapshot; char text[256] = "";
    tegroup_error error = {}; cudaStream_t stream;
    MUST(cudaStreamCreate(&stream));
    for (int gpu = 1; gpu >= 0; gpu--) {
        /* 0. memory: managed, so that this page need not copy; a program would use cudaMalloc */
        MUST(cudaMallocManaged(&x[gpu], sizeof(__nv_bfloat16) * ROWS * IN));
        MUST(cudaMallocManaged(&w[gpu], sizeof(__nv_bfloat16) * EXPERTS * OUT * IN));
        MUST(cudaMallocManaged(&y[gpu], sizeof(float) * ROWS * OUT));
        MUST(cudaMallocManaged(&counts[gpu], sizeof routing));
        memcpy(counts[gpu], routing, sizeof routing);
        for (int i = 0; i < ROWS * IN; i++) x[gpu][i] = __float2bfloat16((i * 7 % 31 - 15) / 16.0f);
        for (int i = 0; i < EXPERTS * OUT * IN; i++) w[gpu][i] = __float2bfloat16((i * 11 % 29 - 14) / 16.0f);

        /* 1. describe */
        tegroup_gemm_desc gemm = {}; gemm.struct_size = sizeof gemm;
        gemm.op = TEGROUP_OP_FORWARD;
        gemm.space = gpu ? TEGROUP_SPACE_DEVICE : TEGROUP_SPACE_HOST;
        gemm.a.data = x[gpu]; gemm.a.dtype = TEGROUP_DTYPE_BF16;
        gemm.b.data = w[gpu]; gemm.b.dtype = TEGROUP_DTYPE_BF16;
        gemm.d.data = y[gpu]; gemm.d.dtype = TEGROUP_DTYPE_F32;
        gemm.a.shape.groups = gemm.b.shape.groups = EXPERTS;
        gemm.a.shape.rows = ROWS; gemm.a.shape.cols = gemm.b.shape.cols = IN; gemm.b.shape.rows = OUT;
        gemm.a.shape.row_sizes.data = counts[gpu]; gemm.a.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
        gemm.a.shape.row_sizes.dtype = TEGROUP_DTYPE_I64; gemm.a.shape.row_sizes.space = gemm.space;
        gemm.d.shape = gemm.a.shape; gemm.d.shape.cols = OUT;

        /* 2. plan, once: the backend and the workspace that it needs */
        tegroup_plan plan; tegroup_layout layout;
        MUST(tegroup_plan_make(&gemm, NULL, &plan, &error));
        MUST(tegroup_snapshot_layout(&gemm.a.shape, &layout, &error));
        gemm.options.workspace_bytes = plan.workspace.total_bytes;
        MUST(cudaMallocManaged(&gemm.options.workspace, gemm.options.workspace_bytes + 1)); /* it may need none, and CUDA refuses 0 bytes */
        MUST(cudaMallocManaged(&snapshot, layout.total_bytes));

        /* 3. prepare, once a routing: the counts become a snapshot, which X and Y share */
        tegroup_prepare_desc prepare = {}; prepare.struct_size = sizeof prepare;
        prepare.space = gemm.space; prepare.shape = gemm.a.shape;
        prepare.snapshot = snapshot; prepare.snapshot_bytes = layout.total_bytes;
        MUST(tegroup_prepare(&prepare, stream, &error));
        gemm.a.shape.snapshot = gemm.d.shape.snapshot = snapshot;

        /* 4. run, as often as you like: steps 3 and 4 can be captured in a CUDA graph and replayed with other counts */
        MUST(tegroup_gemm(&plan, &gemm, stream, &error));
        MUST(cudaStreamSynchronize(stream));
        printf("%-8s y[0][0] = %g, y[64][31] = %g\n", tegroup_backend_name(plan.backend), y[gpu][0], y[gpu][ROWS * OUT - 1]);
    }
    for (int i = 0; i < ROWS * OUT; i++) { /* |terms| <= 1, FP32 sums of 64 exact products: only the order can differ */
        const float off = y[1][i] > y[0][i] ? y[1][i] - y[0][i] : y[0][i] - y[1][i];
        if (worst == worst && !(off <= worst)) worst = off; /* a NaN stays */
    }
    printf("largest difference between GPU and CPU: %g\n", worst);
    return !(worst <= 1e-4f);
}
