/* ---- Quantise: whole rows ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/scale_grid.h"
#include "layer/quantize.h"
#include "cuda/launch.h"
#include "layer/quantize_values_cuda.h"
#include "layer/quantize_walk_cuda.h"
#include "layer/quantize_tile_cuda.h"

/* A thread's part of some rows that have a scale each, which the block holds in registers: eight pieces of eight
 * values, 1 << shift of them of one row, and those of longer rows one stretch after another. */
template <int DTYPE> struct tegroup_impl_quantize_rows {
    enum { THREADS = TEGROUP_IMPL_QUANTIZE_THREADS, STRETCH = 8 * 8 * THREADS };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    int32_t shift, rows, thread, left; /* rows that there are; columns from the thread's first on */
    int64_t row0, col0;
    tegroup_impl_eight<DTYPE> x[8];

    __device__ tegroup_impl_quantize_rows(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s)
        : call(c), shared(s), shift(0), rows(0), thread(0), left(0), row0(0), col0(0) {}

    __device__ __forceinline__ int32_t row(int k) const { return k >> shift; }
    __device__ __forceinline__ int32_t across(int k) const { /* columns beyond the thread's first */
        return (k & ((1 << shift) - 1)) * (8 * THREADS);
    }
    __device__ __forceinline__ int64_t col(int k) const { return col0 + 8 * thread + across(k); }
    __device__ __forceinline__ int32_t valid(int k) const { return row(k) < rows ? left - across(k) : 0; }
    __device__ __forceinline__ int64_t first() const { return shared.part * shared.part_rows + row0; }

    __device__ __forceinline__ void load(int64_t at_col) {
        const int64_t bytes = tegroup_impl_eight<DTYPE>::vectors::bytes;
        const bool vector = call.vectors && ((uintptr_t)shared.in.base & 15) == 0;
        col0 = at_col;
        thread = tegroup_impl_thread();
        left = (int32_t)tegroup_impl_min(shared.cols - col0, STRETCH) - 8 * thread;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int32_t n = valid(k);
            x[k].clear();
            if (call.plain && vector && n >= 8) {
                x[k].load_vectors(shared.in.base
                                  + (shared.in.first + (first() + row(k)) * shared.in.ld + col(k)) * bytes);
            } else if (n > 0) {
                tegroup_impl_eight<DTYPE> slow;
                tegroup_impl_quantize_row_of<DTYPE>(call, shared, first() + row(k), col(k), min(8, n), vector, &slow);
                x[k] = slow;
            }
        }
    }

    /* The rows' amax into a table, [row][warp]; returns the thread's. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t collect(bool is_first) {
        const int32_t warps = THREADS / 32, warp = (int32_t)threadIdx.x / 32;
        typedef tegroup_impl_magnitudes<DTYPE, SHOWS> magnitudes;
        uint32_t of_row[magnitudes::words], of_piece[8];
        magnitudes::of_rows(x, of_row);
        const uint32_t most = magnitudes::largest(of_row);
#pragma unroll
        for (int k = 0; k < 8; k++) of_piece[k] = magnitudes::at(of_row, k);
#pragma unroll
        for (int bit = 1; bit < 8; bit *= 2)
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (!(k & bit) && bit < 1 << shift) of_piece[k] = max(of_piece[k], of_piece[k | bit]);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            uint32_t *const at = shared.amax[0] + row(k) * warps + warp;
            if (k & ((1 << shift) - 1)) continue;
            for (int step = 16; step > 0; step /= 2)
                of_piece[k] = max(of_piece[k], __shfl_xor_sync(0xffffffffu, of_piece[k], step));
            if (threadIdx.x % 32 == 0) *at = is_first ? of_piece[k] : max(*at, of_piece[k]);
        }
        return most;
    }

    /* From that table to that of factors, and to where scales are stored; a thread has a row. */
    __device__ __forceinline__ void scales() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const int32_t warps = THREADS / 32, r = (int32_t)threadIdx.x;
        uint32_t most = 0, bits;
        if (r >= rows) return;
        for (int32_t w = 0; w < warps; w++) most = max(most, shared.amax[0][r * warps + w]);
        bits = tegroup_impl_table_scale(call, shared, TEGROUP_IMPL_ROWWISE, r, __uint_as_float(most));
        if (copy.data)
            tegroup_impl_store_code(call.scale_dtype, copy.scales,
                                    tegroup_impl_scale_of_block(&copy.grid, shared.part, row0 + r, 0), bits);
    }

    __device__ __forceinline__ void encode() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const tegroup_dtype dtype = call.desc.output.dtype;
        if (!copy.data) return;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int32_t n = valid(k);
            const int64_t at = tegroup_impl_element_of(&copy, first() + row(k), col(k));
            const float scale = shared.factor[0][row(k)],
                        factor[8] = {scale, scale, scale, scale, scale, scale, scale, scale};
            float y[8];
            if (n <= 0) continue;
            x[k].unpack(y);
            tegroup_impl_scale_eight(y, factor, call.desc.rule.divide);
            const uint2 codes = tegroup_impl_eight_codes<8>(dtype, y);
            if (n >= 8 && ((uintptr_t)(copy.data + at) & 7) == 0) *(uint2 *)(copy.data + at) = codes;
            else tegroup_impl_store_codes<8>(dtype, copy.data, at, min(8, n), codes);
        }
    }
};

/* The rowwise copy of scaling ROW. A work is some rows; input is read once, but for what of a row the registers of a
 * block do not hold. */
template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_QUANTIZE_RESIDENT)
    tegroup_impl_quantize_rows_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk walk(call, shared);
    tegroup_impl_quantize_rows<DTYPE> piece(call, shared);
    uint32_t most = 0;
    int32_t g = -1;
    for (int64_t work = walk.begin; work < walk.end; work += walk.step) {
        if (work == walk.begin || work >= shared.end) {
            if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
            most = 0;
            __syncthreads();
            if (threadIdx.x == 0) walk.meet(work);
            __syncthreads();
            g = shared.g;
            for (piece.shift = 0; piece.shift < 3 && shared.cols > piece.STRETCH >> 3 << piece.shift;) piece.shift++;
        }
        const int64_t begin = (work - shared.first) * TEGROUP_IMPL_QUANTIZE_ROWS,
                      end = tegroup_impl_min(shared.part_rows, begin + TEGROUP_IMPL_QUANTIZE_ROWS);
        for (piece.row0 = begin; piece.row0 < end; piece.row0 += 8 >> piece.shift) {
            piece.rows = (int32_t)tegroup_impl_min(8 >> piece.shift, end - piece.row0);
            for (int64_t at = 0; at < shared.cols; at += piece.STRETCH) {
                piece.load(at);
                most = max(most, call.desc.rule.nan_shows ? piece.template collect<true>(at == 0)
                                                          : piece.template collect<false>(at == 0));
            }
            __syncthreads();
            piece.scales();
            __syncthreads();
            for (int64_t at = 0; at < shared.cols; at += piece.STRETCH) {
                if (shared.cols > piece.STRETCH) piece.load(at);
                piece.encode();
            }
        }
    }
    if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
}
