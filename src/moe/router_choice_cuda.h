/* ---- Router kernels: the choice ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "moe/routing_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "cpu/vectors.h"
#include "moe/router_scheme.h"
#include "moe/count_cuda.h"
#include "moe/router_batch_cuda.h"

/* Logits may differ although probabilities are equal only if the least chosen one times `sum`, which exp(logit -
 * largest) is divided by, is below what this returns. halves: every logit of the batch has at most the 11 significant
 * bits of a half. Then logits of 1/16 and more lie at least 2^-14 apart, so equal probabilities come from equal logits,
 * unless they are close to 0. */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_router_edge(REAL sum, REAL largest, bool halves) {
    const REAL small = (REAL)0.125; /* twice 1/16, so that rounding does not matter here */
    const REAL edge = largest > -small ? tegroup_impl_softmax_exp(small - largest) : (REAL)0;
    return halves ? tegroup_impl_larger(edge, (REAL)0x1p-100 * sum) : (REAL)INFINITY;
}

/* An integer that compares with those of a matrix's other logits as the logit does, unless one is NaN: any float's bits
 * without the sign are in its order. */
static __device__ __forceinline__ int64_t tegroup_impl_router_order(const tegroup_matrix &m, int64_t at) {
    const uint64_t bits = m.dtype == TEGROUP_DTYPE_F64   ? ((const tegroup_impl_any64 *)m.data)[at]
                          : m.dtype == TEGROUP_DTYPE_F32 ? (uint64_t)((const tegroup_impl_any32 *)m.data)[at] << 32
                                                         : (uint64_t)((const tegroup_impl_any16 *)m.data)[at] << 48;
    const int64_t magnitude = (int64_t)(bits & INT64_MAX);
    return bits >> 63 ? -magnitude : magnitude;
}

/* A token's largest logit, and its sum of exponentials, later what its weights are divided by. */
template <typename REAL> struct alignas(2 * sizeof(REAL)) tegroup_impl_router_softmax { REAL divisor, largest; };

template <typename REAL> struct alignas(2 * sizeof(REAL)) tegroup_impl_router_choice {
    REAL probability;
    int32_t expert;
};

/* What a token has in shared memory besides its probabilities: first the maximum of each quad; then, at these indices,
 * its softmax, and its choices, with the largest probability that is left behind them. */
struct tegroup_impl_router_places {
    int32_t softmax, choices;

    explicit __device__ __forceinline__ tegroup_impl_router_places(int32_t room)
        : softmax((room / 4 + 3) / 4 * 4), choices(softmax + 2) {}
    template <typename REAL>
    __device__ __forceinline__ tegroup_impl_router_softmax<REAL> &softmax_of(REAL *token) const {
        return *(tegroup_impl_router_softmax<REAL> *)(token + softmax);
    }
    template <typename REAL>
    __device__ __forceinline__ tegroup_impl_router_choice<REAL> *choices_of(REAL *token) const {
        return (tegroup_impl_router_choice<REAL> *)(token + choices);
    }
};

/* A warp corrects a token's choice among equal probabilities: larger logits come first, and of equal logits the lower
 * experts. So far lower experts came first whatever their logits. Leaves that were chosen are -1. This code is seldom
 * in an instruction cache, so it is short and nothing is unrolled. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_untie(const tegroup_router_desc &desc, int64_t token,
                                                                 REAL *leaves,
                                                                 tegroup_impl_router_choice<REAL> *choices) {
    const int32_t lane = (int32_t)threadIdx.x % 32, k = desc.k;
    __syncwarp();
#pragma unroll 1
    for (int32_t j = lane; j < k; j += 32) leaves[choices[j].expert] = choices[j].probability;
    __syncwarp();
#pragma unroll 1
    for (int32_t j = 0; j < k; j++) {
        const REAL value = choices[j].probability;
        const bool begins = j == 0 || choices[j - 1].probability != value;
        int64_t most = INT64_MIN, least = INT64_MAX;
        int32_t best = 0;
        if (begins && choices[j + 1].probability != value) continue;
#pragma unroll 1
        for (int32_t e = lane; e < desc.experts; e += 32) {
            if (leaves[e] != value) continue;
            const int64_t x = tegroup_impl_router_order(desc.logits, token * desc.logits.ld + e);
            if (x > most) most = x, best = e;
            least = tegroup_impl_min(least, x);
        }
#pragma unroll 1
        for (int step = 16; step > 0; step /= 2) {
            const int64_t other = __shfl_xor_sync(0xffffffffu, most, step);
            const int32_t its = __shfl_xor_sync(0xffffffffu, best, step);
            if (other > most || (other == most && its < best)) most = other, best = its;
            least = tegroup_impl_min(least, __shfl_xor_sync(0xffffffffu, least, step));
        }
        if (begins && most == least) { /* all logits are equal, so the choice is right */
            while (j + 1 < k && choices[j + 1].probability == value) j++;
            continue;
        }
        __syncwarp(); /* all lanes have read what one writes next */
        if (lane == 0) {
            choices[j].expert = best;
            leaves[best] = -1;
        }
        __syncwarp();
    }
}

/* Replaces a batch's logits by exp(logit - largest), and sets `sum` to each token's sum of them. Returns the sum of
 * these sums. */
template <typename REAL, int LANES, int QUADS, int TURNS>
static __device__ __forceinline__ REAL tegroup_impl_router_exponentials(
    tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> &batch, const tegroup_impl_router_way &way,
    const tegroup_impl_router_places &at, char *memory, int32_t experts, REAL *sum) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    REAL largest[TURNS], sums_of_all = 0;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        quad most = batch.v[turn][0], sums = {{0, 0, 0, 0}};
#pragma unroll
        for (int j = 1; j < QUADS; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) most.x[i] = tegroup_impl_larger(most.x[i], batch.v[turn][j].x[i]);
        largest[turn] = tegroup_impl_lanes_max<REAL, LANES>(tegroup_impl_quad_max(most));
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            /* a quad that stands in for one that the row lacks adds 0 */
            const REAL shift = 4 * batch_of::quad_of(j) < experts ? largest[turn] : (REAL)INFINITY;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                batch.v[turn][j].x[i] = tegroup_impl_softmax_exp(batch.v[turn][j].x[i] - shift);
                sums.x[i] += batch.v[turn][j].x[i];
            }
        }
        sum[turn] = tegroup_impl_lanes_sum<REAL, LANES>(tegroup_impl_quad_sum(sums));
        sums_of_all += sum[turn];
    }
    if (batch_of::part() == 0) /* after all turns: a branch in each would keep them from overlapping */
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
            at.softmax_of((REAL *)(memory + batch_of::place(turn) * way.token_bytes)) = {sum[turn], largest[turn]};
    return sums_of_all;
}

/* Writes the probabilities to the batch's rows in shared memory, and the maximum of each quad beside them. */
template <typename REAL, int LANES, int QUADS, int TURNS>
static __device__ __forceinline__ void tegroup_impl_router_probabilities(
    const tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> &batch, const tegroup_impl_router_way &way,
    const tegroup_impl_router_places &at, char *rows, char *memory, int32_t experts, const REAL *sum) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int32_t place = batch_of::place(turn);
        REAL *parents = (REAL *)(memory + place * way.token_bytes);
        quad *leaves = (quad *)(rows + place * way.row_bytes);
        const REAL scale = tegroup_impl_quotient((REAL)1, sum[turn]);
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = batch_of::quad_of(j);
            quad v = batch.v[turn][j];
#pragma unroll
            for (int i = 0; i < 4; i++) v.x[i] *= scale;
            const REAL most = tegroup_impl_quad_max(v);
            if (4 * q < experts) {
                leaves[q] = v;
                parents[q] = most;
            }
        }
    }
}

/* If a token's logits include NaN or infinity, or are all minus infinity, every probability is NaN, and the first k
 * experts are to be chosen. For that all its probabilities in shared memory become 0. (Minus infinity beside finite
 * logits is a probability of 0.) */
template <typename REAL, int LANES>
static __device__ __forceinline__ void tegroup_impl_router_choose_first(const tegroup_impl_router_way &way,
                                                                        const tegroup_impl_router_places &at,
                                                                        char *rows, char *memory, int32_t tokens,
                                                                        int32_t experts) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
#pragma unroll 1
    for (int32_t place = lane / LANES; place < tokens; place += 32 / LANES) {
        const REAL sum = at.softmax_of((REAL *)(memory + place * way.token_bytes)).divisor;
        if (sum == sum) continue;
#pragma unroll 1
        for (int32_t q = lane % LANES; 4 * q < experts; q += LANES) {
#pragma unroll 1
            for (int32_t e = 4 * q; e < experts && e < 4 * q + 4; e++) ((REAL *)(rows + place * way.row_bytes))[e] = 0;
            ((REAL *)(memory + place * way.token_bytes))[q] = 0;
        }
    }
}

/* One of the SHARE lanes that choose for a token. It has NODES fours of the token's quads: `root` is the maximum of
 * each four, `parents` the maximum of each quad, `leaves` the probabilities. What was chosen is -1. */
template <typename REAL, int SHARE, int NODES> struct tegroup_impl_router_chooser {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_choice<REAL> choice;
    int32_t experts, fellow, begin;
    uint32_t before; /* the token's lanes in front of this one */
    REAL *tree, *parents, *leaves;
    REAL all, edge;         /* sum of exponentials; see tegroup_impl_router_edge */
    REAL chosen, last, gap; /* sum of choices; the last choice; the least step between two */
    REAL root[NODES];

    __device__ __forceinline__ tegroup_impl_router_chooser(const tegroup_impl_router_way &way,
                                                           const tegroup_impl_router_places &at, char *rows,
                                                           char *memory, int32_t experts_, bool halves)
        : experts(experts_) {
        const int32_t lane = (int32_t)threadIdx.x % 32;
        fellow = lane % SHARE;
        begin = 4 * (4 * NODES) * fellow;
        before = (1u << lane) - (1u << (lane - fellow));
        tree = (REAL *)(memory + lane / SHARE * way.token_bytes);
        parents = tree + begin / 4;
        leaves = (REAL *)(rows + lane / SHARE * way.row_bytes) + begin;
        const tegroup_impl_router_softmax<REAL> softmax = at.softmax_of(tree);
        all = softmax.divisor;
        edge = tegroup_impl_router_edge(all, softmax.largest, halves);
        chosen = all != all ? all : (REAL)0;
        last = gap = 2;
#pragma unroll
        for (int i = 0; i < NODES; i++)
            root[i] = 16 * (fellow * NODES + i) < experts ? tegroup_impl_quad_max(tegroup_impl_quad_at(parents + 4 * i))
                                                          : (REAL)-1;
    }
    __device__ __forceinline__ REAL best_of_mine() const {
        REAL mine = root[0];
#pragma unroll
        for (int i = 1; i < NODES; i++) mine = tegroup_impl_larger(mine, root[i]);
        return mine;
    }
    /* Makes a choice. Every lane finds its own best, and what would remain without it, before the token's lanes know
     * whose is taken: these steps depend on one another, while lanes are free. Of equals the first is taken, also
     * between lanes. */
    __device__ __forceinline__ void choose(choice *to) {
        const REAL mine = best_of_mine();
        const REAL best = tegroup_impl_lanes_max<REAL, SHARE>(mine);
        const bool taken = !(__ballot_sync(0xffffffffu, mine == best) & before) && mine == best;
        int32_t here = NODES - 1, q = 0, e = 0;
        REAL second = -1, next = -1;
        if (begin < experts) {
#pragma unroll
            for (int i = NODES - 2; i >= 0; i--)
                if (root[i] == mine) here = i;
            const quad above = tegroup_impl_quad_at(parents + 4 * here);
            q = 4 * here + tegroup_impl_quad_find(above, mine);
            const quad leaf = tegroup_impl_quad_at(leaves + 4 * q);
            e = 4 * q + tegroup_impl_quad_find(leaf, mine);
            second = tegroup_impl_quad_second(leaf);
            next = tegroup_impl_larger(tegroup_impl_quad_second(above), second);
        }
        chosen += best;
        gap = tegroup_impl_smaller(gap, last - best);
        last = best;
        if (taken) {
            *to = {best, begin + e};
            leaves[e] = -1;
            parents[q] = second;
        }
#pragma unroll
        for (int i = 0; i < NODES; i++) root[i] = taken && i == here ? next : root[i];
    }
    /* Notes the best that is left behind the last choice. Returns whether the choice may be wrong among equals. */
    __device__ __forceinline__ bool finish(choice *end) {
        const REAL rest = tegroup_impl_lanes_max<REAL, SHARE>(best_of_mine());
        if (fellow == 0) end->probability = rest;
        return tegroup_impl_smaller(gap, last - rest) == 0 && last * all < edge;
    }
};

/* The lanes choose for the batch's tokens. halves: see tegroup_impl_router_edge. */
template <typename REAL, int TOKENS, int QUADS>
static __device__ __forceinline__ void tegroup_impl_router_choose(const tegroup_router_desc &desc,
                                                                  const tegroup_impl_router_way &way,
                                                                  const tegroup_impl_router_places &at, char *rows,
                                                                  char *memory, int64_t first, int32_t live,
                                                                  bool halves) {
    enum { share = 32 / TOKENS };
    const int32_t lane = (int32_t)threadIdx.x % 32;
    tegroup_impl_router_chooser<REAL, share, QUADS / 4> my(way, at, rows, memory, desc.experts, halves);
    tegroup_impl_router_choice<REAL> *to = at.choices_of(my.tree), *const end = to + desc.k;
#pragma unroll 1
    for (; to != end; to++) my.choose(to);
    const bool doubt = my.finish(end) && my.fellow == 0 && lane / share < live;
    for (uint32_t left = __ballot_sync(0xffffffffu, doubt); left != 0; left &= left - 1) {
        const int32_t place = (__ffs((int)left) - 1) / share;
        tegroup_impl_router_untie(desc, first + place, (REAL *)(rows + place * way.row_bytes),
                                  at.choices_of((REAL *)(memory + place * way.token_bytes)));
    }
    __syncwarp(); /* all lanes have read `all` from there */
    if (my.fellow == 0) at.softmax_of(my.tree).divisor = desc.normalize || my.all != my.all ? my.chosen : (REAL)1;
}

/* Writes the batch's weights and indices, and counts them, as far as they are wanted. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_write(const tegroup_router_desc &desc,
                                                                 const tegroup_impl_router_way &way,
                                                                 const tegroup_impl_router_places &at, char *memory,
                                                                 uint32_t *histogram, int64_t first, int32_t live) {
    REAL *weights = tegroup_impl_router_fixed((REAL *)desc.weights.data + first * desc.weights.ld);
    char *indices = tegroup_impl_router_fixed(
        (char *)desc.indices.data + first * desc.indices.ld * (desc.indices.dtype == TEGROUP_DTYPE_I64 ? 8 : 4));
    const bool weighted = desc.weights.dtype != TEGROUP_DTYPE_UNSET;
    for (tegroup_impl_router_slots<1> slot(way); (int32_t)slot.place < live; slot.advance(way)) {
        REAL *token = (REAL *)(memory + slot.place * way.token_bytes);
        const tegroup_impl_router_choice<REAL> chosen = at.choices_of(token)[slot.choice];
        const int32_t e = chosen.expert;
        if (way.histogram) atomicAdd(&histogram[e], 1u);
        else tegroup_impl_add_count(desc.counts, e, 1);
        if (weighted)
            weights[slot.place * desc.weights.ld + slot.choice] =
                tegroup_impl_quotient(chosen.probability, at.softmax_of(token).divisor);
        tegroup_impl_store_int(desc.indices.dtype, indices, slot.place * desc.indices.ld + slot.choice, e);
    }
}

template <typename REAL, int LANES, int QUADS, int TURNS>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_ROUTER_WARPS,
                                         sizeof(REAL) == 8 || TURNS * QUADS > 16 ? 1 : 3)
    tegroup_impl_router_kernel(const __grid_constant__ tegroup_router_desc desc,
                               const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    enum { tokens = batch_of::tokens, quads = LANES * QUADS * tokens / 32 }; /* quads of a lane in choosing */
    const int32_t experts = desc.experts, room = (experts + 3) / 4 * 4, lane = (int32_t)threadIdx.x % 32,
                  warp = (int32_t)threadIdx.x / 32;
    const tegroup_impl_router_places at(room);
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    char *rows = tegroup_impl_router_memory() + way.block_bytes + warp * tokens * (way.row_bytes + way.token_bytes),
         *memory = rows + tokens * way.row_bytes;
    batch_of batch(way);

    batch.load(desc.logits, way.in);
    if (lane < tokens) /* what only fills up a quad is never chosen */
        for (int32_t q = room / 4; q % 4 != 0; q++) ((REAL *)(memory + lane * way.token_bytes))[q] = -1;
    if (way.histogram) {
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x) histogram[e] = 0;
        __syncthreads();
    }
    while (batch.live > 0) {
        const int64_t first = batch.first;
        const int32_t live = batch.live;
        REAL sum[TURNS];
        if (way.in == TEGROUP_IMPL_ROUTER_HALVES) {
            if (desc.logits.dtype == TEGROUP_DTYPE_BF16) batch.widen(true);
            else batch.widen(false);
        }
        batch.settle(desc.logits, way, rows, -(REAL)INFINITY);
        const bool halves = batch.halves(desc.logits.dtype);
        const REAL sums_of_all = tegroup_impl_router_exponentials(batch, way, at, memory, experts, sum);
        tegroup_impl_router_probabilities(batch, way, at, rows, memory, experts, sum);
        if (desc.probabilities.dtype != TEGROUP_DTYPE_UNSET)
            tegroup_impl_router_store(desc.probabilities, way, rows, way.row_bytes, first, live);
        tegroup_impl_router_store_done();
        batch.advance(way);
        batch.load(desc.logits, way.in); /* in flight while the lanes choose */
        if (lane < tokens)
            for (int32_t e = experts; e % 4 != 0; e++) ((REAL *)(rows + lane * way.row_bytes))[e] = -1;
        if (sums_of_all != sums_of_all)
            tegroup_impl_router_choose_first<REAL, LANES>(way, at, rows, memory, tokens, experts);
        __syncwarp();
        tegroup_impl_router_choose<REAL, tokens, quads>(desc, way, at, rows, memory, first, live, halves);
        __syncwarp();
        tegroup_impl_router_write<REAL>(desc, way, at, memory, histogram, first, live);
        __syncwarp();
    }
    if (way.histogram) {
        __syncthreads();
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x)
            if (gridDim.x == 1) tegroup_impl_store_int(desc.counts.dtype, desc.counts.data, e, histogram[e]);
            else if (histogram[e] != 0) tegroup_impl_add_count(desc.counts, e, histogram[e]);
    }
}

/* The sum of every eighth row of a column, from row `first` on. Many loads are in flight at a time. */
template <typename REAL>
static __device__ __forceinline__ double tegroup_impl_router_column(const tegroup_matrix &m, int64_t first,
                                                                    int64_t last, int32_t col) {
    const REAL *from = (const REAL *)m.data + col;
    double sum = 0;
#pragma unroll 16
    for (int64_t row = first; row < last; row += 8) sum += (double)from[row * m.ld];
    return sum;
}

/* Sums of 32 experts' probabilities over one run of tokens. blockIdx.x: the experts; blockIdx.y: the run. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_router_sums_kernel(const __grid_constant__ tegroup_router_desc desc) {
    __shared__ double part[8][32];
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32,
                  e = (int32_t)blockIdx.x * 32 + lane;
    const int64_t tokens = desc.probabilities.rows, each = tegroup_impl_ceil_div(tokens, TEGROUP_IMPL_ROUTER_RUNS),
                  first = (int64_t)blockIdx.y * each, last = tegroup_impl_min(tokens, first + each);
    double sum = 0;
    if (e < desc.experts)
        sum = desc.probabilities.dtype == TEGROUP_DTYPE_F32
                  ? tegroup_impl_router_column<float>(desc.probabilities, first + warp, last, e)
                  : tegroup_impl_router_column<double>(desc.probabilities, first + warp, last, e);
    part[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || e >= desc.experts) return;
    sum = 0;
    for (int32_t w = 0; w < 8; w++) sum += part[w][lane];
    ((double *)desc.workspace)[(int64_t)blockIdx.y * desc.experts + e] = sum;
}

static __global__ void __launch_bounds__(1024)
    tegroup_impl_router_loss_kernel(const __grid_constant__ tegroup_router_desc desc) {
    __shared__ double part[1024];
    const int32_t thread = (int32_t)threadIdx.x;
    const double tokens = (double)desc.probabilities.rows, *sums = (const double *)desc.workspace;
    double loss = 0;
    for (int32_t e = thread; e < desc.experts && tokens > 0; e += 1024) {
        double mean = 0;
#pragma unroll 16
        for (int32_t run = 0; run < TEGROUP_IMPL_ROUTER_RUNS; run++) mean += sums[(int64_t)run * desc.experts + e];
        loss +=
            (double)tegroup_impl_load_int(desc.counts.dtype, desc.counts.data, e) / (tokens * desc.k) * (mean / tokens);
    }
    part[thread] = loss;
    for (int32_t step = 512; step > 0; step /= 2) {
        __syncthreads();
        if (thread < step) part[thread] += part[thread + step];
    }
    if (thread == 0) *desc.balance_loss = desc.balance_coefficient * desc.experts * part[0];
}
