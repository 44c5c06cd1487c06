/* cc -O2 -I. examples/chain.c -o chain -lm && ./chain */
/* A chain of ops with one of the caller's own in it, forward and backward: a linear layer with bias, ReLU, dropout (ours), a
 * linear layer, and the router's weight of each row. The gradient of one weight is compared with differences of the loss. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

enum { EXPERTS = 2, ROWS = 5, IN = 3, HIDDEN = 4, OUT = 2 };
enum { FIRST, RELU, DROPOUT, SECOND, WEIGH, OPS }; /* the ops, by their index */
static double x[ROWS * IN], y[ROWS * OUT], dy[ROWS * OUT], probability[ROWS] = {0.5, 1, 0.25, 0.75, 0.5};
static double w1[EXPERTS * HIDDEN * IN], b1[EXPERTS * HIDDEN], w2[EXPERTS * OUT * HIDDEN], dw1[EXPERTS * HIDDEN * IN];

static void fill(double *values, int count, int step) {
    for (int i = 0; i < count; i++) values[i] = (i * step % 13 - 6) / 8.0;
}

/* Ours: every third element is dropped, and the others make up for it. The gradient is dropped alike. */
static void drop(const tegroup_tensor *from, const tegroup_tensor *to) {
    const double *in = (const double *)from->data;
    double *out = (double *)to->data;
    for (int64_t i = 0; i < from->shape.rows * from->shape.cols; i++) out[i] = i % 3 == 0 ? 0 : 1.5 * in[i];
}
static tegroup_status dropout(void *context, const tegroup_tensor *input, const tegroup_tensor *output,
                              struct CUstream_st *stream, tegroup_error *error) {
    (void)context, (void)stream, (void)error;
    drop(input, output);
    return TEGROUP_OK;
}
static tegroup_status dropout_backward(void *context, const tegroup_tensor *input, const tegroup_tensor *grad_output,
                                       const tegroup_tensor *grad_input, struct CUstream_st *stream,
                                       tegroup_error *error) {
    (void)context, (void)input, (void)stream, (void)error;
    drop(grad_output, grad_input);
    return TEGROUP_OK;
}

static double loss_of(const tegroup_chain_plan *plan, const tegroup_chain_desc *chain) { /* the sum of y^2 / 2 */
    double loss = 0;
    if (tegroup_chain_forward(plan, chain, NULL, NULL)) exit(1);
    for (int i = 0; i < ROWS * OUT; i++) loss += y[i] * y[i] / 2;
    return loss;
}

int main(void) {
    const int64_t counts[EXPERTS] = {2, 3};
    const tegroup_dtype f64 = TEGROUP_DTYPE_F64;
    const double step = 1e-4;
    tegroup_layout layout;
    tegroup_chain_verdict verdicts[TEGROUP_CHAIN_MAX_OPS];
    tegroup_chain_plan plan;
    tegroup_error error;
    char text[256];
    fill(x, ROWS * IN, 7);
    fill(w1, EXPERTS * HIDDEN * IN, 5);
    fill(b1, EXPERTS * HIDDEN, 3);
    fill(w2, EXPERTS * OUT * HIDDEN, 11);

    tegroup_sizes sizes = tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    tegroup_shape rows = tegroup_shape_of(EXPERTS, ROWS, IN, sizes);
    if (tegroup_snapshot_layout(&rows, &layout, &error)) goto failed;
    void *snapshot = aligned_alloc(TEGROUP_ALIGNMENT, layout.total_bytes);
    if (tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, NULL, &error)) goto failed;

    /* what the ops are, and what some of them are given: an argument names its op */
    tegroup_chain_op ops[OPS] = {
        [FIRST] = {.kind = TEGROUP_CHAIN_LINEAR},
        [RELU] = {.kind = TEGROUP_CHAIN_ACTIVATION, .activation = TEGROUP_ACTIVATION_RELU},
        [DROPOUT] = {.kind = TEGROUP_CHAIN_USER, .forward = dropout, .backward = dropout_backward},
        [SECOND] = {.kind = TEGROUP_CHAIN_LINEAR},
        [WEIGH] = {.kind = TEGROUP_CHAIN_SCALE},
    };
    ops[FIRST].weights.weight = tegroup_tensor_uniform(EXPERTS, HIDDEN, IN, f64, w1);
    ops[FIRST].weights.bias = tegroup_tensor_uniform(EXPERTS, 1, HIDDEN, f64, b1);
    ops[FIRST].weights.main_grad = tegroup_tensor_uniform(EXPERTS, HIDDEN, IN, f64, dw1);
    ops[SECOND].weights.weight = tegroup_tensor_uniform(EXPERTS, OUT, HIDDEN, f64, w2);
    tegroup_chain_argument last = {.op = WEIGH, .row_scale = probability, .row_scale_dtype = f64};
    last.out = tegroup_tensor_of(rows, OUT, f64, y);

    tegroup_chain_desc chain = {.struct_size = sizeof chain, .space = TEGROUP_SPACE_HOST};
    chain.ops = ops;
    chain.op_count = OPS;
    chain.arguments = &last;
    chain.argument_count = 1;
    chain.input = tegroup_tensor_of(rows, IN, f64, x);
    chain.grad_output = tegroup_tensor_of(rows, OUT, f64, dy);
    chain.options.compute = TEGROUP_COMPUTE_F64;
    if (tegroup_chain_explain(&chain, verdicts, &error)) goto failed;
    printf("ReLU runs by itself: %s\n", verdicts[RELU].reason);
    if (tegroup_chain_plan_make(&chain, NULL, &plan, &error)) goto failed;
    chain.saved_bytes = plan.saved_bytes;
    chain.saved = aligned_alloc(TEGROUP_ALIGNMENT, chain.saved_bytes);
    chain.options.workspace_bytes = plan.workspace_bytes;
    chain.options.workspace = aligned_alloc(TEGROUP_ALIGNMENT, chain.options.workspace_bytes);

    double *moved = &w1[7]; /* of expert 0 */
    *moved += step;
    const double above = loss_of(&plan, &chain);
    *moved -= 2 * step;
    const double below = loss_of(&plan, &chain);
    *moved += step;
    if (tegroup_chain_forward(&plan, &chain, NULL, &error)) goto failed;
    for (int i = 0; i < ROWS * OUT; i++) dy[i] = y[i];
    if (tegroup_chain_backward(&plan, &chain, NULL, &error)) goto failed;
    const double gradient = dw1[moved - w1], difference = (above - below) / (2 * step);
    printf("gradient of a weight: %.6f, by differences %.6f\n", gradient, difference);
    return !(fabs(gradient - difference) < 1e-6);
failed:
    tegroup_error_text(&error, text, sizeof text);
    return puts(text), 1;
}
