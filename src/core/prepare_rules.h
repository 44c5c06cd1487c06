/* ---- Prepare: what is refused ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "formats/dtype.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/apart.h"
#include "core/prepare_group.h"
#include "core/prepare_sort.h"
#include "core/prepare.h"

/* The error for the lie about group g that these status bits tell of. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_prepare_lie(const tegroup_impl_preparation *p, int32_t g, uint32_t bits,
                                                            tegroup_error *error) {
    const char *const rows = "shape.row_sizes.data";
    const int counts = p->rows.encoding == TEGROUP_ENCODING_COUNTS;
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_START), ERROR_VALUE, counts ? "shape.row_sizes.starts" : rows,
                      counts ? "must not be negative; got is the group" : "must begin with 0; got is the group", 0, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_NEGATIVE), ERROR_VALUE, rows,
                      counts ? "must hold no count below -1; got is the group" : "must not fall; got is the group",
                      counts ? -1 : 0, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_OVERLAP), ERROR_OVERLAP, rows,
                      "must be at most shape.row_sizes.stride before the last group; got is the group", p->rows.stride,
                      g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_CAPACITY), ERROR_CAPACITY, rows,
                      "must keep each group within shape.rows; got is the group", p->capacity_rows, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_COLS), ERROR_VALUE, "shape.col_sizes.data",
                      "must be 0 to shape.cols; got is the group", p->capacity_cols, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_ELEMENTS), ERROR_CAPACITY,
                      p->offsets ? "shape.offsets" : "shape.elements",
                      p->offsets ? "must keep each group within shape.elements; got is the group"
                                 : "must have room for each group; got is the group",
                      p->capacity_elements, g);
    return TEGROUP_OK;
}

/* Two groups that share rows, or elements, where no size lies otherwise. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_prepare_check_apart(const tegroup_impl_preparation *p,
                                                                    tegroup_impl_sort_key key, tegroup_error *error) {
    int64_t rows[TEGROUP_MAX_GROUPS];
    const int32_t owners = tegroup_impl_prepare_all_apart(p, key, rows);
    int32_t lowest = -1, g, i;
    for (i = 0; i < owners; i++) {
        g = p->order[i];
        if ((lowest < 0 || g < lowest) && rows[i] < tegroup_impl_prepare_read(p, g).rows) lowest = g;
    }
    TEGROUP_IMPL_RULE(lowest < 0, ERROR_OVERLAP,
                      key == TEGROUP_IMPL_SORT_BY_START ? "shape.row_sizes.starts" : "shape.offsets",
                      key == TEGROUP_IMPL_SORT_BY_START ? "must give no two groups the same rows; got is the group"
                                                        : "must give no two groups the same elements; got is the group",
                      -1, lowest);
    return TEGROUP_OK;
}

/* Sizes in host memory are looked at before anything is written. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_prepare_refuse(const tegroup_impl_preparation *p,
                                                               tegroup_error *error) {
    int32_t order[TEGROUP_MAX_GROUPS], g;
    tegroup_impl_preparation asked = *p;
    tegroup_impl_place x = {0, 0, 0, 0};
    int64_t carry = p->groups > 0 ? tegroup_impl_prepare_first(p) : 0, elements = 0;
    for (g = 0; g < p->groups; g++) {
        uint32_t bits = tegroup_impl_prepare_place(p, g, carry, &x);
        carry = tegroup_impl_prepare_scan(p, carry, tegroup_impl_prepare_term(p, g));
        if (p->irregular) {
            bits |= tegroup_impl_prepare_cols(p, g, &x);
            bits |= tegroup_impl_prepare_offset(p, g, elements, &x);
            elements = tegroup_impl_add(elements, tegroup_impl_prepare_elements(&x));
        }
        TEGROUP_IMPL_TRY(tegroup_impl_prepare_lie(p, g, bits, error));
    }
    asked.out_rows = NULL;
    asked.order = order;
    if (p->rows.starts) TEGROUP_IMPL_TRY(tegroup_impl_prepare_check_apart(&asked, TEGROUP_IMPL_SORT_BY_START, error));
    if (p->irregular && p->offsets)
        TEGROUP_IMPL_TRY(tegroup_impl_prepare_check_apart(&asked, TEGROUP_IMPL_SORT_BY_OFFSET, error));
    return TEGROUP_OK;
}

/* Where the arrays of sizes are. */
TEGROUP_IMPL_STATIC tegroup_space tegroup_impl_data_space(const tegroup_sizes *sizes) {
    return sizes->data_space != TEGROUP_SPACE_UNSET ? sizes->data_space : sizes->space;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_sizes(const tegroup_sizes *sizes, int32_t groups, int is_cols,
                                                            tegroup_error *error) {
#define TEGROUP_IMPL_FIELD(name) (is_cols ? "shape.col_sizes." name : "shape.row_sizes." name)
    TEGROUP_IMPL_RULE(sizes->encoding != TEGROUP_ENCODING_UNSET, ERROR_UNSET, TEGROUP_IMPL_FIELD("encoding"),
                      "must be set", TEGROUP_ENCODING_COUNTS, 0);
    TEGROUP_IMPL_RULE_ENUM(sizes->encoding, TEGROUP_ENCODING_ENDS, TEGROUP_IMPL_FIELD("encoding"),
                           "must be a tegroup_encoding");
    TEGROUP_IMPL_RULE_AS(DTYPES, sizes->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, TEGROUP_IMPL_FIELD("dtype"),
                         "must be set", TEGROUP_IMPL_INTEGERS, 0);
    TEGROUP_IMPL_RULE_ENUM(sizes->dtype, TEGROUP_DTYPE_COUNT - 1, TEGROUP_IMPL_FIELD("dtype"),
                           "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_INTEGERS >> sizes->dtype & 1u, ERROR_DTYPE, TEGROUP_IMPL_FIELD("dtype"),
                         "must be one that sizes have", TEGROUP_IMPL_INTEGERS, sizes->dtype);
    TEGROUP_IMPL_RULE(sizes->space != TEGROUP_SPACE_UNSET, ERROR_UNSET, TEGROUP_IMPL_FIELD("space"), "must be set",
                      TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE_ENUM(sizes->space, TEGROUP_SPACE_DEVICE, TEGROUP_IMPL_FIELD("space"), "must be a tegroup_space");
    TEGROUP_IMPL_RULE_ENUM(sizes->data_space, TEGROUP_SPACE_DEVICE, TEGROUP_IMPL_FIELD("data_space"),
                           "must be a tegroup_space");
    TEGROUP_IMPL_RULE(sizes->data != NULL || groups == 0, ERROR_NULL_ARGUMENT, TEGROUP_IMPL_FIELD("data"),
                      "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(sizes->data, (size_t)tegroup_impl_bits(sizes->dtype) / 8), ERROR_ALIGNMENT,
                      TEGROUP_IMPL_FIELD("data"), "must be aligned to its element", tegroup_impl_bits(sizes->dtype) / 8,
                      (uintptr_t)sizes->data % ((size_t)tegroup_impl_bits(sizes->dtype) / 8));
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(sizes->starts, (size_t)tegroup_impl_bits(sizes->dtype) / 8), ERROR_ALIGNMENT,
                      TEGROUP_IMPL_FIELD("starts"), "must be aligned to its element",
                      tegroup_impl_bits(sizes->dtype) / 8,
                      (uintptr_t)sizes->starts % ((size_t)tegroup_impl_bits(sizes->dtype) / 8));
    TEGROUP_IMPL_RULE(sizes->alignment >= 0 && sizes->alignment <= TEGROUP_MAX_ROWS, ERROR_VALUE,
                      TEGROUP_IMPL_FIELD("alignment"), "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS,
                      sizes->alignment);
    TEGROUP_IMPL_RULE(sizes->stride >= 0 && sizes->stride <= TEGROUP_MAX_ROWS, ERROR_VALUE,
                      TEGROUP_IMPL_FIELD("stride"), "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, sizes->stride);
    TEGROUP_IMPL_RULE(!sizes->starts || sizes->encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("starts"), "goes with encoding COUNTS only", TEGROUP_ENCODING_COUNTS,
                      sizes->encoding);
    TEGROUP_IMPL_RULE(!sizes->stride || sizes->encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("stride"), "goes with encoding COUNTS only", TEGROUP_ENCODING_COUNTS,
                      sizes->encoding);
    TEGROUP_IMPL_RULE(sizes->alignment <= 1 || sizes->encoding != TEGROUP_ENCODING_OFFSETS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("alignment"), "does not go with encoding OFFSETS", 1, sizes->alignment);
    TEGROUP_IMPL_RULE(!sizes->starts || !sizes->stride, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("stride"),
                      "does not go with starts", 0, sizes->stride);
    TEGROUP_IMPL_RULE((!sizes->starts && !sizes->stride) || sizes->alignment <= 1, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("alignment"), "does not go with starts or stride", 1, sizes->alignment);
    TEGROUP_IMPL_RULE(!is_cols || sizes->encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("encoding"), "must be COUNTS for columns", TEGROUP_ENCODING_COUNTS,
                      sizes->encoding);
    TEGROUP_IMPL_RULE(!is_cols || !sizes->starts, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("starts"),
                      "does not apply to columns", 0, 1);
    TEGROUP_IMPL_RULE(!is_cols || !sizes->stride, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("stride"),
                      "does not apply to columns", 0, sizes->stride);
    TEGROUP_IMPL_RULE(!is_cols || sizes->alignment <= 1, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("alignment"),
                      "does not apply to columns", 1, sizes->alignment);
#undef TEGROUP_IMPL_FIELD
    return TEGROUP_OK;
}

/* An array of sizes, or of starts, which is read. */
TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_sizes_buffer(const void *data, const tegroup_sizes *sizes,
                                                                  int32_t groups, const char *apart) {
    return tegroup_impl_buffer_of(data, tegroup_impl_sizes_bytes(sizes, groups), NULL, apart, 0);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_prepare(const tegroup_prepare_desc *desc, tegroup_layout *layout,
                                                              tegroup_error *error) {
    const tegroup_shape *shape;
    tegroup_impl_buffer buffers[5];
    tegroup_space data_space;
    int64_t sent = 0;
    int ragged_cols, i;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(desc->clamp == 0 || desc->clamp == 1, ERROR_VALUE, "clamp", "must be 0 or 1", 1, desc->clamp);
    TEGROUP_IMPL_RULE(desc->host_sizes_final == 0 || desc->host_sizes_final == 1, ERROR_VALUE, "host_sizes_final",
                      "must be 0 or 1", 1, desc->host_sizes_final);
    TEGROUP_IMPL_RULE_ENUM(desc->check_level, TEGROUP_CHECK_DEEP, "check_level", "must be a tegroup_check_level");
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    shape = &desc->shape;
    ragged_cols = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    TEGROUP_IMPL_RULE(shape->groups >= 0 && shape->groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "shape.groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, shape->groups);
    TEGROUP_IMPL_RULE(shape->rows >= 0 && shape->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE, "shape.rows",
                      "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, shape->rows);
    TEGROUP_IMPL_RULE(shape->cols >= 0 && shape->cols <= TEGROUP_MAX_COLS, ERROR_VALUE, "shape.cols",
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, shape->cols);
    TEGROUP_IMPL_RULE(shape->elements >= 0, ERROR_VALUE, "shape.elements", "must not be negative", 0, shape->elements);
    TEGROUP_IMPL_RULE(shape->elements > 0 || !shape->offsets, ERROR_VALUE, "shape.elements", "must be set with offsets",
                      1, 0);
    TEGROUP_IMPL_RULE(desc->ld <= TEGROUP_MAX_COLS, ERROR_VALUE, "ld", "must be at most TEGROUP_MAX_COLS",
                      TEGROUP_MAX_COLS, desc->ld);
    TEGROUP_IMPL_RULE(desc->ld == 0 || desc->ld >= shape->cols, ERROR_LAYOUT, "ld", "must be 0 or at least shape.cols",
                      shape->cols, desc->ld);
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes(&shape->row_sizes, shape->groups, 0, error));
    TEGROUP_IMPL_RULE(shape->row_sizes.space == desc->space, ERROR_COMBINATION, "shape.row_sizes.space",
                      "must equal space", desc->space, shape->row_sizes.space);
    data_space = tegroup_impl_data_space(&shape->row_sizes);
    TEGROUP_IMPL_RULE(data_space == TEGROUP_SPACE_HOST || desc->space == TEGROUP_SPACE_DEVICE, ERROR_COMBINATION,
                      "shape.row_sizes.data_space", "must be HOST where space is", TEGROUP_SPACE_HOST, data_space);
    if (ragged_cols) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_sizes(&shape->col_sizes, shape->groups, 1, error));
        TEGROUP_IMPL_RULE(shape->col_sizes.space == desc->space, ERROR_COMBINATION, "shape.col_sizes.space",
                          "must equal space", desc->space, shape->col_sizes.space);
        TEGROUP_IMPL_RULE(tegroup_impl_data_space(&shape->col_sizes) == data_space, ERROR_COMBINATION,
                          "shape.col_sizes.data_space", "must be that of shape.row_sizes", data_space,
                          tegroup_impl_data_space(&shape->col_sizes));
    }
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(shape->offsets, sizeof(int64_t)), ERROR_ALIGNMENT, "shape.offsets",
                      "must be aligned to its element", 8, (uintptr_t)shape->offsets % sizeof(int64_t));
    tegroup_impl_snapshot_layout(shape->groups, tegroup_impl_irregular(shape), layout);
    TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(layout->total_bytes, "snapshot", "snapshot_bytes", desc->snapshot,
                                                  desc->snapshot_bytes, error));
    buffers[0] = tegroup_impl_buffer_of(desc->snapshot, (int64_t)layout->total_bytes, "snapshot", NULL, 1);
    buffers[1] = tegroup_impl_sizes_buffer(shape->row_sizes.data, &shape->row_sizes, shape->groups,
                                           "must not overlap shape.row_sizes.data");
    buffers[2] = tegroup_impl_sizes_buffer(shape->row_sizes.starts, &shape->row_sizes, shape->groups,
                                           "must not overlap shape.row_sizes.starts");
    buffers[3] = tegroup_impl_sizes_buffer(ragged_cols ? shape->col_sizes.data : NULL, &shape->col_sizes, shape->groups,
                                           "must not overlap shape.col_sizes.data");
    buffers[4] =
        tegroup_impl_buffer_of(shape->offsets, 8 * (int64_t)shape->groups, NULL, "must not overlap shape.offsets", 0);
    for (i = 1; i < 5; i++)
        if (buffers[i].base) sent += 8 * tegroup_impl_parcel_words(buffers[i].bytes);
    TEGROUP_IMPL_RULE(data_space == desc->space || sent <= TEGROUP_HOST_SIZES_MAX_BYTES, ERROR_UNSUPPORTED,
                      "shape.row_sizes.data_space",
                      "must be DEVICE, with the sizes there: host sizes may take TEGROUP_HOST_SIZES_MAX_BYTES",
                      TEGROUP_HOST_SIZES_MAX_BYTES, sent);
    return tegroup_impl_check_apart(buffers, 5, TEGROUP_CHECK_HOST, NULL, error);
}
