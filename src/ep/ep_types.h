/* ---- Expert parallelism ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"

/* The experts of a layer shared out over ranks, each of which has tokens of its own: rank r of `ranks` owns experts
 * r * n up to (r + 1) * n, where n is experts / ranks. Nothing here talks to another rank. The caller's transport gives
 * each rank a window, memory that the others reach by plain loads and stores, and between the steps lets each rank wait
 * for all others (docs/ep.md; examples/ep has NCCL and MPI):
 *
 *   counts of all ranks --> tegroup_ep_sizes --> send_rows, send_starts --> tegroup_prepare, tegroup_permutation_make
 *                                  |                                              --> row_of_slot
 *                                  +--> receive_rows --> tegroup_prepare --> snapshot of this rank's experts
 *   tokens --> tegroup_ep_dispatch --> rows in the owners' windows --(all wait)--> tegroup_mlp_forward, out in
 *          the window --(all wait)--> tegroup_ep_combine --> tokens; backward the same way
 *
 * A row of a window is named by one number, owner * capacity + row, where capacity is how many rows each window has
 * room for. In a window experts follow one another, the rows of an expert come by source rank, and those of a rank in
 * the order of its slots. So where ranks have tokens one after another, an expert's rows are in the order that one rank
 * with all the tokens gives them, and forward, dgrad and wgrad have its bits.
 *
 * A token that wants several experts of one rank need not cross to it more than once, nor its results back. A dispatch
 * with row_links stores it once, and tegroup_ep_expand then fills its other rows in the owner's memory. On the way back
 * tegroup_ep_reduce adds up a token's rows there, for a combine with by_owner. */
#define TEGROUP_EP_MAX_RANKS 256

/* What tegroup_ep_sizes has seen; the caller may read it whenever the work before it is done. */
typedef struct tegroup_ep_report {
    uint32_t status;     /* TEGROUP_SNAPSHOT_NEGATIVE: a count below 0 was taken as 0; TEGROUP_SNAPSHOT_CAPACITY: some
                            window is too small, and `dropped` rows have no place; 0 = neither                   */
    int32_t  bad_source; /* lowest rank with a count below 0; -1 = none                                           */
    int32_t  full_owner; /* lowest rank whose window is too small; -1 = none                                      */
    int32_t  reserved;   /* 0                                                                                     */
    int64_t  received;   /* rows that this rank's window gets                                                     */
    int64_t  dropped;    /* rows of all ranks, for all windows, that have no place                                */
    uint64_t digest;     /* of everything that the places follow from: equal on all ranks, or they do not agree   */
} tegroup_ep_report;

/* Where rows go, from what all ranks say. In each window experts in order get their rows as long as there is room, and
 * of an expert the ranks in order; what is left has no place and is dropped, with a count. Counts that lie lead nowhere
 * else: one below 0 counts as 0, and one above TEGROUP_MAX_ROWS as that.
 *
 * send_rows and send_starts are what tegroup_prepare takes as COUNTS with `starts` for a shape of `experts` groups and
 * ranks * capacity rows, whose snapshot tegroup_permutation_make needs; receive_rows, with the same alignment, for the
 * shape of this rank's experts with `capacity` rows. Integers: bitwise repeatable. Needs no workspace. */
typedef struct tegroup_ep_sizes_desc {
    size_t         struct_size;  /* sizeof(tegroup_ep_sizes_desc)                                                */
    tegroup_space  space;        /* where everything lives; required                                             */
    int32_t        ranks;        /* 1 to TEGROUP_EP_MAX_RANKS                                                     */
    int32_t        rank;         /* this one, 0 to ranks - 1                                                     */
    int64_t        capacity;     /* rows that each window has room for: ranks * capacity at most TEGROUP_MAX_COLS */
    int64_t        alignment;    /* rows: an expert begins at a multiple, at most TEGROUP_MAX_COLS; 0 = 1        */
    tegroup_matrix counts;       /* in  [ranks, experts], I32 or I64: rows that each rank has for each expert; experts
                                    are a multiple of ranks, at most TEGROUP_MAX_GROUPS                          */
    tegroup_matrix send_rows;    /* out [1, experts], I32 (of ranks * capacity below 2^31) or I64: rows of this rank for
                                    each expert that have a place                                                */
    tegroup_matrix send_starts;  /* out [1, experts], dtype of send_rows: the place of the first of them         */
    tegroup_matrix receive_rows; /* out [1, experts / ranks], I32 or I64: rows of each of this rank's experts    */
    tegroup_ep_report *report;   /* out, aligned to 8 bytes; NULL = not wanted                                   */
} tegroup_ep_sizes_desc;

/* The windows, all of one size. What is written below as a matrix of `rows` in the window is given by its place in this
 * rank's own, and lies at the same distance from the start of each. */
typedef struct tegroup_ep_windows {
    int32_t      ranks;     /* 1 to TEGROUP_EP_MAX_RANKS                                                         */
    int32_t      rank;      /* this one                                                                          */
    void *const *addresses; /* [ranks], in host memory, read before the call returns: where this process, or the device
                               that it works on, reaches each rank's window; TEGROUP_ALIGNMENT-aligned and apart.
                               Nothing else that a call is given may lie in the windows of other ranks           */
    size_t       bytes;     /* of each window                                                                    */
} tegroup_ep_windows;

/* Puts each token, with its scales and its weights, into the rows of its slots: row_of_slot says where, and a slot
 * whose row is outside 0 .. ranks * capacity - 1 goes nowhere. Each token is read once and stored once a slot. Rows are
 * copied byte for byte, so quantised ones (FP8 with a scale for each 128 of a row, and its scales) are those that
 * quantising after the dispatch gives. What a weight multiplies is whoever reads row_weights: as row_scale of a
 * tegroup_mlp_desc the activation. tegroup_ep_combine may apply it instead. Rows that no slot has are untouched.
 *
 * With row_links tokens and scales, but not weights, go to each other rank once, to the row of the first of the token's
 * slots there, and the links say which rows are the token's. The first one holds the number of the next, 0 to
 * capacity - 1, or its own where there is none; each later one -1 minus the number of the one after it, or -1 minus its
 * own. Rows of this rank's own window are stored each, as without links, and hold -1 minus themselves. A row that its
 * source counts and does not send keeps the link of an earlier step: a rank that does not trust counts fills row_links
 * with -1, with which no list begins, before it gives its own. */
typedef struct tegroup_ep_dispatch_desc {
    size_t         struct_size;  /* sizeof(tegroup_ep_dispatch_desc)                                             */
    tegroup_space  space;        /* where everything lives; required                                             */
    tegroup_ep_windows windows;
    tegroup_matrix row_of_slot;  /* in  [tokens, k], I32 or I64, k from 1 to 64; no row may be there twice       */
    tegroup_matrix tokens;       /* in  [tokens, width], any type but F4E2M1; absent = none                      */
    tegroup_matrix scales;       /* in  [tokens, any], likewise; absent = none                                   */
    tegroup_matrix weights;      /* in  [tokens, k], F32 or F64; absent = none                                   */
    tegroup_matrix rows;         /* out [capacity, width], in the window, dtype of tokens; there if tokens are   */
    tegroup_matrix row_scales;   /* out [capacity, as scales], in the window, dtype of scales; likewise          */
    tegroup_matrix row_weights;  /* out [capacity, 1], in the window, dtype of weights; likewise                 */
    tegroup_matrix row_links;    /* out [capacity, 1], I32, in the window; needs tokens; absent = tokens go to each of
                                    their rows                                                                   */
    int32_t        threads;      /* as tegroup_router_desc's                                                     */
} tegroup_ep_dispatch_desc;

/* What tegroup_ep_expand and tegroup_ep_reduce work on: rows of this rank, as its snapshot has them, and their links.
 * A list of rows ends where a link leads out of the matrix, to the first row of another token, or to the row that it
 * is of, and with the 64th row: nothing outside the matrices is touched, whatever a peer stored. Of lists that lie
 * and share rows, any may have the last word.
 *
 * tegroup_ep_expand copies the row that a dispatch with links has stored for a token to its other rows, and its
 * scales likewise; after it rows and row_scales are those of a dispatch without links.
 *
 * tegroup_ep_reduce replaces the row of a token's first slot by the sum of all its rows here, in the order of its
 * slots from the first one's value on, in F32 (rows of F64: F64), rounded once to the rows' type; a second call would
 * add again. Other rows, and those that this rank's own tokens have, stay as they are: tegroup_ep_combine reads these
 * one by one. */
typedef struct tegroup_ep_links_desc {
    size_t         struct_size;  /* sizeof(tegroup_ep_links_desc)                                                */
    tegroup_space  space;        /* where everything lives; required                                             */
    tegroup_shape  shape;        /* of this rank's experts: read are its groups, its rows (= capacity) and its snapshot,
                                    which was prepared from receive_rows; required                               */
    tegroup_matrix row_links;    /* in  [capacity, 1], I32: of a dispatch by all ranks, after all have met       */
    tegroup_matrix rows;         /* in, out [capacity, width], in a window or not; expand: any type but F4E2M1;
                                    reduce: F16, BF16, F32 or F64                                                */
    tegroup_matrix row_scales;   /* in, out [capacity, any], expand alone: any type but F4E2M1; absent = none     */
    int32_t        threads;      /* as tegroup_router_desc's                                                     */
} tegroup_ep_links_desc;

/* tokens[t] = sum over slots j = 0 .. k-1, in that order, of weights[t, j] * the row of slot j, read from its owner's
 * window; a slot whose row is outside adds nothing. So the bits are those of tegroup_combine on one rank, and do not
 * depend on which rank is done first. values[t, j] = row_values at the row of slot j, 0 where it is outside: this way
 * the gradient of a row's weight comes back to its slot.
 *
 * With by_owner, tokens[t] = sum over the ranks that own rows of the token, in the order of ranks, of the sum of these
 * rows, which tegroup_ep_reduce has left in the first one; of this rank's own rows combine makes that sum, with the
 * same arithmetic. Each such sum is rounded to the rows' type. So the bits do not depend on which rank has the token,
 * but are others than one rank's: one owner more is one rounding more. */
typedef struct tegroup_ep_combine_desc {
    size_t         struct_size;  /* sizeof(tegroup_ep_combine_desc)                                              */
    tegroup_space  space;        /* where everything lives; required                                             */
    tegroup_ep_windows windows;
    tegroup_matrix row_of_slot;  /* in  [tokens, k], as in the dispatch                                          */
    tegroup_matrix rows;         /* in  [capacity, width], in the window, F16, BF16, F32 or F64; absent = none   */
    tegroup_matrix weights;      /* in  [tokens, k], F32 or F64; absent = 1. Needs rows                          */
    tegroup_matrix tokens;       /* out [tokens, width], F16, BF16, F32 or F64; there if rows are                */
    tegroup_matrix row_values;   /* in  [capacity, 1], in the window, F32 or F64; absent = none                  */
    tegroup_matrix values;       /* out [tokens, k], dtype of row_values; there if row_values are                */
    int32_t        threads;      /* as tegroup_router_desc's                                                     */
    int32_t        accumulate;   /* as tegroup_combine_desc's; 1 needs tokens                                    */
    int32_t        by_owner;     /* 0: by slot; 1: other ranks' rows are sums, needs tokens and no weights       */
} tegroup_ep_combine_desc;
