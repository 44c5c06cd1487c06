/* The unit without the macro: describes one product, has two other units compute it, and compares both with a plain loop.
 * Small integers, so that every result is exact. */
#include "tegroup.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GROUPS = 3, ROWS = 11, N = 7, K = 5 };

#ifdef __cplusplus
extern "C" {
#endif
tegroup_status first(const tegroup_prepare_desc *sizes, const tegroup_gemm_desc *product);
tegroup_status second(const tegroup_prepare_desc *sizes, const tegroup_gemm_desc *product);
#ifdef __cplusplus
}
#endif

static unsigned char snapshot[16384], workspace[1 << 20];

static void *aligned(unsigned char *memory) { /* costs up to TEGROUP_ALIGNMENT - 1 of its bytes */
    return memory + (TEGROUP_ALIGNMENT - (uintptr_t)memory % TEGROUP_ALIGNMENT) % TEGROUP_ALIGNMENT;
}

static void integers(float *values, int count) {
    for (int i = 0; i < count; i++) values[i] = (float)(rand() % 19 - 9);
}

int main(void) {
    int32_t counts[GROUPS];
    float   x[ROWS * K], w[GROUPS * N * K], expected[ROWS * N], y[2][ROWS * N];
    int     row = 0, bad = 0;

    srand((unsigned)time(NULL));
    integers(x, ROWS * K);
    integers(w, GROUPS * N * K);
    integers(expected, ROWS * N); /* what rows that no group owns must still hold */
    memcpy(y[0], expected, sizeof expected);
    memcpy(y[1], expected, sizeof expected);
    for (int g = 0; g < GROUPS; g++) {
        counts[g] = (int32_t)(rand() % 4);
        for (int r = 0; r < (int)counts[g]; r++, row++)
            for (int j = 0; j < N; j++) {
                float sum = 0.0f;
                for (int i = 0; i < K; i++) sum += x[row * K + i] * w[(g * N + j) * K + i];
                expected[row * N + j] = sum;
            }
    }

    tegroup_prepare_desc sizes;
    memset(&sizes, 0, sizeof sizes);
    sizes.struct_size = sizeof sizes;
    sizes.shape.groups = GROUPS;
    sizes.shape.rows = ROWS;
    sizes.shape.cols = K;
    sizes.shape.row_sizes.data = counts;
    sizes.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    sizes.shape.row_sizes.dtype = TEGROUP_DTYPE_I32;
    sizes.shape.row_sizes.space = TEGROUP_SPACE_HOST;
    sizes.space = TEGROUP_SPACE_HOST;
    sizes.snapshot = aligned(snapshot);
    sizes.snapshot_bytes = sizeof snapshot - TEGROUP_ALIGNMENT;

    tegroup_gemm_desc product;
    memset(&product, 0, sizeof product);
    product.struct_size = sizeof product;
    product.op = TEGROUP_OP_FORWARD;
    product.space = TEGROUP_SPACE_HOST;
    product.options.threads = 1;
    product.options.workspace = aligned(workspace);
    product.options.workspace_bytes = sizeof workspace - TEGROUP_ALIGNMENT;
    product.a.shape = sizes.shape;
    product.a.shape.snapshot = sizes.snapshot;
    product.a.dtype = product.b.dtype = product.d.dtype = TEGROUP_DTYPE_F32;
    product.a.data = x;
    product.b.shape.groups = GROUPS;
    product.b.shape.rows = N;
    product.b.shape.cols = K;
    product.b.data = w;
    product.d.shape = product.a.shape;
    product.d.shape.cols = N;

    for (int unit = 0; unit < 2; unit++) {
        product.d.data = y[unit];
        tegroup_status status = unit == 0 ? first(&sizes, &product) : second(&sizes, &product);
        if (status != TEGROUP_OK) bad = printf("unit %d: status %d\n", unit, (int)status);
        else if (memcmp(y[unit], expected, sizeof expected) != 0) bad = printf("unit %d: wrong numbers\n", unit);
    }
    return bad != 0;
}
