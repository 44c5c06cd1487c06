/* ---- Grouped MLP ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/activation_types.h"
#include "layer/linear_types.h"

/* Who computes the activation. The bits are the same either way: what a product gives is rounded to its stored type
 * first. */
typedef enum tegroup_fusion {
    TEGROUP_FUSION_AUTO     = 0, /* the epilogue of the product before it where the backend has one and gains by it,
                                    else a kernel of its own */
    TEGROUP_FUSION_NEVER    = 1, /* a kernel of its own                                                           */
    TEGROUP_FUSION_REQUIRED = 2  /* the epilogue; UNSUPPORTED where a call with outputs here has none */
} tegroup_fusion;

typedef enum tegroup_mlp_layer {
    TEGROUP_MLP_LAYER_UNSET = 0,
    TEGROUP_MLP_FC1         = 1,
    TEGROUP_MLP_FC2         = 2,
    TEGROUP_MLP_FC1_UP      = 3
} tegroup_mlp_layer;

/* One of its linear layers. Each tensor is one buffer or pointers (device lists for the backends whose kernels
 * read them). */
typedef struct tegroup_mlp_weights {
    tegroup_tensor weight;    /* in  W [groups, n, k] or, as weight_layout says, [groups, k, n]; required, for its
                                 shape                                                                            */
    tegroup_tensor bias;      /* in  [groups, 1, n]; F16, BF16, F32 or F64; absent = none                         */
    tegroup_tensor main_grad; /* out dW, shaped as weight; its own dtype, such as F32; absent = not wanted        */
    tegroup_tensor bias_grad; /* out [groups, 1, n]; absent = not wanted. Needs main_grad and bias                */
    tegroup_weight_layout weight_layout; /* of weight and main_grad                                               */
} tegroup_mlp_weights;

/* fc1, an activation f and fc2, one of each an expert. h is the width between them: fc2.weight is [groups, n, h],
 * fc1.weight [groups, 2 h, k] for an activation of gate and up, else [groups, h, k]; with weight_layout IN_OUT their
 * transposes, whose products have no activation in their epilogues. Where gates and ups are two weights, fc1 is the
 * gates' and fc1_up the ups', [groups, h, k] each.
 *
 *   forward   preactivation = X W1^T + b1             reads input, fc1.weight, fc1.bias
 *             activated = row_scale * f(preactivation)      row_scale
 *             Y = activated W2^T + b2                       fc2.weight, fc2.bias; writes out and what is to be saved
 *   dgrad     d activated = dY W2                     reads grad_output, fc2.weight
 *             grad_preactivation, drow_scale                preactivation, row_scale; writes grad_preactivation,
 *                                                           grad_row_scale
 *             dX = grad_preactivation W1                    fc1.weight; writes dgrad_out, if wanted (fc1_up: dX =
 *                                                           dgates W1, rounded to dgrad_out, then dX += dups W1up)
 *   wgrad     dW2 = dY^T activated, db2 = sum of dY   reads grad_output, activated; writes fc2.main_grad, fc2.bias_grad
 *             dW1 = grad_preactivation^T X, db1       reads grad_preactivation, input; writes those of fc1
 *
 * As tegroup_linear_desc, this struct is what the plan is made from, what each call is given, and what is saved
 * between them: plain buffers of the caller's, and nothing else is remembered. The plan reads everything but
 * addresses; a call looks at the tensors of its lines above alone, and checks that they are the planned ones. No
 * out, no forward; no grad_preactivation, no dgrad; no main_grad, no wgrad. Rows are ragged: every [rows, ...]
 * tensor has input's row_sizes (on the device with data there: the activation's kernel reads them, so that
 * CUBLASLT_LOOP has no MLP), its capacity in rows, and (to run) its snapshot. A call's capacity may be less than the
 * planned one, and more in wgrad and where forward has nothing in the workspace. Outputs and what is saved are
 * contiguous (ld 0 or cols), overlap nothing that their call touches, and get the same bits wherever they are (a
 * device's grad_row_scale: wherever all rows are 16-byte aligned, or wherever some are not). Data are aligned to
 * their element; a backend that needs more says so. Rows of saved tensors that no group owns are never touched.
 *
 * Quantised (scaling set, which tegroup_gemm_desc pairs) may be the weights, input and grad_output, by the caller, and
 * activated and grad_preactivation, by the MLP: each as one tegroup_quantize of preactivation, F32, F16 or BF16, that
 * computes the activation or its gradient in passing (on a GPU, where no kernel does both at once, by way of the
 * workspace) and writes those copies that have an address, with output.amax and the like as there. A copy that a
 * planned product reads is required: of activated the rowwise one in forward, of grad_preactivation in dgrad with
 * dgrad_out, and the columnwise ones where there are main_grads and no rowwise copy serves. Where columnwise_order is
 * of values, which must be of preactivation's dtype, that copy is what the activation or its gradient gives, and the
 * rowwise one is quantised from it; grad_preactivation's may be preactivation's data, which dgrad then uses up; with
 * recompute dgrad writes activated's alone, and no amax. activated's gradient then has preactivation's dtype, and so
 * has an activated in the workspace that has no scaling while fc2.weight or input has one. activated with a scaling
 * and without a dtype lies in the workspace, quantised as fc2.weight's dtype, as it does in forward with recompute:
 * rowwise, with its amax and, of scales of F8E4M3, a global scale, which recompute wants of activated, too, unless
 * that is to have values. Of an activated in the workspace no shape, ld, parts or lists are read. */
typedef struct tegroup_mlp_desc {
    size_t          struct_size;    /* sizeof(tegroup_mlp_desc)                                                   */
    tegroup_space   space;          /* where all data live; required                                              */
    tegroup_mlp_weights fc1, fc2;
    tegroup_mlp_weights fc1_up;     /* absent (weight.dtype UNSET): fc1 holds gates and ups. Else the ups', of an
                                       activation of both, each tensor of the shape, dtype and presence of fc1's, and
                                       interleaved 0. Y and main_grad have the bits of one fc1 of both, gates first; dX
                                       has a rounding more. The products write and read halves of rows of
                                       preactivation and grad_preactivation: where h is no multiple of 16 bytes, not by
                                       SM90 and CUBLASLT_GROUPED                                                  */
    tegroup_activation activation;  /* required                                                                   */
    int32_t         interleaved;    /* 0: preactivation is [gate | up] halves; 1: gate, up, gate, up ...          */
    double          alpha, limit;   /* as in tegroup_activation_desc                                              */
    tegroup_tensor  input;          /* in  X [rows, k], fc1.weight's dtype, or F32 beside one of F16 or BF16, as every
                                       tensor below that has a weight's dtype; required, for its shape            */
    tegroup_tensor  out;            /* out Y [rows, n], any dtype that the backend writes                         */
    tegroup_tensor  grad_output;    /* in  dY [rows, n], fc2.weight's dtype                                       */
    tegroup_tensor  dgrad_out;      /* out dX [rows, k]; absent = not wanted. Needs grad_preactivation            */
    tegroup_tensor  grad_row_scale; /* out [rows, 1], F32 or F64; absent = not wanted. Needs grad_preactivation and
                                       row_scale; with fc2_bias_scaled also an fc2.bias that goes with grad_output as
                                       fc2.weight does, and of F64 COMPUTE_F64 */

    /* What is saved: the plan gives its bytes, and tegroup_mlp_layout what each is for. */
    tegroup_tensor  preactivation;  /* [rows, 2 h or h] forward writes it for dgrad, in any dtype that the backend
                                       writes, never quantised. Absent = in the workspace, in input's (of a quantised
                                       one BF16): inference alone                                                 */
    tegroup_tensor  activated;      /* [rows, h], fc2.weight's dtype, row_scale in it. Read by wgrad for fc2.main_grad.
                                       Absent = in the workspace: when fc2.main_grad is not wanted. There it has
                                       fc2.weight's dtype, or F32 where input has that and fc1.weight has not. Its
                                       gradient lies in the workspace, in the same dtype. With a scaling, see below */
    tegroup_tensor  grad_preactivation; /* as preactivation, fc1.weight's dtype. dgrad writes it for wgrad. May be
                                           preactivation itself (same data, same dtype), which dgrad then uses up.
                                           With a scaling, see below                                              */
    int32_t         recompute;      /* 0: forward writes activated. 1: forward keeps it in the workspace, and dgrad
                                       computes it again from preactivation, bit for bit; needs activated and
                                       grad_preactivation */
    const void     *row_scale;      /* in  [rows] multiplies f: the row's routing probability; NULL to plan       */
    tegroup_dtype   row_scale_dtype; /* F32 or F64; UNSET = no row_scale                                          */
    int32_t         fc2_bias_scaled; /* 1: row_scale multiplies each row's fc2.bias, too; needs both              */
    int32_t         accumulate;     /* wgrad: 0 overwrites every main_grad and bias_grad: an empty group gets exact
                                       zeros; 1 adds to them: an empty group's stay as they are, bit for bit */
    tegroup_tail    out_tail;       /* rows of out that no group owns; out must then be there                     */
    tegroup_tail    dgrad_out_tail; /* rows of dgrad_out that no group owns. Those of grad_row_scale are kept     */
    tegroup_fusion  fusion;
    tegroup_scale_rule activated_rule; /* how activated's scales are chosen; required just where that has a scaling */
    tegroup_scale_rule grad_rule;   /* likewise, of grad_preactivation                                            */
    tegroup_options options;        /* of each product (the one that gives the bias's part of grad_row_scale has one
                                       column: its backend is AUTO); threads for the activation, too */
    tegroup_gather  gather_input, gather_grad_output; /* as tegroup_linear_desc's, of fc1 and fc1_up, and of fc2  */
} tegroup_mlp_desc;

#define TEGROUP_MLP_PLAN_MAGIC 0x54474d31u /* "TGM1" */

/* Bits of tegroup_mlp_planned.fused. */
#define TEGROUP_FUSED_FORWARD 1u /* the activation is in fc1's epilogue: activated_kernel runs, and what plan_tune
                                    finds for fc1.forward does not. */
#define TEGROUP_FUSED_DGRAD   2u /* its gradient, and with recompute activated, is in the epilogue of fc2's dgrad:
                                    gradient_kernel runs, and likewise */

/* What is launched in place of a product's own kernel. */
typedef struct tegroup_fused_kernel {
    uint64_t function; /* address, in the unit that made the plan */
    uint64_t blocks;
} tegroup_fused_kernel;

/* How the MLP quantises a tensor; all zero = not. */
typedef struct tegroup_mlp_format {
    tegroup_scaling    scaling;
    tegroup_dtype      scale_dtype;
    int32_t            scale_strides;    /* 1 = set                                                              */
    tegroup_columnwise_order columnwise_order;
    tegroup_scale_rule rule;
} tegroup_mlp_format;

/* What a plan holds besides its products: what a call must bring again, and what is fused. */
typedef struct tegroup_mlp_planned {
    uint32_t           fused;            /* TEGROUP_FUSED_* bits; SM90 and PORTABLE have both                      */
    tegroup_activation activation;
    int32_t            interleaved, recompute, fc2_bias_scaled;
    tegroup_dtype      dtypes[21];       /* of the desc's tensors and of row_scale: a call's are held against them */
    tegroup_mlp_format activated, grad_preactivation;
    int64_t            preactivation_bytes;    /* all at capacity; 0 = not planned                               */
    int64_t            activated_bytes[4];     /* of data, scale_inv, columnwise_data and columnwise_scale_inv: of a
                                                  quantised one, those that wgrad reads                          */
    int64_t            grad_preactivation_bytes[4]; /* likewise                                                  */
    int64_t            scratch_bytes[4];       /* of activated in the workspace: data, and in dgrad its gradient;
                                                  scale_inv, amax, global_scale_inv                              */
    int64_t            values_bytes;           /* of values that are quantised from the workspace; 0 = none      */
    int32_t            scratch_preactivation, scratch_activated; /* 1: it lies in the workspace                    */
    tegroup_fused_kernel activated_kernel; /* FUSED_FORWARD: fc1.forward's                                       */
    tegroup_fused_kernel gradient_kernel;  /* FUSED_DGRAD: fc2.dgrad's                                           */
} tegroup_mlp_planned;

/* Made once by tegroup_mlp_plan_make, then read-only. Plain bytes that hold no data pointer, as tegroup_plan. All
 * sizes are those of the capacity; tegroup_mlp_layout says what each byte is for. */
typedef struct tegroup_mlp_plan {
    size_t              struct_size;
    uint32_t            magic;
    size_t              workspace_bytes;        /* serves any of the calls                                         */
    size_t              wgrad_workspace_bytes;  /* what wgrad alone needs                                          */
    size_t              saved_by_forward_bytes; /* the caller's buffers that live from forward to backward. The rowwise
                                                   copy of a quantised activated is none where wgrad reads the other */
    size_t              saved_by_dgrad_bytes;   /* and from dgrad to wgrad, likewise; grad_preactivation is free where
                                                   it is preactivation */
    tegroup_mlp_planned planned;
    tegroup_linear_plan fc1, fc2, fc1_up; /* their products; all zero where an output is absent. fc2.grad_row_scale
                                             and fc1_up.dgrad add; fc1_up.forward does not run where it is fused  */
} tegroup_mlp_plan;

/* The memory that a plan gives the size of. */
typedef enum tegroup_mlp_memory {
    TEGROUP_MLP_MEMORY_UNSET      = 0,
    TEGROUP_MLP_WORKSPACE         = 1,
    TEGROUP_MLP_WGRAD_WORKSPACE   = 2,
    TEGROUP_MLP_SAVED_BY_FORWARD  = 3,
    TEGROUP_MLP_SAVED_BY_DGRAD    = 4
} tegroup_mlp_memory;
