/* ---- Hopper GEMM: results from shared memory ---- */

#pragma once
#include "base/version.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "core/field_names.h"
#include "cuda/hopper.h"
#include "cuda/sm90_tiles.h"

#if TEGROUP_IMPL_HOPPER
template <typename SHAPE> struct tegroup_impl_sm90_storer : tegroup_impl_sm90_loader<SHAPE> {
    typedef tegroup_impl_sm90_loader<SHAPE> base;
    using base::adds_in_l2;
    using base::anywhere;
    using base::at;
    using base::call;
    using base::ends;
    using base::give;
    using base::is_wide;
    using base::line_of;
    using base::piece;
    using base::rest;
    using base::slab;
    using base::slabs;
    using base::take;

    __device__ __forceinline__ tegroup_impl_sm90_storer(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : base(c, memory) {}

    /* Two threads store the warpgroups' results from the slabs, and load C into them: each those of every second. */
    __device__ __forceinline__ void store(int first) const {
        uint32_t rounds[(SHAPE::MULTIPLIERS + 1) / 2] = {0};
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *take(number);
            give(number);
            if (item.group < 0) break;
#pragma unroll
            for (int i = 0; i < (SHAPE::MULTIPLIERS + 1) / 2; i++) {
                const int group = first + 2 * i;
                if ((SHAPE::TURNS && (number & 1) != group) || group >= SHAPE::MULTIPLIERS
                    || item.lines <= line_of(group))
                    continue;
                if (SHAPE::ACTIVATES) store_sets(group, item, &rounds[i]);
                else if (is_wide()) store_tile<true>(group, item, &rounds[i]);
                else store_tile<false>(group, item, &rounds[i]);
            }
        }
        tegroup_impl_tma_store_wait<0>(); /* The block must not end while TMA reads its shared memory. */
    }
    /* Of a tile without steps: gives the other warpgroup its turn when the first result is written, for all warps.
     * Their lanes all have seen their own turn come then (see the multiplier's yield). */
    __device__ __forceinline__ void yield_for(int group, const tegroup_impl_sm90_item &item, int result) const {
        if (SHAPE::STORER_YIELDS && item.k <= 0 && result == 0)
            for (int i = 0; i < 4; i++) tegroup_impl_barrier_arrive(at(&rest->turn[group ^ 1]));
    }
    template <bool WIDE>
    __device__ __forceinline__ void store_tile(int group, const tegroup_impl_sm90_item &item, uint32_t *rounds) const {
        typedef typename SHAPE::template results<WIDE> results;
        tegroup_impl_tma_store_wait<0>();
        for (int i = 0; i < results::USED; i++) prepare<WIDE>(group, item, i);
#pragma unroll 1
        for (int i = 0; i < results::COUNT; i++) {
            int32_t x, y, z;
            tegroup_impl_barrier_wait(at(&rest->written[group][i % results::USED]), (*rounds + i / results::USED) & 1);
            yield_for(group, item, i);
            if (place<WIDE>(group, item, i, TEGROUP_IMPL_D, &x, &y, &z)
                && !ends(item, line_of(group) + i / results::ACROSS * 64, i % results::ACROSS * results::COLS,
                         results::COLS))
                tegroup_impl_tma_store(&call.map[TEGROUP_IMPL_D], slab(group, i % results::USED), x, y, z,
                                       anywhere(TEGROUP_IMPL_D), item.origin[TEGROUP_IMPL_D], adds_in_l2<WIDE>(i),
                                       SHAPE::OF_GROUPS);
            tegroup_impl_tma_store_commit(); /* one bulk group for each slab, even if empty: waits count slabs */
            if (i == 0 || i - 1 + results::USED >= results::COUNT) continue;
            tegroup_impl_tma_store_wait<1>(); /* TMA has read the slab before this one. */
            prepare<WIDE>(group, item, i - 1 + results::USED);
        }
        *rounds += results::COUNT / results::USED;
    }
    /* Makes the slab of result `number` ready: loads C into it if C is added here, or only says that it is free. */
    template <bool WIDE>
    __device__ __forceinline__ void prepare(int group, const tegroup_impl_sm90_item &item, int number) const {
        typedef typename SHAPE::template results<WIDE> results;
        const uint32_t ready = at(&rest->ready[group][number % results::USED]);
        int32_t x, y, z;
        if (item.beta == 0 || adds_in_l2<WIDE>(number)
            || !place<WIDE>(group, item, number, TEGROUP_IMPL_C, &x, &y, &z)) {
            tegroup_impl_barrier_arrive(ready);
            return;
        }
        tegroup_impl_barrier_expect(ready, TEGROUP_IMPL_SM90_SLAB);
        tegroup_impl_tma_load(slab(group, number % results::USED), &call.map[TEGROUP_IMPL_C], ready, x, y, z,
                              anywhere(TEGROUP_IMPL_C), item.origin[TEGROUP_IMPL_C]);
    }
    /* The TMA coordinates, in D or C, of slab `number` of a tile. Returns false if it has no lines or no columns. */
    template <bool WIDE>
    __device__ __forceinline__ bool place(int group, const tegroup_impl_sm90_item &item, int number,
                                          tegroup_impl_operand operand, int32_t *x, int32_t *y, int32_t *z) const {
        typedef typename SHAPE::template results<WIDE> results;
        const int line = line_of(group) + number / results::ACROSS * 64;
        const int32_t i = item.i0 + line, v = (int32_t)tegroup_impl_min(item.lines - line, TEGROUP_IMPL_SM90_LINES);
        const int32_t col = number % results::ACROSS * results::COLS;
        if (SHAPE::FITS) {
            const int32_t rows = (int32_t)tegroup_impl_min(item.rows - col, TEGROUP_IMPL_SM90_LINES);
            *x = i;
            place_rows(item, operand, item.j0 + col, rows, y, z);
            return v > 0 && rows > 0;
        }
        if (SHAPE::FLIPS) { /* A weight gradient is never ragged. */
            *x = i;
            *y = item.j0 + col;
            *z = call.listed[operand] ? 0 : item.group;
            return v > 0 && col < item.cols;
        }
        *x = item.j0 + col;
        place_rows(item, operand, i, v, y, z);
        return v > 0 && col < item.cols && *x < call.call.desc.d.shape.cols;
    }
    /* The TMA coordinates of a box of `rows` rows of the group, from `row` on. */
    __device__ __forceinline__ void place_rows(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                               int32_t row, int32_t rows, int32_t *y, int32_t *z) const {
        *y = call.ragged[operand] ? TEGROUP_IMPL_SM90_LINES - rows : row;
        *z = call.ragged[operand] ? item.first_row[operand] + row + rows : call.listed[operand] ? 0 : item.group;
    }
    /* Stores the sets of a tile. Rows of an activation are multiples of 16 bytes, so TMA clips them where they end. */
    __device__ __forceinline__ void store_sets(int group, const tegroup_impl_sm90_item &item, uint32_t *done) const {
        const bool halves = !call.epilogue.activation.interleaved,
                   keeps_d = SHAPE::OP == TEGROUP_OP_DGRAD || call.epilogue.keeps_d,
                   keeps_activated = SHAPE::OP == TEGROUP_OP_FORWARD || call.epilogue.activates_again;
        const int sets = SHAPE::PARTS * (item.cols / SHAPE::SET_COLS);
        tegroup_impl_tma_store_wait<0>();
        for (int i = 0; i < SHAPE::SETS; i++) prepare_set(group, item, *done, i);
#pragma unroll 1
        for (int i = 0; i < sets; i++) {
            const uint32_t set = *done + i;
            int32_t x, y, z;
            tegroup_impl_barrier_wait(at(&rest->written[group][set % SHAPE::SETS]), set / SHAPE::SETS & 1);
            yield_for(group, item, i);
            if (place_set(group, item, i, &x, &y, &z)) {
                if (keeps_d) {
                    tegroup_impl_tma_store(&call.map[TEGROUP_IMPL_D], piece(group, set, 0), halves ? x : 2 * x, y, z,
                                           true, item.origin[TEGROUP_IMPL_D]);
                    tegroup_impl_tma_store(halves ? &call.ups : &call.map[TEGROUP_IMPL_D], piece(group, set, 1),
                                           halves ? x : 2 * x + 32, y, z, true, item.origin[TEGROUP_IMPL_D]);
                }
                if (keeps_activated)
                    tegroup_impl_tma_store(&call.activated, piece(group, set, 2), x, y, z, true, call.activated_shift);
            }
            tegroup_impl_tma_store_commit();
            if (i + SHAPE::SETS >= sets) continue;
            tegroup_impl_tma_store_wait<0>(); /* The warpgroup works on the next set meanwhile. */
            prepare_set(group, item, *done, i + SHAPE::SETS);
        }
        *done += (uint32_t)sets;
    }
    /* Makes set `i` of a tile ready, before which there were `done` sets; loads a gradient's gates and ups into it. */
    __device__ __forceinline__ void prepare_set(int group, const tegroup_impl_sm90_item &item, uint32_t done,
                                                int i) const {
        const uint32_t set = done + i, ready = at(&rest->ready[group][set % SHAPE::SETS]);
        const bool halves = !call.epilogue.activation.interleaved;
        int32_t x, y, z;
        if (SHAPE::OP == TEGROUP_OP_FORWARD || !place_set(group, item, i, &x, &y, &z)) {
            tegroup_impl_barrier_arrive(ready);
            return;
        }
        tegroup_impl_barrier_expect(ready, 2 * SHAPE::PIECE);
        tegroup_impl_tma_load(piece(group, set, 0), &call.map[TEGROUP_IMPL_C], ready, halves ? x : 2 * x, y, z, true,
                              item.origin[TEGROUP_IMPL_C]);
        tegroup_impl_tma_load(piece(group, set, 1), halves ? &call.c_ups : &call.map[TEGROUP_IMPL_C], ready,
                              halves ? x : 2 * x + 32, y, z, true, item.origin[TEGROUP_IMPL_C]);
    }
    /* The TMA coordinates of set `i` of a tile, where x counts columns of the activation. Returns false if it has no
     * lines. */
    __device__ __forceinline__ bool place_set(int group, const tegroup_impl_sm90_item &item, int i, int32_t *x,
                                              int32_t *y, int32_t *z) const {
        const int across = item.cols / SHAPE::SET_COLS, line = line_of(group) + i / across * 64;
        const int32_t v = (int32_t)tegroup_impl_min(item.lines - line, TEGROUP_IMPL_SM90_LINES);
        *x = item.j0 / (SHAPE::SET_COLS / 32) + i % across * 32;
        *y = TEGROUP_IMPL_SM90_LINES - v;
        *z = item.first_row[TEGROUP_IMPL_D] + item.i0 + line + v;
        return v > 0;
    }
};
#endif
