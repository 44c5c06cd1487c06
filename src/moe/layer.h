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
#include "core/layout.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/copies.h"
#include "core/apart.h"
#include "gemm/prepare.h"
#include "layer/quantize_rules.h"
#include "layer/quantize.h"
#include "layer/mlp_rules.h"
#include "layer/mlp_plan.h"
#include "layer/mlp.h"
#include "moe/router_scheme.h"
#include "moe/router.h"
#include "moe/permutation.h"
#include "moe/layer_formats.h"
#include "moe/layer_plan.h"

/* What a call works with. */
typedef struct tegroup_impl_moe_call {
    const tegroup_moe_plan *plan;
    const tegroup_moe_desc *desc;
    tegroup_moe_planned now; /* the plan's, for this call's tokens */
    tegroup_impl_moe_places places;
    tegroup_impl_moe_parts parts;
} tegroup_impl_moe_call;

static inline tegroup_status tegroup_impl_moe_check_planned(const tegroup_moe_planned *planned,
                                                            const tegroup_moe_planned *now, tegroup_error *error) {
    int which;
#define TEGROUP_IMPL_SAME(member, field)                                                                               \
    TEGROUP_IMPL_RULE(planned->member == now->member, ERROR_PLAN, field, "must be as planned", planned->member,        \
                      now->member)
    static const char *const routed[TEGROUP_IMPL_MOE_ROUTED] = {"router.probabilities.dtype", "router.weights.dtype",
                                                                "router.indices.dtype", "router.counts.dtype"};
    TEGROUP_IMPL_RULE(now->tokens <= planned->tokens, ERROR_PLAN, "tokens.rows", "must be at most those planned",
                      planned->tokens, now->tokens);
    TEGROUP_IMPL_RULE(now->capacity <= planned->capacity, ERROR_PLAN, "capacity", "must be at most that planned",
                      planned->capacity, now->capacity);
    TEGROUP_IMPL_SAME(width, "tokens.cols");
    TEGROUP_IMPL_SAME(rows, "tokens.dtype");
    TEGROUP_IMPL_SAME(experts, "experts.fc1.weight.shape.groups");
    TEGROUP_IMPL_SAME(preactivation, "experts.fc1.weight.shape.rows");
    TEGROUP_IMPL_SAME(hidden, "experts.fc2.weight.shape.cols");
    TEGROUP_IMPL_SAME(outputs, "experts.fc2.weight.shape.rows");
    TEGROUP_IMPL_SAME(k, "router.k");
    TEGROUP_IMPL_SAME(backward, "grad_output.dtype");
    TEGROUP_IMPL_SAME(wants_grad_tokens, "grad_tokens.dtype");
    TEGROUP_IMPL_SAME(wants_grad_logits, "grad_logits.dtype");
    TEGROUP_IMPL_SAME(wants_activated, "experts.fc2.main_grad.dtype");
    TEGROUP_IMPL_SAME(wants_fc1, "experts.fc1.main_grad.dtype");
#define TEGROUP_IMPL_SAME_FORMAT(which)                                                                                \
    TEGROUP_IMPL_SAME(which.scaling, #which ".scaling");                                                               \
    TEGROUP_IMPL_SAME(which.dtype, #which ".dtype");                                                                   \
    TEGROUP_IMPL_SAME(which.scale_dtype, #which ".scale_dtype");                                                       \
    TEGROUP_IMPL_SAME(which.columnwise_order, #which ".columnwise_order");                                             \
    TEGROUP_IMPL_RULE(memcmp(&planned->which.rule, &now->which.rule, sizeof now->which.rule) == 0, ERROR_PLAN,         \
                      #which ".rule.method", "and the rule's numbers must be as planned", planned->which.rule.method,  \
                      now->which.rule.method)
    TEGROUP_IMPL_SAME_FORMAT(rows_format);
    TEGROUP_IMPL_SAME_FORMAT(grad_format);
#undef TEGROUP_IMPL_SAME_FORMAT
    TEGROUP_IMPL_SAME(recompute, "experts.recompute");
    TEGROUP_IMPL_SAME(drops_by_weight, "drops_by_weight");
    TEGROUP_IMPL_SAME(keeps_losses, "router.loss_gradients.dtype");
    TEGROUP_IMPL_RULE(now->sequences <= planned->sequences, ERROR_PLAN, "router.scheme.sequence_tokens",
                      "must give no more sequences than planned", planned->sequences, now->sequences);
    for (which = 0; which < TEGROUP_IMPL_MOE_ROUTED; which++) TEGROUP_IMPL_SAME(keeps[which], routed[which]);
#undef TEGROUP_IMPL_SAME
    return TEGROUP_OK;
}

/* The caller's matrices that a call works on. */
static inline tegroup_status tegroup_impl_moe_check_matrices(const tegroup_moe_desc *desc, const tegroup_moe_planned *p,
                                                             tegroup_op op, tegroup_error *error) {
    static const char *const paths[5][5] = {TEGROUP_IMPL_MATRIX_PATHS("tokens"), TEGROUP_IMPL_MATRIX_PATHS("output"),
                                            TEGROUP_IMPL_MATRIX_PATHS("grad_output"),
                                            TEGROUP_IMPL_MATRIX_PATHS("grad_tokens"),
                                            TEGROUP_IMPL_MATRIX_PATHS("grad_logits")};
    if (op == TEGROUP_OP_FORWARD || (op == TEGROUP_OP_WGRAD && p->recompute))
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_matrix(&desc->tokens, paths[0], p->tokens, p->width, TEGROUP_IMPL_FLOATS, error));
    if (op == TEGROUP_OP_FORWARD)
        return tegroup_impl_check_matrix(&desc->output, paths[1], p->tokens, p->outputs, TEGROUP_IMPL_FLOATS, error);
    if (op == TEGROUP_OP_WGRAD) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->grad_output, paths[2], p->tokens, p->outputs, 1u << p->rows, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->grad_tokens, paths[3], p->tokens, p->width, TEGROUP_IMPL_FLOATS, error));
    return tegroup_impl_check_optional(&desc->grad_logits, paths[4], p->tokens, p->experts, TEGROUP_IMPL_FLOATS, error);
}

/* The matrices that the router writes for the caller, or, in dgrad, that it reads again. */
static inline int32_t tegroup_impl_moe_router_buffers(const tegroup_moe_desc *desc, int writes,
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
static inline int32_t tegroup_impl_moe_weight_buffers(const tegroup_tensor *t, const tegroup_impl_name *name,
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
static inline tegroup_status tegroup_impl_moe_check_apart(const tegroup_impl_moe_call *call, tegroup_op op,
                                                          tegroup_error *error) {
    enum { MEMORIES = 3, MATRICES = 3, ROUTER = 8 + TEGROUP_IMPL_SCHEME_BUFFERS, WEIGHTS = 3 * (1 + 5) };
    const tegroup_moe_desc *desc = call->desc;
    tegroup_impl_buffer buffers[MEMORIES + MATRICES + ROUTER + WEIGHTS];
    int32_t count = 0, i;
    buffers[count++] = tegroup_impl_buffer_of(desc->saved_by_forward, (int64_t)call->plan->saved_by_forward_bytes,
                                              "saved_by_forward", "must not overlap saved_by_forward", 1);
    if (op != TEGROUP_OP_FORWARD)
        buffers[count++] = tegroup_impl_buffer_of(desc->saved_by_dgrad, (int64_t)call->plan->saved_by_dgrad_bytes,
                                                  "saved_by_dgrad", "must not overlap saved_by_dgrad", 1);
    buffers[count++] = tegroup_impl_workspace_buffer(&desc->experts.options, call->plan->workspace_bytes);
    if (op == TEGROUP_OP_FORWARD)
        buffers[count++] = tegroup_impl_matrix_buffer(&desc->output, "output.data", "must not overlap output", 1);
    if (op == TEGROUP_OP_FORWARD || (op == TEGROUP_OP_WGRAD && call->now.recompute))
        buffers[count++] = tegroup_impl_matrix_buffer(&desc->tokens, NULL, "must not overlap tokens", 0);
    if (op == TEGROUP_OP_DGRAD) {
        buffers[count++] =
            tegroup_impl_matrix_buffer(&desc->grad_tokens, "grad_tokens.data", "must not overlap grad_tokens", 1);
        buffers[count++] =
            tegroup_impl_matrix_buffer(&desc->grad_logits, "grad_logits.data", "must not overlap grad_logits", 1);
        buffers[count++] = tegroup_impl_matrix_buffer(&desc->grad_output, NULL, "must not overlap grad_output", 0);
    }
    if (op != TEGROUP_OP_WGRAD)
        count += tegroup_impl_moe_router_buffers(desc, op == TEGROUP_OP_FORWARD, buffers + count);
    for (i = TEGROUP_IMPL_MLP_FC1_WEIGHT; i <= TEGROUP_IMPL_MLP_FC1_UP_BIAS_GRAD; i++) {
        const tegroup_tensor *t = tegroup_impl_mlp_at(&desc->experts, i);
        const int gradient = tegroup_impl_mlp_gradient(i);
        if (t->dtype == TEGROUP_DTYPE_UNSET || gradient != (op == TEGROUP_OP_WGRAD)) continue;
        TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(t, tegroup_impl_mlp_name(i), error));
        count += tegroup_impl_moe_weight_buffers(t, tegroup_impl_mlp_name(i), gradient, buffers + count);
    }
    return tegroup_impl_check_apart(buffers, count, TEGROUP_CHECK_HOST, NULL, error);
}

static inline tegroup_status tegroup_impl_moe_begin(tegroup_impl_moe_call *call, const tegroup_moe_plan *plan,
                                                    const tegroup_moe_desc *desc, tegroup_op op, tegroup_error *error) {
    const tegroup_options *options = &desc->experts.options;
    tegroup_layout layouts[TEGROUP_MOE_WGRAD_WORKSPACE + 1];
    tegroup_impl_moe_memories memories;
    memset(call, 0, sizeof *call);
    call->plan = plan;
    call->desc = desc;
    call->now = tegroup_impl_moe_record(desc);
    call->now.router_bytes = plan->planned.router_bytes;
    call->now.permutation_bytes = plan->planned.permutation_bytes;
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_shapes(desc, &call->now, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_planned(&plan->planned, &call->now, error));
    TEGROUP_IMPL_RULE(op == TEGROUP_OP_FORWARD || call->now.backward, ERROR_COMBINATION, "grad_output",
                      "must be there: without it nothing was saved", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(plan->saved_by_forward_bytes, "saved_by_forward",
                                                  "saved_by_forward_bytes", desc->saved_by_forward,
                                                  desc->saved_by_forward_bytes, error));
    if (op != TEGROUP_OP_FORWARD)
        TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(plan->saved_by_dgrad_bytes, "saved_by_dgrad",
                                                      "saved_by_dgrad_bytes", desc->saved_by_dgrad,
                                                      desc->saved_by_dgrad_bytes, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_options_workspace(plan->workspace_bytes, options, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_matrices(desc, &call->now, op, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_apart(call, op, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error));
    tegroup_impl_moe_layouts(plan, layouts, &call->places);
    memset(&memories, 0, sizeof memories);
    memories.places = &call->places;
    memories.op = op;
    memories.base[TEGROUP_MOE_SAVED_BY_FORWARD] = (char *)desc->saved_by_forward;
    if (op != TEGROUP_OP_FORWARD) memories.base[TEGROUP_MOE_SAVED_BY_DGRAD] = (char *)desc->saved_by_dgrad;
    memories.base[op == TEGROUP_OP_FORWARD ? TEGROUP_MOE_FORWARD_WORKSPACE
                  : op == TEGROUP_OP_DGRAD ? TEGROUP_MOE_DGRAD_WORKSPACE
                                           : TEGROUP_MOE_WGRAD_WORKSPACE] = (char *)options->workspace;
    tegroup_impl_moe_parts_of(desc, &call->now, &memories, &call->parts);
    call->parts.experts.options.workspace =
        tegroup_impl_moe_at(&memories, op == TEGROUP_OP_FORWARD ? TEGROUP_IMPL_MOE_FORWARD
                                       : op == TEGROUP_OP_DGRAD ? TEGROUP_IMPL_MOE_DGRAD
                                                                : TEGROUP_IMPL_MOE_WGRAD);
    call->parts.experts.options.workspace_bytes =
        op == TEGROUP_OP_WGRAD ? plan->experts.wgrad_workspace_bytes : plan->experts.workspace_bytes;
    return TEGROUP_OK;
}

/* Rows by expert, permuted or, with a format, quantised; run 0: only what quantising checks. */
static inline tegroup_status tegroup_impl_moe_fill_rows(const tegroup_impl_moe_call *call, int gradient, int run,
                                                        struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_moe_parts *parts = &call->parts;
    const tegroup_quantize_desc *quantize = gradient ? &parts->quantised_grad_rows : &parts->quantised_rows;
    const int plain = quantize->output.scaling == TEGROUP_SCALING_NONE;
    if (plain) return run ? tegroup_permute(gradient ? &parts->grad_rows : &parts->rows, stream, error) : TEGROUP_OK;
    if (run) return tegroup_impl_quantize(quantize, stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantize_as(quantize, tegroup_impl_moe_quantize_names(gradient), error));
    return tegroup_impl_check_quantize_built(quantize, error);
}

/* The experts' call; run 0: only what it checks. */
static inline tegroup_status tegroup_impl_moe_run_experts(const tegroup_impl_moe_call *call, tegroup_op op, int run,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_mlp_plan *plan = &call->plan->experts;
    const tegroup_impl_mlp_plans plans = tegroup_impl_mlp_plans_of(plan);
    const tegroup_mlp_desc *desc = &call->parts.experts;
    switch (op) {
    case TEGROUP_OP_FORWARD: return tegroup_impl_mlp_forward(&plans, plan->workspace_bytes, desc, run, stream, error);
    case TEGROUP_OP_DGRAD: return tegroup_impl_mlp_dgrad(&plans, plan->workspace_bytes, desc, run, stream, error);
    default: return tegroup_impl_mlp_wgrad(&plans, plan->wgrad_workspace_bytes, desc, run, stream, error);
    }
}

/* On the host, products look into the snapshot when they are checked; so that all checks come before the router
 * writes, they find one without rows. */
static inline tegroup_status tegroup_impl_moe_prepare_nothing(const tegroup_impl_moe_call *call, tegroup_error *error) {
    int32_t none[TEGROUP_MAX_GROUPS];
    tegroup_prepare_desc prepare = call->parts.prepare;
    if (call->desc->space != TEGROUP_SPACE_HOST) return TEGROUP_OK;
    memset(none, 0, (size_t)call->now.experts * sizeof *none);
    prepare.shape.row_sizes = tegroup_sizes_of(none, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST);
    return tegroup_prepare(&prepare, NULL, error);
}

TEGROUP_API tegroup_status tegroup_moe_forward(const tegroup_moe_plan *plan, const tegroup_moe_desc *desc,
                                               struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_moe_forward")
    tegroup_moe_desc taken;
    tegroup_impl_moe_call call;
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_moe_begin(&call, plan, desc, TEGROUP_OP_FORWARD, error));
    TEGROUP_IMPL_TRY(tegroup_impl_router_check(&call.parts.router, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_prepare_nothing(&call, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_fill_rows(&call, 0, 0, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_run_experts(&call, TEGROUP_OP_FORWARD, 0, stream, error));

    TEGROUP_IMPL_TRY(tegroup_router(&call.parts.router, stream, error));
    TEGROUP_IMPL_TRY(tegroup_prepare(&call.parts.prepare, stream, error));
    TEGROUP_IMPL_TRY(tegroup_permutation_make(&call.parts.permutation, stream, error));
    TEGROUP_IMPL_TRY(tegroup_permute(&call.parts.row_weights, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_fill_rows(&call, 0, 1, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_run_experts(&call, TEGROUP_OP_FORWARD, 1, stream, error));
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
    TEGROUP_IMPL_TRY(tegroup_impl_moe_fill_rows(&call, 1, 0, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_run_experts(&call, TEGROUP_OP_DGRAD, 0, stream, error));
    if (call.now.wants_grad_logits)
        TEGROUP_IMPL_TRY(tegroup_impl_router_backward_check(&call.parts.router_backward, error));

    TEGROUP_IMPL_TRY(tegroup_impl_moe_fill_rows(&call, 1, 1, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_run_experts(&call, TEGROUP_OP_DGRAD, 1, stream, error));
    if (call.now.wants_grad_tokens) TEGROUP_IMPL_TRY(tegroup_combine(&call.parts.grad_tokens, stream, error));
    if (!call.now.wants_grad_logits) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_combine(&call.parts.grad_weights, stream, error));
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
    if (call.now.recompute) TEGROUP_IMPL_TRY(tegroup_impl_moe_fill_rows(&call, 0, 0, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_run_experts(&call, TEGROUP_OP_WGRAD, 0, stream, error));

    if (call.now.recompute) TEGROUP_IMPL_TRY(tegroup_impl_moe_fill_rows(&call, 0, 1, stream, error));
    return tegroup_impl_moe_run_experts(&call, TEGROUP_OP_WGRAD, 1, stream, error);
}
