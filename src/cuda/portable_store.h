/* ---- Portable GEMM: storing, and where fragments lie ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/gemm_types.h"
#include "formats/convert.h"
#include "cuda/rows.h"
#include "cuda/functor.h"
#include "cuda/call.h"
#include "cuda/portable_tiles.h"

/* Loads eight neighbours of BF16, FP16 or FP32, of which `count` exist, as floats; in one or two loads if their address
 * is aligned. */
static __device__ __forceinline__ void tegroup_impl_gpu_load8(tegroup_dtype dtype, const char *from, int32_t count,
                                                              float (&x)[8]) {
    if (count == 8 && ((uintptr_t)from & 15) == 0) {
        uint4 low = *(const uint4 *)from, high = low;
        if (dtype == TEGROUP_DTYPE_F32) high = ((const uint4 *)from)[1];
        const uint32_t word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const bool bf16 = dtype == TEGROUP_DTYPE_BF16;
            x[i] = dtype == TEGROUP_DTYPE_F32 ? tegroup_impl_f32_of_bits(word[i])
                   : i % 2                    ? tegroup_impl_high_half(word[i / 2], bf16)
                                              : tegroup_impl_low_half(word[i / 2], bf16);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < count ? tegroup_impl_gpu_load(dtype, from, i) : 0.0f;
}

static __device__ __forceinline__ void tegroup_impl_gpu_store8(tegroup_dtype dtype, char *to, int32_t count,
                                                               const float (&x)[8]) {
    const bool f32 = dtype == TEGROUP_DTYPE_F32, bf16 = dtype == TEGROUP_DTYPE_BF16;
    const bool whole = count == 8 && ((uintptr_t)to & 15) == 0;
    if (f32) {
        if (whole) {
            ((float4 *)to)[0] = make_float4(x[0], x[1], x[2], x[3]);
            ((float4 *)to)[1] = make_float4(x[4], x[5], x[6], x[7]);
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < count) ((float *)to)[i] = x[i];
        return;
    }
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) word[i] = tegroup_impl_two_halves(x[2 * i], x[2 * i + 1], bf16);
    if (whole) {
        *(uint4 *)to = make_uint4(word[0], word[1], word[2], word[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) ((uint16_t *)to)[i] = (uint16_t)(word[i / 2] >> i % 2 * 16);
}

/* What the functor makes of an element, in row `line` and column `col` of its tile, all of which exist if WHOLE. */
template <bool WHOLE, typename FUNCTOR>
static __device__ __forceinline__ float tegroup_impl_gpu_apply(const tegroup_impl_gpu_tile &tile, int line, int col,
                                                               float x, const FUNCTOR &functor) {
    tegroup_element at;
    if (!WHOLE && (line >= tile.m || col >= tile.n)) return x; /* it is not stored */
    at.group = tile.group;
    at.row = tile.row + line;
    at.col = tile.col + col;
    return functor(x, at);
}

/* Finishes and stores eight sums of row `line` from column `first` on, both counted within the tile: D = alpha * sum +
 * beta * C + scale * bias, or what the functor makes of it. The tile is a copy in registers, since the compiler cannot
 * know that stores to D leave shared memory unchanged. */
template <typename FUNCTOR>
static __device__ __forceinline__ void tegroup_impl_gpu_finish(const tegroup_gemm_desc &desc,
                                                               const tegroup_impl_gpu_tile &tile, int line, int first,
                                                               const float *sums, const FUNCTOR &functor) {
    const bool empty = tile.k == 0; /* an empty sum adds nothing, not even alpha * 0 */
    const int32_t count = tile.n - first < 8 ? tile.n - first : 8, bytes = desc.d.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
    const float4 low = ((const float4 *)sums)[0], high = ((const float4 *)sums)[1];
    float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, y[8];
    if (line >= tile.m || count <= 0) return;
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = empty ? 0.0f : tegroup_impl_gpu_mul(tile.alpha, x[e]);
    if (tile.reads_c) {
        tegroup_impl_gpu_load8(desc.d.dtype, tile.c + line * tile.c_row + first * bytes, count, y);
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[e] = empty ? tegroup_impl_gpu_mul(tile.beta, y[e]) : tegroup_impl_gpu_fma(tile.beta, y[e], x[e]);
    }
    if (tile.bias) {
        const float by = tile.scale ? tegroup_impl_gpu_load_scale(desc.row_scale_dtype, tile.scale, line) : 1.0f;
        tegroup_impl_gpu_load8(desc.bias.dtype, tile.bias + first * (desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2),
                               count, y);
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = tegroup_impl_gpu_fma(by, y[e], x[e]);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = tegroup_impl_gpu_apply<false>(tile, line, first + e, x[e], functor);
    tegroup_impl_gpu_store8(desc.d.dtype, tile.d + line * tile.d_row + first * bytes, count, x);
}

/* Whether the result is alpha times the sum and nothing else, of two-byte elements, in whole 16-byte pieces. */
static __device__ __forceinline__ bool tegroup_impl_gpu_plain(const tegroup_gemm_desc &desc,
                                                              const tegroup_impl_gpu_tile &tile) {
    return tile.k > 0 && !tile.reads_c && !tile.bias && desc.d.dtype != TEGROUP_DTYPE_F32
           && (((uintptr_t)tile.d | (uintptr_t)tile.d_row | (uintptr_t)tile.n * 2) & 15) == 0;
}

/* Where a lane reads its row r of a fragment's 8x8 matrix. `line` is the warp's first line; upper and later (0 or 1)
 * say whether the lane's matrix is the one of the upper eight lines, and of the later eight k. */
template <bool ALONG_K>
static __device__ __forceinline__ uint32_t tegroup_impl_fragments(int line, int upper, int later, int r) {
    return ALONG_K ? (uint32_t)((line + upper * 8 + r) * 128 + (later ^ r) * 16)
                   : (uint32_t)(line / 64 * 8192 + (later * 8 + r) * 128 + ((line % 64 / 8 + upper) ^ r) * 16);
}

/* The same for the kk-th k16 and the i-th 16 lines. Chunks are permuted by XOR, so the address of another 16 elements
 * is an XOR, too; in panels this holds because a warp's first line is a multiple of 32. skip: the bytes of a panel if
 * that line is in the middle of one, since the next panel then begins at i = 2; else 0. */
template <bool ALONG_K>
static __device__ __forceinline__ uint32_t tegroup_impl_fragment(uint32_t at, uint32_t skip, int kk, int i) {
    return ALONG_K ? (at ^ (uint32_t)(kk * 32)) + (uint32_t)(i * 16 * 128)
                   : (at ^ (uint32_t)(i % 4 * 32)) + (uint32_t)(kk * 16 * 128 + i / 4 * 8192) + (i % 4 >= 2 ? skip : 0);
}
