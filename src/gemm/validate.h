/* ---- Validate ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/validation_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/range.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/snapshot_checks.h"
#include "core/copies.h"
#include "core/stored_scales.h"
#include "core/apart.h"
#include "gemm/validate_values.h"

/* Bits for one group: its place, and its step in the prefix sums. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_validate_group(const tegroup_snapshot_view *view, int64_t capacity, int32_t g) {
    const int64_t rows = tegroup_impl_max(0, view->rows[g]);
    uint32_t bits = 0;
    const int64_t room = rows > 0 ? capacity : tegroup_impl_max(capacity, view->header->capacity_rows);
    if (view->rows[g] < -1 || view->start[g] < 0 || view->start[g] > room || rows > room - view->start[g])
        bits |= TEGROUP_VALIDATION_BOUNDS;
    if ((uint64_t)view->prefix[g + 1] - (uint64_t)view->prefix[g] /* what is there may be anything */
            != (uint64_t)tegroup_impl_ceil_div(rows, TEGROUP_GRANULE)
        || view->prefix[0] != 0)
        bits |= TEGROUP_VALIDATION_SUMS;
    return bits;
}

/* Is a row the group's? A start below 0, which prepare never writes, is no start. */
TEGROUP_IMPL_HD int tegroup_impl_validate_owns(const tegroup_snapshot_view *view, int32_t g, int64_t row) {
    return view->start[g] >= 0 && row >= view->start[g] && row - view->start[g] < view->rows[g];
}

/* Bits for the sums in the header, from those of the rows. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_validate_sums(const tegroup_snapshot_header *header, int64_t total, int64_t most,
                                                    int64_t end) {
    return header->rows_total != total || header->rows_max != most || header->rows_end != end ? TEGROUP_VALIDATION_SUMS
                                                                                              : 0;
}

/* The first bad element is kept as its number, row by row, -1 for none, until the record is closed. */
TEGROUP_IMPL_HD void tegroup_impl_validate_close(tegroup_validation *result, int64_t cols) {
    tegroup_validation_values *values = &result->owned;
    int32_t tail;
    for (tail = 0; tail < 2; tail++, values = &result->tail) {
        if (values->first_row < 0) continue;
        result->status |= tail ? TEGROUP_VALIDATION_TAIL : TEGROUP_VALIDATION_VALUES;
        values->first_col = values->first_row % cols;
        values->first_row /= cols;
    }
    if (result->scales.nans || result->scales.infinities || result->scales.negatives)
        result->status |= TEGROUP_VALIDATION_SCALES;
    if (result->scales.zeros) result->status |= TEGROUP_VALIDATION_ZERO_SCALES;
    result->magic = TEGROUP_VALIDATION_MAGIC;
}

/* Rows of the buffer: of every group when all are alike, else the capacity; and where such a row begins. */
TEGROUP_IMPL_HD int64_t tegroup_impl_validate_rows(const tegroup_tensor *t) {
    return t->shape.cols == 0 ? 0 : tegroup_impl_ragged(&t->shape) ? t->shape.rows : t->shape.groups * t->shape.rows;
}
TEGROUP_IMPL_HD int64_t tegroup_impl_validate_first(const tegroup_tensor *t, int64_t row) {
    if (tegroup_impl_ragged(&t->shape)) return row * tegroup_impl_ld(t);
    return row / t->shape.rows * tegroup_impl_group_stride(t) + row % t->shape.rows * tegroup_impl_ld(t);
}

/* A record before anything is found. */
TEGROUP_IMPL_HD void tegroup_impl_validate_open(tegroup_validation *result) {
    memset(result, 0, sizeof *result);
    result->bad_group = -1;
    result->owned.first_row = result->owned.first_col = result->tail.first_row = result->tail.first_col = -1;
    result->scales.first = result->scales.first_global = -1;
}

TEGROUP_IMPL_STATIC void tegroup_impl_validate_sizes(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                     tegroup_validation *result) {
    int64_t total = 0, most = 0, end = 0;
    int32_t g;
    if (!view->header) {
        result->status |= TEGROUP_VALIDATION_SNAPSHOT;
        return;
    }
    for (g = 0; g < t->shape.groups; g++) {
        uint32_t bits = tegroup_impl_validate_group(view, t->shape.rows, g);
        int64_t rows = tegroup_impl_max(0, view->rows[g]);
        result->status |= bits;
        if (bits && result->bad_group < 0) result->bad_group = g;
        total = (int64_t)((uint64_t)total + (uint64_t)rows); /* wraps, as an atomic sum does */
        most = tegroup_impl_max(most, rows);
        if (rows > 0) end = tegroup_impl_max(end, tegroup_impl_add(tegroup_impl_max(0, view->start[g]), rows));
    }
    result->snapshot_status = view->header->status;
    if (view->header->status) result->status |= TEGROUP_VALIDATION_SIZES;
    result->status |= tegroup_impl_validate_sums(view->header, total, most, end);
}

TEGROUP_IMPL_STATIC void tegroup_impl_validate_plain(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                     tegroup_validation *result) {
    int64_t row, col;
    int32_t g;
    for (row = 0; row < tegroup_impl_validate_rows(t); row++) {
        int owned = !tegroup_impl_ragged(&t->shape);
        tegroup_validation_values *values;
        for (g = 0; view->header && g < t->shape.groups && !owned; g++)
            owned = tegroup_impl_validate_owns(view, g, row);
        values = owned ? &result->owned : &result->tail;
        for (col = 0; col < t->shape.cols; col++) {
            int kind = tegroup_impl_kind(t->dtype, t->data, tegroup_impl_validate_first(t, row) + col);
            if (kind == TEGROUP_IMPL_FINITE) continue;
            if (kind == TEGROUP_IMPL_NAN) values->nans++;
            else values->infinities++;
            if (values->first_row < 0) values->first_row = row * t->shape.cols + col;
        }
    }
}

TEGROUP_IMPL_STATIC void tegroup_impl_validate_host(const tegroup_validate_desc *desc) {
    const tegroup_tensor *t = &desc->tensor;
    const tegroup_snapshot_view view = tegroup_impl_fitting_view(t);
    tegroup_impl_validate_open(desc->result);
    if (tegroup_impl_ragged(&t->shape)) tegroup_impl_validate_sizes(t, &view, desc->result);
    if (t->scaling == TEGROUP_SCALING_NONE) tegroup_impl_validate_plain(t, &view, desc->result);
    else tegroup_impl_validate_quantised(t, desc->columnwise, &view, desc->result);
    tegroup_impl_validate_close(desc->result, t->shape.cols);
}

#if defined(TEGROUP_IMPL_CUDA)
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_validate(const tegroup_validate_desc *desc,
                                                              struct CUstream_st *stream, tegroup_error *error);
#endif

TEGROUP_API tegroup_status tegroup_validate(const tegroup_validate_desc *desc, struct CUstream_st *stream,
                                            tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_validate")
    tegroup_validate_desc taken;
    static const tegroup_impl_name name = TEGROUP_IMPL_NAME("tensor");
    const tegroup_tensor *t;
    tegroup_impl_buffer buffers[5];
    int quantised, of_scales;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    t = &desc->tensor;
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(t, &name, error));
    quantised = t->scaling != TEGROUP_SCALING_NONE;
    TEGROUP_IMPL_RULE(desc->columnwise == 0 || desc->columnwise == 1, ERROR_VALUE, "columnwise", "must be 0 or 1", 1,
                      desc->columnwise);
    TEGROUP_IMPL_RULE(quantised || !desc->columnwise, ERROR_COMBINATION, "columnwise", "needs a scaling", 0, 1);
    TEGROUP_IMPL_RULE_NO_VALUES(t, desc->columnwise);
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&t->shape), ERROR_COMBINATION, "tensor.shape.col_sizes.encoding",
                      "must be unset, as must be elements: groups of one width are validated", 0, 1);
    TEGROUP_IMPL_RULE(!tegroup_impl_listed(t), ERROR_COMBINATION, "tensor.pointers_space",
                      "must be unset: one buffer is validated", 0, t->pointers_space);
    TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot_address(t, &name, error)); /* what it holds is data here */
    TEGROUP_IMPL_TRY(quantised ? tegroup_impl_check_copy(t, desc->columnwise, &name, error)
                               : tegroup_impl_check_data(t, &name, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_there(t->global_scale_inv, 0, sizeof(float), "tensor.global_scale_inv", error));
    TEGROUP_IMPL_RULE(desc->result != NULL, ERROR_NULL_ARGUMENT, "result", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(desc->result, sizeof(int64_t)), ERROR_ALIGNMENT, "result",
                      "must be aligned to its element", 8, (uintptr_t)desc->result % sizeof(int64_t));
    buffers[0] = tegroup_impl_buffer_of(desc->result, (int64_t)sizeof *desc->result, "result", NULL, 1);
    for (of_scales = 0; of_scales < 2; of_scales++)
        buffers[1 + of_scales] = quantised ? tegroup_impl_copy_buffer(t, &name, desc->columnwise, of_scales, 0)
                                           : tegroup_impl_tensor_buffer(t, &name, 0);
    buffers[3] = tegroup_impl_buffer_of(t->global_scale_inv, (int64_t)sizeof(float) * t->shape.groups, NULL,
                                        "must not overlap tensor.global_scale_inv", 0);
    buffers[4] = tegroup_impl_snapshot_buffer(t);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 5, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_built(quantised ? TEGROUP_IMPL_FP8_KERNELS : TEGROUP_IMPL_KERNELS, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(&t->shape, desc->space, "tensor.shape.row_sizes.space", error));
#if defined(TEGROUP_IMPL_CUDA)
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_validate(desc, stream, error);
#endif
    tegroup_impl_validate_host(desc);
    return TEGROUP_OK;
}
