/* ---- Quantised operands ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/copies.h"
#include "core/problem.h"
#include "core/product.h"

TEGROUP_IMPL_STATIC int tegroup_impl_quantised(const tegroup_problem *p) {
    return p->a_scaling != TEGROUP_SCALING_NONE || p->b_scaling != TEGROUP_SCALING_NONE;
}

/* Are its scales of 8 bits? A value times such a scale is a number of BF16, exactly or rounded once. */
TEGROUP_IMPL_STATIC int tegroup_impl_scaled_by_8_bits(tegroup_scaling scaling) {
    const tegroup_dtype scales = tegroup_scaling_info(scaling)->scale_dtype;
    return scales == TEGROUP_DTYPE_F8E8M0 || scales == TEGROUP_DTYPE_F8E4M3;
}

/* Does a product read a transposed copy? Asked of a plan; a call that lacks that copy may read the rowwise one. */
TEGROUP_IMPL_STATIC int tegroup_impl_plans_transposed(const tegroup_problem *p, tegroup_impl_operand operand) {
    return (operand == TEGROUP_IMPL_A ? p->a_scaling : p->b_scaling) != TEGROUP_SCALING_NONE
           && tegroup_impl_sums_rows(p->op, operand) && p->columnwise_order[operand] == TEGROUP_COLUMNWISE_TRANSPOSED;
}

/* Does a sum over a tensor's rows read its columnwise copy? Where a scale is chosen for as many rows as columns (a
 * group, or a square block), values are the same along both, and the rowwise copy serves where there is no other; not
 * where its codes are interleaved, which are together along rows. */
TEGROUP_IMPL_STATIC int tegroup_impl_needs_columnwise(const tegroup_tensor *t) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    return t->columnwise_data || t->columnwise_pointers || tegroup_impl_keeps_values(t)
           || facts->choice_outer != facts->block_inner || t->code_order == TEGROUP_CODES_INTERLEAVED;
}

/* Which copy of a or b a product reads. */
TEGROUP_IMPL_STATIC int tegroup_impl_reads_columnwise(const tegroup_gemm_desc *desc, tegroup_impl_operand operand) {
    const tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b;
    if (t->scaling == TEGROUP_SCALING_NONE || !tegroup_impl_sums_rows(desc->op, operand)) return 0;
    return tegroup_impl_needs_columnwise(t);
}

/* The operand with that copy in the place of the rowwise one. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_as_read(const tegroup_gemm_desc *desc, tegroup_impl_operand operand) {
    return tegroup_impl_with_copy(operand == TEGROUP_IMPL_A ? &desc->a : &desc->b,
                                  tegroup_impl_reads_columnwise(desc, operand));
}

/* What all values of a group are multiplied by. */
TEGROUP_IMPL_HD double tegroup_impl_global_scale(const tegroup_tensor *t, int32_t g) {
    return t->global_scale_inv ? tegroup_impl_f64_of_f32(t->global_scale_inv[g]) : 1;
}

/* Alpha times that of both operands. otherwise: alpha where the descriptor has none. */
TEGROUP_IMPL_HD float tegroup_impl_scaled_alpha(const tegroup_gemm_desc *desc, int32_t g, double otherwise) {
    return (float)(tegroup_impl_scalar(&desc->alpha, g, otherwise) * tegroup_impl_global_scale(&desc->a, g)
                   * tegroup_impl_global_scale(&desc->b, g));
}

/* A quantised operand of one group, as lines of m or n that a product sums along k. Element k of a line is at
 * first + line * line_stride + k * k_stride of `data`. */
typedef struct tegroup_impl_scaled {
    const tegroup_scaling_facts *facts; /* NULL: the operand is not quantised                             */
    const void *data, *scales;          /* of the group, or of all                                        */
    int64_t first, line_stride, k_stride;
    tegroup_impl_scale_grid grid;     /* where the group's scales are                                   */
    double global;                    /* what all values of the group are multiplied by                 */
    tegroup_dtype dtype, scale_dtype; /* of the elements, and of what the grid counts                   */
    int32_t columnwise, sums_rows, interleaved; /* the last: its codes, along k                         */
    int64_t elements, stored; /* elements of a transposed copy, and scales, that the groups up to this one take */
} tegroup_impl_scaled;

/* Before the first group of one copy. sums_rows: are lines columns, and k rows? */
TEGROUP_IMPL_STATIC tegroup_impl_scaled tegroup_impl_scaled_copy(const tegroup_tensor *t, int columnwise,
                                                                 int sums_rows) {
    tegroup_impl_scaled scaled;
    memset(&scaled, 0, sizeof scaled);
    if (t->scaling == TEGROUP_SCALING_NONE) return scaled;
    scaled.facts = tegroup_scaling_info(t->scaling);
    scaled.dtype = t->dtype;
    scaled.scale_dtype = tegroup_impl_one_scale(t, scaled.facts);
    scaled.columnwise = columnwise;
    scaled.sums_rows = sums_rows;
    scaled.interleaved = t->code_order == TEGROUP_CODES_INTERLEAVED;
    return scaled;
}

/* desc: as the caller made it, or with operands as they are read. */
TEGROUP_IMPL_STATIC tegroup_impl_scaled tegroup_impl_scaled_of(const tegroup_gemm_desc *desc,
                                                               tegroup_impl_operand operand) {
    return tegroup_impl_scaled_copy(operand == TEGROUP_IMPL_A ? &desc->a : &desc->b,
                                    tegroup_impl_reads_columnwise(desc, operand),
                                    tegroup_impl_sums_rows(desc->op, operand));
}

/* Goes on to group g, the one after the last. t: the operand as it is read. */
TEGROUP_IMPL_HD void tegroup_impl_scaled_next(tegroup_impl_scaled *scaled, const tegroup_tensor *t,
                                              const tegroup_snapshot_view *view, int32_t g) {
    const tegroup_impl_elements at = tegroup_impl_elements_after(t, view, g, scaled->columnwise, scaled->elements);
    const int listed = tegroup_impl_listed(t);
    scaled->grid = tegroup_impl_scale_grid_after(t, scaled->facts, view, g, scaled->columnwise, scaled->stored);
    scaled->data = listed ? t->pointers[g] : t->data;
    scaled->scales = listed ? t->scale_pointers[g] : t->scale_inv;
    scaled->first = at.first;
    scaled->line_stride = scaled->sums_rows ? at.col_stride : at.row_stride;
    scaled->k_stride = scaled->sums_rows ? at.row_stride : at.col_stride;
    scaled->global = tegroup_impl_global_scale(t, g);
    scaled->elements += tegroup_impl_transposed_count(tegroup_impl_group_sides(t, view, g));
    scaled->stored += scaled->grid.count;
}

/* The index of the scale of element k of a line, and in *shared how many from k on have it. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_index_along(const tegroup_impl_scaled *scaled, int64_t line, int64_t k,
                                                       int64_t *shared) {
    const int k_is_inner = scaled->sums_rows == scaled->columnwise;
    const int64_t at =
        k_is_inner ? tegroup_impl_scale_at(&scaled->grid, line, k) : tegroup_impl_scale_at(&scaled->grid, k, line);
    *shared = tegroup_impl_scale_shared(&scaled->grid, k, !k_is_inner);
    return at;
}
TEGROUP_IMPL_HD double tegroup_impl_scale_along(const tegroup_impl_scaled *scaled, int64_t line, int64_t k,
                                                int64_t *shared) {
    const int64_t at = tegroup_impl_scale_index_along(scaled, line, k, shared);
    return tegroup_impl_load_f64(scaled->scale_dtype, scaled->scales, at);
}
