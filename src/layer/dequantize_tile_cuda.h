/* ---- Dequantise: a tile, and the kernel ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "layer/quantize.h"
#include "layer/quantize_values_cuda.h"
#include "layer/quantize_walk_cuda.h"

/* A product of two factors, rounded to odd, so that a second rounding to 16 bits gives what one would have given. */
static __device__ __forceinline__ float tegroup_impl_odd_product(float a, float b) {
    float product, rest;
    asm("mul.rz.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    const uint32_t bits = __float_as_uint(product), magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x0d800000u || magnitude >= 0x7f800000u) /* below 2^-100 the rest would be lost */
        return tegroup_impl_f32_odd_of_f64(tegroup_impl_f64_of_f32(a) * tegroup_impl_f64_of_f32(b));
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(rest) : "f"(a), "f"(b), "f"(__uint_as_float(bits ^ 0x80000000u)));
    return __uint_as_float(bits | (rest != 0.0f ? 1u : 0u));
}

/* As tegroup_impl_dequantized: the product of a value, its scale and, beside scales of E4M3, the global one. The first
 * product is exact there. */
template <int DTYPE>
static __device__ __forceinline__ float tegroup_impl_scaled_back(float x, float scale, bool two, float global) {
    if (two) {
        x = tegroup_impl_product_f32(x, scale);
        scale = global;
    }
    x = DTYPE == TEGROUP_DTYPE_F32 ? tegroup_impl_product_f32(x, scale) : tegroup_impl_odd_product(x, scale);
    return tegroup_impl_is_nan(x) ? __uint_as_float(0x7fffffffu) : x;
}

typedef struct tegroup_impl_dequantize_launch {
    tegroup_impl_quantize_launch from; /* its output is what is read */
    tegroup_tensor output;
} tegroup_impl_dequantize_launch;

/* The scales of a tile, to the table of factors: [row][block], columnwise [block][column], by blocks of both. */
static __device__ __noinline__ void tegroup_impl_dequantize_scales(const tegroup_impl_quantize_launch &call,
                                                                   tegroup_impl_quantize_shared &shared, int columnwise,
                                                                   int64_t row0, int64_t col0, int32_t block,
                                                                   int32_t span) {
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const int32_t outers = TEGROUP_IMPL_QUANTIZE_TILE / block, inners = TEGROUP_IMPL_QUANTIZE_TILE / span;
    const int64_t outer0 = columnwise ? col0 : row0, inner0 = columnwise ? row0 : col0;
    for (int32_t e = (int32_t)threadIdx.x; e < outers * inners; e += TEGROUP_IMPL_QUANTIZE_THREADS) {
        const int32_t o = e / inners, i = e % inners;
        const int64_t outer = (outer0 + o * block) / copy.grid.block_outer,
                      inner = (inner0 + i * span) / copy.grid.block_inner;
        if (outer < copy.grid.outer_count && inner < copy.grid.inner_count)
            shared.factor[columnwise][columnwise ? i * TEGROUP_IMPL_QUANTIZE_COLS + o : o * inners + i] =
                tegroup_impl_load_f32(call.scale_dtype, copy.scales,
                                      tegroup_impl_scale_of_block(&copy.grid, shared.part, outer, inner));
    }
}

/* A tile: a thread writes eight columns of a row at a time, of its eight rows. */
template <int DTYPE, int CODE>
static __device__ __forceinline__ void tegroup_impl_dequantize_tile(const tegroup_impl_dequantize_launch &call,
                                                                    const tegroup_impl_quantize_shared &shared,
                                                                    const tegroup_impl_block &out, int64_t row0,
                                                                    int64_t col0, int32_t block, int32_t span) {
    const tegroup_tensor &t = call.from.desc.output;
    const int columnwise = call.from.copies >> TEGROUP_IMPL_COLUMNWISE & 1, bits = CODE == TEGROUP_DTYPE_F4E2M1 ? 4 : 8;
    const int32_t row = (int32_t)threadIdx.x / 16 * 8, col = (int32_t)threadIdx.x % 16 * 8,
                  n = (int32_t)tegroup_impl_clamp(shared.cols - col0 - col, 0, 8);
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const float global = t.global_scale_inv ? t.global_scale_inv[shared.g] : 1.0f;
    for (int i = 0; i < 8 && row0 + row + i < shared.part_rows && n > 0; i++) {
        const int64_t r = shared.part * shared.part_rows + row0 + row + i,
                      at = tegroup_impl_element_of(&copy, r, col0 + col);
        const char *from = copy.data + at * bits / 8;
        char *to = out.base + (out.first + r * out.ld + col0 + col) * (DTYPE == TEGROUP_DTYPE_F32 ? 4 : 2);
        const bool together = n == 8 && copy.at.col_stride == 1 && ((uintptr_t)from & (bits - 1)) == 0;
        uint2 codes = make_uint2(0, 0);
        float y[8];
        if (together) codes = bits == 8 ? *(const uint2 *)from : make_uint2(*(const uint32_t *)from, 0);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int32_t entry = columnwise
                                      ? (row + i) / span * TEGROUP_IMPL_QUANTIZE_COLS + (col + j) / block
                                      : (row + i) / block * (TEGROUP_IMPL_QUANTIZE_TILE / span) + (col + j) / span;
            uint32_t code = (bits == 8 && j >= 4 ? codes.y : codes.x) >> j % (32 / bits) * bits & ((1u << bits) - 1);
            if (!together && j < n)
                code = tegroup_impl_load_code((tegroup_dtype)CODE, copy.data, at + j * copy.at.col_stride);
            y[j] =
                tegroup_impl_scaled_back<DTYPE>(tegroup_impl_f32_of_code((tegroup_dtype)CODE, code),
                                                shared.factor[columnwise][entry], t.global_scale_inv != NULL, global);
        }
        if (n == 8 && ((uintptr_t)to & 15) == 0) {
            tegroup_impl_eight<DTYPE> packed;
            packed.pack(y);
#pragma unroll
            for (int j = 0; j < tegroup_impl_eight<DTYPE>::raws; j++) ((uint4 *)to)[j] = packed.raw[j];
            continue;
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j < n) tegroup_impl_store_f32((tegroup_dtype)DTYPE, to, j, y[j]);
    }
}

template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS)
    tegroup_impl_dequantize_kernel(const __grid_constant__ tegroup_impl_dequantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    const tegroup_impl_quantize_launch &from = call.from;
    const int columnwise = from.copies >> TEGROUP_IMPL_COLUMNWISE & 1;
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_TILE, block = from.facts.block_outer > 0 ? from.facts.block_outer : tile,
                  span = from.facts.block_inner > 0 ? from.facts.block_inner : tile;
    tegroup_impl_quantize_walk walk(from, shared);
    for (int64_t work = walk.begin; work < walk.end; work++) {
        const bool meets = work == walk.begin || work >= shared.end;
        __syncthreads(); /* the table of the tile before has been read */
        if (meets) {
            if (threadIdx.x == 0) walk.meet(work);
            __syncthreads();
        }
        const int64_t in_part = work - shared.first, row0 = in_part / shared.across * tile,
                      col0 = in_part % shared.across * tile;
        const tegroup_impl_block out = tegroup_impl_locate(&call.output, &walk.view, shared.g);
        if (!shared.copies[columnwise].data) continue; /* so all threads do */
        tegroup_impl_dequantize_scales(from, shared, columnwise, row0, col0, block, span);
        __syncthreads();
        switch (from.desc.output.dtype) {
#define TEGROUP_IMPL_CASE(code)                                                                                        \
    case code: tegroup_impl_dequantize_tile<DTYPE, code>(call, shared, out, row0, col0, block, span); break;
            TEGROUP_IMPL_CASE(TEGROUP_DTYPE_F8E5M2)
            TEGROUP_IMPL_CASE(TEGROUP_DTYPE_F4E2M1)
        default: tegroup_impl_dequantize_tile<DTYPE, TEGROUP_DTYPE_F8E4M3>(call, shared, out, row0, col0, block, span);
#undef TEGROUP_IMPL_CASE
        }
    }
}
