/* ---- Quantise: strips of rows ---- */

#pragma once
#include "base/version.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "formats/scale_layout.h"
#include "core/scale_grid.h"
#include "core/quantize_copies.h"
#include "cuda/call.h"
#include "cuda/quantize_values.h"
#include "cuda/quantize_walk.h"
#include "layer/quantize_tile_cuda.h"

/* A warp's part of a strip: one row, of which a thread has eight pieces of eight values, those of the warp beside each
 * other. They are staged in shared memory, each thread's by itself. Warps share nothing, and wait for none. */
template <int DTYPE> struct tegroup_impl_quantize_strip {
    typedef tegroup_impl_eight<DTYPE> eight;
    enum { PIECES = 8, COLS = 1 << TEGROUP_IMPL_QUANTIZE_STRIP, BYTES = eight::vectors::bytes };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    const int32_t warp, lane, shift; /* shift: logarithm of the lanes that share a block */
    char *const memory;              /* the thread's */
    int64_t row, col0;
    int32_t cols;

    __device__ tegroup_impl_quantize_strip(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s,
                                           char *m)
        : call(c), shared(s), warp((int32_t)threadIdx.x / 32), lane((int32_t)threadIdx.x % 32),
          shift(c.inner_shift - 3), memory(m + (warp * COLS + lane * 8) * BYTES), row(0), col0(0), cols(0) {}

    __device__ __forceinline__ int32_t at(int32_t k) const { return (k * 32 + lane) * 8; }
    __device__ __forceinline__ char *staged(int32_t k) const { return memory + k * 256 * BYTES; }
    __device__ __forceinline__ int64_t of_group() const { return shared.part * shared.part_rows + row; }
    /* The place in the tables of a piece's block: blocks of a row lie in their order. */
    __device__ __forceinline__ int32_t entry(int32_t k) const {
        return warp * (COLS / 16) + ((k * 32 + lane) >> shift);
    }

    /* False: the warp has no row. */
    __device__ __forceinline__ bool load(int64_t row0, int64_t at_col) {
        row = row0 + warp, col0 = at_col;
        cols = (int32_t)tegroup_impl_min(COLS, shared.cols - col0);
        if (row >= shared.part_rows) return false;
        const char *from = shared.in.base + (shared.in.first + of_group() * shared.in.ld + col0 + at(0)) * BYTES;
        if (tegroup_impl_quantize_direct(call, shared) && (cols & 7) == 0) {
#pragma unroll
            for (int32_t k = 0; k < PIECES; k++)
                tegroup_impl_quantize_stage<DTYPE>(at(k) >= cols, from + k * 256 * BYTES, staged(k));
        } else {
#pragma unroll 1
            for (int32_t k = 0; k < PIECES; k++)
                tegroup_impl_quantize_stage_each<DTYPE>(call, shared, of_group(), col0 + at(k),
                                                        max(0, min(8, cols - at(k))), staged(k));
        }
        tegroup_impl_cp_commit();
        tegroup_impl_cp_wait<0>();
        return true;
    }

    /* The blocks' amax into the table; returns the thread's. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t collect(bool table) const {
        typedef tegroup_impl_magnitudes<DTYPE, SHOWS> magnitudes;
        uint32_t most = 0;
#pragma unroll 1
        for (int32_t k = 0; k < PIECES; k += 2) {
            eight x[2];
            uint32_t pair[2];
            x[0].load_vectors(staged(k));
            x[1].load_vectors(staged(k + 1));
            magnitudes::of_pair(x[0], x[1], pair);
            most = max(most, max(magnitudes::at(pair, 0), magnitudes::at(pair, 1)));
            if (!table) continue;
            magnitudes::of_lanes(shift, pair);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if ((lane & ((1 << shift) - 1)) == 0) shared.amax[0][entry(k + i)] = magnitudes::at(pair, i);
        }
        return most;
    }

    /* From that table to that of factors, and to where scales are stored. */
    __device__ __forceinline__ void scales() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const int32_t first = warp * (COLS / 16);
        const int64_t inner = col0 >> call.inner_shift;
        __syncwarp();
        for (int32_t e = lane; e < COLS >> call.inner_shift && inner + e < copy.grid.inner_count; e += 32) {
            const uint32_t bits = tegroup_impl_table_scale(call, shared, TEGROUP_IMPL_ROWWISE, first + e,
                                                           __uint_as_float(shared.amax[0][first + e]));
            if (copy.data)
                tegroup_impl_store_code(call.scale_dtype, copy.scales,
                                        tegroup_impl_scale_of_block(&copy.grid, shared.part, row, inner + e), bits);
        }
        __syncwarp();
    }

    template <int BITS> __device__ __forceinline__ void encode(bool whole) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const int64_t first = tegroup_impl_element_of(&copy, of_group(), col0);
        const bool aligned = ((uintptr_t)(copy.data + first * BITS / 8) & (BITS - 1)) == 0;
        if (!copy.data) return;
#pragma unroll 1
        for (int32_t k = 0; k < PIECES; k++) {
            const int32_t n = cols - at(k);
            eight x;
            float y[8];
            if (n <= 0) break;
            const float scale = shared.factor[0][whole ? 0 : entry(k)],
                        factor[8] = {scale, scale, scale, scale, scale, scale, scale, scale};
            x.load_vectors(staged(k));
            x.unpack(y);
            tegroup_impl_quantize_store<BITS>(call, y, factor, copy.data, first + at(k), n, aligned && n >= 8);
        }
        __syncwarp(); /* the factors have been read */
    }

    /* Zeros for what pads the scales behind a part's last rows, and behind its last columns: by all threads. */
    __device__ __forceinline__ void pad(int64_t row0) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const tegroup_impl_scale_grid &grid = copy.grid;
        const int64_t inner0 = col0 >> call.inner_shift, rows = shared.part_rows - row0,
                      blocks = (shared.cols - col0 + (1 << call.inner_shift) - 1) >> call.inner_shift,
                      outers =
                          rows <= TEGROUP_IMPL_QUANTIZE_ROWS ? grid.outer_extent - row0 : TEGROUP_IMPL_QUANTIZE_ROWS,
                      inners = shared.cols - col0 <= COLS ? grid.inner_extent - inner0 : COLS >> call.inner_shift;
        if (!copy.data || (outers <= rows && inners <= blocks)) return;
#pragma unroll 1
        for (int64_t o = warp; o < outers; o += TEGROUP_IMPL_QUANTIZE_THREADS / 32)
#pragma unroll 1
            for (int64_t i = (o < rows ? blocks : 0) + lane; i < inners; i += 32)
                tegroup_impl_store_code(call.scale_dtype, copy.scales,
                                        tegroup_impl_scale_of_block(&grid, shared.part, row0 + o, inner0 + i), 0);
    }
};

/* The rowwise copy where no block spans rows, and no kernel in registers makes it, or amax alone. A work is a strip of
 * eight rows. */
template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_QUANTIZE_RESIDENT(DTYPE))
    tegroup_impl_quantize_strip_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<true> walk(call, shared);
    tegroup_impl_quantize_strip<DTYPE> strip(call, shared, tegroup_impl_quantize_memory());
    const bool whole = tegroup_impl_scaled_as_one(&call.facts), table = !whole && call.copies;
    uint32_t most = 0;
    int32_t g = -1;
    tegroup_impl_quantize_store_groups(call, walk.fits);
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t row0, col0;
        if (work >= walk.part_end) {
            if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
            most = 0;
            walk.meet(work);
            g = shared.g;
        }
        walk.place(work, &row0, &col0);
        if (strip.load(row0, col0)) {
            if (table || call.raises)
                most = max(most, call.desc.rule.nan_shows ? strip.template collect<true>(table)
                                                          : strip.template collect<false>(table));
            if (table) strip.scales();
            if (!call.copies) continue;
            if (tegroup_impl_bits(call.desc.output.dtype) == 8) strip.template encode<8>(whole);
            else strip.template encode<4>(whole);
        }
        if (table) strip.pad(row0);
    }
    if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
}
