/* ---- Activations ---- */

/* Does any group own this row? Groups lie in any order, so all are asked; a routing has few against a row's columns. */
TEGROUP_IMPL_HD int tegroup_impl_row_owned(const tegroup_snapshot_view *view, int64_t row) {
    int32_t g;
    if (!view->header) return 1;
    for (g = 0; g < view->header->groups; g++)
        if (row >= view->start[g] && row - view->start[g] < view->rows[g]) return 1;
    return 0;
}

/* @each-real */
static inline void tegroup_impl_activation_row_FSUF(const tegroup_activation_desc *desc, int64_t row) {
    const tegroup_matrix *in = &desc->input, *out = &desc->output;
    int64_t width = out->cols, step = desc->interleaved ? 2 : 1, up = desc->interleaved ? 1 : width, j;
    const void *x = tegroup_impl_matrix_row(in, row);
    void *y = tegroup_impl_matrix_row(out, row);
    REAL scale = desc->row_scale.dtype != TEGROUP_DTYPE_UNSET
                     ? tegroup_impl_load_FSUF(desc->row_scale.dtype, tegroup_impl_matrix_row(&desc->row_scale, row), 0)
                     : 1;
    for (j = 0; j < width; j++)
        tegroup_impl_store_FSUF(out->dtype, y, j,
                                scale
                                    * tegroup_impl_swiglu_FSUF(tegroup_impl_load_FSUF(in->dtype, x, step * j),
                                                               tegroup_impl_load_FSUF(in->dtype, x, step * j + up)));
}

/* Gate and up are read before either gradient is stored, so grad_input may be input. */
static inline void tegroup_impl_activation_grad_row_FSUF(const tegroup_activation_backward_desc *desc, int64_t row) {
    const tegroup_matrix *in = &desc->input, *out = &desc->grad_input;
    int64_t width = desc->grad_output.cols, step = desc->interleaved ? 2 : 1, up = desc->interleaved ? 1 : width, j;
    const void *x = tegroup_impl_matrix_row(in, row), *dy = tegroup_impl_matrix_row(&desc->grad_output, row);
    void *dx = tegroup_impl_matrix_row(out, row);
    REAL scale = desc->row_scale.dtype != TEGROUP_DTYPE_UNSET
                     ? tegroup_impl_load_FSUF(desc->row_scale.dtype, tegroup_impl_matrix_row(&desc->row_scale, row), 0)
                     : 1;
    REAL sum = 0;
    for (j = 0; j < width; j++) {
        REAL gate = tegroup_impl_load_FSUF(in->dtype, x, step * j),
             value = tegroup_impl_load_FSUF(in->dtype, x, step * j + up);
        REAL grad = tegroup_impl_load_FSUF(desc->grad_output.dtype, dy, j), grad_gate, grad_up;
        sum += grad * tegroup_impl_swiglu_FSUF(gate, value);
        tegroup_impl_swiglu_grad_FSUF(gate, value, scale * grad, &grad_gate, &grad_up);
        tegroup_impl_store_FSUF(out->dtype, dx, step * j, grad_gate);
        tegroup_impl_store_FSUF(out->dtype, dx, step * j + up, grad_up);
    }
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET)
        tegroup_impl_store_FSUF(desc->grad_row_scale.dtype, tegroup_impl_matrix_row(&desc->grad_row_scale, row), 0,
                                sum);
}
/* @end */

static inline tegroup_status tegroup_impl_check_activation_kind(tegroup_activation activation, int32_t interleaved,
                                                                tegroup_error *error) {
    TEGROUP_IMPL_RULE(activation != TEGROUP_ACTIVATION_UNSET, ERROR_UNSET, "activation", "must be set",
                      TEGROUP_ACTIVATION_SWIGLU, 0);
    TEGROUP_IMPL_RULE(activation == TEGROUP_ACTIVATION_SWIGLU, ERROR_VALUE, "activation",
                      "must be a tegroup_activation", TEGROUP_ACTIVATION_SWIGLU, activation);
    TEGROUP_IMPL_RULE(interleaved == 0 || interleaved == 1, ERROR_VALUE, "interleaved", "must be 0 or 1", 1,
                      interleaved);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_activation_forward(const tegroup_activation_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    static const char *const input[5] = TEGROUP_IMPL_MATRIX_PATHS("input"),
                             *const row_scale[5] = TEGROUP_IMPL_MATRIX_PATHS("row_scale"),
                             *const output[5] = TEGROUP_IMPL_MATRIX_PATHS("output");
    const tegroup_matrix *others[2];
    tegroup_snapshot_view view;
    int64_t row;
    (void)stream;
    TEGROUP_IMPL_RULE(desc != NULL, ERROR_NULL_ARGUMENT, "desc", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_head(desc->struct_size, sizeof *desc, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->output, output, -1, -1, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->input, input, desc->output.rows, 2 * desc->output.cols,
                                               TEGROUP_IMPL_FLOATS, error));
    if (desc->row_scale.dtype != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_matrix(&desc->row_scale, row_scale, desc->output.rows, 1, TEGROUP_IMPL_REALS, error));
    others[0] = &desc->input;
    others[1] = &desc->row_scale;
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(&desc->output, output[0], others, 2, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(desc->space, error));
    if (desc->snapshot)
        TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot(desc->snapshot, "snapshot", desc->output.rows, error));
    view = tegroup_snapshot_read(desc->snapshot);
    TEGROUP_IMPL_OMP(omp parallel for schedule(static))
    for (row = 0; row < tegroup_impl_matrix_rows(&desc->output); row++) {
        if (!tegroup_impl_row_owned(&view, row)) continue;
        if (desc->input.dtype == TEGROUP_DTYPE_F64) tegroup_impl_activation_row_f64(desc, row);
        else tegroup_impl_activation_row_f32(desc, row);
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_activation_backward(const tegroup_activation_backward_desc *desc,
                                                       struct CUstream_st *stream, tegroup_error *error) {
    static const char *const input[5] = TEGROUP_IMPL_MATRIX_PATHS("input"),
                             *const row_scale[5] = TEGROUP_IMPL_MATRIX_PATHS("row_scale"),
                             *const grad_output[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_output"),
                             *const grad_input[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_input"),
                             *const grad_row_scale[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_row_scale");
    const tegroup_matrix *others[4];
    tegroup_snapshot_view view;
    int64_t rows, row;
    int in_place;
    (void)stream;
    TEGROUP_IMPL_RULE(desc != NULL, ERROR_NULL_ARGUMENT, "desc", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_head(desc->struct_size, sizeof *desc, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->grad_output, grad_output, -1, -1, TEGROUP_IMPL_FLOATS, error));
    rows = desc->grad_output.rows;
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->input, input, rows, 2 * desc->grad_output.cols, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->grad_input, grad_input, rows, 2 * desc->grad_output.cols,
                                               TEGROUP_IMPL_FLOATS, error));
    if (desc->row_scale.dtype != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->row_scale, row_scale, rows, 1, TEGROUP_IMPL_REALS, error));
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_matrix(&desc->grad_row_scale, grad_row_scale, rows, 1, TEGROUP_IMPL_REALS, error));
    in_place = desc->grad_input.data == desc->input.data && desc->grad_input.dtype == desc->input.dtype
               && tegroup_impl_matrix_ld(&desc->grad_input) == tegroup_impl_matrix_ld(&desc->input);
    others[0] = &desc->grad_output;
    others[1] = &desc->row_scale;
    others[2] = &desc->input;
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(&desc->grad_input, grad_input[0], others, in_place ? 2 : 3, error));
    others[3] = &desc->grad_input;
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(&desc->grad_row_scale, grad_row_scale[0], others, 4, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(desc->space, error));
    if (desc->snapshot) TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot(desc->snapshot, "snapshot", rows, error));
    view = tegroup_snapshot_read(desc->snapshot);
    if (desc->grad_output.cols == 0 && desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static))
    for (row = 0; row < rows; row++) {
        if (!tegroup_impl_row_owned(&view, row)) continue;
        if (desc->input.dtype == TEGROUP_DTYPE_F64) tegroup_impl_activation_grad_row_f64(desc, row);
        else tegroup_impl_activation_grad_row_f32(desc, row);
    }
    return TEGROUP_OK;
}
