/* The whole MoE layer: against a reference in FP64 that knows nothing of groups, against finite differences of every input and
 * parameter, and what it promises of memory, plans and refusals. */
#define TEGROUP_EXTERN
#include "moe_by_hand.h"

void *fresh(size_t bytes) { return guarded(bytes); }

static double loss(const layer *l) {
    double sum = 0, size;
    for (int64_t t = 0; t < l->tokens; t++)
        for (int64_t o = 0; o < l->outputs; o++) sum += l->dy[t * l->outputs + o] * reference(l, t, o, &size);
    return sum;
}

/* The smallest difference between a chosen logit and one that is not: a step must not change a choice. */
static double margin(const layer *l) {
    double least = INFINITY;
    for (int64_t t = 0; t < l->tokens; t++)
        for (int32_t a = 0; a < l->experts; a++)
            for (int32_t b = 0; b < a; b++) least = fmin(least, fabs(l->logits[t * l->experts + a] - l->logits[t * l->experts + b]));
    return least;
}

/* ---- results ------------------------------------------------------------------------------------------------------------ */

TEST(moe_layer, output_is_the_sum_of_weighted_experts) {
    rng r = rng_seed(9101);
    const tegroup_dtype dtypes[] = {TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16};
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        layer_make(&l, &r, dtypes[rng_int(&r, 0, 3)], rng_chance(&r, 50), rng_int(&r, 0, 3));
        ASSERT_PASSING();
        run(&l, TEGROUP_OP_FORWARD);
        ASSERT_PASSING();
        for (int64_t t = 0; t < l.tokens; t++)
            for (int64_t o = 0; o < l.outputs; o++) {
                double size, want = reference(&l, t, o, &size);
                ASSERT_LE(fabs(load(l.dtype, l.desc.output.data, t * l.outputs + o) - want), output_bound(&l, size));
            }
        ASSERT_EQ(guards_changed(), 0);
        layer_free(&l);
        guards_release(mark);
    }
}

/* d loss / d (one number), by the reference alone. */
static double slope(layer *l, double *number, double step) {
    const double at = *number;
    double up, down;
    *number = at + step, up = loss(l);
    *number = at - step, down = loss(l);
    *number = at;
    return (up - down) / (2 * step);
}
static void check_gradient(layer *l, const tegroup_tensor *grad, double *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const double want = slope(l, &values[i], 1e-4);
        ASSERT_LE(fabs(load(grad->dtype, grad->data, i) - want), 1e-6 * (1 + fabs(want)));
    }
}
static tegroup_tensor as_tensor(tegroup_matrix m) { return tegroup_tensor_uniform(1, m.rows, m.cols, m.dtype, m.data); }

/* After a forward: dgrad and wgrad, and all that they gave. */
static void check_every_gradient(layer *l) {
    const tegroup_mlp_desc *experts = &l->desc.experts;
    const tegroup_tensor tokens = as_tensor(l->desc.grad_tokens), logits = as_tensor(l->desc.grad_logits), weights = as_tensor(l->desc.grad_weights);
    poison(experts->options.workspace, l->plan.workspace_bytes); /* garbage between calls */
    run(l, TEGROUP_OP_DGRAD);
    poison(experts->options.workspace, l->plan.workspace_bytes);
    run(l, TEGROUP_OP_WGRAD);
    ASSERT_PASSING();
    check_gradient(l, &tokens, l->x, l->tokens * l->width);
    if (l->given_weights != NULL) check_gradient(l, &weights, l->given_weights, l->tokens * l->k);
    else check_gradient(l, &logits, l->logits, l->tokens * l->experts);
    check_gradient(l, &experts->fc1.main_grad, l->w1, l->experts * 2 * l->hidden * l->width);
    check_gradient(l, &experts->fc2.main_grad, l->w2, l->experts * l->outputs * l->hidden);
    if (!l->biases) return;
    check_gradient(l, &experts->fc1.bias_grad, l->b1, l->experts * 2 * l->hidden);
    check_gradient(l, &experts->fc2.bias_grad, l->b2, l->experts * l->outputs);
}

TEST(moe_layer, every_gradient_by_finite_differences) {
    rng r = rng_seed(9102);
    int64_t checked = 0;
    for (int64_t i = scaled(40); i > 0 || checked == 0; i--) {
        void *mark = guards_mark();
        layer l;
        layer_make(&l, &r, TEGROUP_DTYPE_F64, 1, rng_int(&r, 0, 2));
        ASSERT_PASSING();
        if (l.tokens > 8 || margin(&l) < 1e-3) {
            layer_free(&l);
            guards_release(mark);
            continue;
        }
        run(&l, TEGROUP_OP_FORWARD);
        ASSERT_PASSING();
        check_every_gradient(&l);
        ASSERT_PASSING();
        ASSERT_EQ(guards_changed(), 0);
        checked += l.tokens > 0;
        layer_free(&l);
        guards_release(mark);
    }
    ASSERT_GT(checked, 0);
}

/* Y and dX are added to what is there, such as what a shared expert gave: the sums begin with it. */
TEST(moe_layer, adds_to_what_is_there) {
    rng r = rng_seed(9111);
    for (int64_t i = scaled(60); i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        const int wide = rng_chance(&r, 50);
        layer_make(&l, &r, wide ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, 1, rng_int(&r, 0, 3));
        ASSERT_PASSING();
        run(&l, TEGROUP_OP_FORWARD);
        run(&l, TEGROUP_OP_DGRAD);
        ASSERT_PASSING();
        const tegroup_matrix *const of[] = {&l.desc.output, &l.desc.grad_tokens};
        double *alone[2], *held[2];
        for (int n = 0; n < 2; n++) {
            const int64_t count = of[n]->rows * of[n]->cols;
            alone[n] = (double *)malloc((size_t)count * 8 + 8), held[n] = (double *)malloc((size_t)count * 8 + 8);
            for (int64_t e = 0; e < count; e++) {
                alone[n][e] = load(of[n]->dtype, of[n]->data, e);
                store(of[n]->dtype, of[n]->data, e, rng_normal(&r));
                held[n][e] = load(of[n]->dtype, of[n]->data, e);
            }
        }
        l.desc.adds_to_output = 1;
        run(&l, TEGROUP_OP_FORWARD);
        l.desc.adds_to_grad_tokens = 1;
        l.desc.adds_to_output = 0; /* of no interest to dgrad */
        run(&l, TEGROUP_OP_DGRAD);
        ASSERT_PASSING();
        for (int n = 0; n < 2; n++) {
            for (int64_t e = 0; e < of[n]->rows * of[n]->cols; e++) {
                const double want = held[n][e] + alone[n][e]; /* which rounds otherwise: sums began with what was there */
                ASSERT_LE(fabs(load(of[n]->dtype, of[n]->data, e) - want), (wide ? 1e-13 : 1e-4) * (1 + fabs(held[n][e]) + fabs(alone[n][e])));
            }
            free(alone[n]), free(held[n]);
        }
        ASSERT_EQ(guards_changed(), 0);
        layer_free(&l);
        guards_release(mark);
    }
}

/* The layer again, with room for so few rows, and the plan and memory that go with it. */
static void with_capacity(layer *l, int64_t capacity, int each, int by_weight) {
    l->desc.capacity = each ? 0 : capacity;
    l->desc.expert_capacity = each ? capacity : 0;
    l->desc.drops_by_weight = by_weight;
    layer_plan(l, 0);
}

/* Some tokens say what others say, so that weights are equal. */
static void repeat_tokens(layer *l, rng *r) {
    for (int64_t t = 1; t < l->tokens; t++) {
        const int64_t other = rng_int(r, 0, t - 1);
        if (!rng_chance(r, 40)) continue;
        for (int32_t e = 0; e < l->experts; e++) {
            l->logits[t * l->experts + e] = l->logits[other * l->experts + e];
            store(l->dtype, l->desc.router.logits.data, t * l->experts + e, l->logits[t * l->experts + e]);
        }
    }
}

/* With room for so few rows, experts in order get theirs, or each has its own, an expert without room for all keeps the choices that come first or
 * those of the largest weights, and a choice without a row adds nothing: in the output and, in FP64, in every gradient. */
TEST(moe_layer, choices_without_a_row_add_nothing) {
    rng r = rng_seed(9103);
    int64_t dropped = 0, lighter = 0, gradients = 0;
    for (int64_t i = scaled(200); i > 0 || lighter <= 20 || gradients <= 2; i--) {
        void *mark = guards_mark();
        layer l;
        double close;
        layer_make(&l, &r, rng_chance(&r, 50) ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, 1, 0);
        ASSERT_PASSING();
        repeat_tokens(&l, &r);
        const int by_weight = rng_chance(&r, 70);
        const int each = rng_chance(&r, 50);
        const int64_t most = each ? l.tokens : l.tokens * l.k, capacity = most > 1 ? rng_int(&r, 1, most) : 1;
        const int64_t fewer = drop(&l, capacity, each, by_weight, &close);
        if (by_weight && close < 1e-5) { /* rounding might decide */
            layer_free(&l);
            guards_release(mark);
            continue;
        }
        with_capacity(&l, capacity, each, by_weight);
        run(&l, TEGROUP_OP_FORWARD);
        ASSERT_PASSING();
        dropped += fewer;
        lighter += by_weight ? fewer : 0;
        for (int64_t t = 0; t < l.tokens; t++)
            for (int64_t o = 0; o < l.outputs; o++) {
                double size, want = reference(&l, t, o, &size);
                ASSERT_LE(fabs(load(l.dtype, l.desc.output.data, t * l.outputs + o) - want), output_bound(&l, size));
            }
        if (l.dtype == TEGROUP_DTYPE_F64 && by_weight && fewer > 0 && l.tokens <= 8 && margin(&l) >= 1e-3) {
            gradients++;
            check_every_gradient(&l);
        }
        ASSERT_PASSING();
        ASSERT_EQ(guards_changed(), 0);
        layer_free(&l);
        guards_release(mark);
    }
    ASSERT_GT(dropped, 40);
}

/* The caller's own weights and indices in the place of a router: the output, in FP64 every gradient, and choices without room. */
TEST(moe_layer, given_routing) {
    rng r = rng_seed(9112);
    const tegroup_dtype dtypes[] = {TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16};
    int64_t gradients = 0, dropped = 0;
    for (int64_t i = scaled(200); i > 0 || gradients <= 2 || dropped <= 5; i--) {
        void *mark = guards_mark();
        layer l;
        double close;
        layer_make(&l, &r, dtypes[rng_int(&r, 0, 2)], rng_chance(&r, 80), 0);
        give_routing(&l, &r, rng_int(&r, 0, 3));
        ASSERT_PASSING();
        if (rng_chance(&r, 40)) {
            const int each = rng_chance(&r, 50);
            const int64_t most = each ? l.tokens : l.tokens * l.k, capacity = most > 1 ? rng_int(&r, 1, most) : 1;
            dropped += drop(&l, capacity, each, i % 2 != 0, &close);
            with_capacity(&l, capacity, each, i % 2 != 0);
        }
        run(&l, TEGROUP_OP_FORWARD);
        ASSERT_PASSING();
        for (int64_t t = 0; t < l.tokens; t++)
            for (int64_t o = 0; o < l.outputs; o++) {
                double size, want = reference(&l, t, o, &size);
                ASSERT_LE(fabs(load(l.dtype, l.desc.output.data, t * l.outputs + o) - want), output_bound(&l, size));
            }
        if (l.dtype == TEGROUP_DTYPE_F64 && l.desc.grad_output.dtype != TEGROUP_DTYPE_UNSET && l.tokens <= 8) {
            gradients += l.tokens > 0;
            check_every_gradient(&l);
        }
        ASSERT_PASSING();
        ASSERT_EQ(guards_changed(), 0);
        layer_free(&l);
        guards_release(mark);
    }
}

/* ---- formats ------------------------------------------------------------------------------------------------------------ */

static unsigned char *bytes_of(const result *results) {
    size_t all = 0;
    for (int i = 0; i < RESULTS; i++) all += results[i].bytes;
    unsigned char *copy = (unsigned char *)scratch(all + 1), *at = copy;
    for (int i = 0; i < RESULTS; at += results[i++].bytes)
        if (results[i].bytes > 0) memcpy(at, results[i].data, results[i].bytes);
    return copy;
}

/* In every format, and with weights alone in one: every bit is that of the separate calls, which quantise permuted copies, and
 * the output is near that of values which nobody quantised. */
TEST(moe_layer, formats_as_by_hand) {
    rng r = rng_seed(9108);
    for (int which = 0; which < LAYER_FORMATS; which++) {
        const layer_format *f = &layer_formats[which];
        double apart = 0, size = 0, unused;
        for (int64_t i = scaled(8) + 4; i > 0; i--) {
            void *mark = guards_mark();
            layer l;
            result results[RESULTS];
            layer_made_of = rng_chance(&r, 15) ? 16 : 2; /* blocks of the scalings are seldom whole */
            layer_make(&l, &r, rng_chance(&r, 70) ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F32, 1, 0);
            layer_made_of = 1;
            if (rng_chance(&r, 30) && l.tokens > 0) l.desc.capacity = rng_int(&r, 1, l.tokens * l.k + 9); /* by_hand has as many rows as it has choices */
            if (l.desc.capacity < l.tokens * l.k) l.desc.capacity = 0;
            if (l.desc.capacity == 0 && l.tokens > 0 && rng_chance(&r, 40)) l.desc.expert_capacity = l.tokens + rng_int(&r, 0, 3); /* gaps between experts' rows change no bit */
            layer_in_format(&l, f);
            layer_plan(&l, rng_int(&r, 0, 3));
            ASSERT_PASSING();
            results_of(&l.desc, results);
            for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) {
                run(&l, (tegroup_op)op);
                poison(l.desc.experts.options.workspace, l.plan.workspace_bytes);
            }
            ASSERT_PASSING();
            for (int64_t t = 0; t < l.tokens; t++)
                for (int64_t o = 0; o < l.outputs; o++) {
                    const double want = reference(&l, t, o, &unused), got = load(l.dtype, l.desc.output.data, t * l.outputs + o);
                    apart += (got - want) * (got - want), size += want * want;
                }
            ASSERT_EQ(guards_changed(), 0);
            const unsigned char *got = bytes_of(results);
            for (int j = 0; j < RESULTS; j++)
                if (results[j].bytes > 0) poison((void *)(uintptr_t)results[j].data, results[j].bytes);
            by_hand(&l, &l.desc, NULL);
            ASSERT_PASSING();
            const unsigned char *want = bytes_of(results);
            for (int j = 0; j < RESULTS; got += results[j].bytes, want += results[j++].bytes) ASSERT_EQ(memcmp(got, want, results[j].bytes), 0);
            layer_free(&l);
            guards_release(mark);
        }
        printf("%s: %.4f\n", f->name, sqrt(apart / size));
        ASSERT_LE(apart, (f->forward == TEGROUP_DTYPE_F4E2M1 ? 0.3 * 0.3 : 0.1 * 0.1) * size);
        ASSERT_GT(apart, 1e-4 * size); /* something was quantised */
    }
}

/* With recompute, of a layer in a format, each weight gradient by itself has the bits that it has beside the other. Inference needs
 * neither, whatever type values would have. */
TEST(moe_layer, formats_of_one_gradient) {
    rng r = rng_seed(9109);
    for (int i = 0; i < 2 * LAYER_FORMATS; i++) {
        const layer_format *f = &layer_formats[i / 2];
        void *mark = guards_mark();
        layer l;
        layer_made_of = 2;
        for (layer_make(&l, &r, i % 2 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16, 1, 0); l.tokens == 0 || l.desc.experts.fc1_up.weight.dtype != TEGROUP_DTYPE_UNSET;
             layer_make(&l, &r, i % 2 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16, 1, 0))
            layer_free(&l), guards_release(mark);
        layer_made_of = 1;
        layer_in_format(&l, f);
        l.desc.experts.recompute = 1;
        const tegroup_moe_desc whole = l.desc;
        for (int without = 0; without < 3; without++) { /* nothing; fc1's; fc2's */
            tegroup_mlp_weights *weights = without == 1 ? &l.desc.experts.fc1 : &l.desc.experts.fc2;
            tegroup_moe_plan plan;
            tegroup_error error;
            l.desc = whole;
            if (without) memset(&weights->main_grad, 0, sizeof weights->main_grad), memset(&weights->bias_grad, 0, sizeof weights->bias_grad);
            must(tegroup_moe_plan_make(&l.desc, NULL, &plan, &error), &error);
            ASSERT_PASSING();
            l.desc.saved_by_forward_bytes = plan.saved_by_forward_bytes, l.desc.saved_by_forward = guarded(plan.saved_by_forward_bytes);
            l.desc.saved_by_dgrad_bytes = plan.saved_by_dgrad_bytes, l.desc.saved_by_dgrad = guarded(plan.saved_by_dgrad_bytes);
            l.desc.experts.options.workspace_bytes = plan.workspace_bytes, l.desc.experts.options.workspace = guarded(plan.workspace_bytes);
            must(tegroup_moe_forward(&plan, &l.desc, NULL, &error), &error);
            must(tegroup_moe_dgrad(&plan, &l.desc, NULL, &error), &error);
            const tegroup_tensor *gradient = without == 1 ? &whole.experts.fc2.main_grad : &whole.experts.fc1.main_grad;
            const size_t bytes = guarded_find(gradient->data)->bytes;
            unsigned char *before = (unsigned char *)malloc(bytes + 1);
            memcpy(before, gradient->data, bytes);
            if (without) poison(gradient->data, bytes);
            must(tegroup_moe_wgrad(&plan, &l.desc, NULL, &error), &error);
            ASSERT_PASSING();
            if (without) ASSERT_EQ(memcmp(before, gradient->data, bytes), 0);
            free(before);
            memset(&l.desc.grad_output, 0, sizeof l.desc.grad_output * 3); /* grad_output, grad_tokens, grad_logits */
            memset(&l.desc.grad_format, 0, sizeof l.desc.grad_format);
            l.desc.experts.recompute = 0, l.desc.experts.accumulate = 0;
            for (int j = 0; j < 2; j++) {
                tegroup_mlp_weights *w = j ? &l.desc.experts.fc2 : &l.desc.experts.fc1;
                memset(&w->main_grad, 0, sizeof w->main_grad), memset(&w->bias_grad, 0, sizeof w->bias_grad);
            }
            l.desc.saved_by_forward = l.desc.saved_by_dgrad = NULL, l.desc.saved_by_forward_bytes = l.desc.saved_by_dgrad_bytes = 0;
            must(tegroup_moe_plan_make(&l.desc, NULL, &plan, &error), &error);
            ASSERT_PASSING();
        }
        layer_free(&l);
        guards_release(mark);
    }
}

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

/* Each item behind the one before, nothing between; no memory less than `last`, which it then is. */
static void layouts_are_exact(const tegroup_moe_desc *d, size_t last[TEGROUP_MOE_WGRAD_WORKSPACE + 1]) {
    tegroup_moe_plan plan;
    tegroup_error error;
    size_t most = 0;
    ASSERT_EQ(tegroup_moe_plan_make(d, NULL, &plan, &error), TEGROUP_OK);
    for (int m = TEGROUP_MOE_SAVED_BY_FORWARD; m <= TEGROUP_MOE_WGRAD_WORKSPACE; m++) {
        tegroup_layout layout;
        size_t end = 0;
        ASSERT_EQ(tegroup_moe_layout(&plan, (tegroup_moe_memory)m, &layout, &error), TEGROUP_OK);
        for (int32_t at = 0; at < layout.count; at++) {
            ASSERT_EQ(layout.items[at].offset_bytes, end);
            ASSERT_TRUE(layout.items[at].name != NULL && layout.items[at].name[0]);
            end += (layout.items[at].bytes + TEGROUP_ALIGNMENT - 1) / TEGROUP_ALIGNMENT * TEGROUP_ALIGNMENT;
        }
        ASSERT_EQ(layout.total_bytes, end);
        ASSERT_GE(end, last[m]);
        last[m] = end;
        if (m == TEGROUP_MOE_SAVED_BY_FORWARD) ASSERT_EQ(plan.saved_by_forward_bytes, end);
        else if (m == TEGROUP_MOE_SAVED_BY_DGRAD) ASSERT_EQ(plan.saved_by_dgrad_bytes, end);
        else if (end > most) most = end;
    }
    ASSERT_EQ(plan.workspace_bytes, most);
    if (!d->grad_output.dtype) ASSERT_EQ(plan.saved_by_forward_bytes + plan.saved_by_dgrad_bytes, 0);
}

/* With more tokens, more rows in all, or more of each expert. */
TEST(moe_layer, layouts_are_exact_and_grow) {
    rng r = rng_seed(9104);
    for (int64_t i = 3 * scaled(100); i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        size_t last[TEGROUP_MOE_WGRAD_WORKSPACE + 1] = {0};
        layer_make(&l, &r, TEGROUP_DTYPE_F32, rng_chance(&r, 70), 0);
        ASSERT_PASSING();
        for (int64_t size = 0; size < 400; size += 37) {
            tegroup_moe_desc d = l.desc;
            const int64_t tokens = i % 3 == 0 ? size : 50;
            d.tokens.rows = d.router.logits.rows = d.output.rows = tokens;
            if (d.grad_output.dtype) d.grad_output.rows = d.grad_tokens.rows = d.grad_logits.rows = tokens;
            if (i % 3 != 0) d.capacity = d.expert_capacity = 0;
            if (i % 3 == 1) d.capacity = 1 + size;
            if (i % 3 == 2) d.expert_capacity = 1 + size;
            layouts_are_exact(&d, last);
            ASSERT_PASSING();
        }
        layer_free(&l);
        guards_release(mark);
    }
}

/* A model's layer in BF16, with every gradient, those of the weights in F32; to plan alone. */
static tegroup_moe_desc model_layer(tegroup_space space, int64_t tokens, int64_t width, int64_t hidden, int32_t experts, int32_t k, int recompute) {
    tegroup_moe_desc d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.space = space;
    d.tokens = d.output = d.grad_output = d.grad_tokens = tegroup_matrix_of(NULL, tokens, width, TEGROUP_DTYPE_BF16);
    d.router.logits = d.grad_logits = tegroup_matrix_of(NULL, tokens, experts, TEGROUP_DTYPE_F32);
    d.router.k = k;
    d.experts.activation = TEGROUP_ACTIVATION_SWIGLU;
    d.experts.recompute = recompute;
    d.experts.fc1.weight = tegroup_tensor_uniform(experts, 2 * hidden, width, TEGROUP_DTYPE_BF16, NULL);
    d.experts.fc2.weight = tegroup_tensor_uniform(experts, width, hidden, TEGROUP_DTYPE_BF16, NULL);
    d.experts.fc1.main_grad = tegroup_tensor_uniform(experts, 2 * hidden, width, TEGROUP_DTYPE_F32, NULL);
    d.experts.fc2.main_grad = tegroup_tensor_uniform(experts, width, hidden, TEGROUP_DTYPE_F32, NULL);
    return d;
}

/* Qwen3-30B's block, 16 tokens: what is saved, by arithmetic. */
TEST(moe_layer, what_is_saved_by_arithmetic) {
    const int64_t T = 16, E = 128, K = 8, D = 2048, H = 768, rows = T * K;
    const int64_t routing = rows * 4 + rows * 4 + rows * 4; /* indices, rows, weights */
    for (int recompute = 0; recompute < 2; recompute++) {
        const tegroup_moe_desc d = model_layer(TEGROUP_SPACE_HOST, T, D, H, (int32_t)E, (int32_t)K, recompute);
        tegroup_moe_plan plan;
        tegroup_error error;
        tegroup_layout layout;
        int64_t snapshot = 0;
        ASSERT_EQ(tegroup_moe_plan_make(&d, NULL, &plan, &error), TEGROUP_OK);
        ASSERT_EQ(tegroup_moe_layout(&plan, TEGROUP_MOE_SAVED_BY_FORWARD, &layout, &error), TEGROUP_OK);
        for (int32_t i = 0; i < layout.count; i++)
            if (!strcmp(layout.items[i].name, "the snapshot of the routing")) snapshot = (int64_t)layout.items[i].bytes;
        ASSERT_GT(snapshot, 3 * 8 * E);
        ASSERT_LT(snapshot, 5 * 8 * E);
        /* each part is a multiple of 256 bytes here; X, activated and the probabilities are kept, or made again */
        ASSERT_EQ((int64_t)plan.saved_by_forward_bytes - snapshot, routing + rows * 2 * H * 2 + (recompute ? 0 : rows * D * 2 + rows * H * 2 + T * E * 4));
        ASSERT_EQ((int64_t)plan.saved_by_dgrad_bytes, rows * D * 2 + (recompute ? rows * H * 2 : 0));
    }
}

/* What the layer keeps with recompute 1, tokens, which are the caller's, among it, beside the 2 T d + 4 T K n bytes that SonicMoE keeps (by its paper, arXiv
 * 2512.14080): tokens and preactivations, in BF16. The routing is what the layer keeps more. */
TEST(moe_layer, keeps_as_little_as_a_layer_can) {
    static const struct { int64_t tokens, width, hidden; int32_t experts, k; } models[] = {{24576, 1536, 256, 128, 8}, {16384, 2048, 768, 128, 8}, {8192, 7168, 2048, 32, 8},
                                                                                         {8192, 4096, 14336, 8, 2}, {8192, 2880, 2880, 32, 4}};
    tegroup_target gpu;
    memset(&gpu, 0, sizeof gpu);
    gpu.struct_size = sizeof gpu;
    gpu.sm = 90, gpu.built = 1u << TEGROUP_BACKEND_PORTABLE | 1u << TEGROUP_BACKEND_SM90;
    for (int space = TEGROUP_SPACE_HOST; space <= TEGROUP_SPACE_DEVICE; space++)
        for (int m = 0; m < (int)(sizeof models / sizeof *models); m++) {
            const int64_t T = models[m].tokens, D = models[m].width, H = models[m].hidden;
            const tegroup_moe_desc d = model_layer((tegroup_space)space, T, D, H, models[m].experts, models[m].k, 1);
            tegroup_moe_plan plan;
            tegroup_error error;
            ASSERT_EQ(tegroup_moe_plan_make(&d, space == TEGROUP_SPACE_DEVICE ? &gpu : NULL, &plan, &error), TEGROUP_OK);
            const double least = 2.0 * (double)(T * D) + 4.0 * (double)(T * models[m].k * H), kept = 2.0 * (double)(T * D) + (double)plan.saved_by_forward_bytes;
            ASSERT_LE(kept / least, 1.01);
        }
}

/* ---- refusals ----------------------------------------------------------------------------------------------------------- */

static void refused(const layer *l, const tegroup_moe_desc *d, tegroup_op op, tegroup_status status, const char *path) {
    tegroup_error error;
    char told[128];
    memset(&error, 0, sizeof error);
    for (guarded_node *n = guarded_top; n != NULL; n = n->older) if (!n->scratch) guarded_remember(n->data);
    const tegroup_status got = op == TEGROUP_OP_UNSET     ? tegroup_moe_plan_make(d, NULL, (tegroup_moe_plan *)(uintptr_t)&l->plan, &error)
                               : op == TEGROUP_OP_FORWARD ? tegroup_moe_forward(&l->plan, d, NULL, &error)
                               : op == TEGROUP_OP_DGRAD   ? tegroup_moe_dgrad(&l->plan, d, NULL, &error)
                                                          : tegroup_moe_wgrad(&l->plan, d, NULL, &error);
    snprintf(told, sizeof told, "%s%s%s", error.within ? error.within : "", error.within ? "." : "", error.field ? error.field : "");
    if (got != status) printf("%s: %s\n", told, error.rule ? error.rule : "");
    ASSERT_STREQ(told, path);
    ASSERT_EQ(got, status);
    for (guarded_node *n = guarded_top; n != NULL; n = n->older) if (!n->scratch) ASSERT_EQ(guarded_changed(n->data), 0);
}
#define REFUSED(op, change, status, field)                                                                                \
    do {                                                                                                                  \
        tegroup_moe_desc d = l.desc;                                                                                      \
        change;                                                                                                           \
        refused(&l, &d, op, status, field);                                                                               \
        ASSERT_PASSING();                                                                                                 \
    } while (0)

static void fewer_tokens(tegroup_moe_desc *d) {
    tegroup_matrix *matrices[] = {&d->tokens, &d->output, &d->grad_output, &d->grad_tokens, &d->grad_logits, &d->router.logits};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) matrices[i]->rows -= matrices[i]->rows > 0;
}

/* A weight, or its gradient, as a list of matrices in host memory. */
static void as_list(tegroup_tensor *t) {
    void **list = guarded((size_t)t->shape.groups * sizeof(void *));
    for (int32_t e = 0; e < t->shape.groups; e++) list[e] = (char *)t->data + (size_t)(e * t->shape.rows * t->shape.cols) * size_of(t->dtype);
    t->data = NULL, t->pointers = list, t->pointers_space = TEGROUP_SPACE_HOST;
}

TEST(moe_layer, refuses_and_names_the_field) {
    rng r = rng_seed(9105);
    layer l;
    void *mark = guards_mark();
    for (layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 0); l.tokens < 2 || l.experts < 3 || !l.biases; layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 0)) layer_free(&l);
    ASSERT_PASSING();
    run(&l, TEGROUP_OP_FORWARD);
    ASSERT_PASSING();
    const tegroup_op plan = TEGROUP_OP_UNSET, forward = TEGROUP_OP_FORWARD, dgrad = TEGROUP_OP_DGRAD, wgrad = TEGROUP_OP_WGRAD;
    guarded_find(l.desc.experts.options.workspace)->scratch = 1; /* nothing else is written, not even what forward saved */
    REFUSED(plan, d.struct_size = 3, TEGROUP_ERROR_STRUCT_SIZE, "struct_size");
    REFUSED(plan, d.space = TEGROUP_SPACE_UNSET, TEGROUP_ERROR_UNSET, "space");
    REFUSED(plan, d.tokens.dtype = TEGROUP_DTYPE_UNSET, TEGROUP_ERROR_UNSET, "tokens.dtype");
    REFUSED(plan, d.tokens.dtype = TEGROUP_DTYPE_I32, TEGROUP_ERROR_DTYPE, "tokens.dtype");
    REFUSED(plan, d.tokens.rows = -1, TEGROUP_ERROR_VALUE, "tokens.rows");
    REFUSED(plan, d.tokens.cols++, TEGROUP_ERROR_SHAPE, "tokens.cols");
    REFUSED(plan, d.router.k = 0, TEGROUP_ERROR_VALUE, "router.k");
    REFUSED(plan, d.router.k = l.experts + 1, TEGROUP_ERROR_VALUE, "router.k");
    REFUSED(plan, d.router.normalize = 2, TEGROUP_ERROR_VALUE, "router.normalize");
    REFUSED(plan, d.capacity = -1, TEGROUP_ERROR_VALUE, "capacity");
    REFUSED(plan, d.experts.fc1.weight.shape.groups = 0, TEGROUP_ERROR_VALUE, "experts.fc1.weight.shape.groups");
    REFUSED(plan, d.experts.fc1.weight.shape.rows = d.experts.fc1.bias.shape.cols = INT64_C(1) << 32, TEGROUP_ERROR_VALUE, "experts.fc1.weight.shape.rows");
    REFUSED(plan, d.experts.fc1_up.weight = d.experts.fc1.weight; d.experts.fc1.weight.shape.rows = d.experts.fc1.bias.shape.cols = INT64_C(1) << 62, TEGROUP_ERROR_VALUE,
            "experts.fc1.weight.shape.rows");
    REFUSED(plan, d.experts.fc2.weight.shape.rows = -1, TEGROUP_ERROR_VALUE, "experts.fc2.weight.shape.rows");
    REFUSED(plan, d.experts.fc1.weight.dtype = TEGROUP_DTYPE_F64, TEGROUP_ERROR_DTYPE, "experts.fc1.weight.dtype");
    REFUSED(plan, d.experts.fc2.weight.dtype = TEGROUP_DTYPE_UNSET, TEGROUP_ERROR_UNSET, "experts.fc2.weight.dtype");
    REFUSED(plan, d.experts.row_scale = &l, TEGROUP_ERROR_COMBINATION, "experts.row_scale");
    REFUSED(plan, d.experts.row_scale_dtype = TEGROUP_DTYPE_F32, TEGROUP_ERROR_COMBINATION, "experts.row_scale_dtype");
    REFUSED(plan, d.experts.fc2.weight.shape.cols = INT64_MIN + 6, TEGROUP_ERROR_VALUE, "experts.fc2.weight.shape.cols");
    REFUSED(plan, d.experts.fc2.bias.dtype = TEGROUP_DTYPE_F64, TEGROUP_ERROR_UNSUPPORTED, "experts.fc2.bias.dtype");
    REFUSED(plan, d.tokens.dtype = d.grad_output.dtype = d.experts.fc1.weight.dtype = d.experts.fc2.weight.dtype = TEGROUP_DTYPE_F64, TEGROUP_ERROR_DTYPE, "tokens.dtype");
    REFUSED(plan, d.rows_format.rule.amax_floor = 1, TEGROUP_ERROR_COMBINATION, "rows_format.rule.method");
    REFUSED(plan, d.space = TEGROUP_SPACE_DEVICE, TEGROUP_ERROR_NOT_BUILT, "target.built");
    REFUSED(plan, d.output.rows--, TEGROUP_ERROR_SHAPE, "output.rows");
    REFUSED(plan, d.output.cols++, TEGROUP_ERROR_SHAPE, "output.cols");
    REFUSED(plan, d.output.dtype = TEGROUP_DTYPE_I32, TEGROUP_ERROR_DTYPE, "output.dtype");
    REFUSED(plan, d.output.ld = 1, TEGROUP_ERROR_LAYOUT, "output.ld");
    REFUSED(plan, d.grad_output.rows++, TEGROUP_ERROR_SHAPE, "grad_output.rows");
    REFUSED(plan, d.grad_tokens.cols++, TEGROUP_ERROR_SHAPE, "grad_tokens.cols");
    REFUSED(plan, d.grad_logits.cols--, TEGROUP_ERROR_SHAPE, "grad_logits.cols");
    REFUSED(plan, d.router.logits.dtype = TEGROUP_DTYPE_UNSET, TEGROUP_ERROR_UNSET, "router.logits.dtype");
    REFUSED(plan, d.router.logits.rows--, TEGROUP_ERROR_SHAPE, "router.logits.rows");
    REFUSED(plan, d.router.logits.cols++, TEGROUP_ERROR_SHAPE, "router.logits.cols");
    REFUSED(plan, d.router.indices = tegroup_matrix_of(NULL, l.tokens, l.k + 1, TEGROUP_DTYPE_I32), TEGROUP_ERROR_SHAPE, "router.indices.cols");
    REFUSED(plan, d.router.indices = tegroup_matrix_of(NULL, l.tokens, l.k, TEGROUP_DTYPE_F32), TEGROUP_ERROR_DTYPE, "router.indices.dtype");
    REFUSED(plan, d.router.threads = -1, TEGROUP_ERROR_VALUE, "router.threads");
    REFUSED(plan, d.router.balance_coefficient = (double)INFINITY, TEGROUP_ERROR_VALUE, "router.balance_coefficient");
    REFUSED(plan, d.router.scheme.z_coefficient = (double)NAN, TEGROUP_ERROR_VALUE, "router.scheme.z_coefficient");
    REFUSED(plan, d.loss_scale = (double)NAN, TEGROUP_ERROR_VALUE, "loss_scale");
    REFUSED(plan, d.experts.options.threads = -1, TEGROUP_ERROR_VALUE, "experts.options.threads");
    REFUSED(plan, d.experts.fc2.weight.ld = 1, TEGROUP_ERROR_LAYOUT, "experts.fc2.weight.ld");
    REFUSED(plan, d.grad_output.dtype = TEGROUP_DTYPE_UNSET, TEGROUP_ERROR_COMBINATION, "grad_tokens");
    REFUSED(plan, d.grad_output.dtype = TEGROUP_DTYPE_BF16, TEGROUP_ERROR_DTYPE, "grad_output.dtype");
    REFUSED(plan, d.router.weights = tegroup_matrix_of(NULL, l.tokens, l.k, TEGROUP_DTYPE_F64), TEGROUP_ERROR_DTYPE, "router.weights.dtype");
    REFUSED(plan, d.experts.input.dtype = TEGROUP_DTYPE_F32, TEGROUP_ERROR_COMBINATION, "experts.input.dtype");
    REFUSED(plan, d.experts.fc2_bias_scaled = 1, TEGROUP_ERROR_COMBINATION, "experts.fc2_bias_scaled");
    REFUSED(plan, d.experts.gather_input.rows = 1, TEGROUP_ERROR_COMBINATION, "experts.gather_input.rows");
    REFUSED(plan, d.experts.gather_grad_output.rows = 1, TEGROUP_ERROR_COMBINATION, "experts.gather_grad_output.rows");
    REFUSED(plan, d.experts.preactivation.data = &l, TEGROUP_ERROR_UNSET, "experts.preactivation.dtype");
    REFUSED(plan, d.experts.out_tail = TEGROUP_TAIL_ZERO, TEGROUP_ERROR_COMBINATION, "experts.out_tail");
    REFUSED(plan, d.experts.activation = TEGROUP_ACTIVATION_UNSET, TEGROUP_ERROR_UNSET, "experts.activation");
    REFUSED(forward, d.tokens.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "tokens.data");
    REFUSED(forward, d.output.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "output.data");
    REFUSED(forward, d.output.rows--, TEGROUP_ERROR_SHAPE, "output.rows");
    REFUSED(forward, d.output.cols++, TEGROUP_ERROR_SHAPE, "output.cols");
    REFUSED(forward, d.output.data = d.tokens.data, TEGROUP_ERROR_OVERLAP, "output.data");
    REFUSED(forward, d.router.logits.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "router.logits.data");
    REFUSED(forward, d.router.logits.data = d.saved_by_forward, TEGROUP_ERROR_OVERLAP, "saved_by_forward");
    REFUSED(forward, d.saved_by_forward = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "saved_by_forward");
    REFUSED(forward, d.saved_by_forward_bytes--, TEGROUP_ERROR_WORKSPACE, "saved_by_forward_bytes");
    REFUSED(forward, d.experts.options.workspace_bytes--, TEGROUP_ERROR_WORKSPACE, "experts.options.workspace_bytes");
    REFUSED(forward, d.experts.options.workspace = d.saved_by_forward, TEGROUP_ERROR_OVERLAP, "saved_by_forward");
    REFUSED(forward, d.experts.fc1.weight.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "experts.fc1.weight.data");
    REFUSED(forward, d.experts.fc2.bias.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "experts.fc2.bias.data");
    REFUSED(forward, d.capacity = l.tokens * l.k + 1, TEGROUP_ERROR_PLAN, "capacity");
    REFUSED(forward, d.router.k = l.k == 1 ? 2 : 1, TEGROUP_ERROR_PLAN, l.k == 1 ? "capacity" : "router.k");
    REFUSED(forward, d.space = TEGROUP_SPACE_DEVICE, TEGROUP_ERROR_PLAN, "space");
    REFUSED(forward, d.router.normalize = !d.router.normalize, TEGROUP_ERROR_PLAN, "router.normalize");
    REFUSED(dgrad, d.router.scheme.score = TEGROUP_SCORE_SIGMOID, TEGROUP_ERROR_PLAN, "router.scheme.score");
    REFUSED(forward, d.router.scheme.bias = tegroup_matrix_of(&l, 1, l.experts, TEGROUP_DTYPE_F32), TEGROUP_ERROR_PLAN, "router.scheme.bias.dtype");
    REFUSED(dgrad, d.router.balance_coefficient = d.router.balance_coefficient != 0 ? 0 : 0.5, TEGROUP_ERROR_PLAN, "router.balance_coefficient");
    REFUSED(forward, d.router.scheme.z_coefficient = 0.5, TEGROUP_ERROR_PLAN, "router.scheme.z_coefficient");
    REFUSED(forward, d.experts.activation = TEGROUP_ACTIVATION_GEGLU, TEGROUP_ERROR_PLAN, "experts.activation");
    REFUSED(forward, d.experts.options.threads = -1, TEGROUP_ERROR_VALUE, "experts.options.threads");
    REFUSED(forward, d.router.z_loss = (double *)d.output.data, TEGROUP_ERROR_PLAN, "router.z_loss");
    REFUSED(forward, d.experts.fc1_up = d.experts.fc1, TEGROUP_ERROR_PLAN, "experts.fc1_up.weight.dtype");
    REFUSED(dgrad, d.experts.fc2.weight.shape.groups++, TEGROUP_ERROR_SHAPE, "experts.fc2.weight.shape.groups");
    REFUSED(dgrad, d.experts.fc2.bias.shape.groups++, TEGROUP_ERROR_SHAPE, "experts.fc2.bias.shape.groups");
    REFUSED(dgrad, d.experts.fc2.bias.shape.rows = 2, TEGROUP_ERROR_SHAPE, "experts.fc2.bias.shape.rows");
    REFUSED(dgrad, d.experts.fc2.bias.shape.cols++, TEGROUP_ERROR_SHAPE, "experts.fc2.bias.shape.cols");
    REFUSED(forward, d.experts.options.check_level = (tegroup_check_level)2, TEGROUP_ERROR_VALUE, "experts.options.check_level");
    REFUSED(dgrad, memset(&d.experts.fc2.bias, 0, sizeof d.experts.fc2.bias), TEGROUP_ERROR_PLAN, "experts.fc2.bias.dtype");
    REFUSED(dgrad, fewer_tokens(&d), TEGROUP_ERROR_CAPACITY, "saved_by_forward"); /* than forward had */
    REFUSED(wgrad, fewer_tokens(&d), TEGROUP_ERROR_CAPACITY, "saved_by_forward");
    REFUSED(dgrad, d.saved_by_forward = guarded(d.saved_by_forward_bytes), TEGROUP_ERROR_CAPACITY, "saved_by_forward");
    tegroup_moe_desc before = l.desc; /* forward had fewer */
    fewer_tokens(&before);
    ASSERT_EQ(tegroup_moe_forward(&l.plan, &before, NULL, NULL), TEGROUP_OK);
    REFUSED(dgrad, (void)0, TEGROUP_ERROR_CAPACITY, "saved_by_forward");
    run(&l, TEGROUP_OP_FORWARD);
    REFUSED(dgrad, d.grad_output.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "grad_output.data");
    REFUSED(dgrad, d.grad_tokens.data = d.grad_output.data, TEGROUP_ERROR_OVERLAP, "grad_tokens.data");
    REFUSED(dgrad, d.grad_logits.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "grad_logits.data");
    REFUSED(wgrad, d.experts.fc1.main_grad.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "experts.fc1.main_grad.data");
    REFUSED(dgrad, d.saved_by_dgrad_bytes--, TEGROUP_ERROR_WORKSPACE, "saved_by_dgrad_bytes");
    REFUSED(wgrad, d.saved_by_dgrad = d.saved_by_forward, TEGROUP_ERROR_OVERLAP, "saved_by_forward");
    REFUSED(plan, d.experts.recompute = 2, TEGROUP_ERROR_COMBINATION, "experts.recompute");
    REFUSED(plan, d.drops_by_weight = 2, TEGROUP_ERROR_VALUE, "drops_by_weight");
    REFUSED(plan, d.adds_to_output = 2, TEGROUP_ERROR_VALUE, "adds_to_output");
    REFUSED(plan, d.expert_capacity = -1, TEGROUP_ERROR_VALUE, "expert_capacity");
    REFUSED(plan, d.expert_capacity = 3; d.capacity = 4, TEGROUP_ERROR_COMBINATION, "capacity");
    REFUSED(forward, d.expert_capacity = 3, TEGROUP_ERROR_PLAN, "expert_capacity");
    REFUSED(forward, d.adds_to_output = -1, TEGROUP_ERROR_VALUE, "adds_to_output");
    REFUSED(plan, d.adds_to_grad_tokens = 2, TEGROUP_ERROR_VALUE, "adds_to_grad_tokens");
    REFUSED(forward, d.drops_by_weight = 1, TEGROUP_ERROR_PLAN, "drops_by_weight");
    /* formats */
    const tegroup_moe_format blocks = moe_format(&layer_formats[0], TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_BF16);
    REFUSED(plan, d.rows_format.scaling = TEGROUP_SCALING_COUNT, TEGROUP_ERROR_VALUE, "rows_format.scaling");
    REFUSED(plan, d.grad_format.scaling = (tegroup_scaling)-1, TEGROUP_ERROR_VALUE, "grad_format.scaling");
    REFUSED(plan, d.rows_format.dtype = TEGROUP_DTYPE_F8E4M3, TEGROUP_ERROR_COMBINATION, "rows_format.dtype");
    REFUSED(plan, d.grad_format.scale_dtype = TEGROUP_DTYPE_F8E8M0, TEGROUP_ERROR_COMBINATION, "grad_format.scale_dtype");
    REFUSED(plan, d.rows_format.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED, TEGROUP_ERROR_COMBINATION, "rows_format.columnwise_order");
    REFUSED(plan, d.grad_format.columnwise_order = TEGROUP_COLUMNWISE_BF16, TEGROUP_ERROR_COMBINATION, "grad_format.columnwise_order");
    REFUSED(plan, d.rows_format = blocks; d.rows_format.columnwise_order = TEGROUP_COLUMNWISE_F16, TEGROUP_ERROR_DTYPE, "rows_format.columnwise_order");
    REFUSED(plan, d.grad_format.rule = blocks.rule, TEGROUP_ERROR_COMBINATION, "grad_format.rule.method");
    REFUSED(plan, d.rows_format = blocks; d.rows_format.dtype = TEGROUP_DTYPE_UNSET, TEGROUP_ERROR_UNSET, "rows_format.dtype");
    REFUSED(plan, d.rows_format = blocks; d.rows_format.dtype = TEGROUP_DTYPE_BF16, TEGROUP_ERROR_DTYPE, "rows_format.dtype");
    REFUSED(plan, d.rows_format = blocks; d.rows_format.rule.method = TEGROUP_SCALE_UNSET, TEGROUP_ERROR_UNSET, "rows_format.rule.method");
    REFUSED(plan, d.rows_format = blocks; d.rows_format.rule.method = TEGROUP_SCALE_GIVEN, TEGROUP_ERROR_UNSUPPORTED, "rows_format.rule.method");
    REFUSED(plan, d.rows_format = blocks; d.rows_format.columnwise_order = (tegroup_columnwise_order)5, TEGROUP_ERROR_VALUE, "rows_format.columnwise_order");
    REFUSED(plan, d.rows_format = blocks; d.tokens.dtype = d.grad_output.dtype = TEGROUP_DTYPE_F64, TEGROUP_ERROR_DTYPE, "tokens.dtype");
    REFUSED(plan, d.grad_format = blocks, TEGROUP_ERROR_UNSUPPORTED, "grad_format.scaling"); /* fc2 has a bias */
    REFUSED(plan, memset(&d.grad_output, 0, sizeof d.grad_output * 3); d.experts.recompute = 0; memset(&d.experts.fc1.main_grad, 0, sizeof(tegroup_tensor) * 2);
            memset(&d.experts.fc2.main_grad, 0, sizeof(tegroup_tensor) * 2); d.grad_format = blocks, TEGROUP_ERROR_COMBINATION, "grad_format.scaling");
    REFUSED(plan, d.experts.activated_rule = blocks.rule, TEGROUP_ERROR_COMBINATION, "experts.activated_rule.method");
    REFUSED(plan, d.experts.grad_rule = blocks.rule, TEGROUP_ERROR_COMBINATION, "experts.grad_rule.method");
    REFUSED(forward, d.rows_format = blocks, TEGROUP_ERROR_PLAN, "rows_format.scaling");
    REFUSED(forward, memset(&d.experts.fc1.main_grad, 0, sizeof(tegroup_tensor) * 2), TEGROUP_ERROR_PLAN, "experts.fc1.main_grad.dtype");
    /* outputs beside whatever else the call touches */
    REFUSED(forward, d.output.data = d.experts.fc1.weight.data, TEGROUP_ERROR_OVERLAP, "output.data");
    REFUSED(forward, d.output.data = d.experts.fc2.bias.data, TEGROUP_ERROR_OVERLAP, "output.data");
    REFUSED(forward, d.router.scheme.token_mask = (const uint8_t *)d.saved_by_forward, TEGROUP_ERROR_OVERLAP, "saved_by_forward");
    REFUSED(dgrad, d.grad_tokens.data = d.experts.fc1.weight.data, TEGROUP_ERROR_OVERLAP, "grad_tokens.data");
    REFUSED(dgrad, d.grad_logits.data = d.experts.fc2.weight.data, TEGROUP_ERROR_OVERLAP, "grad_logits.data");
    REFUSED(wgrad, d.experts.fc1.main_grad.data = d.saved_by_forward, TEGROUP_ERROR_OVERLAP, "saved_by_forward");
    /* what the router's backward call refuses, before the first product of dgrad writes */
    REFUSED(dgrad, d.router.threads = -1, TEGROUP_ERROR_VALUE, "router.threads");
    REFUSED(dgrad, d.router.scheme.route_factor = -1, TEGROUP_ERROR_VALUE, "router.scheme.route_factor");
    /* the router writes for the caller before the experts read their weights */
    layer_free(&l);
    guards_release(mark);
    mark = guards_mark();
    layer_make(&l, &r, TEGROUP_DTYPE_F32, 0, 0);
    ASSERT_PASSING();
    l.desc.router.counts = tegroup_matrix_of(guarded((size_t)l.experts * 8), 1, l.experts, TEGROUP_DTYPE_I64);
    l.desc.router.balance_coefficient = 0.5; /* a loss may then be wanted in any call */
    l.desc.router.scheme.bias = tegroup_matrix_of(guarded((size_t)l.experts * 4), 1, l.experts, TEGROUP_DTYPE_F32);
    ASSERT_EQ(tegroup_moe_plan_make(&l.desc, NULL, &l.plan, NULL), TEGROUP_OK);
    l.desc.saved_by_forward_bytes = l.plan.saved_by_forward_bytes;
    l.desc.experts.options.workspace = guarded(l.plan.workspace_bytes);
    l.desc.experts.options.workspace_bytes = l.plan.workspace_bytes;
    guarded_find(l.desc.experts.options.workspace)->scratch = 1;
    REFUSED(forward, d.experts.fc1.weight.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "experts.fc1.weight.data");
    REFUSED(forward, d.router.counts.data = d.experts.fc1.weight.data, TEGROUP_ERROR_OVERLAP, "router.counts.data");
    REFUSED(forward, d.router.balance_loss = (double *)d.tokens.data, TEGROUP_ERROR_OVERLAP, "router.balance_loss");
    REFUSED(forward, d.router.scheme.bias.data = d.output.data, TEGROUP_ERROR_OVERLAP, "output.data");
    REFUSED(forward, d.router.z_loss = (double *)d.experts.fc2.weight.data, TEGROUP_ERROR_OVERLAP, "router.z_loss");
    REFUSED(forward, memset(&d.router.counts, 0, sizeof d.router.counts), TEGROUP_ERROR_PLAN, "router.counts.dtype");
    REFUSED(forward, d.router.counts.cols--, TEGROUP_ERROR_SHAPE, "router.counts.cols");
    layer_in_format(&l, &layer_formats[1]); /* both copies of a quantised weight are read */
    layer_plan(&l, 0);
    ASSERT_PASSING();
    guarded_find(l.desc.experts.options.workspace)->scratch = 1;
    REFUSED(forward, d.router.counts.data = d.experts.fc1.weight.scale_inv, TEGROUP_ERROR_OVERLAP, "router.counts.data");
    REFUSED(forward, d.output.data = d.experts.fc2.weight.columnwise_data, TEGROUP_ERROR_OVERLAP, "output.data");
    REFUSED(forward, d.rows_format.rule.power_of_two = !d.rows_format.rule.power_of_two, TEGROUP_ERROR_PLAN,
            "rows_format.rule.power_of_two");
    REFUSED(forward, d.rows_format.dtype = TEGROUP_DTYPE_F8E5M2, TEGROUP_ERROR_PLAN, "rows_format.dtype");
    REFUSED(forward, d.rows_format.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA, TEGROUP_ERROR_PLAN, "rows_format.columnwise_order");
    REFUSED(forward, d.rows_format.columnwise_order = TEGROUP_COLUMNWISE_F32, TEGROUP_ERROR_PLAN, "rows_format.columnwise_order");
    layer_free(&l);
    guards_release(mark);
}

/* recompute is about what wgrad reads: without a gradient of fc2's weight that is the tokens alone, and nothing is activated again. */
TEST(moe_layer, refuses_beside_a_given_routing) {
    rng r = rng_seed(9113);
    layer l;
    void *mark = guards_mark();
    const tegroup_op plan = TEGROUP_OP_UNSET, forward = TEGROUP_OP_FORWARD, dgrad = TEGROUP_OP_DGRAD;
    for (layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 0); l.tokens < 2; layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 0)) layer_free(&l);
    const tegroup_matrix logits = l.desc.router.logits, grad_logits = l.desc.grad_logits, some = tegroup_matrix_of(NULL, l.tokens, l.k, TEGROUP_DTYPE_F32);
    REFUSED(plan, d.grad_weights = some, TEGROUP_ERROR_COMBINATION, "grad_weights");
    REFUSED(plan, d.given_weights = some, TEGROUP_ERROR_UNSET, "router.scheme.given_indices.dtype");
    give_routing(&l, &r, 0);
    ASSERT_PASSING();
    run(&l, TEGROUP_OP_FORWARD);
    ASSERT_PASSING();
    guarded_find(l.desc.experts.options.workspace)->scratch = 1;
    REFUSED(plan, d.given_weights.dtype = TEGROUP_DTYPE_F64, TEGROUP_ERROR_DTYPE, "given_weights.dtype");
    REFUSED(plan, d.given_weights.cols++, TEGROUP_ERROR_SHAPE, "given_weights.cols");
    REFUSED(plan, d.router.scheme.given_indices.rows--, TEGROUP_ERROR_SHAPE, "router.scheme.given_indices.rows");
    REFUSED(plan, d.router.scheme.given_indices.dtype = TEGROUP_DTYPE_F32, TEGROUP_ERROR_DTYPE, "router.scheme.given_indices.dtype");
    REFUSED(plan, d.grad_weights.dtype = TEGROUP_DTYPE_F64, TEGROUP_ERROR_DTYPE, "grad_weights.dtype");
    REFUSED(plan, d.grad_weights.ld = l.k + 1, TEGROUP_ERROR_LAYOUT, "grad_weights.ld");
    REFUSED(plan, memset(&d.grad_output, 0, sizeof d.grad_output * 2); d.experts.recompute = 0; memset(&d.experts.fc1.main_grad, 0, sizeof(tegroup_tensor) * 2);
            memset(&d.experts.fc2.main_grad, 0, sizeof(tegroup_tensor) * 2), TEGROUP_ERROR_COMBINATION, "grad_weights");
    REFUSED(plan, d.router.logits = logits, TEGROUP_ERROR_COMBINATION, "router.logits.dtype");
    REFUSED(plan, d.router.probabilities = some, TEGROUP_ERROR_COMBINATION, "router.probabilities.dtype");
    REFUSED(plan, d.router.weights = some, TEGROUP_ERROR_COMBINATION, "router.weights.dtype");
    REFUSED(plan, d.router.indices = some, TEGROUP_ERROR_COMBINATION, "router.indices.dtype");
    REFUSED(plan, d.router.counts = some, TEGROUP_ERROR_COMBINATION, "router.counts.dtype");
    REFUSED(plan, d.router.loss_gradients = some, TEGROUP_ERROR_COMBINATION, "router.loss_gradients.dtype");
    REFUSED(plan, d.grad_logits = grad_logits, TEGROUP_ERROR_COMBINATION, "grad_logits.dtype");
    REFUSED(plan, d.router.normalize = 1, TEGROUP_ERROR_COMBINATION, "router.normalize");
    REFUSED(plan, d.router.balance_coefficient = 0.5, TEGROUP_ERROR_COMBINATION, "router.balance_coefficient");
    REFUSED(plan, d.router.z_loss = (double *)&l, TEGROUP_ERROR_COMBINATION, "router.z_loss");
    REFUSED(plan, d.router.threads = 1, TEGROUP_ERROR_COMBINATION, "router.threads");
    REFUSED(plan, d.router.scheme.route_factor = 2, TEGROUP_ERROR_COMBINATION, "router.scheme");
    REFUSED(plan, d.router.scheme.token_mask = (const uint8_t *)&l, TEGROUP_ERROR_COMBINATION, "router.scheme");
    REFUSED(plan, d.router.scheme.topk_group = 1, TEGROUP_ERROR_COMBINATION, "router.scheme");
    REFUSED(forward, memset(&d.given_weights, 0, sizeof d.given_weights); memset(&d.grad_weights, 0, sizeof d.grad_weights); d.router.logits = logits, TEGROUP_ERROR_PLAN,
            "given_weights.dtype");
    REFUSED(forward, memset(&d.grad_weights, 0, sizeof d.grad_weights), TEGROUP_ERROR_PLAN, "grad_weights.dtype");
    REFUSED(forward, d.given_weights.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "given_weights.data");
    REFUSED(forward, d.router.scheme.given_indices.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "router.scheme.given_indices.data");
    REFUSED(forward, d.given_weights.data = d.output.data, TEGROUP_ERROR_OVERLAP, "output.data");
    REFUSED(forward, d.router.scheme.given_indices.data = d.output.data, TEGROUP_ERROR_OVERLAP, "output.data");
    REFUSED(dgrad, d.grad_weights.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "grad_weights.data");
    REFUSED(dgrad, d.grad_weights.data = d.grad_output.data, TEGROUP_ERROR_OVERLAP, "grad_weights.data");
    REFUSED(dgrad, d.grad_weights.data = d.saved_by_forward, TEGROUP_ERROR_OVERLAP, "saved_by_forward");
    ASSERT_EQ(guards_changed(), 0);
    layer_free(&l);
    guards_release(mark);
}

TEST(moe_layer, recompute_of_tokens_alone) {
    rng r = rng_seed(9109);
    for (int64_t i = scaled(40); i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 0);
        ASSERT_PASSING();
        tegroup_mlp_desc *experts = &l.desc.experts;
        memset(&experts->fc2.main_grad, 0, sizeof experts->fc2.main_grad), memset(&experts->fc2.bias_grad, 0, sizeof experts->fc2.bias_grad);
        const size_t bytes = (size_t)(l.experts * 2 * l.hidden * l.width) * 4;
        void *grads[2] = {guarded(bytes), guarded(bytes)};
        size_t saved[2];
        for (int recompute = 0; recompute < 2; recompute++) {
            experts->recompute = recompute;
            experts->fc1.main_grad.data = grads[recompute];
            layer_plan(&l, 0);
            saved[recompute] = l.plan.saved_by_forward_bytes;
            for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) run(&l, (tegroup_op)op);
            ASSERT_PASSING();
        }
        ASSERT_EQ(memcmp(grads[0], grads[1], bytes), 0);
        ASSERT_TRUE(l.tokens == 0 || saved[1] < saved[0]);
        ASSERT_EQ(guards_changed(), 0);
        layer_free(&l);
        guards_release(mark);
    }
}

/* The plan has losses, calls need not: with coefficients of 0 they have the bits of a plan without. */
TEST(moe_layer, losses_in_some_calls) {
    rng r = rng_seed(9110);
    int64_t differ = 0;
    for (int64_t i = 0; i < 9 + scaled(30); i++) {
        void *mark = guards_mark();
        layer l;
        do layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 0);
        while (l.tokens < 2 && (layer_free(&l), 1));
        ASSERT_PASSING();
        const double balance = i % 3 != 1 ? 0.5 : 0, z = i % 3 != 0 ? 0.25 : 0;
        const size_t bytes = (size_t)(l.tokens * l.experts) * 4;
        void *grads[3];
        double losses[2] = {1, 1};
        memset(&l.desc.router.scheme, 0, sizeof l.desc.router.scheme);
        if (i % 2) l.desc.router.scheme.score = TEGROUP_SCORE_SIGMOID;
        for (int run_of = 0; run_of < 3; run_of++) { /* planned and had; planned, not had; not planned */
            l.desc.router.balance_coefficient = run_of < 2 ? balance : 0, l.desc.router.scheme.z_coefficient = run_of < 2 ? z : 0;
            l.desc.router.balance_loss = l.desc.router.z_loss = NULL;
            layer_plan(&l, 0);
            if (run_of == 0) l.desc.router.balance_loss = &losses[0], l.desc.router.z_loss = &losses[1];
            if (run_of == 1) l.desc.router.balance_coefficient = l.desc.router.scheme.z_coefficient = 0;
            l.desc.grad_logits.data = grads[run_of] = guarded(bytes);
            run(&l, TEGROUP_OP_FORWARD);
            run(&l, TEGROUP_OP_DGRAD);
            ASSERT_PASSING();
        }
        ASSERT_EQ(memcmp(grads[1], grads[2], bytes), 0);
        differ += memcmp(grads[0], grads[1], bytes) != 0;
        ASSERT_TRUE((losses[0] > 0) == (balance > 0) && (losses[1] > 0) == (z > 0));
        if (i % 2 == 0) {
            l.desc.router.balance_coefficient = 0.5;
            layer_plan(&l, 0);
            ASSERT_PASSING();
            guarded_find(l.desc.experts.options.workspace)->scratch = 1;
            REFUSED(TEGROUP_OP_FORWARD, d.router.scheme.route_factor = 2.5, TEGROUP_ERROR_PLAN, "router.scheme");
        }
        ASSERT_EQ(guards_changed(), 0);
        layer_free(&l);
        guards_release(mark);
    }
    ASSERT_GT(differ, 4);
}

/* At the deep level, what lists point to is compared with what the layer writes, and what they point to and is written with all that
 * it reads. */
TEST(moe_layer, lists_lie_apart) {
    rng r = rng_seed(9108);
    layer l;
    void *mark = guards_mark();
    for (layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 1); l.tokens < 2 || l.experts < 3 || !l.biases; layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 1)) layer_free(&l);
    const tegroup_op forward = TEGROUP_OP_FORWARD, dgrad = TEGROUP_OP_DGRAD, wgrad = TEGROUP_OP_WGRAD;
    tegroup_mlp_desc *experts = &l.desc.experts;
    l.desc.router.indices = tegroup_matrix_of(guarded((size_t)(l.tokens * l.k) * 4), l.tokens, l.k, TEGROUP_DTYPE_I32);
    experts->recompute = 1; /* wgrad reads tokens */
    tegroup_tensor *listed[] = {&experts->fc1.weight, &experts->fc2.weight, &experts->fc1.main_grad, &experts->fc2.main_grad};
    for (int i = 0; i < 4; i++) as_list(listed[i]);
    layer_plan(&l, 0);
    ASSERT_PASSING();
    run(&l, TEGROUP_OP_FORWARD); /* at the other level, too */
    experts->options.check_level = TEGROUP_CHECK_DEEP;
    run(&l, TEGROUP_OP_FORWARD);
    run(&l, TEGROUP_OP_DGRAD);
    run(&l, TEGROUP_OP_WGRAD);
    ASSERT_PASSING();
    guarded_find(experts->options.workspace)->scratch = 1;
    REFUSED(forward, d.experts.fc1.weight.pointers = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "experts.fc1.weight.pointers");
    REFUSED(wgrad, d.experts.fc2.main_grad.pointers = (void *const *)((const char *)d.experts.fc2.main_grad.pointers + 1), TEGROUP_ERROR_ALIGNMENT, "experts.fc2.main_grad.pointers");
    for (int32_t e = 0; e < l.experts; e++) {
        void *w1 = experts->fc1.weight.pointers[e], *w2 = experts->fc2.weight.pointers[e], *g1 = experts->fc1.main_grad.pointers[e], *g2 = experts->fc2.main_grad.pointers[e];
        REFUSED(forward, d.output.data = w1, TEGROUP_ERROR_OVERLAP, "output.data");
        REFUSED(forward, d.output.data = w2, TEGROUP_ERROR_OVERLAP, "output.data");
        REFUSED(forward, d.router.indices.data = w2, TEGROUP_ERROR_OVERLAP, "router.indices.data");
        REFUSED(dgrad, d.grad_tokens.data = w1, TEGROUP_ERROR_OVERLAP, "grad_tokens.data");
        REFUSED(dgrad, d.grad_logits.data = w2, TEGROUP_ERROR_OVERLAP, "grad_logits.data");
        REFUSED(wgrad, d.tokens.data = g1, TEGROUP_ERROR_OVERLAP, "experts.fc1.main_grad.pointers");
        REFUSED(wgrad, d.tokens.data = g2, TEGROUP_ERROR_OVERLAP, "experts.fc2.main_grad.pointers");
    }
    layer_free(&l);
    guards_release(mark);
}

/* A call may have fewer tokens than the plan, so nothing that it needs may grow as tokens go. */
TEST(moe_layer, fewer_tokens_need_no_more_memory) {
    rng r = rng_seed(9106);
    for (int trial = 0; trial < 40; trial++) {
        const int64_t sequence = trial < 20 ? rng_int(&r, 1, 4000) : 0;
        const int32_t experts = (int32_t)rng_int(&r, 1, 300);
        tegroup_router_desc router;
        tegroup_layout layout;
        size_t before = 0;
        memset(&router, 0, sizeof router);
        router.struct_size = sizeof router;
        router.space = TEGROUP_SPACE_DEVICE;
        router.experts = experts, router.k = 1;
        router.balance_coefficient = 0.5;
        router.scheme.sequence_tokens = sequence;
        for (int64_t sequences = 0; sequences <= 140; sequences++) {
            const int64_t tokens = sequence > 0 ? sequences * sequence : 37 * sequences;
            router.logits = tegroup_matrix_of(NULL, tokens, experts, TEGROUP_DTYPE_F32);
            router.loss_gradients = tegroup_matrix_of(NULL, sequence > 0 ? sequences : 1, experts + 1, TEGROUP_DTYPE_F64);
            ASSERT_EQ(tegroup_router_layout(&router, &layout, NULL), TEGROUP_OK);
            ASSERT_GE(layout.total_bytes, before);
            before = layout.total_bytes;
        }
    }
}

/* No tokens are a call like any other, where losses are means over sequences, too. */
TEST(moe_layer, no_tokens_of_sequences) {
    rng r = rng_seed(9107);
    layer l;
    void *mark = guards_mark();
    for (layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 0); l.tokens < 2; layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 0)) layer_free(&l);
    ASSERT_PASSING();
    l.desc.router.scheme.sequence_tokens = l.tokens;
    l.desc.router.scheme.score = TEGROUP_SCORE_SIGMOID;
    l.desc.router.balance_coefficient = 0.25;
    ASSERT_EQ(tegroup_moe_plan_make(&l.desc, NULL, &l.plan, NULL), TEGROUP_OK);
    l.desc.saved_by_forward = guarded(l.plan.saved_by_forward_bytes), l.desc.saved_by_forward_bytes = l.plan.saved_by_forward_bytes;
    l.desc.saved_by_dgrad = guarded(l.plan.saved_by_dgrad_bytes), l.desc.saved_by_dgrad_bytes = l.plan.saved_by_dgrad_bytes;
    l.desc.experts.options.workspace = guarded(l.plan.workspace_bytes), l.desc.experts.options.workspace_bytes = l.plan.workspace_bytes;
    for (int none = 0; none < 2; none++) {
        tegroup_moe_desc *d = &l.desc;
        if (none) d->tokens.rows = d->router.logits.rows = d->output.rows = d->grad_output.rows = d->grad_tokens.rows = d->grad_logits.rows = 0;
        for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) run(&l, (tegroup_op)op);
        ASSERT_PASSING();
    }
    const float *gradient = (const float *)l.desc.experts.fc1.main_grad.data; /* a sum of no tokens */
    for (int64_t i = 0; i < l.experts * 2 * l.hidden * l.width; i++) ASSERT_EQ(gradient[i], 0.0f);
    layer_free(&l);
    guards_release(mark);
}

TEST_MAIN()
