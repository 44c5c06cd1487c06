/* ---- Quantise and dequantise: launches ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
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
#include "cuda/quantize_walk.h"
#include "cuda/quantize_launch.h"
#include "cuda/dequantize.h"
#include "layer/quantize_tile_cuda.h"
#include "layer/quantize_registers_cuda.h"
#include "layer/quantize_registers_calls_cuda.h"

/* Can rows of a plain tensor be read 16 bytes at a time, where its groups begin at multiples of 16? */
static inline int tegroup_impl_cuda_in_vectors(const tegroup_tensor *t) {
    const int64_t bytes = tegroup_impl_bits(t->dtype) / 8;
    return t->dtype == TEGROUP_DTYPE_UNSET
           || (!tegroup_impl_irregular(&t->shape) && tegroup_impl_ld(t) * bytes % 16 == 0
               && (tegroup_impl_ragged(&t->shape) || tegroup_impl_listed(t)
                   || tegroup_impl_group_stride(t) * bytes % 16 == 0));
}

/* Where a thread's pieces are: 2^in_row of them in a row, 256 columns apart, and the others in the rows below. */
static inline void tegroup_impl_cuda_quantize_pieces(tegroup_impl_quantize_launch *call, int32_t in_row) {
    const tegroup_tensor *tensors[2] = {&call->desc.input, &call->desc.output};
    int64_t *const steps[2] = {call->in_steps, call->out_steps};
    for (int i = 0; i < 6; i++)
        steps[i / 3][i % 3] =
            (i % 3 < in_row ? (int64_t)256 << i % 3 : tegroup_impl_ld(tensors[i / 3]) << (i % 3 - in_row))
            * tegroup_impl_bits(tensors[i / 3]->dtype) / 8;
}

/* Strips of rows for the kernels that read in registers: as wide as said above, or as a row that has one scale; and as
 * high as makes 2,048 values a warp. */
static inline tegroup_status tegroup_impl_cuda_quantize_strips(tegroup_impl_quantize_launch *call, unsigned *blocks,
                                                               tegroup_error *error) {
    const int64_t cols = call->desc.output.shape.cols;
    int32_t across = tegroup_impl_cuda_strip_shift(cols);
    if (call->copies && tegroup_impl_scaled_by_line(&call->facts))
        for (across = TEGROUP_IMPL_QUANTIZE_STRIP; cols > (int64_t)1 << across; across++) {}
    tegroup_impl_cuda_quantize_pieces(call, (int32_t)tegroup_impl_min(across, TEGROUP_IMPL_QUANTIZE_STRIP) - 8);
    return tegroup_impl_cuda_quantize_blocks(
        call, tegroup_impl_shift_of(TEGROUP_IMPL_QUANTIZE_ROWS) + TEGROUP_IMPL_QUANTIZE_STRIP - across, across,
        TEGROUP_IMPL_REGISTERS_RESIDENT, blocks, error);
}

/* A tile of values, in bytes. */
static inline size_t tegroup_impl_cuda_staged(const tegroup_tensor *values) {
    return (size_t)(TEGROUP_IMPL_QUANTIZE_STAGED * tegroup_impl_bits(values->dtype) / 8);
}

template <int CODE, bool TILE, int FROM>
static inline tegroup_impl_quantize_kernel_type *tegroup_impl_registers_kernel_of_8_bits(
    const tegroup_impl_quantize_launch *call) {
    if (call->facts.block_inner == 0 || call->facts.block_outer > 1)
        return tegroup_impl_quantize_registers_kernel<TEGROUP_IMPL_REGISTERS_ALL, CODE, TILE, FROM>;
    return call->facts.block_inner == 128 ? tegroup_impl_quantize_registers_kernel<16, CODE, TILE, FROM>
                                          : tegroup_impl_quantize_registers_kernel<4, CODE, TILE, FROM>;
}
template <bool TILE, int FROM>
static inline tegroup_impl_quantize_kernel_type *tegroup_impl_registers_kernel_of(
    const tegroup_impl_quantize_launch *call) {
    switch (call->desc.output.dtype) {
    case TEGROUP_DTYPE_F4E2M1:
        return call->facts.block_inner == 16
                   ? tegroup_impl_quantize_registers_kernel<2, TEGROUP_DTYPE_F4E2M1, TILE, FROM>
                   : tegroup_impl_quantize_registers_kernel<4, TEGROUP_DTYPE_F4E2M1, TILE, FROM>;
    case TEGROUP_DTYPE_F8E5M2:
        if (FROM == TEGROUP_IMPL_FROM_GATHERED) /* where a scale is not of a block */
            return tegroup_impl_quantize_registers_kernel<TEGROUP_IMPL_REGISTERS_ALL, TEGROUP_DTYPE_F8E5M2, TILE, FROM>;
        return tegroup_impl_registers_kernel_of_8_bits<TEGROUP_DTYPE_F8E5M2, TILE, TEGROUP_IMPL_FROM_INPUT>(call);
    default: return tegroup_impl_registers_kernel_of_8_bits<TEGROUP_DTYPE_F8E4M3, TILE, FROM>(call);
    }
}

/* Whether a call's copies, if they are in registers, are made by strips: a rowwise copy alone whose blocks lie along
 * the rows, of no activation. Of rows that an index picks, blocks of E5M2 are not, which gradients have, and these are
 * many or have both copies. */
static inline int tegroup_impl_goes_by_strips(const tegroup_impl_quantize_launch *call) {
    return call->desc.activation == TEGROUP_ACTIVATION_UNSET && call->copies == 1 << TEGROUP_IMPL_ROWWISE
           && call->facts.block_outer <= 1
           && (call->desc.gather_input.rows == 0 || call->facts.block_inner == 0
               || call->desc.output.dtype != TEGROUP_DTYPE_F8E5M2);
}

/* The kernel of a call, by strips or by tiles. */
static inline tegroup_impl_quantize_kernel_type *tegroup_impl_registers_kernel_for(
    const tegroup_impl_quantize_launch *call, int strips) {
#if !defined(TEGROUP_NO_ACTIVATION) && !defined(TEGROUP_NO_BACKWARD)
    if (call->desc.grad_output.dtype != TEGROUP_DTYPE_UNSET)
        return call->desc.output.dtype == TEGROUP_DTYPE_F8E5M2
                   ? tegroup_impl_quantize_registers_kernel<16, TEGROUP_DTYPE_F8E5M2, true, TEGROUP_IMPL_FROM_GRADIENT>
                   : tegroup_impl_quantize_registers_kernel<16, TEGROUP_DTYPE_F8E4M3, true, TEGROUP_IMPL_FROM_GRADIENT>;
#endif
#if !defined(TEGROUP_NO_ACTIVATION)
    if (call->desc.activation != TEGROUP_ACTIVATION_UNSET)
        return tegroup_impl_quantize_registers_kernel<16, TEGROUP_DTYPE_F8E4M3, true, TEGROUP_IMPL_FROM_GATES>;
#endif
    if (!strips) return tegroup_impl_registers_kernel_of<true, TEGROUP_IMPL_FROM_INPUT>(call);
    return call->desc.gather_input.rows > 0 ? tegroup_impl_registers_kernel_of<false, TEGROUP_IMPL_FROM_GATHERED>(call)
                                            : tegroup_impl_registers_kernel_of<false, TEGROUP_IMPL_FROM_INPUT>(call);
}

/* A kernel that quantises in registers, by strips or by tiles. */
static inline tegroup_status tegroup_impl_cuda_launch_registers(tegroup_impl_quantize_launch *call, int strips,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_SHIFT;
    const int collects = strips && call->copies >> TEGROUP_IMPL_COLUMNWISE & 1,
              gradient = call->desc.grad_output.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_impl_quantize_kernel_type *const kernel = tegroup_impl_registers_kernel_for(call, strips);
    unsigned blocks;
    if (strips) TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_strips(call, &blocks, error));
    else {
        tegroup_impl_cuda_quantize_pieces(call, 0);
        call->paired = tegroup_impl_pairs_tiles(call);
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(
            call, tile, tile + call->paired,
            gradient ? TEGROUP_IMPL_GRADIENT_RESIDENT : TEGROUP_IMPL_REGISTERS_RESIDENT, &blocks, error));
    }
    if (collects || call->paired)
        return tegroup_impl_cuda_quantize_launch_kernel(kernel, call, blocks,
                                                        tegroup_impl_cuda_staged(&call->desc.input), stream, error);
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, blocks, TEGROUP_IMPL_QUANTIZE_THREADS, 0, stream, *call), "stream",
        "the kernel must launch", error);
}

/* Room for amax of columns that have one scale each. */
static inline tegroup_status tegroup_impl_cuda_clear_columns(tegroup_impl_quantize_launch *call,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(call, TEGROUP_IMPL_QUANTIZE_ALL, TEGROUP_IMPL_QUANTIZE_STRIP,
                                                       TEGROUP_IMPL_REGISTERS_RESIDENT, &blocks, error));
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_quantize_clear_columns_kernel, blocks,
                                                        TEGROUP_IMPL_QUANTIZE_THREADS, 0, stream, *call),
                                    "stream", "the kernel must launch", error);
}

/* The copies of a call in registers, by strips or by tiles. Of scaling ROW, whose columns have a scale each, strips
 * make the rowwise copy and find amax of the columns in the same read, and tiles make the other copy. */
static inline tegroup_status tegroup_impl_cuda_quantize_registers(tegroup_impl_quantize_launch *call,
                                                                  struct CUstream_st *stream, tegroup_error *error) {
    const int bits = tegroup_impl_bits(call->desc.output.dtype), columnwise = 1 << TEGROUP_IMPL_COLUMNWISE;
    const tegroup_scale_rule usual = tegroup_impl_usual_rule(call->facts.block_inner / 8, bits);
    call->usual = memcmp(&call->desc.rule, &usual, sizeof usual) == 0
                  && call->desc.output.dtype == (bits == 4 ? TEGROUP_DTYPE_F4E2M1 : TEGROUP_DTYPE_F8E4M3)
                  && call->scale_dtype == call->facts.scale_dtype;
    if (!tegroup_impl_scaled_by_line(&call->facts) || !(call->copies & columnwise))
        return tegroup_impl_cuda_launch_registers(call, tegroup_impl_goes_by_strips(call), stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_columns(call, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_launch_registers(call, 1, stream, error));
    call->copies = columnwise;
    return tegroup_impl_cuda_launch_registers(call, 0, stream, error);
}

#define TEGROUP_IMPL_BY_VALUES(kernel, ...)                                                                            \
    tegroup_impl_cuda_quantize_launch_kernel(call.desc.input.dtype == TEGROUP_DTYPE_F32 ? kernel<TEGROUP_DTYPE_F32>    \
                                             : call.desc.input.dtype == TEGROUP_DTYPE_F16                              \
                                                 ? kernel<TEGROUP_DTYPE_F16>                                           \
                                                 : kernel<TEGROUP_DTYPE_BF16>,                                         \
                                             &call, __VA_ARGS__, stream, error)

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

/* The launches of a call: amax of the groups first, where scales wait for it; then the copies, in one launch but for
 * scaling ROW. */
static inline tegroup_status tegroup_impl_cuda_quantize_copies(tegroup_impl_quantize_launch call,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_quantize_desc *desc = &call.desc;
    const int both = tegroup_impl_has_copy(&desc->output, 0) | tegroup_impl_has_copy(&desc->output, 1) << 1,
              lines = tegroup_impl_scaled_by_line(&call.facts);
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_SHIFT, strip = TEGROUP_IMPL_QUANTIZE_STRIP,
                  rows = tegroup_impl_shift_of(TEGROUP_IMPL_QUANTIZE_ROWS), all = TEGROUP_IMPL_QUANTIZE_ALL,
                  resident = TEGROUP_IMPL_QUANTIZE_RESIDENT(desc->input.dtype);
    const size_t staged = tegroup_impl_cuda_staged(&desc->input);
    unsigned blocks;
    call.raises = desc->output.amax || desc->output.columnwise_amax;
    if (tegroup_impl_waits_for_amax(desc, &call.facts) && tegroup_impl_reads_in_registers(&call)) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_strips(&call, &blocks, error));
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(desc->gather_input.rows > 0
                                    ? tegroup_impl_quantize_amax_kernel<TEGROUP_IMPL_FROM_GATHERED>
                                    : tegroup_impl_quantize_amax_kernel<TEGROUP_IMPL_FROM_INPUT>,
                                blocks, TEGROUP_IMPL_QUANTIZE_THREADS, 0, stream, call),
            "stream", "the kernel must launch", error));
        call.raises = 0;
    } else if (tegroup_impl_waits_for_amax(desc, &call.facts)) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&call, rows, strip, resident, &blocks, error));
        TEGROUP_IMPL_TRY(TEGROUP_IMPL_BY_VALUES(tegroup_impl_quantize_strip_kernel, blocks, staged));
        call.raises = 0;
    }
    call.copies = both;
    if (both && tegroup_impl_quantizes_in_registers(&call))
        return tegroup_impl_cuda_quantize_registers(&call, stream, error);
    if (lines) call.copies = both & 1 << TEGROUP_IMPL_COLUMNWISE;
    if (call.copies == 1 << TEGROUP_IMPL_ROWWISE
        && (tegroup_impl_scaled_as_one(&call.facts) || call.facts.choice_outer == 1)) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&call, rows, strip, resident, &blocks, error));
        return TEGROUP_IMPL_BY_VALUES(tegroup_impl_quantize_strip_kernel, blocks, staged);
    }
    if (call.copies) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&call, lines ? all : tile, tile, resident, &blocks, error));
        TEGROUP_IMPL_TRY(TEGROUP_IMPL_BY_VALUES(tegroup_impl_quantize_kernel, blocks, staged));
        call.raises = 0;
    }
    call.copies = lines ? both & 1 << TEGROUP_IMPL_ROWWISE : 0;
    if (!call.copies) return TEGROUP_OK;
    if (tegroup_impl_quantizes_in_registers(&call)) return tegroup_impl_cuda_quantize_registers(&call, stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&call, rows, all, resident, &blocks, error));
    return TEGROUP_IMPL_BY_VALUES(tegroup_impl_quantize_rows_kernel, blocks, staged);
}

static inline tegroup_status tegroup_impl_cuda_quantize(const tegroup_quantize_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    tegroup_impl_quantize_launch call = tegroup_impl_cuda_quantize_launch(&desc->output);
    call.desc = *desc;
    call.desc.alpha = tegroup_impl_alpha(desc->activation, desc->alpha);
    call.desc.limit = tegroup_impl_limit(desc->activation, desc->limit);
    call.desc.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    call.in_ld = tegroup_impl_ld(&desc->input);
    call.plain = desc->activation == TEGROUP_ACTIVATION_UNSET && desc->gather_input.rows == 0;
    call.vectors = tegroup_impl_cuda_in_vectors(&desc->input) && tegroup_impl_cuda_in_vectors(&desc->grad_output);
    if (desc->output.shape.groups == 0) return TEGROUP_OK;
    if (desc->output.amax || desc->output.columnwise_amax)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_quantize_clear_kernel, 1, TEGROUP_IMPL_QUANTIZE_THREADS, 0, stream, call),
            "stream", "the kernel must launch", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_copies(call, stream, error));
#if !defined(TEGROUP_NO_ACTIVATION) && !defined(TEGROUP_NO_BACKWARD)
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) return tegroup_impl_cuda_quantize_sums(desc, stream, error);
#endif
    return TEGROUP_OK;
}

#undef TEGROUP_IMPL_BY_VALUES

static inline tegroup_status tegroup_impl_cuda_dequantize(const tegroup_dequantize_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_quantize_launch call = tegroup_impl_cuda_quantize_launch(&desc->input);
    call.copies = 1 << desc->columnwise;
    call.desc.input = desc->output;
    if (desc->input.shape.groups == 0) return TEGROUP_OK;
    return tegroup_impl_cuda_dequantize_copy(call, 0, stream, error);
}
