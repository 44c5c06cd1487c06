/* ---- A walk through tiles ---- */

#pragma once
#include "base/version.h"
#include "core/tile_types.h"
#include "core/tiles.h"

/* One warp walks the groups, 32 at a time: each lane counts one group's tiles, and a scan adds them up. A few lanes
 * then look up one tile each: a lookup takes long, and several take no longer. Tiles are asked for in rising order, so
 * the walk never goes back. Its state is in shared memory, as registers are for sums. What a CALL and a TILE are, RULE
 * alone knows: lane(), prepared(call), groups(call), tiles(call, g), which is 0 past the last group, put(call, g,
 * local, tile) and none(tile). */
template <typename RULE, typename CALL, typename TILE> struct tegroup_impl_walk {
    int64_t before;   /* tiles in front of the current 32 groups */
    int64_t upto[32]; /* prefix sums of tiles over the current groups, each included */
    int32_t base;     /* the first of the current groups */

    /* Stands before the first groups, or behind the last one if a snapshot was not prepared. */
    __device__ __forceinline__ void begin(const CALL &call) {
        upto[RULE::lane()] = 0;
        if (RULE::lane() == 0) {
            base = RULE::prepared(call) ? -32 : RULE::groups(call);
            before = 0;
        }
        __syncwarp();
    }
    /* Moves on to the next 32 groups. */
    __device__ __forceinline__ void go_on(const CALL &call) {
        const int32_t first = base + 32;
        const int64_t tiles_before = before + upto[31];
        int64_t sum = RULE::tiles(call, first + RULE::lane());
        for (int32_t step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (RULE::lane() >= step) sum += other;
        }
        __syncwarp();
        upto[RULE::lane()] = sum;
        if (RULE::lane() == 0) {
            base = first;
            before = tiles_before;
        }
        __syncwarp();
    }
    /* Finds tile number t for each lane that passes a tile; other lanes pass NULL. */
    __device__ __forceinline__ void find(const CALL &call, int64_t t, TILE *tile) {
        for (;;) {
            if (tile && t < before + upto[31]) {
                int32_t owner = 0; /* of the current groups, those that end before the tile */
#pragma unroll
                for (int32_t half = 16; half > 0; half /= 2)
                    if (t >= before + upto[owner + half - 1]) owner += half;
                RULE::put(call, base + owner, (int32_t)(t - before - (owner > 0 ? upto[owner - 1] : 0)), tile);
                tile = NULL;
            }
            const bool more = base + 32 < RULE::groups(call);
            if (tile && !more) RULE::none(tile);
            if (!more || !__any_sync(0xffffffffu, tile != NULL)) break;
            go_on(call);
        }
        __syncwarp();
    }
};

/* The tile that this block has in wave `round`. Tiles go round-robin, and each wave begins one block later: otherwise
 * some blocks would always get the partial tiles at the groups' ends. */
static __device__ __forceinline__ int64_t tegroup_impl_gpu_number(uint32_t round) {
    return (int64_t)round * gridDim.x + (blockIdx.x + round) % gridDim.x;
}

/* ---- for kernels of the caller's own ---- */

struct tegroup_impl_tile_rule {
    static __device__ __forceinline__ int32_t thread() {
        return (int32_t)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
    }
    static __device__ __forceinline__ int32_t lane() { return thread() & 31; }
    static __device__ __forceinline__ bool prepared(const tegroup_tiles &tiles) {
        return tegroup_impl_tiles_prepared(&tiles);
    }
    static __device__ __forceinline__ int32_t groups(const tegroup_tiles &tiles) { return tiles.groups; }
    static __device__ __forceinline__ int32_t tiles(const tegroup_tiles &tiles, int32_t g) {
        return tegroup_impl_tiles_of_group(&tiles, g);
    }
    static __device__ __forceinline__ void put(const tegroup_tiles &tiles, int32_t g, int32_t local,
                                               tegroup_tile *tile) {
        *tile = tegroup_impl_tile_of_group(&tiles, g, local);
    }
    static __device__ __forceinline__ void none(tegroup_tile *tile) { *tile = tegroup_impl_tile_none(); }
};

#define TEGROUP_TILES_AT_ONCE 8 /* tiles that tegroup_tile_take finds at a time */

/* A block's place among the tiles; in shared memory, and nothing that the caller reads. */
typedef struct tegroup_tile_walk {
    tegroup_impl_walk<tegroup_impl_tile_rule, tegroup_tiles, tegroup_tile> walk;
    tegroup_tile found[TEGROUP_TILES_AT_ONCE];
} tegroup_tile_walk;

/* Takes the block's tile of each round, 0, 1, 2 and so on, none left out, by all threads of the block together: at
 * least 32, in a grid of one dimension and any size. Each tile of each group goes to one block in one round. Returns
 * false, and a tile of group -1, when none is left for the block: at once where all groups are empty, or where the
 * snapshot is not one that tegroup_prepare wrote for these groups and at most these rows. Every eighth round is a
 * barrier of the block's threads and the others are none: a kernel that goes on to use its shared memory anew has its
 * own. walk: in shared memory, not initialized. tiles: the kernel's parameter. */
static __device__ inline bool tegroup_tile_take(tegroup_tile_walk *walk, const tegroup_tiles *tiles, int32_t round,
                                                tegroup_tile *tile) {
    const int32_t thread = tegroup_impl_tile_rule::thread();
    if (round % TEGROUP_TILES_AT_ONCE == 0) {
        __syncthreads(); /* nobody reads those found before any more */
        if (thread < 32 && round == 0) walk->walk.begin(*tiles);
        if (thread < 32)
            walk->walk.find(*tiles, tegroup_impl_gpu_number((uint32_t)(round + thread)),
                            thread < TEGROUP_TILES_AT_ONCE ? &walk->found[thread] : NULL);
        __syncthreads();
    }
    *tile = walk->found[round % TEGROUP_TILES_AT_ONCE];
    return tile->group >= 0;
}
