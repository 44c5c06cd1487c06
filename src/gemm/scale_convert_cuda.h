/* ---- Scales in another layout: kernel ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/stored_scales.h"
#include "cuda/launch.h"
#include "cuda/rows.h"

enum { TEGROUP_IMPL_SCALE_THREADS = 256 };

/* What the groups before g store, added up by all threads of a block; 0 where scales do not follow one another. */
static __device__ __forceinline__ int64_t tegroup_impl_block_scales_before(const tegroup_impl_scales &scales,
                                                                           const tegroup_snapshot_view *view, int32_t g,
                                                                           unsigned long long *sum) {
    const tegroup_tensor *t = &scales.tensor;
    int64_t mine = 0;
    if (threadIdx.x == 0) *sum = 0;
    __syncthreads();
    if (!tegroup_impl_listed(t) && !tegroup_impl_scales_strided(t, scales.columnwise)) {
        for (int32_t h = (int32_t)threadIdx.x; h < g; h += TEGROUP_IMPL_SCALE_THREADS)
            mine = tegroup_impl_add(mine, tegroup_impl_scale_grid_alone(
                                              t, &scales.facts, tegroup_impl_group_sides(t, view, h), scales.columnwise)
                                              .count);
        atomicAdd(sum, (unsigned long long)mine);
    }
    __syncthreads();
    return (int64_t)*sum;
}

/* A group a blockIdx.y; the blocks of a group take its scales in turn. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_SCALE_THREADS)
    tegroup_impl_scale_convert_kernel(const __grid_constant__ tegroup_impl_scales from,
                                      const __grid_constant__ tegroup_impl_scales to) {
    __shared__ unsigned long long sums[2];
    const int32_t g = (int32_t)blockIdx.y;
    const tegroup_snapshot_view from_view = tegroup_impl_fitting_view(&from.tensor),
                                to_view = tegroup_impl_fitting_view(&to.tensor);
    if ((tegroup_impl_ragged(&from.tensor.shape) && !from_view.header)
        || (tegroup_impl_ragged(&to.tensor.shape) && !to_view.header))
        return;
    const int64_t first = (int64_t)blockIdx.x * TEGROUP_IMPL_SCALE_THREADS,
                  step = (int64_t)gridDim.x * TEGROUP_IMPL_SCALE_THREADS;
    tegroup_impl_scale_grid written = tegroup_impl_scales_grid(&to, &to_view, g, 0);
    if (first >= written.count) return; /* as all threads of the block do */
    const tegroup_impl_scale_grid read =
        tegroup_impl_scales_grid(&from, &from_view, g, tegroup_impl_block_scales_before(from, &from_view, g, &sums[0]));
    written = tegroup_impl_scales_grid(&to, &to_view, g, tegroup_impl_block_scales_before(to, &to_view, g, &sums[1]));
    for (int64_t e = first + threadIdx.x; e < written.count; e += step) {
        const tegroup_impl_scale_place place = tegroup_impl_scale_place_of(&written, e);
        tegroup_impl_store_scale(to.dtype, tegroup_impl_scales_at(&to, g),
                                 tegroup_impl_scale_of_block(&written, place.part, place.outer, place.inner),
                                 tegroup_impl_converted_scale(&read, from.dtype, tegroup_impl_scales_at(&from, g),
                                                              &written, to.dtype, place));
    }
}

static inline tegroup_status tegroup_impl_cuda_scale_convert(const tegroup_impl_scales *from,
                                                             const tegroup_impl_scales *to, struct CUstream_st *stream,
                                                             tegroup_error *error) {
    const int32_t groups = to->tensor.shape.groups;
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(to->capacity, 4 * TEGROUP_IMPL_SCALE_THREADS), 32,
                                              &blocks, error));
    if (groups == 0 || to->capacity == 0) return TEGROUP_OK;
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_scale_convert_kernel,
                            dim3((unsigned)tegroup_impl_ceil_div(blocks, groups), (unsigned)groups),
                            TEGROUP_IMPL_SCALE_THREADS, 0, stream, *from, *to),
        "stream", "the kernel must launch", error);
}
