/* ---- Activation formulas ---- */

#pragma once
#include "core/activation_types.h"
#include "base/build.h"
#include "base/arithmetic.h"

/* Each operation is rounded by itself, or is one fused multiply-add where that is written: an activation in the
 * epilogue of a product gives the bits that the separate call gives. (A host compiler may fuse what it likes.) */
TEGROUP_IMPL_HD float tegroup_impl_mul_f32(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_mul_f64(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}
TEGROUP_IMPL_HD float tegroup_impl_fma_f32(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return a * b + c;
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_fma_f64(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
    return __fma_rn(a, b, c);
#else
    return a * b + c;
#endif
}

/* @each-real */
/* x, or the bound that it passes; NaN stays. */
TEGROUP_IMPL_HD REAL tegroup_impl_at_least_FSUF(REAL x, REAL bound) { return x < bound ? bound : x; }
TEGROUP_IMPL_HD REAL tegroup_impl_at_most_FSUF(REAL x, REAL bound) { return x > bound ? bound : x; }
/* @end */

/* What stands for infinity where it is multiplied by 0. */
#define TEGROUP_IMPL_LARGEST_f32 3.4028234663852886e38f
#define TEGROUP_IMPL_LARGEST_f64 1.7976931348623157e308

/* |x|, but no more than where the tail below is 0. */
TEGROUP_IMPL_HD float tegroup_impl_magnitude_f32(float x) { return tegroup_impl_at_most_f32(fabsf(x), 15.0f); }
TEGROUP_IMPL_HD double tegroup_impl_magnitude_f64(double x) { return tegroup_impl_at_most_f64(fabs(x), 40.0); }

#if defined(__CUDA_ARCH__)
/* 2^x, at most 2 ULP off; 0 below 2^-126. */
static __device__ inline float tegroup_impl_power(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
/* 2^(high + low) by its first power of low, and `add`. */
static __device__ inline float tegroup_impl_power(float high, float low, float add) {
    return __fmaf_rn(tegroup_impl_power(high), __fmaf_rn(low, 0.6931471805599453f, 1.0f), add);
}
/* At most 1 ULP off; 0 below 2^-126. */
static __device__ inline float tegroup_impl_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

/* 1 / (1 + exp(-x)). In float at most 5 ULP off on the device and 3 on the host with glibc's expf (every float was
 * tried); below 2^-126 it may be 0. half: for results that are rounded to halves; on the device it may be 1.25 |x| (1 -
 * it) ULP more off. */
TEGROUP_IMPL_HD float tegroup_impl_sigmoid_f32(float x, int half) {
#if defined(__CUDA_ARCH__)
    float high, low;
    if (half) return tegroup_impl_reciprocal(__fadd_rn(1.0f, tegroup_impl_power(__fmul_rn(x, -1.442695021629333f))));
    x = tegroup_impl_at_most_f32(tegroup_impl_at_least_f32(x, -128.0f), 128.0f);
    high = __fmul_rn(x, -1.442695021629333f);
    low = __fmaf_rn(x, -1.442695021629333f, -high);
    low = __fmaf_rn(x, -1.925963033500e-8f, low);
    return tegroup_impl_reciprocal(tegroup_impl_power(high, low, 1.0f));
#else
    (void)half;
    return 1.0f / (1.0f + expf(-x));
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_sigmoid_f64(double x, int half) {
    (void)half;
    return 1.0 / (1.0 + exp(-x));
}

/* The tail of the standard normal distribution beyond t, 0 to 15, and its density there. With the density's exponential
 * taken out, what is left of the tail is smooth in y = (t - 3.75) / (t + 3.75): in float a polynomial through Chebyshev
 * nodes, 0.5 units of roundoff off, which also makes good that 0.7213475... is a float and not log2(e) / 2. The tail is
 * taken as it is and never as 1 minus the rest: it keeps its digits. In float it is at most 9 ULP off, the density t t
 * / 8 + 4 (every float was tried, on host and device); in double as erfc and exp are. half: for results that are
 * rounded to halves, from t that was one; on the device both may be t t / 2 ULP more off, a seven hundredth of what
 * separates neighbours of BF16. */
TEGROUP_IMPL_HD float tegroup_impl_tail_f32(float t, int half, float *density) {
#if defined(__CUDA_ARCH__) /* high + low is -0.7213475... t t, with what rounding takes from t t */
    const float square = __fmul_rn(t, t), high = __fmul_rn(square, -0.7213475108146667f),
                low = __fmaf_rn(__fmaf_rn(t, t, -square), -0.7213475108146667f,
                                __fmaf_rn(square, -0.7213475108146667f, -high)),
                gauss = half ? tegroup_impl_power(high) : tegroup_impl_power(high, low, 0.0f),
                q = tegroup_impl_reciprocal(__fadd_rn(t, 3.75f));
#else
    const float gauss = (float)exp(-0.6931471805599453 * (double)0.7213475108146667f * t * t), q = 1.0f / (t + 3.75f);
    (void)half;
#endif
    const float y = tegroup_impl_fma_f32(q, -7.5f, 1.0f);
    float p = 4.491023428272456e-4f;
    p = tegroup_impl_fma_f32(p, y, 5.185334011912346e-4f);
    p = tegroup_impl_fma_f32(p, y, -4.1710506193339825e-3f);
    p = tegroup_impl_fma_f32(p, y, 1.192011870443821e-3f);
    p = tegroup_impl_fma_f32(p, y, 3.7490565329790115e-2f);
    p = tegroup_impl_fma_f32(p, y, -1.5151989459991455e-1f);
    p = tegroup_impl_fma_f32(p, y, 3.529394865036011e-1f);
    p = tegroup_impl_fma_f32(p, y, -5.881885886192322e-1f);
    p = tegroup_impl_fma_f32(p, y, 7.502939701080322e-1f);
    *density = tegroup_impl_mul_f32(gauss, 0.3989422804014327f);
    return tegroup_impl_mul_f32(tegroup_impl_mul_f32(p, q), gauss);
}
TEGROUP_IMPL_HD double tegroup_impl_tail_f64(double t, int half, double *density) {
    (void)half;
    *density = 0.3989422804014327 * exp(-0.5 * t * t);
    return 0.5 * erfc(0.7071067811865476 * t);
}

/* tanh(x); rest: 1 - |tanh(x)|, which keeps its digits where x is large. In float on the device tanh is at most 4 ULP
 * off: a polynomial through Chebyshev nodes in x x below 0.625, and 1 - 2 / (1 + exp(2 |x|)) from there on. 2 log2(e),
 * with which exp is a power of 2, is a float and the float that the first leaves. */
TEGROUP_IMPL_HD float tegroup_impl_tanh_f32(float x, float *rest) {
#if defined(__CUDA_ARCH__)
    const float t = tegroup_impl_at_most_f32(fabsf(x), 44.0f), square = __fmul_rn(t, t),
                high = __fmul_rn(t, 2.885390043258667f),
                low = __fmaf_rn(t, 3.851926067e-8f, __fmaf_rn(t, 2.885390043258667f, -high)),
                far = __fmul_rn(2.0f, tegroup_impl_reciprocal(tegroup_impl_power(high, low, 1.0f)));
    float near = -0.006096714176237583f;
    near = __fmaf_rn(near, square, 0.020997179672122f);
    near = __fmaf_rn(near, square, -0.05385090783238411f);
    near = __fmaf_rn(near, square, 0.1333276927471161f);
    near = __fmaf_rn(near, square, -0.333333283662796f);
    near = __fmaf_rn(__fmul_rn(near, square), t, t);
    *rest = t < 0.625f ? __fsub_rn(1.0f, near) : far;
    return copysignf(t < 0.625f ? near : __fsub_rn(1.0f, far), x);
#else
    const float t = tanhf(x), far = 2.0f / (1.0f + expf(2.0f * fabsf(x)));
    *rest = fabsf(x) < 0.625f ? 1.0f - fabsf(t) : far;
    return t;
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_tanh_f64(double x, double *rest) {
    const double t = tanh(x), far = 2.0 / (1.0 + exp(2.0 * fabs(x)));
    *rest = fabs(x) < 0.625 ? 1.0 - fabs(t) : far;
    return t;
}
TEGROUP_IMPL_HD float tegroup_impl_one_over_f32(float x) {
#if defined(__CUDA_ARCH__)
    return tegroup_impl_reciprocal(x);
#else
    return 1.0f / x;
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_one_over_f64(double x) { return 1.0 / x; }

/* @each-real */
/* bound tanh(x / bound), and its derivative; x itself without a bound. */
TEGROUP_IMPL_HD REAL tegroup_impl_soft_FSUF(REAL bound, REAL x, REAL *slope) {
    REAL rest, t = tegroup_impl_tanh_FSUF(tegroup_impl_mul_FSUF(x, tegroup_impl_one_over_FSUF(bound)), &rest);
    const int none = bound > TEGROUP_IMPL_LARGEST_FSUF;
    *slope = none ? (REAL)1 : tegroup_impl_mul_FSUF(rest, (REAL)2 - rest);
    return none ? x : tegroup_impl_mul_FSUF(bound, t);
}
/* @end */

/* Gate and up in pairs, or one input an output? */
TEGROUP_IMPL_HD int tegroup_impl_gated(tegroup_activation kind) { return kind <= TEGROUP_ACTIVATION_SITU_GLU; }

/* Does it cut off gate and up, and has parameters? SITU_GLU has them, too. */
TEGROUP_IMPL_HD int tegroup_impl_clamps(tegroup_activation kind) {
    return kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED || kind == TEGROUP_ACTIVATION_SWIGLU_LIMITED;
}

/* The parameters, spelt out. */
TEGROUP_IMPL_HD double tegroup_impl_alpha(tegroup_activation kind, double alpha) {
    if (alpha != 0) return alpha;
    return kind == TEGROUP_ACTIVATION_SITU_GLU ? 4.0 : kind == TEGROUP_ACTIVATION_SWIGLU_LIMITED ? 1.0 : 1.702;
}
TEGROUP_IMPL_HD double tegroup_impl_limit(tegroup_activation kind, double limit) {
    if (limit != 0) return limit;
    return kind == TEGROUP_ACTIVATION_SITU_GLU ? 25.0 : kind == TEGROUP_ACTIVATION_SWIGLU_LIMITED ? 10.0 : 7.0;
}

/* Functions of the gate, or of the one input: most serve a kind with an up and one without. Each has the number of a
 * kind that has it, so that most kinds need no translation. */
typedef enum tegroup_impl_curve_kind {
    TEGROUP_IMPL_CURVE_SILU = TEGROUP_ACTIVATION_SWIGLU,
    TEGROUP_IMPL_CURVE_GELU = TEGROUP_ACTIVATION_GEGLU,
    TEGROUP_IMPL_CURVE_GELU_TANH = TEGROUP_ACTIVATION_GEGLU_TANH,
    TEGROUP_IMPL_CURVE_RELU = TEGROUP_ACTIVATION_REGLU,
    TEGROUP_IMPL_CURVE_SILU_OF_ALPHA = TEGROUP_ACTIVATION_SWIGLU_CLAMPED, /* x sigmoid(alpha x) */
    TEGROUP_IMPL_CURVE_SITU = TEGROUP_ACTIVATION_SITU_GLU,
    TEGROUP_IMPL_CURVE_RELU_SQUARED = TEGROUP_ACTIVATION_RELU_SQUARED,
    TEGROUP_IMPL_CURVE_IDENTITY = TEGROUP_ACTIVATION_IDENTITY
} tegroup_impl_curve_kind;

TEGROUP_IMPL_HD tegroup_impl_curve_kind tegroup_impl_curve_of(tegroup_activation kind) {
    switch (kind) {
    case TEGROUP_ACTIVATION_SILU: return TEGROUP_IMPL_CURVE_SILU;
    case TEGROUP_ACTIVATION_GELU: return TEGROUP_IMPL_CURVE_GELU;
    case TEGROUP_ACTIVATION_GELU_TANH: return TEGROUP_IMPL_CURVE_GELU_TANH;
    case TEGROUP_ACTIVATION_RELU: return TEGROUP_IMPL_CURVE_RELU;
    case TEGROUP_ACTIVATION_SWIGLU_LIMITED: return TEGROUP_IMPL_CURVE_SILU_OF_ALPHA;
    default: return (tegroup_impl_curve_kind)kind;
    }
}

/* A loop for every curve, so that the choice is made once for many elements: BODY(a kind that has the curve, and treats
 * up alike). Where that one has an up and the caller's has none, up is 1. */
#define TEGROUP_IMPL_BY_CURVE(kind, BODY)                                                                              \
    if ((kind) == TEGROUP_ACTIVATION_SWIGLU_LIMITED) {                                                                 \
        BODY(TEGROUP_ACTIVATION_SWIGLU_LIMITED)                                                                        \
    } else switch (tegroup_impl_curve_of(kind)) {                                                                      \
    case TEGROUP_IMPL_CURVE_GELU: BODY(TEGROUP_ACTIVATION_GEGLU) break;                                                \
    case TEGROUP_IMPL_CURVE_GELU_TANH: BODY(TEGROUP_ACTIVATION_GEGLU_TANH) break;                                      \
    case TEGROUP_IMPL_CURVE_RELU: BODY(TEGROUP_ACTIVATION_REGLU) break;                                                \
    case TEGROUP_IMPL_CURVE_SILU_OF_ALPHA: BODY(TEGROUP_ACTIVATION_SWIGLU_CLAMPED) break;                              \
    case TEGROUP_IMPL_CURVE_SITU: BODY(TEGROUP_ACTIVATION_SITU_GLU) break;                                             \
    case TEGROUP_IMPL_CURVE_RELU_SQUARED: BODY(TEGROUP_ACTIVATION_RELU_SQUARED) break;                                 \
    case TEGROUP_IMPL_CURVE_IDENTITY: BODY(TEGROUP_ACTIVATION_IDENTITY) break;                                         \
    default: BODY(TEGROUP_ACTIVATION_SWIGLU) break;                                                                    \
    }

/* A loop for every kind with an up, and for every kind without. */
#define TEGROUP_IMPL_BY_GATED(kind, BODY)                                                                              \
    switch (kind) {                                                                                                    \
    case TEGROUP_ACTIVATION_GEGLU: BODY(TEGROUP_ACTIVATION_GEGLU) break;                                               \
    case TEGROUP_ACTIVATION_GEGLU_TANH: BODY(TEGROUP_ACTIVATION_GEGLU_TANH) break;                                     \
    case TEGROUP_ACTIVATION_REGLU: BODY(TEGROUP_ACTIVATION_REGLU) break;                                               \
    case TEGROUP_ACTIVATION_SWIGLU_CLAMPED: BODY(TEGROUP_ACTIVATION_SWIGLU_CLAMPED) break;                             \
    case TEGROUP_ACTIVATION_SWIGLU_LIMITED: BODY(TEGROUP_ACTIVATION_SWIGLU_LIMITED) break;                             \
    case TEGROUP_ACTIVATION_SITU_GLU: BODY(TEGROUP_ACTIVATION_SITU_GLU) break;                                         \
    default: BODY(TEGROUP_ACTIVATION_SWIGLU) break;                                                                    \
    }

#define TEGROUP_IMPL_BY_PLAIN(kind, BODY)                                                                              \
    switch (kind) {                                                                                                    \
    case TEGROUP_ACTIVATION_GELU: BODY(TEGROUP_ACTIVATION_GELU) break;                                                 \
    case TEGROUP_ACTIVATION_GELU_TANH: BODY(TEGROUP_ACTIVATION_GELU_TANH) break;                                       \
    case TEGROUP_ACTIVATION_RELU: BODY(TEGROUP_ACTIVATION_RELU) break;                                                 \
    case TEGROUP_ACTIVATION_RELU_SQUARED: BODY(TEGROUP_ACTIVATION_RELU_SQUARED) break;                                 \
    case TEGROUP_ACTIVATION_IDENTITY: BODY(TEGROUP_ACTIVATION_IDENTITY) break;                                         \
    default: BODY(TEGROUP_ACTIVATION_SILU) break;                                                                      \
    }

/* @each-real */
/* What an activation multiplies `up` by, and its derivative, a rectifier's where it is open. x s, s = sigmoid(w), has
 * the derivative s + x s w' (1 - s), and (1 + tanh(z)) / 2 is sigmoid(2 z): no digits are lost where tanh comes close
 * to -1. GELU is max(x, 0) - |x| tail(|x|). At an infinite x both are their limits: where the other factor is 0, the
 * largest number or the bounded magnitude stands in for x. half: as the sigmoid and the tail are told. */
TEGROUP_IMPL_HD REAL tegroup_impl_curve_FSUF(tegroup_activation kind, int half, REAL alpha, REAL x, REAL *slope) {
    REAL s, w = x, rate = 1, density;
    int rated = 0; /* rate is not 1 */
    switch (tegroup_impl_curve_of(kind)) {
    case TEGROUP_IMPL_CURVE_GELU:
        w = tegroup_impl_magnitude_FSUF(x);
        s = tegroup_impl_tail_FSUF(w, half, &density);
        *slope = x > 0 ? tegroup_impl_fma_FSUF(w, density, (REAL)1 - s) : tegroup_impl_fma_FSUF(-w, density, s);
        return tegroup_impl_fma_FSUF(-w, s, x <= 0 ? (REAL)0 : x);
    case TEGROUP_IMPL_CURVE_SITU: /* with the derivative s (1 - tanh^2) + value (1 - s), 1 - s as sigmoid(-x) */
        s = tegroup_impl_sigmoid_FSUF(x, half);
        w = tegroup_impl_mul_FSUF(tegroup_impl_soft_FSUF(alpha, x, &rate), s);
        *slope = tegroup_impl_fma_FSUF(w, tegroup_impl_sigmoid_FSUF(-x, half), tegroup_impl_mul_FSUF(rate, s));
        return w;
    case TEGROUP_IMPL_CURVE_RELU: *slope = 1; return x <= 0 ? (REAL)0 : x;
    case TEGROUP_IMPL_CURVE_IDENTITY: *slope = 1; return x;
    case TEGROUP_IMPL_CURVE_RELU_SQUARED:
        w = x <= 0 ? (REAL)0 : x;
        *slope = w + w;
        return tegroup_impl_mul_FSUF(w, w);
    case TEGROUP_IMPL_CURVE_GELU_TANH: /* 2 sqrt(2 / pi) (x + 0.044715 x^3); past 24 the sigmoid is 0 or 1 */
        w = tegroup_impl_at_most_FSUF(tegroup_impl_at_least_FSUF(x, -24), 24);
        s = tegroup_impl_mul_FSUF(w, w);
        rate = tegroup_impl_fma_FSUF(s, (REAL)0.21406444881780073, (REAL)1.5957691216057308);
        rated = 1;
        w = tegroup_impl_mul_FSUF(w, tegroup_impl_fma_FSUF(s, (REAL)0.07135481627260025, (REAL)1.5957691216057308));
        break;
    case TEGROUP_IMPL_CURVE_SILU_OF_ALPHA:
        w = tegroup_impl_mul_FSUF(alpha, x);
        rate = alpha;
        rated = 1;
        break;
    default: break;
    }
    s = tegroup_impl_sigmoid_FSUF(w, half);
    x = tegroup_impl_at_least_FSUF(x, -TEGROUP_IMPL_LARGEST_FSUF);
    w = (REAL)1 - s;
    *slope = tegroup_impl_fma_FSUF(tegroup_impl_mul_FSUF(tegroup_impl_at_most_FSUF(x, TEGROUP_IMPL_LARGEST_FSUF), s),
                                   rated ? tegroup_impl_mul_FSUF(rate, w) : w, s);
    return tegroup_impl_mul_FSUF(x, s);
}

/* What the kind gives for a gate and an up, which is not looked at without one; and, the other way, the gradients of
 * both from that of the result, returning the result again. alpha and limit: spelt out. half: gate and up were halves,
 * and what comes of them will be. A comparison that NaN decides takes it for inside, so NaN shows. Where
 * the gate counts for nothing, clamped or rectified, its gradient is 0 even if the other one is infinite, as torch's
 * is. */
TEGROUP_IMPL_HD REAL tegroup_impl_activation_grad_FSUF(tegroup_activation kind, int half, REAL alpha, REAL limit,
                                                       REAL gate, REAL up, REAL grad, REAL *grad_gate, REAL *grad_up) {
    const tegroup_impl_curve_kind curve = tegroup_impl_curve_of(kind);
    const int clamps = tegroup_impl_clamps(kind), soft = kind == TEGROUP_ACTIVATION_SITU_GLU,
              rectifies = curve == TEGROUP_IMPL_CURVE_RELU || curve == TEGROUP_IMPL_CURVE_RELU_SQUARED,
              gate_out = clamps && gate > limit, up_out = clamps && (up > limit || up < -limit);
    REAL up_slope = 1, slope, value = tegroup_impl_curve_FSUF(kind, half, alpha, gate_out ? limit : gate, &slope);
    if (!tegroup_impl_gated(kind)) up = 1;
    if (clamps) up = up > limit ? limit : up < -limit ? -limit : up;
    if (kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED) up = up + (REAL)1;
    if (soft) up = tegroup_impl_soft_FSUF(limit, up, &up_slope);
    *grad_gate =
        gate_out || (rectifies && gate <= 0) ? (REAL)0 : tegroup_impl_mul_FSUF(tegroup_impl_mul_FSUF(grad, up), slope);
    *grad_up = up_out ? (REAL)0 : tegroup_impl_mul_FSUF(grad, value);
    if (soft) *grad_up = tegroup_impl_mul_FSUF(*grad_up, up_slope);
    return tegroup_impl_mul_FSUF(value, up);
}
TEGROUP_IMPL_HD REAL tegroup_impl_activation_FSUF(tegroup_activation kind, int half, REAL alpha, REAL limit, REAL gate,
                                                  REAL up) {
    REAL grad_gate, grad_up;
    return tegroup_impl_activation_grad_FSUF(kind, half, alpha, limit, gate, up, 0, &grad_gate, &grad_up);
}
/* @end */
