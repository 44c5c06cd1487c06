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
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/stored_scales.h"
#include "layer/quantize.h"
#include "cuda/prepare.h"

enum {
    TEGROUP_IMPL_QUANTIZE_THREADS = 256, /* a thread has 8 rows of 8 columns of a tile */
    TEGROUP_IMPL_QUANTIZE_COLS = 128,    /* entries of a table in shared memory for each 16 rows */
    TEGROUP_IMPL_QUANTIZE_BANDS = 8,     /* of 16 rows, or of 16 columns, in a tile */
    TEGROUP_IMPL_QUANTIZE_SHIFT = 7,     /* logarithm of a tile's extent */
    TEGROUP_IMPL_QUANTIZE_ROWS = 8,      /* of a work of whole rows */
    TEGROUP_IMPL_QUANTIZE_BESIDE = 8     /* blocks that share a stretch of works, so that they read the same rows */
};
/* Blocks that a multiprocessor has room for, and that are launched: of kernels that quantise, and of those that go
 * back. */
enum { TEGROUP_IMPL_QUANTIZE_RESIDENT = 2 };
#define TEGROUP_IMPL_DEQUANTIZE_RESIDENT(dtype) ((dtype) == TEGROUP_DTYPE_F32 ? 2 : 3)

/* A call as its kernels are given it; on the way back desc.output is what is read, and desc.input what is written.
 * copies: those that a launch writes, or reads, as bits; spans: as in a pass on the CPU; shifts: logarithms of the
 * blocks' extents, of a tile's where a block is all. */
typedef struct tegroup_impl_quantize_launch {
    tegroup_quantize_desc desc;
    tegroup_scaling_facts facts;
    tegroup_dtype scale_dtype;
    int32_t copies, spans_cols, spans_rows, vectors, raises; /* raises: amax is found on the way                   */
    int32_t plain;                                           /* 1: values are those of input, and rows not gathered */
    int32_t choice_shift, outer_shift, inner_shift;
    int64_t scale_capacity[TEGROUP_IMPL_COPIES], transposed_capacity;
} tegroup_impl_quantize_launch;

/* What the threads of a block share. `sums`: works, scales of both copies and transposed elements of the groups before
 * those of thread t. Of the group and part at hand: its works, extents and copies. Tables of a tile: amax of blocks of
 * a row, [row][block], and of columns, [band of 16 rows][column], or, where a scale is chosen for a square, which both
 * copies have, [band of 16 rows][block]; factors, [row or square][block] and [block][column or square]. */
struct tegroup_impl_quantize_shared {
    uint4 turned[TEGROUP_IMPL_QUANTIZE_TILE * TEGROUP_IMPL_QUANTIZE_TILE / 16]; /* this and the tables in vectors */
    uint32_t amax[TEGROUP_IMPL_COPIES][TEGROUP_IMPL_QUANTIZE_BANDS * TEGROUP_IMPL_QUANTIZE_COLS];
    float factor[TEGROUP_IMPL_COPIES][TEGROUP_IMPL_QUANTIZE_BANDS * TEGROUP_IMPL_QUANTIZE_COLS];
    int64_t sums[4][TEGROUP_IMPL_QUANTIZE_THREADS + 1];
    int64_t first, end; /* works of the part */
    int64_t rows, cols, part_rows;
    int32_t g, part, across;
    float global; /* of the group, as tegroup_impl_scale_block takes it */
    tegroup_impl_block in, dy;
    tegroup_impl_copy copies[TEGROUP_IMPL_COPIES];
};

/* Scales of a tile's blocks: that of block (o, i), of those that are stored, is at(o, i), and the block holds elements
 * where both indices are below the counts. Tiles begin where those of the swizzled layout do. */
struct tegroup_impl_tile_scales {
    const tegroup_impl_scale_grid &grid;
    int64_t outer, inner, first;
    int32_t part, outer_count, inner_count;

    __device__ __forceinline__ tegroup_impl_tile_scales(const tegroup_impl_scale_grid &g, int32_t p, int64_t row0,
                                                        int64_t col0)
        : grid(g), outer((g.columnwise ? col0 : row0) >> g.outer_shift),
          inner((g.columnwise ? row0 : col0) >> g.inner_shift), part(p) {
        const int64_t tile = TEGROUP_IMPL_QUANTIZE_TILE;
        first = tegroup_impl_scale_of_block(&grid, part, outer, inner);
        outer_count = (int32_t)tegroup_impl_clamp(grid.outer_count - outer, 0, tile);
        inner_count = (int32_t)tegroup_impl_clamp(grid.inner_count - inner, 0, tile);
    }
    __device__ __forceinline__ int64_t at(int32_t o, int32_t i) const {
        if (grid.packed) return tegroup_impl_scale_of_block(&grid, part, outer + o, inner + i);
        return first
               + (grid.swizzled ? tegroup_impl_swizzled(0, o & 127, i) : o * grid.outer_stride + i * grid.inner_stride);
    }
};

/* Factors of eight elements beside each other, along the outer index of a copy, from the tile's (row, col) on: that of
 * element j is at[j * step]. They have one each, or one together. outer_shift: of the elements that share one. */
struct tegroup_impl_factors {
    const float *at;
    int32_t step;
};
static __device__ __forceinline__ tegroup_impl_factors
tegroup_impl_factors_of(const tegroup_impl_quantize_launch &call, const tegroup_impl_quantize_shared &shared,
                        int columnwise, int32_t outer_shift, int32_t row, int32_t col) {
    const int32_t blocks = columnwise ? TEGROUP_IMPL_QUANTIZE_COLS : TEGROUP_IMPL_QUANTIZE_TILE >> call.inner_shift;
    tegroup_impl_factors factors;
    factors.at = shared.factor[columnwise]
                 + (columnwise ? (row >> call.inner_shift) * blocks + (col >> outer_shift)
                               : (row >> outer_shift) * blocks + (col >> call.inner_shift));
    factors.step = outer_shift > 0 ? 0 : columnwise ? 1 : blocks;
    return factors;
}

/* Codes of a transposed copy in `turned`, eight rows of a column a piece of one or two words. Those of a column are in
 * another order, by which eight columns it is of: neither accesses to columns beside each other nor those to one whole
 * column meet in a bank. Where a piece is, in words; where 16 bytes are, and what their words are there, and back. */
template <int BITS> static __device__ __forceinline__ int32_t tegroup_impl_turned_at(int32_t col, int32_t row) {
    return (col * 16 + ((row >> 3) ^ (col >> 3))) * (BITS / 4);
}
template <int BITS> static __device__ __forceinline__ int32_t tegroup_impl_turned_piece(int32_t col, int32_t piece) {
    return BITS == 8 ? col * 8 + (piece ^ (col >> 4)) : col * 4 + (piece ^ (col >> 5));
}
template <int BITS> static __device__ __forceinline__ uint4 tegroup_impl_turned_order(int32_t col, uint4 v) {
    const int32_t order = col >> 3;
    if (BITS == 4 && order & 1) v = make_uint4(v.y, v.x, v.w, v.z);
    if (order >> (BITS == 4) & 1) v = make_uint4(v.z, v.w, v.x, v.y);
    return v;
}

/* Works of one part, beside and above each other. A work that spans columns has fewer rows than a tile. */
static __device__ __forceinline__ void tegroup_impl_quantize_counts(const tegroup_impl_quantize_launch &call,
                                                                    int64_t part_rows, int64_t cols, int64_t *across,
                                                                    int64_t *down) {
    const int64_t tile = TEGROUP_IMPL_QUANTIZE_TILE;
    *across = call.spans_cols ? cols > 0 : tegroup_impl_ceil_div(cols, tile);
    *down = call.spans_rows ? part_rows > 0
                            : tegroup_impl_ceil_div(part_rows, call.spans_cols ? TEGROUP_IMPL_QUANTIZE_ROWS : tile);
}

/* A block's way through the works of a tensor: a stretch of them, group by group. */
struct tegroup_impl_quantize_walk {
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    tegroup_snapshot_view view;
    int64_t begin, end; /* the block's works, every step-th of them: blocks beside each other share a stretch */
    int32_t step;
    int32_t each; /* groups of a thread's sums */
    bool ragged;

    /* Called by all threads. A snapshot that is none for the tensor leads to no works. */
    __device__ tegroup_impl_quantize_walk(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s)
        : call(c), shared(s), view(tegroup_impl_fitting_view(&c.desc.output)), begin(0), end(0), step(1), each(0),
          ragged(tegroup_impl_ragged(&c.desc.output.shape)) {
        const int32_t groups = call.desc.output.shape.groups;
        int64_t works = 0;
        if (ragged && view.rows) {
            each = (groups + TEGROUP_IMPL_QUANTIZE_THREADS - 1) / TEGROUP_IMPL_QUANTIZE_THREADS;
            works = sum();
        } else if (!ragged && groups > 0) {
            works = groups * of_group(0);
        }
        const int32_t blocks = (int32_t)gridDim.x,
                      first = (int32_t)blockIdx.x / TEGROUP_IMPL_QUANTIZE_BESIDE * TEGROUP_IMPL_QUANTIZE_BESIDE;
        step = min(TEGROUP_IMPL_QUANTIZE_BESIDE, blocks - first);
        begin = tegroup_impl_share_begin(works, first, blocks) + ((int32_t)blockIdx.x - first);
        end = tegroup_impl_share_begin(works, first + step, blocks);
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
        shared.global = call.copies && call.desc.rule.method != TEGROUP_SCALE_UNSET
                            ? tegroup_impl_group_global(&call.desc, g)
                            : 1.0f;
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
