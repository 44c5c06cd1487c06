/* The grouped linear layer: every combination against FP64, the same bits in any buffer, gradients against finite differences.
 * Its bad calls are in test_status.c. */
#define TEGROUP_EXTERN
#include "support.h"
#include "linear.h"
#include "test.h"

static tegroup_status layer_plan(layer *l) {
    tegroup_status status = tegroup_linear_plan_make(&l->desc, NULL, &l->plan, &l->error);
    if (status != TEGROUP_OK) return status;
    l->desc.options.workspace_bytes = l->plan.workspace_bytes;
    l->desc.options.workspace = scratch(l->desc.options.workspace_bytes);
    return grid_prepare(&l->f.a, &l->error);
}

static tegroup_status layer_calls(layer *l, int delayed, tegroup_status status) {
    tegroup_linear_desc *desc = &l->desc, saved = *desc;
    if (status == TEGROUP_OK && desc->out.dtype != TEGROUP_DTYPE_UNSET) status = tegroup_linear_forward(&l->plan, desc, NULL, &l->error);
    if (status == TEGROUP_OK && desc->dgrad_out.dtype != TEGROUP_DTYPE_UNSET) status = tegroup_linear_dgrad(&l->plan, desc, NULL, &l->error);
    saved = delayed ? layer_saved(desc) : *desc;
    if (delayed) saved.options.workspace = scratch(saved.options.workspace_bytes);
    if (status == TEGROUP_OK) status = tegroup_linear_wgrad(&l->plan, &saved, NULL, &l->error);
    if (status != TEGROUP_OK) fprintf(stderr, "%s %s\n", l->error.field, l->error.rule);
    return status;
}

static tegroup_status layer_run(layer *l, int delayed) { return layer_calls(l, delayed, layer_plan(l)); }

/* By the plan of a layer whose buffers have other rows, each its own. */
static tegroup_status layer_run_as_planned(layer *l, int delayed) {
    const int64_t rows = l->desc.input.shape.rows;
    tegroup_tensor *const tensors[] = {&l->desc.input, &l->desc.out, &l->desc.grad_output, &l->desc.dgrad_out, &l->desc.grad_row_scale};
    rng r = rng_seed(l->f.s.seed);
    for (int i = 0; i < 5; i++) tensors[i]->shape.rows = rng_int(&r, 0, 99);
    tegroup_status status = layer_plan(l);
    for (int i = 0; i < 5; i++) tensors[i]->shape.rows = rows;
    return layer_calls(l, delayed, status);
}

TEST(linear, every_combination) {
    int right = check_every_layer(2, 0, 1, 6001, layer_run);
    printf("run %d/%d, skipped 0; %ld elements, error/bound at most %.3f\n", right, 2 * COMBINATIONS, (long)layers_elements, layers_worst);
    ASSERT_EQ(right, 1620);
}

/* Weights [groups, k, n] with a bias, as gpt-oss's checkpoints have them: one call, as a product and as a layer. */
TEST(linear, weights_in_out_with_bias) {
    enum { E = 2, WIDTH = 2 };
    static float x[E][WIDTH] = {{1, 2}, {1, 2}}, w[E][WIDTH][WIDTH] = {{{1, 0}, {0, 1}}, {{1, 2}, {3, 4}}}, bias[E][WIDTH] = {{10, 20}, {30, 40}};
    static float y[E][WIDTH], dy[E][WIDTH] = {{1, -1}, {1, -1}}, dx[E][WIDTH], dw[E][WIDTH][WIDTH], dbias[E][WIDTH];
    static const float want_y[E][WIDTH] = {{11, 22}, {37, 50}}, want_dx[E][WIDTH] = {{1, -1}, {-1, -1}};
    static const float want_dw[E][WIDTH][WIDTH] = {{{1, -1}, {2, -2}}, {{1, -1}, {2, -2}}};
    static _Alignas(TEGROUP_ALIGNMENT) unsigned char snapshot[8192], workspace[1 << 20];
    const tegroup_dtype f32 = TEGROUP_DTYPE_F32;
    const int64_t counts[E] = {1, 1};
    tegroup_shape rows = tegroup_shape_of(E, E, WIDTH, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    ASSERT_EQ(TEGROUP_OK, tegroup_shape_prepare(&rows, snapshot, sizeof snapshot, NULL, NULL));

    tegroup_gemm_desc gemm = {.struct_size = sizeof gemm, .op = TEGROUP_OP_DGRAD, .space = TEGROUP_SPACE_HOST, .options.threads = 1};
    tegroup_plan plan;
    gemm.a = tegroup_tensor_of(rows, WIDTH, f32, x), gemm.d = tegroup_tensor_of(rows, WIDTH, f32, y);
    gemm.b = tegroup_tensor_uniform(E, WIDTH, WIDTH, f32, w), gemm.bias = tegroup_tensor_uniform(E, 1, WIDTH, f32, bias);
    gemm.options.workspace = workspace, gemm.options.workspace_bytes = sizeof workspace;
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&gemm, NULL, &plan, NULL));
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&plan, &gemm, NULL, NULL));
    ASSERT_EQ(0, memcmp(y, want_y, sizeof y));

    tegroup_linear_desc layer = {.struct_size = sizeof layer, .space = TEGROUP_SPACE_HOST, .weight_layout = TEGROUP_WEIGHT_IN_OUT};
    tegroup_linear_plan layer_plan;
    layer.input = gemm.a, layer.weight = gemm.b, layer.bias = gemm.bias, layer.out = gemm.d, layer.options = gemm.options;
    layer.grad_output = tegroup_tensor_of(rows, WIDTH, f32, dy), layer.dgrad_out = tegroup_tensor_of(rows, WIDTH, f32, dx);
    layer.main_grad = tegroup_tensor_uniform(E, WIDTH, WIDTH, f32, dw), layer.bias_grad = tegroup_tensor_uniform(E, 1, WIDTH, f32, dbias);
    memset(y, 0xff, sizeof y);
    ASSERT_EQ(TEGROUP_OK, tegroup_linear_plan_make(&layer, NULL, &layer_plan, NULL));
    ASSERT_EQ(TEGROUP_OK, tegroup_linear_forward(&layer_plan, &layer, NULL, NULL));
    ASSERT_EQ(TEGROUP_OK, tegroup_linear_dgrad(&layer_plan, &layer, NULL, NULL));
    ASSERT_EQ(TEGROUP_OK, tegroup_linear_wgrad(&layer_plan, &layer, NULL, NULL));
    ASSERT_EQ(0, memcmp(y, want_y, sizeof y));
    ASSERT_EQ(0, memcmp(dx, want_dx, sizeof dx));
    ASSERT_EQ(0, memcmp(dw, want_dw, sizeof dw));
    ASSERT_EQ(0, memcmp(dbias, dy, sizeof dbias)); /* one row each */
    memset(&layer.bias, 0, sizeof layer.bias); /* of square weights without bias nothing else tells */
    memset(&layer.bias_grad, 0, sizeof layer.bias_grad);
    ASSERT_EQ(TEGROUP_OK, tegroup_linear_plan_make(&layer, NULL, &layer_plan, NULL));
    layer.weight_layout = TEGROUP_WEIGHT_OUT_IN;
    ASSERT_EQ(TEGROUP_ERROR_PLAN, tegroup_linear_wgrad(&layer_plan, &layer, NULL, NULL));
}

/* The same in the wide types, and in F32 with narrower weights. */
TEST(linear, wide_types) {
    rng r = rng_seed(6002);
    for (int i = 0; i < 360; i++) {
        choice c = {i & 1, i % 3, i >> 1 & 1, i / 3 % 3, 1 + i / 9 % 3, i % ROUTINGS, (tegroup_tail)(i / 4 % 3), i / 8 & 1, i / 16 & 3};
        if (i % 2 && c.gradients == 2) c.gradients = 1; /* F64 sums are not narrowed here */
        ASSERT_STREQ("", check_layer(&c, i % 2 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, 0, &r, layer_run));
    }
}

TEST(linear, buffers_of_other_rows_than_planned) {
    rng r = rng_seed(6007);
    for (int64_t i = scaled(300); i > 0; i--) {
        choice c = {(int)rng_int(&r, 0, 1), (int)rng_int(&r, 0, 2), (int)rng_int(&r, 0, 1), (int)rng_int(&r, 0, 2), (int)rng_int(&r, 1, 3), (int)rng_int(&r, 0, ROUTINGS - 1),
                    (tegroup_tail)rng_int(&r, 0, TEGROUP_TAIL_POISON), (int)rng_int(&r, 0, 1), 0};
        ASSERT_STREQ("", check_layer(&c, i % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16, 0, &r, layer_run_as_planned));
    }
}

/* An empty group's gradient: exact zeros when overwritten, the old bytes when accumulated. */
TEST(linear, gradients_of_empty_groups) {
    rng r = rng_seed(6003);
    for (int i = 0; i < 4; i++) {
        const int accumulates = i & 1, transposed = i >> 1;
        choice c = {0, accumulates, 0, 1, 3, 3, TEGROUP_TAIL_KEEP, transposed, 0};
        layer *l = (layer *)malloc(sizeof *l);
        layer_make(l, &c, TEGROUP_DTYPE_F32, 0, &r);
        int64_t skips = l->f.s.m[0] < 0; /* group 0 may be skipped: never touched */
        ASSERT_EQ(layer_run(l, 0), TEGROUP_OK);
        const tegroup_tensor *results[] = {&l->desc.main_grad, &l->desc.bias_grad};
        for (int i = 0; i < 2; i++) {
            int64_t each = results[i]->shape.rows * results[i]->shape.cols;
            if (accumulates) ASSERT_EQ(guarded_changed(results[i]->data), 0);
            for (int64_t e = skips * each; e < GROUPS * each && !accumulates; e++) {
                const double x = load(results[i]->dtype, results[i]->data, e);
                ASSERT_TRUE(x == 0 && !signbit(x));
            }
        }
        problem_release(&l->f);
        free(l);
    }
}

/* Results do not depend on where they go, and are those of tegroup_gemm. */
TEST(linear, same_bits_in_any_buffer) {
    rng r = rng_seed(6004);
    for (int i = 0; i < 12; i++) {
        choice c = {i % 2, 0, 0, i % 3, 3, i % 3, TEGROUP_TAIL_ZERO, i >> 1 & 1, 0};
        layer *l = (layer *)malloc(sizeof *l);
        layer_make(l, &c, TEGROUP_DTYPE_BF16, 0, &r);
        ASSERT_EQ(layer_run(l, 0), TEGROUP_OK);
        tegroup_linear_desc other = l->desc;
        size_t out = guarded_find(other.out.data)->bytes, dgrad_out = guarded_find(other.dgrad_out.data)->bytes;
        for (size_t skew = 0; skew < 64; skew += 4) {
            other.out.data = guarded_skewed(out, skew);
            ASSERT_EQ(tegroup_linear_forward(&l->plan, &other, NULL, NULL), TEGROUP_OK);
            ASSERT_EQ(memcmp(other.out.data, l->desc.out.data, out), 0);
            other.dgrad_out.data = guarded_skewed(dgrad_out, 60 - skew);
            ASSERT_EQ(tegroup_linear_dgrad(&l->plan, &other, NULL, NULL), TEGROUP_OK);
            ASSERT_EQ(memcmp(other.dgrad_out.data, l->desc.dgrad_out.data, dgrad_out), 0);
        }
        const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
        for (int op = 0; op < (c.lists ? 2 : 3); op++) {
            tegroup_gemm_desc gemm;
            tegroup_plan plan;
            ASSERT_EQ(tegroup_linear_gemm(&l->desc, ops[op], &gemm, &l->error), TEGROUP_OK);
            const void *mine = gemm.d.data;
            size_t bytes = guarded_find(mine)->bytes;
            gemm.d.data = guarded(bytes);
            if (ops[op] == TEGROUP_OP_WGRAD && gemm.bias.dtype != TEGROUP_DTYPE_UNSET) gemm.bias.data = scratch(guarded_find(gemm.bias.data)->bytes);
            ASSERT_EQ(tegroup_plan_make(&gemm, NULL, &plan, &l->error), TEGROUP_OK);
            ASSERT_EQ(tegroup_gemm(&plan, &gemm, NULL, &l->error), TEGROUP_OK);
            ASSERT_EQ(memcmp(gemm.d.data, mine, bytes), 0);
        }
        ASSERT_EQ(guards_changed(), 0);
        problem_release(&l->f);
        free(l);
    }
}

/* ---- finite differences -------------------------------------------------------------------------------------------------- */

/* loss = sum over valid rows of p y + y^2 / 2 + y^3 / 6, so that dY = p + y + y^2 / 2 */
static double loss_of(layer *l, const double *p, double *grad) {
    double loss = 0;
    const double *y = (const double *)l->desc.out.data;
    const int64_t n = l->desc.out.shape.cols;
    if (tegroup_linear_forward(&l->plan, &l->desc, NULL, &l->error) != TEGROUP_OK) return (double)NAN;
    for (int32_t g = 0; g < GROUPS; g++)
        for (int64_t e = l->f.start[g] * n; e < (l->f.start[g] + l->f.d.rows[g]) * n; e++) {
            loss += p[e] * y[e] + y[e] * y[e] / 2 + y[e] * y[e] * y[e] / 6;
            if (grad != NULL) grad[e] = p[e] + y[e] + y[e] * y[e] / 2;
        }
    return loss;
}

/* Largest error of gradient[i] against differences of the loss in x[i], relative to the largest gradient among them. */
static double differ(layer *l, const double *p, double *x, const double *gradient, int64_t count) {
    const double h = 0x1p-12;
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

TEST(linear, finite_differences) {
    rng r = rng_seed(6005);
    double most[4] = {0, 0, 0, 0};
    for (int i = 0; i < 6; i++) { /* routings, layouts */
        choice c = {0, 0, 0, 2, 3, i / 2, TEGROUP_TAIL_KEEP, i % 2, 0};
        layer *l = (layer *)malloc(sizeof *l);
        layer_make(l, &c, TEGROUP_DTYPE_F64, 0, &r);
        int64_t n = l->desc.out.shape.cols, k = l->desc.input.shape.cols, cells = l->f.capacity * n;
        double *scale = (double *)guarded((size_t)l->f.capacity * 8), *p = (double *)scratch((size_t)cells * 8);
        for (int64_t i = 0; i < l->f.capacity; i++)
            if (owned(&l->f, i)) scale[i] = rng_unit(&r) + 0.1;
        for (int64_t i = 0; i < cells; i++) p[i] = rng_normal(&r);
        l->desc.row_scale = scale;
        l->desc.row_scale_dtype = TEGROUP_DTYPE_F64;
        ASSERT_EQ(layer_plan(l), TEGROUP_OK);
        loss_of(l, p, (double *)l->desc.grad_output.data);
        ASSERT_EQ(tegroup_linear_dgrad(&l->plan, &l->desc, NULL, &l->error), TEGROUP_OK);
        ASSERT_EQ(tegroup_linear_wgrad(&l->plan, &l->desc, NULL, &l->error), TEGROUP_OK);
        const double *gradients[] = {(double *)l->desc.dgrad_out.data, (double *)l->desc.main_grad.data, (double *)l->desc.bias_grad.data, (double *)l->desc.grad_row_scale.data};
        double *of[] = {(double *)l->desc.input.data, (double *)l->desc.weight.data, (double *)l->desc.bias.data, scale};
        int64_t skipped = l->f.s.m[0] < 0, counts[] = {l->f.capacity * k, (GROUPS - skipped) * n * k, (GROUPS - skipped) * n, l->f.capacity};
        int64_t first[] = {0, skipped * n * k, skipped * n, 0};
        for (int i = 0; i < 4; i++) most[i] = fmax(most[i], differ(l, p, of[i] + first[i], gradients[i] + first[i], counts[i]));
        problem_release(&l->f);
        free(l);
    }
    printf("finite differences: relative error at most %.1e dgrad, %.1e wgrad, %.1e bias, %.1e row_scale\n", most[0], most[1], most[2], most[3]);
    for (int i = 0; i < 4; i++) ASSERT_LE(most[i], 1e-6);
}

/* ---- the plan ------------------------------------------------------------------------------------------------------------ */

/* What is planned is what has an output, and the workspace is the largest one's. On machines that are not here, too. */
TEST(linear, plans) {
    static const tegroup_backend backends[] = {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_PORTABLE, TEGROUP_BACKEND_CUBLASLT_GROUPED};
    rng r = rng_seed(6006);
    choice c = {0, 2, 0, 0, 3, 0, TEGROUP_TAIL_KEEP, 0, 0};
    layer *l = (layer *)malloc(sizeof *l);
    layer_make(l, &c, TEGROUP_DTYPE_BF16, 0, &r);
    for (int i = 0; i < 3; i++) {
        tegroup_target target = {.struct_size = sizeof target, .sm = 90, .cublaslt_version = 131000, .built = 0xffff};
        tegroup_linear_desc desc = l->desc;
        tegroup_tensor *tensors[] = {&desc.weight, &desc.input, &desc.out, &desc.grad_output, &desc.dgrad_out, &desc.main_grad};
        for (int t = 0; t < 6; t++) {
            if (tensors[t]->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET) tensors[t]->shape.row_sizes.space = TEGROUP_SPACE_DEVICE;
            if (tensors[t]->shape.rows == 13) tensors[t]->shape.rows = 64;
            tensors[t]->shape.cols = tensors[t]->shape.cols == 13 ? 64 : 32;
        }
        desc.space = TEGROUP_SPACE_DEVICE;
        desc.options.backend = backends[i];
        ASSERT_EQ(tegroup_linear_plan_make(&desc, &target, &l->plan, &l->error), TEGROUP_OK);
        size_t most = 0;
        const tegroup_plan *plans[] = {&l->plan.forward, &l->plan.dgrad, &l->plan.wgrad};
        for (int p = 0; p < 3; p++) {
            ASSERT_EQ(plans[p]->backend, backends[i]);
            ASSERT_EQ(plans[p]->problem.op, TEGROUP_OP_FORWARD + p);
            if (plans[p]->workspace_bytes > most) most = plans[p]->workspace_bytes;
        }
        ASSERT_EQ(l->plan.workspace_bytes, most);
        ASSERT_EQ(l->plan.grad_row_scale.magic, 0u);
        ASSERT_EQ(tegroup_linear_forward(&l->plan, &desc, NULL, &l->error), TEGROUP_ERROR_NOT_BUILT);
    }
    tegroup_linear_desc one = l->desc;
    memset(&one.dgrad_out, 0, sizeof one.dgrad_out);
    memset(&one.main_grad, 0, sizeof one.main_grad);
    memset(&one.grad_output, 0, sizeof one.grad_output);
    one.accumulate = 0;
    ASSERT_EQ(tegroup_linear_plan_make(&one, NULL, &l->plan, &l->error), TEGROUP_OK); /* inference */
    ASSERT_EQ(l->plan.dgrad.magic, 0u);
    ASSERT_EQ(l->plan.wgrad.magic, 0u);
    problem_release(&l->f);
    free(l);
}

TEST_MAIN()
