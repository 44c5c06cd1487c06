/* ---- Hopper GEMM: rows that are repacked for TMA ---- */

#pragma once
#include "base/version.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "core/layout.h"
#include "core/field_names.h"
#include "core/choice.h"
#include "core/quantised.h"
#include "cuda/decoded.h"
#include "cuda/sm90_decoded.h"
#include "cuda/sm90_fp8_kernels.h"

/* TMA reads rows that begin at multiples of 16 bytes. Rows of A or B that begin elsewhere, because their ld is no such
 * multiple, are copied into workspace first, where they begin at cache lines. Nothing is added to a sum: behind the
 * last column TMA reads zeros, as it does of any operand, so that results have the bits that they would have at another
 * ld. */
#define TEGROUP_IMPL_SM90_ROW_BYTES 16
#define TEGROUP_IMPL_SM90_LINE_BYTES 128 /* of a cache line: rows that begin at its multiples are loaded fastest */

/* Whether an operand, A or B, is repacked. Its ld alone decides, so that the number of rows does not. Gathered rows,
 * and ragged ones in a list of buffers, are not: they have no numbering that their copy could have. Neither are
 * quantised ones, and what is beside them. */
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_repacks(const tegroup_problem *p, tegroup_impl_operand operand) {
    const int64_t ld = operand == TEGROUP_IMPL_A ? p->lda : p->ldb;
    return !tegroup_impl_quantised(p)
           && ld * tegroup_impl_bits(operand == TEGROUP_IMPL_A ? p->a : p->b) % (8 * TEGROUP_IMPL_SM90_ROW_BYTES) != 0
           && !p->gathered[operand] && !(p->rows_space[operand] && p->pointers_space[operand]);
}
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_repacks_any(const tegroup_problem *p) {
    return tegroup_impl_sm90_repacks(p, TEGROUP_IMPL_A) || tegroup_impl_sm90_repacks(p, TEGROUP_IMPL_B);
}

/* The copy's shape: rows of all groups together, as planned, and elements from one to the next. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_sm90_repacked_rows(const tegroup_problem *p, tegroup_impl_operand operand) {
    const int weights = operand == TEGROUP_IMPL_B && p->op != TEGROUP_OP_WGRAD;
    return p->rows_space[operand] ? p->rows : tegroup_impl_mul(p->groups, weights ? p->n : p->rows);
}
TEGROUP_IMPL_STATIC int64_t tegroup_impl_sm90_repacked_ld(const tegroup_problem *p, tegroup_impl_operand operand) {
    const int64_t cols = operand == TEGROUP_IMPL_B || p->op == TEGROUP_OP_FORWARD ? p->k : p->n;
    return tegroup_impl_align(cols, 8 * TEGROUP_IMPL_SM90_LINE_BYTES / tegroup_impl_bits(p->a));
}

/* Weights are worth a copy where this many rows or more are multiplied by each. With fewer, PORTABLE, which multiplies
 * them as they lie, takes less time, but where rows begin at odd elements, which it reads one by one. A copy of rows
 * takes little beside the product. (docs/lab/pitch.md) */
#define TEGROUP_IMPL_SM90_REPAYS_ROWS 256
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_repays(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    return p->op == TEGROUP_OP_WGRAD || !tegroup_impl_sm90_repacks(p, TEGROUP_IMPL_B) || p->lda % 2 || p->ldb % 2
           || tegroup_impl_expected_rows(desc, p) / TEGROUP_IMPL_SM90_REPAYS_ROWS >= p->groups;
}

/* Predicted time of the copies, on an H200. */
#define TEGROUP_IMPL_SM90_REPACK_TB 4.0 /* TB/s, read and written; 0.92 of the rate of a plain copy */
TEGROUP_IMPL_STATIC double tegroup_impl_sm90_repack_us(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    const double rows = (double)tegroup_impl_expected_rows(desc, p);
    double elements = 0;
    int32_t i;
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++)
        if (tegroup_impl_sm90_repacks(p, (tegroup_impl_operand)i))
            elements += (p->rows_space[i] ? rows : (double)tegroup_impl_sm90_repacked_rows(p, (tegroup_impl_operand)i))
                        * (double)tegroup_impl_sm90_repacked_ld(p, (tegroup_impl_operand)i);
    return elements * 4e-6 / TEGROUP_IMPL_SM90_REPACK_TB;
}

/* What a plan of SM90 keeps in its workspace. */
TEGROUP_IMPL_STATIC void tegroup_impl_sm90_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    static const char *const names[] = {"repacked a", "repacked b"};
    const tegroup_problem *p = &plan->problem;
    int32_t i;
    if (tegroup_impl_sm90_decodes(p)) tegroup_impl_decoded_workspace(plan, tegroup_impl_sm90_decoded(plan), layout);
    if (tegroup_impl_sm90_multiplies_fp8(p)) tegroup_impl_sm90_fp8_workspace(plan, layout);
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++)
        if (tegroup_impl_sm90_repacks(p, (tegroup_impl_operand)i))
            tegroup_impl_layout_add(layout, names[i],
                                    tegroup_impl_mul(tegroup_impl_sm90_repacked_rows(p, (tegroup_impl_operand)i),
                                                     tegroup_impl_sm90_repacked_ld(p, (tegroup_impl_operand)i) * 2));
}
