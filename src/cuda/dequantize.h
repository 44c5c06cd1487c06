/* ---- Dequantise ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/convert.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/quantize_copies.h"
#include "cuda/rows.h"
#include "cuda/quantize_values.h"
#include "cuda/quantize_walk.h"
#include "cuda/quantize_launch.h"

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

/* A scale, of type UNSET one: values are left as they are. */
static __device__ __forceinline__ float tegroup_impl_load_factor(tegroup_dtype dtype, const char *scales, int64_t i) {
    if (dtype == TEGROUP_DTYPE_UNSET) return 1;
    if (dtype == TEGROUP_DTYPE_F32) return ((const float *)scales)[i];
    if (dtype == TEGROUP_DTYPE_BF16) return tegroup_impl_f32_of_bf16(((const uint16_t *)scales)[i]);
    return dtype == TEGROUP_DTYPE_F8E8M0 ? tegroup_impl_f32_of_f8e8m0(((const uint8_t *)scales)[i])
                                         : tegroup_impl_f32_of_f8e4m3(((const uint8_t *)scales)[i]);
}

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
            float factor = tegroup_impl_load_factor(call.scale_dtype, copy.scales, of_block),
                  x = tegroup_impl_f32_of_code(t.dtype, tegroup_impl_load_code(t.dtype, copy.data, i));
            if (t.global_scale_inv) x = tegroup_impl_product_f32(x, factor), factor = t.global_scale_inv[shared.g];
            x = DTYPE == TEGROUP_DTYPE_F32 ? tegroup_impl_product_f32(x, factor)
                                           : tegroup_impl_any_odd_product(x, factor);
            tegroup_impl_store_f32((tegroup_dtype)DTYPE, shared.in.base, shared.in.first + at * shared.in.ld + col0 + c,
                                   x);
        }
}

/* How codes become values: their type; TWO: scales have two levels, of E2M1 alone; EXACT: a scale has at most 8
 * significant bits, so that products are exact in F32, but for some below 2^-138, which 16 bits have no number for. */
template <int CODE_, bool TWO_, bool EXACT_> struct tegroup_impl_dequantize_how {
    enum { CODE = CODE_, TWO = TWO_, EXACT = EXACT_, BITS = CODE == TEGROUP_DTYPE_F4E2M1 ? 4 : 8 };
};

/* A copy that lies transposed has a kernel of its own, beside the rowwise and the columnwise one. */
enum { TEGROUP_IMPL_TURNED_COPY = TEGROUP_IMPL_COPIES };

/* A thread's part of a tile: eight rows of eight columns. What is written is the call's input. All codes and scales of
 * a thread are under way before the first is looked at, and what they have in common is asked once for all of them. */
template <int DTYPE, int COPY> struct tegroup_impl_dequantize_piece {
    typedef tegroup_impl_eight<DTYPE> eight;
    enum { BYTES = eight::vectors::bytes, TURNS = COPY == TEGROUP_IMPL_TURNED_COPY, COLUMNWISE = COPY != 0 };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    const tegroup_impl_copy &copy;
    const bool two;         /* levels of scales */
    const int32_t row, col; /* the thread's first, in the tile */
    float of_group;
    int64_t row0, col0; /* the tile's first, in the part */
    int32_t rows, cols; /* from there on */

    __device__ tegroup_impl_dequantize_piece(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s)
        : call(c), shared(s), copy(s.copies[COLUMNWISE]), two(c.desc.output.global_scale_inv != NULL),
          row((int32_t)threadIdx.x >> (c.across_shift - 3) << 3),
          col(((int32_t)threadIdx.x << 3) & ((1 << c.across_shift) - 1)), of_group(1), row0(0), col0(0), rows(0),
          cols(0) {}

    __device__ __forceinline__ void meet() {
        if (two) of_group = call.desc.output.global_scale_inv[shared.g];
    }
    __device__ __forceinline__ void at(int64_t tile_row, int64_t tile_col) {
        row0 = tile_row, col0 = tile_col;
        rows = (int32_t)tegroup_impl_min(1 << call.down_shift, shared.part_rows - row0);
        cols = (int32_t)tegroup_impl_min(1 << call.across_shift, shared.cols - col0);
    }
    __device__ __forceinline__ int64_t first() const { return shared.part * shared.part_rows + row0; }
    /* Where the codes from element (r, c) of the tile on begin. */
    template <int BITS> __device__ __forceinline__ const char *from(int32_t r, int32_t c) const {
        return copy.data + tegroup_impl_element_of(&copy, first() + r, col0 + c) * BITS / 8;
    }

    /* The thread's eight scales, one for each row, or of a columnwise copy for each column: their bits, and below what
     * they mean, which returns whether products need more care. Eight lie within 32 that the swizzled layout has beside
     * each other. */
    __device__ __forceinline__ void load_scales(uint32_t *bits) const {
        const tegroup_impl_scale_grid &grid = copy.grid;
        const int64_t r = row0 + row, c = col0 + col,
                      at = tegroup_impl_scale_of_block(&grid, shared.part, (COLUMNWISE ? c : r) >> grid.outer_shift,
                                                       (COLUMNWISE ? r : c) >> grid.inner_shift),
                      step = grid.outer_shift > 0 ? 0
                             : grid.swizzled      ? 16
                                                  : grid.outer_stride;
        if (call.scale_dtype == TEGROUP_DTYPE_F32) {
#pragma unroll
            for (int k = 0; k < 8; k++) bits[k] = exists(k) ? ((const uint32_t *)copy.scales)[at + k * step] : 0;
        } else if (call.scale_dtype == TEGROUP_DTYPE_BF16) {
#pragma unroll
            for (int k = 0; k < 8; k++) bits[k] = exists(k) ? ((const uint16_t *)copy.scales)[at + k * step] : 0;
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++)
                bits[k] = call.scale_dtype != TEGROUP_DTYPE_UNSET && exists(k)
                              ? ((const uint8_t *)copy.scales)[at + k * step]
                              : 0;
        }
    }
    __device__ __forceinline__ bool exists(int32_t k) const {
        return row + (COLUMNWISE ? 0 : k) < rows && col + (COLUMNWISE ? k : 0) < cols;
    }
    template <typename HOW> __device__ __forceinline__ bool scales_of(const uint32_t *bits, float *scale) const {
        enum { ROUNDS = DTYPE != TEGROUP_DTYPE_F32 && !HOW::EXACT, SINGLE = ROUNDS && !HOW::TWO };
        bool small = ROUNDS && HOW::TWO && tegroup_impl_small_factor(of_group);
        if (call.scale_dtype == TEGROUP_DTYPE_F8E8M0) {
#pragma unroll
            for (int k = 0; k < 8; k++) scale[k] = tegroup_impl_f32_of_f8e8m0((uint8_t)bits[k]);
        } else if (call.scale_dtype == TEGROUP_DTYPE_F8E4M3) {
#pragma unroll
            for (int k = 0; k < 8; k++) scale[k] = tegroup_impl_f32_of_f8e4m3((uint8_t)bits[k]);
        } else if (call.scale_dtype == TEGROUP_DTYPE_BF16) {
#pragma unroll
            for (int k = 0; k < 8; k++) scale[k] = tegroup_impl_f32_of_bf16((uint16_t)bits[k]);
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++)
                scale[k] = call.scale_dtype == TEGROUP_DTYPE_UNSET ? 1.0f : __uint_as_float(bits[k]);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) small = small || (SINGLE && tegroup_impl_small_factor(scale[k]));
        return small;
    }

    /* Eight values of row i from their codes. */
    template <typename HOW>
    __device__ __forceinline__ void store(uint2 codes, const float *scale, int i, char *out) const {
        eight values;
        float x[8];
        tegroup_impl_eight_values<HOW::CODE>(codes, x);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float by = scale[COLUMNWISE ? j : i];
            if (HOW::TWO) x[j] = tegroup_impl_product_f32(x[j], by), by = of_group;
            x[j] = DTYPE == TEGROUP_DTYPE_F32 || HOW::EXACT ? tegroup_impl_product_f32(x[j], by)
                                                            : tegroup_impl_odd_product(x[j], by);
        }
        values.pack(x);
        values.store_vectors(out);
    }

    /* Turns a tile of 128 x 128 codes: as bytes, four columns to a word, 32 words to a row. A thread has 16 rows of
     * four columns. Words of a row are permuted by its number, so that neither those who write nor those who read meet
     * in a bank. */
    static __device__ __forceinline__ int32_t turned_at(int32_t r, int32_t word) {
        return r * 32 + (word ^ r / 16 * 4);
    }
    template <typename HOW>
    __device__ __forceinline__ void turn(const char *tile, int64_t step, uint32_t *turned) const {
        enum { BITS = HOW::BITS };
        const int32_t r = (int32_t)threadIdx.x % 8 * 16, word = (int32_t)threadIdx.x / 8;
        const char *const in = tile + word * 4 * step + r * BITS / 8;
        uint32_t x[4][4]; /* [column][four rows; of 4 bits, every second of eight] */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (r < rows && word * 4 + k < cols) {
                if (BITS == 8) v = *(const uint4 *)(in + k * step);
                else {
                    const uint2 two = *(const uint2 *)(in + k * step);
                    v = make_uint4(two.x & 0x0f0f0f0fu, two.x >> 4 & 0x0f0f0f0fu, two.y & 0x0f0f0f0fu,
                                   two.y >> 4 & 0x0f0f0f0fu);
                }
            }
            x[k][0] = v.x, x[k][1] = v.y, x[k][2] = v.z, x[k][3] = v.w;
        }
        __syncthreads(); /* what was turned before has been read */
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t two = j < 2 ? 0x5140 : 0x7362, half = j % 2 ? 0x7632 : 0x5410;
                turned[turned_at(r + (BITS == 8 ? i * 4 + j : i / 2 * 8 + j * 2 + i % 2), word)] =
                    __byte_perm(__byte_perm(x[0][i], x[1][i], two), __byte_perm(x[2][i], x[3][i], two), half);
            }
        __syncthreads();
    }
    template <typename HOW> __device__ __forceinline__ uint2 turned_codes(const uint32_t *turned, int32_t r) const {
        const uint2 bytes = *(const uint2 *)(turned + turned_at(r, col / 4));
        if (HOW::BITS == 8) return bytes;
        return make_uint2(__byte_perm(bytes.x | bytes.x >> 4, bytes.y | bytes.y >> 4, 0x6420), 0);
    }

    template <typename HOW> __device__ __forceinline__ void tile(const uint32_t *bits) const {
        enum { BITS = HOW::BITS };
        const int64_t step = (TURNS ? copy.at.col_stride : copy.at.row_stride) * BITS / 8,
                      out_step = shared.in.ld * BYTES;
        const char *in = TURNS ? from<BITS>(0, 0) : from<BITS>(row, col);
        char *out = shared.in.base + (shared.in.first + (first() + row) * shared.in.ld + col0 + col) * BYTES;
        uint32_t *const turned = (uint32_t *)tegroup_impl_quantize_memory();
        const bool aligned = (((uintptr_t)in | (uintptr_t)step) & (TURNS ? 2 * BITS - 1 : BITS - 1)) == 0;
        bool careful = !aligned || col + 8 > cols || (((uintptr_t)out | (uintptr_t)out_step) & 15) != 0;
        float scale[8];
        uint2 codes[8];
        if (TURNS && aligned) turn<HOW>(in, step, turned); /* by all threads */
        if (row >= rows || col >= cols) return;
#pragma unroll
        for (int i = 0; i < 8; i++, in += step) {
            codes[i] = make_uint2(0, 0);
            if (!TURNS && !careful && row + i < rows)
                codes[i] = BITS == 8 ? *(const uint2 *)in : make_uint2(*(const uint32_t *)in, 0);
        }
        careful = scales_of<HOW>(bits, scale) || careful;
        if (careful) {
            tegroup_impl_dequantize_each<DTYPE>(call, shared, COLUMNWISE, row0, col0, row, col, min(rows, row + 8),
                                                min(cols, col + 8));
            return;
        }
#pragma unroll(TURNS ? 2 : 8)
        for (int i = 0; i < 8; i++, out += out_step)
            if (row + i < rows) store<HOW>(TURNS ? turned_codes<HOW>(turned, row + i) : codes[i], scale, i, out);
    }

    /* Asks once a work what all of its products have in common. */
    __device__ __forceinline__ void values() const {
        const bool exact = call.scale_dtype != TEGROUP_DTYPE_F32;
        uint32_t bits[8];
        load_scales(bits);
        if (call.desc.output.dtype == TEGROUP_DTYPE_F4E2M1) {
            if (two) tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F4E2M1, true, false>>(bits);
            else if (exact) tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F4E2M1, false, true>>(bits);
            else tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F4E2M1, false, false>>(bits);
        } else if (call.desc.output.dtype == TEGROUP_DTYPE_F8E5M2) {
            if (exact) tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E5M2, false, true>>(bits);
            else tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E5M2, false, false>>(bits);
        } else {
            if (exact) tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E4M3, false, true>>(bits);
            else tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E4M3, false, false>>(bits);
        }
    }
};

/* A work is a tile. */
template <int DTYPE, int COPY>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_DEQUANTIZE_RESIDENT)
    tegroup_impl_dequantize_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<false> walk(call, shared);
    tegroup_impl_dequantize_piece<DTYPE, COPY> piece(call, shared);
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

template <int DTYPE> static inline tegroup_impl_quantize_kernel_type *tegroup_impl_dequantize_kernel_of(int copy) {
    return copy == TEGROUP_IMPL_TURNED_COPY  ? tegroup_impl_dequantize_kernel<DTYPE, TEGROUP_IMPL_TURNED_COPY>
           : copy == TEGROUP_IMPL_COLUMNWISE ? tegroup_impl_dequantize_kernel<DTYPE, TEGROUP_IMPL_COLUMNWISE>
                                             : tegroup_impl_dequantize_kernel<DTYPE, TEGROUP_IMPL_ROWWISE>;
}

/* call: of the tensor that is read, and of one copy; its input is what is written. most: blocks; 0: as many as have
 * room. */
static inline tegroup_status tegroup_impl_cuda_dequantize_copy(tegroup_impl_quantize_launch call, unsigned most,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int columnwise = call.copies >> TEGROUP_IMPL_COLUMNWISE & 1,
              turned = tegroup_impl_transposed(&call.desc.output, columnwise),
              copy = turned ? TEGROUP_IMPL_TURNED_COPY : columnwise;
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_SHIFT,
                  across = turned ? tile : tegroup_impl_cuda_strip_shift(call.desc.output.shape.cols);
    tegroup_impl_quantize_kernel_type *const kernel =
        call.desc.input.dtype == TEGROUP_DTYPE_F32   ? tegroup_impl_dequantize_kernel_of<TEGROUP_DTYPE_F32>(copy)
        : call.desc.input.dtype == TEGROUP_DTYPE_F16 ? tegroup_impl_dequantize_kernel_of<TEGROUP_DTYPE_F16>(copy)
                                                     : tegroup_impl_dequantize_kernel_of<TEGROUP_DTYPE_BF16>(copy);
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&call, 2 * tile - across, across,
                                                       TEGROUP_IMPL_DEQUANTIZE_RESIDENT, &blocks, error));
    if (most > 0 && blocks > most) blocks = most;
    return tegroup_impl_cuda_quantize_launch_kernel(kernel, &call, blocks, turned ? TEGROUP_IMPL_QUANTIZE_STAGED : 0,
                                                    stream, error);
}
