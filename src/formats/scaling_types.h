/* ---- Scaling modes ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"

/* How a quantised tensor's scales are laid out. A value is data * scale_inv. "Rowwise" data is quantised along its
 * rows, the direction of the columns index (what forward contracts over); "columnwise" data is a second copy quantised
 * along its columns. Sizes are for one group of [rows, cols]; a grouped tensor stores its groups' scales one after
 * another, unless its strides say otherwise (tegroup_tensor). tegroup_scale_shape gives them, for either direction.
 *
 *   mode            data            scale        one scale covers   stored as (rowwise; columnwise swaps the roles)
 *   NONE            F64 .. BF16     -            -                  -
 *   TENSOR          FP8             F32          a group            [1], of an empty group too
 *   ROW             FP8             F32          a row              [rows]
 *   BLOCK_1X128     FP8             F32          128 along a row    [ceil(cols / 128), rows up to 4], outer fastest
 *   BLOCK_128X128   FP8             F32          a 128 x 128 block  [ceil(rows / 128), ceil(cols / 128) up to 4]
 *   MXFP8           FP8             F8E8M0       32 along a row     [rows up to 128, ceil(cols / 32) up to 4], swizzled
 *   NVFP4           F4E2M1          F8E4M3       16 along a row     [rows up to 128, ceil(cols / 16) up to 4], swizzled
 *   MXFP4           F4E2M1          F8E8M0       32 along a row     as MXFP8
 *   BLOCK_32X32     FP8             F32          a 32 x 32 block    [ceil(rows / 32), ceil(cols / 32)]
 *   MXFP8_32X32     FP8             F8E8M0       a 32 x 32 block    as MXFP8: once for every row of the block
 *   NVFP4_16X16     F4E2M1          F8E4M3       a 16 x 16 block    as NVFP4: once for every row of the block
 *
 * The last two are for weights: the choice of a scale is a square block's, so that the weight and its transpose have
 * the same values, and what reads MXFP8 or NVFP4 reads them as such.
 *
 * Sources: cuBLAS documentation, "Narrow precision data types usage" (scale layouts and the 128 x 4 swizzle); OCP
 * Microscaling Formats (MX) 1.0; DeepSeek-V3 technical report, section 3.3 (1x128 and 128x128 blocks). NVFP4 has a
 * second, FP32 scale of the whole group, see global_scale_inv of tegroup_tensor. */
typedef enum tegroup_scaling {
    TEGROUP_SCALING_NONE          = 0,
    TEGROUP_SCALING_TENSOR        = 1,
    TEGROUP_SCALING_ROW           = 2,
    TEGROUP_SCALING_BLOCK_1X128   = 3,
    TEGROUP_SCALING_BLOCK_128X128 = 4,
    TEGROUP_SCALING_MXFP8         = 5,
    TEGROUP_SCALING_NVFP4         = 6,
    TEGROUP_SCALING_MXFP4         = 7,
    TEGROUP_SCALING_BLOCK_32X32   = 8,
    TEGROUP_SCALING_MXFP8_32X32   = 9,
    TEGROUP_SCALING_NVFP4_16X16   = 10,
    TEGROUP_SCALING_COUNT
} tegroup_scaling;

/* One mode's facts; tegroup_scaling_info returns a row of the table that everything else reads. */
typedef struct tegroup_scaling_facts {
    tegroup_scaling scaling;
    const char     *name;
    uint32_t        data_dtypes;  /* bit d set: tegroup_dtype d may carry this scaling            */
    tegroup_dtype   scale_dtype;  /* UNSET for NONE                                               */
    int32_t         block_outer;  /* rows (columnwise: columns) of a stored scale; 0 = all        */
    int32_t         block_inner;  /* elements along the quantised direction; 0 = all              */
    int32_t         pad_outer;    /* the stored outer extent is a multiple of this                */
    int32_t         pad_inner;    /* the stored inner extent is a multiple of this                */
    int32_t         outer_fastest;/* 1: the outer index is contiguous                             */
    int32_t         swizzled;     /* 1: in tiles of 128 x 4, see tegroup_scale_index              */
    int32_t         choice_outer; /* rows (columnwise: columns) that one scale is chosen for; 0 = all. Where they are
                                     more than block_outer, the same scale is stored for each block of them      */
} tegroup_scaling_facts;

/* Extents of one group's scales, padding included. */
typedef struct tegroup_scale_extent {
    int64_t outer, inner; /* stored extents: scales, not bytes */
    int64_t bytes;
} tegroup_scale_extent;
