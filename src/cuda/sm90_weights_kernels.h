/* ---- Hopper GEMM: the table of kernels that decode weights ---- */

#pragma once
#include "base/version.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "core/choice.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_decoded.h"

/* The kernel rows, one on each line: KERNEL(name, bits, rows, k, multipliers). bits: of a code; rows: of D, the
 * most that a fitting tile has; k: of a pipeline stage; multipliers: warpgroups, each of which has 64 columns of D.
 * Tall tiles decode a weight for 256 rows; low ones have more warps that decode. */
#define TEGROUP_IMPL_SM90_WEIGHTS_KERNELS(KERNEL)                                                                      \
    KERNEL(WEIGHTS8_64X192, 8, 64, 128, 3)                                                                             \
    KERNEL(WEIGHTS8_256X128, 8, 256, 64, 2)                                                                            \
    KERNEL(WEIGHTS4_64X192, 4, 64, 128, 3)                                                                             \
    KERNEL(WEIGHTS4_256X128, 4, 256, 64, 2)

enum { /* behind the kernels of sm90_kernels.h */
    TEGROUP_IMPL_SM90_WEIGHTS_BEFORE = TEGROUP_IMPL_SM90_KERNEL_COUNT - 1,
#define TEGROUP_IMPL_SM90_WEIGHTS_NUMBER(name, bits, rows, k, multipliers) TEGROUP_IMPL_SM90_##name,
    TEGROUP_IMPL_SM90_WEIGHTS_KERNELS(TEGROUP_IMPL_SM90_WEIGHTS_NUMBER) TEGROUP_IMPL_SM90_WEIGHTS_END,
#undef TEGROUP_IMPL_SM90_WEIGHTS_NUMBER
    TEGROUP_IMPL_SM90_WEIGHTS_COUNT = TEGROUP_IMPL_SM90_WEIGHTS_END - TEGROUP_IMPL_SM90_WEIGHTS_BEFORE - 1
};

#define TEGROUP_IMPL_SM90_WEIGHTS_FEW 64 /* rows of an average group up to which tiles are low */

/* How many multiples of FIT a tile of these may have besides `rows`. */
#define TEGROUP_IMPL_SM90_WEIGHTS_SMALLER(rows)                                                                        \
    ((rows) > TEGROUP_IMPL_SM90_SMALLER * TEGROUP_IMPL_SM90_FIT ? TEGROUP_IMPL_SM90_SMALLER                            \
                                                                : (rows) / TEGROUP_IMPL_SM90_FIT - 1)

typedef struct tegroup_impl_sm90_weights_row {
    int32_t bits, rows, cols, k;
} tegroup_impl_sm90_weights_row;

static inline const tegroup_impl_sm90_weights_row *tegroup_impl_sm90_weights_row_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_WEIGHTS_ROW(name, bits, rows, k, multipliers) {bits, rows, 64 * (multipliers), k},
    static const tegroup_impl_sm90_weights_row rows[TEGROUP_IMPL_SM90_WEIGHTS_COUNT] = {
        TEGROUP_IMPL_SM90_WEIGHTS_KERNELS(TEGROUP_IMPL_SM90_WEIGHTS_ROW)};
#undef TEGROUP_IMPL_SM90_WEIGHTS_ROW
    return &rows[kernel - TEGROUP_IMPL_SM90_KERNEL_COUNT];
}

static inline void tegroup_impl_sm90_weights_tile(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                  tegroup_impl_forecast *forecast) {
    const tegroup_problem *p = &plan->problem;
    const int few =
                  tegroup_impl_expected_rows(desc, p) <= tegroup_impl_mul(TEGROUP_IMPL_SM90_WEIGHTS_FEW, p->groups),
              eight = tegroup_impl_bits(p->b) == 8;
    const int32_t kernel = eight ? (few ? TEGROUP_IMPL_SM90_WEIGHTS8_64X192 : TEGROUP_IMPL_SM90_WEIGHTS8_256X128)
                                 : (few ? TEGROUP_IMPL_SM90_WEIGHTS4_64X192 : TEGROUP_IMPL_SM90_WEIGHTS4_256X128);
    const tegroup_impl_sm90_weights_row *row = tegroup_impl_sm90_weights_row_of(kernel);
    plan->tile_m = row->rows;
    plan->tile_n = row->cols;
    plan->tile_k = row->k;
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
    tegroup_impl_sm90_plan_decoded(desc, plan);
    forecast->why = few ? "by rule: weights are decoded in registers, and groups are short"
                        : "by rule: weights are decoded in registers, and groups are long";
}
