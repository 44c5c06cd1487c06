/* ---- Launching ---- */

#include <cuda_runtime.h>

/* A CUDA error as a status. The sticky error state is cleared, so that it is reported once. */
static inline tegroup_status tegroup_impl_cuda_status(cudaError_t code, const char *field, const char *rule, tegroup_error *error) {
    if (code == cudaSuccess) return TEGROUP_OK;
    (void)cudaGetLastError();
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_CUDA, field, rule, 0, (int64_t)code);
    if (error) error->native = (int32_t)code;
    return TEGROUP_ERROR_CUDA;
}

/* The current device as a target; sm stays 0 where there is none. Returns the device, or -1. */
static inline int32_t tegroup_impl_cuda_target(tegroup_target *target) {
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess
        || cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
        (void)cudaGetLastError(); /* no device is an answer, not an error to leave behind */
        return -1;
    }
    target->sm = 10 * major + minor;
    return device;
}
