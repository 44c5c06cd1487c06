/* ---- Hopper GEMM: operands to shared memory ---- */

#pragma once
#include "base/version.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/product.h"
#include "cuda/call.h"
#include "cuda/hopper.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_pace.h"

#if TEGROUP_IMPL_HOPPER
template <typename SHAPE> struct tegroup_impl_sm90_loader : tegroup_impl_sm90_block<SHAPE> {
    typedef tegroup_impl_sm90_block<SHAPE> base;
    using base::anywhere;
    using base::at;
    using base::call;
    using base::give;
    using base::lane;
    using base::narrow;
    using base::rest;
    using base::ring;
    using base::STAGES;
    using base::take;

    __device__ __forceinline__ tegroup_impl_sm90_loader(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : base(c, memory) {}

    /* One thread loads the stages of every tile by TMA. */
    __device__ __forceinline__ void load() const {
        tegroup_impl_sm90_pace pace(SHAPE::PACES && may_drift());
        uint32_t step = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *take(number);
            give(number);
            if (item.group < 0) break;
            for (int32_t k0 = 0; k0 < item.k; k0 += SHAPE::AT_ONCE * SHAPE::K) {
                if (SHAPE::PACES) pace.keep(step);
                const int32_t left = (item.k - k0 + SHAPE::K - 1) / SHAPE::K,
                              steps = left < SHAPE::AT_ONCE ? left : SHAPE::AT_ONCE;
#pragma unroll
                for (int i = 0; i < SHAPE::AT_ONCE; i++) {
                    if (i == steps) break;
                    const uint32_t stage = (step + i) % STAGES, full = at(&rest->full[stage]);
                    tegroup_impl_barrier_wait(at(&rest->empty[stage]), ((step + i) / STAGES & 1) ^ 1);
                    tegroup_impl_barrier_expect(full, a_bytes(item) + b_bytes(item));
                    load_a(item, k0 + i * SHAPE::K, ring + stage * SHAPE::STAGE_BYTES, full);
                }
#pragma unroll
                for (int i = 0; i < SHAPE::AT_ONCE; i++) {
                    if (i == steps) break;
                    const uint32_t stage = (step + i) % STAGES;
                    load_b(item, k0 + i * SHAPE::K, ring + stage * SHAPE::STAGE_BYTES + SHAPE::A_BYTES,
                           at(&rest->full[stage]));
                }
                step += (uint32_t)steps;
            }
        }
        if (SHAPE::PACES) pace.leave();
    }
    /* Whether blocks may drift apart: some group ends within a tile, and sums are long. */
    __device__ __forceinline__ bool may_drift() const {
        const tegroup_tensor &a = call.call.desc.a;
        const tegroup_snapshot_header *header = call.call.views[TEGROUP_IMPL_A].header;
        const uint64_t rows = (uint64_t)(header ? header->rows_max : a.shape.rows);
        return a.shape.cols >= TEGROUP_IMPL_SM90_DRIFTING_K
               && (rows % SHAPE::TILE_M != 0
                   || (header && rows * (uint64_t)a.shape.groups != (uint64_t)header->rows_total));
    }
    /* Where rows are gathered, one warp loads: each lane copies 16-byte chunks of the rows, and an operand that is not
     * gathered comes by TMA. The warp waits for the copies of a step, and announces them, LAG steps later. That must
     * not deadlock. Multipliers release a stage when the next one is full, so LAG is at most STAGES - 2. At a tile
     * without steps everything is announced: multipliers that still wait take no further tile, and the scheduler is
     * only ITEMS tiles ahead of them. */
    __device__ __forceinline__ void load_gathered() const {
        constexpr uint32_t LAG = STAGES > 3 ? 2 : 1;
        const tegroup_gemm_desc &desc = call.call.desc;
        const bool wgrad = SHAPE::OP == TEGROUP_OP_WGRAD, a = call.gathers_a, b = wgrad && call.gathers_b;
        uint32_t step = 0, said = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *take(number);
            give(number);
            if (item.k <= 0 || item.group < 0) {
                tegroup_impl_cp_wait<0>();
                for (; said < step; said++) arrived(said);
            }
            if (item.group < 0) break;
            if (!wgrad)
                pick(desc.gather_a, item.first_row[TEGROUP_IMPL_A] + item.i0, item.lines, SHAPE::TILE_M,
                     rest->picked_a);
            for (int32_t k0 = 0; k0 < item.k; k0 += SHAPE::K, step++) {
                const uint32_t stage = step % STAGES, full = at(&rest->full[stage]),
                               to = ring + stage * SHAPE::STAGE_BYTES;
                if (wgrad && a)
                    pick(desc.gather_a, item.first_row[TEGROUP_IMPL_A] + k0, item.k - k0, TEGROUP_IMPL_SM90_LINES,
                         rest->picked_a);
                if (b)
                    pick(desc.gather_b, item.first_row[TEGROUP_IMPL_B] + k0, item.k - k0, TEGROUP_IMPL_SM90_LINES,
                         rest->picked_b);
                tegroup_impl_barrier_wait(at(&rest->empty[stage]), (step / STAGES & 1) ^ 1);
                if (lane() == 0) {
                    tegroup_impl_barrier_expect(full, (a ? 0 : SHAPE::A_BYTES) + (b ? 0 : b_bytes(item)));
                    if (!a) load_a(item, k0, to, full);
                    if (!b) load_b(item, k0, to + SHAPE::A_BYTES, full);
                }
                if (!wgrad) copy_rows(desc.a, rest->picked_a, k0, SHAPE::TILE_M, to);
                if (wgrad && a)
                    for (int i = 0; i < SHAPE::TILE_M; i += 64)
                        copy_rows(desc.a, rest->picked_a, item.i0 + i, TEGROUP_IMPL_SM90_LINES, to + i * 128);
                if (b)
                    for (int j = 0; j < SHAPE::COLS; j += 64)
                        copy_rows(desc.b, rest->picked_b, item.j0 + j, TEGROUP_IMPL_SM90_LINES,
                                  to + SHAPE::A_BYTES + j * 128);
                tegroup_impl_cp_commit();
                tegroup_impl_cp_wait<LAG>();
                for (; said + LAG <= step; said++) arrived(said);
            }
        }
    }
    /* Announces that wgmma can read what this lane copied for a step. */
    __device__ __forceinline__ void arrived(uint32_t step) const {
        tegroup_impl_async_fence();
        tegroup_impl_barrier_arrive(at(&rest->full[step % STAGES]));
    }
    /* Looks up which rows `count` gathered rows are, of which the first `there` exist. */
    static __device__ __forceinline__ void pick(const tegroup_gather &gather, int32_t first, int32_t there, int count,
                                                int32_t *picked) {
        __syncwarp(); /* Every lane has read the previous row numbers. */
        for (int i = lane(); i < count; i += 32)
            picked[i] = i < there ? (int32_t)tegroup_impl_gathered(&gather, (int64_t)first + i) : -1;
        __syncwarp();
    }
    /* Copies 64 columns of gathered rows, swizzled as TMA would. A lane has the same chunk of every fourth row. It
     * reads eight row numbers before it copies their chunks, to hide the latency of the reads. */
    __device__ __forceinline__ void copy_rows(const tegroup_tensor &t, const int32_t *picked, int32_t col, int count,
                                              uint32_t to) const {
        const int chunk = lane() % 8, first = lane() / 8;
        const uint64_t row_bytes = (uint64_t)tegroup_impl_ld(&t) * 2;
        const int64_t left = (t.shape.cols - col - chunk * 8) * 2;
        const char *from = (const char *)t.data + (left > 0 ? (int64_t)(col + chunk * 8) * 2 : 0);
        const int32_t none = left > 0 ? 0 : -1;
        to += (uint32_t)(first * 128 + (chunk ^ first) * 16);
        if (left > 0 && left < 16) {
#pragma unroll 1
            for (int i = first, r = 0; i < count; i += 4, r++)
                tegroup_impl_load_slowly<1>((to + (uint32_t)(r * 512)) ^ (uint32_t)(r % 2 * 64),
                                            from + (uint64_t)tegroup_impl_max(picked[i], 0) * row_bytes,
                                            picked[i] < 0 ? 0 : (int32_t)left);
            return;
        }
#pragma unroll 1
        for (int i = first; i < count; i += 32, to += 32 * 128) {
            int32_t row[8];
#pragma unroll
            for (int r = 0; r < 8; r++) row[r] = picked[i + 4 * r] | none;
#pragma unroll
            for (int r = 0; r < 8; r++)
                tegroup_impl_cp_async_unless(row[r] < 0, (to + (uint32_t)(r * 512)) ^ (uint32_t)(r % 2 * 64),
                                             from + (uint64_t)(uint32_t)(row[r] < 0 ? 0 : row[r]) * row_bytes);
        }
    }
    __device__ __forceinline__ void load_a(const tegroup_impl_sm90_item &item, int32_t k0, uint32_t to,
                                           uint32_t full) const {
        if (has_none(item)) return;
        if (SHAPE::OF_GROUPS) load_of_group(item, TEGROUP_IMPL_A, to, full, k0, item.i0);
        else if (is_short(item))
            load_box(item, TEGROUP_IMPL_A, &call.smaller[0], call.further[0], to, full, k0, item.i0, item.lines,
                     SHAPE::SHORT);
        else if (SHAPE::FITS && !SHAPE::A_LINES)
            load_weights(item, TEGROUP_IMPL_B, &call.map[TEGROUP_IMPL_B], to, full, k0, item.i0);
        else if (!SHAPE::A_LINES) load_rows(item, TEGROUP_IMPL_A, to, full, k0, item.i0, item.lines, SHAPE::TILE_M);
        else
#pragma unroll
            for (int i = 0; i < SHAPE::TILE_M; i += 64)
                load_rows(item, SHAPE::FIRST, to + i * 128, full, item.i0 + i, k0, item.k - k0,
                          TEGROUP_IMPL_SM90_LINES);
    }
    /* The second block of a pair may be behind D's columns. */
    static __device__ __forceinline__ bool has_none(const tegroup_impl_sm90_item &item) {
        return SHAPE::PAIRS && item.lines <= 0;
    }
    static __device__ __forceinline__ bool is_short(const tegroup_impl_sm90_item &item) {
        return SHAPE::SHORT > 0 && item.lines <= SHAPE::SHORT;
    }
    /* Bytes of a stage that a tile loads. */
    __device__ __forceinline__ uint32_t a_bytes(const tegroup_impl_sm90_item &item) const {
        return has_none(item) ? 0 : is_short(item) ? SHAPE::SHORT * TEGROUP_IMPL_SM90_LINE : SHAPE::A_BYTES;
    }
    /* Whether gates and ups are two halves of a forward product's D. A tile then has gates, followed by their ups. */
    __device__ __forceinline__ bool halves() const {
        return SHAPE::OP == TEGROUP_OP_FORWARD && SHAPE::ACTIVATES && !call.epilogue.activation.interleaved;
    }
    __device__ __forceinline__ uint32_t b_bytes(const tegroup_impl_sm90_item &item) const {
        return (SHAPE::FITS ? item.cols : narrow(item) ? SHAPE::NARROW : SHAPE::COLS) * TEGROUP_IMPL_SM90_LINE;
    }
    __device__ __forceinline__ void load_b(const tegroup_impl_sm90_item &item, int32_t k0, uint32_t to,
                                           uint32_t full) const {
        if (SHAPE::OF_GROUPS) load_of_group(item, TEGROUP_IMPL_B, to, full, k0, item.j0);
        else if (SHAPE::FITS) {
            /* One box of rows: several small ones take longer, and so does one with more rows than exist. */
            const int32_t smaller = (SHAPE::COLS - item.cols) / SHAPE::FIT - 1,
                          first = (int32_t)blockIdx.x % SHAPE::BLOCKS * (item.cols / SHAPE::BLOCKS), /* of this block */
                row = item.j0 + first, rows = item.rows - first;
            to += (uint32_t)(first * 128);
            if (smaller < 0) load_rows(item, TEGROUP_IMPL_A, to, full, k0, row, rows, SHAPE::COLS / SHAPE::BLOCKS);
            else
                load_box(item, TEGROUP_IMPL_A, &call.smaller[smaller], call.further[smaller], to, full, k0, row, rows,
                         item.cols / SHAPE::BLOCKS);
        } else if (SHAPE::OP == TEGROUP_OP_FORWARD) {
            const CUtensorMap *map = narrow(item) ? &call.smaller[0] : &call.map[TEGROUP_IMPL_B];
            const bool two = halves();
            load_weights(item, TEGROUP_IMPL_B, map, to, full, k0, two ? item.j0 / 2 : item.j0);
            if (two && call.up.apart)
                load_weights(item, TEGROUP_IMPL_SM90_UPS,
                             narrow(item) ? &call.smaller[1] : &call.map[TEGROUP_IMPL_SM90_UPS],
                             to + item.cols / 2 * 128, full, k0, item.j0 / 2);
            else if (two)
                load_weights(item, TEGROUP_IMPL_B, map, to + item.cols / 2 * 128, full, k0,
                             item.j0 / 2 + (int32_t)call.epilogue.activation.output.cols);
        } else
#pragma unroll
            for (int j = 0; j < SHAPE::COLS; j += 64)
                if (j < SHAPE::NARROW || !narrow(item))
                    load_rows(item, SHAPE::SECOND, to + j * 128, full, item.j0 + j, k0, item.k - k0,
                              TEGROUP_IMPL_SM90_LINES);
    }
    /* Loads a box of the weights of a forward product's group, from `row` on. */
    __device__ __forceinline__ void load_weights(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                                 const CUtensorMap *map, uint32_t to, uint32_t full, int32_t k0,
                                                 int32_t row) const {
        tegroup_impl_tma_load(to, map, full, k0, row, call.listed[operand] ? 0 : item.group, anywhere(operand),
                              item.origin[operand]);
    }
    /* Loads a box by the group's own map. */
    __device__ __forceinline__ void load_of_group(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                                  uint32_t to, uint32_t full, int32_t k0, int32_t row) const {
        const CUtensorMap *map = call.of_groups + 2 * item.group + operand;
        if (k0 == 0) tegroup_impl_tma_map_acquire(map);
        tegroup_impl_tma_load(to, map, full, k0, row, 0, false, 0);
    }
    /* Loads 64 columns of a box of the group's rows, from `row` on, of which `rows` exist. */
    __device__ __forceinline__ void load_rows(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                              uint32_t to, uint32_t full, int32_t col, int32_t row, int32_t rows,
                                              int32_t box) const {
        load_box(item, operand, &call.map[operand], 0, to, full, col, row, rows, box);
    }
    /* The same by another map, whose shift is `further` bytes above the operand's. */
    __device__ __forceinline__ void load_box(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                             const CUtensorMap *map, uint64_t further, uint32_t to, uint32_t full,
                                             int32_t col, int32_t row, int32_t rows, int32_t box) const {
        int32_t y = row, z = call.listed[operand] ? 0 : item.group;
        if (call.ragged[operand]) {
            const int32_t v = rows < box ? rows : box;
            y = box - v;
            z = item.first_row[operand] + row + v;
        }
        if (SHAPE::PAIRS && operand == TEGROUP_IMPL_A)
            tegroup_impl_tma_load_twice(to, map, full, col, y, z, anywhere(operand), item.origin[operand] + further);
        else tegroup_impl_tma_load(to, map, full, col, y, z, anywhere(operand), item.origin[operand] + further);
    }
};
#endif
