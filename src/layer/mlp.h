/* ---- Grouped MLP: calls ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "layer/mlp_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/range.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/copies.h"
#include "core/apart.h"
#include "core/epilogue.h"
#include "gemm/backends.h"
#include "gemm/check.h"
#include "gemm/run.h"
#include "layer/activation.h"
#include "layer/quantize_rules.h"
#include "layer/quantize.h"
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

/* How a tensor is quantised must be as planned. */
static inline tegroup_status tegroup_impl_mlp_check_format(const tegroup_mlp_format *planned, const tegroup_tensor *t,
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
    TEGROUP_IMPL_RULE(memcmp(&planned->rule, &format.rule, sizeof format.rule) == 0, ERROR_PLAN, names->rule.method,
                      "and the rule's numbers must be as planned", planned->rule.method, format.rule.method);
    return TEGROUP_OK;
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

/* The buffers of a quantised tensor that the MLP writes: its copies, and what is one number a group. */
static inline int32_t tegroup_impl_mlp_written(const tegroup_tensor *t, int tensor, tegroup_impl_buffer *buffers) {
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
static inline int32_t tegroup_impl_mlp_read(const tegroup_impl_mlp_call *call, uint32_t set,
                                            tegroup_impl_buffer *buffers) {
    int32_t count = 0, i, operand;
    for (i = 0; i < call->count; i++)
        for (operand = TEGROUP_IMPL_A; operand <= TEGROUP_IMPL_B; operand++) {
            const tegroup_impl_mlp_product *p = &call->products[i];
            const tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &p->gemm.a : &p->gemm.b;
            const tegroup_impl_layer *layer = tegroup_impl_mlp_layer_at(&call->layers, p->layer);
            const int role = tegroup_impl_layer_role(layer, p->product, operand),
                      tensor = tegroup_impl_mlp_role(p->layer, role);
            if (t->scaling != TEGROUP_SCALING_NONE && set >> tensor & 1u)
                count += tegroup_impl_operand_buffers(&p->gemm, (tegroup_impl_operand)operand, t, layer->name[role],
                                                      buffers + count);
        }
    return count;
}

/* What a call writes lies apart from all else that it touches, and so does the workspace: for all of its products at
 * once. */
static inline tegroup_status tegroup_impl_mlp_check_apart(const tegroup_impl_mlp_call *call, size_t workspace_bytes,
                                                          tegroup_error *error) {
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
            if (written) count += tegroup_impl_mlp_written(t, i, buffers + count);
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

/* What computes the activation, or its gradient, after a product: one call, or one that quantises what it computes. */
typedef struct tegroup_impl_mlp_step {
    int quantises;
    tegroup_quantize_desc quantize;
} tegroup_impl_mlp_step;

/* Describes and checks how `output` is quantised, where it has a scaling (step->quantises): from the activation of
 * preactivation or, with grad_activated, from its gradient. */
static inline tegroup_status tegroup_impl_mlp_quantize(const tegroup_impl_mlp_call *call, int tensor,
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
        quantize->grad_row_scale = tegroup_impl_mlp_matrix(&desc->grad_row_scale);
    }
    quantize->input.shape.snapshot = quantize->output.shape.snapshot = desc->input.shape.snapshot;
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
        TEGROUP_IMPL_TRY(step.quantises ? tegroup_impl_quantize(&step.quantize, stream, error)
                                        : tegroup_impl_activation_run(&epilogue.activation, stream, error));
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

/* What dgrad does between its products: activated again, and the gradient of the activation. What is quantised is a
 * step, what is not is in the epilogue, which may run by itself. */
static inline tegroup_status tegroup_impl_mlp_dgrad_steps(const tegroup_impl_mlp_call *call,
                                                          tegroup_impl_mlp_step *again, tegroup_impl_mlp_step *gradient,
                                                          tegroup_impl_epilogue *epilogue, tegroup_error *error) {
    const tegroup_mlp_desc *desc = call->desc;
    const tegroup_tensor *grad_activated = &call->products[0].gemm.d;
    again->quantises = 0;
    if (desc->recompute) {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_quantize(call, TEGROUP_IMPL_MLP_ACTIVATED, &desc->preactivation, NULL,
                                                   &desc->activated, again, error));
        TEGROUP_IMPL_RULE(tegroup_scaling_info(desc->activated.scaling)->scale_dtype != TEGROUP_DTYPE_F8E4M3
                              || desc->activated.global_scale_inv,
                          ERROR_NULL_ARGUMENT, "activated.global_scale_inv",
                          "must not be NULL with recompute: forward has one", 1, 0);
    }
    if (desc->recompute && !again->quantises)
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
static inline tegroup_status tegroup_impl_mlp_dgrad(const tegroup_impl_mlp_plans *plans, size_t workspace_bytes,
                                                    const tegroup_mlp_desc *desc, int run, struct CUstream_st *stream,
                                                    tegroup_error *error) {
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
        if (desc->recompute)
            TEGROUP_IMPL_TRY(again.quantises ? tegroup_impl_quantize(&again.quantize, stream, error)
                                             : tegroup_impl_activation_run(&epilogue.activation, stream, error));
        TEGROUP_IMPL_TRY(gradient.quantises ? tegroup_impl_quantize(&gradient.quantize, stream, error)
                                            : tegroup_impl_activation_backward_run(&epilogue.gradient, stream, error));
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
