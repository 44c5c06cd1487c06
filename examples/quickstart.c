/* cc -O2 -I. examples/quickstart.c -o quickstart -lm && ./quickstart */
#include <stdio.h>
#include <stdlib.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

int main(void) { /* Y = X W^T: three experts with 2, 0 and 1 rows of X; 4 features in, 3 out */
    float x[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {1, 0, 0, -1}}, w[3][3][4], y[3][3];
    const int64_t counts[3] = {2, 0, 1};
    const tegroup_sizes sizes = {.data = counts, .encoding = TEGROUP_ENCODING_COUNTS, .dtype = TEGROUP_DTYPE_I64,
                                 .space = TEGROUP_SPACE_HOST};
    tegroup_plan plan; tegroup_layout layout; tegroup_error error; char text[256];
    for (int i = 0; i < 36; i++) w[i / 12][i / 4 % 3][i % 4] = (float)(i % 5 - 2);

    /* 1. describe */
    tegroup_gemm_desc gemm = {.struct_size = sizeof gemm, .op = TEGROUP_OP_FORWARD, .space = TEGROUP_SPACE_HOST};
    gemm.a = (tegroup_tensor){.data = x, .dtype = TEGROUP_DTYPE_F32, .shape = {.groups = 3, .rows = 3, .cols = 4, .row_sizes = sizes}};
    gemm.b = (tegroup_tensor){.data = w, .dtype = TEGROUP_DTYPE_F32, .shape = {.groups = 3, .rows = 3, .cols = 4}};
    gemm.d = (tegroup_tensor){.data = y, .dtype = TEGROUP_DTYPE_F32, .shape = {.groups = 3, .rows = 3, .cols = 3, .row_sizes = sizes}};

    /* 2. plan, once: the backend and the workspace that it needs */
    if (tegroup_plan_make(&gemm, NULL, &plan, &error)) goto failed;
    gemm.options.workspace_bytes = plan.workspace.total_bytes;
    gemm.options.workspace = aligned_alloc(TEGROUP_ALIGNMENT, gemm.options.workspace_bytes);

    /* 3. prepare, once a routing: the counts become a snapshot, which X and Y share */
    if (tegroup_snapshot_layout(&gemm.a.shape, &layout, &error)) goto failed;
    tegroup_prepare_desc prepare = {.struct_size = sizeof prepare, .space = TEGROUP_SPACE_HOST, .shape = gemm.a.shape};
    prepare.snapshot_bytes = layout.total_bytes;
    prepare.snapshot = aligned_alloc(TEGROUP_ALIGNMENT, layout.total_bytes);
    if (tegroup_prepare(&prepare, NULL, &error)) goto failed;
    gemm.a.shape.snapshot = gemm.d.shape.snapshot = prepare.snapshot;

    /* 4. run, as often as you like */
    if (tegroup_gemm(&plan, &gemm, NULL, &error)) goto failed;
    for (int row = 0; row < 3; row++) printf("%4g %4g %4g\n", (double)y[row][0], (double)y[row][1], (double)y[row][2]);
    return 0;
failed:
    return tegroup_error_text(&error, text, sizeof text), puts(text), 1;
}
