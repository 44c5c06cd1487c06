/* ---- Run ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/range.h"
#include "gemm/backends.h"
#include "gemm/plan.h"
#include "gemm/check.h"

/* What the check has passed; it refuses a plan for a backend that is not built. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_gemm_run(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                         struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_backend_of(plan->backend)->run(plan, desc, stream, error);
}

/* What a profiler calls a product: by its operation. */
TEGROUP_IMPL_STATIC const char *tegroup_impl_gemm_range(const tegroup_plan *plan) {
    static const char *const names[] = {"tegroup_gemm", "tegroup_gemm forward", "tegroup_gemm dgrad",
                                        "tegroup_gemm wgrad"};
    return names[plan && plan->magic == TEGROUP_PLAN_MAGIC ? tegroup_impl_clamp(plan->problem.op, 0, 3) : 0];
}

/* What tegroup_gemm_with alone runs. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_no_functor(const tegroup_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE(!plan->problem.functor, ERROR_UNSUPPORTED, "functor",
                      "must be 0 in this call: tegroup_gemm_with runs a product with a functor", 0, 1);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                        struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE(tegroup_impl_gemm_range(plan))
    tegroup_gemm_desc taken;
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check_own(plan, desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_no_functor(plan, error));
    return tegroup_impl_gemm_run(plan, desc, stream, error);
}

TEGROUP_API tegroup_status tegroup_plan_layout(const tegroup_plan *plan, tegroup_layout *layout, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    tegroup_impl_plan_layout(plan, layout);
    return TEGROUP_OK;
}
