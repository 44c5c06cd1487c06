/* ---- Hopper GEMM: kernels, and which one a plan takes ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/checks.h"
#include "core/numerics.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/portable_plan.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_multiply.h"

/* The kernels, as tegroup_impl_sm90_shape takes them: X(op, lines of a warpgroup, columns, turns, slabs, flips). Those of one
 * operation stand together, in the order of tegroup_impl_sm90_costs, the first for every problem. FEW(op) is PORTABLE's
 * kernel for groups of few rows: small tiles, several blocks a multiprocessor. Its products have the bits of wgmma. */
#define TEGROUP_IMPL_SM90_KERNELS(X, FEW)                                                                              \
    X(1, 128, 192, true, 3, false)                                                                                     \
    X(1, 64, 256, true, 4, false)                                                                                      \
    X(1, 64, 256, false, 2, false)                                                                                     \
    X(1, 128, 192, true, 3, true)                                                                                      \
    X(1, 64, 128, true, 2, false)                                                                                      \
    X(2, 128, 192, true, 3, false)                                                                                     \
    X(2, 64, 256, true, 4, false)                                                                                      \
    X(2, 64, 256, false, 2, false)                                                                                     \
    X(2, 128, 192, true, 3, true)                                                                                      \
    FEW(2)                                                                                                             \
    X(3, 128, 192, true, 4, false)                                                                                     \
    X(3, 128, 128, true, 4, false)                                                                                     \
    X(3, 128, 192, true, 3, true)

typedef struct tegroup_impl_sm90_row {
    const void *bf16, *f16;
    int32_t op, tile_m, tile_n; /* tile: rows and columns of D */
    int32_t shared_bytes;       /* 0: FEW, where nothing else is given */
    int32_t flips;
} tegroup_impl_sm90_row;

static inline const tegroup_impl_sm90_row *tegroup_impl_sm90_rows(int32_t *count) {
#define TEGROUP_IMPL_SM90_KERNEL_ROW(op, lines, cols, turns, slabs, flips)                                             \
    {TEGROUP_IMPL_KERNEL_##op(                                                                                         \
         tegroup_impl_sm90_kernel<true, tegroup_impl_sm90_shape<op, lines, cols, turns, slabs, flips>>),               \
     TEGROUP_IMPL_KERNEL_F16(                                                                                          \
         op, tegroup_impl_sm90_kernel<false, tegroup_impl_sm90_shape<op, lines, cols, turns, slabs, flips>>),          \
     op,                                                                                                               \
     (flips) ? (cols) : tegroup_impl_sm90_shape<op, lines, cols, turns, slabs>::TILE_M,                                \
     (flips) ? tegroup_impl_sm90_shape<op, lines, cols, turns, slabs>::TILE_M : (cols),                                \
     tegroup_impl_sm90_shape<op, lines, cols, turns, slabs>::SHARED_BYTES,                                             \
     flips},
#define TEGROUP_IMPL_SM90_FEW_ROW(op) {NULL, NULL, op, 0, 0, 0, 0},
    static const tegroup_impl_sm90_row rows[] = {
        TEGROUP_IMPL_SM90_KERNELS(TEGROUP_IMPL_SM90_KERNEL_ROW, TEGROUP_IMPL_SM90_FEW_ROW)};
#undef TEGROUP_IMPL_SM90_KERNEL_ROW
#undef TEGROUP_IMPL_SM90_FEW_ROW
    *count = (int32_t)(sizeof rows / sizeof rows[0]);
    return rows;
}

/* Does this unit hold code for sm_90a? Other GPUs have none to lack. */
static inline int tegroup_impl_sm90_image(int32_t sm) {
    cudaFuncAttributes attributes;
    int32_t count;
    if (sm != 90) return 1;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, tegroup_impl_sm90_rows(&count)->bf16);
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code == cudaSuccess && attributes.maxThreadsPerBlock >= TEGROUP_IMPL_SM90_THREADS;
}

/* Row `number` of the table for this plan. */
static inline tegroup_status tegroup_impl_sm90_choose(tegroup_plan *plan, int32_t number, tegroup_error *error) {
    int32_t count;
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_rows(&count) + number;
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)number;
#if !defined(TEGROUP_NO_PORTABLE)
    if (row->shared_bytes == 0)
        return tegroup_impl_portable_take_row(plan, tegroup_impl_portable_rows(plan->problem.op, &count), error);
#endif
    plan->tile_m = row->tile_m;
    plan->tile_n = row->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_K;
    return tegroup_impl_cuda_status(
        tegroup_impl_planned(plan, plan->problem.a == TEGROUP_DTYPE_BF16 ? row->bf16 : row->f16,
                             TEGROUP_IMPL_SM90_THREADS, row->shared_bytes, TEGROUP_IMPL_SM90_MOST_BLOCKS),
        "plan", "the kernel's attributes must be readable", error);
}

/* Which problems FEW can run, and kernels that flip. Neither picks rows by index; what flips are results of two bytes that nothing
 * is added to. */
static inline int tegroup_impl_sm90_few(const tegroup_problem *p) {
#if defined(TEGROUP_NO_PORTABLE)
    (void)p;
    return 0;
#else
    return !p->gathered[TEGROUP_IMPL_A];
#endif
}
/* Tiles that fit store boxes of 64 rows, of which a map of a uniform D cuts off none but a group's last. */
static inline int tegroup_impl_sm90_flips(const tegroup_problem *p) {
    return (p->op == TEGROUP_OP_WGRAD || p->rows_space[TEGROUP_IMPL_D] != TEGROUP_SPACE_UNSET)
           && p->d != TEGROUP_DTYPE_F32 && p->c == TEGROUP_DTYPE_UNSET && !p->accumulate
           && (p->bias == TEGROUP_DTYPE_UNSET || p->op != TEGROUP_OP_FORWARD) && !p->gathered[TEGROUP_IMPL_A]
           && !p->gathered[TEGROUP_IMPL_B];
}

/* Whether a row of the table can run a problem. */
static inline int tegroup_impl_sm90_runs(const tegroup_problem *p, const tegroup_impl_sm90_row *row) {
    return row->op == (int32_t)p->op
           && (row->shared_bytes == 0 ? tegroup_impl_sm90_few(p) : !row->flips || tegroup_impl_sm90_flips(p));
}
/* Row i of those that can run this plan's problem; -1: there are no more than i. */
static inline int32_t tegroup_impl_sm90_candidate(const tegroup_plan *plan, int32_t i) {
    int32_t count, row;
    const tegroup_impl_sm90_row *rows = tegroup_impl_sm90_rows(&count);
    for (row = 0; row < count; row++)
        if (tegroup_impl_sm90_runs(&plan->problem, &rows[row]) && i-- == 0) return row;
    return -1;
}
static inline int32_t tegroup_impl_sm90_candidates(const tegroup_plan *plan) {
    int32_t count = 0;
    while (tegroup_impl_sm90_candidate(plan, count) >= 0) count++;
    return count;
}

/* A plan's kernel as a choice: its row of the table, and its tile, which tells whether another build's table is this one. */
static inline tegroup_impl_choice tegroup_impl_sm90_chosen(const tegroup_plan *plan) {
    tegroup_impl_choice choice;
    memset(&choice, 0, sizeof choice);
    choice.words[0] = plan->algorithm[TEGROUP_IMPL_PLANNED_ROW];
    choice.words[1] = (uint64_t)plan->tile_m;
    choice.words[2] = (uint64_t)plan->tile_n;
    return choice;
}

static inline tegroup_status tegroup_impl_sm90_take(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                    tegroup_error *error) {
    return tegroup_impl_sm90_choose(plan, (int32_t)choice->words[0], error);
}

/* The kernels that tegroup_plan_tune may time for a plan. */
static inline tegroup_status tegroup_impl_sm90_choices(const tegroup_plan *plan, const tegroup_gemm_desc *,
                                                       tegroup_impl_choices *choices, tegroup_error *error) {
    for (int32_t i = 0; i < tegroup_impl_sm90_candidates(plan); i++) {
        tegroup_plan candidate = *plan;
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_choose(&candidate, tegroup_impl_sm90_candidate(plan, i), error));
        const tegroup_impl_choice choice = tegroup_impl_sm90_chosen(&candidate);
        tegroup_impl_choices_add(choices, &choice);
    }
    return TEGROUP_OK;
}

/* Forward, for few rows: loaded two steps at a time. */
typedef tegroup_impl_sm90_shape<1, 64, 128, true, 2> tegroup_impl_sm90_few_rows;

/* Forward, for groups of unlike sizes: tiles that fit. */
typedef tegroup_impl_sm90_shape<1, 128, 192, true, 3, true> tegroup_impl_sm90_fitting;

/* Whose lines of tiles end in narrow ones as those of the other operations and of an activation do. */
typedef tegroup_impl_sm90_shape<1, 128, 192, true, 3> tegroup_impl_sm90_turns;

/* Tiles of 128 lines by 192 columns that hold a weight gradient of that many; a narrow one counts as `narrow` of its columns. */
static inline double tegroup_impl_sm90_covering(int64_t lines, int64_t cols, double narrow) {
    typedef tegroup_impl_sm90_shape<3, 128, 192, true, 4> shape;
    return (double)tegroup_impl_ceil_div(lines, shape::TILE_M)
           * ((double)tegroup_impl_ceil_div(cols, shape::COLS)
              - (1 - narrow / shape::COLS) * shape::narrow((int32_t)tegroup_impl_min(cols, INT32_MAX), 0));
}

/* What the rows of an operation cost on an H200: nanoseconds of a tile for each term of its sums, and terms that its results take
 * as long as; TB/s of what is read and written; microseconds of a call. Fitted to the times of all rows in 3,500 products of 4 to 256
 * groups, 4 to 2,048 rows in each, 192 to 28,672 columns, results of two bytes (docs/lab/tile-choice.md, "Which tile"). */
typedef struct tegroup_impl_sm90_cost {
    double tile_rows, tile_cols; /* rows of D that belong to groups; a weight gradient: its lines */
    double ns, results, tb, us;
} tegroup_impl_sm90_cost;
/* Rows by their places among those of their operation. */
enum { TEGROUP_IMPL_SM90_TURNS, TEGROUP_IMPL_SM90_64X256, TEGROUP_IMPL_SM90_FITTING = 3, TEGROUP_IMPL_SM90_FEW_ROWS };
enum { TEGROUP_IMPL_SM90_WGRAD_128X192, TEGROUP_IMPL_SM90_WGRAD_128X128, TEGROUP_IMPL_SM90_WGRAD_192X128 };
static inline const tegroup_impl_sm90_cost *tegroup_impl_sm90_costs(tegroup_op op) {
    static const tegroup_impl_sm90_cost forward[] = {{128, 192, 7.75, 11, 4.06, 15.2},
                                                     {64, 256, 5.74, 31, 4.07, 13.5},
                                                     {128, 256, 10.50, 109, 4.37, 12.0},
                                                     {192, 128, 7.41, 19, 4.35, 11.7},
                                                     {64, 128, 3.98, 40, 4.25, 10.6}};
    static const tegroup_impl_sm90_cost dgrad[] = {{128, 192, 7.90, 0, 4.20, 16.3},
                                                   {64, 256, 6.55, 43, 4.34, 12.3},
                                                   {128, 256, 10.53, 105, 4.57, 11.7},
                                                   {192, 128, 7.28, 9, 4.62, 12.8},
                                                   {64, 128, 11.76, 212, 4.43, 10.8}};
    static const tegroup_impl_sm90_cost wgrad[] = {
        {128, 192, 8.76, 144, 3.23, 14.9}, {128, 128, 7.20, 143, 5.29, 17.5}, {192, 128, 8.71, 170, 3.62, 6.4}};
    return op == TEGROUP_OP_FORWARD ? forward : op == TEGROUP_OP_DGRAD ? dgrad : wgrad;
}

/* Groups as a plan expects them: so many, a `parts`-th of them of each of these sizes. */
typedef struct tegroup_impl_sm90_groups {
    double count, mean, rows[32];
    int32_t parts;
    int alike;
} tegroup_impl_sm90_groups;

/* Of the mean and the largest: sizes that fall as a power of their rank, as tokens spread over experts (Zipf's law). */
static inline tegroup_impl_sm90_groups tegroup_impl_sm90_expect(double count, double mean, double most) {
    const int32_t parts = most > mean + 1 ? (int32_t)fmin(count, 32) : 1;
    tegroup_impl_sm90_groups groups;
    double low = 0, high = 4; /* the power */
    groups.count = count;
    groups.mean = mean;
    groups.parts = parts;
    groups.alike = most < 2 * mean + 2;
    groups.rows[0] = mean;
    for (int32_t step = 0; parts > 1 && step < 20; step++) {
        const double power = (low + high) / 2;
        double sum = 0;
        for (int32_t i = 0; i < parts; i++) {
            groups.rows[i] =
                most * pow((i + 0.5) * count / parts + 0.5, -power); /* the rank in the middle of this part */
            sum += groups.rows[i];
        }
        if (sum > mean * parts) low = power;
        else high = power;
    }
    return groups;
}

/* What a group has in the mean: how much of it there is, since some have no rows; tiles; what they are of tiles with all their columns;
 * runs of tiles that are dealt. */
typedef struct tegroup_impl_sm90_share {
    double there, tiles, work, runs;
} tegroup_impl_sm90_share;

/* Of a weight gradient; a narrow tile counts as `narrow` of its columns. */
static inline tegroup_impl_sm90_share tegroup_impl_sm90_wgrad_share(const tegroup_problem *p, int32_t i,
                                                                    double narrow) {
    const tegroup_impl_sm90_cost cost = tegroup_impl_sm90_costs(p->op)[i];
    tegroup_impl_sm90_share share = {1, 0, 0, 0};
    share.tiles = i == TEGROUP_IMPL_SM90_WGRAD_128X192 ? tegroup_impl_sm90_covering(p->n, p->k, narrow)
                  : i == TEGROUP_IMPL_SM90_WGRAD_192X128
                      ? tegroup_impl_sm90_covering(p->k, p->n, narrow)
                      : ceil((double)p->n / cost.tile_rows) * ceil((double)p->k / cost.tile_cols);
    share.work = share.tiles;
    return share;
}
/* Of a forward product or dgrad: sums of k terms, D's columns n. */
static inline tegroup_impl_sm90_share tegroup_impl_sm90_rows_share(const tegroup_problem *p,
                                                                   const tegroup_impl_sm90_groups *groups, int32_t i,
                                                                   double n, double k, double narrow) {
    typedef tegroup_impl_sm90_turns turns;
    typedef tegroup_impl_sm90_fitting fitting;
    const tegroup_impl_sm90_cost cost = tegroup_impl_sm90_costs(p->op)[i];
    const int fits = i == TEGROUP_IMPL_SM90_FITTING,
              portable = i == TEGROUP_IMPL_SM90_FEW_ROWS && p->op == TEGROUP_OP_DGRAD;
    const double across = ceil(n / cost.tile_cols), part = 1.0 / groups->parts,
                 narrows = i == TEGROUP_IMPL_SM90_TURNS ? turns::narrow((int32_t)n, (int32_t)fmin(k, INT32_MAX)) : 0;
    const int deals = fits || (narrows > 0 && narrows < across && k >= turns::DEALT_K);
    tegroup_impl_sm90_share share = {0, 0, 0, 0};
    for (int32_t size = 0; size < groups->parts; size++) {
        const double rows = groups->rows[size], tall = ceil(rows / cost.tile_rows);
        double each = 1 - narrows / across * (1 - narrow / turns::COLS);
        if (rows < 0.5) continue;
        if (fits) { /* as wide as it has rows; in very long sums blocks fall out of step */
            const double cols =
                fmax(fitting::fitting(TEGROUP_IMPL_SM90_SMALLER), ceil(rows / tall / fitting::FIT) * fitting::FIT);
            each = (double)tegroup_impl_sm90_fit_cost((int32_t)cols) / tegroup_impl_sm90_fit_cost(fitting::COLS)
                   * (p->op == TEGROUP_OP_FORWARD ? 1 + k * 2e-6 : 1);
        }
        if (portable) each = (0.875 + fmin(rows / tall, 64) / 64) / 1.875; /* half of the time is rows' */
        share.there += part;
        share.tiles += part * tall * across;
        share.work += part * tall * across * each;
        if (deals) share.runs += part * ceil(tall / 8) * (!fits ? 2 : tall > 1 ? 2 * ceil(across / 16) : 1);
    }
    if (share.tiles * k / 64 < TEGROUP_IMPL_SM90_ENOUGH) share.runs = 0;
    return share;
}

/* How many blocks of tiles of 64 rows come late, when others are done, with a tile each: as many as are there from the start, if groups have
 * few rows, and weights take rounds to read and long enough, 150 us, that some blocks are ahead of others by what one takes to begin. Where
 * one group has most of the rows, how many of the others have any is not known. (Measured: docs/lab/decode.md.) */
static inline int64_t tegroup_impl_sm90_late(const tegroup_gemm_desc *desc, const tegroup_problem *p, int64_t blocks) {
    const int forward = p->op == TEGROUP_OP_FORWARD, i = TEGROUP_IMPL_SM90_64X256;
    const double count = (double)tegroup_impl_max(1, p->groups), total = (double)tegroup_impl_expected_rows(desc, p),
                 most = (double)desc->options.expected_rows_max, n = (double)(forward ? p->n : p->k),
                 k = (double)(forward ? p->k : p->n);
    if (p->op == TEGROUP_OP_WGRAD || desc->options.sm_limit > 0 || total > 48 * count || most > total / 2) return 0;
    const tegroup_impl_sm90_groups groups = tegroup_impl_sm90_expect(count, total / count, most);
    const tegroup_impl_sm90_share share = tegroup_impl_sm90_rows_share(p, &groups, i, n, k, 0);
    const double rounds = count * share.tiles / (double)blocks,
                 us = 2e-6 * count * share.there * n * k / tegroup_impl_sm90_costs(p->op)[i].tb;
    return rounds >= 2 && us >= 150 ? blocks : 0;
}

/* Microseconds that a product is expected to take by the i-th row of its operation: tiles are worked on round by round, while runs of
 * them are dealt, and memory is read and written, by blocks of which so many come late. */
static inline double tegroup_impl_sm90_us(const tegroup_problem *p, const tegroup_impl_sm90_groups *groups, int32_t i,
                                          int64_t blocks, int64_t late) {
    const tegroup_impl_sm90_cost cost = tegroup_impl_sm90_costs(p->op)[i];
    const int forward = p->op == TEGROUP_OP_FORWARD, wgrad = p->op == TEGROUP_OP_WGRAD,
              portable = p->op == TEGROUP_OP_DGRAD && i == TEGROUP_IMPL_SM90_FEW_ROWS;
    const double n = (double)(forward ? p->n : p->k), k = (double)(forward ? p->k : p->n),
                 narrow = tegroup_impl_sm90_turns::NARROW * 7 / 6.0, /* takes longer than its share */
        terms = !wgrad          ? k
                : groups->alike ? ceil(groups->mean / 64) * 64
                                : groups->mean + 32;
    const tegroup_impl_sm90_share share =
        wgrad ? tegroup_impl_sm90_wgrad_share(p, i, narrow) : tegroup_impl_sm90_rows_share(p, groups, i, n, k, narrow);
    /* PORTABLE's has two blocks a multiprocessor, and memory waits for the ends of its short sums. */
    const double rounds = groups->count * share.tiles / (double)(portable ? 2 * blocks : blocks),
                 whole = rounds < 8 ? ceil(rounds - 0.02) : rounds + 0.5,
                 sums =
                     whole * (share.tiles > 0 ? share.work / share.tiles : 0) * cost.ns * (terms + cost.results) * 1e-3,
                 dealing = share.runs > 0 ? 0.55 * (groups->count * share.runs + rounds) : 0,
                 memory = 2e-6 * groups->count * (share.there * n * k + groups->mean * (n + k)) / cost.tb
                          * (portable                           ? 1 + 65 / k
                             : late > 0 && cost.tile_rows == 64 ? 0.988
                                                                : 1);
    return cbrt(sums * sums * sums + dealing * dealing * dealing + memory * memory * memory) + cost.us;
}

/* Which of an operation's rows, the first of which is `first`, is expected to be the fastest. Where C is added to a weight gradient, or
 * it has four bytes, memory decides, and larger tiles than 128x128 are worth while for long sums whose columns 192 divides. */
static inline int32_t tegroup_impl_sm90_usual(const tegroup_gemm_desc *desc, const tegroup_problem *p, int32_t first,
                                              int64_t blocks, int64_t late) {
    const int64_t total = tegroup_impl_min(tegroup_impl_expected_rows(desc, p), INT32_MAX),
                  count = tegroup_impl_max(1, p->groups), average = tegroup_impl_max(1, total / count),
                  most = desc->options.expected_rows_max;
    const int flips = tegroup_impl_sm90_flips(p);
    const tegroup_impl_sm90_groups groups = tegroup_impl_sm90_expect((double)count, (double)average, (double)most);
    int32_t rows_count, best = 0;
    const tegroup_impl_sm90_row *rows = tegroup_impl_sm90_rows(&rows_count) + first;
    if (p->op == TEGROUP_OP_WGRAD && !flips) {
        const int adds = p->accumulate || p->c != TEGROUP_DTYPE_UNSET,
                  divides = tegroup_impl_sm90_covering(p->n, p->k, tegroup_impl_sm90_turns::NARROW)
                            <= (double)p->n / 128 * (double)p->k / 192;
        return first
               + (average <= 128 || (adds && groups.alike && average <= 512 && !divides)
                      ? TEGROUP_IMPL_SM90_WGRAD_128X128
                      : TEGROUP_IMPL_SM90_WGRAD_128X192);
    }
    /* Where one of many small groups has most of the rows, how many of the others have any is not known: tiles for few rows; tiles that
     * fit where one of them has all of the largest group's rows, and long weights, or they are very many (docs/lab/tile-choice.md,
     * "Which tile"). */
    if (p->op != TEGROUP_OP_WGRAD && flips && average <= 64 && most > 64 && most > total / 2) {
        const int forward = p->op == TEGROUP_OP_FORWARD,
                  one = most > 128 && most <= tegroup_impl_sm90_fitting::COLS && (double)p->n * (double)p->k >= 2e7;
        return first
               + (one || most >= (forward ? 1000 : 640) ? TEGROUP_IMPL_SM90_FITTING
                  : forward                             ? TEGROUP_IMPL_SM90_FEW_ROWS
                                                        : TEGROUP_IMPL_SM90_64X256);
    }
    for (int32_t i = 1; first + i < rows_count && rows[i].op == (int32_t)p->op; i++)
        if (tegroup_impl_sm90_runs(p, &rows[i])
            && tegroup_impl_sm90_us(p, &groups, i, blocks, late) < tegroup_impl_sm90_us(p, &groups, best, blocks, late))
            best = i;
    return first + best;
}

/* So many tiles of one cost dealt as tegroup_impl_sm90_deal does it, where none costs twice as much as another. */
static inline void tegroup_impl_sm90_deal_out(int64_t *load, int64_t blocks, int64_t tiles, int32_t cost, int closely) {
    while (tiles > 0) {
        int64_t least = load[0], about = (cost + 1) / 2;
        for (int64_t b = 1; b < blocks; b++) least = tegroup_impl_min(least, load[b]);
        for (int halved = 0; closely && halved < TEGROUP_IMPL_SM90_HALVED; halved++) {
            int64_t below = 0;
            for (int64_t b = 0; b < blocks; b++) below += load[b] < least + about / 2;
            if (below < tiles) break;
            about /= 2;
        }
        for (int64_t b = 0; b < blocks && tiles > 0; b++)
            if (load[b] < least + about) load[b] += cost, tiles--;
    }
}

/* Groups of as many lines of tiles of 128 by 192 each, the last of which have narrow tiles alone: what the block has to do that has
 * most. */
static inline int64_t tegroup_impl_sm90_span(int64_t groups, int64_t lines, int32_t cols, int32_t k, int64_t blocks,
                                             int64_t narrows) {
    typedef tegroup_impl_sm90_turns shape;
    const int32_t steps = (int32_t)tegroup_impl_ceil_div(k, shape::K), ends = shape::narrow(cols, k),
                  cost = tegroup_impl_sm90_tile_cost(shape::COLS, steps),
                  narrow_cost = tegroup_impl_sm90_tile_cost(shape::NARROW, steps);
    const int64_t wide = tegroup_impl_ceil_div(cols, shape::COLS) - ends,
                  all = tegroup_impl_ceil_div(cols, shape::NARROW);
    int64_t load[TEGROUP_IMPL_SM90_MOST_BLOCKS] = {0}, most = 0;
    if (narrows == 0 && ends == 0) return tegroup_impl_ceil_div(groups * lines * wide, blocks) * cost; /* in turn */
    for (int64_t g = 0; g < groups; g++) { /* in runs, as tegroup_impl_sm90_walk has them */
        const int closely = g / 32 == (groups - 1) / 32;
        if (g >= groups - narrows) tegroup_impl_sm90_deal_out(load, blocks, all * lines, narrow_cost, closely);
        else
            for (int64_t line = 0, height; line < lines; line += height) {
                height = ends == 0 || wide == 0 ? lines : tegroup_impl_min(8, lines - line);
                tegroup_impl_sm90_deal_out(load, blocks, wide * height, cost, closely);
                tegroup_impl_sm90_deal_out(load, blocks, ends * height, narrow_cost, closely);
            }
    }
    for (int64_t b = 0; b < blocks; b++) most = tegroup_impl_max(most, load[b]);
    return most;
}

/* How many of the last groups have narrow tiles alone. Where all groups have as many lines of tiles the last round of tiles is hardly
 * ever full: 3,840 are 29 rounds of 132, and 12 tiles that take as long as a round. Narrow ones fill what is missing. A call takes
 * what the block with most has to do, to within a percent (docs/lab/tile-choice.md, "Even groups"). */
static inline int64_t tegroup_impl_sm90_tapering(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                 int64_t blocks) {
    typedef tegroup_impl_sm90_turns shape;
    /* One round of many is nothing, and it should be quick to find out. */
    const int64_t most_tapering = 8, most_rounds = 64, most_groups = 128;
    const int32_t cols = (int32_t)p->n, k = (int32_t)p->k;
    const int64_t groups = p->groups, average = tegroup_impl_expected_rows(desc, p) / tegroup_impl_max(1, groups),
                  most = desc->options.expected_rows_max, lines = tegroup_impl_ceil_div(average, shape::TILE_M);
    int64_t best = 0, least;
    if (p->op != TEGROUP_OP_FORWARD || k < shape::DEALT_K || groups > most_groups
        || (most > 0 && tegroup_impl_ceil_div(most, shape::TILE_M) != lines)
        || tegroup_impl_mul(groups * lines, tegroup_impl_ceil_div(cols, shape::COLS)) > most_rounds * blocks)
        return 0;
    least = tegroup_impl_sm90_span(groups, lines, cols, k, blocks, 0);
    least -= least / 100; /* for less it is not worth while */
    for (int64_t narrows = 1; narrows <= tegroup_impl_min(most_tapering, groups); narrows++) {
        int64_t span = tegroup_impl_sm90_span(groups, lines, cols, k, blocks, narrows);
        span += span * 8 * narrows / (100 * groups); /* narrow tiles take longer for what they are */
        if (span >= least) continue;
        least = span;
        best = narrows;
    }
    return best;
}

/* Whether results of a gradient that is added to FP32 are better staggered: of groups of some 512 to 1,024 rows shared memory is what
 * bounds it (measured: docs/lab/wgrad-fp32.md). */
static inline int tegroup_impl_sm90_staggers(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    const int64_t average = tegroup_impl_expected_rows(desc, p) / tegroup_impl_max(1, p->groups);
    return p->accumulate && p->d == TEGROUP_DTYPE_F32 && average >= 512 && average < 1280
           && (double)p->n * (double)p->k >= 3e6;
}
