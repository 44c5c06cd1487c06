/* ---- Activation formulas ---- */

/* Each operation is rounded by itself, or is one fused multiply-add where that is written: an activation in the epilogue of
 * a product gives the bits that the separate call gives. (A host compiler may fuse what it likes.) */
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

/* x, or the bound that it passes; anything for NaN, so who calls this multiplies by x once more. */
TEGROUP_IMPL_HD float tegroup_impl_bounded_f32(float x, float bound) {
#if defined(__CUDA_ARCH__)
    return fminf(fmaxf(x, -bound), bound);
#else
    return x < -bound ? -bound : x > bound ? bound : x;
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_bounded_f64(double x, double bound) {
    return x < -bound ? -bound : x > bound ? bound : x;
}

#if defined(__CUDA_ARCH__)
/* 2^high (1 + low ln 2): the hardware's power of two is at most 2 ULP off, and 0 below 2^-126. */
static __device__ inline float tegroup_impl_power(float high, float low, float add) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(high));
    return __fmaf_rn(power, __fmaf_rn(low, 0.6931471805599453f, 1.0f), add);
}
/* At most 1 ULP off; 0 below 2^-126. */
static __device__ inline float tegroup_impl_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

/* 1 / (1 + exp(-x)). In float at most 5 ULP off on the device and 3 on the host with glibc's expf (every float was tried);
 * below 2^-126 it may be 0. */
TEGROUP_IMPL_HD float tegroup_impl_sigmoid_f32(float x) {
#if defined(__CUDA_ARCH__)
    float high, low;
    x = tegroup_impl_bounded_f32(x, 128.0f);
    high = __fmul_rn(x, -1.442695021629333f);
    low = __fmaf_rn(x, -1.442695021629333f, -high);
    low = __fmaf_rn(x, -1.925963033500e-8f, low);
    return tegroup_impl_reciprocal(tegroup_impl_power(high, low, 1.0f));
#else
    return 1.0f / (1.0f + expf(-x));
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_sigmoid_f64(double x) { return 1.0 / (1.0 + exp(-x)); }

/* exp(-x x / 2) for |x| <= 15, with what rounding takes from x x. Below 2^-126 it may be 0. */
TEGROUP_IMPL_HD float tegroup_impl_gauss_f32(float x) {
#if defined(__CUDA_ARCH__)
    const float square = __fmul_rn(x, x), rest = __fmaf_rn(x, x, -square),
                high = __fmul_rn(square, -0.7213475108146667f);
    float low = __fmaf_rn(square, -0.7213475108146667f, -high);
    low = __fmaf_rn(square, -9.62981495563e-9f, low);
    low = __fmaf_rn(rest, -0.7213475108146667f, low);
    return tegroup_impl_power(high, low, 0.0f);
#else
    return (float)exp(-0.5 * x * x);
#endif
}

/* The standard normal distribution function and its density. With t = |x| and the density's exponential taken out, what is
 * left of the tail is smooth in (t - 4) / (t + 4): in float a polynomial through Chebyshev nodes, 0.3 units of roundoff off
 * up to t = 15, beyond which the tail is 0. The tail is taken as it is and never as 1 minus the rest: it keeps its digits.
 * In float at most 10 ULP off, the density 4 (every float was tried, on host and device); in double as erfc and exp are. */
TEGROUP_IMPL_HD float tegroup_impl_normal_f32(float x, float *density) {
    const float t = fabsf(tegroup_impl_bounded_f32(x, 15.0f)), gauss = tegroup_impl_gauss_f32(t);
#if defined(__CUDA_ARCH__)
    const float q = tegroup_impl_reciprocal(__fadd_rn(t, 4.0f));
#else
    const float q = 1.0f / (t + 4.0f);
#endif
    const float y = tegroup_impl_fma_f32(q, -8.0f, 1.0f);
    float p = -1.255583920283243e-4f;
    p = tegroup_impl_fma_f32(p, y, 1.8899652059189975e-4f);
    p = tegroup_impl_fma_f32(p, y, 1.5668816631659865e-3f);
    p = tegroup_impl_fma_f32(p, y, -3.5209727939218283e-3f);
    p = tegroup_impl_fma_f32(p, y, -7.525402586907148e-3f);
    p = tegroup_impl_fma_f32(p, y, 6.040618568658829e-2f);
    p = tegroup_impl_fma_f32(p, y, -1.8652330338954926e-1f);
    p = tegroup_impl_fma_f32(p, y, 3.8713669776916504e-1f);
    p = tegroup_impl_fma_f32(p, y, -6.078965663909912e-1f);
    p = tegroup_impl_fma_f32(p, y, 7.552851438522339e-1f);
    p = tegroup_impl_mul_f32(tegroup_impl_mul_f32(p, q), gauss);
    *density = tegroup_impl_mul_f32(gauss, 0.3989422804014327f);
    return x > 0 ? 1.0f - p : p;
}
TEGROUP_IMPL_HD double tegroup_impl_normal_f64(double x, double *density) {
    *density = 0.3989422804014327 * exp(-0.5 * x * x);
    return 0.5 * erfc(-0.7071067811865476 * x);
}

/* Gate and up in pairs, or one input an output? */
TEGROUP_IMPL_HD int tegroup_impl_gated(tegroup_activation kind) { return kind <= TEGROUP_ACTIVATION_SWIGLU_CLAMPED; }

/* The clamped kind's parameters, spelt out. */
TEGROUP_IMPL_HD double tegroup_impl_alpha(double alpha) { return alpha != 0 ? alpha : 1.702; }
TEGROUP_IMPL_HD double tegroup_impl_limit(double limit) { return limit != 0 ? limit : 7.0; }

/* The kinds that share a function of the gate, by one of them. */
TEGROUP_IMPL_HD tegroup_activation tegroup_impl_curve_of(tegroup_activation kind) {
    switch (kind) {
    case TEGROUP_ACTIVATION_SILU: return TEGROUP_ACTIVATION_SWIGLU;
    case TEGROUP_ACTIVATION_GELU: return TEGROUP_ACTIVATION_GEGLU;
    case TEGROUP_ACTIVATION_GELU_TANH: return TEGROUP_ACTIVATION_GEGLU_TANH;
    case TEGROUP_ACTIVATION_RELU: return TEGROUP_ACTIVATION_REGLU;
    default: return kind;
    }
}

/* A loop for every curve, so that the choice is made once for many elements: BODY(kind). */
#define TEGROUP_IMPL_BY_CURVE(kind, BODY)                                                                              \
    switch (tegroup_impl_curve_of(kind)) {                                                                             \
    case TEGROUP_ACTIVATION_GEGLU: BODY(TEGROUP_ACTIVATION_GEGLU) break;                                               \
    case TEGROUP_ACTIVATION_GEGLU_TANH: BODY(TEGROUP_ACTIVATION_GEGLU_TANH) break;                                     \
    case TEGROUP_ACTIVATION_REGLU: BODY(TEGROUP_ACTIVATION_REGLU) break;                                               \
    case TEGROUP_ACTIVATION_SWIGLU_CLAMPED: BODY(TEGROUP_ACTIVATION_SWIGLU_CLAMPED) break;                             \
    case TEGROUP_ACTIVATION_RELU_SQUARED: BODY(TEGROUP_ACTIVATION_RELU_SQUARED) break;                                 \
    case TEGROUP_ACTIVATION_IDENTITY: BODY(TEGROUP_ACTIVATION_IDENTITY) break;                                         \
    default: BODY(TEGROUP_ACTIVATION_SWIGLU) break;                                                                    \
    }

/* The same for the kinds with a gate, and for those without. */
#define TEGROUP_IMPL_BY_GATED(kind, BODY)                                                                              \
    switch (kind) {                                                                                                    \
    case TEGROUP_ACTIVATION_GEGLU: BODY(TEGROUP_ACTIVATION_GEGLU) break;                                               \
    case TEGROUP_ACTIVATION_GEGLU_TANH: BODY(TEGROUP_ACTIVATION_GEGLU_TANH) break;                                     \
    case TEGROUP_ACTIVATION_REGLU: BODY(TEGROUP_ACTIVATION_REGLU) break;                                               \
    case TEGROUP_ACTIVATION_SWIGLU_CLAMPED: BODY(TEGROUP_ACTIVATION_SWIGLU_CLAMPED) break;                             \
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
/* What an activation multiplies `up` by, and its derivative. x s, s = sigmoid(w), has the derivative s + x s w' (1 - s), and
 * (1 + tanh(z)) / 2 is sigmoid(2 z): no digits are lost where tanh comes close to -1. */
TEGROUP_IMPL_HD REAL tegroup_impl_curve_FSUF(tegroup_activation kind, REAL alpha, REAL x, REAL *slope) {
    REAL s, w = x, rate = 1, density;
    switch (tegroup_impl_curve_of(kind)) {
    case TEGROUP_ACTIVATION_GEGLU:
        s = tegroup_impl_normal_FSUF(x, &density);
        *slope = tegroup_impl_fma_FSUF(x, density, s);
        return tegroup_impl_mul_FSUF(x, s);
    case TEGROUP_ACTIVATION_REGLU: *slope = x <= 0 ? (REAL)0 : (REAL)1; return x <= 0 ? (REAL)0 : x;
    case TEGROUP_ACTIVATION_IDENTITY: *slope = 1; return x;
    case TEGROUP_ACTIVATION_RELU_SQUARED:
        w = x <= 0 ? (REAL)0 : x;
        *slope = w + w;
        return tegroup_impl_mul_FSUF(w, w);
    case TEGROUP_ACTIVATION_GEGLU_TANH: /* 2 sqrt(2 / pi) (x + 0.044715 x^3); past 24 the sigmoid is 0 or 1 */
        w = tegroup_impl_bounded_FSUF(x, 24);
        s = tegroup_impl_mul_FSUF(w, w);
        rate = tegroup_impl_fma_FSUF(s, (REAL)0.21406444881780073, (REAL)1.5957691216057308);
        w = tegroup_impl_mul_FSUF(w, tegroup_impl_fma_FSUF(s, (REAL)0.07135481627260025, (REAL)1.5957691216057308));
        break;
    case TEGROUP_ACTIVATION_SWIGLU_CLAMPED:
        w = tegroup_impl_mul_FSUF(alpha, x);
        rate = alpha;
        break;
    default: break;
    }
    s = tegroup_impl_sigmoid_FSUF(w);
    x = tegroup_impl_mul_FSUF(x, s);
    *slope = tegroup_impl_fma_FSUF(x, tegroup_impl_mul_FSUF(rate, (REAL)1 - s), s);
    return x;
}

/* What the kind gives for a gate and an up, which is not looked at without one; and, the other way, the gradients of both
 * from that of the result, returning the result again. alpha and limit are the clamped kind's. A comparison that NaN decides
 * takes it for inside, so NaN shows. */
TEGROUP_IMPL_HD REAL tegroup_impl_activation_grad_FSUF(tegroup_activation kind, REAL alpha, REAL limit, REAL gate,
                                                       REAL up, REAL grad, REAL *grad_gate, REAL *grad_up) {
    const int clamps = kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED, gate_out = clamps && gate > limit,
              up_out = clamps && (up > limit || up < -limit);
    REAL slope, value = tegroup_impl_curve_FSUF(kind, alpha, gate_out ? limit : gate, &slope);
    if (!tegroup_impl_gated(kind)) up = 1;
    if (clamps) up = (up > limit ? limit : up < -limit ? -limit : up) + (REAL)1;
    *grad_gate = gate_out ? (REAL)0 : tegroup_impl_mul_FSUF(tegroup_impl_mul_FSUF(grad, up), slope);
    *grad_up = up_out ? (REAL)0 : tegroup_impl_mul_FSUF(grad, value);
    return tegroup_impl_mul_FSUF(value, up);
}
TEGROUP_IMPL_HD REAL tegroup_impl_activation_FSUF(tegroup_activation kind, REAL alpha, REAL limit, REAL gate, REAL up) {
    REAL grad_gate, grad_up;
    return tegroup_impl_activation_grad_FSUF(kind, alpha, limit, gate, up, 0, &grad_gate, &grad_up);
}
/* @end */
