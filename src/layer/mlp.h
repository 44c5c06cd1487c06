/* ---- Grouped MLP: calls ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "core/activation_types.h"
#include "layer/mlp_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/epilogue.h"
#include "gemm/backends.h"
#include "gemm/run.h"
#include "layer/activation.h"
#include "layer/linear.h"
#include "layer/mlp_rules.h"
#include "layer/mlp_plan.h"

#if TEGROUP_IMPL_FUSED_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
/* Gradients of row_scale, of the sums that a dgrad with a gradient in its epilogue leaves in D's place. */
static inline tegroup_status tegroup_impl_cuda_row_sums(const tegroup_activation_backward_desc *desc,
                                                        const float *sums, struct CUstream_st *stream,
                                                        tegroup_error *error);
#endif

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

static inline void tegroup_impl_mlp_call_add(tegroup_impl_mlp_call *call, tegroup_mlp_layer layer, int product,
                                             uint32_t reads, uint32_t writes) {
    call->products[call->count].layer = layer;
    call->products[call->count].product = product;
    call->products[call->count++].plan = tegroup_impl_mlp_made(call->plans, layer, product);
    call->reads |= reads;
    call->writes |= writes;
}

/* The plan and the descriptor ask for the same, as far as the products do not see to it. */
static inline tegroup_status tegroup_impl_mlp_check_planned(const tegroup_impl_mlp_call *call, tegroup_error *error) {
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
        TEGROUP_IMPL_RULE(
            !((call->reads | call->writes) >> i & 1u) || tegroup_impl_mlp_dtype(desc, i) == planned->dtypes[i],
            ERROR_PLAN,
            i == TEGROUP_IMPL_MLP_ROW_SCALE ? "row_scale_dtype" : tegroup_impl_mlp_path(i, TEGROUP_IMPL_MEMBER_DTYPE),
            "must be as planned", planned->dtypes[i], tegroup_impl_mlp_dtype(desc, i));
    return TEGROUP_OK;
}

/* A call may have more rows than planned where none of them lie in the workspace. */
static inline tegroup_status tegroup_impl_mlp_check_scratch(const tegroup_impl_mlp_call *call, tegroup_error *error) {
    const tegroup_impl_mlp_layers *layers = &call->layers;
    const int op = call->products[0].product,
              scratch = op == TEGROUP_OP_DGRAD
                        || (op == TEGROUP_OP_FORWARD
                            && (call->desc->preactivation.dtype == TEGROUP_DTYPE_UNSET
                                || layers->fc2.tensor[TEGROUP_IMPL_LINEAR_INPUT] == &layers->activated));
    const int64_t planned = call->products[0].plan->problem.rows, rows = call->desc->input.shape.rows;
    TEGROUP_IMPL_RULE(!scratch || rows <= planned, ERROR_PLAN, "input.shape.rows",
                      "must be at most as planned: the workspace holds rows between the layers", planned, rows);
    return TEGROUP_OK;
}

/* Everything that a call checks but its activation: the tensors that it touches, and that its products check
 * themselves. */
static inline tegroup_status tegroup_impl_mlp_check_call(tegroup_impl_mlp_call *call, size_t workspace_bytes,
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
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_options_workspace(workspace_bytes, &desc->options, error));
    tegroup_impl_mlp_place(call->plans, desc, &call->layers);
    TEGROUP_IMPL_TRY(
        tegroup_impl_mlp_check_apart(desc, call->reads, call->writes, workspace_bytes, TEGROUP_CHECK_HOST, error));
    for (i = 0; i < call->count; i++) {
        tegroup_impl_mlp_product *p = &call->products[i];
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_product(tegroup_impl_mlp_layer_at(&call->layers, p->layer),
                                                          p->product, tegroup_impl_mlp_adds(p->layer, p->product), 0,
                                                          tegroup_impl_mlp_linear(call->plans, p->layer), &p->gemm,
                                                          error));
    }
    if (desc->options.check_level != TEGROUP_CHECK_DEEP) return TEGROUP_OK; /* lists may be walked now */
    return tegroup_impl_mlp_check_apart(desc, call->reads, call->writes, workspace_bytes, TEGROUP_CHECK_DEEP, error);
}

/* A call begins: the descriptor's head, and that what the call writes is there and planned. */
static inline tegroup_status tegroup_impl_mlp_begin(tegroup_impl_mlp_call *call, const tegroup_impl_mlp_plans *plans,
                                                    const tegroup_mlp_desc *desc, tegroup_op op, tegroup_error *error) {
    const tegroup_dtype up = plans->planned->dtypes[TEGROUP_IMPL_MLP_FC1_UP_WEIGHT];
    int layer, product;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    call->desc = desc;
    call->plans = plans;
    call->reads = call->writes = 0;
    call->count = 0;
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         op != TEGROUP_OP_WGRAD || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1, (int)op)
                             || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, (int)op),
                         ERROR_UNSET, "fc1.main_grad.dtype",
                         "must be set, or fc2.main_grad's: they are what this call writes", TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, op == TEGROUP_OP_WGRAD || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, (int)op),
                         ERROR_UNSET, op == TEGROUP_OP_FORWARD ? "out.dtype" : "grad_preactivation.dtype",
                         "must be set: it is what this call writes", TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, tegroup_impl_mlp_apart(desc) == (up != TEGROUP_DTYPE_UNSET), ERROR_PLAN,
                         "fc1_up.weight.dtype", "must be set just when planned so", up, desc->fc1_up.weight.dtype);
    for (layer = TEGROUP_MLP_FC1; layer <= (int)tegroup_impl_mlp_last(plans); layer++)
        for (product = (int)op; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            const tegroup_plan *one = tegroup_impl_mlp_made(plans, (tegroup_mlp_layer)layer, product);
            const int tensor = tegroup_impl_mlp_asks((tegroup_mlp_layer)layer, product);
            if (product != (int)op && !(product == TEGROUP_IMPL_LINEAR_ROW_SCALE && op == TEGROUP_OP_DGRAD)) continue;
            TEGROUP_IMPL_RULE(
                (one->magic == TEGROUP_PLAN_MAGIC) == tegroup_impl_mlp_wants(desc, (tegroup_mlp_layer)layer, product),
                ERROR_PLAN, tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_DTYPE),
                "must be set just when planned so", one->problem.d, tegroup_impl_mlp_at(desc, tensor)->dtype);
        }
    TEGROUP_IMPL_RULE(op == TEGROUP_OP_WGRAD || desc->input.shape.snapshot != NULL, ERROR_NULL_ARGUMENT,
                      "input.shape.snapshot", "must not be NULL: prepare first", 1, 0);
    tegroup_impl_mlp_layers_of(desc, op, &call->layers);
    return TEGROUP_OK;
}

static inline tegroup_matrix tegroup_impl_mlp_matrix(const tegroup_tensor *t) {
    tegroup_matrix m;
    m.data = t->data;
    m.rows = t->shape.rows;
    m.cols = t->shape.cols;
    m.ld = t->ld;
    m.dtype = t->dtype;
    return m;
}

static inline tegroup_matrix tegroup_impl_mlp_row_scale(const tegroup_mlp_desc *desc) {
    tegroup_matrix m;
    m.data = (void *)(uintptr_t)desc->row_scale;
    m.rows = desc->input.shape.rows;
    m.cols = 1;
    m.ld = 0;
    m.dtype = desc->row_scale_dtype;
    return m;
}

/* activated = row_scale * f(preactivation), from and to where the products have them. */
static inline void tegroup_impl_mlp_describe_activation(const tegroup_mlp_desc *desc,
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
    activation->input = tegroup_impl_mlp_matrix(preactivation);
    activation->row_scale = tegroup_impl_mlp_row_scale(desc);
    activation->output = tegroup_impl_mlp_matrix(activated);
    activation->threads = desc->options.threads;
}

static inline tegroup_status tegroup_impl_mlp_activation(const tegroup_mlp_desc *desc,
                                                         const tegroup_tensor *preactivation,
                                                         const tegroup_tensor *activated,
                                                         tegroup_activation_desc *activation, tegroup_error *error) {
    tegroup_impl_mlp_describe_activation(desc, preactivation, activated, activation);
    return tegroup_impl_activation_check(activation, tegroup_impl_mlp_activation_names(), error);
}

static inline tegroup_status tegroup_impl_mlp_activation_backward(const tegroup_mlp_desc *desc,
                                                                  const tegroup_tensor *grad_activated,
                                                                  tegroup_activation_backward_desc *activation,
                                                                  tegroup_error *error) {
    tegroup_activation_desc forward;
    tegroup_impl_mlp_describe_activation(desc, &desc->preactivation, &desc->activated, &forward);
    tegroup_impl_activation_backward_of(&forward, activation);
    activation->grad_output = tegroup_impl_mlp_matrix(grad_activated);
    activation->grad_input = tegroup_impl_mlp_matrix(&desc->grad_preactivation);
    activation->grad_row_scale = tegroup_impl_mlp_matrix(&desc->grad_row_scale);
    return tegroup_impl_activation_backward_check(activation, tegroup_impl_mlp_activation_names(), error);
}

/* Whether a call runs its first product fused, as planned. */
static inline tegroup_status tegroup_impl_mlp_check_fused(const tegroup_impl_mlp_call *call, uint32_t bit, int *fused,
                                                          tegroup_error *error) {
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
static inline tegroup_status tegroup_impl_mlp_check_epilogue(const tegroup_matrix *m, const char *field,
                                                             tegroup_error *error) {
    TEGROUP_IMPL_RULE(
        tegroup_impl_aligned(m->data, 16) || m->rows == 0 || m->cols == 0, ERROR_ALIGNMENT, field,
        "must be 16-byte aligned for an epilogue; a plan made with options.data_alignment_bytes 2 takes any", 16,
        (uintptr_t)m->data % 16);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_mlp_run(const tegroup_impl_mlp_product *p, struct CUstream_st *stream,
                                                  tegroup_error *error) {
    return tegroup_impl_gemm_run(p->plan, &p->gemm, stream, error);
}

static inline tegroup_status tegroup_impl_mlp_run_fused(const tegroup_impl_mlp_product *p,
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

static inline tegroup_status tegroup_impl_mlp_forward(const tegroup_impl_mlp_plans *plans, size_t workspace_bytes,
                                                      const tegroup_mlp_desc *desc, int run, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    tegroup_impl_mlp_call call;
    tegroup_impl_epilogue epilogue;
    const tegroup_tensor *preactivation =
        desc->preactivation.dtype != TEGROUP_DTYPE_UNSET ? &desc->preactivation : &call.layers.preactivation;
    const tegroup_impl_mlp_product *fc2;
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
        TEGROUP_IMPL_TRY(tegroup_impl_activation_run(&epilogue.activation, stream, error));
    }
    return tegroup_impl_mlp_run(fc2, stream, error);
}

/* fc2's dgrad, then what is wanted of the bias's part of grad_row_scale and of fc1's dgrad. */
static inline void tegroup_impl_mlp_dgrad_products(tegroup_impl_mlp_call *call) {
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

/* The activation's gradient follows fc2's dgrad. activated is computed again before its input may be overwritten. */
static inline tegroup_status tegroup_impl_mlp_dgrad(const tegroup_impl_mlp_plans *plans, size_t workspace_bytes,
                                                    const tegroup_mlp_desc *desc, int run, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    tegroup_impl_mlp_call call;
    tegroup_impl_epilogue epilogue;
    int fused, i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_begin(&call, plans, desc, TEGROUP_OP_DGRAD, error));
    tegroup_impl_mlp_dgrad_products(&call);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(&call, workspace_bytes, error));
    if (desc->recompute)
        TEGROUP_IMPL_TRY(
            tegroup_impl_mlp_activation(desc, &desc->preactivation, &desc->activated, &epilogue.activation, error));
    else {
        tegroup_impl_mlp_describe_activation(desc, &desc->preactivation, &desc->activated, &epilogue.activation);
        /* kernels take from it where ups are, also where activated is absent */
        epilogue.activation.output.cols = call.layers.activated.shape.cols;
    }
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_activation_backward(desc, &call.products[0].gemm.d, &epilogue.gradient, error));
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
        if (desc->recompute)
            TEGROUP_IMPL_TRY(tegroup_impl_activation_run(&epilogue.activation, stream, error));
        TEGROUP_IMPL_TRY(tegroup_impl_activation_backward_run(&epilogue.gradient, stream, error));
    }
    for (i = 1; i < call.count; i++) TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[i], stream, error));
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_mlp_wgrad(const tegroup_impl_mlp_plans *plans, size_t workspace_bytes,
                                                    const tegroup_mlp_desc *desc, int run, struct CUstream_st *stream,
                                                    tegroup_error *error) {
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

static inline tegroup_status tegroup_impl_mlp_run_op(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                                     tegroup_op op, struct CUstream_st *stream, tegroup_error *error) {
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
    return tegroup_impl_mlp_run_op(plan, desc, TEGROUP_OP_FORWARD, stream, error);
}

TEGROUP_API tegroup_status tegroup_mlp_dgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_mlp_run_op(plan, desc, TEGROUP_OP_DGRAD, stream, error);
}

TEGROUP_API tegroup_status tegroup_mlp_wgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_mlp_run_op(plan, desc, TEGROUP_OP_WGRAD, stream, error);
}
