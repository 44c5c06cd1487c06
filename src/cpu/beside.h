/* ---- CPU products of few rows, lines side by side ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "base/linkage.h"
#include "formats/dtype.h"
#include "cpu/vectors.h"
#include "cpu/gemm_kernel.h"
#include "cpu/few.h"

/* Lines of B whose elements of one k are neighbours, as of [in, out] weights and of weights in a dgrad, are vectors as
 * they lie. Few rows are multiplied by them there, and nothing is packed but A. Bits are those of the tile that packs
 * B: each element of D is one chain of additions over k. */
#if defined(TEGROUP_IMPL_CPU_LANES)
enum { TEGROUP_IMPL_BESIDE_VECTORS = TEGROUP_IMPL_MICRO_N_f32 / TEGROUP_IMPL_CPU_LANES }; /* in a panel's width */

/* sums[rows][`vectors` vectors of lines] += a[k][MICRO_M] * the lines' k elements. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_beside_typed(tegroup_dtype dtype, int32_t rows, int32_t vectors,
                                                       const char *at, int64_t stride_bytes, int32_t k, const float *a,
                                                       float *sums) {
    const int32_t bytes = tegroup_impl_bits(dtype) / 8 * TEGROUP_IMPL_CPU_LANES;
    tegroup_impl_lanes s[TEGROUP_IMPL_MICRO_M][TEGROUP_IMPL_BESIDE_VECTORS];
    int32_t kk, r, v;
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        TEGROUP_IMPL_UNROLL
        for (v = 0; v < vectors; v++)
            s[r][v] = ((const tegroup_impl_lanes *)(const void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N))[v];
    }
    for (kk = 0; kk < k; kk++, at += stride_bytes, a += TEGROUP_IMPL_MICRO_M) {
        TEGROUP_IMPL_FORESEE(at + tegroup_impl_cpu_ahead(kk, k, stride_bytes, vectors * bytes), vectors * bytes);
        TEGROUP_IMPL_UNROLL
        for (v = 0; v < vectors; v++) {
            const tegroup_impl_lanes b = tegroup_impl_cpu_widen(dtype, at + v * bytes);
            TEGROUP_IMPL_UNROLL
            for (r = 0; r < rows; r++) s[r][v] += a[r] * b;
        }
    }
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        TEGROUP_IMPL_UNROLL
        for (v = 0; v < vectors; v++) ((tegroup_impl_lanes *)(void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N))[v] = s[r][v];
    }
}

/* The same for a panel's width of lines and up to FEW rows. More than six rows have registers for two vectors of lines
 * at a time. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_beside_rows(tegroup_dtype dtype, int32_t m, const char *at,
                                                      int64_t stride_bytes, int32_t k, const float *a, float *sums) {
    enum { MICRO_M = TEGROUP_IMPL_MICRO_M, VECTORS = TEGROUP_IMPL_BESIDE_VECTORS };
    int32_t i, v;
    for (i = 0; i < m; i += MICRO_M, a += MICRO_M * k, sums += MICRO_M * TEGROUP_IMPL_CPU_TILE_N) {
        const int32_t left = m - i;
        if (MICRO_M > 6 && left > 6)
            for (v = 0; v < VECTORS; v += 2) {
                const char *from = at + v * TEGROUP_IMPL_CPU_LANES * (tegroup_impl_bits(dtype) / 8);
                float *to = sums + v * TEGROUP_IMPL_CPU_LANES;
                if (left > 8) tegroup_impl_cpu_beside_typed(dtype, MICRO_M, 2, from, stride_bytes, k, a, to);
                else tegroup_impl_cpu_beside_typed(dtype, 8, 2, from, stride_bytes, k, a, to);
            }
        else if (left > 4) tegroup_impl_cpu_beside_typed(dtype, 6, VECTORS, at, stride_bytes, k, a, sums);
        else if (left > 2) tegroup_impl_cpu_beside_typed(dtype, 4, VECTORS, at, stride_bytes, k, a, sums);
        else if (left > 1) tegroup_impl_cpu_beside_typed(dtype, 2, VECTORS, at, stride_bytes, k, a, sums);
        else tegroup_impl_cpu_beside_typed(dtype, 1, VECTORS, at, stride_bytes, k, a, sums);
    }
}

/* sums[m][lines] += packed A * `lines` lines of B. Returns k, or 0 where the product is none of these. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_cpu_beside_f32(tegroup_dtype dtype, const void *data, int64_t first,
                                                        int64_t stride_line, int64_t stride_k, int32_t m, int32_t lines,
                                                        int32_t k, const float *a, float *sums) {
    const int32_t bytes = tegroup_impl_bits(dtype) / 8;
    const char *at = (const char *)data + first * bytes;
    if (m > TEGROUP_IMPL_FEW || stride_line != 1 || lines != TEGROUP_IMPL_MICRO_N_f32) return 0;
    stride_k *= bytes;
    if (dtype == TEGROUP_DTYPE_F32) tegroup_impl_cpu_beside_rows(TEGROUP_DTYPE_F32, m, at, stride_k, k, a, sums);
    else if (dtype == TEGROUP_DTYPE_BF16) tegroup_impl_cpu_beside_rows(TEGROUP_DTYPE_BF16, m, at, stride_k, k, a, sums);
    else if (dtype == TEGROUP_DTYPE_F16) tegroup_impl_cpu_beside_rows(TEGROUP_DTYPE_F16, m, at, stride_k, k, a, sums);
    else return 0;
    return k;
}
#else
#define tegroup_impl_cpu_beside_f32(dtype, data, first, stride_line, stride_k, m, lines, k, a, sums) 0
#endif
#define tegroup_impl_cpu_beside_f64(dtype, data, first, stride_line, stride_k, m, lines, k, a, sums) 0
