/* ---- MoE operations ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"

/* Counts of groups from labels: counts[g] = how many labels are g, offsets[g] = the sum of the counts before g. A label
 * outside 0 .. groups-1 (-1: dropped, or padding) is in no group. counts are what tegroup_prepare reads as COUNTS, with
 * `starts` for its starts, and offsets what it reads as OFFSETS. Integers: bitwise repeatable. Needs no workspace.
 *
 * Labels of rows, as DeepGEMM's contiguous layout has them: labels [1, rows], and starts[g] is group g's first row.
 * Labels of blocks of rows, as vLLM's and SGLang's moe_align_block_size gives them: labels are expert_ids, slot_of_row
 * is sorted_token_ids and padded_rows num_tokens_post_padded. A row whose slot is outside 0 .. tokens * k - 1 is
 * padding then, in no group, and such a slot_of_row serves as it is wherever a map of that name is read. Rows of a
 * group that do not follow one another are not what a snapshot can say: prepare then clamps what starts and counts
 * claim. */
typedef struct tegroup_count_desc {
    size_t         struct_size;   /* sizeof(tegroup_count_desc)                                                  */
    tegroup_space  space;         /* where everything lives; required                                            */
    int32_t        groups;        /* 0 to TEGROUP_MAX_GROUPS                                                     */
    tegroup_matrix labels;        /* in  [tokens, k] or [1, n], I32 or I64; with slot_of_row [1, blocks]         */
    tegroup_matrix counts;        /* out [1, groups], I32 (of at most 2^31 - 1 labels) or I64                    */
    tegroup_matrix offsets;       /* out [1, groups + 1], likewise; absent = not wanted                          */
    tegroup_matrix starts;        /* out [1, groups], likewise: the first row of each group, 0 where it has none, rows
                                     being labels in order; absent = not wanted                                  */
    int64_t        block;         /* with slot_of_row: rows that a label is of, 1 to TEGROUP_MAX_COLS; 0 = 1; else 0
                                     or 1                                                                        */
    tegroup_matrix slot_of_row;   /* in  [1, rows], I32 or I64, of ceil(rows / block) labels; absent = every row is of
                                     its label's group                                                           */
    tegroup_matrix padded_rows;   /* in  [1, 1], I32 or I64: rows from there on are padding; absent = rows; only with
                                     slot_of_row                                                                 */
    tegroup_matrix row_of_slot;   /* out [tokens, k], I32 (of at most 2^31 - 1 rows) or I64: the row of each slot, of
                                     several the last; -1 = none. There just where slot_of_row is                */
} tegroup_count_desc;

/* A snapshot in the words of other libraries. Each output may be absent, but not all of them; integers, the same bits
 * on the CPU and on a GPU. A snapshot in device memory that was not prepared for this shape, or from, counts as one
 * without rows. Needs no workspace; may be captured.
 *
 *   counts       rows of each group, -1 where it is skipped: tegroup_prepare's COUNTS. Beside a buffer [groups, most,
 *                width], whose snapshot has stride `most`, DeepGEMM's masked_m and the counts of NCCL EP's expert-major
 *                slabs
 *   offsets      the first row of each group, and the row behind group G - 1: tegroup_prepare's OFFSETS where groups
 *                have no gaps, and in any case `starts` beside counts. That last number is the next multiple of block,
 *                so with the snapshot's alignment for block it is num_tokens_post_padded, and in a buffer of whole
 *                blocks offsets from their second number on are cuDNN's padded_offsets
 *   ends         the row after each group's last: tegroup_prepare's ENDS, with the snapshot's alignment, of which the
 *                buffer has a multiple of rows (a group without rows begins within the buffer)
 *   labels       of each block of rows the group that has its first row, or -1. With block 1 the labels of DeepGEMM's
 *                contiguous layout; with the snapshot's alignment for block vLLM's and SGLang's expert_ids
 *   sorted_ids   slot_of_row with `slots` for every row that no slot has: their sorted_token_ids
 *   source_rows  of each row the row of another snapshot's buffer that is the same row of the same group, or -1. As
 *                slot_of_row of tegroup_permute, with k 1 and that buffer for tokens, it moves rows from one layout to
 *                the other: packed, padded, masked, slabs; and with the snapshots exchanged back */
typedef struct tegroup_export_desc {
    size_t         struct_size;  /* sizeof(tegroup_export_desc)                                                  */
    tegroup_space  space;        /* where everything lives; required                                             */
    tegroup_shape  shape;        /* its groups, its rows (at most TEGROUP_MAX_COLS) and its snapshot; required   */
    int64_t        block;        /* rows of a block, 1 to TEGROUP_MAX_COLS; 0 = 1                                */
    tegroup_matrix counts;       /* out [1, groups], I32 (of at most 2^31 - 1 rows) or I64, as all below         */
    tegroup_matrix offsets;      /* out [1, groups + 1]                                                          */
    tegroup_matrix ends;         /* out [1, groups]                                                              */
    tegroup_matrix labels;       /* out [1, ceil(shape.rows / block)]                                            */
    tegroup_matrix slot_of_row;  /* in  [1, shape.rows], as of tegroup_permutation_make; just with sorted_ids    */
    int64_t        slots;        /* tokens times k, 0 to TEGROUP_MAX_COLS; 0 without sorted_ids                  */
    tegroup_matrix sorted_ids;   /* out [1, shape.rows], I32 (of at most 2^31 - 1 slots) or I64                  */
    tegroup_shape  from;         /* the other buffer's: as many groups, its rows and its snapshot; just with
                                    source_rows, else all zero                                                   */
    tegroup_matrix source_rows;  /* out [1, shape.rows]                                                          */
    int32_t        threads;      /* as tegroup_router_desc's                                                     */
} tegroup_export_desc;

/* How uneven a routing is. */
typedef struct tegroup_skew {
    int32_t groups, skipped, empty; /* of all groups those that are skipped, and those without rows               */
    int32_t largest;                /* the group of most rows, of equal ones the lowest; -1 = none has rows       */
    int64_t rows;                   /* of all groups                                                              */
    int64_t rows_max, rows_median, rows_min; /* of groups that are not skipped; of two in the middle the smaller  */
    int64_t tiles;                  /* stripes of tile_rows rows that hold the groups' rows, each of one group    */
    int64_t wasted_rows;            /* rows of these tiles that no group fills                                    */
    int64_t bytes, wasted_bytes;    /* row_bytes for each row, and for each wasted row                            */
    double  largest_over_mean;      /* rows_max by the mean of groups that are not skipped; 0 without rows        */
} tegroup_skew;

/* The skew of a routing, from its snapshot (counts on the host become one by tegroup_prepare). A snapshot in device
 * memory that was not prepared for this shape counts as one without rows. The same bits on the CPU and on a GPU, where
 * it is one kernel of one block, good for capture: read the result when the stream is done. Needs no workspace. */
typedef struct tegroup_skew_desc {
    size_t        struct_size; /* sizeof(tegroup_skew_desc)                                                      */
    tegroup_space space;       /* where snapshot and result live; required                                       */
    tegroup_shape shape;       /* its groups, its rows (at most TEGROUP_MAX_COLS) and its snapshot; required     */
    int64_t       tile_rows;   /* rows of a tile, such as a plan's tile_m: 1 to TEGROUP_MAX_COLS; required       */
    int64_t       row_bytes;   /* bytes of a row of the buffer, 0 to TEGROUP_MAX_COLS; 0 = not wanted            */
    tegroup_skew *result;      /* out, aligned to 8 bytes                                                        */
} tegroup_skew_desc;

/* What a logit x says of an expert: its score. */
typedef enum tegroup_score {
    TEGROUP_SCORE_SOFTMAX       = 0, /* exp(x) / the sum over the token's experts of exp(their logits)            */
    TEGROUP_SCORE_SIGMOID       = 1, /* 1 / (1 + exp(-x))                                                         */
    TEGROUP_SCORE_SQRT_SOFTPLUS = 2  /* sqrt(log(1 + exp(x)))                                                     */
} tegroup_score;

/* What is said of a group of experts by the keys that a token chooses by. */
typedef enum tegroup_group_score {
    TEGROUP_GROUP_SCORE_TOP2 = 0, /* the sum of the two largest keys of its experts (DeepSeek-V3)                  */
    TEGROUP_GROUP_SCORE_MAX  = 1  /* the largest one (DeepSeek-V2)                                                 */
} tegroup_group_score;

/* What a router is besides softmax top-k, which is all zero (a route_factor of 1 counts as 0); docs/router.md has the
 * values of many models. The forward and the backward call are given the same.
 *
 * A token's experts have keys, score + bias, and it takes those of the k largest; of equal keys the larger logit, as
 * the probabilities' type holds it, and of equal logits the lower expert. With n_group, only experts of the topk_group
 * best groups are taken; of equal groups the lower one is better. An expert whose key is NaN comes after all others;
 * where softmax is NaN all keys are, and the lowest experts are taken. So indices are always experts, none twice. The
 * bias is for the choice alone: weights are scores, divided by their sum + normalize_epsilon if normalize is 1 (0
 * where that sum is 0), times route_factor. A softmax over the chosen logits alone is softmax with normalize 1; the
 * sigmoid of the largest logits is SIGMOID.
 *
 * The balance loss is balance_coefficient times the mean over sequences of experts * sum_e (share of the sequence's
 * assignments to e) * (mean over its tokens of the expert's share of the token's scores). A token has k assignments,
 * also where given_indices name no expert. A sequence is all tokens, or each sequence_tokens of them (DeepSeek-V3,
 * arXiv:2412.19437, equations 17 to 20). The z-loss is z_coefficient times the mean over tokens of (log sum
 * exp(logits))^2 (Zoph et al. 2022, "ST-MoE", arXiv:2202.08906, equation 5). Means of nothing are 0.
 *
 * The gradient of a logit that is NaN is NaN, whether its expert is chosen or not, and where softmax is NaN so are the
 * token's others. A token that token_mask or valid_tokens leaves out has indices -1, weights, probabilities and
 * gradients 0, and counts nowhere. Pointers are in `space`. */
typedef struct tegroup_router_scheme {
    tegroup_score  score;
    int32_t        n_group;       /* groups of equally many neighbouring experts, 2 to 64; 0 = none               */
    int32_t        topk_group;    /* the groups that a token may choose from, 1 to n_group, with at least k experts;
                                     0 without n_group                                                            */
    tegroup_group_score group_score; /* without n_group 0                                                         */
    tegroup_matrix bias;          /* in  [1, experts], F32 or F64; absent = none                                  */
    double         normalize_epsilon; /* with normalize: at least 0; DeepSeek-V3's 1e-20; else 0                  */
    double         route_factor;  /* multiplies the weights: above 0; 0 = 1                                       */
    tegroup_matrix given_indices; /* in  [tokens, k], I32 or I64: the experts that a token takes, whatever their keys;
                                     what is no expert becomes index -1 with weight 0, and counts nowhere. Not with
                                     bias and n_group. Absent = the router chooses                                */
    const uint8_t *token_mask;    /* in  [tokens]: 0 = padding; NULL = none                                       */
    const int64_t *valid_tokens;  /* in  one value: tokens from there on are padding; NULL = none                 */
    int64_t        sequence_tokens; /* tokens of a sequence, a divisor of tokens; 0 = all                         */
    double         z_coefficient; /* 0 = no z-loss                                                                */
} tegroup_router_scheme;

/* Router: probabilities = softmax(logits) by row; each token takes its k largest. Of equal ones it takes the larger
 * logit, which far below the row's largest is all that tells experts apart, and of equal logits the lower expert. A
 * row that holds NaN or infinity, or minus infinity alone, has probabilities of NaN and takes experts 0 .. k-1. (F64
 * logits count as F32 where probabilities are F32, but for ties.) weights are those probabilities, divided by their
 * sum when normalize is 1. Formula: Shazeer et al. 2017, "Outrageously Large Neural Networks"; load-balancing loss:
 * Fedus et al. 2021, "Switch Transformers", section 2.2: balance_coefficient * experts * sum_e (share of assignments
 * to e) * (mean probability of e).
 *
 * Probabilities, weights, indices and counts may each be absent (dtype UNSET), but not all of them where z_loss is
 * not wanted; the others have the bits that they have beside it. balance_loss needs probabilities and counts. Where
 * probabilities are absent, their type is that of weights; where weights are absent, too, F64 for logits in F64 and
 * else F32. */
typedef struct tegroup_router_desc {
    size_t         struct_size;   /* sizeof(tegroup_router_desc)                                                 */
    tegroup_space  space;         /* where everything lives; required                                            */
    int32_t        experts;       /* 1 to TEGROUP_MAX_GROUPS                                                     */
    int32_t        k;             /* experts a token, 1 to 64, at most experts                                   */
    int32_t        normalize;     /* 1: the k weights of a token sum to 1                                        */
    tegroup_matrix logits;        /* in  [tokens, experts], F16, BF16, F32 or F64                                */
    tegroup_matrix probabilities; /* out [tokens, experts], F32 or F64: kept for the backward pass               */
    tegroup_matrix weights;       /* out [tokens, k], dtype of probabilities                                     */
    tegroup_matrix indices;       /* out [tokens, k], I32 or I64, largest weight first                           */
    tegroup_matrix counts;        /* out [1, experts], I32 (of tokens * k below 2^31) or I64: assignments to each
                                     expert                                                                      */
    double         balance_coefficient; /* 0 = no load-balancing loss                                            */
    double        *balance_loss;  /* out, one value; NULL = not wanted                                           */
    void          *workspace;     /* tegroup_router_layout's, TEGROUP_ALIGNMENT-aligned; none is needed on the host */
    size_t         workspace_bytes;
    int32_t        threads;       /* on the host, at most so many; 0 = all that OpenMP gives, 1 without OpenMP. Only
                                     time depends on it                                                          */
    tegroup_router_scheme scheme; /* all zero: as above. Else probabilities are scores, and balance_loss needs them and
                                     indices                                                                     */
    double        *z_loss;        /* out, one value; NULL = not wanted                                           */
    tegroup_matrix loss_gradients; /* out [sequences, experts + 1], F64: what the backward call needs of the losses: of
                                      each sequence the slope of the balance loss in each expert's shares, and twice
                                      z_coefficient by the count of tokens. Needs indices; absent = not wanted   */
} tegroup_router_desc;

/* Gradient of the router: of what the weights fed and of the load-balancing loss, with the choice of experts held
 * fixed. An index outside 0 .. experts-1 (-1) is of a choice that was dropped after routing. Its weight went
 * nowhere, and that weight's gradient is not read; but its probability is part of what normalize divided by, and has
 * a gradient: the dropped experts are those that scheme.given_indices name in their places or, without, those of the
 * largest probabilities that the token does not list, of equal ones the lower. (Between equal ones the router may have
 * known better: its own indices are always right.) */
typedef struct tegroup_router_backward_desc {
    size_t         struct_size;   /* sizeof(tegroup_router_backward_desc)                                        */
    tegroup_space  space;
    int32_t        experts, k, normalize; /* as in the forward call                                              */
    tegroup_matrix probabilities; /* in  as the forward call wrote them                                          */
    tegroup_matrix indices;       /* in  [tokens, k], I32 or I64, likewise; -1 where dropped since               */
    tegroup_matrix counts;        /* in  [1, experts], I32 or I64; needed when balance_coefficient is not 0, else
                                     ignored                                                                     */
    tegroup_matrix grad_weights;  /* in  [tokens, k], dtype of probabilities                                     */
    tegroup_matrix grad_logits;   /* out [tokens, experts], F16, BF16, F32 or F64                                */
    double         balance_coefficient;
    double         loss_scale;    /* multiplies the gradients of the losses; 0 = 1                               */
    int32_t        threads;       /* as in the forward call                                                      */
    tegroup_router_scheme scheme; /* as in the forward call                                                      */
    tegroup_matrix loss_gradients; /* in  as the forward call wrote them; needed where scheme.z_coefficient is not 0.
                                      Absent = the losses have no gradient, or the balance loss has that of
                                      balance_coefficient and counts. With a scheme that coefficient must be 0, and
                                      counts are ignored                                                         */
    tegroup_matrix logits;        /* in  as in the forward call; needed where scheme.z_coefficient is not 0, else
                                     ignored                                                                     */
} tegroup_router_backward_desc;

/* The permutation that groups (token, choice) slots by expert. Slot s = token * k + choice. Rows of a group keep the
 * order of slots. A slot whose index is outside 0 .. experts-1 (-1: dropped), or whose group is full, gets row -1.
 * Below, too, a row or slot that leads outside counts as -1, nobody's, on the CPU as on a GPU.
 *
 * On a GPU a call that makes the snapshot is one launch for up to 512 experts, if it has no alignment, stride, ragged
 * columns or weights. Beyond a few thousand slots the blocks of that launch wait for one another: CUDA starts it when
 * all of them have room, at most one on each multiprocessor.
 *
 * Here and below, row_of_slot is I32 or I64, and so is slot_of_row: I32 for at most 2^31 - 1 rows, or slots. (The
 * gather of a product reads I64.) */
typedef struct tegroup_permutation_desc {
    size_t         struct_size;  /* sizeof(tegroup_permutation_desc)                                             */
    tegroup_space  space;
    tegroup_matrix indices;      /* in  [tokens, k], I32 or I64: expert of each slot                             */
    tegroup_shape  shape;        /* groups = experts, rows = capacity, at most TEGROUP_MAX_COLS; its snapshot, of the
                                    experts' counts, is required unless it is made here                          */
    tegroup_matrix row_of_slot;  /* out [tokens, k]: row of the permuted buffer, or -1                           */
    tegroup_matrix slot_of_row;  /* out [1, shape.rows]: slot, or -1 for a row that no slot has; absent = not wanted */
    void          *workspace;    /* tegroup_permutation_layout's, TEGROUP_ALIGNMENT-aligned; none is needed on the
                                    host */
    size_t         workspace_bytes;
    int32_t        threads;      /* as tegroup_router_desc's                                                     */
    tegroup_matrix weights;      /* in  [tokens, k], F32 or F64: a full group keeps the slots of the largest weights, of
                                    equal ones those that come first, and NaN comes last; absent = it keeps the slots
                                    that come first                                                              */
    void          *snapshot;     /* out: the snapshot, which this call then makes itself, of how many slots name each
                                    expert, as tegroup_prepare does with clamp. The caller has no counts: of
                                    shape.row_sizes only alignment and stride are read, and shape.snapshot is NULL or
                                    this address. TEGROUP_ALIGNMENT-aligned. NULL = shape.snapshot was prepared   */
    size_t         snapshot_bytes; /* at least tegroup_snapshot_layout's                                         */
    tegroup_matrix slot_weights; /* in  [tokens, k], F32 or F64: what row_weights are copied from; absent just where
                                    they are                                                                     */
    tegroup_matrix row_weights;  /* out [1, shape.rows], dtype of slot_weights: the weight of each row's slot; those of
                                    rows that no slot has are untouched. Absent = not wanted                     */
} tegroup_permutation_desc;

/* permuted[row] = weight(slot) * tokens[slot / k], rows that no slot 0 .. tokens * k - 1 has are untouched. Weights
 * absent: a copy (a signalling NaN may become quiet), and then any type of whole bytes serves; what is not F16, BF16,
 * F32 or F64 is copied byte by byte. This is also the gradient of tegroup_combine with respect to its rows; see
 * there. */
typedef struct tegroup_permute_desc {
    size_t         struct_size;  /* sizeof(tegroup_permute_desc)                                                 */
    tegroup_space  space;
    int32_t        k;            /* choices a token, 1 to 64                                                     */
    tegroup_matrix tokens;       /* in  [tokens, width], F16, BF16, F32 or F64; without weights also F8E4M3,
                                    F8E5M2, F8E8M0, I32 or I64                                                   */
    tegroup_matrix slot_of_row;  /* in  [1, rows]                                                                */
    tegroup_matrix weights;      /* in  [tokens, k], F32 or F64; absent = 1                                      */
    tegroup_matrix permuted;     /* out [rows, width], F16, BF16, F32 or F64, or the other type that tokens have;
                                    must not overlap an input                                                    */
    int32_t        threads;      /* as tegroup_router_desc's                                                     */
    tegroup_matrix row_of_slot;  /* in  [tokens, k]: the same permutation, by slots; absent = not at hand. If it is
                                    there, slot_of_row is not read, and may be absent: each token is read once, and not
                                    once for every choice. No row may be there twice                             */
} tegroup_permute_desc;

/* tokens[t] = sum over choices j = 0 .. k-1, in that order, of weights[t, j] * permuted[row_of_slot[t, j]]; slots whose
 * row is outside 0 .. rows-1 add nothing. Weights absent: a plain sum, which is the gradient of tegroup_permute. No
 * atomics: bitwise repeatable. */
typedef struct tegroup_combine_desc {
    size_t         struct_size;  /* sizeof(tegroup_combine_desc)                                                 */
    tegroup_space  space;
    tegroup_matrix permuted;     /* in  [rows, width], F16, BF16, F32 or F64, as all rows below                  */
    tegroup_matrix row_of_slot;  /* in  [tokens, k]                                                              */
    tegroup_matrix weights;      /* in  [tokens, k], F32 or F64; absent = 1                                      */
    tegroup_matrix tokens;       /* out [tokens, width]; must not overlap an input                               */
    int32_t        threads;      /* as tegroup_router_desc's                                                     */
    int32_t        accumulate;   /* 1: the sum begins with what tokens holds, such as a shared expert's output (F64
                                    only beside rows of F64); 0: with 0, and tokens is not read                  */
} tegroup_combine_desc;

/* Gradient of tegroup_combine: grad_permuted[row] = weight * grad_tokens[token] for rows that have a slot (others
 * untouched), grad_weights[slot] = <grad_tokens[token], permuted[row]>, 0 for slots whose row is outside 0 ..
 * rows-1. */
typedef struct tegroup_combine_backward_desc {
    size_t         struct_size;  /* sizeof(tegroup_combine_backward_desc)                                        */
    tegroup_space  space;
    tegroup_matrix grad_tokens;  /* in  [tokens, width]                                                          */
    tegroup_matrix permuted;     /* in  [rows, width]; absent when grad_weights is                               */
    tegroup_matrix row_of_slot;  /* in  [tokens, k]                                                              */
    tegroup_matrix weights;      /* in  [tokens, k], F32 or F64; absent = 1                                      */
    tegroup_matrix grad_permuted;/* out [rows, width]                                                            */
    tegroup_matrix grad_weights; /* out [tokens, k], F32 or F64; absent = not wanted                             */
    int32_t        threads;      /* as tegroup_router_desc's                                                     */
} tegroup_combine_backward_desc;
