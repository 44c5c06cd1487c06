/* ---- Quantise and dequantise: kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "formats/dtype.h"
#include "core/constructors.h"
#include "formats/convert.h"
#include "formats/scale_rule.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/checks.h"
#include "core/scale_convert.h"
#include "core/product.h"
#include "core/activation_formulas.h"
#include "layer/quantize_rules.h"
#include "layer/quantize.h"
#include "cuda/launch.h"
#include "cuda/prepare.h"
#include "cuda/rows.h"
#include "layer/activation_cuda.h"

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

/* Eight values of a row, in the type that they have in memory. */
template <int DTYPE> struct tegroup_impl_eight {
    typedef tegroup_impl_vectors<DTYPE> vectors;
    enum { raws = 8 / vectors::lanes };
    uint4 raw[raws];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < raws; i++) raw[i] = make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void unpack(float *x) const {
#pragma unroll
        for (int i = 0; i < raws; i++) vectors::unpack(raw[i], x + i * vectors::lanes);
    }
    __device__ __forceinline__ void pack(const float *x) {
#pragma unroll
        for (int i = 0; i < raws; i++) raw[i] = vectors::pack(x + i * vectors::lanes);
    }
    /* The j-th, for a j that the compiler knows. */
    __device__ __forceinline__ float at(int j) const {
        float x[8];
        unpack(x);
        return x[j];
    }
    /* What was unpacked before is unpacked anew afterwards, instead of being held in registers. */
    __device__ __forceinline__ void forget() {
#pragma unroll
        for (int i = 0; i < raws; i++)
            asm volatile("" : "+r"(raw[i].x), "+r"(raw[i].y), "+r"(raw[i].z), "+r"(raw[i].w));
    }
    /* n of the row's elements from column col on, then zeros. */
    __device__ __forceinline__ void load(const char *row, int64_t col, int32_t n, bool vector) {
        if (!vector || n < 8) {
            tegroup_impl_eight slow; /* of its own, as the call wants an address, and registers have none */
            slow.load_each(row, col, n);
            *this = slow;
            return;
        }
        const uint4 *at = (const uint4 *)(row + col * vectors::bytes);
#pragma unroll
        for (int i = 0; i < raws; i++) raw[i] = __ldg(at + i);
    }
    __device__ __noinline__ void load_each(const char *row, int64_t col, int32_t n) {
        uint32_t word[4 * raws];
#pragma unroll
        for (int e = 0; e < 4 * raws; e++) word[e] = 0;
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (e < n)
                word[e * raws / 2] |= tegroup_impl_load_code((tegroup_dtype)DTYPE, row, col + e)
                                      << (raws == 1 ? e % 2 * 16 : 0);
#pragma unroll
        for (int i = 0; i < raws; i++)
            raw[i] = make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
    }
};

#if !defined(TEGROUP_NO_ACTIVATION)
/* Eight values of an activation, or of the gradient of one, from column col of the row that is quantised: its first n.
 * dy NULL: no gradient. The loops by kind are those of the kernels of activations, and so are the bits. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_made_eight(const tegroup_quantize_desc &desc, const char *x,
                                                            const char *dy, float scale, int64_t col, int32_t n,
                                                            bool vector, float *y) {
    const bool half = DTYPE != TEGROUP_DTYPE_F32, gated = tegroup_impl_gated(desc.activation);
    const float alpha = (float)desc.alpha, limit = (float)desc.limit;
    const int64_t cols = desc.output.shape.cols, width = dy && gated ? cols / 2 : cols;
    tegroup_impl_eight<DTYPE> piece;
    float both[16], gate[8], up[8], grad[8];
    const bool pairs = gated && desc.interleaved, ups = dy && gated && !pairs && col >= width;
    const int64_t from = ups ? col - width : pairs && dy ? col / 2 : col;
    const int32_t count = pairs && dy ? n / 2 : n; /* of gates */
#pragma unroll
    for (int i = 0; i < 8; i++) up[i] = 1;
    if (pairs) {
        piece.load(x, 2 * from, (int32_t)tegroup_impl_min(8, 2 * count), vector);
        piece.unpack(both);
        piece.load(x, 2 * from + 8, (int32_t)tegroup_impl_max(0, 2 * count - 8), vector && from % 4 == 0);
        piece.unpack(both + 8);
#pragma unroll
        for (int i = 0; i < 8; i++) gate[i] = both[2 * i], up[i] = both[2 * i + 1];
    } else {
        piece.load(x, from, count, vector && from % 8 == 0);
        piece.unpack(gate);
        if (gated) {
            piece.load(x, from + width, count, vector && (from + width) % 8 == 0);
            piece.unpack(up);
        }
    }
    if (!dy) {
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    _Pragma("unroll") for (int i = 0; i < 8; i++) y[i] =                                                               \
        scale * tegroup_impl_activation_f32(kind, half, alpha, limit, gate[i], up[i]);
        TEGROUP_IMPL_BY_CURVE(desc.activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
        return;
    }
    piece.load(dy, from, count, vector && from % 8 == 0);
    piece.unpack(grad);
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    _Pragma("unroll") for (int i = 0; i < 8; i++)(void)                                                                \
        tegroup_impl_activation_grad_f32(kind, half, alpha, limit, gate[i], up[i], scale *grad[i], &gate[i], &up[i]);
    TEGROUP_IMPL_BY_CURVE(desc.activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = pairs ? (i % 2 ? up[i / 2] : gate[i / 2]) : ups ? up[i] : gate[i];
}
#endif

/* The code of E2M1, for the device: between powers of two its values are apart by halves, ones and twos, so that a sum
 * with a large number rounds to them, ties to even. */
static __device__ __forceinline__ uint32_t tegroup_impl_device_e2m1(float x) {
    const uint32_t bits = __float_as_uint(x), magnitude = min(bits & 0x7fffffffu, 0x40c00000u); /* 6, of NaN, too */
    const bool ones = magnitude >= 0x40000000u, twos = magnitude >= 0x40800000u;
    float sum;
    asm("fma.rn.f32 %0, %1, %2, %3;"
        : "=f"(sum)
        : "f"(__uint_as_float(magnitude)),
          "f"(twos   ? 0.5f
              : ones ? 1.0f
                     : 2.0f),
          "f"(12582912.0f));
    const uint32_t code = (__float_as_uint(sum) & 15u) + (twos ? 4u : ones ? 2u : 0u);
    return code | ((bits & 0x7fffffffu) > 0x7f800000u ? 0u : bits >> 28 & 8u);
}

/* Two codes beside each other, of values that are scaled already: bits 0 .. 7 and 8 .. 15; of 4 bits 0 .. 3 and 4 .. 7.
 * They are those of tegroup_impl_code_of_f32. */
template <int CODE> static __device__ __forceinline__ uint32_t tegroup_impl_two_codes(float low, float high) {
    if (CODE == TEGROUP_DTYPE_F4E2M1) return tegroup_impl_device_e2m1(low) | tegroup_impl_device_e2m1(high) << 4;
#if __CUDA_ARCH__ >= 890
    uint16_t word;
    if (CODE == TEGROUP_DTYPE_F8E4M3) asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(word) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(word) : "f"(high), "f"(low));
    return word;
#else
    return tegroup_impl_code_of_f32((tegroup_dtype)CODE, low)
           | tegroup_impl_code_of_f32((tegroup_dtype)CODE, high) << 8;
#endif
}

/* Eight codes from the first in the lowest bits on: two words, of 4 bits one. */
template <int CODE> static __device__ __forceinline__ uint2 tegroup_impl_eight_codes(const float *x) {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++) pair[i] = tegroup_impl_two_codes<CODE>(x[2 * i], x[2 * i + 1]);
    if (CODE == TEGROUP_DTYPE_F4E2M1) return make_uint2(pair[0] | pair[1] << 8 | pair[2] << 16 | pair[3] << 24, 0);
    return make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
}

/* Eight values as tegroup_impl_scaled_code scales them. Factors are multipliers, or where the rule divides, scales that
 * are not 0. Few rules divide: that is not inlined. */
static __device__ __noinline__ void tegroup_impl_divide_eight(float *x, const float *factor) {
    for (int i = 0; i < 8; i++)
        x[i] = factor[i] != 0.0f ? tegroup_impl_quotient_f32(x[i], factor[i]) : tegroup_impl_product_f32(x[i], 0.0f);
}
static __device__ __forceinline__ void tegroup_impl_scale_eight(float *x, const float *factor, bool divides) {
    if (divides) {
        float y[8], by[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = x[i], by[i] = factor[i];
        tegroup_impl_divide_eight(y, by);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = y[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = tegroup_impl_product_f32(x[i], factor[i]);
    }
}

/* The larger magnitude, as tegroup_impl_amax takes it; shows: a NaN is the largest. */
template <bool SHOWS> static __device__ __forceinline__ uint32_t tegroup_impl_larger_magnitude(uint32_t most, float x) {
    if (SHOWS) return max(most, __float_as_uint(x) & 0x7fffffffu);
    float larger;
    asm("{.reg .f32 a; abs.f32 a, %2; max.f32 %0, %1, a;}" : "=f"(larger) : "f"(__uint_as_float(most)), "f"(x));
    return __float_as_uint(larger);
}

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

/* The largest magnitude of a block, from the tables. */
static __device__ __forceinline__ uint32_t tegroup_impl_table_amax(const tegroup_impl_quantize_shared &shared,
                                                                   int columnwise, int32_t o, int32_t i, int32_t choice,
                                                                   int32_t span) {
    const uint32_t *table = shared.amax[columnwise];
    const int32_t blocks = TEGROUP_IMPL_QUANTIZE_TILE / span, bands = span / 16;
    uint32_t most = 0;
    for (int32_t c = o * choice; c < (o + 1) * choice; c++) {
        if (!columnwise) most = max(most, table[c * blocks + i]);
        for (int32_t b = i * bands; b < (i + 1) * bands && columnwise; b++)
            most = max(most, table[b * TEGROUP_IMPL_QUANTIZE_COLS + c]);
    }
    return most;
}

/* The scale of a block of so large an amax, its factor into the table. Returns its code. */
static __device__ __forceinline__ uint32_t tegroup_impl_table_scale(const tegroup_impl_quantize_launch &call,
                                                                    tegroup_impl_quantize_shared &shared,
                                                                    int columnwise, int32_t entry, float amax) {
    const tegroup_quantize_desc &desc = call.desc;
    const tegroup_impl_block_scale block = tegroup_impl_scale_block(&desc.rule, desc.output.dtype, call.scale_dtype,
                                                                    amax, tegroup_impl_group_global(&desc, shared.g));
    shared.factor[columnwise][entry] = block.divide ? block.stored : block.multiplier;
    return block.bits;
}

/* The scales of one copy of the tile, or of a strip of tiles: from the table of amax to that of factors, and to
 * where they are stored, with what pads them. The scale of TENSOR is stored elsewhere. */
static __device__ __noinline__ void tegroup_impl_table_scales(const tegroup_impl_quantize_launch &call,
                                                              tegroup_impl_quantize_shared &shared, int64_t row0,
                                                              int64_t col0, int columnwise, int32_t choice,
                                                              int32_t span) {
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const tegroup_impl_scale_grid &grid = copy.grid;
    const bool inner_blocks = call.facts.block_inner > 0;
    const int64_t outer0 = columnwise ? col0 : row0, inner0 = columnwise ? row0 : col0;
    if (tegroup_impl_scaled_as_one(&call.facts)) {
        const float *amax = call.desc.output.amax;
        if (threadIdx.x == 0) (void)tegroup_impl_table_scale(call, shared, columnwise, 0, amax ? amax[shared.g] : 0.0f);
        return;
    }
    const int32_t block = (int32_t)grid.block_outer;
    const int64_t outer_begin = outer0 / block, inner_begin = inner_blocks ? inner0 / span : 0;
    const int32_t outers = (int32_t)(tegroup_impl_blocks_end(outer0, block, grid.outer_count, grid.outer_extent)
                                     - outer_begin),
                  inners = !inner_blocks
                               ? 1
                               : (int32_t)(tegroup_impl_blocks_end(inner0, span, grid.inner_count, grid.inner_extent)
                                           - inner_begin);
    const bool down = !grid.swizzled && grid.outer_stride < grid.inner_stride; /* the outer index is contiguous */
    for (int32_t e = (int32_t)threadIdx.x; e < outers * inners; e += TEGROUP_IMPL_QUANTIZE_THREADS) {
        const int32_t o = down ? e % outers : e / inners, i = down ? e / outers : e % inners,
                      of_choice = o * block / choice;
        uint32_t bits = 0;
        if (outer_begin + o < grid.outer_count && inner_begin + i < grid.inner_count)
            bits = tegroup_impl_table_scale(
                call, shared, columnwise,
                columnwise ? i * TEGROUP_IMPL_QUANTIZE_COLS + of_choice
                           : of_choice * (TEGROUP_IMPL_QUANTIZE_TILE / span) + i,
                __uint_as_float(tegroup_impl_table_amax(shared, columnwise, of_choice, i, choice, span)));
        if (copy.data)
            tegroup_impl_store_code(call.scale_dtype, copy.scales,
                                    tegroup_impl_scale_of_block(&grid, shared.part, outer_begin + o, inner_begin + i),
                                    bits);
    }
}

/* A thread's piece of a tile, and its place: rows `row` .. row + 7, columns `col` .. col + 7 of the tile. */
template <int DTYPE> struct tegroup_impl_quantize_piece {
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    int32_t row, col;
    int32_t rows, cols; /* of the tile that its part has */
    int64_t row0, col0; /* the tile's first, in the part */
    tegroup_impl_eight<DTYPE> x[8];

    __device__ tegroup_impl_quantize_piece(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s)
        : call(c), shared(s), row((int32_t)threadIdx.x / 16 * 8), col((int32_t)threadIdx.x % 16 * 8), rows(0), cols(0),
          row0(0), col0(0) {}

    __device__ __forceinline__ void place(int64_t at_row, int64_t at_col) {
        row0 = at_row;
        col0 = at_col;
        rows = (int32_t)tegroup_impl_min(TEGROUP_IMPL_QUANTIZE_TILE, shared.part_rows - row0);
        cols = (int32_t)tegroup_impl_min(TEGROUP_IMPL_QUANTIZE_TILE, shared.cols - col0);
    }
    __device__ __forceinline__ void forget() {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i].forget();
    }
    __device__ __forceinline__ int32_t valid() const { return (int32_t)tegroup_impl_clamp(cols - col, 0, 8); }

    __device__ __forceinline__ void load() {
        const tegroup_quantize_desc &desc = call.desc;
        const int64_t first = shared.part * shared.part_rows + row0 + row;
        const int bytes = tegroup_impl_eight<DTYPE>::vectors::bytes;
        const bool vector = call.vectors && ((uintptr_t)shared.in.base & 15) == 0;
        const int32_t n = valid();
#if !defined(TEGROUP_NO_ACTIVATION)
        if (desc.activation != TEGROUP_ACTIVATION_UNSET) {
            make(first, n, vector);
            return;
        }
#endif
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int64_t at =
                row + i < rows && n > 0 ? tegroup_impl_row_at(&desc.gather_input, &shared.in, first + i) : -1;
            if (at < 0) x[i].clear();
            else x[i].load(shared.in.base + at * bytes, col0 + col, n, vector);
        }
    }
#if !defined(TEGROUP_NO_ACTIVATION)
    /* The same of an activation. */
    __device__ __forceinline__ void make(int64_t first, int32_t n, bool vector) {
        const tegroup_quantize_desc &desc = call.desc;
        const int bytes = tegroup_impl_eight<DTYPE>::vectors::bytes;
        const bool gradient = desc.grad_output.dtype != TEGROUP_DTYPE_UNSET;
        const int64_t at = col0 + col, width = desc.output.shape.cols / 2;
        const bool straddles =
            gradient && tegroup_impl_gated(desc.activation) && !desc.interleaved && at < width && at + n > width;
        vector = vector && (!gradient || ((uintptr_t)shared.dy.base & 15) == 0);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float y[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            const int64_t r = first + i;
            const char *in = shared.in.base + (shared.in.first + r * shared.in.ld) * bytes,
                       *dy = gradient ? shared.dy.base + (shared.dy.first + r * shared.dy.ld) * bytes : NULL;
            x[i].clear();
            if (row + i >= rows || n == 0) continue;
            const float scale = tegroup_impl_weight<float>(desc.row_scale, shared.in.row0 + r, 0);
            if (!straddles) tegroup_impl_made_eight<DTYPE>(desc, in, dy, scale, at, n, vector, y);
            for (int32_t e = 0; e < n && straddles; e++) {
                float one[8];
                tegroup_impl_made_eight<DTYPE>(desc, in, dy, scale, at + e, 1, false, one);
                y[e] = one[0];
            }
#pragma unroll
            for (int e = 0; e < 8; e++) y[e] = e < n ? y[e] : 0.0f;
            x[i].pack(y);
        }
    }
#endif

    /* The piece's amax into the tables, the larger of it and what is there unless it is the first; returns it. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t collect(int32_t span, bool first) {
        uint32_t of_col[8] = {0, 0, 0, 0, 0, 0, 0, 0}, of_row[8], most = 0;
        const int32_t lanes = span / 8, blocks = TEGROUP_IMPL_QUANTIZE_TILE / span, lane = (int32_t)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float v[8];
            x[i].unpack(v);
            of_row[i] = 0;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                of_row[i] = tegroup_impl_larger_magnitude<SHOWS>(of_row[i], v[j]);
                of_col[j] = tegroup_impl_larger_magnitude<SHOWS>(of_col[j], v[j]);
            }
            most = max(most, of_row[i]);
        }
        if (call.copies & 1 << TEGROUP_IMPL_ROWWISE) {
            uint32_t *table = shared.amax[TEGROUP_IMPL_ROWWISE];
            for (int step = 1; step < lanes; step *= 2)
#pragma unroll
                for (int i = 0; i < 8; i++) of_row[i] = max(of_row[i], __shfl_xor_sync(0xffffffffu, of_row[i], step));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                uint32_t *const at = table + (row + i) * blocks + col / span;
                if (lane % lanes == 0) *at = first ? of_row[i] : max(*at, of_row[i]);
            }
        }
        if (call.copies & 1 << TEGROUP_IMPL_COLUMNWISE) {
            uint32_t *table = shared.amax[TEGROUP_IMPL_COLUMNWISE] + row / 16 * TEGROUP_IMPL_QUANTIZE_COLS + col;
#pragma unroll
            for (int j = 0; j < 8; j++) of_col[j] = max(of_col[j], __shfl_xor_sync(0xffffffffu, of_col[j], 16));
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (lane < 16) table[j] = first ? of_col[j] : max(table[j], of_col[j]);
        }
        return most;
    }

    /* Codes beside each other from column col0 + col on, n of them. */
    template <int CODE>
    __device__ __forceinline__ void store(const tegroup_impl_copy &copy, int64_t r, const float *y, int32_t n) const {
        const int64_t at = tegroup_impl_element_of(&copy, r, col0 + col);
        const uint2 codes = tegroup_impl_eight_codes<CODE>(y);
        const int bits = CODE == TEGROUP_DTYPE_F4E2M1 ? 4 : 8;
        char *to = copy.data + at * bits / 8;
        if (n == 8 && ((uintptr_t)to & (bits - 1)) == 0) {
            if (bits == 8) *(uint2 *)to = codes;
            else *(uint32_t *)to = codes.x;
            return;
        }
        for (int32_t e = 0; e < n; e++) {
            const uint32_t word = bits == 8 && e >= 4 ? codes.y : codes.x;
            tegroup_impl_store_code((tegroup_dtype)CODE, copy.data, at + e, word >> e % (32 / bits) * bits);
        }
    }

    template <int CODE> __device__ __forceinline__ void encode_rowwise(int32_t choice, int32_t span) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const int32_t n = valid(), blocks = TEGROUP_IMPL_QUANTIZE_TILE / span;
        if (!copy.data || n == 0) return;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float y[8], factor[8];
            if (row + i >= rows) break;
            factor[0] = shared.factor[TEGROUP_IMPL_ROWWISE][(row + i) / choice * blocks + col / span];
#pragma unroll
            for (int j = 1; j < 8; j++) factor[j] = factor[0];
            x[i].unpack(y);
            tegroup_impl_scale_eight(y, factor, call.desc.rule.divide);
            store<CODE>(copy, shared.part * shared.part_rows + row0 + row + i, y, n);
        }
    }

    __device__ __forceinline__ void column_factors(int32_t choice, int32_t span, float *factor) const {
        const float *table = shared.factor[TEGROUP_IMPL_COLUMNWISE] + row / span * TEGROUP_IMPL_QUANTIZE_COLS;
#pragma unroll
        for (int j = 0; j < 8; j++) factor[j] = table[(col + j) / choice];
    }
    template <int CODE> __device__ __forceinline__ void encode_columnwise(int32_t choice, int32_t span) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int32_t n = valid();
        float factor[8];
        if (!copy.data || n == 0) return;
        column_factors(choice, span, factor);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float y[8];
            if (row + i >= rows) break;
            x[i].unpack(y);
            tegroup_impl_scale_eight(y, factor, call.desc.rule.divide);
            store<CODE>(copy, shared.part * shared.part_rows + row0 + row + i, y, n);
        }
    }

    /* Transposed: eight rows of each column go to shared memory, where the pieces of a column are in another order, by
     * which eight columns it is of: neither these stores nor the loads of whole columns meet in a bank. */
    template <int CODE> __device__ __forceinline__ void turn(int32_t choice, int32_t span) const {
        const int32_t words = CODE == TEGROUP_DTYPE_F4E2M1 ? 1 : 2;
        float factor[8];
        column_factors(choice, span, factor);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float y[8], by[8];
            uint32_t *to = (uint32_t *)shared.turned + ((col + j) * 16 + (row / 8 ^ col / 8)) * words;
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = x[i].at(j), by[i] = factor[j];
            tegroup_impl_scale_eight(y, by, call.desc.rule.divide);
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = row + i < rows ? y[i] : 0.0f; /* no NaN of a factor pads the rows */
            const uint2 codes = tegroup_impl_eight_codes<CODE>(y);
            if (words == 2) *(uint2 *)to = codes;
            else *to = codes.x;
        }
    }

    /* What is in shared memory, to the rows of the transposed copy; after the last row come the zeros that pad it. */
    template <int CODE> __device__ __forceinline__ void store_turned() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int32_t bits = CODE == TEGROUP_DTYPE_F4E2M1 ? 4 : 8, in_16_bytes = 128 / bits,
                      pieces = TEGROUP_IMPL_QUANTIZE_TILE / in_16_bytes;
        const int64_t first = shared.part * shared.part_rows + row0;
        const int32_t end = first + rows < shared.rows ? rows : (int32_t)(copy.at.col_stride - first);
        if (!copy.data) return;
        for (int32_t e = (int32_t)threadIdx.x; e < cols * pieces; e += TEGROUP_IMPL_QUANTIZE_THREADS) {
            const int32_t c = e / pieces, piece = e % pieces, from = piece * in_16_bytes, order = c / 8;
            const int64_t at = tegroup_impl_element_of(&copy, first + from, col0 + c);
            char *to = copy.data + at * bits / 8;
            uint4 v;
            if (bits == 8) {
                v = shared.turned[c * 8 + (piece ^ order / 2)];
                if (order % 2) v = make_uint4(v.z, v.w, v.x, v.y);
            } else {
                v = shared.turned[c * 4 + (piece ^ order / 4)];
                if (order % 2) v = make_uint4(v.y, v.x, v.w, v.z);
                if (order / 2 % 2) v = make_uint4(v.z, v.w, v.x, v.y);
            }
            if (from + in_16_bytes <= end && ((uintptr_t)to & 15) == 0) {
                *(uint4 *)to = v;
                continue;
            }
            const uint32_t word[4] = {v.x, v.y, v.z, v.w};
            const int32_t count = (int32_t)tegroup_impl_clamp(end - from, 0, in_16_bytes) * bits / 8;
#pragma unroll
            for (int32_t b = 0; b < 16; b++)
                if (b < count) to[b] = (char)(word[b / 4] >> b % 4 * 8);
        }
    }

    template <int CODE> __device__ __forceinline__ void encode(int32_t choice, int32_t span) const {
        if (call.copies & 1 << TEGROUP_IMPL_ROWWISE) encode_rowwise<CODE>(choice, span);
        if (!(call.copies & 1 << TEGROUP_IMPL_COLUMNWISE)) return;
        if (!tegroup_impl_transposed(&call.desc.output, TEGROUP_IMPL_COLUMNWISE)) {
            encode_columnwise<CODE>(choice, span);
            return;
        }
        turn<CODE>(choice, span);
        __syncthreads();
        store_turned<CODE>();
        __syncthreads();
    }
};

/* The warp's largest magnitude goes to its group. */
static __device__ __forceinline__ void tegroup_impl_raise(const tegroup_tensor &t, int32_t g, uint32_t most) {
    for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (most > 0x7f800000u) most = 0x7fffffffu; /* as tegroup_impl_amax has it */
    if (threadIdx.x % 32 != 0 || most == 0) return;
    if (t.amax) atomicMax((uint32_t *)t.amax + g, most);
    if (t.columnwise_amax) atomicMax((uint32_t *)t.columnwise_amax + g, most);
}

/* amax of every group begins as 0. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS)
    tegroup_impl_quantize_clear_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    const tegroup_tensor &t = call.desc.output;
    const tegroup_snapshot_view view = tegroup_impl_fitting_view(&t);
    if (tegroup_impl_ragged(&t.shape) && !view.header) return;
    for (int32_t g = (int32_t)threadIdx.x; g < t.shape.groups; g += TEGROUP_IMPL_QUANTIZE_THREADS) {
        if (t.amax) t.amax[g] = 0;
        if (t.columnwise_amax) t.columnwise_amax[g] = 0;
    }
}

/* What is one number a group, after its amax. */
static __device__ __noinline__ void tegroup_impl_quantize_store_groups(const tegroup_impl_quantize_launch &call,
                                                                       const tegroup_snapshot_view &view) {
    const tegroup_tensor *t = &call.desc.output;
    if (tegroup_impl_ragged(&t->shape) && !view.header) return;
    for (int32_t g = (int32_t)threadIdx.x; g < t->shape.groups; g += TEGROUP_IMPL_QUANTIZE_THREADS) {
        const tegroup_impl_before before = {{g, g}, 0}; /* of TENSOR, which alone has scales here */
        tegroup_impl_copy copies[TEGROUP_IMPL_COPIES];
        for (int c = 0; c < TEGROUP_IMPL_COPIES; c++)
            copies[c] = tegroup_impl_copy_of(t, &call.facts, &view, g, c, &before);
        tegroup_impl_store_group(&call.desc, &call.facts, copies, g);
    }
}

/* A work is a tile; of scaling ROW a strip of them, through which a block goes twice. Without copies amax alone is
 * looked for. */
template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, 2)
    tegroup_impl_quantize_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk walk(call, shared);
    tegroup_impl_quantize_piece<DTYPE> piece(call, shared);
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_TILE,
                  choice = call.facts.choice_outer > 0 ? call.facts.choice_outer : tile,
                  span = call.facts.block_inner > 0 ? call.facts.block_inner : tile;
    const bool whole = tegroup_impl_scaled_as_one(&call.facts);
    uint32_t most = 0;
    int32_t g = -1;
    if (blockIdx.x == 0 && call.copies) tegroup_impl_quantize_store_groups(call, walk.view);
    for (int64_t work = walk.begin; work < walk.end; work++) {
        if (work == walk.begin || work >= shared.end) {
            if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
            most = 0;
            __syncthreads();
            if (threadIdx.x == 0) walk.meet(work);
            __syncthreads();
            g = shared.g;
        }
        const int64_t in_part = work - shared.first, row0 = in_part / shared.across * tile,
                      col0 = in_part % shared.across * tile,
                      length = call.spans_cols   ? shared.cols
                               : call.spans_rows ? shared.part_rows
                                                 : 1;
        for (int64_t at = 0; at < length; at += tile) {
            piece.place(call.spans_rows ? at : row0, call.spans_cols ? at : col0);
            piece.load();
            if (!whole || call.raises)
                most = max(most, call.desc.rule.nan_shows ? piece.template collect<true>(span, at == 0)
                                                          : piece.template collect<false>(span, at == 0));
        }
        if (!call.copies) continue;
        __syncthreads();
        for (int c = 0; c < TEGROUP_IMPL_COPIES; c++)
            if (call.copies >> c & 1) tegroup_impl_table_scales(call, shared, piece.row0, piece.col0, c, choice, span);
        __syncthreads();
        for (int64_t at = 0; at < length; at += tile) {
            if (length > tile) {
                piece.place(call.spans_rows ? at : row0, call.spans_cols ? at : col0);
                piece.load();
            }
            piece.forget();
            switch (call.desc.output.dtype) {
            case TEGROUP_DTYPE_F8E5M2: piece.template encode<TEGROUP_DTYPE_F8E5M2>(choice, span); break;
            case TEGROUP_DTYPE_F4E2M1: piece.template encode<TEGROUP_DTYPE_F4E2M1>(choice, span); break;
            default: piece.template encode<TEGROUP_DTYPE_F8E4M3>(choice, span); break;
            }
        }
    }
    if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
}

/* A product of two factors, rounded to odd, so that a second rounding to 16 bits gives what one would have given. */
static __device__ __forceinline__ float tegroup_impl_odd_product(float a, float b) {
    float product, rest;
    asm("mul.rz.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    const uint32_t bits = __float_as_uint(product), magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x0d800000u || magnitude >= 0x7f800000u) /* below 2^-100 the rest would be lost */
        return tegroup_impl_f32_odd_of_f64(tegroup_impl_f64_of_f32(a) * tegroup_impl_f64_of_f32(b));
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(rest) : "f"(a), "f"(b), "f"(__uint_as_float(bits ^ 0x80000000u)));
    return __uint_as_float(bits | (rest != 0.0f ? 1u : 0u));
}

/* As tegroup_impl_dequantized: the product of a value, its scale and, beside scales of E4M3, the global one. The first
 * product is exact there. */
template <int DTYPE>
static __device__ __forceinline__ float tegroup_impl_scaled_back(float x, float scale, bool two, float global) {
    if (two) {
        x = tegroup_impl_product_f32(x, scale);
        scale = global;
    }
    x = DTYPE == TEGROUP_DTYPE_F32 ? tegroup_impl_product_f32(x, scale) : tegroup_impl_odd_product(x, scale);
    return tegroup_impl_is_nan(x) ? __uint_as_float(0x7fffffffu) : x;
}

typedef struct tegroup_impl_dequantize_launch {
    tegroup_impl_quantize_launch from; /* its output is what is read */
    tegroup_tensor output;
} tegroup_impl_dequantize_launch;

/* The scales of a tile, to the table of factors: [row][block], columnwise [block][column], by blocks of both. */
static __device__ __noinline__ void tegroup_impl_dequantize_scales(const tegroup_impl_quantize_launch &call,
                                                                   tegroup_impl_quantize_shared &shared, int columnwise,
                                                                   int64_t row0, int64_t col0, int32_t block,
                                                                   int32_t span) {
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const int32_t outers = TEGROUP_IMPL_QUANTIZE_TILE / block, inners = TEGROUP_IMPL_QUANTIZE_TILE / span;
    const int64_t outer0 = columnwise ? col0 : row0, inner0 = columnwise ? row0 : col0;
    for (int32_t e = (int32_t)threadIdx.x; e < outers * inners; e += TEGROUP_IMPL_QUANTIZE_THREADS) {
        const int32_t o = e / inners, i = e % inners;
        const int64_t outer = (outer0 + o * block) / copy.grid.block_outer,
                      inner = (inner0 + i * span) / copy.grid.block_inner;
        if (outer < copy.grid.outer_count && inner < copy.grid.inner_count)
            shared.factor[columnwise][columnwise ? i * TEGROUP_IMPL_QUANTIZE_COLS + o : o * inners + i] =
                tegroup_impl_load_f32(call.scale_dtype, copy.scales,
                                      tegroup_impl_scale_of_block(&copy.grid, shared.part, outer, inner));
    }
}

/* A tile: a thread writes eight columns of a row at a time, of its eight rows. */
template <int DTYPE, int CODE>
static __device__ __forceinline__ void tegroup_impl_dequantize_tile(const tegroup_impl_dequantize_launch &call,
                                                                    const tegroup_impl_quantize_shared &shared,
                                                                    const tegroup_impl_block &out, int64_t row0,
                                                                    int64_t col0, int32_t block, int32_t span) {
    const tegroup_tensor &t = call.from.desc.output;
    const int columnwise = call.from.copies >> TEGROUP_IMPL_COLUMNWISE & 1, bits = CODE == TEGROUP_DTYPE_F4E2M1 ? 4 : 8;
    const int32_t row = (int32_t)threadIdx.x / 16 * 8, col = (int32_t)threadIdx.x % 16 * 8,
                  n = (int32_t)tegroup_impl_clamp(shared.cols - col0 - col, 0, 8);
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const float global = t.global_scale_inv ? t.global_scale_inv[shared.g] : 1.0f;
    for (int i = 0; i < 8 && row0 + row + i < shared.part_rows && n > 0; i++) {
        const int64_t r = shared.part * shared.part_rows + row0 + row + i,
                      at = tegroup_impl_element_of(&copy, r, col0 + col);
        const char *from = copy.data + at * bits / 8;
        char *to = out.base + (out.first + r * out.ld + col0 + col) * (DTYPE == TEGROUP_DTYPE_F32 ? 4 : 2);
        const bool together = n == 8 && copy.at.col_stride == 1 && ((uintptr_t)from & (bits - 1)) == 0;
        uint2 codes = make_uint2(0, 0);
        float y[8];
        if (together) codes = bits == 8 ? *(const uint2 *)from : make_uint2(*(const uint32_t *)from, 0);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int32_t entry = columnwise
                                      ? (row + i) / span * TEGROUP_IMPL_QUANTIZE_COLS + (col + j) / block
                                      : (row + i) / block * (TEGROUP_IMPL_QUANTIZE_TILE / span) + (col + j) / span;
            uint32_t code = (bits == 8 && j >= 4 ? codes.y : codes.x) >> j % (32 / bits) * bits & ((1u << bits) - 1);
            if (!together && j < n)
                code = tegroup_impl_load_code((tegroup_dtype)CODE, copy.data, at + j * copy.at.col_stride);
            y[j] =
                tegroup_impl_scaled_back<DTYPE>(tegroup_impl_f32_of_code((tegroup_dtype)CODE, code),
                                                shared.factor[columnwise][entry], t.global_scale_inv != NULL, global);
        }
        if (n == 8 && ((uintptr_t)to & 15) == 0) {
            tegroup_impl_eight<DTYPE> packed;
            packed.pack(y);
#pragma unroll
            for (int j = 0; j < tegroup_impl_eight<DTYPE>::raws; j++) ((uint4 *)to)[j] = packed.raw[j];
            continue;
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (j < n) tegroup_impl_store_f32((tegroup_dtype)DTYPE, to, j, y[j]);
    }
}

template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS)
    tegroup_impl_dequantize_kernel(const __grid_constant__ tegroup_impl_dequantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    const tegroup_impl_quantize_launch &from = call.from;
    const int columnwise = from.copies >> TEGROUP_IMPL_COLUMNWISE & 1;
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_TILE, block = from.facts.block_outer > 0 ? from.facts.block_outer : tile,
                  span = from.facts.block_inner > 0 ? from.facts.block_inner : tile;
    tegroup_impl_quantize_walk walk(from, shared);
    for (int64_t work = walk.begin; work < walk.end; work++) {
        const bool meets = work == walk.begin || work >= shared.end;
        __syncthreads(); /* the table of the tile before has been read */
        if (meets) {
            if (threadIdx.x == 0) walk.meet(work);
            __syncthreads();
        }
        const int64_t in_part = work - shared.first, row0 = in_part / shared.across * tile,
                      col0 = in_part % shared.across * tile;
        const tegroup_impl_block out = tegroup_impl_locate(&call.output, &walk.view, shared.g);
        if (!shared.copies[columnwise].data) continue; /* so all threads do */
        tegroup_impl_dequantize_scales(from, shared, columnwise, row0, col0, block, span);
        __syncthreads();
        switch (from.desc.output.dtype) {
#define TEGROUP_IMPL_CASE(code)                                                                                        \
    case code: tegroup_impl_dequantize_tile<DTYPE, code>(call, shared, out, row0, col0, block, span); break;
            TEGROUP_IMPL_CASE(TEGROUP_DTYPE_F8E5M2)
            TEGROUP_IMPL_CASE(TEGROUP_DTYPE_F4E2M1)
        default: tegroup_impl_dequantize_tile<DTYPE, TEGROUP_DTYPE_F8E4M3>(call, shared, out, row0, col0, block, span);
#undef TEGROUP_IMPL_CASE
        }
    }
}

/* Can rows of a plain tensor be read 16 bytes at a time, where its groups begin at multiples of 16? */
static inline int tegroup_impl_cuda_in_vectors(const tegroup_tensor *t) {
    const int64_t bytes = tegroup_impl_bits(t->dtype) / 8;
    return t->dtype == TEGROUP_DTYPE_UNSET
           || (!tegroup_impl_irregular(&t->shape) && tegroup_impl_ld(t) * bytes % 16 == 0
               && (tegroup_impl_ragged(&t->shape) || tegroup_impl_listed(t)
                   || tegroup_impl_group_stride(t) * bytes % 16 == 0));
}

static inline tegroup_impl_quantize_launch tegroup_impl_cuda_quantize_launch(const tegroup_tensor *t) {
    tegroup_impl_quantize_launch call;
    int copy;
    memset(&call, 0, sizeof call);
    call.desc.output = *t;
    call.facts = *tegroup_scaling_info(t->scaling);
    call.facts.name = NULL; /* of no use to a kernel */
    call.scale_dtype = tegroup_impl_one_scale(t, &call.facts);
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++) call.scale_capacity[copy] = tegroup_impl_scale_capacity(t, copy);
    call.transposed_capacity = tegroup_impl_transposed_capacity(t);
    return call;
}

/* Tiles that a tensor has at most, as blocks that share them out. */
static inline tegroup_status tegroup_impl_cuda_quantize_blocks(const tegroup_tensor *t, unsigned *blocks,
                                                               tegroup_error *error) {
    const int64_t tile = TEGROUP_IMPL_QUANTIZE_TILE, parts = t->scale_parts > 1 ? t->scale_parts : 1,
                  groups = t->shape.groups,
                  down = tegroup_impl_ragged(&t->shape)
                             ? tegroup_impl_ceil_div(t->shape.rows, tile) + groups
                             : groups * parts * tegroup_impl_ceil_div(t->shape.rows / parts, tile);
    return tegroup_impl_cuda_blocks(tegroup_impl_mul(down, tegroup_impl_ceil_div(t->shape.cols, tile)), 4, blocks,
                                    error);
}

/* A launch of the kernel that reads values of a type. */
#define TEGROUP_IMPL_BY_VALUES(dtype, kernel, ...)                                                                     \
    tegroup_impl_cuda_status(                                                                                          \
        (dtype) == TEGROUP_DTYPE_F32   ? tegroup_impl_launch(kernel<TEGROUP_DTYPE_F32>, __VA_ARGS__)                   \
        : (dtype) == TEGROUP_DTYPE_F16 ? tegroup_impl_launch(kernel<TEGROUP_DTYPE_F16>, __VA_ARGS__)                   \
                                       : tegroup_impl_launch(kernel<TEGROUP_DTYPE_BF16>, __VA_ARGS__),                 \
        "stream", "the kernel must launch", error)

#if !defined(TEGROUP_NO_ACTIVATION) && !defined(TEGROUP_NO_BACKWARD)
/* The gradient of the rows' scales: by the kernel of the separate call, which stores nothing else where grad_input has
 * no address; a group at a time where their rows do not follow one another. */
static inline tegroup_status tegroup_impl_cuda_quantize_sums(const tegroup_quantize_desc *desc,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_tensor *x = &desc->input, *dy = &desc->grad_output;
    const int ragged = tegroup_impl_ragged(&x->shape);
    const int32_t groups = ragged ? 1 : x->shape.groups;
    int32_t g;
    for (g = 0; g < groups; g++) {
        const int64_t rows = x->shape.rows, size = tegroup_impl_bits(x->dtype) / 8;
        tegroup_activation_backward_desc made = tegroup_impl_made_backward(desc);
        made.snapshot = ragged ? x->shape.snapshot : NULL;
        made.input =
            tegroup_matrix_of((char *)x->data + g * tegroup_impl_group_stride(x) * size, rows, x->shape.cols, x->dtype);
        made.input.ld = x->ld;
        made.grad_output = tegroup_matrix_of((char *)dy->data + g * tegroup_impl_group_stride(dy) * size, rows,
                                             dy->shape.cols, dy->dtype);
        made.grad_output.ld = dy->ld;
        made.grad_input = tegroup_matrix_of(NULL, rows, x->shape.cols, x->dtype);
        if (made.row_scale.dtype != TEGROUP_DTYPE_UNSET)
            made.row_scale.data = tegroup_impl_matrix_row(&desc->row_scale, g * rows);
        made.grad_row_scale.data = tegroup_impl_matrix_row(&desc->grad_row_scale, g * rows);
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_activation_backward(&made, stream, error));
    }
    return TEGROUP_OK;
}
#endif

static inline tegroup_status tegroup_impl_cuda_quantize(const tegroup_quantize_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    tegroup_impl_quantize_launch call = tegroup_impl_cuda_quantize_launch(&desc->output);
    const int both = tegroup_impl_has_copy(&desc->output, 0) | tegroup_impl_has_copy(&desc->output, 1) << 1;
    const unsigned threads = TEGROUP_IMPL_QUANTIZE_THREADS;
    const int lines = call.facts.block_inner == 0 && call.facts.block_outer > 0;
    unsigned blocks;
    int copy;
    call.desc = *desc;
    call.desc.alpha = tegroup_impl_alpha(desc->alpha);
    call.desc.limit = tegroup_impl_limit(desc->limit);
    call.desc.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    call.vectors = tegroup_impl_cuda_in_vectors(&desc->input) && tegroup_impl_cuda_in_vectors(&desc->grad_output);
    if (desc->output.shape.groups == 0) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&desc->output, &blocks, error));
    if (desc->output.amax || desc->output.columnwise_amax)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_quantize_clear_kernel, 1, threads, 0, stream, call), "stream",
            "the kernel must launch", error));
    call.raises = desc->output.amax || desc->output.columnwise_amax;
    if (tegroup_impl_waits_for_amax(desc, &call.facts)) {
        TEGROUP_IMPL_TRY(
            TEGROUP_IMPL_BY_VALUES(desc->input.dtype, tegroup_impl_quantize_kernel, blocks, threads, 0, stream, call));
        call.raises = 0;
    }
    for (copy = 0; copy < (lines ? TEGROUP_IMPL_COPIES : 1); copy++) {
        call.copies = lines ? both & 1 << copy : both;
        call.spans_cols = lines && copy == TEGROUP_IMPL_ROWWISE;
        call.spans_rows = lines && copy == TEGROUP_IMPL_COLUMNWISE;
        if (!call.copies) continue;
        TEGROUP_IMPL_TRY(
            TEGROUP_IMPL_BY_VALUES(desc->input.dtype, tegroup_impl_quantize_kernel, blocks, threads, 0, stream, call));
    }
#if !defined(TEGROUP_NO_ACTIVATION) && !defined(TEGROUP_NO_BACKWARD)
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) return tegroup_impl_cuda_quantize_sums(desc, stream, error);
#endif
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_cuda_dequantize(const tegroup_dequantize_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_dequantize_launch call;
    unsigned blocks;
    memset(&call, 0, sizeof call);
    call.from = tegroup_impl_cuda_quantize_launch(&desc->input);
    call.from.copies = 1 << desc->columnwise;
    call.output = desc->output;
    if (desc->input.shape.groups == 0) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&desc->input, &blocks, error));
    return TEGROUP_IMPL_BY_VALUES(desc->output.dtype, tegroup_impl_dequantize_kernel, blocks,
                                  TEGROUP_IMPL_QUANTIZE_THREADS, 0, stream, call);
}
#undef TEGROUP_IMPL_BY_VALUES
