/* ---- Hopper GEMM: the table of kernels ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "core/field_names.h"

#define TEGROUP_IMPL_SM90_K 64            /* k of a pipeline stage: 128 bytes, the widest swizzle of TMA */
#define TEGROUP_IMPL_SM90_MOST_BLOCKS 160 /* the most blocks; no Hopper GPU has more than 144 multiprocessors */
#define TEGROUP_IMPL_SM90_USUAL 132       /* multiprocessors of an H100 SXM and of an H200 */
#define TEGROUP_IMPL_SM90_WIDE 192        /* columns of a wide tile, in kernels that have narrow ones */
#define TEGROUP_IMPL_SM90_NARROW 128      /* columns of a narrow tile */
#define TEGROUP_IMPL_SM90_FIT 32          /* rows of D; a fitting tile has a multiple of them */
#define TEGROUP_IMPL_SM90_SMALLER 4       /* how many multiples below the largest a fitting tile may have */

/* Sums of at least this k let blocks drift apart (sm90_pace.h): an estimate, not a measured limit. */
#define TEGROUP_IMPL_SM90_DRIFTING_K 2048

/* The kernel rows, one on each line:
 * KERNEL(name, op, lines, cols, turns, slabs, flips, pairs, ns, epilogue, tb, us).
 *
 *   name      the tile's rows and columns of D; TEGROUP_IMPL_SM90_<name> is the row's number, which a plan holds
 *   op        1 forward, 2 dgrad, 3 wgrad, as tegroup_op
 *   lines ... pairs   arguments of tegroup_impl_sm90_shape, which explains them
 *   ns        nanoseconds that a tile takes for each unit of k
 *   epilogue  time of a tile's epilogue, as the k that would take as long
 *   tb        TB/s at which operands are read and results are written
 *   us        microseconds to launch, and to fill and drain the pipeline
 *
 * `make tiles` measures the costs on a Hopper GPU, `make fit` fits them: tests/bench/tiles.py. Kernels of pairs have
 * those of single blocks: what they save is in what they load.
 *
 * The first kernel of an operation runs every problem, but a dgrad with bias. MMA(name, op, ns, epilogue, tb, us) is
 * PORTABLE's kernel of 64 x 128 tiles, for short groups: a multiprocessor holds two of its blocks, and its results have
 * the same bits. ns, epilogue, tb and us are for an H200, fitted to the times of all kernels in 3,500 products of 4 to
 * 256 groups of 4 to 2,048 rows, 192 to 28,672 columns and results of two bytes. */
#define TEGROUP_IMPL_SM90_KERNELS(KERNEL, MMA)                                                                         \
    KERNEL(FORWARD_128X192, 1, 128, 192, 1, 3, 0, 0, 7.75, 11, 4.06, 15.2)                                             \
    KERNEL(FORWARD_64X256, 1, 64, 256, 1, 4, 0, 0, 5.74, 31, 4.07, 13.5)                                               \
    KERNEL(FORWARD_128X256, 1, 64, 256, 0, 2, 0, 0, 10.50, 109, 4.37, 12.0)                                            \
    KERNEL(FORWARD_192X128, 1, 128, 192, 1, 3, 1, 0, 7.41, 19, 4.35, 11.7)                                             \
    KERNEL(FORWARD_64X128, 1, 64, 128, 1, 2, 0, 0, 3.98, 40, 4.25, 10.6)                                               \
    KERNEL(DGRAD_128X192, 2, 128, 192, 1, 3, 0, 0, 7.90, 0, 4.20, 16.3)                                                \
    KERNEL(DGRAD_64X256, 2, 64, 256, 1, 4, 0, 0, 6.55, 43, 4.34, 12.3)                                                 \
    KERNEL(DGRAD_128X256, 2, 64, 256, 0, 2, 0, 0, 10.53, 105, 4.57, 11.7)                                              \
    KERNEL(DGRAD_192X128, 2, 128, 192, 1, 3, 1, 0, 7.28, 9, 4.62, 12.8)                                                \
    MMA(DGRAD_64X128, 2, 11.76, 212, 4.43, 10.8)                                                                       \
    KERNEL(WGRAD_128X192, 3, 128, 192, 1, 4, 0, 0, 8.76, 144, 3.23, 14.9)                                              \
    KERNEL(WGRAD_128X128, 3, 128, 128, 1, 4, 0, 0, 7.20, 143, 5.29, 17.5)                                              \
    KERNEL(WGRAD_192X128, 3, 128, 192, 1, 3, 1, 0, 8.71, 170, 3.62, 6.4)                                               \
    KERNEL(FORWARD_192X256, 1, 128, 192, 1, 3, 1, 1, 7.41, 19, 4.35, 11.7)                                             \
    KERNEL(DGRAD_192X256, 2, 128, 192, 1, 3, 1, 1, 7.28, 9, 4.62, 12.8)

enum {
#define TEGROUP_IMPL_SM90_NUMBER(name, op, lines, cols, turns, slabs, flips, pairs, ns, epilogue, tb, us)              \
    TEGROUP_IMPL_SM90_##name,
#define TEGROUP_IMPL_SM90_MMA_NUMBER(name, op, ns, epilogue, tb, us) TEGROUP_IMPL_SM90_##name,
    TEGROUP_IMPL_SM90_KERNELS(TEGROUP_IMPL_SM90_NUMBER, TEGROUP_IMPL_SM90_MMA_NUMBER) TEGROUP_IMPL_SM90_KERNEL_COUNT
#undef TEGROUP_IMPL_SM90_NUMBER
#undef TEGROUP_IMPL_SM90_MMA_NUMBER
};

typedef struct tegroup_impl_sm90_row {
    tegroup_op op;
    int32_t tile_m, tile_n; /* rows and columns of D */
    int32_t flips;          /* whether tiles are flipped: wgmma's M dimension is D's columns */
    int32_t fits;           /* whether tiles are fitting ones: they have a multiple of TEGROUP_IMPL_SM90_FIT rows */
    int32_t narrows;        /* whether a tile row may end in narrow tiles */
    int32_t paces;          /* whether blocks keep step where they would drift apart: those of cooperative tiles */
    int32_t mma;            /* whether the kernel is PORTABLE's */
    int32_t pairs;          /* whether a tile is that of two blocks, each of which has half of its columns */
    double ns, epilogue, tb, us;
} tegroup_impl_sm90_row;

TEGROUP_IMPL_STATIC const tegroup_impl_sm90_row *tegroup_impl_sm90_row_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_ROW(name, op, lines, cols, turns, slabs, flips, pairs, ns, epilogue, tb, us)                 \
    {(tegroup_op)(op),                                                                                                 \
     (flips) ? (cols) : (lines) * (2 - (turns)),                                                                       \
     (flips) ? (lines) * (2 - (turns)) * (1 + (pairs)) : (cols),                                                       \
     flips,                                                                                                            \
     (flips) && (op) != 3,                                                                                             \
     (cols) == TEGROUP_IMPL_SM90_WIDE && !((flips) && (op) != 3),                                                      \
     !(turns),                                                                                                         \
     0,                                                                                                                \
     pairs,                                                                                                            \
     ns,                                                                                                               \
     epilogue,                                                                                                         \
     tb,                                                                                                               \
     us},
#define TEGROUP_IMPL_SM90_MMA_ROW(name, op, ns, epilogue, tb, us)                                                      \
    {(tegroup_op)(op), 64, 128, 0, 0, 0, 0, 1, 0, ns, epilogue, tb, us},
    static const tegroup_impl_sm90_row rows[TEGROUP_IMPL_SM90_KERNEL_COUNT] = {
        TEGROUP_IMPL_SM90_KERNELS(TEGROUP_IMPL_SM90_ROW, TEGROUP_IMPL_SM90_MMA_ROW)};
#undef TEGROUP_IMPL_SM90_ROW
#undef TEGROUP_IMPL_SM90_MMA_ROW
    return &rows[kernel];
}

/* Whether flipped tiles can run a problem: they store results of two bytes to which nothing is added, and gather no
 * rows. Fitting tiles store boxes of 64 rows, which would reach past a group's end where D is not ragged. */
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_can_flip(const tegroup_problem *p) {
    return (p->op == TEGROUP_OP_WGRAD || p->rows_space[TEGROUP_IMPL_D] != TEGROUP_SPACE_UNSET)
           && p->d != TEGROUP_DTYPE_F32 && p->c == TEGROUP_DTYPE_UNSET && !p->accumulate
           && (p->bias == TEGROUP_DTYPE_UNSET || p->op == TEGROUP_OP_WGRAD) && !p->gathered[TEGROUP_IMPL_A]
           && !p->gathered[TEGROUP_IMPL_B];
}
/* Whether the kernels of an operation, with tiles of so many columns, add a bias. It would cost those of dgrad with 128
 * by 192 tiles registers, which they spill. */
#define TEGROUP_IMPL_SM90_ADDS_BIAS(op, cols, flips)                                                                   \
    (!(flips) && ((op) == TEGROUP_OP_FORWARD || ((op) == TEGROUP_OP_DGRAD && (cols) > TEGROUP_IMPL_SM90_WIDE)))

/* Whether a kernel can run a problem. PORTABLE's gathers no rows. with_mma: PORTABLE is in the build. */
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_runs(const tegroup_problem *p, int32_t kernel, int with_mma) {
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_row_of(kernel);
    return row->op == p->op && (!row->mma || (with_mma && !p->gathered[TEGROUP_IMPL_A]))
           && (!row->flips || tegroup_impl_sm90_can_flip(p))
           && (p->bias == TEGROUP_DTYPE_UNSET || p->op == TEGROUP_OP_WGRAD || row->mma
               || TEGROUP_IMPL_SM90_ADDS_BIAS(row->op, row->tile_n, row->flips));
}
