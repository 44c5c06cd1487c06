/* ---- Layouts of other libraries: kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/snapshot_types.h"
#include "moe/routing_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/snapshot_checks.h"
#include "moe/export.h"
#include "cuda/launch.h"
#include "cuda/rows.h"

/* What is said of rows without an owner, and of groups. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_export_kernel(const __grid_constant__ tegroup_export_desc desc) {
    const int64_t threads = (int64_t)gridDim.x * blockDim.x, thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const tegroup_impl_fit fit = tegroup_impl_spans_fit(&desc.shape, desc.shape.groups);
    const tegroup_snapshot_view view = tegroup_impl_snapshot_view(desc.shape.snapshot, desc.shape.groups, 0);
    const bool prepared = tegroup_impl_fits(&fit);
    if (thread == 0 && desc.shape.groups == 0) tegroup_impl_store_int(desc.offsets.dtype, desc.offsets.data, 0, 0);
    for (int64_t row = thread; row < desc.shape.rows; row += threads) tegroup_impl_export_row(&desc, row);
    for (int64_t g = thread; g < desc.shape.groups; g += threads) {
        tegroup_impl_span span = {0, 0};
        if (prepared) span = tegroup_impl_span_of(&view, (int32_t)g, desc.shape.rows);
        tegroup_impl_export_group(&desc, (int32_t)g, span);
    }
}

/* What is said of rows that groups own: a thread takes a unit of them at a time. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_export_owned_kernel(const __grid_constant__ tegroup_export_desc desc) {
    const int64_t threads = (int64_t)gridDim.x * blockDim.x, thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const tegroup_impl_fit fit = tegroup_impl_spans_fit(&desc.shape, desc.shape.groups),
                           other_fit = tegroup_impl_spans_fit(&desc.from, desc.shape.groups);
    const tegroup_snapshot_view view = tegroup_impl_snapshot_view(desc.shape.snapshot, desc.shape.groups, 0),
                                other = tegroup_impl_snapshot_view(desc.from.snapshot, desc.shape.groups, 0);
    const bool has_other = desc.from.snapshot && tegroup_impl_fits(&other_fit);
    if (!tegroup_impl_fits(&fit)) return;
    const tegroup_impl_units units(desc.shape.snapshot, desc.shape.rows);
    for (int64_t unit = thread; unit < units.count; unit += threads) {
        int64_t first;
        int32_t g;
        const int32_t rows = units.at(unit, &first, &g);
        if (rows == 0) continue;
        tegroup_impl_span from = {0, 0};
        const tegroup_impl_span span = tegroup_impl_span_of(&view, g, desc.shape.rows);
        if (has_other) from = tegroup_impl_span_of(&other, g, desc.from.rows);
        for (int32_t i = 0; i < rows; i++) tegroup_impl_export_owned(&desc, g, span, from, first - span.start + i);
    }
}

static inline tegroup_status tegroup_impl_cuda_export(const tegroup_export_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int64_t units = tegroup_impl_ceil_div(desc->shape.rows, TEGROUP_IMPL_ROWS_UNIT) + desc->shape.groups;
    cudaError_t code;
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(units, 64), 8, &blocks, error));
    code = tegroup_impl_launch(tegroup_impl_export_kernel, blocks, 256, 0, stream, *desc);
    if (code == cudaSuccess
        && (desc->labels.dtype != TEGROUP_DTYPE_UNSET || desc->source_rows.dtype != TEGROUP_DTYPE_UNSET))
        code = tegroup_impl_launch(tegroup_impl_export_owned_kernel, blocks, 256, 0, stream, *desc);
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}
