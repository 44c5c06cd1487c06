/* ---- Checks of a snapshot ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/tensor_checks.h"

/* Each group of a snapshot must lie inside the tensor: what the header says, unless somebody wrote over it. A group
 * without rows may begin anywhere in the buffer that was prepared. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_groups(const tegroup_tensor *t, const char *field,
                                                             tegroup_error *error) {
    tegroup_snapshot_view view = tegroup_snapshot_read(t->shape.snapshot);
    int64_t total = 0;
    int32_t g;
    for (g = 0; g < view.header->groups; g++) {
        int64_t rows = tegroup_impl_max(0, view.rows[g]), cols = view.cols ? view.cols[g] : t->shape.cols;
        int64_t ld = t->ld > 0 ? t->ld : cols, end = tegroup_impl_add(tegroup_impl_max(0, view.start[g]), rows);
        const int64_t room = rows > 0 ? t->shape.rows : tegroup_impl_max(t->shape.rows, view.header->capacity_rows);
        TEGROUP_IMPL_RULE(view.rows[g] >= -1 && view.start[g] >= 0 && end <= room, ERROR_CAPACITY, field,
                          "must keep each group within shape.rows", room, end);
        total = tegroup_impl_add(total, rows); /* scales lie one group after another */
        TEGROUP_IMPL_RULE(t->scaling == TEGROUP_SCALING_NONE || total <= t->shape.rows, ERROR_CAPACITY, field,
                          "must have at most shape.rows rows in all groups of a quantised tensor", t->shape.rows,
                          total);
        if (!view.cols) continue;
        TEGROUP_IMPL_RULE(cols >= 0 && cols <= t->shape.cols, ERROR_CAPACITY, field,
                          "must keep each group within shape.cols", t->shape.cols, cols);
        if (tegroup_impl_listed(t)) continue;
        end = tegroup_impl_max(0, view.offset[g]);
        if (rows > 0 && cols > 0) end = tegroup_impl_add(end, tegroup_impl_add(tegroup_impl_mul(rows - 1, ld), cols));
        TEGROUP_IMPL_RULE(view.offset[g] >= 0 && end <= t->shape.elements, ERROR_CAPACITY, field,
                          "must keep each group within shape.elements", t->shape.elements, end);
    }
    return TEGROUP_OK;
}

/* A ragged tensor's snapshot: its address, and what a host may read of it. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_snapshot_address(const tegroup_tensor *t,
                                                                       const tegroup_impl_name *name,
                                                                       tegroup_error *error) {
    const tegroup_shape *shape = &t->shape;
    if (!tegroup_impl_ragged(shape)) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(shape->snapshot != NULL, ERROR_NULL_ARGUMENT, TEGROUP_IMPL_PATH(SNAPSHOT),
                      "must not be NULL: prepare first", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(shape->snapshot, TEGROUP_ALIGNMENT), ERROR_ALIGNMENT,
                      TEGROUP_IMPL_PATH(SNAPSHOT), "must be 256-byte aligned", TEGROUP_ALIGNMENT,
                      (uintptr_t)shape->snapshot % TEGROUP_ALIGNMENT);
    return TEGROUP_OK;
}

/* What a snapshot must be, to serve a tensor: its groups lie within the tensor's rows, however many it was prepared
 * for, and it was prepared for at most the tensor's columns and elements. */
typedef struct tegroup_impl_fit {
    const tegroup_snapshot_header *header; /* NULL: the tensor has none */
    int64_t rows, cols, elements, ld;      /* at most; ld: -1 = any     */
    int32_t groups, irregular;
} tegroup_impl_fit;

TEGROUP_IMPL_HD tegroup_impl_fit tegroup_impl_fit_of(const tegroup_tensor *t) {
    const int bounded = tegroup_impl_irregular(&t->shape)
                        && !tegroup_impl_listed(t); /* of others nothing is read but rows and columns */
    tegroup_impl_fit fit;
    fit.header = t->dtype != TEGROUP_DTYPE_UNSET && tegroup_impl_ragged(&t->shape)
                     ? (const tegroup_snapshot_header *)t->shape.snapshot
                     : NULL;
    fit.rows = t->shape.rows;
    fit.cols = tegroup_impl_irregular(&t->shape) ? t->shape.cols : INT64_MAX;
    fit.elements = bounded ? t->shape.elements : INT64_MAX;
    fit.ld = bounded ? t->ld : -1;
    fit.groups = t->shape.groups;
    fit.irregular = tegroup_impl_irregular(&t->shape);
    return fit;
}

/* The same for a snapshot that comes without a shape, for a matrix of so many rows. */
TEGROUP_IMPL_HD tegroup_impl_fit tegroup_impl_fit_of_rows(const void *snapshot, int64_t rows) {
    tegroup_impl_fit fit;
    fit.header = (const tegroup_snapshot_header *)snapshot;
    fit.rows = rows;
    fit.cols = fit.elements = INT64_MAX;
    fit.ld = -1;
    fit.groups = fit.header ? (int32_t)tegroup_impl_clamp(fit.header->groups, 0, TEGROUP_MAX_GROUPS) : 0;
    fit.irregular = fit.header && fit.header->irregular != 0;
    return fit;
}

/* The rules of it, RULE(what must hold, in words, expected, got), of a header and a fit: a host names the one that is
 * broken, a kernel takes a snapshot that breaks one for none. In host memory or not, nothing else of it is read
 * before. */
#define TEGROUP_IMPL_FIT_RULES(RULE, rows_words)                                                                       \
    RULE(header->magic == TEGROUP_SNAPSHOT_MAGIC, "must be what tegroup_prepare wrote", TEGROUP_SNAPSHOT_MAGIC,        \
         header->magic)                                                                                                \
    RULE(header->groups == fit->groups, "must be of as many groups", fit->groups, header->groups)                      \
    RULE(header->rows_end <= fit->rows, rows_words, fit->rows, header->rows_end)                                       \
    RULE(header->irregular == fit->irregular,                                                                          \
         "must be of a shape with col_sizes or elements just when this one has them", fit->irregular,                  \
         header->irregular)                                                                                            \
    RULE(header->capacity_cols <= fit->cols, "must be prepared for at most shape.cols columns", fit->cols,             \
         header->capacity_cols)                                                                                        \
    RULE(header->capacity_elements <= fit->elements, "must be prepared for at most shape.elements elements",           \
         fit->elements, header->capacity_elements)                                                                     \
    RULE(fit->ld < 0 || header->ld == fit->ld, "must be prepared with this ld", fit->ld, header->ld)

TEGROUP_IMPL_HD int tegroup_impl_fits(const tegroup_impl_fit *fit) {
    const tegroup_snapshot_header *header = fit->header;
#define TEGROUP_IMPL_AND(holds, words, expected, got) &(holds) /* without a branch, so that all are read at once */
    return !header || (1 TEGROUP_IMPL_FIT_RULES(TEGROUP_IMPL_AND, ""));
#undef TEGROUP_IMPL_AND
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_fit(const tegroup_impl_fit *fit, const char *field,
                                                          const char *rows_words, tegroup_error *error) {
    const tegroup_snapshot_header *header = fit->header;
#define TEGROUP_IMPL_REFUSE(holds, words, expected, got)                                                               \
    TEGROUP_IMPL_RULE(holds, ERROR_CAPACITY, field, words, expected, got);
    TEGROUP_IMPL_FIT_RULES(TEGROUP_IMPL_REFUSE, rows_words)
#undef TEGROUP_IMPL_REFUSE
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_prepared(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                               tegroup_check_level level, tegroup_error *error) {
    const tegroup_impl_fit made = tegroup_impl_fit_of(t);
    TEGROUP_IMPL_TRY(tegroup_impl_check_fit(&made, TEGROUP_IMPL_PATH(SNAPSHOT),
                                            "must have all groups within shape.rows rows", error));
    if (level == TEGROUP_CHECK_DEEP) TEGROUP_IMPL_TRY(tegroup_impl_check_groups(t, TEGROUP_IMPL_PATH(SNAPSHOT), error));
    return TEGROUP_OK;
}

/* A tensor's sizes, when a call is about to run. What a snapshot in device memory holds, the kernels look at: of one
 * that was not prepared for this shape they write nothing. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_routing(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                              tegroup_check_level level, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot_address(t, name, error));
    if (tegroup_impl_ragged(&t->shape) && t->shape.row_sizes.space == TEGROUP_SPACE_HOST)
        TEGROUP_IMPL_TRY(tegroup_impl_check_prepared(t, name, level, error));
    return TEGROUP_OK;
}

/* Rules of one tensor's memory, when a call is about to run. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_memory(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             tegroup_check_level level, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_routing(t, name, level, error));
    return tegroup_impl_check_data(t, name, error);
}

/* An operation that reads a snapshot where its data are needs the sizes there, too: prepare has left both in one
 * place. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_sizes_space(const tegroup_shape *shape, tegroup_space space,
                                                                  const char *field, tegroup_error *error) {
    TEGROUP_IMPL_RULE(!tegroup_impl_ragged(shape) || shape->row_sizes.space == space, ERROR_COMBINATION, field,
                      "must equal space", space, shape->row_sizes.space);
    return TEGROUP_OK;
}

/* A snapshot that an operation on plain rows reads: all its groups lie within `rows` rows. The kernels look into one in
 * device memory. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_snapshot(const void *snapshot, const char *field, int64_t rows,
                                                               tegroup_space space, tegroup_error *error) {
    tegroup_impl_fit fit;
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(snapshot, TEGROUP_ALIGNMENT), ERROR_ALIGNMENT, field,
                      "must be 256-byte aligned", TEGROUP_ALIGNMENT, (uintptr_t)snapshot % TEGROUP_ALIGNMENT);
    if (!snapshot || space == TEGROUP_SPACE_DEVICE) return TEGROUP_OK;
    fit = tegroup_impl_fit_of_rows(snapshot, rows);
    return tegroup_impl_check_fit(&fit, field, "must have all groups within the matrix's rows", error);
}
