/* ---- Prepare and snapshot ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"

/* A snapshot is one routing's group sizes made safe: everything that runs afterwards reads it and never the caller's
 * arrays. It is laid out in caller memory (tegroup_snapshot_layout) and holds
 *
 *   header                               tegroup_snapshot_header
 *   start[groups]             int64      first row of each group, within the buffer
 *   rows[groups]              int64      rows of each group, within the buffer, overlapping nobody; -1 = skipped
 *   prefix[groups + 1]        int64      sums of ceil(rows / TEGROUP_GRANULE) before each group, and of all
 *   order[groups]             int32      groups from the largest to the smallest, skipped as if empty; equal by index
 *   cols[groups]              int64      only with col_sizes or elements: columns of each group
 *   offset[groups]            int64      only with col_sizes or elements: first element of each group
 *
 * Sizes that lie never lead outside the buffers. Those in device memory nobody can refuse when the call is made:
 * they are clamped, and the header's status names the lie. Those in host memory are an error of the call, unless it
 * is told to clamp them, too, wherever the snapshot lies. */
#define TEGROUP_GRANULE 4 /* rows: kernels that take rows, and not tiles, share out so many of a group at a time */

/* Bits of tegroup_snapshot_header.status. */
#define TEGROUP_SNAPSHOT_NEGATIVE  1u  /* a size below 0 (other than a count of -1) or offsets that fall: taken as 0  */
#define TEGROUP_SNAPSHOT_CAPACITY  2u  /* a group reaches past the buffer: cut at its end                             */
#define TEGROUP_SNAPSHOT_OVERLAP   4u  /* two groups share rows or elements, or one is longer than the stride: cut    */
#define TEGROUP_SNAPSHOT_START     8u  /* offsets[0] is not 0, or a start is negative: group dropped or rows unowned  */
#define TEGROUP_SNAPSHOT_COLS     16u  /* a column count outside 0 .. cols: clamped                                   */
#define TEGROUP_SNAPSHOT_ELEMENTS 32u  /* a group's elements do not fit the buffer: dropped                           */

#define TEGROUP_SNAPSHOT_MAGIC 0x54475332u /* "TGS2" */

/* First bytes of a snapshot; the caller may read it whenever the work before it is done. */
typedef struct tegroup_snapshot_header {
    uint32_t magic;      /* TEGROUP_SNAPSHOT_MAGIC                                           */
    uint32_t status;     /* TEGROUP_SNAPSHOT_* bits; 0 = the sizes were honest               */
    int32_t  groups;
    int32_t  bad_group;  /* lowest group that a status bit is about; -1 = none               */
    int32_t  irregular;  /* 1 = cols[] and offset[] are present                              */
    int32_t  reserved;
    int64_t  rows_total; /* sum of rows[], skipped groups counting 0                         */
    int64_t  rows_max;   /* largest rows[]; 0 if there is none                               */
    int64_t  rows_end;   /* row after the last valid one; the tail begins here               */
    int64_t  capacity_rows;     /* shape.rows, shape.cols and shape.elements of the shape    */
    int64_t  capacity_cols;     /* that was prepared: bounds that everything above respects  */
    int64_t  capacity_elements; /* 0 when regular; where shape.elements is 0, as for lists, what one buffer would
                                   need */
    int64_t  ld;         /* of the preparation; 0 = packed                                   */
} tegroup_snapshot_header;

/* Pointers into a snapshot. */
typedef struct tegroup_snapshot_view {
    const tegroup_snapshot_header *header;
    const int64_t *start;
    const int64_t *rows;
    const int64_t *prefix;
    const int32_t *order;
    const int64_t *cols;   /* NULL when regular */
    const int64_t *offset; /* NULL when regular */
} tegroup_snapshot_view;

/* What tegroup_prepare does: read shape's sizes, write a snapshot of them. Its time grows with groups * log(groups),
 * and with the square of those that lie side by side at `offsets` in the rows of one buffer. */
typedef struct tegroup_prepare_desc {
    size_t         struct_size;    /* sizeof(tegroup_prepare_desc)                                            */
    tegroup_shape  shape;          /* row_sizes required; shape.snapshot is ignored                           */
    int64_t        ld;             /* ragged columns in rows of one buffer: its tensor's ld; 0 = packed       */
    tegroup_space  space;          /* where the snapshot lives and the work runs; required                    */
    void          *snapshot;       /* TEGROUP_ALIGNMENT-aligned                                               */
    size_t         snapshot_bytes; /* >= tegroup_snapshot_layout(...).total_bytes                             */
    int32_t        clamp;          /* sizes in host memory that lie: 0 = the call fails and names the group
                                      (ERROR_VALUE, ERROR_CAPACITY, ERROR_OVERLAP), 1 = they are clamped, as those in
                                      device memory always are, and the header's status tells */
    tegroup_check_level check_level; /* DEEP: also asks the driver whose memory snapshot and sizes are, where space is
                                      DEVICE: a host address would end the CUDA context                       */
    int32_t        threads;        /* on the host, at most so many; 0 = all that OpenMP gives, 1 without OpenMP. Only
                                      time depends on it, and that only of hundreds of groups                  */
    int32_t        host_sizes_final; /* 1: the caller's word that sizes in host memory stay as they are, so that a
                                      snapshot in device memory may be made of them while stream is capturing: the
                                      graph keeps the sizes of its capture. As in tegroup_options                */
} tegroup_prepare_desc;
