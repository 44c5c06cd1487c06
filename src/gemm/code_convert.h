/* ---- Codes in another order ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/code_convert_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "base/range.h"
#include "formats/dtype.h"
#include "formats/code_order.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/copies.h"
#include "core/apart.h"

/* One copy of two tensors, whose lines have so many blocks of TEGROUP_INTERLEAVED_CODES. */
typedef struct tegroup_impl_codes_moved {
    tegroup_tensor from, to; /* with that copy in the place of the rowwise one */
    int32_t bits;            /* of a code                                      */
    int64_t lines, blocks;   /* of a group, of a line                          */
    int64_t line_bytes[2], group_bytes[2];
} tegroup_impl_codes_moved;

#if TEGROUP_IMPL_FP8_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_code_convert(const tegroup_impl_codes_moved *moved,
                                                                  struct CUstream_st *stream, tegroup_error *error);
#endif

TEGROUP_IMPL_STATIC tegroup_impl_codes_moved tegroup_impl_codes_moved_of(const tegroup_code_convert_desc *desc) {
    const tegroup_tensor *tensors[2] = {&desc->from, &desc->to};
    const tegroup_shape *shape = &desc->from.shape;
    tegroup_impl_codes_moved moved;
    int i;
    memset(&moved, 0, sizeof moved);
    moved.from = tegroup_impl_with_copy(&desc->from, desc->columnwise);
    moved.to = tegroup_impl_with_copy(&desc->to, desc->columnwise);
    moved.bits = tegroup_impl_bits(desc->from.dtype);
    moved.lines = desc->columnwise ? shape->cols : shape->rows;
    moved.blocks = (desc->columnwise ? shape->rows : shape->cols) / TEGROUP_INTERLEAVED_CODES;
    for (i = 0; i < 2; i++) {
        const int64_t line = desc->columnwise ? shape->rows : tegroup_impl_ld(tensors[i]),
                      group = desc->columnwise ? moved.lines * line : tegroup_impl_group_stride(tensors[i]);
        moved.line_bytes[i] = line * moved.bits / 8;
        moved.group_bytes[i] = group * moved.bits / 8;
    }
    return moved;
}

/* Converts block number `block` of all, a line after another. A block is read before it is written. */
TEGROUP_IMPL_HD void tegroup_impl_convert_block(const tegroup_impl_codes_moved *moved, int64_t block) {
    const int64_t line = block / moved->blocks, g = line / moved->lines, within = line % moved->lines,
                  at = block % moved->blocks * (TEGROUP_INTERLEAVED_CODES / 8) * moved->bits;
    const int listed_from = tegroup_impl_listed(&moved->from), listed_to = tegroup_impl_listed(&moved->to);
    const uint8_t *from = listed_from ? (const uint8_t *)moved->from.pointers[g]
                                      : (const uint8_t *)moved->from.data + g * moved->group_bytes[0];
    uint8_t *to = listed_to ? (uint8_t *)moved->to.pointers[g] : (uint8_t *)moved->to.data + g * moved->group_bytes[1];
    tegroup_impl_reorder(moved->bits, moved->to.code_order == TEGROUP_CODES_INTERLEAVED,
                         from + within * moved->line_bytes[0] + at, to + within * moved->line_bytes[1] + at);
}

/* What both tensors have in common. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_same_codes(const tegroup_tensor *from, const tegroup_tensor *to,
                                                                 tegroup_error *error) {
    TEGROUP_IMPL_RULE_AS(DTYPE, to->dtype == from->dtype, ERROR_DTYPE, "to.dtype", "must equal from.dtype", from->dtype,
                         to->dtype);
    TEGROUP_IMPL_RULE(from->code_order != to->code_order, ERROR_COMBINATION, "to.code_order",
                      "must be another than from.code_order",
                      from->code_order == TEGROUP_CODES_IN_ORDER ? TEGROUP_CODES_INTERLEAVED : TEGROUP_CODES_IN_ORDER,
                      to->code_order);
    TEGROUP_IMPL_RULE_AS(SCALING, to->scaling == from->scaling, ERROR_SHAPE, "to.scaling", "must equal from.scaling",
                         from->scaling, to->scaling);
    TEGROUP_IMPL_RULE(to->columnwise_order == from->columnwise_order, ERROR_COMBINATION, "to.columnwise_order",
                      "must equal from.columnwise_order", from->columnwise_order, to->columnwise_order);
    TEGROUP_IMPL_RULE(!tegroup_impl_ragged(&from->shape), ERROR_COMBINATION, "from.shape.row_sizes.encoding",
                      "must be unset: interleaved codes are weights", TEGROUP_ENCODING_UNSET,
                      from->shape.row_sizes.encoding);
    TEGROUP_IMPL_RULE(!tegroup_impl_ragged(&to->shape), ERROR_COMBINATION, "to.shape.row_sizes.encoding",
                      "must be unset: interleaved codes are weights", TEGROUP_ENCODING_UNSET,
                      to->shape.row_sizes.encoding);
    TEGROUP_IMPL_RULE(to->shape.groups == from->shape.groups, ERROR_SHAPE, "to.shape.groups",
                      "must equal from.shape.groups", from->shape.groups, to->shape.groups);
    TEGROUP_IMPL_RULE(to->shape.rows == from->shape.rows, ERROR_SHAPE, "to.shape.rows", "must equal from.shape.rows",
                      from->shape.rows, to->shape.rows);
    TEGROUP_IMPL_RULE(to->shape.cols == from->shape.cols, ERROR_SHAPE, "to.shape.cols", "must equal from.shape.cols",
                      from->shape.cols, to->shape.cols);
    return TEGROUP_OK;
}

/* The memory of one tensor's codes, when a call is about to run. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_code_memory(const tegroup_tensor *t,
                                                                  const tegroup_impl_name *name, int32_t columnwise,
                                                                  tegroup_space space, tegroup_error *error) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    const int listed = tegroup_impl_listed(t);
    const char *field = tegroup_impl_copy_paths_of(name, listed, columnwise).data;
    TEGROUP_IMPL_RULE(!listed || t->pointers_space == space, ERROR_COMBINATION, TEGROUP_IMPL_PATH(POINTERS_SPACE),
                      "must equal space, or be unset", space, t->pointers_space);
    if (t->shape.groups == 0 || tegroup_impl_copy_bytes(t, columnwise) == 0) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_address(listed ? (const void *)memory.pointers : memory.data,
                                                listed ? sizeof(void *) : 1, field, error));
    return listed ? tegroup_impl_check_each(t, memory.pointers, 0, field, error) : TEGROUP_OK;
}

/* Is `to` the memory of `from`, block for block? */
TEGROUP_IMPL_STATIC int tegroup_impl_converts_in_place(const tegroup_impl_codes_moved *moved) {
    return tegroup_impl_listed(&moved->from) == tegroup_impl_listed(&moved->to) && moved->from.data == moved->to.data
           && moved->from.pointers == moved->to.pointers && moved->line_bytes[0] == moved->line_bytes[1]
           && moved->group_bytes[0] == moved->group_bytes[1];
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_code_convert_check(const tegroup_code_convert_desc *desc,
                                                                   tegroup_error *error) {
    static const tegroup_impl_name names[2] = {TEGROUP_IMPL_NAME("from"), TEGROUP_IMPL_NAME("to")};
    const int32_t columnwise = desc->columnwise;
    tegroup_impl_codes_moved moved;
    tegroup_impl_buffer buffers[2];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(columnwise == 0 || columnwise == 1, ERROR_VALUE, "columnwise", "must be 0 or 1", 1, columnwise);
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->from, &names[0], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->to, &names[1], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_same_codes(&desc->from, &desc->to, error));
    TEGROUP_IMPL_RULE(!columnwise || tegroup_impl_transposed(&desc->from, 1), ERROR_COMBINATION, "columnwise",
                      "must be 0 where columnwise_order is not TRANSPOSED: its codes are in order", 0, columnwise);
    TEGROUP_IMPL_TRY(tegroup_impl_check_code_memory(&desc->from, &names[0], columnwise, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_code_memory(&desc->to, &names[1], columnwise, desc->space, error));
    moved = tegroup_impl_codes_moved_of(desc);
    buffers[0] = tegroup_impl_copy_buffer(&desc->to, &names[1], columnwise, 0, 1);
    buffers[1] = tegroup_impl_copy_buffer(&desc->from, &names[0], columnwise, 0, 0);
    if (tegroup_impl_converts_in_place(&moved)) buffers[0].twin = 1;
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 2, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_FP8_KERNELS, desc->space, error);
}

TEGROUP_IMPL_STATIC int32_t tegroup_impl_code_team(int32_t threads, int64_t count) {
    return tegroup_impl_team(tegroup_impl_threads(threads),
                             8.0 * TEGROUP_INTERLEAVED_CODES * (double)count); /* steps: some eight a code */
}

TEGROUP_API tegroup_status tegroup_code_convert(const tegroup_code_convert_desc *desc, struct CUstream_st *stream,
                                                tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_code_convert")
    tegroup_code_convert_desc taken;
    tegroup_impl_codes_moved moved;
    int64_t count, block;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_code_convert_check(desc, error));
    moved = tegroup_impl_codes_moved_of(desc);
#if TEGROUP_IMPL_FP8_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_code_convert(&moved, stream, error);
#endif
    count = (int64_t)desc->from.shape.groups * moved.lines * moved.blocks;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(tegroup_impl_code_team(desc->threads, count)))
    for (block = 0; block < count; block++) tegroup_impl_convert_block(&moved, block);
    return TEGROUP_OK;
}
