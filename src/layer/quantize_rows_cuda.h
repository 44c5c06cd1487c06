/* ---- Quantise: whole rows ---- */

#pragma once
#include "base/version.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/scale_grid.h"
#include "core/quantize_copies.h"
#include "cuda/call.h"
#include "cuda/quantize_values.h"
#include "cuda/quantize_walk.h"
#include "layer/quantize_tile_cuda.h"

/* Rows that have a scale each, a few at a time: pieces of eight values, every THREADS-th of a row to a thread. They are
 * staged in shared memory, each thread's by itself, unless a row is too long for it: then they are read twice. */
template <int DTYPE> struct tegroup_impl_quantize_rows {
    typedef tegroup_impl_eight<DTYPE> eight;
    enum { THREADS = TEGROUP_IMPL_QUANTIZE_THREADS, WARPS = THREADS / 32, BYTES = eight::vectors::bytes };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    char *const memory;
    int32_t together, rows; /* rows that fit, at most; those at hand */
    int64_t row0, width;    /* width: of a staged row; 0 = none is */
    bool direct, vector;

    __device__ tegroup_impl_quantize_rows(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s,
                                          char *m)
        : call(c), shared(s), memory(m), together(1), rows(0), row0(0), width(0), direct(false), vector(false) {}

    __device__ __forceinline__ void meet() {
        width = tegroup_impl_align(shared.cols, 8);
        together = (int32_t)tegroup_impl_clamp(TEGROUP_IMPL_QUANTIZE_STAGED / width, 1, TEGROUP_IMPL_QUANTIZE_ROWS);
        if (width > TEGROUP_IMPL_QUANTIZE_STAGED) width = 0;
        direct = tegroup_impl_quantize_direct(call, shared);
        vector = call.vectors && ((uintptr_t)shared.in.base & 15) == 0;
    }
    __device__ __forceinline__ int64_t first() const { return shared.part * shared.part_rows + row0; }
    __device__ __forceinline__ const char *from(int32_t r, int64_t c) const {
        return shared.in.base + (shared.in.first + (first() + r) * shared.in.ld + c) * BYTES;
    }
    __device__ __forceinline__ char *staged(int32_t r, int64_t c) const { return memory + (r * width + c) * BYTES; }
    __device__ __forceinline__ int32_t left(int64_t c) const { return (int32_t)tegroup_impl_min(8, shared.cols - c); }

    __device__ __forceinline__ void load() const {
        for (int32_t r = 0; r < rows && width > 0; r++)
            for (int64_t c = 8 * threadIdx.x; c < shared.cols; c += 8 * THREADS) {
                if (direct && left(c) == 8) tegroup_impl_quantize_stage<DTYPE>(false, from(r, c), staged(r, c));
                else tegroup_impl_quantize_stage_each<DTYPE>(call, shared, first() + r, c, left(c), staged(r, c));
            }
        tegroup_impl_cp_commit();
        tegroup_impl_cp_wait<0>();
    }
    __device__ __forceinline__ void read(int32_t r, int64_t c, eight *x) const {
        if (width > 0) x->load_vectors(staged(r, c));
        else if (direct && left(c) == 8) x->load_vectors(from(r, c));
        else {
            eight slow; /* of its own, as the call wants an address, and registers have none */
            tegroup_impl_quantize_row_of<DTYPE>(call, shared, first() + r, c, left(c), vector, &slow);
            *x = slow;
        }
    }

    /* The rows' amax into a table, [row][warp]; returns the thread's. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t collect() const {
        typedef tegroup_impl_magnitudes<DTYPE, SHOWS> magnitudes;
        uint32_t most = 0;
        for (int32_t r = 0; r < rows; r++) {
            uint32_t of_row[magnitudes::words] = {0};
#pragma unroll 4
            for (int64_t c = 8 * threadIdx.x; c < shared.cols; c += 8 * THREADS) {
                eight x;
                read(r, c, &x);
                of_row[0] = magnitudes::of_row(of_row[0], x);
            }
            uint32_t largest = magnitudes::largest(of_row);
            most = max(most, largest);
            for (int step = 16; step > 0; step /= 2)
                largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
            if (threadIdx.x % 32 == 0) shared.amax[0][r * WARPS + threadIdx.x / 32] = largest;
        }
        return most;
    }

    /* From that table to that of factors, and to where scales are stored; a thread has a row. */
    __device__ __forceinline__ void scales() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const int32_t r = (int32_t)threadIdx.x;
        uint32_t most = 0;
        if (r >= rows) return;
        for (int32_t w = 0; w < WARPS; w++) most = max(most, shared.amax[0][r * WARPS + w]);
        const uint32_t bits = tegroup_impl_table_scale(call, shared, TEGROUP_IMPL_ROWWISE, r, __uint_as_float(most));
        if (copy.data)
            tegroup_impl_store_code(call.scale_dtype, copy.scales,
                                    tegroup_impl_scale_of_block(&copy.grid, shared.part, row0 + r, 0), bits);
    }

    __device__ __forceinline__ void encode() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        for (int32_t r = 0; r < rows && copy.data; r++) {
            const int64_t at = tegroup_impl_element_of(&copy, first() + r, 0);
            const float scale = shared.factor[0][r],
                        factor[8] = {scale, scale, scale, scale, scale, scale, scale, scale};
            const bool aligned = ((uintptr_t)(copy.data + at) & 7) == 0;
#pragma unroll 2
            for (int64_t c = 8 * threadIdx.x; c < shared.cols; c += 8 * THREADS) {
                eight x;
                float y[8];
                read(r, c, &x);
                x.unpack(y);
                tegroup_impl_quantize_store<8>(call, y, factor, copy.data, at + c, left(c), aligned && left(c) == 8);
            }
        }
    }
};

/* The rowwise copy of scaling ROW. A work is some rows. */
template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_QUANTIZE_RESIDENT(DTYPE))
    tegroup_impl_quantize_rows_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<true> walk(call, shared);
    tegroup_impl_quantize_rows<DTYPE> piece(call, shared, tegroup_impl_quantize_memory());
    uint32_t most = 0;
    int32_t g = -1;
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t begin, col;
        if (work >= walk.part_end) {
            if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
            most = 0;
            walk.meet(work);
            piece.meet();
            g = shared.g;
        }
        walk.place(work, &begin, &col);
        const int64_t end = tegroup_impl_min(shared.part_rows, begin + TEGROUP_IMPL_QUANTIZE_ROWS);
        for (piece.row0 = begin; piece.row0 < end; piece.row0 += piece.together) {
            piece.rows = (int32_t)tegroup_impl_min(piece.together, end - piece.row0);
            piece.load();
            most =
                max(most, call.desc.rule.nan_shows ? piece.template collect<true>() : piece.template collect<false>());
            __syncthreads();
            piece.scales();
            __syncthreads();
            piece.encode();
        }
    }
    if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
}
