/* ---- Hopper GEMM of FP8: the table of kernels, and where a group's scales are ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/choice.h"
#include "cuda/sm90_balance.h"
#include "cuda/sm90_decoded.h"

/* The kernel rows of FP8, one on each line: KERNEL(name, op, lines, cols, turns, slabs, narrows, fast). narrows:
 * whether a tile row may end in narrow tiles; fast: whether wgmma keeps sums of all of k, as
 * TEGROUP_COMPUTE_FAST_ACCUM asks; the others are as in sm90_kernels.h. All are kernels of a forward product or of a
 * weight gradient: a dgrad is a forward product with the transposed copy of the weights. The first kernel of an
 * operation runs every problem that is not fast. Where sums are promoted, a thread has two of each element in
 * registers, so that a warpgroup's part of a tile is at most 64 x 192. A kernel without narrow tiles finds its tiles
 * sooner. A WHOLE tile's results of four bytes fit into its slabs, which leaves a stage less for operands. */
#define TEGROUP_IMPL_SM90_FP8_KERNELS(KERNEL)                                                                          \
    KERNEL(FP8_128X192, 1, 64, 192, 0, 3, 0, 0)                                                                        \
    KERNEL(FP8_128X192_NARROW, 1, 64, 192, 0, 3, 1, 0)                                                                 \
    KERNEL(FP8_64X128, 1, 64, 128, 1, 2, 0, 0)                                                                         \
    KERNEL(FP8_WGRAD_128X192, 3, 64, 192, 0, 3, 0, 0)                                                                  \
    KERNEL(FP8_WGRAD_128X192_WHOLE, 3, 64, 192, 0, 6, 0, 0)                                                            \
    KERNEL(FP8_FAST_128X192, 1, 64, 192, 0, 3, 1, 1)                                                                   \
    KERNEL(FP8_FAST_64X128, 1, 64, 128, 1, 2, 0, 1)

enum {
#define TEGROUP_IMPL_SM90_FP8_NUMBER(name, op, lines, cols, turns, slabs, narrows, fast) TEGROUP_IMPL_SM90_##name,
    TEGROUP_IMPL_SM90_FP8_KERNELS(TEGROUP_IMPL_SM90_FP8_NUMBER) TEGROUP_IMPL_SM90_FP8_KERNEL_COUNT
#undef TEGROUP_IMPL_SM90_FP8_NUMBER
};

#define TEGROUP_IMPL_SM90_FP8_K 128     /* k of a pipeline stage, after which sums are promoted; of a block's scale */
#define TEGROUP_IMPL_SM90_FP8_SHORT 64  /* rows of an average group up to which the lower tile is taken */
#define TEGROUP_IMPL_SM90_FP8_WHOLE 512 /* and up to which a gradient that is written, not added, has WHOLE tiles */

typedef struct tegroup_impl_sm90_fp8_row {
    tegroup_op op;          /* FORWARD is for dgrad, too */
    int32_t tile_m, tile_n; /* rows and columns of D */
    int32_t narrows, fast;  /* as in the table */
} tegroup_impl_sm90_fp8_row;

TEGROUP_IMPL_STATIC const tegroup_impl_sm90_fp8_row *tegroup_impl_sm90_fp8_row_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_FP8_ROW(name, op, lines, cols, turns, slabs, narrows, fast)                                  \
    {(tegroup_op)(op), (lines) * (2 - (turns)), cols, narrows, fast},
    static const tegroup_impl_sm90_fp8_row rows[TEGROUP_IMPL_SM90_FP8_KERNEL_COUNT] = {
        TEGROUP_IMPL_SM90_FP8_KERNELS(TEGROUP_IMPL_SM90_FP8_ROW)};
#undef TEGROUP_IMPL_SM90_FP8_ROW
    return &rows[kernel];
}

/* Whether wgmma keeps a problem's sums of all of k: each scale is for all of k. */
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_fp8_fast(const tegroup_problem *p) {
    return p->compute == TEGROUP_COMPUTE_FAST_ACCUM && p->op != TEGROUP_OP_WGRAD
           && tegroup_scaling_info(p->a_scaling)->block_inner == 0
           && tegroup_scaling_info(p->b_scaling)->block_inner == 0;
}

/* Whether a kernel can run a problem. */
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_fp8_runs(const tegroup_problem *p, int32_t kernel) {
    const tegroup_impl_sm90_fp8_row *row = tegroup_impl_sm90_fp8_row_of(kernel);
    return (row->op == TEGROUP_OP_WGRAD) == (p->op == TEGROUP_OP_WGRAD) && row->fast == tegroup_impl_sm90_fp8_fast(p);
}

TEGROUP_IMPL_STATIC void tegroup_impl_sm90_fp8_tile(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                    tegroup_impl_forecast *forecast) {
    const tegroup_problem *p = &plan->problem;
    const int forward = p->op == TEGROUP_OP_FORWARD, wgrad = p->op == TEGROUP_OP_WGRAD;
    const int64_t cols = tegroup_impl_min(forward ? p->n : p->k, INT32_MAX),
                  k = tegroup_impl_min(forward ? p->k : p->n, INT32_MAX),
                  average = tegroup_impl_expected_rows(desc, p) / tegroup_impl_max(1, p->groups);
    const int lower = average <= TEGROUP_IMPL_SM90_FP8_SHORT,
              narrows = tegroup_impl_sm90_narrow_tiles(0, (int32_t)cols, (int32_t)k) > 0;
    const int whole = average <= TEGROUP_IMPL_SM90_FP8_WHOLE && !p->accumulate && p->c == TEGROUP_DTYPE_UNSET;
    const int fast = tegroup_impl_sm90_fp8_fast(p);
    const int32_t kernel = fast && lower    ? TEGROUP_IMPL_SM90_FP8_FAST_64X128
                           : fast           ? TEGROUP_IMPL_SM90_FP8_FAST_128X192
                           : wgrad && whole ? TEGROUP_IMPL_SM90_FP8_WGRAD_128X192_WHOLE
                           : wgrad          ? TEGROUP_IMPL_SM90_FP8_WGRAD_128X192
                           : lower          ? TEGROUP_IMPL_SM90_FP8_64X128
                           : narrows        ? TEGROUP_IMPL_SM90_FP8_128X192_NARROW
                                            : TEGROUP_IMPL_SM90_FP8_128X192;
    plan->tile_m = tegroup_impl_sm90_fp8_row_of(kernel)->tile_m;
    plan->tile_n = tegroup_impl_sm90_fp8_row_of(kernel)->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_FP8_K;
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
    forecast->why = fast && lower    ? "by rule: groups are short; sums stay in the tensor cores"
                    : fast           ? "by rule: groups are long; sums stay in the tensor cores"
                    : wgrad && whole ? "by rule: sums are short, and results go while the next tile is multiplied"
                    : wgrad          ? "by rule: sums are long"
                    : lower          ? "by rule: groups are short"
                    : narrows        ? "by rule: groups are long, and tile rows end in narrow tiles"
                                     : "by rule: groups are long";
}

/* Where the scales of an operand's group are: that of line l (of m or n) and block b of k is
 * at[(l >> line_shift) * line_stride + b * k_stride]. */
typedef struct tegroup_impl_sm90_scales {
    const float *at;
    int64_t line_stride, k_stride; /* k_stride is 0 where one scale is for all of k */
    int32_t line_shift;
} tegroup_impl_sm90_scales;

/* before: see tegroup_impl_scale_grid_after. */
TEGROUP_IMPL_HD tegroup_impl_sm90_scales tegroup_impl_sm90_scales_of(const tegroup_tensor *t,
                                                                     const tegroup_scaling_facts *facts,
                                                                     const tegroup_snapshot_view *view, int32_t g,
                                                                     int columnwise, int64_t before) {
    const tegroup_impl_scale_grid grid = tegroup_impl_scale_grid_after(t, facts, view, g, columnwise, before);
    tegroup_impl_sm90_scales scales;
    scales.at = (const float *)(tegroup_impl_listed(t) ? t->scale_pointers[g] : t->scale_inv) + grid.base;
    scales.line_stride = grid.outer_stride;
    scales.k_stride = facts->block_inner > 0 ? grid.inner_stride : 0;
    scales.line_shift = grid.outer_shift;
    return scales;
}

/* A weight gradient reads copies whose rows are as far apart as its group is long, so each group has two tensor maps of
 * its own, of 128 bytes, which a kernel makes in the workspace. It finds the scales of both, too, so that groups may be
 * multiplied in any order. */
TEGROUP_IMPL_STATIC void tegroup_impl_sm90_fp8_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    if (!tegroup_impl_sm90_multiplies_fp8(&plan->problem) || plan->problem.op != TEGROUP_OP_WGRAD) return;
    tegroup_impl_layout_add(layout, "tensor maps", (int64_t)256 * plan->problem.groups);
    tegroup_impl_layout_add(layout, "places of scales",
                            2 * (int64_t)sizeof(tegroup_impl_sm90_scales) * plan->problem.groups);
}
