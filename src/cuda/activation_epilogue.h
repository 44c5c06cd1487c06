/* ---- Activations in epilogues ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/activation_types.h"
#include "base/arithmetic.h"
#include "core/activation_formulas.h"
#include "cuda/rows.h"

/* For an epilogue: eight columns of a row in words of two halves. x: their gates and their ups or, interleaved,
 * pairs. */
template <tegroup_activation KIND, bool INTERLEAVED>
static __device__ __forceinline__ void tegroup_impl_activate_eight(float alpha, float limit, bool bf16, float scale,
                                                                   const uint32_t (&x)[2][4], uint32_t (&y)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t one = INTERLEAVED ? x[i / 2][i % 2 * 2] : x[0][i],
                       two = INTERLEAVED ? x[i / 2][i % 2 * 2 + 1] : x[1][i];
        const float low = tegroup_impl_low_half(one, bf16), high = tegroup_impl_high_half(one, bf16),
                    low2 = tegroup_impl_low_half(two, bf16), high2 = tegroup_impl_high_half(two, bf16);
        y[i] = tegroup_impl_two_halves(
            __fmul_rn(scale, tegroup_impl_activation_f32(KIND, 1, alpha, limit, low, INTERLEAVED ? high : low2)),
            __fmul_rn(scale, tegroup_impl_activation_f32(KIND, 1, alpha, limit, INTERLEAVED ? low2 : high, high2)),
            bf16);
    }
}

#if !defined(TEGROUP_NO_BACKWARD)
/* A row's sum of gradient times result, in an order that an epilogue, which has a tile's columns at a time, can keep to
 * as well: a step's columns one after another, steps of 32 columns by a tree of neighbours, these threads' own one
 * after another, then the block's threads. (Without gate and up there is no such epilogue, and no tree.) */
enum { TEGROUP_IMPL_ROW_SUM_COLS = 32 };

/* The tree: the sum of as many neighbours, which they all get. there: lanes of the warp that take part, the first
 * ones. */
static __device__ __forceinline__ float tegroup_impl_tree(float sum, int threads, int there) {
    const uint32_t mask = there < 32 ? (1u << there) - 1 : 0xffffffffu;
#pragma unroll
    for (int step = 1; step < threads; step *= 2) {
        const float other = __shfl_xor_sync(mask, sum, step);
        sum = __fadd_rn(sum, ((int)threadIdx.x % 32 ^ step) < there ? other : 0.0f);
    }
    return sum;
}

/* The gradient: x is replaced by that of gates and ups; y, the gradient of what was activated, by that itself. Returns
 * the eight's part of the row's sum. */
template <tegroup_activation KIND, bool INTERLEAVED>
static __device__ __forceinline__ float tegroup_impl_differentiate_eight(float alpha, float limit, bool bf16,
                                                                         float scale, uint32_t (&x)[2][4],
                                                                         uint32_t (&y)[4]) {
    float part[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) { /* two columns of y are a word of gates and one of ups, or two of pairs */
        uint32_t &one = INTERLEAVED ? x[i / 2][i % 2 * 2] : x[0][i],
                 &two = INTERLEAVED ? x[i / 2][i % 2 * 2 + 1] : x[1][i];
        const float a[2] = {tegroup_impl_low_half(one, bf16), tegroup_impl_high_half(one, bf16)},
                    b[2] = {tegroup_impl_low_half(two, bf16), tegroup_impl_high_half(two, bf16)},
                    dy[2] = {tegroup_impl_low_half(y[i], bf16), tegroup_impl_high_half(y[i], bf16)};
        float gate[2], up[2], value[2], &sum = part[INTERLEAVED ? i / 2 : 0];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            value[j] = tegroup_impl_activation_grad_f32(KIND, 1, alpha, limit,
                                                        !INTERLEAVED ? a[j]
                                                        : j          ? b[0]
                                                                     : a[0],
                                                        !INTERLEAVED ? b[j]
                                                        : j          ? b[1]
                                                                     : a[1],
                                                        __fmul_rn(scale, dy[j]), &gate[j], &up[j]);
            sum = __fmaf_rn(dy[j], value[j], sum);
        }
        one = tegroup_impl_two_halves(gate[0], INTERLEAVED ? up[0] : gate[1], bf16);
        two = tegroup_impl_two_halves(INTERLEAVED ? gate[1] : up[0], up[1], bf16);
        y[i] = tegroup_impl_two_halves(__fmul_rn(scale, value[0]), __fmul_rn(scale, value[1]), bf16);
    }
    return INTERLEAVED ? __fadd_rn(part[0], part[1]) : part[0];
}

/* The end of those sums where an epilogue has made them of each 32 columns: a thread does for a row what a warp of the
 * block above does for its threads. */
typedef struct tegroup_impl_row_sums {
    tegroup_activation_backward_desc desc;
    const float *of_cols; /* [ceil(cols / 32)][rows] */
} tegroup_impl_row_sums;

/* COUNT: columns a step of a thread above, and so sums of 32 columns a step of its warp. */
template <int COUNT>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_row_sums_kernel(const __grid_constant__ tegroup_impl_row_sums sums) {
    __shared__ float part[TEGROUP_IMPL_ROWS_THREADS];
    const tegroup_activation_backward_desc &desc = sums.desc;
    const tegroup_impl_units units(desc.snapshot, desc.grad_output.rows);
    const int64_t count = tegroup_impl_ceil_div(desc.grad_output.cols, TEGROUP_IMPL_ROW_SUM_COLS);
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32, warps = (int32_t)blockDim.x / 32;
    for (int64_t unit = (int64_t)blockIdx.x * (32 / TEGROUP_IMPL_ROWS_UNIT); unit < units.count;
         unit += (int64_t)gridDim.x * (32 / TEGROUP_IMPL_ROWS_UNIT)) {
        const int64_t mine = unit + lane / TEGROUP_IMPL_ROWS_UNIT;
        const int32_t within = lane % TEGROUP_IMPL_ROWS_UNIT;
        int64_t row = 0;
        const bool there = mine < units.count && within < units.at(mine, &row);
        float sum[COUNT] = {0};
        row += within;
        for (int64_t from = warp * COUNT; there && from < count; from += warps * COUNT)
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                if (from + j < count) sum[j] += sums.of_cols[(from + j) * desc.grad_output.rows + row];
#pragma unroll
        for (int half = COUNT / 2; half > 0; half /= 2)
#pragma unroll
            for (int j = 0; j < half; j++) sum[j] += sum[j + half];
        part[threadIdx.x] = sum[0];
        __syncthreads();
        if (warp == 0 && there) {
            float total = 0;
            for (int32_t w = 0; w < warps; w++) total += part[w * 32 + lane];
            tegroup_impl_set_weight(desc.grad_row_scale, row, 0, total);
        }
        __syncthreads();
    }
}

/* desc: what tegroup_impl_cuda_activation_backward would have been given, in vectors of eight. */
static inline tegroup_status tegroup_impl_cuda_row_sums(const tegroup_activation_backward_desc *desc,
                                                        const float *of_cols, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    tegroup_impl_row_sums sums;
    if (desc->grad_output.rows == 0 || desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    sums.desc = *desc;
    sums.desc.grad_row_scale = tegroup_impl_cuda_matrix(&desc->grad_row_scale);
    sums.of_cols = of_cols;
    return tegroup_impl_cuda_rows(desc->interleaved ? tegroup_impl_row_sums_kernel<4> : tegroup_impl_row_sums_kernel<8>,
                                  &sums, desc->grad_output.cols, 8, tegroup_impl_ceil_div(desc->grad_output.rows, 32),
                                  stream, error);
}
#endif /* TEGROUP_NO_BACKWARD */
