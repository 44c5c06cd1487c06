/* ---- Conversions ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"

/* Integer arithmetic on bit patterns: the same bits on every machine and under every compiler flag. Narrowing rounds to
 * nearest, ties to even; NaN stays NaN (quiet), overflow gives infinity. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_bits_of_f32(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

TEGROUP_IMPL_HD float tegroup_impl_f32_of_bf16(uint16_t h) { return tegroup_impl_f32_of_bits((uint32_t)h << 16); }

TEGROUP_IMPL_HD uint16_t tegroup_impl_bf16_of_f32(float x) {
    uint32_t u = tegroup_impl_bits_of_f32(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Conversions of F16 and what is smaller have no branches, so that compilers make vectors of loops over them. What is
 * subnormal goes through one sum, of F32, that is exact, or whose last place is the step of the result. */
TEGROUP_IMPL_HD float tegroup_impl_f32_of_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, shifted = (uint32_t)(h & 0x7fffu) << 13;
    const float first = tegroup_impl_f32_of_bits(0x38800000u); /* 2^-14, from which on F16 is normal */
    const uint32_t subnormal = tegroup_impl_bits_of_f32(tegroup_impl_f32_of_bits(0x38800000u + shifted) - first);
    const uint32_t finite = shifted < 0x800000u ? subnormal : shifted + 0x38000000u;
    return tegroup_impl_f32_of_bits(sign | (shifted < 0xf800000u ? finite : shifted | 0x7f800000u));
}

TEGROUP_IMPL_HD uint16_t tegroup_impl_f16_of_f32(float x) {
    const uint32_t u = tegroup_impl_bits_of_f32(x), magnitude = u & 0x7fffffffu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    const uint32_t subnormal = tegroup_impl_bits_of_f32(tegroup_impl_f32_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t other = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : 0x7c00u;
    /* 65520 and above round to infinity. */
    return (uint16_t)((u >> 16 & 0x8000u) | (magnitude < 0x477ff000u ? finite : other));
}

/* Round to nearest, or to odd, so that a second rounding to 16 bits gives what one rounding would have given. */
TEGROUP_IMPL_HD_INLINE float tegroup_impl_narrow_f64(double x, int to_odd) {
    uint64_t u, magnitude, kept, rest, half;
    uint32_t sign;
    int32_t exponent, lost = 29; /* mantissa bits that a normal binary32 has no room for */
    memcpy(&u, &x, sizeof u);
    sign = (uint32_t)(u >> 32) & 0x80000000u;
    magnitude = u & 0x7fffffffffffffffull;
    exponent = (int32_t)(magnitude >> 52) - 1023 + 127; /* as binary32 would store it */
#if !defined(__CUDA_ARCH__) && defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ == 0
    if (exponent > 0 && exponent < 254) { /* normal: no mode of the processor makes it zero */
        const uint32_t bits = (uint32_t)(magnitude >> 29) - ((uint32_t)(1023 - 127) << 23);
        return to_odd ? tegroup_impl_f32_of_bits(sign | bits | ((magnitude & 0x1fffffffu) != 0)) : (float)x;
    }
#endif
    if (magnitude >= 0x7ff0000000000000ull)             /* infinity, NaN: keep it one */
        return tegroup_impl_f32_of_bits(sign | 0x7f800000u | (uint32_t)(magnitude >> 29 & 0x7fffffu)
                                        | (magnitude << 12 ? 0x400000u : 0u));
    if (exponent >= 255) return tegroup_impl_f32_of_bits(sign | (to_odd ? 0x7f7fffffu : 0x7f800000u));
    kept = (magnitude & 0xfffffffffffffull) | (magnitude >> 52 ? 0x10000000000000ull : 0u);
    if (exponent <= 0) lost = exponent < -24 ? 54 : 30 - exponent; /* subnormal: the leading 1 is stored, too */
    rest = kept & ((1ull << lost) - 1);
    half = 1ull << (lost - 1);
    kept >>= lost;
    kept = to_odd ? kept | (rest != 0) : kept + (rest > half || (rest == half && (kept & 1)));
    /* a leading 1, and what rounding carries, go to the exponent */
    kept += (uint64_t)(tegroup_impl_max(1, exponent) - 1) << 23;
    return tegroup_impl_f32_of_bits(sign | (uint32_t)kept);
}
TEGROUP_IMPL_HD_INLINE float tegroup_impl_f32_of_f64(double x) { return tegroup_impl_narrow_f64(x, 0); }
TEGROUP_IMPL_HD_INLINE float tegroup_impl_f32_odd_of_f64(double x) { return tegroup_impl_narrow_f64(x, 1); }

/* Exact. Where the processor takes subnormal operands for zeros, as -ffast-math has it do, their integers are none. */
TEGROUP_IMPL_HD double tegroup_impl_f64_of_f32(float x) {
    const uint32_t u = tegroup_impl_bits_of_f32(x), magnitude = u & 0x7fffffffu;
    const double unit = 1.0 / ((double)(1ull << 50) * (double)(1ull << 50) * (double)(1ull << 49)); /* 2^-149 */
    if (magnitude == 0 || magnitude >= 0x800000u) return (double)x;
    return (double)(int32_t)magnitude * (u >> 31 ? -unit : unit);
}

/* A product and a quotient, each rounded once to nearest, subnormal ones too, whatever the flags. On the host they are
 * those of doubles: such a product is exact, and a quotient of two binary32 lies far enough from a tie, or on it. */
TEGROUP_IMPL_HD float tegroup_impl_product_f32(float a, float b) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return tegroup_impl_f32_of_f64(tegroup_impl_f64_of_f32(a) * tegroup_impl_f64_of_f32(b));
#endif
}
TEGROUP_IMPL_HD float tegroup_impl_quotient_f32(float a, float b) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    const volatile double divisor = tegroup_impl_f64_of_f32(b); /* volatile: not to be replaced by its reciprocal */
    return tegroup_impl_f32_of_f64(tegroup_impl_f64_of_f32(a) / divisor);
#endif
}

TEGROUP_IMPL_HD float tegroup_impl_inverse_f32(float x) { return tegroup_impl_quotient_f32(1.0f, x); }

/* The types of 8 and 4 bits (OCP 8-bit Floating Point 1.0, OCP Microscaling Formats 1.0). They narrow as CUDA's
 * conversions do with __NV_SATFINITE: to nearest, ties to even, and what is too large, infinity too, to the largest
 * finite value. NaN gives 0x7f in E4M3 and E5M2, and 6 in E2M1, which has none. The sign of zero is kept.
 *
 * Here a type is its mantissa bits and the exponent of its smallest normal value. Codes of magnitudes are in the order
 * of their values, so that what rounding carries goes to the next code, and one past the largest saturates. */
TEGROUP_IMPL_HD uint8_t tegroup_impl_small_of_f32(float x, int32_t mantissa_bits, int32_t exponent_min,
                                                  uint32_t largest, uint32_t of_nan, int32_t sign_at) {
    const uint32_t u = tegroup_impl_bits_of_f32(x), magnitude = u & 0x7fffffffu,
                   first = (uint32_t)(127 + exponent_min), lost = (uint32_t)(23 - mantissa_bits),
                   up = (1u << (lost - 1)) - 1 + (magnitude >> lost & 1u);
    const uint32_t normal = (magnitude - ((first - 1) << 23) + up) >> lost;
    /* What 0 becomes: a number of F32 whose last place is the smallest step. */
    const uint32_t zero = (first + lost) << 23;
    const uint32_t subnormal =
        tegroup_impl_bits_of_f32(tegroup_impl_f32_of_bits(magnitude) + tegroup_impl_f32_of_bits(zero)) - zero;
    const uint32_t code = magnitude < first << 23 ? subnormal : normal < largest ? normal : largest;
    return (uint8_t)(magnitude > 0x7f800000u ? of_nan : code | u >> 31 << sign_at);
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_small(uint32_t magnitude, int32_t mantissa_bits, int32_t exponent_min) {
    const uint32_t first = (uint32_t)(127 + exponent_min);
    if (magnitude >> mantissa_bits)
        return tegroup_impl_f32_of_bits((magnitude << (23 - mantissa_bits)) + ((first - 1) << 23));
    return (float)magnitude * tegroup_impl_f32_of_bits((first - (uint32_t)mantissa_bits) << 23);
}
TEGROUP_IMPL_HD float tegroup_impl_with_sign(float magnitude, uint32_t negative) {
    return tegroup_impl_f32_of_bits(tegroup_impl_bits_of_f32(magnitude) | (negative ? 0x80000000u : 0u));
}
TEGROUP_IMPL_HD int tegroup_impl_is_nan(float x) { return (tegroup_impl_bits_of_f32(x) & 0x7fffffffu) > 0x7f800000u; }

TEGROUP_IMPL_HD float tegroup_impl_f32_of_f8e4m3(uint8_t code) {
    if ((code & 0x7fu) == 0x7fu) return tegroup_impl_f32_of_bits(0x7fffffffu);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    float x;
    asm("{.reg .b32 two; .reg .b16 low; cvt.rn.f16x2.e4m3x2 two, %1; mov.b32 {low, _}, two; cvt.f32.f16 %0, low;}"
        : "=f"(x)
        : "h"((uint16_t)code));
    return x;
#else
    return tegroup_impl_with_sign(tegroup_impl_f32_of_small(code & 0x7fu, 3, -6), code & 0x80u);
#endif
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_f8e5m2(uint8_t code) { /* the upper half of a binary16 */
    return tegroup_impl_f32_of_f16((uint16_t)((uint32_t)code << 8));
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_f4e2m1(uint8_t code) { /* of the low nibble */
    return tegroup_impl_with_sign(tegroup_impl_f32_of_small(code & 7u, 1, 0), code & 8u);
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_f8e8m0(uint8_t code) {
    return tegroup_impl_f32_of_bits(code == 255 ? 0x7fffffffu : code == 0 ? 0x400000u : (uint32_t)code << 23);
}

TEGROUP_IMPL_HD uint8_t tegroup_impl_f8e4m3_of_f32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(pair) : "f"(x), "f"(0.0f));
    return (uint8_t)pair;
#else
    return tegroup_impl_small_of_f32(x, 3, -6, 0x7eu, 0x7fu, 7);
#endif
}
TEGROUP_IMPL_HD uint8_t tegroup_impl_f8e5m2_of_f32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(pair) : "f"(x), "f"(0.0f));
    return (uint8_t)pair;
#else
    return tegroup_impl_small_of_f32(x, 2, -14, 0x7bu, 0x7fu, 7);
#endif
}
TEGROUP_IMPL_HD uint8_t tegroup_impl_f4e2m1_of_f32(float x) { /* a nibble */
    return tegroup_impl_small_of_f32(x, 1, 0, 0x7u, 0x7u, 3);
}

/* E8M0 has no sign, which is dropped, and no zero, which gives the smallest power. Up and down are CUDA's
 * cudaRoundPosInf and cudaRoundZero; nearest takes a tie, 1.5 times a power, up. */
typedef enum tegroup_impl_rounding { TEGROUP_IMPL_NEAREST, TEGROUP_IMPL_UP, TEGROUP_IMPL_DOWN } tegroup_impl_rounding;
TEGROUP_IMPL_HD uint8_t tegroup_impl_f8e8m0_of_f32(float x, tegroup_impl_rounding rounding) {
    const uint32_t magnitude = tegroup_impl_bits_of_f32(x) & 0x7fffffffu, mantissa = magnitude & 0x7fffffu;
    uint32_t code = magnitude >> 23;
    if (tegroup_impl_is_nan(x)) return 255u;
    if (code == 0) { /* below 2^-126: 0x400000 is 2^-127 */
        if (rounding == TEGROUP_IMPL_UP) return mantissa > 0x400000u;
        return rounding == TEGROUP_IMPL_NEAREST && mantissa >= 0x600000u;
    }
    if (rounding == TEGROUP_IMPL_UP) code += mantissa != 0;
    if (rounding == TEGROUP_IMPL_NEAREST) code += mantissa >= 0x400000u;
    return (uint8_t)(code < 254 ? code : 254);
}

/* Is it a floating-point type of at most 32 bits? A code is such a type's element, in the low bits. */
TEGROUP_IMPL_HD int tegroup_impl_has_code(tegroup_dtype dtype) {
    return dtype >= TEGROUP_DTYPE_F32 && dtype <= TEGROUP_DTYPE_F8E8M0;
}

/* E8M0 rounds to nearest. */
TEGROUP_IMPL_HD float tegroup_impl_f32_of_code(tegroup_dtype dtype, uint32_t code) {
    switch (dtype) {
    case TEGROUP_DTYPE_F32: return tegroup_impl_f32_of_bits(code);
    case TEGROUP_DTYPE_F16: return tegroup_impl_f32_of_f16((uint16_t)code);
    case TEGROUP_DTYPE_F8E4M3: return tegroup_impl_f32_of_f8e4m3((uint8_t)code);
    case TEGROUP_DTYPE_F8E5M2: return tegroup_impl_f32_of_f8e5m2((uint8_t)code);
    case TEGROUP_DTYPE_F4E2M1: return tegroup_impl_f32_of_f4e2m1((uint8_t)code);
    case TEGROUP_DTYPE_F8E8M0: return tegroup_impl_f32_of_f8e8m0((uint8_t)code);
    default: return tegroup_impl_f32_of_bf16((uint16_t)code);
    }
}
TEGROUP_IMPL_HD uint32_t tegroup_impl_code_of_f32(tegroup_dtype dtype, float x) {
    switch (dtype) {
    case TEGROUP_DTYPE_F32: return tegroup_impl_bits_of_f32(x);
    case TEGROUP_DTYPE_F16: return tegroup_impl_f16_of_f32(x);
    case TEGROUP_DTYPE_F8E4M3: return tegroup_impl_f8e4m3_of_f32(x);
    case TEGROUP_DTYPE_F8E5M2: return tegroup_impl_f8e5m2_of_f32(x);
    case TEGROUP_DTYPE_F4E2M1: return tegroup_impl_f4e2m1_of_f32(x);
    case TEGROUP_DTYPE_F8E8M0: return tegroup_impl_f8e8m0_of_f32(x, TEGROUP_IMPL_NEAREST);
    default: return tegroup_impl_bf16_of_f32(x);
    }
}

TEGROUP_IMPL_HD int tegroup_impl_is_float(tegroup_dtype dtype) {
    return dtype >= TEGROUP_DTYPE_F64 && dtype <= TEGROUP_DTYPE_BF16;
}

/* One code of a type of at most 32 bits. Of 4 bits two share a byte, and so a store of one reads the other. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_load_code(tegroup_dtype dtype, const void *data, int64_t i) {
    switch (tegroup_impl_bits(dtype)) {
    case 32: return ((const tegroup_impl_any32 *)data)[i];
    case 16: return ((const tegroup_impl_any16 *)data)[i];
    case 8: return ((const uint8_t *)data)[i];
    default: return (uint32_t)((const uint8_t *)data)[i / 2] >> (i % 2 * 4) & 0xfu;
    }
}
TEGROUP_IMPL_HD void tegroup_impl_store_code(tegroup_dtype dtype, void *data, int64_t i, uint32_t code) {
    uint8_t *const byte = (uint8_t *)data + i / 2;
    switch (tegroup_impl_bits(dtype)) {
    case 32: ((tegroup_impl_any32 *)data)[i] = code; break;
    case 16: ((tegroup_impl_any16 *)data)[i] = (uint16_t)code; break;
    case 8: ((uint8_t *)data)[i] = (uint8_t)code; break;
    default: *byte = (uint8_t)(i % 2 ? (*byte & 0xfu) | code << 4 : (*byte & 0xf0u) | (code & 0xfu)); break;
    }
}

/* One element of F64, F32, F16 or BF16. */
TEGROUP_IMPL_HD double tegroup_impl_load_float_f64(tegroup_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: return ((const double *)data)[i];
    case TEGROUP_DTYPE_F32: return tegroup_impl_f64_of_f32(((const float *)data)[i]);
    case TEGROUP_DTYPE_F16: return (double)tegroup_impl_f32_of_f16(((const tegroup_impl_any16 *)data)[i]);
    default: return tegroup_impl_f64_of_f32(tegroup_impl_f32_of_bf16(((const tegroup_impl_any16 *)data)[i]));
    }
}
TEGROUP_IMPL_HD void tegroup_impl_store_float_f64(tegroup_dtype dtype, void *data, int64_t i, double x) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: ((double *)data)[i] = x; break;
    case TEGROUP_DTYPE_F32: ((float *)data)[i] = tegroup_impl_f32_of_f64(x); break;
    case TEGROUP_DTYPE_F16:
        ((tegroup_impl_any16 *)data)[i] = tegroup_impl_f16_of_f32(tegroup_impl_f32_odd_of_f64(x));
        break;
    default: ((tegroup_impl_any16 *)data)[i] = tegroup_impl_bf16_of_f32(tegroup_impl_f32_odd_of_f64(x)); break;
    }
}
TEGROUP_IMPL_HD float tegroup_impl_load_float_f32(tegroup_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: return tegroup_impl_f32_of_f64(((const double *)data)[i]);
    case TEGROUP_DTYPE_F32: return ((const float *)data)[i];
    case TEGROUP_DTYPE_F16: return tegroup_impl_f32_of_f16(((const tegroup_impl_any16 *)data)[i]);
    default: return tegroup_impl_f32_of_bf16(((const tegroup_impl_any16 *)data)[i]);
    }
}
TEGROUP_IMPL_HD void tegroup_impl_store_float_f32(tegroup_dtype dtype, void *data, int64_t i, float x) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: ((double *)data)[i] = tegroup_impl_f64_of_f32(x); break;
    case TEGROUP_DTYPE_F32: ((float *)data)[i] = x; break;
    case TEGROUP_DTYPE_F16: ((tegroup_impl_any16 *)data)[i] = tegroup_impl_f16_of_f32(x); break;
    default: ((tegroup_impl_any16 *)data)[i] = tegroup_impl_bf16_of_f32(x); break;
    }
}

/* One element by type; of 4 bits, too, i counts elements. */
TEGROUP_IMPL_HD double tegroup_impl_load_f64(tegroup_dtype dtype, const void *data, int64_t i) {
    return tegroup_impl_is_float(dtype)
               ? tegroup_impl_load_float_f64(dtype, data, i)
               : tegroup_impl_f64_of_f32(tegroup_impl_f32_of_code(dtype, tegroup_impl_load_code(dtype, data, i)));
}
TEGROUP_IMPL_HD void tegroup_impl_store_f64(tegroup_dtype dtype, void *data, int64_t i, double x) {
    if (tegroup_impl_is_float(dtype)) tegroup_impl_store_float_f64(dtype, data, i, x);
    else tegroup_impl_store_code(dtype, data, i, tegroup_impl_code_of_f32(dtype, tegroup_impl_f32_odd_of_f64(x)));
}
TEGROUP_IMPL_HD float tegroup_impl_load_f32(tegroup_dtype dtype, const void *data, int64_t i) {
    return tegroup_impl_is_float(dtype) ? tegroup_impl_load_float_f32(dtype, data, i)
                                        : tegroup_impl_f32_of_code(dtype, tegroup_impl_load_code(dtype, data, i));
}
TEGROUP_IMPL_HD void tegroup_impl_store_f32(tegroup_dtype dtype, void *data, int64_t i, float x) {
    if (tegroup_impl_is_float(dtype)) tegroup_impl_store_float_f32(dtype, data, i, x);
    else tegroup_impl_store_code(dtype, data, i, tegroup_impl_code_of_f32(dtype, x));
}

/* Sizes, offsets, indices and maps: I32 or I64. */
TEGROUP_IMPL_HD int64_t tegroup_impl_load_int(tegroup_dtype dtype, const void *data, int64_t i) {
    return dtype == TEGROUP_DTYPE_I32 ? (int64_t)(int32_t)((const tegroup_impl_any32 *)data)[i]
                                      : (int64_t)((const tegroup_impl_any64 *)data)[i];
}

/* What is absent is not stored. */
TEGROUP_IMPL_HD void tegroup_impl_store_int(tegroup_dtype dtype, void *data, int64_t i, int64_t x) {
    if (dtype == TEGROUP_DTYPE_I32) ((tegroup_impl_any32 *)data)[i] = (uint32_t)x;
    else if (dtype == TEGROUP_DTYPE_I64) ((tegroup_impl_any64 *)data)[i] = (uint64_t)x;
}
