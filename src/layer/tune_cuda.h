/* ---- GPU backends: choosing an algorithm ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/numerics.h"
#include "core/choice.h"
#include "gemm/run.h"
#include "layer/quantize.h"
#include "layer/tune.h"
#include "cuda/launch.h"

static inline tegroup_status tegroup_impl_cuda_kind(int32_t device, uint64_t *kind, tegroup_error *error) {
    cudaDeviceProp properties;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaGetDeviceProperties(&properties, device), "plan.device",
                                              "must be readable", error));
    *kind = tegroup_impl_hash(TEGROUP_IMPL_HASH, properties.name, strlen(properties.name));
    *kind = tegroup_impl_hash(*kind, &properties.multiProcessorCount, sizeof properties.multiProcessorCount);
    return TEGROUP_OK;
}

/* Reads memory, in pieces of 16 bytes, only to fill L2 with data that nobody wants. Writing would fill it, too, but the
 * next call's loads would wait for the write-back: 4 to 10 us with short groups. */
static __global__ void __launch_bounds__(256) tegroup_impl_flush_kernel(const uint4 *from, int64_t count) {
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256)
        asm volatile("{.reg .b32 r<4>;\nld.volatile.global.v4.b32 {r0, r1, r2, r3}, [%0];}" ::"l"(from + i) : "memory");
}
static inline cudaError_t tegroup_impl_flush(const void *flush, size_t bytes, struct CUstream_st *stream) {
    const uintptr_t first = ((uintptr_t)flush + 15) / 16, end = ((uintptr_t)flush + bytes) / 16;
    const int64_t count = (int64_t)(end > first ? end - first : 0);
    if (count == 0) return cudaSuccess;
    return tegroup_impl_launch(tegroup_impl_flush_kernel,
                               dim3((unsigned)tegroup_impl_min(tegroup_impl_ceil_div(count, 256), 4096)), 256, 0,
                               stream, (const uint4 *)(first * 16), count);
}

/* What gemm reads is quantised. */
static inline tegroup_status tegroup_impl_tune_quantize(const tegroup_tune_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    for (int32_t i = 0; i < desc->quantize_count; i++)
        TEGROUP_IMPL_TRY(tegroup_quantize(&desc->quantize[i], stream, error));
    return TEGROUP_OK;
}

/* One timed run, by a plan of gemm, of the rival or, without a plan, of what quantises. *milliseconds is -1 if it does
 * not run. */
static inline tegroup_status tegroup_impl_cuda_time(const tegroup_plan *plan, const tegroup_gemm_desc *gemm,
                                                    const tegroup_tune_desc *desc, struct CUstream_st *stream,
                                                    float *milliseconds, tegroup_error *error) {
    cudaError_t code = tegroup_impl_flush(desc->flush, desc->flush_bytes, stream);
    *milliseconds = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "flush", "must be read by a kernel, which must launch", error));
    code = cudaEventRecord(desc->begin, stream);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "begin", "must be an event that can be recorded", error));
    TEGROUP_IMPL_TRY(plan ? tegroup_gemm(plan, gemm, stream, error) : tegroup_impl_tune_quantize(desc, stream, error));
    code = cudaEventRecord(desc->end, stream);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "end", "must be an event that can be recorded", error));
    code = cudaEventSynchronize(desc->end);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "stream", "must run what is enqueued", error));
    code = cudaEventElapsedTime(milliseconds, desc->begin, desc->end);
    const int blames_begin =
        code != cudaSuccess && cudaEventElapsedTime(milliseconds, desc->end, desc->end) == cudaSuccess;
    return tegroup_impl_cuda_status(code, blames_begin ? "begin" : "end", "must be an event with timing", error);
}

static inline float tegroup_impl_median(float *times, int32_t count) {
    for (int32_t i = 1; i < count; i++)
        for (int32_t j = i; j > 0 && times[j - 1] > times[j]; j--) {
            const float t = times[j];
            times[j] = times[j - 1];
            times[j - 1] = t;
        }
    return times[count / 2];
}

/* Shuffles `count` numbers by Fisher and Yates, with D. E. Knuth's linear congruential generator (MMIX). */
static inline void tegroup_impl_shuffle(int32_t *order, int32_t count, uint64_t *state) {
    for (int32_t i = count - 1; i > 0; i--) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        const int32_t j = (int32_t)((*state >> 33) % (uint64_t)(i + 1)), other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

enum { /* what is timed beside the candidates */
       TEGROUP_IMPL_TUNE_RIVAL = TEGROUP_TUNE_CANDIDATES,
       TEGROUP_IMPL_TUNE_QUANTIZE,
       TEGROUP_IMPL_TUNE_TIMED
};

/* Runs of all are interleaved, so that a changing clock affects all alike, and shuffled in each round: one that always
 * followed one of little power would always find the clock high. */
static inline tegroup_status tegroup_impl_cuda_tune(tegroup_plan *plan, const tegroup_tune_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    tegroup_plan candidate;
    float times[TEGROUP_IMPL_TUNE_TIMED][TEGROUP_TUNE_ROUNDS], medians[TEGROUP_IMPL_TUNE_TIMED];
    int32_t order[TEGROUP_IMPL_TUNE_TIMED], count, timed;
    tegroup_impl_choices choices;
    uint64_t state = 1;
    const int32_t rounds = desc->rounds > 0 ? desc->rounds : 15;
    int32_t best = -1;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    tegroup_error last;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaStreamIsCapturing(stream, &capture), "stream",
                                              "must tell whether it is capturing", error));
    TEGROUP_IMPL_RULE(capture == cudaStreamCaptureStatusNone, ERROR_COMBINATION, "stream",
                      "must not be capturing: tuning waits", 0, 1);
    TEGROUP_IMPL_RULE(desc->begin != NULL, ERROR_NULL_ARGUMENT, "begin", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->end != NULL, ERROR_NULL_ARGUMENT, "end", "must not be NULL", 1, 0);
    if (desc->flush_bytes > 0) { /* only its ends: the caller says that it is one allocation */
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(desc->flush, "flush", error));
        TEGROUP_IMPL_TRY(
            tegroup_impl_cuda_check_address((const char *)desc->flush + desc->flush_bytes - 1, "flush_bytes", error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_choices_of(plan, desc->gemm, &choices, error));
    count = timed = choices.count;
    memset(&last, 0, sizeof last);
    for (int32_t i = 0; i < TEGROUP_IMPL_TUNE_TIMED; i++) medians[i] = -1;
    for (int32_t i = 0; i < count; i++) {
        order[i] = i;
        candidate = *plan;
        TEGROUP_IMPL_TRY(tegroup_impl_take_choice(&candidate, &choices.list[i], error));
        if (desc->any_numerics || candidate.numerics_id == plan->numerics_id) medians[i] = 0;
    }
    if (desc->rival_plan) order[timed++] = TEGROUP_IMPL_TUNE_RIVAL;
    if (desc->quantize_count > 0) order[timed++] = TEGROUP_IMPL_TUNE_QUANTIZE;
    /* Candidates multiply what is there: times depend on data. */
    TEGROUP_IMPL_TRY(tegroup_impl_of_member("quantize", tegroup_impl_tune_quantize(desc, stream, error), error));
    for (int32_t round = -1; round < rounds; round++) { /* the first round warms up */
        tegroup_impl_shuffle(order, timed, &state);
        for (int32_t turn = 0; turn < timed; turn++) {
            const int32_t i = order[turn];
            float time = -1;
            if (i >= TEGROUP_TUNE_CANDIDATES) {
                const int rival = i == TEGROUP_IMPL_TUNE_RIVAL;
                TEGROUP_IMPL_TRY(tegroup_impl_of_member(
                    rival ? "rival" : "quantize",
                    tegroup_impl_cuda_time(rival ? desc->rival_plan : NULL, desc->rival, desc, stream, &time, error),
                    error));
                if (round >= 0) times[i][round] = time;
                continue;
            }
            if (medians[i] < 0) continue;
            candidate = *plan;
            TEGROUP_IMPL_TRY(tegroup_impl_take_choice(&candidate, &choices.list[i], error));
            if (tegroup_impl_cuda_time(&candidate, desc->gemm, desc, stream, &time, &last) != TEGROUP_OK)
                medians[i] = -1;
            else if (round >= 0) times[i][round] = time;
        }
    }
    for (int32_t i = 0; i < count; i++) {
        if (medians[i] < 0) continue;
        medians[i] = tegroup_impl_median(times[i], rounds);
        if (best < 0 || medians[i] < medians[best]) best = i;
    }
    if (best < 0) { /* no candidate ran */
        if (error) *error = last;
        return last.status;
    }
    candidate = *plan;
    TEGROUP_IMPL_TRY(tegroup_impl_take_choice(&candidate, &choices.list[best], error));
    *plan = candidate;
    for (int32_t i = 0; i < TEGROUP_TUNE_CANDIDATES && desc->milliseconds; i++) desc->milliseconds[i] = medians[i];
    if (!desc->rival_plan) return TEGROUP_OK;
    desc->rival_milliseconds[0] = medians[best];
    if (desc->quantize_count > 0)
        desc->rival_milliseconds[0] += tegroup_impl_median(times[TEGROUP_IMPL_TUNE_QUANTIZE], rounds);
    desc->rival_milliseconds[1] = tegroup_impl_median(times[TEGROUP_IMPL_TUNE_RIVAL], rounds);
    return TEGROUP_OK;
}
