/* ---- Grouped linear layer: plan and calls ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "layer/linear_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "base/range.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "layer/linear_rules.h"

TEGROUP_IMPL_STATIC const tegroup_impl_name *tegroup_impl_linear_name(int tensor) {
#define TEGROUP_IMPL_ROW(name, member) TEGROUP_IMPL_NAME(#member),
    static const tegroup_impl_name names[] = {TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_ROW)};
#undef TEGROUP_IMPL_ROW
    return &names[tensor - 1];
}

/* The caller's descriptor as a layer. */
TEGROUP_IMPL_STATIC void tegroup_impl_linear_layer(const tegroup_linear_desc *desc, tegroup_impl_layer *layer) {
    int tensor;
    memset(layer, 0, sizeof *layer);
#define TEGROUP_IMPL_POINT(name, member) layer->tensor[TEGROUP_IMPL_LINEAR_##name] = &desc->member;
    TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_POINT)
#undef TEGROUP_IMPL_POINT
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        layer->name[tensor] = tegroup_impl_linear_name(tensor);
    layer->space = desc->space;
    layer->row_scale = desc->row_scale;
    layer->row_scale_dtype = desc->row_scale_dtype;
    layer->accumulate = desc->accumulate;
    layer->out_tail = desc->out_tail;
    layer->dgrad_out_tail = desc->dgrad_out_tail;
    layer->weight_layout = desc->weight_layout;
    layer->weight_layout_name = "weight_layout";
    layer->options = &desc->options;
    layer->gather_input = &desc->gather_input;
    layer->gather_grad_output = &desc->gather_grad_output;
}

#define TEGROUP_IMPL_THERE(member) (desc->member.dtype != TEGROUP_DTYPE_UNSET)

/* Which tensors are there, and for which others. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_linear_check_there(const tegroup_linear_desc *desc,
                                                                   const tegroup_impl_layer *layer,
                                                                   tegroup_error *error) {
    int tensor;
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        if (!tegroup_impl_layer_has(layer, tensor))
            TEGROUP_IMPL_TRY(tegroup_impl_check_absent(layer->tensor[tensor], layer->name[tensor], error));
    TEGROUP_IMPL_RULE_AS(
        DTYPES, TEGROUP_IMPL_THERE(out) || TEGROUP_IMPL_THERE(dgrad_out) || TEGROUP_IMPL_THERE(main_grad), ERROR_UNSET,
        "out.dtype", "must be set, or dgrad_out's, or main_grad's", TEGROUP_IMPL_FLOATS, 0);
#define TEGROUP_IMPL_NEEDS(member, other)                                                                              \
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(member) || TEGROUP_IMPL_THERE(other), ERROR_COMBINATION, #member,            \
                      "needs " #other, 1, 0)
    TEGROUP_IMPL_NEEDS(out, input);
    TEGROUP_IMPL_NEEDS(dgrad_out, grad_output);
    TEGROUP_IMPL_NEEDS(main_grad, input);
    TEGROUP_IMPL_NEEDS(main_grad, grad_output);
    TEGROUP_IMPL_NEEDS(bias_grad, main_grad);
    TEGROUP_IMPL_NEEDS(bias_grad, bias);
    TEGROUP_IMPL_NEEDS(grad_row_scale, dgrad_out);
    TEGROUP_IMPL_NEEDS(grad_row_scale, bias);
#undef TEGROUP_IMPL_NEEDS
    TEGROUP_IMPL_RULE_ENUM(desc->out_tail, TEGROUP_TAIL_POISON, "out_tail", "must be a tegroup_tail");
    TEGROUP_IMPL_RULE_ENUM(desc->dgrad_out_tail, TEGROUP_TAIL_POISON, "dgrad_out_tail", "must be a tegroup_tail");
    TEGROUP_IMPL_TRY(tegroup_impl_check_real(desc->row_scale_dtype, "row_scale_dtype", error));
    TEGROUP_IMPL_RULE_AS(DTYPE, !desc->row_scale || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET,
                         "row_scale_dtype", "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, desc->row_scale_dtype == TEGROUP_DTYPE_UNSET || TEGROUP_IMPL_THERE(bias),
                         ERROR_COMBINATION, "row_scale_dtype", "needs bias", 0, desc->row_scale_dtype);
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(grad_row_scale) || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET,
                      ERROR_COMBINATION, "grad_row_scale", "needs row_scale", 1, 0);
    TEGROUP_IMPL_RULE(!desc->accumulate || TEGROUP_IMPL_THERE(main_grad), ERROR_COMBINATION, "accumulate",
                      "needs main_grad", 0, desc->accumulate);
    TEGROUP_IMPL_RULE(desc->out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(out), ERROR_COMBINATION, "out_tail",
                      "needs out", 0, desc->out_tail);
    TEGROUP_IMPL_RULE(desc->dgrad_out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(dgrad_out), ERROR_COMBINATION,
                      "dgrad_out_tail", "needs dgrad_out", 0, desc->dgrad_out_tail);
    return TEGROUP_OK;
}

/* The layer's own rules. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_linear_check(const tegroup_linear_desc *desc, tegroup_impl_layer *layer,
                                                             tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    tegroup_impl_linear_layer(desc, layer);
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check_there(desc, layer, error));
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check(layer, error));
    return TEGROUP_IMPL_THERE(grad_row_scale) ? tegroup_impl_layer_check_bias_type(layer, error) : TEGROUP_OK;
}
#undef TEGROUP_IMPL_THERE

TEGROUP_API tegroup_status tegroup_linear_gemm(const tegroup_linear_desc *desc, tegroup_op op, tegroup_gemm_desc *gemm,
                                               tegroup_error *error) {
    tegroup_linear_desc taken;
    tegroup_impl_layer layer;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check(desc, &layer, error));
    TEGROUP_IMPL_RULE(op != TEGROUP_OP_UNSET, ERROR_UNSET, "op", "must be set", TEGROUP_OP_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(op, TEGROUP_OP_WGRAD, "op", "must be a tegroup_op");
    TEGROUP_IMPL_RULE(gemm != NULL, ERROR_NULL_ARGUMENT, "gemm", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE_AS(DTYPES, tegroup_impl_layer_has(&layer, tegroup_impl_layer_output((int)op)), ERROR_UNSET,
                         layer.name[tegroup_impl_layer_output((int)op)]->members[TEGROUP_IMPL_MEMBER_DTYPE],
                         "must be set: it is what this call writes", TEGROUP_IMPL_FLOATS, 0);
    tegroup_impl_layer_product(&layer, (int)op, gemm);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_linear_plan_make(const tegroup_linear_desc *desc, const tegroup_target *target,
                                                    tegroup_linear_plan *plan, tegroup_error *error) {
    tegroup_linear_desc taken;
    tegroup_linear_plan made;
    tegroup_impl_layer layer;
    int product;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check(desc, &layer, error));
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    memset(&made, 0, sizeof made);
    for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++)
        if (tegroup_impl_layer_has(&layer, tegroup_impl_layer_output(product)))
            TEGROUP_IMPL_TRY(tegroup_impl_layer_plan(&layer, product, 0, target, &made, error));
    *plan = made;
    return TEGROUP_OK;
}

/* A call: its layer points into the descriptor that it took. */
typedef struct tegroup_impl_linear_call {
    tegroup_linear_desc taken;
    tegroup_impl_layer layer;
} tegroup_impl_linear_call;

/* What a call checks before its product checks itself. Tensors that the call does not use are not looked at. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_linear_begin(tegroup_impl_linear_call *call,
                                                             const tegroup_linear_plan *plan,
                                                             const tegroup_linear_desc *desc, tegroup_error *error) {
    TEGROUP_IMPL_RULE_PLAN(plan, TEGROUP_LINEAR_PLAN_MAGIC, "must be what tegroup_linear_plan_make wrote");
    TEGROUP_IMPL_TAKE(desc, call->taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    tegroup_impl_linear_layer(desc, &call->layer);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_linear_forward(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                  struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_linear_forward")
    tegroup_impl_linear_call call;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_begin(&call, plan, desc, error));
    return tegroup_impl_layer_call(&call.layer, plan, TEGROUP_OP_FORWARD, 1, stream, error);
}

TEGROUP_API tegroup_status tegroup_linear_dgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_linear_dgrad")
    tegroup_impl_linear_call call;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_begin(&call, plan, desc, error));
    return tegroup_impl_layer_dgrad(&call.layer, plan, 1, stream, error);
}

TEGROUP_API tegroup_status tegroup_linear_wgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_linear_wgrad")
    tegroup_impl_linear_call call;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_begin(&call, plan, desc, error));
    return tegroup_impl_layer_call(&call.layer, plan, TEGROUP_OP_WGRAD, 1, stream, error);
}
