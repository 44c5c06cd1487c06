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
#include "moe/count.h"
#include "cuda/launch.h"
#include "cuda/prepare.h"
#include "cuda/rows.h"

/* The element of a matrix of slots where a slot lies. Rows apart are rare, and a division is many instructions. */
static __device__ __noinline__ int64_t tegroup_impl_slot_apart(int64_t cols, int64_t ld, int64_t slot) {
    return slot / cols * ld + slot % cols;
}
static __device__ __forceinline__ int64_t tegroup_impl_slot_at(const tegroup_matrix &m, int64_t slot) {
    return m.ld == m.cols ? slot : tegroup_impl_slot_apart(m.cols, m.ld, slot);
}

/* Adds to a count of I32 or I64, if counts are wanted. */
static __device__ __forceinline__ void tegroup_impl_add_count(const tegroup_matrix &counts, int64_t g, uint32_t n) {
    if (counts.dtype == TEGROUP_DTYPE_I32) atomicAdd((uint32_t *)counts.data + g, n);
    else if (counts.dtype == TEGROUP_DTYPE_I64) atomicAdd((unsigned long long *)counts.data + g, (unsigned long long)n);
}

/* The smallest of `first` and what is at g, of an unsigned matrix; and the largest, of a signed one. */
static __device__ __forceinline__ void tegroup_impl_lower_start(const tegroup_matrix &m, int64_t g, int64_t first) {
    if (m.dtype == TEGROUP_DTYPE_I32) atomicMin((uint32_t *)m.data + g, (uint32_t)first);
    else if (m.dtype == TEGROUP_DTYPE_I64) atomicMin((unsigned long long *)m.data + g, (unsigned long long)first);
}
static __device__ __forceinline__ void tegroup_impl_raise_row(const tegroup_matrix &m, int64_t slot, int64_t row) {
    const int64_t at = tegroup_impl_slot_at(m, slot);
    if (m.dtype == TEGROUP_DTYPE_I32) atomicMax((int32_t *)m.data + at, (int32_t)row);
    else atomicMax((long long *)m.data + at, (long long)row);
}

/* Counts 0; starts and rows that nothing has met: all bits set. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_count_clear_kernel(const __grid_constant__ tegroup_count_desc desc) {
    const int64_t threads = (int64_t)gridDim.x * blockDim.x, thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                  slots = desc.row_of_slot.rows * desc.row_of_slot.cols;
    for (int64_t g = thread; g < desc.groups; g += threads) {
        tegroup_impl_store_int(desc.counts.dtype, desc.counts.data, g, 0);
        tegroup_impl_store_int(desc.starts.dtype, desc.starts.data, g, -1);
    }
    if (desc.row_of_slot.dtype == TEGROUP_DTYPE_UNSET) return;
    for (int64_t slot = thread; slot < slots; slot += threads)
        tegroup_impl_store_int(desc.row_of_slot.dtype, desc.row_of_slot.data,
                               tegroup_impl_slot_at(desc.row_of_slot, slot), -1);
}

/* A block counts its rows in shared memory first: sums, smallest and largest of integers are the same in whatever order
 * they come. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_count_kernel(const __grid_constant__ tegroup_count_desc desc) {
    extern __shared__ uint32_t tegroup_impl_count_shared[];
    uint32_t *counts = tegroup_impl_count_shared;
    const int64_t rows = tegroup_impl_count_rows(&desc), used = tegroup_impl_count_used(&desc),
                  threads = (int64_t)gridDim.x * blockDim.x;
    for (int32_t g = (int32_t)threadIdx.x; g < desc.groups; g += (int32_t)blockDim.x) counts[g] = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += threads) {
        const int64_t slot = tegroup_impl_count_slot(&desc, row, used),
                      at = tegroup_impl_slot_at(desc.labels, desc.block > 1 ? row / desc.block : row),
                      g = tegroup_impl_count_group(&desc, at, slot);
        if (g < 0) continue;
        atomicAdd(&counts[g], 1u);
        tegroup_impl_lower_start(desc.starts, g, row);
        if (slot >= 0) tegroup_impl_raise_row(desc.row_of_slot, slot, row);
    }
    __syncthreads();
    for (int32_t g = (int32_t)threadIdx.x; g < desc.groups; g += (int32_t)blockDim.x)
        if (counts[g] != 0) tegroup_impl_add_count(desc.counts, g, counts[g]);
}

/* One block: a thread has up to four groups, and the scan gives it the sum of those before them. Starts that nothing
 * has met become 0. */
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
        if (desc.starts.dtype != TEGROUP_DTYPE_UNSET
            && tegroup_impl_load_int(desc.starts.dtype, desc.starts.data, g) < 0)
            tegroup_impl_store_int(desc.starts.dtype, desc.starts.data, g, 0);
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
    const int64_t rows = tegroup_impl_count_rows(desc);
    const int maps = desc->starts.dtype != TEGROUP_DTYPE_UNSET || desc->slot_of_row.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_count_desc d = *desc;
    unsigned blocks;
    cudaError_t code = cudaSuccess;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_image((const void *)tegroup_impl_count_kernel, error));
    d.labels = tegroup_impl_cuda_matrix(&desc->labels);
    d.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(rows, 2048), 4, &blocks, error));
    blocks = (unsigned)tegroup_impl_max(blocks, rows >> 31); /* a block's counts fit 32 bits */
    if (!maps) TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_counts(&desc->counts, stream, error));
    else code = tegroup_impl_launch(tegroup_impl_count_clear_kernel, blocks, 256, 0, stream, d);
    if (code == cudaSuccess && rows > 0 && desc->groups > 0)
        code = tegroup_impl_launch(tegroup_impl_count_kernel, blocks, 256, 4 * (size_t)desc->groups, stream, d);
    if (code == cudaSuccess
        && (desc->offsets.dtype != TEGROUP_DTYPE_UNSET || desc->starts.dtype != TEGROUP_DTYPE_UNSET))
        code = tegroup_impl_launch(tegroup_impl_count_offsets_kernel, 1, 1024, 0, stream, d);
    return tegroup_impl_cuda_status(code, "stream", "the kernel must launch", error);
}
