/* ---- Permutation kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "moe/routing_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/constructors.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/snapshot_checks.h"
#include "core/prepare_group.h"
#include "gemm/prepare.h"
#include "moe/permutation.h"
#include "cuda/launch.h"
#include "cuda/prepare.h"
#include "cuda/rows.h"
#include "moe/count_cuda.h"

#include <cooperative_groups.h>

/* Slots are cut into runs, one a warp. The first step counts each run's slots by expert. The second turns the counts
 * into the number of the expert's slots in earlier runs. The third ranks the slots of a run in order. Steps are kernels
 * of their own, or one kernel's, which makes the snapshot, too, between the second and the third. */
typedef struct tegroup_impl_permutation_call {
    tegroup_permutation_desc desc;
    tegroup_snapshot_view view;
    int64_t *before; /* [runs][groups] */
    int64_t *counts; /* [groups]: slots of each expert */
    int64_t slots, run, runs;
    tegroup_impl_preparation preparation; /* how the snapshot is made of counts, if it is */
    int32_t snapshot_bytes;
} tegroup_impl_permutation_call;

enum {
    TEGROUP_IMPL_PERMUTATION_THREADS = 256,
    /* Experts up to which the kernel that ranks makes the snapshot, too: shared memory has room for their numbers. */
    TEGROUP_IMPL_PERMUTATION_FUSED = 512
};

/* The warp's array of one number for each expert, in shared memory. */
static __device__ __forceinline__ unsigned long long *tegroup_impl_permutation_numbers(int32_t groups) {
    extern __shared__ unsigned long long tegroup_impl_permutation_shared[];
    return tegroup_impl_permutation_shared + (int64_t)(threadIdx.x / 32) * groups;
}

/* Loads the experts of a lane's slots, which are 32 apart from `first` on; -1 for none. All loads are in flight before
 * the first is waited for. */
enum { TEGROUP_IMPL_PERMUTATION_BATCH = 8 };
template <typename INDEX>
static __device__ __forceinline__ void tegroup_impl_slot_experts_of(const tegroup_impl_permutation_call &call,
                                                                    int64_t first, int64_t last,
                                                                    int32_t (&expert)[TEGROUP_IMPL_PERMUTATION_BATCH]) {
    const tegroup_matrix &m = call.desc.indices;
    INDEX index[TEGROUP_IMPL_PERMUTATION_BATCH];
#pragma unroll
    for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++) {
        const int64_t slot = first + 32 * b;
        index[b] = slot < last ? ((const INDEX *)m.data)[tegroup_impl_slot_at(m, slot)] : -1;
    }
#pragma unroll
    for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++)
        expert[b] = index[b] < 0 || index[b] >= call.desc.shape.groups ? -1 : (int32_t)index[b];
}
static __device__ __forceinline__ void tegroup_impl_slot_experts(const tegroup_impl_permutation_call &call,
                                                                 int64_t first, int64_t last,
                                                                 int32_t (&expert)[TEGROUP_IMPL_PERMUTATION_BATCH]) {
    if (call.desc.indices.dtype == TEGROUP_DTYPE_I32) tegroup_impl_slot_experts_of<int32_t>(call, first, last, expert);
    else tegroup_impl_slot_experts_of<int64_t>(call, first, last, expert);
}

static __device__ __forceinline__ void tegroup_impl_clear_slots(const tegroup_impl_permutation_call &call,
                                                                int64_t thread, int64_t threads) {
    const tegroup_matrix &slots_of = call.desc.slot_of_row;
#pragma unroll 1
    for (int64_t row = thread; row < slots_of.cols; row += threads)
        tegroup_impl_store_int(slots_of.dtype, slots_of.data, row, -1);
}

/* The warp counts a run's slots by expert. */
static __device__ __forceinline__ void tegroup_impl_count_run(const tegroup_impl_permutation_call &call, int64_t run,
                                                              unsigned long long *counts) {
    const int32_t groups = call.desc.shape.groups, lane = (int32_t)threadIdx.x % 32;
    const int64_t last = tegroup_impl_min(call.slots, (run + 1) * call.run);
#pragma unroll 1
    for (int32_t g = lane; g < groups; g += 32) counts[g] = 0;
    __syncwarp();
#pragma unroll 1
    for (int64_t base = run * call.run; base < last; base += 32 * TEGROUP_IMPL_PERMUTATION_BATCH) {
        int32_t expert[TEGROUP_IMPL_PERMUTATION_BATCH];
        tegroup_impl_slot_experts(call, base + lane, last, expert);
#pragma unroll
        for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++)
            if (expert[b] >= 0) atomicAdd((uint32_t *)&counts[expert[b]], 1u); /* a run's counts fit 32 bits */
    }
    __syncwarp();
}

/* The first step, and clear rows. */
static __device__ __forceinline__ void tegroup_impl_count_runs(const tegroup_impl_permutation_call &call) {
    const int32_t groups = call.desc.shape.groups, lane = (int32_t)threadIdx.x % 32;
    const int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, threads = (int64_t)gridDim.x * blockDim.x;
    unsigned long long *counts = tegroup_impl_permutation_numbers(groups);
    tegroup_impl_clear_slots(call, thread, threads);
    for (int64_t run = thread / 32; run < call.runs; run += threads / 32) {
        tegroup_impl_count_run(call, run, counts);
#pragma unroll 1
        for (int32_t g = lane; g < groups; g += 32) call.before[run * groups + g] = (int64_t)counts[g];
        __syncwarp();
    }
}

/* The second step: a block of so many threads makes the prefix sums over runs for eight experts at a time. Runs are
 * split into stretches, with one thread for each stretch and expert. COUNTS: their sums, too. */
template <int THREADS, bool COUNTS>
static __device__ __forceinline__ void tegroup_impl_sum_runs(const tegroup_impl_permutation_call &call) {
    enum { EXPERTS = 8, STRETCHES = THREADS / EXPERTS };
    __shared__ int64_t sums[STRETCHES][EXPERTS];
    const int32_t groups = call.desc.shape.groups, stretch = (int32_t)threadIdx.x / EXPERTS,
                  column = (int32_t)threadIdx.x % EXPERTS;
    const int64_t each = tegroup_impl_ceil_div(call.runs, STRETCHES), first = stretch * each;
#pragma unroll 1
    for (int32_t from = (int32_t)blockIdx.x * EXPERTS; from < groups; from += (int32_t)gridDim.x * EXPERTS) {
        const int32_t g = from + column;
        const int64_t last = g < groups ? tegroup_impl_min(call.runs, first + each) : first;
        int64_t sum = 0;
#pragma unroll 8
        for (int64_t run = first; run < last; run++) sum += call.before[run * groups + g];
        sums[stretch][column] = sum;
        __syncthreads();
#pragma unroll 1
        for (int32_t step = 1; step < STRETCHES; step *= 2) {
            const int64_t below = stretch >= step ? sums[stretch - step][column] : 0;
            __syncthreads();
            sums[stretch][column] += below;
            __syncthreads();
        }
        if (COUNTS && stretch == STRETCHES - 1 && g < groups) call.counts[g] = sums[stretch][column];
        sum = sums[stretch][column] - sum;
#pragma unroll 1
        for (int64_t run = first; run < last; run++) {
            const int64_t count = call.before[run * groups + g];
            call.before[run * groups + g] = sum;
            sum += count;
        }
        __syncthreads(); /* the sums have been read */
    }
}

/* The snapshot of counts, by one block. */
static __device__ __forceinline__ void tegroup_impl_permutation_prepare_block(const tegroup_impl_permutation_call &call,
                                                                              const int64_t *counts) {
    enum { THREADS = TEGROUP_IMPL_PERMUTATION_THREADS, EACH = TEGROUP_IMPL_PERMUTATION_FUSED / THREADS };
    tegroup_impl_preparation preparation = tegroup_impl_prepare_as_plain(call.preparation);
    preparation.rows.dtype = TEGROUP_DTYPE_I64;
    preparation.rows.data = counts;
    tegroup_impl_block_prepare<EACH, THREADS>(preparation, (tegroup_snapshot_header *)call.desc.snapshot,
                                              call.snapshot_bytes);
}

static __global__ void __launch_bounds__(TEGROUP_IMPL_PERMUTATION_THREADS)
    tegroup_impl_permutation_count_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    tegroup_impl_count_runs(call);
}
static __global__ void __launch_bounds__(1024)
    tegroup_impl_permutation_scan_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    tegroup_impl_sum_runs<1024, false>(call);
}

static __device__ __forceinline__ bool tegroup_impl_permutation_prepared(const tegroup_impl_permutation_call &call) {
    tegroup_impl_fit fit = tegroup_impl_fit_of_rows(call.view.header, call.desc.shape.rows);
    fit.groups = call.desc.shape.groups;
    return tegroup_impl_fits(&fit);
}

/* The bits of the weights of a lane's slots, as tegroup_impl_slot_experts_of loads their experts. */
template <typename BITS>
static __device__ __forceinline__ void tegroup_impl_slot_weights_of(
    const tegroup_impl_permutation_call &call, int64_t first, int64_t last,
    uint64_t (&weight)[TEGROUP_IMPL_PERMUTATION_BATCH]) {
    const tegroup_matrix &m = call.desc.slot_weights;
#pragma unroll
    for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++) {
        const int64_t slot = first + 32 * b;
        weight[b] = slot < last ? ((const BITS *)m.data)[tegroup_impl_slot_at(m, slot)] : 0;
    }
}

/* The warp ranks a run's slots. next: the row of each expert's next slot, which may be behind the expert's last row. */
static __device__ __forceinline__ void tegroup_impl_rank_run(const tegroup_impl_permutation_call &call, int64_t run,
                                                             bool prepared, unsigned long long *next) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const int64_t capacity = call.desc.shape.rows, last = tegroup_impl_min(call.slots, (run + 1) * call.run);
    const tegroup_matrix &weights = call.desc.row_weights;
#pragma unroll 1
    for (int64_t base = run * call.run; base < last; base += 32 * TEGROUP_IMPL_PERMUTATION_BATCH) {
        int32_t expert[TEGROUP_IMPL_PERMUTATION_BATCH];
        unsigned long long start[TEGROUP_IMPL_PERMUTATION_BATCH];
        int64_t rows[TEGROUP_IMPL_PERMUTATION_BATCH];
        uint64_t weight[TEGROUP_IMPL_PERMUTATION_BATCH];
        tegroup_impl_slot_experts(call, base + lane, last, expert);
        if (weights.dtype == TEGROUP_DTYPE_F32) tegroup_impl_slot_weights_of<uint32_t>(call, base + lane, last, weight);
        else if (weights.dtype == TEGROUP_DTYPE_F64)
            tegroup_impl_slot_weights_of<uint64_t>(call, base + lane, last, weight);
#pragma unroll
        for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++) {
            if (!prepared) expert[b] = -1;
            start[b] = expert[b] >= 0 ? (unsigned long long)call.view.start[expert[b]] : 0;
            rows[b] = expert[b] >= 0 ? call.view.rows[expert[b]] : 0;
        }
#pragma unroll
        for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++) {
            if (base + 32 * b >= last) break; /* most runs of few slots end here, and instructions come from memory */
            const int32_t e = expert[b];
            const int64_t slot = base + 32 * b + lane;
            const uint32_t same = __match_any_sync(0xffffffffu, e), lower = same & ((1u << lane) - 1);
            const unsigned long long first = e >= 0 ? next[e] : 0, row = first + (unsigned)__popc(lower);
            int64_t to = -1;
            __syncwarp();
            if (e >= 0 && lower == 0) next[e] = first + (unsigned)__popc(same);
            __syncwarp();
            if (e >= 0 && (int64_t)(row - start[b]) < rows[b]) to = (int64_t)row;
            if (to < 0 || to >= capacity) to = -1;
            if (slot < last) {
                const tegroup_matrix &rows_of = call.desc.row_of_slot, &slots_of = call.desc.slot_of_row;
                tegroup_impl_store_int(rows_of.dtype, rows_of.data, tegroup_impl_slot_at(rows_of, slot), to);
                if (to >= 0) tegroup_impl_store_int(slots_of.dtype, slots_of.data, to, slot);
                if (to >= 0 && weights.dtype == TEGROUP_DTYPE_F32) ((uint32_t *)weights.data)[to] = (uint32_t)weight[b];
                else if (to >= 0 && weights.dtype == TEGROUP_DTYPE_F64) ((uint64_t *)weights.data)[to] = weight[b];
            }
        }
    }
}

/* The third step. */
static __device__ __forceinline__ void tegroup_impl_rank_runs(const tegroup_impl_permutation_call &call,
                                                              bool prepared) {
    const int32_t groups = call.desc.shape.groups, lane = (int32_t)threadIdx.x % 32;
    const int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, threads = (int64_t)gridDim.x * blockDim.x;
    unsigned long long *next = tegroup_impl_permutation_numbers(groups);
    for (int64_t run = thread / 32; run < call.runs; run += threads / 32) {
        for (int32_t g = lane; g < groups; g += 32)
            next[g] = prepared
                          ? (unsigned long long)call.view.start[g] + (unsigned long long)call.before[run * groups + g]
                          : 0;
        __syncwarp();
        tegroup_impl_rank_run(call, run, prepared, next);
        __syncwarp();
    }
}

static __global__ void __launch_bounds__(TEGROUP_IMPL_PERMUTATION_THREADS)
    tegroup_impl_permutation_rank_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    tegroup_impl_rank_runs(call, tegroup_impl_permutation_prepared(call));
}

/* All steps, and between them the snapshot. The blocks of the grid wait for one another, so that all of them must run
 * at a time. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_PERMUTATION_THREADS)
    tegroup_impl_permutation_whole_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    tegroup_impl_count_runs(call);
    grid.sync();
    tegroup_impl_sum_runs<TEGROUP_IMPL_PERMUTATION_THREADS, true>(call);
    grid.sync();
    if (blockIdx.x == 0) tegroup_impl_permutation_prepare_block(call, call.counts);
    grid.sync();
    tegroup_impl_rank_runs(call, true);
}

/* The same for few slots, in one block, with a run for each warp: three launches take longer than the work. */
template <bool PREPARES>
static __global__ void __launch_bounds__(TEGROUP_IMPL_PERMUTATION_THREADS)
    tegroup_impl_permutation_block_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    const int32_t groups = call.desc.shape.groups, warps = (int32_t)blockDim.x / 32;
    unsigned long long *numbers = tegroup_impl_permutation_numbers(groups),
                       *all = numbers - (int64_t)(threadIdx.x / 32) * groups;
    tegroup_impl_clear_slots(call, threadIdx.x, blockDim.x);
    tegroup_impl_count_run(call, threadIdx.x / 32, numbers);
    __syncthreads();
    if (PREPARES) {
        __shared__ int64_t counts[TEGROUP_IMPL_PERMUTATION_FUSED];
        for (int32_t g = (int32_t)threadIdx.x; g < groups; g += (int32_t)blockDim.x) {
            counts[g] = 0;
            for (int32_t warp = 0; warp < warps; warp++) counts[g] += (int64_t)all[warp * groups + g];
        }
        __syncthreads();
        tegroup_impl_permutation_prepare_block(call, counts);
        __syncthreads();
    }
    const bool prepared = PREPARES || tegroup_impl_permutation_prepared(call);
    for (int32_t g = (int32_t)threadIdx.x; g < groups; g += (int32_t)blockDim.x) {
        unsigned long long next = prepared ? (unsigned long long)call.view.start[g] : 0;
        for (int32_t warp = 0; warp < warps; warp++) {
            const unsigned long long count = all[warp * groups + g];
            all[warp * groups + g] = next;
            next += count;
        }
    }
    __syncthreads();
    tegroup_impl_rank_run(call, threadIdx.x / 32, prepared, numbers);
}

/* ---- which slots full groups keep ---- */

/* Digit by digit, eight bits at a time from the highest on: first those of the weights, then those of the slots, so
 * that no two are equal. An expert keeps the slots above the digit at which its rows run out, and drops those below;
 * those at it are undecided. `kept` has what became of a slot: its expert, -1, or -2 - expert while it is undecided. */
typedef struct tegroup_impl_keep_call {
    tegroup_impl_permutation_call permutation;
    tegroup_matrix weights;
    int32_t *kept;
    unsigned long long *histogram; /* [groups][256] */
    int64_t *left, *digit;         /* [groups] each: rows that are not given away; the digit at which they run out */
    int32_t pass, passes, of_weights; /* passes of all, and of the weights */
} tegroup_impl_keep_call;

static __device__ __forceinline__ int32_t tegroup_impl_keep_digit(const tegroup_impl_keep_call &call, int64_t slot,
                                                                  int32_t pass) {
    if (pass < call.of_weights)
        return (int32_t)(tegroup_impl_weight_key(&call.weights, slot) >> 8 * (call.of_weights - 1 - pass) & 255);
    return (int32_t)((uint64_t)~slot >> 8 * (call.passes - 1 - pass) & 255); /* the first slot has the largest */
}

/* Decides by the last pass's digit, and counts the digits of this one. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_keep_count_kernel(const __grid_constant__ tegroup_impl_keep_call call) {
    const int64_t slots = call.permutation.slots, threads = (int64_t)gridDim.x * blockDim.x;
    const tegroup_matrix &indices = call.permutation.desc.indices;
    const int32_t lane = (int32_t)threadIdx.x % 32;
    for (int64_t base = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) - lane; base < slots; base += threads) {
        const int64_t slot = base + lane;
        int32_t state = -1;
        if (slot < slots && call.pass == 0) {
            const int64_t e = tegroup_impl_load_int(indices.dtype, indices.data, tegroup_impl_slot_at(indices, slot));
            state = tegroup_impl_within(e, call.permutation.desc.shape.groups) ? -2 - (int32_t)e : -1;
        } else if (slot < slots) state = call.kept[slot];
        const int32_t e = -2 - state;
        if (e >= 0 && call.pass > 0) {
            const int64_t digit = tegroup_impl_keep_digit(call, slot, call.pass - 1), at = call.digit[e];
            if (digit != at) state = digit > at ? e : -1;
            else if (call.pass == call.passes) state = -1; /* one slot, for which there is no row */
        }
        if (slot < slots) call.kept[slot] = state;
        if (call.pass == call.passes) continue;
        const int64_t bin = state <= -2 ? e * (int64_t)256 + tegroup_impl_keep_digit(call, slot, call.pass) : -1;
        const uint32_t same = __match_any_sync(0xffffffffu, (unsigned long long)bin);
        if (bin >= 0 && (same & ((1u << lane) - 1)) == 0)
            atomicAdd(&call.histogram[bin], (unsigned long long)__popc(same));
    }
}

/* One block an expert, a thread a digit from the largest on: where do its rows run out? */
static __global__ void __launch_bounds__(256)
    tegroup_impl_keep_choose_kernel(const __grid_constant__ tegroup_impl_keep_call call) {
    const int32_t e = (int32_t)blockIdx.x, digit = 255 - (int32_t)threadIdx.x;
    unsigned long long *mine = &call.histogram[e * (int64_t)256 + digit];
    const int64_t count = (int64_t)*mine, above = tegroup_impl_block_scan(count, false);
    int64_t left = call.left[e];
    if (call.pass == 0)
        left = tegroup_impl_permutation_prepared(call.permutation)
                   ? tegroup_impl_max(0, call.permutation.view.rows[e]) /* it may lie */
                   : 0;
    __syncthreads(); /* all have read what one writes */
    *mine = 0;
    if (above <= left && above + count > left) call.digit[e] = digit, call.left[e] = left - above;
    else if (digit == 0 && above + count <= left) call.digit[e] = -1, call.left[e] = left - above - count;
}

/* Makes `kept`, which then stands for the indices. */
static inline tegroup_status tegroup_impl_cuda_keep_heaviest(const tegroup_permutation_desc *desc,
                                                             tegroup_impl_permutation_call *permutation,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const int32_t groups = desc->shape.groups;
    tegroup_impl_keep_call call;
    tegroup_layout layout;
    unsigned blocks;
    cudaError_t code;
    TEGROUP_IMPL_TRY(tegroup_permutation_layout(desc, &layout, error));
    memset(&call, 0, sizeof call);
    call.permutation = *permutation;
    call.weights = tegroup_impl_cuda_matrix(&desc->weights);
    call.kept = (int32_t *)tegroup_impl_layout_at(&layout, TEGROUP_IMPL_PERMUTATION_KEPT, desc->workspace);
    call.histogram =
        (unsigned long long *)tegroup_impl_layout_at(&layout, TEGROUP_IMPL_PERMUTATION_DIGITS, desc->workspace);
    call.left = (int64_t *)tegroup_impl_layout_at(&layout, TEGROUP_IMPL_PERMUTATION_ROOM, desc->workspace);
    call.digit = call.left + groups;
    call.of_weights = call.passes = tegroup_impl_weight_bits(&desc->weights) / 8;
    for (int64_t most = permutation->slots - 1; most > 0; most >>= 8) call.passes++;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(permutation->slots, 1024), 8, &blocks, error));
    code = cudaMemsetAsync(call.histogram, 0, 8 * 256 * (size_t)groups, stream);
    for (; code == cudaSuccess && call.pass <= call.passes; call.pass++) {
        code = tegroup_impl_launch(tegroup_impl_keep_count_kernel, blocks, 256, 0, stream, call);
        if (code == cudaSuccess && call.pass < call.passes)
            code = tegroup_impl_launch(tegroup_impl_keep_choose_kernel, (unsigned)groups, 256, 0, stream, call);
    }
    permutation->desc.indices = tegroup_matrix_of(call.kept, desc->indices.rows, desc->indices.cols, TEGROUP_DTYPE_I32);
    permutation->desc.indices.ld = desc->indices.cols;
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}

/* The snapshot by calls of its own: counts, and then prepare. */
static inline tegroup_status tegroup_impl_cuda_permutation_prepare(const tegroup_impl_permutation_call *call,
                                                                   const tegroup_prepare_desc *prepare,
                                                                   const tegroup_layout *layout,
                                                                   struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_count_desc count = tegroup_impl_permutation_count(&call->desc, call->counts);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_count(&count, stream, error));
    return tegroup_impl_cuda_prepare(&call->preparation, prepare, layout, stream, error);
}

/* The steps by three kernels, where the snapshot is there. */
static inline cudaError_t tegroup_impl_cuda_permutation_steps(const tegroup_impl_permutation_call &call,
                                                              unsigned blocks, unsigned fill, unsigned threads,
                                                              size_t shared, struct CUstream_st *stream) {
    const int32_t groups = call.desc.shape.groups;
    cudaError_t code;
    code = tegroup_impl_launch(tegroup_impl_permutation_count_kernel, fill > blocks ? fill : blocks, threads, shared,
                               stream, call);
    if (code == cudaSuccess && groups > 0 && call.runs > 0)
        code = tegroup_impl_launch(tegroup_impl_permutation_scan_kernel, (unsigned)(groups + 7) / 8, 1024, 0, stream,
                                   call);
    if (code == cudaSuccess && call.runs > 0)
        code = tegroup_impl_launch(tegroup_impl_permutation_rank_kernel, blocks, threads, shared, stream, call);
    return code;
}

/* prepare: how the snapshot is made, or NULL where it is there. */
static inline tegroup_status tegroup_impl_cuda_permutation_make(const tegroup_permutation_desc *desc,
                                                                const tegroup_prepare_desc *prepare,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    const int32_t groups = desc->shape.groups;
    const int64_t numbers_bytes = 8 * tegroup_impl_max(1, groups), most_of_a_warp = 512, most_rows = 16384;
    const int32_t warps = (int32_t)tegroup_impl_clamp(48 * 1024 / numbers_bytes, 1, 8);
    const size_t shared = (size_t)(warps * numbers_bytes);
    const int weighted = desc->weights.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_impl_permutation_call call;
    tegroup_prepare_desc counted;
    tegroup_layout layout, snapshot;
    unsigned blocks, fill;
    int64_t of_runs, of_rows; /* blocks for all of them */
    int fused = 0;
    memset(&call, 0, sizeof call);
    call.desc = *desc;
    call.desc.indices = tegroup_impl_cuda_matrix(&desc->indices);
    call.desc.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    call.desc.slot_weights = tegroup_impl_cuda_matrix(&desc->slot_weights);
    if (!tegroup_impl_there(&desc->slot_of_row)) call.desc.slot_of_row.cols = 0;
    call.view = tegroup_impl_snapshot_view(desc->shape.snapshot, groups, 0);
    TEGROUP_IMPL_TRY(tegroup_permutation_layout(desc, &layout, error));
    call.before = (int64_t *)tegroup_impl_layout_at(&layout, TEGROUP_IMPL_PERMUTATION_BEFORE, desc->workspace);
    call.counts = (int64_t *)tegroup_impl_layout_at(&layout, TEGROUP_IMPL_PERMUTATION_COUNTS, desc->workspace);
    call.slots = desc->indices.rows * desc->indices.cols;
    if (prepare) {
        counted = *prepare;
        counted.shape.row_sizes.data = call.counts;
        tegroup_impl_snapshot_layout(groups, tegroup_impl_irregular(&counted.shape), &snapshot);
        call.preparation = tegroup_impl_preparation_of(&counted, &snapshot);
        call.snapshot_bytes = (int32_t)snapshot.total_bytes;
        fused = !weighted && groups > 0 && groups <= TEGROUP_IMPL_PERMUTATION_FUSED && call.slots > 0
                && tegroup_impl_prepare_plain(&call.preparation);
        if (!fused) TEGROUP_IMPL_TRY(tegroup_impl_cuda_permutation_prepare(&call, &counted, &snapshot, stream, error));
    }
    if (weighted && call.slots > 0 && groups > 0)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_keep_heaviest(desc, &call, stream, error));
    if (call.slots <= warps * most_of_a_warp && call.desc.slot_of_row.cols <= most_rows) {
        call.runs = warps;
        call.run = tegroup_impl_align(tegroup_impl_ceil_div(call.slots, warps), 32);
        return tegroup_impl_cuda_status(tegroup_impl_launch(fused ? tegroup_impl_permutation_block_kernel<true>
                                                                  : tegroup_impl_permutation_block_kernel<false>,
                                                            1, 32u * (unsigned)warps, shared, stream, call),
                                        "stream", "the kernel must launch", error);
    }
    call.run = tegroup_impl_permutation_run(groups);
    call.runs = tegroup_impl_ceil_div(call.slots, call.run);
    of_runs = tegroup_impl_ceil_div(call.runs, warps);
    of_rows = tegroup_impl_ceil_div(call.desc.slot_of_row.cols, 1024);
    if (fused) {
        const int64_t most = tegroup_impl_max(of_runs, tegroup_impl_max(of_rows, tegroup_impl_ceil_div(groups, 8)));
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(most, 1, &blocks, error));
        const cudaError_t code = tegroup_impl_launch_together(tegroup_impl_permutation_whole_kernel, blocks,
                                                              32u * (unsigned)warps, shared, stream, call);
        if (code != cudaErrorCooperativeLaunchTooLarge && code != cudaErrorNotSupported)
            return tegroup_impl_cuda_status(code, "stream", "the kernel must launch", error);
        (void)cudaGetLastError(); /* Fewer multiprocessors are there than the device has, as in a green context. */
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_permutation_prepare(&call, &counted, &snapshot, stream, error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(of_runs, 64, &blocks, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(of_rows, 8, &fill, error));
    return tegroup_impl_cuda_status(
        tegroup_impl_cuda_permutation_steps(call, blocks, fill, 32u * (unsigned)warps, shared, stream), "stream",
        "the kernels must launch", error);
}
