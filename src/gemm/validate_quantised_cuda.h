/* ---- Validate kernel of quantised tensors ---- */

#pragma once
#include "base/version.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/validation_types.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/stored_scales.h"
#include "gemm/validate_values.h"
#include "cuda/launch.h"

enum { TEGROUP_IMPL_VALIDATE_WARPS = 8 };

/* What a thread has counted goes to the record. No place yet, -1, is the largest for atomicMin. */
static __device__ __forceinline__ void tegroup_impl_validate_add(int64_t *counter, unsigned long long count) {
    if (count) atomicAdd((unsigned long long *)counter, count);
}
static __device__ __forceinline__ void tegroup_impl_validate_lower(int64_t *first, unsigned long long at) {
    if (at != UINT64_MAX) atomicMin((unsigned long long *)first, at);
}

/* Every thread walks through all groups. The warps of the grid take a group's lines in turn, each line along which the
 * copy's elements lie side by side, and its scales, 32 at a time. */
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_VALIDATE_WARPS)
    tegroup_impl_validate_quantised_kernel(const __grid_constant__ tegroup_impl_validated first,
                                           tegroup_validation *result) {
    tegroup_impl_validated copy = first;
    const tegroup_tensor &t = first.tensor;
    const tegroup_snapshot_view view = tegroup_impl_fitting_view(&t);
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * TEGROUP_IMPL_VALIDATE_WARPS,
                  warp = (int64_t)blockIdx.x * TEGROUP_IMPL_VALIDATE_WARPS + threadIdx.x / 32;
    const bool transposed = tegroup_impl_transposed(&t, copy.of.columnwise);
    unsigned long long kinds[TEGROUP_IMPL_SCALE_KINDS] = {}, nans = 0, infinities = 0;
    unsigned long long first_value = UINT64_MAX, first_scale = UINT64_MAX, first_global = UINT64_MAX;
    int64_t turn = warp; /* the lines that other warps take before this one's next */
    if (tegroup_impl_ragged(&t.shape) && !view.header) return;
    for (int32_t g = 0; g < t.shape.groups; g++) {
        if (!tegroup_impl_validated_next(&copy, &view, g) && warp == 0 && lane == 0) {
            atomicOr(&result->status, TEGROUP_VALIDATION_BOUNDS);
            atomicMin((uint32_t *)&result->bad_group, (uint32_t)g);
        }
        const int64_t lines = transposed ? copy.sides.cols : copy.sides.rows,
                      length = transposed ? copy.sides.rows : copy.sides.cols;
        for (; turn < lines; turn += warps)
            for (int64_t i = lane; i < length; i += 32) {
                const int64_t row = transposed ? i : turn, col = transposed ? turn : i;
                const int kind = tegroup_impl_validated_value(&copy, row, col);
                if (kind == TEGROUP_IMPL_FINITE) continue;
                if (kind == TEGROUP_IMPL_NAN) nans++;
                else infinities++;
                first_value = min(first_value, (unsigned long long)((copy.row0 + row) * t.shape.cols + col));
            }
        turn -= lines;
        for (int64_t i = warp * 32 + lane; i < copy.scales; i += warps * 32) {
            int64_t at;
            const int kind = tegroup_impl_validated_scale(&copy, i, &at);
            kinds[kind]++;
            if (kind != TEGROUP_IMPL_SCALE_GOOD) first_scale = min(first_scale, (unsigned long long)at);
        }
        if (warp == 0 && lane == 0) {
            const int kind = tegroup_impl_validated_global(&copy, g);
            kinds[kind]++;
            if (kind != TEGROUP_IMPL_SCALE_GOOD) first_global = min(first_global, (unsigned long long)g);
        }
    }
    tegroup_impl_validate_add(&result->owned.nans, nans);
    tegroup_impl_validate_add(&result->owned.infinities, infinities);
    tegroup_impl_validate_lower(&result->owned.first_row, first_value);
    for (int kind = TEGROUP_IMPL_SCALE_GOOD + 1; kind < TEGROUP_IMPL_SCALE_KINDS; kind++)
        tegroup_impl_validate_add(tegroup_impl_scale_counter(&result->scales, kind), kinds[kind]);
    tegroup_impl_validate_lower(&result->scales.first, first_scale);
    tegroup_impl_validate_lower(&result->scales.first_global, first_global);
}

static inline cudaError_t tegroup_impl_cuda_validate_quantised(const tegroup_validate_desc *desc, unsigned blocks,
                                                               struct CUstream_st *stream) {
    return tegroup_impl_launch(tegroup_impl_validate_quantised_kernel, blocks, 32 * TEGROUP_IMPL_VALIDATE_WARPS, 0,
                               stream, tegroup_impl_validated_of(&desc->tensor, desc->columnwise), desc->result);
}
