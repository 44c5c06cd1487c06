/* ---- The GPU and the library at hand ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/rules.h"
#include "gemm/backends.h"
#include "cuda/launch.h"
#include "cuda/prepare.h"

#if defined(TEGROUP_NO_CUBLASLT)
static inline int32_t tegroup_impl_cuda_cublaslt_version(const tegroup_gemm_desc *) { return 0; }
#endif

/* The backends that this unit holds code of for the current device. All kernels of a unit are compiled for the same
 * architectures, so the one that is looked up stands for all. */
static inline uint32_t tegroup_impl_cuda_images(int32_t sm) {
    cudaFuncAttributes attributes;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, (const void *)tegroup_impl_prepare_kernel<1, true>);
    uint32_t built = tegroup_impl_built();
    if (code != cudaSuccess) (void)cudaGetLastError();
    if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction
        || code == cudaErrorUnsupportedPtxVersion)
        return built & 1u << TEGROUP_BACKEND_CPU;
    for (int b = 0; b < TEGROUP_BACKEND_COUNT; b++) {
        tegroup_impl_image_function *const image = tegroup_impl_backend_of((tegroup_backend)b)->image;
        if (image && !image(sm)) built &= ~(1u << b);
    }
    return built;
}

static inline tegroup_status tegroup_impl_cuda_check_device(const tegroup_plan *plan, tegroup_error *error) {
    int device = -1;
    cudaError_t code = cudaGetDevice(&device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "plan.device", "there must be a current device", error));
    TEGROUP_IMPL_RULE(device == plan->device, ERROR_PLAN, "plan.device", "must be the current device", plan->device,
                      device);
    return TEGROUP_OK;
}
