/* ---- Hopper GEMM: what tiles cost, and which block is done first ---- */

#pragma once
#include "base/version.h"
#include "base/arithmetic.h"
#include "cuda/sm90_kernels.h"

/* A tile row ends in two narrow tiles where these hold the columns that are left: 4,096 columns are 20 tiles of 192 and
 * two of 128, and no tile is partly empty. A forward product or dgrad with at least this k balances blocks if it has
 * narrow tiles, and may have a single one in a tile row; round-robin, that would make blocks fall out of step. */
#define TEGROUP_IMPL_SM90_BALANCED_K 2048

/* The narrow tiles of a tile row of `cols` columns. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_narrow_tiles(int wgrad, int32_t cols, int32_t k) {
    const int32_t wide = TEGROUP_IMPL_SM90_WIDE, tiles = (cols + wide - 1) / wide,
                  room = (tiles * wide - cols) / (wide - TEGROUP_IMPL_SM90_NARROW);
    if (room < 2 && (wgrad || k < TEGROUP_IMPL_SM90_BALANCED_K)) return 0;
    return room < tiles ? room : tiles;
}

/* The cost of a tile of `cols` columns, with `steps` times 64 of k. A unit is 64 columns by one step, 256 cycles of
 * wgmma; two units are for the time between tiles. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_tile_cost(int32_t cols, int32_t steps) {
    return cols / 8 * steps / 8 + 2; /* below 2^28: cols are a multiple of 8 up to 256, and steps at most 2^25 */
}
/* The steps that take as long as storing a tile's results. added: C is loaded, too. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_store_steps(int f32, int added) { return (f32 ? 12 : 6) * (added ? 2 : 1); }
/* The columns that cost as much as a fitting tile of `cols`. Its steps wait for shared memory: those of 96, 128, 160
 * and 192 columns take as long as wgmma takes for 160, 165, 176 and 203. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_fit_cost(int32_t cols) {
    return (int32_t)tegroup_impl_max(cols + 8, 136 + cols / 4);
}

/* Steps of all tiles of an average group below which scheduling is round-robin: balancing makes every block find all
 * stretches, and a few tiles of short sums are done sooner than that. */
#define TEGROUP_IMPL_SM90_BALANCED_STEPS 512

/* Tiles of a weight gradient whose groups are short and of unlike sizes are dealt: round-robin, from the largest group
 * on. Short groups have at most that many rows in the mean, and take no longer to multiply than results of two bytes
 * to store. No block then has to do more than another by more than a tile of the largest group, which is to be at most
 * such a part of what a block has to do. (docs/lab/scheduler.md) */
#define TEGROUP_IMPL_SM90_DEALT_ROWS 384
#define TEGROUP_IMPL_SM90_DEALT_PART 4

/* ---- balance: a tile goes to a block that would be done first, if all tiles took as long as they cost ----
 *
 * Every block computes the loads of all blocks, and so knows its own tiles without any communication. In a kernel a
 * warp holds the loads, lane l those of blocks l, l + 32, ...; on the host, where a plan looks ahead, one thread holds
 * all of them. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define TEGROUP_IMPL_LANES 32
#define TEGROUP_IMPL_LANE ((int32_t)threadIdx.x & 31)
#define TEGROUP_IMPL_LEAST(x) __reduce_min_sync(0xffffffffu, x)
#define TEGROUP_IMPL_WHERE(holds) __ballot_sync(0xffffffffu, holds)
#define TEGROUP_IMPL_COUNT(bits) __popc(bits)
#else
#define TEGROUP_IMPL_LANES 1
#define TEGROUP_IMPL_LANE 0
#define TEGROUP_IMPL_LEAST(x) (x)
#define TEGROUP_IMPL_WHERE(holds) ((holds) ? 1u : 0u)
#define TEGROUP_IMPL_COUNT(bits) ((int32_t)(bits))
#endif

typedef struct tegroup_impl_sm90_loads {
    int32_t *load;  /* [each] cost of a block's tiles so far, less `passed`; INT32_MAX: there is no such block */
    int32_t each;   /* blocks of a lane */
    int32_t fresh;  /* blocks without a tile so far, which are served first, in their order */
    int64_t passed; /* cost that every block has had, and that is left out of `load` */
} tegroup_impl_sm90_loads;

/* The number of blocks whose load is below `limit`. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_below(const tegroup_impl_sm90_loads *loads, int32_t limit) {
    int32_t blocks = 0, i;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (i = 0; i < loads->each; i++) blocks += TEGROUP_IMPL_COUNT(TEGROUP_IMPL_WHERE(loads->load[i] < limit));
    return blocks;
}

/* How often the margin below is halved at most. */
#define TEGROUP_IMPL_SM90_HALVED 2

/* Assigns one tile each to blocks whose load exceeds the least one by less than a margin, half of what a tile costs.
 * If `closely` is set, the margin is halved, HALVED times at most, as long as it leaves no fewer blocks than tiles.
 * Returns how many of the tiles are assigned; `mine` is the number of the tile that block `me` gets, or -1. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_assign(tegroup_impl_sm90_loads *loads, int32_t tiles, int32_t cost,
                                                 int closely, int32_t me, int32_t *mine) {
    int32_t own = loads->load[0], given = 0, about = loads->fresh > 0 ? 1 : (cost + 1) / 2, least, limit, halved, i;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (i = 1; i < loads->each; i++) own = loads->load[i] < own ? loads->load[i] : own;
    least = TEGROUP_IMPL_LEAST(own);
    for (halved = 0; closely && loads->fresh <= 0 && halved < TEGROUP_IMPL_SM90_HALVED
                     && tegroup_impl_sm90_below(loads, least + about / 2) >= tiles;
         halved++)
        about /= 2;
    limit = least + about;
    *mine = -1;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (i = 0; i < loads->each; i++) {
        const uint32_t gets = TEGROUP_IMPL_WHERE(loads->load[i] < limit);
        const int32_t number = given + TEGROUP_IMPL_COUNT(gets & ((1u << TEGROUP_IMPL_LANE) - 1)),
                      my_number = given + TEGROUP_IMPL_COUNT(gets & ((1u << me % TEGROUP_IMPL_LANES) - 1));
        if (me / TEGROUP_IMPL_LANES == i && (gets >> me % TEGROUP_IMPL_LANES & 1) && my_number < tiles)
            *mine = my_number;
        if (loads->load[i] < INT32_MAX) loads->load[i] += (loads->load[i] < limit && number < tiles ? cost : 0) - least;
        given += TEGROUP_IMPL_COUNT(gets);
    }
    given = given < tiles ? given : tiles;
    loads->fresh -= given;
    loads->passed += least;
    return given;
}
