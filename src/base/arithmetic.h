/* ---- Arithmetic ---- */

#pragma once
#include "base/version.h"
#include "base/linkage.h"

/* Arithmetic that the CPU loops over and a kernel maps threads to. HD_INLINE: where a loop of
 * the CPU's is slow without (base/linkage.h). */
#if defined(__CUDACC__)
#define TEGROUP_IMPL_HD static __host__ __device__ inline
#define TEGROUP_IMPL_HD_INLINE TEGROUP_IMPL_HD
#else
#define TEGROUP_IMPL_HD TEGROUP_IMPL_STATIC
#define TEGROUP_IMPL_HD_INLINE static inline
#endif

/* Callers' elements by their bits. Their arrays may have any type of that size (float, _Float16, long long), and a
 * compiler that sees both may take it that a uint32_t is never a float. */
#if defined(__GNUC__) || defined(__clang__)
#define TEGROUP_IMPL_ANY __attribute__((may_alias))
#else
#define TEGROUP_IMPL_ANY
#endif
typedef uint16_t TEGROUP_IMPL_ANY tegroup_impl_any16;
typedef uint32_t TEGROUP_IMPL_ANY tegroup_impl_any32;
typedef uint64_t TEGROUP_IMPL_ANY tegroup_impl_any64;
#undef TEGROUP_IMPL_ANY

TEGROUP_IMPL_HD int64_t tegroup_impl_min(int64_t a, int64_t b) { return a < b ? a : b; }
TEGROUP_IMPL_HD int64_t tegroup_impl_max(int64_t a, int64_t b) { return a > b ? a : b; }
TEGROUP_IMPL_HD int64_t tegroup_impl_clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}
/* Is i an index of something that has `count`? */
TEGROUP_IMPL_HD int tegroup_impl_within(int64_t i, int64_t count) { return i >= 0 && i < count; }
TEGROUP_IMPL_HD int64_t tegroup_impl_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Sums and products of non-negative numbers that stop at INT64_MAX, which then stands for "too large". A product may be
 * asked of numbers that nobody checked yet: a negative factor counts as too large. */
TEGROUP_IMPL_HD int64_t tegroup_impl_add(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }
TEGROUP_IMPL_HD int64_t tegroup_impl_mul(int64_t a, int64_t b) {
#if defined(__CUDA_ARCH__) /* a division would be a hundred instructions */
    const uint64_t product = (uint64_t)a * (uint64_t)b;
    return __umul64hi((uint64_t)a, (uint64_t)b) == 0 && product <= INT64_MAX ? (int64_t)product : INT64_MAX;
#else
    return a != 0 && (uint64_t)b > (uint64_t)INT64_MAX / (uint64_t)a ? INT64_MAX : a * b;
#endif
}
TEGROUP_IMPL_HD int64_t tegroup_impl_align(int64_t a, int64_t alignment) {
    return a > INT64_MAX - alignment ? INT64_MAX : (a + alignment - 1) / alignment * alignment;
}

/* Largest byte count that this machine can address. */
TEGROUP_IMPL_HD int64_t tegroup_impl_max_bytes(void) {
    return (uint64_t)PTRDIFF_MAX < (uint64_t)INT64_MAX ? (int64_t)PTRDIFF_MAX : INT64_MAX - 1;
}
