/* ---- Quantise: eight values at a time ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/quantize_copies.h"
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
    /* All eight at an address that is a multiple of 16, in shared memory, too. */
    __device__ __forceinline__ void load_vectors(const char *from) {
#pragma unroll
        for (int i = 0; i < raws; i++) raw[i] = ((const uint4 *)from)[i];
    }
    __device__ __forceinline__ void store_vectors(char *to) const {
#pragma unroll
        for (int i = 0; i < raws; i++) ((uint4 *)to)[i] = raw[i];
    }
    /* n of the row's elements from column col on, then zeros. */
    __device__ __forceinline__ void load(const char *row, int64_t col, int32_t n, bool vector) {
        if (vector && n >= 8) load_vectors(row + col * vectors::bytes);
        else load_each(row, col, n);
    }
    __device__ __forceinline__ void load_each(const char *row, int64_t col, int32_t n) {
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
/* n of a row's elements from column col on, then zeros. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_eight_of(const char *row, int64_t col, int32_t n, bool vector,
                                                          float *x) {
    tegroup_impl_eight<DTYPE> values;
    values.load(row, col, n, vector);
    values.unpack(x);
}

/* Eight values of an activation, or of the gradient of one, from column col of the row that is quantised: its first n.
 * dy NULL: no gradient. The loops by kind are those of the kernels of activations, and so are the bits. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_made_eight(const tegroup_quantize_desc &desc, const char *x,
                                                            const char *dy, float scale, int64_t col, int32_t n,
                                                            bool vector, float *y) {
    constexpr bool half = DTYPE != TEGROUP_DTYPE_F32;
    const bool gated = tegroup_impl_gated(desc.activation);
    const float alpha = (float)desc.alpha, limit = (float)desc.limit;
    const int64_t cols = desc.output.shape.cols, width = dy && gated ? cols / 2 : cols;
    float both[16], gate[8], up[8], grad[8];
    const bool pairs = gated && desc.interleaved, ups = dy && gated && !pairs && col >= width;
    const int64_t from = ups ? col - width : pairs && dy ? col / 2 : col;
    const int32_t count = pairs && dy ? n / 2 : n; /* of gates */
#pragma unroll
    for (int i = 0; i < 8; i++) up[i] = 1;
    if (pairs) {
        tegroup_impl_eight_of<DTYPE>(x, 2 * from, (int32_t)tegroup_impl_min(8, 2 * count), vector, both);
        tegroup_impl_eight_of<DTYPE>(x, 2 * from + 8, (int32_t)tegroup_impl_max(0, 2 * count - 8),
                                     vector && from % 4 == 0, both + 8);
#pragma unroll
        for (int i = 0; i < 8; i++) gate[i] = both[2 * i], up[i] = both[2 * i + 1];
    } else {
        tegroup_impl_eight_of<DTYPE>(x, from, count, vector && from % 8 == 0, gate);
        if (gated) tegroup_impl_eight_of<DTYPE>(x, from + width, count, vector && (from + width) % 8 == 0, up);
    }
    if (!dy) {
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    _Pragma("unroll") for (int i = 0; i < 8; i++) y[i] =                                                               \
        scale * tegroup_impl_activation_f32(kind, half, alpha, limit, gate[i], up[i]);
        TEGROUP_IMPL_BY_CURVE(desc.activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
        return;
    }
    tegroup_impl_eight_of<DTYPE>(dy, from, count, vector && from % 8 == 0, grad);
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    _Pragma("unroll") for (int i = 0; i < 8; i++)(void)                                                                \
        tegroup_impl_activation_grad_f32(kind, half, alpha, limit, gate[i], up[i], scale *grad[i], &gate[i], &up[i]);
    TEGROUP_IMPL_BY_CURVE(desc.activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = pairs ? (i % 2 ? up[i / 2] : gate[i / 2]) : ups ? up[i] : gate[i];
}

/* What of a gradient is made of eight gates and ups: that of the gates, that of the ups, or both; or, where gates and
 * ups alternate, that of four pairs. */
enum { TEGROUP_IMPL_OF_GATES, TEGROUP_IMPL_OF_UPS, TEGROUP_IMPL_OF_BOTH, TEGROUP_IMPL_OF_PAIRS };

/* Eight values that a gated activation makes of BF16, two in a word. gates and ups are eight of each, or, where they
 * alternate, the first pairs and the others. Of a gradient, PART is made, that of the ups in their place if both are,
 * and dy are the eight or four gradients of what gates and ups make. Values are those of the kernels of activations,
 * bit for bit. */
template <tegroup_activation KIND, bool GRADIENT, int PART>
static __device__ __forceinline__ uint4 tegroup_impl_gated_eight(float alpha, float limit, float scale, uint4 gates,
                                                                 uint4 &ups, uint4 dy) {
    typedef tegroup_impl_vectors<TEGROUP_DTYPE_BF16> vectors;
    constexpr int COUNT = GRADIENT && PART == TEGROUP_IMPL_OF_PAIRS ? 4 : 8;
    float gate[8], up[8], grad[8];
    if (PART == TEGROUP_IMPL_OF_PAIRS) {
        const uint32_t word[8] = {gates.x, gates.y, gates.z, gates.w, ups.x, ups.y, ups.z, ups.w};
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            gate[j] = tegroup_impl_low_half(word[j], true), up[j] = tegroup_impl_high_half(word[j], true);
    } else {
        vectors::unpack(gates, gate);
        vectors::unpack(ups, up);
    }
    if (GRADIENT) vectors::unpack(dy, grad);
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        if (GRADIENT)
            (void)tegroup_impl_activation_grad_f32(KIND, true, alpha, limit, gate[j], up[j], scale * grad[j], &gate[j],
                                                   &up[j]);
        else gate[j] = scale * tegroup_impl_activation_f32(KIND, true, alpha, limit, gate[j], up[j]);
    if (GRADIENT && PART == TEGROUP_IMPL_OF_PAIRS)
#pragma unroll
        for (int j = COUNT - 1; j >= 0; j--) gate[2 * j + 1] = up[j], gate[2 * j] = gate[j];
    if (PART == TEGROUP_IMPL_OF_BOTH) ups = vectors::pack(up);
    return vectors::pack(PART == TEGROUP_IMPL_OF_UPS ? up : gate);
}
#endif

/* The magnitude of x as a code of E2M1, in the last bits of a float. Up to 2 a code is twice its value, up to 4 two
 * more than its value, up to 6 four more than half of it. So what is above 2, and above 4, is added by itself; each
 * step is exact but the one that rounds: a float of 2^23 has no fraction. Of these instructions the minimum alone goes
 * through the pipe of integers, which has half of the others' rate. */
static __device__ __forceinline__ uint32_t tegroup_impl_device_e2m1(float x) {
    float code;
    asm("{.reg .f32 m, to2, to4, to6, above2;\n"
        "abs.f32 m, %1;\n"
        "min.f32 m, m, 0f40C00000;\n"          /* 6, of NaN, too */
        "mul.rn.sat.f32 to2, m, 0f3F000000;\n" /* half of what is up to 2; below, of what is from there to 4, to 6 */
        "fma.rn.sat.f32 to4, m, 0f3F000000, 0fBF800000;\n"
        "fma.rn.sat.f32 to6, m, 0f3F000000, 0fC0000000;\n"
        "fma.rn.f32 above2, to4, 0f40000000, to6;\n"     /* 2 codes up to 4, and 1 up to 6 */
        "fma.rn.f32 to2, to2, 0f40800000, 0f4B000000;\n" /* 4 codes up to 2, and 2^23 */
        "add.rn.f32 %0, to2, above2;}"
        : "=f"(code)
        : "f"(x));
    return __float_as_uint(code);
}

/* Eight of them with their signs, the first in the lowest bits. x are results of arithmetic, whose NaN has no sign. */
static __device__ __forceinline__ uint32_t tegroup_impl_eight_e2m1(const float *x) {
    uint32_t pair[4], sign[4]; /* sign[i]: of values i / 2 * 4 + i % 2 and two further on, in the two lowest bytes */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *from = x + i / 2 * 4 + i % 2;
        pair[i] = tegroup_impl_device_e2m1(x[2 * i]) + (tegroup_impl_device_e2m1(x[2 * i + 1]) << 4);
        sign[i] = __byte_perm(__float_as_uint(from[0]), __float_as_uint(from[2]), 0x73);
    }
    return __byte_perm(__byte_perm(pair[0], pair[1], 0x40), __byte_perm(pair[2], pair[3], 0x40), 0x5410)
           | (__byte_perm(sign[0], sign[2], 0x5410) >> 4 & 0x08080808u)
           | (__byte_perm(sign[1], sign[3], 0x5410) & 0x80808080u);
}

/* Two codes of 8 bits beside each other, of values that are scaled already: those of tegroup_impl_code_of_f32. */
static __device__ __forceinline__ uint32_t tegroup_impl_two_codes(tegroup_dtype dtype, float low, float high) {
#if __CUDA_ARCH__ >= 890
    uint16_t word;
    if (dtype == TEGROUP_DTYPE_F8E5M2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(word) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(word) : "f"(high), "f"(low));
    return word;
#else
    return tegroup_impl_code_of_f32(dtype, low) | tegroup_impl_code_of_f32(dtype, high) << 8;
#endif
}

/* Eight codes from the first in the lowest bits on: two words, of 4 bits one. */
template <int BITS>
static __device__ __forceinline__ uint2 tegroup_impl_eight_codes(tegroup_dtype dtype, const float *x) {
    if (BITS == 4) return make_uint2(tegroup_impl_eight_e2m1(x), 0);
    return make_uint2(tegroup_impl_two_codes(dtype, x[0], x[1]) | tegroup_impl_two_codes(dtype, x[2], x[3]) << 16,
                      tegroup_impl_two_codes(dtype, x[4], x[5]) | tegroup_impl_two_codes(dtype, x[6], x[7]) << 16);
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

/* The same of two values of 16 bits beside each other. What comes of it has the magnitudes, and any signs; a NaN that
 * does not show stays beside another one. */
template <bool SHOWS, bool BF16>
static __device__ __forceinline__ uint32_t tegroup_impl_larger_two(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 860
    uint32_t larger;
    if (BF16 && SHOWS) asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    else if (BF16) asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    else if (SHOWS) asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    else asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
#else
    const uint32_t infinity = BF16 ? 0x7f80u : 0x7c00u;
    uint32_t word = 0;
    for (int at = 0; at < 32; at += 16) {
        const uint32_t x = a >> at & 0x7fffu, y = b >> at & 0x7fffu;
        word |= (!SHOWS && x > infinity ? y : !SHOWS && y > infinity ? x : max(x, y)) << at;
    }
    return word;
#endif
}

/* The largest magnitudes of eight rows of eight columns, of each row and of each column: of 16 bits two in a word. */
template <int DTYPE, bool SHOWS> struct tegroup_impl_magnitudes {
    enum { in_word = DTYPE == TEGROUP_DTYPE_F32 ? 1 : 2, words = 8 / in_word, BF16 = DTYPE == TEGROUP_DTYPE_BF16 };

    static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
        return in_word == 1 ? tegroup_impl_larger_magnitude<SHOWS>(a, __uint_as_float(b))
                            : tegroup_impl_larger_two<SHOWS, BF16>(a, b);
    }
    /* The j-th, as binary32. */
    static __device__ __forceinline__ uint32_t at(const uint32_t *word, int j) {
        const uint32_t two = word[j / in_word] & 0x7fff7fffu;
        if (in_word == 1) return word[j];
        return __float_as_uint(j % 2 ? tegroup_impl_high_half(two, BF16) : tegroup_impl_low_half(two, BF16));
    }
    static __device__ __forceinline__ uint32_t largest(const uint32_t *word) {
        uint32_t most[words];
#pragma unroll
        for (int k = 0; k < words; k++) most[k] = word[k];
#pragma unroll
        for (int k = 1; k < words; k++) most[0] = larger(most[0], most[k]);
        return in_word == 1 ? most[0] : max(at(most, 0), at(most, 1));
    }
    static __device__ __forceinline__ uint32_t word_of(const tegroup_impl_eight<DTYPE> &x, int k) {
        const uint4 raw = x.raw[k / 4];
        return k % 4 == 0 ? raw.x : k % 4 == 1 ? raw.y : k % 4 == 2 ? raw.z : raw.w;
    }
    /* `most`, and a row of eight more. */
    static __device__ __forceinline__ uint32_t of_row(uint32_t most, const tegroup_impl_eight<DTYPE> &x) {
#pragma unroll
        for (int k = 0; k < words; k++) most = larger(most, word_of(x, k));
        return most;
    }
    /* Of two rows: in one word, or in two. */
    static __device__ __forceinline__ void of_pair(const tegroup_impl_eight<DTYPE> &x,
                                                   const tegroup_impl_eight<DTYPE> &y, uint32_t *most) {
        const uint32_t a = of_row(0, x), b = of_row(0, y);
        if (in_word == 1) most[0] = a, most[1] = b;
        else most[0] = larger(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
    }
    /* Of pairs that as many lanes beside each other as the logarithm says have. */
    static __device__ __forceinline__ void of_lanes(int32_t shift, uint32_t *pair) {
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < 2 / in_word; i++) {
                const uint32_t other = __shfl_xor_sync(0xffffffffu, pair[i], 1 << s);
                if (s < shift) pair[i] = larger(pair[i], other);
            }
    }
    /* Columns with two rows more. */
    static __device__ __forceinline__ void of_columns(const tegroup_impl_eight<DTYPE> *x, uint32_t *most) {
#pragma unroll
        for (int k = 0; k < words; k++) most[k] = larger(larger(most[k], word_of(x[0], k)), word_of(x[1], k));
    }
};

/* How many elements there are from `at` on, of so many; 8 or more are all of eight, 0 or less are none. They are not
 * cut to 0 .. 8: of max(0, min(8, x)) == 8 nvcc 13.0 made one VIMNMX.RELU for sm_90a, whose predicate said something
 * else, and pieces were taken for whole ones. */
static __device__ __forceinline__ int32_t tegroup_impl_left_of(int64_t count, int32_t at) {
    return (count < TEGROUP_IMPL_QUANTIZE_TILE ? (int32_t)count : TEGROUP_IMPL_QUANTIZE_TILE) - at;
}
