/* ---- What errors call a tensor's fields ---- */

#pragma once
#include "base/linkage.h"

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
    X(GATHER_SLOTS, "gather_" name ".slots") X(SLOT_OF_ROW, "gather_" name ".slot_of_row")                         \
    X(CODE_ORDER, name ".code_order")
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
    const char *apart, *index_apart, *groups, *rows, *cols, *dtype, *ragged, *scaling;
} tegroup_impl_name;

#define TEGROUP_IMPL_PATH_ONLY(member, path) path,
#define TEGROUP_IMPL_NAME(name)                                                                                        \
    {                                                                                                                  \
        name, {TEGROUP_IMPL_MEMBERS(TEGROUP_IMPL_PATH_ONLY, name)}, "must not overlap " name,                          \
            "must not overlap gather_" name ".slot_of_row", "must equal " name ".shape.groups",                        \
            "must equal " name ".shape.rows", "must equal " name ".shape.cols",                                        \
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
TEGROUP_IMPL_STATIC const tegroup_impl_names *tegroup_impl_gemm_names(void) {
    static const tegroup_impl_name named[TEGROUP_IMPL_OPERANDS] = {TEGROUP_IMPL_NAME("a"), TEGROUP_IMPL_NAME("b"),
                                                                   TEGROUP_IMPL_NAME("c"), TEGROUP_IMPL_NAME("d"),
                                                                   TEGROUP_IMPL_NAME("bias")};
    static const tegroup_impl_names names = {{&named[0], &named[1], &named[2], &named[3], &named[4]}, "tail"};
    return &names;
}
