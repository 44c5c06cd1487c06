/* Random grouped MLPs for the unit tests and the GPU suite: six problems of support.h, one a product, that share operands as the
 * products of the MLP do. Every stage is held against FP64 of what the stage before stored, so that each bound is that of one
 * product or of one activation. */
#ifndef TEGROUP_TESTS_MLP_H
#define TEGROUP_TESTS_MLP_H

#include "linear.h"
#include "activations.h"

/* choice's outputs may be 0 here: no out and no dgrad_out, gradients of the weights alone. delayed 2: captured; on the CPU the
 * same calls once more over everything reset, which is what a replay is. */
typedef struct mlp_choice {
    choice c;
    int fused; /* 1: REQUIRED, which must run or be refused by design; then AUTO. 0: NEVER */
    tegroup_activation activation; /* UNSET = any */
    int apart; /* 1: half of those that can have gates and ups as two weights. 0: none */
} mlp_choice;

typedef struct mlp {
    int64_t m[GROUPS];
    problem f1, f2, d1, d2, w1, w2; /* forward, dgrad and wgrad of fc1 and fc2; d2.d stands for what is in the workspace */
    void *mark;
    float *row_scale; /* NULL = none */
    int forward;      /* 1: forward runs; 0: what it would have saved is given */
    int apart;        /* 1: gates and ups have been given weights of their own */
    tegroup_mlp_desc desc;
    tegroup_mlp_plan plan;
    tegroup_error error;
} mlp;

typedef struct mlp_sizes { int64_t k, h, n, tail_rows; } mlp_sizes;
/* -1: any tail. Eights: also where operands are contiguous, as a chain's are. */
static const mlp_sizes mlp_odd = {11, 7, 13, -1}, mlp_aligned = {12, 24, 12, -1}, mlp_eights = {16, 24, 40, -1};

SUPPORT void refill(problem *p, grid *t, char role) {
    grid_fill(p, t, role, FILL_NORMAL, 1);
    for (int32_t g = 0; g < (t->tensor.pointers != NULL ? GROUPS : 1); g++)
        guarded_remember(t->tensor.pointers != NULL ? t->tensor.pointers[g] : t->tensor.data);
}
SUPPORT void empty(grid *t) {
    poison(t->tensor.data, guarded_find(t->tensor.data)->bytes);
    guarded_remember(t->tensor.data);
}

/* ---- gates and ups apart ---- */

enum { MLP_WEIGHT, MLP_BIAS, MLP_MAIN_GRAD, MLP_BIAS_GRAD, MLP_PARTS };
SUPPORT tegroup_tensor *mlp_part_of(tegroup_mlp_weights *w, int i) {
    tegroup_tensor *all[MLP_PARTS] = {&w->weight, &w->bias, &w->main_grad, &w->bias_grad};
    return all[i];
}
/* The grid of what fc1 has where gates and ups are one. */
SUPPORT grid *mlp_whole(mlp *l, int i) {
    grid *all[MLP_PARTS] = {&l->f1.b, &l->f1.bias, &l->w1.d, &l->w1.bias};
    return all[i];
}
SUPPORT unsigned char *mlp_part_at(const tegroup_tensor *t, int32_t g) {
    const int64_t ld = t->ld > 0 ? t->ld : t->shape.cols, stride = t->group_stride > 0 ? t->group_stride : t->shape.rows * ld;
    return t->pointers != NULL ? (unsigned char *)t->pointers[g] : (unsigned char *)t->data + g * stride * (int64_t)size_of(t->dtype);
}
/* Copies between the gates' or the ups' tensor and their half of the whole. */
SUPPORT void mlp_part_copy(const tegroup_tensor *part, grid *whole, int by_cols, int up, int back) {
    const size_t each = size_of(part->dtype), bytes = (size_t)part->shape.cols * each;
    const int64_t ld = part->ld > 0 ? part->ld : part->shape.cols;
    for (int32_t g = 0; g < GROUPS; g++)
        for (int64_t i = 0; i < part->shape.rows; i++) {
            const int64_t row = by_cols || !up ? i : part->shape.rows + i, col = by_cols && up ? part->shape.cols : 0;
            unsigned char *in = mlp_part_at(part, g) + (size_t)(i * ld) * each, *of = whole->at[g] + (size_t)(row * whole->ld[g] + col) * each;
            memcpy(back ? of : in, back ? in : of, bytes);
        }
}
SUPPORT int mlp_by_cols(const mlp *l, int i) { return i == MLP_BIAS || i == MLP_BIAS_GRAD || l->desc.fc1.weight_layout == TEGROUP_WEIGHT_IN_OUT; }

/* Gives gates and ups what fc1 has, each in buffers of its own; where operands lie is by chance. */
SUPPORT void mlp_part(mlp *l, rng *r) {
    const int aligned = l->f1.s.aligned;
    l->apart = 1;
    for (int i = 0; i < MLP_PARTS; i++) {
        tegroup_tensor *whole = mlp_part_of(&l->desc.fc1, i), one = *whole;
        const int by_cols = mlp_by_cols(l, i);
        if (one.dtype == TEGROUP_DTYPE_UNSET) continue;
        if (by_cols) one.shape.cols /= 2;
        else one.shape.rows /= 2;
        one.ld = one.group_stride = 0;
        if (i == MLP_WEIGHT && aligned) one.ld = (one.shape.cols + 7) / 8 * 8;
        if (i == MLP_WEIGHT && rng_chance(r, 50)) one.ld = (one.ld > 0 ? one.ld : one.shape.cols) + (aligned ? 8 : 3);
        for (int up = 0; up < 2; up++) {
            const int64_t ld = one.ld > 0 ? one.ld : one.shape.cols, elements = one.shape.rows * ld;
            tegroup_tensor *to = mlp_part_of(up ? &l->desc.fc1_up : &l->desc.fc1, i);
            *to = one;
            if (one.pointers != NULL) {
                void **pointers = (void **)guarded(GROUPS * sizeof(void *));
                for (int g = 0; g < GROUPS; g++) pointers[g] = elements_new(one.dtype, elements, aligned);
                to->pointers = pointers;
            } else {
                if (i == MLP_WEIGHT && rng_chance(r, 50)) to->group_stride = elements + (aligned ? 8 : 5);
                to->data = elements_new(one.dtype, GROUPS * (to->group_stride > 0 ? to->group_stride : elements), aligned);
            }
            mlp_part_copy(to, mlp_whole(l, i), by_cols, up, 0);
            for (int32_t g = 0; g < (to->pointers != NULL ? GROUPS : 1); g++) guarded_remember(to->pointers != NULL ? to->pointers[g] : to->data);
        }
    }
    l->desc.fc1_up.weight_layout = l->desc.fc1.weight_layout;
}

/* Puts the gradients of gates and ups together, where the reference looks for them. */
SUPPORT void mlp_join(mlp *l) {
    for (int i = MLP_MAIN_GRAD; i < MLP_PARTS; i++)
        for (int up = 0; up < 2; up++) {
            const tegroup_tensor *part = mlp_part_of(up ? &l->desc.fc1_up : &l->desc.fc1, i);
            if (part->dtype == TEGROUP_DTYPE_UNSET) continue;
            mlp_part_copy(part, mlp_whole(l, i), mlp_by_cols(l, i), up, 1);
        }
}
/* They have been looked at there: what a run wrote is no disturbance. */
SUPPORT void mlp_forgive_parts(mlp *l) {
    for (int i = MLP_MAIN_GRAD; i < MLP_PARTS; i++)
        for (int up = 0; up < 2; up++) {
            const tegroup_tensor *part = mlp_part_of(up ? &l->desc.fc1_up : &l->desc.fc1, i);
            for (int32_t g = 0; part->dtype != TEGROUP_DTYPE_UNSET && g < (part->pointers != NULL ? GROUPS : 1); g++)
                guarded_remember(part->pointers != NULL ? part->pointers[g] : part->data);
        }
}

/* The gates' part of dX is rounded to dX's type before the ups' is added. */
SUPPORT void mlp_round_twice(mlp *l) {
    const int64_t k = l->desc.input.shape.cols, h = l->d1.a.tensor.shape.cols / 2;
    const int transposed = l->desc.fc1.weight_layout == TEGROUP_WEIGHT_IN_OUT;
    for (int32_t g = 0; g < GROUPS; g++)
        for (int64_t i = 0; i < l->d1.d.rows[g]; i++)
            for (int64_t j = 0; j < k; j++) {
                double sum = 0, *bound = &l->d1.bound[g][i * k + j];
                for (int64_t q = 0; q < h; q++) sum += value_at(&l->d1.a, g, i, q) * value_at(&l->d1.b, g, transposed ? j : q, transposed ? q : j);
                *bound += unit_roundoff(l->d1.d.dtype) * (fabs(sum) + *bound) * (1 + 0x1p-6) + smallest_step(l->d1.d.dtype) / 2;
                l->d1.long_sum[g][i * k + j] = 0; /* the bound is no longer a long sum's alone */
            }
}

/* ---- the MLP ---- */

static int64_t mlp_off; /* spec.off of the first layer's forward product */

/* sizes: aligned ones, h a multiple of 8, have rows of whole 16 bytes, as some backends need them. Operands' are apart by as much;
 * results are contiguous, so where they are halves n or k is rounded up to eights. m: rows of each group. */
SUPPORT void mlp_make(mlp *l, const mlp_choice *choose, tegroup_dtype dtype, mlp_sizes sizes, const int64_t *m, rng *r) {
    const choice *c = &choose->c;
    const tegroup_activation any = activations[rng_int(r, 0, ACTIVATIONS - 1)], kind = choose->activation != TEGROUP_ACTIVATION_UNSET ? choose->activation : any;
    const int first = c->transposed & 1, second = c->transposed >> 1 & 1;
    const int gated = is_gated(kind), aligned = sizes.h % 8 == 0, wide = dtype == TEGROUP_DTYPE_F64;
    const int scales = c->bias == 2 || rng_chance(r, 50), recompute = rng_chance(r, 50);
    const tegroup_dtype weights = random_weights(r, dtype);
    const tegroup_dtype stored = !wide && rng_chance(r, 25) ? TEGROUP_DTYPE_F32 : weights; /* of preactivation */
    const tegroup_dtype result = !wide && rng_chance(r, 50) ? TEGROUP_DTYPE_F32 : weights;
    const tegroup_dtype gradient = c->gradients == 2 && !wide ? TEGROUP_DTYPE_F32 : weights;
    spec s, t, u;
    if (aligned && (result != TEGROUP_DTYPE_F32 || (second && gradient != TEGROUP_DTYPE_F32))) sizes.n = (sizes.n + 7) / 8 * 8;
    if (aligned && (result != TEGROUP_DTYPE_F32 || gradient != TEGROUP_DTYPE_F32)) sizes.k = (sizes.k + 7) / 8 * 8;
    memset(l, 0, sizeof *l);
    memset(&s, 0, sizeof s);
    l->mark = guards_mark();
    l->forward = c->outputs & 1;
    memcpy(l->m, m, sizeof l->m);
    s.groups = GROUPS;
    s.aligned = s.apart = aligned;
    s.m = l->m;
    if (sizes.tail_rows < 0) {
        s.encoding = (tegroup_encoding)rng_int(r, TEGROUP_ENCODING_COUNTS, TEGROUP_ENCODING_ENDS);
        if (s.encoding == TEGROUP_ENCODING_COUNTS && m[0] == 0 && rng_chance(r, 50)) l->m[0] = -1; /* skipped */
        if (s.encoding == TEGROUP_ENCODING_COUNTS) s.place = (place_kind)rng_int(r, 0, 3);
        s.alignment = 4;
        s.tail_rows = rng_int(r, 0, 5);
    } else s.tail_rows = sizes.tail_rows;
    s.in = dtype;
    s.weights = weights;
    s.bias_dtype = weights;
    s.threads = 1;
    s.seed = rng_next(r);

    t = s; /* forward */
    t.op = TEGROUP_OP_FORWARD;
    t.lists = c->lists ? 2 | 16 : 0;
    t.bias = c->bias > 0;
    t.n = sizes.h * (gated ? 2 : 1), t.k = sizes.k, t.out = stored;
    t.off = mlp_off;
    t.gather = c->gather & 1;
    u = laid_out(t, first);
    problem_make(&l->f1, &u);
    t.off = t.gather = 0;
    t.n = sizes.n, t.k = sizes.h, t.out = result;
    t.row_scale_dtype = c->bias == 2 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_UNSET;
    u = laid_out(t, second);
    problem_make(&l->f2, &u);
    t = s; /* dgrad */
    t.op = TEGROUP_OP_DGRAD;
    t.n = sizes.h * (gated ? 2 : 1), t.k = sizes.k, t.out = result;
    u = laid_out(t, first);
    problem_make(&l->d1, &u);
    t.n = sizes.n, t.k = sizes.h, t.out = dtype;
    t.gather = c->gather >> 1 & 1;
    u = laid_out(t, second);
    problem_make(&l->d2, &u);
    t = s; /* wgrad */
    t.op = TEGROUP_OP_WGRAD;
    t.lists = c->lists ? 8 | 16 : 0;
    t.bias = c->bias > 0;
    t.c = c->gradients > 0 ? C_ACCUMULATE : C_NONE;
    t.out = t.bias_dtype = gradient;
    t.n = sizes.h * (gated ? 2 : 1), t.k = sizes.k;
    u = laid_out(t, first);
    problem_make(&l->w1, &u);
    t.n = sizes.n, t.k = sizes.h;
    t.row_scale_dtype = c->bias == 2 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_UNSET;
    u = laid_out(t, second);
    problem_make(&l->w2, &u);

    refill(&l->f2, &l->f2.b, 'w'); /* numbers of its own for each operand */
    refill(&l->f2, &l->f2.a, 'h');
    refill(&l->d2, &l->d2.a, 'g');
    if (l->forward || recompute) empty(&l->f2.a);
    if (!l->forward) refill(&l->f1, &l->f1.d, 'p');
    empty(&l->d1.a); /* grad_preactivation */
    l->d1.b = l->f1.b, l->d2.b = l->f2.b;
    wgrad_operands(&l->w1, &l->d1.a, &l->f1.a, first);
    wgrad_operands(&l->w2, &l->d2.a, &l->f2.a, second);
    l->w2.row_scale = l->f2.row_scale;
    if (scales) {
        l->row_scale = (float *)(c->bias == 2 ? l->f2.row_scale : elements_new(TEGROUP_DTYPE_F32, l->f1.capacity, aligned));
        rng values = rng_seed(s.seed ^ 99); /* so that r does not depend on the number of rows */
        for (int32_t g = 0; g < GROUPS && c->bias != 2; g++)
            for (int64_t i = 0; i < l->f1.d.rows[g]; i++) l->row_scale[l->f1.start[g] + i] = (float)rng_unit(&values);
        guarded_remember(l->row_scale);
    }

    tegroup_mlp_desc *d = &l->desc;
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    d->activation = kind;
    d->interleaved = gated && rng_chance(r, 50);
    if (has_limit(d->activation) && rng_chance(r, 50)) d->alpha = 1.25, d->limit = 2;
    d->fc1.weight = l->f1.b.tensor, d->fc2.weight = l->f2.b.tensor;
    if (first) d->fc1.weight_layout = TEGROUP_WEIGHT_IN_OUT;
    if (second) d->fc2.weight_layout = TEGROUP_WEIGHT_IN_OUT;
    d->fc1.main_grad = l->w1.d.tensor, d->fc2.main_grad = l->w2.d.tensor;
    if (c->bias > 0) {
        d->fc1.bias = l->f1.bias.tensor, d->fc2.bias = l->f2.bias.tensor;
        d->fc1.bias_grad = l->w1.bias.tensor, d->fc2.bias_grad = l->w2.bias.tensor;
    }
    d->input = l->f1.a.tensor;
    d->grad_output = l->d2.a.tensor;
    d->gather_input = l->f1.a.gather;
    d->gather_grad_output = l->d2.a.gather;
    d->preactivation = l->f1.d.tensor;
    d->activated = l->f2.a.tensor;
    d->grad_preactivation = l->d1.a.tensor;
    d->recompute = recompute;
    if (c->outputs & 1) d->out = l->f2.d.tensor, d->out_tail = c->tail;
    if (c->outputs & 2) d->dgrad_out = l->d1.d.tensor, d->dgrad_out_tail = c->tail;
    if (scales) {
        d->row_scale = l->row_scale;
        d->row_scale_dtype = TEGROUP_DTYPE_F32;
        d->fc2_bias_scaled = c->bias == 2;
        if (rng_chance(r, 75)) {
            const tegroup_dtype scaled_by = wide ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
            void *data = elements_new(scaled_by, l->f1.capacity, aligned);
            d->grad_row_scale = tegroup_tensor_of(l->f1.a.tensor.shape, 1, scaled_by, data);
            guarded_remember(d->grad_row_scale.data);
        }
    }
    tegroup_tensor *rows[] = {&d->input, &d->out, &d->grad_output, &d->dgrad_out, &d->grad_row_scale, &d->preactivation, &d->activated, &d->grad_preactivation};
    for (int i = 0; i < 8; i++)
        if (rows[i]->dtype != TEGROUP_DTYPE_UNSET) rows[i]->shape.snapshot = l->f1.a.snapshot;
    d->accumulate = c->gradients > 0;
    d->fusion = choose->fused ? TEGROUP_FUSION_REQUIRED : TEGROUP_FUSION_NEVER;
    d->options.compute = wide ? TEGROUP_COMPUTE_F64 : TEGROUP_COMPUTE_F32;
    d->options.threads = 1;
    d->options.check_level = rng_chance(r, 25) ? TEGROUP_CHECK_DEEP : TEGROUP_CHECK_HOST;
    if (choose->apart && gated && !d->interleaved && rng_chance(r, 50)) mlp_part(l, r);
}

SUPPORT void mlp_release(mlp *l) { guards_release(l->mark); }

/* What a call is given when only that which it reads and writes still has an address. */
SUPPORT tegroup_mlp_desc mlp_only(const tegroup_mlp_desc *desc, tegroup_op op) {
    tegroup_mlp_desc d = *desc;
    tegroup_tensor *forward[] = {&d.fc1_up.main_grad, &d.fc1_up.bias_grad, &d.fc1.main_grad, &d.fc1.bias_grad, &d.fc2.main_grad, &d.fc2.bias_grad, &d.grad_output, &d.dgrad_out, &d.grad_row_scale, &d.grad_preactivation};
    tegroup_tensor *dgrad[] = {&d.fc1_up.main_grad, &d.fc1_up.bias_grad, &d.fc1_up.bias, &d.fc1.main_grad, &d.fc1.bias_grad, &d.fc2.main_grad, &d.fc2.bias_grad, &d.input, &d.out, &d.fc1.bias};
    tegroup_tensor *wgrad[] = {&d.fc1_up.weight, &d.fc1_up.bias, &d.fc1.weight, &d.fc1.bias, &d.fc2.weight, &d.fc2.bias, &d.out, &d.dgrad_out, &d.grad_row_scale, &d.preactivation};
    for (int i = 0; i < 10 && op == TEGROUP_OP_FORWARD; i++) forget(forward[i]);
    for (int i = 0; i < 10 && op == TEGROUP_OP_DGRAD; i++) forget(dgrad[i]);
    for (int i = 0; i < 10 && op == TEGROUP_OP_WGRAD; i++) forget(wgrad[i]);
    if (op == TEGROUP_OP_FORWARD ? d.recompute : op == TEGROUP_OP_DGRAD && !d.recompute) forget(&d.activated);
    if (op == TEGROUP_OP_WGRAD && !d.fc2_bias_scaled) d.row_scale = NULL;
    if (op == TEGROUP_OP_DGRAD && d.dgrad_out.dtype == TEGROUP_DTYPE_UNSET) forget(&d.fc1.weight), forget(&d.fc1_up.weight);
    if (op == TEGROUP_OP_DGRAD && (!d.fc2_bias_scaled || d.grad_row_scale.dtype == TEGROUP_DTYPE_UNSET)) forget(&d.fc2.bias);
    return d;
}

/* ---- comparison ---- */

/* One element of what an activation's backward makes, stored: what it may be off by itself, and by an error of dY, in which it is
 * linear: `share` is that error over dY. */
SUPPORT double gradient_bound(real at, double share, tegroup_dtype dtype) {
    const double bound = at.bound + share * (fabs(at.want) + at.bound);
    return bound + unit_roundoff(dtype) * (fabs(at.want) + bound) * (1 + 0x1p-6) + smallest_step(dtype) / 2;
}

/* activated, grad_preactivation and grad_row_scale from what is stored of preactivation and dY. d2 has its reference. */
SUPPORT void mlp_compare_activation(const mlp *l, int device, verdict *forward, verdict *backward, verdict *scales) {
    const tegroup_mlp_desc *d = &l->desc;
    const grid *x = &l->f1.d, *y = &l->f2.a, *dx = &l->d1.a;
    const arithmetic a = arithmetic_of(x->dtype, y->dtype, device);
    const int64_t h = l->f2.a.tensor.shape.cols, n = l->f2.d.tensor.shape.cols;
    const int gated = is_gated(d->activation), wide = x->dtype == TEGROUP_DTYPE_F64;
    const double u = wide ? 0x1p-53 : 0x1p-24;
    for (int32_t g = 0; g < GROUPS; g++)
        for (int64_t i = 0; i < x->rows[g]; i++) {
            const double scale = l->row_scale != NULL ? (double)l->row_scale[l->f1.start[g] + i] : 1;
            double sum = 0, off = 0, size = 0;
            for (int64_t j = 0; j < h; j++) {
                const int64_t gate = d->interleaved ? 2 * j : j, up = d->interleaved ? 2 * j + 1 : h + j;
                const double xg = value_at(x, g, i, gate), xu = gated ? value_at(x, g, i, up) : 1;
                const double dy = l->d2.want[g][i * h + j], error = l->d2.bound[g][i * h + j];
                activation_expected e = activation_expect(d->activation, d->alpha, d->limit, a, xg, xu, scale, dy);
                const double share = dy != 0 ? error / fabs(dy) : INFINITY;
                if (l->forward || d->recompute)
                    compare(forward, value_at(y, g, i, j), e.out.want, e.out.bound + unit_roundoff(y->dtype) * (fabs(e.out.want) + e.out.bound) * (1 + 0x1p-6) + smallest_step(y->dtype) / 2, 0);
                compare(backward, value_at(dx, g, i, gate), e.grad_gate.want, gradient_bound(e.grad_gate, share, dx->dtype), 0);
                if (gated) compare(backward, value_at(dx, g, i, up), e.grad_up.want, gradient_bound(e.grad_up, share, dx->dtype), 0);
                sum += e.term.want;
                off += e.term.bound + share * (fabs(e.term.want) + e.term.bound);
                size += fabs(e.term.want) + e.term.bound;
            }
            if (d->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET) continue;
            off += (double)(h + 4) * u * size;
            if (d->fc2_bias_scaled) { /* dY . bias, added to what is stored */
                const double v = wide ? u : SUPPORT_SUM_ROUNDING;
                double more = 0, most = 0;
                for (int64_t j = 0; j < n; j++) {
                    const double term = value_at(&l->d2.a, g, i, j) * value_at(&l->f2.bias, g, 0, j);
                    more += term;
                    most += fabs(term);
                }
                off += (double)(n + 4) * v * most + 3 * v * (fabs(sum) + off);
                sum += more;
            }
            compare(scales, load(d->grad_row_scale.dtype, d->grad_row_scale.data, l->f1.start[g] + i), sum, off + unit_roundoff(d->grad_row_scale.dtype) * (fabs(sum) + off) * (1 + 0x1p-6), 0);
            const size_t each = size_of(d->grad_row_scale.dtype), at = (size_t)(l->f1.start[g] + i) * each;
            memcpy((unsigned char *)d->grad_row_scale.data + at, guarded_find(d->grad_row_scale.data)->copy + at, each);
        }
}

/* A gradient that was added to: the reference must see what was there before. */
SUPPORT void wgrad_reference(problem *p) {
    const grid *results[] = {&p->d, &p->bias};
    const int lists = p->d.tensor.pointers != NULL ? GROUPS : 1;
    unsigned char *kept[2][GROUPS];
    guarded_node *nodes[2][GROUPS];
    for (int i = 0; i < 1 + p->s.bias; i++)
        for (int g = 0; g < lists; g++) {
            const tegroup_tensor *t = &results[i]->tensor;
            guarded_node *node = nodes[i][g] = guarded_find(t->pointers != NULL ? t->pointers[g] : t->data);
            memcpy(kept[i][g] = (unsigned char *)malloc(node->bytes + 1), node->data, node->bytes);
            memcpy(node->data, node->copy, node->bytes);
        }
    problem_reference(p);
    for (int i = 0; i < 1 + p->s.bias; i++)
        for (int g = 0; g < lists; g++) {
            memcpy(nodes[i][g]->data, kept[i][g], nodes[i][g]->bytes);
            free(kept[i][g]);
        }
}

/* After a run: "" or what is wrong. Tails are then as they were before. */
SUPPORT const char *mlp_wrong(mlp *l, const choice *c, int device) {
    verdict forward = {0, 0, 0, 0, 0}, backward = forward, scales = forward;
    if (l->apart) mlp_join(l);
    if (l->forward) {
        problem_reference(&l->f1);
        problem_reference(&l->f2);
        if (!within(problem_compare(&l->f1))) return "preactivation";
        if (!within(problem_compare(&l->f2))) return "out";
        if (wrong_tail(&l->f2, c->tail) != 0) return "out's tail";
    }
    problem_reference(&l->d2);
    problem_reference(&l->d1);
    if (l->apart) mlp_round_twice(l);
    wgrad_reference(&l->w1);
    wgrad_reference(&l->w2);
    mlp_compare_activation(l, device, &forward, &backward, &scales);
    if (!within(forward)) return "activated";
    if (!within(backward)) return "grad_preactivation";
    if (!within(scales)) return "grad_row_scale";
    if (c->outputs & 2 && !within(problem_compare(&l->d1))) return "dgrad_out";
    if (c->outputs & 2 && wrong_tail(&l->d1, c->tail) != 0) return "dgrad_out's tail";
    if (!within(problem_compare(&l->w1))) return "fc1.main_grad";
    if (!within(problem_compare(&l->w2))) return "fc2.main_grad";
    if (!within(problem_compare_bias(&l->w1))) return "fc1.bias_grad";
    if (!within(problem_compare_bias(&l->w2))) return "fc2.bias_grad";
    problem *products[] = {&l->f1, &l->f2, &l->d1, &l->w1, &l->w2};
    for (int i = 0; i < 5; i++) grid_forgive(&products[i]->d, &products[i]->s);
    grid_forgive(&l->f2.a, &l->f2.s);
    grid_forgive(&l->d1.a, &l->d1.s);
    if (c->bias > 0) grid_forgive(&l->w1.bias, &l->w1.s);
    if (c->bias > 0) grid_forgive(&l->w2.bias, &l->w2.s);
    if (l->apart) mlp_forgive_parts(l);
    return problem_disturbed(&l->f1) != 0 ? "bytes changed that are no result's" : "";
}

/* Plans, prepares and runs an MLP, by the CPU or by a GPU; a failure it prints, but for a fusion that is refused. */
typedef tegroup_status mlp_runner(mlp *l, int delayed);

static int64_t mlps_refused, mlps_apart;

SUPPORT const char *check_mlp(const mlp_choice *choose, tegroup_dtype dtype, mlp_sizes sizes, int device, rng *r, mlp_runner *run) {
    const choice *c = &choose->c;
    const char *wrong = "";
    mlp *l = (mlp *)malloc(sizeof *l);
    mlp_make(l, choose, dtype, sizes, routings[c->routing], r);
    tegroup_status status = run(l, c->delayed);
    if (choose->fused && status == TEGROUP_ERROR_UNSUPPORTED && strcmp(l->error.field, "fusion") == 0) { /* by design, and nothing was written */
        int64_t changed = guards_changed();
        for (guarded_node *node = guarded_top; node != (guarded_node *)l->mark; node = node->older)
            if (!node->scratch && node->copy != NULL) changed += guarded_changed(node->data);
        mlps_refused++;
        l->desc.fusion = TEGROUP_FUSION_AUTO;
        status = changed != 0 ? TEGROUP_ERROR_COMBINATION : run(l, c->delayed);
    }
    wrong = status != TEGROUP_OK ? "refused" : mlp_wrong(l, c, device);
    mlps_apart += l->apart;
    if (wrong[0] != 0)
        fprintf(stderr, "%s: lists %d gradients %d delayed %d bias %d outputs %d routing %d tail %d transposed %d gather %d fused %d dtype %d activation %s%s%s row_scale %d recompute %d\n", wrong,
                c->lists, c->gradients, c->delayed, c->bias, c->outputs, c->routing, (int)c->tail, c->transposed, c->gather, choose->fused, (int)dtype,
                activation_names[l->desc.activation - TEGROUP_ACTIVATION_SWIGLU], l->desc.interleaved ? " interleaved" : "", l->apart ? " apart" : "", l->row_scale != NULL, l->desc.recompute);
    mlp_release(l);
    free(l);
    return wrong;
}

/* Every step-th combination once. The number of MLPs that are right, up to the first wrong. */
SUPPORT int check_every_mlp(mlp_sizes sizes, int device, int step, uint64_t seed, mlp_runner *run) {
    rng r = rng_seed(seed);
    mlp_choice m;
    choice *c = &m.c;
    int right = 0, number = 0;
    m.activation = TEGROUP_ACTIVATION_UNSET;
    m.apart = 1;
    layers_worst = 0;
    layers_elements = mlps_refused = mlps_apart = 0;
    for (c->lists = 0; c->lists < 2; c->lists++)
        for (c->gradients = 0; c->gradients < 3; c->gradients++)
            for (c->delayed = 0; c->delayed < 3; c->delayed++)
                for (c->bias = 0; c->bias < 3; c->bias++)
                    for (c->outputs = 0; c->outputs < 4; c->outputs++)
                        for (m.fused = 0; m.fused < 2; m.fused++)
                            for (c->routing = 0; c->routing < ROUTINGS; c->routing++)
                                for (int tail = TEGROUP_TAIL_KEEP; tail <= TEGROUP_TAIL_POISON; tail++) {
                                    c->tail = (tegroup_tail)tail;
                                    if (number++ % step != 0) continue;
                                    c->transposed = (int)rng_int(&r, 0, 3);
                                    c->gather = random_picks(&r, c);
                                    if (check_mlp(&m, right % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16, sizes, device, &r, run)[0] != 0) return right;
                                    right++;
                                }
    return right;
}
enum { MLP_COMBINATIONS = 2 * 3 * 3 * 3 * 4 * 2 * ROUTINGS * 3 };

#endif
