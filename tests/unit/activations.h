/* Activations in long double, from the formulas as their sources print them (torch's conventions for derivatives at kinks),
 * with what each result may be off by rounding theory. Shared by the tests of the CPU backend and of the GPU kernels. */
#ifndef TEGROUP_TESTS_ACTIVATIONS_H
#define TEGROUP_TESTS_ACTIVATIONS_H

#include "support.h"

static const tegroup_activation activations[] = {
    TEGROUP_ACTIVATION_SWIGLU, TEGROUP_ACTIVATION_GEGLU, TEGROUP_ACTIVATION_GEGLU_TANH, TEGROUP_ACTIVATION_REGLU, TEGROUP_ACTIVATION_SWIGLU_CLAMPED,
    TEGROUP_ACTIVATION_SWIGLU_LIMITED, TEGROUP_ACTIVATION_SITU_GLU,
    TEGROUP_ACTIVATION_SILU, TEGROUP_ACTIVATION_GELU, TEGROUP_ACTIVATION_GELU_TANH, TEGROUP_ACTIVATION_RELU, TEGROUP_ACTIVATION_RELU_SQUARED,
    TEGROUP_ACTIVATION_IDENTITY};
static const char *const activation_names[] = {"SwiGLU", "GEGLU", "GEGLU tanh", "ReGLU", "clamped SwiGLU", "limited SwiGLU", "SiTU-GLU", "SiLU", "GELU", "GELU tanh", "ReLU", "squared ReLU", "identity"};
enum { ACTIVATIONS = sizeof activations / sizeof *activations };

SUPPORT int is_gated(tegroup_activation kind) { return kind <= TEGROUP_ACTIVATION_SITU_GLU; }
/* Kinds with alpha and limit: which gpt-oss, DeepSeek-V4 and Kimi-K3 have. */
SUPPORT int is_clamped(tegroup_activation kind) { return kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED || kind == TEGROUP_ACTIVATION_SWIGLU_LIMITED; }
SUPPORT int has_limit(tegroup_activation kind) { return is_clamped(kind) || kind == TEGROUP_ACTIVATION_SITU_GLU; }
SUPPORT double activation_alpha(tegroup_activation kind, double alpha) { return alpha != 0 ? alpha : kind == TEGROUP_ACTIVATION_SITU_GLU ? 4 : kind == TEGROUP_ACTIVATION_SWIGLU_LIMITED ? 1 : 1.702; }
SUPPORT double activation_limit(tegroup_activation kind, double limit) { return limit != 0 ? limit : kind == TEGROUP_ACTIVATION_SITU_GLU ? 25 : kind == TEGROUP_ACTIVATION_SWIGLU_LIMITED ? 10 : 7; }

/* One operation errs by u; a sigmoid by `sigmoid` u and its argument by `sigmoid_argument` u of it; a normal distribution function
 * by `normal` u, its density by `density` u, and these by x^2 times so much more; what is below `lost` may become 0, and `tiny` is
 * the smallest subnormal. */
typedef struct arithmetic { double u, sigmoid, sigmoid_argument, normal, normal_square, density, density_square, lost, tiny; } arithmetic;

/* In double, x^2 / 2 and x / sqrt(2) are rounded before exp and erfc. In float, log2(e) / 2 is, by 0.11 u of x^2, and on the device
 * exponents are, where input and output are halves. */
SUPPORT arithmetic arithmetic_of(tegroup_dtype input, tegroup_dtype output, int device) {
    arithmetic a;
    const int wide = input == TEGROUP_DTYPE_F64, half = device && tegroup_dtype_bits(input) == 16 && tegroup_dtype_bits(output) == 16;
    a.u = wide ? 0x1p-53 : 0x1p-24;
    a.sigmoid = device && !wide ? 8 : 5;
    a.sigmoid_argument = half ? 1.25 : 0;
    a.normal = wide ? 12 : device ? 20 : 16;
    a.normal_square = wide ? 2 : half ? 0.5 : 0;
    a.density = 10;
    a.density_square = wide ? 1 : half ? 0.625 : 0.125;
    a.lost = wide ? 0x1p-1022 : 0x1p-126;
    a.tiny = wide ? 0x1p-1074 : 0x1p-149;
    return a;
}

typedef struct real { double want, bound; } real;
typedef struct activation_expected { real out, grad_gate, grad_up, term; } activation_expected; /* term: of the gradient of row_scale */

SUPPORT activation_expected activation_expect(tegroup_activation kind, double alpha, double limit, arithmetic a, double gate, double up, double scale, double dy) {
    const long double pi = 3.14159265358979323846264338327950288L;
    const int clamps = is_clamped(kind), soft = kind == TEGROUP_ACTIVATION_SITU_GLU;
    alpha = activation_alpha(kind, alpha);
    limit = activation_limit(kind, limit);
    const long double x = clamps && gate > limit ? limit : gate, size = fabsl(x);
    long double value, slope, value_off = 0, slope_off = 0, steep = 1; /* in units of u, `lost` apart */
    activation_expected e;
    switch (kind) {
    case TEGROUP_ACTIVATION_REGLU: case TEGROUP_ACTIVATION_RELU:
        value = x > 0 ? x : 0;
        slope = x > 0;
        break;
    case TEGROUP_ACTIVATION_IDENTITY:
        value = x;
        slope = 1;
        break;
    case TEGROUP_ACTIVATION_RELU_SQUARED:
        value = x > 0 ? x * x : 0;
        slope = x > 0 ? 2 * x : 0;
        value_off = value;
        break;
    case TEGROUP_ACTIVATION_GEGLU: case TEGROUP_ACTIVATION_GELU: {
        const long double cdf = erfcl(-x / sqrtl(2)) / 2, density = expl(-x * x / 2) / sqrtl(2 * pi);
        value = x * cdf;
        slope = cdf + x * density;
        value_off = (a.normal + a.normal_square * x * x + 1) * size * cdf;
        slope_off = (a.normal + a.normal_square * x * x + 2) * cdf + (a.density + a.density_square * x * x + 2) * size * density;
        break;
    }
    case TEGROUP_ACTIVATION_SITU_GLU: { /* tanh errs by 8 u, and so do its derivative and what is left of 1 */
        const long double t = tanhl(x / alpha), s = 1 / (1 + expl(-x)), rest = 1 / (1 + expl(x));
        const long double s_off = a.sigmoid + a.sigmoid_argument * size * rest + 3;
        const long double rest_off = a.sigmoid + a.sigmoid_argument * size * s + 3; /* it is a sigmoid, too */
        const long double sech = 1 / coshl(x / alpha);
        value = alpha * t * s;
        slope = sech * sech * s + value * rest;
        value_off = (s_off + 10) * fabsl(value);
        slope_off = (s_off + 10) * sech * sech * (1 + size / alpha) * s + 12 * (1 - fabsl(t)) * s;
        slope_off += (s_off + rest_off + 12) * fabsl(value) * rest;
        break;
    }
    default: { /* x sigmoid(w); w is off by `off` of its own units */
        const int cubic = kind == TEGROUP_ACTIVATION_GEGLU_TANH || kind == TEGROUP_ACTIVATION_GELU_TANH;
        const long double root = sqrtl(2 / pi), w = cubic ? 2 * root * (x + 0.044715L * x * x * x) : clamps ? alpha * x : x;
        const long double rate = cubic ? 2 * root * (1 + 3 * 0.044715L * x * x) : clamps ? alpha : 1, off = (cubic ? 8 : clamps ? 2 : 0) + a.sigmoid_argument;
        const long double s = 1 / (1 + expl(-w)), rest = 1 / (1 + expl(w)), s_off = a.sigmoid + off * fabsl(w) * rest + 3;
        steep = rate;
        value = x * s;
        slope = s * (1 + x * rate * rest);
        value_off = s_off * size * s;
        slope_off = s_off * s * (1 + size * rate * (rest + s)) + (1 + 8 * rest) * size * rate * s; /* 1 - s errs by u and by s's error */
        if (cubic && size > 24) slope_off = s_off * s; /* where 1 - s is 0 */
        break;
    }
    }
    value_off = a.u * value_off + a.lost * size;
    slope_off = a.u * slope_off + a.lost * (2 + size * (1 + steep));
    const long double cut = up > limit ? limit : up < -limit ? -limit : up;
    const long double u = clamps ? cut + (kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED) : soft && !isinf(limit) ? limit * tanhl(up / limit) : is_gated(kind) ? up : 1;
    const long double flat = soft && !isinf(limit) ? powl(coshl(up / limit), -2) : 1, u_off = soft ? 12 * a.u * fabsl(u) : 0;
    const long double flat_off = soft && !isinf(limit) ? a.u * (12 * (1 + fabsl(up / limit)) * flat + 12 * (1 - fabsl(tanhl(up / limit)))) + 4 * a.lost : 0;
    const long double outside = 4 * a.tiny * (1 + fabs(scale) + fabs(dy)) * (1 + fabsl(u)) * (1 + fabs(scale * dy)) * (1 + fabsl(slope));
    e.out.want = (double)(scale * value * u);
    e.out.bound = (double)(fabsl(scale * u) * (value_off + 4 * a.u * fabsl(value)) + fabsl(scale * value) * u_off + outside);
    e.grad_gate.want = clamps && gate > limit ? 0 : (double)(scale * dy * u * slope);
    e.grad_gate.bound = (double)(fabsl(scale * dy * u) * (slope_off + 5 * a.u * fabsl(slope)) + fabsl(scale * dy * slope) * u_off + outside);
    e.grad_up.want = clamps && (up > limit || up < -limit) ? 0 : (double)(scale * dy * value * flat);
    e.grad_up.bound = (double)(fabs(scale * dy) * (flat * (value_off + 5 * a.u * fabsl(value)) + fabsl(value) * flat_off) + outside);
    e.term.want = (double)(dy * value * u);
    e.term.bound = (double)(fabsl(dy * u) * (value_off + 4 * a.u * fabsl(value)) + fabsl(dy * value) * u_off + outside);
    return e;
}

/* At infinities and NaN, for a row_scale and a dy of 1: a function of the gate is its limit there, and products are IEEE 754's. */
typedef struct activation_beyond { double out, grad_gate, grad_up; } activation_beyond;

SUPPORT activation_beyond activation_expect_beyond(tegroup_activation kind, double alpha, double limit, double gate, double up) {
    const int clamps = is_clamped(kind), soft = kind == TEGROUP_ACTIVATION_SITU_GLU, squares = kind == TEGROUP_ACTIVATION_RELU_SQUARED,
              rectifies = squares || kind == TEGROUP_ACTIVATION_REGLU || kind == TEGROUP_ACTIVATION_RELU;
    limit = activation_limit(kind, limit);
    const int shut = (clamps && gate > limit) || (rectifies && gate <= 0);
    const double x = clamps && gate > limit ? limit : gate, u = !is_gated(kind) ? 1 : clamps ? fmax(-limit, fmin(limit, up)) + (kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED) : soft && !isinf(limit) ? limit * tanh(up / limit) : up;
    double value, slope;
    activation_beyond e;
    if (isnan(x)) {
        value = NAN;
        slope = kind == TEGROUP_ACTIVATION_IDENTITY || (rectifies && !squares) ? 1 : (double)NAN; /* taken for inside */
    } else if (isinf(x)) {
        value = x > 0 || kind == TEGROUP_ACTIVATION_IDENTITY ? x : 0;
        if (soft && x > 0) value = activation_alpha(kind, alpha);
        slope = soft ? 0 : squares ? (x > 0 ? x : 0) : x > 0 || kind == TEGROUP_ACTIVATION_IDENTITY;
    } else {
        const activation_expected finite = activation_expect(kind, alpha, soft ? (double)INFINITY : limit, arithmetic_of(TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F64, 0), x, kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED ? 0 : 1, 1, 1);
        value = finite.out.want;
        slope = finite.grad_gate.want;
    }
    e.out = value * (isnan(up) && is_gated(kind) ? up : u);
    e.grad_gate = shut ? 0 : slope * (isnan(up) && is_gated(kind) ? up : u);
    e.grad_up = clamps && (up > limit || up < -limit) ? 0 : soft && !isinf(limit) ? value * pow(cosh(up / limit), -2) : value;
    return e;
}

/* The same infinity, both NaN, or as near as halves are. */
SUPPORT int same_beyond(double got, double want) {
    if (isnan(want) || isinf(want)) return isnan(want) ? isnan(got) : got == want;
    return fabs(got - want) <= 0x1p-7 * fabs(want) + 1e-6;
}
static const double gates_beyond[] = {(double)INFINITY, -(double)INFINITY, (double)NAN, 2, -2}, ups_beyond[] = {2, -3, 0.5, 0, 1, (double)INFINITY, -(double)INFINITY, (double)NAN};
enum { GATES_BEYOND = sizeof gates_beyond / sizeof *gates_beyond, UPS_BEYOND = sizeof ups_beyond / sizeof *ups_beyond };

#endif
