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

/* How the scale of a block is chosen from its amax, the largest magnitude in it. A block is what shares a scale: 32
 * values, 128 x 128 of them, a row, a group. Its values are quantised as x * multiplier, or x / scale, and a value is
 * then data * scale. "Largest" is that of the data type: 448, 57344, 6. Every operation rounds once, to nearest. */
typedef enum tegroup_scale_method {
    TEGROUP_SCALE_UNSET      = 0,
    TEGROUP_SCALE_MULTIPLIER = 1, /* multiplier = largest / amax, scale = 1 / multiplier                        */
    TEGROUP_SCALE_DIVISOR    = 2, /* scale = amax / largest, multiplier = 1 / scale; tiny ones: docs/formats.md   */
    TEGROUP_SCALE_EXPONENT   = 3, /* scale = 2^(floor(log2(amax)) - floor(log2(largest))): large values saturate */
    TEGROUP_SCALE_TWO_LEVEL  = 4, /* NVFP4: scale = amax * (global * (1 / 6)) in E4M3,
                                     multiplier = 1 / (scale * (1 / global))                                     */
    TEGROUP_SCALE_GIVEN      = 5, /* multiplier = global, whatever amax is, scale = 1 / multiplier               */
    TEGROUP_SCALE_METHOD_COUNT
} tegroup_scale_method;

/* What is zero is off. An amax of 0, infinity or NaN goes through the arithmetic like any other, unless special_is_one
 * is set: docs/formats.md says what each preset makes of it. The values of a block whose scale is 0 are zeros. */
typedef struct tegroup_scale_rule {
    tegroup_scale_method method;
    float   amax_floor;             /* a smaller amax counts as this                                             */
    float   multiplier_max;         /* MULTIPLIER: a larger one is cut to this                                   */
    float   multiplier_of_infinity; /* MULTIPLIER: an infinite one becomes this; 0: the largest finite F32       */
    int32_t power_of_two;           /* MULTIPLIER: the multiplier is rounded down to one, DIVISOR: the scale up  */
    int32_t by_reciprocal;          /* DIVISOR: scale = amax * (1 / largest)                                     */
    int32_t divide;                 /* DIVISOR: values are divided by the scale, not multiplied                  */
    int32_t special_is_one;         /* an amax of 0, infinity or NaN gives 1 for both; not with GIVEN            */
    int32_t nan_shows;              /* 1: a NaN in a block is its amax; 0: amax is that of the other values      */
} tegroup_scale_rule;

/* Rules of others, bit for bit: tegroup_scale_rule_of. docs/formats.md has their sources and what differs. */
typedef enum tegroup_scale_preset {
    TEGROUP_SCALE_PRESET_UNSET   = 0,
    TEGROUP_SCALE_TE_CURRENT     = 1, /* TransformerEngine, one scale a tensor                                  */
    TEGROUP_SCALE_TE_DELAYED     = 2, /* the same with a multiplier from earlier steps                          */
    TEGROUP_SCALE_TE_BLOCK       = 3, /* its 1x128 and 128x128 blocks, powers of two                            */
    TEGROUP_SCALE_TE_BLOCK_F32   = 4, /* the same without                                                       */
    TEGROUP_SCALE_TE_MXFP8       = 5,
    TEGROUP_SCALE_TE_NVFP4       = 6,
    TEGROUP_SCALE_DEEPGEMM       = 7,
    TEGROUP_SCALE_DEEPGEMM_UE8M0 = 8, /* powers of two                                                          */
    TEGROUP_SCALE_DEEPSEEK       = 9, /* the scripts of DeepSeek-V3                                             */
    TEGROUP_SCALE_FBGEMM_ROW     = 10,
    TEGROUP_SCALE_OCP_MX         = 11,
    TEGROUP_SCALE_PRESET_COUNT
} tegroup_scale_preset;

/* What a rule gives for one block. */
typedef struct tegroup_block_scale {
    float    multiplier; /* a value is quantised as x * multiplier                                    */
    float    stored;     /* the scale: what its code means                                            */
    uint32_t bits;       /* its code, in the low bits                                                 */
    int32_t  divide;     /* 1: a value is quantised as x / stored                                     */
} tegroup_block_scale;
