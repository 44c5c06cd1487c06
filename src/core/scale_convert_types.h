/* ---- Scales in another layout ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"

/* The scales of `from`, stored as `to` says: other strides or the default packing, other parts of a buffer, another
 * scale_dtype, rows that lie elsewhere. Of each group, part, outer block and inner block that both have, the scale is
 * copied. Blocks of rows that `from` lacks become 0, and so does the padding of `to`'s default packing; in F8E8M0 and
 * I32 that is the byte 0. With strides a word of I32 is written whole, and what lies between is not touched.
 *
 * Values stay what they are: the same type; BF16 to F32; F8E8M0 and I32 to each other and to BF16 or F32; F32 and BF16
 * to F8E8M0 or I32, if they are powers of two, 2^-127 to 2^127, or NaN. One that is not is an error on the host, and
 * nothing is written; on the device it becomes NaN, the byte 255. F32 to BF16 would round, and is UNSUPPORTED.
 *
 * The tensors have one scaling, one number of groups, columns and parts. Where both are uniform, their rows are equal;
 * where both are ragged, those of each group, and where one is, its groups have no more rows than the uniform one: on
 * the host another case is an error, on the device the lesser number counts. Data is not looked at, and may be NULL. A
 * device snapshot that does not fit its tensor leads to nothing written. Needs no workspace, bitwise repeatable. */
typedef struct tegroup_scale_convert_desc {
    size_t         struct_size; /* sizeof(tegroup_scale_convert_desc)                                            */
    tegroup_space  space;       /* of scales, snapshots and lists (pointers_space must equal it); required       */
    int32_t        columnwise;  /* 0 = scale_inv (scale_pointers), 1 = columnwise_scale_inv (its list)           */
    tegroup_tensor from;        /* in   aligned to its scales' elements                                          */
    tegroup_tensor to;          /* out  likewise; must not overlap what is read                                  */
    int32_t        threads;     /* on the host, at most so many; 0 = all that OpenMP gives, 1 without OpenMP. Only
                                   time depends on it                                                            */
} tegroup_scale_convert_desc;
