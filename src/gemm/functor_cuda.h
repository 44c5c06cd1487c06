/* ---- A product with a functor ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/rules.h"
#include "core/choice.h"
#include "cuda/sm90_kernels.h"
#include "gemm/check.h"
#include "gemm/run.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/portable.h"
#include "cuda/portable_plan.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_multiply.h"
#include "cuda/sm90_code.h"
#include "cuda/sm90_plan.h"
#include "gemm/machine_cuda.h"

/* A type's own address. The variable is not const, since a linker may fold constants of the same value. */
template <typename FUNCTOR> inline uint64_t tegroup_impl_functor_type() {
    static char type;
    return (uint64_t)(uintptr_t)&type;
}

#define TEGROUP_IMPL_FUNCTOR_BYTES 240
#define TEGROUP_IMPL_FUNCTOR_PARAMETER_BYTES 4096 /* of a kernel, in every CUDA 12 */

/* A kernel's address, if it is wanted: no other is compiled. */
#if !defined(TEGROUP_NO_SM90)
template <bool WANTED, bool BF16, typename SHAPE, typename FUNCTOR> struct tegroup_impl_sm90_functor_code {
    static const void *kernel() { return NULL; }
};
template <bool BF16, typename SHAPE, typename FUNCTOR>
struct tegroup_impl_sm90_functor_code<true, BF16, SHAPE, FUNCTOR> {
    static_assert(sizeof(tegroup_impl_sm90_call) + TEGROUP_IMPL_FUNCTOR_BYTES <= TEGROUP_IMPL_FUNCTOR_PARAMETER_BYTES,
                  "a kernel's parameters have room for a functor");
    static const void *kernel() { return (const void *)tegroup_impl_sm90_functor_kernel<BF16, SHAPE, FUNCTOR>; }
};
template <tegroup_op OP, bool BF16, typename FUNCTOR>
static inline const void *tegroup_impl_sm90_functor_kernel_of(int32_t row) {
#define TEGROUP_IMPL_FUNCTOR_ROW(name, op, lines, cols, turns, slabs, flips, pairs, ns, epilogue, tb, us)              \
    if (row == TEGROUP_IMPL_SM90_##name)                                                                               \
        return tegroup_impl_sm90_functor_code<OP == (op), BF16,                                                        \
                                              tegroup_impl_sm90_shape<op, lines, cols, turns, slabs, flips, pairs>,    \
                                              FUNCTOR>::kernel();
#define TEGROUP_IMPL_FUNCTOR_MMA(name, op, ns, epilogue, tb, us)
    TEGROUP_IMPL_SM90_KERNELS(TEGROUP_IMPL_FUNCTOR_ROW, TEGROUP_IMPL_FUNCTOR_MMA)
#undef TEGROUP_IMPL_FUNCTOR_ROW
#undef TEGROUP_IMPL_FUNCTOR_MMA
    return NULL;
}
template <tegroup_op OP, bool BF16, typename FUNCTOR>
static inline tegroup_status tegroup_impl_sm90_take_functor(tegroup_plan *plan, tegroup_error *error) {
    const int32_t row = (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ROW];
    const void *kernel = tegroup_impl_sm90_functor_kernel_of<OP, BF16, FUNCTOR>(row);
    TEGROUP_IMPL_RULE(tegroup_impl_sm90_holds(kernel), ERROR_NOT_BUILT, "plan.backend",
                      "must be compiled where its functor is, too: nvcc -gencode arch=compute_90a,code=sm_90a",
                      TEGROUP_BACKEND_SM90, plan->backend);
    return tegroup_impl_cuda_status(tegroup_impl_planned(plan, kernel, TEGROUP_IMPL_SM90_THREADS,
                                                         tegroup_impl_sm90_code_of(row)->shared_bytes,
                                                         TEGROUP_IMPL_SM90_MOST_BLOCKS),
                                    "plan", "the kernel's attributes must be readable", error);
}
#endif

#if !defined(TEGROUP_NO_PORTABLE)
template <bool WANTED, bool BF16, int OP, int M, int N, int WARPS_M, int WARPS_N, int STAGES, typename FUNCTOR>
struct tegroup_impl_portable_functor_code {
    static const void *kernel() { return NULL; }
};
template <bool BF16, int OP, int M, int N, int WARPS_M, int WARPS_N, int STAGES, typename FUNCTOR>
struct tegroup_impl_portable_functor_code<true, BF16, OP, M, N, WARPS_M, WARPS_N, STAGES, FUNCTOR> {
    static const void *kernel() {
        return (const void *)tegroup_impl_portable_functor_kernel<BF16, OP, M, N, WARPS_M, WARPS_N, STAGES, FUNCTOR>;
    }
};
template <tegroup_op OP, bool BF16, typename FUNCTOR>
static inline tegroup_status tegroup_impl_portable_take_functor(tegroup_plan *plan, tegroup_error *error) {
    const void *kernel = NULL;
#define TEGROUP_IMPL_FUNCTOR_ROW(op, m, n, warps_m, warps_n, stages)                                                   \
    if (OP == (op) && plan->tile_m == (m))                                                                             \
        kernel = tegroup_impl_portable_functor_code<OP == (op), BF16, op, m, n, warps_m, warps_n, stages,              \
                                                    FUNCTOR>::kernel();
    TEGROUP_IMPL_PORTABLE_ROWS_1(TEGROUP_IMPL_FUNCTOR_ROW)
    TEGROUP_IMPL_PORTABLE_ROWS_2(TEGROUP_IMPL_FUNCTOR_ROW)
    TEGROUP_IMPL_PORTABLE_ROWS_3(TEGROUP_IMPL_FUNCTOR_ROW)
#undef TEGROUP_IMPL_FUNCTOR_ROW
    return tegroup_impl_portable_take(plan, kernel, (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_THREADS],
                                      (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_SHARED], error);
}
#endif

static inline tegroup_status tegroup_impl_check_has_functor(const tegroup_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_RULE(plan->problem.functor, ERROR_PLAN, "plan.problem.functor",
                      "must be 1: plan a descriptor whose functor is 1", 1, 0);
    return TEGROUP_OK;
}

/* Gives a plan the kernel of a functor, compiled in this file.
 *
 *     struct clamped {                                             parameters are members
 *         float limit;
 *         __device__ float operator()(float x, const tegroup_element &at) const { return fminf(x, limit); }
 *     };
 *     gemm.functor = 1;
 *     tegroup_plan_make(&gemm, NULL, &plan, &error)
 *     tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, clamped>(&plan, &error)
 *     tegroup_gemm_with(&plan, &gemm, clamped{6}, stream, &error)
 *
 * x is alpha * sum + beta * c in F32; what the functor returns is rounded to d's type and stored. It is called once for
 * each element of d that the product writes, whatever the tile, in no order, and for no other; so it may read and write
 * what the caller has for that group, row and column (but for d, which is read as c). Rows that no group owns are the
 * tail's. Of an identity the bits are those of the product without a functor. FUNCTOR is trivially copyable and of at
 * most 240 bytes; it is copied when the call is enqueued, and a graph keeps its members as they were then, so what
 * changes from replay to replay lies behind a pointer to device memory.
 *
 * OP, DTYPE: the plan's, of a and b; kernels are compiled for these alone, one for each tile that a plan may have.
 * plan: made by tegroup_plan_make or tegroup_plan_load of a descriptor whose functor is 1; it may already have another
 * functor's kernel. Tile and workspace stay. On an error it is as before. Returns ERROR_NULL_ARGUMENT,
 * ERROR_STRUCT_SIZE, ERROR_PLAN (of another op or type, or made without a functor), ERROR_UNSUPPORTED (shared memory),
 * ERROR_NOT_BUILT, ERROR_CUDA. What backends cannot do is refused by tegroup_plan_make, and tegroup_explain says it. */
template <tegroup_op OP, tegroup_dtype DTYPE, typename FUNCTOR>
static inline tegroup_status tegroup_plan_with(tegroup_plan *plan, tegroup_error *error) {
    static_assert(DTYPE == TEGROUP_DTYPE_BF16 || DTYPE == TEGROUP_DTYPE_F16, "operands of 16 bits");
    static_assert(__is_trivially_copyable(FUNCTOR), "a kernel's parameter is copied as it lies in memory");
    static_assert(sizeof(FUNCTOR) <= TEGROUP_IMPL_FUNCTOR_BYTES, "a larger one is given a pointer to what it needs");
    tegroup_plan made;
    TEGROUP_IMPL_TRY(tegroup_impl_check_has_functor(plan, error));
    TEGROUP_IMPL_RULE(plan->problem.op == OP, ERROR_PLAN, "plan.problem.op",
                      "must be the operation that the functor is compiled for", OP, plan->problem.op);
    TEGROUP_IMPL_RULE_AS(DTYPE, plan->problem.a == DTYPE, ERROR_PLAN, "plan.problem.a",
                         "must be the type that the functor is compiled for", DTYPE, plan->problem.a);
    TEGROUP_IMPL_TRY(tegroup_impl_check_runs_here(plan, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_device(plan, error));
    made = *plan;
#if !defined(TEGROUP_NO_SM90)
    if (plan->backend == TEGROUP_BACKEND_SM90 && !tegroup_impl_sm90_plans_mma(plan))
        TEGROUP_IMPL_TRY((tegroup_impl_sm90_take_functor<OP, DTYPE == TEGROUP_DTYPE_BF16, FUNCTOR>(&made, error)));
    else
#endif
#if !defined(TEGROUP_NO_PORTABLE)
        TEGROUP_IMPL_TRY((tegroup_impl_portable_take_functor<OP, DTYPE == TEGROUP_DTYPE_BF16, FUNCTOR>(&made, error)));
#else
    TEGROUP_IMPL_RULE(0, ERROR_NOT_BUILT, "plan.backend", "must be part of this build", TEGROUP_BACKEND_SM90,
                      plan->backend);
#endif
    made.algorithm[TEGROUP_IMPL_PLANNED_FUNCTOR] = tegroup_impl_functor_type<FUNCTOR>();
    *plan = made;
    return TEGROUP_OK;
}

/* Runs the product of a plan that has the kernel of this functor, see tegroup_plan_with; like tegroup_gemm in all else:
 * what it checks, enqueues and promises, sizes in device memory, capture. desc is the planned one, with functor 1, and
 * tegroup_gemm_check checks it. functor: copied before the call returns. Returns what tegroup_gemm does, and ERROR_PLAN
 * without a kernel of this functor in the plan. */
template <typename FUNCTOR>
static inline tegroup_status tegroup_gemm_with(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                               const FUNCTOR &functor, struct CUstream_st *stream,
                                               tegroup_error *error) {
    tegroup_gemm_desc taken;
    tegroup_plan run;
    TEGROUP_IMPL_TRY(tegroup_impl_check_has_functor(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(plan->algorithm[TEGROUP_IMPL_PLANNED_FUNCTOR] == tegroup_impl_functor_type<FUNCTOR>(), ERROR_PLAN,
                      "plan", "must have the kernel of this functor's type: tegroup_plan_with", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check_own(plan, desc, error));
    run = *plan;
    run.algorithm[TEGROUP_IMPL_PLANNED_FUNCTOR] = (uint64_t)(uintptr_t)&functor;
    return tegroup_impl_gemm_run(&run, desc, stream, error);
}
