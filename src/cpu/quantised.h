/* ---- CPU GEMM of quantised operands ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/quantised.h"
#include "cpu/gemm_kernel.h"

/* A quantised operand, and what its codes mean. */
typedef struct tegroup_impl_cpu_codes {
    tegroup_impl_scaled scaled;
    float value[256]; /* by code: 16 of them, or all */
} tegroup_impl_cpu_codes;

static inline void tegroup_impl_cpu_codes_of(const tegroup_gemm_desc *desc, tegroup_impl_operand operand,
                                             tegroup_impl_cpu_codes *codes) {
    int32_t i, count;
    codes->scaled = tegroup_impl_scaled_of(desc, operand);
    if (!codes->scaled.facts) return;
    count = 1 << tegroup_impl_bits(codes->scaled.dtype);
    for (i = 0; i < count; i++) codes->value[i] = tegroup_impl_f32_of_code(codes->scaled.dtype, (uint32_t)i);
}

/* Goes on to group g, the one after the last. Returns what all its values are multiplied by. */
static inline double tegroup_impl_cpu_codes_next(tegroup_impl_cpu_codes *codes, const tegroup_tensor *t,
                                                 const tegroup_snapshot_view *view, int32_t g) {
    if (!codes->scaled.facts) return 1;
    tegroup_impl_scaled_next(&codes->scaled, t, view, g);
    return codes->scaled.global;
}

/* @each-real */
/* tegroup_impl_cpu_pack of a quantised operand, from `line` and `from` of k on. The product of a value and its scale is
 * exact in double, whatever their types, and so is rounded once, to the type of the sums. */
static inline void tegroup_impl_cpu_pack_codes_FSUF(const tegroup_impl_cpu_codes *codes, int64_t line, int64_t from,
                                                    int32_t count, int32_t k, int32_t width, REAL *panel) {
    const tegroup_impl_scaled *s = &codes->scaled;
    const uint8_t *bytes = (const uint8_t *)s->data;
    const int64_t step = s->k_stride;
    int32_t i, kk, j;
    if (count % width != 0)
        memset(panel + (int64_t)(count / width) * k * width, 0, (size_t)k * (size_t)width * sizeof(REAL));
    for (i = 0; i < count; i++)
        for (kk = 0; kk < k;) {
            int64_t shared, at = s->first + (line + i) * s->line_stride + (from + kk) * step;
            const double scale = tegroup_impl_scale_along(s, line + i, from + kk, &shared);
            const int32_t run = (int32_t)tegroup_impl_min(shared, k - kk);
            REAL *to = panel + (int64_t)(i / width) * k * width + (int64_t)kk * width + i % width;
            if (tegroup_impl_bits(s->dtype) == 8)
                for (j = 0; j < run; j++, at += step, to += width) *to = (REAL)(codes->value[bytes[at]] * scale);
            else
                for (j = 0; j < run; j++, at += step, to += width)
                    *to = (REAL)(codes->value[tegroup_impl_load_code(s->dtype, bytes, at)] * scale);
            kk += run;
        }
}

/* Bias gradient of one group, at most TILE_N columns from j0, whose rows are quantised: sums of them in their order. */
static inline void tegroup_impl_cpu_sum_codes_FSUF(const tegroup_gemm_desc *desc, const tegroup_impl_cpu_codes *codes,
                                                   const tegroup_impl_block *dy, int64_t j0, int64_t n, REAL *panel,
                                                   REAL *sums) {
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
