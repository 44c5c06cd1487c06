/* ---- Vectors of the processor ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "base/build.h"

/* What the CPU's kernels need to know of a processor: the compiler's macros tell it, and no other part asks them.
 * Registers decide the innermost kernel: MICRO_M rows by two vectors of columns. */
#if defined(__AVX512F__)
#define TEGROUP_IMPL_VECTOR_BYTES 64
#define TEGROUP_IMPL_MICRO_M 12
#elif defined(__AVX__)
#define TEGROUP_IMPL_VECTOR_BYTES 32
#define TEGROUP_IMPL_MICRO_M 6
#elif defined(__aarch64__)
#define TEGROUP_IMPL_VECTOR_BYTES 16
#define TEGROUP_IMPL_MICRO_M 8
#else
#define TEGROUP_IMPL_VECTOR_BYTES 16
#define TEGROUP_IMPL_MICRO_M 6
#endif

#if defined(__GNUC__) || defined(__clang__)
#define TEGROUP_IMPL_INLINE static inline __attribute__((always_inline))
#else
#define TEGROUP_IMPL_INLINE static inline
#endif

/* Unrolling is what keeps the accumulators in registers. */
#if defined(__CUDACC__)
#define TEGROUP_IMPL_UNROLL
#elif defined(__clang__)
#define TEGROUP_IMPL_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define TEGROUP_IMPL_UNROLL _Pragma("GCC unroll 16")
#else
#define TEGROUP_IMPL_UNROLL
#endif

/* Vectors where the compiler has them and float arithmetic is done in float (not on x87). */
#if defined(__GNUC__) && defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ == 0
#define TEGROUP_IMPL_VECTORS
#endif

/* Asks the second cache for a cache line at each of `lines` places. Hardware foresees what one stream reads within a
 * page; but several lines read at a time are as many streams, each soon over, and of lines that lie side by side a
 * little of each page is read at a time. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_foresee(const char *at, int64_t stride_bytes, int32_t lines) {
#if defined(__GNUC__) || defined(__clang__)
    int32_t i;
    for (i = 0; i < lines; i++) __builtin_prefetch(at + i * stride_bytes, 0, 2);
#else
    (void)at, (void)stride_bytes, (void)lines;
#endif
}
/* The same for so many bytes from `at` on. */
#define TEGROUP_IMPL_FORESEE(at, bytes) tegroup_impl_cpu_foresee(at, 64, ((bytes) + 63) / 64)

/* Vectors of LANES floats, and what makes them of narrower types. */
#if defined(TEGROUP_IMPL_VECTORS) && !defined(__CUDACC__) && (defined(__clang__) || __GNUC__ >= 9) \
    && (defined(__SSE2__) || (defined(__aarch64__) && !defined(__AARCH64EB__)))
#if defined(__AVX__)
#define TEGROUP_IMPL_CPU_LANES 8
#else
#define TEGROUP_IMPL_CPU_LANES 4
#endif
typedef float tegroup_impl_lanes __attribute__((vector_size(4 * TEGROUP_IMPL_CPU_LANES), aligned(2), may_alias));
typedef uint32_t tegroup_impl_lane_bits __attribute__((vector_size(4 * TEGROUP_IMPL_CPU_LANES)));
typedef int32_t tegroup_impl_lane_ints __attribute__((vector_size(4 * TEGROUP_IMPL_CPU_LANES)));
/* Of 16 bytes, whatever the lanes. */
typedef float tegroup_impl_quad __attribute__((vector_size(16), aligned(2), may_alias));
typedef int16_t tegroup_impl_quad_halves __attribute__((vector_size(16), aligned(2), may_alias));
typedef int64_t tegroup_impl_quad_words __attribute__((vector_size(16)));
typedef char tegroup_impl_quad_bytes __attribute__((vector_size(16)));

/* Elements of a and b by their numbers, b's after a's; INDICES is the type of a vector of as many integers. */
#if defined(__clang__) || __GNUC__ >= 12
#define TEGROUP_IMPL_SHUFFLE(INDICES, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define TEGROUP_IMPL_SHUFFLE(INDICES, a, b, ...) __builtin_shuffle(a, b, __extension__(INDICES){__VA_ARGS__})
#endif

/* Of each 16 bytes of a and b: elements 0 and 1, or 2 and 3, in turn. */
#if TEGROUP_IMPL_CPU_LANES == 8
#define TEGROUP_IMPL_LOWER(a, b) TEGROUP_IMPL_SHUFFLE(tegroup_impl_lane_ints, a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define TEGROUP_IMPL_UPPER(a, b) TEGROUP_IMPL_SHUFFLE(tegroup_impl_lane_ints, a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#if defined(__clang__) || __GNUC__ >= 12
#define TEGROUP_IMPL_JOIN(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7)
#else
#define TEGROUP_IMPL_JOIN(a, b) __builtin_ia32_vinsertf128_ps256(__builtin_ia32_ps256_ps(a), b, 1)
#endif
#else
#define TEGROUP_IMPL_LOWER(a, b) TEGROUP_IMPL_SHUFFLE(tegroup_impl_lane_ints, a, b, 0, 4, 1, 5)
#define TEGROUP_IMPL_UPPER(a, b) TEGROUP_IMPL_SHUFFLE(tegroup_impl_lane_ints, a, b, 2, 6, 3, 7)
#endif

/* The compiler takes the vector's value as unknown from here on. */
#if defined(__aarch64__)
#define TEGROUP_IMPL_UNKNOWN(vector) __asm__("" : "+w"(vector))
#elif defined(__AVX512VL__)
#define TEGROUP_IMPL_UNKNOWN(vector) __asm__("" : "+v"(vector))
#else
#define TEGROUP_IMPL_UNKNOWN(vector) __asm__("" : "+x"(vector))
#endif

/* F32 of magnitudes of another type whose mantissas lie where F32 has its own and whose exponents' bias is `less`
 * smaller. Subnormals have no leading one: they are given it, and then it is subtracted. */
TEGROUP_IMPL_INLINE tegroup_impl_lane_bits tegroup_impl_cpu_rebias(tegroup_impl_lane_bits magnitudes, uint32_t less) {
    const tegroup_impl_lane_bits none = {0}, leading = none + ((less + 1) << 23);
    const tegroup_impl_lane_bits normal = magnitudes + (less << 23),
                                 subnormal = (tegroup_impl_lane_bits)((tegroup_impl_lanes)(magnitudes + leading)
                                                                      - (tegroup_impl_lanes)leading),
                                 is_subnormal = (tegroup_impl_lane_bits)((tegroup_impl_lane_ints)magnitudes < 1 << 23);
    return (subnormal & is_subnormal) | (normal & ~is_subnormal);
}

#if defined(__aarch64__)
typedef uint16_t tegroup_impl_four_halves __attribute__((vector_size(8), aligned(2), may_alias));
TEGROUP_IMPL_INLINE tegroup_impl_lanes tegroup_impl_cpu_fcvtl(tegroup_impl_four_halves codes) {
    tegroup_impl_lanes x;
    __asm__("fcvtl %0.4s, %1.4h" : "=w"(x) : "w"(codes)); /* of a conversion of vectors gcc 12 makes one of each lane */
    return x;
}
#endif

/* F32 of F16, which the lanes have in their lower halves. */
TEGROUP_IMPL_INLINE tegroup_impl_lanes tegroup_impl_cpu_f16(tegroup_impl_lane_bits codes) {
#if defined(__aarch64__)
    return tegroup_impl_cpu_fcvtl(__builtin_convertvector(codes, tegroup_impl_four_halves));
#else
    const tegroup_impl_lane_bits magnitudes = (codes & 0x7fffu) << 13;
    const tegroup_impl_lane_bits is_special =
        (tegroup_impl_lane_bits)((tegroup_impl_lane_ints)magnitudes >= 0x1f << 23); /* infinity, NaN */
    return (tegroup_impl_lanes)((tegroup_impl_cpu_rebias(magnitudes, 112) + (is_special & 112u << 23))
                                | (codes & 0x8000u) << 16);
#endif
}

/* LANES neighbours of 16 bits, in the lower halves of the lanes. */
TEGROUP_IMPL_INLINE tegroup_impl_lane_bits tegroup_impl_cpu_load_halves(const char *at) {
#if TEGROUP_IMPL_CPU_LANES == 4
    const tegroup_impl_quad_halves none = {0};
    tegroup_impl_quad_words words = {0, 0};
    int64_t word;
    memcpy(&word, at, 8);
    words[0] = word;
    return (tegroup_impl_lane_bits)TEGROUP_IMPL_SHUFFLE(tegroup_impl_quad_halves, (tegroup_impl_quad_halves)words, none,
                                                        0, 8, 1, 9, 2, 10, 3, 11);
#elif defined(__AVX2__) && !defined(__clang__) /* of the conversion below gcc 12 makes five instructions */
    return (tegroup_impl_lane_bits)__builtin_ia32_pmovzxwd256(*(const tegroup_impl_quad_halves *)(const void *)at);
#else
    typedef uint16_t halves __attribute__((vector_size(16), aligned(2), may_alias));
    return __builtin_convertvector(*(const halves *)(const void *)at, tegroup_impl_lane_bits);
#endif
}

/* LANES neighbours, widened. (F16C comes with AVX.) */
TEGROUP_IMPL_INLINE tegroup_impl_lanes tegroup_impl_cpu_widen(tegroup_dtype dtype, const char *at) {
    if (dtype == TEGROUP_DTYPE_BF16) return (tegroup_impl_lanes)(tegroup_impl_cpu_load_halves(at) << 16);
    if (dtype == TEGROUP_DTYPE_F16)
#if defined(__F16C__)
        return (tegroup_impl_lanes)__builtin_ia32_vcvtph2ps256(*(const tegroup_impl_quad_halves *)(const void *)at);
#elif defined(__aarch64__)
        return tegroup_impl_cpu_fcvtl(*(const tegroup_impl_four_halves *)(const void *)at);
#else
        return tegroup_impl_cpu_f16(tegroup_impl_cpu_load_halves(at));
#endif
    return *(const tegroup_impl_lanes *)(const void *)at;
}

/* A bundle of lines is as many as a vector has lanes. How many elements of each are transposed at a time; 0: the type
 * is none of those that are. */
TEGROUP_IMPL_INLINE int32_t tegroup_impl_cpu_step(tegroup_dtype dtype) {
#if defined(__F16C__)
    if (dtype == TEGROUP_DTYPE_F16) return 16;
#endif
    return dtype == TEGROUP_DTYPE_F32 ? 4 : dtype == TEGROUP_DTYPE_BF16 || dtype == TEGROUP_DTYPE_F16 ? 8 : 0;
}

/* v[i] = element i of each line of a bundle, widened, for as many i as a step has. To transpose is to interleave one
 * half of the registers with the other, as often as halving them leaves one. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_transpose(tegroup_dtype dtype, const char *at, int64_t stride_bytes,
                                                    tegroup_impl_lanes v[16]) {
    tegroup_impl_lanes w[4], next[4];
    int32_t round, i;
#if defined(__F16C__)
    if (dtype == TEGROUP_DTYPE_F16) { /* elements 0 to 7 in the lower halves of the registers, 8 to 15 in the upper */
        typedef int16_t halves __attribute__((vector_size(32), aligned(2), may_alias));
        halves h[8], then[8];
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 8; i++) h[i] = *(const halves *)(const void *)(at + i * stride_bytes);
        TEGROUP_IMPL_UNROLL
        for (round = 0; round < 3; round++) {
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < 4; i++) {
                then[2 * i] = TEGROUP_IMPL_SHUFFLE(halves, h[i], h[i + 4], 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10,
                                                   26, 11, 27);
                then[2 * i + 1] = TEGROUP_IMPL_SHUFFLE(halves, h[i], h[i + 4], 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13,
                                                       29, 14, 30, 15, 31);
            }
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < 8; i++) h[i] = then[i];
        }
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 8; i++) {
            v[i] = (tegroup_impl_lanes)__builtin_ia32_vcvtph2ps256(
                (tegroup_impl_quad_halves)__builtin_ia32_vextractf128_si256((tegroup_impl_lane_ints)h[i], 0));
            v[i + 8] = (tegroup_impl_lanes)__builtin_ia32_vcvtph2ps256(
                (tegroup_impl_quad_halves)__builtin_ia32_vextractf128_si256((tegroup_impl_lane_ints)h[i], 1));
        }
        return;
    }
#endif
    /* Two elements of 16 bits are moved as one. Of eight lines 0 to 3 are in the lower halves of the registers. */
    TEGROUP_IMPL_UNROLL
    for (i = 0; i < 4; i++) {
        const tegroup_impl_quad line = *(const tegroup_impl_quad *)(const void *)(at + i * stride_bytes);
#if TEGROUP_IMPL_CPU_LANES == 8
        const tegroup_impl_quad later = *(const tegroup_impl_quad *)(const void *)(at + (i + 4) * stride_bytes);
        w[i] = TEGROUP_IMPL_JOIN(line, later);
#else
        w[i] = line;
#endif
    }
    TEGROUP_IMPL_UNROLL
    for (round = 0; round < 2; round++) {
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 2; i++) {
            next[2 * i] = TEGROUP_IMPL_LOWER(w[i], w[i + 2]);
            next[2 * i + 1] = TEGROUP_IMPL_UPPER(w[i], w[i + 2]);
        }
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 4; i++) w[i] = next[i];
    }
    TEGROUP_IMPL_UNROLL
    for (i = 0; i < 4; i++) {
        const tegroup_impl_lane_bits pair = (tegroup_impl_lane_bits)w[i];
        if (dtype == TEGROUP_DTYPE_BF16) {
            v[2 * i] = (tegroup_impl_lanes)(pair << 16);
            v[2 * i + 1] = (tegroup_impl_lanes)(pair & 0xffff0000u);
        } else if (dtype == TEGROUP_DTYPE_F16) {
            v[2 * i] = tegroup_impl_cpu_f16(pair & 0xffffu);
            v[2 * i + 1] = tegroup_impl_cpu_f16(pair >> 16);
        } else v[i] = w[i];
    }
}

/* Codes that are neighbours become numbers, LANES at a time. */
#if TEGROUP_IMPL_CPU_LANES == 4 || defined(__AVX2__)
#define TEGROUP_IMPL_DECODES

/* Codes of a byte each: LANES of them in the first elements. */
TEGROUP_IMPL_INLINE tegroup_impl_quad_bytes tegroup_impl_cpu_load_bytes(const uint8_t *at) {
    tegroup_impl_quad_words words = {0, 0};
#if TEGROUP_IMPL_CPU_LANES == 8
    int64_t word;
    memcpy(&word, at, 8);
#else
    uint32_t word;
    memcpy(&word, at, 4);
#endif
    words[0] = word;
    return (tegroup_impl_quad_bytes)words;
}

/* Each lane has a code in its lowest byte and that code's sign in its highest bit, too. */
TEGROUP_IMPL_INLINE tegroup_impl_lane_bits tegroup_impl_cpu_spread(tegroup_impl_quad_bytes codes) {
#if TEGROUP_IMPL_CPU_LANES == 8
#if defined(__clang__)
    typedef int8_t eight __attribute__((vector_size(8))); /* char may have been told to have no sign */
    return (tegroup_impl_lane_bits) __builtin_convertvector(
        (eight)__builtin_shufflevector(codes, codes, 0, 1, 2, 3, 4, 5, 6, 7), tegroup_impl_lane_ints);
#else
    return (tegroup_impl_lane_bits)__builtin_ia32_pmovsxbd256(codes);
#endif
#else /* four times, by two instructions */
    const tegroup_impl_quad_halves twice = (tegroup_impl_quad_halves)TEGROUP_IMPL_SHUFFLE(
        tegroup_impl_quad_bytes, codes, codes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return (tegroup_impl_lane_bits)TEGROUP_IMPL_SHUFFLE(tegroup_impl_quad_halves, twice, twice, 0, 8, 1, 9, 2, 10, 3,
                                                        11);
#endif
}

/* Codes of E2M1, two a byte, the first in its lower half. value: the numbers of all codes. */
TEGROUP_IMPL_INLINE tegroup_impl_lanes tegroup_impl_cpu_e2m1(const uint8_t *at, const float *value) {
    const tegroup_impl_lane_bits none = {0};
    tegroup_impl_lane_bits codes, magnitudes;
#if TEGROUP_IMPL_CPU_LANES == 8
    const tegroup_impl_lane_bits place = {0, 4, 8, 12, 16, 20, 24, 28};
    uint32_t word;
    memcpy(&word, at, 4);
    codes = (none + word) >> place; /* the codes behind it stay above each, where nobody looks */
    magnitudes = (tegroup_impl_lane_bits)__builtin_ia32_permvarsf256(*(const tegroup_impl_lanes *)(const void *)value,
                                                                     (tegroup_impl_lane_ints)codes);
    codes <<= 28;
#else
    const tegroup_impl_lane_bits to_top = {1u << 28, 1u << 24, 1u << 20, 1u << 16};
    uint16_t word;
    (void)value;
    memcpy(&word, at, 2);
    codes = (none + word) * to_top; /* the codes before it stay below each */
    magnitudes = tegroup_impl_cpu_rebias(codes >> 6 & 7u << 22, 126);
#endif
    return (tegroup_impl_lanes)(magnitudes | (codes & 0x80000000u));
}

TEGROUP_IMPL_INLINE tegroup_impl_lanes tegroup_impl_cpu_e4m3(const uint8_t *at) {
    const tegroup_impl_lane_bits codes = tegroup_impl_cpu_spread(tegroup_impl_cpu_load_bytes(at)),
                                 magnitudes = (codes & 0x7fu) << 20,
                                 x = tegroup_impl_cpu_rebias(magnitudes, 120) | (codes & 0x80000000u),
                                 is_nan = (tegroup_impl_lane_bits)((tegroup_impl_lane_ints)magnitudes == 0x7f << 20);
    return (tegroup_impl_lanes)((x & ~is_nan) | is_nan >> 1); /* 0x7fffffff, as elsewhere */
}

/* Codes of E5M2 are the upper halves of F16's. */
TEGROUP_IMPL_INLINE tegroup_impl_lanes tegroup_impl_cpu_e5m2(const uint8_t *at) {
    const tegroup_impl_quad_bytes codes = tegroup_impl_cpu_load_bytes(at);
#if defined(__F16C__)
    const tegroup_impl_quad_bytes none = {0};
    return (tegroup_impl_lanes)__builtin_ia32_vcvtph2ps256((tegroup_impl_quad_halves)TEGROUP_IMPL_SHUFFLE(
        tegroup_impl_quad_bytes, none, codes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
#else
    return tegroup_impl_cpu_f16((tegroup_impl_cpu_spread(codes) & 0xffu) << 8);
#endif
}
#endif
#endif
