/* ---- Quantise and dequantise: what launches share ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/tensor_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "cuda/quantize_walk.h"

/* Logarithm of a block's extent; of a tile's where a block is all (0). */
static inline int32_t tegroup_impl_cuda_tile_shift(int32_t block) {
    return block > 0 ? tegroup_impl_shift_of(block) : TEGROUP_IMPL_QUANTIZE_SHIFT;
}

/* What a launch is told of the quantised tensor, whichever way it goes. */
static inline tegroup_impl_quantize_launch tegroup_impl_cuda_quantize_launch(const tegroup_tensor *t) {
    tegroup_impl_quantize_launch call;
    int copy;
    memset(&call, 0, sizeof call);
    call.desc.output = *t;
    call.facts = *tegroup_scaling_info(t->scaling);
    call.facts.name = NULL; /* of no use to a kernel */
    call.choice_shift = tegroup_impl_cuda_tile_shift(call.facts.choice_outer);
    call.outer_shift = tegroup_impl_cuda_tile_shift(call.facts.block_outer);
    call.inner_shift = tegroup_impl_cuda_tile_shift(call.facts.block_inner);
    call.scale_dtype = tegroup_impl_one_scale(t, &call.facts);
    call.scale_bits = tegroup_impl_bits(call.scale_dtype);
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++) {
        call.scale_capacity[copy] = tegroup_impl_scale_capacity(t, copy);
        call.grids[copy] = tegroup_impl_scale_grid_of_any(t, &call.facts, copy);
    }
    call.transposed_capacity = tegroup_impl_transposed_capacity(t);
    if (tegroup_impl_ragged(&t->shape))
        call.view = tegroup_impl_snapshot_view(t->shape.snapshot, t->shape.groups, tegroup_impl_irregular(&t->shape));
    return call;
}

/* Works of 2^down rows and 2^across columns, shared out among as many blocks as have room: `resident` a
 * multiprocessor. */
static inline tegroup_status tegroup_impl_cuda_quantize_blocks(tegroup_impl_quantize_launch *call, int32_t down,
                                                               int32_t across, int32_t resident, unsigned *blocks,
                                                               tegroup_error *error) {
    const tegroup_tensor *t = &call->desc.output;
    const int64_t parts = t->scale_parts > 1 ? t->scale_parts : 1, groups = t->shape.groups, rows = t->shape.rows,
                  works = tegroup_impl_ragged(&t->shape) ? tegroup_impl_blocks_of(rows, down) + groups
                                                         : groups * parts * tegroup_impl_blocks_of(rows / parts, down);
    call->down_shift = down;
    call->across_shift = across;
    return tegroup_impl_cuda_blocks(tegroup_impl_mul(works, tegroup_impl_blocks_of(t->shape.cols, across)), resident,
                                    blocks, error);
}

/* Logarithm of a strip's columns: as many, up to 2,048, as leave the least of a row's last strip empty. */
static inline int32_t tegroup_impl_cuda_strip_shift(int64_t cols) {
    int32_t across = TEGROUP_IMPL_QUANTIZE_STRIP, narrower;
    for (narrower = across - 1; narrower >= 8; narrower--)
        if (tegroup_impl_blocks_of(cols, narrower) << narrower < tegroup_impl_blocks_of(cols, across) << across)
            across = narrower;
    return across;
}

typedef void tegroup_impl_quantize_kernel_type(const tegroup_impl_quantize_launch);

/* Launches a kernel with so many bytes of shared memory besides what it declares. */
static inline tegroup_status tegroup_impl_cuda_quantize_launch_kernel(
    void (*kernel)(const tegroup_impl_quantize_launch), const tegroup_impl_quantize_launch *call, unsigned blocks,
    size_t bytes, struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), "space",
        "the device must have the kernel, and shared memory for it", error));
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, blocks, TEGROUP_IMPL_QUANTIZE_THREADS, bytes, stream, *call), "stream",
        "the kernel must launch", error);
}
