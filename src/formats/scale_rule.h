/* ---- Scale rules ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/convert.h"

/* The presets are read from (repository, commit, file):
 *   TE_         NVIDIA/TransformerEngine d0067d0, transformer_engine/common: recipe/recipe_common.cuh (CURRENT, BLOCK),
 *               util/ptx_arch_spec.cuh, util/ptx.cuh (MXFP8), cast/nvfp4/core_nvfp4.cuh (NVFP4)
 *   DEEPGEMM    deepseek-ai/DeepGEMM 54e2261, deep_gemm/utils/math.py
 *   DEEPSEEK    deepseek-ai/DeepSeek-V3 0623163, inference/kernel.py
 *   FBGEMM_ROW  pytorch/FBGEMM, fbgemm_gpu/experimental/gen_ai/test/quantize/quantize_test.py: fp8_row_quantize_ref
 *   OCP_MX      OCP Microscaling Formats (MX) 1.0, section 6.3 */
TEGROUP_API tegroup_scale_rule tegroup_scale_rule_of(tegroup_scale_preset preset) {
    static const tegroup_scale_rule table[TEGROUP_SCALE_PRESET_COUNT] = {
        /* method, floor, multiplier's max, of infinity, power of two, by reciprocal, divide, special is 1, NaN shows */
        {TEGROUP_SCALE_UNSET, 0, 0, 0, 0, 0, 0, 0, 0},
        {TEGROUP_SCALE_MULTIPLIER, 0, 0, 0, 0, 0, 0, 1, 0},               /* TE_CURRENT     */
        {TEGROUP_SCALE_GIVEN, 0, 0, 0, 0, 0, 0, 0, 0},                    /* TE_DELAYED     */
        {TEGROUP_SCALE_MULTIPLIER, 0, 0, 0, 1, 0, 0, 1, 0},               /* TE_BLOCK       */
        {TEGROUP_SCALE_MULTIPLIER, 0, 0, 0, 0, 0, 0, 1, 0},               /* TE_BLOCK_F32   */
        {TEGROUP_SCALE_DIVISOR, 0, 0, 0, 1, 1, 0, 0, 0},                  /* TE_MXFP8       */
        {TEGROUP_SCALE_TWO_LEVEL, 0, 0, 0, 0, 0, 0, 0, 0},                /* TE_NVFP4       */
        {TEGROUP_SCALE_DIVISOR, 1e-4f, 0, 0, 0, 0, 0, 0, 1},              /* DEEPGEMM       */
        {TEGROUP_SCALE_DIVISOR, 1e-4f, 0, 0, 1, 0, 0, 0, 1},              /* DEEPGEMM_UE8M0 */
        {TEGROUP_SCALE_DIVISOR, 0, 0, 0, 0, 0, 1, 0, 0},                  /* DEEPSEEK       */
        {TEGROUP_SCALE_MULTIPLIER, 0, 448.0f * 512.0f, 0, 0, 0, 0, 0, 1}, /* FBGEMM_ROW     */
        {TEGROUP_SCALE_EXPONENT, 0, 0, 0, 0, 0, 0, 0, 1},                 /* OCP_MX         */
    };
    return table[(uint32_t)preset < TEGROUP_SCALE_PRESET_COUNT ? preset : 0];
}

/* The largest finite value; 0 for a type that is not quantised to. */
TEGROUP_IMPL_HD float tegroup_impl_largest(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F8E4M3   ? 448.0f
           : dtype == TEGROUP_DTYPE_F8E5M2 ? 57344.0f
           : dtype == TEGROUP_DTYPE_F4E2M1 ? 6.0f
                                           : 0.0f;
}

/* Its reciprocal, rounded once: the compiler divides. */
TEGROUP_IMPL_HD float tegroup_impl_inverse_largest(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F8E4M3   ? 1.0f / 448.0f
           : dtype == TEGROUP_DTYPE_F8E5M2 ? 1.0f / 57344.0f
                                           : 1.0f / 6.0f;
}

/* x, with a magnitude of at most `limit`; NaN stays. By bits, so that no flag takes a NaN for a number. */
TEGROUP_IMPL_HD float tegroup_impl_cut(float x, float limit) {
    const uint32_t bits = tegroup_impl_bits_of_f32(x), most = tegroup_impl_bits_of_f32(limit);
    return !tegroup_impl_is_nan(x) && (bits & 0x7fffffffu) > most ? tegroup_impl_f32_of_bits(bits >> 31 << 31 | most)
                                                                  : x;
}
#define TEGROUP_IMPL_F32_MAX tegroup_impl_f32_of_bits(0x7f7fffffu)

/* amax with one value more; the bits of magnitudes are in the order of the magnitudes, and NaN above all. There is one
 * NaN, the largest: what others a conversion makes is up to the machine. */
TEGROUP_IMPL_HD float tegroup_impl_amax(const tegroup_scale_rule *rule, float amax, float x) {
    const uint32_t magnitude = tegroup_impl_bits_of_f32(x) & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return rule->nan_shows ? tegroup_impl_f32_of_bits(0x7fffffffu) : amax;
    return magnitude > tegroup_impl_bits_of_f32(amax) ? tegroup_impl_f32_of_bits(magnitude) : amax;
}
/* With n values more. */
TEGROUP_IMPL_STATIC float tegroup_impl_amax_of_line(const tegroup_scale_rule *rule, float amax, const float *x,
                                                    int32_t n) {
    const uint32_t of_nan = rule->nan_shows ? 0x7fffffffu : 0u;
    uint32_t most = tegroup_impl_bits_of_f32(amax), magnitude;
    int32_t i;
    for (i = 0; i < n; i++) {
        magnitude = tegroup_impl_bits_of_f32(x[i]) & 0x7fffffffu;
        magnitude = magnitude > 0x7f800000u ? of_nan : magnitude;
        most = magnitude > most ? magnitude : most;
    }
    return tegroup_impl_f32_of_bits(most);
}

/* TWO_LEVEL: what all blocks of a group have in common, so that the largest block scale is E4M3's largest. Its
 * reciprocal is the tensor's global_scale_inv. An amax of 0 or infinity gives 1. */
TEGROUP_IMPL_HD float tegroup_impl_scale_global(float amax) {
    const float both = tegroup_impl_largest(TEGROUP_DTYPE_F8E4M3) * tegroup_impl_largest(TEGROUP_DTYPE_F4E2M1);
    const uint32_t magnitude = tegroup_impl_bits_of_f32(amax) & 0x7fffffffu;
    if (magnitude == 0 || magnitude == 0x7f800000u) return 1.0f;
    return tegroup_impl_cut(tegroup_impl_quotient_f32(both, tegroup_impl_f32_of_bits(magnitude)), TEGROUP_IMPL_F32_MAX);
}

TEGROUP_IMPL_HD float tegroup_impl_scale_multiplier(const tegroup_scale_rule *rule, float largest, float amax) {
    float multiplier = tegroup_impl_quotient_f32(largest, amax);
    if (tegroup_impl_bits_of_f32(multiplier) == 0x7f800000u)
        multiplier = rule->multiplier_of_infinity > 0 ? rule->multiplier_of_infinity : TEGROUP_IMPL_F32_MAX;
    if (rule->multiplier_max > 0) multiplier = tegroup_impl_cut(multiplier, rule->multiplier_max);
    if (rule->power_of_two && !tegroup_impl_is_nan(multiplier))
        multiplier = tegroup_impl_f32_of_bits(tegroup_impl_bits_of_f32(multiplier) & 0x7f800000u);
    return multiplier;
}

TEGROUP_IMPL_HD float tegroup_impl_scale_divisor(const tegroup_scale_rule *rule, tegroup_dtype data, float amax) {
    const float largest = tegroup_impl_largest(data);
    const float scale = rule->by_reciprocal ? tegroup_impl_product_f32(amax, tegroup_impl_inverse_largest(data))
                                            : tegroup_impl_quotient_f32(amax, largest);
    const uint32_t bits = tegroup_impl_bits_of_f32(scale), normal = 0x00800000u; /* 2^-126: its reciprocal is finite */
    if (!rule->power_of_two && !rule->divide && bits > 0 && bits < normal) return tegroup_impl_f32_of_bits(normal);
    if (!rule->power_of_two) return scale;
    return tegroup_impl_f32_of_f8e8m0(tegroup_impl_f8e8m0_of_f32(scale, TEGROUP_IMPL_UP));
}

/* 2^(floor(log2(amax)) - floor(log2(largest))), within E8M0. Infinity counts as 2^128. */
TEGROUP_IMPL_HD float tegroup_impl_scale_exponent(float largest, float amax) {
    const int32_t down = (int32_t)(tegroup_impl_bits_of_f32(largest) >> 23) - 127;
    const int32_t code = (int32_t)(tegroup_impl_bits_of_f32(amax) >> 23) - down;
    if (tegroup_impl_is_nan(amax)) return amax;
    return tegroup_impl_f32_of_f8e8m0((uint8_t)(code > 0 ? code : 0));
}

/* The scale of a block, stored as `scale`. global: of TWO_LEVEL and GIVEN. Where a scale is a power of two, its
 * reciprocal and its code are exact. To BF16 one is rounded to nearest: down it is by 2^-9 at most, so that the largest
 * value is still nearest to the largest code. */
TEGROUP_IMPL_HD tegroup_block_scale tegroup_impl_scale_block(const tegroup_scale_rule *rule, tegroup_dtype data,
                                                             tegroup_dtype scale, float amax, float global) {
    const uint32_t magnitude = tegroup_impl_bits_of_f32(amax) & 0x7fffffffu;
    const uint32_t least = tegroup_impl_bits_of_f32(rule->amax_floor), taken = magnitude < least ? least : magnitude;
    const float largest = tegroup_impl_largest(data);
    tegroup_block_scale block = {1.0f, 1.0f, 0, 0};
    amax = tegroup_impl_f32_of_bits(taken);
    switch (rule->special_is_one && (taken == 0 || taken >= 0x7f800000u) ? TEGROUP_SCALE_UNSET : rule->method) {
    case TEGROUP_SCALE_MULTIPLIER:
    case TEGROUP_SCALE_GIVEN:
        block.multiplier =
            rule->method == TEGROUP_SCALE_GIVEN ? global : tegroup_impl_scale_multiplier(rule, largest, amax);
        block.stored = tegroup_impl_inverse_f32(block.multiplier);
        break;
    case TEGROUP_SCALE_DIVISOR:
    case TEGROUP_SCALE_EXPONENT:
        block.stored = rule->method == TEGROUP_SCALE_EXPONENT ? tegroup_impl_scale_exponent(largest, amax)
                                                              : tegroup_impl_scale_divisor(rule, data, amax);
        block.divide = rule->divide && tegroup_impl_bits_of_f32(block.stored) != 0;
        block.multiplier = tegroup_impl_bits_of_f32(block.stored) != 0 ? tegroup_impl_inverse_f32(block.stored) : 0.0f;
        break;
    case TEGROUP_SCALE_TWO_LEVEL: /* the multiplier is that of the scale as it is stored */
        block.stored = tegroup_impl_product_f32(global, tegroup_impl_inverse_largest(data));
        block.stored = tegroup_impl_product_f32(amax, block.stored);
        block.stored = tegroup_impl_f32_of_f8e4m3(tegroup_impl_f8e4m3_of_f32(block.stored));
        block.multiplier = tegroup_impl_product_f32(block.stored, tegroup_impl_inverse_f32(global));
        block.multiplier = tegroup_impl_cut(tegroup_impl_inverse_f32(block.multiplier), TEGROUP_IMPL_F32_MAX);
        break;
    default: break;
    }
    if (tegroup_impl_is_nan(block.stored)) block.stored = tegroup_impl_f32_of_bits(0x7fffffffu); /* on both machines */
    block.bits = tegroup_impl_bits_of_f32(block.stored);
    if (scale == TEGROUP_DTYPE_F32) return block;
    block.bits = tegroup_impl_code_of_f32(scale, block.stored);
    block.stored = tegroup_impl_f32_of_code(scale, block.bits); /* E8M0 has no infinity */
    if (scale == TEGROUP_DTYPE_BF16) {                          /* values are quantised by the scale that is stored */
        const int zero = tegroup_impl_bits_of_f32(block.stored) == 0;
        block.divide = rule->divide && !zero;
        block.multiplier = zero ? 0.0f : tegroup_impl_cut(tegroup_impl_inverse_f32(block.stored), TEGROUP_IMPL_F32_MAX);
    }
    return block;
}

/* The code of one value of a block. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_scaled_code(tegroup_dtype data, const tegroup_block_scale *block, float x) {
    return tegroup_impl_code_of_f32(data, block->divide ? tegroup_impl_quotient_f32(x, block->stored)
                                                        : tegroup_impl_product_f32(x, block->multiplier));
}

/* The codes of n values of a block. A processor may have been told to take subnormal numbers for zeros: the code is
 * then 0 with them and without, but for multipliers that are subnormal or very large. */
TEGROUP_IMPL_STATIC void tegroup_impl_scaled_codes(tegroup_dtype data, const tegroup_block_scale *block, const float *x,
                                                   int32_t n, uint8_t *codes) {
    const uint32_t bits = tegroup_impl_bits_of_f32(block->multiplier), least = 0x00800000u,
                   most = 227u << 23; /* 2^100 */
    const float multiplier = block->multiplier;
    int plain = !block->divide && (bits == 0 || (bits >= least && bits < most));
    int32_t i;
#if !defined(__FLT_EVAL_METHOD__) || __FLT_EVAL_METHOD__ != 0
    plain = 0;
#endif
    if (plain && data == TEGROUP_DTYPE_F8E4M3)
        for (i = 0; i < n; i++) codes[i] = tegroup_impl_f8e4m3_of_f32(x[i] * multiplier);
    else if (plain && data == TEGROUP_DTYPE_F8E5M2)
        for (i = 0; i < n; i++) codes[i] = tegroup_impl_f8e5m2_of_f32(x[i] * multiplier);
    else if (plain && data == TEGROUP_DTYPE_F4E2M1)
        for (i = 0; i < n; i++) codes[i] = tegroup_impl_f4e2m1_of_f32(x[i] * multiplier);
    else
        for (i = 0; i < n; i++) codes[i] = (uint8_t)tegroup_impl_scaled_code(data, block, x[i]);
}

/* What errors call a rule. */
typedef struct tegroup_impl_rule_name {
    const char *method, *amax_floor, *multiplier_max, *multiplier_of_infinity, *power_of_two, *by_reciprocal, *divide,
        *special_is_one, *nan_shows, *gives;
} tegroup_impl_rule_name;
#define TEGROUP_IMPL_RULE_NAME(name)                                                                                   \
    {                                                                                                                  \
        name ".method", name ".amax_floor", name ".multiplier_max", name ".multiplier_of_infinity",                    \
            name ".power_of_two", name ".by_reciprocal", name ".divide", name ".special_is_one", name ".nan_shows",    \
            "must be one that " name ".method gives"                                                                   \
    }

/* Can values of this data type have scales of that type by this rule? The fields are what errors call the types. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_scale_rule(const tegroup_scale_rule *rule,
                                                                 const tegroup_impl_rule_name *name, tegroup_dtype data,
                                                                 const char *data_field, tegroup_dtype scale,
                                                                 const char *scale_field, tegroup_error *error) {
    const int multiplier = rule->method == TEGROUP_SCALE_MULTIPLIER, divisor = rule->method == TEGROUP_SCALE_DIVISOR;
    const int two_level = rule->method == TEGROUP_SCALE_TWO_LEVEL;
    const uint32_t quantised = 1u << TEGROUP_DTYPE_F8E4M3 | 1u << TEGROUP_DTYPE_F8E5M2 | 1u << TEGROUP_DTYPE_F4E2M1;
    const uint32_t scales = two_level ? 1u << TEGROUP_DTYPE_F8E4M3
                            : rule->power_of_two || rule->method == TEGROUP_SCALE_EXPONENT
                                ? 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_BF16 | 1u << TEGROUP_DTYPE_F8E8M0
                                : 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_BF16;
#define TEGROUP_IMPL_FACTOR(member)                                                                                    \
    TEGROUP_IMPL_RULE_REAL(tegroup_impl_bits_of_f32(rule->member) < 0x7f800000u, ERROR_VALUE, name->member,            \
                           "must be finite and not negative", 0, (double)rule->member)
#define TEGROUP_IMPL_SWITCH(member, taken, goes_with)                                                                  \
    TEGROUP_IMPL_RULE(rule->member == 0 || rule->member == 1, ERROR_VALUE, name->member, "must be 0 or 1", 1,          \
                      rule->member);                                                                                   \
    TEGROUP_IMPL_RULE(!rule->member || (taken), ERROR_COMBINATION, name->member, goes_with, 0, 1)
    TEGROUP_IMPL_RULE_ENUM(rule->method, TEGROUP_SCALE_METHOD_COUNT - 1, name->method,
                           "must be a tegroup_scale_method");
    TEGROUP_IMPL_RULE(rule->method != TEGROUP_SCALE_UNSET, ERROR_UNSET, name->method, "must be set", 1, 0);
    TEGROUP_IMPL_FACTOR(amax_floor);
    TEGROUP_IMPL_FACTOR(multiplier_max);
    TEGROUP_IMPL_RULE_REAL(multiplier || rule->multiplier_max == 0, ERROR_COMBINATION, name->multiplier_max,
                           "must be 0 but for MULTIPLIER", 0, (double)rule->multiplier_max);
    TEGROUP_IMPL_FACTOR(multiplier_of_infinity);
    TEGROUP_IMPL_RULE_REAL(multiplier || rule->multiplier_of_infinity == 0, ERROR_COMBINATION,
                           name->multiplier_of_infinity, "must be 0 but for MULTIPLIER", 0,
                           (double)rule->multiplier_of_infinity);
    TEGROUP_IMPL_SWITCH(power_of_two, multiplier || divisor, "must be 0 but for MULTIPLIER and DIVISOR");
    TEGROUP_IMPL_SWITCH(by_reciprocal, divisor, "must be 0 but for DIVISOR");
    TEGROUP_IMPL_SWITCH(divide, divisor, "must be 0 but for DIVISOR");
    TEGROUP_IMPL_SWITCH(special_is_one, rule->method != TEGROUP_SCALE_GIVEN, "must be 0 with GIVEN: no amax counts");
    TEGROUP_IMPL_SWITCH(nan_shows, 1, "");
#undef TEGROUP_IMPL_FACTOR
#undef TEGROUP_IMPL_SWITCH
    TEGROUP_IMPL_RULE_AS(DTYPES, (uint32_t)data < 32 && quantised >> data & 1u, ERROR_DTYPE, data_field,
                         "must be one that is quantised to", quantised, data);
    TEGROUP_IMPL_RULE_AS(DTYPES, (uint32_t)scale < 32 && scales >> scale & 1u, ERROR_DTYPE, scale_field, name->gives,
                         scales, scale);
    TEGROUP_IMPL_RULE_AS(DTYPE, !two_level || data == TEGROUP_DTYPE_F4E2M1, ERROR_DTYPE, data_field,
                         "must be F4E2M1 with TWO_LEVEL", TEGROUP_DTYPE_F4E2M1, data);
    return TEGROUP_OK;
}

/* A call's rule is the one that was planned. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_planned_rule(const tegroup_scale_rule *planned,
                                                                   const tegroup_scale_rule *rule,
                                                                   const tegroup_impl_rule_name *name,
                                                                   tegroup_error *error) {
#define TEGROUP_IMPL_SAME(member)                                                                                      \
    TEGROUP_IMPL_RULE(planned->member == rule->member, ERROR_PLAN, name->member, "must be as planned",                 \
                      planned->member, rule->member)
#define TEGROUP_IMPL_SAME_REAL(member)                                                                                 \
    TEGROUP_IMPL_RULE_REAL(memcmp(&planned->member, &rule->member, sizeof rule->member) == 0, ERROR_PLAN,              \
                           name->member, "must be as planned", (double)planned->member, (double)rule->member)
    TEGROUP_IMPL_SAME(method);
    TEGROUP_IMPL_SAME_REAL(amax_floor);
    TEGROUP_IMPL_SAME_REAL(multiplier_max);
    TEGROUP_IMPL_SAME_REAL(multiplier_of_infinity);
    TEGROUP_IMPL_SAME(power_of_two);
    TEGROUP_IMPL_SAME(by_reciprocal);
    TEGROUP_IMPL_SAME(divide);
    TEGROUP_IMPL_SAME(special_is_one);
    TEGROUP_IMPL_SAME(nan_shows);
#undef TEGROUP_IMPL_SAME
#undef TEGROUP_IMPL_SAME_REAL
    return TEGROUP_OK;
}

TEGROUP_API float tegroup_scale_amax(const tegroup_scale_rule *rule, float amax, float x) {
    return tegroup_impl_amax(rule, amax, x);
}
TEGROUP_API float tegroup_scale_global(float amax) { return tegroup_impl_scale_global(amax); }
TEGROUP_API tegroup_status tegroup_scale_block(const tegroup_scale_rule *rule, tegroup_dtype data, tegroup_dtype scale,
                                               float amax, float global, tegroup_block_scale *block,
                                               tegroup_error *error) {
    static const tegroup_impl_rule_name name = TEGROUP_IMPL_RULE_NAME("rule");
    TEGROUP_IMPL_RULE(rule != NULL, ERROR_NULL_ARGUMENT, "rule", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(block != NULL, ERROR_NULL_ARGUMENT, "block", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_rule(rule, &name, data, "data", scale, "scale", error));
    *block = tegroup_impl_scale_block(rule, data, scale, amax, global);
    return TEGROUP_OK;
}
TEGROUP_API uint32_t tegroup_scaled_code(tegroup_dtype data, const tegroup_block_scale *block, float x) {
    return tegroup_impl_scaled_code(data, block, x);
}

TEGROUP_API float tegroup_decode(tegroup_dtype dtype, uint32_t code) {
    return tegroup_impl_has_code(dtype) ? tegroup_impl_f32_of_code(dtype, code) : tegroup_impl_f32_of_bits(0x7fffffffu);
}
TEGROUP_API uint32_t tegroup_encode(tegroup_dtype dtype, float x) {
    return tegroup_impl_has_code(dtype) ? tegroup_impl_code_of_f32(dtype, x) : 0;
}
