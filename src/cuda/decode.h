/* ---- Decoding operands before they are multiplied ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/problem.h"
#include "core/product.h"
#include "core/quantised.h"
#include "cuda/decoded.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/codes.h"

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
    TEGROUP_IMPL_DECODE_BLOCKS = 4, /* of a multiprocessor: while one looks for a tile, the others decode */
    /* A tile of lines that are rows: so many, shared by the warps, and columns, 16 for each lane of one. */
    TEGROUP_IMPL_DECODE_LINES = 256,
    TEGROUP_IMPL_DECODE_ALONG = 512,
    /* A tile of lines that are columns: so many rows, a square of so many rows and columns at a time. */
    TEGROUP_IMPL_DECODE_TALL = 1024,
    TEGROUP_IMPL_DECODE_SQUARE = 64
};

/* A tile of an operand. */
typedef struct tegroup_impl_decode_tile {
    int64_t row, col;   /* the first of both, in the group */
    int64_t rows, cols; /* that the group has              */
    uint16_t *to;       /* where its first row goes        */
    int64_t ld;
    int32_t operand; /* -1 behind the last tile                            */
    int32_t turned;  /* columns have neighbours in memory: a transposed copy */
} tegroup_impl_decode_tile;

/* ---- scheduling: one warp finds a block's tiles ---- */

/* The walk along the groups of the operands that are decoded, A's before B's: 32 of them, one for each lane. */
typedef struct tegroup_impl_decode_walk {
    int32_t from, tiles;  /* the first of the 32; tiles of the lane's group */
    int64_t before, upto; /* tiles before the 32; of the lanes up to and including this one */
} tegroup_impl_decode_walk;

/* Whether the copy that is read lies transposed. */
static __device__ __forceinline__ bool tegroup_impl_decode_turned(const tegroup_impl_decode_call &call, int operand) {
    return tegroup_impl_transposed(operand ? &call.call.desc.b : &call.call.desc.a,
                                   call.formats.first[operand].columnwise);
}

/* Tiles of a group down its rows and across its columns. The sizes of both kinds are constants, as a division by what
 * the compiler does not know is long, and a call whose caches are cold waits for its instructions. */
typedef struct tegroup_impl_decode_counts {
    int32_t down, across;
} tegroup_impl_decode_counts;
static __device__ __forceinline__ tegroup_impl_decode_counts tegroup_impl_decode_counts_of(tegroup_impl_sides sides,
                                                                                           bool turned) {
    tegroup_impl_decode_counts counts;
    counts.down = (int32_t)(turned ? tegroup_impl_ceil_div(sides.rows, TEGROUP_IMPL_DECODE_TALL)
                                   : tegroup_impl_ceil_div(sides.rows, TEGROUP_IMPL_DECODE_LINES));
    counts.across = (int32_t)(turned ? tegroup_impl_ceil_div(sides.cols, TEGROUP_IMPL_DECODE_SQUARE)
                                     : tegroup_impl_ceil_div(sides.cols, TEGROUP_IMPL_DECODE_ALONG));
    return counts;
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
    const tegroup_impl_decode_counts counts =
        tegroup_impl_decode_counts_of(sides, tegroup_impl_decode_turned(call, operand));
    return counts.down * counts.across;
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
    while ((behind = __ballot_sync(0xffffffffu, t < walk->before + walk->upto)) == 0
           && walk->from < (call.to[1] ? 2 : 1) * groups)
        tegroup_impl_decode_walk_to(call, walk->from + 32, walk->before + __shfl_sync(0xffffffffu, walk->upto, 31),
                                    walk);
    if (behind == 0) {
        if (lane == 0) tile->operand = -1;
        return;
    }
    const int32_t owner = __ffs((int)behind) - 1, at = walk->from + owner, operand = at >= groups,
                  g = operand ? at - groups : at;
    const int32_t number = (int32_t)(t - walk->before - __shfl_sync(0xffffffffu, walk->upto - walk->tiles, owner));
    const tegroup_tensor &tensor = operand ? desc.b : desc.a;
    const tegroup_snapshot_view &view = call.call.views[operand];
    tegroup_impl_gpu_codes &of = codes[operand];
    tegroup_impl_gpu_codes_reach(tensor, view, g, &of);
    if (lane == 0) {
        const tegroup_impl_sides sides = tegroup_impl_group_sides(&tensor, &view, g);
        const bool turned = tegroup_impl_decode_turned(call, operand);
        const int32_t across = tegroup_impl_decode_counts_of(sides, turned).across;
        tegroup_impl_gpu_codes_open(tensor, of.of.sums_rows, NULL, 0, 0, 0, &of);
        tile->operand = operand;
        tile->turned = turned;
        tile->row = (int64_t)(number / across) * (turned ? TEGROUP_IMPL_DECODE_TALL : TEGROUP_IMPL_DECODE_LINES);
        tile->col = (int64_t)(number % across) * (turned ? TEGROUP_IMPL_DECODE_SQUARE : TEGROUP_IMPL_DECODE_ALONG);
        tile->rows = sides.rows;
        tile->cols = sides.cols;
        tile->ld = call.ld[operand];
        tile->to = call.to[operand] + tegroup_impl_block_of(&tensor, &view, g).row0 * tile->ld;
    }
    __syncwarp();
}

/* Loads and stores below say that an address is one of global memory (__ldg, __ldcs, __stcg): the compiler cannot see
 * it of addresses that come through shared memory. */

/* ---- scales ---- */

/* Scales of F32 multiply sums, so that values are left as they are: times 1. */
static __device__ __forceinline__ uint32_t tegroup_impl_decode_scale(const tegroup_impl_scaled &of, int64_t at) {
    if (of.facts->scale_dtype == TEGROUP_DTYPE_F32) return 0x3f80u;
    return tegroup_impl_gpu_half_of_scale(of.scale_dtype == TEGROUP_DTYPE_F8E8M0,
                                          __ldg((const uint8_t *)of.scales + at));
}

/* Where the scale of an element is. With rows in parts it takes a division of 64 bits, and a call. */
static __device__ __noinline__ int64_t tegroup_impl_decode_scale_in_parts(const tegroup_impl_scaled &of, int64_t row,
                                                                          int64_t col) {
    return of.columnwise ? tegroup_impl_scale_at(&of.grid, col, row) : tegroup_impl_scale_at(&of.grid, row, col);
}
static __device__ __forceinline__ int64_t tegroup_impl_decode_scale_at(const tegroup_impl_scaled &of, int64_t row,
                                                                       int64_t col) {
    if (of.grid.parts > 1) return tegroup_impl_decode_scale_in_parts(of, row, col);
    return tegroup_impl_scale_of_block(&of.grid, 0, (of.columnwise ? col : row) >> of.grid.outer_shift,
                                       (of.columnwise ? row : col) >> of.grid.inner_shift);
}
/* From there to the next along the outer index, the same for 16 that begin at a multiple of 16, in one part. */
static __device__ __forceinline__ int64_t tegroup_impl_decode_scale_step(const tegroup_impl_scaled &of) {
    return tegroup_impl_scale_of_block(&of.grid, 0, 1, 0) - tegroup_impl_scale_of_block(&of.grid, 0, 0, 0);
}
/* How many rows from one on share their scales (down), or have theirs one step after another: those of one part, and of
 * one 32 of it or of the group, as swizzled scales lie in 32 lines. */
static __device__ __noinline__ int64_t tegroup_impl_decode_together_in_parts(const tegroup_impl_scaled &of, int64_t row,
                                                                             bool down) {
    const int64_t in_part = row % of.grid.part_rows;
    return down ? tegroup_impl_scale_shared(&of.grid, row, 0)
                : tegroup_impl_min(of.grid.part_rows - in_part, 32 - in_part % 32);
}
static __device__ __forceinline__ int64_t tegroup_impl_decode_together(const tegroup_impl_scaled &of, int64_t row,
                                                                       bool down) {
    if (of.grid.parts > 1) return tegroup_impl_decode_together_in_parts(of, row, down);
    return down ? of.grid.block_inner - (row & (of.grid.block_inner - 1)) : 32 - (row & 31);
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
    if (BITS == 8) return __ldcs((const uint4 *)(codes.data + at));
    const uint2 both = __ldcs((const uint2 *)(codes.data + at / 2));
    return make_uint4(both.x, both.y, 0, 0);
}

/* Rows lie as they are: a warp has `each` that follow each other, a lane 16 neighbouring columns of each. Scales are
 * along the row, a sixteen has one; or, of the columnwise copy, down the column, and are kept as long as rows share
 * them. */
template <int BITS, bool DOWN>
static __device__ __forceinline__ void tegroup_impl_decode_rows(const tegroup_impl_decode_tile &tile,
                                                                const tegroup_impl_gpu_codes &codes) {
    constexpr int AT_ONCE = 4, SHARES = TEGROUP_IMPL_DECODE_THREADS / 32 * AT_ONCE;
    const tegroup_impl_scaled &of = codes.of;
    const tegroup_impl_gpu_decoding how = tegroup_impl_gpu_decoding_of(codes.dtype, true);
    const int32_t lines = (int32_t)tegroup_impl_min(tile.rows - tile.row, TEGROUP_IMPL_DECODE_LINES),
                  each = (lines + SHARES - 1) / SHARES * AT_ONCE; /* few rows have several warps, too */
    const int64_t col = tile.col + (int64_t)(threadIdx.x % 32) * 16,
                  first = tile.row + (int64_t)(threadIdx.x / 32) * each,
                  row_stride = of.sums_rows ? of.k_stride : of.line_stride, step = tegroup_impl_decode_scale_step(of);
    const int32_t count = (int32_t)tegroup_impl_clamp(tile.cols - col, 0, 16),
                  rows = (int32_t)tegroup_impl_clamp(tile.rows - first, 0, each);
    const bool aligned = codes.aligned;
    if (count == 0) return;
    int64_t at = codes.at + first * row_stride + col, scale_at = 0;
    uint16_t *to = tile.to + first * tile.ld + col;
    uint32_t scales[8];
    int32_t left = 0; /* rows that share scales, or whose scales are `step` apart */
#pragma unroll 1
    for (int32_t done = 0, n; done < rows; done += n, left -= n) {
        if (left == 0) {
            scale_at = tegroup_impl_decode_scale_at(of, first + done, col);
            left = (int32_t)tegroup_impl_min(tegroup_impl_decode_together(of, first + done, DOWN), each);
#pragma unroll
            for (int j = 0; DOWN && j < 16; j++) {
                const uint32_t one = j < count ? tegroup_impl_decode_scale(of, scale_at + j * step) : 0u;
                scales[j / 2] = j % 2 ? scales[j / 2] | one << 16 : one;
            }
        }
        n = min(AT_ONCE, min(rows - done, left));
        uint4 raw[AT_ONCE];
        uint32_t half[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            raw[i] = tegroup_impl_decode_load<BITS>(codes, at + i * row_stride, i < n ? count : 0, aligned);
            if (!DOWN && i < n) half[i] = tegroup_impl_decode_scale(of, scale_at + i * step);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (i >= n) break;
            uint32_t piece[8] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w, 0, 0, 0, 0};
            tegroup_impl_gpu_decode(how, BITS, true, piece);
            if (DOWN) tegroup_impl_decode_by(scales, piece);
            else tegroup_impl_decode_by_one(half[i], piece);
            __stcg((uint4 *)(to + i * tile.ld), make_uint4(piece[0], piece[1], piece[2], piece[3]));
            __stcg((uint4 *)(to + i * tile.ld) + 1, make_uint4(piece[4], piece[5], piece[6], piece[7]));
        }
        at += n * row_stride;
        to += n * tile.ld;
        if (!DOWN) scale_at += n * step;
    }
}

/* Multiplies up to 16 rows of a column by their scales, which are read one by one, since a part of the rows ends among
 * them. Scales are shifted in from the last row to the first. */
static __device__ __forceinline__ void tegroup_impl_decode_by_each(const tegroup_impl_scaled &of, int64_t row,
                                                                   int64_t col, int32_t count, uint32_t (&piece)[8]) {
    uint32_t scales[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 1
    for (int32_t j = count - 1; j >= 0; j--) {
        const int64_t at = tegroup_impl_decode_scale_in_parts(of, row + j, col);
#pragma unroll
        for (int i = 7; i > 0; i--) scales[i] = __funnelshift_l(scales[i - 1], scales[i], 16);
        scales[0] = scales[0] << 16 | tegroup_impl_decode_scale(of, at);
    }
    tegroup_impl_decode_by(scales, piece);
}

/* Columns lie as rows do: a square of 64 x 64 elements at a time is turned in shared memory, in rows of eight chunks of
 * 16 bytes, permuted so that neither side meets in a bank. A thread has 16 rows of a column, and loads those of the
 * next square meanwhile. */
template <int BITS>
static __device__ __forceinline__ void tegroup_impl_decode_columns(const tegroup_impl_decode_tile &tile,
                                                                   const tegroup_impl_gpu_codes &codes,
                                                                   uint16_t *square) {
    constexpr int SIDE = TEGROUP_IMPL_DECODE_SQUARE;
    const tegroup_impl_scaled &of = codes.of;
    const tegroup_impl_gpu_decoding how = tegroup_impl_gpu_decoding_of(codes.dtype, true);
    const int32_t mine = (int32_t)threadIdx.x / 4, quarter = (int32_t)threadIdx.x % 4, chunk = (int32_t)threadIdx.x % 8;
    const int64_t col = tile.col + mine, end = tegroup_impl_min(tile.row + TEGROUP_IMPL_DECODE_TALL, tile.rows);
    const auto rows_at = [&](int64_t row) {
        return col < tile.cols ? (int32_t)tegroup_impl_clamp(end - row, 0, 16) : 0;
    };
    const auto load = [&](int64_t row) {
        return tegroup_impl_decode_load<BITS>(codes, codes.at + col * codes.line_stride + row, rows_at(row),
                                              codes.aligned);
    };
    uint4 raw = load(tile.row + quarter * 16);
#pragma unroll 1
    for (int64_t from = tile.row; from < end; from += SIDE) {
        const int64_t row = from + quarter * 16;
        const int32_t count = rows_at(row);
        uint32_t piece[8] = {raw.x, raw.y, raw.z, raw.w, 0, 0, 0, 0};
        raw = load(row + SIDE);
        tegroup_impl_gpu_decode(how, BITS, true, piece);
        if (count > 0 && tegroup_impl_decode_together(of, row, true) >= count)
            tegroup_impl_decode_by_one(tegroup_impl_decode_scale(of, tegroup_impl_decode_scale_at(of, row, col)),
                                       piece);
        else if (count > 0) tegroup_impl_decode_by_each(of, row, col, count, piece);
        __syncthreads(); /* what was turned before has been read */
#pragma unroll
        for (int i = 0; i < 16; i++)
            square[(quarter * 16 + i) * SIDE + ((mine / 8) ^ quarter) * 8 + mine % 8] =
                (uint16_t)(piece[i / 2] >> i % 2 * 16);
        __syncthreads();
        for (int32_t r = (int32_t)threadIdx.x / 8; r < SIDE && r < end - from; r += TEGROUP_IMPL_DECODE_THREADS / 8)
            if (tile.col + chunk * 8 < tile.ld)
                __stcg((uint4 *)(tile.to + (from + r) * tile.ld + tile.col + chunk * 8),
                       *(const uint4 *)(square + r * SIDE + (chunk ^ r / 16) * 8));
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

static __global__ void __launch_bounds__(TEGROUP_IMPL_DECODE_THREADS, TEGROUP_IMPL_DECODE_BLOCKS)
    tegroup_impl_decode_kernel(const __grid_constant__ tegroup_impl_decode_call call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap(); /* compiled for older GPUs only; the plan refuses before this is launched */
#else
    __shared__ tegroup_impl_gpu_codes codes[2];
    __shared__ tegroup_impl_decode_tile found;
    __shared__ __align__(16) uint16_t square[TEGROUP_IMPL_DECODE_SQUARE * TEGROUP_IMPL_DECODE_SQUARE];
    const tegroup_gemm_desc &desc = call.call.desc;
    tegroup_impl_decode_walk walk = {0, 0, 0, 0};
    if (threadIdx.x < 32) {
        const int32_t groups = desc.a.shape.groups;
        walk.from = tegroup_impl_prepared(call.call) ? (call.to[0] ? 0 : groups) - 32 : 2 * groups;
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

/* Enqueues the decoding of `operands`, bit 0 for A and bit 1 for B, to where `layout`, of the plan's workspace, says.
 * decoded: the product that is left, with operands as they are read; its bias gradient is not that of a quantised dY,
 * which tegroup_impl_formats_bias_grad makes of call->call. */
static inline tegroup_status tegroup_impl_decode(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                 const tegroup_layout *layout, uint32_t operands,
                                                 tegroup_gemm_desc *decoded, tegroup_impl_decode_call *call,
                                                 struct CUstream_st *stream, tegroup_error *error) {
    tegroup_tensor *const tensors[2] = {&decoded->a, &decoded->b};
    void *const workspace = desc->options.workspace;
    int multiprocessors = 0;
    memset(call, 0, sizeof *call);
    *decoded = *desc;
    decoded->a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    decoded->b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    if (operands == 0) return TEGROUP_OK;
    call->formats = tegroup_impl_gpu_formats_of(desc);
    call->call = tegroup_impl_gpu_call_of(decoded);
    for (int i = 0; i < 2; i++) {
        if (!(operands >> i & 1u) || tensors[i]->scaling == TEGROUP_SCALING_NONE) continue;
        *tensors[i] = tegroup_impl_decoded(tensors[i], tegroup_impl_layout_at(layout, i, workspace));
        call->to[i] = (uint16_t *)tensors[i]->data;
        call->ld[i] = tensors[i]->ld;
    }
    call->alpha = (float *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_DECODED_ALPHA, workspace);
    decoded->a.global_scale_inv = decoded->b.global_scale_inv = NULL; /* They are in alpha. */
    decoded->alpha.data = call->alpha;
    decoded->alpha.dtype = TEGROUP_DTYPE_F32;
    decoded->alpha.space = TEGROUP_SPACE_DEVICE;
    decoded->alpha.stride = 1;
    if (tegroup_impl_sums_bias(desc) && tegroup_impl_biased(desc)->scaling != TEGROUP_SCALING_NONE)
        decoded->bias.dtype = TEGROUP_DTYPE_UNSET;
    if (desc->d.shape.groups == 0) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_status(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, plan->device),
                                 "plan.device", "must be readable", error));
    const unsigned blocks = plan->sm_limit > 0 && plan->sm_limit < multiprocessors
                                ? (unsigned)plan->sm_limit
                                : (unsigned)multiprocessors * TEGROUP_IMPL_DECODE_BLOCKS;
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_decode_kernel, blocks, TEGROUP_IMPL_DECODE_THREADS, 0, stream, *call),
        "stream", "the kernels must launch", error);
}
