/* ---- Grouped MLP ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "core/activation_types.h"
#include "layer/linear_types.h"
#include "layer/mlp_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/epilogue.h"
#include "gemm/backends.h"
#include "gemm/plan.h"
#include "gemm/run.h"
#include "core/activation_formulas.h"
#include "layer/activation.h"
#include "layer/linear.h"
#include "layer/mlp_rules.h"

/* A plan's parts: what it holds for itself, and those of the two layers. A chain keeps them apart. */
typedef struct tegroup_impl_mlp_plans {
    const tegroup_mlp_planned *planned;
    const tegroup_linear_plan *fc1, *fc2;
} tegroup_impl_mlp_plans;

static inline tegroup_impl_mlp_plans tegroup_impl_mlp_plans_of(const tegroup_mlp_plan *plan) {
    tegroup_impl_mlp_plans plans;
    plans.planned = &plan->planned;
    plans.fc1 = &plan->fc1;
    plans.fc2 = &plan->fc2;
    return plans;
}

static inline const tegroup_plan *tegroup_impl_mlp_made(const tegroup_impl_mlp_plans *plans, tegroup_mlp_layer layer,
                                                        int product) {
    return tegroup_impl_linear_made(layer == TEGROUP_MLP_FC1 ? plans->fc1 : plans->fc2, product);
}

#if TEGROUP_IMPL_FUSED_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
/* Gradients of row_scale, of the sums that a dgrad with a gradient in its epilogue leaves in D's place. */
static inline tegroup_status tegroup_impl_cuda_row_sums(const tegroup_activation_backward_desc *desc,
                                                        const float *sums, struct CUstream_st *stream,
                                                        tegroup_error *error);
#endif

/* Why a product has no activation in its epilogue: fc1's forward product, or fc2's dgrad; NULL: it has. What a plan for another
 * machine could do is not for this build to say. */
static inline const char *tegroup_impl_mlp_unfused(const tegroup_mlp_desc *desc, const tegroup_plan *product,
                                                   tegroup_op op) {
    const int gradient = op == TEGROUP_OP_DGRAD;
    tegroup_dtype out, input;
    int64_t cols;
    tegroup_impl_mlp_layers layers;
    tegroup_impl_mlp_layers_of(desc, op, &layers);
    out = layers.fc1.tensor[TEGROUP_IMPL_LINEAR_OUT]->dtype;
    input = layers.fc2.tensor[TEGROUP_IMPL_LINEAR_INPUT]->dtype;
    cols = layers.activated.shape.cols;
    if (product->backend != TEGROUP_BACKEND_SM90 && product->backend != TEGROUP_BACKEND_PORTABLE)
        return "must not be REQUIRED: only SM90 and PORTABLE have products with an activation in their epilogue";
    if (!TEGROUP_IMPL_FUSED_KERNELS && !product->hypothetical)
        return "must not be REQUIRED: this build leaves out activations on the GPU";
    if (!tegroup_impl_gated(desc->activation))
        return "must not be REQUIRED: the epilogue's activation has a gate and an up";
    if (product->problem.a != out || out != input || tegroup_impl_bits(out) != 16
        || (gradient && (desc->grad_preactivation.dtype != out || layers.activated.dtype != out)))
        return "must not be REQUIRED: the epilogue has its product's operands, preactivation, activated and their "
               "gradients as the same of F16 and BF16";
    if (cols % 8 != 0) return "must not be REQUIRED: the epilogue has rows of 16 bytes";
    if (desc->options.data_alignment_bytes > 0 && desc->options.data_alignment_bytes < 16)
        return "must not be REQUIRED: the epilogue has 16 bytes at once, and options.data_alignment_bytes is less";
    return NULL;
}

/* Which steps an epilogue takes over: the one place that knows of fused products. SM90's have tiles of 128 lines alone, and are the
 * slower ones where groups have fewer rows; forward also where the product would have tiles that fit its groups, and sums so long that
 * lines left empty cost more than the activation's bytes. PORTABLE's, which do not multiply meanwhile, gain nothing, and run when they
 * must. */
static inline tegroup_status tegroup_impl_mlp_fuse(const tegroup_mlp_desc *desc, const tegroup_plan *product,
                                                   tegroup_op op, uint32_t bit, uint32_t *fused,
                                                   tegroup_fused_kernel *kernel, tegroup_error *error) {
    const int required = desc->fusion == TEGROUP_FUSION_REQUIRED;
    const int64_t rows = desc->options.expected_rows > 0 ? desc->options.expected_rows : desc->input.shape.rows,
                  average = tegroup_impl_ceil_div(rows, tegroup_impl_max(1, desc->input.shape.groups));
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(product->backend);
    const char *why;
    if (!tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, (int)op)) return TEGROUP_OK;
    why = tegroup_impl_mlp_unfused(desc, product, op);
    TEGROUP_IMPL_RULE(!required || !why, ERROR_UNSUPPORTED, "fusion", why, TEGROUP_FUSION_AUTO, desc->fusion);
    if (why || desc->fusion == TEGROUP_FUSION_NEVER) return TEGROUP_OK;
    if (!required
        && (product->backend != TEGROUP_BACKEND_SM90 || average <= 128
            || (op == TEGROUP_OP_FORWARD && product->tile_m > 128
                && desc->input.shape.cols > tegroup_impl_mul(6, average))))
        return TEGROUP_OK;
    *fused |= bit;
    if (product->hypothetical) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(backend->plan_fused != NULL, ERROR_PLAN, "plan", "must be of a backend that fuses in this build",
                      TEGROUP_BACKEND_SM90, product->backend);
    return backend->plan_fused(product, kernel, error);
}

/* The product whose plan needs the most workspace, of all or of the weight gradients alone. */
static inline const tegroup_plan *tegroup_impl_mlp_neediest(const tegroup_impl_mlp_plans *plans, int wgrads) {
    const tegroup_plan *most = NULL;
    int layer, product;
    for (layer = TEGROUP_MLP_FC1; layer <= TEGROUP_MLP_FC2; layer++)
        for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            const tegroup_plan *one = tegroup_impl_mlp_made(plans, (tegroup_mlp_layer)layer, product);
            if (one->magic != TEGROUP_PLAN_MAGIC || (wgrads && product != TEGROUP_OP_WGRAD)) continue;
            if (!most || one->workspace_bytes > most->workspace_bytes) most = one;
        }
    return most;
}

/* Where what lies in the workspace is in its layout; -1 = not there. */
typedef struct tegroup_impl_mlp_items {
    int32_t activated, preactivation;
} tegroup_impl_mlp_items;

/* What each byte is for. The products' workspace comes first, so that wgrad, which has no scratch, can do with that part. */
static inline tegroup_impl_mlp_items tegroup_impl_mlp_layout(const tegroup_impl_mlp_plans *plans,
                                                             tegroup_mlp_memory memory, tegroup_layout *layout) {
    const tegroup_mlp_planned *planned = plans->planned;
    const int in_workspace = memory == TEGROUP_MLP_WORKSPACE, by_forward = memory == TEGROUP_MLP_SAVED_BY_FORWARD,
              by_dgrad = memory == TEGROUP_MLP_SAVED_BY_DGRAD,
              saves_preactivation = planned->preactivation_bytes > 0 && !planned->scratch_preactivation,
              saves_activated = planned->dtypes[TEGROUP_IMPL_MLP_ACTIVATED] != TEGROUP_DTYPE_UNSET;
    const tegroup_plan *most =
        by_forward || by_dgrad ? NULL : tegroup_impl_mlp_neediest(plans, memory == TEGROUP_MLP_WGRAD_WORKSPACE);
    tegroup_impl_mlp_items items;
    items.activated = items.preactivation = -1;
    tegroup_impl_layout_begin(layout);
    if (most) tegroup_impl_plan_layout(most, layout);
    if (in_workspace && planned->scratch_activated) {
        items.activated = layout->count;
        tegroup_impl_layout_add(layout, "activated, and in dgrad its gradient", planned->activated_bytes);
    }
    if (in_workspace && planned->scratch_preactivation) {
        items.preactivation = layout->count;
        tegroup_impl_layout_add(layout, "preactivation", planned->preactivation_bytes);
    }
    if (by_forward && saves_preactivation)
        tegroup_impl_layout_add(layout, "preactivation", planned->preactivation_bytes);
    if (saves_activated && (planned->recompute ? by_dgrad : by_forward))
        tegroup_impl_layout_add(layout, "activated", planned->activated_bytes);
    if (by_dgrad && plans->fc2->dgrad.magic == TEGROUP_PLAN_MAGIC)
        tegroup_impl_layout_add(layout, "grad_preactivation", planned->grad_preactivation_bytes);
    return items;
}

/* What a plan remembers of a descriptor. */
static inline tegroup_mlp_planned tegroup_impl_mlp_record(const tegroup_mlp_desc *desc,
                                                          const tegroup_impl_mlp_layers *layers) {
    const int forward = tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_FORWARD),
              dgrad = tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_DGRAD),
              has_preactivation = desc->preactivation.dtype != TEGROUP_DTYPE_UNSET,
              has_activated = desc->activated.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_mlp_planned planned;
    int tensor;
    memset(&planned, 0, sizeof planned);
    planned.activation = desc->activation;
    planned.interleaved = desc->interleaved;
    planned.recompute = desc->recompute;
    planned.fc2_bias_scaled = desc->fc2_bias_scaled;
    for (tensor = 0; tensor < TEGROUP_IMPL_MLP_COUNT; tensor++)
        planned.dtypes[tensor] = tegroup_impl_mlp_dtype(desc, tensor);
    planned.scratch_preactivation = forward && !has_preactivation;
    planned.scratch_activated = dgrad || (forward && !tegroup_impl_mlp_keeps(desc));
    if (forward || has_preactivation)
        planned.preactivation_bytes =
            tegroup_impl_extent_bytes(has_preactivation ? &desc->preactivation : &layers->preactivation);
    if (planned.scratch_activated || has_activated)
        planned.activated_bytes = tegroup_impl_extent_bytes(&layers->activated);
    if (dgrad) planned.grad_preactivation_bytes = tegroup_impl_extent_bytes(&desc->grad_preactivation);
    return planned;
}

/* The sizes of a plan that is otherwise made. */
static inline tegroup_status tegroup_impl_mlp_sizes(const tegroup_mlp_desc *desc, tegroup_mlp_plan *plan,
                                                    tegroup_error *error) {
    const tegroup_impl_mlp_plans plans = tegroup_impl_mlp_plans_of(plan);
    size_t *const bytes[] = {&plan->workspace_bytes, &plan->wgrad_workspace_bytes, &plan->saved_by_forward_bytes,
                             &plan->saved_by_dgrad_bytes};
    tegroup_layout layout;
    int i;
    for (i = 0; i < 4; i++) {
        (void)tegroup_impl_mlp_layout(&plans, (tegroup_mlp_memory)(TEGROUP_MLP_WORKSPACE + i), &layout);
        *bytes[i] = layout.total_bytes;
        TEGROUP_IMPL_RULE(i > 0 || !tegroup_impl_layout_overflowed(&layout), ERROR_OVERFLOW, "input.shape.rows",
                          "must leave the workspace addressable", tegroup_impl_max_bytes(), desc->input.shape.rows);
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_mlp_plan_make(const tegroup_mlp_desc *desc, const tegroup_target *target,
                                                 tegroup_mlp_plan *plan, tegroup_error *error) {
    tegroup_mlp_desc taken;
    tegroup_impl_mlp_layers layers;
    tegroup_mlp_plan made;
    int layer, product;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check(desc, &layers, error));
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.magic = TEGROUP_MLP_PLAN_MAGIC;
    made.planned = tegroup_impl_mlp_record(desc, &layers);
    for (layer = TEGROUP_MLP_FC1; layer <= TEGROUP_MLP_FC2; layer++)
        for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            if (!tegroup_impl_mlp_wants(desc, (tegroup_mlp_layer)layer, product)) continue;
            tegroup_impl_mlp_layers_of(desc, (tegroup_op)product, &layers);
            TEGROUP_IMPL_TRY(tegroup_impl_layer_plan(tegroup_impl_mlp_layer_at(&layers, (tegroup_mlp_layer)layer),
                                                     product, tegroup_impl_mlp_adds(product), target,
                                                     layer == TEGROUP_MLP_FC1 ? &made.fc1 : &made.fc2, error));
        }
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_fuse(desc, &made.fc1.forward, TEGROUP_OP_FORWARD, TEGROUP_FUSED_FORWARD,
                                           &made.planned.fused, &made.planned.activated_kernel, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_fuse(desc, &made.fc2.dgrad, TEGROUP_OP_DGRAD, TEGROUP_FUSED_DGRAD,
                                           &made.planned.fused, &made.planned.gradient_kernel, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_sizes(desc, &made, error));
    *plan = made;
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_mlp_check_plan(const tegroup_mlp_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE_PLAN(plan, TEGROUP_MLP_PLAN_MAGIC, "must be what tegroup_mlp_plan_make wrote");
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_mlp_layout(const tegroup_mlp_plan *plan, tegroup_mlp_memory memory,
                                              tegroup_layout *layout, tegroup_error *error) {
    tegroup_impl_mlp_plans plans;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_RULE(memory != TEGROUP_MLP_MEMORY_UNSET, ERROR_UNSET, "memory", "must be set", TEGROUP_MLP_WORKSPACE,
                      0);
    TEGROUP_IMPL_RULE((uint32_t)memory <= TEGROUP_MLP_SAVED_BY_DGRAD, ERROR_VALUE, "memory",
                      "must be a tegroup_mlp_memory", TEGROUP_MLP_SAVED_BY_DGRAD, memory);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    plans = tegroup_impl_mlp_plans_of(plan);
    (void)tegroup_impl_mlp_layout(&plans, memory, layout);
    return TEGROUP_OK;
}

/* Give what lies in the workspace its addresses there. */
static inline void tegroup_impl_mlp_place(const tegroup_impl_mlp_plans *plans, const tegroup_mlp_desc *desc,
                                          tegroup_impl_mlp_layers *layers) {
    tegroup_layout layout;
    const tegroup_impl_mlp_items items = tegroup_impl_mlp_layout(plans, TEGROUP_MLP_WORKSPACE, &layout);
    void *workspace = desc->options.workspace;
    if (!workspace) return;
    if (items.activated >= 0) layers->activated.data = tegroup_impl_layout_at(&layout, items.activated, workspace);
    if (items.preactivation >= 0)
        layers->preactivation.data = tegroup_impl_layout_at(&layout, items.preactivation, workspace);
}

TEGROUP_API tegroup_status tegroup_mlp_gemm(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                            tegroup_mlp_layer layer, tegroup_op op, tegroup_gemm_desc *gemm,
                                            tegroup_error *error) {
    tegroup_mlp_desc taken;
    tegroup_impl_mlp_layers layers;
    if (plan) TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check(desc, &layers, error));
    TEGROUP_IMPL_RULE(layer != TEGROUP_MLP_LAYER_UNSET, ERROR_UNSET, "layer", "must be set", TEGROUP_MLP_FC1, 0);
    TEGROUP_IMPL_RULE_ENUM(layer, TEGROUP_MLP_FC2, "layer", "must be a tegroup_mlp_layer");
    TEGROUP_IMPL_RULE(op != TEGROUP_OP_UNSET, ERROR_UNSET, "op", "must be set", TEGROUP_OP_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(op, TEGROUP_OP_WGRAD, "op", "must be a tegroup_op");
    TEGROUP_IMPL_RULE(gemm != NULL, ERROR_NULL_ARGUMENT, "gemm", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_mlp_wants(desc, layer, (int)op), ERROR_COMBINATION, "op",
                      "must be of a product whose output is there", 1, 0);
    tegroup_impl_mlp_layers_of(desc, op, &layers);
    if (plan) {
        const tegroup_impl_mlp_plans plans = tegroup_impl_mlp_plans_of(plan);
        tegroup_impl_mlp_place(&plans, desc, &layers);
    }
    tegroup_impl_layer_product(tegroup_impl_mlp_layer_at(&layers, layer), (int)op, gemm);
    return TEGROUP_OK;
}

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
    tegroup_impl_mlp_product products[3]; /* in the order in which they run */
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

/* Everything that a call checks but its activation: the tensors that it touches, and that its products check themselves. */
static inline tegroup_status tegroup_impl_mlp_check_call(tegroup_impl_mlp_call *call, size_t workspace_bytes,
                                                         tegroup_error *error) {
    const tegroup_mlp_desc *desc = call->desc;
    const uint32_t touched = call->reads | call->writes;
    int i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_numbers(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_planned(call, error));
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
                                                          p->product, tegroup_impl_mlp_adds(p->product), 0, p->plan,
                                                          &p->gemm, error));
    }
    if (desc->options.check_level != TEGROUP_CHECK_DEEP) return TEGROUP_OK; /* lists may be walked now */
    return tegroup_impl_mlp_check_apart(desc, call->reads, call->writes, workspace_bytes, TEGROUP_CHECK_DEEP, error);
}

/* A call begins: the descriptor's head, and that what the call writes is there and planned. */
static inline tegroup_status tegroup_impl_mlp_begin(tegroup_impl_mlp_call *call, const tegroup_impl_mlp_plans *plans,
                                                    const tegroup_mlp_desc *desc, tegroup_op op, tegroup_error *error) {
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
    for (layer = TEGROUP_MLP_FC1; layer <= TEGROUP_MLP_FC2; layer++)
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
    int fused;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_begin(&call, plans, desc, TEGROUP_OP_FORWARD, error));
    TEGROUP_IMPL_RULE(tegroup_impl_mlp_keeps(desc) || plans->planned->scratch_activated, ERROR_PLAN, "activated.dtype",
                      "must be as planned", plans->fc2->forward.problem.a, 0);
    tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC1, TEGROUP_OP_FORWARD,
                              TEGROUP_IMPL_BIT(INPUT) | TEGROUP_IMPL_BIT(FC1_WEIGHT) | TEGROUP_IMPL_BIT(FC1_BIAS),
                              TEGROUP_IMPL_BIT(PREACTIVATION));
    tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC2, TEGROUP_OP_FORWARD,
                              TEGROUP_IMPL_BIT(FC2_WEIGHT) | TEGROUP_IMPL_BIT(FC2_BIAS) | TEGROUP_IMPL_BIT(ROW_SCALE),
                              TEGROUP_IMPL_BIT(OUT) | (tegroup_impl_mlp_keeps(desc) ? TEGROUP_IMPL_BIT(ACTIVATED) : 0));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(&call, workspace_bytes, error));
    memset(&epilogue, 0, sizeof epilogue); /* there is no gradient */
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_activation(desc, &call.products[0].gemm.d, &call.products[1].gemm.a,
                                                 &epilogue.activation, error));
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
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run_fused(&call.products[0], &epilogue, stream, error));
    } else {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[0], stream, error));
        TEGROUP_IMPL_TRY(tegroup_impl_activation_run(&epilogue.activation, desc->options.threads, stream, error));
    }
    return tegroup_impl_mlp_run(&call.products[1], stream, error);
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
        epilogue.activation.output.cols = desc->fc2.weight.shape.cols;
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
        epilogue.activates_again = desc->recompute;
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run_fused(&call.products[0], &epilogue, stream, error));
    } else {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[0], stream, error));
        if (desc->recompute)
            TEGROUP_IMPL_TRY(tegroup_impl_activation_run(&epilogue.activation, desc->options.threads, stream, error));
        TEGROUP_IMPL_TRY(
            tegroup_impl_activation_backward_run(&epilogue.gradient, desc->options.threads, stream, error));
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
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(&call, workspace_bytes, error));
    for (i = 0; i < call.count && run; i++) TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[i], stream, error));
    return TEGROUP_OK;
}
#undef TEGROUP_IMPL_BIT

TEGROUP_API tegroup_status tegroup_mlp_forward(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                               struct CUstream_st *stream, tegroup_error *error) {
    tegroup_mlp_desc taken;
    tegroup_impl_mlp_plans plans;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    plans = tegroup_impl_mlp_plans_of(plan);
    return tegroup_impl_mlp_forward(&plans, plan->workspace_bytes, desc, 1, stream, error);
}

TEGROUP_API tegroup_status tegroup_mlp_dgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    tegroup_mlp_desc taken;
    tegroup_impl_mlp_plans plans;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    plans = tegroup_impl_mlp_plans_of(plan);
    return tegroup_impl_mlp_dgrad(&plans, plan->workspace_bytes, desc, 1, stream, error);
}

TEGROUP_API tegroup_status tegroup_mlp_wgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    tegroup_mlp_desc taken;
    tegroup_impl_mlp_plans plans;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    plans = tegroup_impl_mlp_plans_of(plan);
    return tegroup_impl_mlp_wgrad(&plans, plan->wgrad_workspace_bytes, desc, 1, stream, error);
}
