/* ---- The product of one group ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/tensor.h"
#include "core/field_names.h"

/* The row of its data from which row r of a gathered operand comes; -1: the row is of zeros. */
TEGROUP_IMPL_HD int64_t tegroup_impl_gathered(const tegroup_gather *gather, int64_t r) {
    const int64_t slot = gather->slot_of_row[r], row = slot < 0 || gather->slots <= 1 ? slot : slot / gather->slots;
    return row >= 0 && row < gather->rows ? row : -1;
}

/* The element where row r of a group begins, of an operand that may be gathered; -1: the row is of zeros. */
TEGROUP_IMPL_HD int64_t tegroup_impl_row_at(const tegroup_gather *gather, const tegroup_impl_block *block, int64_t r) {
    int64_t row;
    if (gather->rows == 0) return block->first + r * block->ld;
    row = tegroup_impl_gathered(gather, block->row0 + r);
    return row < 0 ? -1 : row * block->ld;
}

/* D = alpha * A' * B' + beta * C for one group, with A' [m, k] and B' [k, n] given by strides. */
typedef struct tegroup_impl_product {
    int64_t m, n, k;
    tegroup_impl_block a, b, c, d, bias;
    int64_t a_line, a_k, b_line, b_k; /* strides in elements: between lines of m (or n), and along k */
    double alpha, beta;
    int32_t skip;      /* the sizes say that this group is not to be touched */
    int32_t untouched; /* D is its own C, and nothing is added to it         */
} tegroup_impl_product;

TEGROUP_IMPL_HD double tegroup_impl_scalar(const tegroup_scalars *s, int32_t g, double otherwise) {
    if (s->space == TEGROUP_SPACE_UNSET) return otherwise;
    return tegroup_impl_load_f64(s->dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, s->data,
                                 s->stride ? g : 0);
}

/* Extents of a group's product, [m, k] times [k, n]. */
typedef struct tegroup_impl_meeting {
    int64_t m, n, k;
} tegroup_impl_meeting;

/* Operands whose sizes disagree, because their snapshots do, meet in the smaller one. */
TEGROUP_IMPL_HD tegroup_impl_meeting tegroup_impl_meet(tegroup_op op, tegroup_impl_sides a, tegroup_impl_sides b,
                                                       tegroup_impl_sides d) {
    const int forward = op == TEGROUP_OP_FORWARD, wgrad = op == TEGROUP_OP_WGRAD;
    tegroup_impl_meeting size;
    size.m = tegroup_impl_min(wgrad ? a.cols : a.rows, d.rows);
    size.n = tegroup_impl_min(forward ? b.rows : b.cols, d.cols);
    size.k = tegroup_impl_min(wgrad ? a.rows : a.cols, forward ? b.cols : b.rows);
    return size;
}

/* A C whose own snapshot is smaller bounds the product, too. */
TEGROUP_IMPL_HD void tegroup_impl_meet_c(tegroup_impl_meeting *size, tegroup_impl_sides c) {
    size->m = tegroup_impl_min(size->m, c.rows);
    size->n = tegroup_impl_min(size->n, c.cols);
}

/* The product of group g. alpha and beta are the defaults for scalars that the descriptor leaves out. */
TEGROUP_IMPL_HD tegroup_impl_product tegroup_impl_product_of(const tegroup_gemm_desc *desc,
                                                             const tegroup_snapshot_view views[4], int32_t g,
                                                             double alpha, double beta) {
    tegroup_impl_product p;
    tegroup_impl_sides a, b, d;
    tegroup_impl_meeting size;
    const tegroup_tensor *c = desc->accumulate ? &desc->d : &desc->c;
    memset(&p, 0, sizeof p);
    p.a = tegroup_impl_locate(&desc->a, &views[TEGROUP_IMPL_A], g);
    p.b = tegroup_impl_locate(&desc->b, &views[TEGROUP_IMPL_B], g);
    p.d = tegroup_impl_locate(&desc->d, &views[TEGROUP_IMPL_D], g);
    if (c->dtype != TEGROUP_DTYPE_UNSET)
        p.c = tegroup_impl_locate(c, &views[desc->accumulate ? TEGROUP_IMPL_D : TEGROUP_IMPL_C], g);
    if (desc->bias.dtype != TEGROUP_DTYPE_UNSET) p.bias = tegroup_impl_locate(&desc->bias, NULL, g);
    p.alpha = tegroup_impl_scalar(&desc->alpha, g, alpha);
    p.beta = desc->accumulate ? 1 : tegroup_impl_scalar(&desc->beta, g, beta);
    p.skip = p.a.rows < 0 || p.b.rows < 0 || p.d.rows < 0;
    a = tegroup_impl_sides_of(p.a.rows, p.a.cols);
    b = tegroup_impl_sides_of(p.b.rows, p.b.cols);
    d = tegroup_impl_sides_of(p.d.rows, p.d.cols);
    if (desc->op == TEGROUP_OP_WGRAD) {
        size = tegroup_impl_meet(TEGROUP_OP_WGRAD, a, b, d);
        p.a_line = 1;
        p.a_k = p.a.ld;
        p.b_line = 1;
        p.b_k = p.b.ld;
    } else {
        int forward = desc->op == TEGROUP_OP_FORWARD;
        size = tegroup_impl_meet(forward ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, a, b, d);
        p.a_line = p.a.ld;
        p.a_k = 1;
        p.b_line = forward ? p.b.ld : 1;
        p.b_k = forward ? 1 : p.b.ld;
    }
    if (c->dtype != TEGROUP_DTYPE_UNSET) tegroup_impl_meet_c(&size, tegroup_impl_sides_of(p.c.rows, p.c.cols));
    p.m = size.m;
    p.n = size.n;
    p.k = size.k;
    p.untouched = p.k == 0 && p.beta == 1 && !desc->functor && p.c.base == p.d.base && p.c.first == p.d.first
                  && (desc->bias.dtype == TEGROUP_DTYPE_UNSET || desc->op == TEGROUP_OP_WGRAD);
    return p;
}

/* Rows in one group of the operand that bias belongs to. */
TEGROUP_IMPL_HD const tegroup_impl_block *tegroup_impl_biased_block(const tegroup_gemm_desc *desc,
                                                                    const tegroup_impl_product *p) {
    return desc->bias_of_b ? &p->b : &p->a;
}

/* The element where row r of a group begins that a wgrad sums for bias; -1: the row is of zeros. */
TEGROUP_IMPL_HD int64_t tegroup_impl_biased_row_at(const tegroup_gemm_desc *desc, const tegroup_impl_product *p,
                                                   int64_t r) {
    return tegroup_impl_row_at(desc->bias_of_b ? &desc->gather_b : &desc->gather_a, tegroup_impl_biased_block(desc, p),
                               r);
}

/* Which operands of the group are looked at, or written: a bit each, by tegroup_impl_operand. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_uses(const tegroup_gemm_desc *desc, const tegroup_impl_product *p) {
    const int has_bias = desc->bias.dtype != TEGROUP_DTYPE_UNSET, wgrad = desc->op == TEGROUP_OP_WGRAD;
    const tegroup_impl_block *summed = tegroup_impl_biased_block(desc, p);
    uint32_t used = 0;
    if (p->skip) return 0;
    if (p->m > 0 && p->n > 0 && !p->untouched) {
        used |= 1u << TEGROUP_IMPL_D;
        if (p->k > 0) used |= 1u << TEGROUP_IMPL_A | 1u << TEGROUP_IMPL_B;
        if (p->beta != 0) used |= 1u << TEGROUP_IMPL_C;
        if (has_bias && !wgrad) used |= 1u << TEGROUP_IMPL_BIAS;
    }
    if (has_bias && wgrad && tegroup_impl_min(summed->cols, p->bias.cols) > 0
        && (summed->rows > 0 || !desc->accumulate)) {
        used |= 1u << TEGROUP_IMPL_BIAS;
        if (summed->rows > 0) used |= 1u << (desc->bias_of_b ? TEGROUP_IMPL_B : TEGROUP_IMPL_A);
    }
    return used;
}
