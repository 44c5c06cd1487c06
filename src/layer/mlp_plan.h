/* ---- Grouped MLP: plan ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "layer/linear_types.h"
#include "layer/mlp_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/copies.h"
#include "core/quantised.h"
#include "cuda/sm90_repack.h"
#include "gemm/backends.h"
#include "gemm/plan.h"
#include "core/activation_formulas.h"
#include "layer/quantize_rules.h"
#include "layer/linear_rules.h"
#include "layer/mlp_rules.h"

/* A plan's parts: what it holds for itself, and those of the two layers. A chain keeps them apart. */
typedef struct tegroup_impl_mlp_plans {
    const tegroup_mlp_planned *planned;
    const tegroup_linear_plan *fc1, *fc2, *fc1_up; /* fc1_up: NULL in a chain, whose gates and ups are one weight */
} tegroup_impl_mlp_plans;

TEGROUP_IMPL_STATIC tegroup_impl_mlp_plans tegroup_impl_mlp_plans_of(const tegroup_mlp_plan *plan) {
    tegroup_impl_mlp_plans plans;
    plans.planned = &plan->planned;
    plans.fc1 = &plan->fc1;
    plans.fc2 = &plan->fc2;
    plans.fc1_up = &plan->fc1_up;
    return plans;
}

TEGROUP_IMPL_STATIC const tegroup_linear_plan *tegroup_impl_mlp_linear(const tegroup_impl_mlp_plans *plans,
                                                                       tegroup_mlp_layer layer) {
    return layer == TEGROUP_MLP_FC1 ? plans->fc1 : layer == TEGROUP_MLP_FC2 ? plans->fc2 : plans->fc1_up;
}

TEGROUP_IMPL_STATIC tegroup_mlp_layer tegroup_impl_mlp_last(const tegroup_impl_mlp_plans *plans) {
    return plans->fc1_up ? TEGROUP_MLP_FC1_UP : TEGROUP_MLP_FC2;
}

TEGROUP_IMPL_STATIC const tegroup_plan *tegroup_impl_mlp_made(const tegroup_impl_mlp_plans *plans,
                                                              tegroup_mlp_layer layer, int product) {
    return tegroup_impl_linear_made(tegroup_impl_mlp_linear(plans, layer), product);
}

/* Why a product has no activation in its epilogue: fc1's forward product, or fc2's dgrad; NULL: it has. up: the ups'
 * product, where they are apart; else NULL. What a plan for another machine could do is not for this build to say. */
TEGROUP_IMPL_STATIC const char *tegroup_impl_mlp_unfused(const tegroup_mlp_desc *desc, const tegroup_plan *product,
                                                         const tegroup_plan *up, tegroup_op op) {
    const int gradient = op == TEGROUP_OP_DGRAD;
    tegroup_dtype out, input;
    int64_t cols;
    tegroup_impl_mlp_layers layers;
    tegroup_impl_mlp_layers_of(desc, op, &layers);
    out = layers.fc1.tensor[TEGROUP_IMPL_LINEAR_OUT]->dtype;
    input = layers.fc2.tensor[TEGROUP_IMPL_LINEAR_INPUT]->dtype;
    if (tegroup_impl_quantised(&product->problem) || desc->activated.scaling != TEGROUP_SCALING_NONE
        || (gradient && desc->grad_preactivation.scaling != TEGROUP_SCALING_NONE))
        return "must not be REQUIRED: with a quantised operand or result the activation is a pass of its own";
    cols = layers.activated.shape.cols;
    if (product->backend != TEGROUP_BACKEND_SM90 && product->backend != TEGROUP_BACKEND_PORTABLE)
        return "must not be REQUIRED: only SM90 and PORTABLE have products with an activation in their epilogue";
    if (!TEGROUP_IMPL_FUSED_KERNELS && !product->hypothetical)
        return "must not be REQUIRED: this build leaves out activations on the GPU";
    if (product->problem.op != op)
        return gradient ? "must not be REQUIRED: the epilogue is that of a product of fc2.weight_layout OUT_IN"
                        : "must not be REQUIRED: the epilogue is that of a product of fc1.weight_layout OUT_IN";
    if (!tegroup_impl_gated(desc->activation))
        return "must not be REQUIRED: the epilogue's activation has a gate and an up";
    if (product->problem.a != out || out != input || tegroup_impl_bits(out) != 16
        || (gradient && (desc->grad_preactivation.dtype != out || layers.grad_activated.dtype != out)))
        return "must not be REQUIRED: the epilogue has its product's operands, preactivation, activated and their "
               "gradients as the same of F16 and BF16";
    if (up
        && (up->backend != product->backend || up->problem.ldb != product->problem.ldb
            || up->problem.pointers_space[TEGROUP_IMPL_B] != product->problem.pointers_space[TEGROUP_IMPL_B]))
        return "must not be REQUIRED: the epilogue has fc1.weight and fc1_up.weight of one ld, both lists or neither, "
               "and both aligned as the backend needs it";
    if (up && product->backend == TEGROUP_BACKEND_SM90 && tegroup_impl_sm90_repacks(&product->problem, TEGROUP_IMPL_B))
        return "must not be REQUIRED: fc1.weight and fc1_up.weight have rows that SM90 repacks, one of them at a time";
    if (cols % 8 != 0) return "must not be REQUIRED: the epilogue has rows of 16 bytes";
    if (desc->options.data_alignment_bytes > 0 && desc->options.data_alignment_bytes < 16)
        return "must not be REQUIRED: the epilogue has 16 bytes at once, and options.data_alignment_bytes is less";
    return NULL;
}

/* Which steps an epilogue takes over: the one place that knows of fused products. SM90's have tiles of 128 lines alone,
 * and are the slower ones where groups have fewer rows; forward also where the product would have tiles that fit its
 * groups, and sums so long that lines left empty cost more than the activation's bytes. PORTABLE's, which do not
 * multiply meanwhile, gain nothing, and run when they must. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_fuse(const tegroup_mlp_desc *desc, const tegroup_plan *product,
                                                         const tegroup_plan *up, tegroup_op op, uint32_t bit,
                                                         uint32_t *fused, tegroup_fused_kernel *kernel,
                                                         tegroup_error *error) {
    const int required = desc->fusion == TEGROUP_FUSION_REQUIRED;
    const int64_t rows = desc->options.expected_rows > 0 ? desc->options.expected_rows : desc->input.shape.rows,
                  average = tegroup_impl_ceil_div(rows, tegroup_impl_max(1, desc->input.shape.groups));
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(product->backend);
    const char *why;
    if (!tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, (int)op)) return TEGROUP_OK;
    why = tegroup_impl_mlp_unfused(desc, product, up, op);
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
TEGROUP_IMPL_STATIC const tegroup_plan *tegroup_impl_mlp_neediest(const tegroup_impl_mlp_plans *plans, int wgrads) {
    const tegroup_plan *most = NULL;
    int layer, product;
    for (layer = TEGROUP_MLP_FC1; layer <= (int)tegroup_impl_mlp_last(plans); layer++)
        for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            const tegroup_plan *one = tegroup_impl_mlp_made(plans, (tegroup_mlp_layer)layer, product);
            if (one->magic != TEGROUP_PLAN_MAGIC || (wgrads && product != TEGROUP_OP_WGRAD)) continue;
            if (!most || one->workspace_bytes > most->workspace_bytes) most = one;
        }
    return most;
}

/* Where what lies in the workspace is in its layout; -1 = not there. */
typedef struct tegroup_impl_mlp_items {
    int32_t activated[4], preactivation, values; /* activated: as planned.scratch_bytes */
} tegroup_impl_mlp_items;

/* Adds the parts of a tensor between the layers; of one that is not quantised the first alone, empty or not. */
TEGROUP_IMPL_STATIC void tegroup_impl_mlp_add_parts(tegroup_layout *layout, const char *const names[4],
                                                    const int64_t bytes[4], tegroup_scaling scaling, int32_t items[4]) {
    int i;
    for (i = 0; i < 4; i++) {
        items[i] = layout->count;
        if (bytes[i] > 0 || (i == 0 && scaling == TEGROUP_SCALING_NONE))
            tegroup_impl_layout_add(layout, names[i], bytes[i]);
        else items[i] = -1;
    }
}

/* What each byte is for. The products' workspace comes first, so that wgrad, which has no scratch, can do with that
 * part. */
TEGROUP_IMPL_STATIC tegroup_impl_mlp_items tegroup_impl_mlp_layout(const tegroup_impl_mlp_plans *plans,
                                                                   tegroup_mlp_memory memory, tegroup_layout *layout) {
    static const char *const activated[] = {"activated", "activated.scale_inv", "activated.columnwise_data",
                                            "activated.columnwise_scale_inv"};
    static const char *const gradient[] = {"grad_preactivation", "grad_preactivation.scale_inv",
                                           "grad_preactivation.columnwise_data",
                                           "grad_preactivation.columnwise_scale_inv"};
    static const char *const scratch[] = {"activated, and in dgrad its gradient", "activated.scale_inv",
                                          "activated.amax", "activated.global_scale_inv"};
    const tegroup_mlp_planned *planned = plans->planned;
    const int in_workspace = memory == TEGROUP_MLP_WORKSPACE, by_forward = memory == TEGROUP_MLP_SAVED_BY_FORWARD,
              by_dgrad = memory == TEGROUP_MLP_SAVED_BY_DGRAD,
              saves_preactivation = planned->preactivation_bytes > 0 && !planned->scratch_preactivation,
              saves_activated = planned->dtypes[TEGROUP_IMPL_MLP_ACTIVATED] != TEGROUP_DTYPE_UNSET;
    const tegroup_plan *most =
        by_forward || by_dgrad ? NULL : tegroup_impl_mlp_neediest(plans, memory == TEGROUP_MLP_WGRAD_WORKSPACE);
    tegroup_impl_mlp_items items = {{-1, -1, -1, -1}, -1, -1};
    int32_t parts[4];
    tegroup_impl_layout_begin(layout);
    if (most) tegroup_impl_plan_layout(most, layout);
    if (in_workspace && planned->scratch_activated) {
        tegroup_impl_mlp_add_parts(layout, scratch, planned->scratch_bytes, planned->activated.scaling,
                                   items.activated);
    }
    if (in_workspace && planned->scratch_preactivation) {
        items.preactivation = layout->count;
        tegroup_impl_layout_add(layout, "preactivation", planned->preactivation_bytes);
    }
    if (in_workspace && planned->values_bytes > 0) {
        items.values = layout->count;
        tegroup_impl_layout_add(layout, "what is quantised", planned->values_bytes);
    }
    if (by_forward && saves_preactivation)
        tegroup_impl_layout_add(layout, "preactivation", planned->preactivation_bytes);
    if (saves_activated && (planned->recompute ? by_dgrad : by_forward))
        tegroup_impl_mlp_add_parts(layout, activated, planned->activated_bytes, planned->activated.scaling, parts);
    if (by_dgrad && plans->fc2->dgrad.magic == TEGROUP_PLAN_MAGIC)
        tegroup_impl_mlp_add_parts(layout, gradient, planned->grad_preactivation_bytes,
                                   planned->grad_preactivation.scaling, parts);
    return items;
}

/* How a tensor is quantised, as a plan remembers it. */
TEGROUP_IMPL_STATIC tegroup_mlp_format tegroup_impl_mlp_format(const tegroup_tensor *t,
                                                               const tegroup_scale_rule *rule) {
    tegroup_mlp_format format;
    memset(&format, 0, sizeof format);
    if (t->dtype == TEGROUP_DTYPE_UNSET || t->scaling == TEGROUP_SCALING_NONE) return format;
    format.scaling = t->scaling;
    format.scale_dtype = t->scale_dtype;
    format.scale_strides = t->scale_outer_stride > 0;
    format.columnwise_order = t->columnwise_order;
    format.rule = *rule;
    return format;
}

/* What a plan remembers of a descriptor. */
TEGROUP_IMPL_STATIC tegroup_mlp_planned tegroup_impl_mlp_record(const tegroup_mlp_desc *desc,
                                                                const tegroup_impl_mlp_layers *layers) {
    const int forward = tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_FORWARD),
              dgrad = tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_DGRAD),
              has_preactivation = desc->preactivation.dtype != TEGROUP_DTYPE_UNSET;
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
    planned.activated = tegroup_impl_mlp_format(&layers->activated, &desc->activated_rule);
    planned.grad_preactivation = tegroup_impl_mlp_format(&desc->grad_preactivation, &desc->grad_rule);
    return planned;
}

/* Which copies of a tensor that the MLP quantises products of these plans read: a set of tegroup_copies. */
TEGROUP_IMPL_STATIC int tegroup_impl_mlp_copies(const tegroup_impl_mlp_plans *plans, int tensor,
                                                const tegroup_tensor *t) {
    const int activated = tensor == TEGROUP_IMPL_MLP_ACTIVATED;
    const tegroup_linear_plan *layer = activated ? plans->fc2 : plans->fc1;
    const tegroup_plan *other = activated ? &layer->forward : &layer->dgrad;
    const int rowwise = other->magic == TEGROUP_PLAN_MAGIC && !(activated && plans->planned->recompute),
              summed = layer->wgrad.magic == TEGROUP_PLAN_MAGIC,
              columnwise = summed && tegroup_impl_needs_columnwise(t);
    return (rowwise || (summed && !columnwise) ? TEGROUP_COPIES_ROWWISE : 0)
           | (columnwise ? TEGROUP_COPIES_COLUMNWISE : 0);
}

/* Bytes of the caller's tensor between the layers: of a quantised one, of the copy that wgrad reads later, if it does.
 * The other is used up by the call that writes it. */
TEGROUP_IMPL_STATIC void tegroup_impl_mlp_part_bytes(const tegroup_impl_mlp_plans *plans, int tensor,
                                                     const tegroup_tensor *t, int64_t bytes[4]) {
    tegroup_tensor unplaced = *t;
    int copies, copy;
    if (t->dtype == TEGROUP_DTYPE_UNSET) return;
    if (t->scaling == TEGROUP_SCALING_NONE) {
        bytes[0] = tegroup_impl_extent_bytes(t);
        return;
    }
    unplaced.columnwise_data = NULL; /* a plan reads no addresses */
    copies = tegroup_impl_mlp_copies(plans, tensor, &unplaced);
    if (copies & TEGROUP_COPIES_COLUMNWISE) copies = TEGROUP_COPIES_COLUMNWISE;
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++) {
        if (!(copies >> copy & 1)) continue;
        bytes[2 * copy] = tegroup_impl_copy_bytes(t, copy);
        bytes[2 * copy + 1] = tegroup_impl_scale_bytes(t, copy);
    }
}

/* Bytes of the values that t is quantised from, where they are made first: on a GPU, unless a kernel makes and
 * quantises them at once. A copy of the caller's that holds values holds these. between: t lies in the workspace. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_mlp_values_bytes(const tegroup_mlp_desc *desc, const tegroup_tensor *t,
                                                          int gradient, int between) {
    const tegroup_dtype dtype = tegroup_impl_mlp_preactivated(desc);
    if (desc->space != TEGROUP_SPACE_DEVICE || t->scaling == TEGROUP_SCALING_NONE
        || (tegroup_impl_keeps_values(t) && !between)
        || tegroup_impl_makes_at_once(desc->activation, dtype, gradient, t,
                                      gradient ? &desc->grad_rule : &desc->activated_rule))
        return 0;
    return tegroup_impl_mul(tegroup_impl_mul(t->shape.rows, t->shape.cols), tegroup_impl_bits(dtype) / 8);
}

/* Bytes of the tensors between the layers, of a plan whose products are made. */
TEGROUP_IMPL_STATIC void tegroup_impl_mlp_bytes(const tegroup_mlp_desc *desc, const tegroup_impl_mlp_layers *layers,
                                                const tegroup_impl_mlp_plans *plans, tegroup_mlp_planned *planned) {
    const tegroup_tensor *t = &layers->activated;
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const int dgrad = plans->fc2->dgrad.magic == TEGROUP_PLAN_MAGIC,
              forward = plans->fc2->forward.magic == TEGROUP_PLAN_MAGIC && !tegroup_impl_mlp_keeps(desc),
              global = facts->scale_dtype == TEGROUP_DTYPE_F8E4M3, scaled = t->scaling != TEGROUP_SCALING_NONE;
    tegroup_impl_mlp_part_bytes(plans, TEGROUP_IMPL_MLP_ACTIVATED, &desc->activated, planned->activated_bytes);
    if (dgrad)
        tegroup_impl_mlp_part_bytes(plans, TEGROUP_IMPL_MLP_GRAD_PREACTIVATION, &desc->grad_preactivation,
                                    planned->grad_preactivation_bytes);
    if (dgrad) planned->scratch_bytes[0] = tegroup_impl_extent_bytes(&layers->grad_activated);
    if (dgrad) planned->values_bytes = tegroup_impl_mlp_values_bytes(desc, &desc->grad_preactivation, 1, 0);
    if (desc->activated.dtype != TEGROUP_DTYPE_UNSET)
        planned->values_bytes =
            tegroup_impl_max(planned->values_bytes, tegroup_impl_mlp_values_bytes(desc, &desc->activated, 0, 0));
    if (!forward) return;
    planned->values_bytes = tegroup_impl_max(planned->values_bytes, tegroup_impl_mlp_values_bytes(desc, t, 0, 1));
    planned->scratch_bytes[0] = tegroup_impl_max(planned->scratch_bytes[0], tegroup_impl_extent_bytes(t));
    if (scaled) planned->scratch_bytes[1] = tegroup_impl_scale_bytes(t, 0);
    if (scaled && (global || (tegroup_impl_scaled_as_one(facts) && desc->activated_rule.method != TEGROUP_SCALE_GIVEN)))
        planned->scratch_bytes[2] = 4 * (int64_t)t->shape.groups;
    if (global) planned->scratch_bytes[3] = 4 * (int64_t)t->shape.groups;
}

/* The sizes of a plan that is otherwise made. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_sizes(const tegroup_mlp_desc *desc,
                                                          const tegroup_impl_mlp_layers *layers, tegroup_mlp_plan *plan,
                                                          tegroup_error *error) {
    const tegroup_impl_mlp_plans plans = tegroup_impl_mlp_plans_of(plan);
    size_t *const bytes[] = {&plan->workspace_bytes, &plan->wgrad_workspace_bytes, &plan->saved_by_forward_bytes,
                             &plan->saved_by_dgrad_bytes};
    tegroup_layout layout;
    int i;
    tegroup_impl_mlp_bytes(desc, layers, &plans, &plan->planned);
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
    for (layer = TEGROUP_MLP_FC1; layer <= TEGROUP_MLP_FC1_UP; layer++)
        for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            if (!tegroup_impl_mlp_wants(desc, (tegroup_mlp_layer)layer, product)) continue;
            tegroup_impl_mlp_layers_of(desc, (tegroup_op)product, &layers);
            TEGROUP_IMPL_TRY(tegroup_impl_layer_plan(tegroup_impl_mlp_layer_at(&layers, (tegroup_mlp_layer)layer),
                                                     product, tegroup_impl_mlp_adds((tegroup_mlp_layer)layer, product),
                                                     target,
                                                     layer == TEGROUP_MLP_FC1   ? &made.fc1
                                                     : layer == TEGROUP_MLP_FC2 ? &made.fc2
                                                                                : &made.fc1_up,
                                                     error));
        }
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_fuse(
        desc, &made.fc1.forward, tegroup_impl_mlp_apart(desc) ? &made.fc1_up.forward : NULL, TEGROUP_OP_FORWARD,
        TEGROUP_FUSED_FORWARD, &made.planned.fused, &made.planned.activated_kernel, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_fuse(desc, &made.fc2.dgrad, NULL, TEGROUP_OP_DGRAD, TEGROUP_FUSED_DGRAD,
                                           &made.planned.fused, &made.planned.gradient_kernel, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_sizes(desc, &layers, &made, error));
    *plan = made;
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_plan(const tegroup_mlp_plan *plan, tegroup_error *error) {
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
TEGROUP_IMPL_STATIC void tegroup_impl_mlp_place(const tegroup_impl_mlp_plans *plans, const tegroup_mlp_desc *desc,
                                                tegroup_impl_mlp_layers *layers) {
    tegroup_layout layout;
    const tegroup_impl_mlp_items items = tegroup_impl_mlp_layout(plans, TEGROUP_MLP_WORKSPACE, &layout);
    void *workspace = desc->options.workspace;
    if (!workspace) return;
    if (items.activated[0] >= 0)
        layers->activated.data = layers->grad_activated.data =
            tegroup_impl_layout_at(&layout, items.activated[0], workspace);
    if (items.activated[1] >= 0)
        layers->activated.scale_inv = tegroup_impl_layout_at(&layout, items.activated[1], workspace);
    if (items.activated[2] >= 0)
        layers->activated.amax = (float *)tegroup_impl_layout_at(&layout, items.activated[2], workspace);
    if (items.activated[3] >= 0)
        layers->activated.global_scale_inv = (float *)tegroup_impl_layout_at(&layout, items.activated[3], workspace);
    if (items.values >= 0) layers->values = tegroup_impl_layout_at(&layout, items.values, workspace);
    if (items.preactivation >= 0)
        layers->preactivation.data = tegroup_impl_layout_at(&layout, items.preactivation, workspace);
    if (tegroup_impl_mlp_apart(desc)) tegroup_impl_mlp_split(desc, layers);
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
    TEGROUP_IMPL_RULE_ENUM(layer, TEGROUP_MLP_FC1_UP, "layer", "must be a tegroup_mlp_layer");
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
    if (tegroup_impl_mlp_adds(layer, (int)op)) gemm->accumulate = 1;
    return TEGROUP_OK;
}
