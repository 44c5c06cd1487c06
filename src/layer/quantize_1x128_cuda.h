/* ---- Quantise: SwiGLU and its gradient to blocks of 1x128, the kernel of a training step ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "layer/quantize_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/convert.h"
#include "formats/scale_rule.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/stored_scales.h"
#include "core/activation_formulas.h"
#include "layer/quantize_copies.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "layer/quantize_values_cuda.h"
#include "layer/quantize_cuda.h"

/* What tegroup_quantize makes of SwiGLU of BF16, or of its gradient, where its scaling is BLOCK_1X128, gates and ups
 * lying by halves: in one read, each value computed once, and both copies written. The gradient of rows' scales has a
 * kernel of its own. The bits are those of the kernel for all formats, which takes 2.3 to 2.7 times as long
 * (docs/lab/fp8.md): it computes a gradient's gates and ups apart. */
enum {
    TEGROUP_IMPL_1X128_THREADS = 512, /* 16 beside each other, with 8 columns each, and 32 above each other */
    TEGROUP_IMPL_1X128_WARPS = TEGROUP_IMPL_1X128_THREADS / 32,
    TEGROUP_IMPL_1X128_ROWS = 4, /* of a thread */
    TEGROUP_IMPL_1X128_TILE = 128
};

typedef struct tegroup_impl_1x128_call {
    tegroup_quantize_desc desc; /* ld of its matrices spelt out */
    tegroup_scaling_facts facts;
    int64_t width; /* columns of gates */
} tegroup_impl_1x128_call;

/* Whether these kernels do what a call asks for. */
static inline int tegroup_impl_quantizes_1x128(const tegroup_quantize_desc *desc) {
    const tegroup_tensor *out = &desc->output, *in = &desc->input, *dy = &desc->grad_output;
    const int gradient = dy->dtype != TEGROUP_DTYPE_UNSET;
    const int64_t width = out->shape.cols / (1 + gradient);
    int copy;
    if (desc->activation != TEGROUP_ACTIVATION_SWIGLU || desc->interleaved) return 0;
    if (desc->rule.divide || desc->gather_input.rows > 0) return 0;
    if (out->scaling != TEGROUP_SCALING_BLOCK_1X128 || out->scale_parts > 1 || out->scale_outer_stride > 0) return 0;
    if (out->scale_dtype != TEGROUP_DTYPE_UNSET && out->scale_dtype != TEGROUP_DTYPE_F32) return 0;
    if (out->amax || out->columnwise_amax || tegroup_impl_listed(out) || tegroup_impl_irregular(&out->shape)) return 0;
    if (in->dtype != TEGROUP_DTYPE_BF16 || !tegroup_impl_ragged(&out->shape) || tegroup_impl_listed(in)) return 0;
    if (gradient && tegroup_impl_listed(dy)) return 0;
    if (width % (gradient ? TEGROUP_IMPL_1X128_TILE : 8) != 0 || tegroup_impl_ld(in) % 8 != 0) return 0;
    if (!tegroup_impl_aligned(in->data, 16) || (gradient && !tegroup_impl_aligned(dy->data, 16))) return 0;
    if (gradient && tegroup_impl_ld(dy) % 8 != 0) return 0;
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++) {
        const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(out, copy);
        if (!memory.data != !memory.scales || !tegroup_impl_aligned(memory.data, 16)) return 0;
        if (memory.data && copy && out->columnwise_order != TEGROUP_COLUMNWISE_TRANSPOSED) return 0;
    }
    return tegroup_impl_ld(out) % 8 == 0;
}

/* What the threads of a block share. */
struct tegroup_impl_1x128_group {
    int64_t first, end; /* its tiles among all */
    int64_t rows;
    int64_t row0, in, dy; /* its first row, and elements of input and grad_output */
    tegroup_impl_copy copies[TEGROUP_IMPL_COPIES];
};
struct tegroup_impl_1x128_shared {
    uint4 turned[TEGROUP_IMPL_1X128_TILE * TEGROUP_IMPL_1X128_TILE / 16];
    uint4 of_cols[2][TEGROUP_IMPL_1X128_WARPS][TEGROUP_IMPL_1X128_TILE / 8]; /* amax of columns as BF16, by each warp */
    uint16_t of_rows[2][TEGROUP_IMPL_1X128_TILE];
    float factor[TEGROUP_IMPL_COPIES][2][TEGROUP_IMPL_1X128_TILE]; /* of rows, and of columns */
    tegroup_impl_1x128_group group[2];                             /* of the tile at hand and of the next one */
    int64_t tiles;
};

/* One warp's way through the groups, 32 at a time. */
struct tegroup_impl_1x128_walk {
    const tegroup_impl_1x128_call &call;
    tegroup_snapshot_view view;
    int32_t from;               /* the first of the 32 */
    int64_t tiles;              /* of the groups before them */
    tegroup_impl_before before; /* what these take in the copies */

    __device__ __forceinline__ explicit tegroup_impl_1x128_walk(const tegroup_impl_1x128_call &c)
        : call(c), view(tegroup_impl_fitting_view(&c.desc.output)) {
        begin();
    }
    __device__ __forceinline__ void begin() {
        from = 0;
        tiles = before.scales[0] = before.scales[1] = before.transposed = 0;
    }
    static __device__ __forceinline__ int64_t up_to(int64_t x) {
        for (int step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, x, step);
            if ((int)(threadIdx.x % 32) >= step) x += other;
        }
        return x;
    }
    /* Finds the group of tile t, or with t < 0 passes all of them. */
    __device__ __forceinline__ void find(int64_t t, tegroup_impl_1x128_group *to) {
        const tegroup_tensor &out = call.desc.output;
        const int32_t lane = (int32_t)threadIdx.x % 32, groups = view.header ? out.shape.groups : 0;
        const int64_t across = tegroup_impl_ceil_div(call.width, TEGROUP_IMPL_1X128_TILE);
        for (; from < groups; from += 32) {
            const int32_t g = from + lane;
            const tegroup_impl_sides sides =
                g < groups ? tegroup_impl_group_sides(&out, &view, g) : tegroup_impl_sides_of(0, 0);
            tegroup_impl_before mine = {{0, 0}, 0}, sum;
            tegroup_impl_pass_group(&out, &call.facts, sides, &mine);
            const int64_t here = tegroup_impl_ceil_div(sides.rows, TEGROUP_IMPL_1X128_TILE) * across,
                          end = tiles + up_to(here);
            for (int c = 0; c < TEGROUP_IMPL_COPIES; c++) sum.scales[c] = before.scales[c] + up_to(mine.scales[c]);
            sum.transposed = before.transposed + up_to(mine.transposed);
            const uint32_t later = __ballot_sync(0xffffffffu, t >= 0 && end > t);
            if (later) {
                if (lane != __ffs((int)later) - 1) return;
                for (int c = 0; c < TEGROUP_IMPL_COPIES; c++) sum.scales[c] -= mine.scales[c];
                sum.transposed -= mine.transposed;
                const tegroup_impl_block in = tegroup_impl_block_of(&call.desc.input, &view, g);
                to->first = end - here;
                to->end = end;
                to->rows = sides.rows;
                to->row0 = in.row0;
                to->in = in.first;
                to->dy = call.desc.grad_output.dtype == TEGROUP_DTYPE_UNSET
                             ? 0
                             : tegroup_impl_block_of(&call.desc.grad_output, &view, g).first;
                for (int c = 0; c < TEGROUP_IMPL_COPIES; c++)
                    to->copies[c] = tegroup_impl_copy_of(&out, &call.facts, &view, g, c, &sum);
                return;
            }
            tiles = __shfl_sync(0xffffffffu, end, 31);
            for (int c = 0; c < TEGROUP_IMPL_COPIES; c++)
                before.scales[c] = __shfl_sync(0xffffffffu, sum.scales[c], 31);
            before.transposed = __shfl_sync(0xffffffffu, sum.transposed, 31);
        }
    }
};

/* A thread's part of a tile. READ: of how many values a result is made: 2, a gate and an up, or 3, these and a
 * gradient, of which two results are made, the gradients of the gate and of the up. */
template <int READ> struct tegroup_impl_1x128_piece {
    typedef tegroup_impl_vectors<TEGROUP_DTYPE_BF16> vectors;
    enum { ROWS = TEGROUP_IMPL_1X128_ROWS, RESULTS = READ == 3 ? 2 : 1, TILE = TEGROUP_IMPL_1X128_TILE };
    const tegroup_impl_1x128_call &call;
    tegroup_impl_1x128_shared &shared;
    int32_t row, col;   /* in the tile */
    int64_t row0, col0; /* the first ones of the tile that is read, in its group */
    uint4 read[READ][ROWS], x[RESULTS][ROWS];
    float scale[ROWS];

    __device__ __forceinline__ tegroup_impl_1x128_piece(const tegroup_impl_1x128_call &c, tegroup_impl_1x128_shared &s)
        : call(c), shared(s), row((int32_t)threadIdx.x / 16 * ROWS), col((int32_t)threadIdx.x % 16 * 8) {}

    /* Goes to the tile of a number. */
    __device__ __forceinline__ void go_to(const tegroup_impl_1x128_group &group, int64_t t) {
        const uint32_t across = (uint32_t)tegroup_impl_ceil_div(call.width, TILE),
                       in_group = (uint32_t)(t - group.first), down = in_group / across;
        row0 = (int64_t)down * TILE;
        col0 = (int64_t)(in_group - down * across) * TILE;
    }
    /* What does not exist is 0. */
    __device__ __forceinline__ void load(const tegroup_impl_1x128_group &group) {
        const tegroup_tensor &in = call.desc.input, &dy = call.desc.grad_output;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int64_t r = row0 + row + i, c = col0 + col;
            const bool there = r < group.rows && c < call.width;
            const uint4 *from = (const uint4 *)((const char *)in.data + (group.in + r * in.ld + c) * 2);
            read[0][i] = there ? __ldcs(from) : make_uint4(0, 0, 0, 0);
            read[1][i] = there ? __ldcs(from + call.width / 8) : make_uint4(0, 0, 0, 0);
            if (READ == 3)
                read[READ - 1][i] =
                    there ? __ldcs((const uint4 *)((const char *)dy.data + (group.dy + r * dy.ld + c) * 2))
                          : make_uint4(0, 0, 0, 0);
            scale[i] = there ? tegroup_impl_weight<float>(call.desc.row_scale, group.row0 + r, 0) : 0.0f;
        }
    }
    /* The tile that was read becomes that at hand. */
    __device__ __forceinline__ void make() {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float gate[8], up[8], grad[8];
            vectors::unpack(read[0][i], gate);
            vectors::unpack(read[1][i], up);
            if (READ == 3) vectors::unpack(read[READ - 1][i], grad);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (READ == 3)
                    (void)tegroup_impl_activation_grad_f32(TEGROUP_ACTIVATION_SWIGLU, true, 0, 0, gate[j], up[j],
                                                           scale[i] * grad[j], &gate[j], &up[j]);
                else
                    gate[j] =
                        scale[i] * tegroup_impl_activation_f32(TEGROUP_ACTIVATION_SWIGLU, true, 0, 0, gate[j], up[j]);
            }
            x[0][i] = vectors::pack(gate);
            if (READ == 3) x[RESULTS - 1][i] = vectors::pack(up);
        }
    }

    /* Magnitudes of two values; NaN is the largest, or counts for nothing. */
    __device__ __forceinline__ uint32_t magnitudes(uint32_t two) const {
        two &= 0x7fff7fffu;
        return call.desc.rule.nan_shows ? two : two & ~__vcmpgtu2(two, 0x7f807f80u);
    }
    static __device__ __forceinline__ uint32_t larger_across(uint32_t two, int from, int to) {
        for (int step = from; step < to; step *= 2) two = __vmaxu2(two, __shfl_xor_sync(0xffffffffu, two, step));
        return two;
    }
    /* The largest magnitudes of the tile's rows and columns into the tables. */
    __device__ __forceinline__ void collect() const {
#pragma unroll
        for (int k = 0; k < RESULTS; k++) {
            uint32_t of_row[ROWS], of_col[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                const uint4 v = x[k][i];
                const uint32_t word[4] = {magnitudes(v.x), magnitudes(v.y), magnitudes(v.z), magnitudes(v.w)};
                of_row[i] = __vmaxu2(__vmaxu2(word[0], word[1]), __vmaxu2(word[2], word[3]));
#pragma unroll
                for (int j = 0; j < 4; j++) of_col[j] = __vmaxu2(of_col[j], word[j]);
            }
#pragma unroll
            for (int i = 0; i < ROWS; i += 2) { /* two rows in a word */
                const uint32_t two = larger_across(__vmaxu2(__byte_perm(of_row[i], of_row[i + 1], 0x5410),
                                                            __byte_perm(of_row[i], of_row[i + 1], 0x7632)),
                                                   1, 16);
                if (col == 0) *(uint32_t *)&shared.of_rows[k][row + i] = two;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) of_col[j] = larger_across(of_col[j], 16, 32);
            if (threadIdx.x % 32 < 16)
                shared.of_cols[k][threadIdx.x / 32][col / 8] = make_uint4(of_col[0], of_col[1], of_col[2], of_col[3]);
        }
    }
    /* A factor and a scale for each thread: of the tile's columns, or of its rows. */
    __device__ __forceinline__ void find_scale(const tegroup_impl_1x128_group &group, int64_t row0,
                                               int64_t col0) const {
        const int32_t columnwise = threadIdx.x < RESULTS * TILE, n = (int32_t)threadIdx.x % (RESULTS * TILE),
                      k = n / TILE, c = n % TILE;
        const tegroup_impl_copy &copy = group.copies[columnwise];
        const int64_t at = columnwise ? k * call.width + col0 + c : row0 + c,
                      inner = (columnwise ? row0 : k * call.width + col0) / TILE;
        uint32_t most = shared.of_rows[k][c];
        if (threadIdx.x >= 2 * RESULTS * TILE || !copy.scales) return;
        if (columnwise) most = 0;
#pragma unroll
        for (int w = 0; w < TEGROUP_IMPL_1X128_WARPS; w++)
            if (columnwise) most = max(most, (uint32_t)((const uint16_t *)shared.of_cols[k][w])[c]);
        const tegroup_block_scale block = tegroup_impl_scale_block(
            &call.desc.rule, call.desc.output.dtype, TEGROUP_DTYPE_F32, __uint_as_float(most << 16), 1.0f);
        const bool there = columnwise ? col0 + c < call.width : at < group.rows, stored = at < copy.grid.outer_extent;
        shared.factor[columnwise][k][c] = block.multiplier;
        if (columnwise ? there : stored) /* rows are padded */
            ((uint32_t *)copy.scales)[copy.grid.base + at * copy.grid.outer_stride + inner * copy.grid.inner_stride] =
                there ? block.bits : 0;
    }
    static __device__ __forceinline__ uint32_t four_codes(tegroup_dtype dtype, const float *y) {
        return tegroup_impl_two_codes(dtype, y[0], y[1]) | tegroup_impl_two_codes(dtype, y[2], y[3]) << 16;
    }
    __device__ __forceinline__ void encode_rows(const tegroup_impl_1x128_group &group, int64_t row0,
                                                int64_t col0) const {
        const tegroup_impl_copy &copy = group.copies[TEGROUP_IMPL_ROWWISE];
        char *to = copy.data + tegroup_impl_element_of(&copy, row0 + row, col0 + col);
#pragma unroll
        for (int i = 0; i < ROWS; i++, to += copy.at.row_stride)
#pragma unroll
            for (int k = 0; k < RESULTS; k++) {
                const float by = shared.factor[TEGROUP_IMPL_ROWWISE][k][row + i];
                float y[8];
                vectors::unpack(x[k][i], y);
#pragma unroll
                for (int j = 0; j < 8; j++) y[j] = tegroup_impl_product_f32(y[j], by);
                if (row0 + row + i < group.rows && col0 + col < call.width)
                    *(uint2 *)(to + k * call.width) =
                        make_uint2(four_codes(call.desc.output.dtype, y), four_codes(call.desc.output.dtype, y + 4));
            }
    }
    /* Four rows of each column to shared memory: a column has 32 words, in an order by which eight columns it is of, so
     * that neither columns beside each other nor those of one whole column meet in a bank. */
    __device__ __forceinline__ void turn(const tegroup_impl_1x128_group &group, int64_t row0, int k) const {
        const int32_t left = (int32_t)tegroup_impl_min(ROWS, group.rows - row0 - row);
        uint4 v[ROWS]; /* packed, since 8 floats for each would spill registers */
#pragma unroll
        for (int i = 0; i < ROWS; i++) v[i] = x[k][i];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float by = shared.factor[TEGROUP_IMPL_COLUMNWISE][k][col + j];
            float four[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; i++) { /* no NaN of a factor pads the rows */
                const uint32_t word = j / 2 == 0 ? v[i].x : j / 2 == 1 ? v[i].y : j / 2 == 2 ? v[i].z : v[i].w;
                const float y = j % 2 ? tegroup_impl_high_half(word, true) : tegroup_impl_low_half(word, true);
                four[i] = i < left ? tegroup_impl_product_f32(y, by) : 0.0f;
            }
            ((uint32_t *)shared.turned)[(col + j) * 32 + ((row / ROWS) ^ (col / 8 * 2))] =
                four_codes(call.desc.output.dtype, four);
        }
    }
    /* What is in shared memory, to the rows of the transposed copy; after the last row come the zeros that pad it. */
    __device__ __forceinline__ void store_turned(const tegroup_impl_1x128_group &group, int64_t row0, int64_t col0,
                                                 int k) const {
        const tegroup_impl_copy &copy = group.copies[TEGROUP_IMPL_COLUMNWISE];
        char *const to = copy.data + tegroup_impl_element_of(&copy, row0, k * call.width + col0);
#pragma unroll
        for (int e = 0; e < TILE * TILE / 16 / TEGROUP_IMPL_1X128_THREADS; e++) {
            const int32_t at = (int32_t)threadIdx.x + e * TEGROUP_IMPL_1X128_THREADS, c = at / 8, piece = at % 8;
            uint4 v = shared.turned[c * 8 + (piece ^ (c / 16))];
            if (c / 8 % 2) v = make_uint4(v.z, v.w, v.x, v.y);
            if (col0 + c < call.width && row0 + piece * 16 < copy.at.col_stride)
                *(uint4 *)(to + c * copy.at.col_stride + piece * 16) = v;
        }
    }
};

template <int READ>
static __global__ void __launch_bounds__(TEGROUP_IMPL_1X128_THREADS, 1)
    tegroup_impl_1x128_kernel(const __grid_constant__ tegroup_impl_1x128_call call) {
    __shared__ tegroup_impl_1x128_shared shared;
    enum { RESULTS = tegroup_impl_1x128_piece<READ>::RESULTS };
    tegroup_impl_1x128_piece<READ> piece(call, shared);
    tegroup_impl_1x128_walk walk(call);
    int at = 0;                 /* which of the two groups is the tile's */
    int64_t row0 = 0, col0 = 0; /* of the tile */
    if (threadIdx.x < 32) {
        walk.find(-1, NULL);
        if (threadIdx.x == 0) {
            shared.tiles = walk.tiles;
            shared.group[0].end = 0;
        }
        walk.begin();
    }
    __syncthreads();
    const int64_t end = shared.tiles;
    /* Blocks take turns, so that what they read and write at a time lies close together in memory. Before its first
     * tile a block only reads that. */
    for (int64_t t = -1, next = blockIdx.x; t < end; t = next, next += gridDim.x) {
        const tegroup_impl_1x128_group &group = shared.group[at];
        if (t >= 0) {
            row0 = piece.row0, col0 = piece.col0;
            piece.make();
        }
        if (next < end) { /* the next tile comes while this one is encoded */
            if (next >= group.end) {
                at ^= 1;
                __syncthreads(); /* the tile before, which may be of the group two before, has been stored */
                if (threadIdx.x < 32) walk.find(next, &shared.group[at]);
                __syncthreads();
            }
            piece.go_to(shared.group[at], next);
            piece.load(shared.group[at]);
        }
        if (t < 0) continue;
        piece.collect();
        __syncthreads();
        piece.find_scale(group, row0, col0);
        __syncthreads();
        if (group.copies[TEGROUP_IMPL_ROWWISE].data) piece.encode_rows(group, row0, col0);
#pragma unroll
        for (int k = 0; k < RESULTS; k++) {
            if (!group.copies[TEGROUP_IMPL_COLUMNWISE].data) break;
            if (k > 0) __syncthreads(); /* the result before has been stored */
            piece.turn(group, row0, k);
            __syncthreads();
            piece.store_turned(group, row0, col0, k);
        }
    }
}

template <int READ>
static inline tegroup_status tegroup_impl_1x128_launch(const tegroup_impl_1x128_call *call, struct CUstream_st *stream,
                                                       tegroup_error *error) {
    const tegroup_shape *shape = &call->desc.output.shape;
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(
        tegroup_impl_mul(tegroup_impl_ceil_div(shape->rows, TEGROUP_IMPL_1X128_TILE) + shape->groups,
                         tegroup_impl_ceil_div(call->width, TEGROUP_IMPL_1X128_TILE)),
        1, &blocks, error));
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_1x128_kernel<READ>, blocks, TEGROUP_IMPL_1X128_THREADS, 0, stream, *call),
        "stream", "the kernel must launch", error);
}

#if !defined(TEGROUP_NO_ACTIVATION)
static inline tegroup_status tegroup_impl_cuda_quantize_1x128(const tegroup_quantize_desc *desc,
                                                              struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_tensor *out = &desc->output;
    const int gradient = desc->grad_output.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_impl_1x128_call call;
    memset(&call, 0, sizeof call);
    call.desc = *desc;
    call.desc.input.ld = tegroup_impl_ld(&desc->input);
    if (gradient) call.desc.grad_output.ld = tegroup_impl_ld(&desc->grad_output);
    call.desc.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    call.facts = *tegroup_scaling_info(out->scaling);
    call.facts.name = NULL; /* of no use to a kernel */
    call.width = out->shape.cols / (1 + gradient);
    if (out->shape.groups == 0 || call.width == 0) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(gradient ? tegroup_impl_1x128_launch<3>(&call, stream, error)
                              : tegroup_impl_1x128_launch<2>(&call, stream, error));
#if !defined(TEGROUP_NO_BACKWARD)
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) return tegroup_impl_cuda_quantize_sums(desc, stream, error);
#endif
    return TEGROUP_OK;
}
#endif

static inline tegroup_status tegroup_impl_cuda_quantize(const tegroup_quantize_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
#if !defined(TEGROUP_NO_ACTIVATION) /* else no call has one */
    if (tegroup_impl_quantizes_1x128(desc)) return tegroup_impl_cuda_quantize_1x128(desc, stream, error);
#endif
    return tegroup_impl_cuda_quantize_any(desc, stream, error);
}
