/* ---- Hopper GEMM: weights that are decoded in registers: launch ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/rules.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/choice.h"
#include "cuda/sm90_kernels.h"
#include "cuda/decoded.h"
#include "cuda/sm90_decoded.h"
#include "cuda/sm90_weights_kernels.h"
#include "cuda/call.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_plan.h"

/* Notes where scales of weights are. */
static inline tegroup_impl_sm90_weights tegroup_impl_sm90_weights_of(const tegroup_tensor *b) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(b->scaling);
    const tegroup_impl_scale_grid grid =
        tegroup_impl_scale_grid_alone(b, facts, tegroup_impl_sides_of(b->shape.rows, b->shape.cols), 0);
    tegroup_impl_sm90_weights weights;
    memset(&weights, 0, sizeof weights);
    weights.group_bytes = grid.count;
    weights.lines_bytes = grid.inner_extent * 128;
    weights.e4m3 = facts->scale_dtype == TEGROUP_DTYPE_F8E4M3;
    return weights;
}

/* desc: rows of BF16, weights as they are read. */
static inline tegroup_status tegroup_impl_sm90_weights_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                            struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_sm90_weights_row *row =
        tegroup_impl_sm90_weights_row_of((int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ROW]);
    const int turned = desc->op == TEGROUP_OP_DGRAD;
    tegroup_gemm_desc read = *desc;
    tegroup_tensor bytes;
    tegroup_impl_sm90_call call;
    void *arguments[1] = {&call};
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    read.op = TEGROUP_OP_FORWARD;
    if (turned) read.b = tegroup_impl_turned(&desc->b);
    bytes = tegroup_impl_sm90_bytes(&read.b);
    memset(&call, 0, sizeof call);
    tegroup_impl_sm90_call_of(&read, &call);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_slabs(plan, &desc->d, TEGROUP_IMPL_D, &call, error));
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map(plan, &desc->a, TEGROUP_IMPL_A, 64, row->rows, &call, error));
    for (int32_t i = 0; i < TEGROUP_IMPL_SM90_WEIGHTS_SMALLER(row->rows); i++)
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_smaller(plan, &desc->a, TEGROUP_IMPL_A, 64,
                                                       row->rows - (i + 1) * TEGROUP_IMPL_SM90_FIT, i, &call,
                                                       error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_sm90_map(plan, &bytes, TEGROUP_IMPL_B, row->k * row->bits / 8, row->cols, &call, error));
    call.weights = tegroup_impl_sm90_weights_of(&read.b);
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    return tegroup_impl_cuda_rest(&call.call, stream, error);
}
