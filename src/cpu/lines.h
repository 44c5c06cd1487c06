/* ---- CPU products of few rows, line by line ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/product.h"
#include "cpu/vectors.h"
#include "cpu/gemm_kernel.h"

/* What TEGROUP_COMPUTE_F32_FAST is here. Lines of B whose elements along k are neighbours are multiplied where they
 * lie, a vector of k at a time: a sum is as many sums as two vectors have lanes, added up at the end. Nothing is
 * transposed, and nothing packed but A, so few rows take as long as reading B does. */
#if defined(TEGROUP_IMPL_CPU_LANES)
#define TEGROUP_IMPL_LINES_ROWS  4    /* of more rows the tile that packs B is faster */
#define TEGROUP_IMPL_LINES_AHEAD 6144 /* bytes from what is read to what is asked for: of short lines a later one */

/* sums[rows][1] += rows of A, k apart, times a line. A sum is two vectors of sums, of every other vector of k; what is
 * left of k behind whole pairs comes last. So its bits do not depend on how many rows are multiplied together. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_line_typed(tegroup_dtype dtype, int32_t rows, const char *line, int32_t k,
                                                     const float *a, float *sums) {
    enum { LANES = TEGROUP_IMPL_CPU_LANES };
    const int32_t bytes = tegroup_impl_bits(dtype) / 8;
    tegroup_impl_lanes s[TEGROUP_IMPL_LINES_ROWS][2];
    int32_t kk, r, t, i;
    memset(s, 0, sizeof s);
    for (kk = 0; kk + 2 * LANES <= k; kk += 2 * LANES) {
        /* Several rows of A fill the first cache, and what hardware foresees of B has no place there. */
        if (rows > 1) __builtin_prefetch(line + kk * bytes + TEGROUP_IMPL_LINES_AHEAD, 0, 2);
        TEGROUP_IMPL_UNROLL
        for (t = 0; t < 2; t++) {
            const int32_t at = kk + t * LANES;
            const tegroup_impl_lanes b = tegroup_impl_cpu_widen(dtype, line + at * bytes);
            TEGROUP_IMPL_UNROLL
            for (r = 0; r < rows; r++) s[r][t] += *(const tegroup_impl_lanes *)(const void *)(a + r * k + at) * b;
        }
    }
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        const tegroup_impl_lanes all = s[r][0] + s[r][1];
        float sum = sums[r * TEGROUP_IMPL_CPU_TILE_N];
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < LANES; i++) sum += all[i];
        for (i = kk; i < k; i++) sum += a[r * k + i] * tegroup_impl_load_f32(dtype, line, i);
        sums[r * TEGROUP_IMPL_CPU_TILE_N] = sum;
    }
}

/* `lines` lines, one behind the other. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_lines_typed(tegroup_dtype dtype, int32_t rows, const char *at,
                                                      int64_t stride_bytes, int32_t lines, int32_t k, const float *a,
                                                      float *sums) {
    int32_t l;
    for (l = 0; l < lines; l++) tegroup_impl_cpu_line_typed(dtype, rows, at + l * stride_bytes, k, a, sums + l);
}

TEGROUP_IMPL_INLINE void tegroup_impl_cpu_lines_of(tegroup_dtype dtype, const char *at, int64_t stride_bytes, int32_t m,
                                                   int32_t lines, int32_t k, const float *a, float *sums) {
    if (m == 1) tegroup_impl_cpu_lines_typed(dtype, 1, at, stride_bytes, lines, k, a, sums);
    else if (m == 2) tegroup_impl_cpu_lines_typed(dtype, 2, at, stride_bytes, lines, k, a, sums);
    else if (m == 3) tegroup_impl_cpu_lines_typed(dtype, 3, at, stride_bytes, lines, k, a, sums);
    else tegroup_impl_cpu_lines_typed(dtype, 4, at, stride_bytes, lines, k, a, sums);
}

/* Is a group's product one of these? Four rows of A beside lines of F32 would leave the first cache. */
TEGROUP_IMPL_STATIC int tegroup_impl_cpu_by_lines_f32(const tegroup_gemm_desc *desc, const tegroup_impl_product *p) {
    const tegroup_dtype dtype = desc->b.dtype;
    const int64_t rows = dtype == TEGROUP_DTYPE_F32                                  ? 3
                         : dtype == TEGROUP_DTYPE_BF16 || dtype == TEGROUP_DTYPE_F16 ? TEGROUP_IMPL_LINES_ROWS
                                                                                     : 0;
    return desc->options.compute == TEGROUP_COMPUTE_F32_FAST && desc->op == TEGROUP_OP_FORWARD && p->m <= rows
           && p->b_k == 1 && desc->gather_b.rows == 0;
}

/* sums[m][lines] += A[m][k] * `lines` lines of B. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_lines_f32(tegroup_dtype dtype, const void *data, int64_t first,
                                                    int64_t stride_line, int32_t m, int32_t lines, int32_t k,
                                                    const float *a, float *sums) {
    const int32_t bytes = tegroup_impl_bits(dtype) / 8;
    const char *at = (const char *)data + first * bytes;
    stride_line *= bytes;
    if (dtype == TEGROUP_DTYPE_F32) tegroup_impl_cpu_lines_of(TEGROUP_DTYPE_F32, at, stride_line, m, lines, k, a, sums);
    else if (dtype == TEGROUP_DTYPE_BF16)
        tegroup_impl_cpu_lines_of(TEGROUP_DTYPE_BF16, at, stride_line, m, lines, k, a, sums);
    else tegroup_impl_cpu_lines_of(TEGROUP_DTYPE_F16, at, stride_line, m, lines, k, a, sums);
}
#else
#define TEGROUP_IMPL_LINES_ROWS 1
#define tegroup_impl_cpu_by_lines_f32(desc, p) 0
#define tegroup_impl_cpu_lines_f32(dtype, data, first, stride_line, m, lines, k, a, sums) (void)0
#endif
#define tegroup_impl_cpu_by_lines_f64(desc, p) 0
#define tegroup_impl_cpu_lines_f64(dtype, data, first, stride_line, m, lines, k, a, sums) (void)0
