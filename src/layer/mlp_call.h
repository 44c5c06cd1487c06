/* ---- Grouped MLP: a call's products, and what it checks ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "layer/mlp_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/scale_rule.h"
#include "core/layout.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/copies.h"
#include "core/apart.h"
#include "gemm/check.h"
#include "layer/quantize_rules.h"
#include "layer/linear_rules.h"
#include "layer/mlp_rules.h"
#include "layer/mlp_plan.h"

/* What a call of an MLP works with. */
typedef struct tegroup_impl_mlp_product {
    tegroup_mlp_layer layer;
    int product;
    const tegroup_plan *plan;
    tegroup_gemm_desc gemm;
} tegroup_impl_mlp_product;

typedef struct tegroup_impl_mlp_call {
    const tegroup_mlp_desc *desc;
    const tegroup_impl_mlp_plans *plans;
    uint32_t reads, writes; /* bits of tegroup_impl_mlp_tensor: all that the call touches */
    int count;
    tegroup_impl_mlp_product products[4]; /* in the order in which they run */
    tegroup_impl_mlp_layers layers;
} tegroup_impl_mlp_call;

TEGROUP_IMPL_STATIC void tegroup_impl_mlp_call_add(tegroup_impl_mlp_call *call, tegroup_mlp_layer layer, int product,
                                                   uint32_t reads, uint32_t writes) {
    call->products[call->count].layer = layer;
    call->products[call->count].product = product;
    call->products[call->count++].plan = tegroup_impl_mlp_made(call->plans, layer, product);
    call->reads |= reads;
    call->writes |= writes;
}

/* How a tensor is quantised must be as planned. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_format(const tegroup_mlp_format *planned,
                                                                 const tegroup_tensor *t,
                                                                 const tegroup_scale_rule *rule, int tensor,
                                                                 tegroup_error *error) {
    const tegroup_impl_quantize_names *names = tegroup_impl_mlp_quantize_names(tensor);
    const tegroup_impl_name *name = &names->output;
    const tegroup_mlp_format format = tegroup_impl_mlp_format(t, rule);
    TEGROUP_IMPL_RULE_AS(SCALING, planned->scaling == format.scaling, ERROR_PLAN, TEGROUP_IMPL_PATH(SCALING),
                         "must be as planned", planned->scaling, format.scaling);
    TEGROUP_IMPL_RULE_AS(DTYPE, planned->scale_dtype == format.scale_dtype, ERROR_PLAN, TEGROUP_IMPL_PATH(SCALE_DTYPE),
                         "must be as planned", planned->scale_dtype, format.scale_dtype);
    TEGROUP_IMPL_RULE(planned->scale_strides == format.scale_strides, ERROR_PLAN, TEGROUP_IMPL_PATH(SCALE_OUTER_STRIDE),
                      "must be set just when planned so", planned->scale_strides, format.scale_strides);
    /* A call may quantise what none of its products reads, and then no product checks this. */
    TEGROUP_IMPL_RULE(planned->columnwise_order == format.columnwise_order, ERROR_PLAN,
                      TEGROUP_IMPL_PATH(COLUMNWISE_ORDER), "must be as planned", planned->columnwise_order,
                      format.columnwise_order);
    return tegroup_impl_check_planned_rule(&planned->rule, &format.rule, &names->rule, error);
}

/* The plan and the descriptor ask for the same, as far as the products do not see to it. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_planned(const tegroup_impl_mlp_call *call,
                                                                  tegroup_error *error) {
    const tegroup_mlp_desc *desc = call->desc;
    const tegroup_mlp_planned *planned = call->plans->planned;
    int i;
    TEGROUP_IMPL_RULE(planned->activation == desc->activation, ERROR_PLAN, "activation", "must be as planned",
                      planned->activation, desc->activation);
    TEGROUP_IMPL_RULE(planned->interleaved == desc->interleaved, ERROR_PLAN, "interleaved", "must be as planned",
                      planned->interleaved, desc->interleaved);
    TEGROUP_IMPL_RULE(planned->recompute == desc->recompute, ERROR_PLAN, "recompute", "must be as planned",
                      planned->recompute, desc->recompute);
    TEGROUP_IMPL_RULE(planned->fc2_bias_scaled == desc->fc2_bias_scaled, ERROR_PLAN, "fc2_bias_scaled",
                      "must be as planned", planned->fc2_bias_scaled, desc->fc2_bias_scaled);
    for (i = 0; i < TEGROUP_IMPL_MLP_COUNT; i++)
        TEGROUP_IMPL_RULE_AS(
            DTYPE, !((call->reads | call->writes) >> i & 1u) || tegroup_impl_mlp_dtype(desc, i) == planned->dtypes[i],
            ERROR_PLAN,
            i == TEGROUP_IMPL_MLP_ROW_SCALE ? "row_scale_dtype" : tegroup_impl_mlp_path(i, TEGROUP_IMPL_MEMBER_DTYPE),
            "must be as planned", planned->dtypes[i], (int32_t)tegroup_impl_mlp_dtype(desc, i));
    if (call->products[0].product == TEGROUP_OP_FORWARD || call->writes >> TEGROUP_IMPL_MLP_ACTIVATED & 1u)
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_format(&planned->activated, &call->layers.activated,
                                                       &desc->activated_rule, TEGROUP_IMPL_MLP_ACTIVATED, error));
    if (call->writes >> TEGROUP_IMPL_MLP_GRAD_PREACTIVATION & 1u)
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_format(&planned->grad_preactivation, &desc->grad_preactivation,
                                                       &desc->grad_rule, TEGROUP_IMPL_MLP_GRAD_PREACTIVATION, error));
    return TEGROUP_OK;
}

/* A call may have more rows than planned where none of them lie in the workspace. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_scratch(const tegroup_impl_mlp_call *call,
                                                                  tegroup_error *error) {
    const tegroup_impl_mlp_layers *layers = &call->layers;
    const int op = call->products[0].product,
              scratch = op == TEGROUP_OP_DGRAD
                        || (op == TEGROUP_OP_FORWARD
                            && (call->desc->preactivation.dtype == TEGROUP_DTYPE_UNSET
                                || call->plans->planned->values_bytes > 0
                                || layers->fc2.tensor[TEGROUP_IMPL_LINEAR_INPUT] == &layers->activated));
    const int64_t planned = call->products[0].plan->problem.rows, rows = call->desc->input.shape.rows;
    TEGROUP_IMPL_RULE(!scratch || rows <= planned, ERROR_PLAN, "input.shape.rows",
                      "must be at most as planned: the workspace holds rows between the layers", planned, rows);
    return TEGROUP_OK;
}

/* The buffers of a quantised tensor that the MLP writes: its copies, and what is one number a group. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_mlp_written(const tegroup_tensor *t, int tensor,
                                                     tegroup_impl_buffer *buffers) {
    const tegroup_impl_quantize_names *names = tegroup_impl_mlp_quantize_names(tensor);
    const tegroup_impl_name *name = &names->output;
    float *const numbers[] = {t->amax, t->columnwise_amax, t->global_scale_inv, t->scale};
    const char *const paths[] = {TEGROUP_IMPL_PATH(AMAX), TEGROUP_IMPL_PATH(COLUMNWISE_AMAX),
                                 TEGROUP_IMPL_PATH(GLOBAL_SCALE_INV), TEGROUP_IMPL_PATH(SCALE)};
    int32_t count = 0, i;
    for (i = 0; i < TEGROUP_IMPL_COPIES; i++) {
        buffers[count++] = tegroup_impl_copy_buffer(t, name, i, 0, 1);
        buffers[count++] = tegroup_impl_copy_buffer(t, name, i, 1, 1);
    }
    for (i = 0; i < 4; i++)
        buffers[count++] =
            tegroup_impl_buffer_of(numbers[i], 4 * (int64_t)t->shape.groups, paths[i], name->apart, i < 3);
    return count;
}

/* What its products read of quantised tensors: those that are in the set. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_mlp_read(const tegroup_impl_mlp_call *call, uint32_t set,
                                                  tegroup_impl_buffer *buffers) {
    int32_t count = 0, i, operand;
    for (i = 0; i < call->count; i++)
        for (operand = TEGROUP_IMPL_A; operand <= TEGROUP_IMPL_B; operand++) {
            const tegroup_impl_mlp_product *p = &call->products[i];
            const tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &p->gemm.a : &p->gemm.b;
            const tegroup_impl_layer *layer = tegroup_impl_mlp_layer_at(&call->layers, p->layer);
            const int role = tegroup_impl_layer_role(layer, p->product, operand),
                      tensor = tegroup_impl_mlp_role(p->layer, role);
            if (layer->tensor[role]->scaling != TEGROUP_SCALING_NONE && set >> tensor & 1u)
                count += tegroup_impl_operand_buffers(&p->gemm, (tegroup_impl_operand)operand, t, layer->name[role],
                                                      buffers + count);
        }
    return count;
}

/* What a call writes lies apart from all else that it touches, and so does the workspace: for all of its products at
 * once. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_apart(const tegroup_impl_mlp_call *call,
                                                                size_t workspace_bytes, tegroup_error *error) {
    const tegroup_mlp_desc *desc = call->desc;
    const uint32_t reads = call->reads, writes = call->writes;
    const tegroup_tensor input = tegroup_impl_stored(&desc->input, &desc->gather_input),
                         grad_output = tegroup_impl_stored(&desc->grad_output, &desc->gather_grad_output);
    tegroup_impl_buffer buffers[TEGROUP_IMPL_MLP_COUNT + 4 + 2 * 8 + 8 * 3 + 2];
    int32_t i, count = 0, preactivation = -1;
    buffers[count++] = tegroup_impl_workspace_buffer(&desc->options, workspace_bytes);
    for (i = 0; i < TEGROUP_IMPL_MLP_ROW_SCALE; i++) {
        const tegroup_tensor *t = i == TEGROUP_IMPL_MLP_INPUT         ? &input
                                  : i == TEGROUP_IMPL_MLP_GRAD_OUTPUT ? &grad_output
                                                                      : tegroup_impl_mlp_at(desc, i);
        const int written = writes >> i & 1u;
        if (!((reads | writes) >> i & 1u) || t->dtype == TEGROUP_DTYPE_UNSET) continue;
        if (t->scaling != TEGROUP_SCALING_NONE) {
            const int32_t more = written ? tegroup_impl_mlp_written(t, i, buffers + count) : 0;
            if (more && i == TEGROUP_IMPL_MLP_GRAD_PREACTIVATION && tegroup_impl_keeps_values(t)
                && t->columnwise_data == desc->preactivation.data)
                buffers[count + 2 * TEGROUP_IMPL_COLUMNWISE].twin = preactivation;
            count += more;
            continue;
        }
        if (i == TEGROUP_IMPL_MLP_PREACTIVATION) preactivation = count;
        buffers[count] = tegroup_impl_tensor_buffer(t, tegroup_impl_mlp_name(i), written);
        if (i == TEGROUP_IMPL_MLP_GRAD_PREACTIVATION && desc->grad_preactivation.data == desc->preactivation.data
            && desc->grad_preactivation.dtype == desc->preactivation.dtype)
            buffers[count].twin = preactivation;
        count++;
    }
    count += tegroup_impl_mlp_read(call, reads & ~writes, buffers + count);
    if (reads >> TEGROUP_IMPL_MLP_ROW_SCALE & 1u)
        buffers[count++] = tegroup_impl_buffer_of(
            desc->row_scale, tegroup_impl_mul(desc->input.shape.rows, tegroup_impl_bits(desc->row_scale_dtype) / 8),
            NULL, "must not overlap row_scale", 0);
    if (call->products[0].product == TEGROUP_OP_FORWARD && !(writes >> TEGROUP_IMPL_MLP_ACTIVATED & 1u)
        && desc->activated_rule.method == TEGROUP_SCALE_GIVEN) /* of rows that lie in the workspace */
        buffers[count++] = tegroup_impl_buffer_of(desc->activated.scale, 4 * (int64_t)desc->input.shape.groups, NULL,
                                                  "must not overlap activated.scale", 0);
    if (reads >> TEGROUP_IMPL_MLP_INPUT & 1u)
        buffers[count++] =
            tegroup_impl_index_buffer(&desc->gather_input, &desc->input, tegroup_impl_mlp_name(TEGROUP_IMPL_MLP_INPUT));
    if (reads >> TEGROUP_IMPL_MLP_GRAD_OUTPUT & 1u)
        buffers[count++] = tegroup_impl_index_buffer(&desc->gather_grad_output, &desc->grad_output,
                                                     tegroup_impl_mlp_name(TEGROUP_IMPL_MLP_GRAD_OUTPUT));
    buffers[count++] = tegroup_impl_snapshot_buffer(&desc->input);
    return tegroup_impl_check_apart(buffers, count, desc->options.check_level, NULL, error);
}

/* The rules of a tensor that an activation reads or writes: what is between the products, and grad_row_scale. It need
 * not be an operand of any product in this call, and then no product checks it. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_unmultiplied(const tegroup_impl_mlp_call *call, int tensor,
                                                                       tegroup_error *error) {
    const tegroup_impl_name *name = tegroup_impl_mlp_name(tensor);
    const tegroup_tensor *t = tegroup_impl_mlp_at(call->desc, tensor);
    if (t->dtype == TEGROUP_DTYPE_UNSET || tensor < TEGROUP_IMPL_MLP_GRAD_ROW_SCALE) return TEGROUP_OK;
    if (tensor == TEGROUP_IMPL_MLP_GRAD_ROW_SCALE)
        return tegroup_impl_layer_check_tensor(&call->layers.fc2, TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE, error);
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(t, name, error));
    TEGROUP_IMPL_RULE(t->shape.groups == call->desc->input.shape.groups, ERROR_SHAPE, TEGROUP_IMPL_PATH(GROUPS),
                      "must equal input.shape.groups", call->desc->input.shape.groups, t->shape.groups);
    return TEGROUP_OK;
}

/* Everything that a call checks but its activation: the tensors that it touches, and that its products check
 * themselves. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_call(tegroup_impl_mlp_call *call, size_t workspace_bytes,
                                                               tegroup_error *error) {
    const tegroup_mlp_desc *desc = call->desc;
    const uint32_t touched = call->reads | call->writes;
    int i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_numbers(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_planned(call, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_scratch(call, error));
    for (i = TEGROUP_IMPL_MLP_OUT; i < TEGROUP_IMPL_MLP_ROW_SCALE; i++) {
        if (!(touched >> i & 1u)) continue;
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_rows(desc, i, error));
        if (i >= TEGROUP_IMPL_MLP_PREACTIVATION) TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_saved(desc, i, error));
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_unmultiplied(call, i, error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_options_workspace(workspace_bytes, &desc->options, error));
    tegroup_impl_mlp_place(call->plans, desc, &call->layers);
    for (i = 0; i < call->count; i++) {
        tegroup_impl_mlp_product *p = &call->products[i];
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_product(tegroup_impl_mlp_layer_at(&call->layers, p->layer),
                                                          p->product, tegroup_impl_mlp_adds(p->layer, p->product), 0,
                                                          tegroup_impl_mlp_linear(call->plans, p->layer), &p->gemm,
                                                          error));
    }
    return tegroup_impl_mlp_check_apart(call, workspace_bytes, error);
}

/* A call begins: the descriptor's head, and that what the call writes is there and planned. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_begin(tegroup_impl_mlp_call *call,
                                                          const tegroup_impl_mlp_plans *plans,
                                                          const tegroup_mlp_desc *desc, tegroup_op op,
                                                          tegroup_error *error) {
    const tegroup_dtype up = plans->planned->dtypes[TEGROUP_IMPL_MLP_FC1_UP_WEIGHT];
    int layer, product;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    call->desc = desc;
    call->plans = plans;
    call->reads = call->writes = 0;
    call->count = 0;
    TEGROUP_IMPL_RULE_AS(DTYPES,
                         op != TEGROUP_OP_WGRAD || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1, (int)op)
                             || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, (int)op),
                         ERROR_UNSET, "fc1.main_grad.dtype",
                         "must be set, or fc2.main_grad's: they are what this call writes", TEGROUP_IMPL_FLOATS, 0);
    TEGROUP_IMPL_RULE_AS(DTYPES, op == TEGROUP_OP_WGRAD || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, (int)op),
                         ERROR_UNSET, op == TEGROUP_OP_FORWARD ? "out.dtype" : "grad_preactivation.dtype",
                         "must be set: it is what this call writes", TEGROUP_IMPL_FLOATS, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, tegroup_impl_mlp_apart(desc) == (up != TEGROUP_DTYPE_UNSET), ERROR_PLAN,
                         "fc1_up.weight.dtype", "must be set just when planned so", up, desc->fc1_up.weight.dtype);
    for (layer = TEGROUP_MLP_FC1; layer <= (int)tegroup_impl_mlp_last(plans); layer++)
        for (product = (int)op; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            const tegroup_plan *one = tegroup_impl_mlp_made(plans, (tegroup_mlp_layer)layer, product);
            const int tensor = tegroup_impl_mlp_asks((tegroup_mlp_layer)layer, product);
            if (product != (int)op && !(product == TEGROUP_IMPL_LINEAR_ROW_SCALE && op == TEGROUP_OP_DGRAD)) continue;
            TEGROUP_IMPL_RULE_AS(
                DTYPE,
                (one->magic == TEGROUP_PLAN_MAGIC) == tegroup_impl_mlp_wants(desc, (tegroup_mlp_layer)layer, product),
                ERROR_PLAN, tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_DTYPE),
                "must be set just when planned so", one->problem.d, tegroup_impl_mlp_at(desc, tensor)->dtype);
        }
    TEGROUP_IMPL_RULE(op == TEGROUP_OP_WGRAD || desc->input.shape.snapshot != NULL, ERROR_NULL_ARGUMENT,
                      "input.shape.snapshot", "must not be NULL: prepare first", 1, 0);
    tegroup_impl_mlp_layers_of(desc, op, &call->layers);
    return TEGROUP_OK;
}
