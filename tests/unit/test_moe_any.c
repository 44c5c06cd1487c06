/* Whole MoE layers with everything that a router and experts can be told, any of it with any other: gradients against differences
 * of the layer's own forward pass in FP64, and 10^5 arrays of logits, biases, ids, masks and counts that no model would give. */
#define TEGROUP_EXTERN
#include "support.h"
#include "test.h"

enum { MOST_TOKENS = 6, MOST_CHOICES = 32 };

/* A layer whose numbers are all of one type; gradients lie beside what they are of. */
typedef struct any_layer {
    tegroup_moe_desc desc;
    tegroup_moe_plan plan;
    tegroup_dtype dtype;
    int64_t tokens, width, hidden, outputs;
    int32_t experts, k;
    int64_t *given;
    uint8_t *mask;
    int64_t *valid;
    double *balance_loss, *z_loss;
} any_layer;

static void *numbers(rng *r, tegroup_dtype dtype, int64_t count, double size) {
    void *to = guarded((size_t)count * size_of(dtype));
    for (int64_t i = 0; i < count; i++) store(dtype, to, i, size * rng_normal(r));
    return to;
}
static tegroup_matrix numbers_of(rng *r, tegroup_dtype dtype, int64_t rows, int64_t cols, double size) {
    return tegroup_matrix_of(numbers(r, dtype, rows * cols, size), rows, cols, dtype);
}
static tegroup_matrix results_of(tegroup_dtype dtype, int64_t rows, int64_t cols) {
    return tegroup_matrix_of(guarded((size_t)(rows * cols) * size_of(dtype)), rows, cols, dtype);
}
static void weights_make(any_layer *l, rng *r, tegroup_mlp_weights *w, int64_t outputs, int64_t inputs, int layout, int biases) {
    const int64_t rows = layout ? inputs : outputs, cols = layout ? outputs : inputs, count = l->experts * rows * cols;
    w->weight_layout = layout ? TEGROUP_WEIGHT_IN_OUT : TEGROUP_WEIGHT_OUT_IN;
    w->weight = tegroup_tensor_uniform(l->experts, rows, cols, l->dtype, numbers(r, l->dtype, count, 1));
    w->main_grad = tegroup_tensor_uniform(l->experts, rows, cols, l->dtype, guarded((size_t)count * size_of(l->dtype)));
    if (!biases) return;
    w->bias = tegroup_tensor_uniform(l->experts, 1, outputs, l->dtype, numbers(r, l->dtype, l->experts * outputs, 0.5));
    w->bias_grad = tegroup_tensor_uniform(l->experts, 1, outputs, l->dtype, guarded((size_t)(l->experts * outputs) * size_of(l->dtype)));
}

/* How experts are chosen; of NaN, infinity and nonsense among it where it is hostile. */
static void router_make(any_layer *l, rng *r, int hostile) {
    tegroup_router_desc *d = &l->desc.router;
    tegroup_router_scheme *s = &d->scheme;
    const int ids = rng_chance(r, 20);
    l->experts = (int32_t)(rng_chance(r, 5) && !hostile ? rng_int(r, 200, 1024) : rng_int(r, 1, 40));
    s->score = (tegroup_score)rng_int(r, 0, 2);
    if (!ids && rng_chance(r, 50)) {
        s->n_group = (int32_t)rng_int(r, 2, 8);
        l->experts = s->n_group * (int32_t)rng_int(r, 1, 8);
        s->topk_group = (int32_t)rng_int(r, 1, s->n_group);
        s->group_score = (tegroup_group_score)rng_int(r, 0, 1);
    }
    const int32_t most = s->n_group ? s->topk_group * (l->experts / s->n_group) : l->experts;
    l->k = d->k = (int32_t)rng_int(r, 1, most < MOST_CHOICES ? most : MOST_CHOICES);
    d->logits = numbers_of(r, l->dtype, l->tokens, l->experts, 1);
    if (!ids && rng_chance(r, 50)) s->bias = numbers_of(r, l->dtype, 1, l->experts, 0.3);
    static const double odd[] = {NAN, INFINITY, -INFINITY, 3e38, -3e38, 0, -0.0, 1e-40};
    for (int64_t i = 0; hostile && i < l->tokens * l->experts; i++)
        if (rng_chance(r, 30)) store(l->dtype, d->logits.data, i, odd[rng_int(r, 0, 7)]);
    for (int64_t i = 0; hostile && s->bias.data && i < l->experts; i++)
        if (rng_chance(r, 20)) store(l->dtype, s->bias.data, i, odd[rng_int(r, 0, 7)]);
    d->normalize = rng_chance(r, 50);
    if (d->normalize && rng_chance(r, 50)) s->normalize_epsilon = rng_chance(r, 50) ? 1e-20 : 0.1;
    if (rng_chance(r, 50)) s->route_factor = 2.5;
    if (ids) {
        l->given = (int64_t *)guarded((size_t)(l->tokens * l->k) * 8);
        for (int64_t i = 0; i < l->tokens * l->k; i++)
            l->given[i] = rng_chance(r, hostile ? 60 : 90) ? rng_int(r, 0, l->experts - 1) : hostile ? (int64_t)rng_next(r) : rng_int(r, 0, 1) * (l->experts + 4) - 1;
        s->given_indices = tegroup_matrix_of(l->given, l->tokens, l->k, TEGROUP_DTYPE_I64);
    }
    if (rng_chance(r, 30)) {
        s->token_mask = l->mask = (uint8_t *)guarded((size_t)l->tokens);
        for (int64_t t = 0; t < l->tokens; t++) l->mask[t] = rng_chance(r, 75) ? (uint8_t)rng_int(r, 1, 255) : 0;
    }
    if (rng_chance(r, 30)) {
        s->valid_tokens = l->valid = (int64_t *)guarded(8);
        *l->valid = !hostile || rng_chance(r, 75) ? rng_int(r, 0, l->tokens) : rng_chance(r, 50) ? -7 : INT64_MAX;
    }
    if (l->tokens % 2 == 0 && rng_chance(r, 30)) s->sequence_tokens = l->tokens / 2;
    if (rng_chance(r, 50)) s->z_coefficient = 0.3;
    if (rng_chance(r, 50)) d->balance_coefficient = 0.7;
    d->indices = results_of(TEGROUP_DTYPE_I32, l->tokens, l->k);
    d->counts = results_of(TEGROUP_DTYPE_I64, 1, l->experts);
    d->balance_loss = l->balance_loss = (double *)guarded(8);
    d->z_loss = l->z_loss = (double *)guarded(8);
}

/* The plan, and the memory that it asks for. */
static void layer_plan(any_layer *l) {
    tegroup_moe_desc *d = &l->desc;
    tegroup_options *options = &d->experts.options;
    tegroup_error error;
    const tegroup_status made = tegroup_moe_plan_make(d, NULL, &l->plan, &error);
    if (made != TEGROUP_OK) fprintf(stderr, "%s %s\n", error.field, error.rule);
    ASSERT_EQ(made, TEGROUP_OK);
    d->saved_by_forward = guarded(d->saved_by_forward_bytes = l->plan.saved_by_forward_bytes);
    d->saved_by_dgrad = guarded(d->saved_by_dgrad_bytes = l->plan.saved_by_dgrad_bytes);
    options->workspace = guarded(options->workspace_bytes = l->plan.workspace_bytes);
}
static void layer_make(any_layer *l, rng *r, tegroup_dtype dtype, int hostile) {
    tegroup_moe_desc *d = &l->desc;
    tegroup_mlp_desc *e = &d->experts;
    memset(l, 0, sizeof *l);
    l->dtype = dtype;
    l->tokens = rng_int(r, 1, MOST_TOKENS), l->width = rng_int(r, 1, 5), l->hidden = rng_int(r, 1, 5), l->outputs = rng_int(r, 1, 5);
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    router_make(l, r, hostile);
    d->tokens = numbers_of(r, dtype, l->tokens, l->width, 1);
    d->grad_output = numbers_of(r, dtype, l->tokens, l->outputs, 1);
    d->output = results_of(dtype, l->tokens, l->outputs);
    d->grad_tokens = results_of(dtype, l->tokens, l->width);
    d->grad_logits = results_of(dtype, l->tokens, l->experts);
    d->loss_scale = rng_chance(r, 50) ? 0 : 2;
    e->activation = (tegroup_activation)rng_int(r, TEGROUP_ACTIVATION_SWIGLU, TEGROUP_ACTIVATION_IDENTITY);
    const int gated = e->activation <= TEGROUP_ACTIVATION_SITU_GLU, takes = gated && e->activation >= TEGROUP_ACTIVATION_SWIGLU_CLAMPED,
              apart = gated && rng_chance(r, 25), biases = rng_chance(r, 50), layouts = (int)rng_int(r, 0, 3);
    if (takes && rng_chance(r, 50)) e->alpha = 0.3 + rng_unit(r);
    if (takes && rng_chance(r, 60)) e->limit = rng_chance(r, 50) ? INFINITY : 0.4 + rng_unit(r);
    e->interleaved = gated && !apart && rng_chance(r, 50);
    weights_make(l, r, &e->fc1, gated && !apart ? 2 * l->hidden : l->hidden, l->width, layouts & 1, biases);
    weights_make(l, r, &e->fc2, l->outputs, l->hidden, layouts & 2, biases);
    if (apart) weights_make(l, r, &e->fc1_up, l->hidden, l->width, layouts & 1, biases);
    e->recompute = rng_chance(r, 50);
    e->options.threads = 1;
    e->options.compute = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_COMPUTE_F64 : TEGROUP_COMPUTE_F32;
    if (rng_chance(r, 40)) d->capacity = rng_int(r, 1, l->tokens * l->k);
    else if (rng_chance(r, 40)) d->expert_capacity = rng_int(r, 1, l->tokens);
    d->drops_by_weight = rng_chance(r, 50);
    layer_plan(l);
}
static void layer_run(any_layer *l, int backward) {
    tegroup_error error;
    ASSERT_EQ(tegroup_moe_forward(&l->plan, &l->desc, NULL, &error), TEGROUP_OK);
    if (!backward) return;
    memset(l->desc.experts.options.workspace, 0xff, l->plan.workspace_bytes);
    ASSERT_EQ(tegroup_moe_dgrad(&l->plan, &l->desc, NULL, &error), TEGROUP_OK);
    memset(l->desc.experts.options.workspace, 0xff, l->plan.workspace_bytes);
    ASSERT_EQ(tegroup_moe_wgrad(&l->plan, &l->desc, NULL, &error), TEGROUP_OK);
}
static int token_is_there(const any_layer *l, int64_t t) { return (!l->mask || l->mask[t]) && (!l->valid || t < *l->valid); }
static int32_t index_of(const any_layer *l, int64_t t, int64_t j) { return ((const int32_t *)l->desc.router.indices.data)[t * l->k + j]; }

/* Indices are experts, none twice among a token's that the router chose, counted right; tokens that are not there give zeros. */
static void check_routing(const any_layer *l) {
    int64_t counts[1024] = {0};
    for (int64_t t = 0; t < l->tokens; t++) {
        const int there = token_is_there(l, t);
        for (int64_t j = 0; j < l->k; j++) {
            const int32_t e = index_of(l, t, j);
            ASSERT_TRUE(e >= -1 && e < l->experts && (there || e == -1) && (!there || l->given || e >= 0));
            if (e >= 0) counts[e]++;
            for (int64_t i = 0; !l->given && e >= 0 && i < j; i++) ASSERT_NE(index_of(l, t, i), e);
        }
        const tegroup_matrix *const zeros[] = {&l->desc.output, &l->desc.grad_tokens, &l->desc.grad_logits};
        for (int n = 0; n < 3 && !there; n++)
            for (int64_t c = 0; c < zeros[n]->cols; c++) ASSERT_TRUE(load(l->dtype, zeros[n]->data, t * zeros[n]->cols + c) == 0);
    }
    for (int32_t e = 0; e < l->experts; e++) ASSERT_EQ(((const int64_t *)l->desc.router.counts.data)[e], counts[e]);
}

/* <Y, dY>, with the router's losses. */
static double loss(any_layer *l) {
    const double *y = (const double *)l->desc.output.data, *dy = (const double *)l->desc.grad_output.data;
    double sum = 0;
    layer_run(l, 0);
    for (int64_t i = 0; i < l->tokens * l->outputs; i++) sum += y[i] * dy[i];
    return sum + (l->desc.loss_scale != 0 ? l->desc.loss_scale : 1) * (*l->balance_loss + *l->z_loss);
}

TEST(moe_any, gradients_by_differences) {
    rng r = rng_seed(9201);
    int64_t compared = 0, kinks = 0;
    double worst = 0;
    for (int64_t n = scaled(200); n > 0; n--) {
        void *mark = guards_mark();
        any_layer l;
        layer_make(&l, &r, TEGROUP_DTYPE_F64, 0);
        ASSERT_PASSING();
        layer_run(&l, 1);
        check_routing(&l);
        ASSERT_PASSING();
        const tegroup_mlp_desc *e = &l.desc.experts;
        const tegroup_mlp_weights *const all[] = {&e->fc1, &e->fc2, &e->fc1_up};
        struct { double *of; const double *grad; int64_t count; } lists[8] = {{(double *)l.desc.tokens.data, (const double *)l.desc.grad_tokens.data, l.tokens * l.width},
            {(double *)l.desc.router.logits.data, (const double *)l.desc.grad_logits.data, l.tokens * l.experts}};
        for (int w = 0; w < 3; w++) {
            lists[2 + w].of = (double *)all[w]->weight.data, lists[2 + w].grad = (const double *)all[w]->main_grad.data;
            lists[2 + w].count = all[w]->weight.data ? all[w]->weight.shape.groups * all[w]->weight.shape.rows * all[w]->weight.shape.cols : 0;
            lists[5 + w].of = (double *)all[w]->bias.data, lists[5 + w].grad = (const double *)all[w]->bias_grad.data;
            lists[5 + w].count = all[w]->bias.data ? all[w]->bias.shape.groups * all[w]->bias.shape.cols : 0;
        }
        const size_t chosen_bytes = (size_t)(l.tokens * l.k) * 4;
        int32_t *chosen = (int32_t *)malloc(chosen_bytes);
        memcpy(chosen, l.desc.router.indices.data, chosen_bytes);
        for (int which = 0; which < 8; which++)
            for (int probe = 0; probe < 10 && lists[which].count > 0; probe++) {
                int64_t i = rng_int(&r, 0, lists[which].count - 1);
                const int32_t expert = chosen[rng_int(&r, 0, l.tokens * l.k - 1)];
                if (which >= 2 && expert >= 0 && probe < 8) i = expert * (lists[which].count / l.experts) + rng_int(&r, 0, lists[which].count / l.experts - 1); /* one that matters */
                if (which == 1 && expert >= 0 && probe < 6) i = rng_int(&r, 0, l.tokens - 1) * l.experts + expert;
                double *x = &lists[which].of[i], at = *x, values[4];
                int same = 1; /* the same experts are chosen all along */
                for (int side = 0; side < 4; side++) {
                    *x = at + (side % 2 ? -1e-5 : 1e-5) * (1 + side / 2);
                    values[side] = loss(&l);
                    same &= memcmp(chosen, l.desc.router.indices.data, chosen_bytes) == 0;
                }
                *x = at;
                const double near = (values[0] - values[1]) / 2e-5, slope = (8 * (values[0] - values[1]) - (values[2] - values[3])) / 12e-5;
                if (!same || fabs(slope - near) > 1e-6 * (1 + fabs(slope))) { /* another choice, or a clamp's edge */
                    kinks++;
                    continue;
                }
                const double off = fabs(slope - lists[which].grad[i]) / (1 + fabs(slope));
                if (!(off <= 1e-6)) fprintf(stderr, "layer %ld: list %d, %ld: %.10g, by differences %.10g\n", (long)n, which, (long)i, lists[which].grad[i], slope);
                ASSERT_LE(off, 1e-6);
                worst = fmax(worst, off);
                compared++;
            }
        free(chosen);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    ASSERT_GT(compared, 9 * kinks);
    printf("%ld gradients, %ld left out; off by at most %.1e\n", (long)compared, (long)kinks, worst);
}

/* What is kept is a choice: the bits are the same, whatever the router. */
TEST(moe_any, made_again_bit_for_bit) {
    rng r = rng_seed(9204);
    int64_t less = 0;
    for (int64_t n = scaled(600); n > 0; n--) {
        void *mark = guards_mark();
        any_layer l;
        tegroup_moe_desc *const d = &l.desc;
        layer_make(&l, &r, n % 2 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_F64, (int)(n % 3 == 0));
        ASSERT_PASSING();
        if (rng_chance(&r, 30)) d->router.balance_loss = d->router.z_loss = NULL;
        if (rng_chance(&r, 30)) memset(&d->router.indices, 0, sizeof d->router.indices), memset(&d->router.counts, 0, sizeof d->router.counts);
        const tegroup_matrix *const results[] = {&d->output, &d->grad_tokens, &d->grad_logits};
        unsigned char *first[3];
        size_t saved[2];
        for (d->experts.recompute = 0; d->experts.recompute < 2; d->experts.recompute++) {
            layer_plan(&l);
            ASSERT_PASSING();
            saved[d->experts.recompute] = l.plan.saved_by_forward_bytes;
            layer_run(&l, 1);
            ASSERT_PASSING();
            for (int i = 0; i < 3; i++) {
                const size_t bytes = (size_t)(results[i]->rows * results[i]->cols) * size_of(l.dtype);
                if (d->experts.recompute) ASSERT_EQ(memcmp(first[i], results[i]->data, bytes), 0);
                else memcpy(first[i] = (unsigned char *)guarded(bytes), results[i]->data, bytes);
                memset(results[i]->data, 0xff, bytes);
            }
        }
        less += saved[1] < saved[0];
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    ASSERT_GT(less, 0);
}

TEST(moe_any, hostile_routings) {
    rng r = rng_seed(9202);
    for (int64_t n = scaled(in_the_long_suite(100000, 4000)); n > 0; n--) {
        void *mark = guards_mark();
        any_layer l;
        layer_make(&l, &r, TEGROUP_DTYPE_F32, 1);
        ASSERT_PASSING();
        layer_run(&l, 1);
        check_routing(&l);
        ASSERT_PASSING();
        for (int64_t t = 0; t < l.tokens; t++) {
            int sane = 1; /* logits that are, give numbers, whatever other tokens have */
            for (int32_t e = 0; e < l.experts; e++) {
                const double logit = load(l.dtype, l.desc.router.logits.data, t * l.experts + e), grad = load(l.dtype, l.desc.grad_logits.data, t * l.experts + e);
                sane &= fabs(logit) < 1e30;
                if (token_is_there(&l, t) && isnan(logit)) ASSERT_TRUE(isnan(grad));
            }
            for (int64_t c = 0; sane && c < l.outputs; c++) ASSERT_TRUE(isfinite(load(l.dtype, l.desc.output.data, t * l.outputs + c)));
            for (int64_t c = 0; sane && c < l.width; c++) ASSERT_TRUE(isfinite(load(l.dtype, l.desc.grad_tokens.data, t * l.width + c)));
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* The layer without its router: by ids, most of them experts, and weights, some of them no numbers. */
static void give_routing(any_layer *l, rng *r) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 0, -0.0f, 1e-40f};
    tegroup_moe_desc *d = &l->desc;
    const int64_t choices = l->tokens * l->k;
    memset(&d->router, 0, sizeof d->router);
    memset(&d->grad_logits, 0, sizeof d->grad_logits);
    d->router.k = l->k, d->loss_scale = 0;
    l->given = (int64_t *)guarded((size_t)choices * 8);
    for (int64_t i = 0; i < choices; i++) l->given[i] = rng_chance(r, 70) ? rng_int(r, 0, l->experts - 1) : (int64_t)rng_next(r);
    d->router.scheme.given_indices = tegroup_matrix_of(l->given, l->tokens, l->k, TEGROUP_DTYPE_I64);
    d->given_weights = numbers_of(r, l->dtype, l->tokens, l->k, 1);
    for (int64_t i = 0; i < choices; i++)
        if (rng_chance(r, 15)) ((float *)d->given_weights.data)[i] = odd[rng_int(r, 0, 7)];
    d->grad_weights = results_of(l->dtype, l->tokens, l->k);
    layer_plan(l);
}

TEST(moe_any, hostile_given_routings) {
    rng r = rng_seed(9203);
    int64_t nobody = 0, numbers_left = 0;
    for (int64_t n = scaled(in_the_long_suite(50000, 2000)); n > 0; n--) {
        void *mark = guards_mark();
        any_layer l;
        layer_make(&l, &r, TEGROUP_DTYPE_F32, 1);
        ASSERT_PASSING();
        give_routing(&l, &r);
        ASSERT_PASSING();
        layer_run(&l, 1);
        for (int64_t t = 0; t < l.tokens; t++) {
            int sane = 1; /* a token's weights that are numbers give numbers, whatever other tokens have */
            for (int64_t j = t * l.k; j < (t + 1) * l.k; j++) {
                const int chosen = l.given[j] >= 0 && l.given[j] < l.experts;
                sane &= !chosen || fabsf(((const float *)l.desc.given_weights.data)[j]) < 1e30f;
                if (!chosen) ASSERT_TRUE(((const float *)l.desc.grad_weights.data)[j] == 0);
                nobody += !chosen;
            }
            for (int64_t c = 0; sane && c < l.outputs; c++, numbers_left++) ASSERT_TRUE(isfinite(load(l.dtype, l.desc.output.data, t * l.outputs + c)));
            for (int64_t c = 0; sane && c < l.width; c++) ASSERT_TRUE(isfinite(load(l.dtype, l.desc.grad_tokens.data, t * l.width + c)));
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    ASSERT_TRUE(nobody > 0 && numbers_left > 0);
}

TEST_MAIN()
