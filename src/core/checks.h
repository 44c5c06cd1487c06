/* ---- Checks of addresses, types and matrices ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"

/* What addresses are aligned to. */
TEGROUP_IMPL_STATIC size_t tegroup_impl_element(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F4E2M1 ? 1 : (size_t)tegroup_impl_bits(dtype) / 8;
}

/* An address that a call uses. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_address(const void *address, size_t alignment, const char *field,
                                                              tegroup_error *error) {
    TEGROUP_IMPL_RULE(address != NULL, ERROR_NULL_ARGUMENT, field, "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(address, alignment), ERROR_ALIGNMENT, field,
                      "must be aligned to its element", alignment, (uintptr_t)address % alignment);
    return TEGROUP_OK;
}

#define TEGROUP_IMPL_FLOATS                                                                                            \
    (1u << TEGROUP_DTYPE_F64 | 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16)
#define TEGROUP_IMPL_REALS (1u << TEGROUP_DTYPE_F64 | 1u << TEGROUP_DTYPE_F32)
#define TEGROUP_IMPL_INTEGERS (1u << TEGROUP_DTYPE_I32 | 1u << TEGROUP_DTYPE_I64)

/* Whether a product multiplies rows of the one type and weights of the other. Beside F32, weights of 16 bits are
 * widened, exactly. */
TEGROUP_IMPL_STATIC int tegroup_impl_goes_with(tegroup_dtype rows, tegroup_dtype weights) {
    return weights == rows || (tegroup_impl_bits(rows) == 8 && tegroup_impl_bits(weights) == 8)
           || (rows == TEGROUP_DTYPE_F32 && tegroup_impl_bits(weights) == 16);
}

/* The type of scalars and row scales. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_real(tegroup_dtype dtype, const char *field,
                                                           tegroup_error *error) {
    TEGROUP_IMPL_RULE_ENUM(dtype, TEGROUP_DTYPE_COUNT - 1, field, "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, dtype == TEGROUP_DTYPE_UNSET || TEGROUP_IMPL_REALS >> dtype & 1u, ERROR_DTYPE, field,
                         "must be a type of scalars and row scales", TEGROUP_IMPL_REALS, dtype);
    return TEGROUP_OK;
}

/* The memory space of everything that a descriptor points to. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_space(tegroup_space space, tegroup_error *error) {
    TEGROUP_IMPL_RULE(space != TEGROUP_SPACE_UNSET, ERROR_UNSET, "space", "must be set", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE_ENUM(space, TEGROUP_SPACE_DEVICE, "space", "must be a tegroup_space");
    return TEGROUP_OK;
}

/* A build without nvcc, or one whose switches leave the kernels out, serves host memory only. kernels: whether this
 * build has the operation's. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_built(int kernels, tegroup_space space, tegroup_error *error) {
    TEGROUP_IMPL_RULE(kernels || space != TEGROUP_SPACE_DEVICE, ERROR_NOT_BUILT, "space",
                      "must be HOST: this operation has no GPU kernel in this build", TEGROUP_SPACE_HOST, space);
    return TEGROUP_OK;
}

/* Plain matrices. An optional one is absent while its dtype is unset. */
TEGROUP_IMPL_HD int tegroup_impl_there(const tegroup_matrix *m) { return m->dtype != TEGROUP_DTYPE_UNSET; }
TEGROUP_IMPL_HD int64_t tegroup_impl_matrix_ld(const tegroup_matrix *m) { return m->ld > 0 ? m->ld : m->cols; }

TEGROUP_IMPL_STATIC int64_t tegroup_impl_matrix_bytes(const tegroup_matrix *m) {
    if (m->dtype == TEGROUP_DTYPE_UNSET || m->rows <= 0 || m->cols <= 0) return 0;
    return tegroup_impl_mul(tegroup_impl_add(tegroup_impl_mul(m->rows - 1, tegroup_impl_matrix_ld(m)), m->cols),
                            tegroup_impl_bits(m->dtype) / 8);
}

/* Rows that have elements: what a loop over a matrix runs through. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_matrix_rows(const tegroup_matrix *m) { return m->cols > 0 ? m->rows : 0; }

TEGROUP_IMPL_HD char *tegroup_impl_matrix_row(const tegroup_matrix *m, int64_t row) {
    if (!m->data) return NULL;
    return (char *)m->data + row * tegroup_impl_matrix_ld(m) * (tegroup_impl_bits(m->dtype) / 8);
}

/* Field paths of a matrix called `name`, as one literal each. */
#define TEGROUP_IMPL_MATRIX_PATHS(name)                                                                                \
    { name ".data", name ".rows", name ".cols", name ".ld", name ".dtype" }

/* One matrix but for its memory: extents (rows or cols < 0: any), types as a bit set. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_matrix_shape(const tegroup_matrix *m, const char *const paths[5],
                                                                   int64_t rows, int64_t cols, uint32_t dtypes,
                                                                   tegroup_error *error) {
    TEGROUP_IMPL_RULE_AS(DTYPES, m->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, paths[4], "must be set", dtypes, 0);
    TEGROUP_IMPL_RULE_ENUM(m->dtype, TEGROUP_DTYPE_COUNT - 1, paths[4], "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, dtypes >> m->dtype & 1u, ERROR_DTYPE, paths[4], "must be one that is taken here",
                         dtypes, m->dtype);
    TEGROUP_IMPL_RULE(m->rows >= 0 && m->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE, paths[1],
                      "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, m->rows);
    TEGROUP_IMPL_RULE(m->cols >= 0 && m->cols <= TEGROUP_MAX_COLS, ERROR_VALUE, paths[2],
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, m->cols);
    TEGROUP_IMPL_RULE(rows < 0 || m->rows == rows, ERROR_SHAPE, paths[1], "must match the other operands", rows,
                      m->rows);
    TEGROUP_IMPL_RULE(cols < 0 || m->cols == cols, ERROR_SHAPE, paths[2], "must match the other operands", cols,
                      m->cols);
    TEGROUP_IMPL_RULE(m->ld <= TEGROUP_MAX_COLS, ERROR_VALUE, paths[3], "must be at most TEGROUP_MAX_COLS",
                      TEGROUP_MAX_COLS, m->ld);
    TEGROUP_IMPL_RULE(m->ld == 0 || m->ld >= m->cols, ERROR_LAYOUT, paths[3], "must be 0 or at least cols", m->cols,
                      m->ld);
    TEGROUP_IMPL_RULE(tegroup_impl_matrix_bytes(m) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW, paths[1],
                      "times ld must be addressable", tegroup_impl_max_bytes(), tegroup_impl_matrix_bytes(m));
    return TEGROUP_OK;
}

/* The memory of one whose shape is right, or that is absent. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_matrix_memory(const tegroup_matrix *m, const char *const paths[5],
                                                                    tegroup_error *error) {
    const size_t element = (size_t)tegroup_impl_bits(m->dtype) / 8;
    if (tegroup_impl_matrix_bytes(m) == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(m->data != NULL, ERROR_NULL_ARGUMENT, paths[0], "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(m->data, element), ERROR_ALIGNMENT, paths[0],
                      "must be aligned to its element", element, (uintptr_t)m->data % element);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_matrix(const tegroup_matrix *m, const char *const paths[5],
                                                             int64_t rows, int64_t cols, uint32_t dtypes,
                                                             tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix_shape(m, paths, rows, cols, dtypes, error));
    return tegroup_impl_check_matrix_memory(m, paths, error);
}

/* The same of a descriptor's member, by its own name. */
#define TEGROUP_IMPL_TRY_MEMORY(member)                                                                                \
    do {                                                                                                               \
        static const char *const paths[5] = TEGROUP_IMPL_MATRIX_PATHS(#member);                                        \
        TEGROUP_IMPL_TRY(tegroup_impl_check_matrix_memory(&desc->member, paths, error));                               \
    } while (0)

/* A matrix that may be absent: its dtype is then UNSET. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_optional_shape(const tegroup_matrix *m,
                                                                     const char *const paths[5], int64_t rows,
                                                                     int64_t cols, uint32_t dtypes,
                                                                     tegroup_error *error) {
    if (m->dtype != TEGROUP_DTYPE_UNSET) return tegroup_impl_check_matrix_shape(m, paths, rows, cols, dtypes, error);
    TEGROUP_IMPL_RULE_AS(DTYPES, !m->data, ERROR_UNSET, paths[4], "must be set with data", dtypes, 0);
    return TEGROUP_OK;
}
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_optional(const tegroup_matrix *m, const char *const paths[5],
                                                               int64_t rows, int64_t cols, uint32_t dtypes,
                                                               tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional_shape(m, paths, rows, cols, dtypes, error));
    return tegroup_impl_check_matrix_memory(m, paths, error);
}

/* Integers, or none, that reach up to `most`. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_reach(const tegroup_matrix *m, const char *const paths[5],
                                                            int64_t most, tegroup_error *error) {
    TEGROUP_IMPL_RULE_AS(DTYPES, m->dtype != TEGROUP_DTYPE_I32 || most <= INT32_MAX, ERROR_DTYPE, paths[4],
                         "must hold numbers beyond 2^31 - 1 here", 1u << TEGROUP_DTYPE_I64, m->dtype);
    return TEGROUP_OK;
}
