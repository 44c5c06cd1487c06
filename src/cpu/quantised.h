/* ---- CPU GEMM of quantised operands ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "formats/code_order.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/quantised.h"
#include "cpu/vectors.h"
#include "cpu/gemm_kernel.h"

/* A quantised operand, and what its codes and its scales, where these have 8 bits, mean. */
typedef struct tegroup_impl_cpu_codes {
    tegroup_impl_scaled scaled;
    float value[256]; /* by code: 16 of them, or all */
    float scale[256];
} tegroup_impl_cpu_codes;

TEGROUP_IMPL_STATIC void tegroup_impl_cpu_codes_of(const tegroup_gemm_desc *desc, tegroup_impl_operand operand,
                                                   tegroup_impl_cpu_codes *codes) {
    int32_t i, count;
    codes->scaled = tegroup_impl_scaled_of(desc, operand);
    if (!codes->scaled.facts) return;
    count = 1 << tegroup_impl_bits(codes->scaled.dtype);
    for (i = 0; i < count; i++) codes->value[i] = tegroup_impl_f32_of_code(codes->scaled.dtype, (uint32_t)i);
    if (tegroup_impl_bits(codes->scaled.scale_dtype) == 8)
        for (i = 0; i < 256; i++) codes->scale[i] = tegroup_impl_f32_of_code(codes->scaled.scale_dtype, (uint32_t)i);
}

/* Goes on to group g, the one after the last. Returns what all its values are multiplied by. */
TEGROUP_IMPL_STATIC double tegroup_impl_cpu_codes_next(tegroup_impl_cpu_codes *codes, const tegroup_tensor *t,
                                                       const tegroup_snapshot_view *view, int32_t g) {
    if (!codes->scaled.facts) return 1;
    tegroup_impl_scaled_next(&codes->scaled, t, view, g);
    return codes->scaled.global;
}

#if defined(TEGROUP_IMPL_DECODES)
/* to[j] = the number of code `at` + j times scale[j * each], for whole vectors; returned is how many these are. */
TEGROUP_IMPL_INLINE int32_t tegroup_impl_cpu_decode_typed(tegroup_dtype dtype, const uint8_t *data, int64_t at,
                                                          int32_t count, const float *value, const float *scale,
                                                          int each, float *to) {
    const tegroup_impl_lanes none = {0};
    tegroup_impl_lanes x, factor = none + scale[0];
    int32_t j;
    for (j = 0; j + TEGROUP_IMPL_CPU_LANES <= count; j += TEGROUP_IMPL_CPU_LANES) {
        x = dtype == TEGROUP_DTYPE_F4E2M1   ? tegroup_impl_cpu_e2m1(data + (at + j) / 2, value)
            : dtype == TEGROUP_DTYPE_F8E5M2 ? tegroup_impl_cpu_e5m2(data + at + j)
                                            : tegroup_impl_cpu_e4m3(data + at + j);
        if (each) factor = *(const tegroup_impl_lanes *)(const void *)(scale + j);
        *(tegroup_impl_lanes *)(void *)(to + j) = x * factor;
    }
    return j;
}

/* A product in F32 is the double's, rounded to F32, but that a processor may have been told to take subnormal scales as
 * 0: `normal` says that there is none. */
TEGROUP_IMPL_INLINE int32_t tegroup_impl_cpu_decode_vectors(tegroup_dtype dtype, const uint8_t *data, int64_t at,
                                                            int32_t count, const float *value, const float *scale,
                                                            int each, int normal, float *to) {
    if (!normal) return 0;
    if (dtype == TEGROUP_DTYPE_F8E4M3)
        return tegroup_impl_cpu_decode_typed(TEGROUP_DTYPE_F8E4M3, data, at, count, value, scale, each, to);
    if (dtype == TEGROUP_DTYPE_F8E5M2)
        return tegroup_impl_cpu_decode_typed(TEGROUP_DTYPE_F8E5M2, data, at, count, value, scale, each, to);
    if (dtype == TEGROUP_DTYPE_F4E2M1 && at % 2 == 0)
        return tegroup_impl_cpu_decode_typed(TEGROUP_DTYPE_F4E2M1, data, at, count, value, scale, each, to);
    return 0;
}
#define TEGROUP_IMPL_DECODE_VECTORS_f32 tegroup_impl_cpu_decode_vectors
#else
#define TEGROUP_IMPL_DECODE_VECTORS_f32(dtype, data, at, count, value, scale, each, normal, to) 0
#endif
#define TEGROUP_IMPL_DECODE_VECTORS_f64(dtype, data, at, count, value, scale, each, normal, to) 0

/* The scale of element k of a line, and in *shared how many from k on have it. *normal becomes 0 where it is not. */
TEGROUP_IMPL_STATIC float tegroup_impl_cpu_scale(const tegroup_impl_cpu_codes *codes, int64_t line, int64_t k,
                                                 int64_t *shared, int *normal) {
    const tegroup_impl_scaled *s = &codes->scaled;
    const int64_t at = tegroup_impl_scale_index_along(s, line, k, shared);
    const float scale = tegroup_impl_bits(s->scale_dtype) == 8 ? codes->scale[((const uint8_t *)s->scales)[at]]
                                                               : tegroup_impl_load_f32(s->scale_dtype, s->scales, at);
    *normal &= scale >= 1.17549435e-38f; /* 2^-126; nor is NaN */
    return scale;
}

/* Puts the `count` codes of a line that begin at `at` in order, if they are interleaved; tiles are so deep that these
 * are whole blocks then. Returns where they are, and in *at the first. */
TEGROUP_IMPL_STATIC const uint8_t *tegroup_impl_cpu_in_order(const tegroup_impl_scaled *s, int32_t count, int64_t *at,
                                                             uint8_t *ordered) {
    const int32_t bits = tegroup_impl_bits(s->dtype);
    int32_t k;
    if (!s->interleaved) return (const uint8_t *)s->data;
    for (k = 0; k < count; k += TEGROUP_INTERLEAVED_CODES)
        tegroup_impl_reorder(bits, 0, (const uint8_t *)s->data + (*at + k) * bits / 8, ordered + k * bits / 8);
    *at = 0;
    return ordered;
}

/* @each-real */
/* to[j * apart] = the number of code `at` + j of `data` times scale[j * each]. That product is exact in double,
 * whatever the types, and so is rounded once, to the type of the sums. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_decode_FSUF(const tegroup_impl_cpu_codes *codes, const uint8_t *data,
                                                      int64_t at, int32_t count, const float *scale, int each,
                                                      int normal, int32_t apart, REAL *to) {
    const tegroup_dtype dtype = codes->scaled.dtype;
    const double factor = tegroup_impl_f64_of_f32(scale[0]);
    int32_t j = 0;
    if (apart == 1) j = TEGROUP_IMPL_DECODE_VECTORS_FSUF(dtype, data, at, count, codes->value, scale, each, normal, to);
    (void)normal;
    if (!each && tegroup_impl_bits(dtype) == 8)
        for (; j < count; j++) to[j * apart] = (REAL)(codes->value[data[at + j]] * factor);
    for (; j < count; j++)
        to[j * apart] = (REAL)(codes->value[tegroup_impl_load_code(dtype, data, at + j)]
                               * (each ? tegroup_impl_f64_of_f32(scale[j]) : factor));
}

/* A panel of lines whose elements are neighbours along k. They are decoded line by line: where F32 is transposed in
 * registers, as much of them at a time as stays in the first cache, to be packed as F32 is. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_pack_along_FSUF(const tegroup_impl_cpu_codes *codes, int64_t line,
                                                          int64_t from, int32_t lines, int32_t k, int32_t width,
                                                          REAL *panel) {
    enum { DEEP = 128 };
    const tegroup_impl_scaled *s = &codes->scaled;
    const int32_t bits = tegroup_impl_bits(s->dtype);
    const int transposes = TEGROUP_IMPL_STEP_FSUF(TEGROUP_DTYPE_F32) > 0;
    REAL decoded[TEGROUP_IMPL_CPU_PANEL_N * DEEP];
    uint8_t ordered[DEEP];
    int32_t i, kk, deep, done, run;
    if (!transposes && lines < width) memset(panel, 0, (size_t)k * (size_t)width * sizeof(REAL));
    for (kk = 0; kk < k; kk += deep) {
        deep = k - kk < DEEP ? k - kk : DEEP;
        for (i = 0; i < lines; i++) {
            int64_t at = s->first + (line + i) * s->line_stride + from + kk;
            const uint8_t *data;
            REAL *to = transposes ? decoded + i * deep : panel + kk * width + i;
            const int32_t apart = transposes ? 1 : width;
            TEGROUP_IMPL_FORESEE((const char *)s->data + (at + width * s->line_stride) * bits / 8,
                                 deep * bits / 8); /* for the next panel */
            data = tegroup_impl_cpu_in_order(s, deep, &at, ordered);
            for (done = 0; done < deep; done += run) {
                int64_t shared;
                int normal = 1;
                const float scale = tegroup_impl_cpu_scale(codes, line + i, from + kk + done, &shared, &normal);
                run = (int32_t)tegroup_impl_min(shared, deep - done);
                tegroup_impl_cpu_decode_FSUF(codes, data, at + done, run, &scale, 0, normal, apart, to + done * apart);
            }
        }
        if (transposes)
            tegroup_impl_cpu_pack_FSUF(sizeof(REAL) == 4 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_F64, decoded, 0, deep, 1,
                                       lines, deep, width, panel + kk * width);
    }
}

/* A panel of lines that are neighbours: each of its rows is decoded in its place. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_pack_across_FSUF(const tegroup_impl_cpu_codes *codes, int64_t line,
                                                           int64_t from, int32_t lines, int32_t k, int32_t width,
                                                           REAL *panel) {
    const tegroup_impl_scaled *s = &codes->scaled;
    const int32_t bits = tegroup_impl_bits(s->dtype);
    float scale[TEGROUP_IMPL_CPU_PANEL_N];
    int32_t i, kk, end;
    if (lines < width) memset(panel, 0, (size_t)k * (size_t)width * sizeof(REAL));
    for (kk = 0; kk < k;) {
        int64_t shared = 1;
        int normal = 1;
        for (i = 0; i < lines; i++) scale[i] = tegroup_impl_cpu_scale(codes, line + i, from + kk, &shared, &normal);
        for (end = kk + (int32_t)tegroup_impl_min(shared, k - kk); kk < end; kk++) {
            const int64_t at = s->first + line * s->line_stride + (from + kk) * s->k_stride,
                          ahead = tegroup_impl_cpu_ahead(kk, k, s->k_stride, width * s->line_stride);
            TEGROUP_IMPL_FORESEE((const char *)s->data + (at + ahead) * bits / 8, lines * bits / 8);
            tegroup_impl_cpu_decode_FSUF(codes, (const uint8_t *)s->data, at, lines, scale, 1, normal, 1,
                                         panel + kk * width);
        }
    }
}

/* tegroup_impl_cpu_pack of a quantised operand, from `line` and `from` of k on. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_pack_codes_FSUF(const tegroup_impl_cpu_codes *codes, int64_t line,
                                                          int64_t from, int32_t count, int32_t k, int32_t width,
                                                          REAL *panel) {
    for (; count > 0; count -= width, line += width, panel += (int64_t)k * width) {
        const int32_t lines = count < width ? count : width;
        if (codes->scaled.k_stride == 1) tegroup_impl_cpu_pack_along_FSUF(codes, line, from, lines, k, width, panel);
        else tegroup_impl_cpu_pack_across_FSUF(codes, line, from, lines, k, width, panel);
    }
}

/* Bias gradient of one group, at most TILE_N columns from j0, whose rows are quantised: sums of them in their order. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_sum_codes_FSUF(const tegroup_gemm_desc *desc,
                                                         const tegroup_impl_cpu_codes *codes,
                                                         const tegroup_impl_block *dy, int64_t j0, int64_t n,
                                                         REAL *panel, REAL *sums) {
    int64_t r0, r, j, c;
    for (j = 0; j < n; j += TEGROUP_IMPL_CPU_PANEL_N) {
        const int64_t cols = tegroup_impl_min(TEGROUP_IMPL_CPU_PANEL_N, n - j);
        for (r0 = 0; r0 < dy->rows; r0 += TEGROUP_IMPL_CPU_TILE_K) {
            const int64_t rows = tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_K, dy->rows - r0);
            tegroup_impl_cpu_pack_codes_FSUF(codes, j0 + j, r0, (int32_t)cols, (int32_t)rows, TEGROUP_IMPL_CPU_PANEL_N,
                                             panel);
            for (r = 0; r < rows; r++) {
                const REAL scale =
                    desc->row_scale_dtype != TEGROUP_DTYPE_UNSET
                        ? tegroup_impl_load_FSUF(desc->row_scale_dtype, desc->row_scale, dy->row0 + r0 + r)
                        : 1;
                for (c = 0; c < cols; c++) sums[j + c] += scale * panel[r * TEGROUP_IMPL_CPU_PANEL_N + c];
            }
        }
        for (c = 0; c < cols; c++) sums[j + c] *= (REAL)codes->scaled.global;
    }
}
/* @end */
