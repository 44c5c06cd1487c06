/* ---- Rows ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "base/linkage.h"
#include "formats/convert.h"

/* Rows are worked on in pieces of this many elements, widened to the type of the sums: the choice of a data type is
 * made once a piece, and the loops in between are ones that compilers vectorise. */
#define TEGROUP_IMPL_PIECE 256

/* @each-real */
/* x[j] = data[first + j * stride] */
TEGROUP_IMPL_STATIC void tegroup_impl_load_row_FSUF(tegroup_dtype dtype, const void *data, int64_t first,
                                                    int64_t stride, int64_t n, REAL *x) {
    int64_t j;
#define TEGROUP_IMPL_LOAD_ROW(type)                                                                                    \
    if (stride == 1) {                                                                                                 \
        for (j = 0; j < n; j++) x[j] = tegroup_impl_load_FSUF(TEGROUP_DTYPE_##type, data, first + j);                  \
    } else {                                                                                                           \
        for (j = 0; j < n; j++) x[j] = tegroup_impl_load_FSUF(TEGROUP_DTYPE_##type, data, first + j * stride);         \
    }
    switch (dtype) {
    case TEGROUP_DTYPE_F64: TEGROUP_IMPL_LOAD_ROW(F64) break;
    case TEGROUP_DTYPE_F32: TEGROUP_IMPL_LOAD_ROW(F32) break;
    case TEGROUP_DTYPE_F16: TEGROUP_IMPL_LOAD_ROW(F16) break;
    case TEGROUP_DTYPE_F8E4M3: TEGROUP_IMPL_LOAD_ROW(F8E4M3) break;
    case TEGROUP_DTYPE_F8E5M2: TEGROUP_IMPL_LOAD_ROW(F8E5M2) break;
    case TEGROUP_DTYPE_F4E2M1: TEGROUP_IMPL_LOAD_ROW(F4E2M1) break;
    case TEGROUP_DTYPE_F8E8M0: TEGROUP_IMPL_LOAD_ROW(F8E8M0) break;
    default: TEGROUP_IMPL_LOAD_ROW(BF16) break;
    }
#undef TEGROUP_IMPL_LOAD_ROW
}

/* sum[j] += weight * row[at + j], of a piece's n elements at most. */
TEGROUP_IMPL_STATIC void tegroup_impl_add_row_FSUF(tegroup_dtype dtype, const void *row, int64_t at, int64_t n,
                                                   REAL weight, REAL *sum) {
    REAL x[TEGROUP_IMPL_PIECE];
    int64_t j;
    tegroup_impl_load_row_FSUF(dtype, row, at, 1, n, x);
    for (j = 0; j < n; j++) sum[j] += weight * x[j];
}

/* data[first + j * stride] = x[j] */
TEGROUP_IMPL_STATIC void tegroup_impl_store_row_FSUF(tegroup_dtype dtype, void *data, int64_t first, int64_t stride,
                                                     int64_t n, const REAL *x) {
    int64_t j;
#define TEGROUP_IMPL_STORE_ROW(type)                                                                                   \
    if (stride == 1) {                                                                                                 \
        for (j = 0; j < n; j++) tegroup_impl_store_FSUF(TEGROUP_DTYPE_##type, data, first + j, x[j]);                  \
    } else {                                                                                                           \
        for (j = 0; j < n; j++) tegroup_impl_store_FSUF(TEGROUP_DTYPE_##type, data, first + j * stride, x[j]);         \
    }
    switch (dtype) {
    case TEGROUP_DTYPE_F64: TEGROUP_IMPL_STORE_ROW(F64) break;
    case TEGROUP_DTYPE_F32: TEGROUP_IMPL_STORE_ROW(F32) break;
    case TEGROUP_DTYPE_F16: TEGROUP_IMPL_STORE_ROW(F16) break;
    case TEGROUP_DTYPE_F8E4M3: TEGROUP_IMPL_STORE_ROW(F8E4M3) break;
    case TEGROUP_DTYPE_F8E5M2: TEGROUP_IMPL_STORE_ROW(F8E5M2) break;
    case TEGROUP_DTYPE_F4E2M1: TEGROUP_IMPL_STORE_ROW(F4E2M1) break;
    case TEGROUP_DTYPE_F8E8M0: TEGROUP_IMPL_STORE_ROW(F8E8M0) break;
    default: TEGROUP_IMPL_STORE_ROW(BF16) break;
    }
#undef TEGROUP_IMPL_STORE_ROW
}

/* sum + x . y, in eight interleaved sums that are added up in order: fixed, and fast. */
TEGROUP_IMPL_STATIC REAL tegroup_impl_dot_FSUF(const REAL *x, const REAL *y, int64_t n, REAL sum) {
    REAL part[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int64_t j;
    int32_t lane;
    for (j = 0; j + 8 <= n; j += 8)
        for (lane = 0; lane < 8; lane++) part[lane] += x[j + lane] * y[j + lane];
    for (lane = 0; j < n; j++, lane++) part[lane] += x[j] * y[j];
    for (lane = 0; lane < 8; lane++) sum += part[lane];
    return sum;
}
/* @end */
