/* ---- Sizes, shapes and grouped tensors ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"

/* The three ways in which group sizes are written down. */
typedef enum tegroup_encoding {
    TEGROUP_ENCODING_UNSET   = 0, /* no array: every group has the same size                            */
    TEGROUP_ENCODING_COUNTS  = 1, /* [groups]: rows of each group; -1 skips the group (its wgrad is untouched) */
    TEGROUP_ENCODING_OFFSETS = 2, /* [groups + 1]: first row of each group, then the end; [0] is 0      */
    TEGROUP_ENCODING_ENDS    = 3  /* [groups]: row after each group's last (inclusive prefix sums)      */
} tegroup_encoding;

/* Bytes of sizes in host memory that a snapshot in device memory may be made of: 448 counts of I64 or 896 of I32, less
 * where there are starts, columns or offsets. They are a kernel's parameters, of which CUDA takes 4,096 bytes
 * everywhere, and more only where toolkit and driver are of 12.1 or later (NVIDIA, "CUDA 12.1 Supports Large Kernel
 * Parameters"). */
#define TEGROUP_HOST_SIZES_MAX_BYTES 3584

/* Sizes of the groups along one dimension. All-zero means uniform. Read by tegroup_prepare alone. */
typedef struct tegroup_sizes {
    const void      *data;      /* see tegroup_encoding; NULL is allowed when there are no groups            */
    tegroup_encoding encoding;  /* UNSET = uniform, and the rest is ignored; but in row_sizes data must be NULL
                                   then, and the shape's snapshot, too                                   */
    tegroup_dtype    dtype;     /* I32 or I64: of data and starts                                            */
    tegroup_space    space;     /* where the snapshot of them lives; required                               */
    tegroup_space    data_space; /* where data and starts (and tegroup_shape.offsets) live; UNSET = space. HOST with
                                    space DEVICE: tegroup_prepare reads them before it returns, and hands them to its
                                    kernel as parameters, at most TEGROUP_HOST_SIZES_MAX_BYTES of them, each array
                                    counted in whole 8 bytes */
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
 *                 at `offsets`, or (tensor.ld set) are rows of one buffer with room for the widest, or (both set)
 *                 windows of one buffer, above each other or side by side
 *
 * Once prepared, the shape carries its snapshot; copy a shape to give its row sizes to another tensor. */
typedef struct tegroup_shape {
    int32_t        groups;    /* 0 to TEGROUP_MAX_GROUPS                                                      */
    int64_t        rows;      /* uniform: rows of each group. ragged: rows that the buffer holds (capacity)   */
    int64_t        cols;      /* columns of every group; with col_sizes the most that one may have            */
    tegroup_sizes  row_sizes; /* per-group rows    (TransformerEngine: first_dims)                            */
    tegroup_sizes  col_sizes; /* per-group columns (TransformerEngine: last_dims); COUNTS without starts      */
    const int64_t *offsets;   /* [groups] first element of each group, in row_sizes' data_space; NULL = derived
                                 (TransformerEngine: tensor_offsets)                                          */
    int64_t        elements;  /* with col_sizes or offsets in one buffer: elements that the buffer holds, required
                                 to run (with offsets at least 1; a buffer of 0 holds none); else 0. With
                                 tensor.pointers 0: each buffer of the list holds its group, and nothing has to be
                                 said of them all                                                              */
    const void    *snapshot;  /* what tegroup_prepare made of the above; required to run when row_sizes is set */
} tegroup_shape;

/* How the columnwise copy lies, and whether it is quantised. */
typedef enum tegroup_columnwise_order {
    TEGROUP_COLUMNWISE_AS_DATA    = 0, /* as data does: the same rows, columns, ld and group_stride                */
    TEGROUP_COLUMNWISE_TRANSPOSED = 1, /* group g is [cols, rows[g] up to a multiple of TEGROUP_TRANSPOSED_ROWS], the
                                          groups one after another without gaps; what pads a group's rows is 0. For
                                          products that want the summed index contiguous                       */
    TEGROUP_COLUMNWISE_BF16       = 2, /* as data does, but the values as they were, of this type and without scales: in
                                          a layer the products that sum over rows multiply them as they are    */
    TEGROUP_COLUMNWISE_F16        = 3,
    TEGROUP_COLUMNWISE_F32        = 4
} tegroup_columnwise_order;
#define TEGROUP_TRANSPOSED_ROWS 32

/* How codes lie along their lines: the rows of data, the columns of a transposed copy. */
typedef enum tegroup_code_order {
    TEGROUP_CODES_IN_ORDER    = 0, /* of F4E2M1 two a byte, the first in its lower bits                            */
    TEGROUP_CODES_INTERLEAVED = 1  /* F4E2M1, and F8E4M3 with scales of 8 bits: each 64 of a line share their bytes, bit
                                      by bit, so that Hopper's tensor cores get weights with the fewest instructions;
                                      docs/formats.md draws it. Uniform groups, lines of whole 64s.
                                      tegroup_code_convert makes them so, and back; as b of a FORWARD, or by the
                                      transposed copy of a DGRAD, SM90 and CPU read them, and nothing else does    */
} tegroup_code_order;
#define TEGROUP_INTERLEAVED_CODES 64

/* Groups of matrices of one data type: everything that a grouped GEMM, a quantiser or a layer knows of one operand.
 * Caller owns all memory. Uninvolved pointers stay NULL. Of a quantised operand a product reads one copy and its scales
 * (tegroup_gemm_desc says which) and touches nothing of the other; scale and the amaxes it leaves alone. */
typedef struct tegroup_tensor {
    tegroup_shape   shape;
    tegroup_dtype   dtype;        /* UNSET = this optional tensor is absent                                   */
    tegroup_scaling scaling;      /* 0 = none                                                                 */
    int64_t         ld;           /* elements between rows; 0 = cols (ragged columns: each group's own)       */
    int64_t         group_stride; /* uniform only: elements between groups; 0 = rows * ld                     */
    void           *data;         /* rowwise copy, aligned to its element; NULL when pointers is given        */
    void           *columnwise_data;      /* copy quantised along columns, or values: see columnwise_order;
                                             NULL = none                                                      */
    void           *scale_inv;            /* scales of data, see tegroup_scaling                              */
    void           *columnwise_scale_inv; /* scales of columnwise_data                                        */
    float          *scale;                /* [groups] multipliers for a quantiser with delayed scaling, which
                                             requires them; else not read. These three: memory of the data    */
    float          *amax;                 /* [groups] largest magnitude seen; written by quantisers; NULL = not
                                             wanted, but a quantiser with current scaling of TENSOR needs it  */
    float          *columnwise_amax;      /* [groups]                                                         */
    void *const    *pointers;             /* [groups] one buffer a group instead of data, each holds its group; where a
                                             call uses none (no rows, no columns, an operand of an empty sum; skipped)
                                             it may be NULL, but not where a weight gradient is written of no rows, with
                                             zeros or beta * c (accumulate leaves it alone). The list is an input:
                                             nothing that a call writes may overlap it                        */
    void *const    *columnwise_pointers;  /* [groups] instead of columnwise_data                              */
    void *const    *scale_pointers;       /* [groups] instead of scale_inv                                    */
    void *const    *columnwise_scale_pointers; /* [groups] instead of columnwise_scale_inv                    */
    tegroup_space   pointers_space;       /* where the four lists live; UNSET = data is one buffer            */
    tegroup_dtype   scale_dtype;          /* of the scales of both copies; UNSET = the scaling's own. F32 scales may
                                             instead be BF16 or, powers of two, F8E8M0. I32: four F8E8M0 a word, see
                                             below                                                            */
    int64_t         scale_outer_stride;   /* of scale_inv, in scales (I32: words); both 0 = the default packing  */
    int64_t         scale_inner_stride;
    int32_t         scale_parts;          /* uniform only: a group's rows are so many equal parts, each with a grid of
                                             scales of its own, one after another (gate and up: 2); 0 = 1     */
    tegroup_columnwise_order columnwise_order;
    float          *global_scale_inv;     /* NVFP4: [groups], memory of the data: a value is data * scale_inv *
                                             global_scale_inv[g]; NULL = 1                                    */
    tegroup_code_order code_order;        /* of data, and of columnwise_data where it is TRANSPOSED           */
} tegroup_tensor;

/* Where scales are. In the default packing a group's scales lie as its scaling says (tegroup_scaling), a group after
 * another, the parts of a group likewise; where pointers_space is set, each group's begin its own buffer.
 *
 * Set, both strides address the scales of all groups in one rule, which knows no swizzle: that of outer block o and
 * inner block i of group g is at (first(g) + o) * scale_outer_stride + i * scale_inner_stride. first(g) is the group's
 * first row in the buffer (ragged rows; a scale must then cover one row), or g times the outer blocks of a group
 * (uniform), or 0 (a list). Part p begins p times the outer blocks of a part later. Nothing between them is touched.
 * Strides must give each scale a place of its own: for all groups where these are uniform, for shape.rows rows where
 * they are ragged, in each buffer of a list as well, since one group may have all rows.
 *
 *   [rows, K / 128], token-major: DeepEP, NCCL EP                         K / 128, 1
 *   [K / 128, rows of the buffer up to 4]: DeepGEMM                       1, rows up to 4
 *   [groups, ceil(N / 128), ceil(K / 128)]: checkpoints                   ceil(K / 128), 1
 *   [rows, ceil(K / 32)], bytes: MXFP8 and MXFP4 that are not swizzled    ceil(K / 32), 1
 *
 * scale_dtype I32, where a scale covers one row of a block: the word has the exponents of inner blocks 4 w .. 4 w + 3,
 * the first in its lowest byte. Its default packing is DeepGEMM's [ceil(inner blocks / 4), outer up to 4], the outer
 * index contiguous; strides then count words, along `inner` from w to w + 1. */

/* The copies of a tensor that something is about, as bits. */
typedef enum tegroup_copies {
    TEGROUP_COPIES_UNSET      = 0,
    TEGROUP_COPIES_ROWWISE    = 1,
    TEGROUP_COPIES_COLUMNWISE = 2,
    TEGROUP_COPIES_BOTH       = 3
} tegroup_copies;

/* A plain matrix [rows, cols] for what surrounds the grouped products. */
typedef struct tegroup_matrix {
    void         *data;  /* aligned to its element; may be NULL when it has no elements */
    int64_t       rows;
    int64_t       cols;
    int64_t       ld;    /* elements between rows; 0 = cols                             */
    tegroup_dtype dtype; /* UNSET = this optional matrix is absent                      */
} tegroup_matrix;
