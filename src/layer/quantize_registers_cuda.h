/* ---- Quantise: rowwise 1x128 blocks of BF16, in registers ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/convert.h"
#include "formats/scale_rule.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "layer/quantize.h"
#include "layer/quantize_values_cuda.h"
#include "layer/quantize_walk_cuda.h"

/* What the kernel of strips makes for any type and block, here for those of a training step: values never leave their
 * thread, which takes a third of the instructions. */
enum {
    TEGROUP_IMPL_REGISTERS_RESIDENT = 2, /* blocks a multiprocessor */
    TEGROUP_IMPL_REGISTERS_PIECES = 8    /* of a thread, eight values each */
};

/* Whether the kernel writes the copy of a call: rows at multiples of 16 bytes, codes at multiples of 8. */
static inline int tegroup_impl_quantizes_in_registers(const tegroup_impl_quantize_launch *call) {
    const tegroup_tensor *in = &call->desc.input, *out = &call->desc.output;
    return in->dtype == TEGROUP_DTYPE_BF16 && out->scaling == TEGROUP_SCALING_BLOCK_1X128 && call->plain
           && call->vectors && call->scale_dtype == TEGROUP_DTYPE_F32 && !call->desc.rule.divide && !call->raises
           && call->copies == 1 << TEGROUP_IMPL_ROWWISE && !tegroup_impl_listed(in) && !tegroup_impl_listed(out)
           && tegroup_impl_aligned(in->data, 16) && tegroup_impl_aligned(out->data, 8) && out->shape.cols % 8 == 0
           && tegroup_impl_ld(out) % 8 == 0 && (out->shape.groups < 2 || tegroup_impl_group_stride(out) % 8 == 0);
}

/* A warp's part of a work: 2,048 values of one row or, where a work is narrow, of up to eight rows. A piece is 256
 * values of a row, two blocks of 16 lanes each, whose scales are found by one of the 16 for each piece. */
struct tegroup_impl_quantize_registers {
    typedef tegroup_impl_eight<TEGROUP_DTYPE_BF16> eight;
    enum { PIECES = TEGROUP_IMPL_REGISTERS_PIECES, BYTES = 2 };
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

    /* The largest magnitude of the 16 lanes' block of piece lane % 8. */
    template <bool SHOWS> __device__ __forceinline__ float find_amax() const {
        typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, SHOWS> magnitudes;
        uint32_t mine = 0;
#pragma unroll
        for (int32_t k = 0; k < PIECES; k += 2) {
            uint32_t pair; /* of pieces k and k + 1 */
            magnitudes::of_pair(x[k], x[k + 1], &pair);
            magnitudes::of_lanes(4, &pair);
            if ((lane & 6) == k) mine = pair;
        }
        return __uint_as_float(magnitudes::at(&mine, lane & 1));
    }

    __device__ __forceinline__ void encode() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const tegroup_dtype dtype = call.desc.output.dtype;
        const float amax = call.desc.rule.nan_shows ? find_amax<true>() : find_amax<false>();
        const tegroup_block_scale block =
            tegroup_impl_scale_block(&call.desc.rule, dtype, TEGROUP_DTYPE_F32, amax, 1.0f);
        const int32_t piece = lane & 7, col = at(piece) + lane / 16 * 128;
        if (!copy.data) return;
        if ((lane & 8) == 0 && down(piece) < rows && col < cols)
            ((uint32_t *)copy.scales)[copy.grid.base + shared.part * copy.grid.part_stride
                                      + (row + down(piece)) * copy.grid.outer_stride
                                      + ((col0 + col) >> 7) * copy.grid.inner_stride] = block.bits;
        char *const to = copy.data + tegroup_impl_element_of(&copy, of_group(), col0 + lane * 8);
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) {
            const float by = __shfl_sync(0xffffffffu, block.multiplier, (lane & 16) + k);
            float y[8];
            x[k].unpack(y);
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = tegroup_impl_product_f32(y[j], by);
            if (there(k))
                *(uint2 *)(to + down(k) * copy.at.row_stride + at(k)) = tegroup_impl_eight_codes<8>(dtype, y);
        }
    }

    /* Zeros for the scales that pad a part's last rows. */
    __device__ __forceinline__ void pad(int64_t row0) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const int64_t inner0 = col0 >> 7, blocks = (cols + 127) >> 7;
        if (!copy.data || shared.part_rows - row0 > 1 << call.down_shift) return;
        for (int64_t o = shared.part_rows + threadIdx.x / 32; o < copy.grid.outer_extent; o += blockDim.x / 32)
            for (int64_t i = lane; i < blocks; i += 32)
                ((uint32_t *)copy.scales)[tegroup_impl_scale_of_block(&copy.grid, shared.part, o, inner0 + i)] = 0;
    }
};

static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_REGISTERS_RESIDENT)
    tegroup_impl_quantize_registers_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk walk(call, shared);
    tegroup_impl_quantize_registers piece(call, shared);
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t row0, col0;
        if (work == walk.begin || work >= shared.end) walk.meet(work);
        walk.place(work, &row0, &col0);
        if (piece.load(row0, col0)) piece.encode();
        piece.pad(row0);
    }
}
