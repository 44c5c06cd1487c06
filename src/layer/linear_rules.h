/* ---- Grouped linear layer: tensors, products and rules ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "layer/linear_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/copies.h"
#include "core/apart.h"
#include "core/problem.h"
#include "gemm/plan.h"
#include "gemm/check.h"
#include "gemm/run.h"

/* The tensors of a layer, by name. */
/* clang-format off */
#define TEGROUP_IMPL_LINEAR_TENSORS(X)                                                                                 \
    X(WEIGHT, weight) X(BIAS, bias) X(INPUT, input) X(OUT, out) X(GRAD_OUTPUT, grad_output) X(DGRAD_OUT, dgrad_out)    \
    X(MAIN_GRAD, main_grad) X(BIAS_GRAD, bias_grad) X(GRAD_ROW_SCALE, grad_row_scale)
/* clang-format on */

#define TEGROUP_IMPL_ENUMERATE(name, member) TEGROUP_IMPL_LINEAR_##name,
typedef enum tegroup_impl_linear_tensor {
    TEGROUP_IMPL_LINEAR_NONE,
    TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_ENUMERATE) TEGROUP_IMPL_LINEAR_COUNT
} tegroup_impl_linear_tensor;
#undef TEGROUP_IMPL_ENUMERATE

/* The products of a layer: those that are a tegroup_op by its number, then row_scale's gradient. That is a forward
 * product with dY for X and each expert's bias for a weight of one row. */
enum { TEGROUP_IMPL_LINEAR_ROW_SCALE = TEGROUP_OP_WGRAD + 1, TEGROUP_IMPL_LINEAR_PRODUCTS };

/* Which tensor is a, b, c, d and bias of a product. */
TEGROUP_IMPL_STATIC int tegroup_impl_linear_role(int product, int operand) {
#define TEGROUP_IMPL_ROLES(a, b, d, bias)                                                                              \
    {                                                                                                                  \
        TEGROUP_IMPL_LINEAR_##a, TEGROUP_IMPL_LINEAR_##b, TEGROUP_IMPL_LINEAR_NONE, TEGROUP_IMPL_LINEAR_##d,           \
            TEGROUP_IMPL_LINEAR_##bias                                                                                 \
    }
    static const tegroup_impl_linear_tensor roles[TEGROUP_IMPL_LINEAR_PRODUCTS][TEGROUP_IMPL_OPERANDS] = {
        TEGROUP_IMPL_ROLES(NONE, NONE, NONE, NONE), TEGROUP_IMPL_ROLES(INPUT, WEIGHT, OUT, BIAS),
        TEGROUP_IMPL_ROLES(GRAD_OUTPUT, WEIGHT, DGRAD_OUT, NONE),
        TEGROUP_IMPL_ROLES(GRAD_OUTPUT, INPUT, MAIN_GRAD, BIAS_GRAD),
        TEGROUP_IMPL_ROLES(GRAD_OUTPUT, BIAS, GRAD_ROW_SCALE, NONE)};
#undef TEGROUP_IMPL_ROLES
    return (int)roles[product][operand];
}

/* One linear layer by reference: the caller's own, one of an MLP's two, or an op of a chain. A tensor that is not there
 * is NULL, or has no dtype. Errors call the tensors by these names. */
typedef struct tegroup_impl_layer {
    const tegroup_tensor *tensor[TEGROUP_IMPL_LINEAR_COUNT];
    const tegroup_impl_name *name[TEGROUP_IMPL_LINEAR_COUNT];
    tegroup_space space;
    const void *row_scale;
    tegroup_dtype row_scale_dtype;
    int32_t accumulate;
    tegroup_tail out_tail, dgrad_out_tail;
    tegroup_weight_layout weight_layout;
    const char *weight_layout_name;
    const tegroup_options *options;
    int32_t halves; /* 1: out and grad_output are halves of wider rows */
    const tegroup_gather *gather_input, *gather_grad_output; /* NULL = their rows lie in order */
} tegroup_impl_layer;

TEGROUP_IMPL_STATIC int tegroup_impl_layer_has(const tegroup_impl_layer *layer, int tensor) {
    return layer->tensor[tensor] && layer->tensor[tensor]->dtype != TEGROUP_DTYPE_UNSET;
}

/* Columns of Y and of X. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_weight_out(const tegroup_tensor *weight, tegroup_weight_layout layout) {
    return layout == TEGROUP_WEIGHT_IN_OUT ? weight->shape.cols : weight->shape.rows;
}
TEGROUP_IMPL_STATIC int64_t tegroup_impl_weight_in(const tegroup_tensor *weight, tegroup_weight_layout layout) {
    return layout == TEGROUP_WEIGHT_IN_OUT ? weight->shape.rows : weight->shape.cols;
}

/* The op that computes a product. Of transposed weights, forward multiplies as a DGRAD does, and dgrad as a FORWARD. */
TEGROUP_IMPL_STATIC tegroup_op tegroup_impl_layer_op(const tegroup_impl_layer *layer, int product) {
    if (product == TEGROUP_IMPL_LINEAR_ROW_SCALE) return TEGROUP_OP_FORWARD;
    if (layer->weight_layout == TEGROUP_WEIGHT_OUT_IN || product == TEGROUP_OP_WGRAD) return (tegroup_op)product;
    return product == TEGROUP_OP_FORWARD ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD;
}

/* Which tensor is an operand of a product. The gradient of transposed weights is X^T dY. */
TEGROUP_IMPL_STATIC int tegroup_impl_layer_role(const tegroup_impl_layer *layer, int product, int operand) {
    const int swaps = layer->weight_layout == TEGROUP_WEIGHT_IN_OUT && product == TEGROUP_OP_WGRAD;
    if (swaps && operand == TEGROUP_IMPL_A) return TEGROUP_IMPL_LINEAR_INPUT;
    if (swaps && operand == TEGROUP_IMPL_B) return TEGROUP_IMPL_LINEAR_GRAD_OUTPUT;
    return tegroup_impl_linear_role(product, operand);
}

/* The tensor whose presence asks for a product. */
TEGROUP_IMPL_STATIC int tegroup_impl_layer_output(int product) {
    return tegroup_impl_linear_role(product, TEGROUP_IMPL_D);
}

/* Does a product multiply the operand's values as they were, which its columnwise copy holds? */
TEGROUP_IMPL_STATIC int tegroup_impl_layer_reads_values(const tegroup_impl_layer *layer, int product, int operand) {
    const int tensor = tegroup_impl_layer_role(layer, product, operand);
    return operand <= TEGROUP_IMPL_B && tegroup_impl_layer_has(layer, tensor)
           && layer->tensor[tensor]->scaling != TEGROUP_SCALING_NONE
           && tegroup_impl_keeps_values(layer->tensor[tensor])
           && tegroup_impl_sums_rows(tegroup_impl_layer_op(layer, product), (tegroup_impl_operand)operand);
}

/* The names by which errors call a product's operands. It points into itself. */
typedef struct tegroup_impl_layer_names {
    tegroup_impl_names names;
    tegroup_impl_name values[2]; /* of A and B, where they are values of a columnwise copy */
} tegroup_impl_layer_names;

TEGROUP_IMPL_STATIC void tegroup_impl_layer_names_of(const tegroup_impl_layer *layer, int product,
                                                     tegroup_impl_layer_names *made) {
    int operand;
    made->names = *tegroup_impl_gemm_names();
    for (operand = 0; operand < TEGROUP_IMPL_OPERANDS; operand++) {
        const int tensor = tegroup_impl_layer_role(layer, product, operand);
        if (tensor == TEGROUP_IMPL_LINEAR_NONE) continue;
        made->names.operand[operand] = layer->name[tensor];
        if (tegroup_impl_layer_reads_values(layer, product, operand)) {
            tegroup_impl_name *name = &made->values[operand];
            *name = *layer->name[tensor];
            name->members[TEGROUP_IMPL_MEMBER_DTYPE] = TEGROUP_IMPL_PATH(COLUMNWISE_ORDER);
            name->dtype = "must equal that of the values it is multiplied with";
            name->members[TEGROUP_IMPL_MEMBER_DATA] = TEGROUP_IMPL_PATH(COLUMNWISE_DATA);
            name->members[TEGROUP_IMPL_MEMBER_POINTERS] = TEGROUP_IMPL_PATH(COLUMNWISE_POINTERS);
            made->names.operand[operand] = name;
        }
    }
    made->names.tail = product == TEGROUP_OP_DGRAD ? "dgrad_out_tail" : "out_tail";
}

TEGROUP_IMPL_STATIC int tegroup_impl_layer_halved(const tegroup_impl_layer *layer, int tensor) {
    return layer->halves && (tensor == TEGROUP_IMPL_LINEAR_OUT || tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT);
}

/* The alignment of data of which the second half of a row begins `cols` elements behind the first. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_half_alignment(const tegroup_tensor *rows, int32_t alignment) {
    const int64_t bytes = tegroup_impl_mul(rows->shape.cols, tegroup_impl_bits(rows->dtype)) / 8,
                  most = alignment > 0 ? alignment : 16;
    int64_t each = 1;
    if (alignment < 0 || (alignment & (alignment - 1)) != 0) return alignment; /* which the product refuses */
    while (each < most && bytes % (2 * each) == 0) each *= 2;
    return each < most ? (int32_t)each : alignment;
}

/* Where the rows of a product's operand are. */
TEGROUP_IMPL_STATIC tegroup_gather tegroup_impl_layer_gather(const tegroup_impl_layer *layer, int tensor) {
    static const tegroup_gather in_order = {NULL, 0, 0};
    const tegroup_gather *gather = tensor == TEGROUP_IMPL_LINEAR_INPUT         ? layer->gather_input
                                   : tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT ? layer->gather_grad_output
                                                                               : NULL;
    return gather ? *gather : in_order;
}

/* A product as tegroup_gemm takes it. */
TEGROUP_IMPL_STATIC void tegroup_impl_layer_product(const tegroup_impl_layer *layer, int product,
                                                    tegroup_gemm_desc *gemm) {
    tegroup_tensor *const operands[TEGROUP_IMPL_OPERANDS] = {&gemm->a, &gemm->b, &gemm->c, &gemm->d, &gemm->bias};
    int operand, is_op = product != TEGROUP_IMPL_LINEAR_ROW_SCALE;
    memset(gemm, 0, sizeof *gemm);
    gemm->struct_size = sizeof *gemm;
    gemm->op = tegroup_impl_layer_op(layer, product);
    gemm->space = layer->space;
    for (operand = 0; operand < TEGROUP_IMPL_OPERANDS; operand++) {
        const int tensor = tegroup_impl_layer_role(layer, product, operand);
        if (tensor != TEGROUP_IMPL_LINEAR_NONE && layer->tensor[tensor])
            *operands[operand] = tegroup_impl_layer_reads_values(layer, product, operand)
                                     ? tegroup_impl_values_of(layer->tensor[tensor])
                                     : *layer->tensor[tensor];
    }
    gemm->gather_a = tegroup_impl_layer_gather(layer, tegroup_impl_layer_role(layer, product, TEGROUP_IMPL_A));
    gemm->gather_b = tegroup_impl_layer_gather(layer, tegroup_impl_layer_role(layer, product, TEGROUP_IMPL_B));
    if (gemm->bias.dtype != TEGROUP_DTYPE_UNSET) {
        gemm->row_scale = layer->row_scale;
        gemm->row_scale_dtype = layer->row_scale_dtype;
        gemm->bias_of_b = product == TEGROUP_OP_WGRAD && layer->weight_layout == TEGROUP_WEIGHT_IN_OUT;
    }
    if (product == TEGROUP_OP_WGRAD) gemm->accumulate = layer->accumulate;
    if (product == TEGROUP_OP_FORWARD) gemm->tail = layer->out_tail;
    if (product == TEGROUP_OP_DGRAD) gemm->tail = layer->dgrad_out_tail;
    gemm->options = *layer->options;
    for (operand = 0; operand < TEGROUP_IMPL_OPERANDS; operand++)
        if (tegroup_impl_layer_halved(layer, tegroup_impl_layer_role(layer, product, operand)))
            gemm->options.data_alignment_bytes =
                tegroup_impl_half_alignment(operands[operand], gemm->options.data_alignment_bytes);
    if (!is_op)
        gemm->options.backend = TEGROUP_BACKEND_AUTO; /* nor is the choice, or the word, about rows of one column */
    if (!is_op) gemm->options.data_alignment_bytes = 0;
}

/* The tensors whose rows are those of the routing. */
TEGROUP_IMPL_STATIC int tegroup_impl_layer_has_rows(int tensor) {
    return tensor == TEGROUP_IMPL_LINEAR_INPUT || tensor == TEGROUP_IMPL_LINEAR_OUT
           || tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT || tensor == TEGROUP_IMPL_LINEAR_DGRAD_OUT
           || tensor == TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE;
}

/* The tensor that the others have their rows from. */
TEGROUP_IMPL_STATIC int tegroup_impl_layer_rows_of(const tegroup_impl_layer *layer) {
    return tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_INPUT) ? TEGROUP_IMPL_LINEAR_INPUT
                                                                    : TEGROUP_IMPL_LINEAR_GRAD_OUTPUT;
}

/* The tensors that products multiply, which may be quantised. */
TEGROUP_IMPL_STATIC int tegroup_impl_layer_operand(int tensor) {
    return tensor == TEGROUP_IMPL_LINEAR_WEIGHT || tensor == TEGROUP_IMPL_LINEAR_INPUT
           || tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT;
}

/* What a layer asks of a tensor's memory: one snapshot for the routing, and outputs without gaps. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_layer_check_memory(const tegroup_impl_layer *layer, int tensor,
                                                                   tegroup_error *error) {
    const tegroup_impl_name *name = layer->name[tensor];
    const tegroup_tensor *t = layer->tensor[tensor];
    const tegroup_shape *shape = &t->shape;
    const int rows_of = tegroup_impl_layer_rows_of(layer), has_rows = tegroup_impl_layer_has_rows(tensor);
    if (has_rows) {
        const void *snapshot = layer->tensor[rows_of]->shape.snapshot;
        TEGROUP_IMPL_RULE(shape->snapshot == snapshot || !shape->snapshot || !snapshot, ERROR_COMBINATION,
                          TEGROUP_IMPL_PATH(SNAPSHOT),
                          rows_of == TEGROUP_IMPL_LINEAR_INPUT
                              ? "must be input.shape.snapshot, one for the routing"
                              : "must be grad_output.shape.snapshot, one for the routing",
                          0, 1);
    }
    if (tensor == TEGROUP_IMPL_LINEAR_BIAS || tegroup_impl_layer_operand(tensor)
        || tegroup_impl_layer_halved(layer, tensor))
        return TEGROUP_OK;
    TEGROUP_IMPL_RULE(tegroup_impl_ld(t) == shape->cols, ERROR_LAYOUT, TEGROUP_IMPL_PATH(LD),
                      "must be 0 or shape.cols: outputs are contiguous", shape->cols, t->ld);
    TEGROUP_IMPL_RULE(has_rows || tegroup_impl_group_stride(t) == shape->rows * shape->cols, ERROR_LAYOUT,
                      TEGROUP_IMPL_PATH(GROUP_STRIDE), "must be 0 or shape.rows * shape.cols: outputs are contiguous",
                      shape->rows * shape->cols, t->group_stride);
    return TEGROUP_OK;
}

/* One tensor by itself and against the weight, which says what groups, n and k are. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_layer_check_tensor(const tegroup_impl_layer *layer, int tensor,
                                                                   tegroup_error *error) {
    const tegroup_impl_name *name = layer->name[tensor], *weight_name = layer->name[TEGROUP_IMPL_LINEAR_WEIGHT];
    const tegroup_tensor *t = layer->tensor[tensor], *weight = layer->tensor[TEGROUP_IMPL_LINEAR_WEIGHT];
    const tegroup_shape *shape = &t->shape;
    const int is_weight = tensor == TEGROUP_IMPL_LINEAR_WEIGHT || tensor == TEGROUP_IMPL_LINEAR_MAIN_GRAD,
              has_k = tensor == TEGROUP_IMPL_LINEAR_INPUT || tensor == TEGROUP_IMPL_LINEAR_DGRAD_OUT,
              like_cols = is_weight || has_k == (layer->weight_layout == TEGROUP_WEIGHT_OUT_IN);
    const int64_t cols = like_cols ? weight->shape.cols : weight->shape.rows;
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(t, name, error));
    TEGROUP_IMPL_RULE_AS(SCALING, t->scaling == TEGROUP_SCALING_NONE || tegroup_impl_layer_operand(tensor),
                         ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALING),
                         "must be none: quantised are weights and the rows that products read, nothing else",
                         TEGROUP_SCALING_NONE, t->scaling);
    TEGROUP_IMPL_RULE(shape->groups == weight->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_PATH(GROUPS),
                      weight_name->groups, weight->shape.groups, shape->groups);
    TEGROUP_IMPL_RULE(shape->col_sizes.encoding == TEGROUP_ENCODING_UNSET, ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_PATH(COL_SIZES), "must be unset: a layer's groups have one n and one k", 0,
                      shape->col_sizes.encoding);
    TEGROUP_IMPL_RULE(shape->elements == 0, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(ELEMENTS),
                      "must be 0: a layer's groups have one n and one k", 0, shape->elements);
    if (tegroup_impl_layer_has_rows(tensor)) {
        TEGROUP_IMPL_RULE(tegroup_impl_ragged(shape), ERROR_UNSET, TEGROUP_IMPL_PATH(ROW_SIZES),
                          "must be set: a layer's rows are ragged", TEGROUP_ENCODING_COUNTS, 0);
        TEGROUP_IMPL_RULE(!tegroup_impl_listed(t), ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(POINTERS_SPACE),
                          "must be unset: a layer's rows are one buffer", 0, t->pointers_space);
    } else {
        TEGROUP_IMPL_RULE(!tegroup_impl_ragged(shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(ROW_SIZES),
                          "must be unset: every group is alike", 0, shape->row_sizes.encoding);
        TEGROUP_IMPL_RULE(!is_weight || shape->rows == weight->shape.rows, ERROR_SHAPE, TEGROUP_IMPL_PATH(ROWS),
                          weight_name->rows, weight->shape.rows, shape->rows);
        TEGROUP_IMPL_RULE(is_weight || shape->rows == 1, ERROR_SHAPE, TEGROUP_IMPL_PATH(ROWS), "must be 1", 1,
                          shape->rows);
    }
    if (tensor == TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE)
        TEGROUP_IMPL_RULE(shape->cols == 1, ERROR_SHAPE, TEGROUP_IMPL_PATH(COLS), "must be 1", 1, shape->cols);
    else
        TEGROUP_IMPL_RULE(shape->cols == cols, ERROR_SHAPE, TEGROUP_IMPL_PATH(COLS),
                          like_cols ? weight_name->cols : weight_name->rows, cols, shape->cols);
    if (tensor == TEGROUP_IMPL_LINEAR_INPUT || tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT)
        TEGROUP_IMPL_RULE_AS(DTYPE,
                             t->scaling != TEGROUP_SCALING_NONE || weight->scaling != TEGROUP_SCALING_NONE
                                 || tegroup_impl_goes_with(t->dtype, weight->dtype),
                             ERROR_DTYPE, TEGROUP_IMPL_PATH(DTYPE), weight_name->dtype, weight->dtype, t->dtype);
    return tegroup_impl_layer_check_memory(layer, tensor, error);
}

/* The rules between the layer's tensors. The rules of a product are checked with the product. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_layer_check(const tegroup_impl_layer *layer, tegroup_error *error) {
    int tensor;
    TEGROUP_IMPL_RULE_ENUM(layer->weight_layout, TEGROUP_WEIGHT_IN_OUT, layer->weight_layout_name,
                           "must be a tegroup_weight_layout");
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        if (tensor == TEGROUP_IMPL_LINEAR_WEIGHT || tegroup_impl_layer_has(layer, tensor))
            TEGROUP_IMPL_TRY(tegroup_impl_layer_check_tensor(layer, tensor, error));
    return TEGROUP_OK;
}

/* The product that gives grad_row_scale has dY and the bias for operands. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_layer_check_bias_type(const tegroup_impl_layer *layer,
                                                                      tegroup_error *error) {
    const tegroup_impl_name *name = layer->name[TEGROUP_IMPL_LINEAR_BIAS];
    const tegroup_dtype bias = layer->tensor[TEGROUP_IMPL_LINEAR_BIAS]->dtype,
                        grad_output = layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT]->dtype;
    TEGROUP_IMPL_RULE_AS(SCALING, layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT]->scaling == TEGROUP_SCALING_NONE,
                         ERROR_UNSUPPORTED, "grad_row_scale",
                         "needs a grad_output.scaling of none for the bias's part: no product has a plain bias beside "
                         "quantised rows",
                         TEGROUP_SCALING_NONE, layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT]->scaling);
    TEGROUP_IMPL_RULE_AS(DTYPE, tegroup_impl_goes_with(grad_output, bias), ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(DTYPE),
                         "must be one that weights have beside grad_output.dtype: grad_row_scale multiplies them",
                         grad_output, bias);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC const tegroup_plan *tegroup_impl_linear_made(const tegroup_linear_plan *plan, int product) {
    switch (product) {
    case TEGROUP_OP_FORWARD: return &plan->forward;
    case TEGROUP_OP_DGRAD: return &plan->dgrad;
    case TEGROUP_OP_WGRAD: return &plan->wgrad;
    default: return &plan->grad_row_scale;
    }
}

/* Plan one product into a plan that is being made. adds: the result is added to what is there already. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_layer_plan(const tegroup_impl_layer *layer, int product, int adds,
                                                           const tegroup_target *target, tegroup_linear_plan *plan,
                                                           tegroup_error *error) {
    tegroup_impl_layer_names made;
    tegroup_plan *one = (tegroup_plan *)(uintptr_t)tegroup_impl_linear_made(plan, product);
    tegroup_gemm_desc gemm;
    tegroup_impl_layer_names_of(layer, product, &made);
    tegroup_impl_layer_product(layer, product, &gemm);
    if (adds) gemm.accumulate = 1;
    plan->struct_size = sizeof *plan;
    plan->magic = TEGROUP_LINEAR_PLAN_MAGIC;
    plan->weight_layout = layer->weight_layout;
    TEGROUP_IMPL_TRY(tegroup_impl_plan_make(&gemm, &made.names, target, one, error));
    if (one->workspace_bytes > plan->workspace_bytes) plan->workspace_bytes = one->workspace_bytes;
    return TEGROUP_OK;
}

/* A tensor whose values a call multiplies in place of its codes, as planned: the product does not see what it is of. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_layer_check_values(const tegroup_impl_layer *layer, int product,
                                                                   int operand, const tegroup_plan *plan,
                                                                   tegroup_error *error) {
    const int tensor = tegroup_impl_layer_role(layer, product, operand);
    const tegroup_tensor *t = layer->tensor[tensor];
    const tegroup_impl_name *name = layer->name[tensor];
    const tegroup_problem *p = &plan->problem;
    const tegroup_scaling planned = operand == TEGROUP_IMPL_A ? p->a_scaling : p->b_scaling;
    const tegroup_dtype dtype = operand == TEGROUP_IMPL_A ? p->a : p->b;
    if (!tegroup_impl_layer_has(layer, tensor) || t->scaling == TEGROUP_SCALING_NONE
        || !tegroup_impl_sums_rows(tegroup_impl_layer_op(layer, product), (tegroup_impl_operand)operand))
        return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(t, name, error));
    TEGROUP_IMPL_RULE(planned != TEGROUP_SCALING_NONE || tegroup_impl_keeps_values(t), ERROR_PLAN,
                      TEGROUP_IMPL_PATH(COLUMNWISE_ORDER),
                      "must be of values, as planned, or scaling must be unset: the product multiplies values",
                      tegroup_impl_values_order(dtype), t->columnwise_order);
    return tegroup_impl_check_unscaled(t, 1, name, error);
}

/* A product of a call: described, and everything about it checked. apart: what it writes, too; else the call sees to
 * that. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_layer_check_product(const tegroup_impl_layer *layer, int product,
                                                                    int adds, int apart,
                                                                    const tegroup_linear_plan *plan,
                                                                    tegroup_gemm_desc *gemm, tegroup_error *error) {
    tegroup_impl_layer_names made;
    const tegroup_plan *one = tegroup_impl_linear_made(plan, product);
    const tegroup_impl_name *name = layer->name[tegroup_impl_layer_output(product)];
    int operand;
    TEGROUP_IMPL_RULE_AS(DTYPES, tegroup_impl_layer_has(layer, tegroup_impl_layer_output(product)), ERROR_UNSET,
                         TEGROUP_IMPL_PATH(DTYPE), "must be set: it is what this call writes", TEGROUP_IMPL_FLOATS, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, one->magic == TEGROUP_PLAN_MAGIC, ERROR_PLAN, TEGROUP_IMPL_PATH(DTYPE),
                         "must have been set when the plan was made", 0,
                         layer->tensor[tegroup_impl_layer_output(product)]->dtype);
    TEGROUP_IMPL_RULE(plan->weight_layout == layer->weight_layout, ERROR_PLAN, layer->weight_layout_name,
                      "must be as planned", plan->weight_layout, layer->weight_layout);
    tegroup_impl_layer_names_of(layer, product, &made);
    tegroup_impl_layer_product(layer, product, gemm);
    if (adds) gemm->accumulate = 1;
    for (operand = 0; operand < TEGROUP_IMPL_OPERANDS; operand++) {
        const int tensor = tegroup_impl_layer_role(layer, product, operand);
        if (tensor != TEGROUP_IMPL_LINEAR_NONE && tegroup_impl_layer_has(layer, tensor))
            TEGROUP_IMPL_TRY(tegroup_impl_layer_check_memory(layer, tensor, error));
        if (operand <= TEGROUP_IMPL_B)
            TEGROUP_IMPL_TRY(tegroup_impl_layer_check_values(layer, product, operand, one, error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check(one, gemm, &made.names, error));
    return apart ? tegroup_impl_check_overlaps(one, gemm, &made.names, error) : TEGROUP_OK;
}

/* Forward and wgrad are one product each. run 0: only what the call checks. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_layer_call(const tegroup_impl_layer *layer,
                                                           const tegroup_linear_plan *plan, tegroup_op op, int run,
                                                           struct CUstream_st *stream, tegroup_error *error) {
    tegroup_gemm_desc gemm;
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check_product(layer, (int)op, 0, 1, plan, &gemm, error));
    return run ? tegroup_impl_gemm_run(tegroup_impl_linear_made(plan, (int)op), &gemm, stream, error) : TEGROUP_OK;
}

/* The products of dgrad are apart from their own operands; neither may write what the other touches. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_layer_check_dgrad_apart(const tegroup_impl_layer *layer,
                                                                        const tegroup_gemm_desc *dgrad,
                                                                        size_t workspace_bytes, tegroup_error *error) {
    static const int tensors[] = {TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE, TEGROUP_IMPL_LINEAR_DGRAD_OUT,
                                  TEGROUP_IMPL_LINEAR_BIAS};
    tegroup_impl_buffer buffers[7];
    int32_t count = 0, i;
    buffers[count++] = tegroup_impl_workspace_buffer(layer->options, workspace_bytes);
    for (i = 0; i < 3; i++)
        buffers[count++] = tegroup_impl_tensor_buffer(layer->tensor[tensors[i]], layer->name[tensors[i]], i < 2);
    count += tegroup_impl_operand_buffers(dgrad, TEGROUP_IMPL_B, &dgrad->b, layer->name[TEGROUP_IMPL_LINEAR_WEIGHT],
                                          buffers + count);
    return tegroup_impl_check_apart(buffers, count, layer->options->check_level, NULL, error);
}

/* Two products when row_scale has a gradient; both are checked before the first runs. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_layer_dgrad(const tegroup_impl_layer *layer,
                                                            const tegroup_linear_plan *plan, int run,
                                                            struct CUstream_st *stream, tegroup_error *error) {
    const int second = TEGROUP_IMPL_LINEAR_ROW_SCALE,
              wants_scale = tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE);
    tegroup_gemm_desc gemm, other;
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check_product(layer, TEGROUP_OP_DGRAD, 0, 1, plan, &gemm, error));
    TEGROUP_IMPL_RULE_AS(DTYPE, (plan->grad_row_scale.magic != 0) == wants_scale, ERROR_PLAN, "grad_row_scale.dtype",
                         "must be set just when planned so", plan->grad_row_scale.problem.d,
                         wants_scale ? layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE]->dtype : 0);
    if (wants_scale) {
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_product(layer, second, 0, 1, plan, &other, error));
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_dgrad_apart(layer, &gemm, plan->dgrad.workspace_bytes, error));
    }
    if (!run) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_run(&plan->dgrad, &gemm, stream, error));
    return wants_scale ? tegroup_impl_gemm_run(&plan->grad_row_scale, &other, stream, error) : TEGROUP_OK;
}
