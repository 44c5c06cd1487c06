/* ---- Op chain ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "core/activation_types.h"
#include "layer/linear_types.h"
#include "layer/mlp_types.h"
#include "layer/chain_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/layout.h"
#include "core/checks.h"
#include "gemm/plan.h"
#include "gemm/check.h"
#include "gemm/run.h"
#include "layer/activation.h"
#include "layer/linear.h"
#include "layer/mlp.h"
#include "layer/chain_rules.h"

static inline tegroup_status tegroup_impl_chain_refused(tegroup_status status, const tegroup_chain_desc *desc,
                                                        int32_t at) {
    if (status != TEGROUP_OK && desc->refused) *desc->refused = at;
    return status;
}

/* A LINEAR as a layer, with the rows that it reads and writes: op i's routing may be its own. It points into itself. */
typedef struct tegroup_impl_chain_linear {
    tegroup_tensor input, out, grad_output, dgrad_out;
    tegroup_impl_layer layer;
} tegroup_impl_chain_linear;

static inline void tegroup_impl_chain_linear_of(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
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

static inline void tegroup_impl_chain_mlp(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain, int32_t i,
                                          tegroup_mlp_desc *mlp) {
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
static inline void tegroup_impl_chain_bias(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain, int32_t i,
                                           tegroup_op op, tegroup_gemm_desc *gemm) {
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
static inline tegroup_impl_names tegroup_impl_chain_bias_names(tegroup_op op) {
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

static inline tegroup_status tegroup_impl_chain_plan_bias(const tegroup_chain_desc *desc,
                                                          const tegroup_impl_chain *chain, int32_t i, tegroup_op op,
                                                          const tegroup_target *target, tegroup_linear_plan *plan,
                                                          tegroup_error *error) {
    const tegroup_impl_names names = tegroup_impl_chain_bias_names(op);
    tegroup_plan *one = op == TEGROUP_OP_WGRAD ? &plan->wgrad : &plan->forward;
    tegroup_gemm_desc gemm;
    tegroup_impl_chain_bias(desc, chain, i, op, &gemm);
    TEGROUP_IMPL_TRY(tegroup_impl_plan_make(&gemm, &names, target, one, error));
    if (one->workspace_bytes > plan->workspace_bytes) plan->workspace_bytes = one->workspace_bytes;
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_chain_call_bias(const tegroup_chain_desc *desc,
                                                          const tegroup_impl_chain *chain, int32_t i, tegroup_op op,
                                                          const tegroup_linear_plan *plan, int run,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_names names = tegroup_impl_chain_bias_names(op);
    const tegroup_plan *one = op == TEGROUP_OP_WGRAD ? &plan->wgrad : &plan->forward;
    tegroup_gemm_desc gemm;
    tegroup_impl_chain_bias(desc, chain, i, op, &gemm);
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check(one, &gemm, &names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_overlaps(one, &gemm, &names, error));
    return run ? tegroup_impl_gemm_run(one, &gemm, stream, error) : TEGROUP_OK;
}

static inline void tegroup_impl_chain_activation(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
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
    forward->input = tegroup_impl_mlp_matrix(&chain->values[i]);
    forward->output = tegroup_impl_mlp_matrix(&chain->values[i + 1]);
    if (given->row_scale_dtype != TEGROUP_DTYPE_UNSET) {
        forward->row_scale.data = (void *)(uintptr_t)given->row_scale;
        forward->row_scale.rows = desc->input.shape.rows;
        forward->row_scale.cols = 1;
        forward->row_scale.dtype = given->row_scale_dtype;
    }
    tegroup_impl_activation_backward_of(forward, backward);
    backward->grad_output = tegroup_impl_mlp_matrix(&chain->grads[i + 1]);
    backward->grad_input = tegroup_impl_mlp_matrix(&chain->grads[i]);
    backward->grad_row_scale = tegroup_impl_mlp_matrix(&given->grad_row_scale);
}

static inline tegroup_chain_planned tegroup_impl_chain_record(const tegroup_chain_desc *desc,
                                                              const tegroup_impl_chain *chain) {
    tegroup_chain_planned record;
    int32_t i;
    memset(&record, 0, sizeof record);
    record.groups = desc->input.shape.groups;
    record.rows = desc->input.shape.rows;
    for (i = 0; i <= desc->op_count; i++) {
        if (i < desc->op_count) record.kinds[i] = (uint8_t)desc->ops[i].kind;
        if (i < desc->op_count && desc->ops[i].kind == TEGROUP_CHAIN_ACTIVATION) {
            record.activations[i] = (uint8_t)desc->ops[i].activation;
            record.interleaved[i] = (uint8_t)desc->ops[i].interleaved;
        }
        if (i > 0 && chain->arguments[i - 1].out.dtype == TEGROUP_DTYPE_UNSET) record.saved |= 1u << i;
        record.cols[i] = chain->values[i].shape.cols;
        record.dtypes[i] = (uint8_t)chain->values[i].dtype;
        record.grad_dtypes[i] = (uint8_t)chain->grads[i].dtype;
    }
    for (i = 0; i < desc->op_count; i++) {
        const tegroup_mlp_weights *weights = &desc->ops[i].weights;
        const int backward = tegroup_impl_chain_backward(desc), linear = desc->ops[i].kind == TEGROUP_CHAIN_LINEAR;
        if (backward && linear) record.main_grads[i] = (uint8_t)weights->main_grad.dtype;
        if (backward && (linear || desc->ops[i].kind == TEGROUP_CHAIN_BIAS))
            record.bias_grads[i] = (uint8_t)weights->bias_grad.dtype;
        record.row_scales[i] = (uint8_t)chain->arguments[i].row_scale_dtype;
        record.grad_row_scales[i] = (uint8_t)chain->arguments[i].grad_row_scale.dtype;
    }
    return record;
}

/* A call's chain must be the planned one. What ops need for themselves is in their plans; this is what lies between them. */
static inline tegroup_status tegroup_impl_chain_check_planned(const tegroup_chain_plan *plan,
                                                              const tegroup_chain_desc *desc, tegroup_impl_chain *chain,
                                                              tegroup_error *error) {
#define TEGROUP_IMPL_SAME(member, field)                                                                               \
    TEGROUP_IMPL_RULE(planned->member == now.member, ERROR_PLAN, field, "must be as planned", planned->member,         \
                      now.member)
    const tegroup_chain_planned *planned = &plan->planned, now = tegroup_impl_chain_record(desc, chain);
    int32_t i;
    TEGROUP_IMPL_RULE(plan->op_count == desc->op_count, ERROR_PLAN, "op_count", "must be as planned", plan->op_count,
                      desc->op_count);
    TEGROUP_IMPL_SAME(groups, "input.shape.groups");
    TEGROUP_IMPL_SAME(rows, "input.shape.rows");
    TEGROUP_IMPL_SAME(cols[0], "input.shape.cols");
    TEGROUP_IMPL_SAME(dtypes[0], "input.dtype");
    for (i = 0; i < desc->op_count; i++) {
        chain->at = i;
        TEGROUP_IMPL_SAME(kinds[i], "ops.kind");
        TEGROUP_IMPL_SAME(activations[i], "ops.activation");
        TEGROUP_IMPL_SAME(interleaved[i], "ops.interleaved");
        TEGROUP_IMPL_SAME(cols[i + 1], now.kinds[i] == TEGROUP_CHAIN_LINEAR ? "weight.shape.rows"
                                       : now.kinds[i] == TEGROUP_CHAIN_USER ? "ops.cols"
                                                                            : "ops.activation");
        TEGROUP_IMPL_RULE(((planned->saved ^ now.saved) >> (i + 1) & 1u) == 0, ERROR_PLAN, "arguments.out",
                          "must be there just when planned so", !(planned->saved >> (i + 1) & 1u),
                          !(now.saved >> (i + 1) & 1u));
        TEGROUP_IMPL_SAME(dtypes[i + 1], "arguments.out.dtype");
        TEGROUP_IMPL_SAME(row_scales[i], "arguments.row_scale_dtype");
    }
    chain->at = -1;
    TEGROUP_IMPL_RULE(plan->fused == chain->fused, ERROR_PLAN, "ops", "must fuse as planned", plan->fused,
                      chain->fused);
    TEGROUP_IMPL_SAME(grad_dtypes[desc->op_count], "grad_output.dtype");
    for (i = desc->op_count - 1; i >= 0; i--) { /* a BIAS has that of the op after it */
        chain->at = i;
        TEGROUP_IMPL_SAME(grad_dtypes[i], "arguments.grad_input.dtype");
        TEGROUP_IMPL_SAME(grad_row_scales[i], "arguments.grad_row_scale.dtype");
        TEGROUP_IMPL_SAME(main_grads[i], "main_grad.dtype");
        TEGROUP_IMPL_SAME(bias_grads[i], "bias_grad.dtype");
    }
    chain->at = -1;
#undef TEGROUP_IMPL_SAME
    return TEGROUP_OK;
}

/* Ops that run as one from op i on. */
static inline int32_t tegroup_impl_chain_count(const tegroup_impl_chain *chain, int32_t i) {
    return chain->fused >> i & 1u ? 3 : 1;
}

/* A LINEAR's rules and the plans of its products. */
static inline tegroup_status tegroup_impl_chain_plan_linear(const tegroup_chain_desc *desc,
                                                            const tegroup_impl_chain *chain, int32_t i,
                                                            const tegroup_target *target, tegroup_linear_plan *plan,
                                                            tegroup_error *error) {
    tegroup_impl_chain_linear linear;
    const tegroup_impl_layer *layer = &linear.layer;
    int product;
    tegroup_impl_chain_linear_of(desc, chain, i, &linear);
    TEGROUP_IMPL_RULE(!tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_BIAS_GRAD)
                          || tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_MAIN_GRAD),
                      ERROR_COMBINATION, "bias_grad", "needs main_grad", 1, 0);
    TEGROUP_IMPL_RULE(!tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_BIAS_GRAD)
                          || tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_BIAS),
                      ERROR_COMBINATION, "bias_grad", "needs bias", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check(layer, error));
    if (tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE))
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_bias_type(layer, error));
    for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++)
        if (tegroup_impl_layer_has(layer, tegroup_impl_layer_output(product)))
            TEGROUP_IMPL_TRY(tegroup_impl_layer_plan(layer, product, 0, target, plan, error));
    return TEGROUP_OK;
}

/* Op i, or the MLP that begins there. bytes: the workspace that it needs. */
static inline tegroup_status tegroup_impl_chain_plan(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                     int32_t i, const tegroup_target *target, tegroup_chain_plan *plan,
                                                     size_t *bytes, tegroup_error *error) {
    const tegroup_chain_op *op = &desc->ops[i];
    *bytes = 0;
    if (chain->fused >> i & 1u) {
        tegroup_mlp_desc mlp;
        tegroup_mlp_plan made;
        tegroup_impl_chain_mlp(desc, chain, i, &mlp);
        TEGROUP_IMPL_TRY(tegroup_mlp_plan_make(&mlp, target, &made, error));
        plan->ops[i] = made.fc1;
        plan->ops[i + 2] = made.fc2;
        plan->mlps[i / 3] = made.planned;
        *bytes = made.workspace_bytes;
        return TEGROUP_OK;
    }
    if (op->kind == TEGROUP_CHAIN_LINEAR)
        TEGROUP_IMPL_TRY(tegroup_impl_chain_plan_linear(desc, chain, i, target, &plan->ops[i], error));
    if (op->kind == TEGROUP_CHAIN_BIAS) {
        TEGROUP_IMPL_TRY(
            tegroup_impl_chain_plan_bias(desc, chain, i, TEGROUP_OP_FORWARD, target, &plan->ops[i], error));
        if (tegroup_impl_chain_backward(desc) && op->weights.bias_grad.dtype != TEGROUP_DTYPE_UNSET)
            TEGROUP_IMPL_TRY(
                tegroup_impl_chain_plan_bias(desc, chain, i, TEGROUP_OP_WGRAD, target, &plan->ops[i], error));
    }
    *bytes = plan->ops[i].workspace_bytes;
    return TEGROUP_OK;
}

/* What each byte of a plan's memory is for. */
static inline void tegroup_impl_chain_layout(const tegroup_chain_plan *plan, tegroup_chain_memory memory,
                                             tegroup_layout *layout) {
    const tegroup_chain_planned *planned = &plan->planned;
    int64_t most = 0;
    int32_t i;
    tegroup_impl_layout_begin(layout);
    for (i = 1; i <= plan->op_count && memory == TEGROUP_CHAIN_SAVED; i++)
        if (planned->saved >> i & 1u)
            tegroup_impl_layout_add(
                layout, "what an op gave",
                tegroup_impl_rows_bytes(planned->rows, planned->cols[i], (tegroup_dtype)planned->dtypes[i]));
    if (memory == TEGROUP_CHAIN_SAVED) return;
    tegroup_impl_layout_add(layout, "the op that runs", (int64_t)plan->op_bytes);
    if (planned->grad_dtypes[plan->op_count] == TEGROUP_DTYPE_UNSET) return;
    for (i = 1; i <= plan->op_count; i++) most = tegroup_impl_max(most, planned->cols[i]);
    most = tegroup_impl_rows_bytes(planned->rows, most, (tegroup_dtype)planned->dtypes[0]);
    for (i = 0; i < TEGROUP_IMPL_CHAIN_TURNS; i++)
        tegroup_impl_layout_add(layout, "gradients between ops, by turns", most);
}

static inline tegroup_status tegroup_impl_chain_make(const tegroup_chain_desc *desc, const tegroup_target *target,
                                                     tegroup_chain_plan *plan, tegroup_impl_chain *chain,
                                                     tegroup_error *error) {
    tegroup_chain_plan made;
    tegroup_target taken;
    tegroup_layout saved, workspace;
    size_t bytes;
    int32_t i;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve(desc, NULL, NULL, chain, error));
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    if (target) TEGROUP_IMPL_TRY(tegroup_impl_take_target(target, &taken, error));
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.magic = TEGROUP_CHAIN_PLAN_MAGIC;
    made.op_count = desc->op_count;
    made.fused = chain->fused;
    made.planned = tegroup_impl_chain_record(desc, chain);
    for (i = 0; i < desc->op_count; i += tegroup_impl_chain_count(chain, i)) {
        chain->at = i;
        TEGROUP_IMPL_TRY(tegroup_impl_chain_plan(desc, chain, i, target, &made, &bytes, error));
        if (bytes > made.op_bytes) made.op_bytes = bytes;
    }
    chain->at = -1;
    tegroup_impl_chain_layout(&made, TEGROUP_CHAIN_SAVED, &saved);
    tegroup_impl_chain_layout(&made, TEGROUP_CHAIN_WORKSPACE, &workspace);
    TEGROUP_IMPL_RULE(!tegroup_impl_layout_overflowed(&saved) && !tegroup_impl_layout_overflowed(&workspace),
                      ERROR_OVERFLOW, "input.shape.rows", "must leave saved and the workspace addressable",
                      tegroup_impl_max_bytes(), desc->input.shape.rows);
    made.saved_bytes = saved.total_bytes;
    made.workspace_bytes = workspace.total_bytes;
    *plan = made;
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_chain_plan_make(const tegroup_chain_desc *desc, const tegroup_target *target,
                                                   tegroup_chain_plan *plan, tegroup_error *error) {
    tegroup_chain_desc taken;
    tegroup_impl_chain chain;
    tegroup_status status;
    TEGROUP_IMPL_TAKE(desc, taken);
    status = tegroup_impl_chain_make(desc, target, plan, &chain, error);
    return tegroup_impl_chain_refused(status, desc, chain.at);
}

static inline tegroup_status tegroup_impl_chain_check_plan(const tegroup_chain_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE_PLAN(plan, TEGROUP_CHAIN_PLAN_MAGIC, "must be what tegroup_chain_plan_make wrote");
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_chain_layout(const tegroup_chain_plan *plan, tegroup_chain_memory memory,
                                                tegroup_layout *layout, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_plan(plan, error));
    TEGROUP_IMPL_RULE(memory != TEGROUP_CHAIN_MEMORY_UNSET, ERROR_UNSET, "memory", "must be set",
                      TEGROUP_CHAIN_WORKSPACE, 0);
    TEGROUP_IMPL_RULE((uint32_t)memory <= TEGROUP_CHAIN_SAVED, ERROR_VALUE, "memory", "must be a tegroup_chain_memory",
                      TEGROUP_CHAIN_SAVED, memory);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    tegroup_impl_chain_layout(plan, memory, layout);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_chain_judge(const tegroup_chain_desc *desc, tegroup_impl_chain *chain,
                                                      tegroup_chain_verdict *verdicts, tegroup_error *error) {
    int32_t i, j, count;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve(desc, NULL, NULL, chain, error));
    TEGROUP_IMPL_RULE(verdicts != NULL, ERROR_NULL_ARGUMENT, "verdicts", "must not be NULL", 1, 0);
    for (i = 0; i < desc->op_count; i += count)
        for (j = i, count = tegroup_impl_chain_count(chain, i); j < i + count; j++) {
            verdicts[j].first = i;
            verdicts[j].count = count;
            verdicts[j].reason = chain->reasons[j];
        }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_chain_explain(const tegroup_chain_desc *desc,
                                                 tegroup_chain_verdict verdicts[TEGROUP_CHAIN_MAX_OPS],
                                                 tegroup_error *error) {
    tegroup_chain_desc taken;
    tegroup_impl_chain chain;
    tegroup_status status;
    TEGROUP_IMPL_TAKE(desc, taken);
    status = tegroup_impl_chain_judge(desc, &chain, verdicts, error);
    return tegroup_impl_chain_refused(status, desc, chain.at);
}

/* Rows of op i and its routing, by a linear's word for them: what no product of the op sees to. */
static inline tegroup_status tegroup_impl_chain_check_memory(const tegroup_chain_desc *desc,
                                                             const tegroup_impl_chain *chain, int32_t i,
                                                             const tegroup_tensor *rows, int word,
                                                             tegroup_error *error) {
    const tegroup_tensor t = tegroup_impl_chain_rows(chain, i, rows);
    if (t.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    return tegroup_impl_check_memory(&t, tegroup_impl_linear_name(word), desc->options.check_level, error);
}

/* What a caller's function is handed. */
static inline tegroup_status tegroup_impl_chain_check_user(const tegroup_chain_desc *desc,
                                                           const tegroup_impl_chain *chain, int32_t i, int backward,
                                                           tegroup_error *error) {
    const tegroup_tensor *x = &chain->values[i], *dx = &chain->grads[i];
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_memory(desc, chain, i, x, TEGROUP_IMPL_LINEAR_INPUT, error));
    if (!backward) return tegroup_impl_chain_check_memory(desc, chain, i, x + 1, TEGROUP_IMPL_LINEAR_OUT, error);
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_memory(desc, chain, i, dx + 1, TEGROUP_IMPL_LINEAR_GRAD_OUTPUT, error));
    return tegroup_impl_chain_check_memory(desc, chain, i, dx, TEGROUP_IMPL_LINEAR_DGRAD_OUT, error);
}

/* What it returned; why not, in its own words or, where it left those out, in ours. */
static inline tegroup_status tegroup_impl_chain_user_said(tegroup_status status, const char *field,
                                                          const tegroup_error *said, tegroup_error *error) {
    if (status == TEGROUP_OK) return status;
    if (said->status != status)
        return tegroup_impl_fail(error, status, field, "returned this status, and no more", TEGROUP_OK, status);
    if (error) *error = *said;
    return status;
}

/* The plans of the MLP that begins at op i, and the workspace that each of its calls needs. */
static inline tegroup_impl_mlp_plans tegroup_impl_chain_mlp_plans(const tegroup_chain_plan *plan, int32_t i) {
    tegroup_impl_mlp_plans plans;
    plans.planned = &plan->mlps[i / 3];
    plans.fc1 = &plan->ops[i];
    plans.fc2 = &plan->ops[i + 2];
    return plans;
}

static inline size_t tegroup_impl_chain_mlp_bytes(const tegroup_impl_mlp_plans *plans, tegroup_mlp_memory memory) {
    tegroup_layout layout;
    (void)tegroup_impl_mlp_layout(plans, memory, &layout);
    return layout.total_bytes;
}

/* One op, or the MLP that begins there. run 0: only what it checks. */
static inline tegroup_status tegroup_impl_chain_forward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                        const tegroup_impl_chain *chain, int32_t i, int run,
                                                        struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_chain_op *op = &desc->ops[i];
    tegroup_impl_chain_linear linear;
    tegroup_activation_desc activation;
    tegroup_activation_backward_desc unused;
    tegroup_error said;
    if (chain->fused >> i & 1u) {
        const tegroup_impl_mlp_plans plans = tegroup_impl_chain_mlp_plans(plan, i);
        tegroup_mlp_desc mlp;
        tegroup_impl_chain_mlp(desc, chain, i, &mlp);
        return tegroup_impl_mlp_forward(&plans, tegroup_impl_chain_mlp_bytes(&plans, TEGROUP_MLP_WORKSPACE), &mlp, run,
                                        stream, error);
    }
    switch (op->kind) {
    case TEGROUP_CHAIN_LINEAR:
        tegroup_impl_chain_linear_of(desc, chain, i, &linear);
        return tegroup_impl_layer_call(&linear.layer, &plan->ops[i], TEGROUP_OP_FORWARD, run, stream, error);
    case TEGROUP_CHAIN_BIAS:
        return tegroup_impl_chain_call_bias(desc, chain, i, TEGROUP_OP_FORWARD, &plan->ops[i], run, stream, error);
    case TEGROUP_CHAIN_USER:
        if (!run) return tegroup_impl_chain_check_user(desc, chain, i, 0, error);
        memset(&said, 0, sizeof said);
        return tegroup_impl_chain_user_said(
            op->forward(op->context, &chain->values[i], &chain->values[i + 1], stream, &said), "ops.forward", &said,
            error);
    default:
        TEGROUP_IMPL_TRY(
            tegroup_impl_chain_check_memory(desc, chain, i, &chain->values[i], TEGROUP_IMPL_LINEAR_INPUT, error));
        tegroup_impl_chain_activation(desc, chain, i, &activation, &unused);
        TEGROUP_IMPL_TRY(tegroup_impl_activation_check(&activation, tegroup_impl_activation_own_names(), error));
        return run ? tegroup_impl_activation_run(&activation, desc->options.threads, stream, error) : TEGROUP_OK;
    }
}

static inline tegroup_status tegroup_impl_chain_back(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                     const tegroup_impl_chain *chain, int32_t i, int run,
                                                     struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_chain_op *op = &desc->ops[i];
    const int wants_dx = chain->grads[i].dtype != TEGROUP_DTYPE_UNSET;
    tegroup_impl_chain_linear linear;
    tegroup_activation_desc unused;
    tegroup_activation_backward_desc activation;
    tegroup_error said;
    if (chain->fused >> i & 1u) {
        const tegroup_impl_mlp_plans plans = tegroup_impl_chain_mlp_plans(plan, i);
        tegroup_mlp_desc mlp;
        tegroup_impl_chain_mlp(desc, chain, i, &mlp);
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_dgrad(&plans, tegroup_impl_chain_mlp_bytes(&plans, TEGROUP_MLP_WORKSPACE),
                                                &mlp, run, stream, error));
        if (mlp.fc1.main_grad.dtype == TEGROUP_DTYPE_UNSET && mlp.fc2.main_grad.dtype == TEGROUP_DTYPE_UNSET)
            return TEGROUP_OK;
        return tegroup_impl_mlp_wgrad(&plans, tegroup_impl_chain_mlp_bytes(&plans, TEGROUP_MLP_WGRAD_WORKSPACE), &mlp,
                                      run, stream, error);
    }
    switch (op->kind) {
    case TEGROUP_CHAIN_LINEAR:
        tegroup_impl_chain_linear_of(desc, chain, i, &linear);
        if (wants_dx) TEGROUP_IMPL_TRY(tegroup_impl_layer_dgrad(&linear.layer, &plan->ops[i], run, stream, error));
        if (op->weights.main_grad.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
        return tegroup_impl_layer_call(&linear.layer, &plan->ops[i], TEGROUP_OP_WGRAD, run, stream, error);
    case TEGROUP_CHAIN_BIAS:
        if (op->weights.bias_grad.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
        return tegroup_impl_chain_call_bias(desc, chain, i, TEGROUP_OP_WGRAD, &plan->ops[i], run, stream, error);
    case TEGROUP_CHAIN_USER:
        if (!run) return tegroup_impl_chain_check_user(desc, chain, i, 1, error);
        memset(&said, 0, sizeof said);
        return tegroup_impl_chain_user_said(
            op->backward(op->context, &chain->values[i], &chain->grads[i + 1], &chain->grads[i], stream, &said),
            "ops.backward", &said, error);
    default:
        if (!wants_dx) return TEGROUP_OK;
        TEGROUP_IMPL_TRY(
            tegroup_impl_chain_check_memory(desc, chain, i, &chain->values[i], TEGROUP_IMPL_LINEAR_INPUT, error));
        tegroup_impl_chain_activation(desc, chain, i, &unused, &activation);
        TEGROUP_IMPL_TRY(
            tegroup_impl_activation_backward_check(&activation, tegroup_impl_activation_own_names(), error));
        return run ? tegroup_impl_activation_backward_run(&activation, desc->options.threads, stream, error)
                   : TEGROUP_OK;
    }
}

/* Every op is checked before the first runs. */
static inline tegroup_status tegroup_impl_chain_call(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                     int backward, tegroup_impl_chain *chain,
                                                     struct CUstream_st *stream, tegroup_error *error) {
    int32_t starts[TEGROUP_CHAIN_MAX_OPS], i, count = 0, run;
    char *gradients = NULL;
    chain->at = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_plan(plan, error));
    if (desc->options.workspace) gradients = (char *)desc->options.workspace + plan->op_bytes;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve(desc, &plan->fused, gradients, chain, error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_planned(plan, desc, chain, error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_alike(desc, chain, error));
    TEGROUP_IMPL_RULE_AS(DTYPE, !backward || tegroup_impl_chain_backward(desc), ERROR_UNSET, "grad_output.dtype",
                         "must be set", TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_workspace(plan->saved_bytes, "saved", "saved_bytes", desc->saved, desc->saved_bytes, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_options_workspace(plan->workspace_bytes, &desc->options, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_chain_check_apart(desc, chain, plan->workspace_bytes, backward, TEGROUP_CHECK_HOST, error));
    for (i = 0; i < desc->op_count; i += tegroup_impl_chain_count(chain, i)) starts[count++] = i;
    for (run = 0; run < 2; run++) {
        for (i = 0; i < count; i++) {
            chain->at = starts[backward ? count - 1 - i : i];
            TEGROUP_IMPL_TRY(backward ? tegroup_impl_chain_back(plan, desc, chain, chain->at, run, stream, error)
                                      : tegroup_impl_chain_forward(plan, desc, chain, chain->at, run, stream, error));
        }
        if (!run && desc->options.check_level == TEGROUP_CHECK_DEEP) /* lists may be walked now */
            TEGROUP_IMPL_TRY(tegroup_impl_chain_check_apart(desc, chain, plan->workspace_bytes, backward,
                                                            TEGROUP_CHECK_DEEP, error));
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_chain_forward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                 struct CUstream_st *stream, tegroup_error *error) {
    tegroup_chain_desc taken;
    tegroup_impl_chain chain;
    tegroup_status status;
    TEGROUP_IMPL_TAKE(desc, taken);
    status = tegroup_impl_chain_call(plan, desc, 0, &chain, stream, error);
    return tegroup_impl_chain_refused(status, desc, chain.at);
}

TEGROUP_API tegroup_status tegroup_chain_backward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                  struct CUstream_st *stream, tegroup_error *error) {
    tegroup_chain_desc taken;
    tegroup_impl_chain chain;
    tegroup_status status;
    TEGROUP_IMPL_TAKE(desc, taken);
    status = tegroup_impl_chain_call(plan, desc, 1, &chain, stream, error);
    return tegroup_impl_chain_refused(status, desc, chain.at);
}
