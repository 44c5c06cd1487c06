/* ---- Quantised operands on a GPU, from codes to values ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/problem.h"
#include "core/product.h"
#include "core/quantised.h"
#include "cuda/launch.h"
#include "cuda/call.h"

/* What the kernels that read quantised operands share: where a group's codes and scales are, and how codes become
 * values of BF16 or F16. Values of 8 and 4 bits are exact in both (F4E2M1 and what has scales of 8 bits is decoded to
 * BF16 alone), by arithmetic on bits that is the same on every GPU. A value times a scale of 8 bits is exact in BF16,
 * too, or is rounded to it once. */

/* What a kernel is given besides the call. */
typedef struct tegroup_impl_gpu_formats {
    tegroup_impl_scaled first[2];   /* before the first group */
    tegroup_scaling_facts facts[2]; /* what first[].facts points to, in the kernel */
    int32_t bf16;                   /* values are multiplied in BF16, else in F16 */
} tegroup_impl_gpu_formats;

static inline tegroup_impl_gpu_formats tegroup_impl_gpu_formats_of(const tegroup_gemm_desc *desc) {
    const tegroup_tensor *operands[2] = {&desc->a, &desc->b};
    tegroup_impl_gpu_formats formats;
    memset(&formats, 0, sizeof formats);
    formats.bf16 = desc->a.dtype != TEGROUP_DTYPE_F16 && desc->b.dtype != TEGROUP_DTYPE_F16;
    for (int i = 0; i < 2; i++) {
        formats.first[i] = tegroup_impl_scaled_of(desc, (tegroup_impl_operand)i);
        formats.facts[i] = *tegroup_scaling_info(operands[i]->scaling);
    }
    return formats;
}

/* An operand of a tile. Element k of a line is at `at` + line * line_stride + k * k_stride. */
typedef struct tegroup_impl_gpu_codes {
    tegroup_impl_scaled of; /* its group; of.facts is NULL if it is not quantised */
    const char *data;
    int64_t at, line_stride, k_stride, k_bits; /* k_bits: of k_stride elements */
    int64_t first_line; /* of the tile, in the group */
    int32_t lines;      /* that the tile has, at most 128 */
    int32_t bits;       /* of an element */
    int32_t groups;     /* that `of` has counted */
    tegroup_dtype dtype;
    bool along_k, aligned; /* lines are contiguous; 16 elements are one or two loads */
    bool k_is_inner;       /* scales are along k, else along the lines */
} tegroup_impl_gpu_codes;

/* ---- an operand of a tile ---- */

/* Goes on to group g; all lanes of a warp call it. Copies and scales that lie a group after another begin where those
 * of the groups before end. */
static __device__ __forceinline__ void tegroup_impl_gpu_codes_reach(const tegroup_tensor &t,
                                                                    const tegroup_snapshot_view &view, int32_t g,
                                                                    tegroup_impl_gpu_codes *codes) {
    const int32_t lane = (int32_t)threadIdx.x & 31;
    int32_t first = codes->groups;
    int64_t elements = 0, stored = 0;
    if (!codes->of.facts || first > g) return; /* which it is at already */
    for (int32_t h = first + lane; h < g; h += 32) {
        const tegroup_impl_sides sides = tegroup_impl_group_sides(&t, &view, h);
        elements += tegroup_impl_transposed_count(sides);
        stored += tegroup_impl_scale_grid_alone(&t, codes->of.facts, sides, codes->of.columnwise).count;
    }
    for (int32_t apart = 16; apart > 0; apart /= 2) {
        elements += __shfl_xor_sync(0xffffffffu, elements, apart);
        stored += __shfl_xor_sync(0xffffffffu, stored, apart);
    }
    __syncwarp(); /* All lanes have read what the first one changes. */
    if (lane == 0) {
        codes->of.elements += elements;
        codes->of.stored += stored;
        tegroup_impl_scaled_next(&codes->of, &t, &view, g);
        codes->groups = g + 1;
    }
    __syncwarp();
}

/* Are the scales that a line has in parts of k? */
static __device__ __forceinline__ bool tegroup_impl_gpu_codes_in_parts(const tegroup_impl_gpu_codes &codes) {
    return codes.of.grid.parts > 1 && codes.of.sums_rows;
}
/* The index of the scale of an element. A call of its own, as it may take divisions of 64 bits. */
static __device__ __noinline__ int64_t tegroup_impl_gpu_codes_scale(const tegroup_impl_gpu_codes &codes, int64_t line,
                                                                    int64_t k) {
    const int64_t i = codes.first_line + line, outer = codes.k_is_inner ? i : k, inner = codes.k_is_inner ? k : i;
    return tegroup_impl_scale_at(&codes.of.grid, outer, inner);
}

/* Elements of k that share a scale, and lines. */
static __device__ __forceinline__ int64_t tegroup_impl_gpu_codes_k_block(const tegroup_impl_gpu_codes &codes) {
    return codes.k_is_inner ? codes.of.grid.block_inner : codes.of.grid.block_outer;
}
static __device__ __forceinline__ int64_t tegroup_impl_gpu_codes_line_block(const tegroup_impl_gpu_codes &codes) {
    return codes.k_is_inner ? codes.of.grid.block_outer : codes.of.grid.block_inner;
}

/* Where a line of a tile has its scales, which a thread loads one after another. */
struct tegroup_impl_gpu_line_scales {
    int64_t from; /* the index of the first */
    int32_t line;
    bool there, strided; /* the line exists and has scales; they are at strides along k */

    __device__ __forceinline__ void open(const tegroup_impl_gpu_codes &codes, int32_t which) {
        line = which;
        there = codes.of.facts && line < codes.lines;
        strided = codes.k_is_inner && !tegroup_impl_gpu_codes_in_parts(codes);
        from = there && strided ? tegroup_impl_gpu_codes_scale(codes, line, 0) : 0;
    }
    __device__ __forceinline__ int64_t index(const tegroup_impl_gpu_codes &codes, int64_t k) const {
        const tegroup_impl_scale_grid &grid = codes.of.grid;
        if (!strided) return tegroup_impl_gpu_codes_scale(codes, line, k);
        const int64_t at = k >> grid.inner_shift;
        if (grid.swizzled) return from + (at >> 2) * 512 + (at & 3);
        return from + (grid.packed ? (at >> 2) * grid.inner_stride + (at & 3) : at * grid.inner_stride);
    }
};

/* Before the first group. */
static __device__ __forceinline__ void tegroup_impl_gpu_codes_begin(const tegroup_impl_gpu_formats &formats, int which,
                                                                    tegroup_impl_gpu_codes *codes) {
    codes->of = formats.first[which];
    if (codes->of.facts) codes->of.facts = &formats.facts[which];
    codes->groups = 0;
}

/* Opens the operand of a tile, whose group it has reached. plain: where an operand that is not quantised begins. */
static __device__ __forceinline__ void tegroup_impl_gpu_codes_open(const tegroup_tensor &t, bool sums_rows,
                                                                   const char *plain, int64_t plain_row, int64_t line,
                                                                   int32_t lines, tegroup_impl_gpu_codes *codes) {
    const tegroup_impl_scaled &of = codes->of;
    codes->dtype = t.dtype;
    codes->bits = tegroup_impl_bits(t.dtype);
    codes->first_line = line;
    codes->lines = lines;
    codes->along_k = !sums_rows || tegroup_impl_transposed(&t, of.columnwise);
    codes->k_is_inner = of.sums_rows == of.columnwise;
    codes->data = of.facts ? (const char *)of.data : plain;
    codes->line_stride = of.facts ? of.line_stride : sums_rows ? 1 : plain_row / 2;
    codes->k_stride = of.facts ? of.k_stride : sums_rows ? plain_row / 2 : 1;
    codes->k_bits = codes->k_stride * codes->bits;
    codes->at = of.facts ? of.first + line * of.line_stride : 0;
    const uint64_t stride = (uint64_t)(codes->along_k ? codes->line_stride : codes->k_stride),
                   bit = (uint64_t)(uintptr_t)codes->data * 8 + (uint64_t)codes->at * (uint32_t)codes->bits;
    codes->aligned = ((bit | stride * (uint32_t)codes->bits) & (codes->bits == 4 ? 63 : 127)) == 0;
}

/* ---- pieces: 16 elements that are neighbours in memory ---- */

/* Element by element, from the last to the first, each pushing the others on. */
static __device__ __forceinline__ void tegroup_impl_gpu_piece_slowly(const tegroup_impl_gpu_codes &codes, int64_t at,
                                                                     int32_t count, uint32_t (&raw)[8]) {
#pragma unroll 1
    for (at += count; count > 0; count--) {
        at--;
#pragma unroll
        for (int i = 7; i > 0; i--) raw[i] = __funnelshift_l(raw[i - 1], raw[i], (uint32_t)codes.bits);
        raw[0] = raw[0] << codes.bits | tegroup_impl_load_code(codes.dtype, codes.data, at);
    }
}

/* Loads the words of a whole piece from an aligned address. */
static __device__ __forceinline__ void tegroup_impl_gpu_piece_at(const char *from, int32_t bits, uint32_t (&raw)[8]) {
    if (bits == 4) {
        const uint2 both = __ldg((const uint2 *)from);
        raw[0] = both.x, raw[1] = both.y;
        return;
    }
    const uint4 low = __ldg((const uint4 *)from);
    raw[0] = low.x, raw[1] = low.y, raw[2] = low.z, raw[3] = low.w;
    if (bits == 8) return;
    const uint4 high = __ldg((const uint4 *)from + 1);
    raw[4] = high.x, raw[5] = high.y, raw[6] = high.z, raw[7] = high.w;
}

/* a * b of two halves, each rounded once; the -0 that is added keeps the sign of a zero. */
static __device__ __forceinline__ uint32_t tegroup_impl_gpu_mul2(uint32_t a, uint32_t b, bool bf16) {
    uint32_t product;
    if (bf16) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

/* How a type's codes become halves: the bits below the sign are shifted to where a half has its mantissa and the low
 * bits of its exponent, and a power of two makes good for the other bias, subnormal codes included, exactly. Codes of
 * 8 bits whose bits below the sign, `mask` of them, and `carry` add up to 128 get the exponent of infinity and NaN. */
typedef struct tegroup_impl_gpu_decoding {
    uint32_t power, mask, carry, infinity;
    int32_t shift;
} tegroup_impl_gpu_decoding;

static __device__ __forceinline__ tegroup_impl_gpu_decoding tegroup_impl_gpu_decoding_of(tegroup_dtype dtype,
                                                                                         bool bf16) {
    const bool e4m3 = dtype == TEGROUP_DTYPE_F8E4M3, fp4 = dtype == TEGROUP_DTYPE_F4E2M1;
    tegroup_impl_gpu_decoding how;
    /* BF16: 2^126, 2^120, 2^112; F16: 2^8, 1 */
    how.power = bf16 ? (fp4 ? 0x7e807e80u : e4m3 ? 0x7b807b80u : 0x77807780u) : e4m3 ? 0x5c005c00u : 0x3c003c00u;
    how.shift = bf16 ? (e4m3 ? 4 : 3) : e4m3 ? 1 : 0;
    how.mask = e4m3 ? 0x7f7f7f7fu : 0x7c7c7c7cu;
    how.carry = e4m3 ? 0x01010101u : 0x04040404u;
    how.infinity = bf16 ? 0x7f807f80u : 0x7c007c00u;
    return how;
}

/* The two codes of E2M1 of a byte, which comes four times, as numbers of BF16 times 2^-126: the code of its lower bits
 * in the lower half. Of the copies the lowest has the lower code, the second the upper one's sign, and the third what
 * is left of that. The product moves each to its place, where no other is and no carry comes. */
static __device__ __forceinline__ uint32_t tegroup_impl_gpu_two_of_e2m1(uint32_t byte) {
    return (byte & 0x0070800fu) * 0x00011044u & 0x81c081c0u;
}

/* Two codes of E4M3, each in both bytes of a half, as numbers of BF16 times 2^-120, NaN as 480; and which are NaN, by
 * the highest bit of their half. */
static __device__ __forceinline__ uint32_t tegroup_impl_gpu_two_of_e4m3(uint32_t two) {
    return (two & 0x80008000u) | (two & 0x007f007fu) << 4;
}
static __device__ __forceinline__ uint32_t tegroup_impl_gpu_nans_of_e4m3(uint32_t two) {
    return ((two & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
}

/* Decodes a piece in place. */
static __device__ __forceinline__ void tegroup_impl_gpu_decode(const tegroup_impl_gpu_decoding &how, int32_t bits,
                                                               bool bf16, uint32_t (&raw)[8]) {
    if (bits == 4) {
#pragma unroll
        for (int i = 7; i >= 0; i--)
            raw[i] = tegroup_impl_gpu_mul2(
                tegroup_impl_gpu_two_of_e2m1(__byte_perm(raw[i / 4], 0, 0x1111u * (uint32_t)(i % 4))), how.power, bf16);
    } else if (bits == 8) {
        uint32_t flags[4], any = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) any |= flags[i] = ((raw[i] & how.mask) + how.carry) & 0x80808080u;
#pragma unroll
        for (int i = 7; i >= 0; i--) {
            const uint32_t two = __byte_perm(raw[i / 2], 0, i % 2 ? 0x3424 : 0x1404);
            raw[i] = tegroup_impl_gpu_mul2((two & 0x80008000u) | (two & 0x7f007f00u) >> how.shift, how.power, bf16);
        }
        if (any) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t two = __byte_perm(flags[i / 2], 0, i % 2 ? 0x3424 : 0x1404);
                raw[i] |= (two - (two >> 15)) & how.infinity;
            }
        }
    }
}

/* A scale of 8 bits as one of BF16. Those of E8M0 are its exponents, but for the least, which is subnormal, and NaN; of
 * E4M3, codes are decoded as any are. */
static __device__ __forceinline__ uint32_t tegroup_impl_gpu_half_of_scale(bool e8m0, uint32_t code) {
    if (e8m0) return code << 7 | (((code + 1) & 0xfeu) == 0 ? 0x40u : 0u);
    const uint32_t half = (code & 0x80u) << 8 | (code & 0x7fu) << 4;
    return (code & 0x7fu) == 0x7fu
               ? 0x7fffu
               : tegroup_impl_gpu_mul2(half, tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F8E4M3, true).power, true)
                     & 0xffffu;
}

/* ---- the bias gradient ---- */

#if TEGROUP_IMPL_BACKWARD_KERNELS
/* The bias gradient of a quantised dY: tegroup_impl_bias_grad_kernel with scales. */
static __global__ void __launch_bounds__(128)
    tegroup_impl_formats_bias_grad_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                          const __grid_constant__ tegroup_impl_gpu_formats formats) {
    __shared__ tegroup_impl_product p;
    __shared__ tegroup_impl_gpu_codes codes;
    const tegroup_gemm_desc &desc = call.desc;
    const int32_t g = (int32_t)blockIdx.y;
    const int which = desc.bias_of_b ? TEGROUP_IMPL_B : TEGROUP_IMPL_A;
    const tegroup_tensor &dy = desc.bias_of_b ? desc.b : desc.a;
    if (threadIdx.x == 0) {
        tegroup_impl_gpu_codes_begin(formats, which, &codes);
        p.skip = 1;
        if (tegroup_impl_prepared(call)) p = tegroup_impl_product_of(&desc, call.views, g, 1, 0);
    }
    __syncthreads();
    if (p.skip) return;
    if (threadIdx.x < 32) tegroup_impl_gpu_codes_reach(dy, call.views[which], g, &codes);
    __syncthreads();
    const int64_t j = (int64_t)blockIdx.x * 128 + threadIdx.x;
    const tegroup_impl_block &rows = *tegroup_impl_biased_block(&desc, &p);
    if (j >= tegroup_impl_min(rows.cols, p.bias.cols) || (desc.accumulate && rows.rows == 0)) return;
    const tegroup_impl_scaled &of = codes.of;
    float sum = 0, scale = 0;
    int64_t shared = 0;
    for (int64_t r = 0; r < rows.rows; r++, shared--) {
        if (shared == 0) scale = (float)tegroup_impl_scale_along(&of, j, r, &shared);
        const float x = tegroup_impl_f32_of_code(
                        of.dtype,
                        tegroup_impl_load_code(of.dtype, of.data, of.first + j * of.line_stride + r * of.k_stride)),
                    by = desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
                             ? 1.0f
                             : tegroup_impl_load_f32(desc.row_scale_dtype, desc.row_scale, rows.row0 + r);
        sum = tegroup_impl_gpu_add(sum, tegroup_impl_gpu_mul(by, tegroup_impl_gpu_mul(scale, x)));
    }
    sum = tegroup_impl_gpu_mul(sum, (float)of.global);
    if (desc.accumulate)
        sum = tegroup_impl_gpu_add(sum, tegroup_impl_load_f32(desc.bias.dtype, p.bias.base, p.bias.first + j));
    tegroup_impl_store_f32(desc.bias.dtype, p.bias.base, p.bias.first + j, sum);
}
#endif

/* Launches the kernel of the bias gradient, if a quantised dY has one. call: with operands as they are read. */
static inline tegroup_status tegroup_impl_formats_bias_grad(const tegroup_gemm_desc *desc,
                                                            const tegroup_impl_gpu_call *call,
                                                            struct CUstream_st *stream, tegroup_error *error) {
    cudaError_t code = cudaSuccess;
    (void)desc, (void)call, (void)stream; /* without the kernel */
#if TEGROUP_IMPL_BACKWARD_KERNELS
    if (tegroup_impl_sums_bias(desc) && tegroup_impl_biased(desc)->scaling != TEGROUP_SCALING_NONE)
        code = tegroup_impl_launch(tegroup_impl_formats_bias_grad_kernel, tegroup_impl_bias_blocks(desc), 128, 0,
                                   stream, *call, tegroup_impl_gpu_formats_of(desc));
#endif
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}
