/* ---- Portable GEMM: the FP32 kernel ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/gemm_types.h"
#include "cuda/rows.h"
#include "cuda/functor.h"
#include "cuda/call.h"
#include "cuda/portable_tiles.h"
#include "cuda/portable_store.h"

/* Plain FMA: 64 x 64 tiles, 4 x 4 elements a thread, and one chain of FMAs over k for each element. MIXED: B is of F16
 * or BF16, and widened, exactly, on its way to shared memory. Its steps are of twice as many k, so that as many bytes
 * of weights are on their way at a time. k is filled up with zeros to whole sixteens, no further, and so the bits are
 * those of the same weights in F32. */
template <int OP, bool MIXED>
static __global__ void __launch_bounds__(256)
    tegroup_impl_portable_f32_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    constexpr int TILE = 64, SIXTEEN = 16, TILE_K = MIXED ? 2 * SIXTEEN : SIXTEEN, B_BYTES = MIXED ? 2 : 4;
    __shared__ __align__(16) float a[TILE_K][TILE + 4], b[TILE_K][TILE + 4], sums[TILE * (TILE + 8)];
    __shared__ tegroup_impl_gpu_tile tile;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    __shared__ tegroup_impl_gpu_walk<TILE, TILE> walk;
    const bool bf16 = call.desc.b.dtype == TEGROUP_DTYPE_BF16;
    if (threadIdx.x < 32) walk.begin(call);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads();
        if (threadIdx.x < 32) walk.find(call, t, threadIdx.x == 0 ? &tile : NULL);
        __syncthreads();
        if (!tile.valid) break;
        constexpr bool A_ALONG_K = OP != TEGROUP_OP_WGRAD, B_ALONG_K = OP == TEGROUP_OP_FORWARD;
        const int64_t a_line = A_ALONG_K ? tile.a_row / 4 : 1, a_k = A_ALONG_K ? 1 : tile.a_row / 4;
        const int64_t b_line = B_ALONG_K ? tile.b_row / B_BYTES : 1, b_k = B_ALONG_K ? 1 : tile.b_row / B_BYTES;
        float sum[4][4] = {};
        for (int64_t k0 = 0; k0 < tile.k; k0 += TILE_K) {
            for (int e = (int)threadIdx.x; e < TILE * TILE_K;
                 e += 256) { /* threads run along the contiguous direction */
                const int la = !A_ALONG_K ? e % TILE : e / TILE_K, ka = !A_ALONG_K ? e / TILE : e % TILE_K;
                const int lb = B_ALONG_K ? e / TILE_K : e % TILE, kb = B_ALONG_K ? e % TILE_K : e / TILE;
                const bool in_a = la < tile.m && k0 + ka < tile.k, in_b = lb < tile.n && k0 + kb < tile.k;
                a[ka][la] = in_a ? ((const float *)tile.a)[la * a_line + (k0 + ka) * a_k] : 0.0f;
                const int64_t at_b = lb * b_line + (k0 + kb) * b_k;
                if (MIXED) b[kb][lb] = in_b ? tegroup_impl_low_half(((const uint16_t *)tile.b)[at_b], bf16) : 0.0f;
                else b[kb][lb] = in_b ? ((const float *)tile.b)[at_b] : 0.0f;
            }
            __syncthreads();
#pragma unroll 1
            for (int first = 0; first < TILE_K && k0 + first < tile.k; first += SIXTEEN)
#pragma unroll
                for (int kk = first; kk < first + SIXTEEN; kk++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int j = 0; j < 4; j++)
                            sum[i][j] = tegroup_impl_gpu_fma(a[kk][ty * 4 + i], b[kk][tx * 4 + j], sum[i][j]);
            __syncthreads();
        }
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) sums[(ty * 4 + i) * (TILE + 8) + tx * 4 + j] = sum[i][j];
        __syncthreads();
        const tegroup_impl_gpu_tile here = tile;
#pragma unroll 1
        for (int e = (int)threadIdx.x; e < TILE * TILE / 8; e += 256)
            tegroup_impl_gpu_finish(call.desc, here, e / (TILE / 8), e % (TILE / 8) * 8,
                                    sums + e / (TILE / 8) * (TILE + 8) + e % (TILE / 8) * 8, tegroup_impl_as_is());
    }
}
