/* What the GPU tests ask of the library's insides: which of its kernels can run a plan, and that a plan takes one of
 * them. A file that holds the library has the answers in itself; one that defines TEGROUP_EXTERN gets them from
 * library.cu. */
#ifndef TEGROUP_TESTS_INSIDE_H
#define TEGROUP_TESTS_INSIDE_H

#include "tegroup.h"
#include <cuda_runtime.h>
#include <string.h>

#if defined(TEGROUP_EXTERN)
#define INSIDE extern "C"
#else
#define INSIDE static inline
#endif

enum {
    SM90_DRIFTING_K = 2048,  /* of so much of k blocks keep step */
    SM90_WEIGHTS_KERNELS = 8 /* that decode weights in registers */
};

INSIDE int sm90_is_compiled(void);
/* Row i of SM90's table among those that can run a plan's problem, -1 where there are no more. */
INSIDE int32_t sm90_candidate(const tegroup_plan *plan, int32_t i);
/* The plan with a row of SM90's table. */
INSIDE tegroup_status sm90_choose(tegroup_plan *plan, int32_t row, tegroup_error *error);
/* The word of a plan of SM90's that says how many narrower tiles close a round of them. */
INSIDE uint64_t *sm90_narrows(tegroup_plan *plan);
/* Does a kernel that decodes a backend's quantised weights in registers run the plan? And which of SM90's? */
INSIDE int sm90_decodes_weights(const tegroup_plan *plan);
INSIDE int32_t sm90_weights_kernel(const tegroup_plan *plan);
INSIDE int portable_decodes_weights(const tegroup_plan *plan);
/* Tiles of a bundled backend's table that a plan can take. */
INSIDE int32_t plan_tiles(const tegroup_plan *plan);
/* The plan with tile i of them. False where there are not so many, or the GPU has too little shared memory for it. */
INSIDE int plan_take_tile(tegroup_plan *plan, int32_t i);
/* Writes to device memory what launches have left in the count by which Hopper's blocks keep step: nothing, or the next
 * one would wait in vain, or not at all. */
INSIDE cudaError_t sm90_steps_left(unsigned long long *on_device);

#if defined(TEGROUP_IMPLEMENTATION)
INSIDE int32_t sm90_candidate(const tegroup_plan *plan, int32_t i) {
    (void)plan, (void)i;
#if !defined(TEGROUP_NO_SM90)
    for (int32_t row = 0; row < tegroup_impl_sm90_kernel_count(&plan->problem); row++)
        if (tegroup_impl_sm90_takes(plan, row) && i-- == 0) return row;
#endif
    return -1;
}

INSIDE int32_t plan_tiles(const tegroup_plan *plan) {
    int32_t count = 0;
    if (plan->backend == TEGROUP_BACKEND_SM90)
        while (sm90_candidate(plan, count) >= 0) count++;
#if !defined(TEGROUP_NO_PORTABLE)
    if (plan->backend == TEGROUP_BACKEND_PORTABLE && plan->problem.a != TEGROUP_DTYPE_F32)
        (void)tegroup_impl_portable_rows(plan->problem.op, &count);
#endif
    return count;
}

INSIDE int plan_take_tile(tegroup_plan *plan, int32_t i) {
    int32_t count = 0;
    tegroup_error error;
    (void)count, (void)error;
#if !defined(TEGROUP_NO_SM90)
    if (plan->backend == TEGROUP_BACKEND_SM90) {
        tegroup_impl_choice choice;
        const int32_t row = sm90_candidate(plan, i);
        if (row < 0) return 0;
        memset(&choice, 0, sizeof choice);
        choice.words[0] = (uint64_t)row;
        return tegroup_impl_sm90_take(plan, &choice, &error) == TEGROUP_OK;
    }
#endif
#if !defined(TEGROUP_NO_PORTABLE)
    return tegroup_impl_portable_take_row(plan, tegroup_impl_portable_rows(plan->problem.op, &count) + i, &error)
           == TEGROUP_OK;
#else
    return 0;
#endif
}

static __global__ void store_steps_left(unsigned long long *left) {
#if defined(TEGROUP_IMPL_HOPPER) && TEGROUP_IMPL_HOPPER && !defined(TEGROUP_NO_SM90)
    *left = *tegroup_impl_sm90_step_count() % tegroup_impl_sm90_pace::ALL;
#else
    *left = 0;
#endif
}
INSIDE cudaError_t sm90_steps_left(unsigned long long *on_device) {
    store_steps_left<<<1, 1>>>(on_device);
    return cudaGetLastError();
}

#if defined(TEGROUP_NO_SM90)
INSIDE int sm90_is_compiled(void) { return 0; }
#else
INSIDE int sm90_is_compiled(void) { return tegroup_impl_sm90_image(90); }
INSIDE tegroup_status sm90_choose(tegroup_plan *plan, int32_t row, tegroup_error *error) {
    return tegroup_impl_sm90_choose(plan, row, error);
}
INSIDE uint64_t *sm90_narrows(tegroup_plan *plan) { return &plan->algorithm[TEGROUP_IMPL_PLANNED_NARROWS]; }
static_assert(SM90_DRIFTING_K == TEGROUP_IMPL_SM90_DRIFTING_K, "as tests say");
#endif
#if !defined(TEGROUP_NO_FP8) && !defined(TEGROUP_NO_SM90)
INSIDE int sm90_decodes_weights(const tegroup_plan *plan) { return tegroup_impl_sm90_plans_weights(plan); }
INSIDE int32_t sm90_weights_kernel(const tegroup_plan *plan) {
    return (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] - TEGROUP_IMPL_SM90_KERNEL_COUNT;
}
static_assert(SM90_WEIGHTS_KERNELS == TEGROUP_IMPL_SM90_WEIGHTS_COUNT, "as tests say");
#endif
#if !defined(TEGROUP_NO_FP8) && !defined(TEGROUP_NO_PORTABLE)
INSIDE int portable_decodes_weights(const tegroup_plan *plan) { return tegroup_impl_portable_plans_weights(plan); }
#endif
#endif /* TEGROUP_IMPLEMENTATION */
#endif
