/* ---- Rules ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "base/linkage.h"
#include "base/build.h"

/* Record what was wrong and hand the status on. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_fail_as(tegroup_reading reading, tegroup_error *error,
                                                        tegroup_status status, const char *field, const char *rule,
                                                        int64_t expected, int64_t got) {
    if (error) {
        error->status = status;
        error->native = 0;
        error->field = field;
        error->rule = rule;
        error->expected = expected;
        error->got = got;
        error->reading = reading;
        error->within = NULL;
    }
    return status;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_fail(tegroup_error *error, tegroup_status status, const char *field,
                                                     const char *rule, int64_t expected, int64_t got) {
    return tegroup_impl_fail_as(TEGROUP_READING_NUMBER, error, status, field, rule, expected, got);
}

/* One rule a line: TEGROUP_IMPL_RULE(what must hold, status, field, rule in words, expected, got). */
#define TEGROUP_IMPL_RULE_AS(reading, holds, status, field, rule, expected, got)                                       \
    do {                                                                                                               \
        if (!(holds))                                                                                                  \
            return tegroup_impl_fail_as(TEGROUP_READING_##reading, error, TEGROUP_##status, (field), (rule),           \
                                        (int64_t)(expected), (int64_t)(got));                                          \
    } while (0)
#define TEGROUP_IMPL_RULE(holds, status, field, rule, expected, got)                                                   \
    TEGROUP_IMPL_RULE_AS(NUMBER, holds, status, field, rule, expected, got)
/* A rule about doubles, which are told as such. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_real_bits(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
#define TEGROUP_IMPL_RULE_REAL(holds, status, field, rule, expected, got)                                              \
    TEGROUP_IMPL_RULE_AS(REAL, holds, status, field, rule, tegroup_impl_real_bits(expected),                           \
                         tegroup_impl_real_bits(got))
/* An enum must be one of its values, 0 to `last`. It is reported as the int32_t that the caller's struct holds: a
 * compiler may make the type of names that are all positive unsigned, and -1 would be told as 4294967295. */
#define TEGROUP_IMPL_RULE_ENUM(value, last, field, rule)                                                               \
    TEGROUP_IMPL_RULE((uint32_t)(value) <= (uint32_t)(last), ERROR_VALUE, field, rule, last, (int32_t)(value))
/* A struct of the caller's must be of this version, or of an older one with the same major version: structs grow at
 * their end, and a function reads no further than struct_size. */
TEGROUP_IMPL_STATIC int tegroup_impl_size_fits(size_t struct_size, size_t current) {
    return struct_size > sizeof struct_size && struct_size <= current && struct_size % sizeof struct_size == 0;
}
#define TEGROUP_IMPL_SIZE_RULE "must be the size of the struct, in this version or an older one"
/* A plan must be of this version and of its maker, whose mark is the magic number. */
#define TEGROUP_IMPL_RULE_PLAN(plan, number, rule)                                                                     \
    do {                                                                                                               \
        TEGROUP_IMPL_RULE((plan) != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);                      \
        TEGROUP_IMPL_RULE((plan)->struct_size == sizeof *(plan), ERROR_STRUCT_SIZE, "plan.struct_size",                \
                          "must be the size of the struct", sizeof *(plan), (plan)->struct_size);                      \
        TEGROUP_IMPL_RULE((plan)->magic == (number), ERROR_PLAN, "plan", rule, number, (plan)->magic);                 \
    } while (0)
/* A public function takes its descriptor: what an older one lacks is 0 in `taken`, with which the function then goes
 * on. */
#define TEGROUP_IMPL_TAKE(desc, taken)                                                                                 \
    do {                                                                                                               \
        TEGROUP_IMPL_RULE((desc) != NULL, ERROR_NULL_ARGUMENT, #desc, "must not be NULL", 1, 0);                       \
        TEGROUP_IMPL_RULE(tegroup_impl_size_fits((desc)->struct_size, sizeof taken), ERROR_STRUCT_SIZE, "struct_size", \
                          TEGROUP_IMPL_SIZE_RULE, sizeof taken, (desc)->struct_size);                                  \
        if ((desc)->struct_size < sizeof taken) {                                                                      \
            memset(&taken, 0, sizeof taken);                                                                           \
            memcpy(&taken, (desc), (desc)->struct_size);                                                               \
            taken.struct_size = sizeof taken;                                                                          \
            (desc) = &taken;                                                                                           \
        }                                                                                                              \
    } while (0)
#define TEGROUP_IMPL_TRY(call)                                                                                         \
    do {                                                                                                               \
        tegroup_status tegroup_impl_status = (call);                                                                   \
        if (tegroup_impl_status != TEGROUP_OK) return tegroup_impl_status;                                             \
    } while (0)

/* The status of a call that was made with a member of the descriptor: that is where its error's field is, unless CUDA
 * failed. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_of_member(const char *member, tegroup_status status,
                                                          tegroup_error *error) {
    if (error && status != TEGROUP_OK && status != TEGROUP_ERROR_CUDA && status != TEGROUP_ERROR_CUBLAS)
        error->within = member;
    return status;
}

TEGROUP_IMPL_STATIC int tegroup_impl_aligned(const void *pointer, size_t bytes) {
    return (uintptr_t)pointer % bytes == 0;
}

/* Do [a, a + a_bytes) and [b, b + b_bytes) share a byte? */
TEGROUP_IMPL_STATIC int tegroup_impl_overlaps(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    if (!a || !b || a_bytes <= 0 || b_bytes <= 0) return 0;
    return x < y ? y - x < (uint64_t)a_bytes : x - y < (uint64_t)b_bytes;
}
