/* ---- Quantise: rowwise blocks of BF16, in registers ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "formats/scale_rule.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "layer/quantize.h"
#include "layer/quantize_values_cuda.h"
#include "layer/quantize_walk_cuda.h"
#include "layer/quantize_tile_cuda.h"

/* These kernels make what the kernel of strips makes, of values that are only read: each stays in the registers of its
 * thread, which takes a third of the instructions. */
enum {
    TEGROUP_IMPL_REGISTERS_RESIDENT = 2, /* blocks a multiprocessor, of up to 128 registers a thread */
    TEGROUP_IMPL_REGISTERS_PIECES = 8    /* of a thread, eight values each */
};

/* Whether these kernels write the copy of a call: rows at multiples of 16 bytes, and eight codes at multiples of their
 * own length. */
static inline int tegroup_impl_quantizes_in_registers(const tegroup_impl_quantize_launch *call) {
    const tegroup_tensor *in = &call->desc.input, *out = &call->desc.output;
    const tegroup_scaling_facts *facts = &call->facts;
    return in->dtype == TEGROUP_DTYPE_BF16 && facts->choice_outer == 1 && facts->block_inner > 0 && call->plain
           && call->vectors && !call->desc.rule.divide && !call->raises && call->copies == 1 << TEGROUP_IMPL_ROWWISE
           && !tegroup_impl_listed(in) && !tegroup_impl_listed(out) && tegroup_impl_aligned(in->data, 16)
           && tegroup_impl_aligned(out->data, (size_t)tegroup_impl_bits(out->dtype)) && out->shape.cols % 8 == 0
           && tegroup_impl_ld(out) % 8 == 0 && (out->shape.groups < 2 || tegroup_impl_group_stride(out) % 8 == 0);
}

/* A warp's part of a work: 2,048 values of one row or, where a work is narrow, of up to eight rows. A piece is 256
 * values of a row. LANES beside each other have a block of each piece, and share out the blocks' scales among them.
 * BITS: of a code. SHIFT: the logarithm of LANES, so that a block has 2^(SHIFT + 3) values. */
template <int LANES, int BITS> struct tegroup_impl_quantize_registers {
    typedef tegroup_impl_eight<TEGROUP_DTYPE_BF16> eight;
    enum { PIECES = TEGROUP_IMPL_REGISTERS_PIECES, BYTES = 2, SHIFT = LANES == 16 ? 4 : LANES == 4 ? 2 : 1 };
    enum { SCALES = LANES < PIECES ? PIECES / LANES : 1 }; /* scales that a lane finds */
    const tegroup_impl_quantize_launch &call;
    const tegroup_impl_quantize_shared &shared;
    const int32_t lane, in_row; /* in_row: logarithm of a row's pieces */
    int64_t row, col0;          /* the warp's first, in the part */
    int32_t rows, cols;         /* that are there */
    eight x[PIECES];

    __device__ __forceinline__ tegroup_impl_quantize_registers(const tegroup_impl_quantize_launch &c,
                                                               const tegroup_impl_quantize_shared &s)
        : call(c), shared(s), lane((int32_t)threadIdx.x % 32), in_row(c.across_shift - 8) {}

    __device__ __forceinline__ int32_t down(int32_t piece) const { return piece >> in_row; }
    __device__ __forceinline__ int32_t at(int32_t piece) const { /* its first column */
        return (piece & ((1 << in_row) - 1)) * 256;
    }
    __device__ __forceinline__ bool there(int32_t piece) const {
        return down(piece) < rows && at(piece) + lane * 8 < cols;
    }
    __device__ __forceinline__ int64_t of_group() const { return shared.part * shared.part_rows + row; }

    /* False: the warp has no row. */
    __device__ __forceinline__ bool load(int64_t row0, int64_t at_col) {
        row = row0 + ((int32_t)threadIdx.x / 32 << (3 - in_row)), col0 = at_col;
        rows = (int32_t)tegroup_impl_min(PIECES, shared.part_rows - row);
        cols = (int32_t)tegroup_impl_min(1 << call.across_shift, shared.cols - col0);
        if (rows <= 0) return false;
        const char *from = shared.in.base + (shared.in.first + of_group() * shared.in.ld + col0 + lane * 8) * BYTES;
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++)
            x[k].raw[0] = there(k) ? __ldcs((const uint4 *)(from + (down(k) * shared.in.ld + at(k)) * BYTES))
                                   : make_uint4(0, 0, 0, 0);
        return true;
    }

    /* The first of the pieces whose scales the lane finds. */
    __device__ __forceinline__ int32_t first_scaled() const { return lane % LANES * SCALES % PIECES; }
    /* The largest magnitudes of the block in these. All lanes find those of every pair of pieces, and each keeps the
     * pairs that hold its own, of which a lane with one scale has half. */
    template <bool SHOWS> __device__ __forceinline__ void find_amax(float *amax) const {
        typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, SHOWS> magnitudes;
        uint32_t pairs[(SCALES + 1) / 2] = {0};
#pragma unroll
        for (int32_t k = 0; k < PIECES; k += 2) {
            uint32_t pair; /* of pieces k and k + 1 */
            magnitudes::of_pair(x[k], x[k + 1], &pair);
            magnitudes::of_lanes(SHIFT, &pair);
            if (first_scaled() / SCALES == k / SCALES || (SCALES == 1 && first_scaled() / 2 == k / 2))
                pairs[k % SCALES / 2] = pair;
        }
#pragma unroll
        for (int32_t j = 0; j < SCALES; j++)
            amax[j] = __uint_as_float(magnitudes::at(&pairs[j / 2], SCALES == 1 ? lane & 1 : j & 1));
    }
    /* The scale of the lane's block in a piece, to where it is stored. */
    __device__ __forceinline__ void store_scale(int32_t piece, uint32_t bits) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const int32_t col = at(piece) + lane / LANES * LANES * 8;
        if (down(piece) >= rows || col >= cols || lane % LANES >= PIECES) return;
        tegroup_impl_store_code(call.scale_dtype, copy.scales,
                                tegroup_impl_scale_of_block(&copy.grid, shared.part, row + down(piece),
                                                            (col0 + col) >> (SHIFT + 3)),
                                bits);
    }

    __device__ __forceinline__ void encode() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const tegroup_dtype dtype = call.desc.output.dtype;
        float amax[SCALES], factor[SCALES];
        if (!copy.data) return;
        if (call.desc.rule.nan_shows) find_amax<true>(amax);
        else find_amax<false>(amax);
#pragma unroll
        for (int32_t j = 0; j < SCALES; j++) {
            const tegroup_block_scale block =
                tegroup_impl_scale_block(&call.desc.rule, dtype, call.scale_dtype, amax[j], shared.global);
            factor[j] = block.multiplier;
            store_scale(first_scaled() + j, block.bits);
        }
        const int64_t first = tegroup_impl_element_of(&copy, of_group(), col0 + lane * 8);
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) {
            const float by = __shfl_sync(0xffffffffu, factor[k % SCALES], lane / LANES * LANES + k / SCALES);
            char *const to = copy.data + (first + down(k) * copy.at.row_stride + at(k)) * BITS / 8;
            float y[8];
            x[k].unpack(y);
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = tegroup_impl_product_f32(y[j], by);
            if (!there(k)) continue;
            const uint2 codes = tegroup_impl_eight_codes<BITS>(dtype, y);
            if (BITS == 8) *(uint2 *)to = codes;
            else *(uint32_t *)to = codes.x;
        }
    }

    /* Zeros for what pads the scales behind a part's last rows, and behind its last columns: by all threads. */
    __device__ __forceinline__ void pad(int64_t row0) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const tegroup_impl_scale_grid &grid = copy.grid;
        const int64_t left = shared.part_rows - row0, inner0 = col0 >> (SHIFT + 3),
                      blocks = (cols + LANES * 8 - 1) >> (SHIFT + 3),
                      outers = left <= 1 << call.down_shift ? grid.outer_extent - row0 : 1 << call.down_shift,
                      inners = shared.cols - col0 <= 1 << call.across_shift ? grid.inner_extent - inner0 : blocks;
        if (!copy.data || (outers <= left && inners <= blocks)) return;
        for (int64_t o = threadIdx.x / 32; o < outers; o += blockDim.x / 32)
            for (int64_t i = (o < left ? blocks : 0) + lane; i < inners; i += 32)
                tegroup_impl_store_code(call.scale_dtype, copy.scales,
                                        tegroup_impl_scale_of_block(&grid, shared.part, row0 + o, inner0 + i), 0);
    }
};

template <int LANES, int BITS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_REGISTERS_RESIDENT)
    tegroup_impl_quantize_registers_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk walk(call, shared);
    tegroup_impl_quantize_registers<LANES, BITS> part(call, shared);
    tegroup_impl_quantize_store_groups(call, shared.view);
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t row0, col0;
        if (work == walk.begin || work >= shared.end) walk.meet(work);
        walk.place(work, &row0, &col0);
        if (part.load(row0, col0)) part.encode();
        part.pad(row0);
    }
}
