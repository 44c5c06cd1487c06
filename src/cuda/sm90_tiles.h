/* ---- Hopper GEMM: tiles ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/checks.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_schedule.h"
#include "core/product.h"
#include "cuda/call.h"
#include "cuda/hopper.h"

/* A persistent kernel of three warpgroups. Of the first, one warp finds tiles, one thread has TMA load their operands into a
 * ring of stages, and two have it store results. The two others multiply by wgmma: in turns, each on a tile of its own, so that
 * one hands over results while the other multiplies, or both on one tile, each on a half of its lines.
 *
 * Groups need no padding, and no tensor map is edited on the device. A ragged operand is described as boxes of R lines,
 * [start][R][cols], whose starts are one line apart, the whole being R lines before the buffer: lines from y = R - v of start
 * z = first + v are just the v lines from `first` on, and those past them lie outside the tensor, where they are read as zeros
 * and never written (A. Goucher's trick, as Triton's ragged tensor descriptors use it). Two more dimensions, with strides of 16
 * bytes and of 2^35, reach every address modulo 2^64: R lines before the buffer, and operands in buffers of their own. (The
 * address in a map is a real one: loads through a map that begins in memory which does not exist fault.)
 *
 * Each element is summed over k in steps of 16 from 0 upwards, whatever the tile, so the tile never changes a bit. */
enum {
    TEGROUP_IMPL_SM90_THREADS = 384,
#if defined(__CUDACC_DEBUG__) /* nvcc -G keeps some for itself */
    TEGROUP_IMPL_SM90_SHARED = 219 * 1024,
#else
    TEGROUP_IMPL_SM90_SHARED = 227 * 1024, /* bytes that a block can have */
#endif
    TEGROUP_IMPL_SM90_REST = 2048,       /* of these for barriers, found tiles and picked rows */
    TEGROUP_IMPL_SM90_ALIGN = 1024,      /* and to align the others by */
    TEGROUP_IMPL_SM90_ITEMS = 4,         /* tiles found ahead */
    TEGROUP_IMPL_SM90_LINES = 64,        /* of a box of C and D, and of k in a weight gradient's operands */
    TEGROUP_IMPL_SM90_SHORT = 16,        /* of a box of A where a tile has no more lines */
    TEGROUP_IMPL_SM90_SLAB = 64 * 128    /* bytes of results that go through shared memory at a time */
};

/* What one launch works on. Arrays go by tegroup_impl_operand: a, b, c, d. */
typedef struct tegroup_impl_sm90_call {
    CUtensorMap map[4];
    tegroup_impl_gpu_call call;
    int32_t ragged[4]; /* the map is one of boxes, as above; else [group][row][col]      */
    int32_t listed[4]; /* [row][col] for each group, in a buffer of its own             */
    uint64_t shift[4]; /* of both kinds: bytes from the map's address to the boxes of buffer 0, modulo 2^64 */
    int32_t has_c, has_bias;
    int32_t narrows;              /* the last groups that have narrow tiles alone */
    int32_t late;                 /* the last blocks, for which there is room when others are done: SHAPE::LATE */
    int32_t adds_in_l2;           /* a weight gradient that is added to D: L2 may do it */
    int32_t staggers;             /* its results of four bytes meet in no bank of shared memory */
    int32_t gathers_a, gathers_b; /* rows of the operand are picked by index: cp.async takes the place of TMA */
    tegroup_impl_gpu_epilogue epilogue;
    uint64_t activated_shift; /* as shift */
    /* Of activation.output. Of D's ups where these are its second half, map[D] having the first; in a gradient D is that of gates and
     * ups, and these are in C and c_ups. */
    CUtensorMap activated, ups, c_ups;
    /* Smaller boxes: of B, forward, of narrow tiles; of A, of short tiles; of A, of tiles that fit, from the second widest on. */
    CUtensorMap smaller[TEGROUP_IMPL_SM90_SMALLER];
    uint64_t further[TEGROUP_IMPL_SM90_SMALLER]; /* their shifts above the operand's */
} tegroup_impl_sm90_call;

/* A tile to work on. */
typedef struct tegroup_impl_sm90_item {
    int32_t group;        /* -1: there are no more */
    int32_t i0, j0;       /* first line and column, within the group */
    int32_t lines, k;     /* what there is of them */
    int32_t cols;         /* of the tile, whether they are there or not */
    int32_t rows;         /* a tile that fits: what there is of these */
    int32_t first_row[4]; /* of the group in ragged operands */
    uint64_t origin[4];   /* of the group's boxes, from the map's address, modulo 2^64 */
    float alpha, beta;    /* beta: 0 also where there is no C */
} tegroup_impl_sm90_item;

/* A kernel: operation, lines of a warpgroup, columns of a tile, whether the warpgroups take turns, slabs of each, whether lines of
 * its tiles are D's columns (of results of two bytes that nothing is added to), whether it applies an activation of gates and ups to
 * what it gives. */
template <int OP_, int LINES_, int COLS_, bool TURNS_, int SLABS_, bool FLIPS_ = false, bool ACTIVATES_ = false>
struct tegroup_impl_sm90_shape {
    static constexpr int OP = OP_, LINES = LINES_, COLS = COLS_, SLABS = SLABS_, K = TEGROUP_IMPL_SM90_K;
    static constexpr bool TURNS = TURNS_, FLIPS = FLIPS_, ACTIVATES = ACTIVATES_;
    /* Columns of a flipped tile of ragged rows are as many of a group's rows as fit: COLS, or up to SMALLER times FIT fewer.
     * wgmma can have any multiple of 8 columns, where its lines are 64. */
    static constexpr bool FITS = FLIPS && OP != TEGROUP_OP_WGRAD;
    static constexpr int FIT = TEGROUP_IMPL_SM90_FIT;
    static constexpr __host__ __device__ int fitting(int i) { return FITS ? COLS - i * FIT : COLS; } /* widest first */
    static constexpr int TILE_M = TURNS ? LINES : 2 * LINES, PARTS = LINES / 64; /* of 64 lines, as wgmma has them */
    /* See tegroup_impl_sm90_narrow_tiles. */
    static constexpr int NARROW = COLS == TEGROUP_IMPL_SM90_WIDE && !FITS ? (int)TEGROUP_IMPL_SM90_NARROW : COLS,
                         DEALT_K = TEGROUP_IMPL_SM90_DEALT_K;
    static constexpr bool NARROWS = NARROW < COLS;
    /* Whether tiles may take unlike times. */
    static constexpr bool DEALS = FITS || NARROWS || OP == TEGROUP_OP_WGRAD;
    /* Whether the last tiles worked on may be given to whoever is done first. Tiles of few rows wait for memory alone, which serves
     * some multiprocessors a tenth faster than others: so the grid has blocks more than there is room for, each of which begins when
     * another one is done, and has one tile. These are the first tiles of all, and blocks go round with those that follow: nobody
     * need know how many there are. */
    static constexpr bool LATE = TILE_M == 64 && OP != TEGROUP_OP_WGRAD;
    /* Whether a call's last groups may have narrow tiles alone, with which even groups fill the last round. */
    static constexpr bool TAPERS = NARROWS && !ACTIVATES && OP == TEGROUP_OP_FORWARD;
    static __host__ __device__ __forceinline__ int32_t narrow(int32_t cols, int32_t k) {
        return NARROWS ? tegroup_impl_sm90_narrow_tiles(OP == TEGROUP_OP_WGRAD, cols, k) : 0;
    }
    /* The operands that a tile's lines and its columns are of. */
    static constexpr tegroup_impl_operand FIRST = FLIPS ? TEGROUP_IMPL_B : TEGROUP_IMPL_A,
                                          SECOND = FLIPS ? TEGROUP_IMPL_A : TEGROUP_IMPL_B;
    static_assert(!FLIPS || (TURNS && !ACTIVATES), "results are turned by the warpgroup that has them");
    /* Tiles of at most SHORT lines load no more: what was there before leads to lines that nobody stores. */
    static constexpr int SHORT = OP != TEGROUP_OP_WGRAD && TILE_M == 64 ? TEGROUP_IMPL_SM90_SHORT : 0;
    /* Whether lines (of m, n) rather than k are contiguous. */
    static constexpr bool A_LINES = OP == TEGROUP_OP_WGRAD || (FITS && OP == TEGROUP_OP_DGRAD),
                          B_LINES = OP != TEGROUP_OP_FORWARD && !FITS;
    static constexpr int A_BYTES = TILE_M * K * 2, STAGE_BYTES = A_BYTES + COLS * K * 2;
    static constexpr int SLAB_BYTES = 2 * SLABS * TEGROUP_IMPL_SM90_SLAB;
    static constexpr int OTHER_BYTES = SLAB_BYTES + TEGROUP_IMPL_SM90_REST + TEGROUP_IMPL_SM90_ALIGN;
    static constexpr int STAGES = (TEGROUP_IMPL_SM90_SHARED - OTHER_BYTES) / STAGE_BYTES;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + OTHER_BYTES;
    static_assert(STAGES >= 3, "a ring that hides the way from L2");
    /* Steps loaded at a time. For few rows memory is read fastest when 256 bytes of a row are under way at once. */
    static constexpr int AT_ONCE = STAGES >= 6 ? 2 : 1;
    static_assert(TILE_M <= 128 && COLS <= 256, "picked rows; lines of a box of TMA");
    /* A tile of results of four bytes, or of two, goes through its slabs one after another, from the first on. */
    template <bool WIDE> struct results {
        static constexpr int COLS = WIDE ? 32 : 64, ACROSS = COLS_ / COLS, COUNT = PARTS * ACROSS,
                             USED = COUNT < SLABS ? COUNT : SLABS - (COUNT % SLABS != 0);
        static_assert(COUNT % USED == 0, "every tile begins with the first slab");
        /* Where C may be added in L2: every second one of the results for which no slab was free, and had C brought, before
         * the sums were done. L2 by itself would add more slowly than C comes. */
        static constexpr __host__ __device__ bool in_l2(int number) {
            return OP == TEGROUP_OP_WGRAD && WIDE && number >= USED && number % 2 == 1;
        }
    };
    /* With an activation results go by sets of three pieces of 64 lines by 32 columns: two of gates and ups, and what they are
     * activated to. Forward a tile is of gates and ups, half its columns of each where they are halves of D; a gradient's is of
     * what was activated. */
    static constexpr int SET_COLS = OP == TEGROUP_OP_FORWARD ? 64 : 32, PIECE = TEGROUP_IMPL_SM90_SLAB / 2,
                         SETS = SLABS * TEGROUP_IMPL_SM90_SLAB / (3 * PIECE); /* under way */
    static_assert(!ACTIVATES || (TURNS && SETS >= 2), "one is worked on while another comes or goes");
};

/* What stands behind the ring and the slabs. */
template <typename SHAPE> struct tegroup_impl_sm90_rest {
    uint64_t full[SHAPE::STAGES], empty[SHAPE::STAGES]; /* of a stage */
    uint64_t found[TEGROUP_IMPL_SM90_ITEMS], taken[TEGROUP_IMPL_SM90_ITEMS];
    uint64_t turn[2];                  /* of a warpgroup: the other one has seen all of its stages */
    uint64_t ready[2][SHAPE::SLABS];   /* a slab of a warpgroup is free, and holds C if that is added */
    uint64_t written[2][SHAPE::SLABS]; /* results are in it */
    tegroup_impl_sm90_item items[TEGROUP_IMPL_SM90_ITEMS];
    int32_t picked_a[128],
        picked_b[TEGROUP_IMPL_SM90_LINES]; /* rows of data that gathered operands have in a stage; -1: zeros */
};

#if TEGROUP_IMPL_HOPPER
/* ---- dealing tiles ---- */

/* Where tiles take unlike times they are dealt: one after another, each to a block that is done about first, if tiles take what
 * they are said to cost. Every block deals for all of them, and so knows which are its own without a word to the others. Lane l
 * keeps the books of blocks l, l + 32, ... */
struct tegroup_impl_sm90_deal {
    enum { EACH = TEGROUP_IMPL_SM90_MOST_BLOCKS / 32 };
    int32_t load[EACH]; /* cost of what a block has got, above the least of all; INT32_MAX: there is no such block */
    int32_t fresh;      /* blocks that have got nothing: these come first, in their order */

    static __device__ __forceinline__ int32_t lane() { return (int32_t)threadIdx.x & 31; }
    __device__ __forceinline__ tegroup_impl_sm90_deal() : fresh((int32_t)gridDim.x) {
#pragma unroll
        for (int i = 0; i < EACH; i++) load[i] = lane() + 32 * i < (int32_t)gridDim.x ? 0 : INT32_MAX;
    }
    /* How many blocks have less than this. */
    __device__ __forceinline__ int32_t below(int32_t limit) const {
        int32_t blocks = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) blocks += __popc(__ballot_sync(0xffffffffu, load[i] < limit));
        return blocks;
    }
    /* A round: as many of these tiles as there are blocks that have least, or about that, one to each. Where that is more blocks than
     * tiles, and it matters (`closely`), to some that are nearer to the least. Returns how many; the number of this block's, or -1, is
     * `mine`. */
    __device__ __forceinline__ int32_t round(int32_t tiles, int32_t cost, bool closely, int32_t *mine) {
        int32_t least = load[0], given = 0, about = fresh > 0 ? 1 : (cost + 1) / 2;
#pragma unroll
        for (int i = 1; i < EACH; i++) least = load[i] < least ? load[i] : least;
        least = __reduce_min_sync(0xffffffffu, least);
        for (int halved = 0;
             closely && fresh <= 0 && halved < TEGROUP_IMPL_SM90_HALVED && below(least + about / 2) >= tiles; halved++)
            about /= 2;
        const int32_t limit = least + about, me = (int32_t)blockIdx.x;
        *mine = -1;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t gets = __ballot_sync(0xffffffffu, load[i] < limit);
            const int32_t number = given + __popc(gets & ((1u << lane()) - 1)),
                          my_number = given + __popc(gets & ((1u << me % 32) - 1));
            if (me / 32 == i && (gets >> me % 32 & 1) && my_number < tiles) *mine = my_number;
            if (load[i] < INT32_MAX) load[i] += (load[i] < limit && number < tiles ? cost : 0) - least;
            given += __popc(gets);
        }
        given = given < tiles ? given : tiles;
        fresh -= given;
        return given;
    }
};

/* ---- finding tiles ---- */

/* One warp walks the groups, 32 at a time, a lane a group. Tiles that all take as long go round the blocks in turn, in the order
 * of the groups; others are dealt: those of a weight gradient, the largest groups first, and those of unlike widths. */
template <typename SHAPE> struct tegroup_impl_sm90_walk {
    const tegroup_impl_sm90_call &call;
    const tegroup_gemm_desc &desc;
    int64_t turn;               /* of all tiles, the next one that falls to this block in turn */
    int64_t before, sum;        /* tiles before the 32 groups at hand; of these up to and with this lane's */
    int32_t base;               /* the first of these */
    int32_t group, rows, tiles; /* of this lane */
    int32_t first_row[4];
    int32_t m;                         /* lines, of a weight gradient; else each group has its own */
    int32_t tiles_n, wide;             /* tiles of a line, and of these not narrow; FITS: tiles of D's columns */
    bool deals;                        /* tiles, since they take unlike times */
    bool mixes;                        /* narrow tiles with others: a stripe has less than a round of these */
    int owner;                         /* the lane whose tiles are dealt; -1: none yet */
    int32_t run_at, run_end, run_cost; /* of these the ones at hand, which are alike, and what each of them costs */
    int32_t stripe, part;              /* FITS: the lines of tiles and columns of D that they begin with */
    bool two, later;                   /* FITS: whether there are tiles of two widths, and they are the second */
    bool ahead;                        /* the first tile dealt to this block was found before */
    tegroup_impl_sm90_deal deal;

    enum { STRIPE = 8, PART = 16 };
    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }

    /* Not prepared: a snapshot is none, and there are no groups. */
    __device__ __forceinline__ explicit tegroup_impl_sm90_walk(const tegroup_impl_sm90_call &c, bool prepared)
        : call(c), desc(c.call.desc), turn(blockIdx.x), owner(-1), run_at(0), run_end(0), stripe(0), part(0),
          two(false), later(false), ahead(false) {
        const int32_t n = (int32_t)(SHAPE::FLIPS && !SHAPE::FITS ? desc.a.shape.cols : desc.d.shape.cols),
                      width = SHAPE::FITS ? SHAPE::TILE_M : SHAPE::COLS;
        m = (int32_t)(SHAPE::FLIPS ? desc.d.shape.cols : desc.a.shape.cols);
        tiles_n = (n + width - 1) / width;
        wide = SHAPE::FITS ? tiles_n : tiles_n - SHAPE::narrow(n, k_of(0));
        deals = SHAPE::DEALS
                && (SHAPE::FITS
                    || (SHAPE::OP == TEGROUP_OP_WGRAD ? cost(most_rows(), SHAPE::COLS) > cost(0, SHAPE::COLS)
                                                      : (wide > 0 && wide < tiles_n && k_of(0) >= SHAPE::DEALT_K)
                                                            || (SHAPE::TAPERS && call.narrows > 0)));
        mixes = SHAPE::OP == TEGROUP_OP_WGRAD && 8 * wide < (int32_t)gridDim.x;
        if (SHAPE::LATE) turn = is_late() ? turn - at_once() : turn + call.late;
        load(prepared ? 0 : desc.a.shape.groups, 0);
        /* Every block finds all runs, of which groups have one or more: few tiles of short sums would be done before they are dealt. */
        if (SHAPE::OP != TEGROUP_OP_WGRAD && deals)
            deals = __shfl_sync(0xffffffffu, sum, 31) * ((k_of(0) + SHAPE::K - 1) / SHAPE::K)
                    >= TEGROUP_IMPL_SM90_ENOUGH * tegroup_impl_min(32, desc.a.shape.groups);
    }
    /* Blocks that there is room for from the start, and whether this is another. */
    __device__ __forceinline__ int32_t at_once() const { return (int32_t)gridDim.x - (SHAPE::LATE ? call.late : 0); }
    __device__ __forceinline__ bool is_late() const { return SHAPE::LATE && (int32_t)blockIdx.x >= at_once(); }
    /* 0 without a snapshot: groups are alike. */
    __device__ __forceinline__ int32_t most_rows() const {
        const tegroup_snapshot_header *header = call.call.views[TEGROUP_IMPL_A].header;
        return header ? (int32_t)header->rows_max : 0;
    }
    /* Whether all tiles of a group are narrow; what a line of them then has, and of these wide. */
    __device__ __forceinline__ bool tapers(int32_t g) const {
        return SHAPE::TAPERS && g >= desc.a.shape.groups - call.narrows;
    }
    __device__ __forceinline__ int32_t line_of(int32_t g) const {
        return tapers(g) ? ((int32_t)desc.d.shape.cols + SHAPE::NARROW - 1) / SHAPE::NARROW : tiles_n;
    }
    __device__ __forceinline__ int32_t wide_of(int32_t g) const { return tapers(g) ? 0 : wide; }
    __device__ __forceinline__ int32_t tiles_m(int32_t there) const {
        constexpr int32_t EACH = SHAPE::FITS ? SHAPE::COLS : SHAPE::TILE_M;
        return ((SHAPE::OP == TEGROUP_OP_WGRAD ? m : there) + EACH - 1) / EACH;
    }
    /* A weight gradient that nothing is added to is left alone; one of no rows is beta * C. */
    __device__ __forceinline__ bool idle(int32_t there) const {
        return SHAPE::OP == TEGROUP_OP_WGRAD ? there < 0 || (there == 0 && desc.accumulate) : there <= 0;
    }
    /* Whether an operand may have rows of each group. (Where nothing is dealt there are registers enough, and ptxas does better
     * without being told.) */
    static __device__ __forceinline__ constexpr bool starts(int operand) {
        return !SHAPE::DEALS || operand == TEGROUP_IMPL_A
               || operand == (SHAPE::OP == TEGROUP_OP_WGRAD ? TEGROUP_IMPL_B : TEGROUP_IMPL_D)
               || (operand == TEGROUP_IMPL_C && SHAPE::OP != TEGROUP_OP_WGRAD && !SHAPE::FLIPS);
    }
    /* Rows of a group, in which operands whose snapshots differ meet. */
    __device__ __forceinline__ void meet(const tegroup_tensor &t, tegroup_impl_operand operand, int32_t g,
                                         bool rows_too) {
        const tegroup_snapshot_view &view = call.call.views[operand];
        const int64_t there = view.rows ? view.rows[g] : t.shape.rows;
        first_row[operand] = view.rows && !call.listed[operand] ? (int32_t)view.start[g] : 0;
        if (rows_too && there < rows) rows = (int32_t)there;
    }
    __device__ __forceinline__ void load(int32_t from, int64_t tiles_before) {
        base = from;
        before = tiles_before;
        rows = -1;
        for (int i = 0; i < 4; i++) first_row[i] = 0;
        const int32_t *order = call.call.views[TEGROUP_IMPL_A].order;
        int32_t g = from + lane();
        if (g < desc.a.shape.groups && (!SHAPE::FITS || tiles_n > 0)) { /* else FITS has runs of nothing */
            if (SHAPE::OP == TEGROUP_OP_WGRAD && deals && order) g = order[g];
            rows = INT32_MAX;
            meet(desc.a, TEGROUP_IMPL_A, g, true);
            meet(desc.b, TEGROUP_IMPL_B, g, SHAPE::OP == TEGROUP_OP_WGRAD);
            meet(desc.d, TEGROUP_IMPL_D, g, SHAPE::OP != TEGROUP_OP_WGRAD);
            if (call.has_c) meet(desc.c, TEGROUP_IMPL_C, g, SHAPE::OP != TEGROUP_OP_WGRAD);
        }
        group = g;
        tiles = idle(rows) ? 0 : tiles_m(rows) * line_of(g); /* a D of more has no room in memory */
        sum = tiles;
        for (int step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane() >= step) sum += other;
        }
    }
    /* The block's next tile: the lane that has its group, and its number there. False: there are no more. */
    __device__ __forceinline__ bool in_turn(int *of, int32_t *local) {
        for (;;) {
            const int64_t end = before + __shfl_sync(0xffffffffu, sum, 31);
            if (turn < end) break;
            if ((SHAPE::LATE && turn == INT64_MAX) || base + 32 >= desc.a.shape.groups) return false;
            load(base + 32, end);
        }
        *of = __ffs((int)__ballot_sync(0xffffffffu, turn < before + sum)) - 1;
        *local = (int32_t)(turn - before - __shfl_sync(0xffffffffu, sum - tiles, *of));
        turn = is_late() ? INT64_MAX : turn + at_once();
        return true;
    }
    /* The same of tiles that are dealt. Those of the last groups closely: the others even out. */
    __device__ __forceinline__ bool dealt(int *of, int32_t *local) {
        for (;;) {
            if (run_at == run_end && !run()) return false;
            int32_t number;
            const int32_t first = run_at;
            run_at += deal.round(run_end - first, run_cost, base + 32 >= desc.a.shape.groups, &number);
            if (number < 0) continue;
            if (ahead) {
                ahead = false;
                continue;
            }
            *of = owner;
            *local = first + number;
            return true;
        }
    }
    /* The next tiles that cost the same. False: there are none. Every block finds all runs, and of most has no tile: so hardly anything
     * is divided on the way. */
    __device__ __forceinline__ bool run() {
        while (owner < 0 || !run_of_owner()) {
            const uint32_t others = __ballot_sync(0xffffffffu, !idle(rows) && lane() > owner);
            if (!others && base + 32 >= desc.a.shape.groups) return false;
            if (!others) load(base + 32, 0);
            owner = __ffs((int)others) - 1;
            run_end = stripe = part = 0;
            two = later = false;
        }
        return true;
    }
    __device__ __forceinline__ bool run_of_owner() {
        const int32_t there = __shfl_sync(0xffffffffu, rows, owner), lines = tiles_m(there);
        if (SHAPE::FITS) {
            if (run_end > 0) { /* past the run at hand */
                if (!two || later) part += two ? PART : tiles_n;
                later = two && !later;
                if (part >= tiles_n) {
                    part = 0;
                    stripe += STRIPE;
                }
            }
            if (stripe >= lines) return false;
            const int32_t high = height(lines, stripe);
            const fit f(there, lines, stripe, high);
            two = f.two(high);
            run_at = run_end;
            run_end += two ? (later ? high - f.wider : f.wider) * (int32_t)tegroup_impl_min(PART, tiles_n - part)
                           : high * tiles_n;
            run_cost = cost(there, f.cols(later || f.wider == 0));
        } else {
            const int32_t g = __shfl_sync(0xffffffffu, group, owner), across = line_of(g), wider = wide_of(g);
            int32_t end = lines * across;
            bool narrower = wider == 0;
            if (run_end >= end) return false;
            run_at = run_end;
            if (wider > 0 && wider < across && !mixes) {
                const int32_t begin = run_at / (STRIPE * across) * STRIPE, high = height(lines, begin);
                end = begin * across + high * wider;
                narrower = run_at == end;
                if (narrower) end = (begin + high) * across;
            }
            run_end = end;
            run_cost = cost(there, narrower ? SHAPE::NARROW : SHAPE::COLS);
        }
        return true;
    }
    /* Of a stripe. */
    static __device__ __forceinline__ int32_t height(int32_t lines, int32_t stripe) {
        return (int32_t)tegroup_impl_min(STRIPE, lines - stripe);
    }
    /* FITS: as few tiles as hold a group's rows have them in two widths at the most, the wider ones first. Where a stripe has both, PART
     * columns of D after another have first these and then those, so that tiles alike are neighbours and those of the same weights
     * are not far. */
    struct fit {
        int32_t each, more; /* rows of a tile, and tiles of the group that have more: in units of FIT */
        int32_t wider;      /* of the stripe's tiles side by side */
        __device__ __forceinline__ fit(int32_t there, int32_t lines, int32_t stripe, int32_t high) : each(0) {
            const int32_t fits = (there + SHAPE::FIT - 1) / SHAPE::FIT;
#pragma unroll
            for (int i = 1; i <= SHAPE::COLS / SHAPE::FIT; i++) each += fits >= i * lines; /* fits / lines */
            more = fits - each * lines;
            wider = (int32_t)tegroup_impl_clamp(more - stripe, 0, high);
        }
        __device__ __forceinline__ bool two(int32_t high) const { return wider > 0 && wider < high; }
        __device__ __forceinline__ int32_t cols(bool narrower) const {
            return (int32_t)tegroup_impl_max(SHAPE::fitting(TEGROUP_IMPL_SM90_SMALLER),
                                             (each + !narrower) * SHAPE::FIT);
        }
    };
    /* Of a tile, where k is that of the group: wgmma's time or, if that is more, the time that its results take to memory (as much as 6
     * steps for results of two bytes). */
    __device__ __forceinline__ int32_t cost(int32_t there, int32_t cols) const {
        const int32_t steps = (k_of(there) + SHAPE::K - 1) / SHAPE::K,
                      results = (desc.d.dtype == TEGROUP_DTYPE_F32 ? 12 : 6) * (call.has_c ? 2 : 1);
        return tegroup_impl_sm90_tile_cost(SHAPE::FITS ? tegroup_impl_sm90_fit_cost(cols) : cols,
                                           (int32_t)tegroup_impl_max(steps, results));
    }
    __device__ __forceinline__ int32_t k_of(int32_t there) const {
        return SHAPE::OP == TEGROUP_OP_WGRAD     ? there
               : SHAPE::OP == TEGROUP_OP_FORWARD ? (int32_t)desc.a.shape.cols
                                                 : (int32_t)desc.b.shape.rows;
    }
    __device__ __forceinline__ bool next(tegroup_impl_sm90_item *item) {
        int of;
        int32_t local;
        /* The first tile dealt to a block is that of its number: it is found before any is dealt, which takes a while. */
        const bool early = deals && turn >= 0 && turn < __shfl_sync(0xffffffffu, sum, 31);
        if (!(deals && !early ? dealt(&of, &local) : in_turn(&of, &local))) return false;
        if (early) ahead = true;
        if (deals) turn = -1;
        const int32_t g = __shfl_sync(0xffffffffu, group, of), there = __shfl_sync(0xffffffffu, rows, of);
        const int32_t lines = tiles_m(there), across = line_of(g), begin = local / (STRIPE * across) * STRIPE,
                      within = local - begin * across, high = height(lines, begin);
        item->group = g;
        item->rows = 0;
        if (SHAPE::FITS) {
            const fit f(there, lines, begin, high);
            const int32_t from = f.two(high) ? within / (PART * high) * PART : 0,
                          columns = f.two(high) ? (int32_t)tegroup_impl_min(PART, across - from) : across,
                          inside = within - from * high;
            const bool narrower = inside >= f.wider * columns;
            const int32_t number = narrower ? inside - f.wider * columns : inside,
                          beside = narrower ? high - f.wider : f.wider,
                          line = begin + (narrower ? f.wider : 0) + number % beside;
            item->i0 = (from + number / beside) * SHAPE::TILE_M;
            item->j0 = (line * f.each + (int32_t)tegroup_impl_min(line, f.more)) * SHAPE::FIT;
            item->cols = f.cols(narrower);
            item->rows = (int32_t)tegroup_impl_min(there - item->j0, item->cols);
        } else {
            const int32_t column = within / high, wider = wide_of(g);
            item->i0 = (begin + within % high) * SHAPE::TILE_M;
            item->j0 =
                column * SHAPE::COLS - (int32_t)tegroup_impl_max(0, column - wider) * (SHAPE::COLS - SHAPE::NARROW);
            item->cols = column < wider ? SHAPE::COLS : SHAPE::NARROW;
        }
        item->lines = (int32_t)tegroup_impl_min((SHAPE::OP == TEGROUP_OP_WGRAD || SHAPE::FITS ? m : there) - item->i0,
                                                SHAPE::TILE_M);
        item->k = k_of(there);
        item->alpha = item->k > 0 ? (float)tegroup_impl_scalar(&desc.alpha, g, (double)call.call.alpha) : 1.0f;
        item->beta = call.has_c ? (float)tegroup_impl_scalar(&desc.beta, g, (double)call.call.beta) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            item->first_row[i] = starts(i) ? __shfl_sync(0xffffffffu, first_row[i], of) : 0;
            item->origin[i] = call.shift[i];
        }
        if (item->k > 0) { /* else the list's entries may be anything */
            buffer(desc.a, TEGROUP_IMPL_A, item);
            buffer(desc.b, TEGROUP_IMPL_B, item);
        }
        if (item->beta != 0) buffer(desc.c, TEGROUP_IMPL_C, item);
        buffer(desc.d, TEGROUP_IMPL_D, item);
        return true;
    }
    /* TMA takes multiples of 16 bytes alone: from other addresses comes NaN, and to them goes nothing. */
    __device__ __forceinline__ void buffer(const tegroup_tensor &t, tegroup_impl_operand operand,
                                           tegroup_impl_sm90_item *item) const {
        if (!call.listed[operand]) return;
        const uint64_t address = (uint64_t)(uintptr_t)t.pointers[item->group];
        item->origin[operand] += address;
        if (address % 16 == 0) return;
        if (operand == TEGROUP_IMPL_D) item->lines = 0;
        else item->alpha = tegroup_impl_f32_of_bits(0x7fc00000u);
    }
};
#endif
