/* ---- Portable GEMM: where quantised operands are decoded ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/field_names.h"
#include "core/choice.h"
#include "core/quantised.h"
#include "cuda/decoded.h"

/* Quantised operands are decoded in one of three places, with the same bits, by what they are and by how many rows a
 * plan expects. Weights of short groups are decoded in registers (cuda/portable_weights.h). Operands of long ones are
 * decoded to BF16 in workspace before they are multiplied (cuda/decode.h). In both places that is by their scales if
 * these are of 8 bits, else to what their codes are, and the sums are multiplied by the scales
 * (cuda/portable_promoted.h). All others are decoded on the way to shared memory, every time that a tile needs them
 * (cuda/portable_formats.h). */

#define TEGROUP_IMPL_PORTABLE_TILE_K 64 /* two-byte elements: one 128-byte row of shared memory */

/* Rows of an average group from which on operands are decoded first, and up to which weights are decoded in registers,
 * by the bits of a code (docs/lab/decoded.md, "Portable"). */
#define TEGROUP_IMPL_PORTABLE_DECODED_ROWS 2
#define TEGROUP_IMPL_PORTABLE_HELD_ROWS(bits) ((bits) == 8 ? 128 : 256)

/* Whether an operand can be decoded first. A step of the kernel's walk along k stays in a block of F32 scales; and
 * where scales begin anew within a group, so does the walk of the kernel that decodes on the way. */
TEGROUP_IMPL_STATIC int tegroup_impl_portable_can_decode(const tegroup_tensor *t) {
    return t->scaling == TEGROUP_SCALING_NONE
               ? t->dtype != TEGROUP_DTYPE_F16
               : t->shape.rows > 0 && t->scale_parts <= 1
                     && (tegroup_impl_scaled_by_8_bits(t->scaling)
                         || tegroup_scaling_info(t->scaling)->block_inner % TEGROUP_IMPL_PORTABLE_TILE_K == 0);
}
/* The operands that a product decodes first: bit 0 stands for A, bit 1 for B. A buffer in workspace has rows of one
 * width. */
TEGROUP_IMPL_STATIC uint32_t tegroup_impl_portable_decodes(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    return p->groups > 0 && !p->irregular && tegroup_impl_portable_can_decode(&desc->a)
                   && tegroup_impl_portable_can_decode(&desc->b)
                   && tegroup_impl_expected_rows(desc, p)
                          >= tegroup_impl_mul(TEGROUP_IMPL_PORTABLE_DECODED_ROWS, p->groups)
               ? tegroup_impl_quantised_operands(p)
               : 0;
}

/* Whether a product decodes its weights in registers. */
TEGROUP_IMPL_STATIC int tegroup_impl_portable_holds_weights(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    const tegroup_tensor b = tegroup_impl_held(desc, p);
    const int64_t step = TEGROUP_IMPL_PORTABLE_TILE_K;
    const int holds = tegroup_impl_scaled_by_8_bits(b.scaling) ? tegroup_impl_can_hold(p, &b, step)
                                                               : tegroup_impl_can_hold_codes(p, &b, step);
    return holds && !p->irregular && p->groups > 0 && tegroup_impl_portable_can_decode(&desc->a)
           && tegroup_impl_portable_can_decode(&desc->b)
           && tegroup_impl_expected_rows(desc, p)
                  <= tegroup_impl_mul(TEGROUP_IMPL_PORTABLE_HELD_ROWS(tegroup_impl_bits(b.dtype)), p->groups);
}
/* Whether a plan does so. */
TEGROUP_IMPL_STATIC int tegroup_impl_portable_plans_weights(const tegroup_plan *plan) {
    return plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] != 0;
}

/* The operands that a plan decodes first. */
TEGROUP_IMPL_STATIC uint32_t tegroup_impl_portable_decoded(const tegroup_plan *plan) {
    return (plan->algorithm[TEGROUP_IMPL_PLANNED_DECODED_A] > 0 ? 1u << TEGROUP_IMPL_A : 0u)
           | (plan->algorithm[TEGROUP_IMPL_PLANNED_DECODED_B] > 0 ? 1u << TEGROUP_IMPL_B : 0u);
}

/* Notes all that in a plan for any target. Its tile is chosen on the GPU. */
TEGROUP_IMPL_STATIC void tegroup_impl_portable_tile(const tegroup_gemm_desc *desc, const tegroup_target *target,
                                                    tegroup_plan *plan, tegroup_impl_forecast *forecast) {
    const tegroup_problem *p = &plan->problem;
    const int holds = tegroup_impl_portable_holds_weights(desc, p);
    (void)target, (void)forecast;
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)holds;
    tegroup_impl_plan_decoded(desc,
                              holds ? tegroup_impl_quantised_operands(p) & 1u << TEGROUP_IMPL_A
                                    : tegroup_impl_portable_decodes(desc, p),
                              plan);
}
TEGROUP_IMPL_STATIC void tegroup_impl_portable_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    const uint32_t operands = tegroup_impl_portable_decoded(plan);
    if (operands) tegroup_impl_decoded_workspace(plan, operands, layout);
}
