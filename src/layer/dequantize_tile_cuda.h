/* ---- Dequantise: a tile, and the kernel ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "layer/quantize_copies.h"
#include "cuda/rows.h"
#include "layer/quantize_values_cuda.h"
#include "layer/quantize_walk_cuda.h"

/* Eight codes of a type as values, exactly; a NaN is any. Of 4 bits all are in codes.x. */
template <int CODE> static __device__ __forceinline__ void tegroup_impl_eight_values(uint2 codes, float *x) {
    if (CODE == TEGROUP_DTYPE_F4E2M1) {
#pragma unroll
        for (int j = 0; j < 4; j++) { /* as bits of binary16 a value 2^14 times smaller, subnormal or not */
            const uint32_t word = codes.x >> 4 * j;
            uint32_t halves = (word << 12 & 0x80008000u) | (word << 9 & 0x0e000e00u);
            asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(halves) : "r"(0x74007400u));
            x[j] = tegroup_impl_low_half(halves, false);
            x[j + 4] = tegroup_impl_high_half(halves, false);
        }
    }
#pragma unroll
    for (int j = 0; j < (CODE == TEGROUP_DTYPE_F4E2M1 ? 0 : 8); j += 2) {
        const uint32_t pair = (j < 4 ? codes.x : codes.y) >> j % 4 * 8;
#if __CUDA_ARCH__ >= 890
        uint32_t halves;
        if (CODE == TEGROUP_DTYPE_F8E5M2) asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)pair));
        else asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)pair));
        x[j] = tegroup_impl_low_half(halves, false);
        x[j + 1] = tegroup_impl_high_half(halves, false);
#else
        x[j] = tegroup_impl_f32_of_code((tegroup_dtype)CODE, pair & 0xffu);
        x[j + 1] = tegroup_impl_f32_of_code((tegroup_dtype)CODE, pair >> 8 & 0xffu);
#endif
    }
}

/* A product of a code's value, or that times a scale of E4M3, and a factor, rounded to odd, so that a second rounding
 * to 16 bits gives what one would have given: where something is dropped, one of the two neighbours is odd, and of the
 * other the last bit is 0. That is right where the product is normal: for factors from 2^-80 on, since a value that is
 * not 0 is at least 2^-16. A factor of at most two significant bits, as a power of two is, drops nothing. The function
 * below finds the others. Infinity, as the upper neighbour, is even. */
static __device__ __forceinline__ float tegroup_impl_odd_product(float value, float factor) {
    float down, up; /* in magnitude */
    asm("mul.rz.f32 %0, %1, %2;" : "=f"(down) : "f"(value), "f"(factor));
    asm("{.reg .f32 a, b;\nabs.f32 a, %1;\nabs.f32 b, %2;\nmul.rp.f32 %0, a, b;}" : "=f"(up) : "f"(value), "f"(factor));
    return __uint_as_float(__float_as_uint(down) | (__float_as_uint(up) & 1u));
}
static __device__ __forceinline__ bool tegroup_impl_small_factor(float factor) { /* below 2^-80 */
    const uint32_t magnitude = __float_as_uint(factor) & 0x7fffffffu;
    return magnitude < 0x17800000u && (magnitude & 0x3fffffu) != 0;
}
/* The same of any. */
static __device__ __forceinline__ float tegroup_impl_any_odd_product(float a, float b) {
    const float x = tegroup_impl_f32_odd_of_f64(tegroup_impl_f64_of_f32(a) * tegroup_impl_f64_of_f32(b));
    return tegroup_impl_is_nan(x) ? __uint_as_float(0x7fffffffu) : x;
}

/* Scales of elements beside each other along the outer index, from (r, c) of the tile that begins in row row0 and
 * column col0, where r or c is a multiple of as many: that of element k is at `first + k * step`. Eight lie within 32
 * outer ones that the swizzled layout has beside each other. */
struct tegroup_impl_factors_at {
    int64_t first, step;

    __device__ __forceinline__ tegroup_impl_factors_at(const tegroup_impl_quantize_launch &call,
                                                       const tegroup_impl_quantize_shared &shared, int columnwise,
                                                       int64_t row0, int64_t col0, int32_t r, int32_t c) {
        const tegroup_impl_scale_grid &grid = shared.copies[columnwise].grid;
        const tegroup_impl_tile_scales scales(grid, shared.part, row0, col0);
        first = scales.at((columnwise ? c : r) >> call.outer_shift, (columnwise ? r : c) >> call.inner_shift);
        step = call.outer_shift > 0 ? 0 : grid.swizzled ? 16 : grid.outer_stride;
    }
    /* The bits of scale i, and what they mean: apart, so that many are under way before the first is looked at. Scales
     * have few types. */
    static __device__ __forceinline__ uint32_t load(tegroup_dtype dtype, const char *scales, int64_t i) {
        if (dtype == TEGROUP_DTYPE_F32) return ((const uint32_t *)scales)[i];
        return dtype == TEGROUP_DTYPE_BF16 ? ((const uint16_t *)scales)[i] : ((const uint8_t *)scales)[i];
    }
    static __device__ __forceinline__ float meaning(tegroup_dtype dtype, uint32_t bits) {
        if (dtype == TEGROUP_DTYPE_F32) return __uint_as_float(bits);
        if (dtype == TEGROUP_DTYPE_F8E8M0) return tegroup_impl_f32_of_f8e8m0((uint8_t)bits);
        if (dtype == TEGROUP_DTYPE_F8E4M3) return tegroup_impl_f32_of_f8e4m3((uint8_t)bits);
        return tegroup_impl_f32_of_bf16((uint16_t)bits);
    }
};

/* One by one: at an edge, where codes or values do not begin where vectors do, and by scales of any size. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_dequantize_each(const tegroup_impl_quantize_launch &call,
                                                                 const tegroup_impl_quantize_shared &shared,
                                                                 int columnwise, int64_t row0, int64_t col0,
                                                                 int32_t row, int32_t col, int32_t row_end,
                                                                 int32_t col_end) {
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const tegroup_tensor &t = call.desc.output;
    for (int32_t r = row; r < row_end; r++)
        for (int32_t c = col; c < col_end; c++) {
            const int64_t at = shared.part * shared.part_rows + row0 + r,
                          i = tegroup_impl_element_of(&copy, at, col0 + c);
            const int64_t outer = columnwise ? col0 + c : row0 + r, inner = columnwise ? row0 + r : col0 + c;
            const int64_t of_block = tegroup_impl_scale_of_block(
                &copy.grid, shared.part, outer >> copy.grid.outer_shift, inner >> copy.grid.inner_shift);
            float factor = tegroup_impl_factors_at::meaning(
                      call.scale_dtype, tegroup_impl_factors_at::load(call.scale_dtype, copy.scales, of_block)),
                  x = tegroup_impl_f32_of_code(t.dtype, tegroup_impl_load_code(t.dtype, copy.data, i));
            if (t.global_scale_inv) x = tegroup_impl_product_f32(x, factor), factor = t.global_scale_inv[shared.g];
            x = DTYPE == TEGROUP_DTYPE_F32 ? tegroup_impl_product_f32(x, factor)
                                           : tegroup_impl_any_odd_product(x, factor);
            tegroup_impl_store_f32((tegroup_dtype)DTYPE, shared.in.base, shared.in.first + at * shared.in.ld + col0 + c,
                                   x);
        }
}

/* How codes become values: their type; TWO: scales have two levels, of E2M1 alone; EXACT: a scale is a power of two, so
 * that products are exact. */
template <int CODE_, bool TWO_, bool EXACT_> struct tegroup_impl_dequantize_how {
    enum { CODE = CODE_, TWO = TWO_, EXACT = EXACT_, BITS = CODE == TEGROUP_DTYPE_F4E2M1 ? 4 : 8 };
};

/* A thread's part of a work: of a strip of eight rows, one for each warp, eight pieces of eight columns; of a tile rows
 * `row` .. row + 7, columns `col` .. col + 7, or of a transposed copy two columns of 32 rows. What is written is the
 * call's input. The scales of a strip's rows go through a table of the warp's; of a tile each thread reads its few
 * scales itself. */
template <int DTYPE> struct tegroup_impl_dequantize_piece {
    typedef tegroup_impl_eight<DTYPE> eight;
    enum { BYTES = eight::vectors::bytes, TILE = TEGROUP_IMPL_QUANTIZE_TILE, BF16 = DTYPE == TEGROUP_DTYPE_BF16 };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    const tegroup_impl_copy &copy;
    const int columnwise;
    const bool two; /* levels of scales */
    float of_group;
    int64_t row0, col0; /* the tile's first, in the part */
    int32_t rows, cols; /* from there on */

    __device__ tegroup_impl_dequantize_piece(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s)
        : call(c), shared(s), copy(s.copies[c.copies >> TEGROUP_IMPL_COLUMNWISE & 1]),
          columnwise(c.copies >> TEGROUP_IMPL_COLUMNWISE & 1), two(c.desc.output.global_scale_inv != NULL), of_group(1),
          row0(0), col0(0), rows(0), cols(0) {}

    __device__ __forceinline__ void meet() {
        if (two) of_group = call.desc.output.global_scale_inv[shared.g];
    }
    __device__ __forceinline__ void at(int64_t row, int64_t col) {
        row0 = row, col0 = col;
        rows = (int32_t)tegroup_impl_min(1 << call.down_shift, shared.part_rows - row0);
        cols = (int32_t)tegroup_impl_min(1 << call.across_shift, shared.cols - col0);
    }
    __device__ __forceinline__ int64_t first() const { return shared.part * shared.part_rows + row0; }
    __device__ __forceinline__ char *to(int32_t r, int32_t c) const {
        return shared.in.base + (shared.in.first + (first() + r) * shared.in.ld + col0 + c) * BYTES;
    }
    /* Where the codes from element (r, c) of the tile on begin. */
    template <int BITS> __device__ __forceinline__ const char *from(int32_t r, int32_t c) const {
        return copy.data + tegroup_impl_element_of(&copy, first() + r, col0 + c) * BITS / 8;
    }
    /* The bits of the scales from element (r, c) of the tile on, or zeros where it does not load; and below what they
     * mean, and whether one is small. */
    template <int COUNT>
    __device__ __forceinline__ void load_scales(int32_t r, int32_t c, bool loads, uint32_t *bits) const {
        const tegroup_impl_factors_at at(call, shared, columnwise, row0, col0, r, c);
#pragma unroll
        for (int k = 0; k < COUNT; k++)
            bits[k] = loads ? at.load(call.scale_dtype, copy.scales, at.first + k * at.step) : 0;
    }
    template <int COUNT> __device__ __forceinline__ bool scales_of(const uint32_t *bits, float *scale) const {
        bool any = false;
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            scale[k] = tegroup_impl_factors_at::meaning(call.scale_dtype, bits[k]);
            any = any || small(scale[k]);
        }
        return any;
    }
    /* Do its products need more care? */
    __device__ __forceinline__ bool small(float scale) const {
        return DTYPE != TEGROUP_DTYPE_F32 && tegroup_impl_small_factor(two ? of_group : scale);
    }
    /* Eight values from their codes, by a scale each or (COUNT 1) by one. HOW: a tegroup_impl_dequantize_how. */
    template <typename HOW, int COUNT>
    __device__ __forceinline__ void values_of(uint2 codes, const float *scale, float *x) const {
        tegroup_impl_eight_values<HOW::CODE>(codes, x);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float by = scale[COUNT == 1 ? 0 : j];
            if (HOW::TWO) x[j] = tegroup_impl_product_f32(x[j], by), by = of_group;
            x[j] = DTYPE == TEGROUP_DTYPE_F32 || HOW::EXACT ? tegroup_impl_product_f32(x[j], by)
                                                            : tegroup_impl_odd_product(x[j], by);
        }
    }

    __device__ __forceinline__ void each(int32_t r, int32_t c, int32_t row_count, int32_t col_count) const {
        tegroup_impl_dequantize_each<DTYPE>(call, shared, columnwise, row0, col0, r, c, min(rows, r + row_count),
                                            min(cols, c + col_count));
    }

    template <typename HOW> static __device__ __forceinline__ uint2 codes_at(const char *from) {
        return HOW::BITS == 8 ? *(const uint2 *)from : make_uint2(*(const uint32_t *)from, 0);
    }
    template <typename HOW, int COUNT>
    __device__ __forceinline__ void store(uint2 codes, const float *scale, char *out) const {
        eight values;
        float x[8];
        values_of<HOW, COUNT>(codes, scale, x);
        values.pack(x);
        values.store_vectors(out);
    }

    /* The scales of a strip's row, to the warp's table of factors; returns whether one is a small one. */
    __device__ __forceinline__ bool scales_of_strip(int32_t r, float *table) const {
        enum { MOST = (1 << TEGROUP_IMPL_QUANTIZE_STRIP) / 16 / 32 }; /* of a lane, as no block has fewer than 16 */
        const int32_t lane = (int32_t)threadIdx.x % 32, shift = call.inner_shift;
        const int64_t outer = (row0 + r) >> copy.grid.outer_shift;
        uint32_t bits[MOST];
        bool any = false;
#pragma unroll
        for (int k = 0; k < MOST; k++)
            if ((lane + k * 32) << shift < cols)
                bits[k] = tegroup_impl_factors_at::load(
                    call.scale_dtype, copy.scales,
                    tegroup_impl_scale_of_block(&copy.grid, shared.part, outer,
                                                (col0 + ((lane + k * 32) << shift)) >> copy.grid.inner_shift));
#pragma unroll
        for (int k = 0; k < MOST; k++)
            if ((lane + k * 32) << shift < cols) {
                const float scale = tegroup_impl_factors_at::meaning(call.scale_dtype, bits[k]);
                table[lane + k * 32] = scale;
                any = any || small(scale);
            }
        return __any_sync(0xffffffffu, any) != 0;
    }
    /* A row of a strip: all of its codes are read before the first is looked at. */
    template <typename HOW> __device__ __forceinline__ void row_of_strip(float *factors) const {
        enum { BITS = HOW::BITS };
        const int32_t r = (int32_t)threadIdx.x / 32, first = (int32_t)threadIdx.x % 32 * 8;
        const char *const in = from<BITS>(r, 0);
        char *const out = to(r, 0);
        float *const table = factors + r * ((1 << TEGROUP_IMPL_QUANTIZE_STRIP) / 16);
        if (r >= rows) return;
        const bool careful = ((uintptr_t)in & (BITS - 1)) != 0 || ((uintptr_t)out & 15) != 0 || (cols & 7) != 0;
        uint2 codes[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            codes[k] = make_uint2(0, 0);
            if (!careful && first + k * 256 < cols) codes[k] = codes_at<HOW>(in + (first + k * 256) * BITS / 8);
        }
        const bool slow = scales_of_strip(r, table) || careful;
        __syncwarp();
#pragma unroll 1
        for (int32_t c = first; c < cols; c += 2 * 256) {
            if (slow) {
                each(r, c, 1, 8);
                each(r, c + 256, 1, 8);
                continue;
            }
            store<HOW, 1>(codes[0], table + (c >> call.inner_shift), out + c * BYTES);
            if (c + 256 < cols)
                store<HOW, 1>(codes[1], table + ((c + 256) >> call.inner_shift), out + (c + 256) * BYTES);
#pragma unroll
            for (int k = 0; k < 6; k++) codes[k] = codes[k + 2]; /* so that the loop need not be unrolled */
        }
        __syncwarp(); /* the factors have been read */
    }

    /* Rows of a tile whose columns have scales: all codes are read before the first is looked at. */
    template <typename HOW> __device__ __forceinline__ void rows_of_tile() const {
        enum { BITS = HOW::BITS };
        const int32_t row = (int32_t)threadIdx.x / 16 * 8, col = (int32_t)threadIdx.x % 16 * 8;
        const int64_t step = copy.at.row_stride * BITS / 8, out_step = shared.in.ld * BYTES;
        const char *in = from<BITS>(row, col);
        char *out = to(row, col);
        float scale[8];
        bool careful = col + 8 > cols || (((uintptr_t)in | (uintptr_t)step) & (BITS - 1)) != 0
                       || (((uintptr_t)out | (uintptr_t)out_step) & 15) != 0;
        if (row >= rows || col >= cols) return;
        uint32_t bits[8];
        uint2 codes[8];
        load_scales<8>(row, col, !careful, bits);
#pragma unroll
        for (int i = 0; i < 8; i++, in += step) {
            codes[i] = make_uint2(0, 0);
            if (!careful && row + i < rows) codes[i] = codes_at<HOW>(in);
        }
        careful = scales_of<8>(bits, scale) || careful;
        if (careful) {
            each(row, col, 8, 8);
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++, out += out_step)
            if (row + i < rows) store<HOW, 8>(codes[i], scale, out);
    }

    /* A transposed copy: sixteen rows of two columns at a time. */
    template <typename HOW> __device__ __forceinline__ void columns_of_tile() const {
        enum { BITS = HOW::BITS };
        const int32_t c = (int32_t)threadIdx.x % 64 * 2, r0 = (int32_t)threadIdx.x / 64 * 32;
        const int64_t step = copy.at.col_stride * BITS / 8, out_step = shared.in.ld * BYTES;
#pragma unroll 1
        for (int32_t r = r0; r < min(rows, r0 + 32) && c < cols; r += 16) {
            const char *in = from<BITS>(r, c);
            char *out = to(r, c);
            float scale[2];
            bool careful = c + 2 > cols || r + 16 > rows || (((uintptr_t)in | (uintptr_t)step) & (2 * BITS - 1)) != 0
                           || (((uintptr_t)out | (uintptr_t)out_step) & (2 * BYTES - 1)) != 0;
            uint32_t bits[2];
            uint2 codes[2][2]; /* [eight rows][column] */
            load_scales<2>(r, c, !careful, bits);
#pragma unroll
            for (int k = 0; k < 2; k++)
                if (careful) {
                    codes[0][k] = codes[1][k] = make_uint2(0, 0);
                } else if (BITS == 8) {
                    const uint4 v = *(const uint4 *)(in + k * step);
                    codes[0][k] = make_uint2(v.x, v.y), codes[1][k] = make_uint2(v.z, v.w);
                } else {
                    const uint2 v = *(const uint2 *)(in + k * step);
                    codes[0][k] = make_uint2(v.x, 0), codes[1][k] = make_uint2(v.y, 0);
                }
            careful = scales_of<2>(bits, scale) || careful;
            if (careful) {
                each(r, c, 16, 2);
                continue;
            }
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                float x[2][8];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    values_of<HOW, 1>(codes[0][k], scale + k, x[k]);
                    codes[0][k] = codes[1][k];
                }
#pragma unroll
                for (int i = 0; i < 8; i++, out += out_step) {
                    if (BYTES == 4) *(float2 *)out = make_float2(x[0][i], x[1][i]);
                    else *(uint32_t *)out = tegroup_impl_two_halves(x[0][i], x[1][i], BF16);
                }
            }
        }
    }

    template <typename HOW> __device__ __forceinline__ void as() const {
        if (!columnwise) row_of_strip<HOW>(shared.factor[0]);
        else if (copy.at.col_stride == 1) rows_of_tile<HOW>();
        else columns_of_tile<HOW>();
    }
    /* Asks once a work what all of its products have in common. */
    __device__ __forceinline__ void values() const {
        const bool exact = call.scale_dtype == TEGROUP_DTYPE_F8E8M0;
        if (call.desc.output.dtype == TEGROUP_DTYPE_F4E2M1) {
            if (two) as<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F4E2M1, true, false>>();
            else if (exact) as<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F4E2M1, false, true>>();
            else as<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F4E2M1, false, false>>();
        } else if (call.desc.output.dtype == TEGROUP_DTYPE_F8E5M2) {
            if (exact) as<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E5M2, false, true>>();
            else as<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E5M2, false, false>>();
        } else {
            if (exact) as<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E4M3, false, true>>();
            else as<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E4M3, false, false>>();
        }
    }
};

/* A work is a strip of the rowwise copy, or a tile of the columnwise one. */
template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_DEQUANTIZE_RESIDENT)
    tegroup_impl_dequantize_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk walk(call, shared);
    tegroup_impl_dequantize_piece<DTYPE> piece(call, shared);
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        if (work >= walk.part_end) {
            walk.meet(work);
            piece.meet();
        }
        if (!piece.copy.data) continue;
        int64_t row0, col0;
        walk.place(work, &row0, &col0);
        piece.at(row0, col0);
        piece.values();
    }
}
