/* ---- Router kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "moe/routing_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/checks.h"
#include "moe/router.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "moe/router_batch_cuda.h"

/* Could logits differ where probabilities are equal? last: the smallest probability chosen; sum: what exp(logit - largest)
 * was divided by. halves: every logit of the batch has the 11 bits of a half, or fewer. Then those of 1/16 and more lie at
 * least 2^-14 apart, and equal probabilities come of equal logits, unless they are next to nothing. */
template <typename REAL>
static __device__ __forceinline__ bool tegroup_impl_router_doubt(REAL last, REAL sum, REAL largest, bool halves) {
    const REAL small = (REAL)0.125; /* twice as much, so that rounding does not matter here */
    return !halves || last < (REAL)0x1p-100
           || (largest > -small && last * sum < tegroup_impl_softmax_exp(small - largest));
}

/* A warp puts a token's choice among equal probabilities right: the larger logits first, and of equal logits the lower
 * experts. So far these have been first at any logit, and the leaves that are chosen are -1. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_untie(const tegroup_router_desc &desc, int64_t token,
                                                                 REAL *leaves, const REAL *values, int32_t *indices) {
    const char *logits = tegroup_impl_matrix_row(&desc.logits, token);
    const int32_t lane = (int32_t)threadIdx.x % 32;
    __syncwarp();
    for (int32_t j = lane; j < desc.k; j += 32) leaves[indices[j]] = values[j];
    __syncwarp();
    for (int32_t j = 0; j < desc.k; j++) {
        const REAL value = values[j];
        double most = -(double)INFINITY, least = (double)INFINITY;
        int32_t best = INT32_MAX;
        for (int32_t e = lane; e < desc.experts; e += 32) {
            if (leaves[e] != value) continue;
            const double x = tegroup_impl_load_f64(desc.logits.dtype, logits, e);
            if (x > most || best == INT32_MAX) most = x, best = e;
            least = tegroup_impl_smaller(least, x);
        }
        for (int step = 16; step > 0; step /= 2) {
            const double other = __shfl_xor_sync(0xffffffffu, most, step);
            const int32_t its = __shfl_xor_sync(0xffffffffu, best, step);
            if (other > most || (other == most && its < best)) most = other, best = its;
            least = tegroup_impl_smaller(least, __shfl_xor_sync(0xffffffffu, least, step));
        }
        if (most == least && (j == 0 || values[j - 1] != value)) { /* all logits are equal, and the choice is right */
            while (j + 1 < desc.k && values[j + 1] == value) j++;
            continue;
        }
        __syncwarp(); /* all lanes have read what one writes */
        if (lane == 0) {
            indices[j] = best;
            leaves[best] = -1;
        }
        __syncwarp();
    }
}

template <typename REAL, int LANES, int QUADS, int TURNS>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_ROUTER_WARPS,
                                         sizeof(REAL) == 8 || TURNS * QUADS > 16 ? 1 : 3)
    tegroup_impl_router_kernel(const __grid_constant__ tegroup_router_desc desc,
                               const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    /* lanes that choose for a token, quads of each, and how many fours of these */
    enum { tokens = batch_of::tokens, share = 32 / tokens, quads = LANES * QUADS / share, nodes = quads / 4 };
    const int32_t experts = desc.experts, k = desc.k, room = (experts + 3) / 4 * 4, lane = (int32_t)threadIdx.x % 32,
                  part = lane % LANES, warp = (int32_t)threadIdx.x / 32;
    /* of a token besides its probabilities: the largest of each quad, what its weights are divided by, its largest
     * logit, the probabilities that it chose and their experts */
    const int32_t divisor_at = (room / 4 + 3) / 4 * 4, largest_at = divisor_at + 1, value_at = divisor_at + 2,
                  index_at = (value_at + k) * (int32_t)(sizeof(REAL) / 4);
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    char *rows = tegroup_impl_router_memory() + way.block_bytes + warp * tokens * (way.row_bytes + way.token_bytes),
         *memory = rows + tokens * way.row_bytes;
    batch_of batch(way);

    batch.load(desc.logits, way.in);
    if (lane < tokens) /* what only fills a quad is never chosen */
        for (int32_t q = room / 4; q % 4 != 0; q++) ((REAL *)(memory + lane * way.token_bytes))[q] = -1;
    if (way.histogram) {
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x) histogram[e] = 0;
        __syncthreads();
    }
    while (batch.live > 0) {
        const int64_t first = batch.first;
        const int32_t live = batch.live;
        REAL sum[TURNS], sums_of_all = 0;
        /* of all logits: those of widened halves leave the last 13 unset; what F64 has beyond them is rounded away */
        uint32_t bits = desc.logits.dtype == TEGROUP_DTYPE_F64;
        if (way.in == TEGROUP_IMPL_ROUTER_HALVES) {
            if (desc.logits.dtype == TEGROUP_DTYPE_BF16) batch.widen(true);
            else batch.widen(false);
        }
        batch.settle(desc.logits, way, rows, -(REAL)INFINITY);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            quad most = batch.v[turn][0], sums = {{0, 0, 0, 0}};
            bits |= tegroup_impl_quad_bits(most);
#pragma unroll
            for (int j = 1; j < QUADS; j++) {
                bits |= tegroup_impl_quad_bits(batch.v[turn][j]);
#pragma unroll
                for (int i = 0; i < 4; i++) most.x[i] = tegroup_impl_larger(most.x[i], batch.v[turn][j].x[i]);
            }
            const REAL largest = tegroup_impl_lanes_max<REAL, LANES>(tegroup_impl_quad_max(most));
            if (part == 0) ((REAL *)(memory + batch_of::place(turn) * way.token_bytes))[largest_at] = largest;
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                /* what stands in for a quad that the row lacks counts nothing */
                const REAL shift = 4 * batch_of::quad_of(j) < experts ? largest : (REAL)INFINITY;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    batch.v[turn][j].x[i] = tegroup_impl_softmax_exp(batch.v[turn][j].x[i] - shift);
                    sums.x[i] += batch.v[turn][j].x[i];
                }
            }
            sum[turn] = tegroup_impl_lanes_sum<REAL, LANES>(tegroup_impl_quad_sum(sums));
            sums_of_all += sum[turn];
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const int32_t place = batch_of::place(turn);
            REAL *parents = (REAL *)(memory + place * way.token_bytes);
            quad *leaves = (quad *)(rows + place * way.row_bytes);
            const REAL scale = tegroup_impl_quotient((REAL)1, sum[turn]);
            if (part == 0) parents[divisor_at] = sum[turn];
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
        tegroup_impl_router_store(desc.probabilities, way, rows, way.row_bytes, first, live);
        tegroup_impl_router_store_done();
        batch.advance(way);
        batch.load(desc.logits, way.in); /* on its way while the lanes choose */
        if (lane < tokens)
            for (int32_t e = experts; e % 4 != 0; e++) ((REAL *)(rows + lane * way.row_bytes))[e] = -1;
        /* NaN or infinity among the logits, or minus infinity alone, makes every probability NaN, and the first k experts are then
         * chosen. (Minus infinity beside finite ones is a probability of 0.) */
        if (sums_of_all != sums_of_all) {
#pragma unroll 1
            for (int32_t place = lane / LANES; place < tokens; place += 32 / LANES) {
                const REAL sum = ((REAL *)(memory + place * way.token_bytes))[divisor_at];
                if (sum == sum) continue;
                for (int32_t q = part; 4 * q < experts; q += LANES) {
                    for (int32_t e = 4 * q; e < experts && e < 4 * q + 4; e++)
                        ((REAL *)(rows + place * way.row_bytes))[e] = 0;
                    ((REAL *)(memory + place * way.token_bytes))[q] = 0;
                }
            }
        }
        __syncwarp();
        {
            const int32_t fellow = lane % share, begin = 4 * quads * fellow;
            const uint32_t before =
                (1u << lane) - (1u << (lane - fellow)); /* the lanes of the token ahead of this one */
            REAL *tree = (REAL *)(memory + lane / share * way.token_bytes), *parents = tree + begin / 4,
                 *leaves = (REAL *)(rows + lane / share * way.row_bytes) + begin;
            const REAL all = tree[divisor_at];
            REAL chosen = all != all ? all : (REAL)0, last = 2, gap = 2; /* the smallest from one choice to the next */
            REAL root[nodes];
#pragma unroll
            for (int i = 0; i < nodes; i++)
                root[i] = 16 * (fellow * nodes + i) < experts
                              ? tegroup_impl_quad_max(tegroup_impl_quad_at(parents + 4 * i))
                              : (REAL)-1;
#pragma unroll 1
            for (int32_t j = 0; j < k; j++) {
                /* Every lane finds its own best and what it would leave, before the lanes of the token know whose is taken:
                 * these steps wait for one another, lanes cost nothing. Of equals the first is taken, lane by lane, too. */
                REAL mine = root[0];
#pragma unroll
                for (int i = 1; i < nodes; i++) mine = tegroup_impl_larger(mine, root[i]);
                const REAL best = tegroup_impl_lanes_max<REAL, share>(mine);
                const bool taken = !(__ballot_sync(0xffffffffu, mine == best) & before) && mine == best;
                int32_t here = nodes - 1, q = 0, e = 0;
                REAL second = -1, next = -1;
                if (begin < experts) {
#pragma unroll
                    for (int i = nodes - 2; i >= 0; i--)
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
                    tree[value_at + j] = best;
                    ((int32_t *)tree)[index_at + j] = begin + e;
                    leaves[e] = -1;
                    parents[q] = second;
                }
#pragma unroll
                for (int i = 0; i < nodes; i++) root[i] = taken && i == here ? next : root[i];
            }
            REAL mine = root[0];
#pragma unroll
            for (int i = 1; i < nodes; i++) mine = tegroup_impl_larger(mine, root[i]);
            /* to the best that is left */
            gap = tegroup_impl_smaller(gap, last - tegroup_impl_lanes_max<REAL, share>(mine));
            if (__any_sync(0xffffffffu, gap == 0)) {
                const bool halves = !__any_sync(0xffffffffu, bits & 0x1fff),
                           doubt = gap == 0 && fellow == 0 && lane / share < live && all == all
                                   && tegroup_impl_router_doubt(last, all, tree[largest_at], halves);
                for (uint32_t left = __ballot_sync(0xffffffffu, doubt); left != 0; left &= left - 1) {
                    const int32_t place = (__ffs((int)left) - 1) / share;
                    REAL *token = (REAL *)(memory + place * way.token_bytes);
                    tegroup_impl_router_untie(desc, first + place, (REAL *)(rows + place * way.row_bytes),
                                              token + value_at, (int32_t *)token + index_at);
                }
            }
            __syncwarp(); /* all lanes have read `all` there */
            if (fellow == 0) tree[divisor_at] = desc.normalize || all != all ? chosen : (REAL)1;
        }
        __syncwarp();
        REAL *weights = tegroup_impl_router_fixed((REAL *)desc.weights.data + first * desc.weights.ld);
        int32_t *indices = tegroup_impl_router_fixed((int32_t *)desc.indices.data + first * desc.indices.ld);
        for (tegroup_impl_router_slots<1> slot(way); (int32_t)slot.place < live; slot.advance(way)) {
            const REAL *tree = (const REAL *)(memory + slot.place * way.token_bytes);
            const int32_t e = ((const int32_t *)tree)[index_at + slot.choice];
            if (way.histogram) atomicAdd(&histogram[e], 1u);
            else atomicAdd((unsigned long long *)desc.counts.data + e, 1ull);
            weights[slot.place * desc.weights.ld + slot.choice] =
                tegroup_impl_quotient(tree[value_at + slot.choice], tree[divisor_at]);
            indices[slot.place * desc.indices.ld + slot.choice] = e;
        }
        __syncwarp();
    }
    if (way.histogram) {
        __syncthreads();
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x)
            if (histogram[e] != 0)
                atomicAdd((unsigned long long *)desc.counts.data + e, (unsigned long long)histogram[e]);
    }
}

/* The sum of a column from row `first` on, every eighth row; many loads are under way at a time. */
template <typename REAL>
static __device__ __forceinline__ double tegroup_impl_router_column(const tegroup_matrix &m, int64_t first,
                                                                    int64_t last, int32_t col) {
    const REAL *from = (const REAL *)m.data + col;
    double sum = 0;
#pragma unroll 16
    for (int64_t row = first; row < last; row += 8) sum += (double)from[row * m.ld];
    return sum;
}

/* Sums of 32 experts' probabilities over one run of tokens: blockIdx.x the experts, blockIdx.y the run. */
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
        loss += (double)((const int64_t *)desc.counts.data)[e] / (tokens * desc.k) * (mean / tokens);
    }
    part[thread] = loss;
    for (int32_t step = 512; step > 0; step /= 2) {
        __syncthreads();
        if (thread < step) part[thread] += part[thread + step];
    }
    if (thread == 0) *desc.balance_loss = desc.balance_coefficient * desc.experts * part[0];
}

/* What the balance of the experts adds to the gradient of a quad of probabilities, in any row. */
template <typename REAL>
static __device__ __noinline__ tegroup_impl_quad<REAL> tegroup_impl_router_balance(
    const tegroup_router_backward_desc &desc, const tegroup_impl_router_way &way, int32_t q) {
    tegroup_impl_quad<REAL> v;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v.x[i] = desc.balance_coefficient != 0 && 4 * q + i < desc.experts
                     ? (REAL)way.per_count * (REAL)((const int64_t *)desc.counts.data)[4 * q + i]
                     : (REAL)0;
    return v;
}

/* Set going the copies of a batch's choices and of the gradients of their weights, each token's to its memory from `to`. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_choices(const tegroup_router_backward_desc &desc,
                                                                   const tegroup_impl_router_way &way, char *to,
                                                                   int64_t first, int32_t live) {
    const REAL *grad_weights =
        tegroup_impl_router_fixed((const REAL *)desc.grad_weights.data + first * desc.grad_weights.ld);
    const int32_t *indices = tegroup_impl_router_fixed((const int32_t *)desc.indices.data + first * desc.indices.ld);
    if (sizeof(REAL) == 4 && way.by_fours) {
        for (tegroup_impl_router_slots<4> slot(way); (int32_t)slot.place < live; slot.advance(way)) {
            REAL *grads = (REAL *)(to + slot.place * way.token_bytes);
            tegroup_impl_copy_soon((uint4 *)(grads + slot.choice),
                                   (const uint4 *)(grad_weights + (slot.place * desc.grad_weights.ld + slot.choice)));
            tegroup_impl_copy_soon((uint4 *)((int32_t *)(grads + desc.k) + slot.choice),
                                   (const uint4 *)(indices + (slot.place * desc.indices.ld + slot.choice)));
        }
        return;
    }
    for (tegroup_impl_router_slots<1> slot(way); (int32_t)slot.place < live; slot.advance(way)) {
        REAL *grads = (REAL *)(to + slot.place * way.token_bytes);
        tegroup_impl_copy_soon(grads + slot.choice, grad_weights + (slot.place * desc.grad_weights.ld + slot.choice));
        tegroup_impl_copy_soon((int32_t *)(grads + desc.k) + slot.choice,
                               indices + (slot.place * desc.indices.ld + slot.choice));
    }
}

static __device__ __forceinline__ void tegroup_impl_router_recall(const float *probabilities, int32_t experts,
                                                                  int32_t k, int32_t *indices, float *grad_weights) {
    tegroup_impl_router_recall_f32(probabilities, experts, k, indices, grad_weights);
}
static __device__ __forceinline__ void tegroup_impl_router_recall(const double *probabilities, int32_t experts,
                                                                  int32_t k, int32_t *indices, double *grad_weights) {
    tegroup_impl_router_recall_f64(probabilities, experts, k, indices, grad_weights);
}

/* Each lane of a warp puts together the gradient by expert of one token of the batch, in shared memory, on top of what the
 * balance of the experts gives; LANES lanes a token take it through the softmax. */
template <typename REAL, int LANES, int QUADS, int TURNS>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_ROUTER_WARPS,
                                         sizeof(REAL) == 8 || TURNS * QUADS > 16 ? 1 : 3)
    tegroup_impl_router_grad_kernel(const __grid_constant__ tegroup_router_backward_desc desc,
                                    const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    enum { tokens = batch_of::tokens };
    const int32_t experts = desc.experts, k = desc.k, room = (experts + 3) / 4 * 4, lane = (int32_t)threadIdx.x % 32,
                  warp = (int32_t)threadIdx.x / 32, out_bytes = room * (tegroup_impl_bits(desc.grad_logits.dtype) / 8),
                  in_bytes = room * (int32_t)sizeof(REAL), gradient_bytes = way.row_bytes - in_bytes;
    quad *balances = (quad *)(void *)tegroup_impl_router_memory();
    /* of the batch: gradients by expert, probabilities, and of each token its choices and the gradients of their weights */
    char *rows = tegroup_impl_router_memory() + way.block_bytes + warp * tokens * (way.row_bytes + way.token_bytes),
         *probabilities = rows + tokens * way.row_bytes - tokens * in_bytes, *memory = rows + tokens * way.row_bytes;
    __shared__ uint64_t barriers[TEGROUP_IMPL_ROUTER_WARPS];
    uint64_t *barrier = barriers + warp;
    uint32_t parity = 0;
    batch_of batch(way);

#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                     "fence.proxy.async.shared::cta;" ::"r"((uint32_t)__cvta_generic_to_shared(barrier))
                     : "memory");
    __syncwarp();
#endif
    tegroup_impl_router_fetch(desc.probabilities, way, probabilities, in_bytes, barrier, batch.first, batch.live);
    tegroup_impl_router_choices<REAL>(desc, way, memory, batch.first, batch.live);
    for (int32_t q = (int32_t)threadIdx.x; way.block_bytes != 0 && 4 * q < experts; q += (int32_t)blockDim.x)
        balances[q] = tegroup_impl_router_balance<REAL>(desc, way, q);
    __syncthreads();
    while (batch.live > 0) {
        const int64_t first = batch.first;
        const int32_t live = batch.live;
        /* of the lane's token */
        REAL *gradient = (REAL *)(rows + lane * gradient_bytes), chosen = 0, dot = 0;
        const REAL *from = (const REAL *)(probabilities + lane * in_bytes);
        REAL *grads = (REAL *)(memory + lane * way.token_bytes);
        int32_t *indices = (int32_t *)(grads + k);
        tegroup_impl_router_fetched(way, barrier, parity);
        parity ^= 1;
        batch.read(probabilities, in_bytes, experts);
        while (lane < live) {
            int32_t kept = 0;
            chosen = dot = 0;
#pragma unroll 8
            for (int32_t j = 0; j < k; j++) {
                const int32_t e = indices[j];
                const bool there = tegroup_impl_within(e, experts);
                const REAL p = there ? from[e] : (REAL)0;
                kept += there;
                chosen += p;
                dot += there ? grads[j] * p : (REAL)0;
            }
            if (!desc.normalize || kept == 0 || kept == k) break; /* those dropped do not count */
            tegroup_impl_router_recall(from, experts, k, indices, grads);
        }
        tegroup_impl_router_store_done();
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = batch_of::quad_of(j);
            if (4 * q >= experts) continue;
            const quad balance = way.block_bytes != 0 ? balances[q] : tegroup_impl_router_balance<REAL>(desc, way, q);
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
                ((quad *)(rows + batch_of::place(turn) * gradient_bytes))[q] = balance;
        }
        __syncwarp();
        if (lane < live)
            for (int32_t j = 0; j < k; j++) {
                const int32_t e = indices[j];
                if (tegroup_impl_within(e, experts))
                    gradient[e] += tegroup_impl_choice_grad(grads[j], dot, chosen, desc.normalize);
            }
        batch.advance(way);
        __syncwarp();
        tegroup_impl_router_fetch(desc.probabilities, way, probabilities, in_bytes, barrier, batch.first, batch.live);
        tegroup_impl_router_choices<REAL>(desc, way, memory, batch.first, batch.live);
        REAL mean[TURNS]; /* of all tokens first, as their sums wait for other lanes */
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const quad *row = (const quad *)(rows + batch_of::place(turn) * gradient_bytes);
            quad sums = {{0, 0, 0, 0}};
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                const int32_t q = batch_of::quad_of(j);
                quad grad = {{0, 0, 0, 0}};
                if (4 * q < experts) grad = row[q];
#pragma unroll
                for (int i = 0; i < 4; i++) sums.x[i] = fma(batch.v[turn][j].x[i], grad.x[i], sums.x[i]);
            }
            mean[turn] = tegroup_impl_lanes_sum<REAL, LANES>(tegroup_impl_quad_sum(sums));
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const quad *row = (const quad *)(rows + batch_of::place(turn) * gradient_bytes);
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                const int32_t q = batch_of::quad_of(j);
                quad grad = {{0, 0, 0, 0}};
                if (4 * q < experts) grad = row[q];
#pragma unroll
                for (int i = 0; i < 4; i++) batch.v[turn][j].x[i] *= grad.x[i] - mean[turn];
            }
        }
        __syncwarp(); /* every row is read: where they were, those of the result lie */
        batch.put(desc.grad_logits, rows, out_bytes);
        tegroup_impl_router_store(desc.grad_logits, way, rows, out_bytes, first, live);
    }
    tegroup_impl_router_store_done();
}

/* Bytes of the largest pieces that a matrix's rows can be taken apart in. */
static inline int32_t tegroup_impl_cuda_router_piece(const tegroup_matrix *m) {
    const int64_t bytes = tegroup_impl_bits(m->dtype) / 8;
    int32_t piece = 16;
    while (m->cols * bytes % piece != 0 || tegroup_impl_matrix_ld(m) * bytes % piece != 0
           || !tegroup_impl_aligned(m->data, (size_t)piece))
        piece /= 2;
    return piece;
}

/* How the rows of a matrix may be read. */
static inline tegroup_impl_router_access tegroup_impl_cuda_router_access(const tegroup_matrix *m, int is_f64) {
    const int64_t bytes = tegroup_impl_bits(m->dtype) / 8;
    if (m->dtype == TEGROUP_DTYPE_F64 || (is_f64 && m->dtype != TEGROUP_DTYPE_F32) || m->cols % 4 != 0
        || tegroup_impl_matrix_ld(m) % 4 != 0 || !tegroup_impl_aligned(m->data, (size_t)(4 * bytes)))
        return TEGROUP_IMPL_ROUTER_ELEMENTS;
    return m->dtype == TEGROUP_DTYPE_F32 ? TEGROUP_IMPL_ROUTER_FLOATS : TEGROUP_IMPL_ROUTER_HALVES;
}

/* One launch over batches of `tokens`, each with `bytes` of shared memory besides its row: three blocks a multiprocessor and no
 * more, as each adds its counts to the same few addresses; for few tokens smaller blocks, so that every multiprocessor has some. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_router_launch(void (*kernel)(const DESC, const tegroup_impl_router_way),
                                                             const DESC *desc, tegroup_impl_router_way *way,
                                                             const tegroup_matrix *out, int32_t tokens, int64_t bytes,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const int64_t rows = out->rows, batches = tegroup_impl_ceil_div(rows, tokens);
    int device = 0, multiprocessors = 0, shared = 0;
    int64_t warps, fit, warp_bytes, blocks, block_bytes;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "there must be a current device", error));
    way->out_piece = tegroup_impl_cuda_router_piece(out);
    way->out_whole = way->out_piece == 16 && out->ld == out->cols && out->cols % 4 == 0;
    way->token_bytes = (int32_t)(tegroup_impl_ceil_div(bytes, 16) | 1) * 16;
    warp_bytes = (int64_t)tokens * (way->row_bytes + way->token_bytes);
    fit = (shared / 3 - 1024 - way->block_bytes) / warp_bytes; /* 1024: what a block costs besides */
    if (fit < 1) fit = 1;
    warps = tegroup_impl_clamp(tegroup_impl_ceil_div(batches, 3 * multiprocessors), 1,
                               tegroup_impl_min(fit, TEGROUP_IMPL_ROUTER_WARPS));
    blocks = tegroup_impl_min(tegroup_impl_ceil_div(batches, warps), 3 * multiprocessors);
    block_bytes = way->block_bytes + warps * warp_bytes;
    way->batches = tegroup_impl_ceil_div(batches, blocks * warps) * blocks * warps;
    way->each = rows / way->batches;
    way->longer = rows % way->batches;
    way->k = (uint32_t)desc->k;
    way->per_k = 65535 / way->k + 1;
    /* the same of every call: other threads launch this kernel, too */
    code = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared - 1024);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "the device must have the shared memory", error));
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, (unsigned)blocks, 32u * (unsigned)warps, (size_t)block_bytes, stream, *desc, *way),
        "stream", "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_router(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    const int64_t real_bytes = is_f64 ? 8 : 4;
    const int64_t room = tegroup_impl_align(desc->experts, 4),
                  bytes = (tegroup_impl_align(room / 4, 4) + 2 + desc->k) * real_bytes + 4 * desc->k;
    tegroup_impl_router_way way;
    tegroup_router_desc d = *desc;
    cudaFuncAttributes image;
    /* asked before the counts are cleared: without kernels for this device nothing is enqueued */
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_status(cudaFuncGetAttributes(&image, (const void *)tegroup_impl_router_sums_kernel), "space",
                                 "this unit must hold code for the device", error));
    memset(&way, 0, sizeof way);
    way.in = tegroup_impl_cuda_router_access(&desc->logits, is_f64);
    way.histogram = desc->experts <= TEGROUP_IMPL_ROUTER_HISTOGRAM;
    way.row_bytes = (int32_t)(room * real_bytes);
    way.block_bytes = way.histogram ? (int32_t)tegroup_impl_align(4 * desc->experts, 16) : 0;
    d.logits = tegroup_impl_cuda_matrix(&desc->logits);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaMemsetAsync(desc->counts.data, 0, 8 * (size_t)desc->experts, stream),
                                              "stream", "the counts must be cleared", error));
#define TEGROUP_IMPL_LAUNCH(real, lanes, quads, turns)                                                                 \
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_router_launch(tegroup_impl_router_kernel<real, lanes, quads, turns>, &d, &way,  \
                                                     &d.probabilities, 32 / (lanes) * (turns), bytes, stream, error))
    if (desc->logits.rows > 0) {
        if (is_f64 && desc->experts <= 1024) TEGROUP_IMPL_LAUNCH(double, 32, 8, 1);
        else if (is_f64) TEGROUP_IMPL_LAUNCH(double, 32, 32, 1);
        else if (desc->experts <= 128) TEGROUP_IMPL_LAUNCH(float, 8, 4, 4);
        else if (desc->experts <= 256) TEGROUP_IMPL_LAUNCH(float, 16, 4, 4);
        else if (desc->experts <= 512) TEGROUP_IMPL_LAUNCH(float, 32, 4, 4);
        else TEGROUP_IMPL_LAUNCH(float, 32, 32, 1);
    }
#undef TEGROUP_IMPL_LAUNCH
    if (!desc->balance_loss) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_router_sums_kernel,
                            dim3((unsigned)(desc->experts + 31) / 32, TEGROUP_IMPL_ROUTER_RUNS), 256, 0, stream, d),
        "stream", "the kernel must launch", error));
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_router_loss_kernel, 1, 1024, 0, stream, d),
                                    "stream", "the kernel must launch", error);
}

#if !defined(TEGROUP_NO_BACKWARD)
static inline tegroup_status tegroup_impl_cuda_router_backward(const tegroup_router_backward_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    const int64_t real_bytes = is_f64 ? 8 : 4, room = tegroup_impl_align(desc->experts, 4),
                  bytes = desc->k * (real_bytes + 4);
    tegroup_impl_router_way way;
    tegroup_router_backward_desc d = *desc;
    if (desc->probabilities.rows == 0) return TEGROUP_OK;
    memset(&way, 0, sizeof way);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    d.grad_weights = tegroup_impl_cuda_matrix(&desc->grad_weights);
    d.grad_logits = tegroup_impl_cuda_matrix(&desc->grad_logits);
    way.in_piece = tegroup_impl_cuda_router_piece(&d.probabilities);
    way.in_whole = way.in_piece == 16 && d.probabilities.ld == d.probabilities.cols && desc->experts % 4 == 0;
    way.row_bytes = (int32_t)(room * (real_bytes + (desc->grad_logits.dtype == TEGROUP_DTYPE_F64 ? 8 : real_bytes)));
    way.by_fours =
        tegroup_impl_cuda_router_piece(&d.grad_weights) == 16 && tegroup_impl_cuda_router_piece(&d.indices) == 16;
    /* what does not fit twice is read again for every token */
    way.block_bytes = desc->experts <= 1024 ? (int32_t)(room * real_bytes) : 0;
    if (desc->balance_coefficient != 0) way.per_count = tegroup_impl_router_per_count(desc);
#define TEGROUP_IMPL_LAUNCH(real, lanes, quads, turns)                                                                 \
    return tegroup_impl_cuda_router_launch(tegroup_impl_router_grad_kernel<real, lanes, quads, turns>, &d, &way,       \
                                           &d.grad_logits, 32 / (lanes) * (turns), bytes, stream, error)
    if (is_f64 && desc->experts <= 1024) TEGROUP_IMPL_LAUNCH(double, 32, 8, 1);
    if (is_f64) TEGROUP_IMPL_LAUNCH(double, 32, 32, 1);
    if (desc->experts <= 128) TEGROUP_IMPL_LAUNCH(float, 8, 4, 4);
    if (desc->experts <= 256) TEGROUP_IMPL_LAUNCH(float, 16, 4, 4);
    if (desc->experts <= 512) TEGROUP_IMPL_LAUNCH(float, 32, 4, 4);
    TEGROUP_IMPL_LAUNCH(float, 32, 32, 1);
#undef TEGROUP_IMPL_LAUNCH
}
#endif /* TEGROUP_NO_BACKWARD */
