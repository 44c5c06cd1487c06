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
#include "cuda/rows.h"
#include "layer/quantize_values_cuda.h"
#include "layer/quantize_walk_cuda.h"

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
    const tegroup_block_scale block = tegroup_impl_scale_block(&desc.rule, desc.output.dtype, call.scale_dtype,
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
