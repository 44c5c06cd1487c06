/* ---- MoE layer ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "layer/quantize_types.h"
#include "layer/mlp_types.h"
#include "moe/routing_types.h"
#include "moe/layer_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "base/range.h"
#include "core/constructors.h"
#include "formats/scale_rule.h"
#include "core/layout.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/snapshot_checks.h"
#include "core/copies.h"
#include "core/apart.h"
#include "gemm/prepare.h"
#include "layer/quantize_rules.h"
#include "layer/quantize.h"
#include "layer/linear_rules.h"
#include "layer/mlp_rules.h"
#include "layer/mlp_plan.h"
#include "layer/mlp.h"
#include "moe/router_scheme.h"
#include "moe/router.h"
#include "moe/permutation.h"
#include "moe/permute.h"
#include "moe/layer_formats.h"
#include "moe/layer_rules.h"
#include "moe/layer_plan.h"

/* What a call works with. */
typedef struct tegroup_impl_moe_call {
    const tegroup_moe_plan *plan;
    const tegroup_moe_desc *desc;
    tegroup_op op;
    tegroup_moe_planned now; /* the plan's, for this call's tokens */
    tegroup_impl_moe_places places;
    tegroup_impl_moe_memories memories;
    tegroup_impl_moe_parts parts;
} tegroup_impl_moe_call;

#define TEGROUP_IMPL_SAME_AS(reading, member, field)                                                                   \
    TEGROUP_IMPL_RULE_AS(reading, planned->member == now->member, ERROR_PLAN, field, "must be as planned",             \
                         planned->member, now->member)
#define TEGROUP_IMPL_SAME(member, field) TEGROUP_IMPL_SAME_AS(NUMBER, member, field)
#define TEGROUP_IMPL_SAME_ENUM(member, field)                                                                          \
    TEGROUP_IMPL_RULE(planned->member == now->member, ERROR_PLAN, field, "must be as planned",                         \
                      (int32_t)planned->member, (int32_t)now->member)
#define TEGROUP_IMPL_SAME_THERE(member, field)                                                                         \
    TEGROUP_IMPL_RULE(planned->member == now->member, ERROR_PLAN, field, "must be set just where it was in the plan",  \
                      planned->member, now->member)

/* How experts are chosen, and what losses there are. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_choice(const tegroup_moe_planned *planned,
                                                                 const tegroup_moe_planned *now,
                                                                 const tegroup_router_desc *router,
                                                                 tegroup_error *error) {
    static const char *const routed[TEGROUP_IMPL_MOE_ROUTED] = {"router.probabilities.dtype", "router.weights.dtype",
                                                                "router.indices.dtype", "router.counts.dtype"};
    int which;
    TEGROUP_IMPL_SAME(choice.normalize, "router.normalize");
    TEGROUP_IMPL_SAME_ENUM(choice.score, "router.scheme.score");
    TEGROUP_IMPL_SAME(choice.n_group, "router.scheme.n_group");
    TEGROUP_IMPL_SAME(choice.topk_group, "router.scheme.topk_group");
    TEGROUP_IMPL_SAME_ENUM(choice.group_score, "router.scheme.group_score");
    TEGROUP_IMPL_SAME_THERE(choice.has_bias, "router.scheme.bias.dtype");
    TEGROUP_IMPL_SAME_THERE(choice.has_given_indices, "router.scheme.given_indices.dtype");
    for (which = 0; which < TEGROUP_IMPL_MOE_ROUTED; which++)
        TEGROUP_IMPL_SAME_THERE(choice.gives[which], routed[which]);
    TEGROUP_IMPL_SAME_THERE(choice.gives_gradients, "router.loss_gradients.dtype");
    TEGROUP_IMPL_RULE(planned->choice.has_balance || !now->choice.has_balance, ERROR_PLAN, "router.balance_coefficient",
                      "must be 0 where it was in the plan", 0, 1);
    TEGROUP_IMPL_RULE(planned->choice.has_z || !now->choice.has_z, ERROR_PLAN, "router.scheme.z_coefficient",
                      "must be 0 where it was in the plan", 0, 1);
    TEGROUP_IMPL_RULE(planned->choice.has_losses || !now->choice.has_losses, ERROR_PLAN,
                      router->balance_loss ? "router.balance_loss" : "router.z_loss",
                      "must be NULL where the plan had no loss", 0, 1);
    TEGROUP_IMPL_RULE(!planned->choice.has_losses || planned->choice.has_scheme == now->choice.has_scheme, ERROR_PLAN,
                      "router.scheme",
                      "must be all zero, z_coefficient and a route_factor of 1 apart, just where it was in the "
                      "plan",
                      planned->choice.has_scheme, now->choice.has_scheme);
    TEGROUP_IMPL_RULE(!planned->choice.has_losses || now->sequences <= planned->sequences, ERROR_PLAN,
                      "router.scheme.sequence_tokens", "must give no more sequences than planned", planned->sequences,
                      now->sequences);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_planned(const tegroup_moe_plan *plan,
                                                                  const tegroup_moe_planned *now,
                                                                  const tegroup_moe_desc *desc, tegroup_error *error) {
    static const tegroup_impl_rule_name rows_format_rule = TEGROUP_IMPL_RULE_NAME("rows_format.rule"),
                                        grad_format_rule = TEGROUP_IMPL_RULE_NAME("grad_format.rule");
    const tegroup_mlp_desc *experts = &desc->experts;
    const tegroup_moe_planned *planned = &plan->planned;
    const tegroup_dtype bias = plan->experts.planned.dtypes[TEGROUP_IMPL_MLP_FC2_BIAS],
                        up = plan->experts.planned.dtypes[TEGROUP_IMPL_MLP_FC1_UP_WEIGHT];
    TEGROUP_IMPL_SAME_ENUM(space, "space");
    TEGROUP_IMPL_RULE(now->tokens <= planned->tokens, ERROR_PLAN, "tokens.rows", "must be at most those planned",
                      planned->tokens, now->tokens);
    TEGROUP_IMPL_SAME(width, "tokens.cols");
    TEGROUP_IMPL_SAME_AS(DTYPE, rows, "tokens.dtype");
    TEGROUP_IMPL_SAME(experts, "experts.fc1.weight.shape.groups");
    TEGROUP_IMPL_RULE_AS(DTYPE, up == experts->fc1_up.weight.dtype, ERROR_PLAN, "experts.fc1_up.weight.dtype",
                         "must be as planned", up, (int32_t)experts->fc1_up.weight.dtype);
    TEGROUP_IMPL_SAME(preactivation, tegroup_impl_moe_outputs_path(experts, 0));
    TEGROUP_IMPL_SAME(hidden, tegroup_impl_moe_hidden_path(experts));
    TEGROUP_IMPL_SAME(outputs, tegroup_impl_moe_outputs_path(experts, 1));
    TEGROUP_IMPL_SAME(k, "router.k");
    TEGROUP_IMPL_RULE((now->expert_capacity > 0) == (planned->expert_capacity > 0)
                          && now->expert_capacity <= planned->expert_capacity,
                      ERROR_PLAN, "expert_capacity", "must be at most that planned, and 0 just where that is",
                      planned->expert_capacity, now->expert_capacity);
    TEGROUP_IMPL_RULE(now->capacity <= planned->capacity, ERROR_PLAN, "capacity",
                      "must be at most that planned, and tokens.rows * router.k where it is 0", planned->capacity,
                      now->capacity);
    TEGROUP_IMPL_SAME_THERE(backward, "grad_output.dtype");
    TEGROUP_IMPL_SAME_THERE(wants_grad_tokens, "grad_tokens.dtype");
    TEGROUP_IMPL_SAME_THERE(wants_grad_logits, "grad_logits.dtype");
    TEGROUP_IMPL_SAME_THERE(given, "given_weights.dtype");
    TEGROUP_IMPL_SAME_THERE(wants_grad_weights, "grad_weights.dtype");
    TEGROUP_IMPL_SAME_THERE(wants_activated, "experts.fc2.main_grad.dtype");
    TEGROUP_IMPL_SAME_THERE(wants_fc1, "experts.fc1.main_grad.dtype");
#define TEGROUP_IMPL_SAME_FORMAT(which)                                                                                \
    TEGROUP_IMPL_SAME_AS(SCALING, which.scaling, #which ".scaling");                                                   \
    TEGROUP_IMPL_SAME_AS(DTYPE, which.dtype, #which ".dtype");                                                         \
    TEGROUP_IMPL_SAME_AS(DTYPE, which.scale_dtype, #which ".scale_dtype");                                             \
    TEGROUP_IMPL_SAME_ENUM(which.columnwise_order, #which ".columnwise_order");                                        \
    TEGROUP_IMPL_TRY(tegroup_impl_check_planned_rule(&planned->which.rule, &now->which.rule, &which##_rule, error))
    TEGROUP_IMPL_SAME_FORMAT(rows_format);
    TEGROUP_IMPL_SAME_FORMAT(grad_format);
#undef TEGROUP_IMPL_SAME_FORMAT
    TEGROUP_IMPL_RULE_AS(DTYPE, bias == experts->fc2.bias.dtype, ERROR_PLAN, "experts.fc2.bias.dtype",
                         "must be as planned", bias, (int32_t)experts->fc2.bias.dtype);
    TEGROUP_IMPL_SAME(recompute, "experts.recompute");
    TEGROUP_IMPL_SAME(drops_by_weight, "drops_by_weight");
    return tegroup_impl_moe_check_choice(planned, now, &desc->router, error);
}
#undef TEGROUP_IMPL_SAME_THERE
#undef TEGROUP_IMPL_SAME_ENUM
#undef TEGROUP_IMPL_SAME
#undef TEGROUP_IMPL_SAME_AS

/* The memory of the caller's matrices that a call works on, but for the router's. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_memory(const tegroup_moe_desc *desc,
                                                                 const tegroup_moe_planned *p, tegroup_op op,
                                                                 tegroup_error *error) {
    if (op == TEGROUP_OP_FORWARD || (op == TEGROUP_OP_WGRAD && p->recompute)) TEGROUP_IMPL_TRY_MEMORY(tokens);
    if (op == TEGROUP_OP_FORWARD) TEGROUP_IMPL_TRY_MEMORY(output);
    if (op == TEGROUP_OP_FORWARD && p->given) {
        TEGROUP_IMPL_TRY_MEMORY(given_weights);
        TEGROUP_IMPL_TRY_MEMORY(router.scheme.given_indices);
    }
    if (op != TEGROUP_OP_DGRAD) return TEGROUP_OK;
    TEGROUP_IMPL_TRY_MEMORY(grad_output);
    TEGROUP_IMPL_TRY_MEMORY(grad_tokens);
    TEGROUP_IMPL_TRY_MEMORY(grad_logits);
    TEGROUP_IMPL_TRY_MEMORY(grad_weights);
    return TEGROUP_OK;
}

/* The matrices that the router writes for the caller, or, in dgrad, that it reads again. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_moe_router_buffers(const tegroup_moe_desc *desc, int writes,
                                                            tegroup_impl_buffer *buffers) {
    static const char *const fields[TEGROUP_IMPL_MOE_ROUTED] = {"router.probabilities.data", "router.weights.data",
                                                                "router.indices.data", "router.counts.data"};
    static const char apart[] = "must not overlap what the router writes";
    tegroup_router_desc router = desc->router;
    int32_t count = 0, which;
    for (which = 0; which < TEGROUP_IMPL_MOE_ROUTED; which++)
        buffers[count++] =
            tegroup_impl_matrix_buffer(tegroup_impl_moe_routed(&router, which), fields[which], apart, writes);
    buffers[count++] = tegroup_impl_matrix_buffer(&router.loss_gradients, "router.loss_gradients.data", apart, writes);
    if (writes) {
        buffers[count++] = tegroup_impl_buffer_of(router.balance_loss, 8, "router.balance_loss", apart, 1);
        buffers[count++] = tegroup_impl_buffer_of(router.z_loss, 8, "router.z_loss", apart, 1);
    }
    buffers[count++] = tegroup_impl_matrix_buffer(&router.logits, NULL, "must not overlap router.logits", 0);
    tegroup_impl_scheme_buffers(&router.scheme, desc->tokens.rows, buffers + count);
    return count + TEGROUP_IMPL_SCHEME_BUFFERS;
}

/* A weight, of a quantised one both copies, or what it is to have: a gradient. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_moe_weight_buffers(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                            int gradient, tegroup_impl_buffer *buffers) {
    int32_t count = 0, copy;
    if (t->scaling == TEGROUP_SCALING_NONE) {
        buffers[0] = tegroup_impl_tensor_buffer(t, name, gradient);
        return 1;
    }
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++) {
        buffers[count++] = tegroup_impl_copy_buffer(t, name, copy, 0, 0);
        buffers[count++] = tegroup_impl_copy_buffer(t, name, copy, 1, 0);
    }
    buffers[count++] = tegroup_impl_buffer_of(t->global_scale_inv, 4 * (int64_t)t->shape.groups, NULL, name->apart, 0);
    return count;
}

/* What is written lies apart from all else that the call touches. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_apart(const tegroup_impl_moe_call *call,
                                                                tegroup_error *error) {
    enum { MEMORIES = 3, MATRICES = 4, ROUTER = 8 + TEGROUP_IMPL_SCHEME_BUFFERS, WEIGHTS = 3 * (1 + 5) };
    const tegroup_moe_desc *desc = call->desc;
    const tegroup_op op = call->op;
    tegroup_impl_buffer buffers[MEMORIES + MATRICES + ROUTER + WEIGHTS];
    int32_t count = 0, about = 0, workspace, weights, i;
    tegroup_status status;
    buffers[count++] = tegroup_impl_buffer_of(desc->saved_by_forward, (int64_t)call->plan->saved_by_forward_bytes,
                                              "saved_by_forward", "must not overlap saved_by_forward", 1);
    if (op != TEGROUP_OP_FORWARD)
        buffers[count++] = tegroup_impl_buffer_of(desc->saved_by_dgrad, (int64_t)call->plan->saved_by_dgrad_bytes,
                                                  "saved_by_dgrad", "must not overlap saved_by_dgrad", 1);
    workspace = count;
    buffers[count++] = tegroup_impl_workspace_buffer(&desc->experts.options, call->plan->workspace_bytes);
    if (op == TEGROUP_OP_FORWARD) {
        buffers[count++] = tegroup_impl_matrix_buffer(&desc->output, "output.data", "must not overlap output", 1);
        buffers[count++] = tegroup_impl_matrix_buffer(&desc->given_weights, NULL, "must not overlap given_weights", 0);
    }
    if (op == TEGROUP_OP_FORWARD || (op == TEGROUP_OP_WGRAD && call->now.recompute))
        buffers[count++] = tegroup_impl_matrix_buffer(&desc->tokens, NULL, "must not overlap tokens", 0);
    if (op == TEGROUP_OP_DGRAD) {
        buffers[count++] =
            tegroup_impl_matrix_buffer(&desc->grad_tokens, "grad_tokens.data", "must not overlap grad_tokens", 1);
        buffers[count++] =
            tegroup_impl_matrix_buffer(&desc->grad_logits, "grad_logits.data", "must not overlap grad_logits", 1);
        buffers[count++] = tegroup_impl_matrix_buffer(&desc->grad_output, NULL, "must not overlap grad_output", 0);
        buffers[count++] =
            tegroup_impl_matrix_buffer(&desc->grad_weights, "grad_weights.data", "must not overlap grad_weights", 1);
    }
    if (op != TEGROUP_OP_WGRAD)
        count += tegroup_impl_moe_router_buffers(desc, op == TEGROUP_OP_FORWARD, buffers + count);
    weights = count;
    for (i = TEGROUP_IMPL_MLP_FC1_WEIGHT; i <= TEGROUP_IMPL_MLP_FC1_UP_BIAS_GRAD; i++) {
        const tegroup_tensor *t = tegroup_impl_mlp_at(&desc->experts, i);
        const int gradient = tegroup_impl_mlp_gradient(i);
        if (t->dtype == TEGROUP_DTYPE_UNSET || gradient != (op == TEGROUP_OP_WGRAD)) continue;
        TEGROUP_IMPL_TRY(
            tegroup_impl_of_member("experts", tegroup_impl_check_tensor(t, tegroup_impl_mlp_name(i), error), error));
        count += tegroup_impl_moe_weight_buffers(t, tegroup_impl_mlp_name(i), gradient, buffers + count);
    }
    status = tegroup_impl_moe_told(
        tegroup_impl_check_apart(buffers, count, desc->experts.options.check_level, &about, error), error);
    return about == workspace || about >= weights ? tegroup_impl_of_member("experts", status, error) : status;
}

/* The parts, where the call's memories are. */
TEGROUP_IMPL_STATIC void tegroup_impl_moe_place(tegroup_impl_moe_call *call) {
    const tegroup_mlp_plan *experts = &call->plan->experts;
    const tegroup_op op = call->op;
    tegroup_impl_moe_parts_of(call->desc, &call->now, &call->memories, &call->parts);
    call->parts.experts.options.workspace =
        tegroup_impl_moe_at(&call->memories, op == TEGROUP_OP_FORWARD ? TEGROUP_IMPL_MOE_FORWARD
                                             : op == TEGROUP_OP_DGRAD ? TEGROUP_IMPL_MOE_DGRAD
                                                                      : TEGROUP_IMPL_MOE_WGRAD);
    call->parts.experts.options.workspace_bytes =
        op == TEGROUP_OP_WGRAD ? experts->wgrad_workspace_bytes : experts->workspace_bytes;
}

/* Rows by expert, permuted or, with a format, quantised: as the index picks them or, where their values are kept, from
 * these. run 0: only what quantising checks. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_fill_rows(const tegroup_impl_moe_call *call, int gradient, int run,
                                                              struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_moe_parts *parts = &call->parts;
    const tegroup_tensor *rows = gradient ? &parts->experts.grad_output : &parts->experts.input;
    const tegroup_quantize_desc *quantize = gradient ? &parts->quantised_grad_rows : &parts->quantised_rows;
    const int quantises = rows->scaling != TEGROUP_SCALING_NONE
                          && (tegroup_impl_has_copy(rows, TEGROUP_IMPL_ROWWISE)
                              || (tegroup_impl_has_copy(rows, TEGROUP_IMPL_COLUMNWISE)
                                  && !tegroup_impl_keeps_values(rows)));
    if (run && tegroup_impl_moe_permutes(rows))
        TEGROUP_IMPL_TRY(tegroup_permute(gradient ? &parts->grad_rows : &parts->rows, stream, error));
    if (!quantises) return TEGROUP_OK;
    if (run) return tegroup_impl_quantize_through(quantize, NULL, stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantize_as(quantize, tegroup_impl_moe_quantize_names(gradient), error));
    return tegroup_impl_check_quantize_built(quantize, error);
}

/* Weights and fc2's bias against each other: else a tensor of the layer's own, which is held against them, would be
 * named. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_weights(const tegroup_mlp_desc *experts, tegroup_op op,
                                                                  tegroup_error *error) {
    tegroup_impl_mlp_layers layers;
    if (tegroup_impl_mlp_apart(experts)) TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_up_shape(experts, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_fc2_groups(experts, error));
    if (experts->fc2.bias.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    tegroup_impl_mlp_layers_of(experts, op, &layers);
    return tegroup_impl_layer_check_tensor(&layers.fc2, TEGROUP_IMPL_LINEAR_BIAS, error);
}

/* The experts' call; run 0: only what it checks. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_run_experts(const tegroup_impl_moe_call *call, int run,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_mlp_plan *plan = &call->plan->experts;
    const tegroup_impl_mlp_plans plans = tegroup_impl_mlp_plans_of(plan);
    const tegroup_mlp_desc *desc = &call->parts.experts;
    tegroup_status status;
    if (!run)
        TEGROUP_IMPL_TRY(
            tegroup_impl_of_member("experts", tegroup_impl_moe_check_weights(desc, call->op, error), error));
    status = call->op == TEGROUP_OP_FORWARD
                 ? tegroup_impl_mlp_forward(&plans, plan->workspace_bytes, desc, run, stream, error)
             : call->op == TEGROUP_OP_DGRAD
                 ? tegroup_impl_mlp_dgrad(&plans, plan->workspace_bytes, desc, run, stream, error)
                 : tegroup_impl_mlp_wgrad(&plans, plan->wgrad_workspace_bytes, desc, run, stream, error);
    return tegroup_impl_of_member("experts", status, error);
}

/* A snapshot without rows. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_prepare_nothing(const tegroup_impl_moe_call *call,
                                                                    tegroup_error *error) {
    int32_t none[TEGROUP_MAX_GROUPS];
    tegroup_prepare_desc prepare = tegroup_impl_permutation_prepare(&call->parts.permutation);
    memset(none, 0, (size_t)call->now.experts * sizeof *none);
    prepare.shape.row_sizes = tegroup_sizes_of(none, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST);
    return tegroup_prepare(&prepare, NULL, error);
}

/* On the host dgrad and wgrad see by the snapshot of what forward it is, unless that had another number of tokens with
 * the same capacity. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_saved(const tegroup_impl_moe_call *call,
                                                                tegroup_error *error) {
    const tegroup_impl_fit fit = tegroup_impl_fit_of(&call->parts.experts.input);
    if (call->op == TEGROUP_OP_FORWARD || call->desc->space != TEGROUP_SPACE_HOST) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_fit(&fit, "saved_by_forward", "must have all rows within the capacity", error));
    TEGROUP_IMPL_RULE(fit.header->capacity_rows == call->now.capacity, ERROR_CAPACITY, "saved_by_forward",
                      "must be of a forward with this call's capacity, or tokens * k where it is 0", call->now.capacity,
                      fit.header->capacity_rows);
    return TEGROUP_OK;
}

/* What the parts check, before the first of them runs. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_parts(const tegroup_impl_moe_call *call,
                                                                tegroup_error *error) {
    const tegroup_impl_moe_parts *parts = &call->parts;
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_saved(call, error));
    if (call->op == TEGROUP_OP_DGRAD && !call->now.given)
        TEGROUP_IMPL_TRY(
            tegroup_impl_of_member("router", tegroup_impl_router_check_shapes(&parts->router, error), error));
    if (call->op == TEGROUP_OP_FORWARD && !call->now.given)
        TEGROUP_IMPL_TRY(tegroup_impl_of_member("router", tegroup_impl_router_check(&parts->router, error), error));
    if (call->op != TEGROUP_OP_WGRAD || call->now.recompute)
        TEGROUP_IMPL_TRY(tegroup_impl_moe_fill_rows(call, call->op == TEGROUP_OP_DGRAD, 0, NULL, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_run_experts(call, 0, NULL, error));
    if (call->op != TEGROUP_OP_DGRAD || !call->now.wants_grad_logits) return TEGROUP_OK;
    if (tegroup_impl_moe_routes_again(&call->now))
        TEGROUP_IMPL_TRY(
            tegroup_impl_of_member("router", tegroup_impl_router_check(&parts->router_again, error), error));
    return tegroup_impl_of_member("router", tegroup_impl_router_backward_check(&parts->router_backward, error), error);
}

/* On the host products look into the snapshot when they are checked. Forward has none yet, and what an earlier one
 * saved must outlive a refusal: checks find one without rows, in the workspace. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_without_rows(tegroup_impl_moe_call *call,
                                                                       tegroup_error *error) {
    tegroup_impl_moe_places places = call->places;
    tegroup_status status;
    places.memory[TEGROUP_IMPL_MOE_SNAPSHOT] = places.memory[TEGROUP_IMPL_MOE_NO_ROWS];
    places.offset[TEGROUP_IMPL_MOE_SNAPSHOT] = places.offset[TEGROUP_IMPL_MOE_NO_ROWS];
    call->memories.places = &places;
    tegroup_impl_moe_place(call);
    status = tegroup_impl_moe_prepare_nothing(call, error);
    if (status == TEGROUP_OK) status = tegroup_impl_moe_check_parts(call, error);
    call->memories.places = &call->places;
    return status;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_begin(tegroup_impl_moe_call *call, const tegroup_moe_plan *plan,
                                                          const tegroup_moe_desc *desc, tegroup_op op,
                                                          tegroup_error *error) {
    const tegroup_options *options = &desc->experts.options;
    tegroup_layout layouts[TEGROUP_MOE_WGRAD_WORKSPACE + 1];
    memset(call, 0, sizeof *call);
    call->plan = plan;
    call->desc = desc;
    call->op = op;
    call->now = tegroup_impl_moe_record(desc);
    call->now.router_bytes = plan->planned.router_bytes;
    call->now.permutation_bytes = plan->planned.permutation_bytes;
    TEGROUP_IMPL_TRY(tegroup_impl_moe_told(tegroup_impl_moe_check_shapes(desc, &call->now, error), error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_told(tegroup_impl_moe_check_planned(plan, &call->now, desc, error), error));
    TEGROUP_IMPL_RULE(op == TEGROUP_OP_FORWARD || call->now.backward, ERROR_COMBINATION, "grad_output",
                      "must be there: without it nothing was saved", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(plan->saved_by_forward_bytes, "saved_by_forward",
                                                  "saved_by_forward_bytes", desc->saved_by_forward,
                                                  desc->saved_by_forward_bytes, error));
    if (op != TEGROUP_OP_FORWARD)
        TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(plan->saved_by_dgrad_bytes, "saved_by_dgrad",
                                                      "saved_by_dgrad_bytes", desc->saved_by_dgrad,
                                                      desc->saved_by_dgrad_bytes, error));
    TEGROUP_IMPL_TRY(tegroup_impl_of_member(
        "experts", tegroup_impl_check_options_workspace(plan->workspace_bytes, options, error), error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_memory(desc, &call->now, op, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_apart(call, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error));
    tegroup_impl_moe_layouts(plan, layouts, &call->places);
    call->memories.places = &call->places;
    call->memories.op = op;
    call->memories.base[TEGROUP_MOE_SAVED_BY_FORWARD] = (char *)desc->saved_by_forward;
    if (op != TEGROUP_OP_FORWARD) call->memories.base[TEGROUP_MOE_SAVED_BY_DGRAD] = (char *)desc->saved_by_dgrad;
    call->memories.base[op == TEGROUP_OP_FORWARD ? TEGROUP_MOE_FORWARD_WORKSPACE
                        : op == TEGROUP_OP_DGRAD ? TEGROUP_MOE_DGRAD_WORKSPACE
                                                 : TEGROUP_MOE_WGRAD_WORKSPACE] = (char *)options->workspace;
    if (op == TEGROUP_OP_FORWARD && desc->space == TEGROUP_SPACE_HOST) {
        TEGROUP_IMPL_TRY(tegroup_impl_moe_check_without_rows(call, error));
        tegroup_impl_moe_place(call);
        return TEGROUP_OK;
    }
    tegroup_impl_moe_place(call);
    return tegroup_impl_moe_check_parts(call, error);
}

TEGROUP_API tegroup_status tegroup_moe_forward(const tegroup_moe_plan *plan, const tegroup_moe_desc *desc,
                                               struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_moe_forward")
    tegroup_moe_desc taken;
    tegroup_impl_moe_call call;
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_moe_begin(&call, plan, desc, TEGROUP_OP_FORWARD, error));
    if (!call.now.given) TEGROUP_IMPL_TRY(tegroup_router(&call.parts.router, stream, error));
    TEGROUP_IMPL_TRY(tegroup_permutation_make(&call.parts.permutation, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_fill_rows(&call, 0, 1, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_run_experts(&call, 1, stream, error));
    return tegroup_combine(&call.parts.output, stream, error);
}

TEGROUP_API tegroup_status tegroup_moe_dgrad(const tegroup_moe_plan *plan, const tegroup_moe_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_moe_dgrad")
    tegroup_moe_desc taken;
    tegroup_impl_moe_call call;
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_moe_begin(&call, plan, desc, TEGROUP_OP_DGRAD, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_fill_rows(&call, 1, 1, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_run_experts(&call, 1, stream, error));
    if (call.now.wants_grad_tokens) TEGROUP_IMPL_TRY(tegroup_combine(&call.parts.grad_tokens, stream, error));
    if (call.now.wants_grad_weights) TEGROUP_IMPL_TRY(tegroup_combine(&call.parts.grad_weights, stream, error));
    if (!call.now.wants_grad_logits) return TEGROUP_OK;
    if (tegroup_impl_moe_routes_again(&call.now))
        TEGROUP_IMPL_TRY(tegroup_router(&call.parts.router_again, stream, error));
    return tegroup_router_backward(&call.parts.router_backward, stream, error);
}

TEGROUP_API tegroup_status tegroup_moe_wgrad(const tegroup_moe_plan *plan, const tegroup_moe_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_moe_wgrad")
    tegroup_moe_desc taken;
    tegroup_impl_moe_call call;
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_moe_begin(&call, plan, desc, TEGROUP_OP_WGRAD, error));
    if (call.now.recompute) TEGROUP_IMPL_TRY(tegroup_impl_moe_fill_rows(&call, 0, 1, stream, error));
    return tegroup_impl_moe_run_experts(&call, 1, stream, error);
}
