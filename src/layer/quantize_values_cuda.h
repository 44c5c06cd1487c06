/* ---- Quantise: eight values at a time ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "layer/quantize_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/activation_formulas.h"
#include "cuda/rows.h"

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
