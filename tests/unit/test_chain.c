/* The op chain: a chain of every kind against finite differences, fused against unfused and against the grouped MLP bit for bit, what
 * explain says, and arguments that are refused. */
#define TEGROUP_EXTERN
#include "support.h"
#include "mlp.h"
#include "test.h"

/* ---- a chain of every kind, in F64 -------------------------------------------------------------------------------------------- */

enum { OPS = 7, EXPERTS = 3, WIDTH = 4, CAPACITY = 8 };

/* y = x^2 / 2 + x over as many columns: rows that no group owns stay as they are. */
typedef struct quadratic { const problem *rows; int64_t calls; } quadratic;

static tegroup_status quadratic_forward(void *context, const tegroup_tensor *x, const tegroup_tensor *y, struct CUstream_st *stream, tegroup_error *error) {
    const double *from = (const double *)x->data;
    (void)stream, (void)error;
    ((quadratic *)context)->calls++;
    for (int64_t row = 0; row < x->shape.rows; row++)
        for (int64_t j = 0; j < x->shape.cols && owned(((quadratic *)context)->rows, row); j++) {
            const double v = from[row * x->shape.cols + j];
            ((double *)y->data)[row * x->shape.cols + j] = v * v / 2 + v;
        }
    return TEGROUP_OK;
}
static tegroup_status quadratic_backward(void *context, const tegroup_tensor *x, const tegroup_tensor *dy, const tegroup_tensor *dx, struct CUstream_st *stream, tegroup_error *error) {
    (void)stream, (void)error;
    for (int64_t row = 0; row < x->shape.rows; row++)
        for (int64_t j = 0; j < x->shape.cols && owned(((quadratic *)context)->rows, row); j++) {
            const int64_t e = row * x->shape.cols + j;
            ((double *)dx->data)[e] = ((const double *)dy->data)[e] * (((const double *)x->data)[e] + 1);
        }
    return TEGROUP_OK;
}
static tegroup_status refusing(void *context, const tegroup_tensor *x, const tegroup_tensor *y, struct CUstream_st *stream, tegroup_error *error) {
    (void)context, (void)x, (void)y, (void)stream, (void)error;
    return TEGROUP_ERROR_UNSUPPORTED;
}

static tegroup_status telling(void *context, const tegroup_tensor *x, const tegroup_tensor *y, struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_error told = {TEGROUP_ERROR_VALUE, 0, "told", "by the caller's own", 1, 2, TEGROUP_READING_NUMBER, NULL};
    (void)context, (void)x, (void)y, (void)stream;
    *error = told;
    return TEGROUP_ERROR_VALUE;
}

typedef struct all_kinds {
    problem rows; /* its a is X; its shape that of every [rows, ...] tensor */
    tegroup_chain_op ops[OPS];
    tegroup_chain_argument arguments[OPS];
    tegroup_chain_desc desc;
    tegroup_chain_plan plan;
    tegroup_error error;
    quadratic user;
    int32_t refused;
    double *p; /* of the loss */
} all_kinds;

static tegroup_tensor uniform(int64_t rows, int64_t cols, rng *r) {
    double *data = (double *)guarded((size_t)(EXPERTS * rows * cols) * 8);
    for (int64_t i = 0; i < EXPERTS * rows * cols; i++) data[i] = r != NULL ? rng_normal(r) / 2 : 0;
    return tegroup_tensor_uniform(EXPERTS, rows, cols, TEGROUP_DTYPE_F64, data);
}
static tegroup_tensor rows_of(const all_kinds *k, int64_t cols) {
    const tegroup_shape *shape = &k->rows.a.tensor.shape;
    return tegroup_tensor_of(*shape, cols, TEGROUP_DTYPE_F64, guarded((size_t)(shape->rows * cols) * 8));
}
static double *scale_of(const all_kinds *k, rng *r) {
    double *scale = (double *)guarded((size_t)k->rows.capacity * 8);
    for (int64_t row = 0; row < k->rows.capacity; row++)
        if (owned(&k->rows, row)) scale[row] = rng_unit(r) + 0.5;
    return scale;
}

/* linear, SwiGLU, linear with scaled bias, user, bias, scale, linear */
static void all_kinds_make(all_kinds *k, int backward, rng *r) {
    static const int64_t m[EXPERTS] = {3, 0, 2};
    static const tegroup_chain_kind kinds[OPS] = {TEGROUP_CHAIN_LINEAR, TEGROUP_CHAIN_ACTIVATION, TEGROUP_CHAIN_LINEAR, TEGROUP_CHAIN_USER,
                                                  TEGROUP_CHAIN_BIAS,   TEGROUP_CHAIN_SCALE,      TEGROUP_CHAIN_LINEAR};
    static const int64_t in[OPS] = {5, 6, 3, WIDTH, WIDTH, WIDTH, WIDTH}, out[OPS] = {6, 3, WIDTH, WIDTH, WIDTH, WIDTH, 2};
    spec s;
    memset(k, 0, sizeof *k);
    memset(&s, 0, sizeof s);
    s.op = TEGROUP_OP_FORWARD;
    s.groups = EXPERTS;
    s.m = m;
    s.n = 2;
    s.k = 5;
    s.tail_rows = CAPACITY - 5;
    s.in = TEGROUP_DTYPE_F64;
    s.seed = rng_next(r);
    problem_make(&k->rows, &s);
    for (int i = 0; i < OPS; i++) {
        tegroup_chain_op *op = &k->ops[i];
        op->kind = kinds[i];
        if (kinds[i] == TEGROUP_CHAIN_LINEAR) {
            op->weights.weight = uniform(out[i], in[i], r);
            op->weights.bias = uniform(1, out[i], r);
            op->weights.main_grad = uniform(out[i], in[i], NULL);
            op->weights.bias_grad = uniform(1, out[i], NULL);
        }
        if (kinds[i] == TEGROUP_CHAIN_BIAS) {
            op->weights.bias = uniform(1, in[i], r);
            op->weights.bias_grad = uniform(1, in[i], NULL);
        }
        k->arguments[i].op = OPS - 1 - i; /* in any order */
    }
    k->ops[1].activation = TEGROUP_ACTIVATION_SWIGLU;
    k->ops[3].forward = quadratic_forward;
    k->ops[3].backward = quadratic_backward;
    k->ops[3].context = &k->user;
    k->user.rows = &k->rows;
    tegroup_chain_argument *a[OPS];
    for (int i = 0; i < OPS; i++) a[i] = &k->arguments[OPS - 1 - i];
    a[OPS - 1]->out = rows_of(k, out[OPS - 1]);
    a[3]->out = rows_of(k, WIDTH); /* one of those between */
    const int scaled_ops[] = {1, 2, 5};
    for (int i = 0; i < 3; i++) {
        a[scaled_ops[i]]->row_scale = scale_of(k, r);
        a[scaled_ops[i]]->row_scale_dtype = TEGROUP_DTYPE_F64;
        if (backward) a[scaled_ops[i]]->grad_row_scale = rows_of(k, 1);
    }
    if (backward) a[0]->grad_input = rows_of(k, in[0]);
    if (backward) a[5]->grad_input = rows_of(k, in[5]);
    k->desc.struct_size = sizeof k->desc;
    k->desc.space = TEGROUP_SPACE_HOST;
    k->desc.ops = k->ops;
    k->desc.op_count = OPS;
    k->desc.arguments = k->arguments;
    k->desc.argument_count = OPS;
    k->desc.input = k->rows.a.tensor;
    if (backward) k->desc.grad_output = rows_of(k, out[OPS - 1]);
    k->desc.options.compute = TEGROUP_COMPUTE_F64;
    k->desc.options.threads = 1;
    k->desc.refused = &k->refused;
    k->refused = 99;
    k->p = (double *)scratch((size_t)(CAPACITY * 2) * 8);
    for (int i = 0; i < CAPACITY * 2; i++) k->p[i] = rng_normal(r);
}
static tegroup_status all_kinds_plan(all_kinds *k) {
    tegroup_status status = tegroup_chain_plan_make(&k->desc, NULL, &k->plan, &k->error);
    if (status != TEGROUP_OK) return status;
    k->desc.saved = scratch(k->desc.saved_bytes = k->plan.saved_bytes);
    k->desc.options.workspace = scratch(k->desc.options.workspace_bytes = k->plan.workspace_bytes);
    return grid_prepare(&k->rows.a, &k->error);
}

/* loss = sum over valid rows of p y + y^2 / 2, so that dY = p + y */
static double loss_of(all_kinds *k, double *grad) {
    const double *y = (const double *)k->arguments[0].out.data;
    double loss = 0;
    if (tegroup_chain_forward(&k->plan, &k->desc, NULL, &k->error) != TEGROUP_OK) return (double)NAN;
    for (int64_t row = 0; row < CAPACITY; row++)
        for (int64_t e = row * 2; e < row * 2 + 2 && owned(&k->rows, row); e++) {
            loss += k->p[e] * y[e] + y[e] * y[e] / 2;
            if (grad != NULL) grad[e] = k->p[e] + y[e];
        }
    return loss;
}
static double differ(all_kinds *k, double *x, const double *gradient, int64_t count) {
    const double h = 0x1p-15;
    double error = 0, scale = 0;
    for (int64_t i = 0; i < count; i++) {
        double at = x[i], slope;
        if (isnan(at)) continue; /* rows that no group owns */
        x[i] = at + h;
        slope = loss_of(k, NULL);
        x[i] = at - h;
        slope = (slope - loss_of(k, NULL)) / (2 * h);
        x[i] = at;
        error = fmax(error, fabs(slope - gradient[i]));
        scale = fmax(scale, fabs(gradient[i]));
    }
    return scale > 0 ? error / scale : INFINITY;
}

TEST(chain, finite_differences) {
    rng r = rng_seed(8001);
    double most = 0;
    for (int unfused = 0; unfused < 2; unfused++) {
        all_kinds *k = (all_kinds *)malloc(sizeof *k);
        all_kinds_make(k, 1, &r);
        if (!unfused) { /* what would keep the first three ops apart */
            memset(&k->arguments[OPS - 1 - 1].grad_row_scale, 0, sizeof(tegroup_tensor));
            memset(&k->arguments[OPS - 1 - 2].grad_row_scale, 0, sizeof(tegroup_tensor));
            k->arguments[OPS - 1 - 2].row_scale = k->arguments[OPS - 1 - 1].row_scale;
        }
        k->desc.unfused = unfused;
        ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
        ASSERT_EQ(k->plan.fused, unfused ? 0u : 1u);
        loss_of(k, (double *)k->desc.grad_output.data);
        ASSERT_EQ(tegroup_chain_backward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
        most = fmax(most, differ(k, (double *)k->desc.input.data, (const double *)k->arguments[OPS - 1].grad_input.data, CAPACITY * 5));
        for (int i = 0; i < OPS; i++) {
            const tegroup_mlp_weights *w = &k->ops[i].weights;
            const tegroup_chain_argument *a = &k->arguments[OPS - 1 - i];
            if (w->main_grad.data != NULL) most = fmax(most, differ(k, (double *)w->weight.data, (const double *)w->main_grad.data, EXPERTS * w->weight.shape.rows * w->weight.shape.cols));
            if (w->bias_grad.data != NULL) most = fmax(most, differ(k, (double *)w->bias.data, (const double *)w->bias_grad.data, EXPERTS * w->bias.shape.cols));
            if (a->grad_row_scale.data != NULL) most = fmax(most, differ(k, (double *)(uintptr_t)a->row_scale, (const double *)a->grad_row_scale.data, CAPACITY));
        }
        ASSERT_EQ(guards_changed(), 0);
        problem_release(&k->rows);
        free(k);
    }
    printf("finite differences: relative error at most %.1e\n", most);
    ASSERT_LE(most, 1e-6);
}

/* ---- the grouped MLP ---------------------------------------------------------------------------------------------------------- */

typedef struct copies { size_t bytes[8]; void *copy[8]; } copies;

static const tegroup_tensor *result(const tegroup_mlp_desc *d, int i) {
    const tegroup_tensor *all[8] = {&d->out, &d->dgrad_out, &d->grad_row_scale, &d->activated, &d->fc1.main_grad, &d->fc1.bias_grad, &d->fc2.main_grad, &d->fc2.bias_grad};
    return all[i];
}

/* linear, activation, linear: as the MLP itself, fused and not. */
TEST(chain, runs_the_grouped_mlp) {
    rng r = rng_seed(8002);
    int narrow = 0; /* F32 between narrower weights */
    for (int i = 0; i < 90; i++) {
        mlp_choice m = {{0, i % 3, 0, i / 3 % 3, 3, i % 3, TEGROUP_TAIL_KEEP, i / 2 & 3, 0}, 0, TEGROUP_ACTIVATION_UNSET, 0};
        mlp *l = (mlp *)malloc(sizeof *l);
        tegroup_mlp_desc *d = &l->desc;
        tegroup_chain_op ops[3];
        tegroup_chain_argument arguments[3];
        tegroup_chain_desc chain;
        tegroup_chain_plan *plan = (tegroup_chain_plan *)malloc(sizeof *plan);
        copies as;
        mlp_make(l, &m, i % 5 == 4 ? TEGROUP_DTYPE_F32 : i % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16, mlp_odd, routings[m.c.routing], &r);
        narrow += d->fc1.weight.dtype != d->input.dtype;
        d->recompute = 0;
        if (d->fc2_bias_scaled) memset(&d->grad_row_scale, 0, sizeof d->grad_row_scale);
        ASSERT_EQ(tegroup_mlp_plan_make(d, NULL, &l->plan, &l->error), TEGROUP_OK);
        d->options.workspace = scratch(d->options.workspace_bytes = l->plan.workspace_bytes);
        ASSERT_EQ(grid_prepare(&l->f1.a, &l->error), TEGROUP_OK);
        ASSERT_EQ(tegroup_mlp_forward(&l->plan, d, NULL, &l->error), TEGROUP_OK);
        ASSERT_EQ(tegroup_mlp_dgrad(&l->plan, d, NULL, &l->error), TEGROUP_OK);
        ASSERT_EQ(tegroup_mlp_wgrad(&l->plan, d, NULL, &l->error), TEGROUP_OK);
        memset(&as, 0, sizeof as);
        for (int j = 0; j < 8; j++) {
            if (result(d, j)->data == NULL) continue;
            as.bytes[j] = guarded_find(result(d, j)->data)->bytes;
            as.copy[j] = memcpy(malloc(as.bytes[j] + 1), result(d, j)->data, as.bytes[j]);
        }

        memset(ops, 0, sizeof ops);
        memset(arguments, 0, sizeof arguments);
        memset(&chain, 0, sizeof chain);
        ops[0].kind = ops[2].kind = TEGROUP_CHAIN_LINEAR;
        ops[0].weights = d->fc1, ops[2].weights = d->fc2;
        ops[1].kind = TEGROUP_CHAIN_ACTIVATION;
        ops[1].activation = d->activation, ops[1].interleaved = d->interleaved, ops[1].alpha = d->alpha, ops[1].limit = d->limit;
        for (int j = 0; j < 3; j++) arguments[j].op = j;
        arguments[0].out = d->preactivation, arguments[0].grad_input = d->dgrad_out;
        arguments[1].out = d->activated, arguments[1].grad_row_scale = d->grad_row_scale;
        arguments[1].row_scale = d->row_scale, arguments[1].row_scale_dtype = d->row_scale_dtype;
        arguments[2].out = d->out;
        if (d->fc2_bias_scaled) arguments[2].row_scale = d->row_scale, arguments[2].row_scale_dtype = d->row_scale_dtype;
        chain.struct_size = sizeof chain, chain.space = TEGROUP_SPACE_HOST, chain.ops = ops, chain.op_count = 3, chain.arguments = arguments, chain.argument_count = 3;
        chain.input = d->input, chain.grad_output = d->grad_output, chain.accumulate = d->accumulate, chain.options.compute = d->options.compute, chain.options.threads = 1;
        for (chain.unfused = 0; chain.unfused < 2; chain.unfused++) {
            problem_reset(&l->f1);
            ASSERT_EQ(tegroup_chain_plan_make(&chain, NULL, plan, &l->error), TEGROUP_OK);
            ASSERT_EQ(plan->fused, chain.unfused ? 0u : 1u);
            ASSERT_EQ(plan->saved_bytes, 0u);
            chain.options.workspace = scratch(chain.options.workspace_bytes = plan->workspace_bytes);
            ASSERT_EQ(tegroup_chain_forward(plan, &chain, NULL, &l->error), TEGROUP_OK);
            ASSERT_EQ(tegroup_chain_backward(plan, &chain, NULL, &l->error), TEGROUP_OK);
            for (int j = 0; j < 8; j++)
                if (as.copy[j] != NULL) ASSERT_EQ(memcmp(as.copy[j], result(d, j)->data, as.bytes[j]), 0);
        }
        ASSERT_EQ(guards_changed(), 0);
        for (int j = 0; j < 8; j++) free(as.copy[j]);
        mlp_release(l);
        free(plan);
        free(l);
    }
    ASSERT_GT(narrow, 0);
}

static void forward_alone(all_kinds *k) {
    memset(&k->desc.grad_output, 0, sizeof k->desc.grad_output);
    for (int i = 0; i < OPS; i++) {
        memset(&k->arguments[i].grad_row_scale, 0, sizeof(tegroup_tensor));
        memset(&k->arguments[i].grad_input, 0, sizeof(tegroup_tensor));
    }
}
static tegroup_tensor refilled(tegroup_tensor t, tegroup_dtype dtype, rng *r) {
    const int64_t count = (t.shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET ? 1 : t.shape.groups) * t.shape.rows * t.shape.cols;
    t.dtype = dtype;
    for (int64_t i = 0; i < count; i++) store(dtype, t.data, i, r != NULL ? rng_normal(r) : 0);
    return t;
}

/* scale to BF16, then linear, SiLU, linear of BF16 weights, in a chain of F32: an MLP would round the gradient between SiLU and the last
 * linear to BF16, the chain keeps it in F32. */
TEST(chain, same_bits_where_dtypes_differ) {
    rng r = rng_seed(8006);
    const tegroup_dtype wide = TEGROUP_DTYPE_F32, narrow = TEGROUP_DTYPE_BF16;
    static const tegroup_chain_kind kinds[4] = {TEGROUP_CHAIN_SCALE, TEGROUP_CHAIN_LINEAR, TEGROUP_CHAIN_ACTIVATION, TEGROUP_CHAIN_LINEAR};
    enum { COUNT = EXPERTS * WIDTH * 5 };
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    tegroup_tensor dw;
    float before[COUNT];
    all_kinds_make(k, 1, &r);
    memset(k->ops, 0, sizeof k->ops);
    memset(k->arguments, 0, sizeof k->arguments);
    k->desc.op_count = k->desc.argument_count = 4;
    k->desc.options.compute = TEGROUP_COMPUTE_F32;
    k->desc.input = refilled(k->desc.input, wide, &r);
    for (int i = 0; i < 4; i++) {
        k->ops[i].kind = kinds[i];
        k->arguments[i].op = i;
        if (i != 1) k->arguments[i].out = refilled(rows_of(k, i == 0 ? 5 : WIDTH), i == 3 ? wide : narrow, NULL);
    }
    k->ops[2].activation = TEGROUP_ACTIVATION_SILU;
    for (int i = 1; i < 4; i += 2) k->ops[i].weights.weight = refilled(uniform(WIDTH, i == 1 ? 5 : WIDTH, &r), narrow, &r);
    k->ops[1].weights.main_grad = dw = refilled(uniform(WIDTH, 5, NULL), wide, NULL);
    k->arguments[0].row_scale = scale_of(k, &r), k->arguments[0].row_scale_dtype = TEGROUP_DTYPE_F64;
    k->arguments[2].grad_input = refilled(rows_of(k, WIDTH), narrow, NULL);
    k->desc.grad_output = refilled(rows_of(k, WIDTH), narrow, &r);
    for (k->desc.unfused = 0; k->desc.unfused < 2; k->desc.unfused++) {
        ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
        ASSERT_EQ(k->plan.fused, 0u);
        ASSERT_EQ(tegroup_chain_forward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
        ASSERT_EQ(tegroup_chain_backward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
        if (k->desc.unfused) ASSERT_EQ(memcmp(before, dw.data, sizeof before), 0);
        memcpy(before, dw.data, sizeof before);
    }
    problem_release(&k->rows);
    free(k);
}

/* bias, scale, SiLU: each op in place or not, forward and backward, with the same bits. */
static void elementwise_make(all_kinds *k, const all_kinds *from, int backward, unsigned places, unsigned grad_places) {
    const int64_t count = CAPACITY * WIDTH;
    *k = *from;
    k->desc.ops = k->ops;
    k->desc.arguments = k->arguments;
    k->desc.refused = &k->refused;
    k->desc.input = rows_of(k, WIDTH);
    memcpy(k->desc.input.data, from->desc.input.data, (size_t)count * 8);
    for (int i = 0; i < 3; i++) {
        const tegroup_tensor *x = i == 0 ? &k->desc.input : &k->arguments[i - 1].out;
        k->arguments[i].out = places >> i & 1u ? *x : rows_of(k, WIDTH);
    }
    memset(&k->desc.grad_output, 0, sizeof k->desc.grad_output);
    if (!backward) return;
    k->desc.grad_output = rows_of(k, WIDTH);
    memcpy(k->desc.grad_output.data, from->desc.grad_output.data, (size_t)count * 8);
    k->ops[0].weights.bias_grad = uniform(1, WIDTH, NULL);
    k->arguments[2].grad_input = grad_places >> 1 & 1u ? k->desc.grad_output : rows_of(k, WIDTH);
    k->arguments[1].grad_input = grad_places & 1u ? k->arguments[2].grad_input : rows_of(k, WIDTH);
}
TEST(chain, in_place) {
    rng r = rng_seed(8009);
    all_kinds *from = (all_kinds *)malloc(sizeof *from), *k = (all_kinds *)malloc(2 * sizeof *k);
    const tegroup_tensor *results[2][3];
    all_kinds_make(from, 1, &r);
    memset(from->ops, 0, sizeof from->ops);
    memset(from->arguments, 0, sizeof from->arguments);
    from->desc.input = rows_of(from, WIDTH);
    from->desc.grad_output = rows_of(from, WIDTH);
    for (int64_t e = 0; e < CAPACITY * WIDTH; e++) {
        ((double *)from->desc.input.data)[e] = rng_normal(&r);
        ((double *)from->desc.grad_output.data)[e] = rng_normal(&r);
    }
    from->ops[0].kind = TEGROUP_CHAIN_BIAS;
    from->ops[0].weights.bias = uniform(1, WIDTH, &r);
    from->ops[1].kind = TEGROUP_CHAIN_SCALE;
    from->ops[2].kind = TEGROUP_CHAIN_ACTIVATION;
    from->ops[2].activation = TEGROUP_ACTIVATION_SILU;
    from->arguments[1].row_scale = scale_of(from, &r);
    from->arguments[1].row_scale_dtype = TEGROUP_DTYPE_F64;
    for (int i = 0; i < 3; i++) from->arguments[i].op = i;
    from->desc.op_count = from->desc.argument_count = 3;
    for (int backward = 1; backward >= 0; backward--)
        for (unsigned places = 0; places < 8; places++)
            for (unsigned grad_places = 0; grad_places < (backward ? 4u : 1u); grad_places++) {
                const int first = places == 0 && grad_places == 0, read_again = backward && places >> 2 & 1u; /* SiLU's x */
                all_kinds *now = &k[!first];
                elementwise_make(now, from, backward, places, grad_places);
                ASSERT_EQ(all_kinds_plan(now), TEGROUP_OK);
                ASSERT_EQ(tegroup_chain_forward(&now->plan, &now->desc, NULL, &now->error), read_again ? TEGROUP_ERROR_OVERLAP : TEGROUP_OK);
                if (read_again) {
                    ASSERT_STREQ(now->error.field, "arguments.out.data");
                    ASSERT_EQ(now->refused, 2);
                    continue;
                }
                results[!first][0] = &now->arguments[2].out;
                results[!first][1] = &now->arguments[1].grad_input;
                results[!first][2] = &now->ops[0].weights.bias_grad;
                if (backward) ASSERT_EQ(tegroup_chain_backward(&now->plan, &now->desc, NULL, &now->error), TEGROUP_OK);
                for (int i = 0; !first && i < (backward ? 3 : 1); i++)
                    for (int64_t row = 0; row < (i == 2 ? EXPERTS : CAPACITY); row++)
                        if (i == 2 || owned(&from->rows, row))
                            ASSERT_EQ(memcmp((char *)results[0][i]->data + row * WIDTH * 8, (char *)results[1][i]->data + row * WIDTH * 8, WIDTH * 8), 0);
            }
#define IN_PLACE(spoil, wanted, name, op)                                                                                    \
    do {                                                                                                               \
        elementwise_make(k, from, 1, 3, 3);                                                                            \
        spoil;                                                                                                         \
        ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);                                                                      \
        ASSERT_EQ(tegroup_chain_forward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_##wanted);                       \
        if (TEGROUP_##wanted != TEGROUP_OK) ASSERT_STREQ(k->error.field, name);                                        \
        if (TEGROUP_##wanted != TEGROUP_OK) ASSERT_EQ(k->refused, op);                                                 \
    } while (0)
    IN_PLACE((void)0, OK, NULL, 0);
    IN_PLACE(k->arguments[1].grad_row_scale = rows_of(k, 1), ERROR_OVERLAP, "arguments.out.data", 1); /* the sum of dy x needs x */
    IN_PLACE(k->arguments[1].out.dtype = TEGROUP_DTYPE_F32, ERROR_OVERLAP, "arguments.out.data", 1);
    IN_PLACE(k->arguments[1].out.data = (double *)k->desc.input.data + 1, ERROR_OVERLAP, "input.data", -1); /* which op 0 writes */
    IN_PLACE(k->ops[2].kind = TEGROUP_CHAIN_USER; k->ops[2].forward = quadratic_forward; k->ops[2].backward = quadratic_backward;
             k->ops[2].context = &k->user; k->arguments[2].out = k->arguments[1].out, ERROR_OVERLAP, "arguments.out.data", 2);
    IN_PLACE(k->ops[2].kind = TEGROUP_CHAIN_LINEAR; k->ops[2].weights.weight = uniform(WIDTH, WIDTH, &r);
             k->arguments[2].out = k->arguments[1].out, ERROR_OVERLAP, "arguments.out.data", 2);
    elementwise_make(k, from, 1, 0, 3); /* a BIAS hands on the gradient in which the op before it works */
    const tegroup_chain_op bias = k->ops[0];
    k->ops[0] = k->ops[1], k->ops[1] = bias;
    k->arguments[0].row_scale = k->arguments[1].row_scale, k->arguments[0].row_scale_dtype = TEGROUP_DTYPE_F64;
    k->arguments[1].row_scale = NULL, k->arguments[1].row_scale_dtype = TEGROUP_DTYPE_UNSET;
    k->arguments[0].grad_input = k->arguments[1].grad_input;
    memset(&k->arguments[1].grad_input, 0, sizeof(tegroup_tensor));
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
    ASSERT_EQ(tegroup_chain_forward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
    ASSERT_EQ(tegroup_chain_backward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
    elementwise_make(k, from, 1, 0, 0); /* a gradient one element on */
    k->arguments[2].grad_input.data = (double *)k->desc.grad_output.data + 1;
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
    ASSERT_EQ(tegroup_chain_backward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_ERROR_OVERLAP);
    ASSERT_STREQ(k->error.field, "arguments.grad_input.data");
    problem_release(&from->rows);
    free(k);
    free(from);
}

/* ---- what is said ------------------------------------------------------------------------------------------------------------- */

TEST(chain, explains) {
    rng r = rng_seed(8003);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    tegroup_chain_verdict v[TEGROUP_CHAIN_MAX_OPS];
#define SAYS(spoil, text)                                                                                              \
    do {                                                                                                               \
        all_kinds_make(k, 1, &r);                                                                                      \
        tegroup_chain_argument *a1 = &k->arguments[OPS - 1 - 1], *a2 = &k->arguments[OPS - 1 - 2], *a0 = &k->arguments[OPS - 1]; \
        (void)a0, (void)a1, (void)a2;                                                                                  \
        memset(&a1->grad_row_scale, 0, sizeof a1->grad_row_scale);                                                     \
        memset(&a2->grad_row_scale, 0, sizeof a2->grad_row_scale);                                                     \
        a2->row_scale = a1->row_scale;                                                                                 \
        spoil;                                                                                                         \
        ASSERT_EQ(tegroup_chain_explain(&k->desc, v, &k->error), TEGROUP_OK);                                          \
        ASSERT_EQ(v[1].first, (text) != NULL ? 1 : 0);                                                                 \
        ASSERT_EQ(v[1].count, (text) != NULL ? 1 : 3);                                                                 \
        ASSERT_STREQ((text) != NULL ? (const char *)(text) : "", v[1].reason != NULL ? v[1].reason : "");              \
        ASSERT_TRUE(v[0].reason == NULL && v[3].reason == NULL && v[3].first == 3);                                    \
        problem_release(&k->rows);                                                                                     \
    } while (0)
    SAYS((void)0, NULL);
    SAYS(k->desc.unfused = 1, "the fusion pass is turned off");
    SAYS(a2->grad_row_scale = rows_of(k, 1), "the gradients of its row_scale and of its bias's are wanted by themselves");
    SAYS(a2->row_scale = scale_of(k, &r), "the linear after it scales its bias by other numbers");
    SAYS(a2->grad_input = rows_of(k, 3), "the gradient of what it gives is wanted");
    SAYS(a1->out = rows_of(k, 3); a1->out.dtype = TEGROUP_DTYPE_F32, "what it gives has another dtype than the chain's input");
    SAYS(a1->out = rows_of(k, 3); a1->out.dtype = TEGROUP_DTYPE_F32; forward_alone(k), NULL);
    SAYS(a1->snapshot = scratch(TEGROUP_ALIGNMENT), "it and its neighbours have different routings");
    SAYS(a0->row_scale = a1->row_scale; a0->row_scale_dtype = TEGROUP_DTYPE_F64, "the linear before it scales its bias");
    all_kinds_make(k, 0, &r); /* linear, ReLU, linear, ReLU, linear: the middle linear is taken */
    k->desc.op_count = 5, k->desc.argument_count = 1, k->arguments[0].op = 4;
    for (int i = 0; i < 5; i++) {
        memset(&k->ops[i], 0, sizeof k->ops[i]);
        k->ops[i].kind = i % 2 ? TEGROUP_CHAIN_ACTIVATION : TEGROUP_CHAIN_LINEAR;
        k->ops[i].activation = TEGROUP_ACTIVATION_RELU;
        if (i % 2 == 0) k->ops[i].weights.weight = uniform(i < 4 ? 3 : 2, i == 0 ? 5 : 3, &r);
    }
    ASSERT_EQ(tegroup_chain_explain(&k->desc, v, &k->error), TEGROUP_OK);
    ASSERT_EQ(v[2].first * 10 + v[2].count, 3);
    ASSERT_STREQ(v[3].reason, "the linear before it is part of a grouped MLP already");
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK); /* forward alone, without gradients */
    ASSERT_EQ(tegroup_chain_forward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
    ASSERT_EQ(tegroup_chain_backward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_ERROR_UNSET);
    k->desc.argument_count = 3;
    memset(&k->arguments[1], 0, 2 * sizeof k->arguments[1]);
    k->arguments[1].op = 0, k->arguments[2].op = 1;
    k->arguments[1].out = k->arguments[2].out = rows_of(k, 3);
    ASSERT_EQ(tegroup_chain_explain(&k->desc, v, &k->error), TEGROUP_OK);
    ASSERT_STREQ(v[1].reason, "it works in place");
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
    ASSERT_EQ(tegroup_chain_forward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
    k->desc.argument_count = 1;
    k->ops[2].kind = TEGROUP_CHAIN_BIAS; /* no linear on one side */
    k->ops[2].weights.bias = uniform(1, 3, &r);
    ASSERT_EQ(tegroup_chain_explain(&k->desc, v, &k->error), TEGROUP_OK);
    ASSERT_STREQ(v[1].reason, "it does not lie between two linears");
    problem_release(&k->rows);
    free(k);
}

/* Two SCALEs of buffers of their own: nothing but the chain knows of the rows and columns between them. */
typedef struct scales {
    all_kinds *k;
    tegroup_tensor out[2], grad_input;
    double *row_scale;
} scales;
static void scales_make(scales *s, all_kinds *k, rng *r) {
    memset(s, 0, sizeof *s);
    all_kinds_make(k, 1, r);
    s->k = k;
    memset(k->ops, 0, sizeof k->ops);
    memset(k->arguments, 0, sizeof k->arguments);
    k->desc.op_count = k->desc.argument_count = 2;
    s->row_scale = scale_of(k, r);
    for (int i = 0; i < 2; i++) {
        k->ops[i].kind = TEGROUP_CHAIN_SCALE;
        k->arguments[i].op = i;
        k->arguments[i].row_scale = s->row_scale;
        k->arguments[i].row_scale_dtype = TEGROUP_DTYPE_F64;
        k->arguments[i].out = rows_of(k, 5);
    }
    k->arguments[0].grad_input = rows_of(k, 5);
    k->desc.grad_output = rows_of(k, 5);
}
static void scales_reshape(all_kinds *k, int64_t rows, int64_t cols) {
    tegroup_tensor *all[] = {&k->desc.input, &k->desc.grad_output, &k->arguments[0].out, &k->arguments[1].out, &k->arguments[0].grad_input};
    for (int i = 0; i < 5; i++) all[i]->shape.rows = rows, all[i]->shape.cols = cols, all[i]->ld = 0;
}

/* The workspace was measured for the planned rows and columns: a call with others would write past it. */
TEST(chain, plan_is_for_its_rows) {
    rng r = rng_seed(8005);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    for (int i = 0; i < 3; i++) {
        scales s;
        scales_make(&s, k, &r);
        scales_reshape(k, i == 0 ? 2 : CAPACITY, i == 1 ? 2 : 5);
        ASSERT_EQ(tegroup_chain_plan_make(&k->desc, NULL, &k->plan, &k->error), TEGROUP_OK);
        k->desc.options.workspace = scratch(k->desc.options.workspace_bytes = k->plan.workspace_bytes);
        ASSERT_EQ(k->plan.saved_bytes, 0u);
        scales_reshape(k, CAPACITY, 5);
        ASSERT_EQ(grid_prepare(&k->rows.a, &k->error), TEGROUP_OK);
        const tegroup_status status = tegroup_chain_backward(&k->plan, &k->desc, NULL, &k->error);
        ASSERT_EQ(status, i < 2 ? TEGROUP_ERROR_PLAN : TEGROUP_OK);
        if (i < 2) ASSERT_STREQ(k->error.field, i == 0 ? "input.shape.rows" : "input.shape.cols");
        ASSERT_EQ(guards_changed(), 0);
        problem_release(&k->rows);
    }
    free(k);
}

static void bare(tegroup_tensor *t) {
    t->shape.snapshot = NULL;
    memset(&t->shape.row_sizes, 0, sizeof t->shape.row_sizes);
}

/* The routing is said once, of the input: the other rows need not repeat it, and their extent is that of rows all the same. */
TEST(chain, routing_is_that_of_the_input) {
    rng r = rng_seed(8007);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    for (int fused = 0; fused < 2; fused++) {
        all_kinds_make(k, 1, &r);
        bare(&k->desc.grad_output);
        for (int i = 0; i < OPS; i++) {
            tegroup_chain_argument *a = &k->arguments[i];
            bare(&a->out), bare(&a->grad_input), bare(&a->grad_row_scale);
            if (fused && a->op == 2) a->row_scale_dtype = TEGROUP_DTYPE_UNSET, a->row_scale = NULL, memset(&a->grad_row_scale, 0, sizeof a->grad_row_scale);
        }
        ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
        ASSERT_EQ(k->plan.fused, fused ? 1u : 0u);
        ASSERT_FALSE(isnan(loss_of(k, (double *)k->desc.grad_output.data)));
        ASSERT_EQ(tegroup_chain_backward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
        ASSERT_EQ(guards_changed(), 0);
        problem_release(&k->rows);
    }
    free(k);
}

typedef struct seen { int64_t calls; tegroup_dtype dtype; const void *data, *grad_output; } seen;
static tegroup_status nothing_forward(void *context, const tegroup_tensor *x, const tegroup_tensor *y, struct CUstream_st *stream, tegroup_error *error) {
    (void)context, (void)stream, (void)error;
    memcpy(y->data, x->data, (size_t)(x->shape.rows * x->shape.cols) * 8);
    return TEGROUP_OK;
}
static tegroup_status seen_backward(void *context, const tegroup_tensor *x, const tegroup_tensor *dy, const tegroup_tensor *dx, struct CUstream_st *stream, tegroup_error *error) {
    seen *s = (seen *)context;
    (void)x, (void)stream, (void)error;
    s->calls++;
    s->dtype = dx->dtype, s->data = dx->data, s->grad_output = dy->data;
    return TEGROUP_OK;
}

/* A caller's op may have gradients of its own: its backward is called though nobody wants that of its input. */
TEST(chain, calls_the_first_op_back) {
    rng r = rng_seed(8010);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    for (int wanted = 0; wanted < 2; wanted++) {
        scales s;
        seen saw;
        memset(&saw, 0, sizeof saw);
        scales_make(&s, k, &r);
        memset(&k->arguments[0].row_scale, 0, sizeof k->arguments[0].row_scale);
        k->arguments[0].row_scale_dtype = TEGROUP_DTYPE_UNSET;
        if (!wanted) memset(&k->arguments[0].grad_input, 0, sizeof(tegroup_tensor));
        k->ops[0].kind = TEGROUP_CHAIN_USER;
        k->ops[0].forward = nothing_forward;
        k->ops[0].backward = seen_backward;
        k->ops[0].context = &saw;
        ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
        ASSERT_EQ(tegroup_chain_forward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
        ASSERT_EQ(saw.calls, 0);
        ASSERT_EQ(tegroup_chain_backward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
        ASSERT_EQ(saw.calls, 1);
        ASSERT_EQ(saw.dtype, wanted ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_UNSET);
        ASSERT_TRUE(saw.data == k->arguments[0].grad_input.data && saw.grad_output != NULL);
        problem_release(&k->rows);
    }
    free(k);
}

static void *inside(all_kinds *k, void *buffer) {
    return memcpy(buffer, k->rows.a.snapshot, guarded_find(k->rows.a.snapshot)->bytes);
}
static void *copied_snapshot(all_kinds *k) {
    return inside(k, scratch(guarded_find(k->rows.a.snapshot)->bytes));
}

/* Plans are made before there are addresses: what they take for the same must then be, and what they do not may be. */
TEST(chain, plans_without_addresses) {
    rng r = rng_seed(8009);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    for (int i = 0; i < 9; i++) {
        all_kinds_make(k, 0, &r);
        tegroup_chain_argument *a1 = &k->arguments[OPS - 1 - 1], *a2 = &k->arguments[OPS - 1 - 2];
        const void *one = a1->row_scale, *other = a2->row_scale, *snapshot = k->desc.input.shape.snapshot;
        tegroup_status wanted = TEGROUP_OK;
        a1->row_scale = a2->row_scale = NULL;
        k->desc.input.shape.snapshot = NULL;
        if (i == 4) a1->row_scale = one, a2->row_scale = other; /* not fused, and run with the same */
        if (i == 7) a1->row_scale = one; /* one of them known */
        if (i == 8) a2->row_scale = one;
        if (i == 5) a1->snapshot = snapshot, a2->snapshot = one; /* not fused: two routings. The plan does not look into them */
        ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
        ASSERT_EQ(k->plan.fused, i == 4 || i == 5 ? 0u : 1u);
        k->desc.input.shape.snapshot = snapshot;
        a1->row_scale = a2->row_scale = one;
        a2->snapshot = NULL;
        if (i == 1) a1->snapshot = snapshot; /* that of the input by name */
        if (i == 2) a2->row_scale = other, wanted = TEGROUP_ERROR_PLAN;
        if (i == 3) a1->snapshot = copied_snapshot(k), wanted = TEGROUP_ERROR_PLAN;
        if (i == 6) k->desc.unfused = 1, wanted = TEGROUP_ERROR_PLAN;
        ASSERT_EQ(tegroup_chain_forward(&k->plan, &k->desc, NULL, &k->error), wanted);
        if (i == 2 || i == 3) ASSERT_STREQ(k->error.field, i == 2 ? "arguments.row_scale" : "arguments.snapshot");
        if (i == 2 || i == 3) ASSERT_EQ(k->refused, i == 2 ? 2 : 1);
        problem_release(&k->rows);
    }
    free(k);
}

/* Each expert's part by its address; entries are looked at at the deep level. */
static void list_of(tegroup_tensor *t, int32_t groups) {
    void **pointers = (void **)scratch((size_t)groups * sizeof(void *));
    for (int32_t g = 0; g < groups; g++) pointers[g] = (double *)t->data + g * t->shape.rows * t->shape.cols;
    t->data = NULL;
    t->pointers = pointers;
    t->pointers_space = TEGROUP_SPACE_HOST;
}
static void list_planned(all_kinds *k) {
    k->desc.options.check_level = TEGROUP_CHECK_DEEP;
    all_kinds_plan(k);
}

/* The chain of op i alone. */
static void alone(all_kinds *k, int i) {
    const void *scale = k->arguments[OPS - 1 - i].row_scale;
    k->desc.ops = &k->ops[i];
    k->desc.op_count = k->desc.argument_count = 1;
    memset(k->arguments, 0, sizeof k->arguments);
    k->arguments[0].out = k->arguments[0].grad_input = k->desc.grad_output = k->desc.input;
    k->arguments[0].out.data = scratch((size_t)(CAPACITY * k->desc.input.shape.cols) * 8);
    k->arguments[0].grad_input.data = scratch((size_t)(CAPACITY * k->desc.input.shape.cols) * 8);
    k->desc.grad_output.data = scratch((size_t)(CAPACITY * k->desc.input.shape.cols) * 8);
    k->arguments[0].row_scale = scale;
    k->arguments[0].row_scale_dtype = scale != NULL ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_UNSET;
    all_kinds_plan(k);
}

/* A spoilt chain is refused, before anything runs: the status, the field, the op, and not a byte written. */
TEST(chain, refuses) {
    rng r = rng_seed(8004);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    tegroup_chain_plan *before = (tegroup_chain_plan *)malloc(sizeof *before);
#define NO(call, spoil, wanted, name, op)                                                                              \
    do {                                                                                                               \
        all_kinds_make(k, 1, &r);                                                                                      \
        ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);                                                                      \
        tegroup_chain_argument *a = k->arguments; /* of op 6, 5 ... 0 */                                               \
        (void)a;                                                                                                       \
        spoil;                                                                                                         \
        for (guarded_node *node = guarded_top; node != (guarded_node *)k->rows.mark; node = node->older) guarded_remember(node->data); \
        *before = k->plan;                                                                                             \
        int64_t calls = k->user.calls, changed = 0;                                                                    \
        tegroup_status status = call;                                                                                  \
        for (guarded_node *node = guarded_top; node != (guarded_node *)k->rows.mark; node = node->older) changed += guarded_changed(node->data); \
        if (status != TEGROUP_ERROR_##wanted || strcmp(k->error.field, name) != 0 || k->refused != (op))               \
            printf("%s: %s %s %s, op %d\n", #spoil, tegroup_status_name(status), status ? k->error.field : "", status ? k->error.rule : "", k->refused); \
        ASSERT_EQ(status, TEGROUP_ERROR_##wanted);                                                                     \
        ASSERT_STREQ(name, k->error.field);                                                                            \
        ASSERT_EQ(k->refused, (op));                                                                                   \
        ASSERT_EQ(changed + k->user.calls - calls, 0);                                                                 \
        ASSERT_EQ(memcmp(before, &k->plan, sizeof *before), 0);                                                        \
        problem_release(&k->rows);                                                                                     \
    } while (0)
#define PLAN tegroup_chain_plan_make(&k->desc, NULL, &k->plan, &k->error)
#define FORWARD tegroup_chain_forward(&k->plan, &k->desc, NULL, &k->error)
#define BACKWARD tegroup_chain_backward(&k->plan, &k->desc, NULL, &k->error)
    NO(FORWARD, k->plan.magic = 1, PLAN, "plan", -1);
    NO(FORWARD, k->desc.op_count = 6; a[0].op = 0; a[6].op = 5; k->desc.argument_count = 0, UNSET, "arguments.row_scale_dtype", 5);
    NO(FORWARD, memset(&a[3].out, 0, sizeof a[3].out), PLAN, "arguments.out", 3);
    NO(BACKWARD, k->ops[4].kind = TEGROUP_CHAIN_SCALE; a[2].row_scale = scale_of(k, &r); a[2].row_scale_dtype = TEGROUP_DTYPE_F64, PLAN, "ops.kind", 4);
    NO(FORWARD, k->ops[1].activation = TEGROUP_ACTIVATION_GEGLU, PLAN, "ops.activation", 1);
    NO(BACKWARD, k->ops[1].interleaved ^= 1, PLAN, "ops.interleaved", 1);
    NO(FORWARD, k->desc.unfused = 1; all_kinds_plan(k); k->ops[1].activation = TEGROUP_ACTIVATION_GEGLU, PLAN, "ops.activation", 1);
    NO(BACKWARD, a[3].out.dtype = TEGROUP_DTYPE_F32, PLAN, "arguments.out.dtype", 3);
    NO(BACKWARD, a[1].grad_input.dtype = TEGROUP_DTYPE_F32, PLAN, "arguments.grad_input.dtype", 5);
    NO(BACKWARD, memset(&a[6].grad_input, 0, sizeof a[6].grad_input), PLAN, "arguments.grad_input.dtype", 0);
    NO(FORWARD, forward_alone(k), PLAN, "grad_output.dtype", -1);
    NO(FORWARD, k->desc.saved = NULL, NULL_ARGUMENT, "saved", -1);
    NO(FORWARD, k->desc.saved_bytes--, WORKSPACE, "saved_bytes", -1);
    NO(BACKWARD, k->desc.options.workspace_bytes--, WORKSPACE, "options.workspace_bytes", -1);
    NO(FORWARD, k->desc.options.workspace = (char *)k->desc.options.workspace + 16, ALIGNMENT, "options.workspace", -1);
    NO(FORWARD, k->ops[6].weights.weight.data = NULL, NULL_ARGUMENT, "weight.data", 6);
    NO(FORWARD, k->ops[4].weights.bias.data = NULL, NULL_ARGUMENT, "bias.data", 4);
    NO(FORWARD, a[1].row_scale = NULL, NULL_ARGUMENT, "row_scale.data", 5);
    NO(FORWARD, a[3].out.data = NULL, NULL_ARGUMENT, "out.data", 3); /* a USER's */
    NO(FORWARD, a[2].out = k->arguments[3].out; a[2].out.data = (char *)k->desc.saved + 4; all_kinds_plan(k), ALIGNMENT, "out.data", 4); /* a BIAS's */
    NO(BACKWARD, k->ops[4].weights.bias_grad.data = NULL, NULL_ARGUMENT, "bias_grad.data", 4);
    NO(BACKWARD, k->ops[0].weights.main_grad.dtype = TEGROUP_DTYPE_UNSET; k->ops[0].weights.main_grad.data = NULL; k->ops[0].weights.bias_grad.dtype = TEGROUP_DTYPE_UNSET; k->ops[0].weights.bias_grad.data = NULL, PLAN, "main_grad.dtype", 0);
    NO(BACKWARD, a[1].grad_row_scale.dtype = TEGROUP_DTYPE_F32, PLAN, "arguments.grad_row_scale.dtype", 5);
    NO(FORWARD, a[1].row_scale_dtype = TEGROUP_DTYPE_F32, PLAN, "arguments.row_scale_dtype", 5);
    NO(FORWARD, a[3].out.data = (char *)a[3].out.data + 4, ALIGNMENT, "out.data", 3);
    for (int i = 3; i < 6; i += 2) { /* what no product sees to: a USER, a SCALE */
        if (i == 5) NO(PLAN, alone(k, i); k->desc.input.shape.row_sizes.space = TEGROUP_SPACE_DEVICE, UNSUPPORTED, "input.shape.row_sizes.space", 0);
        NO(FORWARD, alone(k, i); k->desc.input.shape.snapshot = NULL, NULL_ARGUMENT, "input.shape.snapshot", 0);
        NO(FORWARD, alone(k, i); memset(k->rows.a.snapshot, 0, 4), CAPACITY, "input.shape.snapshot", 0);
        NO(FORWARD, alone(k, i); k->desc.input.data = NULL, NULL_ARGUMENT, "input.data", 0);
        NO(BACKWARD, alone(k, i); k->desc.input.shape.snapshot = NULL, NULL_ARGUMENT, "input.shape.snapshot", 0);
        NO(BACKWARD, alone(k, i); k->desc.input.data = NULL, NULL_ARGUMENT, "input.data", 0);
        NO(BACKWARD, alone(k, i); k->desc.grad_output.data = NULL, NULL_ARGUMENT, "grad_output.data", 0);
        NO(BACKWARD, alone(k, i); k->arguments[0].grad_input.data = (char *)k->arguments[0].grad_input.data + 4, ALIGNMENT, i == 3 ? "dgrad_out.data" : "grad_input.data", 0);
        NO(FORWARD, alone(k, i); k->desc.options.check_level = TEGROUP_CHECK_DEEP; ((int64_t *)(uintptr_t)tegroup_snapshot_read(k->rows.a.snapshot).start)[0] = CAPACITY, CAPACITY, "input.shape.snapshot", 0);
    }
    NO(BACKWARD, k->ops[0].weights.main_grad.data = NULL, NULL_ARGUMENT, "main_grad.data", 0);
    NO(BACKWARD, memset(k->rows.a.snapshot, 0, 4), CAPACITY, "grad_output.shape.snapshot", 6);
    all_kinds_make(k, 1, &r); /* a caller's refusal ends the call */
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
    k->ops[3].forward = refusing;
    ASSERT_EQ(FORWARD, TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_EQ(k->refused, 3);
    ASSERT_EQ(k->error.status, TEGROUP_ERROR_UNSUPPORTED); /* which it had no words for */
    ASSERT_STREQ(k->error.field, "ops.forward");
    ASSERT_EQ(k->error.got, TEGROUP_ERROR_UNSUPPORTED);
    k->ops[3].forward = telling;
    ASSERT_EQ(FORWARD, TEGROUP_ERROR_VALUE);
    ASSERT_STREQ(k->error.field, "told");
    ASSERT_EQ(tegroup_chain_forward(&k->plan, &k->desc, NULL, NULL), TEGROUP_ERROR_VALUE);
    problem_release(&k->rows);
    ASSERT_EQ(tegroup_chain_forward(NULL, &k->desc, NULL, &k->error), TEGROUP_ERROR_NULL_ARGUMENT);
    ASSERT_EQ(tegroup_chain_plan_make(NULL, NULL, &k->plan, &k->error), TEGROUP_ERROR_NULL_ARGUMENT);
    free(before);
    free(k);
}

TEST(chain, refuses_to_plan) {
    rng r = rng_seed(8011);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    tegroup_chain_plan *before = (tegroup_chain_plan *)malloc(sizeof *before);
    NO(PLAN, k->desc.space = TEGROUP_SPACE_UNSET, UNSET, "space", -1);
    NO(PLAN, k->desc.ops = NULL, NULL_ARGUMENT, "ops", -1);
    NO(PLAN, k->desc.op_count = 0, VALUE, "op_count", -1);
    NO(PLAN, k->desc.op_count = TEGROUP_CHAIN_MAX_OPS + 1, VALUE, "op_count", -1);
    NO(PLAN, k->desc.arguments = NULL, NULL_ARGUMENT, "arguments", -1);
    NO(PLAN, k->desc.argument_count = -1, VALUE, "argument_count", -1);
    NO(PLAN, k->desc.argument_count = k->desc.op_count + 1, VALUE, "argument_count", -1);
    NO(PLAN, k->desc.unfused = 2, VALUE, "unfused", -1);
    NO(PLAN, k->desc.accumulate = 2, VALUE, "accumulate", -1);
    NO(PLAN, k->desc.input.dtype = TEGROUP_DTYPE_UNSET, UNSET, "input.dtype", -1);
    NO(PLAN, k->desc.input.ld = 6, LAYOUT, "input.ld", -1);
    NO(PLAN, k->desc.grad_output.shape.cols++, SHAPE, "grad_output.shape.cols", -1);
    NO(PLAN, a[2].op = 7, VALUE, "arguments.op", -1);
    NO(PLAN, a[0].op = -1, VALUE, "arguments.op", -1);
    NO(PLAN, a[2].op = 3, COMBINATION, "arguments.op", 3);
    NO(PLAN, k->ops[1].kind = TEGROUP_CHAIN_UNSET, UNSET, "ops.kind", 1);
    NO(PLAN, k->ops[1].kind = (tegroup_chain_kind)6, VALUE, "ops.kind", 1);
    NO(PLAN, k->ops[1].activation = TEGROUP_ACTIVATION_UNSET, UNSET, "activation", 1);
    NO(PLAN, memset(&k->ops[2].weights.weight, 0, sizeof(tegroup_tensor)), UNSET, "weight.dtype", 2);
    NO(PLAN, k->ops[2].weights.weight_layout = (tegroup_weight_layout)2, VALUE, "weight_layout", 2);
    NO(PLAN, memset(&k->ops[4].weights.bias, 0, sizeof(tegroup_tensor)), UNSET, "bias.dtype", 4);
    NO(PLAN, k->ops[3].forward = NULL, NULL_ARGUMENT, "ops.forward", 3);
    NO(PLAN, k->ops[3].backward = NULL, NULL_ARGUMENT, "ops.backward", 3);
    NO(PLAN, k->ops[3].cols = -1, VALUE, "ops.cols", 3);
    NO(PLAN, k->ops[3].cols = TEGROUP_MAX_COLS + 1, VALUE, "ops.cols", 3);
    NO(PLAN, k->desc.arguments = NULL; k->desc.argument_count = 0, UNSET, "arguments.row_scale_dtype", 5);
    NO(PLAN, k->desc.op_count = 1; k->desc.arguments = NULL; k->desc.argument_count = 0, UNSET,
       "arguments.out.dtype", 0);
    NO(PLAN, k->ops[0].weights.weight.shape.rows = 5; k->ops[0].weights.bias.shape.cols = 5, SHAPE, "ops.activation", 1);
    NO(PLAN, k->ops[2].weights.weight.shape.cols++, SHAPE, "input.shape.cols", 2);
    NO(PLAN, k->ops[4].weights.bias.shape.cols++, SHAPE, "bias.shape.cols", 4);
    NO(PLAN, a[2].grad_input = rows_of(k, WIDTH), COMBINATION, "arguments.grad_input", 4);
    NO(PLAN, a[2].row_scale_dtype = TEGROUP_DTYPE_F64, COMBINATION, "arguments.row_scale_dtype", 4);
    NO(PLAN, a[3].row_scale_dtype = TEGROUP_DTYPE_F64, COMBINATION, "arguments.row_scale_dtype", 3);
    NO(PLAN, k->desc.options.compute = (tegroup_compute)77, VALUE, "options.compute", -1);
    NO(PLAN, k->desc.options.threads = -3, VALUE, "options.threads", -1);
    NO(PLAN, k->desc.options.backend = (tegroup_backend)99, VALUE, "options.backend", -1);
    NO(PLAN, a[1].grad_row_scale.dtype = TEGROUP_DTYPE_BF16, DTYPE, "arguments.grad_row_scale.dtype", 5);
    NO(PLAN, k->ops[4].weights.bias.shape.groups--, SHAPE, "bias.shape.groups", 4);
    NO(PLAN, k->ops[4].weights.bias_grad.shape.groups--, SHAPE, "bias_grad.shape.groups", 4);
    NO(PLAN, k->ops[4].weights.bias_grad.dtype = TEGROUP_DTYPE_F8E4M3, DTYPE, "bias_grad.dtype", 4);
    NO(PLAN, k->ops[0].weights.weight.shape.rows = -1, VALUE, "weight.shape.rows", 0);
    NO(PLAN, k->ops[2].weights.weight.shape.rows = TEGROUP_MAX_ROWS + 1, VALUE, "weight.shape.rows", 2);
    NO(PLAN, a[3].snapshot = k->desc.input.shape.snapshot, COMBINATION, "arguments.snapshot", 3);
    NO(PLAN, a[1].row_scale_dtype = TEGROUP_DTYPE_UNSET, UNSET, "arguments.row_scale_dtype", 5);
    NO(PLAN, a[5].row_scale_dtype = TEGROUP_DTYPE_UNSET, UNSET, "arguments.row_scale_dtype", 1);
    NO(PLAN, a[6].row_scale_dtype = TEGROUP_DTYPE_F64; memset(&k->ops[0].weights.bias, 0, sizeof(tegroup_tensor)), COMBINATION, "arguments.row_scale_dtype", 0);
    NO(PLAN, a[3].out.dtype = TEGROUP_DTYPE_UNSET, UNSET, "arguments.out.dtype", 3);
    NO(PLAN, a[1].grad_input.dtype = TEGROUP_DTYPE_UNSET, UNSET, "arguments.grad_input.dtype", 5);
    NO(PLAN, a[1].grad_row_scale.dtype = TEGROUP_DTYPE_UNSET, UNSET, "arguments.grad_row_scale.dtype", 5);
    NO(PLAN, k->ops[4].weights.bias_grad.dtype = TEGROUP_DTYPE_UNSET, UNSET, "bias_grad.dtype", 4);
    NO(PLAN, k->ops[6].weights.bias_grad.dtype = TEGROUP_DTYPE_UNSET, UNSET, "bias_grad.dtype", 6);
    NO(PLAN, k->ops[0].weights.main_grad.dtype = TEGROUP_DTYPE_UNSET, UNSET, "main_grad.dtype", 0);
    NO(PLAN, k->ops[0].weights.bias.dtype = TEGROUP_DTYPE_UNSET; k->ops[0].weights.bias.pointers = (void *const *)k->ops[0].weights.bias.data; k->ops[0].weights.bias.data = NULL, UNSET, "bias.dtype", 0);
    NO(PLAN, forward_alone(k); k->desc.grad_output = rows_of(k, 2); k->desc.grad_output.dtype = TEGROUP_DTYPE_UNSET, UNSET, "grad_output.dtype", -1);
    NO(PLAN, a[0].grad_row_scale = rows_of(k, 1), COMBINATION, "arguments.grad_row_scale", 6);
    NO(PLAN, memset(&a[0].out, 0, sizeof a[0].out), UNSET, "arguments.out.dtype", 6);
    NO(PLAN, a[3].out.shape.cols++, SHAPE, "arguments.out.shape.cols", 3);
    NO(PLAN, a[3].out.dtype = TEGROUP_DTYPE_I32, DTYPE, "arguments.out.dtype", 3);
    NO(PLAN, a[3].out.pointers = (void *const *)a[3].out.data, UNSUPPORTED, "arguments.out.pointers", 3);
    NO(PLAN, a[3].out.group_stride = 77, COMBINATION, "arguments.out.group_stride", 3);
    NO(PLAN, a[3].out.scaling = TEGROUP_SCALING_TENSOR, UNSUPPORTED, "arguments.out.scaling", 3);
    NO(PLAN, a[3].out.ld = WIDTH + 1, LAYOUT, "arguments.out.ld", 3);
    NO(PLAN, k->desc.space = TEGROUP_SPACE_DEVICE, UNSUPPORTED, "input.shape.row_sizes.space", 1);
    NO(PLAN, a[6].grad_input.shape.rows++, SHAPE, "arguments.grad_input.shape.rows", 0);
    NO(PLAN, memset(&k->desc.grad_output, 0, sizeof k->desc.grad_output), COMBINATION, "arguments.grad_input", 0);
    NO(PLAN, memset(&k->desc.grad_output, 0, sizeof(tegroup_tensor));
       memset(&a[6].grad_input, 0, sizeof(tegroup_tensor)), COMBINATION, "arguments.grad_row_scale", 1);
    NO(PLAN, a[1].grad_row_scale.shape.cols = 2, SHAPE, "arguments.grad_row_scale.shape.cols", 5);
    NO(PLAN, a[1].row_scale_dtype = TEGROUP_DTYPE_BF16, DTYPE, "arguments.row_scale_dtype", 5);
    free(before);
    free(k);
}

/* Enums out of range, below and above: VALUE, and the number that came. */
#define NO_ENUM(lvalue, type, last, name, op)                                                                          \
    do {                                                                                                               \
        NO(PLAN, lvalue = (type)-1, VALUE, name, op);                                                                  \
        ASSERT_EQ(k->error.got, -1);                                                                                   \
        NO(PLAN, lvalue = (type)((last) + 1), VALUE, name, op);                                                        \
        ASSERT_EQ(k->error.expected, (int64_t)(last));                                                                 \
        ASSERT_EQ(k->error.got, (int64_t)(last) + 1);                                                                  \
    } while (0)
#define NO_DTYPE(lvalue, name, op) NO_ENUM(lvalue, tegroup_dtype, TEGROUP_DTYPE_COUNT - 1, name, op)

TEST(chain, refuses_every_enum) {
    rng r = rng_seed(8013);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    tegroup_chain_plan *before = (tegroup_chain_plan *)malloc(sizeof *before);
    NO_ENUM(k->desc.space, tegroup_space, TEGROUP_SPACE_DEVICE, "space", -1);
    NO_ENUM(k->desc.options.compute, tegroup_compute, TEGROUP_COMPUTE_FAST_ACCUM, "options.compute", -1);
    NO_ENUM(k->desc.options.backend, tegroup_backend, TEGROUP_BACKEND_COUNT - 1, "options.backend", -1);
    NO_ENUM(k->desc.options.check_level, tegroup_check_level, TEGROUP_CHECK_DEEP, "options.check_level", -1);
    NO_DTYPE(k->desc.input.dtype, "input.dtype", -1);
    NO_DTYPE(k->desc.grad_output.dtype, "grad_output.dtype", -1);
    NO_ENUM(k->ops[1].kind, tegroup_chain_kind, TEGROUP_CHAIN_USER, "ops.kind", 1);
    NO_ENUM(k->ops[1].activation, tegroup_activation, TEGROUP_ACTIVATION_IDENTITY, "activation", 1);
    NO_DTYPE(k->ops[0].weights.weight.dtype, "weight.dtype", 0);
    NO_DTYPE(k->ops[0].weights.main_grad.dtype, "main_grad.dtype", 0);
    NO_DTYPE(k->ops[4].weights.bias.dtype, "bias.dtype", 4);
    NO_DTYPE(k->ops[4].weights.bias_grad.dtype, "bias_grad.dtype", 4);
    NO_DTYPE(a[1].row_scale_dtype, "arguments.row_scale_dtype", 5);
    NO_DTYPE(a[2].row_scale_dtype, "arguments.row_scale_dtype", 4); /* of an op that takes none */
    NO_DTYPE(a[3].out.dtype, "arguments.out.dtype", 3);
    NO_DTYPE(a[0].out.dtype, "arguments.out.dtype", 6);
    NO_DTYPE(a[1].grad_input.dtype, "arguments.grad_input.dtype", 5);
    NO_DTYPE(a[1].grad_row_scale.dtype, "arguments.grad_row_scale.dtype", 5);
    free(before);
    free(k);
}

/* What an op gives can be addressed in F16, its gradient in the input's F64 cannot. */
TEST(chain, gradients_must_be_addressable) {
    rng r = rng_seed(8012);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    all_kinds_make(k, 1, &r);
    k->ops[0] = k->ops[1] = k->ops[3]; /* the caller's */
    k->ops[0].cols = INT64_C(1) << 30;
    k->ops[1].cols = 1;
    k->desc.op_count = k->desc.argument_count = 2;
    memset(k->arguments, 0, sizeof k->arguments);
    k->desc.input.shape.rows = k->desc.grad_output.shape.rows = INT64_C(1) << 31;
    k->desc.input.shape.cols = k->desc.grad_output.shape.cols = 1;
    for (int i = 0; i < 2; i++) {
        k->arguments[i].op = i;
        k->arguments[i].out = k->desc.input;
        k->arguments[i].out.shape.cols = k->ops[i].cols;
    }
    k->arguments[0].out.dtype = TEGROUP_DTYPE_F16;
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_ERROR_OVERFLOW);
    ASSERT_STREQ("input.shape.rows", k->error.field);
    memset(&k->desc.grad_output, 0, sizeof k->desc.grad_output);
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
    problem_release(&k->rows);
    free(k);
}

/* A chain of an older version is as one of today that is 0 beyond. */
TEST(chain, older_structs) {
    rng r = rng_seed(8010);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    tegroup_chain_plan *plans = (tegroup_chain_plan *)malloc(2 * sizeof *plans);
    all_kinds_make(k, 1, &r);
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
    for (size_t cut = 16; cut < sizeof k->desc; cut += 8)
        for (int call = 0; call < 4; call++) {
            tegroup_error error[2];
            tegroup_status status[2];
            tegroup_chain_verdict verdicts[2][TEGROUP_CHAIN_MAX_OPS];
            memset(error, 0, sizeof error);
            memset(plans, 0, 2 * sizeof *plans);
            memset(verdicts, 0, sizeof verdicts);
            for (int older = 0; older < 2; older++) {
                tegroup_chain_desc d = k->desc;
                memset((char *)&d + cut, older ? 0xA5 : 0, sizeof d - cut);
                if (older) d.struct_size = cut;
                if (call == 0) status[older] = tegroup_chain_plan_make(&d, NULL, &plans[older], &error[older]);
                if (call == 1) status[older] = tegroup_chain_explain(&d, verdicts[older], &error[older]);
                if (call == 2) status[older] = tegroup_chain_forward(&k->plan, &d, NULL, &error[older]);
                if (call == 3) status[older] = tegroup_chain_backward(&k->plan, &d, NULL, &error[older]);
            }
            ASSERT_EQ(status[0], status[1]);
            ASSERT_EQ(memcmp(&error[0], &error[1], sizeof error[0]), 0);
            ASSERT_EQ(memcmp(&plans[0], &plans[1], sizeof plans[0]), 0);
            ASSERT_EQ(memcmp(verdicts[0], verdicts[1], sizeof verdicts[0]), 0);
        }
    problem_release(&k->rows);
    free(plans);
    free(k);
}

/* A linear, an activation and a linear are a grouped MLP wherever they stand in a chain. */
TEST(chain, fuses_anywhere) {
    rng r = rng_seed(8014);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    for (int before = 0; before < 4; before++) { /* so many biases */
        all_kinds_make(k, 0, &r);
        tegroup_chain_op op[3];
        memcpy(op, k->ops, sizeof op);
        memset(k->ops, 0, sizeof k->ops);
        memset(k->arguments, 0, sizeof k->arguments);
        for (int i = 0; i < before; i++) {
            k->ops[i].kind = TEGROUP_CHAIN_BIAS;
            k->ops[i].weights.bias = uniform(1, 5, &r);
        }
        memcpy(&k->ops[before], op, sizeof op);
        k->desc.op_count = before + 3;
        k->desc.argument_count = 1;
        k->arguments[0].op = before + 2;
        k->arguments[0].out = rows_of(k, WIDTH);
        ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
        ASSERT_EQ(k->plan.fused, 1u << before);
        problem_release(&k->rows);
    }
    free(k);
}

/* A chain without rows needs no memory for any. */
TEST(chain, no_rows) {
    rng r = rng_seed(8015);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    all_kinds_make(k, 0, &r);
    int64_t none[EXPERTS] = {0, 0, 0};
    k->rows.a.tensor.shape.rows = 0;
    k->rows.a.tensor.shape.row_sizes = tegroup_sizes_of(none, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    k->rows.a.tensor.data = NULL;
    k->desc.input = k->rows.a.tensor;
    k->desc.op_count = k->desc.argument_count = 1;
    memset(k->arguments, 0, sizeof k->arguments);
    k->arguments[0].out = tegroup_tensor_of(k->desc.input.shape, 6, TEGROUP_DTYPE_F64, NULL);
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
    ASSERT_EQ(tegroup_chain_forward(&k->plan, &k->desc, NULL, &k->error), TEGROUP_OK);
    problem_release(&k->rows);
    free(k);
}

/* Values between its ops then have no bytes, and the same place in what is saved and in the workspace: they do not
 * overlap. */
TEST(chain, linear_ops_without_rows) {
    static float weights[2][4][4], gradients[3][2][4][4], row[4];
    const int64_t counts[2] = {0, 0};
    const tegroup_sizes sizes = tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    tegroup_shape rows = tegroup_shape_of(2, 0, 4, sizes);
    tegroup_chain_argument last;
    tegroup_chain_op ops[3];
    tegroup_chain_desc desc;
    tegroup_chain_plan plan;
    tegroup_layout layout;
    void *mark = guards_mark();
    ASSERT_EQ(tegroup_snapshot_layout(&rows, &layout, NULL), TEGROUP_OK);
    ASSERT_EQ(tegroup_shape_prepare(&rows, guarded(layout.total_bytes), layout.total_bytes, NULL, NULL), TEGROUP_OK);
    memset(&desc, 0, sizeof desc), memset(ops, 0, sizeof ops), memset(&last, 0, sizeof last);
    for (int i = 0; i < 3; i++) {
        ops[i].kind = TEGROUP_CHAIN_LINEAR;
        ops[i].weights.weight = tegroup_tensor_uniform(2, 4, 4, TEGROUP_DTYPE_F32, weights);
        ops[i].weights.main_grad = tegroup_tensor_uniform(2, 4, 4, TEGROUP_DTYPE_F32, gradients[i]);
    }
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    desc.ops = ops, desc.op_count = 3;
    last.op = 2;
    last.out = tegroup_tensor_of(rows, 4, TEGROUP_DTYPE_F32, row);
    desc.arguments = &last, desc.argument_count = 1;
    desc.input = desc.grad_output = tegroup_tensor_of(rows, 4, TEGROUP_DTYPE_F32, row);
    ASSERT_EQ(tegroup_chain_plan_make(&desc, NULL, &plan, NULL), TEGROUP_OK);
    desc.saved = guarded(4096), desc.saved_bytes = 4096;
    desc.options.workspace = guarded(plan.workspace_bytes + 1), desc.options.workspace_bytes = plan.workspace_bytes;
    gradients[0][1][2][3] = 5;
    ASSERT_EQ(tegroup_chain_forward(&plan, &desc, NULL, NULL), TEGROUP_OK);
    ASSERT_EQ(tegroup_chain_backward(&plan, &desc, NULL, NULL), TEGROUP_OK);
    ASSERT_EQ(gradients[0][1][2][3], 0); /* a sum over no rows */
    guards_release(mark);
}

/* A value of no columns has no memory, so what comes after it in `saved` begins where it does, and shares nothing with
 * it. */
TEST(chain, values_without_columns) {
    static float weights[3][2][4][4], biases[2][4], x[3][3], y[3];
    static const int64_t widths[4] = {3, 0, 4, 1};
    const int64_t counts[2] = {2, 1};
    tegroup_shape rows = tegroup_shape_of(2, 3, 3, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    tegroup_chain_argument last = {.op = 2};
    tegroup_chain_op ops[3];
    tegroup_chain_desc desc;
    tegroup_chain_plan plan;
    tegroup_layout layout;
    void *mark = guards_mark();
    ASSERT_EQ(tegroup_snapshot_layout(&rows, &layout, NULL), TEGROUP_OK);
    ASSERT_EQ(tegroup_shape_prepare(&rows, guarded(layout.total_bytes), layout.total_bytes, NULL, NULL), TEGROUP_OK);
    memset(&desc, 0, sizeof desc), memset(ops, 0, sizeof ops);
    for (int i = 0; i < 3; i++) {
        ops[i].kind = TEGROUP_CHAIN_LINEAR;
        ops[i].weights.weight = tegroup_tensor_uniform(2, widths[i + 1], widths[i], TEGROUP_DTYPE_F32, weights[i]);
    }
    ops[1].weights.bias = tegroup_tensor_uniform(2, 1, 4, TEGROUP_DTYPE_F32, biases);
    for (int j = 0; j < 4; j++) { /* of weights [2][1][4] the second group's lie behind the first's */
        biases[0][j] = (float)(j + 1), biases[1][j] = (float)-j;
        weights[2][0][0][j] = (float)(j + 1), weights[2][0][1][j] = (float)(2 - j);
    }
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    desc.ops = ops, desc.op_count = 3;
    last.out = tegroup_tensor_of(rows, 1, TEGROUP_DTYPE_F32, y);
    desc.arguments = &last, desc.argument_count = 1;
    desc.input = tegroup_tensor_of(rows, 3, TEGROUP_DTYPE_F32, x);
    ASSERT_EQ(tegroup_chain_plan_make(&desc, NULL, &plan, NULL), TEGROUP_OK);
    desc.saved = guarded(plan.saved_bytes + 1), desc.saved_bytes = plan.saved_bytes;
    desc.options.workspace = guarded(plan.workspace_bytes + 1), desc.options.workspace_bytes = plan.workspace_bytes;
    ASSERT_EQ(tegroup_chain_forward(&plan, &desc, NULL, NULL), TEGROUP_OK);
    ASSERT_EQ(y[0], 1 + 4 + 9 + 16);
    ASSERT_EQ(y[1], y[0]);
    ASSERT_EQ(y[2], 0 * 2 - 1 * 1 - 2 * 0 + 3 * 1);
    guards_release(mark);
}

TEST(chain, keeps_buffers_apart) {
    rng r = rng_seed(8008);
    all_kinds *k = (all_kinds *)malloc(sizeof *k);
    tegroup_chain_plan *before = (tegroup_chain_plan *)malloc(sizeof *before);
    NO(FORWARD, a[0].out.data = a[3].out.data, OVERLAP, "arguments.out.data", 3);
    NO(FORWARD, a[0].out.data = k->ops[0].weights.weight.data, OVERLAP, "arguments.out.data", 6);
    NO(FORWARD, a[0].out.data = k->ops[0].weights.bias.data, OVERLAP, "arguments.out.data", 6);
    NO(FORWARD, a[3].out.data = k->desc.saved, OVERLAP, "arguments.out.data", 3);
    NO(FORWARD, a[0].out.data = (void *)(uintptr_t)a[1].row_scale, OVERLAP, "arguments.out.data", 6);
    NO(FORWARD, a[3].out.data = k->rows.a.snapshot, OVERLAP, "arguments.out.data", 3); /* a USER's */
    NO(FORWARD, a[3].out.data = copied_snapshot(k); a[1].snapshot = a[3].out.data, OVERLAP, "arguments.out.data", 3); /* a later op's */
    NO(FORWARD, a[1].snapshot = inside(k, k->desc.saved), OVERLAP, "saved", -1);
    NO(BACKWARD, a[1].snapshot = inside(k, k->desc.options.workspace), OVERLAP, "options.workspace", -1);
    NO(BACKWARD, a[6].grad_input.data = copied_snapshot(k); a[0].snapshot = a[6].grad_input.data, OVERLAP, "arguments.grad_input.data", 0);
    NO(BACKWARD, list_of(&k->ops[0].weights.main_grad, EXPERTS); ((void **)(uintptr_t)k->ops[0].weights.main_grad.pointers)[1] = k->ops[6].weights.weight.data; list_planned(k), OVERLAP, "main_grad.data", 0);
    NO(FORWARD, list_of(&k->ops[6].weights.weight, EXPERTS); ((void **)(uintptr_t)k->ops[6].weights.weight.pointers)[2] = a[3].out.data; list_planned(k), OVERLAP, "arguments.out.data", 3);
    NO(FORWARD, list_of(&k->ops[6].weights.weight, EXPERTS); a[3].out.data = (void *)(uintptr_t)k->ops[6].weights.weight.pointers; list_planned(k), OVERLAP, "arguments.out.data", 3);
    NO(FORWARD, list_of(&k->ops[6].weights.weight, EXPERTS); list_planned(k); k->ops[6].weights.weight.pointers = (void *const *)memcpy(k->desc.saved, k->ops[6].weights.weight.pointers, EXPERTS * sizeof(void *)), OVERLAP, "saved", -1);
    NO(BACKWARD, a[1].grad_row_scale.data = a[3].out.data, OVERLAP, "arguments.grad_row_scale.data", 5);
    NO(BACKWARD, a[6].grad_input.data = a[3].out.data, OVERLAP, "arguments.grad_input.data", 0);
    NO(BACKWARD, k->ops[0].weights.main_grad.data = k->ops[6].weights.weight.data, OVERLAP, "main_grad.data", 0);
    all_kinds_make(k, 1, &r); /* what the last op gave is nobody's to read in backward */
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
    k->arguments[1].grad_row_scale.data = k->arguments[0].out.data;
    ASSERT_EQ(BACKWARD, TEGROUP_OK);
    problem_release(&k->rows);
    /* the BIAS works in place on what the USER gave, which what lies in saved before it does not change */
    all_kinds_make(k, 0, &r);
    k->arguments[2].out = k->arguments[3].out;
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
    ASSERT_EQ(FORWARD, TEGROUP_OK);
    problem_release(&k->rows);
    all_kinds_make(k, 1, &r); /* what one direction does not touch may lie anywhere */
    memset(&k->arguments[6].grad_input, 0, sizeof(tegroup_tensor));
    memset(&k->arguments[5].grad_row_scale, 0, sizeof(tegroup_tensor));
    k->desc.unfused = 1;
    ASSERT_EQ(all_kinds_plan(k), TEGROUP_OK);
    const tegroup_mlp_weights weights = k->ops[4].weights;
    k->ops[4].weights.bias_grad.data = k->ops[0].weights.weight.data;
    ASSERT_EQ(FORWARD, TEGROUP_OK);
    k->ops[4].weights = weights;
    k->ops[0].weights.weight.data = k->ops[0].weights.main_grad.data;
    ASSERT_EQ(BACKWARD, TEGROUP_OK);
    problem_release(&k->rows);
    free(before);
    free(k);
}

TEST_MAIN()
