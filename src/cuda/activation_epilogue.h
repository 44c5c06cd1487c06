/* ---- Activations in epilogues ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/activation_types.h"
#include "base/arithmetic.h"
#include "core/activation_formulas.h"
#include "cuda/rows.h"

/* Activates eight columns of a row for an epilogue, in words of two halves. x holds eight gates and eight ups, or,
 * interleaved, eight pairs of them. */
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
/* The sum over a row of gradient times result has a fixed order that an epilogue can follow although it sees a tile's
 * columns at a time: first the columns of a thread's step in order, then the threads of 32 columns in a tree, then each
 * thread's own steps in order, then the block's threads. Activations without gate and up have no such epilogue, and no
 * tree. */
enum { TEGROUP_IMPL_ROW_SUM_COLS = 32 };

/* The tree: every one of `threads` neighbouring lanes gets the sum over all of them. there: the first lanes of the warp
 * that take part. */
static __device__ __forceinline__ float tegroup_impl_tree(float sum, int threads, int there) {
    const uint32_t mask = there < 32 ? (1u << there) - 1 : 0xffffffffu;
#pragma unroll
    for (int step = 1; step < threads; step *= 2) {
        const float other = __shfl_xor_sync(mask, sum, step);
        sum = __fadd_rn(sum, ((int)threadIdx.x % 32 ^ step) < there ? other : 0.0f);
    }
    return sum;
}

/* The gradient for eight columns: gates and ups in x are replaced by their gradients, and the output's gradient in y by
 * the output itself. Returns the part of the row's sum that the eight columns make. */
template <tegroup_activation KIND, bool INTERLEAVED>
static __device__ __forceinline__ float tegroup_impl_differentiate_eight(float alpha, float limit, bool bf16,
                                                                         float scale, uint32_t (&x)[2][4],
                                                                         uint32_t (&y)[4]) {
    float part[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) { /* two columns of y: a word of gates and one of ups, or two words of pairs */
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

/* Finishes the rows' sums when an epilogue has made them for every 32 columns. One thread does for a row what a warp
 * does for its lanes in the order described above. */
typedef struct tegroup_impl_row_sums {
    tegroup_activation_backward_desc desc;
    const float *of_cols; /* [ceil(cols / 32)][rows] */
} tegroup_impl_row_sums;

/* COUNT: columns in a thread's step in that order, and so also the number of 32-column sums in a warp's step. */
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

/* desc is as for tegroup_impl_cuda_activation_backward with vectors of eight elements. */
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
