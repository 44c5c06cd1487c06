/* ---- Scaling modes ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"

/* How a quantised tensor's scales are laid out. A value is data * scale_inv. "Rowwise" data is quantised along its
 * rows, the direction of the columns index (what forward contracts over); "columnwise" data is a second copy quantised
 * along its columns. Sizes are for one group of [rows, cols]; a grouped tensor stores its groups' scales one after
 * another. tegroup_scale_shape gives them, for either direction.
 *
 *   mode            data            scale        one scale covers   stored as (rowwise; columnwise swaps the roles)
 *   NONE            F64 .. BF16     -            -                  -
 *   TENSOR          FP8             F32          a group            [1], of an empty group too
 *   ROW             FP8             F32          a row              [rows]
 *   BLOCK_1X128     FP8             F32          128 along a row    [ceil(cols / 128), rows up to 4], outer fastest
 *   BLOCK_128X128   FP8             F32          a 128 x 128 block  [ceil(rows / 128), ceil(cols / 128) up to 4]
 *   MXFP8           FP8             F8E8M0       32 along a row     [rows up to 128, ceil(cols / 32) up to 4], swizzled
 *   NVFP4           F4E2M1          F8E4M3       16 along a row     [rows up to 128, ceil(cols / 16) up to 4], swizzled
 *
 * Sources: cuBLAS documentation, "Narrow precision data types usage" (scale layouts and the 128 x 4 swizzle); OCP
 * Microscaling Formats (MX) 1.0; DeepSeek-V3 technical report, section 3.3 (1x128 and 128x128 blocks). NVFP4's
 * second, FP32 scale of the whole group travels in alpha. */
typedef enum tegroup_scaling {
    TEGROUP_SCALING_NONE          = 0,
    TEGROUP_SCALING_TENSOR        = 1,
    TEGROUP_SCALING_ROW           = 2,
    TEGROUP_SCALING_BLOCK_1X128   = 3,
    TEGROUP_SCALING_BLOCK_128X128 = 4,
    TEGROUP_SCALING_MXFP8         = 5,
    TEGROUP_SCALING_NVFP4         = 6,
    TEGROUP_SCALING_COUNT
} tegroup_scaling;

/* One mode's facts; tegroup_scaling_info returns a row of the table that everything else reads. */
typedef struct tegroup_scaling_facts {
    tegroup_scaling scaling;
    const char     *name;
    uint32_t        data_dtypes;  /* bit d set: tegroup_dtype d may carry this scaling            */
    tegroup_dtype   scale_dtype;  /* UNSET for NONE                                               */
    int32_t         block_outer;  /* rows (columnwise: columns) that share a scale; 0 = all       */
    int32_t         block_inner;  /* elements along the quantised direction; 0 = all              */
    int32_t         pad_outer;    /* the stored outer extent is a multiple of this                */
    int32_t         pad_inner;    /* the stored inner extent is a multiple of this                */
    int32_t         outer_fastest;/* 1: the outer index is contiguous                             */
    int32_t         swizzled;     /* 1: in tiles of 128 x 4, see tegroup_scale_index              */
} tegroup_scaling_facts;

/* Extents of one group's scales, padding included. */
typedef struct tegroup_scale_extent {
    int64_t outer, inner; /* stored extents: scales, not bytes */
    int64_t bytes;
} tegroup_scale_extent;
