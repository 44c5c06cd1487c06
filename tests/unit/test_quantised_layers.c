/* Layers of quantised operands on the CPU, in every recipe: results straight into the caller's buffer with the bits of the same
 * work as calls one after another, within FP64 bounds of what the copies mean, weight gradients later, and what is refused. */
#define TEGROUP_EXTERN
#include "quantised_layers.h"
#include "test.h"

static tegroup_error error;

#define OK(call)                                                                                                            \
    do {                                                                                                                    \
        const tegroup_status ok_ = (call);                                                                                  \
        if (ok_ != TEGROUP_OK) printf("%s: %s %s (%ld, %ld)\n", tegroup_status_name(ok_), error.field, error.rule, (long)error.expected, (long)error.got); \
        ASSERT_EQ(ok_, TEGROUP_OK);                                                                                         \
    } while (0)

static void workspace(tegroup_options *options, size_t bytes) {
    options->workspace = scratch(bytes);
    options->workspace_bytes = bytes;
}

enum { BIAS_OF_B = 1, ADDS = 2 };

/* A product by itself, its result in a buffer of its own that begins as that of `like` did. how: of the two above. */
static tegroup_tensor product(tegroup_op op, const tegroup_tensor *a, const tegroup_tensor *b, const tegroup_tensor *like, const tegroup_tensor *bias,
                              const tegroup_linear_desc *scales, int how, tegroup_tensor *sums) {
    tegroup_gemm_desc gemm;
    tegroup_plan plan;
    memset(&gemm, 0, sizeof gemm);
    gemm.struct_size = sizeof gemm;
    gemm.op = op;
    gemm.space = TEGROUP_SPACE_HOST;
    gemm.a = op == TEGROUP_OP_WGRAD ? as_summed(a) : *a, gemm.b = op == TEGROUP_OP_WGRAD ? as_summed(b) : *b, gemm.d = *like;
    gemm.d.data = room(guarded_find(like->data)->bytes);
    memcpy(gemm.d.data, guarded_memory(like->data), guarded_find(like->data)->bytes);
    if (bias != NULL && bias->dtype != TEGROUP_DTYPE_UNSET) {
        gemm.bias = *bias;
        if (sums != NULL) {
            gemm.bias.data = room(guarded_find(bias->data)->bytes), *sums = gemm.bias, gemm.bias_of_b = how & BIAS_OF_B;
            memcpy(gemm.bias.data, guarded_memory(bias->data), guarded_find(bias->data)->bytes);
        }
        if (scales != NULL) gemm.row_scale = scales->row_scale, gemm.row_scale_dtype = scales->row_scale_dtype;
    }
    gemm.accumulate = (how & ADDS) != 0;
    gemm.options.threads = 1;
    if (tegroup_plan_make(&gemm, NULL, &plan, &error) != TEGROUP_OK) { printf("%s %s\n", error.field, error.rule); test_failed = 1; return gemm.d; }
    workspace(&gemm.options, plan.workspace_bytes);
    if (tegroup_gemm(&plan, &gemm, NULL, &error) != TEGROUP_OK) { printf("%s %s\n", error.field, error.rule); test_failed = 1; }
    return gemm.d;
}
/* Two buffers, whole: results and what they leave alone. */
static int64_t differ(const void *a, const void *b) { return memcmp(a, b, guarded_find(a)->bytes) != 0; }

/* Gradients of weights that others are added to. */
static void has_numbers(tegroup_tensor *gradient, rng *r) {
    if (gradient->dtype == TEGROUP_DTYPE_UNSET) return;
    gradient->data = filled(gradient->dtype, QL_GROUPS * gradient->shape.rows * gradient->shape.cols, 1, r);
}

/* What nothing has to read any more dangles. */
static void dangle(tegroup_tensor *t, int rowwise, int columnwise) {
    void *const nowhere = (void *)(uintptr_t)4096;
    if (rowwise && t->data != NULL) t->data = t->scale_inv = nowhere;
    if (columnwise && t->columnwise_data != NULL) t->columnwise_data = nowhere;
    if (columnwise && t->columnwise_scale_inv != NULL) t->columnwise_scale_inv = nowhere;
}

/* ---- the linear layer ---- */

static void linear_straight(const recipe *f, uint64_t seed) {
    rng r = rng_seed(seed);
    for (int64_t i = 0; i < 2 * (1 + scaled(6)); i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_linear_plan plan;
        quantised_linear_make(&l, f, &r);
        tegroup_linear_desc *d = &l.linear, saved;
        const int in_out = d->weight_layout == TEGROUP_WEIGHT_IN_OUT;
        const tegroup_tensor *x = &d->input, *dy = &d->grad_output, *a = in_out ? x : dy, *b = in_out ? dy : x;
        const tegroup_op forward = in_out ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD, dgrad = in_out ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD;
        tegroup_tensor sums;
        d->accumulate = i % 2 == 1;
        if (d->accumulate) has_numbers(&d->main_grad, &r), has_numbers(&d->bias_grad, &r);
        OK(tegroup_linear_plan_make(d, NULL, &plan, &error));
        workspace(&d->options, plan.workspace_bytes);
        saved = *d; /* each call has no more than it reads */
        dangle(&saved.weight, in_out, !in_out), dangle(&saved.input, 0, 1), dangle(&saved.grad_output, 1, 1);
        OK(tegroup_linear_forward(&plan, &saved, NULL, &error));
        saved = *d;
        dangle(&saved.weight, !in_out, in_out), dangle(&saved.input, 1, 1), dangle(&saved.grad_output, 0, 1);
        OK(tegroup_linear_dgrad(&plan, &saved, NULL, &error));
        saved = *d; /* a wgrad at any later time */
        dangle(&saved.weight, 1, 1), dangle(&saved.input, 1, 0), dangle(&saved.grad_output, 1, 0);
        saved.out.data = saved.dgrad_out.data = NULL;
        OK(tegroup_linear_wgrad(&plan, &saved, NULL, &error));

        tegroup_tensor y = product(forward, x, &d->weight, &d->out, &d->bias, d, 0, NULL), dx = product(dgrad, dy, &d->weight, &d->dgrad_out, NULL, NULL, 0, NULL);
        tegroup_tensor dw = product(TEGROUP_OP_WGRAD, a, b, &d->main_grad, &d->bias_grad, d, (in_out ? BIAS_OF_B : 0) | (d->accumulate ? ADDS : 0), &sums);
        ASSERT_PASSING();
        ASSERT_EQ(differ(d->out.data, y.data) + differ(d->dgrad_out.data, dx.data) + differ(d->main_grad.data, dw.data), 0);
        if (d->bias.dtype != TEGROUP_DTYPE_UNSET) ASSERT_EQ(differ(d->bias_grad.data, sums.data), 0);
        ASSERT_EQ(tail_changed(&l, &d->out) + tail_changed(&l, &d->dgrad_out), 0);
        ASSERT_LE(worst_of(&l, forward, x, &d->weight, &d->out, &d->bias, (const float *)d->row_scale, SUPPORT_SUM_ROUNDING), 1);
        ASSERT_LE(worst_of(&l, dgrad, dy, &d->weight, &d->dgrad_out, NULL, NULL, SUPPORT_SUM_ROUNDING), 1);
        if (!d->accumulate) ASSERT_LE(worst_of(&l, TEGROUP_OP_WGRAD, a, b, &d->main_grad, NULL, NULL, SUPPORT_SUM_ROUNDING), 1);
        if (d->bias.dtype != TEGROUP_DTYPE_UNSET && !d->accumulate) ASSERT_LE(worst_sum(&l, dy, &d->bias_grad, (const float *)d->row_scale, SUPPORT_SUM_ROUNDING), 1);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}
#define STRAIGHT(name, i) TEST(quantised_linear, straight_into_the_buffer_##name) { linear_straight(&recipes[i], 5100 + i); }
STRAIGHT(block_fp8, 0)
STRAIGHT(per_row, 1)
STRAIGHT(per_tensor, 2)
STRAIGHT(mxfp8, 3)
STRAIGHT(nvfp4, 4)

/* Quantised weights beside rows that are not. */
TEST(quantised_linear, weights_alone) {
    rng r = rng_seed(5150);
    for (int64_t i = 0; i < RECIPES + scaled(5); i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_linear_plan plan;
        quantised_linear_make(&l, &recipes[i % RECIPES], &r);
        tegroup_linear_desc *d = &l.linear;
        const int in_out = d->weight_layout == TEGROUP_WEIGHT_IN_OUT;
        d->input = tegroup_tensor_of(l.rows, QL_K, TEGROUP_DTYPE_BF16, filled(TEGROUP_DTYPE_BF16, l.rows.rows * QL_K, 1, &r));
        d->grad_output = tegroup_tensor_of(l.rows, QL_N, TEGROUP_DTYPE_BF16, filled(TEGROUP_DTYPE_BF16, l.rows.rows * QL_N, 1, &r));
        if (d->row_scale != NULL) d->grad_row_scale = plain_rows(&l, 1, TEGROUP_DTYPE_F32), d->bias.dtype = TEGROUP_DTYPE_BF16, d->bias.data = filled(TEGROUP_DTYPE_BF16, QL_GROUPS * QL_N, 1, &r);
        OK(tegroup_linear_plan_make(d, NULL, &plan, &error));
        workspace(&d->options, plan.workspace_bytes);
        OK(tegroup_linear_forward(&plan, d, NULL, &error));
        OK(tegroup_linear_dgrad(&plan, d, NULL, &error));
        OK(tegroup_linear_wgrad(&plan, d, NULL, &error));
        ASSERT_LE(worst_of(&l, in_out ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD, &d->input, &d->weight, &d->out, &d->bias, (const float *)d->row_scale, SUPPORT_SUM_ROUNDING), 1);
        ASSERT_LE(worst_of(&l, in_out ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, &d->grad_output, &d->weight, &d->dgrad_out, NULL, NULL, SUPPORT_SUM_ROUNDING), 1);
        ASSERT_EQ(guards_changed(), 0);
        if (d->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) { /* what it writes is apart from the copy that dgrad reads */
            tegroup_tensor *g = &d->grad_row_scale;
            g->data = in_out ? d->weight.data : d->weight.columnwise_data;
            ASSERT_EQ(tegroup_linear_dgrad(&plan, d, NULL, &error), TEGROUP_ERROR_OVERLAP);
            ASSERT_STREQ(error.field, "grad_row_scale.data");
        }
        guards_release(mark);
    }
}

/* A list with an address for each expert of what lies in one buffer. */
static void *const *listed(void *data) {
    void **list = (void **)guarded(QL_GROUPS * sizeof *list);
    for (int g = 0; g < QL_GROUPS; g++) list[g] = (char *)data + guarded_find(data)->bytes / QL_GROUPS * (size_t)g;
    guarded_remember(list);
    return list;
}

/* Quantised weights, each expert's by itself: the same bits. */
TEST(quantised_linear, weights_as_lists) {
    rng r = rng_seed(5160);
    for (int i = 0; i < RECIPES; i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_linear_plan plan;
        quantised_linear_make(&l, &recipes[i], &r);
        tegroup_linear_desc *d = &l.linear, lists = *d;
        tegroup_tensor *w = &lists.weight;
        w->pointers_space = TEGROUP_SPACE_HOST;
        w->pointers = listed(w->data), w->scale_pointers = listed(w->scale_inv);
        w->columnwise_pointers = listed(w->columnwise_data), w->columnwise_scale_pointers = listed(w->columnwise_scale_inv);
        w->data = w->scale_inv = w->columnwise_data = w->columnwise_scale_inv = NULL;
        lists.out.data = room(guarded_find(d->out.data)->bytes), lists.dgrad_out.data = room(guarded_find(d->dgrad_out.data)->bytes);
        memcpy(lists.out.data, d->out.data, guarded_find(d->out.data)->bytes);
        memcpy(lists.dgrad_out.data, d->dgrad_out.data, guarded_find(d->dgrad_out.data)->bytes);
        lists.options.check_level = TEGROUP_CHECK_DEEP;
        for (int j = 0; j < 2; j++) {
            tegroup_linear_desc *one = j ? &lists : d;
            OK(tegroup_linear_plan_make(one, NULL, &plan, &error));
            workspace(&one->options, plan.workspace_bytes);
            OK(tegroup_linear_forward(&plan, one, NULL, &error));
            OK(tegroup_linear_dgrad(&plan, one, NULL, &error));
        }
        ASSERT_EQ(differ(d->out.data, lists.out.data) + differ(d->dgrad_out.data, lists.dgrad_out.data), 0);
        w->columnwise_scale_pointers = NULL, w->scale_pointers = NULL;
        ASSERT_EQ(tegroup_linear_forward(&plan, &lists, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT);
        ASSERT_STREQ(error.field, d->weight_layout ? "weight.columnwise_scale_pointers" : "weight.scale_pointers");
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* ---- the MLP ---- */

static tegroup_quantize_desc quantiser(const tegroup_mlp_desc *d, const tegroup_tensor *pre, const tegroup_tensor *output, int copies, int transposed) {
    tegroup_quantize_desc q;
    memset(&q, 0, sizeof q);
    q.struct_size = sizeof q;
    q.space = TEGROUP_SPACE_HOST;
    q.input = *pre;
    q.activation = d->activation, q.interleaved = d->interleaved, q.alpha = d->alpha, q.limit = d->limit;
    if (d->row_scale != NULL) q.row_scale = tegroup_matrix_of(d->row_scale, pre->shape.rows, 1, d->row_scale_dtype);
    q.rule = d->activated_rule;
    q.output = tegroup_tensor_of(pre->shape, output->shape.cols, TEGROUP_DTYPE_UNSET, NULL);
    give_copies(&q.output, output->scaling, output->dtype, transposed, copies);
    return q;
}
/* Values that the MLP keeps, by the separate calls: what `q` quantises, before it is quantised. */
static void keep_values(tegroup_quantize_desc *q, const tegroup_tensor *like) {
    tegroup_activation_desc forward;
    tegroup_activation_backward_desc backward;
    memset(&forward, 0, sizeof forward), memset(&backward, 0, sizeof backward);
    if (!keeps_values(like)) return;
    q->output.columnwise_order = like->columnwise_order;
    q->output.columnwise_data = room((size_t)(like->shape.rows * like->shape.cols) * size_of(dtype_of_values(like)));
    forward.struct_size = sizeof forward, backward.struct_size = sizeof backward;
    forward.space = backward.space = TEGROUP_SPACE_HOST;
    forward.activation = backward.activation = q->activation, forward.interleaved = backward.interleaved = q->interleaved;
    forward.alpha = backward.alpha = q->alpha, forward.limit = backward.limit = q->limit;
    forward.snapshot = backward.snapshot = like->shape.snapshot;
    forward.row_scale = backward.row_scale = q->row_scale;
    forward.input = backward.input = tegroup_matrix_of(q->input.data, q->input.shape.rows, q->input.shape.cols, q->input.dtype);
    forward.output = backward.grad_input = tegroup_matrix_of(q->output.columnwise_data, like->shape.rows, like->shape.cols, dtype_of_values(like));
    if (q->grad_output.dtype == TEGROUP_DTYPE_UNSET) { OK(tegroup_activation_forward(&forward, NULL, &error)); return; }
    backward.grad_output = tegroup_matrix_of(q->grad_output.data, q->grad_output.shape.rows, q->grad_output.shape.cols, q->grad_output.dtype);
    OK(tegroup_activation_backward(&backward, NULL, &error));
}
/* Every byte of the copies that both have. */
static int64_t copies_differ(const tegroup_tensor *a, const tegroup_tensor *b) {
    const void *const of[] = {a->data, a->scale_inv, a->columnwise_data, a->columnwise_scale_inv, a->global_scale_inv, a->amax};
    const void *const to[] = {b->data, b->scale_inv, b->columnwise_data, b->columnwise_scale_inv, b->global_scale_inv, b->amax};
    const int values_alone = keeps_values(a) && a->data == NULL; /* no amax was looked for */
    int64_t wrong = 0;
    for (int i = 0; i < (values_alone ? 4 : 6); i++) wrong += of[i] != NULL && to[i] != NULL && differ(of[i], to[i]);
    return wrong;
}

/* The MLP as calls one after another; what it stored, each within FP64 bounds of what the step before stored. */
static void mlp_compare(quantised_layer *l) {
    const tegroup_mlp_desc *d = &l->mlp;
    const int t1 = d->fc1.weight_layout == TEGROUP_WEIGHT_IN_OUT, t2 = d->fc2.weight_layout == TEGROUP_WEIGHT_IN_OUT, adds = d->accumulate ? ADDS : 0;
    const tegroup_op f1 = t1 ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD, f2 = t2 ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD;
    const tegroup_op d1 = t1 ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, d2 = t2 ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD;
    tegroup_tensor sums1, sums2, between = tegroup_tensor_of(l->rows, QL_H, d->preactivation.dtype, NULL);
    tegroup_tensor pre = product(f1, &d->input, &d->fc1.weight, &d->preactivation, &d->fc1.bias, NULL, 0, NULL);
    const int copies = l->values != TEGROUP_DTYPE_UNSET ? 1 : 3;
    tegroup_quantize_desc q = quantiser(d, &pre, &d->activated, copies, l->transposed), g = quantiser(d, &pre, &d->grad_preactivation, copies, l->transposed);
    g.rule = d->grad_rule;
    OK(tegroup_quantize(&q, NULL, &error));
    keep_values(&q, &d->activated);
    tegroup_tensor y = product(f2, &q.output, &d->fc2.weight, &d->out, &d->fc2.bias, NULL, 0, NULL);
    between.data = room((size_t)(l->rows.rows * QL_H) * size_of(between.dtype));
    g.grad_output = product(d2, &d->grad_output, &d->fc2.weight, &between, NULL, NULL, 0, NULL);
    if (d->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET)
        g.grad_row_scale = tegroup_matrix_of(room((size_t)l->rows.rows * 4), l->rows.rows, 1, TEGROUP_DTYPE_F32);
    OK(tegroup_quantize(&g, NULL, &error));
    keep_values(&g, &d->grad_preactivation);
    tegroup_tensor dx = product(d1, &g.output, &d->fc1.weight, &d->dgrad_out, NULL, NULL, 0, NULL);
    tegroup_tensor dw2 = product(TEGROUP_OP_WGRAD, t2 ? &q.output : &d->grad_output, t2 ? &d->grad_output : &q.output, &d->fc2.main_grad, &d->fc2.bias_grad, NULL, (t2 ? BIAS_OF_B : 0) | adds, &sums2);
    tegroup_tensor dw1 = product(TEGROUP_OP_WGRAD, t1 ? &d->input : &g.output, t1 ? &g.output : &d->input, &d->fc1.main_grad, &d->fc1.bias_grad, NULL, (t1 ? BIAS_OF_B : 0) | adds, &sums1);
    ASSERT_PASSING();
    if (!l->in_place) ASSERT_EQ(differ(d->preactivation.data, pre.data), 0);
    ASSERT_EQ(copies_differ(&d->activated, &q.output), 0);
    ASSERT_EQ(differ(d->out.data, y.data), 0);
    ASSERT_EQ(copies_differ(&d->grad_preactivation, &g.output), 0);
    if (d->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) ASSERT_EQ(differ(d->grad_row_scale.data, g.grad_row_scale.data), 0);
    ASSERT_EQ(differ(d->dgrad_out.data, dx.data), 0);
    ASSERT_EQ(differ(d->fc1.main_grad.data, dw1.data) + differ(d->fc2.main_grad.data, dw2.data), 0);
    if (d->fc1.bias.dtype != TEGROUP_DTYPE_UNSET) ASSERT_EQ(differ(d->fc1.bias_grad.data, sums1.data) + differ(d->fc2.bias_grad.data, sums2.data), 0);
    ASSERT_EQ(tail_changed(l, &d->out) + tail_changed(l, &d->dgrad_out) + tail_changed(l, &d->preactivation), 0);

    ASSERT_LE(worst_of(l, f1, &d->input, &d->fc1.weight, &pre, &d->fc1.bias, NULL, SUPPORT_SUM_ROUNDING), 1);
    ASSERT_LE(worst_of(l, f2, &q.output, &d->fc2.weight, &d->out, &d->fc2.bias, NULL, SUPPORT_SUM_ROUNDING), 1);
    ASSERT_LE(worst_of(l, d1, &d->grad_preactivation, &d->fc1.weight, &d->dgrad_out, NULL, NULL, SUPPORT_SUM_ROUNDING), 1);
    if (!adds) ASSERT_LE(worst_of(l, TEGROUP_OP_WGRAD, t2 ? &d->activated : &d->grad_output, t2 ? &d->grad_output : &d->activated, &d->fc2.main_grad, NULL, NULL, SUPPORT_SUM_ROUNDING), 1);
    if (!adds) ASSERT_LE(worst_of(l, TEGROUP_OP_WGRAD, t1 ? &d->input : &d->grad_preactivation, t1 ? &d->grad_preactivation : &d->input, &d->fc1.main_grad, NULL, NULL, SUPPORT_SUM_ROUNDING), 1);
    ASSERT_EQ(guards_changed(), 0);
}

static void mlp_forget(tegroup_tensor *t) { t->data = t->scale_inv = t->columnwise_data = t->columnwise_scale_inv = NULL; }

static void mlp_straight(const recipe *f, uint64_t seed) {
    rng r = rng_seed(seed);
    for (int64_t i = 0; i < 2 * (1 + scaled(6)); i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_mlp_plan plan;
        quantised_mlp_make(&l, f, -1, &r);
        tegroup_mlp_desc *d = &l.mlp, saved;
        d->accumulate = i % 2 == 1;
        for (int j = 0; j < 2 && d->accumulate; j++) {
            tegroup_mlp_weights *of = j ? &d->fc2 : &d->fc1;
            has_numbers(&of->main_grad, &r), has_numbers(&of->bias_grad, &r);
        }
        OK(tegroup_mlp_plan_make(d, NULL, &plan, &error));
        ASSERT_EQ(plan.planned.fused, 0u);
        workspace(&d->options, plan.workspace_bytes);
        saved = *d;
        if (d->recompute) mlp_forget(&saved.activated);
        OK(tegroup_mlp_forward(&plan, &saved, NULL, &error));
        OK(tegroup_mlp_dgrad(&plan, d, NULL, &error));
        saved = *d; /* the gradients of weights at any later time: of rows, the columnwise copies are left */
        mlp_forget(&saved.fc1.weight), mlp_forget(&saved.fc2.weight), mlp_forget(&saved.out), mlp_forget(&saved.dgrad_out), mlp_forget(&saved.preactivation);
        dangle(&saved.input, 1, 0), dangle(&saved.grad_output, 1, 0), dangle(&saved.activated, 1, 0), dangle(&saved.grad_preactivation, 1, 0);
        workspace(&saved.options, plan.wgrad_workspace_bytes);
        OK(tegroup_mlp_wgrad(&plan, &saved, NULL, &error));
        mlp_compare(&l);
        ASSERT_PASSING();
        guards_release(mark);
    }
}
#define MLP_STRAIGHT(name, i) TEST(quantised_mlp, straight_into_the_buffer_##name) { mlp_straight(&recipes[i], 5200 + i); }
MLP_STRAIGHT(block_fp8, 0)
MLP_STRAIGHT(per_row, 1)
MLP_STRAIGHT(per_tensor, 2)
MLP_STRAIGHT(mxfp8, 3)
MLP_STRAIGHT(nvfp4, 4)

/* One of the two tensors between the layers is quantised, the other has preactivation's type. */
TEST(quantised_mlp, one_of_two) {
    rng r = rng_seed(5240);
    for (int64_t i = 0; i < 2 * RECIPES + scaled(6); i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_mlp_plan plan;
        quantised_mlp_make(&l, &recipes[i / 2 % RECIPES], -1, &r);
        tegroup_mlp_desc *d = &l.mlp;
        const int t1 = d->fc1.weight_layout == TEGROUP_WEIGHT_IN_OUT, t2 = d->fc2.weight_layout == TEGROUP_WEIGHT_IN_OUT;
        if (i % 2) d->activated = plain_rows(&l, QL_H, d->preactivation.dtype), memset(&d->activated_rule, 0, sizeof d->activated_rule);
        else d->grad_preactivation = plain_rows(&l, d->preactivation.shape.cols, d->preactivation.dtype), memset(&d->grad_rule, 0, sizeof d->grad_rule);
        OK(tegroup_mlp_plan_make(d, NULL, &plan, &error));
        workspace(&d->options, plan.workspace_bytes);
        OK(tegroup_mlp_forward(&plan, d, NULL, &error));
        OK(tegroup_mlp_dgrad(&plan, d, NULL, &error));
        OK(tegroup_mlp_wgrad(&plan, d, NULL, &error));
        if (!d->recompute) ASSERT_LE(worst_of(&l, t2 ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD, &d->activated, &d->fc2.weight, &d->out, &d->fc2.bias, NULL, SUPPORT_SUM_ROUNDING), 1);
        ASSERT_LE(worst_of(&l, t1 ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, &d->grad_preactivation, &d->fc1.weight, &d->dgrad_out, NULL, NULL, SUPPORT_SUM_ROUNDING), 1);
        ASSERT_LE(worst_of(&l, TEGROUP_OP_WGRAD, t2 ? &d->activated : &d->grad_output, t2 ? &d->grad_output : &d->activated, &d->fc2.main_grad, NULL, NULL, SUPPORT_SUM_ROUNDING), 1);
        ASSERT_LE(worst_of(&l, TEGROUP_OP_WGRAD, t1 ? &d->input : &d->grad_preactivation, t1 ? &d->grad_preactivation : &d->input, &d->fc1.main_grad, NULL, NULL, SUPPORT_SUM_ROUNDING), 1);
        if (!(i % 2)) { /* what is quantised is what a call of its own makes */
            tegroup_quantize_desc q = quantiser(d, &d->preactivation, &d->activated, l.values != TEGROUP_DTYPE_UNSET ? 1 : 3, l.transposed);
            OK(tegroup_quantize(&q, NULL, &error));
            keep_values(&q, &d->activated);
            ASSERT_EQ(copies_differ(&d->activated, &q.output), 0);
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* No epilogue activates what a product of quantised weights gives, whatever the machine. */
TEST(quantised_mlp, no_epilogue_of_another_machine) {
    rng r = rng_seed(5245);
    tegroup_target target;
    memset(&target, 0, sizeof target);
    target.struct_size = sizeof target;
    target.sm = 90, target.built = 1u << TEGROUP_BACKEND_PORTABLE;
    for (int i = 0; i < 4; i++) { /* none, fc1's weights, fc2's, activated */
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_mlp_plan plan;
        quantised_layer_rows(&l, &recipes[3], &r);
        tegroup_mlp_desc *d = &l.mlp;
        l.rows.row_sizes.space = TEGROUP_SPACE_DEVICE;
        d->struct_size = sizeof *d;
        d->space = TEGROUP_SPACE_DEVICE;
        d->activation = TEGROUP_ACTIVATION_SWIGLU;
        d->fc1.weight = tegroup_tensor_uniform(QL_GROUPS, 2 * QL_H, QL_K, TEGROUP_DTYPE_BF16, NULL);
        d->fc2.weight = tegroup_tensor_uniform(QL_GROUPS, QL_N, QL_H, TEGROUP_DTYPE_BF16, NULL);
        d->input = tegroup_tensor_of(l.rows, QL_K, TEGROUP_DTYPE_BF16, NULL);
        d->out = d->grad_output = tegroup_tensor_of(l.rows, QL_N, TEGROUP_DTYPE_BF16, NULL);
        d->preactivation = d->grad_preactivation = tegroup_tensor_of(l.rows, 2 * QL_H, TEGROUP_DTYPE_BF16, NULL);
        d->fusion = TEGROUP_FUSION_REQUIRED;
        if (i == 1) d->fc1.weight.dtype = TEGROUP_DTYPE_F8E4M3, d->fc1.weight.scaling = TEGROUP_SCALING_MXFP8;
        if (i == 2) d->fc2.weight.dtype = TEGROUP_DTYPE_F8E4M3, d->fc2.weight.scaling = TEGROUP_SCALING_MXFP8, memset(&d->out, 0, sizeof d->out);
        if (i == 3) {
            d->activated = tegroup_tensor_of(l.rows, QL_H, TEGROUP_DTYPE_F8E4M3, NULL), d->activated.scaling = TEGROUP_SCALING_MXFP8;
            d->activated_rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_MXFP8);
            d->fc2.weight.dtype = TEGROUP_DTYPE_F8E4M3, d->fc2.weight.scaling = TEGROUP_SCALING_MXFP8;
            memset(&d->grad_preactivation, 0, sizeof d->grad_preactivation), memset(&d->grad_output, 0, sizeof d->grad_output);
        }
        const tegroup_status status = tegroup_mlp_plan_make(d, &target, &plan, &error);
        ASSERT_EQ(status, i == 0 ? TEGROUP_OK : TEGROUP_ERROR_UNSUPPORTED);
        if (i > 0) ASSERT_STREQ(error.field, "fusion");
        d->fusion = TEGROUP_FUSION_AUTO;
        OK(tegroup_mlp_plan_make(d, &target, &plan, &error));
        ASSERT_EQ(plan.planned.fused, 0u);
        guards_release(mark);
    }
}

/* Inference: what lies between the layers is in the workspace, quantised where activated has a scaling, and Y has the same bits. */
TEST(quantised_mlp, inference_in_the_workspace) {
    rng r = rng_seed(5250);
    for (int64_t i = 0; i < RECIPES + scaled(5); i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_mlp_plan plan;
        tegroup_layout layout;
        quantised_mlp_make(&l, &recipes[i % RECIPES], -1, &r);
        tegroup_mlp_desc *d = &l.mlp, inference = *d;
        tegroup_tensor *none[] = {&inference.dgrad_out, &inference.grad_output, &inference.grad_preactivation, &inference.grad_row_scale, &inference.fc1.main_grad,
                                  &inference.fc2.main_grad, &inference.fc1.bias_grad, &inference.fc2.bias_grad, &inference.activated};
        OK(tegroup_mlp_plan_make(d, NULL, &plan, &error));
        workspace(&d->options, plan.workspace_bytes);
        OK(tegroup_mlp_forward(&plan, d, NULL, &error));
        for (int j = 0; j < 9; j++) memset(none[j], 0, sizeof *none[j]);
        memset(&inference.grad_rule, 0, sizeof inference.grad_rule);
        inference.recompute = 0;
        inference.activated.scaling = d->activated.scaling;
        inference.out.data = room(guarded_find(d->out.data)->bytes);
        OK(tegroup_mlp_plan_make(&inference, NULL, &plan, &error));
        workspace(&inference.options, plan.workspace_bytes);
        OK(tegroup_mlp_forward(&plan, &inference, NULL, &error));
        ASSERT_EQ(differ(d->out.data, inference.out.data), 0);
        OK(tegroup_mlp_layout(&plan, TEGROUP_MLP_WORKSPACE, &layout, &error));
        int64_t data = 0, scales = 0, numbers = 0;
        for (int j = 0; j < layout.count; j++) {
            data += strcmp(layout.items[j].name, "activated, and in dgrad its gradient") == 0 ? (int64_t)layout.items[j].bytes : 0;
            scales += strcmp(layout.items[j].name, "activated.scale_inv") == 0;
            numbers += strcmp(layout.items[j].name, "activated.amax") == 0 || strcmp(layout.items[j].name, "activated.global_scale_inv") == 0;
        }
        ASSERT_EQ(data, l.f->forward == TEGROUP_DTYPE_F4E2M1 ? l.rows.rows * QL_H / 2 : l.rows.rows * QL_H); /* a byte, or half of one */
        ASSERT_EQ(scales, 1);
        ASSERT_EQ(numbers, l.f->rows == TEGROUP_SCALING_TENSOR ? 1 : l.f->rows == TEGROUP_SCALING_NVFP4 ? 2 : 0);
        /* without a scaling it has preactivation's type, and fc2's weights alone are quantised */
        inference.activated.scaling = TEGROUP_SCALING_NONE;
        memset(&inference.activated_rule, 0, sizeof inference.activated_rule);
        if (d->preactivation.dtype == TEGROUP_DTYPE_BF16) {
            OK(tegroup_mlp_plan_make(&inference, NULL, &plan, &error));
            ASSERT_EQ(plan.fc2.forward.problem.a, TEGROUP_DTYPE_BF16);
            workspace(&inference.options, plan.workspace_bytes);
            OK(tegroup_mlp_forward(&plan, &inference, NULL, &error));
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* What a plan says of memory: of what is quantised, the copy that wgrad reads lives on, a byte an element and less, and its scales. */
TEST(quantised_mlp, saved_bytes_by_copy) {
    rng r = rng_seed(5260);
    for (int i = 0; i < 4 * RECIPES; i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_mlp_plan plan;
        tegroup_layout layout, copies;
        quantised_mlp_make(&l, &recipes[i % RECIPES], 0, &r);
        OK(tegroup_mlp_plan_make(&l.mlp, NULL, &plan, &error));
        OK(tegroup_mlp_layout(&plan, TEGROUP_MLP_SAVED_BY_FORWARD, &layout, &error));
        OK(tegroup_tensor_layout(&l.mlp.activated, TEGROUP_COPIES_BOTH, &copies, &error));
        const int rowwise_serves = l.f->rows == TEGROUP_SCALING_TENSOR;
        if (l.values != TEGROUP_DTYPE_UNSET) { /* values as they are, and no scales */
            ASSERT_EQ(layout.count, 2);
            ASSERT_STREQ(layout.items[1].name, "activated.columnwise_data");
            ASSERT_EQ(layout.items[1].bytes, l.rows.rows * QL_H * (int64_t)size_of(l.values));
            OK(tegroup_mlp_layout(&plan, TEGROUP_MLP_SAVED_BY_DGRAD, &layout, &error));
            ASSERT_EQ(layout.count, 1);
            ASSERT_STREQ(layout.items[0].name, "grad_preactivation.columnwise_data");
            ASSERT_EQ(layout.items[0].bytes, l.rows.rows * l.mlp.preactivation.shape.cols * (int64_t)size_of(l.values));
            guards_release(mark);
            continue;
        }
        ASSERT_EQ(layout.count, 3);
        ASSERT_STREQ(layout.items[1].name, rowwise_serves ? "activated" : "activated.columnwise_data");
        ASSERT_STREQ(layout.items[2].name, rowwise_serves ? "activated.scale_inv" : "activated.columnwise_scale_inv");
        for (int j = 0; j < 2; j++) ASSERT_EQ(layout.items[j + 1].bytes, copies.items[rowwise_serves ? j : j + 2].bytes);
        OK(tegroup_mlp_layout(&plan, TEGROUP_MLP_SAVED_BY_DGRAD, &layout, &error));
        ASSERT_EQ(layout.count, 2);
        ASSERT_STREQ(layout.items[0].name, rowwise_serves ? "grad_preactivation" : "grad_preactivation.columnwise_data");
        ASSERT_STREQ(layout.items[1].name, rowwise_serves ? "grad_preactivation.scale_inv" : "grad_preactivation.columnwise_scale_inv");
        guards_release(mark);
    }
}

/* Bytes of what a plan for a Hopper GPU, or the host, quantises from its workspace: none of 1x128 blocks that a kernel makes at once. */
static int64_t quantised_from_workspace(tegroup_space space, tegroup_activation activation, tegroup_scaling scaling, tegroup_dtype code, tegroup_scale_preset preset,
                                        tegroup_columnwise_order order, int trains) {
    enum { E = 4, ROWS = 640, D = 256, H = 128 };
    const tegroup_dtype bf16 = TEGROUP_DTYPE_BF16;
    const tegroup_target hopper = {.struct_size = sizeof hopper, .sm = 90, .built = 1u << TEGROUP_BACKEND_SM90 | 1u << TEGROUP_BACKEND_PORTABLE};
    const tegroup_shape rows = tegroup_shape_of(E, ROWS, D, tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, space));
    const int64_t gates = activation == TEGROUP_ACTIVATION_RELU ? H : 2 * H;
    tegroup_mlp_desc d = {.struct_size = sizeof d};
    tegroup_mlp_plan plan;
    tegroup_layout layout;
    tegroup_error error;
    d.space = space, d.activation = activation;
    d.fc1.weight = tegroup_tensor_uniform(E, gates, D, code, NULL), d.fc2.weight = tegroup_tensor_uniform(E, D, H, code, NULL);
    d.input = tegroup_tensor_of(rows, D, code, NULL), d.out = tegroup_tensor_of(rows, D, bf16, NULL);
    d.fc1.weight.scaling = d.fc2.weight.scaling = scaling == TEGROUP_SCALING_BLOCK_1X128 ? TEGROUP_SCALING_BLOCK_128X128 : scaling;
    d.input.scaling = d.activated.scaling = scaling;
    d.activated_rule = tegroup_scale_rule_of(preset);
    if (trains) {
        d.fc1.main_grad = tegroup_tensor_uniform(E, gates, D, TEGROUP_DTYPE_F32, NULL), d.fc2.main_grad = tegroup_tensor_uniform(E, D, H, TEGROUP_DTYPE_F32, NULL);
        d.preactivation = tegroup_tensor_of(rows, gates, bf16, NULL), d.dgrad_out = d.out;
        d.activated = tegroup_tensor_of(rows, H, code, NULL), d.grad_preactivation = tegroup_tensor_of(rows, gates, code, NULL);
        d.activated.scaling = d.grad_preactivation.scaling = scaling;
        d.grad_rule = d.activated_rule;
        d.grad_output = d.input;
        tegroup_tensor *const turned[] = {&d.input, &d.grad_output, &d.activated, &d.grad_preactivation, &d.fc1.weight, &d.fc2.weight};
        for (int i = 0; i < 6; i++) turned[i]->columnwise_order = i < 4 ? order : TEGROUP_COLUMNWISE_TRANSPOSED;
    }
    if (tegroup_mlp_plan_make(&d, space == TEGROUP_SPACE_HOST ? NULL : &hopper, &plan, &error) != TEGROUP_OK) return printf("%s %s\n", error.field, error.rule), -1;
    if (tegroup_mlp_layout(&plan, TEGROUP_MLP_WORKSPACE, &layout, &error) != TEGROUP_OK) return -1;
    for (int i = 0; i < layout.count; i++)
        if (strcmp(layout.items[i].name, "what is quantised") == 0) return (int64_t)layout.items[i].bytes;
    return 0;
}
TEST(quantised_mlp, values_of_a_gpu_are_in_its_workspace) {
    enum { ROWS = 640, H = 128, VALUE = 2 };
    const tegroup_activation swiglu = TEGROUP_ACTIVATION_SWIGLU;
    const tegroup_space gpu = TEGROUP_SPACE_DEVICE;
    const tegroup_dtype fp8 = TEGROUP_DTYPE_F8E4M3, fp4 = TEGROUP_DTYPE_F4E2M1;
    const tegroup_columnwise_order turned = TEGROUP_COLUMNWISE_TRANSPOSED;
    const tegroup_scaling blocks = TEGROUP_SCALING_BLOCK_1X128, one = TEGROUP_SCALING_TENSOR;
    for (int trains = 0; trains < 2; trains++) {
        const int64_t values = ROWS * H * VALUE * (trains ? 2 : 1); /* of the gates' and ups' gradient, or of activated */
        ASSERT_EQ(quantised_from_workspace(gpu, swiglu, blocks, fp8, TEGROUP_SCALE_TE_BLOCK, turned, trains), 0);
        ASSERT_EQ(quantised_from_workspace(gpu, TEGROUP_ACTIVATION_SWIGLU_LIMITED, blocks, fp8, TEGROUP_SCALE_TE_BLOCK, turned, trains), 0);
        ASSERT_EQ(quantised_from_workspace(gpu, TEGROUP_ACTIVATION_GEGLU, blocks, fp8, TEGROUP_SCALE_TE_BLOCK, turned, trains), values);
        ASSERT_EQ(quantised_from_workspace(gpu, swiglu, blocks, fp8, TEGROUP_SCALE_DEEPSEEK, turned, trains), values); /* which divides */
        ASSERT_EQ(quantised_from_workspace(gpu, swiglu, one, fp8, TEGROUP_SCALE_TE_CURRENT, turned, trains), values);
        ASSERT_EQ(quantised_from_workspace(gpu, swiglu, TEGROUP_SCALING_ROW, fp8, TEGROUP_SCALE_FBGEMM_ROW, turned, trains), values);
        ASSERT_EQ(quantised_from_workspace(gpu, swiglu, TEGROUP_SCALING_MXFP8, fp8, TEGROUP_SCALE_TE_MXFP8, turned, trains), values);
        ASSERT_EQ(quantised_from_workspace(gpu, swiglu, TEGROUP_SCALING_MXFP4, fp4, TEGROUP_SCALE_OCP_MX, turned, trains), values);
        ASSERT_EQ(quantised_from_workspace(gpu, TEGROUP_ACTIVATION_RELU, one, fp8, TEGROUP_SCALE_TE_CURRENT, turned, trains), ROWS * H * VALUE);
        ASSERT_EQ(quantised_from_workspace(TEGROUP_SPACE_HOST, swiglu, one, fp8, TEGROUP_SCALE_TE_CURRENT, turned, trains), 0);
    }
    ASSERT_EQ(quantised_from_workspace(gpu, swiglu, one, fp8, TEGROUP_SCALE_TE_CURRENT, TEGROUP_COLUMNWISE_BF16, 1), 0); /* they are the caller's */
}

/* Gates and ups apart: rows between the layers may be quantised forward, not as gradients. */
TEST(quantised_mlp, gates_and_ups_apart) {
    rng r = rng_seed(5270);
    for (int i = 0; i < RECIPES; i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_mlp_plan plan;
        do {
            guards_release(mark);
            quantised_mlp_make(&l, &recipes[i], -1, &r);
        } while (!l.gated);
        tegroup_mlp_desc *d = &l.mlp;
        d->interleaved = 0;
        d->fc1.weight_layout = TEGROUP_WEIGHT_OUT_IN;
        memset(&d->fc1.bias, 0, sizeof d->fc1.bias), memset(&d->fc1.bias_grad, 0, sizeof d->fc1.bias_grad);
        d->fc1.weight = ql_weight(&l, QL_H, QL_K, 0, &r), d->fc1_up.weight = ql_weight(&l, QL_H, QL_K, 0, &r);
        d->fc1.main_grad = plain_weights(QL_H, QL_K, TEGROUP_DTYPE_F32), d->fc1_up.main_grad = plain_weights(QL_H, QL_K, TEGROUP_DTYPE_F32);
        ASSERT_EQ(tegroup_mlp_plan_make(d, NULL, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
        ASSERT_STREQ(error.field, "grad_preactivation.scaling");
        const tegroup_dtype between = l.values != TEGROUP_DTYPE_UNSET ? l.values : TEGROUP_DTYPE_BF16;
        d->grad_preactivation = plain_rows(&l, 2 * QL_H, between);
        memset(&d->grad_rule, 0, sizeof d->grad_rule);
        d->preactivation = plain_rows(&l, 2 * QL_H, between);
        OK(tegroup_mlp_plan_make(d, NULL, &plan, &error));
        workspace(&d->options, plan.workspace_bytes);
        OK(tegroup_mlp_forward(&plan, d, NULL, &error));
        OK(tegroup_mlp_dgrad(&plan, d, NULL, &error));
        OK(tegroup_mlp_wgrad(&plan, d, NULL, &error));
        const int64_t size = (int64_t)size_of(between);
        tegroup_tensor half = d->preactivation, gates, ups;
        half.shape.cols = QL_H, half.ld = 2 * QL_H;
        gates = product(TEGROUP_OP_FORWARD, &d->input, &d->fc1.weight, &half, NULL, NULL, 0, NULL);
        ups = product(TEGROUP_OP_FORWARD, &d->input, &d->fc1_up.weight, &half, NULL, NULL, 0, NULL);
        for (int64_t row = 0; row < l.counts[0] + l.counts[1] + l.counts[2] + l.counts[3]; row++)
            for (int up = 0; up < 2; up++)
                ASSERT_EQ(memcmp((char *)d->preactivation.data + (2 * row + up) * QL_H * size, (char *)(up ? ups : gates).data + 2 * row * QL_H * size, (size_t)(QL_H * size)), 0);
        half = d->grad_preactivation, half.shape.cols = QL_H, half.ld = 2 * QL_H, half.data = (char *)half.data + QL_H * size;
        tegroup_tensor dw = product(TEGROUP_OP_WGRAD, &half, &d->input, &d->fc1_up.main_grad, NULL, NULL, 0, NULL);
        ASSERT_EQ(differ(d->fc1_up.main_grad.data, dw.data), 0);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* ---- the chain ---- */

/* Quantised weights beside rows that are not: linear, activation, linear, as a grouped MLP and op by op, with the bits of calls one
 * after another. */
TEST(quantised_chain, weights_alone) {
    rng r = rng_seed(5280);
    for (int i = 0; i < 2 * RECIPES; i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_chain_plan plan;
        tegroup_chain_op ops[3];
        tegroup_chain_argument arguments[2];
        tegroup_chain_desc chain;
        tegroup_activation_desc activation;
        tegroup_activation_backward_desc backward;
        const int in_out = i % 3 == 0;
        quantised_layer_rows(&l, &recipes[i / 2], &r);
        memset(ops, 0, sizeof ops), memset(arguments, 0, sizeof arguments), memset(&chain, 0, sizeof chain), memset(&activation, 0, sizeof activation);
        ops[0].kind = ops[2].kind = TEGROUP_CHAIN_LINEAR;
        ops[0].weights.weight = ql_weight(&l, 2 * QL_H, QL_K, in_out, &r), ops[2].weights.weight = ql_weight(&l, QL_N, QL_H, 0, &r);
        ops[0].weights.weight_layout = in_out ? TEGROUP_WEIGHT_IN_OUT : TEGROUP_WEIGHT_OUT_IN;
        ops[0].weights.main_grad = plain_weights(ops[0].weights.weight.shape.rows, ops[0].weights.weight.shape.cols, TEGROUP_DTYPE_F32);
        ops[1].kind = TEGROUP_CHAIN_ACTIVATION, ops[1].activation = TEGROUP_ACTIVATION_SWIGLU;
        chain.struct_size = sizeof chain;
        chain.space = TEGROUP_SPACE_HOST;
        chain.ops = ops, chain.op_count = 3;
        chain.accumulate = i / 2 % 2;
        if (chain.accumulate) has_numbers(&ops[0].weights.main_grad, &r);
        chain.input = tegroup_tensor_of(l.rows, QL_K, TEGROUP_DTYPE_BF16, filled(TEGROUP_DTYPE_BF16, l.rows.rows * QL_K, 1, &r));
        chain.grad_output = tegroup_tensor_of(l.rows, QL_N, TEGROUP_DTYPE_BF16, filled(TEGROUP_DTYPE_BF16, l.rows.rows * QL_N, 0.1, &r));
        arguments[0].op = 2, arguments[0].out = plain_rows(&l, QL_N, TEGROUP_DTYPE_BF16);
        arguments[1].op = 0, arguments[1].grad_input = plain_rows(&l, QL_K, TEGROUP_DTYPE_BF16);
        chain.arguments = arguments, chain.argument_count = 2;
        chain.unfused = i % 2;
        chain.options.threads = 1;
        OK(tegroup_chain_plan_make(&chain, NULL, &plan, &error));
        ASSERT_EQ(plan.fused, i % 2 ? 0u : 1u);
        workspace(&chain.options, plan.workspace_bytes);
        chain.saved = scratch(plan.saved_bytes), chain.saved_bytes = plan.saved_bytes;
        OK(tegroup_chain_forward(&plan, &chain, NULL, &error));
        OK(tegroup_chain_backward(&plan, &chain, NULL, &error));
        tegroup_tensor wide = plain_rows(&l, 2 * QL_H, TEGROUP_DTYPE_BF16), narrow = plain_rows(&l, QL_H, TEGROUP_DTYPE_BF16);
        const tegroup_tensor pre = product(in_out ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD, &chain.input, &ops[0].weights.weight, &wide, NULL, NULL, 0, NULL);
        activation.struct_size = sizeof activation;
        activation.space = TEGROUP_SPACE_HOST;
        activation.activation = TEGROUP_ACTIVATION_SWIGLU;
        activation.snapshot = l.rows.snapshot;
        activation.input = tegroup_matrix_of(pre.data, l.rows.rows, 2 * QL_H, TEGROUP_DTYPE_BF16);
        activation.output = tegroup_matrix_of(narrow.data, l.rows.rows, QL_H, TEGROUP_DTYPE_BF16);
        OK(tegroup_activation_forward(&activation, NULL, &error));
        ASSERT_EQ(differ(arguments[0].out.data, product(TEGROUP_OP_FORWARD, &narrow, &ops[2].weights.weight, &arguments[0].out, NULL, NULL, 0, NULL).data), 0);
        tegroup_tensor dnarrow = plain_rows(&l, QL_H, TEGROUP_DTYPE_BF16), dwide = plain_rows(&l, 2 * QL_H, TEGROUP_DTYPE_BF16);
        dnarrow = product(TEGROUP_OP_DGRAD, &chain.grad_output, &ops[2].weights.weight, &dnarrow, NULL, NULL, 0, NULL);
        memset(&backward, 0, sizeof backward);
        backward.struct_size = sizeof backward;
        backward.space = TEGROUP_SPACE_HOST;
        backward.activation = TEGROUP_ACTIVATION_SWIGLU;
        backward.snapshot = l.rows.snapshot;
        backward.input = activation.input;
        backward.grad_output = tegroup_matrix_of(dnarrow.data, l.rows.rows, QL_H, TEGROUP_DTYPE_BF16);
        backward.grad_input = tegroup_matrix_of(dwide.data, l.rows.rows, 2 * QL_H, TEGROUP_DTYPE_BF16);
        OK(tegroup_activation_backward(&backward, NULL, &error));
        const tegroup_tensor *x = &chain.input, *dx = &arguments[1].grad_input, *dw = &ops[0].weights.main_grad;
        ASSERT_EQ(differ(dx->data, product(in_out ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, &dwide, &ops[0].weights.weight, dx, NULL, NULL, 0, NULL).data), 0);
        ASSERT_EQ(differ(dw->data, product(TEGROUP_OP_WGRAD, in_out ? x : &dwide, in_out ? &dwide : x, dw, NULL, NULL, chain.accumulate ? ADDS : 0, NULL).data), 0);
        ASSERT_PASSING();
        ASSERT_EQ(tail_changed(&l, &arguments[0].out) + tail_changed(&l, dx), 0);
        ASSERT_EQ(guards_changed(), 0);
        void *const out = arguments[0].out.data; /* apart from the copy of another op that this direction reads */
        arguments[0].out.data = in_out ? ops[0].weights.weight.columnwise_data : ops[0].weights.weight.data;
        ASSERT_EQ(tegroup_chain_forward(&plan, &chain, NULL, &error), TEGROUP_ERROR_OVERLAP);
        ASSERT_STREQ(error.field, "arguments.out.data");
        arguments[0].out.data = out;
        chain.input.scaling = recipes[i / 2].rows, chain.input.dtype = recipes[i / 2].forward;
        ASSERT_NE(tegroup_chain_plan_make(&chain, NULL, &plan, &error), TEGROUP_OK);
        chain.input.dtype = TEGROUP_DTYPE_BF16;
        ASSERT_EQ(tegroup_chain_plan_make(&chain, NULL, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
        ASSERT_STREQ(error.field, "input.scaling");
        guards_release(mark);
    }
}

/* ---- refusals ---- */

static tegroup_status every_linear_call(const tegroup_linear_desc *d, int planned, const tegroup_linear_plan *plan) {
    tegroup_linear_plan made = *plan;
    tegroup_status status = planned ? TEGROUP_OK : tegroup_linear_plan_make(d, NULL, &made, &error);
    if (status == TEGROUP_OK) status = tegroup_linear_forward(&made, d, NULL, &error);
    if (status == TEGROUP_OK) status = tegroup_linear_dgrad(&made, d, NULL, &error);
    return status == TEGROUP_OK ? tegroup_linear_wgrad(&made, d, NULL, &error) : status;
}
#define REFUSED(kind, now_planned, change, status_, field_)                                                                 \
    do {                                                                                                                    \
        tegroup_##kind##_desc bad = l.kind;                                                                                 \
        change;                                                                                                             \
        const tegroup_status got_ = every_##kind##_call(&bad, now_planned, &plan);                                          \
        if (got_ != status_ || strcmp(error.field, field_) != 0) printf("%s: %s: %s %s\n", #change, tegroup_status_name(got_), got_ ? error.field : "", got_ ? error.rule : ""); \
        ASSERT_EQ(got_, status_);                                                                                           \
        ASSERT_STREQ(error.field, field_);                                                                                  \
    } while (0)

TEST(quantised_linear, refuses_by_field) {
    rng r = rng_seed(5300);
    for (int i = 0; i < RECIPES; i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_linear_plan plan;
        do {
            guards_release(mark);
            quantised_linear_make(&l, &recipes[i], &r);
        } while (l.linear.weight_layout != TEGROUP_WEIGHT_OUT_IN || l.linear.row_scale == NULL);
        OK(tegroup_linear_plan_make(&l.linear, NULL, &plan, &error));
        workspace(&l.linear.options, plan.workspace_bytes);
        REFUSED(linear, 0, bad.input.scaling = TEGROUP_SCALING_COUNT, TEGROUP_ERROR_VALUE, "input.scaling");
        REFUSED(linear, 0, bad.out.dtype = recipes[i].forward; bad.out.scaling = recipes[i].rows, TEGROUP_ERROR_UNSUPPORTED, "out.scaling");
        REFUSED(linear, 0, bad.main_grad.dtype = recipes[i].forward; bad.main_grad.scaling = recipes[i].weights, TEGROUP_ERROR_UNSUPPORTED, "main_grad.scaling");
        REFUSED(linear, 0, bad.dgrad_out.dtype = recipes[i].forward; bad.dgrad_out.scaling = recipes[i].rows, TEGROUP_ERROR_UNSUPPORTED, "dgrad_out.scaling");
        REFUSED(linear, 0, bad.weight = plain_weights(QL_N, QL_K, TEGROUP_DTYPE_BF16), TEGROUP_ERROR_COMBINATION, "weight.scaling");
        REFUSED(linear, 0, bad.grad_row_scale = plain_rows(&l, 1, TEGROUP_DTYPE_F32), TEGROUP_ERROR_UNSUPPORTED, "grad_row_scale");
        REFUSED(linear, 1, bad.input.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "input.data");
        REFUSED(linear, 1, bad.input.scale_inv = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "input.scale_inv");
        if (recipes[i].rows != TEGROUP_SCALING_TENSOR) {
            REFUSED(linear, 1, bad.input.columnwise_data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "input.columnwise_data");
            REFUSED(linear, 1, bad.grad_output.columnwise_data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "grad_output.columnwise_data");
        }
        REFUSED(linear, 1, bad.weight.columnwise_scale_inv = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "weight.columnwise_scale_inv");
        REFUSED(linear, 1, bad.grad_output.columnwise_order = l.values != TEGROUP_DTYPE_UNSET ? TEGROUP_COLUMNWISE_AS_DATA : (tegroup_columnwise_order)!bad.grad_output.columnwise_order,
                TEGROUP_ERROR_PLAN, "grad_output.columnwise_order");
        REFUSED(linear, 1, bad.input.columnwise_data = bad.main_grad.data, TEGROUP_ERROR_OVERLAP, "main_grad.data");
        REFUSED(linear, 1, bad.dgrad_out.data = bad.weight.columnwise_data, TEGROUP_ERROR_OVERLAP, "dgrad_out.data");
        guards_release(mark);
    }
}

static tegroup_status every_mlp_call(const tegroup_mlp_desc *d, int planned, const tegroup_mlp_plan *plan) {
    tegroup_mlp_plan made = *plan;
    tegroup_status status = planned ? TEGROUP_OK : tegroup_mlp_plan_make(d, NULL, &made, &error);
    if (status == TEGROUP_OK) status = tegroup_mlp_forward(&made, d, NULL, &error);
    if (status == TEGROUP_OK) status = tegroup_mlp_dgrad(&made, d, NULL, &error);
    return status == TEGROUP_OK ? tegroup_mlp_wgrad(&made, d, NULL, &error) : status;
}

TEST(quantised_mlp, refuses_by_field) {
    rng r = rng_seed(5310);
    for (int i = 0; i < 2 * RECIPES; i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_mlp_plan plan;
        const recipe *f = &recipes[i / 2];
        const int whole = f->rows == TEGROUP_SCALING_TENSOR, levels = f->rows == TEGROUP_SCALING_NVFP4;
        quantised_mlp_make(&l, f, i % 2, &r);
        OK(tegroup_mlp_plan_make(&l.mlp, NULL, &plan, &error));
        workspace(&l.mlp.options, plan.workspace_bytes);
        REFUSED(mlp, 0, bad.activated_rule.method = TEGROUP_SCALE_UNSET, TEGROUP_ERROR_UNSET, "activated_rule.method");
        REFUSED(mlp, 0, bad.grad_rule.method = TEGROUP_SCALE_UNSET, TEGROUP_ERROR_UNSET, "grad_rule.method");
        REFUSED(mlp, 0, bad.grad_rule.amax_floor = -1, TEGROUP_ERROR_VALUE, "grad_rule.amax_floor");
        REFUSED(mlp, 0, bad.activated = plain_rows(&l, QL_H, TEGROUP_DTYPE_BF16), TEGROUP_ERROR_COMBINATION, "activated_rule.method");
        REFUSED(mlp, 0, bad.grad_preactivation = plain_rows(&l, bad.preactivation.shape.cols, TEGROUP_DTYPE_BF16), TEGROUP_ERROR_COMBINATION, "grad_rule.method");
        REFUSED(mlp, 0, bad.preactivation.dtype = TEGROUP_DTYPE_F64; bad.options.compute = TEGROUP_COMPUTE_F64, TEGROUP_ERROR_DTYPE, "preactivation.dtype");
        REFUSED(mlp, 0, bad.preactivation.dtype = f->forward; bad.preactivation.scaling = f->rows, TEGROUP_ERROR_UNSUPPORTED, "preactivation.scaling");
        REFUSED(mlp, 0, bad.fusion = TEGROUP_FUSION_REQUIRED, TEGROUP_ERROR_UNSUPPORTED, "fusion");
        REFUSED(mlp, 0, bad.fc2_bias_scaled = 1, TEGROUP_ERROR_UNSUPPORTED, "grad_row_scale");
        REFUSED(mlp, 1, bad.activated_rule.amax_floor = 1, TEGROUP_ERROR_PLAN, "activated_rule.amax_floor");
        REFUSED(mlp, 1, bad.grad_rule.nan_shows ^= 1, TEGROUP_ERROR_PLAN, "grad_rule.nan_shows");
        REFUSED(mlp, 1, bad.grad_preactivation.columnwise_order = (tegroup_columnwise_order)!bad.grad_preactivation.columnwise_order, TEGROUP_ERROR_PLAN, "grad_preactivation.columnwise_order");
        REFUSED(mlp, 1, bad.grad_preactivation.data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "grad_preactivation.data");
        REFUSED(mlp, 1, bad.grad_preactivation.scale_inv = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "grad_preactivation.scale_inv");
        if (!whole) REFUSED(mlp, 1, bad.grad_preactivation.columnwise_data = bad.grad_preactivation.columnwise_scale_inv = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "grad_preactivation.columnwise_data");
        if (!whole) REFUSED(mlp, 1, bad.activated.columnwise_data = bad.activated.columnwise_scale_inv = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "activated.columnwise_data");
        if ((whole || levels) && !(l.values != TEGROUP_DTYPE_UNSET && l.mlp.recompute)) REFUSED(mlp, 1, bad.activated.amax = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "activated.amax");
        if (levels && l.mlp.recompute && l.values == TEGROUP_DTYPE_UNSET) REFUSED(mlp, 1, bad.activated.global_scale_inv = NULL; bad.activated.amax = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "activated.global_scale_inv");
        REFUSED(mlp, 1, bad.grad_preactivation.data = bad.preactivation.data, TEGROUP_ERROR_OVERLAP, "grad_preactivation.data");
        REFUSED(mlp, 1, bad.dgrad_out.data = bad.fc1.weight_layout ? bad.fc1.weight.data : bad.fc1.weight.columnwise_data, TEGROUP_ERROR_OVERLAP, "dgrad_out.data");
        REFUSED(mlp, 1, bad.activated.columnwise_data = bad.fc2.main_grad.data, TEGROUP_ERROR_OVERLAP, "fc2.main_grad.data");
        REFUSED(mlp, 1, bad.input.scaling = TEGROUP_SCALING_COUNT, TEGROUP_ERROR_VALUE, "input.scaling");
        REFUSED(mlp, 1, bad.fc2.weight.scaling = (tegroup_scaling)-1, TEGROUP_ERROR_VALUE, "fc2.weight.scaling");
        REFUSED(mlp, 1, bad.grad_output.scaling = TEGROUP_SCALING_COUNT, TEGROUP_ERROR_VALUE, "grad_output.scaling");
        REFUSED(mlp, 1, bad.fc2.main_grad.scaling = TEGROUP_SCALING_COUNT, TEGROUP_ERROR_VALUE, "fc2.main_grad.scaling");
        { /* where no product of the call reads the copy, too: gradients of preactivation without dgrad_out, activated again */
            quantised_layer alone = l;
            tegroup_mlp_plan without;
            memset(&alone.mlp.dgrad_out, 0, sizeof alone.mlp.dgrad_out);
            OK(tegroup_mlp_plan_make(&alone.mlp, NULL, &without, &error));
            tegroup_mlp_desc other = alone.mlp;
            other.grad_preactivation.columnwise_order = (tegroup_columnwise_order)!other.grad_preactivation.columnwise_order;
            ASSERT_EQ(tegroup_mlp_dgrad(&without, &other, NULL, &error), TEGROUP_ERROR_PLAN);
            ASSERT_STREQ(error.field, "grad_preactivation.columnwise_order");
            other = alone.mlp;
            other.activated.columnwise_order = (tegroup_columnwise_order)!other.activated.columnwise_order;
            if (other.recompute) {
                ASSERT_EQ(tegroup_mlp_dgrad(&without, &other, NULL, &error), TEGROUP_ERROR_PLAN);
                ASSERT_STREQ(error.field, "activated.columnwise_order");
            }
        }
        if (l.mlp.fc2.bias_grad.dtype == TEGROUP_DTYPE_UNSET) { /* what an unset tensor says beside is not looked at */
            tegroup_mlp_desc odd = l.mlp;
            odd.fc2.bias_grad.scaling = TEGROUP_SCALING_COUNT;
            OK(every_mlp_call(&odd, 1, &plan));
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* Values that are kept for sums over rows: what they must be, by field, and who does not take them. */
TEST(quantised_mlp, values_refused_by_field) {
    rng r = rng_seed(5320);
    for (int i = 0; i < 2 * RECIPES; i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_mlp_plan plan;
        tegroup_linear_plan linear_plan;
        const recipe *f = &recipes[i / 2];
        do {
            guards_release(mark);
            quantised_mlp_make(&l, f, i % 2, &r);
        } while (l.values != TEGROUP_DTYPE_BF16 || l.in_place);
        OK(tegroup_mlp_plan_make(&l.mlp, NULL, &plan, &error));
        workspace(&l.mlp.options, plan.workspace_bytes);
        REFUSED(mlp, 0, bad.activated.columnwise_order = TEGROUP_COLUMNWISE_F32, TEGROUP_ERROR_DTYPE, "activated.columnwise_order");
        REFUSED(mlp, 0, bad.grad_preactivation.columnwise_order = TEGROUP_COLUMNWISE_F16, TEGROUP_ERROR_DTYPE, "grad_preactivation.columnwise_order");
        REFUSED(mlp, 0, bad.activated.columnwise_order = (tegroup_columnwise_order)(TEGROUP_COLUMNWISE_F32 + 1), TEGROUP_ERROR_VALUE, "activated.columnwise_order");
        REFUSED(mlp, 0, bad.preactivation.columnwise_order = TEGROUP_COLUMNWISE_BF16, TEGROUP_ERROR_COMBINATION, "preactivation.columnwise_order");
        REFUSED(mlp, 0, bad.grad_output.columnwise_order = TEGROUP_COLUMNWISE_F16, TEGROUP_ERROR_DTYPE, bad.fc2.weight_layout ? "grad_output.columnwise_order" : "activated.columnwise_order");
        REFUSED(mlp, 1, bad.activated.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA; bad.activated.columnwise_scale_inv = bad.activated.columnwise_data, TEGROUP_ERROR_PLAN, "activated.columnwise_order");
        REFUSED(mlp, 1, bad.grad_preactivation.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA; bad.grad_preactivation.columnwise_scale_inv = bad.grad_preactivation.columnwise_data, TEGROUP_ERROR_PLAN, "grad_preactivation.columnwise_order");
        REFUSED(mlp, 1, bad.activated.columnwise_data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "activated.columnwise_data");
        REFUSED(mlp, 1, bad.grad_preactivation.columnwise_data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "grad_preactivation.columnwise_data");
        REFUSED(mlp, 1, bad.activated.columnwise_data = (char *)bad.activated.columnwise_data + 1, TEGROUP_ERROR_ALIGNMENT, "activated.columnwise_data");
        REFUSED(mlp, 1, bad.activated.columnwise_scale_inv = bad.out.data, TEGROUP_ERROR_COMBINATION, "activated.columnwise_scale_inv");
        REFUSED(mlp, 1, bad.input.columnwise_data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "input.columnwise_data");
        REFUSED(mlp, 1, bad.grad_output.columnwise_data = (char *)bad.grad_output.columnwise_data + 1, TEGROUP_ERROR_ALIGNMENT, "grad_output.columnwise_data");
        REFUSED(mlp, 1, bad.input.columnwise_data = bad.fc1.main_grad.data, TEGROUP_ERROR_OVERLAP, "fc1.main_grad.data");
        REFUSED(mlp, 1, bad.activated.columnwise_data = bad.preactivation.data, TEGROUP_ERROR_OVERLAP, bad.recompute ? "activated.columnwise_data" : "preactivation.data");
        REFUSED(mlp, 1, bad.grad_preactivation.columnwise_data = (char *)bad.preactivation.data + 2, TEGROUP_ERROR_OVERLAP, "grad_preactivation.columnwise_data");

        quantised_layer one;
        do quantised_linear_make(&one, f, &r);
        while (one.values != TEGROUP_DTYPE_BF16 || one.linear.weight_layout != TEGROUP_WEIGHT_OUT_IN);
        OK(tegroup_linear_plan_make(&one.linear, NULL, &linear_plan, &error));
        workspace(&one.linear.options, linear_plan.workspace_bytes);
        {
            quantised_layer l = one;
            tegroup_linear_plan plan = linear_plan;
            REFUSED(linear, 0, bad.input.columnwise_order = TEGROUP_COLUMNWISE_F32, TEGROUP_ERROR_DTYPE, "input.columnwise_order");
            REFUSED(linear, 0, bad.out.columnwise_order = TEGROUP_COLUMNWISE_BF16, TEGROUP_ERROR_COMBINATION, "out.columnwise_order");
            REFUSED(linear, 1, bad.input.columnwise_order = bad.grad_output.columnwise_order = TEGROUP_COLUMNWISE_F16, TEGROUP_ERROR_PLAN, "input.columnwise_order");
            REFUSED(linear, 1, bad.input.columnwise_data = NULL, TEGROUP_ERROR_NULL_ARGUMENT, "input.columnwise_data");
            REFUSED(linear, 1, bad.grad_output.columnwise_data = bad.main_grad.data, TEGROUP_ERROR_OVERLAP, "main_grad.data");
            /* a call of wgrad alone sees what the product does not */
            tegroup_linear_desc later = l.linear;
            later.input.columnwise_order = (tegroup_columnwise_order)99;
            ASSERT_EQ(tegroup_linear_wgrad(&plan, &later, NULL, &error), TEGROUP_ERROR_VALUE);
            ASSERT_STREQ(error.field, "input.columnwise_order");
            later = l.linear, later.input.columnwise_scale_inv = later.out.data;
            ASSERT_EQ(tegroup_linear_wgrad(&plan, &later, NULL, &error), TEGROUP_ERROR_COMBINATION);
            ASSERT_STREQ(error.field, "input.columnwise_scale_inv");
            later = l.linear, later.input.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA;
            ASSERT_EQ(tegroup_linear_wgrad(&plan, &later, NULL, &error), TEGROUP_ERROR_PLAN);
            ASSERT_STREQ(error.field, "input.columnwise_order");
            later = l.linear, later.input = as_summed(&later.input), later.grad_output = as_summed(&later.grad_output); /* rows that were never quantised */
            OK(tegroup_linear_wgrad(&plan, &later, NULL, &error));
            later.input.columnwise_order = TEGROUP_COLUMNWISE_BF16, later.input.columnwise_data = later.out.data;
            ASSERT_EQ(tegroup_linear_wgrad(&plan, &later, NULL, &error), TEGROUP_ERROR_COMBINATION);
            ASSERT_STREQ(error.field, "input.columnwise_order");
        }

        const tegroup_tensor *x = &one.linear.input; /* who takes no such copy */
        tegroup_gemm_desc gemm;
        tegroup_plan product_plan;
        OK(tegroup_linear_gemm(&one.linear, TEGROUP_OP_FORWARD, &gemm, &error));
        ASSERT_EQ(gemm.a.columnwise_order, TEGROUP_COLUMNWISE_BF16); /* it reads the other one */
        OK(tegroup_plan_make(&gemm, NULL, &product_plan, &error));
        OK(tegroup_linear_gemm(&one.linear, TEGROUP_OP_WGRAD, &gemm, &error));
        ASSERT_EQ(gemm.b.scaling, TEGROUP_SCALING_NONE);
        ASSERT_EQ((uintptr_t)gemm.b.data, (uintptr_t)x->columnwise_data);
        gemm.b = *x;
        ASSERT_EQ(tegroup_plan_make(&gemm, NULL, &product_plan, &error), TEGROUP_ERROR_COMBINATION);
        ASSERT_STREQ(error.field, "b.columnwise_order");
        tegroup_dequantize_desc back;
        memset(&back, 0, sizeof back);
        back.struct_size = sizeof back, back.space = TEGROUP_SPACE_HOST, back.input = *x, back.columnwise = 1;
        back.output = plain_rows(&one, QL_K, TEGROUP_DTYPE_F32);
        ASSERT_EQ(tegroup_dequantize(&back, NULL, &error), TEGROUP_ERROR_COMBINATION);
        ASSERT_STREQ(error.field, "columnwise");
        tegroup_validate_desc validate;
        tegroup_validation result;
        memset(&validate, 0, sizeof validate);
        validate.struct_size = sizeof validate, validate.space = TEGROUP_SPACE_HOST, validate.tensor = *x, validate.columnwise = 1, validate.result = &result;
        ASSERT_EQ(tegroup_validate(&validate, NULL, &error), TEGROUP_ERROR_COMBINATION);
        ASSERT_STREQ(error.field, "columnwise");
        tegroup_scale_convert_desc convert;
        memset(&convert, 0, sizeof convert);
        convert.struct_size = sizeof convert, convert.space = TEGROUP_SPACE_HOST, convert.from = convert.to = *x, convert.columnwise = 1;
        ASSERT_EQ(tegroup_scale_convert(&convert, NULL, &error), TEGROUP_ERROR_COMBINATION);
        ASSERT_STREQ(error.field, "columnwise");
        tegroup_quantize_desc q = one.x; /* the caller's values are that copy: nothing makes another */
        q.output.columnwise_data = x->columnwise_data;
        ASSERT_EQ(tegroup_quantize(&q, NULL, &error), TEGROUP_ERROR_COMBINATION);
        ASSERT_STREQ(error.field, "output.columnwise_data");
        q.activation = TEGROUP_ACTIVATION_IDENTITY, q.output.columnwise_order = TEGROUP_COLUMNWISE_F32;
        ASSERT_EQ(tegroup_quantize(&q, NULL, &error), TEGROUP_ERROR_DTYPE);
        ASSERT_STREQ(error.field, "output.columnwise_order");
        tegroup_shape *shapes[] = {&q.input.shape, &q.output.shape};
        for (int s = 0; s < 2; s++) memset(&shapes[s]->row_sizes, 0, sizeof shapes[s]->row_sizes), shapes[s]->snapshot = NULL, shapes[s]->rows = 1, shapes[s]->groups = 1;
        q.output.columnwise_order = TEGROUP_COLUMNWISE_BF16;
        ASSERT_EQ(tegroup_quantize(&q, NULL, &error), TEGROUP_ERROR_UNSUPPORTED);
        ASSERT_STREQ(error.field, "output.columnwise_order");
        guards_release(mark);
    }
}

TEST_MAIN()
