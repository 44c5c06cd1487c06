/* ---- Expert parallelism: kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "ep/ep_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/checks.h"
#include "moe/router_scheme.h"
#include "moe/permutation.h"
#include "ep/places.h"
#include "cuda/launch.h"
#include "cuda/prepare.h"
#include "cuda/rows.h"

/* Adds what a block's threads have seen. A warp adds up first: sums of 64 bits are slow in shared memory. */
static __device__ __forceinline__ void tegroup_impl_ep_report_merge(tegroup_ep_report *seen, tegroup_ep_report mine) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        mine.received += __shfl_xor_sync(0xffffffffu, mine.received, step);
        mine.dropped += __shfl_xor_sync(0xffffffffu, mine.dropped, step);
        mine.digest += __shfl_xor_sync(0xffffffffu, mine.digest, step);
    }
    atomicMin(&seen->bad_source, mine.bad_source);
    atomicMin(&seen->full_owner, mine.full_owner);
    if (threadIdx.x % 32 != 0) return;
    atomicAdd((unsigned long long *)&seen->received, (unsigned long long)mine.received);
    atomicAdd((unsigned long long *)&seen->dropped, (unsigned long long)mine.dropped);
    atomicAdd((unsigned long long *)&seen->digest, (unsigned long long)mine.digest);
}

/* One block. A thread has EACH neighbouring experts; the scan gives it the rows before them, over all windows, and an
 * expert's start is what comes after the first expert of its owner. */
template <int EACH>
static __global__ void __launch_bounds__(1024)
    tegroup_impl_ep_sizes_kernel(const __grid_constant__ tegroup_ep_sizes_desc desc) {
    __shared__ int64_t before[TEGROUP_MAX_GROUPS];
    __shared__ tegroup_ep_report seen;
    const int32_t groups = (int32_t)desc.counts.cols, experts = tegroup_impl_ep_experts(&desc),
                  first = (int32_t)threadIdx.x * EACH;
    tegroup_impl_ep_expert x[EACH];
    int64_t sum = 0;
    tegroup_ep_report mine = tegroup_impl_ep_report_open(&desc);
    if (threadIdx.x == 0) seen = mine;
    mine.digest = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (first + i >= groups) break;
        x[i] = tegroup_impl_ep_expert_of(&desc, first + i);
        sum += tegroup_impl_ep_align(&desc, x[i].total);
    }
    int64_t start = tegroup_impl_block_scan(sum, false);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (first + i >= groups) break;
        before[first + i] = start;
        start += tegroup_impl_ep_align(&desc, x[i].total);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int32_t e = first + i;
        if (e >= groups) break;
        const int64_t placed = tegroup_impl_ep_place(&desc, e, before[e] - before[e / experts * experts], &x[i]);
        tegroup_impl_ep_report_add(&desc, &mine, e, &x[i], placed);
    }
    tegroup_impl_ep_report_merge(&seen, mine);
    __syncthreads();
    if (threadIdx.x != 0 || !desc.report) return;
    tegroup_impl_ep_report_close(&desc, &seen);
    *desc.report = seen;
}

static inline tegroup_status tegroup_impl_cuda_ep_sizes(const tegroup_ep_sizes_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    const int64_t groups = desc->counts.cols;
    const unsigned threads = (unsigned)tegroup_impl_clamp(tegroup_impl_align(groups, 32), 32, 1024);
    return tegroup_impl_cuda_status(
        groups <= 1024 ? tegroup_impl_launch(tegroup_impl_ep_sizes_kernel<1>, 1, threads, 0, stream, *desc)
                       : tegroup_impl_launch(tegroup_impl_ep_sizes_kernel<4>, 1, 1024, 0, stream, *desc),
        "stream", "the kernel must launch", error);
}

/* Kernels' parameters. A piece is what a thread moves at a time, in bytes. */
typedef struct tegroup_impl_ep_dispatch_call {
    tegroup_ep_dispatch_desc desc;
    tegroup_impl_ep_reach reach;
    int32_t rows_piece, scales_piece;
} tegroup_impl_ep_dispatch_call;
typedef struct tegroup_impl_ep_combine_call {
    tegroup_ep_combine_desc desc;
    tegroup_impl_ep_reach reach;
} tegroup_impl_ep_combine_call;

/* The block copies a row to each of k places, of which those without an address are passed over. Several pieces are in
 * flight before the first is stored. */
template <typename PIECE>
static __device__ __forceinline__ void tegroup_impl_ep_spread(const char *from, char *const *to, int32_t k,
                                                              int64_t bytes) {
    enum { BATCH = 4 };
    const int64_t pieces = bytes / (int64_t)sizeof(PIECE);
    for (int64_t first = threadIdx.x; first < pieces; first += BATCH * blockDim.x) {
        PIECE x[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (first + b * blockDim.x < pieces) x[b] = ((const PIECE *)from)[first + b * blockDim.x];
        for (int32_t j = 0; j < k; j++) {
            if (!to[j]) continue;
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                if (first + b * blockDim.x < pieces) ((PIECE *)to[j])[first + b * blockDim.x] = x[b];
        }
    }
}

static __device__ __noinline__ void tegroup_impl_ep_spread_by(int32_t piece, const char *from, char *const *to,
                                                              int32_t k, int64_t bytes) {
    switch (piece) {
    case 8: tegroup_impl_ep_spread<uint64_t>(from, to, k, bytes); break;
    case 4: tegroup_impl_ep_spread<uint32_t>(from, to, k, bytes); break;
    case 2: tegroup_impl_ep_spread<uint16_t>(from, to, k, bytes); break;
    default: tegroup_impl_ep_spread<uint8_t>(from, to, k, bytes); break;
    }
}

/* One block serves one token at a time: thread j finds the places of slot j, and all of them copy. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_ep_dispatch_kernel(const __grid_constant__ tegroup_impl_ep_dispatch_call call) {
    __shared__ char *rows[TEGROUP_IMPL_CHOICES], *scales[TEGROUP_IMPL_CHOICES];
    const tegroup_ep_dispatch_desc &desc = call.desc;
    const int32_t k = (int32_t)desc.row_of_slot.cols, j = (int32_t)threadIdx.x;
    for (int64_t token = blockIdx.x; token < desc.row_of_slot.rows; token += gridDim.x) {
        __syncthreads(); /* the last token's places have been read */
        if (j < k) {
            const int64_t row = tegroup_impl_entry(&desc.row_of_slot, token, j);
            rows[j] = tegroup_impl_there(&desc.rows) ? tegroup_impl_ep_row(&call.reach, &desc.rows, row) : NULL;
            scales[j] =
                tegroup_impl_there(&desc.row_scales) ? tegroup_impl_ep_row(&call.reach, &desc.row_scales, row) : NULL;
            char *const weight =
                tegroup_impl_there(&desc.row_weights) ? tegroup_impl_ep_row(&call.reach, &desc.row_weights, row) : NULL;
            if (weight && desc.weights.dtype == TEGROUP_DTYPE_F64)
                *(double *)weight = tegroup_impl_weight<double>(desc.weights, token, j);
            else if (weight) *(float *)weight = tegroup_impl_weight<float>(desc.weights, token, j);
        }
        __syncthreads();
        const char *const from = tegroup_impl_matrix_row(&desc.tokens, token);
        const int64_t bytes = desc.tokens.cols * (tegroup_impl_bits(desc.tokens.dtype) / 8);
        if (tegroup_impl_there(&desc.tokens) && call.rows_piece == 16)
            tegroup_impl_ep_spread<uint4>(from, rows, k, bytes);
        else if (tegroup_impl_there(&desc.tokens)) tegroup_impl_ep_spread_by(call.rows_piece, from, rows, k, bytes);
        if (tegroup_impl_there(&desc.scales))
            tegroup_impl_ep_spread_by((int32_t)tegroup_impl_min(8, call.scales_piece),
                                      tegroup_impl_matrix_row(&desc.scales, token), scales, k,
                                      desc.scales.cols * (tegroup_impl_bits(desc.scales.dtype) / 8));
    }
}

static inline int32_t tegroup_impl_cuda_ep_piece(const tegroup_matrix *from, const tegroup_matrix *to) {
    if (!tegroup_impl_there(from)) return 1;
    return (int32_t)tegroup_impl_min(tegroup_impl_cuda_piece(from), tegroup_impl_cuda_piece(to));
}

static inline tegroup_status tegroup_impl_cuda_ep_dispatch(const tegroup_ep_dispatch_desc *desc,
                                                           const tegroup_impl_ep_reach *reach,
                                                           struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_ep_dispatch_call call;
    if (desc->row_of_slot.rows == 0) return TEGROUP_OK;
    call.desc = *desc;
    call.desc.weights = tegroup_impl_cuda_matrix(&desc->weights);
    call.reach = *reach;
    call.rows_piece = tegroup_impl_cuda_ep_piece(&desc->tokens, &desc->rows);
    call.scales_piece = tegroup_impl_cuda_ep_piece(&desc->scales, &desc->row_scales);
    return tegroup_impl_cuda_rows(
        tegroup_impl_ep_dispatch_kernel, &call,
        tegroup_impl_max(desc->tokens.cols * (tegroup_impl_bits(desc->tokens.dtype) / 8), desc->row_of_slot.cols * 16),
        call.rows_piece, desc->row_of_slot.rows, stream, error);
}

/* One block serves one token at a time. The sum is that of tegroup_impl_combine_kernel, step by step. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_ep_combine_kernel(const __grid_constant__ tegroup_impl_ep_combine_call call) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes, BATCH = 8 };
    __shared__ const char *from[TEGROUP_IMPL_CHOICES + BATCH];
    __shared__ real weight[TEGROUP_IMPL_CHOICES + BATCH];
    const tegroup_ep_combine_desc &desc = call.desc;
    const int32_t k = (int32_t)desc.row_of_slot.cols, j = (int32_t)threadIdx.x;
    const int64_t steps = tegroup_impl_there(&desc.tokens) ? desc.tokens.cols / lanes : 0;
    for (int64_t token = blockIdx.x; token < desc.row_of_slot.rows; token += gridDim.x) {
        __syncthreads(); /* the last token's places have been read */
        for (int32_t slot = j; slot < k + BATCH; slot += (int32_t)blockDim.x) {
            const int64_t row = slot < k ? tegroup_impl_entry(&desc.row_of_slot, token, slot) : -1;
            from[slot] = tegroup_impl_there(&desc.rows) ? tegroup_impl_ep_row(&call.reach, &desc.rows, row) : NULL;
            weight[slot] = from[slot] ? tegroup_impl_weight<real>(desc.weights, token, slot) : (real)0;
            if (slot >= k || !tegroup_impl_there(&desc.values)) continue;
            const char *const value = tegroup_impl_ep_row(&call.reach, &desc.row_values, row);
            tegroup_impl_store_f64(desc.values.dtype, tegroup_impl_matrix_row(&desc.values, token), slot,
                                   value ? tegroup_impl_load_f64(desc.values.dtype, value, 0) : 0);
        }
        __syncthreads();
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            real sum[lanes];
            tegroup_impl_begin_sum<ACCESS>(desc.tokens, token, c, desc.accumulate, sum);
            for (int32_t slot = 0; slot < k; slot += BATCH) {
                typename ACCESS::raw x[BATCH];
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    x[b] = typename ACCESS::raw();
                    if (from[slot + b]) x[b] = ACCESS::load(desc.rows, from[slot + b], c);
                }
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    real y[lanes];
                    if (!from[slot + b]) continue;
                    ACCESS::unpack(x[b], y);
#pragma unroll
                    for (int i = 0; i < lanes; i++) sum[i] = fma(weight[slot + b], y[i], sum[i]);
                }
            }
            ACCESS::store(desc.tokens, ACCESS::row(desc.tokens, token), c, ACCESS::pack(sum));
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_ep_combine(const tegroup_ep_combine_desc *desc,
                                                          const tegroup_impl_ep_reach *reach,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->rows, &desc->tokens};
    const int64_t width = tegroup_impl_there(&desc->tokens) ? desc->tokens.cols : 0;
    tegroup_impl_ep_combine_call call;
    if (desc->row_of_slot.rows == 0) return TEGROUP_OK;
    call.desc = *desc;
    call.desc.rows = tegroup_impl_cuda_matrix(&desc->rows);
    call.desc.weights = tegroup_impl_cuda_matrix(&desc->weights);
    call.desc.tokens = tegroup_impl_cuda_matrix(&desc->tokens);
    call.reach = *reach;
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(tegroup_impl_ep_combine_kernel<__VA_ARGS__>, &call, width, __VA_ARGS__::lanes,       \
                                  desc->row_of_slot.rows, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}
