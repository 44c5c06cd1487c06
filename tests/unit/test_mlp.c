/* The grouped MLP: every combination against FP64, the same bits whatever is kept and wherever it lies, gradients against finite
 * differences, refusals. */
#define TEGROUP_EXTERN
#include "support.h"
#include "mlp.h"
#include "test.h"

static tegroup_status mlp_plan(mlp *l) {
    tegroup_status status = tegroup_mlp_plan_make(&l->desc, NULL, &l->plan, &l->error);
    if (status != TEGROUP_OK) return status;
    l->desc.options.workspace_bytes = l->plan.workspace_bytes;
    l->desc.options.workspace = scratch(l->desc.options.workspace_bytes);
    return grid_prepare(&l->f1.a, &l->error);
}

static tegroup_status mlp_steps(mlp *l, int delayed) {
    const tegroup_mlp_desc *desc = &l->desc;
    tegroup_mlp_desc only[3];
    for (int op = 0; op < 3; op++) only[op] = delayed ? mlp_only(desc, (tegroup_op)(TEGROUP_OP_FORWARD + op)) : *desc;
    if (delayed) {
        only[2].options.workspace_bytes = l->plan.wgrad_workspace_bytes;
        only[2].options.workspace = scratch(only[2].options.workspace_bytes);
    }
    tegroup_status status = TEGROUP_OK;
    if (l->forward) status = tegroup_mlp_forward(&l->plan, &only[0], NULL, &l->error);
    if (status == TEGROUP_OK) status = tegroup_mlp_dgrad(&l->plan, &only[1], NULL, &l->error);
    if (status == TEGROUP_OK) status = tegroup_mlp_wgrad(&l->plan, &only[2], NULL, &l->error);
    return status;
}

static tegroup_status mlp_calls(mlp *l, int delayed, tegroup_status status) {
    if (status == TEGROUP_OK) status = mlp_steps(l, delayed);
    if (status == TEGROUP_OK && delayed == 2) {
        problem_reset(&l->f1); /* the oldest: everything since */
        poison(l->desc.options.workspace, l->desc.options.workspace_bytes);
        status = mlp_steps(l, delayed);
    }
    if (status != TEGROUP_OK && strcmp(l->error.field, "fusion") != 0) fprintf(stderr, "%s %s (expected %ld, got %ld)\n", l->error.field, l->error.rule, (long)l->error.expected, (long)l->error.got);
    return status;
}

static tegroup_status mlp_run(mlp *l, int delayed) { return mlp_calls(l, delayed, mlp_plan(l)); }

/* The rows that every buffer of the routing has. */
static void mlp_set_rows(tegroup_mlp_desc *d, int64_t rows) {
    tegroup_tensor *const tensors[] = {&d->input, &d->out, &d->grad_output, &d->dgrad_out, &d->grad_row_scale, &d->preactivation, &d->activated, &d->grad_preactivation};
    for (int i = 0; i < 8; i++) tensors[i]->shape.rows = rows;
}

/* By the plan of an MLP whose buffers have more rows. */
static tegroup_status mlp_run_as_planned(mlp *l, int delayed) {
    const int64_t rows = l->desc.input.shape.rows;
    mlp_set_rows(&l->desc, rows + 1 + delayed * 40);
    tegroup_status status = mlp_plan(l);
    mlp_set_rows(&l->desc, rows);
    return mlp_calls(l, delayed, status);
}

TEST(mlp, every_combination) {
    const int sample = (int)scaled(1000), step = sample < 500 ? 1000 / sample - 1 : 1, all = (MLP_COMBINATIONS + step - 1) / step;
    int right = check_every_mlp(mlp_odd, 0, step, 7001, mlp_run);
    printf("cpu: run %d/%d, skipped 0, of which %ld refused with fusion REQUIRED and run with AUTO, %ld of gates and ups apart; %ld elements, error/bound at most %.3f\n",
           right, all, (long)mlps_refused, (long)mlps_apart, (long)layers_elements, layers_worst);
    ASSERT_EQ(all, right);
    ASSERT_GT(mlps_apart * 20, all);
}

/* F32 also with narrower weights. */
TEST(mlp, wide_types) {
    rng r = rng_seed(7002);
    for (int i = 0; i < 360; i++) {
        mlp_choice m = {{i & 1, i % 3, i % 3, i / 3 % 3, i / 9 % 4, i % ROUTINGS, (tegroup_tail)(i / 4 % 3), i / 8 & 3, i / 32 & 3}, i & 1, TEGROUP_ACTIVATION_UNSET, 1};
        if (i % 2 && m.c.gradients == 2) m.c.gradients = 1; /* F64 sums are not narrowed here */
        ASSERT_STREQ("", check_mlp(&m, i % 2 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, mlp_odd, 0, &r, mlp_run));
    }
}

TEST(mlp, buffers_of_fewer_rows_than_planned) {
    rng r = rng_seed(7012);
    for (int64_t i = scaled(200); i > 0; i--) {
        mlp_choice m = {{(int)rng_int(&r, 0, 1), (int)rng_int(&r, 0, 2), (int)rng_int(&r, 0, 2), (int)rng_int(&r, 0, 2), (int)rng_int(&r, 0, 3),
                         (int)rng_int(&r, 0, ROUTINGS - 1), (tegroup_tail)rng_int(&r, 0, TEGROUP_TAIL_POISON), (int)rng_int(&r, 0, 3), 0}, 0, TEGROUP_ACTIVATION_UNSET, 1};
        ASSERT_STREQ("", check_mlp(&m, i % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16, mlp_odd, 0, &r, mlp_run_as_planned));
    }
}

/* More rows than planned do not fit a workspace that holds some: dgrad, and a forward that keeps activated there, say so. A forward
 * that leaves both to the caller, and wgrad, have none there and run. */
TEST(mlp, buffers_of_more_rows_than_planned) {
    rng r = rng_seed(7013);
    for (int i = 0; i < 40; i++) {
        mlp_choice m = {{0, 0, 0, 2, 3, i % ROUTINGS, TEGROUP_TAIL_KEEP, i & 3, 0}, 0, TEGROUP_ACTIVATION_UNSET, 0};
        mlp *l = (mlp *)malloc(sizeof *l);
        mlp_make(l, &m, TEGROUP_DTYPE_F16, mlp_odd, routings[m.c.routing], &r);
        const int64_t rows = l->desc.input.shape.rows;
        if (rows > 0) {
            const int keeps = !l->desc.recompute;
            const tegroup_status forward = keeps ? TEGROUP_OK : TEGROUP_ERROR_PLAN;
            mlp_set_rows(&l->desc, rows - 1);
            ASSERT_EQ(TEGROUP_OK, mlp_plan(l));
            mlp_set_rows(&l->desc, rows);
            ASSERT_EQ(forward, tegroup_mlp_forward(&l->plan, &l->desc, NULL, &l->error));
            if (keeps) problem_reference(&l->f2), problem_reference(&l->f1);
            if (keeps) ASSERT_TRUE(within(problem_compare(&l->f1)) && within(problem_compare(&l->f2)));
            else ASSERT_EQ(0, guarded_changed(l->desc.out.data));
            ASSERT_EQ(TEGROUP_ERROR_PLAN, tegroup_mlp_dgrad(&l->plan, &l->desc, NULL, &l->error));
            ASSERT_STREQ("input.shape.rows", l->error.field);
            ASSERT_EQ(rows - 1, l->error.expected);
            ASSERT_EQ(rows, l->error.got);
            ASSERT_EQ(0, guarded_changed(l->desc.dgrad_out.data));
            ASSERT_EQ(TEGROUP_OK, tegroup_mlp_wgrad(&l->plan, &l->desc, NULL, &l->error));
            ASSERT_EQ(0, guards_changed());
        }
        mlp_release(l);
        free(l);
    }
}

/* An MLP of BF16 on a GPU that is not here, from K to H columns and back. */
static tegroup_mlp_desc elsewhere(int32_t groups, int64_t rows, int64_t k, int64_t h, int backward) {
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE);
    const tegroup_shape shape = tegroup_shape_of(groups, rows, k, sizes);
    tegroup_mlp_desc d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.space = TEGROUP_SPACE_DEVICE;
    d.activation = TEGROUP_ACTIVATION_SWIGLU;
    d.fc1.weight = tegroup_tensor_uniform(groups, 2 * h, k, TEGROUP_DTYPE_BF16, NULL);
    d.fc2.weight = tegroup_tensor_uniform(groups, k, h, TEGROUP_DTYPE_BF16, NULL);
    d.input = d.out = tegroup_tensor_of(shape, k, TEGROUP_DTYPE_BF16, NULL);
    if (!backward) return d;
    d.grad_output = d.input;
    d.preactivation = d.grad_preactivation = tegroup_tensor_of(shape, 2 * h, TEGROUP_DTYPE_BF16, NULL);
    return d;
}

/* As docs/layers.md says: AUTO takes the epilogues of SM90 for more than 128 rows a group, and none of PORTABLE,
 * which REQUIRED does. */
TEST(mlp, which_activations_are_in_epilogues) {
    const uint32_t both = TEGROUP_FUSED_FORWARD | TEGROUP_FUSED_DGRAD;
    for (int backend = 0; backend < 2; backend++)
        for (tegroup_fusion fusion = TEGROUP_FUSION_AUTO; fusion <= TEGROUP_FUSION_REQUIRED; fusion++)
            for (int i = 0; i < 4; i++) {
                /* of four groups: 128 or 129 each */
                const int64_t rows = i & 1 ? 516 : 512, expected = i & 2 ? 1028 - rows : 0;
                const tegroup_backend taken = backend ? TEGROUP_BACKEND_PORTABLE : TEGROUP_BACKEND_SM90;
                const tegroup_target target = {.struct_size = sizeof target, .sm = 90, .built = 1u << taken};
                tegroup_mlp_desc d = elsewhere(4, rows, 64, 48, 1);
                tegroup_mlp_plan plan;
                d.fusion = fusion;
                d.options.expected_rows = expected;
                ASSERT_EQ(TEGROUP_OK, tegroup_mlp_plan_make(&d, &target, &plan, NULL));
                ASSERT_EQ(taken, plan.fc1.forward.backend);
                const int gains = taken == TEGROUP_BACKEND_SM90 && (expected > 0 ? expected : rows) > 512;
                ASSERT_EQ(fusion == TEGROUP_FUSION_REQUIRED || (fusion == TEGROUP_FUSION_AUTO && gains) ? both : 0,
                    plan.planned.fused);
            }
}

/* Gates and ups apart on a GPU: one epilogue where their weights lie alike, as the one weight's; and a backend that TMA feeds only where
 * ups begin at whole 16 bytes. */
TEST(mlp, gates_and_ups_apart_elsewhere) {
    const tegroup_target hopper = {.struct_size = sizeof hopper, .sm = 90, .built = 1u << TEGROUP_BACKEND_SM90 | 1u << TEGROUP_BACKEND_PORTABLE};
    static void *const list[4] = {0};
    for (int h = 4; h <= 48; h += 4)
        for (int unlike = 0; unlike < 4; unlike++) { /* not, in ld, in a list, in a stride that TMA has not */
            tegroup_mlp_desc d = elsewhere(4, 516, 64, h, 1);
            tegroup_mlp_plan one, two;
            tegroup_error error;
            const int whole = h % 8 == 0;
            ASSERT_EQ(TEGROUP_OK, tegroup_mlp_plan_make(&d, &hopper, &one, &error));
            d.fc1.weight.shape.rows = h;
            d.fc1_up.weight = d.fc1.weight;
            if (unlike == 1) d.fc1_up.weight.ld = 72;
            if (unlike == 2) d.fc1_up.weight.pointers = list, d.fc1_up.weight.pointers_space = TEGROUP_SPACE_DEVICE;
            if (unlike == 3) d.fc1_up.weight.group_stride = h * 64 + 4;
            ASSERT_EQ(TEGROUP_OK, tegroup_mlp_plan_make(&d, &hopper, &two, &error));
            ASSERT_EQ(whole ? TEGROUP_BACKEND_SM90 : TEGROUP_BACKEND_PORTABLE, two.fc1.forward.backend);
            ASSERT_EQ(whole && unlike != 3 ? TEGROUP_BACKEND_SM90 : TEGROUP_BACKEND_PORTABLE, two.fc1_up.forward.backend);
            ASSERT_EQ(one.fc2.forward.numerics_id, two.fc2.forward.numerics_id);
            ASSERT_EQ(one.workspace_bytes, two.workspace_bytes);
            if (whole) ASSERT_EQ(one.planned.fused, TEGROUP_FUSED_FORWARD | TEGROUP_FUSED_DGRAD);
            if (whole) ASSERT_EQ(two.planned.fused, unlike ? TEGROUP_FUSED_DGRAD : TEGROUP_FUSED_FORWARD | TEGROUP_FUSED_DGRAD);
            d.fusion = TEGROUP_FUSION_REQUIRED;
            ASSERT_EQ(whole && !unlike ? TEGROUP_OK : TEGROUP_ERROR_UNSUPPORTED, tegroup_mlp_plan_make(&d, &hopper, &two, &error));
            if (whole && unlike) ASSERT_TRUE(strstr(error.rule, "fc1.weight and fc1_up.weight of one ld") != NULL);
            d.fusion = TEGROUP_FUSION_AUTO, d.options.backend = TEGROUP_BACKEND_SM90;
            ASSERT_EQ(whole && unlike != 3 ? TEGROUP_OK : TEGROUP_ERROR_UNSUPPORTED, tegroup_mlp_plan_make(&d, &hopper, &two, &error));
            if (!whole) ASSERT_STREQ("preactivation.shape.cols", error.field);
            else if (unlike == 3) ASSERT_STREQ("fc1_up.weight.group_stride", error.field);
            d.options.backend = TEGROUP_BACKEND_AUTO, d.options.data_alignment_bytes = 4; /* which an operand of fewer whole bytes does not raise */
            ASSERT_EQ(TEGROUP_OK, tegroup_mlp_plan_make(&d, &hopper, &two, &error));
            ASSERT_EQ(TEGROUP_BACKEND_PORTABLE, two.fc1.forward.backend);
        }
}

/* Rows of 72 bytes are repacked for SM90: also for an epilogue, but not those of two weights for one. */
TEST(mlp, repacked_weights_in_an_epilogue) {
    const tegroup_target hopper = {.struct_size = sizeof hopper, .sm = 90, .built = 1u << TEGROUP_BACKEND_SM90 | 1u << TEGROUP_BACKEND_PORTABLE};
    tegroup_mlp_desc d = elsewhere(4, 2048, 36, 48, 0);
    tegroup_mlp_plan plan;
    tegroup_error error;
    d.fusion = TEGROUP_FUSION_REQUIRED;
    ASSERT_EQ(TEGROUP_OK, tegroup_mlp_plan_make(&d, &hopper, &plan, &error));
    ASSERT_EQ(TEGROUP_BACKEND_SM90, plan.fc1.forward.backend);
    ASSERT_EQ(TEGROUP_FUSED_FORWARD, plan.planned.fused);
    ASSERT_GT(plan.fc1.forward.workspace_bytes, 0);
    d.fc1.weight.shape.rows = 48;
    d.fc1_up.weight = d.fc1.weight;
    ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, tegroup_mlp_plan_make(&d, &hopper, &plan, &error));
    ASSERT_STREQ("fusion", error.field);
    ASSERT_TRUE(strstr(error.rule, "SM90 repacks, one of them at a time") != NULL);
    d.fusion = TEGROUP_FUSION_AUTO;
    ASSERT_EQ(TEGROUP_OK, tegroup_mlp_plan_make(&d, &hopper, &plan, &error));
    ASSERT_EQ(TEGROUP_BACKEND_SM90, plan.fc1_up.forward.backend);
    ASSERT_EQ(0u, plan.planned.fused);
}

/* No experts have no rows: such a layer can be planned, here and for a GPU. */
TEST(mlp, no_groups) {
    const tegroup_target hopper = {.struct_size = sizeof hopper, .sm = 90, .built = 1u << TEGROUP_BACKEND_SM90};
    for (int backward = 0; backward < 2; backward++) {
        tegroup_mlp_desc d = elsewhere(0, 999, 64, 48, backward);
        tegroup_mlp_plan plan;
        ASSERT_EQ(TEGROUP_OK, tegroup_mlp_plan_make(&d, &hopper, &plan, NULL));
        d.space = d.input.shape.row_sizes.space = d.out.shape.row_sizes.space = TEGROUP_SPACE_HOST;
        if (backward) d.grad_output = d.input;
        if (backward) d.preactivation.shape.row_sizes = d.grad_preactivation.shape.row_sizes = d.input.shape.row_sizes;
        ASSERT_EQ(TEGROUP_OK, tegroup_mlp_plan_make(&d, NULL, &plan, NULL));
    }
}

/* ---- the same bits ------------------------------------------------------------------------------------------------------- */

enum { RESULTS = 9 };
typedef struct results { size_t bytes[RESULTS]; void *copy[RESULTS]; } results;

static const tegroup_tensor *result(const tegroup_mlp_desc *d, int i) {
    const tegroup_tensor *all[RESULTS] = {&d->out, &d->dgrad_out, &d->grad_row_scale, &d->activated, &d->grad_preactivation, &d->fc1.main_grad,
                                          &d->fc1.bias_grad, &d->fc2.main_grad, &d->fc2.bias_grad};
    return all[i];
}
static results results_of(const mlp *l) {
    results r;
    memset(&r, 0, sizeof r);
    for (int i = 0; i < RESULTS; i++) {
        if (result(&l->desc, i)->data == NULL) continue;
        r.bytes[i] = guarded_find(result(&l->desc, i)->data)->bytes;
        r.copy[i] = memcpy(malloc(r.bytes[i] + 1), result(&l->desc, i)->data, r.bytes[i]);
    }
    return r;
}
static void results_free(results *r) {
    for (int i = 0; i < RESULTS; i++) free(r->copy[i]);
}
/* The first that differs; RESULTS = none. */
static int results_differ(const mlp *l, const results *r) {
    for (int i = 0; i < RESULTS; i++)
        if (r->copy[i] != NULL && result(&l->desc, i)->data != NULL && memcmp(r->copy[i], result(&l->desc, i)->data, r->bytes[i]) != 0) return i;
    return RESULTS;
}

/* One linear layer of the MLP and the activation, as a user would call them. */
static tegroup_status by_hand(mlp *l) {
    const tegroup_mlp_desc *d = &l->desc;
    tegroup_linear_desc fc1, fc2;
    tegroup_linear_plan plans[2];
    tegroup_activation_desc act;
    tegroup_activation_backward_desc back;
    tegroup_error *e = &l->error;
    memset(&fc1, 0, sizeof fc1);
    fc1.struct_size = sizeof fc1, fc1.space = TEGROUP_SPACE_HOST, fc1.options.compute = d->options.compute, fc1.options.threads = 1;
    fc2 = fc1;
    fc1.weight_layout = d->fc1.weight_layout, fc2.weight_layout = d->fc2.weight_layout;
    fc1.weight = d->fc1.weight, fc1.bias = d->fc1.bias, fc1.main_grad = d->fc1.main_grad, fc1.bias_grad = d->fc1.bias_grad, fc1.accumulate = d->accumulate;
    fc2.weight = d->fc2.weight, fc2.bias = d->fc2.bias, fc2.main_grad = d->fc2.main_grad, fc2.bias_grad = d->fc2.bias_grad, fc2.accumulate = d->accumulate;
    fc1.input = d->input, fc1.out = d->preactivation, fc1.grad_output = d->grad_preactivation, fc1.dgrad_out = d->dgrad_out, fc1.dgrad_out_tail = d->dgrad_out_tail;
    fc2.input = d->activated, fc2.out = d->out, fc2.grad_output = d->grad_output, fc2.dgrad_out = d->activated, fc2.out_tail = d->out_tail;
    fc2.dgrad_out.data = scratch(guarded_find(d->activated.data)->bytes);
    if (d->fc2_bias_scaled) fc2.row_scale = d->row_scale, fc2.row_scale_dtype = d->row_scale_dtype;
    tegroup_status status = tegroup_linear_plan_make(&fc1, NULL, &plans[0], e);
    if (status == TEGROUP_OK) status = tegroup_linear_plan_make(&fc2, NULL, &plans[1], e);
    fc1.options.workspace = scratch(fc1.options.workspace_bytes = plans[0].workspace_bytes);
    fc2.options.workspace = scratch(fc2.options.workspace_bytes = plans[1].workspace_bytes);
    memset(&act, 0, sizeof act);
    memset(&back, 0, sizeof back);
    act.struct_size = sizeof act, act.space = TEGROUP_SPACE_HOST, act.activation = d->activation, act.interleaved = d->interleaved;
    act.alpha = d->alpha, act.limit = d->limit, act.snapshot = d->input.shape.snapshot;
    const int64_t rows = d->input.shape.rows, h = d->activated.shape.cols, h2 = d->preactivation.shape.cols;
    act.input = tegroup_matrix_of(d->preactivation.data, rows, h2, d->preactivation.dtype);
    act.output = tegroup_matrix_of(d->activated.data, rows, h, d->activated.dtype);
    if (l->row_scale != NULL) act.row_scale = tegroup_matrix_of(l->row_scale, rows, 1, TEGROUP_DTYPE_F32);
    back.struct_size = sizeof back, back.space = act.space, back.activation = act.activation, back.interleaved = act.interleaved;
    back.alpha = act.alpha, back.limit = act.limit, back.snapshot = act.snapshot, back.input = act.input, back.row_scale = act.row_scale;
    back.grad_output = tegroup_matrix_of(fc2.dgrad_out.data, rows, h, d->activated.dtype);
    back.grad_input = tegroup_matrix_of(d->grad_preactivation.data, rows, h2, d->grad_preactivation.dtype);
    if (status == TEGROUP_OK) status = tegroup_linear_forward(&plans[0], &fc1, NULL, e);
    if (status == TEGROUP_OK) status = tegroup_activation_forward(&act, NULL, e);
    if (status == TEGROUP_OK) status = tegroup_linear_forward(&plans[1], &fc2, NULL, e);
    if (status == TEGROUP_OK) status = tegroup_linear_dgrad(&plans[1], &fc2, NULL, e);
    if (status == TEGROUP_OK) status = tegroup_activation_backward(&back, NULL, e);
    if (status == TEGROUP_OK) status = tegroup_linear_dgrad(&plans[0], &fc1, NULL, e);
    if (status == TEGROUP_OK) status = tegroup_linear_wgrad(&plans[1], &fc2, NULL, e);
    return status == TEGROUP_OK ? tegroup_linear_wgrad(&plans[0], &fc1, NULL, e) : status;
}

/* Whatever is kept, wherever it lies, and whether the products and the activation are called one by one. */
TEST(mlp, same_bits) {
    rng r = rng_seed(7003);
    int narrow = 0; /* inference with F32 between narrower weights */
    for (int i = 0; i < 90; i++) {
        mlp_choice m = {{0, i % 3, 0, i / 3 % 3, 3, i % 3, TEGROUP_TAIL_ZERO, i / 2 & 3, 0}, 0, TEGROUP_ACTIVATION_UNSET, 0};
        mlp *l = (mlp *)malloc(sizeof *l);
        mlp_make(l, &m, i % 3 == 2 ? TEGROUP_DTYPE_F32 : i % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16, mlp_odd, routings[m.c.routing], &r);
        ASSERT_EQ(mlp_run(l, 0), TEGROUP_OK);
        const tegroup_mlp_desc first = l->desc;
        results as = results_of(l);
        l->desc.recompute ^= 1; /* keep less or more */
        problem_reset(&l->f1);
        ASSERT_EQ(mlp_run(l, 1), TEGROUP_OK);
        ASSERT_EQ(results_differ(l, &as), RESULTS);
        if (first.preactivation.dtype == first.grad_preactivation.dtype) { /* in place, recomputed or not */
            l->desc.grad_preactivation.data = l->desc.preactivation.data;
            problem_reset(&l->f1);
            ASSERT_EQ(mlp_run(l, 0), TEGROUP_OK);
            for (int64_t e = 0; e < 2; e++) { /* rows that no group owns hold what they held: in the other buffer */
                const tegroup_tensor *t = &l->desc.grad_preactivation;
                size_t line = (size_t)t->shape.cols * size_of(t->dtype);
                for (int64_t row = 0; row < t->shape.rows; row++)
                    if (!owned(&l->f1, row)) memcpy((unsigned char *)t->data + (size_t)row * line, (unsigned char *)as.copy[4] + (size_t)row * line, line);
            }
            ASSERT_EQ(results_differ(l, &as), RESULTS);
        }
        l->desc = first; /* other buffers */
        problem_reset(&l->f1);
        for (int j = 0; j < 3; j++) {
            tegroup_tensor *t = (tegroup_tensor *)result(&l->desc, j);
            if (t->data == NULL) continue;
            t->data = guarded_skewed(as.bytes[j], (size_t)(i * 4 % 64));
            memcpy(t->data, result(&first, j)->data, as.bytes[j]);
            guarded_remember(t->data);
        }
        ASSERT_EQ(mlp_run(l, 0), TEGROUP_OK);
        ASSERT_EQ(results_differ(l, &as), RESULTS);
        l->desc = first; /* inference: nothing kept */
        problem_reset(&l->f1);
        tegroup_tensor *gone[] = {&l->desc.grad_output, &l->desc.dgrad_out, &l->desc.grad_row_scale, &l->desc.preactivation, &l->desc.activated, &l->desc.grad_preactivation,
                                  &l->desc.fc1.main_grad, &l->desc.fc1.bias_grad, &l->desc.fc2.main_grad, &l->desc.fc2.bias_grad};
        for (int j = 0; j < 10; j++) memset(gone[j], 0, sizeof *gone[j]);
        l->desc.recompute = l->desc.accumulate = 0;
        l->desc.dgrad_out_tail = TEGROUP_TAIL_KEEP;
        if (first.preactivation.dtype == first.input.dtype) {
            narrow += first.fc1.weight.dtype != first.input.dtype;
            ASSERT_EQ(mlp_plan(l), TEGROUP_OK);
            ASSERT_EQ(l->plan.saved_by_forward_bytes + l->plan.saved_by_dgrad_bytes, 0u);
            ASSERT_EQ(tegroup_mlp_forward(&l->plan, &l->desc, NULL, &l->error), TEGROUP_OK);
            ASSERT_EQ(results_differ(l, &as), RESULTS);
            ASSERT_EQ(tegroup_mlp_dgrad(&l->plan, &l->desc, NULL, &l->error), TEGROUP_ERROR_UNSET);
        }
        l->desc = first;
        problem_reset(&l->f1);
        if (!first.fc2_bias_scaled) memset(&l->desc.grad_row_scale, 0, sizeof l->desc.grad_row_scale);
        free(as.copy[2]);
        as.copy[2] = NULL; /* that of the activation alone is not asked for by hand */
        ASSERT_EQ(by_hand(l), TEGROUP_OK);
        ASSERT_EQ(results_differ(l, &as), RESULTS);
        ASSERT_EQ(guards_changed(), 0);
        results_free(&as);
        mlp_release(l);
        free(l);
    }
    ASSERT_GT(narrow, 0);
}

/* Gates and ups as two weights have the bits of one weight that holds both, but for dX, which is held against FP64. */
TEST(mlp, gates_and_ups_apart_have_the_bits_of_one) {
    static const tegroup_dtype dtypes[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64};
    static const tegroup_activation kinds[] = {TEGROUP_ACTIVATION_SWIGLU, TEGROUP_ACTIVATION_GEGLU, TEGROUP_ACTIVATION_SWIGLU_CLAMPED};
    rng r = rng_seed(7021);
    for (int i = 0; i < (int)scaled(96); i++) {
        const tegroup_dtype dtype = dtypes[i % 4];
        const int gradients = dtype == TEGROUP_DTYPE_F64 ? i % 2 : i % 3;
        mlp_choice m = {{i / 4 & 1, gradients, 0, i / 2 % 3, 3, i % ROUTINGS, (tegroup_tail)(i % 3), i / 8 & 3, i % 4}, 0, kinds[i % 3], 0};
        mlp *l = (mlp *)malloc(sizeof *l);
        mlp_make(l, &m, dtype, i % 5 ? mlp_odd : mlp_aligned, routings[m.c.routing], &r);
        l->desc.interleaved = 0;
        ASSERT_EQ(TEGROUP_OK, mlp_run(l, 0));
        const uint64_t wgrad = l->plan.fc1.wgrad.numerics_id;
        const problem *written[] = {&l->f1, &l->f2, &l->w1, &l->w2};
        const tegroup_tensor *others[] = {&l->desc.activated, &l->desc.grad_preactivation, &l->desc.grad_row_scale};
        const void *at[2 * 4 * GROUPS + 3];
        unsigned char *copies[2 * 4 * GROUPS + 3];
        int count = 0;
        for (int p = 0; p < 4; p++)
            for (int g = 0; g < GROUPS; g++) {
                const grid *grids[] = {&written[p]->d, &written[p]->bias};
                for (int j = 0; j < 1 + (p >= 2 && m.c.bias > 0); j++)
                    if (g == 0 || grids[j]->tensor.pointers != NULL) at[count++] = grids[j]->tensor.pointers != NULL ? grids[j]->tensor.pointers[g] : grids[j]->tensor.data;
            }
        for (int j = 0; j < 3; j++)
            if (others[j]->data != NULL) at[count++] = others[j]->data;
        for (int j = 0; j < count; j++) copies[j] = (unsigned char *)memcpy(malloc(guarded_find(at[j])->bytes + 1), at[j], guarded_find(at[j])->bytes);
        problem_reset(&l->f1);
        mlp_part(l, &r);
        ASSERT_EQ(TEGROUP_OK, mlp_run(l, 1));
        ASSERT_EQ(wgrad, l->plan.fc1.wgrad.numerics_id);
        ASSERT_EQ(wgrad, l->plan.fc1_up.wgrad.numerics_id);
        mlp_join(l);
        for (int j = 0; j < count; j++) ASSERT_EQ(0, memcmp(copies[j], at[j], guarded_find(at[j])->bytes));
        ASSERT_STREQ("", mlp_wrong(l, &m.c, 0));
        if (l->desc.preactivation.dtype == l->desc.input.dtype) { /* and inference, with nothing kept */
            tegroup_tensor *gone[] = {&l->desc.grad_output, &l->desc.dgrad_out, &l->desc.grad_row_scale, &l->desc.preactivation, &l->desc.activated, &l->desc.grad_preactivation,
                                      &l->desc.fc1.main_grad, &l->desc.fc1.bias_grad, &l->desc.fc2.main_grad, &l->desc.fc2.bias_grad, &l->desc.fc1_up.main_grad, &l->desc.fc1_up.bias_grad};
            const size_t bytes = guarded_find(l->desc.out.data)->bytes, line = (size_t)l->desc.out.shape.cols * size_of(l->desc.out.dtype);
            unsigned char *out = (unsigned char *)memcpy(malloc(bytes + 1), l->desc.out.data, bytes);
            for (int j = 0; j < 12; j++) memset(gone[j], 0, sizeof *gone[j]);
            l->desc.recompute = l->desc.accumulate = 0;
            l->desc.dgrad_out_tail = TEGROUP_TAIL_KEEP;
            poison(l->desc.out.data, bytes);
            ASSERT_EQ(TEGROUP_OK, mlp_plan(l));
            ASSERT_EQ(TEGROUP_OK, tegroup_mlp_forward(&l->plan, &l->desc, NULL, &l->error));
            for (int64_t row = 0; row < l->desc.out.shape.rows; row++)
                if (owned(&l->f1, row)) ASSERT_EQ(0, memcmp(out + (size_t)row * line, (unsigned char *)l->desc.out.data + (size_t)row * line, line));
            free(out);
        }
        ASSERT_EQ(0, guards_changed());
        for (int j = 0; j < count; j++) free(copies[j]);
        mlp_release(l);
        free(l);
    }
}

/* ---- finite differences -------------------------------------------------------------------------------------------------- */

/* loss = sum over valid rows of p y + y^2 / 2, so that dY = p + y */
static double loss_of(mlp *l, const double *p, double *grad) {
    double loss = 0;
    const double *y = (const double *)l->desc.out.data;
    const int64_t n = l->desc.out.shape.cols;
    if (tegroup_mlp_forward(&l->plan, &l->desc, NULL, &l->error) != TEGROUP_OK) return (double)NAN;
    for (int32_t g = 0; g < GROUPS; g++)
        for (int64_t e = l->f2.start[g] * n; e < (l->f2.start[g] + l->f2.d.rows[g]) * n; e++) {
            loss += p[e] * y[e] + y[e] * y[e] / 2;
            if (grad != NULL) grad[e] = p[e] + y[e];
        }
    return loss;
}

/* Largest error of gradient[i] against differences of the loss in x[i], relative to the largest gradient among them. */
static double differ(mlp *l, const double *p, double *x, const double *gradient, int64_t count) {
    const double h = 0x1p-15;
    double error = 0, scale = 0;
    for (int64_t i = 0; i < count; i++) {
        double at = x[i], slope;
        if (isnan(at)) continue; /* rows that no group owns */
        x[i] = at + h;
        slope = loss_of(l, p, NULL);
        x[i] = at - h;
        slope = (slope - loss_of(l, p, NULL)) / (2 * h);
        x[i] = at;
        error = fmax(error, fabs(slope - gradient[i]));
        scale = fmax(scale, fabs(gradient[i]));
    }
    return scale > 0 ? error / scale : INFINITY;
}

TEST(mlp, finite_differences) {
    static const char *const names[] = {"dgrad", "fc1 wgrad", "fc2 wgrad", "fc1 bias", "fc2 bias", "row_scale"};
    static const mlp_sizes small = {5, 4, 6, -1};
    static const int64_t rows[GROUPS] = {3, 0, 2, 1};
    rng r = rng_seed(7004);
    double most[6] = {0, 0, 0, 0, 0, 0}, worst = 0;
    const int sample = (int)scaled(ACTIVATIONS);
    for (int i = 0; i < 3 * (sample < ACTIVATIONS ? sample : ACTIVATIONS); i++) {
        mlp_choice m = {{0, 0, 0, i % 3, 3, 0, TEGROUP_TAIL_KEEP, i & 3, 0}, 0, activations[i / 3], 0};
        mlp *l = (mlp *)malloc(sizeof *l);
        mlp_make(l, &m, TEGROUP_DTYPE_F64, small, rows, &r);
        int64_t cells = l->f2.capacity * l->desc.out.shape.cols, capacity = l->f1.capacity;
        double *scale = (double *)guarded((size_t)capacity * 8), *p = (double *)scratch((size_t)cells * 8);
        for (int64_t row = 0; row < capacity; row++)
            if (owned(&l->f1, row)) scale[row] = rng_unit(&r) + 0.1;
        for (int64_t e = 0; e < cells; e++) p[e] = rng_normal(&r);
        l->desc.row_scale = scale; /* with every bias: none, plain and scaled */
        l->desc.row_scale_dtype = TEGROUP_DTYPE_F64;
        double *grad_scale = (double *)guarded((size_t)capacity * 8);
        l->desc.grad_row_scale = tegroup_tensor_of(l->desc.input.shape, 1, TEGROUP_DTYPE_F64, grad_scale);
        ASSERT_EQ(mlp_plan(l), TEGROUP_OK);
        loss_of(l, p, (double *)l->desc.grad_output.data);
        ASSERT_EQ(tegroup_mlp_dgrad(&l->plan, &l->desc, NULL, &l->error), TEGROUP_OK);
        ASSERT_EQ(tegroup_mlp_wgrad(&l->plan, &l->desc, NULL, &l->error), TEGROUP_OK);
        const tegroup_mlp_desc *d = &l->desc;
        const tegroup_tensor *of[] = {&d->input, &d->fc1.weight, &d->fc2.weight, &d->fc1.bias, &d->fc2.bias, NULL};
        const tegroup_tensor *gradients[] = {&d->dgrad_out, &d->fc1.main_grad, &d->fc2.main_grad, &d->fc1.bias_grad, &d->fc2.bias_grad, &d->grad_row_scale};
        for (int j = 0; j < 6; j++) {
            const tegroup_tensor *t = gradients[j];
            if (t->dtype == TEGROUP_DTYPE_UNSET) continue;
            const int64_t count = t->shape.rows * t->shape.cols * (j == 0 || j == 5 ? 1 : GROUPS);
            most[j] = fmax(most[j], differ(l, p, of[j] != NULL ? (double *)of[j]->data : scale, (const double *)t->data, count));
        }
        mlp_release(l);
        free(l);
    }
    printf("finite differences: relative error at most");
    for (int j = 0; j < 6; j++) printf(" %.1e %s%s", most[j], names[j], j < 5 ? "," : "\n");
    for (int j = 0; j < 6; j++) worst = fmax(worst, most[j]);
    printf("worst %.1e\n", worst);
    ASSERT_LE(worst, 1e-6);
}

/* What a plan for another machine says of the activation in fc1's epilogue. */
TEST(mlp, fusion_of_another_machine) {
    tegroup_target hopper = {.struct_size = sizeof hopper, .sm = 90, .built = 1u << TEGROUP_BACKEND_SM90};
    tegroup_target ampere = {.struct_size = sizeof ampere, .sm = 80, .built = 1u << TEGROUP_BACKEND_PORTABLE};
    const tegroup_dtype bf16 = TEGROUP_DTYPE_BF16;
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE);
    const tegroup_shape rows = tegroup_shape_of(4, 512, 64, sizes);
    tegroup_mlp_desc d = {.struct_size = sizeof d};
    tegroup_mlp_plan plan;
    tegroup_error error;
    d.space = TEGROUP_SPACE_DEVICE, d.activation = TEGROUP_ACTIVATION_SWIGLU;
    d.fc1.weight = tegroup_tensor_uniform(4, 2 * 48, 64, bf16, NULL);
    d.fc2.weight = tegroup_tensor_uniform(4, 64, 48, bf16, NULL);
    d.input = d.out = tegroup_tensor_of(rows, 64, bf16, NULL);

    d.options.backend = TEGROUP_BACKEND_SM90; /* rows of whole 16 bytes, and out is contiguous: twelve halves are refused, twelve floats are not */
    d.out.shape.cols = d.fc2.weight.shape.rows = 12;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ("out.ld", error.field);
    d.out.dtype = TEGROUP_DTYPE_F32;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_OK);
    d.options.backend = TEGROUP_BACKEND_AUTO, d.out.dtype = TEGROUP_DTYPE_BF16;
    d.out.shape.cols = d.fc2.weight.shape.rows = 64;

    d.fusion = TEGROUP_FUSION_REQUIRED;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(plan.planned.fused, TEGROUP_FUSED_FORWARD);
    d.fusion = TEGROUP_FUSION_AUTO;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(plan.planned.fused, 0u);
    d.input.shape.rows = d.out.shape.rows = 513; /* more than 128 rows a group */
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(plan.planned.fused, TEGROUP_FUSED_FORWARD);
    d.input.shape.rows = d.out.shape.rows = 512;

    d.fusion = TEGROUP_FUSION_REQUIRED;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &ampere, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(plan.planned.fused, TEGROUP_FUSED_FORWARD);
    for (d.options.data_alignment_bytes = 2; d.options.data_alignment_bytes < 32; d.options.data_alignment_bytes *= 2) {
        const int whole = d.options.data_alignment_bytes >= 16; /* of what the epilogue reads and writes at once */
        ASSERT_EQ(tegroup_mlp_plan_make(&d, &ampere, &plan, &error), whole ? TEGROUP_OK : TEGROUP_ERROR_UNSUPPORTED);
        if (!whole) ASSERT_TRUE(strstr(error.rule, "options.data_alignment_bytes is less") != NULL);
    }
    d.options.data_alignment_bytes = 0;
    ampere.built = 1u << TEGROUP_BACKEND_CUBLASLT_GROUPED, ampere.sm = 100, ampere.cublaslt_version = 131000;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &ampere, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ("fusion", error.field);
    ASSERT_TRUE(strstr(error.rule, "only SM90 and PORTABLE") != NULL);
    d.fc1.weight_layout = TEGROUP_WEIGHT_IN_OUT, d.fc1.weight.shape.rows = 64, d.fc1.weight.shape.cols = 2 * 48;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_TRUE(strstr(error.rule, "fc1.weight_layout OUT_IN") != NULL);
    d.fusion = TEGROUP_FUSION_AUTO;
    d.input.shape.rows = d.out.shape.rows = 513;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(plan.planned.fused, 0u);
    ASSERT_EQ(plan.fc1.forward.backend, TEGROUP_BACKEND_SM90);
    d.fusion = TEGROUP_FUSION_REQUIRED;
    d.input.shape.rows = d.out.shape.rows = 512;
    d.fc1.weight_layout = TEGROUP_WEIGHT_OUT_IN, d.fc1.weight.shape.cols = 64;
    d.activation = TEGROUP_ACTIVATION_RELU_SQUARED, d.fc1.weight.shape.rows = 48;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_TRUE(strstr(error.rule, "a gate and an up") != NULL);
    d.activation = TEGROUP_ACTIVATION_SWIGLU, d.fc1.weight.shape.rows = 2 * 48;
    d.preactivation = tegroup_tensor_of(rows, 2 * 48, TEGROUP_DTYPE_F32, NULL);
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_TRUE(strstr(error.rule, "the same of F16 and BF16") != NULL);
    for (int turn = 0; turn < 2; turn++) { /* operands of one type of 16 bits, results of the other: the epilogue has one */
        const tegroup_dtype one = turn ? TEGROUP_DTYPE_F16 : TEGROUP_DTYPE_BF16, other = turn ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16;
        d.input.dtype = d.fc1.weight.dtype = one, d.preactivation.dtype = d.fc2.weight.dtype = other;
        d.fusion = TEGROUP_FUSION_REQUIRED;
        ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
        ASSERT_TRUE(strstr(error.rule, "the same of F16 and BF16") != NULL);
        d.fusion = TEGROUP_FUSION_AUTO;
        d.input.shape.rows = d.out.shape.rows = d.preactivation.shape.rows = 513; /* for which it would be */
        ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_OK);
        ASSERT_EQ(plan.planned.fused, 0u);
        d.input.shape.rows = d.out.shape.rows = d.preactivation.shape.rows = 512;
    }
    d.input.dtype = d.fc1.weight.dtype = d.fc2.weight.dtype = TEGROUP_DTYPE_BF16, d.fusion = TEGROUP_FUSION_REQUIRED;
    d.preactivation.dtype = TEGROUP_DTYPE_BF16;
    d.grad_preactivation = d.preactivation, d.grad_output = d.out;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(plan.planned.fused, (TEGROUP_FUSED_FORWARD | TEGROUP_FUSED_DGRAD));
    memset(&d.out, 0, sizeof d.out); /* dgrad alone */
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(plan.planned.fused, TEGROUP_FUSED_DGRAD);
    d.fc2.weight_layout = TEGROUP_WEIGHT_IN_OUT, d.fc2.weight.shape.rows = 48, d.fc2.weight.shape.cols = 64;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_TRUE(strstr(error.rule, "fc2.weight_layout OUT_IN") != NULL);
    d.fc2.weight_layout = TEGROUP_WEIGHT_OUT_IN, d.fc2.weight.shape.rows = 64, d.fc2.weight.shape.cols = 48;
    d.preactivation.dtype = TEGROUP_DTYPE_F32;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_TRUE(strstr(error.rule, "the same of F16 and BF16") != NULL);
    d.preactivation.dtype = d.fc2.weight.dtype = d.grad_output.dtype = TEGROUP_DTYPE_F16; /* and grad_preactivation BF16 */
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_TRUE(strstr(error.rule, "the same of F16 and BF16") != NULL);
    d.preactivation.dtype = d.fc2.weight.dtype = d.grad_output.dtype = TEGROUP_DTYPE_BF16, d.fusion = TEGROUP_FUSION_NEVER;
    ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(plan.planned.fused, 0u);
}

TEST_MAIN()
