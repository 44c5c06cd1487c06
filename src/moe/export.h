/* ---- Layouts of other libraries ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "moe/routing_types.h"
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

#if TEGROUP_IMPL_MOE_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_export(const tegroup_export_desc *desc, struct CUstream_st *stream,
                                                            tegroup_error *error);
#endif

/* Where a group lies, within the buffer whatever the snapshot says; rows -1: skipped. */
typedef struct tegroup_impl_span {
    int64_t start, rows;
} tegroup_impl_span;

TEGROUP_IMPL_HD tegroup_impl_span tegroup_impl_span_of(const tegroup_snapshot_view *view, int32_t g, int64_t capacity) {
    tegroup_impl_span span;
    span.start = tegroup_impl_clamp(view->start[g], 0, capacity);
    span.rows = tegroup_impl_clamp(view->rows[g], -1, capacity - span.start);
    return span;
}

/* The snapshot of a shape of so many groups. */
TEGROUP_IMPL_HD tegroup_impl_fit tegroup_impl_spans_fit(const tegroup_shape *shape, int32_t groups) {
    tegroup_impl_fit fit = tegroup_impl_fit_of_rows(shape->snapshot, shape->rows);
    fit.groups = groups;
    return fit;
}

/* What a row is as long as no group owns it. */
TEGROUP_IMPL_HD void tegroup_impl_export_row(const tegroup_export_desc *desc, int64_t row) {
    const tegroup_matrix *ids = &desc->sorted_ids;
    int64_t slot;
    if (row < desc->labels.cols) tegroup_impl_store_int(desc->labels.dtype, desc->labels.data, row, -1);
    tegroup_impl_store_int(desc->source_rows.dtype, desc->source_rows.data, row, -1);
    if (ids->dtype == TEGROUP_DTYPE_UNSET) return;
    slot = tegroup_impl_load_int(desc->slot_of_row.dtype, desc->slot_of_row.data, row);
    tegroup_impl_store_int(ids->dtype, ids->data, row, tegroup_impl_within(slot, desc->slots) ? slot : desc->slots);
}

/* Row i of group g, which lies at `from` in the other buffer. */
TEGROUP_IMPL_HD void tegroup_impl_export_owned(const tegroup_export_desc *desc, int32_t g, tegroup_impl_span span,
                                               tegroup_impl_span from, int64_t i) {
    const int64_t row = span.start + i;
    if (desc->block <= 1) tegroup_impl_store_int(desc->labels.dtype, desc->labels.data, row, g);
    else if (row % desc->block == 0)
        tegroup_impl_store_int(desc->labels.dtype, desc->labels.data, row / desc->block, g);
    if (i < from.rows) tegroup_impl_store_int(desc->source_rows.dtype, desc->source_rows.data, row, from.start + i);
}

TEGROUP_IMPL_HD void tegroup_impl_export_group(const tegroup_export_desc *desc, int32_t g, tegroup_impl_span span) {
    const tegroup_matrix *offsets = &desc->offsets;
    const int64_t rows = tegroup_impl_max(0, span.rows);
    tegroup_impl_store_int(desc->counts.dtype, desc->counts.data, g, span.rows);
    tegroup_impl_store_int(desc->ends.dtype, desc->ends.data, g, span.start + rows);
    tegroup_impl_store_int(offsets->dtype, offsets->data, g, span.start);
    if (g + 1 == desc->shape.groups)
        tegroup_impl_store_int(offsets->dtype, offsets->data, desc->shape.groups,
                               tegroup_impl_align(span.start + rows, tegroup_impl_max(1, desc->block)));
}

/* A shape whose snapshot the call reads, of so many groups. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_spans(const tegroup_shape *shape, int32_t groups,
                                                            tegroup_space space, const char *const paths[4],
                                                            tegroup_error *error) {
    tegroup_impl_fit fit;
    TEGROUP_IMPL_RULE(shape->groups >= 0 && shape->groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, paths[0],
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, shape->groups);
    TEGROUP_IMPL_RULE(shape->groups == groups, ERROR_SHAPE, paths[0], "must be shape.groups", groups, shape->groups);
    TEGROUP_IMPL_RULE(shape->rows >= 0 && shape->rows <= TEGROUP_MAX_COLS, ERROR_VALUE, paths[1],
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, shape->rows);
    TEGROUP_IMPL_RULE(shape->snapshot != NULL, ERROR_NULL_ARGUMENT, paths[2], "must not be NULL: prepare first", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(shape->snapshot, TEGROUP_ALIGNMENT), ERROR_ALIGNMENT, paths[2],
                      "must be 256-byte aligned", TEGROUP_ALIGNMENT, (uintptr_t)shape->snapshot % TEGROUP_ALIGNMENT);
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(shape, space, paths[3], error));
    if (space == TEGROUP_SPACE_DEVICE) return TEGROUP_OK; /* the kernels look into that one */
    fit = tegroup_impl_spans_fit(shape, groups);
    return tegroup_impl_check_fit(&fit, paths[2], "must have all groups within shape.rows rows", error);
}

/* What is written: ITEM(member, columns, the largest number). */
#define TEGROUP_IMPL_EXPORTS(ITEM)                                                                                     \
    ITEM(counts, groups, rows)                                                                                         \
    ITEM(offsets, groups + 1, tegroup_impl_add(rows, block))                                                           \
    ITEM(ends, groups, rows)                                                                                           \
    ITEM(labels, tegroup_impl_ceil_div(rows, block), groups)                                                           \
    ITEM(sorted_ids, rows, desc->slots)                                                                                \
    ITEM(source_rows, rows, desc->from.rows)

TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_spans_buffer(const tegroup_shape *shape, const char *apart) {
    tegroup_layout layout;
    tegroup_impl_snapshot_layout(shape->groups, tegroup_impl_irregular(shape), &layout);
    return tegroup_impl_buffer_of(shape->snapshot, shape->snapshot ? (int64_t)layout.total_bytes : 0, NULL, apart, 0);
}

/* What is read besides the snapshot comes with what is made of it. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_export_check_inputs(const tegroup_export_desc *desc,
                                                                    tegroup_error *error) {
    static const char *const from[4] = {"from.groups", "from.rows", "from.snapshot", "from.row_sizes.space"},
                             *const slot_of_row[5] = TEGROUP_IMPL_MATRIX_PATHS("slot_of_row");
    TEGROUP_IMPL_RULE(desc->slots >= 0 && desc->slots <= TEGROUP_MAX_COLS, ERROR_VALUE, "slots",
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, desc->slots);
    if (desc->sorted_ids.dtype != TEGROUP_DTYPE_UNSET) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->slot_of_row, slot_of_row, 1, desc->shape.rows,
                                                   TEGROUP_IMPL_INTEGERS, error));
    } else {
        TEGROUP_IMPL_RULE_AS(DTYPE, desc->slot_of_row.dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION, slot_of_row[4],
                             "must be UNSET without sorted_ids", TEGROUP_DTYPE_UNSET, desc->slot_of_row.dtype);
        TEGROUP_IMPL_RULE(desc->slots == 0, ERROR_COMBINATION, "slots", "must be 0 without sorted_ids", 0, desc->slots);
    }
    if (desc->source_rows.dtype != TEGROUP_DTYPE_UNSET)
        return tegroup_impl_check_spans(&desc->from, desc->shape.groups, desc->space, from, error);
    TEGROUP_IMPL_RULE(desc->from.snapshot == NULL, ERROR_COMBINATION, "from.snapshot",
                      "must be NULL without source_rows", 0, 1);
    TEGROUP_IMPL_RULE(desc->from.groups == 0, ERROR_COMBINATION, "from.groups", "must be 0 without source_rows", 0,
                      desc->from.groups);
    TEGROUP_IMPL_RULE(desc->from.rows == 0, ERROR_COMBINATION, "from.rows", "must be 0 without source_rows", 0,
                      desc->from.rows);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_export_check(const tegroup_export_desc *desc, tegroup_error *error) {
    static const char *const shape[4] = {"shape.groups", "shape.rows", "shape.snapshot", "shape.row_sizes.space"};
    const int64_t block = tegroup_impl_max(1, desc->block), groups = desc->shape.groups, rows = desc->shape.rows;
    tegroup_impl_buffer buffers[9];
    int32_t count = 0, wanted = 0;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_RULE(desc->block >= 0 && desc->block <= TEGROUP_MAX_COLS, ERROR_VALUE, "block",
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, desc->block);
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_spans(&desc->shape, desc->shape.groups, desc->space, shape, error));
    TEGROUP_IMPL_TRY(tegroup_impl_export_check_inputs(desc, error));
#define TEGROUP_IMPL_EXPORT(member, columns, most)                                                                     \
    {                                                                                                                  \
        static const char *const paths[5] = TEGROUP_IMPL_MATRIX_PATHS(#member);                                        \
        TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->member, paths, 1, columns, TEGROUP_IMPL_INTEGERS, error)); \
        TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->member, paths, most, error));                                 \
        wanted += desc->member.dtype != TEGROUP_DTYPE_UNSET;                                                           \
        buffers[count++] = tegroup_impl_matrix_buffer(&desc->member, paths[0], "must not overlap " #member, 1);        \
    }
    TEGROUP_IMPL_EXPORTS(TEGROUP_IMPL_EXPORT)
#undef TEGROUP_IMPL_EXPORT
    TEGROUP_IMPL_RULE_AS(DTYPES, wanted > 0, ERROR_UNSET, "counts.dtype", "must be set where nothing else is",
                         TEGROUP_IMPL_INTEGERS, 0);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->slot_of_row, NULL, "must not overlap slot_of_row", 0);
    buffers[count++] = tegroup_impl_spans_buffer(&desc->shape, "must not overlap shape.snapshot");
    buffers[count++] = tegroup_impl_spans_buffer(&desc->from, "must not overlap from.snapshot");
    return tegroup_impl_check_apart(buffers, count, TEGROUP_CHECK_HOST, NULL, error);
}

TEGROUP_API tegroup_status tegroup_export(const tegroup_export_desc *desc, struct CUstream_st *stream,
                                          tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_export")
    tegroup_export_desc taken;
    tegroup_snapshot_view view, other;
    int64_t row, i;
    int32_t g;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_export_check(desc, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_export(desc, stream, error);
#endif
    view = tegroup_snapshot_read(desc->shape.snapshot);
    other = tegroup_snapshot_read(desc->from.snapshot);
    if (desc->shape.groups == 0) tegroup_impl_store_int(desc->offsets.dtype, desc->offsets.data, 0, 0);
    TEGROUP_IMPL_OMP(omp parallel private(row, g, i) num_threads(
        tegroup_impl_team(tegroup_impl_threads(desc->threads), 2 * (double)desc->shape.rows)))
    {
        TEGROUP_IMPL_OMP(omp for schedule(static))
        for (row = 0; row < desc->shape.rows; row++) tegroup_impl_export_row(desc, row);
        TEGROUP_IMPL_OMP(omp for schedule(dynamic, 1))
        for (g = 0; g < desc->shape.groups; g++) {
            const tegroup_impl_span span = tegroup_impl_span_of(&view, g, desc->shape.rows), none = {0, 0},
                                    from = other.header ? tegroup_impl_span_of(&other, g, desc->from.rows) : none;
            tegroup_impl_export_group(desc, g, span);
            for (i = 0; i < span.rows; i++) tegroup_impl_export_owned(desc, g, span, from, i);
        }
    }
    return TEGROUP_OK;
}
