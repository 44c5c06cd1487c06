/* ---- Launching ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/rules.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/copies.h"
#include "core/quantised.h"

#include <cuda_runtime.h>

/* A CUDA error as a status. The sticky error is cleared, so that it is reported once. */
static inline tegroup_status tegroup_impl_cuda_status(cudaError_t code, const char *field, const char *rule,
                                                      tegroup_error *error) {
    if (code == cudaSuccess) return TEGROUP_OK;
    (void)cudaGetLastError();
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_CUDA, field, rule, 0, (int64_t)code);
    if (error) error->native = (int32_t)code;
    return TEGROUP_ERROR_CUDA;
}

/* Launches a kernel and returns the launch's own result, unlike cudaGetLastError, which may still hold an error of the
 * caller's earlier calls. */
template <typename T> struct tegroup_impl_as { typedef T type; };
template <typename... PARAMETERS>
static inline cudaError_t tegroup_impl_launch(void (*kernel)(PARAMETERS...), dim3 blocks, unsigned threads,
                                              size_t shared_bytes, struct CUstream_st *stream,
                                              const typename tegroup_impl_as<PARAMETERS>::type &...arguments) {
    void *addresses[] = {(void *)(uintptr_t)&arguments...};
    return cudaLaunchKernel((const void *)kernel, blocks, dim3(threads), addresses, shared_bytes, stream);
}

/* The same of a kernel whose blocks wait for one another: CUDA refuses it unless all of them can run at a time. */
template <typename... PARAMETERS>
static inline cudaError_t tegroup_impl_launch_together(void (*kernel)(PARAMETERS...), dim3 blocks, unsigned threads,
                                                       size_t shared_bytes, struct CUstream_st *stream,
                                                       const typename tegroup_impl_as<PARAMETERS>::type &...arguments) {
    void *addresses[] = {(void *)(uintptr_t)&arguments...};
    return cudaLaunchCooperativeKernel((const void *)kernel, blocks, dim3(threads), addresses, shared_bytes, stream);
}

/* Launches a kernel by its address, in clusters of `each` blocks: as many whole ones as `blocks` are. */
static inline cudaError_t tegroup_impl_launch_clusters(const void *kernel, unsigned blocks, unsigned each,
                                                       unsigned threads, void **arguments, size_t shared_bytes,
                                                       struct CUstream_st *stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cluster = {};
    if (each < 2) return cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), arguments, shared_bytes, stream);
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = each;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(blocks - blocks % each);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaLaunchKernelExC(&config, kernel, arguments);
}

/* The thread's number, read from its special register each time. The compiler then cannot compute values that depend on
 * it far ahead and keep them in registers, which are scarce. */
static __device__ __forceinline__ int tegroup_impl_thread(void) {
    int number;
    asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(number));
    return number;
}

/* A graph keeps the sizes that the host knew when it was captured, so the caller has to say that they are final. */
static inline tegroup_status tegroup_impl_cuda_check_capture(int32_t sizes_final, const char *field,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (sizes_final) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaStreamIsCapturing(stream, &capture), "stream",
                                              "must tell whether it is capturing", error));
    TEGROUP_IMPL_RULE(capture == cudaStreamCaptureStatusNone, ERROR_COMBINATION, field,
                      "must be 1 while stream is capturing: the graph keeps these sizes", 1, 0);
    return TEGROUP_OK;
}

/* Describes the current device as a target; target->sm stays as it is without one. Returns the device, or -1. */
static inline int32_t tegroup_impl_cuda_target(tegroup_target *target) {
    int device = 0, major = 0, minor = 0, multiprocessors = 0, memory_bits = 0;
    if (cudaGetDevice(&device) != cudaSuccess
        || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess
        || cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess
        || cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess
        || cudaDeviceGetAttribute(&memory_bits, cudaDevAttrGlobalMemoryBusWidth, device) != cudaSuccess) {
        (void)cudaGetLastError(); /* having no device is an answer, so no error is left behind */
        return -1;
    }
    target->sm = 10 * major + minor;
    target->multiprocessors = multiprocessors;
    target->memory_bits = memory_bits; /* its clock would tell more, but takes the driver a millisecond to read */
    return device;
}

/* The deep check of an address in device memory: the driver knows it, as managed or as the current device's memory. */
static inline tegroup_status tegroup_impl_cuda_check_address(const void *address, const char *field,
                                                             tegroup_error *error) {
    cudaPointerAttributes attributes;
    int device = -1;
    if (!address) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_status(cudaGetDevice(&device), "plan.device", "there must be a current device", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaPointerGetAttributes(&attributes, address), field,
                                              "must be known to the driver", error));
    TEGROUP_IMPL_RULE(attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged, ERROR_VALUE,
                      field, "must be device memory (a cudaMemoryType)", cudaMemoryTypeDevice, attributes.type);
    TEGROUP_IMPL_RULE(attributes.type == cudaMemoryTypeManaged || attributes.device == device, ERROR_VALUE, field,
                      "must be on the current device", device, attributes.device);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_cuda_check_pointer(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             tegroup_error *error) {
    if (t->dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    if (tegroup_impl_ragged(&t->shape) && t->shape.row_sizes.space == TEGROUP_SPACE_DEVICE)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(t->shape.snapshot, TEGROUP_IMPL_PATH(SNAPSHOT), error));
    if (t->pointers_space == TEGROUP_SPACE_HOST || t->scaling != TEGROUP_SCALING_NONE) return TEGROUP_OK;
    return tegroup_impl_listed(t)
               ? tegroup_impl_cuda_check_address((const void *)t->pointers, TEGROUP_IMPL_PATH(POINTERS), error)
               : tegroup_impl_cuda_check_address(t->data, TEGROUP_IMPL_PATH(DATA), error);
}

/* Of a quantised operand, the copy that is read. */
static inline tegroup_status tegroup_impl_cuda_check_copy(const tegroup_gemm_desc *desc, tegroup_impl_operand operand,
                                                          const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_tensor t = tegroup_impl_as_read(desc, operand);
    const tegroup_impl_name *name = names->operand[operand];
    const int listed = tegroup_impl_listed(&t);
    const tegroup_impl_copy_paths paths =
        tegroup_impl_copy_paths_of(name, listed, tegroup_impl_reads_columnwise(desc, operand));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&t, name, error));
    if (t.scaling == TEGROUP_SCALING_NONE) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(listed ? (const void *)t.pointers : t.data, paths.data, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_check_address(listed ? (const void *)t.scale_pointers : t.scale_inv, paths.scales, error));
    return tegroup_impl_cuda_check_address(t.global_scale_inv, TEGROUP_IMPL_PATH(GLOBAL_SCALE_INV), error);
}

static inline tegroup_status tegroup_impl_cuda_check_index(const tegroup_gather *gather, const tegroup_impl_name *name,
                                                           tegroup_error *error) {
    return tegroup_impl_cuda_check_address(gather->rows > 0 ? gather->slot_of_row : NULL,
                                           TEGROUP_IMPL_PATH(SLOT_OF_ROW), error);
}

static inline tegroup_status tegroup_impl_cuda_check_scalars(const tegroup_scalars *s, const char *field,
                                                             tegroup_error *error) {
    return tegroup_impl_cuda_check_address(s->space == TEGROUP_SPACE_DEVICE ? s->data : NULL, field, error);
}

static inline tegroup_status tegroup_impl_cuda_check_pointers(const tegroup_gemm_desc *desc,
                                                              const tegroup_impl_names *names, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_copy(desc, TEGROUP_IMPL_A, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_copy(desc, TEGROUP_IMPL_B, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_index(&desc->gather_a, names->operand[TEGROUP_IMPL_A], error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_index(&desc->gather_b, names->operand[TEGROUP_IMPL_B], error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&desc->c, names->operand[TEGROUP_IMPL_C], error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&desc->d, names->operand[TEGROUP_IMPL_D], error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&desc->bias, names->operand[TEGROUP_IMPL_BIAS], error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_scalars(&desc->alpha, "alpha.data", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_scalars(&desc->beta, "beta.data", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(
        desc->row_scale_dtype != TEGROUP_DTYPE_UNSET ? desc->row_scale : NULL, "row_scale", error));
    return tegroup_impl_cuda_check_address(desc->options.workspace_bytes > 0 ? desc->options.workspace : NULL,
                                           "options.workspace", error);
}
