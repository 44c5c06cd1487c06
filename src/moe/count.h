/* ---- Counts of groups ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "moe/routing_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "base/range.h"
#include "formats/convert.h"
#include "core/checks.h"
#include "core/apart.h"

#if TEGROUP_IMPL_MOE_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_count(const tegroup_count_desc *desc, struct CUstream_st *stream,
                                                           tegroup_error *error);
#endif

/* Every element of a matrix of I32 or I64 becomes x; an absent one is left alone. */
TEGROUP_IMPL_STATIC void tegroup_impl_fill_ints(const tegroup_matrix *m, int64_t x) {
    int64_t i, j;
    if (m->dtype == TEGROUP_DTYPE_UNSET) return;
    for (i = 0; i < tegroup_impl_matrix_rows(m); i++)
        for (j = 0; j < m->cols; j++) tegroup_impl_store_int(m->dtype, tegroup_impl_matrix_row(m, i), j, x);
}

/* Any thread may add. */
TEGROUP_IMPL_STATIC void tegroup_impl_count_one(const tegroup_matrix *counts, int64_t g) {
    if (counts->dtype == TEGROUP_DTYPE_I32) {
        TEGROUP_IMPL_OMP(omp atomic)
        ((tegroup_impl_any32 *)counts->data)[g] += 1;
    } else if (counts->dtype == TEGROUP_DTYPE_I64) {
        TEGROUP_IMPL_OMP(omp atomic)
        ((tegroup_impl_any64 *)counts->data)[g] += 1;
    }
}

/* Rows that labels are of. */
TEGROUP_IMPL_HD int64_t tegroup_impl_count_rows(const tegroup_count_desc *desc) {
    return desc->slot_of_row.dtype != TEGROUP_DTYPE_UNSET ? desc->slot_of_row.cols
                                                          : tegroup_impl_mul(desc->labels.rows, desc->labels.cols);
}

/* Rows before padding begins. */
TEGROUP_IMPL_HD int64_t tegroup_impl_count_used(const tegroup_count_desc *desc) {
    const tegroup_matrix *m = &desc->padded_rows;
    return m->dtype != TEGROUP_DTYPE_UNSET ? tegroup_impl_load_int(m->dtype, m->data, 0)
                                           : tegroup_impl_count_rows(desc);
}

/* The slot of a row; -1 = none, or rows have no slots. */
TEGROUP_IMPL_HD int64_t tegroup_impl_count_slot(const tegroup_count_desc *desc, int64_t row, int64_t used) {
    const tegroup_matrix *map = &desc->slot_of_row;
    int64_t slot;
    if (map->dtype == TEGROUP_DTYPE_UNSET || row >= used) return -1;
    slot = tegroup_impl_load_int(map->dtype, map->data, row);
    return tegroup_impl_within(slot, desc->row_of_slot.rows * desc->row_of_slot.cols) ? slot : -1;
}

/* The group that a row is of, by the label at element `at`; -1 = none. */
TEGROUP_IMPL_HD int64_t tegroup_impl_count_group(const tegroup_count_desc *desc, int64_t at, int64_t slot) {
    int64_t label;
    if (desc->slot_of_row.dtype != TEGROUP_DTYPE_UNSET && slot < 0) return -1;
    label = tegroup_impl_load_int(desc->labels.dtype, desc->labels.data, at);
    return tegroup_impl_within(label, desc->groups) ? label : -1;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_count_check_slots(const tegroup_count_desc *desc,
                                                                  tegroup_error *error) {
    static const char *const labels[5] = TEGROUP_IMPL_MATRIX_PATHS("labels"),
                             *const slot_of_row[5] = TEGROUP_IMPL_MATRIX_PATHS("slot_of_row"),
                             *const padded_rows[5] = TEGROUP_IMPL_MATRIX_PATHS("padded_rows"),
                             *const row_of_slot[5] = TEGROUP_IMPL_MATRIX_PATHS("row_of_slot");
    const int slotted = desc->slot_of_row.dtype != TEGROUP_DTYPE_UNSET;
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->slot_of_row, slot_of_row, 1, -1, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_RULE(desc->block >= 0 && desc->block <= (slotted ? TEGROUP_MAX_COLS : 1), ERROR_VALUE, "block",
                      "must be 0 to TEGROUP_MAX_COLS, or without slot_of_row to 1", slotted ? TEGROUP_MAX_COLS : 1,
                      desc->block);
    TEGROUP_IMPL_RULE_AS(DTYPE, slotted || desc->padded_rows.dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                         padded_rows[4], "must be UNSET without slot_of_row", TEGROUP_DTYPE_UNSET,
                         desc->padded_rows.dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->padded_rows, padded_rows, 1, 1, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_RULE_AS(DTYPE, slotted || desc->row_of_slot.dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                         row_of_slot[4], "must be UNSET without slot_of_row", TEGROUP_DTYPE_UNSET,
                         desc->row_of_slot.dtype);
    if (!slotted) return tegroup_impl_check_matrix(&desc->labels, labels, -1, -1, TEGROUP_IMPL_INTEGERS, error);
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->row_of_slot, row_of_slot, -1, -1, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->row_of_slot, row_of_slot, desc->slot_of_row.cols, error));
    return tegroup_impl_check_matrix(&desc->labels, labels, 1,
                                     tegroup_impl_ceil_div(desc->slot_of_row.cols, tegroup_impl_max(1, desc->block)),
                                     TEGROUP_IMPL_INTEGERS, error);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_count_check(const tegroup_count_desc *desc, tegroup_error *error) {
    static const char *const counts[5] = TEGROUP_IMPL_MATRIX_PATHS("counts"),
                             *const offsets[5] = TEGROUP_IMPL_MATRIX_PATHS("offsets"),
                             *const starts[5] = TEGROUP_IMPL_MATRIX_PATHS("starts");
    const int64_t groups = desc->groups;
    int64_t most;
    tegroup_impl_buffer buffers[7];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(groups >= 0 && groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, groups);
    TEGROUP_IMPL_TRY(tegroup_impl_count_check_slots(desc, error));
    most = tegroup_impl_count_rows(desc);
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->counts, counts, 1, groups, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->counts, counts, most, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->offsets, offsets, 1, groups + 1, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->offsets, offsets, most, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->starts, starts, 1, groups, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->starts, starts, most, error));
    buffers[0] = tegroup_impl_matrix_buffer(&desc->offsets, offsets[0], NULL, 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->counts, counts[0], "must not overlap counts", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->starts, starts[0], "must not overlap starts", 1);
    buffers[3] = tegroup_impl_matrix_buffer(&desc->row_of_slot, "row_of_slot.data", "must not overlap row_of_slot", 1);
    buffers[4] = tegroup_impl_matrix_buffer(&desc->labels, NULL, "must not overlap labels", 0);
    buffers[5] = tegroup_impl_matrix_buffer(&desc->slot_of_row, NULL, "must not overlap slot_of_row", 0);
    buffers[6] = tegroup_impl_matrix_buffer(&desc->padded_rows, NULL, "must not overlap padded_rows", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 7, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error);
}

/* A row of the label at element `at`: counted, and the first of its group, and its slot's, where these are wanted. */
TEGROUP_IMPL_STATIC void tegroup_impl_count_row(const tegroup_count_desc *desc, int64_t row, int64_t at, int64_t used) {
    const tegroup_matrix *starts = &desc->starts, *rows = &desc->row_of_slot;
    const int64_t slot = tegroup_impl_count_slot(desc, row, used), g = tegroup_impl_count_group(desc, at, slot);
    if (g < 0) return;
    tegroup_impl_count_one(&desc->counts, g);
    if (starts->dtype != TEGROUP_DTYPE_UNSET && tegroup_impl_load_int(starts->dtype, starts->data, g) < 0)
        tegroup_impl_store_int(starts->dtype, starts->data, g, row);
    if (slot >= 0)
        tegroup_impl_store_int(rows->dtype, tegroup_impl_matrix_row(rows, slot / rows->cols), slot % rows->cols, row);
}

/* Offsets from counts, and 0 for the starts of groups that have none. */
TEGROUP_IMPL_STATIC void tegroup_impl_count_sum(const tegroup_count_desc *desc) {
    const tegroup_matrix *starts = &desc->starts;
    int64_t g, before = 0;
    for (g = 0; g <= desc->groups; g++) {
        tegroup_impl_store_int(desc->offsets.dtype, desc->offsets.data, g, before);
        if (g == desc->groups) return;
        before += tegroup_impl_load_int(desc->counts.dtype, desc->counts.data, g);
        if (starts->dtype != TEGROUP_DTYPE_UNSET && tegroup_impl_load_int(starts->dtype, starts->data, g) < 0)
            tegroup_impl_store_int(starts->dtype, starts->data, g, 0);
    }
}

TEGROUP_API tegroup_status tegroup_count(const tegroup_count_desc *desc, struct CUstream_st *stream,
                                         tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_count")
    tegroup_count_desc taken;
    int64_t t, j, row, end, rows, used, block;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_count_check(desc, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_count(desc, stream, error);
#endif
    rows = tegroup_impl_count_rows(desc);
    used = tegroup_impl_count_used(desc);
    block = tegroup_impl_max(1, desc->block);
    tegroup_impl_fill_ints(&desc->counts, 0);
    tegroup_impl_fill_ints(&desc->starts, -1);
    tegroup_impl_fill_ints(&desc->row_of_slot, -1);
    for (t = 0; t < tegroup_impl_matrix_rows(&desc->labels); t++)
        for (j = 0; j < desc->labels.cols; j++) {
            row = (t * desc->labels.cols + j) * block;
            end = tegroup_impl_min(rows, row + block);
            for (; row < end; row++)
                tegroup_impl_count_row(desc, row, t * tegroup_impl_matrix_ld(&desc->labels) + j, used);
        }
    tegroup_impl_count_sum(desc);
    return TEGROUP_OK;
}
