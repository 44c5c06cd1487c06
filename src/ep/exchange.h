/* ---- Expert parallelism: dispatch and combine ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "ep/ep_types.h"
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
#include "moe/permute.h"
#include "ep/places.h"
#include "ep/sizes.h"

#if TEGROUP_IMPL_EP_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_ep_dispatch(const tegroup_ep_dispatch_desc *desc,
                                                                 const tegroup_impl_ep_reach *reach,
                                                                 struct CUstream_st *stream, tegroup_error *error);
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_ep_combine(const tegroup_ep_combine_desc *desc,
                                                                const tegroup_impl_ep_reach *reach,
                                                                struct CUstream_st *stream, tegroup_error *error);
#endif

/* ---- rules ---- */

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_ep_check_windows(const tegroup_ep_windows *windows,
                                                                 tegroup_error *error) {
    uintptr_t in_order[TEGROUP_EP_MAX_RANKS]; /* the addresses: as they come, most often */
    int32_t r, i;
    TEGROUP_IMPL_TRY(
        tegroup_impl_ep_check_ranks(windows->ranks, windows->rank, "windows.ranks", "windows.rank", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_address(windows->addresses, sizeof(void *), "windows.addresses", error));
    TEGROUP_IMPL_RULE(windows->bytes <= (size_t)tegroup_impl_max_bytes(), ERROR_OVERFLOW, "windows.bytes",
                      "must be addressable", tegroup_impl_max_bytes(), INT64_MAX);
    for (r = 0; r < windows->ranks; r++) {
        TEGROUP_IMPL_RULE(windows->addresses[r] != NULL, ERROR_NULL_ARGUMENT, "windows.addresses",
                          "must hold no NULL: no plain store reaches that rank; got is the rank", -1, r);
        TEGROUP_IMPL_RULE(tegroup_impl_aligned(windows->addresses[r], TEGROUP_ALIGNMENT), ERROR_ALIGNMENT,
                          "windows.addresses", "must be 256-byte aligned; got is the rank", TEGROUP_ALIGNMENT, r);
        for (i = r; i > 0 && in_order[i - 1] > (uintptr_t)windows->addresses[r]; i--) in_order[i] = in_order[i - 1];
        in_order[i] = (uintptr_t)windows->addresses[r];
    }
    for (r = 1; r < windows->ranks; r++)
        TEGROUP_IMPL_RULE(in_order[r] - in_order[r - 1] >= windows->bytes, ERROR_OVERLAP, "windows.addresses",
                          "must lie windows.bytes apart, or more", windows->bytes, in_order[r] - in_order[r - 1]);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_ep_addresses_buffer(const tegroup_ep_windows *windows) {
    return tegroup_impl_buffer_of(windows->addresses, (int64_t)sizeof(void *) * windows->ranks, NULL,
                                  "must not overlap windows.addresses", 0);
}

/* What a call is given beside the windows may lie in this rank's own, but in no other one. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_ep_check_beside(const tegroup_ep_windows *windows,
                                                                const tegroup_impl_buffer *buffers, int32_t count,
                                                                tegroup_error *error) {
    int32_t r, i;
    for (r = 0; r < windows->ranks; r++)
        for (i = 0; i < count && r != windows->rank; i++)
            TEGROUP_IMPL_RULE(!tegroup_impl_overlaps(windows->addresses[r], (int64_t)windows->bytes, buffers[i].base,
                                                     buffers[i].bytes),
                              ERROR_OVERLAP, "windows.addresses", buffers[i].apart, 0, 1);
    return TEGROUP_OK;
}

/* A matrix of rows in the window, where there is what goes there (`with`): of its type, and all of it inside. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_ep_check_rows(const tegroup_ep_windows *windows,
                                                              const tegroup_matrix *m, const char *const paths[5],
                                                              const tegroup_matrix *with, int64_t cols, uint32_t dtypes,
                                                              int64_t *capacity, tegroup_error *error) {
    const char *own = (const char *)windows->addresses[windows->rank];
    int64_t bytes, first;
    if (with->dtype == TEGROUP_DTYPE_UNSET) {
        TEGROUP_IMPL_RULE_AS(DTYPE, m->dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION, paths[4],
                             "must be UNSET without what goes there", TEGROUP_DTYPE_UNSET, m->dtype);
        return tegroup_impl_check_optional(m, paths, -1, -1, dtypes, error);
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(m, paths, *capacity, cols, dtypes, error));
    *capacity = m->rows;
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_capacity(windows->ranks, *capacity, paths[1], error));
    bytes = tegroup_impl_matrix_bytes(m);
    if (bytes == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE((uintptr_t)m->data >= (uintptr_t)own, ERROR_VALUE, paths[0], "must lie in this rank's window", 0,
                      -1);
    first = (int64_t)((uintptr_t)m->data - (uintptr_t)own);
    TEGROUP_IMPL_RULE(first >= 0 && tegroup_impl_add(first, bytes) <= (int64_t)windows->bytes, ERROR_VALUE, paths[0],
                      "must lie in this rank's window", windows->bytes, tegroup_impl_add(first, bytes));
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_ep_check_map(const tegroup_matrix *map, int32_t ranks, int64_t capacity,
                                                             tegroup_error *error) {
    static const char *const paths[5] = TEGROUP_IMPL_MATRIX_PATHS("row_of_slot");
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(map, paths, -1, -1, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_RULE(map->cols >= 1 && map->cols <= TEGROUP_IMPL_CHOICES, ERROR_VALUE, paths[2], "must be 1 to 64",
                      TEGROUP_IMPL_CHOICES, map->cols);
    return tegroup_impl_check_reach(map, paths, ranks * capacity, error);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_ep_dispatch_check(const tegroup_ep_dispatch_desc *desc,
                                                                  int64_t *capacity, tegroup_error *error) {
    static const char *const ins[3][5] = {TEGROUP_IMPL_MATRIX_PATHS("tokens"), TEGROUP_IMPL_MATRIX_PATHS("scales"),
                                          TEGROUP_IMPL_MATRIX_PATHS("weights")},
                             *const outs[3][5] = {TEGROUP_IMPL_MATRIX_PATHS("rows"),
                                                  TEGROUP_IMPL_MATRIX_PATHS("row_scales"),
                                                  TEGROUP_IMPL_MATRIX_PATHS("row_weights")},
                             *const links[5] = TEGROUP_IMPL_MATRIX_PATHS("row_links");
    const tegroup_matrix *const in[3] = {&desc->tokens, &desc->scales, &desc->weights};
    const tegroup_matrix *const out[3] = {&desc->rows, &desc->row_scales, &desc->row_weights};
    tegroup_impl_buffer buffers[9];
    int32_t i;
    *capacity = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_windows(&desc->windows, error));
    TEGROUP_IMPL_RULE_AS(DTYPES, tegroup_impl_there(in[0]) || tegroup_impl_there(in[1]) || tegroup_impl_there(in[2]),
                         ERROR_UNSET, ins[0][4], "must be set without scales and weights",
                         TEGROUP_IMPL_FLOATS | TEGROUP_IMPL_BYTES, 0);
    for (i = 0; i < 3; i++) {
        const uint32_t dtypes = i == 2 ? TEGROUP_IMPL_REALS : TEGROUP_IMPL_FLOATS | TEGROUP_IMPL_BYTES;
        TEGROUP_IMPL_TRY(tegroup_impl_check_optional(in[i], ins[i], desc->row_of_slot.rows,
                                                     i == 2 ? desc->row_of_slot.cols : -1, dtypes, error));
        TEGROUP_IMPL_TRY(tegroup_impl_ep_check_rows(&desc->windows, out[i], outs[i], in[i], i == 2 ? 1 : in[i]->cols,
                                                    tegroup_impl_there(in[i]) ? 1u << in[i]->dtype : dtypes, capacity,
                                                    error));
    }
    TEGROUP_IMPL_RULE_AS(DTYPE, tegroup_impl_there(&desc->tokens) || !tegroup_impl_there(&desc->row_links),
                         ERROR_COMBINATION, links[4], "must be UNSET without tokens", TEGROUP_DTYPE_UNSET,
                         desc->row_links.dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_rows(&desc->windows, &desc->row_links, links, &desc->row_links, 1,
                                                1u << TEGROUP_DTYPE_I32, capacity, error));
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_map(&desc->row_of_slot, desc->windows.ranks, *capacity, error));
    buffers[0] = tegroup_impl_matrix_buffer(out[0], outs[0][0], "must not overlap rows", 1);
    buffers[1] = tegroup_impl_matrix_buffer(out[1], outs[1][0], "must not overlap row_scales", 1);
    buffers[2] = tegroup_impl_matrix_buffer(out[2], outs[2][0], "must not overlap row_weights", 1);
    buffers[3] = tegroup_impl_matrix_buffer(in[0], NULL, "must not overlap tokens", 0);
    buffers[4] = tegroup_impl_matrix_buffer(in[1], NULL, "must not overlap scales", 0);
    buffers[5] = tegroup_impl_matrix_buffer(in[2], NULL, "must not overlap weights", 0);
    buffers[6] = tegroup_impl_matrix_buffer(&desc->row_of_slot, NULL, "must not overlap row_of_slot", 0);
    buffers[7] = tegroup_impl_ep_addresses_buffer(&desc->windows);
    buffers[8] = tegroup_impl_matrix_buffer(&desc->row_links, links[0], "must not overlap row_links", 1);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 9, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_beside(&desc->windows, buffers + 3, 5, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_EP_KERNELS, desc->space, error);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_ep_combine_check(const tegroup_ep_combine_desc *desc, int64_t *capacity,
                                                                 tegroup_error *error) {
    static const char *const rows[5] = TEGROUP_IMPL_MATRIX_PATHS("rows"),
                             *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("weights"),
                             *const tokens[5] = TEGROUP_IMPL_MATRIX_PATHS("tokens"),
                             *const row_values[5] = TEGROUP_IMPL_MATRIX_PATHS("row_values"),
                             *const values[5] = TEGROUP_IMPL_MATRIX_PATHS("values");
    const int64_t slots = desc->row_of_slot.rows, k = desc->row_of_slot.cols;
    tegroup_impl_buffer buffers[7];
    *capacity = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_windows(&desc->windows, error));
    TEGROUP_IMPL_RULE_AS(DTYPES, tegroup_impl_there(&desc->tokens) || tegroup_impl_there(&desc->values), ERROR_UNSET,
                         tokens[4], "must be set without values", TEGROUP_IMPL_FLOATS, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->tokens, tokens, slots, -1, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_rows(&desc->windows, &desc->rows, rows, &desc->tokens, desc->tokens.cols,
                                                TEGROUP_IMPL_FLOATS, capacity, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->weights, weights, slots, k, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_RULE_AS(DTYPE, tegroup_impl_there(&desc->rows) || !tegroup_impl_there(&desc->weights),
                         ERROR_COMBINATION, weights[4], "must be UNSET without rows", TEGROUP_DTYPE_UNSET,
                         desc->weights.dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->values, values, slots, k, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_rows(
        &desc->windows, &desc->row_values, row_values, &desc->values, 1,
        tegroup_impl_there(&desc->values) ? 1u << desc->values.dtype : TEGROUP_IMPL_REALS, capacity, error));
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_map(&desc->row_of_slot, desc->windows.ranks, *capacity, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_accumulate(desc->accumulate, &desc->rows, &desc->tokens, error));
    TEGROUP_IMPL_RULE(!desc->accumulate || tegroup_impl_there(&desc->tokens), ERROR_COMBINATION, "accumulate",
                      "needs tokens", 0, desc->accumulate);
    TEGROUP_IMPL_RULE(desc->by_owner == 0 || desc->by_owner == 1, ERROR_VALUE, "by_owner", "must be 0 or 1", 1,
                      desc->by_owner);
    TEGROUP_IMPL_RULE(!desc->by_owner || tegroup_impl_there(&desc->tokens), ERROR_COMBINATION, "by_owner",
                      "needs tokens", 0, desc->by_owner);
    TEGROUP_IMPL_RULE_AS(DTYPE, !desc->by_owner || !tegroup_impl_there(&desc->weights), ERROR_COMBINATION, weights[4],
                         "must be UNSET with by_owner, since rows are added before", TEGROUP_DTYPE_UNSET,
                         desc->weights.dtype);
    buffers[0] = tegroup_impl_matrix_buffer(&desc->rows, NULL, "must not overlap rows", 0);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->row_values, NULL, "must not overlap row_values", 0);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->tokens, tokens[0], "must not overlap tokens", 1);
    buffers[3] = tegroup_impl_matrix_buffer(&desc->values, values[0], "must not overlap values", 1);
    buffers[4] = tegroup_impl_matrix_buffer(&desc->weights, NULL, "must not overlap weights", 0);
    buffers[5] = tegroup_impl_matrix_buffer(&desc->row_of_slot, NULL, "must not overlap row_of_slot", 0);
    buffers[6] = tegroup_impl_ep_addresses_buffer(&desc->windows);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 7, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_beside(&desc->windows, buffers + 2, 5, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_EP_KERNELS, desc->space, error);
}

TEGROUP_IMPL_STATIC tegroup_impl_ep_reach tegroup_impl_ep_reach_of(const tegroup_ep_windows *windows,
                                                                   int64_t capacity) {
    tegroup_impl_ep_reach reach;
    int32_t r;
    memset(&reach, 0, sizeof reach);
    reach.capacity = capacity;
    reach.ranks = windows->ranks;
    reach.rank = windows->rank;
    for (r = 0; r < windows->ranks; r++)
        reach.ahead_bytes[r] =
            (int64_t)((uintptr_t)windows->addresses[r] - (uintptr_t)windows->addresses[windows->rank]);
    return reach;
}

/* ---- on the CPU ---- */

/* Copies a row of n elements to where a slot's row is. */
TEGROUP_IMPL_STATIC void tegroup_impl_ep_copy(const tegroup_impl_ep_reach *reach, const tegroup_matrix *out,
                                              int64_t row, const void *from, int64_t n) {
    char *to = tegroup_impl_there(out) && n > 0 ? tegroup_impl_ep_row(reach, out, row) : NULL;
    if (to) memcpy(to, from, (size_t)n * tegroup_impl_element(out->dtype));
}

/* The ranks that own the rows of a token's slots; -1 where a slot has none. */
TEGROUP_IMPL_STATIC void tegroup_impl_ep_owners(const tegroup_impl_ep_reach *reach, const tegroup_matrix *map,
                                                int64_t token, int32_t owners[TEGROUP_IMPL_CHOICES]) {
    int64_t j;
    for (j = 0; j < map->cols; j++) owners[j] = tegroup_impl_ep_owner(reach, tegroup_impl_entry(map, token, j));
}

/* The least of k owners above `owner`; -1 = none. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_ep_owner_after(const int32_t *owners, int32_t k, int32_t owner) {
    int32_t least = -1, j;
    for (j = 0; j < k; j++)
        if (owners[j] > owner && (least < 0 || owners[j] < least)) least = owners[j];
    return least;
}

TEGROUP_IMPL_STATIC void tegroup_impl_ep_dispatch_token(const tegroup_ep_dispatch_desc *desc,
                                                        const tegroup_impl_ep_reach *reach, int64_t t) {
    const int32_t k = (int32_t)desc->row_of_slot.cols;
    int32_t owners[TEGROUP_IMPL_CHOICES], j;
    tegroup_impl_ep_owners(reach, &desc->row_of_slot, t, owners);
    for (j = 0; j < k; j++) {
        const int64_t row = tegroup_impl_entry(&desc->row_of_slot, t, j);
        int stores = owners[j] >= 0;
        if (stores && tegroup_impl_there(&desc->row_links)) {
            const int32_t link = tegroup_impl_ep_link(desc, reach, owners, t, j, &stores);
            tegroup_impl_ep_copy(reach, &desc->row_links, row, &link, 1);
            stores |= owners[j] == reach->rank;
        }
        if (stores) {
            tegroup_impl_ep_copy(reach, &desc->rows, row, tegroup_impl_matrix_row(&desc->tokens, t), desc->tokens.cols);
            tegroup_impl_ep_copy(reach, &desc->row_scales, row, tegroup_impl_matrix_row(&desc->scales, t),
                                 desc->scales.cols);
        }
        if (tegroup_impl_there(&desc->weights))
            tegroup_impl_ep_copy(
                reach, &desc->row_weights, row,
                tegroup_impl_matrix_row(&desc->weights, t) + j * (int64_t)tegroup_impl_element(desc->weights.dtype), 1);
    }
}

TEGROUP_API tegroup_status tegroup_ep_dispatch(const tegroup_ep_dispatch_desc *desc, struct CUstream_st *stream,
                                               tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_ep_dispatch")
    tegroup_ep_dispatch_desc taken;
    tegroup_impl_ep_reach reach;
    int64_t capacity, t;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_ep_dispatch_check(desc, &capacity, error));
    reach = tegroup_impl_ep_reach_of(&desc->windows, capacity);
#if TEGROUP_IMPL_EP_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_ep_dispatch(desc, &reach, stream, error);
#endif
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(tegroup_impl_rows_team(
        desc->threads, desc->row_of_slot.rows, desc->row_of_slot.cols, desc->tokens.cols + desc->scales.cols)))
    for (t = 0; t < desc->row_of_slot.rows; t++) tegroup_impl_ep_dispatch_token(desc, &reach, t);
    return TEGROUP_OK;
}

/* @each-real */
/* One token: its slots' rows, weighted and added in the order of its choices, step for step as tegroup_combine does it
 * (moe/permutation.h): the bits are those of one rank. */
TEGROUP_IMPL_STATIC void tegroup_impl_ep_combine_row_FSUF(const tegroup_ep_combine_desc *desc,
                                                          const tegroup_impl_ep_reach *reach, int64_t token) {
    const int64_t k = desc->row_of_slot.cols;
    int64_t at, slot;
    REAL sum[TEGROUP_IMPL_PIECE];
    for (at = 0; at < desc->tokens.cols; at += TEGROUP_IMPL_PIECE) {
        const int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, desc->tokens.cols - at);
        tegroup_impl_begin_row_FSUF(&desc->tokens, token, at, n, desc->accumulate, sum);
        for (slot = 0; slot < k; slot++) {
            const char *from =
                tegroup_impl_ep_row(reach, &desc->rows, tegroup_impl_entry(&desc->row_of_slot, token, slot));
            if (!from) continue;
            tegroup_impl_add_row_FSUF(desc->rows.dtype, from, at, n,
                                      (REAL)tegroup_impl_slot_weight(&desc->weights, token * k + slot), sum);
        }
        tegroup_impl_store_row_FSUF(desc->tokens.dtype, tegroup_impl_matrix_row(&desc->tokens, token), at, 1, n, sum);
    }
}

/* Some elements, from `at` on, of the sum of a token's rows that `owner` has: one row's value, or of this rank's own
 * rows the sum, rounded to their type. owners: of the token's slots, among them this one. */
TEGROUP_IMPL_STATIC void tegroup_impl_ep_sum_of_FSUF(const tegroup_ep_combine_desc *desc,
                                                     const tegroup_impl_ep_reach *reach, int64_t token,
                                                     const int32_t *owners, int32_t owner, int64_t at, int64_t n,
                                                     REAL *sum) {
    REAL rounded[TEGROUP_IMPL_PIECE];
    int64_t slot;
    int32_t rows = 0;
    for (slot = 0; slot < desc->row_of_slot.cols; slot++) {
        const char *from;
        if (owners[slot] != owner || (rows > 0 && owner != reach->rank)) continue;
        from = tegroup_impl_ep_row(reach, &desc->rows, tegroup_impl_entry(&desc->row_of_slot, token, slot));
        if (rows++ == 0) tegroup_impl_load_row_FSUF(desc->rows.dtype, from, at, 1, n, sum);
        else tegroup_impl_add_row_FSUF(desc->rows.dtype, from, at, n, 1, sum);
    }
    if (rows > 1) {
        tegroup_impl_store_row_FSUF(desc->rows.dtype, rounded, 0, 1, n, sum);
        tegroup_impl_load_row_FSUF(desc->rows.dtype, rounded, 0, 1, n, sum);
    }
}

/* One token: the sums of its owners' rows, added in the order of ranks. */
TEGROUP_IMPL_STATIC void tegroup_impl_ep_combine_owners_FSUF(const tegroup_ep_combine_desc *desc,
                                                             const tegroup_impl_ep_reach *reach, int64_t token) {
    const int32_t k = (int32_t)desc->row_of_slot.cols;
    int64_t at, i;
    int32_t owners[TEGROUP_IMPL_CHOICES], owner;
    REAL sum[TEGROUP_IMPL_PIECE], of_owner[TEGROUP_IMPL_PIECE];
    tegroup_impl_ep_owners(reach, &desc->row_of_slot, token, owners);
    for (at = 0; at < desc->tokens.cols; at += TEGROUP_IMPL_PIECE) {
        const int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, desc->tokens.cols - at);
        tegroup_impl_begin_row_FSUF(&desc->tokens, token, at, n, desc->accumulate, sum);
        for (owner = -1; (owner = tegroup_impl_ep_owner_after(owners, k, owner)) >= 0;) {
            tegroup_impl_ep_sum_of_FSUF(desc, reach, token, owners, owner, at, n, of_owner);
            for (i = 0; i < n; i++) sum[i] += of_owner[i];
        }
        tegroup_impl_store_row_FSUF(desc->tokens.dtype, tegroup_impl_matrix_row(&desc->tokens, token), at, 1, n, sum);
    }
}
/* @end */

TEGROUP_IMPL_STATIC void tegroup_impl_ep_collect(const tegroup_ep_combine_desc *desc,
                                                 const tegroup_impl_ep_reach *reach, int64_t token) {
    int64_t j;
    for (j = 0; j < desc->values.cols; j++) {
        const char *from =
            tegroup_impl_ep_row(reach, &desc->row_values, tegroup_impl_entry(&desc->row_of_slot, token, j));
        tegroup_impl_store_f64(desc->values.dtype, tegroup_impl_matrix_row(&desc->values, token), j,
                               from ? tegroup_impl_load_f64(desc->values.dtype, from, 0) : 0);
    }
}

TEGROUP_API tegroup_status tegroup_ep_combine(const tegroup_ep_combine_desc *desc, struct CUstream_st *stream,
                                              tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_ep_combine")
    tegroup_ep_combine_desc taken;
    tegroup_impl_ep_reach reach;
    int64_t capacity, t;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_ep_combine_check(desc, &capacity, error));
    reach = tegroup_impl_ep_reach_of(&desc->windows, capacity);
#if TEGROUP_IMPL_EP_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_ep_combine(desc, &reach, stream, error);
#endif
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(tegroup_impl_rows_team(
        desc->threads, desc->row_of_slot.rows, desc->row_of_slot.cols, desc->tokens.cols)))
    for (t = 0; t < desc->row_of_slot.rows; t++) {
        if (tegroup_impl_there(&desc->values)) tegroup_impl_ep_collect(desc, &reach, t);
        if (!tegroup_impl_there(&desc->tokens)) continue;
        if (desc->by_owner && desc->rows.dtype == TEGROUP_DTYPE_F64)
            tegroup_impl_ep_combine_owners_f64(desc, &reach, t);
        else if (desc->by_owner) tegroup_impl_ep_combine_owners_f32(desc, &reach, t);
        else if (desc->rows.dtype == TEGROUP_DTYPE_F64) tegroup_impl_ep_combine_row_f64(desc, &reach, t);
        else tegroup_impl_ep_combine_row_f32(desc, &reach, t);
    }
    return TEGROUP_OK;
}
