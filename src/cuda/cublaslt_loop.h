/* ---- cublaslt_loop ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "core/cublaslt_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/choice.h"
#include "core/product.h"
#include "cuda/cublaslt_setup.h"
#include "cuda/launch.h"
#include "cuda/cublaslt.h"
#include "cuda/cublaslt_setup_kernels.h"

/* One algorithm serves every group. The plan chooses it, for a group of the mean size, from those that do not split k.
 * So a call does not run the heuristic, which takes tens of microseconds a shape, and a row's bits do not depend on its
 * group's number of rows. The price is that a group far from the mean may run slower than with an algorithm of its
 * own. */

/* Describes the four matrices of a group by plain layouts. Dimensions are at least 1. */
static inline int tegroup_impl_lt_layouts(const tegroup_cublaslt_functions *f, const tegroup_plan *plan, int64_t rows,
                                          int64_t cols, int64_t k, const int64_t ld[4], tegroup_impl_lt_matmul *m) {
    const tegroup_problem *p = &plan->problem;
    const int forward = p->op == TEGROUP_OP_FORWARD, wgrad = p->op == TEGROUP_OP_WGRAD;
    tegroup_impl_lt_opaque *const layouts[4] = {&m->a, &m->b, &m->c, &m->d};
    const tegroup_dtype dtypes[4] = {p->b, p->a, p->d, p->d};
    const int64_t high[4] = {forward ? k : rows, wgrad ? cols : k, rows, rows};
    const int64_t wide[4] = {forward ? rows : k, wgrad ? k : cols, cols, cols};
    int code = 0;
    m->in_place = tegroup_impl_lt_in_place(plan);
    for (int i = 0; i < 4 && !code; i++) {
        if (m->in_place && layouts[i] == &m->c) continue;
        code = TEGROUP_IMPL_LT(f, cublasLtMatrixLayoutInit_internal)(
            layouts[i], sizeof *layouts[i], tegroup_impl_lt_dtype(dtypes[i]), (uint64_t)high[i], (uint64_t)wide[i],
            ld[i] > 0 ? ld[i] : high[i]);
    }
    return code;
}

/* Writes scalars in device memory to the workspace as floats. */
static __global__ void tegroup_impl_scalars_kernel(const tegroup_scalars alpha, const tegroup_scalars beta, float one,
                                                   float zero, int32_t groups, float *alphas, float *betas) {
    const int32_t g = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (g >= groups) return;
    alphas[g] = (float)tegroup_impl_scalar(&alpha, g, one);
    betas[g] = (float)tegroup_impl_scalar(&beta, g, zero);
}

/* Writes beta * C for a group without terms. */
static __global__ void tegroup_impl_empty_kernel(const __grid_constant__ tegroup_impl_result p, tegroup_dtype dtype,
                                                 float beta, const float *beta_at) {
    tegroup_impl_write_alone(p, dtype, beta_at ? *beta_at : beta, false, (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                             (int64_t)gridDim.x * blockDim.x);
}

/* Whether D is always computed in place, and a C that lies elsewhere is copied into D first. The library adds in
 * another way if C is D (see the quirk), and a plan does not know where C will be. */
static inline int tegroup_impl_lt_loop_in_d(const tegroup_plan *plan) {
    return plan->problem.d != TEGROUP_DTYPE_F32 && tegroup_impl_lt_avoids(plan, TEGROUP_QUIRK_ADDED_HALVES);
}

static __global__ void tegroup_impl_bring_kernel(const __grid_constant__ tegroup_impl_result p, const float *beta_at) {
    const uint16_t *c = (const uint16_t *)(uintptr_t)p.c;
    uint16_t *d = (uint16_t *)(uintptr_t)p.d;
    if (beta_at && *beta_at == 0) return; /* a beta of 0 means that C is not read */
    for (int64_t i = blockIdx.x; i < p.m; i += gridDim.x)
        for (int64_t j = threadIdx.x; j < p.n; j += blockDim.x) d[i * p.ldd + j] = c[i * p.ldc + j];
}

/* Bytes of the workspace that each stream's matmuls have for themselves. */
static inline int64_t tegroup_impl_lt_loop_slot(const tegroup_plan *plan) {
    return tegroup_impl_align((int64_t)plan->cublas_workspace_bytes, TEGROUP_ALIGNMENT);
}

/* Collects what the library offers for a group of the mean size whose addresses are multiples of `alignment` bytes. */
static inline tegroup_status tegroup_impl_lt_loop_ask(const tegroup_gemm_desc *desc, const tegroup_plan *plan,
                                                      const tegroup_impl_lt_plan *lt, int32_t alignment,
                                                      tegroup_impl_choices *choices, tegroup_error *error) {
    const tegroup_problem *p = &plan->problem;
    const int64_t ld[4] = {p->ldb, p->lda, p->ldc && !tegroup_impl_lt_loop_in_d(plan) ? p->ldc : p->ldd, p->ldd};
    const tegroup_impl_lt_size usual = tegroup_impl_lt_size_of(p, tegroup_impl_lt_mean(desc, p));
    tegroup_impl_choice offered[TEGROUP_IMPL_LT_OFFERED];
    tegroup_impl_lt_matmul m;
    int code = tegroup_impl_lt_describe(&lt->functions, p, 0, &m.desc);
    if (!code) code = tegroup_impl_lt_layouts(&lt->functions, plan, usual.rows, usual.cols, usual.k, ld, &m);
    TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
    const int32_t count =
        tegroup_impl_lt_offers(&lt->functions, desc->options.cublaslt, &m, tegroup_impl_lt_loop_slot(plan), alignment,
                               NULL, offered, TEGROUP_IMPL_LT_OFFERED, &code);
    for (int32_t i = 0; i < count; i++) tegroup_impl_choices_add(choices, &offered[i]);
    return count > 0 ? TEGROUP_OK : tegroup_impl_lt_nothing(code, error);
}

static inline tegroup_status tegroup_impl_lt_loop_choices(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          tegroup_impl_choices *choices, tegroup_error *error) {
    const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    return lt.has_algorithm ? tegroup_impl_lt_loop_ask(desc, plan, &lt, lt.alignment, choices, error) : TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_lt_loop_plan(const tegroup_gemm_desc *desc, const tegroup_impl_names *,
                                                       tegroup_plan *plan, tegroup_error *error) {
    const tegroup_problem *p = &plan->problem;
    const int32_t element = (int32_t)tegroup_impl_min(tegroup_impl_bits(p->a), tegroup_impl_bits(p->d)) / 8;
    tegroup_impl_choices aligned, unaligned;
    tegroup_impl_lt_plan lt;
    memset(&lt, 0, sizeof lt);
    aligned.count = unaligned.count = 0;
    lt.functions = tegroup_impl_lt_find(desc);
    lt.alignment = tegroup_impl_lt_alignment(desc, p, 16);
    lt.has_algorithm = p->groups > 0 && !tegroup_impl_termless(desc);
    if (lt.has_algorithm) {
        TEGROUP_IMPL_TRY(tegroup_impl_lt_loop_ask(desc, plan, &lt, lt.alignment, &aligned, error));
        lt.algorithm = aligned.list[0];
        lt.has_unaligned = tegroup_impl_lt_loop_ask(desc, plan, &lt, element, &unaligned, NULL) == TEGROUP_OK;
        if (lt.has_unaligned) lt.unaligned = unaligned.list[0];
    }
    tegroup_impl_lt_planned(plan, &lt);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_lt_loop_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                        const tegroup_impl_names *names, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_terms(tegroup_impl_lt_plan_of(plan).has_algorithm, desc, names, error));
    TEGROUP_IMPL_RULE(desc->options.cublaslt != NULL, ERROR_NULL_ARGUMENT, "options.cublaslt", "must not be NULL", 1,
                      0);
    TEGROUP_IMPL_RULE(tegroup_impl_max(1, desc->options.stream_count) == plan->cublas_parts, ERROR_PLAN,
                      "options.stream_count", "must be as planned: each stream has a part of the workspace",
                      plan->cublas_parts, desc->options.stream_count);
    if (desc->options.stream_count == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(desc->options.streams != NULL, ERROR_NULL_ARGUMENT, "options.streams", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->options.events != NULL, ERROR_NULL_ARGUMENT, "options.events", "must not be NULL", 1, 0);
    for (int32_t i = 0; i <= desc->options.stream_count; i++)
        TEGROUP_IMPL_RULE(desc->options.events[i] != NULL, ERROR_NULL_ARGUMENT, "options.events",
                          "must hold no NULL; got the event's index", -1, i);
    return TEGROUP_OK;
}

/* What all groups of a call share. */
typedef struct tegroup_impl_lt_loop {
    const tegroup_impl_lt_plan *lt;
    tegroup_gemm_desc desc; /* without scalars in device memory, which the host must not read */
    tegroup_snapshot_view views[4];
    tegroup_impl_lt_matmul m;
    float *alphas, *betas; /* in device memory; NULL: the scalars are on the host */
    int32_t aligned, in_d;
} tegroup_impl_lt_loop;

static inline char *tegroup_impl_lt_address(const tegroup_impl_block *block, tegroup_dtype dtype) {
    return (char *)((uintptr_t)block->base + (uintptr_t)(block->first * (tegroup_impl_bits(dtype) / 8)));
}

static inline tegroup_status tegroup_impl_lt_loop_group(tegroup_impl_lt_loop *loop, const tegroup_plan *plan, int32_t g,
                                                        char *slot, int64_t slot_bytes, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    const tegroup_impl_lt_plan *lt = loop->lt;
    const tegroup_gemm_desc *desc = &loop->desc;
    const tegroup_impl_product p = tegroup_impl_product_of(desc, loop->views, g, 1, 0);
    const int has_c = desc->accumulate || desc->c.dtype != TEGROUP_DTYPE_UNSET;
    const float alpha = (float)p.alpha, beta = has_c ? (float)p.beta : 0;
    const int in_d = loop->in_d;
    const int64_t ld[4] = {p.b.ld, p.a.ld, has_c && !in_d ? p.c.ld : p.d.ld, p.d.ld};
    const void *a = tegroup_impl_lt_address(&p.a, desc->a.dtype), *b = tegroup_impl_lt_address(&p.b, desc->b.dtype);
    void *d = tegroup_impl_lt_address(&p.d, desc->d.dtype);
    const void *c = has_c ? tegroup_impl_lt_address(&p.c, desc->d.dtype) : d;
    const float *beta_at = loop->betas ? loop->betas + g : NULL;
    const tegroup_impl_result whole = {p.m, p.n, p.c.ld, p.d.ld, (int64_t)(uintptr_t)c, (int64_t)(uintptr_t)d};
    tegroup_impl_lt_result result;
    const tegroup_impl_choice *algorithm;
    int code;
    if (p.skip || p.m <= 0 || p.n <= 0 || (p.untouched && (!loop->betas || desc->accumulate))) return TEGROUP_OK;
    if (p.k <= 0) {
        const int64_t blocks = tegroup_impl_min(1024, tegroup_impl_ceil_div(p.m * p.n, 256));
        return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_empty_kernel, (unsigned)blocks, 256, 0, stream,
                                                            whole, desc->d.dtype, beta, beta_at),
                                        "stream", "the kernel must launch", error);
    }
    if (in_d && c != d && (beta_at || beta != 0))
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_bring_kernel,
                                                                      (unsigned)tegroup_impl_min(4096, p.m), 256, 0,
                                                                      stream, whole, beta_at),
                                                  "stream", "the kernel must launch", error));
    code = tegroup_impl_lt_layouts(&lt->functions, plan, p.n, p.m, p.k, ld, &loop->m);
    TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
    /* an algorithm that cannot run this shape is replaced by the library's own choice: for NULL it runs its
     * heuristic */
    algorithm = loop->aligned ? &lt->algorithm : lt->has_unaligned ? &lt->unaligned : NULL;
    if (algorithm
        && (TEGROUP_IMPL_LT(&lt->functions, cublasLtMatmulAlgoCheck)(desc->options.cublaslt, &loop->m.desc, &loop->m.a,
                                                                     &loop->m.b, tegroup_impl_lt_c(&loop->m),
                                                                     &loop->m.d, algorithm, &result)
            || (int64_t)result.workspace_bytes > slot_bytes))
        algorithm = NULL;
    code = TEGROUP_IMPL_LT(&lt->functions, cublasLtMatmul)(
        desc->options.cublaslt, &loop->m.desc, loop->alphas ? (const void *)(loop->alphas + g) : &alpha, b, &loop->m.a,
        a, &loop->m.b, beta_at ? (const void *)beta_at : &beta, in_d ? d : c, tegroup_impl_lt_c(&loop->m), d,
        &loop->m.d, algorithm, slot, (size_t)slot_bytes, stream);
    return tegroup_impl_lt_status(code, "stream", "cublasLtMatmul must take each group", error);
}

/* Whether every group's address is as aligned as the chosen algorithm was told. */
static inline int tegroup_impl_lt_loop_aligned(const tegroup_gemm_desc *desc, int32_t alignment, int in_d) {
    const tegroup_tensor *tensors[4] = {&desc->a, &desc->b, &desc->c, &desc->d};
    for (int i = 0; i < 4; i++) {
        const tegroup_tensor *t = tensors[i];
        if (t->dtype == TEGROUP_DTYPE_UNSET || (t == &desc->c && in_d)) continue;
        if (!tegroup_impl_listed(t) && !tegroup_impl_aligned(t->data, (size_t)alignment)) return 0;
        if (!tegroup_impl_listed(t) && !tegroup_impl_ragged(&t->shape) && t->shape.groups > 1
            && tegroup_impl_group_stride(t) * (tegroup_impl_bits(t->dtype) / 8) % alignment != 0)
            return 0; /* the plan may have had another stride; other distances are as planned */
        for (int32_t g = 0; tegroup_impl_listed(t) && g < t->shape.groups; g++)
            if (!tegroup_impl_aligned(t->pointers[g], (size_t)alignment)) return 0;
    }
    return 1;
}

static inline tegroup_status tegroup_impl_lt_loop_capture(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    int ragged = 0;
    for (int i = 0; i < 4; i++) ragged |= plan->problem.rows_space[i] == TEGROUP_SPACE_HOST;
    return tegroup_impl_cuda_check_capture(!ragged || desc->options.host_sizes_final, "options.host_sizes_final",
                                           stream, error);
}

static inline tegroup_status tegroup_impl_lt_loop_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                       struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    const tegroup_problem *p = &plan->problem;
    const tegroup_tensor *tensors[4] = {&desc->a, &desc->b, &desc->c, &desc->d};
    const int32_t forks = (int32_t)tegroup_impl_min(desc->options.stream_count, p->groups);
    const int64_t slot_bytes = tegroup_impl_lt_loop_slot(plan);
    char *slots = (char *)desc->options.workspace;
    tegroup_impl_lt_loop loop;
    int32_t forked = 0; /* streams that wait for `stream` */
    cudaError_t cuda = cudaSuccess;
    tegroup_status status = TEGROUP_OK;
    int code;
    TEGROUP_IMPL_TRY(tegroup_impl_lt_loop_capture(plan, desc, stream, error));
    if (p->groups == 0) return TEGROUP_OK;
    memset(&loop, 0, sizeof loop);
    loop.lt = &lt;
    loop.desc = *desc;
    loop.in_d = tegroup_impl_lt_loop_in_d(plan);
    loop.aligned = tegroup_impl_lt_loop_aligned(desc, lt.alignment, loop.in_d);
    for (int i = 0; i < 4; i++)
        if (p->rows_space[i]) loop.views[i] = tegroup_snapshot_read(tensors[i]->shape.snapshot);
    code = tegroup_impl_lt_describe(&lt.functions, p, 0, &loop.m.desc);
    TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
    if (p->alpha_space == TEGROUP_SPACE_DEVICE || p->beta_space == TEGROUP_SPACE_DEVICE) {
        const float one = p->alpha_space == TEGROUP_SPACE_HOST ? (float)tegroup_impl_scalar(&desc->alpha, 0, 1) : 1.0f;
        const float zero = p->beta_space == TEGROUP_SPACE_HOST ? (float)tegroup_impl_scalar(&desc->beta, 0, 0)
                                                               : (float)desc->accumulate;
        memset(&loop.desc.alpha, 0, sizeof loop.desc.alpha);
        memset(&loop.desc.beta, 0, sizeof loop.desc.beta);
        tegroup_scalars alpha = loop.desc.alpha, beta = loop.desc.beta;
        if (p->alpha_space == TEGROUP_SPACE_DEVICE) alpha = desc->alpha;
        if (p->beta_space == TEGROUP_SPACE_DEVICE) beta = desc->beta;
        tegroup_layout layout;
        tegroup_impl_layout_begin(&layout);
        tegroup_impl_lt_loop_workspace(plan, &layout);
        loop.alphas = (float *)tegroup_impl_layout_at(&layout, 1, desc->options.workspace);
        loop.betas = (float *)tegroup_impl_layout_at(&layout, 2, desc->options.workspace);
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_scalars_kernel, (unsigned)tegroup_impl_ceil_div(p->groups, 128), 128, 0,
                                stream, alpha, beta, one, zero, p->groups, loop.alphas, loop.betas),
            "stream", "the kernel must launch", error));
    }
    if (forks > 0) cuda = cudaEventRecord(desc->options.events[0], stream);
    while (forked < forks && cuda == cudaSuccess) {
        cuda = cudaStreamWaitEvent(desc->options.streams[forked], desc->options.events[0], 0);
        forked += cuda == cudaSuccess;
    }
    status = tegroup_impl_cuda_status(cuda, "options.streams", "must wait for stream", error);
    /* the largest groups first, round-robin over the streams */
    for (int32_t i = 0; i < p->groups && status == TEGROUP_OK; i++) {
        const int32_t g = loop.views[TEGROUP_IMPL_A].order ? loop.views[TEGROUP_IMPL_A].order[i] : i;
        const int32_t fork = forks > 0 ? i % forks : 0;
        status = tegroup_impl_lt_loop_group(&loop, plan, g, slots + fork * slot_bytes, slot_bytes,
                                            forks > 0 ? desc->options.streams[fork] : stream, error);
    }
    for (int32_t i = 0; i < forked; i++) { /* joined whatever happened, so that a capture can end */
        cudaError_t joined = cudaEventRecord(desc->options.events[i + 1], desc->options.streams[i]);
        if (joined == cudaSuccess) joined = cudaStreamWaitEvent(stream, desc->options.events[i + 1], 0);
        if (cuda == cudaSuccess) cuda = joined;
    }
    TEGROUP_IMPL_TRY(status);
    return tegroup_impl_cuda_status(cuda, "options.events", "must join streams with stream", error);
}
