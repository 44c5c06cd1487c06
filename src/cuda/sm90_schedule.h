/* ---- Hopper GEMM: what the scheduler knows of tiles ---- */

#pragma once
#include "base/version.h"
#include "base/arithmetic.h"
#include "cuda/sm90_kernels.h"

/* A tile row ends in two narrow tiles where these have room for what is left: so 4,096 columns are 20 tiles of 192
 * and two of 128, and none is multiplied in vain. Where sums are longer than this, blocks are balanced by what tiles
 * cost, and a row may end in a single narrow one; round-robin, it would have blocks fall out of step. */
#define TEGROUP_IMPL_SM90_BALANCED_K 2048

/* Narrow tiles of a row of tiles of D, which has `cols` columns. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_narrow_tiles(int wgrad, int32_t cols, int32_t k) {
    const int32_t wide = TEGROUP_IMPL_SM90_WIDE, tiles = (cols + wide - 1) / wide,
                  room = (tiles * wide - cols) / (wide - TEGROUP_IMPL_SM90_NARROW);
    if (room < 2 && (wgrad || k < TEGROUP_IMPL_SM90_BALANCED_K)) return 0;
    return room < tiles ? room : tiles;
}

/* What a tile of so many columns costs, in units of 64 columns and 64 of k, which are 256 cycles of wgmma; and what
 * is between tiles. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_tile_cost(int32_t cols, int32_t steps) {
    return cols / 8 * steps / 8 + 2; /* below 2^28: cols are eights, 256 at most, and steps 2^25 */
}
/* Of a tile that fits: the columns that wgmma would take as long for. Its steps wait for shared memory, and those of
 * 96, 128, 160 and 192 columns take as long as 160, 165, 176 and 203. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_fit_cost(int32_t cols) {
    return (int32_t)tegroup_impl_max(cols + 8, 136 + cols / 4);
}

/* Steps of all tiles of a group in the mean, below which tiles go round-robin: to balance, every block finds all
 * stretches, and few tiles of short sums would be done before. */
#define TEGROUP_IMPL_SM90_BALANCED_STEPS 512

/* ---- balance: tiles that take unlike times go to the blocks that are done first, if tiles take what they cost ----
 *
 * Every block works out all blocks' loads, and so knows which tiles are its own without a word to the others. A warp
 * keeps the loads, lane l those of blocks l, l + 32, ...; on the host, where a plan looks ahead, one thread has all of
 * them. */
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
    int32_t *load;  /* [each] cost of what a block has got, above the least of all; INT32_MAX: there is no such block */
    int32_t each;   /* blocks of a lane */
    int32_t fresh;  /* blocks that have got nothing: these come first, in their order */
    int64_t passed; /* the least of all, which the loads are above */
} tegroup_impl_sm90_loads;

/* How many blocks have less than this. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_below(const tegroup_impl_sm90_loads *loads, int32_t limit) {
    int32_t blocks = 0, i;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (i = 0; i < loads->each; i++) blocks += TEGROUP_IMPL_COUNT(TEGROUP_IMPL_WHERE(loads->load[i] < limit));
    return blocks;
}

/* How often "about the least" is halved, for tiles that not all blocks can have. */
#define TEGROUP_IMPL_SM90_HALVED 2

/* As many of these tiles as there are blocks that have the least, or about that, go to these, one to each. Where
 * that is more blocks than tiles, and it matters (`closely`), to some that are nearer to the least. Returns how
 * many; `mine` is the number of the tile that block `me` gets, or -1. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_assign(tegroup_impl_sm90_loads *loads, int32_t tiles, int32_t cost,
                                                 int closely, int32_t me, int32_t *mine) {
    int32_t least = loads->load[0], given = 0, about = loads->fresh > 0 ? 1 : (cost + 1) / 2, limit, halved, i;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (i = 1; i < loads->each; i++) least = loads->load[i] < least ? loads->load[i] : least;
    least = TEGROUP_IMPL_LEAST(least);
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
