/* The grouped linear layer: every combination against FP64, the same bits in any buffer, gradients against finite differences.
 * Its bad calls are in test_status.c. */
#define TEGROUP_IMPLEMENTATION
#include "support.h"
#include "utest.h"

/* What one layer is made of, in the words of the combinations below. */
typedef struct choice {
    int lists;      /* weights, biases and their gradients: 0 one tensor, 1 pointers                 */
    int gradients;  /* 0 overwrite, 1 accumulate into the operands' type, 2 accumulate into F32      */
    int delayed;    /* wgrad from a copy in which only what it reads still has an address            */
    int bias;       /* 0 none, 1 plain, 2 scaled by row                                              */
    int outputs;    /* bit 0 out, bit 1 dgrad_out                                                    */
    int routing;
    tegroup_tail tail;
} choice;

enum { GROUPS = 4, ROUTINGS = 5 };
static const int64_t routings[ROUTINGS][GROUPS] = {{6, 6, 6, 6}, {14, 5, 3, 1}, {0, 9, 0, 4}, {0, 0, 0, 0}, {0, 0, 1, 0}};

/* Three problems of support.h that share operands: its grids, references and bounds. */
typedef struct layer {
    int64_t m[GROUPS];
    problem f, d, w;
    tegroup_linear_desc desc;
    tegroup_linear_plan plan;
    tegroup_error error;
} layer;

static void layer_make(layer *l, const choice *c, tegroup_dtype dtype, rng *r) {
    spec s, t;
    memset(l, 0, sizeof *l);
    memset(&s, 0, sizeof s);
    s.op = TEGROUP_OP_FORWARD;
    s.groups = GROUPS;
    s.n = 13;
    s.k = 11;
    s.encoding = (tegroup_encoding)rng_int(r, TEGROUP_ENCODING_COUNTS, TEGROUP_ENCODING_ENDS);
    for (int g = 0; g < GROUPS; g++) l->m[g] = routings[c->routing][g];
    if (s.encoding == TEGROUP_ENCODING_COUNTS && l->m[0] == 0 && rng_chance(r, 50)) l->m[0] = -1; /* skipped */
    s.m = l->m;
    if (s.encoding == TEGROUP_ENCODING_COUNTS) s.place = (place_kind)rng_int(r, 0, 3);
    s.alignment = 4;
    s.tail_rows = rng_int(r, 0, 5);
    s.in = dtype;
    s.out = dtype != TEGROUP_DTYPE_F64 && rng_chance(r, 50) ? TEGROUP_DTYPE_F32 : dtype;
    s.bias = c->bias > 0;
    s.bias_dtype = dtype;
    s.row_scale_dtype = c->bias == 2 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_UNSET;
    s.lists = c->lists ? 2 | 16 : 0;
    s.threads = 1;
    s.seed = rng_next(r);
    problem_make(&l->f, &s);
    t = s;
    t.op = TEGROUP_OP_DGRAD;
    t.bias = 0;
    t.row_scale_dtype = TEGROUP_DTYPE_UNSET;
    problem_make(&l->d, &t);
    t = s;
    t.op = TEGROUP_OP_WGRAD;
    t.lists = c->lists ? 8 | 16 : 0;
    t.c = c->gradients > 0 ? C_ACCUMULATE : C_NONE;
    t.out = c->gradients == 2 ? TEGROUP_DTYPE_F32 : dtype;
    t.bias_dtype = t.out;
    problem_make(&l->w, &t);
    grid_fill(&l->d, &l->d.a, 'g', FILL_NORMAL, 1); /* not the numbers of X */
    guarded_remember(l->d.a.tensor.data);
    l->d.b = l->f.b;
    l->w.a = l->d.a;
    l->w.b = l->f.a;
    l->w.row_scale = l->f.row_scale;

    tegroup_linear_desc *desc = &l->desc;
    desc->struct_size = sizeof *desc;
    desc->space = TEGROUP_SPACE_HOST;
    desc->weight = l->f.b.tensor;
    desc->input = l->f.a.tensor;
    desc->grad_output = l->d.a.tensor;
    desc->main_grad = l->w.d.tensor;
    desc->accumulate = c->gradients > 0;
    if (c->outputs & 1) desc->out = l->f.d.tensor;
    if (c->outputs & 2) desc->dgrad_out = l->d.d.tensor;
    if (c->outputs & 1) desc->out_tail = c->tail;
    if (c->outputs & 2) desc->dgrad_out_tail = c->tail;
    if (c->bias > 0) desc->bias = l->f.bias.tensor;
    if (c->bias > 0) desc->bias_grad = l->w.bias.tensor;
    if (c->bias == 2) {
        desc->row_scale = l->f.row_scale;
        desc->row_scale_dtype = TEGROUP_DTYPE_F32;
        if (c->outputs & 2) {
            desc->grad_row_scale = l->d.a.tensor;
            desc->grad_row_scale.shape.cols = 1;
            desc->grad_row_scale.dtype = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
            desc->grad_row_scale.data = elements_new(desc->grad_row_scale.dtype, l->f.capacity, 0);
            guarded_remember(desc->grad_row_scale.data);
        }
    }
    tegroup_tensor *rows[] = {&desc->input, &desc->out, &desc->grad_output, &desc->dgrad_out, &desc->grad_row_scale};
    for (int i = 0; i < 5; i++)
        if (rows[i]->dtype != TEGROUP_DTYPE_UNSET) rows[i]->shape.snapshot = l->f.a.snapshot;
    desc->compute = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_COMPUTE_F64 : TEGROUP_COMPUTE_F32;
    desc->threads = 1;
    desc->check_level = rng_chance(r, 25) ? TEGROUP_CHECK_DEEP : TEGROUP_CHECK_HOST;
}

static void forget(tegroup_tensor *t) {
    t->data = NULL;
    t->pointers = NULL;
}

static tegroup_status layer_plan(layer *l) {
    tegroup_status status = tegroup_linear_plan_make(&l->desc, NULL, &l->plan, &l->error);
    if (status != TEGROUP_OK) return status;
    l->desc.workspace_bytes = l->plan.workspace.total_bytes;
    l->desc.workspace = scratch(l->desc.workspace_bytes);
    return grid_prepare(&l->f.a, &l->error);
}

static tegroup_status layer_run(layer *l, int delayed) {
    tegroup_status status = layer_plan(l);
    tegroup_linear_desc *desc = &l->desc, saved;
    if (status == TEGROUP_OK && desc->out.dtype != TEGROUP_DTYPE_UNSET) status = tegroup_linear_forward(&l->plan, desc, NULL, &l->error);
    if (status == TEGROUP_OK && desc->dgrad_out.dtype != TEGROUP_DTYPE_UNSET) status = tegroup_linear_dgrad(&l->plan, desc, NULL, &l->error);
    saved = *desc;
    if (delayed) {
        forget(&saved.weight), forget(&saved.bias), forget(&saved.out), forget(&saved.dgrad_out), forget(&saved.grad_row_scale);
        saved.workspace = scratch(saved.workspace_bytes);
    }
    if (status == TEGROUP_OK) status = tegroup_linear_wgrad(&l->plan, &saved, NULL, &l->error);
    if (status != TEGROUP_OK) fprintf(stderr, "%s %s\n", l->error.field, l->error.rule);
    return status;
}

static int owned(const problem *p, int64_t row) {
    for (int32_t g = 0; g < p->s.groups; g++)
        if (row >= p->start[g] && row < p->start[g] + p->d.rows[g]) return 1;
    return 0;
}

/* Rows that no group owns hold what the tail says; they are then made to hold what they did. */
static int64_t wrong_tail(const problem *p, tegroup_tail tail) {
    const grid *t = &p->d;
    guarded_node *node = guarded_find(t->tensor.data);
    size_t line = (size_t)t->tensor.shape.cols * size_of(t->dtype);
    int64_t wrong = 0;
    for (int64_t row = 0; row < p->capacity; row++) {
        unsigned char *at = node->data + (size_t)row * line;
        if (tail == TEGROUP_TAIL_KEEP || owned(p, row)) continue;
        for (int64_t j = 0; j < t->tensor.shape.cols; j++) {
            double x = load(t->dtype, at, j);
            wrong += tail == TEGROUP_TAIL_ZERO ? !(x == 0 && !signbit(x)) : !isnan(x);
        }
        memcpy(at, node->copy + (size_t)row * line, line);
    }
    return wrong;
}

/* sum of dY * bias against FP64; then as before */
static verdict compare_row_scale(const layer *l) {
    verdict v = {0, 0, 0, 0, 0};
    const tegroup_tensor *t = &l->desc.grad_row_scale;
    const grid *dy = &l->d.a, *bias = &l->f.bias;
    double u = t->dtype == TEGROUP_DTYPE_F64 ? 0x1p-53 : 0x1p-24;
    for (int32_t g = 0; g < GROUPS && t->dtype != TEGROUP_DTYPE_UNSET; g++)
        for (int64_t i = 0; i < dy->rows[g]; i++) {
            double sum = 0, size = 0;
            for (int64_t j = 0; j < l->f.s.n; j++) {
                sum += value_at(dy, g, i, j) * value_at(bias, g, 0, j);
                size += fabs(value_at(dy, g, i, j) * value_at(bias, g, 0, j));
            }
            compare(&v, load(t->dtype, t->data, l->f.start[g] + i), sum, (double)(l->f.s.n + 4) * u * size + u * fabs(sum) * (1 + 0x1p-6), 0);
            size_t at = (size_t)(l->f.start[g] + i) * size_of(t->dtype);
            memcpy((unsigned char *)t->data + at, guarded_find(t->data)->copy + at, size_of(t->dtype));
        }
    return v;
}

static double worst;
static int64_t elements;

static int within(verdict v) {
    if (v.worst > worst) worst = v.worst;
    elements += v.count;
    return v.worst <= 1;
}

/* One layer from plan to comparison. "" or what is wrong. */
static const char *check_layer(const choice *c, tegroup_dtype dtype, rng *r) {
    const char *wrong = "";
    layer *l = (layer *)malloc(sizeof *l);
    layer_make(l, c, dtype, r);
    problem_reference(&l->f);
    problem_reference(&l->d);
    problem_reference(&l->w);
    if (layer_run(l, c->delayed) != TEGROUP_OK) wrong = "refused";
    else if (c->outputs & 1 ? !within(problem_compare(&l->f)) : guarded_changed(l->f.d.tensor.data) != 0) wrong = "out";
    else if (c->outputs & 2 ? !within(problem_compare(&l->d)) : guarded_changed(l->d.d.tensor.data) != 0) wrong = "dgrad_out";
    else if (!within(problem_compare(&l->w))) wrong = "main_grad";
    else if (!within(problem_compare_bias(&l->w))) wrong = "bias_grad";
    else if (!within(compare_row_scale(l))) wrong = "grad_row_scale";
    else if (c->outputs & 1 && wrong_tail(&l->f, c->tail) != 0) wrong = "out's tail";
    else if (c->outputs & 2 && wrong_tail(&l->d, c->tail) != 0) wrong = "dgrad_out's tail";
    else {
        grid_forgive(&l->d.d, &l->d.s);
        grid_forgive(&l->w.d, &l->w.s);
        if (c->bias > 0) grid_forgive(&l->w.bias, &l->w.s);
        if (problem_disturbed(&l->f) != 0) wrong = "bytes changed that are no result's";
    }
    if (wrong[0] != 0)
        fprintf(stderr, "%s: lists %d gradients %d delayed %d bias %d outputs %d routing %d tail %d dtype %d\n", wrong, c->lists, c->gradients,
                c->delayed, c->bias, c->outputs, c->routing, (int)c->tail, (int)dtype);
    problem_release(&l->f); /* the oldest of the three */
    free(l);
    return wrong;
}

UTEST(linear, every_combination) {
    rng r = rng_seed(6001);
    choice c;
    int run = 0;
    for (c.lists = 0; c.lists < 2; c.lists++)
        for (c.gradients = 0; c.gradients < 3; c.gradients++)
            for (c.delayed = 0; c.delayed < 2; c.delayed++)
                for (c.bias = 0; c.bias < 3; c.bias++)
                    for (c.outputs = 1; c.outputs < 4; c.outputs++)
                        for (c.routing = 0; c.routing < ROUTINGS; c.routing++)
                            for (int tail = TEGROUP_TAIL_KEEP; tail <= TEGROUP_TAIL_POISON; tail++) {
                                c.tail = (tegroup_tail)tail;
                                ASSERT_STREQ("", check_layer(&c, run % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16, &r));
                                run++;
                            }
    printf("run %d/%d, skipped 0; %ld elements, error/bound at most %.3f\n", run, 2 * 3 * 2 * 3 * 3 * ROUTINGS * 3, (long)elements, worst);
    ASSERT_EQ(run, 1620);
}

/* The same in the wide types. */
UTEST(linear, wide_types) {
    rng r = rng_seed(6002);
    for (int i = 0; i < 120; i++) {
        choice c = {i & 1, i % 3, i >> 1 & 1, i / 3 % 3, 1 + i / 9 % 3, i % ROUTINGS, (tegroup_tail)(i / 4 % 3)};
        if (i % 2 && c.gradients == 2) c.gradients = 1; /* F64 sums are not narrowed here */
        ASSERT_STREQ("", check_layer(&c, i % 2 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, &r));
    }
}

/* An empty group's gradient: exact zeros when overwritten, the old bytes when accumulated. */
UTEST(linear, gradients_of_empty_groups) {
    rng r = rng_seed(6003);
    for (int accumulates = 0; accumulates < 2; accumulates++) {
        choice c = {0, accumulates, 0, 1, 3, 3, TEGROUP_TAIL_KEEP};
        layer *l = (layer *)malloc(sizeof *l);
        layer_make(l, &c, TEGROUP_DTYPE_F32, &r);
        int64_t skips = l->f.s.m[0] < 0; /* group 0 may be skipped: never touched */
        ASSERT_EQ(layer_run(l, 0), TEGROUP_OK);
        const tegroup_tensor *results[] = {&l->desc.main_grad, &l->desc.bias_grad};
        for (int i = 0; i < 2; i++) {
            const float *x = (const float *)results[i]->data;
            int64_t each = results[i]->shape.rows * results[i]->shape.cols;
            if (accumulates) ASSERT_EQ(guarded_changed(x), 0);
            for (int64_t e = skips * each; e < GROUPS * each && !accumulates; e++) ASSERT_TRUE(x[e] == 0 && !signbit(x[e]));
        }
        problem_release(&l->f);
        free(l);
    }
}

/* Results do not depend on where they go, and are those of tegroup_gemm. */
UTEST(linear, same_bits_in_any_buffer) {
    rng r = rng_seed(6004);
    for (int i = 0; i < 12; i++) {
        choice c = {i % 2, 0, 0, i % 3, 3, i % 3, TEGROUP_TAIL_ZERO};
        layer *l = (layer *)malloc(sizeof *l);
        layer_make(l, &c, TEGROUP_DTYPE_BF16, &r);
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
    if (tegroup_linear_forward(&l->plan, &l->desc, NULL, &l->error) != TEGROUP_OK) return (double)NAN;
    for (int32_t g = 0; g < GROUPS; g++)
        for (int64_t e = l->f.start[g] * l->f.s.n; e < (l->f.start[g] + l->f.d.rows[g]) * l->f.s.n; e++) {
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

UTEST(linear, finite_differences) {
    rng r = rng_seed(6005);
    double most[4] = {0, 0, 0, 0};
    for (int routing = 0; routing < 3; routing++) {
        choice c = {0, 0, 0, 2, 3, routing, TEGROUP_TAIL_KEEP};
        layer *l = (layer *)malloc(sizeof *l);
        layer_make(l, &c, TEGROUP_DTYPE_F64, &r);
        int64_t cells = l->f.capacity * l->f.s.n, n = l->f.s.n, k = l->f.s.k;
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
UTEST(linear, plans) {
    static const tegroup_backend backends[] = {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_PORTABLE, TEGROUP_BACKEND_CUBLASLT_GROUPED};
    rng r = rng_seed(6006);
    choice c = {0, 2, 0, 0, 3, 0, TEGROUP_TAIL_KEEP};
    layer *l = (layer *)malloc(sizeof *l);
    layer_make(l, &c, TEGROUP_DTYPE_BF16, &r);
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
        desc.backend = backends[i];
        ASSERT_EQ(tegroup_linear_plan_make(&desc, &target, &l->plan, &l->error), TEGROUP_OK);
        size_t most = 0;
        const tegroup_plan *plans[] = {&l->plan.forward, &l->plan.dgrad, &l->plan.wgrad};
        for (int p = 0; p < 3; p++) {
            ASSERT_EQ(plans[p]->backend, backends[i]);
            ASSERT_EQ(plans[p]->problem.op, TEGROUP_OP_FORWARD + p);
            if (plans[p]->workspace.total_bytes > most) most = plans[p]->workspace.total_bytes;
        }
        ASSERT_EQ(l->plan.workspace.total_bytes, most);
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

UTEST_MAIN()
