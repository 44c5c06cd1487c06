/* ---- Hopper GEMM: plan and launch ---- */

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

/* Whether this unit holds code for sm_90a, on a Hopper GPU. */
static inline int tegroup_impl_sm90_image(void) {
    cudaFuncAttributes attributes;
    int32_t count;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, tegroup_impl_sm90_rows(&count)->bf16);
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code == cudaSuccess && attributes.maxThreadsPerBlock >= TEGROUP_IMPL_SM90_THREADS;
}

/* Row `number` of the table for this plan. */
static inline tegroup_status tegroup_impl_sm90_choose(tegroup_plan *plan, int32_t number, tegroup_error *error) {
    int32_t count;
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_rows(&count) + number;
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
 * groups, 4 to 2,048 rows in each, 192 to 28,672 columns, results of two bytes (docs/performance.md, "Which tile"). */
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
 * one group has most of the rows, how many of the others have any is not known. (Measured: docs/performance.md, "Blocks that come late".) */
static inline int64_t tegroup_impl_sm90_late(const tegroup_gemm_desc *desc, const tegroup_problem *p, int64_t blocks) {
    const int forward = p->op == TEGROUP_OP_FORWARD, i = TEGROUP_IMPL_SM90_64X256;
    const double count = (double)tegroup_impl_max(1, p->groups), total = (double)tegroup_impl_expected_rows(desc, p),
                 most = (double)desc->expected_rows_max, n = (double)(forward ? p->n : p->k),
                 k = (double)(forward ? p->k : p->n);
    const tegroup_impl_sm90_groups groups = tegroup_impl_sm90_expect(count, total / count, most);
    const tegroup_impl_sm90_share share = tegroup_impl_sm90_rows_share(p, &groups, i, n, k, 0);
    const double rounds = count * share.tiles / (double)blocks,
                 us = 2e-6 * count * share.there * n * k / tegroup_impl_sm90_costs(p->op)[i].tb;
    if (p->op == TEGROUP_OP_WGRAD || desc->sm_limit > 0 || total > 48 * count || most > total / 2) return 0;
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
                  most = desc->expected_rows_max;
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
     * fit where one of them has all of the largest group's rows, and long weights, or they are very many (measured: docs/performance.md,
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
 * what the block with most has to do, to within a percent (docs/performance.md, "Even groups"). */
static inline int64_t tegroup_impl_sm90_tapering(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                 int64_t blocks) {
    typedef tegroup_impl_sm90_turns shape;
    /* One round of many is nothing, and it should be quick to find out. */
    const int64_t most_tapering = 8, most_rounds = 64, most_groups = 128;
    const int32_t cols = (int32_t)p->n, k = (int32_t)p->k;
    const int64_t groups = p->groups, average = tegroup_impl_expected_rows(desc, p) / tegroup_impl_max(1, groups),
                  most = desc->expected_rows_max, lines = tegroup_impl_ceil_div(average, shape::TILE_M);
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
 * bounds it (measured: docs/performance.md, "What bounds gradients into FP32"). */
static inline int tegroup_impl_sm90_staggers(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    const int64_t average = tegroup_impl_expected_rows(desc, p) / tegroup_impl_max(1, p->groups);
    return p->accumulate && p->d == TEGROUP_DTYPE_F32 && average >= 512 && average < 1280
           && (double)p->n * (double)p->k >= 3e6;
}

static inline tegroup_status tegroup_impl_sm90_check_gather(const tegroup_gemm_desc *desc, tegroup_error *error) {
    TEGROUP_IMPL_RULE(desc->gather_a.rows <= INT32_MAX, ERROR_UNSUPPORTED, "gather_a.rows",
                      "must be countable in 31 bits", INT32_MAX, desc->gather_a.rows);
    TEGROUP_IMPL_RULE(desc->gather_b.rows <= INT32_MAX, ERROR_UNSUPPORTED, "gather_b.rows",
                      "must be countable in 31 bits", INT32_MAX, desc->gather_b.rows);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_sm90_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                    tegroup_error *error) {
    const tegroup_problem *p = &plan->problem;
    const int64_t most = (INT64_C(1) << 31) - 512;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *encode = NULL;
    int32_t first, usual;
    int64_t blocks, late;
    cudaError_t code;
    TEGROUP_IMPL_RULE(p->rows <= most, ERROR_UNSUPPORTED, "a.shape.rows", "must be countable in 31 bits", most,
                      p->rows);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_check_gather(desc, error));
    TEGROUP_IMPL_RULE(p->n <= most, ERROR_UNSUPPORTED, p->op == TEGROUP_OP_FORWARD ? "d.shape.cols" : "a.shape.cols",
                      "must be countable in 31 bits", most, p->n);
    TEGROUP_IMPL_RULE(p->k <= most, ERROR_UNSUPPORTED, p->op == TEGROUP_OP_FORWARD ? "a.shape.cols" : "d.shape.cols",
                      "must be countable in 31 bits", most, p->k);
#if CUDART_VERSION >= 12050
    code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
#else
    code = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found);
#endif
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "plan", "the driver must tell its functions", error));
    TEGROUP_IMPL_RULE(encode != NULL, ERROR_UNSUPPORTED, "target.sm", "needs a driver with cuTensorMapEncodeTiled", 1,
                      0);
    plan->algorithm[TEGROUP_IMPL_PLANNED_ENCODE] = (uint64_t)(uintptr_t)encode;
    first = tegroup_impl_sm90_candidate(plan, 0);
    TEGROUP_IMPL_RULE(first >= 0, ERROR_UNSUPPORTED, "op", "has no kernel in this build", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_choose(plan, first, error)); /* which tells how many blocks there are */
    blocks = (int64_t)plan->algorithm[TEGROUP_IMPL_PLANNED_BLOCKS];
    late = tegroup_impl_sm90_late(desc, p, blocks);
    usual = tegroup_impl_sm90_usual(desc, p, first, blocks, late);
    plan->algorithm[TEGROUP_IMPL_PLANNED_NARROWS] = (uint64_t)tegroup_impl_sm90_tapering(desc, p, blocks);
    plan->algorithm[TEGROUP_IMPL_PLANNED_LATE] = (uint64_t)late;
    plan->algorithm[TEGROUP_IMPL_PLANNED_STAGGERS] = (uint64_t)tegroup_impl_sm90_staggers(desc, p);
    return tegroup_impl_sm90_choose(plan, usual, error);
}

/* TMA takes multiples of 16 bytes. Lists are in device memory: the kernel looks at them. */
static inline tegroup_status tegroup_impl_sm90_check_operand(const tegroup_tensor *t, tegroup_impl_operand operand,
                                                             tegroup_error *error) {
    if (t->dtype == TEGROUP_DTYPE_UNSET || tegroup_impl_listed(t) || tegroup_impl_extent(t) == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(t->data, 16), ERROR_ALIGNMENT, TEGROUP_IMPL_PATH(DATA),
                      "must be 16-byte aligned for TMA", 16, (uintptr_t)t->data % 16);
    TEGROUP_IMPL_RULE(tegroup_impl_stride_bytes(t) % 16 == 0, ERROR_ALIGNMENT, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                      "must be a multiple of 16 bytes for TMA", 16, tegroup_impl_stride_bytes(t));
    TEGROUP_IMPL_RULE(tegroup_impl_stride_bytes(t) <= TEGROUP_IMPL_TMA_STRIDE_BYTES, ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_PATH(GROUP_STRIDE), "must be at most so many bytes, for TMA",
                      TEGROUP_IMPL_TMA_STRIDE_BYTES, tegroup_impl_stride_bytes(t));
    return TEGROUP_OK;
}
static inline tegroup_status tegroup_impl_sm90_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                     tegroup_error *error) {
    (void)plan;
#if defined(TEGROUP_NO_PORTABLE)
    TEGROUP_IMPL_RULE(plan->algorithm[TEGROUP_IMPL_PLANNED_THREADS] == TEGROUP_IMPL_SM90_THREADS, ERROR_NOT_BUILT,
                      "plan.backend", "must be part of this build: the plan has PORTABLE's kernel for few rows",
                      TEGROUP_BACKEND_PORTABLE, plan->backend);
#endif
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_check_gather(desc, error)); /* rows to pick from may change from call to call */
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_check_operand(&desc->a, TEGROUP_IMPL_A, error));
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_check_operand(&desc->b, TEGROUP_IMPL_B, error));
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_check_operand(&desc->c, TEGROUP_IMPL_C, error));
    return tegroup_impl_sm90_check_operand(&desc->d, TEGROUP_IMPL_D, error);
}

/* A map of boxes of box_cols x box_rows, as the kernel's first comment says, with rows of a box of 128 or 64 bytes. */
static inline tegroup_status tegroup_impl_sm90_encode(const tegroup_plan *plan, const tegroup_tensor *t,
                                                      tegroup_impl_operand operand, int32_t box_cols, int32_t box_rows,
                                                      CUtensorMap *map, uint64_t *shift, tegroup_error *error) {
    typedef CUresult (*encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    const encoder encode = (encoder)(uintptr_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ENCODE];
    const int listed = t->pointers != NULL /* a list of no groups may be NULL */,
              ragged = tegroup_impl_ragged(&t->shape), empty = tegroup_impl_extent(t) == 0;
    const int64_t row = tegroup_impl_max(16, tegroup_impl_ld(t) * tegroup_impl_bits(t->dtype) / 8);
    /* A stride that reaches no second group can be any, and TMA would not take it. */
    const int64_t plane = ragged || listed || empty || t->shape.groups < 2 ? row : tegroup_impl_stride_bytes(t);
    const int64_t planes = ragged ? t->shape.rows + 1 : listed ? 1 : t->shape.groups;
    const CUtensorMapDataType type = t->dtype == TEGROUP_DTYPE_F32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                     : t->dtype == TEGROUP_DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                      : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const CUtensorMapSwizzle swizzle =
        box_cols * tegroup_impl_bits(t->dtype) == 512 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
    const cuuint64_t dims[5] = {(cuuint64_t)tegroup_impl_max(1, t->shape.cols),
                                (cuuint64_t)(ragged ? box_rows : tegroup_impl_max(1, t->shape.rows)),
                                (cuuint64_t)tegroup_impl_max(1, planes), (cuuint64_t)1 << 31, (cuuint64_t)1 << 29};
    const cuuint64_t strides[4] = {(cuuint64_t)row, (cuuint64_t)plane, 16, (cuuint64_t)1 << 35};
    const cuuint32_t box[5] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    /* Some address that exists: of a list that of the list itself, of no elements that of the sizes. Without sizes either
     * nothing is ever loaded: any will do. */
    const uintptr_t address = listed   ? (uintptr_t)t->pointers & ~(uintptr_t)15
                              : !empty ? (uintptr_t)t->data
                                       : (uintptr_t)(ragged ? t->shape.snapshot : plan) & ~(uintptr_t)15;
    /* L2 fetches 256 bytes at a time for rows whose next 128 are loaded soon. Where the box that has these is under way as well,
     * as with the weights of dgrad and of few rows, both fetched them, and memory was read 5% slower. */
    const int beside = operand == TEGROUP_IMPL_B
                       && (plan->problem.op == TEGROUP_OP_DGRAD
                           || (plan->tile_m == tegroup_impl_sm90_few_rows::TILE_M
                               && plan->tile_n == tegroup_impl_sm90_few_rows::COLS));
    const CUtensorMapL2promotion promotion =
        beside ? CU_TENSOR_MAP_L2_PROMOTION_NONE : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    CUresult code = CUDA_ERROR_INVALID_CONTEXT;
    /* In a thread whose first CUDA call this is, no context is current yet: the driver's functions do not see to that. */
    for (int32_t attempt = 0; attempt < 2 && code == CUDA_ERROR_INVALID_CONTEXT; attempt++) {
        if (attempt > 0 && cudaSetDevice(plan->device) != cudaSuccess) break;
        code = encode(map, type, ragged || listed ? 5 : 3, (void *)address, dims, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }
    *shift = 0 - (uint64_t)(ragged ? box_rows * row : 0) - (uint64_t)(listed ? address : 0);
    if (code == CUDA_SUCCESS) return TEGROUP_OK;
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_CUDA, TEGROUP_IMPL_PATH(LD), "must be describable to TMA", 0,
                            (int64_t)code);
    if (error) error->native = (int32_t)code;
    return TEGROUP_ERROR_CUDA;
}
/* That of an operand. */
static inline tegroup_status tegroup_impl_sm90_map(const tegroup_plan *plan, const tegroup_tensor *t,
                                                   tegroup_impl_operand operand, int32_t box_cols, int32_t box_rows,
                                                   tegroup_impl_sm90_call *call, tegroup_error *error) {
    call->ragged[operand] = tegroup_impl_ragged(&t->shape);
    call->listed[operand] = tegroup_impl_listed(t);
    return tegroup_impl_sm90_encode(plan, t, operand, box_cols, box_rows, &call->map[operand], &call->shift[operand],
                                    error);
}

/* Of smaller boxes of an operand that has its map. */
static inline tegroup_status tegroup_impl_sm90_map_smaller(const tegroup_plan *plan, const tegroup_tensor *t,
                                                           tegroup_impl_operand operand, int32_t box_rows, int32_t i,
                                                           tegroup_impl_sm90_call *call, tegroup_error *error) {
    TEGROUP_IMPL_TRY(
        tegroup_impl_sm90_encode(plan, t, operand, 64, box_rows, &call->smaller[i], &call->further[i], error));
    call->further[i] -= call->shift[operand];
    return TEGROUP_OK;
}

#if TEGROUP_IMPL_FUSED_KERNELS
template <int OP> struct tegroup_impl_sm90_fused {
    typedef tegroup_impl_sm90_shape<OP, 128, 192, true, 3, false, true> shape;
};

/* The kernel with an activation in its epilogue, or its gradient, for a plan of a forward product or of dgrad, made ready to
 * launch. The plan stays as it is. */
static inline tegroup_status tegroup_impl_sm90_plan_fused(const tegroup_plan *plan, tegroup_fused_kernel *kernel,
                                                          tegroup_error *error) {
    typedef tegroup_impl_sm90_fused<1>::shape forward;
    typedef tegroup_impl_sm90_fused<2>::shape gradient;
    const int bf16 = plan->problem.a == TEGROUP_DTYPE_BF16;
    const void *chosen = plan->problem.op == TEGROUP_OP_FORWARD
                             ? (bf16 ? TEGROUP_IMPL_KERNEL_1(tegroup_impl_sm90_kernel<true, forward>)
                                     : TEGROUP_IMPL_KERNEL_F16(1, tegroup_impl_sm90_kernel<false, forward>))
                             : (bf16 ? TEGROUP_IMPL_KERNEL_2(tegroup_impl_sm90_kernel<true, gradient>)
                                     : TEGROUP_IMPL_KERNEL_F16(2, tegroup_impl_sm90_kernel<false, gradient>));
    tegroup_plan fused = *plan;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_status(tegroup_impl_planned(&fused, chosen, TEGROUP_IMPL_SM90_THREADS, forward::SHARED_BYTES,
                                                      TEGROUP_IMPL_SM90_MOST_BLOCKS),
                                 "plan", "the kernel's attributes must be readable", error));
    kernel->function = fused.algorithm[TEGROUP_IMPL_PLANNED_KERNEL];
    kernel->blocks = fused.algorithm[TEGROUP_IMPL_PLANNED_BLOCKS];
    return TEGROUP_OK;
}

/* A map of pieces of 32 columns of a matrix with the rows of D; and where its ups are its second half, one of these. */
static inline tegroup_status tegroup_impl_sm90_map_pieces(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          const tegroup_matrix *m, tegroup_impl_operand operand,
                                                          CUtensorMap *map, CUtensorMap *ups, uint64_t *shift,
                                                          tegroup_error *error) {
    tegroup_tensor part = desc->d;
    part.data = m->data;
    part.shape.cols = ups ? m->cols / 2 : m->cols;
    part.ld = tegroup_impl_matrix_ld(m);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_encode(plan, &part, operand, 32, TEGROUP_IMPL_SM90_LINES, map, shift, error));
    if (!ups) return TEGROUP_OK;
    part.data = (char *)part.data + part.shape.cols * 2;
    return tegroup_impl_sm90_encode(plan, &part, operand, 32, TEGROUP_IMPL_SM90_LINES, ups, shift, error);
}

/* What an epilogue adds to a call. */
static inline tegroup_status tegroup_impl_sm90_fuse(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                    const tegroup_impl_epilogue *epilogue, tegroup_impl_sm90_call *call,
                                                    tegroup_error *error) {
    const tegroup_activation_desc *activation = &epilogue->activation;
    const int halves = !activation->interleaved, gradient = desc->op == TEGROUP_OP_DGRAD;
    CUtensorMap *ups = halves ? &call->ups : NULL, *c_ups = halves ? &call->c_ups : NULL;
    call->epilogue = tegroup_impl_gpu_epilogue_of(desc, epilogue);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_pieces(
        plan, desc, gradient ? &epilogue->gradient.grad_input : &activation->input, TEGROUP_IMPL_D,
        &call->map[TEGROUP_IMPL_D], ups, &call->shift[TEGROUP_IMPL_D], error));
    call->ragged[TEGROUP_IMPL_D] = 1;
    if (gradient)
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_pieces(plan, desc, &activation->input, TEGROUP_IMPL_C,
                                                      &call->map[TEGROUP_IMPL_C], c_ups, &call->shift[TEGROUP_IMPL_C],
                                                      error));
    if (gradient && !epilogue->activates_again) return TEGROUP_OK;
    return tegroup_impl_sm90_map_pieces(plan, desc, &activation->output, TEGROUP_IMPL_D, &call->activated, NULL,
                                        &call->activated_shift, error);
}
#endif

/* epilogue: NULL, or what the product has in it. */
static inline tegroup_status tegroup_impl_sm90_launch(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                      const tegroup_impl_epilogue *epilogue, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    int32_t tile_m = plan->tile_m, tile_n = plan->tile_n,
            shared_bytes = (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_SHARED];
    const uint64_t kernel = epilogue ? epilogue->kernel.function : plan->algorithm[TEGROUP_IMPL_PLANNED_KERNEL],
                   blocks = epilogue ? epilogue->kernel.blocks : plan->algorithm[TEGROUP_IMPL_PLANNED_BLOCKS];
    const int halves = epilogue && !epilogue->activation.interleaved;
    const int forward = desc->op == TEGROUP_OP_FORWARD, wgrad = desc->op == TEGROUP_OP_WGRAD,
              fits = !epilogue && !wgrad && tile_m == tegroup_impl_sm90_fitting::COLS;
    const int32_t lines = TEGROUP_IMPL_SM90_LINES, slab_cols = desc->d.dtype == TEGROUP_DTYPE_F32 ? 32 : 64;
    tegroup_impl_sm90_call call;
    void *arguments[1];
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    memset(&call, 0, sizeof call);
#if TEGROUP_IMPL_FUSED_KERNELS
    if (epilogue) {
        typedef tegroup_impl_sm90_fused<1>::shape shape; /* and of a gradient, as large */
        tile_m = shape::TILE_M;
        tile_n = shape::COLS;
        shared_bytes = shape::SHARED_BYTES;
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_fuse(plan, desc, epilogue, &call, error));
    } else
#endif
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map(plan, &desc->d, TEGROUP_IMPL_D, slab_cols, lines, &call, error));
    call.call = tegroup_impl_gpu_call_of(desc);
    if (desc->accumulate) { /* D is its own C */
        call.call.desc.c = desc->d;
        call.call.views[TEGROUP_IMPL_C] = call.call.views[TEGROUP_IMPL_D];
        call.call.beta = 1;
    }
    call.has_c = call.call.desc.c.dtype != TEGROUP_DTYPE_UNSET;
    /* Where D's columns end within 16 bytes, TMA does not store them. */
    call.adds_in_l2 = wgrad && desc->accumulate && desc->d.dtype == TEGROUP_DTYPE_F32 && desc->d.shape.cols % 4 == 0;
    call.staggers = wgrad && plan->algorithm[TEGROUP_IMPL_PLANNED_STAGGERS] != 0;
    if (!epilogue && tile_m == tegroup_impl_sm90_turns::TILE_M && tile_n == tegroup_impl_sm90_turns::COLS)
        call.narrows = (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_NARROWS];
    if (!epilogue && !wgrad && tile_m == lines) call.late = (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_LATE];
    call.has_bias = forward && desc->bias.dtype != TEGROUP_DTYPE_UNSET;
    call.gathers_a = desc->gather_a.rows > 0;
    call.gathers_b = desc->gather_b.rows > 0;
    call.ragged[TEGROUP_IMPL_A] = call.ragged[TEGROUP_IMPL_B] = 1; /* of gathered operands there is no map */
    if (!call.gathers_a)
        TEGROUP_IMPL_TRY(
            tegroup_impl_sm90_map(plan, &desc->a, TEGROUP_IMPL_A, 64, wgrad ? lines : tile_m, &call, error));
    if (!call.gathers_a && !wgrad && tile_m == lines) /* tiles of the shape that has SHORT ones */
        TEGROUP_IMPL_TRY(
            tegroup_impl_sm90_map_smaller(plan, &desc->a, TEGROUP_IMPL_A, TEGROUP_IMPL_SM90_SHORT, 0, &call, error));
    for (int32_t i = 0; fits && i < TEGROUP_IMPL_SM90_SMALLER; i++)
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_smaller(plan, &desc->a, TEGROUP_IMPL_A,
                                                       tile_m - (i + 1) * TEGROUP_IMPL_SM90_FIT, i, &call, error));
    if (!call.gathers_b)
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map(plan, &desc->b, TEGROUP_IMPL_B, 64,
                                               !forward ? lines
                                               : halves ? tile_n / 2
                                                        : tile_n,
                                               &call, error));
    if (forward && tile_n == tegroup_impl_sm90_turns::COLS
        && (call.narrows > 0
            || tegroup_impl_sm90_turns::narrow((int32_t)desc->d.shape.cols, (int32_t)desc->a.shape.cols) > 0))
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_smaller(
            plan, &desc->b, TEGROUP_IMPL_B,
            halves ? tegroup_impl_sm90_turns::NARROW / 2 : tegroup_impl_sm90_turns::NARROW, 0, &call, error));
    if (call.has_c)
        TEGROUP_IMPL_TRY(
            tegroup_impl_sm90_map(plan, &call.call.desc.c, TEGROUP_IMPL_C, slab_cols, lines, &call, error));
    arguments[0] = &call;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
        cudaLaunchKernel((const void *)(uintptr_t)kernel, dim3((unsigned)blocks + (unsigned)call.late),
                         dim3(TEGROUP_IMPL_SM90_THREADS), arguments, (size_t)shared_bytes, stream),
        "stream", "the kernel must launch", error));
    return tegroup_impl_cuda_rest(&call.call, stream, error);
}

static inline tegroup_status tegroup_impl_sm90_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
#if !defined(TEGROUP_NO_PORTABLE)
    if (plan->algorithm[TEGROUP_IMPL_PLANNED_THREADS] != TEGROUP_IMPL_SM90_THREADS) /* FEW */
        return tegroup_impl_portable_gemm(plan, desc, stream, error);
#endif
    return tegroup_impl_sm90_launch(plan, desc, NULL, stream, error);
}
