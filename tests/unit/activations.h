/* Activations in long double, from the formulas as their sources print them (torch's conventions for derivatives at kinks),
 * with what each result may be off by rounding theory. Shared by the tests of the CPU backend and of the GPU kernels. */
#ifndef TEGROUP_TESTS_ACTIVATIONS_H
#define TEGROUP_TESTS_ACTIVATIONS_H

#include "support.h"

static const tegroup_activation activations[] = {
    TEGROUP_ACTIVATION_SWIGLU, TEGROUP_ACTIVATION_GEGLU, TEGROUP_ACTIVATION_GEGLU_TANH, TEGROUP_ACTIVATION_REGLU, TEGROUP_ACTIVATION_SWIGLU_CLAMPED,
    TEGROUP_ACTIVATION_SILU, TEGROUP_ACTIVATION_GELU, TEGROUP_ACTIVATION_GELU_TANH, TEGROUP_ACTIVATION_RELU, TEGROUP_ACTIVATION_RELU_SQUARED,
    TEGROUP_ACTIVATION_IDENTITY};
static const char *const activation_names[] = {"SwiGLU", "GEGLU", "GEGLU tanh", "ReGLU", "clamped SwiGLU", "SiLU", "GELU", "GELU tanh", "ReLU", "squared ReLU", "identity"};
enum { ACTIVATIONS = sizeof activations / sizeof *activations };

SUPPORT int is_gated(tegroup_activation kind) { return kind <= TEGROUP_ACTIVATION_SWIGLU_CLAMPED; }

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
    const int clamps = kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED;
    if (alpha == 0) alpha = 1.702;
    if (limit == 0) limit = 7;
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
    const long double u = clamps ? (up > limit ? limit : up < -limit ? -limit : up) + 1 : is_gated(kind) ? up : 1;
    const long double outside = 4 * a.tiny * (1 + fabs(scale) + fabs(dy)) * (1 + fabsl(u)) * (1 + fabs(scale * dy)) * (1 + fabsl(slope));
    e.out.want = (double)(scale * value * u);
    e.out.bound = (double)(fabsl(scale * u) * (value_off + 4 * a.u * fabsl(value)) + outside);
    e.grad_gate.want = clamps && gate > limit ? 0 : (double)(scale * dy * u * slope);
    e.grad_gate.bound = (double)(fabsl(scale * dy * u) * (slope_off + 5 * a.u * fabsl(slope)) + outside);
    e.grad_up.want = clamps && (up > limit || up < -limit) ? 0 : (double)(scale * dy * value);
    e.grad_up.bound = (double)(fabs(scale * dy) * (value_off + 4 * a.u * fabsl(value)) + outside);
    e.term.want = (double)(dy * value * u);
    e.term.bound = (double)(fabsl(dy * u) * (value_off + 4 * a.u * fabsl(value)) + outside);
    return e;
}

/* At infinities and NaN, for a row_scale and a dy of 1: a function of the gate is its limit there, and products are IEEE 754's. */
typedef struct activation_beyond { double out, grad_gate, grad_up; } activation_beyond;

SUPPORT activation_beyond activation_expect_beyond(tegroup_activation kind, double alpha, double limit, double gate, double up) {
    const int clamps = kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED, squares = kind == TEGROUP_ACTIVATION_RELU_SQUARED,
              rectifies = squares || kind == TEGROUP_ACTIVATION_REGLU || kind == TEGROUP_ACTIVATION_RELU;
    if (limit == 0) limit = 7;
    const int shut = (clamps && gate > limit) || (rectifies && gate <= 0);
    const double x = clamps && gate > limit ? limit : gate, u = !is_gated(kind) ? 1 : clamps ? fmax(-limit, fmin(limit, up)) + 1 : up;
    double value, slope;
    activation_beyond e;
    if (isnan(x)) {
        value = NAN;
        slope = kind == TEGROUP_ACTIVATION_IDENTITY || (rectifies && !squares) ? 1 : (double)NAN; /* taken for inside */
    } else if (isinf(x)) {
        value = x > 0 || kind == TEGROUP_ACTIVATION_IDENTITY ? x : 0;
        slope = squares ? (x > 0 ? x : 0) : x > 0 || kind == TEGROUP_ACTIVATION_IDENTITY;
    } else {
        const activation_expected finite = activation_expect(kind, alpha, limit, arithmetic_of(TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F64, 0), x, clamps ? 0 : 1, 1, 1);
        value = finite.out.want;
        slope = finite.grad_gate.want;
    }
    e.out = value * (isnan(up) && is_gated(kind) ? up : u);
    e.grad_gate = shut ? 0 : slope * (isnan(up) && is_gated(kind) ? up : u);
    e.grad_up = clamps && (up > limit || up < -limit) ? 0 : value;
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
