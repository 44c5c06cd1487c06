/* ---- Expert parallelism: rows of one token in one window ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "ep/ep_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "base/range.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/apart.h"
#include "cpu/rows.h"
#include "moe/router_scheme.h"
#include "moe/permute.h"
#include "moe/export.h"
#include "ep/places.h"

#if TEGROUP_IMPL_EP_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_ep_expand(const tegroup_ep_links_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error);
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_ep_reduce(const tegroup_ep_links_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error);
#endif

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_ep_links_check(const tegroup_ep_links_desc *desc, uint32_t dtypes,
                                                               tegroup_error *error) {
    static const char *const shape[4] = {"shape.groups", "shape.rows", "shape.snapshot", "shape.row_sizes.space"},
                             *const links[5] = TEGROUP_IMPL_MATRIX_PATHS("row_links"),
                             *const rows[5] = TEGROUP_IMPL_MATRIX_PATHS("rows"),
                             *const scales[5] = TEGROUP_IMPL_MATRIX_PATHS("row_scales");
    tegroup_impl_buffer buffers[4];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_EP_KERNELS, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_spans(&desc->shape, desc->shape.groups, desc->space, shape, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->row_links, links, desc->shape.rows, 1, 1u << TEGROUP_DTYPE_I32, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->rows, rows, desc->shape.rows, -1, dtypes, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->row_scales, scales, desc->shape.rows, -1,
                                                 TEGROUP_IMPL_FLOATS | TEGROUP_IMPL_BYTES, error));
    buffers[0] = tegroup_impl_matrix_buffer(&desc->rows, rows[0], "must not overlap rows", 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->row_scales, scales[0], "must not overlap row_scales", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->row_links, NULL, "must not overlap row_links", 0);
    buffers[3] = tegroup_impl_spans_buffer(&desc->shape, "must not overlap shape.snapshot");
    return tegroup_impl_check_apart(buffers, 4, TEGROUP_CHECK_HOST, NULL, error);
}

/* The other rows of the token whose first is `row`, in the order of its slots. Returns how many. */
TEGROUP_IMPL_HD int32_t tegroup_impl_ep_others(const tegroup_matrix *links, int64_t row,
                                               int64_t others[TEGROUP_IMPL_CHOICES]) {
    int32_t count = 0;
    int64_t next = tegroup_impl_ep_next(links, row, 1);
    for (; next >= 0 && count < TEGROUP_IMPL_CHOICES - 1; next = tegroup_impl_ep_next(links, next, 0))
        others[count++] = next;
    return count;
}

/* ---- on the CPU ---- */

/* @each-real */
TEGROUP_IMPL_STATIC void tegroup_impl_ep_reduce_row_FSUF(const tegroup_matrix *rows, int64_t row, const int64_t *others,
                                                         int32_t count) {
    char *to = tegroup_impl_matrix_row(rows, row);
    REAL sum[TEGROUP_IMPL_PIECE];
    int64_t at;
    int32_t j;
    for (at = 0; at < rows->cols; at += TEGROUP_IMPL_PIECE) {
        const int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, rows->cols - at);
        tegroup_impl_load_row_FSUF(rows->dtype, to, at, 1, n, sum);
        for (j = 0; j < count; j++)
            tegroup_impl_add_row_FSUF(rows->dtype, tegroup_impl_matrix_row(rows, others[j]), at, n, 1, sum);
        tegroup_impl_store_row_FSUF(rows->dtype, to, at, 1, n, sum);
    }
}
/* @end */

TEGROUP_IMPL_STATIC void tegroup_impl_ep_reduce_row(const tegroup_ep_links_desc *desc, int64_t row,
                                                    const int64_t *others, int32_t count) {
    if (count == 0) return;
    if (desc->rows.dtype == TEGROUP_DTYPE_F64) tegroup_impl_ep_reduce_row_f64(&desc->rows, row, others, count);
    else tegroup_impl_ep_reduce_row_f32(&desc->rows, row, others, count);
}

TEGROUP_IMPL_STATIC void tegroup_impl_ep_expand_row(const tegroup_ep_links_desc *desc, int64_t row,
                                                    const int64_t *others, int32_t count) {
    const tegroup_matrix *const matrices[2] = {&desc->rows, &desc->row_scales};
    int32_t i, j;
    for (i = 0; i < 2; i++) {
        const tegroup_matrix *m = matrices[i];
        if (!tegroup_impl_there(m) || m->cols == 0) continue;
        for (j = 0; j < count; j++)
            memcpy(tegroup_impl_matrix_row(m, others[j]), tegroup_impl_matrix_row(m, row),
                   (size_t)m->cols * tegroup_impl_element(m->dtype));
    }
}

/* Calls one of them for the first row of each token. Tokens of honest links share no row, so that threads may have some
 * each. */
TEGROUP_IMPL_STATIC void tegroup_impl_ep_each_token(const tegroup_ep_links_desc *desc,
                                                    void (*work)(const tegroup_ep_links_desc *, int64_t,
                                                                 const int64_t *, int32_t)) {
    const tegroup_snapshot_view view = tegroup_snapshot_read(desc->shape.snapshot);
    int32_t g;
    for (g = 0; g < desc->shape.groups; g++) {
        const tegroup_impl_span span = tegroup_impl_span_of(&view, g, desc->shape.rows);
        int64_t i;
        TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
            tegroup_impl_rows_team(desc->threads, tegroup_impl_max(0, span.rows), 1, desc->rows.cols)))
        for (i = 0; i < span.rows; i++) {
            int64_t others[TEGROUP_IMPL_CHOICES];
            work(desc, span.start + i, others, tegroup_impl_ep_others(&desc->row_links, span.start + i, others));
        }
    }
}

TEGROUP_API tegroup_status tegroup_ep_expand(const tegroup_ep_links_desc *desc, struct CUstream_st *stream,
                                             tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_ep_expand")
    tegroup_ep_links_desc taken;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_ep_links_check(desc, TEGROUP_IMPL_FLOATS | TEGROUP_IMPL_BYTES, error));
#if TEGROUP_IMPL_EP_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_ep_expand(desc, stream, error);
#endif
    tegroup_impl_ep_each_token(desc, tegroup_impl_ep_expand_row);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_ep_reduce(const tegroup_ep_links_desc *desc, struct CUstream_st *stream,
                                             tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_ep_reduce")
    tegroup_ep_links_desc taken;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_ep_links_check(desc, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_RULE_AS(DTYPE, !tegroup_impl_there(&desc->row_scales), ERROR_COMBINATION, "row_scales.dtype",
                         "must be UNSET: rows with scales are not added", TEGROUP_DTYPE_UNSET, desc->row_scales.dtype);
#if TEGROUP_IMPL_EP_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_ep_reduce(desc, stream, error);
#endif
    tegroup_impl_ep_each_token(desc, tegroup_impl_ep_reduce_row);
    return TEGROUP_OK;
}
