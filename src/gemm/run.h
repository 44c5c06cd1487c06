/* ---- Run ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "gemm/plan.h"
#include "cpu/gemm.h"
#include "gemm/check.h"

#if defined(TEGROUP_IMPL_CUDA)
static inline tegroup_status tegroup_impl_cuda_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error);
#endif

/* What the check has passed. */
static inline tegroup_status tegroup_impl_gemm_run(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                   struct CUstream_st *stream, tegroup_error *error) {
    (void)stream, (void)error;
#if defined(TEGROUP_IMPL_CUDA)
    if (plan->backend != TEGROUP_BACKEND_CPU) return tegroup_impl_cuda_gemm(plan, desc, stream, error);
#endif
    tegroup_impl_cpu_gemm(plan, desc); /* a plan for a backend that is not built was refused by the check */
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                        struct CUstream_st *stream, tegroup_error *error) {
    tegroup_gemm_desc taken;
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check_own(plan, desc, error));
    return tegroup_impl_gemm_run(plan, desc, stream, error);
}

TEGROUP_API tegroup_status tegroup_plan_layout(const tegroup_plan *plan, tegroup_layout *layout, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    tegroup_impl_plan_layout(plan, layout);
    return TEGROUP_OK;
}
