/* ---- Where a group's scales and its copies are ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"

/* An extent that no tensor has. Blocks are powers of two, so that a kernel need not divide by them. */
#define TEGROUP_IMPL_BLOCK_OF_ALL ((int64_t)1 << 62)

TEGROUP_IMPL_HD int32_t tegroup_impl_shift_of(int64_t block) {
#if defined(__CUDA_ARCH__)
    return 63 - __clzll(block);
#else
    int32_t shift = 0;
    while (block >> shift > 1) shift++;
    return shift;
#endif
}

/* Blocks of 2^shift elements in `extent`, and a multiple of a power of two: divisions are long on a GPU. */
TEGROUP_IMPL_HD int64_t tegroup_impl_blocks_of(int64_t extent, int32_t shift) {
    return (extent >> shift) + ((extent & (((int64_t)1 << shift) - 1)) != 0);
}
TEGROUP_IMPL_HD int64_t tegroup_impl_pad(int64_t count, int64_t power) {
    return count > INT64_MAX - power ? INT64_MAX : (count + power - 1) & -power;
}

/* The scales of one copy of one group. Indices are those of scales (of I32: of exponents, four a word). */
typedef struct tegroup_impl_scale_grid {
    int64_t base;                       /* the group's first scale in the buffer, or in its own                       */
    int64_t outer_stride, inner_stride; /* swizzled: outer_stride is the stored inner extent; packed: inner_stride is
                                           that of four blocks                                                     */
    int64_t part_stride, part_rows;     /* from a part to the next, in scales; rows of one                           */
    int64_t outer_count, inner_count;   /* blocks that hold elements, of one part                                    */
    int64_t outer_extent, inner_extent; /* those that are stored, padding included                                   */
    int64_t count;                      /* stored scales of all parts; saturates                                     */
    int64_t block_outer, block_inner;   /* elements of a block, a power of two; TEGROUP_IMPL_BLOCK_OF_ALL = all      */
    int32_t outer_shift, inner_shift;   /* their logarithms                                                          */
    int32_t pad_outer, pad_inner;       /* the extents are multiples of these                                        */
    int32_t parts, swizzled, packed, columnwise;
} tegroup_impl_scale_grid;

/* Does the columnwise copy hold values as they were, and no codes? */
TEGROUP_IMPL_HD int tegroup_impl_keeps_values(const tegroup_tensor *t) {
    return t->columnwise_order >= TEGROUP_COLUMNWISE_BF16;
}

/* Are the scales of a copy at strides? Those of the columnwise one never are. */
TEGROUP_IMPL_HD int tegroup_impl_scales_strided(const tegroup_tensor *t, int columnwise) {
    return !columnwise && t->scale_outer_stride > 0;
}

/* The extents of a group whose place is `block`. It has no rows where it is skipped, and where a snapshot that somebody
 * wrote over leads out of the tensor. */
TEGROUP_IMPL_HD tegroup_impl_sides tegroup_impl_block_sides(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                            const tegroup_impl_block *block) {
    const int ragged = view && view->rows,
              there = !ragged
                      || (tegroup_impl_within(block->rows, t->shape.rows + 1)
                          && tegroup_impl_within(block->row0, t->shape.rows - block->rows + 1)
                          && tegroup_impl_within(block->cols, t->shape.cols + 1));
    return tegroup_impl_sides_of(there ? block->rows : 0, there ? block->cols : 0);
}
TEGROUP_IMPL_HD tegroup_impl_sides tegroup_impl_group_sides(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                            int32_t g) {
    const tegroup_impl_block block = tegroup_impl_block_of(t, view, g);
    return tegroup_impl_block_sides(t, view, &block);
}

/* What the scales of a copy are, whatever its groups' extents: what tegroup_impl_scale_grid_size adds to, once. facts:
 * of t's scaling. */
TEGROUP_IMPL_HD tegroup_impl_scale_grid tegroup_impl_scale_grid_of_any(const tegroup_tensor *t,
                                                                       const tegroup_scaling_facts *facts,
                                                                       int columnwise) {
    const int strided = tegroup_impl_scales_strided(t, columnwise), packed = t->scale_dtype == TEGROUP_DTYPE_I32;
    const int64_t word = packed ? 4 : 1;
    tegroup_impl_scale_grid grid;
    memset(&grid, 0, sizeof grid);
    grid.columnwise = columnwise;
    grid.packed = packed;
    grid.swizzled = facts->swizzled && !strided && !packed;
    grid.parts = t->scale_parts > 1 ? t->scale_parts : 1;
    grid.part_rows = grid.parts > 1 ? t->shape.rows / grid.parts : 0; /* Groups with parts are uniform. */
    grid.block_outer = facts->block_outer > 0 ? facts->block_outer : TEGROUP_IMPL_BLOCK_OF_ALL;
    grid.block_inner = facts->block_inner > 0 ? facts->block_inner : TEGROUP_IMPL_BLOCK_OF_ALL;
    grid.outer_shift = tegroup_impl_shift_of(grid.block_outer);
    grid.inner_shift = tegroup_impl_shift_of(grid.block_inner);
    grid.pad_outer = strided ? 1 : packed ? 4 : facts->pad_outer;
    grid.pad_inner = packed ? 4 : strided ? 1 : facts->pad_inner;
    grid.outer_stride = word;
    grid.inner_stride = 1;
    if (strided) {
        grid.outer_stride = tegroup_impl_mul(t->scale_outer_stride, word);
        grid.inner_stride = tegroup_impl_mul(t->scale_inner_stride, word);
    }
    return grid;
}

/* A product that counts what a group has in a copy. A kernel need not look whether it is too large: its groups lie
 * within the tensor, whose copies the host has counted. */
TEGROUP_IMPL_HD int64_t tegroup_impl_within_buffer(int64_t a, int64_t b) {
#if defined(__CUDA_ARCH__)
    return a * b;
#else
    return tegroup_impl_mul(a, b);
#endif
}

/* The same of a group of these extents, as if it were the first. */
TEGROUP_IMPL_HD void tegroup_impl_scale_grid_size(tegroup_impl_scale_grid *grid, const tegroup_tensor *t,
                                                  const tegroup_scaling_facts *facts, tegroup_impl_sides sides) {
    if (grid->parts == 1) grid->part_rows = sides.rows;
    if ((sides.rows > 0 && sides.cols > 0) || tegroup_impl_scaled_as_one(facts)) {
        const int64_t outer = grid->columnwise ? sides.cols : grid->part_rows,
                      inner = grid->columnwise ? grid->part_rows : sides.cols;
        grid->outer_count = facts->block_outer > 0 ? tegroup_impl_blocks_of(outer, grid->outer_shift) : 1;
        grid->inner_count = facts->block_inner > 0 ? tegroup_impl_blocks_of(inner, grid->inner_shift) : 1;
    }
    grid->outer_extent = tegroup_impl_pad(grid->outer_count, grid->pad_outer);
    grid->inner_extent = tegroup_impl_pad(grid->inner_count, grid->pad_inner);
    grid->part_stride = tegroup_impl_within_buffer(grid->outer_extent, grid->inner_extent);
    grid->count = tegroup_impl_within_buffer(grid->part_stride, grid->parts);
    if (tegroup_impl_scales_strided(t, grid->columnwise))
        grid->part_stride = tegroup_impl_within_buffer(grid->outer_count, grid->outer_stride);
    else if (grid->packed || facts->outer_fastest)
        grid->inner_stride = tegroup_impl_within_buffer(grid->outer_extent, grid->outer_stride);
    else grid->outer_stride = grid->inner_extent;
}
TEGROUP_IMPL_HD tegroup_impl_scale_grid tegroup_impl_scale_grid_alone(const tegroup_tensor *t,
                                                                      const tegroup_scaling_facts *facts,
                                                                      tegroup_impl_sides sides, int columnwise) {
    tegroup_impl_scale_grid grid = tegroup_impl_scale_grid_of_any(t, facts, columnwise);
    tegroup_impl_scale_grid_size(&grid, t, facts, sides);
    return grid;
}

/* Where the scales of group g begin, of whose buffer the groups before take `before`: a loop that walks the groups in
 * order begins with 0 and adds count. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_grid_base(const tegroup_tensor *t, const tegroup_impl_scale_grid *grid,
                                                     const tegroup_snapshot_view *view, int32_t g, int columnwise,
                                                     int64_t before) {
    if (tegroup_impl_listed(t)) return 0;
    if (!tegroup_impl_scales_strided(t, columnwise)) return before;
    if (grid->outer_count == 0) return 0;
    if (view && view->rows) return view->start[g] * grid->outer_stride;
    return g * grid->parts * grid->part_stride;
}
TEGROUP_IMPL_HD tegroup_impl_scale_grid tegroup_impl_scale_grid_after(const tegroup_tensor *t,
                                                                      const tegroup_scaling_facts *facts,
                                                                      const tegroup_snapshot_view *view, int32_t g,
                                                                      int columnwise, int64_t before) {
    tegroup_impl_scale_grid grid =
        tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_group_sides(t, view, g), columnwise);
    grid.base = tegroup_impl_scale_grid_base(t, &grid, view, g, columnwise, before);
    return grid;
}

/* Scales that the groups before g take in the default packing. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scales_before(const tegroup_tensor *t, const tegroup_scaling_facts *facts,
                                                   const tegroup_snapshot_view *view, int32_t g, int columnwise) {
    int64_t before = 0;
    int32_t h;
    if (!view || !view->rows)
        return g * tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_group_sides(t, view, g), columnwise).count;
    for (h = 0; h < g; h++)
        before += tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_group_sides(t, view, h), columnwise).count;
    return before;
}

TEGROUP_IMPL_HD tegroup_impl_scale_grid tegroup_impl_scale_grid_of(const tegroup_tensor *t,
                                                                   const tegroup_scaling_facts *facts,
                                                                   const tegroup_snapshot_view *view, int32_t g,
                                                                   int columnwise) {
    const int alone = tegroup_impl_listed(t) || tegroup_impl_scales_strided(t, columnwise);
    return tegroup_impl_scale_grid_after(t, facts, view, g, columnwise,
                                         alone ? 0 : tegroup_impl_scales_before(t, facts, view, g, columnwise));
}

/* The index of the scale of one block of one part. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_of_block(const tegroup_impl_scale_grid *grid, int64_t part, int64_t outer,
                                                    int64_t inner) {
    const int64_t first = grid->base + part * grid->part_stride;
    if (grid->swizzled) return first + tegroup_impl_swizzled(grid->outer_stride, outer, inner);
    if (grid->packed) return first + outer * grid->outer_stride + (inner >> 2) * grid->inner_stride + (inner & 3);
    return first + outer * grid->outer_stride + inner * grid->inner_stride;
}

/* The index of the scale of one element: its row and column, or in the columnwise copy its column and row. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_at(const tegroup_impl_scale_grid *grid, int64_t outer, int64_t inner) {
    int64_t part = 0;
    if (grid->parts > 1) {
        int64_t *row = grid->columnwise ? &inner : &outer;
        part = *row / grid->part_rows;
        *row -= part * grid->part_rows;
    }
    return tegroup_impl_scale_of_block(grid, part, outer >> grid->outer_shift, inner >> grid->inner_shift);
}

/* Elements, from this one on along the outer or the inner index, that share its scale. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_shared(const tegroup_impl_scale_grid *grid, int64_t at, int along_outer) {
    const int64_t block = along_outer ? grid->block_outer : grid->block_inner;
    if (grid->parts == 1 || along_outer == grid->columnwise) return block - (at & (block - 1));
    at %= grid->part_rows;
    return tegroup_impl_min(block - (at & (block - 1)), grid->part_rows - at);
}

/* Scales from the buffer's first to the end of those of a group; of the default packing with its padding. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_end(const tegroup_impl_scale_grid *grid, int strided) {
    if (!strided) return tegroup_impl_add(grid->base, grid->count);
    if (grid->count == 0) return grid->base;
    return tegroup_impl_scale_of_block(grid, grid->parts - 1, grid->outer_extent - 1, grid->inner_extent - 1) + 1;
}

/* The most blocks of `extent` rows that groups of together `rows` rows have: the first row of a group begins one. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_most_blocks(int32_t groups, int64_t rows, int64_t extent) {
    const int64_t begun = tegroup_impl_min(groups, rows);
    return groups > 0 ? begun + (rows - begun) / extent : 0;
}

/* Outer blocks that lie at strides in one buffer. grid: of a group at capacity. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_scale_lines(const tegroup_tensor *t, const tegroup_impl_scale_grid *grid) {
    const int64_t of_group = tegroup_impl_mul(grid->outer_count, grid->parts);
    if (tegroup_impl_listed(t)) return t->shape.groups > 0 ? of_group : 0;
    return tegroup_impl_ragged(&t->shape) ? of_group : tegroup_impl_mul(t->shape.groups, of_group);
}

/* Scales from the first to the last of a copy's buffer (of each buffer of a list), whatever the sizes of ragged groups;
 * INT64_MAX: too many. Ragged columns count as the most that a group may have. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_scale_capacity(const tegroup_tensor *t, int columnwise) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const int ragged = tegroup_impl_ragged(&t->shape);
    const int64_t groups = t->shape.groups;
    tegroup_impl_scale_grid grid;
    int64_t word, unit;
    if (t->scaling == TEGROUP_SCALING_NONE || (columnwise && tegroup_impl_keeps_values(t))) return 0;
    grid = tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_sides_of(t->shape.rows, t->shape.cols), columnwise);
    if (tegroup_impl_scales_strided(t, columnwise)) {
        const int64_t lines = tegroup_impl_scale_lines(t, &grid);
        if (lines == 0) return 0;
        word = grid.packed ? 4 : 1;
        return tegroup_impl_add(
            tegroup_impl_mul(lines - 1, grid.outer_stride),
            tegroup_impl_add(tegroup_impl_mul(grid.inner_extent / word - 1, grid.inner_stride), word));
    }
    if (tegroup_impl_listed(t)) return groups > 0 ? grid.count : 0;
    if (!ragged || tegroup_impl_scaled_as_one(facts)) return tegroup_impl_mul(groups, grid.count);
    unit = columnwise ? tegroup_impl_mul(grid.block_inner, grid.pad_inner)
                      : tegroup_impl_mul(grid.block_outer, grid.pad_outer);
    return tegroup_impl_mul(tegroup_impl_mul(tegroup_impl_most_blocks(t->shape.groups, t->shape.rows, unit),
                                             columnwise ? grid.pad_inner : grid.pad_outer),
                            columnwise ? grid.outer_extent : grid.inner_extent);
}

/* The type in which a tensor's scales are stored. */
TEGROUP_IMPL_HD tegroup_dtype tegroup_impl_scale_dtype(const tegroup_tensor *t, const tegroup_scaling_facts *facts) {
    return t->scale_dtype != TEGROUP_DTYPE_UNSET ? t->scale_dtype : facts->scale_dtype;
}

/* Bytes of what grids count: of I32 an exponent is one. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_element(tegroup_dtype scale_dtype) {
    return scale_dtype == TEGROUP_DTYPE_I32 ? 1 : tegroup_impl_bits(scale_dtype) / 8;
}

TEGROUP_IMPL_STATIC int64_t tegroup_impl_scale_bytes(const tegroup_tensor *t, int columnwise) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    return tegroup_impl_mul(tegroup_impl_scale_capacity(t, columnwise),
                            tegroup_impl_scale_element(tegroup_impl_scale_dtype(t, facts)));
}

/* Where a group lies in one copy: its element (row, col) is at first + row * row_stride + col * col_stride of the
 * copy's buffer. */
typedef struct tegroup_impl_elements {
    int64_t first, row_stride, col_stride;
} tegroup_impl_elements;

/* Elements of a group in a transposed copy. */
TEGROUP_IMPL_HD int64_t tegroup_impl_transposed_count(tegroup_impl_sides sides) {
    return tegroup_impl_within_buffer(tegroup_impl_pad(sides.rows, TEGROUP_TRANSPOSED_ROWS), sides.cols);
}

TEGROUP_IMPL_HD int tegroup_impl_transposed(const tegroup_tensor *t, int columnwise) {
    return columnwise && t->columnwise_order == TEGROUP_COLUMNWISE_TRANSPOSED;
}

/* Elements that the groups before g take in the transposed copy. */
TEGROUP_IMPL_HD int64_t tegroup_impl_transposed_before(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                       int32_t g) {
    int64_t before = 0;
    int32_t h;
    if (!view || !view->rows) return g * tegroup_impl_transposed_count(tegroup_impl_group_sides(t, view, g));
    for (h = 0; h < g; h++) before += tegroup_impl_transposed_count(tegroup_impl_group_sides(t, view, h));
    return before;
}

/* Of a group of so many rows, whose place in the tensor is `block`, and of whose transposed copy the groups before take
 * `before` elements (not read for the other copies). */
TEGROUP_IMPL_HD tegroup_impl_elements tegroup_impl_elements_in(const tegroup_tensor *t, const tegroup_impl_block *block,
                                                               int64_t rows, int columnwise, int64_t before) {
    tegroup_impl_elements at;
    if (tegroup_impl_transposed(t, columnwise)) {
        at.first = tegroup_impl_listed(t) ? 0 : before;
        at.row_stride = 1;
        at.col_stride = tegroup_impl_pad(rows, TEGROUP_TRANSPOSED_ROWS);
    } else {
        at.first = block->first;
        at.row_stride = block->ld;
        at.col_stride = 1;
    }
    return at;
}
TEGROUP_IMPL_HD tegroup_impl_elements tegroup_impl_elements_after(const tegroup_tensor *t,
                                                                  const tegroup_snapshot_view *view, int32_t g,
                                                                  int columnwise, int64_t before) {
    const tegroup_impl_block block = tegroup_impl_block_of(t, view, g);
    return tegroup_impl_elements_in(t, &block, tegroup_impl_block_sides(t, view, &block).rows, columnwise, before);
}

TEGROUP_IMPL_HD tegroup_impl_elements tegroup_impl_elements_of(const tegroup_tensor *t,
                                                               const tegroup_snapshot_view *view, int32_t g,
                                                               int columnwise) {
    const int summed = tegroup_impl_transposed(t, columnwise) && !tegroup_impl_listed(t);
    return tegroup_impl_elements_after(t, view, g, columnwise, summed ? tegroup_impl_transposed_before(t, view, g) : 0);
}

/* Elements of the transposed copy's buffer (of each buffer of a list), whatever the sizes of ragged groups. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_transposed_capacity(const tegroup_tensor *t) {
    const tegroup_shape *shape = &t->shape;
    const int64_t group = tegroup_impl_transposed_count(tegroup_impl_sides_of(shape->rows, shape->cols));
    if (tegroup_impl_listed(t)) return shape->groups > 0 ? group : 0;
    if (!tegroup_impl_ragged(shape)) return tegroup_impl_mul(shape->groups, group);
    return tegroup_impl_mul(
        tegroup_impl_mul(tegroup_impl_most_blocks(shape->groups, shape->rows, TEGROUP_TRANSPOSED_ROWS),
                         TEGROUP_TRANSPOSED_ROWS),
        shape->cols);
}

/* The type of a copy's elements. */
TEGROUP_IMPL_HD tegroup_dtype tegroup_impl_copy_dtype(const tegroup_tensor *t, int columnwise) {
    if (!columnwise || !tegroup_impl_keeps_values(t)) return t->dtype;
    return t->columnwise_order == TEGROUP_COLUMNWISE_BF16  ? TEGROUP_DTYPE_BF16
           : t->columnwise_order == TEGROUP_COLUMNWISE_F16 ? TEGROUP_DTYPE_F16
                                                           : TEGROUP_DTYPE_F32;
}

/* Bytes of a copy's elements. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_copy_bytes(const tegroup_tensor *t, int columnwise) {
    tegroup_tensor copy = *t;
    int64_t bits;
    copy.dtype = tegroup_impl_copy_dtype(t, columnwise);
    if (!tegroup_impl_transposed(t, columnwise)) return tegroup_impl_extent_bytes(&copy);
    bits = tegroup_impl_mul(tegroup_impl_transposed_capacity(t), tegroup_impl_bits(t->dtype));
    return bits == INT64_MAX ? INT64_MAX : tegroup_impl_ceil_div(bits, 8);
}
