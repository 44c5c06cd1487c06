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
#include "cuda/rows.h"
#include "moe/count_cuda.h"
#include "moe/router_batch_cuda.h"

/* A warp takes a token at a time. Lane l has experts l, l + 32, ...: scores and keys lie in the warp's shared memory.
 * To choose, a lane sorts up to EACH keys of floats in its registers, and the warp's largest is one instruction (from
 * SM80 on). Where keys are close to equal, for doubles, and for more than 1,024 experts each lane knows the best of its
 * own, and the one whose best is taken searches its own again. */
enum { TEGROUP_IMPL_SCHEME_WARPS = 8 };

/* A loop over the lane's elements of a row. All lanes go round equally often, so that the warp stays together: where
 * lanes left a loop one after another, it went on in parts, and ran the code behind the loop two or three times (nvcc
 * 13.0). */
#define TEGROUP_IMPL_OF_LANE(i, count)                                                                                 \
    for (int32_t i = (int32_t)threadIdx.x % 32, round_of_##i = 0; round_of_##i < (count); round_of_##i += 32, i += 32) \
        if (i >= (count)) {                                                                                            \
        } else

/* How many elements of a row a lane loads before it uses the first; each: keys that it sorts. */
#define TEGROUP_IMPL_AT_ONCE(real, each) (sizeof(real) == 8 ? 2 : (each) == 4 ? 4 : 8)

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
/* Not inlined: most kernels need it only where keys are close to equal. */
static __device__ __noinline__ int32_t tegroup_impl_best(const tegroup_impl_key_FSUF *keys, tegroup_dtype dtype,
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

/* Numbers of one type in another. These instructions keep what is subnormal, whatever the compiler is told. */
static __device__ __forceinline__ float tegroup_impl_real_as(float x, float) { return x; }
static __device__ __forceinline__ double tegroup_impl_real_as(double x, double) { return x; }
static __device__ __forceinline__ float tegroup_impl_real_as(double x, float) {
    float y;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x));
    return y;
}
static __device__ __forceinline__ double tegroup_impl_real_as(float x, double) {
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}
static __device__ __forceinline__ uint16_t tegroup_impl_half_as(float x, bool bf16) {
    return (uint16_t)tegroup_impl_two_halves(x, 0, bf16);
}
static __device__ __forceinline__ uint16_t tegroup_impl_half_as(double x, bool bf16) {
    const float odd = tegroup_impl_f32_odd_of_f64(x);
    return bf16 ? tegroup_impl_bf16_of_f32(odd) : tegroup_impl_f16_of_f32(odd);
}

/* Loads N elements of a row, 32 apart; those at `count` and beyond are 0. All are under way before one is used. */
template <int N, typename T>
static __device__ __forceinline__ void tegroup_impl_load_apart(const T *row, int32_t first, int32_t count, T *x) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = first + 32 * i < count ? row[first + 32 * i] : (T)0;
}
/* Stores N elements in the same places; those at `count` and beyond are left alone. */
template <int N, typename T>
static __device__ __forceinline__ void tegroup_impl_store_apart(T *row, int32_t first, int32_t count, const T *x) {
#pragma unroll
    for (int i = 0; i < N; i++)
        if (first + 32 * i < count) row[first + 32 * i] = x[i];
}

/* Loads elements of a matrix's row, whose type is looked at once. */
template <int N, typename REAL>
static __device__ __forceinline__ void tegroup_impl_load_row(const tegroup_matrix &m, const void *row, int32_t first,
                                                             int32_t count, REAL *x) {
    if (m.dtype == TEGROUP_DTYPE_F32) {
        float raw[N];
        tegroup_impl_load_apart<N>((const float *)row, first, count, raw);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = tegroup_impl_real_as(raw[i], (REAL)0);
    } else if (m.dtype == TEGROUP_DTYPE_F64) {
        double raw[N];
        tegroup_impl_load_apart<N>((const double *)row, first, count, raw);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = tegroup_impl_real_as(raw[i], (REAL)0);
    } else {
        uint16_t raw[N];
        const bool bf16 = m.dtype == TEGROUP_DTYPE_BF16;
        tegroup_impl_load_apart<N>((const uint16_t *)row, first, count, raw);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = tegroup_impl_real_as(tegroup_impl_low_half(raw[i], bf16), (REAL)0);
    }
}

/* Stores numbers in a matrix's row, rounded to its type. */
template <int N, typename REAL>
static __device__ __forceinline__ void tegroup_impl_store_row(const tegroup_matrix &m, void *row, int32_t first,
                                                              int32_t count, const REAL *x) {
#define TEGROUP_IMPL_STORE(type, value)                                                                                \
    _Pragma("unroll") for (int i = 0; i < N; i++) if (first + 32 * i < count)((type *)row)[first + 32 * i] = value;
    if (m.dtype == TEGROUP_DTYPE_F32) {
        TEGROUP_IMPL_STORE(float, tegroup_impl_real_as(x[i], 0.0f))
    } else if (m.dtype == TEGROUP_DTYPE_F64) {
        TEGROUP_IMPL_STORE(double, tegroup_impl_real_as(x[i], 0.0))
    } else {
        const bool bf16 = m.dtype == TEGROUP_DTYPE_BF16;
        TEGROUP_IMPL_STORE(uint16_t, tegroup_impl_half_as(x[i], bf16))
    }
#undef TEGROUP_IMPL_STORE
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
    template <int AT_ONCE> __device__ __forceinline__ void rank(const tegroup_router_scheme &s, int32_t experts) {
        for (int32_t base = 0; base < experts; base += 32 * AT_ONCE) {
            const int32_t first = base + (int32_t)threadIdx.x % 32;
            REAL score[AT_ONCE], bias[AT_ONCE] = {0};
            KEY key[AT_ONCE];
            if (s.bias.dtype != TEGROUP_DTYPE_UNSET)
                tegroup_impl_load_row<AT_ONCE>(s.bias, s.bias.data, first, experts, bias);
            tegroup_impl_load_apart<AT_ONCE>(row, first, experts, score);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) key[i] = tegroup_impl_key_of(score[i] + bias[i]);
            tegroup_impl_store_apart<AT_ONCE>(keys, first, experts, key);
        }
        __syncwarp();
        if (s.n_group != 0) drop_groups(s, experts / s.n_group);
    }
    /* Sets the keys of groups that do not stay to 0. 2^shift lanes share a group, as many as there are for each, and
     * take turns at its experts. Each group's lanes begin at another turn, as those of groups of 32 experts would meet
     * in a bank otherwise. */
    __device__ __forceinline__ void drop_groups(const tegroup_router_scheme &s, int32_t size) {
        const int32_t lane = (int32_t)threadIdx.x % 32;
        int32_t shift = 0;
        while (s.n_group <= 16 >> shift) shift++;
        const int32_t turns = (size + (1 << shift) - 1) >> shift, mine = lane & ((1 << shift) - 1);
        for (int32_t base = 0; base < s.n_group; base += 32 >> shift) {
            const int32_t g = base + (lane >> shift);
            int32_t turn = min(lane >> shift, turns - 1);
            KEY first = 0, second = 0;
#pragma unroll 4
            for (int32_t i = 0; i < turns; i++) {
                const int32_t e = (turn << shift) + mine;
                tegroup_impl_two_largest(g < s.n_group && e < size ? keys[g * size + e] : (KEY)0, first, second);
                turn = turn + 1 < turns ? turn + 1 : 0;
            }
            for (int32_t other = 1; other < 1 << shift; other *= 2) {
                const KEY most = __shfl_xor_sync(0xffffffffu, first, other),
                          rest = __shfl_xor_sync(0xffffffffu, second, other);
                tegroup_impl_two_largest(most, first, second);
                tegroup_impl_two_largest(rest, first, second);
            }
            if (g < s.n_group && mine == 0) groups[g] = tegroup_impl_group_key(s.group_score, size, first, second);
        }
        __syncwarp();
        for (int32_t base = 0; base < s.n_group; base += 32 >> shift) {
            const int32_t g = base + (lane >> shift);
            const bool drops = g < s.n_group && !tegroup_impl_group_stays(s, groups, g);
            int32_t turn = min(lane >> shift, turns - 1);
#pragma unroll 4
            for (int32_t i = 0; i < turns; i++) {
                const int32_t e = (turn << shift) + mine;
                if (drops && e < size) keys[g * size + e] = 0;
                turn = turn + 1 < turns ? turn + 1 : 0;
            }
        }
        __syncwarp();
    }
    /* Fills up the choices: each that is -1 becomes the best expert that is not among them. */
    __device__ __forceinline__ void choose(int32_t experts, int32_t k, tegroup_dtype dtype, const void *logits) {
        const int32_t lane = (int32_t)threadIdx.x % 32;
        TEGROUP_IMPL_OF_LANE(j, k)
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

/* Sorts a lane's numbers, the largest first: Batcher's network, which merges runs of RUN numbers by comparing those
 * that are APART. */
template <int N, int RUN = 1, int APART = 1, bool MORE = (RUN < N)> struct tegroup_impl_sort_down {
    static __device__ __forceinline__ void sort(uint32_t *x) {
#pragma unroll
        for (int i = APART % RUN; i + APART < N; i++)
            if ((i - APART % RUN) / APART % 2 == 0 && i / (2 * RUN) == (i + APART) / (2 * RUN)) {
                const uint32_t larger = max(x[i], x[i + APART]);
                x[i + APART] = min(x[i], x[i + APART]);
                x[i] = larger;
            }
        tegroup_impl_sort_down<N, (APART > 1 ? RUN : 2 * RUN), (APART > 1 ? APART / 2 : 2 * RUN)>::sort(x);
    }
};
template <int N, int RUN, int APART> struct tegroup_impl_sort_down<N, RUN, APART, false> {
    static __device__ __forceinline__ void sort(uint32_t *) {}
};

/* Makes choices from up to EACH keys a lane. A lane sorts its keys in registers; the one that has the warp's largest
 * gives it up, and its other keys move up by one. The lowest bits of a key are replaced by its number in the lane. Two
 * keys that differ in these alone have no known order: the first such choice and all after it stay -1. Returns how many
 * choices were made. */
template <int EACH>
static __device__ __forceinline__ int32_t tegroup_impl_scheme_take(const uint32_t *keys, int32_t *indices,
                                                                   int32_t experts, int32_t k) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    uint32_t key[EACH], last = 0;
    bool mine = false;
    if (experts > 32 * EACH) return 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        key[i] = lane + 32 * i < experts ? (keys[lane + 32 * i] & ~(uint32_t)(EACH - 1)) | (uint32_t)i : 0;
    tegroup_impl_sort_down<EACH>::sort(key);
#pragma unroll 1
    for (int32_t j = 0; j <= k; j++) { /* one round more: the next key tells whether the last choice was sure */
        const uint32_t most = tegroup_impl_lanes_most(key[0]);
        if (j > 0 && (most ^ last) < EACH) {
            if (mine) indices[j - 1] = -1;
            return j - 1;
        }
        mine = key[0] == most;
        const uint32_t lanes = __ballot_sync(0xffffffffu, mine);
        if (j == k || most < EACH || (lanes & (lanes - 1)) != 0)
            return j; /* no number is left, or several lanes have it */
        if (mine) {
            indices[j] = lane + 32 * (int32_t)(most % EACH);
#pragma unroll
            for (int i = 1; i < EACH; i++) key[i - 1] = key[i];
            key[EACH - 1] = 0;
        }
        last = most;
    }
    return k;
}
template <int EACH>
static __device__ __forceinline__ int32_t tegroup_impl_scheme_take(const uint64_t *, int32_t *, int32_t, int32_t) {
    return 0;
}

/* A row of a matrix to shared memory, zeros where there is none. */
template <int AT_ONCE, typename REAL>
static __device__ __forceinline__ void tegroup_impl_scheme_read_row(const tegroup_matrix &m, int64_t token, bool there,
                                                                    REAL *row) {
    const int32_t experts = (int32_t)m.cols;
    const char *const from = tegroup_impl_matrix_row(&m, token);
    for (int32_t base = 0; base < experts; base += 32 * AT_ONCE) {
        const int32_t first = base + (int32_t)threadIdx.x % 32;
        REAL x[AT_ONCE];
        tegroup_impl_load_row<AT_ONCE>(m, from, first, there ? experts : 0, x);
        tegroup_impl_store_apart<AT_ONCE>(row, first, experts, x);
    }
}

/* The lanes' largest logit, and the sum of exp(logit - largest). Each lane reads only what it wrote itself. */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_scheme_exponentials(const REAL *logits, int32_t experts,
                                                                        REAL &largest) {
    REAL sum = 0;
    largest = -(REAL)INFINITY;
    TEGROUP_IMPL_OF_LANE(e, experts) largest = tegroup_impl_larger(largest, logits[e]);
    largest = tegroup_impl_lanes_max<REAL, 32>(largest);
    TEGROUP_IMPL_OF_LANE(e, experts) sum += tegroup_impl_exp(logits[e] - largest);
    return tegroup_impl_lanes_sum<REAL, 32>(sum);
}

/* The scores of a token's logits, 0 where it is padding, and what the losses need of them. */
template <int AT_ONCE, typename REAL>
static __device__ __forceinline__ void tegroup_impl_scheme_scores(const tegroup_router_desc &desc,
                                                                  const tegroup_impl_scheme_way &way, int64_t token,
                                                                  bool there, REAL *scores) {
    const tegroup_score score = desc.scheme.score;
    const int32_t lane = (int32_t)threadIdx.x % 32, experts = desc.experts;
    const bool softmax = score == TEGROUP_SCORE_SOFTMAX;
    REAL largest = 0, sum = 1, total = 0;
    tegroup_impl_scheme_read_row<AT_ONCE>(desc.logits, token, there, scores);
    if (there && (softmax || way.logsumexp)) sum = tegroup_impl_scheme_exponentials(scores, experts, largest);
    if (there && score == TEGROUP_SCORE_SIGMOID) {
        for (int32_t base = 0; base < experts; base += 32 * AT_ONCE) {
            REAL x[AT_ONCE];
            tegroup_impl_load_apart<AT_ONCE>(scores, base + lane, experts, x);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) x[i] = tegroup_impl_score(TEGROUP_SCORE_SIGMOID, x[i]);
            tegroup_impl_store_apart<AT_ONCE>(scores, base + lane, experts, x);
        }
    } else if (there) {
#pragma unroll 1
        TEGROUP_IMPL_OF_LANE(e, experts)
            scores[e] = softmax ? tegroup_impl_exp(scores[e] - largest) / sum
                                : tegroup_impl_score(TEGROUP_SCORE_SQRT_SOFTPLUS, scores[e]);
    }
    if (way.totals) {
        TEGROUP_IMPL_OF_LANE(e, experts) total += scores[e];
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
    TEGROUP_IMPL_OF_LANE(j, k)
        if (indices[j] >= 0) sum += scores[indices[j]];
    return tegroup_impl_lanes_sum<REAL, 32>(sum) + (REAL)s.normalize_epsilon;
}

template <typename REAL, typename KEY, int EACH>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_SCHEME_WARPS, EACH < 32 ? 4 : 2)
    tegroup_impl_scheme_kernel(const __grid_constant__ tegroup_router_desc desc,
                               const __grid_constant__ tegroup_impl_scheme_way way) {
    const tegroup_router_scheme &s = desc.scheme;
    enum { AT_ONCE = TEGROUP_IMPL_AT_ONCE(REAL, EACH) };
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
        tegroup_impl_scheme_scores<AT_ONCE>(desc, way, token, there, my.row);
#pragma unroll 1
        TEGROUP_IMPL_OF_LANE(j, k)
            my.indices[j] = there && given ? tegroup_impl_index(&s.given_indices, token, j, experts) : -1;
        __syncwarp();
        if (there && !given) {
            my.template rank<AT_ONCE>(s, experts);
            if (tegroup_impl_scheme_take<EACH>(my.keys, my.indices, experts, k) < k) {
                __syncwarp();
                my.choose(experts, k, desc.logits.dtype, tegroup_impl_matrix_row(&desc.logits, token));
            }
            __syncwarp();
        }
        const REAL divisor = tegroup_impl_scheme_divisor(s, desc.normalize, k, my.indices, my.row);
#pragma unroll 1
        TEGROUP_IMPL_OF_LANE(j, k) {
            const int32_t e = my.indices[j];
            tegroup_impl_store_int(desc.indices.dtype, tegroup_impl_matrix_row(&desc.indices, token), j, e);
            if (desc.weights.dtype != TEGROUP_DTYPE_UNSET)
                ((REAL *)tegroup_impl_matrix_row(&desc.weights, token))[j] =
                    e < 0 ? (REAL)0 : tegroup_impl_scheme_weight(s, my.row[e], divisor);
            if (e >= 0 && way.histogram) atomicAdd(&histogram[e], 1u);
            else if (e >= 0) tegroup_impl_add_count(desc.counts, e, 1);
        }
        if (desc.probabilities.dtype != TEGROUP_DTYPE_UNSET) {
            REAL *const probabilities = (REAL *)tegroup_impl_matrix_row(&desc.probabilities, token);
            for (int32_t base = 0; base < experts; base += 32 * AT_ONCE)
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    if (base + 32 * i + lane < experts)
                        probabilities[base + 32 * i + lane] = my.row[base + 32 * i + lane];
        }
        __syncwarp();
    }
    __syncthreads();
    for (int32_t e = (int32_t)threadIdx.x; way.histogram && e < experts; e += (int32_t)blockDim.x)
        if (histogram[e] != 0) tegroup_impl_add_count(desc.counts, e, histogram[e]);
}
