/* ---- Quantise and dequantise: rules ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "formats/dtype.h"
#include "formats/scale_rule.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/snapshot_checks.h"
#include "core/copies.h"
#include "core/apart.h"
#include "core/problem.h"
#include "core/activation_formulas.h"
#include "layer/activation.h"

/* What errors call what is quantised and what it is made of, in the words of the call that the caller made. */
typedef struct tegroup_impl_quantize_names {
    tegroup_impl_name input, output, grad_output;
    tegroup_impl_rule_name rule;
    const char *row_scale[5];
} tegroup_impl_quantize_names;

TEGROUP_IMPL_STATIC const tegroup_impl_quantize_names *tegroup_impl_quantize_names_own(void) {
    static const tegroup_impl_quantize_names names = {TEGROUP_IMPL_NAME("input"), TEGROUP_IMPL_NAME("output"),
                                                      TEGROUP_IMPL_NAME("grad_output"), TEGROUP_IMPL_RULE_NAME("rule"),
                                                      TEGROUP_IMPL_MATRIX_PATHS("row_scale")};
    return &names;
}

/* A quantised tensor and the plain one beside it: of one shape, by one snapshot, but for what a buffer holds, and
 * `cols` columns. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_beside(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             const tegroup_tensor *plain,
                                                             const tegroup_impl_name *plain_name, int64_t cols,
                                                             const char *cols_rule, tegroup_error *error) {
    static const uint32_t dtypes = 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16;
    const tegroup_shape *shape = &plain->shape;
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(plain, plain_name, error));
    TEGROUP_IMPL_RULE_AS(DTYPES, dtypes >> plain->dtype & 1u, ERROR_DTYPE,
                         plain_name->members[TEGROUP_IMPL_MEMBER_DTYPE], "must be one that is quantised", dtypes,
                         plain->dtype);
    TEGROUP_IMPL_RULE(shape->groups == t->shape.groups, ERROR_SHAPE, plain_name->members[TEGROUP_IMPL_MEMBER_GROUPS],
                      name->groups, t->shape.groups, shape->groups);
    TEGROUP_IMPL_TRY(tegroup_impl_check_pair(plain, plain_name, t, name, error));
    TEGROUP_IMPL_RULE(shape->cols == cols, ERROR_SHAPE, plain_name->members[TEGROUP_IMPL_MEMBER_COLS], cols_rule, cols,
                      shape->cols);
    TEGROUP_IMPL_RULE(shape->snapshot == t->shape.snapshot, ERROR_COMBINATION,
                      plain_name->members[TEGROUP_IMPL_MEMBER_SNAPSHOT],
                      "must be that of the quantised tensor: one routing", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_irregular(shape) == tegroup_impl_irregular(&t->shape), ERROR_COMBINATION,
                      plain_name->members[TEGROUP_IMPL_MEMBER_COL_SIZES],
                      "and elements must be set just when the quantised tensor's are",
                      tegroup_impl_irregular(&t->shape), tegroup_impl_irregular(shape));
    return TEGROUP_OK;
}

/* A plain tensor's elements. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_plain(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                            tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_data(t, name, error));
    return tegroup_impl_check_each(t, t->pointers, 0, TEGROUP_IMPL_PATH(POINTERS), error);
}

/* Sizes and lists lie where the data do; and of a snapshot in host memory, what its groups say. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_spaces(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             tegroup_space space, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(&t->shape, space, TEGROUP_IMPL_PATH(SIZES_SPACE), error));
    TEGROUP_IMPL_RULE(!tegroup_impl_listed(t) || t->pointers_space == space, ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_PATH(POINTERS_SPACE), "must equal space: the list is read where the data are", space,
                      t->pointers_space);
    TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot_address(t, name, error));
    if (!tegroup_impl_ragged(&t->shape) || space != TEGROUP_SPACE_HOST) return TEGROUP_OK;
    return tegroup_impl_check_prepared(t, name, TEGROUP_CHECK_DEEP, error);
}

/* Rows of a tensor's buffer, as matrices beside it number them. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_numbered_rows(const tegroup_shape *shape) {
    return tegroup_impl_ragged(shape) ? shape->rows : tegroup_impl_mul(shape->rows, shape->groups);
}

/* What makes the values that are quantised: nothing, an index, an activation, its gradient. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_made(const tegroup_quantize_desc *desc,
                                                           const tegroup_impl_quantize_names *names,
                                                           tegroup_error *error) {
    static const char *const grad_row_scale[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_row_scale");
    const tegroup_impl_name *input = &names->input, *output = &names->output, *grad_output = &names->grad_output;
    const tegroup_tensor *dy = &desc->grad_output;
    const int gradient = dy->dtype != TEGROUP_DTYPE_UNSET, gated = tegroup_impl_gated(desc->activation);
    const int64_t rows = tegroup_impl_numbered_rows(&desc->output.shape);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_gather(&desc->gather_input, &desc->input, input, TEGROUP_IMPL_A, TEGROUP_OP_FORWARD, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_index(&desc->gather_input, &desc->input, input, error));
    if (desc->activation == TEGROUP_ACTIVATION_UNSET) {
        TEGROUP_IMPL_RULE(!gradient, ERROR_UNSET, "activation", "must be set with grad_output",
                          TEGROUP_ACTIVATION_SWIGLU, 0);
        TEGROUP_IMPL_RULE(desc->row_scale.dtype == TEGROUP_DTYPE_UNSET, ERROR_UNSET, "activation",
                          "must be set with row_scale", TEGROUP_ACTIVATION_IDENTITY, 0);
        TEGROUP_IMPL_RULE(!desc->interleaved, ERROR_COMBINATION, "interleaved", "needs activation", 0,
                          desc->interleaved);
        TEGROUP_IMPL_RULE_REAL(desc->alpha == 0, ERROR_COMBINATION, "alpha", "needs activation", 0, desc->alpha);
        TEGROUP_IMPL_RULE_REAL(desc->limit == 0, ERROR_COMBINATION, "limit", "needs activation", 0, desc->limit);
    } else {
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, desc->alpha, desc->limit, error));
        TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&desc->output.shape), ERROR_COMBINATION, "activation",
                          "does not go with col_sizes or elements", TEGROUP_ACTIVATION_UNSET, desc->activation);
        TEGROUP_IMPL_RULE(!gradient || !gated || desc->output.shape.cols % 2 == 0, ERROR_SHAPE,
                          output->members[TEGROUP_IMPL_MEMBER_COLS], "must be even: gates and ups", 0,
                          desc->output.shape.cols);
    }
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->row_scale, names->row_scale, rows, 1, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_RULE_AS(DTYPE, desc->row_scale.dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_listed(&desc->output),
                         ERROR_COMBINATION, names->row_scale[4],
                         "does not go with lists: their rows have no common numbering", 0, desc->row_scale.dtype);
    TEGROUP_IMPL_RULE(desc->gather_input.rows == 0 || desc->activation == TEGROUP_ACTIVATION_UNSET, ERROR_COMBINATION,
                      "gather_input.rows", "does not go with activation", 0, desc->gather_input.rows);
    TEGROUP_IMPL_RULE_AS(DTYPE, desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET || gradient, ERROR_COMBINATION,
                         "grad_row_scale.dtype", "needs grad_output", 0, desc->grad_row_scale.dtype);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->grad_row_scale, grad_row_scale, rows, 1, TEGROUP_IMPL_REALS, error));
    if (!gradient) return tegroup_impl_check_absent(dy, grad_output, error);
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_listed(&desc->output),
                         ERROR_COMBINATION, "grad_row_scale.dtype",
                         "does not go with lists: their rows have no common numbering", 0, desc->grad_row_scale.dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_check_beside(&desc->output, output, dy, grad_output,
                                               gated ? desc->output.shape.cols / 2 : desc->output.shape.cols,
                                               "must be those of the activation's output", error));
    TEGROUP_IMPL_RULE_AS(DTYPE, dy->dtype == desc->input.dtype, ERROR_DTYPE,
                         grad_output->members[TEGROUP_IMPL_MEMBER_DTYPE], "must equal input.dtype", desc->input.dtype,
                         dy->dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_check_spaces(dy, grad_output, desc->space, error));
    return tegroup_impl_check_plain(dy, grad_output, error);
}

/* Values are kept of what an activation makes. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_values_made(const tegroup_quantize_desc *desc,
                                                                  const tegroup_impl_name *name, tegroup_error *error) {
    const tegroup_tensor *t = &desc->output;
    if (!tegroup_impl_keeps_values(t) || !tegroup_impl_has_copy(t, TEGROUP_IMPL_COLUMNWISE)) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_unscaled(t, 1, name, error));
    TEGROUP_IMPL_RULE(desc->activation != TEGROUP_ACTIVATION_UNSET, ERROR_COMBINATION,
                      tegroup_impl_copy_paths_of(name, tegroup_impl_listed(t), 1).data,
                      "must be NULL where columnwise_order is of values that no activation makes: input is that copy",
                      0, 1);
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape) && !tegroup_impl_listed(t), ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_PATH(COLUMNWISE_ORDER), "must not be of values but for ragged rows of one buffer",
                      TEGROUP_COLUMNWISE_AS_DATA, t->columnwise_order);
    TEGROUP_IMPL_RULE(tegroup_impl_copy_dtype(t, 1) == desc->input.dtype, ERROR_DTYPE,
                      TEGROUP_IMPL_PATH(COLUMNWISE_ORDER), "of values must be of the type that they are made of",
                      tegroup_impl_values_order(desc->input.dtype), t->columnwise_order);
    return TEGROUP_OK;
}

/* One amax for all of a group, which the scales wait for. */
TEGROUP_IMPL_HD int tegroup_impl_waits_for_amax(const tegroup_quantize_desc *desc, const tegroup_scaling_facts *facts) {
    return (tegroup_impl_scaled_as_one(facts) && desc->rule.method != TEGROUP_SCALE_GIVEN)
           || desc->output.global_scale_inv != NULL;
}

/* A rule and the tensor that it is for, but for its memory. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_rule_of(const tegroup_scale_rule *rule,
                                                              const tegroup_impl_rule_name *rule_name,
                                                              const tegroup_tensor *t, const tegroup_impl_name *name,
                                                              tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const int given = rule->method == TEGROUP_SCALE_GIVEN;
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_rule(rule, rule_name, t->dtype, TEGROUP_IMPL_PATH(DTYPE),
                                                   tegroup_impl_one_scale(t, facts), TEGROUP_IMPL_PATH(SCALE_DTYPE),
                                                   error));
    TEGROUP_IMPL_RULE_AS(SCALING, !given || tegroup_impl_scaled_as_one(facts), ERROR_COMBINATION, rule_name->method,
                         "GIVEN needs scaling TENSOR", TEGROUP_SCALING_TENSOR, t->scaling);
    TEGROUP_IMPL_RULE(t->scale_parts <= 1 || !tegroup_impl_scaled_as_one(facts), ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_PATH(SCALE_PARTS), "must be at most 1 with TENSOR: amax has one number a group", 1,
                      t->scale_parts);
    TEGROUP_IMPL_RULE(
        tegroup_impl_bits(t->dtype) >= 8 || t->scale_parts <= 1 || !tegroup_impl_transposed(t, 1)
            || t->shape.rows / t->scale_parts % 2 == 0,
        ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALE_PARTS),
        "must be of an even number of rows where F4E2M1 is transposed: two rows share a byte", 0, t->scale_parts);
    return TEGROUP_OK;
}

/* Memory of what is one number a group. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_group_numbers(const tegroup_quantize_desc *desc,
                                                                    const tegroup_impl_name *name,
                                                                    tegroup_error *error) {
    const tegroup_tensor *t = &desc->output;
    const int64_t bytes = (int64_t)sizeof(float) * t->shape.groups;
    const int values_alone = tegroup_impl_keeps_values(t) && tegroup_impl_has_copy(t, TEGROUP_IMPL_COLUMNWISE)
                             && !tegroup_impl_has_copy(t, TEGROUP_IMPL_ROWWISE),
              waits = !values_alone && tegroup_impl_waits_for_amax(desc, tegroup_scaling_info(t->scaling)),
              given = !values_alone && desc->rule.method == TEGROUP_SCALE_GIVEN;
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_there(t->amax, waits ? bytes : 0, sizeof(float), TEGROUP_IMPL_PATH(AMAX), error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_there(t->columnwise_amax, 0, sizeof(float), TEGROUP_IMPL_PATH(COLUMNWISE_AMAX), error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_there(t->global_scale_inv, 0, sizeof(float), TEGROUP_IMPL_PATH(GLOBAL_SCALE_INV), error));
    return tegroup_impl_check_there(t->scale, given ? bytes : 0, sizeof(float), TEGROUP_IMPL_PATH(SCALE), error);
}

/* Whether a GPU has kernels that make values and quantise them at once, in registers: of the activations, and for the
 * codes, that training steps in block FP8 have. dtype: of the values; t: what they are quantised to. */
TEGROUP_IMPL_STATIC int tegroup_impl_makes_at_once(tegroup_activation activation, tegroup_dtype dtype, int gradient,
                                                   const tegroup_tensor *t, const tegroup_scale_rule *rule) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    return (activation == TEGROUP_ACTIVATION_SWIGLU || tegroup_impl_clamps(activation)) && dtype == TEGROUP_DTYPE_BF16
           && facts->block_inner == 128 && facts->block_outer == 1 && !rule->divide
           && (t->dtype == TEGROUP_DTYPE_F8E4M3 || (gradient && t->dtype == TEGROUP_DTYPE_F8E5M2));
}

/* A gradient's values may take input's place. */
TEGROUP_IMPL_STATIC int tegroup_impl_values_in_place(const tegroup_quantize_desc *desc) {
    const tegroup_tensor *t = &desc->output;
    return tegroup_impl_keeps_values(t) && desc->grad_output.dtype != TEGROUP_DTYPE_UNSET
           && t->columnwise_data == desc->input.data && tegroup_impl_ld(t) == tegroup_impl_ld(&desc->input);
}

/* What the call writes lies apart from all that it touches. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_quantize_apart(const tegroup_quantize_desc *desc,
                                                                     const tegroup_impl_quantize_names *names,
                                                                     tegroup_error *error) {
    const tegroup_tensor *t = &desc->output, stored = tegroup_impl_stored(&desc->input, &desc->gather_input);
    const int64_t bytes = (int64_t)sizeof(float) * t->shape.groups;
    const tegroup_impl_buffer index = tegroup_impl_buffer_of(
        desc->gather_input.slot_of_row, desc->gather_input.rows > 0 ? tegroup_impl_mul(8, desc->input.shape.rows) : 0,
        NULL, "must not overlap gather_input.slot_of_row", 0);
    tegroup_impl_buffer buffers[14];
    int32_t count, copy;
    for (count = 0, copy = 0; copy < TEGROUP_IMPL_COPIES; copy++) {
        buffers[count++] = tegroup_impl_copy_buffer(t, &names->output, copy, 0, 1);
        buffers[count++] = tegroup_impl_copy_buffer(t, &names->output, copy, 1, 1);
    }
    buffers[count++] = tegroup_impl_buffer_of(t->amax, bytes, "output.amax", "must not overlap output.amax", 1);
    buffers[count++] = tegroup_impl_buffer_of(t->columnwise_amax, bytes, "output.columnwise_amax",
                                              "must not overlap output.columnwise_amax", 1);
    buffers[count++] = tegroup_impl_buffer_of(t->global_scale_inv, bytes, "output.global_scale_inv",
                                              "must not overlap output.global_scale_inv", 1);
    buffers[count++] =
        tegroup_impl_matrix_buffer(&desc->grad_row_scale, "grad_row_scale.data", "must not overlap grad_row_scale", 1);
    buffers[count++] = tegroup_impl_buffer_of(t->scale, bytes, NULL, "must not overlap output.scale", 0);
    buffers[count] = tegroup_impl_tensor_buffer(&stored, &names->input, 0);
    if (tegroup_impl_values_in_place(desc)) buffers[count].twin = 2 * TEGROUP_IMPL_COLUMNWISE;
    count++;
    buffers[count++] = index;
    buffers[count++] = tegroup_impl_tensor_buffer(&desc->grad_output, &names->grad_output, 0);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->row_scale, NULL, "must not overlap row_scale", 0);
    buffers[count++] = tegroup_impl_snapshot_buffer(t);
    return tegroup_impl_check_apart(buffers, count, TEGROUP_CHECK_HOST, NULL, error);
}

/* A tensor that is quantised. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_quantised(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                                tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(t, name, error));
    TEGROUP_IMPL_RULE_AS(SCALINGS, t->scaling != TEGROUP_SCALING_NONE, ERROR_UNSET, TEGROUP_IMPL_PATH(SCALING),
                         "must be set", (1u << TEGROUP_SCALING_COUNT) - 2, 0);
    return tegroup_impl_check_in_order(t, name, error);
}

/* What is quantised and what it is made of, in the words of the caller's call. That what is written lies apart, that
 * call sees to. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_quantize_as(const tegroup_quantize_desc *desc,
                                                                  const tegroup_impl_quantize_names *names,
                                                                  tegroup_error *error) {
    const tegroup_impl_name *input = &names->input, *output = &names->output;
    const tegroup_tensor *t = &desc->output;
    const int doubled = desc->activation != TEGROUP_ACTIVATION_UNSET && tegroup_impl_gated(desc->activation)
                        && desc->grad_output.dtype == TEGROUP_DTYPE_UNSET;
    tegroup_tensor stored;
    int copy;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantised(t, output, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_beside(t, output, &desc->input, input, tegroup_impl_mul(t->shape.cols, doubled ? 2 : 1),
                                  doubled ? "must be twice output.shape.cols: gates and ups" : output->cols, error));
    TEGROUP_IMPL_RULE_AS(SCALING, desc->input.scaling == TEGROUP_SCALING_NONE, ERROR_VALUE,
                         input->members[TEGROUP_IMPL_MEMBER_SCALING], "must be unset", TEGROUP_SCALING_NONE,
                         desc->input.scaling);
    TEGROUP_IMPL_TRY(tegroup_impl_check_rule_of(&desc->rule, &names->rule, t, output, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_group_numbers(desc, output, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_spaces(t, output, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_spaces(&desc->input, input, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_made(desc, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_values_made(desc, output, error));
    stored = tegroup_impl_stored(&desc->input, &desc->gather_input);
    TEGROUP_IMPL_TRY(tegroup_impl_check_plain(&stored, input, error));
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++)
        if (tegroup_impl_has_copy(t, copy)
            || (copy == TEGROUP_IMPL_ROWWISE && !tegroup_impl_has_copy(t, TEGROUP_IMPL_COLUMNWISE)))
            TEGROUP_IMPL_TRY(tegroup_impl_check_copy(t, copy, output, error));
    return TEGROUP_OK;
}

/* Kernels for it are in this build. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_quantize_built(const tegroup_quantize_desc *desc,
                                                                     tegroup_error *error) {
    TEGROUP_IMPL_RULE(desc->space != TEGROUP_SPACE_DEVICE || desc->activation == TEGROUP_ACTIVATION_UNSET
                          || (TEGROUP_IMPL_ACTIVATION_KERNELS
                              && (TEGROUP_IMPL_BACKWARD_KERNELS || desc->grad_output.dtype == TEGROUP_DTYPE_UNSET)),
                      ERROR_NOT_BUILT, "activation", "must be unset: this build has no such kernels",
                      TEGROUP_ACTIVATION_UNSET, desc->activation);
    return tegroup_impl_check_built(TEGROUP_IMPL_FP8_KERNELS, desc->space, error);
}

/* Everything that tegroup_quantize checks before it starts. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_quantize(const tegroup_quantize_desc *desc,
                                                               tegroup_error *error) {
    const tegroup_impl_quantize_names *names = tegroup_impl_quantize_names_own();
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantize_as(desc, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantize_apart(desc, names, error));
    return tegroup_impl_check_quantize_built(desc, error);
}

/* Everything that tegroup_dequantize checks before it starts. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_dequantize(const tegroup_dequantize_desc *desc,
                                                                 tegroup_error *error) {
    static const tegroup_impl_name input = TEGROUP_IMPL_NAME("input"), output = TEGROUP_IMPL_NAME("output");
    const tegroup_tensor *t = &desc->input;
    const int64_t bytes = (int64_t)sizeof(float) * t->shape.groups;
    tegroup_impl_buffer buffers[5];
    int32_t count = 0;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_RULE(desc->columnwise == 0 || desc->columnwise == 1, ERROR_VALUE, "columnwise", "must be 0 or 1", 1,
                      desc->columnwise);
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantised(t, &input, error));
    TEGROUP_IMPL_RULE_NO_VALUES(t, desc->columnwise);
    TEGROUP_IMPL_TRY(tegroup_impl_check_beside(t, &input, &desc->output, &output, t->shape.cols, input.cols, error));
    TEGROUP_IMPL_RULE_AS(SCALING, desc->output.scaling == TEGROUP_SCALING_NONE, ERROR_VALUE, "output.scaling",
                         "must be unset", TEGROUP_SCALING_NONE, desc->output.scaling);
    TEGROUP_IMPL_TRY(tegroup_impl_check_spaces(t, &input, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_spaces(&desc->output, &output, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_copy(t, desc->columnwise, &input, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_there(t->global_scale_inv, 0, sizeof(float), "input.global_scale_inv", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_plain(&desc->output, &output, error));
    buffers[count++] = tegroup_impl_tensor_buffer(&desc->output, &output, 1);
    buffers[count++] = tegroup_impl_copy_buffer(t, &input, desc->columnwise, 0, 0);
    buffers[count++] = tegroup_impl_copy_buffer(t, &input, desc->columnwise, 1, 0);
    buffers[count++] =
        tegroup_impl_buffer_of(t->global_scale_inv, bytes, NULL, "must not overlap input.global_scale_inv", 0);
    buffers[count++] = tegroup_impl_snapshot_buffer(t);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, count, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_FP8_KERNELS, desc->space, error);
}
