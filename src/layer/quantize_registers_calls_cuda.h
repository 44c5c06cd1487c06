/* ---- Quantise: which calls go in registers ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/quantize_copies.h"
#include "layer/quantize_rules.h"
#include "cuda/quantize_walk.h"
#include "layer/quantize_registers_cuda.h"

/* Whether a tensor can be read piece by piece: rows at multiples of 16 bytes, of whole pieces. */
static inline int tegroup_impl_in_pieces(const tegroup_tensor *t) {
    return t->dtype == TEGROUP_DTYPE_BF16 && !tegroup_impl_listed(t) && tegroup_impl_aligned(t->data, 16)
           && t->shape.cols % TEGROUP_IMPL_REGISTERS_PIECES == 0;
}

/* Whether a call's values are read into registers as they lie, or as an index picks their rows. */
static inline int tegroup_impl_reads_in_registers(const tegroup_impl_quantize_launch *call) {
    const tegroup_gather *gather = &call->desc.gather_input;
    return call->desc.activation == TEGROUP_ACTIVATION_UNSET && call->vectors
           && tegroup_impl_in_pieces(&call->desc.input) && call->in_ld <= INT32_MAX / 2
           && tegroup_impl_mul(gather->rows, tegroup_impl_max(1, gather->slots)) <= INT32_MAX;
}

/* Whether values are made in registers. */
static inline int tegroup_impl_makes_in_registers(const tegroup_impl_quantize_launch *call) {
    const tegroup_quantize_desc *desc = &call->desc;
    const int gradient = desc->grad_output.dtype != TEGROUP_DTYPE_UNSET;
#if defined(TEGROUP_NO_BACKWARD)
    if (gradient) return 0;
#endif
    return tegroup_impl_makes_at_once(desc->activation, desc->input.dtype, gradient, &desc->output, &desc->rule)
           && call->vectors && tegroup_impl_in_pieces(&desc->input)
           && (!gradient || tegroup_impl_in_pieces(&desc->grad_output))
           && desc->output.shape.cols % TEGROUP_IMPL_REGISTERS_PIECES == 0;
}

/* Whether a call's values come to registers so, and its copies are written from there: eight codes of a row, or sixteen
 * of a column, at multiples of their own length. A column's codes of several parts need not lie so. */
static inline int tegroup_impl_quantizes_in_registers(const tegroup_impl_quantize_launch *call) {
    const tegroup_tensor *out = &call->desc.output;
    const tegroup_scaling_facts *facts = &call->facts;
    const int turned = tegroup_impl_transposed(out, TEGROUP_IMPL_COLUMNWISE), bits = tegroup_impl_bits(out->dtype),
              rowwise = call->copies >> TEGROUP_IMPL_ROWWISE & 1, columnwise = call->copies >> TEGROUP_IMPL_COLUMNWISE;
    if (!tegroup_impl_reads_in_registers(call) && !tegroup_impl_makes_in_registers(call)) return 0;
    if (call->desc.rule.divide || call->raises || tegroup_impl_listed(out)) return 0;
    if (tegroup_impl_scaled_by_line(facts)
        && (out->shape.cols > 1 << TEGROUP_IMPL_REGISTERS_ROW
            || (columnwise && (call->scale_bits != 32 || out->shape.rows > TEGROUP_IMPL_REGISTERS_ROWS))))
        return 0;
    if (!tegroup_impl_scaled_as_one(facts) && facts->block_outer != 128 && facts->choice_outer != 1) return 0;
    if (columnwise && turned && (out->scale_parts > 1 || !tegroup_impl_aligned(out->columnwise_data, 16))) return 0;
    if (columnwise && !turned && !tegroup_impl_aligned(out->columnwise_data, (size_t)bits)) return 0;
    if (rowwise && !tegroup_impl_aligned(out->data, (size_t)bits)) return 0;
    return tegroup_impl_ld(out) % 8 == 0 && (out->shape.groups < 2 || tegroup_impl_group_stride(out) % 8 == 0);
}

/* Whether a gradient's works are tiles of gates and of their ups: where both begin at blocks. */
static inline int tegroup_impl_pairs_tiles(const tegroup_impl_quantize_launch *call) {
    return call->desc.grad_output.dtype != TEGROUP_DTYPE_UNSET && !call->desc.interleaved
           && call->desc.output.shape.cols % (2 * TEGROUP_IMPL_QUANTIZE_TILE) == 0;
}
