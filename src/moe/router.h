/* ---- Router ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/layout_types.h"
#include "moe/routing_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "base/range.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/apart.h"
#include "cpu/real.h"
#include "moe/count.h"
#include "moe/router_scheme.h"

#if TEGROUP_IMPL_MOE_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_router(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                                            tegroup_error *error);
#endif
#if TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_router_backward(const tegroup_router_backward_desc *desc,
                                                                     struct CUstream_st *stream, tegroup_error *error);
#endif

/* Balance gradient of a probability: coefficient * experts * (count / (tokens k)) / tokens, for each assignment
 * counted. */
TEGROUP_IMPL_STATIC double tegroup_impl_router_per_count(const tegroup_router_backward_desc *desc) {
    double tokens = (double)desc->probabilities.rows;
    return desc->balance_coefficient * (desc->loss_scale != 0 ? desc->loss_scale : 1) * desc->experts
           / (tokens * tokens * desc->k);
}

/* @each-real */
/* Is an expert better than the best so far, a lower one? By probability, and by logit where the softmax does not tell
 * them apart, far below the largest or close together. NaN never wins. */
TEGROUP_IMPL_STATIC int tegroup_impl_router_better_FSUF(const tegroup_router_desc *desc, const void *logits,
                                                        const REAL *probabilities, int32_t e, int32_t best) {
    if (probabilities[e] != probabilities[best]) return probabilities[e] > probabilities[best];
    return tegroup_impl_load_f64(desc->logits.dtype, logits, e)
           > tegroup_impl_load_f64(desc->logits.dtype, logits, best);
}

/* One token: probabilities, its k best experts and their weights. */
TEGROUP_IMPL_STATIC void tegroup_impl_router_row_FSUF(const tegroup_router_desc *desc, int64_t token,
                                                      REAL *probabilities) {
    const void *logits = tegroup_impl_matrix_row(&desc->logits, token);
    REAL *weights = (REAL *)(void *)tegroup_impl_matrix_row(&desc->weights, token);
    int32_t indices[TEGROUP_IMPL_CHOICES], e, j, i;
    REAL chosen = 0;
    tegroup_impl_scores_FSUF(desc, logits, probabilities);
    for (j = 0; j < desc->k; j++) {
        int32_t best = -1;
        for (e = 0; e < desc->experts; e++) {
            for (i = 0; i < j && indices[i] != e; i++) {}
            if (i == j && (best < 0 || tegroup_impl_router_better_FSUF(desc, logits, probabilities, e, best))) best = e;
        }
        indices[j] = best;
        chosen += probabilities[best];
        tegroup_impl_store_int(desc->indices.dtype, tegroup_impl_matrix_row(&desc->indices, token), j, best);
        tegroup_impl_count_one(&desc->counts, best);
    }
    for (j = 0; j < desc->k && desc->weights.dtype != TEGROUP_DTYPE_UNSET; j++)
        weights[j] = desc->normalize ? probabilities[indices[j]] / chosen : probabilities[indices[j]];
}

/* A choice that is no expert's was dropped after routing. It is still part of what the weights were divided by, and can
 * be named: as the router takes the largest probabilities, those dropped are the largest that the token's other choices
 * leave. They get their places back; their weights went nowhere, so their gradients are 0. */
TEGROUP_IMPL_HD void tegroup_impl_router_recall_FSUF(const REAL *probabilities, int32_t experts, int32_t k,
                                                     int32_t *indices, REAL *grad_weights) {
    int32_t j, e, i;
    for (j = 0; j < k; j++) {
        int32_t best = -1;
        if (tegroup_impl_within(indices[j], experts)) continue;
        for (e = 0; e < experts; e++) {
            if (best >= 0 && !(probabilities[e] > probabilities[best])) continue;
            for (i = 0; i < k && indices[i] != e; i++) {}
            if (i == k) best = e;
        }
        indices[j] = best;
        grad_weights[j] = 0;
    }
}

/* One token's logit gradient: through the normalised weights to the probabilities, add the balance term, through
 * softmax. */
TEGROUP_IMPL_STATIC void tegroup_impl_router_grad_row_FSUF(const tegroup_router_backward_desc *desc, int64_t token) {
    const REAL *probabilities = (const REAL *)(const void *)tegroup_impl_matrix_row(&desc->probabilities, token);
    void *grad_logits = tegroup_impl_matrix_row(&desc->grad_logits, token);
    int balanced = desc->balance_coefficient != 0;
    REAL per_count = balanced ? (REAL)tegroup_impl_router_per_count(desc) : 0, chosen = 0, dot = 0, mean = 0;
    REAL grad_weights[TEGROUP_IMPL_CHOICES];
    int32_t indices[TEGROUP_IMPL_CHOICES], pass, e, j;
    memcpy(grad_weights, tegroup_impl_matrix_row(&desc->grad_weights, token), (size_t)desc->k * sizeof(REAL));
    for (j = 0; j < desc->k; j++) {
        const int64_t index =
            tegroup_impl_load_int(desc->indices.dtype, tegroup_impl_matrix_row(&desc->indices, token), j);
        indices[j] = tegroup_impl_within(index, desc->experts) ? (int32_t)index : -1;
    }
    tegroup_impl_router_recall_FSUF(probabilities, desc->experts, desc->k, indices, grad_weights);
    for (j = 0; j < desc->k; j++) chosen += probabilities[indices[j]];
    for (j = 0; j < desc->k; j++) dot += grad_weights[j] * probabilities[indices[j]];
    for (pass = 0; pass < 2; pass++) /* the mean gradient first, then each one's difference from it */
        for (e = 0; e < desc->experts; e++) {
            REAL grad =
                balanced ? per_count * (REAL)tegroup_impl_load_int(desc->counts.dtype, desc->counts.data, e) : 0;
            for (j = 0; j < desc->k; j++)
                if (indices[j] == e)
                    grad += tegroup_impl_choice_grad_FSUF(grad_weights[j], dot, chosen, desc->normalize);
            if (pass == 0) mean += probabilities[e] * grad;
            else tegroup_impl_store_FSUF(desc->grad_logits.dtype, grad_logits, e, probabilities[e] * (grad - mean));
        }
}
/* @end */

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_router_sizes(int32_t experts, int32_t k, int32_t normalize,
                                                                   double coefficient, tegroup_error *error) {
    TEGROUP_IMPL_RULE(experts >= 1 && experts <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "experts",
                      "must be 1 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, experts);
    TEGROUP_IMPL_RULE(k >= 1 && k <= TEGROUP_IMPL_CHOICES, ERROR_VALUE, "k", "must be 1 to 64", TEGROUP_IMPL_CHOICES,
                      k);
    TEGROUP_IMPL_RULE(k <= experts, ERROR_VALUE, "k", "must be at most experts", experts, k);
    TEGROUP_IMPL_RULE(normalize == 0 || normalize == 1, ERROR_VALUE, "normalize", "must be 0 or 1", 1, normalize);
    return tegroup_impl_check_coefficient(coefficient, "balance_coefficient", error);
}

TEGROUP_API tegroup_status tegroup_router_layout(const tegroup_router_desc *desc, tegroup_layout *layout,
                                                 tegroup_error *error) {
    tegroup_router_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_router_sizes(desc->experts, desc->k, desc->normalize, desc->balance_coefficient, error));
    TEGROUP_IMPL_RULE(!tegroup_impl_router_schemed(desc)
                          || (desc->logits.rows >= 0 && desc->logits.rows <= TEGROUP_MAX_ROWS),
                      ERROR_VALUE, "logits.rows", "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, desc->logits.rows);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_scheme(&desc->scheme, desc->logits.rows, desc->experts, desc->k, desc->normalize, error));
    tegroup_impl_layout_begin(layout);
    if (desc->space != TEGROUP_SPACE_DEVICE) return TEGROUP_OK;
    if (tegroup_impl_router_schemed(desc)) tegroup_impl_scheme_layout(desc, layout);
    else if (desc->balance_loss)
        tegroup_impl_layout_add(layout, "sums of probabilities", 8 * (int64_t)TEGROUP_IMPL_ROUTER_RUNS * desc->experts);
    return TEGROUP_OK;
}

/* The type of the probabilities, wanted or not. */
TEGROUP_IMPL_STATIC tegroup_dtype tegroup_impl_router_real(const tegroup_router_desc *desc) {
    if (desc->probabilities.dtype != TEGROUP_DTYPE_UNSET) return desc->probabilities.dtype;
    if (desc->weights.dtype != TEGROUP_DTYPE_UNSET) return desc->weights.dtype;
    return desc->logits.dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
}

TEGROUP_IMPL_STATIC void tegroup_impl_router_row(const tegroup_router_desc *desc, int64_t token, int schemed) {
    union {
        double f64[TEGROUP_MAX_GROUPS];
        float f32[TEGROUP_MAX_GROUPS];
    } unwanted;
    const int wanted = desc->probabilities.dtype != TEGROUP_DTYPE_UNSET;
    void *row = wanted ? tegroup_impl_matrix_row(&desc->probabilities, token) : NULL;
    const int is_f64 = tegroup_impl_router_real(desc) == TEGROUP_DTYPE_F64;
    double *f64 = wanted ? (double *)row : unwanted.f64;
    float *f32 = wanted ? (float *)row : unwanted.f32;
    if (schemed && is_f64) tegroup_impl_scheme_row_f64(desc, token, f64);
    else if (schemed) tegroup_impl_scheme_row_f32(desc, token, f32);
    else if (is_f64) tegroup_impl_router_row_f64(desc, token, f64);
    else tegroup_impl_router_row_f32(desc, token, f32);
}

/* At least one output, and what the load-balancing loss is computed from. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_router_outputs(const tegroup_router_desc *desc,
                                                                     tegroup_error *error) {
    const int probabilities = desc->probabilities.dtype != TEGROUP_DTYPE_UNSET,
              counts = desc->counts.dtype != TEGROUP_DTYPE_UNSET, indices = desc->indices.dtype != TEGROUP_DTYPE_UNSET,
              schemed = tegroup_impl_router_schemed(desc);
    TEGROUP_IMPL_RULE_AS(DTYPES, probabilities || !desc->balance_loss, ERROR_UNSET, "probabilities.dtype",
                         "must be set with balance_loss", TEGROUP_IMPL_REALS, 0);
    TEGROUP_IMPL_RULE_AS(DTYPES, counts || !desc->balance_loss || schemed, ERROR_UNSET, "counts.dtype",
                         "must be set with balance_loss", TEGROUP_IMPL_INTEGERS, 0);
    TEGROUP_IMPL_RULE_AS(DTYPES, indices || !schemed || !desc->balance_loss, ERROR_UNSET, "indices.dtype",
                         "must be set with balance_loss and a scheme", TEGROUP_IMPL_INTEGERS, 0);
    TEGROUP_IMPL_RULE_AS(DTYPES, indices || desc->loss_gradients.dtype == TEGROUP_DTYPE_UNSET, ERROR_UNSET,
                         "indices.dtype", "must be set with loss_gradients", TEGROUP_IMPL_INTEGERS, 0);
    TEGROUP_IMPL_RULE_AS(
        DTYPES, probabilities || counts || indices || desc->weights.dtype != TEGROUP_DTYPE_UNSET || desc->z_loss,
        ERROR_UNSET, "probabilities.dtype", "must be set where weights, indices and counts are absent",
        TEGROUP_IMPL_REALS, 0);
    return TEGROUP_OK;
}

/* All but its memory. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_router_check_shapes(const tegroup_router_desc *desc,
                                                                    tegroup_error *error) {
    static const char *const logits[5] = TEGROUP_IMPL_MATRIX_PATHS("logits"),
                             *const probabilities[5] = TEGROUP_IMPL_MATRIX_PATHS("probabilities"),
                             *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("weights"),
                             *const indices[5] = TEGROUP_IMPL_MATRIX_PATHS("indices"),
                             *const counts[5] = TEGROUP_IMPL_MATRIX_PATHS("counts"),
                             *const gradients[5] = TEGROUP_IMPL_MATRIX_PATHS("loss_gradients");
    const int64_t tokens = desc->logits.rows;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_router_sizes(desc->experts, desc->k, desc->normalize, desc->balance_coefficient, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix_shape(&desc->logits, logits, -1, desc->experts, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional_shape(&desc->probabilities, probabilities, tokens, desc->experts,
                                                       TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional_shape(
        &desc->weights, weights, tokens, desc->k,
        desc->probabilities.dtype != TEGROUP_DTYPE_UNSET ? 1u << desc->probabilities.dtype : TEGROUP_IMPL_REALS,
        error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional_shape(&desc->indices, indices, tokens, desc->k, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional_shape(&desc->counts, counts, 1, desc->experts, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->counts, counts, tegroup_impl_mul(tokens, desc->k), error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scheme(&desc->scheme, tokens, desc->experts, desc->k, desc->normalize, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional_shape(&desc->loss_gradients, gradients,
                                                       tegroup_impl_sequences(&desc->scheme, tokens), desc->experts + 1,
                                                       1u << TEGROUP_DTYPE_F64, error));
    return tegroup_impl_check_router_outputs(desc, error);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_router_check(const tegroup_router_desc *desc, tegroup_error *error) {
    enum { BUFFERS = 8 + TEGROUP_IMPL_SCHEME_BUFFERS };
    tegroup_impl_buffer buffers[BUFFERS];
    tegroup_layout layout;
    TEGROUP_IMPL_TRY(tegroup_impl_router_check_shapes(desc, error));
    TEGROUP_IMPL_TRY_MEMORY(logits);
    TEGROUP_IMPL_TRY_MEMORY(probabilities);
    TEGROUP_IMPL_TRY_MEMORY(weights);
    TEGROUP_IMPL_TRY_MEMORY(indices);
    TEGROUP_IMPL_TRY_MEMORY(counts);
    TEGROUP_IMPL_TRY_MEMORY(loss_gradients);
    TEGROUP_IMPL_TRY(tegroup_impl_check_scheme_memory(&desc->scheme, error));
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(desc->balance_loss, sizeof(double)), ERROR_ALIGNMENT, "balance_loss",
                      "must be aligned to its element", 8, (uintptr_t)desc->balance_loss % sizeof(double));
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(desc->z_loss, sizeof(double)), ERROR_ALIGNMENT, "z_loss",
                      "must be aligned to its element", 8, (uintptr_t)desc->z_loss % sizeof(double));
    buffers[0] = tegroup_impl_buffer_of(desc->balance_loss, (int64_t)sizeof(double), "balance_loss",
                                        "must not overlap balance_loss", 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->counts, "counts.data", "must not overlap counts", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->indices, "indices.data", "must not overlap indices", 1);
    buffers[3] = tegroup_impl_matrix_buffer(&desc->weights, "weights.data", "must not overlap weights", 1);
    buffers[4] =
        tegroup_impl_matrix_buffer(&desc->probabilities, "probabilities.data", "must not overlap probabilities", 1);
    buffers[5] = tegroup_impl_buffer_of(desc->z_loss, (int64_t)sizeof(double), "z_loss", "must not overlap z_loss", 1);
    buffers[6] =
        tegroup_impl_matrix_buffer(&desc->loss_gradients, "loss_gradients.data", "must not overlap loss_gradients", 1);
    buffers[7] = tegroup_impl_matrix_buffer(&desc->logits, NULL, "must not overlap logits", 0);
    tegroup_impl_scheme_buffers(&desc->scheme, desc->logits.rows, buffers + 8);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, BUFFERS, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(tegroup_router_layout(desc, &layout, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error));
    return tegroup_impl_check_matrix_workspace(&layout, desc->workspace, desc->workspace_bytes, buffers, BUFFERS,
                                               error);
}

/* The threads that so many tokens are worth, of so many steps for each expert. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_router_team(int32_t limit, int64_t tokens, int32_t experts, double steps) {
    return tegroup_impl_team(tegroup_impl_threads(limit), (double)tokens * experts * steps);
}

/* experts * sum of share * mean probability, summed by expert, then by token. A thread sums for a cache line of experts
 * at a time; each expert's sum is in the order of tokens, whoever adds it up. */
TEGROUP_IMPL_STATIC double tegroup_impl_router_balance(const tegroup_router_desc *desc) {
    const int64_t tokens = desc->logits.rows;
    double mean[TEGROUP_MAX_GROUPS], loss = 0;
    int64_t t;
    int32_t first, e;
    if (tokens == 0) return 0;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) private(t, e) num_threads(
        tegroup_impl_router_team(desc->threads, tokens, desc->experts, 2)))
    for (first = 0; first < desc->experts; first += 8) {
        const int32_t end = (int32_t)tegroup_impl_min(first + 8, desc->experts);
        for (e = first; e < end; e++) mean[e] = 0;
        for (t = 0; t < tokens; t++) {
            const void *row = tegroup_impl_matrix_row(&desc->probabilities, t);
            for (e = first; e < end; e++) mean[e] += tegroup_impl_load_f64(desc->probabilities.dtype, row, e);
        }
    }
    for (e = 0; e < desc->experts; e++)
        loss += (double)tegroup_impl_load_int(desc->counts.dtype, desc->counts.data, e) / ((double)tokens * desc->k)
                * (mean[e] / (double)tokens);
    return desc->balance_coefficient * desc->experts * loss;
}

TEGROUP_API tegroup_status tegroup_router(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                          tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_router")
    tegroup_router_desc taken;
    int64_t tokens, t;
    int schemed;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_router_check(desc, error));
    schemed = tegroup_impl_router_schemed(desc);
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_router(desc, stream, error);
#endif

    tokens = desc->logits.rows; /* of each, the exponentials, and k looks at what is not chosen yet */
    tegroup_impl_fill_ints(&desc->counts, 0);
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
        tegroup_impl_router_team(desc->threads, tokens, desc->experts, 8 + desc->k * (desc->k + 1) / 2)))
    for (t = 0; t < tokens; t++) tegroup_impl_router_row(desc, t, schemed);
    if (schemed) tegroup_impl_scheme_losses(desc, tegroup_impl_router_real(desc) == TEGROUP_DTYPE_F64);
    else if (desc->balance_loss) *desc->balance_loss = tegroup_impl_router_balance(desc);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_router_backward_check(const tegroup_router_backward_desc *desc,
                                                                      tegroup_error *error) {
    static const char *const probabilities[5] = TEGROUP_IMPL_MATRIX_PATHS("probabilities"),
                             *const indices[5] = TEGROUP_IMPL_MATRIX_PATHS("indices"),
                             *const counts[5] = TEGROUP_IMPL_MATRIX_PATHS("counts"),
                             *const grad_weights[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_weights"),
                             *const grad_logits[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_logits"),
                             *const gradients[5] = TEGROUP_IMPL_MATRIX_PATHS("loss_gradients"),
                             *const logits[5] = TEGROUP_IMPL_MATRIX_PATHS("logits");
    const int64_t tokens = desc->probabilities.rows;
    const int schemed = tegroup_impl_backward_schemed(&desc->scheme, &desc->loss_gradients),
              z = desc->scheme.z_coefficient != 0;
    tegroup_impl_buffer buffers[7 + TEGROUP_IMPL_SCHEME_BUFFERS];
    int32_t count = TEGROUP_IMPL_SCHEME_BUFFERS;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_router_sizes(desc->experts, desc->k, desc->normalize, desc->balance_coefficient, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->probabilities, probabilities, -1, desc->experts, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->indices, indices, tokens, desc->k, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scheme(&desc->scheme, tokens, desc->experts, desc->k, desc->normalize, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scheme_memory(&desc->scheme, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_loss_scale(desc->loss_scale, error));
    TEGROUP_IMPL_RULE_REAL(!schemed || desc->balance_coefficient == 0, ERROR_COMBINATION, "balance_coefficient",
                           "must be 0 with a scheme or loss_gradients, which have it", 0, desc->balance_coefficient);
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->loss_gradients, gradients,
                                                 tegroup_impl_sequences(&desc->scheme, tokens), desc->experts + 1,
                                                 1u << TEGROUP_DTYPE_F64, error));
    TEGROUP_IMPL_RULE_AS(DTYPES, !z || desc->loss_gradients.dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, gradients[4],
                         "must be set with scheme.z_coefficient", 1u << TEGROUP_DTYPE_F64, 0);
    if (z)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_matrix(&desc->logits, logits, tokens, desc->experts, TEGROUP_IMPL_FLOATS, error));
    if (desc->balance_coefficient != 0)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_matrix(&desc->counts, counts, 1, desc->experts, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->grad_weights, grad_weights, tokens, desc->k,
                                               1u << desc->probabilities.dtype, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->grad_logits, grad_logits, tokens, desc->experts, TEGROUP_IMPL_FLOATS, error));
    tegroup_impl_scheme_buffers(&desc->scheme, tokens, buffers);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->grad_logits, grad_logits[0], NULL, 1);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->probabilities, NULL, "must not overlap probabilities", 0);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->indices, NULL, "must not overlap indices", 0);
    if (desc->balance_coefficient != 0)
        buffers[count++] = tegroup_impl_matrix_buffer(&desc->counts, NULL, "must not overlap counts", 0);
    if (z) buffers[count++] = tegroup_impl_matrix_buffer(&desc->logits, NULL, "must not overlap logits", 0);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->loss_gradients, NULL, "must not overlap loss_gradients", 0);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->grad_weights, NULL, "must not overlap grad_weights", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, count, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS, desc->space, error);
}

TEGROUP_API tegroup_status tegroup_router_backward(const tegroup_router_backward_desc *desc, struct CUstream_st *stream,
                                                   tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_router_backward")
    tegroup_router_backward_desc taken;
    int64_t tokens, t;
    int schemed, is_f64;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_router_backward_check(desc, error));
#if TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_router_backward(desc, stream, error);
#endif
    tokens = desc->probabilities.rows;
    schemed = tegroup_impl_backward_schemed(&desc->scheme, &desc->loss_gradients);
    is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
        tegroup_impl_router_team(desc->threads, tokens, desc->experts, 2 * desc->k)))
    for (t = 0; t < tokens; t++) {
        if (schemed && is_f64) tegroup_impl_scheme_grad_row_f64(desc, t);
        else if (schemed) tegroup_impl_scheme_grad_row_f32(desc, t);
        else if (is_f64) tegroup_impl_router_grad_row_f64(desc, t);
        else tegroup_impl_router_grad_row_f32(desc, t);
    }
    return TEGROUP_OK;
}
