/* ---- Tune, save and load a plan ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "base/range.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/numerics.h"
#include "core/choice.h"
#include "gemm/backends.h"
#include "gemm/plan.h"
#include "gemm/check.h"
#include "gemm/run.h"

#if defined(TEGROUP_IMPL_CUDA)
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_tune(tegroup_plan *plan, const tegroup_tune_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error);
/* A number that tells kinds of devices apart. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_kind(int32_t device, uint64_t *kind, tegroup_error *error);
#endif

/* What a plan has chosen of its backend's offers; all zero if the backend has no choice. */
TEGROUP_IMPL_STATIC tegroup_impl_choice tegroup_impl_chosen(const tegroup_plan *plan) {
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    tegroup_impl_choice only;
    memset(&only, 0, sizeof only);
    return backend->chosen ? backend->chosen(plan) : only;
}

/* Collects all that a backend offers for the plan's problem, the plan's own choice first. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_choices_of(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                           tegroup_impl_choices *choices, tegroup_error *error) {
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    const tegroup_impl_choice own = tegroup_impl_chosen(plan);
    choices->count = 0;
    tegroup_impl_choices_add(choices, &own);
    return backend->choices ? backend->choices(plan, desc, choices, error) : TEGROUP_OK;
}

/* Puts one of the backend's choices into the plan. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_take_choice(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                            tegroup_error *error) {
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    return backend->take ? backend->take(plan, choice, error) : TEGROUP_OK;
}

/* Puts a saved choice into the plan. It must be among those offered here. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_choose_again(tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                             const tegroup_impl_choice *choice, tegroup_error *error) {
    tegroup_impl_choices offered;
    int32_t i;
    TEGROUP_IMPL_TRY(tegroup_impl_choices_of(plan, desc, &offered, error));
    for (i = 0; i < offered.count; i++)
        if (memcmp(&offered.list[i], choice, sizeof *choice) == 0) return tegroup_impl_take_choice(plan, choice, error);
    return tegroup_impl_fail(error, TEGROUP_ERROR_PLAN, "bytes", "must name an algorithm that is offered here", 1, 0);
}

/* Of a rival and what it is compared with. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_rival(const tegroup_plan *plan, const tegroup_tune_desc *desc,
                                                            tegroup_error *error) {
    const int there = desc->rival_plan != NULL;
    int32_t i;
    TEGROUP_IMPL_RULE((desc->rival != NULL) == there, ERROR_COMBINATION, "rival",
                      "must be given where rival_plan is, and only there", there, desc->rival != NULL);
    TEGROUP_IMPL_RULE(there || desc->quantize_count == 0, ERROR_COMBINATION, "quantize_count",
                      "must be 0 without a rival", 0, desc->quantize_count);
    TEGROUP_IMPL_RULE(desc->quantize_count >= 0, ERROR_VALUE, "quantize_count", "must be at least 0", 0,
                      desc->quantize_count);
    TEGROUP_IMPL_RULE((desc->quantize != NULL) == (desc->quantize_count > 0), ERROR_COMBINATION, "quantize",
                      "must be given where quantize_count is not 0, and only there", desc->quantize_count > 0,
                      desc->quantize != NULL);
    if (!there) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_address(desc->rival_milliseconds, sizeof(float), "rival_milliseconds", error));
    TEGROUP_IMPL_RULE(!tegroup_impl_overlaps(desc->rival_milliseconds, 2 * sizeof(float), plan, sizeof *plan),
                      ERROR_OVERLAP, "rival_milliseconds", "must not overlap plan", 0, 1);
    TEGROUP_IMPL_TRY(tegroup_impl_of_member("rival", tegroup_gemm_check(desc->rival_plan, desc->rival, error), error));
    TEGROUP_IMPL_TRY(tegroup_impl_of_member("rival", tegroup_impl_check_no_functor(desc->rival_plan, error), error));
    for (i = 0; i < desc->quantize_count; i++)
        TEGROUP_IMPL_RULE(desc->quantize[i].space == desc->gemm->space, ERROR_COMBINATION, "quantize.space",
                          "must be that of gemm", desc->gemm->space, desc->quantize[i].space);
    TEGROUP_IMPL_RULE((desc->rival_plan->backend == TEGROUP_BACKEND_CPU) == (plan->backend == TEGROUP_BACKEND_CPU),
                      ERROR_COMBINATION, "rival_plan", "must be for the CPU where the plan is, and only there",
                      plan->backend, desc->rival_plan->backend);
    desc->rival_milliseconds[0] = desc->rival_milliseconds[1] = -1;
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_plan_tune(tegroup_plan *plan, const tegroup_tune_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_plan_tune")
    tegroup_tune_desc taken;
    tegroup_gemm_desc gemm_taken;
    const tegroup_gemm_desc *gemm;
    int32_t i;
    (void)stream;
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(desc->gemm != NULL, ERROR_NULL_ARGUMENT, "gemm", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->overwrite == 1, ERROR_VALUE, "overwrite", "must be 1: the results are overwritten", 1,
                      desc->overwrite);
    TEGROUP_IMPL_RULE(desc->any_numerics == 0 || desc->any_numerics == 1, ERROR_VALUE, "any_numerics", "must be 0 or 1",
                      1, desc->any_numerics);
    TEGROUP_IMPL_RULE(desc->rounds >= 0 && desc->rounds <= TEGROUP_TUNE_ROUNDS, ERROR_VALUE, "rounds",
                      "must be 0 to TEGROUP_TUNE_ROUNDS", TEGROUP_TUNE_ROUNDS, desc->rounds);
    TEGROUP_IMPL_RULE(desc->flush != NULL || desc->flush_bytes == 0, ERROR_NULL_ARGUMENT, "flush",
                      "must not be NULL where flush_bytes is given", 1, 0);
    TEGROUP_IMPL_RULE(
        !tegroup_impl_overlaps(desc->milliseconds, sizeof(float) * TEGROUP_TUNE_CANDIDATES, plan, sizeof *plan),
        ERROR_OVERLAP, "milliseconds", "must not overlap plan", 0, 1);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(desc->milliseconds, sizeof(float)), ERROR_ALIGNMENT, "milliseconds",
                      "must be aligned to its element", sizeof(float), (uintptr_t)desc->milliseconds % sizeof(float));
    TEGROUP_IMPL_TRY(tegroup_gemm_check(plan, desc->gemm, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_no_functor(plan, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_rival(plan, desc, error));
    gemm = desc->gemm;
    TEGROUP_IMPL_TAKE(gemm, gemm_taken);
    taken = *desc;
    taken.gemm = gemm;
#if defined(TEGROUP_IMPL_CUDA)
    if (plan->backend != TEGROUP_BACKEND_CPU) return tegroup_impl_cuda_tune(plan, &taken, stream, error);
#endif
    for (i = 0; i < TEGROUP_TUNE_CANDIDATES && taken.milliseconds; i++) taken.milliseconds[i] = -1;
    return TEGROUP_OK;
}

#define TEGROUP_IMPL_SAVED_MAGIC 0x54475431u /* "TGT1" */

/* What the bytes of a saved plan hold. The last 8 of them are a hash of the others. */
typedef struct tegroup_impl_saved {
    uint32_t magic;
    int32_t version; /* TEGROUP_VERSION */
    tegroup_backend backend;
    int32_t sm;
    int32_t cublaslt_version; /* 0 where the backend does not use it */
    uint64_t kind;
    uint64_t numerics_id;
    tegroup_impl_choice choice;
    tegroup_problem problem;
} tegroup_impl_saved;

#define TEGROUP_IMPL_SAVED_HASH (TEGROUP_SAVED_PLAN_BYTES - sizeof(uint64_t))
typedef char tegroup_impl_saved_fits[sizeof(tegroup_impl_saved) <= TEGROUP_IMPL_SAVED_HASH ? 1 : -1];

/* The record that a plan is saved as. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_saved_of(const tegroup_plan *plan, tegroup_impl_saved *saved,
                                                         tegroup_error *error) {
    (void)error;
    memset(saved, 0, sizeof *saved);
    saved->magic = TEGROUP_IMPL_SAVED_MAGIC;
    saved->version = TEGROUP_VERSION;
    saved->backend = plan->backend;
    saved->sm = plan->sm;
    saved->cublaslt_version = tegroup_impl_uses_cublaslt(plan->backend) ? plan->cublaslt_version : 0;
    saved->numerics_id = plan->numerics_id;
    saved->problem = plan->problem;
    saved->choice = tegroup_impl_chosen(plan);
#if defined(TEGROUP_IMPL_CUDA)
    if (plan->backend != TEGROUP_BACKEND_CPU)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_kind(plan->device, &saved->kind, error));
#endif
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_plan_save(const tegroup_plan *plan, void *bytes, size_t size, tegroup_error *error) {
    tegroup_impl_saved saved;
    uint64_t hash;
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_runs_here(plan, error));
    TEGROUP_IMPL_RULE(bytes != NULL, ERROR_NULL_ARGUMENT, "bytes", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(size >= TEGROUP_SAVED_PLAN_BYTES, ERROR_WORKSPACE, "size",
                      "must be at least TEGROUP_SAVED_PLAN_BYTES", TEGROUP_SAVED_PLAN_BYTES, size);
    TEGROUP_IMPL_TRY(tegroup_impl_saved_of(plan, &saved, error));
    memset(bytes, 0, TEGROUP_SAVED_PLAN_BYTES);
    memcpy(bytes, &saved, sizeof saved);
    hash = tegroup_impl_hash(TEGROUP_IMPL_HASH, bytes, TEGROUP_IMPL_SAVED_HASH);
    memcpy((char *)bytes + TEGROUP_IMPL_SAVED_HASH, &hash, sizeof hash);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_plan_load(const tegroup_gemm_desc *desc, const void *bytes, size_t size,
                                             tegroup_plan *plan, tegroup_error *error) {
    tegroup_impl_saved saved, here;
    tegroup_gemm_desc same; /* a copy; an older, shorter descriptor is filled up in it */
    tegroup_plan made;
    uint64_t hash;
    TEGROUP_IMPL_TAKE(desc, same);
    TEGROUP_IMPL_RULE(bytes != NULL, ERROR_NULL_ARGUMENT, "bytes", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(size == TEGROUP_SAVED_PLAN_BYTES, ERROR_PLAN, "size", "must be TEGROUP_SAVED_PLAN_BYTES",
                      TEGROUP_SAVED_PLAN_BYTES, size);
    memcpy(&saved, bytes, sizeof saved);
    memcpy(&hash, (const char *)bytes + TEGROUP_IMPL_SAVED_HASH, sizeof hash);
    TEGROUP_IMPL_RULE(saved.magic == TEGROUP_IMPL_SAVED_MAGIC, ERROR_PLAN, "bytes",
                      "must be what tegroup_plan_save wrote", TEGROUP_IMPL_SAVED_MAGIC, saved.magic);
    TEGROUP_IMPL_RULE(saved.version == TEGROUP_VERSION, ERROR_PLAN, "bytes", "must come from this version of tegroup",
                      TEGROUP_VERSION, saved.version);
    TEGROUP_IMPL_RULE(hash == tegroup_impl_hash(TEGROUP_IMPL_HASH, bytes, TEGROUP_IMPL_SAVED_HASH), ERROR_PLAN, "bytes",
                      "must be what tegroup_plan_save wrote: the hash differs",
                      tegroup_impl_hash(TEGROUP_IMPL_HASH, bytes, TEGROUP_IMPL_SAVED_HASH), hash);
    TEGROUP_IMPL_RULE((uint32_t)saved.backend - 1 < TEGROUP_BACKEND_COUNT - 1, ERROR_PLAN, "bytes",
                      "must be of a backend that exists", TEGROUP_BACKEND_COUNT - 1, saved.backend);
    TEGROUP_IMPL_RULE(desc->options.backend == TEGROUP_BACKEND_AUTO || desc->options.backend == saved.backend,
                      ERROR_PLAN, "options.backend", "must be AUTO or that of the saved plan", saved.backend,
                      desc->options.backend);
    same = *desc;
    same.options.backend = saved.backend;
    TEGROUP_IMPL_TRY(tegroup_plan_make(&same, NULL, &made, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_planned(&saved.problem, &made.problem, tegroup_impl_gemm_names(), error));
    TEGROUP_IMPL_TRY(tegroup_impl_saved_of(&made, &here, error));
    TEGROUP_IMPL_RULE(here.sm == saved.sm && here.kind == saved.kind, ERROR_PLAN, "bytes",
                      "must be saved on the same kind of device", saved.sm, here.sm);
    TEGROUP_IMPL_RULE(here.cublaslt_version == saved.cublaslt_version, ERROR_PLAN, "bytes",
                      "must be saved with the same version of cuBLASLt", saved.cublaslt_version, here.cublaslt_version);
    TEGROUP_IMPL_TRY(tegroup_impl_choose_again(&made, &same, &saved.choice, error));
    TEGROUP_IMPL_RULE(made.numerics_id == saved.numerics_id, ERROR_PLAN, "bytes",
                      "must stand for the numerics of this build", saved.numerics_id, made.numerics_id);
    *plan = made;
    return TEGROUP_OK;
}
