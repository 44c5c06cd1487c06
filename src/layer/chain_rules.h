/* ---- Op chain: rules and buffers ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "layer/linear_types.h"
#include "layer/mlp_types.h"
#include "layer/chain_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/apart.h"
#include "core/problem.h"
#include "gemm/check.h"
#include "core/activation_formulas.h"
#include "layer/activation.h"
#include "layer/linear_rules.h"
#include "layer/linear.h"

/* A descriptor resolved: what each op is given, and what lies between ops. values[i] is what op i reads and values[i +
 * 1] what it writes; grads are their gradients, absent where none is computed. */
typedef struct tegroup_impl_chain {
    int32_t at;                                              /* the op that is being looked at; -1 = the chain */
    uint32_t named;                                          /* bit i: op i has an argument */
    tegroup_chain_argument arguments[TEGROUP_CHAIN_MAX_OPS]; /* zero where it has none */
    tegroup_tensor values[TEGROUP_CHAIN_MAX_VALUES], grads[TEGROUP_CHAIN_MAX_VALUES];
    const char *reasons[TEGROUP_CHAIN_MAX_OPS]; /* why an activation is not part of a grouped MLP */
    uint32_t fused;                             /* as in the plan */
    size_t saved_bytes;                         /* of what lies in `saved` */
} tegroup_impl_chain;

#define TEGROUP_IMPL_THERE(t) ((t).dtype != TEGROUP_DTYPE_UNSET)

TEGROUP_IMPL_STATIC int tegroup_impl_chain_backward(const tegroup_chain_desc *desc) {
    return TEGROUP_IMPL_THERE(desc->grad_output);
}

/* Rows between ops, and arguments that stand for them: [rows, cols] as the chain's input is, in one contiguous
 * buffer. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_rows(const tegroup_chain_desc *desc,
                                                                 const tegroup_tensor *t, int64_t cols,
                                                                 const char *const *paths, tegroup_error *error) {
    const tegroup_shape *shape = &t->shape, *like = &desc->input.shape;
    TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_THERE(*t), ERROR_UNSET, paths[TEGROUP_IMPL_MEMBER_DTYPE], "must be set",
                         TEGROUP_IMPL_FLOATS, 0);
    TEGROUP_IMPL_RULE_ENUM(t->dtype, TEGROUP_DTYPE_COUNT - 1, paths[TEGROUP_IMPL_MEMBER_DTYPE],
                           "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_FLOATS >> t->dtype & 1u, ERROR_DTYPE, paths[TEGROUP_IMPL_MEMBER_DTYPE],
                         "must be one that rows between ops have", TEGROUP_IMPL_FLOATS, t->dtype);
    TEGROUP_IMPL_RULE(shape->groups == like->groups, ERROR_SHAPE, paths[TEGROUP_IMPL_MEMBER_GROUPS],
                      "must equal input.shape.groups", like->groups, shape->groups);
    TEGROUP_IMPL_RULE(shape->rows == like->rows, ERROR_SHAPE, paths[TEGROUP_IMPL_MEMBER_ROWS],
                      "must equal input.shape.rows", like->rows, shape->rows);
    TEGROUP_IMPL_RULE(shape->cols == cols, ERROR_SHAPE, paths[TEGROUP_IMPL_MEMBER_COLS],
                      "must equal the columns that the ops give it", cols, shape->cols);
    TEGROUP_IMPL_RULE(t->ld == 0 || t->ld == cols, ERROR_LAYOUT, paths[TEGROUP_IMPL_MEMBER_LD],
                      "must be 0 or shape.cols: what lies between ops is contiguous", cols, t->ld);
    TEGROUP_IMPL_RULE(!tegroup_impl_listed(t), ERROR_UNSUPPORTED, paths[TEGROUP_IMPL_MEMBER_POINTERS_SPACE],
                      "must be unset: rows are one buffer", 0, t->pointers_space);
    TEGROUP_IMPL_RULE(!t->pointers, ERROR_UNSUPPORTED, paths[TEGROUP_IMPL_MEMBER_POINTERS],
                      "must be NULL: rows are one buffer", 0, 1);
    TEGROUP_IMPL_RULE(t->group_stride == 0, ERROR_COMBINATION, paths[TEGROUP_IMPL_MEMBER_GROUP_STRIDE],
                      "does not go with row_sizes", 0, t->group_stride);
    TEGROUP_IMPL_RULE_AS(
        SCALING, t->scaling == TEGROUP_SCALING_NONE, ERROR_UNSUPPORTED, paths[TEGROUP_IMPL_MEMBER_SCALING],
        "must be 0: a chain quantises nothing, and weights alone may be quantised", TEGROUP_SCALING_NONE, t->scaling);
    return TEGROUP_OK;
}

/* An optional tensor is there by its dtype; one that has memory and none was not meant to be dropped. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_there(const tegroup_tensor *t, const char *field,
                                                                  tegroup_error *error) {
    TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_THERE(*t) || (!t->data && !t->pointers), ERROR_UNSET, field,
                         "must be set with data", TEGROUP_IMPL_FLOATS, 0);
    TEGROUP_IMPL_RULE_ENUM(t->dtype, TEGROUP_DTYPE_COUNT - 1, field, "must be a tegroup_dtype");
    return TEGROUP_OK;
}

/* Rows with op i's routing: the sizes of the chain's input, and its snapshot unless the op has one. */
TEGROUP_IMPL_STATIC const void *tegroup_impl_chain_snapshot(const tegroup_impl_chain *chain, int32_t i) {
    const void *given = chain->arguments[i].snapshot;
    return given ? given : chain->values[0].shape.snapshot;
}

TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_chain_rows(const tegroup_impl_chain *chain, int32_t i,
                                                           const tegroup_tensor *rows) {
    tegroup_tensor t = *rows;
    if (!TEGROUP_IMPL_THERE(t)) return t;
    t.shape = chain->values[0].shape;
    t.shape.cols = rows->shape.cols;
    t.shape.snapshot = tegroup_impl_chain_snapshot(chain, i);
    return t;
}

/* An op by itself, and which arguments it takes. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_op(const tegroup_chain_desc *desc,
                                                               const tegroup_impl_chain *chain, int32_t i,
                                                               tegroup_error *error) {
    static const char *const grad_row_scale[] = TEGROUP_IMPL_PATHS("arguments.grad_row_scale");
    const tegroup_chain_op *op = &desc->ops[i];
    const tegroup_chain_argument *given = &chain->arguments[i];
    const int scales =
        op->kind == TEGROUP_CHAIN_LINEAR || op->kind == TEGROUP_CHAIN_ACTIVATION || op->kind == TEGROUP_CHAIN_SCALE;
    TEGROUP_IMPL_RULE(op->kind != TEGROUP_CHAIN_UNSET, ERROR_UNSET, "ops.kind", "must be set", TEGROUP_CHAIN_LINEAR, 0);
    TEGROUP_IMPL_RULE_ENUM(op->kind, TEGROUP_CHAIN_USER, "ops.kind", "must be a tegroup_chain_kind");
    TEGROUP_IMPL_TRY(tegroup_impl_check_real(given->row_scale_dtype, "arguments.row_scale_dtype", error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&given->out, "arguments.out.dtype", error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&given->grad_input, "arguments.grad_input.dtype", error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&given->grad_row_scale, "arguments.grad_row_scale.dtype", error));
    if (op->kind == TEGROUP_CHAIN_LINEAR || op->kind == TEGROUP_CHAIN_BIAS) {
        TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&op->weights.bias, "bias.dtype", error));
        TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&op->weights.bias_grad, "bias_grad.dtype", error));
    }
    if (op->kind == TEGROUP_CHAIN_LINEAR)
        TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&op->weights.main_grad, "main_grad.dtype", error));
    if (op->kind == TEGROUP_CHAIN_ACTIVATION)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_activation_kind(op->activation, op->interleaved, op->alpha, op->limit, error));
    if (op->kind == TEGROUP_CHAIN_LINEAR) { /* its outputs become columns */
        TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_THERE(op->weights.weight), ERROR_UNSET, "weight.dtype", "must be set",
                             TEGROUP_IMPL_FLOATS, 0);
        TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&op->weights.weight,
                                                   tegroup_impl_linear_name(TEGROUP_IMPL_LINEAR_WEIGHT), error));
        TEGROUP_IMPL_RULE_ENUM(op->weights.weight_layout, TEGROUP_WEIGHT_IN_OUT, "weight_layout",
                               "must be a tegroup_weight_layout");
    }
    if (op->kind == TEGROUP_CHAIN_BIAS) {
        const tegroup_tensor *bias = &op->weights.bias, *bias_grad = &op->weights.bias_grad;
        const int32_t groups = desc->input.shape.groups;
        TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_THERE(*bias), ERROR_UNSET, "bias.dtype", "must be set",
                             TEGROUP_IMPL_FLOATS, 0);
        TEGROUP_IMPL_RULE(bias->shape.groups == groups, ERROR_SHAPE, "bias.shape.groups",
                          "must equal input.shape.groups", groups, bias->shape.groups);
        TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(*bias_grad) || bias_grad->shape.groups == groups, ERROR_SHAPE,
                          "bias_grad.shape.groups", "must equal input.shape.groups", groups, bias_grad->shape.groups);
        TEGROUP_IMPL_RULE_AS(DTYPE, !TEGROUP_IMPL_THERE(given->out) || given->out.dtype == chain->values[i].dtype,
                             ERROR_DTYPE, "arguments.out.dtype", "must be that of a BIAS's input",
                             chain->values[i].dtype, given->out.dtype);
    }
    if (op->kind == TEGROUP_CHAIN_SCALE)
        TEGROUP_IMPL_RULE_AS(DTYPE, given->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET,
                             "arguments.row_scale_dtype", "must be set for a SCALE", TEGROUP_DTYPE_F32, 0);
    if (op->kind == TEGROUP_CHAIN_USER) {
        TEGROUP_IMPL_RULE(op->forward != NULL, ERROR_NULL_ARGUMENT, "ops.forward", "must not be NULL", 1, 0);
        TEGROUP_IMPL_RULE(op->backward != NULL || !tegroup_impl_chain_backward(desc), ERROR_NULL_ARGUMENT,
                          "ops.backward", "must not be NULL with grad_output", 1, 0);
        TEGROUP_IMPL_RULE(op->cols >= 0 && op->cols <= TEGROUP_MAX_COLS, ERROR_VALUE, "ops.cols",
                          "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, op->cols);
    }
    TEGROUP_IMPL_RULE(op->kind != TEGROUP_CHAIN_BIAS || !TEGROUP_IMPL_THERE(given->grad_input), ERROR_COMBINATION,
                      "arguments.grad_input", "is not taken by a BIAS: it is the gradient of its output", 0, 1);
    TEGROUP_IMPL_RULE_AS(DTYPE, scales || given->row_scale_dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                         "arguments.row_scale_dtype", "is not taken by this op", 0, given->row_scale_dtype);
    TEGROUP_IMPL_RULE_AS(DTYPE, !given->row_scale || given->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET,
                         "arguments.row_scale_dtype", "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         op->kind != TEGROUP_CHAIN_LINEAR || given->row_scale_dtype == TEGROUP_DTYPE_UNSET
                             || TEGROUP_IMPL_THERE(op->weights.bias),
                         ERROR_COMBINATION, "arguments.row_scale_dtype", "is not taken by a LINEAR without bias", 0,
                         given->row_scale_dtype);
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(given->grad_row_scale) || given->row_scale_dtype != TEGROUP_DTYPE_UNSET,
                      ERROR_COMBINATION, "arguments.grad_row_scale", "needs row_scale", 1, 0);
    TEGROUP_IMPL_RULE(op->kind != TEGROUP_CHAIN_USER || !given->snapshot, ERROR_COMBINATION, "arguments.snapshot",
                      "is not taken by a USER op", 0, 1);
    TEGROUP_IMPL_RULE(tegroup_impl_chain_backward(desc)
                          || (!TEGROUP_IMPL_THERE(given->grad_input) && !TEGROUP_IMPL_THERE(given->grad_row_scale)),
                      ERROR_COMBINATION,
                      TEGROUP_IMPL_THERE(given->grad_input) ? "arguments.grad_input" : "arguments.grad_row_scale",
                      "needs grad_output", 1, 0);
    TEGROUP_IMPL_RULE(i > 0 || TEGROUP_IMPL_THERE(given->grad_input) || !TEGROUP_IMPL_THERE(given->grad_row_scale),
                      ERROR_COMBINATION, "arguments.grad_row_scale", "needs grad_input in the first op", 1, 0);
    if (!TEGROUP_IMPL_THERE(given->grad_row_scale)) return TEGROUP_OK;
    if (op->kind != TEGROUP_CHAIN_LINEAR)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_real(given->grad_row_scale.dtype, grad_row_scale[TEGROUP_IMPL_MEMBER_DTYPE], error));
    return tegroup_impl_chain_check_rows(desc, &given->grad_row_scale, 1, grad_row_scale, error);
}

TEGROUP_IMPL_STATIC int64_t tegroup_impl_chain_cols(const tegroup_chain_op *op, int64_t cols) {
    if (op->kind == TEGROUP_CHAIN_LINEAR)
        return tegroup_impl_weight_out(&op->weights.weight, op->weights.weight_layout);
    if (op->kind == TEGROUP_CHAIN_ACTIVATION && tegroup_impl_gated(op->activation)) return cols / 2;
    return op->kind == TEGROUP_CHAIN_USER && op->cols > 0 ? op->cols : cols;
}

/* NULL, or why the activation at i + 1 and its neighbours are no grouped MLP: what the MLP cannot give. */
TEGROUP_IMPL_STATIC const char *tegroup_impl_chain_unfit(const tegroup_chain_desc *desc,
                                                         const tegroup_impl_chain *chain, int32_t i) {
    const tegroup_chain_argument *first, *middle, *last;
    if (desc->unfused) return "the fusion pass is turned off";
    if (i < 0 || i + 2 >= desc->op_count || desc->ops[i].kind != TEGROUP_CHAIN_LINEAR
        || desc->ops[i + 2].kind != TEGROUP_CHAIN_LINEAR)
        return "it does not lie between two linears";
    if (i > 0 && (chain->fused >> (i - 1) & 1u || (i > 1 && chain->fused >> (i - 2) & 1u)))
        return "the linear before it is part of a grouped MLP already";
    first = &chain->arguments[i];
    middle = first + 1;
    last = first + 2;
    if (first->row_scale_dtype != TEGROUP_DTYPE_UNSET) return "the linear before it scales its bias";
    if (last->row_scale_dtype != TEGROUP_DTYPE_UNSET && last->row_scale_dtype != middle->row_scale_dtype)
        return "the linear after it scales its bias by other numbers";
    if (last->row_scale_dtype != TEGROUP_DTYPE_UNSET
        && (TEGROUP_IMPL_THERE(last->grad_row_scale) || TEGROUP_IMPL_THERE(middle->grad_row_scale)))
        return "the gradients of its row_scale and of its bias's are wanted by themselves";
    if (TEGROUP_IMPL_THERE(last->grad_input)) return "the gradient of what it gives is wanted";
    if (tegroup_impl_chain_backward(desc) && chain->values[i + 2].dtype != desc->input.dtype)
        return "what it gives has another dtype than the chain's input";
    return NULL;
}

/* ... and what their addresses say. A plan may be made without them: NULL is then the same as any. */
TEGROUP_IMPL_STATIC int tegroup_impl_chain_differ(const void *a, const void *b) { return a && b && a != b; }

TEGROUP_IMPL_STATIC const char *tegroup_impl_chain_unlike(const tegroup_impl_chain *chain, int32_t i) {
    const tegroup_chain_argument *middle = &chain->arguments[i + 1], *last = middle + 1;
    const void *snapshots[3];
    int32_t j;
    for (j = 0; j < 3; j++) snapshots[j] = tegroup_impl_chain_snapshot(chain, i + j);
    if (last->row_scale_dtype != TEGROUP_DTYPE_UNSET && tegroup_impl_chain_differ(last->row_scale, middle->row_scale))
        return "the linear after it scales its bias by other numbers";
    if (chain->values[i + 2].data && chain->values[i + 2].data == chain->values[i + 1].data) return "it works in place";
    for (j = 0; j < 3; j++)
        if (tegroup_impl_chain_differ(snapshots[j], snapshots[(j + 1) % 3]))
            return "it and its neighbours have different routings";
    return NULL;
}

/* At a call there are addresses, and what the plan fused must be given one routing and one row_scale. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_alike(const tegroup_chain_desc *desc,
                                                                  tegroup_impl_chain *chain, tegroup_error *error) {
    int32_t i, j;
    for (i = 0; i < desc->op_count; i++) {
        const tegroup_chain_argument *given = &chain->arguments[i];
        if (!(chain->fused >> i & 1u)) continue;
        for (j = i + 1; j < i + 3; j++) {
            chain->at = j;
            TEGROUP_IMPL_RULE(
                tegroup_impl_chain_snapshot(chain, j) == tegroup_impl_chain_snapshot(chain, i), ERROR_PLAN,
                "arguments.snapshot",
                "must be that of the op before: the plan fused them. Plan with both snapshots, or unfused", 0, 1);
        }
        TEGROUP_IMPL_RULE(given[2].row_scale_dtype == TEGROUP_DTYPE_UNSET || given[2].row_scale == given[1].row_scale,
                          ERROR_PLAN, "arguments.row_scale",
                          "must be that of the op before: the plan fused them. Plan with both, or unfused", 0, 1);
    }
    chain->at = -1;
    return TEGROUP_OK;
}

/* The descriptor's own numbers, and its input. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_desc(const tegroup_chain_desc *desc, tegroup_error *error) {
    static const char *const input[] = TEGROUP_IMPL_PATHS("input");
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_options(&desc->options, error));
    TEGROUP_IMPL_RULE(desc->ops != NULL, ERROR_NULL_ARGUMENT, "ops", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->op_count >= 1 && desc->op_count <= TEGROUP_CHAIN_MAX_OPS, ERROR_VALUE, "op_count",
                      "must be 1 to TEGROUP_CHAIN_MAX_OPS", TEGROUP_CHAIN_MAX_OPS, desc->op_count);
    TEGROUP_IMPL_RULE(desc->argument_count >= 0, ERROR_VALUE, "argument_count", "must not be negative", 0,
                      desc->argument_count);
    TEGROUP_IMPL_RULE(desc->argument_count <= desc->op_count, ERROR_VALUE, "argument_count",
                      "must be at most op_count: an op is named once", desc->op_count, desc->argument_count);
    TEGROUP_IMPL_RULE(desc->arguments || desc->argument_count == 0, ERROR_NULL_ARGUMENT, "arguments",
                      "must not be NULL with argument_count", 1, 0);
    TEGROUP_IMPL_RULE(desc->unfused == 0 || desc->unfused == 1, ERROR_VALUE, "unfused", "must be 0 or 1", 1,
                      desc->unfused);
    TEGROUP_IMPL_RULE(desc->accumulate == 0 || desc->accumulate == 1, ERROR_VALUE, "accumulate", "must be 0 or 1", 1,
                      desc->accumulate);
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_rows(desc, &desc->input, desc->input.shape.cols, input, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_tensor(&desc->input, tegroup_impl_linear_name(TEGROUP_IMPL_LINEAR_INPUT), error));
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&desc->input.shape), ERROR_UNSET, "input.shape.row_sizes.encoding",
                      "must be set: a chain's rows are ragged", TEGROUP_ENCODING_COUNTS, 0);
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&desc->input.shape), ERROR_UNSUPPORTED, "input.shape.col_sizes.encoding",
                      "must be unset: a chain's groups have one width", 0, 1);
    return tegroup_impl_chain_check_there(&desc->grad_output, "grad_output.dtype", error);
}

/* Each op gets its argument. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_take_arguments(const tegroup_chain_desc *desc,
                                                                     tegroup_impl_chain *chain, tegroup_error *error) {
    int32_t i;
    for (i = 0; i < desc->argument_count; i++) {
        const tegroup_chain_argument *given = &desc->arguments[i];
        chain->at = -1;
        TEGROUP_IMPL_RULE(given->op >= 0 && given->op < desc->op_count, ERROR_VALUE, "arguments.op",
                          "must be the index of an op", desc->op_count - 1, given->op);
        chain->at = given->op;
        TEGROUP_IMPL_RULE(!(chain->named >> given->op & 1u), ERROR_COMBINATION, "arguments.op",
                          "must not be named twice", 1, 2);
        chain->arguments[given->op] = *given;
        chain->named |= 1u << given->op;
    }
    return TEGROUP_OK;
}

/* What each op gives: in its argument, or in `saved`. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_resolve_values(const tegroup_chain_desc *desc,
                                                                     tegroup_impl_chain *chain, tegroup_error *error) {
    static const char *const out[] = TEGROUP_IMPL_PATHS("arguments.out");
    tegroup_layout saved;
    int32_t i;
    tegroup_impl_layout_begin(&saved);
    chain->values[0] = desc->input;
    for (i = 0; i < desc->op_count; i++) {
        const tegroup_chain_argument *given = &chain->arguments[i];
        const tegroup_chain_op *op = &desc->ops[i];
        const int64_t cols = chain->values[i].shape.cols;
        tegroup_tensor *value = &chain->values[i + 1];
        chain->at = i;
        TEGROUP_IMPL_TRY(tegroup_impl_chain_check_op(desc, chain, i, error));
        chain->arguments[i].grad_row_scale = tegroup_impl_chain_rows(chain, i, &given->grad_row_scale);
        if (op->kind == TEGROUP_CHAIN_ACTIVATION || op->kind == TEGROUP_CHAIN_SCALE)
            TEGROUP_IMPL_TRY(tegroup_impl_activation_check_sizes(desc->space, &desc->input.shape, error));
        TEGROUP_IMPL_RULE(op->kind != TEGROUP_CHAIN_ACTIVATION || !tegroup_impl_gated(op->activation) || cols % 2 == 0,
                          ERROR_SHAPE, "ops.activation", "needs an even number of columns: gate and up", cols + 1,
                          cols);
        *value = desc->input;
        value->shape.cols = tegroup_impl_chain_cols(op, cols);
        value->ld = 0;
        if (TEGROUP_IMPL_THERE(given->out)) {
            TEGROUP_IMPL_TRY(tegroup_impl_chain_check_rows(desc, &given->out, value->shape.cols, out, error));
            value->dtype = given->out.dtype;
            value->data = given->out.data;
            continue;
        }
        TEGROUP_IMPL_RULE_AS(DTYPES, i + 1 < desc->op_count, ERROR_UNSET, "arguments.out.dtype",
                             "must be set for the last op", TEGROUP_IMPL_FLOATS, 0);
        value->data =
            desc->saved && !tegroup_impl_layout_overflowed(&saved) ? (char *)desc->saved + saved.total_bytes : NULL;
        tegroup_impl_layout_add(&saved, "what an op gave", tegroup_impl_extent_bytes(value));
    }
    chain->saved_bytes = saved.total_bytes;
    return TEGROUP_OK;
}

/* Which ops run as a grouped MLP. planned: what a call's plan fused; NULL = to be found out. */
TEGROUP_IMPL_STATIC void tegroup_impl_chain_fuse(const tegroup_chain_desc *desc, const uint32_t *planned,
                                                 tegroup_impl_chain *chain) {
    int32_t i;
    for (i = 0; i < desc->op_count; i++) {
        if (desc->ops[i].kind != TEGROUP_CHAIN_ACTIVATION) continue;
        chain->reasons[i] = tegroup_impl_chain_unfit(desc, chain, i - 1);
        if (!chain->reasons[i] && !planned) chain->reasons[i] = tegroup_impl_chain_unlike(chain, i - 1);
        if (!chain->reasons[i] && (!planned || (*planned >> (i - 1) & 1u))) chain->fused |= 1u << (i - 1);
    }
}

/* Gradients between ops lie in this many buffers by turns: an op reads one while it writes another, and a third holds
 * what a BIAS hands on. */
#define TEGROUP_IMPL_CHAIN_TURNS 3

/* Bytes of contiguous rows; INT64_MAX: too many. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_rows_bytes(int64_t rows, int64_t cols, tegroup_dtype dtype) {
    return tegroup_impl_mul(tegroup_impl_mul(rows, cols), tegroup_impl_bits(dtype) / 8);
}

/* The gradient of what each op was given: in its argument, or in one of the buffers that begin at `gradients`. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_resolve_grads(const tegroup_chain_desc *desc, char *gradients,
                                                                    tegroup_impl_chain *chain, tegroup_error *error) {
    static const char *const grad_input[] = TEGROUP_IMPL_PATHS("arguments.grad_input"), *const grad_output[] =
                                                                                            TEGROUP_IMPL_PATHS(
                                                                                                "grad_output");
    int64_t most = 0;
    int32_t i, turn = 0;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_rows(desc, &desc->grad_output, chain->values[desc->op_count].shape.cols,
                                                   grad_output, error));
    chain->grads[desc->op_count] = desc->grad_output;
    chain->grads[desc->op_count].shape = chain->values[desc->op_count].shape;
    for (i = 1; i <= desc->op_count; i++) most = tegroup_impl_max(most, chain->values[i].shape.cols);
    most =
        tegroup_impl_align(tegroup_impl_rows_bytes(desc->input.shape.rows, most, desc->input.dtype), TEGROUP_ALIGNMENT);
    if (most > tegroup_impl_max_bytes() / TEGROUP_IMPL_CHAIN_TURNS) gradients = NULL; /* the plan is refused */
    for (i = desc->op_count - 1; i >= 0; i--) {
        const tegroup_chain_argument *given = &chain->arguments[i];
        tegroup_tensor *grad = &chain->grads[i];
        chain->at = i;
        if (i >= 2 && chain->fused >> (i - 2) & 1u) continue; /* the MLP's own */
        if (desc->ops[i].kind == TEGROUP_CHAIN_BIAS) {
            *grad = chain->grads[i + 1];
            continue;
        }
        if (i == 0 && !TEGROUP_IMPL_THERE(given->grad_input)) continue;
        *grad = chain->values[i];
        grad->ld = 0;
        if (TEGROUP_IMPL_THERE(given->grad_input)) {
            TEGROUP_IMPL_TRY(tegroup_impl_chain_check_rows(desc, &given->grad_input, chain->values[i].shape.cols,
                                                           grad_input, error));
            grad->dtype = given->grad_input.dtype;
            grad->data = given->grad_input.data;
            continue;
        }
        grad->dtype = desc->input.dtype;
        grad->data = gradients ? gradients + turn * most : NULL;
        turn = (turn + 1) % TEGROUP_IMPL_CHAIN_TURNS;
    }
    return TEGROUP_OK;
}

/* Everything about a descriptor but its products. planned: what a call's plan fused; NULL = to be found out. gradients:
 * where those between ops begin, or NULL. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_resolve(const tegroup_chain_desc *desc, const uint32_t *planned,
                                                              char *gradients, tegroup_impl_chain *chain,
                                                              tegroup_error *error) {
    memset(chain, 0, sizeof *chain);
    chain->at = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_desc(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_take_arguments(desc, chain, error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve_values(desc, chain, error));
    tegroup_impl_chain_fuse(desc, planned, chain);
    chain->at = -1;
    if (tegroup_impl_chain_backward(desc))
        TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve_grads(desc, gradients, chain, error));
    chain->at = -1;
    return TEGROUP_OK;
}

/* The buffers of a chain's call, and the op that each is of. */
#define TEGROUP_IMPL_CHAIN_BUFFERS (11 * TEGROUP_CHAIN_MAX_OPS + 4)
typedef struct tegroup_impl_chain_buffers {
    tegroup_impl_buffer all[TEGROUP_IMPL_CHAIN_BUFFERS];
    int32_t at[TEGROUP_IMPL_CHAIN_BUFFERS], count;
    int32_t next; /* the buffer of what the next op reads, backward its gradient; -1: in saved or the workspace */
} tegroup_impl_chain_buffers;

TEGROUP_IMPL_STATIC void tegroup_impl_chain_add(tegroup_impl_chain_buffers *buffers, tegroup_impl_buffer buffer,
                                                int32_t at) {
    buffers->at[buffers->count] = at;
    buffers->all[buffers->count++] = buffer;
}

/* A tensor that errors call `field`, and other buffers' errors "another buffer of the chain". */
TEGROUP_IMPL_STATIC void tegroup_impl_chain_add_tensor(tegroup_impl_chain_buffers *buffers, const tegroup_tensor *t,
                                                       const char *field, int32_t at, int writes) {
    tegroup_impl_buffer buffer =
        tegroup_impl_tensor_buffer(t, tegroup_impl_linear_name(TEGROUP_IMPL_LINEAR_INPUT), writes);
    buffer.field = field;
    buffer.apart = "must not overlap another buffer of the chain";
    tegroup_impl_chain_add(buffers, buffer, at);
}

/* Weights that an op reads in this direction: of quantised ones the copy that its product reads. */
TEGROUP_IMPL_STATIC void tegroup_impl_chain_add_weight(tegroup_impl_chain_buffers *buffers,
                                                       const tegroup_mlp_weights *weights, int32_t at, int backward) {
    tegroup_impl_buffer added[3];
    tegroup_gemm_desc gemm;
    int32_t count, i;
    memset(&gemm, 0, sizeof gemm);
    gemm.op = backward == (weights->weight_layout == TEGROUP_WEIGHT_IN_OUT) ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD;
    gemm.b = weights->weight;
    count = tegroup_impl_operand_buffers(&gemm, TEGROUP_IMPL_B, &weights->weight,
                                         tegroup_impl_linear_name(TEGROUP_IMPL_LINEAR_WEIGHT), added);
    for (i = 0; i < count; i++) {
        added[i].field = "weight.data";
        added[i].apart = "must not overlap another buffer of the chain";
        tegroup_impl_chain_add(buffers, added[i], at);
    }
}

/* Does op i put its results where it reads them from? */
TEGROUP_IMPL_STATIC int tegroup_impl_chain_in_place(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                    int32_t i, int backward) {
    const tegroup_tensor *from = backward ? &chain->grads[i + 1] : &chain->values[i],
                         *to = backward ? &chain->grads[i] : &chain->values[i + 1];
    return to->data == from->data && tegroup_impl_extent(to) > 0 && tegroup_impl_extent(from) > 0
           && !(backward && desc->ops[i].kind == TEGROUP_CHAIN_BIAS); /* which hands the gradient on */
}

/* It may where each element comes from the one that lies there and, forward, its backward does not read that one
 * again. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_in_place(const tegroup_chain_desc *desc,
                                                                     const tegroup_impl_chain *chain, int32_t i,
                                                                     int backward, tegroup_error *error) {
    const tegroup_chain_op *op = &desc->ops[i];
    const tegroup_dtype from = backward ? chain->grads[i + 1].dtype : chain->values[i].dtype,
                        to = backward ? chain->grads[i].dtype : chain->values[i + 1].dtype;
    const int by_element = op->kind == TEGROUP_CHAIN_BIAS || op->kind == TEGROUP_CHAIN_SCALE
                           || (op->kind == TEGROUP_CHAIN_ACTIVATION && !tegroup_impl_gated(op->activation)
                               && (i == 0 || !(chain->fused >> (i - 1) & 1u))),
              read_again = !backward
                           && (op->kind == TEGROUP_CHAIN_SCALE
                                   ? TEGROUP_IMPL_THERE(chain->arguments[i].grad_row_scale)
                                   : op->kind == TEGROUP_CHAIN_ACTIVATION && TEGROUP_IMPL_THERE(chain->grads[i]));
    TEGROUP_IMPL_RULE(
        !tegroup_impl_chain_in_place(desc, chain, i, backward) || (by_element && !read_again && from == to),
        ERROR_OVERLAP, backward ? "arguments.grad_input.data" : "arguments.out.data",
        backward ? "must not overlap the gradient that its op reads, unless it is that with the same dtype, "
                   "of a SCALE or an ACTIVATION without gate"
                 : "must not overlap what its op reads, unless it is that with the same dtype, of a BIAS, a "
                   "SCALE or an ACTIVATION without gate, and backward does not read it again",
        0, 1);
    return TEGROUP_OK;
}

/* Where op i puts its results: a buffer of its own, or the one that it reads, which is then written. */
TEGROUP_IMPL_STATIC void tegroup_impl_chain_add_results(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                        int32_t i, int backward, tegroup_impl_chain_buffers *buffers) {
    const tegroup_chain_argument *given = &chain->arguments[i];
    if (backward && desc->ops[i].kind == TEGROUP_CHAIN_BIAS) return; /* it hands the gradient on */
    if (!TEGROUP_IMPL_THERE(*(backward ? &given->grad_input : &given->out))) buffers->next = -1;
    else if (buffers->next >= 0 && tegroup_impl_chain_in_place(desc, chain, i, backward))
        buffers->all[buffers->next].writes = 1;
    else {
        buffers->next = buffers->count;
        if (backward) tegroup_impl_chain_add_tensor(buffers, &chain->grads[i], "arguments.grad_input.data", i, 1);
        else tegroup_impl_chain_add_tensor(buffers, &chain->values[i + 1], "arguments.out.data", i, 1);
    }
}

/* What op i touches in this direction. */
TEGROUP_IMPL_STATIC void tegroup_impl_chain_op_buffers(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                       int32_t i, int backward, tegroup_impl_chain_buffers *buffers) {
    const tegroup_chain_op *op = &desc->ops[i];
    const tegroup_mlp_weights *weights = &op->weights;
    const tegroup_chain_argument *given = &chain->arguments[i];
    const tegroup_tensor rows = tegroup_impl_chain_rows(chain, i, &desc->input);
    const int wants_dx = TEGROUP_IMPL_THERE(chain->grads[i]) || (i >= 2 && (chain->fused >> (i - 2) & 1u)),
              linear = op->kind == TEGROUP_CHAIN_LINEAR, has_bias = linear || op->kind == TEGROUP_CHAIN_BIAS;
    tegroup_impl_chain_add(buffers, tegroup_impl_snapshot_buffer(&rows), i);
    if (linear && (!backward || wants_dx)) /* a list that is not read may dangle */
        tegroup_impl_chain_add_weight(buffers, weights, i, backward);
    if (has_bias && (!backward || TEGROUP_IMPL_THERE(given->grad_row_scale)))
        tegroup_impl_chain_add_tensor(buffers, &weights->bias, "bias.data", i, 0);
    if (has_bias && backward) tegroup_impl_chain_add_tensor(buffers, &weights->bias_grad, "bias_grad.data", i, 1);
    if (linear && backward) tegroup_impl_chain_add_tensor(buffers, &weights->main_grad, "main_grad.data", i, 1);
    tegroup_impl_chain_add_results(desc, chain, i, backward, buffers);
    if (backward && TEGROUP_IMPL_THERE(given->out) && i + 1 < desc->op_count) /* what the last gave is not read */
        tegroup_impl_chain_add_tensor(buffers, &chain->values[i + 1], "arguments.out.data", i, 0);
    if (given->row_scale_dtype != TEGROUP_DTYPE_UNSET)
        tegroup_impl_chain_add(buffers,
                               tegroup_impl_buffer_of(given->row_scale,
                                                      tegroup_impl_mul(desc->input.shape.rows,
                                                                       tegroup_impl_bits(given->row_scale_dtype) / 8),
                                                      "arguments.row_scale",
                                                      "must not overlap another buffer of the chain", 0),
                               i);
    if (!backward) return;
    tegroup_impl_chain_add_tensor(buffers, &given->grad_row_scale, "arguments.grad_row_scale.data", i, 1);
}

/* What a call writes, apart from all that it touches: products and activations see to their own operands, this to those
 * of other ops, to every op's snapshot, and to the caller's two large buffers. Gradients between ops are in the
 * workspace or an argument. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_chain_check_apart(const tegroup_chain_desc *desc,
                                                                  tegroup_impl_chain *chain, size_t workspace_bytes,
                                                                  int backward, tegroup_check_level level,
                                                                  tegroup_error *error) {
    tegroup_impl_chain_buffers buffers;
    tegroup_status status;
    int32_t i, about = 0;
    buffers.count = 0;
    tegroup_impl_chain_add_tensor(&buffers, &desc->input, "input.data", -1, 0);
    if (backward) tegroup_impl_chain_add_tensor(&buffers, &chain->grads[desc->op_count], "grad_output.data", -1, 0);
    buffers.next = buffers.count - 1;
    for (i = 0; i < desc->op_count; i++) {
        chain->at = i;
        TEGROUP_IMPL_TRY(tegroup_impl_chain_check_in_place(desc, chain, i, backward, error));
    }
    for (i = 0; i < desc->op_count; i++)
        tegroup_impl_chain_op_buffers(desc, chain, backward ? desc->op_count - 1 - i : i, backward, &buffers);
    tegroup_impl_chain_add(&buffers, tegroup_impl_workspace_buffer(&desc->options, workspace_bytes), -1);
    tegroup_impl_chain_add(
        &buffers,
        tegroup_impl_buffer_of(desc->saved, (int64_t)chain->saved_bytes, "saved", "must not overlap saved", 1), -1);
    status = tegroup_impl_check_apart(buffers.all, buffers.count, level, &about, error);
    chain->at = status == TEGROUP_OK ? -1 : buffers.at[about];
    return status;
}
#undef TEGROUP_IMPL_THERE
