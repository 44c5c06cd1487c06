/* ---- What the fields of a tensor say ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "core/layout.h"

TEGROUP_IMPL_HD int tegroup_impl_ragged(const tegroup_shape *shape) {
    return shape->row_sizes.encoding != TEGROUP_ENCODING_UNSET;
}

TEGROUP_IMPL_HD int tegroup_impl_listed(const tegroup_tensor *t) { return t->pointers_space != TEGROUP_SPACE_UNSET; }

/* Elements between rows; 0 when packed groups of different width each have their own. */
TEGROUP_IMPL_HD int64_t tegroup_impl_ld(const tegroup_tensor *t) {
    return t->ld > 0 ? t->ld : t->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET ? 0 : t->shape.cols;
}

TEGROUP_IMPL_HD int64_t tegroup_impl_group_stride(const tegroup_tensor *t) {
    return t->group_stride > 0 ? t->group_stride : tegroup_impl_mul(t->shape.rows, tegroup_impl_ld(t));
}

/* Elements from the first to the last of a tensor's buffer (of each buffer, when it is a list). INT64_MAX: too many. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_extent(const tegroup_tensor *t) {
    const tegroup_shape *shape = &t->shape;
    int64_t ld = tegroup_impl_ld(t), one;
    if (shape->rows == 0 || shape->cols == 0) return 0;
    if (shape->groups == 0 && (!tegroup_impl_ragged(shape) || tegroup_impl_listed(t))) return 0;
    if (tegroup_impl_irregular(shape) && !tegroup_impl_listed(t)) return shape->elements;
    if (ld == 0) ld = shape->cols;
    one = tegroup_impl_add(tegroup_impl_mul(shape->rows - 1, ld), shape->cols);
    if (tegroup_impl_ragged(shape) || tegroup_impl_listed(t)) return one;
    return tegroup_impl_add(tegroup_impl_mul(shape->groups - 1, tegroup_impl_group_stride(t)), one);
}

TEGROUP_IMPL_STATIC int64_t tegroup_impl_extent_bytes(const tegroup_tensor *t) {
    int64_t bits = tegroup_impl_mul(tegroup_impl_extent(t), tegroup_impl_bits(t->dtype));
    return bits == INT64_MAX ? INT64_MAX : tegroup_impl_ceil_div(bits, 8);
}

/* Rows of one buffer as a matrix. */
TEGROUP_IMPL_STATIC tegroup_matrix tegroup_impl_rows_matrix(const tegroup_tensor *t) {
    tegroup_matrix m;
    m.data = t->data;
    m.rows = t->shape.rows;
    m.cols = t->shape.cols;
    m.ld = t->ld;
    m.dtype = t->dtype;
    return m;
}

/* One operand's place in one group. rows is -1 for a skipped group. */
typedef struct tegroup_impl_block {
    char *base;
    int64_t first; /* element of base where the group begins, unless its rows are gathered */
    int64_t rows, cols, ld;
    int64_t row0; /* number of its first row among all rows */
} tegroup_impl_block;

/* Without the buffer's address, which a list may have elsewhere. An operand of uniform shape has a view of NULLs. */
TEGROUP_IMPL_HD tegroup_impl_block tegroup_impl_block_of(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                         int32_t g) {
    const tegroup_shape *shape = &t->shape;
    int listed = tegroup_impl_listed(t), ragged = view && view->rows;
    tegroup_impl_block block;
    block.base = NULL;
    block.cols = ragged && view->cols ? view->cols[g] : shape->cols;
    block.ld = t->ld > 0 ? t->ld : block.cols;
    if (ragged) {
        block.rows = view->rows[g];
        block.row0 = view->start[g];
        /* Unsigned: that of a snapshot which somebody wrote over may overflow, before anybody has looked at it. */
        block.first = listed         ? 0
                      : view->offset ? view->offset[g]
                                     : (int64_t)((uint64_t)view->start[g] * (uint64_t)block.ld);
    } else {
        block.rows = shape->rows;
        block.row0 = g * shape->rows;
        block.first = listed ? 0 : g * tegroup_impl_group_stride(t);
    }
    return block;
}

TEGROUP_IMPL_HD tegroup_impl_block tegroup_impl_locate(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                       int32_t g) {
    tegroup_impl_block block = tegroup_impl_block_of(t, view, g);
    block.base = (char *)(tegroup_impl_listed(t) ? t->pointers[g] : t->data);
    return block;
}

/* Extents of a group's part of an operand. */
typedef struct tegroup_impl_sides {
    int64_t rows, cols;
} tegroup_impl_sides;

TEGROUP_IMPL_HD tegroup_impl_sides tegroup_impl_sides_of(int64_t rows, int64_t cols) {
    tegroup_impl_sides sides;
    sides.rows = rows;
    sides.cols = cols;
    return sides;
}
