/* ---- Grouped MLP: calls ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "layer/mlp_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "base/range.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/epilogue.h"
#include "gemm/backends.h"
#include "gemm/run.h"
#include "layer/activation.h"
#include "layer/quantize_rules.h"
#include "layer/quantize.h"
#include "layer/linear_rules.h"
#include "layer/mlp_rules.h"
#include "layer/mlp_plan.h"
#include "layer/mlp_call.h"

#if TEGROUP_IMPL_FUSED_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
/* Gradients of row_scale, of the sums that a dgrad with a gradient in its epilogue leaves in D's place. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_row_sums(const tegroup_activation_backward_desc *desc,
                                                              const float *sums, struct CUstream_st *stream,
                                                              tegroup_error *error);
#endif

TEGROUP_IMPL_STATIC tegroup_matrix tegroup_impl_mlp_row_scale(const tegroup_mlp_desc *desc) {
    tegroup_matrix m;
    m.data = (void *)(uintptr_t)desc->row_scale;
    m.rows = desc->input.shape.rows;
    m.cols = 1;
    m.ld = 0;
    m.dtype = desc->row_scale_dtype;
    return m;
}

/* activated = row_scale * f(preactivation), from and to where the products have them. */
TEGROUP_IMPL_STATIC void tegroup_impl_mlp_describe_activation(const tegroup_mlp_desc *desc,
                                                              const tegroup_tensor *preactivation,
                                                              const tegroup_tensor *activated,
                                                              tegroup_activation_desc *activation) {
    memset(activation, 0, sizeof *activation);
    activation->struct_size = sizeof *activation;
    activation->space = desc->space;
    activation->activation = desc->activation;
    activation->interleaved = desc->interleaved;
    activation->alpha = desc->alpha;
    activation->limit = desc->limit;
    activation->snapshot = desc->input.shape.snapshot;
    activation->input = tegroup_impl_rows_matrix(preactivation);
    activation->row_scale = tegroup_impl_mlp_row_scale(desc);
    activation->output = tegroup_impl_rows_matrix(activated);
    activation->threads = desc->options.threads;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_activation(const tegroup_mlp_desc *desc,
                                                               const tegroup_tensor *preactivation,
                                                               const tegroup_tensor *activated,
                                                               tegroup_activation_desc *activation,
                                                               tegroup_error *error) {
    tegroup_impl_mlp_describe_activation(desc, preactivation, activated, activation);
    return tegroup_impl_activation_check(activation, tegroup_impl_mlp_activation_names(), error);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_activation_backward(const tegroup_mlp_desc *desc,
                                                                        const tegroup_tensor *grad_activated,
                                                                        tegroup_activation_backward_desc *activation,
                                                                        tegroup_error *error) {
    tegroup_activation_desc forward;
    tegroup_impl_mlp_describe_activation(desc, &desc->preactivation, &desc->activated, &forward);
    tegroup_impl_activation_backward_of(&forward, activation);
    activation->grad_output = tegroup_impl_rows_matrix(grad_activated);
    activation->grad_input = tegroup_impl_rows_matrix(&desc->grad_preactivation);
    activation->grad_row_scale = tegroup_impl_rows_matrix(&desc->grad_row_scale);
    return tegroup_impl_activation_backward_check(activation, tegroup_impl_mlp_activation_names(), error);
}

/* What computes the activation, or its gradient, after a product: one call, or one that quantises what it computes,
 * by way of `values` where that is not NULL. */
typedef struct tegroup_impl_mlp_step {
    int quantises;
    tegroup_quantize_desc quantize;
    void *values;
} tegroup_impl_mlp_step;

/* Describes and checks how `output` is quantised, where it has a scaling (step->quantises): from the activation of
 * preactivation or, with grad_activated, from its gradient. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_quantize(const tegroup_impl_mlp_call *call, int tensor,
                                                             const tegroup_tensor *preactivation,
                                                             const tegroup_tensor *grad_activated,
                                                             const tegroup_tensor *output, tegroup_impl_mlp_step *step,
                                                             tegroup_error *error) {
    const tegroup_mlp_desc *desc = call->desc;
    const tegroup_impl_quantize_names *names = tegroup_impl_mlp_quantize_names(tensor);
    const int copies = tegroup_impl_mlp_copies(call->plans, tensor, output);
    tegroup_quantize_desc *quantize = &step->quantize;
    int copy;
    step->quantises = output->scaling != TEGROUP_SCALING_NONE;
    if (!step->quantises) return TEGROUP_OK;
    memset(quantize, 0, sizeof *quantize);
    quantize->struct_size = sizeof *quantize;
    quantize->space = desc->space;
    quantize->input = *preactivation;
    quantize->activation = desc->activation;
    quantize->interleaved = desc->interleaved;
    quantize->alpha = desc->alpha;
    quantize->limit = desc->limit;
    quantize->row_scale = tegroup_impl_mlp_row_scale(desc);
    quantize->rule = grad_activated ? desc->grad_rule : desc->activated_rule;
    quantize->output = *output;
    quantize->threads = desc->options.threads;
    if (grad_activated) {
        quantize->grad_output = *grad_activated;
        quantize->grad_row_scale = tegroup_impl_rows_matrix(&desc->grad_row_scale);
    }
    quantize->input.shape.snapshot = quantize->output.shape.snapshot = desc->input.shape.snapshot;
    step->values = NULL;
    if (tegroup_impl_mlp_values_bytes(desc, output, grad_activated != NULL, output == &call->layers.activated) > 0)
        step->values = call->layers.values;
    for (copy = 0; copy < TEGROUP_IMPL_COPIES && output != &call->layers.activated; copy++)
        TEGROUP_IMPL_RULE(
            !(copies >> copy & 1) || tegroup_impl_has_copy(output, copy) || tegroup_impl_copy_bytes(output, copy) == 0,
            ERROR_NULL_ARGUMENT,
            tegroup_impl_copy_paths_of(&names->output, tegroup_impl_listed(output), copy).data,
            "must not be NULL: a planned product reads it", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantize_as(quantize, names, error));
    return tegroup_impl_check_quantize_built(quantize, error);
}

/* Whether a call runs its first product fused, as planned. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_fused(const tegroup_impl_mlp_call *call, uint32_t bit,
                                                                int *fused, tegroup_error *error) {
    const tegroup_backend backend = call->products[0].plan->backend;
    *fused = (call->plans->planned->fused & bit) != 0;
    TEGROUP_IMPL_RULE(call->desc->fusion != (*fused ? TEGROUP_FUSION_NEVER : TEGROUP_FUSION_REQUIRED), ERROR_PLAN,
                      "fusion", "must be as planned", *fused ? TEGROUP_FUSION_REQUIRED : TEGROUP_FUSION_NEVER,
                      call->desc->fusion);
    TEGROUP_IMPL_RULE(!*fused || backend == TEGROUP_BACKEND_SM90 || backend == TEGROUP_BACKEND_PORTABLE, ERROR_PLAN,
                      "plan", "must have the product that was fused", TEGROUP_BACKEND_SM90, backend);
    return TEGROUP_OK;
}

/* What an epilogue has to do with and no product checks. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_epilogue(const tegroup_matrix *m, const char *field,
                                                                   tegroup_error *error) {
    TEGROUP_IMPL_RULE(
        tegroup_impl_aligned(m->data, 16) || m->rows == 0 || m->cols == 0, ERROR_ALIGNMENT, field,
        "must be 16-byte aligned for an epilogue; a plan made with options.data_alignment_bytes 2 takes any", 16,
        (uintptr_t)m->data % 16);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_run(const tegroup_impl_mlp_product *p, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    return tegroup_impl_gemm_run(p->plan, &p->gemm, stream, error);
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_run_fused(const tegroup_impl_mlp_product *p,
                                                              const tegroup_impl_epilogue *epilogue,
                                                              struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_TRY(
        tegroup_impl_backend_of(p->plan->backend)->run_fused(p->plan, &p->gemm, epilogue, stream, error));
#if TEGROUP_IMPL_FUSED_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
    if (p->gemm.op == TEGROUP_OP_DGRAD)
        return tegroup_impl_cuda_row_sums(&epilogue->gradient, (const float *)p->gemm.d.data, stream, error);
#endif
    return TEGROUP_OK;
}

#define TEGROUP_IMPL_BIT(name) (1u << TEGROUP_IMPL_MLP_##name)

/* The calls; run 0: only what they check. */

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_forward(const tegroup_impl_mlp_plans *plans, size_t workspace_bytes,
                                                            const tegroup_mlp_desc *desc, int run,
                                                            struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_mlp_call call;
    tegroup_impl_epilogue epilogue;
    const tegroup_tensor *preactivation =
        desc->preactivation.dtype != TEGROUP_DTYPE_UNSET ? &desc->preactivation : &call.layers.preactivation;
    const tegroup_impl_mlp_product *fc2;
    tegroup_impl_mlp_step step;
    int fused, i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_begin(&call, plans, desc, TEGROUP_OP_FORWARD, error));
    TEGROUP_IMPL_RULE(tegroup_impl_mlp_keeps(desc) || plans->planned->scratch_activated, ERROR_PLAN, "activated.dtype",
                      "must be as planned", plans->fc2->forward.problem.a, 0);
    tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC1, TEGROUP_OP_FORWARD,
                              TEGROUP_IMPL_BIT(INPUT) | TEGROUP_IMPL_BIT(FC1_WEIGHT) | TEGROUP_IMPL_BIT(FC1_BIAS),
                              TEGROUP_IMPL_BIT(PREACTIVATION));
    if (tegroup_impl_mlp_apart(desc))
        tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC1_UP, TEGROUP_OP_FORWARD,
                                  TEGROUP_IMPL_BIT(FC1_UP_WEIGHT) | TEGROUP_IMPL_BIT(FC1_UP_BIAS), 0);
    fc2 = &call.products[call.count];
    tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC2, TEGROUP_OP_FORWARD,
                              TEGROUP_IMPL_BIT(FC2_WEIGHT) | TEGROUP_IMPL_BIT(FC2_BIAS) | TEGROUP_IMPL_BIT(ROW_SCALE),
                              TEGROUP_IMPL_BIT(OUT) | (tegroup_impl_mlp_keeps(desc) ? TEGROUP_IMPL_BIT(ACTIVATED) : 0));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(&call, workspace_bytes, error));
    memset(&epilogue, 0, sizeof epilogue); /* there is no gradient */
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_quantize(&call, TEGROUP_IMPL_MLP_ACTIVATED, preactivation, NULL,
                                               call.layers.fc2.tensor[TEGROUP_IMPL_LINEAR_INPUT], &step, error));
    if (!step.quantises)
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_activation(desc, preactivation, &fc2->gemm.a, &epilogue.activation, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_fused(&call, TEGROUP_FUSED_FORWARD, &fused, error));
    if (fused) {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.output, "activated.data", error));
        if (desc->preactivation.dtype != TEGROUP_DTYPE_UNSET)
            TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.input, "preactivation.data", error));
    }

    if (!run) return TEGROUP_OK;
    if (fused) {
        epilogue.kernel = plans->planned->activated_kernel;
        epilogue.keeps_d = desc->preactivation.dtype != TEGROUP_DTYPE_UNSET;
        epilogue.up = tegroup_impl_mlp_apart(desc) ? &call.products[1].gemm : NULL;
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run_fused(&call.products[0], &epilogue, stream, error));
    } else {
        for (i = 0; i + 1 < call.count; i++)
            TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[i], stream, error));
        TEGROUP_IMPL_TRY(step.quantises ? tegroup_impl_quantize_through(&step.quantize, step.values, stream, error)
                                        : tegroup_impl_activation_run(&epilogue.activation, stream, error));
    }
    return tegroup_impl_mlp_run(fc2, stream, error);
}

/* fc2's dgrad, then what is wanted of the bias's part of grad_row_scale and of fc1's dgrad. */
TEGROUP_IMPL_STATIC void tegroup_impl_mlp_dgrad_products(tegroup_impl_mlp_call *call) {
    const tegroup_mlp_desc *desc = call->desc;
    tegroup_impl_mlp_call_add(call, TEGROUP_MLP_FC2, TEGROUP_OP_DGRAD,
                              TEGROUP_IMPL_BIT(GRAD_OUTPUT) | TEGROUP_IMPL_BIT(FC2_WEIGHT)
                                  | TEGROUP_IMPL_BIT(PREACTIVATION) | TEGROUP_IMPL_BIT(ROW_SCALE),
                              TEGROUP_IMPL_BIT(GRAD_PREACTIVATION) | TEGROUP_IMPL_BIT(GRAD_ROW_SCALE)
                                  | (desc->recompute ? TEGROUP_IMPL_BIT(ACTIVATED) : 0));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_IMPL_LINEAR_ROW_SCALE))
        tegroup_impl_mlp_call_add(call, TEGROUP_MLP_FC2, TEGROUP_IMPL_LINEAR_ROW_SCALE, TEGROUP_IMPL_BIT(FC2_BIAS), 0);
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1, TEGROUP_OP_DGRAD))
        tegroup_impl_mlp_call_add(call, TEGROUP_MLP_FC1, TEGROUP_OP_DGRAD, TEGROUP_IMPL_BIT(FC1_WEIGHT),
                                  TEGROUP_IMPL_BIT(DGRAD_OUT));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1_UP, TEGROUP_OP_DGRAD))
        tegroup_impl_mlp_call_add(call, TEGROUP_MLP_FC1_UP, TEGROUP_OP_DGRAD, TEGROUP_IMPL_BIT(FC1_UP_WEIGHT), 0);
}

/* Is activated computed again? A quantised one is not where no product reads it and no copy has a place. */
TEGROUP_IMPL_STATIC int tegroup_impl_mlp_activates_again(const tegroup_impl_mlp_call *call) {
    const tegroup_tensor *t = &call->desc->activated;
    return call->desc->recompute
           && (t->scaling == TEGROUP_SCALING_NONE || tegroup_impl_has_copy(t, TEGROUP_IMPL_ROWWISE)
               || tegroup_impl_has_copy(t, TEGROUP_IMPL_COLUMNWISE)
               || tegroup_impl_mlp_copies(call->plans, TEGROUP_IMPL_MLP_ACTIVATED, t));
}

/* What dgrad does between its products: activated again, and the gradient of the activation. What is quantised is a
 * step, what is not is in the epilogue, which may run by itself. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_dgrad_steps(const tegroup_impl_mlp_call *call,
                                                                tegroup_impl_mlp_step *again,
                                                                tegroup_impl_mlp_step *gradient,
                                                                tegroup_impl_epilogue *epilogue, tegroup_error *error) {
    const tegroup_mlp_desc *desc = call->desc;
    const tegroup_tensor *grad_activated = &call->products[0].gemm.d;
    again->quantises = 0;
    if (tegroup_impl_mlp_activates_again(call)) {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_quantize(call, TEGROUP_IMPL_MLP_ACTIVATED, &desc->preactivation, NULL,
                                                   &desc->activated, again, error));
        TEGROUP_IMPL_RULE(tegroup_scaling_info(desc->activated.scaling)->scale_dtype != TEGROUP_DTYPE_F8E4M3
                              || tegroup_impl_keeps_values(&desc->activated) || desc->activated.global_scale_inv,
                          ERROR_NULL_ARGUMENT, "activated.global_scale_inv",
                          "must not be NULL with recompute: forward has one", 1, 0);
    }
    if (desc->recompute && desc->activated.scaling == TEGROUP_SCALING_NONE)
        TEGROUP_IMPL_TRY(
            tegroup_impl_mlp_activation(desc, &desc->preactivation, &desc->activated, &epilogue->activation, error));
    else {
        tegroup_impl_mlp_describe_activation(desc, &desc->preactivation, &desc->activated, &epilogue->activation);
        /* kernels take from it where ups are, also where activated is absent */
        epilogue->activation.output.cols = call->layers.activated.shape.cols;
    }
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_quantize(call, TEGROUP_IMPL_MLP_GRAD_PREACTIVATION, &desc->preactivation,
                                               grad_activated, &desc->grad_preactivation, gradient, error));
    return gradient->quantises ? TEGROUP_OK
                               : tegroup_impl_mlp_activation_backward(desc, grad_activated, &epilogue->gradient, error);
}

/* The activation's gradient follows fc2's dgrad. activated is computed again before its input may be overwritten. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_dgrad(const tegroup_impl_mlp_plans *plans, size_t workspace_bytes,
                                                          const tegroup_mlp_desc *desc, int run,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_mlp_call call;
    tegroup_impl_mlp_step again, gradient;
    tegroup_impl_epilogue epilogue;
    int fused, i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_begin(&call, plans, desc, TEGROUP_OP_DGRAD, error));
    tegroup_impl_mlp_dgrad_products(&call);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(&call, workspace_bytes, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_dgrad_steps(&call, &again, &gradient, &epilogue, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_fused(&call, TEGROUP_FUSED_DGRAD, &fused, error));
    if (fused) {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.input, "preactivation.data", error));
        TEGROUP_IMPL_TRY(
            tegroup_impl_mlp_check_epilogue(&epilogue.gradient.grad_input, "grad_preactivation.data", error));
        if (desc->recompute)
            TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.output, "activated.data", error));
    }

    if (!run) return TEGROUP_OK;
    if (fused) {
        epilogue.kernel = plans->planned->gradient_kernel;
        epilogue.keeps_d = 0;
        epilogue.up = NULL;
        epilogue.activates_again = desc->recompute;
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run_fused(&call.products[0], &epilogue, stream, error));
    } else {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[0], stream, error));
        if (tegroup_impl_mlp_activates_again(&call))
            TEGROUP_IMPL_TRY(again.quantises
                                 ? tegroup_impl_quantize_through(&again.quantize, again.values, stream, error)
                                 : tegroup_impl_activation_run(&epilogue.activation, stream, error));
        TEGROUP_IMPL_TRY(gradient.quantises
                             ? tegroup_impl_quantize_through(&gradient.quantize, gradient.values, stream, error)
                             : tegroup_impl_activation_backward_run(&epilogue.gradient, stream, error));
    }
    for (i = 1; i < call.count; i++) TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[i], stream, error));
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_wgrad(const tegroup_impl_mlp_plans *plans, size_t workspace_bytes,
                                                          const tegroup_mlp_desc *desc, int run,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_mlp_call call;
    int i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_begin(&call, plans, desc, TEGROUP_OP_WGRAD, error));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_WGRAD))
        tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC2, TEGROUP_OP_WGRAD,
                                  TEGROUP_IMPL_BIT(GRAD_OUTPUT) | TEGROUP_IMPL_BIT(ACTIVATED)
                                      | (desc->fc2_bias_scaled && desc->fc2.bias_grad.dtype != TEGROUP_DTYPE_UNSET
                                             ? TEGROUP_IMPL_BIT(ROW_SCALE)
                                             : 0),
                                  TEGROUP_IMPL_BIT(FC2_MAIN_GRAD) | TEGROUP_IMPL_BIT(FC2_BIAS_GRAD));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1, TEGROUP_OP_WGRAD))
        tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC1, TEGROUP_OP_WGRAD,
                                  TEGROUP_IMPL_BIT(GRAD_PREACTIVATION) | TEGROUP_IMPL_BIT(INPUT),
                                  TEGROUP_IMPL_BIT(FC1_MAIN_GRAD) | TEGROUP_IMPL_BIT(FC1_BIAS_GRAD));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1_UP, TEGROUP_OP_WGRAD))
        tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC1_UP, TEGROUP_OP_WGRAD, 0,
                                  TEGROUP_IMPL_BIT(FC1_UP_MAIN_GRAD) | TEGROUP_IMPL_BIT(FC1_UP_BIAS_GRAD));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(&call, workspace_bytes, error));
    for (i = 0; i < call.count && run; i++) TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[i], stream, error));
    return TEGROUP_OK;
}
#undef TEGROUP_IMPL_BIT

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_run_op(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                                           tegroup_op op, struct CUstream_st *stream,
                                                           tegroup_error *error) {
    tegroup_mlp_desc taken;
    tegroup_impl_mlp_plans plans;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    plans = tegroup_impl_mlp_plans_of(plan);
    switch (op) {
    case TEGROUP_OP_FORWARD: return tegroup_impl_mlp_forward(&plans, plan->workspace_bytes, desc, 1, stream, error);
    case TEGROUP_OP_DGRAD: return tegroup_impl_mlp_dgrad(&plans, plan->workspace_bytes, desc, 1, stream, error);
    default: return tegroup_impl_mlp_wgrad(&plans, plan->wgrad_workspace_bytes, desc, 1, stream, error);
    }
}

TEGROUP_API tegroup_status tegroup_mlp_forward(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                               struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_mlp_forward")
    return tegroup_impl_mlp_run_op(plan, desc, TEGROUP_OP_FORWARD, stream, error);
}

TEGROUP_API tegroup_status tegroup_mlp_dgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_mlp_dgrad")
    return tegroup_impl_mlp_run_op(plan, desc, TEGROUP_OP_DGRAD, stream, error);
}

TEGROUP_API tegroup_status tegroup_mlp_wgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_mlp_wgrad")
    return tegroup_impl_mlp_run_op(plan, desc, TEGROUP_OP_WGRAD, stream, error);
}
