/* ---- Op chain ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/activation_types.h"
#include "layer/linear_types.h"
#include "layer/mlp_types.h"

#define TEGROUP_CHAIN_MAX_OPS 8
#define TEGROUP_CHAIN_MAX_VALUES 9 /* what ops read and write: one more */

typedef enum tegroup_chain_kind {
    TEGROUP_CHAIN_UNSET      = 0,
    TEGROUP_CHAIN_LINEAR     = 1, /* y = x W^T + row_scale * bias: see tegroup_linear_desc; row_scale is an argument */
    TEGROUP_CHAIN_ACTIVATION = 2, /* y = row_scale * f(x): see tegroup_activation_desc; row_scale is an argument */
    TEGROUP_CHAIN_BIAS       = 3, /* y = x + bias, that of the row's expert, of x's dtype; its gradient is that of y,
                                     with no copy */
    TEGROUP_CHAIN_SCALE      = 4, /* y = row_scale * x; row_scale is an argument, and required */
    TEGROUP_CHAIN_USER       = 5  /* the caller's functions */
} tegroup_chain_kind;

/* A caller's op: y from x, and dx from x and dy. Tensors are [rows, cols] in the chain's space, with its routing in
 * their shapes; work goes onto `stream`. Backward is called of every op, for what gradients the caller's own
 * parameters have; where dx is not wanted, as of op 0 without grad_input, that tensor is absent: its dtype is UNSET.
 * A status other than TEGROUP_OK ends the call there: what ran before it has run. `error` is never NULL; what it is
 * filled with, status included, is what the caller of the chain is told. */
typedef tegroup_status (*tegroup_chain_forward_function)(void *context, const tegroup_tensor *input,
    const tegroup_tensor *output, struct CUstream_st *stream, tegroup_error *error);
typedef tegroup_status (*tegroup_chain_backward_function)(void *context, const tegroup_tensor *input,
    const tegroup_tensor *grad_output, const tegroup_tensor *grad_input, struct CUstream_st *stream,
    tegroup_error *error);

/* What an op is; the fields of other kinds are ignored. */
typedef struct tegroup_chain_op {
    tegroup_chain_kind  kind;        /* required                                                                   */
    tegroup_mlp_weights weights;     /* LINEAR: as there, and weight may be quantised, which rows are not. BIAS: bias,
                                        required, [groups, 1, cols], and bias_grad                                 */
    tegroup_activation  activation;  /* ACTIVATION: this and the next three as in tegroup_activation_desc          */
    int32_t             interleaved;
    double              alpha, limit;
    int64_t             cols;        /* USER: columns of y; 0 = those of x                                         */
    tegroup_chain_forward_function  forward;  /* USER: required                                                    */
    tegroup_chain_backward_function backward; /* USER: required with grad_output                                   */
    void               *context;     /* USER: handed on                                                            */
} tegroup_chain_op;

/* What one op is given beside what it is: at most one argument an op. A field that its op does not take is an error,
 * and so is data without a dtype. */
typedef struct tegroup_chain_argument {
    int32_t        op;              /* index in ops                                                                */
    tegroup_tensor out;             /* y [rows, cols], contiguous; absent = in `saved`. Required of the last op. May
                                       be x, of the same dtype, for BIAS, SCALE without grad_row_scale, and an
                                       ACTIVATION that has no gate and whose dx is not computed */
    tegroup_tensor grad_input;      /* dx [rows, cols], contiguous; absent = in the workspace, and for op 0 not
                                       computed. Not taken by BIAS. May be dy, of the same dtype, for SCALE and an
                                       ACTIVATION that has no gate */
    const void    *row_scale;       /* [rows]; LINEAR with bias, ACTIVATION, SCALE; NULL to plan                   */
    tegroup_dtype  row_scale_dtype; /* F32 or F64; UNSET = none                                                    */
    tegroup_tensor grad_row_scale;  /* [rows, 1]; with row_scale, and for op 0 with grad_input; absent = not wanted */
    const void    *snapshot;        /* the op's routing; NULL = that of the chain's input. Not taken by USER       */
} tegroup_chain_argument;

/* Ops in order: each reads what the one before it wrote. Backward runs them from the last to the first, weights'
 * gradients included. Where a linear, an activation and a linear follow one another they run as a grouped MLP, with
 * the same bits, unless something of theirs is not the MLP's to give: tegroup_chain_explain says what. A plan made
 * with a row_scale or a snapshot left NULL takes it for that of the op's neighbours, and calls must then give it so;
 * a call runs what the plan fused, no more. What lies between ops has input's dtype unless an argument says
 * otherwise. Every [rows, ...] tensor has input's row sizes and snapshot: what its shape says of them is not looked
 * at. On a device the sizes live there, too, unless no op is an ACTIVATION or a SCALE, or has a bias. All memory is
 * the caller's. */
typedef struct tegroup_chain_desc {
    size_t          struct_size;    /* sizeof(tegroup_chain_desc)                                                 */
    tegroup_space   space;          /* required                                                                   */
    const tegroup_chain_op *ops;    /* [op_count] in host memory; required                                        */
    int32_t         op_count;       /* 1 to TEGROUP_CHAIN_MAX_OPS                                                 */
    const tegroup_chain_argument *arguments; /* [argument_count] in host memory, in any order; NULL = none        */
    int32_t         argument_count;
    tegroup_tensor  input;          /* in  [rows, cols], ragged rows, contiguous; required                        */
    tegroup_tensor  grad_output;    /* in  gradient of the last op's y; absent = forward alone                    */
    int32_t         unfused;        /* 1: no fusion pass                                                          */
    int32_t         accumulate;     /* main_grad and bias_grad of every op: 0 overwrite, 1 add                    */
    void           *saved;          /* TEGROUP_ALIGNMENT-aligned; what ops gave, from forward to backward         */
    size_t          saved_bytes;    /* >= plan.saved_bytes                                                        */
    int32_t        *refused;        /* out, host: the op that an error is about, in its own words; -1 = the chain.
                                       NULL = not wanted; written only on error */
    tegroup_options options;        /* of each op; a BIAS multiplies nothing: its backend is AUTO */
} tegroup_chain_desc;

/* How an op runs. */
typedef struct tegroup_chain_verdict {
    int32_t     first, count; /* ops that run as one: first = its own index and 1, or a grouped MLP's             */
    const char *reason;       /* an activation outside a grouped MLP: why; else NULL                              */
} tegroup_chain_verdict;

#define TEGROUP_CHAIN_PLAN_MAGIC 0x54474335u /* "TGC5" */

/* What a call must bring again, for the bytes of every buffer follow from it. Op i reads value i and writes value i
 * + 1. */
typedef struct tegroup_chain_planned {
    int32_t  groups;
    uint32_t saved;        /* bit i: value i is in `saved`                                                         */
    int64_t  rows;
    int64_t  cols[TEGROUP_CHAIN_MAX_VALUES];
    /* enums, a byte each */
    uint8_t  dtypes[TEGROUP_CHAIN_MAX_VALUES];
    uint8_t  grad_dtypes[TEGROUP_CHAIN_MAX_VALUES]; /* UNSET = not computed, or the grouped MLP's own              */
    uint8_t  kinds[TEGROUP_CHAIN_MAX_OPS];
    uint8_t  activations[TEGROUP_CHAIN_MAX_OPS];    /* of an ACTIVATION, as is interleaved                         */
    uint8_t  interleaved[TEGROUP_CHAIN_MAX_OPS];
    uint8_t  main_grads[TEGROUP_CHAIN_MAX_OPS];     /* dtype, of a LINEAR; UNSET = none, here and below            */
    uint8_t  bias_grads[TEGROUP_CHAIN_MAX_OPS];     /* of a LINEAR or a BIAS                                       */
    uint8_t  row_scales[TEGROUP_CHAIN_MAX_OPS];
    uint8_t  grad_row_scales[TEGROUP_CHAIN_MAX_OPS];
} tegroup_chain_planned;

/* As the other plans. Ops i, i + 1 and i + 2 that run as a grouped MLP have its fc1 in ops[i], its fc2 in ops[i + 2]
 * and the rest of its plan in mlps[i / 3]. tegroup_chain_layout says what each byte of saved and of the workspace is
 * for. */
typedef struct tegroup_chain_plan {
    size_t              struct_size;
    uint32_t            magic;
    int32_t             op_count;
    uint32_t            fused;     /* bit i: ops i, i + 1 and i + 2 run as a grouped MLP                           */
    size_t              saved_bytes, workspace_bytes;
    size_t              op_bytes;  /* of the workspace: what the op that needs most has for itself                 */
    tegroup_chain_planned planned;
    tegroup_linear_plan ops[TEGROUP_CHAIN_MAX_OPS]; /* LINEAR; of BIAS forward and wgrad, products with k = 0      */
    tegroup_mlp_planned mlps[2];
} tegroup_chain_plan;

/* The memory that a plan gives the size of. */
typedef enum tegroup_chain_memory {
    TEGROUP_CHAIN_MEMORY_UNSET = 0,
    TEGROUP_CHAIN_WORKSPACE    = 1,
    TEGROUP_CHAIN_SAVED        = 2
} tegroup_chain_memory;
