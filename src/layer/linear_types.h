/* ---- Grouped linear ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"

/* How the weights of a layer with k inputs and n outputs lie, and their gradient with them. */
typedef enum tegroup_weight_layout {
    TEGROUP_WEIGHT_OUT_IN = 0, /* [groups, n, k]: k contiguous, as torch.nn.Linear has it                         */
    TEGROUP_WEIGHT_IN_OUT = 1  /* [groups, k, n]: n contiguous, as gpt-oss's checkpoints have it                  */
} tegroup_weight_layout;

/* One linear layer an expert, forward and backward, as grouped products and nothing else:
 *
 *   forward   Y = X W^T + row_scale * bias      reads input, weight, bias, row_scale; writes out
 *   dgrad     dX = dY W                         reads grad_output, weight;            writes dgrad_out
 *             drow_scale = dY . bias, by row    reads grad_output, bias;              writes grad_row_scale
 *   wgrad     dW = dY^T X                       reads grad_output, input;             writes main_grad
 *             dbias = sum of row_scale * dY     reads grad_output, row_scale;         writes bias_grad
 *
 * This struct is what the plan is made from, what each call is given, and what is saved between them: every field is a
 * plain buffer of the caller's, the same for every format, and nothing else is remembered. Copy it, fill it in as
 * buffers become known and keep it until wgrad has run. The plan reads everything but addresses; a call looks at the
 * tensors of its line above alone, and checks that they are the planned ones: the others may be NULL or dangle by then.
 *
 * An absent output plans no such product: no out, no forward; no dgrad_out, no dgrad; no main_grad, no wgrad. Rows
 * are ragged: their shapes have row_sizes, as many rows as their buffer holds (planned or not, but all groups lie in
 * them), and (to run) one snapshot, that of the routing. n and k are the same in every group. W is [groups, n, k], or
 * with weight_layout its transpose. Outputs are contiguous (ld 0 or cols, group_stride 0 or rows * cols), overlap
 * nothing that their call reads or writes, and get the same bits wherever they are. Data are aligned to their element;
 * a backend that needs more says so.
 *
 * weight, input and grad_output may each have a scaling, in pairs that tegroup_gemm_desc allows. The caller quantises
 * them (tegroup_quantize), and each product reads the copy that is quantised along what it sums over: forward the
 * rowwise ones of input and weight; dgrad grad_output's rowwise and weight's columnwise one; wgrad the columnwise ones
 * of grad_output and input. With weight_layout IN_OUT the copies of weight change places. A copy that no product reads
 * may be absent. What is saved from forward to wgrad is input's columnwise copy. Where columnwise_order is of values,
 * such as TEGROUP_COLUMNWISE_BF16, that copy is X or dY itself, and a product that sums over rows is one of values;
 * weight's is W, for a dgrad of a grad_output without a scaling. */
typedef struct tegroup_linear_desc {
    size_t          struct_size;    /* sizeof(tegroup_linear_desc)                                                */
    tegroup_space   space;          /* where all data live; required                                              */
    tegroup_tensor  weight;         /* in  W [groups, n, k] or, as weight_layout says, [groups, k, n], one buffer or
                                       pointers; required, for its shape                                          */
    tegroup_tensor  bias;           /* in  [groups, 1, n], one buffer or pointers; F16, BF16, F32 or F64; absent =
                                       none */
    tegroup_tensor  input;          /* in  X [rows, k], weight's dtype, or F32 beside one of F16 or BF16; needed for
                                       forward and wgrad. This, weight and grad_output may be quantised           */
    tegroup_tensor  out;            /* out Y [rows, n], any dtype that the backend writes                         */
    tegroup_tensor  grad_output;    /* in  dY [rows, n], as input, and where main_grad is wanted of its dtype; needed
                                       for dgrad and wgrad                                                        */
    tegroup_tensor  dgrad_out;      /* out dX [rows, k]                                                           */
    tegroup_tensor  main_grad;      /* out dW, shaped as weight, one buffer or pointers; its own dtype, such as F32 */
    tegroup_tensor  bias_grad;      /* out [groups, 1, n], one buffer or pointers; absent = not wanted. Needs main_grad
                                       and bias                                                                   */
    tegroup_tensor  grad_row_scale; /* out [rows, 1], absent = not wanted. Written by dgrad: needs dgrad_out, row_scale,
                                       a bias that goes with grad_output as weight does, and no scaling of that   */
    const void     *row_scale;      /* in  [rows] multiplies each row's bias (its routing probability); needs bias.
                                       NULL to plan */
    tegroup_dtype   row_scale_dtype; /* F32 or F64; UNSET = no row_scale                                          */
    int32_t         accumulate;     /* wgrad: 0 overwrites main_grad and bias_grad: an empty group gets exact zeros;
                                       1 adds to both: an empty group's stay as they are, bit for bit             */
    tegroup_tail    out_tail;       /* rows of out that no group owns; out must then be there                     */
    tegroup_tail    dgrad_out_tail; /* rows of dgrad_out that no group owns. Those of grad_row_scale are kept     */
    tegroup_weight_layout weight_layout; /* of weight and main_grad                                               */
    tegroup_options options;        /* of each product; but the one that gives grad_row_scale has one column: its
                                       backend is AUTO */
    tegroup_gather  gather_input, gather_grad_output; /* rows of input and of grad_output picked by an index, so that no
                                       permuted copy of them need be written: their products have gather_a or gather_b,
                                       which says who can. All zero = they lie in the routing's order             */
} tegroup_linear_desc;

#define TEGROUP_LINEAR_PLAN_MAGIC 0x54474c31u /* "TGL1" */

/* Made once by tegroup_linear_plan_make, then read-only. Plain bytes that hold no data pointer, as tegroup_plan. */
typedef struct tegroup_linear_plan {
    size_t         struct_size;
    uint32_t       magic;
    tegroup_weight_layout weight_layout; /* as planned                                                            */
    size_t         workspace_bytes; /* what options.workspace must hold: that of the product which needs most     */
    tegroup_plan   forward, dgrad, wgrad; /* all zero where the output is absent                                  */
    tegroup_plan   grad_row_scale;
} tegroup_linear_plan;
