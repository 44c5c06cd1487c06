/* ---- Hopper GEMM: the compiled kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/rules.h"
#include "core/choice.h"
#include "cuda/sm90_kernels.h"
#include "cuda/decoded.h"
#include "cuda/sm90_decoded.h"
#include "cuda/sm90_weights_kernels.h"
#include "cuda/sm90_fp8_kernels.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/portable_plan.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_multiply.h"
#include "cuda/sm90_weights.h"
#include "cuda/sm90_fp8_code.h"

/* The code of a kernel row. */
typedef struct tegroup_impl_sm90_code {
    const void *bf16, *f16; /* NULL where a switch leaves the kernel out, or it is PORTABLE's */
    int32_t shared_bytes;
} tegroup_impl_sm90_code;

static inline const tegroup_impl_sm90_code *tegroup_impl_sm90_code_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_CODE(name, op, lines, cols, turns, slabs, flips, pairs, ns, epilogue, tb, us)                \
    {TEGROUP_IMPL_KERNEL_##op(                                                                                         \
         tegroup_impl_sm90_kernel<true, tegroup_impl_sm90_shape<op, lines, cols, turns, slabs, flips, pairs>>),        \
     TEGROUP_IMPL_KERNEL_F16(                                                                                          \
         op, tegroup_impl_sm90_kernel<false, tegroup_impl_sm90_shape<op, lines, cols, turns, slabs, flips, pairs>>),   \
     tegroup_impl_sm90_shape<op, lines, cols, turns, slabs>::SHARED_BYTES},
#define TEGROUP_IMPL_SM90_MMA_CODE(name, op, ns, epilogue, tb, us) {NULL, NULL, 0},
    static const tegroup_impl_sm90_code code[TEGROUP_IMPL_SM90_KERNEL_COUNT] = {
        TEGROUP_IMPL_SM90_KERNELS(TEGROUP_IMPL_SM90_CODE, TEGROUP_IMPL_SM90_MMA_CODE)};
#undef TEGROUP_IMPL_SM90_CODE
#undef TEGROUP_IMPL_SM90_MMA_CODE
    return &code[kernel];
}

/* Whether this translation unit has the code of a kernel that the GPU needs: a GPU of sm_90 needs code for sm_90a. */
static inline int tegroup_impl_sm90_holds(const void *kernel) {
    cudaFuncAttributes attributes;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code == cudaSuccess && attributes.maxThreadsPerBlock >= TEGROUP_IMPL_SM90_THREADS;
}
static inline int tegroup_impl_sm90_image(int32_t sm) {
    return sm != 90 || tegroup_impl_sm90_holds(tegroup_impl_sm90_code_of(0)->bf16);
}

/* Makes a plan ready to launch a kernel of the table. */
static inline tegroup_status tegroup_impl_sm90_choose(tegroup_plan *plan, int32_t kernel, tegroup_error *error) {
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_row_of(kernel);
    const tegroup_impl_sm90_code *code = tegroup_impl_sm90_code_of(kernel);
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
#if !defined(TEGROUP_NO_PORTABLE)
    int32_t count;
    if (row->mma)
        return tegroup_impl_portable_take_row(plan, tegroup_impl_portable_rows(plan->problem.op, &count), error);
#endif
    plan->tile_m = row->tile_m;
    plan->tile_n = row->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_K;
    return tegroup_impl_cuda_status(
        tegroup_impl_planned(plan, plan->problem.a == TEGROUP_DTYPE_F16 ? code->f16 : code->bf16,
                             TEGROUP_IMPL_SM90_THREADS, code->shared_bytes, TEGROUP_IMPL_SM90_MOST_BLOCKS),
        "plan", "the kernel's attributes must be readable", error);
}

/* A plan's kernel as a choice: its number, and its tile, by which another build finds out if its table differs. */
static inline tegroup_impl_choice tegroup_impl_sm90_chosen(const tegroup_plan *plan) {
    tegroup_impl_choice choice;
    memset(&choice, 0, sizeof choice);
    choice.words[0] = plan->algorithm[TEGROUP_IMPL_PLANNED_ROW];
    choice.words[1] = (uint64_t)plan->tile_m;
    choice.words[2] = (uint64_t)plan->tile_n;
    return choice;
}

static inline tegroup_status tegroup_impl_sm90_take(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                    tegroup_error *error) {
#if TEGROUP_IMPL_FP8_KERNELS
    if (tegroup_impl_sm90_multiplies_fp8(&plan->problem))
        return tegroup_impl_sm90_fp8_choose(plan, (int32_t)choice->words[0], error);
    if (choice->words[0] >= (uint64_t)TEGROUP_IMPL_SM90_KERNEL_COUNT)
        return tegroup_impl_sm90_weights_choose(plan, (int32_t)choice->words[0], error);
#endif
    return tegroup_impl_sm90_choose(plan, (int32_t)choice->words[0], error);
}

/* Whether a plan may take a kernel. One that decodes weights elsewhere than the plan's would need another workspace. */
static inline int tegroup_impl_sm90_takes(const tegroup_plan *plan, int32_t kernel) {
#if defined(TEGROUP_NO_PORTABLE)
    const int with_mma = 0;
#else
    const int with_mma = 1;
#endif
    const tegroup_problem *p = &plan->problem, multiplied = tegroup_impl_decoded_problem(p);
    const int weights = kernel >= TEGROUP_IMPL_SM90_KERNEL_COUNT;
    if (tegroup_impl_sm90_multiplies_fp8(p)) return tegroup_impl_sm90_fp8_runs(p, kernel);
    if (tegroup_impl_sm90_plans_weights(plan) != weights) return 0;
    return weights ? tegroup_impl_sm90_weights_runs(p, kernel)
                   : tegroup_impl_sm90_runs(&multiplied, kernel, with_mma)
                         && !(tegroup_impl_sm90_row_of(kernel)->pairs && plan->sm_limit == 1);
}
static inline int32_t tegroup_impl_sm90_kernel_count(const tegroup_problem *p) {
    return tegroup_impl_sm90_multiplies_fp8(p) ? (int32_t)TEGROUP_IMPL_SM90_FP8_KERNEL_COUNT
                                               : (int32_t)TEGROUP_IMPL_SM90_WEIGHTS_END;
}

/* The kernels that tegroup_plan_tune may time for a plan. */
static inline tegroup_status tegroup_impl_sm90_choices(const tegroup_plan *plan, const tegroup_gemm_desc *,
                                                       tegroup_impl_choices *choices, tegroup_error *error) {
    for (int32_t kernel = 0; kernel < tegroup_impl_sm90_kernel_count(&plan->problem); kernel++) {
        tegroup_plan candidate = *plan;
        tegroup_impl_choice choice;
        if (!tegroup_impl_sm90_takes(plan, kernel)) continue;
        memset(&choice, 0, sizeof choice);
        choice.words[0] = (uint64_t)kernel;
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_take(&candidate, &choice, error));
        choice = tegroup_impl_sm90_chosen(&candidate);
        tegroup_impl_choices_add(choices, &choice);
    }
    return TEGROUP_OK;
}
