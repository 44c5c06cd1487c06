/* ---- Hopper GEMM: the scheduler ---- */

#pragma once
#include "base/version.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/field_names.h"
#include "core/product.h"
#include "core/quantised.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_balance.h"
#include "cuda/hopper.h"
#include "cuda/sm90_tiles.h"

#if TEGROUP_IMPL_HOPPER
/* One warp of each block finds the block's tiles. It walks the groups 32 at a time, one for each lane. Tiles of equal
 * cost are scheduled round-robin, in the order of the groups. Otherwise blocks are balanced by what tiles cost, and a
 * weight gradient's groups are walked from the largest one on, balanced or dealt (see TEGROUP_IMPL_SM90_DEALT_ROWS). */

/* The 32 groups that the warp is looking at. */
template <typename SHAPE> struct tegroup_impl_sm90_groups_at_hand {
    const tegroup_impl_sm90_call &call;
    const tegroup_gemm_desc &desc;
    bool balanced;              /* else round-robin */
    int32_t m;                  /* lines of D for WGRAD and FITS; otherwise each group has its own number */
    int32_t across, wide;       /* tiles of a tile row, and its wide ones; FITS: tiles along D's columns */
    int32_t first_group;        /* the first of the 32 */
    int64_t before, sum;        /* tiles before the 32 groups; tiles of the lanes up to and including this one */
    int32_t group, rows, tiles; /* this lane's group, its rows and tiles */
    int32_t first_row[4];       /* of this lane's group, for each operand */

    enum { STRIPE = 8 }; /* Tile rows of a stripe are walked together, column by column, and share B in L2. */
    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }
    /* The number of this block, or of its pair, and how many there are. */
    static __device__ __forceinline__ int32_t worker() { return (int32_t)blockIdx.x / SHAPE::BLOCKS; }
    static __device__ __forceinline__ int32_t workers() { return (int32_t)gridDim.x / SHAPE::BLOCKS; }

    __device__ __forceinline__ explicit tegroup_impl_sm90_groups_at_hand(const tegroup_impl_sm90_call &c)
        : call(c), desc(c.call.desc) {
        const int32_t n = (int32_t)(SHAPE::FLIPS && !SHAPE::FITS ? desc.a.shape.cols : desc.d.shape.cols),
                      width = SHAPE::FITS ? SHAPE::BLOCKS * SHAPE::TILE_M : SHAPE::COLS;
        m = (int32_t)(SHAPE::FLIPS ? desc.d.shape.cols : desc.a.shape.cols);
        across = (n + width - 1) / width;
        wide = SHAPE::FITS ? across : across - SHAPE::narrow(n, k_of(0));
        balanced = SHAPE::BALANCES
                   && (SHAPE::FITS
                       || (SHAPE::OP == TEGROUP_OP_WGRAD
                               ? uneven() && most_rows() > call.dealt
                               : (wide > 0 && wide < across && k_of(0) >= TEGROUP_IMPL_SM90_BALANCED_K)
                                     || (SHAPE::TAPERS && call.narrows > 0)));
    }
    /* Rows of the largest group, or 0 without a snapshot, since groups are even then. */
    __device__ __forceinline__ int32_t most_rows() const {
        const tegroup_snapshot_header *header = call.call.views[TEGROUP_IMPL_A].header;
        return header ? (int32_t)header->rows_max : 0;
    }
    /* Whether tiles of a weight gradient may take unlike times. */
    __device__ __forceinline__ bool uneven() const { return cost(most_rows(), SHAPE::COLS) > cost(0, SHAPE::COLS); }
    /* Whether all tiles of group g are narrow; below, the tiles of its tile rows, and how many of these are wide. */
    __device__ __forceinline__ bool tapers(int32_t g) const {
        return SHAPE::TAPERS && g >= desc.a.shape.groups - call.narrows;
    }
    __device__ __forceinline__ int32_t across_of(int32_t g) const {
        return tapers(g) ? ((int32_t)desc.d.shape.cols + SHAPE::NARROW - 1) / SHAPE::NARROW : across;
    }
    __device__ __forceinline__ int32_t wide_of(int32_t g) const { return tapers(g) ? 0 : wide; }
    /* Tile rows of a group that has `there` rows. */
    __device__ __forceinline__ int32_t tile_rows(int32_t there) const {
        constexpr int32_t EACH = SHAPE::FITS ? SHAPE::COLS : SHAPE::TILE_M;
        return ((SHAPE::OP == TEGROUP_OP_WGRAD ? m : there) + EACH - 1) / EACH;
    }
    /* Tile rows of the stripe that begins with tile row `stripe`. */
    static __device__ __forceinline__ int32_t height(int32_t tile_rows, int32_t stripe) {
        return (int32_t)tegroup_impl_min(STRIPE, tile_rows - stripe);
    }
    /* Whether a group has nothing to compute. A weight gradient of no rows is beta * C, which is D itself where the
     * product accumulates. */
    __device__ __forceinline__ bool idle(int32_t there) const {
        return SHAPE::OP == TEGROUP_OP_WGRAD ? there < 0 || (there == 0 && desc.accumulate) : there <= 0;
    }
    __device__ __forceinline__ int32_t k_of(int32_t there) const {
        return SHAPE::OP == TEGROUP_OP_WGRAD     ? there
               : SHAPE::OP == TEGROUP_OP_FORWARD ? (int32_t)desc.a.shape.cols
                                                 : (int32_t)desc.b.shape.rows;
    }
    /* The cost of a tile of a group of `there` rows: the time of wgmma or, if that is longer, the time to store the
     * results. */
    __device__ __forceinline__ int32_t cost(int32_t there, int32_t cols) const {
        const int32_t steps = (k_of(there) + SHAPE::K - 1) / SHAPE::K,
                      results = tegroup_impl_sm90_store_steps(desc.d.dtype == TEGROUP_DTYPE_F32, call.has_c);
        return tegroup_impl_sm90_tile_cost(SHAPE::FITS ? tegroup_impl_sm90_fit_cost(cols) : cols,
                                           (int32_t)tegroup_impl_max(steps, results));
    }
    /* Whether an operand can have a first row for each group. (Where blocks are never balanced, registers suffice, and
     * ptxas makes better code if this is always true.) */
    static __device__ __forceinline__ constexpr bool starts(int operand) {
        return !SHAPE::BALANCES || operand == TEGROUP_IMPL_A
               || operand == (SHAPE::OP == TEGROUP_OP_WGRAD ? TEGROUP_IMPL_B : TEGROUP_IMPL_D)
               || (operand == TEGROUP_IMPL_C && SHAPE::OP != TEGROUP_OP_WGRAD && !SHAPE::FLIPS);
    }
    /* Looks up where a group starts in an operand and, if rows_too, its rows: where snapshots differ, the fewest. */
    __device__ __forceinline__ void meet(const tegroup_tensor &t, tegroup_impl_operand operand, int32_t g,
                                         bool rows_too) {
        const tegroup_snapshot_view &view = call.call.views[operand];
        const int64_t there = view.rows ? view.rows[g] : t.shape.rows;
        first_row[operand] = view.rows && !call.listed[operand] ? (int32_t)view.start[g] : 0;
        if (rows_too && there < rows) rows = (int32_t)there;
    }
    /* Loads the 32 groups from `from` on. */
    __device__ __forceinline__ void load(int32_t from, int64_t tiles_before) {
        first_group = from;
        before = tiles_before;
        rows = -1;
        for (int i = 0; i < 4; i++) first_row[i] = 0;
        const int32_t *order = call.call.views[TEGROUP_IMPL_A].order;
        int32_t g = from + lane();
        if (g < desc.a.shape.groups && (!SHAPE::FITS || across > 0)) { /* Otherwise FITS has empty stretches. */
            if (SHAPE::OP == TEGROUP_OP_WGRAD && order && uneven()) g = order[g];
            rows = INT32_MAX;
            meet(desc.a, TEGROUP_IMPL_A, g, true);
            meet(desc.b, TEGROUP_IMPL_B, g, SHAPE::OP == TEGROUP_OP_WGRAD);
            meet(desc.d, TEGROUP_IMPL_D, g, SHAPE::OP != TEGROUP_OP_WGRAD);
            if (call.has_c) meet(desc.c, TEGROUP_IMPL_C, g, SHAPE::OP != TEGROUP_OP_WGRAD);
        }
        group = g;
        tiles = idle(rows) ? 0 : tile_rows(rows) * across_of(g); /* A D of 2^31 tiles fits in no memory. */
        sum = tiles;
        for (int step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane() >= step) sum += other;
        }
    }
    __device__ __forceinline__ bool last() const { return first_group + 32 >= desc.a.shape.groups; }
};

/* How fitting tiles share a group's rows. There are as few tiles as hold them, of at most two widths, the wider first.
 * A stripe with both widths is walked PART tile columns at a time, and in these first the wider and then the narrower
 * tiles: so tiles of equal cost are neighbours, and those of the same weights are not far from each other. */
template <typename SHAPE> struct tegroup_impl_sm90_fit {
    enum { PART = 16 };
    int32_t each, more; /* rows of a tile, in units of FIT; tiles of the group that have one unit more */
    int32_t wider;      /* tile rows of the stripe that have one unit more */
    __device__ __forceinline__ tegroup_impl_sm90_fit(int32_t there, int32_t tile_rows, int32_t stripe, int32_t high)
        : each(0) {
        const int32_t fits = (there + SHAPE::FIT - 1) / SHAPE::FIT;
#pragma unroll
        for (int i = 1; i <= SHAPE::COLS / SHAPE::FIT; i++) each += fits >= i * tile_rows; /* a division */
        more = fits - each * tile_rows;
        wider = (int32_t)tegroup_impl_clamp(more - stripe, 0, high);
    }
    __device__ __forceinline__ bool two(int32_t high) const { return wider > 0 && wider < high; }
    __device__ __forceinline__ int32_t cols(bool narrower) const {
        return (int32_t)tegroup_impl_max(SHAPE::fitting(TEGROUP_IMPL_SM90_SMALLER), (each + !narrower) * SHAPE::FIT);
    }
};

/* A stretch is tiles of one group that cost the same and are scheduled at once. Every block finds all stretches, but
 * gets no tile of most of them, so this code avoids divisions. */
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
    int owner;             /* the lane whose tiles they are, or -1 before the first stretch */
    int32_t at, end, each; /* the owner's next tile, the end of the stretch, and the cost of each tile */
    int32_t stripe, part;  /* FITS: the tile row and the tile column at which the stretch begins */
    bool two, later;       /* FITS: whether the stripe has tiles of two widths, and the stretch the narrower ones */
    bool mixes; /* whether stretches mix wide and narrow tiles, as a stripe's wide ones are less than a wave */

    __device__ __forceinline__ explicit tegroup_impl_sm90_stretches(const tegroup_impl_sm90_call &c)
        : base(c), owner(-1), at(0), end(0), stripe(0), part(0), two(false), later(false),
          mixes(SHAPE::OP == TEGROUP_OP_WGRAD && 8 * wide < base::workers()) {}

    /* Finds the next stretch. Returns false if there is none. */
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
        if (end > 0) { /* Step past the current stretch. */
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
    /* A stretch is a stripe's wide tiles, or its narrow ones; or all of the group, if they are of one kind or mixed. */
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

/* A walk through the tiles of this block. */
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
    int64_t turn;                 /* round-robin: the number, among all tiles, of this block's next one */
    bool ahead;                   /* balanced: whether the block's first tile was found before it is assigned */
    int32_t load_of[EACH], fresh; /* see tegroup_impl_sm90_loads */

    /* Unless all snapshots are prepared, there are no groups. */
    __device__ __forceinline__ explicit tegroup_impl_sm90_walk(const tegroup_impl_sm90_call &c, bool prepared)
        : base(c), turn(base::worker()), ahead(false), fresh(base::workers()) {
#pragma unroll
        for (int i = 0; i < EACH; i++) load_of[i] = lane() + 32 * i < base::workers() ? 0 : INT32_MAX;
        this->load(prepared ? 0 : desc.a.shape.groups, 0);
        /* Balancing makes every block find all stretches, at least one for each group. A few tiles of short sums are
         * done sooner round-robin. */
        if (SHAPE::OP != TEGROUP_OP_WGRAD && balanced)
            balanced = __shfl_sync(0xffffffffu, sum, 31) * ((this->k_of(0) + SHAPE::K - 1) / SHAPE::K)
                       >= TEGROUP_IMPL_SM90_BALANCED_STEPS * tegroup_impl_min(32, desc.a.shape.groups);
    }
    /* Finds the block's next tile: the lane that has its group, and its number there. Returns false if none is left. */
    __device__ __forceinline__ bool round_robin(int *of, int32_t *local) {
        for (;;) {
            const int64_t to = this->before + __shfl_sync(0xffffffffu, sum, 31);
            if (turn < to) break;
            if (this->last()) return false;
            this->load(this->first_group + 32, to);
        }
        *of = __ffs((int)__ballot_sync(0xffffffffu, turn < this->before + sum)) - 1;
        *local = (int32_t)(turn - this->before - __shfl_sync(0xffffffffu, sum - this->tiles, *of));
        turn += base::workers();
        return true;
    }
    /* The same for balanced blocks. Only the last groups are assigned closely, since later tiles level the others. */
    __device__ __forceinline__ bool by_cost(int *of, int32_t *local) {
        for (;;) {
            if (at == end && !this->next_stretch()) return false;
            tegroup_impl_sm90_loads loads = {load_of, EACH, fresh, 0};
            int32_t number;
            const int32_t first = at;
            at += tegroup_impl_sm90_assign(&loads, end - first, this->each, this->last(), base::worker(), &number);
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
        /* The first tile that a balanced block gets is that of its own number. It is found round-robin, before any is
         * assigned, which takes a while. */
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
        item->alpha = item->k <= 0           ? 1.0f
                      : SHAPE::SCALES_GROUPS ? tegroup_impl_scaled_alpha(&desc, g, (double)call.call.alpha)
                                             : (float)tegroup_impl_scalar(&desc.alpha, g, (double)call.call.alpha);
        item->beta = call.has_c ? (float)tegroup_impl_scalar(&desc.beta, g, (double)call.call.beta) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            item->first_row[i] = this->starts(i) ? __shfl_sync(0xffffffffu, first_row[i], of) : 0;
            item->origin[i] = call.shift[i];
        }
        if (item->k > 0) { /* Otherwise the entries of a list may be anything. */
            buffer(desc.a.pointers, TEGROUP_IMPL_A, item);
            buffer(desc.b.pointers, TEGROUP_IMPL_B, item);
            if (SHAPE::ACTIVATES && SHAPE::OP == TEGROUP_OP_FORWARD)
                buffer(call.up.weight.pointers, TEGROUP_IMPL_SM90_UPS, item);
            if (SHAPE::SCALES_GROUPS && call.listed[TEGROUP_IMPL_B]
                && (uint64_t)(uintptr_t)desc.b.scale_pointers[g] % 16 != 0)
                item->alpha = tegroup_impl_f32_of_bits(0x7fc00000u); /* NaN, as of codes at such an address */
        }
        if (item->beta != 0) buffer(desc.c.pointers, TEGROUP_IMPL_C, item);
        buffer(desc.d.pointers, TEGROUP_IMPL_D, item);
        return true;
    }
    /* Places tile `local` of group g, which has `there` rows, in D. */
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
            item->i0 = ((from + number / beside) * SHAPE::BLOCKS + (int32_t)blockIdx.x % SHAPE::BLOCKS) * SHAPE::TILE_M;
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
    /* Adds the address of a listed buffer. TMA needs multiples of 16 bytes: with an operand at another address
     * results are NaN, and to a D at another address nothing is stored. (A weight gradient's tile keeps its lines,
     * and loses its columns: one without steps must come to the storer, which then yields.) */
    __device__ __forceinline__ void buffer(void *const *pointers, tegroup_impl_operand operand,
                                           tegroup_impl_sm90_item *item) const {
        if (!call.listed[operand]) return;
        const uint64_t address = (uint64_t)(uintptr_t)pointers[item->group];
        item->origin[operand] += address;
        if (address % 16 == 0) return;
        if (operand == TEGROUP_IMPL_D) (SHAPE::OP == TEGROUP_OP_WGRAD ? item->cols : item->lines) = 0;
        else item->alpha = tegroup_impl_f32_of_bits(0x7fc00000u);
    }
};
#endif
