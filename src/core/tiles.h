/* ---- Tiles ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/tile_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/snapshot_checks.h"

/* Where tile `number` of a matrix lies, which has tile_rows by tile_cols of them: they go in stripes of eight tile
 * rows, column by column, so that their operands stay in L2. */
TEGROUP_IMPL_HD void tegroup_impl_tile_place(int32_t number, int32_t tile_rows, int32_t tile_cols, int32_t *row,
                                             int32_t *col) {
    const int32_t stripe = number / tile_cols / 8 * 8, within = number - stripe * tile_cols,
                  height = tile_rows - stripe < 8 ? tile_rows - stripe : 8;
    *row = stripe + within % height;
    *col = within / height;
}

/* Rows of a group's result. */
TEGROUP_IMPL_HD int64_t tegroup_impl_tiles_m(const tegroup_tiles *tiles, int32_t g) {
    const int64_t rows = tiles->view.rows[g];
    return tiles->op != TEGROUP_OP_WGRAD || rows < 0 ? rows : tiles->m;
}

/* Tiles of group g, 0 past the last. */
TEGROUP_IMPL_HD int32_t tegroup_impl_tiles_of_group(const tegroup_tiles *tiles, int32_t g) {
    const int64_t m = g < tiles->groups ? tegroup_impl_tiles_m(tiles, g) : 0;
    return m <= 0 ? 0
                  : (int32_t)(tegroup_impl_ceil_div(m, tiles->tile_m) * tegroup_impl_ceil_div(tiles->n, tiles->tile_n));
}

TEGROUP_IMPL_HD tegroup_tile tegroup_impl_tile_none(void) {
    tegroup_tile tile;
    memset(&tile, 0, sizeof tile);
    tile.group = -1;
    return tile;
}

/* Tile `local` of group g. */
TEGROUP_IMPL_HD tegroup_tile tegroup_impl_tile_of_group(const tegroup_tiles *tiles, int32_t g, int32_t local) {
    const int64_t m = tegroup_impl_tiles_m(tiles, g);
    int32_t row, col;
    tegroup_tile tile;
    tegroup_impl_tile_place(local, (int32_t)tegroup_impl_ceil_div(m, tiles->tile_m),
                            (int32_t)tegroup_impl_ceil_div(tiles->n, tiles->tile_n), &row, &col);
    tile.group = g;
    tile.row = (int64_t)row * tiles->tile_m;
    tile.col = (int64_t)col * tiles->tile_n;
    tile.rows = (int32_t)tegroup_impl_min(tiles->tile_m, m - tile.row);
    tile.cols = (int32_t)tegroup_impl_min(tiles->tile_n, tiles->n - tile.col);
    tile.start = tiles->view.start[g];
    tile.group_rows = tiles->view.rows[g];
    return tile;
}

/* Whether the snapshot is what tegroup_prepare wrote, for buffers of as many rows. */
TEGROUP_IMPL_HD int tegroup_impl_tiles_prepared(const tegroup_tiles *tiles) {
    tegroup_impl_fit fit;
    fit.header = tiles->view.header;
    fit.rows = tiles->capacity_rows;
    fit.cols = fit.elements = INT64_MAX;
    fit.ld = -1;
    fit.groups = tiles->groups;
    fit.irregular = 0;
    return tegroup_impl_fits(&fit);
}

/* Finds tile `number`, counted from 0 over all groups: on the host in a snapshot in host memory, in a kernel in one in
 * device memory. Returns 0, and a tile of group -1, where there are fewer, where number is negative, or where the
 * snapshot is not one that tegroup_prepare wrote for these groups and at most these rows. It steps over the groups
 * before, one by one: right for a grid of one block a tile, or for many groups and tiles tegroup_tile_take. */
TEGROUP_IMPL_HD int tegroup_tile_find(const tegroup_tiles *tiles, int64_t number, tegroup_tile *tile) {
    int32_t g;
    *tile = tegroup_impl_tile_none();
    if (number < 0 || !tegroup_impl_tiles_prepared(tiles)) return 0;
    for (g = 0; g < tiles->groups; g++) {
        const int32_t count = tegroup_impl_tiles_of_group(tiles, g);
        if (number < count) {
            *tile = tegroup_impl_tile_of_group(tiles, g, (int32_t)number);
            return 1;
        }
        number -= count;
    }
    return 0;
}

TEGROUP_API tegroup_status tegroup_tiles_of(tegroup_op op, const tegroup_shape *rows, int64_t m, int64_t n,
                                            int32_t tile_m, int32_t tile_n, tegroup_tiles *tiles,
                                            tegroup_error *error) {
    tegroup_tiles made;
    int64_t most;
    TEGROUP_IMPL_RULE(op != TEGROUP_OP_UNSET, ERROR_UNSET, "op", "must be set", TEGROUP_OP_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(op, TEGROUP_OP_WGRAD, "op", "must be a tegroup_op");
    TEGROUP_IMPL_RULE(rows != NULL, ERROR_NULL_ARGUMENT, "rows", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tiles != NULL, ERROR_NULL_ARGUMENT, "tiles", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(rows->groups >= 0 && rows->groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "rows.groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, rows->groups);
    TEGROUP_IMPL_RULE(rows->rows >= 0, ERROR_VALUE, "rows.rows", "must not be negative", 0, rows->rows);
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(rows), ERROR_UNSET, "rows.row_sizes.encoding",
                      "must be set: tiles are those of ragged rows", TEGROUP_ENCODING_COUNTS, 0);
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(rows), ERROR_UNSUPPORTED, "rows.col_sizes",
                      "and elements must be unset: all groups have as many columns", 0, 1);
    TEGROUP_IMPL_RULE(rows->snapshot != NULL, ERROR_NULL_ARGUMENT, "rows.snapshot",
                      "must not be NULL: its memory is needed, prepared or not", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(rows->snapshot, TEGROUP_ALIGNMENT), ERROR_ALIGNMENT, "rows.snapshot",
                      "must be 256-byte aligned", TEGROUP_ALIGNMENT, (uintptr_t)rows->snapshot % TEGROUP_ALIGNMENT);
    TEGROUP_IMPL_RULE(m >= 0, ERROR_VALUE, "m", "must not be negative", 0, m);
    TEGROUP_IMPL_RULE(m == 0 || op == TEGROUP_OP_WGRAD, ERROR_COMBINATION, "m",
                      "must be 0 unless op is WGRAD: a group's rows are the snapshot's", 0, m);
    TEGROUP_IMPL_RULE(n >= 0, ERROR_VALUE, "n", "must not be negative", 0, n);
    TEGROUP_IMPL_RULE(tile_m > 0, ERROR_VALUE, "tile_m", "must be positive", 1, tile_m);
    TEGROUP_IMPL_RULE(tile_n > 0, ERROR_VALUE, "tile_n", "must be positive", 1, tile_n);
    most = tegroup_impl_mul(tegroup_impl_ceil_div(op == TEGROUP_OP_WGRAD ? m : rows->rows, tile_m),
                            tegroup_impl_ceil_div(n, tile_n));
    TEGROUP_IMPL_RULE(most <= INT32_MAX, ERROR_UNSUPPORTED, "tile_m",
                      "must be so high that 31 bits count a group's tiles", INT32_MAX, most);
    memset(&made, 0, sizeof made);
    made.op = op;
    made.groups = rows->groups;
    made.capacity_rows = rows->rows;
    made.m = m;
    made.n = n;
    made.tile_m = tile_m;
    made.tile_n = tile_n;
    made.view = tegroup_impl_snapshot_view(rows->snapshot, rows->groups, 0);
    *tiles = made;
    return TEGROUP_OK;
}
