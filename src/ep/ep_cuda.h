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

/* `threads` threads, all of a block or of a warp, copy a row to each of k places, of which those without an address are
 * passed over. Several pieces are in flight before the first is stored. */
template <typename PIECE>
static __device__ __forceinline__ void tegroup_impl_ep_spread(const char *from, char *const *to, int32_t k,
                                                              int64_t bytes, int32_t threads) {
    enum { BATCH = 4 };
    const int64_t pieces = bytes / (int64_t)sizeof(PIECE);
    for (int64_t first = (int32_t)threadIdx.x % threads; first < pieces; first += BATCH * threads) {
        PIECE x[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (first + b * threads < pieces) x[b] = ((const PIECE *)from)[first + b * threads];
        for (int32_t j = 0; j < k; j++) {
            if (!to[j]) continue;
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                if (first + b * threads < pieces) ((PIECE *)to[j])[first + b * threads] = x[b];
        }
    }
}

static __device__ __noinline__ void tegroup_impl_ep_spread_slowly(int32_t piece, const char *from, char *const *to,
                                                                  int32_t k, int64_t bytes, int32_t threads) {
    switch (piece) {
    case 8: tegroup_impl_ep_spread<uint64_t>(from, to, k, bytes, threads); break;
    case 4: tegroup_impl_ep_spread<uint32_t>(from, to, k, bytes, threads); break;
    case 2: tegroup_impl_ep_spread<uint16_t>(from, to, k, bytes, threads); break;
    default: tegroup_impl_ep_spread<uint8_t>(from, to, k, bytes, threads); break;
    }
}

/* The same for a row of a matrix, in pieces of so many bytes. */
static __device__ __forceinline__ void tegroup_impl_ep_spread_row(const tegroup_matrix &m, int64_t row, int32_t piece,
                                                                  char *const *to, int32_t k, int32_t threads) {
    const char *const from = tegroup_impl_matrix_row(&m, row);
    const int64_t bytes = m.cols * (tegroup_impl_bits(m.dtype) / 8);
    if (piece == 16) tegroup_impl_ep_spread<uint4>(from, to, k, bytes, threads);
    else tegroup_impl_ep_spread_slowly(piece, from, to, k, bytes, threads);
}

/* Stores the link of slot j of a token, whose owners are known. Returns whether the token goes to the slot's row. */
static __device__ __noinline__ bool tegroup_impl_ep_store_link(const tegroup_impl_ep_dispatch_call &call,
                                                               const int32_t *owners, int64_t token, int32_t j) {
    const int64_t row = tegroup_impl_entry(&call.desc.row_of_slot, token, j);
    int first;
    if (owners[j] < 0) return false;
    const int32_t link = tegroup_impl_ep_link(&call.desc, &call.reach, owners, token, j, &first);
    *(int32_t *)tegroup_impl_ep_row(&call.reach, &call.desc.row_links, row) = link;
    return first || owners[j] == call.reach.rank;
}

/* One block serves one token at a time: thread j finds the places of slot j, and all of them copy. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_ep_dispatch_kernel(const __grid_constant__ tegroup_impl_ep_dispatch_call call) {
    __shared__ char *rows[TEGROUP_IMPL_CHOICES], *scales[TEGROUP_IMPL_CHOICES];
    __shared__ int32_t owners[TEGROUP_IMPL_CHOICES];
    const tegroup_ep_dispatch_desc &desc = call.desc;
    const int32_t k = (int32_t)desc.row_of_slot.cols, j = (int32_t)threadIdx.x;
    const bool links = tegroup_impl_there(&desc.row_links);
    for (int64_t token = blockIdx.x; token < desc.row_of_slot.rows; token += gridDim.x) {
        __syncthreads(); /* the last token's places have been read */
        if (links) {
            if (j < k) owners[j] = tegroup_impl_ep_owner(&call.reach, tegroup_impl_entry(&desc.row_of_slot, token, j));
            __syncthreads();
        }
        if (j < k) {
            const int64_t row = tegroup_impl_entry(&desc.row_of_slot, token, j);
            const bool goes = !links || tegroup_impl_ep_store_link(call, owners, token, j);
            rows[j] = goes && tegroup_impl_there(&desc.rows) ? tegroup_impl_ep_row(&call.reach, &desc.rows, row) : NULL;
            scales[j] = goes && tegroup_impl_there(&desc.row_scales)
                            ? tegroup_impl_ep_row(&call.reach, &desc.row_scales, row)
                            : NULL;
            char *const weight =
                tegroup_impl_there(&desc.row_weights) ? tegroup_impl_ep_row(&call.reach, &desc.row_weights, row) : NULL;
            if (weight && desc.weights.dtype == TEGROUP_DTYPE_F64)
                *(double *)weight = tegroup_impl_weight<double>(desc.weights, token, j);
            else if (weight) *(float *)weight = tegroup_impl_weight<float>(desc.weights, token, j);
        }
        __syncthreads();
        if (tegroup_impl_there(&desc.tokens))
            tegroup_impl_ep_spread_row(desc.tokens, token, call.rows_piece, rows, k, (int32_t)blockDim.x);
        if (tegroup_impl_there(&desc.scales))
            tegroup_impl_ep_spread_row(desc.scales, token, (int32_t)tegroup_impl_min(8, call.scales_piece), scales, k,
                                       (int32_t)blockDim.x);
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

/* The places of rows in a list of those that are added, in which owners come by rank and an owner's slots in order, and
 * where this rank's own rows are in it. Of another rank's rows only the first is in the list. */
struct tegroup_impl_ep_list {
    int32_t place, begin, end; /* place: of slot j; -1 = it is not in the list */
    __device__ tegroup_impl_ep_list(const int32_t *owners, int32_t k, int32_t rank, int32_t j)
        : place(-1), begin(0), end(0) {
        int32_t before = 0;
        for (int32_t i = 0; i < k; i++) {
            bool there = owners[i] >= 0;
            for (int32_t h = 0; h < i && owners[i] != rank; h++) there &= owners[h] != owners[i];
            begin += there && owners[i] < rank;
            end += there && owners[i] <= rank;
            if (j >= k || !there) continue;
            if (i == j) place = 0;
            before += owners[i] < owners[j] || (owners[i] == owners[j] && i < j);
        }
        if (place == 0) place = before;
    }
};

/* Adds a row, number `place` of the list. `own` are begin and end of this rank's rows in it: where these begin the sums
 * of the owners before are put aside, and where they end these rows' sums are rounded and added to them. */
template <typename ACCESS>
static __device__ __forceinline__ void tegroup_impl_ep_add(const tegroup_ep_combine_desc &desc, const int32_t *own,
                                                           int32_t place, typename ACCESS::real weight,
                                                           typename ACCESS::raw x, typename ACCESS::real *sum,
                                                           typename ACCESS::real *before) {
    typename ACCESS::real y[ACCESS::lanes];
    ACCESS::unpack(x, y);
    if (place == own[0]) {
#pragma unroll
        for (int i = 0; i < ACCESS::lanes; i++) before[i] = sum[i], sum[i] = y[i];
    } else {
#pragma unroll
        for (int i = 0; i < ACCESS::lanes; i++) sum[i] = fma(weight, y[i], sum[i]);
    }
    if (place + 1 != own[1]) return;
    ACCESS::round(desc.rows, sum);
#pragma unroll
    for (int i = 0; i < ACCESS::lanes; i++) sum[i] += before[i];
}

/* One block serves one token at a time. The sum is that of tegroup_impl_combine_kernel, step by step, or by owner. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_ep_combine_kernel(const __grid_constant__ tegroup_impl_ep_combine_call call) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes, BATCH = 8 };
    __shared__ const char *from[TEGROUP_IMPL_CHOICES + BATCH];
    __shared__ real weight[TEGROUP_IMPL_CHOICES + BATCH];
    __shared__ int32_t owners[TEGROUP_IMPL_CHOICES], own[2]; /* own: begin and end in the list; by slot there is none */
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
        if (j < k) owners[j] = tegroup_impl_ep_owner(&call.reach, tegroup_impl_entry(&desc.row_of_slot, token, j));
        if (j < 2) own[j] = -1;
        __syncthreads();
        if (desc.by_owner) {
            const tegroup_impl_ep_list list(owners, k, call.reach.rank, j);
            const char *const mine = j < k ? from[j] : NULL;
            __syncthreads();
            if (j < k) from[j] = NULL;
            if (j == 0 && list.end > list.begin) own[0] = list.begin, own[1] = list.end;
            __syncthreads();
            if (list.place >= 0) from[list.place] = mine, weight[list.place] = 1;
            __syncthreads();
        }
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            real sum[lanes], before[lanes] = {0};
            tegroup_impl_begin_sum<ACCESS>(desc.tokens, token, c, desc.accumulate, sum);
            for (int32_t slot = 0; slot < k; slot += BATCH) {
                typename ACCESS::raw x[BATCH];
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    x[b] = typename ACCESS::raw();
                    if (from[slot + b]) x[b] = ACCESS::load(desc.rows, from[slot + b], c);
                }
#pragma unroll
                for (int b = 0; b < BATCH; b++)
                    if (from[slot + b])
                        tegroup_impl_ep_add<ACCESS>(desc, own, slot + b, weight[slot + b], x[b], sum, before);
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
