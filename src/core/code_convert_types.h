/* ---- Codes in another order ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"

/* The codes of `from`, stored in the order of `to`: interleaved ones of those in order, or back. Every code stays what
 * it is; scales are not looked at. Weights are converted once, when they are loaded.
 *
 * The tensors are of F4E2M1 or F8E4M3, uniform, of one shape, dtype, scaling and columnwise_order, and of different
 * code_order; ld, group_stride and lists may differ. What lies between a tensor's lines is not touched; in a transposed
 * copy there is nothing. `to` may be `from` itself: the same memory, ld and group_stride, or a list of the same
 * addresses. Needs no workspace, bitwise repeatable. */
typedef struct tegroup_code_convert_desc {
    size_t         struct_size; /* sizeof(tegroup_code_convert_desc)                                             */
    tegroup_space  space;       /* of data and lists (pointers_space must equal it); required                    */
    int32_t        columnwise;  /* 0 = data (pointers), 1 = columnwise_data (its list), which is TRANSPOSED      */
    tegroup_tensor from;        /* in   aligned to bytes                                                         */
    tegroup_tensor to;          /* out  likewise; overlaps nothing that is read, but may be from                 */
    int32_t        threads;     /* on the host, at most so many; 0 = all that OpenMP gives, 1 without OpenMP. Only
                                   time depends on it                                                            */
} tegroup_code_convert_desc;
