/* ---- Activations ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/activation_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "base/range.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/snapshot_checks.h"
#include "core/apart.h"
#include "cpu/rows.h"
#include "core/activation_formulas.h"

#if TEGROUP_IMPL_ACTIVATION_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_activation_forward(const tegroup_activation_desc *desc,
                                                                        struct CUstream_st *stream,
                                                                        tegroup_error *error);
#endif
#if TEGROUP_IMPL_ACTIVATION_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_activation_backward(const tegroup_activation_backward_desc *desc,
                                                                         struct CUstream_st *stream,
                                                                         tegroup_error *error);
#endif

/* Does any group own this row? Groups lie in any order, so all are asked; a routing has few against a row's columns. */
TEGROUP_IMPL_HD int tegroup_impl_row_owned(const tegroup_snapshot_view *view, int64_t row) {
    int32_t g;
    if (!view->header) return 1;
    for (g = 0; g < view->header->groups; g++)
        if (row >= view->start[g] && row - view->start[g] < view->rows[g]) return 1;
    return 0;
}

/* @each-real */
TEGROUP_IMPL_STATIC REAL tegroup_impl_row_scale_FSUF(const tegroup_matrix *scale, int64_t row) {
    if (scale->dtype == TEGROUP_DTYPE_UNSET) return 1;
    return tegroup_impl_load_FSUF(scale->dtype, tegroup_impl_matrix_row(scale, row), 0);
}

/* Up to TEGROUP_IMPL_PIECE results from column `at` of a row of input, of `width`. */
TEGROUP_IMPL_STATIC void tegroup_impl_activation_piece_FSUF(const tegroup_activation_desc *desc, const void *x,
                                                            REAL scale, int64_t width, int64_t at, int64_t n,
                                                            REAL *gate) {
    const int gated = tegroup_impl_gated(desc->activation);
    int64_t step = desc->interleaved ? 2 : 1, to_up = desc->interleaved ? 1 : width, j;
    REAL alpha = (REAL)tegroup_impl_alpha(desc->activation, desc->alpha),
         limit = (REAL)tegroup_impl_limit(desc->activation, desc->limit);
    REAL up[TEGROUP_IMPL_PIECE];
    for (j = 0; j < n; j++) up[j] = 1;
    tegroup_impl_load_row_FSUF(desc->input.dtype, x, step * at, step, n, gate);
    if (gated) tegroup_impl_load_row_FSUF(desc->input.dtype, x, step * at + to_up, step, n, up);
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    for (j = 0; j < n; j++) gate[j] = scale * tegroup_impl_activation_FSUF(kind, 0, alpha, limit, gate[j], up[j]);
    TEGROUP_IMPL_BY_CURVE(desc->activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
}

/* A piece of the row is read before its results are stored, so output may be input. */
TEGROUP_IMPL_STATIC void tegroup_impl_activation_row_FSUF(const tegroup_activation_desc *desc, int64_t row) {
    const tegroup_matrix *out = &desc->output;
    const void *x = tegroup_impl_matrix_row(&desc->input, row);
    REAL scale = tegroup_impl_row_scale_FSUF(&desc->row_scale, row), y[TEGROUP_IMPL_PIECE];
    int64_t width = out->cols, at;
    for (at = 0; at < width; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, width - at);
        tegroup_impl_activation_piece_FSUF(desc, x, scale, width, at, n, y);
        tegroup_impl_store_row_FSUF(out->dtype, tegroup_impl_matrix_row(out, row), at, 1, n, y);
    }
}

/* Up to TEGROUP_IMPL_PIECE gradients of gates and ups from column `at` of a row of grad_output, of `width`. Returns
 * `sum` with what they add to the gradient of the row's scale. */
TEGROUP_IMPL_STATIC REAL tegroup_impl_activation_grad_piece_FSUF(const tegroup_activation_backward_desc *desc,
                                                                 const void *x, const void *dy, REAL scale,
                                                                 int64_t width, int64_t at, int64_t n, REAL sum,
                                                                 REAL *gate, REAL *up) {
    const int gated = tegroup_impl_gated(desc->activation);
    int64_t step = desc->interleaved ? 2 : 1, to_up = desc->interleaved ? 1 : width, j;
    REAL alpha = (REAL)tegroup_impl_alpha(desc->activation, desc->alpha),
         limit = (REAL)tegroup_impl_limit(desc->activation, desc->limit);
    REAL grad[TEGROUP_IMPL_PIECE], value[TEGROUP_IMPL_PIECE];
    for (j = 0; j < n; j++) up[j] = 1;
    tegroup_impl_load_row_FSUF(desc->input.dtype, x, step * at, step, n, gate);
    if (gated) tegroup_impl_load_row_FSUF(desc->input.dtype, x, step * at + to_up, step, n, up);
    tegroup_impl_load_row_FSUF(desc->grad_output.dtype, dy, at, 1, n, grad);
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    for (j = 0; j < n; j++)                                                                                            \
        value[j] = tegroup_impl_activation_grad_FSUF(kind, 0, alpha, limit, gate[j], up[j], scale * grad[j], &gate[j], \
                                                     &up[j]);
    TEGROUP_IMPL_BY_CURVE(desc->activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
    return tegroup_impl_dot_FSUF(grad, value, n, sum);
}

/* A piece of each operand is read before its gradients are stored, so grad_input may be one. */
TEGROUP_IMPL_STATIC void tegroup_impl_activation_grad_row_FSUF(const tegroup_activation_backward_desc *desc,
                                                               int64_t row) {
    const tegroup_matrix *out = &desc->grad_input, *dy = &desc->grad_output;
    int64_t width = dy->cols, step = desc->interleaved ? 2 : 1, to_up = desc->interleaved ? 1 : width, at;
    const void *x = tegroup_impl_matrix_row(&desc->input, row);
    void *dx = tegroup_impl_matrix_row(out, row);
    REAL scale = tegroup_impl_row_scale_FSUF(&desc->row_scale, row), sum = 0;
    REAL gate[TEGROUP_IMPL_PIECE], up[TEGROUP_IMPL_PIECE];
    for (at = 0; at < width; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, width - at);
        sum = tegroup_impl_activation_grad_piece_FSUF(desc, x, tegroup_impl_matrix_row(dy, row), scale, width, at, n,
                                                      sum, gate, up);
        tegroup_impl_store_row_FSUF(out->dtype, dx, step * at, step, n, gate);
        if (tegroup_impl_gated(desc->activation))
            tegroup_impl_store_row_FSUF(out->dtype, dx, step * at + to_up, step, n, up);
    }
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET)
        tegroup_impl_store_FSUF(desc->grad_row_scale.dtype, tegroup_impl_matrix_row(&desc->grad_row_scale, row), 0,
                                sum);
}
/* @end */

#define TEGROUP_IMPL_SOFT_LEAST 8.673617379884035e-19 /* 2^-60 */
#define TEGROUP_IMPL_SOFT_MOST 1.152921504606846976e18 /* 2^60 */

/* A bound of SITU_GLU whose inverse is a normal float, with room for what it multiplies. */
TEGROUP_IMPL_STATIC int tegroup_impl_soft_bound(double bound) {
    return bound >= TEGROUP_IMPL_SOFT_LEAST && bound <= TEGROUP_IMPL_SOFT_MOST;
}
TEGROUP_IMPL_STATIC double tegroup_impl_soft_bound_near(double bound) {
    return bound > TEGROUP_IMPL_SOFT_MOST ? TEGROUP_IMPL_SOFT_MOST : TEGROUP_IMPL_SOFT_LEAST;
}

/* What both descriptors say of the function itself. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_activation_kind(tegroup_activation kind, int32_t interleaved,
                                                                      double alpha, double limit,
                                                                      tegroup_error *error) {
    const int soft = kind == TEGROUP_ACTIVATION_SITU_GLU, takes = tegroup_impl_clamps(kind) || soft;
    TEGROUP_IMPL_RULE(kind != TEGROUP_ACTIVATION_UNSET, ERROR_UNSET, "activation", "must be set",
                      TEGROUP_ACTIVATION_SWIGLU, 0);
    TEGROUP_IMPL_RULE_ENUM(kind, TEGROUP_ACTIVATION_IDENTITY, "activation", "must be a tegroup_activation");
    TEGROUP_IMPL_RULE(interleaved == 0 || interleaved == 1, ERROR_VALUE, "interleaved", "must be 0 or 1", 1,
                      interleaved);
    TEGROUP_IMPL_RULE(!interleaved || tegroup_impl_gated(kind), ERROR_VALUE, "interleaved",
                      "must be 0 for an activation without gate and up", 0, interleaved);
    TEGROUP_IMPL_RULE_REAL(takes || alpha == 0, ERROR_VALUE, "alpha", "must be 0 for an activation that takes none", 0,
                           alpha);
    TEGROUP_IMPL_RULE_REAL(takes || limit == 0, ERROR_VALUE, "limit", "must be 0 for an activation that takes none", 0,
                           limit);
    TEGROUP_IMPL_RULE_REAL(alpha >= 0 && alpha <= TEGROUP_IMPL_LARGEST_f32, ERROR_VALUE, "alpha",
                           "must be 0 to the largest float", TEGROUP_IMPL_LARGEST_f32, alpha);
    TEGROUP_IMPL_RULE_REAL(limit >= 0, ERROR_VALUE, "limit", "must not be negative or NaN", 0, limit);
    TEGROUP_IMPL_RULE_REAL(!soft || alpha == 0 || tegroup_impl_soft_bound(alpha), ERROR_VALUE, "alpha",
                           "must be 0 or 2^-60 to 2^60 for SITU_GLU", tegroup_impl_soft_bound_near(alpha), alpha);
    TEGROUP_IMPL_RULE_REAL(!soft || limit == 0 || limit > TEGROUP_IMPL_LARGEST_f64 || tegroup_impl_soft_bound(limit),
                           ERROR_VALUE, "limit", "must be 0, 2^-60 to 2^60 or infinite for SITU_GLU",
                           tegroup_impl_soft_bound_near(limit), limit);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC int64_t tegroup_impl_activation_cols(tegroup_activation kind, int64_t width) {
    return tegroup_impl_gated(kind) ? 2 * width : width;
}

/* A layer with an activation: its row sizes must lie where its data does. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_activation_check_sizes(tegroup_space space, const tegroup_shape *input,
                                                                       tegroup_error *error) {
    TEGROUP_IMPL_RULE(space != TEGROUP_SPACE_DEVICE || input->row_sizes.space != TEGROUP_SPACE_HOST, ERROR_UNSUPPORTED,
                      "input.shape.row_sizes.space", "must be DEVICE: the activation's kernel reads the snapshot there",
                      TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);
    TEGROUP_IMPL_RULE(space != TEGROUP_SPACE_HOST || input->row_sizes.space != TEGROUP_SPACE_DEVICE, ERROR_UNSUPPORTED,
                      "input.shape.row_sizes.space", "must be HOST: the snapshot is read there", TEGROUP_SPACE_HOST,
                      TEGROUP_SPACE_DEVICE);
    return TEGROUP_OK;
}

/* What errors call the matrices of an activation and of its gradient: a layer that runs one has other words for
 * them. */
typedef struct tegroup_impl_matrix_name {
    const char *paths[5];    /* as TEGROUP_IMPL_MATRIX_PATHS */
    const char *apart;       /* the rule of another that shares its memory */
    const char *apart_or_it; /* ... and may do so where it is this one, and the operation in place */
} tegroup_impl_matrix_name;

typedef struct tegroup_impl_activation_names {
    tegroup_impl_matrix_name input, row_scale, output, grad_output, grad_input, grad_row_scale;
    const char *snapshot;
} tegroup_impl_activation_names;

TEGROUP_IMPL_STATIC const tegroup_impl_activation_names *tegroup_impl_activation_own_names(void) {
#define TEGROUP_IMPL_OWN(name)                                                                                         \
    {                                                                                                                  \
        TEGROUP_IMPL_MATRIX_PATHS(name), "must not overlap " name,                                                     \
            "must not overlap " name ", unless it is " name " with the same ld and dtype"                              \
    }
    static const tegroup_impl_activation_names names = {TEGROUP_IMPL_OWN("input"),
                                                        TEGROUP_IMPL_OWN("row_scale"),
                                                        TEGROUP_IMPL_OWN("output"),
                                                        TEGROUP_IMPL_OWN("grad_output"),
                                                        TEGROUP_IMPL_OWN("grad_input"),
                                                        TEGROUP_IMPL_OWN("grad_row_scale"),
                                                        "snapshot"};
#undef TEGROUP_IMPL_OWN
    return &names;
}

TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_named_buffer(const tegroup_matrix *m,
                                                                  const tegroup_impl_matrix_name *name, int writes) {
    return tegroup_impl_matrix_buffer(m, name->paths[0], name->apart, writes);
}

/* An operand that the result at `place` of the buffers may be: each of its elements comes from the one in the same
 * place. */
TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_twin_buffer(const tegroup_matrix *m,
                                                                 const tegroup_impl_matrix_name *name,
                                                                 const tegroup_matrix *result, int32_t place) {
    tegroup_impl_buffer buffer = tegroup_impl_named_buffer(m, name, 0);
    buffer.twin = place;
    if (result->data != m->data || result->dtype != m->dtype
        || tegroup_impl_matrix_ld(result) != tegroup_impl_matrix_ld(m))
        buffer.twin_apart = name->apart_or_it;
    return buffer;
}

/* Everything that tegroup_activation_forward checks before it starts. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_activation_check(const tegroup_activation_desc *desc,
                                                                 const tegroup_impl_activation_names *names,
                                                                 tegroup_error *error) {
    tegroup_impl_buffer buffers[4];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, desc->alpha, desc->limit, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->output, names->output.paths, -1, -1, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->input, names->input.paths, desc->output.rows,
                                               tegroup_impl_activation_cols(desc->activation, desc->output.cols),
                                               TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->row_scale, names->row_scale.paths, desc->output.rows, 1,
                                                 TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_ACTIVATION_KERNELS, desc->space, error));
    if (desc->snapshot)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_snapshot(desc->snapshot, names->snapshot, desc->output.rows, desc->space, error));
    buffers[0] = tegroup_impl_named_buffer(&desc->output, &names->output, 1);
    buffers[1] = tegroup_impl_gated(desc->activation)
                     ? tegroup_impl_named_buffer(&desc->input, &names->input, 0)
                     : tegroup_impl_twin_buffer(&desc->input, &names->input, &desc->output, 0);
    buffers[2] = tegroup_impl_named_buffer(&desc->row_scale, &names->row_scale, 0);
    buffers[3] = tegroup_impl_shapeless_snapshot_buffer(desc->snapshot, desc->space);
    return tegroup_impl_check_apart(buffers, 4, TEGROUP_CHECK_HOST, NULL, error);
}

/* The threads that an activation's rows are worth: each is looked up among the groups, and an element of one that a
 * group owns costs some eight steps. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_activation_team(int32_t limit, const tegroup_snapshot_view *view, int64_t rows,
                                                         int64_t width) {
    const double groups = view->header ? view->header->groups : 0,
                 owned = view->header ? (double)view->header->rows_total : (double)rows;
    return tegroup_impl_team(tegroup_impl_threads(limit), groups * (double)rows + 8 * owned * (double)width);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_activation_run(const tegroup_activation_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int64_t rows = tegroup_impl_matrix_rows(&desc->output);
    tegroup_snapshot_view view;
    int64_t row;
    (void)stream, (void)error;
#if TEGROUP_IMPL_ACTIVATION_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_activation_forward(desc, stream, error);
#endif
    view = tegroup_snapshot_read(desc->snapshot);
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
        tegroup_impl_activation_team(desc->threads, &view, rows, desc->output.cols)))
    for (row = 0; row < rows; row++) {
        if (!tegroup_impl_row_owned(&view, row)) continue;
        if (desc->input.dtype == TEGROUP_DTYPE_F64) tegroup_impl_activation_row_f64(desc, row);
        else tegroup_impl_activation_row_f32(desc, row);
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_activation_forward(const tegroup_activation_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_activation_forward")
    tegroup_activation_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_activation_check(desc, tegroup_impl_activation_own_names(), error));
    return tegroup_impl_activation_run(desc, stream, error);
}

/* The backward of a described activation; its gradients are left for the caller to fill in. */
TEGROUP_IMPL_STATIC void tegroup_impl_activation_backward_of(const tegroup_activation_desc *forward,
                                                             tegroup_activation_backward_desc *backward) {
    memset(backward, 0, sizeof *backward);
    backward->struct_size = sizeof *backward;
    backward->space = forward->space;
    backward->activation = forward->activation;
    backward->interleaved = forward->interleaved;
    backward->alpha = forward->alpha;
    backward->limit = forward->limit;
    backward->snapshot = forward->snapshot;
    backward->input = forward->input;
    backward->row_scale = forward->row_scale;
    backward->threads = forward->threads;
}

/* Everything that tegroup_activation_backward checks before it starts. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_activation_backward_check(const tegroup_activation_backward_desc *desc,
                                                                          const tegroup_impl_activation_names *names,
                                                                          tegroup_error *error) {
    tegroup_impl_buffer buffers[6];
    int64_t rows, cols;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, desc->alpha, desc->limit, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->grad_output, names->grad_output.paths, -1, -1, TEGROUP_IMPL_FLOATS, error));
    rows = desc->grad_output.rows;
    cols = tegroup_impl_activation_cols(desc->activation, desc->grad_output.cols);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->input, names->input.paths, rows, cols, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->grad_input, names->grad_input.paths, rows, cols, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->row_scale, names->row_scale.paths, rows, 1, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->grad_row_scale, names->grad_row_scale.paths, rows, 1,
                                                 TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_built(TEGROUP_IMPL_ACTIVATION_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS, desc->space, error));
    if (desc->snapshot)
        TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot(desc->snapshot, names->snapshot, rows, desc->space, error));
    buffers[0] = tegroup_impl_named_buffer(&desc->grad_row_scale, &names->grad_row_scale, 1);
    buffers[1] = tegroup_impl_named_buffer(&desc->grad_input, &names->grad_input, 1);
    buffers[2] = tegroup_impl_named_buffer(&desc->row_scale, &names->row_scale, 0);
    buffers[3] = tegroup_impl_gated(desc->activation)
                     ? tegroup_impl_named_buffer(&desc->grad_output, &names->grad_output, 0)
                     : tegroup_impl_twin_buffer(&desc->grad_output, &names->grad_output, &desc->grad_input, 1);
    buffers[4] = tegroup_impl_twin_buffer(&desc->input, &names->input, &desc->grad_input, 1);
    buffers[5] = tegroup_impl_shapeless_snapshot_buffer(desc->snapshot, desc->space);
    return tegroup_impl_check_apart(buffers, 6, TEGROUP_CHECK_HOST, NULL, error);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_activation_backward_run(const tegroup_activation_backward_desc *desc,
                                                                        struct CUstream_st *stream,
                                                                        tegroup_error *error) {
    const int64_t rows = desc->grad_output.rows;
    tegroup_snapshot_view view;
    int64_t row;
    (void)stream, (void)error;
#if TEGROUP_IMPL_ACTIVATION_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_activation_backward(desc, stream, error);
#endif
    view = tegroup_snapshot_read(desc->snapshot);
    if (desc->grad_output.cols == 0 && desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
        tegroup_impl_activation_team(desc->threads, &view, rows, 2 * desc->grad_output.cols)))
    for (row = 0; row < rows; row++) {
        if (!tegroup_impl_row_owned(&view, row)) continue;
        if (desc->input.dtype == TEGROUP_DTYPE_F64) tegroup_impl_activation_grad_row_f64(desc, row);
        else tegroup_impl_activation_grad_row_f32(desc, row);
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_activation_backward(const tegroup_activation_backward_desc *desc,
                                                       struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_activation_backward")
    tegroup_activation_backward_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_activation_backward_check(desc, tegroup_impl_activation_own_names(), error));
    return tegroup_impl_activation_backward_run(desc, stream, error);
}
