/* ---- Hopper GEMM: a block ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "core/field_names.h"
#include "core/snapshot_checks.h"
#include "cuda/call.h"
#include "cuda/hopper.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_scheduler.h"

#if TEGROUP_IMPL_HOPPER
/* A block is a chain of four classes, each the base of the next: what the warps share, loader, storer, multiplier. (If
 * the others hold the first as a member instead, nvcc makes different code.) */
template <typename SHAPE> struct tegroup_impl_sm90_block {
    static constexpr int STAGES = SHAPE::STAGES, ITEMS = TEGROUP_IMPL_SM90_ITEMS;
    const tegroup_impl_sm90_call &call;
    uint32_t ring, slabs; /* addresses in shared memory */
    tegroup_impl_sm90_rest<SHAPE> *rest;

    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }
    static __device__ __forceinline__ uint32_t at(const uint64_t *barrier) { return tegroup_impl_shared(barrier); }

    __device__ __forceinline__ tegroup_impl_sm90_block(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : call(c) {
        static_assert(sizeof *rest <= TEGROUP_IMPL_SM90_REST, "barriers and found tiles");
        memory += (1024 - tegroup_impl_shared(memory) % 1024) % 1024; /* for the swizzle of TMA and wgmma */
        ring = tegroup_impl_shared(memory);
        slabs = ring + STAGES * SHAPE::STAGE_BYTES;
        rest = (tegroup_impl_sm90_rest<SHAPE> *)(memory + STAGES * SHAPE::STAGE_BYTES + SHAPE::SLAB_BYTES);
    }
    /* A thread of the loading warp initializes the barriers while the scheduler warp checks the snapshots. */
    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 32) {
            const int loaders = gathers() ? 32 : 1;
            for (int s = 0; s < STAGES; s++) {
                tegroup_impl_barrier_init(at(&rest->full[s]), gathers() ? 33 : 1);
                tegroup_impl_barrier_init(at(&rest->empty[s]),
                                          /* warps that multiply it */
                                          4 * (SHAPE::TURNS ? 1 : SHAPE::MULTIPLIERS) * SHAPE::BLOCKS
                                              * SHAPE::RELEASERS);
            }
            for (int i = 0; i < ITEMS; i++) {
                tegroup_impl_barrier_init(at(&rest->found[i]), 1);
                tegroup_impl_barrier_init(at(&rest->taken[i]), /* storers, multipliers */
                                          loaders + 2 + 128 * SHAPE::MULTIPLIERS);
            }
            for (int w = 0; w < SHAPE::MULTIPLIERS; w++) {
                tegroup_impl_barrier_init(at(&rest->turn[w]), 4);
                for (int i = 0; i < SHAPE::SLABS; i++) {
                    tegroup_impl_barrier_init(at(&rest->ready[w][i]), 1);
                    tegroup_impl_barrier_init(at(&rest->written[w][i]), 4);
                }
            }
            tegroup_impl_async_fence();
        }
        if (SHAPE::PAIRS) tegroup_impl_cluster_sync();
        else __syncthreads();
    }
    /* Other threads of a pair may still arrive at this block's barriers, and its loads still write there. */
    static __device__ __forceinline__ void leave() {
        if (SHAPE::PAIRS) tegroup_impl_cluster_sync();
    }
    __device__ __forceinline__ bool gathers() const { return !SHAPE::PAIRS && (call.gathers_a || call.gathers_b); }
    __device__ __forceinline__ bool anywhere(tegroup_impl_operand operand) const {
        return call.ragged[operand] || call.listed[operand];
    }
    /* Waits for the block's tile `number`. */
    __device__ __forceinline__ const tegroup_impl_sm90_item *take(int32_t number) const {
        tegroup_impl_barrier_wait(at(&rest->found[number % ITEMS]), number / ITEMS & 1);
        return &rest->items[number % ITEMS];
    }
    /* Every thread that took a tile calls this after it last reads it. */
    __device__ __forceinline__ void give(int32_t number) const {
        tegroup_impl_barrier_arrive(at(&rest->taken[number % ITEMS]));
    }

    /* Whether the snapshots are what tegroup_prepare wrote for these operands, which are regular. Each lane of the warp
     * looks at one operand's: tegroup_impl_prepared, inlined or called, has ptxas spill the scheduler's registers. */
    __device__ __forceinline__ bool prepared() const {
        const tegroup_gemm_desc &desc = call.call.desc;
        const int operand = lane() % 4;
        const tegroup_impl_fit fit = {call.call.views[operand].header,
                                      operand == TEGROUP_IMPL_A   ? desc.a.shape.rows
                                      : operand == TEGROUP_IMPL_B ? desc.b.shape.rows
                                      : operand == TEGROUP_IMPL_C ? desc.c.shape.rows
                                                                  : desc.d.shape.rows,
                                      INT64_MAX,
                                      INT64_MAX,
                                      -1,
                                      desc.a.shape.groups,
                                      0};
        return __all_sync(0xffffffffu, tegroup_impl_fits(&fit));
    }
    /* Publishes a found tile, once everybody has given back the one in whose place it goes. */
    __device__ __forceinline__ void publish(int32_t number, const tegroup_impl_sm90_item &item) const {
        if (number >= ITEMS) tegroup_impl_barrier_wait(at(&rest->taken[number % ITEMS]), (number / ITEMS & 1) ^ 1);
        if (lane() == 0) {
            rest->items[number % ITEMS] = item;
            tegroup_impl_barrier_arrive(at(&rest->found[number % ITEMS]));
        }
    }
    /* The scheduler warp publishes the block's tiles, and then an item of group -1. */
    __device__ __forceinline__ void schedule() const {
        tegroup_impl_sm90_walk<SHAPE> walk(call, prepared());
        bool there = true;
        for (int32_t number = 0; there; number++) {
            tegroup_impl_sm90_item item;
            item.group = -1;
            there = walk.next(&item);
            publish(number, item);
            __syncwarp();
        }
    }

    /* The first line of a warpgroup's part of a tile. */
    static __device__ __forceinline__ int line_of(int group) { return SHAPE::TURNS ? 0 : group * SHAPE::LINES; }
    static __device__ __forceinline__ bool narrow(const tegroup_impl_sm90_item &item) {
        return SHAPE::NARROWS && item.cols == SHAPE::NARROW;
    }
    __device__ __forceinline__ bool is_wide() const {
        return !SHAPE::FLIPS && call.call.desc.d.dtype == TEGROUP_DTYPE_F32;
    }

    /* ---- results go through slabs of 64 rows of 128 bytes: number n of a tile through slab n % USED ---- */

    __device__ __forceinline__ uint32_t slab(int group, int which) const {
        return slabs + (uint32_t)((group * SHAPE::SLABS + which) * TEGROUP_IMPL_SM90_SLAB);
    }
    template <bool WIDE> __device__ __forceinline__ bool adds_in_l2(int number) const {
        return SHAPE::template results<WIDE>::in_l2(number) && call.adds_in_l2;
    }
    /* Whether D's columns end inside the slab at `line` and `col` of the tile, which has `cols` of them, and not at a
     * multiple of 16 bytes. TMA stores no less than 16 bytes, and so would write past that end. */
    __device__ __forceinline__ bool ends(const tegroup_impl_sm90_item &item, int32_t line, int32_t col,
                                         int32_t cols) const {
        const int32_t left = SHAPE::FLIPS
                                 ? item.lines - line
                                 : (int32_t)tegroup_impl_min(item.cols, call.call.desc.d.shape.cols - item.j0) - col;
        return left > 0 && left < cols && left % (cols / 8) != 0;
    }
    /* The address of a piece of an activation's set. A warpgroup counts its sets from its first tile on. */
    __device__ __forceinline__ uint32_t piece(int group, uint32_t set, int piece) const {
        return slabs
               + (uint32_t)(group * SHAPE::SLABS * TEGROUP_IMPL_SM90_SLAB
                            + ((int)(set % SHAPE::SETS) * 3 + piece) * SHAPE::PIECE);
    }
};
#endif
