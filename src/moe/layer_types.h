/* ---- MoE layer ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "layer/mlp_types.h"
#include "moe/routing_types.h"

/* What rows by expert are quantised to, for the experts' products; all zero: they stay in tokens' dtype. */
typedef struct tegroup_moe_format {
    tegroup_scaling    scaling;
    tegroup_dtype      dtype;       /* of the elements                                                            */
    tegroup_dtype      scale_dtype; /* UNSET = the scaling's own                                                  */
    tegroup_columnwise_order columnwise_order; /* of the copies that wgrad reads. TRANSPOSED also where a rowwise copy
                                                  would serve: there is a copy of its own then. One of values must be of
                                                  tokens' dtype: wgrad then reads rows as they were                */
    tegroup_scale_rule rule;        /* how scales are chosen; required with a scaling. GIVEN is not built          */
} tegroup_moe_format;

/* A whole mixture-of-experts layer: from tokens and router logits to the layer's output, and back.
 *
 *   forward   router         each token's k experts and their weights
 *             permutation    rows by expert, each a token and its weight
 *             experts        fc1, activation times the row's weight, fc2
 *             combine        Y[t] = the sum of token t's rows, in the order of its choices
 *   dgrad     each row's dY is its token's; the experts' dgrad; dX[t] = the sum of token t's rows, in that order; the
 *             gradient of the weights, through the router to that of the logits (of given_weights, as it is)
 *   wgrad     the experts' wgrad; needs what forward and dgrad left, and may come later
 *
 * With formats, rows by expert are quantised from the tokens, or the output's gradient, that an index picks, and what
 * lies between fc1 and fc2 by the MLP, as tegroup_mlp_desc says: nothing of them is stored as it was, but what wgrad
 * reads where columnwise_order is of values. The caller quantises the weights.
 *
 * So the routing weights multiply what the activation gives, and not what fc2 gives, whose bias they then multiply,
 * too (the sums are the same, the roundings are not); neither direction keeps or reads fc2's rows again.
 *
 * This struct is what the plan is made from, what each call is given, and all that is remembered between them, in two
 * memories of the caller's: `saved_by_forward`, for dgrad and wgrad, and `saved_by_dgrad`, for wgrad. The plan reads
 * everything but what addresses lead to. A call may have fewer tokens and smaller capacities than the plan, other
 * numbers for route_factor, normalize_epsilon and loss_scale, and other coefficients, 0 among them, of losses that the
 * plan has; with a loss, the router's scheme is all zero just where the plan's is (a z_coefficient apart, and a
 * route_factor of 1 counts as 0). All else is as planned, and forward, dgrad and wgrad of one step agree in everything.
 * Everything is checked before anything but the workspace is written, except what a host list of weights has for the
 * experts that are chosen: a forward that misses one has routed. On a GPU a call is kernels of one stream in order,
 * without copies, and may be captured: which experts are chosen is up to each replay. Outputs overlap nothing that
 * their call touches; check_level DEEP compares what a list in host memory points to, too, but not two lists with each
 * other.
 *
 * An error's field is a path in this struct, or in its member that `within` names, router or experts; what its rule
 * compares it with is named as in that member. */
typedef struct tegroup_moe_desc {
    size_t          struct_size;  /* sizeof(tegroup_moe_desc)                                                     */
    tegroup_space   space;        /* where everything lives; required                                             */
    tegroup_matrix  tokens;       /* in  X [tokens, width], fc1.weight's dtype, or F32 beside one of F16 or BF16; F32,
                                     F16 or BF16 with rows_format or quantised weights; forward reads it, and wgrad
                                     where experts.recompute is 1                                                 */
    tegroup_matrix  output;       /* out Y [tokens, fc2's outputs], F16, BF16, F32 or F64                         */
    tegroup_matrix  grad_output;  /* in  dY, shaped as output, dtype of tokens; absent = inference: nothing is saved, no
                                     dgrad and no wgrad                                                           */
    tegroup_matrix  grad_tokens;  /* out dX through the experts, shaped as tokens, F16, BF16, F32 or F64 (that through
                                     the logits is the caller's to add); absent = not wanted                      */
    tegroup_matrix  grad_logits;  /* out [tokens, experts], F16, BF16, F32 or F64; absent = not wanted            */
    tegroup_router_desc router;   /* k, logits and how experts are chosen: as in tegroup_router, but that struct_size,
                                     space, experts and workspace are the layer's. What it writes for the caller, too,
                                     is there (probabilities, weights, indices, counts and balance_loss as wanted, in
                                     dtypes of the caller's; weights and probabilities F64 where tokens are, else F32);
                                     the rest is the layer's. What is there must stay until wgrad. threads is of
                                     the router alone, experts.options.threads of all else                        */
    double          loss_scale;   /* multiplies the gradients of the router's losses; 0 = 1                       */
    tegroup_mlp_desc experts;     /* fc1, fc2, fc1_up with bias and gradients, activation and its parameters, recompute,
                                     accumulate, fusion and options, as in tegroup_mlp_desc; its backend, hints and
                                     workspace are those of the whole layer. recompute 1: forward keeps neither
                                     tokens by expert, nor activated, nor the router's probabilities; wgrad permutes
                                     the first, and dgrad, which reads router.logits for it, computes the others,
                                     again, bit for bit. Every other field is the layer's own and must be absent, zero
                                     or NULL: rules are those of the formats                                      */
    int64_t         capacity;     /* rows by expert that buffers hold; 0 = tokens * k, and no choice is dropped. Else
                                     experts in order get theirs as long as there is room, and choices without a row
                                     add nothing                                                                  */
    int32_t         drops_by_weight; /* what an expert without room for all keeps: 0 the choices that come first, 1
                                        those of the largest weights                                              */
    void           *saved_by_forward; /* TEGROUP_ALIGNMENT-aligned, as many bytes as the plan says; NULL where none */
    size_t          saved_by_forward_bytes;
    void           *saved_by_dgrad;   /* likewise; for dgrad and wgrad alone                                      */
    size_t          saved_by_dgrad_bytes;
    tegroup_moe_format rows_format; /* of tokens by expert and of what the activation gives                       */
    tegroup_moe_format grad_format; /* of the output's gradient by expert and of preactivation's                  */
    int32_t         adds_to_output; /* 1: Y is added to what output holds, such as a shared expert's output or the
                                       residual (F64 only beside tokens of F64); 0: output is overwritten. Up to each
                                       call, and of interest to forward alone                                     */
    int32_t         adds_to_grad_tokens; /* likewise dX, to what grad_tokens holds, in dgrad                      */
    int64_t         expert_capacity; /* rows that each expert has room for, such as tokens * k / experts times a factor:
                                        buffers hold experts * expert_capacity, and choices beyond an expert's own have
                                        no row. 0 = no such limit; else capacity is 0. As planned, or smaller      */
    tegroup_matrix  given_weights; /* in  [tokens, k], F64 where tokens are, else F32: with router.scheme.given_indices
                                      the routing of the caller's own. Nothing is routed then: but for k and these
                                      indices all of router, and grad_logits, must be absent, zero or NULL. A choice
                                      whose index is no expert has no row. Absent = the router's                  */
    tegroup_matrix  grad_weights;  /* out the gradient of given_weights, with their shape and dtype, packed; 0 for
                                      choices without a row. Just with given_weights; absent = not wanted         */
} tegroup_moe_desc;

#define TEGROUP_MOE_PLAN_MAGIC 0x54474c4du /* "TGLM" */

/* How experts are chosen and which losses there are: what a call has in common with its plan. */
typedef struct tegroup_moe_choice {
    int32_t             normalize;
    tegroup_score       score;
    int32_t             n_group, topk_group;
    tegroup_group_score group_score;
    int32_t             has_bias, has_given_indices;
    int32_t             has_scheme; /* it is not all zero, but for z_coefficient                                  */
    int32_t             has_balance, has_z; /* coefficients that are not 0                                        */
    int32_t             has_losses;         /* or balance_loss or z_loss is wanted                                */
    int32_t             gives[4], gives_gradients; /* the caller has the router's probabilities, weights, indices,
                                                      counts; its loss_gradients                                  */
} tegroup_moe_choice;

/* What a plan holds besides the experts' own. */
typedef struct tegroup_moe_planned {
    int64_t       tokens, capacity, expert_capacity;     /* rows: of tokens, by expert, and of each expert; 0 = any */
    int64_t       width, preactivation, hidden, outputs; /* columns: from tokens to output                        */
    int32_t       experts, k;
    int32_t       backward, wants_grad_tokens, wants_grad_logits, wants_activated, recompute, drops_by_weight;
    int32_t       given;        /* weights and indices are the caller's own                                       */
    int32_t       wants_grad_weights; /* of those, or on the way to grad_logits                                   */
    int32_t       wants_fc1;  /* its main_grad                                                                    */
    tegroup_dtype rows, real; /* of rows by expert; of weights and probabilities                                  */
    int32_t       keeps[4];   /* the layer has the router's probabilities, weights, indices, counts               */
    int32_t       keeps_losses; /* the layer has the router's loss_gradients                                      */
    int64_t       sequences;  /* that losses are means over: rows of loss_gradients                               */
    size_t        router_bytes, permutation_bytes; /* their workspaces                                            */
    tegroup_moe_format rows_format, grad_format;
    tegroup_space space;      /* where everything lives                                                           */
    tegroup_moe_choice choice;
} tegroup_moe_planned;

/* Made once by tegroup_moe_plan_make, then read-only. Plain bytes that hold no data pointer, as tegroup_plan. */
typedef struct tegroup_moe_plan {
    size_t              struct_size;
    uint32_t            magic;
    size_t              workspace_bytes; /* of experts.options.workspace: serves any of the calls                 */
    size_t              saved_by_forward_bytes;
    size_t              saved_by_dgrad_bytes;
    tegroup_moe_planned planned;
    tegroup_mlp_plan    experts;
} tegroup_moe_plan;

/* The memory that a plan gives the size of. The workspace is shared by the calls; each lays it out for itself. */
typedef enum tegroup_moe_memory {
    TEGROUP_MOE_MEMORY_UNSET      = 0,
    TEGROUP_MOE_SAVED_BY_FORWARD  = 1,
    TEGROUP_MOE_SAVED_BY_DGRAD    = 2,
    TEGROUP_MOE_FORWARD_WORKSPACE = 3,
    TEGROUP_MOE_DGRAD_WORKSPACE   = 4,
    TEGROUP_MOE_WGRAD_WORKSPACE   = 5
} tegroup_moe_memory;
