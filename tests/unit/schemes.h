/* What a router with a scheme must give, from the models' own formulas: scores of logits in long double, everything else from the
 * scores that were written, by sorting. Shared by the tests of the CPU and of the GPU; at, set, whole and within are theirs. */
#ifndef TEGROUP_TESTS_SCHEMES_H
#define TEGROUP_TESTS_SCHEMES_H

/* Normally distributed numbers of any type. */
SUPPORT tegroup_matrix scheme_normal(rng *r, tegroup_dtype dtype, int64_t rows, int64_t cols, double size) {
    tegroup_matrix m = SCHEME_MATRIX(r, dtype, rows, cols);
    for (int64_t i = 0; i < rows; i++) for (int64_t j = 0; j < cols; j++) set(&m, i, j, size * rng_normal(r));
    return m;
}

enum { SCHEME_EXPERTS = 1056 };

/* Any scheme: each part of it is there in about half of the cases, alone and with the others. */
SUPPORT void scheme_make(tegroup_router_desc *d, rng *r, tegroup_dtype logits, tegroup_dtype real, int64_t sequences, int64_t length) {
    static const int32_t experts_of[] = {4, 6, 8, 12, 16, 40, 64, 72, 256, SCHEME_EXPERTS};
    const int32_t experts = experts_of[rng_int(r, 0, rng_chance(r, 10) ? 9 : 7)];
    const int64_t tokens = sequences * length;
    tegroup_router_scheme *s = &d->scheme;
    memset(d, 0, sizeof *d);
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    d->experts = experts;
    d->normalize = (int32_t)rng_int(r, 0, 1);
    d->logits = scheme_normal(r, logits, tokens, experts, 2);
    d->probabilities = SCHEME_MATRIX(r, real, tokens, experts);
    d->counts = SCHEME_MATRIX(r, integers(r), 1, experts);
    d->balance_loss = (double *)guarded(8);
    s->score = (tegroup_score)rng_int(r, 0, 2);
    if (rng_chance(r, 50)) {
        s->n_group = 2;
        while (s->n_group < 64 && experts % (4 * s->n_group) == 0 && rng_chance(r, 60)) s->n_group *= 2; /* DeepSeek's models have 8 */
        s->topk_group = (int32_t)rng_int(r, 1, s->n_group);
        s->group_score = (tegroup_group_score)rng_int(r, 0, 1);
    }
    const int32_t most = s->n_group ? s->topk_group * (experts / s->n_group) : experts;
    d->k = (int32_t)rng_int(r, 1, rng_chance(r, 80) ? (most < 9 ? most : 9) : most < 64 ? most : 64);
    d->weights = SCHEME_MATRIX(r, real, tokens, d->k);
    d->indices = SCHEME_MATRIX(r, integers(r), tokens, d->k);
    if (rng_chance(r, 50)) s->bias = scheme_normal(r, rng_chance(r, 50) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, 1, experts, 0.1);
    if (d->normalize && rng_chance(r, 50)) s->normalize_epsilon = rng_chance(r, 50) ? 1e-20 : 0.5;
    if (rng_chance(r, 50)) s->route_factor = rng_chance(r, 50) ? 2.5 : 0.25;
    if (s->n_group == 0 && rng_chance(r, 30)) {
        memset(&s->bias, 0, sizeof s->bias);
        s->given_indices = SCHEME_MATRIX(r, integers(r), tokens, d->k);
        for (int64_t t = 0; t < tokens; t++) for (int32_t j = 0; j < d->k; j++)
            set_whole(&s->given_indices, t, j, rng_chance(r, 90) ? rng_int(r, 0, experts - 1) : nonsense(r, s->given_indices.dtype, experts));
    }
    if (rng_chance(r, 40)) {
        uint8_t *mask = (uint8_t *)guarded((size_t)tokens + 1);
        for (int64_t t = 0; t < tokens; t++) mask[t] = rng_chance(r, 70) ? (uint8_t)rng_int(r, 1, 255) : 0;
        s->token_mask = mask;
    }
    if (rng_chance(r, 30)) {
        int64_t *valid = (int64_t *)guarded(8);
        *valid = rng_chance(r, 10) ? -5 : rng_int(r, 0, tokens + 3);
        s->valid_tokens = valid;
    }
    if (length > 0 && (sequences != 1 || rng_chance(r, 50))) s->sequence_tokens = length;
    if (rng_chance(r, 60)) s->z_coefficient = 0.125;
    d->balance_coefficient = rng_chance(r, 30) ? 0 : 0.5;
    d->z_loss = (double *)guarded(8);
    d->loss_gradients = SCHEME_MATRIX(r, TEGROUP_DTYPE_F64, s->sequence_tokens ? sequences : 1, experts + 1);
}
/* Takes all logits of a token but one so far down that F32 scores are at the lower end of their type. Those of F64 are
 * less far down: the formulas have them in F64, too. */
SUPPORT void scheme_far_below(tegroup_router_desc *d, rng *r) {
    const double down = d->probabilities.dtype == TEGROUP_DTYPE_F64 ? 600 : 89;
    for (int64_t t = 0; t < d->logits.rows; t++) {
        const int32_t stays = (int32_t)rng_int(r, 0, d->experts - 1);
        for (int32_t e = 0; e < d->experts; e++) if (e != stays) set(&d->logits, t, e, at(&d->logits, t, e) - down);
    }
}
SUPPORT tegroup_router_backward_desc scheme_backward_of(const tegroup_router_desc *d, tegroup_matrix grad_weights, tegroup_matrix grad_logits) {
    tegroup_router_backward_desc b;
    memset(&b, 0, sizeof b);
    b.struct_size = sizeof b;
    b.space = d->space;
    b.experts = d->experts, b.k = d->k, b.normalize = d->normalize;
    b.probabilities = d->probabilities, b.indices = d->indices;
    b.grad_weights = grad_weights, b.grad_logits = grad_logits;
    b.scheme = d->scheme;
    b.loss_gradients = d->loss_gradients;
    b.logits = d->logits;
    return b;
}

SUPPORT int scheme_there(const tegroup_router_scheme *s, int64_t t) { return !(s->valid_tokens && t >= *s->valid_tokens) && !(s->token_mask && !s->token_mask[t]); }
SUPPORT int32_t scheme_index(const tegroup_matrix *m, int64_t t, int32_t j, int32_t experts) {
    const int64_t e = whole(m, t, j);
    return e >= 0 && e < experts ? (int32_t)e : -1;
}
SUPPORT double scheme_factor(const tegroup_router_scheme *s) { return s->route_factor != 0 ? s->route_factor : 1; }
SUPPORT int64_t scheme_length(const tegroup_router_scheme *s, int64_t tokens) { return s->sequence_tokens ? s->sequence_tokens : tokens; }

typedef struct scheme_expert { double key, logit; int32_t e; } scheme_expert;
/* The larger key first, NaN last; then the larger logit, unless all is NaN; then the lower expert. */
SUPPORT int scheme_order(const void *a, const void *b) {
    const scheme_expert *x = (const scheme_expert *)a, *y = (const scheme_expert *)b;
    if (isnan(x->key) != isnan(y->key)) return isnan(x->key) ? 1 : -1;
    if (!isnan(x->key) && x->key != y->key) return x->key < y->key ? 1 : -1;
    if (!isnan(x->key) && isnan(x->logit) != isnan(y->logit)) return isnan(x->logit) ? 1 : -1;
    if (!isnan(x->key) && !isnan(x->logit) && x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->e - y->e;
}
SUPPORT double scheme_sum(tegroup_dtype real, double a, double b) { return real == TEGROUP_DTYPE_F64 ? a + b : (double)((float)a + (float)b); }

/* A token's experts in the order in which it takes them. Those of groups that do not stay are not among them. logits NULL: unknown. */
SUPPORT int32_t scheme_sorted(const tegroup_router_scheme *s, int32_t experts, const tegroup_matrix *p, const tegroup_matrix *logits, int64_t t, scheme_expert *order) {
    int32_t count = 0;
    const int32_t size = s->n_group ? experts / s->n_group : experts;
    scheme_expert groups[64], *all = (scheme_expert *)scratch(sizeof *all * (size_t)experts);
    for (int32_t e = 0; e < experts; e++) {
        const double score = at(p, t, e), x = logits ? at(logits, t, e) : 0;
        all[e].key = s->bias.dtype ? scheme_sum(p->dtype, score, p->dtype == TEGROUP_DTYPE_F64 ? at(&s->bias, 0, e) : (double)(float)at(&s->bias, 0, e)) : score;
        all[e].logit = p->dtype == TEGROUP_DTYPE_F64 ? x : (double)(float)x;
        all[e].e = e;
    }
    for (int32_t g = 0; g < s->n_group; g++) {
        scheme_expert *of = (scheme_expert *)scratch(sizeof *of * (size_t)size);
        memcpy(of, all + g * size, sizeof *of * (size_t)size);
        qsort(of, (size_t)size, sizeof *of, scheme_order);
        groups[g].key = s->group_score == TEGROUP_GROUP_SCORE_MAX || size == 1 ? of[0].key : scheme_sum(p->dtype, of[0].key, of[1].key);
        groups[g].logit = 0;
        groups[g].e = g;
    }
    qsort(groups, (size_t)s->n_group, sizeof *groups, scheme_order);
    for (int32_t e = 0; e < experts; e++) {
        int stays = s->n_group == 0;
        for (int32_t i = 0; i < s->topk_group; i++) stays |= groups[i].e == e / size;
        if (stays) order[count++] = all[e];
    }
    qsort(order, (size_t)count, sizeof *order, scheme_order);
    return count;
}

/* A token's scores by their formulas, and what each may be off. */
SUPPORT void scheme_scores(const tegroup_router_desc *d, int64_t t, double u, double *want, double *bound) {
    long double largest = -INFINITY, sum = 0;
    for (int32_t e = 0; e < d->experts; e++) largest = fmaxl(largest, at(&d->logits, t, e));
    for (int32_t e = 0; e < d->experts; e++) sum += expl(at(&d->logits, t, e) - largest);
    for (int32_t e = 0; e < d->experts; e++) {
        const long double x = at(&d->logits, t, e);
        switch (d->scheme.score) {
        case TEGROUP_SCORE_SIGMOID: want[e] = (double)(1 / (1 + expl(-x))); bound[e] = 10 * u * want[e] + 0x1p-125; break;
        case TEGROUP_SCORE_SQRT_SOFTPLUS:
            want[e] = (double)sqrtl(log1pl(expl(-fabsl(x))) + fmaxl(x, 0));
            bound[e] = 12 * u * want[e] + 0x1p-125;
            break;
        default: want[e] = (double)(expl(x - largest) / sum); bound[e] = (d->experts + 2 * (double)fabsl(x - largest) + 16) * u * want[e] + 0x1p-125;
        }
    }
}

static double worst_scheme;
#define SCHEME_NEAR(got, want, bound) do { if (!within(got, want, bound SCHEME_WORST)) return #got; } while (0)
#define SCHEME_SAME(got, want) do { if ((got) != (want)) return #got; } while (0)

/* "" where everything that a forward call wrote is right. All outputs are wanted; logits are finite. */
SUPPORT const char *scheme_wrong(const tegroup_router_desc *d, int64_t *counts) {
    const tegroup_router_scheme *s = &d->scheme;
    const int32_t experts = d->experts, k = d->k;
    const double u = unit_roundoff(d->probabilities.dtype);
    double *want = (double *)scratch(8 * (size_t)experts), *bound = (double *)scratch(8 * (size_t)experts);
    scheme_expert *order = (scheme_expert *)scratch(sizeof *order * (size_t)experts);
    memset(counts, 0, 8 * (size_t)experts);
    for (int64_t t = 0; t < d->logits.rows; t++) {
        const int there = scheme_there(s, t);
        double sum = 0;
        scheme_scores(d, t, u, want, bound);
        for (int32_t e = 0; e < experts; e++) {
            if (!there) SCHEME_SAME(at(&d->probabilities, t, e), 0);
            else SCHEME_NEAR(at(&d->probabilities, t, e), want[e], bound[e]);
        }
        if (there) scheme_sorted(s, experts, &d->probabilities, &d->logits, t, order);
        for (int32_t j = 0; j < k; j++) {
            const int32_t e = !there ? -1 : s->given_indices.dtype ? scheme_index(&s->given_indices, t, j, experts) : order[j].e;
            SCHEME_SAME(whole(&d->indices, t, j), e);
            if (e >= 0) counts[e]++, sum += at(&d->probabilities, t, e);
        }
        sum += s->normalize_epsilon;
        for (int32_t j = 0; j < k; j++) {
            const int32_t e = scheme_index(&d->indices, t, j, experts);
            const double w = e < 0 || (d->normalize && sum == 0) ? 0 : at(&d->probabilities, t, e) / (d->normalize ? sum : 1) * scheme_factor(s);
            SCHEME_NEAR(at(&d->weights, t, j), w, (k + 6) * u * w + 4 * smallest_step(d->probabilities.dtype));
        }
    }
    for (int32_t e = 0; e < experts; e++) SCHEME_SAME(whole(&d->counts, 0, e), counts[e]);
    return "";
}

/* The losses by their formulas, from the scores and indices that were written. */
SUPPORT const char *scheme_losses_wrong(const tegroup_router_desc *d) {
    const tegroup_router_scheme *s = &d->scheme;
    const int32_t experts = d->experts, k = d->k;
    const int64_t length = scheme_length(s, d->logits.rows), sequences = s->sequence_tokens ? d->logits.rows / length : 1;
    const double u = unit_roundoff(d->probabilities.dtype);
    double balance = 0, z = 0, z_off = 0, tokens = 0;
    for (int64_t q = 0; q < sequences; q++) {
        double here = 0, *mean = (double *)scratch(8 * (size_t)experts), *count = (double *)scratch(8 * (size_t)experts);
        memset(mean, 0, 8 * (size_t)experts), memset(count, 0, 8 * (size_t)experts);
        for (int64_t t = q * length; t < (q + 1) * length; t++) {
            double total = 0, largest = -INFINITY, sum = 0;
            if (!scheme_there(s, t)) continue;
            here++;
            for (int32_t e = 0; e < experts; e++) total += at(&d->probabilities, t, e), largest = fmax(largest, at(&d->logits, t, e));
            for (int32_t e = 0; e < experts; e++) sum += exp(at(&d->logits, t, e) - largest), mean[e] += total == 0 ? 0 : at(&d->probabilities, t, e) / total;
            for (int32_t j = 0; j < k; j++) if (scheme_index(&d->indices, t, j, experts) >= 0) count[scheme_index(&d->indices, t, j, experts)]++;
            const double lse = largest + log(sum);
            z += lse * lse;
            z_off += 2 * fabs(lse) * (experts + 32) * u * (1 + fabs(lse) + fabs(largest));
        }
        tokens += here;
        for (int32_t e = 0; e < experts; e++) {
            const double slope = here == 0 ? 0 : d->balance_coefficient * experts * count[e] / (here * k) / here;
            balance += slope * mean[e] / (double)sequences;
            SCHEME_NEAR(at(&d->loss_gradients, q, e), slope / (double)sequences, 1e-13 * slope);
        }
    }
    for (int64_t q = 0; q < sequences; q++) SCHEME_NEAR(at(&d->loss_gradients, q, experts), tokens == 0 ? 0 : 2 * s->z_coefficient / tokens, 1e-13 * s->z_coefficient);
    SCHEME_NEAR(*d->balance_loss, balance, (experts + 64) * u * balance + 1e-300);
    SCHEME_NEAR(*d->z_loss, tokens == 0 ? 0 : s->z_coefficient * z / tokens, tokens == 0 ? 0 : s->z_coefficient * (z_off + 1e-12 * z) / tokens + 1e-300);
    return "";
}

/* The gradient that autograd gives, from the scores that were written. */
SUPPORT const char *scheme_gradient_wrong(const tegroup_router_backward_desc *b) {
    const tegroup_router_scheme *s = &b->scheme;
    const int32_t experts = b->experts, k = b->k;
    const double u = unit_roundoff(b->probabilities.dtype), factor = scheme_factor(s), by = b->loss_scale != 0 ? b->loss_scale : 1;
    double *g = (double *)scratch(8 * (size_t)experts), *size = (double *)scratch(8 * (size_t)experts);
    scheme_expert *order = (scheme_expert *)scratch(sizeof *order * (size_t)experts);
    for (int64_t t = 0; t < b->probabilities.rows; t++) {
        double total = 0, shared = 0, shared_size = 0, sum = s->normalize_epsilon, dot = 0, dot_size = 0, mean = 0, mean_size = 0, z = 0, largest = -INFINITY, all = 0;
        int32_t chosen[64], taken[64], kept = 0, next = 0;
        const int64_t q = t / (scheme_length(s, b->probabilities.rows));
        const int there = scheme_there(s, t), losses = b->loss_gradients.dtype != TEGROUP_DTYPE_UNSET;
        if (!there) {
            for (int32_t e = 0; e < experts; e++) SCHEME_SAME(at(&b->grad_logits, t, e), 0);
            continue;
        }
        for (int32_t e = 0; e < experts; e++) {
            total += at(&b->probabilities, t, e);
            shared += losses ? by * at(&b->loss_gradients, q, e) * at(&b->probabilities, t, e) : 0;
        }
        if (s->score == TEGROUP_SCORE_SOFTMAX) total = 1, shared = 0; /* they are shares */
        shared_size = fabs(shared) / total;
        for (int32_t e = 0; e < experts; e++) {
            const double slope = losses ? by * at(&b->loss_gradients, q, e) : 0;
            g[e] = total == 0 ? 0 : (slope - shared / total) / total;
            size[e] = total == 0 ? 0 : (fabs(slope) + shared_size) / total;
        }
        for (int32_t j = 0; j < k; j++) kept += (chosen[j] = scheme_index(&b->indices, t, j, experts)) >= 0;
        if (kept > 0 && kept < k && !s->given_indices.dtype && b->normalize) scheme_sorted(s, experts, &b->probabilities, NULL, t, order);
        for (int32_t j = 0; j < k; j++) {
            taken[j] = kept > 0 ? chosen[j] : -1;
            if (kept == 0 || chosen[j] >= 0 || !b->normalize) continue;
            if (s->given_indices.dtype) {
                taken[j] = scheme_index(&s->given_indices, t, j, experts);
                continue;
            }
            for (int listed = 1; listed; next++) { /* the best that is not listed */
                taken[j] = order[next].e;
                listed = 0;
                for (int32_t i = 0; i < k; i++) listed |= chosen[i] == taken[j];
            }
        }
        for (int32_t j = 0; j < k; j++) {
            if (taken[j] < 0) continue;
            sum += at(&b->probabilities, t, taken[j]);
            if (chosen[j] < 0) continue;
            dot += at(&b->grad_weights, t, j) * at(&b->probabilities, t, taken[j]);
            dot_size += fabs(at(&b->grad_weights, t, j)) * at(&b->probabilities, t, taken[j]);
        }
        for (int32_t j = 0; j < k; j++) {
            const double w = chosen[j] >= 0 ? at(&b->grad_weights, t, j) : 0;
            if (taken[j] < 0 || (b->normalize && sum == 0)) continue;
            g[taken[j]] += factor * (b->normalize ? (w - dot / sum) / sum : w);
            size[taken[j]] += factor * (b->normalize ? (fabs(w) + dot_size / sum) / sum : fabs(w));
        }
        for (int32_t e = 0; e < experts; e++) mean += at(&b->probabilities, t, e) * g[e], mean_size += at(&b->probabilities, t, e) * size[e];
        if (s->z_coefficient != 0) {
            for (int32_t e = 0; e < experts; e++) largest = fmax(largest, at(&b->logits, t, e));
            for (int32_t e = 0; e < experts; e++) all += exp(at(&b->logits, t, e) - largest);
            z = by * at(&b->loss_gradients, q, experts) * (largest + log(all)) / all;
        }
        for (int32_t e = 0; e < experts; e++) {
            const double p = at(&b->probabilities, t, e), slope = s->score == TEGROUP_SCORE_SIGMOID ? p * (1 - p) : p == 0 ? 0 : -expm1(-p * p) / (2 * p);
            const double from_z = z * (s->z_coefficient != 0 ? exp(at(&b->logits, t, e) - largest) : 0), softmax = s->score == TEGROUP_SCORE_SOFTMAX;
            const double grad = (softmax ? p * (g[e] - mean) : slope * g[e]) + from_z;
            const double off = (experts + 4 * k + 32) * u * ((softmax ? p * (size[e] + mean_size) : (slope + u) * size[e]) + fabs(from_z) * (4 + (s->z_coefficient != 0 ? 2 * fabs(at(&b->logits, t, e) - largest) : 0)) + fabs(z) * 4);
            SCHEME_NEAR(at(&b->grad_logits, t, e), grad, off + stored(b->grad_logits.dtype, grad) + 16 * smallest_step(b->probabilities.dtype) + 0x1p-100);
        }
    }
    return "";
}

#endif
