/* ---- Grouped MLP: tensors and rules ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/activation_types.h"
#include "layer/linear_types.h"
#include "layer/mlp_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "formats/dtype.h"
#include "formats/scale_rule.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/copies.h"
#include "core/activation_formulas.h"
#include "layer/activation.h"
#include "layer/quantize_rules.h"
#include "layer/linear_rules.h"

/* Its tensors, by name: weights, then what has the routing's rows, of which the last three are what is saved. */
/* clang-format off */
#define TEGROUP_IMPL_MLP_TENSORS(X)                                                                                    \
    X(FC1_WEIGHT, fc1.weight) X(FC1_BIAS, fc1.bias) X(FC1_MAIN_GRAD, fc1.main_grad) X(FC1_BIAS_GRAD, fc1.bias_grad)    \
    X(FC2_WEIGHT, fc2.weight) X(FC2_BIAS, fc2.bias) X(FC2_MAIN_GRAD, fc2.main_grad) X(FC2_BIAS_GRAD, fc2.bias_grad)    \
    X(FC1_UP_WEIGHT, fc1_up.weight) X(FC1_UP_BIAS, fc1_up.bias) X(FC1_UP_MAIN_GRAD, fc1_up.main_grad)                  \
    X(FC1_UP_BIAS_GRAD, fc1_up.bias_grad)                                                                              \
    X(INPUT, input) X(OUT, out) X(GRAD_OUTPUT, grad_output) X(DGRAD_OUT, dgrad_out)                                    \
    X(GRAD_ROW_SCALE, grad_row_scale) X(PREACTIVATION, preactivation) X(ACTIVATED, activated)                          \
    X(GRAD_PREACTIVATION, grad_preactivation)
/* clang-format on */

#define TEGROUP_IMPL_ENUMERATE(name, member) TEGROUP_IMPL_MLP_##name,
typedef enum tegroup_impl_mlp_tensor {
    TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_ENUMERATE) TEGROUP_IMPL_MLP_ROW_SCALE, /* no tensor, but memory like one */
    TEGROUP_IMPL_MLP_COUNT
} tegroup_impl_mlp_tensor;
#undef TEGROUP_IMPL_ENUMERATE
enum {
    TEGROUP_IMPL_MLP_DTYPES_FIT =
        1 / (TEGROUP_IMPL_MLP_COUNT == sizeof(((tegroup_mlp_planned *)0)->dtypes) / sizeof(tegroup_dtype))
};

TEGROUP_IMPL_STATIC const tegroup_tensor *tegroup_impl_mlp_at(const tegroup_mlp_desc *desc, int tensor) {
#define TEGROUP_IMPL_CASE(name, member)                                                                                \
    case TEGROUP_IMPL_MLP_##name: return &desc->member;
    switch (tensor) { TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_CASE) default : return NULL; }
#undef TEGROUP_IMPL_CASE
}

/* Is it the gradient of a weight or of a bias? */
TEGROUP_IMPL_STATIC int tegroup_impl_mlp_gradient(int tensor) {
    return tensor <= TEGROUP_IMPL_MLP_FC1_UP_BIAS_GRAD && tensor % 4 >= 2;
}

TEGROUP_IMPL_STATIC tegroup_dtype tegroup_impl_mlp_dtype(const tegroup_mlp_desc *desc, int tensor) {
    return tensor == TEGROUP_IMPL_MLP_ROW_SCALE ? desc->row_scale_dtype : tegroup_impl_mlp_at(desc, tensor)->dtype;
}

TEGROUP_IMPL_STATIC const tegroup_impl_name *tegroup_impl_mlp_name(int tensor) {
#define TEGROUP_IMPL_ROW(name, member) TEGROUP_IMPL_NAME(#member),
    static const tegroup_impl_name names[TEGROUP_IMPL_MLP_COUNT] = {TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_ROW)
                                                                        TEGROUP_IMPL_NAME("row_scale")};
#undef TEGROUP_IMPL_ROW
    return &names[tensor];
}
TEGROUP_IMPL_STATIC const char *tegroup_impl_mlp_path(int tensor, int member) {
    return tegroup_impl_mlp_name(tensor)->members[member];
}

/* What errors call the quantiser's tensors: activated is made of preactivation, whose gradient is made of both and of
 * activated's gradient. */
TEGROUP_IMPL_STATIC const tegroup_impl_quantize_names *tegroup_impl_mlp_quantize_names(int tensor) {
#define TEGROUP_IMPL_WORDS(output, rule)                                                                               \
    {                                                                                                                  \
        TEGROUP_IMPL_NAME("preactivation"), TEGROUP_IMPL_NAME(output), TEGROUP_IMPL_NAME("activated"),                 \
            TEGROUP_IMPL_RULE_NAME(rule), {                                                                            \
            "row_scale", "input.shape.rows", "row_scale", "row_scale", "row_scale_dtype"                               \
        }                                                                                                              \
    }
    static const tegroup_impl_quantize_names activated = TEGROUP_IMPL_WORDS("activated", "activated_rule"),
                                             gradient = TEGROUP_IMPL_WORDS("grad_preactivation", "grad_rule");
#undef TEGROUP_IMPL_WORDS
    return tensor == TEGROUP_IMPL_MLP_ACTIVATED ? &activated : &gradient;
}

/* What a linear layer's tensor is here. The gradient of activated, fc2's dgrad_out, goes by the name of what it is
 * shaped as. */
TEGROUP_IMPL_STATIC int tegroup_impl_mlp_role(tegroup_mlp_layer layer, int tensor) {
#define TEGROUP_IMPL_WORD(name) TEGROUP_IMPL_MLP_##name
    static const int roles[3][TEGROUP_IMPL_LINEAR_COUNT] = {
        {-1, TEGROUP_IMPL_WORD(FC1_WEIGHT), TEGROUP_IMPL_WORD(FC1_BIAS), TEGROUP_IMPL_WORD(INPUT),
         TEGROUP_IMPL_WORD(PREACTIVATION), TEGROUP_IMPL_WORD(GRAD_PREACTIVATION), TEGROUP_IMPL_WORD(DGRAD_OUT),
         TEGROUP_IMPL_WORD(FC1_MAIN_GRAD), TEGROUP_IMPL_WORD(FC1_BIAS_GRAD), -1},
        {-1, TEGROUP_IMPL_WORD(FC2_WEIGHT), TEGROUP_IMPL_WORD(FC2_BIAS), TEGROUP_IMPL_WORD(ACTIVATED),
         TEGROUP_IMPL_WORD(OUT), TEGROUP_IMPL_WORD(GRAD_OUTPUT), TEGROUP_IMPL_WORD(ACTIVATED),
         TEGROUP_IMPL_WORD(FC2_MAIN_GRAD), TEGROUP_IMPL_WORD(FC2_BIAS_GRAD), TEGROUP_IMPL_WORD(GRAD_ROW_SCALE)},
        {-1, TEGROUP_IMPL_WORD(FC1_UP_WEIGHT), TEGROUP_IMPL_WORD(FC1_UP_BIAS), TEGROUP_IMPL_WORD(INPUT),
         TEGROUP_IMPL_WORD(PREACTIVATION), TEGROUP_IMPL_WORD(GRAD_PREACTIVATION), TEGROUP_IMPL_WORD(DGRAD_OUT),
         TEGROUP_IMPL_WORD(FC1_UP_MAIN_GRAD), TEGROUP_IMPL_WORD(FC1_UP_BIAS_GRAD), -1}};
#undef TEGROUP_IMPL_WORD
    return roles[layer - 1][tensor];
}

/* What the activation's matrices are here. */
TEGROUP_IMPL_STATIC const tegroup_impl_activation_names *tegroup_impl_mlp_activation_names(void) {
#define TEGROUP_IMPL_ROWS(name)                                                                                        \
    {                                                                                                                  \
        {name ".data", name ".shape.rows", name ".shape.cols", name ".ld", name ".dtype"}, "must not overlap " name,   \
            "must not overlap " name ", unless it is " name " with the same dtype"                                     \
    }
    static const tegroup_impl_activation_names names = {
        TEGROUP_IMPL_ROWS("preactivation"),
        {{"row_scale", "input.shape.rows", "row_scale", "row_scale", "row_scale_dtype"},
         "must not overlap row_scale",
         NULL},
        TEGROUP_IMPL_ROWS("activated"),
        TEGROUP_IMPL_ROWS("activated"),
        TEGROUP_IMPL_ROWS("grad_preactivation"),
        TEGROUP_IMPL_ROWS("grad_row_scale"),
        "input.shape.snapshot"};
#undef TEGROUP_IMPL_ROWS
    return &names;
}

#define TEGROUP_IMPL_THERE(member) (desc->member.dtype != TEGROUP_DTYPE_UNSET)

/* The tensor that asks for a product by being there. */
TEGROUP_IMPL_STATIC int tegroup_impl_mlp_asks(tegroup_mlp_layer layer, int product) {
    switch (product) {
    case TEGROUP_OP_FORWARD: return TEGROUP_IMPL_MLP_OUT;
    case TEGROUP_OP_DGRAD:
        return layer == TEGROUP_MLP_FC2 ? TEGROUP_IMPL_MLP_GRAD_PREACTIVATION : TEGROUP_IMPL_MLP_DGRAD_OUT;
    case TEGROUP_OP_WGRAD: return tegroup_impl_mlp_role(layer, TEGROUP_IMPL_LINEAR_MAIN_GRAD);
    default: return TEGROUP_IMPL_MLP_GRAD_ROW_SCALE;
    }
}

/* Whether gates and ups are two weights. */
TEGROUP_IMPL_STATIC int tegroup_impl_mlp_apart(const tegroup_mlp_desc *desc) {
    return TEGROUP_IMPL_THERE(fc1_up.weight);
}

TEGROUP_IMPL_STATIC int tegroup_impl_mlp_wants(const tegroup_mlp_desc *desc, tegroup_mlp_layer layer, int product) {
    return tegroup_impl_mlp_at(desc, tegroup_impl_mlp_asks(layer, product))->dtype != TEGROUP_DTYPE_UNSET
           && (layer != TEGROUP_MLP_FC1_UP || tegroup_impl_mlp_apart(desc))
           && (product != TEGROUP_IMPL_LINEAR_ROW_SCALE || (layer == TEGROUP_MLP_FC2 && desc->fc2_bias_scaled));
}

/* The bias's part of grad_row_scale is added to what the activation gave, and the ups' part of dX to the gates'. */
TEGROUP_IMPL_STATIC int tegroup_impl_mlp_adds(tegroup_mlp_layer layer, int product) {
    return product == TEGROUP_IMPL_LINEAR_ROW_SCALE || (layer == TEGROUP_MLP_FC1_UP && product == TEGROUP_OP_DGRAD);
}

/* Does forward leave activated to the caller? Else it is scratch. */
TEGROUP_IMPL_STATIC int tegroup_impl_mlp_keeps(const tegroup_mlp_desc *desc) {
    return TEGROUP_IMPL_THERE(activated) && !desc->recompute;
}

/* The layers as a call sees them, with the rows between them that lie in the workspace. It points into itself. */
typedef struct tegroup_impl_mlp_layers {
    tegroup_tensor preactivation, activated, grad_activated; /* in the workspace, the last two in one place */
    tegroup_tensor out[2], grad_output[2]; /* fc1_up: gates' and ups' halves of preactivation and of its gradient */
    void *values;                          /* in the workspace, too: room for what is quantised, before it is */
    tegroup_impl_layer fc1, fc2, fc1_up;
} tegroup_impl_mlp_layers;

TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_mlp_scratch(const tegroup_mlp_desc *desc, tegroup_dtype dtype,
                                                            int64_t cols) {
    tegroup_tensor t;
    memset(&t, 0, sizeof t);
    t.shape = desc->input.shape;
    t.shape.cols = cols;
    t.dtype = dtype;
    return t;
}

TEGROUP_IMPL_STATIC void tegroup_impl_mlp_layer_of(const tegroup_mlp_desc *desc, tegroup_mlp_layer which,
                                                   tegroup_impl_layer *layer) {
    const tegroup_mlp_weights *weights = which == TEGROUP_MLP_FC1   ? &desc->fc1
                                         : which == TEGROUP_MLP_FC2 ? &desc->fc2
                                                                    : &desc->fc1_up;
    int tensor;
    memset(layer, 0, sizeof *layer);
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        if (tegroup_impl_mlp_role(which, tensor) >= 0)
            layer->name[tensor] = tegroup_impl_mlp_name(tegroup_impl_mlp_role(which, tensor));
    layer->tensor[TEGROUP_IMPL_LINEAR_WEIGHT] = &weights->weight;
    layer->tensor[TEGROUP_IMPL_LINEAR_BIAS] = &weights->bias;
    layer->tensor[TEGROUP_IMPL_LINEAR_MAIN_GRAD] = &weights->main_grad;
    layer->tensor[TEGROUP_IMPL_LINEAR_BIAS_GRAD] = &weights->bias_grad;
    layer->space = desc->space;
    layer->accumulate = desc->accumulate;
    layer->weight_layout = weights->weight_layout;
    layer->weight_layout_name = which == TEGROUP_MLP_FC1   ? "fc1.weight_layout"
                                : which == TEGROUP_MLP_FC2 ? "fc2.weight_layout"
                                                           : "fc1_up.weight_layout";
    layer->options = &desc->options;
}

/* The gates' or the ups' half of rows that hold both. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_mlp_half(const tegroup_tensor *t, int up) {
    tegroup_tensor part = *t;
    part.ld = tegroup_impl_ld(t);
    part.shape.cols = t->shape.cols / 2;
    if (up && t->data)
        part.data = (void *)((uintptr_t)t->data
                             + (uintptr_t)tegroup_impl_mul(part.shape.cols, tegroup_impl_bits(t->dtype)) / 8);
    return part;
}

/* Gives gates and ups their halves of the rows between the layers. */
TEGROUP_IMPL_STATIC void tegroup_impl_mlp_split(const tegroup_mlp_desc *desc, tegroup_impl_mlp_layers *layers) {
    const tegroup_tensor *out = TEGROUP_IMPL_THERE(preactivation) ? &desc->preactivation : &layers->preactivation;
    int up;
    for (up = 0; up < 2; up++) {
        tegroup_impl_layer *layer = up ? &layers->fc1_up : &layers->fc1;
        layers->out[up] = tegroup_impl_mlp_half(out, up);
        layers->grad_output[up] = tegroup_impl_mlp_half(&desc->grad_preactivation, up);
        layer->tensor[TEGROUP_IMPL_LINEAR_OUT] = &layers->out[up];
        layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT] = &layers->grad_output[up];
        layer->halves = 1;
    }
}

/* The type of preactivation. */
TEGROUP_IMPL_STATIC tegroup_dtype tegroup_impl_mlp_preactivated(const tegroup_mlp_desc *desc) {
    if (TEGROUP_IMPL_THERE(preactivation)) return desc->preactivation.dtype;
    return desc->input.scaling == TEGROUP_SCALING_NONE ? desc->input.dtype : TEGROUP_DTYPE_BF16;
}

/* The type of activated without a scaling and of its gradient in the workspace: F32 rows stay so where weights are
 * narrower. */
TEGROUP_IMPL_STATIC tegroup_dtype tegroup_impl_mlp_between(const tegroup_mlp_desc *desc) {
    if (desc->activated.scaling != TEGROUP_SCALING_NONE
        || (TEGROUP_IMPL_THERE(grad_preactivation) && desc->grad_preactivation.scaling != TEGROUP_SCALING_NONE))
        return tegroup_impl_mlp_preactivated(desc);
    if (TEGROUP_IMPL_THERE(activated)) return desc->activated.dtype;
    if (desc->fc2.weight.scaling != TEGROUP_SCALING_NONE || desc->input.scaling != TEGROUP_SCALING_NONE)
        return tegroup_impl_mlp_preactivated(desc);
    return desc->input.dtype == TEGROUP_DTYPE_F32 && desc->fc1.weight.dtype != TEGROUP_DTYPE_F32
               ? TEGROUP_DTYPE_F32
               : desc->fc2.weight.dtype;
}

/* activated in the workspace: there a quantised one has the copy that fc2's product reads. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_mlp_scratch_activated(const tegroup_mlp_desc *desc, int64_t cols) {
    tegroup_tensor t = tegroup_impl_mlp_scratch(
        desc, TEGROUP_IMPL_THERE(activated) ? desc->activated.dtype : tegroup_impl_mlp_between(desc), cols);
    if (desc->activated.scaling == TEGROUP_SCALING_NONE) return t;
    if (!TEGROUP_IMPL_THERE(activated)) t.dtype = desc->fc2.weight.dtype;
    t.scaling = desc->activated.scaling;
    t.scale_dtype = desc->activated.scale_dtype;
    t.scale_outer_stride = desc->activated.scale_outer_stride;
    t.scale_inner_stride = desc->activated.scale_inner_stride;
    t.columnwise_order = desc->activated.columnwise_order;
    t.scale = desc->activated.scale;
    return t;
}

/* The layers as `op` sees them; what lies in the workspace has no address yet. */
TEGROUP_IMPL_STATIC void tegroup_impl_mlp_layers_of(const tegroup_mlp_desc *desc, tegroup_op op,
                                                    tegroup_impl_mlp_layers *layers) {
    tegroup_impl_layer *fc1 = &layers->fc1, *fc2 = &layers->fc2, *fc1_up = &layers->fc1_up;
    const int64_t width = tegroup_impl_weight_out(&desc->fc1.weight, desc->fc1.weight_layout);
    const int64_t twice = tegroup_impl_mul(2, tegroup_impl_max(0, width));
    const int64_t h = tegroup_impl_weight_in(&desc->fc2.weight, desc->fc2.weight_layout);
    layers->preactivation = tegroup_impl_mlp_scratch(desc, tegroup_impl_mlp_preactivated(desc),
                                                     tegroup_impl_mlp_apart(desc) ? twice : width);
    layers->activated = tegroup_impl_mlp_scratch_activated(desc, h);
    layers->grad_activated = tegroup_impl_mlp_scratch(desc, tegroup_impl_mlp_between(desc), h);
    layers->values = NULL;
    tegroup_impl_mlp_layer_of(desc, TEGROUP_MLP_FC1, fc1);
    tegroup_impl_mlp_layer_of(desc, TEGROUP_MLP_FC2, fc2);
    tegroup_impl_mlp_layer_of(desc, TEGROUP_MLP_FC1_UP, fc1_up);
    fc1->gather_input = fc1_up->gather_input = &desc->gather_input;
    fc2->gather_grad_output = &desc->gather_grad_output;
    fc1->tensor[TEGROUP_IMPL_LINEAR_INPUT] = &desc->input;
    fc1->tensor[TEGROUP_IMPL_LINEAR_OUT] =
        TEGROUP_IMPL_THERE(preactivation) ? &desc->preactivation : &layers->preactivation;
    fc1->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT] = &desc->grad_preactivation;
    fc1->tensor[TEGROUP_IMPL_LINEAR_DGRAD_OUT] = &desc->dgrad_out;
    fc1->dgrad_out_tail = desc->dgrad_out_tail; /* which fc1_up, that adds, finds filled */
    fc1_up->tensor[TEGROUP_IMPL_LINEAR_INPUT] = &desc->input;
    fc1_up->tensor[TEGROUP_IMPL_LINEAR_DGRAD_OUT] = &desc->dgrad_out;
    if (tegroup_impl_mlp_apart(desc)) tegroup_impl_mlp_split(desc, layers);
    fc2->tensor[TEGROUP_IMPL_LINEAR_INPUT] =
        TEGROUP_IMPL_THERE(activated) && !(op == TEGROUP_OP_FORWARD && desc->recompute) ? &desc->activated
                                                                                        : &layers->activated;
    fc2->tensor[TEGROUP_IMPL_LINEAR_OUT] = &desc->out;
    fc2->out_tail = desc->out_tail;
    fc2->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT] = &desc->grad_output;
    fc2->tensor[TEGROUP_IMPL_LINEAR_DGRAD_OUT] = &layers->grad_activated;
    fc2->tensor[TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE] = &desc->grad_row_scale;
    if (!desc->fc2_bias_scaled) return;
    fc2->row_scale = desc->row_scale;
    fc2->row_scale_dtype = desc->row_scale_dtype;
}

TEGROUP_IMPL_STATIC const tegroup_impl_layer *tegroup_impl_mlp_layer_at(const tegroup_impl_mlp_layers *layers,
                                                                        tegroup_mlp_layer which) {
    return which == TEGROUP_MLP_FC1 ? &layers->fc1 : which == TEGROUP_MLP_FC2 ? &layers->fc2 : &layers->fc1_up;
}

/* Which tensors are there, and for which others. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_there(const tegroup_mlp_desc *desc, tegroup_error *error) {
    int tensor;
    for (tensor = 0; tensor < TEGROUP_IMPL_MLP_ROW_SCALE; tensor++) {
        const tegroup_tensor *t = tegroup_impl_mlp_at(desc, tensor);
        if (t->dtype == TEGROUP_DTYPE_UNSET)
            TEGROUP_IMPL_TRY(tegroup_impl_check_absent(t, tegroup_impl_mlp_name(tensor), error));
        TEGROUP_IMPL_RULE_ENUM(t->dtype, TEGROUP_DTYPE_COUNT - 1,
                               tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_DTYPE), "must be a tegroup_dtype");
    }
    TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_THERE(input), ERROR_UNSET, "input.dtype", "must be set",
                         TEGROUP_IMPL_FLOATS, 0);
    TEGROUP_IMPL_RULE_AS(DTYPES,
                         TEGROUP_IMPL_THERE(out) || TEGROUP_IMPL_THERE(grad_preactivation)
                             || TEGROUP_IMPL_THERE(fc1.main_grad) || TEGROUP_IMPL_THERE(fc2.main_grad),
                         ERROR_UNSET, "out.dtype", "must be set, or grad_preactivation's, or a main_grad's",
                         TEGROUP_IMPL_FLOATS, 0);
#define TEGROUP_IMPL_NEEDS(member, other)                                                                              \
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(member) || TEGROUP_IMPL_THERE(other), ERROR_COMBINATION, #member,            \
                      "needs " #other, 1, 0)
    TEGROUP_IMPL_NEEDS(dgrad_out, grad_preactivation);
    TEGROUP_IMPL_NEEDS(grad_row_scale, grad_preactivation);
    TEGROUP_IMPL_NEEDS(grad_preactivation, preactivation);
    TEGROUP_IMPL_NEEDS(grad_preactivation, grad_output);
    TEGROUP_IMPL_NEEDS(fc1.main_grad, grad_preactivation);
    TEGROUP_IMPL_NEEDS(fc2.main_grad, grad_output);
    TEGROUP_IMPL_NEEDS(fc2.main_grad, activated);
    TEGROUP_IMPL_NEEDS(fc1.bias_grad, fc1.main_grad);
    TEGROUP_IMPL_NEEDS(fc1.bias_grad, fc1.bias);
    TEGROUP_IMPL_NEEDS(fc2.bias_grad, fc2.main_grad);
    TEGROUP_IMPL_NEEDS(fc2.bias_grad, fc2.bias);
    TEGROUP_IMPL_NEEDS(fc1_up.bias, fc1_up.weight);
    TEGROUP_IMPL_NEEDS(fc1_up.main_grad, fc1_up.weight);
    TEGROUP_IMPL_NEEDS(fc1_up.bias_grad, fc1_up.weight);
#undef TEGROUP_IMPL_NEEDS
    TEGROUP_IMPL_RULE(!desc->recompute || TEGROUP_IMPL_THERE(activated), ERROR_COMBINATION, "recompute",
                      "needs activated", 0, 1);
    TEGROUP_IMPL_RULE(!desc->recompute || TEGROUP_IMPL_THERE(grad_preactivation), ERROR_COMBINATION, "recompute",
                      "needs grad_preactivation: dgrad does it", 0, 1);
    TEGROUP_IMPL_RULE_AS(DTYPE, !desc->row_scale || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET,
                         "row_scale_dtype", "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(grad_row_scale) || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET,
                      ERROR_COMBINATION, "grad_row_scale", "needs row_scale", 1, 0);
    TEGROUP_IMPL_RULE(!desc->fc2_bias_scaled || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                      "fc2_bias_scaled", "needs row_scale", 0, 1);
    TEGROUP_IMPL_RULE(!desc->fc2_bias_scaled || TEGROUP_IMPL_THERE(fc2.bias), ERROR_COMBINATION, "fc2_bias_scaled",
                      "needs fc2.bias", 0, 1);
    TEGROUP_IMPL_RULE(!desc->accumulate || TEGROUP_IMPL_THERE(fc1.main_grad) || TEGROUP_IMPL_THERE(fc2.main_grad),
                      ERROR_COMBINATION, "accumulate", "needs fc1.main_grad or fc2.main_grad", 0, desc->accumulate);
    TEGROUP_IMPL_RULE(desc->out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(out), ERROR_COMBINATION, "out_tail",
                      "needs out", 0, desc->out_tail);
    TEGROUP_IMPL_RULE(desc->dgrad_out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(dgrad_out), ERROR_COMBINATION,
                      "dgrad_out_tail", "needs dgrad_out", 0, desc->dgrad_out_tail);
    return TEGROUP_OK;
}

/* Rows that gates and ups share hold both, and where a backend needs whole 16 bytes, ups begin at some. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_halves(const tegroup_mlp_desc *desc, const tegroup_tensor *t,
                                                                 int tensor, int64_t h, tegroup_error *error) {
    const tegroup_backend backend = desc->options.backend;
    const int64_t each = tegroup_impl_max(1, 128 / tegroup_impl_max(1, tegroup_impl_bits(t->dtype)));
    if (t->dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(t->shape.cols == tegroup_impl_mul(2, h), ERROR_SHAPE,
                      tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_COLS),
                      "must be those of gates and of ups: fc1's and fc1_up's", tegroup_impl_mul(2, h), t->shape.cols);
    TEGROUP_IMPL_RULE((backend != TEGROUP_BACKEND_SM90 && backend != TEGROUP_BACKEND_CUBLASLT_GROUPED) || h % each == 0,
                      ERROR_UNSUPPORTED, tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_COLS),
                      "must be twice a multiple of 16 bytes: ups begin there, and options.backend needs it", 2 * each,
                      t->shape.cols);
    return TEGROUP_OK;
}

/* fc1_up's weight has fc1's shape, and fc2's weight as many groups. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_up_shape(const tegroup_mlp_desc *desc, tegroup_error *error) {
    const tegroup_impl_name *name = tegroup_impl_mlp_name(TEGROUP_IMPL_MLP_FC1_UP_WEIGHT),
                            *gates = tegroup_impl_mlp_name(TEGROUP_IMPL_MLP_FC1_WEIGHT);
    const tegroup_shape *shape = &desc->fc1_up.weight.shape, *like = &desc->fc1.weight.shape;
    TEGROUP_IMPL_RULE(shape->groups == like->groups, ERROR_SHAPE, TEGROUP_IMPL_PATH(GROUPS), gates->groups,
                      like->groups, shape->groups);
    TEGROUP_IMPL_RULE(shape->rows == like->rows, ERROR_SHAPE, TEGROUP_IMPL_PATH(ROWS), gates->rows, like->rows,
                      shape->rows);
    TEGROUP_IMPL_RULE(shape->cols == like->cols, ERROR_SHAPE, TEGROUP_IMPL_PATH(COLS), gates->cols, like->cols,
                      shape->cols);
    return TEGROUP_OK;
}
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_fc2_groups(const tegroup_mlp_desc *desc,
                                                                     tegroup_error *error) {
    TEGROUP_IMPL_RULE(desc->fc2.weight.shape.groups == desc->fc1.weight.shape.groups, ERROR_SHAPE,
                      "fc2.weight.shape.groups", "must equal fc1.weight.shape.groups", desc->fc1.weight.shape.groups,
                      desc->fc2.weight.shape.groups);
    return TEGROUP_OK;
}

/* fc1_up is as fc1, for an activation of both. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_up(const tegroup_mlp_desc *desc,
                                                             const tegroup_impl_mlp_layers *layers,
                                                             tegroup_error *error) {
    static const char *const same[] = {"must equal fc1.weight.dtype", "must equal fc1.bias.dtype",
                                       "must equal fc1.main_grad.dtype", "must equal fc1.bias_grad.dtype"};
    const tegroup_impl_name *gates = tegroup_impl_mlp_name(TEGROUP_IMPL_MLP_FC1_WEIGHT);
    const int64_t h = tegroup_impl_weight_out(&desc->fc1.weight, desc->fc1.weight_layout);
    int i;
    if (!tegroup_impl_mlp_apart(desc)) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->fc1.weight, gates, error)); /* the others are held against it */
    TEGROUP_IMPL_RULE(tegroup_impl_gated(desc->activation), ERROR_COMBINATION, "fc1_up.weight",
                      "needs an activation of gate and up", TEGROUP_ACTIVATION_SWIGLU, desc->activation);
    TEGROUP_IMPL_RULE(!desc->interleaved, ERROR_COMBINATION, "interleaved",
                      "must be 0 with fc1_up.weight: gates and ups are halves", 0, desc->interleaved);
    for (i = 0; i < 4; i++) {
        const tegroup_dtype gate = tegroup_impl_mlp_dtype(desc, TEGROUP_IMPL_MLP_FC1_WEIGHT + i),
                            up = tegroup_impl_mlp_dtype(desc, TEGROUP_IMPL_MLP_FC1_UP_WEIGHT + i);
        const char *field = tegroup_impl_mlp_path(TEGROUP_IMPL_MLP_FC1_UP_WEIGHT + i, TEGROUP_IMPL_MEMBER_DTYPE);
        TEGROUP_IMPL_RULE_AS(DTYPE, up == gate || up != TEGROUP_DTYPE_UNSET, ERROR_UNSET, field, same[i], gate, up);
        TEGROUP_IMPL_RULE_AS(DTYPE, up == gate, ERROR_DTYPE, field, same[i], gate, up);
    }
    TEGROUP_IMPL_RULE(desc->fc1_up.weight_layout == desc->fc1.weight_layout, ERROR_COMBINATION, "fc1_up.weight_layout",
                      "must equal fc1.weight_layout", desc->fc1.weight_layout, desc->fc1_up.weight_layout);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_up_shape(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_halves(
        desc, TEGROUP_IMPL_THERE(preactivation) ? &desc->preactivation : &layers->preactivation,
        TEGROUP_IMPL_MLP_PREACTIVATION, h, error));
    return tegroup_impl_mlp_check_halves(desc, &desc->grad_preactivation, TEGROUP_IMPL_MLP_GRAD_PREACTIVATION, h,
                                         error);
}

/* A tensor of the routing's rows: they and the snapshot are input's. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_rows(const tegroup_mlp_desc *desc, int tensor,
                                                               tegroup_error *error) {
    const tegroup_impl_name *name = tegroup_impl_mlp_name(tensor);
    const tegroup_shape *shape = &tegroup_impl_mlp_at(desc, tensor)->shape, *like = &desc->input.shape;
    if (tegroup_impl_mlp_dtype(desc, tensor) == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(shape->rows == like->rows, ERROR_SHAPE, TEGROUP_IMPL_PATH(ROWS), "must equal input.shape.rows",
                      like->rows, shape->rows);
    TEGROUP_IMPL_RULE(shape->snapshot == like->snapshot || !shape->snapshot || !like->snapshot, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(SNAPSHOT), "must be input.shape.snapshot, one for the routing", 0, 1);
    return TEGROUP_OK;
}

/* A tensor that the activation reads or writes. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_saved(const tegroup_mlp_desc *desc, int tensor,
                                                                tegroup_error *error) {
    const tegroup_impl_name *name = tegroup_impl_mlp_name(tensor);
    const tegroup_tensor *t = tegroup_impl_mlp_at(desc, tensor);
    if (t->dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE_ENUM(t->scaling, TEGROUP_SCALING_COUNT - 1, TEGROUP_IMPL_PATH(SCALING),
                           "must be a tegroup_scaling");
    TEGROUP_IMPL_RULE_AS(SCALING, tensor != TEGROUP_IMPL_MLP_PREACTIVATION || t->scaling == TEGROUP_SCALING_NONE,
                         ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALING), "must be none: an activation reads values",
                         TEGROUP_SCALING_NONE, t->scaling);
    TEGROUP_IMPL_RULE_AS(DTYPES, t->scaling != TEGROUP_SCALING_NONE || TEGROUP_IMPL_FLOATS >> t->dtype & 1u,
                         ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(DTYPE), "must be one that an activation has",
                         TEGROUP_IMPL_FLOATS, t->dtype);
    TEGROUP_IMPL_RULE(t->ld == 0 || t->ld == t->shape.cols, ERROR_LAYOUT, TEGROUP_IMPL_PATH(LD),
                      "must be 0 or shape.cols: what is saved is contiguous", t->shape.cols, t->ld);
    return TEGROUP_OK;
}

/* The rule of a tensor that the MLP quantises, t, and what that is made of. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_rule(const tegroup_mlp_desc *desc, int tensor,
                                                               const tegroup_tensor *t, tegroup_error *error) {
    static const uint32_t dtypes = 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16;
    const tegroup_impl_quantize_names *names = tegroup_impl_mlp_quantize_names(tensor);
    const int activated = tensor == TEGROUP_IMPL_MLP_ACTIVATED;
    const int sums = activated ? TEGROUP_IMPL_THERE(fc2.main_grad) : TEGROUP_IMPL_THERE(fc1.main_grad);
    const tegroup_scale_rule *rule = activated ? &desc->activated_rule : &desc->grad_rule;
    const tegroup_dtype from = tegroup_impl_mlp_preactivated(desc);
    if (t->dtype == TEGROUP_DTYPE_UNSET || t->scaling == TEGROUP_SCALING_NONE) {
        TEGROUP_IMPL_RULE(rule->method == TEGROUP_SCALE_UNSET, ERROR_COMBINATION, names->rule.method,
                          activated ? "needs activated.scaling" : "needs grad_preactivation.scaling",
                          TEGROUP_SCALE_UNSET, rule->method);
        return TEGROUP_OK;
    }
    TEGROUP_IMPL_RULE_AS(SCALING, activated || !tegroup_impl_mlp_apart(desc), ERROR_UNSUPPORTED,
                         names->output.members[TEGROUP_IMPL_MEMBER_SCALING],
                         "must be none with fc1_up: its products read halves of rows, and scales are of whole ones",
                         TEGROUP_SCALING_NONE, t->scaling);
    TEGROUP_IMPL_RULE_AS(DTYPES, dtypes >> from & 1u, ERROR_DTYPE, "preactivation.dtype",
                         "must be one that is quantised", dtypes, from);
    TEGROUP_IMPL_RULE(!sums || !tegroup_impl_keeps_values(t) || tegroup_impl_copy_dtype(t, 1) == from, ERROR_DTYPE,
                      names->output.members[TEGROUP_IMPL_MEMBER_COLUMNWISE_ORDER],
                      "of values must be of preactivation.dtype: an activation makes them",
                      tegroup_impl_values_order(from), t->columnwise_order);
    return tegroup_impl_check_rule_of(rule, &names->rule, t, &names->output, error);
}

/* Rules of the MLP's own numbers and enums. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check_numbers(const tegroup_mlp_desc *desc, tegroup_error *error) {
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, desc->alpha, desc->limit, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->options.threads, "options.threads", error));
    TEGROUP_IMPL_RULE(desc->recompute == 0 || desc->recompute == 1, ERROR_VALUE, "recompute", "must be 0 or 1", 1,
                      desc->recompute);
    TEGROUP_IMPL_RULE(desc->fc2_bias_scaled == 0 || desc->fc2_bias_scaled == 1, ERROR_VALUE, "fc2_bias_scaled",
                      "must be 0 or 1", 1, desc->fc2_bias_scaled);
    TEGROUP_IMPL_RULE_ENUM(desc->fusion, TEGROUP_FUSION_REQUIRED, "fusion", "must be a tegroup_fusion");
    TEGROUP_IMPL_RULE_ENUM(desc->out_tail, TEGROUP_TAIL_POISON, "out_tail", "must be a tegroup_tail");
    TEGROUP_IMPL_RULE_ENUM(desc->dgrad_out_tail, TEGROUP_TAIL_POISON, "dgrad_out_tail", "must be a tegroup_tail");
    return tegroup_impl_check_real(desc->row_scale_dtype, "row_scale_dtype", error);
}

/* The rules of the MLP: what its tensors are to each other. Those of a product are the product's. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_mlp_check(const tegroup_mlp_desc *desc, tegroup_impl_mlp_layers *layers,
                                                          tegroup_error *error) {
    const int twice = tegroup_impl_gated(desc->activation) && !tegroup_impl_mlp_apart(desc);
    int64_t out, width;
    int i;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_numbers(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_there(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_activation_check_sizes(desc->space, &desc->input.shape, error));
    tegroup_impl_mlp_layers_of(desc, TEGROUP_OP_WGRAD, layers);
    for (i = TEGROUP_IMPL_MLP_OUT; i < TEGROUP_IMPL_MLP_ROW_SCALE; i++)
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_rows(desc, i, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_up(desc, layers, error));
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check(&layers->fc1, error));
    if (tegroup_impl_mlp_apart(desc)) TEGROUP_IMPL_TRY(tegroup_impl_layer_check(&layers->fc1_up, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_fc2_groups(desc, error)); /* before fc2's tensors are held against it */
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check(&layers->fc2, error));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_IMPL_LINEAR_ROW_SCALE))
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_bias_type(&layers->fc2, error));
    out = tegroup_impl_weight_out(&desc->fc1.weight, desc->fc1.weight_layout);
    width = twice ? tegroup_impl_activation_cols(desc->activation, layers->activated.shape.cols)
                  : layers->activated.shape.cols;
    TEGROUP_IMPL_RULE(
        out == width, ERROR_SHAPE,
        desc->fc1.weight_layout == TEGROUP_WEIGHT_IN_OUT ? "fc1.weight.shape.cols" : "fc1.weight.shape.rows",
        desc->fc2.weight_layout == TEGROUP_WEIGHT_IN_OUT
            ? (twice ? "must be twice fc2.weight.shape.rows: gate and up" : "must equal fc2.weight.shape.rows")
        : twice ? "must be twice fc2.weight.shape.cols: gate and up"
                : "must equal fc2.weight.shape.cols",
        width, out);
    for (i = TEGROUP_IMPL_MLP_PREACTIVATION; i < TEGROUP_IMPL_MLP_ROW_SCALE; i++)
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_saved(desc, i, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_rule(desc, TEGROUP_IMPL_MLP_ACTIVATED, &layers->activated, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_mlp_check_rule(desc, TEGROUP_IMPL_MLP_GRAD_PREACTIVATION, &desc->grad_preactivation, error));
    return tegroup_impl_check_real(desc->grad_row_scale.dtype, "grad_row_scale.dtype", error);
}
#undef TEGROUP_IMPL_THERE
