/* tegroup - grouped GEMM for mixture-of-experts layers, as C headers you copy into your tree.
 *
 * D[g] = alpha[g] * op(A[g]) * op(B[g]) + beta[g] * C[g], row-major, for up to 4,096 groups whose sizes
 * live in memory that the host need not read:
 *
 *     forward  Y  = X W^T      X [sum m, k], W [E, n, k]   ("NT")
 *     dgrad    dX = dY W                                   ("NN")
 *     wgrad    dW = dY^T X     one product an expert       ("TN", ragged k)
 *
 * Do this, in each file that calls tegroup:
 *
 *     #define TEGROUP_IMPLEMENTATION
 *     #include "tegroup.h"
 *
 *     1. describe  fill a tegroup_gemm_desc; zero means default, except for required enums and sizes
 *     2. plan      tegroup_plan_make(&desc, NULL, &plan, &error) picks the backend and the workspace, once
 *     3. prepare   tegroup_prepare(...) turns a routing's group sizes into a snapshot, once a routing
 *     4. run       tegroup_gemm(&plan, &desc, stream, &error), as often as you like
 *
 * examples/quickstart.c is this in forty lines. Without TEGROUP_IMPLEMENTATION only types, constants and
 * their documentation are seen. TEGROUP_EXTERN gives prototypes with C linkage instead; both together give
 * the exported definitions (`make lib` builds libtegroup that way).
 *
 * tegroup does not: allocate, free, synchronise, print, exit, throw, read an environment variable, or keep
 * state of its own. Every buffer is the caller's; every call returns a status and, if asked, the field that
 * was wrong with what was expected and what came; a call that fails has written nothing.
 *
 * Needs: C99 or C++11 and the C library (link with -lm). nvcc adds tegroup_cuda.cuh by itself.
 * Licence: MIT, at the end of this file. Stitched from src/ by `make headers`: edit there.
 */

/* Map: search for the number in brackets.
 *
 *   [1] Version and configuration
 *   [2] Status and errors
 *   [3] Data types
 *   [4] Scaling modes
 *   [5] Sizes, shapes and grouped tensors
 *   [6] Prepare and snapshot
 *   [7] Workspace layouts
 *   [8] Grouped GEMM
 *   [9] Plan and explain
 *   [10] Gated activations
 *   [11] MoE operations
 *   [12] Functions
 *   [13] core/helpers
 *   [14] core/names
 *   [15] formats/convert
 *   [16] formats/scale_layout
 *   [17] core/layouts
 *   [18] core/prepare
 *   [19] core/checks
 *   [20] core/problem
 *   [21] core/tables
 *   [22] core/explain
 *   [23] cpu/real
 *   [24] cpu/gemm_kernel
 *   [25] cpu/gemm
 *   [26] core/dispatch
 *   [27] layer/activation
 *   [28] moe/router
 *   [29] moe/permutation
 */
#ifndef TEGROUP_H
#define TEGROUP_H

/* ==== [1] Version and configuration ==== */

#define TEGROUP_VERSION_MAJOR 0
#define TEGROUP_VERSION_MINOR 1
#define TEGROUP_VERSION_PATCH 0
/* major * 10000 + minor * 100 + patch. Before 1.0 a minor step may change a public struct. */
#define TEGROUP_VERSION 100

#include <stddef.h>
#include <stdint.h>

#if defined(TEGROUP_IMPLEMENATION) || defined(TEGROUP_IMPL) || defined(TEGROUP_IMPLEMENT)
#error "tegroup: the macro is spelt TEGROUP_IMPLEMENTATION"
#endif
#if defined(TEGROUP_STATIC)
#error "tegroup: there is no TEGROUP_STATIC; functions are static unless TEGROUP_EXTERN is defined"
#endif

/* The only CUDA types in this header, by their tags, so that no toolkit is needed to include it:
 * cudaStream_t is struct CUstream_st *, cublasLtHandle_t is struct cublasLtContext *. */
struct CUstream_st;
struct CUevent_st;
struct cublasLtContext;

#define TEGROUP_MAX_GROUPS 4096          /* groups in one problem; 0 is allowed                            */
#define TEGROUP_MAX_ROWS   (INT64_C(1) << 40) /* rows that one buffer may hold                             */
#define TEGROUP_MAX_COLS   (INT64_C(1) << 31) /* columns, and elements between rows                        */
#define TEGROUP_ALIGNMENT  256           /* bytes: every workspace and snapshot, and each item within them */

/* ==== [2] Status and errors ==== */

/* One list owns every status: its name, its number (stable, append only) and its text. */
#define TEGROUP_STATUS_LIST(X)                                                                       \
    X(OK, 0, "ok")                                                                                   \
    X(ERROR_NULL_ARGUMENT, 1, "a required pointer is NULL")                                          \
    X(ERROR_STRUCT_SIZE, 2, "struct_size is not the size of this version's struct")                  \
    X(ERROR_UNSET, 3, "a required enum was left at zero")                                            \
    X(ERROR_VALUE, 4, "a number or enum is out of its range")                                        \
    X(ERROR_SHAPE, 5, "dimensions disagree")                                                         \
    X(ERROR_DTYPE, 6, "a data type is not allowed here")                                             \
    X(ERROR_LAYOUT, 7, "a leading dimension or group stride is too small")                           \
    X(ERROR_ALIGNMENT, 8, "a pointer is not aligned as required")                                    \
    X(ERROR_OVERLAP, 9, "two buffers share memory and must not")                                     \
    X(ERROR_WORKSPACE, 10, "a workspace or snapshot buffer is too small")                            \
    X(ERROR_CAPACITY, 11, "a snapshot or index refers to rows that the buffer does not hold")        \
    X(ERROR_OVERFLOW, 12, "a size does not fit the machine's address space")                         \
    X(ERROR_COMBINATION, 13, "two fields exclude each other")                                        \
    X(ERROR_PLAN, 14, "the descriptor is not the one that the plan was made for")                    \
    X(ERROR_UNSUPPORTED, 15, "no backend can do this here")                                          \
    X(ERROR_NOT_BUILT, 16, "the backend is not part of this build")

#define TEGROUP_IMPL_ENUMERATE(name, value, text) TEGROUP_##name = (value),
typedef enum tegroup_status { TEGROUP_STATUS_LIST(TEGROUP_IMPL_ENUMERATE) TEGROUP_STATUS_COUNT } tegroup_status;
#undef TEGROUP_IMPL_ENUMERATE

/* What was wrong. Written only when a call fails; strings are static and need no freeing. Checks run in a
 * fixed order and stop at the first failure, so that the same bad call always gives the same error. */
typedef struct tegroup_error {
    tegroup_status status;
    int32_t        native;   /* cudaError_t or cublasStatus_t behind the status; 0 = none         */
    const char    *field;    /* path within the descriptor, such as "a.shape.cols"                */
    const char    *rule;     /* what must hold, such as "must equal b.shape.cols"                 */
    int64_t        expected; /* the number that the rule asks for (a bound, a size, an enum)      */
    int64_t        got;      /* the number that came                                              */
} tegroup_error;

/* An unread status is a warning. */
#if defined(__GNUC__) || defined(__clang__)
#define TEGROUP_IMPL_NODISCARD __attribute__((warn_unused_result))
#else
#define TEGROUP_IMPL_NODISCARD
#endif

/* ==== [3] Data types ==== */

/* Name, number (stable), bits an element. FP8 and FP4: OCP 8-bit Floating Point 1.0, OCP Microscaling 1.0. */
#define TEGROUP_DTYPE_LIST(X)                                                                        \
    X(F64, 1, 64)                                                                                    \
    X(F32, 2, 32)                                                                                    \
    X(F16, 3, 16)      /* IEEE 754 binary16               */                                         \
    X(BF16, 4, 16)     /* the upper half of a binary32    */                                         \
    X(F8E4M3, 5, 8)    /* no infinity, largest value 448  */                                         \
    X(F8E5M2, 6, 8)                                                                                  \
    X(F4E2M1, 7, 4)    /* two a byte, low nibble first    */                                         \
    X(F8E8M0, 8, 8)    /* scales only: 2^(byte - 127)     */                                         \
    X(I32, 9, 32)                                                                                    \
    X(I64, 10, 64)

#define TEGROUP_IMPL_ENUMERATE(name, value, bits) TEGROUP_DTYPE_##name = (value),
typedef enum tegroup_dtype {
    TEGROUP_DTYPE_UNSET = 0, /* an error where a type is required; "absent" for an optional tensor */
    TEGROUP_DTYPE_LIST(TEGROUP_IMPL_ENUMERATE)
    TEGROUP_DTYPE_COUNT
} tegroup_dtype;
#undef TEGROUP_IMPL_ENUMERATE

/* Where memory is. */
typedef enum tegroup_space {
    TEGROUP_SPACE_UNSET  = 0,
    TEGROUP_SPACE_HOST   = 1,
    TEGROUP_SPACE_DEVICE = 2
} tegroup_space;

/* ==== [4] Scaling modes ==== */

/* How a quantised tensor's scales are laid out. A value is data * scale_inv. "Rowwise" data is quantised along
 * its rows, the direction of the columns index (what forward contracts over); "columnwise" data is a second copy quantised
 * along its columns. Sizes are for one group of [rows, cols]; a grouped tensor stores its groups' scales one after another.
 * tegroup_scale_shape gives them, for either direction.
 *
 *   mode            data            scale        one scale covers   stored as (rowwise; columnwise swaps the roles)
 *   NONE            F64 .. BF16     -            -                  -
 *   TENSOR          FP8             F32          a group            [1]
 *   ROW             FP8             F32          a row              [rows]
 *   BLOCK_1X128     FP8             F32          128 along a row    [ceil(cols / 128), rows up to 4], outer index fastest
 *   BLOCK_128X128   FP8             F32          a 128 x 128 block  [ceil(rows / 128), ceil(cols / 128) up to 4]
 *   MXFP8           FP8             F8E8M0       32 along a row     [rows up to 128, ceil(cols / 32) up to 4], swizzled
 *   NVFP4           F4E2M1          F8E4M3       16 along a row     [rows up to 128, ceil(cols / 16) up to 4], swizzled
 *
 * Sources: cuBLAS documentation, "Narrow precision data types usage" (scale layouts and the 128 x 4 swizzle);
 * OCP Microscaling Formats (MX) 1.0; DeepSeek-V3 technical report, section 3.3 (1x128 and 128x128 blocks).
 * NVFP4's second, FP32 scale of the whole group travels in alpha. */
typedef enum tegroup_scaling {
    TEGROUP_SCALING_NONE          = 0,
    TEGROUP_SCALING_TENSOR        = 1,
    TEGROUP_SCALING_ROW           = 2,
    TEGROUP_SCALING_BLOCK_1X128   = 3,
    TEGROUP_SCALING_BLOCK_128X128 = 4,
    TEGROUP_SCALING_MXFP8         = 5,
    TEGROUP_SCALING_NVFP4         = 6,
    TEGROUP_SCALING_COUNT
} tegroup_scaling;

/* One mode's facts; tegroup_scaling_info returns a row of the table that everything else reads. */
typedef struct tegroup_scaling_facts {
    tegroup_scaling scaling;
    const char     *name;
    uint32_t        data_dtypes;  /* bit d set: tegroup_dtype d may carry this scaling            */
    tegroup_dtype   scale_dtype;  /* UNSET for NONE                                               */
    int32_t         block_outer;  /* rows (columnwise: columns) that share a scale; 0 = all       */
    int32_t         block_inner;  /* elements along the quantised direction; 0 = all              */
    int32_t         pad_outer;    /* the stored outer extent is a multiple of this                */
    int32_t         pad_inner;    /* the stored inner extent is a multiple of this                */
    int32_t         outer_fastest;/* 1: the outer index is contiguous                             */
    int32_t         swizzled;     /* 1: in tiles of 128 x 4, see tegroup_scale_index              */
} tegroup_scaling_facts;

/* Extents of one group's scales, padding included. */
typedef struct tegroup_scale_extent {
    int64_t outer, inner; /* stored extents: scales, not bytes */
    int64_t bytes;
} tegroup_scale_extent;

/* ==== [5] Sizes, shapes and grouped tensors ==== */

/* The three ways in which group sizes are written down. */
typedef enum tegroup_encoding {
    TEGROUP_ENCODING_UNSET   = 0, /* no array: every group has the same size                            */
    TEGROUP_ENCODING_COUNTS  = 1, /* [groups]: rows of each group; -1 skips the group (its wgrad is untouched) */
    TEGROUP_ENCODING_OFFSETS = 2, /* [groups + 1]: first row of each group, then the end; [0] is 0      */
    TEGROUP_ENCODING_ENDS    = 3  /* [groups]: row after each group's last (inclusive prefix sums)      */
} tegroup_encoding;

/* Sizes of the groups along one dimension. All-zero means uniform. Read by tegroup_prepare alone. */
typedef struct tegroup_sizes {
    const void      *data;      /* see tegroup_encoding; NULL is allowed when there are no groups            */
    tegroup_encoding encoding;  /* UNSET = uniform: the other fields are then ignored                        */
    tegroup_dtype    dtype;     /* I32 or I64: of data and starts                                            */
    tegroup_space    space;     /* where data and starts (and tegroup_shape.offsets) live; required          */
    const void      *starts;    /* COUNTS only: [groups] first row of each group, any order; NULL = derived  */
    int64_t          alignment; /* COUNTS, ENDS: each group starts at the next multiple of this; 0 = 1.
                                   COUNTS: padding follows each group. ENDS: as DeepGEMM's "psum" layout     */
    int64_t          stride;    /* COUNTS only: group g starts at g * stride ("masked" layouts); 0 = none    */
} tegroup_sizes;

/* The shape of a grouped tensor, in rows and columns.
 *
 *   uniform       row_sizes unset: [groups, rows, cols], every group alike (weights)
 *   ragged rows   row_sizes set:   a buffer of `rows` rows, group g owning some of them (activations)
 *   ragged both   col_sizes set too: group g is rows[g] x cols[g]; groups are packed one after another, or lie
 *                 at `offsets`, or (tensor.ld set) are rows of one buffer with room for the widest
 *
 * Once prepared, the shape carries its snapshot; copy a shape to give its row sizes to another tensor. */
typedef struct tegroup_shape {
    int32_t        groups;    /* 0 to TEGROUP_MAX_GROUPS                                                      */
    int64_t        rows;      /* uniform: rows of each group. ragged: rows that the buffer holds (capacity)   */
    int64_t        cols;      /* columns of every group; with col_sizes the most that one may have            */
    tegroup_sizes  row_sizes; /* per-group rows    (TransformerEngine: first_dims)                            */
    tegroup_sizes  col_sizes; /* per-group columns (TransformerEngine: last_dims); COUNTS without starts      */
    const int64_t *offsets;   /* [groups] first element of each group, same space as row_sizes; NULL = derived
                                 (TransformerEngine: tensor_offsets)                                          */
    int64_t        elements;  /* with col_sizes or offsets: elements that the buffer holds; required then     */
    const void    *snapshot;  /* what tegroup_prepare made of the above; required to run when row_sizes is set */
} tegroup_shape;

/* Groups of matrices of one data type: everything that a grouped GEMM, a quantiser or a layer knows of one operand.
 * Caller owns all memory. Uninvolved pointers stay NULL. */
typedef struct tegroup_tensor {
    tegroup_shape   shape;
    tegroup_dtype   dtype;        /* UNSET = this optional tensor is absent                                   */
    tegroup_scaling scaling;      /* 0 = none                                                                 */
    int64_t         ld;           /* elements between rows; 0 = cols (ragged columns: each group's own)       */
    int64_t         group_stride; /* uniform only: elements between groups; 0 = rows * ld                     */
    void           *data;         /* rowwise copy, aligned to its element; NULL when pointers is given        */
    void           *columnwise_data;      /* copy quantised along columns, stored as data is; NULL = none     */
    void           *scale_inv;            /* scales of data, see tegroup_scaling                              */
    void           *columnwise_scale_inv; /* scales of columnwise_data                                        */
    float          *scale;                /* [groups] multipliers for a quantiser with delayed scaling        */
    float          *amax;                 /* [groups] largest magnitude seen; written by quantisers           */
    float          *columnwise_amax;      /* [groups]                                                         */
    void *const    *pointers;             /* [groups] one buffer a group instead of data; each holds shape.rows rows */
    void *const    *columnwise_pointers;  /* [groups] instead of columnwise_data                              */
    void *const    *scale_pointers;       /* [groups] instead of scale_inv                                    */
    void *const    *columnwise_scale_pointers; /* [groups] instead of columnwise_scale_inv                    */
    tegroup_space   pointers_space;       /* where the four lists live; UNSET = data is one buffer            */
} tegroup_tensor;

/* A plain matrix [rows, cols] for what surrounds the grouped products. */
typedef struct tegroup_matrix {
    void         *data;  /* aligned to its element; may be NULL when it has no elements */
    int64_t       rows;
    int64_t       cols;
    int64_t       ld;    /* elements between rows; 0 = cols                             */
    tegroup_dtype dtype; /* UNSET = this optional matrix is absent                      */
} tegroup_matrix;

/* ==== [6] Prepare and snapshot ==== */

/* A snapshot is one routing's group sizes made safe: everything that runs afterwards reads it and never the
 * caller's arrays. It is laid out in caller memory (tegroup_snapshot_layout) and holds
 *
 *   header                               tegroup_snapshot_header
 *   start[groups]             int64      first row of each group, within the buffer
 *   rows[groups]              int64      rows of each group, within the buffer, overlapping nobody; -1 = skipped
 *   prefix[6][groups + 1]     int64      sums of ceil(rows / granule) before each group, for the granules below
 *   order[groups]             int32      groups from the largest to the smallest; equal ones by index
 *   cols[groups]              int64      only with col_sizes or offsets: columns of each group
 *   offset[groups]            int64      only with col_sizes or offsets: first element of each group
 *
 * Sizes that lie are clamped so that no access leaves the buffers, and the header's status names the lie. */
#define TEGROUP_GRANULE_COUNT 6 /* 4, 16, 32, 64, 128, 256 rows: what tiles and scale padding need */
#define TEGROUP_GRANULE(i) ((i) == 0 ? 4 : 8 << (i))

/* Bits of tegroup_snapshot_header.status. */
#define TEGROUP_SNAPSHOT_NEGATIVE  1u  /* a size below 0 (other than a count of -1) or offsets that fall: taken as 0  */
#define TEGROUP_SNAPSHOT_CAPACITY  2u  /* a group reaches past the buffer: cut at its end                             */
#define TEGROUP_SNAPSHOT_OVERLAP   4u  /* two groups share rows or elements: the one that starts first is cut short   */
#define TEGROUP_SNAPSHOT_START     8u  /* offsets[0] is not 0, or a start is negative: group dropped or rows unowned  */
#define TEGROUP_SNAPSHOT_COLS     16u  /* a column count outside 0 .. cols: clamped                                   */
#define TEGROUP_SNAPSHOT_ELEMENTS 32u  /* a group's elements do not fit the buffer: dropped                           */

#define TEGROUP_SNAPSHOT_MAGIC 0x54475331u /* "TGS1" */

/* First bytes of a snapshot; the caller may read it whenever the work before it is done. */
typedef struct tegroup_snapshot_header {
    uint32_t magic;      /* TEGROUP_SNAPSHOT_MAGIC                                           */
    uint32_t status;     /* TEGROUP_SNAPSHOT_* bits; 0 = the sizes were honest               */
    int32_t  groups;
    int32_t  bad_group;  /* lowest group that a status bit is about; -1 = none               */
    int32_t  irregular;  /* 1 = cols[] and offset[] are present                              */
    int32_t  reserved;
    int64_t  rows_total; /* sum of rows[], skipped groups counting 0                         */
    int64_t  rows_max;   /* largest rows[]; 0 if there is none                               */
    int64_t  rows_end;   /* row after the last valid one; the tail begins here               */
    int64_t  capacity_rows;     /* shape.rows, shape.cols and shape.elements of the shape    */
    int64_t  capacity_cols;     /* that was prepared: bounds that everything above respects  */
    int64_t  capacity_elements; /* 0 when regular                                            */
} tegroup_snapshot_header;

/* Pointers into a snapshot. */
typedef struct tegroup_snapshot_view {
    const tegroup_snapshot_header *header;
    const int64_t *start;
    const int64_t *rows;
    const int64_t *prefix[TEGROUP_GRANULE_COUNT];
    const int32_t *order;
    const int64_t *cols;   /* NULL when regular */
    const int64_t *offset; /* NULL when regular */
} tegroup_snapshot_view;

/* What tegroup_prepare does: read shape's sizes, write a snapshot of them. */
typedef struct tegroup_prepare_desc {
    size_t         struct_size;    /* sizeof(tegroup_prepare_desc)                                            */
    tegroup_shape  shape;          /* row_sizes required; shape.snapshot is ignored                           */
    int64_t        ld;             /* ragged columns in rows of one buffer: its tensor's ld; 0 = packed       */
    tegroup_space  space;          /* where the snapshot lives and the work runs; required                    */
    void          *snapshot;       /* TEGROUP_ALIGNMENT-aligned                                               */
    size_t         snapshot_bytes; /* >= tegroup_snapshot_layout(...).total_bytes                             */
} tegroup_prepare_desc;

/* ==== [7] Workspace layouts ==== */

/* Where each part of a workspace lies. Size, check and carving all read the same layout; print it to see what
 * each byte is for. Offsets are multiples of TEGROUP_ALIGNMENT; there is no slack. */
#define TEGROUP_LAYOUT_MAX_ITEMS 24

typedef struct tegroup_layout_item {
    const char *name; /* static string         */
    size_t      offset_bytes;
    size_t      bytes;
} tegroup_layout_item;

typedef struct tegroup_layout {
    int32_t             count;
    size_t              total_bytes;
    tegroup_layout_item items[TEGROUP_LAYOUT_MAX_ITEMS];
} tegroup_layout;

/* Items of the set-up workspace of a grouped cuBLASLt matmul, in order. All entries are 8 bytes, [groups] each. */
typedef enum tegroup_setup_item {
    TEGROUP_SETUP_A, TEGROUP_SETUP_B, TEGROUP_SETUP_C, TEGROUP_SETUP_D, /* addresses of the matrices            */
    TEGROUP_SETUP_ALPHA, TEGROUP_SETUP_BETA,                            /* addresses of each group's scalar     */
    TEGROUP_SETUP_A_SCALE, TEGROUP_SETUP_B_SCALE,                       /* addresses of each group's scales     */
    TEGROUP_SETUP_A_ROWS, TEGROUP_SETUP_A_COLS, TEGROUP_SETUP_A_LD,     /* int64, column-major as cuBLASLt counts */
    TEGROUP_SETUP_B_ROWS, TEGROUP_SETUP_B_COLS, TEGROUP_SETUP_B_LD,
    TEGROUP_SETUP_C_LD,
    TEGROUP_SETUP_D_ROWS, TEGROUP_SETUP_D_COLS, TEGROUP_SETUP_D_LD,     /* C has D's rows and columns            */
    TEGROUP_SETUP_COUNT
} tegroup_setup_item;

/* ==== [8] Grouped GEMM ==== */

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

/* The type in which products are summed. */
typedef enum tegroup_compute {
    TEGROUP_COMPUTE_F32 = 0,
    TEGROUP_COMPUTE_F64 = 1 /* required for F64 operands; with narrower ones it is an oracle */
} tegroup_compute;

typedef enum tegroup_backend {
    TEGROUP_BACKEND_AUTO             = 0,
    TEGROUP_BACKEND_SM90             = 1, /* bundled: TMA + wgmma, Hopper                  */
    TEGROUP_BACKEND_CUBLASLT_GROUPED = 2, /* cuBLASLt's grouped matmul, sizes on the device */
    TEGROUP_BACKEND_PORTABLE         = 3, /* bundled: cp.async + mma.sync, SM80 and later  */
    TEGROUP_BACKEND_CUBLASLT_LOOP    = 4, /* one cublasLtMatmul a group, sizes on the host */
    TEGROUP_BACKEND_CPU              = 5, /* any machine, every operation; the oracle      */
    TEGROUP_BACKEND_COUNT
} tegroup_backend;

/* How much a call checks. */
typedef enum tegroup_check_level {
    TEGROUP_CHECK_HOST  = 0, /* every rule that costs arithmetic only; about a microsecond at the most   */
    TEGROUP_CHECK_DEEP  = 1  /* also walks host pointer lists and snapshots, and asks the driver where a
                                pointer lives (CUDA builds)                                              */
} tegroup_check_level;

/* Scalars alpha or beta: one for all groups or one a group. */
typedef struct tegroup_scalars {
    const void   *data;   /* required to run unless space is UNSET                        */
    tegroup_dtype dtype;  /* F32 (also when UNSET) or F64                                 */
    tegroup_space space;  /* where data lives; UNSET = default: alpha 1, beta 0           */
    int32_t       stride; /* 0: data[0] for every group; 1: data[g] for group g           */
} tegroup_scalars;

/* One grouped product. The plan reads everything except data pointers; a call reads the pointers and checks that
 * the rest is what was planned. */
typedef struct tegroup_gemm_desc {
    size_t          struct_size; /* sizeof(tegroup_gemm_desc)                                                     */
    tegroup_op      op;          /* required                                                                      */
    tegroup_space   space;       /* where operands and results live; required. HOST runs on the CPU backend       */
    tegroup_tensor  a, b;        /* see tegroup_op; required                                                      */
    tegroup_tensor  c;           /* shape, ld and layout like d; absent = none. May be d itself (same data, same ld,
                                    same dtype), else must not overlap it. Never read for a group whose beta is 0  */
    tegroup_tensor  d;           /* required; must not overlap any input but c                                    */
    tegroup_tensor  bias;        /* absent = none. FORWARD: input [groups, 1, n], added after alpha and beta.
                                    WGRAD: output, the bias gradient: each group's sum of a's rows (times row_scale);
                                    overwrites, or adds when accumulate is 1; alpha and beta do not apply to it    */
    const void     *row_scale;   /* [rows of a] multiplies the bias of each row (its routing probability); needs bias */
    tegroup_dtype   row_scale_dtype; /* F32 or F64; UNSET = no row_scale                                          */
    tegroup_scalars alpha, beta;
    int32_t         accumulate;  /* 1: D += alpha op(A) op(B): c is d and beta is 1; then leave c and beta unset  */
    tegroup_tail    tail;        /* FORWARD, DGRAD: rows of d that no group owns                                  */
    tegroup_compute compute;     /* the type of the sums                                                          */
    int32_t         split_k;     /* parts that the sum over k is cut into; 0 = 1 = never                          */
    int64_t         expected_rows;     /* hint: rows in all groups together; 0 = capacity. Speed only             */
    int64_t         expected_rows_max; /* hint: rows of the largest group; 0 = spread evenly. Speed only          */
    tegroup_backend backend;     /* AUTO, or the one to use or be told why not                                    */
    int32_t         sm_limit;    /* GPU: multiprocessors to use at most; 0 = all                                  */
    int32_t         threads;     /* CPU: threads to use at most; 0 = all that OpenMP gives, 1 without OpenMP      */
    uint64_t        ignore_quirks; /* bit q set: take quirk q's risk (see tegroup_quirks)                         */
    tegroup_check_level check_level;
    void           *workspace;       /* TEGROUP_ALIGNMENT-aligned, in `space`; may be NULL when no bytes are needed.
                                        Contents are garbage before and after. One call at a time may use it      */
    size_t          workspace_bytes; /* >= plan.workspace.total_bytes                                             */
    size_t          cublas_workspace_bytes; /* part of the workspace that cuBLASLt gets; 0 = 32 MiB, its
                                               documented advice for Hopper and later                             */
    struct cublasLtContext *cublaslt; /* cuBLASLt backends: the caller's handle                                   */
    struct CUstream_st *const *streams; /* [stream_count] host list for CUBLASLT_LOOP to fork onto; NULL = none   */
    struct CUevent_st  *const *events;  /* [stream_count + 1] host list, for the fork and the joins               */
    int32_t         stream_count;
} tegroup_gemm_desc;

/* ==== [9] Plan and explain ==== */

/* A problem with its defaults resolved: what every choice is made from, and what a call is compared with. */
typedef struct tegroup_problem {
    tegroup_op      op;
    tegroup_space   space;
    tegroup_compute compute;
    int32_t         groups;
    int64_t         rows;    /* capacity of the ragged rows, or rows of each group when uniform                */
    int64_t         n, k;    /* columns of Y and of X; the most, where groups differ                           */
    tegroup_dtype   a, b, c, d, bias, row_scale; /* UNSET = absent                                             */
    tegroup_scaling a_scaling, b_scaling, d_scaling;
    int64_t         lda, ldb, ldc, ldd;          /* elements; 0 = packed groups of different width             */
    int32_t         ragged;        /* 1: sizes come from a snapshot; 0: every group has `rows`                 */
    int32_t         irregular;     /* 1: n or k differ between groups                                          */
    int32_t         sizes_space;   /* tegroup_space of the ragged sizes; UNSET when uniform                    */
    int32_t         lists;         /* bit 0 a, 1 b, 2 c, 3 d, 4 bias: given as pointers                        */
    int32_t         lists_space;   /* tegroup_space of those lists; UNSET = none                               */
    int32_t         alpha, beta;   /* 0 = default, 1 = one for all, 2 = one a group                            */
    int32_t         accumulate;
    tegroup_tail    tail;
    int32_t         split_k;
} tegroup_problem;

/* A machine, present or not. Zero fields mean "none". */
typedef struct tegroup_target {
    size_t   struct_size;      /* sizeof(tegroup_target)                                                       */
    int32_t  sm;               /* compute capability, 10 * major + minor: 80, 90, 100, 120 ...; 0 = no GPU     */
    int32_t  cublaslt_version; /* cublasLtGetVersion(): 130100 is 13.1, 131000 is 13.10; 0 = none              */
    int32_t  threads;          /* CPU threads; 0 = what OpenMP gives here                                      */
    uint32_t built;            /* bit b set: backend b's code is in the build; 0 = what this build holds       */
} tegroup_target;

/* What explain says of one backend. */
typedef struct tegroup_verdict {
    tegroup_backend backend;
    int32_t         chosen;  /* 1 for the one that a plan takes; at most one                                    */
    tegroup_status  status;  /* OK: could run this. UNSUPPORTED or NOT_BUILT: why not, as below                 */
    const char     *field;   /* the first unmet condition, as in tegroup_error; NULL when OK                    */
    const char     *rule;
    int64_t         expected, got;
    int32_t         quirk;   /* number of the quirk that refuses it; -1 = none                                  */
    size_t          workspace_bytes; /* what it would need; 0 unless OK                                         */
} tegroup_verdict;

/* A row of the table that dispatch reads: what one backend does on a range of machines. A backend can run a problem
 * when one of its rows admits it. */
typedef struct tegroup_backend_rule {
    tegroup_backend backend;
    int32_t  sm_min, sm_max;     /* inclusive; 0, 0 = needs no GPU                                              */
    int32_t  cublaslt_min;       /* 0 = none needed                                                             */
    uint32_t operand_dtypes;     /* bit d: tegroup_dtype d for a and b, which must be of one width              */
    uint32_t result_dtypes;      /* bit d: for c and d                                                          */
    uint32_t scalings;           /* bit s: tegroup_scaling s of a and b                                         */
    uint32_t features;           /* TEGROUP_FEATURE_* bits                                                      */
    int32_t  ld_alignment_bytes; /* what data and leading dimensions of a, b, c, d must be a multiple of; 0 = element */
    const char *note;            /* where this is known from                                                    */
} tegroup_backend_rule;

#define TEGROUP_FEATURE_HOST_SIZES     1u   /* reads group sizes on the host       */
#define TEGROUP_FEATURE_DEVICE_SIZES   2u   /* reads group sizes on the device     */
#define TEGROUP_FEATURE_GROUP_SCALARS  4u   /* alpha and beta differ by group      */
#define TEGROUP_FEATURE_IRREGULAR      8u   /* n and k differ by group             */
#define TEGROUP_FEATURE_LISTS         16u   /* a, b, c, d as pointer lists         */
#define TEGROUP_FEATURE_BIAS          32u   /* bias, scaled bias, bias gradient    */
#define TEGROUP_FEATURE_TAIL          64u   /* TAIL_ZERO and TAIL_POISON           */
#define TEGROUP_FEATURE_F64          128u   /* COMPUTE_F64                         */
#define TEGROUP_FEATURE_HOST_MEMORY  256u   /* operands in host memory             */

/* A known-bad combination of library, machine and case. */
typedef enum tegroup_quirk_action {
    TEGROUP_QUIRK_REFUSE     = 1, /* the backend is refused unless ignore_quirks says otherwise                 */
    TEGROUP_QUIRK_SEPARATE   = 2  /* forward, dgrad and wgrad each need a cuBLASLt workspace of their own       */
} tegroup_quirk_action;

typedef enum tegroup_quirk_case {
    TEGROUP_QUIRK_ALWAYS = 0,
    TEGROUP_QUIRK_WGRAD,         /* op is WGRAD                                                  */
    TEGROUP_QUIRK_MISALIGNED_LD, /* a leading dimension is not a multiple of 16 bytes            */
    TEGROUP_QUIRK_GROUP_SCALARS  /* alpha or beta differ by group                                */
} tegroup_quirk_case;

typedef struct tegroup_quirk {
    tegroup_backend      backend;
    int32_t              cublaslt_from, cublaslt_below; /* versions from <= v < below                 */
    int32_t              sm_min, sm_max;                /* inclusive                                  */
    tegroup_quirk_case   when;
    tegroup_quirk_action action;
    const char          *text;       /* what goes wrong                                               */
    const char          *provenance; /* where it was reported, or the experiment that shows it        */
} tegroup_quirk;

#define TEGROUP_PLAN_MAGIC 0x54475031u /* "TGP1" */

/* Made once by tegroup_plan_make, then read-only. Plain bytes: copy, store on the stack, share between threads.
 * Holds no data pointer. */
typedef struct tegroup_plan {
    size_t          struct_size;
    uint32_t        magic;
    tegroup_backend backend;
    tegroup_problem problem;
    tegroup_layout  workspace;    /* what desc.workspace must hold, part by part                              */
    uint64_t        numerics_id;  /* equal ids mean equal bits for a row, however many rows come with it      */
    int32_t         sm;           /* machine that it was made for                                             */
    int32_t         device;       /* CUDA device that it is bound to; -1 = none                               */
    int32_t         cublaslt_version;
    int32_t         hypothetical; /* 1: made for a target whose backend this build lacks: good for sizes only */
    int32_t         threads;      /* CPU threads                                                              */
    int32_t         sm_limit;
    int32_t         tile_m, tile_n, tile_k;
    uint64_t        algorithm[64]; /* backend's own: cuBLASLt algorithms, kernel images                       */
} tegroup_plan;

/* ==== [10] Gated activations ==== */

typedef enum tegroup_activation {
    TEGROUP_ACTIVATION_UNSET  = 0,
    TEGROUP_ACTIVATION_SWIGLU = 1 /* silu(gate) * up, silu(x) = x / (1 + exp(-x)): Shazeer 2020, "GLU Variants Improve Transformer" */
} tegroup_activation;

/* output[r] = row_scale[r] * activation(gate[r], up[r]), for rows that the shape's groups own (all rows when it has no
 * snapshot). Other rows are untouched. */
typedef struct tegroup_activation_desc {
    size_t             struct_size; /* sizeof(tegroup_activation_desc)                                            */
    tegroup_space      space;       /* required                                                                   */
    tegroup_activation activation;  /* required                                                                   */
    int32_t            interleaved; /* 0: input is [gate | up] halves; 1: gate, up, gate, up ...                  */
    const void        *snapshot;    /* rows that are valid; NULL = all                                            */
    tegroup_matrix     input;       /* in  [rows, 2 width], F16, BF16, F32 or F64                                 */
    tegroup_matrix     row_scale;   /* in  [rows, 1], F32 or F64; absent = 1                                      */
    tegroup_matrix     output;      /* out [rows, width]                                                          */
} tegroup_activation_desc;

/* Gradient of the above. */
typedef struct tegroup_activation_backward_desc {
    size_t             struct_size; /* sizeof(tegroup_activation_backward_desc)                                   */
    tegroup_space      space;
    tegroup_activation activation;
    int32_t            interleaved;
    const void        *snapshot;
    tegroup_matrix     input;          /* in  [rows, 2 width], as the forward call read it                        */
    tegroup_matrix     row_scale;      /* in  [rows, 1]; absent = 1                                               */
    tegroup_matrix     grad_output;    /* in  [rows, width]                                                       */
    tegroup_matrix     grad_input;     /* out [rows, 2 width], laid out as input; may be input itself             */
    tegroup_matrix     grad_row_scale; /* out [rows, 1], F32 or F64; absent = not wanted                          */
} tegroup_activation_backward_desc;

/* ==== [11] MoE operations ==== */

/* Router: probabilities = softmax(logits) by row; each token takes its k largest, ties to the lower expert.
 * weights are those probabilities, divided by their sum when normalize is 1. Formula: Shazeer et al. 2017,
 * "Outrageously Large Neural Networks"; load-balancing loss: Fedus et al. 2021, "Switch Transformers", section 2.2:
 * balance_coefficient * experts * sum_e (share of assignments to e) * (mean probability of e). */
typedef struct tegroup_router_desc {
    size_t         struct_size;   /* sizeof(tegroup_router_desc)                                                 */
    tegroup_space  space;         /* where everything lives; required                                            */
    int32_t        experts;       /* 1 to TEGROUP_MAX_GROUPS                                                     */
    int32_t        k;             /* experts a token, 1 to 64, at most experts                                   */
    int32_t        normalize;     /* 1: the k weights of a token sum to 1                                        */
    tegroup_matrix logits;        /* in  [tokens, experts], F16, BF16, F32 or F64                                */
    tegroup_matrix probabilities; /* out [tokens, experts], F32 or F64: kept for the backward pass               */
    tegroup_matrix weights;       /* out [tokens, k], dtype of probabilities                                     */
    tegroup_matrix indices;       /* out [tokens, k], I32, largest weight first                                  */
    tegroup_matrix counts;        /* out [1, experts], I64: assignments to each expert                           */
    double         balance_coefficient; /* 0 = no load-balancing loss                                            */
    double        *balance_loss;  /* out, one value; NULL = not wanted                                           */
} tegroup_router_desc;

/* Gradient of the router: of what the weights fed and of the load-balancing loss, with the choice of experts held fixed. */
typedef struct tegroup_router_backward_desc {
    size_t         struct_size;   /* sizeof(tegroup_router_backward_desc)                                        */
    tegroup_space  space;
    int32_t        experts, k, normalize; /* as in the forward call                                              */
    tegroup_matrix probabilities; /* in  as the forward call wrote them                                          */
    tegroup_matrix indices;       /* in                                                                          */
    tegroup_matrix counts;        /* in; needed when balance_coefficient is not 0, else absent                   */
    tegroup_matrix grad_weights;  /* in  [tokens, k], dtype of probabilities                                     */
    tegroup_matrix grad_logits;   /* out [tokens, experts], F16, BF16, F32 or F64                                */
    double         balance_coefficient;
    double         loss_scale;    /* multiplies the load-balancing gradient; 0 = 1                               */
} tegroup_router_backward_desc;

/* The permutation that groups (token, choice) slots by expert. Slot s = token * k + choice. Rows of a group keep the
 * order of slots. A slot whose index is outside 0 .. experts-1 (-1: dropped), or whose group is full, gets row -1. */
typedef struct tegroup_permutation_desc {
    size_t         struct_size;  /* sizeof(tegroup_permutation_desc)                                             */
    tegroup_space  space;
    tegroup_matrix indices;      /* in  [tokens, k], I32: expert of each slot                                    */
    tegroup_shape  shape;        /* groups = experts, rows = capacity; snapshot of the experts' counts required  */
    tegroup_matrix row_of_slot;  /* out [tokens, k], I64: row of the permuted buffer, or -1                      */
    tegroup_matrix slot_of_row;  /* out [1, shape.rows], I64: slot, or -1 for a row that no slot has             */
} tegroup_permutation_desc;

/* permuted[row] = weight(slot) * tokens[slot / k], rows without a slot untouched. Weights absent: a copy. This is also the
 * gradient of tegroup_combine with respect to its rows; see there. */
typedef struct tegroup_permute_desc {
    size_t         struct_size;  /* sizeof(tegroup_permute_desc)                                                 */
    tegroup_space  space;
    int32_t        k;
    tegroup_matrix tokens;       /* in  [tokens, width], F16, BF16, F32 or F64                                   */
    tegroup_matrix slot_of_row;  /* in  [1, rows], I64                                                           */
    tegroup_matrix weights;      /* in  [tokens, k], F32 or F64; absent = 1                                      */
    tegroup_matrix permuted;     /* out [rows, width]; must not overlap an input                                 */
} tegroup_permute_desc;

/* tokens[t] = sum over choices j = 0 .. k-1, in that order, of weights[t, j] * permuted[row_of_slot[t, j]]; slots with row -1
 * add nothing. Weights absent: a plain sum, which is the gradient of tegroup_permute. No atomics: bitwise repeatable. */
typedef struct tegroup_combine_desc {
    size_t         struct_size;  /* sizeof(tegroup_combine_desc)                                                 */
    tegroup_space  space;
    tegroup_matrix permuted;     /* in  [rows, width]                                                            */
    tegroup_matrix row_of_slot;  /* in  [tokens, k], I64                                                         */
    tegroup_matrix weights;      /* in  [tokens, k], F32 or F64; absent = 1                                      */
    tegroup_matrix tokens;       /* out [tokens, width]; must not overlap an input                               */
} tegroup_combine_desc;

/* Gradient of tegroup_combine: grad_permuted[row] = weight * grad_tokens[token] for rows that have a slot (others untouched),
 * grad_weights[slot] = <grad_tokens[token], permuted[row]>, 0 for slots with row -1. */
typedef struct tegroup_combine_backward_desc {
    size_t         struct_size;  /* sizeof(tegroup_combine_backward_desc)                                        */
    tegroup_space  space;
    tegroup_matrix grad_tokens;  /* in  [tokens, width]                                                          */
    tegroup_matrix permuted;     /* in  [rows, width]; absent when grad_weights is                               */
    tegroup_matrix row_of_slot;  /* in  [tokens, k], I64                                                         */
    tegroup_matrix weights;      /* in  [tokens, k], F32 or F64; absent = 1                                      */
    tegroup_matrix grad_permuted;/* out [rows, width]                                                            */
    tegroup_matrix grad_weights; /* out [tokens, k], F32 or F64; absent = not wanted                             */
} tegroup_combine_backward_desc;
#endif /* TEGROUP_H */
#if defined(TEGROUP_EXTERN) && defined(TEGROUP_IMPL_STATIC_FUNCTIONS)
#error "tegroup: TEGROUP_EXTERN was defined after tegroup.h was included with TEGROUP_IMPLEMENTATION alone; define it first"
#endif
#if (defined(TEGROUP_IMPLEMENTATION) || defined(TEGROUP_EXTERN)) && !defined(TEGROUP_FUNCTIONS_INCLUDED)
#define TEGROUP_FUNCTIONS_INCLUDED
#if !defined(TEGROUP_EXTERN)
#define TEGROUP_IMPL_STATIC_FUNCTIONS
#define TEGROUP_API static inline
#elif defined(__cplusplus)
#define TEGROUP_API extern "C"
#else
#define TEGROUP_API extern
#endif

/* ==== [12] Functions ==== */

/* Every function is safe to call from several threads at once on different memory. Those that return a status write
 * nothing when it is not TEGROUP_OK, except *error, which may be NULL. Nothing here allocates or keeps a pointer. */

/* Names, versions and sizes of types. Never NULL: an unknown value gives "?". */
TEGROUP_API int32_t     tegroup_version(void);                            /* TEGROUP_VERSION of the code that runs      */
TEGROUP_API const char *tegroup_status_name(tegroup_status status);       /* "ERROR_SHAPE"                              */
TEGROUP_API const char *tegroup_status_string(tegroup_status status);     /* "dimensions disagree"                      */
TEGROUP_API const char *tegroup_dtype_name(tegroup_dtype dtype);          /* "BF16"                                     */
TEGROUP_API int32_t     tegroup_dtype_bits(tegroup_dtype dtype);          /* 16; 0 for an unknown type                  */
TEGROUP_API const char *tegroup_op_name(tegroup_op op);                   /* "forward"                                  */
TEGROUP_API const char *tegroup_backend_name(tegroup_backend backend);    /* "cublaslt_grouped"                         */

/* Text for people, into the caller's buffer, always terminated when size > 0. Each returns the length that the whole text
 * has, as snprintf does; buffer may be NULL when size is 0. */
TEGROUP_API int tegroup_error_text(const tegroup_error *error, char *buffer, size_t size);     /* one line             */
TEGROUP_API int tegroup_verdict_text(const tegroup_verdict *verdict, char *buffer, size_t size); /* one line            */
TEGROUP_API int tegroup_layout_text(const tegroup_layout *layout, char *buffer, size_t size);  /* a line an item, a sum */

/* Scaling modes: the row of facts (NULL for an unknown mode), the extent of one group's scales, and the place of a scale.
 * rows and cols are the data's; columnwise is 0 or 1, see tegroup_scaling.
 * Returns ERROR_NULL_ARGUMENT, ERROR_VALUE (mode, negative extents), ERROR_OVERFLOW. */
TEGROUP_API const tegroup_scaling_facts *tegroup_scaling_info(tegroup_scaling scaling);
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_scale_shape(tegroup_scaling scaling, int32_t columnwise,
    int64_t rows, int64_t cols, tegroup_scale_extent *extent, tegroup_error *error);
/* Index, in scales, of the scale of outer index `outer` (row; columnwise: column) and inner block `inner`. Arguments are not
 * checked: outer < extent.outer, inner < extent.inner. */
TEGROUP_API int64_t tegroup_scale_index(tegroup_scaling scaling, const tegroup_scale_extent *extent, int64_t outer, int64_t inner);

/* Snapshot: its layout for a shape (groups and whether it has col_sizes or offsets count, nothing else), and a view of one in
 * host memory (all NULL when snapshot is NULL). Returns ERROR_NULL_ARGUMENT, ERROR_VALUE. */
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_snapshot_layout(const tegroup_shape *shape, tegroup_layout *layout, tegroup_error *error);
TEGROUP_API tegroup_snapshot_view tegroup_snapshot_read(const void *snapshot);

/* Turn sizes into a snapshot. Sizes that lie are no error of this call: they are clamped, and the snapshot's status says so. */
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_prepare(const tegroup_prepare_desc *desc, struct CUstream_st *stream, tegroup_error *error);

/* Set-up workspace of a grouped cuBLASLt matmul: items as tegroup_setup_item. 0 <= groups <= TEGROUP_MAX_GROUPS. */
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_cublaslt_setup_layout(int32_t groups, tegroup_layout *layout, tegroup_error *error);

/* The tables that dispatch reads, for printing and for documentation. */
TEGROUP_API const tegroup_backend_rule *tegroup_backend_rules(int32_t *count);
TEGROUP_API const tegroup_quirk        *tegroup_quirks(int32_t *count);

/* Check a GEMM descriptor without its data pointers and resolve its defaults. */
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_gemm_problem(const tegroup_gemm_desc *desc, tegroup_problem *problem, tegroup_error *error);

/* What every backend says of a problem on a machine; target NULL = this one. Writes TEGROUP_BACKEND_COUNT - 1 verdicts, in
 * order of preference. Fails only as tegroup_gemm_problem does, or with ERROR_STRUCT_SIZE for the target. */
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_explain(const tegroup_gemm_desc *desc, const tegroup_target *target,
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1], tegroup_error *error);

/* Choose: the backend that tegroup_explain marks as chosen, its workspace and its numerics_id. When none can, the status and
 * the error are those of the backend asked for, or with AUTO of the most preferred one for that memory space. */
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_plan_make(const tegroup_gemm_desc *desc, const tegroup_target *target,
    tegroup_plan *plan, tegroup_error *error);

/* Everything that tegroup_gemm checks before it starts, and nothing else. */
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_gemm_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc, tegroup_error *error);

/* Run. stream: where GPU work is enqueued (NULL = the default stream); ignored by the CPU backend, which is done on return. */
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* Operations around the GEMM; each struct says what it computes. */
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_activation_forward(const tegroup_activation_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_activation_backward(const tegroup_activation_backward_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_router(const tegroup_router_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_router_backward(const tegroup_router_backward_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_permutation_make(const tegroup_permutation_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_permute(const tegroup_permute_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_combine(const tegroup_combine_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status tegroup_combine_backward(const tegroup_combine_backward_desc *desc, struct CUstream_st *stream, tegroup_error *error);
#endif /* TEGROUP_FUNCTIONS_INCLUDED */
#if defined(TEGROUP_IMPLEMENTATION) && !defined(TEGROUP_IMPLEMENTATION_INCLUDED)
#define TEGROUP_IMPLEMENTATION_INCLUDED
#include <math.h>
#include <stdio.h>
#include <string.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

/* Stop here if you only want the API. */

/* ==== [13] core/helpers ==== */

/* ==== [14] core/names ==== */

/* ==== [15] formats/convert ==== */

/* ==== [16] formats/scale_layout ==== */

/* ==== [17] core/layouts ==== */

/* ==== [18] core/prepare ==== */

/* ==== [19] core/checks ==== */

/* ==== [20] core/problem ==== */

/* ==== [21] core/tables ==== */

/* ==== [22] core/explain ==== */

/* ==== [23] cpu/real ==== */

/* ==== [24] cpu/gemm_kernel ==== */

/* ==== [25] cpu/gemm ==== */

/* ==== [26] core/dispatch ==== */

/* ==== [27] layer/activation ==== */

/* ==== [28] moe/router ==== */

/* ==== [29] moe/permutation ==== */
#endif /* TEGROUP_IMPLEMENTATION_INCLUDED */

#if defined(__CUDACC__) && !defined(TEGROUP_NO_CUDA)
#include "tegroup_cuda.cuh"
#endif
/* MIT License
 *
 * Copyright (c) 2026 the tegroup authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
 * documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
 * persons to whom the Software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
 * Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 * WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
 * OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
