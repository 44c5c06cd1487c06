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
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/choice.h"

/* The blocked product after Goto and van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication": panels of
 * A and B are copied (and widened to the type of the sums) so that the innermost kernel reads both in order. Each
 * element of D is one chain of additions over k from 0 upwards, whatever the tile that it falls into, so a row's bits
 * do not depend on its neighbours, the number of threads, or the instruction set (fused multiply-add apart, which is
 * the compiler's choice). */
#define TEGROUP_IMPL_CPU_TILE_M  384 /* for all of whose rows a panel of B is packed once */
#define TEGROUP_IMPL_CPU_LOW_M   128 /* rows of a tile where threads would share too few tiles */
#define TEGROUP_IMPL_CPU_TILE_N  256
#define TEGROUP_IMPL_CPU_TILE_K  256
#define TEGROUP_IMPL_CPU_PANEL_N 32 /* room for any MICRO_N below */
#define TEGROUP_IMPL_CPU_PAD_M   16 /* room for rounding a tile's rows up to any MICRO_M below */

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

/* No more rows are multiplied by lines of B as these are transposed: one panel of A or two, for all of k that their
 * room holds. */
#define TEGROUP_IMPL_FEW 12

/* What a thread has in its workspace: elements of a panel of B, of sums, and of panels of A. */
#define TEGROUP_IMPL_CPU_B_ROOM    (TEGROUP_IMPL_CPU_TILE_K * TEGROUP_IMPL_CPU_PANEL_N)
#define TEGROUP_IMPL_CPU_SUMS_ROOM ((TEGROUP_IMPL_CPU_TILE_M + TEGROUP_IMPL_CPU_PAD_M) * TEGROUP_IMPL_CPU_TILE_N)
#define TEGROUP_IMPL_CPU_A_ROOM    ((TEGROUP_IMPL_CPU_TILE_M + TEGROUP_IMPL_CPU_PAD_M) * TEGROUP_IMPL_CPU_TILE_K)
#define TEGROUP_IMPL_CPU_FEW_ROOM (144 * TEGROUP_IMPL_CPU_TILE_K) /* of panels of A: as many as few rows fill */

static inline int64_t tegroup_impl_cpu_panel_bytes(tegroup_compute compute) {
    return (int64_t)(TEGROUP_IMPL_CPU_B_ROOM + TEGROUP_IMPL_CPU_SUMS_ROOM + TEGROUP_IMPL_CPU_A_ROOM)
           * (compute == TEGROUP_COMPUTE_F64 ? 8 : 4);
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

/* Asks the second cache for a cache line at each of `lines` places. Hardware foresees what one stream reads within a
 * page; but several lines read at a time are as many streams, each soon over, and of lines that lie side by side a
 * little of each page is read at a time. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_foresee(const char *at, int64_t stride_bytes, int32_t lines) {
#if defined(__GNUC__) || defined(__clang__)
    int32_t i;
    for (i = 0; i < lines; i++) __builtin_prefetch(at + i * stride_bytes, 0, 2);
#else
    (void)at, (void)stride_bytes, (void)lines;
#endif
}
/* The same for so many bytes from `at` on. */
#define TEGROUP_IMPL_FORESEE(at, bytes) tegroup_impl_cpu_foresee(at, 64, ((bytes) + 63) / 64)
/* Lines side by side are asked for AHEAD_K of k ahead of what is packed: from element kk of k, how many elements
 * further on. Behind the last of k the next panel begins, `panel` elements from this one. */
#define TEGROUP_IMPL_CPU_AHEAD_K 64
TEGROUP_IMPL_INLINE int64_t tegroup_impl_cpu_ahead(int32_t kk, int32_t k, int64_t stride_k, int64_t panel) {
    return kk + TEGROUP_IMPL_CPU_AHEAD_K < k ? TEGROUP_IMPL_CPU_AHEAD_K * stride_k
                                             : (TEGROUP_IMPL_CPU_AHEAD_K - k) * stride_k + panel;
}

/* Vectors where the compiler has them and float arithmetic is done in float (not on x87). */
#if defined(__GNUC__) && defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ == 0
#define TEGROUP_IMPL_VECTORS
#endif

/* Eight lines at a time, whose elements along k are neighbours, are transposed in registers: what a line's loads give
 * are vectors of k, and what is multiplied are vectors of lines. Eight lines that are a power of two apart are as many
 * as the ways of a first-level cache hold. */
#if defined(TEGROUP_IMPL_VECTORS) && defined(__AVX__) && !defined(__CUDACC__) && (defined(__clang__) || __GNUC__ >= 12)
#define TEGROUP_IMPL_TRANSPOSES
#define TEGROUP_IMPL_PIECE_K 64   /* few rows take as much of k at a time: eight lines wait in 2 KB */
#define TEGROUP_IMPL_AHEAD   2048 /* bytes along a line from what is read to what is asked for */
#if defined(__AVX512VL__)
#define TEGROUP_IMPL_ANY_REGISTER "+v"
#else
#define TEGROUP_IMPL_ANY_REGISTER "+x"
#endif
typedef float tegroup_impl_quad __attribute__((vector_size(16), aligned(2), may_alias));
typedef float tegroup_impl_oct __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t tegroup_impl_oct_bits __attribute__((vector_size(32)));
typedef short tegroup_impl_halves __attribute__((vector_size(32), aligned(2), may_alias));

/* How many elements of each line are transposed at a time; 0: none are, and the type is packed element by element. */
TEGROUP_IMPL_INLINE int32_t tegroup_impl_cpu_step(tegroup_dtype dtype) {
#if defined(__F16C__)
    if (dtype == TEGROUP_DTYPE_F16) return 16; /* the compiler was told of the instruction that widens them */
#endif
    return dtype == TEGROUP_DTYPE_F32 ? 4 : dtype == TEGROUP_DTYPE_BF16 ? 8 : 0;
}

/* v[i] = element i of each of eight lines, widened, for as many i as a step has. To transpose is to interleave one half
 * of the registers with the other, as often as halving them leaves one. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_transpose(tegroup_dtype dtype, const char *at, int64_t stride_bytes,
                                                    tegroup_impl_oct v[16]) {
    int32_t round, i;
#if defined(__F16C__)
    if (dtype == TEGROUP_DTYPE_F16) { /* elements 0 to 7 in the lower halves of the registers, 8 to 15 in the upper */
        tegroup_impl_halves w[8], next[8];
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 8; i++) w[i] = *(const tegroup_impl_halves *)(const void *)(at + i * stride_bytes);
        TEGROUP_IMPL_UNROLL
        for (round = 0; round < 3; round++) {
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < 4; i++) {
                next[2 * i] =
                    __builtin_shufflevector(w[i], w[i + 4], 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
                next[2 * i + 1] =
                    __builtin_shufflevector(w[i], w[i + 4], 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
            }
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < 8; i++) w[i] = next[i];
        }
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 8; i++) {
            v[i] = (tegroup_impl_oct)__builtin_ia32_vcvtph2ps256(
                __builtin_shufflevector(w[i], w[i], 0, 1, 2, 3, 4, 5, 6, 7));
            v[i + 8] = (tegroup_impl_oct)__builtin_ia32_vcvtph2ps256(
                __builtin_shufflevector(w[i], w[i], 8, 9, 10, 11, 12, 13, 14, 15));
        }
        return;
    }
#endif
    { /* lines 0 to 3 in the lower halves of the registers, 4 to 7 in the upper; two BF16 are moved as one element */
        tegroup_impl_oct w[4], next[4];
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 4; i++)
            w[i] = __builtin_shufflevector(*(const tegroup_impl_quad *)(const void *)(at + i * stride_bytes),
                                           *(const tegroup_impl_quad *)(const void *)(at + (i + 4) * stride_bytes), 0,
                                           1, 2, 3, 4, 5, 6, 7);
        TEGROUP_IMPL_UNROLL
        for (round = 0; round < 2; round++) {
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < 2; i++) {
                next[2 * i] = __builtin_shufflevector(w[i], w[i + 2], 0, 8, 1, 9, 4, 12, 5, 13);
                next[2 * i + 1] = __builtin_shufflevector(w[i], w[i + 2], 2, 10, 3, 11, 6, 14, 7, 15);
            }
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < 4; i++) w[i] = next[i];
        }
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 4; i++)
            if (dtype == TEGROUP_DTYPE_BF16) {
                v[2 * i] = (tegroup_impl_oct)((tegroup_impl_oct_bits)w[i] << 16);
                v[2 * i + 1] = (tegroup_impl_oct)((tegroup_impl_oct_bits)w[i] & 0xffff0000u);
            } else v[i] = w[i];
    }
}

/* Widens neighbours of F16 eight at a time, where the processor can; returned is how many. (Of BF16 compilers make
 * vectors by themselves.) */
TEGROUP_IMPL_INLINE int32_t tegroup_impl_cpu_widen_f16(tegroup_dtype dtype, const char *at, int32_t count, float *to) {
    int32_t i = 0;
#if defined(__F16C__)
    typedef short eight __attribute__((vector_size(16), aligned(2), may_alias));
    if (dtype == TEGROUP_DTYPE_F16)
        for (; i + 8 <= count; i += 8)
            *(tegroup_impl_oct *)(void *)(to + i) =
                (tegroup_impl_oct)__builtin_ia32_vcvtph2ps256(*(const eight *)(const void *)(at + 2 * i));
#else
    (void)dtype, (void)at, (void)count, (void)to;
#endif
    return i;
}

/* Eight lines of k elements, at least a step of them, to panel[k][width]. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_pack_eight(tegroup_dtype dtype, const char *at, int64_t stride_bytes,
                                                     int32_t k, int32_t width, float *panel) {
    const int32_t step = tegroup_impl_cpu_step(dtype), bytes = tegroup_impl_bits(dtype) / 8;
    int32_t kk, i;
    for (kk = 0; kk < k; kk += step) {
        tegroup_impl_oct v[16];
        if (kk > k - step) kk = k - step; /* some of the last are packed twice */
        tegroup_impl_cpu_transpose(dtype, at + (int64_t)kk * bytes, stride_bytes, v);
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < step; i++) *(tegroup_impl_oct *)(void *)(panel + (kk + i) * width) = v[i];
    }
}

/* All whole eights of `lines` lines, a cache line of each in turn, so that it is read once and rows of the panel are
 * written from end to end; returned is how many lines these are. */
TEGROUP_IMPL_INLINE int32_t tegroup_impl_cpu_pack_eights(tegroup_dtype dtype, const char *at, int64_t stride_bytes,
                                                         int32_t lines, int32_t k, int32_t width, float *panel) {
    const int32_t bytes = tegroup_impl_bits(dtype) / 8, most = 64 / bytes, piece = k < most ? k : most;
    int32_t kk, i;
    for (kk = 0; kk < k; kk += piece) {
        if (kk > k - piece) kk = k - piece;
        for (i = 0; i + 8 <= lines; i += 8) {
            const char *from = at + i * stride_bytes + kk * bytes;
            tegroup_impl_cpu_foresee(from + width * stride_bytes, stride_bytes, 8); /* for the next panel */
            tegroup_impl_cpu_pack_eight(dtype, from, stride_bytes, piece, width, panel + kk * width + i);
        }
    }
    return lines / 8 * 8;
}

/* sums[rows][8 * groups lines] += a[k][MICRO_M] * the lines' k elements, whole pieces of them. The last eight lines are
 * multiplied in their registers. Of two groups the first waits in the panel: two chains of additions, in turn, take no
 * longer than one. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_few_typed(tegroup_dtype dtype, int32_t rows, int32_t groups, const char *at,
                                                    int64_t stride_bytes, int32_t k, const float *a, float *panel,
                                                    float *sums) {
    const int32_t step = tegroup_impl_cpu_step(dtype), bytes = tegroup_impl_bits(dtype) / 8, packed = groups - 1,
                  ahead = k * bytes < TEGROUP_IMPL_AHEAD ? k * bytes : TEGROUP_IMPL_AHEAD;
    const int64_t next = 8 * groups * stride_bytes - k * bytes; /* from the lines' end to where the next begin */
    tegroup_impl_oct s[TEGROUP_IMPL_MICRO_M][2];
    int32_t k0, kk, i, r, g;
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        TEGROUP_IMPL_UNROLL
        for (g = 0; g < groups; g++)
            s[r][g] = ((const tegroup_impl_oct *)(const void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N))[g];
    }
    for (k0 = 0; k0 < k; k0 += TEGROUP_IMPL_PIECE_K, at += TEGROUP_IMPL_PIECE_K * bytes) {
        const tegroup_impl_oct *waiting = (const tegroup_impl_oct *)(const void *)panel;
        if (packed) tegroup_impl_cpu_pack_eight(dtype, at, stride_bytes, TEGROUP_IMPL_PIECE_K, 8, panel);
        for (kk = 0; kk < TEGROUP_IMPL_PIECE_K; kk += step) {
            tegroup_impl_oct v[16];
            if (kk * bytes % 64 == 0)
                tegroup_impl_cpu_foresee(at + kk * bytes + ahead + ((k0 + kk) * bytes + ahead < k * bytes ? 0 : next),
                                         stride_bytes, 8 * groups);
            tegroup_impl_cpu_transpose(dtype, at + 8 * packed * stride_bytes + kk * bytes, stride_bytes, v);
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < step; i++, a += TEGROUP_IMPL_MICRO_M) {
                TEGROUP_IMPL_UNROLL
                for (r = 0; r < rows; r++) {
                    if (packed) s[r][0] += a[r] * waiting[kk + i];
                    s[r][packed] += a[r] * v[i];
                    /* A compiler that saw the next product of the chain might change their order, or, as gcc does for
                     * AMD's processors, fuse none of a chain's additions. */
                    __asm__("" : TEGROUP_IMPL_ANY_REGISTER(s[r][packed]));
                    if (packed) __asm__("" : TEGROUP_IMPL_ANY_REGISTER(s[r][0]));
                }
            }
        }
    }
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        TEGROUP_IMPL_UNROLL
        for (g = 0; g < groups; g++) ((tegroup_impl_oct *)(void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N))[g] = s[r][g];
    }
}

/* The same for `lines` lines and any number of rows from 1 to FEW; A's panels are a_k deep. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_few_rows(tegroup_dtype dtype, int32_t m, int32_t lines, const char *at,
                                                   int64_t stride_bytes, int32_t k, const float *a, int32_t a_k,
                                                   float *panel, float *sums) {
    enum { MICRO_M = TEGROUP_IMPL_MICRO_M };
    const int32_t groups = dtype == TEGROUP_DTYPE_F32 ? 1 : 2; /* four bytes take longer to be read than to be added */
    int32_t i, j;
    for (j = 0; j < lines; j += 8 * groups)
        for (i = 0; i < m; i += MICRO_M) {
            const char *from = at + j * stride_bytes;
            const float *rows = a + i * a_k;
            const int32_t left = m - i;
            float *to = sums + i * TEGROUP_IMPL_CPU_TILE_N + j;
            if (MICRO_M > 6 && left > 8)
                tegroup_impl_cpu_few_typed(dtype, MICRO_M, groups, from, stride_bytes, k, rows, panel, to);
            else if (MICRO_M > 6 && left > 6)
                tegroup_impl_cpu_few_typed(dtype, 8, groups, from, stride_bytes, k, rows, panel, to);
            else if (left > 4) tegroup_impl_cpu_few_typed(dtype, 6, groups, from, stride_bytes, k, rows, panel, to);
            else if (left > 2) tegroup_impl_cpu_few_typed(dtype, 4, groups, from, stride_bytes, k, rows, panel, to);
            else if (left > 1) tegroup_impl_cpu_few_typed(dtype, 2, groups, from, stride_bytes, k, rows, panel, to);
            else tegroup_impl_cpu_few_typed(dtype, 1, groups, from, stride_bytes, k, rows, panel, to);
        }
}

/* sums[m][lines] += packed A * `lines` lines of B, for as much of k as is returned: 0 where the product is not one of
 * few rows and whole groups of lines that can be transposed. */
static inline int32_t tegroup_impl_cpu_few_f32(tegroup_dtype dtype, const void *data, int64_t first,
                                               int64_t stride_line, int64_t stride_k, int32_t m, int32_t lines,
                                               int32_t k, const float *a, float *panel, float *sums) {
    const int32_t bytes = tegroup_impl_bits(dtype) / 8, whole = k / TEGROUP_IMPL_PIECE_K * TEGROUP_IMPL_PIECE_K;
    const char *at = (const char *)data + first * bytes;
    if (m > TEGROUP_IMPL_FEW || lines % 16 != 0 || stride_k != 1 || tegroup_impl_cpu_step(dtype) == 0) return 0;
    stride_line *= bytes;
    if (dtype == TEGROUP_DTYPE_F32)
        tegroup_impl_cpu_few_rows(TEGROUP_DTYPE_F32, m, lines, at, stride_line, whole, a, k, panel, sums);
    else if (dtype == TEGROUP_DTYPE_BF16)
        tegroup_impl_cpu_few_rows(TEGROUP_DTYPE_BF16, m, lines, at, stride_line, whole, a, k, panel, sums);
#if defined(__F16C__)
    else tegroup_impl_cpu_few_rows(TEGROUP_DTYPE_F16, m, lines, at, stride_line, whole, a, k, panel, sums);
#endif
    return whole;
}
#endif
/* Where nothing is transposed these do nothing. */
#if defined(TEGROUP_IMPL_TRANSPOSES)
#define TEGROUP_IMPL_STEP_f32(dtype) tegroup_impl_cpu_step(dtype)
#define TEGROUP_IMPL_WIDEN_F16_f32 tegroup_impl_cpu_widen_f16
#define TEGROUP_IMPL_PACK_EIGHTS_f32 tegroup_impl_cpu_pack_eights
#define TEGROUP_IMPL_FEW_f32 tegroup_impl_cpu_few_f32
#else
#define TEGROUP_IMPL_STEP_f32(dtype) 0
#define TEGROUP_IMPL_WIDEN_F16_f32(dtype, at, count, to) 0
#define TEGROUP_IMPL_PACK_EIGHTS_f32(dtype, at, stride_bytes, lines, k, width, panel) 0
#define TEGROUP_IMPL_FEW_f32(dtype, data, first, stride_line, stride_k, m, lines, k, a, panel, sums) 0
#endif
#define TEGROUP_IMPL_STEP_f64(dtype) 0
#define TEGROUP_IMPL_WIDEN_F16_f64(dtype, at, count, to) 0
#define TEGROUP_IMPL_PACK_EIGHTS_f64(dtype, at, stride_bytes, lines, k, width, panel) 0
#define TEGROUP_IMPL_FEW_f64(dtype, data, first, stride_line, stride_k, m, lines, k, a, panel, sums) 0

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
                i = TEGROUP_IMPL_PACK_EIGHTS_FSUF(dtype, (const char *)data + at * bytes, stride_line * bytes, lines, k,
                                                  width, panel);
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

/* sums[m][MICRO_N] += packed A, in panels that are a_k deep, * one panel of B. Fewer rows than MICRO_M run a kernel of
 * their own height. */
static inline void tegroup_impl_cpu_block_FSUF(int32_t m, int64_t k, const REAL *a, int32_t a_k, const REAL *b,
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
