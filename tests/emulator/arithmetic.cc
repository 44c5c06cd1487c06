/* Instructions that work on registers alone, lane by lane. */
#include "warp.h"
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <string>

namespace emulator {
namespace {

/* ---- numbers ---- */

template <typename T, typename S> T as(S x) { /* the same bits */
    static_assert(sizeof(T) == sizeof(S), "as many bits");
    T y;
    memcpy(&y, &x, sizeof y);
    return y;
}

/* FP32 arithmetic has one NaN on NVIDIA's GPUs; that of FP64 is left as it is. */
float with_nan(float x) { return x != x ? as<float>(0x7fffffffu) : x; }
double with_nan(double x) { return x; }

/* To a format with that many bits of exponent and mantissa, nearest even; infinity where it is too large. */
uint32_t narrow(float x, int exponent_bits, int mantissa_bits) {
    const uint32_t bits = as<uint32_t>(x), sign = bits >> 31 << (exponent_bits + mantissa_bits);
    const int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
    const double magnitude = std::fabs((double)x);
    if (std::isnan(x)) return (uint32_t)((1 << (exponent_bits + mantissa_bits)) - 1); /* 0x7fff */
    if (std::isinf(x)) return sign | (uint32_t)top << mantissa_bits;
    if (magnitude == 0) return sign;
    int e;
    std::frexp(magnitude, &e);
    e = std::max(e - 1, 1 - bias);
    const double steps = std::nearbyint(std::ldexp(magnitude, mantissa_bits - e)); /* nearest even */
    uint32_t code = (uint32_t)((double)((int64_t)(e + bias - 1) << mantissa_bits) + steps);
    if (code >= (uint32_t)top << mantissa_bits) code = (uint32_t)top << mantissa_bits;
    return sign | code;
}
uint32_t to_f16(float x) { return narrow(x, 5, 10); }
uint32_t to_bf16(float x) { return narrow(x, 8, 7); }
uint32_t to_fp8(float x, int exponent_bits, int mantissa_bits, uint32_t largest) { /* saturating */
    if (std::isnan(x)) return 0x7f;
    const uint32_t sign = as<uint32_t>(x) >> 31 << 7;
    const double magnitude = std::fabs((double)x);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    if (magnitude == 0) return sign;
    if (std::isinf(x)) return sign | largest;
    int e;
    std::frexp(magnitude, &e);
    e = std::max(e - 1, 1 - bias);
    const double steps = std::nearbyint(std::ldexp(magnitude, mantissa_bits - e));
    const double number = (double)((int64_t)(e + bias - 1) << mantissa_bits) + steps;
    return sign | (number > largest ? largest : (uint32_t)number);
}
float from_f16(uint32_t h) {
    const uint32_t e = h >> 10 & 31, m = h & 1023;
    const float x = e == 31 ? (m ? NAN : INFINITY)
                    : e     ? std::ldexp(1024.0f + (float)m, (int)e - 25)
                            : std::ldexp((float)m, -24);
    return h >> 15 & 1 ? -x : x;
}
float from_bf16(uint32_t h) { return as<float>(h << 16); }
} // namespace

float from_e4m3(uint32_t c) {
    const uint32_t e = c >> 3 & 15, m = c & 7;
    const float x = (c & 127) == 127 ? NAN : e ? std::ldexp(8.0f + (float)m, (int)e - 10) : std::ldexp((float)m, -9);
    return c >> 7 & 1 ? -x : x;
}
float from_e5m2(uint32_t c) { return from_f16((c & 255) << 8); }
float float_of_f16(uint32_t h) { return from_f16(h & 0xffff); }
float float_of_bf16(uint32_t h) { return from_bf16(h & 0xffff); }

namespace {

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

template <typename T> bool is_negative(T a) {
    if constexpr (std::is_signed<T>::value) return a < 0;
    else return (void)a, false;
}
template <typename T> T smaller(T a, T b) { return a < b ? a : b; }
template <typename T> T larger(T a, T b) { return a > b ? a : b; }
template <typename T> T smaller_number(T a, T b) {
    if (std::isnan(a)) return std::isnan(b) ? (sizeof(T) == 4 ? (T)with_nan(NAN) : b) : b;
    if (std::isnan(b)) return a;
    return a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
}
template <typename T> T larger_number(T a, T b) {
    if (std::isnan(a)) return std::isnan(b) ? (sizeof(T) == 4 ? (T)with_nan(NAN) : b) : b;
    if (std::isnan(b)) return a;
    return a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
}

/* ---- lanes ---- */

template <typename T> struct store_of { typedef T type; };
template <> struct store_of<uint16_t> { typedef uint32_t type; };
template <> struct store_of<int16_t> { typedef uint32_t type; };
template <typename T> using stored = typename store_of<T>::type;
template <typename T> stored<T> kept(T x) {
    if constexpr (sizeof(T) == 2) return (uint16_t)x;
    else return x;
}

template <typename D, typename A, auto F> void unary(warp &w, const instruction &i, lanes mask) {
    auto *d = w.at<stored<D>>(i.d);
    const auto *a = w.at<stored<A>>(i.a);
    each(mask, [&](int l) { d[l] = kept<D>(F((A)a[l])); });
}
template <typename D, typename A, typename B, auto F> void binary(warp &w, const instruction &i, lanes mask) {
    auto *d = w.at<stored<D>>(i.d);
    const auto *a = w.at<stored<A>>(i.a);
    const auto *b = w.at<stored<B>>(i.b);
    each(mask, [&](int l) { d[l] = kept<D>(F((A)a[l], (B)b[l])); });
}
template <typename D, typename A, typename B, typename C, auto F>
void ternary(warp &w, const instruction &i, lanes mask) {
    auto *d = w.at<stored<D>>(i.d);
    const auto *a = w.at<stored<A>>(i.a);
    const auto *b = w.at<stored<B>>(i.b);
    const auto *c = w.at<stored<C>>(i.c);
    each(mask, [&](int l) { d[l] = kept<D>(F((A)a[l], (B)b[l], (C)c[l])); });
}
template <typename T, auto F> void compare(warp &w, const instruction &i, lanes mask) {
    const auto *a = w.at<stored<T>>(i.a);
    const auto *b = w.at<stored<T>>(i.b);
    lanes found = 0;
    each(mask, [&](int l) { found |= (lanes)F((T)a[l], (T)b[l]) << l; });
    lanes &d = *w.at<lanes>(i.d);
    d = (d & ~mask) | found;
}
template <typename T> void select(warp &w, const instruction &i, lanes mask) {
    auto *d = w.at<T>(i.d);
    const auto *a = w.at<T>(i.a), *b = w.at<T>(i.b);
    const lanes p = w.predicate(i.c);
    each(mask, [&](int l) { d[l] = p >> l & 1 ? a[l] : b[l]; });
}
template <auto F> void predicates(warp &w, const instruction &i, lanes mask) {
    lanes &d = *w.at<lanes>(i.d);
    const lanes a = w.predicate(i.a), b = i.b.width ? w.predicate(i.b) : 0;
    d = (d & ~mask) | (F(a, b) & mask);
}
template <typename T> void mov(warp &w, const instruction &i, lanes mask) {
    T *d = w.at<T>(i.d);
    const T *a = w.at<T>(i.a);
    each(mask, [&](int l) { d[l] = a[l]; });
}
void mov_between(warp &w, const instruction &i, lanes mask) { EACH_LANE(l, mask) w.set(i.d, l, w.value(i.a, l)); }

/* cvt of integers: number = bits of the source type, negative if signed; more = likewise of the result. */
void convert_integers(warp &w, const instruction &i, lanes mask) {
    if (i.d.width == 64 && i.a.width == 32 && std::abs((int)i.number) == 32 && std::abs((int)i.more) == 64) {
        uint64_t *d = w.at<uint64_t>(i.d);
        const uint32_t *a = w.at<uint32_t>(i.a);
        if (i.number < 0) each(mask, [&](int l) { d[l] = (uint64_t)(int64_t)(int32_t)a[l]; });
        else each(mask, [&](int l) { d[l] = a[l]; });
        return;
    }
    const int from = (int)i.number, to = (int)i.more, shift = 64 - std::abs(from), back = 64 - std::abs(to);
    EACH_LANE(l, mask) {
        uint64_t x = w.value(i.a, l) << shift;
        x = from < 0 ? (uint64_t)((int64_t)x >> shift) : x >> shift;
        if (back) x = to < 0 ? (uint64_t)((int64_t)(x << back) >> back) : x << back >> back;
        w.set(i.d, l, x);
    }
}
template <typename D, typename A, auto F> void convert(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask) {
        const uint64_t bits = w.value(i.a, l);
        A a;
        memcpy(&a, &bits, sizeof a);
        const D d = F(a);
        uint64_t result = 0;
        memcpy(&result, &d, sizeof d);
        if (std::is_signed<D>::value && std::is_integral<D>::value) result = (uint64_t)(int64_t)d;
        w.set(i.d, l, result);
    }
}

/* Two halves in 32 bits, the first operand on top. */
template <uint32_t (*F)(float)> void two_halves(warp &w, const instruction &i, lanes mask) {
    auto *d = w.at<uint32_t>(i.d);
    const float *a = w.at<float>(i.a), *b = w.at<float>(i.b);
    each(mask, [&](int l) { d[l] = F(a[l]) << 16 | (F(b[l]) & 0xffff); });
}
template <float (*FROM)(uint32_t), uint32_t (*TO)(float), auto F>
void halves(warp &w, const instruction &i, lanes mask) {
    auto *d = w.at<uint32_t>(i.d);
    const auto *a = w.at<uint32_t>(i.a), *b = w.at<uint32_t>(i.b), *c = i.c.width ? w.at<uint32_t>(i.c) : b;
    each(mask, [&](int l) {
        const uint32_t low = TO(F(FROM(a[l] & 0xffff), FROM(b[l] & 0xffff), FROM(c[l] & 0xffff))),
                       high = TO(F(FROM(a[l] >> 16), FROM(b[l] >> 16), FROM(c[l] >> 16)));
        d[l] = high << 16 | (low & 0xffff);
    });
}
float times(float a, float b, float) { return a * b; }
float plus(float a, float b, float) { return a + b; }
/* a * b + c to FP32 with the last bit set where it is not exact, so that rounding it once more to 11 bits or 8 is
 * right. */
float sum_to_odd(float a, float b, float c) {
    const double product = (double)a * b, sum = product + c, back = sum - product,
                 error = (product - (sum - back)) + ((double)c - back);
    if (!std::isfinite(sum)) return with_nan((float)sum);
    float near = (float)sum;
    if ((double)near == sum && error == 0) return near;
    const bool is_below = std::fabs((double)near) < std::fabs(sum) || ((double)near == sum && (error > 0) == (sum > 0));
    if (!is_below) near = std::nextafter(near, 0.0f);
    return as<float>(as<uint32_t>(near) | 1);
}
template <bool NAN_COUNTS> float xorsign(float a, float b, float) {
    const bool negative = std::signbit(a) != std::signbit(b);
    const float x = std::fabs(a), y = std::fabs(b);
    if (NAN_COUNTS && (std::isnan(x) || std::isnan(y))) return with_nan(NAN);
    const float z = larger_number(x, y);
    return std::isnan(z) ? z : std::copysign(z, negative ? -1.0f : 1.0f);
}

void pack(warp &w, const instruction &i, lanes mask) { /* mov d, {low, high} or {a, b, c, d} */
    const auto &parts = i.operands[1].items;
    const int each_bits = (int)(i.d.width / (int)parts.size());
    EACH_LANE(l, mask) {
        uint64_t x = 0;
        for (size_t p = 0; p < parts.size(); p++)
            x |= (w.value(parts[p].value, l)
                  & (each_bits == 32   ? 0xffffffffull
                     : each_bits == 16 ? 0xffff
                                       : 0xff))
                 << (each_bits * (int)p);
        w.set(i.d, l, x);
    }
}
void unpack(warp &w, const instruction &i, lanes mask) {
    const auto &parts = i.operands[0].items;
    const int each_bits = (int)(i.number / (int64_t)parts.size());
    EACH_LANE(l, mask) {
        const uint64_t x = w.value(i.a, l);
        for (size_t p = 0; p < parts.size(); p++)
            w.set(parts[p].value, l,
                  x >> (each_bits * (int)p)
                      & (each_bits == 32   ? 0xffffffffull
                         : each_bits == 16 ? 0xffff
                                           : 0xff));
    }
}

/* a, b and two more operands: bfi. */
template <typename T> void insert_bits(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask) {
        const uint32_t at = (uint32_t)w.value(i.c, l) & 255, count = (uint32_t)w.value(i.operands[4].value, l) & 255;
        const uint32_t bits = sizeof(T) * 8;
        T field = count >= bits ? ~(T)0 : ((T)1 << count) - 1;
        field = at >= bits ? 0 : (T)(field << at);
        const T a = at >= bits ? 0 : (T)((T)w.value(i.a, l) << at), b = (T)w.value(i.b, l);
        w.set(i.d, l, (T)((b & ~field) | (a & field)));
    }
}
template <typename T> void extract_bits(warp &w, const instruction &i, lanes mask) {
    typedef typename std::make_unsigned<T>::type U;
    const int bits = sizeof(T) * 8;
    EACH_LANE(l, mask) {
        const int at = (int)(w.value(i.b, l) & 255), count = (int)(w.value(i.c, l) & 255);
        const U a = (U)w.value(i.a, l);
        const int sign_at = std::min(at + count - 1, bits - 1);
        const bool negative = std::is_signed<T>::value && count > 0 && (a >> sign_at & 1);
        U x = negative ? ~(U)0 : 0;
        for (int n = 0; n < bits && n < count; n++) {
            const U bit = at + n < bits ? a >> (at + n) & 1 : (U)negative;
            x = (U)((x & ~((U)1 << n)) | bit << n);
        }
        w.set(i.d, l, x);
    }
}
uint32_t permuted(uint32_t a, uint32_t b, uint32_t how) {
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int n = 0; n < 4; n++) {
        const uint32_t pick = how >> (4 * n) & 15;
        uint32_t byte = (uint32_t)(all >> (pick & 7) * 8) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        d |= byte << (8 * n);
    }
    return d;
}
uint32_t reversed(uint32_t a) {
    uint32_t d = 0;
    for (int n = 0; n < 32; n++) d |= (a >> n & 1) << (31 - n);
    return d;
}
template <int MODE, typename T> T rounded(T (*f)(T, T), T a, T b) {
    std::fesetround(MODE);
    volatile T x = a, y = b;
    volatile T z = f(x, y);
    std::fesetround(FE_TONEAREST);
    return z;
}
float sum_f(float a, float b) { return a + b; }
float product_f(float a, float b) { return a * b; }
float saturated_f(float x) { return std::isnan(x) ? 0.0f : std::min(std::max(x, 0.0f), 1.0f); }
float fma_down(float a, float b, float c) {
    std::fesetround(FE_DOWNWARD);
    volatile float x = a, y = b, z = c;
    volatile float d = std::fma(x, y, z);
    std::fesetround(FE_TONEAREST);
    return d;
}

struct entry {
    const char *name;
    handler run;
};

#define ONE(name, D, A, expression)                                                                                    \
    {                                                                                                                  \
        name, unary<D, A, [](A a) { return (D)(expression); }>                                                         \
    }
#define TWO(name, D, A, B, expression)                                                                                 \
    {                                                                                                                  \
        name, binary<D, A, B, [](A a, B b) { return (D)(expression); }>                                                \
    }
#define THREE(name, D, A, B, C, expression)                                                                            \
    {                                                                                                                  \
        name, ternary<D, A, B, C, [](A a, B b, C c) { return (D)(expression); }>                                       \
    }
#define COMPARE(name, T, expression)                                                                                   \
    {                                                                                                                  \
        name, compare<T, [](T a, T b) { return (bool)(expression); }>                                                  \
    }
#define INTEGER(suffix, T, U)                                                                                          \
    TWO("add." suffix, T, T, T, (U)a + (U)b), TWO("sub." suffix, T, T, T, (U)a - (U)b),                                \
        TWO("mul.lo." suffix, T, T, T, (U)((U)a * (uint64_t)(U)b)), TWO("min." suffix, T, T, T, smaller(a, b)),        \
        TWO("max." suffix, T, T, T, larger(a, b)),                                                                     \
        THREE("mad.lo." suffix, T, T, T, T, (U)((U)a * (uint64_t)(U)b + (U)c)),                                        \
        TWO("div." suffix, T, T, T,                                                                                    \
            b == 0                                     ? (T)-1                                                         \
            : (b == (T)-1 && std::is_signed<T>::value) ? (T)(0 - (U)a)                                                 \
                                                       : (T)(a / b)),                                                  \
        TWO("rem." suffix, T, T, T,                                                                                    \
            b == 0                                     ? a                                                             \
            : (b == (T)-1 && std::is_signed<T>::value) ? (T)0                                                          \
                                                       : (T)(a % b)),                                                  \
        COMPARE("setp.eq." suffix, T, a == b), COMPARE("setp.ne." suffix, T, a != b),                                  \
        COMPARE("setp.lt." suffix, T, a < b), COMPARE("setp.le." suffix, T, a <= b),                                   \
        COMPARE("setp.gt." suffix, T, a > b), COMPARE("setp.ge." suffix, T, a >= b),                                   \
        ONE("neg." suffix, T, T, 0 - (U)a), ONE("abs." suffix, T, T, is_negative(a) ? (T)(0 - (U)a) : a),              \
        TWO("shr." suffix, T, T, uint32_t, b >= sizeof(T) * 8 ? (is_negative(a) ? (T)-1 : (T)0) : (T)(a >> b))
#define BITS(suffix, T)                                                                                                \
    TWO("and." suffix, T, T, T, a &b), TWO("or." suffix, T, T, T, a | b), TWO("xor." suffix, T, T, T, a ^ b),          \
        ONE("not." suffix, T, T, ~a), TWO("shl." suffix, T, T, uint32_t, b >= sizeof(T) * 8 ? (T)0 : (T)(a << b)),     \
        TWO("shr." suffix, T, T, uint32_t, b >= sizeof(T) * 8 ? (T)0 : (T)(a >> b)),                                   \
        COMPARE("setp.eq." suffix, T, a == b), COMPARE("setp.ne." suffix, T, a != b)
/* Of 32 bits, with a carry or a borrow in, out or both. */
enum { ADD, SUB, MAD_LOW, MAD_HIGH };
template <int OP, bool READS, bool WRITES> void carries(warp &w, const instruction &i, lanes mask) {
    for (int l = 0; l < 32; l++) {
        if (!(mask >> l & 1)) continue;
        const auto in = [&](size_t n) { return (uint64_t)(uint32_t)w.value(i.operands[n].value, l); };
        const uint64_t carry = READS ? w.carry >> l & 1 : 0, a = in(1), b = in(2);
        const uint64_t x = OP == ADD   ? a + b + carry
                           : OP == SUB ? a - b - carry
                                       : (OP == MAD_LOW ? (uint32_t)(a * b) : a * b >> 32) + in(3) + carry;
        w.set(i.operands[0].value, l, (uint32_t)x);
        if (WRITES) w.carry = (w.carry & ~(1u << l)) | (lanes)(x >> 32 & 1) << l;
    }
}
#define CARRIES(name, op)                                                                                              \
    {name ".cc.u32", carries<op, false, true>}, {name "c.u32", carries<op, true, false>},                              \
        {name "c.cc.u32", carries<op, true, true>}

#define REAL(suffix, T)                                                                                                \
    TWO("add." suffix, T, T, T, with_nan(a + b)), TWO("sub." suffix, T, T, T, with_nan(a - b)),                        \
        TWO("mul." suffix, T, T, T, with_nan(a *b)), TWO("div." suffix, T, T, T, with_nan(a / b)),                     \
        TWO("div.full." suffix, T, T, T, with_nan(a / b)), TWO("div.approx." suffix, T, T, T, with_nan(a / b)),        \
        TWO("min." suffix, T, T, T, smaller_number(a, b)), TWO("max." suffix, T, T, T, larger_number(a, b)),           \
        ONE("neg." suffix, T, T, -a),                                                                                  \
        TWO("max.NaN." suffix, T, T, T, std::isnan(a) || std::isnan(b) ? with_nan((T)NAN) : larger_number(a, b)),      \
        TWO("min.NaN." suffix, T, T, T, std::isnan(a) || std::isnan(b) ? with_nan((T)NAN) : smaller_number(a, b)),     \
        ONE("abs." suffix, T, T, std::fabs(a)), THREE("fma." suffix, T, T, T, T, with_nan(std::fma(a, b, c))),         \
        TWO("copysign." suffix, T, T, T, std::copysign(b, a)), ONE("sqrt." suffix, T, T, with_nan(std::sqrt(a))),      \
        ONE("sqrt.approx." suffix, T, T, with_nan(std::sqrt(a))), ONE("rcp." suffix, T, T, with_nan(1 / a)),           \
        ONE("rcp.approx." suffix, T, T, with_nan(1 / a)),                                                              \
        ONE("rsqrt.approx." suffix, T, T, with_nan(1 / std::sqrt(a))),                                                 \
        ONE("ex2.approx." suffix, T, T, with_nan(std::exp2(a))),                                                       \
        ONE("lg2.approx." suffix, T, T, with_nan(std::log2(a))), COMPARE("setp.eq." suffix, T, a == b),                \
        COMPARE("setp.ne." suffix, T, a != b && !std::isnan(a) && !std::isnan(b)),                                     \
        COMPARE("setp.lt." suffix, T, a < b), COMPARE("setp.le." suffix, T, a <= b),                                   \
        COMPARE("setp.gt." suffix, T, a > b), COMPARE("setp.ge." suffix, T, a >= b),                                   \
        COMPARE("setp.equ." suffix, T, !(a < b || a > b)), COMPARE("setp.neu." suffix, T, a != b),                     \
        COMPARE("setp.ltu." suffix, T, !(a >= b)), COMPARE("setp.leu." suffix, T, !(a > b)),                           \
        COMPARE("setp.gtu." suffix, T, !(a <= b)), COMPARE("setp.geu." suffix, T, !(a < b)),                           \
        COMPARE("setp.nan." suffix, T, std::isnan(a) || std::isnan(b)),                                                \
        COMPARE("setp.num." suffix, T, !std::isnan(a) && !std::isnan(b))

const entry table[] = {
    INTEGER("u16", uint16_t, uint16_t),
    INTEGER("s16", int16_t, uint16_t),
    INTEGER("u32", uint32_t, uint32_t),
    INTEGER("s32", int32_t, uint32_t),
    INTEGER("u64", uint64_t, uint64_t),
    INTEGER("s64", int64_t, uint64_t),
    BITS("b16", uint16_t),
    BITS("b32", uint32_t),
    BITS("b64", uint64_t),
    REAL("f32", float),
    REAL("f64", double),
    TWO("mul.sat.f32", float, float, float, saturated_f(a *b)),
    THREE("fma.sat.f32", float, float, float, float, saturated_f(std::fma(a, b, c))),
    TWO("mul.hi.s32", int32_t, int32_t, int32_t, (int64_t)a *b >> 32),
    TWO("mul.hi.u32", uint32_t, uint32_t, uint32_t, (uint64_t)a *b >> 32),
    TWO("mul.hi.s64", int64_t, int64_t, int64_t, (__int128)a *b >> 64),
    TWO("mul.hi.u64", uint64_t, uint64_t, uint64_t, (unsigned __int128)a *b >> 64),
    TWO("mul.wide.s32", int64_t, int32_t, int32_t, (int64_t)a *b),
    TWO("mul.wide.u32", uint64_t, uint32_t, uint32_t, (uint64_t)a *b),
    TWO("mul.wide.s16", int32_t, int16_t, int16_t, (int32_t)a *b),
    TWO("mul.wide.u16", uint32_t, uint16_t, uint16_t, (uint32_t)a *b),
    THREE("mad.wide.s32", int64_t, int32_t, int32_t, int64_t, (int64_t)a *b + c),
    THREE("mad.wide.u32", uint64_t, uint32_t, uint32_t, uint64_t, (uint64_t)a *b + c),
    TWO("add.rz.f32", float, float, float, rounded<FE_TOWARDZERO>(sum_f, a, b)),
    TWO("mul.rz.f32", float, float, float, rounded<FE_TOWARDZERO>(product_f, a, b)),
    TWO("mul.rp.f32", float, float, float, rounded<FE_UPWARD>(product_f, a, b)),
    THREE("fma.rm.f32", float, float, float, float, fma_down(a, b, c)),
    TWO("max.u16x2", uint32_t, uint32_t, uint32_t, larger(a >> 16, b >> 16) << 16 | larger(a & 0xffff, b & 0xffff)),
    TWO("min.u16x2", uint32_t, uint32_t, uint32_t, smaller(a >> 16, b >> 16) << 16 | smaller(a & 0xffff, b & 0xffff)),
    ONE("ex2.approx.ftz.f32", float, float, with_nan(flushed(std::exp2(flushed(a))))),
    ONE("rcp.approx.ftz.f32", float, float, with_nan(flushed(1 / flushed(a)))),
    ONE("rcp.approx.ftz.f64", double, double, 1 / a),
    ONE("popc.b32", uint32_t, uint32_t, __builtin_popcount(a)),
    ONE("popc.b64", uint32_t, uint64_t, __builtin_popcountll(a)),
    ONE("clz.b32", uint32_t, uint32_t, a ? __builtin_clz(a) : 32),
    ONE("clz.b64", uint32_t, uint64_t, a ? __builtin_clzll(a) : 64),
    ONE("brev.b32", uint32_t, uint32_t, reversed(a)),
    ONE("bfind.shiftamt.u32", uint32_t, uint32_t, a ? __builtin_clz(a) : ~0u),
    ONE("bfind.u32", uint32_t, uint32_t, a ? 31 - __builtin_clz(a) : ~0u),
    THREE("prmt.b32", uint32_t, uint32_t, uint32_t, uint32_t, permuted(a, b, c)),
    THREE("shf.l.wrap.b32", uint32_t, uint32_t, uint32_t, uint32_t, ((uint64_t)b << 32 | a) << (c & 31) >> 32),
    THREE("shf.r.wrap.b32", uint32_t, uint32_t, uint32_t, uint32_t, ((uint64_t)b << 32 | a) >> (c & 31)),
    {"bfi.b32", insert_bits<uint32_t>},
    {"bfi.b64", insert_bits<uint64_t>},
    {"bfe.u32", extract_bits<uint32_t>},
    {"bfe.s32", extract_bits<int32_t>},
    {"bfe.u64", extract_bits<uint64_t>},
    {"bfe.s64", extract_bits<int64_t>},
    {"selp.b16", select<uint32_t>},
    {"selp.u16", select<uint32_t>},
    {"selp.s16", select<uint32_t>},
    {"selp.b32", select<uint32_t>},
    {"selp.u32", select<uint32_t>},
    {"selp.s32", select<uint32_t>},
    {"selp.f32", select<uint32_t>},
    {"selp.b64", select<uint64_t>},
    {"selp.u64", select<uint64_t>},
    {"selp.s64", select<uint64_t>},
    {"selp.f64", select<uint64_t>},
    {"and.pred", predicates<[](lanes a, lanes b) { return a & b; }>},
    {"or.pred", predicates<[](lanes a, lanes b) { return a | b; }>},
    {"xor.pred", predicates<[](lanes a, lanes b) { return a ^ b; }>},
    {"not.pred", predicates<[](lanes a, lanes) { return ~a; }>},
    {"mov.pred", predicates<[](lanes a, lanes) { return a; }>},
    {"cvt.rn.f16x2.f32", two_halves<to_f16>},
    {"cvt.rn.bf16x2.f32", two_halves<to_bf16>},
    CARRIES("add", ADD),
    CARRIES("sub", SUB),
    {"mad.lo.cc.u32", carries<MAD_LOW, false, true>},
    {"madc.lo.u32", carries<MAD_LOW, true, false>},
    {"madc.lo.cc.u32", carries<MAD_LOW, true, true>},
    {"mad.hi.cc.u32", carries<MAD_HIGH, false, true>},
    {"madc.hi.u32", carries<MAD_HIGH, true, false>},
    {"madc.hi.cc.u32", carries<MAD_HIGH, true, true>},
    {"mul.f16x2", halves<float_of_f16, to_f16, times>},
    {"mul.bf16x2", halves<float_of_bf16, to_bf16, times>},
    {"add.f16x2", halves<float_of_f16, to_f16, plus>},
    {"add.bf16x2", halves<float_of_bf16, to_bf16, plus>},
    {"fma.f16x2", halves<float_of_f16, to_f16, sum_to_odd>},
    {"fma.bf16x2", halves<float_of_bf16, to_bf16, sum_to_odd>},
    {"max.NaN.xorsign.abs.bf16x2", halves<float_of_bf16, to_bf16, xorsign<true>>},
    {"max.NaN.xorsign.abs.f16x2", halves<float_of_f16, to_f16, xorsign<true>>},
    {"max.xorsign.abs.bf16x2", halves<float_of_bf16, to_bf16, xorsign<false>>},
    {"max.xorsign.abs.f16x2", halves<float_of_f16, to_f16, xorsign<false>>},
    {"cvt.f64.f32", convert<double, float, [](float a) { return (double)a; }>},
    {"cvt.rn.f32.f64", convert<float, double, [](double a) { return (float)a; }>},
    {"cvt.rn.f32.s32", convert<float, int32_t, [](int32_t a) { return (float)a; }>},
    {"cvt.rn.f32.u32", convert<float, uint32_t, [](uint32_t a) { return (float)a; }>},
    {"cvt.rn.f32.s64", convert<float, int64_t, [](int64_t a) { return (float)a; }>},
    {"cvt.rn.f32.u64", convert<float, uint64_t, [](uint64_t a) { return (float)a; }>},
    {"cvt.rn.f32.u16", convert<float, uint16_t, [](uint16_t a) { return (float)a; }>},
    {"cvt.rn.f32.s16", convert<float, int16_t, [](int16_t a) { return (float)a; }>},
    {"cvt.rn.f64.s32", convert<double, int32_t, [](int32_t a) { return (double)a; }>},
    {"cvt.rn.f64.u32", convert<double, uint32_t, [](uint32_t a) { return (double)a; }>},
    {"cvt.rn.f64.s64", convert<double, int64_t, [](int64_t a) { return (double)a; }>},
    {"cvt.rn.f64.u64", convert<double, uint64_t, [](uint64_t a) { return (double)a; }>},
    {"cvt.rni.f32.f32", convert<float, float, [](float a) { return std::nearbyint(a); }>},
    {"cvt.rmi.f32.f32", convert<float, float, [](float a) { return std::floor(a); }>},
    {"cvt.rni.f64.f64", convert<double, double, [](double a) { return std::nearbyint(a); }>},
    {"cvt.rmi.f64.f64", convert<double, double, [](double a) { return std::floor(a); }>},
    {"cvt.rzi.f32.f32", convert<float, float, [](float a) { return std::trunc(a); }>},
    {"cvt.rzi.f64.f64", convert<double, double, [](double a) { return std::trunc(a); }>},
    {"cvt.rpi.f32.f32", convert<float, float, [](float a) { return std::ceil(a); }>},
    {"cvt.rpi.f64.f64", convert<double, double, [](double a) { return std::ceil(a); }>},
    {"cvt.sat.f32.f32", convert<float, float, saturated_f>},
    {"cvt.f32.f16", convert<float, uint16_t, [](uint16_t a) { return from_f16(a); }>},
    {"cvt.f32.bf16", convert<float, uint16_t, [](uint16_t a) { return from_bf16(a); }>},
    {"cvt.rn.f16.f32", convert<uint16_t, float, [](float a) { return (uint16_t)to_f16(a); }>},
    {"cvt.rn.bf16.f32", convert<uint16_t, float, [](float a) { return (uint16_t)to_bf16(a); }>},
    {"cvt.rn.satfinite.e4m3x2.f32",
     binary<uint16_t, float, float,
            [](float a, float b) { return (uint16_t)(to_fp8(a, 4, 3, 0x7e) << 8 | to_fp8(b, 4, 3, 0x7e)); }>},
    {"cvt.rn.satfinite.e5m2x2.f32",
     binary<uint16_t, float, float,
            [](float a, float b) { return (uint16_t)(to_fp8(a, 5, 2, 0x7b) << 8 | to_fp8(b, 5, 2, 0x7b)); }>},
    {"cvt.rn.f16x2.e4m3x2",
     unary<uint32_t, uint16_t,
           [](uint16_t a) { return to_f16(from_e4m3(a >> 8)) << 16 | to_f16(from_e4m3(a & 255)); }>},
    {"cvt.rn.f16x2.e5m2x2",
     unary<uint32_t, uint16_t,
           [](uint16_t a) { return to_f16(from_e5m2(a >> 8)) << 16 | to_f16(from_e5m2(a & 255)); }>},
};

template <typename I> I saturated(double x) {
    if (std::isnan(x)) return sizeof(I) == 8 ? (I)1 << (8 * sizeof(I) - 1) : 0;
    const double low = (double)std::numeric_limits<I>::min(), high = (double)std::numeric_limits<I>::max();
    return x <= low ? std::numeric_limits<I>::min() : x >= high ? std::numeric_limits<I>::max() : (I)x;
}
/* cvt of a real number to an integer: `number` = how it is rounded. */
template <typename I, typename R> void integer_of(warp &w, const instruction &i, lanes mask) {
    EACH_LANE(l, mask) {
        const uint64_t bits = w.value(i.a, l);
        R a;
        memcpy(&a, &bits, sizeof a);
        const double x = i.number == 'n'   ? std::nearbyint((double)a)
                         : i.number == 'z' ? std::trunc((double)a)
                         : i.number == 'm' ? std::floor((double)a)
                                           : std::ceil((double)a);
        w.set(i.d, l, (uint64_t)(int64_t)saturated<I>(x));
    }
}

/* The bits of an integer type, negative if it is signed; 0 for others. */
int integer_type(const std::string &t) {
    const int bits = t.size() > 1 ? atoi(t.c_str() + 1) : 0;
    return t.size() < 2 || t.size() > 3 ? 0 : t[0] == 'u' || t[0] == 'b' ? bits : t[0] == 's' ? -bits : 0;
}

} // namespace

bool find_arithmetic(instruction &i) {
    const auto parts = parts_of(i.text);
    const std::string &base = parts[0];
    if (base == "mov") {
        if (i.operands.size() != 2) return false;
        if (i.operands[1].kind == operand::is_list) return i.run = pack, true;
        if (i.operands[0].kind == operand::is_list) {
            i.number = atoi(parts.back().c_str() + 1);
            i.run = unpack;
            return true;
        }
        if (parts.back() != "pred") {
            const bool wide = i.d.width == 64, as_wide = wide == (i.a.width == 64);
            return i.run = !as_wide || i.d.width != i.a.width ? mov_between
                           : wide                             ? mov<uint64_t>
                                                              : mov<uint32_t>,
                   true;
        }
    }
    if (base == "cvt" && parts.size() >= 3) {
        const std::string &to = parts[parts.size() - 2], &from = parts.back();
        const int d = integer_type(to), a = integer_type(from);
        if (d && a) {
            if (std::find(parts.begin(), parts.end(), "sat") != parts.end()) return false;
            i.number = a, i.more = d;
            return i.run = convert_integers, true;
        }
        if (d && parts.size() >= 4 && parts[1].size() == 3 && parts[1][0] == 'r') {
            i.number = parts[1][1];
            const bool is_double = from == "f64";
            if (from != "f64" && from != "f32") return false;
            i.run = d == -32   ? (is_double ? integer_of<int32_t, double> : integer_of<int32_t, float>)
                    : d == 32  ? (is_double ? integer_of<uint32_t, double> : integer_of<uint32_t, float>)
                    : d == -64 ? (is_double ? integer_of<int64_t, double> : integer_of<int64_t, float>)
                    : d == 64  ? (is_double ? integer_of<uint64_t, double> : integer_of<uint64_t, float>)
                               : nullptr;
            return i.run != nullptr;
        }
    }
    /* Rounding to nearest is what all others do. */
    std::string name = i.text;
    if (base != "cvt")
        if (const size_t at = name.find(".rn."); at != std::string::npos) name.erase(at, 3);
    for (const entry &e : table)
        if (name == e.name) return i.run = e.run, true;
    return false;
}

} // namespace emulator
