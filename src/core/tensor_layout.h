/* ---- Bytes of a tensor ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/tensor_checks.h"

TEGROUP_API tegroup_status tegroup_tensor_layout(const tegroup_tensor *tensor, tegroup_copies copies,
                                                 tegroup_layout *layout, tegroup_error *error) {
    static const tegroup_impl_name name = TEGROUP_IMPL_NAME("tensor");
    const int rowwise = copies & TEGROUP_COPIES_ROWWISE, columnwise = copies & TEGROUP_COPIES_COLUMNWISE;
    tegroup_layout result;
    TEGROUP_IMPL_RULE(tensor != NULL, ERROR_NULL_ARGUMENT, "tensor", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(copies != TEGROUP_COPIES_UNSET, ERROR_UNSET, "copies", "must be set", TEGROUP_COPIES_ROWWISE, 0);
    TEGROUP_IMPL_RULE_ENUM(copies, TEGROUP_COPIES_BOTH, "copies", "must be a tegroup_copies");
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(tensor, &name, error));
    TEGROUP_IMPL_RULE(!columnwise || tensor->scaling != TEGROUP_SCALING_NONE, ERROR_COMBINATION, "copies",
                      "must be ROWWISE without a scaling", TEGROUP_COPIES_ROWWISE, copies);
    tegroup_impl_layout_begin(&result);
    tegroup_impl_layout_add(&result, "data", rowwise ? tegroup_impl_copy_bytes(tensor, 0) : 0);
    tegroup_impl_layout_add(&result, "scale_inv", rowwise ? tegroup_impl_scale_bytes(tensor, 0) : 0);
    tegroup_impl_layout_add(&result, "columnwise_data", columnwise ? tegroup_impl_copy_bytes(tensor, 1) : 0);
    tegroup_impl_layout_add(&result, "columnwise_scale_inv", columnwise ? tegroup_impl_scale_bytes(tensor, 1) : 0);
    tegroup_impl_layout_add(&result, "global_scale_inv",
                            tegroup_scaling_info(tensor->scaling)->scale_dtype == TEGROUP_DTYPE_F8E4M3
                                ? 4 * (int64_t)tensor->shape.groups
                                : 0);
    TEGROUP_IMPL_RULE(!tegroup_impl_layout_overflowed(&result), ERROR_OVERFLOW, "tensor.shape.rows",
                      "must leave all copies addressable", tegroup_impl_max_bytes(), INT64_MAX);
    *layout = result;
    return TEGROUP_OK;
}
