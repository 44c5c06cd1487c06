/* ---- Validation ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"

/* What tegroup_validate finds in a grouped tensor. Sizes in device memory cannot be refused when a call is made, and
 * a NaN shows far from where it arose: this record says both, and the caller reads it whenever the work before it is
 * done. It is the same whoever writes it, CPU or GPU, and every time. */
#define TEGROUP_VALIDATION_MAGIC 0x54475631u /* "TGV1" */

/* Bits of tegroup_validation.status. */
#define TEGROUP_VALIDATION_SNAPSHOT 1u  /* shape.snapshot holds no snapshot of this shape: no row is taken as owned */
#define TEGROUP_VALIDATION_SIZES    2u  /* the sizes lied: the snapshot's own status is not 0 */
#define TEGROUP_VALIDATION_BOUNDS   4u  /* a group reaches outside the buffer */
#define TEGROUP_VALIDATION_SUMS     8u  /* sums in the snapshot are not those of its rows */
#define TEGROUP_VALIDATION_VALUES  16u  /* NaN or infinity in rows that groups own */
#define TEGROUP_VALIDATION_TAIL    32u  /* NaN or infinity in rows that no group owns (padding, the tail) */
#define TEGROUP_VALIDATION_SCALES  64u  /* a scale is NaN, infinite or negative */
#define TEGROUP_VALIDATION_ZERO_SCALES 128u /* a scale is 0, which makes zeros of its block; some rules store it for a
                                               block of zeros */

typedef struct tegroup_validation_values {
    int64_t nans;
    int64_t infinities;
    int64_t first_row; /* of the first of either, row by row; -1 = none. Of a uniform tensor group * rows + row  */
    int64_t first_col;
} tegroup_validation_values;

/* Of a quantised tensor: the scales that its groups' values have, and global_scale_inv of each group with values. What
 * only pads the scales is not looked at. A square block of F8E8M0 or F8E4M3 counts once for each row that stores it. */
typedef struct tegroup_validation_scales {
    int64_t nans;
    int64_t infinities;
    int64_t negatives;    /* -infinity, too; -0 is a zero */
    int64_t zeros;
    int64_t first;        /* the lowest place in the buffer of scales of one of these (I32: a byte); -1 = none */
    int64_t first_global; /* the lowest group whose global_scale_inv is one of these; -1 = none              */
} tegroup_validation_scales;

typedef struct tegroup_validation {
    uint32_t magic;           /* TEGROUP_VALIDATION_MAGIC                                     */
    uint32_t status;          /* TEGROUP_VALIDATION_* bits; 0 = nothing is wrong              */
    uint32_t snapshot_status; /* TEGROUP_SNAPSHOT_* bits of the snapshot                      */
    int32_t  bad_group;       /* lowest group that BOUNDS or a wrong prefix is about; -1 = none */
    tegroup_validation_values owned;
    tegroup_validation_values tail;
    tegroup_validation_scales scales;
} tegroup_validation;

typedef struct tegroup_validate_desc {
    size_t              struct_size; /* sizeof(tegroup_validate_desc) */
    tegroup_space       space;       /* where tensor and result live; required */
    tegroup_tensor      tensor;      /* in  of any type, in one buffer, without col_sizes or elements. Of a quantised
                                        one a value is data * scale_inv * global_scale_inv: infinite is what is so in
                                        F32, and rows that no group owns are not looked at, for they have no scales */
    tegroup_validation *result;      /* out, aligned to 8 bytes */
    int32_t             columnwise;  /* 1: the columnwise copy of a quantised tensor; 0: the rowwise one, or a tensor
                                        that is not quantised */
} tegroup_validate_desc;
