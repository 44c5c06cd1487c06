/* Numbers of 8 and 4 bits, and rules for their scales, by arithmetic of the tests' own: codes are enumerated, the nearest one is
 * looked for, and each rule is written down again from its source, in float as the source has it. */
#ifndef TEGROUP_TESTS_NUMBERS_H
#define TEGROUP_TESTS_NUMBERS_H

#include "support.h"

#include <float.h>

static const tegroup_dtype small_types[] = {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E8M0};

SUPPORT unsigned small_codes(tegroup_dtype dtype) { return dtype == TEGROUP_DTYPE_F4E2M1 ? 16 : 256; }
SUPPORT unsigned small_largest(tegroup_dtype dtype) { /* the code of the largest finite value */
    return dtype == TEGROUP_DTYPE_F8E4M3 ? 0x7e : dtype == TEGROUP_DTYPE_F8E5M2 ? 0x7b : dtype == TEGROUP_DTYPE_F4E2M1 ? 7 : 254;
}

/* OCP OFP8 1.0, tables 1 and 2; OCP MX 1.0, tables 5 (E2M1) and 7 (E8M0). */
SUPPORT double small_value(tegroup_dtype dtype, unsigned code) {
    double value;
    switch (dtype) {
    case TEGROUP_DTYPE_F8E4M3:
        value = (code & 0x7f) == 0x7f ? (double)NAN : (code & 0x78) ? ldexp(8 + (code & 7), (int)(code >> 3 & 15) - 10) : ldexp(code & 7, -9);
        return (code & 0x80) ? -value : value;
    case TEGROUP_DTYPE_F8E5M2:
        value = (code & 0x7c) != 0x7c ? (code & 0x7c) ? ldexp(4 + (code & 3), (int)(code >> 2 & 31) - 17) : ldexp(code & 3, -16)
                : (code & 3) ? (double)NAN : (double)INFINITY;
        return (code & 0x80) ? -value : value;
    case TEGROUP_DTYPE_F4E2M1:
        value = (code & 6) ? ldexp(2 + (code & 1), (int)(code >> 1 & 3) - 2) : (code & 1) * 0.5;
        return (code & 8) ? -value : value;
    default: return code == 255 ? (double)NAN : ldexp(1, (int)code - 127);
    }
}

/* The nearest code, ties to the even one, or in E8M0 to the larger; too large is the largest finite one. */
SUPPORT unsigned small_code(tegroup_dtype dtype, double x) {
    const unsigned sign = dtype == TEGROUP_DTYPE_F8E8M0 || !signbit(x) ? 0 : small_codes(dtype) / 2;
    unsigned best = 0;
    if (isnan(x)) return dtype == TEGROUP_DTYPE_F8E8M0 ? 255 : dtype == TEGROUP_DTYPE_F4E2M1 ? 7 : 0x7f;
    x = fabs(x);
    if (x >= small_value(dtype, small_largest(dtype))) return sign | small_largest(dtype);
    for (unsigned code = 1; code <= small_largest(dtype); code++) {
        const double was = fabs(x - small_value(dtype, best)), is = fabs(x - small_value(dtype, code));
        if (is < was || (is == was && (dtype == TEGROUP_DTYPE_F8E8M0 || code % 2 == 0))) best = code;
    }
    return sign | best;
}

/* Powers of two: the smallest that is not below x, the largest that is not above it; within 2^-127 to 2^127. */
SUPPORT unsigned power_up(double x) {
    unsigned code = 0;
    if (isnan(x)) return 255;
    while (code < 254 && small_value(TEGROUP_DTYPE_F8E8M0, code) < fabs(x)) code++;
    return code;
}
SUPPORT unsigned power_down(double x) {
    unsigned code = 254;
    if (isnan(x)) return 255;
    while (code > 0 && small_value(TEGROUP_DTYPE_F8E8M0, code) > fabs(x)) code--;
    return code;
}

/* What a preset gives for a block, from the source that docs/formats.md names for it. */
typedef struct wanted_scale {
    float multiplier, stored;
    int divide;
} wanted_scale;

SUPPORT wanted_scale wanted_block(tegroup_scale_preset preset, tegroup_dtype data, float amax, float global) {
    const float largest = data == TEGROUP_DTYPE_F8E4M3 ? 448.0f : data == TEGROUP_DTYPE_F8E5M2 ? 57344.0f : 6.0f;
    const float inverse = 1.0f / largest;
    wanted_scale want = {1, 1, 0};
    int exponent;
    switch (preset) {
    case TEGROUP_SCALE_TE_CURRENT: case TEGROUP_SCALE_TE_BLOCK: case TEGROUP_SCALE_TE_BLOCK_F32: /* compute_scale_from_amax */
        if (amax == 0 || !isfinite(amax)) break;
        want.multiplier = largest / amax;
        if (isinf(want.multiplier)) want.multiplier = FLT_MAX;
        if (preset == TEGROUP_SCALE_TE_BLOCK) {
            frexpf(want.multiplier, &exponent);
            want.multiplier = ldexpf(1, exponent - 1);
        }
        want.stored = 1 / want.multiplier;
        break;
    case TEGROUP_SCALE_TE_DELAYED: want.multiplier = global; want.stored = 1 / global; break;
    case TEGROUP_SCALE_TE_MXFP8: /* float_to_e8m0, exp2f_rcp */
        want.stored = (float)small_value(TEGROUP_DTYPE_F8E8M0, power_up(amax * inverse));
        want.multiplier = 1 / want.stored;
        break;
    case TEGROUP_SCALE_TE_NVFP4: { /* compute_decoding_scaling_factor, then the kernel's block_scale_inverse; a NaN of its amax shows */
        const float scale = amax * (global * inverse), decode = 1 / global;
        want.stored = (float)small_value(TEGROUP_DTYPE_F8E4M3, small_code(TEGROUP_DTYPE_F8E4M3, scale));
        want.multiplier = 1 / (want.stored * decode);
        if (want.multiplier > FLT_MAX) want.multiplier = FLT_MAX;
        break;
    }
    case TEGROUP_SCALE_DEEPGEMM: case TEGROUP_SCALE_DEEPGEMM_UE8M0: /* per_token_cast_to_fp8; of a NaN: see docs/formats.md */
        want.stored = (amax < 1e-4f ? 1e-4f : amax) / largest;
        if (preset == TEGROUP_SCALE_DEEPGEMM_UE8M0) want.stored = (float)small_value(TEGROUP_DTYPE_F8E8M0, power_up(want.stored));
        want.multiplier = 1 / want.stored;
        break;
    case TEGROUP_SCALE_DEEPSEEK: /* act_quant_kernel; of a block of zeros: see docs/formats.md */
        want.stored = amax / largest;
        want.divide = want.stored != 0;
        want.multiplier = want.stored != 0 ? 1 / want.stored : 0;
        break;
    case TEGROUP_SCALE_FBGEMM_ROW: /* fp8_row_quantize_ref */
        want.multiplier = largest / amax;
        if (want.multiplier > 448.0f * 512.0f) want.multiplier = 448.0f * 512.0f;
        want.stored = 1 / want.multiplier;
        break;
    default: /* OCP MX, section 6.3: the largest power of two up to amax, over that of the type */
        exponent = data == TEGROUP_DTYPE_F8E4M3 ? 8 : data == TEGROUP_DTYPE_F8E5M2 ? 15 : 2;
        want.stored = isinf(amax) ? ldexpf(1, 127 - exponent) * 2 : (float)small_value(TEGROUP_DTYPE_F8E8M0, power_down(ldexp(amax, -exponent)));
        want.multiplier = 1 / want.stored;
        break;
    }
    return want;
}

/* Stored in BF16, the scale is rounded to nearest, and values are quantised by that. */
SUPPORT wanted_scale wanted_stored(wanted_scale want, tegroup_dtype scale, tegroup_scale_preset preset) {
    if (scale != TEGROUP_DTYPE_BF16) return want;
    want.stored = (float)rounded(TEGROUP_DTYPE_BF16, (double)want.stored);
    want.multiplier = want.stored == 0 ? 0 : 1 / want.stored;
    if (want.multiplier > FLT_MAX) want.multiplier = FLT_MAX;
    want.divide = preset == TEGROUP_SCALE_DEEPSEEK && want.stored != 0;
    return want;
}

/* A type of scale that the preset goes with. */
SUPPORT tegroup_dtype scale_type(tegroup_scale_preset preset) {
    switch (preset) {
    case TEGROUP_SCALE_TE_MXFP8: case TEGROUP_SCALE_OCP_MX: return TEGROUP_DTYPE_F8E8M0;
    case TEGROUP_SCALE_TE_NVFP4: return TEGROUP_DTYPE_F8E4M3;
    default: return TEGROUP_DTYPE_F32;
    }
}

#endif
