/* ---- Validate kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/validation_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "core/tensor.h"
#include "core/stored_scales.h"
#include "gemm/validate_values.h"
#include "gemm/validate.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "gemm/validate_quantised_cuda.h"

/* Checks the sizes in one block, which also initializes the result. */
static __global__ void __launch_bounds__(1024)
    tegroup_impl_validate_sizes_kernel(const __grid_constant__ tegroup_validate_desc desc) {
    __shared__ unsigned long long total, most, end;
    __shared__ uint32_t status, bad_group;
    const tegroup_tensor &t = desc.tensor;
    tegroup_snapshot_view view;
    view.header = NULL;
    if (tegroup_impl_ragged(&t.shape)) view = tegroup_impl_fitting_view(&t);
    if (threadIdx.x == 0) {
        total = most = end = 0;
        status = tegroup_impl_ragged(&t.shape) && !view.header ? TEGROUP_VALIDATION_SNAPSHOT : 0;
        bad_group = UINT32_MAX; /* none: -1 as an int32_t, and the largest for atomicMin */
    }
    __syncthreads();
    for (int32_t g = (int32_t)threadIdx.x; view.header && g < t.shape.groups; g += 1024) {
        const uint32_t bits = tegroup_impl_validate_group(&view, t.shape.rows, g);
        const int64_t rows = tegroup_impl_max(0, view.rows[g]);
        if (bits) {
            atomicOr(&status, bits);
            atomicMin(&bad_group, (uint32_t)g);
        }
        atomicAdd(&total, (unsigned long long)rows);
        atomicMax(&most, (unsigned long long)rows);
        if (rows > 0) atomicMax(&end, (unsigned long long)tegroup_impl_add(tegroup_impl_max(0, view.start[g]), rows));
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    tegroup_validation result;
    tegroup_impl_validate_open(&result);
    result.status = status;
    result.bad_group = (int32_t)bad_group;
    if (view.header) {
        result.snapshot_status = view.header->status;
        if (view.header->status) result.status |= TEGROUP_VALIDATION_SIZES;
        result.status |= tegroup_impl_validate_sums(view.header, (int64_t)total, (int64_t)most, (int64_t)end);
    }
    *desc.result = result;
}

/* Whether an element among these 16 bytes may be NaN or infinite: one whose exponent is all ones. */
static __device__ __forceinline__ bool tegroup_impl_suspicious(tegroup_dtype dtype, uint4 v) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    const uint32_t ones = dtype == TEGROUP_DTYPE_F64   ? 0x7ff00000u
                          : dtype == TEGROUP_DTYPE_F16 ? 0x7c000000u
                                                       : 0x7f800000u;
    bool found = false;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (dtype == TEGROUP_DTYPE_F64 && i % 2 == 0) continue;
        found = found || (word[i] & ones) == ones;
        if (dtype == TEGROUP_DTYPE_F16 || dtype == TEGROUP_DTYPE_BF16) found = found || (word[i] << 16 & ones) == ones;
    }
    return found;
}

/* A block takes 32 rows at a time. First its threads look through all groups for those that own one of the rows; then
 * each warp checks one row. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_validate_values_kernel(const __grid_constant__ tegroup_validate_desc desc) {
    __shared__ uint32_t owned;
    const tegroup_tensor &t = desc.tensor;
    const int64_t rows = tegroup_impl_validate_rows(&t), cols = t.shape.cols;
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32,
                  bytes = tegroup_impl_bits(t.dtype) / 8, each = 16 / bytes;
    const bool ragged = tegroup_impl_ragged(&t.shape);
    tegroup_snapshot_view view;
    view.header = NULL;
    if (ragged) view = tegroup_impl_fitting_view(&t);
    for (int64_t base = (int64_t)blockIdx.x * 32; base < rows; base += (int64_t)gridDim.x * 32) {
        if (threadIdx.x == 0) owned = ragged ? 0 : UINT32_MAX;
        __syncthreads();
        for (int32_t g = (int32_t)threadIdx.x; view.header && g < t.shape.groups; g += 256) {
            uint32_t bits = 0;
            const int64_t start = view.start[g];
            if (start < 0 || start > base + 31 || (start <= base && base - start >= view.rows[g])) continue;
            for (int32_t i = 0; i < 32; i++)
                if (tegroup_impl_validate_owns(&view, g, base + i)) bits |= 1u << i;
            if (bits) atomicOr(&owned, bits);
        }
        __syncthreads();
        for (int32_t i = warp; i < 32 && base + i < rows; i += 8) {
            tegroup_validation_values *values = owned >> i & 1u ? &desc.result->owned : &desc.result->tail;
            const int64_t at = tegroup_impl_validate_first(&t, base + i);
            const char *row = (const char *)t.data + at * bytes;
            const int64_t vectors = (uintptr_t)row % 16 == 0 ? cols / each : 0;
            unsigned long long nans = 0, infinities = 0, first = UINT64_MAX;
            auto look = [&](int64_t col) {
                const int kind = tegroup_impl_kind(t.dtype, row, col);
                if (kind == TEGROUP_IMPL_FINITE) return;
                if (kind == TEGROUP_IMPL_NAN) nans++;
                else infinities++;
                first = min(first, (unsigned long long)((base + i) * cols + col));
            };
#pragma unroll 4
            for (int64_t c = lane; c < vectors; c += 32)
                if (tegroup_impl_suspicious(t.dtype, ((const uint4 *)row)[c]))
                    for (int32_t j = 0; j < each; j++) look(c * each + j);
            for (int64_t col = vectors * each + lane; col < cols; col += 32) look(col);
            if (first == UINT64_MAX) continue;
            if (nans) atomicAdd((unsigned long long *)&values->nans, nans);
            if (infinities) atomicAdd((unsigned long long *)&values->infinities, infinities);
            atomicMin((unsigned long long *)&values->first_row, first); /* -1, for none, is the largest */
        }
        __syncthreads();
    }
}

static __global__ void tegroup_impl_validate_close_kernel(tegroup_validation *result, int64_t cols) {
    tegroup_impl_validate_close(result, cols);
}

static inline tegroup_status tegroup_impl_cuda_validate(const tegroup_validate_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    const int64_t rows = tegroup_impl_validate_rows(&desc->tensor);
    unsigned blocks;
    cudaError_t code;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(rows, 32), 8, &blocks, error));
    code = tegroup_impl_launch(tegroup_impl_validate_sizes_kernel, 1, 1024, 0, stream, *desc);
#if TEGROUP_IMPL_FP8_KERNELS
    if (code == cudaSuccess && desc->tensor.scaling != TEGROUP_SCALING_NONE)
        code = tegroup_impl_cuda_validate_quantised(desc, blocks, stream);
#endif
    if (code == cudaSuccess && rows > 0 && desc->tensor.scaling == TEGROUP_SCALING_NONE)
        code = tegroup_impl_launch(tegroup_impl_validate_values_kernel, blocks, 256, 0, stream, *desc);
    if (code == cudaSuccess)
        code = tegroup_impl_launch(tegroup_impl_validate_close_kernel, 1, 1, 0, stream, desc->result,
                                   desc->tensor.shape.cols);
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}
