/* Random products of quantised operands, for the CPU and for GPU backends. */
#ifndef TEGROUP_TESTS_QUANTISED_PROBLEM_H
#define TEGROUP_TESTS_QUANTISED_PROBLEM_H

#include "quantised.h"

static const tegroup_dtype quantised_fp8[] = {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2};

/* What goes with what; b NULL or a NULL: not quantised. */
SUPPORT int goes(const scaling_row *a, const scaling_row *b, tegroup_op op) {
    if (a == NULL) return 1;
    if (b == NULL) return op == TEGROUP_OP_WGRAD;
    return a->scale == b->scale;
}

SUPPORT quantised random_quantised(rng *r, const scaling_row *f, int uniform, int can_stride) {
    quantised q;
    memset(&q, 0, sizeof q);
    q.f = f;
    q.dtype = is_fp4(f->scaling) ? TEGROUP_DTYPE_F4E2M1 : quantised_fp8[rng_int(r, 0, 1)];
    if (rng_chance(r, 40)) {
        const tegroup_dtype others[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F8E8M0, TEGROUP_DTYPE_I32};
        const int words = f->outer == 1 && f->inner > 0;
        if (f->scale == TEGROUP_DTYPE_F32) q.scale_dtype = others[rng_int(r, 0, words ? 2 : 1)];
        if (f->scale == TEGROUP_DTYPE_F8E8M0) q.scale_dtype = TEGROUP_DTYPE_I32;
    }
    q.parts = uniform && rng_chance(r, 40) ? rng_int(r, 2, 3) : 1;
    q.outer_stride = can_stride && f->outer > 0 && (uniform || f->outer == 1) && rng_chance(r, 40); /* which: when its extents are known */
    q.transposed = rng_chance(r, 50);
    q.global = f->scale == TEGROUP_DTYPE_F8E4M3 && rng_chance(r, 60);
    return q;
}

/* Most often within one block; some times several blocks of 128, more than the four that scales are padded to. */
SUPPORT int64_t random_width(rng *r) {
    if (rng_chance(r, 2)) return rng_int(r, 201, 700);
    return rng_chance(r, 8) ? rng_int(r, 100, 200) : rng_int(r, 1, rng_chance(r, 40) ? 40 : 18);
}

/* Everything as it is before a run. */
SUPPORT void remember(const problem *p) {
    for (guarded_node *node = guarded_top; node != (guarded_node *)p->mark; node = node->older)
        if (!node->scratch && node->copy != NULL) guarded_remember(node->data);
}

/* For SM90's kernels of FP8 (1) or that decode weights (2), or PORTABLE's that do (3): tiles of some size, 16 bytes
 * wherever TMA wants them, copies along what is summed. */
static int quantised_for_sm90;

/* A problem whose operands, a NULL format leaves one as it is, mean the values of its F64 grids. on_gpu: 1: in the types that GPU
 * backends multiply; 2: and with what is not quantised where TMA can load it. */
SUPPORT void quantised_problem(problem *p, rng *r, const scaling_row *fa, const scaling_row *fb, tegroup_op op, quantised q[2], int on_gpu) {
    static const tegroup_dtype plain[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16};
    static const tegroup_dtype outs[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16};
    const int fp4 = (fa != NULL && is_fp4(fa->scaling)) || (fb != NULL && is_fp4(fb->scaling));
    const int f32_scales = (fa == NULL || fa->scale == TEGROUP_DTYPE_F32) && (fb == NULL || fb->scale == TEGROUP_DTYPE_F32);
    void *const mark = guards_mark(); /* a spec has memory, too, which goes with the problem */
    spec s = random_spec(r, op, rng_chance(r, on_gpu ? 20 : 2) ? 150 : on_gpu ? 12 : 10, 8);
    const tegroup_compute compute = !on_gpu && rng_chance(r, 30) ? TEGROUP_COMPUTE_F64 : TEGROUP_COMPUTE_F32;
    if (s.groups > 3) s.groups = 3;
    s.n = random_width(r);
    s.k = random_width(r);
    s.in = TEGROUP_DTYPE_F64;
    s.out = compute == TEGROUP_COMPUTE_F64 && rng_chance(r, 50) ? TEGROUP_DTYPE_F64 : outs[rng_int(r, 0, 3)];
    s.scalar_dtype = TEGROUP_DTYPE_F32;
    if (s.row_scale_dtype != TEGROUP_DTYPE_UNSET) s.row_scale_dtype = TEGROUP_DTYPE_F32;
    s.bias_dtype = s.bias ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_UNSET;
    s.gather = 0;
    s.aligned = on_gpu == 2;
    s.roundings = 3; /* of a value of each operand, and of alpha by the scales of groups */
    if (s.m == NULL && s.rows_each > 0) s.rows_each = up(s.rows_each, 6);
    if (op != TEGROUP_OP_WGRAD) s.n = up(s.n, 6);
    if (fp4 || s.m == NULL || s.aligned || rng_chance(r, 70)) s.ng = s.kg = NULL;
    if (s.aligned) { /* rows of whole 16 bytes, however wide the matrices */
        s.k = s.k / 8 * 8 + s.n % 8;
        s.pad = up(s.n, 8) - s.n + (s.pad > 4 ? 8 : 0);
    }
    if (s.kg != NULL) s.kg = random_widths(r, s.groups, s.k);
    if (s.ng != NULL) s.ng = random_widths(r, s.groups, s.n);
    if (quantised_for_sm90) {
        const int64_t widest = rng_chance(r, 30) ? 600 : 200;
        s.ng = s.kg = NULL;
        s.aligned = 1;
        s.n = rng_int(r, 1, widest);
        s.k = rng_int(r, 1, widest) / 8 * 8 + s.n % 8; /* so that one padding makes rows of both a multiple of 16 bytes */
        s.pad = (8 - s.n % 8) % 8 + 8 * rng_int(r, 0, 1);
        if (s.m == NULL) s.rows_each = up(s.rows_each, 6);
    }
    if (quantised_for_sm90 >= 2) {
        const int64_t across = 8 * rng_int(r, 1, rng_chance(r, 30) ? 60 : 20), along = 64 * rng_int(r, 1, 6);
        s.n = op == TEGROUP_OP_DGRAD ? along : across;
        s.k = op == TEGROUP_OP_DGRAD ? across : along;
        s.pad = 32 * rng_int(r, 0, 1);
        if (quantised_for_sm90 == 2) {
            s.out = rng_chance(r, 50) ? TEGROUP_DTYPE_F16 : TEGROUP_DTYPE_BF16;
            s.c = C_NONE;
        }
    }
    /* Weights of codes that are interleaved have whole blocks of 64 in both directions. */
    const int interleaves = (quantised_for_sm90 == 2 || !on_gpu) && fb != NULL && fb->scale != TEGROUP_DTYPE_F32 && op != TEGROUP_OP_WGRAD && s.m != NULL && rng_chance(r, on_gpu ? 50 : 10);
    if (interleaves) {
        s.ng = s.kg = NULL;
        s.n = 64 * rng_int(r, 1, rng_chance(r, 20) ? 5 : 2);
        s.k = 64 * rng_int(r, 1, rng_chance(r, 20) ? 5 : 2);
        s.pad = up(s.pad, 8);
    }
    problem_make(p, &s);
    p->mark = mark;
    p->s.compute = p->desc.options.compute = compute;
    for (int which = 0; which < 2; which++) {
        const scaling_row *f = which ? fb : fa;
        grid *t = which ? &p->b : &p->a;
        tegroup_tensor *to = which ? &p->desc.b : &p->desc.a;
        const int uniform = to->shape.row_sizes.encoding == TEGROUP_ENCODING_UNSET, regular = to->shape.col_sizes.encoding == TEGROUP_ENCODING_UNSET && to->shape.elements == 0;
        if (f != NULL) {
            q[which] = random_quantised(r, f, uniform, regular);
            if (quantised_for_sm90) {
                q[which].aligned = q[which].transposed = 1;
                q[which].parts = 1;
            }
            if (on_gpu == 2 && (op == TEGROUP_OP_DGRAD ? s.n : s.k) % 64 == 0) q[which].aligned = 1; /* TMA may load the weights' codes */
            if (quantised_for_sm90 == 1) q[which].scale_dtype = TEGROUP_DTYPE_UNSET;
            if (quantised_for_sm90 == 2 && which) {
                if (!is_fp4(f->scaling)) q[which].dtype = TEGROUP_DTYPE_F8E4M3;
                q[which].scale_dtype = TEGROUP_DTYPE_UNSET;
                q[which].outer_stride = 0;
            }
            if (interleaves && which) {
                q[which].interleaved = 1;
                if (!is_fp4(f->scaling)) q[which].dtype = TEGROUP_DTYPE_F8E4M3;
                if (q[which].parts > 2) q[which].parts = 2; /* which divide the rows */
                if (op == TEGROUP_OP_DGRAD) q[which].transposed = 1;
            }
            quantise_operand(p, which, &q[which], r);
        }
        if (f != NULL) continue;
        /* the same places in a narrower type */
        const tegroup_dtype dtype = compute == TEGROUP_COMPUTE_F64 && rng_chance(r, 30) ? TEGROUP_DTYPE_F64 : plain[on_gpu ? (f32_scales ? rng_int(r, 1, 2) : 2) : rng_int(r, 0, 2)];
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t i = 0; i < t->rows[g]; i++)
                for (int64_t j = 0; j < t->cols[g]; j++) {
                    unsigned char *at = t->at[g] + (i * t->ld[g] + j) * 8;
                    store(TEGROUP_DTYPE_F64, at, 0, rounded(dtype, load(TEGROUP_DTYPE_F64, at, 0)));
                }
        to->dtype = dtype;
        if (dtype == TEGROUP_DTYPE_F64) continue;
        if (to->pointers == NULL) {
            const int64_t count = (int64_t)(guarded_find(t->tensor.data)->bytes / 8);
            void *data = elements_new(dtype, count, s.aligned);
            for (int64_t i = 0; i < count; i++) store(dtype, data, i, load(TEGROUP_DTYPE_F64, t->tensor.data, i));
            to->data = data;
            guarded_remember(data);
            continue;
        }
        void **list = (void **)guarded((size_t)s.groups * sizeof(void *));
        for (int32_t g = 0; g < s.groups; g++) {
            const int64_t count = (int64_t)(guarded_find(t->at[g])->bytes / 8);
            list[g] = elements_new(dtype, count, s.aligned);
            for (int64_t i = 0; i < count; i++) store(dtype, list[g], i, load(TEGROUP_DTYPE_F64, t->at[g], i));
            guarded_remember(list[g]);
        }
        to->pointers = list;
        guarded_remember(list);
    }
    if (on_gpu && op != TEGROUP_OP_WGRAD && s.m != NULL && s.ng == NULL && s.kg == NULL && p->desc.d.pointers == NULL && p->desc.d.shape.elements == 0 && rng_chance(r, 40))
        p->s.tail = p->desc.tail = (tegroup_tail)rng_int(r, TEGROUP_TAIL_ZERO, TEGROUP_TAIL_POISON);
    remember(p);
}

/* Pairs of scalings that cuBLASLt's grouped matmul takes, in the tests' own words: F32 scales on Hopper, others after it. */
SUPPORT int lt_goes(const scaling_row *a, const scaling_row *b, int hopper) {
    const int one_a = a->scaling == TEGROUP_SCALING_BLOCK_1X128, one_b = b->scaling == TEGROUP_SCALING_BLOCK_1X128;
    const int two_a = a->scaling == TEGROUP_SCALING_BLOCK_128X128, two_b = b->scaling == TEGROUP_SCALING_BLOCK_128X128;
    const int mx_a = a->scaling == TEGROUP_SCALING_MXFP8 || a->scaling == TEGROUP_SCALING_MXFP8_32X32, mx_b = b->scaling == TEGROUP_SCALING_MXFP8 || b->scaling == TEGROUP_SCALING_MXFP8_32X32;
    const int nv_a = a->scale == TEGROUP_DTYPE_F8E4M3, nv_b = b->scale == TEGROUP_DTYPE_F8E4M3;
    if (!hopper) return (mx_a && mx_b) || (nv_a && nv_b);
    return (a->scaling == TEGROUP_SCALING_TENSOR && b->scaling == TEGROUP_SCALING_TENSOR) || (one_a && (one_b || two_b)) || (two_a && one_b);
}

/* A problem that it takes, with odd numbers of rows and, where FP8 has F32 scales, of what is summed. Padding and whatever else is
 * not to be read is NaN. groups: 0 = a few. Returns
 * 0: draw again, as the operand would be read from the other copy. */
SUPPORT int lt_problem(problem *p, rng *r, const scaling_row *fa, const scaling_row *fb, tegroup_op op, quantised q[2], int32_t groups, int64_t most_rows, int64_t most_width) {
    static const tegroup_dtype kinds[3][2] = {{TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E4M3}, {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2}, {TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F8E4M3}};
    static const tegroup_dtype outs[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16};
    const int fp4 = is_fp4(fa->scaling), f32 = fa->scale == TEGROUP_DTYPE_F32, kind = (int)rng_int(r, 0, 2);
    void *const mark = guards_mark();
    spec s = random_spec(r, op, most_rows, 8);
    if (groups > 0) { s.groups = groups; s.m = NULL; }
    if (s.m == NULL) { s.m = random_rows(r, s.groups, most_rows, 1); s.encoding = TEGROUP_ENCODING_COUNTS; s.place = PLACE_DENSE; }
    s.ng = s.kg = NULL;
    s.n = 32 * rng_int(r, 1, most_width / 32);
    s.k = 32 * rng_int(r, 1, most_width / 32);
    if (f32 && rng_chance(r, 50)) *(op == TEGROUP_OP_FORWARD ? &s.k : &s.n) -= rng_int(r, 0, 31);
    s.in = TEGROUP_DTYPE_F64;
    s.out = outs[rng_int(r, 0, fp4 ? 1 : 2)];
    s.aligned = 1;
    s.pad = 8 * rng_int(r, 0, 2);
    s.scalar_dtype = TEGROUP_DTYPE_F32;
    s.bias = s.bias_of_b = 0;
    s.row_scale_dtype = s.bias_dtype = TEGROUP_DTYPE_UNSET;
    s.lists &= 15;
    s.roundings = 3;
    problem_make(p, &s);
    p->mark = mark;
    p->s.compute = p->desc.options.compute = TEGROUP_COMPUTE_F32;
    for (int which = 0; which < 2; which++) {
        tegroup_tensor *t = which ? &p->desc.b : &p->desc.a;
        const int ragged = t->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET;
        memset(&q[which], 0, sizeof *q);
        q[which].f = which ? fb : fa;
        q[which].dtype = fp4 ? TEGROUP_DTYPE_F4E2M1 : kinds[kind][which];
        q[which].parts = q[which].aligned = 1;
        q[which].transposed = f32 || fp4 || rng_chance(r, 50);
        q[which].global = fp4 && rng_chance(r, 60);
        t->ld = up(t->shape.cols, 32) + 32 * rng_int(r, 0, 1);
        t->group_stride = !ragged && !fp4 && rng_chance(r, 50) ? t->shape.rows * t->ld + 32 : 0;
        quantise_operand(p, which, &q[which], r);
    }
    remember(p);
    for (int which = 0; which < 2; which++)
        if (q[which].columnwise != (op == TEGROUP_OP_WGRAD || (which && op == TEGROUP_OP_DGRAD))) {
            problem_release(p);
            return 0;
        }
    return 1;
}

SUPPORT const char *name_of(const scaling_row *f) { return f == NULL ? "plain" : tegroup_scaling_info(f->scaling)->name; }

/* Bits of D, and of a bias gradient. */
SUPPORT double *results_of(const problem *p, int64_t *count) {
    double *all = (double *)malloc(8);
    *count = 0;
    for (int bias = 0; bias < 2; bias++) {
        const grid *t = bias ? &p->bias : &p->d;
        for (int32_t g = 0; g < p->s.groups && (!bias || p->s.bias); g++)
            for (int64_t i = 0; i < t->rows[g]; i++)
                for (int64_t j = 0; j < t->cols[g]; j++) {
                    all = (double *)realloc(all, (size_t)(*count + 1) * 8);
                    all[(*count)++] = value_at(t, g, i, j);
                }
    }
    return all;
}

#endif
