/* ---- Op chain: plan ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "layer/linear_types.h"
#include "layer/mlp_types.h"
#include "layer/chain_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/layout.h"
#include "gemm/plan.h"
#include "layer/linear_rules.h"
#include "layer/mlp_plan.h"
#include "layer/chain_rules.h"
#include "layer/chain_ops.h"

/* Tell the caller which op a failure is about. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_name_op(tegroup_status status, const tegroup_chain_desc *desc,
                                                              int32_t at) {
    if (status != TEGROUP_OK && desc->refused) *desc->refused = at;
    return status;
}

TEGROUP_IMPL_STATIC tegroup_chain_planned tegroup_impl_chain_record(const tegroup_chain_desc *desc,
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

/* A call's chain must be the planned one. What ops need for themselves is in their plans; this is what lies between
 * them. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_planned(const tegroup_chain_plan *plan,
                                                                    const tegroup_chain_desc *desc,
                                                                    tegroup_impl_chain *chain, tegroup_error *error) {
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
        TEGROUP_IMPL_SAME(cols[i + 1], now.kinds[i] == TEGROUP_CHAIN_USER     ? "ops.cols"
                                       : now.kinds[i] != TEGROUP_CHAIN_LINEAR ? "ops.activation"
                                       : desc->ops[i].weights.weight_layout == TEGROUP_WEIGHT_IN_OUT
                                           ? "weight.shape.cols"
                                           : "weight.shape.rows");
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
TEGROUP_IMPL_STATIC int32_t tegroup_impl_chain_count(const tegroup_impl_chain *chain, int32_t i) {
    return chain->fused >> i & 1u ? 3 : 1;
}

/* A LINEAR's rules and the plans of its products. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_plan_linear(const tegroup_chain_desc *desc,
                                                                  const tegroup_impl_chain *chain, int32_t i,
                                                                  const tegroup_target *target,
                                                                  tegroup_linear_plan *plan, tegroup_error *error) {
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
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_plan(const tegroup_chain_desc *desc,
                                                           const tegroup_impl_chain *chain, int32_t i,
                                                           const tegroup_target *target, tegroup_chain_plan *plan,
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
TEGROUP_IMPL_STATIC void tegroup_impl_chain_layout(const tegroup_chain_plan *plan, tegroup_chain_memory memory,
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

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_make(const tegroup_chain_desc *desc, const tegroup_target *target,
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
    return tegroup_impl_chain_name_op(status, desc, chain.at);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_plan(const tegroup_chain_plan *plan, tegroup_error *error) {
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

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_judge(const tegroup_chain_desc *desc, tegroup_impl_chain *chain,
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
    return tegroup_impl_chain_name_op(status, desc, chain.at);
}
