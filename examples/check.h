/* How a grouped product is tested: an FP64 reference, a bound that grows with k, poison, guard bands, and a
 * comparison that names the first bad element. A header of its own in C and C++, to be taken into other trees;
 * tegroup's own tests use it. All memory here is read and written by the host: copy results there first, or use
 * managed memory. */
#ifndef TEGROUP_CHECK_H
#define TEGROUP_CHECK_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tegroup.h"

#if defined(__GNUC__)
#define CHECK static __attribute__((unused))
#else
#define CHECK static
#endif

/* ---- poison and guard bands ---- */

/* Poison is NaN as F64, F32, F16 and BF16, negative as an integer, and differs from place to place: what was not
 * written shows, and so does what was read too early. A guarded buffer has a band of it on both sides, which must
 * stay. */

#define CHECK_BAND_BYTES 256

CHECK unsigned char check_poison_byte(size_t i) { return (i & 1) ? 0xFF : (unsigned char)(0xF1 + (i >> 1) % 13); }
CHECK void check_poison(void *data, size_t bytes) {
    const size_t period = 26; /* of check_poison_byte: what is there is copied behind itself */
    unsigned char *to = (unsigned char *)data;
    size_t i, more;
    for (i = 0; i < bytes && i < period; i++) to[i] = check_poison_byte(i);
    for (; i < bytes; i += more) {
        more = i < bytes - i ? i : bytes - i;
        memcpy(to + i, to, more);
    }
}

/* Poisons `bytes` bytes and the bands around them in memory of check_room(bytes); returns where the bytes begin. */
CHECK size_t check_room(size_t bytes) { return bytes + 2 * CHECK_BAND_BYTES; }
CHECK void *check_guard(void *memory, size_t bytes) {
    unsigned char *data = (unsigned char *)memory + CHECK_BAND_BYTES;
    check_poison(memory, CHECK_BAND_BYTES);
    check_poison(data, bytes);
    check_poison(data + bytes, CHECK_BAND_BYTES);
    return data;
}

/* How many bytes of a guarded buffer's bands changed. first: where not NULL, the offset of the first of them from
 * data. */
CHECK int64_t check_bands_changed(const void *data, size_t bytes, int64_t *first) {
    const unsigned char *at = (const unsigned char *)data;
    int64_t changed = 0;
    for (size_t i = 0; i < 2 * CHECK_BAND_BYTES; i++) {
        const int64_t offset =
            i < CHECK_BAND_BYTES ? (int64_t)i - CHECK_BAND_BYTES : (int64_t)(bytes + i) - CHECK_BAND_BYTES;
        if (at[offset] == check_poison_byte(i % CHECK_BAND_BYTES)) continue;
        if (changed++ == 0 && first != NULL) *first = offset;
    }
    return changed;
}

/* How many bytes of what check_poison wrote to data are others now. */
CHECK int64_t check_written(const void *data, size_t bytes) {
    int64_t written = 0;
    for (size_t i = 0; i < bytes; i++) written += ((const unsigned char *)data)[i] != check_poison_byte(i);
    return written;
}

/* ---- numbers: by arithmetic, and not by the library's conversions or by bit tricks ---- */

typedef struct check_facts {
    int precision, exponent_min, exponent_max;
} check_facts; /* 1.f * 2^exponent */

CHECK check_facts check_facts_of(tegroup_dtype dtype) {
    check_facts f64 = {53, -1022, 1023}, f32 = {24, -126, 127}, f16 = {11, -14, 15}, bf16 = {8, -126, 127};
    return dtype == TEGROUP_DTYPE_F64   ? f64
           : dtype == TEGROUP_DTYPE_F32 ? f32
           : dtype == TEGROUP_DTYPE_F16 ? f16
                                        : bf16;
}
CHECK size_t check_size_of(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F64 || dtype == TEGROUP_DTYPE_I64    ? 8
           : dtype == TEGROUP_DTYPE_F32 || dtype == TEGROUP_DTYPE_I32  ? 4
           : dtype == TEGROUP_DTYPE_F16 || dtype == TEGROUP_DTYPE_BF16 ? 2
                                                                       : 1;
}
CHECK double check_roundoff(tegroup_dtype dtype) { return ldexp(1, -check_facts_of(dtype).precision); }
CHECK double check_smallest(tegroup_dtype dtype) { /* the smallest subnormal */
    check_facts f = check_facts_of(dtype);
    return ldexp(1, f.exponent_min - f.precision + 1);
}

/* x rounded to nearest, ties to even, as a value of dtype */
CHECK double check_rounded(tegroup_dtype dtype, double x) {
    check_facts f = check_facts_of(dtype);
    int exponent;
    if (dtype == TEGROUP_DTYPE_F64 || x == 0 || !isfinite(x)) return x;
    frexp(x, &exponent);
    exponent = exponent - 1 < f.exponent_min ? f.exponent_min : exponent - 1;
    double step = ldexp(1, exponent - f.precision + 1), result = rint(x / step) * step;
    return fabs(result) >= ldexp(1, f.exponent_max + 1) ? copysign(INFINITY, x) : result;
}
CHECK uint16_t check_encode16(tegroup_dtype dtype, double x) {
    check_facts f = check_facts_of(dtype);
    int fraction_bits = f.precision - 1, exponent;
    unsigned sign = signbit(x) ? 0x8000u : 0, top = (0x7FFFu >> fraction_bits) << fraction_bits;
    if (isnan(x)) return (uint16_t)(sign | top | (1u << (fraction_bits - 1)));
    x = fabs(check_rounded(dtype, x));
    if (isinf(x)) return (uint16_t)(sign | top);
    if (x < ldexp(1, f.exponent_min)) return (uint16_t)(sign | (unsigned)(x / check_smallest(dtype)));
    double fraction = frexp(x, &exponent) * 2 - 1;
    return (uint16_t)(sign | ((unsigned)(exponent - 1 - f.exponent_min + 1) << fraction_bits)
                      | (unsigned)ldexp(fraction, fraction_bits));
}
CHECK double check_decode16(tegroup_dtype dtype, uint16_t code) {
    check_facts f = check_facts_of(dtype);
    int fraction_bits = f.precision - 1, biased = (code & 0x7FFF) >> fraction_bits;
    unsigned fraction = code & ((1u << fraction_bits) - 1);
    double value;
    if (biased == 0x7FFF >> fraction_bits) value = fraction != 0 ? (double)NAN : (double)INFINITY;
    else if (biased == 0) value = (double)fraction * check_smallest(dtype);
    else value = ldexp(1 + ldexp((double)fraction, -fraction_bits), biased - 1 + f.exponent_min);
    return (code & 0x8000) ? -value : value;
}

/* Element i of data: F64, F32, F16, BF16, I32 or I64. Stored ones are rounded to nearest. */
CHECK double check_load(tegroup_dtype dtype, const void *data, int64_t i) {
    const unsigned char *at = (const unsigned char *)data + i * (int64_t)check_size_of(dtype);
    double d;
    float f;
    uint16_t u;
    int32_t i32;
    int64_t i64;
    switch (dtype) {
    case TEGROUP_DTYPE_F64: memcpy(&d, at, 8); return d;
    case TEGROUP_DTYPE_F32: memcpy(&f, at, 4); return (double)f;
    case TEGROUP_DTYPE_I32: memcpy(&i32, at, 4); return i32;
    case TEGROUP_DTYPE_I64: memcpy(&i64, at, 8); return (double)i64;
    default: memcpy(&u, at, 2); return check_decode16(dtype, u);
    }
}
CHECK void check_store(tegroup_dtype dtype, void *data, int64_t i, double x) {
    unsigned char *at = (unsigned char *)data + i * (int64_t)check_size_of(dtype);
    float f;
    uint16_t u;
    int32_t i32;
    int64_t i64;
    switch (dtype) {
    case TEGROUP_DTYPE_F64: memcpy(at, &x, 8); break;
    case TEGROUP_DTYPE_F32:
        f = (float)x;
        memcpy(at, &f, 4);
        break;
    case TEGROUP_DTYPE_I32:
        i32 = (int32_t)x;
        memcpy(at, &i32, 4);
        break;
    case TEGROUP_DTYPE_I64:
        i64 = (int64_t)x;
        memcpy(at, &i64, 8);
        break;
    default: u = check_encode16(dtype, x); memcpy(at, &u, 2);
    }
}

/* ---- reference and bound ---- */

/* The sum of x[i] * y[i] in FP64; *size becomes that of their magnitudes. */
CHECK double check_dot(const double *x, const double *y, int64_t count, double *size) {
    double sum = 0, magnitudes = 0;
    for (int64_t i = 0; i < count; i++) {
        const double term = x[i] * y[i];
        sum += term;
        magnitudes += fabs(term);
    }
    *size = magnitudes;
    return sum;
}

/* One group's product in FP64: m by n results over k, of a group's a and b, whose rows are lda and ldb elements
 * apart, as tegroup_op lays them out: FORWARD a [m, k] and b [n, k], DGRAD a [m, k] and b [k, n], WGRAD a [k, m] and
 * b [k, n]. size: for each result the magnitudes that it sums, for the bound. */
CHECK void check_product(tegroup_op op, int64_t m, int64_t n, int64_t k, tegroup_dtype dtype, const void *a,
                         int64_t lda, const void *b, int64_t ldb, double *want, double *size) {
    double *x = (double *)malloc((size_t)((m + n) * k + 1) * sizeof(double)), *y = x + m * k;
    for (int64_t i = 0; i < m; i++)
        for (int64_t q = 0; q < k; q++)
            x[i * k + q] = check_load(dtype, a, op == TEGROUP_OP_WGRAD ? q * lda + i : i * lda + q);
    for (int64_t j = 0; j < n; j++)
        for (int64_t q = 0; q < k; q++)
            y[j * k + q] = check_load(dtype, b, op == TEGROUP_OP_FORWARD ? j * ldb + q : q * ldb + j);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) want[i * n + j] = check_dot(x + i * k, y + j * k, k, &size[i * n + j]);
    free(x);
}

/* How far a result may be off: each of k products and sums, and four steps after them, rounds by at most u of the
 * magnitudes summed (F32 sums: u = 2^-24, or 2^-23 where tensor cores may truncate), and the result is rounded to
 * `out`. A loose bound hides a lost product, so it is for each element, and grows with k and nothing else. */
CHECK double check_bound(int64_t k, double u, double size, tegroup_dtype out, double want) {
    return (double)(k + 4) * u * size + check_roundoff(out) * fabs(want) * (1 + 1.0 / 64) + check_smallest(out) / 2;
}

/* ---- comparison ---- */

/* Error by bound: more than 1 is wrong, and a NaN that is not wanted infinite. */
CHECK double check_ratio(double got, double want, double bound) {
    double ratio = (isnan(want) && isnan(got)) || got == want ? 0
                   : bound > 0                                ? fabs(got - want) / bound
                                                              : (double)INFINITY;
    return isnan(ratio) ? (double)INFINITY : ratio;
}

typedef struct check_result { /* all zero at first */
    int64_t count, wrong;
    double worst;  /* largest ratio */
    int32_t group; /* of the first wrong one: where it is, and what it is */
    int64_t row, col;
    double got, want, bound;
} check_result;

CHECK void check_element(check_result *r, int32_t group, int64_t row, int64_t col, double got, double want,
                         double bound) {
    const double ratio = check_ratio(got, want, bound);
    r->count++;
    if (ratio > r->worst) r->worst = ratio;
    if (!(ratio > 1) || r->wrong++ > 0) return;
    r->group = group;
    r->row = row;
    r->col = col;
    r->got = got;
    r->want = want;
    r->bound = bound;
}

/* Prints a line; returns whether something was compared and none of it was wrong. */
CHECK int check_report(const check_result *r, const char *what) {
    if (r->wrong == 0)
        printf("%s: %lld elements, worst error %.3f of the bound\n", what, (long long)r->count, r->worst);
    else
        printf("%s: %lld of %lld elements are wrong, first group %d, row %lld, column %lld: got %.9g, wanted %.9g "
               "within %.3g\n",
               what, (long long)r->wrong, (long long)r->count, (int)r->group, (long long)r->row, (long long)r->col,
               r->got, r->want, r->bound);
    return r->count > 0 && r->wrong == 0;
}

#endif
