/* ---- GPU backends: choosing an algorithm ---- */

static inline tegroup_impl_choice tegroup_impl_cuda_choice(const tegroup_plan *plan) {
    tegroup_impl_choice choice;
    memset(&choice, 0, sizeof choice);
#if !defined(TEGROUP_NO_CUBLASLT)
    if (tegroup_impl_uses_cublaslt(plan->backend)) {
        const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
        if (lt.count > 0) choice = lt.algorithms[lt.chosen];
    }
#else
    (void)plan;
#endif
    return choice;
}

/* A choice from elsewhere must be among what is offered here. */
static inline tegroup_status tegroup_impl_cuda_choose(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                      tegroup_error *error) {
    const tegroup_impl_choice now = tegroup_impl_cuda_choice(plan);
    if (memcmp(&now, choice, sizeof now) == 0) return TEGROUP_OK;
#if !defined(TEGROUP_NO_CUBLASLT)
    if (tegroup_impl_uses_cublaslt(plan->backend)) {
        tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
        for (int32_t i = 0; i < lt.count; i++)
            if (memcmp(&lt.algorithms[i], choice, sizeof *choice) == 0) {
                tegroup_impl_lt_choose(plan, &lt, i);
                return TEGROUP_OK;
            }
    }
#endif
    return tegroup_impl_fail(error, TEGROUP_ERROR_PLAN, "bytes", "must name an algorithm that is offered here", 1, 0);
}

static inline tegroup_status tegroup_impl_cuda_kind(int32_t device, uint64_t *kind, tegroup_error *error) {
    cudaDeviceProp properties;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaGetDeviceProperties(&properties, device), "plan.device",
                                              "must be readable", error));
    *kind = tegroup_impl_hash(TEGROUP_IMPL_HASH, properties.name, strlen(properties.name));
    *kind = tegroup_impl_hash(*kind, &properties.multiProcessorCount, sizeof properties.multiProcessorCount);
    return TEGROUP_OK;
}

/* One timed run; milliseconds is -1 where the candidate does not run. */
static inline tegroup_status tegroup_impl_cuda_time(const tegroup_plan *plan, const tegroup_tune_desc *desc,
                                                    struct CUstream_st *stream, float *milliseconds,
                                                    tegroup_error *error) {
    cudaError_t code = cudaEventRecord(desc->begin, stream);
    tegroup_status status;
    *milliseconds = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "begin", "must be an event that can be recorded", error));
    status = tegroup_gemm(plan, desc->gemm, stream, error);
    if (status != TEGROUP_OK) return status;
    code = cudaEventRecord(desc->end, stream);
    if (code == cudaSuccess) code = cudaEventSynchronize(desc->end);
    if (code == cudaSuccess) code = cudaEventElapsedTime(milliseconds, desc->begin, desc->end);
    return tegroup_impl_cuda_status(code, "end", "must be an event with timing", error);
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

/* Candidates take turns, so that a clock that changes meets all of them alike. */
static inline tegroup_status tegroup_impl_cuda_tune(tegroup_plan *plan, const tegroup_tune_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    tegroup_plan candidates[TEGROUP_TUNE_CANDIDATES];
    float times[TEGROUP_TUNE_CANDIDATES][TEGROUP_TUNE_ROUNDS], medians[TEGROUP_TUNE_CANDIDATES];
    const int32_t rounds = desc->rounds > 0 ? desc->rounds : 15;
    int32_t count = 1, best = -1;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    tegroup_error first;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaStreamIsCapturing(stream, &capture), "stream",
                                              "must tell whether it is capturing", error));
    TEGROUP_IMPL_RULE(capture == cudaStreamCaptureStatusNone, ERROR_COMBINATION, "stream",
                      "must not be capturing: tuning waits", 0, 1);
    TEGROUP_IMPL_RULE(desc->begin != NULL, ERROR_NULL_ARGUMENT, "begin", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->end != NULL, ERROR_NULL_ARGUMENT, "end", "must not be NULL", 1, 0);
    memset(&first, 0, sizeof first);
    candidates[0] = *plan;
#if !defined(TEGROUP_NO_CUBLASLT)
    if (tegroup_impl_uses_cublaslt(plan->backend)) {
        tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
        count = 0;
        for (int32_t i = 0; i < TEGROUP_TUNE_CANDIDATES && (i < lt.count || i == 0); i++) {
            candidates[i] = *plan;
            tegroup_impl_lt_choose(&candidates[i], &lt, i);
            count = i + 1;
        }
    }
#endif
    for (int32_t i = 0; i < TEGROUP_TUNE_CANDIDATES; i++)
        medians[i] = i < count && (desc->any_numerics || candidates[i].numerics_id == plan->numerics_id) ? 0.0f : -1.0f;
    for (int32_t round = -1; round < rounds; round++) /* the first to warm up */
        for (int32_t i = 0; i < count; i++) {
            float time = -1;
            if (medians[i] < 0) continue;
            if (tegroup_impl_cuda_time(&candidates[i], desc, stream, &time, &first) != TEGROUP_OK) medians[i] = -1;
            else if (round >= 0) times[i][round] = time;
        }
    for (int32_t i = 0; i < count; i++) {
        if (medians[i] < 0) continue;
        medians[i] = tegroup_impl_median(times[i], rounds);
        if (best < 0 || medians[i] < medians[best]) best = i;
    }
    if (best < 0) { /* none ran: as the last one said */
        if (error) *error = first;
        return first.status;
    }
    *plan = candidates[best];
    for (int32_t i = 0; i < TEGROUP_TUNE_CANDIDATES && desc->milliseconds; i++) desc->milliseconds[i] = medians[i];
    return TEGROUP_OK;
}
