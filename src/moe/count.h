/* ---- Counts of groups ---- */

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
#include "formats/convert.h"
#include "core/checks.h"
#include "core/apart.h"

#if TEGROUP_IMPL_MOE_KERNELS
static inline tegroup_status tegroup_impl_cuda_count(const tegroup_count_desc *desc, struct CUstream_st *stream,
                                                     tegroup_error *error);
#endif

/* Counts of I32 or I64; absent ones are left alone. */
static inline void tegroup_impl_clear_counts(const tegroup_matrix *counts) {
    const int64_t groups = counts->dtype != TEGROUP_DTYPE_UNSET ? counts->cols : 0;
    int64_t g;
    for (g = 0; g < groups; g++) tegroup_impl_store_int(counts->dtype, counts->data, g, 0);
}

/* Any thread may add. */
static inline void tegroup_impl_count_one(const tegroup_matrix *counts, int64_t g) {
    if (counts->dtype == TEGROUP_DTYPE_I32) {
        TEGROUP_IMPL_OMP(omp atomic)
        ((tegroup_impl_any32 *)counts->data)[g] += 1;
    } else if (counts->dtype == TEGROUP_DTYPE_I64) {
        TEGROUP_IMPL_OMP(omp atomic)
        ((tegroup_impl_any64 *)counts->data)[g] += 1;
    }
}

static inline tegroup_status tegroup_impl_count_check(const tegroup_count_desc *desc, tegroup_error *error) {
    static const char *const labels[5] = TEGROUP_IMPL_MATRIX_PATHS("labels"),
                             *const counts[5] = TEGROUP_IMPL_MATRIX_PATHS("counts"),
                             *const offsets[5] = TEGROUP_IMPL_MATRIX_PATHS("offsets");
    const int64_t groups = desc->groups;
    int64_t most;
    tegroup_impl_buffer buffers[3];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(groups >= 0 && groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, groups);
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->labels, labels, -1, -1, TEGROUP_IMPL_INTEGERS, error));
    most = tegroup_impl_mul(desc->labels.rows, desc->labels.cols);
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->counts, counts, 1, groups, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->counts, counts, most, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->offsets, offsets, 1, groups + 1, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->offsets, offsets, most, error));
    buffers[0] = tegroup_impl_matrix_buffer(&desc->offsets, offsets[0], NULL, 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->counts, counts[0], "must not overlap counts", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->labels, NULL, "must not overlap labels", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 3, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error);
}

TEGROUP_API tegroup_status tegroup_count(const tegroup_count_desc *desc, struct CUstream_st *stream,
                                         tegroup_error *error) {
    tegroup_count_desc taken;
    int64_t t, j, label, g, before = 0;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_count_check(desc, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_count(desc, stream, error);
#endif
    tegroup_impl_clear_counts(&desc->counts);
    for (t = 0; t < tegroup_impl_matrix_rows(&desc->labels); t++)
        for (j = 0; j < desc->labels.cols; j++) {
            label = tegroup_impl_load_int(desc->labels.dtype, tegroup_impl_matrix_row(&desc->labels, t), j);
            if (tegroup_impl_within(label, desc->groups)) tegroup_impl_count_one(&desc->counts, label);
        }
    for (g = 0; g <= desc->groups; g++) {
        tegroup_impl_store_int(desc->offsets.dtype, desc->offsets.data, g, before);
        if (g < desc->groups) before += tegroup_impl_load_int(desc->counts.dtype, desc->counts.data, g);
    }
    return TEGROUP_OK;
}
