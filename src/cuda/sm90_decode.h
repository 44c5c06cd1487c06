/* ---- Hopper GEMM: decoding operands ---- */

#pragma once
#include "base/version.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/product.h"
#include "core/quantised.h"
#include "cuda/call.h"
#include "cuda/codes.h"
#include "cuda/hopper.h"

/* What is decoded, and where to. */
typedef struct tegroup_impl_decode_call {
    tegroup_impl_gpu_call call; /* its operands as they are read */
    tegroup_impl_gpu_formats formats;
    uint16_t *to[2]; /* NULL: the operand is not quantised */
    int64_t ld[2];
    float *alpha; /* [groups] */
} tegroup_impl_decode_call;

enum {
    TEGROUP_IMPL_DECODE_THREADS = 256,
    TEGROUP_IMPL_DECODE_BLOCKS = 4,  /* of a multiprocessor: while one looks for a tile, the others decode */
    TEGROUP_IMPL_DECODE_LINES = 64,  /* of a tile: those of the copy as it lies, in which its elements are neighbours */
    TEGROUP_IMPL_DECODE_ALONG = 512, /* elements of a line that a tile has */
    TEGROUP_IMPL_DECODE_EACH = TEGROUP_IMPL_DECODE_LINES / (TEGROUP_IMPL_DECODE_THREADS / 32) /* lines of a warp */
};

/* A tile of a copy. Its lines are rows of the operand, unless the copy is transposed. */
typedef struct tegroup_impl_decode_tile {
    int64_t line, along;  /* the first of both, in the group  */
    int64_t lines, count; /* that the group has                */
    uint16_t *to;         /* where the group's first row goes  */
    int64_t ld;
    int32_t operand; /* -1 behind the last tile */
    int32_t turned;  /* lines are columns       */
} tegroup_impl_decode_tile;

#if TEGROUP_IMPL_HOPPER
/* ---- scheduling: one warp finds a block's tiles ---- */

/* The walk along the groups of A, and then those of B: 32 of them, one for each lane. */
typedef struct tegroup_impl_decode_walk {
    int32_t from, tiles;  /* the first of the 32; tiles of the lane's group */
    int64_t before, upto; /* tiles before the 32; of the lanes up to and including this one */
} tegroup_impl_decode_walk;

/* Whether the copy that is read lies transposed. */
static __device__ __forceinline__ bool tegroup_impl_decode_turned(const tegroup_impl_decode_call &call, int operand) {
    return tegroup_impl_transposed(operand ? &call.call.desc.b : &call.call.desc.a,
                                   call.formats.first[operand].columnwise);
}

/* Tiles of a group. One that the product does not look at has none: weights of a group without rows are left out. */
static __device__ __forceinline__ int32_t tegroup_impl_decode_tiles(const tegroup_impl_decode_call &call, int32_t at) {
    const tegroup_gemm_desc &desc = call.call.desc;
    const int operand = at >= desc.a.shape.groups;
    const int32_t g = operand ? at - desc.a.shape.groups : at;
    if (g >= desc.a.shape.groups || !call.to[operand]) return 0;
    const tegroup_impl_product p =
        tegroup_impl_product_of(&desc, call.call.views, g, (double)call.call.alpha, (double)call.call.beta);
    if (!(tegroup_impl_uses(&desc, &p) >> operand & 1u)) return 0;
    const tegroup_impl_sides sides =
        tegroup_impl_group_sides(operand ? &desc.b : &desc.a, &call.call.views[operand], g);
    const bool turned = tegroup_impl_decode_turned(call, operand);
    return (int32_t)(tegroup_impl_ceil_div(turned ? sides.cols : sides.rows, TEGROUP_IMPL_DECODE_LINES)
                     * tegroup_impl_ceil_div(turned ? sides.rows : sides.cols, TEGROUP_IMPL_DECODE_ALONG));
}

static __device__ __forceinline__ void tegroup_impl_decode_walk_to(const tegroup_impl_decode_call &call, int32_t from,
                                                                   int64_t before, tegroup_impl_decode_walk *walk) {
    const int32_t lane = (int32_t)threadIdx.x & 31;
    walk->from = from;
    walk->before = before;
    walk->upto = walk->tiles = tegroup_impl_decode_tiles(call, from + lane);
    for (int32_t apart = 1; apart < 32; apart *= 2) {
        const int64_t other = __shfl_up_sync(0xffffffffu, walk->upto, (unsigned)apart);
        if (lane >= apart) walk->upto += other;
    }
}

/* Finds tile t, no lower than the last, and opens its group; all lanes of a warp. A call of its own, as its registers
 * would be taken from those that decode. */
static __device__ __noinline__ void tegroup_impl_decode_find(const tegroup_impl_decode_call &call, int64_t t,
                                                             tegroup_impl_decode_walk *walk,
                                                             tegroup_impl_gpu_codes (&codes)[2],
                                                             tegroup_impl_decode_tile *tile) {
    const tegroup_gemm_desc &desc = call.call.desc;
    const int32_t groups = desc.a.shape.groups, lane = (int32_t)threadIdx.x & 31;
    uint32_t behind; /* lanes whose tiles end behind t */
    while ((behind = __ballot_sync(0xffffffffu, t < walk->before + walk->upto)) == 0 && walk->from < 2 * groups)
        tegroup_impl_decode_walk_to(call, walk->from + 32, walk->before + __shfl_sync(0xffffffffu, walk->upto, 31),
                                    walk);
    if (behind == 0) {
        if (lane == 0) tile->operand = -1;
        return;
    }
    const int32_t owner = __ffs((int)behind) - 1, at = walk->from + owner, operand = at >= groups,
                  g = operand ? at - groups : at;
    const int64_t number = t - walk->before - __shfl_sync(0xffffffffu, walk->upto - walk->tiles, owner);
    const tegroup_tensor &tensor = operand ? desc.b : desc.a;
    const tegroup_snapshot_view &view = call.call.views[operand];
    tegroup_impl_gpu_codes &of = codes[operand];
    tegroup_impl_gpu_codes_reach(tensor, view, g, &of);
    if (lane == 0) {
        const tegroup_impl_sides sides = tegroup_impl_group_sides(&tensor, &view, g);
        const int64_t across = tegroup_impl_ceil_div(
            tegroup_impl_decode_turned(call, operand) ? sides.rows : sides.cols, TEGROUP_IMPL_DECODE_ALONG);
        tegroup_impl_gpu_codes_open(tensor, of.of.sums_rows, NULL, 0, 0, 0, &of);
        tile->operand = operand;
        tile->turned = tegroup_impl_decode_turned(call, operand);
        tile->line = number / across * TEGROUP_IMPL_DECODE_LINES;
        tile->along = number % across * TEGROUP_IMPL_DECODE_ALONG;
        tile->lines = tile->turned ? sides.cols : sides.rows;
        tile->count = tile->turned ? sides.rows : sides.cols;
        tile->ld = call.ld[operand];
        tile->to = call.to[operand] + tegroup_impl_block_of(&tensor, &view, g).row0 * tile->ld;
    }
    __syncwarp();
}

/* ---- scales ---- */

/* The scale of an element, in BF16. */
static __device__ __forceinline__ uint32_t tegroup_impl_decode_scale(const tegroup_impl_scaled &of, int64_t row,
                                                                     int64_t col) {
    const uint32_t code = tegroup_impl_load_code(of.scale_dtype, of.scales,
                                                 of.columnwise ? tegroup_impl_scale_at(&of.grid, col, row)
                                                               : tegroup_impl_scale_at(&of.grid, row, col));
    return tegroup_impl_bf16_of_f32(tegroup_impl_f32_of_code(of.scale_dtype, code));
}

/* Those of `count` elements from one on, down a column or along a row. */
static __device__ __forceinline__ void tegroup_impl_decode_scales(const tegroup_impl_scaled &of, int64_t row,
                                                                  int64_t col, bool down, int32_t count,
                                                                  uint32_t (&scales)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        scales[i] = 0;
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (2 * i + half < count)
                scales[i] |=
                    tegroup_impl_decode_scale(of, row + (down ? 2 * i + half : 0), col + (down ? 0 : 2 * i + half))
                    << 16 * half;
    }
}

static __device__ __forceinline__ void tegroup_impl_decode_by(const uint32_t (&scales)[8], uint32_t (&piece)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) piece[i] = tegroup_impl_gpu_mul2(piece[i], scales[i], true);
}
static __device__ __forceinline__ void tegroup_impl_decode_by_one(uint32_t scale, uint32_t (&piece)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) piece[i] = tegroup_impl_gpu_mul2(piece[i], scale | scale << 16, true);
}

/* ---- tiles ---- */

/* Up to 16 neighbouring codes of a line, one by one. */
static __device__ __noinline__ uint4 tegroup_impl_decode_load_slowly(const tegroup_impl_gpu_codes &codes, int64_t at,
                                                                     int32_t count) {
    uint32_t raw[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    tegroup_impl_gpu_piece_slowly(codes, at, count, raw);
    return make_uint4(raw[0], raw[1], raw[2], raw[3]);
}
/* The `count` that exist, and zeros. */
static __device__ __forceinline__ uint4 tegroup_impl_decode_load(const tegroup_impl_gpu_codes &codes, int64_t at,
                                                                 int32_t count) {
    if (count == 0) return make_uint4(0, 0, 0, 0);
    if (!codes.aligned || count < 16) return tegroup_impl_decode_load_slowly(codes, at, count);
    if (codes.bits == 8) return *(const uint4 *)(codes.data + at);
    const uint2 both = *(const uint2 *)(codes.data + at / 2);
    return make_uint4(both.x, both.y, 0, 0);
}

/* Lines that are rows: a warp has eight that follow each other, a lane 16 neighbouring columns of each. Scales are
 * along the row, a sixteen has one; or, of the columnwise copy, down the column, and are kept as long as rows share
 * them. */
template <bool DOWN>
static __device__ __forceinline__ void tegroup_impl_decode_rows(const tegroup_impl_decode_tile &tile,
                                                                const tegroup_impl_gpu_codes &codes) {
    constexpr int EACH = TEGROUP_IMPL_DECODE_EACH, AT_ONCE = 4;
    const tegroup_impl_scaled &of = codes.of;
    const tegroup_impl_gpu_decoding how = tegroup_impl_gpu_decoding_of(codes.dtype, true);
    const int64_t col = tile.along + (int64_t)(threadIdx.x % 32) * 16,
                  first = tile.line + (int64_t)(threadIdx.x / 32) * EACH,
                  row_stride = of.sums_rows ? of.k_stride : of.line_stride;
    const int32_t count = (int32_t)tegroup_impl_clamp(tile.count - col, 0, 16);
    uint32_t scales[8];
    int64_t shared = 0;
    if (count == 0) return;
#pragma unroll 1
    for (int64_t row = first; row < tegroup_impl_min(first + EACH, tile.lines); row += AT_ONCE) {
        uint4 raw[AT_ONCE];
        uint32_t one[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const bool there = row + i < tile.lines;
            raw[i] = tegroup_impl_decode_load(codes, codes.at + (row + i) * row_stride + col, there ? count : 0);
            if (!DOWN) one[i] = there ? tegroup_impl_decode_scale(of, row + i, col) : 0;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (row + i >= tile.lines) break;
            if (DOWN && shared == 0) {
                tegroup_impl_decode_scales(of, row + i, col, false, count, scales);
                shared = tegroup_impl_scale_shared(&of.grid, row + i, 0);
            }
            shared--;
            uint32_t piece[8] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w, 0, 0, 0, 0};
            tegroup_impl_gpu_decode(how, codes.bits, true, piece);
            if (DOWN) tegroup_impl_decode_by(scales, piece);
            else tegroup_impl_decode_by_one(one[i], piece);
            uint4 *const to = (uint4 *)(tile.to + (row + i) * tile.ld + col);
            to[0] = make_uint4(piece[0], piece[1], piece[2], piece[3]);
            to[1] = make_uint4(piece[4], piece[5], piece[6], piece[7]);
        }
    }
}

/* Lines that are columns: 64 x 64 elements at a time are turned in shared memory, in rows of eight chunks of 16 bytes,
 * permuted so that neither side meets in a bank. */
static __device__ __forceinline__ void tegroup_impl_decode_columns(const tegroup_impl_decode_tile &tile,
                                                                   const tegroup_impl_gpu_codes &codes,
                                                                   uint16_t *square) {
    const tegroup_impl_scaled &of = codes.of;
    const tegroup_impl_gpu_decoding how = tegroup_impl_gpu_decoding_of(codes.dtype, true);
    const int32_t mine = (int32_t)threadIdx.x / 4, quarter = (int32_t)threadIdx.x % 4, chunk = (int32_t)threadIdx.x % 8;
    const int64_t col = tile.line + mine, end = tegroup_impl_min(tile.along + TEGROUP_IMPL_DECODE_ALONG, tile.count);
#pragma unroll 1
    for (int64_t from = tile.along; from < end; from += 64) {
        const int64_t row = from + quarter * 16;
        const int32_t count = col < tile.lines ? (int32_t)tegroup_impl_clamp(end - row, 0, 16) : 0;
        const uint4 raw = tegroup_impl_decode_load(codes, codes.at + col * codes.line_stride + row, count);
        uint32_t piece[8] = {raw.x, raw.y, raw.z, raw.w, 0, 0, 0, 0}, scales[8];
        tegroup_impl_gpu_decode(how, codes.bits, true, piece);
        if (count > 0 && tegroup_impl_scale_shared(&of.grid, row, 0) >= count)
            tegroup_impl_decode_by_one(tegroup_impl_decode_scale(of, row, col), piece);
        else if (count > 0) { /* A part of the rows ends within. */
            tegroup_impl_decode_scales(of, row, col, true, count, scales);
            tegroup_impl_decode_by(scales, piece);
        }
        __syncthreads(); /* what was turned before has been read */
#pragma unroll
        for (int i = 0; i < 16; i++)
            square[(quarter * 16 + i) * 64 + ((mine / 8) ^ quarter) * 8 + mine % 8] =
                (uint16_t)(piece[i / 2] >> i % 2 * 16);
        __syncthreads();
        for (int32_t r = (int32_t)threadIdx.x / 8; r < end - from; r += TEGROUP_IMPL_DECODE_THREADS / 8)
            if (r < 64 && tile.line + chunk * 8 < tile.ld)
                *(uint4 *)(tile.to + (from + r) * tile.ld + tile.line + chunk * 8) =
                    *(const uint4 *)(square + r * 64 + (chunk ^ r / 16) * 8);
    }
}
#endif

static __global__ void __launch_bounds__(TEGROUP_IMPL_DECODE_THREADS, TEGROUP_IMPL_DECODE_BLOCKS)
    tegroup_impl_sm90_decode_kernel(const __grid_constant__ tegroup_impl_decode_call call) {
#if TEGROUP_IMPL_HOPPER
    __shared__ tegroup_impl_gpu_codes codes[2];
    __shared__ tegroup_impl_decode_tile found;
    __shared__ __align__(16) uint16_t square[64 * 64];
    const tegroup_gemm_desc &desc = call.call.desc;
    tegroup_impl_decode_walk walk = {0, 0, 0, 0};
    if (threadIdx.x < 32) {
        walk.from = tegroup_impl_prepared(call.call) ? -32 : 2 * desc.a.shape.groups;
        if (threadIdx.x < 2) tegroup_impl_gpu_codes_begin(call.formats, (int)threadIdx.x, &codes[threadIdx.x]);
    }
    for (int32_t g = (int32_t)(blockIdx.x * TEGROUP_IMPL_DECODE_THREADS + threadIdx.x); g < desc.a.shape.groups;
         g += (int32_t)gridDim.x * TEGROUP_IMPL_DECODE_THREADS)
        call.alpha[g] = tegroup_impl_scaled_alpha(&desc, g, (double)call.call.alpha);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads(); /* the tile before has been decoded */
        if (threadIdx.x < 32) tegroup_impl_decode_find(call, t, &walk, codes, &found);
        __syncthreads();
        const tegroup_impl_decode_tile tile = found;
        if (tile.operand < 0) break;
        const tegroup_impl_gpu_codes &of = codes[tile.operand];
        if (tile.turned) tegroup_impl_decode_columns(tile, of, square);
        else if (of.of.columnwise) tegroup_impl_decode_rows<true>(tile, of);
        else tegroup_impl_decode_rows<false>(tile, of);
    }
#endif
}
