/* The MoE layer as the separate calls that it is made of, and its formats. `fresh` gives poisoned memory where the layer is. */
#ifndef TEGROUP_TESTS_MOE_BY_HAND_H
#define TEGROUP_TESTS_MOE_BY_HAND_H

#include "moe_layer.h"
#include "test.h"

void *fresh(size_t bytes);
SUPPORT tegroup_matrix fresh_matrix(int64_t rows, int64_t cols, tegroup_dtype dtype) {
    return tegroup_matrix_of(fresh((size_t)(rows * cols) * size_of(dtype)), rows, cols, dtype);
}
SUPPORT void must(tegroup_status status, const tegroup_error *error) {
    char text[400];
    if (status == TEGROUP_OK) return;
    tegroup_error_text(error, text, sizeof text);
    printf("%s\n", text);
    test_failed = 1;
}

/* ---- formats ---- */

typedef struct layer_format {
    const char *name;
    tegroup_scaling rows, weights; /* rows NONE: the weights alone are quantised */
    tegroup_dtype forward, backward;
    tegroup_scale_preset preset;
    tegroup_columnwise_order order;
    int values; /* 1: wgrad reads rows as they were; order is that of weights alone */
} layer_format;
static const layer_format layer_formats[] = {
    {"blocks", TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_TE_BLOCK, TEGROUP_COLUMNWISE_AS_DATA, 0},
    {"blocks, transposed", TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALE_DEEPGEMM, TEGROUP_COLUMNWISE_TRANSPOSED, 0},
    {"rows", TEGROUP_SCALING_ROW, TEGROUP_SCALING_ROW, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_TE_CURRENT, TEGROUP_COLUMNWISE_TRANSPOSED, 0},
    {"tensor", TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_TENSOR, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_TE_CURRENT, TEGROUP_COLUMNWISE_AS_DATA, 0},
    {"tensor, transposed", TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_TENSOR, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_TE_CURRENT, TEGROUP_COLUMNWISE_TRANSPOSED, 0},
    {"mxfp8", TEGROUP_SCALING_MXFP8, TEGROUP_SCALING_MXFP8_32X32, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_TE_MXFP8, TEGROUP_COLUMNWISE_AS_DATA, 0},
    {"nvfp4", TEGROUP_SCALING_NVFP4, TEGROUP_SCALING_NVFP4_16X16, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F4E2M1, TEGROUP_SCALE_TE_NVFP4, TEGROUP_COLUMNWISE_AS_DATA, 0},
    {"mxfp8, weights by 1x32", TEGROUP_SCALING_MXFP8, TEGROUP_SCALING_MXFP8, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALE_OCP_MX, TEGROUP_COLUMNWISE_AS_DATA, 0},
    {"nvfp4, weights by 1x16", TEGROUP_SCALING_NVFP4, TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F4E2M1, TEGROUP_SCALE_TE_NVFP4, TEGROUP_COLUMNWISE_AS_DATA, 0},
    {"blocks, values", TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_BLOCK_128X128, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALE_TE_BLOCK, TEGROUP_COLUMNWISE_TRANSPOSED, 1},
    {"tensor, values", TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_TENSOR, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_TE_CURRENT, TEGROUP_COLUMNWISE_TRANSPOSED, 1},
    {"nvfp4, values", TEGROUP_SCALING_NVFP4, TEGROUP_SCALING_NVFP4_16X16, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F4E2M1, TEGROUP_SCALE_TE_NVFP4, TEGROUP_COLUMNWISE_AS_DATA, 1},
    {"weights of mxfp4", TEGROUP_SCALING_NONE, TEGROUP_SCALING_MXFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_UNSET, TEGROUP_SCALE_OCP_MX, TEGROUP_COLUMNWISE_AS_DATA, 0},
    {"weights of nvfp4", TEGROUP_SCALING_NONE, TEGROUP_SCALING_NVFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_UNSET, TEGROUP_SCALE_TE_NVFP4, TEGROUP_COLUMNWISE_AS_DATA, 0},
    {"weights of blocks", TEGROUP_SCALING_NONE, TEGROUP_SCALING_BLOCK_128X128, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_UNSET, TEGROUP_SCALE_TE_BLOCK, TEGROUP_COLUMNWISE_AS_DATA, 0},
};
enum { LAYER_FORMATS = sizeof layer_formats / sizeof *layer_formats };

/* tokens: their type. */
SUPPORT tegroup_moe_format moe_format(const layer_format *f, tegroup_dtype dtype, tegroup_dtype tokens) {
    tegroup_moe_format format;
    memset(&format, 0, sizeof format);
    if (f->rows == TEGROUP_SCALING_NONE) return format;
    format.scaling = f->rows, format.dtype = dtype, format.columnwise_order = f->order, format.rule = tegroup_scale_rule_of(f->preset);
    if (f->values) format.columnwise_order = tokens == TEGROUP_DTYPE_BF16 ? TEGROUP_COLUMNWISE_BF16 : TEGROUP_COLUMNWISE_F32;
    return format;
}

/* Memory of a quantised tensor: both copies, but for a columnwise one where the rowwise one serves. */
SUPPORT void give_memory(tegroup_tensor *t, void *(*memory)(size_t)) {
    tegroup_layout layout;
    tegroup_error error;
    memset(&layout, 0, sizeof layout);
    must(tegroup_tensor_layout(t, TEGROUP_COPIES_BOTH, &layout, &error), &error);
    t->data = memory(layout.items[0].bytes), t->scale_inv = memory(layout.items[1].bytes);
    const int values = t->columnwise_order >= TEGROUP_COLUMNWISE_BF16;
    if (t->scaling != TEGROUP_SCALING_TENSOR || t->columnwise_order == TEGROUP_COLUMNWISE_TRANSPOSED || values) {
        t->columnwise_data = memory(layout.items[2].bytes);
        if (!values) t->columnwise_scale_inv = memory(layout.items[3].bytes);
    }
    if (layout.items[4].bytes > 0) t->global_scale_inv = (float *)memory(layout.items[4].bytes);
    t->amax = (float *)memory(4 * (size_t)t->shape.groups);
}

/* Rows by expert as the layer has them between its calls: quantised from a matrix, or left to be written. */
SUPPORT tegroup_tensor hand_rows(tegroup_shape shape, int64_t cols, tegroup_dtype dtype, const tegroup_moe_format *format, const tegroup_matrix *from, struct CUstream_st *stream) {
    tegroup_tensor t = tegroup_tensor_of(shape, cols, dtype, from != NULL ? from->data : NULL);
    tegroup_quantize_desc quantize;
    tegroup_error error;
    if (format->scaling == TEGROUP_SCALING_NONE) {
        if (from == NULL) t.data = fresh((size_t)(shape.rows * cols) * size_of(dtype));
        return t;
    }
    memset(&quantize, 0, sizeof quantize);
    quantize.struct_size = sizeof quantize, quantize.space = shape.row_sizes.space, quantize.input = t, quantize.rule = format->rule;
    t.dtype = format->dtype, t.scaling = format->scaling, t.scale_dtype = format->scale_dtype, t.columnwise_order = format->columnwise_order;
    give_memory(&t, fresh);
    quantize.output = t;
    if (from != NULL && t.columnwise_order >= TEGROUP_COLUMNWISE_BF16) t.columnwise_data = from->data, quantize.output.columnwise_data = NULL;
    if (from != NULL) must(tegroup_quantize(&quantize, stream, &error), &error);
    return t;
}

/* The layer in a format: its weights quantised, in host memory. The gradient of fc2's bias is not built beside quantised rows. */
static void *format_memory(size_t bytes) { return guarded(bytes); }
SUPPORT void layer_in_format(layer *l, const layer_format *f) {
    tegroup_mlp_weights *weights[] = {&l->desc.experts.fc1, &l->desc.experts.fc2};
    tegroup_error error;
    for (int i = 0; i < 2; i++) {
        tegroup_quantize_desc quantize;
        memset(&quantize, 0, sizeof quantize);
        quantize.struct_size = sizeof quantize, quantize.space = TEGROUP_SPACE_HOST, quantize.input = weights[i]->weight, quantize.rule = tegroup_scale_rule_of(f->preset);
        quantize.output = weights[i]->weight;
        quantize.output.dtype = f->forward, quantize.output.scaling = f->weights, quantize.output.columnwise_order = f->order;
        give_memory(&quantize.output, format_memory);
        must(tegroup_quantize(&quantize, NULL, &error), &error);
        weights[i]->weight = quantize.output;
        weights[i]->weight.amax = NULL;
    }
    l->desc.rows_format = moe_format(f, f->forward, l->dtype);
    if (l->desc.grad_output.dtype != TEGROUP_DTYPE_UNSET) l->desc.grad_format = moe_format(f, f->backward, l->dtype);
    if (l->desc.grad_format.scaling == TEGROUP_SCALING_NONE || !l->biases) return;
    memset(&weights[1]->bias, 0, sizeof weights[1]->bias), memset(&weights[1]->bias_grad, 0, sizeof weights[1]->bias_grad);
    memset(l->b2, 0, (size_t)(l->experts * l->outputs) * sizeof *l->b2);
}

/* ---- the calls ---- */

/* Router, prepare, permutation, permute, MLP and combine, by hand, into the desc's outputs. */
SUPPORT void by_hand(const layer *l, const tegroup_moe_desc *d, struct CUstream_st *stream) {
    const int64_t T = l->tokens, k = l->k, rows = T * k;
    const tegroup_dtype real = l->dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
    tegroup_error error;
    tegroup_layout layout;
    tegroup_router_desc router = d->router;
    router.struct_size = sizeof router, router.space = d->space, router.experts = l->experts;
    router.probabilities = fresh_matrix(T, l->experts, real);
    router.weights = fresh_matrix(T, k, real);
    router.indices = fresh_matrix(T, k, TEGROUP_DTYPE_I64);
    router.counts = fresh_matrix(1, l->experts, TEGROUP_DTYPE_I64);
    must(tegroup_router_layout(&router, &layout, &error), &error);
    router.workspace = fresh(layout.total_bytes), router.workspace_bytes = layout.total_bytes;
    must(tegroup_router(&router, stream, &error), &error);
    tegroup_shape shape = tegroup_shape_of(l->experts, rows, 0, tegroup_sizes_of(router.counts.data, TEGROUP_DTYPE_I64, d->space));
    must(tegroup_snapshot_layout(&shape, &layout, &error), &error);
    must(tegroup_shape_prepare(&shape, fresh(layout.total_bytes), layout.total_bytes, stream, &error), &error);
    tegroup_permutation_desc permutation;
    memset(&permutation, 0, sizeof permutation);
    permutation.struct_size = sizeof permutation, permutation.space = d->space, permutation.indices = router.indices, permutation.shape = shape;
    permutation.row_of_slot = fresh_matrix(T, k, TEGROUP_DTYPE_I64), permutation.slot_of_row = fresh_matrix(1, rows, TEGROUP_DTYPE_I64);
    must(tegroup_permutation_layout(&permutation, &layout, &error), &error);
    permutation.workspace = fresh(layout.total_bytes), permutation.workspace_bytes = layout.total_bytes;
    must(tegroup_permutation_make(&permutation, stream, &error), &error);
    tegroup_matrix x = fresh_matrix(rows, l->width, l->dtype), y = fresh_matrix(rows, l->outputs, l->dtype), scale = fresh_matrix(rows, 1, real),
                   dy = fresh_matrix(rows, l->outputs, l->dtype), dx = fresh_matrix(rows, l->width, l->dtype), dscale = fresh_matrix(rows, 1, real),
                   dweights = fresh_matrix(T, k, real);
    tegroup_permute_desc permute;
    memset(&permute, 0, sizeof permute);
    permute.struct_size = sizeof permute, permute.space = d->space, permute.k = (int32_t)k, permute.slot_of_row = permutation.slot_of_row;
    permute.tokens = d->tokens, permute.permuted = x;
    must(tegroup_permute(&permute, stream, &error), &error);
    permute.tokens = d->grad_output, permute.permuted = dy;
    must(tegroup_permute(&permute, stream, &error), &error);
    permute.k = 1, permute.tokens = tegroup_matrix_of(router.weights.data, rows, 1, real), permute.permuted = scale;
    must(tegroup_permute(&permute, stream, &error), &error);
    tegroup_mlp_desc mlp = d->experts;
    tegroup_mlp_plan plan;
    mlp.struct_size = sizeof mlp, mlp.space = d->space, mlp.recompute = 0;
    mlp.input = hand_rows(shape, l->width, l->dtype, &d->rows_format, &x, stream), mlp.out = tegroup_tensor_of(shape, l->outputs, l->dtype, y.data);
    mlp.grad_output = hand_rows(shape, l->outputs, l->dtype, &d->grad_format, &dy, stream), mlp.dgrad_out = tegroup_tensor_of(shape, l->width, l->dtype, dx.data);
    mlp.preactivation = tegroup_tensor_of(shape, 2 * l->hidden, l->dtype, fresh((size_t)(rows * 2 * l->hidden) * size_of(l->dtype)));
    mlp.grad_preactivation = hand_rows(shape, 2 * l->hidden, l->dtype, &d->grad_format, NULL, stream);
    mlp.activated = hand_rows(shape, l->hidden, l->dtype, &d->rows_format, NULL, stream);
    mlp.activated_rule = d->rows_format.rule, mlp.grad_rule = d->grad_format.rule;
    mlp.grad_row_scale = tegroup_tensor_of(shape, 1, real, dscale.data);
    mlp.row_scale_dtype = real, mlp.fc2_bias_scaled = mlp.fc2.bias.dtype != TEGROUP_DTYPE_UNSET;
    mlp.options.workspace = NULL, mlp.options.workspace_bytes = 0;
    must(tegroup_mlp_plan_make(&mlp, NULL, &plan, &error), &error);
    mlp.row_scale = scale.data;
    mlp.options.workspace = fresh(plan.workspace_bytes), mlp.options.workspace_bytes = plan.workspace_bytes;
    must(tegroup_mlp_forward(&plan, &mlp, stream, &error), &error);
    must(tegroup_mlp_dgrad(&plan, &mlp, stream, &error), &error);
    must(tegroup_mlp_wgrad(&plan, &mlp, stream, &error), &error);
    tegroup_combine_desc combine;
    memset(&combine, 0, sizeof combine);
    combine.struct_size = sizeof combine, combine.space = d->space, combine.row_of_slot = permutation.row_of_slot;
    combine.permuted = y, combine.tokens = d->output;
    must(tegroup_combine(&combine, stream, &error), &error);
    combine.permuted = dx, combine.tokens = d->grad_tokens;
    must(tegroup_combine(&combine, stream, &error), &error);
    combine.row_of_slot = tegroup_matrix_of(permutation.row_of_slot.data, rows, 1, TEGROUP_DTYPE_I64);
    combine.permuted = dscale, combine.tokens = tegroup_matrix_of(dweights.data, rows, 1, real);
    must(tegroup_combine(&combine, stream, &error), &error);
    tegroup_router_backward_desc backward;
    memset(&backward, 0, sizeof backward);
    backward.struct_size = sizeof backward, backward.space = d->space, backward.experts = l->experts, backward.k = l->k;
    backward.normalize = d->router.normalize, backward.scheme = d->router.scheme, backward.probabilities = router.probabilities, backward.indices = router.indices;
    backward.grad_weights = dweights, backward.grad_logits = d->grad_logits;
    must(tegroup_router_backward(&backward, stream, &error), &error);
}

/* What the layer gives: the outputs, then the gradients of weights and biases. */
enum { RESULTS = 7 };
typedef struct result { const void *data; size_t bytes; } result;
SUPPORT result result_of(const void *data, int64_t elements, tegroup_dtype dtype) {
    result r;
    r.data = data, r.bytes = dtype != TEGROUP_DTYPE_UNSET ? (size_t)elements * size_of(dtype) : 0;
    return r;
}
SUPPORT void results_of(const tegroup_moe_desc *d, result *results) {
    const tegroup_matrix *m[] = {&d->output, &d->grad_tokens, &d->grad_logits};
    const tegroup_tensor *t[] = {&d->experts.fc1.main_grad, &d->experts.fc2.main_grad, &d->experts.fc1.bias_grad, &d->experts.fc2.bias_grad};
    for (int i = 0; i < 3; i++) results[i] = result_of(m[i]->data, m[i]->rows * m[i]->cols, m[i]->dtype);
    for (int i = 0; i < 4; i++) results[3 + i] = result_of(t[i]->data, t[i]->shape.groups * t[i]->shape.rows * t[i]->shape.cols, t[i]->dtype);
}

#endif
