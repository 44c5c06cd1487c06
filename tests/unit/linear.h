/* Random grouped linear layers for the unit tests and the GPU suite: three problems of support.h that share operands, so that
 * its references, bounds and guards serve. Include after support.h. */
#ifndef TEGROUP_TESTS_LINEAR_H
#define TEGROUP_TESTS_LINEAR_H

/* What one layer is made of, in the words of the combinations below. */
typedef struct choice {
    int lists;      /* weights, biases and their gradients: 0 one tensor, 1 pointers                 */
    int gradients;  /* 0 overwrite, 1 accumulate into the weights' type, 2 accumulate into F32       */
    int delayed;    /* 1 wgrad from a copy in which only what it reads still has an address; 2 that, captured */
    int bias;       /* 0 none, 1 plain, 2 scaled by row                                              */
    int outputs;    /* bit 0 out, bit 1 dgrad_out                                                    */
    int routing;
    tegroup_tail tail;
    int transposed; /* 1: weights are [groups, k, n]; in an MLP bit 0 fc1's, bit 1 fc2's */
    int gather;     /* bit 0: rows of input are picked by an index, bit 1: those of grad_output */
} choice;

/* The bits that the backend under test can have; 4: none beside a bias that is scaled by row, whose gradient has the bias for weights. */
static int can_gather = 3;

/* A layer's product as the problem that it is where weights are transposed: forward and dgrad change places, as n and k do, and
 * dY is a wgrad's b. */
SUPPORT spec laid_out(spec s, int transposed) {
    const int64_t n = s.n;
    if (!transposed) return s;
    s.n = s.k;
    s.k = n;
    if (s.op == TEGROUP_OP_WGRAD) s.bias_of_b = s.bias;
    else s.op = s.op == TEGROUP_OP_FORWARD ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD;
    return s;
}
SUPPORT void wgrad_operands(problem *w, const grid *dy, const grid *x, int transposed) {
    w->a = transposed ? *x : *dy;
    w->b = transposed ? *dy : *x;
}

enum { GROUPS = 4, ROUTINGS = 5 };
static const int64_t routings[ROUTINGS][GROUPS] = {{6, 6, 6, 6}, {14, 5, 3, 1}, {0, 9, 0, 4}, {0, 0, 0, 0}, {0, 0, 1, 0}};

typedef struct layer {
    int64_t m[GROUPS];
    problem f, d, w;
    tegroup_linear_desc desc;
    tegroup_linear_plan plan;
    tegroup_error error;
} layer;

/* Beside F32, weights and biases are of any type up to it; gradients of weights have theirs. */
SUPPORT tegroup_dtype random_weights(rng *r, tegroup_dtype dtype) {
    static const tegroup_dtype narrow[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16};
    return dtype == TEGROUP_DTYPE_F32 ? narrow[rng_int(r, 0, 2)] : dtype;
}

/* dtype: of rows. aligned: rows of whole 16 bytes, as some backends need them; else n and k are odd */
SUPPORT void layer_make(layer *l, const choice *c, tegroup_dtype dtype, int aligned, rng *r) {
    const tegroup_dtype weights = random_weights(r, dtype);
    spec s, t;
    memset(l, 0, sizeof *l);
    memset(&s, 0, sizeof s);
    s.op = TEGROUP_OP_FORWARD;
    s.groups = GROUPS;
    s.n = aligned ? 24 : 13;
    s.k = aligned ? 16 : 11;
    s.aligned = aligned;
    s.encoding = (tegroup_encoding)rng_int(r, TEGROUP_ENCODING_COUNTS, TEGROUP_ENCODING_ENDS);
    for (int g = 0; g < GROUPS; g++) l->m[g] = routings[c->routing][g];
    if (s.encoding == TEGROUP_ENCODING_COUNTS && l->m[0] == 0 && rng_chance(r, 50)) l->m[0] = -1; /* skipped */
    s.m = l->m;
    if (s.encoding == TEGROUP_ENCODING_COUNTS) s.place = (place_kind)rng_int(r, 0, 3);
    s.alignment = 4;
    s.tail_rows = rng_int(r, 0, 5);
    s.in = dtype;
    s.weights = weights;
    s.out = dtype != TEGROUP_DTYPE_F64 && rng_chance(r, 50) ? TEGROUP_DTYPE_F32 : weights;
    s.bias = c->bias > 0;
    s.bias_dtype = weights;
    s.row_scale_dtype = c->bias == 2 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_UNSET;
    s.lists = c->lists ? 2 | 16 : 0;
    s.threads = 1;
    s.seed = rng_next(r);
    t = laid_out(s, c->transposed);
    t.gather = c->gather & 1;
    problem_make(&l->f, &t);
    t = s;
    t.op = TEGROUP_OP_DGRAD;
    t.gather = c->gather >> 1 & 1;
    t.bias = 0;
    t.row_scale_dtype = TEGROUP_DTYPE_UNSET;
    t = laid_out(t, c->transposed);
    problem_make(&l->d, &t);
    t = s;
    t.op = TEGROUP_OP_WGRAD;
    t.lists = c->lists ? 8 | 16 : 0;
    t.c = c->gradients > 0 ? C_ACCUMULATE : C_NONE;
    t.out = c->gradients == 2 ? TEGROUP_DTYPE_F32 : weights;
    t.bias_dtype = t.out;
    t = laid_out(t, c->transposed);
    problem_make(&l->w, &t);
    grid_fill(&l->d, &l->d.a, 'g', FILL_NORMAL, 1); /* not the numbers of X */
    guarded_remember(l->d.a.tensor.data);
    l->d.b = l->f.b;
    wgrad_operands(&l->w, &l->d.a, &l->f.a, c->transposed);
    l->w.row_scale = l->f.row_scale;

    tegroup_linear_desc *desc = &l->desc;
    desc->struct_size = sizeof *desc;
    desc->space = TEGROUP_SPACE_HOST;
    desc->weight = l->f.b.tensor;
    desc->input = l->f.a.tensor;
    desc->grad_output = l->d.a.tensor;
    desc->main_grad = l->w.d.tensor;
    desc->gather_input = l->f.a.gather;
    desc->gather_grad_output = l->d.a.gather;
    desc->weight_layout = c->transposed ? TEGROUP_WEIGHT_IN_OUT : TEGROUP_WEIGHT_OUT_IN;
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
            const tegroup_dtype scaled_by = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
            void *data = elements_new(scaled_by, l->f.capacity, 0);
            desc->grad_row_scale = tegroup_tensor_of(l->d.a.tensor.shape, 1, scaled_by, data);
            guarded_remember(desc->grad_row_scale.data);
        }
    }
    tegroup_tensor *rows[] = {&desc->input, &desc->out, &desc->grad_output, &desc->dgrad_out, &desc->grad_row_scale};
    for (int i = 0; i < 5; i++)
        if (rows[i]->dtype != TEGROUP_DTYPE_UNSET) rows[i]->shape.snapshot = l->f.a.snapshot;
    desc->options.compute = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_COMPUTE_F64 : TEGROUP_COMPUTE_F32;
    desc->options.threads = 1;
    desc->options.check_level = rng_chance(r, 25) ? TEGROUP_CHECK_DEEP : TEGROUP_CHECK_HOST;
}

SUPPORT void forget(tegroup_tensor *t) {
    t->data = NULL;
    t->pointers = NULL;
}

/* What a delayed wgrad is given: only what it reads and writes still has an address. */
SUPPORT tegroup_linear_desc layer_saved(const tegroup_linear_desc *desc) {
    tegroup_linear_desc saved = *desc;
    tegroup_tensor *done[] = {&saved.weight, &saved.bias, &saved.out, &saved.dgrad_out, &saved.grad_row_scale};
    for (int i = 0; i < 5; i++) forget(done[i]);
    return saved;
}

SUPPORT int owned(const problem *p, int64_t row) {
    for (int32_t g = 0; g < p->s.groups; g++)
        if (row >= p->start[g] && row < p->start[g] + p->d.rows[g]) return 1;
    return 0;
}

/* Rows that no group owns hold what the tail says; they are then made to hold what they did. */
SUPPORT int64_t wrong_tail(const problem *p, tegroup_tail tail) {
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
SUPPORT verdict compare_row_scale(const layer *l) {
    verdict v = {0, 0, 0, 0, 0};
    const tegroup_tensor *t = &l->desc.grad_row_scale;
    const grid *dy = &l->d.a, *bias = &l->f.bias;
    double u = t->dtype == TEGROUP_DTYPE_F64 ? 0x1p-53 : SUPPORT_SUM_ROUNDING;
    for (int32_t g = 0; g < GROUPS && t->dtype != TEGROUP_DTYPE_UNSET; g++)
        for (int64_t i = 0; i < dy->rows[g]; i++) {
            double sum = 0, size = 0;
            for (int64_t j = 0; j < dy->tensor.shape.cols; j++) {
                sum += value_at(dy, g, i, j) * value_at(bias, g, 0, j);
                size += fabs(value_at(dy, g, i, j) * value_at(bias, g, 0, j));
            }
            compare(&v, load(t->dtype, t->data, l->f.start[g] + i), sum, (double)(dy->tensor.shape.cols + 4) * u * size + u * fabs(sum) * (1 + 0x1p-6), 0);
            size_t at = (size_t)(l->f.start[g] + i) * size_of(t->dtype);
            memcpy((unsigned char *)t->data + at, guarded_find(t->data)->copy + at, size_of(t->dtype));
        }
    return v;
}

/* of the layers since check_every_layer or check_every_mlp began */
static double layers_worst;
static int64_t layers_elements;

SUPPORT int within(verdict v) {
    if (v.worst > layers_worst) layers_worst = v.worst;
    layers_elements += v.count;
    return v.worst <= 1;
}

/* Plans, prepares and runs a layer, by the CPU or by a GPU; what is wrong it prints. */
typedef tegroup_status layer_runner(layer *l, int delayed);

/* One layer from plan to comparison. "" or what is wrong. */
SUPPORT const char *check_layer(const choice *c, tegroup_dtype dtype, int aligned, rng *r, layer_runner *run) {
    const char *wrong = "";
    layer *l = (layer *)malloc(sizeof *l);
    layer_make(l, c, dtype, aligned, r);
    problem_reference(&l->f);
    problem_reference(&l->d);
    problem_reference(&l->w);
    if (run(l, c->delayed) != TEGROUP_OK) wrong = "refused";
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
        fprintf(stderr, "%s: lists %d gradients %d delayed %d bias %d outputs %d routing %d tail %d transposed %d gather %d dtype %d\n", wrong, c->lists, c->gradients,
                c->delayed, c->bias, c->outputs, c->routing, (int)c->tail, c->transposed, c->gather, (int)dtype);
    problem_release(&l->f); /* the oldest of the three */
    free(l);
    return wrong;
}

/* A third of the layers have rows that are picked. */
SUPPORT int random_picks(rng *r, const choice *c) {
    const int gather = rng_chance(r, 33) ? (int)rng_int(r, 1, 3) & can_gather : 0;
    return can_gather & 4 && c->bias == 2 ? gather & 1 : gather;
}

/* Every step-th combination once, for runners that take delays 0 .. delays - 1. The number of layers that are right, up to the
 * first wrong. */
SUPPORT int check_every_layer(int delays, int aligned, int step, uint64_t seed, layer_runner *run) {
    rng r = rng_seed(seed);
    choice c;
    int right = 0, number = 0;
    layers_worst = 0;
    layers_elements = 0;
    for (c.lists = 0; c.lists < 2; c.lists++)
        for (c.gradients = 0; c.gradients < 3; c.gradients++)
            for (c.delayed = 0; c.delayed < delays; c.delayed++)
                for (c.bias = 0; c.bias < 3; c.bias++)
                    for (c.outputs = 1; c.outputs < 4; c.outputs++)
                        for (c.routing = 0; c.routing < ROUTINGS; c.routing++)
                            for (int tail = TEGROUP_TAIL_KEEP; tail <= TEGROUP_TAIL_POISON; tail++) {
                                c.tail = (tegroup_tail)tail;
                                if (number++ % step != 0) continue;
                                c.transposed = rng_chance(&r, 50);
                                c.gather = random_picks(&r, &c);
                                if (check_layer(&c, right % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16, aligned, &r, run)[0] != 0) return right;
                                right++;
                            }
    return right;
}
enum { COMBINATIONS = 2 * 3 * 3 * 3 * ROUTINGS * 3 }; /* times delays */

#endif
