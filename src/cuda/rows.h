/* ---- Rows on the GPU ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/snapshot_checks.h"
#include "cuda/launch.h"

/* Kernels over rows are templates over how they access a matrix. "Vectors" move 16 bytes a step, for matrices of one
 * type whose rows all begin at multiples of 16 bytes; "scalars" move one element of any type. A block works on a few
 * rows at a time, so that each thread has several loads in flight. */
enum { TEGROUP_IMPL_ROWS_UNIT = TEGROUP_GRANULE, TEGROUP_IMPL_ROWS_THREADS = 256 };

static __device__ __forceinline__ float tegroup_impl_low_half(uint32_t word, bool bf16) {
#if __CUDA_ARCH__ >= 530
    float x;
    if (bf16) return __uint_as_float(word << 16);
    asm("{.reg .f16 h; mov.b32 {h, _}, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(word));
    return x;
#else
    return bf16 ? tegroup_impl_f32_of_bf16((uint16_t)word) : tegroup_impl_f32_of_f16((uint16_t)word);
#endif
}

static __device__ __forceinline__ float tegroup_impl_high_half(uint32_t word, bool bf16) {
#if __CUDA_ARCH__ >= 530
    float x;
    if (bf16) return __uint_as_float(word & 0xffff0000u);
    asm("{.reg .f16 h; mov.b32 {_, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(word));
    return x;
#else
    return bf16 ? __uint_as_float(word & 0xffff0000u) : tegroup_impl_low_half(word >> 16, false);
#endif
}

/* For results of arithmetic the hardware rounds to the same bits as the plain C conversions: the only NaN that
 * arithmetic produces is the quiet one with all bits set. */
static __device__ __forceinline__ uint32_t tegroup_impl_two_halves(float low, float high, bool bf16) {
#if __CUDA_ARCH__ >= 800
    uint32_t word;
    if (bf16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return bf16 ? (uint32_t)tegroup_impl_bf16_of_f32(low) | (uint32_t)tegroup_impl_bf16_of_f32(high) << 16
                : (uint32_t)tegroup_impl_f16_of_f32(low) | (uint32_t)tegroup_impl_f16_of_f32(high) << 16;
#endif
}

template <int DTYPE> struct tegroup_impl_vectors {
    typedef float real;
    typedef uint4 raw;
    enum { lanes = DTYPE == TEGROUP_DTYPE_F32 ? 4 : 8, bytes = 16 / lanes };
    static __device__ __forceinline__ char *row(const tegroup_matrix &m, int64_t row) {
        return (char *)m.data + row * m.ld * bytes;
    }
    static __device__ __forceinline__ raw load(const tegroup_matrix &, const char *row, int64_t step) {
        return ((const raw *)row)[step];
    }
    static __device__ __forceinline__ void store(const tegroup_matrix &, char *row, int64_t step, raw x) {
        ((raw *)row)[step] = x;
    }
    static __device__ __forceinline__ void unpack(raw v, real *x) {
        const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (DTYPE == TEGROUP_DTYPE_F32) {
                x[i] = __uint_as_float(word[i]);
            } else {
                x[2 * i] = tegroup_impl_low_half(word[i], DTYPE == TEGROUP_DTYPE_BF16);
                x[2 * i + 1] = tegroup_impl_high_half(word[i], DTYPE == TEGROUP_DTYPE_BF16);
            }
        }
    }
    static __device__ __forceinline__ raw pack(const real *x) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = DTYPE == TEGROUP_DTYPE_F32
                          ? __float_as_uint(x[i])
                          : tegroup_impl_two_halves(x[2 * i], x[2 * i + 1], DTYPE == TEGROUP_DTYPE_BF16);
        return make_uint4(word[0], word[1], word[2], word[3]);
    }
    /* Rounds numbers to the matrix's type. */
    static __device__ __forceinline__ void round(const tegroup_matrix &, real *x) { unpack(pack(x), x); }
};

/* Loads and stores one element of F64, F32, F16 or BF16. These functions are not inlined: their callers are slow in any
 * case, and stay small this way. They must not have other types: when they did, an activation's kernel that called one
 * where its warp had diverged read from an address whose low word was lost (nvcc 13.0, H100; why was not found). */
static __device__ __noinline__ float tegroup_impl_load_as(tegroup_dtype dtype, const void *data, int64_t i, float) {
    return tegroup_impl_load_float_f32(dtype, data, i);
}
static __device__ __noinline__ double tegroup_impl_load_as(tegroup_dtype dtype, const void *data, int64_t i, double) {
    return tegroup_impl_load_float_f64(dtype, data, i);
}
static __device__ __noinline__ void tegroup_impl_store_as(tegroup_dtype dtype, void *data, int64_t i, float x) {
    tegroup_impl_store_float_f32(dtype, data, i, x);
}
static __device__ __noinline__ void tegroup_impl_store_as(tegroup_dtype dtype, void *data, int64_t i, double x) {
    tegroup_impl_store_float_f64(dtype, data, i, x);
}

template <typename REAL> struct tegroup_impl_scalars {
    typedef REAL real;
    typedef REAL raw;
    enum { lanes = 1 };
    static __device__ __forceinline__ char *row(const tegroup_matrix &m, int64_t row) {
        return tegroup_impl_matrix_row(&m, row);
    }
    static __device__ __forceinline__ raw load(const tegroup_matrix &m, const char *row, int64_t step) {
        return tegroup_impl_load_as(m.dtype, row, step, raw());
    }
    static __device__ __forceinline__ void store(const tegroup_matrix &m, char *row, int64_t step, raw x) {
        tegroup_impl_store_as(m.dtype, row, step, x);
    }
    static __device__ __forceinline__ void unpack(raw v, real *x) { x[0] = v; }
    static __device__ __forceinline__ raw pack(const real *x) { return x[0]; }
    static __device__ __forceinline__ void round(const tegroup_matrix &m, real *x) {
        real rounded = 0;
        tegroup_impl_store_as(m.dtype, &rounded, 0, x[0]);
        x[0] = tegroup_impl_load_as(m.dtype, &rounded, 0, real());
    }
};

/* Matrices of weights, scales and their gradients are F32 or F64. An absent one reads as ones. */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_weight(const tegroup_matrix &m, int64_t row, int64_t col) {
    const int64_t at = row * m.ld + col;
    return m.dtype == TEGROUP_DTYPE_UNSET ? (REAL)1
           : m.dtype == TEGROUP_DTYPE_F32 ? (REAL)((const float *)m.data)[at]
                                          : (REAL)((const double *)m.data)[at];
}
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_set_weight(const tegroup_matrix &m, int64_t row, int64_t col,
                                                               REAL x) {
    const int64_t at = row * m.ld + col;
    if (m.dtype == TEGROUP_DTYPE_F32) ((float *)m.data)[at] = (float)x;
    else ((double *)m.data)[at] = (double)x;
}

/* The rows that groups own, cut into units of up to TEGROUP_IMPL_ROWS_UNIT rows of one group; without a snapshot, all
 * rows. What the snapshot says is clamped to the matrix. A buffer that is no snapshot for this matrix has no units. */
struct tegroup_impl_units {
    const int64_t *start, *rows, *prefix;
    int64_t capacity, count;
    int32_t groups;

    __device__ tegroup_impl_units(const void *snapshot, int64_t matrix_rows)
        : start(NULL), rows(NULL), prefix(NULL), capacity(matrix_rows),
          count(tegroup_impl_ceil_div(matrix_rows, TEGROUP_IMPL_ROWS_UNIT)), groups(0) {
        if (!snapshot) return;
        const tegroup_impl_fit fit = tegroup_impl_fit_of_rows(snapshot, matrix_rows);
        if (tegroup_impl_fits(&fit)) {
            const tegroup_snapshot_view view = tegroup_impl_snapshot_view(snapshot, fit.groups, 0);
            groups = fit.groups;
            start = view.start;
            rows = view.rows;
            prefix = view.prefix;
        }
        count = groups > 0 ? tegroup_impl_min(prefix[groups], count + groups) : 0;
    }

    /* Returns the number of rows of a unit, and sets *first to its first row; with a snapshot, *group to its group. */
    __device__ int32_t at(int64_t unit, int64_t *first, int32_t *group = NULL) const {
        int64_t room = capacity - unit * TEGROUP_IMPL_ROWS_UNIT;
        *first = unit * TEGROUP_IMPL_ROWS_UNIT;
        if (prefix) {
            int32_t g = 0, above = groups;
            while (above - g > 1) {
                const int32_t middle = (g + above) / 2;
                if (prefix[middle] <= unit) g = middle;
                else above = middle;
            }
            if (group) *group = g;
            const int64_t skipped = (unit - prefix[g]) * TEGROUP_IMPL_ROWS_UNIT;
            *first = start[g] + skipped;
            if (skipped < 0 || *first < 0) return 0;
            room = tegroup_impl_min(rows[g] - skipped, capacity - *first);
        }
        return (int32_t)tegroup_impl_clamp(room, 0, TEGROUP_IMPL_ROWS_UNIT);
    }
};

/* Sums over a block's threads, one for each row of a unit, in a fixed order. Thread r gets the sum of row r. */
template <typename REAL> static __device__ REAL tegroup_impl_block_sums(REAL (&sum)[TEGROUP_IMPL_ROWS_UNIT]) {
    __shared__ REAL part[TEGROUP_IMPL_ROWS_THREADS / 32][TEGROUP_IMPL_ROWS_UNIT];
    const int32_t thread = (int32_t)threadIdx.x, warps = (int32_t)blockDim.x / 32;
    REAL total = 0;
#pragma unroll
    for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++)
        for (int step = 16; step > 0; step /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], step);
    __syncthreads(); /* the parts of the previous unit have been read */
    if (thread % 32 == 0)
        for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) part[thread / 32][r] = sum[r];
    __syncthreads();
    if (thread < TEGROUP_IMPL_ROWS_UNIT)
        for (int32_t w = 0; w < warps; w++) total += part[w][thread];
    return total;
}

/* A copy of the matrix with its leading dimension filled in. */
static inline tegroup_matrix tegroup_impl_cuda_matrix(const tegroup_matrix *m) {
    tegroup_matrix spelt = *m;
    spelt.ld = tegroup_impl_matrix_ld(m);
    return spelt;
}

/* The largest number of bytes, up to 16, in which a matrix's rows can be copied piece by piece. */
static inline int32_t tegroup_impl_cuda_piece(const tegroup_matrix *m) {
    const int64_t bytes = tegroup_impl_bits(m->dtype) / 8;
    int32_t piece = 16;
    while (m->cols * bytes % piece != 0 || tegroup_impl_matrix_ld(m) * bytes % piece != 0
           || !tegroup_impl_aligned(m->data, (size_t)piece))
        piece /= 2;
    return piece;
}

/* The access that suits rows of `width` elements in all of the matrices: the element type for vectors, F64 for scalars
 * in double if the first matrix is F64, else UNSET for scalars in float. */
static inline tegroup_dtype tegroup_impl_cuda_access(const tegroup_matrix *const *matrices, int32_t count,
                                                     int64_t width) {
    const tegroup_dtype dtype = matrices[0]->dtype;
    const int64_t bytes = tegroup_impl_bits(dtype) / 8;
    int32_t i;
    if (dtype == TEGROUP_DTYPE_F64) return dtype;
    for (i = 0; i < count; i++) {
        const tegroup_matrix *m = matrices[i];
        if (m->dtype == TEGROUP_DTYPE_UNSET) continue;
        if (m->dtype != dtype || !tegroup_impl_aligned(m->data, 16) || tegroup_impl_matrix_ld(m) * bytes % 16 != 0
            || width * bytes % 16 != 0)
            return TEGROUP_DTYPE_UNSET;
    }
    return dtype;
}

/* Runs LAUNCH with the access type that tegroup_impl_cuda_access has chosen. */
#define TEGROUP_IMPL_BY_ACCESS(chosen, LAUNCH)                                                                         \
    switch (chosen) {                                                                                                  \
    case TEGROUP_DTYPE_BF16: LAUNCH(tegroup_impl_vectors<TEGROUP_DTYPE_BF16>) break;                                   \
    case TEGROUP_DTYPE_F16: LAUNCH(tegroup_impl_vectors<TEGROUP_DTYPE_F16>) break;                                     \
    case TEGROUP_DTYPE_F32: LAUNCH(tegroup_impl_vectors<TEGROUP_DTYPE_F32>) break;                                     \
    case TEGROUP_DTYPE_F64: LAUNCH(tegroup_impl_scalars<double>) break;                                                \
    default: LAUNCH(tegroup_impl_scalars<float>) break;                                                                \
    }

/* Blocks for a kernel that strides over `units` of work: one a unit, but at most `each` a multiprocessor. */
static inline tegroup_status tegroup_impl_cuda_blocks(int64_t units, int32_t each, unsigned *blocks,
                                                      tegroup_error *error) {
    int device = 0, multiprocessors = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "there must be a current device", error));
    *blocks = (unsigned)tegroup_impl_clamp(units, 1, (int64_t)each * multiprocessors);
    return TEGROUP_OK;
}

/* Rows shorter than a block may lie side by side in it, as those of fewer steps than a warp do: `rows` of them at a
 * time, of which a thread has number `row` (none if that is `rows`), from `step` on, every `stride` steps. */
struct tegroup_impl_abreast {
    int32_t rows, row, step, stride;
    __device__ explicit tegroup_impl_abreast(int64_t steps)
        : stride((int32_t)tegroup_impl_min(steps, (int64_t)blockDim.x)) {
        rows = (int32_t)blockDim.x / stride;
        row = (int32_t)threadIdx.x / stride;
        step = (int32_t)threadIdx.x % stride;
    }
};

/* Launches a kernel over units of rows, with one thread for each step of `lanes` elements, up to a block's limit. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_rows(void (*kernel)(const DESC), const DESC *desc, int64_t width,
                                                    int32_t lanes, int64_t units, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    unsigned blocks;
    const unsigned threads =
        (unsigned)tegroup_impl_clamp(tegroup_impl_align(width / lanes, 32), 64, TEGROUP_IMPL_ROWS_THREADS);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(units, 32, &blocks, error));
    return tegroup_impl_cuda_status(tegroup_impl_launch(kernel, blocks, threads, 0, stream, *desc), "stream",
                                    "the kernel must launch", error);
}

/* The same for a kernel whose rows may be abreast. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_rows_abreast(void (*kernel)(const DESC), const DESC *desc, int64_t width,
                                                            int32_t lanes, int64_t rows, struct CUstream_st *stream,
                                                            tegroup_error *error) {
    const int64_t steps = width / lanes, together = TEGROUP_IMPL_ROWS_THREADS / steps;
    unsigned blocks;
    if (steps >= 32) return tegroup_impl_cuda_rows(kernel, desc, width, lanes, rows, stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(rows, together), 8, &blocks, error));
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, blocks, TEGROUP_IMPL_ROWS_THREADS, 0, stream, *desc), "stream",
        "the kernel must launch", error);
}

/* What the sums of a step of a row begin with: what it holds, or 0. */
template <typename ACCESS>
static __device__ __forceinline__ void tegroup_impl_begin_sum(const tegroup_matrix &out, int64_t row, int64_t c,
                                                              int32_t accumulate, typename ACCESS::real *sum) {
#pragma unroll
    for (int i = 0; i < ACCESS::lanes; i++) sum[i] = 0;
    if (accumulate) ACCESS::unpack(ACCESS::load(out, ACCESS::row(out, row), c), sum);
}
