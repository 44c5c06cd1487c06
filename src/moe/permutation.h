/* ---- Permutation ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "moe/routing_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "base/range.h"
#include "formats/dtype.h"
#include "core/constructors.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/snapshot_checks.h"
#include "core/apart.h"
#include "core/prepare_rules.h"
#include "gemm/prepare.h"
#include "moe/count.h"
#include "moe/router_scheme.h"

#if TEGROUP_IMPL_MOE_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_permutation_make(const tegroup_permutation_desc *desc,
                                                                      const tegroup_prepare_desc *prepare,
                                                                      struct CUstream_st *stream, tegroup_error *error);
#endif

/* An entry of a matrix of indices, or of a map. */
TEGROUP_IMPL_HD int64_t tegroup_impl_entry(const tegroup_matrix *m, int64_t row, int64_t col) {
    return tegroup_impl_load_int(m->dtype, tegroup_impl_matrix_row(m, row), col);
}

/* A map is as wide as its numbers, which are below `count`, need it to be. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_map(const tegroup_matrix *map, const char *const paths[5],
                                                          int64_t rows, int64_t cols, int64_t count,
                                                          tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(map, paths, rows, cols, TEGROUP_IMPL_INTEGERS, error));
    return tegroup_impl_check_reach(map, paths, count, error);
}

/* Weight of a slot, 1 when there are none. */
TEGROUP_IMPL_HD double tegroup_impl_slot_weight(const tegroup_matrix *weights, int64_t slot) {
    int64_t ld = weights->ld > 0 ? weights->ld : weights->cols;
    if (weights->dtype == TEGROUP_DTYPE_UNSET) return 1;
    return tegroup_impl_load_f64(weights->dtype, weights->data, slot / weights->cols * ld + slot % weights->cols);
}

/* What a permutation's workspace has, which only the GPU needs; all but the first two with weights. */
enum {
    TEGROUP_IMPL_PERMUTATION_BEFORE,
    TEGROUP_IMPL_PERMUTATION_COUNTS,
    TEGROUP_IMPL_PERMUTATION_KEPT,
    TEGROUP_IMPL_PERMUTATION_DIGITS,
    TEGROUP_IMPL_PERMUTATION_ROOM
};

/* Slots of one run: a warp counts a run's slots by expert, and takes them in order. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_permutation_run(int32_t experts) {
    return 512 * tegroup_impl_max(1, tegroup_impl_ceil_div(experts, 1024));
}

/* A slot's weight as an integer that is larger where the weight is, NaN smallest; its bits. */
TEGROUP_IMPL_HD int32_t tegroup_impl_weight_bits(const tegroup_matrix *weights) {
    return weights->dtype == TEGROUP_DTYPE_F64 ? 64 : 32;
}
TEGROUP_IMPL_HD uint64_t tegroup_impl_weight_key(const tegroup_matrix *weights, int64_t slot) {
    const double weight = tegroup_impl_slot_weight(weights, slot);
    return weights->dtype == TEGROUP_DTYPE_F64 ? tegroup_impl_key_of_f64(weight)
                                               : tegroup_impl_key_of_f32((float)weight);
}

/* Which slots full groups keep, by weight: row_of_slot becomes 0 for these and -1 for all others. Bit by bit from the
 * highest on, a group keeps those slots whose bit is set if it has room for all of them, and else drops the others:
 * what is between is undecided, 1. Of equal weights the first slots are kept. No memory is needed. */
TEGROUP_IMPL_STATIC void tegroup_impl_keep_heaviest(const tegroup_permutation_desc *desc,
                                                    const tegroup_snapshot_view *view) {
    const tegroup_matrix *rows = &desc->row_of_slot;
    const int64_t k = desc->indices.cols, tokens = tegroup_impl_matrix_rows(&desc->indices);
    int64_t left[TEGROUP_MAX_GROUPS], set[TEGROUP_MAX_GROUPS], t, j;
    int32_t bit, pass, g;
    for (g = 0; g < desc->shape.groups; g++) left[g] = view->rows[g];
    for (t = 0; t < tokens; t++)
        for (j = 0; j < k; j++)
            tegroup_impl_store_int(
                rows->dtype, tegroup_impl_matrix_row(rows, t), j,
                tegroup_impl_within(tegroup_impl_entry(&desc->indices, t, j), desc->shape.groups) ? 1 : -1);
    for (bit = tegroup_impl_weight_bits(&desc->weights) - 1; bit >= 0; bit--) {
        memset(set, 0, sizeof set);
        for (pass = 0; pass < 2; pass++)
            for (t = 0; t < tokens; t++)
                for (j = 0; j < k; j++) {
                    const int64_t expert = tegroup_impl_entry(&desc->indices, t, j);
                    int one;
                    if (tegroup_impl_entry(rows, t, j) != 1) continue;
                    one = (int)(tegroup_impl_weight_key(&desc->weights, t * k + j) >> bit & 1);
                    if (pass == 0) set[expert] += one;
                    else if (one == (set[expert] <= left[expert]))
                        tegroup_impl_store_int(rows->dtype, tegroup_impl_matrix_row(rows, t), j, one ? 0 : -1);
                }
        for (g = 0; g < desc->shape.groups; g++)
            if (set[g] <= left[g]) left[g] -= set[g];
    }
    for (t = 0; t < tokens; t++)
        for (j = 0; j < k; j++)
            if (tegroup_impl_entry(rows, t, j) == 1)
                tegroup_impl_store_int(rows->dtype, tegroup_impl_matrix_row(rows, t), j,
                                       left[tegroup_impl_entry(&desc->indices, t, j)]-- > 0 ? 0 : -1);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_permutation_sizes(const tegroup_permutation_desc *desc,
                                                                        tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(desc->shape.groups >= 0 && desc->shape.groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "shape.groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, desc->shape.groups);
    TEGROUP_IMPL_RULE(desc->shape.rows >= 0 && desc->shape.rows <= TEGROUP_MAX_COLS, ERROR_VALUE, "shape.rows",
                      "must be 0 to TEGROUP_MAX_COLS: slot_of_row has a column for each", TEGROUP_MAX_COLS,
                      desc->shape.rows);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_permutation_layout(const tegroup_permutation_desc *desc, tegroup_layout *layout,
                                                      tegroup_error *error) {
    tegroup_permutation_desc taken;
    tegroup_layout made;
    int64_t slots, groups;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_permutation_sizes(desc, error));
    TEGROUP_IMPL_RULE(desc->indices.rows >= 0 && desc->indices.rows <= TEGROUP_MAX_ROWS, ERROR_VALUE, "indices.rows",
                      "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, desc->indices.rows);
    TEGROUP_IMPL_RULE(desc->indices.cols >= 0 && desc->indices.cols <= TEGROUP_MAX_COLS, ERROR_VALUE, "indices.cols",
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, desc->indices.cols);
    slots = tegroup_impl_mul(desc->indices.rows, desc->indices.cols);
    groups = desc->shape.groups;
    tegroup_impl_layout_begin(&made);
    if (desc->space == TEGROUP_SPACE_DEVICE) {
        const int64_t runs = tegroup_impl_ceil_div(slots, tegroup_impl_permutation_run(desc->shape.groups));
        tegroup_impl_layout_add(&made, "slots of each expert before each run", tegroup_impl_mul(runs, 8 * groups));
        tegroup_impl_layout_add(&made, "slots of each expert", 8 * groups);
    }
    if (desc->space == TEGROUP_SPACE_DEVICE && desc->weights.dtype != TEGROUP_DTYPE_UNSET) {
        tegroup_impl_layout_add(&made, "experts that slots keep", tegroup_impl_mul(4, slots));
        tegroup_impl_layout_add(&made, "slots of each expert by digit", 8 * 256 * groups);
        tegroup_impl_layout_add(&made, "room and digit of each expert", 16 * groups);
    }
    TEGROUP_IMPL_RULE(!tegroup_impl_layout_overflowed(&made), ERROR_OVERFLOW, "indices.rows",
                      "must leave the workspace addressable", tegroup_impl_max_bytes(), desc->indices.rows);
    *layout = made;
    return TEGROUP_OK;
}

/* How the snapshot is made of counts in I64. Until these have a place, data is an address that nobody reads. */
TEGROUP_IMPL_STATIC tegroup_prepare_desc tegroup_impl_permutation_prepare(const tegroup_permutation_desc *desc) {
    tegroup_prepare_desc prepare;
    memset(&prepare, 0, sizeof prepare);
    prepare.struct_size = sizeof prepare;
    prepare.space = desc->space;
    prepare.shape = desc->shape;
    prepare.shape.row_sizes = tegroup_sizes_of((void *)(uintptr_t)TEGROUP_ALIGNMENT, TEGROUP_DTYPE_I64, desc->space);
    prepare.shape.row_sizes.alignment = desc->shape.row_sizes.alignment;
    prepare.shape.row_sizes.stride = desc->shape.row_sizes.stride;
    prepare.snapshot = desc->snapshot;
    prepare.snapshot_bytes = desc->snapshot_bytes;
    prepare.clamp = 1;
    prepare.threads = desc->threads;
    return prepare;
}

/* prepare: how the snapshot is made, or NULL where it is there. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_permutation_check(const tegroup_permutation_desc *desc,
                                                                  const tegroup_prepare_desc *prepare,
                                                                  tegroup_error *error) {
    static const char *const indices[5] = TEGROUP_IMPL_MATRIX_PATHS("indices"),
                             *const row_of_slot[5] = TEGROUP_IMPL_MATRIX_PATHS("row_of_slot"),
                             *const slot_of_row[5] = TEGROUP_IMPL_MATRIX_PATHS("slot_of_row"),
                             *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("weights"),
                             *const slot_weights[5] = TEGROUP_IMPL_MATRIX_PATHS("slot_weights"),
                             *const row_weights[5] = TEGROUP_IMPL_MATRIX_PATHS("row_weights");
    const int weighs = desc->row_weights.dtype != TEGROUP_DTYPE_UNSET,
              ragged_cols = prepare && desc->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    tegroup_impl_buffer buffers[9];
    tegroup_layout layout;
    TEGROUP_IMPL_TRY(tegroup_impl_check_permutation_sizes(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->indices, indices, -1, -1, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_map(&desc->row_of_slot, row_of_slot, desc->indices.rows, desc->indices.cols,
                                            desc->shape.rows, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->slot_of_row, slot_of_row, 1, desc->shape.rows,
                                                 TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->slot_of_row, slot_of_row,
                                              tegroup_impl_mul(desc->indices.rows, desc->indices.cols), error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->weights, weights, desc->indices.rows, desc->indices.cols,
                                                 TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->slot_weights, slot_weights, desc->indices.rows,
                                                 desc->indices.cols, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->row_weights, row_weights, 1, desc->shape.rows, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_RULE(weighs == (desc->slot_weights.dtype != TEGROUP_DTYPE_UNSET), ERROR_COMBINATION, slot_weights[4],
                      "must be UNSET just where row_weights' is", weighs, !weighs);
    TEGROUP_IMPL_RULE_AS(DTYPE, !weighs || desc->row_weights.dtype == desc->slot_weights.dtype, ERROR_DTYPE,
                         row_weights[4], "must be slot_weights'", desc->slot_weights.dtype, desc->row_weights.dtype);
    tegroup_impl_snapshot_layout(desc->shape.groups, tegroup_impl_irregular(&desc->shape), &layout);
    buffers[0] = tegroup_impl_matrix_buffer(&desc->slot_of_row, slot_of_row[0], "must not overlap slot_of_row", 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->row_of_slot, row_of_slot[0], "must not overlap row_of_slot", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->indices, NULL, "must not overlap indices", 0);
    buffers[3] = tegroup_impl_buffer_of(desc->shape.snapshot, (int64_t)layout.total_bytes, prepare ? "snapshot" : NULL,
                                        "must not overlap the snapshot", prepare != NULL);
    buffers[4] = tegroup_impl_matrix_buffer(&desc->slot_weights, NULL, "must not overlap slot_weights", 0);
    buffers[5] = tegroup_impl_matrix_buffer(&desc->row_weights, row_weights[0], "must not overlap row_weights", 1);
    buffers[6] = tegroup_impl_sizes_buffer(ragged_cols ? desc->shape.col_sizes.data : NULL, &desc->shape.col_sizes,
                                           desc->shape.groups, "must not overlap shape.col_sizes.data");
    buffers[7] = tegroup_impl_buffer_of(prepare ? desc->shape.offsets : NULL, 8 * (int64_t)desc->shape.groups, NULL,
                                        "must not overlap shape.offsets", 0);
    buffers[8] = tegroup_impl_matrix_buffer(&desc->weights, NULL, "must not overlap weights", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 9, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_RULE(desc->shape.snapshot != NULL, ERROR_NULL_ARGUMENT, "shape.snapshot",
                      "must not be NULL without snapshot", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(&desc->shape, desc->space, "shape.row_sizes.space", error));
    TEGROUP_IMPL_TRY(tegroup_permutation_layout(desc, &layout, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix_workspace(&layout, desc->workspace, desc->workspace_bytes, buffers, 9, error));
    if (prepare) return tegroup_impl_check_prepare(prepare, &layout, error);
    return tegroup_impl_check_snapshot(desc->shape.snapshot, "shape.snapshot", desc->shape.rows, desc->space, error);
}

/* How many slots name each expert. */
TEGROUP_IMPL_STATIC tegroup_count_desc tegroup_impl_permutation_count(const tegroup_permutation_desc *desc,
                                                                      int64_t *counts) {
    tegroup_count_desc count;
    memset(&count, 0, sizeof count);
    count.struct_size = sizeof count;
    count.space = desc->space;
    count.groups = desc->shape.groups;
    count.labels = desc->indices;
    count.counts = tegroup_matrix_of(NULL, 1, count.groups, TEGROUP_DTYPE_I64);
    count.counts.data = counts; /* which hold nothing yet */
    return count;
}

/* On the host: the snapshot of that. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_permutation_snapshot(const tegroup_permutation_desc *desc,
                                                                     tegroup_prepare_desc *prepare,
                                                                     tegroup_error *error) {
    int64_t counts[TEGROUP_MAX_GROUPS];
    const tegroup_count_desc count = tegroup_impl_permutation_count(desc, counts);
    TEGROUP_IMPL_TRY(tegroup_count(&count, NULL, error));
    prepare->shape.row_sizes.data = counts;
    return tegroup_prepare(prepare, NULL, error);
}

/* Rows for the slots of tokens from .. to-1: a slot takes its expert's next free row, or -1 where there is none. What
 * the slots before them take is counted first, so that the tokens may be shared out among threads; not with weights, by
 * which row_of_slot says already who gets none. */
TEGROUP_IMPL_STATIC void tegroup_impl_permutation_share(const tegroup_permutation_desc *desc,
                                                        const tegroup_snapshot_view *view, int64_t from, int64_t to) {
    const tegroup_matrix *rows = &desc->row_of_slot, *slots = &desc->slot_of_row;
    const int32_t groups = view->header->groups;
    const int64_t weight_bytes = tegroup_impl_bits(desc->row_weights.dtype) / 8; /* 0: they are not wanted */
    int64_t taken[TEGROUP_MAX_GROUPS], k = desc->indices.cols, t, j;
    memset(taken, 0, (size_t)groups * sizeof *taken);
    for (t = 0; t < to; t++)
        for (j = 0; j < k; j++) {
            const int64_t expert = tegroup_impl_entry(&desc->indices, t, j);
            const int found = tegroup_impl_within(expert, groups) && taken[expert] < view->rows[expert]
                              && (desc->weights.dtype == TEGROUP_DTYPE_UNSET || tegroup_impl_entry(rows, t, j) == 0);
            const int64_t row = found ? view->start[expert] + taken[expert] : -1;
            if (t >= from) tegroup_impl_store_int(rows->dtype, tegroup_impl_matrix_row(rows, t), j, row);
            if (t >= from && found) tegroup_impl_store_int(slots->dtype, slots->data, row, t * k + j);
            if (t >= from && found && weight_bytes > 0)
                memcpy((char *)desc->row_weights.data + row * weight_bytes,
                       tegroup_impl_matrix_row(&desc->slot_weights, t) + j * weight_bytes, (size_t)weight_bytes);
            if (found) taken[expert]++;
        }
}

TEGROUP_API tegroup_status tegroup_permutation_make(const tegroup_permutation_desc *desc, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_permutation_make")
    tegroup_permutation_desc taken, made;
    tegroup_prepare_desc prepare;
    tegroup_snapshot_view view;
    const tegroup_matrix *slots;
    int64_t tokens, rows, row;
    int32_t threads, share;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    if (desc->snapshot) {
        TEGROUP_IMPL_RULE(!desc->shape.snapshot || desc->shape.snapshot == desc->snapshot, ERROR_COMBINATION,
                          "shape.snapshot", "must be NULL, or snapshot, where that is made", 0, 1);
        TEGROUP_IMPL_RULE(desc->shape.row_sizes.data_space == TEGROUP_SPACE_UNSET
                              || desc->shape.row_sizes.data_space == desc->space,
                          ERROR_COMBINATION, "shape.row_sizes.data_space",
                          "must be UNSET, or space, where the snapshot is made", (int32_t)desc->space,
                          (int32_t)desc->shape.row_sizes.data_space);
        prepare = tegroup_impl_permutation_prepare(desc);
        made = *desc;
        made.shape = prepare.shape;
        made.shape.snapshot = desc->snapshot;
        desc = &made;
    }
    TEGROUP_IMPL_TRY(tegroup_impl_permutation_check(desc, desc->snapshot ? &prepare : NULL, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE)
        return tegroup_impl_cuda_permutation_make(desc, desc->snapshot ? &prepare : NULL, stream, error);
#endif
    if (desc->snapshot) TEGROUP_IMPL_TRY(tegroup_impl_permutation_snapshot(desc, &prepare, error));
    view = tegroup_snapshot_read(desc->shape.snapshot);
    TEGROUP_IMPL_RULE(view.header->groups == desc->shape.groups, ERROR_CAPACITY, "shape.snapshot",
                      "must be of as many groups", desc->shape.groups, view.header->groups);

    tokens = tegroup_impl_matrix_rows(&desc->indices);
    slots = &desc->slot_of_row;
    rows = tegroup_impl_there(slots) ? slots->cols : 0;
    threads = tegroup_impl_team(tegroup_impl_threads(desc->threads),
                                (double)rows + 2 * (double)tokens * (double)desc->indices.cols);
    if (desc->weights.dtype != TEGROUP_DTYPE_UNSET) {
        tegroup_impl_keep_heaviest(desc, &view);
        threads = 1;
    }
    TEGROUP_IMPL_OMP(omp parallel private(row, share) num_threads(threads)) {
        TEGROUP_IMPL_OMP(omp for schedule(static))
        for (row = 0; row < rows; row++) tegroup_impl_store_int(slots->dtype, slots->data, row, -1);
        TEGROUP_IMPL_OMP(omp for schedule(static))
        for (share = 0; share < threads; share++)
            tegroup_impl_permutation_share(desc, &view, tegroup_impl_share_begin(tokens, share, threads),
                                           tegroup_impl_share_begin(tokens, share + 1, threads));
    }
    return TEGROUP_OK;
}
