/* ---- Set-up of a grouped cuBLASLt matmul: quantised operands ---- */

#pragma once
#include "base/version.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/quantised.h"
#include "cuda/cublaslt_setup.h"

/* What quantised rows take of memory that groups have one after another: whole granules of 2^shift rows, or one a group
 * however many rows it has. */
typedef struct tegroup_impl_setup_granules {
    int64_t bytes; /* of a granule */
    int32_t shift, one;
} tegroup_impl_setup_granules;

/* What the set-up needs of a quantised operand besides the call. */
typedef struct tegroup_impl_setup_scaled {
    char *scales;
    void *const *scale_pointers; /* NULL: one buffer, `scales`        */
    const float *global;         /* of NVFP4's groups; NULL: 1        */
    int64_t starts;              /* bits that the address of a group's scales must not have */
    int32_t transposed;
    tegroup_impl_setup_granules of_scales, of_copy; /* of_copy: of the transposed one */
} tegroup_impl_setup_scaled;

/* Granules that the groups before one take. */
typedef struct tegroup_impl_setup_taken {
    int64_t scales, copy;
} tegroup_impl_setup_taken;

/* Puts the copies that are read in the place of the rowwise ones. */
TEGROUP_IMPL_STATIC void tegroup_impl_setup_take_copies(tegroup_gemm_desc *desc) {
    const tegroup_tensor a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A), b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    desc->a = a;
    desc->b = b;
}

/* What the low bits of a group's scales' address must not have: one scale is read as it lies, more by 16 bytes. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_setup_scale_starts(const tegroup_scaling_facts *facts) {
    return tegroup_impl_scaled_as_one(facts) ? 3 : 15;
}

/* desc: with the copies that are read. */
TEGROUP_IMPL_STATIC tegroup_impl_setup_scaled tegroup_impl_setup_scaled_of(const tegroup_gemm_desc *desc,
                                                                           tegroup_impl_operand operand) {
    const tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b;
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const int columnwise = tegroup_impl_reads_columnwise(desc, operand);
    const int64_t rows = columnwise ? facts->block_inner * facts->pad_inner : facts->block_outer * facts->pad_outer;
    const tegroup_impl_scale_grid grid =
        tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_sides_of(rows, t->shape.cols), columnwise);
    const int64_t copied = tegroup_impl_transposed_count(tegroup_impl_sides_of(TEGROUP_TRANSPOSED_ROWS, t->shape.cols));
    tegroup_impl_setup_scaled scaled;
    memset(&scaled, 0, sizeof scaled);
    scaled.scales = (char *)t->scale_inv;
    if (tegroup_impl_listed(t)) scaled.scale_pointers = t->scale_pointers;
    scaled.global = t->global_scale_inv;
    scaled.starts = tegroup_impl_setup_scale_starts(facts);
    scaled.transposed = tegroup_impl_transposed(t, columnwise);
    scaled.of_scales.bytes =
        tegroup_impl_mul(grid.count, tegroup_impl_scale_element(tegroup_impl_scale_dtype(t, facts)));
    scaled.of_scales.shift = tegroup_impl_shift_of(rows);
    scaled.of_scales.one = tegroup_impl_scaled_as_one(facts);
    scaled.of_copy.bytes = tegroup_impl_mul(copied, tegroup_impl_bits(t->dtype)) / 8;
    scaled.of_copy.shift = tegroup_impl_shift_of(TEGROUP_TRANSPOSED_ROWS);
    return scaled;
}

TEGROUP_IMPL_HD int64_t tegroup_impl_setup_granules_of(const tegroup_impl_setup_granules *granules, int64_t rows) {
    const int64_t whole = ((int64_t)1 << granules->shift) - 1;
    return granules->one ? 1 : (tegroup_impl_max(0, rows) + whole) >> granules->shift;
}

/* Adds what group g takes. Only of prepared snapshots. */
TEGROUP_IMPL_HD void tegroup_impl_setup_take(const tegroup_impl_setup_scaled *scaled,
                                             const tegroup_impl_setup_operand *o, int32_t g,
                                             tegroup_impl_setup_taken *taken) {
    const int64_t rows = o->ragged ? o->rows_at[g] : o->rows;
    taken->scales += tegroup_impl_setup_granules_of(&scaled->of_scales, rows);
    taken->copy += tegroup_impl_setup_granules_of(&scaled->of_copy, rows);
}

/* Turns a part that was read as plain rows into the group's part of a transposed copy. */
TEGROUP_IMPL_HD void tegroup_impl_setup_transpose(const tegroup_impl_setup_scaled *scaled,
                                                  const tegroup_impl_setup_operand *o,
                                                  const tegroup_impl_setup_taken *before,
                                                  tegroup_impl_setup_part *part) {
    const int64_t granules = tegroup_impl_setup_granules_of(&scaled->of_copy, part->rows);
    if (!o->pointers) part->base += before->copy * scaled->of_copy.bytes;
    part->begin = 0;
    part->ld = tegroup_impl_max(1, granules) * TEGROUP_TRANSPOSED_ROWS;
}

/* Fills in the entries of group g of quantised operands. before: of a and b, what the groups before it take. The scales
 * of NVFP4's groups go into alpha, multiplied in FP64 as in the other backends. */
TEGROUP_IMPL_HD void tegroup_impl_setup_scaled_group(const tegroup_impl_setup_call *call,
                                                     const tegroup_impl_setup_scaled scaled[2],
                                                     const tegroup_impl_setup_taken before[2], int prepared, int32_t g,
                                                     tegroup_impl_setup *s) {
    tegroup_impl_setup_parts parts;
    double alpha;
    int32_t i;
    tegroup_impl_setup_read_group(call, 0, prepared, g, &parts, s);
    parts.odd_scales = !prepared;
    alpha = tegroup_impl_f64_of_f32(s->alpha);
    for (i = 0; i < 2 && prepared; i++) {
        const tegroup_impl_setup_scaled *of = &scaled[i];
        if (of->transposed)
            tegroup_impl_setup_transpose(of, i == TEGROUP_IMPL_A ? &call->a : &call->b, &before[i],
                                         i == TEGROUP_IMPL_A ? &parts.a : &parts.b);
        parts.scales[i] = (int64_t)(uintptr_t)(of->scale_pointers ? of->scale_pointers[g] : of->scales);
        if (!of->scale_pointers) parts.scales[i] += before[i].scales * of->of_scales.bytes;
        if (!parts.scales[i] || (parts.scales[i] & of->starts)) parts.odd_scales = 1;
        if (of->global) alpha *= tegroup_impl_f64_of_f32(of->global[g]);
    }
    s->alpha = tegroup_impl_f32_of_f64(alpha);
    tegroup_impl_setup_entries(call, 0, &parts, g, s);
}
