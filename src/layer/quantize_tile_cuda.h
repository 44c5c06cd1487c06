/* ---- Quantise: tiles, and what tiles, strips and rows share ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "formats/scale_rule.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/quantize_copies.h"
#include "core/stored_scales.h"
#include "core/product.h"
#include "core/activation_formulas.h"
#include "cuda/rows.h"
#include "cuda/call.h"
#include "cuda/quantize_values.h"
#include "cuda/quantize_walk.h"

/* The largest magnitude of a block, from the tables: that of index o of those for which one scale is chosen, and i. */
static __device__ __forceinline__ uint32_t tegroup_impl_table_amax(const tegroup_impl_quantize_launch &call,
                                                                   const tegroup_impl_quantize_shared &shared,
                                                                   int columnwise, int32_t o, int32_t i) {
    const bool square = call.choice_shift > 0;
    const int32_t blocks = TEGROUP_IMPL_QUANTIZE_TILE >> call.inner_shift, bands = 1 << call.inner_shift >> 4;
    if (!square && !columnwise) return shared.amax[0][o * blocks + i];
    const int32_t band = (square && !columnwise ? o : i) * bands, at = !square || columnwise ? o : i,
                  step = square ? blocks : TEGROUP_IMPL_QUANTIZE_COLS;
    uint32_t most = 0;
    for (int32_t b = 0; b < bands; b++) most = max(most, shared.amax[!square][(band + b) * step + at]);
    return most;
}

/* The scale of a block of so large an amax, its factor into the table. Returns its code. */
static __device__ __forceinline__ uint32_t tegroup_impl_table_scale(const tegroup_impl_quantize_launch &call,
                                                                    tegroup_impl_quantize_shared &shared,
                                                                    int columnwise, int32_t entry, float amax) {
    const tegroup_quantize_desc &desc = call.desc;
    const tegroup_block_scale block =
        tegroup_impl_scale_block(&desc.rule, desc.output.dtype, call.scale_dtype, amax, shared.global);
    shared.factor[columnwise][entry] = tegroup_impl_factor_of(block);
    return block.bits;
}

/* The scales of one copy of the tile, or of a strip of tiles: from the table of amax to that of factors, and to
 * where they are stored, with what pads them. The first half of the threads begins with the rowwise copy's, the second
 * with the columnwise one's. */
static __device__ __forceinline__ void tegroup_impl_table_scales(const tegroup_impl_quantize_launch &call,
                                                                 tegroup_impl_quantize_shared &shared, int64_t row0,
                                                                 int64_t col0, int columnwise) {
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const tegroup_impl_scale_grid &grid = copy.grid;
    const int64_t outer0 = columnwise ? col0 : row0, inner0 = columnwise ? row0 : col0;
    const tegroup_impl_tile_scales scales(grid, shared.part, row0, col0);
    const int32_t outers =
                      (int32_t)(tegroup_impl_blocks_end(outer0, grid.outer_shift, grid.outer_count, grid.outer_extent)
                                - scales.outer),
                  inners = call.facts.block_inner == 0
                               ? 1
                               : (int32_t)(tegroup_impl_blocks_end(inner0, grid.inner_shift, grid.inner_count,
                                                                   grid.inner_extent)
                                           - scales.inner);
    const bool down = !grid.swizzled && grid.outer_stride < grid.inner_stride; /* the outer index is contiguous */
    const int32_t fast = down ? outers : inners, shift = fast > 1 ? 32 - __clz(fast - 1) : 0;
    const int32_t threads = TEGROUP_IMPL_QUANTIZE_THREADS,
                  thread = ((int32_t)threadIdx.x + columnwise * threads / 2) % threads;
    for (int32_t e = thread; e < (down ? inners : outers) << shift; e += threads) {
        const int32_t quick = e & ((1 << shift) - 1), slow = e >> shift, o = down ? quick : slow,
                      i = down ? slow : quick, chosen = o << call.outer_shift >> call.choice_shift;
        uint32_t bits = 0;
        if (quick >= fast) continue;
        if (o < scales.outer_count && i < scales.inner_count)
            bits =
                tegroup_impl_table_scale(call, shared, columnwise,
                                         columnwise ? i * TEGROUP_IMPL_QUANTIZE_COLS + chosen
                                                    : chosen * (TEGROUP_IMPL_QUANTIZE_TILE >> call.inner_shift) + i,
                                         __uint_as_float(tegroup_impl_table_amax(call, shared, columnwise, chosen, i)));
        if (copy.data) tegroup_impl_store_code(call.scale_dtype, copy.scales, scales.at(o, i), bits);
    }
}

/* n codes beside each other from element `at` on, one by one. */
template <int BITS>
static __device__ __noinline__ void tegroup_impl_store_codes(tegroup_dtype dtype, char *data, int64_t at, int32_t n,
                                                             uint2 codes) {
#pragma unroll 1
    for (int32_t e = 0; e < n; e++)
        tegroup_impl_store_code(dtype, data, at + e,
                                (BITS == 8 && e >= 4 ? codes.y : codes.x) >> e % (32 / BITS) * BITS);
}

/* The first bits of 128, with zeros behind them. */
static __device__ __noinline__ uint4 tegroup_impl_first_bits(uint4 v, int32_t bits) {
    uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int32_t k = 0; k < 4; k++) {
        const int32_t left = bits - 32 * k;
        if (left < 32) word[k] = left > 0 ? word[k] & ((1u << left) - 1) : 0;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* The first `bytes` of 16. */
static __device__ __noinline__ void tegroup_impl_store_bytes(char *to, uint4 v, int32_t bytes) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int32_t b = 0; b < 16; b++)
        if (b < bytes) to[b] = (char)(word[b / 4] >> b % 4 * 8);
}

/* Eight values of the group's row r from column `at` on, n of them: of a gathered row, or such as an activation makes;
 * vector: rows are read 16 bytes at a time. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_quantize_row_of(const tegroup_impl_quantize_launch &call,
                                                                 const tegroup_impl_quantize_shared &shared, int64_t r,
                                                                 int64_t at, int32_t n, bool vector,
                                                                 tegroup_impl_eight<DTYPE> *x) {
    const tegroup_quantize_desc &desc = call.desc;
    const int bytes = tegroup_impl_eight<DTYPE>::vectors::bytes;
    x->clear();
#if !defined(TEGROUP_NO_ACTIVATION)
    if (desc.activation != TEGROUP_ACTIVATION_UNSET) {
        const bool gradient = desc.grad_output.dtype != TEGROUP_DTYPE_UNSET;
        const int64_t width = desc.output.shape.cols / 2;
        const bool straddles =
            gradient && tegroup_impl_gated(desc.activation) && !desc.interleaved && at < width && at + n > width;
        const char *in = shared.in.base + (shared.in.first + r * shared.in.ld) * bytes,
                   *dy = gradient ? shared.dy.base + (shared.dy.first + r * shared.dy.ld) * bytes : NULL;
        const float scale = tegroup_impl_weight<float>(desc.row_scale, shared.in.row0 + r, 0);
        float y[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        vector = vector && (!gradient || ((uintptr_t)shared.dy.base & 15) == 0);
        if (!straddles) tegroup_impl_made_eight<DTYPE>(desc, in, dy, scale, at, n, vector, y);
#pragma unroll 1
        for (int32_t e = 0; e < n && straddles; e++) {
            float one[8];
            tegroup_impl_made_eight<DTYPE>(desc, in, dy, scale, at + e, 1, false, one);
            y[e] = one[0];
        }
#pragma unroll
        for (int e = 0; e < 8; e++) y[e] = e < n ? y[e] : 0.0f;
        x->pack(y);
        return;
    }
#endif
    const int64_t row = tegroup_impl_row_at(&desc.gather_input, &shared.in, r);
    if (row >= 0) x->load(shared.in.base + row * bytes, at, n, vector);
}

/* The same, or zeros where n is 0, to where a tile is staged. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_quantize_stage_each(const tegroup_impl_quantize_launch &call,
                                                                     const tegroup_impl_quantize_shared &shared,
                                                                     int64_t r, int64_t at, int32_t n, char *to) {
    const bool vector = call.vectors && ((uintptr_t)shared.in.base & 15) == 0;
    tegroup_impl_eight<DTYPE> x;
    x.clear();
    if (n > 0) tegroup_impl_quantize_row_of<DTYPE>(call, shared, r, at, n, vector, &x);
    x.store_vectors(to);
}

/* Eight values whose place is a multiple of 16 bytes, or zeros where they are absent, without a wait. */
template <int DTYPE>
static __device__ __forceinline__ void tegroup_impl_quantize_stage(bool absent, const char *from, char *to) {
#pragma unroll
    for (int k = 0; k < tegroup_impl_eight<DTYPE>::raws; k++)
        tegroup_impl_cp_async_unless(absent, tegroup_impl_shared(to + 16 * k), from + 16 * k);
}

/* Are values those of input, at multiples of 16 bytes? */
static __device__ __forceinline__ bool tegroup_impl_quantize_direct(const tegroup_impl_quantize_launch &call,
                                                                    const tegroup_impl_quantize_shared &shared) {
    return call.plain && call.vectors && ((uintptr_t)shared.in.base & 15) == 0;
}

/* Eight values by one factor each, as codes of which the first n are stored from element `at` on; vector: eight are
 * one access. */
template <int BITS>
static __device__ __forceinline__ void tegroup_impl_quantize_store(const tegroup_impl_quantize_launch &call, float *x,
                                                                   const float *factor, char *data, int64_t at,
                                                                   int32_t n, bool vector) {
    const tegroup_dtype dtype = call.desc.output.dtype;
    char *const to = data + at * BITS / 8;
    tegroup_impl_scale_eight(x, factor, call.desc.rule.divide);
    const uint2 codes = tegroup_impl_eight_codes<BITS>(dtype, x);
    if (!vector) tegroup_impl_store_codes<BITS>(dtype, data, at, min(8, n), codes);
    else if (BITS == 8) *(uint2 *)to = codes;
    else *(uint32_t *)to = codes.x;
}

/* A thread's part of a tile: rows `row` .. row + 7, columns `col` .. col + 7, and of what is transposed two columns of
 * 32 rows. The tile's values are staged in shared memory, each thread's part by itself, with zeros where there are
 * none. */
template <int DTYPE> struct tegroup_impl_quantize_piece {
    typedef tegroup_impl_eight<DTYPE> eight;
    enum { BYTES = eight::vectors::bytes, TILE = TEGROUP_IMPL_QUANTIZE_TILE };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    char *const tile;
    int32_t row, col;
    int32_t rows, n;    /* from the piece on that its part has */
    int64_t row0, col0; /* the tile's first, in the part */

    __device__ tegroup_impl_quantize_piece(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s,
                                           char *t)
        : call(c), shared(s), tile(t), row((int32_t)threadIdx.x / 16 * 8), col((int32_t)threadIdx.x % 16 * 8), rows(0),
          n(0), row0(0), col0(0) {}

    __device__ __forceinline__ int64_t begin() const { return shared.part * shared.part_rows + row0; }
    __device__ __forceinline__ char *staged(int32_t r, int32_t c) const { return tile + (r * TILE + c) * BYTES; }

    __device__ __forceinline__ void load(int64_t at_row, int64_t at_col) {
        row0 = at_row, col0 = at_col;
        rows = tegroup_impl_left_of(shared.part_rows - row0, row);
        n = tegroup_impl_left_of(shared.cols - col0, col);
        if (tegroup_impl_quantize_direct(call, shared) && n >= 8) {
            const char *from = shared.in.base + (shared.in.first + (begin() + row) * shared.in.ld + col0 + col) * BYTES;
#pragma unroll
            for (int i = 0; i < 8; i++, from += shared.in.ld * BYTES)
                tegroup_impl_quantize_stage<DTYPE>(i >= rows, from, staged(row + i, col));
        } else {
#pragma unroll 1
            for (int i = 0; i < 8; i++)
                tegroup_impl_quantize_stage_each<DTYPE>(call, shared, begin() + row + i, col0 + col,
                                                        i < rows ? min(8, n) : 0, staged(row + i, col));
        }
        tegroup_impl_cp_commit();
        tegroup_impl_cp_wait<0>();
    }

    /* The piece's amax into the tables, the larger of it and what is there unless it is the first; returns it. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t collect(bool first) const {
        typedef tegroup_impl_magnitudes<DTYPE, SHOWS> magnitudes;
        const int32_t lane = (int32_t)threadIdx.x % 32, shift = call.inner_shift - 3; /* of lanes that share a block */
        const bool square = call.choice_shift > 0, leads = (lane & ((1 << shift) - 1)) == 0;
        uint32_t of_col[magnitudes::words] = {0}, most = 0;
#pragma unroll 1
        for (int32_t i = 0; i < 8; i += 2) {
            eight x[2];
            uint32_t pair[2];
            x[0].load_vectors(staged(row + i, col));
            x[1].load_vectors(staged(row + i + 1, col));
            magnitudes::of_columns(x, of_col);
            magnitudes::of_pair(x[0], x[1], pair);
            most = max(most, max(magnitudes::at(pair, 0), magnitudes::at(pair, 1)));
            if (square || !(call.copies & 1 << TEGROUP_IMPL_ROWWISE)) continue;
            magnitudes::of_lanes(shift, pair);
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (leads)
                    shared.amax[0][((row + i + j) << 4 >> shift) + (col >> call.inner_shift)] = magnitudes::at(pair, j);
        }
        if (tegroup_impl_scaled_as_one(&call.facts)) return most;
        if (square) {
            uint32_t of_band = max(most, __shfl_xor_sync(0xffffffffu, most, 16));
            for (int step = 1; step < 1 << shift; step *= 2)
                of_band = max(of_band, __shfl_xor_sync(0xffffffffu, of_band, step));
            if (lane < 16 && leads) shared.amax[0][(row >> 4 << 4 >> shift) + (col >> call.inner_shift)] = of_band;
        } else if (call.copies & 1 << TEGROUP_IMPL_COLUMNWISE) {
#pragma unroll
            for (int k = 0; k < magnitudes::words; k++)
                of_col[k] = magnitudes::larger(of_col[k], __shfl_xor_sync(0xffffffffu, of_col[k], 16));
            uint4 *table = (uint4 *)(shared.amax[1] + row / 16 * TEGROUP_IMPL_QUANTIZE_COLS + col);
#pragma unroll
            for (int k = 0; k < 2 && lane < 16; k++) {
                uint4 now = make_uint4(magnitudes::at(of_col, 4 * k), magnitudes::at(of_col, 4 * k + 1),
                                       magnitudes::at(of_col, 4 * k + 2), magnitudes::at(of_col, 4 * k + 3));
                if (!first) {
                    const uint4 was = table[k];
                    now = make_uint4(max(was.x, now.x), max(was.y, now.y), max(was.z, now.z), max(was.w, now.w));
                }
                table[k] = now;
            }
        }
        return most;
    }

    /* Rows of codes, in the order of the data. */
    template <int BITS, int COLUMNWISE> __device__ __forceinline__ void encode_rows() const {
        const tegroup_impl_copy &copy = shared.copies[COLUMNWISE];
        const int64_t at = tegroup_impl_element_of(&copy, begin() + row, col0 + col), step = copy.at.row_stride;
        const bool vector =
            n >= 8 && (((uintptr_t)(copy.data + at * BITS / 8) | (uintptr_t)(step * BITS / 8)) & (BITS - 1)) == 0;
        const tegroup_impl_factors of = tegroup_impl_factors_of(call, shared, COLUMNWISE, call.choice_shift, row, col);
        float factor[8];
        if (!copy.data || n <= 0) return;
#pragma unroll
        for (int j = 0; j < 8 && COLUMNWISE; j++) factor[j] = of.at[j * of.step];
#pragma unroll 1
        for (int pair = 0; pair < 8; pair += 2) {
            eight x[2];
#pragma unroll
            for (int i = 0; i < 2; i++) x[i].load_vectors(staged(row + pair + i, col));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float y[8];
                if (pair + i >= rows) return;
#pragma unroll
                for (int j = 0; j < 8 && !COLUMNWISE; j++) factor[j] = of.at[(pair + i) * of.step];
                x[i].unpack(y);
                tegroup_impl_quantize_store<BITS>(call, y, factor, copy.data, at + (pair + i) * step, n, vector);
            }
        }
    }

    /* The value of the second column of two, or of the first. */
    static __device__ __forceinline__ float of_two(uint2 word, bool second) {
        if (BYTES == 4) return __uint_as_float(second ? word.y : word.x);
        if (DTYPE == TEGROUP_DTYPE_BF16) return __uint_as_float(__byte_perm(word.x, 0, second ? 0x3244 : 0x1044));
        return tegroup_impl_low_half(word.x >> (second ? 16 : 0), false);
    }
    /* Sixteen rows of two columns at a time. `end` rows are written: those that there are, and zeros that pad the
     * last. */
    template <int BITS> __device__ __forceinline__ void encode_columns() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int64_t whole = tegroup_impl_min(TILE, shared.part_rows - row0);
        const int32_t c0 = (int32_t)threadIdx.x % 64 * 2, r0 = (int32_t)threadIdx.x / 64 * 32,
                      cols = (int32_t)tegroup_impl_min(c0 + 2, shared.cols - col0),
                      end = begin() + whole < shared.rows ? (int32_t)whole : (int32_t)(copy.at.col_stride - begin());
        if (!copy.data || c0 >= cols) return;
#pragma unroll 1
        for (int32_t r = r0; r < min(end, r0 + 32); r += 16) {
            uint2 word[16];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const char *at = staged(r + i, c0);
                word[i] = BYTES == 4 ? *(const uint2 *)at : make_uint2(*(const uint32_t *)at, 0);
            }
#pragma unroll 1
            for (int32_t c = c0; c < cols; c++) {
                const float scale = *tegroup_impl_factors_of(call, shared, 1, call.choice_shift, r, c).at,
                            factor[8] = {scale, scale, scale, scale, scale, scale, scale, scale};
                uint2 codes[2];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    float y[8];
#pragma unroll
                    for (int i = 0; i < 8; i++) y[i] = of_two(word[8 * k + i], c > c0);
                    tegroup_impl_scale_eight(y, factor, call.desc.rule.divide);
                    codes[k] = tegroup_impl_eight_codes<BITS>(call.desc.output.dtype, y);
                }
                store_column<BITS>(codes, r, c, (int32_t)whole - r, end - r);
            }
        }
    }
    /* Codes of sixteen rows, of which some are there, and some are written. */
    template <int BITS>
    __device__ __forceinline__ void store_column(const uint2 *codes, int32_t r, int32_t c, int32_t there,
                                                 int32_t written) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        char *const to = copy.data + tegroup_impl_element_of(&copy, begin() + r, col0 + c) * BITS / 8;
        uint4 v = BITS == 8 ? make_uint4(codes[0].x, codes[0].y, codes[1].x, codes[1].y)
                            : make_uint4(codes[0].x, codes[1].x, 0, 0);
        if (there < 16) v = tegroup_impl_first_bits(v, max(0, there) * BITS); /* no NaN of a factor pads the rows */
        if (written < 16 || ((uintptr_t)to & (2 * BITS - 1)) != 0)
            tegroup_impl_store_bytes(to, v, min(16, written) * BITS / 8);
        else if (BITS == 8) *(uint4 *)to = v;
        else *(uint2 *)to = make_uint2(v.x, v.y);
    }

    template <int BITS> __device__ __forceinline__ void encode() const {
        if (call.copies & 1 << TEGROUP_IMPL_ROWWISE) encode_rows<BITS, TEGROUP_IMPL_ROWWISE>();
        if (!(call.copies & 1 << TEGROUP_IMPL_COLUMNWISE)) return;
        if (!tegroup_impl_transposed(&call.desc.output, TEGROUP_IMPL_COLUMNWISE)) {
            encode_rows<BITS, TEGROUP_IMPL_COLUMNWISE>();
            return;
        }
        __syncthreads(); /* what other threads staged is there */
        encode_columns<BITS>();
        __syncthreads(); /* and is read */
    }
};

/* The warp's largest magnitude goes to its group. */
static __device__ __forceinline__ void tegroup_impl_raise(const tegroup_tensor &t, int32_t g, uint32_t most) {
    for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (most > 0x7f800000u) most = 0x7fffffffu; /* as tegroup_impl_amax has it */
    if (threadIdx.x % 32 != 0 || most == 0) return;
    if (t.amax) atomicMax((uint32_t *)t.amax + g, most);
    if (t.columnwise_amax) atomicMax((uint32_t *)t.columnwise_amax + g, most);
}

/* amax of every group begins as 0. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS)
    tegroup_impl_quantize_clear_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    const tegroup_tensor &t = call.desc.output;
    const tegroup_snapshot_view view = tegroup_impl_fitting_view(&t);
    if (tegroup_impl_ragged(&t.shape) && !view.header) return;
    for (int32_t g = (int32_t)threadIdx.x; g < t.shape.groups; g += TEGROUP_IMPL_QUANTIZE_THREADS) {
        if (t.amax) t.amax[g] = 0;
        if (t.columnwise_amax) t.columnwise_amax[g] = 0;
    }
}

/* What is one number a group, after its amax: the last block's work. */
static __device__ __noinline__ void tegroup_impl_quantize_store_numbers(const tegroup_impl_quantize_launch &call) {
    for (int32_t g = (int32_t)threadIdx.x; g < call.desc.output.shape.groups; g += TEGROUP_IMPL_QUANTIZE_THREADS) {
        const tegroup_block_scale one = tegroup_impl_quantize_group_scale(call, g);
        tegroup_impl_store_group(&call.desc, &call.facts, &one, g);
    }
}
static __device__ __forceinline__ void tegroup_impl_quantize_store_groups(const tegroup_impl_quantize_launch &call,
                                                                          bool fits) {
    if (blockIdx.x == gridDim.x - 1 && call.copies && fits
        && (tegroup_impl_scaled_as_one(&call.facts) || call.desc.output.global_scale_inv))
        tegroup_impl_quantize_store_numbers(call);
}

/* A work is a tile; of scaling ROW, columnwise, a column of them, through which a block goes down and up again: what it
 * read last is still in the cache. */
template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_QUANTIZE_RESIDENT(DTYPE))
    tegroup_impl_quantize_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<true> walk(call, shared);
    tegroup_impl_quantize_piece<DTYPE> piece(call, shared, tegroup_impl_quantize_memory());
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_TILE;
    const bool whole = tegroup_impl_scaled_as_one(&call.facts);
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
        const int64_t last = call.down_shift == TEGROUP_IMPL_QUANTIZE_ALL ? (shared.part_rows - 1) / tile * tile : row0;
        for (int64_t at = row0; at <= last; at += tile) {
            piece.load(at, col0);
            if (!whole || call.raises)
                most = max(most, call.desc.rule.nan_shows ? piece.template collect<true>(at == row0)
                                                          : piece.template collect<false>(at == row0));
        }
        if (!whole) {
            __syncthreads();
#pragma unroll 1
            for (int c = 0; c < TEGROUP_IMPL_COPIES; c++)
                if (call.copies >> c & 1) tegroup_impl_table_scales(call, shared, row0, col0, c);
            __syncthreads();
        }
        for (int64_t at = last; at >= row0; at -= tile) {
            if (at < last) piece.load(at, col0);
            if (tegroup_impl_bits(call.desc.output.dtype) == 8) piece.template encode<8>();
            else piece.template encode<4>();
        }
    }
    if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
}
