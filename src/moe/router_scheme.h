/* ---- Router schemes ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "moe/routing_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/apart.h"
#include "cpu/real.h"
#include "core/activation_formulas.h"
#include "moe/count.h"

/* The most experts that a token can choose. */
#define TEGROUP_IMPL_CHOICES 64

/* The most groups of experts. */
#define TEGROUP_IMPL_EXPERT_GROUPS 64

/* Is there nothing but softmax top-k? */
TEGROUP_IMPL_STATIC int tegroup_impl_scheme_plain(const tegroup_router_scheme *s) {
    return s->score == TEGROUP_SCORE_SOFTMAX && s->n_group == 0 && s->bias.dtype == TEGROUP_DTYPE_UNSET
           && s->normalize_epsilon == 0 && (s->route_factor == 0 || s->route_factor == 1)
           && s->given_indices.dtype == TEGROUP_DTYPE_UNSET && !s->token_mask && !s->valid_tokens
           && s->sequence_tokens == 0 && s->z_coefficient == 0;
}

/* Whether a backward call is not that of a plain softmax top-k: it has a scheme, or gradients of losses. */
TEGROUP_IMPL_STATIC int tegroup_impl_backward_schemed(const tegroup_router_scheme *scheme,
                                                      const tegroup_matrix *loss_gradients) {
    return !tegroup_impl_scheme_plain(scheme) || loss_gradients->dtype != TEGROUP_DTYPE_UNSET;
}
TEGROUP_IMPL_STATIC int tegroup_impl_router_schemed(const tegroup_router_desc *desc) {
    return tegroup_impl_backward_schemed(&desc->scheme, &desc->loss_gradients) || desc->z_loss;
}

/* Sequences that a loss is a mean over. */
TEGROUP_IMPL_HD int64_t tegroup_impl_sequences(const tegroup_router_scheme *s, int64_t tokens) {
    return s->sequence_tokens != 0 ? tokens / s->sequence_tokens : 1;
}

TEGROUP_IMPL_HD int64_t tegroup_impl_sequence_length(const tegroup_router_scheme *s, int64_t tokens) {
    return s->sequence_tokens != 0 ? s->sequence_tokens : tokens;
}

TEGROUP_IMPL_HD int tegroup_impl_token_there(const tegroup_router_scheme *s, int64_t token) {
    return (!s->valid_tokens || token < *s->valid_tokens) && (!s->token_mask || s->token_mask[token] != 0);
}

/* A token's expert, or -1. */
TEGROUP_IMPL_HD int32_t tegroup_impl_index(const tegroup_matrix *indices, int64_t token, int32_t choice,
                                           int32_t experts) {
    const int64_t index = tegroup_impl_load_int(indices->dtype, tegroup_impl_matrix_row(indices, token), choice);
    return tegroup_impl_within(index, experts) ? (int32_t)index : -1;
}

/* The slope of a sequence's balance loss in the sum of an expert's shares. */
TEGROUP_IMPL_HD double tegroup_impl_balance_slope(const tegroup_router_desc *desc, int64_t count, int64_t tokens) {
    if (tokens == 0) return 0;
    return desc->balance_coefficient * desc->experts * ((double)count / ((double)tokens * desc->k)) / (double)tokens;
}
TEGROUP_IMPL_HD double tegroup_impl_z_mean(const tegroup_router_desc *desc, double sum, int64_t tokens) {
    return tokens == 0 ? 0 : desc->scheme.z_coefficient * sum / (double)tokens;
}

/* The row of loss_gradients that a token's sequence has; NULL without. */
TEGROUP_IMPL_HD const double *tegroup_impl_loss_slopes(const tegroup_router_backward_desc *desc, int64_t token) {
    const int64_t length = desc->scheme.sequence_tokens;
    if (desc->loss_gradients.dtype == TEGROUP_DTYPE_UNSET) return NULL;
    return (const double *)(const void *)tegroup_impl_matrix_row(&desc->loss_gradients,
                                                                 length != 0 ? token / length : 0);
}

/* A number's place among all numbers: the larger one has the larger place, both zeros have one, NaN has 1, below every
 * number. 0 is for what cannot be taken. Integers, so that no compiler's option for fast arithmetic changes an order.
 */
typedef uint32_t tegroup_impl_key_f32;
typedef uint64_t tegroup_impl_key_f64;
TEGROUP_IMPL_HD tegroup_impl_key_f32 tegroup_impl_key_of_f32(float x) {
    const uint32_t u = tegroup_impl_bits_of_f32(x), magnitude = u & 0x7fffffffu,
                   place = magnitude == 0 || !(u >> 31) ? magnitude | 0x80000000u : ~u;
    return magnitude > 0x7f800000u ? 1 : place;
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_key(tegroup_impl_key_f32 key) {
    if (key <= 1) return tegroup_impl_f32_of_bits(0x7fffffffu);
    return tegroup_impl_f32_of_bits(key >> 31 ? key & 0x7fffffffu : ~key);
}
TEGROUP_IMPL_HD tegroup_impl_key_f64 tegroup_impl_key_of_f64(double x) {
    const uint64_t sign = UINT64_C(1) << 63;
    uint64_t u, magnitude;
    memcpy(&u, &x, sizeof u);
    magnitude = u & ~sign;
    if (magnitude > UINT64_C(0x7ff0000000000000)) return 1;
    return magnitude == 0 || !(u & sign) ? magnitude | sign : ~u;
}
TEGROUP_IMPL_HD double tegroup_impl_f64_of_key(tegroup_impl_key_f64 key) {
    const uint64_t sign = UINT64_C(1) << 63, u = key <= 1 ? ~sign : key & sign ? key & ~sign : ~key;
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

TEGROUP_IMPL_HD float tegroup_impl_sqrt_f32(float x) {
#if defined(__CUDA_ARCH__)
    return __fsqrt_rn(x);
#else
    return sqrtf(x);
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_sqrt_f64(double x) { return sqrt(x); }
TEGROUP_IMPL_HD float tegroup_impl_log1p_f32(float x) { return log1pf(x); }
TEGROUP_IMPL_HD double tegroup_impl_log1p_f64(double x) { return log1p(x); }
TEGROUP_IMPL_HD float tegroup_impl_expm1_f32(float x) { return expm1f(x); }
TEGROUP_IMPL_HD double tegroup_impl_expm1_f64(double x) { return expm1(x); }

/* @each-real */
/* The score of a logit by itself; softmax has none. */
TEGROUP_IMPL_HD REAL tegroup_impl_score_FSUF(tegroup_score score, REAL x) {
    REAL tail;
    if (score == TEGROUP_SCORE_SIGMOID) return tegroup_impl_sigmoid_FSUF(x, 0);
    /* There log(1 + exp(x)) rounds to exp(x), and exp(x / 2) is a normal number where exp(x) no longer is. */
    if (x < (REAL)-80) return tegroup_impl_exp_FSUF(x / 2);
    tail = tegroup_impl_log1p_FSUF(tegroup_impl_exp_FSUF(x > 0 ? -x : x)); /* log(1 + exp(x)) = max(x, 0) + tail */
    return tegroup_impl_sqrt_FSUF(x > 0 ? x + tail : tail);
}

/* The gradient of a logit, from that of the logarithm of its score s: gradients of scores themselves overflow where
 * scores are tiny. The derivative of log(s) is 1 - s for a sigmoid; for s = sqrt(log(1 + exp(x))) it is
 * (1 - exp(-s^2)) / (2 s^2), 1/2 near 0. An infinite score stays where it is. */
TEGROUP_IMPL_HD REAL tegroup_impl_score_grad_FSUF(tegroup_score score, REAL s, REAL grad_log) {
    const REAL square = s * s;
    if (score == TEGROUP_SCORE_SIGMOID) return grad_log * ((REAL)1 - s);
    if (s > (REAL)TEGROUP_IMPL_LARGEST_FSUF) return grad_log == grad_log ? (REAL)0 : grad_log;
    return grad_log * (square < (REAL)1e-18 ? (REAL)0.5 : -tegroup_impl_expm1_FSUF(-square) / ((REAL)2 * square));
}

/* The best of every step-th expert from the first on, or -1 where none can be taken. logits NULL: equal keys are told
 * apart by number alone. Where softmax is NaN they are, too. */
TEGROUP_IMPL_HD int32_t tegroup_impl_best_FSUF(const tegroup_impl_key_FSUF *keys, tegroup_dtype dtype,
                                               const void *logits, int32_t first, int32_t step, int32_t experts) {
    tegroup_impl_key_FSUF most = 0;
    int32_t best = -1, e;
    for (e = first; e < experts; e += step) {
        const tegroup_impl_key_FSUF key = keys[e];
        if (key < most || key == 0) continue;
        if (key == most
            && (!logits || key == 1
                || tegroup_impl_key_of_FSUF(tegroup_impl_load_FSUF(dtype, logits, e))
                       <= tegroup_impl_key_of_FSUF(tegroup_impl_load_FSUF(dtype, logits, best))))
            continue;
        most = key;
        best = e;
    }
    return best;
}

/* What a group of so many experts is chosen by, from its two largest keys. */
TEGROUP_IMPL_HD tegroup_impl_key_FSUF tegroup_impl_group_key_FSUF(tegroup_group_score score, int32_t size,
                                                                  tegroup_impl_key_FSUF first,
                                                                  tegroup_impl_key_FSUF second) {
    if (score == TEGROUP_GROUP_SCORE_MAX || size == 1) return first;
    return tegroup_impl_key_of_FSUF(tegroup_impl_FSUF_of_key(first) + tegroup_impl_FSUF_of_key(second));
}
/* Keeps the two largest of what came so far. */
TEGROUP_IMPL_HD void tegroup_impl_two_largest_FSUF(tegroup_impl_key_FSUF key, tegroup_impl_key_FSUF *first,
                                                   tegroup_impl_key_FSUF *second) {
    const tegroup_impl_key_FSUF smaller = key < *first ? key : *first;
    *second = smaller > *second ? smaller : *second;
    *first = key > *first ? key : *first;
}
TEGROUP_IMPL_HD int tegroup_impl_group_stays_FSUF(const tegroup_router_scheme *s, const tegroup_impl_key_FSUF *groups,
                                                  int32_t g) {
    int32_t better = 0, h;
    for (h = 0; h < s->n_group; h++) better += (h < g && groups[h] == groups[g]) || groups[h] > groups[g];
    return better < s->topk_group;
}

/* A chosen expert's weight, from what the token's scores are divided by. */
TEGROUP_IMPL_HD REAL tegroup_impl_scheme_weight_FSUF(const tegroup_router_scheme *s, REAL score, REAL divisor) {
    const REAL factor = s->route_factor != 0 ? (REAL)s->route_factor : (REAL)1;
    return divisor == 0 ? (REAL)0 : score / divisor * factor;
}
/* A row's largest logit, the sum of exp(logit - largest), and, unless `terms` is NULL, what it is the sum of. */
TEGROUP_IMPL_STATIC REAL tegroup_impl_exponentials_FSUF(tegroup_dtype dtype, const void *logits, int32_t experts,
                                                        REAL *largest, REAL *terms) {
    REAL sum = 0;
    int32_t e;
    *largest = tegroup_impl_load_FSUF(dtype, logits, 0);
    for (e = 1; e < experts; e++) {
        const REAL x = tegroup_impl_load_FSUF(dtype, logits, e);
        if (x > *largest) *largest = x;
    }
    for (e = 0; e < experts; e++) {
        const REAL term = tegroup_impl_exp_FSUF(tegroup_impl_load_FSUF(dtype, logits, e) - *largest);
        sum += term;
        if (terms) terms[e] = term;
    }
    return sum;
}

TEGROUP_IMPL_STATIC void tegroup_impl_scores_FSUF(const tegroup_router_desc *desc, const void *logits, REAL *scores) {
    const tegroup_dtype dtype = desc->logits.dtype;
    REAL largest, sum;
    int32_t e;
    if (desc->scheme.score != TEGROUP_SCORE_SOFTMAX) {
        for (e = 0; e < desc->experts; e++)
            scores[e] = tegroup_impl_score_FSUF(desc->scheme.score, tegroup_impl_load_FSUF(dtype, logits, e));
        return;
    }
    sum = tegroup_impl_exponentials_FSUF(dtype, logits, desc->experts, &largest, scores);
    for (e = 0; e < desc->experts; e++) scores[e] /= sum;
}

/* Fills up a token's choices: each that is -1 becomes the best expert that is not among them. */
TEGROUP_IMPL_STATIC void tegroup_impl_choose_FSUF(const tegroup_router_scheme *s, int32_t experts, int32_t k,
                                                  const REAL *scores, tegroup_dtype dtype, const void *logits,
                                                  int32_t *indices) {
    tegroup_impl_key_FSUF keys[TEGROUP_MAX_GROUPS], groups[TEGROUP_IMPL_EXPERT_GROUPS];
    const int32_t size = s->n_group != 0 ? experts / s->n_group : 0;
    int32_t e, g, j;
    for (e = 0; e < experts; e++)
        keys[e] = tegroup_impl_key_of_FSUF(s->bias.dtype != TEGROUP_DTYPE_UNSET
                                               ? scores[e] + tegroup_impl_load_FSUF(s->bias.dtype, s->bias.data, e)
                                               : scores[e]);
    for (g = 0; g < s->n_group; g++) {
        tegroup_impl_key_FSUF first = 0, second = 0;
        for (e = g * size; e < (g + 1) * size; e++) tegroup_impl_two_largest_FSUF(keys[e], &first, &second);
        groups[g] = tegroup_impl_group_key_FSUF(s->group_score, size, first, second);
    }
    for (g = 0; g < s->n_group; g++)
        if (!tegroup_impl_group_stays_FSUF(s, groups, g)) memset(keys + g * size, 0, (size_t)size * sizeof *keys);
    for (j = 0; j < k; j++)
        if (indices[j] >= 0) keys[indices[j]] = 0;
    for (j = 0; j < k; j++) {
        if (indices[j] >= 0) continue;
        indices[j] = tegroup_impl_best_FSUF(keys, dtype, logits, 0, 1, experts);
        if (indices[j] >= 0) keys[indices[j]] = 0;
    }
}

/* One token: scores, its experts and their weights. */
TEGROUP_IMPL_STATIC void tegroup_impl_scheme_row_FSUF(const tegroup_router_desc *desc, int64_t token, REAL *scores) {
    const tegroup_router_scheme *s = &desc->scheme;
    const void *logits = tegroup_impl_matrix_row(&desc->logits, token);
    const int there = tegroup_impl_token_there(s, token), given = s->given_indices.dtype != TEGROUP_DTYPE_UNSET;
    int32_t indices[TEGROUP_IMPL_CHOICES], e, j;
    REAL divisor = 0;
    for (j = 0; j < desc->k; j++)
        indices[j] = there && given ? tegroup_impl_index(&s->given_indices, token, j, desc->experts) : -1;
    if (there) {
        tegroup_impl_scores_FSUF(desc, logits, scores);
        if (!given) tegroup_impl_choose_FSUF(s, desc->experts, desc->k, scores, desc->logits.dtype, logits, indices);
    } else
        for (e = 0; e < desc->experts; e++) scores[e] = 0;
    for (j = 0; j < desc->k; j++)
        if (indices[j] >= 0) divisor += scores[indices[j]];
    divisor = desc->normalize ? divisor + (REAL)s->normalize_epsilon : (REAL)1;
    for (j = 0; j < desc->k; j++) {
        tegroup_impl_store_int(desc->indices.dtype, tegroup_impl_matrix_row(&desc->indices, token), j, indices[j]);
        if (indices[j] >= 0) tegroup_impl_count_one(&desc->counts, indices[j]);
        if (desc->weights.dtype != TEGROUP_DTYPE_UNSET)
            tegroup_impl_store_FSUF(desc->weights.dtype, tegroup_impl_matrix_row(&desc->weights, token), j,
                                    indices[j] < 0 ? (REAL)0
                                                   : tegroup_impl_scheme_weight_FSUF(s, scores[indices[j]], divisor));
    }
}

/* The gradients of the logarithms of a token's scores by what was chosen, on top of what is there. For weights w that
 * are normalized and gradients g of theirs, that of a chosen score is w times (g less the sum of all w g). A choice
 * that was dropped after routing is still part of what the weights were divided by: it is chosen again, or is the one
 * that was given, and its weight went nowhere. */
TEGROUP_IMPL_STATIC void tegroup_impl_scheme_choices_FSUF(const tegroup_router_backward_desc *desc, int64_t token,
                                                          const REAL *scores, REAL *grads) {
    const tegroup_router_scheme *s = &desc->scheme;
    const REAL *grad_weights = (const REAL *)(const void *)tegroup_impl_matrix_row(&desc->grad_weights, token);
    int32_t indices[TEGROUP_IMPL_CHOICES], listed[TEGROUP_IMPL_CHOICES], kept = 0, j;
    REAL divisor = 0, mean = 0;
    for (j = 0; j < desc->k; j++) {
        indices[j] = listed[j] = tegroup_impl_index(&desc->indices, token, j, desc->experts);
        kept += listed[j] >= 0;
    }
    if (kept == 0) return;
    if (desc->normalize && kept < desc->k && s->given_indices.dtype == TEGROUP_DTYPE_UNSET)
        tegroup_impl_choose_FSUF(s, desc->experts, desc->k, scores, TEGROUP_DTYPE_UNSET, NULL, indices);
    else if (desc->normalize)
        for (j = 0; j < desc->k; j++)
            if (indices[j] < 0) indices[j] = tegroup_impl_index(&s->given_indices, token, j, desc->experts);
    for (j = 0; j < desc->k; j++)
        if (indices[j] >= 0) divisor += scores[indices[j]];
    divisor = desc->normalize ? divisor + (REAL)s->normalize_epsilon : (REAL)1;
    for (j = 0; desc->normalize && divisor != 0 && j < desc->k; j++)
        if (listed[j] >= 0) mean += grad_weights[j] * (scores[listed[j]] / divisor);
    for (j = 0; j < desc->k; j++)
        if (indices[j] >= 0)
            grads[indices[j]] += tegroup_impl_scheme_weight_FSUF(s, scores[indices[j]], divisor)
                                 * ((listed[j] >= 0 ? grad_weights[j] : (REAL)0) - mean);
}

/* The gradients of the logarithms of a token's scores by the balance loss, which has the slope `by` times slopes[e] in
 * an expert's share. A softmax's scores are shares themselves, others are divided by their sum. */
TEGROUP_IMPL_STATIC void tegroup_impl_scheme_shares_FSUF(const tegroup_router_backward_desc *desc, const REAL *scores,
                                                         const double *slopes, REAL by, REAL *grads) {
    const int softmax = desc->scheme.score == TEGROUP_SCORE_SOFTMAX;
    REAL sum = 0, mean = 0;
    int32_t e;
    for (e = 0; !softmax && e < desc->experts; e++) sum += scores[e];
    if (softmax || sum == 0) sum = 1;
    for (e = 0; !softmax && e < desc->experts; e++) mean += by * (REAL)slopes[e] * (scores[e] / sum);
    for (e = 0; e < desc->experts; e++) grads[e] = scores[e] / sum * (by * (REAL)slopes[e] - mean);
}

/* One token's logit gradient: the balance loss's by way of the scores' shares, what was chosen, through the scores to
 * the logits, and there the z-loss's. */
TEGROUP_IMPL_STATIC void tegroup_impl_scheme_grad_row_FSUF(const tegroup_router_backward_desc *desc, int64_t token) {
    const tegroup_router_scheme *s = &desc->scheme;
    const int softmax = s->score == TEGROUP_SCORE_SOFTMAX, there = tegroup_impl_token_there(s, token);
    const void *logits = s->z_coefficient != 0 ? tegroup_impl_matrix_row(&desc->logits, token) : NULL;
    const REAL *scores = (const REAL *)(const void *)tegroup_impl_matrix_row(&desc->probabilities, token);
    const double *slopes = tegroup_impl_loss_slopes(desc, token);
    const REAL by = desc->loss_scale != 0 ? (REAL)desc->loss_scale : (REAL)1;
    REAL grads[TEGROUP_MAX_GROUPS], all = 0, sum, largest = 0, z = 0;
    int32_t e;
    for (e = 0; e < desc->experts; e++) grads[e] = 0;
    if (there && slopes) tegroup_impl_scheme_shares_FSUF(desc, scores, slopes, by, grads);
    if (there) tegroup_impl_scheme_choices_FSUF(desc, token, scores, grads);
    for (e = 0; softmax && e < desc->experts; e++) all += grads[e];
    if (there && logits) {
        sum = tegroup_impl_exponentials_FSUF(desc->logits.dtype, logits, desc->experts, &largest, NULL);
        z = by * (REAL)slopes[desc->experts] * (REAL)((double)largest + log((double)sum)) / sum;
    }
    for (e = 0; e < desc->experts; e++) {
        REAL grad = !there    ? (REAL)0
                    : softmax ? grads[e] - scores[e] * all
                              : tegroup_impl_score_grad_FSUF(s->score, scores[e], grads[e]);
        if (there && logits)
            grad += z * tegroup_impl_exp_FSUF(tegroup_impl_load_FSUF(desc->logits.dtype, logits, e) - largest);
        tegroup_impl_store_FSUF(desc->grad_logits.dtype, tegroup_impl_matrix_row(&desc->grad_logits, token), e, grad);
    }
}

/* The logarithm of a row's sum of exponentials. */
TEGROUP_IMPL_STATIC double tegroup_impl_logsumexp_FSUF(const tegroup_matrix *logits, int64_t token) {
    REAL largest, sum = tegroup_impl_exponentials_FSUF(logits->dtype, tegroup_impl_matrix_row(logits, token),
                                                       (int32_t)logits->cols, &largest, NULL);
    return (double)largest + log((double)sum);
}
/* @end */

/* One sequence's part of the balance loss: experts times the sum over experts of share of assignments times mean share
 * of scores. slopes: of each expert's shares, as loss_gradients has them; NULL = not wanted. */
TEGROUP_IMPL_STATIC double tegroup_impl_sequence_loss(const tegroup_router_desc *desc, int64_t sequence,
                                                      double *slopes) {
    const int64_t sequences = tegroup_impl_sequences(&desc->scheme, desc->logits.rows),
                  length = tegroup_impl_sequence_length(&desc->scheme, desc->logits.rows);
    const int shares = desc->balance_loss != NULL, softmax = desc->scheme.score == TEGROUP_SCORE_SOFTMAX;
    int64_t counts[TEGROUP_MAX_GROUPS], tokens = 0, t;
    double mean[TEGROUP_MAX_GROUPS], sum, loss = 0;
    int32_t e, j;
    for (e = 0; e < desc->experts; e++) counts[e] = 0, mean[e] = 0;
    for (t = sequence * length; t < (sequence + 1) * length; t++) {
        const void *row = shares ? tegroup_impl_matrix_row(&desc->probabilities, t) : NULL;
        if (!tegroup_impl_token_there(&desc->scheme, t)) continue;
        tokens++;
        for (j = 0; j < desc->k; j++) {
            const int32_t index = tegroup_impl_index(&desc->indices, t, j, desc->experts);
            if (index >= 0) counts[index]++;
        }
        for (sum = 0, e = 0; shares && e < desc->experts; e++)
            sum += tegroup_impl_load_f64(desc->probabilities.dtype, row, e);
        if (softmax || sum == 0) sum = 1;
        for (e = 0; shares && e < desc->experts; e++)
            mean[e] += tegroup_impl_load_f64(desc->probabilities.dtype, row, e) / sum;
    }
    for (e = 0; e < desc->experts; e++) {
        const double slope = tegroup_impl_balance_slope(desc, counts[e], tokens);
        loss += slope * mean[e];
        if (slopes) slopes[e] = slope / (double)sequences;
    }
    return loss;
}

/* The losses of a scheme, from what its rows have written. Sums are in the order of experts and tokens. */
TEGROUP_IMPL_STATIC void tegroup_impl_scheme_losses(const tegroup_router_desc *desc, int is_f64) {
    const int64_t sequences = tegroup_impl_sequences(&desc->scheme, desc->logits.rows);
    const int wants_slopes = desc->loss_gradients.dtype != TEGROUP_DTYPE_UNSET;
    double balance = 0, z = 0, loss;
    int64_t tokens = 0, q, t;
    for (q = 0; (desc->balance_loss || wants_slopes) && q < sequences; q++) {
        double *slopes = wants_slopes ? (double *)(void *)tegroup_impl_matrix_row(&desc->loss_gradients, q) : NULL;
        balance += tegroup_impl_sequence_loss(desc, q, slopes);
    }
    if (desc->balance_loss) *desc->balance_loss = sequences > 0 ? balance / (double)sequences : 0;
    for (t = 0; t < desc->logits.rows; t++) {
        if (!tegroup_impl_token_there(&desc->scheme, t)) continue;
        tokens++;
        if (!desc->z_loss) continue;
        loss = is_f64 ? tegroup_impl_logsumexp_f64(&desc->logits, t) : tegroup_impl_logsumexp_f32(&desc->logits, t);
        z += loss * loss;
    }
    if (desc->z_loss) *desc->z_loss = tegroup_impl_z_mean(desc, z, tokens);
    for (q = 0; wants_slopes && q < sequences; q++)
        ((double *)(void *)tegroup_impl_matrix_row(&desc->loss_gradients, q))[desc->experts] =
            tegroup_impl_z_mean(desc, 2, tokens);
}

/* What multiplies a loss. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_coefficient(double coefficient, const char *field,
                                                                  tegroup_error *error) {
    TEGROUP_IMPL_RULE_REAL(coefficient >= 0 && coefficient <= TEGROUP_IMPL_LARGEST_f64, ERROR_VALUE, field,
                           "must be finite and not negative", 0, coefficient);
    return TEGROUP_OK;
}
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_loss_scale(double scale, tegroup_error *error) {
    TEGROUP_IMPL_RULE_REAL(scale >= -TEGROUP_IMPL_LARGEST_f64 && scale <= TEGROUP_IMPL_LARGEST_f64, ERROR_VALUE,
                           "loss_scale", "must be finite", TEGROUP_IMPL_LARGEST_f64, scale);
    return TEGROUP_OK;
}

/* All but its memory. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_scheme(const tegroup_router_scheme *s, int64_t tokens,
                                                             int32_t experts, int32_t k, int32_t normalize,
                                                             tegroup_error *error) {
    static const char *const bias[5] = TEGROUP_IMPL_MATRIX_PATHS("scheme.bias"), *const given[5] =
                                                                                     TEGROUP_IMPL_MATRIX_PATHS(
                                                                                         "scheme.given_indices");
    const int chooses = s->given_indices.dtype == TEGROUP_DTYPE_UNSET;
    TEGROUP_IMPL_RULE_ENUM(s->score, TEGROUP_SCORE_SQRT_SOFTPLUS, "scheme.score", "must be a tegroup_score");
    TEGROUP_IMPL_RULE(s->n_group == 0 || (s->n_group >= 2 && s->n_group <= TEGROUP_IMPL_EXPERT_GROUPS), ERROR_VALUE,
                      "scheme.n_group", "must be 0 or 2 to 64", TEGROUP_IMPL_EXPERT_GROUPS, s->n_group);
    TEGROUP_IMPL_RULE(s->n_group == 0 || experts % s->n_group == 0, ERROR_VALUE, "scheme.n_group",
                      "must divide experts", experts, s->n_group);
    TEGROUP_IMPL_RULE(s->topk_group >= (s->n_group != 0) && s->topk_group <= s->n_group, ERROR_VALUE,
                      "scheme.topk_group", "must be 1 to n_group, 0 without", s->n_group, s->topk_group);
    TEGROUP_IMPL_RULE(s->n_group == 0 || k <= s->topk_group * (experts / s->n_group), ERROR_VALUE, "scheme.topk_group",
                      "must have at least k experts", k, s->topk_group * (experts / s->n_group));
    TEGROUP_IMPL_RULE_ENUM(s->group_score, TEGROUP_GROUP_SCORE_MAX, "scheme.group_score",
                           "must be a tegroup_group_score");
    TEGROUP_IMPL_RULE(s->n_group != 0 || s->group_score == TEGROUP_GROUP_SCORE_TOP2, ERROR_COMBINATION,
                      "scheme.group_score", "must be 0 without n_group", 0, s->group_score);
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional_shape(&s->bias, bias, 1, experts, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_RULE_REAL(s->normalize_epsilon >= 0 && s->normalize_epsilon <= TEGROUP_IMPL_LARGEST_f32, ERROR_VALUE,
                           "scheme.normalize_epsilon", "must be 0 to the largest float", TEGROUP_IMPL_LARGEST_f32,
                           s->normalize_epsilon);
    TEGROUP_IMPL_RULE_REAL(normalize || s->normalize_epsilon == 0, ERROR_COMBINATION, "scheme.normalize_epsilon",
                           "must be 0 without normalize", 0, s->normalize_epsilon);
    TEGROUP_IMPL_RULE_REAL(s->route_factor >= 0 && s->route_factor <= TEGROUP_IMPL_LARGEST_f32, ERROR_VALUE,
                           "scheme.route_factor", "must be 0 to the largest float", TEGROUP_IMPL_LARGEST_f32,
                           s->route_factor);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional_shape(&s->given_indices, given, tokens, k, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_RULE_AS(DTYPE, chooses || s->bias.dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION, "scheme.bias.dtype",
                         "must be UNSET with given_indices", TEGROUP_DTYPE_UNSET, s->bias.dtype);
    TEGROUP_IMPL_RULE(chooses || s->n_group == 0, ERROR_COMBINATION, "scheme.n_group", "must be 0 with given_indices",
                      0, s->n_group);
    TEGROUP_IMPL_RULE(s->sequence_tokens >= 0, ERROR_VALUE, "scheme.sequence_tokens", "must not be negative", 0,
                      s->sequence_tokens);
    TEGROUP_IMPL_RULE(s->sequence_tokens == 0 || tokens % s->sequence_tokens == 0, ERROR_SHAPE,
                      "scheme.sequence_tokens", "must divide the number of tokens", tokens, s->sequence_tokens);
    return tegroup_impl_check_coefficient(s->z_coefficient, "scheme.z_coefficient", error);
}
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_scheme_memory(const tegroup_router_scheme *s,
                                                                    tegroup_error *error) {
    static const char *const bias[5] = TEGROUP_IMPL_MATRIX_PATHS("scheme.bias"), *const given[5] =
                                                                                     TEGROUP_IMPL_MATRIX_PATHS(
                                                                                         "scheme.given_indices");
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix_memory(&s->bias, bias, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix_memory(&s->given_indices, given, error));
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(s->valid_tokens, 8), ERROR_ALIGNMENT, "scheme.valid_tokens",
                      "must be aligned to its element", 8, (uintptr_t)s->valid_tokens % 8);
    return TEGROUP_OK;
}

/* Sums over tokens are made of this many runs of them, added up in order: losses need no atomics. */
#define TEGROUP_IMPL_ROUTER_RUNS 64

/* Runs of each sequence: all sequences have about as many as one alone. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sequence_runs(int64_t sequences) {
    return sequences < TEGROUP_IMPL_ROUTER_RUNS ? (int32_t)(TEGROUP_IMPL_ROUTER_RUNS / tegroup_impl_max(sequences, 1))
                                                : 1;
}

/* What the kernels of a scheme's losses hand on, in the order of these items. */
enum {
    TEGROUP_IMPL_LOSS_TOTALS,
    TEGROUP_IMPL_LOSS_LOGSUMEXP,
    TEGROUP_IMPL_LOSS_COUNTS,
    TEGROUP_IMPL_LOSS_SUMS,
    TEGROUP_IMPL_LOSS_SEQUENCES
};
TEGROUP_IMPL_STATIC void tegroup_impl_scheme_layout(const tegroup_router_desc *desc, tegroup_layout *layout) {
    const int64_t tokens = desc->logits.rows, sequences = tegroup_impl_sequences(&desc->scheme, tokens),
                  numbers = tegroup_impl_mul(sequences, 8);
    if (!desc->balance_loss && !desc->z_loss && desc->loss_gradients.dtype == TEGROUP_DTYPE_UNSET) return;
    tegroup_impl_layout_add(layout, "sums of scores of tokens", 8 * tokens);
    tegroup_impl_layout_add(layout, "logsumexp of tokens", 8 * tokens);
    tegroup_impl_layout_add(layout, "counts of sequences", tegroup_impl_mul(numbers, desc->experts));
    /* The most runs that so many sequences or fewer have together: a call with fewer tokens must not need more. */
    tegroup_impl_layout_add(
        layout, "sums of shares",
        tegroup_impl_mul(tegroup_impl_max(numbers, 8 * TEGROUP_IMPL_ROUTER_RUNS), (int64_t)desc->experts + 1));
    tegroup_impl_layout_add(layout, "losses and tokens of sequences", tegroup_impl_mul(numbers, 3));
}

/* What a scheme reads. */
enum { TEGROUP_IMPL_SCHEME_BUFFERS = 4 };
TEGROUP_IMPL_STATIC void tegroup_impl_scheme_buffers(const tegroup_router_scheme *s, int64_t tokens,
                                                     tegroup_impl_buffer *buffers) {
    buffers[0] = tegroup_impl_matrix_buffer(&s->bias, NULL, "must not overlap scheme.bias", 0);
    buffers[1] = tegroup_impl_matrix_buffer(&s->given_indices, NULL, "must not overlap scheme.given_indices", 0);
    buffers[2] = tegroup_impl_buffer_of(s->token_mask, tokens, NULL, "must not overlap scheme.token_mask", 0);
    buffers[3] = tegroup_impl_buffer_of(s->valid_tokens, 8, NULL, "must not overlap scheme.valid_tokens", 0);
}
