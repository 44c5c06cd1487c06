/* ---- Quantise: a block's way through the groups ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "layer/quantize_types.h"
#include "base/arithmetic.h"
#include "base/threads.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/stored_scales.h"
#include "layer/quantize.h"
#include "cuda/prepare.h"

enum {
    TEGROUP_IMPL_QUANTIZE_THREADS = 256, /* a thread has 8 rows of 8 columns of a tile */
    TEGROUP_IMPL_QUANTIZE_COLS = 128,    /* entries of a table in shared memory for each 16 rows */
    TEGROUP_IMPL_QUANTIZE_BANDS = 8      /* of 16 rows, or of 16 columns, in a tile */
};

/* A call as its kernels are given it. copies: those that a launch writes, as bits; spans: as in a pass on the CPU. */
typedef struct tegroup_impl_quantize_launch {
    tegroup_quantize_desc desc;
    tegroup_scaling_facts facts;
    tegroup_dtype scale_dtype;
    int32_t copies, spans_cols, spans_rows, vectors, raises; /* raises: amax is found on the way */
    int64_t scale_capacity[TEGROUP_IMPL_COPIES], transposed_capacity;
} tegroup_impl_quantize_launch;

/* What the threads of a block share. `sums`: works, scales of both copies and transposed elements of the groups before
 * those of thread t. Of the group and part at hand: its works, extents and copies. Tables: amax by bands of 16 rows
 * (`down`: [band][column]) or by blocks of a row (`across`: [row][block]); factors likewise, by blocks. */
struct tegroup_impl_quantize_shared {
    int64_t sums[4][TEGROUP_IMPL_QUANTIZE_THREADS + 1];
    int64_t first, end; /* works of the part */
    int64_t rows, cols, part_rows;
    int32_t g, part, across;
    tegroup_impl_block in, dy;
    tegroup_impl_copy copies[TEGROUP_IMPL_COPIES];
    uint32_t amax[TEGROUP_IMPL_COPIES][TEGROUP_IMPL_QUANTIZE_BANDS * TEGROUP_IMPL_QUANTIZE_COLS];
    float factor[TEGROUP_IMPL_COPIES][TEGROUP_IMPL_QUANTIZE_BANDS * TEGROUP_IMPL_QUANTIZE_COLS];
    uint4 turned[TEGROUP_IMPL_QUANTIZE_TILE * TEGROUP_IMPL_QUANTIZE_TILE / 16];
};

/* Works of one part, beside and above each other. */
static __device__ __forceinline__ void tegroup_impl_quantize_counts(const tegroup_impl_quantize_launch &call,
                                                                    int64_t part_rows, int64_t cols, int64_t *across,
                                                                    int64_t *down) {
    *across = call.spans_cols ? cols > 0 : (cols + TEGROUP_IMPL_QUANTIZE_TILE - 1) / TEGROUP_IMPL_QUANTIZE_TILE;
    *down = call.spans_rows ? part_rows > 0 : (part_rows + TEGROUP_IMPL_QUANTIZE_TILE - 1) / TEGROUP_IMPL_QUANTIZE_TILE;
}

/* A block's way through the works of a tensor: a stretch of them, group by group. */
struct tegroup_impl_quantize_walk {
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    tegroup_snapshot_view view;
    int64_t begin, end; /* the block's works */
    int32_t each;       /* groups of a thread's sums */
    bool ragged;

    /* Called by all threads. A snapshot that is none for the tensor leads to no works. */
    __device__ tegroup_impl_quantize_walk(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s)
        : call(c), shared(s), view(tegroup_impl_fitting_view(&c.desc.output)), begin(0), end(0), each(0),
          ragged(tegroup_impl_ragged(&c.desc.output.shape)) {
        const int32_t groups = call.desc.output.shape.groups;
        int64_t works = 0;
        if (ragged && view.rows) {
            each = (groups + TEGROUP_IMPL_QUANTIZE_THREADS - 1) / TEGROUP_IMPL_QUANTIZE_THREADS;
            works = sum();
        } else if (!ragged && groups > 0) {
            works = groups * of_group(0);
        }
        begin = tegroup_impl_share_begin(works, (int32_t)blockIdx.x, (int32_t)gridDim.x);
        end = tegroup_impl_share_begin(works, (int32_t)blockIdx.x + 1, (int32_t)gridDim.x);
    }
    __device__ __noinline__ int64_t of_group(int32_t g) const {
        const tegroup_impl_sides sides = tegroup_impl_group_sides(&call.desc.output, &view, g);
        const int32_t parts = call.desc.output.scale_parts > 1 ? call.desc.output.scale_parts : 1;
        int64_t across, down;
        tegroup_impl_quantize_counts(call, parts > 1 ? sides.rows / parts : sides.rows, sides.cols, &across, &down);
        return across * down * parts;
    }
    __device__ __noinline__ void pass(int32_t g, tegroup_impl_before *before) const {
        tegroup_impl_pass_group(&call.desc.output, &call.facts, tegroup_impl_group_sides(&call.desc.output, &view, g),
                                before);
    }
    /* Fills shared.sums; returns all works. */
    __device__ __noinline__ int64_t sum() {
        const int32_t from = (int32_t)threadIdx.x * each,
                      to = (int32_t)tegroup_impl_min(call.desc.output.shape.groups, from + each);
        tegroup_impl_before taken = {{0, 0}, 0};
        int64_t mine[4] = {0, 0, 0, 0};
        for (int32_t g = from; g < to; g++) {
            mine[0] += of_group(g);
            pass(g, &taken);
        }
        mine[1] = taken.scales[0], mine[2] = taken.scales[1], mine[3] = taken.transposed;
        for (int i = 0; i < 4; i++) {
            const int64_t before = tegroup_impl_block_scan(mine[i], false);
            shared.sums[i][threadIdx.x] = before;
            if (threadIdx.x == blockDim.x - 1) shared.sums[i][blockDim.x] = before + mine[i];
        }
        __syncthreads();
        return shared.sums[0][blockDim.x];
    }
    /* The group of a work, what the groups before it take, and the first of its works. */
    __device__ int32_t group_of(int64_t work, tegroup_impl_before *before, int64_t *first) const {
        int32_t g, low = 0, high = TEGROUP_IMPL_QUANTIZE_THREADS;
        if (!ragged) {
            tegroup_impl_before one = {{0, 0}, 0};
            const int64_t of_each = of_group(0);
            g = (int32_t)(work / of_each);
            pass(0, &one);
            *before = {{g * one.scales[0], g * one.scales[1]}, g * one.transposed};
            *first = g * of_each;
            return g;
        }
        while (high - low > 1) {
            const int32_t middle = (low + high) / 2;
            if (shared.sums[0][middle] <= work) low = middle;
            else high = middle;
        }
        *before = {{shared.sums[1][low], shared.sums[2][low]}, shared.sums[3][low]};
        *first = shared.sums[0][low];
        for (g = low * each; *first + of_group(g) <= work; g++) {
            *first += of_group(g);
            pass(g, before);
        }
        return g;
    }
    /* The part of a work into shared memory: one thread's work. */
    __device__ __noinline__ void meet(int64_t work) {
        const tegroup_tensor *t = &call.desc.output;
        tegroup_impl_before before;
        int64_t first, across, down;
        const int32_t g = group_of(work, &before, &first);
        const tegroup_impl_sides sides = tegroup_impl_group_sides(t, &view, g);
        for (int c = 0; c < TEGROUP_IMPL_COPIES; c++) {
            shared.copies[c] = tegroup_impl_copy_of(t, &call.facts, &view, g, c, &before);
            if (tegroup_impl_scale_end(&shared.copies[c].grid, tegroup_impl_scales_strided(t, c))
                > call.scale_capacity[c])
                shared.copies[c].data = NULL;
        }
        if (tegroup_impl_transposed(t, 1) && !tegroup_impl_listed(t)
            && before.transposed + tegroup_impl_transposed_count(sides) > call.transposed_capacity)
            shared.copies[1].data = NULL;
        shared.part_rows = shared.copies[0].grid.part_rows;
        tegroup_impl_quantize_counts(call, shared.part_rows, sides.cols, &across, &down);
        shared.g = g;
        shared.part = (int32_t)((work - first) / (across * down));
        shared.first = first + shared.part * across * down;
        shared.end = shared.first + across * down;
        shared.across = (int32_t)across;
        shared.rows = sides.rows;
        shared.cols = sides.cols;
        shared.in = tegroup_impl_locate(&call.desc.input, &view, g);
        shared.dy = tegroup_impl_locate(&call.desc.grad_output, &view, g);
    }
};
