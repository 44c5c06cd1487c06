/* cc -O2 -I. examples/quickstart.c -o quickstart -lm && ./quickstart */
#include <stdio.h>
#include <stdlib.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

int main(void) { /* Y = X W^T: three experts with 2, 0 and 1 rows of X; 4 features in, 3 out */
    const int64_t counts[3] = {2, 0, 1};
    float x[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {1, 0, 0, -1}}, w[3][3][4], y[3][3];
    char text[256];
    tegroup_layout layout;
    tegroup_plan plan;
    tegroup_error error;
    for (int i = 0; i < 36; i++) w[i / 12][i / 4 % 3][i % 4] = (float)(i % 5 - 2);

    /* 1. prepare, once a routing: the counts become a snapshot, which X and Y share */
    tegroup_shape rows = tegroup_shape_of(3, 3, 4, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    if (tegroup_snapshot_layout(&rows, &layout, &error)) goto failed;
    void *snapshot = aligned_alloc(TEGROUP_ALIGNMENT, layout.total_bytes);
    if (tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error)) goto failed;

    /* 2. describe */
    tegroup_gemm_desc gemm = {.struct_size = sizeof gemm, .op = TEGROUP_OP_FORWARD, .space = TEGROUP_SPACE_HOST};
    gemm.a = tegroup_tensor_of(rows, 4, TEGROUP_DTYPE_F32, x);
    gemm.b = tegroup_tensor_uniform(3, 3, 4, TEGROUP_DTYPE_F32, w);
    gemm.d = tegroup_tensor_of(rows, 3, TEGROUP_DTYPE_F32, y);

    /* 3. plan, once: the backend and the workspace that it needs */
    if (tegroup_plan_make(&gemm, NULL, &plan, &error)) goto failed;
    gemm.options.workspace_bytes = plan.workspace_bytes;
    gemm.options.workspace = aligned_alloc(TEGROUP_ALIGNMENT, plan.workspace_bytes);

    /* 4. run, as often as you like */
    if (tegroup_gemm(&plan, &gemm, NULL, &error)) goto failed;
    for (int row = 0; row < 3; row++) printf("%4g %4g %4g\n", (double)y[row][0], (double)y[row][1], (double)y[row][2]);
    return 0;
failed:
    tegroup_error_text(&error, text, sizeof text);
    return puts(text), 1;
}
