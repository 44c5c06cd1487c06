/* ---- Op chain: calls ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/activation_types.h"
#include "layer/mlp_types.h"
#include "layer/chain_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "base/range.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/snapshot_checks.h"
#include "layer/activation.h"
#include "layer/linear_rules.h"
#include "layer/linear.h"
#include "layer/mlp_plan.h"
#include "layer/mlp.h"
#include "layer/chain_rules.h"
#include "layer/chain_ops.h"
#include "layer/chain_plan.h"

/* Rows of op i and its routing, by a linear's word for them: what no product of the op sees to. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_memory(const tegroup_chain_desc *desc,
                                                                   const tegroup_impl_chain *chain, int32_t i,
                                                                   const tegroup_tensor *rows, int word,
                                                                   tegroup_error *error) {
    const tegroup_tensor t = tegroup_impl_chain_rows(chain, i, rows);
    if (t.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    return tegroup_impl_check_memory(&t, tegroup_impl_linear_name(word), desc->options.check_level, error);
}

/* What a caller's function is handed. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_user(const tegroup_chain_desc *desc,
                                                                 const tegroup_impl_chain *chain, int32_t i,
                                                                 int backward, tegroup_error *error) {
    const tegroup_tensor *x = &chain->values[i], *dx = &chain->grads[i];
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_memory(desc, chain, i, x, TEGROUP_IMPL_LINEAR_INPUT, error));
    if (!backward) return tegroup_impl_chain_check_memory(desc, chain, i, x + 1, TEGROUP_IMPL_LINEAR_OUT, error);
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_memory(desc, chain, i, dx + 1, TEGROUP_IMPL_LINEAR_GRAD_OUTPUT, error));
    return tegroup_impl_chain_check_memory(desc, chain, i, dx, TEGROUP_IMPL_LINEAR_DGRAD_OUT, error);
}

/* What it returned; why not, in its own words or, where it left those out, in ours. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_user_said(tegroup_status status, const char *field,
                                                                const tegroup_error *said, tegroup_error *error) {
    if (status == TEGROUP_OK) return status;
    if (said->status != status)
        return tegroup_impl_fail(error, status, field, "returned this status, and no more", TEGROUP_OK, status);
    if (error) *error = *said;
    return status;
}

/* The plans of the MLP that begins at op i, and the workspace that each of its calls needs. */
TEGROUP_IMPL_STATIC tegroup_impl_mlp_plans tegroup_impl_chain_mlp_plans(const tegroup_chain_plan *plan, int32_t i) {
    tegroup_impl_mlp_plans plans;
    plans.planned = &plan->mlps[i / 3];
    plans.fc1 = &plan->ops[i];
    plans.fc2 = &plan->ops[i + 2];
    plans.fc1_up = NULL;
    return plans;
}

TEGROUP_IMPL_STATIC size_t tegroup_impl_chain_mlp_bytes(const tegroup_impl_mlp_plans *plans,
                                                        tegroup_mlp_memory memory) {
    tegroup_layout layout;
    (void)tegroup_impl_mlp_layout(plans, memory, &layout);
    return layout.total_bytes;
}

/* One op, or the MLP that begins there. run 0: only what it checks. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_forward(const tegroup_chain_plan *plan,
                                                              const tegroup_chain_desc *desc,
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
        return run ? tegroup_impl_activation_run(&activation, stream, error) : TEGROUP_OK;
    }
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_back(const tegroup_chain_plan *plan,
                                                           const tegroup_chain_desc *desc,
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
        return run ? tegroup_impl_activation_backward_run(&activation, stream, error) : TEGROUP_OK;
    }
}

/* Every op is checked before the first runs. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_call(const tegroup_chain_plan *plan,
                                                           const tegroup_chain_desc *desc, int backward,
                                                           tegroup_impl_chain *chain, struct CUstream_st *stream,
                                                           tegroup_error *error) {
    int32_t starts[TEGROUP_CHAIN_MAX_OPS], i, count = 0, run;
    char *gradients = NULL;
    chain->at = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_plan(plan, error));
    if (desc->options.workspace) gradients = (char *)desc->options.workspace + plan->op_bytes;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve(desc, &plan->fused, gradients, chain, error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_planned(plan, desc, chain, error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_alike(desc, chain, error));
    TEGROUP_IMPL_RULE_AS(DTYPES, !backward || tegroup_impl_chain_backward(desc), ERROR_UNSET, "grad_output.dtype",
                         "must be set", TEGROUP_IMPL_FLOATS, 0);
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

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_run(const tegroup_chain_plan *plan,
                                                          const tegroup_chain_desc *desc, int backward,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    tegroup_chain_desc taken;
    tegroup_impl_chain chain;
    tegroup_status status;
    TEGROUP_IMPL_TAKE(desc, taken);
    status = tegroup_impl_chain_call(plan, desc, backward, &chain, stream, error);
    return tegroup_impl_chain_name_op(status, desc, chain.at);
}

TEGROUP_API tegroup_status tegroup_chain_forward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                 struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_chain_forward")
    return tegroup_impl_chain_run(plan, desc, 0, stream, error);
}

TEGROUP_API tegroup_status tegroup_chain_backward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                  struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_chain_backward")
    return tegroup_impl_chain_run(plan, desc, 1, stream, error);
}
