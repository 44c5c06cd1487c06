/* ---- Hopper GEMM of FP8: the compiled kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/plan_types.h"
#include "core/choice.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_fp8_kernels.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_fp8.h"

typedef struct tegroup_impl_sm90_fp8_code {
    const void *kernel; /* NULL where a switch leaves it out */
    int32_t shared_bytes;
} tegroup_impl_sm90_fp8_code;

static inline const tegroup_impl_sm90_fp8_code *tegroup_impl_sm90_fp8_code_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_FP8_CODE(name, op, lines, cols, turns, slabs, narrows)                                       \
    {TEGROUP_IMPL_KERNEL_##op(                                                                                         \
         tegroup_impl_sm90_fp8_kernel<tegroup_impl_sm90_fp8_shape<op, lines, cols, turns, slabs, narrows>>),           \
     tegroup_impl_sm90_fp8_shape<op, lines, cols, turns, slabs, narrows>::SHARED_BYTES},
    static const tegroup_impl_sm90_fp8_code code[TEGROUP_IMPL_SM90_FP8_KERNEL_COUNT] = {
        TEGROUP_IMPL_SM90_FP8_KERNELS(TEGROUP_IMPL_SM90_FP8_CODE)};
#undef TEGROUP_IMPL_SM90_FP8_CODE
    return &code[kernel];
}

static inline tegroup_status tegroup_impl_sm90_fp8_choose(tegroup_plan *plan, int32_t kernel, tegroup_error *error) {
    const tegroup_impl_sm90_fp8_row *row = tegroup_impl_sm90_fp8_row_of(kernel);
    const tegroup_impl_sm90_fp8_code *code = tegroup_impl_sm90_fp8_code_of(kernel);
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
    plan->tile_m = row->tile_m;
    plan->tile_n = row->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_FP8_K;
    return tegroup_impl_cuda_status(tegroup_impl_planned(plan, code->kernel, TEGROUP_IMPL_SM90_THREADS,
                                                         code->shared_bytes, TEGROUP_IMPL_SM90_MOST_BLOCKS),
                                    "plan", "the kernel's attributes must be readable", error);
}
