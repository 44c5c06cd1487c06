/* ---- CPU GEMM kernel ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/choice.h"
#include "cpu/rows.h"
#include "cpu/vectors.h"

/* The blocked product after Goto and van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication": panels of
 * A and B are copied (and widened to the type of the sums) so that the innermost kernel reads both in order. Each
 * element of D is one chain of additions over k from 0 upwards, whatever the tile that it falls into, so a row's bits
 * do not depend on its neighbours, the number of threads, or the instruction set (fused multiply-add apart, which is
 * the compiler's choice). */
#define TEGROUP_IMPL_CPU_TILE_M  384 /* for all of whose rows a panel of B is packed once */
#define TEGROUP_IMPL_CPU_LOW_M   128 /* rows of a tile where threads would share too few tiles */
#define TEGROUP_IMPL_CPU_TILE_N  TEGROUP_IMPL_PIECE
#define TEGROUP_IMPL_CPU_TILE_K  256
#define TEGROUP_IMPL_CPU_PANEL_N 32 /* room for any MICRO_N */
#define TEGROUP_IMPL_CPU_PAD_M   16 /* room for rounding a tile's rows up to any MICRO_M */

/* What a thread has in its workspace: elements of a panel of B, of sums, and of panels of A. */
#define TEGROUP_IMPL_CPU_B_ROOM    (TEGROUP_IMPL_CPU_TILE_K * TEGROUP_IMPL_CPU_PANEL_N)
#define TEGROUP_IMPL_CPU_SUMS_ROOM ((TEGROUP_IMPL_CPU_TILE_M + TEGROUP_IMPL_CPU_PAD_M) * TEGROUP_IMPL_CPU_TILE_N)
#define TEGROUP_IMPL_CPU_A_ROOM    ((TEGROUP_IMPL_CPU_TILE_M + TEGROUP_IMPL_CPU_PAD_M) * TEGROUP_IMPL_CPU_TILE_K)

TEGROUP_IMPL_STATIC int64_t tegroup_impl_cpu_panel_bytes(tegroup_compute compute) {
    return (int64_t)(TEGROUP_IMPL_CPU_B_ROOM + TEGROUP_IMPL_CPU_SUMS_ROOM + TEGROUP_IMPL_CPU_A_ROOM)
           * (compute == TEGROUP_COMPUTE_F64 ? 8 : 4);
}

TEGROUP_IMPL_STATIC void tegroup_impl_cpu_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    tegroup_impl_layout_add(layout, "panels of each thread",
                            tegroup_impl_mul(tegroup_impl_cpu_panel_bytes(plan->problem.compute), plan->threads));
}

TEGROUP_IMPL_STATIC void tegroup_impl_cpu_tile(const tegroup_gemm_desc *desc, const tegroup_target *target,
                                               tegroup_plan *plan, tegroup_impl_forecast *forecast) {
    (void)desc, (void)target, (void)forecast; /* there is one */
    plan->tile_m = TEGROUP_IMPL_CPU_TILE_M;
    plan->tile_n = TEGROUP_IMPL_CPU_TILE_N;
    plan->tile_k = TEGROUP_IMPL_CPU_TILE_K;
}

/* Lines side by side are asked for AHEAD_K of k ahead of what is packed: from element kk of k, how many elements
 * further on. Behind the last of k the next panel begins, `panel` elements from this one. */
#define TEGROUP_IMPL_CPU_AHEAD_K 64
TEGROUP_IMPL_INLINE int64_t tegroup_impl_cpu_ahead(int32_t kk, int32_t k, int64_t stride_k, int64_t panel) {
    return kk + TEGROUP_IMPL_CPU_AHEAD_K < k ? TEGROUP_IMPL_CPU_AHEAD_K * stride_k
                                             : (TEGROUP_IMPL_CPU_AHEAD_K - k) * stride_k + panel;
}

/* Bundles of lines are transposed in registers: what a line's loads give are vectors of k, and what is multiplied are
 * vectors of lines. Eight lines that are a power of two apart are as many as the ways of a first-level cache hold. */
#if defined(TEGROUP_IMPL_CPU_LANES)
/* A bundle's k elements, at least a step of them, to panel[k][width]. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_pack_bundle(tegroup_dtype dtype, const char *at, int64_t stride_bytes,
                                                      int32_t k, int32_t width, float *panel) {
    const int32_t step = tegroup_impl_cpu_step(dtype), bytes = tegroup_impl_bits(dtype) / 8;
    int32_t kk, i;
    for (kk = 0; kk < k; kk += step) {
        tegroup_impl_lanes v[16];
        if (kk > k - step) kk = k - step; /* some of the last are packed twice */
        tegroup_impl_cpu_transpose(dtype, at + (int64_t)kk * bytes, stride_bytes, v);
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < step; i++) *(tegroup_impl_lanes *)(void *)(panel + (kk + i) * width) = v[i];
    }
}

/* All whole bundles of `lines` lines, a cache line of each in turn, so that it is read once and rows of the panel are
 * written from end to end; returned is how many lines these are. */
TEGROUP_IMPL_INLINE int32_t tegroup_impl_cpu_pack_bundles(tegroup_dtype dtype, const char *at, int64_t stride_bytes,
                                                          int32_t lines, int32_t k, int32_t width, float *panel) {
    const int32_t bytes = tegroup_impl_bits(dtype) / 8, most = 64 / bytes, piece = k < most ? k : most;
    int32_t kk, i;
    for (kk = 0; kk < k; kk += piece) {
        if (kk > k - piece) kk = k - piece;
        for (i = 0; i + TEGROUP_IMPL_CPU_LANES <= lines; i += TEGROUP_IMPL_CPU_LANES) {
            const char *from = at + i * stride_bytes + kk * bytes;
            /* for the next panel */
            tegroup_impl_cpu_foresee(from + width * stride_bytes, stride_bytes, TEGROUP_IMPL_CPU_LANES);
            tegroup_impl_cpu_pack_bundle(dtype, from, stride_bytes, piece, width, panel + kk * width + i);
        }
    }
    return lines / TEGROUP_IMPL_CPU_LANES * TEGROUP_IMPL_CPU_LANES;
}

/* Neighbours of F16 are widened a vector at a time; returned is how many. (Of BF16 compilers make vectors by
 * themselves.) */
TEGROUP_IMPL_INLINE int32_t tegroup_impl_cpu_widen_f16(tegroup_dtype dtype, const char *at, int32_t count, float *to) {
    int32_t i = 0;
    if (dtype == TEGROUP_DTYPE_F16)
        for (; i + TEGROUP_IMPL_CPU_LANES <= count; i += TEGROUP_IMPL_CPU_LANES)
            *(tegroup_impl_lanes *)(void *)(to + i) = tegroup_impl_cpu_widen(TEGROUP_DTYPE_F16, at + 2 * i);
    return i;
}
#define TEGROUP_IMPL_STEP_f32(dtype) tegroup_impl_cpu_step(dtype)
#define TEGROUP_IMPL_PACK_BUNDLES_f32 tegroup_impl_cpu_pack_bundles
#define TEGROUP_IMPL_WIDEN_F16_f32 tegroup_impl_cpu_widen_f16
#else /* these do nothing */
#define TEGROUP_IMPL_STEP_f32(dtype) 0
#define TEGROUP_IMPL_PACK_BUNDLES_f32(dtype, at, stride_bytes, lines, k, width, panel) 0
#define TEGROUP_IMPL_WIDEN_F16_f32(dtype, at, count, to) 0
#endif
#define TEGROUP_IMPL_STEP_f64(dtype) 0
#define TEGROUP_IMPL_PACK_BUNDLES_f64(dtype, at, stride_bytes, lines, k, width, panel) 0
#define TEGROUP_IMPL_WIDEN_F16_f64(dtype, at, count, to) 0

/* @each-real */
#define TEGROUP_IMPL_MICRO_N_FSUF ((int32_t)(2 * TEGROUP_IMPL_VECTOR_BYTES / sizeof(REAL)))

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
    const int32_t bytes = tegroup_impl_bits(dtype) / 8;
    int32_t base, i, kk;
    (void)bytes;
    for (base = 0; base < count; base += width, panel += (int64_t)k * width) {
        int32_t lines = count - base < width ? count - base : width;
        int64_t at = first + base * stride_line;
        if (lines < width) memset(panel, 0, (size_t)k * (size_t)width * sizeof(REAL));
        if (stride_line == 1 && lines == width)
            for (kk = 0; kk < k; kk++) {
                const int64_t from = at + kk * stride_k;
                TEGROUP_IMPL_FORESEE((const char *)data
                                         + (from + tegroup_impl_cpu_ahead(kk, k, stride_k, width)) * bytes,
                                     width * bytes);
                i = TEGROUP_IMPL_WIDEN_F16_FSUF(dtype, (const char *)data + from * bytes, width, panel + kk * width);
                for (; i < width; i++) panel[kk * width + i] = tegroup_impl_load_FSUF(dtype, data, from + i);
            }
        else if (stride_k == 1) {
            i = 0;
            if (TEGROUP_IMPL_STEP_FSUF(dtype) > 0 && k >= TEGROUP_IMPL_STEP_FSUF(dtype))
                i = TEGROUP_IMPL_PACK_BUNDLES_FSUF(dtype, (const char *)data + at * bytes, stride_line * bytes, lines,
                                                   k, width, panel);
            for (; i < lines; i++)
                for (kk = 0; kk < k; kk++)
                    panel[kk * width + i] = tegroup_impl_load_FSUF(dtype, data, at + i * stride_line + kk);
        } else
            for (kk = 0; kk < k; kk++)
                for (i = 0; i < lines; i++)
                    panel[kk * width + i] = tegroup_impl_load_FSUF(dtype, data, at + i * stride_line + kk * stride_k);
    }
}

TEGROUP_IMPL_STATIC void tegroup_impl_cpu_pack_FSUF(tegroup_dtype dtype, const void *data, int64_t first,
                                                    int64_t stride_line, int64_t stride_k, int32_t count, int32_t k,
                                                    int32_t width, REAL *panel) {
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

/* sums[m][MICRO_N] += packed A, in panels that are a_k deep, * one panel of B. Fewer rows than MICRO_M run a kernel of
 * their own height. */
TEGROUP_IMPL_STATIC void tegroup_impl_cpu_block_FSUF(int32_t m, int64_t k, const REAL *a, int32_t a_k, const REAL *b,
                                                     REAL *sums) {
    int32_t i;
    for (i = 0; i < m; i += TEGROUP_IMPL_MICRO_M) {
        const REAL *panel = a + (int64_t)i * a_k;
        REAL *at = sums + i * TEGROUP_IMPL_CPU_TILE_N;
        const int32_t rows = m - i;
        if (rows > 4) tegroup_impl_cpu_micro_FSUF(TEGROUP_IMPL_MICRO_M, k, panel, b, at);
        else if (rows > 2) tegroup_impl_cpu_micro_FSUF(4, k, panel, b, at);
        else if (rows > 1) tegroup_impl_cpu_micro_FSUF(2, k, panel, b, at);
        else tegroup_impl_cpu_micro_FSUF(1, k, panel, b, at);
    }
}
/* @end */
