/* ---- MoE layer: rules ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "layer/linear_types.h"
#include "layer/mlp_types.h"
#include "moe/routing_types.h"
#include "moe/layer_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "base/threads.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "layer/linear_rules.h"
#include "layer/mlp_rules.h"
#include "moe/router_scheme.h"
#include "moe/router.h"
#include "moe/layer_formats.h"

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_absent(const tegroup_moe_desc *desc, tegroup_error *error) {
    const tegroup_mlp_desc *experts = &desc->experts;
    int tensor;
    TEGROUP_IMPL_RULE(experts->recompute == 0 || (experts->recompute == 1 && tegroup_impl_there(&desc->grad_output)),
                      ERROR_COMBINATION, "experts.recompute", "must be 0, or 1 with grad_output", 0,
                      experts->recompute);
#define TEGROUP_IMPL_ABSENT(member)                                                                                    \
    TEGROUP_IMPL_RULE_AS(DTYPE, experts->member.dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,                       \
                         "experts." #member ".dtype", "must be UNSET: the layer has it", TEGROUP_DTYPE_UNSET,          \
                         (int32_t)experts->member.dtype)
    TEGROUP_IMPL_ABSENT(input);
    TEGROUP_IMPL_ABSENT(out);
    TEGROUP_IMPL_ABSENT(grad_output);
    TEGROUP_IMPL_ABSENT(dgrad_out);
    TEGROUP_IMPL_ABSENT(grad_row_scale);
    TEGROUP_IMPL_ABSENT(preactivation);
    TEGROUP_IMPL_ABSENT(activated);
    TEGROUP_IMPL_ABSENT(grad_preactivation);
#undef TEGROUP_IMPL_ABSENT
    for (tensor = 0; tensor < TEGROUP_IMPL_MLP_ROW_SCALE; tensor++) {
        const tegroup_tensor *t = tegroup_impl_mlp_at(experts, tensor);
        if (t->dtype == TEGROUP_DTYPE_UNSET)
            TEGROUP_IMPL_TRY(tegroup_impl_of_member(
                "experts", tegroup_impl_check_absent(t, tegroup_impl_mlp_name(tensor), error), error));
    }
#define TEGROUP_IMPL_ABSENT(member)                                                                                    \
    TEGROUP_IMPL_RULE(experts->member.rows == 0, ERROR_COMBINATION, "experts." #member ".rows",                        \
                      "must be 0: the layer picks its rows", 0, experts->member.rows)
    TEGROUP_IMPL_ABSENT(gather_input);
    TEGROUP_IMPL_ABSENT(gather_grad_output);
#undef TEGROUP_IMPL_ABSENT
    TEGROUP_IMPL_RULE(!experts->row_scale, ERROR_COMBINATION, "experts.row_scale",
                      "must be NULL: it is the rows' weights", 0, 1);
    TEGROUP_IMPL_RULE_AS(DTYPE, experts->row_scale_dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                         "experts.row_scale_dtype", "must be UNSET: it is that of the rows' weights",
                         TEGROUP_DTYPE_UNSET, (int32_t)experts->row_scale_dtype);
    TEGROUP_IMPL_RULE(experts->activated_rule.method == TEGROUP_SCALE_UNSET, ERROR_COMBINATION,
                      "experts.activated_rule.method", "must be UNSET: it is rows_format.rule", TEGROUP_SCALE_UNSET,
                      (int32_t)experts->activated_rule.method);
    TEGROUP_IMPL_RULE(experts->grad_rule.method == TEGROUP_SCALE_UNSET, ERROR_COMBINATION, "experts.grad_rule.method",
                      "must be UNSET: it is grad_format.rule", TEGROUP_SCALE_UNSET, (int32_t)experts->grad_rule.method);
    TEGROUP_IMPL_RULE(!experts->fc2_bias_scaled, ERROR_COMBINATION, "experts.fc2_bias_scaled",
                      "must be 0: a bias of fc2 is scaled always", 0, experts->fc2_bias_scaled);
    TEGROUP_IMPL_RULE(experts->out_tail == TEGROUP_TAIL_KEEP && experts->dgrad_out_tail == TEGROUP_TAIL_KEEP,
                      ERROR_COMBINATION, "experts.out_tail", "must be KEEP, and dgrad_out_tail: tokens have no tail",
                      TEGROUP_TAIL_KEEP, (int32_t)(experts->out_tail ? experts->out_tail : experts->dgrad_out_tail));
    return TEGROUP_OK;
}

/* Where the outputs of fc1's or fc2's weight stand, and the inputs of fc2's. */
TEGROUP_IMPL_STATIC const char *tegroup_impl_moe_outputs_path(const tegroup_mlp_desc *experts, int fc2) {
    if (fc2)
        return experts->fc2.weight_layout == TEGROUP_WEIGHT_IN_OUT ? "experts.fc2.weight.shape.cols"
                                                                   : "experts.fc2.weight.shape.rows";
    return experts->fc1.weight_layout == TEGROUP_WEIGHT_IN_OUT ? "experts.fc1.weight.shape.cols"
                                                               : "experts.fc1.weight.shape.rows";
}
TEGROUP_IMPL_STATIC const char *tegroup_impl_moe_hidden_path(const tegroup_mlp_desc *experts) {
    return experts->fc2.weight_layout == TEGROUP_WEIGHT_IN_OUT ? "experts.fc2.weight.shape.rows"
                                                               : "experts.fc2.weight.shape.cols";
}

/* Rules here name whole paths, "experts.fc1.weight.dtype". Errors tell them in two parts, as those of the experts' own
 * rules: a caller finds a field in one place, whoever refused it. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_told(tegroup_status status, tegroup_error *error) {
    static const char *const members[2] = {"experts", "router"};
    int i;
    for (i = 0; i < 2 && error && status != TEGROUP_OK && !error->within; i++) {
        const size_t length = strlen(members[i]);
        if (strncmp(error->field, members[i], length) != 0 || error->field[length] != '.') continue;
        error->within = members[i];
        error->field += length + 1;
    }
    return status;
}

/* A weight goes with rows by expert as they are; what goes with quantised ones the experts' plan says. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_weight(const tegroup_moe_desc *desc,
                                                                 const tegroup_moe_planned *p, int fc2,
                                                                 tegroup_error *error) {
    const tegroup_tensor *weight = fc2 ? &desc->experts.fc2.weight : &desc->experts.fc1.weight;
    const char *field = fc2 ? "experts.fc2.weight.dtype" : "experts.fc1.weight.dtype";
    TEGROUP_IMPL_RULE_AS(DTYPES, weight->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, field, "must be set",
                         TEGROUP_IMPL_FLOATS, 0);
    TEGROUP_IMPL_RULE_ENUM(weight->dtype, TEGROUP_DTYPE_COUNT - 1, field, "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         weight->scaling != TEGROUP_SCALING_NONE || p->rows_format.scaling != TEGROUP_SCALING_NONE
                             || tegroup_impl_goes_with(p->rows, weight->dtype),
                         ERROR_DTYPE, field, "must be tokens.dtype, or F16 or BF16 beside F32", p->rows, weight->dtype);
    return TEGROUP_OK;
}

/* What the weights say of the layer: its experts, widths and types. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_extents(const tegroup_moe_desc *desc,
                                                                  const tegroup_moe_planned *p, tegroup_error *error) {
    const int64_t inputs = tegroup_impl_weight_in(&desc->experts.fc1.weight, desc->experts.fc1.weight_layout);
    const tegroup_dtype bias = desc->experts.fc2.bias.dtype;
    TEGROUP_IMPL_RULE(p->width == inputs, ERROR_SHAPE, "tokens.cols", "must be the inputs of experts.fc1.weight",
                      inputs, p->width);
    TEGROUP_IMPL_RULE(p->experts >= 1 && p->experts <= TEGROUP_MAX_GROUPS, ERROR_VALUE,
                      "experts.fc1.weight.shape.groups", "must be 1 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS,
                      p->experts);
    TEGROUP_IMPL_RULE(p->preactivation >= 0 && p->preactivation <= TEGROUP_MAX_COLS, ERROR_VALUE,
                      tegroup_impl_moe_outputs_path(&desc->experts, 0),
                      "must be 0 to TEGROUP_MAX_COLS, with those of fc1_up", TEGROUP_MAX_COLS, p->preactivation);
    TEGROUP_IMPL_RULE(p->hidden >= 0 && p->hidden <= TEGROUP_MAX_COLS, ERROR_VALUE,
                      tegroup_impl_moe_hidden_path(&desc->experts), "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS,
                      p->hidden);
    TEGROUP_IMPL_RULE(p->outputs >= 0 && p->outputs <= TEGROUP_MAX_COLS, ERROR_VALUE,
                      tegroup_impl_moe_outputs_path(&desc->experts, 1), "must be 0 to TEGROUP_MAX_COLS",
                      TEGROUP_MAX_COLS, p->outputs);
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_weight(desc, p, 0, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_weight(desc, p, 1, error));
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         desc->tokens.dtype != TEGROUP_DTYPE_F64
                             || desc->experts.options.compute == TEGROUP_COMPUTE_F64,
                         ERROR_DTYPE, "tokens.dtype", "F64 needs experts.options.compute F64", TEGROUP_DTYPE_F32,
                         TEGROUP_DTYPE_F64);
    TEGROUP_IMPL_RULE_ENUM(bias, TEGROUP_DTYPE_COUNT - 1, "experts.fc2.bias.dtype", "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(
        DTYPE, !p->wants_grad_weights || bias == TEGROUP_DTYPE_UNSET || tegroup_impl_goes_with(p->rows, bias),
        ERROR_UNSUPPORTED, "experts.fc2.bias.dtype",
        "must be one that weights have beside tokens.dtype, with grad_logits or grad_weights", p->rows, bias);
    return TEGROUP_OK;
}

/* The routing of the caller's own, beside which there is no other. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_given(const tegroup_moe_desc *desc,
                                                                const tegroup_moe_planned *p, tegroup_error *error) {
    static const char *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("given_weights"),
                             *const grad[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_weights"),
                             *const indices[5] = TEGROUP_IMPL_MATRIX_PATHS("router.scheme.given_indices");
    static const char absent[] = "must be absent with given_weights";
    const tegroup_router_desc *router = &desc->router;
    const tegroup_matrix *const matrices[7] = {&router->logits,         &router->probabilities, &router->weights,
                                               &router->indices,        &router->counts,        &router->loss_gradients,
                                               &desc->grad_logits};
    static const char *const paths[7] = {"router.logits.dtype",  "router.probabilities.dtype",
                                         "router.weights.dtype", "router.indices.dtype",
                                         "router.counts.dtype",  "router.loss_gradients.dtype",
                                         "grad_logits.dtype"};
    tegroup_router_scheme others = router->scheme;
    int i;
    memset(&others.given_indices, 0, sizeof others.given_indices);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix_shape(&desc->given_weights, weights, p->tokens, p->k, 1u << p->real, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix_shape(&router->scheme.given_indices, indices, p->tokens, p->k,
                                                     TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional_shape(&desc->grad_weights, grad, p->tokens, p->k, 1u << p->real, error));
    TEGROUP_IMPL_RULE(p->backward || !tegroup_impl_there(&desc->grad_weights), ERROR_COMBINATION, "grad_weights",
                      "needs grad_output", 1, 0);
    TEGROUP_IMPL_RULE(!tegroup_impl_there(&desc->grad_weights) || desc->grad_weights.ld == 0
                          || desc->grad_weights.ld == p->k,
                      ERROR_LAYOUT, "grad_weights.ld", "must be 0 or router.k", p->k, desc->grad_weights.ld);
    for (i = 0; i < 7; i++)
        TEGROUP_IMPL_RULE_AS(DTYPE, !tegroup_impl_there(matrices[i]), ERROR_COMBINATION, paths[i], absent,
                             TEGROUP_DTYPE_UNSET, (int32_t)matrices[i]->dtype);
    TEGROUP_IMPL_RULE(router->normalize == 0, ERROR_COMBINATION, "router.normalize", "must be 0 with given_weights", 0,
                      router->normalize);
    TEGROUP_IMPL_RULE(router->balance_coefficient == 0, ERROR_COMBINATION, "router.balance_coefficient",
                      "must be 0 with given_weights", 0, 1);
    TEGROUP_IMPL_RULE(!router->balance_loss && !router->z_loss, ERROR_COMBINATION,
                      router->balance_loss ? "router.balance_loss" : "router.z_loss", "must be NULL with given_weights",
                      0, 1);
    TEGROUP_IMPL_RULE(router->threads == 0, ERROR_COMBINATION, "router.threads", "must be 0 with given_weights", 0,
                      router->threads);
    TEGROUP_IMPL_RULE(tegroup_impl_scheme_plain(&others) && others.topk_group == 0 && (int32_t)others.group_score == 0,
                      ERROR_COMBINATION, "router.scheme",
                      "must be all zero, given_indices apart, with given_weights", 0, 1);
    return TEGROUP_OK;
}

/* The caller's matrices, without their memory. Those that the router writes it checks itself, but for their types. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_shapes(const tegroup_moe_desc *desc,
                                                                 const tegroup_moe_planned *p, tegroup_error *error) {
    static const char *const paths[6][5] = {
        TEGROUP_IMPL_MATRIX_PATHS("tokens"),      TEGROUP_IMPL_MATRIX_PATHS("output"),
        TEGROUP_IMPL_MATRIX_PATHS("grad_output"), TEGROUP_IMPL_MATRIX_PATHS("grad_tokens"),
        TEGROUP_IMPL_MATRIX_PATHS("grad_logits"), TEGROUP_IMPL_MATRIX_PATHS("router.logits")};
    const uint32_t floats = TEGROUP_IMPL_FLOATS;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix_shape(&desc->tokens, paths[0], -1, -1, floats, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_extents(desc, p, error));
    TEGROUP_IMPL_TRY(tegroup_impl_of_member("router",
                                            tegroup_impl_check_router_sizes(p->experts, p->k, desc->router.normalize,
                                                                            desc->router.balance_coefficient, error),
                                            error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_loss_scale(desc->loss_scale, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->experts.options.threads, "experts.options.threads", error));
    TEGROUP_IMPL_RULE(desc->adds_to_output == 0 || desc->adds_to_output == 1, ERROR_VALUE, "adds_to_output",
                      "must be 0 or 1", 1, desc->adds_to_output);
    TEGROUP_IMPL_RULE(desc->adds_to_grad_tokens == 0
                          || (desc->adds_to_grad_tokens == 1 && tegroup_impl_there(&desc->grad_tokens)),
                      ERROR_VALUE, "adds_to_grad_tokens", "must be 0 or, with grad_tokens, 1",
                      tegroup_impl_there(&desc->grad_tokens), desc->adds_to_grad_tokens);
    /* Sums of narrower rows are F32. */
    TEGROUP_IMPL_RULE(!desc->adds_to_output || desc->output.dtype != TEGROUP_DTYPE_F64
                          || p->rows == TEGROUP_DTYPE_F64,
                      ERROR_COMBINATION, "adds_to_output", "must be 0 where output is F64 and tokens are not", 0, 1);
    TEGROUP_IMPL_RULE(!desc->adds_to_grad_tokens || desc->grad_tokens.dtype != TEGROUP_DTYPE_F64
                          || p->rows == TEGROUP_DTYPE_F64,
                      ERROR_COMBINATION, "adds_to_grad_tokens",
                      "must be 0 where grad_tokens are F64 and tokens are not", 0, 1);
    TEGROUP_IMPL_RULE(desc->drops_by_weight == 0 || desc->drops_by_weight == 1, ERROR_VALUE, "drops_by_weight",
                      "must be 0 or 1", 1, desc->drops_by_weight);
    TEGROUP_IMPL_RULE(desc->expert_capacity >= 0 && desc->expert_capacity <= TEGROUP_MAX_ROWS, ERROR_VALUE,
                      "expert_capacity", "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, desc->expert_capacity);
    TEGROUP_IMPL_RULE(desc->expert_capacity == 0 || desc->capacity == 0, ERROR_COMBINATION, "capacity",
                      "must be 0 with expert_capacity", 0, desc->capacity);
    TEGROUP_IMPL_RULE(desc->capacity >= 0 && p->capacity <= TEGROUP_MAX_COLS, ERROR_VALUE, "capacity",
                      "must be 0 to TEGROUP_MAX_COLS, and tokens.rows * router.k, too, where it is 0", TEGROUP_MAX_COLS,
                      desc->capacity < 0 ? desc->capacity : p->capacity);
    TEGROUP_IMPL_RULE(p->backward || !p->wants_grad_tokens, ERROR_COMBINATION, "grad_tokens", "needs grad_output", 1,
                      0);
    TEGROUP_IMPL_RULE(p->backward || !p->wants_grad_logits, ERROR_COMBINATION, "grad_logits", "needs grad_output", 1,
                      0);
    TEGROUP_IMPL_RULE(p->backward || desc->experts.fc1.main_grad.dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                      "experts.fc1.main_grad", "needs grad_output", 1, 0);
    TEGROUP_IMPL_RULE(p->backward || !p->wants_activated, ERROR_COMBINATION, "experts.fc2.main_grad",
                      "needs grad_output", 1, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, !p->backward || desc->grad_output.dtype == p->rows, ERROR_DTYPE, "grad_output.dtype",
                         "must be that of tokens", p->rows, desc->grad_output.dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix_shape(&desc->output, paths[1], p->tokens, p->outputs, floats, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional_shape(&desc->grad_output, paths[2], p->tokens, p->outputs, floats, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional_shape(&desc->grad_tokens, paths[3], p->tokens, p->width, floats, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional_shape(&desc->grad_logits, paths[4], p->tokens, p->experts, floats, error));
    if (p->given) TEGROUP_IMPL_TRY(tegroup_impl_moe_check_given(desc, p, error));
    else
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_matrix_shape(&desc->router.logits, paths[5], p->tokens, p->experts, floats, error));
    TEGROUP_IMPL_RULE(p->given || !tegroup_impl_there(&desc->grad_weights), ERROR_COMBINATION, "grad_weights",
                      "needs given_weights", 1, 0);
    TEGROUP_IMPL_RULE_AS(
        DTYPE, !tegroup_impl_there(&desc->router.probabilities) || desc->router.probabilities.dtype == p->real,
        ERROR_DTYPE, "router.probabilities.dtype", "must be F64 where tokens are, else F32", p->real,
        (int32_t)desc->router.probabilities.dtype);
    TEGROUP_IMPL_RULE_AS(DTYPE, !tegroup_impl_there(&desc->router.weights) || desc->router.weights.dtype == p->real,
                         ERROR_DTYPE, "router.weights.dtype", "must be F64 where tokens are, else F32", p->real,
                         (int32_t)desc->router.weights.dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_absent(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_format(p, 0, error));
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_format(p, 1, error));
    TEGROUP_IMPL_RULE_AS(SCALING,
                         desc->grad_format.scaling == TEGROUP_SCALING_NONE || !p->wants_grad_weights
                             || desc->experts.fc2.bias.dtype == TEGROUP_DTYPE_UNSET,
                         ERROR_UNSUPPORTED, "grad_format.scaling",
                         "must be none with experts.fc2.bias and grad_logits or grad_weights: no product has a plain "
                         "bias beside quantised rows",
                         TEGROUP_SCALING_NONE, desc->grad_format.scaling);
    return TEGROUP_OK;
}
