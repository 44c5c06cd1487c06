/* ---- Router kernels: the gradient ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "moe/routing_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "cpu/vectors.h"
#include "moe/router.h"
#include "moe/router_batch_cuda.h"

/* What the balance loss adds to the gradient of a quad of probabilities, the same in every row. */
template <typename REAL>
static __device__ __noinline__ tegroup_impl_quad<REAL> tegroup_impl_router_balance(
    const tegroup_router_backward_desc &desc, const tegroup_impl_router_way &way, int32_t q) {
    tegroup_impl_quad<REAL> v;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v.x[i] = desc.balance_coefficient != 0 && 4 * q + i < desc.experts
                     ? (REAL)way.per_count * (REAL)tegroup_impl_load_int(desc.counts.dtype, desc.counts.data, 4 * q + i)
                     : (REAL)0;
    return v;
}

/* An index as 32 bits: -1 if it is no expert's. */
static __device__ __forceinline__ int32_t tegroup_impl_expert(const tegroup_matrix &indices, int64_t token,
                                                              int64_t choice, int32_t experts) {
    const int64_t index = tegroup_impl_load_int(indices.dtype, indices.data, token * indices.ld + choice);
    return tegroup_impl_within(index, experts) ? (int32_t)index : -1;
}

/* Starts copying a batch's choices and the gradients of their weights, those of each token into its memory from `to`
 * on. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_choices(const tegroup_router_backward_desc &desc,
                                                                   const tegroup_impl_router_way &way, char *to,
                                                                   int64_t first, int32_t live) {
    const REAL *grad_weights =
        tegroup_impl_router_fixed((const REAL *)desc.grad_weights.data + first * desc.grad_weights.ld);
    const int32_t *indices = tegroup_impl_router_fixed((const int32_t *)desc.indices.data + first * desc.indices.ld);
    const bool wide = desc.indices.dtype == TEGROUP_DTYPE_I64;
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
        int32_t *to_index = (int32_t *)(grads + desc.k) + slot.choice;
        if (wide) *to_index = tegroup_impl_expert(desc.indices, first + slot.place, slot.choice, desc.experts);
        else tegroup_impl_copy_soon(to_index, indices + (slot.place * desc.indices.ld + slot.choice));
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

/* Sums over what the lane's token chose: `chosen` of the probabilities, `dot` of the weights' gradients times these. If
 * weights were divided by the sum of all choices, those that were dropped after routing are recalled first. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_weigh(const tegroup_router_backward_desc &desc, bool live,
                                                                 const REAL *probabilities, int32_t *indices,
                                                                 REAL *grads, REAL &chosen, REAL &dot) {
    const int32_t experts = desc.experts, k = desc.k;
    while (live) {
        int32_t kept = 0;
        chosen = dot = 0;
#pragma unroll 8
        for (int32_t j = 0; j < k; j++) {
            const int32_t e = indices[j];
            const bool there = tegroup_impl_within(e, experts);
            const REAL p = there ? probabilities[e] : (REAL)0;
            kept += there;
            chosen += p;
            dot += there ? grads[j] * p : (REAL)0;
        }
        if (!desc.normalize || kept == 0 || kept == k) break; /* dropped choices do not count */
        tegroup_impl_router_recall(probabilities, experts, k, indices, grads);
    }
}

/* Turns a batch's probabilities into the gradients of its logits. gradients: rows of the probabilities' gradients. */
template <typename REAL, int LANES, int QUADS, int TURNS>
static __device__ __forceinline__ void tegroup_impl_router_through_softmax(
    tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> &batch, const char *gradients, int32_t pitch,
    int32_t experts) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    REAL mean[TURNS]; /* for all tokens first, as these sums wait for other lanes */
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const quad *row = (const quad *)(gradients + batch_of::place(turn) * pitch);
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
        const quad *row = (const quad *)(gradients + batch_of::place(turn) * pitch);
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = batch_of::quad_of(j);
            quad grad = {{0, 0, 0, 0}};
            if (4 * q < experts) grad = row[q];
#pragma unroll
            for (int i = 0; i < 4; i++) batch.v[turn][j].x[i] *= grad.x[i] - mean[turn];
        }
    }
}

/* Each lane of a warp makes, in shared memory, the gradients by expert of one token of the batch, on top of what the
 * balance loss adds. Then LANES lanes a token take them through the softmax. */
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
    /* of the batch: gradients by expert; probabilities; for each token its choices and the gradients of their
     * weights */
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
        tegroup_impl_router_weigh(desc, lane < live, from, indices, grads, chosen, dot);
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
        tegroup_impl_router_through_softmax(batch, rows, gradient_bytes, experts);
        __syncwarp(); /* every row has been read; results overwrite them */
        batch.put(desc.grad_logits, rows, out_bytes);
        tegroup_impl_router_store(desc.grad_logits, way, rows, out_bytes, first, live);
    }
    tegroup_impl_router_store_done();
}
