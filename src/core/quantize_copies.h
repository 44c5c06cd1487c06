/* ---- Quantise: where a group's copies are, and its one number ---- */

#pragma once
#include "base/version.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "layer/quantize_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "formats/scale_rule.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"

/* Work is cut into tiles: no block of a scaling reaches over the edge of one, but for those of all rows or columns. */
enum { TEGROUP_IMPL_QUANTIZE_TILE = 128 };

/* A copy of one group. data NULL: it is not there. */
typedef struct tegroup_impl_copy {
    char *data, *scales;
    tegroup_impl_elements at;
    tegroup_impl_scale_grid grid;
} tegroup_impl_copy;

/* What the groups before a group take in the copies' buffers: scales of each, and elements of a transposed one. */
typedef struct tegroup_impl_before {
    int64_t scales[TEGROUP_IMPL_COPIES], transposed;
} tegroup_impl_before;

/* ... and a group of these extents more. */
TEGROUP_IMPL_HD void tegroup_impl_pass_group(const tegroup_tensor *t, const tegroup_scaling_facts *facts,
                                             tegroup_impl_sides sides, tegroup_impl_before *before) {
    int copy;
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++)
        before->scales[copy] += tegroup_impl_scale_grid_alone(t, facts, sides, copy).count;
    before->transposed += tegroup_impl_transposed_count(sides);
}

/* A copy of group g, whose place in the tensor is `block`, and whose scales would lie as the grid says if it were the
 * first. */
TEGROUP_IMPL_HD tegroup_impl_copy tegroup_impl_copy_with(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                         int32_t g, int columnwise, const tegroup_impl_before *before,
                                                         const tegroup_impl_block *block, int64_t rows,
                                                         const tegroup_impl_scale_grid *grid) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    tegroup_impl_copy copy;
    copy.data = (char *)(memory.pointers ? memory.pointers[g] : memory.data);
    copy.scales = (char *)(memory.scale_pointers ? memory.scale_pointers[g] : memory.scales);
    copy.at = tegroup_impl_elements_in(t, block, rows, columnwise, before->transposed);
    copy.grid = *grid;
    copy.grid.base = tegroup_impl_scale_grid_base(t, grid, view, g, columnwise, before->scales[columnwise]);
    return copy;
}
TEGROUP_IMPL_HD tegroup_impl_copy tegroup_impl_copy_of(const tegroup_tensor *t, const tegroup_scaling_facts *facts,
                                                       const tegroup_snapshot_view *view, int32_t g, int columnwise,
                                                       const tegroup_impl_before *before) {
    const tegroup_impl_block block = tegroup_impl_block_of(t, view, g);
    const tegroup_impl_sides sides = tegroup_impl_block_sides(t, view, &block);
    const tegroup_impl_scale_grid grid = tegroup_impl_scale_grid_alone(t, facts, sides, columnwise);
    return tegroup_impl_copy_with(t, view, g, columnwise, before, &block, sides.rows, &grid);
}

TEGROUP_IMPL_HD int64_t tegroup_impl_element_of(const tegroup_impl_copy *copy, int64_t row, int64_t col) {
    return copy->at.first + row * copy->at.row_stride + col * copy->at.col_stride;
}

/* The blocks beside a tile whose first element is `first` end here: where the next tile's begin, or with the last one's
 * that are stored. shift: of a block's extent. */
TEGROUP_IMPL_HD int64_t tegroup_impl_blocks_end(int64_t first, int32_t shift, int64_t count, int64_t extent) {
    const int64_t next = (first + TEGROUP_IMPL_QUANTIZE_TILE) >> shift;
    return next < count ? next : extent;
}

/* What is one number a group: the scale of TENSOR in both copies, the global scale. amax: the group's, where the scales
 * wait for it. Returns what tegroup_impl_scale_block takes as `global`. */
TEGROUP_IMPL_HD float tegroup_impl_group_global(const tegroup_quantize_desc *desc, int32_t g) {
    if (desc->rule.method == TEGROUP_SCALE_GIVEN) return desc->output.scale[g];
    return desc->output.global_scale_inv ? tegroup_impl_scale_global(desc->output.amax[g]) : 1.0f;
}
/* The scale of TENSOR. */
TEGROUP_IMPL_HD tegroup_block_scale tegroup_impl_group_scale(const tegroup_quantize_desc *desc,
                                                             const tegroup_scaling_facts *facts, int32_t g) {
    const tegroup_tensor *t = &desc->output;
    return tegroup_impl_scale_block(&desc->rule, t->dtype, tegroup_impl_one_scale(t, facts),
                                    t->amax ? t->amax[g] : 0.0f, tegroup_impl_group_global(desc, g));
}
/* Stores these; one is the scale of TENSOR. */
TEGROUP_IMPL_HD void tegroup_impl_store_group(const tegroup_quantize_desc *desc, const tegroup_scaling_facts *facts,
                                              const tegroup_block_scale *one, int32_t g) {
    const tegroup_tensor *t = &desc->output;
    const float global = tegroup_impl_group_global(desc, g);
    int copy;
    if (t->global_scale_inv)
        t->global_scale_inv[g] =
            tegroup_impl_is_nan(global) ? tegroup_impl_f32_of_bits(0x7fffffffu) : tegroup_impl_inverse_f32(global);
    if (!tegroup_impl_scaled_as_one(facts)) return;
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++) {
        const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, copy);
        void *const scales = memory.scale_pointers ? memory.scale_pointers[g] : memory.scales;
        if (scales)
            tegroup_impl_store_code(tegroup_impl_one_scale(t, facts), scales, memory.scale_pointers ? 0 : g, one->bits);
    }
}
