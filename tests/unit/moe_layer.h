/* A random MoE layer in guarded memory, and what its output must be, by a reference in FP64 that knows nothing of groups. */
#ifndef TEGROUP_TESTS_MOE_LAYER_H
#define TEGROUP_TESTS_MOE_LAYER_H

#include "support.h"
#include "test.h"

enum { MOST_TOKENS = 24, MOST_EXPERTS = 7, MOST_WIDTH = 12 };
static int64_t layer_made_of = 1; /* columns are multiples of this */

/* A layer in one type, all of it in guarded memory. */
typedef struct layer {
    tegroup_moe_desc desc;
    tegroup_moe_plan plan;
    int64_t tokens, width, hidden, outputs;
    int32_t experts, k, biases;
    tegroup_dtype dtype;
    double *x, *logits, *w1, *w2, *b1, *b2, *dy; /* what the reference works with: exact values of what is stored */
    uint8_t *dropped; /* [tokens * k]: the reference leaves these choices out; NULL = none */
    double *given_weights; /* [tokens * k]: the routing of the caller's own; NULL = the router's */
    int64_t *given_indices;
} layer;

SUPPORT void *kept(layer *l, tegroup_dtype dtype, int64_t count, rng *r, double size, double **values) {
    void *data = guarded((size_t)count * size_of(dtype));
    (void)l;
    if (values != NULL) *values = (double *)calloc((size_t)count + 1, sizeof **values);
    for (int64_t i = 0; i < count; i++) {
        store(dtype, data, i, size * rng_normal(r));
        if (values != NULL) (*values)[i] = load(dtype, data, i);
    }
    return data;
}

SUPPORT tegroup_mlp_weights weights_of(layer *l, int64_t n, int64_t k, rng *r, double **w, double **b) {
    tegroup_mlp_weights weights;
    memset(&weights, 0, sizeof weights);
    weights.weight = tegroup_tensor_uniform(l->experts, n, k, l->dtype, kept(l, l->dtype, l->experts * n * k, r, 0.6, w));
    if (l->biases) weights.bias = tegroup_tensor_uniform(l->experts, 1, n, l->dtype, kept(l, l->dtype, l->experts * n, r, 0.3, b));
    return weights;
}

SUPPORT void with_gradient(layer *l, tegroup_mlp_weights *w, tegroup_dtype dtype) {
    const tegroup_shape *shape = &w->weight.shape;
    const int64_t n = shape->rows, k = shape->cols;
    w->main_grad = tegroup_tensor_uniform(l->experts, n, k, dtype, guarded((size_t)(l->experts * n * k) * size_of(dtype)));
    if (l->biases) w->bias_grad = tegroup_tensor_uniform(l->experts, 1, n, dtype, guarded((size_t)(l->experts * n) * size_of(dtype)));
}

/* The plan, for `spare` tokens more than there are, and the memory that it asks for. */
SUPPORT void layer_plan(layer *l, int64_t spare) {
    tegroup_moe_desc *d = &l->desc, planned = *d;
    tegroup_error error;
    tegroup_matrix *matrices[] = {&planned.tokens, &planned.output, &planned.grad_output, &planned.grad_tokens, &planned.grad_logits, &planned.router.logits,
                                  &planned.router.scheme.given_indices, &planned.given_weights, &planned.grad_weights};
    for (int i = 0; i < (int)(sizeof matrices / sizeof *matrices); i++)
        if (matrices[i]->dtype != TEGROUP_DTYPE_UNSET) matrices[i]->rows += spare;
    const tegroup_status status = tegroup_moe_plan_make(&planned, NULL, &l->plan, &error);
    if (status != TEGROUP_OK) {
        char text[400];
        tegroup_error_text(&error, text, sizeof text);
        TEST_FAIL("plan: %s\n", text);
    }
    d->saved_by_forward = l->plan.saved_by_forward_bytes > 0 ? guarded(l->plan.saved_by_forward_bytes) : NULL;
    d->saved_by_forward_bytes = l->plan.saved_by_forward_bytes;
    d->saved_by_dgrad = l->plan.saved_by_dgrad_bytes > 0 ? guarded(l->plan.saved_by_dgrad_bytes) : NULL;
    d->saved_by_dgrad_bytes = l->plan.saved_by_dgrad_bytes;
    d->experts.options.workspace = guarded(l->plan.workspace_bytes);
    d->experts.options.workspace_bytes = l->plan.workspace_bytes;
}
/* backward: 0 forward alone; 1 everything. The plan is for `spare` tokens more than there are. */
SUPPORT void layer_make(layer *l, rng *r, tegroup_dtype dtype, int backward, int64_t spare) {
    memset(l, 0, sizeof *l);
    l->dtype = dtype;
    l->tokens = rng_int(r, 0, MOST_TOKENS);
    l->experts = (int32_t)rng_int(r, 1, MOST_EXPERTS);
    l->k = (int32_t)rng_int(r, 1, l->experts < 3 ? l->experts : 3);
    l->width = layer_made_of * rng_int(r, 1, MOST_WIDTH), l->hidden = layer_made_of * rng_int(r, 1, MOST_WIDTH), l->outputs = layer_made_of * rng_int(r, 1, MOST_WIDTH);
    l->biases = rng_chance(r, 50);
    tegroup_moe_desc *d = &l->desc;
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    d->tokens = tegroup_matrix_of(kept(l, dtype, l->tokens * l->width, r, 1, &l->x), l->tokens, l->width, dtype);
    d->router.logits = tegroup_matrix_of(kept(l, dtype, l->tokens * l->experts, r, 1, &l->logits), l->tokens, l->experts, dtype);
    d->router.k = l->k;
    d->router.normalize = rng_chance(r, 50);
    if (rng_chance(r, 40)) d->router.scheme.score = TEGROUP_SCORE_SIGMOID;
    if (rng_chance(r, 30)) d->router.scheme.route_factor = 2.5;
    d->output = tegroup_matrix_of(guarded((size_t)(l->tokens * l->outputs) * size_of(dtype)), l->tokens, l->outputs, dtype);
    d->experts.activation = TEGROUP_ACTIVATION_SWIGLU;
    d->experts.interleaved = rng_chance(r, 50);
    d->experts.fc1 = weights_of(l, 2 * l->hidden, l->width, r, &l->w1, &l->b1);
    d->experts.fc2 = weights_of(l, l->outputs, l->hidden, r, &l->w2, &l->b2);
    if (dtype == TEGROUP_DTYPE_F64) d->experts.options.compute = TEGROUP_COMPUTE_F64;
    if (backward) {
        d->grad_output = tegroup_matrix_of(kept(l, dtype, l->tokens * l->outputs, r, 1, &l->dy), l->tokens, l->outputs, dtype);
        d->grad_tokens = tegroup_matrix_of(guarded((size_t)(l->tokens * l->width) * size_of(dtype)), l->tokens, l->width, dtype);
        d->grad_logits = tegroup_matrix_of(guarded((size_t)(l->tokens * l->experts) * size_of(dtype)), l->tokens, l->experts, dtype);
        d->experts.recompute = rng_chance(r, 50);
        with_gradient(l, &d->experts.fc1, dtype);
        with_gradient(l, &d->experts.fc2, dtype);
    }
    layer_plan(l, spare);
}
SUPPORT void layer_free(layer *l) {
    free(l->x), free(l->logits), free(l->w1), free(l->w2), free(l->b1), free(l->b2), free(l->dy), free(l->dropped);
    free(l->given_weights), free(l->given_indices);
}

/* The layer with a routing of the caller's own, of any weights, in which a token may have an expert twice, and one of ten indices is no expert. */
SUPPORT void give_routing(layer *l, rng *r, int64_t spare) {
    tegroup_moe_desc *d = &l->desc;
    const int64_t slots = l->tokens * l->k;
    const tegroup_dtype real = l->dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32,
                        index = rng_chance(r, 50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64;
    memset(&d->router, 0, sizeof d->router), memset(&d->grad_logits, 0, sizeof d->grad_logits);
    d->router.k = l->k;
    d->given_weights = tegroup_matrix_of(kept(l, real, slots, r, 1, &l->given_weights), l->tokens, l->k, real);
    d->router.scheme.given_indices = tegroup_matrix_of(guarded((size_t)slots * size_of(index)), l->tokens, l->k, index);
    l->given_indices = (int64_t *)calloc((size_t)slots + 1, sizeof *l->given_indices);
    for (int64_t s = 0; s < slots; s++) {
        const int64_t beyond[] = {-1, l->experts, INT32_MIN, INT32_MAX, index == TEGROUP_DTYPE_I64 ? INT64_MAX : -2};
        const int64_t e = rng_chance(r, 90) ? rng_int(r, 0, l->experts - 1) : beyond[rng_int(r, 0, 4)];
        l->given_indices[s] = e;
        if (index == TEGROUP_DTYPE_I32) ((int32_t *)d->router.scheme.given_indices.data)[s] = (int32_t)e;
        else ((int64_t *)d->router.scheme.given_indices.data)[s] = e;
    }
    if (d->grad_output.dtype != TEGROUP_DTYPE_UNSET) d->grad_weights = tegroup_matrix_of(guarded((size_t)slots * size_of(real)), l->tokens, l->k, real);
    layer_plan(l, spare);
}

SUPPORT void run(layer *l, tegroup_op op) {
    tegroup_error error;
    const tegroup_status status = op == TEGROUP_OP_FORWARD ? tegroup_moe_forward(&l->plan, &l->desc, NULL, &error)
                                  : op == TEGROUP_OP_DGRAD ? tegroup_moe_dgrad(&l->plan, &l->desc, NULL, &error)
                                                           : tegroup_moe_wgrad(&l->plan, &l->desc, NULL, &error);
    if (status != TEGROUP_OK) {
        char text[400];
        tegroup_error_text(&error, text, sizeof text);
        TEST_FAIL("op %d: %s\n", (int)op, text);
    }
}

/* ---- the reference: token by token, expert by expert ------------------------------------------------------------------- */

/* The k experts of token t, by its logits, lower ones first among equals; or those that are given, -1 where that is none. */
SUPPORT void choose(const layer *l, int64_t t, int32_t *chosen, double *weights) {
    const double *logits = l->logits + t * l->experts;
    const tegroup_router_scheme *scheme = &l->desc.router.scheme;
    double sum = 0, all = 0, most = -INFINITY;
    if (l->given_weights != NULL) {
        for (int32_t j = 0; j < l->k; j++) {
            const int64_t e = l->given_indices[t * l->k + j];
            chosen[j] = e >= 0 && e < l->experts ? (int32_t)e : -1;
            weights[j] = l->given_weights[t * l->k + j];
        }
        return;
    }
    for (int32_t e = 0; e < l->experts; e++) most = fmax(most, logits[e]);
    for (int32_t e = 0; e < l->experts; e++) all += exp(logits[e] - most);
    for (int32_t j = 0; j < l->k; j++) {
        int32_t best = -1;
        for (int32_t e = 0; e < l->experts; e++) {
            int taken = 0;
            for (int32_t i = 0; i < j; i++) taken |= chosen[i] == e;
            if (!taken && (best < 0 || logits[e] > logits[best])) best = e;
        }
        chosen[j] = best;
        weights[j] = scheme->score == TEGROUP_SCORE_SIGMOID ? 1 / (1 + exp(-logits[best])) : exp(logits[best] - most) / all;
        sum += weights[j];
    }
    for (int32_t j = 0; j < l->k; j++) {
        if (l->desc.router.normalize) weights[j] /= sum;
        if (scheme->route_factor > 0) weights[j] *= scheme->route_factor;
    }
}

/* One output of one token, and in *size the sum of magnitudes that a bound grows with. */
SUPPORT double reference(const layer *l, int64_t t, int64_t o, double *size) {
    int32_t chosen[3];
    double weights[3], y = 0;
    *size = 0;
    choose(l, t, chosen, weights);
    for (int32_t j = 0; j < l->k; j++) {
        const int32_t e = chosen[j];
        if (e < 0 || (l->dropped && l->dropped[t * l->k + j])) continue;
        double row = l->biases ? l->b2[e * l->outputs + o] * weights[j] : 0, row_size = fabs(row);
        for (int64_t h = 0; h < l->hidden; h++) {
            double sums[2], sizes[2];
            for (int part = 0; part < 2; part++) {
                const int64_t n = l->desc.experts.interleaved ? 2 * h + part : part * l->hidden + h;
                sums[part] = l->biases ? l->b1[e * 2 * l->hidden + n] : 0, sizes[part] = fabs(sums[part]);
                for (int64_t i = 0; i < l->width; i++) {
                    const double term = l->x[t * l->width + i] * l->w1[(e * 2 * l->hidden + n) * l->width + i];
                    sums[part] += term, sizes[part] += fabs(term);
                }
            }
            const double w = l->w2[(e * l->outputs + o) * l->hidden + h];
            row += weights[j] * sums[0] / (1 + exp(-sums[0])) * sums[1] * w;
            row_size += fabs(weights[j]) * (1 + sizes[0]) * (1 + sizes[1]) * fabs(w); /* sigmoid's slope is below 1 */
        }
        y += row, *size += row_size;
    }
    return y;
}

/* How far one output may be from the reference: what is stored is rounded, sums are of FP32, or of FP64 beside it. */
SUPPORT double output_bound(const layer *l, double size) {
    const double u = l->dtype == TEGROUP_DTYPE_F64 ? unit_roundoff(TEGROUP_DTYPE_F64) : SUPPORT_SUM_ROUNDING;
    return size * (8 * unit_roundoff(l->dtype) + (double)(l->width + l->hidden + 16) * u) + 2 * smallest_step(l->dtype);
}

/* The choices that find no room where rows by expert are few: experts in order have what is left, or each has `capacity`, and one
 * without room for all keeps those that come first, or by_weight those of the largest weights, of equal ones the first. Returns how many. *close is
 * the smallest difference between two weights of one expert that are not equal: rounding must not tell them apart. */
SUPPORT int64_t drop(layer *l, int64_t capacity, int each, int by_weight, double *close) {
    const int64_t slots = l->tokens * l->k;
    int32_t *expert = (int32_t *)calloc((size_t)slots + 3, sizeof *expert);
    double *weight = (double *)calloc((size_t)slots + 3, sizeof *weight);
    int64_t left = capacity, dropped = 0;
    l->dropped = (uint8_t *)calloc((size_t)slots + 1, 1);
    *close = INFINITY;
    for (int64_t t = 0; t < l->tokens; t++) choose(l, t, expert + t * l->k, weight + t * l->k);
    for (int32_t e = 0; e < l->experts; e++) {
        int64_t rows = 0;
        for (int64_t s = 0; s < slots; s++) {
            int64_t before = 0; /* choices of this expert that get their row sooner */
            if (expert[s] != e) continue;
            rows++;
            for (int64_t other = 0; other < slots; other++) {
                if (other == s || expert[other] != e) continue;
                before += by_weight && weight[other] != weight[s] ? weight[other] > weight[s] : other < s;
                if (weight[other] != weight[s]) *close = fmin(*close, fabs(weight[other] - weight[s]));
            }
            dropped += l->dropped[s] = before >= left;
        }
        left = each ? capacity : left > rows ? left - rows : 0;
    }
    free(expert), free(weight);
    return dropped;
}

#endif
