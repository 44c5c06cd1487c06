/* ---- Tiles for kernels of the caller's own ---- */

#pragma once
#include "base/version.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"

/* The tiles of all groups' results, as a kernel of the caller's own walks them: those of each group's matrix in stripes
 * of eight tile rows, one group after another, numbered from 0. Made by tegroup_tiles_of, and passed to the kernel by
 * value. It holds addresses in the snapshot, and nothing that a prepare changes: a captured graph may be replayed with
 * other sizes. */
typedef struct tegroup_tiles {
    tegroup_op op;            /* FORWARD, DGRAD: a group's result has the group's rows; WGRAD: it has m           */
    int32_t    groups;
    int64_t    capacity_rows; /* that the ragged buffers hold: no tile reaches past them                          */
    int64_t    m, n;          /* rows (WGRAD alone) and columns of each group's result                            */
    int32_t    tile_m, tile_n;
    tegroup_snapshot_view view; /* in the memory where the snapshot is                                            */
} tegroup_tiles;

/* One tile: which, and what of it exists. */
typedef struct tegroup_tile {
    int32_t group;      /* -1 = there is none: past the last                                                      */
    int32_t rows, cols; /* of the tile that exist, 1 to tile_m and 1 to tile_n                                    */
    int64_t row, col;   /* its first row and column in the group's result                                         */
    int64_t start;      /* the group's first row in the ragged buffers                                            */
    int64_t group_rows; /* the group's rows there: those of a FORWARD's or DGRAD's result; a WGRAD sums over them */
} tegroup_tile;
