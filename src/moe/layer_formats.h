/* ---- MoE layer: formats ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "moe/layer_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/rules.h"
#include "core/constructors.h"
#include "formats/scale_rule.h"
#include "formats/scale_layout.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/copies.h"
#include "core/quantised.h"
#include "layer/quantize_rules.h"

/* The tensors by expert that have a format; INPUT_AGAIN: the input that wgrad makes once more. */
typedef enum tegroup_impl_moe_formatted {
    TEGROUP_IMPL_MOE_INPUT,
    TEGROUP_IMPL_MOE_INPUT_AGAIN,
    TEGROUP_IMPL_MOE_BETWEEN,
    TEGROUP_IMPL_MOE_GRAD_OUTPUT,
    TEGROUP_IMPL_MOE_GRAD_BETWEEN,
    TEGROUP_IMPL_MOE_FORMATTED
} tegroup_impl_moe_formatted;

/* What a quantised one consists of. */
enum {
    TEGROUP_IMPL_MOE_DATA,
    TEGROUP_IMPL_MOE_SCALES,
    TEGROUP_IMPL_MOE_COLUMNWISE,
    TEGROUP_IMPL_MOE_COLUMNWISE_SCALES,
    TEGROUP_IMPL_MOE_AMAX,
    TEGROUP_IMPL_MOE_GLOBAL,
    TEGROUP_IMPL_MOE_PIECES
};

/* Which pieces there are, in which memory, and how long. */
typedef struct tegroup_impl_moe_pieces {
    int there[TEGROUP_IMPL_MOE_PIECES];
    tegroup_moe_memory at[TEGROUP_IMPL_MOE_PIECES];
    int64_t bytes[TEGROUP_IMPL_MOE_PIECES];
} tegroup_impl_moe_pieces;

TEGROUP_IMPL_STATIC const tegroup_moe_format *tegroup_impl_moe_format_of(const tegroup_moe_planned *p,
                                                                         tegroup_impl_moe_formatted which) {
    return which >= TEGROUP_IMPL_MOE_GRAD_OUTPUT ? &p->grad_format : &p->rows_format;
}

/* Is there a format? Then rows are picked by an index. */
TEGROUP_IMPL_STATIC int tegroup_impl_moe_picks(const tegroup_moe_planned *p) {
    return p->rows_format.scaling != TEGROUP_SCALING_NONE || p->grad_format.scaling != TEGROUP_SCALING_NONE;
}

TEGROUP_IMPL_STATIC int64_t tegroup_impl_moe_cols(const tegroup_moe_planned *p, tegroup_impl_moe_formatted which) {
    return which <= TEGROUP_IMPL_MOE_INPUT_AGAIN   ? p->width
           : which == TEGROUP_IMPL_MOE_BETWEEN     ? p->hidden
           : which == TEGROUP_IMPL_MOE_GRAD_OUTPUT ? p->outputs
                                                   : p->preactivation;
}

/* A quantised tensor without its memory. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_moe_quantised(const tegroup_moe_planned *p, const tegroup_shape *shape,
                                                              tegroup_impl_moe_formatted which) {
    const tegroup_moe_format *format = tegroup_impl_moe_format_of(p, which);
    tegroup_tensor t = tegroup_tensor_of(*shape, tegroup_impl_moe_cols(p, which), format->dtype, NULL);
    t.scaling = format->scaling;
    t.scale_dtype = format->scale_dtype;
    t.columnwise_order = format->columnwise_order;
    return t;
}

/* Forward and dgrad read a rowwise copy, which they use up; wgrad reads the columnwise one, or where there is none the
 * rowwise one. Values of preactivation's gradient take preactivation's place. */
TEGROUP_IMPL_STATIC tegroup_impl_moe_pieces tegroup_impl_moe_pieces_of(const tegroup_moe_planned *p,
                                                                       tegroup_impl_moe_formatted which) {
    const tegroup_moe_memory saved = p->backward ? TEGROUP_MOE_SAVED_BY_FORWARD : TEGROUP_MOE_FORWARD_WORKSPACE;
    const struct {
        int read, summed; /* rowwise by forward or dgrad; by wgrad */
        tegroup_moe_memory passing, kept;
    } uses[TEGROUP_IMPL_MOE_FORMATTED] = {
        {1, p->wants_fc1 && !p->recompute, TEGROUP_MOE_FORWARD_WORKSPACE, saved},
        {0, p->wants_fc1 && p->recompute, TEGROUP_MOE_WGRAD_WORKSPACE, TEGROUP_MOE_WGRAD_WORKSPACE},
        {!p->recompute, p->wants_activated, TEGROUP_MOE_FORWARD_WORKSPACE,
         p->recompute ? TEGROUP_MOE_SAVED_BY_DGRAD : saved},
        {p->backward, p->wants_activated, TEGROUP_MOE_DGRAD_WORKSPACE, TEGROUP_MOE_SAVED_BY_DGRAD},
        {p->backward, p->wants_fc1, TEGROUP_MOE_DGRAD_WORKSPACE, TEGROUP_MOE_SAVED_BY_DGRAD}};
    const tegroup_shape shape =
        tegroup_shape_of(p->experts, p->capacity, 0, tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    const tegroup_tensor t = tegroup_impl_moe_quantised(p, &shape, which);
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t.scaling);
    const int columnwise =
                  uses[which].summed
                  && (tegroup_impl_needs_columnwise(&t) || t.columnwise_order == TEGROUP_COLUMNWISE_TRANSPOSED),
              rowwise = uses[which].read || (uses[which].summed && !columnwise),
              global = facts->scale_dtype == TEGROUP_DTYPE_F8E4M3;
    const tegroup_moe_memory kept = uses[which].summed ? uses[which].kept : uses[which].passing;
    tegroup_impl_moe_pieces pieces;
    int copy;
    memset(&pieces, 0, sizeof pieces);
    if (t.scaling == TEGROUP_SCALING_NONE || (!rowwise && !columnwise)) return pieces;
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++) {
        const int values = copy && tegroup_impl_keeps_values(&t);
        pieces.there[2 * copy] = copy ? columnwise && !(values && which == TEGROUP_IMPL_MOE_GRAD_BETWEEN) : rowwise;
        pieces.there[2 * copy + 1] = copy ? columnwise && !values : rowwise;
        pieces.at[2 * copy] = pieces.at[2 * copy + 1] = !copy && columnwise ? uses[which].passing : kept;
        pieces.bytes[2 * copy] = tegroup_impl_copy_bytes(&t, copy);
        pieces.bytes[2 * copy + 1] = tegroup_impl_scale_bytes(&t, copy);
    }
    pieces.there[TEGROUP_IMPL_MOE_AMAX] = global || tegroup_impl_scaled_as_one(facts);
    pieces.there[TEGROUP_IMPL_MOE_GLOBAL] = global;
    pieces.at[TEGROUP_IMPL_MOE_AMAX] = pieces.at[TEGROUP_IMPL_MOE_GLOBAL] = kept;
    pieces.bytes[TEGROUP_IMPL_MOE_AMAX] = pieces.bytes[TEGROUP_IMPL_MOE_GLOBAL] = 4 * (int64_t)p->experts;
    return pieces;
}

/* What errors call what is quantised: rows by expert, from tokens or from grad_output. */
TEGROUP_IMPL_STATIC const tegroup_impl_quantize_names *tegroup_impl_moe_quantize_names(int gradient) {
#define TEGROUP_IMPL_WORDS(input, output)                                                                              \
    {                                                                                                                  \
        TEGROUP_IMPL_NAME(input), TEGROUP_IMPL_NAME(output), TEGROUP_IMPL_NAME("grad_output"),                         \
            TEGROUP_IMPL_RULE_NAME(output ".rule"), TEGROUP_IMPL_MATRIX_PATHS("row_scale")                             \
    }
    static const tegroup_impl_quantize_names rows = TEGROUP_IMPL_WORDS("tokens", "rows_format"),
                                             gradients = TEGROUP_IMPL_WORDS("grad_output", "grad_format");
#undef TEGROUP_IMPL_WORDS
    return gradient ? &gradients : &rows;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_format(const tegroup_moe_planned *p, int gradient,
                                                                 tegroup_error *error) {
    static const uint32_t dtypes = 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16;
    const tegroup_impl_moe_formatted which = gradient ? TEGROUP_IMPL_MOE_GRAD_OUTPUT : TEGROUP_IMPL_MOE_INPUT;
    const tegroup_moe_format *format = tegroup_impl_moe_format_of(p, which);
    const tegroup_impl_quantize_names *names = tegroup_impl_moe_quantize_names(gradient);
    const tegroup_impl_name *name = &names->output;
    const tegroup_shape shape =
        tegroup_shape_of(p->experts, p->capacity, 0, tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    tegroup_scale_rule none;
    tegroup_tensor t;
    TEGROUP_IMPL_RULE_ENUM(format->scaling, TEGROUP_SCALING_COUNT - 1, TEGROUP_IMPL_PATH(SCALING),
                           "must be a tegroup_scaling");
    if (format->scaling == TEGROUP_SCALING_NONE) {
        memset(&none, 0, sizeof none);
        TEGROUP_IMPL_RULE_AS(DTYPE, format->dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION, TEGROUP_IMPL_PATH(DTYPE),
                             "needs a scaling", TEGROUP_DTYPE_UNSET, (int32_t)format->dtype);
        TEGROUP_IMPL_RULE_AS(DTYPE, format->scale_dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                             TEGROUP_IMPL_PATH(SCALE_DTYPE), "needs a scaling", TEGROUP_DTYPE_UNSET,
                             (int32_t)format->scale_dtype);
        TEGROUP_IMPL_RULE(format->columnwise_order == TEGROUP_COLUMNWISE_AS_DATA, ERROR_COMBINATION,
                          TEGROUP_IMPL_PATH(COLUMNWISE_ORDER), "needs a scaling", 0, (int32_t)format->columnwise_order);
        TEGROUP_IMPL_RULE(format->rule.method == TEGROUP_SCALE_UNSET, ERROR_COMBINATION, names->rule.method,
                          "needs a scaling", TEGROUP_SCALE_UNSET, (int32_t)format->rule.method);
        TEGROUP_IMPL_RULE(memcmp(&format->rule, &none, sizeof none) == 0, ERROR_COMBINATION, names->rule.method,
                          "must be set where the rule has numbers", 1, 0);
        return TEGROUP_OK;
    }
    TEGROUP_IMPL_RULE_AS(SCALING, !gradient || p->backward, ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALING),
                         "needs grad_output", TEGROUP_SCALING_NONE, format->scaling);
    TEGROUP_IMPL_RULE_AS(DTYPES, dtypes >> p->rows & 1u, ERROR_DTYPE, "tokens.dtype", "must be one that is quantised",
                         dtypes, p->rows);
    TEGROUP_IMPL_RULE(format->rule.method != TEGROUP_SCALE_GIVEN, ERROR_UNSUPPORTED, names->rule.method,
                      "must not be GIVEN: the layer has no place for multipliers of earlier steps",
                      TEGROUP_SCALE_MULTIPLIER, format->rule.method);
    t = tegroup_impl_moe_quantised(p, &shape, which);
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&t, name, error));
    TEGROUP_IMPL_RULE(!tegroup_impl_keeps_values(&t) || tegroup_impl_copy_dtype(&t, 1) == p->rows, ERROR_DTYPE,
                      TEGROUP_IMPL_PATH(COLUMNWISE_ORDER), "of values must be of tokens.dtype",
                      tegroup_impl_values_order(p->rows), t.columnwise_order);
    return tegroup_impl_check_rule_of(&format->rule, &names->rule, &t, name, error);
}
