/* ---- Prepare a snapshot ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "base/threads.h"
#include "base/range.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/prepare_group.h"
#include "core/prepare.h"
#include "core/prepare_rules.h"

#if defined(TEGROUP_IMPL_CUDA)
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_prepare(const tegroup_impl_preparation *p,
                                                             const tegroup_prepare_desc *desc,
                                                             const tegroup_layout *layout, struct CUstream_st *stream,
                                                             tegroup_error *error);
#endif

/* What the check has passed. */
TEGROUP_IMPL_STATIC tegroup_impl_preparation tegroup_impl_preparation_of(const tegroup_prepare_desc *desc,
                                                                         const tegroup_layout *layout) {
    tegroup_impl_preparation p;
    memset(&p, 0, sizeof p);
    p.groups = desc->shape.groups;
    p.irregular = tegroup_impl_irregular(&desc->shape);
    p.capacity_rows = desc->shape.rows;
    p.capacity_cols = desc->shape.cols;
    p.capacity_elements = desc->shape.elements;
    p.ld = desc->ld;
    p.rows = desc->shape.row_sizes;
    if (desc->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET) p.cols = desc->shape.col_sizes;
    p.offsets = desc->shape.offsets;
    p.start = (int64_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_START, desc->snapshot);
    p.out_rows = (int64_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_ROWS, desc->snapshot);
    p.prefix = (int64_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_PREFIX, desc->snapshot);
    p.order = (int32_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_ORDER, desc->snapshot);
    p.order_entries = tegroup_impl_sort_extent(p.groups);
    p.threads = tegroup_impl_threads(desc->threads);
    if (p.irregular) {
        p.out_cols = (int64_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_COLS, desc->snapshot);
        p.out_offset = (int64_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_OFFSET, desc->snapshot);
    }
    return p;
}

TEGROUP_API tegroup_status tegroup_prepare(const tegroup_prepare_desc *desc, struct CUstream_st *stream,
                                           tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_prepare")
    tegroup_prepare_desc taken;
    tegroup_layout layout;
    tegroup_impl_preparation p;
    tegroup_snapshot_header *header;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_prepare(desc, &layout, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_KERNELS, desc->space, error));
    p = tegroup_impl_preparation_of(desc, &layout);
    if (!desc->clamp && tegroup_impl_data_space(&p.rows) == TEGROUP_SPACE_HOST)
        TEGROUP_IMPL_TRY(tegroup_impl_prepare_refuse(&p, error));
#if defined(TEGROUP_IMPL_CUDA)
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_prepare(&p, desc, &layout, stream, error);
#endif
    memset(desc->snapshot, 0, layout.total_bytes);
    header = (tegroup_snapshot_header *)desc->snapshot;
    tegroup_impl_snapshot_open(header, &p);
    tegroup_impl_prepare_host(&p, header);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_shape_prepare(tegroup_shape *shape, void *snapshot, size_t snapshot_bytes,
                                                 struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_shape_prepare")
    tegroup_prepare_desc prepare;
    TEGROUP_IMPL_RULE(shape != NULL, ERROR_NULL_ARGUMENT, "shape", "must not be NULL", 1, 0);
    memset(&prepare, 0, sizeof prepare);
    prepare.struct_size = sizeof prepare;
    /* a space that is none is the sizes' to refuse, by a name that the caller knows */
    prepare.space = shape->row_sizes.space == TEGROUP_SPACE_DEVICE ? TEGROUP_SPACE_DEVICE : TEGROUP_SPACE_HOST;
    prepare.shape = *shape;
    prepare.snapshot = snapshot;
    prepare.snapshot_bytes = snapshot_bytes;
    TEGROUP_IMPL_TRY(tegroup_prepare(&prepare, stream, error));
    shape->snapshot = snapshot;
    return TEGROUP_OK;
}
