/* ---- Dequantise: a tile, and the kernel ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "base/build.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/copies.h"
#include "layer/quantize.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "layer/quantize_values_cuda.h"
#include "layer/quantize_walk_cuda.h"

/* Eight codes of one type as values, exactly; a NaN is any. Of 4 bits all are in codes.x. */
template <int BITS>
static __device__ __forceinline__ void tegroup_impl_eight_values(tegroup_dtype dtype, uint2 codes, float *x) {
    if (BITS == 4) {
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
    for (int j = 0; j < (BITS == 4 ? 0 : 8); j += 2) {
        const uint32_t pair = (j < 4 ? codes.x : codes.y) >> j % 4 * 8;
#if __CUDA_ARCH__ >= 890
        uint32_t halves;
        if (dtype == TEGROUP_DTYPE_F8E5M2) asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)pair));
        else asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)pair));
        x[j] = tegroup_impl_low_half(halves, false);
        x[j + 1] = tegroup_impl_high_half(halves, false);
#else
        x[j] = tegroup_impl_f32_of_code(dtype, pair & 0xffu);
        x[j + 1] = tegroup_impl_f32_of_code(dtype, pair >> 8 & 0xffu);
#endif
    }
}

/* A product of a code's value, or that times a scale of E4M3, and a factor, rounded to odd, so that a second rounding
 * to 16 bits gives what one would have given. That is right where what mul.rz drops is exact in `rest`, not below
 * 2^-149: for factors from 2^-80 on, since a value that is not 0 is at least 2^-16. A factor of at most two significant
 * bits, as a power of two is, drops nothing. The function below finds the others. */
static __device__ __forceinline__ float tegroup_impl_odd_product(float value, float factor) {
    float product, rest;
    asm("mul.rz.f32 %0, %1, %2;" : "=f"(product) : "f"(value), "f"(factor));
    const uint32_t bits = __float_as_uint(product);
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(rest) : "f"(value), "f"(factor), "f"(__uint_as_float(bits ^ 0x80000000u)));
    return __uint_as_float(bits | (fabsf(rest) > 0.0f ? 1u : 0u)); /* beside infinity and NaN rest is NaN */
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

/* The scales of a tile, to the table of factors: [row][block], columnwise [block][column], by blocks of both. Returns
 * whether a factor that the thread has met is a small one. */
static __device__ __forceinline__ bool tegroup_impl_dequantize_scales(const tegroup_impl_quantize_launch &call,
                                                                      tegroup_impl_quantize_shared &shared,
                                                                      int columnwise, int64_t row0, int64_t col0) {
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const float *global = call.desc.output.global_scale_inv;
    const int32_t inners_shift = TEGROUP_IMPL_QUANTIZE_SHIFT - call.inner_shift,
                  entries = 1 << (TEGROUP_IMPL_QUANTIZE_SHIFT - call.outer_shift + inners_shift);
    const tegroup_impl_tile_scales scales(copy.grid, shared.part, row0, col0);
    bool small = global && tegroup_impl_small_factor(global[shared.g]);
    for (int32_t e = (int32_t)threadIdx.x; e < entries; e += TEGROUP_IMPL_QUANTIZE_THREADS) {
        const int32_t o = e >> inners_shift, i = e & ((1 << inners_shift) - 1);
        float factor;
        if (o >= scales.outer_count || i >= scales.inner_count) continue;
        factor = tegroup_impl_load_f32(call.scale_dtype, copy.scales, scales.at(o, i));
        shared.factor[columnwise][columnwise ? i * TEGROUP_IMPL_QUANTIZE_COLS + o : e] = factor;
        small = small || (!global && tegroup_impl_small_factor(factor));
    }
    return small;
}

/* One by one, `rows` rows of n values: pieces at an edge, rows or columns that do not begin where vectors do, and
 * scales of any size. The piece's first value is in row `row`, column `col` of the tile, and in row r, column c. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_dequantize_each(const tegroup_impl_quantize_launch &call,
                                                                 const tegroup_impl_quantize_shared &shared,
                                                                 int columnwise, int32_t row, int32_t col, int64_t r,
                                                                 int64_t c, int32_t rows, int32_t n) {
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const tegroup_tensor &t = call.desc.output;
    for (int32_t i = 0; i < rows; i++)
        for (int32_t j = 0; j < n; j++) {
            float x, factor = *tegroup_impl_factors_of(call, shared, columnwise, call.outer_shift, row + i, col + j).at;
            x = tegroup_impl_f32_of_code(
                t.dtype, tegroup_impl_load_code(t.dtype, copy.data, tegroup_impl_element_of(&copy, r + i, c + j)));
            if (t.global_scale_inv) x = tegroup_impl_product_f32(x, factor), factor = t.global_scale_inv[shared.g];
            x = DTYPE == TEGROUP_DTYPE_F32 ? tegroup_impl_product_f32(x, factor)
                                           : tegroup_impl_any_odd_product(x, factor);
            tegroup_impl_store_f32((tegroup_dtype)DTYPE, shared.in.base,
                                   shared.in.first + (r + i) * shared.in.ld + c + j, x);
        }
}

/* A thread's piece of a tile: rows `row` .. row + 7, columns `col` .. col + 7. What is written is the call's input. */
template <int DTYPE> struct tegroup_impl_dequantize_piece {
    typedef tegroup_impl_eight<DTYPE> eight;
    enum { BYTES = DTYPE == TEGROUP_DTYPE_F32 ? 4 : 2, TILE = TEGROUP_IMPL_QUANTIZE_TILE };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    const int columnwise;
    int32_t row, col;
    int32_t rows, n; /* from the piece on that its part has */
    int64_t row0, col0;
    bool turned, vectors; /* are codes in shared memory, a row's eight and their values each in one access? */
    uint2 codes[8];

    __device__ tegroup_impl_dequantize_piece(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s)
        : call(c), shared(s), columnwise(c.copies >> TEGROUP_IMPL_COLUMNWISE & 1), row(0), col(0), rows(0), n(0),
          row0(0), col0(0), turned(false), vectors(false) {}

    __device__ __forceinline__ int64_t first() const { return shared.part * shared.part_rows + row0 + row; }
    __device__ __forceinline__ char *to() const {
        return shared.in.base + (shared.in.first + first() * shared.in.ld + col0 + col) * BYTES;
    }
    __device__ __forceinline__ tegroup_impl_factors factors(int of_columns) const {
        return tegroup_impl_factors_of(call, shared, of_columns, call.outer_shift, row, col);
    }

    /* Codes of rows into registers, those of a transposed copy into shared memory: begins before the scales are met. */
    template <int BITS> __device__ __forceinline__ void load(int64_t at_row, int64_t at_col) {
        const tegroup_impl_copy &copy = shared.copies[columnwise];
        row0 = at_row, col0 = at_col;
        row = tegroup_impl_thread() / 16 * 8, col = tegroup_impl_thread() % 16 * 8;
        rows = tegroup_impl_left_of(shared.part_rows - row0, row);
        n = tegroup_impl_left_of(shared.cols - col0, col);
        vectors = (((uintptr_t)to() | (uintptr_t)(shared.in.ld * BYTES)) & 15) == 0;
        turned = vectors && copy.at.col_stride != 1 && stage<BITS>(copy);
        const char *from = copy.data + tegroup_impl_element_of(&copy, first(), col0 + col) * BITS / 8;
        const int64_t step = copy.at.row_stride * BITS / 8;
        vectors = vectors && n >= 8
                  && (turned || (copy.at.col_stride == 1 && (((uintptr_t)from | (uintptr_t)step) & (BITS - 1)) == 0));
#pragma unroll
        for (int i = 0; i < 8; i++, from += step) {
            codes[i] = make_uint2(0, 0);
            if (vectors && !turned && i < rows)
                codes[i] = BITS == 8 ? __ldg((const uint2 *)from) : make_uint2(__ldg((const uint32_t *)from), 0);
        }
    }
    /* In the places that tegroup_impl_quantize_piece gives them, 16 bytes at a time where a column has no others. */
    template <int BITS> __device__ __forceinline__ bool stage(const tegroup_impl_copy &copy) {
        const int32_t count = 128 / BITS, pieces = TILE / count;
        const int64_t begin = shared.part * shared.part_rows + row0, step = copy.at.col_stride * BITS / 8;
        const char *from = copy.data + tegroup_impl_element_of(&copy, begin, col0) * BITS / 8;
        const int64_t there = (copy.at.col_stride - begin) / count;
        if ((((uintptr_t)from | (uintptr_t)step) & 15) != 0 || (copy.at.col_stride - begin) % count != 0) return false;
#pragma unroll
        for (int e = 0; e < pieces / 2; e++) {
            const int32_t at = tegroup_impl_thread() + e * TEGROUP_IMPL_QUANTIZE_THREADS, c = at / pieces,
                          piece = at % pieces;
            if (col0 + c < shared.cols && piece < there)
                shared.turned[tegroup_impl_turned_piece<BITS>(c, piece)] =
                    tegroup_impl_turned_order<BITS>(c, __ldg((const uint4 *)(from + c * step + piece * 16)));
        }
        return true;
    }

    /* The codes of column j, for eight rows, from shared memory. */
    template <int BITS> __device__ __forceinline__ uint2 column(int j) const {
        const uint32_t *from = (const uint32_t *)shared.turned + tegroup_impl_turned_at<BITS>(col + j, row);
        return BITS == 8 ? *(const uint2 *)from : make_uint2(*from, 0);
    }
    /* small: some factor is a small one. */
    template <int BITS> __device__ __forceinline__ void store(bool small) const {
        const float *global = BITS == 4 ? call.desc.output.global_scale_inv : NULL; /* two levels are of 4 bits */
        const bool two = global != NULL;
        const float of_group = two ? global[shared.g] : 1.0f;
        if (rows <= 0 || n <= 0) return;
        if (!vectors || (small && DTYPE != TEGROUP_DTYPE_F32))
            tegroup_impl_dequantize_each<DTYPE>(call, shared, columnwise, row, col, first(), col0 + col, min(8, rows),
                                                min(8, n));
        else if (turned) store_columns<BITS>(two, of_group);
        else if (columnwise) store_rows<BITS, 1>(two, of_group);
        else store_rows<BITS, 0>(two, of_group);
    }
    static __device__ __forceinline__ float multiply(float value, float factor, bool two, float of_group) {
        if (two) value = tegroup_impl_product_f32(value, factor);
        if (two) factor = of_group;
        return DTYPE == TEGROUP_DTYPE_F32 ? tegroup_impl_product_f32(value, factor)
                                          : tegroup_impl_odd_product(value, factor);
    }
    static __device__ __forceinline__ void store_row(char *at, const eight &values) {
#pragma unroll
        for (int k = 0; k < eight::raws; k++) ((uint4 *)at)[k] = values.raw[k];
    }
    template <int BITS, int COLUMNWISE> __device__ __forceinline__ void store_rows(bool two, float of_group) const {
        const tegroup_impl_factors of = factors(COLUMNWISE);
        char *at = to();
        float factor[8];
#pragma unroll
        for (int j = 0; j < 8 && COLUMNWISE; j++) factor[j] = of.at[j * of.step];
#pragma unroll
        for (int i = 0; i < 8; i++, at += shared.in.ld * BYTES) {
            eight values;
            float x[8];
            if (i >= rows) break;
            tegroup_impl_eight_values<BITS>(call.desc.output.dtype, codes[i], x);
            if (!COLUMNWISE) factor[0] = of.at[i * of.step];
#pragma unroll
            for (int j = 0; j < 8; j++) x[j] = multiply(x[j], factor[COLUMNWISE ? j : 0], two, of_group);
            values.pack(x);
            store_row(at, values);
        }
    }
    template <int BITS> __device__ __forceinline__ void store_columns(bool two, float of_group) const {
        const tegroup_impl_factors of = factors(TEGROUP_IMPL_COLUMNWISE);
        char *at = to();
        eight values[8];
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            float x[2][8];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float factor = of.at[(j + k) * of.step];
                tegroup_impl_eight_values<BITS>(call.desc.output.dtype, column<BITS>(j + k), x[k]);
#pragma unroll
                for (int i = 0; i < 8; i++) x[k][i] = multiply(x[k][i], factor, two, of_group);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) values[i].put(j, x[0][i], x[1][i]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++, at += shared.in.ld * BYTES)
            if (i < rows) store_row(at, values[i]);
    }
};

template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_DEQUANTIZE_RESIDENT(DTYPE))
    tegroup_impl_dequantize_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_TILE;
    tegroup_impl_quantize_walk walk(call, shared);
    tegroup_impl_dequantize_piece<DTYPE> piece(call, shared);
    for (int64_t work = walk.begin; work < walk.end; work += walk.step) {
        const bool meets = work == walk.begin || work >= shared.end;
        __syncthreads(); /* the table and the codes of the tile before have been read */
        if (meets) {
            if (threadIdx.x == 0) walk.meet(work);
            __syncthreads();
        }
        const int64_t in_part = work - shared.first, row0 = in_part / shared.across * tile,
                      col0 = in_part % shared.across * tile;
        if (!shared.copies[piece.columnwise].data) continue; /* so all threads do */
        if (tegroup_impl_bits(call.desc.output.dtype) == 8) piece.template load<8>(row0, col0);
        else piece.template load<4>(row0, col0);
        const bool small =
            __syncthreads_or(tegroup_impl_dequantize_scales(call, shared, piece.columnwise, row0, col0)) != 0;
        if (tegroup_impl_bits(call.desc.output.dtype) == 8) piece.template store<8>(small);
        else piece.template store<4>(small);
    }
}
