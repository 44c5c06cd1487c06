/* ---- One call for a product that runs once ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/range.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/snapshot_checks.h"
#include "core/problem.h"
#include "gemm/prepare.h"
#include "gemm/plan.h"
#include "gemm/check.h"
#include "gemm/run.h"

/* Whether two operands have one routing's sizes, so that one snapshot serves both. */
TEGROUP_IMPL_STATIC int tegroup_impl_same_sizes(const tegroup_sizes *x, const tegroup_sizes *y) {
    return x->data == y->data && x->encoding == y->encoding && x->dtype == y->dtype && x->space == y->space
           && x->data_space == y->data_space && x->starts == y->starts && x->alignment == y->alignment
           && x->stride == y->stride;
}

/* Plans a call, and lays out its workspace: the snapshot, then what the plan asks for. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_once_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                          tegroup_layout *layout, tegroup_error *error) {
    static const char *const sizes[4] = {"a.shape.row_sizes", "b.shape.row_sizes", "c.shape.row_sizes",
                                         "d.shape.row_sizes"};
    const tegroup_impl_names *names = tegroup_impl_gemm_names();
    const tegroup_tensor *operands[TEGROUP_IMPL_OPERANDS];
    tegroup_layout part;
    int32_t i;
    TEGROUP_IMPL_TRY(tegroup_impl_plan_make(desc, names, NULL, plan, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_no_functor(plan, error));
    tegroup_impl_operands_of(desc, operands);
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_D; i++) {
        const tegroup_impl_name *name = names->operand[i];
        TEGROUP_IMPL_RULE(operands[i]->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_irregular(&operands[i]->shape),
                          ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(COL_SIZES),
                          "and elements must be unset: columns that differ are for tegroup_prepare", 0, 1);
    }
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_D; i++) {
        const tegroup_shape *shape = &operands[i]->shape;
        const tegroup_impl_name *name = names->operand[i];
        if (operands[i]->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_ragged(shape)) continue;
        TEGROUP_IMPL_RULE(!shape->snapshot, ERROR_COMBINATION, TEGROUP_IMPL_PATH(SNAPSHOT),
                          "must be NULL: this call makes the snapshot", 0, 1);
        TEGROUP_IMPL_RULE(tegroup_impl_same_sizes(&shape->row_sizes, &desc->a.shape.row_sizes), ERROR_COMBINATION,
                          sizes[i], "must be those of a, field by field: one snapshot serves all", 0, 1);
        TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(shape, desc->space, TEGROUP_IMPL_PATH(SIZES_SPACE), error));
    }
    tegroup_impl_snapshot_layout(desc->a.shape.groups, 0, &part);
    tegroup_impl_layout_begin(layout);
    tegroup_impl_layout_add(layout, "snapshot", tegroup_impl_ragged(&desc->a.shape) ? (int64_t)part.total_bytes : 0);
    tegroup_impl_plan_layout(plan, &part);
    for (i = 0; i < part.count; i++) tegroup_impl_layout_add(layout, part.items[i].name, (int64_t)part.items[i].bytes);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm_once_layout(const tegroup_gemm_desc *desc, tegroup_layout *layout,
                                                    tegroup_error *error) {
    tegroup_gemm_desc taken;
    tegroup_layout made;
    tegroup_plan plan;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_once_plan(desc, &plan, &made, error));
    *layout = made;
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm_once(const tegroup_gemm_desc *desc, struct CUstream_st *stream,
                                             tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_gemm_once")
    tegroup_gemm_desc taken, ready, buffers;
    tegroup_prepare_desc prepare;
    tegroup_tensor *const ragged[4] = {&ready.a, &ready.b, &ready.c, &ready.d};
    tegroup_layout layout;
    tegroup_plan plan, whole;
    int32_t i;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_once_plan(desc, &plan, &layout, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_options_workspace(layout.total_bytes, &desc->options, error));
    buffers = *desc; /* the snapshot is written before the call is checked, so it lies apart from every buffer */
    buffers.options.check_level = TEGROUP_CHECK_HOST; /* lists are walked with the snapshot, later */
    whole = plan;
    whole.workspace_bytes = layout.total_bytes;
    TEGROUP_IMPL_TRY(tegroup_impl_check_overlaps(&whole, &buffers, tegroup_impl_gemm_names(), error));

    ready = *desc;
    memset(&prepare, 0, sizeof prepare);
    prepare.struct_size = sizeof prepare;
    prepare.shape = desc->a.shape;
    prepare.space = desc->space;
    prepare.snapshot = desc->options.workspace;
    prepare.snapshot_bytes = layout.total_bytes - plan.workspace_bytes;
    prepare.check_level = desc->options.check_level;
    prepare.threads = desc->options.threads;
    prepare.host_sizes_final = desc->options.host_sizes_final;
    for (i = 0; i < 4; i++) {
        if (ragged[i]->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_ragged(&ragged[i]->shape)) continue;
        ragged[i]->shape.snapshot = prepare.snapshot;
        prepare.shape.rows = tegroup_impl_min(prepare.shape.rows, ragged[i]->shape.rows);
    }
    ready.options.workspace = (char *)desc->options.workspace + prepare.snapshot_bytes;
    ready.options.workspace_bytes = plan.workspace_bytes;
    /* a snapshot in host memory is read by the check; one in device memory is not, so nothing is enqueued before */
    if (desc->space == TEGROUP_SPACE_DEVICE) TEGROUP_IMPL_TRY(tegroup_impl_gemm_check_own(&plan, &ready, error));
    if (tegroup_impl_ragged(&desc->a.shape)) TEGROUP_IMPL_TRY(tegroup_prepare(&prepare, stream, error));
    if (desc->space == TEGROUP_SPACE_HOST) TEGROUP_IMPL_TRY(tegroup_impl_gemm_check_own(&plan, &ready, error));
    return tegroup_impl_gemm_run(&plan, &ready, stream, error);
}
