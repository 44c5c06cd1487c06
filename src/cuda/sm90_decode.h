/* ---- Hopper GEMM: decoding operands ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
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

/* A scale of 8 bits is one of BF16, too: the upper half of its F32. */
static __device__ __forceinline__ uint32_t tegroup_impl_decode_half(const tegroup_impl_scaled &of, int64_t at) {
    const uint32_t code = ((const uint8_t *)of.scales)[at];
    return tegroup_impl_bits_of_f32(of.scale_dtype == TEGROUP_DTYPE_F8E8M0 ? tegroup_impl_f32_of_f8e8m0((uint8_t)code)
                                                                           : tegroup_impl_f32_of_f8e4m3((uint8_t)code))
           >> 16;
}
/* Where the scale of an element is. */
static __device__ __forceinline__ int64_t tegroup_impl_decode_scale_at(const tegroup_impl_scaled &of, int64_t row,
                                                                       int64_t col) {
    return of.columnwise ? tegroup_impl_scale_at(&of.grid, col, row) : tegroup_impl_scale_at(&of.grid, row, col);
}
/* From there to the next along the outer index, the same for 16 that begin at a multiple of 16, in one part. */
static __device__ __forceinline__ int64_t tegroup_impl_decode_scale_step(const tegroup_impl_scaled &of) {
    return tegroup_impl_scale_of_block(&of.grid, 0, 1, 0) - tegroup_impl_scale_of_block(&of.grid, 0, 0, 0);
}

static __device__ __forceinline__ void tegroup_impl_decode_by(const uint32_t (&scales)[8], uint32_t (&piece)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) piece[i] = tegroup_impl_gpu_mul2(piece[i], scales[i], true);
}
static __device__ __forceinline__ void tegroup_impl_decode_by_one(uint32_t half, uint32_t (&piece)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) piece[i] = tegroup_impl_gpu_mul2(piece[i], half | half << 16, true);
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
template <int BITS>
static __device__ __forceinline__ uint4 tegroup_impl_decode_load(const tegroup_impl_gpu_codes &codes, int64_t at,
                                                                 int32_t count, bool aligned) {
    if (count == 0) return make_uint4(0, 0, 0, 0);
    if (!aligned || count < 16) return tegroup_impl_decode_load_slowly(codes, at, count);
    if (BITS == 8) return *(const uint4 *)(codes.data + at);
    const uint2 both = *(const uint2 *)(codes.data + at / 2);
    return make_uint4(both.x, both.y, 0, 0);
}

/* A piece of a row, which begins at a multiple of 32 bytes. paired: lanes that are neighbours swap halves, so that each
 * of their two stores writes 32 bytes, which L2 takes as a whole. */
static __device__ __forceinline__ void tegroup_impl_decode_store(uint16_t *to, const uint32_t (&piece)[8],
                                                                 bool paired) {
    uint4 low = make_uint4(piece[0], piece[1], piece[2], piece[3]),
          high = make_uint4(piece[4], piece[5], piece[6], piece[7]);
    if (!paired) {
        ((uint4 *)to)[0] = low;
        ((uint4 *)to)[1] = high;
        return;
    }
    const bool odd = threadIdx.x & 1;
    uint4 other = odd ? low : high;
    other.x = __shfl_xor_sync(0xffffffffu, other.x, 1);
    other.y = __shfl_xor_sync(0xffffffffu, other.y, 1);
    other.z = __shfl_xor_sync(0xffffffffu, other.z, 1);
    other.w = __shfl_xor_sync(0xffffffffu, other.w, 1);
    *(uint4 *)(to - (odd ? 8 : 0)) = odd ? other : low;
    *(uint4 *)(to + (odd ? 8 : 16)) = odd ? high : other;
}

/* Lines that are rows: a warp has eight that follow each other, a lane 16 neighbouring columns of each. Scales are
 * along the row, a sixteen has one; or, of the columnwise copy, down the column, and are kept as long as rows share
 * them. */
template <int BITS, bool DOWN>
static __device__ __forceinline__ void tegroup_impl_decode_rows(const tegroup_impl_decode_tile &tile,
                                                                const tegroup_impl_gpu_codes &codes) {
    constexpr int EACH = TEGROUP_IMPL_DECODE_EACH, AT_ONCE = 4;
    const tegroup_impl_scaled &of = codes.of;
    const tegroup_impl_gpu_decoding how = tegroup_impl_gpu_decoding_of(codes.dtype, true);
    const int64_t col = tile.along + (int64_t)(threadIdx.x % 32) * 16,
                  first = tile.line + (int64_t)(threadIdx.x / 32) * EACH,
                  row_stride = of.sums_rows ? of.k_stride : of.line_stride, step = tegroup_impl_decode_scale_step(of);
    const int32_t count = (int32_t)tegroup_impl_clamp(tile.count - col, 0, 16),
                  rows = (int32_t)tegroup_impl_clamp(tile.lines - first, 0, EACH);
    const bool aligned = codes.aligned, whole = of.grid.parts == 1,
               paired = tile.count - tile.along >= TEGROUP_IMPL_DECODE_ALONG;
    if (count == 0 || rows == 0) return;
    const int64_t first_scale = tegroup_impl_decode_scale_at(of, first, col);
    int64_t at = codes.at + first * row_stride + col, shared = 0;
    uint16_t *to = tile.to + first * tile.ld + col;
    uint32_t scales[8];
#pragma unroll 1
    for (int32_t done = 0; done < rows; done += AT_ONCE) {
        uint4 raw[AT_ONCE];
        uint32_t half[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int32_t there = done + i < rows ? count : 0;
            raw[i] = tegroup_impl_decode_load<BITS>(codes, at + i * row_stride, there, aligned);
            if (!DOWN && there)
                half[i] = tegroup_impl_decode_half(of, whole ? first_scale + (done + i) * step
                                                             : tegroup_impl_decode_scale_at(of, first + done + i, col));
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (done + i >= rows) break;
            if (DOWN && shared == 0) {
                const int64_t from = tegroup_impl_decode_scale_at(of, first + done + i, col);
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    const uint32_t one = j < count ? tegroup_impl_decode_half(of, from + j * step) : 0u;
                    scales[j / 2] = j % 2 ? scales[j / 2] | one << 16 : one;
                }
                shared = tegroup_impl_scale_shared(&of.grid, first + done + i, 0);
            }
            shared--;
            uint32_t piece[8] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w, 0, 0, 0, 0};
            tegroup_impl_gpu_decode(how, BITS, true, piece);
            if (DOWN) tegroup_impl_decode_by(scales, piece);
            else tegroup_impl_decode_by_one(half[i], piece);
            tegroup_impl_decode_store(to + i * tile.ld, piece, paired);
        }
        at += AT_ONCE * row_stride;
        to += AT_ONCE * tile.ld;
    }
}

/* Lines that are columns: 64 x 64 elements at a time are turned in shared memory, in rows of eight chunks of 16 bytes,
 * permuted so that neither side meets in a bank. */
template <int BITS>
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
        const uint4 raw =
            tegroup_impl_decode_load<BITS>(codes, codes.at + col * codes.line_stride + row, count, codes.aligned);
        uint32_t piece[8] = {raw.x, raw.y, raw.z, raw.w, 0, 0, 0, 0};
        tegroup_impl_gpu_decode(how, BITS, true, piece);
        if (count > 0 && tegroup_impl_scale_shared(&of.grid, row, 0) >= count)
            tegroup_impl_decode_by_one(tegroup_impl_decode_half(of, tegroup_impl_decode_scale_at(of, row, col)), piece);
        else if (count > 0) { /* A part of the rows ends within. */ uint32_t scales[8];
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const uint32_t one =
                    j < count ? tegroup_impl_decode_half(of, tegroup_impl_decode_scale_at(of, row + j, col)) : 0u;
                scales[j / 2] = j % 2 ? scales[j / 2] | one << 16 : one;
            }
            tegroup_impl_decode_by(scales, piece);
        }
        __syncthreads(); /* what was turned before has been read */
#pragma unroll
        for (int i = 0; i < 16; i++)
            square[(quarter * 16 + i) * 64 + ((mine / 8) ^ quarter) * 8 + mine % 8] =
                (uint16_t)(piece[i / 2] >> i % 2 * 16);
        __syncthreads();
        for (int32_t r = (int32_t)threadIdx.x / 8; r < 64 && r < end - from; r += TEGROUP_IMPL_DECODE_THREADS / 8)
            if (tile.line + chunk * 8 < tile.ld)
                *(uint4 *)(tile.to + (from + r) * tile.ld + tile.line + chunk * 8) =
                    *(const uint4 *)(square + r * 64 + (chunk ^ r / 16) * 8);
    }
}

template <int BITS>
static __device__ __forceinline__ void tegroup_impl_decode_tile_of(const tegroup_impl_decode_tile &tile,
                                                                   const tegroup_impl_gpu_codes &codes,
                                                                   uint16_t *square) {
    if (tile.turned) tegroup_impl_decode_columns<BITS>(tile, codes, square);
    else if (codes.of.columnwise) tegroup_impl_decode_rows<BITS, true>(tile, codes);
    else tegroup_impl_decode_rows<BITS, false>(tile, codes);
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
        if (of.bits == 8) tegroup_impl_decode_tile_of<8>(tile, of, square);
        else tegroup_impl_decode_tile_of<4>(tile, of, square);
    }
#endif
}
