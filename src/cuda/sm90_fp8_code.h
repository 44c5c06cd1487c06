/* ---- Hopper GEMM of FP8: the compiled kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/rules.h"
#include "core/choice.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_fp8_kernels.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_fp8.h"

/* Whether the compiler has tensormap.replace as this source uses it, with strides in bytes (PTX ISA 8.5). Clang does
 * not tell its version of ptxas, so it counts as an older one. */
#if defined(__CUDACC_VER_MAJOR__)
#define TEGROUP_IMPL_SM90_REPLACES (__CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1205)
#else
#define TEGROUP_IMPL_SM90_REPLACES 0
#endif

typedef struct tegroup_impl_sm90_fp8_code {
    const void *kernel; /* NULL where a switch leaves it out */
    int32_t shared_bytes;
} tegroup_impl_sm90_fp8_code;

static inline const tegroup_impl_sm90_fp8_code *tegroup_impl_sm90_fp8_code_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_FP8_CODE(name, op, lines, cols, turns, slabs, narrows, fast)                                 \
    {TEGROUP_IMPL_KERNEL_##op(                                                                                         \
         tegroup_impl_sm90_fp8_kernel<tegroup_impl_sm90_fp8_shape<op, lines, cols, turns, slabs, narrows, fast>>),     \
     tegroup_impl_sm90_fp8_shape<op, lines, cols, turns, slabs, narrows, fast>::SHARED_BYTES},
    static const tegroup_impl_sm90_fp8_code code[TEGROUP_IMPL_SM90_FP8_KERNEL_COUNT] = {
        TEGROUP_IMPL_SM90_FP8_KERNELS(TEGROUP_IMPL_SM90_FP8_CODE)};
#undef TEGROUP_IMPL_SM90_FP8_CODE
    return &code[kernel];
}

static inline tegroup_status tegroup_impl_sm90_fp8_choose(tegroup_plan *plan, int32_t kernel, tegroup_error *error) {
    const tegroup_impl_sm90_fp8_row *row = tegroup_impl_sm90_fp8_row_of(kernel);
    const tegroup_impl_sm90_fp8_code *code = tegroup_impl_sm90_fp8_code_of(kernel);
    TEGROUP_IMPL_RULE(plan->problem.op != TEGROUP_OP_WGRAD || TEGROUP_IMPL_SM90_REPLACES, ERROR_UNSUPPORTED, "op",
                      "must not be WGRAD for FP8 on SM90 in a build by nvcc before 12.5", TEGROUP_OP_FORWARD,
                      plan->problem.op);
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
    plan->tile_m = row->tile_m;
    plan->tile_n = row->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_FP8_K;
    return tegroup_impl_cuda_status(tegroup_impl_planned(plan, code->kernel, TEGROUP_IMPL_SM90_THREADS,
                                                         code->shared_bytes, TEGROUP_IMPL_SM90_MOST_BLOCKS),
                                    "plan", "the kernel's attributes must be readable", error);
}
