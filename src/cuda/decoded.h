/* ---- Operands that are decoded before they are multiplied ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/copies.h"
#include "core/choice.h"
#include "core/quantised.h"

/* A value times its scale of 8 bits is a number of BF16, as a value of 8 or 4 bits is by itself. So SM90 and PORTABLE
 * may decode operands into workspace, where their kernels of BF16 read them; cuda/decode.h enqueues that.
 * NVFP4's scale of a group, of F32, goes through alpha. */

/* The quantised operands: bit 0 stands for A, bit 1 for B. */
TEGROUP_IMPL_STATIC uint32_t tegroup_impl_quantised_operands(const tegroup_problem *p) {
    return (p->a_scaling != TEGROUP_SCALING_NONE ? 1u << TEGROUP_IMPL_A : 0u)
           | (p->b_scaling != TEGROUP_SCALING_NONE ? 1u << TEGROUP_IMPL_B : 0u);
}
/* Are their scales of 8 bits? Those of both are, or neither's. */
TEGROUP_IMPL_STATIC int tegroup_impl_scales_values(const tegroup_problem *p) {
    return tegroup_impl_scaled_by_8_bits(p->a_scaling) || tegroup_impl_scaled_by_8_bits(p->b_scaling);
}

/* The problem of BF16 that is left of it then. */
TEGROUP_IMPL_STATIC tegroup_problem tegroup_impl_decoded_problem(const tegroup_problem *p) {
    tegroup_problem multiplied = *p;
    if (!tegroup_impl_scales_values(p)) return multiplied;
    multiplied.a = multiplied.b = TEGROUP_DTYPE_BF16;
    multiplied.a_scaling = multiplied.b_scaling = TEGROUP_SCALING_NONE;
    return multiplied;
}

/* Elements between rows of a decoded operand: what a thread decodes at a time is written whole. */
#define TEGROUP_IMPL_DECODED_PIECE 16
TEGROUP_IMPL_STATIC int64_t tegroup_impl_decoded_ld(int64_t cols) {
    return tegroup_impl_align(cols, TEGROUP_IMPL_DECODED_PIECE);
}

/* The decoded operand: its rows lie as the snapshot says, of all groups in one buffer. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_decoded(const tegroup_tensor *t, void *data) {
    tegroup_tensor decoded;
    memset(&decoded, 0, sizeof decoded);
    decoded.shape = t->shape;
    decoded.dtype = TEGROUP_DTYPE_BF16;
    decoded.ld = tegroup_impl_decoded_ld(t->shape.cols);
    decoded.data = data;
    return decoded;
}

/* The transposed copy of a dgrad's weights, described as a forward product's weights are: rows and columns change
 * places. t: with that copy in the place of the rowwise one. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_turned(const tegroup_tensor *t) {
    tegroup_tensor turned = *t;
    turned.shape.rows = t->shape.cols;
    turned.shape.cols = t->shape.rows;
    turned.ld = tegroup_impl_align(t->shape.rows, TEGROUP_TRANSPOSED_ROWS);
    turned.group_stride = 0;
    turned.scale_outer_stride = turned.scale_inner_stride = 0;
    return turned;
}

/* Whether scales lie in tiles of 128 x 4: the default packing. */
TEGROUP_IMPL_STATIC int tegroup_impl_scales_in_tiles(const tegroup_tensor *b) {
    return tegroup_scaling_info(b->scaling)->swizzled && !tegroup_impl_scales_strided(b, 0)
           && b->scale_dtype != TEGROUP_DTYPE_I32 && b->scale_parts <= 1;
}

/* Weights that may be decoded in registers, as a forward product's are described: those of one, or of a dgrad whose
 * plan reads their transposed copy. */
TEGROUP_IMPL_STATIC int tegroup_impl_holds_turned(const tegroup_problem *p) {
    return p->op == TEGROUP_OP_DGRAD && tegroup_impl_plans_transposed(p, TEGROUP_IMPL_B);
}
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_held(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    return tegroup_impl_holds_turned(p) ? tegroup_impl_turned(&desc->b) : desc->b;
}
/* Whether their codes can be: they are of E4M3 or E2M1, and k is of whole steps. */
TEGROUP_IMPL_STATIC int tegroup_impl_can_hold_codes(const tegroup_problem *p, const tegroup_tensor *held,
                                                    int64_t step) {
    const int turned = tegroup_impl_holds_turned(p);
    const int64_t k = turned ? p->n : p->k;
    return (p->op == TEGROUP_OP_FORWARD || turned)
           && (held->dtype == TEGROUP_DTYPE_F8E4M3 || held->dtype == TEGROUP_DTYPE_F4E2M1) && k > 0 && k % step == 0;
}
/* Whether they can be with their scales, of 8 bits in tiles. */
TEGROUP_IMPL_STATIC int tegroup_impl_can_hold(const tegroup_problem *p, const tegroup_tensor *held, int64_t step) {
    return tegroup_impl_can_hold_codes(p, held, step) && tegroup_impl_scaled_by_8_bits(held->scaling)
           && tegroup_impl_scales_in_tiles(held);
}
/* What a call must have whose plan decodes weights in registers. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_held(const tegroup_gemm_desc *desc, const tegroup_impl_name *name,
                                                           tegroup_error *error) {
    const int turned = desc->op == TEGROUP_OP_DGRAD;
    const tegroup_tensor read = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    TEGROUP_IMPL_RULE(desc->b.scale_parts <= 1, ERROR_PLAN, TEGROUP_IMPL_PATH(SCALE_PARTS),
                      "must be 0 or 1, as planned", 1, desc->b.scale_parts);
    TEGROUP_IMPL_RULE(!turned || tegroup_impl_reads_columnwise(desc, TEGROUP_IMPL_B) || tegroup_impl_extent(&read) == 0,
                      ERROR_NULL_ARGUMENT, tegroup_impl_copy_paths_of(name, tegroup_impl_listed(&desc->b), turned).data,
                      "must not be NULL: the plan reads the transposed copy", 1, 0);
    return TEGROUP_OK;
}

/* Notes how many rows the buffers of decoded operands have, which the problem does not say of B in a wgrad. */
TEGROUP_IMPL_STATIC void tegroup_impl_plan_decoded(const tegroup_gemm_desc *desc, uint32_t operands,
                                                   tegroup_plan *plan) {
    if (operands >> TEGROUP_IMPL_A & 1u) plan->algorithm[TEGROUP_IMPL_PLANNED_DECODED_A] = (uint64_t)desc->a.shape.rows;
    if (operands >> TEGROUP_IMPL_B & 1u) plan->algorithm[TEGROUP_IMPL_PLANNED_DECODED_B] = (uint64_t)desc->b.shape.rows;
}

/* The workspace has room for as many rows as were planned. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_decoded_rows(const tegroup_plan *plan, const tegroup_tensor *t,
                                                                   tegroup_impl_operand operand,
                                                                   const tegroup_impl_name *name,
                                                                   tegroup_error *error) {
    const int64_t planned = (int64_t)plan->algorithm[TEGROUP_IMPL_PLANNED_DECODED_A + (int)operand];
    TEGROUP_IMPL_RULE(t->shape.rows <= planned, ERROR_PLAN, TEGROUP_IMPL_PATH(ROWS),
                      "must be at most as planned: the workspace holds them decoded", planned, t->shape.rows);
    return TEGROUP_OK;
}

enum { TEGROUP_IMPL_DECODED_ALPHA = 2 }; /* the item of a plan's workspace that follows those of A and B */

/* operands: those that are decoded. */
TEGROUP_IMPL_STATIC void tegroup_impl_decoded_workspace(const tegroup_plan *plan, uint32_t operands,
                                                        tegroup_layout *layout) {
    static const char *const names[2] = {"decoded a", "decoded b"};
    const tegroup_problem *p = &plan->problem;
    const int64_t cols[2] = {p->op == TEGROUP_OP_FORWARD ? p->k : p->n, p->k};
    int i;
    for (i = 0; i < 2; i++) {
        const int64_t row = tegroup_impl_mul(2, tegroup_impl_decoded_ld(cols[i])),
                      rows = (int64_t)plan->algorithm[TEGROUP_IMPL_PLANNED_DECODED_A + i];
        tegroup_impl_layout_add(layout, names[i],
                                tegroup_impl_mul(tegroup_impl_mul(p->rows_space[i] ? 1 : p->groups, rows), row));
    }
    if (operands) tegroup_impl_layout_add(layout, "alpha", 4 * (int64_t)p->groups);
}
