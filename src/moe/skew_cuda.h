/* ---- Skew of a routing: kernel ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/snapshot_types.h"
#include "moe/routing_types.h"
#include "base/build.h"
#include "core/layout.h"
#include "core/snapshot_checks.h"
#include "moe/export.h"
#include "moe/skew.h"
#include "cuda/launch.h"

/* One block: a thread adds up to four groups, and what it has is added to the block's, in whatever order. */
static __global__ void __launch_bounds__(1024)
    tegroup_impl_skew_kernel(const __grid_constant__ tegroup_skew_desc desc) {
    __shared__ unsigned long long rows, tiles;
    __shared__ int32_t skipped, empty;
    const tegroup_impl_fit fit = tegroup_impl_spans_fit(&desc.shape, desc.shape.groups);
    const tegroup_snapshot_view view = tegroup_impl_snapshot_view(desc.shape.snapshot, desc.shape.groups, 0);
    const bool prepared = tegroup_impl_fits(&fit);
    tegroup_skew sums;
    memset(&sums, 0, sizeof sums);
    if (threadIdx.x == 0) rows = tiles = 0, skipped = empty = 0;
    __syncthreads();
    for (int32_t g = (int32_t)threadIdx.x; g < desc.shape.groups; g += (int32_t)blockDim.x) {
        tegroup_impl_span span = {0, 0};
        if (prepared) span = tegroup_impl_span_of(&view, g, desc.shape.rows);
        tegroup_impl_skew_add(&desc, span, &sums);
    }
    atomicAdd(&rows, (unsigned long long)sums.rows);
    atomicAdd(&tiles, (unsigned long long)sums.tiles);
    atomicAdd(&skipped, sums.skipped);
    atomicAdd(&empty, sums.empty);
    __syncthreads();
    if (threadIdx.x != 0) return;
    sums.rows = (int64_t)rows;
    sums.tiles = (int64_t)tiles;
    sums.skipped = skipped;
    sums.empty = empty;
    *desc.result = tegroup_impl_skew_of(&desc, prepared ? &view : NULL, &sums);
}

static inline tegroup_status tegroup_impl_cuda_skew(const tegroup_skew_desc *desc, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_skew_kernel, 1, 1024, 0, stream, *desc), "stream",
                                    "the kernel must launch", error);
}
