/* ---- Hopper GEMM: the table of kernels that decode weights ---- */

#pragma once
#include "base/version.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "core/field_names.h"
#include "core/choice.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_decoded.h"

/* The kernel rows, one on each line: KERNEL(name, bits, order, rows, k, multipliers). bits, order: of codes; rows: of
 * D, the most that a fitting tile has; k: of a pipeline stage; multipliers: warpgroups, each of which has 64 columns of
 * D. Tall tiles decode a weight for 256 rows; low ones have more warps that decode. */
#define TEGROUP_IMPL_SM90_WEIGHTS_KERNELS(KERNEL)                                                                      \
    KERNEL(WEIGHTS8_64X192, 8, IN_ORDER, 64, 128, 3)                                                                   \
    KERNEL(WEIGHTS8_256X128, 8, IN_ORDER, 256, 64, 2)                                                                  \
    KERNEL(WEIGHTS4_64X192, 4, IN_ORDER, 64, 128, 3)                                                                   \
    KERNEL(WEIGHTS4_256X128, 4, IN_ORDER, 256, 64, 2)                                                                  \
    KERNEL(INTERLEAVED8_64X192, 8, INTERLEAVED, 64, 128, 3)                                                            \
    KERNEL(INTERLEAVED8_256X128, 8, INTERLEAVED, 256, 64, 2)                                                           \
    KERNEL(INTERLEAVED4_64X192, 4, INTERLEAVED, 64, 128, 3)                                                            \
    KERNEL(INTERLEAVED4_256X128, 4, INTERLEAVED, 256, 64, 2)

enum { /* behind the kernels of sm90_kernels.h */
    TEGROUP_IMPL_SM90_WEIGHTS_BEFORE = TEGROUP_IMPL_SM90_KERNEL_COUNT - 1,
#define TEGROUP_IMPL_SM90_WEIGHTS_NUMBER(name, bits, order, rows, k, multipliers) TEGROUP_IMPL_SM90_##name,
    TEGROUP_IMPL_SM90_WEIGHTS_KERNELS(TEGROUP_IMPL_SM90_WEIGHTS_NUMBER) TEGROUP_IMPL_SM90_WEIGHTS_END,
#undef TEGROUP_IMPL_SM90_WEIGHTS_NUMBER
    TEGROUP_IMPL_SM90_WEIGHTS_COUNT = TEGROUP_IMPL_SM90_WEIGHTS_END - TEGROUP_IMPL_SM90_WEIGHTS_BEFORE - 1
};

/* Rows of an average group up to which low tiles are faster (docs/lab/decoded.md, "Low tiles and tall ones"). */
#define TEGROUP_IMPL_SM90_WEIGHTS_FEW 96

/* How many multiples of FIT a tile of these may have besides `rows`. */
#define TEGROUP_IMPL_SM90_WEIGHTS_SMALLER(rows)                                                                        \
    ((rows) > TEGROUP_IMPL_SM90_SMALLER * TEGROUP_IMPL_SM90_FIT ? TEGROUP_IMPL_SM90_SMALLER                            \
                                                                : (rows) / TEGROUP_IMPL_SM90_FIT - 1)

typedef struct tegroup_impl_sm90_weights_row {
    int32_t bits;
    tegroup_code_order order;
    int32_t rows, cols, k;
} tegroup_impl_sm90_weights_row;

TEGROUP_IMPL_STATIC const tegroup_impl_sm90_weights_row *tegroup_impl_sm90_weights_row_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_WEIGHTS_ROW(name, bits, order, rows, k, multipliers)                                         \
    {bits, TEGROUP_CODES_##order, rows, 64 * (multipliers), k},
    static const tegroup_impl_sm90_weights_row rows[TEGROUP_IMPL_SM90_WEIGHTS_COUNT] = {
        TEGROUP_IMPL_SM90_WEIGHTS_KERNELS(TEGROUP_IMPL_SM90_WEIGHTS_ROW)};
#undef TEGROUP_IMPL_SM90_WEIGHTS_ROW
    return &rows[kernel - TEGROUP_IMPL_SM90_KERNEL_COUNT];
}
/* Whether a kernel decodes the weights of a problem. */
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_weights_runs(const tegroup_problem *p, int32_t kernel) {
    const tegroup_impl_sm90_weights_row *row = tegroup_impl_sm90_weights_row_of(kernel);
    return row->bits == tegroup_impl_bits(p->b) && row->order == (tegroup_code_order)p->code_order[TEGROUP_IMPL_B];
}

TEGROUP_IMPL_STATIC void tegroup_impl_sm90_weights_tile(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                        tegroup_impl_forecast *forecast) {
    const tegroup_problem *p = &plan->problem;
    const int few = tegroup_impl_expected_rows(desc, p) <= tegroup_impl_mul(TEGROUP_IMPL_SM90_WEIGHTS_FEW, p->groups);
    const tegroup_impl_sm90_weights_row *row;
    int32_t kernel = TEGROUP_IMPL_SM90_KERNEL_COUNT;
    while (!tegroup_impl_sm90_weights_runs(p, kernel)
           || few != (tegroup_impl_sm90_weights_row_of(kernel)->rows <= TEGROUP_IMPL_SM90_WEIGHTS_FEW))
        kernel++;
    row = tegroup_impl_sm90_weights_row_of(kernel);
    plan->tile_m = row->rows;
    plan->tile_n = row->cols;
    plan->tile_k = row->k;
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
    tegroup_impl_sm90_plan_decoded(desc, plan);
    forecast->why = few ? "by rule: weights are decoded in registers, and groups are short"
                        : "by rule: weights are decoded in registers, and groups are long";
}
