/* ---- The backends, a row of functions each ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "layer/mlp_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "core/field_names.h"
#include "core/choice.h"
#include "core/epilogue.h"
#include "cpu/gemm_kernel.h"
#include "cuda/cublaslt_setup.h"
#include "cuda/portable_decoded.h"
#include "cuda/sm90_repack.h"
#include "cuda/sm90_choice.h"

/* What a backend can be asked: a function type for each question. */
typedef void tegroup_impl_workspace_function(const tegroup_plan *plan, tegroup_layout *layout);
typedef void tegroup_impl_tile_function(const tegroup_gemm_desc *desc, const tegroup_target *target, tegroup_plan *plan,
                                        tegroup_impl_forecast *forecast);
typedef int tegroup_impl_image_function(int32_t sm);
typedef tegroup_status tegroup_impl_plan_function(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                  tegroup_plan *plan, tegroup_error *error);
typedef tegroup_status tegroup_impl_check_function(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                   const tegroup_impl_names *names, tegroup_error *error);
typedef tegroup_status tegroup_impl_run_function(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                 struct CUstream_st *stream, tegroup_error *error);
typedef tegroup_impl_choice tegroup_impl_chosen_function(const tegroup_plan *plan);
typedef tegroup_status tegroup_impl_choices_function(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                     tegroup_impl_choices *choices, tegroup_error *error);
typedef tegroup_status tegroup_impl_take_function(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                  tegroup_error *error);
typedef tegroup_status tegroup_impl_plan_fused_function(const tegroup_plan *plan, tegroup_fused_kernel *kernel,
                                                        tegroup_error *error);
typedef tegroup_status tegroup_impl_run_fused_function(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                       const tegroup_impl_epilogue *epilogue,
                                                       struct CUstream_st *stream, tegroup_error *error);

/* A backend. Workspace and tile are known to every build; the other functions are NULL where the build lacks its
 * code, or where the comment says so. */
typedef struct tegroup_impl_backend {
    tegroup_impl_workspace_function *workspace; /* adds the parts of a plan's workspace; NULL: it needs none */
    tegroup_impl_tile_function *tile;           /* the tile of a plan for any target; NULL: `plan` knows it */
    tegroup_impl_image_function *image;     /* does this unit hold code for the current GPU? NULL: as other kernels */
    tegroup_impl_plan_function *plan;       /* completes a plan for the current GPU; NULL: nothing is left to do */
    tegroup_impl_check_function *check;     /* what a call must be besides the common rules; NULL: nothing */
    tegroup_impl_run_function *run;         /* what the check has passed */
    tegroup_impl_chosen_function *chosen;   /* what a plan has chosen; NULL, as the next two: there is one kernel */
    tegroup_impl_choices_function *choices; /* adds what a plan could choose */
    tegroup_impl_take_function *take;       /* the plan with another choice */
    tegroup_impl_plan_fused_function *plan_fused; /* the kernel with an activation in its epilogue; NULL: it has none */
    tegroup_impl_run_fused_function *run_fused;
} tegroup_impl_backend;
#define TEGROUP_IMPL_NOT_BUILT(workspace, tile)                                                                        \
    { workspace, tile, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

TEGROUP_IMPL_STATIC tegroup_impl_run_function tegroup_impl_cpu_gemm;
#define TEGROUP_IMPL_BACKEND_CPU                                                                                       \
    {                                                                                                                  \
        tegroup_impl_cpu_workspace, tegroup_impl_cpu_tile, NULL, NULL, NULL, tegroup_impl_cpu_gemm, NULL, NULL, NULL,  \
            NULL, NULL                                                                                                 \
    }

#if defined(TEGROUP_IMPL_CUDA) && !defined(TEGROUP_NO_SM90)
TEGROUP_IMPL_STATIC tegroup_impl_image_function tegroup_impl_sm90_image;
TEGROUP_IMPL_STATIC tegroup_impl_plan_function tegroup_impl_sm90_plan;
TEGROUP_IMPL_STATIC tegroup_impl_check_function tegroup_impl_sm90_check;
TEGROUP_IMPL_STATIC tegroup_impl_run_function tegroup_impl_sm90_gemm;
TEGROUP_IMPL_STATIC tegroup_impl_chosen_function tegroup_impl_sm90_chosen;
TEGROUP_IMPL_STATIC tegroup_impl_choices_function tegroup_impl_sm90_choices;
TEGROUP_IMPL_STATIC tegroup_impl_take_function tegroup_impl_sm90_take;
#if TEGROUP_IMPL_FUSED_KERNELS
TEGROUP_IMPL_STATIC tegroup_impl_plan_fused_function tegroup_impl_sm90_plan_fused;
TEGROUP_IMPL_STATIC tegroup_impl_run_fused_function tegroup_impl_sm90_gemm_fused;
#define TEGROUP_IMPL_SM90_FUSED tegroup_impl_sm90_plan_fused, tegroup_impl_sm90_gemm_fused
#else
#define TEGROUP_IMPL_SM90_FUSED NULL, NULL
#endif
#define TEGROUP_IMPL_BACKEND_SM90                                                                                      \
    {                                                                                                                  \
        tegroup_impl_sm90_workspace, tegroup_impl_sm90_tile, tegroup_impl_sm90_image, tegroup_impl_sm90_plan,          \
            tegroup_impl_sm90_check, tegroup_impl_sm90_gemm, tegroup_impl_sm90_chosen, tegroup_impl_sm90_choices,      \
            tegroup_impl_sm90_take, TEGROUP_IMPL_SM90_FUSED                                                            \
    }
#else
#define TEGROUP_IMPL_BACKEND_SM90 TEGROUP_IMPL_NOT_BUILT(tegroup_impl_sm90_workspace, tegroup_impl_sm90_tile)
#endif

#if defined(TEGROUP_IMPL_CUDA) && !defined(TEGROUP_NO_PORTABLE)
TEGROUP_IMPL_STATIC tegroup_impl_image_function tegroup_impl_portable_image;
TEGROUP_IMPL_STATIC tegroup_impl_plan_function tegroup_impl_portable_plan;
TEGROUP_IMPL_STATIC tegroup_impl_check_function tegroup_impl_portable_check;
TEGROUP_IMPL_STATIC tegroup_impl_run_function tegroup_impl_portable_gemm;
#if TEGROUP_IMPL_FUSED_KERNELS
TEGROUP_IMPL_STATIC tegroup_impl_plan_fused_function tegroup_impl_portable_plan_fused;
TEGROUP_IMPL_STATIC tegroup_impl_run_fused_function tegroup_impl_portable_gemm_fused;
#define TEGROUP_IMPL_PORTABLE_FUSED tegroup_impl_portable_plan_fused, tegroup_impl_portable_gemm_fused
#else
#define TEGROUP_IMPL_PORTABLE_FUSED NULL, NULL
#endif
#define TEGROUP_IMPL_BACKEND_PORTABLE                                                                                  \
    {                                                                                                                  \
        tegroup_impl_portable_workspace, tegroup_impl_portable_tile, tegroup_impl_portable_image,                      \
            tegroup_impl_portable_plan, tegroup_impl_portable_check, tegroup_impl_portable_gemm, NULL, NULL, NULL,     \
            TEGROUP_IMPL_PORTABLE_FUSED                                                                                \
    }
#else
#define TEGROUP_IMPL_BACKEND_PORTABLE                                                                                  \
    TEGROUP_IMPL_NOT_BUILT(tegroup_impl_portable_workspace, tegroup_impl_portable_tile)
#endif

#if defined(TEGROUP_IMPL_CUDA) && !defined(TEGROUP_NO_CUBLASLT)
TEGROUP_IMPL_STATIC tegroup_impl_chosen_function tegroup_impl_lt_chosen;
TEGROUP_IMPL_STATIC tegroup_impl_take_function tegroup_impl_lt_take;
TEGROUP_IMPL_STATIC tegroup_impl_plan_function tegroup_impl_lt_grouped_plan, tegroup_impl_lt_loop_plan;
TEGROUP_IMPL_STATIC tegroup_impl_check_function tegroup_impl_lt_grouped_check, tegroup_impl_lt_loop_check;
TEGROUP_IMPL_STATIC tegroup_impl_run_function tegroup_impl_lt_grouped_gemm, tegroup_impl_lt_loop_gemm;
TEGROUP_IMPL_STATIC tegroup_impl_choices_function tegroup_impl_lt_grouped_choices, tegroup_impl_lt_loop_choices;
#define TEGROUP_IMPL_BACKEND_CUBLASLT_GROUPED                                                                          \
    {                                                                                                                  \
        tegroup_impl_lt_grouped_workspace, NULL, NULL, tegroup_impl_lt_grouped_plan, tegroup_impl_lt_grouped_check,    \
            tegroup_impl_lt_grouped_gemm, tegroup_impl_lt_chosen, tegroup_impl_lt_grouped_choices,                     \
            tegroup_impl_lt_take, NULL, NULL                                                                           \
    }
#define TEGROUP_IMPL_BACKEND_CUBLASLT_LOOP                                                                             \
    {                                                                                                                  \
        tegroup_impl_lt_loop_workspace, NULL, NULL, tegroup_impl_lt_loop_plan, tegroup_impl_lt_loop_check,             \
            tegroup_impl_lt_loop_gemm, tegroup_impl_lt_chosen, tegroup_impl_lt_loop_choices, tegroup_impl_lt_take,     \
            NULL, NULL                                                                                                 \
    }
#else
#define TEGROUP_IMPL_BACKEND_CUBLASLT_GROUPED TEGROUP_IMPL_NOT_BUILT(tegroup_impl_lt_grouped_workspace, NULL)
#define TEGROUP_IMPL_BACKEND_CUBLASLT_LOOP TEGROUP_IMPL_NOT_BUILT(tegroup_impl_lt_loop_workspace, NULL)
#endif

TEGROUP_IMPL_STATIC const tegroup_impl_backend *tegroup_impl_backend_of(tegroup_backend backend) {
    static const tegroup_impl_backend rows[TEGROUP_BACKEND_COUNT] = {TEGROUP_IMPL_NOT_BUILT(NULL, NULL), /* AUTO */
                                                                     TEGROUP_IMPL_BACKEND_SM90,
                                                                     TEGROUP_IMPL_BACKEND_CUBLASLT_GROUPED,
                                                                     TEGROUP_IMPL_BACKEND_PORTABLE,
                                                                     TEGROUP_IMPL_BACKEND_CUBLASLT_LOOP,
                                                                     TEGROUP_IMPL_BACKEND_CPU};
    return &rows[(uint32_t)backend < TEGROUP_BACKEND_COUNT ? backend : TEGROUP_BACKEND_AUTO];
}

/* What a build was made without, above the backends' bits in a resolved target's `built`; a caller's never has it. */
#define TEGROUP_IMPL_WITHOUT_FP8 (1u << 29)
#define TEGROUP_IMPL_WITHOUT_F16 (1u << 30)
#define TEGROUP_IMPL_WITHOUT_BACKWARD (1u << 31)
#define TEGROUP_IMPL_WITHOUT (TEGROUP_IMPL_WITHOUT_FP8 | TEGROUP_IMPL_WITHOUT_F16 | TEGROUP_IMPL_WITHOUT_BACKWARD)

/* What this build holds. */
TEGROUP_IMPL_STATIC uint32_t tegroup_impl_built(void) {
    uint32_t built = 0;
    int b;
    for (b = 0; b < TEGROUP_BACKEND_COUNT; b++)
        if (tegroup_impl_backend_of((tegroup_backend)b)->run) built |= 1u << b;
#if defined(TEGROUP_NO_FP8)
    built |= TEGROUP_IMPL_WITHOUT_FP8;
#endif
#if defined(TEGROUP_NO_F16)
    built |= TEGROUP_IMPL_WITHOUT_F16;
#endif
#if defined(TEGROUP_NO_BACKWARD)
    built |= TEGROUP_IMPL_WITHOUT_BACKWARD;
#endif
    return built;
}
