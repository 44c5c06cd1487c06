/* ---- CPU GEMM kernel ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/choice.h"

/* The blocked product after Goto and van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication": panels of
 * A and B are copied (and widened to the type of the sums) so that the innermost kernel reads both in order. Each
 * element of D is one chain of additions over k from 0 upwards, whatever the tile that it falls into, so a row's bits
 * do not depend on its neighbours, the number of threads, or the instruction set (fused multiply-add apart, which is
 * the compiler's choice). */
#define TEGROUP_IMPL_CPU_TILE_M 128
#define TEGROUP_IMPL_CPU_TILE_N 256
#define TEGROUP_IMPL_CPU_TILE_K 256
#define TEGROUP_IMPL_CPU_TILE_M_PADDED 144 /* room for rounding TILE_M up to any MICRO_M below */

/* Registers decide the innermost kernel: MICRO_M rows by two vectors of columns. */
#if defined(__AVX512F__)
#define TEGROUP_IMPL_VECTOR_BYTES 64
#define TEGROUP_IMPL_MICRO_M 12
#elif defined(__AVX__)
#define TEGROUP_IMPL_VECTOR_BYTES 32
#define TEGROUP_IMPL_MICRO_M 6
#else
#define TEGROUP_IMPL_VECTOR_BYTES 16
#define TEGROUP_IMPL_MICRO_M 6
#endif

#if defined(__GNUC__) || defined(__clang__)
#define TEGROUP_IMPL_INLINE static inline __attribute__((always_inline))
#else
#define TEGROUP_IMPL_INLINE static inline
#endif

/* Unrolling is what keeps the accumulators in registers. */
#if defined(__CUDACC__)
#define TEGROUP_IMPL_UNROLL
#elif defined(__clang__)
#define TEGROUP_IMPL_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define TEGROUP_IMPL_UNROLL _Pragma("GCC unroll 16")
#else
#define TEGROUP_IMPL_UNROLL
#endif

#if defined(_OPENMP)
#define TEGROUP_IMPL_OMP(directive) _Pragma(#directive)
#else
#define TEGROUP_IMPL_OMP(directive)
#endif

static inline int64_t tegroup_impl_cpu_panel_bytes(tegroup_compute compute) {
    int64_t a = TEGROUP_IMPL_CPU_TILE_M_PADDED * TEGROUP_IMPL_CPU_TILE_K,
            b = TEGROUP_IMPL_CPU_TILE_K * TEGROUP_IMPL_CPU_TILE_N,
            sums = TEGROUP_IMPL_CPU_TILE_M_PADDED * TEGROUP_IMPL_CPU_TILE_N;
    return (a + b + sums) * (compute == TEGROUP_COMPUTE_F64 ? 8 : 4);
}

static inline void tegroup_impl_cpu_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    tegroup_impl_layout_add(layout, "panels of each thread",
                            tegroup_impl_mul(tegroup_impl_cpu_panel_bytes(plan->problem.compute), plan->threads));
}

static inline void tegroup_impl_cpu_tile(const tegroup_gemm_desc *desc, const tegroup_target *target, tegroup_plan *plan,
                                         tegroup_impl_forecast *forecast) {
    (void)desc, (void)target, (void)forecast; /* there is one */
    plan->tile_m = TEGROUP_IMPL_CPU_TILE_M;
    plan->tile_n = TEGROUP_IMPL_CPU_TILE_N;
    plan->tile_k = TEGROUP_IMPL_CPU_TILE_K;
}

/* Vectors where the compiler has them and float arithmetic is done in float (not on x87). */
#if defined(__GNUC__) && defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ == 0
#define TEGROUP_IMPL_VECTORS
#endif

/* @each-real */
#define TEGROUP_IMPL_LANES_FSUF ((int32_t)(TEGROUP_IMPL_VECTOR_BYTES / sizeof(REAL)))
#define TEGROUP_IMPL_MICRO_N_FSUF (2 * TEGROUP_IMPL_LANES_FSUF)

/* sums[rows][2 vectors] += a[k][MICRO_M] * b[k][MICRO_N]; rows is a constant after inlining. */
#if defined(TEGROUP_IMPL_VECTORS)
typedef REAL tegroup_impl_vector_FSUF
    __attribute__((vector_size(TEGROUP_IMPL_VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

TEGROUP_IMPL_INLINE void tegroup_impl_cpu_micro_FSUF(int32_t rows, int64_t k, const REAL *a, const REAL *b,
                                                     REAL *sums) {
    tegroup_impl_vector_FSUF s[TEGROUP_IMPL_MICRO_M][2];
    int64_t kk;
    int32_t r;
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        const tegroup_impl_vector_FSUF *from =
            (const tegroup_impl_vector_FSUF *)(const void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N);
        s[r][0] = from[0];
        s[r][1] = from[1];
    }
    for (kk = 0; kk < k; kk++) {
        const tegroup_impl_vector_FSUF *row =
            (const tegroup_impl_vector_FSUF *)(const void *)(b + kk * TEGROUP_IMPL_MICRO_N_FSUF);
        tegroup_impl_vector_FSUF b0 = row[0], b1 = row[1];
        const REAL *column = a + kk * TEGROUP_IMPL_MICRO_M;
        TEGROUP_IMPL_UNROLL
        for (r = 0; r < rows; r++) {
            s[r][0] += column[r] * b0;
            s[r][1] += column[r] * b1;
        }
    }
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        tegroup_impl_vector_FSUF *to = (tegroup_impl_vector_FSUF *)(void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N);
        to[0] = s[r][0];
        to[1] = s[r][1];
    }
}
#else
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_micro_FSUF(int32_t rows, int64_t k, const REAL *a, const REAL *b,
                                                     REAL *sums) {
    int64_t kk;
    int32_t r, j;
    for (kk = 0; kk < k; kk++)
        for (r = 0; r < rows; r++)
            for (j = 0; j < TEGROUP_IMPL_MICRO_N_FSUF; j++)
                sums[r * TEGROUP_IMPL_CPU_TILE_N + j] +=
                    a[kk * TEGROUP_IMPL_MICRO_M + r] * b[kk * TEGROUP_IMPL_MICRO_N_FSUF + j];
}
#endif

/* Copy `count` lines of k elements into panels of `width` lines, [panel][k][width], the last filled up with zeros. Line
 * i, element kk is at data[i * stride_line + kk * stride_k]. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_pack_typed_FSUF(tegroup_dtype dtype, const void *data, int64_t first,
                                                          int64_t stride_line, int64_t stride_k, int32_t count,
                                                          int32_t k, int32_t width, REAL *panel) {
    int32_t base, i, kk;
    for (base = 0; base < count; base += width, panel += (int64_t)k * width) {
        int32_t lines = count - base < width ? count - base : width;
        int64_t at = first + base * stride_line;
        if (lines < width) memset(panel, 0, (size_t)k * (size_t)width * sizeof(REAL));
        if (stride_line == 1 && lines == width)
            for (kk = 0; kk < k; kk++)
                for (i = 0; i < width; i++)
                    panel[kk * width + i] = tegroup_impl_load_FSUF(dtype, data, at + kk * stride_k + i);
        else if (stride_k == 1)
            for (i = 0; i < lines; i++)
                for (kk = 0; kk < k; kk++)
                    panel[kk * width + i] = tegroup_impl_load_FSUF(dtype, data, at + i * stride_line + kk);
        else
            for (kk = 0; kk < k; kk++)
                for (i = 0; i < lines; i++)
                    panel[kk * width + i] = tegroup_impl_load_FSUF(dtype, data, at + i * stride_line + kk * stride_k);
    }
}

static inline void tegroup_impl_cpu_pack_FSUF(tegroup_dtype dtype, const void *data, int64_t first, int64_t stride_line,
                                              int64_t stride_k, int32_t count, int32_t k, int32_t width, REAL *panel) {
    switch (dtype) { /* the type is a constant inside each copy */
    case TEGROUP_DTYPE_F64:
        tegroup_impl_cpu_pack_typed_FSUF(TEGROUP_DTYPE_F64, data, first, stride_line, stride_k, count, k, width, panel);
        break;
    case TEGROUP_DTYPE_F32:
        tegroup_impl_cpu_pack_typed_FSUF(TEGROUP_DTYPE_F32, data, first, stride_line, stride_k, count, k, width, panel);
        break;
    case TEGROUP_DTYPE_F16:
        tegroup_impl_cpu_pack_typed_FSUF(TEGROUP_DTYPE_F16, data, first, stride_line, stride_k, count, k, width, panel);
        break;
    default:
        tegroup_impl_cpu_pack_typed_FSUF(TEGROUP_DTYPE_BF16, data, first, stride_line, stride_k, count, k, width,
                                         panel);
        break;
    }
}

/* sums[m][n] += packed A * packed B. Fewer rows than MICRO_M run a kernel of their own height: few rows cost little. */
static inline void tegroup_impl_cpu_block_FSUF(int32_t m, int32_t n, int64_t k, const REAL *a, const REAL *b,
                                               REAL *sums) {
    int32_t i, j;
    for (j = 0; j < n; j += TEGROUP_IMPL_MICRO_N_FSUF)
        for (i = 0; i < m; i += TEGROUP_IMPL_MICRO_M) {
            const REAL *panel_a = a + i * k, *panel_b = b + j * k;
            REAL *at = sums + i * TEGROUP_IMPL_CPU_TILE_N + j;
            int32_t rows = m - i;
            if (rows > 4) tegroup_impl_cpu_micro_FSUF(TEGROUP_IMPL_MICRO_M, k, panel_a, panel_b, at);
            else if (rows > 2) tegroup_impl_cpu_micro_FSUF(4, k, panel_a, panel_b, at);
            else if (rows > 1) tegroup_impl_cpu_micro_FSUF(2, k, panel_a, panel_b, at);
            else tegroup_impl_cpu_micro_FSUF(1, k, panel_a, panel_b, at);
        }
}
/* @end */
