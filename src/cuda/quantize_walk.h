/* ---- Quantise: a block's way through the groups ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "layer/quantize_types.h"
#include "base/arithmetic.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/snapshot_checks.h"
#include "core/copies.h"
#include "core/quantize_copies.h"

enum {
    TEGROUP_IMPL_QUANTIZE_THREADS = 256, /* a thread has 8 rows of 8 columns of a tile */
    TEGROUP_IMPL_QUANTIZE_COLS = 128,    /* entries of a table in shared memory for each 16 rows */
    TEGROUP_IMPL_QUANTIZE_BANDS = 8,     /* of 16 rows, or of 16 columns, in a tile */
    TEGROUP_IMPL_QUANTIZE_SHIFT = 7,     /* logarithm of a tile's extent */
    TEGROUP_IMPL_QUANTIZE_STRIP = 11, /* logarithm of a strip's columns: a thread has 8 times 8 of them, a warp a row */
    TEGROUP_IMPL_QUANTIZE_ROWS = 8,   /* of a strip, or of a work of whole rows */
    TEGROUP_IMPL_QUANTIZE_ALL = 62,   /* logarithm of an extent that no tensor has */
    TEGROUP_IMPL_QUANTIZE_BESIDE = 8  /* blocks that share a stretch of works, so that they read the same rows */
};

/* Blocks that a multiprocessor has room for, and that are launched. In dynamic shared memory each of quantise's has a
 * tile, strips, or ROW's rows; in registers ROW's strips have a table there. dequantise turns a tile of codes in it. */
#define TEGROUP_IMPL_QUANTIZE_RESIDENT(dtype) ((dtype) == TEGROUP_DTYPE_F32 ? 2 : 3)
#define TEGROUP_IMPL_DEQUANTIZE_RESIDENT 3
#define TEGROUP_IMPL_QUANTIZE_STAGED (TEGROUP_IMPL_QUANTIZE_TILE * TEGROUP_IMPL_QUANTIZE_TILE) /* values */
static __device__ __forceinline__ char *tegroup_impl_quantize_memory(void) {
    extern __shared__ uint4 tegroup_impl_quantize_staged[];
    return (char *)tegroup_impl_quantize_staged;
}

/* A call as its kernels are given it; on the way back desc.output is what is read, and desc.input what is written.
 * copies: those that a launch writes, or reads, as bits; other shifts: logarithms of the blocks' extents, of a tile's
 * where a block is all. */
typedef struct tegroup_impl_quantize_launch {
    tegroup_quantize_desc desc;
    tegroup_scaling_facts facts;
    tegroup_dtype scale_dtype;
    int32_t copies, vectors, raises;   /* raises: amax is found on the way                   */
    int32_t down_shift, across_shift;  /* logarithms of a work's rows and columns            */
    int32_t plain;                     /* 1: values are those of input, and rows not gathered */
    int32_t usual;                     /* 1: the rule is tegroup_impl_usual_rule             */
    int32_t paired;                    /* 1: a work is a tile of gates and that of their ups */
    int32_t scale_bits;                /* of a stored scale */
    int64_t in_ld;                     /* of input, where no group has one of its own */
    int64_t in_steps[3], out_steps[3]; /* in registers: bytes from a thread's piece to those 1, 2 and 4 further on;
                                          of input by strips alone */
    int32_t choice_shift, outer_shift, inner_shift;
    int64_t scale_capacity[TEGROUP_IMPL_COPIES], transposed_capacity;
    tegroup_impl_scale_grid grids[TEGROUP_IMPL_COPIES]; /* as tegroup_impl_scale_grid_of_any makes them  */
    tegroup_snapshot_view view;                         /* where a snapshot has what; its header may be of another */
    const int64_t *used; /* groups that have 0 or less here have no works; NULL: all have theirs */
} tegroup_impl_quantize_launch;

/* What the threads of a block share. Of the group and part at hand: what the groups before it take, their works, its
 * own works, extents and copies. Tables of a tile: amax of blocks of a row, [row][block], and of columns, [band of 16
 * rows][column], or, where a scale is chosen for a square, which both copies have, [band of 16 rows][block]; factors,
 * [row or square][block] and [block][column or square]. */
struct tegroup_impl_quantize_shared {
    /* Threads write four at a time. */
    __align__(16) uint32_t amax[TEGROUP_IMPL_COPIES][TEGROUP_IMPL_QUANTIZE_BANDS * TEGROUP_IMPL_QUANTIZE_COLS];
    float factor[TEGROUP_IMPL_COPIES][TEGROUP_IMPL_QUANTIZE_BANDS * TEGROUP_IMPL_QUANTIZE_COLS];
    tegroup_impl_before before, after; /* after: with the group itself */
    int64_t works;                     /* of all groups */
    int64_t works_of, works_before;
    int64_t first, end; /* works of the part */
    int64_t rows, cols, part_rows;
    tegroup_impl_block out; /* the group's place in the quantised tensor */
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

/* What values are multiplied by, or where the rule divides, divided. */
static __device__ __forceinline__ float tegroup_impl_factor_of(const tegroup_block_scale &block) {
    return block.divide ? block.stored : block.multiplier;
}

/* Works of a part above each other and beside each other. */
static __device__ __forceinline__ int64_t tegroup_impl_works_down(const tegroup_impl_quantize_launch &call,
                                                                  int64_t part_rows) {
    return tegroup_impl_blocks_of(part_rows, call.down_shift);
}
static __device__ __forceinline__ int64_t tegroup_impl_works_across(const tegroup_impl_quantize_launch &call,
                                                                    int64_t cols) {
    return tegroup_impl_blocks_of(cols, call.across_shift);
}
static __device__ __forceinline__ int64_t tegroup_impl_part_rows(const tegroup_impl_quantize_launch &call,
                                                                 int64_t rows) {
    return call.grids[0].parts > 1 ? call.grids[0].part_rows : rows;
}
static __device__ __forceinline__ bool tegroup_impl_quantize_turns(const tegroup_impl_quantize_launch &call) {
    return call.copies >> TEGROUP_IMPL_COLUMNWISE & 1 && tegroup_impl_transposed(&call.desc.output, 1);
}

/* tegroup_impl_scale_grid_alone, of which the launch has what all groups have in common. */
static __device__ __forceinline__ tegroup_impl_scale_grid
tegroup_impl_quantize_grid(const tegroup_impl_quantize_launch &call, tegroup_impl_sides sides, int copy) {
    tegroup_impl_scale_grid grid = call.grids[copy];
    tegroup_impl_scale_grid_size(&grid, &call.desc.output, &call.facts, sides);
    return grid;
}

/* The functions from here to the walk are not inlined, and keep what they know in shared memory: they run once a group.
 * A kernel's first instructions are in no cache, and to fetch them takes longer than to execute them: so these are few,
 * and loops are not unrolled. */

/* The works of a group; what it takes is added to what those before it take, as far as the launch asks. */
static __device__ __noinline__ int64_t tegroup_impl_quantize_take(const tegroup_impl_quantize_launch &call, int32_t g,
                                                                  tegroup_impl_before *before) {
    const tegroup_impl_sides sides = tegroup_impl_group_sides(&call.desc.output, &call.view, g);
#pragma unroll 1
    for (int c = 0; c < TEGROUP_IMPL_COPIES; c++)
        if (call.copies >> c & 1) before->scales[c] += tegroup_impl_quantize_grid(call, sides, c).count;
    if (tegroup_impl_quantize_turns(call)) before->transposed += tegroup_impl_transposed_count(sides);
    if (call.used && call.used[g] <= 0) return 0;
    return tegroup_impl_works_across(call, sides.cols)
           * tegroup_impl_works_down(call, tegroup_impl_part_rows(call, sides.rows)) * call.grids[0].parts;
}

/* Goes on to the group and the part of a work: one thread's work. */
static __device__ __noinline__ void tegroup_impl_quantize_find(const tegroup_impl_quantize_launch &call,
                                                               tegroup_impl_quantize_shared &shared, int64_t work) {
    const tegroup_tensor *t = &call.desc.output;
    int32_t g = shared.g;
    int64_t first = shared.works_before, works = shared.works_of;
    while (first + works <= work) {
        shared.before = shared.after;
        first += works;
        works = tegroup_impl_quantize_take(call, ++g, &shared.after);
    }
    const tegroup_impl_block block = tegroup_impl_block_of(t, &call.view, g);
    const tegroup_impl_sides sides = tegroup_impl_block_sides(t, &call.view, &block);
    shared.out = block;
    shared.g = g;
    shared.works_before = first;
    shared.works_of = works;
    shared.rows = sides.rows;
    shared.cols = sides.cols;
    shared.part_rows = tegroup_impl_part_rows(call, sides.rows);
    shared.across = (int32_t)tegroup_impl_works_across(call, sides.cols);
    const int64_t of_part = shared.across * tegroup_impl_works_down(call, shared.part_rows);
    shared.part = call.grids[0].parts > 1 ? (int32_t)((uint32_t)(work - first) / (uint32_t)of_part) : 0;
    shared.first = first + shared.part * of_part;
    shared.end = shared.first + of_part;
}

/* A copy of the group, of no address where it would lie behind its buffer's end. */
static __device__ __noinline__ void tegroup_impl_quantize_describe_copy(const tegroup_impl_quantize_launch &call,
                                                                        tegroup_impl_quantize_shared &shared, int c) {
    const tegroup_tensor *t = &call.desc.output;
    const tegroup_impl_sides sides = tegroup_impl_sides_of(shared.rows, shared.cols);
    const tegroup_impl_scale_grid grid = tegroup_impl_quantize_grid(call, sides, c);
    tegroup_impl_copy copy =
        tegroup_impl_copy_with(t, &call.view, shared.g, c, &shared.before, &shared.out, sides.rows, &grid);
    if (tegroup_impl_scale_end(&copy.grid, tegroup_impl_scales_strided(t, c)) > call.scale_capacity[c]
        || (tegroup_impl_transposed(t, c) && !tegroup_impl_listed(t)
            && copy.at.first + tegroup_impl_transposed_count(sides) > call.transposed_capacity))
        copy.data = NULL;
    shared.copies[c] = copy;
}

/* The scale of TENSOR. */
static __device__ __noinline__ tegroup_block_scale
tegroup_impl_quantize_group_scale(const tegroup_impl_quantize_launch &call, int32_t g) {
    return tegroup_impl_group_scale(&call.desc, &call.facts, g);
}

/* What a group is, a piece of it by each warp. NUMBERS: it may have a number of its own, as TENSOR and NVFP4 do. */
template <bool NUMBERS>
static __device__ __forceinline__ void tegroup_impl_quantize_describe(const tegroup_impl_quantize_launch &call,
                                                                      tegroup_impl_quantize_shared &shared, int piece) {
    const int32_t g = shared.g;
    if (piece < TEGROUP_IMPL_COPIES) {
        if (call.copies >> piece & 1) tegroup_impl_quantize_describe_copy(call, shared, piece);
    } else if (piece < 4) {
        const tegroup_tensor *from = piece == 2 ? &call.desc.input : &call.desc.grad_output;
        if (from->dtype != TEGROUP_DTYPE_UNSET)
            *(piece == 2 ? &shared.in : &shared.dy) = tegroup_impl_locate(from, &call.view, g);
    } else if (NUMBERS && piece == 4 && call.copies) {
        shared.global = tegroup_impl_group_global(&call.desc, g);
        if (tegroup_impl_scaled_as_one(&call.facts)) {
            const float factor = tegroup_impl_factor_of(tegroup_impl_quantize_group_scale(call, g));
            shared.factor[0][0] = shared.factor[1][0] = factor;
        }
    }
}

/* A block's way through the works of a tensor, group by group. All threads call its functions. */
template <bool NUMBERS> struct tegroup_impl_quantize_walk {
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    const bool fits;    /* the snapshot is one for the tensor; else there are no works */
    int64_t begin, end; /* the block's first work, and the end of the stretch that blocks beside each other share */
    int64_t part_end;   /* of the works of the part that was met last; 0 before the first one */
    int32_t step, turn; /* they take turns: of each `step` works the block has one, every time the next of them */

    __device__ __forceinline__ tegroup_impl_quantize_walk(const tegroup_impl_quantize_launch &c,
                                                          tegroup_impl_quantize_shared &s)
        : call(c), shared(s), fits(fitting(c)), begin(0), end(0), part_end(0), step(1), turn(0) {
        if (fits) share();
    }
    static __device__ __forceinline__ bool fitting(const tegroup_impl_quantize_launch &call) {
        const tegroup_impl_fit fit = tegroup_impl_fit_of(&call.desc.output);
        return !tegroup_impl_ragged(&call.desc.output.shape) || (fit.header && tegroup_impl_fits(&fit));
    }

    /* What each thread's groups have: works, scales of either copy, elements of a transposed one. It lies where the
     * tables will be. */
    typedef int64_t of_threads[TEGROUP_IMPL_QUANTIZE_THREADS];
    __device__ __forceinline__ of_threads *sums() const { return (of_threads *)shared.amax; }

    /* Makes sums of what the threads before this one have, of the kinds that are asked for as bits, and returns the
     * total of the first over all threads. A warp makes a sum, of eight threads a lane. */
    __device__ __forceinline__ int64_t scan(int32_t asked) const {
        enum { OF_LANE = TEGROUP_IMPL_QUANTIZE_THREADS / 32 };
        const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32;
        __syncthreads();
        if (asked >> warp & 1) {
            int64_t *const mine = sums()[warp] + lane * OF_LANE;
            int64_t before = 0, all = 0;
#pragma unroll 1
            for (int32_t i = 0; i < OF_LANE; i++) all += mine[i];
#pragma unroll 1
            for (int32_t step = 1; step < 32; step *= 2) {
                const int64_t other = __shfl_up_sync(0xffffffffu, before + all, step);
                if (lane >= step) before += other;
            }
#pragma unroll 1
            for (int32_t i = 0; i < OF_LANE; i++) {
                const int64_t one = mine[i];
                mine[i] = before;
                before += one;
            }
            if (threadIdx.x == 31) shared.works = before;
        }
        __syncthreads();
        return shared.works; /* which nobody writes any more */
    }

    /* Counts the works, and finds where the block's begin: the thread that has their group knows what is before it. */
    __device__ __forceinline__ void share() {
        const int32_t groups = call.desc.output.shape.groups, threads = TEGROUP_IMPL_QUANTIZE_THREADS,
                      each = (groups + threads - 1) / threads, blocks = (int32_t)gridDim.x,
                      first = (int32_t)blockIdx.x / TEGROUP_IMPL_QUANTIZE_BESIDE * TEGROUP_IMPL_QUANTIZE_BESIDE;
        const int32_t thread = (int32_t)threadIdx.x, g = min(groups, thread * each), to = min(groups, g + each);
        tegroup_impl_before taken = {{0, 0}, 0};
        int64_t mine = 0;
#pragma unroll 1
        for (int32_t h = g; h < to; h++) mine += tegroup_impl_quantize_take(call, h, &taken);
        of_threads *const sum = sums();
        sum[0][thread] = mine;
        sum[1][thread] = taken.scales[0], sum[2][thread] = taken.scales[1];
        sum[3][thread] = taken.transposed;
        const int64_t works = scan(1 | call.copies << 1 | tegroup_impl_quantize_turns(call) << 3);
        /* A division of 64 bits would be long. What is more than 32 bits, of sizes that no memory holds, is shared out
         * less evenly. */
        const int32_t coarse = works >> 31 ? 31 : 0;
        const int64_t stretch = (int64_t)(((uint32_t)(works >> coarse) + blocks - 1) / (uint32_t)blocks + (coarse > 0))
                                << coarse;
        step = min(TEGROUP_IMPL_QUANTIZE_BESIDE, blocks - first);
        turn = (int32_t)blockIdx.x - first;
        begin = stretch * first + turn;
        end = tegroup_impl_min(stretch * (first + step), works);
        if (begin >= end || begin < sum[0][thread] || begin >= sum[0][thread] + mine) return;
        /* Of a thread with one group that is the group; else its first one comes after one that has no works. */
        shared.g = each > 1 ? g - 1 : g;
        shared.works_before = sum[0][thread];
        shared.works_of = each > 1 ? 0 : mine;
        shared.before = {{sum[1][thread], sum[2][thread]}, sum[3][thread]};
        shared.after = shared.before;
        if (each == 1) {
            shared.after.scales[0] += taken.scales[0];
            shared.after.scales[1] += taken.scales[1];
            shared.after.transposed += taken.transposed;
        }
        tegroup_impl_quantize_find(call, shared, begin);
    }
    __device__ __forceinline__ int64_t next(int64_t work) {
        turn = turn + 1 < step ? turn + 1 : 0;
        return turn > 0 ? work + step + 1 : work + 1;
    }
    /* Goes on to a work of another part, or of another group: to that from part_end on. */
    __device__ __forceinline__ void meet(int64_t work) {
        __syncthreads(); /* what is known of the part before has been read, or the first one has been found */
        if (work != begin) {
            if (threadIdx.x == 0) tegroup_impl_quantize_find(call, shared, work);
            __syncthreads();
        }
        if (threadIdx.x % 32 == 0) tegroup_impl_quantize_describe<NUMBERS>(call, shared, (int)threadIdx.x / 32);
        part_end = shared.end;
        __syncthreads();
    }
    /* The row and column of the part where a work begins. A work has 2^14 elements, or whole rows or columns. */
    __device__ __forceinline__ void place(int64_t work, int64_t *row, int64_t *col) const {
        const uint32_t at = (uint32_t)(work - shared.first), down = at / (uint32_t)shared.across;
        *row = (int64_t)down << call.down_shift;
        *col = (int64_t)(at - down * (uint32_t)shared.across) << call.across_shift;
    }
};
