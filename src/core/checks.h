/* ---- Checks of tensors and matrices ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"

/* The operands of a GEMM, as arrays of them go. */
typedef enum tegroup_impl_operand {
    TEGROUP_IMPL_A,
    TEGROUP_IMPL_B,
    TEGROUP_IMPL_C,
    TEGROUP_IMPL_D,
    TEGROUP_IMPL_BIAS,
    TEGROUP_IMPL_OPERANDS
} tegroup_impl_operand;

/* The members of a tensor called `name` that rules are about, by their paths. */
/* clang-format off */
#define TEGROUP_IMPL_MEMBERS(X, name)                                                                              \
    X(DTYPE, name ".dtype") X(SCALING, name ".scaling") X(GROUPS, name ".shape.groups")                            \
    X(ROWS, name ".shape.rows") X(COLS, name ".shape.cols") X(ELEMENTS, name ".shape.elements")                    \
    X(OFFSETS, name ".shape.offsets")                                                                              \
    X(ROW_SIZES, name ".shape.row_sizes.encoding") X(COL_SIZES, name ".shape.col_sizes.encoding")                  \
    X(SIZES_SPACE, name ".shape.row_sizes.space") X(SNAPSHOT, name ".shape.snapshot") X(LD, name ".ld")            \
    X(GROUP_STRIDE, name ".group_stride") X(DATA, name ".data") X(POINTERS, name ".pointers")                      \
    X(SCALE_DTYPE, name ".scale_dtype") X(SCALE_OUTER_STRIDE, name ".scale_outer_stride")                          \
    X(SCALE_INNER_STRIDE, name ".scale_inner_stride") X(SCALE_PARTS, name ".scale_parts")                          \
    X(COLUMNWISE_ORDER, name ".columnwise_order") X(GLOBAL_SCALE_INV, name ".global_scale_inv")                    \
    X(COLUMNWISE_DATA, name ".columnwise_data") X(COLUMNWISE_POINTERS, name ".columnwise_pointers")                \
    X(SCALE_INV, name ".scale_inv") X(SCALE_POINTERS, name ".scale_pointers")                                      \
    X(COLUMNWISE_SCALE_INV, name ".columnwise_scale_inv")                                                          \
    X(COLUMNWISE_SCALE_POINTERS, name ".columnwise_scale_pointers")                                                \
    X(SCALE, name ".scale") X(AMAX, name ".amax") X(COLUMNWISE_AMAX, name ".columnwise_amax")                      \
    X(POINTERS_SPACE, name ".pointers_space") X(GATHER_ROWS, "gather_" name ".rows")                               \
    X(GATHER_SLOTS, "gather_" name ".slots") X(SLOT_OF_ROW, "gather_" name ".slot_of_row")
/* clang-format on */

#define TEGROUP_IMPL_ENUMERATE(member, path) TEGROUP_IMPL_MEMBER_##member,
typedef enum tegroup_impl_member {
    TEGROUP_IMPL_MEMBERS(TEGROUP_IMPL_ENUMERATE, "") TEGROUP_IMPL_MEMBER_COUNT
} tegroup_impl_member;
#undef TEGROUP_IMPL_ENUMERATE

/* What errors call a tensor, in the words of the call that the caller made: a product's a is a layer's input. */
typedef struct tegroup_impl_name {
    const char *name;
    const char *members[TEGROUP_IMPL_MEMBER_COUNT];
    /* rules about another tensor that name this one */
    const char *apart, *groups, *rows, *cols, *dtype, *ragged, *scaling;
} tegroup_impl_name;

#define TEGROUP_IMPL_PATH_ONLY(member, path) path,
#define TEGROUP_IMPL_NAME(name)                                                                                        \
    {                                                                                                                  \
        name, {TEGROUP_IMPL_MEMBERS(TEGROUP_IMPL_PATH_ONLY, name)}, "must not overlap " name,                          \
            "must equal " name ".shape.groups", "must equal " name ".shape.rows", "must equal " name ".shape.cols",    \
            "must equal " name ".dtype (FP8: either kind; F32 goes with weights of F16 and BF16, too)",                \
            "must be set just when that of " name " is", "must be one that is multiplied with " name ".scaling"        \
    }

#define TEGROUP_IMPL_PATHS(name)                                                                                       \
    { TEGROUP_IMPL_MEMBERS(TEGROUP_IMPL_PATH_ONLY, name) }

/* Every function that has rules of one tensor is given its `name`. */
#define TEGROUP_IMPL_PATH(member) (name->members[TEGROUP_IMPL_MEMBER_##member])

/* The names of a product's operands, and of its tail. */
typedef struct tegroup_impl_names {
    const tegroup_impl_name *operand[TEGROUP_IMPL_OPERANDS];
    const char *tail;
} tegroup_impl_names;
#define TEGROUP_IMPL_OPERAND_PATH(which, member)                                                                       \
    (names->operand[TEGROUP_IMPL_##which]->members[TEGROUP_IMPL_MEMBER_##member])

/* In the words of tegroup_gemm. */
static inline const tegroup_impl_names *tegroup_impl_gemm_names(void) {
    static const tegroup_impl_name named[TEGROUP_IMPL_OPERANDS] = {TEGROUP_IMPL_NAME("a"), TEGROUP_IMPL_NAME("b"),
                                                                   TEGROUP_IMPL_NAME("c"), TEGROUP_IMPL_NAME("d"),
                                                                   TEGROUP_IMPL_NAME("bias")};
    static const tegroup_impl_names names = {{&named[0], &named[1], &named[2], &named[3], &named[4]}, "tail"};
    return &names;
}

/* An operand as it lies in memory: of a gathered one, all rows that it is gathered from. */
static inline tegroup_tensor tegroup_impl_stored(const tegroup_tensor *t, const tegroup_gather *gather) {
    tegroup_tensor stored = *t;
    if (gather->rows > 0 && t->shape.rows > 0) stored.shape.rows = gather->rows;
    return stored;
}

/* One buffer or a list: not both, and what bounds the one is not said of the other. */
static inline tegroup_status tegroup_impl_check_list(const tegroup_tensor *t, const tegroup_impl_name *name,
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

/* The copies and scales of an operand are buffers or lists, as its data are. */
static inline tegroup_status tegroup_impl_check_copy_lists(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                           tegroup_error *error) {
    const int listed = tegroup_impl_listed(t);
    if (t->scaling == TEGROUP_SCALING_NONE) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(listed || (!t->columnwise_pointers && !t->scale_pointers && !t->columnwise_scale_pointers),
                      ERROR_UNSET, TEGROUP_IMPL_PATH(POINTERS_SPACE), "must be set with pointers", TEGROUP_SPACE_HOST,
                      0);
    TEGROUP_IMPL_RULE(!listed || !t->columnwise_data, ERROR_COMBINATION, TEGROUP_IMPL_PATH(COLUMNWISE_DATA),
                      "does not go with pointers_space", 0, 1);
    TEGROUP_IMPL_RULE(!listed || !t->scale_inv, ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALE_INV),
                      "does not go with pointers_space", 0, 1);
    TEGROUP_IMPL_RULE(!listed || !t->columnwise_scale_inv, ERROR_COMBINATION, TEGROUP_IMPL_PATH(COLUMNWISE_SCALE_INV),
                      "does not go with pointers_space", 0, 1);
    return TEGROUP_OK;
}

/* Types that the scales of a scaling may be stored in, as a bit set. */
static inline uint32_t tegroup_impl_scale_dtypes(const tegroup_scaling_facts *facts) {
    uint32_t dtypes = 1u << facts->scale_dtype;
    if (facts->scale_dtype == TEGROUP_DTYPE_F32) dtypes |= 1u << TEGROUP_DTYPE_BF16 | 1u << TEGROUP_DTYPE_F8E8M0;
    if (facts->scale_dtype != TEGROUP_DTYPE_F8E4M3 && facts->block_outer == 1 && facts->block_inner > 0)
        dtypes |= 1u << TEGROUP_DTYPE_I32;
    return dtypes;
}

/* Scales at strides: each has a place of its own. */
static inline tegroup_status tegroup_impl_check_scale_strides(const tegroup_tensor *t, const tegroup_impl_name *name,
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
static inline tegroup_status tegroup_impl_check_nibbles(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                        tegroup_error *error) {
    const int64_t ld = tegroup_impl_ld(t), stride = tegroup_impl_group_stride(t);
    if (tegroup_impl_bits(t->dtype) >= 8) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&t->shape), ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(COL_SIZES),
                      "does not go with F4E2M1: a group might begin within a byte", TEGROUP_ENCODING_UNSET,
                      t->shape.col_sizes.encoding);
    TEGROUP_IMPL_RULE(ld % 2 == 0, ERROR_LAYOUT, TEGROUP_IMPL_PATH(LD),
                      "must be even, or cols where it is 0: a row of F4E2M1 begins with a byte", ld + 1, ld);
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape) || stride % 2 == 0, ERROR_LAYOUT, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                      "must be even: a group of F4E2M1 begins with a byte", stride + 1, stride);
    return TEGROUP_OK;
}

/* What of a tensor's fields belongs to its scaling. */
static inline tegroup_status tegroup_impl_check_scales(const tegroup_tensor *t, const tegroup_impl_name *name,
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
    TEGROUP_IMPL_RULE_ENUM(t->columnwise_order, TEGROUP_COLUMNWISE_TRANSPOSED, TEGROUP_IMPL_PATH(COLUMNWISE_ORDER),
                           "must be a tegroup_columnwise_order");
    TEGROUP_IMPL_RULE(!none || t->columnwise_order == TEGROUP_COLUMNWISE_AS_DATA, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(COLUMNWISE_ORDER), "does not go without a scaling", TEGROUP_COLUMNWISE_AS_DATA,
                      t->columnwise_order);
    TEGROUP_IMPL_RULE(!t->global_scale_inv || facts->scale_dtype == TEGROUP_DTYPE_F8E4M3, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(GLOBAL_SCALE_INV), "goes with scales of F8E4M3 alone", 0, 1);
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
static inline tegroup_status tegroup_impl_check_tensor(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                       tegroup_error *error) {
    const tegroup_shape *shape = &t->shape;
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    int ragged = tegroup_impl_ragged(shape), ragged_cols = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    TEGROUP_IMPL_RULE_AS(DTYPE, t->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, TEGROUP_IMPL_PATH(DTYPE), "must be set",
                         TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE_ENUM(t->dtype, TEGROUP_DTYPE_COUNT - 1, TEGROUP_IMPL_PATH(DTYPE), "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_ENUM(t->scaling, TEGROUP_SCALING_COUNT - 1, TEGROUP_IMPL_PATH(SCALING),
                           "must be a tegroup_scaling");
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

/* An optional tensor is there by its dtype; one that has memory and no dtype was not meant to be left out. usual: a
 * type that it might have. */
static inline tegroup_status tegroup_impl_check_absent(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                       tegroup_dtype usual, tegroup_error *error) {
    TEGROUP_IMPL_RULE_AS(DTYPE, !t->data && !t->pointers, ERROR_UNSET, TEGROUP_IMPL_PATH(DTYPE),
                         "must be set with data", usual, 0);
    return TEGROUP_OK;
}

/* Each group of a snapshot must lie inside the tensor: what the header says, unless somebody wrote over it. A group
 * without rows may begin anywhere in the buffer that was prepared. */
static inline tegroup_status tegroup_impl_check_groups(const tegroup_tensor *t, const char *field,
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
static inline tegroup_status tegroup_impl_check_snapshot_address(const tegroup_tensor *t, const tegroup_impl_name *name,
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
#define TEGROUP_IMPL_AND(holds, words, expected, got) &&(holds)
    return !header || (1 TEGROUP_IMPL_FIT_RULES(TEGROUP_IMPL_AND, ""));
#undef TEGROUP_IMPL_AND
}

static inline tegroup_status tegroup_impl_check_fit(const tegroup_impl_fit *fit, const char *field,
                                                    const char *rows_words, tegroup_error *error) {
    const tegroup_snapshot_header *header = fit->header;
#define TEGROUP_IMPL_REFUSE(holds, words, expected, got)                                                               \
    TEGROUP_IMPL_RULE(holds, ERROR_CAPACITY, field, words, expected, got);
    TEGROUP_IMPL_FIT_RULES(TEGROUP_IMPL_REFUSE, rows_words)
#undef TEGROUP_IMPL_REFUSE
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_check_prepared(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                         tegroup_check_level level, tegroup_error *error) {
    const tegroup_impl_fit made = tegroup_impl_fit_of(t);
    TEGROUP_IMPL_TRY(tegroup_impl_check_fit(&made, TEGROUP_IMPL_PATH(SNAPSHOT),
                                            "must have all groups within shape.rows rows", error));
    if (level == TEGROUP_CHECK_DEEP) TEGROUP_IMPL_TRY(tegroup_impl_check_groups(t, TEGROUP_IMPL_PATH(SNAPSHOT), error));
    return TEGROUP_OK;
}

/* What addresses are aligned to. */
static inline size_t tegroup_impl_element(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F4E2M1 ? 1 : (size_t)tegroup_impl_bits(dtype) / 8;
}

/* An address that a call uses. */
static inline tegroup_status tegroup_impl_check_address(const void *address, size_t alignment, const char *field,
                                                        tegroup_error *error) {
    TEGROUP_IMPL_RULE(address != NULL, ERROR_NULL_ARGUMENT, field, "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(address, alignment), ERROR_ALIGNMENT, field,
                      "must be aligned to its element", alignment, (uintptr_t)address % alignment);
    return TEGROUP_OK;
}

/* A tensor's elements: one buffer, or a list. */
static inline tegroup_status tegroup_impl_check_data(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                     tegroup_error *error) {
    if (tegroup_impl_listed(t))
        return t->shape.groups == 0
                   ? TEGROUP_OK
                   : tegroup_impl_check_address(t->pointers, sizeof(void *), TEGROUP_IMPL_PATH(POINTERS), error);
    return tegroup_impl_extent(t) == 0
               ? TEGROUP_OK
               : tegroup_impl_check_address(t->data, tegroup_impl_element(t->dtype), TEGROUP_IMPL_PATH(DATA), error);
}

/* A tensor's sizes, when a call is about to run. What a snapshot in device memory holds, the kernels look at: of one
 * that was not prepared for this shape they write nothing. */
static inline tegroup_status tegroup_impl_check_routing(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                        tegroup_check_level level, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot_address(t, name, error));
    if (tegroup_impl_ragged(&t->shape) && t->shape.row_sizes.space == TEGROUP_SPACE_HOST)
        TEGROUP_IMPL_TRY(tegroup_impl_check_prepared(t, name, level, error));
    return TEGROUP_OK;
}

/* Rules of one tensor's memory, when a call is about to run. */
static inline tegroup_status tegroup_impl_check_memory(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                       tegroup_check_level level, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_routing(t, name, level, error));
    return tegroup_impl_check_data(t, name, error);
}

/* An operation that reads a snapshot where its data are needs the sizes there, too: prepare has left both in one
 * place. */
static inline tegroup_status tegroup_impl_check_sizes_space(const tegroup_shape *shape, tegroup_space space,
                                                            const char *field, tegroup_error *error) {
    TEGROUP_IMPL_RULE(!tegroup_impl_ragged(shape) || shape->row_sizes.space == space, ERROR_COMBINATION, field,
                      "must equal space", space, shape->row_sizes.space);
    return TEGROUP_OK;
}

/* The index that an operand's rows are picked by. What it holds may be anything: a slot outside means zeros. */
static inline tegroup_status tegroup_impl_check_index(const tegroup_gather *gather, const tegroup_tensor *t,
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

/* Two windows of one buffer with rows of so many columns, `pitch` from one row to the next, the second beginning
 * `ahead` behind the first: how many rows the first one can have that share nothing with the second; INT64_MAX: any
 * number. No window is wider than the pitch, and one that begins late in a row goes on into the next. */
TEGROUP_IMPL_HD int64_t tegroup_impl_room(int64_t ahead, int64_t pitch, int64_t cols, int64_t other_cols) {
    const int64_t row = ahead < pitch ? 0 : ahead / pitch, col = ahead - row * pitch; /* seldom divided */
    if (col < cols) return row;
    return col + other_cols > pitch ? row + 1 : INT64_MAX;
}

/* Plain matrices. */
TEGROUP_IMPL_HD int64_t tegroup_impl_matrix_ld(const tegroup_matrix *m) { return m->ld > 0 ? m->ld : m->cols; }

static inline int64_t tegroup_impl_matrix_bytes(const tegroup_matrix *m) {
    if (m->dtype == TEGROUP_DTYPE_UNSET || m->rows <= 0 || m->cols <= 0) return 0;
    return tegroup_impl_mul(tegroup_impl_add(tegroup_impl_mul(m->rows - 1, tegroup_impl_matrix_ld(m)), m->cols),
                            tegroup_impl_bits(m->dtype) / 8);
}

/* Rows that have elements: what a loop over a matrix runs through. */
static inline int64_t tegroup_impl_matrix_rows(const tegroup_matrix *m) { return m->cols > 0 ? m->rows : 0; }

TEGROUP_IMPL_HD char *tegroup_impl_matrix_row(const tegroup_matrix *m, int64_t row) {
    if (!m->data) return NULL;
    return (char *)m->data + row * tegroup_impl_matrix_ld(m) * (tegroup_impl_bits(m->dtype) / 8);
}

/* Field paths of a matrix called `name`, as one literal each. */
#define TEGROUP_IMPL_MATRIX_PATHS(name)                                                                                \
    { name ".data", name ".rows", name ".cols", name ".ld", name ".dtype" }

#define TEGROUP_IMPL_FLOATS                                                                                            \
    (1u << TEGROUP_DTYPE_F64 | 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16)
#define TEGROUP_IMPL_REALS (1u << TEGROUP_DTYPE_F64 | 1u << TEGROUP_DTYPE_F32)
#define TEGROUP_IMPL_INTEGERS (1u << TEGROUP_DTYPE_I32 | 1u << TEGROUP_DTYPE_I64)

/* Whether a product multiplies rows of the one type and weights of the other. Beside F32, weights of 16 bits are
 * widened, exactly. */
static inline int tegroup_impl_goes_with(tegroup_dtype rows, tegroup_dtype weights) {
    return weights == rows || (tegroup_impl_bits(rows) == 8 && tegroup_impl_bits(weights) == 8)
           || (rows == TEGROUP_DTYPE_F32 && tegroup_impl_bits(weights) == 16);
}

/* The type of scalars and row scales. */
static inline tegroup_status tegroup_impl_check_real(tegroup_dtype dtype, const char *field, tegroup_error *error) {
    TEGROUP_IMPL_RULE_ENUM(dtype, TEGROUP_DTYPE_COUNT - 1, field, "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, dtype == TEGROUP_DTYPE_UNSET || TEGROUP_IMPL_REALS >> dtype & 1u, ERROR_DTYPE, field,
                         "must be a type of scalars and row scales", TEGROUP_IMPL_REALS, dtype);
    return TEGROUP_OK;
}

/* One matrix: extents (rows or cols < 0: any), types as a bit set, memory. */
static inline tegroup_status tegroup_impl_check_matrix(const tegroup_matrix *m, const char *const paths[5],
                                                       int64_t rows, int64_t cols, uint32_t dtypes,
                                                       tegroup_error *error) {
    size_t element;
    TEGROUP_IMPL_RULE_AS(DTYPES, m->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, paths[4], "must be set", dtypes, 0);
    TEGROUP_IMPL_RULE_ENUM(m->dtype, TEGROUP_DTYPE_COUNT - 1, paths[4], "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, dtypes >> m->dtype & 1u, ERROR_DTYPE, paths[4], "must be one that is taken here",
                         dtypes, m->dtype);
    TEGROUP_IMPL_RULE(m->rows >= 0 && m->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE, paths[1],
                      "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, m->rows);
    TEGROUP_IMPL_RULE(m->cols >= 0 && m->cols <= TEGROUP_MAX_COLS, ERROR_VALUE, paths[2],
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, m->cols);
    TEGROUP_IMPL_RULE(rows < 0 || m->rows == rows, ERROR_SHAPE, paths[1], "must match the other operands", rows,
                      m->rows);
    TEGROUP_IMPL_RULE(cols < 0 || m->cols == cols, ERROR_SHAPE, paths[2], "must match the other operands", cols,
                      m->cols);
    TEGROUP_IMPL_RULE(m->ld <= TEGROUP_MAX_COLS, ERROR_VALUE, paths[3], "must be at most TEGROUP_MAX_COLS",
                      TEGROUP_MAX_COLS, m->ld);
    TEGROUP_IMPL_RULE(m->ld == 0 || m->ld >= m->cols, ERROR_LAYOUT, paths[3], "must be 0 or at least cols", m->cols,
                      m->ld);
    TEGROUP_IMPL_RULE(tegroup_impl_matrix_bytes(m) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW, paths[1],
                      "times ld must be addressable", tegroup_impl_max_bytes(), tegroup_impl_matrix_bytes(m));
    if (m->rows == 0 || m->cols == 0) return TEGROUP_OK;
    element = (size_t)tegroup_impl_bits(m->dtype) / 8;
    TEGROUP_IMPL_RULE(m->data != NULL, ERROR_NULL_ARGUMENT, paths[0], "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(m->data, element), ERROR_ALIGNMENT, paths[0],
                      "must be aligned to its element", element, (uintptr_t)m->data % element);
    return TEGROUP_OK;
}

/* A matrix that may be absent: its dtype is then UNSET. */
static inline tegroup_status tegroup_impl_check_optional(const tegroup_matrix *m, const char *const paths[5],
                                                         int64_t rows, int64_t cols, uint32_t dtypes,
                                                         tegroup_error *error) {
    if (m->dtype != TEGROUP_DTYPE_UNSET) return tegroup_impl_check_matrix(m, paths, rows, cols, dtypes, error);
    TEGROUP_IMPL_RULE_AS(DTYPES, !m->data, ERROR_UNSET, paths[4], "must be set with data", dtypes, 0);
    return TEGROUP_OK;
}

/* Integers, or none, that reach up to `most`. */
static inline tegroup_status tegroup_impl_check_reach(const tegroup_matrix *m, const char *const paths[5], int64_t most,
                                                      tegroup_error *error) {
    TEGROUP_IMPL_RULE_AS(DTYPES, m->dtype != TEGROUP_DTYPE_I32 || most <= INT32_MAX, ERROR_DTYPE, paths[4],
                         "must hold numbers beyond 2^31 - 1 here", 1u << TEGROUP_DTYPE_I64, m->dtype);
    return TEGROUP_OK;
}

/* The memory space of everything that a descriptor points to. */
static inline tegroup_status tegroup_impl_check_space(tegroup_space space, tegroup_error *error) {
    TEGROUP_IMPL_RULE(space != TEGROUP_SPACE_UNSET, ERROR_UNSET, "space", "must be set", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE_ENUM(space, TEGROUP_SPACE_DEVICE, "space", "must be a tegroup_space");
    return TEGROUP_OK;
}

/* A snapshot that an operation on plain rows reads: all its groups lie within `rows` rows. The kernels look into one in
 * device memory. */
static inline tegroup_status tegroup_impl_check_snapshot(const void *snapshot, const char *field, int64_t rows,
                                                         tegroup_space space, tegroup_error *error) {
    tegroup_impl_fit fit;
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(snapshot, TEGROUP_ALIGNMENT), ERROR_ALIGNMENT, field,
                      "must be 256-byte aligned", TEGROUP_ALIGNMENT, (uintptr_t)snapshot % TEGROUP_ALIGNMENT);
    if (!snapshot || space == TEGROUP_SPACE_DEVICE) return TEGROUP_OK;
    fit = tegroup_impl_fit_of_rows(snapshot, rows);
    return tegroup_impl_check_fit(&fit, field, "must have all groups within the matrix's rows", error);
}

/* A build without nvcc, or one whose switches leave the kernels out, serves host memory only. kernels: whether this
 * build has the operation's. */
static inline tegroup_status tegroup_impl_check_built(int kernels, tegroup_space space, tegroup_error *error) {
    TEGROUP_IMPL_RULE(kernels || space != TEGROUP_SPACE_DEVICE, ERROR_NOT_BUILT, "space",
                      "must be HOST: this operation has no GPU kernel in this build", TEGROUP_SPACE_HOST, space);
    return TEGROUP_OK;
}
