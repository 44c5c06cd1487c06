/* ---- Hopper GEMM: what the scheduler knows of tiles ---- */

#pragma once
#include "base/version.h"
#include "base/arithmetic.h"
#include "cuda/sm90_kernels.h"

/* A row of tiles of 192 columns ends in two narrow ones where these have room for what is left: so 4,096 columns are 20 tiles of 192
 * and two of 128, and none is multiplied in vain. Where sums are longer than this, tiles are dealt by what they cost, and a row may end
 * in a single narrow one; undealt, it would have blocks fall out of step. */
#define TEGROUP_IMPL_SM90_DEALT_K 2048

/* Narrow tiles of a row of tiles of D, which has `cols` columns. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_narrow_tiles(int wgrad, int32_t cols, int32_t k) {
    const int32_t wide = TEGROUP_IMPL_SM90_WIDE, tiles = (cols + wide - 1) / wide,
                  room = (tiles * wide - cols) / (wide - TEGROUP_IMPL_SM90_NARROW);
    if (room < 2 && (wgrad || k < TEGROUP_IMPL_SM90_DEALT_K)) return 0;
    return room < tiles ? room : tiles;
}

/* What a tile of so many columns costs, in units of 64 columns and 64 of k, which are 256 cycles of wgmma; and what is between
 * tiles. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_tile_cost(int32_t cols, int32_t steps) {
    return cols / 8 * steps / 8 + 2; /* below 2^28: cols are eights, 256 at most, and steps 2^25 */
}
/* Of a tile that fits: the columns that wgmma would take as long for. Its steps wait for shared memory, and those of 96, 128, 160
 * and 192 columns take as long as 160, 165, 176 and 203. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_fit_cost(int32_t cols) {
    return (int32_t)tegroup_impl_max(cols + 8, 136 + cols / 4);
}

/* Steps of all tiles of a group in the mean, below which tiles go round in turn instead of being dealt: every block finds all of
 * them, and few tiles of short sums would be done before they are dealt. */
#define TEGROUP_IMPL_SM90_ENOUGH 512
/* How often "about the least load" is halved, for tiles that not all blocks can have. */
#define TEGROUP_IMPL_SM90_HALVED 2
