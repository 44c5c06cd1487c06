/* ---- Router kernels: gradients of schemes, and launches ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/layout_types.h"
#include "moe/routing_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/layout.h"
#include "core/checks.h"
#include "moe/router_scheme.h"
#include "moe/router.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "moe/count_cuda.h"
#include "moe/router_batch_cuda.h"
#include "moe/router_scheme_cuda.h"
#include "moe/router_losses_cuda.h"

#if !defined(TEGROUP_NO_BACKWARD)
/* As tegroup_impl_scheme_shares_f32; slopes NULL: no loss has a gradient. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_scheme_shares(const tegroup_router_backward_desc &desc,
                                                                  const REAL *scores, const double *slopes, REAL by,
                                                                  REAL *grads) {
    REAL sum = 1, mean = 0;
    if (!slopes) {
        TEGROUP_IMPL_OF_LANE(e, desc.experts) grads[e] = 0;
        return;
    }
    if (desc.scheme.score != TEGROUP_SCORE_SOFTMAX) {
        sum = 0;
        TEGROUP_IMPL_OF_LANE(e, desc.experts) sum += scores[e];
        sum = tegroup_impl_lanes_sum<REAL, 32>(sum);
        if (sum == 0) sum = 1;
        TEGROUP_IMPL_OF_LANE(e, desc.experts) mean += by * (REAL)slopes[e] * (scores[e] / sum);
        mean = tegroup_impl_lanes_sum<REAL, 32>(mean);
    }
    TEGROUP_IMPL_OF_LANE(e, desc.experts) grads[e] = scores[e] / sum * (by * (REAL)slopes[e] - mean);
}

/* As tegroup_impl_scheme_choices_f32, on top of the gradients by the balance loss. Keys make room for gradients when
 * the choices are known. */
template <int AT_ONCE, typename REAL, typename KEY>
static __device__ __forceinline__ void tegroup_impl_scheme_choices(const tegroup_router_backward_desc &desc,
                                                                   int64_t token,
                                                                   tegroup_impl_scheme_token<REAL, KEY> &my,
                                                                   const double *slopes, REAL by, REAL *grads) {
    const tegroup_router_scheme &s = desc.scheme;
    const int32_t experts = desc.experts, k = desc.k, lane = (int32_t)threadIdx.x % 32;
    const bool given = s.given_indices.dtype != TEGROUP_DTYPE_UNSET;
    const REAL *grad_weights = (const REAL *)tegroup_impl_matrix_row(&desc.grad_weights, token);
    REAL grad[2] = {0, 0}, mean = 0;
    int32_t mine[2], kept = 0;
    for (int32_t i = 0; i < 2; i++) { /* choices i * 32 + lane: there are at most 64 */
        const int32_t j = 32 * i + lane;
        mine[i] = j < k ? tegroup_impl_index(&desc.indices, token, j, experts) : -1;
        if (mine[i] >= 0) grad[i] = grad_weights[j];
        if (j < k) my.indices[j] = mine[i];
        if (j < k && mine[i] < 0 && desc.normalize && given)
            my.indices[j] = tegroup_impl_index(&s.given_indices, token, j, experts);
        kept += __popc(__ballot_sync(0xffffffffu, mine[i] >= 0));
    }
    __syncwarp();
    if (desc.normalize && kept > 0 && kept < k && !given) {
        my.template rank<AT_ONCE>(s, experts);
        my.choose(experts, k, TEGROUP_DTYPE_UNSET, NULL);
    }
    tegroup_impl_scheme_shares(desc, my.row, slopes, by, grads);
    if (kept == 0) return;
    const REAL divisor = tegroup_impl_scheme_divisor(s, desc.normalize, k, my.indices, my.row);
    for (int32_t i = 0; i < 2; i++)
        if (desc.normalize && divisor != 0 && mine[i] >= 0) mean += grad[i] * (my.row[mine[i]] / divisor);
    if (desc.normalize) mean = tegroup_impl_lanes_sum<REAL, 32>(mean);
    for (int32_t i = 0; i < 2; i++) {
        const int32_t e = 32 * i + lane < k ? my.indices[32 * i + lane] : -1;
        grad[i] = e < 0 ? (REAL)0 : tegroup_impl_scheme_weight(s, my.row[e], divisor) * (grad[i] - mean);
    }
    for (int32_t j = 0; j < k; j++) { /* in order: an expert that was given twice gets both */
        const REAL of_choice = __shfl_sync(0xffffffffu, j < 32 ? grad[0] : grad[1], j % 32);
        if (my.indices[j] >= 0 && my.indices[j] % 32 == lane) grads[my.indices[j]] += of_choice;
    }
}

/* The gradients of logits by way of their scores, from those of the scores' logarithms; sum: of these over all
 * experts, for softmax. */
template <int N, typename REAL>
static __device__ __forceinline__ void tegroup_impl_scheme_score_grad(tegroup_score kind, const REAL *score, REAL sum,
                                                                      REAL *grad) {
#define TEGROUP_IMPL_GRAD(value) _Pragma("unroll") for (int i = 0; i < N; i++) grad[i] = value;
    if (kind == TEGROUP_SCORE_SOFTMAX) {
        TEGROUP_IMPL_GRAD(grad[i] - score[i] * sum)
    } else if (kind == TEGROUP_SCORE_SIGMOID) {
        TEGROUP_IMPL_GRAD(tegroup_impl_score_grad(TEGROUP_SCORE_SIGMOID, score[i], grad[i]))
    } else {
        TEGROUP_IMPL_GRAD(tegroup_impl_score_grad(TEGROUP_SCORE_SQRT_SOFTPLUS, score[i], grad[i]))
    }
#undef TEGROUP_IMPL_GRAD
}

/* As tegroup_impl_scheme_grad_row_f32, a warp a token. */
template <typename REAL, typename KEY>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_SCHEME_WARPS)
    tegroup_impl_scheme_grad_kernel(const __grid_constant__ tegroup_router_backward_desc desc, int32_t room) {
    enum { AT_ONCE = TEGROUP_IMPL_AT_ONCE(REAL, 8) };
    const tegroup_router_scheme &s = desc.scheme;
    const int32_t experts = desc.experts, lane = (int32_t)threadIdx.x % 32, warps = (int32_t)blockDim.x / 32;
    const bool softmax = s.score == TEGROUP_SCORE_SOFTMAX;
    const REAL by = desc.loss_scale != 0 ? (REAL)desc.loss_scale : (REAL)1;
    tegroup_impl_scheme_token<REAL, KEY> my(tegroup_impl_router_memory(), room);
    REAL *grads = (REAL *)(void *)my.keys;
    for (int64_t token = (int64_t)blockIdx.x * warps + threadIdx.x / 32; token < desc.probabilities.rows;
         token += (int64_t)gridDim.x * warps) {
        const double *slopes = tegroup_impl_loss_slopes(&desc, token);
        const bool there = tegroup_impl_token_there(&s, token), z_loss = there && s.z_coefficient != 0;
        REAL largest = 0, z = 0, sum = 0;
        if (z_loss) {
            tegroup_impl_scheme_read_row<AT_ONCE>(desc.logits, token, true, my.row);
            const REAL all = tegroup_impl_scheme_exponentials(my.row, experts, largest);
            z = by * (REAL)slopes[experts] * (REAL)((double)largest + log((double)all)) / all;
        }
        if (there) {
            tegroup_impl_scheme_read_row<AT_ONCE>(desc.probabilities, token, true, my.row);
            __syncwarp();
            tegroup_impl_scheme_choices<AT_ONCE>(desc, token, my, slopes, by, grads);
        }
        if (there && softmax) {
            TEGROUP_IMPL_OF_LANE(e, experts) sum += grads[e];
            sum = tegroup_impl_lanes_sum<REAL, 32>(sum);
        }
        for (int32_t base = 0; base < experts; base += 32 * AT_ONCE) {
            const int32_t first = base + lane;
            REAL x[AT_ONCE], grad[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const bool mine = there && first + 32 * i < experts;
                x[i] = mine ? my.row[first + 32 * i] : (REAL)0;
                grad[i] = mine ? grads[first + 32 * i] : (REAL)0;
            }
            tegroup_impl_scheme_score_grad<AT_ONCE>(s.score, x, sum, grad);
            if (z_loss) {
                tegroup_impl_load_row<AT_ONCE>(desc.logits, tegroup_impl_matrix_row(&desc.logits, token), first,
                                               experts, x);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) grad[i] += z * tegroup_impl_exp(x[i] - largest);
            }
            tegroup_impl_store_row<AT_ONCE>(desc.grad_logits, tegroup_impl_matrix_row(&desc.grad_logits, token), first,
                                            experts, grad);
        }
        __syncwarp();
    }
}
#endif /* TEGROUP_NO_BACKWARD */

/* ---- launches ---- */

/* Blocks of as many warps as have room in 48 KiB beside what the block shares, or of one; as many blocks as fill the
 * device. */
template <typename REAL, typename KEY, typename DESC, typename WAY>
static inline tegroup_status tegroup_impl_cuda_scheme_launch(void (*kernel)(const DESC, const WAY), const DESC *desc,
                                                             WAY way, int64_t tokens, int32_t room, int32_t block_bytes,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const int64_t warp_bytes = tegroup_impl_scheme_token<REAL, KEY>::bytes(room),
                  warps = tegroup_impl_clamp((49152 - block_bytes) / warp_bytes, 1, TEGROUP_IMPL_SCHEME_WARPS),
                  bytes = block_bytes + warps * warp_bytes;
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(tokens, warps), 16, &blocks, error));
    if (bytes > 49152) /* the same value in every call: other threads launch this kernel, too */
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 98304), "space",
            "the device must have the shared memory", error));
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, blocks, 32u * (unsigned)warps, (size_t)bytes, stream, *desc, way), "stream",
        "the kernel must launch", error);
}

/* The losses of rows that are routed. */
static inline tegroup_status tegroup_impl_cuda_scheme_losses(const tegroup_router_desc *desc,
                                                             const tegroup_impl_scheme_way *way,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const int64_t sequences = tegroup_impl_sequences(&desc->scheme, desc->logits.rows), most = 65535,
                  runs = tegroup_impl_sequence_runs(sequences), all = sequences * runs,
                  length = tegroup_impl_sequence_length(&desc->scheme, desc->logits.rows),
                  counted = tegroup_impl_max(1, tegroup_impl_ceil_div(length, TEGROUP_IMPL_SCHEME_COUNTED));
    const unsigned columns = (unsigned)(desc->experts + 1 + 31) / 32;
    if (way->counts && all > 0) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            cudaMemsetAsync(way->counts, 0, 8 * (size_t)(sequences * desc->experts), stream), "stream",
            "the counts must be cleared", error));
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_scheme_counts_kernel,
                                (unsigned)tegroup_impl_min(sequences * counted, most), TEGROUP_IMPL_SCHEME_COUNTED,
                                4 * (size_t)desc->experts, stream, *desc, *way, counted, sequences * counted),
            "stream", "the kernel must launch", error));
    }
    if (all > 0) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_scheme_sums_kernel, dim3(columns, (unsigned)tegroup_impl_min(all, most)),
                                256, 0, stream, *desc, *way, runs, all),
            "stream", "the kernel must launch", error));
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_scheme_sequences_kernel, (unsigned)tegroup_impl_min(sequences, most), 256,
                                0, stream, *desc, *way),
            "stream", "the kernel must launch", error));
    }
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_scheme_losses_kernel, 1, 256, 0, stream, *desc, *way), "stream",
        "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_scheme(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int64_t tokens = desc->logits.rows;
    const int32_t room = (int32_t)tegroup_impl_align(desc->experts, 4);
    tegroup_impl_scheme_way way;
    tegroup_router_desc d = *desc;
    tegroup_layout layout;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_image((const void *)tegroup_impl_scheme_sums_kernel, error));
    memset(&way, 0, sizeof way);
    d.logits = tegroup_impl_cuda_matrix(&desc->logits);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    d.loss_gradients = tegroup_impl_cuda_matrix(&desc->loss_gradients);
    d.scheme.given_indices = tegroup_impl_cuda_matrix(&desc->scheme.given_indices);
    tegroup_impl_layout_begin(&layout);
    tegroup_impl_scheme_layout(desc, &layout);
    if (layout.count > 0) {
        char *at = (char *)desc->workspace;
        const int slopes = desc->loss_gradients.dtype != TEGROUP_DTYPE_UNSET;
        if (desc->balance_loss) way.totals = (double *)(at + layout.items[TEGROUP_IMPL_LOSS_TOTALS].offset_bytes);
        if (desc->z_loss) way.logsumexp = (double *)(at + layout.items[TEGROUP_IMPL_LOSS_LOGSUMEXP].offset_bytes);
        if (desc->balance_loss || slopes)
            way.counts = (int64_t *)(at + layout.items[TEGROUP_IMPL_LOSS_COUNTS].offset_bytes);
        way.sums = (double *)(at + layout.items[TEGROUP_IMPL_LOSS_SUMS].offset_bytes);
        way.losses = (double *)(at + layout.items[TEGROUP_IMPL_LOSS_SEQUENCES].offset_bytes);
    }
    way.room = room;
    way.histogram = desc->counts.dtype != TEGROUP_DTYPE_UNSET && desc->experts <= TEGROUP_IMPL_ROUTER_HISTOGRAM;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_counts(&desc->counts, stream, error));
#define TEGROUP_IMPL_LAUNCH(real, key, each)                                                                           \
    TEGROUP_IMPL_TRY((tegroup_impl_cuda_scheme_launch<real, key>(tegroup_impl_scheme_kernel<real, key, each>, &d, way, \
                                                                 tokens, room, way.histogram ? 4 * room : 0, stream,   \
                                                                 error)))
    if (tokens > 0) {
        if (tegroup_impl_router_real(desc) == TEGROUP_DTYPE_F64) TEGROUP_IMPL_LAUNCH(double, uint64_t, 1);
        else if (desc->experts <= 128) TEGROUP_IMPL_LAUNCH(float, uint32_t, 4);
        else if (desc->experts <= 256) TEGROUP_IMPL_LAUNCH(float, uint32_t, 8);
        else if (desc->experts <= 512) TEGROUP_IMPL_LAUNCH(float, uint32_t, 16);
        else if (desc->experts <= 1024) TEGROUP_IMPL_LAUNCH(float, uint32_t, 32);
        else TEGROUP_IMPL_LAUNCH(float, uint32_t, 1); /* none in registers */
    }
#undef TEGROUP_IMPL_LAUNCH
    return layout.count > 0 ? tegroup_impl_cuda_scheme_losses(&d, &way, stream, error) : TEGROUP_OK;
}

#if !defined(TEGROUP_NO_BACKWARD)
static inline tegroup_status tegroup_impl_cuda_scheme_backward(const tegroup_router_backward_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int64_t tokens = desc->probabilities.rows;
    const int32_t room = (int32_t)tegroup_impl_align(desc->experts, 4);
    tegroup_router_backward_desc d = *desc;
    if (tokens == 0) return TEGROUP_OK;
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    d.grad_weights = tegroup_impl_cuda_matrix(&desc->grad_weights);
    d.grad_logits = tegroup_impl_cuda_matrix(&desc->grad_logits);
    d.logits = tegroup_impl_cuda_matrix(&desc->logits);
    d.loss_gradients = tegroup_impl_cuda_matrix(&desc->loss_gradients);
    if (desc->probabilities.dtype == TEGROUP_DTYPE_F64)
        return tegroup_impl_cuda_scheme_launch<double, uint64_t>(tegroup_impl_scheme_grad_kernel<double, uint64_t>, &d,
                                                                 room, tokens, room, 0, stream, error);
    return tegroup_impl_cuda_scheme_launch<float, uint32_t>(tegroup_impl_scheme_grad_kernel<float, uint32_t>, &d, room,
                                                            tokens, room, 0, stream, error);
}
#endif /* TEGROUP_NO_BACKWARD */
