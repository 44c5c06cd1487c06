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
#define TEGROUP_IMPL_CPU_PANEL_N 32        /* room for any MICRO_N below */
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

static inline int64_t tegroup_impl_cpu_panel_bytes(tegroup_compute compute) {
    int64_t a = TEGROUP_IMPL_CPU_TILE_M_PADDED * TEGROUP_IMPL_CPU_TILE_K,
            b = TEGROUP_IMPL_CPU_TILE_K * TEGROUP_IMPL_CPU_PANEL_N,
            sums = TEGROUP_IMPL_CPU_TILE_M_PADDED * TEGROUP_IMPL_CPU_TILE_N;
    return (a + b + sums) * (compute == TEGROUP_COMPUTE_F64 ? 8 : 4);
}

static inline void tegroup_impl_cpu_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    tegroup_impl_layout_add(layout, "panels of each thread",
                            tegroup_impl_mul(tegroup_impl_cpu_panel_bytes(plan->problem.compute), plan->threads));
}

static inline void tegroup_impl_cpu_tile(const tegroup_gemm_desc *desc, const tegroup_target *target,
                                         tegroup_plan *plan, tegroup_impl_forecast *forecast) {
    (void)desc, (void)target, (void)forecast; /* there is one */
    plan->tile_m = TEGROUP_IMPL_CPU_TILE_M;
    plan->tile_n = TEGROUP_IMPL_CPU_TILE_N;
    plan->tile_k = TEGROUP_IMPL_CPU_TILE_K;
}

/* Vectors where the compiler has them and float arithmetic is done in float (not on x87). */
#if defined(__GNUC__) && defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ == 0
#define TEGROUP_IMPL_VECTORS
#endif

/* Eight lines at a time, whose elements along k are neighbours, are transposed in registers on their way to a panel:
 * what a line's loads give are vectors of k, and panels have vectors of lines. Eight lines that are a power of
 * two apart are as many as the ways of a first-level cache hold. */
#if defined(TEGROUP_IMPL_VECTORS) && defined(__AVX__) && !defined(__CUDACC__) && (defined(__clang__) || __GNUC__ >= 12)
#define TEGROUP_IMPL_TRANSPOSES
typedef float tegroup_impl_quad __attribute__((vector_size(16), aligned(4), may_alias));
typedef short tegroup_impl_eight_halves __attribute__((vector_size(16)));
typedef long long tegroup_impl_two_longs __attribute__((vector_size(16)));
typedef float tegroup_impl_oct __attribute__((vector_size(32), aligned(4), may_alias));

/* Four elements of two bytes, as they are, and zeros. */
TEGROUP_IMPL_INLINE tegroup_impl_eight_halves tegroup_impl_four_halves(const void *from) {
    tegroup_impl_two_longs both = {0, 0};
    long long four;
    memcpy(&four, from, sizeof four);
    both[0] = four;
    return (tegroup_impl_eight_halves)both;
}

/* Which types can be: the others are packed element by element. */
TEGROUP_IMPL_INLINE int tegroup_impl_cpu_transposes(tegroup_dtype dtype) {
#if defined(__F16C__)
    if (dtype == TEGROUP_DTYPE_F16) return 1; /* the compiler was told of the instruction */
#endif
    return dtype == TEGROUP_DTYPE_F32 || dtype == TEGROUP_DTYPE_BF16;
}

/* Four elements, widened. */
TEGROUP_IMPL_INLINE tegroup_impl_quad tegroup_impl_quad_at(tegroup_dtype dtype, const void *data, int64_t at) {
    if (dtype == TEGROUP_DTYPE_F32) return *(const tegroup_impl_quad *)(const void *)((const float *)data + at);
#if defined(__F16C__)
    if (dtype == TEGROUP_DTYPE_F16)
        return (tegroup_impl_quad)__builtin_ia32_vcvtph2ps(tegroup_impl_four_halves((const uint16_t *)data + at));
#endif
    {
        const tegroup_impl_eight_halves zeros = {0, 0, 0, 0, 0, 0, 0, 0};
        return (tegroup_impl_quad)__builtin_shufflevector(zeros, tegroup_impl_four_halves((const uint16_t *)data + at),
                                                          0, 8, 1, 9, 2, 10, 3, 11);
    }
}

/* Eight lines of k elements from `first` on, to panel[k][width]. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_transpose(tegroup_dtype dtype, const void *data, int64_t first,
                                                    int64_t stride_line, int32_t k, int32_t width, float *panel) {
    int32_t kk, i;
    for (kk = 0; kk + 4 <= k; kk += 4) {
        tegroup_impl_oct r[4], low, high, *to = (tegroup_impl_oct *)(void *)(panel + (int64_t)kk * width);
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 4; i++)
            r[i] = __builtin_shufflevector(tegroup_impl_quad_at(dtype, data, first + i * stride_line + kk),
                                           tegroup_impl_quad_at(dtype, data, first + (i + 4) * stride_line + kk), 0, 1,
                                           2, 3, 4, 5, 6, 7);
        low = __builtin_shufflevector(r[0], r[1], 0, 8, 1, 9, 4, 12, 5, 13);
        high = __builtin_shufflevector(r[2], r[3], 0, 8, 1, 9, 4, 12, 5, 13);
        *to = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
        to = (tegroup_impl_oct *)(void *)((float *)to + width);
        *to = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
        to = (tegroup_impl_oct *)(void *)((float *)to + width);
        low = __builtin_shufflevector(r[0], r[1], 2, 10, 3, 11, 6, 14, 7, 15);
        high = __builtin_shufflevector(r[2], r[3], 2, 10, 3, 11, 6, 14, 7, 15);
        *to = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
        to = (tegroup_impl_oct *)(void *)((float *)to + width);
        *to = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
    }
    for (; kk < k; kk++)
        for (i = 0; i < 8; i++)
            panel[kk * width + i] = tegroup_impl_load_f32(dtype, data, first + i * stride_line + kk);
}
#endif
#if defined(TEGROUP_IMPL_TRANSPOSES)
#define TEGROUP_IMPL_TRANSPOSES_f32(dtype, stride_k) ((stride_k) == 1 && tegroup_impl_cpu_transposes(dtype))
#define TEGROUP_IMPL_TRANSPOSE_f32 tegroup_impl_cpu_transpose
#else
#define TEGROUP_IMPL_TRANSPOSES_f32(dtype, stride_k) 0
#define TEGROUP_IMPL_TRANSPOSE_f32(dtype, data, first, stride_line, k, width, panel) (void)0
#endif
#define TEGROUP_IMPL_TRANSPOSES_f64(dtype, stride_k) 0
#define TEGROUP_IMPL_TRANSPOSE_f64(dtype, data, first, stride_line, k, width, panel) (void)0

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
        else if (stride_k == 1) {
            i = 0;
            if (TEGROUP_IMPL_TRANSPOSES_FSUF(dtype, stride_k))
                for (; i + 8 <= lines; i += 8)
                    TEGROUP_IMPL_TRANSPOSE_FSUF(dtype, data, at + i * stride_line, stride_line, k, width, panel + i);
            for (; i < lines; i++)
                for (kk = 0; kk < k; kk++)
                    panel[kk * width + i] = tegroup_impl_load_FSUF(dtype, data, at + i * stride_line + kk);
        } else
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

/* sums[m][MICRO_N] += packed A * one panel of B. Fewer rows than MICRO_M run a kernel of their own height. */
static inline void tegroup_impl_cpu_block_FSUF(int32_t m, int64_t k, const REAL *a, const REAL *b, REAL *sums) {
    int32_t i;
    for (i = 0; i < m; i += TEGROUP_IMPL_MICRO_M) {
        const REAL *panel = a + i * k;
        REAL *at = sums + i * TEGROUP_IMPL_CPU_TILE_N;
        const int32_t rows = m - i;
        if (rows > 4) tegroup_impl_cpu_micro_FSUF(TEGROUP_IMPL_MICRO_M, k, panel, b, at);
        else if (rows > 2) tegroup_impl_cpu_micro_FSUF(4, k, panel, b, at);
        else if (rows > 1) tegroup_impl_cpu_micro_FSUF(2, k, panel, b, at);
        else tegroup_impl_cpu_micro_FSUF(1, k, panel, b, at);
    }
}
/* @end */
