/* ---- Hopper GEMM: operands that are decoded ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/choice.h"
#include "core/quantised.h"

/* Hopper has no instruction for MXFP8, MXFP4 and NVFP4. But a value times its scale of 8 bits is a number of BF16, so
 * such an operand is decoded into workspace, where the kernels of BF16 read it; cuda/sm90_decode.h has the kernel for
 * that. NVFP4's scale of a group, of F32, goes through alpha. */

static inline int tegroup_impl_sm90_decodes(const tegroup_problem *p) {
    return tegroup_impl_scaled_by_8_bits(p->a_scaling) || tegroup_impl_scaled_by_8_bits(p->b_scaling);
}

/* FP8 with scales of F32 it multiplies as it is (cuda/sm90_fp8_kernels.h). */
static inline int tegroup_impl_sm90_multiplies_fp8(const tegroup_problem *p) {
    return tegroup_impl_quantised(p) && !tegroup_impl_sm90_decodes(p);
}

/* A problem as its kernel multiplies it. */
static inline tegroup_problem tegroup_impl_sm90_multiplied(const tegroup_problem *p) {
    tegroup_problem multiplied = *p;
    if (!tegroup_impl_sm90_decodes(p)) return multiplied;
    multiplied.a = multiplied.b = TEGROUP_DTYPE_BF16;
    multiplied.a_scaling = multiplied.b_scaling = TEGROUP_SCALING_NONE;
    return multiplied;
}

/* Elements between rows of a decoded operand: what a thread decodes at a time is written whole. */
#define TEGROUP_IMPL_SM90_DECODED_PIECE 16
static inline int64_t tegroup_impl_sm90_decoded_ld(int64_t cols) {
    return tegroup_impl_align(cols, TEGROUP_IMPL_SM90_DECODED_PIECE);
}

/* The decoded operand: its rows lie as the snapshot says, of all groups in one buffer. */
static inline tegroup_tensor tegroup_impl_sm90_decoded(const tegroup_tensor *t, void *data) {
    tegroup_tensor decoded;
    memset(&decoded, 0, sizeof decoded);
    decoded.shape = t->shape;
    decoded.dtype = TEGROUP_DTYPE_BF16;
    decoded.ld = tegroup_impl_sm90_decoded_ld(t->shape.cols);
    decoded.data = data;
    return decoded;
}

/* Notes how many rows the buffers of decoded operands have, which the problem does not say of B in a wgrad. */
static inline void tegroup_impl_sm90_plan_decoded(const tegroup_gemm_desc *desc, tegroup_plan *plan) {
    const tegroup_tensor *operands[2] = {&desc->a, &desc->b};
    int i;
    for (i = 0; i < 2; i++)
        if (tegroup_impl_scaled_by_8_bits(operands[i]->scaling))
            plan->algorithm[TEGROUP_IMPL_PLANNED_DECODED_A + i] = (uint64_t)operands[i]->shape.rows;
}

#define TEGROUP_IMPL_SM90_DECODE_TB 2.0 /* TB/s at which codes are read and BF16 is written, seen on an H100 */

/* Predicted time in us to decode: all groups are taken to have rows. */
static inline double tegroup_impl_sm90_decode_us(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    const tegroup_tensor *operands[2] = {&desc->a, &desc->b};
    double bytes = 0;
    int i;
    for (i = 0; i < 2; i++) {
        const tegroup_tensor *t = operands[i];
        const double rows = tegroup_impl_ragged(&t->shape) ? (double)tegroup_impl_expected_rows(desc, p)
                                                           : (double)t->shape.groups * (double)t->shape.rows;
        if (tegroup_impl_scaled_by_8_bits(t->scaling))
            bytes += rows * (double)t->shape.cols * (2 + tegroup_impl_bits(t->dtype) / 8.0);
    }
    return bytes / (TEGROUP_IMPL_SM90_DECODE_TB * 1e6);
}

enum { TEGROUP_IMPL_DECODED_ALPHA = 2 }; /* the item of a plan's workspace that follows those of A and B */

static inline void tegroup_impl_sm90_decoded_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    static const char *const names[2] = {"decoded a", "decoded b"};
    const tegroup_problem *p = &plan->problem;
    const int64_t cols[2] = {p->op == TEGROUP_OP_FORWARD ? p->k : p->n, p->k};
    int i;
    if (!tegroup_impl_sm90_decodes(p)) return;
    for (i = 0; i < 2; i++) {
        const int64_t row = tegroup_impl_mul(2, tegroup_impl_sm90_decoded_ld(cols[i])),
                      rows = (int64_t)plan->algorithm[TEGROUP_IMPL_PLANNED_DECODED_A + i];
        tegroup_impl_layout_add(layout, names[i],
                                tegroup_impl_mul(tegroup_impl_mul(p->rows_space[i] ? 1 : p->groups, rows), row));
    }
    tegroup_impl_layout_add(layout, "alpha", 4 * (int64_t)p->groups);
}
