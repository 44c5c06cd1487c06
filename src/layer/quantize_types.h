/* ---- Quantise and dequantise ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/gemm_types.h"
#include "core/activation_types.h"

/* output = input, each block of values by the scale that rule gives for it. Written are those copies of output whose
 * elements or scales have an address: the rowwise one (data or pointers, scale_inv or scale_pointers), quantised along
 * the rows, and the columnwise one (columnwise_...), quantised along the columns and always from input, never from the
 * rowwise copy. Both come from one read of input, but for scaling ROW. Where output.columnwise_order is of values, the
 * columnwise copy is written with an activation alone (else input is that copy, and columnwise_data must be NULL): of
 * ragged rows in one buffer, in input's type, what the separate call of the activation would store; with grad_output it
 * may take input's place. Without a rowwise copy nothing is quantised then, and no amax is written.
 *
 * All of a group's elements and scales are written; what pads its scales, and the rows of its transposed copy, is 0. A
 * group without elements has nothing but the one scale of TENSOR, that of an amax of 0; a skipped one counts as such.
 * Rows that no group owns, what lies between rows, and what a buffer has behind its last group are untouched, and NaN
 * there does not show. A scale that is NaN has the bits 0x7fffffff in F32.
 *
 * output.amax and output.columnwise_amax [groups], each where set, become the largest magnitude of the group (NaN as
 * rule.nan_shows says, of the bits 0x7fffffff): that of all its values, whatever the scaling. output.amax is required
 * where a scale is chosen for all of a group: scaling TENSOR, but for a rule of method GIVEN, and
 * output.global_scale_inv. For these input is read twice.
 *
 * output.global_scale_inv (NVFP4), where set, becomes the reciprocal of tegroup_scale_global(amax) for each group;
 * NULL = scales have one level, and values beyond 6 * 448 saturate. output.scale [groups] is read where rule.method is
 * GIVEN, delayed scaling: the multiplier of each group. Its scaling must be TENSOR.
 *
 * What is quantised may be made in passing:
 *
 *   gather_input   rows of input picked by an index, as in tegroup_gemm: its rows are ragged, in one buffer
 *   activation     the output of tegroup_activation_forward for input
 *   grad_output    the gradient that tegroup_activation_backward gives for input and it
 *
 * Such a value is rounded to input's type, as the separate call would have stored it, so that the bits are the same. On
 * the GPU, too: scalings, rules and types give the bits that the CPU gives, but what an activation computes is rounded
 * there as tegroup_activation_forward says.
 *
 * In device memory the sizes and lists lie there, too, and nothing is read by the host: the call can be captured, and
 * replayed with other sizes. A snapshot in device memory that was not prepared for these shapes: nothing is written. */
typedef struct tegroup_quantize_desc {
    size_t             struct_size;  /* sizeof(tegroup_quantize_desc)                                             */
    tegroup_space      space;        /* of everything that is pointed to; required                                */
    tegroup_tensor     input;        /* in  F32, F16 or BF16, without a scaling; groups and rows as output's, with the
                                        same snapshot; columns as output's, but for a gated activation's output: twice
                                        as many                                                                   */
    tegroup_gather     gather_input; /* rows = 0: none. Not with activation                                       */
    tegroup_activation activation;   /* UNSET = none. With the next three as in tegroup_activation_desc           */
    int32_t            interleaved;
    double             alpha, limit;
    tegroup_matrix     row_scale;    /* in  [rows, 1], F32 or F64: of output's buffer (uniform: of all groups); absent =
                                        1. Needs activation (IDENTITY: nothing else is done), and no lists        */
    tegroup_tensor     grad_output;  /* in  input's type, groups and rows; columns as the activation's output; absent =
                                        none. Needs activation; output's columns are then input's                 */
    tegroup_matrix     grad_row_scale; /* out [rows, 1], F32 or F64, as tegroup_activation_backward gives it (on the GPU
                                          the order of that sum is up to where grad_input lies, and here there is
                                          none, but for values as they are); absent = not wanted. Needs grad_output,
                                          whose rows are read once more for it, unless values are kept            */
    tegroup_scale_rule rule;         /* required: tegroup_scale_rule_of, or one's own                             */
    tegroup_tensor     output;       /* out a scaling and its type; required. No memory of it, the bytes of
                                        tegroup_tensor_layout, may overlap anything else that the call touches, but as
                                        said above. scale_parts with TENSOR: UNSUPPORTED, amax has one number a group */
    int32_t            threads;      /* on the host, at most so many; 0 = all that OpenMP gives, 1 without OpenMP. Only
                                        time depends on it                                                        */
} tegroup_quantize_desc;

/* output = data * scale_inv * global_scale_inv of one copy of input: the exact product, rounded once to output's type,
 * to nearest, ties to even. (At most 4, 24 and, beside scales of 4, 24 significant bits are multiplied.) Rows that no
 * group owns are untouched. */
typedef struct tegroup_dequantize_desc {
    size_t         struct_size; /* sizeof(tegroup_dequantize_desc)                                                */
    tegroup_space  space;       /* required                                                                       */
    tegroup_tensor input;       /* in  a scaling and its type; groups and rows as output's, with the same snapshot */
    int32_t        columnwise;  /* 0: its rowwise copy; 1: its columnwise one                                     */
    tegroup_tensor output;      /* out [as input], F32, F16 or BF16, without a scaling                            */
    int32_t        threads;     /* likewise                                                                       */
} tegroup_dequantize_desc;
