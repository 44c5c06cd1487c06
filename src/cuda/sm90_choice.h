/* ---- Hopper GEMM: which kernel a plan takes ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "core/field_names.h"
#include "core/choice.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_balance.h"
#include "cuda/sm90_decoded.h"
#include "cuda/sm90_weights_kernels.h"
#include "cuda/sm90_fp8_kernels.h"
#include "cuda/sm90_repack.h"
#include "cuda/sm90_forecast.h"

/* Constants of the prediction besides those of each kernel in the table, together with which the times were fitted. */
#define TEGROUP_IMPL_SM90_STRETCH_US 0.55 /* us to find a stretch, or to assign a wave of its tiles */
#define TEGROUP_IMPL_SM90_NARROW_AS                                                                                    \
    (TEGROUP_IMPL_SM90_NARROW * 7 / 6.0) /* columns of a wide tile that take as long as a narrow tile */
#define TEGROUP_IMPL_SM90_FEW_WAVES 8    /* waves from which on the last one counts as half full */
#define TEGROUP_IMPL_SM90_SPILL 0.02     /* part of a wave that does not count as another wave */
/* Where memory is slow (tegroup_impl_sm90_slowness) fitting tiles take longer by this share for each unit of k and each
 * wave, at most by MOST: blocks fall out of step, and then do not find in L2 what others read. (Of five and three that
 * were tried for tiles.csv, the best: docs/lab/tile-choice.md.) */
#define TEGROUP_IMPL_SM90_DRIFT 4e-7
#define TEGROUP_IMPL_SM90_DRIFT_MOST 0.1
/* Blocks that keep step take this share of the time that they took before they did, when the table's costs were fitted,
 * where memory is slow. (Of seven from 0.9 to 1, the best for 614 uneven products on an H100:
 * docs/lab/tile-choice.md.) */
#define TEGROUP_IMPL_SM90_IN_STEP 0.95
#define TEGROUP_IMPL_SM90_MMA_BLOCKS 2    /* blocks of PORTABLE's kernel that a multiprocessor holds */
#define TEGROUP_IMPL_SM90_MMA_FIXED 0.875 /* of 1.875: time of PORTABLE's tile that does not depend on its rows */
#define TEGROUP_IMPL_SM90_MMA_DRAIN 65    /* time that PORTABLE's blocks wait for memory at the end of a sum, in k */
#define TEGROUP_IMPL_SM90_ZIPF_PARTS 32   /* sizes that represent those of all groups */
#define TEGROUP_IMPL_SM90_ZIPF_POWER 4.0  /* the largest exponent of the fall of sizes that is considered */
#define TEGROUP_IMPL_SM90_UNKNOWN_MOST                                                                                 \
    2.5 /* rows of the largest group over the mean's, where it is not known: the best of seven for tiles.csv */

/* The sizes of groups that a plan expects: of `count` groups, an equal share has each of `parts` sizes. */
typedef struct tegroup_impl_sm90_groups {
    double count, mean, rows[TEGROUP_IMPL_SM90_ZIPF_PARTS];
    int32_t parts;
    int alike;
} tegroup_impl_sm90_groups;

/* Derives sizes from the mean and the largest: they fall as a power of rank, as tokens do over experts (Zipf's law). */
TEGROUP_IMPL_STATIC tegroup_impl_sm90_groups tegroup_impl_sm90_expect(double count, double mean, double most) {
    const int32_t parts = most > mean + 1 ? (int32_t)fmin(count, TEGROUP_IMPL_SM90_ZIPF_PARTS) : 1;
    tegroup_impl_sm90_groups groups;
    double low = 0, high = TEGROUP_IMPL_SM90_ZIPF_POWER;
    int32_t step, i;
    memset(&groups, 0, sizeof groups);
    groups.count = count;
    groups.mean = mean;
    groups.parts = parts;
    groups.alike = most < 2 * mean + 2;
    groups.rows[0] = mean;
    for (step = 0; parts > 1 && step < 20; step++) { /* a bisection down to 4 / 2^20 */
        const double power = (low + high) / 2;
        double sum = 0;
        for (i = 0; i < parts; i++) {
            groups.rows[i] = most * pow((i + 0.5) * count / parts + 0.5, -power); /* the rank in the middle of a part */
            sum += groups.rows[i];
        }
        if (sum > mean * parts) low = power;
        else high = power;
    }
    return groups;
}

/* An average group. */
typedef struct tegroup_impl_sm90_share {
    double there; /* share of groups that have rows */
    double tiles;
    double work;      /* time of its tiles, in units of a full tile's */
    double stretches; /* stretches if blocks are balanced; 0: scheduling is round-robin */
} tegroup_impl_sm90_share;

/* Tiles of 128 rows by 192 columns that cover a weight gradient; a narrow one counts as `narrow` columns of these. */
TEGROUP_IMPL_STATIC double tegroup_impl_sm90_covering(int64_t rows, int64_t cols, double narrow) {
    return (double)tegroup_impl_ceil_div(rows, 128)
           * ((double)tegroup_impl_ceil_div(cols, TEGROUP_IMPL_SM90_WIDE)
              - (1 - narrow / TEGROUP_IMPL_SM90_WIDE)
                    * tegroup_impl_sm90_narrow_tiles(1, (int32_t)tegroup_impl_min(cols, INT32_MAX), 0));
}

TEGROUP_IMPL_STATIC tegroup_impl_sm90_share tegroup_impl_sm90_wgrad_share(const tegroup_problem *p,
                                                                          const tegroup_impl_sm90_row *row) {
    tegroup_impl_sm90_share share = {1, 0, 0, 0};
    share.tiles = !row->narrows ? ceil((double)p->n / row->tile_m) * ceil((double)p->k / row->tile_n)
                  : row->flips  ? tegroup_impl_sm90_covering(p->k, p->n, TEGROUP_IMPL_SM90_NARROW_AS)
                                : tegroup_impl_sm90_covering(p->n, p->k, TEGROUP_IMPL_SM90_NARROW_AS);
    share.work = share.tiles;
    return share;
}

/* For a forward product or dgrad: n is the columns of D, k the length of its sums. */
TEGROUP_IMPL_STATIC tegroup_impl_sm90_share tegroup_impl_sm90_rows_share(const tegroup_impl_sm90_groups *groups,
                                                                         const tegroup_impl_sm90_row *row, double n,
                                                                         double k) {
    const double across = ceil(n / row->tile_n), part = 1.0 / groups->parts,
                 narrows =
                     row->narrows ? tegroup_impl_sm90_narrow_tiles(0, (int32_t)n, (int32_t)fmin(k, INT32_MAX)) : 0;
    const int balanced = row->fits || (narrows > 0 && narrows < across && k >= TEGROUP_IMPL_SM90_BALANCED_K);
    tegroup_impl_sm90_share share = {0, 0, 0, 0};
    int32_t i;
    for (i = 0; i < groups->parts; i++) {
        const double rows = groups->rows[i], tall = ceil(rows / row->tile_m);
        double each = 1 - narrows / across * (1 - TEGROUP_IMPL_SM90_NARROW_AS / row->tile_n);
        if (rows < 0.5) continue;
        if (row->fits) { /* Tiles share the group's rows evenly. */
            const int32_t least = row->tile_m - TEGROUP_IMPL_SM90_SMALLER * TEGROUP_IMPL_SM90_FIT;
            const double high = fmax(least, ceil(rows / tall / TEGROUP_IMPL_SM90_FIT) * TEGROUP_IMPL_SM90_FIT);
            each = (double)tegroup_impl_sm90_fit_cost((int32_t)high) / tegroup_impl_sm90_fit_cost(row->tile_m);
        }
        if (row->mma)
            each = (TEGROUP_IMPL_SM90_MMA_FIXED + fmin(rows / tall, row->tile_m) / row->tile_m)
                   / (TEGROUP_IMPL_SM90_MMA_FIXED + 1);
        share.there += part;
        share.tiles += part * tall * across;
        share.work += part * tall * across * each;
        if (balanced)
            share.stretches += part * ceil(tall / 8) * (!row->fits ? 2 : tall > 1 ? 2 * ceil(across / 16) : 1);
    }
    if (share.tiles * k / TEGROUP_IMPL_SM90_K < TEGROUP_IMPL_SM90_BALANCED_STEPS) share.stretches = 0;
    return share;
}

/* Predicted times in us. */
typedef struct tegroup_impl_sm90_time {
    double math, scheduling, memory, total;
} tegroup_impl_sm90_time;

/* Nanoseconds in which TMA loads a row of a tile, for each unit of k, where rows begin off cache lines: at multiples of
 * 32 bytes, or of 16 alone. Else the kernel's own time has it. (From 27 products on an H100: docs/lab/pitch.md.) */
TEGROUP_IMPL_STATIC double tegroup_impl_sm90_row_ns(const tegroup_problem *p, tegroup_impl_operand operand) {
    const int64_t bytes = (operand == TEGROUP_IMPL_A ? p->lda : p->ldb) * 2;
    if (bytes % TEGROUP_IMPL_SM90_LINE_BYTES == 0 || p->gathered[operand] || tegroup_impl_sm90_repacks(p, operand))
        return 0;
    return bytes % 32 == 0 ? 0.030 : 0.046;
}

/* Whether pairs of blocks may pay: rows of a group begin at odd multiples of 16 bytes, which TMA takes longer to read
 * than wgmma to multiply. A block of a pair reads half of them. (Of other rows pairs have 0.85 to 1.01 of the speed of
 * single blocks: docs/lab/pitch.md.) */
TEGROUP_IMPL_STATIC int tegroup_impl_sm90_pairs_pay(const tegroup_problem *p) {
    return p->lda * 2 % 32 == 16 && !tegroup_impl_sm90_repacks(p, TEGROUP_IMPL_A);
}

/* Predicts the time of a product with one kernel, beside memory of this slowness. Math, scheduling and memory overlap;
 * they are combined as cbrt(a^3 + b^3 + c^3), which lies between their maximum and their sum. */
TEGROUP_IMPL_STATIC tegroup_impl_sm90_time tegroup_impl_sm90_predict(const tegroup_problem *p,
                                                                     const tegroup_impl_sm90_groups *groups,
                                                                     const tegroup_impl_sm90_row *row, int64_t blocks,
                                                                     double slowness) {
    const int forward = p->op == TEGROUP_OP_FORWARD, wgrad = p->op == TEGROUP_OP_WGRAD;
    const double n = (double)(forward ? p->n : p->k), k = (double)(forward ? p->k : p->n),
                 terms = !wgrad          ? k
                         : groups->alike ? ceil(groups->mean / 64) * 64
                                         : groups->mean + 32;
    const tegroup_impl_sm90_share share =
        wgrad ? tegroup_impl_sm90_wgrad_share(p, row) : tegroup_impl_sm90_rows_share(groups, row, n, k);
    const int each = 1 + row->pairs; /* blocks of a tile, which share what it loads */
    const double waves = groups->count * share.tiles
                         / (double)(row->mma ? TEGROUP_IMPL_SM90_MMA_BLOCKS * blocks : blocks / each),
                 whole = waves < TEGROUP_IMPL_SM90_FEW_WAVES ? ceil(waves - TEGROUP_IMPL_SM90_SPILL) : waves + 0.5;
    const double loads = row->mma ? 0
                                  : (row->tile_m * tegroup_impl_sm90_row_ns(p, TEGROUP_IMPL_A)
                                     + row->tile_n * tegroup_impl_sm90_row_ns(p, TEGROUP_IMPL_B))
                                        / each;
    tegroup_impl_sm90_time us;
    const int keeps_step = row->paces && k >= TEGROUP_IMPL_SM90_DRIFTING_K
                           && (groups->parts > 1 || ceil(groups->mean / row->tile_m) * row->tile_m != groups->mean);
    us.math = whole * (share.tiles > 0 ? share.work / share.tiles : 0) * row->ns
              * (terms * fmax(1, loads / row->ns) + row->epilogue) * 1e-3
              * (row->fits ? 1 + slowness * fmin(TEGROUP_IMPL_SM90_DRIFT_MOST, TEGROUP_IMPL_SM90_DRIFT * k * waves) : 1)
              * (keeps_step ? 1 - slowness * (1 - TEGROUP_IMPL_SM90_IN_STEP) : 1);
    us.scheduling = share.stretches > 0 ? TEGROUP_IMPL_SM90_STRETCH_US * (groups->count * share.stretches + waves) : 0;
    us.memory = 2e-6 * groups->count * (share.there * n * k + groups->mean * (n + k)) / row->tb
                * (row->mma ? 1 + TEGROUP_IMPL_SM90_MMA_DRAIN / fmax(k, 1) : 1);
    us.total = cbrt(us.math * us.math * us.math + us.scheduling * us.scheduling * us.scheduling
                    + us.memory * us.memory * us.memory)
               + row->us;
    return us;
}

/* The kernel for a weight gradient that cannot have flipped tiles, such as one to which C is added. It is bound by
 * memory, so larger tiles than 128 x 128 pay off only for long sums, or where they cover D without a rest. (The limits
 * come from medians of the kernels' times on an H200.) most: rows of the largest group, as hinted. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_sm90_wide_wgrad(const tegroup_problem *p, int64_t average, int64_t most) {
    const int adds = p->accumulate || p->c != TEGROUP_DTYPE_UNSET, alike = most < 2 * average + 2,
              divides = tegroup_impl_sm90_covering(p->n, p->k, TEGROUP_IMPL_SM90_NARROW)
                        <= (double)p->n / 128 * (double)p->k / 192;
    return average <= 128 || (adds && alike && average <= 512 && !divides) ? TEGROUP_IMPL_SM90_WGRAD_128X128
                                                                           : TEGROUP_IMPL_SM90_WGRAD_128X192;
}

/* The kernel where one of many short groups has most of the rows, and it is not known how many of the others have any:
 * one for short groups, but fitting tiles if the largest group is just one of them and weights are large, or if that
 * group is very large. (The limits come from 1,006 such products on an H200.) */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_sm90_one_large(const tegroup_problem *p, double most) {
    const int forward = p->op == TEGROUP_OP_FORWARD,
              one = most > 128 && most <= 192 && (double)p->n * (double)p->k >= 2e7;
    if (one || most >= (forward ? 1000 : 640))
        return forward ? TEGROUP_IMPL_SM90_FORWARD_192X128 : TEGROUP_IMPL_SM90_DGRAD_192X128;
    return forward ? TEGROUP_IMPL_SM90_FORWARD_64X128 : TEGROUP_IMPL_SM90_DGRAD_64X256;
}

/* A kernel, why it was taken, and its predicted time, which is 0 if a rule took it. */
typedef struct tegroup_impl_sm90_taken {
    int32_t kernel;
    const char *why;
    tegroup_impl_sm90_time us;
} tegroup_impl_sm90_taken;

TEGROUP_IMPL_STATIC const char *tegroup_impl_sm90_why(const tegroup_impl_sm90_time *us, int mma) {
    if (mma) return "fastest predicted, PORTABLE's kernel: groups are short";
    if (us->math >= us->memory && us->math >= us->scheduling) return "fastest predicted, bound by mathematics";
    return us->memory >= us->scheduling ? "fastest predicted, bound by memory"
                                        : "fastest predicted, bound by scheduling";
}

/* Takes the kernel with the least predicted time, unless a rule says which. with_mma: PORTABLE is in the build. */
TEGROUP_IMPL_STATIC tegroup_impl_sm90_taken tegroup_impl_sm90_take_fastest(const tegroup_gemm_desc *desc,
                                                                           const tegroup_problem *p, int64_t blocks,
                                                                           double slowness, int with_mma) {
    const int64_t total = tegroup_impl_min(tegroup_impl_expected_rows(desc, p), INT32_MAX),
                  count = tegroup_impl_max(1, p->groups), average = tegroup_impl_max(1, total / count),
                  most = desc->options.expected_rows_max;
    const int flips = tegroup_impl_sm90_can_flip(p);
    const double unknown = fmin((double)total, TEGROUP_IMPL_SM90_UNKNOWN_MOST * (double)average);
    const tegroup_impl_sm90_groups groups =
        tegroup_impl_sm90_expect((double)count, (double)average, most > 0 ? (double)most : unknown);
    tegroup_impl_sm90_taken taken;
    int32_t kernel;
    memset(&taken, 0, sizeof taken);
    taken.kernel = -1;
    if (p->op == TEGROUP_OP_WGRAD && !flips) {
        taken.kernel = tegroup_impl_sm90_wide_wgrad(p, average, most);
        taken.why = taken.kernel == TEGROUP_IMPL_SM90_WGRAD_128X128 ? "by rule: bound by memory, and sums are short"
                                                                    : "by rule: bound by memory, and sums are long";
        return taken;
    }
    if (p->op != TEGROUP_OP_WGRAD && flips && average <= 64 && most > 64 && most > total / 2) {
        taken.kernel = tegroup_impl_sm90_one_large(p, (double)most);
        taken.why = "by rule: one group has most of the rows";
        return taken;
    }
    for (kernel = 0; kernel < TEGROUP_IMPL_SM90_KERNEL_COUNT; kernel++) {
        tegroup_impl_sm90_time us;
        if (!tegroup_impl_sm90_runs(p, kernel, with_mma)
            || (tegroup_impl_sm90_row_of(kernel)->pairs && (blocks < 2 || !tegroup_impl_sm90_pairs_pay(p))))
            continue;
        us = tegroup_impl_sm90_predict(p, &groups, tegroup_impl_sm90_row_of(kernel), blocks, slowness);
        if (taken.kernel >= 0 && us.total >= taken.us.total) continue;
        taken.kernel = kernel;
        taken.us = us;
    }
    taken.why = tegroup_impl_sm90_why(&taken.us, tegroup_impl_sm90_row_of(taken.kernel)->mma);
    return taken;
}

/* ---- even groups: how many of the last ones have only narrow tiles ---- */

/* Assigns that many tiles of one cost to the blocks. */
TEGROUP_IMPL_STATIC void tegroup_impl_sm90_assign_all(tegroup_impl_sm90_loads *loads, int64_t tiles, int32_t cost,
                                                      int closely) {
    int32_t mine;
    while (tiles > 0)
        tiles -= tegroup_impl_sm90_assign(loads, (int32_t)tegroup_impl_min(tiles, INT32_MAX), cost, closely, -1, &mine);
}

/* The cost of the tiles of the busiest block. Each group has `tile_rows` tile rows of 128 by 192 tiles; the last
 * `narrows` groups have only narrow tiles. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_sm90_span(int64_t groups, int64_t tile_rows, int32_t cols, int32_t k,
                                                   int64_t blocks, int64_t narrows) {
    const int32_t steps = (int32_t)tegroup_impl_ceil_div(k, TEGROUP_IMPL_SM90_K),
                  ends = tegroup_impl_sm90_narrow_tiles(0, cols, k),
                  cost = tegroup_impl_sm90_tile_cost(TEGROUP_IMPL_SM90_WIDE, steps),
                  narrow_cost = tegroup_impl_sm90_tile_cost(TEGROUP_IMPL_SM90_NARROW, steps);
    const int64_t wide = tegroup_impl_ceil_div(cols, TEGROUP_IMPL_SM90_WIDE) - ends,
                  all = tegroup_impl_ceil_div(cols, TEGROUP_IMPL_SM90_NARROW);
    int32_t load[TEGROUP_IMPL_SM90_MOST_BLOCKS] = {0}, most = 0, b;
    tegroup_impl_sm90_loads loads;
    int64_t g;
    if (narrows == 0 && ends == 0)
        return tegroup_impl_ceil_div(groups * tile_rows * wide, blocks) * cost; /* Scheduling is round-robin. */
    loads.load = load;
    loads.each = loads.fresh = (int32_t)blocks;
    loads.passed = 0;
    for (g = 0; g < groups; g++) { /* by the stretches of tegroup_impl_sm90_stretches */
        const int closely = g / 32 == (groups - 1) / 32;
        int64_t row, height;
        if (g >= groups - narrows) {
            tegroup_impl_sm90_assign_all(&loads, all * tile_rows, narrow_cost, closely);
            continue;
        }
        for (row = 0; row < tile_rows; row += height) {
            height = ends == 0 || wide == 0 ? tile_rows : tegroup_impl_min(8, tile_rows - row);
            tegroup_impl_sm90_assign_all(&loads, wide * height, cost, closely);
            tegroup_impl_sm90_assign_all(&loads, ends * height, narrow_cost, closely);
        }
    }
    for (b = 0; b < loads.each; b++) most = load[b] > most ? load[b] : most;
    return loads.passed + most;
}

/* How many of the last groups have only narrow tiles, with FORWARD_128X192. The last wave of even groups is seldom
 * full: 3,840 tiles are 29 waves of 132, and 12 tiles that take as long as another wave. Narrow tiles fill that wave.
 * A call takes as long as its busiest block, to within a percent. The speedup was 1.028 in the mean of 313 products. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_sm90_tapering(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                       int64_t blocks) {
    /* One wave of many costs little, and the search must be quick. */
    const int64_t most_tapering = 8, most_waves = 64, most_groups = 128;
    const int32_t cols = (int32_t)p->n, k = (int32_t)p->k;
    const int64_t groups = p->groups, average = tegroup_impl_expected_rows(desc, p) / tegroup_impl_max(1, groups),
                  most = desc->options.expected_rows_max, tile_rows = tegroup_impl_ceil_div(average, 128);
    int64_t best = 0, least, narrows;
    if (p->op != TEGROUP_OP_FORWARD || k < TEGROUP_IMPL_SM90_BALANCED_K || groups > most_groups
        || (most > 0 && tegroup_impl_ceil_div(most, 128) != tile_rows)
        || tegroup_impl_mul(groups * tile_rows, tegroup_impl_ceil_div(cols, TEGROUP_IMPL_SM90_WIDE))
               > most_waves * blocks)
        return 0;
    least = tegroup_impl_sm90_span(groups, tile_rows, cols, k, blocks, 0);
    least -= least / 100; /* A gain of less than 1% is not worth it. */
    for (narrows = 1; narrows <= tegroup_impl_min(most_tapering, groups); narrows++) {
        int64_t span = tegroup_impl_sm90_span(groups, tile_rows, cols, k, blocks, narrows);
        span += span * 8 * narrows / (100 * groups); /* Narrow tiles take 8% longer than their columns say. */
        if (span >= least) continue;
        least = span;
        best = narrows;
    }
    return best;
}

/* Sets tile, kernel and groups of narrow tiles of a plan for a target. */
TEGROUP_IMPL_STATIC void tegroup_impl_sm90_tile(const tegroup_gemm_desc *desc, const tegroup_target *target,
                                                tegroup_plan *plan, tegroup_impl_forecast *forecast) {
    const int64_t there = target->multiprocessors > 0 ? target->multiprocessors : TEGROUP_IMPL_SM90_USUAL,
                  limit = desc->options.sm_limit > 0 ? desc->options.sm_limit : there,
                  blocks = tegroup_impl_min(tegroup_impl_min(there, limit), TEGROUP_IMPL_SM90_MOST_BLOCKS);
    const double slowness = tegroup_impl_sm90_slowness(target);
    tegroup_impl_sm90_compare(desc, &plan->problem, slowness, forecast);
    if (tegroup_impl_sm90_multiplies_fp8(&plan->problem)) {
        tegroup_impl_sm90_fp8_tile(desc, plan, forecast);
        return;
    }
    if (tegroup_impl_sm90_holds_weights(desc, &plan->problem)) {
        tegroup_impl_sm90_weights_tile(desc, plan, forecast);
        return;
    }
    const tegroup_impl_sm90_taken taken = tegroup_impl_sm90_take_fastest(
        desc, &plan->problem, blocks, slowness, (int)(target->built >> TEGROUP_BACKEND_PORTABLE & 1u));
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_row_of(taken.kernel);
    plan->tile_m = row->tile_m;
    plan->tile_n = row->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_K;
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)taken.kernel;
    plan->algorithm[TEGROUP_IMPL_PLANNED_NARROWS] = (uint64_t)tegroup_impl_sm90_tapering(desc, &plan->problem, blocks);
    plan->algorithm[TEGROUP_IMPL_PLANNED_EXPECTED] = (uint64_t)tegroup_impl_expected_rows(desc, &plan->problem);
    tegroup_impl_sm90_plan_decoded(desc, plan);
    forecast->why = taken.why;
    forecast->us = taken.us.total;
    if (forecast->us > 0) forecast->us += tegroup_impl_sm90_decode_us(desc, &plan->problem);
    if (!tegroup_impl_sm90_repacks_any(&plan->problem)) return;
    forecast->why = "fastest predicted once rows are repacked for TMA";
    if (forecast->us > 0) forecast->us += tegroup_impl_sm90_repack_us(desc, &plan->problem);
}
