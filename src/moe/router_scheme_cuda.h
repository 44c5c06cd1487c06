/* ---- Router kernels: schemes ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "moe/routing_types.h"
#include "base/build.h"
#include "formats/convert.h"
#include "core/checks.h"
#include "cpu/real.h"
#include "moe/router_scheme.h"
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
static __device__ __forceinline__ REAL tegroup_impl_score_grad(tegroup_score score, REAL s, REAL grad_log) {
    return tegroup_impl_score_grad_FSUF(score, s, grad_log);
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
