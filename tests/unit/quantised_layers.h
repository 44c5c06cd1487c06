/* Random layers of quantised operands, for the CPU and for GPU backends: what a caller quantises, what each product should give in
 * FP64 of what the copy that it reads means, and the same layer as calls one after another. Include after support.h. */
#ifndef TEGROUP_TESTS_QUANTISED_LAYERS_H
#define TEGROUP_TESTS_QUANTISED_LAYERS_H

#include "support.h"

/* A recipe: of weights, of rows in forward, and of gradients. */
typedef struct recipe {
    const char *name;
    tegroup_scaling rows, weights;
    tegroup_dtype forward, backward;
    tegroup_scale_preset preset;
} recipe;
static const recipe recipes[] = {
    {"block_fp8", TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_TE_BLOCK_F32},
    {"per_row", TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_FBGEMM_ROW},
    {"per_tensor", TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_TENSOR, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_TE_CURRENT},
    {"mxfp8", TEGROUP_SCALING_MXFP8, TEGROUP_SCALING_MXFP8_32X32, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_TE_MXFP8},
    {"nvfp4", TEGROUP_SCALING_NVFP4, TEGROUP_SCALING_NVFP4_16X16, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F4E2M1, TEGROUP_SCALE_TE_NVFP4},
};
enum { RECIPES = sizeof recipes / sizeof *recipes, QL_GROUPS = 4, QL_K = 160, QL_H = 144, QL_N = 96 };

typedef struct quantised_layer {
    const recipe *f;
    int64_t counts[QL_GROUPS];
    tegroup_shape rows;
    int gated, transposed; /* transposed: of columnwise copies */
    tegroup_dtype values;  /* of columnwise copies of rows that are not quantised; UNSET: they are */
    int in_place;          /* those of preactivation's gradient take its place */
    tegroup_quantize_desc x, dy; /* the caller's calls for input and grad_output */
    tegroup_error error;
    tegroup_mlp_desc mlp;
    tegroup_linear_desc linear;
} quantised_layer;

SUPPORT void *filled(tegroup_dtype dtype, int64_t count, double size, rng *r) {
    void *data = guarded((size_t)count * size_of(dtype));
    for (int64_t i = 0; i < count; i++) store(dtype, data, i, size * ldexp(rng_normal(r), (int)rng_int(r, -3, 2)));
    guarded_remember(data);
    return data;
}
SUPPORT void *room(size_t bytes) {
    void *data = guarded(bytes);
    guarded_remember(data);
    return data;
}

/* Orders of values: the columnwise copy is not quantised. */
SUPPORT tegroup_columnwise_order order_of_values(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_BF16 ? TEGROUP_COLUMNWISE_BF16 : dtype == TEGROUP_DTYPE_F32 ? TEGROUP_COLUMNWISE_F32 : TEGROUP_COLUMNWISE_AS_DATA;
}
SUPPORT int keeps_values(const tegroup_tensor *t) { return t->columnwise_order == TEGROUP_COLUMNWISE_BF16 || t->columnwise_order == TEGROUP_COLUMNWISE_F32; }
SUPPORT tegroup_dtype dtype_of_values(const tegroup_tensor *t) { return t->columnwise_order == TEGROUP_COLUMNWISE_BF16 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F32; }

/* Memory for the copies of a tensor of this scaling, full of poison. */
SUPPORT void give_copies(tegroup_tensor *t, tegroup_scaling scaling, tegroup_dtype dtype, int transposed, int copies) {
    tegroup_layout layout;
    tegroup_error error;
    t->scaling = scaling;
    t->dtype = dtype;
    if (!keeps_values(t)) t->columnwise_order = transposed ? TEGROUP_COLUMNWISE_TRANSPOSED : TEGROUP_COLUMNWISE_AS_DATA;
    if (tegroup_tensor_layout(t, TEGROUP_COPIES_BOTH, &layout, &error) != TEGROUP_OK) { fprintf(stderr, "%s %s\n", error.field, error.rule); abort(); }
    if (copies & 1) t->data = room(layout.items[0].bytes), t->scale_inv = room(layout.items[1].bytes);
    if (copies & 2) t->columnwise_data = room(layout.items[2].bytes);
    if (copies & 2 && !keeps_values(t)) t->columnwise_scale_inv = room(layout.items[3].bytes);
    if (layout.items[4].bytes > 0) t->global_scale_inv = (float *)room(layout.items[4].bytes);
    if (layout.items[4].bytes > 0 || scaling == TEGROUP_SCALING_TENSOR) t->amax = (float *)room((size_t)t->shape.groups * 4);
}

SUPPORT void remember_copies(const tegroup_tensor *t) {
    const void *const all[] = {t->data, t->scale_inv, t->columnwise_data, t->columnwise_scale_inv, t->global_scale_inv, t->amax};
    for (int i = 0; i < 6; i++)
        if (all[i] != NULL) guarded_remember(all[i]);
}

/* What the caller does: random values of F32, quantised once, both copies in one call; or rowwise, and the values are the other copy. */
SUPPORT tegroup_tensor quantised_tensor(const quantised_layer *l, const tegroup_shape *shape, int64_t rows, int64_t cols, int weights, int backward,
                                        double size, tegroup_quantize_desc *made, rng *r) {
    const int64_t elements = shape != NULL ? shape->rows * cols : QL_GROUPS * rows * cols;
    const tegroup_dtype values = weights ? TEGROUP_DTYPE_UNSET : l->values, dtype = values != TEGROUP_DTYPE_UNSET ? values : TEGROUP_DTYPE_F32;
    tegroup_quantize_desc q;
    tegroup_error error;
    memset(&q, 0, sizeof q);
    q.struct_size = sizeof q;
    q.space = TEGROUP_SPACE_HOST;
    void *data = filled(dtype, elements, size, r);
    q.input = shape != NULL ? tegroup_tensor_of(*shape, cols, dtype, data) : tegroup_tensor_uniform(QL_GROUPS, rows, cols, dtype, data);
    q.output = q.input;
    q.output.data = NULL;
    q.output.columnwise_order = order_of_values(values);
    give_copies(&q.output, weights ? l->f->weights : l->f->rows, backward ? l->f->backward : l->f->forward, l->transposed, values != TEGROUP_DTYPE_UNSET ? 1 : 3);
    q.rule = tegroup_scale_rule_of(l->f->preset);
    if (tegroup_quantize(&q, NULL, &error) != TEGROUP_OK) { fprintf(stderr, "%s %s\n", error.field, error.rule); abort(); }
    remember_copies(&q.output);
    if (made != NULL) *made = q;
    if (values != TEGROUP_DTYPE_UNSET) q.output.columnwise_data = data;
    return q.output;
}

SUPPORT tegroup_tensor plain_rows(const quantised_layer *l, int64_t cols, tegroup_dtype dtype) {
    return tegroup_tensor_of(l->rows, cols, dtype, room((size_t)(l->rows.rows * cols) * size_of(dtype)));
}
SUPPORT tegroup_tensor plain_weights(int64_t rows, int64_t cols, tegroup_dtype dtype) {
    return tegroup_tensor_uniform(QL_GROUPS, rows, cols, dtype, room((size_t)(QL_GROUPS * rows * cols) * size_of(dtype)));
}

/* transposed weights: bit 0 fc1's, bit 1 fc2's (or a linear layer's) */
SUPPORT tegroup_tensor ql_weight(const quantised_layer *l, int64_t n, int64_t k, int in_out, rng *r) {
    return quantised_tensor(l, NULL, in_out ? k : n, in_out ? n : k, 1, 0, 0.1, NULL, r);
}

SUPPORT void quantised_layer_rows(quantised_layer *l, const recipe *f, rng *r) {
    memset(l, 0, sizeof *l);
    l->f = f;
    l->transposed = rng_chance(r, 50);
    if (rng_chance(r, 40)) l->values = rng_chance(r, 70) ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F32;
    int64_t capacity = rng_int(r, 1, 5);
    for (int g = 0; g < QL_GROUPS; g++) {
        l->counts[g] = rng_chance(r, 25) ? 0 : rng_int(r, 1, rng_chance(r, 10) ? 150 : 20);
        capacity += l->counts[g];
    }
    int64_t *counts = (int64_t *)guarded(sizeof l->counts);
    memcpy(counts, l->counts, sizeof l->counts);
    guarded_remember(counts);
    l->rows = tegroup_shape_of(QL_GROUPS, capacity, QL_K, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    void *snapshot = guarded(4096);
    if (tegroup_shape_prepare(&l->rows, snapshot, 4096, NULL, &l->error) != TEGROUP_OK) abort();
    guarded_remember(snapshot);
}

/* Y [rows, N] of X [rows, K]. */
SUPPORT void quantised_linear_make(quantised_layer *l, const recipe *f, rng *r) {
    quantised_layer_rows(l, f, r);
    tegroup_linear_desc *d = &l->linear;
    const int in_out = rng_chance(r, 30), wide = rng_chance(r, 50);
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    d->weight_layout = in_out ? TEGROUP_WEIGHT_IN_OUT : TEGROUP_WEIGHT_OUT_IN;
    d->weight = ql_weight(l, QL_N, QL_K, in_out, r);
    d->input = quantised_tensor(l, &l->rows, 0, QL_K, 0, 0, 1, &l->x, r);
    d->grad_output = quantised_tensor(l, &l->rows, 0, QL_N, 0, 1, 0.01, &l->dy, r);
    d->out = plain_rows(l, QL_N, wide ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16);
    d->dgrad_out = plain_rows(l, QL_K, wide ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16);
    d->main_grad = plain_weights(d->weight.shape.rows, d->weight.shape.cols, TEGROUP_DTYPE_F32);
    if (rng_chance(r, 50)) {
        d->bias = tegroup_tensor_uniform(QL_GROUPS, 1, QL_N, TEGROUP_DTYPE_F32, filled(TEGROUP_DTYPE_F32, QL_GROUPS * QL_N, 1, r));
        d->bias_grad = plain_weights(1, QL_N, TEGROUP_DTYPE_F32);
        if (rng_chance(r, 50)) d->row_scale = filled(TEGROUP_DTYPE_F32, l->rows.rows, 1, r), d->row_scale_dtype = TEGROUP_DTYPE_F32;
    }
    d->options.threads = 1;
    d->options.check_level = rng_chance(r, 25) ? TEGROUP_CHECK_DEEP : TEGROUP_CHECK_HOST;
}

/* recompute: -1 = either, and what is optional by chance; else all of it is there. */
SUPPORT void quantised_mlp_make(quantised_layer *l, const recipe *f, int recompute, rng *r) {
    quantised_layer_rows(l, f, r);
    tegroup_mlp_desc *d = &l->mlp;
    const int layouts = rng_chance(r, 40) ? (int)rng_int(r, 1, 3) : 0;
    const tegroup_dtype between = l->values != TEGROUP_DTYPE_UNSET ? l->values : rng_chance(r, 70) ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F32;
    d->struct_size = sizeof *d;
    d->space = TEGROUP_SPACE_HOST;
    d->activation = (tegroup_activation)rng_int(r, TEGROUP_ACTIVATION_SWIGLU, TEGROUP_ACTIVATION_IDENTITY);
    l->gated = d->activation <= TEGROUP_ACTIVATION_SITU_GLU;
    if (l->gated && d->activation >= TEGROUP_ACTIVATION_SWIGLU_CLAMPED) {
        if (rng_chance(r, 50)) d->alpha = 1 + rng_unit(r);
        if (rng_chance(r, 50)) d->limit = 0.5 + rng_unit(r);
    }
    d->interleaved = l->gated && rng_chance(r, 30);
    const int64_t wide = QL_H * (l->gated ? 2 : 1);
    d->fc1.weight_layout = layouts & 1 ? TEGROUP_WEIGHT_IN_OUT : TEGROUP_WEIGHT_OUT_IN;
    d->fc2.weight_layout = layouts & 2 ? TEGROUP_WEIGHT_IN_OUT : TEGROUP_WEIGHT_OUT_IN;
    d->fc1.weight = ql_weight(l, wide, QL_K, layouts & 1, r);
    d->fc2.weight = ql_weight(l, QL_N, QL_H, layouts & 2, r);
    d->fc1.main_grad = plain_weights(d->fc1.weight.shape.rows, d->fc1.weight.shape.cols, TEGROUP_DTYPE_F32);
    d->fc2.main_grad = plain_weights(d->fc2.weight.shape.rows, d->fc2.weight.shape.cols, TEGROUP_DTYPE_F32);
    d->input = quantised_tensor(l, &l->rows, 0, QL_K, 0, 0, 1, &l->x, r);
    d->grad_output = quantised_tensor(l, &l->rows, 0, QL_N, 0, 1, 0.01, &l->dy, r);
    d->out = plain_rows(l, QL_N, TEGROUP_DTYPE_BF16);
    d->dgrad_out = plain_rows(l, QL_K, TEGROUP_DTYPE_BF16);
    d->preactivation = plain_rows(l, wide, between);
    d->recompute = recompute < 0 ? rng_chance(r, 50) : recompute;
    d->activated = tegroup_tensor_of(l->rows, QL_H, TEGROUP_DTYPE_UNSET, NULL);
    d->activated.columnwise_order = order_of_values(l->values);
    give_copies(&d->activated, f->rows, f->forward, l->transposed, d->recompute ? 2 : 3);
    d->grad_preactivation = tegroup_tensor_of(l->rows, wide, TEGROUP_DTYPE_UNSET, NULL);
    d->grad_preactivation.columnwise_order = order_of_values(l->values);
    l->in_place = l->values != TEGROUP_DTYPE_UNSET && rng_chance(r, 50);
    give_copies(&d->grad_preactivation, f->rows, f->backward, l->transposed, l->in_place ? 1 : 3);
    if (l->in_place) d->grad_preactivation.columnwise_data = d->preactivation.data;
    d->activated_rule = d->grad_rule = tegroup_scale_rule_of(f->preset);
    d->grad_rule.amax_floor = 0.05f; /* not activated's */
    if (recompute >= 0 || rng_chance(r, 60)) {
        d->row_scale = filled(TEGROUP_DTYPE_F32, l->rows.rows, 1, r), d->row_scale_dtype = TEGROUP_DTYPE_F32;
        if (recompute >= 0 || rng_chance(r, 60)) d->grad_row_scale = plain_rows(l, 1, TEGROUP_DTYPE_F32);
    }
    if (recompute >= 0 || rng_chance(r, 40)) {
        d->fc1.bias = tegroup_tensor_uniform(QL_GROUPS, 1, wide, TEGROUP_DTYPE_F32, filled(TEGROUP_DTYPE_F32, QL_GROUPS * wide, 1, r));
        d->fc1.bias_grad = plain_weights(1, wide, TEGROUP_DTYPE_F32);
        d->fc2.bias = tegroup_tensor_uniform(QL_GROUPS, 1, QL_N, TEGROUP_DTYPE_F32, filled(TEGROUP_DTYPE_F32, QL_GROUPS * QL_N, 1, r));
        d->fc2.bias_grad = plain_weights(1, QL_N, TEGROUP_DTYPE_F32);
    }
    d->options.threads = 1;
    d->options.check_level = rng_chance(r, 25) ? TEGROUP_CHECK_DEEP : TEGROUP_CHECK_HOST;
}

/* ---- references ---- */

/* What a product that sums over rows is given of a tensor: its values, where it keeps them, as a tensor of their own. */
SUPPORT tegroup_tensor as_summed(const tegroup_tensor *t) {
    return keeps_values(t) ? tegroup_tensor_of(t->shape, t->shape.cols, dtype_of_values(t), t->columnwise_data) : *t;
}

/* The values of the copy that is quantised along the rows or the columns, group after group as they lie. */
SUPPORT float *meaning(const tegroup_tensor *t, int columnwise) {
    const int ragged = t->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET;
    const int64_t elements = t->shape.rows * t->shape.cols * (ragged ? 1 : t->shape.groups);
    float *values = (float *)guarded((size_t)elements * 4);
    tegroup_dequantize_desc d;
    tegroup_error error;
    memset(&d, 0, sizeof d);
    const int kept = columnwise && keeps_values(t);
    if (t->scaling == TEGROUP_SCALING_NONE || kept) {
        for (int64_t i = 0; i < elements; i++) values[i] = (float)load(kept ? dtype_of_values(t) : t->dtype, kept ? t->columnwise_data : t->data, i);
        return values;
    }
    d.struct_size = sizeof d;
    d.space = TEGROUP_SPACE_HOST;
    d.input = *t;
    d.columnwise = columnwise && t->columnwise_data != NULL;
    d.output = ragged ? tegroup_tensor_of(t->shape, t->shape.cols, TEGROUP_DTYPE_F32, values)
                      : tegroup_tensor_uniform(t->shape.groups, t->shape.rows, t->shape.cols, TEGROUP_DTYPE_F32, values);
    if (tegroup_dequantize(&d, NULL, &error) != TEGROUP_OK) { fprintf(stderr, "%s %s\n", error.field, error.rule); abort(); }
    return values;
}

/* What a product's sums may err by beside the roundings of additions, of the sum of their terms' magnitudes: Hopper's FP8 instructions keep
 * about 14 bits of a sum. */
static double ql_instruction_error;

/* A product in FP64 of what its copies mean: D[g] = sum over k of a b, + scale[row] * bias. Returns the worst error over its bound,
 * which grows with k. d is what the product wrote. lines of d: rows, or in a wgrad a's columns. */
SUPPORT double worst_of(const quantised_layer *l, tegroup_op op, const tegroup_tensor *a, const tegroup_tensor *b, const tegroup_tensor *d,
                        const tegroup_tensor *bias, const float *scale, double sum_rounding) {
    const int wgrad = op == TEGROUP_OP_WGRAD;
    const float *x = meaning(a, wgrad), *y = meaning(b, op != TEGROUP_OP_FORWARD);
    const int64_t acols = a->shape.cols, bcols = b->shape.cols, n = d->shape.cols;
    double worst = 0;
    int64_t start = 0, told = 0;
    for (int g = 0; g < QL_GROUPS; start += l->counts[g++]) {
        const int64_t m = wgrad ? acols : l->counts[g], k = wgrad ? l->counts[g] : acols;
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0, size = 0;
                for (int64_t q = 0; q < k; q++) {
                    const double u = (double)(wgrad ? x[(start + q) * acols + i] : x[(start + i) * acols + q]);
                    const double v = (double)(wgrad ? y[(start + q) * bcols + j] : op == TEGROUP_OP_FORWARD ? y[g * b->shape.rows * bcols + j * bcols + q]
                                                                                                            : y[g * b->shape.rows * bcols + q * bcols + j]);
                    sum += u * v;
                    size += fabs(u * v);
                }
                if (bias != NULL && bias->dtype != TEGROUP_DTYPE_UNSET) {
                    const double term = load(bias->dtype, bias->data, g * n + j) * (scale != NULL ? (double)scale[start + i] : 1);
                    sum += term;
                    size += fabs(term);
                }
                /* 2^-100: a product of two scales may be below what F32 has */
                const double bound = ((double)(k + 12) * sum_rounding + ql_instruction_error) * size + unit_roundoff(d->dtype) * fabs(sum) * (1 + 0x1p-6) + 0x1p-100;
                const double got = load(d->dtype, d->data, (wgrad ? (int64_t)g * d->shape.rows * n : start * n) + i * n + j), error = fabs(got - sum) / bound;
                if (!(error <= worst)) worst = error;
                if (!(error <= 1) && told++ < 3)
                    fprintf(stderr, "op %d, group %d of %ld rows, element %ld, %ld of [%ld, %ld], k %ld: %g, wanted %g, error/bound %g\n", (int)op, g, (long)l->counts[g],
                            (long)i, (long)j, (long)m, (long)n, (long)k, got, sum, error);
            }
    }
    return worst;
}

/* A bias gradient: sums of dY's rows, as its columnwise copy has them. */
SUPPORT double worst_sum(const quantised_layer *l, const tegroup_tensor *dy, const tegroup_tensor *sums, const float *scale, double sum_rounding) {
    const float *y = meaning(dy, 1);
    const int64_t n = dy->shape.cols;
    double worst = 0;
    int64_t start = 0;
    for (int g = 0; g < QL_GROUPS; start += l->counts[g++])
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, size = 0;
            for (int64_t i = start; i < start + l->counts[g]; i++) {
                const double term = (double)y[i * n + j] * (scale != NULL ? (double)scale[i] : 1);
                sum += term;
                size += fabs(term);
            }
            const double error = fabs(load(sums->dtype, sums->data, g * n + j) - sum) / ((double)(l->counts[g] + 12) * sum_rounding * size + 0x1p-100);
            if (!(error <= worst)) worst = error;
        }
    return worst;
}

/* Rows that no group owns are as they were. */
SUPPORT int64_t tail_changed(const quantised_layer *l, const tegroup_tensor *t) {
    int64_t used = 0, changed = 0;
    for (int g = 0; g < QL_GROUPS; g++) used += l->counts[g];
    const guarded_node *node = guarded_find(t->data);
    for (size_t i = (size_t)(used * t->shape.cols) * size_of(t->dtype); i < node->bytes; i++) changed += node->data[i] != node->copy[i];
    return changed;
}

#endif
