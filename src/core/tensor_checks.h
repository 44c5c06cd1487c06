/* ---- Checks of a tensor ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"

/* An operand as it lies in memory: of a gathered one, all rows that it is gathered from. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_stored(const tegroup_tensor *t, const tegroup_gather *gather) {
    tegroup_tensor stored = *t;
    if (gather->rows > 0 && t->shape.rows > 0) stored.shape.rows = gather->rows;
    return stored;
}

/* One buffer or a list: not both, and what bounds the one is not said of the other. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_list(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                           tegroup_error *error) {
    const tegroup_shape *shape = &t->shape;
    if (!tegroup_impl_listed(t)) {
        TEGROUP_IMPL_RULE(!t->pointers, ERROR_UNSET, TEGROUP_IMPL_PATH(POINTERS_SPACE), "must be set with pointers",
                          TEGROUP_SPACE_HOST, 0);
        TEGROUP_IMPL_RULE(shape->elements > 0 || shape->col_sizes.encoding == TEGROUP_ENCODING_UNSET || shape->rows == 0
                              || shape->cols == 0 || shape->row_sizes.space == TEGROUP_SPACE_HOST,
                          ERROR_VALUE, TEGROUP_IMPL_PATH(ELEMENTS),
                          "must be what the buffer holds: with sizes on the device nothing else bounds col_sizes", 1,
                          0);
        return TEGROUP_OK;
    }
    TEGROUP_IMPL_RULE(!t->data, ERROR_COMBINATION, TEGROUP_IMPL_PATH(DATA), "does not go with pointers_space", 0, 1);
    TEGROUP_IMPL_RULE(shape->elements == 0, ERROR_COMBINATION, TEGROUP_IMPL_PATH(ELEMENTS),
                      "must be 0 with pointers_space: each of the list's buffers holds its group", 0, shape->elements);
    TEGROUP_IMPL_RULE(!shape->offsets, ERROR_COMBINATION, TEGROUP_IMPL_PATH(OFFSETS),
                      "does not go with pointers_space: each of the list's buffers begins with its group", 0, 1);
    return TEGROUP_OK;
}

/* Types that the scales of a scaling may be stored in, as a bit set. */
TEGROUP_IMPL_STATIC uint32_t tegroup_impl_scale_dtypes(const tegroup_scaling_facts *facts) {
    uint32_t dtypes = 1u << facts->scale_dtype;
    if (facts->scale_dtype == TEGROUP_DTYPE_F32) dtypes |= 1u << TEGROUP_DTYPE_BF16 | 1u << TEGROUP_DTYPE_F8E8M0;
    if (facts->scale_dtype != TEGROUP_DTYPE_F8E4M3 && facts->block_outer == 1 && facts->block_inner > 0)
        dtypes |= 1u << TEGROUP_DTYPE_I32;
    return dtypes;
}

/* Scales at strides: each has a place of its own. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_scale_strides(const tegroup_tensor *t,
                                                                    const tegroup_impl_name *name,
                                                                    tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const int64_t outer = t->scale_outer_stride, inner = t->scale_inner_stride;
    const int ragged = tegroup_impl_ragged(&t->shape);
    tegroup_impl_scale_grid grid;
    int64_t lines, blocks;
    TEGROUP_IMPL_RULE(outer >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(SCALE_OUTER_STRIDE), "must not be negative", 0, outer);
    TEGROUP_IMPL_RULE(inner >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(SCALE_INNER_STRIDE), "must not be negative", 0, inner);
    TEGROUP_IMPL_RULE((outer > 0) == (inner > 0), ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALE_INNER_STRIDE),
                      "must be set just when scale_outer_stride is", outer > 0, inner);
    if (outer == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(facts->block_outer > 0, ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALE_OUTER_STRIDE),
                      "must be 0 where no block of rows has scales of its own", 0, outer);
    TEGROUP_IMPL_RULE(!ragged || facts->block_outer == 1, ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALE_OUTER_STRIDE),
                      "must be 0 where rows are ragged and a scale covers several of them", 0, outer);
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&t->shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALE_OUTER_STRIDE),
                      "does not go with col_sizes or elements", 0, outer);
    grid = tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_sides_of(t->shape.rows, t->shape.cols), 0);
    lines = tegroup_impl_scale_lines(t, &grid);
    blocks = grid.inner_extent / (grid.packed ? 4 : 1);
    TEGROUP_IMPL_RULE(lines < 2 || blocks < 2 || tegroup_impl_mul(blocks - 1, inner) < outer
                          || tegroup_impl_mul(lines - 1, outer) < inner,
                      ERROR_LAYOUT, TEGROUP_IMPL_PATH(SCALE_INNER_STRIDE),
                      "must keep scales apart: at least the outer blocks times scale_outer_stride, or its part",
                      tegroup_impl_add(tegroup_impl_mul(lines - 1, outer), 1), inner);
    return TEGROUP_OK;
}

/* Two elements a byte: a row begins with one. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_nibbles(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                              tegroup_error *error) {
    const int64_t ld = tegroup_impl_ld(t), stride = tegroup_impl_group_stride(t);
    if (tegroup_impl_bits(t->dtype) >= 8) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&t->shape), ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(COL_SIZES),
                      "does not go with F4E2M1: a group might begin within a byte", TEGROUP_ENCODING_UNSET,
                      t->shape.col_sizes.encoding);
    TEGROUP_IMPL_RULE(ld % 2 == 0, ERROR_LAYOUT, TEGROUP_IMPL_PATH(LD),
                      "must be even, or cols where it is 0: a row of F4E2M1 begins with a byte",
                      tegroup_impl_add(ld, 1), ld);
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape) || stride % 2 == 0, ERROR_LAYOUT, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                      "must be even: a group of F4E2M1 begins with a byte", tegroup_impl_add(stride, 1), stride);
    return TEGROUP_OK;
}

/* Codes that are interleaved: by the lines of each copy that has them so. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_code_order(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                                 tegroup_error *error) {
    const int64_t each = TEGROUP_INTERLEAVED_CODES, ld = tegroup_impl_ld(t), stride = tegroup_impl_group_stride(t);
    TEGROUP_IMPL_RULE_ENUM(t->code_order, TEGROUP_CODES_INTERLEAVED, TEGROUP_IMPL_PATH(CODE_ORDER),
                           "must be a tegroup_code_order");
    if (t->code_order == TEGROUP_CODES_IN_ORDER) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(t->dtype == TEGROUP_DTYPE_F4E2M1
                          || (t->dtype == TEGROUP_DTYPE_F8E4M3
                              && tegroup_scaling_info(t->scaling)->scale_dtype == TEGROUP_DTYPE_F8E8M0),
                      ERROR_COMBINATION, TEGROUP_IMPL_PATH(CODE_ORDER),
                      "goes with F4E2M1, and F8E4M3 whose scales are F8E8M0", TEGROUP_CODES_IN_ORDER, t->code_order);
    TEGROUP_IMPL_RULE(!tegroup_impl_ragged(&t->shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(CODE_ORDER),
                      "goes with uniform groups alone: weights", TEGROUP_CODES_IN_ORDER, t->code_order);
    TEGROUP_IMPL_RULE(t->shape.cols % each == 0, ERROR_LAYOUT, TEGROUP_IMPL_PATH(COLS),
                      "must be a multiple of TEGROUP_INTERLEAVED_CODES", each, t->shape.cols);
    TEGROUP_IMPL_RULE(t->columnwise_order != TEGROUP_COLUMNWISE_TRANSPOSED || t->shape.rows % each == 0, ERROR_LAYOUT,
                      TEGROUP_IMPL_PATH(ROWS), "must be a multiple of TEGROUP_INTERLEAVED_CODES with a transposed copy",
                      each, t->shape.rows);
    TEGROUP_IMPL_RULE(ld % each == 0, ERROR_LAYOUT, TEGROUP_IMPL_PATH(LD),
                      "must be a multiple of TEGROUP_INTERLEAVED_CODES", each, ld);
    TEGROUP_IMPL_RULE(stride % each == 0, ERROR_LAYOUT, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                      "must be a multiple of TEGROUP_INTERLEAVED_CODES", each, stride);
    return TEGROUP_OK;
}
/* Of what reads or writes codes in order alone. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_in_order(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                               tegroup_error *error) {
    TEGROUP_IMPL_RULE(t->code_order == TEGROUP_CODES_IN_ORDER, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(CODE_ORDER),
                      "must be IN_ORDER here; tegroup_code_convert puts codes in order", TEGROUP_CODES_IN_ORDER,
                      t->code_order);
    return TEGROUP_OK;
}

/* What of a tensor's fields belongs to its scaling. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_scales(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const int none = t->scaling == TEGROUP_SCALING_NONE;
    int copy;
    TEGROUP_IMPL_RULE_ENUM(t->scale_dtype, TEGROUP_DTYPE_COUNT - 1, TEGROUP_IMPL_PATH(SCALE_DTYPE),
                           "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPE, !none || t->scale_dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                         TEGROUP_IMPL_PATH(SCALE_DTYPE), "does not go without a scaling", TEGROUP_DTYPE_UNSET,
                         t->scale_dtype);
    TEGROUP_IMPL_RULE_AS(
        DTYPES, t->scale_dtype == TEGROUP_DTYPE_UNSET || tegroup_impl_scale_dtypes(facts) >> t->scale_dtype & 1u,
        ERROR_DTYPE, TEGROUP_IMPL_PATH(SCALE_DTYPE), "must be unset or one that its scaling takes",
        tegroup_impl_scale_dtypes(facts), t->scale_dtype);
    TEGROUP_IMPL_RULE(t->scale_parts >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(SCALE_PARTS), "must not be negative", 0,
                      t->scale_parts);
    TEGROUP_IMPL_RULE(t->scale_parts <= 1 || !(none || tegroup_impl_ragged(&t->shape)), ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(SCALE_PARTS), "goes with a scaling and uniform rows alone", 0, t->scale_parts);
    TEGROUP_IMPL_RULE(t->scale_parts <= 1 || t->shape.rows % t->scale_parts == 0, ERROR_LAYOUT,
                      TEGROUP_IMPL_PATH(SCALE_PARTS), "must divide shape.rows", t->shape.rows, t->scale_parts);
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_strides(t, name, error));
    TEGROUP_IMPL_RULE_ENUM(t->columnwise_order, TEGROUP_COLUMNWISE_F32, TEGROUP_IMPL_PATH(COLUMNWISE_ORDER),
                           "must be a tegroup_columnwise_order");
    TEGROUP_IMPL_RULE(!none || t->columnwise_order == TEGROUP_COLUMNWISE_AS_DATA, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(COLUMNWISE_ORDER), "does not go without a scaling", TEGROUP_COLUMNWISE_AS_DATA,
                      t->columnwise_order);
    TEGROUP_IMPL_RULE(!t->global_scale_inv || facts->scale_dtype == TEGROUP_DTYPE_F8E4M3, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(GLOBAL_SCALE_INV), "goes with scales of F8E4M3 alone", 0, 1);
    TEGROUP_IMPL_TRY(tegroup_impl_check_code_order(t, name, error));
    if (none) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_nibbles(t, name, error));
    for (copy = 0; copy < 2; copy++) {
        TEGROUP_IMPL_RULE(tegroup_impl_scale_bytes(t, copy) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW,
                          TEGROUP_IMPL_PATH(SCALING), "must have scales that are addressable", tegroup_impl_max_bytes(),
                          tegroup_impl_scale_bytes(t, copy));
        TEGROUP_IMPL_RULE(tegroup_impl_copy_bytes(t, copy) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW,
                          TEGROUP_IMPL_PATH(ROWS), "times cols must be addressable", tegroup_impl_max_bytes(),
                          tegroup_impl_copy_bytes(t, copy));
    }
    return TEGROUP_OK;
}

/* The rules of one tensor by itself, except those of its data pointers. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_tensor(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             tegroup_error *error) {
    const tegroup_shape *shape = &t->shape;
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    int ragged = tegroup_impl_ragged(shape), ragged_cols = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    TEGROUP_IMPL_RULE_ENUM(t->scaling, TEGROUP_SCALING_COUNT - 1, TEGROUP_IMPL_PATH(SCALING),
                           "must be a tegroup_scaling");
    TEGROUP_IMPL_RULE_AS(DTYPES, t->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, TEGROUP_IMPL_PATH(DTYPE), "must be set",
                         facts->data_dtypes, 0);
    TEGROUP_IMPL_RULE_ENUM(t->dtype, TEGROUP_DTYPE_COUNT - 1, TEGROUP_IMPL_PATH(DTYPE), "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, facts->data_dtypes >> t->dtype & 1u, ERROR_DTYPE, TEGROUP_IMPL_PATH(DTYPE),
                         "must be one that its scaling carries", facts->data_dtypes, t->dtype);
    TEGROUP_IMPL_RULE(shape->groups >= 0 && shape->groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, TEGROUP_IMPL_PATH(GROUPS),
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, shape->groups);
    TEGROUP_IMPL_RULE(shape->rows >= 0 && shape->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE, TEGROUP_IMPL_PATH(ROWS),
                      "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, shape->rows);
    TEGROUP_IMPL_RULE(shape->cols >= 0 && shape->cols <= TEGROUP_MAX_COLS, ERROR_VALUE, TEGROUP_IMPL_PATH(COLS),
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, shape->cols);
    TEGROUP_IMPL_RULE_ENUM(shape->row_sizes.encoding, TEGROUP_ENCODING_ENDS, TEGROUP_IMPL_PATH(ROW_SIZES),
                           "must be a tegroup_encoding");
    TEGROUP_IMPL_RULE(!ragged || shape->row_sizes.space != TEGROUP_SPACE_UNSET, ERROR_UNSET,
                      TEGROUP_IMPL_PATH(SIZES_SPACE), "must be set with row_sizes", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE_ENUM(shape->row_sizes.space, TEGROUP_SPACE_DEVICE, TEGROUP_IMPL_PATH(SIZES_SPACE),
                           "must be a tegroup_space");
    TEGROUP_IMPL_RULE_ENUM(shape->col_sizes.encoding, TEGROUP_ENCODING_ENDS, TEGROUP_IMPL_PATH(COL_SIZES),
                           "must be a tegroup_encoding");
    TEGROUP_IMPL_RULE(!ragged_cols || shape->col_sizes.encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(COL_SIZES), "must be COUNTS for columns", TEGROUP_ENCODING_COUNTS,
                      shape->col_sizes.encoding);
    TEGROUP_IMPL_RULE(shape->elements >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(ELEMENTS), "must not be negative", 0,
                      shape->elements);
    TEGROUP_IMPL_RULE(shape->elements
                          <= tegroup_impl_max_bytes() / tegroup_impl_max(1, tegroup_impl_bits(t->dtype) / 8),
                      ERROR_OVERFLOW, TEGROUP_IMPL_PATH(ELEMENTS), "must be addressable",
                      tegroup_impl_max_bytes() / tegroup_impl_max(1, tegroup_impl_bits(t->dtype) / 8), shape->elements);
    TEGROUP_IMPL_RULE((!shape->row_sizes.data && !shape->snapshot) || ragged, ERROR_UNSET, TEGROUP_IMPL_PATH(ROW_SIZES),
                      "must be set with data or a snapshot", TEGROUP_ENCODING_COUNTS, 0);
    TEGROUP_IMPL_RULE((!tegroup_impl_irregular(shape) && !shape->offsets) || ragged, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(ROW_SIZES), "must be set with col_sizes, offsets or elements",
                      TEGROUP_ENCODING_COUNTS, 0);
    TEGROUP_IMPL_RULE(t->ld <= TEGROUP_MAX_COLS, ERROR_VALUE, TEGROUP_IMPL_PATH(LD), "must be at most TEGROUP_MAX_COLS",
                      TEGROUP_MAX_COLS, t->ld);
    TEGROUP_IMPL_RULE(t->ld == 0 || t->ld >= shape->cols, ERROR_LAYOUT, TEGROUP_IMPL_PATH(LD),
                      "must be 0 or at least shape.cols", shape->cols, t->ld);
    TEGROUP_IMPL_RULE(t->group_stride == 0 || !ragged, ERROR_COMBINATION, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                      "does not go with row_sizes", 0, t->group_stride);
    TEGROUP_IMPL_RULE(t->group_stride == 0 || t->group_stride >= tegroup_impl_mul(shape->rows, tegroup_impl_ld(t)),
                      ERROR_LAYOUT, TEGROUP_IMPL_PATH(GROUP_STRIDE), "must be 0 or at least shape.rows * ld",
                      tegroup_impl_mul(shape->rows, tegroup_impl_ld(t)), t->group_stride);
    TEGROUP_IMPL_RULE_ENUM(t->pointers_space, TEGROUP_SPACE_DEVICE, TEGROUP_IMPL_PATH(POINTERS_SPACE),
                           "must be a tegroup_space");
    TEGROUP_IMPL_TRY(tegroup_impl_check_list(t, name, error));
    TEGROUP_IMPL_RULE(shape->elements > 0 || !shape->offsets, ERROR_VALUE, TEGROUP_IMPL_PATH(ELEMENTS),
                      "must be set with offsets", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_mul(shape->rows, tegroup_impl_ld(t)) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW,
                      TEGROUP_IMPL_PATH(LD), "times shape.rows must be addressable", tegroup_impl_max_bytes(),
                      tegroup_impl_mul(shape->rows, tegroup_impl_ld(t)));
    TEGROUP_IMPL_RULE(ragged
                          || tegroup_impl_mul(shape->groups, tegroup_impl_group_stride(t)) <= tegroup_impl_max_bytes(),
                      ERROR_OVERFLOW, TEGROUP_IMPL_PATH(GROUP_STRIDE), "times shape.groups must be addressable",
                      tegroup_impl_max_bytes(), tegroup_impl_mul(shape->groups, tegroup_impl_group_stride(t)));
    TEGROUP_IMPL_RULE(tegroup_impl_extent_bytes(t) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW, TEGROUP_IMPL_PATH(ROWS),
                      "times ld must be addressable", tegroup_impl_max_bytes(), tegroup_impl_extent_bytes(t));
    return tegroup_impl_check_scales(t, name, error);
}

/* An optional tensor is there by its dtype; one that has memory and no dtype was not meant to be left out. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_absent(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             tegroup_error *error) {
    TEGROUP_IMPL_RULE_AS(DTYPES, !t->data && !t->pointers, ERROR_UNSET, TEGROUP_IMPL_PATH(DTYPE),
                         "must be set with data", TEGROUP_IMPL_FLOATS, 0);
    return TEGROUP_OK;
}

/* A tensor's elements: one buffer, or a list. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_data(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                           tegroup_error *error) {
    if (tegroup_impl_listed(t))
        return t->shape.groups == 0
                   ? TEGROUP_OK
                   : tegroup_impl_check_address(t->pointers, sizeof(void *), TEGROUP_IMPL_PATH(POINTERS), error);
    return tegroup_impl_extent(t) == 0
               ? TEGROUP_OK
               : tegroup_impl_check_address(t->data, tegroup_impl_element(t->dtype), TEGROUP_IMPL_PATH(DATA), error);
}

/* The index that an operand's rows are picked by. What it holds may be anything: a slot outside means zeros. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_index(const tegroup_gather *gather, const tegroup_tensor *t,
                                                            const tegroup_impl_name *name, tegroup_error *error) {
    if (t->shape.rows == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(!gather->slot_of_row || gather->rows > 0, ERROR_UNSET, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "must be set with slot_of_row", 1, 0);
    TEGROUP_IMPL_RULE(gather->slot_of_row || gather->rows == 0, ERROR_NULL_ARGUMENT, TEGROUP_IMPL_PATH(SLOT_OF_ROW),
                      "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(gather->slot_of_row, 8), ERROR_ALIGNMENT, TEGROUP_IMPL_PATH(SLOT_OF_ROW),
                      "must be aligned to its element", 8, (uintptr_t)gather->slot_of_row % 8);
    return TEGROUP_OK;
}
