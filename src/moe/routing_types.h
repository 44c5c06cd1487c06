/* ---- MoE operations ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"

/* Counts of groups from labels: counts[g] = how many labels are g, offsets[g] = the sum of the counts before g. A label
 * outside 0 .. groups-1 (-1: dropped) is in no group. Either output is what tegroup_prepare reads as COUNTS or as
 * OFFSETS. Integers: bitwise repeatable. Needs no workspace. */
typedef struct tegroup_count_desc {
    size_t         struct_size;   /* sizeof(tegroup_count_desc)                                                  */
    tegroup_space  space;         /* where everything lives; required                                            */
    int32_t        groups;        /* 0 to TEGROUP_MAX_GROUPS                                                     */
    tegroup_matrix labels;        /* in  [tokens, k] or [1, n], I32 or I64                                       */
    tegroup_matrix counts;        /* out [1, groups], I32 (of at most 2^31 - 1 labels) or I64                    */
    tegroup_matrix offsets;       /* out [1, groups + 1], likewise; absent = not wanted                          */
} tegroup_count_desc;

/* Router: probabilities = softmax(logits) by row; each token takes its k largest. Of equal ones it takes the larger
 * logit, which far below the row's largest is all that tells experts apart, and of equal logits the lower expert. A
 * row that holds NaN or infinity, or minus infinity alone, has probabilities of NaN and takes experts 0 .. k-1. (F64
 * logits count as F32 where probabilities are F32, but for ties.) weights are those probabilities, divided by their
 * sum when normalize is 1. Formula: Shazeer et al. 2017, "Outrageously Large Neural Networks"; load-balancing loss:
 * Fedus et al. 2021, "Switch Transformers", section 2.2: balance_coefficient * experts * sum_e (share of assignments
 * to e) * (mean probability of e).
 *
 * Each of the four matrices that are written may be absent (its dtype UNSET), but not all of them; the others have the
 * bits that they have beside it. balance_loss needs probabilities and counts. Where probabilities are absent, their
 * type is that of weights; where weights are absent, too, F64 for logits in F64 and else F32. */
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
} tegroup_router_desc;

/* Gradient of the router: of what the weights fed and of the load-balancing loss, with the choice of experts held
 * fixed. An index outside 0 .. experts-1 (-1) is of a choice that was dropped after routing. Its weight went
 * nowhere, and that weight's gradient is not read; but its probability is part of what normalize divided by, and has
 * a gradient: the dropped experts are those of the largest probabilities that the token does not list, of equal ones
 * the lower. (Between equal ones the router may have known better: its own indices are always right.) */
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
    double         loss_scale;    /* multiplies the load-balancing gradient; 0 = 1                               */
    int32_t        threads;       /* as in the forward call                                                      */
} tegroup_router_backward_desc;

/* The permutation that groups (token, choice) slots by expert. Slot s = token * k + choice. Rows of a group keep the
 * order of slots. A slot whose index is outside 0 .. experts-1 (-1: dropped), or whose group is full, gets row -1.
 * Below, too, a row or slot that leads outside counts as -1, nobody's, on the CPU as on a GPU.
 *
 * Here and below, row_of_slot is I32 or I64, and so is slot_of_row: I32 for at most 2^31 - 1 rows, or slots. (The
 * gather of a product reads I64.) */
typedef struct tegroup_permutation_desc {
    size_t         struct_size;  /* sizeof(tegroup_permutation_desc)                                             */
    tegroup_space  space;
    tegroup_matrix indices;      /* in  [tokens, k], I32 or I64: expert of each slot                             */
    tegroup_shape  shape;        /* groups = experts, rows = capacity, at most TEGROUP_MAX_COLS; snapshot of the
                                    experts' counts required                                                     */
    tegroup_matrix row_of_slot;  /* out [tokens, k]: row of the permuted buffer, or -1                           */
    tegroup_matrix slot_of_row;  /* out [1, shape.rows]: slot, or -1 for a row that no slot has                  */
    void          *workspace;    /* tegroup_permutation_layout's, TEGROUP_ALIGNMENT-aligned; none is needed on the
                                    host */
    size_t         workspace_bytes;
    int32_t        threads;      /* as tegroup_router_desc's                                                     */
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
