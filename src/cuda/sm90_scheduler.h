/* ---- Hopper GEMM: the scheduler ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/checks.h"
#include "core/product.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_schedule.h"
#include "cuda/hopper.h"
#include "cuda/sm90_tiles.h"

#if TEGROUP_IMPL_HOPPER
/* One warp of each block finds the block's tiles. It walks the groups, 32 at a time, a lane a group. Where all tiles
 * take as long they go round-robin, in the order of the groups; where they do not, blocks are balanced: of a weight
 * gradient by the largest groups first, of tiles of unlike widths by what these cost. */

/* The 32 groups at hand. */
template <typename SHAPE> struct tegroup_impl_sm90_groups_at_hand {
    const tegroup_impl_sm90_call &call;
    const tegroup_gemm_desc &desc;
    bool balanced;              /* else round-robin */
    int32_t m;                  /* rows of D, of a weight gradient; else each group has its own */
    int32_t across, wide;       /* tiles of a tile row, and of these not narrow; FITS: tiles of D's columns */
    int32_t first_group;        /* of the 32 */
    int64_t before, sum;        /* tiles before the 32; of theirs up to and with this lane's */
    int32_t group, rows, tiles; /* of this lane */
    int32_t first_row[4];

    enum {
        STRIPE = 8
    }; /* tile rows that are walked together, column by column, so that they share what L2 holds of B */
    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }

    __device__ __forceinline__ explicit tegroup_impl_sm90_groups_at_hand(const tegroup_impl_sm90_call &c)
        : call(c), desc(c.call.desc) {
        const int32_t n = (int32_t)(SHAPE::FLIPS && !SHAPE::FITS ? desc.a.shape.cols : desc.d.shape.cols),
                      width = SHAPE::FITS ? SHAPE::TILE_M : SHAPE::COLS;
        m = (int32_t)(SHAPE::FLIPS ? desc.d.shape.cols : desc.a.shape.cols);
        across = (n + width - 1) / width;
        wide = SHAPE::FITS ? across : across - SHAPE::narrow(n, k_of(0));
        balanced = SHAPE::BALANCES
                   && (SHAPE::FITS
                       || (SHAPE::OP == TEGROUP_OP_WGRAD
                               ? cost(most_rows(), SHAPE::COLS) > cost(0, SHAPE::COLS)
                               : (wide > 0 && wide < across && k_of(0) >= TEGROUP_IMPL_SM90_BALANCED_K)
                                     || (SHAPE::TAPERS && call.narrows > 0)));
    }
    /* 0 without a snapshot: groups are alike. */
    __device__ __forceinline__ int32_t most_rows() const {
        const tegroup_snapshot_header *header = call.call.views[TEGROUP_IMPL_A].header;
        return header ? (int32_t)header->rows_max : 0;
    }
    /* Whether all tiles of a group are narrow; what its tile rows then have, and of these wide. */
    __device__ __forceinline__ bool tapers(int32_t g) const {
        return SHAPE::TAPERS && g >= desc.a.shape.groups - call.narrows;
    }
    __device__ __forceinline__ int32_t across_of(int32_t g) const {
        return tapers(g) ? ((int32_t)desc.d.shape.cols + SHAPE::NARROW - 1) / SHAPE::NARROW : across;
    }
    __device__ __forceinline__ int32_t wide_of(int32_t g) const { return tapers(g) ? 0 : wide; }
    /* Tile rows of a group of so many rows. */
    __device__ __forceinline__ int32_t tile_rows(int32_t there) const {
        constexpr int32_t EACH = SHAPE::FITS ? SHAPE::COLS : SHAPE::TILE_M;
        return ((SHAPE::OP == TEGROUP_OP_WGRAD ? m : there) + EACH - 1) / EACH;
    }
    /* Of these, in the stripe that begins with this one. */
    static __device__ __forceinline__ int32_t height(int32_t tile_rows, int32_t stripe) {
        return (int32_t)tegroup_impl_min(STRIPE, tile_rows - stripe);
    }
    /* A weight gradient that nothing is added to is left alone; one of no rows is beta * C. */
    __device__ __forceinline__ bool idle(int32_t there) const {
        return SHAPE::OP == TEGROUP_OP_WGRAD ? there < 0 || (there == 0 && desc.accumulate) : there <= 0;
    }
    __device__ __forceinline__ int32_t k_of(int32_t there) const {
        return SHAPE::OP == TEGROUP_OP_WGRAD     ? there
               : SHAPE::OP == TEGROUP_OP_FORWARD ? (int32_t)desc.a.shape.cols
                                                 : (int32_t)desc.b.shape.rows;
    }
    /* Of a tile, where k is that of the group: wgmma's time or, if that is more, the time that its results take to
     * memory (as much as 6 steps for results of two bytes). */
    __device__ __forceinline__ int32_t cost(int32_t there, int32_t cols) const {
        const int32_t steps = (k_of(there) + SHAPE::K - 1) / SHAPE::K,
                      results = (desc.d.dtype == TEGROUP_DTYPE_F32 ? 12 : 6) * (call.has_c ? 2 : 1);
        return tegroup_impl_sm90_tile_cost(SHAPE::FITS ? tegroup_impl_sm90_fit_cost(cols) : cols,
                                           (int32_t)tegroup_impl_max(steps, results));
    }
    /* Whether an operand may have rows of each group. (Where blocks are not balanced there are registers enough, and
     * ptxas does better without being told.) */
    static __device__ __forceinline__ constexpr bool starts(int operand) {
        return !SHAPE::BALANCES || operand == TEGROUP_IMPL_A
               || operand == (SHAPE::OP == TEGROUP_OP_WGRAD ? TEGROUP_IMPL_B : TEGROUP_IMPL_D)
               || (operand == TEGROUP_IMPL_C && SHAPE::OP != TEGROUP_OP_WGRAD && !SHAPE::FLIPS);
    }
    /* Where a group starts in an operand, and rows of it: the fewest, of operands whose snapshots differ. */
    __device__ __forceinline__ void meet(const tegroup_tensor &t, tegroup_impl_operand operand, int32_t g,
                                         bool rows_too) {
        const tegroup_snapshot_view &view = call.call.views[operand];
        const int64_t there = view.rows ? view.rows[g] : t.shape.rows;
        first_row[operand] = view.rows && !call.listed[operand] ? (int32_t)view.start[g] : 0;
        if (rows_too && there < rows) rows = (int32_t)there;
    }
    /* The 32 groups from this one on. */
    __device__ __forceinline__ void load(int32_t from, int64_t tiles_before) {
        first_group = from;
        before = tiles_before;
        rows = -1;
        for (int i = 0; i < 4; i++) first_row[i] = 0;
        const int32_t *order = call.call.views[TEGROUP_IMPL_A].order;
        int32_t g = from + lane();
        if (g < desc.a.shape.groups && (!SHAPE::FITS || across > 0)) { /* else FITS has stretches of nothing */
            if (SHAPE::OP == TEGROUP_OP_WGRAD && balanced && order) g = order[g];
            rows = INT32_MAX;
            meet(desc.a, TEGROUP_IMPL_A, g, true);
            meet(desc.b, TEGROUP_IMPL_B, g, SHAPE::OP == TEGROUP_OP_WGRAD);
            meet(desc.d, TEGROUP_IMPL_D, g, SHAPE::OP != TEGROUP_OP_WGRAD);
            if (call.has_c) meet(desc.c, TEGROUP_IMPL_C, g, SHAPE::OP != TEGROUP_OP_WGRAD);
        }
        group = g;
        tiles = idle(rows) ? 0 : tile_rows(rows) * across_of(g); /* a D of more has no room in memory */
        sum = tiles;
        for (int step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane() >= step) sum += other;
        }
    }
    __device__ __forceinline__ bool last() const { return first_group + 32 >= desc.a.shape.groups; }
};

/* FITS: as few tiles as hold a group's rows have them in two widths at the most, the wider ones first. Where a
 * stripe has both, PART columns of D after another have first these and then those, so that tiles alike are
 * neighbours and those of the same weights are not far. */
template <typename SHAPE> struct tegroup_impl_sm90_fit {
    enum { PART = 16 };
    int32_t each, more; /* rows of a tile, and tiles of the group that have more: in units of FIT */
    int32_t wider;      /* of the stripe's tiles side by side */
    __device__ __forceinline__ tegroup_impl_sm90_fit(int32_t there, int32_t tile_rows, int32_t stripe, int32_t high)
        : each(0) {
        const int32_t fits = (there + SHAPE::FIT - 1) / SHAPE::FIT;
#pragma unroll
        for (int i = 1; i <= SHAPE::COLS / SHAPE::FIT; i++) each += fits >= i * tile_rows; /* fits / tile_rows */
        more = fits - each * tile_rows;
        wider = (int32_t)tegroup_impl_clamp(more - stripe, 0, high);
    }
    __device__ __forceinline__ bool two(int32_t high) const { return wider > 0 && wider < high; }
    __device__ __forceinline__ int32_t cols(bool narrower) const {
        return (int32_t)tegroup_impl_max(SHAPE::fitting(TEGROUP_IMPL_SM90_SMALLER), (each + !narrower) * SHAPE::FIT);
    }
};

/* Stretches: tiles of one group that cost the same, and are scheduled together. Every block finds all of them, and
 * of most has no tile: so hardly anything is divided on the way. */
template <typename SHAPE> struct tegroup_impl_sm90_stretches : tegroup_impl_sm90_groups_at_hand<SHAPE> {
    typedef tegroup_impl_sm90_groups_at_hand<SHAPE> base;
    typedef tegroup_impl_sm90_fit<SHAPE> fit;
    using base::across;
    using base::across_of;
    using base::cost;
    using base::height;
    using base::lane;
    using base::STRIPE;
    using base::wide;
    using base::wide_of;
    int owner;             /* the lane whose tiles they are; -1: none yet */
    int32_t at, end, each; /* of its tiles the next one and the end of the stretch; what each of them costs */
    int32_t stripe, part;  /* FITS: the tile row and the tile column that the stretch begins with */
    bool two, later;       /* FITS: whether there are tiles of two widths, and they are the second */
    bool mixes;            /* narrow tiles are with others: a stripe has less than a wave of these */

    __device__ __forceinline__ explicit tegroup_impl_sm90_stretches(const tegroup_impl_sm90_call &c)
        : base(c), owner(-1), at(0), end(0), stripe(0), part(0), two(false), later(false),
          mixes(SHAPE::OP == TEGROUP_OP_WGRAD && 8 * wide < (int32_t)gridDim.x) {}

    /* False: there are no more. */
    __device__ __forceinline__ bool next_stretch() {
        while (owner < 0 || !stretch_of_owner()) {
            const uint32_t others = __ballot_sync(0xffffffffu, !this->idle(this->rows) && lane() > owner);
            if (!others && this->last()) return false;
            if (!others) this->load(this->first_group + 32, 0);
            owner = __ffs((int)others) - 1;
            end = stripe = part = 0;
            two = later = false;
        }
        return true;
    }
    __device__ __forceinline__ bool stretch_of_owner() {
        const int32_t there = __shfl_sync(0xffffffffu, this->rows, owner), tile_rows = this->tile_rows(there);
        return SHAPE::FITS ? fitting_stretch(there, tile_rows) : plain_stretch(there, tile_rows);
    }
    __device__ __forceinline__ bool fitting_stretch(int32_t there, int32_t tile_rows) {
        if (end > 0) { /* past the one at hand */
            if (!two || later) part += two ? fit::PART : across;
            later = two && !later;
            if (part >= across) {
                part = 0;
                stripe += STRIPE;
            }
        }
        if (stripe >= tile_rows) return false;
        const int32_t high = height(tile_rows, stripe);
        const fit f(there, tile_rows, stripe, high);
        two = f.two(high);
        at = end;
        end += two ? (later ? high - f.wider : f.wider) * (int32_t)tegroup_impl_min(fit::PART, across - part)
                   : high * across;
        each = cost(there, f.cols(later || f.wider == 0));
        return true;
    }
    /* A stripe's wide tiles, its narrow ones; all tiles of the group where they are of one kind, or mixed. */
    __device__ __forceinline__ bool plain_stretch(int32_t there, int32_t tile_rows) {
        const int32_t g = __shfl_sync(0xffffffffu, this->group, owner), all = across_of(g), wider = wide_of(g);
        int32_t to = tile_rows * all;
        bool narrower = wider == 0;
        if (end >= to) return false;
        at = end;
        if (wider > 0 && wider < all && !mixes) {
            const int32_t begin = at / (STRIPE * all) * STRIPE, high = height(tile_rows, begin);
            to = begin * all + high * wider;
            narrower = at == to;
            if (narrower) to = (begin + high) * all;
        }
        end = to;
        each = cost(there, narrower ? SHAPE::NARROW : SHAPE::COLS);
        return true;
    }
};

/* The block's tiles, one after another. */
template <typename SHAPE> struct tegroup_impl_sm90_walk : tegroup_impl_sm90_stretches<SHAPE> {
    typedef tegroup_impl_sm90_stretches<SHAPE> base;
    typedef tegroup_impl_sm90_fit<SHAPE> fit;
    using base::across_of;
    using base::at;
    using base::balanced;
    using base::call;
    using base::desc;
    using base::end;
    using base::first_row;
    using base::height;
    using base::lane;
    using base::STRIPE;
    using base::sum;
    enum { EACH = TEGROUP_IMPL_SM90_MOST_BLOCKS / 32 };
    int64_t turn;                 /* round-robin: of all tiles, the next one of this block */
    bool ahead;                   /* balanced: the first tile of this block was found before */
    int32_t load_of[EACH], fresh; /* see tegroup_impl_sm90_loads */

    /* Not prepared: a snapshot is none, and there are no groups. */
    __device__ __forceinline__ explicit tegroup_impl_sm90_walk(const tegroup_impl_sm90_call &c, bool prepared)
        : base(c), turn(blockIdx.x), ahead(false), fresh((int32_t)gridDim.x) {
#pragma unroll
        for (int i = 0; i < EACH; i++) load_of[i] = lane() + 32 * i < (int32_t)gridDim.x ? 0 : INT32_MAX;
        this->load(prepared ? 0 : desc.a.shape.groups, 0);
        /* Every block finds all stretches, of which groups have one or more: few tiles of short sums would be done
         * before. */
        if (SHAPE::OP != TEGROUP_OP_WGRAD && balanced)
            balanced = __shfl_sync(0xffffffffu, sum, 31) * ((this->k_of(0) + SHAPE::K - 1) / SHAPE::K)
                       >= TEGROUP_IMPL_SM90_BALANCED_STEPS * tegroup_impl_min(32, desc.a.shape.groups);
    }
    /* The block's next tile: the lane that has its group, and its number there. False: there are no more. */
    __device__ __forceinline__ bool round_robin(int *of, int32_t *local) {
        for (;;) {
            const int64_t to = this->before + __shfl_sync(0xffffffffu, sum, 31);
            if (turn < to) break;
            if (this->last()) return false;
            this->load(this->first_group + 32, to);
        }
        *of = __ffs((int)__ballot_sync(0xffffffffu, turn < this->before + sum)) - 1;
        *local = (int32_t)(turn - this->before - __shfl_sync(0xffffffffu, sum - this->tiles, *of));
        turn += gridDim.x;
        return true;
    }
    /* The same of balanced blocks. Tiles of the last groups are given closely: the others even out. */
    __device__ __forceinline__ bool by_cost(int *of, int32_t *local) {
        for (;;) {
            if (at == end && !this->next_stretch()) return false;
            tegroup_impl_sm90_loads loads = {load_of, EACH, fresh, 0};
            int32_t number;
            const int32_t first = at;
            at += tegroup_impl_sm90_assign(&loads, end - first, this->each, this->last(), (int32_t)blockIdx.x, &number);
            fresh = loads.fresh;
            if (number < 0) continue;
            if (ahead) {
                ahead = false;
                continue;
            }
            *of = this->owner;
            *local = first + number;
            return true;
        }
    }
    __device__ __forceinline__ bool next(tegroup_impl_sm90_item *item) {
        int of;
        int32_t local;
        /* The first tile that a balanced block gets is that of its number: it is found before any is given, which
         * takes a while. */
        const bool early = balanced && turn >= 0 && turn < __shfl_sync(0xffffffffu, sum, 31);
        if (!(balanced && !early ? by_cost(&of, &local) : round_robin(&of, &local))) return false;
        if (early) ahead = true;
        if (balanced) turn = -1;
        const int32_t g = __shfl_sync(0xffffffffu, this->group, of), there = __shfl_sync(0xffffffffu, this->rows, of);
        item->group = g;
        item->rows = 0;
        place(local, g, there, item);
        item->lines = (int32_t)tegroup_impl_min(
            (SHAPE::OP == TEGROUP_OP_WGRAD || SHAPE::FITS ? this->m : there) - item->i0, SHAPE::TILE_M);
        item->k = this->k_of(there);
        item->alpha = item->k > 0 ? (float)tegroup_impl_scalar(&desc.alpha, g, (double)call.call.alpha) : 1.0f;
        item->beta = call.has_c ? (float)tegroup_impl_scalar(&desc.beta, g, (double)call.call.beta) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            item->first_row[i] = this->starts(i) ? __shfl_sync(0xffffffffu, first_row[i], of) : 0;
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
    /* Where tile `local` of group g, which has so many rows, is in D. */
    __device__ __forceinline__ void place(int32_t local, int32_t g, int32_t there, tegroup_impl_sm90_item *item) const {
        const int32_t tile_rows = this->tile_rows(there), across = across_of(g),
                      begin = local / (STRIPE * across) * STRIPE, within = local - begin * across,
                      high = height(tile_rows, begin);
        if (SHAPE::FITS) {
            const fit f(there, tile_rows, begin, high);
            const int32_t from = f.two(high) ? within / (fit::PART * high) * fit::PART : 0,
                          columns = f.two(high) ? (int32_t)tegroup_impl_min(fit::PART, across - from) : across,
                          inside = within - from * high;
            const bool narrower = inside >= f.wider * columns;
            const int32_t number = narrower ? inside - f.wider * columns : inside,
                          beside = narrower ? high - f.wider : f.wider,
                          row = begin + (narrower ? f.wider : 0) + number % beside;
            item->i0 = (from + number / beside) * SHAPE::TILE_M;
            item->j0 = (row * f.each + (int32_t)tegroup_impl_min(row, f.more)) * SHAPE::FIT;
            item->cols = f.cols(narrower);
            item->rows = (int32_t)tegroup_impl_min(there - item->j0, item->cols);
        } else {
            const int32_t column = within / high, wider = this->wide_of(g);
            item->i0 = (begin + within % high) * SHAPE::TILE_M;
            item->j0 =
                column * SHAPE::COLS - (int32_t)tegroup_impl_max(0, column - wider) * (SHAPE::COLS - SHAPE::NARROW);
            item->cols = column < wider ? SHAPE::COLS : SHAPE::NARROW;
        }
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
