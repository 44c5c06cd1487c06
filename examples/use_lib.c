/* make lib && cc -O2 -I. -I${CUDA_HOME:-/usr/local/cuda}/include examples/use_lib.c -o use_lib -Lbuild -Wl,-rpath,build -ltegroup -L${CUDA_HOME:-/usr/local/cuda}/lib64 -lcudart -lm && ./use_lib */

/* tegroup on a GPU from plain C: libtegroup.so holds the kernels, cudart the memory. Y = X W^T for four experts, the sizes
 * on the device, against FP64 sums on the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cuda_runtime_api.h>
#define TEGROUP_EXTERN
#include "tegroup.h"

enum { EXPERTS = 4, CAPACITY = 300, IN = 96, OUT = 80 };

static void must_cuda(cudaError_t code)
{
    if (code == cudaSuccess) return;
    fprintf(stderr, "use_lib: %s\n", cudaGetErrorString(code));
    exit(1);
}

static void must(tegroup_status status, const tegroup_error *error)
{
    char text[256];
    if (status == TEGROUP_OK) return;
    tegroup_error_text(error, text, sizeof text);
    fprintf(stderr, "use_lib: %s\n", text);
    exit(1);
}

/* Device memory with a copy of `bytes` from the host, or with NaN bit patterns. */
static void *on_device(const void *host, size_t bytes)
{
    void *memory = NULL;
    must_cuda(cudaMalloc(&memory, bytes ? bytes : 1));
    if (host) must_cuda(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice));
    else must_cuda(cudaMemset(memory, 0xFF, bytes));
    return memory;
}

/* Values that BF16 holds exactly: multiples of 1/16 up to 4. */
static float value(int i) { return (float)(i * 37 % 129 - 64) / 16; }

static uint16_t bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

int main(void)
{
    static uint16_t x[CAPACITY * IN], w[EXPERTS * OUT * IN];
    static float y[CAPACITY * OUT];
    const int32_t ends[EXPERTS] = { 129, 129, 130, 257 }; /* one expert without rows, one with a single row */
    tegroup_error error;
    tegroup_layout layout;
    tegroup_plan plan;
    double worst = 0;
    int untouched = 1;
    for (int i = 0; i < CAPACITY * IN; i++) x[i] = bf16(value(i));
    for (int i = 0; i < EXPERTS * OUT * IN; i++) w[i] = bf16(value(i + 5));

    tegroup_sizes sizes = tegroup_sizes_of(on_device(ends, sizeof ends), TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE);
    sizes.encoding = TEGROUP_ENCODING_ENDS;
    tegroup_shape rows = tegroup_shape_of(EXPERTS, CAPACITY, IN, sizes);
    must(tegroup_snapshot_layout(&rows, &layout, &error), &error);
    must(tegroup_shape_prepare(&rows, on_device(NULL, layout.total_bytes), layout.total_bytes, NULL, &error), &error);

    tegroup_gemm_desc gemm = { .struct_size = sizeof gemm, .op = TEGROUP_OP_FORWARD, .space = TEGROUP_SPACE_DEVICE };
    gemm.a = tegroup_tensor_of(rows, IN, TEGROUP_DTYPE_BF16, on_device(x, sizeof x));
    gemm.b = tegroup_tensor_uniform(EXPERTS, OUT, IN, TEGROUP_DTYPE_BF16, on_device(w, sizeof w));
    gemm.d = tegroup_tensor_of(rows, OUT, TEGROUP_DTYPE_F32, on_device(NULL, sizeof y));
    must(tegroup_plan_make(&gemm, NULL, &plan, &error), &error);
    gemm.options.workspace_bytes = plan.workspace_bytes;
    gemm.options.workspace = on_device(NULL, gemm.options.workspace_bytes);
    must(tegroup_gemm(&plan, &gemm, NULL, &error), &error);
    must_cuda(cudaMemcpy(y, gemm.d.data, sizeof y, cudaMemcpyDeviceToHost));

    for (int row = 0; row < CAPACITY; row++)
        for (int j = 0; j < OUT; j++) {
            int expert = 0;
            double sum = 0, size = 0;
            while (expert < EXPERTS && row >= ends[expert]) expert++;
            if (expert == EXPERTS) { /* rows that no expert owns keep what they held: NaN */
                if (y[row * OUT + j] == y[row * OUT + j]) untouched = 0;
                continue;
            }
            for (int i = 0; i < IN; i++) {
                const double term = (double)value(row * IN + i) * (double)value((expert * OUT + j) * IN + i + 5);
                sum += term;
                size += term < 0 ? -term : term;
            }
            const double off = sum > y[row * OUT + j] ? sum - y[row * OUT + j] : y[row * OUT + j] - sum;
            if (worst == worst && !(off / size <= worst)) worst = off / size; /* a NaN stays */
        }
    printf("%s: largest error %.1e of the terms' sizes, rows past the last %s\n", tegroup_backend_name(plan.backend), worst,
        untouched ? "untouched" : "OVERWRITTEN");
    return !(worst <= IN * 0x1p-23 && untouched);
}
