/* ---- Grouped GEMM ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"

/* D[g] = alpha[g] * op(A[g]) * op(B[g]) + beta[g] * C[g], row-major. */
typedef enum tegroup_op {
    TEGROUP_OP_UNSET   = 0,
    TEGROUP_OP_FORWARD = 1, /* D = A B^T   a: X [ragged m, k], b: W [groups, n, k], d: Y [ragged m, n]  (NT) */
    TEGROUP_OP_DGRAD   = 2, /* D = A B     a: dY [ragged m, n], b: W [groups, n, k], d: dX [ragged m, k] (NN) */
    TEGROUP_OP_WGRAD   = 3  /* D = A^T B   a: dY [ragged m, n], b: X [ragged m, k], d: dW [groups, n, k] (TN) */
} tegroup_op;

/* What happens to rows of D that no group owns (gaps and the tail). */
typedef enum tegroup_tail {
    TEGROUP_TAIL_KEEP   = 0, /* untouched, bit for bit                                */
    TEGROUP_TAIL_ZERO   = 1, /* exact zeros: for buffers that leave the process       */
    TEGROUP_TAIL_POISON = 2  /* NaN: shows whoever reads rows that were never written */
} tegroup_tail;

/* Scalars alpha or beta: one for all groups or one a group. */
typedef struct tegroup_scalars {
    const void   *data;   /* required to run unless space is UNSET; aligned to its element. In host memory it is
                             read before the call returns, and a captured graph keeps what it read */
    tegroup_dtype dtype;  /* F32 (also when UNSET) or F64                                 */
    tegroup_space space;  /* where data lives; UNSET = default: alpha 1, beta 0. With sizes on the device one a
                             group live there, too                                        */
    int32_t       stride; /* 0: data[0] for every group; 1: data[g] for group g           */
} tegroup_scalars;

/* Rows of a ragged operand that lie elsewhere, so that no permuted copy of them need be written: row r of all groups
 * is row slot_of_row[r] / slots of the operand's data, which has `rows` rows of its own then. A negative slot, or
 * one past these rows, gives a row of zeros. slot_of_row is what tegroup_permutation_make writes, slots the router's
 * k. */
typedef struct tegroup_gather {
    const int64_t *slot_of_row; /* [shape.rows of the operand], in the gemm's space, 8-byte aligned; read when rows >
                                   0 */
    int64_t        rows;        /* of data; 0 = no gathering: the operand's rows lie in their order */
    int64_t        slots;       /* slots that share a row of data; 0 = 1 */
} tegroup_gather;

/* One grouped product. The plan reads everything except data pointers; a call reads the tensors again and checks
 * that the tegroup_problem that they make is the planned one. shape.rows of a ragged operand is what its buffer holds:
 * it may be less or more than the plan's and than other operands', as long as every group lies within it. Where one
 * does not, a snapshot in host memory is refused, and by one in device memory nothing is written. Rows of activations
 * (a and d, in a wgrad a and b, and c where it is such) are one routing's: their snapshots may lie elsewhere but say as
 * many rows of each group. Where they do not, the deep check refuses those in host memory; else as many rows are worked
 * on as all have, and the others of d are left as they are. */
typedef struct tegroup_gemm_desc {
    size_t          struct_size; /* sizeof(tegroup_gemm_desc)                                                     */
    tegroup_op      op;          /* required                                                                      */
    tegroup_space   space;       /* where operands and results live; required. HOST runs on the CPU backend       */
    tegroup_tensor  a, b;        /* see tegroup_op; required. Quantised ones (scaling set) are read from the copy that
                                    is quantised along what is summed over: columnwise both in a WGRAD and b in a
                                    DGRAD, else rowwise. That copy and its scales are required, aligned to their
                                    element; the other may be NULL. One whose columnwise_order is of values is
                                    refused where the columnwise copy would be read: give the values as the operand.
                                    Without columnwise_data (or its list) the rowwise copy serves where a scale is
                                    chosen for as many rows as columns: TENSOR,
                                    BLOCK_128X128, BLOCK_32X32, MXFP8_32X32, NVFP4_16X16; but not on
                                    CUBLASLT_GROUPED, which has rules of its own for the address of scales and the
                                    order of copies, too, as SM90 has for the address of weights: docs/formats.md.
                                    Scales of both are of one type (F32, F8E8M0, F8E4M3: of the scalings, see
                                    tegroup_scaling), or one operand is plain: a, or in a WGRAD b. tegroup_explain
                                    says which backends take a pair                                               */
    tegroup_tensor  c;           /* shape and dtype like d; absent = none. May be d itself (same data, same ld, same
                                    snapshot), else must not overlap it. Never read for a group whose beta is 0, as
                                    it is where beta is absent                                                     */
    tegroup_tensor  d;           /* required; must not overlap any input but c; never quantised                   */
    tegroup_tensor  bias;        /* absent = none. F16, BF16 or F32; with COMPUTE_F64 F64, too.
                                    FORWARD, DGRAD: input [groups, 1, columns of d], added after alpha and beta; in a
                                    DGRAD that is for a layer whose weights are [groups, k, n].
                                    WGRAD: output, the bias gradient: each group's sum of a's rows (times row_scale);
                                    overwrites, or adds when accumulate is 1; alpha and beta do not apply to it    */
    const void     *row_scale;   /* one number a row of a's buffer, or of b's with bias_of_b (ragged [shape.rows],
                                    uniform [groups * shape.rows]; not with a list): multiplies the bias of the row
                                    (its routing probability); needs bias                                          */
    tegroup_dtype   row_scale_dtype; /* F32 or F64; UNSET = no row_scale                                          */
    int32_t         bias_of_b;   /* WGRAD with bias: 1: the bias gradient [groups, 1, columns of d] is the sum of b's
                                    rows, for weights [groups, k, n], whose wgrad has X for a and dY for b          */
    tegroup_scalars alpha, beta; /* taken in the type of the sums, where a tiny F64 may be 0. a and b are read also
                                    where alpha is 0: 0 times NaN is NaN. (Not by the cuBLASLt backends, whose
                                    library leaves them out then)                                                 */
    tegroup_gather  gather_a, gather_b; /* rows of a (any op) and of b (WGRAD) picked by an index; SM90 and CPU. The
                                           operand must be ragged in rows alone, in one buffer, without scaling */
    int32_t         accumulate;  /* 1: D += alpha op(A) op(B): c is d and beta is 1; then leave c and beta unset  */
    tegroup_tail    tail;        /* FORWARD, DGRAD: rows of d that no group owns                                  */
    int32_t         functor;     /* 1: a functor of the caller's makes of each element what is stored: see
                                    tegroup_gemm_with, which alone runs such a plan. SM90 and PORTABLE, of F16 and
                                    BF16; it does not go with accumulate, nor with a bias that is added           */
    tegroup_options options;     /* hints, backend, workspace, checks ...; zero means the default                  */
} tegroup_gemm_desc;
