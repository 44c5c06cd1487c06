/* ---- Counts of groups: kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "moe/routing_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/convert.h"
#include "core/checks.h"
#include "cuda/launch.h"
#include "cuda/prepare.h"
#include "cuda/rows.h"

/* The element of a matrix of slots where a slot lies. */
static __device__ __forceinline__ int64_t tegroup_impl_slot_at(const tegroup_matrix &m, int64_t slot) {
    return m.ld == m.cols ? slot : slot / m.cols * m.ld + slot % m.cols;
}

/* Adds to a count of I32 or I64, if counts are wanted. */
static __device__ __forceinline__ void tegroup_impl_add_count(const tegroup_matrix &counts, int64_t g, uint32_t n) {
    if (counts.dtype == TEGROUP_DTYPE_I32) atomicAdd((uint32_t *)counts.data + g, n);
    else if (counts.dtype == TEGROUP_DTYPE_I64) atomicAdd((unsigned long long *)counts.data + g, (unsigned long long)n);
}

/* A block counts its labels in shared memory first: sums of integers are the same in whatever order they are added. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_count_kernel(const __grid_constant__ tegroup_count_desc desc) {
    extern __shared__ uint32_t tegroup_impl_count_shared[];
    uint32_t *counts = tegroup_impl_count_shared;
    const tegroup_matrix &m = desc.labels;
    const int64_t labels = m.rows * m.cols, threads = (int64_t)gridDim.x * blockDim.x;
    for (int32_t g = (int32_t)threadIdx.x; g < desc.groups; g += (int32_t)blockDim.x) counts[g] = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < labels; i += threads) {
        const int64_t label = tegroup_impl_load_int(m.dtype, m.data, tegroup_impl_slot_at(m, i));
        if (tegroup_impl_within(label, desc.groups)) atomicAdd(&counts[label], 1u);
    }
    __syncthreads();
    for (int32_t g = (int32_t)threadIdx.x; g < desc.groups; g += (int32_t)blockDim.x)
        if (counts[g] != 0) tegroup_impl_add_count(desc.counts, g, counts[g]);
}

/* One block: a thread has up to four groups, and the scan gives it the sum of those before them. */
static __global__ void __launch_bounds__(1024)
    tegroup_impl_count_offsets_kernel(const __grid_constant__ tegroup_count_desc desc) {
    const int32_t each = (desc.groups + 1023) / 1024, first = (int32_t)threadIdx.x * each,
                  last = (int32_t)tegroup_impl_min(desc.groups, first + each);
    int64_t sum = 0;
    for (int32_t g = first; g < last; g++) sum += tegroup_impl_load_int(desc.counts.dtype, desc.counts.data, g);
    int64_t before = tegroup_impl_block_scan(sum, false);
    if (threadIdx.x == blockDim.x - 1)
        tegroup_impl_store_int(desc.offsets.dtype, desc.offsets.data, desc.groups, before + sum);
    for (int32_t g = first; g < last; g++) {
        tegroup_impl_store_int(desc.offsets.dtype, desc.offsets.data, g, before);
        before += tegroup_impl_load_int(desc.counts.dtype, desc.counts.data, g);
    }
}

/* Without a kernel for this device nothing is enqueued, also not what comes before the kernel. */
static inline tegroup_status tegroup_impl_cuda_check_image(const void *kernel, tegroup_error *error) {
    cudaFuncAttributes image;
    return tegroup_impl_cuda_status(cudaFuncGetAttributes(&image, kernel), "space",
                                    "this unit must hold code for the device", error);
}

static __global__ void __launch_bounds__(256)
    tegroup_impl_clear_counts_kernel(const __grid_constant__ tegroup_matrix counts) {
    for (int64_t g = threadIdx.x; g < counts.cols; g += blockDim.x)
        tegroup_impl_store_int(counts.dtype, counts.data, g, 0);
}

/* By a kernel, so that a captured layer is nothing but kernels. */
static inline tegroup_status tegroup_impl_cuda_clear_counts(const tegroup_matrix *counts, struct CUstream_st *stream,
                                                            tegroup_error *error) {
    if (tegroup_impl_matrix_bytes(counts) == 0) return TEGROUP_OK;
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_clear_counts_kernel, 1, 256, 0, stream, *counts), "stream",
        "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_count(const tegroup_count_desc *desc, struct CUstream_st *stream,
                                                     tegroup_error *error) {
    const int64_t labels = desc->labels.rows * desc->labels.cols;
    tegroup_count_desc d = *desc;
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_image((const void *)tegroup_impl_count_kernel, error));
    d.labels = tegroup_impl_cuda_matrix(&desc->labels);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(labels, 2048), 4, &blocks, error));
    blocks = (unsigned)tegroup_impl_max(blocks, labels >> 31); /* a block's counts fit 32 bits */
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_counts(&desc->counts, stream, error));
    if (labels > 0 && desc->groups > 0)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_count_kernel, blocks, 256, 4 * (size_t)desc->groups, stream, d), "stream",
            "the kernel must launch", error));
    if (desc->offsets.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_count_offsets_kernel, 1, 1024, 0, stream, d),
                                    "stream", "the kernel must launch", error);
}
