/* ---- Formulas ---- */

#pragma once
#include "base/version.h"
#include "base/build.h"
#include "base/arithmetic.h"

/* Arithmetic of one element, in float and in double, for the CPU's loops and the kernels' threads alike. On the host
 * exp is the platform's (glibc: at most 1 ULP off). On the device it is at most 4 ULP off, whatever the flags (with
 * --use_fast_math numbers below 2^-126 may be taken as 0): e^x is 2^high (1 + low ln 2), high + low = x log2 e, and the
 * hardware's power of two is at most 2 ULP off. */
TEGROUP_IMPL_HD float tegroup_impl_exp_f32(float x) {
#if defined(__CUDA_ARCH__)
    float high, low, power;
    x = x < -110.0f ? -110.0f : x > 110.0f ? 110.0f : x; /* beyond, 0 and infinity come out; NaN stays */
    high = __fmul_rn(x, 1.442695021629333f);
    low = __fmaf_rn(x, 1.442695021629333f, -high);
    low = __fmaf_rn(x, 1.925963033500e-8f, low);
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(high));
    return __fmul_rn(power, __fmaf_rn(low, 0.6931471805599453f, 1.0f));
#else
    return expf(x);
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_exp_f64(double x) { return exp(x); }

/* @each-real */
/* Gradient of a chosen probability, by way of its weight: `chosen` sums the token's, `dot` those times their
 * gradients. */
TEGROUP_IMPL_HD REAL tegroup_impl_choice_grad_FSUF(REAL grad_weight, REAL dot, REAL chosen, int32_t normalize) {
    return normalize ? (grad_weight - dot / chosen) / chosen : grad_weight;
}
/* @end */
