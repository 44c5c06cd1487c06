/* ---- CPU products of few rows, lines transposed ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "base/linkage.h"
#include "formats/dtype.h"
#include "cpu/vectors.h"
#include "cpu/gemm_kernel.h"

/* No more rows are multiplied by lines of B as these are transposed: one panel of A or two, for all of k that their
 * room holds. */
#define TEGROUP_IMPL_FEW          12
#define TEGROUP_IMPL_CPU_FEW_ROOM (144 * TEGROUP_IMPL_CPU_TILE_K) /* of panels of A: as many as few rows fill */

#if defined(TEGROUP_IMPL_CPU_LANES)
#define TEGROUP_IMPL_PIECE_K 64   /* of k at a time: a bundle waits in 2 KB */
#define TEGROUP_IMPL_AHEAD   2048 /* bytes along a line from what is read to what is asked for */

/* sums[rows][lines of the bundles] += a[k][MICRO_M] * the lines' k elements, whole pieces of them. The last bundle is
 * multiplied in its registers. Of two bundles the first waits in the panel: two chains of additions, in turn, take no
 * longer than one. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_few_typed(tegroup_dtype dtype, int32_t rows, int32_t bundles, const char *at,
                                                    int64_t stride_bytes, int32_t k, const float *a, float *panel,
                                                    float *sums) {
    const int32_t step = tegroup_impl_cpu_step(dtype), bytes = tegroup_impl_bits(dtype) / 8, packed = bundles - 1,
                  ahead = k * bytes < TEGROUP_IMPL_AHEAD ? k * bytes : TEGROUP_IMPL_AHEAD,
                  lines = TEGROUP_IMPL_CPU_LANES * bundles;
    const int64_t next = lines * stride_bytes - k * bytes; /* from the lines' end to where the next begin */
    tegroup_impl_lanes s[TEGROUP_IMPL_MICRO_M][2];
    int32_t k0, kk, i, r, t;
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        TEGROUP_IMPL_UNROLL
        for (t = 0; t < bundles; t++)
            s[r][t] = ((const tegroup_impl_lanes *)(const void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N))[t];
    }
    for (k0 = 0; k0 < k; k0 += TEGROUP_IMPL_PIECE_K, at += TEGROUP_IMPL_PIECE_K * bytes) {
        const tegroup_impl_lanes *waiting = (const tegroup_impl_lanes *)(const void *)panel;
        if (packed)
            tegroup_impl_cpu_pack_bundle(dtype, at, stride_bytes, TEGROUP_IMPL_PIECE_K, TEGROUP_IMPL_CPU_LANES, panel);
        for (kk = 0; kk < TEGROUP_IMPL_PIECE_K; kk += step) {
            tegroup_impl_lanes v[16];
            if (kk * bytes % 64 == 0)
                tegroup_impl_cpu_foresee(at + kk * bytes + ahead + ((k0 + kk) * bytes + ahead < k * bytes ? 0 : next),
                                         stride_bytes, lines);
            tegroup_impl_cpu_transpose(dtype, at + TEGROUP_IMPL_CPU_LANES * packed * stride_bytes + kk * bytes,
                                       stride_bytes, v);
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < step; i++, a += TEGROUP_IMPL_MICRO_M) {
                TEGROUP_IMPL_UNROLL
                for (r = 0; r < rows; r++) {
                    if (packed) s[r][0] += a[r] * waiting[kk + i];
                    s[r][packed] += a[r] * v[i];
                    /* A compiler that saw the next product of the chain might change their order, or, as gcc does for
                     * AMD's processors, fuse none of a chain's additions. */
                    TEGROUP_IMPL_UNKNOWN(s[r][packed]);
                    if (packed) TEGROUP_IMPL_UNKNOWN(s[r][0]);
                }
            }
        }
    }
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        TEGROUP_IMPL_UNROLL
        for (t = 0; t < bundles; t++) ((tegroup_impl_lanes *)(void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N))[t] = s[r][t];
    }
}

/* The same for `lines` lines and any number of rows from 1 to FEW; A's panels are a_k deep. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_few_rows(tegroup_dtype dtype, int32_t m, int32_t lines, const char *at,
                                                   int64_t stride_bytes, int32_t k, const float *a, int32_t a_k,
                                                   float *panel, float *sums) {
    enum { MICRO_M = TEGROUP_IMPL_MICRO_M };
    const int32_t bundles = dtype == TEGROUP_DTYPE_F32 ? 1 : 2; /* four bytes take longer to be read than to be added */
    int32_t i, j;
    for (j = 0; j < lines; j += TEGROUP_IMPL_CPU_LANES * bundles)
        for (i = 0; i < m; i += MICRO_M) {
            const char *from = at + j * stride_bytes;
            const float *rows = a + i * a_k;
            const int32_t left = m - i;
            float *to = sums + i * TEGROUP_IMPL_CPU_TILE_N + j;
            if (MICRO_M > 6 && left > 8)
                tegroup_impl_cpu_few_typed(dtype, MICRO_M, bundles, from, stride_bytes, k, rows, panel, to);
            else if (MICRO_M > 6 && left > 6)
                tegroup_impl_cpu_few_typed(dtype, 8, bundles, from, stride_bytes, k, rows, panel, to);
            else if (left > 4) tegroup_impl_cpu_few_typed(dtype, 6, bundles, from, stride_bytes, k, rows, panel, to);
            else if (left > 2) tegroup_impl_cpu_few_typed(dtype, 4, bundles, from, stride_bytes, k, rows, panel, to);
            else if (left > 1) tegroup_impl_cpu_few_typed(dtype, 2, bundles, from, stride_bytes, k, rows, panel, to);
            else tegroup_impl_cpu_few_typed(dtype, 1, bundles, from, stride_bytes, k, rows, panel, to);
        }
}

/* sums[m][lines] += packed A * `lines` lines of B, for as much of k as is returned: 0 where the product is not one of
 * few rows and whole bundles of lines that can be transposed. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_cpu_few_f32(tegroup_dtype dtype, const void *data, int64_t first,
                                                     int64_t stride_line, int64_t stride_k, int32_t m, int32_t lines,
                                                     int32_t k, const float *a, float *panel, float *sums) {
    const int32_t bytes = tegroup_impl_bits(dtype) / 8, whole = k / TEGROUP_IMPL_PIECE_K * TEGROUP_IMPL_PIECE_K;
    const char *at = (const char *)data + first * bytes;
    if (m > TEGROUP_IMPL_FEW || lines % (2 * TEGROUP_IMPL_CPU_LANES) != 0 || stride_k != 1
        || tegroup_impl_cpu_step(dtype) == 0)
        return 0;
    stride_line *= bytes;
    if (dtype == TEGROUP_DTYPE_F32)
        tegroup_impl_cpu_few_rows(TEGROUP_DTYPE_F32, m, lines, at, stride_line, whole, a, k, panel, sums);
    else if (dtype == TEGROUP_DTYPE_BF16)
        tegroup_impl_cpu_few_rows(TEGROUP_DTYPE_BF16, m, lines, at, stride_line, whole, a, k, panel, sums);
    else tegroup_impl_cpu_few_rows(TEGROUP_DTYPE_F16, m, lines, at, stride_line, whole, a, k, panel, sums);
    return whole;
}
#define TEGROUP_IMPL_FEW_f32 tegroup_impl_cpu_few_f32
#else
#define TEGROUP_IMPL_FEW_f32(dtype, data, first, stride_line, stride_k, m, lines, k, a, panel, sums) 0
#endif
#define TEGROUP_IMPL_FEW_f64(dtype, data, first, stride_line, stride_k, m, lines, k, a, panel, sums) 0
