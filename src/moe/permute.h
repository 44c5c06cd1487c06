/* ---- Permute and combine ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "moe/routing_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "base/range.h"
#include "formats/convert.h"
#include "core/checks.h"
#include "core/apart.h"
#include "cpu/rows.h"
#include "moe/router_scheme.h"
#include "moe/permutation.h"

#if TEGROUP_IMPL_MOE_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_permute(const tegroup_permute_desc *desc,
                                                             struct CUstream_st *stream, tegroup_error *error);
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_combine(const tegroup_combine_desc *desc,
                                                             struct CUstream_st *stream, tegroup_error *error);
#endif
#if TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_combine_backward(const tegroup_combine_backward_desc *desc,
                                                                      struct CUstream_st *stream, tegroup_error *error);
#endif

/* @each-real */
/* to[j] = weight * from[j] */
TEGROUP_IMPL_STATIC void tegroup_impl_scale_row_FSUF(const tegroup_matrix *in, int64_t from, const tegroup_matrix *out,
                                                     int64_t to, REAL weight) {
    REAL x[TEGROUP_IMPL_PIECE];
    int64_t at, j;
    for (at = 0; at < out->cols; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, out->cols - at);
        tegroup_impl_load_row_FSUF(in->dtype, tegroup_impl_matrix_row(in, from), at, 1, n, x);
        for (j = 0; j < n; j++) x[j] *= weight;
        tegroup_impl_store_row_FSUF(out->dtype, tegroup_impl_matrix_row(out, to), at, 1, n, x);
    }
}

/* What the sums of a row begin with: what it holds, or 0. */
TEGROUP_IMPL_STATIC void tegroup_impl_begin_row_FSUF(const tegroup_matrix *out, int64_t row, int64_t at, int64_t n,
                                                     int32_t accumulate, REAL *sum) {
    int64_t j;
    if (accumulate) tegroup_impl_load_row_FSUF(out->dtype, tegroup_impl_matrix_row(out, row), at, 1, n, sum);
    for (j = 0; j < n && !accumulate; j++) sum[j] = 0;
}

/* One token: its k rows, weighted and added in the order of its choices. */
TEGROUP_IMPL_STATIC void tegroup_impl_combine_row_FSUF(const tegroup_combine_desc *desc, int64_t token) {
    const tegroup_matrix *in = &desc->permuted, *out = &desc->tokens;
    int64_t k = desc->row_of_slot.cols, at, slot;
    REAL sum[TEGROUP_IMPL_PIECE];
    for (at = 0; at < out->cols; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, out->cols - at);
        tegroup_impl_begin_row_FSUF(out, token, at, n, desc->accumulate, sum);
        for (slot = 0; slot < k; slot++) {
            const int64_t row = tegroup_impl_entry(&desc->row_of_slot, token, slot);
            if (!tegroup_impl_within(row, in->rows)) continue;
            tegroup_impl_add_row_FSUF(in->dtype, tegroup_impl_matrix_row(in, row), at, n,
                                      (REAL)tegroup_impl_slot_weight(&desc->weights, token * k + slot), sum);
        }
        tegroup_impl_store_row_FSUF(out->dtype, tegroup_impl_matrix_row(out, token), at, 1, n, sum);
    }
}

TEGROUP_IMPL_STATIC REAL tegroup_impl_dot_row_FSUF(const tegroup_matrix *a, int64_t i, const tegroup_matrix *b,
                                                   int64_t r) {
    REAL x[TEGROUP_IMPL_PIECE], y[TEGROUP_IMPL_PIECE], sum = 0;
    int64_t at;
    for (at = 0; at < a->cols; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, a->cols - at);
        tegroup_impl_load_row_FSUF(a->dtype, tegroup_impl_matrix_row(a, i), at, 1, n, x);
        tegroup_impl_load_row_FSUF(b->dtype, tegroup_impl_matrix_row(b, r), at, 1, n, y);
        sum = tegroup_impl_dot_FSUF(x, y, n, sum);
    }
    return sum;
}
/* @end */

/* Sums of narrower rows are F32: what F64 holds would not fit. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_accumulate(int32_t accumulate, const tegroup_matrix *rows,
                                                                 const tegroup_matrix *tokens, tegroup_error *error) {
    TEGROUP_IMPL_RULE(accumulate == 0 || accumulate == 1, ERROR_VALUE, "accumulate", "must be 0 or 1", 1, accumulate);
    TEGROUP_IMPL_RULE(!accumulate || tokens->dtype != TEGROUP_DTYPE_F64 || rows->dtype == TEGROUP_DTYPE_F64,
                      ERROR_COMBINATION, "accumulate", "must be 0 where tokens are F64 and rows are not", 0,
                      accumulate);
    return TEGROUP_OK;
}

/* The threads that rows of `choices` rows each are worth. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_rows_team(int32_t limit, int64_t rows, int64_t choices, int64_t cols) {
    return tegroup_impl_team(tegroup_impl_threads(limit), (double)rows * (double)choices * (double)cols);
}

/* What permute copies byte by byte: types of whole bytes that are not floating point. */
#define TEGROUP_IMPL_BYTES                                                                                             \
    (1u << TEGROUP_DTYPE_F8E4M3 | 1u << TEGROUP_DTYPE_F8E5M2 | 1u << TEGROUP_DTYPE_F8E8M0 | TEGROUP_IMPL_INTEGERS)

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_permute_check(const tegroup_permute_desc *desc, tegroup_error *error) {
    static const char *const tokens[5] = TEGROUP_IMPL_MATRIX_PATHS("tokens"),
                             *const slot_of_row[5] = TEGROUP_IMPL_MATRIX_PATHS("slot_of_row"),
                             *const row_of_slot[5] = TEGROUP_IMPL_MATRIX_PATHS("row_of_slot"),
                             *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("weights"),
                             *const permuted[5] = TEGROUP_IMPL_MATRIX_PATHS("permuted");
    const int weighted = desc->weights.dtype != TEGROUP_DTYPE_UNSET,
              by_slots = desc->row_of_slot.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_impl_buffer buffers[5];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_RULE(desc->k >= 1 && desc->k <= TEGROUP_IMPL_CHOICES, ERROR_VALUE, "k", "must be 1 to 64",
                      TEGROUP_IMPL_CHOICES, desc->k);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->tokens, tokens, -1, -1, TEGROUP_IMPL_FLOATS | TEGROUP_IMPL_BYTES, error));
    TEGROUP_IMPL_RULE_AS(DTYPES, !weighted || tegroup_impl_is_float(desc->tokens.dtype), ERROR_DTYPE, tokens[4],
                         "must be floating point with weights", TEGROUP_IMPL_FLOATS, desc->tokens.dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->row_of_slot, row_of_slot, desc->tokens.rows, desc->k,
                                                 TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->row_of_slot, row_of_slot, desc->permuted.rows, error));
    if (!by_slots)
        TEGROUP_IMPL_TRY(tegroup_impl_check_map(&desc->slot_of_row, slot_of_row, 1, -1,
                                                tegroup_impl_mul(desc->tokens.rows, desc->k), error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(
        &desc->permuted, permuted, by_slots ? -1 : desc->slot_of_row.cols, desc->tokens.cols,
        tegroup_impl_is_float(desc->tokens.dtype) ? TEGROUP_IMPL_FLOATS : 1u << desc->tokens.dtype, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->weights, weights, desc->tokens.rows, desc->k, TEGROUP_IMPL_REALS, error));
    buffers[0] = tegroup_impl_matrix_buffer(&desc->permuted, permuted[0], NULL, 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->tokens, NULL, "must not overlap tokens", 0);
    /* Of two maps one is not read, but it stays the caller's. */
    buffers[2] = tegroup_impl_matrix_buffer(&desc->row_of_slot, NULL, "must not overlap row_of_slot", 0);
    buffers[3] = tegroup_impl_matrix_buffer(&desc->slot_of_row, NULL, "must not overlap slot_of_row", 0);
    buffers[4] = tegroup_impl_matrix_buffer(&desc->weights, NULL, "must not overlap weights", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 5, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error);
}

TEGROUP_IMPL_STATIC int32_t tegroup_impl_permute_team(const tegroup_permute_desc *desc) {
    return tegroup_impl_rows_team(desc->threads, tegroup_impl_min(desc->permuted.rows, desc->tokens.rows * desc->k), 1,
                                  desc->permuted.cols);
}

/* Puts a slot's token into a row, unless one of them is outside. */
TEGROUP_IMPL_STATIC void tegroup_impl_permute_slot(const tegroup_permute_desc *desc, int64_t slot, int64_t row) {
    double weight;
    if (!tegroup_impl_within(slot, tegroup_impl_mul(desc->tokens.rows, desc->k))
        || !tegroup_impl_within(row, desc->permuted.rows))
        return;
    weight = tegroup_impl_slot_weight(&desc->weights, slot);
    if (!tegroup_impl_is_float(desc->tokens.dtype))
        memcpy(tegroup_impl_matrix_row(&desc->permuted, row), tegroup_impl_matrix_row(&desc->tokens, slot / desc->k),
               (size_t)desc->tokens.cols * tegroup_impl_element(desc->tokens.dtype));
    else if (desc->tokens.dtype == TEGROUP_DTYPE_F64)
        tegroup_impl_scale_row_f64(&desc->tokens, slot / desc->k, &desc->permuted, row, weight);
    else tegroup_impl_scale_row_f32(&desc->tokens, slot / desc->k, &desc->permuted, row, (float)weight);
}

TEGROUP_API tegroup_status tegroup_permute(const tegroup_permute_desc *desc, struct CUstream_st *stream,
                                           tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_permute")
    tegroup_permute_desc taken;
    int64_t row, t, j;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_permute_check(desc, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_permute(desc, stream, error);
#endif
    if (desc->row_of_slot.dtype != TEGROUP_DTYPE_UNSET) {
        TEGROUP_IMPL_OMP(omp parallel for schedule(static) private(j) num_threads(tegroup_impl_permute_team(desc)))
        for (t = 0; t < tegroup_impl_matrix_rows(&desc->tokens); t++)
            for (j = 0; j < desc->k; j++)
                tegroup_impl_permute_slot(desc, t * desc->k + j, tegroup_impl_entry(&desc->row_of_slot, t, j));
        return TEGROUP_OK;
    }
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(tegroup_impl_permute_team(desc)))
    for (row = 0; row < tegroup_impl_matrix_rows(&desc->permuted); row++)
        tegroup_impl_permute_slot(desc, tegroup_impl_entry(&desc->slot_of_row, 0, row), row);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_combine(const tegroup_combine_desc *desc, struct CUstream_st *stream,
                                           tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_combine")
    tegroup_combine_desc taken;
    static const char *const permuted[5] = TEGROUP_IMPL_MATRIX_PATHS("permuted"),
                             *const row_of_slot[5] = TEGROUP_IMPL_MATRIX_PATHS("row_of_slot"),
                             *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("weights"),
                             *const tokens[5] = TEGROUP_IMPL_MATRIX_PATHS("tokens");
    tegroup_impl_buffer buffers[4];
    int64_t t;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->permuted, permuted, -1, -1, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_map(&desc->row_of_slot, row_of_slot, -1, -1, desc->permuted.rows, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->tokens, tokens, desc->row_of_slot.rows, desc->permuted.cols,
                                               TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->weights, weights, desc->row_of_slot.rows,
                                                 desc->row_of_slot.cols, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_accumulate(desc->accumulate, &desc->permuted, &desc->tokens, error));
    buffers[0] = tegroup_impl_matrix_buffer(&desc->tokens, tokens[0], NULL, 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->permuted, NULL, "must not overlap permuted", 0);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->row_of_slot, NULL, "must not overlap row_of_slot", 0);
    buffers[3] = tegroup_impl_matrix_buffer(&desc->weights, NULL, "must not overlap weights", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 4, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_combine(desc, stream, error);
#endif
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
        tegroup_impl_rows_team(desc->threads, desc->tokens.rows, desc->row_of_slot.cols, desc->tokens.cols)))
    for (t = 0; t < tegroup_impl_matrix_rows(&desc->tokens); t++) {
        if (desc->permuted.dtype == TEGROUP_DTYPE_F64) tegroup_impl_combine_row_f64(desc, t);
        else tegroup_impl_combine_row_f32(desc, t);
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_combine_backward(const tegroup_combine_backward_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_combine_backward")
    tegroup_combine_backward_desc taken;
    static const char *const grad_tokens[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_tokens"),
                             *const permuted[5] = TEGROUP_IMPL_MATRIX_PATHS("permuted"),
                             *const row_of_slot[5] = TEGROUP_IMPL_MATRIX_PATHS("row_of_slot"),
                             *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("weights"),
                             *const grad_permuted[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_permuted"),
                             *const grad_weights[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_weights");
    tegroup_impl_buffer buffers[6];
    int64_t k, t, j;
    int wants_weights;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    wants_weights = desc->grad_weights.dtype != TEGROUP_DTYPE_UNSET;
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->grad_tokens, grad_tokens, -1, -1, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->row_of_slot, row_of_slot, desc->grad_tokens.rows, -1,
                                               TEGROUP_IMPL_INTEGERS, error));
    k = desc->row_of_slot.cols;
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->grad_permuted, grad_permuted, -1, desc->grad_tokens.cols,
                                               TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->row_of_slot, row_of_slot, desc->grad_permuted.rows, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->weights, weights, desc->grad_tokens.rows, k, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->grad_weights, grad_weights, desc->grad_tokens.rows, k,
                                                 TEGROUP_IMPL_REALS, error));
    if (wants_weights) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->permuted, permuted, desc->grad_permuted.rows,
                                                   desc->grad_tokens.cols, TEGROUP_IMPL_FLOATS, error));
    } else {
        TEGROUP_IMPL_RULE_AS(DTYPE, desc->permuted.dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION, "permuted.dtype",
                             "must be UNSET without grad_weights", TEGROUP_DTYPE_UNSET, desc->permuted.dtype);
        TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->permuted, permuted, -1, -1, TEGROUP_IMPL_FLOATS, error));
    }
    buffers[0] = tegroup_impl_matrix_buffer(&desc->grad_weights, grad_weights[0], NULL, 1);
    buffers[1] =
        tegroup_impl_matrix_buffer(&desc->grad_permuted, grad_permuted[0], "must not overlap grad_permuted", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->grad_tokens, NULL, "must not overlap grad_tokens", 0);
    buffers[3] = tegroup_impl_matrix_buffer(&desc->permuted, NULL, "must not overlap permuted", 0);
    buffers[4] = tegroup_impl_matrix_buffer(&desc->row_of_slot, NULL, "must not overlap row_of_slot", 0);
    buffers[5] = tegroup_impl_matrix_buffer(&desc->weights, NULL, "must not overlap weights", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 6, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS, desc->space, error));
#if TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_combine_backward(desc, stream, error);
#endif
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) private(j) num_threads(
        tegroup_impl_rows_team(desc->threads, desc->grad_tokens.rows, k, (1 + wants_weights) * desc->grad_tokens.cols)))
    for (t = 0; t < tegroup_impl_matrix_rows(&desc->row_of_slot); t++)
        for (j = 0; j < k; j++) {
            int64_t row = tegroup_impl_entry(&desc->row_of_slot, t, j);
            double weight = tegroup_impl_slot_weight(&desc->weights, t * k + j), grad_weight = 0;
            int there = tegroup_impl_within(row, desc->grad_permuted.rows),
                is_f64 = desc->grad_tokens.dtype == TEGROUP_DTYPE_F64;
            if (there && is_f64) tegroup_impl_scale_row_f64(&desc->grad_tokens, t, &desc->grad_permuted, row, weight);
            if (there && !is_f64)
                tegroup_impl_scale_row_f32(&desc->grad_tokens, t, &desc->grad_permuted, row, (float)weight);
            if (!wants_weights) continue;
            if (there && is_f64) grad_weight = tegroup_impl_dot_row_f64(&desc->grad_tokens, t, &desc->permuted, row);
            if (there && !is_f64)
                grad_weight = (double)tegroup_impl_dot_row_f32(&desc->grad_tokens, t, &desc->permuted, row);
            tegroup_impl_store_f64(desc->grad_weights.dtype, tegroup_impl_matrix_row(&desc->grad_weights, t), j,
                                   grad_weight);
        }
    return TEGROUP_OK;
}
