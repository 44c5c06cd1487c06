/* ---- Skew of a routing ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/snapshot_types.h"
#include "moe/routing_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/range.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/apart.h"
#include "moe/export.h"

#if TEGROUP_IMPL_MOE_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_skew(const tegroup_skew_desc *desc, struct CUstream_st *stream,
                                                          tegroup_error *error);
#endif

/* What a group adds to the report's sums. */
TEGROUP_IMPL_HD void tegroup_impl_skew_add(const tegroup_skew_desc *desc, tegroup_impl_span span, tegroup_skew *sums) {
    const int64_t rows = tegroup_impl_max(0, span.rows);
    sums->skipped += span.rows < 0;
    sums->empty += span.rows == 0;
    sums->rows = tegroup_impl_add(sums->rows, rows);
    sums->tiles = tegroup_impl_add(sums->tiles, tegroup_impl_ceil_div(rows, desc->tile_rows));
}

/* The group at a place of the order from the largest to the smallest, whatever the snapshot says. */
TEGROUP_IMPL_HD tegroup_impl_span tegroup_impl_skew_at(const tegroup_skew_desc *desc, const tegroup_snapshot_view *view,
                                                       int32_t place, int32_t *group) {
    *group = (int32_t)tegroup_impl_clamp(view->order[place], 0, desc->shape.groups - 1);
    return tegroup_impl_span_of(view, *group, desc->shape.rows);
}

/* The report, of the sums of all groups. view: NULL = there are no rows. */
TEGROUP_IMPL_HD tegroup_skew tegroup_impl_skew_of(const tegroup_skew_desc *desc, const tegroup_snapshot_view *view,
                                                  const tegroup_skew *sums) {
    const int32_t counted = desc->shape.groups - sums->skipped;
    tegroup_skew skew = *sums;
    int32_t g;
    skew.groups = desc->shape.groups;
    skew.largest = -1;
    if (view && counted > 0) {
        skew.rows_min = tegroup_impl_max(0, tegroup_impl_skew_at(desc, view, counted - 1, &g).rows);
        skew.rows_median = tegroup_impl_max(0, tegroup_impl_skew_at(desc, view, counted / 2, &g).rows);
        skew.rows_max = tegroup_impl_max(0, tegroup_impl_skew_at(desc, view, 0, &g).rows);
        if (skew.rows_max > 0) skew.largest = g;
    }
    skew.wasted_rows = tegroup_impl_mul(skew.tiles, desc->tile_rows) - skew.rows;
    skew.bytes = tegroup_impl_mul(skew.rows, desc->row_bytes);
    skew.wasted_bytes = tegroup_impl_mul(skew.wasted_rows, desc->row_bytes);
    if (skew.rows > 0) skew.largest_over_mean = (double)skew.rows_max * (double)counted / (double)skew.rows;
    return skew;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_skew_check(const tegroup_skew_desc *desc, tegroup_error *error) {
    static const char *const shape[4] = {"shape.groups", "shape.rows", "shape.snapshot", "shape.row_sizes.space"};
    tegroup_impl_buffer buffers[2];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_spans(&desc->shape, desc->shape.groups, desc->space, shape, error));
    TEGROUP_IMPL_RULE(desc->tile_rows >= 1 && desc->tile_rows <= TEGROUP_MAX_COLS, ERROR_VALUE, "tile_rows",
                      "must be 1 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, desc->tile_rows);
    TEGROUP_IMPL_RULE(desc->row_bytes >= 0 && desc->row_bytes <= TEGROUP_MAX_COLS, ERROR_VALUE, "row_bytes",
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, desc->row_bytes);
    TEGROUP_IMPL_TRY(tegroup_impl_check_address(desc->result, 8, "result", error));
    buffers[0] = tegroup_impl_buffer_of(desc->result, (int64_t)sizeof *desc->result, "result", NULL, 1);
    buffers[1] = tegroup_impl_spans_buffer(&desc->shape, "must not overlap shape.snapshot");
    return tegroup_impl_check_apart(buffers, 2, TEGROUP_CHECK_HOST, NULL, error);
}

TEGROUP_API tegroup_status tegroup_skew_report(const tegroup_skew_desc *desc, struct CUstream_st *stream,
                                               tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_skew_report")
    tegroup_skew_desc taken;
    tegroup_snapshot_view view;
    tegroup_skew sums;
    int32_t g;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_skew_check(desc, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_skew(desc, stream, error);
#endif
    view = tegroup_snapshot_read(desc->shape.snapshot);
    memset(&sums, 0, sizeof sums);
    for (g = 0; g < desc->shape.groups; g++)
        tegroup_impl_skew_add(desc, tegroup_impl_span_of(&view, g, desc->shape.rows), &sums);
    *desc->result = tegroup_impl_skew_of(desc, &view, &sums);
    return TEGROUP_OK;
}

TEGROUP_API int tegroup_skew_text(const tegroup_skew *skew, char *buffer, size_t size) {
    char wasted[48] = "";
    double mean, rows;
    if (!skew) return snprintf(buffer, size, "?");
    mean = skew->groups > skew->skipped ? (double)skew->rows / (double)(skew->groups - skew->skipped) : 0;
    rows = (double)skew->rows + (double)skew->wasted_rows;
    if (skew->bytes > 0)
        snprintf(wasted, sizeof wasted, ", %.1f of %.1f MiB", (double)skew->wasted_bytes / 1048576,
                 ((double)skew->bytes + (double)skew->wasted_bytes) / 1048576);
    return snprintf(
        buffer, size,
        "%d groups (%d skipped, %d empty): %lld rows, %.1f in the mean, %lld to %lld, median %lld; group %d "
        "has %.2f times the mean; %lld tiles, %.1f%% of their rows wasted%s",
        (int)skew->groups, (int)skew->skipped, (int)skew->empty, (long long)skew->rows, mean, (long long)skew->rows_min,
        (long long)skew->rows_max, (long long)skew->rows_median, (int)skew->largest, skew->largest_over_mean,
        (long long)skew->tiles, rows > 0 ? 100 * (double)skew->wasted_rows / rows : 0.0, wasted);
}
