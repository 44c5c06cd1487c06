/* The whole MoE layer: against a reference in FP64 that knows nothing of groups, against finite differences of every input and
 * parameter, and what it promises of memory, plans and refusals. */
#define TEGROUP_IMPLEMENTATION
#include "support.h"
#include "test.h"

enum { MOST_TOKENS = 24, MOST_EXPERTS = 7, MOST_WIDTH = 12 };

/* A layer in one type, all of it in guarded memory. */
typedef struct layer {
    tegroup_moe_desc desc;
    tegroup_moe_plan plan;
    int64_t tokens, width, hidden, outputs;
    int32_t experts, k, biases;
    tegroup_dtype dtype;
    double *x, *logits, *w1, *w2, *b1, *b2, *dy; /* what the reference works with: exact values of what is stored */
} layer;

static void *kept(layer *l, tegroup_dtype dtype, int64_t count, rng *r, double size, double **values) {
    void *data = guarded_skewed((size_t)count * size_of(dtype), 0);
    (void)l;
    if (values != NULL) *values = (double *)calloc((size_t)count + 1, sizeof **values);
    for (int64_t i = 0; i < count; i++) {
        store(dtype, data, i, size * rng_normal(r));
        if (values != NULL) (*values)[i] = load(dtype, data, i);
    }
    return data;
}

static tegroup_mlp_weights weights_of(layer *l, int64_t n, int64_t k, rng *r, double **w, double **b) {
    tegroup_mlp_weights weights;
    memset(&weights, 0, sizeof weights);
    weights.weight = tegroup_tensor_uniform(l->experts, n, k, l->dtype, kept(l, l->dtype, l->experts * n * k, r, 0.6, w));
    if (l->biases) weights.bias = tegroup_tensor_uniform(l->experts, 1, n, l->dtype, kept(l, l->dtype, l->experts * n, r, 0.3, b));
    return weights;
}

static void with_gradient(layer *l, tegroup_mlp_weights *w, tegroup_dtype dtype) {
    const tegroup_shape *shape = &w->weight.shape;
    const int64_t n = shape->rows, k = shape->cols;
    w->main_grad = tegroup_tensor_uniform(l->experts, n, k, dtype, guarded_skewed((size_t)(l->experts * n * k) * size_of(dtype), 0));
    if (l->biases) w->bias_grad = tegroup_tensor_uniform(l->experts, 1, n, dtype, guarded_skewed((size_t)(l->experts * n) * size_of(dtype), 0));
}

/* backward: 0 forward alone; 1 everything. The plan is for `spare` tokens more than there are. */
static void layer_make(layer *l, rng *r, tegroup_dtype dtype, int backward, int64_t spare) {
    tegroup_error error;
    tegroup_moe_desc planned;
    memset(l, 0, sizeof *l);
    l->dtype = dtype;
    l->tokens = rng_int(r, 0, MOST_TOKENS);
    l->experts = (int32_t)rng_int(r, 1, MOST_EXPERTS);
    l->k = (int32_t)rng_int(r, 1, l->experts < 3 ? l->experts : 3);
    l->width = rng_int(r, 1, MOST_WIDTH), l->hidden = rng_int(r, 1, MOST_WIDTH), l->outputs = rng_int(r, 1, MOST_WIDTH);
    l->biases = rng_chance(r, 50);
    tegroup_moe_desc *d = &l->desc;
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    d->tokens = tegroup_matrix_of(kept(l, dtype, l->tokens * l->width, r, 1, &l->x), l->tokens, l->width, dtype);
    d->router.logits = tegroup_matrix_of(kept(l, dtype, l->tokens * l->experts, r, 1, &l->logits), l->tokens, l->experts, dtype);
    d->router.k = l->k;
    d->router.normalize = rng_chance(r, 50);
    d->output = tegroup_matrix_of(guarded_skewed((size_t)(l->tokens * l->outputs) * size_of(dtype), 0), l->tokens, l->outputs, dtype);
    d->experts.activation = TEGROUP_ACTIVATION_SWIGLU;
    d->experts.interleaved = rng_chance(r, 50);
    d->experts.fc1 = weights_of(l, 2 * l->hidden, l->width, r, &l->w1, &l->b1);
    d->experts.fc2 = weights_of(l, l->outputs, l->hidden, r, &l->w2, &l->b2);
    if (dtype == TEGROUP_DTYPE_F64) d->experts.options.compute = TEGROUP_COMPUTE_F64;
    if (backward) {
        d->grad_output = tegroup_matrix_of(kept(l, dtype, l->tokens * l->outputs, r, 1, &l->dy), l->tokens, l->outputs, dtype);
        d->grad_tokens = tegroup_matrix_of(guarded_skewed((size_t)(l->tokens * l->width) * size_of(dtype), 0), l->tokens, l->width, dtype);
        d->grad_logits = tegroup_matrix_of(guarded_skewed((size_t)(l->tokens * l->experts) * size_of(dtype), 0), l->tokens, l->experts, dtype);
        d->experts.recompute = rng_chance(r, 50);
        with_gradient(l, &d->experts.fc1, dtype);
        with_gradient(l, &d->experts.fc2, dtype);
    }
    planned = *d;
    planned.tokens.rows += spare, planned.router.logits.rows += spare, planned.output.rows += spare;
    if (backward) planned.grad_output.rows += spare, planned.grad_tokens.rows += spare, planned.grad_logits.rows += spare;
    const tegroup_status status = tegroup_moe_plan_make(&planned, NULL, &l->plan, &error);
    if (status != TEGROUP_OK) {
        char text[400];
        tegroup_error_text(&error, text, sizeof text);
        TEST_FAIL("plan: %s\n", text);
    }
    d->saved = l->plan.saved_bytes > 0 ? guarded(l->plan.saved_bytes) : NULL;
    d->saved_bytes = l->plan.saved_bytes;
    d->experts.options.workspace = guarded(l->plan.workspace_bytes);
    d->experts.options.workspace_bytes = l->plan.workspace_bytes;
}
static void layer_free(layer *l) {
    free(l->x), free(l->logits), free(l->w1), free(l->w2), free(l->b1), free(l->b2), free(l->dy);
}

static void run(layer *l, tegroup_op op) {
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

/* The k experts of a token, by its logits, lower ones first among equals. */
static void choose(const layer *l, const double *logits, int32_t *chosen, double *weights) {
    double sum = 0, all = 0, most = -INFINITY;
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
        weights[j] = exp(logits[best] - most) / all;
        sum += weights[j];
    }
    for (int32_t j = 0; j < l->k && l->desc.router.normalize; j++) weights[j] /= sum;
}

/* One output of one token, and in *size the sum of magnitudes that a bound grows with. */
static double reference(const layer *l, int64_t t, int64_t o, double *size) {
    int32_t chosen[3];
    double weights[3], y = 0;
    *size = 0;
    choose(l, l->logits + t * l->experts, chosen, weights);
    for (int32_t j = 0; j < l->k; j++) {
        const int32_t e = chosen[j];
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
            row_size += weights[j] * (1 + sizes[0]) * (1 + sizes[1]) * fabs(w); /* sigmoid's slope is below 1 */
        }
        y += row, *size += row_size;
    }
    return y;
}

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
                const double u = unit_roundoff(l.dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32),
                             bound = size * (8 * unit_roundoff(l.dtype) + (double)(l.width + l.hidden + 16) * u) + 2 * smallest_step(l.dtype);
                ASSERT_LE(fabs(load(l.dtype, l.desc.output.data, t * l.outputs + o) - want), bound);
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

TEST(moe_layer, every_gradient_by_finite_differences) {
    rng r = rng_seed(9102);
    int64_t checked = 0;
    for (int64_t i = scaled(40); i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        tegroup_tensor tokens, logits;
        layer_make(&l, &r, TEGROUP_DTYPE_F64, 1, rng_int(&r, 0, 2));
        ASSERT_PASSING();
        if (l.tokens > 8 || margin(&l) < 1e-3) {
            layer_free(&l);
            guards_release(mark);
            continue;
        }
        run(&l, TEGROUP_OP_FORWARD);
        poison(l.desc.experts.options.workspace, l.plan.workspace_bytes); /* garbage between calls */
        run(&l, TEGROUP_OP_DGRAD);
        poison(l.desc.experts.options.workspace, l.plan.workspace_bytes);
        run(&l, TEGROUP_OP_WGRAD);
        ASSERT_PASSING();
        tokens = as_tensor(l.desc.grad_tokens), logits = as_tensor(l.desc.grad_logits);
        check_gradient(&l, &tokens, l.x, l.tokens * l.width);
        check_gradient(&l, &logits, l.logits, l.tokens * l.experts);
        check_gradient(&l, &l.desc.experts.fc1.main_grad, l.w1, l.experts * 2 * l.hidden * l.width);
        check_gradient(&l, &l.desc.experts.fc2.main_grad, l.w2, l.experts * l.outputs * l.hidden);
        if (l.biases) {
            check_gradient(&l, &l.desc.experts.fc1.bias_grad, l.b1, l.experts * 2 * l.hidden);
            check_gradient(&l, &l.desc.experts.fc2.bias_grad, l.b2, l.experts * l.outputs);
        }
        ASSERT_PASSING();
        ASSERT_EQ(guards_changed(), 0);
        checked += l.tokens > 0;
        layer_free(&l);
        guards_release(mark);
    }
    ASSERT_GT(checked, 0);
}

/* With room for so few rows, experts in order get theirs, and a choice without a row adds nothing. */
TEST(moe_layer, choices_without_a_row_add_nothing) {
    rng r = rng_seed(9103);
    int64_t dropped = 0;
    for (int64_t i = scaled(100); i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        layer_make(&l, &r, TEGROUP_DTYPE_F64, 0, 0);
        ASSERT_PASSING();
        const int64_t slots = l.tokens * l.k, capacity = slots > 1 ? rng_int(&r, 1, slots) : 1;
        int64_t *row_of = (int64_t *)calloc((size_t)slots + 1, sizeof *row_of), rows = 0;
        tegroup_error error;
        l.desc.capacity = capacity;
        ASSERT_EQ(tegroup_moe_plan_make(&l.desc, NULL, &l.plan, &error), TEGROUP_OK);
        l.desc.experts.options.workspace = guarded(l.plan.workspace_bytes);
        l.desc.experts.options.workspace_bytes = l.plan.workspace_bytes;
        run(&l, TEGROUP_OP_FORWARD);
        ASSERT_PASSING();
        for (int32_t e = 0; e < l.experts; e++) /* rows go by expert, then by token */
            for (int64_t t = 0; t < l.tokens; t++) {
                int32_t chosen[3];
                double weights[3];
                choose(&l, l.logits + t * l.experts, chosen, weights);
                for (int32_t j = 0; j < l.k; j++) if (chosen[j] == e) row_of[t * l.k + j] = rows++;
            }
        for (int64_t t = 0; t < l.tokens; t++) {
            int all = 1;
            for (int32_t j = 0; j < l.k; j++) all &= row_of[t * l.k + j] < capacity;
            dropped += !all;
            for (int64_t o = 0; o < l.outputs; o++) {
                double size, want = reference(&l, t, o, &size), got = load(l.dtype, l.desc.output.data, t * l.outputs + o);
                if (all) ASSERT_LE(fabs(got - want), 1e-13 * (size + 1));
                else if (l.k == 1) ASSERT_EQ(got, 0);
            }
        }
        free(row_of);
        layer_free(&l);
        guards_release(mark);
    }
    ASSERT_GT(dropped, 20);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------- */

TEST(moe_layer, layouts_are_exact_and_grow_with_the_tokens) {
    rng r = rng_seed(9104);
    for (int64_t i = scaled(100); i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        size_t last[TEGROUP_MOE_WGRAD_WORKSPACE + 1] = {0};
        layer_make(&l, &r, TEGROUP_DTYPE_F32, rng_chance(&r, 70), 0);
        ASSERT_PASSING();
        for (int64_t tokens = 0; tokens < 400; tokens += 37) {
            tegroup_moe_desc d = l.desc;
            tegroup_moe_plan plan;
            tegroup_error error;
            size_t most = 0;
            d.tokens.rows = d.router.logits.rows = d.output.rows = tokens;
            if (d.grad_output.dtype) d.grad_output.rows = d.grad_tokens.rows = d.grad_logits.rows = tokens;
            ASSERT_EQ(tegroup_moe_plan_make(&d, NULL, &plan, &error), TEGROUP_OK);
            for (int m = TEGROUP_MOE_SAVED; m <= TEGROUP_MOE_WGRAD_WORKSPACE; m++) {
                tegroup_layout layout;
                size_t end = 0;
                ASSERT_EQ(tegroup_moe_layout(&plan, (tegroup_moe_memory)m, &layout, &error), TEGROUP_OK);
                for (int32_t at = 0; at < layout.count; at++) { /* one after another, nothing between */
                    ASSERT_EQ(layout.items[at].offset_bytes, end);
                    ASSERT_TRUE(layout.items[at].name != NULL && layout.items[at].name[0]);
                    end += (layout.items[at].bytes + TEGROUP_ALIGNMENT - 1) / TEGROUP_ALIGNMENT * TEGROUP_ALIGNMENT;
                }
                ASSERT_EQ(layout.total_bytes, end);
                ASSERT_GE(end, last[m]);
                last[m] = end;
                if (m == TEGROUP_MOE_SAVED) ASSERT_EQ(plan.saved_bytes, end);
                else if (end > most) most = end;
            }
            ASSERT_EQ(plan.workspace_bytes, most);
            if (!d.grad_output.dtype) ASSERT_EQ(plan.saved_bytes, 0);
        }
        layer_free(&l);
        guards_release(mark);
    }
}

/* Qwen3-30B's block, 16 tokens, BF16: what is saved, by arithmetic. */
TEST(moe_layer, what_is_saved_by_arithmetic) {
    const int64_t T = 16, E = 128, K = 8, D = 2048, H = 768, rows = T * K;
    tegroup_moe_desc d;
    tegroup_moe_plan plan;
    tegroup_error error;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.space = TEGROUP_SPACE_HOST;
    d.tokens = d.output = d.grad_output = d.grad_tokens = tegroup_matrix_of(NULL, T, D, TEGROUP_DTYPE_BF16);
    d.router.logits = tegroup_matrix_of(NULL, T, E, TEGROUP_DTYPE_F32);
    d.grad_logits = d.router.logits;
    d.router.k = (int32_t)K;
    d.experts.activation = TEGROUP_ACTIVATION_SWIGLU;
    d.experts.fc1.weight = tegroup_tensor_uniform((int32_t)E, 2 * H, D, TEGROUP_DTYPE_BF16, NULL);
    d.experts.fc2.weight = tegroup_tensor_uniform((int32_t)E, D, H, TEGROUP_DTYPE_BF16, NULL);
    d.experts.fc1.main_grad = tegroup_tensor_uniform((int32_t)E, 2 * H, D, TEGROUP_DTYPE_F32, NULL);
    d.experts.fc2.main_grad = tegroup_tensor_uniform((int32_t)E, D, H, TEGROUP_DTYPE_F32, NULL);
    d.experts.recompute = 1;
    ASSERT_EQ(tegroup_moe_plan_make(&d, NULL, &plan, &error), TEGROUP_OK);
    const int64_t snapshot = 256 + 3 * 1024 + 256 + 1024 / 2 - 256 + 256; /* header, start, rows, prefix (129 of 8 bytes), order */
    const int64_t want = T * E * 4 + rows * 4 + E * 4 + rows * 4 + rows * 4 /* probabilities, indices, counts, rows, weights */
                         + rows * D * 2 + rows * 2 * H * 2 + rows * H * 2 + rows * D * 2; /* X, preactivation, activated, dY */
    tegroup_layout layout;
    ASSERT_EQ(tegroup_moe_layout(&plan, TEGROUP_MOE_SAVED, &layout, &error), TEGROUP_OK);
    int64_t snapshot_bytes = 0;
    for (int32_t i = 0; i < layout.count; i++)
        if (!strcmp(layout.items[i].name, "the snapshot of the routing")) snapshot_bytes = (int64_t)layout.items[i].bytes;
    ASSERT_LE(llabs(snapshot_bytes - snapshot), 512);
    ASSERT_EQ((int64_t)plan.saved_bytes - snapshot_bytes, want); /* each part is a multiple of 256 bytes here */
}

/* ---- refusals ----------------------------------------------------------------------------------------------------------- */

static void refused(const layer *l, const tegroup_moe_desc *d, tegroup_op op, tegroup_status status, const char *field) {
    tegroup_error error;
    memset(&error, 0, sizeof error);
    for (guarded_node *n = guarded_top; n != NULL; n = n->older) if (!n->scratch) guarded_remember(n->data);
    const tegroup_status got = op == TEGROUP_OP_UNSET     ? tegroup_moe_plan_make(d, NULL, (tegroup_moe_plan *)(uintptr_t)&l->plan, &error)
                               : op == TEGROUP_OP_FORWARD ? tegroup_moe_forward(&l->plan, d, NULL, &error)
                               : op == TEGROUP_OP_DGRAD   ? tegroup_moe_dgrad(&l->plan, d, NULL, &error)
                                                          : tegroup_moe_wgrad(&l->plan, d, NULL, &error);
    ASSERT_STREQ(error.field, field);
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

TEST(moe_layer, refuses_and_names_the_field) {
    rng r = rng_seed(9105);
    layer l;
    void *mark = guards_mark();
    for (layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 0); l.tokens < 2 || l.experts < 3 || !l.biases; layer_make(&l, &r, TEGROUP_DTYPE_F32, 1, 0)) layer_free(&l);
    ASSERT_PASSING();
    run(&l, TEGROUP_OP_FORWARD);
    ASSERT_PASSING();
    const tegroup_op plan = TEGROUP_OP_UNSET, forward = TEGROUP_OP_FORWARD, dgrad = TEGROUP_OP_DGRAD, wgrad = TEGROUP_OP_WGRAD;
    void *scratch[] = {l.desc.saved, l.desc.experts.options.workspace};
    for (int i = 0; i < 2; i++) guarded_find(scratch[i])->scratch = 1;
    REFUSED(plan, d.struct_size = 3, TEGROUP_ERROR_STRUCT_SIZE, "struct_size");
    REFUSED(plan, d.space = TEGROUP_SPACE_UNSET, TEGROUP_ERROR_UNSET, "space");
    REFUSED(plan, d.tokens.dtype = TEGROUP_DTYPE_UNSET, TEGROUP_ERROR_UNSET, "tokens.dtype");
    REFUSED(plan, d.tokens.dtype = TEGROUP_DTYPE_I32, TEGROUP_ERROR_DTYPE, "tokens.dtype");
    REFUSED(plan, d.tokens.rows = -1, TEGROUP_ERROR_VALUE, "tokens.rows");
    REFUSED(plan, d.tokens.cols++, TEGROUP_ERROR_SHAPE, "tokens.cols");
    REFUSED(plan, d.router.k = 0, TEGROUP_ERROR_VALUE, "k");
    REFUSED(plan, d.router.k = l.experts + 1, TEGROUP_ERROR_VALUE, "k");
    REFUSED(plan, d.router.normalize = 2, TEGROUP_ERROR_VALUE, "normalize");
    REFUSED(plan, d.capacity = -1, TEGROUP_ERROR_VALUE, "capacity");
    REFUSED(plan, d.grad_output.dtype = TEGROUP_DTYPE_UNSET, TEGROUP_ERROR_COMBINATION, "grad_tokens");
    REFUSED(plan, d.grad_output.dtype = TEGROUP_DTYPE_BF16, TEGROUP_ERROR_DTYPE, "grad_output.dtype");
    REFUSED(plan, d.router.weights = tegroup_matrix_of(NULL, l.tokens, l.k, TEGROUP_DTYPE_F64), TEGROUP_ERROR_DTYPE, "router.weights.dtype");
    REFUSED(plan, d.experts.input.dtype = TEGROUP_DTYPE_F32, TEGROUP_ERROR_COMBINATION, "experts.input");
    REFUSED(plan, d.experts.fc2_bias_scaled = 1, TEGROUP_ERROR_COMBINATION, "experts.fc2_bias_scaled");
    REFUSED(plan, d.experts.out_tail = TEGROUP_TAIL_ZERO, TEGROUP_ERROR_COMBINATION, "experts.out_tail");
    REFUSED(plan, d.experts.activation = TEGROUP_ACTIVATION_UNSET, TEGROUP_ERROR_UNSET, "activation");
    REFUSED(forward, d.tokens.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "tokens.data");
    REFUSED(forward, d.output.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "output.data");
    REFUSED(forward, d.output.rows--, TEGROUP_ERROR_SHAPE, "output.rows");
    REFUSED(forward, d.output.cols++, TEGROUP_ERROR_SHAPE, "output.cols");
    REFUSED(forward, d.output.data = d.tokens.data, TEGROUP_ERROR_OVERLAP, "output.data");
    REFUSED(forward, d.router.logits.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "logits.data");
    REFUSED(forward, d.router.logits.data = d.saved, TEGROUP_ERROR_OVERLAP, "saved");
    REFUSED(forward, d.saved = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "saved");
    REFUSED(forward, d.saved_bytes--, TEGROUP_ERROR_WORKSPACE, "saved_bytes");
    REFUSED(forward, d.experts.options.workspace_bytes--, TEGROUP_ERROR_WORKSPACE, "options.workspace_bytes");
    REFUSED(forward, d.experts.options.workspace = d.saved, TEGROUP_ERROR_OVERLAP, "saved");
    REFUSED(forward, d.experts.fc1.weight.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "fc1.weight.data");
    REFUSED(forward, d.experts.fc2.bias.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "fc2.bias.data");
    REFUSED(forward, d.capacity = l.tokens * l.k + 1, TEGROUP_ERROR_PLAN, "capacity");
    REFUSED(forward, d.router.k = l.k == 1 ? 2 : 1, TEGROUP_ERROR_PLAN, l.k == 1 ? "capacity" : "router.k");
    REFUSED(dgrad, d.grad_output.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "grad_output.data");
    REFUSED(dgrad, d.grad_tokens.data = d.grad_output.data, TEGROUP_ERROR_OVERLAP, "grad_tokens.data");
    REFUSED(dgrad, d.grad_logits.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "grad_logits.data");
    REFUSED(wgrad, d.experts.fc1.main_grad.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "fc1.main_grad.data");
    REFUSED(wgrad, d.saved_bytes = 0, TEGROUP_ERROR_WORKSPACE, "saved_bytes");
    layer_free(&l);
    guards_release(mark);
}

TEST_MAIN()
