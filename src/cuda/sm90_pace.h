/* ---- Hopper GEMM: blocks that keep step ---- */

#pragma once
#include "base/version.h"
#include "cuda/hopper.h"

#if TEGROUP_IMPL_HOPPER
/* The count that is explained below: in device memory, one for each translation unit. */
static __device__ __forceinline__ unsigned long long *tegroup_impl_sm90_step_count(void) {
    static unsigned long long steps;
    return &steps;
}

/* Blocks side by side read the same rows of A or of B. One finds in L2 what another has brought there, as long as both
 * are about as far in their sums. Where groups end within tiles, some tiles have fewer rows to read than others, blocks
 * drift apart, and in the end everything comes from memory, which can double a long product's time.
 *
 * So each block adds its steps to a count in device memory, and one that is ahead of the mean waits for it. That is a
 * hint: no bit of a result depends on it. A block that polls in vain waits no more, since the others may not be running
 * at all: the GPU may be shared.
 *
 * Whatever its steps, a launch adds ALL to the count. Modulo ALL, the count is therefore that of the launch that runs,
 * and 0 between launches: nothing must be cleared. Two launches at a time see a count that is too large, and wait for
 * nobody; so do the other blocks of a launch after the first one is done. */
struct tegroup_impl_sm90_pace {
    /* Steps from one look to the next, and steps that a block may be ahead: of those that were tried, the best
     * (docs/lab/tile-choice.md). Polls until it waits no more: a few microseconds. */
    static constexpr uint32_t EVERY = 4, AHEAD = 1, POLLS = 9;
    static constexpr unsigned long long EACH = 1ull << 32, ALL = EACH << 12; /* what one block adds; what all add */
    bool keeps, waits;
    uint32_t said;           /* steps that this block has added to the count */
    unsigned long long seen; /* the count before the last of these, which arrives while they are loaded */

    /* All blocks of a launch have the same `keeps`. */
    __device__ __forceinline__ explicit tegroup_impl_sm90_pace(bool keeps_)
        : keeps(keeps_), waits(true), said(0), seen(0) {}
    __device__ __forceinline__ bool early() const {
        return seen % ALL + AHEAD * gridDim.x < (unsigned long long)said * gridDim.x;
    }
    /* Before step `step` of the block is loaded. */
    __device__ __forceinline__ void keep(uint32_t step) {
        if (!keeps || step - said < EVERY) return;
#pragma unroll 1
        for (uint32_t polls = 1; waits && early(); polls++) {
            seen = *(const volatile unsigned long long *)tegroup_impl_sm90_step_count();
            waits = polls < POLLS;
        }
        seen = atomicAdd(tegroup_impl_sm90_step_count(), (unsigned long long)EVERY);
        said += EVERY;
    }
    /* After the block's last step. */
    __device__ __forceinline__ void leave() const {
        if (keeps)
            atomicAdd(tegroup_impl_sm90_step_count(),
                      (blockIdx.x == 0 ? ALL - (gridDim.x - 1) * EACH : EACH) - said);
    }
};
#endif
