/* ---- Op chain: ops as layers ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "core/activation_types.h"
#include "layer/linear_types.h"
#include "layer/mlp_types.h"
#include "layer/chain_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "gemm/plan.h"
#include "gemm/check.h"
#include "gemm/run.h"
#include "layer/activation.h"
#include "layer/linear_rules.h"
#include "layer/linear.h"
#include "layer/chain_rules.h"

/* A LINEAR as a layer, with the rows that it reads and writes: op i's routing may be its own. It points into itself. */
typedef struct tegroup_impl_chain_linear {
    tegroup_tensor input, out, grad_output, dgrad_out;
    tegroup_impl_layer layer;
} tegroup_impl_chain_linear;

TEGROUP_IMPL_STATIC void tegroup_impl_chain_linear_of(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                      int32_t i, tegroup_impl_chain_linear *linear) {
    const tegroup_mlp_weights *weights = &desc->ops[i].weights;
    const tegroup_chain_argument *given = &chain->arguments[i];
    tegroup_impl_layer *layer = &linear->layer;
    int tensor;
    memset(layer, 0, sizeof *layer);
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        layer->name[tensor] = tegroup_impl_linear_name(tensor);
    linear->input = tegroup_impl_chain_rows(chain, i, &chain->values[i]);
    linear->out = tegroup_impl_chain_rows(chain, i, &chain->values[i + 1]);
    layer->tensor[TEGROUP_IMPL_LINEAR_WEIGHT] = &weights->weight;
    layer->tensor[TEGROUP_IMPL_LINEAR_BIAS] = &weights->bias;
    layer->tensor[TEGROUP_IMPL_LINEAR_INPUT] = &linear->input;
    layer->tensor[TEGROUP_IMPL_LINEAR_OUT] = &linear->out;
    layer->space = desc->space;
    layer->row_scale = given->row_scale;
    layer->row_scale_dtype = given->row_scale_dtype;
    layer->weight_layout = weights->weight_layout;
    layer->weight_layout_name = "weight_layout";
    layer->options = &desc->options;
    if (!tegroup_impl_chain_backward(desc)) return;
    linear->grad_output = tegroup_impl_chain_rows(chain, i, &chain->grads[i + 1]);
    linear->dgrad_out = tegroup_impl_chain_rows(chain, i, &chain->grads[i]);
    layer->tensor[TEGROUP_IMPL_LINEAR_MAIN_GRAD] = &weights->main_grad;
    layer->tensor[TEGROUP_IMPL_LINEAR_BIAS_GRAD] = &weights->bias_grad;
    layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT] = &linear->grad_output;
    layer->tensor[TEGROUP_IMPL_LINEAR_DGRAD_OUT] = &linear->dgrad_out;
    layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE] = &given->grad_row_scale;
    layer->accumulate = desc->accumulate;
}

TEGROUP_IMPL_STATIC void tegroup_impl_chain_mlp(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                int32_t i, tegroup_mlp_desc *mlp) {
    const tegroup_chain_op *op = &desc->ops[i + 1];
    const tegroup_chain_argument *given = &chain->arguments[i + 1];
    const int backward = tegroup_impl_chain_backward(desc);
    memset(mlp, 0, sizeof *mlp);
    mlp->struct_size = sizeof *mlp;
    mlp->space = desc->space;
    mlp->fc1 = desc->ops[i].weights;
    mlp->fc2 = desc->ops[i + 2].weights;
    mlp->activation = op->activation;
    mlp->interleaved = op->interleaved;
    mlp->alpha = op->alpha;
    mlp->limit = op->limit;
    mlp->input = tegroup_impl_chain_rows(chain, i, &chain->values[i]);
    mlp->preactivation = tegroup_impl_chain_rows(chain, i, &chain->values[i + 1]);
    mlp->activated = tegroup_impl_chain_rows(chain, i, &chain->values[i + 2]);
    mlp->out = tegroup_impl_chain_rows(chain, i, &chain->values[i + 3]);
    mlp->row_scale = given->row_scale;
    mlp->row_scale_dtype = given->row_scale_dtype;
    mlp->fc2_bias_scaled = chain->arguments[i + 2].row_scale_dtype != TEGROUP_DTYPE_UNSET;
    mlp->options = desc->options;
    if (!backward) {
        memset(&mlp->fc1.main_grad, 0, sizeof mlp->fc1.main_grad);
        memset(&mlp->fc1.bias_grad, 0, sizeof mlp->fc1.bias_grad);
        memset(&mlp->fc2.main_grad, 0, sizeof mlp->fc2.main_grad);
        memset(&mlp->fc2.bias_grad, 0, sizeof mlp->fc2.bias_grad);
        return;
    }
    mlp->grad_output = tegroup_impl_chain_rows(chain, i, &chain->grads[i + 3]);
    mlp->grad_preactivation = tegroup_impl_chain_rows(chain, i, &chain->grads[i + 1]);
    mlp->dgrad_out = tegroup_impl_chain_rows(chain, i, &chain->grads[i]);
    mlp->grad_row_scale = given->grad_row_scale;
    mlp->accumulate =
        desc->accumulate
        && (mlp->fc1.main_grad.dtype != TEGROUP_DTYPE_UNSET || mlp->fc2.main_grad.dtype != TEGROUP_DTYPE_UNSET);
}

/* x + bias is a product without terms: k is 0, C is x, and beta 1. So is the sum of dY that is the bias's gradient. */
TEGROUP_IMPL_STATIC void tegroup_impl_chain_bias(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                 int32_t i, tegroup_op op, tegroup_gemm_desc *gemm) {
    static const float one = 1;
    const tegroup_mlp_weights *weights = &desc->ops[i].weights;
    tegroup_tensor x = tegroup_impl_chain_rows(chain, i, &chain->values[i]), none = x;
    none.shape.cols = 0;
    none.ld = 0;
    none.data = NULL;
    memset(gemm, 0, sizeof *gemm);
    gemm->struct_size = sizeof *gemm;
    gemm->space = desc->space;
    gemm->op = op;
    gemm->b = weights->bias; /* for its groups */
    gemm->b.dtype = x.dtype;
    gemm->b.data = NULL;
    gemm->b.pointers = NULL;
    gemm->b.pointers_space = TEGROUP_SPACE_UNSET;
    gemm->b.ld = gemm->b.group_stride = 0;
    gemm->b.shape.rows = x.shape.cols;
    gemm->b.shape.cols = 0;
    if (op == TEGROUP_OP_FORWARD) {
        gemm->a = none;
        gemm->c = x;
        gemm->d = tegroup_impl_chain_rows(chain, i, &chain->values[i + 1]);
        gemm->bias = weights->bias;
        gemm->beta.data = &one;
        gemm->beta.space = TEGROUP_SPACE_HOST;
    } else {
        gemm->d = gemm->b;
        gemm->d.dtype = weights->bias_grad.dtype;
        gemm->a = tegroup_impl_chain_rows(chain, i, &chain->grads[i + 1]);
        gemm->b = none;
        gemm->b.dtype = gemm->a.dtype;
        gemm->bias = weights->bias_grad;
    }
    gemm->options = desc->options;
    gemm->options.backend = TEGROUP_BACKEND_AUTO;
    if (op == TEGROUP_OP_WGRAD) gemm->accumulate = desc->accumulate;
}

/* The operands of these products, in a linear's words. */
TEGROUP_IMPL_STATIC tegroup_impl_names tegroup_impl_chain_bias_names(tegroup_op op) {
    tegroup_impl_names names = *tegroup_impl_gemm_names();
    const int wgrad = op == TEGROUP_OP_WGRAD;
    const tegroup_impl_name *bias =
        tegroup_impl_linear_name(wgrad ? TEGROUP_IMPL_LINEAR_BIAS_GRAD : TEGROUP_IMPL_LINEAR_BIAS);
    const tegroup_impl_name *rows =
        tegroup_impl_linear_name(wgrad ? TEGROUP_IMPL_LINEAR_GRAD_OUTPUT : TEGROUP_IMPL_LINEAR_INPUT);
    names.operand[TEGROUP_IMPL_A] = rows;
    names.operand[TEGROUP_IMPL_B] = bias;
    names.operand[TEGROUP_IMPL_C] = wgrad ? bias : rows;
    names.operand[TEGROUP_IMPL_D] = wgrad ? bias : tegroup_impl_linear_name(TEGROUP_IMPL_LINEAR_OUT);
    names.operand[TEGROUP_IMPL_BIAS] = bias;
    return names;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_plan_bias(const tegroup_chain_desc *desc,
                                                                const tegroup_impl_chain *chain, int32_t i,
                                                                tegroup_op op, const tegroup_target *target,
                                                                tegroup_linear_plan *plan, tegroup_error *error) {
    const tegroup_impl_names names = tegroup_impl_chain_bias_names(op);
    tegroup_plan *one = op == TEGROUP_OP_WGRAD ? &plan->wgrad : &plan->forward;
    tegroup_gemm_desc gemm;
    tegroup_impl_chain_bias(desc, chain, i, op, &gemm);
    TEGROUP_IMPL_TRY(tegroup_impl_plan_make(&gemm, &names, target, one, error));
    if (one->workspace_bytes > plan->workspace_bytes) plan->workspace_bytes = one->workspace_bytes;
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_call_bias(const tegroup_chain_desc *desc,
                                                                const tegroup_impl_chain *chain, int32_t i,
                                                                tegroup_op op, const tegroup_linear_plan *plan, int run,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_names names = tegroup_impl_chain_bias_names(op);
    const tegroup_plan *one = op == TEGROUP_OP_WGRAD ? &plan->wgrad : &plan->forward;
    tegroup_gemm_desc gemm;
    tegroup_impl_chain_bias(desc, chain, i, op, &gemm);
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check(one, &gemm, &names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_overlaps(one, &gemm, &names, error));
    return run ? tegroup_impl_gemm_run(one, &gemm, stream, error) : TEGROUP_OK;
}

TEGROUP_IMPL_STATIC void tegroup_impl_chain_activation(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                       int32_t i, tegroup_activation_desc *forward,
                                                       tegroup_activation_backward_desc *backward) {
    const tegroup_chain_op *op = &desc->ops[i];
    const tegroup_chain_argument *given = &chain->arguments[i];
    memset(forward, 0, sizeof *forward);
    forward->struct_size = sizeof *forward;
    forward->space = desc->space;
    forward->activation = TEGROUP_ACTIVATION_IDENTITY; /* SCALE */
    if (op->kind == TEGROUP_CHAIN_ACTIVATION) {
        forward->activation = op->activation;
        forward->interleaved = op->interleaved;
        forward->alpha = op->alpha;
        forward->limit = op->limit;
    }
    forward->snapshot = tegroup_impl_chain_snapshot(chain, i);
    forward->input = tegroup_impl_rows_matrix(&chain->values[i]);
    forward->output = tegroup_impl_rows_matrix(&chain->values[i + 1]);
    if (given->row_scale_dtype != TEGROUP_DTYPE_UNSET) {
        forward->row_scale.data = (void *)(uintptr_t)given->row_scale;
        forward->row_scale.rows = desc->input.shape.rows;
        forward->row_scale.cols = 1;
        forward->row_scale.dtype = given->row_scale_dtype;
    }
    forward->threads = desc->options.threads;
    tegroup_impl_activation_backward_of(forward, backward);
    backward->grad_output = tegroup_impl_rows_matrix(&chain->grads[i + 1]);
    backward->grad_input = tegroup_impl_rows_matrix(&chain->grads[i]);
    backward->grad_row_scale = tegroup_impl_rows_matrix(&given->grad_row_scale);
}
