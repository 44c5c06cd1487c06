/* ---- Conversions ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "base/build.h"
#include "base/arithmetic.h"

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

TEGROUP_IMPL_HD float tegroup_impl_f32_of_f8e8m0(uint8_t code) {
    return tegroup_impl_f32_of_bits(code == 255 ? 0x7fffffffu : code == 0 ? 0x400000u : (uint32_t)code << 23);
}

TEGROUP_IMPL_HD uint16_t tegroup_impl_bf16_of_f32(float x) {
    uint32_t u = tegroup_impl_bits_of_f32(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

TEGROUP_IMPL_HD float tegroup_impl_f32_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu, shift;
    if (magnitude >= 0x7c00u) return tegroup_impl_f32_of_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude >= 0x0400u) return tegroup_impl_f32_of_bits(sign | ((magnitude << 13) + 0x38000000u));
    if (magnitude == 0) return tegroup_impl_f32_of_bits(sign);
    for (shift = 0; !(magnitude & 0x0400u); shift++) magnitude <<= 1; /* subnormal: normalise */
    return tegroup_impl_f32_of_bits(sign | ((113u - shift) << 23) | ((magnitude & 0x3ffu) << 13));
}

TEGROUP_IMPL_HD uint16_t tegroup_impl_f16_of_f32(float x) {
    uint32_t u = tegroup_impl_bits_of_f32(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu, shift, kept,
             rest, half;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (magnitude >= 0x38800000u) {                                  /* 2^-14 and above: normal           */
        magnitude -= 0x38000000u;
        return (uint16_t)(sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
    }
    if (magnitude <= 0x33000000u) return (uint16_t)sign; /* 2^-25 and below round to zero     */
    shift = 126u - (magnitude >> 23);                    /* in units of 2^-24                 */
    magnitude = (magnitude & 0x7fffffu) | 0x800000u;
    kept = magnitude >> shift;
    rest = magnitude & ((1u << shift) - 1u);
    half = 1u << (shift - 1u);
    return (uint16_t)(sign | (kept + (rest > half || (rest == half && (kept & 1u)))));
}

/* Round to nearest, or to odd, so that a second rounding to 16 bits gives what one rounding would have given. */
TEGROUP_IMPL_HD float tegroup_impl_narrow_f64(double x, int to_odd) {
    uint64_t u, magnitude, kept, rest, half;
    uint32_t sign;
    int32_t exponent, lost = 29; /* mantissa bits that a normal binary32 has no room for */
    memcpy(&u, &x, sizeof u);
    sign = (uint32_t)(u >> 32) & 0x80000000u;
    magnitude = u & 0x7fffffffffffffffull;
    exponent = (int32_t)(magnitude >> 52) - 1023 + 127; /* as binary32 would store it */
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
TEGROUP_IMPL_HD float tegroup_impl_f32_of_f64(double x) { return tegroup_impl_narrow_f64(x, 0); }
TEGROUP_IMPL_HD float tegroup_impl_f32_odd_of_f64(double x) { return tegroup_impl_narrow_f64(x, 1); }

/* Exact. Where the processor takes subnormal operands for zeros, as -ffast-math has it do, their integers are none. */
TEGROUP_IMPL_HD double tegroup_impl_f64_of_f32(float x) {
    const uint32_t u = tegroup_impl_bits_of_f32(x), magnitude = u & 0x7fffffffu;
    const double unit = 1.0 / ((double)(1ull << 50) * (double)(1ull << 50) * (double)(1ull << 49)); /* 2^-149 */
    if (magnitude == 0 || magnitude >= 0x800000u) return (double)x;
    return (double)(int32_t)magnitude * (u >> 31 ? -unit : unit);
}

TEGROUP_IMPL_HD int tegroup_impl_is_float(tegroup_dtype dtype) {
    return dtype >= TEGROUP_DTYPE_F64 && dtype <= TEGROUP_DTYPE_BF16;
}

/* One element by type. */
TEGROUP_IMPL_HD double tegroup_impl_load_f64(tegroup_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: return ((const double *)data)[i];
    case TEGROUP_DTYPE_F32: return tegroup_impl_f64_of_f32(((const float *)data)[i]);
    case TEGROUP_DTYPE_F16: return (double)tegroup_impl_f32_of_f16(((const tegroup_impl_any16 *)data)[i]);
    default: return tegroup_impl_f64_of_f32(tegroup_impl_f32_of_bf16(((const tegroup_impl_any16 *)data)[i]));
    }
}

TEGROUP_IMPL_HD void tegroup_impl_store_f64(tegroup_dtype dtype, void *data, int64_t i, double x) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: ((double *)data)[i] = x; break;
    case TEGROUP_DTYPE_F32: ((float *)data)[i] = tegroup_impl_f32_of_f64(x); break;
    case TEGROUP_DTYPE_F16:
        ((tegroup_impl_any16 *)data)[i] = tegroup_impl_f16_of_f32(tegroup_impl_f32_odd_of_f64(x));
        break;
    default: ((tegroup_impl_any16 *)data)[i] = tegroup_impl_bf16_of_f32(tegroup_impl_f32_odd_of_f64(x)); break;
    }
}

TEGROUP_IMPL_HD float tegroup_impl_load_f32(tegroup_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: return tegroup_impl_f32_of_f64(((const double *)data)[i]);
    case TEGROUP_DTYPE_F32: return ((const float *)data)[i];
    case TEGROUP_DTYPE_F16: return tegroup_impl_f32_of_f16(((const tegroup_impl_any16 *)data)[i]);
    default: return tegroup_impl_f32_of_bf16(((const tegroup_impl_any16 *)data)[i]);
    }
}

TEGROUP_IMPL_HD void tegroup_impl_store_f32(tegroup_dtype dtype, void *data, int64_t i, float x) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: ((double *)data)[i] = tegroup_impl_f64_of_f32(x); break;
    case TEGROUP_DTYPE_F32: ((float *)data)[i] = x; break;
    case TEGROUP_DTYPE_F16: ((tegroup_impl_any16 *)data)[i] = tegroup_impl_f16_of_f32(x); break;
    default: ((tegroup_impl_any16 *)data)[i] = tegroup_impl_bf16_of_f32(x); break;
    }
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
