/* ---- Router kernels: losses ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "moe/routing_types.h"
#include "base/arithmetic.h"
#include "core/checks.h"
#include "moe/router_scheme.h"
#include "moe/router_batch_cuda.h"
#include "moe/router_scheme_cuda.h"

/* The tokens of run number `at`, where each sequence is cut into `runs` runs. */
struct tegroup_impl_scheme_run {
    int64_t sequence, first, last;
    __device__ __forceinline__ tegroup_impl_scheme_run(const tegroup_router_desc &desc, int64_t runs, int64_t at) {
        const int64_t length = tegroup_impl_sequence_length(&desc.scheme, desc.logits.rows),
                      each = tegroup_impl_ceil_div(length, runs);
        sequence = at / runs;
        first = sequence * length + tegroup_impl_min(length, at % runs * each);
        last = sequence * length + tegroup_impl_min(length, (at % runs + 1) * each);
    }
};

enum { TEGROUP_IMPL_SCHEME_COUNTED = 256 }; /* tokens whose assignments a block counts, one a thread */

/* Counts the assignments of each run; all: the runs of all sequences. Sums of integers are the same in whatever order
 * they are added. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_SCHEME_COUNTED)
    tegroup_impl_scheme_counts_kernel(const __grid_constant__ tegroup_router_desc desc,
                                      const __grid_constant__ tegroup_impl_scheme_way way, int64_t runs, int64_t all) {
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    for (int64_t at = blockIdx.x; at < all; at += gridDim.x) {
        const tegroup_impl_scheme_run run(desc, runs, at);
        for (int32_t e = (int32_t)threadIdx.x; e < desc.experts; e += (int32_t)blockDim.x) histogram[e] = 0;
        __syncthreads();
        for (int64_t t = run.first + threadIdx.x; t < run.last; t += blockDim.x)
            for (int32_t j = 0; j < desc.k; j++) {
                const int32_t e = tegroup_impl_index(&desc.indices, t, j, desc.experts);
                if (e >= 0) atomicAdd(&histogram[e], 1u);
            }
        __syncthreads();
        for (int32_t e = (int32_t)threadIdx.x; e < desc.experts; e += (int32_t)blockDim.x)
            if (histogram[e] != 0)
                atomicAdd((unsigned long long *)way.counts + run.sequence * desc.experts + e,
                          (unsigned long long)histogram[e]);
        __syncthreads();
    }
}

/* Sums of 32 experts' shares over a run of tokens, and behind the last expert of the squares of logsumexp. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_scheme_sums_kernel(const __grid_constant__ tegroup_router_desc desc,
                                    const __grid_constant__ tegroup_impl_scheme_way way, int64_t runs, int64_t all) {
    __shared__ double part[8][32];
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32,
                  e = (int32_t)blockIdx.x * 32 + lane;
    const tegroup_matrix &p = desc.probabilities;
    for (int64_t at = blockIdx.y; at < all; at += gridDim.y) {
        const tegroup_impl_scheme_run run(desc, runs, at);
        double sum = 0;
        if (e < desc.experts && desc.balance_loss)
            for (int64_t t = run.first + warp; t < run.last; t += 8)
                sum += (p.dtype == TEGROUP_DTYPE_F32 ? (double)((const float *)p.data)[t * p.ld + e]
                                                     : ((const double *)p.data)[t * p.ld + e])
                       / way.totals[t];
        if (e == desc.experts && way.logsumexp)
            for (int64_t t = run.first + warp; t < run.last; t += 8) sum += way.logsumexp[t] * way.logsumexp[t];
        part[warp][lane] = sum;
        __syncthreads();
        sum = 0;
        for (int32_t w = 0; w < 8; w++) sum += part[w][lane];
        if (warp == 0 && e <= desc.experts) way.sums[at * (desc.experts + 1) + e] = sum;
        __syncthreads();
    }
}

/* The block's sum, in a tree. */
template <typename T> static __device__ __forceinline__ T tegroup_impl_block_tree(T *part, T x) {
    part[threadIdx.x] = x;
    for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    }
    __syncthreads();
    x = part[0];
    __syncthreads();
    return x;
}

/* Each sequence's balance loss, sum of squares and tokens, and the slopes of its shares. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_scheme_sequences_kernel(const __grid_constant__ tegroup_router_desc desc,
                                         const __grid_constant__ tegroup_impl_scheme_way way) {
    __shared__ double part[256];
    __shared__ int64_t whole[256];
    const int64_t sequences = tegroup_impl_sequences(&desc.scheme, desc.logits.rows),
                  length = tegroup_impl_sequence_length(&desc.scheme, desc.logits.rows),
                  runs = tegroup_impl_sequence_runs(sequences), pitch = desc.experts + 1;
    for (int64_t q = blockIdx.x; q < sequences; q += gridDim.x) {
        int64_t tokens = 0;
        double loss = 0;
        for (int64_t t = q * length + threadIdx.x; t < (q + 1) * length; t += blockDim.x)
            tokens += tegroup_impl_token_there(&desc.scheme, t);
        tokens = tegroup_impl_block_tree(whole, tokens);
        for (int32_t e = (int32_t)threadIdx.x; e <= desc.experts; e += (int32_t)blockDim.x) {
            double sum = 0;
            for (int64_t r = q * runs; r < (q + 1) * runs; r++) sum += way.sums[r * pitch + e];
            if (e == desc.experts) {
                way.losses[3 * q + 1] = sum;
                continue;
            }
            const double slope =
                way.counts ? tegroup_impl_balance_slope(&desc, way.counts[q * desc.experts + e], tokens) : 0;
            loss += slope * sum;
            if (desc.loss_gradients.dtype != TEGROUP_DTYPE_UNSET)
                ((double *)tegroup_impl_matrix_row(&desc.loss_gradients, q))[e] = slope / (double)sequences;
        }
        loss = tegroup_impl_block_tree(part, loss);
        if (threadIdx.x == 0) way.losses[3 * q] = loss, way.losses[3 * q + 2] = (double)tokens;
    }
}

/* One block: the means over sequences and tokens. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_scheme_losses_kernel(const __grid_constant__ tegroup_router_desc desc,
                                      const __grid_constant__ tegroup_impl_scheme_way way) {
    __shared__ double part[256];
    const int64_t sequences = tegroup_impl_sequences(&desc.scheme, desc.logits.rows);
    double sum[3] = {0, 0, 0};
    for (int64_t q = threadIdx.x; q < sequences; q += blockDim.x)
        for (int i = 0; i < 3; i++) sum[i] += way.losses[3 * q + i];
    for (int i = 0; i < 3; i++) sum[i] = tegroup_impl_block_tree(part, sum[i]);
    const int64_t tokens = (int64_t)sum[2];
    if (threadIdx.x == 0 && desc.balance_loss) *desc.balance_loss = sequences > 0 ? sum[0] / (double)sequences : 0;
    if (threadIdx.x == 0 && desc.z_loss) *desc.z_loss = tegroup_impl_z_mean(&desc, sum[1], tokens);
    for (int64_t q = threadIdx.x; desc.loss_gradients.dtype != TEGROUP_DTYPE_UNSET && q < sequences; q += blockDim.x)
        ((double *)tegroup_impl_matrix_row(&desc.loss_gradients, q))[desc.experts] =
            tegroup_impl_z_mean(&desc, 2, tokens);
}
