/* ---- Expert parallelism: sizes ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "ep/ep_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/range.h"
#include "core/checks.h"
#include "core/apart.h"
#include "ep/places.h"

#if TEGROUP_IMPL_EP_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_ep_sizes(const tegroup_ep_sizes_desc *desc,
                                                              struct CUstream_st *stream, tegroup_error *error);
#endif

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_ep_check_ranks(int32_t ranks, int32_t rank, const char *ranks_field,
                                                               const char *rank_field, tegroup_error *error) {
    TEGROUP_IMPL_RULE(ranks >= 1 && ranks <= TEGROUP_EP_MAX_RANKS, ERROR_VALUE, ranks_field,
                      "must be 1 to TEGROUP_EP_MAX_RANKS", TEGROUP_EP_MAX_RANKS, ranks);
    TEGROUP_IMPL_RULE(tegroup_impl_within(rank, ranks), ERROR_VALUE, rank_field, "must be 0 to ranks - 1", ranks - 1,
                      rank);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_ep_check_capacity(int32_t ranks, int64_t capacity, const char *field,
                                                                  tegroup_error *error) {
    TEGROUP_IMPL_RULE(capacity >= 0 && capacity <= TEGROUP_MAX_COLS / ranks, ERROR_VALUE, field,
                      "must be 0 to TEGROUP_MAX_COLS / ranks", TEGROUP_MAX_COLS / ranks, capacity);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_ep_sizes_check(const tegroup_ep_sizes_desc *desc,
                                                               tegroup_error *error) {
    static const char *const counts[5] = TEGROUP_IMPL_MATRIX_PATHS("counts"),
                             *const send_rows[5] = TEGROUP_IMPL_MATRIX_PATHS("send_rows"),
                             *const send_starts[5] = TEGROUP_IMPL_MATRIX_PATHS("send_starts"),
                             *const receive_rows[5] = TEGROUP_IMPL_MATRIX_PATHS("receive_rows");
    tegroup_impl_buffer buffers[5];
    int64_t experts;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_ranks(desc->ranks, desc->rank, "ranks", "rank", error));
    TEGROUP_IMPL_TRY(tegroup_impl_ep_check_capacity(desc->ranks, desc->capacity, "capacity", error));
    TEGROUP_IMPL_RULE(desc->alignment >= 0 && desc->alignment <= TEGROUP_MAX_COLS, ERROR_VALUE, "alignment",
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, desc->alignment);
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->counts, counts, desc->ranks, -1, TEGROUP_IMPL_INTEGERS, error));
    experts = desc->counts.cols;
    TEGROUP_IMPL_RULE(experts <= TEGROUP_MAX_GROUPS, ERROR_VALUE, counts[2], "must be at most TEGROUP_MAX_GROUPS",
                      TEGROUP_MAX_GROUPS, experts);
    TEGROUP_IMPL_RULE(experts % desc->ranks == 0, ERROR_SHAPE, counts[2],
                      "must be a multiple of ranks: each has as many experts", experts / desc->ranks * desc->ranks,
                      experts);
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->send_rows, send_rows, 1, experts, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->send_rows, send_rows, desc->ranks * desc->capacity, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->send_starts, send_starts, 1, experts, 1u << desc->send_rows.dtype, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->receive_rows, receive_rows, 1, experts / desc->ranks,
                                               TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(desc->report, 8), ERROR_ALIGNMENT, "report", "must be 8-byte aligned", 8,
                      (uintptr_t)desc->report % 8);
    buffers[0] = tegroup_impl_matrix_buffer(&desc->send_rows, send_rows[0], "must not overlap send_rows", 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->send_starts, send_starts[0], "must not overlap send_starts", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->receive_rows, receive_rows[0], "must not overlap receive_rows", 1);
    buffers[3] = tegroup_impl_buffer_of(desc->report, sizeof *desc->report, "report", "must not overlap report", 1);
    buffers[4] = tegroup_impl_matrix_buffer(&desc->counts, NULL, "must not overlap counts", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 5, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_EP_KERNELS, desc->space, error);
}

TEGROUP_API tegroup_status tegroup_ep_sizes(const tegroup_ep_sizes_desc *desc, struct CUstream_st *stream,
                                            tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_ep_sizes")
    tegroup_ep_sizes_desc taken;
    tegroup_ep_report report;
    int64_t e, start = 0;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_ep_sizes_check(desc, error));
#if TEGROUP_IMPL_EP_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_ep_sizes(desc, stream, error);
#endif
    report = tegroup_impl_ep_report_open(desc);
    for (e = 0; e < desc->counts.cols; e++) {
        const tegroup_impl_ep_expert x = tegroup_impl_ep_expert_of(desc, e);
        if (e % tegroup_impl_ep_experts(desc) == 0) start = 0;
        tegroup_impl_ep_report_add(desc, &report, e, &x, tegroup_impl_ep_place(desc, e, start, &x));
        start += tegroup_impl_ep_align(desc, x.total);
    }
    tegroup_impl_ep_report_close(desc, &report);
    if (desc->report) *desc->report = report;
    return TEGROUP_OK;
}
