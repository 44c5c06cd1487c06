/* ---- Quantise and dequantise: launches ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "core/constructors.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/checks.h"
#include "core/copies.h"
#include "core/activation_formulas.h"
#include "layer/quantize_rules.h"
#include "layer/quantize.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "layer/activation_cuda.h"
#include "layer/quantize_walk_cuda.h"
#include "layer/quantize_tile_cuda.h"
#include "layer/quantize_rows_cuda.h"

/* Can rows of a plain tensor be read 16 bytes at a time, where its groups begin at multiples of 16? */
static inline int tegroup_impl_cuda_in_vectors(const tegroup_tensor *t) {
    const int64_t bytes = tegroup_impl_bits(t->dtype) / 8;
    return t->dtype == TEGROUP_DTYPE_UNSET
           || (!tegroup_impl_irregular(&t->shape) && tegroup_impl_ld(t) * bytes % 16 == 0
               && (tegroup_impl_ragged(&t->shape) || tegroup_impl_listed(t)
                   || tegroup_impl_group_stride(t) * bytes % 16 == 0));
}

static inline int32_t tegroup_impl_cuda_tile_shift(int32_t block) {
    return block > 0 ? tegroup_impl_shift_of(block) : TEGROUP_IMPL_QUANTIZE_SHIFT;
}

static inline tegroup_impl_quantize_launch tegroup_impl_cuda_quantize_launch(const tegroup_tensor *t) {
    tegroup_impl_quantize_launch call;
    int copy;
    memset(&call, 0, sizeof call);
    call.desc.output = *t;
    call.facts = *tegroup_scaling_info(t->scaling);
    call.facts.name = NULL; /* of no use to a kernel */
    call.choice_shift = tegroup_impl_cuda_tile_shift(call.facts.choice_outer);
    call.outer_shift = tegroup_impl_cuda_tile_shift(call.facts.block_outer);
    call.inner_shift = tegroup_impl_cuda_tile_shift(call.facts.block_inner);
    call.scale_dtype = tegroup_impl_one_scale(t, &call.facts);
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++) call.scale_capacity[copy] = tegroup_impl_scale_capacity(t, copy);
    call.transposed_capacity = tegroup_impl_transposed_capacity(t);
    return call;
}

/* Works of a tensor at most, of so many rows and columns, shared out among as many blocks as have room: `resident` a
 * multiprocessor. */
static inline tegroup_status tegroup_impl_cuda_quantize_blocks(const tegroup_tensor *t, int64_t rows, int64_t cols,
                                                               int32_t resident, unsigned *blocks,
                                                               tegroup_error *error) {
    const int64_t parts = t->scale_parts > 1 ? t->scale_parts : 1, groups = t->shape.groups,
                  down = tegroup_impl_ragged(&t->shape)
                             ? tegroup_impl_ceil_div(t->shape.rows, rows) + groups
                             : groups * parts * tegroup_impl_ceil_div(t->shape.rows / parts, rows);
    return tegroup_impl_cuda_blocks(tegroup_impl_mul(down, tegroup_impl_ceil_div(t->shape.cols, cols)), resident,
                                    blocks, error);
}

/* A launch of the kernel that reads values of a type. */
#define TEGROUP_IMPL_BY_VALUES(dtype, kernel, ...)                                                                     \
    tegroup_impl_cuda_status(                                                                                          \
        (dtype) == TEGROUP_DTYPE_F32   ? tegroup_impl_launch(kernel<TEGROUP_DTYPE_F32>, __VA_ARGS__)                   \
        : (dtype) == TEGROUP_DTYPE_F16 ? tegroup_impl_launch(kernel<TEGROUP_DTYPE_F16>, __VA_ARGS__)                   \
                                       : tegroup_impl_launch(kernel<TEGROUP_DTYPE_BF16>, __VA_ARGS__),                 \
        "stream", "the kernel must launch", error)

#if !defined(TEGROUP_NO_ACTIVATION) && !defined(TEGROUP_NO_BACKWARD)
/* The gradient of the rows' scales: by the kernel of the separate call, which stores nothing else where grad_input has
 * no address; a group at a time where their rows do not follow one another. */
static inline tegroup_status tegroup_impl_cuda_quantize_sums(const tegroup_quantize_desc *desc,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_tensor *x = &desc->input, *dy = &desc->grad_output;
    const int ragged = tegroup_impl_ragged(&x->shape);
    const int32_t groups = ragged ? 1 : x->shape.groups;
    int32_t g;
    for (g = 0; g < groups; g++) {
        const int64_t rows = x->shape.rows, size = tegroup_impl_bits(x->dtype) / 8;
        tegroup_activation_backward_desc made = tegroup_impl_made_backward(desc);
        made.snapshot = ragged ? x->shape.snapshot : NULL;
        made.input =
            tegroup_matrix_of((char *)x->data + g * tegroup_impl_group_stride(x) * size, rows, x->shape.cols, x->dtype);
        made.input.ld = x->ld;
        made.grad_output = tegroup_matrix_of((char *)dy->data + g * tegroup_impl_group_stride(dy) * size, rows,
                                             dy->shape.cols, dy->dtype);
        made.grad_output.ld = dy->ld;
        made.grad_input = tegroup_matrix_of(NULL, rows, x->shape.cols, x->dtype);
        if (made.row_scale.dtype != TEGROUP_DTYPE_UNSET)
            made.row_scale.data = tegroup_impl_matrix_row(&desc->row_scale, g * rows);
        made.grad_row_scale.data = tegroup_impl_matrix_row(&desc->grad_row_scale, g * rows);
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_activation_backward(&made, stream, error));
    }
    return TEGROUP_OK;
}
#endif

static inline tegroup_status tegroup_impl_cuda_quantize(const tegroup_quantize_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    tegroup_impl_quantize_launch call = tegroup_impl_cuda_quantize_launch(&desc->output);
    const int both = tegroup_impl_has_copy(&desc->output, 0) | tegroup_impl_has_copy(&desc->output, 1) << 1;
    const unsigned threads = TEGROUP_IMPL_QUANTIZE_THREADS;
    const int64_t tile = TEGROUP_IMPL_QUANTIZE_TILE;
    const tegroup_dtype dtype = desc->input.dtype;
    const int lines = call.facts.block_inner == 0 && call.facts.block_outer > 0;
    unsigned blocks;
    call.desc = *desc;
    call.desc.alpha = tegroup_impl_alpha(desc->activation, desc->alpha);
    call.desc.limit = tegroup_impl_limit(desc->activation, desc->limit);
    call.desc.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    call.plain = desc->activation == TEGROUP_ACTIVATION_UNSET && desc->gather_input.rows == 0;
    call.vectors = tegroup_impl_cuda_in_vectors(&desc->input) && tegroup_impl_cuda_in_vectors(&desc->grad_output);
    if (desc->output.shape.groups == 0) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_quantize_blocks(&desc->output, tile, tile, TEGROUP_IMPL_QUANTIZE_RESIDENT, &blocks, error));
    if (desc->output.amax || desc->output.columnwise_amax)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_quantize_clear_kernel, 1, threads, 0, stream, call), "stream",
            "the kernel must launch", error));
    call.raises = desc->output.amax || desc->output.columnwise_amax;
    if (tegroup_impl_waits_for_amax(desc, &call.facts)) {
        TEGROUP_IMPL_TRY(TEGROUP_IMPL_BY_VALUES(dtype, tegroup_impl_quantize_kernel, blocks, threads, 0, stream, call));
        call.raises = 0;
    }
    call.copies = lines ? both & 1 << TEGROUP_IMPL_COLUMNWISE : both;
    call.spans_rows = lines;
    if (call.copies)
        TEGROUP_IMPL_TRY(TEGROUP_IMPL_BY_VALUES(dtype, tegroup_impl_quantize_kernel, blocks, threads, 0, stream, call));
    call.copies = lines ? both & 1 << TEGROUP_IMPL_ROWWISE : 0;
    call.spans_rows = 0;
    call.spans_cols = 1;
    if (call.copies) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&desc->output, TEGROUP_IMPL_QUANTIZE_ROWS,
                                                           tegroup_impl_max(1, desc->output.shape.cols),
                                                           TEGROUP_IMPL_QUANTIZE_RESIDENT, &blocks, error));
        TEGROUP_IMPL_TRY(
            TEGROUP_IMPL_BY_VALUES(dtype, tegroup_impl_quantize_rows_kernel, blocks, threads, 0, stream, call));
    }
#if !defined(TEGROUP_NO_ACTIVATION) && !defined(TEGROUP_NO_BACKWARD)
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) return tegroup_impl_cuda_quantize_sums(desc, stream, error);
#endif
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_cuda_dequantize(const tegroup_dequantize_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_quantize_launch call = tegroup_impl_cuda_quantize_launch(&desc->input);
    unsigned blocks;
    call.copies = 1 << desc->columnwise;
    call.desc.input = desc->output;
    if (desc->input.shape.groups == 0) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_quantize_blocks(&desc->input, TEGROUP_IMPL_QUANTIZE_TILE, TEGROUP_IMPL_QUANTIZE_TILE,
                                          TEGROUP_IMPL_DEQUANTIZE_RESIDENT(desc->output.dtype), &blocks, error));
    return TEGROUP_IMPL_BY_VALUES(desc->output.dtype, tegroup_impl_dequantize_kernel, blocks,
                                  TEGROUP_IMPL_QUANTIZE_THREADS, 0, stream, call);
}
#undef TEGROUP_IMPL_BY_VALUES
