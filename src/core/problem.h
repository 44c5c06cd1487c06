/* ---- The problem of a GEMM ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/copies.h"

/* The most bytes from one group to the next that TMA can be told of, which has the rules of alignment as well (CUDA
 * Driver API, cuTensorMapEncodeTiled: strides are multiples of 16 below 2^40). Rows are never so far apart. */
#define TEGROUP_IMPL_TMA_STRIDE_BYTES (((int64_t)1 << 40) - 16)
/* The most rows and columns that SM90's kernels count in 32 bits: tiles reach behind the last. */
#define TEGROUP_IMPL_SM90_MOST ((INT64_C(1) << 31) - 512)

/* Bytes between the groups of a uniform tensor; 0 for any other, and for a single group. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_stride_bytes(const tegroup_tensor *t) {
    if (t->dtype == TEGROUP_DTYPE_UNSET || tegroup_impl_ragged(&t->shape) || tegroup_impl_listed(t)) return 0;
    if (t->shape.groups < 2 || tegroup_impl_extent(t) == 0) return 0;
    return tegroup_impl_mul(tegroup_impl_group_stride(t), tegroup_impl_bits(t->dtype)) / 8;
}

/* Do groups of an operand lie where shape.offsets says? They may begin at any element then. */
TEGROUP_IMPL_STATIC int tegroup_impl_placed(const tegroup_gemm_desc *desc) {
    return desc->a.shape.offsets || desc->b.shape.offsets || desc->c.shape.offsets || desc->d.shape.offsets;
}

/* Two tensors must agree in how their groups are made. Rows of ragged ones are what their buffers hold, of which the
 * snapshots tell what is used. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_pair(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                           const tegroup_tensor *like,
                                                           const tegroup_impl_name *like_name, tegroup_error *error) {
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape) == tegroup_impl_ragged(&like->shape), ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(ROW_SIZES), like_name->ragged, tegroup_impl_ragged(&like->shape),
                      tegroup_impl_ragged(&t->shape));
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape) || t->shape.rows == like->shape.rows, ERROR_SHAPE,
                      TEGROUP_IMPL_PATH(ROWS), like_name->rows, like->shape.rows, t->shape.rows);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_scalars(const tegroup_scalars *s, const char *dtype_field,
                                                              const char *space_field, const char *stride_field,
                                                              tegroup_error *error) {
    TEGROUP_IMPL_RULE_ENUM(s->space, TEGROUP_SPACE_DEVICE, space_field, "must be a tegroup_space");
    if (s->space == TEGROUP_SPACE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_real(s->dtype, dtype_field, error));
    TEGROUP_IMPL_RULE(s->stride == 0 || s->stride == 1, ERROR_VALUE, stride_field, "must be 0 or 1", 1, s->stride);
    return TEGROUP_OK;
}

/* Rules of the options alone. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_options(const tegroup_options *o, tegroup_error *error) {
    TEGROUP_IMPL_RULE_ENUM(o->compute, TEGROUP_COMPUTE_FAST_ACCUM, "options.compute", "must be a tegroup_compute");
    TEGROUP_IMPL_RULE_ENUM(o->backend, TEGROUP_BACKEND_COUNT - 1, "options.backend", "must be a tegroup_backend");
    TEGROUP_IMPL_RULE_ENUM(o->check_level, TEGROUP_CHECK_DEEP, "options.check_level", "must be a tegroup_check_level");
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(o->threads, "options.threads", error));
    TEGROUP_IMPL_RULE(o->sm_limit >= 0, ERROR_VALUE, "options.sm_limit", "must not be negative", 0, o->sm_limit);
    TEGROUP_IMPL_RULE(o->data_alignment_bytes >= 0 && o->data_alignment_bytes <= TEGROUP_ALIGNMENT
                          && (o->data_alignment_bytes & (o->data_alignment_bytes - 1)) == 0,
                      ERROR_VALUE, "options.data_alignment_bytes",
                      "must be 0 or a power of two up to TEGROUP_ALIGNMENT", TEGROUP_ALIGNMENT,
                      o->data_alignment_bytes);
    TEGROUP_IMPL_RULE(o->expected_rows >= 0, ERROR_VALUE, "options.expected_rows", "must not be negative", 0,
                      o->expected_rows);
    TEGROUP_IMPL_RULE(o->expected_rows_max >= 0, ERROR_VALUE, "options.expected_rows_max", "must not be negative", 0,
                      o->expected_rows_max);
    TEGROUP_IMPL_RULE(o->stream_count >= 0, ERROR_VALUE, "options.stream_count", "must not be negative", 0,
                      o->stream_count);
    TEGROUP_IMPL_RULE(o->host_sizes_final == 0 || o->host_sizes_final == 1, ERROR_VALUE, "options.host_sizes_final",
                      "must be 0 or 1", 1, o->host_sizes_final);
    TEGROUP_IMPL_RULE(!o->cublaslt_functions
                          || tegroup_impl_size_fits(o->cublaslt_functions->struct_size, sizeof *o->cublaslt_functions),
                      ERROR_STRUCT_SIZE, "options.cublaslt_functions.struct_size", TEGROUP_IMPL_SIZE_RULE,
                      sizeof *o->cublaslt_functions, o->cublaslt_functions->struct_size);
    return TEGROUP_OK;
}

/* Rules of a product's own numbers and enums. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_numbers(const tegroup_gemm_desc *desc,
                                                              const tegroup_impl_names *names, tegroup_error *error) {
    TEGROUP_IMPL_RULE(desc->op != TEGROUP_OP_UNSET, ERROR_UNSET, "op", "must be set", TEGROUP_OP_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(desc->op, TEGROUP_OP_WGRAD, "op", "must be a tegroup_op");
    TEGROUP_IMPL_RULE_ENUM(desc->tail, TEGROUP_TAIL_POISON, names->tail, "must be a tegroup_tail");
    TEGROUP_IMPL_RULE(desc->accumulate == 0 || desc->accumulate == 1, ERROR_VALUE, "accumulate", "must be 0 or 1", 1,
                      desc->accumulate);
    TEGROUP_IMPL_RULE(desc->bias_of_b == 0 || desc->bias_of_b == 1, ERROR_VALUE, "bias_of_b", "must be 0 or 1", 1,
                      desc->bias_of_b);
    TEGROUP_IMPL_RULE(desc->functor == 0 || desc->functor == 1, ERROR_VALUE, "functor", "must be 0 or 1", 1,
                      desc->functor);
    TEGROUP_IMPL_TRY(tegroup_impl_check_options(&desc->options, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalars(&desc->alpha, "alpha.dtype", "alpha.space", "alpha.stride", error));
    return tegroup_impl_check_scalars(&desc->beta, "beta.dtype", "beta.space", "beta.stride", error);
}

/* Rules of an operand whose rows are picked by an index: they must have one numbering, and lie in one buffer as they
 * are. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_gather(const tegroup_gather *gather, const tegroup_tensor *t,
                                                             const tegroup_impl_name *name,
                                                             tegroup_impl_operand operand, tegroup_op op,
                                                             tegroup_error *error) {
    tegroup_tensor stored;
    TEGROUP_IMPL_RULE(gather->rows >= 0 && gather->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE,
                      TEGROUP_IMPL_PATH(GATHER_ROWS), "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, gather->rows);
    TEGROUP_IMPL_RULE(gather->slots >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(GATHER_SLOTS), "must not be negative", 0,
                      gather->slots);
    if (gather->rows == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(operand == TEGROUP_IMPL_A || op == TEGROUP_OP_WGRAD, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(GATHER_ROWS), "needs op WGRAD: in others b has the weights", 0, gather->rows);
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "needs row_sizes of the operand", 0, gather->rows);
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&t->shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "does not go with col_sizes or elements of the operand: its rows must have one width", 0,
                      gather->rows);
    TEGROUP_IMPL_RULE(!tegroup_impl_listed(t), ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "does not go with pointers of the operand: its rows have no common numbering", 0, gather->rows);
    TEGROUP_IMPL_RULE(t->scaling == TEGROUP_SCALING_NONE, ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "does not go with scaling of the operand: scales lie group after group, and its rows where the "
                      "index says; tegroup_quantize picks rows by an index",
                      0, gather->rows);
    stored = tegroup_impl_stored(t, gather);
    TEGROUP_IMPL_RULE(tegroup_impl_extent_bytes(&stored) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW,
                      TEGROUP_IMPL_PATH(GATHER_ROWS), "times ld must be addressable", tegroup_impl_max_bytes(),
                      tegroup_impl_extent_bytes(&stored));
    return TEGROUP_OK;
}

/* Rules between the operands' shapes. The reduced dimension and the two that remain must agree wherever they meet;
 * rows of a ragged tensor are capacities, and so are columns that differ between groups. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_shapes(const tegroup_gemm_desc *desc,
                                                             const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_tensor *a = &desc->a, *b = &desc->b, *d = &desc->d;
    const tegroup_impl_name *a_name = names->operand[TEGROUP_IMPL_A], *b_name = names->operand[TEGROUP_IMPL_B];
    TEGROUP_IMPL_RULE(b->shape.groups == a->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(B, GROUPS),
                      a_name->groups, a->shape.groups, b->shape.groups);
    TEGROUP_IMPL_RULE(d->shape.groups == a->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(D, GROUPS),
                      a_name->groups, a->shape.groups, d->shape.groups);
    if (desc->op == TEGROUP_OP_WGRAD) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_pair(b, b_name, a, a_name, error));
        if (!tegroup_impl_ragged(&d->shape))
            TEGROUP_IMPL_RULE(d->shape.rows == a->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(D, ROWS),
                              a_name->cols, a->shape.cols, d->shape.rows);
        TEGROUP_IMPL_RULE(d->shape.cols == b->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(D, COLS), b_name->cols,
                          b->shape.cols, d->shape.cols);
        return TEGROUP_OK;
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_pair(d, names->operand[TEGROUP_IMPL_D], a, a_name, error));
    if (desc->op == TEGROUP_OP_FORWARD) {
        TEGROUP_IMPL_RULE(b->shape.cols == a->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(B, COLS), a_name->cols,
                          a->shape.cols, b->shape.cols);
        if (!tegroup_impl_ragged(&b->shape))
            TEGROUP_IMPL_RULE(d->shape.cols == b->shape.rows, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(D, COLS),
                              b_name->rows, b->shape.rows, d->shape.cols);
    } else {
        if (!tegroup_impl_ragged(&b->shape))
            TEGROUP_IMPL_RULE(b->shape.rows == a->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(B, ROWS),
                              a_name->cols, a->shape.cols, b->shape.rows);
        TEGROUP_IMPL_RULE(d->shape.cols == b->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(D, COLS), b_name->cols,
                          b->shape.cols, d->shape.cols);
    }
    return TEGROUP_OK;
}

/* Does a product sum over the operand's rows? Then it reads the copy that is quantised along columns. */
TEGROUP_IMPL_HD int tegroup_impl_sums_rows(tegroup_op op, tegroup_impl_operand operand) {
    return op == TEGROUP_OP_WGRAD || (op == TEGROUP_OP_DGRAD && operand == TEGROUP_IMPL_B);
}

/* In which orders a product reads copies and codes: values are no copy that is summed along, and interleaved codes are
 * weights, whose lines a product sums along. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_orders(const tegroup_gemm_desc *desc,
                                                             const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_tensor *operands[2] = {&desc->a, &desc->b};
    int i;
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++) {
        const tegroup_impl_name *name = names->operand[i];
        const int sums_rows = tegroup_impl_sums_rows(desc->op, (tegroup_impl_operand)i);
        TEGROUP_IMPL_RULE(!tegroup_impl_keeps_values(operands[i]) || !sums_rows, ERROR_COMBINATION,
                          TEGROUP_IMPL_PATH(COLUMNWISE_ORDER),
                          "must not be of values where rows are summed: they are an operand of their own",
                          TEGROUP_COLUMNWISE_AS_DATA, operands[i]->columnwise_order);
        if (i == TEGROUP_IMPL_A || desc->op == TEGROUP_OP_WGRAD)
            TEGROUP_IMPL_TRY(tegroup_impl_check_in_order(operands[i], name, error));
        TEGROUP_IMPL_RULE(operands[i]->code_order == TEGROUP_CODES_IN_ORDER || !sums_rows
                              || operands[i]->columnwise_order == TEGROUP_COLUMNWISE_TRANSPOSED,
                          ERROR_COMBINATION, TEGROUP_IMPL_PATH(COLUMNWISE_ORDER),
                          "must be TRANSPOSED where rows are summed and codes are interleaved",
                          TEGROUP_COLUMNWISE_TRANSPOSED, operands[i]->columnwise_order);
    }
    return TEGROUP_OK;
}

/* The scalings that b may have beside a's, as a bit set: those whose scales are of the same type. Rows that are not
 * quantised go with all weights, and in a wgrad, where both operands are rows, with all rows. */
TEGROUP_IMPL_STATIC uint32_t tegroup_impl_scalings_beside(tegroup_scaling a, tegroup_op op) {
    uint32_t set = 0;
    int32_t b;
    for (b = 0; b < TEGROUP_SCALING_COUNT; b++)
        if (a == TEGROUP_SCALING_NONE || (b == TEGROUP_SCALING_NONE && op == TEGROUP_OP_WGRAD)
            || tegroup_scaling_info((tegroup_scaling)b)->scale_dtype == tegroup_scaling_info(a)->scale_dtype)
            set |= 1u << b;
    return set;
}

/* Rules between data types. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_dtypes(const tegroup_gemm_desc *desc,
                                                             const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_tensor *a = &desc->a, *b = &desc->b, *d = &desc->d;
    int is_f64 = desc->options.compute == TEGROUP_COMPUTE_F64;
    const uint32_t beside = tegroup_impl_scalings_beside(a->scaling, desc->op);
    TEGROUP_IMPL_RULE_AS(SCALINGS, beside >> b->scaling & 1u, ERROR_COMBINATION, TEGROUP_IMPL_OPERAND_PATH(B, SCALING),
                         names->operand[TEGROUP_IMPL_A]->scaling, beside, b->scaling);
    TEGROUP_IMPL_RULE_AS(
        SCALING, d->scaling == TEGROUP_SCALING_NONE, ERROR_UNSUPPORTED, TEGROUP_IMPL_OPERAND_PATH(D, SCALING),
        "must be none: a product does not quantise its result, a call after it does", TEGROUP_SCALING_NONE, d->scaling);
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         a->scaling != TEGROUP_SCALING_NONE || b->scaling != TEGROUP_SCALING_NONE
                             || (tegroup_impl_goes_with(a->dtype, b->dtype)
                                 && (desc->op != TEGROUP_OP_WGRAD /* which has no weights for an operand */
                                     || tegroup_impl_bits(a->dtype) == tegroup_impl_bits(b->dtype))),
                         ERROR_DTYPE, TEGROUP_IMPL_OPERAND_PATH(B, DTYPE), names->operand[TEGROUP_IMPL_A]->dtype,
                         a->dtype, b->dtype);
    TEGROUP_IMPL_RULE_AS(DTYPE, a->dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE,
                         TEGROUP_IMPL_OPERAND_PATH(A, DTYPE), "F64 needs compute F64", TEGROUP_DTYPE_F32, a->dtype);
    TEGROUP_IMPL_RULE_AS(DTYPE, b->dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE,
                         TEGROUP_IMPL_OPERAND_PATH(B, DTYPE), "F64 needs compute F64", TEGROUP_DTYPE_F32, b->dtype);
    TEGROUP_IMPL_RULE_AS(DTYPE, d->dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE,
                         TEGROUP_IMPL_OPERAND_PATH(D, DTYPE), "F64 needs compute F64", TEGROUP_DTYPE_F32, d->dtype);
    if (desc->c.dtype != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_RULE_AS(DTYPE, desc->c.dtype == d->dtype, ERROR_DTYPE, TEGROUP_IMPL_OPERAND_PATH(C, DTYPE),
                             "must be the type of the results", d->dtype, desc->c.dtype);
    if (desc->bias.dtype != TEGROUP_DTYPE_UNSET) {
        TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_FLOATS >> desc->bias.dtype & 1u, ERROR_DTYPE,
                             TEGROUP_IMPL_OPERAND_PATH(BIAS, DTYPE), "must be one that a bias has", TEGROUP_IMPL_FLOATS,
                             desc->bias.dtype);
        TEGROUP_IMPL_RULE_AS(DTYPE, desc->bias.dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE,
                             TEGROUP_IMPL_OPERAND_PATH(BIAS, DTYPE), "F64 needs compute F64", TEGROUP_DTYPE_F32,
                             desc->bias.dtype);
    }
    return tegroup_impl_check_real(desc->row_scale_dtype, "row_scale_dtype", error);
}

/* The operand whose rows bias belongs to, and in a wgrad is the sum of. */
TEGROUP_IMPL_HD const tegroup_tensor *tegroup_impl_biased(const tegroup_gemm_desc *desc) {
    return desc->bias_of_b ? &desc->b : &desc->a;
}

/* Rules about what goes with what. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_extras(const tegroup_gemm_desc *desc,
                                                             const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_tensor *c = &desc->c, *d = &desc->d, *bias = &desc->bias;
    int has_c = c->dtype != TEGROUP_DTYPE_UNSET, has_bias = bias->dtype != TEGROUP_DTYPE_UNSET;
    if (has_c) {
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_pair(c, names->operand[TEGROUP_IMPL_C], d, names->operand[TEGROUP_IMPL_D], error));
        TEGROUP_IMPL_RULE(tegroup_impl_irregular(&c->shape) == tegroup_impl_irregular(&d->shape), ERROR_COMBINATION,
                          TEGROUP_IMPL_OPERAND_PATH(C, COL_SIZES), "and elements must be set just when d's are",
                          tegroup_impl_irregular(&d->shape), tegroup_impl_irregular(&c->shape));
        TEGROUP_IMPL_RULE(c->shape.groups == d->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(C, GROUPS),
                          names->operand[TEGROUP_IMPL_D]->groups, d->shape.groups, c->shape.groups);
        TEGROUP_IMPL_RULE(c->shape.cols == d->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(C, COLS),
                          names->operand[TEGROUP_IMPL_D]->cols, d->shape.cols, c->shape.cols);
        TEGROUP_IMPL_RULE(!desc->accumulate, ERROR_COMBINATION, "accumulate",
                          "does not go with c: it makes d its own c", 0, 1);
    }
    TEGROUP_IMPL_RULE(!desc->functor || !desc->accumulate, ERROR_COMBINATION, "functor",
                      "does not go with accumulate: give d as c and a beta of 1, and it is given the whole", 0, 1);
    TEGROUP_IMPL_RULE(!desc->functor || !has_bias || desc->op == TEGROUP_OP_WGRAD, ERROR_COMBINATION, "functor",
                      "does not go with a bias that is added: it adds its own", 0, 1);
    TEGROUP_IMPL_RULE(desc->beta.space == TEGROUP_SPACE_UNSET || !desc->accumulate, ERROR_COMBINATION, "accumulate",
                      "does not go with beta: it is 1", 0, 1);
    TEGROUP_IMPL_RULE(desc->beta.space == TEGROUP_SPACE_UNSET || has_c, ERROR_COMBINATION, "beta", "needs c", 1, 0);
    TEGROUP_IMPL_RULE(desc->tail == TEGROUP_TAIL_KEEP || desc->op != TEGROUP_OP_WGRAD, ERROR_COMBINATION, names->tail,
                      "does not go with op WGRAD: its d has no tail", 0, desc->tail);
    TEGROUP_IMPL_RULE(desc->tail == TEGROUP_TAIL_KEEP || !tegroup_impl_irregular(&d->shape), ERROR_COMBINATION,
                      names->tail, "other than KEEP needs d's groups to be rows of one width", 0, desc->tail);
    TEGROUP_IMPL_RULE(desc->tail == TEGROUP_TAIL_KEEP || !tegroup_impl_listed(d), ERROR_COMBINATION, names->tail,
                      "other than KEEP needs results in one buffer", 0, desc->tail);
    TEGROUP_IMPL_RULE_AS(DTYPE, desc->row_scale_dtype == TEGROUP_DTYPE_UNSET || has_bias, ERROR_COMBINATION,
                         "row_scale_dtype", "needs bias", 0, desc->row_scale_dtype);
    TEGROUP_IMPL_RULE(!desc->bias_of_b || desc->op == TEGROUP_OP_WGRAD, ERROR_COMBINATION, "bias_of_b",
                      "needs op WGRAD: in others a has the rows", TEGROUP_OP_WGRAD, desc->op);
    TEGROUP_IMPL_RULE(!desc->bias_of_b || has_bias, ERROR_COMBINATION, "bias_of_b", "needs bias", 0, 1);
    TEGROUP_IMPL_RULE_AS(
        DTYPE, desc->row_scale_dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_listed(tegroup_impl_biased(desc)),
        ERROR_COMBINATION, "row_scale_dtype",
        "does not go with rows in a list of buffers, which have no common numbering", 0, desc->row_scale_dtype);
    if (has_bias) {
        const int of_d = desc->op == TEGROUP_OP_DGRAD || desc->bias_of_b;
        const int64_t n = of_d || desc->op == TEGROUP_OP_FORWARD ? d->shape.cols : desc->a.shape.cols;
        TEGROUP_IMPL_RULE(!tegroup_impl_ragged(&bias->shape), ERROR_COMBINATION,
                          TEGROUP_IMPL_OPERAND_PATH(BIAS, ROW_SIZES), "must be unset: one row a group", 0,
                          bias->shape.row_sizes.encoding);
        TEGROUP_IMPL_RULE(bias->shape.groups == d->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(BIAS, GROUPS),
                          names->operand[TEGROUP_IMPL_D]->groups, d->shape.groups, bias->shape.groups);
        TEGROUP_IMPL_RULE(bias->shape.rows == 1, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(BIAS, ROWS), "must be 1", 1,
                          bias->shape.rows);
        TEGROUP_IMPL_RULE(bias->shape.cols == n, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(BIAS, COLS),
                          of_d ? "must equal k, the columns of d" : "must equal n, the columns of Y", n,
                          bias->shape.cols);
    }
    return TEGROUP_OK;
}

/* An operand that has memory must have a dtype, too, or it would be left out silently. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_said(const tegroup_gemm_desc *desc,
                                                           const tegroup_impl_names *names, tegroup_error *error) {
    if (desc->c.dtype == TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(tegroup_impl_check_absent(&desc->c, names->operand[TEGROUP_IMPL_C], error));
    if (desc->bias.dtype == TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(tegroup_impl_check_absent(&desc->bias, names->operand[TEGROUP_IMPL_BIAS], error));
    TEGROUP_IMPL_RULE(desc->alpha.space != TEGROUP_SPACE_UNSET || !desc->alpha.data, ERROR_UNSET, "alpha.space",
                      "must be set with data", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE(desc->beta.space != TEGROUP_SPACE_UNSET || !desc->beta.data, ERROR_UNSET, "beta.space",
                      "must be set with data", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, desc->row_scale_dtype != TEGROUP_DTYPE_UNSET || !desc->row_scale, ERROR_UNSET,
                         "row_scale_dtype", "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC void tegroup_impl_operands_of(const tegroup_gemm_desc *desc,
                                                  const tegroup_tensor *operands[TEGROUP_IMPL_OPERANDS]) {
    operands[TEGROUP_IMPL_A] = &desc->a;
    operands[TEGROUP_IMPL_B] = &desc->b;
    operands[TEGROUP_IMPL_C] = &desc->c;
    operands[TEGROUP_IMPL_D] = &desc->d;
    operands[TEGROUP_IMPL_BIAS] = &desc->bias;
}

/* Check a descriptor without its data pointers and resolve its defaults, in the words of whoever made it. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_problem_of(const tegroup_gemm_desc *desc,
                                                           const tegroup_impl_names *names, tegroup_problem *problem,
                                                           tegroup_error *error) {
    const tegroup_tensor *operands[TEGROUP_IMPL_OPERANDS];
    int32_t i;
    int copy;
    tegroup_impl_operands_of(desc, operands);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_numbers(desc, names, error));
    for (i = 0; i < TEGROUP_IMPL_OPERANDS; i++)
        if (operands[i]->dtype != TEGROUP_DTYPE_UNSET || (i != TEGROUP_IMPL_C && i != TEGROUP_IMPL_BIAS))
            TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(operands[i], names->operand[i], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_orders(desc, names, error));
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++)
        for (copy = 0; copy < TEGROUP_IMPL_COPIES && operands[i]->scaling != TEGROUP_SCALING_NONE; copy++)
            TEGROUP_IMPL_TRY(tegroup_impl_check_copy_kind(operands[i], copy, names->operand[i], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_gather(&desc->gather_a, &desc->a, names->operand[TEGROUP_IMPL_A],
                                               TEGROUP_IMPL_A, desc->op, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_gather(&desc->gather_b, &desc->b, names->operand[TEGROUP_IMPL_B],
                                               TEGROUP_IMPL_B, desc->op, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_shapes(desc, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_dtypes(desc, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_extras(desc, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_said(desc, names, error));

    memset(problem, 0, sizeof *problem);
    problem->op = desc->op;
    problem->space = desc->space;
    problem->compute = desc->options.compute;
    problem->groups = desc->a.shape.groups;
    problem->rows = desc->a.shape.rows;
    problem->n = desc->op == TEGROUP_OP_FORWARD ? desc->d.shape.cols : desc->a.shape.cols;
    problem->k = desc->op == TEGROUP_OP_FORWARD ? desc->a.shape.cols : desc->d.shape.cols;
    problem->a = desc->a.dtype;
    problem->b = desc->b.dtype;
    problem->c = desc->c.dtype;
    problem->d = desc->d.dtype;
    problem->bias = desc->bias.dtype;
    problem->row_scale = desc->row_scale_dtype;
    problem->a_scaling = desc->a.scaling;
    problem->b_scaling = desc->b.scaling;
    problem->d_scaling = desc->d.scaling;
    problem->lda = tegroup_impl_ld(&desc->a);
    problem->ldb = tegroup_impl_ld(&desc->b);
    problem->ldc = desc->c.dtype != TEGROUP_DTYPE_UNSET ? tegroup_impl_ld(&desc->c) : 0;
    problem->ldd = tegroup_impl_ld(&desc->d);
    for (i = 0; i < TEGROUP_IMPL_OPERANDS; i++) {
        const tegroup_tensor *t = operands[i];
        if (t->dtype == TEGROUP_DTYPE_UNSET) continue;
        problem->pointers_space[i] = (uint8_t)t->pointers_space;
        if (i == TEGROUP_IMPL_BIAS) continue;
        if (tegroup_impl_ragged(&t->shape)) problem->rows_space[i] = (uint8_t)t->shape.row_sizes.space;
        problem->ragged_cols[i] = t->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET;
        problem->has_elements[i] = t->shape.elements > 0;
        problem->irregular = (uint8_t)(problem->irregular | tegroup_impl_irregular(&t->shape));
    }
    /* the side that is uniform in a regular problem */
    problem->irregular =
        (uint8_t)(problem->irregular
                  | tegroup_impl_ragged(desc->op == TEGROUP_OP_WGRAD ? &desc->d.shape : &desc->b.shape));
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++) {
        problem->scale_dtype[i] = (uint8_t)operands[i]->scale_dtype;
        problem->scale_strides[i] = operands[i]->scale_outer_stride > 0;
        problem->columnwise_order[i] = (uint8_t)operands[i]->columnwise_order;
        problem->code_order[i] = (uint8_t)operands[i]->code_order;
    }
    problem->gathered[TEGROUP_IMPL_A] = desc->gather_a.rows > 0;
    problem->gathered[TEGROUP_IMPL_B] = desc->gather_b.rows > 0;
    problem->alpha_space = (uint8_t)desc->alpha.space;
    problem->beta_space = (uint8_t)desc->beta.space;
    problem->alpha_stride = (uint8_t)(desc->alpha.space != TEGROUP_SPACE_UNSET ? desc->alpha.stride : 0);
    problem->beta_stride = (uint8_t)(desc->beta.space != TEGROUP_SPACE_UNSET ? desc->beta.stride : 0);
    problem->accumulate = (uint8_t)desc->accumulate;
    problem->bias_of_b = (uint8_t)desc->bias_of_b;
    problem->functor = (uint8_t)desc->functor;
    problem->tail = desc->tail;
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm_problem(const tegroup_gemm_desc *desc, tegroup_problem *problem,
                                                tegroup_error *error) {
    tegroup_gemm_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(problem != NULL, ERROR_NULL_ARGUMENT, "problem", "must not be NULL", 1, 0);
    return tegroup_impl_problem_of(desc, tegroup_impl_gemm_names(), problem, error);
}
