/* ---- GPU backends: plan, check and run ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "layer/mlp_types.h"
#include "base/build.h"
#include "base/rules.h"
#include "core/checks.h"
#include "core/epilogue.h"
#include "cuda/launch.h"
#include "cuda/prepare.h"
#include "cuda/activation_epilogue.h"
#include "cuda/cublaslt_grouped.h"
#include "cuda/cublaslt_loop.h"
#include "cuda/portable_plan.h"
#include "cuda/sm90_choice.h"
#include "cuda/sm90_plan.h"

#if defined(TEGROUP_NO_CUBLASLT)
static inline int32_t tegroup_impl_cuda_cublaslt_version(const tegroup_gemm_desc *desc) {
    (void)desc;
    return 0;
}
#endif

/* All kernels of a unit are compiled for the same architectures; the one asked about stands for them. Built for GPUs before
 * SM80 alone, what the driver makes of it for a later one has no mma.sync. */
static inline uint32_t tegroup_impl_cuda_images(uint32_t built, int32_t sm) {
    cudaFuncAttributes attributes;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, (const void *)tegroup_impl_prepare_kernel);
    (void)sm;
    if (code != cudaSuccess) (void)cudaGetLastError();
    if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction
        || code == cudaErrorUnsupportedPtxVersion)
        return built & 1u << TEGROUP_BACKEND_CPU;
#if !defined(TEGROUP_NO_SM90)
    if (sm == 90 && !tegroup_impl_sm90_image()) built &= ~(1u << TEGROUP_BACKEND_SM90); /* others have none to lack */
#endif
    return code == cudaSuccess && attributes.ptxVersion < 80 ? built & ~(1u << TEGROUP_BACKEND_PORTABLE) : built;
}

static inline tegroup_status tegroup_impl_cuda_plan(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                    tegroup_plan *plan, tegroup_error *error) {
    tegroup_target target;
    (void)desc, (void)names, (void)error; /* unread where no GPU backend is built */
    plan->device = tegroup_impl_cuda_target(&target);
    switch (plan->backend) {
#if !defined(TEGROUP_NO_SM90)
    case TEGROUP_BACKEND_SM90: return tegroup_impl_sm90_plan(desc, names, plan, error);
#endif
#if !defined(TEGROUP_NO_PORTABLE)
    case TEGROUP_BACKEND_PORTABLE: return tegroup_impl_portable_plan(desc, plan, error);
#endif
#if !defined(TEGROUP_NO_CUBLASLT)
    case TEGROUP_BACKEND_CUBLASLT_GROUPED: return tegroup_impl_lt_grouped_plan(desc, plan, error);
    case TEGROUP_BACKEND_CUBLASLT_LOOP: return tegroup_impl_lt_loop_plan(desc, plan, error);
#endif
    default: break; /* explain offers nothing else that is built */
    }
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_cuda_check_device(const tegroup_plan *plan, tegroup_error *error) {
    int device = -1;
    cudaError_t code = cudaGetDevice(&device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "plan.device", "there must be a current device", error));
    TEGROUP_IMPL_RULE(device == plan->device, ERROR_PLAN, "plan.device", "must be the current device", plan->device,
                      device);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_cuda_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                     const tegroup_impl_names *names, tegroup_error *error) {
    (void)desc, (void)names, (void)error;
    if (plan->backend != TEGROUP_BACKEND_CPU) TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_device(plan, error));
    switch (plan->backend) {
#if !defined(TEGROUP_NO_SM90)
    case TEGROUP_BACKEND_SM90: return tegroup_impl_sm90_check(plan, desc, names, error);
#endif
#if !defined(TEGROUP_NO_CUBLASLT)
    case TEGROUP_BACKEND_CUBLASLT_GROUPED: return tegroup_impl_lt_grouped_check(plan, desc, names, error);
    case TEGROUP_BACKEND_CUBLASLT_LOOP: return tegroup_impl_lt_loop_check(plan, desc, error);
#endif
    default: break;
    }
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_cuda_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    (void)desc, (void)stream, (void)error; /* unread where no GPU backend is built */
    switch (plan->backend) {
#if !defined(TEGROUP_NO_SM90)
    case TEGROUP_BACKEND_SM90: return tegroup_impl_sm90_gemm(plan, desc, stream, error);
#endif
#if !defined(TEGROUP_NO_PORTABLE)
    case TEGROUP_BACKEND_PORTABLE: return tegroup_impl_portable_gemm(plan, desc, stream, error);
#endif
#if !defined(TEGROUP_NO_CUBLASLT)
    case TEGROUP_BACKEND_CUBLASLT_GROUPED: return tegroup_impl_lt_grouped_gemm(plan, desc, stream, error);
    case TEGROUP_BACKEND_CUBLASLT_LOOP: return tegroup_impl_lt_loop_gemm(plan, desc, stream, error);
#endif
    default: break;
    }
    return TEGROUP_OK;
}

#if TEGROUP_IMPL_FUSED_KERNELS
/* A product with an activation in its epilogue, or the gradient of one. */
static inline tegroup_status tegroup_impl_cuda_plan_fused(const tegroup_plan *plan, tegroup_fused_kernel *kernel,
                                                          tegroup_error *error) {
#if !defined(TEGROUP_NO_SM90)
    if (plan->backend == TEGROUP_BACKEND_SM90) return tegroup_impl_sm90_plan_fused(plan, kernel, error);
#endif
#if !defined(TEGROUP_NO_PORTABLE)
    if (plan->backend == TEGROUP_BACKEND_PORTABLE) return tegroup_impl_portable_plan_fused(plan, kernel, error);
#endif
    return tegroup_impl_fail(error, TEGROUP_ERROR_PLAN, "plan", "must be of a backend that this build has", 0,
                             plan->backend);
}
static inline tegroup_status tegroup_impl_cuda_gemm_fused(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          const tegroup_impl_epilogue *epilogue,
                                                          struct CUstream_st *stream, tegroup_error *error) {
#if !defined(TEGROUP_NO_SM90)
    if (plan->backend == TEGROUP_BACKEND_SM90)
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_launch(plan, desc, epilogue, stream, error));
#endif
#if !defined(TEGROUP_NO_PORTABLE)
    if (plan->backend == TEGROUP_BACKEND_PORTABLE)
        TEGROUP_IMPL_TRY(tegroup_impl_portable_launch_fused(desc, epilogue, stream, error));
#endif
#if TEGROUP_IMPL_BACKWARD_KERNELS
    if (desc->op == TEGROUP_OP_DGRAD)
        return tegroup_impl_cuda_row_sums(&epilogue->gradient, (const float *)desc->d.data, stream, error);
#endif
    return TEGROUP_OK;
}
#endif
