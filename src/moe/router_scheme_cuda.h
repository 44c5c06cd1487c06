/* ---- Router kernels: schemes ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "moe/routing_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/checks.h"
#include "cpu/real.h"
#include "moe/router_scheme.h"
#include "moe/router.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "moe/count_cuda.h"
#include "moe/router_batch_cuda.h"

/* A warp takes a token at a time. Lane l has experts l, l + 32, ...: scores and keys lie in the warp's shared memory.
 * To choose, up to EACH keys of floats are in a lane's registers, and the warp's largest is one instruction; where
 * keys are equal, and for doubles and more experts, each lane remembers the best of its own in shared memory, and the
 * one whose best is taken looks at its own again. */
enum { TEGROUP_IMPL_SCHEME_WARPS = 8 };

/* Where the parts of what a call's kernels hand on lie, and what a warp has in shared memory. */
typedef struct tegroup_impl_scheme_way {
    double *totals, *logsumexp, *sums, *losses; /* NULL: not wanted */
    int64_t *counts;                            /* likewise: assignments of each sequence */
    int32_t histogram, room;                    /* assignments are counted a block at a time; experts of a row */
} tegroup_impl_scheme_way;

/* @each-real */
static __device__ __forceinline__ tegroup_impl_key_FSUF tegroup_impl_key_of(REAL x) {
    return tegroup_impl_key_of_FSUF(x);
}
static __device__ __forceinline__ REAL tegroup_impl_exp(REAL x) { return tegroup_impl_exp_FSUF(x); }
static __device__ __forceinline__ REAL tegroup_impl_score(tegroup_score score, REAL x) {
    return tegroup_impl_score_FSUF(score, x);
}
static __device__ __forceinline__ REAL tegroup_impl_score_slope(tegroup_score score, REAL s) {
    return tegroup_impl_score_slope_FSUF(score, s);
}
static __device__ __forceinline__ int32_t tegroup_impl_best(const tegroup_impl_key_FSUF *keys, tegroup_dtype dtype,
                                                            const void *logits, int32_t first, int32_t experts) {
    return tegroup_impl_best_FSUF(keys, dtype, logits, first, 32, experts);
}
/* A logit's key, 0 where logits do not count. */
static __device__ __forceinline__ tegroup_impl_key_FSUF tegroup_impl_tie(tegroup_dtype dtype, const void *logits,
                                                                         int32_t e, REAL) {
    return logits ? tegroup_impl_key_of_FSUF(tegroup_impl_load_FSUF(dtype, logits, e)) : 0;
}
static __device__ __forceinline__ tegroup_impl_key_FSUF tegroup_impl_group_key(tegroup_group_score score, int32_t size,
                                                                               tegroup_impl_key_FSUF first,
                                                                               tegroup_impl_key_FSUF second) {
    return tegroup_impl_group_key_FSUF(score, size, first, second);
}
static __device__ __forceinline__ void tegroup_impl_two_largest(tegroup_impl_key_FSUF key, tegroup_impl_key_FSUF &first,
                                                                tegroup_impl_key_FSUF &second) {
    tegroup_impl_two_largest_FSUF(key, &first, &second);
}
/* Loads and stores of floating point in these kernels' loops. */
static __device__ __forceinline__ REAL tegroup_impl_load_here(const tegroup_matrix &m, const void *row, int32_t i,
                                                              REAL) {
    return tegroup_impl_load_float_FSUF(m.dtype, row, i);
}
static __device__ __forceinline__ void tegroup_impl_store_here(const tegroup_matrix &m, void *row, int32_t i, REAL x) {
    tegroup_impl_store_float_FSUF(m.dtype, row, i, x);
}
static __device__ __forceinline__ int tegroup_impl_group_stays(const tegroup_router_scheme &s,
                                                               const tegroup_impl_key_FSUF *groups, int32_t g) {
    return tegroup_impl_group_stays_FSUF(&s, groups, g);
}
static __device__ __forceinline__ REAL tegroup_impl_scheme_weight(const tegroup_router_scheme &s, REAL score,
                                                                  REAL divisor) {
    return tegroup_impl_scheme_weight_FSUF(&s, score, divisor);
}
static __device__ __forceinline__ REAL tegroup_impl_scheme_grad(const tegroup_router_scheme &s, REAL grad_weight,
                                                                REAL dot, REAL divisor, int32_t normalize) {
    return tegroup_impl_scheme_grad_FSUF(&s, grad_weight, dot, divisor, normalize);
}
/* @end */

/* The largest of the lanes' values. */
static __device__ __forceinline__ uint32_t tegroup_impl_lanes_most(uint32_t x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, x);
#else
    for (int step = 16; step > 0; step /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
    return x;
#endif
}
static __device__ __forceinline__ uint64_t tegroup_impl_lanes_most(uint64_t x) {
    for (int step = 16; step > 0; step /= 2) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)x, step);
        x = other > x ? other : x;
    }
    return x;
}

/* What a warp has of a token in shared memory: a row of scores or of their gradients, a row of keys, the keys of
 * groups, and its choices. */
template <typename REAL, typename KEY> struct tegroup_impl_scheme_token {
    REAL *row;
    KEY *keys, *groups;
    int32_t *indices;

    static __host__ __device__ __forceinline__ int32_t bytes(int32_t room) {
        return room * (int32_t)(sizeof(REAL) + sizeof(KEY)) + TEGROUP_IMPL_EXPERT_GROUPS * (int32_t)sizeof(KEY)
               + TEGROUP_IMPL_CHOICES * 4;
    }
    __device__ __forceinline__ tegroup_impl_scheme_token(char *memory, int32_t room) {
        keys = (KEY *)(memory + (int32_t)threadIdx.x / 32 * bytes(room));
        groups = keys + room;
        row = (REAL *)(groups + TEGROUP_IMPL_EXPERT_GROUPS);
        indices = (int32_t *)(row + room);
    }

    /* Keys of scores, 0 for the experts of groups that do not stay. */
    __device__ __forceinline__ void rank(const tegroup_router_scheme &s, int32_t experts) {
        const int32_t lane = (int32_t)threadIdx.x % 32, size = s.n_group != 0 ? experts / s.n_group : 0;
        const bool biased = s.bias.dtype != TEGROUP_DTYPE_UNSET;
        for (int32_t e = lane; e < experts; e += 32)
            keys[e] =
                tegroup_impl_key_of(biased ? row[e] + tegroup_impl_load_here(s.bias, s.bias.data, e, (REAL)0) : row[e]);
        __syncwarp();
        if (s.n_group == 0) return;
        for (int32_t g = 0; g < s.n_group; g++) {
            KEY first = 0, second = 0;
            for (int32_t e = g * size + lane; e < (g + 1) * size; e += 32)
                tegroup_impl_two_largest(keys[e], first, second);
            const KEY most = tegroup_impl_lanes_most(first);
            const bool mine = first == most;
            const KEY behind = tegroup_impl_lanes_most(mine ? second : first),
                      rest = __popc(__ballot_sync(0xffffffffu, mine)) > 1 ? most : behind;
            if (lane == 0) groups[g] = tegroup_impl_group_key(s.group_score, size, most, rest);
        }
        __syncwarp();
        const bool low = lane < s.n_group && tegroup_impl_group_stays(s, groups, lane),
                   high = lane + 32 < s.n_group && tegroup_impl_group_stays(s, groups, lane + 32);
        const uint64_t stay = __ballot_sync(0xffffffffu, low) | (uint64_t)__ballot_sync(0xffffffffu, high) << 32;
        for (int32_t g = 0; g < s.n_group; g++)
            for (int32_t e = g * size + lane; !(stay >> g & 1) && e < (g + 1) * size; e += 32) keys[e] = 0;
        __syncwarp();
    }
    /* Fills up the choices: each that is -1 becomes the best expert that is not among them. */
    __device__ __forceinline__ void choose(int32_t experts, int32_t k, tegroup_dtype dtype, const void *logits) {
        const int32_t lane = (int32_t)threadIdx.x % 32;
        for (int32_t j = lane; j < k; j += 32)
            if (indices[j] >= 0) keys[indices[j]] = 0;
        __syncwarp();
        int32_t mine = tegroup_impl_best(keys, dtype, logits, lane, experts);
        KEY key = mine >= 0 ? keys[mine] : 0;
#pragma unroll 1
        for (int32_t j = 0; j < k; j++) {
            if (indices[j] >= 0) continue; /* the same for all lanes */
            const KEY most = tegroup_impl_lanes_most(key);
            uint32_t equal = __ballot_sync(0xffffffffu, key == most && key != 0);
            if ((equal & (equal - 1)) != 0) { /* several lanes: the larger logit, then the lower expert */
                const bool mine_too = equal >> lane & 1;
                const KEY tie = mine_too && most != 1 ? tegroup_impl_tie(dtype, logits, mine, (REAL)0) : 0,
                          largest = tegroup_impl_lanes_most(tie);
                const uint32_t first =
                    ~tegroup_impl_lanes_most(mine_too && tie == largest ? ~(uint32_t)mine : 0u);
                equal = __ballot_sync(0xffffffffu, mine_too && (uint32_t)mine == first);
            }
            __syncwarp(); /* every lane has seen that there was no choice yet */
            if (equal >> lane & 1) {
                indices[j] = mine;
                keys[mine] = 0;
                mine = tegroup_impl_best(keys, dtype, logits, lane, experts);
                key = mine >= 0 ? keys[mine] : 0;
            }
            __syncwarp();
        }
    }
};

/* Makes choices of keys that are in registers until two are equal. What was taken is 0 in shared memory, too. Returns
 * how many choices were made. */
template <int EACH>
static __device__ __forceinline__ int32_t tegroup_impl_scheme_take(uint32_t *keys, int32_t *indices, int32_t experts,
                                                                   int32_t k) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    uint32_t key[EACH];
    if (experts > 32 * EACH) return 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) key[i] = lane + 32 * i < experts ? keys[lane + 32 * i] : 0;
#pragma unroll 1
    for (int32_t j = 0; j < k; j++) {
        uint32_t mine = key[0];
        int32_t at = 0, equal = 0;
#pragma unroll
        for (int i = 1; i < EACH; i++) mine = max(mine, key[i]);
        const uint32_t most = tegroup_impl_lanes_most(mine);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (key[i] == most) at = i, equal++;
        const uint32_t lanes = __ballot_sync(0xffffffffu, equal > 0);
        if ((lanes & (lanes - 1)) != 0 || __any_sync(0xffffffffu, equal > 1)) return j;
#pragma unroll
        for (int i = 0; i < EACH; i++) key[i] = key[i] == most ? 0u : key[i];
        if (equal > 0) {
            indices[j] = lane + 32 * at;
            keys[lane + 32 * at] = 0;
        }
    }
    return k;
}
template <int EACH>
static __device__ __forceinline__ int32_t tegroup_impl_scheme_take(uint64_t *, int32_t *, int32_t, int32_t) {
    return 0;
}

/* The lanes' largest logit, and the sum of exp(logit - largest). */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_scheme_exponentials(const tegroup_matrix &logits, const char *from,
                                                                        int32_t experts, REAL &largest) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    REAL sum = 0;
    largest = -(REAL)INFINITY;
    for (int32_t e = lane; e < experts; e += 32)
        largest = tegroup_impl_larger(largest, tegroup_impl_load_here(logits, from, e, (REAL)0));
    largest = tegroup_impl_lanes_max<REAL, 32>(largest);
    for (int32_t e = lane; e < experts; e += 32)
        sum += tegroup_impl_exp(tegroup_impl_load_here(logits, from, e, (REAL)0) - largest);
    return tegroup_impl_lanes_sum<REAL, 32>(sum);
}

/* The scores of a token's logits, 0 where it is padding, and what the losses need of them. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_scheme_scores(const tegroup_router_desc &desc,
                                                                  const tegroup_impl_scheme_way &way, int64_t token,
                                                                  bool there, REAL *scores) {
    const tegroup_score score = desc.scheme.score;
    const int32_t lane = (int32_t)threadIdx.x % 32, experts = desc.experts;
    const bool softmax = score == TEGROUP_SCORE_SOFTMAX;
    const char *logits = tegroup_impl_matrix_row(&desc.logits, token);
    REAL largest = -(REAL)INFINITY, sum = 0, total = 0;
    for (int32_t e = lane; e < experts; e += 32) {
        scores[e] = there ? tegroup_impl_load_here(desc.logits, logits, e, (REAL)0) : (REAL)0;
        largest = tegroup_impl_larger(largest, scores[e]);
    }
    if (there && (softmax || way.logsumexp)) {
        largest = tegroup_impl_lanes_max<REAL, 32>(largest);
        for (int32_t e = lane; e < experts; e += 32) {
            const REAL term = tegroup_impl_exp(scores[e] - largest);
            sum += term;
            if (softmax) scores[e] = term;
        }
        sum = tegroup_impl_lanes_sum<REAL, 32>(sum);
    }
    for (int32_t e = lane; there && e < experts; e += 32) {
        scores[e] = softmax ? scores[e] / sum : tegroup_impl_score(score, scores[e]);
        total += scores[e];
    }
    if (way.totals) {
        total = softmax ? (REAL)1 : tegroup_impl_lanes_sum<REAL, 32>(total);
        if (lane == 0) way.totals[token] = total == 0 ? 1.0 : (double)total;
    }
    if (way.logsumexp && lane == 0) way.logsumexp[token] = there ? (double)largest + log((double)sum) : 0.0;
    __syncwarp();
}

/* What a token's weights are divided by. */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_scheme_divisor(const tegroup_router_scheme &s, int32_t normalize,
                                                                   int32_t k, const int32_t *indices,
                                                                   const REAL *scores) {
    REAL sum = 0;
    if (!normalize) return 1;
    for (int32_t j = (int32_t)threadIdx.x % 32; j < k; j += 32)
        if (indices[j] >= 0) sum += scores[indices[j]];
    return tegroup_impl_lanes_sum<REAL, 32>(sum) + (REAL)s.normalize_epsilon;
}

template <typename REAL, typename KEY, int EACH>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_SCHEME_WARPS)
    tegroup_impl_scheme_kernel(const __grid_constant__ tegroup_router_desc desc,
                               const __grid_constant__ tegroup_impl_scheme_way way) {
    const tegroup_router_scheme &s = desc.scheme;
    const int32_t experts = desc.experts, k = desc.k, lane = (int32_t)threadIdx.x % 32,
                  warps = (int32_t)blockDim.x / 32;
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    tegroup_impl_scheme_token<REAL, KEY> my(
        tegroup_impl_router_memory() + (way.histogram ? 4 * way.room : 0), way.room);
    for (int32_t e = (int32_t)threadIdx.x; way.histogram && e < experts; e += (int32_t)blockDim.x) histogram[e] = 0;
    __syncthreads();
    for (int64_t token = (int64_t)blockIdx.x * warps + threadIdx.x / 32; token < desc.logits.rows;
         token += (int64_t)gridDim.x * warps) {
        const bool there = tegroup_impl_token_there(&s, token), given = s.given_indices.dtype != TEGROUP_DTYPE_UNSET;
        tegroup_impl_scheme_scores(desc, way, token, there, my.row);
        for (int32_t j = lane; j < k; j += 32)
            my.indices[j] = there && given ? tegroup_impl_index(&s.given_indices, token, j, experts) : -1;
        __syncwarp();
        if (there && !given) {
            my.rank(s, experts);
            if (tegroup_impl_scheme_take<EACH>(my.keys, my.indices, experts, k) < k) {
                __syncwarp();
                my.choose(experts, k, desc.logits.dtype, tegroup_impl_matrix_row(&desc.logits, token));
            }
            __syncwarp();
        }
        const REAL divisor = tegroup_impl_scheme_divisor(s, desc.normalize, k, my.indices, my.row);
        for (int32_t j = lane; j < k; j += 32) {
            const int32_t e = my.indices[j];
            tegroup_impl_store_int(desc.indices.dtype, tegroup_impl_matrix_row(&desc.indices, token), j, e);
            if (desc.weights.dtype != TEGROUP_DTYPE_UNSET)
                ((REAL *)tegroup_impl_matrix_row(&desc.weights, token))[j] =
                    e < 0 ? (REAL)0 : tegroup_impl_scheme_weight(s, my.row[e], divisor);
            if (e >= 0 && way.histogram) atomicAdd(&histogram[e], 1u);
            else if (e >= 0) tegroup_impl_add_count(desc.counts, e, 1);
        }
        for (int32_t e = lane; desc.probabilities.dtype != TEGROUP_DTYPE_UNSET && e < experts; e += 32)
            ((REAL *)tegroup_impl_matrix_row(&desc.probabilities, token))[e] = my.row[e];
        __syncwarp();
    }
    __syncthreads();
    for (int32_t e = (int32_t)threadIdx.x; way.histogram && e < experts; e += (int32_t)blockDim.x)
        if (histogram[e] != 0) tegroup_impl_add_count(desc.counts, e, histogram[e]);
}

/* ---- losses ---- */

/* The tokens of a run of a sequence: run number `at` of all. */
struct tegroup_impl_scheme_run {
    int64_t sequence, first, last;
    __device__ __forceinline__ tegroup_impl_scheme_run(const tegroup_router_desc &desc, int64_t at) {
        const int64_t tokens = desc.logits.rows, sequences = tegroup_impl_sequences(&desc.scheme, tokens),
                      runs = tegroup_impl_sequence_runs(sequences),
                      length = desc.scheme.sequence_tokens != 0 ? desc.scheme.sequence_tokens : tokens,
                      each = tegroup_impl_ceil_div(length, runs);
        sequence = at / runs;
        first = sequence * length + tegroup_impl_min(length, at % runs * each);
        last = sequence * length + tegroup_impl_min(length, (at % runs + 1) * each);
    }
};

/* Counts a run's assignments. Sums of integers are the same in whatever order they are added. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_scheme_counts_kernel(const __grid_constant__ tegroup_router_desc desc,
                                      const __grid_constant__ tegroup_impl_scheme_way way, int64_t runs) {
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    for (int64_t at = blockIdx.x; at < runs; at += gridDim.x) {
        const tegroup_impl_scheme_run run(desc, at);
        for (int32_t e = (int32_t)threadIdx.x; e < desc.experts; e += (int32_t)blockDim.x) histogram[e] = 0;
        __syncthreads();
        for (int64_t i = run.first * desc.k + threadIdx.x; i < run.last * desc.k; i += blockDim.x) {
            const int32_t e = tegroup_impl_index(&desc.indices, i / desc.k, (int32_t)(i % desc.k), desc.experts);
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
                                    const __grid_constant__ tegroup_impl_scheme_way way, int64_t runs) {
    __shared__ double part[8][32];
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32,
                  e = (int32_t)blockIdx.x * 32 + lane;
    const tegroup_matrix &p = desc.probabilities;
    for (int64_t at = blockIdx.y; at < runs; at += gridDim.y) {
        const tegroup_impl_scheme_run run(desc, at);
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
                  length = desc.scheme.sequence_tokens != 0 ? desc.scheme.sequence_tokens : desc.logits.rows,
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

/* ---- the gradient ---- */

#if !defined(TEGROUP_NO_BACKWARD)
/* The gradients of shares become those of scores, which are divided by their sum unless they are a softmax's. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_scheme_shares(const tegroup_router_backward_desc &desc,
                                                                  const REAL *scores, const double *slopes,
                                                                  REAL *grads) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    REAL sum = 0, mean = 0;
    if (!slopes || desc.scheme.score == TEGROUP_SCORE_SOFTMAX) return;
    for (int32_t e = lane; e < desc.experts; e += 32) {
        sum += scores[e];
        mean += grads[e] * scores[e];
    }
    sum = tegroup_impl_lanes_sum<REAL, 32>(sum);
    mean = tegroup_impl_lanes_sum<REAL, 32>(mean) / sum;
    for (int32_t e = lane; e < desc.experts; e += 32) grads[e] = sum == 0 ? (REAL)0 : (grads[e] - mean) / sum;
}

/* The gradients of a token's scores by what was chosen, on top of what is there: as tegroup_impl_scheme_choices_f32.
 * Keys make room for the gradients when the choices are known. */
template <typename REAL, typename KEY>
static __device__ __forceinline__ void tegroup_impl_scheme_choices(const tegroup_router_backward_desc &desc,
                                                                   int64_t token,
                                                                   tegroup_impl_scheme_token<REAL, KEY> &my,
                                                                   const double *slopes, REAL by, REAL *grads) {
    const tegroup_router_scheme &s = desc.scheme;
    const int32_t experts = desc.experts, k = desc.k, lane = (int32_t)threadIdx.x % 32;
    const REAL *grad_weights = (const REAL *)tegroup_impl_matrix_row(&desc.grad_weights, token);
    REAL weight[2] = {0, 0}, dot = 0;
    int32_t kept = 0;
    for (int32_t i = 0; i < 2; i++) { /* choices i * 32 + lane: there are at most 64 */
        const int32_t j = 32 * i + lane, e = j < k ? tegroup_impl_index(&desc.indices, token, j, experts) : -1;
        if (e >= 0) weight[i] = grad_weights[j];
        if (e >= 0) dot += weight[i] * my.row[e];
        if (j < k) my.indices[j] = e;
        kept += __popc(__ballot_sync(0xffffffffu, e >= 0));
    }
    __syncwarp();
    dot = tegroup_impl_lanes_sum<REAL, 32>(dot);
    if (desc.normalize && kept > 0 && kept < k && s.given_indices.dtype == TEGROUP_DTYPE_UNSET) {
        my.rank(s, experts);
        my.choose(experts, k, TEGROUP_DTYPE_UNSET, NULL);
    }
    for (int32_t e = lane; e < experts; e += 32) grads[e] = slopes ? by * (REAL)slopes[e] : (REAL)0;
    tegroup_impl_scheme_shares(desc, my.row, slopes, grads);
    if (kept == 0) return;
    const REAL divisor = tegroup_impl_scheme_divisor(s, desc.normalize, k, my.indices, my.row);
    for (int32_t i = 0; i < 2; i++) weight[i] = tegroup_impl_scheme_grad(s, weight[i], dot, divisor, desc.normalize);
    for (int32_t j = 0; j < k; j++) { /* in order: an expert that was given twice gets both */
        const REAL grad = __shfl_sync(0xffffffffu, j < 32 ? weight[0] : weight[1], j % 32);
        if (my.indices[j] >= 0 && my.indices[j] % 32 == lane) grads[my.indices[j]] += grad;
    }
}

/* As tegroup_impl_scheme_grad_row_f32, a warp a token. */
template <typename REAL, typename KEY>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_SCHEME_WARPS)
    tegroup_impl_scheme_grad_kernel(const __grid_constant__ tegroup_router_backward_desc desc, int32_t room) {
    const tegroup_router_scheme &s = desc.scheme;
    const int32_t experts = desc.experts, lane = (int32_t)threadIdx.x % 32, warps = (int32_t)blockDim.x / 32;
    const bool softmax = s.score == TEGROUP_SCORE_SOFTMAX;
    const REAL by = desc.loss_scale != 0 ? (REAL)desc.loss_scale : (REAL)1;
    tegroup_impl_scheme_token<REAL, KEY> my(tegroup_impl_router_memory(), room);
    REAL *grads = (REAL *)(void *)my.keys;
    for (int64_t token = (int64_t)blockIdx.x * warps + threadIdx.x / 32; token < desc.probabilities.rows;
         token += (int64_t)gridDim.x * warps) {
        char *out = tegroup_impl_matrix_row(&desc.grad_logits, token);
        const REAL *scores = (const REAL *)tegroup_impl_matrix_row(&desc.probabilities, token);
        const double *slopes = tegroup_impl_loss_slopes(&desc, token);
        if (!tegroup_impl_token_there(&s, token)) {
            for (int32_t e = lane; e < experts; e += 32) tegroup_impl_store_here(desc.grad_logits, out, e, (REAL)0);
            continue;
        }
        for (int32_t e = lane; e < experts; e += 32) my.row[e] = scores[e];
        __syncwarp();
        tegroup_impl_scheme_choices(desc, token, my, slopes, by, grads);
        REAL largest = 0, z = 0, mean = 0;
        const char *logits = s.z_coefficient != 0 ? tegroup_impl_matrix_row(&desc.logits, token) : NULL;
        if (logits) {
            const REAL all = tegroup_impl_scheme_exponentials(desc.logits, logits, experts, largest);
            z = by * (REAL)slopes[experts] * (REAL)((double)largest + log((double)all)) / all;
        }
        for (int32_t e = lane; softmax && e < experts; e += 32) mean += my.row[e] * grads[e];
        if (softmax) mean = tegroup_impl_lanes_sum<REAL, 32>(mean);
        for (int32_t e = lane; e < experts; e += 32) {
            const REAL score = my.row[e];
            REAL grad = softmax ? score * (grads[e] - mean) : tegroup_impl_score_slope(s.score, score) * grads[e];
            if (logits) grad += z * tegroup_impl_exp(tegroup_impl_load_here(desc.logits, logits, e, (REAL)0) - largest);
            tegroup_impl_store_here(desc.grad_logits, out, e, grad);
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
    const int64_t sequences = tegroup_impl_sequences(&desc->scheme, desc->logits.rows),
                  runs = sequences * tegroup_impl_sequence_runs(sequences), most = 65535;
    const unsigned columns = (unsigned)(desc->experts + 1 + 31) / 32;
    if (way->counts && runs > 0) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            cudaMemsetAsync(way->counts, 0, 8 * (size_t)(sequences * desc->experts), stream), "stream",
            "the counts must be cleared", error));
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_scheme_counts_kernel, (unsigned)tegroup_impl_min(runs, most), 256,
                                4 * (size_t)desc->experts, stream, *desc, *way, runs),
            "stream", "the kernel must launch", error));
    }
    if (runs > 0) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_scheme_sums_kernel,
                                dim3(columns, (unsigned)tegroup_impl_min(runs, most)), 256, 0, stream, *desc, *way,
                                runs),
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
