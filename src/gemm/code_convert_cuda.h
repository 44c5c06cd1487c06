/* ---- Codes in another order: kernel ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "gemm/code_convert.h"
#include "cuda/launch.h"
#include "cuda/rows.h"

enum { TEGROUP_IMPL_CODE_THREADS = 256 };

/* A thread converts a block of codes at a time. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_CODE_THREADS)
    tegroup_impl_code_convert_kernel(const __grid_constant__ tegroup_impl_codes_moved moved, int64_t count) {
    const int64_t step = (int64_t)gridDim.x * TEGROUP_IMPL_CODE_THREADS;
    for (int64_t block = (int64_t)blockIdx.x * TEGROUP_IMPL_CODE_THREADS + threadIdx.x; block < count; block += step)
        tegroup_impl_convert_block(&moved, block);
}

static inline tegroup_status tegroup_impl_cuda_code_convert(const tegroup_impl_codes_moved *moved,
                                                            struct CUstream_st *stream, tegroup_error *error) {
    const int64_t count = (int64_t)moved->from.shape.groups * moved->lines * moved->blocks;
    unsigned blocks;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(count, TEGROUP_IMPL_CODE_THREADS), 32, &blocks, error));
    if (count == 0) return TEGROUP_OK;
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_code_convert_kernel, blocks,
                                                        TEGROUP_IMPL_CODE_THREADS, 0, stream, *moved, count),
                                    "stream", "the kernel must launch", error);
}
