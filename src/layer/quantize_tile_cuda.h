/* ---- Quantise: a tile, and the kernels ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "formats/scale_rule.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/stored_scales.h"
#include "core/product.h"
#include "core/activation_formulas.h"
#include "layer/quantize.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "layer/quantize_values_cuda.h"
#include "layer/quantize_walk_cuda.h"

/* The largest magnitude of a block, from the tables: that of index o of those for which one scale is chosen, and i. */
static __device__ __forceinline__ uint32_t tegroup_impl_table_amax(const tegroup_impl_quantize_launch &call,
                                                                   const tegroup_impl_quantize_shared &shared,
                                                                   int columnwise, int32_t o, int32_t i) {
    const bool square = call.choice_shift > 0;
    const int32_t blocks = TEGROUP_IMPL_QUANTIZE_TILE >> call.inner_shift, bands = 1 << call.inner_shift >> 4;
    if (!square && !columnwise) return shared.amax[0][o * blocks + i];
    const int32_t band = (square && !columnwise ? o : i) * bands, at = !square || columnwise ? o : i,
                  step = square ? blocks : TEGROUP_IMPL_QUANTIZE_COLS;
    uint32_t most = 0;
    for (int32_t b = 0; b < bands; b++) most = max(most, shared.amax[!square][(band + b) * step + at]);
    return most;
}

/* The scale of a block of so large an amax, its factor into the table. Returns its code. */
static __device__ __forceinline__ uint32_t tegroup_impl_table_scale(const tegroup_impl_quantize_launch &call,
                                                                    tegroup_impl_quantize_shared &shared,
                                                                    int columnwise, int32_t entry, float amax) {
    const tegroup_quantize_desc &desc = call.desc;
    const tegroup_block_scale block =
        tegroup_impl_scale_block(&desc.rule, desc.output.dtype, call.scale_dtype, amax, shared.global);
    shared.factor[columnwise][entry] = block.divide ? block.stored : block.multiplier;
    return block.bits;
}

/* The scales of one copy of the tile, or of a strip of tiles: from the table of amax to that of factors, and to
 * where they are stored, with what pads them. The scale of TENSOR is stored elsewhere. */
static __device__ __forceinline__ void tegroup_impl_table_scales(const tegroup_impl_quantize_launch &call,
                                                                 tegroup_impl_quantize_shared &shared, int64_t row0,
                                                                 int64_t col0, int columnwise) {
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const tegroup_impl_scale_grid &grid = copy.grid;
    const int64_t outer0 = columnwise ? col0 : row0, inner0 = columnwise ? row0 : col0;
    if (tegroup_impl_scaled_as_one(&call.facts)) {
        const float *amax = call.desc.output.amax;
        if (threadIdx.x == 0) (void)tegroup_impl_table_scale(call, shared, columnwise, 0, amax ? amax[shared.g] : 0.0f);
        return;
    }
    const tegroup_impl_tile_scales scales(grid, shared.part, row0, col0);
    const int32_t outers =
                      (int32_t)(tegroup_impl_blocks_end(outer0, grid.outer_shift, grid.outer_count, grid.outer_extent)
                                - scales.outer),
                  inners = call.facts.block_inner == 0
                               ? 1
                               : (int32_t)(tegroup_impl_blocks_end(inner0, grid.inner_shift, grid.inner_count,
                                                                   grid.inner_extent)
                                           - scales.inner);
    const bool down = !grid.swizzled && grid.outer_stride < grid.inner_stride; /* the outer index is contiguous */
    const int32_t fast = down ? outers : inners, shift = fast > 1 ? 32 - __clz(fast - 1) : 0;
    for (int32_t e = (int32_t)threadIdx.x; e < (down ? inners : outers) << shift; e += TEGROUP_IMPL_QUANTIZE_THREADS) {
        const int32_t quick = e & ((1 << shift) - 1), slow = e >> shift, o = down ? quick : slow,
                      i = down ? slow : quick, chosen = o << call.outer_shift >> call.choice_shift;
        uint32_t bits = 0;
        if (quick >= fast) continue;
        if (o < scales.outer_count && i < scales.inner_count)
            bits =
                tegroup_impl_table_scale(call, shared, columnwise,
                                         columnwise ? i * TEGROUP_IMPL_QUANTIZE_COLS + chosen
                                                    : chosen * (TEGROUP_IMPL_QUANTIZE_TILE >> call.inner_shift) + i,
                                         __uint_as_float(tegroup_impl_table_amax(call, shared, columnwise, chosen, i)));
        if (copy.data) tegroup_impl_store_code(call.scale_dtype, copy.scales, scales.at(o, i), bits);
    }
}

/* n codes beside each other from element `at` on, one by one. */
template <int BITS>
static __device__ __noinline__ void tegroup_impl_store_codes(tegroup_dtype dtype, char *data, int64_t at, int32_t n,
                                                             uint2 codes) {
    for (int32_t e = 0; e < n; e++)
        tegroup_impl_store_code(dtype, data, at + e,
                                (BITS == 8 && e >= 4 ? codes.y : codes.x) >> e % (32 / BITS) * BITS);
}

/* The first `bytes` of 16. */
static __device__ __noinline__ void tegroup_impl_store_bytes(char *to, uint4 v, int32_t bytes) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int32_t b = 0; b < 16; b++)
        if (b < bytes) to[b] = (char)(word[b / 4] >> b % 4 * 8);
}

/* Eight values of the group's row r from column `at` on, n of them: of a gathered row, or such as an activation makes;
 * vector: rows are read 16 bytes at a time. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_quantize_row_of(const tegroup_impl_quantize_launch &call,
                                                                 const tegroup_impl_quantize_shared &shared, int64_t r,
                                                                 int64_t at, int32_t n, bool vector,
                                                                 tegroup_impl_eight<DTYPE> *x) {
    const tegroup_quantize_desc &desc = call.desc;
    const int bytes = tegroup_impl_eight<DTYPE>::vectors::bytes;
    x->clear();
#if !defined(TEGROUP_NO_ACTIVATION)
    if (desc.activation != TEGROUP_ACTIVATION_UNSET) {
        const bool gradient = desc.grad_output.dtype != TEGROUP_DTYPE_UNSET;
        const int64_t width = desc.output.shape.cols / 2;
        const bool straddles =
            gradient && tegroup_impl_gated(desc.activation) && !desc.interleaved && at < width && at + n > width;
        const char *in = shared.in.base + (shared.in.first + r * shared.in.ld) * bytes,
                   *dy = gradient ? shared.dy.base + (shared.dy.first + r * shared.dy.ld) * bytes : NULL;
        const float scale = tegroup_impl_weight<float>(desc.row_scale, shared.in.row0 + r, 0);
        float y[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        vector = vector && (!gradient || ((uintptr_t)shared.dy.base & 15) == 0);
        if (!straddles) tegroup_impl_made_eight<DTYPE>(desc, in, dy, scale, at, n, vector, y);
        for (int32_t e = 0; e < n && straddles; e++) {
            float one[8];
            tegroup_impl_made_eight<DTYPE>(desc, in, dy, scale, at + e, 1, false, one);
            y[e] = one[0];
        }
#pragma unroll
        for (int e = 0; e < 8; e++) y[e] = e < n ? y[e] : 0.0f;
        x->pack(y);
        return;
    }
#endif
    const int64_t row = tegroup_impl_row_at(&desc.gather_input, &shared.in, r);
    if (row >= 0) x->load(shared.in.base + row * bytes, at, n, vector);
}

/* Eight pieces of eight values: piece i is of row r + i, from column c on, where n columns are left (8 or more: all of
 * a piece). Pieces from `pieces` on, and columns from n on, are 0. */
template <int DTYPE>
static __device__ __forceinline__ void tegroup_impl_quantize_load(const tegroup_impl_quantize_launch &call,
                                                                  const tegroup_impl_quantize_shared &shared, int64_t r,
                                                                  int64_t c, int32_t pieces, int32_t n,
                                                                  tegroup_impl_eight<DTYPE> *x) {
    const int64_t bytes = tegroup_impl_eight<DTYPE>::vectors::bytes, step = shared.in.ld * bytes;
    const char *from = shared.in.base + (shared.in.first + r * shared.in.ld + c) * bytes;
    const bool vector = call.vectors && ((uintptr_t)shared.in.base & 15) == 0;
    if (call.plain && vector && n >= 8) {
#pragma unroll
        for (int i = 0; i < 8; i++, from += step) {
            if (i < pieces) x[i].load_vectors(from);
            else x[i].clear();
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        tegroup_impl_eight<DTYPE> slow; /* of its own, as the call wants an address, and registers have none */
        slow.clear();
        if (i < pieces && n > 0) tegroup_impl_quantize_row_of<DTYPE>(call, shared, r + i, c, min(8, n), vector, &slow);
        x[i] = slow;
    }
}

/* A thread's piece of a tile, and its place: rows `row` .. row + 7, columns `col` .. col + 7 of the tile. */
template <int DTYPE> struct tegroup_impl_quantize_piece {
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    int32_t row, col;
    int32_t rows, n;    /* from the piece on that its part has */
    int64_t row0, col0; /* the tile's first, in the part */
    tegroup_impl_eight<DTYPE> x[8];

    __device__ tegroup_impl_quantize_piece(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s)
        : call(c), shared(s), row(0), col(0), rows(0), n(0), row0(0), col0(0) {}

    __device__ __forceinline__ void load(int64_t at_row, int64_t at_col) {
        row0 = at_row, col0 = at_col;
        row = tegroup_impl_thread() / 16 * 8, col = tegroup_impl_thread() % 16 * 8;
        rows = tegroup_impl_left_of(shared.part_rows - row0, row);
        n = tegroup_impl_left_of(shared.cols - col0, col);
        tegroup_impl_quantize_load<DTYPE>(call, shared, first(), col0 + col, rows, n, x);
    }
    __device__ __forceinline__ int64_t first() const { return shared.part * shared.part_rows + row0 + row; }
    __device__ __forceinline__ void forget() {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i].forget();
    }

    /* The piece's amax into the tables, the larger of it and what is there unless it is the first; returns it. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t collect(bool first) {
        typedef tegroup_impl_magnitudes<DTYPE, SHOWS> magnitudes;
        const int32_t lanes = 1 << call.inner_shift >> 3, blocks = TEGROUP_IMPL_QUANTIZE_TILE >> call.inner_shift,
                      lane = tegroup_impl_thread() % 32;
        uint32_t of_row[magnitudes::words];
        magnitudes::of_rows(x, of_row);
        const uint32_t most = magnitudes::largest(of_row);
        if (!call.copies) return most;
        if (call.choice_shift > 0) {
            uint32_t of_band = max(most, __shfl_xor_sync(0xffffffffu, most, 16));
            for (int step = 1; step < lanes; step *= 2)
                of_band = max(of_band, __shfl_xor_sync(0xffffffffu, of_band, step));
            if (lane < 16 && (lane & (lanes - 1)) == 0)
                shared.amax[0][row / 16 * blocks + (col >> call.inner_shift)] = of_band;
            return most;
        }
        if (call.copies & 1 << TEGROUP_IMPL_ROWWISE) {
            for (int step = 1; step < lanes; step *= 2)
#pragma unroll
                for (int k = 0; k < magnitudes::words; k++)
                    of_row[k] = magnitudes::larger(of_row[k], __shfl_xor_sync(0xffffffffu, of_row[k], step));
#pragma unroll
            for (int i = 0; i < 8; i++)
                if ((lane & (lanes - 1)) == 0)
                    shared.amax[0][(row + i) * blocks + (col >> call.inner_shift)] = magnitudes::at(of_row, i);
        }
        if (call.copies & 1 << TEGROUP_IMPL_COLUMNWISE) {
            uint32_t of_col[magnitudes::words];
            magnitudes::of_columns(x, of_col);
#pragma unroll
            for (int k = 0; k < magnitudes::words; k++)
                of_col[k] = magnitudes::larger(of_col[k], __shfl_xor_sync(0xffffffffu, of_col[k], 16));
            uint4 *table = (uint4 *)(shared.amax[1] + row / 16 * TEGROUP_IMPL_QUANTIZE_COLS + col);
#pragma unroll
            for (int k = 0; k < 2 && lane < 16; k++) {
                uint4 now = make_uint4(magnitudes::at(of_col, 4 * k), magnitudes::at(of_col, 4 * k + 1),
                                       magnitudes::at(of_col, 4 * k + 2), magnitudes::at(of_col, 4 * k + 3));
                if (!first) {
                    const uint4 was = table[k];
                    now = make_uint4(max(was.x, now.x), max(was.y, now.y), max(was.z, now.z), max(was.w, now.w));
                }
                table[k] = now;
            }
        }
        return most;
    }

    __device__ __forceinline__ tegroup_impl_factors factors(int columnwise) const {
        return tegroup_impl_factors_of(call, shared, columnwise, call.choice_shift, row, col);
    }

    /* Rows of codes, in the order of the data. */
    template <int BITS, int COLUMNWISE> __device__ __forceinline__ void encode_rows() const {
        const tegroup_impl_copy &copy = shared.copies[COLUMNWISE];
        const int64_t at = tegroup_impl_element_of(&copy, first(), col0 + col), step = copy.at.row_stride * BITS / 8;
        char *to = copy.data + at * BITS / 8;
        const bool vector = n >= 8 && (((uintptr_t)to | (uintptr_t)step) & (BITS - 1)) == 0;
        const tegroup_impl_factors of = factors(COLUMNWISE);
        float factor[8];
        if (!copy.data || n <= 0) return;
#pragma unroll
        for (int j = 0; j < 8 && COLUMNWISE; j++) factor[j] = of.at[j * of.step];
#pragma unroll
        for (int i = 0; i < 8; i++, to += step) {
            float y[8];
            if (i >= rows) break;
            if (!COLUMNWISE) {
                factor[0] = of.at[i * of.step];
#pragma unroll
                for (int j = 1; j < 8; j++) factor[j] = factor[0];
            }
            x[i].unpack(y);
            tegroup_impl_scale_eight(y, factor, call.desc.rule.divide);
            const uint2 codes = tegroup_impl_eight_codes<BITS>(call.desc.output.dtype, y);
            if (!vector)
                tegroup_impl_store_codes<BITS>(call.desc.output.dtype, copy.data, at + i * copy.at.row_stride,
                                               min(8, n), codes);
            else if (BITS == 8) *(uint2 *)to = codes;
            else *(uint32_t *)to = codes.x;
        }
    }

    /* Transposed: eight rows of each column go to shared memory. */
    template <int BITS> __device__ __forceinline__ void turn() const {
        const tegroup_impl_factors of = factors(TEGROUP_IMPL_COLUMNWISE);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float scale = of.at[j * of.step],
                        factor[8] = {scale, scale, scale, scale, scale, scale, scale, scale};
            uint32_t *to = (uint32_t *)shared.turned + tegroup_impl_turned_at<BITS>(col + j, row);
            float y[8];
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = x[i].at(j);
            tegroup_impl_scale_eight(y, factor, call.desc.rule.divide);
            if (rows < 8) /* no NaN of a factor pads the rows */
#pragma unroll
                for (int i = 0; i < 8; i++) y[i] = i < rows ? y[i] : 0.0f;
            const uint2 codes = tegroup_impl_eight_codes<BITS>(call.desc.output.dtype, y);
            if (BITS == 8) *(uint2 *)to = codes;
            else *to = codes.x;
        }
    }

    /* What is in shared memory, to the rows of the transposed copy; after the last row come the zeros that pad it. */
    template <int BITS> __device__ __forceinline__ void store_turned() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int32_t count = 128 / BITS, pieces = TEGROUP_IMPL_QUANTIZE_TILE / count, thread = tegroup_impl_thread();
        const int64_t begin = shared.part * shared.part_rows + row0, step = copy.at.col_stride * BITS / 8,
                      whole = tegroup_impl_min(TEGROUP_IMPL_QUANTIZE_TILE, shared.part_rows - row0);
        const int32_t end = begin + whole < shared.rows ? (int32_t)whole : (int32_t)(copy.at.col_stride - begin),
                      cols = (int32_t)tegroup_impl_min(TEGROUP_IMPL_QUANTIZE_TILE, shared.cols - col0);
        char *to = copy.data + tegroup_impl_element_of(&copy, begin, col0) * BITS / 8;
        const bool vector = (((uintptr_t)to | (uintptr_t)step) & 15) == 0;
        if (!copy.data) return;
#pragma unroll
        for (int k = 0; k < pieces / 2; k++) {
            const int32_t e = thread + k * TEGROUP_IMPL_QUANTIZE_THREADS, c = e / pieces, piece = e % pieces;
            if (c >= cols) break;
            const uint4 v =
                tegroup_impl_turned_order<BITS>(c, shared.turned[tegroup_impl_turned_piece<BITS>(c, piece)]);
            char *const at = to + c * step + piece * 16;
            if (vector && (piece + 1) * count <= end) *(uint4 *)at = v;
            else tegroup_impl_store_bytes(at, v, (int32_t)tegroup_impl_clamp(end - piece * count, 0, count) * BITS / 8);
        }
    }

    template <int BITS> __device__ __forceinline__ void encode() const {
        if (call.copies & 1 << TEGROUP_IMPL_ROWWISE) encode_rows<BITS, TEGROUP_IMPL_ROWWISE>();
        if (!(call.copies & 1 << TEGROUP_IMPL_COLUMNWISE)) return;
        if (!tegroup_impl_transposed(&call.desc.output, TEGROUP_IMPL_COLUMNWISE)) {
            encode_rows<BITS, TEGROUP_IMPL_COLUMNWISE>();
            return;
        }
        turn<BITS>();
        __syncthreads();
        store_turned<BITS>();
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

/* A work is a tile; of scaling ROW, columnwise, a strip of them, through which a block goes down and up again: what it
 * read last is still in the cache. Without copies amax alone is looked for. */
template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_QUANTIZE_RESIDENT)
    tegroup_impl_quantize_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk walk(call, shared);
    tegroup_impl_quantize_piece<DTYPE> piece(call, shared);
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_TILE;
    const bool whole = tegroup_impl_scaled_as_one(&call.facts);
    uint32_t most = 0;
    int32_t g = -1;
    if (blockIdx.x == 0 && call.copies) tegroup_impl_quantize_store_groups(call, walk.view);
    for (int64_t work = walk.begin; work < walk.end; work += walk.step) {
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
                      last = call.spans_rows ? (shared.part_rows - 1) / tile * tile : row0;
        for (int64_t at = row0; at <= last; at += tile) {
            piece.load(at, col0);
            if (!whole || call.raises)
                most = max(most, call.desc.rule.nan_shows ? piece.template collect<true>(at == row0)
                                                          : piece.template collect<false>(at == row0));
        }
        if (!call.copies) continue;
        __syncthreads();
#pragma unroll 1
        for (int c = 0; c < TEGROUP_IMPL_COPIES; c++)
            if (call.copies >> c & 1) tegroup_impl_table_scales(call, shared, row0, col0, c);
        __syncthreads();
        for (int64_t at = last; at >= row0; at -= tile) {
            if (at < last) piece.load(at, col0);
            piece.forget();
            if (tegroup_impl_bits(call.desc.output.dtype) == 8) piece.template encode<8>();
            else piece.template encode<4>();
        }
    }
    if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
}
