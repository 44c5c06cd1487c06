/* ---- Explain and plan ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "core/layout.h"
#include "core/field_names.h"
#include "core/problem.h"
#include "core/backend_table.h"
#include "core/numerics.h"
#include "core/choice.h"
#include "cuda/sm90_repack.h"
#include "gemm/backends.h"
#include "gemm/verdicts.h"

#if defined(TEGROUP_IMPL_CUDA)
/* Describes the current device as a target; sm stays 0 without one. Returns the device, or -1. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_cuda_target(tegroup_target *target);
/* The backends that this unit holds code of for the current device, whose architecture is sm. */
TEGROUP_IMPL_STATIC uint32_t tegroup_impl_cuda_images(int32_t sm);
/* The version of the cuBLASLt that this descriptor reaches; 0: none. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_cuda_cublaslt_version(const tegroup_gemm_desc *desc);
#endif

/* A plan's workspace: the one layout that its size, the check and the carving follow. */
TEGROUP_IMPL_STATIC void tegroup_impl_plan_layout(const tegroup_plan *plan, tegroup_layout *layout) {
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    tegroup_impl_layout_begin(layout);
    if (backend->workspace) backend->workspace(plan, layout);
}

/* How many parts of the workspace are cuBLASLt's own: one, one for each operation (see the quirks), or one for each
 * stream. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_cublas_parts(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                      tegroup_backend backend, const tegroup_target *target) {
    int32_t count, i;
    const tegroup_quirk *quirks = tegroup_quirks(&count);
    if (backend == TEGROUP_BACKEND_CUBLASLT_LOOP)
        return desc->options.stream_count > 0 ? desc->options.stream_count : 1;
    for (i = 0; i < count; i++)
        if (quirks[i].action == TEGROUP_QUIRK_SEPARATE && !(desc->options.ignore_quirks >> i & 1u)
            && tegroup_impl_quirk_applies(&quirks[i], desc, p, backend, target))
            return 3;
    return 1;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_take_target(const tegroup_target *given, tegroup_target *target,
                                                            tegroup_error *error) {
    TEGROUP_IMPL_RULE(tegroup_impl_size_fits(given->struct_size, sizeof *given), ERROR_STRUCT_SIZE,
                      "target.struct_size", TEGROUP_IMPL_SIZE_RULE, sizeof *given, given->struct_size);
    memset(target, 0, sizeof *target);
    memcpy(target, given, given->struct_size);
    target->struct_size = sizeof *target;
    TEGROUP_IMPL_RULE(target->sm >= 0, ERROR_VALUE, "target.sm", "must not be negative", 0, target->sm);
    TEGROUP_IMPL_RULE(target->cublaslt_version >= 0, ERROR_VALUE, "target.cublaslt_version", "must not be negative", 0,
                      target->cublaslt_version);
    TEGROUP_IMPL_RULE(target->multiprocessors >= 0, ERROR_VALUE, "target.multiprocessors", "must not be negative", 0,
                      target->multiprocessors);
    TEGROUP_IMPL_RULE(target->memory_bits >= 0, ERROR_VALUE, "target.memory_bits", "must not be negative", 0,
                      target->memory_bits);
    TEGROUP_IMPL_RULE(target->threads >= 0, ERROR_VALUE, "target.threads", "must not be negative", 0, target->threads);
    return TEGROUP_OK;
}

/* The target that a plan is made for: the caller's, or this machine. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_target(const tegroup_gemm_desc *desc, const tegroup_target *given,
                                                       tegroup_target *target, tegroup_error *error) {
    (void)desc;
    memset(target, 0, sizeof *target);
    if (given) {
        TEGROUP_IMPL_TRY(tegroup_impl_take_target(given, target, error));
        target->built &= ~TEGROUP_IMPL_WITHOUT;
    }
#if defined(TEGROUP_IMPL_CUDA)
    else {
        if (tegroup_impl_cuda_target(target) >= 0) target->built = tegroup_impl_cuda_images(target->sm);
        target->cublaslt_version = tegroup_impl_cuda_cublaslt_version(desc);
    }
#endif
    if (!target->built) target->built = tegroup_impl_built();
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC int32_t tegroup_impl_plan_threads(const tegroup_gemm_desc *desc, const tegroup_target *target) {
    int32_t limit = desc->options.threads > 0 && target->threads > 0
                        ? (int32_t)tegroup_impl_min(desc->options.threads, target->threads)
                        : desc->options.threads + target->threads;
    return target->threads > 0 ? limit : tegroup_impl_threads(limit);
}

/* Makes a plan for one backend as far as the host knows it. here: the target is this machine. */
TEGROUP_IMPL_STATIC void tegroup_impl_plan_begin(const tegroup_gemm_desc *desc, const tegroup_problem *problem,
                                                 tegroup_backend backend, const tegroup_target *target, int here,
                                                 tegroup_plan *made, tegroup_impl_forecast *forecast) {
    const tegroup_impl_backend *row = tegroup_impl_backend_of(backend);
    tegroup_backend sums; /* whose sums it has, bit for bit */
    tegroup_layout layout;
    memset(made, 0, sizeof *made);
    made->struct_size = sizeof *made;
    made->magic = TEGROUP_PLAN_MAGIC;
    made->backend = backend;
    made->problem = *problem;
    made->sm = backend == TEGROUP_BACKEND_CPU ? 0 : target->sm;
    made->device = -1;
    made->cublaslt_version = target->cublaslt_version;
    made->hypothetical = !row->run || (!here && backend != TEGROUP_BACKEND_CPU);
    made->threads = tegroup_impl_plan_threads(desc, target);
    made->sm_limit = desc->options.sm_limit;
    /* Rows decide whether AUTO takes SM90 or PORTABLE for operands that SM90 repacks, and bits must not tell. */
    sums =
        backend == TEGROUP_BACKEND_SM90 && tegroup_impl_sm90_repacks_any(problem) ? TEGROUP_BACKEND_PORTABLE : backend;
    made->numerics_id = tegroup_impl_numerics_id(problem, sums, made->sm);
    if (backend == TEGROUP_BACKEND_CUBLASLT_GROUPED || backend == TEGROUP_BACKEND_CUBLASLT_LOOP) {
        made->cublas_workspace_bytes =
            desc->options.cublas_workspace_bytes ? desc->options.cublas_workspace_bytes : (size_t)32 << 20;
        made->cublas_parts = tegroup_impl_cublas_parts(desc, problem, backend, target);
    }
    memset(forecast, 0, sizeof *forecast);
    if (row->tile) row->tile(desc, target, made, forecast);
    tegroup_impl_plan_layout(made, &layout);
    made->workspace_bytes = layout.total_bytes;
}

TEGROUP_IMPL_STATIC int64_t tegroup_impl_distance(int64_t a, int64_t b) { return a < b ? b - a : a - b; }

/* One backend's verdict: that of the table row that meets the most conditions, then the quirks'. plan: set if the
 * verdict is OK, as far as the host knows it. */
TEGROUP_IMPL_STATIC void tegroup_impl_verdict(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                              const tegroup_problem *p, tegroup_backend backend,
                                              const tegroup_target *target, int here, tegroup_verdict *verdict,
                                              tegroup_plan *plan) {
    int32_t count, i, best = -1;
    const tegroup_backend_rule *rules = tegroup_backend_rules(&count);
    const tegroup_quirk *quirks;
    tegroup_impl_forecast forecast;
    memset(verdict, 0, sizeof *verdict);
    for (i = 0; i < count && best < INT32_MAX; i++) {
        tegroup_verdict v;
        int32_t met, closer; /* of rows that fail the same condition, the one that misses it least */
        if (rules[i].backend != backend) continue;
        memset(&v, 0, sizeof v);
        met = tegroup_impl_judge(&rules[i], desc, names, p, target, here, &v);
        closer = met == best
                 && tegroup_impl_distance(v.expected, v.got) < tegroup_impl_distance(verdict->expected, verdict->got);
        if (met > best || closer) {
            best = met;
            *verdict = v;
        }
    }
    verdict->backend = backend;
    verdict->quirk = -1;
    if (verdict->status != TEGROUP_OK) return;
    quirks = tegroup_quirks(&count);
    for (i = 0; i < count; i++)
        if (quirks[i].action == TEGROUP_QUIRK_REFUSE && !(desc->options.ignore_quirks >> i & 1u)
            && tegroup_impl_quirk_applies(&quirks[i], desc, p, backend, target)) {
            verdict->status = TEGROUP_ERROR_UNSUPPORTED;
            verdict->field = "target.cublaslt_version";
            verdict->rule = quirks[i].text;
            verdict->expected = quirks[i].cublaslt_below == TEGROUP_QUIRK_UNFIXED
                                    ? 0
                                    : tegroup_impl_version_needed(desc, p, backend, target, target->cublaslt_version);
            verdict->got = target->cublaslt_version;
            verdict->quirk = i;
            return;
        }
    tegroup_impl_plan_begin(desc, p, backend, target, here, plan, &forecast);
    if (plan->workspace_bytes == SIZE_MAX) {
        verdict->status = TEGROUP_ERROR_OVERFLOW;
        verdict->field = "options.cublas_workspace_bytes";
        verdict->rule = "must leave the workspace addressable";
        verdict->expected = tegroup_impl_max_bytes();
        verdict->got = INT64_MAX;
        return;
    }
    verdict->workspace_bytes = plan->workspace_bytes;
    verdict->tile_m = plan->tile_m;
    verdict->tile_n = plan->tile_n;
    verdict->tile_k = plan->tile_k;
    verdict->tile_why = forecast.why;
    verdict->predicted_us = forecast.us;
    verdict->quantised_us = forecast.quantised_us;
    verdict->bf16_us = forecast.bf16_us;
}

/* Completes the plan by the choice of kernel, for which the current device is queried. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_plan_complete(const tegroup_gemm_desc *desc,
                                                              const tegroup_impl_names *names, tegroup_plan *plan,
                                                              tegroup_error *error) {
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    if (plan->hypothetical || !backend->plan) return TEGROUP_OK;
#if defined(TEGROUP_IMPL_CUDA)
    tegroup_target target;
    plan->device = tegroup_impl_cuda_target(&target);
#endif
    return backend->plan(desc, names, plan, error);
}

/* Makes the verdicts of tegroup_explain, and the plan of the chosen backend; made->backend is AUTO if there is none. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_choose(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                       const tegroup_target *target,
                                                       tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1],
                                                       tegroup_plan *made, tegroup_error *error) {
    const int here = target == NULL;
    tegroup_problem problem;
    tegroup_target resolved;
    int32_t i;
    memset(made, 0, sizeof *made);
    TEGROUP_IMPL_TRY(tegroup_impl_problem_of(desc, names, &problem, error));
    TEGROUP_IMPL_TRY(tegroup_impl_target(desc, target, &resolved, error));
    for (i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++) {
        tegroup_verdict *v = &verdicts[i];
        tegroup_plan plan;
        tegroup_error why;
        tegroup_status status;
        tegroup_impl_verdict(desc, names, &problem, tegroup_impl_preference(desc, &problem, i), &resolved, here, v,
                             &plan);
        if (made->backend != TEGROUP_BACKEND_AUTO || v->status != TEGROUP_OK
            || (desc->options.backend != TEGROUP_BACKEND_AUTO && desc->options.backend != v->backend))
            continue;
        memset(&why, 0, sizeof why); /* else compilers that inline some of the calls warn */
        status = tegroup_impl_plan_complete(desc, names, &plan, &why);
        v->chosen = status == TEGROUP_OK;
        if (v->chosen) *made = plan;
        else {
            /* a CUDA or cuBLASLt call failed, or nothing is offered */
            v->status = status;
            v->native = why.native;
            v->field = why.field;
            v->rule = why.rule;
            v->expected = why.expected;
            v->got = why.got;
            v->workspace_bytes = 0;
            v->tile_m = v->tile_n = v->tile_k = 0;
            v->tile_why = NULL;
            v->predicted_us = v->quantised_us = v->bf16_us = 0;
        }
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_explain(const tegroup_gemm_desc *desc, const tegroup_target *target,
                                           tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1], tegroup_error *error) {
    tegroup_gemm_desc taken;
    tegroup_verdict said[TEGROUP_BACKEND_COUNT - 1];
    tegroup_plan plan;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_choose(desc, tegroup_impl_gemm_names(), target, said, &plan, error));
    TEGROUP_IMPL_RULE(verdicts != NULL, ERROR_NULL_ARGUMENT, "verdicts", "must not be NULL", 1, 0);
    memcpy(verdicts, said, sizeof said);
    return TEGROUP_OK;
}

/* Makes a plan for a complete descriptor; errors use the names of the caller's tensors. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_plan_make(const tegroup_gemm_desc *desc,
                                                          const tegroup_impl_names *names, const tegroup_target *target,
                                                          tegroup_plan *plan, tegroup_error *error) {
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
    const tegroup_verdict *refused = NULL;
    tegroup_plan made;
    int32_t i;
    TEGROUP_IMPL_TRY(tegroup_impl_choose(desc, names, target, verdicts, &made, error));
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    if (made.backend == TEGROUP_BACKEND_AUTO) {
        for (i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++) {
            int asked = desc->options.backend == TEGROUP_BACKEND_AUTO
                            ? (verdicts[i].backend == TEGROUP_BACKEND_CPU) == (desc->space == TEGROUP_SPACE_HOST)
                            : verdicts[i].backend == desc->options.backend;
            if (asked && (!refused || (verdicts[i].native && !refused->native)))
                refused = &verdicts[i]; /* a failed library call is reported first */
        }
        (void)tegroup_impl_fail_as(refused->reading, error, refused->status, refused->field, refused->rule,
                                   refused->expected, refused->got);
        if (error) error->native = refused->native;
        /* never OK here; said so that compilers do not warn of an unset plan in the caller */
        return refused->status != TEGROUP_OK ? refused->status : TEGROUP_ERROR_UNSUPPORTED;
    }
    *plan = made;
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_plan_make(const tegroup_gemm_desc *desc, const tegroup_target *target,
                                             tegroup_plan *plan, tegroup_error *error) {
    tegroup_gemm_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    return tegroup_impl_plan_make(desc, tegroup_impl_gemm_names(), target, plan, error);
}
