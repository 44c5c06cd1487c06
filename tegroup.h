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
 *     1. prepare   tegroup_shape_prepare(&rows, ...) turns a routing's group sizes into a snapshot, once a routing
 *     2. describe  fill a tegroup_gemm_desc; zero means default, except for required enums and sizes
 *     3. plan      tegroup_plan_make(&desc, NULL, &plan, &error) picks the backend and the workspace, once
 *     4. run       tegroup_gemm(&plan, &desc, stream, &error), as often as you like
 *
 * examples/quickstart.c is this in forty lines. Without TEGROUP_IMPLEMENTATION only types, constants and
 * their documentation are seen. TEGROUP_EXTERN gives prototypes with C linkage instead; both together give
 * the exported definitions (`make lib` builds libtegroup that way).
 *
 * tegroup does not: allocate, free, wait for the GPU (but in tegroup_plan_tune), print, exit, throw, read an
 * environment variable, or keep state of its own. Every buffer is the caller's; every call returns a status and,
 * if asked, the field that was wrong with what was expected and what came. What a check refuses has written nothing.
 *
 * Needs: C99 or C++11 and the C library (link with -lm). nvcc adds tegroup_cuda.cuh by itself.
 * Licence: MIT, at the end of this file. Stitched from src/ by `make headers`: edit there.
 */

/* Map: the parts, their files in src/, their titles. Search for the number in brackets.
 *
 *   [1]  base/version.h           Version and configuration
 *   [2]  base/status_types.h      Status and errors
 *   [3]  formats/dtype_types.h    Data types
 *   [4]  formats/scaling_types.h  Scaling modes
 *   [5]  core/tensor_types.h      Sizes, shapes and grouped tensors
 *   [6]  core/snapshot_types.h    Prepare and snapshot
 *   [7]  core/layout_types.h      Workspace layouts
 *   [8]  core/cublaslt_types.h    cuBLASLt's functions
 *   [9]  core/options_types.h     Options
 *   [10] core/gemm_types.h        Grouped GEMM
 *   [11] core/plan_types.h        Plan and explain
 *   [12] core/validation_types.h  Validation
 *   [13] core/scale_convert_types.h Scales in another layout
 *   [14] core/activation_types.h  Gated activations
 *   [15] layer/quantize_types.h   Quantise and dequantise
 *   [16] layer/linear_types.h     Grouped linear
 *   [17] layer/mlp_types.h        Grouped MLP
 *   [18] layer/chain_types.h      Op chain
 *   [19] moe/routing_types.h      MoE operations
 *   [20] base/linkage.h           Linkage of the functions
 *   [21] api/functions.h          Functions
 *   [22] base/build.h             What this build has
 *   [23] base/arithmetic.h        Arithmetic
 *   [24] base/rules.h             Rules
 *   [25] base/threads.h           Threads
 *   [26] formats/dtype.h          Types by their bits
 *   [27] core/names.h             Names and texts
 *   [28] core/constructors.h      Constructors
 *   [29] formats/convert.h        Conversions
 *   [30] formats/scale_rule.h     Scale rules
 *   [31] formats/scale_layout.h   Scale layouts
 *   [32] core/layout.h            Layout arithmetic
 *   [33] core/tensor.h            What the fields of a tensor say
 *   [34] core/scale_grid.h        Where a group's scales and its copies are
 *   [35] core/checks.h            Checks of tensors and matrices
 *   [36] core/tensor_layout.h     Bytes of a tensor
 *   [37] core/scale_convert.h     Scales in another layout: one group, one scale
 *   [38] core/apart.h             What a call writes lies apart
 *   [39] core/prepare.h           Prepare
 *   [40] core/problem.h           The problem of a GEMM
 *   [41] core/backend_table.h     Backend and quirk tables
 *   [42] core/numerics.h          What decides the bits of a result
 *   [43] core/choice.h            What a plan chooses
 *   [44] core/product.h           The product of one group
 *   [45] core/quantised.h         Quantised operands
 *   [46] core/epilogue.h          An activation in an epilogue
 *   [47] gemm/prepare.h           Prepare a snapshot
 *   [48] cpu/rows.h               Rows
 *   [49] cpu/gemm_kernel.h        CPU GEMM kernel
 *   [50] cpu/quantised.h          CPU GEMM of quantised operands
 *   [51] cuda/cublaslt_setup.h    Set-up of a grouped cuBLASLt matmul
 *   [52] cuda/sm90_kernels.h      Hopper GEMM: the table of kernels
 *   [53] cuda/sm90_balance.h      Hopper GEMM: what tiles cost, and which block is done first
 *   [54] cuda/sm90_fp8_kernels.h  Hopper GEMM of FP8: the table of kernels, and where a group's scales are
 *   [55] cuda/sm90_choice.h       Hopper GEMM: which kernel a plan takes
 *   [56] gemm/backends.h          The backends, a row of functions each
 *   [57] gemm/verdicts.h          What each backend can do
 *   [58] gemm/plan.h              Explain and plan
 *   [59] cpu/gemm.h               CPU GEMM
 *   [60] gemm/check.h             What a call checks
 *   [61] gemm/run.h               Run
 *   [62] gemm/once.h              One call for a product that runs once
 *   [63] gemm/tune.h              Tune, save and load a plan
 *   [64] cpu/real.h               Formulas
 *   [65] core/activation_formulas.h Activation formulas
 *   [66] layer/activation.h       Activations
 *   [67] layer/quantize_rules.h   Quantise and dequantise: rules
 *   [68] layer/quantize.h         Quantise and dequantise
 *   [69] layer/linear.h           Grouped linear layer
 *   [70] layer/mlp_rules.h        Grouped MLP: tensors and rules
 *   [71] layer/mlp_plan.h         Grouped MLP: plan
 *   [72] layer/mlp.h              Grouped MLP: calls
 *   [73] layer/chain_rules.h      Op chain: rules and buffers
 *   [74] layer/chain_ops.h        Op chain: ops as layers
 *   [75] layer/chain_plan.h       Op chain: plan
 *   [76] layer/chain.h            Op chain: calls
 *   [77] gemm/validate.h          Validate
 *   [78] gemm/scale_convert.h     Scales in another layout
 *   [79] moe/count.h              Counts of groups
 *   [80] moe/router.h             Router
 *   [81] moe/permutation.h        Permute and combine
 */
#ifndef TEGROUP_H
#define TEGROUP_H

/* ==== [1] Version and configuration (src/base/version.h) ==== */

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
#if defined(TEGROUP_NO_FP16) || defined(TEGROUP_NO_HALF)
#error "tegroup: the switch is spelt TEGROUP_NO_F16"
#endif
#if defined(TEGROUP_NO_GRADIENT) || defined(TEGROUP_NO_GRADIENTS) || defined(TEGROUP_NO_GRAD)
#error "tegroup: the switch is spelt TEGROUP_NO_BACKWARD"
#endif
#if defined(TEGROUP_NO_ACTIVATIONS)
#error "tegroup: the switch is spelt TEGROUP_NO_ACTIVATION"
#endif
#if defined(TEGROUP_NO_ROUTER) || defined(TEGROUP_NO_PERMUTATION)
#error "tegroup: router and permutation have one switch, TEGROUP_NO_MOE"
#endif
#if defined(TEGROUP_NO_F8) || defined(TEGROUP_NO_QUANTIZE)
#error "tegroup: the switch is spelt TEGROUP_NO_FP8"
#endif
#if defined(TEGROUP_NO_HOPPER)
#error "tegroup: the switch is spelt TEGROUP_NO_SM90"
#endif
#if defined(TEGROUP_NO_CUBLAS)
#error "tegroup: the switch is spelt TEGROUP_NO_CUBLASLT"
#endif

/* Macros that a user may define before including this file: TEGROUP_IMPLEMENTATION and TEGROUP_EXTERN, see the top; and
 * switches that leave out kernels, so that nvcc is done sooner. What a build lacks, calls and tegroup_explain refuse as
 * NOT_BUILT; the CPU backend always has everything, and no switch changes a struct.
 *
 *     TEGROUP_NO_PORTABLE    the portable GEMM kernels
 *     TEGROUP_NO_SM90        the GEMM kernels for Hopper
 *     TEGROUP_NO_CUBLASLT    both cuBLASLt backends
 *     TEGROUP_NO_F16         of both kinds of GEMM kernels those whose rows are FP16; results may still be, and
 *                            weights beside FP32
 *     TEGROUP_NO_BACKWARD    of both kinds those of dgrad and wgrad, and whatever else only a backward pass runs
 *     TEGROUP_NO_ACTIVATION  activations
 *     TEGROUP_NO_MOE         counts, router, permutation, permute and combine
 *     TEGROUP_NO_FP8         quantise and dequantise, and products of quantised operands
 *     TEGROUP_NO_CUDA        all of them: nvcc does not pull in tegroup_cuda.cuh
 *
 * docs/lab/compile-time.md has the seconds of each. */

/* The only CUDA types in this header, by their tags, so that no toolkit is needed to include it:
 * cudaStream_t is struct CUstream_st *, cublasLtHandle_t is struct cublasLtContext *. */
struct CUstream_st;
struct CUevent_st;
struct cublasLtContext;

#define TEGROUP_MAX_GROUPS 4096          /* groups in one problem; 0 is allowed                            */
#define TEGROUP_MAX_ROWS   (INT64_C(1) << 40) /* rows that one buffer may hold                             */
#define TEGROUP_MAX_COLS   (INT64_C(1) << 31) /* columns, and elements between rows                        */
#define TEGROUP_ALIGNMENT  256           /* bytes: every workspace and snapshot, and each item within them */

/* ==== [2] Status and errors (src/base/status_types.h) ==== */

/* One list owns every status: its name, its number (stable, append only) and its text. */
#define TEGROUP_STATUS_LIST(X)                                                                       \
    X(OK, 0, "ok")                                                                                   \
    X(ERROR_NULL_ARGUMENT, 1, "a required pointer is NULL")                                          \
    X(ERROR_STRUCT_SIZE, 2, "struct_size is not that of this version's struct, nor of an older one")  \
    X(ERROR_UNSET, 3, "a required enum was left at zero")                                            \
    X(ERROR_VALUE, 4, "a number or enum is out of its range")                                        \
    X(ERROR_SHAPE, 5, "dimensions disagree")                                                         \
    X(ERROR_DTYPE, 6, "a data type is not allowed here")                                             \
    X(ERROR_LAYOUT, 7, "a leading dimension or group stride does not fit")                           \
    X(ERROR_ALIGNMENT, 8, "a pointer is not aligned as required")                                    \
    X(ERROR_OVERLAP, 9, "two buffers share memory and must not")                                     \
    X(ERROR_WORKSPACE, 10, "a workspace or snapshot buffer is too small")                            \
    X(ERROR_CAPACITY, 11, "a snapshot refers to rows that the buffer does not hold")                 \
    X(ERROR_OVERFLOW, 12, "a size does not fit the machine's address space")                         \
    X(ERROR_COMBINATION, 13, "two fields exclude each other")                                        \
    X(ERROR_PLAN, 14, "the descriptor is not the one that the plan was made for")                    \
    X(ERROR_UNSUPPORTED, 15, "no backend can do this here")                                          \
    X(ERROR_NOT_BUILT, 16, "the backend is not part of this build")                                  \
    X(ERROR_CUDA, 17, "a CUDA call failed; native is its cudaError_t")                               \
    X(ERROR_CUBLAS, 18, "a cuBLASLt call failed; native is its cublasStatus_t")

#define TEGROUP_IMPL_ENUMERATE(name, value, text) TEGROUP_##name = (value),
typedef enum tegroup_status { TEGROUP_STATUS_LIST(TEGROUP_IMPL_ENUMERATE) TEGROUP_STATUS_COUNT } tegroup_status;
#undef TEGROUP_IMPL_ENUMERATE

/* What the numbers of an error are. */
typedef enum tegroup_reading {
    TEGROUP_READING_NUMBER   = 0, /* a bound, a size, an enum                                     */
    TEGROUP_READING_DTYPE    = 1, /* a tegroup_dtype each                                         */
    TEGROUP_READING_DTYPES   = 2, /* expected has bit d set for each tegroup_dtype d that may be  */
    TEGROUP_READING_SCALING  = 3, /* a tegroup_scaling each                                       */
    TEGROUP_READING_SCALINGS = 4  /* expected has bit s set for each tegroup_scaling s that may be */
} tegroup_reading;

/* What was wrong. Written only when a call fails; strings are static and need no freeing. Checks run in a
 * fixed order and stop at the first failure, so that the same bad call always gives the same error. */
typedef struct tegroup_error {
    tegroup_status status;
    int32_t        native;   /* cudaError_t or cublasStatus_t behind the status; 0 = none         */
    const char    *field;    /* path within the descriptor, such as "a.shape.cols"                */
    const char    *rule;     /* what must hold, such as "must equal b.shape.cols"                 */
    int64_t        expected; /* what the rule asks for                                            */
    int64_t        got;      /* what came                                                         */
    tegroup_reading reading; /* what these two are; tegroup_error_text has their names            */
} tegroup_error;

/* How much a call checks. */
typedef enum tegroup_check_level {
    TEGROUP_CHECK_HOST  = 0, /* every rule that costs arithmetic only: half a microsecond of a product, a whole one
                                of an MLP's call, where the compiler optimises; and of lists in host memory that
                                an address is there wherever one is used                                 */
    TEGROUP_CHECK_DEEP  = 1  /* also walks snapshots in host memory, and asks the driver whose memory a device
                                pointer is. Entries of a list in host memory are compared with single
                                buffers and, where they are written, with each other (by the square of
                                their number), not with entries of another list                          */
} tegroup_check_level;

/* An unread status is a warning. */
#if defined(__GNUC__) || defined(__clang__)
#define TEGROUP_IMPL_NODISCARD __attribute__((warn_unused_result))
#else
#define TEGROUP_IMPL_NODISCARD
#endif

/* ==== [3] Data types (src/formats/dtype_types.h) ==== */

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

/* ==== [4] Scaling modes (src/formats/scaling_types.h) ==== */

/* How a quantised tensor's scales are laid out. A value is data * scale_inv. "Rowwise" data is quantised along its
 * rows, the direction of the columns index (what forward contracts over); "columnwise" data is a second copy quantised
 * along its columns. Sizes are for one group of [rows, cols]; a grouped tensor stores its groups' scales one after
 * another, unless its strides say otherwise (tegroup_tensor). tegroup_scale_shape gives them, for either direction.
 *
 *   mode            data            scale        one scale covers   stored as (rowwise; columnwise swaps the roles)
 *   NONE            F64 .. BF16     -            -                  -
 *   TENSOR          FP8             F32          a group            [1], of an empty group too
 *   ROW             FP8             F32          a row              [rows]
 *   BLOCK_1X128     FP8             F32          128 along a row    [ceil(cols / 128), rows up to 4], outer fastest
 *   BLOCK_128X128   FP8             F32          a 128 x 128 block  [ceil(rows / 128), ceil(cols / 128) up to 4]
 *   MXFP8           FP8             F8E8M0       32 along a row     [rows up to 128, ceil(cols / 32) up to 4], swizzled
 *   NVFP4           F4E2M1          F8E4M3       16 along a row     [rows up to 128, ceil(cols / 16) up to 4], swizzled
 *   MXFP4           F4E2M1          F8E8M0       32 along a row     as MXFP8
 *   BLOCK_32X32     FP8             F32          a 32 x 32 block    [ceil(rows / 32), ceil(cols / 32)]
 *   MXFP8_32X32     FP8             F8E8M0       a 32 x 32 block    as MXFP8: once for every row of the block
 *   NVFP4_16X16     F4E2M1          F8E4M3       a 16 x 16 block    as NVFP4: once for every row of the block
 *
 * The last two are for weights: the choice of a scale is a square block's, so that the weight and its transpose have
 * the same values, and what reads MXFP8 or NVFP4 reads them as such.
 *
 * Sources: cuBLAS documentation, "Narrow precision data types usage" (scale layouts and the 128 x 4 swizzle); OCP
 * Microscaling Formats (MX) 1.0; DeepSeek-V3 technical report, section 3.3 (1x128 and 128x128 blocks). NVFP4 has a
 * second, FP32 scale of the whole group, see global_scale_inv of tegroup_tensor. */
typedef enum tegroup_scaling {
    TEGROUP_SCALING_NONE          = 0,
    TEGROUP_SCALING_TENSOR        = 1,
    TEGROUP_SCALING_ROW           = 2,
    TEGROUP_SCALING_BLOCK_1X128   = 3,
    TEGROUP_SCALING_BLOCK_128X128 = 4,
    TEGROUP_SCALING_MXFP8         = 5,
    TEGROUP_SCALING_NVFP4         = 6,
    TEGROUP_SCALING_MXFP4         = 7,
    TEGROUP_SCALING_BLOCK_32X32   = 8,
    TEGROUP_SCALING_MXFP8_32X32   = 9,
    TEGROUP_SCALING_NVFP4_16X16   = 10,
    TEGROUP_SCALING_COUNT
} tegroup_scaling;

/* One mode's facts; tegroup_scaling_info returns a row of the table that everything else reads. */
typedef struct tegroup_scaling_facts {
    tegroup_scaling scaling;
    const char     *name;
    uint32_t        data_dtypes;  /* bit d set: tegroup_dtype d may carry this scaling            */
    tegroup_dtype   scale_dtype;  /* UNSET for NONE                                               */
    int32_t         block_outer;  /* rows (columnwise: columns) of a stored scale; 0 = all        */
    int32_t         block_inner;  /* elements along the quantised direction; 0 = all              */
    int32_t         pad_outer;    /* the stored outer extent is a multiple of this                */
    int32_t         pad_inner;    /* the stored inner extent is a multiple of this                */
    int32_t         outer_fastest;/* 1: the outer index is contiguous                             */
    int32_t         swizzled;     /* 1: in tiles of 128 x 4, see tegroup_scale_index              */
    int32_t         choice_outer; /* rows (columnwise: columns) that one scale is chosen for; 0 = all. Where they are
                                     more than block_outer, the same scale is stored for each block of them      */
} tegroup_scaling_facts;

/* Extents of one group's scales, padding included. */
typedef struct tegroup_scale_extent {
    int64_t outer, inner; /* stored extents: scales, not bytes */
    int64_t bytes;
} tegroup_scale_extent;

/* How the scale of a block is chosen from its amax, the largest magnitude in it. A block is what shares a scale: 32
 * values, 128 x 128 of them, a row, a group. Its values are quantised as x * multiplier, or x / scale, and a value is
 * then data * scale. "Largest" is that of the data type: 448, 57344, 6. Every operation rounds once, to nearest. */
typedef enum tegroup_scale_method {
    TEGROUP_SCALE_UNSET      = 0,
    TEGROUP_SCALE_MULTIPLIER = 1, /* multiplier = largest / amax, scale = 1 / multiplier                        */
    TEGROUP_SCALE_DIVISOR    = 2, /* scale = amax / largest, multiplier = 1 / scale                             */
    TEGROUP_SCALE_EXPONENT   = 3, /* scale = 2^(floor(log2(amax)) - floor(log2(largest))): large values saturate */
    TEGROUP_SCALE_TWO_LEVEL  = 4, /* NVFP4: scale = amax * (global / 6) in E4M3, multiplier = 1 / (scale / global) */
    TEGROUP_SCALE_GIVEN      = 5, /* multiplier = global, whatever amax is, scale = 1 / multiplier               */
    TEGROUP_SCALE_METHOD_COUNT
} tegroup_scale_method;

/* What is zero is off. An amax of 0, infinity or NaN goes through the arithmetic like any other, unless special_is_one
 * is set: docs/formats.md says what each preset makes of it. A scale of 0 makes zeros of its block. */
typedef struct tegroup_scale_rule {
    tegroup_scale_method method;
    float   amax_floor;             /* a smaller amax counts as this                                             */
    float   multiplier_max;         /* MULTIPLIER: a larger one is cut to this                                   */
    float   multiplier_of_infinity; /* MULTIPLIER: an infinite one becomes this; 0: the largest finite F32       */
    int32_t power_of_two;           /* MULTIPLIER: the multiplier is rounded down to one, DIVISOR: the scale up  */
    int32_t by_reciprocal;          /* DIVISOR: scale = amax * (1 / largest)                                     */
    int32_t divide;                 /* DIVISOR: values are divided by the scale, not multiplied                  */
    int32_t special_is_one;         /* an amax of 0, infinity or NaN gives 1 for both                            */
    int32_t nan_shows;              /* 1: a NaN in a block is its amax; 0: amax is that of the other values      */
} tegroup_scale_rule;

/* Rules of others, bit for bit: tegroup_scale_rule_of. docs/formats.md has their sources and what differs. */
typedef enum tegroup_scale_preset {
    TEGROUP_SCALE_PRESET_UNSET   = 0,
    TEGROUP_SCALE_TE_CURRENT     = 1, /* TransformerEngine, one scale a tensor                                  */
    TEGROUP_SCALE_TE_DELAYED     = 2, /* the same with a multiplier from earlier steps                          */
    TEGROUP_SCALE_TE_BLOCK       = 3, /* its 1x128 and 128x128 blocks, powers of two                            */
    TEGROUP_SCALE_TE_BLOCK_F32   = 4, /* the same without                                                       */
    TEGROUP_SCALE_TE_MXFP8       = 5,
    TEGROUP_SCALE_TE_NVFP4       = 6,
    TEGROUP_SCALE_DEEPGEMM       = 7,
    TEGROUP_SCALE_DEEPGEMM_UE8M0 = 8, /* powers of two                                                          */
    TEGROUP_SCALE_DEEPSEEK       = 9, /* the scripts of DeepSeek-V3                                             */
    TEGROUP_SCALE_FBGEMM_ROW     = 10,
    TEGROUP_SCALE_OCP_MX         = 11,
    TEGROUP_SCALE_PRESET_COUNT
} tegroup_scale_preset;

/* What a rule gives for one block. */
typedef struct tegroup_block_scale {
    float    multiplier; /* a value is quantised as x * multiplier                                    */
    float    stored;     /* the scale: what its code means                                            */
    uint32_t bits;       /* its code, in the low bits                                                 */
    int32_t  divide;     /* 1: a value is quantised as x / stored                                     */
} tegroup_block_scale;

/* ==== [5] Sizes, shapes and grouped tensors (src/core/tensor_types.h) ==== */

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
    tegroup_encoding encoding;  /* UNSET = uniform: there are no data and no snapshot, and the rest is ignored */
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
    int64_t        elements;  /* with col_sizes: elements that the buffer holds (0 is 0); with offsets as well,
                                 and at least 1; else 0. With tensor.pointers 0: each buffer of the list holds
                                 its group, and nothing has to be said of them all                             */
    const void    *snapshot;  /* what tegroup_prepare made of the above; required to run when row_sizes is set */
} tegroup_shape;

/* How the columnwise copy lies. */
typedef enum tegroup_columnwise_order {
    TEGROUP_COLUMNWISE_AS_DATA    = 0, /* as data does: the same rows, columns, ld and group_stride                */
    TEGROUP_COLUMNWISE_TRANSPOSED = 1  /* group g is [cols, rows[g] up to a multiple of TEGROUP_TRANSPOSED_ROWS], the
                                          groups one after another without gaps; what pads a group's rows is 0. For
                                          products that want the summed index contiguous                       */
} tegroup_columnwise_order;
#define TEGROUP_TRANSPOSED_ROWS 16

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
    void           *columnwise_data;      /* copy quantised along columns, stored as data is; NULL = none     */
    void           *scale_inv;            /* scales of data, see tegroup_scaling                              */
    void           *columnwise_scale_inv; /* scales of columnwise_data                                        */
    float          *scale;                /* [groups] multipliers for a quantiser with delayed scaling        */
    float          *amax;                 /* [groups] largest magnitude seen; written by quantisers           */
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
} tegroup_tensor;

/* Where scales are. In the default packing a group's scales lie as its scaling says (tegroup_scaling), a group after
 * another, the parts of a group likewise; where pointers_space is set, each group's begin its own buffer.
 *
 * Set, both strides address the scales of all groups in one rule, which knows no swizzle: that of outer block o and
 * inner block i of group g is at (first(g) + o) * scale_outer_stride + i * scale_inner_stride. first(g) is the group's
 * first row in the buffer (ragged rows; a scale must then cover one row), or g times the outer blocks of a group
 * (uniform), or 0 (a list). Part p begins p times the outer blocks of a part later. Nothing between them is touched.
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

/* ==== [6] Prepare and snapshot (src/core/snapshot_types.h) ==== */

/* A snapshot is one routing's group sizes made safe: everything that runs afterwards reads it and never the caller's
 * arrays. It is laid out in caller memory (tegroup_snapshot_layout) and holds
 *
 *   header                               tegroup_snapshot_header
 *   start[groups]             int64      first row of each group, within the buffer
 *   rows[groups]              int64      rows of each group, within the buffer, overlapping nobody; -1 = skipped
 *   prefix[groups + 1]        int64      sums of ceil(rows / TEGROUP_GRANULE) before each group, and of all
 *   order[groups]             int32      groups from the largest to the smallest, skipped as if empty; equal by index
 *   cols[groups]              int64      only with col_sizes or elements: columns of each group
 *   offset[groups]            int64      only with col_sizes or elements: first element of each group
 *
 * Sizes that lie never lead outside the buffers. Those in device memory nobody can refuse when the call is made:
 * they are clamped, and the header's status names the lie. Those in host memory are an error of the call, unless it
 * is told to clamp them, too, wherever the snapshot lies. */
#define TEGROUP_GRANULE 4 /* rows: kernels that take rows, and not tiles, share out so many of a group at a time */

/* Bits of tegroup_snapshot_header.status. */
#define TEGROUP_SNAPSHOT_NEGATIVE  1u  /* a size below 0 (other than a count of -1) or offsets that fall: taken as 0  */
#define TEGROUP_SNAPSHOT_CAPACITY  2u  /* a group reaches past the buffer: cut at its end                             */
#define TEGROUP_SNAPSHOT_OVERLAP   4u  /* two groups share rows or elements, or one is longer than the stride: cut    */
#define TEGROUP_SNAPSHOT_START     8u  /* offsets[0] is not 0, or a start is negative: group dropped or rows unowned  */
#define TEGROUP_SNAPSHOT_COLS     16u  /* a column count outside 0 .. cols: clamped                                   */
#define TEGROUP_SNAPSHOT_ELEMENTS 32u  /* a group's elements do not fit the buffer: dropped                           */

#define TEGROUP_SNAPSHOT_MAGIC 0x54475332u /* "TGS2" */

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
    int64_t  capacity_elements; /* 0 when regular; where shape.elements is 0, as for lists, what one buffer would
                                   need */
    int64_t  ld;         /* of the preparation; 0 = packed                                   */
} tegroup_snapshot_header;

/* Pointers into a snapshot. */
typedef struct tegroup_snapshot_view {
    const tegroup_snapshot_header *header;
    const int64_t *start;
    const int64_t *rows;
    const int64_t *prefix;
    const int32_t *order;
    const int64_t *cols;   /* NULL when regular */
    const int64_t *offset; /* NULL when regular */
} tegroup_snapshot_view;

/* What tegroup_prepare does: read shape's sizes, write a snapshot of them. Its time grows with groups * log(groups),
 * and with the square of those that lie side by side at `offsets` in the rows of one buffer. */
typedef struct tegroup_prepare_desc {
    size_t         struct_size;    /* sizeof(tegroup_prepare_desc)                                            */
    tegroup_shape  shape;          /* row_sizes required; shape.snapshot is ignored                           */
    int64_t        ld;             /* ragged columns in rows of one buffer: its tensor's ld; 0 = packed       */
    tegroup_space  space;          /* where the snapshot lives and the work runs; required                    */
    void          *snapshot;       /* TEGROUP_ALIGNMENT-aligned                                               */
    size_t         snapshot_bytes; /* >= tegroup_snapshot_layout(...).total_bytes                             */
    int32_t        clamp;          /* sizes in host memory that lie: 0 = the call fails and names the group
                                      (ERROR_VALUE, ERROR_CAPACITY, ERROR_OVERLAP), 1 = they are clamped, as those in
                                      device memory always are, and the header's status tells */
    tegroup_check_level check_level; /* DEEP: also asks the driver whose memory snapshot and sizes are, where space is
                                      DEVICE: a host address would end the CUDA context                       */
    int32_t        threads;        /* on the host, at most so many; 0 = all that OpenMP gives, 1 without OpenMP. Only
                                      time depends on it, and that only of hundreds of groups                  */
    int32_t        host_sizes_final; /* 1: the caller's word that sizes in host memory stay as they are, so that a
                                      snapshot in device memory may be made of them while stream is capturing: the
                                      graph keeps the sizes of its capture. As in tegroup_options                */
} tegroup_prepare_desc;

/* ==== [7] Workspace layouts (src/core/layout_types.h) ==== */

/* Where each part of a workspace lies. Size, check and carving all read the same layout; print it to see what
 * each byte is for. Offsets are multiples of TEGROUP_ALIGNMENT; there is no slack. */
#define TEGROUP_LAYOUT_MAX_ITEMS 32

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

/* ==== [8] cuBLASLt's functions (src/core/cublaslt_types.h) ==== */

/* The functions that the cuBLASLt backends call. They are looked up by these names in the cuBLASLt that the process has
 * loaded, so nothing needs to be linked; where that cannot work (a static library, Windows) the caller gives their
 * addresses. The grouped one may be NULL: cuBLASLt has it from 13.3 on. */
#define TEGROUP_CUBLASLT_LIST(X)                                                                                       \
    X(cublasLtGetVersion, size_t, (void))                                                                              \
    X(cublasLtMatmulDescInit_internal, int, (void *, size_t, int, int))                                                \
    X(cublasLtMatmulDescSetAttribute, int, (void *, int, const void *, size_t))                                        \
    X(cublasLtMatmulDescGetAttribute, int, (const void *, int, void *, size_t, size_t *))                              \
    X(cublasLtMatrixLayoutInit_internal, int, (void *, size_t, int, uint64_t, uint64_t, int64_t))                      \
    X(cublasLtMatrixLayoutSetAttribute, int, (void *, int, const void *, size_t))                                      \
    X(cublasLtMatrixLayoutGetAttribute, int, (const void *, int, void *, size_t, size_t *))                            \
    X(cublasLtGroupedMatrixLayoutInit_internal, int,                                                                   \
      (void *, size_t, int, int, const void *, const void *, const void *))                                            \
    X(cublasLtMatmulPreferenceInit_internal, int, (void *, size_t))                                                    \
    X(cublasLtMatmulPreferenceSetAttribute, int, (void *, int, const void *, size_t))                                  \
    X(cublasLtMatmulPreferenceGetAttribute, int, (const void *, int, void *, size_t, size_t *))                        \
    X(cublasLtMatmulAlgoGetHeuristic, int,                                                                             \
      (struct cublasLtContext *, void *, void *, void *, void *, void *, void *, int, void *, int *))                  \
    X(cublasLtMatmulAlgoCheck, int,                                                                                    \
      (struct cublasLtContext *, void *, void *, void *, void *, void *, const void *, void *))                        \
    X(cublasLtMatmul, int,                                                                                             \
      (struct cublasLtContext *, void *, const void *, const void *, void *, const void *, void *, const void *,       \
       const void *, void *, void *, void *, const void *, void *, size_t, struct CUstream_st *))

typedef void (*tegroup_function)(void);
#define TEGROUP_IMPL_MEMBER(name, result, arguments) tegroup_function name;
typedef struct tegroup_cublaslt_functions {
    size_t struct_size; /* sizeof(tegroup_cublaslt_functions) */
    TEGROUP_CUBLASLT_LIST(TEGROUP_IMPL_MEMBER)
} tegroup_cublaslt_functions;
#undef TEGROUP_IMPL_MEMBER

/* ==== [9] Options (src/core/options_types.h) ==== */

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

/* What every planned descriptor ends with; all zero is the default. It is embedded last, so that a descriptor grows
 * at its end alone. A layer hands it on to each of its products. The plan reads all but the workspace, streams and
 * events. Of a call's own are these, check_level, cublaslt, host_sizes_final and an activation's threads; backend,
 * sm_limit, products' threads and hints are the plan's, and a call does not read them; the rest must be as planned
 * wherever a call looks at it. */
typedef struct tegroup_options {
    tegroup_compute     compute;       /* the type of the sums */
    tegroup_backend     backend;       /* AUTO, or the one to use or be told why not */
    tegroup_check_level check_level;   /* how much a call checks */
    int32_t             threads;       /* CPU: threads to use at most; 0 = all that OpenMP gives, 1 without OpenMP */
    int32_t             sm_limit;      /* GPU: multiprocessors that a product uses at most; 0 = all. Tails and bias
                                          gradients are small kernels of their own, and not limited */
    int32_t             data_alignment_bytes; /* the caller's word that data of a, b, c, d will lie at multiples of
                                                 so many bytes, and groups at shape.offsets, too: 0 = as the backend
                                                 needs, and for offsets nothing, or a power of two up to
                                                 TEGROUP_ALIGNMENT. Below 16, SM90 and CUBLASLT_GROUPED are not
                                                 taken. CUBLASLT_GROUPED may find a faster algorithm for it, with a
                                                 numerics_id of its own, and refuses other addresses then; not for
                                                 lists */
    int64_t             expected_rows; /* hint: rows in all groups together; 0 = capacity. Speed only, but cuBLASLt's
                                          algorithm, and so its numerics_id, may follow it */
    int64_t             expected_rows_max; /* hint: rows of the largest group; 0 = unknown: SM90 takes groups to be
                                              as uneven as routers make them, PORTABLE to be even. Speed only: of
                                              CUBLASLT_GROUPED's algorithms those that tegroup_plan_tune has to try
                                              may follow it */
    uint64_t            ignore_quirks; /* bit q set: take quirk q's risk (see tegroup_quirks) */
    void               *workspace;     /* TEGROUP_ALIGNMENT-aligned, in `space`; may be NULL when no bytes are
                                          needed. Contents are garbage before and after. One call at a time may use
                                          it: a wgrad that may run beside other calls needs its own */
    size_t              workspace_bytes; /* >= what the plan asks for */
    size_t              cublas_workspace_bytes; /* part of the workspace that cuBLASLt gets; 0 = 32 MiB, its
                                                   documented advice for Hopper and later */
    struct cublasLtContext *cublaslt;  /* cuBLASLt backends: the caller's handle */
    const tegroup_cublaslt_functions *cublaslt_functions; /* NULL = those of the cuBLASLt that the process has loaded */
    struct CUstream_st *const *streams; /* [stream_count] host list for CUBLASLT_LOOP to fork onto; NULL = none.
                                           These and the events are as the workspace: for one call at a time */
    struct CUevent_st  *const *events; /* [stream_count + 1] host list, for the fork and the joins */
    int32_t             stream_count;
    int32_t             host_sizes_final; /* 1: the caller's word that group sizes on the host stay as they are, so
                                             that CUBLASLT_LOOP may be captured: a graph keeps the sizes of its
                                             capture */
} tegroup_options;

/* ==== [10] Grouped GEMM (src/core/gemm_types.h) ==== */

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
    const void   *data;   /* required to run unless space is UNSET                        */
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
                                    element; the other may be NULL. Without columnwise_data (or its list) the rowwise
                                    copy serves where a scale is chosen for as many rows as columns: TENSOR,
                                    BLOCK_128X128, BLOCK_32X32, MXFP8_32X32, NVFP4_16X16. Scales of both are of one
                                    type (F32, F8E8M0, F8E4M3: of the scalings, see tegroup_scaling), or one operand is
                                    plain: a, or in a WGRAD b. CPU                                                 */
    tegroup_tensor  c;           /* shape and dtype like d; absent = none. May be d itself (same data, same ld, same
                                    snapshot), else must not overlap it. Never read for a group whose beta is 0    */
    tegroup_tensor  d;           /* required; must not overlap any input but c; never quantised                   */
    tegroup_tensor  bias;        /* absent = none. FORWARD, DGRAD: input [groups, 1, columns of d], added after alpha
                                    and beta; in a DGRAD that is for a layer whose weights are [groups, k, n].
                                    WGRAD: output, the bias gradient: each group's sum of a's rows (times row_scale);
                                    overwrites, or adds when accumulate is 1; alpha and beta do not apply to it    */
    const void     *row_scale;   /* [a.shape.rows, or b's with bias_of_b] multiplies the bias of each row (its routing
                                    probability); needs bias                                                       */
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
    tegroup_options options;     /* hints, backend, workspace, checks ...; zero means the default                  */
} tegroup_gemm_desc;

/* ==== [11] Plan and explain (src/core/plan_types.h) ==== */

/* A problem with its defaults resolved: what every choice is made from, and what a call is compared with. */
typedef struct tegroup_problem {
    tegroup_op      op;
    tegroup_space   space;
    tegroup_compute compute;
    int32_t         groups;
    int64_t         rows;    /* what a's buffer holds of ragged rows, which a call may change; or rows of each
                                group when uniform                                                             */
    int64_t         n, k;    /* columns of Y and of X; the most, where groups differ                           */
    int64_t         lda, ldb, ldc, ldd;          /* elements; 0 = packed groups of different width             */
    tegroup_dtype   a, b, c, d, bias, row_scale; /* UNSET = absent                                             */
    tegroup_scaling a_scaling, b_scaling, d_scaling;
    tegroup_tail    tail;
    /* Small numbers, a byte each, since a plan of many products holds many problems. */
    uint8_t         rows_space[4];     /* tegroup_space of a, b, c, d: where their row_sizes live; UNSET = uniform */
    uint8_t         ragged_cols[4];    /* of a, b, c, d: 1 = col_sizes are set                                 */
    uint8_t         has_elements[4];   /* of a, b, c, d: 1 = shape.elements is set                             */
    uint8_t         pointers_space[5]; /* of a, b, c, d, bias: where their lists live; UNSET = one buffer      */
    uint8_t         gathered[2];       /* of a, b: 1 = its rows are picked by an index                         */
    uint8_t         scale_dtype[2];    /* tegroup_dtype of a, b: as in the tensor                              */
    uint8_t         scale_strides[2];  /* of a, b: 1 = scales are at strides                                   */
    uint8_t         columnwise_order[2]; /* tegroup_columnwise_order of a, b                                   */
    uint8_t         irregular;         /* 1: n or k may differ between groups                                  */
    uint8_t         alpha_space, beta_space; /* UNSET = default: 1 and 0                                       */
    uint8_t         alpha_stride, beta_stride;
    uint8_t         accumulate, bias_of_b;
} tegroup_problem;

/* A machine, present or not. Zero fields mean "none". */
typedef struct tegroup_target {
    size_t   struct_size;      /* sizeof(tegroup_target)                                                       */
    int32_t  sm;               /* compute capability, 10 * major + minor: 80, 90, 100, 120 ...; 0 = no GPU     */
    int32_t  cublaslt_version; /* cublasLtGetVersion(): 130100 is 13.1, 131000 is 13.10; 0 = none              */
    int32_t  threads;          /* CPU threads; 0 = what OpenMP gives here                                      */
    uint32_t built;            /* bit b set: backend b's code is in the build; 0 = what this build holds       */
    int32_t  multiprocessors;  /* of the GPU, which SM90's choice of a tile follows; 0 = 132, of an H100 SXM or H200 */
} tegroup_target;

/* What explain says of one backend. */
typedef struct tegroup_verdict {
    tegroup_backend backend;
    int32_t         chosen;  /* 1 for the one that a plan takes; at most one                                    */
    tegroup_status  status;  /* OK: could run this. UNSUPPORTED, NOT_BUILT, OVERFLOW, and here also CUDA or
                                CUBLAS: why not, as below                                                       */
    const char     *field;   /* the first unmet condition, as in tegroup_error; NULL when OK                    */
    const char     *rule;
    int64_t         expected, got; /* a quirk's expected is the first cuBLASLt version without it, 0 if none is known */
    tegroup_reading reading; /* of these two, as in tegroup_error                                               */
    int32_t         quirk;   /* number of the quirk that refuses it; -1 = none                                  */
    int32_t         native;  /* cudaError_t or cublasStatus_t behind the status; 0 = none                       */
    size_t          workspace_bytes; /* what it would need; 0 unless OK                                         */
    int32_t         tile_m, tile_n, tile_k; /* rows and columns of d, and k, that it would work on at a time, as in
                                               the plan; 0: not OK, or not known before the plan is made on the GPU.
                                               Speed only */
    const char     *tile_why; /* why this tile; NULL where none is known                                        */
    double          predicted_us; /* SM90: time of a call in us, on an H200, by which the tile was chosen; 0 = by a
                                     rule */
} tegroup_verdict;

/* A row of the table that dispatch reads: what one backend does on a range of machines. A backend can run a problem
 * when one of its rows admits it. */
typedef struct tegroup_backend_rule {
    tegroup_backend backend;
    int32_t  sm_min, sm_max;     /* inclusive; 0, 0 = needs no GPU                                              */
    int32_t  cublaslt_min;       /* 0 = none needed                                                             */
    uint32_t operand_dtypes;     /* bit d: tegroup_dtype d for a and b, which must be of one width, unless there is
                                    FEATURE_MIXED or one of them is quantised                                   */
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
#define TEGROUP_FEATURE_SM_LIMIT     512u   /* sm_limit is kept to                 */
#define TEGROUP_FEATURE_GATHER      1024u   /* rows of a and b picked by an index  */
#define TEGROUP_FEATURE_MIXED       2048u   /* F32 a, F16 or BF16 weights for b    */

/* A known-bad combination of library, machine and case. */
typedef enum tegroup_quirk_action {
    TEGROUP_QUIRK_REFUSE     = 1, /* the backend is refused unless ignore_quirks says otherwise                 */
    TEGROUP_QUIRK_SEPARATE   = 2, /* forward, dgrad and wgrad each need a cuBLASLt workspace of their own       */
    TEGROUP_QUIRK_AVOID      = 3  /* the library is called in a way in which it does not happen; ignore_quirks
                                     changes nothing */
} tegroup_quirk_action;

typedef enum tegroup_quirk_case {
    TEGROUP_QUIRK_ALWAYS = 0,
    TEGROUP_QUIRK_WGRAD,         /* op is WGRAD                                                  */
    TEGROUP_QUIRK_MISALIGNED_LD, /* a leading dimension is not a multiple of 16 bytes            */
    TEGROUP_QUIRK_MISALIGNED_COLS, /* the columns of d, where all groups have the same, are no multiple of 16 bytes */
    TEGROUP_QUIRK_GROUP_SCALARS, /* alpha or beta are in device memory or differ by group        */
    TEGROUP_QUIRK_ACCUMULATED_HALVES, /* accumulate, and d is F16 or BF16                        */
    TEGROUP_QUIRK_ADDED_HALVES   /* there is a c, or accumulate, and d is F16 or BF16            */
} tegroup_quirk_case;

#define TEGROUP_QUIRK_UNFIXED 999999 /* as cublaslt_below: no version is known to have it mended */

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
 * Holds no data pointer, and nothing that can be computed again. */
typedef struct tegroup_plan {
    size_t          struct_size;
    uint32_t        magic;
    tegroup_backend backend;
    tegroup_problem problem;
    size_t          workspace_bytes; /* what options.workspace must hold; tegroup_plan_layout names its parts  */
    size_t          cublas_workspace_bytes; /* cuBLASLt backends: of these, what one part of cuBLASLt's own gets */
    uint64_t        numerics_id;  /* equal ids mean equal bits for a row, however many rows come with it. Of the CPU
                                     backend: within one build, as compilers may fuse a product and a sum. Of
                                     CUBLASLT_LOOP: for data aligned to 16 bytes; else its library takes
                                     another algorithm, as for shapes that the planned one cannot do         */
    int32_t         sm;           /* machine that it was made for                                             */
    int32_t         device;       /* CUDA device that it is bound to; -1 = none                               */
    int32_t         cublaslt_version;
    int32_t         cublas_parts; /* cuBLASLt backends: parts of the workspace that are the library's         */
    int32_t         hypothetical; /* 1: of a backend that this build lacks, or a GPU's and made for a target: good
                                     for sizes only */
    int32_t         threads;      /* CPU threads                                                              */
    int32_t         sm_limit;
    int32_t         tile_m, tile_n, tile_k;
    uint64_t        algorithm[33]; /* backend's own: kernel image, or cuBLASLt's functions and algorithm       */
} tegroup_plan;

/* What tegroup_plan_tune times, at most. */
#define TEGROUP_TUNE_CANDIDATES 24
#define TEGROUP_TUNE_ROUNDS     64
typedef struct tegroup_tune_desc {
    size_t              struct_size; /* sizeof(tegroup_tune_desc)                                                   */
    const tegroup_gemm_desc *gemm;   /* the planned product on real buffers, with the snapshots of a usual routing  */
    int32_t             overwrite;   /* required to be 1: the caller's word that gemm's results may be overwritten  */
    int32_t             any_numerics; /* 0: only candidates of the plan's numerics_id. 1: all; the plan then gets the
                                         numerics_id of the one that is kept                                        */
    int32_t             rounds;      /* timed runs of each candidate, whose median counts; 0 = 15                   */
    struct CUevent_st  *begin, *end; /* caller's events, made with timing; the CPU backend needs none               */
    float              *milliseconds; /* [TEGROUP_TUNE_CANDIDATES] medians, -1 = not timed; NULL = not wanted       */
    const void         *flush;       /* device memory that is read before each timed run, so that operands come from
                                         memory, as they do in a model after its other layers: several times what L2
                                         holds. NULL with 0 bytes: they are as warm as the run before left them. The
                                         CPU backend leaves it alone                                                */
    size_t              flush_bytes;
} tegroup_tune_desc;

#define TEGROUP_SAVED_PLAN_BYTES 1024 /* what tegroup_plan_save writes */

/* ==== [12] Validation (src/core/validation_types.h) ==== */

/* What tegroup_validate finds in a grouped tensor. Sizes in device memory cannot be refused when a call is made, and
 * a NaN shows far from where it arose: this record says both, and the caller reads it whenever the work before it is
 * done. It is the same whoever writes it, CPU or GPU, and every time. */
#define TEGROUP_VALIDATION_MAGIC 0x54475631u /* "TGV1" */

/* Bits of tegroup_validation.status. */
#define TEGROUP_VALIDATION_SNAPSHOT 1u  /* shape.snapshot holds no snapshot of this shape: no row is taken as owned */
#define TEGROUP_VALIDATION_SIZES    2u  /* the sizes lied: the snapshot's own status is not 0 */
#define TEGROUP_VALIDATION_BOUNDS   4u  /* a group reaches outside the buffer */
#define TEGROUP_VALIDATION_SUMS     8u  /* sums in the snapshot are not those of its rows */
#define TEGROUP_VALIDATION_VALUES  16u  /* NaN or infinity in rows that groups own */
#define TEGROUP_VALIDATION_TAIL    32u  /* NaN or infinity in rows that no group owns (padding, the tail) */

typedef struct tegroup_validation_values {
    int64_t nans;
    int64_t infinities;
    int64_t first_row; /* of the first of either, row by row; -1 = none. Of a uniform tensor group * rows + row  */
    int64_t first_col;
} tegroup_validation_values;

typedef struct tegroup_validation {
    uint32_t magic;           /* TEGROUP_VALIDATION_MAGIC                                     */
    uint32_t status;          /* TEGROUP_VALIDATION_* bits; 0 = nothing is wrong              */
    uint32_t snapshot_status; /* TEGROUP_SNAPSHOT_* bits of the snapshot                      */
    int32_t  bad_group;       /* lowest group that BOUNDS or a wrong prefix is about; -1 = none */
    tegroup_validation_values owned;
    tegroup_validation_values tail;
} tegroup_validation;

typedef struct tegroup_validate_desc {
    size_t              struct_size; /* sizeof(tegroup_validate_desc) */
    tegroup_space       space;       /* where tensor and result live; required */
    tegroup_tensor      tensor;      /* in  F64, F32, F16 or BF16 in one buffer, without col_sizes, offsets or
                                        elements */
    tegroup_validation *result;      /* out */
} tegroup_validate_desc;

/* ==== [13] Scales in another layout (src/core/scale_convert_types.h) ==== */

/* The scales of `from`, stored as `to` says: other strides or the default packing, other parts of a buffer, another
 * scale_dtype, rows that lie elsewhere. Of each group, part, outer block and inner block that both have, the scale is
 * copied. What else the default packing of `to` stores (padding; blocks of rows that `from` lacks) becomes 0, in F8E8M0
 * and I32 the byte 0. With strides a word of I32 is written whole, and nothing lies between that would be.
 *
 * Values stay what they are: the same type; BF16 to F32; F8E8M0 and I32 to each other and to BF16 or F32; F32 and BF16
 * to F8E8M0 or I32, if they are powers of two, 2^-127 to 2^127, or NaN. One that is not is an error on the host, and
 * nothing is written; on the device it becomes NaN, the byte 255. F32 to BF16 would round, and is UNSUPPORTED.
 *
 * The tensors have one scaling, one number of groups, columns and parts. Where both are uniform, their rows are equal;
 * where both are ragged, those of each group, and where one is, its groups have no more rows than the uniform one: on
 * the host another case is an error, on the device the lesser number counts. Data is not looked at, and may be NULL. A
 * device snapshot that does not fit its tensor leads to nothing written. Needs no workspace, bitwise repeatable. */
typedef struct tegroup_scale_convert_desc {
    size_t         struct_size; /* sizeof(tegroup_scale_convert_desc)                                            */
    tegroup_space  space;       /* of scales, snapshots and lists (pointers_space must equal it); required       */
    int32_t        columnwise;  /* 0 = scale_inv (scale_pointers), 1 = columnwise_scale_inv (its list)           */
    tegroup_tensor from;        /* in   aligned to its scales' elements                                          */
    tegroup_tensor to;          /* out  likewise; must not overlap what is read                                  */
    int32_t        threads;     /* on the host, at most so many; 0 = all that OpenMP gives, 1 without OpenMP. Only
                                   time depends on it                                                            */
} tegroup_scale_convert_desc;

/* ==== [14] Gated activations (src/core/activation_types.h) ==== */

/* Gated kinds take pairs of gate and up, [rows, 2 width] -> [rows, width]; the others [rows, width] -> [rows, width],
 * and their input is called gate here, too. sigmoid(x) = 1 / (1 + exp(-x)); Phi is the standard normal distribution
 * function.
 *
 * Sources: GLU variants: Shazeer 2020, arXiv:2002.05202. GELU and its tanh form: Hendrycks and Gimpel,
 * arXiv:1606.08415. Squared ReLU: So et al. 2021, arXiv:2109.08668. Clamped SwiGLU: swiglu in gpt_oss/torch/model.py of
 * github.com/openai/gpt-oss, which interleaves gate and up. Derivatives are torch autograd's: ReLU's is 0 at 0, a
 * clamp's 1 at its limits and 0 beyond.
 *
 * At an infinite gate its function and the derivative are their limits: gate and 1 at infinity, 0 and 0 at minus
 * infinity (of RELU_SQUARED infinity and infinity, of IDENTITY gate and 1). What is multiplied then, up, row_scale
 * and gradients, is multiplied as IEEE 754 says: 0 times infinity is NaN. A NaN among gate and up shows in the
 * output. */
typedef enum tegroup_activation {
    TEGROUP_ACTIVATION_UNSET          = 0,
    TEGROUP_ACTIVATION_SWIGLU         = 1, /* gate sigmoid(gate) up                                                   */
    TEGROUP_ACTIVATION_GEGLU          = 2, /* gate Phi(gate) up, Phi(x) = (1 + erf(x / sqrt(2))) / 2                  */
    TEGROUP_ACTIVATION_GEGLU_TANH     = 3, /* gate (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) / 2 up           */
    TEGROUP_ACTIVATION_REGLU          = 4, /* max(gate, 0) up                                                         */
    TEGROUP_ACTIVATION_SWIGLU_CLAMPED = 5, /* g sigmoid(alpha g) (u + 1), g = min(gate, limit),
                                              u = min(max(up, -limit), limit)                                         */
    TEGROUP_ACTIVATION_SILU           = 6, /* those without up: gate sigmoid(gate)                                    */
    TEGROUP_ACTIVATION_GELU           = 7, /* gate Phi(gate)                                                          */
    TEGROUP_ACTIVATION_GELU_TANH      = 8, /* as GEGLU_TANH                                                           */
    TEGROUP_ACTIVATION_RELU           = 9, /* max(gate, 0)                                                            */
    TEGROUP_ACTIVATION_RELU_SQUARED   = 10, /* max(gate, 0)^2                                                         */
    TEGROUP_ACTIVATION_IDENTITY       = 11 /* gate: what row_scale alone does                                         */
} tegroup_activation;

/* output[r] = row_scale[r] * activation(gate[r], up[r]), for rows that the shape's groups own (all rows when it has no
 * snapshot). Other rows are untouched. */
typedef struct tegroup_activation_desc {
    size_t             struct_size; /* sizeof(tegroup_activation_desc)                                            */
    tegroup_space      space;       /* required                                                                   */
    tegroup_activation activation;  /* required                                                                   */
    int32_t            interleaved; /* gated kinds: 0: input is [gate | up] halves; 1: gate, up, gate, up ...     */
    double             alpha;       /* SWIGLU_CLAMPED: 0 = 1.702; others: 0                                       */
    double             limit;       /* SWIGLU_CLAMPED: 0 = 7, INFINITY = none; others: 0                          */
    const void        *snapshot;    /* rows that are valid; NULL = all                                            */
    tegroup_matrix     input;       /* in  [rows, 2 width], not gated [rows, width]; F16, BF16, F32 or F64        */
    tegroup_matrix     row_scale;   /* in  [rows, 1], F32 or F64; absent = 1                                      */
    tegroup_matrix     output;      /* out [rows, width]; not gated: may be input itself, with its ld and dtype   */
    int32_t            threads;     /* on the host, at most so many; 0 = all that OpenMP gives, 1 without OpenMP.
                                       Only time depends on it                                                    */
} tegroup_activation_desc;

/* Gradient of the above. */
typedef struct tegroup_activation_backward_desc {
    size_t             struct_size; /* sizeof(tegroup_activation_backward_desc)                                   */
    tegroup_space      space;
    tegroup_activation activation;     /* with the next three as in the forward call                              */
    int32_t            interleaved;
    double             alpha, limit;
    const void        *snapshot;
    tegroup_matrix     input;          /* in  [rows, 2 width] or [rows, width], as the forward call read it       */
    tegroup_matrix     row_scale;      /* in  [rows, 1]; absent = 1                                               */
    tegroup_matrix     grad_output;    /* in  [rows, width]                                                       */
    tegroup_matrix     grad_input;     /* out as large as input and laid out alike; may be input itself, with its ld
                                          and dtype, and grad_output where not gated */
    tegroup_matrix     grad_row_scale; /* out [rows, 1], F32 or F64; absent = not wanted                          */
    int32_t            threads;        /* likewise                                                                */
} tegroup_activation_backward_desc;

/* ==== [15] Quantise and dequantise (src/layer/quantize_types.h) ==== */

/* output = input, each block of values by the scale that rule gives for it. Written are those copies of output whose
 * elements or scales have an address: the rowwise one (data or pointers, scale_inv or scale_pointers), quantised along
 * the rows, and the columnwise one (columnwise_...), quantised along the columns and always from input, never from the
 * rowwise copy. Both come from one read of input, but for scaling ROW.
 *
 * All of a group's elements and scales are written; what pads its scales, and the rows of its transposed copy, is 0. A
 * group without elements has nothing but the one scale of TENSOR, that of an amax of 0; a skipped one counts as such.
 * Rows that no group owns, what lies between rows, and what a buffer has behind its last group are untouched, and NaN
 * there does not show. A scale that is NaN has the bits 0x7fffffff in F32.
 *
 * output.amax and output.columnwise_amax [groups], each where set, become the largest magnitude of the group (NaN as
 * rule.nan_shows says, of the bits 0x7fffffff): that of all its values, whatever the scaling. output.amax is required
 * where a scale is chosen for all of a group: scaling TENSOR, but for a rule of method GIVEN, and
 * output.global_scale_inv. For these input is read twice.
 *
 * output.global_scale_inv (NVFP4), where set, becomes the reciprocal of tegroup_scale_global(amax) for each group;
 * NULL = scales have one level, and values beyond 6 * 448 saturate. output.scale [groups] is read where rule.method is
 * GIVEN, delayed scaling: the multiplier of each group. Its scaling must be TENSOR.
 *
 * What is quantised may be made in passing:
 *
 *   gather_input   rows of input picked by an index, as in tegroup_gemm: its rows are ragged, in one buffer
 *   activation     the output of tegroup_activation_forward for input
 *   grad_output    the gradient that tegroup_activation_backward gives for input and it
 *
 * Such a value is rounded to input's type, as the separate call would have stored it, so that the bits are the same. On
 * the GPU, too: scalings, rules and types give the bits that the CPU gives, but what an activation computes is rounded
 * there as tegroup_activation_forward says.
 *
 * In device memory the sizes and lists lie there, too, and nothing is read by the host: the call can be captured, and
 * replayed with other sizes. A snapshot in device memory that was not prepared for these shapes: nothing is written. */
typedef struct tegroup_quantize_desc {
    size_t             struct_size;  /* sizeof(tegroup_quantize_desc)                                             */
    tegroup_space      space;        /* of everything that is pointed to; required                                */
    tegroup_tensor     input;        /* in  F32, F16 or BF16, without a scaling; groups and rows as output's, with the
                                        same snapshot; columns as output's, but for a gated activation's output: twice
                                        as many                                                                   */
    tegroup_gather     gather_input; /* rows = 0: none. Not with activation                                       */
    tegroup_activation activation;   /* UNSET = none. With the next three as in tegroup_activation_desc           */
    int32_t            interleaved;
    double             alpha, limit;
    tegroup_matrix     row_scale;    /* in  [rows, 1], F32 or F64: of output's buffer (uniform: of all groups); absent =
                                        1. Needs activation (IDENTITY: nothing else is done), and no lists        */
    tegroup_tensor     grad_output;  /* in  input's type, groups and rows; columns as the activation's output; absent =
                                        none. Needs activation; output's columns are then input's                 */
    tegroup_matrix     grad_row_scale; /* out [rows, 1], F32 or F64, as tegroup_activation_backward gives it (on the GPU
                                          the order of that sum is up to where grad_input lies, and here there is
                                          none); absent = not wanted. Needs grad_output, whose rows are read once
                                          more for it                                                             */
    tegroup_scale_rule rule;         /* required: tegroup_scale_rule_of, or one's own                             */
    tegroup_tensor     output;       /* out a scaling and its type; required. No memory of it may overlap anything else
                                        that the call touches                                                     */
    int32_t            threads;      /* on the host, at most so many; 0 = all that OpenMP gives, 1 without OpenMP. Only
                                        time depends on it                                                        */
} tegroup_quantize_desc;

/* output = data * scale_inv * global_scale_inv of one copy of input: the exact product, rounded once to output's type,
 * to nearest, ties to even. (At most 4, 24 and, beside scales of 4, 24 significant bits are multiplied.) Rows that no
 * group owns are untouched. */
typedef struct tegroup_dequantize_desc {
    size_t         struct_size; /* sizeof(tegroup_dequantize_desc)                                                */
    tegroup_space  space;       /* required                                                                       */
    tegroup_tensor input;       /* in  a scaling and its type; groups and rows as output's, with the same snapshot */
    int32_t        columnwise;  /* 0: its rowwise copy; 1: its columnwise one                                     */
    tegroup_tensor output;      /* out [as input], F32, F16 or BF16, without a scaling                            */
    int32_t        threads;     /* likewise                                                                       */
} tegroup_dequantize_desc;

/* ==== [16] Grouped linear (src/layer/linear_types.h) ==== */

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
 * a backend that needs more says so. */
typedef struct tegroup_linear_desc {
    size_t          struct_size;    /* sizeof(tegroup_linear_desc)                                                */
    tegroup_space   space;          /* where all data live; required                                              */
    tegroup_tensor  weight;         /* in  W [groups, n, k] or, as weight_layout says, [groups, k, n], one buffer or
                                       pointers; required, for its shape                                          */
    tegroup_tensor  bias;           /* in  [groups, 1, n], one buffer or pointers; F16, BF16, F32 or F64; absent =
                                       none */
    tegroup_tensor  input;          /* in  X [rows, k], weight's dtype, or F32 beside one of F16 or BF16; needed for
                                       forward and wgrad                                                          */
    tegroup_tensor  out;            /* out Y [rows, n], any dtype that the backend writes                         */
    tegroup_tensor  grad_output;    /* in  dY [rows, n], as input, and where main_grad is wanted of its dtype; needed
                                       for dgrad and wgrad                                                        */
    tegroup_tensor  dgrad_out;      /* out dX [rows, k]                                                           */
    tegroup_tensor  main_grad;      /* out dW, shaped as weight, one buffer or pointers; its own dtype, such as F32 */
    tegroup_tensor  bias_grad;      /* out [groups, 1, n], one buffer or pointers; absent = not wanted. Needs main_grad
                                       and bias                                                                   */
    tegroup_tensor  grad_row_scale; /* out [rows, 1], absent = not wanted. Written by dgrad: needs dgrad_out, row_scale
                                       and a bias that goes with grad_output as weight does                       */
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

/* ==== [17] Grouped MLP (src/layer/mlp_types.h) ==== */

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
 * their element; a backend that needs more says so. Rows of saved tensors that no group owns are never touched. */
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
    double          alpha, limit;   /* SWIGLU_CLAMPED: 0 = 1.702 and 7; others: 0                                 */
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
                                       writes. Absent = in the workspace, in input's: inference alone */
    tegroup_tensor  activated;      /* [rows, h], fc2.weight's dtype, row_scale in it. Read by wgrad for fc2.main_grad.
                                       Absent = in the workspace: when fc2.main_grad is not wanted. There it has
                                       fc2.weight's dtype, or F32 where input has that and fc1.weight has not. Its
                                       gradient lies in the workspace, in the same dtype                          */
    tegroup_tensor  grad_preactivation; /* as preactivation, fc1.weight's dtype. dgrad writes it for wgrad. May be
                                           preactivation itself (same data, same dtype), which dgrad then uses up */
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
    tegroup_options options;        /* of each product (the one that gives the bias's part of grad_row_scale has one
                                       column: its backend is AUTO); threads for the activation, too */
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

/* What a plan holds besides its products: what a call must bring again, and what is fused. */
typedef struct tegroup_mlp_planned {
    uint32_t           fused;            /* TEGROUP_FUSED_* bits; SM90 and PORTABLE have both                      */
    tegroup_activation activation;
    int32_t            interleaved, recompute, fc2_bias_scaled;
    tegroup_dtype      dtypes[21];       /* of the desc's tensors and of row_scale: a call's are held against them */
    int64_t            preactivation_bytes, activated_bytes; /* at capacity; 0 = not planned                   */
    int64_t            grad_preactivation_bytes;             /* likewise                                       */
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
    size_t              saved_by_forward_bytes; /* the caller's buffers that live from forward to backward         */
    size_t              saved_by_dgrad_bytes;   /* and from dgrad to wgrad; grad_preactivation is free where it is
                                                   preactivation */
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

/* ==== [18] Op chain (src/layer/chain_types.h) ==== */

#define TEGROUP_CHAIN_MAX_OPS 8
#define TEGROUP_CHAIN_MAX_VALUES 9 /* what ops read and write: one more */

typedef enum tegroup_chain_kind {
    TEGROUP_CHAIN_UNSET      = 0,
    TEGROUP_CHAIN_LINEAR     = 1, /* y = x W^T + row_scale * bias: see tegroup_linear_desc; row_scale is an argument */
    TEGROUP_CHAIN_ACTIVATION = 2, /* y = row_scale * f(x): see tegroup_activation_desc; row_scale is an argument */
    TEGROUP_CHAIN_BIAS       = 3, /* y = x + bias, that of the row's expert; its gradient is that of y, with no copy */
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
    tegroup_mlp_weights weights;     /* LINEAR: as there. BIAS: bias, required, [groups, 1, cols], and bias_grad   */
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

/* ==== [19] MoE operations (src/moe/routing_types.h) ==== */

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
#endif /* TEGROUP_H */
#if defined(TEGROUP_EXTERN) && defined(TEGROUP_IMPL_STATIC_FUNCTIONS)
#error "tegroup: TEGROUP_EXTERN was defined after tegroup.h was included with TEGROUP_IMPLEMENTATION alone; define it first"
#endif
#if (defined(TEGROUP_IMPLEMENTATION) || defined(TEGROUP_EXTERN)) && !defined(TEGROUP_FUNCTIONS_INCLUDED)
#define TEGROUP_FUNCTIONS_INCLUDED

/* ==== [20] Linkage of the functions (src/base/linkage.h) ==== */

#if !defined(TEGROUP_EXTERN)
#define TEGROUP_IMPL_STATIC_FUNCTIONS
#define TEGROUP_API static inline
#elif defined(__cplusplus)
#define TEGROUP_API extern "C"
#else
#define TEGROUP_API extern
#endif
#define TEGROUP_API_STATUS TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status /* to be read by the caller */

/* ==== [21] Functions (src/api/functions.h) ==== */

/* Every function is safe to call from several threads at once on different memory (and streams and events of a
 * descriptor). Those that return a status write nothing when it is not TEGROUP_OK, except *error, which may be NULL,
 * and a chain's `refused`; where CUDA, cuBLAS or a chain's USER op fails on the way, what ran before it has run.
 * Nothing here allocates or keeps a pointer. */

/* Names, versions and sizes of types. Never NULL: an unknown value gives "?". */
TEGROUP_API int32_t     tegroup_version(void);                            /* TEGROUP_VERSION of the code that runs */
TEGROUP_API const char *tegroup_status_name(tegroup_status status);       /* "ERROR_SHAPE" */
TEGROUP_API const char *tegroup_status_string(tegroup_status status);     /* "dimensions disagree" */
TEGROUP_API const char *tegroup_dtype_name(tegroup_dtype dtype);          /* "BF16" */
TEGROUP_API int32_t     tegroup_dtype_bits(tegroup_dtype dtype);          /* 16; 0 for an unknown type */
TEGROUP_API const char *tegroup_op_name(tegroup_op op);                   /* "forward" */
TEGROUP_API const char *tegroup_backend_name(tegroup_backend backend);    /* "cublaslt_grouped" */

/* Text for people, into the caller's buffer, always terminated when size > 0. Each returns the length that the whole
 * text has, as snprintf does; buffer may be NULL when size is 0. */
TEGROUP_API int tegroup_error_text(const tegroup_error *error, char *buffer, size_t size);       /* one line */
TEGROUP_API int tegroup_verdict_text(const tegroup_verdict *verdict, char *buffer, size_t size); /* one line */
TEGROUP_API int tegroup_layout_text(const tegroup_layout *layout, char *buffer, size_t size);    /* a line an item */

/* Constructors: the common case in a line. They check nothing (whoever takes the struct does), keep nothing, and what
 * they return may be edited before it is used: another encoding, an ld, a list instead of data. data may be const here;
 * a call writes it only where its tensor is an output.
 *   sizes     COUNTS [groups] of I32 or I64 in `space`: the rows of each group
 *   shape     ragged rows: a buffer of `rows` rows, of which each of the groups owns some
 *   tensor    ragged rows of `cols` columns in one buffer: shape's groups, rows, sizes and snapshot
 *   uniform   [groups, rows, cols] in one buffer: weights
 *   matrix    [rows, cols] without gaps between rows */
TEGROUP_API tegroup_sizes  tegroup_sizes_of(const void *counts, tegroup_dtype dtype, tegroup_space space);
TEGROUP_API tegroup_shape  tegroup_shape_of(int32_t groups, int64_t rows, int64_t cols, tegroup_sizes sizes);
TEGROUP_API tegroup_tensor tegroup_tensor_of(tegroup_shape shape, int64_t cols, tegroup_dtype dtype, const void *data);
TEGROUP_API tegroup_tensor tegroup_tensor_uniform(int32_t groups, int64_t rows, int64_t cols, tegroup_dtype dtype,
    const void *data);
TEGROUP_API tegroup_matrix tegroup_matrix_of(const void *data, int64_t rows, int64_t cols, tegroup_dtype dtype);

/* Scaling modes: the row of facts (NULL for an unknown mode), the extent of one group's scales, and the place of a
 * scale. rows and cols are the data's; columnwise is 0 or 1, see tegroup_scaling. Returns ERROR_NULL_ARGUMENT,
 * ERROR_VALUE (mode, negative extents), ERROR_OVERFLOW. */
TEGROUP_API const tegroup_scaling_facts *tegroup_scaling_info(tegroup_scaling scaling);
TEGROUP_API_STATUS tegroup_scale_shape(tegroup_scaling scaling, int32_t columnwise,
    int64_t rows, int64_t cols, tegroup_scale_extent *extent, tegroup_error *error);
/* Index, in scales, of the scale of outer index `outer` (row; columnwise: column) and inner block `inner`. Arguments
 * are not checked: outer < extent.outer, inner < extent.inner. */
TEGROUP_API int64_t tegroup_scale_index(tegroup_scaling scaling, const tegroup_scale_extent *extent,
    int64_t outer, int64_t inner);

/* The bytes of a tensor's buffers, from its fields alone: neither pointers nor a snapshot are looked at. The items are
 * always data, scale_inv, columnwise_data, columnwise_scale_inv and global_scale_inv, of 0 bytes where the scaling has
 * none or `copies` leaves it out. Of ragged rows it is the most that any sizes take, and some do take it (with
 * col_sizes as if every group had shape.cols columns): it is enough for every snapshot that fits. Of a list it is what
 * each of its buffers needs. More groups, rows or columns never need less. Returns ERROR_NULL_ARGUMENT, ERROR_UNSET,
 * ERROR_VALUE, ERROR_COMBINATION (columnwise without a scaling), ERROR_OVERFLOW, and what is wrong with the tensor's
 * other fields. */
TEGROUP_API_STATUS tegroup_tensor_layout(const tegroup_tensor *tensor, tegroup_copies copies, tegroup_layout *layout,
    tegroup_error *error);

/* One number as a code of a type: F32, F16, BF16, F8E4M3, F8E5M2, F4E2M1 or F8E8M0, in the low bits of `code`; those
 * above are not looked at. Decoding is exact. Encoding rounds to nearest, ties to even; what is too large gives
 * infinity in F16 and BF16 and the largest finite value in narrower types, as infinity does there; NaN stays NaN, or is
 * 6 in F4E2M1. F8E8M0 drops the sign and takes ties up. Any other type gives NaN, and 0. */
TEGROUP_API float    tegroup_decode(tegroup_dtype dtype, uint32_t code);
TEGROUP_API uint32_t tegroup_encode(tegroup_dtype dtype, float x);

/* A block quantised by hand: a rule, its amax (from 0, one value after another), its scale, and each value's code.
 *   of       the rule of a preset, to be edited at will; method UNSET for an unknown preset
 *   amax     amax with one value more; amax is not negative
 *   global   TWO_LEVEL: `global` of a group whose amax is given; the tensor's global_scale_inv is 1 / it
 *   block    the scale of a block, for values of type `data`, as a code of type `scale`: F32; F8E8M0 where the rule
 *            gives powers of two; F8E4M3 by TWO_LEVEL. The sign of amax is dropped. `global` is read by TWO_LEVEL
 *            (1: it has none) and GIVEN (the multiplier). Returns ERROR_NULL_ARGUMENT, ERROR_UNSET, ERROR_VALUE,
 *            ERROR_COMBINATION, ERROR_DTYPE.
 *   code     of the value x of such a block, as tegroup_encode makes it
 * No pointer may be NULL but error's; amax and code check nothing. */
TEGROUP_API tegroup_scale_rule tegroup_scale_rule_of(tegroup_scale_preset preset);
TEGROUP_API float tegroup_scale_amax(const tegroup_scale_rule *rule, float amax, float x);
TEGROUP_API float tegroup_scale_global(float amax);
TEGROUP_API_STATUS tegroup_scale_block(const tegroup_scale_rule *rule, tegroup_dtype data, tegroup_dtype scale,
    float amax, float global, tegroup_block_scale *block, tegroup_error *error);
TEGROUP_API uint32_t tegroup_scaled_code(tegroup_dtype data, const tegroup_block_scale *block, float x);

/* Snapshot: its layout for a shape (its groups and whether it has col_sizes or elements, nothing else), and a view
 * of one in host memory (all NULL when snapshot is NULL). Returns ERROR_NULL_ARGUMENT, ERROR_VALUE. */
TEGROUP_API_STATUS tegroup_snapshot_layout(const tegroup_shape *shape, tegroup_layout *layout, tegroup_error *error);
TEGROUP_API tegroup_snapshot_view tegroup_snapshot_read(const void *snapshot);

/* Turn sizes into a snapshot. Of sizes in host memory the first that lies is an error that names its group
 * (ERROR_VALUE, ERROR_CAPACITY, ERROR_OVERLAP), unless desc.clamp is set; those in device memory are clamped, and
 * the snapshot's status says so. Sizes in host memory (tegroup_sizes.data_space) for a snapshot in device memory are
 * read before the call returns; more than TEGROUP_HOST_SIZES_MAX_BYTES of them are ERROR_UNSUPPORTED, and while stream
 * is capturing they are ERROR_COMBINATION without desc.host_sizes_final. */
TEGROUP_API_STATUS tegroup_prepare(const tegroup_prepare_desc *desc, struct CUstream_st *stream, tegroup_error *error);

/* The same for a shape: its sizes become a snapshot in `snapshot`, of tegroup_snapshot_layout's bytes, in row_sizes'
 * space; on success shape->snapshot points there, and every tensor made from the shape from then on has it. Errors are
 * those of tegroup_prepare, which is the one to call where host sizes are final in a captured graph. */
TEGROUP_API_STATUS tegroup_shape_prepare(tegroup_shape *shape, void *snapshot, size_t snapshot_bytes,
    struct CUstream_st *stream, tegroup_error *error);

/* The tables that dispatch reads, for printing and for documentation. */
TEGROUP_API const tegroup_backend_rule *tegroup_backend_rules(int32_t *count);
TEGROUP_API const tegroup_quirk        *tegroup_quirks(int32_t *count);

/* Check a GEMM descriptor without its data pointers and resolve its defaults. */
TEGROUP_API_STATUS tegroup_gemm_problem(const tegroup_gemm_desc *desc, tegroup_problem *problem, tegroup_error *error);

/* What every backend says of a problem on a machine; target NULL = this one. Writes TEGROUP_BACKEND_COUNT - 1
 * verdicts, in order of preference. Fails only as tegroup_gemm_problem does, for a target that is none, or without
 * verdicts. */
TEGROUP_API_STATUS tegroup_explain(const tegroup_gemm_desc *desc, const tegroup_target *target,
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1], tegroup_error *error);

/* Choose: the backend that tegroup_explain marks as chosen, its workspace and its numerics_id. When none can, the
 * status and the error are those of the backend asked for, or with AUTO of the most preferred one for that memory
 * space. The cuBLASLt backends ask the library's heuristic, for tens of microseconds or more; CUBLASLT_GROUPED,
 * where groups are small and may be uneven, up to four times, for what tegroup_plan_tune may then try. */
TEGROUP_API_STATUS tegroup_plan_make(const tegroup_gemm_desc *desc, const tegroup_target *target,
    tegroup_plan *plan, tegroup_error *error);

/* What each byte of a plan's workspace is for, in the order in which it is carved. Returns ERROR_NULL_ARGUMENT,
 * ERROR_STRUCT_SIZE, ERROR_PLAN. */
TEGROUP_API_STATUS tegroup_plan_layout(const tegroup_plan *plan, tegroup_layout *layout, tegroup_error *error);

/* Everything that tegroup_gemm checks before it starts, and nothing else. */
TEGROUP_API_STATUS tegroup_gemm_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc, tegroup_error *error);

/* Run. stream: where GPU work is enqueued (NULL = the default stream); ignored by the CPU backend, which is done on
 * return. */
TEGROUP_API_STATUS tegroup_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* Prepare, plan and run in one call, for a product that runs once or seldom. Planning is host work in each call (the
 * driver is asked about device and kernels, the cuBLASLt backends' library for an algorithm), and a snapshot is made in
 * each: where a product runs often, or a routing has several, a plan and a snapshot made once are for all calls of
 * tegroup_gemm. The bits are the same.
 *   sizes      a.shape.row_sizes, and the same ones, field by field, in every ragged operand, with shape.snapshot NULL.
 *              Their space is desc.space, and their data_space may be HOST. All groups have the same columns
 *   workspace  options.workspace holds the snapshot and what the plan asks for. tegroup_gemm_once_layout says how much,
 *              and reads no pointers to data
 * Sizes in device memory that lie are clamped to the smallest buffer, those in host memory are an error. Good for
 * capture, with options.host_sizes_final where sizes are on the host. CUBLASLT_LOOP is not for it: that backend reads
 * its snapshot on the host. Errors are those of tegroup_plan_make, tegroup_gemm and, with a's shape for its shape,
 * tegroup_prepare; what they refuse has written nothing but into the workspace. */
TEGROUP_API_STATUS tegroup_gemm_once_layout(const tegroup_gemm_desc *desc, tegroup_layout *layout,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_gemm_once(const tegroup_gemm_desc *desc, struct CUstream_st *stream, tegroup_error *error);

/* Time the algorithms among which a plan can choose (those that cuBLASLt offers, of CUBLASLT_GROUPED for larger
 * groups than the mean, too; sm90's tiles; the other backends have one) and keep the fastest. The only call that
 * waits: for `stream`, which must not be capturing. */
TEGROUP_API_STATUS tegroup_plan_tune(tegroup_plan *plan, const tegroup_tune_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* A plan's choice of algorithm as plain bytes, good for the same problem on the same kind of device with the same
 * versions of tegroup and cuBLASLt. Loading plans anew for desc, whose backend must be AUTO or the saved one, and
 * takes the saved choice if it is offered again: no address is ever taken from the bytes. size:
 * TEGROUP_SAVED_PLAN_BYTES; bytes that cannot serve are ERROR_PLAN, and where the saved backend cannot run desc
 * here, that is what tegroup_plan_make says. */
TEGROUP_API_STATUS tegroup_plan_save(const tegroup_plan *plan, void *bytes, size_t size, tegroup_error *error);
TEGROUP_API_STATUS tegroup_plan_load(const tegroup_gemm_desc *desc, const void *bytes, size_t size,
    tegroup_plan *plan, tegroup_error *error);

/* Look through a grouped tensor: its snapshot's sizes, and NaN and infinity in its rows. What is found is data,
 * written to the record; only a call that cannot be made is an error. */
TEGROUP_API_STATUS tegroup_validate(const tegroup_validate_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);

/* Store the scales of a tensor in another layout, see tegroup_scale_convert_desc. Everything is checked before anything
 * is written. */
TEGROUP_API_STATUS tegroup_scale_convert(const tegroup_scale_convert_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);

/* Workspaces of the operations below that need one, on the GPU alone: of a descriptor the sizes are read, no
 * pointers but whether balance_loss is set. Returns ERROR_NULL_ARGUMENT, ERROR_STRUCT_SIZE, ERROR_UNSET,
 * ERROR_VALUE, ERROR_OVERFLOW. */
TEGROUP_API_STATUS tegroup_router_layout(const tegroup_router_desc *desc, tegroup_layout *layout, tegroup_error *error);
TEGROUP_API_STATUS tegroup_permutation_layout(const tegroup_permutation_desc *desc, tegroup_layout *layout,
    tegroup_error *error);

/* The grouped linear layer, see tegroup_linear_desc. plan_make plans every product whose output is there; target
 * NULL = this machine. The calls run as tegroup_gemm does: stream NULL = the default stream, no allocation, no
 * waiting, good for capture, nothing written on error. wgrad may come at any later time, on another stream that the
 * caller has made wait for the buffers that it reads. Errors are those of tegroup_plan_make and tegroup_gemm, in the
 * names of tegroup_linear_desc; a call whose output is absent is ERROR_UNSET, and ERROR_PLAN where it was when the
 * plan was made. */
TEGROUP_API_STATUS tegroup_linear_plan_make(const tegroup_linear_desc *desc, const tegroup_target *target,
    tegroup_linear_plan *plan, tegroup_error *error);
TEGROUP_API_STATUS tegroup_linear_forward(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_linear_dgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_linear_wgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* The product that one of these calls runs, to put to tegroup_explain or, with the layer plan's own plan of it, to
 * tegroup_plan_tune. */
TEGROUP_API_STATUS tegroup_linear_gemm(const tegroup_linear_desc *desc, tegroup_op op,
    tegroup_gemm_desc *gemm, tegroup_error *error);

/* The grouped MLP, see tegroup_mlp_desc: as the grouped linear layer, with two of them and an activation between.
 * Everything is checked before anything is written; in the calls that are one stream's kernels in order, no copy and
 * no memset. fusion REQUIRED is UNSUPPORTED where the backend's products have no activation, or gradient of one, in
 * their epilogue. */
TEGROUP_API_STATUS tegroup_mlp_plan_make(const tegroup_mlp_desc *desc, const tegroup_target *target,
    tegroup_mlp_plan *plan, tegroup_error *error);
TEGROUP_API_STATUS tegroup_mlp_forward(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_mlp_dgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_mlp_wgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* What each byte of a plan's workspace, or of what the caller saves, is for. Returns ERROR_NULL_ARGUMENT, ERROR_UNSET,
 * ERROR_VALUE, ERROR_STRUCT_SIZE, ERROR_PLAN. */
TEGROUP_API_STATUS tegroup_mlp_layout(const tegroup_mlp_plan *plan, tegroup_mlp_memory memory,
    tegroup_layout *layout, tegroup_error *error);

/* The product that one of these calls runs for fc1, fc2 or fc1_up, to put to tegroup_explain or, with plan->fc1 and
 * its like, to tegroup_plan_tune (not where the plan fused the product: its kernel has one tile). plan NULL: what
 * lies in the workspace has no address. */
TEGROUP_API_STATUS tegroup_mlp_gemm(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
    tegroup_mlp_layer layer, tegroup_op op, tegroup_gemm_desc *gemm, tegroup_error *error);

/* A chain of ops, see tegroup_chain_desc: planned once, then run forward and, with grad_output, backward, on one
 * stream and good for capture as far as a USER op is. explain says which ops run as a grouped MLP, and of every
 * other activation why not; it writes desc->op_count verdicts. Everything is checked before anything runs, but for
 * what a USER op itself refuses. Errors are in the words of the op that *desc->refused names, its tensors those of
 * tegroup_linear_desc, tegroup_mlp_desc or tegroup_activation_desc; those of arguments and of the chain begin so. */
TEGROUP_API_STATUS tegroup_chain_plan_make(const tegroup_chain_desc *desc, const tegroup_target *target,
    tegroup_chain_plan *plan, tegroup_error *error);
TEGROUP_API_STATUS tegroup_chain_layout(const tegroup_chain_plan *plan, tegroup_chain_memory memory,
    tegroup_layout *layout, tegroup_error *error);
TEGROUP_API_STATUS tegroup_chain_explain(const tegroup_chain_desc *desc,
    tegroup_chain_verdict verdicts[TEGROUP_CHAIN_MAX_OPS], tegroup_error *error);
TEGROUP_API_STATUS tegroup_chain_forward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_chain_backward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);

/* Operations around the GEMM; each struct says what it computes. */
TEGROUP_API_STATUS tegroup_activation_forward(const tegroup_activation_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_activation_backward(const tegroup_activation_backward_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_quantize(const tegroup_quantize_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_dequantize(const tegroup_dequantize_desc *desc, struct CUstream_st *stream,
    tegroup_error *error);
TEGROUP_API_STATUS tegroup_count(const tegroup_count_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_router(const tegroup_router_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_router_backward(const tegroup_router_backward_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_permutation_make(const tegroup_permutation_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_permute(const tegroup_permute_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_combine(const tegroup_combine_desc *desc, struct CUstream_st *stream, tegroup_error *error);
TEGROUP_API_STATUS tegroup_combine_backward(const tegroup_combine_backward_desc *desc,
    struct CUstream_st *stream, tegroup_error *error);
#endif /* TEGROUP_FUNCTIONS_INCLUDED */
#if defined(TEGROUP_IMPLEMENTATION) && !defined(TEGROUP_IMPLEMENTATION_INCLUDED)
#define TEGROUP_IMPLEMENTATION_INCLUDED

/* ==== [22] What this build has (src/base/build.h) ==== */

#include <math.h>
#include <stdio.h>
#include <string.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

#if defined(__CUDACC__) && !defined(TEGROUP_NO_CUDA)
#define TEGROUP_IMPL_CUDA /* tegroup_cuda.cuh follows and defines what is declared under this name */
#define TEGROUP_IMPL_KERNELS 1 /* and what is declared under these */
#else
#define TEGROUP_IMPL_KERNELS 0
#endif
#if defined(TEGROUP_NO_BACKWARD)
#define TEGROUP_IMPL_BACKWARD_KERNELS 0
#else
#define TEGROUP_IMPL_BACKWARD_KERNELS TEGROUP_IMPL_KERNELS
#endif
#if defined(TEGROUP_NO_ACTIVATION)
#define TEGROUP_IMPL_ACTIVATION_KERNELS 0
#else
#define TEGROUP_IMPL_ACTIVATION_KERNELS TEGROUP_IMPL_KERNELS
#endif
#if defined(TEGROUP_NO_SM90) && defined(TEGROUP_NO_PORTABLE)
#define TEGROUP_IMPL_FUSED_KERNELS 0
#else
#define TEGROUP_IMPL_FUSED_KERNELS TEGROUP_IMPL_ACTIVATION_KERNELS
#endif
#if defined(TEGROUP_NO_MOE)
#define TEGROUP_IMPL_MOE_KERNELS 0
#else
#define TEGROUP_IMPL_MOE_KERNELS TEGROUP_IMPL_KERNELS
#endif
#if defined(TEGROUP_NO_FP8)
#define TEGROUP_IMPL_FP8_KERNELS 0
#else
#define TEGROUP_IMPL_FP8_KERNELS TEGROUP_IMPL_KERNELS
#endif

/* Stop here if you only want the API. */

/* ==== [23] Arithmetic (src/base/arithmetic.h) ==== */

/* Arithmetic that the CPU loops over and a kernel maps threads to. */
#if defined(__CUDACC__)
#define TEGROUP_IMPL_HD static __host__ __device__ inline
#else
#define TEGROUP_IMPL_HD static inline
#endif

/* Callers' elements by their bits. Their arrays may have any type of that size (float, _Float16, long long), and a
 * compiler that sees both may take it that a uint32_t is never a float. */
#if defined(__GNUC__) || defined(__clang__)
#define TEGROUP_IMPL_ANY __attribute__((may_alias))
#else
#define TEGROUP_IMPL_ANY
#endif
typedef uint16_t TEGROUP_IMPL_ANY tegroup_impl_any16;
typedef uint32_t TEGROUP_IMPL_ANY tegroup_impl_any32;
typedef uint64_t TEGROUP_IMPL_ANY tegroup_impl_any64;
#undef TEGROUP_IMPL_ANY

TEGROUP_IMPL_HD int64_t tegroup_impl_min(int64_t a, int64_t b) { return a < b ? a : b; }
TEGROUP_IMPL_HD int64_t tegroup_impl_max(int64_t a, int64_t b) { return a > b ? a : b; }
TEGROUP_IMPL_HD int64_t tegroup_impl_clamp(int64_t x, int64_t low, int64_t high) {
    return x < low ? low : x > high ? high : x;
}
/* Is i an index of something that has `count`? */
TEGROUP_IMPL_HD int tegroup_impl_within(int64_t i, int64_t count) { return i >= 0 && i < count; }
TEGROUP_IMPL_HD int64_t tegroup_impl_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Sums and products of non-negative numbers that stop at INT64_MAX, which then stands for "too large". */
TEGROUP_IMPL_HD int64_t tegroup_impl_add(int64_t a, int64_t b) { return a > INT64_MAX - b ? INT64_MAX : a + b; }
TEGROUP_IMPL_HD int64_t tegroup_impl_mul(int64_t a, int64_t b) {
    return a != 0 && b > INT64_MAX / a ? INT64_MAX : a * b;
}
TEGROUP_IMPL_HD int64_t tegroup_impl_align(int64_t a, int64_t alignment) {
    return a > INT64_MAX - alignment ? INT64_MAX : (a + alignment - 1) / alignment * alignment;
}

/* Largest byte count that this machine can address. */
TEGROUP_IMPL_HD int64_t tegroup_impl_max_bytes(void) {
    return (uint64_t)PTRDIFF_MAX < (uint64_t)INT64_MAX ? (int64_t)PTRDIFF_MAX : INT64_MAX - 1;
}

/* ==== [24] Rules (src/base/rules.h) ==== */

/* Record what was wrong and hand the status on. */
static inline tegroup_status tegroup_impl_fail_as(tegroup_reading reading, tegroup_error *error, tegroup_status status,
                                                  const char *field, const char *rule, int64_t expected, int64_t got) {
    if (error) {
        error->status = status;
        error->native = 0;
        error->field = field;
        error->rule = rule;
        error->expected = expected;
        error->got = got;
        error->reading = reading;
    }
    return status;
}

static inline tegroup_status tegroup_impl_fail(tegroup_error *error, tegroup_status status, const char *field,
                                               const char *rule, int64_t expected, int64_t got) {
    return tegroup_impl_fail_as(TEGROUP_READING_NUMBER, error, status, field, rule, expected, got);
}

/* One rule a line: TEGROUP_IMPL_RULE(what must hold, status, field, rule in words, expected, got). */
#define TEGROUP_IMPL_RULE_AS(reading, holds, status, field, rule, expected, got)                                       \
    do {                                                                                                               \
        if (!(holds))                                                                                                  \
            return tegroup_impl_fail_as(TEGROUP_READING_##reading, error, TEGROUP_##status, (field), (rule),           \
                                        (int64_t)(expected), (int64_t)(got));                                          \
    } while (0)
#define TEGROUP_IMPL_RULE(holds, status, field, rule, expected, got)                                                   \
    TEGROUP_IMPL_RULE_AS(NUMBER, holds, status, field, rule, expected, got)
/* An enum must be one of its values, 0 to `last`. It is reported as the int32_t that the caller's struct holds: a
 * compiler may make the type of names that are all positive unsigned, and -1 would be told as 4294967295. */
#define TEGROUP_IMPL_RULE_ENUM(value, last, field, rule)                                                               \
    TEGROUP_IMPL_RULE((uint32_t)(value) <= (uint32_t)(last), ERROR_VALUE, field, rule, last, (int32_t)(value))
/* A struct of the caller's must be of this version, or of an older one with the same major version: structs grow at
 * their end, and a function reads no further than struct_size. */
static inline int tegroup_impl_size_fits(size_t struct_size, size_t current) {
    return struct_size > sizeof struct_size && struct_size <= current && struct_size % sizeof struct_size == 0;
}
#define TEGROUP_IMPL_SIZE_RULE "must be the size of the struct, in this version or an older one"
/* A plan must be of this version and of its maker, whose mark is the magic number. */
#define TEGROUP_IMPL_RULE_PLAN(plan, number, rule)                                                                     \
    do {                                                                                                               \
        TEGROUP_IMPL_RULE((plan) != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);                      \
        TEGROUP_IMPL_RULE((plan)->struct_size == sizeof *(plan), ERROR_STRUCT_SIZE, "plan.struct_size",                \
                          "must be the size of the struct", sizeof *(plan), (plan)->struct_size);                      \
        TEGROUP_IMPL_RULE((plan)->magic == (number), ERROR_PLAN, "plan", rule, number, (plan)->magic);                 \
    } while (0)
/* A public function takes its descriptor: what an older one lacks is 0 in `taken`, with which the function then goes
 * on. */
#define TEGROUP_IMPL_TAKE(desc, taken)                                                                                 \
    do {                                                                                                               \
        TEGROUP_IMPL_RULE((desc) != NULL, ERROR_NULL_ARGUMENT, #desc, "must not be NULL", 1, 0);                       \
        TEGROUP_IMPL_RULE(tegroup_impl_size_fits((desc)->struct_size, sizeof taken), ERROR_STRUCT_SIZE, "struct_size", \
                          TEGROUP_IMPL_SIZE_RULE, sizeof taken, (desc)->struct_size);                                  \
        if ((desc)->struct_size < sizeof taken) {                                                                      \
            memset(&taken, 0, sizeof taken);                                                                           \
            memcpy(&taken, (desc), (desc)->struct_size);                                                               \
            taken.struct_size = sizeof taken;                                                                          \
            (desc) = &taken;                                                                                           \
        }                                                                                                              \
    } while (0)
#define TEGROUP_IMPL_TRY(call)                                                                                         \
    do {                                                                                                               \
        tegroup_status tegroup_impl_status = (call);                                                                   \
        if (tegroup_impl_status != TEGROUP_OK) return tegroup_impl_status;                                             \
    } while (0)

static inline int tegroup_impl_aligned(const void *pointer, size_t bytes) { return (uintptr_t)pointer % bytes == 0; }

/* Do [a, a + a_bytes) and [b, b + b_bytes) share a byte? */
static inline int tegroup_impl_overlaps(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    if (!a || !b || a_bytes <= 0 || b_bytes <= 0) return 0;
    return x < y ? y - x < (uint64_t)a_bytes : x - y < (uint64_t)b_bytes;
}

/* ==== [25] Threads (src/base/threads.h) ==== */

#if defined(_OPENMP)
#define TEGROUP_IMPL_OMP(directive) _Pragma(#directive)
#else
#define TEGROUP_IMPL_OMP(directive)
#endif

static inline tegroup_status tegroup_impl_check_threads(int32_t threads, const char *field, tegroup_error *error) {
    TEGROUP_IMPL_RULE(threads >= 0, ERROR_VALUE, field, "must not be negative", 0, threads);
    return TEGROUP_OK;
}

/* The threads that there are for a descriptor's limit; 0 = no limit. */
static inline int32_t tegroup_impl_threads(int32_t limit) {
#if defined(_OPENMP)
    int32_t threads = (int32_t)omp_get_max_threads();
#else
    int32_t threads = 1;
#endif
    return limit > 0 && limit < threads ? limit : threads;
}

/* The work of a loop is counted in steps: an element that is read, widened and used, about a nanosecond of one core.
 * Below so many steps a loop stays with its own thread. Measured with gcc 12's libgomp, two threads: a parallel region
 * costs 1 us where the other thread still spins, 10 to 15 where it sleeps, and milliseconds where another program has
 * its core; the first two are little of what half of 65 us saves. docs/lab/cpu.md has the figures. */
#define TEGROUP_IMPL_FORK_STEPS 65536.0

/* Where a thread's share of `count` begins, and that of the thread before it ends. */
TEGROUP_IMPL_HD int64_t tegroup_impl_share_begin(int64_t count, int32_t share, int32_t threads) {
    return count / threads * share + count % threads * share / threads;
}

/* How many of so many threads a loop of so many steps is worth: one, or all. A number between would cost more than it
 * saves, as libgomp ends the threads that a smaller team leaves out, and makes them again for the next one. (steps are
 * a double, which no product of extents overflows.) */
static inline int32_t tegroup_impl_team(int32_t threads, double steps) {
    return steps < TEGROUP_IMPL_FORK_STEPS ? 1 : threads;
}

/* ==== [26] Types by their bits (src/formats/dtype.h) ==== */

TEGROUP_IMPL_HD int32_t tegroup_impl_bits(tegroup_dtype dtype) {
#define TEGROUP_IMPL_CASE(name, value, bits)                                                                           \
    case TEGROUP_DTYPE_##name: return bits;
    switch (dtype) { TEGROUP_DTYPE_LIST(TEGROUP_IMPL_CASE) default : return 0; }
#undef TEGROUP_IMPL_CASE
}

/* ==== [27] Names and texts (src/core/names.h) ==== */

TEGROUP_API int32_t tegroup_version(void) { return TEGROUP_VERSION; }

TEGROUP_API const char *tegroup_status_name(tegroup_status status) {
#define TEGROUP_IMPL_CASE(name, value, text)                                                                           \
    case TEGROUP_##name: return #name;
    switch (status) { TEGROUP_STATUS_LIST(TEGROUP_IMPL_CASE) default : return "?"; }
#undef TEGROUP_IMPL_CASE
}

TEGROUP_API const char *tegroup_status_string(tegroup_status status) {
#define TEGROUP_IMPL_CASE(name, value, text)                                                                           \
    case TEGROUP_##name: return text;
    switch (status) { TEGROUP_STATUS_LIST(TEGROUP_IMPL_CASE) default : return "?"; }
#undef TEGROUP_IMPL_CASE
}

TEGROUP_API const char *tegroup_dtype_name(tegroup_dtype dtype) {
#define TEGROUP_IMPL_CASE(name, value, bits)                                                                           \
    case TEGROUP_DTYPE_##name: return #name;
    switch (dtype) { TEGROUP_DTYPE_LIST(TEGROUP_IMPL_CASE) default : return "?"; }
#undef TEGROUP_IMPL_CASE
}

TEGROUP_API int32_t tegroup_dtype_bits(tegroup_dtype dtype) { return tegroup_impl_bits(dtype); }

TEGROUP_API const char *tegroup_op_name(tegroup_op op) {
    switch (op) {
    case TEGROUP_OP_FORWARD: return "forward";
    case TEGROUP_OP_DGRAD: return "dgrad";
    case TEGROUP_OP_WGRAD: return "wgrad";
    default: return "?";
    }
}

TEGROUP_API const char *tegroup_backend_name(tegroup_backend backend) {
    switch (backend) {
    case TEGROUP_BACKEND_AUTO: return "auto";
    case TEGROUP_BACKEND_SM90: return "sm90";
    case TEGROUP_BACKEND_CUBLASLT_GROUPED: return "cublaslt_grouped";
    case TEGROUP_BACKEND_PORTABLE: return "portable";
    case TEGROUP_BACKEND_CUBLASLT_LOOP: return "cublaslt_loop";
    case TEGROUP_BACKEND_CPU: return "cpu";
    default: return "?";
    }
}

/* One number of an error as its reader knows it; a set as "F32, F16 or BF16". `text` has room for every name there
 * is. */
#define TEGROUP_IMPL_READ_CHARS 128
static inline const char *tegroup_impl_read(char text[TEGROUP_IMPL_READ_CHARS], tegroup_reading reading, int is_set,
                                            int64_t number) {
    const int dtypes = reading == TEGROUP_READING_DTYPE || reading == TEGROUP_READING_DTYPES;
    const int32_t count = dtypes ? (int32_t)TEGROUP_DTYPE_COUNT : (int32_t)TEGROUP_SCALING_COUNT;
    int32_t i, length = 0;
    if (reading == TEGROUP_READING_NUMBER || (!is_set && (number < 0 || number >= count))) {
        snprintf(text, TEGROUP_IMPL_READ_CHARS, "%lld", (long long)number);
        return text;
    }
    text[0] = 0;
    for (i = 0; i < count; i++) {
        const int64_t left = number >> i >> 1;
        if (is_set ? !(number >> i & 1) : i != number) continue;
        length += snprintf(text + length, (size_t)(TEGROUP_IMPL_READ_CHARS - length), "%s%s",
                           length == 0           ? ""
                           : is_set && left == 0 ? " or "
                                                 : ", ",
                           !dtypes  ? tegroup_scaling_info((tegroup_scaling)i)->name
                           : i == 0 ? "UNSET"
                                    : tegroup_dtype_name((tegroup_dtype)i));
    }
    return text;
}

/* "(expected I32 or I64, got F32)" after its field and rule. */
static inline int tegroup_impl_rule_text(const char *field, const char *rule, tegroup_reading reading, int64_t expected,
                                         int64_t got, const char *head, char *buffer, size_t size) {
    char wanted[TEGROUP_IMPL_READ_CHARS], came[TEGROUP_IMPL_READ_CHARS];
    const int is_set = reading == TEGROUP_READING_DTYPES || reading == TEGROUP_READING_SCALINGS;
    return snprintf(buffer, size, "%s: %s %s (expected %s, got %s)", head, field, rule,
                    tegroup_impl_read(wanted, reading, is_set, expected), tegroup_impl_read(came, reading, 0, got));
}

TEGROUP_API int tegroup_error_text(const tegroup_error *error, char *buffer, size_t size) {
    if (!error || error->status == TEGROUP_OK) return snprintf(buffer, size, "ok");
    return tegroup_impl_rule_text(error->field, error->rule, error->reading, error->expected, error->got,
                                  tegroup_status_string(error->status), buffer, size);
}

TEGROUP_API int tegroup_verdict_text(const tegroup_verdict *verdict, char *buffer, size_t size) {
    const char *name;
    char head[40];
    if (!verdict) return snprintf(buffer, size, "?");
    name = tegroup_backend_name(verdict->backend);
    if (verdict->status == TEGROUP_OK && !verdict->tile_why)
        return snprintf(buffer, size, "%-16s %s, workspace %llu bytes", name, verdict->chosen ? "CHOSEN" : "could run",
                        (unsigned long long)verdict->workspace_bytes);
    if (verdict->status == TEGROUP_OK) {
        char predicted[40] = "";
        if (verdict->predicted_us > 0)
            snprintf(predicted, sizeof predicted, " (%.0f us on an H200)", verdict->predicted_us);
        return snprintf(buffer, size, "%-16s %s, workspace %llu bytes, tile %d x %d x %d: %s%s", name,
                        verdict->chosen ? "CHOSEN" : "could run", (unsigned long long)verdict->workspace_bytes,
                        (int)verdict->tile_m, (int)verdict->tile_n, (int)verdict->tile_k, verdict->tile_why, predicted);
    }
    snprintf(head, sizeof head, "%-16s %s", name, verdict->status == TEGROUP_ERROR_NOT_BUILT ? "not built" : "refused");
    return tegroup_impl_rule_text(verdict->field, verdict->rule, verdict->reading, verdict->expected, verdict->got,
                                  head, buffer, size);
}

TEGROUP_API int tegroup_layout_text(const tegroup_layout *layout, char *buffer, size_t size) {
    int length = 0, i;
    if (!layout) return snprintf(buffer, size, "?");
    for (i = 0; i <= layout->count; i++) { /* the last line is the total */
        size_t used = (size_t)length < size ? (size_t)length : size;
        size_t room = buffer ? size - used : 0;
        char none = 0, *at = buffer ? buffer + used : &none; /* gcc -O3 warns of a NULL even where nothing is written */
        length += i == layout->count
                      ? snprintf(at, room, "%12llu bytes in all\n", (unsigned long long)layout->total_bytes)
                      : snprintf(at, room, "%12llu bytes at %12llu  %s\n", (unsigned long long)layout->items[i].bytes,
                                 (unsigned long long)layout->items[i].offset_bytes, layout->items[i].name);
    }
    return length;
}

/* ==== [28] Constructors (src/core/constructors.h) ==== */

TEGROUP_API tegroup_sizes tegroup_sizes_of(const void *counts, tegroup_dtype dtype, tegroup_space space) {
    tegroup_sizes sizes;
    memset(&sizes, 0, sizeof sizes);
    sizes.data = counts;
    sizes.encoding = TEGROUP_ENCODING_COUNTS;
    sizes.dtype = dtype;
    sizes.space = space;
    return sizes;
}

TEGROUP_API tegroup_shape tegroup_shape_of(int32_t groups, int64_t rows, int64_t cols, tegroup_sizes sizes) {
    tegroup_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.groups = groups;
    shape.rows = rows;
    shape.cols = cols;
    shape.row_sizes = sizes;
    return shape;
}

TEGROUP_API tegroup_tensor tegroup_tensor_of(tegroup_shape shape, int64_t cols, tegroup_dtype dtype, const void *data) {
    tegroup_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.shape = shape;
    tensor.shape.cols = cols;
    tensor.dtype = dtype;
    tensor.data = (void *)(uintptr_t)data;
    return tensor;
}

TEGROUP_API tegroup_tensor tegroup_tensor_uniform(int32_t groups, int64_t rows, int64_t cols, tegroup_dtype dtype,
                                                  const void *data) {
    tegroup_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.groups = groups;
    shape.rows = rows;
    return tegroup_tensor_of(shape, cols, dtype, data);
}

TEGROUP_API tegroup_matrix tegroup_matrix_of(const void *data, int64_t rows, int64_t cols, tegroup_dtype dtype) {
    tegroup_matrix matrix;
    memset(&matrix, 0, sizeof matrix);
    matrix.data = (void *)(uintptr_t)data;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.dtype = dtype;
    return matrix;
}

/* ==== [29] Conversions (src/formats/convert.h) ==== */

/* Integer arithmetic on bit patterns: the same bits on every machine and under every compiler flag. Narrowing rounds to
 * nearest, ties to even; NaN stays NaN (quiet), overflow gives infinity. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_bits_of_f32(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

TEGROUP_IMPL_HD float tegroup_impl_f32_of_bf16(uint16_t h) { return tegroup_impl_f32_of_bits((uint32_t)h << 16); }

TEGROUP_IMPL_HD uint16_t tegroup_impl_bf16_of_f32(float x) {
    uint32_t u = tegroup_impl_bits_of_f32(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

TEGROUP_IMPL_HD float tegroup_impl_f32_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu, shift;
    if (magnitude >= 0x7c00u) return tegroup_impl_f32_of_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude >= 0x0400u) return tegroup_impl_f32_of_bits(sign | ((magnitude << 13) + 0x38000000u));
    if (magnitude == 0) return tegroup_impl_f32_of_bits(sign);
    for (shift = 0; !(magnitude & 0x0400u); shift++) magnitude <<= 1; /* subnormal: normalise */
    return tegroup_impl_f32_of_bits(sign | ((113u - shift) << 23) | ((magnitude & 0x3ffu) << 13));
}

TEGROUP_IMPL_HD uint16_t tegroup_impl_f16_of_f32(float x) {
    uint32_t u = tegroup_impl_bits_of_f32(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu, shift, kept,
             rest, half;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above round to infinity */
    if (magnitude >= 0x38800000u) {                                  /* 2^-14 and above: normal           */
        magnitude -= 0x38000000u;
        return (uint16_t)(sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
    }
    if (magnitude <= 0x33000000u) return (uint16_t)sign; /* 2^-25 and below round to zero     */
    shift = 126u - (magnitude >> 23);                    /* in units of 2^-24                 */
    magnitude = (magnitude & 0x7fffffu) | 0x800000u;
    kept = magnitude >> shift;
    rest = magnitude & ((1u << shift) - 1u);
    half = 1u << (shift - 1u);
    return (uint16_t)(sign | (kept + (rest > half || (rest == half && (kept & 1u)))));
}

/* Round to nearest, or to odd, so that a second rounding to 16 bits gives what one rounding would have given. */
TEGROUP_IMPL_HD float tegroup_impl_narrow_f64(double x, int to_odd) {
    uint64_t u, magnitude, kept, rest, half;
    uint32_t sign;
    int32_t exponent, lost = 29; /* mantissa bits that a normal binary32 has no room for */
    memcpy(&u, &x, sizeof u);
    sign = (uint32_t)(u >> 32) & 0x80000000u;
    magnitude = u & 0x7fffffffffffffffull;
    exponent = (int32_t)(magnitude >> 52) - 1023 + 127; /* as binary32 would store it */
    if (magnitude >= 0x7ff0000000000000ull)             /* infinity, NaN: keep it one */
        return tegroup_impl_f32_of_bits(sign | 0x7f800000u | (uint32_t)(magnitude >> 29 & 0x7fffffu)
                                        | (magnitude << 12 ? 0x400000u : 0u));
    if (exponent >= 255) return tegroup_impl_f32_of_bits(sign | (to_odd ? 0x7f7fffffu : 0x7f800000u));
    kept = (magnitude & 0xfffffffffffffull) | (magnitude >> 52 ? 0x10000000000000ull : 0u);
    if (exponent <= 0) lost = exponent < -24 ? 54 : 30 - exponent; /* subnormal: the leading 1 is stored, too */
    rest = kept & ((1ull << lost) - 1);
    half = 1ull << (lost - 1);
    kept >>= lost;
    kept = to_odd ? kept | (rest != 0) : kept + (rest > half || (rest == half && (kept & 1)));
    /* a leading 1, and what rounding carries, go to the exponent */
    kept += (uint64_t)(tegroup_impl_max(1, exponent) - 1) << 23;
    return tegroup_impl_f32_of_bits(sign | (uint32_t)kept);
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_f64(double x) { return tegroup_impl_narrow_f64(x, 0); }
TEGROUP_IMPL_HD float tegroup_impl_f32_odd_of_f64(double x) { return tegroup_impl_narrow_f64(x, 1); }

/* Exact. Where the processor takes subnormal operands for zeros, as -ffast-math has it do, their integers are none. */
TEGROUP_IMPL_HD double tegroup_impl_f64_of_f32(float x) {
    const uint32_t u = tegroup_impl_bits_of_f32(x), magnitude = u & 0x7fffffffu;
    const double unit = 1.0 / ((double)(1ull << 50) * (double)(1ull << 50) * (double)(1ull << 49)); /* 2^-149 */
    if (magnitude == 0 || magnitude >= 0x800000u) return (double)x;
    return (double)(int32_t)magnitude * (u >> 31 ? -unit : unit);
}

/* A product and a quotient, each rounded once to nearest, subnormal ones too, whatever the flags. On the host they are
 * those of doubles: such a product is exact, and a quotient of two binary32 lies far enough from a tie, or on it. */
TEGROUP_IMPL_HD float tegroup_impl_product_f32(float a, float b) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return tegroup_impl_f32_of_f64(tegroup_impl_f64_of_f32(a) * tegroup_impl_f64_of_f32(b));
#endif
}
TEGROUP_IMPL_HD float tegroup_impl_quotient_f32(float a, float b) {
#if defined(__CUDA_ARCH__)
    float result;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    const volatile double divisor = tegroup_impl_f64_of_f32(b); /* volatile: not to be replaced by its reciprocal */
    return tegroup_impl_f32_of_f64(tegroup_impl_f64_of_f32(a) / divisor);
#endif
}

TEGROUP_IMPL_HD float tegroup_impl_inverse_f32(float x) { return tegroup_impl_quotient_f32(1.0f, x); }

/* The types of 8 and 4 bits (OCP 8-bit Floating Point 1.0, OCP Microscaling Formats 1.0). They narrow as CUDA's
 * conversions do with __NV_SATFINITE: to nearest, ties to even, and what is too large, infinity too, to the largest
 * finite value. NaN gives 0x7f in E4M3 and E5M2, and 6 in E2M1, which has none. The sign of zero is kept.
 *
 * Here a type is its mantissa bits and the exponent of its smallest normal value. Codes of magnitudes are in the order
 * of their values, so that what rounding carries goes to the next code, and one past the largest saturates. */
TEGROUP_IMPL_HD uint8_t tegroup_impl_small_of_f32(float x, int32_t mantissa_bits, int32_t exponent_min,
                                                  uint32_t largest) {
    const uint32_t magnitude = tegroup_impl_bits_of_f32(x) & 0x7fffffffu, first = (uint32_t)(127 + exponent_min);
    const uint32_t exponent = magnitude >> 23;
    uint32_t kept, lost = (uint32_t)(23 - mantissa_bits);
    if (exponent >= first) kept = magnitude - ((first - 1) << 23);
    else {
        lost += first - exponent; /* subnormal: the leading 1 is stored, too */
        if (lost > 25) return 0;
        kept = (magnitude & 0x7fffffu) | 0x800000u;
    }
    kept = (kept + ((1u << (lost - 1)) - 1) + (kept >> lost & 1u)) >> lost;
    return (uint8_t)(kept < largest ? kept : largest);
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_small(uint32_t magnitude, int32_t mantissa_bits, int32_t exponent_min) {
    const uint32_t first = (uint32_t)(127 + exponent_min);
    if (magnitude >> mantissa_bits)
        return tegroup_impl_f32_of_bits((magnitude << (23 - mantissa_bits)) + ((first - 1) << 23));
    return (float)magnitude * tegroup_impl_f32_of_bits((first - (uint32_t)mantissa_bits) << 23);
}
TEGROUP_IMPL_HD float tegroup_impl_with_sign(float magnitude, uint32_t negative) {
    return tegroup_impl_f32_of_bits(tegroup_impl_bits_of_f32(magnitude) | (negative ? 0x80000000u : 0u));
}
TEGROUP_IMPL_HD int tegroup_impl_is_nan(float x) { return (tegroup_impl_bits_of_f32(x) & 0x7fffffffu) > 0x7f800000u; }

TEGROUP_IMPL_HD float tegroup_impl_f32_of_f8e4m3(uint8_t code) {
    if ((code & 0x7fu) == 0x7fu) return tegroup_impl_f32_of_bits(0x7fffffffu);
    return tegroup_impl_with_sign(tegroup_impl_f32_of_small(code & 0x7fu, 3, -6), code & 0x80u);
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_f8e5m2(uint8_t code) { /* the upper half of a binary16 */
    return tegroup_impl_f32_of_f16((uint16_t)((uint32_t)code << 8));
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_f4e2m1(uint8_t code) { /* of the low nibble */
    return tegroup_impl_with_sign(tegroup_impl_f32_of_small(code & 7u, 1, 0), code & 8u);
}
TEGROUP_IMPL_HD float tegroup_impl_f32_of_f8e8m0(uint8_t code) {
    return tegroup_impl_f32_of_bits(code == 255 ? 0x7fffffffu : code == 0 ? 0x400000u : (uint32_t)code << 23);
}

TEGROUP_IMPL_HD uint8_t tegroup_impl_f8e4m3_of_f32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(pair) : "f"(x), "f"(0.0f));
    return (uint8_t)pair;
#else
    if (tegroup_impl_is_nan(x)) return 0x7fu;
    return (uint8_t)((tegroup_impl_bits_of_f32(x) >> 24 & 0x80u) | tegroup_impl_small_of_f32(x, 3, -6, 0x7eu));
#endif
}
TEGROUP_IMPL_HD uint8_t tegroup_impl_f8e5m2_of_f32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(pair) : "f"(x), "f"(0.0f));
    return (uint8_t)pair;
#else
    if (tegroup_impl_is_nan(x)) return 0x7fu;
    return (uint8_t)((tegroup_impl_bits_of_f32(x) >> 24 & 0x80u) | tegroup_impl_small_of_f32(x, 2, -14, 0x7bu));
#endif
}
TEGROUP_IMPL_HD uint8_t tegroup_impl_f4e2m1_of_f32(float x) { /* a nibble */
    if (tegroup_impl_is_nan(x)) return 0x7u;
    return (uint8_t)((tegroup_impl_bits_of_f32(x) >> 28 & 0x8u) | tegroup_impl_small_of_f32(x, 1, 0, 0x7u));
}

/* E8M0 has no sign, which is dropped, and no zero, which gives the smallest power. Up and down are CUDA's
 * cudaRoundPosInf and cudaRoundZero; nearest takes a tie, 1.5 times a power, up. */
typedef enum tegroup_impl_rounding { TEGROUP_IMPL_NEAREST, TEGROUP_IMPL_UP, TEGROUP_IMPL_DOWN } tegroup_impl_rounding;
TEGROUP_IMPL_HD uint8_t tegroup_impl_f8e8m0_of_f32(float x, tegroup_impl_rounding rounding) {
    const uint32_t magnitude = tegroup_impl_bits_of_f32(x) & 0x7fffffffu, mantissa = magnitude & 0x7fffffu;
    uint32_t code = magnitude >> 23;
    if (tegroup_impl_is_nan(x)) return 255u;
    if (code == 0) { /* below 2^-126: 0x400000 is 2^-127 */
        if (rounding == TEGROUP_IMPL_UP) return mantissa > 0x400000u;
        return rounding == TEGROUP_IMPL_NEAREST && mantissa >= 0x600000u;
    }
    if (rounding == TEGROUP_IMPL_UP) code += mantissa != 0;
    if (rounding == TEGROUP_IMPL_NEAREST) code += mantissa >= 0x400000u;
    return (uint8_t)(code < 254 ? code : 254);
}

/* Is it a floating-point type of at most 32 bits? A code is such a type's element, in the low bits. */
TEGROUP_IMPL_HD int tegroup_impl_has_code(tegroup_dtype dtype) {
    return dtype >= TEGROUP_DTYPE_F32 && dtype <= TEGROUP_DTYPE_F8E8M0;
}

/* E8M0 rounds to nearest. */
TEGROUP_IMPL_HD float tegroup_impl_f32_of_code(tegroup_dtype dtype, uint32_t code) {
    switch (dtype) {
    case TEGROUP_DTYPE_F32: return tegroup_impl_f32_of_bits(code);
    case TEGROUP_DTYPE_F16: return tegroup_impl_f32_of_f16((uint16_t)code);
    case TEGROUP_DTYPE_F8E4M3: return tegroup_impl_f32_of_f8e4m3((uint8_t)code);
    case TEGROUP_DTYPE_F8E5M2: return tegroup_impl_f32_of_f8e5m2((uint8_t)code);
    case TEGROUP_DTYPE_F4E2M1: return tegroup_impl_f32_of_f4e2m1((uint8_t)code);
    case TEGROUP_DTYPE_F8E8M0: return tegroup_impl_f32_of_f8e8m0((uint8_t)code);
    default: return tegroup_impl_f32_of_bf16((uint16_t)code);
    }
}
TEGROUP_IMPL_HD uint32_t tegroup_impl_code_of_f32(tegroup_dtype dtype, float x) {
    switch (dtype) {
    case TEGROUP_DTYPE_F32: return tegroup_impl_bits_of_f32(x);
    case TEGROUP_DTYPE_F16: return tegroup_impl_f16_of_f32(x);
    case TEGROUP_DTYPE_F8E4M3: return tegroup_impl_f8e4m3_of_f32(x);
    case TEGROUP_DTYPE_F8E5M2: return tegroup_impl_f8e5m2_of_f32(x);
    case TEGROUP_DTYPE_F4E2M1: return tegroup_impl_f4e2m1_of_f32(x);
    case TEGROUP_DTYPE_F8E8M0: return tegroup_impl_f8e8m0_of_f32(x, TEGROUP_IMPL_NEAREST);
    default: return tegroup_impl_bf16_of_f32(x);
    }
}

TEGROUP_IMPL_HD int tegroup_impl_is_float(tegroup_dtype dtype) {
    return dtype >= TEGROUP_DTYPE_F64 && dtype <= TEGROUP_DTYPE_BF16;
}

/* One code of a type of at most 32 bits. Of 4 bits two share a byte, and so a store of one reads the other. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_load_code(tegroup_dtype dtype, const void *data, int64_t i) {
    switch (tegroup_impl_bits(dtype)) {
    case 32: return ((const tegroup_impl_any32 *)data)[i];
    case 16: return ((const tegroup_impl_any16 *)data)[i];
    case 8: return ((const uint8_t *)data)[i];
    default: return (uint32_t)((const uint8_t *)data)[i / 2] >> (i % 2 * 4) & 0xfu;
    }
}
TEGROUP_IMPL_HD void tegroup_impl_store_code(tegroup_dtype dtype, void *data, int64_t i, uint32_t code) {
    uint8_t *const byte = (uint8_t *)data + i / 2;
    switch (tegroup_impl_bits(dtype)) {
    case 32: ((tegroup_impl_any32 *)data)[i] = code; break;
    case 16: ((tegroup_impl_any16 *)data)[i] = (uint16_t)code; break;
    case 8: ((uint8_t *)data)[i] = (uint8_t)code; break;
    default: *byte = (uint8_t)(i % 2 ? (*byte & 0xfu) | code << 4 : (*byte & 0xf0u) | (code & 0xfu)); break;
    }
}

/* One element of F64, F32, F16 or BF16. */
TEGROUP_IMPL_HD double tegroup_impl_load_float_f64(tegroup_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: return ((const double *)data)[i];
    case TEGROUP_DTYPE_F32: return tegroup_impl_f64_of_f32(((const float *)data)[i]);
    case TEGROUP_DTYPE_F16: return (double)tegroup_impl_f32_of_f16(((const tegroup_impl_any16 *)data)[i]);
    default: return tegroup_impl_f64_of_f32(tegroup_impl_f32_of_bf16(((const tegroup_impl_any16 *)data)[i]));
    }
}
TEGROUP_IMPL_HD void tegroup_impl_store_float_f64(tegroup_dtype dtype, void *data, int64_t i, double x) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: ((double *)data)[i] = x; break;
    case TEGROUP_DTYPE_F32: ((float *)data)[i] = tegroup_impl_f32_of_f64(x); break;
    case TEGROUP_DTYPE_F16:
        ((tegroup_impl_any16 *)data)[i] = tegroup_impl_f16_of_f32(tegroup_impl_f32_odd_of_f64(x));
        break;
    default: ((tegroup_impl_any16 *)data)[i] = tegroup_impl_bf16_of_f32(tegroup_impl_f32_odd_of_f64(x)); break;
    }
}
TEGROUP_IMPL_HD float tegroup_impl_load_float_f32(tegroup_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: return tegroup_impl_f32_of_f64(((const double *)data)[i]);
    case TEGROUP_DTYPE_F32: return ((const float *)data)[i];
    case TEGROUP_DTYPE_F16: return tegroup_impl_f32_of_f16(((const tegroup_impl_any16 *)data)[i]);
    default: return tegroup_impl_f32_of_bf16(((const tegroup_impl_any16 *)data)[i]);
    }
}
TEGROUP_IMPL_HD void tegroup_impl_store_float_f32(tegroup_dtype dtype, void *data, int64_t i, float x) {
    switch (dtype) {
    case TEGROUP_DTYPE_F64: ((double *)data)[i] = tegroup_impl_f64_of_f32(x); break;
    case TEGROUP_DTYPE_F32: ((float *)data)[i] = x; break;
    case TEGROUP_DTYPE_F16: ((tegroup_impl_any16 *)data)[i] = tegroup_impl_f16_of_f32(x); break;
    default: ((tegroup_impl_any16 *)data)[i] = tegroup_impl_bf16_of_f32(x); break;
    }
}

/* One element by type; of 4 bits, too, i counts elements. */
TEGROUP_IMPL_HD double tegroup_impl_load_f64(tegroup_dtype dtype, const void *data, int64_t i) {
    return tegroup_impl_is_float(dtype)
               ? tegroup_impl_load_float_f64(dtype, data, i)
               : tegroup_impl_f64_of_f32(tegroup_impl_f32_of_code(dtype, tegroup_impl_load_code(dtype, data, i)));
}
TEGROUP_IMPL_HD void tegroup_impl_store_f64(tegroup_dtype dtype, void *data, int64_t i, double x) {
    if (tegroup_impl_is_float(dtype)) tegroup_impl_store_float_f64(dtype, data, i, x);
    else tegroup_impl_store_code(dtype, data, i, tegroup_impl_code_of_f32(dtype, tegroup_impl_f32_odd_of_f64(x)));
}
TEGROUP_IMPL_HD float tegroup_impl_load_f32(tegroup_dtype dtype, const void *data, int64_t i) {
    return tegroup_impl_is_float(dtype)
               ? tegroup_impl_load_float_f32(dtype, data, i)
               : tegroup_impl_f32_of_code(dtype, tegroup_impl_load_code(dtype, data, i));
}
TEGROUP_IMPL_HD void tegroup_impl_store_f32(tegroup_dtype dtype, void *data, int64_t i, float x) {
    if (tegroup_impl_is_float(dtype)) tegroup_impl_store_float_f32(dtype, data, i, x);
    else tegroup_impl_store_code(dtype, data, i, tegroup_impl_code_of_f32(dtype, x));
}

/* Sizes, offsets, indices and maps: I32 or I64. */
TEGROUP_IMPL_HD int64_t tegroup_impl_load_int(tegroup_dtype dtype, const void *data, int64_t i) {
    return dtype == TEGROUP_DTYPE_I32 ? (int64_t)(int32_t)((const tegroup_impl_any32 *)data)[i]
                                      : (int64_t)((const tegroup_impl_any64 *)data)[i];
}

/* What is absent is not stored. */
TEGROUP_IMPL_HD void tegroup_impl_store_int(tegroup_dtype dtype, void *data, int64_t i, int64_t x) {
    if (dtype == TEGROUP_DTYPE_I32) ((tegroup_impl_any32 *)data)[i] = (uint32_t)x;
    else if (dtype == TEGROUP_DTYPE_I64) ((tegroup_impl_any64 *)data)[i] = (uint64_t)x;
}

/* ==== [30] Scale rules (src/formats/scale_rule.h) ==== */

/* The presets are read from (repository, commit, file):
 *   TE_         NVIDIA/TransformerEngine d0067d0, transformer_engine/common: recipe/recipe_common.cuh (CURRENT, BLOCK),
 *               util/ptx_arch_spec.cuh, util/ptx.cuh (MXFP8), cast/nvfp4/core_nvfp4.cuh (NVFP4)
 *   DEEPGEMM    deepseek-ai/DeepGEMM 54e2261, deep_gemm/utils/math.py
 *   DEEPSEEK    deepseek-ai/DeepSeek-V3 0623163, inference/kernel.py
 *   FBGEMM_ROW  pytorch/FBGEMM, fbgemm_gpu/experimental/gen_ai/test/quantize/quantize_test.py: fp8_row_quantize_ref
 *   OCP_MX      OCP Microscaling Formats (MX) 1.0, section 6.3 */
TEGROUP_API tegroup_scale_rule tegroup_scale_rule_of(tegroup_scale_preset preset) {
    static const tegroup_scale_rule table[TEGROUP_SCALE_PRESET_COUNT] = {
        /* method, floor, multiplier's max, of infinity, power of two, by reciprocal, divide, special is 1, NaN shows */
        {TEGROUP_SCALE_UNSET, 0, 0, 0, 0, 0, 0, 0, 0},
        {TEGROUP_SCALE_MULTIPLIER, 0, 0, 0, 0, 0, 0, 1, 0},               /* TE_CURRENT     */
        {TEGROUP_SCALE_GIVEN, 0, 0, 0, 0, 0, 0, 0, 0},                    /* TE_DELAYED     */
        {TEGROUP_SCALE_MULTIPLIER, 0, 0, 0, 1, 0, 0, 1, 0},               /* TE_BLOCK       */
        {TEGROUP_SCALE_MULTIPLIER, 0, 0, 0, 0, 0, 0, 1, 0},               /* TE_BLOCK_F32   */
        {TEGROUP_SCALE_DIVISOR, 0, 0, 0, 1, 1, 0, 0, 0},                  /* TE_MXFP8       */
        {TEGROUP_SCALE_TWO_LEVEL, 0, 0, 0, 0, 0, 0, 0, 0},                /* TE_NVFP4       */
        {TEGROUP_SCALE_DIVISOR, 1e-4f, 0, 0, 0, 0, 0, 0, 1},              /* DEEPGEMM       */
        {TEGROUP_SCALE_DIVISOR, 1e-4f, 0, 0, 1, 0, 0, 0, 1},              /* DEEPGEMM_UE8M0 */
        {TEGROUP_SCALE_DIVISOR, 0, 0, 0, 0, 0, 1, 0, 0},                  /* DEEPSEEK       */
        {TEGROUP_SCALE_MULTIPLIER, 0, 448.0f * 512.0f, 0, 0, 0, 0, 0, 1}, /* FBGEMM_ROW     */
        {TEGROUP_SCALE_EXPONENT, 0, 0, 0, 0, 0, 0, 0, 1},                 /* OCP_MX         */
    };
    return table[(uint32_t)preset < TEGROUP_SCALE_PRESET_COUNT ? preset : 0];
}

/* The largest finite value; 0 for a type that is not quantised to. */
TEGROUP_IMPL_HD float tegroup_impl_largest(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F8E4M3   ? 448.0f
           : dtype == TEGROUP_DTYPE_F8E5M2 ? 57344.0f
           : dtype == TEGROUP_DTYPE_F4E2M1 ? 6.0f
                                           : 0.0f;
}

/* The smaller of two numbers that are not negative; NaN stays. By bits, so that no flag takes a NaN for a number. */
TEGROUP_IMPL_HD float tegroup_impl_cut(float x, float limit) {
    return !tegroup_impl_is_nan(x) && tegroup_impl_bits_of_f32(x) > tegroup_impl_bits_of_f32(limit) ? limit : x;
}
#define TEGROUP_IMPL_F32_MAX tegroup_impl_f32_of_bits(0x7f7fffffu)

/* amax with one value more; the bits of magnitudes are in the order of the magnitudes, and NaN above all. There is one
 * NaN, the largest: what others a conversion makes is up to the machine. */
TEGROUP_IMPL_HD float tegroup_impl_amax(const tegroup_scale_rule *rule, float amax, float x) {
    const uint32_t magnitude = tegroup_impl_bits_of_f32(x) & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return rule->nan_shows ? tegroup_impl_f32_of_bits(0x7fffffffu) : amax;
    return magnitude > tegroup_impl_bits_of_f32(amax) ? tegroup_impl_f32_of_bits(magnitude) : amax;
}

/* TWO_LEVEL: what all blocks of a group have in common, so that the largest block scale is E4M3's largest. Its
 * reciprocal is the tensor's global_scale_inv. An amax of 0 or infinity gives 1. */
TEGROUP_IMPL_HD float tegroup_impl_scale_global(float amax) {
    const float both = tegroup_impl_largest(TEGROUP_DTYPE_F8E4M3) * tegroup_impl_largest(TEGROUP_DTYPE_F4E2M1);
    const uint32_t magnitude = tegroup_impl_bits_of_f32(amax) & 0x7fffffffu;
    if (magnitude == 0 || magnitude == 0x7f800000u) return 1.0f;
    return tegroup_impl_cut(tegroup_impl_quotient_f32(both, tegroup_impl_f32_of_bits(magnitude)), TEGROUP_IMPL_F32_MAX);
}

TEGROUP_IMPL_HD float tegroup_impl_scale_multiplier(const tegroup_scale_rule *rule, float largest, float amax) {
    float multiplier = tegroup_impl_quotient_f32(largest, amax);
    if (tegroup_impl_bits_of_f32(multiplier) == 0x7f800000u)
        multiplier = rule->multiplier_of_infinity > 0 ? rule->multiplier_of_infinity : TEGROUP_IMPL_F32_MAX;
    if (rule->multiplier_max > 0) multiplier = tegroup_impl_cut(multiplier, rule->multiplier_max);
    if (rule->power_of_two && !tegroup_impl_is_nan(multiplier))
        multiplier = tegroup_impl_f32_of_bits(tegroup_impl_bits_of_f32(multiplier) & 0x7f800000u);
    return multiplier;
}

TEGROUP_IMPL_HD float tegroup_impl_scale_divisor(const tegroup_scale_rule *rule, float largest, float amax) {
    const float scale = rule->by_reciprocal ? tegroup_impl_product_f32(amax, tegroup_impl_inverse_f32(largest))
                                            : tegroup_impl_quotient_f32(amax, largest);
    if (!rule->power_of_two) return scale;
    return tegroup_impl_f32_of_f8e8m0(tegroup_impl_f8e8m0_of_f32(scale, TEGROUP_IMPL_UP));
}

/* 2^(floor(log2(amax)) - floor(log2(largest))), within E8M0. Infinity counts as 2^128. */
TEGROUP_IMPL_HD float tegroup_impl_scale_exponent(float largest, float amax) {
    const int32_t down = (int32_t)(tegroup_impl_bits_of_f32(largest) >> 23) - 127;
    const int32_t code = (int32_t)(tegroup_impl_bits_of_f32(amax) >> 23) - down;
    if (tegroup_impl_is_nan(amax)) return amax;
    return tegroup_impl_f32_of_f8e8m0((uint8_t)(code > 0 ? code : 0));
}

/* The scale of a block, stored as `scale`. global: of TWO_LEVEL and GIVEN. Where a scale is a power of two, its
 * reciprocal and its code are exact. */
TEGROUP_IMPL_HD tegroup_block_scale tegroup_impl_scale_block(const tegroup_scale_rule *rule, tegroup_dtype data,
                                                                  tegroup_dtype scale, float amax, float global) {
    const uint32_t magnitude = tegroup_impl_bits_of_f32(amax) & 0x7fffffffu;
    const uint32_t least = tegroup_impl_bits_of_f32(rule->amax_floor), taken = magnitude < least ? least : magnitude;
    const float largest = tegroup_impl_largest(data);
    tegroup_block_scale block = {1.0f, 1.0f, 0, 0};
    amax = tegroup_impl_f32_of_bits(taken);
    switch (rule->special_is_one && (taken == 0 || taken >= 0x7f800000u) ? TEGROUP_SCALE_UNSET : rule->method) {
    case TEGROUP_SCALE_MULTIPLIER:
    case TEGROUP_SCALE_GIVEN:
        block.multiplier =
            rule->method == TEGROUP_SCALE_GIVEN ? global : tegroup_impl_scale_multiplier(rule, largest, amax);
        block.stored = tegroup_impl_inverse_f32(block.multiplier);
        break;
    case TEGROUP_SCALE_DIVISOR:
    case TEGROUP_SCALE_EXPONENT:
        block.stored = rule->method == TEGROUP_SCALE_EXPONENT ? tegroup_impl_scale_exponent(largest, amax)
                                                              : tegroup_impl_scale_divisor(rule, largest, amax);
        block.divide = rule->divide && tegroup_impl_bits_of_f32(block.stored) != 0;
        block.multiplier = tegroup_impl_bits_of_f32(block.stored) != 0 ? tegroup_impl_inverse_f32(block.stored) : 0.0f;
        break;
    case TEGROUP_SCALE_TWO_LEVEL: /* the multiplier is that of the scale as it is stored */
        block.stored = tegroup_impl_product_f32(global, tegroup_impl_inverse_f32(largest));
        block.stored = tegroup_impl_product_f32(amax, block.stored);
        block.stored = tegroup_impl_f32_of_f8e4m3(tegroup_impl_f8e4m3_of_f32(block.stored));
        block.multiplier = tegroup_impl_product_f32(block.stored, tegroup_impl_inverse_f32(global));
        block.multiplier = tegroup_impl_cut(tegroup_impl_inverse_f32(block.multiplier), TEGROUP_IMPL_F32_MAX);
        break;
    default: break;
    }
    if (tegroup_impl_is_nan(block.stored)) block.stored = tegroup_impl_f32_of_bits(0x7fffffffu); /* on both machines */
    block.bits = tegroup_impl_code_of_f32(scale, block.stored);
    block.stored = tegroup_impl_f32_of_code(scale, block.bits); /* E8M0 has no infinity */
    return block;
}

/* The code of one value of a block. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_scaled_code(tegroup_dtype data, const tegroup_block_scale *block, float x) {
    return tegroup_impl_code_of_f32(data, block->divide ? tegroup_impl_quotient_f32(x, block->stored)
                                                        : tegroup_impl_product_f32(x, block->multiplier));
}

/* Can values of this data type have scales of that type by this rule? The fields are what errors call the types. */
static inline tegroup_status tegroup_impl_check_scale_rule(const tegroup_scale_rule *rule, tegroup_dtype data,
                                                           const char *data_field, tegroup_dtype scale,
                                                           const char *scale_field, tegroup_error *error) {
    const int multiplier = rule->method == TEGROUP_SCALE_MULTIPLIER, divisor = rule->method == TEGROUP_SCALE_DIVISOR;
    const int two_level = rule->method == TEGROUP_SCALE_TWO_LEVEL;
    const uint32_t quantised = 1u << TEGROUP_DTYPE_F8E4M3 | 1u << TEGROUP_DTYPE_F8E5M2 | 1u << TEGROUP_DTYPE_F4E2M1;
    const uint32_t scales = two_level ? 1u << TEGROUP_DTYPE_F8E4M3
                            : rule->power_of_two || rule->method == TEGROUP_SCALE_EXPONENT
                                ? 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F8E8M0
                                : 1u << TEGROUP_DTYPE_F32;
#define TEGROUP_IMPL_FACTOR(name)                                                                                      \
    TEGROUP_IMPL_RULE(tegroup_impl_bits_of_f32(rule->name) < 0x7f800000u, ERROR_VALUE, "rule." #name,                  \
                      "must be finite and not negative", 0, -1)
#define TEGROUP_IMPL_SWITCH(name, taken, goes_with)                                                                    \
    TEGROUP_IMPL_RULE(rule->name == 0 || rule->name == 1, ERROR_VALUE, "rule." #name, "must be 0 or 1", 1,             \
                      rule->name);                                                                                     \
    TEGROUP_IMPL_RULE(!rule->name || (taken), ERROR_COMBINATION, "rule." #name, goes_with, 0, 1)
    TEGROUP_IMPL_RULE_ENUM(rule->method, TEGROUP_SCALE_METHOD_COUNT - 1, "rule.method",
                           "must be a tegroup_scale_method");
    TEGROUP_IMPL_RULE(rule->method != TEGROUP_SCALE_UNSET, ERROR_UNSET, "rule.method", "must be set", 1, 0);
    TEGROUP_IMPL_FACTOR(amax_floor);
    TEGROUP_IMPL_FACTOR(multiplier_max);
    TEGROUP_IMPL_FACTOR(multiplier_of_infinity);
    TEGROUP_IMPL_SWITCH(power_of_two, multiplier || divisor, "must be 0 but for MULTIPLIER and DIVISOR");
    TEGROUP_IMPL_SWITCH(by_reciprocal, divisor, "must be 0 but for DIVISOR");
    TEGROUP_IMPL_SWITCH(divide, divisor, "must be 0 but for DIVISOR");
    TEGROUP_IMPL_SWITCH(special_is_one, 1, "");
    TEGROUP_IMPL_SWITCH(nan_shows, 1, "");
#undef TEGROUP_IMPL_FACTOR
#undef TEGROUP_IMPL_SWITCH
    TEGROUP_IMPL_RULE_AS(DTYPES, (uint32_t)data < 32 && quantised >> data & 1u, ERROR_DTYPE, data_field,
                         "must be one that is quantised to", quantised, data);
    TEGROUP_IMPL_RULE_AS(DTYPES, (uint32_t)scale < 32 && scales >> scale & 1u, ERROR_DTYPE, scale_field,
                         "must be one that rule.method gives", scales, scale);
    TEGROUP_IMPL_RULE_AS(DTYPE, !two_level || data == TEGROUP_DTYPE_F4E2M1, ERROR_DTYPE, data_field,
                         "must be F4E2M1 with TWO_LEVEL", TEGROUP_DTYPE_F4E2M1, data);
    return TEGROUP_OK;
}

TEGROUP_API float tegroup_scale_amax(const tegroup_scale_rule *rule, float amax, float x) {
    return tegroup_impl_amax(rule, amax, x);
}
TEGROUP_API float tegroup_scale_global(float amax) { return tegroup_impl_scale_global(amax); }
TEGROUP_API tegroup_status tegroup_scale_block(const tegroup_scale_rule *rule, tegroup_dtype data, tegroup_dtype scale,
                                               float amax, float global, tegroup_block_scale *block,
                                               tegroup_error *error) {
    TEGROUP_IMPL_RULE(rule != NULL, ERROR_NULL_ARGUMENT, "rule", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(block != NULL, ERROR_NULL_ARGUMENT, "block", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_rule(rule, data, "data", scale, "scale", error));
    *block = tegroup_impl_scale_block(rule, data, scale, amax, global);
    return TEGROUP_OK;
}
TEGROUP_API uint32_t tegroup_scaled_code(tegroup_dtype data, const tegroup_block_scale *block, float x) {
    return tegroup_impl_scaled_code(data, block, x);
}

TEGROUP_API float tegroup_decode(tegroup_dtype dtype, uint32_t code) {
    return tegroup_impl_has_code(dtype) ? tegroup_impl_f32_of_code(dtype, code) : tegroup_impl_f32_of_bits(0x7fffffffu);
}
TEGROUP_API uint32_t tegroup_encode(tegroup_dtype dtype, float x) {
    return tegroup_impl_has_code(dtype) ? tegroup_impl_code_of_f32(dtype, x) : 0;
}

/* ==== [31] Scale layouts (src/formats/scale_layout.h) ==== */

TEGROUP_API const tegroup_scaling_facts *tegroup_scaling_info(tegroup_scaling scaling) {
#define TEGROUP_IMPL_BIT(name) (1u << TEGROUP_DTYPE_##name)
#define TEGROUP_IMPL_FP8 (TEGROUP_IMPL_BIT(F8E4M3) | TEGROUP_IMPL_BIT(F8E5M2))
#define TEGROUP_IMPL_FP4 TEGROUP_IMPL_BIT(F4E2M1)
    static const tegroup_scaling_facts table[TEGROUP_SCALING_COUNT] = {
        /* scaling, name, data types, scale type, block outer, inner, pad outer, inner, outer fastest, swizzled,
         * choice outer */
        {TEGROUP_SCALING_NONE, "none",
         TEGROUP_IMPL_BIT(F64) | TEGROUP_IMPL_BIT(F32) | TEGROUP_IMPL_BIT(F16) | TEGROUP_IMPL_BIT(BF16),
         TEGROUP_DTYPE_UNSET, 0, 0, 1, 1, 0, 0, 0},
        {TEGROUP_SCALING_TENSOR, "tensor", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F32, 0, 0, 1, 1, 0, 0, 0},
        {TEGROUP_SCALING_ROW, "row", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F32, 1, 0, 1, 1, 0, 0, 1},
        {TEGROUP_SCALING_BLOCK_1X128, "1x128", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F32, 1, 128, 4, 1, 1, 0, 1},
        {TEGROUP_SCALING_BLOCK_128X128, "128x128", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F32, 128, 128, 1, 4, 0, 0, 128},
        {TEGROUP_SCALING_MXFP8, "mxfp8", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F8E8M0, 1, 32, 128, 4, 0, 1, 1},
        {TEGROUP_SCALING_NVFP4, "nvfp4", TEGROUP_IMPL_FP4, TEGROUP_DTYPE_F8E4M3, 1, 16, 128, 4, 0, 1, 1},
        {TEGROUP_SCALING_MXFP4, "mxfp4", TEGROUP_IMPL_FP4, TEGROUP_DTYPE_F8E8M0, 1, 32, 128, 4, 0, 1, 1},
        {TEGROUP_SCALING_BLOCK_32X32, "32x32", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F32, 32, 32, 1, 1, 0, 0, 32},
        {TEGROUP_SCALING_MXFP8_32X32, "mxfp8-32x32", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F8E8M0, 1, 32, 128, 4, 0, 1, 32},
        {TEGROUP_SCALING_NVFP4_16X16, "nvfp4-16x16", TEGROUP_IMPL_FP4, TEGROUP_DTYPE_F8E4M3, 1, 16, 128, 4, 0, 1, 16},
    };
#undef TEGROUP_IMPL_FP4
#undef TEGROUP_IMPL_FP8
#undef TEGROUP_IMPL_BIT
    return (uint32_t)scaling < TEGROUP_SCALING_COUNT ? &table[scaling] : NULL;
}

/* One scale for a whole group, which a group without elements has, too. */
TEGROUP_IMPL_HD int tegroup_impl_scaled_as_one(const tegroup_scaling_facts *facts) {
    return facts->scale_dtype != TEGROUP_DTYPE_UNSET && !facts->block_outer && !facts->block_inner;
}

/* Blocks of `block` elements in `extent`; 0 = one block of all. */
TEGROUP_IMPL_HD int64_t tegroup_impl_blocks(int64_t extent, int32_t block) {
    return block > 0 ? tegroup_impl_ceil_div(extent, block) : 1;
}

/* Tiles of 128 outer x 4 inner, 512 scales each, one row of tiles after another; within one, four strips of 32 rows lie
 * side by side. (cuBLAS documentation, "Narrow precision data types usage".) */
TEGROUP_IMPL_HD int64_t tegroup_impl_swizzled(int64_t inner_extent, int64_t outer, int64_t inner) {
    const int64_t tile = outer / 128 * (inner_extent / 4) + inner / 4;
    return tile * 512 + outer % 32 * 16 + outer / 32 % 4 * 4 + inner % 4;
}

TEGROUP_API tegroup_status tegroup_scale_shape(tegroup_scaling scaling, int32_t columnwise, int64_t rows, int64_t cols,
                                               tegroup_scale_extent *extent, tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(scaling);
    tegroup_scale_extent result = {0, 0, 0};
    int64_t outer = columnwise ? cols : rows, inner = columnwise ? rows : cols;
    TEGROUP_IMPL_RULE(extent != NULL, ERROR_NULL_ARGUMENT, "extent", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE_ENUM(scaling, TEGROUP_SCALING_COUNT - 1, "scaling", "must be a tegroup_scaling");
    TEGROUP_IMPL_RULE(columnwise == 0 || columnwise == 1, ERROR_VALUE, "columnwise", "must be 0 or 1", 1, columnwise);
    TEGROUP_IMPL_RULE(rows >= 0, ERROR_VALUE, "rows", "must not be negative", 0, rows);
    TEGROUP_IMPL_RULE(cols >= 0, ERROR_VALUE, "cols", "must not be negative", 0, cols);
    if (tegroup_impl_scaled_as_one(facts) || (scaling != TEGROUP_SCALING_NONE && rows > 0 && cols > 0)) {
        int64_t bytes;
        result.outer = tegroup_impl_align(tegroup_impl_blocks(outer, facts->block_outer), facts->pad_outer);
        result.inner = tegroup_impl_align(tegroup_impl_blocks(inner, facts->block_inner), facts->pad_inner);
        bytes =
            tegroup_impl_mul(tegroup_impl_mul(result.outer, result.inner), tegroup_impl_bits(facts->scale_dtype) / 8);
        TEGROUP_IMPL_RULE(bytes <= tegroup_impl_max_bytes(), ERROR_OVERFLOW, "rows", "times cols must be addressable",
                          tegroup_impl_max_bytes(), bytes);
        result.bytes = bytes;
    }
    *extent = result;
    return TEGROUP_OK;
}

TEGROUP_API int64_t tegroup_scale_index(tegroup_scaling scaling, const tegroup_scale_extent *extent, int64_t outer,
                                        int64_t inner) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(scaling);
    if (facts && facts->swizzled) return tegroup_impl_swizzled(extent->inner, outer, inner);
    return facts && facts->outer_fastest ? inner * extent->outer + outer : outer * extent->inner + inner;
}

/* ==== [32] Layout arithmetic (src/core/layout.h) ==== */

TEGROUP_IMPL_HD void tegroup_impl_layout_begin(tegroup_layout *layout) { memset(layout, 0, sizeof *layout); }

/* Append an item. Sizes are INT64_MAX when they overflowed; the total then is SIZE_MAX and stays there. */
TEGROUP_IMPL_HD void tegroup_impl_layout_add(tegroup_layout *layout, const char *name, int64_t bytes) {
    int64_t end = tegroup_impl_align(
        tegroup_impl_add(
            (int64_t)(layout->total_bytes > (size_t)PTRDIFF_MAX ? (size_t)PTRDIFF_MAX : layout->total_bytes), bytes),
        TEGROUP_ALIGNMENT);
    tegroup_layout_item *item = &layout->items[layout->count++];
    item->name = name;
    item->offset_bytes = layout->total_bytes;
    item->bytes = bytes > tegroup_impl_max_bytes() ? SIZE_MAX : (size_t)bytes;
    layout->total_bytes = end > tegroup_impl_max_bytes() || layout->total_bytes == SIZE_MAX ? SIZE_MAX : (size_t)end;
}

static inline int tegroup_impl_layout_overflowed(const tegroup_layout *layout) {
    return layout->total_bytes == SIZE_MAX;
}

/* The address of an item: the only way in which a workspace is carved. */
static inline void *tegroup_impl_layout_at(const tegroup_layout *layout, int32_t item, void *base) {
    return (char *)base + layout->items[item].offset_bytes;
}

/* A workspace that a plan or a layout says needs `needed` bytes. */
static inline tegroup_status tegroup_impl_check_workspace(size_t needed, const char *field, const char *bytes_field,
                                                          const void *memory, size_t bytes, tegroup_error *error) {
    TEGROUP_IMPL_RULE(needed == 0 || memory != NULL, ERROR_NULL_ARGUMENT, field, "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(memory, TEGROUP_ALIGNMENT), ERROR_ALIGNMENT, field,
                      "must be 256-byte aligned", TEGROUP_ALIGNMENT, (uintptr_t)memory % TEGROUP_ALIGNMENT);
    TEGROUP_IMPL_RULE(bytes >= needed, ERROR_WORKSPACE, bytes_field, "must be at least what the plan or layout says",
                      needed, bytes);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_check_options_workspace(size_t needed, const tegroup_options *options,
                                                                  tegroup_error *error) {
    return tegroup_impl_check_workspace(needed, "options.workspace", "options.workspace_bytes", options->workspace,
                                        options->workspace_bytes, error);
}

enum { /* items of a snapshot */
       TEGROUP_IMPL_SNAPSHOT_HEADER,
       TEGROUP_IMPL_SNAPSHOT_START,
       TEGROUP_IMPL_SNAPSHOT_ROWS,
       TEGROUP_IMPL_SNAPSHOT_PREFIX,
       TEGROUP_IMPL_SNAPSHOT_ORDER,
       TEGROUP_IMPL_SNAPSHOT_COLS,
       TEGROUP_IMPL_SNAPSHOT_OFFSET
};

/* order[] is padded to a power of two, because the network that sorts it needs one. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sort_extent(int32_t groups) {
    int32_t extent = 1;
    while (extent < groups) extent *= 2;
    return extent;
}

TEGROUP_IMPL_HD void tegroup_impl_snapshot_layout(int32_t groups, int irregular, tegroup_layout *layout) {
    int64_t array = 8 * (int64_t)groups;
    tegroup_impl_layout_begin(layout);
    tegroup_impl_layout_add(layout, "header", (int64_t)sizeof(tegroup_snapshot_header));
    tegroup_impl_layout_add(layout, "start", array);
    tegroup_impl_layout_add(layout, "rows", array);
    tegroup_impl_layout_add(layout, "prefix", array + 8);
    tegroup_impl_layout_add(layout, "order", 4 * (int64_t)tegroup_impl_sort_extent(groups));
    if (irregular) {
        tegroup_impl_layout_add(layout, "cols", array);
        tegroup_impl_layout_add(layout, "offset", array);
    }
}

TEGROUP_IMPL_HD int tegroup_impl_irregular(const tegroup_shape *shape) {
    return shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET || shape->elements > 0;
}

TEGROUP_API tegroup_status tegroup_snapshot_layout(const tegroup_shape *shape, tegroup_layout *layout,
                                                   tegroup_error *error) {
    TEGROUP_IMPL_RULE(shape != NULL, ERROR_NULL_ARGUMENT, "shape", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(shape->groups >= 0 && shape->groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "shape.groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, shape->groups);
    tegroup_impl_snapshot_layout(shape->groups, tegroup_impl_irregular(shape), layout);
    return TEGROUP_OK;
}

/* Where a snapshot's parts lie; the memory itself is not looked at. */
TEGROUP_IMPL_HD tegroup_snapshot_view tegroup_impl_snapshot_view(const void *snapshot, int32_t groups, int irregular) {
    tegroup_snapshot_view view;
    tegroup_layout layout;
#define TEGROUP_IMPL_PART(type, item)                                                                                  \
    ((const type *)(const void *)((const char *)snapshot + layout.items[TEGROUP_IMPL_SNAPSHOT_##item].offset_bytes))
    memset(&view, 0, sizeof view);
    tegroup_impl_snapshot_layout(groups, irregular, &layout);
    view.header = (const tegroup_snapshot_header *)snapshot;
    view.start = TEGROUP_IMPL_PART(int64_t, START);
    view.rows = TEGROUP_IMPL_PART(int64_t, ROWS);
    view.prefix = TEGROUP_IMPL_PART(int64_t, PREFIX);
    view.order = TEGROUP_IMPL_PART(int32_t, ORDER);
    if (irregular) view.cols = TEGROUP_IMPL_PART(int64_t, COLS);
    if (irregular) view.offset = TEGROUP_IMPL_PART(int64_t, OFFSET);
#undef TEGROUP_IMPL_PART
    return view;
}

TEGROUP_API tegroup_snapshot_view tegroup_snapshot_read(const void *snapshot) {
    const tegroup_snapshot_header *header = (const tegroup_snapshot_header *)snapshot;
    tegroup_snapshot_view none;
    memset(&none, 0, sizeof none);
    return header ? tegroup_impl_snapshot_view(snapshot, header->groups, header->irregular) : none;
}

/* ==== [33] What the fields of a tensor say (src/core/tensor.h) ==== */

TEGROUP_IMPL_HD int tegroup_impl_ragged(const tegroup_shape *shape) {
    return shape->row_sizes.encoding != TEGROUP_ENCODING_UNSET;
}

TEGROUP_IMPL_HD int tegroup_impl_listed(const tegroup_tensor *t) { return t->pointers_space != TEGROUP_SPACE_UNSET; }

/* Elements between rows; 0 when packed groups of different width each have their own. */
TEGROUP_IMPL_HD int64_t tegroup_impl_ld(const tegroup_tensor *t) {
    return t->ld > 0 ? t->ld : t->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET ? 0 : t->shape.cols;
}

TEGROUP_IMPL_HD int64_t tegroup_impl_group_stride(const tegroup_tensor *t) {
    return t->group_stride > 0 ? t->group_stride : tegroup_impl_mul(t->shape.rows, tegroup_impl_ld(t));
}

/* Elements from the first to the last of a tensor's buffer (of each buffer, when it is a list). INT64_MAX: too many. */
static inline int64_t tegroup_impl_extent(const tegroup_tensor *t) {
    const tegroup_shape *shape = &t->shape;
    int64_t ld = tegroup_impl_ld(t), one;
    if (shape->rows == 0 || shape->cols == 0) return 0;
    if (shape->groups == 0 && (!tegroup_impl_ragged(shape) || tegroup_impl_listed(t))) return 0;
    if (tegroup_impl_irregular(shape) && !tegroup_impl_listed(t)) return shape->elements;
    if (ld == 0) ld = shape->cols;
    one = tegroup_impl_add(tegroup_impl_mul(shape->rows - 1, ld), shape->cols);
    if (tegroup_impl_ragged(shape) || tegroup_impl_listed(t)) return one;
    return tegroup_impl_add(tegroup_impl_mul(shape->groups - 1, tegroup_impl_group_stride(t)), one);
}

static inline int64_t tegroup_impl_extent_bytes(const tegroup_tensor *t) {
    int64_t bits = tegroup_impl_mul(tegroup_impl_extent(t), tegroup_impl_bits(t->dtype));
    return bits == INT64_MAX ? INT64_MAX : tegroup_impl_ceil_div(bits, 8);
}

/* One operand's place in one group. rows is -1 for a skipped group. */
typedef struct tegroup_impl_block {
    char *base;
    int64_t first; /* element of base where the group begins, unless its rows are gathered */
    int64_t rows, cols, ld;
    int64_t row0; /* number of its first row among all rows */
} tegroup_impl_block;

/* Without the buffer's address, which a list may have elsewhere. An operand of uniform shape has a view of NULLs. */
TEGROUP_IMPL_HD tegroup_impl_block tegroup_impl_block_of(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                         int32_t g) {
    const tegroup_shape *shape = &t->shape;
    int listed = tegroup_impl_listed(t), ragged = view && view->rows;
    tegroup_impl_block block;
    block.base = NULL;
    block.cols = ragged && view->cols ? view->cols[g] : shape->cols;
    block.ld = t->ld > 0 ? t->ld : block.cols;
    if (ragged) {
        block.rows = view->rows[g];
        block.row0 = view->start[g];
        /* Unsigned: that of a snapshot which somebody wrote over may overflow, before anybody has looked at it. */
        block.first = listed         ? 0
                      : view->offset ? view->offset[g]
                                     : (int64_t)((uint64_t)view->start[g] * (uint64_t)block.ld);
    } else {
        block.rows = shape->rows;
        block.row0 = g * shape->rows;
        block.first = listed ? 0 : g * tegroup_impl_group_stride(t);
    }
    return block;
}

TEGROUP_IMPL_HD tegroup_impl_block tegroup_impl_locate(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                       int32_t g) {
    tegroup_impl_block block = tegroup_impl_block_of(t, view, g);
    block.base = (char *)(tegroup_impl_listed(t) ? t->pointers[g] : t->data);
    return block;
}

/* Extents of a group's part of an operand. */
typedef struct tegroup_impl_sides {
    int64_t rows, cols;
} tegroup_impl_sides;

TEGROUP_IMPL_HD tegroup_impl_sides tegroup_impl_sides_of(int64_t rows, int64_t cols) {
    tegroup_impl_sides sides;
    sides.rows = rows;
    sides.cols = cols;
    return sides;
}

/* ==== [34] Where a group's scales and its copies are (src/core/scale_grid.h) ==== */

/* An extent that no tensor has. Blocks are powers of two, so that a kernel need not divide by them. */
#define TEGROUP_IMPL_BLOCK_OF_ALL ((int64_t)1 << 62)

TEGROUP_IMPL_HD int32_t tegroup_impl_shift_of(int64_t block) {
    int32_t shift = 0;
    while (block >> shift > 1) shift++;
    return shift;
}

/* The scales of one copy of one group. Indices are those of scales (of I32: of exponents, four a word). */
typedef struct tegroup_impl_scale_grid {
    int64_t base;                       /* the group's first scale in the buffer, or in its own                       */
    int64_t outer_stride, inner_stride; /* swizzled: outer_stride is the stored inner extent; packed: inner_stride is
                                           that of four blocks                                                     */
    int64_t part_stride, part_rows;     /* from a part to the next, in scales; rows of one                           */
    int64_t outer_count, inner_count;   /* blocks that hold elements, of one part                                    */
    int64_t outer_extent, inner_extent; /* those that are stored, padding included                                   */
    int64_t count;                      /* stored scales of all parts; saturates                                     */
    int64_t block_outer, block_inner;   /* elements of a block, a power of two; TEGROUP_IMPL_BLOCK_OF_ALL = all      */
    int32_t outer_shift, inner_shift;   /* their logarithms                                                          */
    int32_t pad_outer, pad_inner;       /* the extents are multiples of these                                        */
    int32_t parts, swizzled, packed, columnwise;
} tegroup_impl_scale_grid;

/* Are the scales of a copy at strides? Those of the columnwise one never are. */
TEGROUP_IMPL_HD int tegroup_impl_scales_strided(const tegroup_tensor *t, int columnwise) {
    return !columnwise && t->scale_outer_stride > 0;
}

/* The extents of a group. It has no rows where it is skipped, and where a snapshot that somebody wrote over leads out
 * of the tensor. */
TEGROUP_IMPL_HD tegroup_impl_sides tegroup_impl_group_sides(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                            int32_t g) {
    const tegroup_impl_block block = tegroup_impl_block_of(t, view, g);
    const int ragged = view && view->rows,
              there = !ragged
                      || (tegroup_impl_within(block.rows, t->shape.rows + 1)
                          && tegroup_impl_within(block.row0, t->shape.rows - block.rows + 1)
                          && tegroup_impl_within(block.cols, t->shape.cols + 1));
    return tegroup_impl_sides_of(there ? block.rows : 0, there ? block.cols : 0);
}

/* Of a group of these extents, as if it were the first. facts: of t's scaling. */
TEGROUP_IMPL_HD tegroup_impl_scale_grid tegroup_impl_scale_grid_alone(const tegroup_tensor *t,
                                                                      const tegroup_scaling_facts *facts,
                                                                      tegroup_impl_sides sides, int columnwise) {
    const int strided = tegroup_impl_scales_strided(t, columnwise), packed = t->scale_dtype == TEGROUP_DTYPE_I32;
    const int64_t word = packed ? 4 : 1;
    tegroup_impl_scale_grid grid;
    memset(&grid, 0, sizeof grid);
    grid.columnwise = columnwise;
    grid.packed = packed;
    grid.swizzled = facts->swizzled && !strided && !packed;
    grid.parts = t->scale_parts > 1 ? t->scale_parts : 1;
    grid.part_rows = sides.rows / grid.parts;
    grid.block_outer = facts->block_outer > 0 ? facts->block_outer : TEGROUP_IMPL_BLOCK_OF_ALL;
    grid.block_inner = facts->block_inner > 0 ? facts->block_inner : TEGROUP_IMPL_BLOCK_OF_ALL;
    grid.outer_shift = tegroup_impl_shift_of(grid.block_outer);
    grid.inner_shift = tegroup_impl_shift_of(grid.block_inner);
    grid.pad_outer = strided ? 1 : packed ? 4 : facts->pad_outer;
    grid.pad_inner = packed ? 4 : strided ? 1 : facts->pad_inner;
    if ((sides.rows > 0 && sides.cols > 0) || tegroup_impl_scaled_as_one(facts)) {
        grid.outer_count = tegroup_impl_blocks(columnwise ? sides.cols : grid.part_rows, facts->block_outer);
        grid.inner_count = tegroup_impl_blocks(columnwise ? grid.part_rows : sides.cols, facts->block_inner);
    }
    grid.outer_extent = tegroup_impl_align(grid.outer_count, grid.pad_outer);
    grid.inner_extent = tegroup_impl_align(grid.inner_count, grid.pad_inner);
    grid.part_stride = tegroup_impl_mul(grid.outer_extent, grid.inner_extent);
    grid.count = tegroup_impl_mul(grid.part_stride, grid.parts);
    if (strided) {
        grid.outer_stride = tegroup_impl_mul(t->scale_outer_stride, word);
        grid.inner_stride = tegroup_impl_mul(t->scale_inner_stride, word);
        grid.part_stride = tegroup_impl_mul(grid.outer_count, grid.outer_stride);
    } else if (packed || facts->outer_fastest) {
        grid.outer_stride = word;
        grid.inner_stride = tegroup_impl_mul(grid.outer_extent, word);
    } else {
        grid.outer_stride = grid.inner_extent;
        grid.inner_stride = 1;
    }
    return grid;
}

/* Of group g, of whose buffer the groups before take `before` scales: a loop that walks the groups in order begins with
 * 0 and adds count. */
TEGROUP_IMPL_HD tegroup_impl_scale_grid tegroup_impl_scale_grid_after(const tegroup_tensor *t,
                                                                      const tegroup_scaling_facts *facts,
                                                                      const tegroup_snapshot_view *view, int32_t g,
                                                                      int columnwise, int64_t before) {
    tegroup_impl_scale_grid grid =
        tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_group_sides(t, view, g), columnwise);
    if (tegroup_impl_listed(t)) return grid;
    if (!tegroup_impl_scales_strided(t, columnwise)) grid.base = before;
    else if (grid.outer_count == 0) return grid;
    else if (view && view->rows) grid.base = view->start[g] * grid.outer_stride;
    else grid.base = g * grid.parts * grid.part_stride;
    return grid;
}

/* Scales that the groups before g take in the default packing. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scales_before(const tegroup_tensor *t, const tegroup_scaling_facts *facts,
                                                   const tegroup_snapshot_view *view, int32_t g, int columnwise) {
    int64_t before = 0;
    int32_t h;
    if (!view || !view->rows)
        return g * tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_group_sides(t, view, g), columnwise).count;
    for (h = 0; h < g; h++)
        before += tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_group_sides(t, view, h), columnwise).count;
    return before;
}

TEGROUP_IMPL_HD tegroup_impl_scale_grid tegroup_impl_scale_grid_of(const tegroup_tensor *t,
                                                                   const tegroup_scaling_facts *facts,
                                                                   const tegroup_snapshot_view *view, int32_t g,
                                                                   int columnwise) {
    const int alone = tegroup_impl_listed(t) || tegroup_impl_scales_strided(t, columnwise);
    return tegroup_impl_scale_grid_after(t, facts, view, g, columnwise,
                                         alone ? 0 : tegroup_impl_scales_before(t, facts, view, g, columnwise));
}

/* The index of the scale of one block of one part. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_of_block(const tegroup_impl_scale_grid *grid, int64_t part, int64_t outer,
                                                    int64_t inner) {
    const int64_t first = grid->base + part * grid->part_stride;
    if (grid->swizzled) return first + tegroup_impl_swizzled(grid->outer_stride, outer, inner);
    if (grid->packed) return first + outer * grid->outer_stride + inner / 4 * grid->inner_stride + inner % 4;
    return first + outer * grid->outer_stride + inner * grid->inner_stride;
}

/* The index of the scale of one element: its row and column, or in the columnwise copy its column and row. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_at(const tegroup_impl_scale_grid *grid, int64_t outer, int64_t inner) {
    int64_t part = 0;
    if (grid->parts > 1) {
        int64_t *row = grid->columnwise ? &inner : &outer;
        part = *row / grid->part_rows;
        *row -= part * grid->part_rows;
    }
    return tegroup_impl_scale_of_block(grid, part, outer >> grid->outer_shift, inner >> grid->inner_shift);
}

/* Elements, from this one on along the outer or the inner index, that share its scale. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_shared(const tegroup_impl_scale_grid *grid, int64_t at, int along_outer) {
    const int64_t block = along_outer ? grid->block_outer : grid->block_inner;
    if (grid->parts == 1 || along_outer == grid->columnwise) return block - (at & (block - 1));
    at %= grid->part_rows;
    return tegroup_impl_min(block - (at & (block - 1)), grid->part_rows - at);
}

/* Scales from the buffer's first to the end of those of a group; of the default packing with its padding. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_end(const tegroup_impl_scale_grid *grid, int strided) {
    if (!strided) return tegroup_impl_add(grid->base, grid->count);
    if (grid->count == 0) return grid->base;
    return tegroup_impl_scale_of_block(grid, grid->parts - 1, grid->outer_extent - 1, grid->inner_extent - 1) + 1;
}

/* The most blocks of `extent` rows that groups of together `rows` rows have: the first row of a group begins one. */
static inline int64_t tegroup_impl_most_blocks(int32_t groups, int64_t rows, int64_t extent) {
    const int64_t begun = tegroup_impl_min(groups, rows);
    return groups > 0 ? begun + (rows - begun) / extent : 0;
}

/* Outer blocks that lie at strides in one buffer. grid: of a group at capacity. */
static inline int64_t tegroup_impl_scale_lines(const tegroup_tensor *t, const tegroup_impl_scale_grid *grid) {
    const int64_t of_group = tegroup_impl_mul(grid->outer_count, grid->parts);
    if (tegroup_impl_listed(t)) return t->shape.groups > 0 ? of_group : 0;
    return tegroup_impl_ragged(&t->shape) ? of_group : tegroup_impl_mul(t->shape.groups, of_group);
}

/* Scales from the first to the last of a copy's buffer (of each buffer of a list), whatever the sizes of ragged groups;
 * INT64_MAX: too many. Ragged columns count as the most that a group may have. */
static inline int64_t tegroup_impl_scale_capacity(const tegroup_tensor *t, int columnwise) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const int ragged = tegroup_impl_ragged(&t->shape);
    const int64_t groups = t->shape.groups;
    tegroup_impl_scale_grid grid;
    int64_t word, unit;
    if (t->scaling == TEGROUP_SCALING_NONE) return 0;
    grid = tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_sides_of(t->shape.rows, t->shape.cols), columnwise);
    if (tegroup_impl_scales_strided(t, columnwise)) {
        const int64_t lines = tegroup_impl_scale_lines(t, &grid);
        if (lines == 0) return 0;
        word = grid.packed ? 4 : 1;
        return tegroup_impl_add(
            tegroup_impl_mul(lines - 1, grid.outer_stride),
            tegroup_impl_add(tegroup_impl_mul(grid.inner_extent / word - 1, grid.inner_stride), word));
    }
    if (tegroup_impl_listed(t)) return groups > 0 ? grid.count : 0;
    if (!ragged || tegroup_impl_scaled_as_one(facts)) return tegroup_impl_mul(groups, grid.count);
    unit = columnwise ? tegroup_impl_mul(grid.block_inner, grid.pad_inner)
                      : tegroup_impl_mul(grid.block_outer, grid.pad_outer);
    return tegroup_impl_mul(tegroup_impl_mul(tegroup_impl_most_blocks(t->shape.groups, t->shape.rows, unit),
                                             columnwise ? grid.pad_inner : grid.pad_outer),
                            columnwise ? grid.outer_extent : grid.inner_extent);
}

/* The type in which a tensor's scales are stored. */
TEGROUP_IMPL_HD tegroup_dtype tegroup_impl_scale_dtype(const tegroup_tensor *t, const tegroup_scaling_facts *facts) {
    return t->scale_dtype != TEGROUP_DTYPE_UNSET ? t->scale_dtype : facts->scale_dtype;
}

/* Bytes of what grids count: of I32 an exponent is one. */
TEGROUP_IMPL_HD int64_t tegroup_impl_scale_element(tegroup_dtype scale_dtype) {
    return scale_dtype == TEGROUP_DTYPE_I32 ? 1 : tegroup_impl_bits(scale_dtype) / 8;
}

static inline int64_t tegroup_impl_scale_bytes(const tegroup_tensor *t, int columnwise) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    return tegroup_impl_mul(tegroup_impl_scale_capacity(t, columnwise),
                            tegroup_impl_scale_element(tegroup_impl_scale_dtype(t, facts)));
}

/* Where a group lies in one copy: its element (row, col) is at first + row * row_stride + col * col_stride of the
 * copy's buffer. */
typedef struct tegroup_impl_elements {
    int64_t first, row_stride, col_stride;
} tegroup_impl_elements;

/* Elements of a group in a transposed copy. */
TEGROUP_IMPL_HD int64_t tegroup_impl_transposed_count(tegroup_impl_sides sides) {
    return tegroup_impl_mul(tegroup_impl_align(sides.rows, TEGROUP_TRANSPOSED_ROWS), sides.cols);
}

TEGROUP_IMPL_HD int tegroup_impl_transposed(const tegroup_tensor *t, int columnwise) {
    return columnwise && t->columnwise_order == TEGROUP_COLUMNWISE_TRANSPOSED;
}

/* Elements that the groups before g take in the transposed copy. */
TEGROUP_IMPL_HD int64_t tegroup_impl_transposed_before(const tegroup_tensor *t, const tegroup_snapshot_view *view,
                                                       int32_t g) {
    int64_t before = 0;
    int32_t h;
    if (!view || !view->rows) return g * tegroup_impl_transposed_count(tegroup_impl_group_sides(t, view, g));
    for (h = 0; h < g; h++) before += tegroup_impl_transposed_count(tegroup_impl_group_sides(t, view, h));
    return before;
}

/* Of group g, of whose transposed copy the groups before take `before` elements (not read for the other copies). */
TEGROUP_IMPL_HD tegroup_impl_elements tegroup_impl_elements_after(const tegroup_tensor *t,
                                                                  const tegroup_snapshot_view *view, int32_t g,
                                                                  int columnwise, int64_t before) {
    const tegroup_impl_block block = tegroup_impl_block_of(t, view, g);
    tegroup_impl_elements at;
    if (tegroup_impl_transposed(t, columnwise)) {
        at.first = tegroup_impl_listed(t) ? 0 : before;
        at.row_stride = 1;
        at.col_stride = tegroup_impl_align(tegroup_impl_group_sides(t, view, g).rows, TEGROUP_TRANSPOSED_ROWS);
    } else {
        at.first = block.first;
        at.row_stride = block.ld;
        at.col_stride = 1;
    }
    return at;
}

TEGROUP_IMPL_HD tegroup_impl_elements tegroup_impl_elements_of(const tegroup_tensor *t,
                                                               const tegroup_snapshot_view *view, int32_t g,
                                                               int columnwise) {
    const int summed = tegroup_impl_transposed(t, columnwise) && !tegroup_impl_listed(t);
    return tegroup_impl_elements_after(t, view, g, columnwise, summed ? tegroup_impl_transposed_before(t, view, g) : 0);
}

/* Elements of the transposed copy's buffer (of each buffer of a list), whatever the sizes of ragged groups. */
static inline int64_t tegroup_impl_transposed_capacity(const tegroup_tensor *t) {
    const tegroup_shape *shape = &t->shape;
    const int64_t group = tegroup_impl_transposed_count(tegroup_impl_sides_of(shape->rows, shape->cols));
    if (tegroup_impl_listed(t)) return shape->groups > 0 ? group : 0;
    if (!tegroup_impl_ragged(shape)) return tegroup_impl_mul(shape->groups, group);
    return tegroup_impl_mul(
        tegroup_impl_mul(tegroup_impl_most_blocks(shape->groups, shape->rows, TEGROUP_TRANSPOSED_ROWS),
                         TEGROUP_TRANSPOSED_ROWS),
        shape->cols);
}

/* Bytes of a copy's elements. */
static inline int64_t tegroup_impl_copy_bytes(const tegroup_tensor *t, int columnwise) {
    int64_t bits;
    if (!tegroup_impl_transposed(t, columnwise)) return tegroup_impl_extent_bytes(t);
    bits = tegroup_impl_mul(tegroup_impl_transposed_capacity(t), tegroup_impl_bits(t->dtype));
    return bits == INT64_MAX ? INT64_MAX : tegroup_impl_ceil_div(bits, 8);
}

/* ==== [35] Checks of tensors and matrices (src/core/checks.h) ==== */

/* The operands of a GEMM, as arrays of them go. */
typedef enum tegroup_impl_operand {
    TEGROUP_IMPL_A,
    TEGROUP_IMPL_B,
    TEGROUP_IMPL_C,
    TEGROUP_IMPL_D,
    TEGROUP_IMPL_BIAS,
    TEGROUP_IMPL_OPERANDS
} tegroup_impl_operand;

/* The members of a tensor called `name` that rules are about, by their paths. */
/* clang-format off */
#define TEGROUP_IMPL_MEMBERS(X, name)                                                                              \
    X(DTYPE, name ".dtype") X(SCALING, name ".scaling") X(GROUPS, name ".shape.groups")                            \
    X(ROWS, name ".shape.rows") X(COLS, name ".shape.cols") X(ELEMENTS, name ".shape.elements")                    \
    X(OFFSETS, name ".shape.offsets")                                                                              \
    X(ROW_SIZES, name ".shape.row_sizes.encoding") X(COL_SIZES, name ".shape.col_sizes.encoding")                  \
    X(SIZES_SPACE, name ".shape.row_sizes.space") X(SNAPSHOT, name ".shape.snapshot") X(LD, name ".ld")            \
    X(GROUP_STRIDE, name ".group_stride") X(DATA, name ".data") X(POINTERS, name ".pointers")                      \
    X(SCALE_DTYPE, name ".scale_dtype") X(SCALE_OUTER_STRIDE, name ".scale_outer_stride")                          \
    X(SCALE_INNER_STRIDE, name ".scale_inner_stride") X(SCALE_PARTS, name ".scale_parts")                          \
    X(COLUMNWISE_ORDER, name ".columnwise_order") X(GLOBAL_SCALE_INV, name ".global_scale_inv")                    \
    X(COLUMNWISE_DATA, name ".columnwise_data") X(COLUMNWISE_POINTERS, name ".columnwise_pointers")                \
    X(SCALE_INV, name ".scale_inv") X(SCALE_POINTERS, name ".scale_pointers")                                      \
    X(COLUMNWISE_SCALE_INV, name ".columnwise_scale_inv")                                                          \
    X(COLUMNWISE_SCALE_POINTERS, name ".columnwise_scale_pointers")                                                \
    X(POINTERS_SPACE, name ".pointers_space") X(GATHER_ROWS, "gather_" name ".rows")                               \
    X(GATHER_SLOTS, "gather_" name ".slots") X(SLOT_OF_ROW, "gather_" name ".slot_of_row")
/* clang-format on */

#define TEGROUP_IMPL_ENUMERATE(member, path) TEGROUP_IMPL_MEMBER_##member,
typedef enum tegroup_impl_member {
    TEGROUP_IMPL_MEMBERS(TEGROUP_IMPL_ENUMERATE, "") TEGROUP_IMPL_MEMBER_COUNT
} tegroup_impl_member;
#undef TEGROUP_IMPL_ENUMERATE

/* What errors call a tensor, in the words of the call that the caller made: a product's a is a layer's input. */
typedef struct tegroup_impl_name {
    const char *name;
    const char *members[TEGROUP_IMPL_MEMBER_COUNT];
    /* rules about another tensor that name this one */
    const char *apart, *groups, *rows, *cols, *dtype, *ragged;
} tegroup_impl_name;

#define TEGROUP_IMPL_PATH_ONLY(member, path) path,
#define TEGROUP_IMPL_NAME(name)                                                                                        \
    {                                                                                                                  \
        name, {TEGROUP_IMPL_MEMBERS(TEGROUP_IMPL_PATH_ONLY, name)}, "must not overlap " name,                          \
            "must equal " name ".shape.groups", "must equal " name ".shape.rows", "must equal " name ".shape.cols",    \
            "must equal " name ".dtype (FP8: either kind; F32 goes with weights of F16 and BF16, too)",                \
            "must be set just when that of " name " is"                                                                \
    }

#define TEGROUP_IMPL_PATHS(name)                                                                                       \
    { TEGROUP_IMPL_MEMBERS(TEGROUP_IMPL_PATH_ONLY, name) }

/* Every function that has rules of one tensor is given its `name`. */
#define TEGROUP_IMPL_PATH(member) (name->members[TEGROUP_IMPL_MEMBER_##member])

/* The names of a product's operands, and of its tail. */
typedef struct tegroup_impl_names {
    const tegroup_impl_name *operand[TEGROUP_IMPL_OPERANDS];
    const char *tail;
} tegroup_impl_names;
#define TEGROUP_IMPL_OPERAND_PATH(which, member)                                                                       \
    (names->operand[TEGROUP_IMPL_##which]->members[TEGROUP_IMPL_MEMBER_##member])

/* In the words of tegroup_gemm. */
static inline const tegroup_impl_names *tegroup_impl_gemm_names(void) {
    static const tegroup_impl_name named[TEGROUP_IMPL_OPERANDS] = {TEGROUP_IMPL_NAME("a"), TEGROUP_IMPL_NAME("b"),
                                                                   TEGROUP_IMPL_NAME("c"), TEGROUP_IMPL_NAME("d"),
                                                                   TEGROUP_IMPL_NAME("bias")};
    static const tegroup_impl_names names = {{&named[0], &named[1], &named[2], &named[3], &named[4]}, "tail"};
    return &names;
}

/* An operand as it lies in memory: of a gathered one, all rows that it is gathered from. */
static inline tegroup_tensor tegroup_impl_stored(const tegroup_tensor *t, const tegroup_gather *gather) {
    tegroup_tensor stored = *t;
    if (gather->rows > 0 && t->shape.rows > 0) stored.shape.rows = gather->rows;
    return stored;
}

/* One buffer or a list: not both, and what bounds the one is not said of the other. */
static inline tegroup_status tegroup_impl_check_list(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                     tegroup_error *error) {
    const tegroup_shape *shape = &t->shape;
    if (!tegroup_impl_listed(t)) {
        TEGROUP_IMPL_RULE(!t->pointers, ERROR_UNSET, TEGROUP_IMPL_PATH(POINTERS_SPACE), "must be set with pointers",
                          TEGROUP_SPACE_HOST, 0);
        TEGROUP_IMPL_RULE(shape->elements > 0 || shape->col_sizes.encoding == TEGROUP_ENCODING_UNSET || shape->rows == 0
                              || shape->cols == 0 || shape->row_sizes.space == TEGROUP_SPACE_HOST,
                          ERROR_VALUE, TEGROUP_IMPL_PATH(ELEMENTS),
                          "must be what the buffer holds: with sizes on the device nothing else bounds col_sizes", 1,
                          0);
        return TEGROUP_OK;
    }
    TEGROUP_IMPL_RULE(!t->data, ERROR_COMBINATION, TEGROUP_IMPL_PATH(DATA), "does not go with pointers_space", 0, 1);
    TEGROUP_IMPL_RULE(shape->elements == 0, ERROR_COMBINATION, TEGROUP_IMPL_PATH(ELEMENTS),
                      "must be 0 with pointers_space: each of the list's buffers holds its group", 0, shape->elements);
    TEGROUP_IMPL_RULE(!shape->offsets, ERROR_COMBINATION, TEGROUP_IMPL_PATH(OFFSETS),
                      "does not go with pointers_space: each of the list's buffers begins with its group", 0, 1);
    return TEGROUP_OK;
}

/* The copies and scales of an operand are buffers or lists, as its data are. */
static inline tegroup_status tegroup_impl_check_copy_lists(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                           tegroup_error *error) {
    const int listed = tegroup_impl_listed(t);
    if (t->scaling == TEGROUP_SCALING_NONE) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(listed || (!t->columnwise_pointers && !t->scale_pointers && !t->columnwise_scale_pointers),
                      ERROR_UNSET, TEGROUP_IMPL_PATH(POINTERS_SPACE), "must be set with pointers", TEGROUP_SPACE_HOST,
                      0);
    TEGROUP_IMPL_RULE(!listed || !t->columnwise_data, ERROR_COMBINATION, TEGROUP_IMPL_PATH(COLUMNWISE_DATA),
                      "does not go with pointers_space", 0, 1);
    TEGROUP_IMPL_RULE(!listed || !t->scale_inv, ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALE_INV),
                      "does not go with pointers_space", 0, 1);
    TEGROUP_IMPL_RULE(!listed || !t->columnwise_scale_inv, ERROR_COMBINATION, TEGROUP_IMPL_PATH(COLUMNWISE_SCALE_INV),
                      "does not go with pointers_space", 0, 1);
    return TEGROUP_OK;
}

/* Types that the scales of a scaling may be stored in, as a bit set. */
static inline uint32_t tegroup_impl_scale_dtypes(const tegroup_scaling_facts *facts) {
    uint32_t dtypes = 1u << facts->scale_dtype;
    if (facts->scale_dtype == TEGROUP_DTYPE_F32) dtypes |= 1u << TEGROUP_DTYPE_BF16 | 1u << TEGROUP_DTYPE_F8E8M0;
    if (facts->scale_dtype != TEGROUP_DTYPE_F8E4M3 && facts->block_outer == 1 && facts->block_inner > 0)
        dtypes |= 1u << TEGROUP_DTYPE_I32;
    return dtypes;
}

/* Scales at strides: each has a place of its own. */
static inline tegroup_status tegroup_impl_check_scale_strides(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                              tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const int64_t outer = t->scale_outer_stride, inner = t->scale_inner_stride;
    const int ragged = tegroup_impl_ragged(&t->shape);
    tegroup_impl_scale_grid grid;
    int64_t lines, blocks;
    TEGROUP_IMPL_RULE(outer >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(SCALE_OUTER_STRIDE), "must not be negative", 0, outer);
    TEGROUP_IMPL_RULE(inner >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(SCALE_INNER_STRIDE), "must not be negative", 0, inner);
    TEGROUP_IMPL_RULE((outer > 0) == (inner > 0), ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALE_INNER_STRIDE),
                      "must be set just when scale_outer_stride is", outer > 0, inner);
    if (outer == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(facts->block_outer > 0, ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALE_OUTER_STRIDE),
                      "must be 0 where no block of rows has scales of its own", 0, outer);
    TEGROUP_IMPL_RULE(!ragged || facts->block_outer == 1, ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALE_OUTER_STRIDE),
                      "must be 0 where rows are ragged and a scale covers several of them", 0, outer);
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&t->shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(SCALE_OUTER_STRIDE),
                      "does not go with col_sizes or elements", 0, outer);
    grid = tegroup_impl_scale_grid_alone(t, facts, tegroup_impl_sides_of(t->shape.rows, t->shape.cols), 0);
    lines = tegroup_impl_scale_lines(t, &grid);
    blocks = grid.inner_extent / (grid.packed ? 4 : 1);
    TEGROUP_IMPL_RULE(lines < 2 || blocks < 2 || tegroup_impl_mul(blocks - 1, inner) < outer
                          || tegroup_impl_mul(lines - 1, outer) < inner,
                      ERROR_LAYOUT, TEGROUP_IMPL_PATH(SCALE_INNER_STRIDE),
                      "must keep scales apart: at least the outer blocks times scale_outer_stride, or its part",
                      tegroup_impl_add(tegroup_impl_mul(lines - 1, outer), 1), inner);
    return TEGROUP_OK;
}

/* Two elements a byte: a row begins with one. */
static inline tegroup_status tegroup_impl_check_nibbles(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                        tegroup_error *error) {
    const int64_t ld = tegroup_impl_ld(t), stride = tegroup_impl_group_stride(t);
    if (tegroup_impl_bits(t->dtype) >= 8) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&t->shape), ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(COL_SIZES),
                      "does not go with F4E2M1: a group might begin within a byte", TEGROUP_ENCODING_UNSET,
                      t->shape.col_sizes.encoding);
    TEGROUP_IMPL_RULE(ld % 2 == 0, ERROR_LAYOUT, TEGROUP_IMPL_PATH(LD),
                      "must be even, or cols where it is 0: a row of F4E2M1 begins with a byte", ld + 1, ld);
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape) || stride % 2 == 0, ERROR_LAYOUT, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                      "must be even: a group of F4E2M1 begins with a byte", stride + 1, stride);
    return TEGROUP_OK;
}

/* What of a tensor's fields belongs to its scaling. */
static inline tegroup_status tegroup_impl_check_scales(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                       tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const int none = t->scaling == TEGROUP_SCALING_NONE;
    int copy;
    TEGROUP_IMPL_RULE_ENUM(t->scale_dtype, TEGROUP_DTYPE_COUNT - 1, TEGROUP_IMPL_PATH(SCALE_DTYPE),
                           "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPE, !none || t->scale_dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                         TEGROUP_IMPL_PATH(SCALE_DTYPE), "does not go without a scaling", TEGROUP_DTYPE_UNSET,
                         t->scale_dtype);
    TEGROUP_IMPL_RULE_AS(
        DTYPES, t->scale_dtype == TEGROUP_DTYPE_UNSET || tegroup_impl_scale_dtypes(facts) >> t->scale_dtype & 1u,
        ERROR_DTYPE, TEGROUP_IMPL_PATH(SCALE_DTYPE), "must be unset or one that its scaling takes",
        tegroup_impl_scale_dtypes(facts), t->scale_dtype);
    TEGROUP_IMPL_RULE(t->scale_parts >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(SCALE_PARTS), "must not be negative", 0,
                      t->scale_parts);
    TEGROUP_IMPL_RULE(t->scale_parts <= 1 || !(none || tegroup_impl_ragged(&t->shape)), ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(SCALE_PARTS), "goes with a scaling and uniform rows alone", 0, t->scale_parts);
    TEGROUP_IMPL_RULE(t->scale_parts <= 1 || t->shape.rows % t->scale_parts == 0, ERROR_LAYOUT,
                      TEGROUP_IMPL_PATH(SCALE_PARTS), "must divide shape.rows", t->shape.rows, t->scale_parts);
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_strides(t, name, error));
    TEGROUP_IMPL_RULE_ENUM(t->columnwise_order, TEGROUP_COLUMNWISE_TRANSPOSED, TEGROUP_IMPL_PATH(COLUMNWISE_ORDER),
                           "must be a tegroup_columnwise_order");
    TEGROUP_IMPL_RULE(!none || t->columnwise_order == TEGROUP_COLUMNWISE_AS_DATA, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(COLUMNWISE_ORDER), "does not go without a scaling", TEGROUP_COLUMNWISE_AS_DATA,
                      t->columnwise_order);
    TEGROUP_IMPL_RULE(!t->global_scale_inv || facts->scale_dtype == TEGROUP_DTYPE_F8E4M3, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(GLOBAL_SCALE_INV), "goes with scales of F8E4M3 alone", 0, 1);
    if (none) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_nibbles(t, name, error));
    for (copy = 0; copy < 2; copy++) {
        TEGROUP_IMPL_RULE(tegroup_impl_scale_bytes(t, copy) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW,
                          TEGROUP_IMPL_PATH(SCALING), "must have scales that are addressable", tegroup_impl_max_bytes(),
                          tegroup_impl_scale_bytes(t, copy));
        TEGROUP_IMPL_RULE(tegroup_impl_copy_bytes(t, copy) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW,
                          TEGROUP_IMPL_PATH(ROWS), "times cols must be addressable", tegroup_impl_max_bytes(),
                          tegroup_impl_copy_bytes(t, copy));
    }
    return TEGROUP_OK;
}

/* The rules of one tensor by itself, except those of its data pointers. */
static inline tegroup_status tegroup_impl_check_tensor(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                       tegroup_error *error) {
    const tegroup_shape *shape = &t->shape;
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    int ragged = tegroup_impl_ragged(shape), ragged_cols = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    TEGROUP_IMPL_RULE_AS(DTYPE, t->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, TEGROUP_IMPL_PATH(DTYPE), "must be set",
                         TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE_ENUM(t->dtype, TEGROUP_DTYPE_COUNT - 1, TEGROUP_IMPL_PATH(DTYPE), "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_ENUM(t->scaling, TEGROUP_SCALING_COUNT - 1, TEGROUP_IMPL_PATH(SCALING),
                           "must be a tegroup_scaling");
    TEGROUP_IMPL_RULE_AS(DTYPES, facts->data_dtypes >> t->dtype & 1u, ERROR_DTYPE, TEGROUP_IMPL_PATH(DTYPE),
                         "must be one that its scaling carries", facts->data_dtypes, t->dtype);
    TEGROUP_IMPL_RULE(shape->groups >= 0 && shape->groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, TEGROUP_IMPL_PATH(GROUPS),
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, shape->groups);
    TEGROUP_IMPL_RULE(shape->rows >= 0 && shape->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE, TEGROUP_IMPL_PATH(ROWS),
                      "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, shape->rows);
    TEGROUP_IMPL_RULE(shape->cols >= 0 && shape->cols <= TEGROUP_MAX_COLS, ERROR_VALUE, TEGROUP_IMPL_PATH(COLS),
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, shape->cols);
    TEGROUP_IMPL_RULE_ENUM(shape->row_sizes.encoding, TEGROUP_ENCODING_ENDS, TEGROUP_IMPL_PATH(ROW_SIZES),
                           "must be a tegroup_encoding");
    TEGROUP_IMPL_RULE(!ragged || shape->row_sizes.space != TEGROUP_SPACE_UNSET, ERROR_UNSET,
                      TEGROUP_IMPL_PATH(SIZES_SPACE), "must be set with row_sizes", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE_ENUM(shape->row_sizes.space, TEGROUP_SPACE_DEVICE, TEGROUP_IMPL_PATH(SIZES_SPACE),
                           "must be a tegroup_space");
    TEGROUP_IMPL_RULE_ENUM(shape->col_sizes.encoding, TEGROUP_ENCODING_ENDS, TEGROUP_IMPL_PATH(COL_SIZES),
                           "must be a tegroup_encoding");
    TEGROUP_IMPL_RULE(!ragged_cols || shape->col_sizes.encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(COL_SIZES), "must be COUNTS for columns", TEGROUP_ENCODING_COUNTS,
                      shape->col_sizes.encoding);
    TEGROUP_IMPL_RULE(shape->elements >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(ELEMENTS), "must not be negative", 0,
                      shape->elements);
    TEGROUP_IMPL_RULE(shape->elements
                          <= tegroup_impl_max_bytes() / tegroup_impl_max(1, tegroup_impl_bits(t->dtype) / 8),
                      ERROR_OVERFLOW, TEGROUP_IMPL_PATH(ELEMENTS), "must be addressable",
                      tegroup_impl_max_bytes() / tegroup_impl_max(1, tegroup_impl_bits(t->dtype) / 8), shape->elements);
    TEGROUP_IMPL_RULE((!shape->row_sizes.data && !shape->snapshot) || ragged, ERROR_UNSET, TEGROUP_IMPL_PATH(ROW_SIZES),
                      "must be set with data or a snapshot", TEGROUP_ENCODING_COUNTS, 0);
    TEGROUP_IMPL_RULE((!tegroup_impl_irregular(shape) && !shape->offsets) || ragged, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(ROW_SIZES), "must be set with col_sizes, offsets or elements",
                      TEGROUP_ENCODING_COUNTS, 0);
    TEGROUP_IMPL_RULE(t->ld <= TEGROUP_MAX_COLS, ERROR_VALUE, TEGROUP_IMPL_PATH(LD), "must be at most TEGROUP_MAX_COLS",
                      TEGROUP_MAX_COLS, t->ld);
    TEGROUP_IMPL_RULE(t->ld == 0 || t->ld >= shape->cols, ERROR_LAYOUT, TEGROUP_IMPL_PATH(LD),
                      "must be 0 or at least shape.cols", shape->cols, t->ld);
    TEGROUP_IMPL_RULE(t->group_stride == 0 || !ragged, ERROR_COMBINATION, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                      "does not go with row_sizes", 0, t->group_stride);
    TEGROUP_IMPL_RULE(t->group_stride == 0 || t->group_stride >= tegroup_impl_mul(shape->rows, tegroup_impl_ld(t)),
                      ERROR_LAYOUT, TEGROUP_IMPL_PATH(GROUP_STRIDE), "must be 0 or at least shape.rows * ld",
                      tegroup_impl_mul(shape->rows, tegroup_impl_ld(t)), t->group_stride);
    TEGROUP_IMPL_RULE_ENUM(t->pointers_space, TEGROUP_SPACE_DEVICE, TEGROUP_IMPL_PATH(POINTERS_SPACE),
                           "must be a tegroup_space");
    TEGROUP_IMPL_TRY(tegroup_impl_check_list(t, name, error));
    TEGROUP_IMPL_RULE(tegroup_impl_mul(shape->rows, tegroup_impl_ld(t)) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW,
                      TEGROUP_IMPL_PATH(LD), "times shape.rows must be addressable", tegroup_impl_max_bytes(),
                      tegroup_impl_mul(shape->rows, tegroup_impl_ld(t)));
    TEGROUP_IMPL_RULE(ragged
                          || tegroup_impl_mul(shape->groups, tegroup_impl_group_stride(t)) <= tegroup_impl_max_bytes(),
                      ERROR_OVERFLOW, TEGROUP_IMPL_PATH(GROUP_STRIDE), "times shape.groups must be addressable",
                      tegroup_impl_max_bytes(), tegroup_impl_mul(shape->groups, tegroup_impl_group_stride(t)));
    TEGROUP_IMPL_RULE(tegroup_impl_extent_bytes(t) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW, TEGROUP_IMPL_PATH(ROWS),
                      "times ld must be addressable", tegroup_impl_max_bytes(), tegroup_impl_extent_bytes(t));
    return tegroup_impl_check_scales(t, name, error);
}

/* An optional tensor is there by its dtype; one that has memory and no dtype was not meant to be left out. usual: a
 * type that it might have. */
static inline tegroup_status tegroup_impl_check_absent(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                       tegroup_dtype usual, tegroup_error *error) {
    TEGROUP_IMPL_RULE_AS(DTYPE, !t->data && !t->pointers, ERROR_UNSET, TEGROUP_IMPL_PATH(DTYPE),
                         "must be set with data", usual, 0);
    return TEGROUP_OK;
}

/* Each group of a snapshot must lie inside the tensor: what the header says, unless somebody wrote over it. A group
 * without rows may begin anywhere in the buffer that was prepared. */
static inline tegroup_status tegroup_impl_check_groups(const tegroup_tensor *t, const char *field,
                                                       tegroup_error *error) {
    tegroup_snapshot_view view = tegroup_snapshot_read(t->shape.snapshot);
    int64_t total = 0;
    int32_t g;
    for (g = 0; g < view.header->groups; g++) {
        int64_t rows = tegroup_impl_max(0, view.rows[g]), cols = view.cols ? view.cols[g] : t->shape.cols;
        int64_t ld = t->ld > 0 ? t->ld : cols, end = tegroup_impl_add(tegroup_impl_max(0, view.start[g]), rows);
        const int64_t room = rows > 0 ? t->shape.rows : tegroup_impl_max(t->shape.rows, view.header->capacity_rows);
        TEGROUP_IMPL_RULE(view.rows[g] >= -1 && view.start[g] >= 0 && end <= room, ERROR_CAPACITY, field,
                          "must keep each group within shape.rows", room, end);
        total = tegroup_impl_add(total, rows); /* scales lie one group after another */
        TEGROUP_IMPL_RULE(t->scaling == TEGROUP_SCALING_NONE || total <= t->shape.rows, ERROR_CAPACITY, field,
                          "must have at most shape.rows rows in all groups of a quantised tensor", t->shape.rows,
                          total);
        if (!view.cols) continue;
        TEGROUP_IMPL_RULE(cols >= 0 && cols <= t->shape.cols, ERROR_CAPACITY, field,
                          "must keep each group within shape.cols", t->shape.cols, cols);
        if (tegroup_impl_listed(t)) continue;
        end = tegroup_impl_max(0, view.offset[g]);
        if (rows > 0 && cols > 0) end = tegroup_impl_add(end, tegroup_impl_add(tegroup_impl_mul(rows - 1, ld), cols));
        TEGROUP_IMPL_RULE(view.offset[g] >= 0 && end <= t->shape.elements, ERROR_CAPACITY, field,
                          "must keep each group within shape.elements", t->shape.elements, end);
    }
    return TEGROUP_OK;
}

/* A ragged tensor's snapshot: its address, and what a host may read of it. */
static inline tegroup_status tegroup_impl_check_snapshot_address(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                                 tegroup_error *error) {
    const tegroup_shape *shape = &t->shape;
    if (!tegroup_impl_ragged(shape)) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(shape->snapshot != NULL, ERROR_NULL_ARGUMENT, TEGROUP_IMPL_PATH(SNAPSHOT),
                      "must not be NULL: prepare first", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(shape->snapshot, TEGROUP_ALIGNMENT), ERROR_ALIGNMENT,
                      TEGROUP_IMPL_PATH(SNAPSHOT), "must be 256-byte aligned", TEGROUP_ALIGNMENT,
                      (uintptr_t)shape->snapshot % TEGROUP_ALIGNMENT);
    return TEGROUP_OK;
}

/* What a snapshot must be, to serve a tensor: its groups lie within the tensor's rows, however many it was prepared
 * for, and it was prepared for at most the tensor's columns and elements. */
typedef struct tegroup_impl_fit {
    const tegroup_snapshot_header *header; /* NULL: the tensor has none */
    int64_t rows, cols, elements, ld;      /* at most; ld: -1 = any     */
    int32_t groups, irregular;
} tegroup_impl_fit;

TEGROUP_IMPL_HD tegroup_impl_fit tegroup_impl_fit_of(const tegroup_tensor *t) {
    const int bounded = tegroup_impl_irregular(&t->shape)
                        && !tegroup_impl_listed(t); /* of others nothing is read but rows and columns */
    tegroup_impl_fit fit;
    fit.header = t->dtype != TEGROUP_DTYPE_UNSET && tegroup_impl_ragged(&t->shape)
                     ? (const tegroup_snapshot_header *)t->shape.snapshot
                     : NULL;
    fit.rows = t->shape.rows;
    fit.cols = tegroup_impl_irregular(&t->shape) ? t->shape.cols : INT64_MAX;
    fit.elements = bounded ? t->shape.elements : INT64_MAX;
    fit.ld = bounded ? t->ld : -1;
    fit.groups = t->shape.groups;
    fit.irregular = tegroup_impl_irregular(&t->shape);
    return fit;
}

/* The same for a snapshot that comes without a shape, for a matrix of so many rows. */
TEGROUP_IMPL_HD tegroup_impl_fit tegroup_impl_fit_of_rows(const void *snapshot, int64_t rows) {
    tegroup_impl_fit fit;
    fit.header = (const tegroup_snapshot_header *)snapshot;
    fit.rows = rows;
    fit.cols = fit.elements = INT64_MAX;
    fit.ld = -1;
    fit.groups = fit.header ? (int32_t)tegroup_impl_clamp(fit.header->groups, 0, TEGROUP_MAX_GROUPS) : 0;
    fit.irregular = fit.header && fit.header->irregular != 0;
    return fit;
}

/* The rules of it, RULE(what must hold, in words, expected, got), of a header and a fit: a host names the one that is
 * broken, a kernel takes a snapshot that breaks one for none. In host memory or not, nothing else of it is read
 * before. */
#define TEGROUP_IMPL_FIT_RULES(RULE, rows_words)                                                                       \
    RULE(header->magic == TEGROUP_SNAPSHOT_MAGIC, "must be what tegroup_prepare wrote", TEGROUP_SNAPSHOT_MAGIC,        \
         header->magic)                                                                                                \
    RULE(header->groups == fit->groups, "must be of as many groups", fit->groups, header->groups)                      \
    RULE(header->rows_end <= fit->rows, rows_words, fit->rows, header->rows_end)                                       \
    RULE(header->irregular == fit->irregular,                                                                          \
         "must be of a shape with col_sizes or elements just when this one has them", fit->irregular,                  \
         header->irregular)                                                                                            \
    RULE(header->capacity_cols <= fit->cols, "must be prepared for at most shape.cols columns", fit->cols,             \
         header->capacity_cols)                                                                                        \
    RULE(header->capacity_elements <= fit->elements, "must be prepared for at most shape.elements elements",           \
         fit->elements, header->capacity_elements)                                                                     \
    RULE(fit->ld < 0 || header->ld == fit->ld, "must be prepared with this ld", fit->ld, header->ld)

TEGROUP_IMPL_HD int tegroup_impl_fits(const tegroup_impl_fit *fit) {
    const tegroup_snapshot_header *header = fit->header;
#define TEGROUP_IMPL_AND(holds, words, expected, got) &&(holds)
    return !header || (1 TEGROUP_IMPL_FIT_RULES(TEGROUP_IMPL_AND, ""));
#undef TEGROUP_IMPL_AND
}

static inline tegroup_status tegroup_impl_check_fit(const tegroup_impl_fit *fit, const char *field,
                                                    const char *rows_words, tegroup_error *error) {
    const tegroup_snapshot_header *header = fit->header;
#define TEGROUP_IMPL_REFUSE(holds, words, expected, got)                                                               \
    TEGROUP_IMPL_RULE(holds, ERROR_CAPACITY, field, words, expected, got);
    TEGROUP_IMPL_FIT_RULES(TEGROUP_IMPL_REFUSE, rows_words)
#undef TEGROUP_IMPL_REFUSE
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_check_prepared(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                         tegroup_check_level level, tegroup_error *error) {
    const tegroup_impl_fit made = tegroup_impl_fit_of(t);
    TEGROUP_IMPL_TRY(tegroup_impl_check_fit(&made, TEGROUP_IMPL_PATH(SNAPSHOT),
                                            "must have all groups within shape.rows rows", error));
    if (level == TEGROUP_CHECK_DEEP) TEGROUP_IMPL_TRY(tegroup_impl_check_groups(t, TEGROUP_IMPL_PATH(SNAPSHOT), error));
    return TEGROUP_OK;
}

/* What addresses are aligned to. */
static inline size_t tegroup_impl_element(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F4E2M1 ? 1 : (size_t)tegroup_impl_bits(dtype) / 8;
}

/* An address that a call uses. */
static inline tegroup_status tegroup_impl_check_address(const void *address, size_t alignment, const char *field,
                                                        tegroup_error *error) {
    TEGROUP_IMPL_RULE(address != NULL, ERROR_NULL_ARGUMENT, field, "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(address, alignment), ERROR_ALIGNMENT, field,
                      "must be aligned to its element", alignment, (uintptr_t)address % alignment);
    return TEGROUP_OK;
}

/* A tensor's elements: one buffer, or a list. */
static inline tegroup_status tegroup_impl_check_data(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                     tegroup_error *error) {
    if (tegroup_impl_listed(t))
        return t->shape.groups == 0
                   ? TEGROUP_OK
                   : tegroup_impl_check_address(t->pointers, sizeof(void *), TEGROUP_IMPL_PATH(POINTERS), error);
    return tegroup_impl_extent(t) == 0
               ? TEGROUP_OK
               : tegroup_impl_check_address(t->data, tegroup_impl_element(t->dtype), TEGROUP_IMPL_PATH(DATA), error);
}

/* A tensor's sizes, when a call is about to run. What a snapshot in device memory holds, the kernels look at: of one
 * that was not prepared for this shape they write nothing. */
static inline tegroup_status tegroup_impl_check_routing(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                        tegroup_check_level level, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot_address(t, name, error));
    if (tegroup_impl_ragged(&t->shape) && t->shape.row_sizes.space == TEGROUP_SPACE_HOST)
        TEGROUP_IMPL_TRY(tegroup_impl_check_prepared(t, name, level, error));
    return TEGROUP_OK;
}

/* Rules of one tensor's memory, when a call is about to run. */
static inline tegroup_status tegroup_impl_check_memory(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                       tegroup_check_level level, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_routing(t, name, level, error));
    return tegroup_impl_check_data(t, name, error);
}

/* An operation that reads a snapshot where its data are needs the sizes there, too: prepare has left both in one
 * place. */
static inline tegroup_status tegroup_impl_check_sizes_space(const tegroup_shape *shape, tegroup_space space,
                                                            const char *field, tegroup_error *error) {
    TEGROUP_IMPL_RULE(!tegroup_impl_ragged(shape) || shape->row_sizes.space == space, ERROR_COMBINATION, field,
                      "must equal space", space, shape->row_sizes.space);
    return TEGROUP_OK;
}

/* The index that an operand's rows are picked by. What it holds may be anything: a slot outside means zeros. */
static inline tegroup_status tegroup_impl_check_index(const tegroup_gather *gather, const tegroup_tensor *t,
                                                      const tegroup_impl_name *name, tegroup_error *error) {
    if (t->shape.rows == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(!gather->slot_of_row || gather->rows > 0, ERROR_UNSET, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "must be set with slot_of_row", 1, 0);
    TEGROUP_IMPL_RULE(gather->slot_of_row || gather->rows == 0, ERROR_NULL_ARGUMENT, TEGROUP_IMPL_PATH(SLOT_OF_ROW),
                      "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(gather->slot_of_row, 8), ERROR_ALIGNMENT, TEGROUP_IMPL_PATH(SLOT_OF_ROW),
                      "must be aligned to its element", 8, (uintptr_t)gather->slot_of_row % 8);
    return TEGROUP_OK;
}

/* Two windows of one buffer with rows of so many columns, `pitch` from one row to the next, the second beginning
 * `ahead` behind the first: how many rows the first one can have that share nothing with the second; INT64_MAX: any
 * number. No window is wider than the pitch, and one that begins late in a row goes on into the next. */
TEGROUP_IMPL_HD int64_t tegroup_impl_room(int64_t ahead, int64_t pitch, int64_t cols, int64_t other_cols) {
    const int64_t row = ahead < pitch ? 0 : ahead / pitch, col = ahead - row * pitch; /* seldom divided */
    if (col < cols) return row;
    return col + other_cols > pitch ? row + 1 : INT64_MAX;
}

/* Plain matrices. */
TEGROUP_IMPL_HD int64_t tegroup_impl_matrix_ld(const tegroup_matrix *m) { return m->ld > 0 ? m->ld : m->cols; }

static inline int64_t tegroup_impl_matrix_bytes(const tegroup_matrix *m) {
    if (m->dtype == TEGROUP_DTYPE_UNSET || m->rows <= 0 || m->cols <= 0) return 0;
    return tegroup_impl_mul(tegroup_impl_add(tegroup_impl_mul(m->rows - 1, tegroup_impl_matrix_ld(m)), m->cols),
                            tegroup_impl_bits(m->dtype) / 8);
}

/* Rows that have elements: what a loop over a matrix runs through. */
static inline int64_t tegroup_impl_matrix_rows(const tegroup_matrix *m) { return m->cols > 0 ? m->rows : 0; }

TEGROUP_IMPL_HD char *tegroup_impl_matrix_row(const tegroup_matrix *m, int64_t row) {
    if (!m->data) return NULL;
    return (char *)m->data + row * tegroup_impl_matrix_ld(m) * (tegroup_impl_bits(m->dtype) / 8);
}

/* Field paths of a matrix called `name`, as one literal each. */
#define TEGROUP_IMPL_MATRIX_PATHS(name)                                                                                \
    { name ".data", name ".rows", name ".cols", name ".ld", name ".dtype" }

#define TEGROUP_IMPL_FLOATS                                                                                            \
    (1u << TEGROUP_DTYPE_F64 | 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16)
#define TEGROUP_IMPL_REALS (1u << TEGROUP_DTYPE_F64 | 1u << TEGROUP_DTYPE_F32)
#define TEGROUP_IMPL_INTEGERS (1u << TEGROUP_DTYPE_I32 | 1u << TEGROUP_DTYPE_I64)

/* Whether a product multiplies rows of the one type and weights of the other. Beside F32, weights of 16 bits are
 * widened, exactly. */
static inline int tegroup_impl_goes_with(tegroup_dtype rows, tegroup_dtype weights) {
    return weights == rows || (tegroup_impl_bits(rows) == 8 && tegroup_impl_bits(weights) == 8)
           || (rows == TEGROUP_DTYPE_F32 && tegroup_impl_bits(weights) == 16);
}

/* The type of scalars and row scales. */
static inline tegroup_status tegroup_impl_check_real(tegroup_dtype dtype, const char *field, tegroup_error *error) {
    TEGROUP_IMPL_RULE_ENUM(dtype, TEGROUP_DTYPE_COUNT - 1, field, "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, dtype == TEGROUP_DTYPE_UNSET || TEGROUP_IMPL_REALS >> dtype & 1u, ERROR_DTYPE, field,
                         "must be a type of scalars and row scales", TEGROUP_IMPL_REALS, dtype);
    return TEGROUP_OK;
}

/* One matrix: extents (rows or cols < 0: any), types as a bit set, memory. */
static inline tegroup_status tegroup_impl_check_matrix(const tegroup_matrix *m, const char *const paths[5],
                                                       int64_t rows, int64_t cols, uint32_t dtypes,
                                                       tegroup_error *error) {
    size_t element;
    TEGROUP_IMPL_RULE_AS(DTYPES, m->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, paths[4], "must be set", dtypes, 0);
    TEGROUP_IMPL_RULE_ENUM(m->dtype, TEGROUP_DTYPE_COUNT - 1, paths[4], "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, dtypes >> m->dtype & 1u, ERROR_DTYPE, paths[4], "must be one that is taken here",
                         dtypes, m->dtype);
    TEGROUP_IMPL_RULE(m->rows >= 0 && m->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE, paths[1],
                      "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, m->rows);
    TEGROUP_IMPL_RULE(m->cols >= 0 && m->cols <= TEGROUP_MAX_COLS, ERROR_VALUE, paths[2],
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, m->cols);
    TEGROUP_IMPL_RULE(rows < 0 || m->rows == rows, ERROR_SHAPE, paths[1], "must match the other operands", rows,
                      m->rows);
    TEGROUP_IMPL_RULE(cols < 0 || m->cols == cols, ERROR_SHAPE, paths[2], "must match the other operands", cols,
                      m->cols);
    TEGROUP_IMPL_RULE(m->ld <= TEGROUP_MAX_COLS, ERROR_VALUE, paths[3], "must be at most TEGROUP_MAX_COLS",
                      TEGROUP_MAX_COLS, m->ld);
    TEGROUP_IMPL_RULE(m->ld == 0 || m->ld >= m->cols, ERROR_LAYOUT, paths[3], "must be 0 or at least cols", m->cols,
                      m->ld);
    TEGROUP_IMPL_RULE(tegroup_impl_matrix_bytes(m) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW, paths[1],
                      "times ld must be addressable", tegroup_impl_max_bytes(), tegroup_impl_matrix_bytes(m));
    if (m->rows == 0 || m->cols == 0) return TEGROUP_OK;
    element = (size_t)tegroup_impl_bits(m->dtype) / 8;
    TEGROUP_IMPL_RULE(m->data != NULL, ERROR_NULL_ARGUMENT, paths[0], "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(m->data, element), ERROR_ALIGNMENT, paths[0],
                      "must be aligned to its element", element, (uintptr_t)m->data % element);
    return TEGROUP_OK;
}

/* A matrix that may be absent: its dtype is then UNSET. */
static inline tegroup_status tegroup_impl_check_optional(const tegroup_matrix *m, const char *const paths[5],
                                                         int64_t rows, int64_t cols, uint32_t dtypes,
                                                         tegroup_error *error) {
    if (m->dtype != TEGROUP_DTYPE_UNSET) return tegroup_impl_check_matrix(m, paths, rows, cols, dtypes, error);
    TEGROUP_IMPL_RULE_AS(DTYPES, !m->data, ERROR_UNSET, paths[4], "must be set with data", dtypes, 0);
    return TEGROUP_OK;
}

/* Integers, or none, that reach up to `most`. */
static inline tegroup_status tegroup_impl_check_reach(const tegroup_matrix *m, const char *const paths[5], int64_t most,
                                                      tegroup_error *error) {
    TEGROUP_IMPL_RULE_AS(DTYPES, m->dtype != TEGROUP_DTYPE_I32 || most <= INT32_MAX, ERROR_DTYPE, paths[4],
                         "must hold numbers beyond 2^31 - 1 here", 1u << TEGROUP_DTYPE_I64, m->dtype);
    return TEGROUP_OK;
}

/* The memory space of everything that a descriptor points to. */
static inline tegroup_status tegroup_impl_check_space(tegroup_space space, tegroup_error *error) {
    TEGROUP_IMPL_RULE(space != TEGROUP_SPACE_UNSET, ERROR_UNSET, "space", "must be set", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE_ENUM(space, TEGROUP_SPACE_DEVICE, "space", "must be a tegroup_space");
    return TEGROUP_OK;
}

/* A snapshot that an operation on plain rows reads: all its groups lie within `rows` rows. The kernels look into one in
 * device memory. */
static inline tegroup_status tegroup_impl_check_snapshot(const void *snapshot, const char *field, int64_t rows,
                                                         tegroup_space space, tegroup_error *error) {
    tegroup_impl_fit fit;
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(snapshot, TEGROUP_ALIGNMENT), ERROR_ALIGNMENT, field,
                      "must be 256-byte aligned", TEGROUP_ALIGNMENT, (uintptr_t)snapshot % TEGROUP_ALIGNMENT);
    if (!snapshot || space == TEGROUP_SPACE_DEVICE) return TEGROUP_OK;
    fit = tegroup_impl_fit_of_rows(snapshot, rows);
    return tegroup_impl_check_fit(&fit, field, "must have all groups within the matrix's rows", error);
}

/* A build without nvcc, or one whose switches leave the kernels out, serves host memory only. kernels: whether this
 * build has the operation's. */
static inline tegroup_status tegroup_impl_check_built(int kernels, tegroup_space space, tegroup_error *error) {
    TEGROUP_IMPL_RULE(kernels || space != TEGROUP_SPACE_DEVICE, ERROR_NOT_BUILT, "space",
                      "must be HOST: this operation has no GPU kernel in this build", TEGROUP_SPACE_HOST, space);
    return TEGROUP_OK;
}

/* ==== [36] Bytes of a tensor (src/core/tensor_layout.h) ==== */

TEGROUP_API tegroup_status tegroup_tensor_layout(const tegroup_tensor *tensor, tegroup_copies copies,
                                                 tegroup_layout *layout, tegroup_error *error) {
    static const tegroup_impl_name name = TEGROUP_IMPL_NAME("tensor");
    const int rowwise = copies & TEGROUP_COPIES_ROWWISE, columnwise = copies & TEGROUP_COPIES_COLUMNWISE;
    tegroup_layout result;
    TEGROUP_IMPL_RULE(tensor != NULL, ERROR_NULL_ARGUMENT, "tensor", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(copies != TEGROUP_COPIES_UNSET, ERROR_UNSET, "copies", "must be set", TEGROUP_COPIES_ROWWISE, 0);
    TEGROUP_IMPL_RULE_ENUM(copies, TEGROUP_COPIES_BOTH, "copies", "must be a tegroup_copies");
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(tensor, &name, error));
    TEGROUP_IMPL_RULE(!columnwise || tensor->scaling != TEGROUP_SCALING_NONE, ERROR_COMBINATION, "copies",
                      "must be ROWWISE without a scaling", TEGROUP_COPIES_ROWWISE, copies);
    tegroup_impl_layout_begin(&result);
    tegroup_impl_layout_add(&result, "data", rowwise ? tegroup_impl_copy_bytes(tensor, 0) : 0);
    tegroup_impl_layout_add(&result, "scale_inv", rowwise ? tegroup_impl_scale_bytes(tensor, 0) : 0);
    tegroup_impl_layout_add(&result, "columnwise_data", columnwise ? tegroup_impl_copy_bytes(tensor, 1) : 0);
    tegroup_impl_layout_add(&result, "columnwise_scale_inv", columnwise ? tegroup_impl_scale_bytes(tensor, 1) : 0);
    tegroup_impl_layout_add(&result, "global_scale_inv",
                            tegroup_scaling_info(tensor->scaling)->scale_dtype == TEGROUP_DTYPE_F8E4M3
                                ? 4 * (int64_t)tensor->shape.groups
                                : 0);
    TEGROUP_IMPL_RULE(!tegroup_impl_layout_overflowed(&result), ERROR_OVERFLOW, "tensor.shape.rows",
                      "must leave all copies addressable", tegroup_impl_max_bytes(), INT64_MAX);
    *layout = result;
    return TEGROUP_OK;
}

/* ==== [37] Scales in another layout: one group, one scale (src/core/scale_convert.h) ==== */

/* The scales of one copy of a tensor, as a kernel is given them. */
typedef struct tegroup_impl_scales {
    tegroup_tensor tensor;
    tegroup_scaling_facts facts;
    tegroup_dtype dtype;
    int32_t columnwise;
    int64_t capacity; /* scales of the buffer, or of each of a list */
} tegroup_impl_scales;

static inline tegroup_impl_scales tegroup_impl_scales_of(const tegroup_tensor *t, int32_t columnwise) {
    tegroup_impl_scales scales;
    memset(&scales, 0, sizeof scales);
    scales.tensor = *t;
    scales.facts = *tegroup_scaling_info(t->scaling);
    scales.facts.name = NULL; /* of no use to a kernel */
    scales.dtype = tegroup_impl_scale_dtype(t, &scales.facts);
    scales.columnwise = columnwise;
    scales.capacity = tegroup_impl_scale_capacity(t, columnwise);
    return scales;
}

TEGROUP_IMPL_HD void *tegroup_impl_scales_at(const tegroup_impl_scales *scales, int32_t g) {
    const tegroup_tensor *t = &scales->tensor;
    if (!tegroup_impl_listed(t)) return scales->columnwise ? t->columnwise_scale_inv : t->scale_inv;
    return scales->columnwise ? t->columnwise_scale_pointers[g] : t->scale_pointers[g];
}

/* The snapshot of a ragged tensor, or a view of nothing, also for one that does not fit. */
TEGROUP_IMPL_HD tegroup_snapshot_view tegroup_impl_fitting_view(const tegroup_tensor *t) {
    const tegroup_impl_fit fit = tegroup_impl_fit_of(t);
    tegroup_snapshot_view view;
    memset(&view, 0, sizeof view);
    if (!fit.header || !tegroup_impl_fits(&fit)) return view;
    return tegroup_impl_snapshot_view(t->shape.snapshot, t->shape.groups, fit.irregular);
}

/* Group g's scales, `before` of them in front; none where they would end behind the buffer. */
TEGROUP_IMPL_HD tegroup_impl_scale_grid tegroup_impl_scales_grid(const tegroup_impl_scales *scales,
                                                                 const tegroup_snapshot_view *view, int32_t g,
                                                                 int64_t before) {
    const tegroup_tensor *t = &scales->tensor;
    tegroup_impl_scale_grid grid =
        tegroup_impl_scale_grid_after(t, &scales->facts, view, g, scales->columnwise, before);
    if (tegroup_impl_scale_end(&grid, tegroup_impl_scales_strided(t, scales->columnwise)) > scales->capacity)
        grid.count = grid.outer_count = grid.inner_count = 0;
    return grid;
}

/* Does a type hold exponents alone, so that not every scale can become one? */
TEGROUP_IMPL_HD int tegroup_impl_is_exponent(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F8E8M0 || dtype == TEGROUP_DTYPE_I32;
}

/* The value of a scale of any type. */
TEGROUP_IMPL_HD float tegroup_impl_scale_value(tegroup_dtype dtype, const void *data, int64_t i) {
    return tegroup_impl_load_f32(dtype == TEGROUP_DTYPE_I32 ? TEGROUP_DTYPE_F8E8M0 : dtype, data, i);
}

/* A scale as the bits of a float; F8E4M3, which only ever becomes itself, as its code. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_load_scale(tegroup_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case TEGROUP_DTYPE_F32: return ((const tegroup_impl_any32 *)data)[i];
    case TEGROUP_DTYPE_BF16: return (uint32_t)((const tegroup_impl_any16 *)data)[i] << 16;
    case TEGROUP_DTYPE_F8E4M3: return ((const uint8_t *)data)[i];
    default: return tegroup_impl_bits_of_f32(tegroup_impl_scale_value(dtype, data, i));
    }
}

#define TEGROUP_IMPL_LOWEST_EXPONENT 0x400000u /* 2^-127, which binary32 has as a subnormal: F8E8M0's byte 0 */

/* The F8E8M0 of a float's bits; -1: it has none. */
TEGROUP_IMPL_HD int32_t tegroup_impl_exponent_of(uint32_t bits) {
    if (tegroup_impl_is_nan(tegroup_impl_f32_of_bits(bits))) return 255;
    if (bits == TEGROUP_IMPL_LOWEST_EXPONENT) return 0;
    return bits >> 31 || bits & 0x7fffffu || bits == 0 || bits == 0x7f800000u ? -1 : (int32_t)(bits >> 23);
}

TEGROUP_IMPL_HD void tegroup_impl_store_scale(tegroup_dtype dtype, void *data, int64_t i, uint32_t bits) {
    switch (dtype) {
    case TEGROUP_DTYPE_F32: ((tegroup_impl_any32 *)data)[i] = bits; break;
    case TEGROUP_DTYPE_BF16: ((tegroup_impl_any16 *)data)[i] = (uint16_t)(bits >> 16); break;
    case TEGROUP_DTYPE_F8E4M3: ((uint8_t *)data)[i] = (uint8_t)bits; break;
    default: ((uint8_t *)data)[i] = (uint8_t)tegroup_impl_exponent_of(bits); break; /* -1 is NaN's */
    }
}

/* The place of scale number e of a group, of all that is stored of it, in the order in which they lie. */
typedef struct tegroup_impl_scale_place {
    int64_t part, outer, inner;
} tegroup_impl_scale_place;

TEGROUP_IMPL_HD tegroup_impl_scale_place tegroup_impl_scale_place_of(const tegroup_impl_scale_grid *grid, int64_t e) {
    const int64_t of_part = grid->outer_extent * grid->inner_extent, rest = e % of_part;
    tegroup_impl_scale_place place;
    place.part = e / of_part;
    if (!grid->swizzled && grid->outer_stride < grid->inner_stride) {
        place.outer = rest % grid->outer_extent;
        place.inner = rest / grid->outer_extent;
    } else {
        place.outer = rest / grid->inner_extent;
        place.inner = rest % grid->inner_extent;
    }
    return place;
}

/* The bits that a scale of `to` becomes: those of `from`, where both have one there, or those of padding, 0. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_converted_scale(const tegroup_impl_scale_grid *from, tegroup_dtype from_dtype,
                                                      const void *data, const tegroup_impl_scale_grid *to,
                                                      tegroup_dtype to_dtype, tegroup_impl_scale_place place) {
    if (place.outer < tegroup_impl_min(from->outer_count, to->outer_count)
        && place.inner < tegroup_impl_min(from->inner_count, to->inner_count))
        return tegroup_impl_load_scale(from_dtype, data,
                                       tegroup_impl_scale_of_block(from, place.part, place.outer, place.inner));
    return tegroup_impl_is_exponent(to_dtype) ? TEGROUP_IMPL_LOWEST_EXPONENT : 0; /* whose byte is 0 */
}

/* ==== [38] What a call writes lies apart (src/core/apart.h) ==== */

/* Memory that a call touches. What it writes may share none with anything else that it touches. */
typedef struct tegroup_impl_buffer {
    const tegroup_tensor *tensor; /* whose list it is; NULL: no list                                      */
    const void *base, *list;      /* its elements, NULL where they are a list's; that list, which is read */
    int64_t bytes, list_bytes;
    int32_t columnwise, of_scales; /* of a list: which copy's, and whether of its scales                  */
    const char *field; /* what an error about it names, and how one about another buffer ends: "must not overlap ..." */
    const char *apart;
    int32_t writes;
    int32_t twin;           /* buffer that it may be, wholly: an operation in place; -1 = none         */
    const char *twin_apart; /* what is said of the twin where it is another; NULL: it is the same      */
} tegroup_impl_buffer;

/* Plain memory. apart NULL: no other buffer's error names it. */
static inline tegroup_impl_buffer tegroup_impl_buffer_of(const void *base, int64_t bytes, const char *field,
                                                         const char *apart, int writes) {
    tegroup_impl_buffer buffer;
    memset(&buffer, 0, sizeof buffer);
    buffer.base = base;
    buffer.bytes = bytes;
    buffer.field = field;
    buffer.apart = apart;
    buffer.writes = writes;
    buffer.twin = -1;
    return buffer;
}

static inline tegroup_impl_buffer tegroup_impl_tensor_buffer(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             int writes) {
    const int there = t->dtype != TEGROUP_DTYPE_UNSET, listed = there && tegroup_impl_listed(t);
    tegroup_impl_buffer buffer = tegroup_impl_buffer_of(
        there && !listed ? t->data : NULL, there && !listed ? tegroup_impl_extent_bytes(t) : 0,
        listed ? TEGROUP_IMPL_PATH(POINTERS) : TEGROUP_IMPL_PATH(DATA), name->apart, writes && there);
    if (!listed) return buffer;
    buffer.tensor = t;
    buffer.list = t->pointers;
    buffer.list_bytes = (int64_t)sizeof(void *) * t->shape.groups;
    return buffer;
}

/* The copy that a product reads of a quantised tensor, which stands in the place of the rowwise one, or its scales. */
static inline tegroup_impl_buffer tegroup_impl_copy_buffer(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                           int columnwise, int of_scales) {
    tegroup_impl_buffer buffer = tegroup_impl_tensor_buffer(t, name, 0);
    buffer.columnwise = columnwise;
    buffer.of_scales = of_scales;
    if (tegroup_impl_listed(t)) buffer.list = of_scales ? t->scale_pointers : t->pointers;
    else {
        buffer.base = of_scales ? t->scale_inv : t->data;
        buffer.bytes = of_scales ? tegroup_impl_scale_bytes(t, columnwise) : tegroup_impl_copy_bytes(t, columnwise);
    }
    return buffer;
}

static inline tegroup_impl_buffer tegroup_impl_snapshot_buffer(const tegroup_tensor *t) {
    tegroup_layout layout;
    if (t->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_ragged(&t->shape))
        return tegroup_impl_buffer_of(NULL, 0, NULL, NULL, 0);
    tegroup_impl_snapshot_layout(t->shape.groups, tegroup_impl_irregular(&t->shape), &layout);
    return tegroup_impl_buffer_of(t->shape.snapshot, (int64_t)layout.total_bytes, NULL, "must not overlap a snapshot",
                                  0);
}

/* A matrix; an absent one has no bytes. */
static inline tegroup_impl_buffer tegroup_impl_matrix_buffer(const tegroup_matrix *m, const char *field,
                                                             const char *apart, int writes) {
    return tegroup_impl_buffer_of(m->data, tegroup_impl_matrix_bytes(m), field, apart, writes);
}

/* A snapshot that came without its shape: in host memory its header, which must have been checked, tells how long it
 * is. */
static inline tegroup_impl_buffer tegroup_impl_shapeless_snapshot_buffer(const void *snapshot, tegroup_space space) {
    const tegroup_snapshot_header *header = (const tegroup_snapshot_header *)snapshot;
    tegroup_layout layout;
    if (!snapshot || space == TEGROUP_SPACE_DEVICE) return tegroup_impl_buffer_of(NULL, 0, NULL, NULL, 0);
    tegroup_impl_snapshot_layout(header->groups, header->irregular, &layout);
    return tegroup_impl_buffer_of(snapshot, (int64_t)layout.total_bytes, NULL, "must not overlap the snapshot", 0);
}

static inline tegroup_impl_buffer tegroup_impl_workspace_buffer(const tegroup_options *options, size_t bytes) {
    return tegroup_impl_buffer_of(options->workspace, (int64_t)bytes, "options.workspace",
                                  "must not overlap options.workspace", 1);
}

/* Does any matrix of a list that the host can walk share memory with a range? */
static inline int tegroup_impl_entries_overlap(const tegroup_impl_buffer *buffer, const void *base, int64_t bytes) {
    const tegroup_tensor *t = buffer->tensor;
    tegroup_snapshot_view view = tegroup_snapshot_read(NULL);
    tegroup_tensor one = *t; /* as large as the group */
    int32_t g;
    if (t->pointers_space != TEGROUP_SPACE_HOST) return 0;
    if (tegroup_impl_ragged(&t->shape) && t->shape.row_sizes.space == TEGROUP_SPACE_HOST)
        view = tegroup_snapshot_read(t->shape.snapshot);
    for (g = 0; g < t->shape.groups; g++) {
        if (view.rows) { /* exactly what the group has there */
            one.shape.rows = tegroup_impl_max(0, view.rows[g]);
            one.shape.cols = view.cols ? view.cols[g] : t->shape.cols;
        }
        if (tegroup_impl_overlaps(((void *const *)buffer->list)[g],
                                  buffer->of_scales ? tegroup_impl_scale_bytes(&one, buffer->columnwise)
                                                    : tegroup_impl_copy_bytes(&one, buffer->columnwise),
                                  base, bytes))
            return 1;
    }
    return 0;
}

/* Does a buffer that is written share memory with a range? The deep level walks the buffer's list, but two lists are
 * not compared entry by entry. */
static inline int tegroup_impl_buffer_meets(const tegroup_impl_buffer *out, const void *base, int64_t bytes,
                                            tegroup_check_level level) {
    if (tegroup_impl_overlaps(out->base, out->bytes, base, bytes)) return 1;
    return level == TEGROUP_CHECK_DEEP && out->tensor && tegroup_impl_entries_overlap(out, base, bytes);
}

static inline int tegroup_impl_data_overlap(const tegroup_impl_buffer *out, const tegroup_impl_buffer *other,
                                            tegroup_check_level level) {
    return tegroup_impl_buffer_meets(out, other->base, other->bytes, level)
           || (level == TEGROUP_CHECK_DEEP && other->tensor
               && tegroup_impl_entries_overlap(other, out->base, out->bytes));
}

/* The one rule about memory that is written: it lies apart from all other memory, and from every list, its own
 * included. Of two that are written and share elements, the first in the array is named. about: the index of the buffer
 * that the error names; NULL = not wanted. */
static inline tegroup_status tegroup_impl_check_apart(const tegroup_impl_buffer *buffers, int32_t count,
                                                      tegroup_check_level level, int32_t *about, tegroup_error *error) {
    int32_t i, j;
    for (i = 0; i < count; i++) {
        const tegroup_impl_buffer *out = &buffers[i];
        if (!out->writes) continue;
        if (about) *about = i;
        for (j = 0; j < count; j++) {
            const tegroup_impl_buffer *other = &buffers[j];
            const int twins = out->twin == j || other->twin == i, told = i == j || (j < i && other->writes);
            const char *twin_apart = out->twin == j ? out->twin_apart : other->twin_apart;
            if (other->list)
                TEGROUP_IMPL_RULE(!tegroup_impl_buffer_meets(out, other->list, other->list_bytes, level), ERROR_OVERLAP,
                                  out->field, other->apart, 0, 1);
            if (told || (twins && !twin_apart)) continue;
            TEGROUP_IMPL_RULE(!tegroup_impl_data_overlap(out, other, level), ERROR_OVERLAP, out->field,
                              twins ? twin_apart : other->apart, 0, 1);
        }
    }
    return TEGROUP_OK;
}

/* The workspace of an operation on at most seven matrices: large enough, and apart from each of them. */
static inline tegroup_status tegroup_impl_check_matrix_workspace(const tegroup_layout *layout, const void *workspace,
                                                                 size_t workspace_bytes,
                                                                 const tegroup_impl_buffer *others, int32_t count,
                                                                 tegroup_error *error) {
    tegroup_impl_buffer buffers[8];
    int32_t i;
    TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(layout->total_bytes, "workspace", "workspace_bytes", workspace,
                                                  workspace_bytes, error));
    buffers[0] = tegroup_impl_buffer_of(workspace, (int64_t)layout->total_bytes, "workspace", NULL, 1);
    for (i = 0; i < count; i++) {
        buffers[1 + i] = others[i];
        buffers[1 + i].writes = 0; /* They are apart from each other already. */
    }
    return tegroup_impl_check_apart(buffers, 1 + count, TEGROUP_CHECK_HOST, NULL, error);
}

/* ==== [39] Prepare (src/core/prepare.h) ==== */

/* How sizes become a snapshot, group by group. Each function below is one step of one group, so that a loop and a
 * kernel run the same code; the steps in between are scans (sum or maximum) and a sorting network, which give the same
 * integers in whatever order they are evaluated. Nothing here trusts a size: every intermediate stays far inside 64
 * bits. */

/* What prepare works on: the caller's arrays and the snapshot's. */
typedef struct tegroup_impl_preparation {
    int32_t groups;
    int32_t irregular;
    int64_t capacity_rows, capacity_cols, capacity_elements, ld;
    tegroup_sizes rows, cols;
    const int64_t *offsets;
    int64_t *start, *out_rows, *prefix, *out_cols, *out_offset;
    int32_t *order, order_entries; /* a power of two: groups, and what pads them for the sort */
    int32_t threads;               /* on the host */
} tegroup_impl_preparation;

/* The scan that places groups: a running sum of counts, or a running maximum of ends. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_scan(const tegroup_impl_preparation *p, int64_t carry, int64_t term) {
    return p->rows.encoding == TEGROUP_ENCODING_COUNTS ? carry + term : tegroup_impl_max(carry, term);
}

/* Term of group g: its rows with their padding, or its end. At most 2^41, so that 4,096 of them cannot overflow. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_term(const tegroup_impl_preparation *p, int32_t g) {
    int64_t raw = tegroup_impl_load_int(p->rows.dtype, p->rows.data,
                                        p->rows.encoding == TEGROUP_ENCODING_OFFSETS ? (int64_t)g + 1 : g);
    int64_t value = tegroup_impl_clamp(raw, 0, p->capacity_rows);
    return p->rows.encoding == TEGROUP_ENCODING_COUNTS && p->rows.alignment > 1
               ? tegroup_impl_align(value, p->rows.alignment)
               : value;
}

/* What the scan begins with: the row at which group 0 begins. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_first(const tegroup_impl_preparation *p) {
    if (p->rows.encoding != TEGROUP_ENCODING_OFFSETS) return 0;
    return tegroup_impl_clamp(tegroup_impl_load_int(p->rows.dtype, p->rows.data, 0), 0, p->capacity_rows);
}

/* Where a group lies. cols and offset: of an irregular shape. */
typedef struct tegroup_impl_place {
    int64_t start, rows, cols, offset;
} tegroup_impl_place;

/* Place group g, given the scan of the groups before it. Returns the status bits that it raises. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_prepare_place(const tegroup_impl_preparation *p, int32_t g, int64_t carry,
                                                    tegroup_impl_place *x) {
    const tegroup_sizes *sizes = &p->rows;
    int64_t capacity = p->capacity_rows, start = carry, rows;
    uint32_t bits = 0;
    if (sizes->encoding == TEGROUP_ENCODING_COUNTS) {
        rows = tegroup_impl_load_int(sizes->dtype, sizes->data, g);
        if (sizes->starts) start = tegroup_impl_load_int(sizes->dtype, sizes->starts, g);
        else if (sizes->stride > 0) start = g * sizes->stride;
        if (rows == -1) { /* skipped: owns nothing, and says so */
            x->start = tegroup_impl_clamp(start, 0, capacity);
            x->rows = -1;
            return 0;
        }
        if (rows < 0) {
            bits |= TEGROUP_SNAPSHOT_NEGATIVE;
            rows = 0;
        }
        if (start < 0) { /* only a caller's start can be */
            bits |= TEGROUP_SNAPSHOT_START;
            start = 0;
            rows = 0;
        }
        if (!sizes->starts && sizes->stride > 0 && rows > sizes->stride && g + 1 < p->groups) {
            bits |= TEGROUP_SNAPSHOT_OVERLAP;
            rows = sizes->stride;
        }
    } else {
        int64_t end, before;
        if (sizes->encoding == TEGROUP_ENCODING_OFFSETS) {
            end = tegroup_impl_load_int(sizes->dtype, sizes->data, (int64_t)g + 1);
            before = tegroup_impl_load_int(sizes->dtype, sizes->data, g);
            if (g == 0 && before != 0) bits |= TEGROUP_SNAPSHOT_START;
        } else {
            end = tegroup_impl_load_int(sizes->dtype, sizes->data, g);
            before = g ? tegroup_impl_load_int(sizes->dtype, sizes->data, (int64_t)g - 1) : 0;
            if (sizes->alignment > 1) start = tegroup_impl_align(start, sizes->alignment);
        }
        if (end < before || (end < start && end != before))
            bits |= TEGROUP_SNAPSHOT_NEGATIVE; /* an end within the padding is no end */
        if (end > capacity) bits |= TEGROUP_SNAPSHOT_CAPACITY;
        rows = tegroup_impl_max(0, tegroup_impl_clamp(end, 0, capacity) - start);
    }
    if (rows > 0 && (start >= capacity || rows > capacity - start)) {
        bits |= TEGROUP_SNAPSHOT_CAPACITY;
        rows = start >= capacity ? 0 : capacity - start;
    }
    x->start = tegroup_impl_min(start, capacity);
    x->rows = rows;
    return bits;
}

/* The columns of group g. Returns the status bits that they raise. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_prepare_cols(const tegroup_impl_preparation *p, int32_t g,
                                                   tegroup_impl_place *x) {
    int64_t cols = p->capacity_cols;
    if (p->cols.encoding != TEGROUP_ENCODING_UNSET) cols = tegroup_impl_load_int(p->cols.dtype, p->cols.data, g);
    x->cols = tegroup_impl_clamp(cols, 0, p->capacity_cols);
    return cols != x->cols ? TEGROUP_SNAPSHOT_COLS : 0;
}

/* The elements of a packed group: the next group begins so many behind it. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_elements(const tegroup_impl_place *x) {
    return tegroup_impl_mul(tegroup_impl_max(0, x->rows), x->cols);
}

/* Elements from the first of a group's block to the last, rows ld apart. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_reach(const tegroup_impl_preparation *p, const tegroup_impl_place *x) {
    int64_t ld = p->ld > 0 ? p->ld : x->cols;
    if (x->rows <= 0 || x->cols == 0) return 0;
    return tegroup_impl_add(tegroup_impl_mul(x->rows - 1, ld), x->cols);
}

/* Its first element, given the elements before it; a block that leaves the buffer is dropped. Without a bound, as for
 * lists, none does. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_prepare_offset(const tegroup_impl_preparation *p, int32_t g, int64_t carry,
                                                     tegroup_impl_place *x) {
    int64_t offset = p->offsets ? p->offsets[g] : p->ld > 0 ? tegroup_impl_mul(x->start, p->ld) : carry;
    int64_t reach = tegroup_impl_prepare_reach(p, x);
    int64_t bound = p->capacity_elements > 0 ? p->capacity_elements : reach > 0 ? INT64_MAX : 0;
    x->offset = tegroup_impl_clamp(offset, 0, bound);
    if (reach == 0 || (offset == x->offset && reach <= bound - offset)) return 0;
    x->rows = 0;
    return TEGROUP_SNAPSHOT_ELEMENTS;
}

/* The carry before group g where no size lies, as far as its rows depend on it. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_before(const tegroup_impl_preparation *p, int32_t g) {
    const int64_t at = p->rows.encoding == TEGROUP_ENCODING_OFFSETS ? (int64_t)g : (int64_t)g - 1;
    return p->rows.encoding == TEGROUP_ENCODING_COUNTS || at < 0
               ? 0
               : tegroup_impl_load_int(p->rows.dtype, p->rows.data, at);
}

/* What the snapshot has of group g; on the host, as long as nothing is written, what the sizes say, of which none
 * lies. */
TEGROUP_IMPL_HD tegroup_impl_place tegroup_impl_prepare_read(const tegroup_impl_preparation *p, int32_t g) {
    tegroup_impl_place x = {0, 0, 0, 0};
#if !defined(__CUDA_ARCH__)
    if (!p->out_rows) {
        (void)tegroup_impl_prepare_place(p, g, tegroup_impl_prepare_before(p, g), &x);
        if (p->irregular) (void)tegroup_impl_prepare_cols(p, g, &x);
        if (p->offsets) x.offset = p->offsets[g];
        return x;
    }
#endif
    x.start = p->start[g];
    x.rows = p->out_rows[g];
    if (!p->irregular) return x;
    x.cols = p->out_cols[g];
    x.offset = p->out_offset[g];
    return x;
}

/* Granules of a group of so many rows: what the prefix sums add up. */
TEGROUP_IMPL_HD int64_t tegroup_impl_granules(int64_t rows) { return (rows + TEGROUP_GRANULE - 1) / TEGROUP_GRANULE; }

TEGROUP_IMPL_HD void tegroup_impl_prepare_write(const tegroup_impl_preparation *p, int32_t g,
                                                const tegroup_impl_place *x) {
    p->start[g] = x->start;
    p->out_rows[g] = x->rows;
    if (!p->irregular) return;
    p->out_cols[g] = x->cols;
    p->out_offset[g] = x->offset;
}

/* Sorting. Groups are ordered by where they begin (to find overlaps) or by size, ties by index, padding last. */
typedef enum tegroup_impl_sort_key {
    TEGROUP_IMPL_SORT_BY_START,
    TEGROUP_IMPL_SORT_BY_OFFSET,
    TEGROUP_IMPL_SORT_BY_SIZE
} tegroup_impl_sort_key;

/* Does the group own any row, or any element? */
TEGROUP_IMPL_HD int tegroup_impl_prepare_owns(const tegroup_impl_preparation *p, tegroup_impl_sort_key key, int32_t g) {
    const tegroup_impl_place x = tegroup_impl_prepare_read(p, g);
    return x.rows > 0 && (key == TEGROUP_IMPL_SORT_BY_START || x.cols > 0);
}

TEGROUP_IMPL_HD int64_t tegroup_impl_sort_value(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                int32_t g) {
    if (g >= p->groups) return INT64_MAX;
    if (key == TEGROUP_IMPL_SORT_BY_SIZE) return -tegroup_impl_max(0, tegroup_impl_prepare_read(p, g).rows);
    if (!tegroup_impl_prepare_owns(p, key, g)) return INT64_MAX - 1; /* behind those that do */
    return key == TEGROUP_IMPL_SORT_BY_START ? tegroup_impl_prepare_read(p, g).start
                                             : tegroup_impl_prepare_read(p, g).offset;
}

/* One comparator of Batcher's bitonic network: position i against its partner at this distance, in runs of this
 * length. */
TEGROUP_IMPL_HD void tegroup_impl_sort_compare(const tegroup_impl_preparation *p, tegroup_impl_sort_key key, int32_t i,
                                               int32_t run, int32_t distance) {
    int32_t partner = i ^ distance, a, b;
    int64_t x, y;
    if (partner < i) return;
    a = p->order[i];
    b = p->order[partner];
    x = tegroup_impl_sort_value(p, key, a);
    y = tegroup_impl_sort_value(p, key, b);
    if ((x > y || (x == y && a > b)) == ((i & run) == 0)) {
        p->order[i] = b;
        p->order[partner] = a;
    }
}

/* The comparators that stay within the positions first .. first + block - 1. */
static inline void tegroup_impl_sort_block(const tegroup_impl_preparation *p, tegroup_impl_sort_key key, int32_t first,
                                           int32_t block, int32_t run, int32_t distance) {
    int32_t i;
    for (; distance > 0; distance /= 2)
        for (i = first; i < first + block; i++) tegroup_impl_sort_compare(p, key, i, run, distance);
}

/* The network, with the positions in a block for each thread, as far as that is a power of two: blocks wait for each
 * other only where a comparator reaches from one to another. */
static inline void tegroup_impl_sort(const tegroup_impl_preparation *p, tegroup_impl_sort_key key) {
    const int32_t extent = p->order_entries;
    int32_t log = 0, block = extent, threads, run, distance, i;
    while (extent >> log > 1) log++;
    /* extent / 2 comparators in each of log (log + 1) / 2 rounds, some twelve steps each */
    threads = tegroup_impl_team(p->threads, 3.0 * extent * log * (log + 1));
    while (block > 1 && extent / block * 2 <= threads) block /= 2;
    for (i = 0; i < extent; i++) p->order[i] = i;
    TEGROUP_IMPL_OMP(omp parallel private(run, distance, i) num_threads(threads)) {
        TEGROUP_IMPL_OMP(omp for schedule(static))
        for (i = 0; i < extent; i += block)
            for (run = 2; run <= block; run *= 2) tegroup_impl_sort_block(p, key, i, block, run, run / 2);
        for (run = 2 * block; run <= extent; run *= 2) {
            for (distance = run / 2; distance >= block; distance /= 2) {
                TEGROUP_IMPL_OMP(omp for schedule(static))
                for (i = 0; i < extent / 2; i++) /* the lower position of each pair */
                    tegroup_impl_sort_compare(p, key, 2 * i - (i & (distance - 1)), run, distance);
            }
            TEGROUP_IMPL_OMP(omp for schedule(static))
            for (i = 0; i < extent; i += block) tegroup_impl_sort_block(p, key, i, block, run, block / 2);
        }
    }
}

/* Rows that the group at position i of the sorted ones keeps to itself. Of two groups that share rows, or elements, the
 * one that starts first ends where they meet; `owners` of them own something. Groups side by side in the rows of one
 * buffer share none: each is held against those that begin before it ends, so that many of these take time by their
 * number squared, and others do not. Of the others only where they begin is read, so that positions can be treated in
 * any order. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_apart(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                   int32_t owners, int32_t i) {
    const int by_start = key == TEGROUP_IMPL_SORT_BY_START;
    tegroup_impl_place x = tegroup_impl_prepare_read(p, p->order[i]);
    int32_t j;
    for (j = i + 1; j < owners && x.rows > 0; j++) {
        const tegroup_impl_place y = tegroup_impl_prepare_read(p, p->order[j]);
        const int64_t ahead = by_start ? y.start - x.start : y.offset - x.offset;
        if (ahead >= (by_start ? x.rows : tegroup_impl_prepare_reach(p, &x))) break;
        x.rows = tegroup_impl_min(
            x.rows, by_start ? ahead : tegroup_impl_room(ahead, p->ld > 0 ? p->ld : x.cols, x.cols, y.cols));
    }
    return x.rows;
}

/* Bytes of an array of sizes, or of starts. */
static inline int64_t tegroup_impl_sizes_bytes(const tegroup_sizes *sizes, int32_t groups) {
    const int64_t entries = (int64_t)groups + (sizes->encoding == TEGROUP_ENCODING_OFFSETS);
    return entries * (tegroup_impl_bits(sizes->dtype) / 8);
}

/* Sizes on their way from host memory to a kernel, of which this is a parameter: their arrays one behind another, those
 * of the rows first, each from a whole word on. */
typedef struct tegroup_impl_parcel {
    int64_t words[TEGROUP_HOST_SIZES_MAX_BYTES / 8];
    int32_t starts, cols, offsets, count; /* words before each array; words in all */
} tegroup_impl_parcel;

static inline int64_t tegroup_impl_parcel_words(int64_t bytes) { return tegroup_impl_ceil_div(bytes, 8); }

/* Appends an array, if there is one. Returns the words before it. */
static inline int32_t tegroup_impl_parcel_add(tegroup_impl_parcel *parcel, const void *array, int64_t bytes) {
    const int32_t before = parcel->count;
    if (!array) return before;
    memcpy(parcel->words + before, array, (size_t)bytes);
    parcel->count += (int32_t)tegroup_impl_parcel_words(bytes);
    return before;
}

/* The check has seen that they have room. */
static inline void tegroup_impl_parcel_pack(const tegroup_impl_preparation *p, tegroup_impl_parcel *parcel) {
    memset(parcel, 0, sizeof *parcel); /* a captured graph keeps all of it */
    (void)tegroup_impl_parcel_add(parcel, p->rows.data, tegroup_impl_sizes_bytes(&p->rows, p->groups));
    parcel->starts = tegroup_impl_parcel_add(parcel, p->rows.starts, tegroup_impl_sizes_bytes(&p->rows, p->groups));
    parcel->cols = tegroup_impl_parcel_add(parcel, p->cols.data, tegroup_impl_sizes_bytes(&p->cols, p->groups));
    parcel->offsets = tegroup_impl_parcel_add(parcel, p->offsets, 8 * (int64_t)p->groups);
}

/* The same preparation, its sizes read from the parcel. */
TEGROUP_IMPL_HD tegroup_impl_preparation tegroup_impl_parcel_open(const tegroup_impl_preparation *p,
                                                                  const tegroup_impl_parcel *parcel) {
    tegroup_impl_preparation opened = *p;
    opened.rows.data = parcel->words;
    if (p->rows.starts) opened.rows.starts = parcel->words + parcel->starts;
    if (p->cols.data) opened.cols.data = parcel->words + parcel->cols;
    if (p->offsets) opened.offsets = parcel->words + parcel->offsets;
    return opened;
}

/* The header as it is before any group is looked at. */
TEGROUP_IMPL_HD void tegroup_impl_snapshot_open(tegroup_snapshot_header *header, const tegroup_impl_preparation *p) {
    memset(header, 0, sizeof *header);
    header->magic = TEGROUP_SNAPSHOT_MAGIC;
    header->groups = p->groups;
    header->bad_group = -1;
    header->irregular = p->irregular;
    header->capacity_rows = p->capacity_rows;
    header->capacity_cols = p->capacity_cols;
    header->capacity_elements = p->capacity_elements;
    header->ld = p->ld;
}

static inline void tegroup_impl_prepare_note(tegroup_snapshot_header *header, int32_t g, uint32_t bits) {
    if (!bits) return;
    header->status |= bits;
    if (header->bad_group < 0 || g < header->bad_group) header->bad_group = g;
}

/* Sort the groups, and write what tegroup_impl_prepare_apart says of those that own something. Returns how many these
 * are. */
static inline int32_t tegroup_impl_prepare_all_apart(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                     int64_t rows[TEGROUP_MAX_GROUPS]) {
    int32_t owners = 0, g, i;
    for (g = 0; g < p->groups; g++) owners += tegroup_impl_prepare_owns(p, key, g);
    tegroup_impl_sort(p, key);
    /* A group is held against the next one or, by offset, against all in its reach; each takes some four steps. */
    TEGROUP_IMPL_OMP(omp parallel for schedule(static, 1) num_threads(
        tegroup_impl_team(p->threads, 4.0 * owners * (key == TEGROUP_IMPL_SORT_BY_START ? 2 : owners))))
    for (i = 0; i < owners; i++) rows[i] = tegroup_impl_prepare_apart(p, key, owners, i);
    return owners;
}

static inline void tegroup_impl_prepare_disjoin(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                tegroup_snapshot_header *header) {
    int64_t rows[TEGROUP_MAX_GROUPS];
    const int32_t owners = tegroup_impl_prepare_all_apart(p, key, rows);
    int32_t g, i;
    for (i = 0; i < owners; i++) {
        g = p->order[i];
        if (rows[i] < p->out_rows[g]) tegroup_impl_prepare_note(header, g, TEGROUP_SNAPSHOT_OVERLAP);
        p->out_rows[g] = rows[i];
    }
}

/* All steps in order, on the host. */
static inline void tegroup_impl_prepare_host(const tegroup_impl_preparation *p, tegroup_snapshot_header *header) {
    tegroup_impl_place x = {0, 0, 0, 0};
    int32_t g;
    int64_t carry = p->groups > 0 ? tegroup_impl_prepare_first(p) : 0;
    for (g = 0; g < p->groups; g++) {
        tegroup_impl_prepare_note(header, g, tegroup_impl_prepare_place(p, g, carry, &x));
        tegroup_impl_prepare_write(p, g, &x);
        carry = tegroup_impl_prepare_scan(p, carry, tegroup_impl_prepare_term(p, g));
    }
    if (p->rows.starts) tegroup_impl_prepare_disjoin(p, TEGROUP_IMPL_SORT_BY_START, header);
    for (g = 0, carry = 0; p->irregular && g < p->groups; g++) {
        const int64_t before = carry;
        x = tegroup_impl_prepare_read(p, g);
        tegroup_impl_prepare_note(header, g, tegroup_impl_prepare_cols(p, g, &x));
        carry = tegroup_impl_add(carry, tegroup_impl_prepare_elements(&x)); /* of one that is dropped, too */
        tegroup_impl_prepare_note(header, g, tegroup_impl_prepare_offset(p, g, before, &x));
        tegroup_impl_prepare_write(p, g, &x);
    }
    if (p->irregular && p->offsets) tegroup_impl_prepare_disjoin(p, TEGROUP_IMPL_SORT_BY_OFFSET, header);
    p->prefix[0] = 0;
    for (g = 0; g < p->groups; g++)
        p->prefix[g + 1] = p->prefix[g] + tegroup_impl_granules(tegroup_impl_max(0, p->out_rows[g]));
    for (g = 0; g < p->groups; g++) {
        const tegroup_impl_place placed = tegroup_impl_prepare_read(p, g);
        const int64_t reach = tegroup_impl_prepare_reach(p, &placed), rows = tegroup_impl_max(0, placed.rows);
        header->rows_total += rows;
        header->rows_max = tegroup_impl_max(header->rows_max, rows);
        if (rows > 0) header->rows_end = tegroup_impl_max(header->rows_end, placed.start + rows);
        if (reach > 0) header->capacity_elements = tegroup_impl_max(header->capacity_elements, placed.offset + reach);
    }
    tegroup_impl_sort(p, TEGROUP_IMPL_SORT_BY_SIZE);
}

/* The error for the lie about group g that these status bits tell of. */
static inline tegroup_status tegroup_impl_prepare_lie(const tegroup_impl_preparation *p, int32_t g, uint32_t bits,
                                                      tegroup_error *error) {
    const char *const rows = "shape.row_sizes.data";
    const int counts = p->rows.encoding == TEGROUP_ENCODING_COUNTS;
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_START), ERROR_VALUE, counts ? "shape.row_sizes.starts" : rows,
                      counts ? "must not be negative; got is the group" : "must begin with 0; got is the group", 0, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_NEGATIVE), ERROR_VALUE, rows,
                      counts ? "must hold no count below -1; got is the group" : "must not fall; got is the group",
                      counts ? -1 : 0, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_OVERLAP), ERROR_OVERLAP, rows,
                      "must be at most shape.row_sizes.stride before the last group; got is the group", p->rows.stride,
                      g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_CAPACITY), ERROR_CAPACITY, rows,
                      "must keep each group within shape.rows; got is the group", p->capacity_rows, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_COLS), ERROR_VALUE, "shape.col_sizes.data",
                      "must be 0 to shape.cols; got is the group", p->capacity_cols, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_ELEMENTS), ERROR_CAPACITY,
                      p->offsets ? "shape.offsets" : "shape.elements",
                      p->offsets ? "must keep each group within shape.elements; got is the group"
                                 : "must have room for each group; got is the group",
                      p->capacity_elements, g);
    return TEGROUP_OK;
}

/* Two groups that share rows, or elements, where no size lies otherwise. */
static inline tegroup_status tegroup_impl_prepare_check_apart(const tegroup_impl_preparation *p,
                                                              tegroup_impl_sort_key key, tegroup_error *error) {
    int64_t rows[TEGROUP_MAX_GROUPS];
    const int32_t owners = tegroup_impl_prepare_all_apart(p, key, rows);
    int32_t lowest = -1, g, i;
    for (i = 0; i < owners; i++) {
        g = p->order[i];
        if ((lowest < 0 || g < lowest) && rows[i] < tegroup_impl_prepare_read(p, g).rows) lowest = g;
    }
    TEGROUP_IMPL_RULE(lowest < 0, ERROR_OVERLAP,
                      key == TEGROUP_IMPL_SORT_BY_START ? "shape.row_sizes.starts" : "shape.offsets",
                      key == TEGROUP_IMPL_SORT_BY_START ? "must give no two groups the same rows; got is the group"
                                                        : "must give no two groups the same elements; got is the group",
                      -1, lowest);
    return TEGROUP_OK;
}

/* Sizes in host memory are looked at before anything is written. */
static inline tegroup_status tegroup_impl_prepare_refuse(const tegroup_impl_preparation *p, tegroup_error *error) {
    int32_t order[TEGROUP_MAX_GROUPS], g;
    tegroup_impl_preparation asked = *p;
    tegroup_impl_place x = {0, 0, 0, 0};
    int64_t carry = p->groups > 0 ? tegroup_impl_prepare_first(p) : 0, elements = 0;
    for (g = 0; g < p->groups; g++) {
        uint32_t bits = tegroup_impl_prepare_place(p, g, carry, &x);
        carry = tegroup_impl_prepare_scan(p, carry, tegroup_impl_prepare_term(p, g));
        if (p->irregular) {
            bits |= tegroup_impl_prepare_cols(p, g, &x);
            bits |= tegroup_impl_prepare_offset(p, g, elements, &x);
            elements = tegroup_impl_add(elements, tegroup_impl_prepare_elements(&x));
        }
        TEGROUP_IMPL_TRY(tegroup_impl_prepare_lie(p, g, bits, error));
    }
    asked.out_rows = NULL;
    asked.order = order;
    if (p->rows.starts) TEGROUP_IMPL_TRY(tegroup_impl_prepare_check_apart(&asked, TEGROUP_IMPL_SORT_BY_START, error));
    if (p->irregular && p->offsets)
        TEGROUP_IMPL_TRY(tegroup_impl_prepare_check_apart(&asked, TEGROUP_IMPL_SORT_BY_OFFSET, error));
    return TEGROUP_OK;
}

/* Where the arrays of sizes are. */
static inline tegroup_space tegroup_impl_data_space(const tegroup_sizes *sizes) {
    return sizes->data_space != TEGROUP_SPACE_UNSET ? sizes->data_space : sizes->space;
}

static inline tegroup_status tegroup_impl_check_sizes(const tegroup_sizes *sizes, int32_t groups, int is_cols,
                                                      tegroup_error *error) {
#define TEGROUP_IMPL_FIELD(name) (is_cols ? "shape.col_sizes." name : "shape.row_sizes." name)
    TEGROUP_IMPL_RULE(sizes->encoding != TEGROUP_ENCODING_UNSET, ERROR_UNSET, TEGROUP_IMPL_FIELD("encoding"),
                      "must be set", TEGROUP_ENCODING_COUNTS, 0);
    TEGROUP_IMPL_RULE_ENUM(sizes->encoding, TEGROUP_ENCODING_ENDS, TEGROUP_IMPL_FIELD("encoding"),
                           "must be a tegroup_encoding");
    TEGROUP_IMPL_RULE_AS(DTYPES, sizes->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, TEGROUP_IMPL_FIELD("dtype"),
                         "must be set", TEGROUP_IMPL_INTEGERS, 0);
    TEGROUP_IMPL_RULE_ENUM(sizes->dtype, TEGROUP_DTYPE_COUNT - 1, TEGROUP_IMPL_FIELD("dtype"),
                           "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_INTEGERS >> sizes->dtype & 1u, ERROR_DTYPE, TEGROUP_IMPL_FIELD("dtype"),
                         "must be one that sizes have", TEGROUP_IMPL_INTEGERS, sizes->dtype);
    TEGROUP_IMPL_RULE(sizes->space != TEGROUP_SPACE_UNSET, ERROR_UNSET, TEGROUP_IMPL_FIELD("space"), "must be set",
                      TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE_ENUM(sizes->space, TEGROUP_SPACE_DEVICE, TEGROUP_IMPL_FIELD("space"), "must be a tegroup_space");
    TEGROUP_IMPL_RULE_ENUM(sizes->data_space, TEGROUP_SPACE_DEVICE, TEGROUP_IMPL_FIELD("data_space"),
                           "must be a tegroup_space");
    TEGROUP_IMPL_RULE(sizes->data != NULL || groups == 0, ERROR_NULL_ARGUMENT, TEGROUP_IMPL_FIELD("data"),
                      "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(sizes->data, (size_t)tegroup_impl_bits(sizes->dtype) / 8), ERROR_ALIGNMENT,
                      TEGROUP_IMPL_FIELD("data"), "must be aligned to its element", tegroup_impl_bits(sizes->dtype) / 8,
                      (uintptr_t)sizes->data % ((size_t)tegroup_impl_bits(sizes->dtype) / 8));
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(sizes->starts, (size_t)tegroup_impl_bits(sizes->dtype) / 8), ERROR_ALIGNMENT,
                      TEGROUP_IMPL_FIELD("starts"), "must be aligned to its element",
                      tegroup_impl_bits(sizes->dtype) / 8,
                      (uintptr_t)sizes->starts % ((size_t)tegroup_impl_bits(sizes->dtype) / 8));
    TEGROUP_IMPL_RULE(sizes->alignment >= 0 && sizes->alignment <= TEGROUP_MAX_ROWS, ERROR_VALUE,
                      TEGROUP_IMPL_FIELD("alignment"), "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS,
                      sizes->alignment);
    TEGROUP_IMPL_RULE(sizes->stride >= 0 && sizes->stride <= TEGROUP_MAX_ROWS, ERROR_VALUE,
                      TEGROUP_IMPL_FIELD("stride"), "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, sizes->stride);
    TEGROUP_IMPL_RULE(!sizes->starts || sizes->encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("starts"), "goes with encoding COUNTS only", TEGROUP_ENCODING_COUNTS,
                      sizes->encoding);
    TEGROUP_IMPL_RULE(!sizes->stride || sizes->encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("stride"), "goes with encoding COUNTS only", TEGROUP_ENCODING_COUNTS,
                      sizes->encoding);
    TEGROUP_IMPL_RULE(sizes->alignment <= 1 || sizes->encoding != TEGROUP_ENCODING_OFFSETS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("alignment"), "does not go with encoding OFFSETS", 1, sizes->alignment);
    TEGROUP_IMPL_RULE(!sizes->starts || !sizes->stride, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("stride"),
                      "does not go with starts", 0, sizes->stride);
    TEGROUP_IMPL_RULE((!sizes->starts && !sizes->stride) || sizes->alignment <= 1, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("alignment"), "does not go with starts or stride", 1, sizes->alignment);
    TEGROUP_IMPL_RULE(!is_cols || sizes->encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("encoding"), "must be COUNTS for columns", TEGROUP_ENCODING_COUNTS,
                      sizes->encoding);
    TEGROUP_IMPL_RULE(!is_cols || !sizes->starts, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("starts"),
                      "does not apply to columns", 0, 1);
    TEGROUP_IMPL_RULE(!is_cols || !sizes->stride, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("stride"),
                      "does not apply to columns", 0, sizes->stride);
    TEGROUP_IMPL_RULE(!is_cols || sizes->alignment <= 1, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("alignment"),
                      "does not apply to columns", 1, sizes->alignment);
#undef TEGROUP_IMPL_FIELD
    return TEGROUP_OK;
}

/* An array of sizes, or of starts, which is read. */
static inline tegroup_impl_buffer tegroup_impl_sizes_buffer(const void *data, const tegroup_sizes *sizes,
                                                            int32_t groups, const char *apart) {
    return tegroup_impl_buffer_of(data, tegroup_impl_sizes_bytes(sizes, groups), NULL, apart, 0);
}

static inline tegroup_status tegroup_impl_check_prepare(const tegroup_prepare_desc *desc, tegroup_layout *layout,
                                                        tegroup_error *error) {
    const tegroup_shape *shape;
    tegroup_impl_buffer buffers[5];
    tegroup_space data_space;
    int64_t sent = 0;
    int ragged_cols, i;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(desc->clamp == 0 || desc->clamp == 1, ERROR_VALUE, "clamp", "must be 0 or 1", 1, desc->clamp);
    TEGROUP_IMPL_RULE(desc->host_sizes_final == 0 || desc->host_sizes_final == 1, ERROR_VALUE, "host_sizes_final",
                      "must be 0 or 1", 1, desc->host_sizes_final);
    TEGROUP_IMPL_RULE_ENUM(desc->check_level, TEGROUP_CHECK_DEEP, "check_level", "must be a tegroup_check_level");
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    shape = &desc->shape;
    ragged_cols = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    TEGROUP_IMPL_RULE(shape->groups >= 0 && shape->groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "shape.groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, shape->groups);
    TEGROUP_IMPL_RULE(shape->rows >= 0 && shape->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE, "shape.rows",
                      "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, shape->rows);
    TEGROUP_IMPL_RULE(shape->cols >= 0 && shape->cols <= TEGROUP_MAX_COLS, ERROR_VALUE, "shape.cols",
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, shape->cols);
    TEGROUP_IMPL_RULE(shape->elements >= 0, ERROR_VALUE, "shape.elements", "must not be negative", 0, shape->elements);
    TEGROUP_IMPL_RULE(shape->elements > 0 || !shape->offsets, ERROR_VALUE, "shape.elements", "must be set with offsets",
                      1, 0);
    TEGROUP_IMPL_RULE(desc->ld <= TEGROUP_MAX_COLS, ERROR_VALUE, "ld", "must be at most TEGROUP_MAX_COLS",
                      TEGROUP_MAX_COLS, desc->ld);
    TEGROUP_IMPL_RULE(desc->ld == 0 || desc->ld >= shape->cols, ERROR_LAYOUT, "ld", "must be 0 or at least shape.cols",
                      shape->cols, desc->ld);
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes(&shape->row_sizes, shape->groups, 0, error));
    TEGROUP_IMPL_RULE(shape->row_sizes.space == desc->space, ERROR_COMBINATION, "shape.row_sizes.space",
                      "must equal space", desc->space, shape->row_sizes.space);
    data_space = tegroup_impl_data_space(&shape->row_sizes);
    TEGROUP_IMPL_RULE(data_space == TEGROUP_SPACE_HOST || desc->space == TEGROUP_SPACE_DEVICE, ERROR_COMBINATION,
                      "shape.row_sizes.data_space", "must be HOST where space is", TEGROUP_SPACE_HOST, data_space);
    if (ragged_cols) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_sizes(&shape->col_sizes, shape->groups, 1, error));
        TEGROUP_IMPL_RULE(shape->col_sizes.space == desc->space, ERROR_COMBINATION, "shape.col_sizes.space",
                          "must equal space", desc->space, shape->col_sizes.space);
        TEGROUP_IMPL_RULE(tegroup_impl_data_space(&shape->col_sizes) == data_space, ERROR_COMBINATION,
                          "shape.col_sizes.data_space", "must be that of shape.row_sizes", data_space,
                          tegroup_impl_data_space(&shape->col_sizes));
    }
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(shape->offsets, sizeof(int64_t)), ERROR_ALIGNMENT, "shape.offsets",
                      "must be aligned to its element", 8, (uintptr_t)shape->offsets % sizeof(int64_t));
    tegroup_impl_snapshot_layout(shape->groups, tegroup_impl_irregular(shape), layout);
    TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(layout->total_bytes, "snapshot", "snapshot_bytes", desc->snapshot,
                                                  desc->snapshot_bytes, error));
    buffers[0] = tegroup_impl_buffer_of(desc->snapshot, (int64_t)layout->total_bytes, "snapshot", NULL, 1);
    buffers[1] = tegroup_impl_sizes_buffer(shape->row_sizes.data, &shape->row_sizes, shape->groups,
                                           "must not overlap shape.row_sizes.data");
    buffers[2] = tegroup_impl_sizes_buffer(shape->row_sizes.starts, &shape->row_sizes, shape->groups,
                                           "must not overlap shape.row_sizes.starts");
    buffers[3] = tegroup_impl_sizes_buffer(ragged_cols ? shape->col_sizes.data : NULL, &shape->col_sizes, shape->groups,
                                           "must not overlap shape.col_sizes.data");
    buffers[4] =
        tegroup_impl_buffer_of(shape->offsets, 8 * (int64_t)shape->groups, NULL, "must not overlap shape.offsets", 0);
    for (i = 1; i < 5; i++)
        if (buffers[i].base) sent += 8 * tegroup_impl_parcel_words(buffers[i].bytes);
    TEGROUP_IMPL_RULE(data_space == desc->space || sent <= TEGROUP_HOST_SIZES_MAX_BYTES, ERROR_UNSUPPORTED,
                      "shape.row_sizes.data_space",
                      "must be DEVICE, with the sizes there: host sizes may take TEGROUP_HOST_SIZES_MAX_BYTES",
                      TEGROUP_HOST_SIZES_MAX_BYTES, sent);
    return tegroup_impl_check_apart(buffers, 5, TEGROUP_CHECK_HOST, NULL, error);
}

/* ==== [40] The problem of a GEMM (src/core/problem.h) ==== */

/* The most bytes from one group to the next that TMA can be told of, which has the rules of alignment as well (CUDA
 * Driver API, cuTensorMapEncodeTiled: strides are multiples of 16 below 2^40). Rows are never so far apart. */
#define TEGROUP_IMPL_TMA_STRIDE_BYTES (((int64_t)1 << 40) - 16)

/* Bytes between the groups of a uniform tensor; 0 for any other, and for a single group. */
static inline int64_t tegroup_impl_stride_bytes(const tegroup_tensor *t) {
    if (t->dtype == TEGROUP_DTYPE_UNSET || tegroup_impl_ragged(&t->shape) || tegroup_impl_listed(t)) return 0;
    if (t->shape.groups < 2 || tegroup_impl_extent(t) == 0) return 0;
    return tegroup_impl_mul(tegroup_impl_group_stride(t), tegroup_impl_bits(t->dtype)) / 8;
}

/* Do groups of an operand lie where shape.offsets says? They may begin at any element then. */
static inline int tegroup_impl_placed(const tegroup_gemm_desc *desc) {
    return desc->a.shape.offsets || desc->b.shape.offsets || desc->c.shape.offsets || desc->d.shape.offsets;
}

/* Two tensors must agree in how their groups are made. Rows of ragged ones are what their buffers hold, of which the
 * snapshots tell what is used. */
static inline tegroup_status tegroup_impl_check_pair(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                     const tegroup_tensor *like, const tegroup_impl_name *like_name,
                                                     tegroup_error *error) {
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape) == tegroup_impl_ragged(&like->shape), ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(ROW_SIZES), like_name->ragged, tegroup_impl_ragged(&like->shape),
                      tegroup_impl_ragged(&t->shape));
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape) || t->shape.rows == like->shape.rows, ERROR_SHAPE,
                      TEGROUP_IMPL_PATH(ROWS), like_name->rows, like->shape.rows, t->shape.rows);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_check_scalars(const tegroup_scalars *s, const char *dtype_field,
                                                        const char *space_field, const char *stride_field,
                                                        tegroup_error *error) {
    TEGROUP_IMPL_RULE_ENUM(s->space, TEGROUP_SPACE_DEVICE, space_field, "must be a tegroup_space");
    if (s->space == TEGROUP_SPACE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_real(s->dtype, dtype_field, error));
    TEGROUP_IMPL_RULE(s->stride == 0 || s->stride == 1, ERROR_VALUE, stride_field, "must be 0 or 1", 1, s->stride);
    return TEGROUP_OK;
}

/* Rules of the options alone. */
static inline tegroup_status tegroup_impl_check_options(const tegroup_options *o, tegroup_error *error) {
    TEGROUP_IMPL_RULE_ENUM(o->compute, TEGROUP_COMPUTE_F64, "options.compute", "must be a tegroup_compute");
    TEGROUP_IMPL_RULE_ENUM(o->backend, TEGROUP_BACKEND_COUNT - 1, "options.backend", "must be a tegroup_backend");
    TEGROUP_IMPL_RULE_ENUM(o->check_level, TEGROUP_CHECK_DEEP, "options.check_level", "must be a tegroup_check_level");
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(o->threads, "options.threads", error));
    TEGROUP_IMPL_RULE(o->sm_limit >= 0, ERROR_VALUE, "options.sm_limit", "must not be negative", 0, o->sm_limit);
    TEGROUP_IMPL_RULE(o->data_alignment_bytes >= 0 && o->data_alignment_bytes <= TEGROUP_ALIGNMENT
                          && (o->data_alignment_bytes & (o->data_alignment_bytes - 1)) == 0,
                      ERROR_VALUE, "options.data_alignment_bytes",
                      "must be 0 or a power of two up to TEGROUP_ALIGNMENT", TEGROUP_ALIGNMENT,
                      o->data_alignment_bytes);
    TEGROUP_IMPL_RULE(o->expected_rows >= 0, ERROR_VALUE, "options.expected_rows", "must not be negative", 0,
                      o->expected_rows);
    TEGROUP_IMPL_RULE(o->expected_rows_max >= 0, ERROR_VALUE, "options.expected_rows_max", "must not be negative", 0,
                      o->expected_rows_max);
    TEGROUP_IMPL_RULE(o->stream_count >= 0, ERROR_VALUE, "options.stream_count", "must not be negative", 0,
                      o->stream_count);
    TEGROUP_IMPL_RULE(o->host_sizes_final == 0 || o->host_sizes_final == 1, ERROR_VALUE, "options.host_sizes_final",
                      "must be 0 or 1", 1, o->host_sizes_final);
    TEGROUP_IMPL_RULE(!o->cublaslt_functions
                          || tegroup_impl_size_fits(o->cublaslt_functions->struct_size, sizeof *o->cublaslt_functions),
                      ERROR_STRUCT_SIZE, "options.cublaslt_functions.struct_size", TEGROUP_IMPL_SIZE_RULE,
                      sizeof *o->cublaslt_functions, o->cublaslt_functions->struct_size);
    return TEGROUP_OK;
}

/* Rules of a product's own numbers and enums. */
static inline tegroup_status tegroup_impl_check_numbers(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                        tegroup_error *error) {
    TEGROUP_IMPL_RULE(desc->op != TEGROUP_OP_UNSET, ERROR_UNSET, "op", "must be set", TEGROUP_OP_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(desc->op, TEGROUP_OP_WGRAD, "op", "must be a tegroup_op");
    TEGROUP_IMPL_RULE_ENUM(desc->tail, TEGROUP_TAIL_POISON, names->tail, "must be a tegroup_tail");
    TEGROUP_IMPL_RULE(desc->accumulate == 0 || desc->accumulate == 1, ERROR_VALUE, "accumulate", "must be 0 or 1", 1,
                      desc->accumulate);
    TEGROUP_IMPL_RULE(desc->bias_of_b == 0 || desc->bias_of_b == 1, ERROR_VALUE, "bias_of_b", "must be 0 or 1", 1,
                      desc->bias_of_b);
    TEGROUP_IMPL_TRY(tegroup_impl_check_options(&desc->options, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalars(&desc->alpha, "alpha.dtype", "alpha.space", "alpha.stride", error));
    return tegroup_impl_check_scalars(&desc->beta, "beta.dtype", "beta.space", "beta.stride", error);
}

/* Rules of an operand whose rows are picked by an index: they must have one numbering, and lie in one buffer as they
 * are. */
static inline tegroup_status tegroup_impl_check_gather(const tegroup_gather *gather, const tegroup_tensor *t,
                                                       const tegroup_impl_name *name, tegroup_impl_operand operand,
                                                       tegroup_op op, tegroup_error *error) {
    tegroup_tensor stored;
    TEGROUP_IMPL_RULE(gather->rows >= 0 && gather->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE,
                      TEGROUP_IMPL_PATH(GATHER_ROWS), "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, gather->rows);
    TEGROUP_IMPL_RULE(gather->slots >= 0, ERROR_VALUE, TEGROUP_IMPL_PATH(GATHER_SLOTS), "must not be negative", 0,
                      gather->slots);
    if (gather->rows == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(operand == TEGROUP_IMPL_A || op == TEGROUP_OP_WGRAD, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(GATHER_ROWS), "needs op WGRAD: in others b has the weights", 0, gather->rows);
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&t->shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "needs row_sizes of the operand", 0, gather->rows);
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&t->shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "does not go with col_sizes or elements of the operand: its rows must have one width", 0,
                      gather->rows);
    TEGROUP_IMPL_RULE(!tegroup_impl_listed(t), ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "does not go with pointers of the operand: its rows have no common numbering", 0, gather->rows);
    TEGROUP_IMPL_RULE(t->scaling == TEGROUP_SCALING_NONE, ERROR_COMBINATION, TEGROUP_IMPL_PATH(GATHER_ROWS),
                      "does not go with scaling of the operand", 0, gather->rows);
    stored = tegroup_impl_stored(t, gather);
    TEGROUP_IMPL_RULE(tegroup_impl_extent_bytes(&stored) <= tegroup_impl_max_bytes(), ERROR_OVERFLOW,
                      TEGROUP_IMPL_PATH(GATHER_ROWS), "times ld must be addressable", tegroup_impl_max_bytes(),
                      tegroup_impl_extent_bytes(&stored));
    return TEGROUP_OK;
}

/* Rules between the operands' shapes. The reduced dimension and the two that remain must agree wherever they meet;
 * rows of a ragged tensor are capacities, and so are columns that differ between groups. */
static inline tegroup_status tegroup_impl_check_shapes(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                       tegroup_error *error) {
    const tegroup_tensor *a = &desc->a, *b = &desc->b, *d = &desc->d;
    const tegroup_impl_name *a_name = names->operand[TEGROUP_IMPL_A], *b_name = names->operand[TEGROUP_IMPL_B];
    TEGROUP_IMPL_RULE(b->shape.groups == a->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(B, GROUPS),
                      a_name->groups, a->shape.groups, b->shape.groups);
    TEGROUP_IMPL_RULE(d->shape.groups == a->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(D, GROUPS),
                      a_name->groups, a->shape.groups, d->shape.groups);
    if (desc->op == TEGROUP_OP_WGRAD) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_pair(b, b_name, a, a_name, error));
        if (!tegroup_impl_ragged(&d->shape))
            TEGROUP_IMPL_RULE(d->shape.rows == a->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(D, ROWS),
                              a_name->cols, a->shape.cols, d->shape.rows);
        TEGROUP_IMPL_RULE(d->shape.cols == b->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(D, COLS), b_name->cols,
                          b->shape.cols, d->shape.cols);
        return TEGROUP_OK;
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_pair(d, names->operand[TEGROUP_IMPL_D], a, a_name, error));
    if (desc->op == TEGROUP_OP_FORWARD) {
        TEGROUP_IMPL_RULE(b->shape.cols == a->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(B, COLS), a_name->cols,
                          a->shape.cols, b->shape.cols);
        if (!tegroup_impl_ragged(&b->shape))
            TEGROUP_IMPL_RULE(d->shape.cols == b->shape.rows, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(D, COLS),
                              b_name->rows, b->shape.rows, d->shape.cols);
    } else {
        if (!tegroup_impl_ragged(&b->shape))
            TEGROUP_IMPL_RULE(b->shape.rows == a->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(B, ROWS),
                              a_name->cols, a->shape.cols, b->shape.rows);
        TEGROUP_IMPL_RULE(d->shape.cols == b->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(D, COLS), b_name->cols,
                          b->shape.cols, d->shape.cols);
    }
    return TEGROUP_OK;
}

/* The scalings that b may have beside a's, as a bit set: those whose scales are of the same type. Rows that are not
 * quantised go with all weights, and in a wgrad, where both operands are rows, with all rows. */
static inline uint32_t tegroup_impl_scalings_beside(tegroup_scaling a, tegroup_op op) {
    uint32_t set = 0;
    int32_t b;
    for (b = 0; b < TEGROUP_SCALING_COUNT; b++)
        if (a == TEGROUP_SCALING_NONE || (b == TEGROUP_SCALING_NONE && op == TEGROUP_OP_WGRAD)
            || tegroup_scaling_info((tegroup_scaling)b)->scale_dtype == tegroup_scaling_info(a)->scale_dtype)
            set |= 1u << b;
    return set;
}

/* Rules between data types. */
static inline tegroup_status tegroup_impl_check_dtypes(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                       tegroup_error *error) {
    const tegroup_tensor *a = &desc->a, *b = &desc->b, *d = &desc->d;
    int is_f64 = desc->options.compute == TEGROUP_COMPUTE_F64;
    const uint32_t beside = tegroup_impl_scalings_beside(a->scaling, desc->op);
    TEGROUP_IMPL_RULE_AS(SCALINGS, beside >> b->scaling & 1u, ERROR_COMBINATION, TEGROUP_IMPL_OPERAND_PATH(B, SCALING),
                         "must be one that is multiplied with a.scaling", beside, b->scaling);
    TEGROUP_IMPL_RULE_AS(
        SCALING, d->scaling == TEGROUP_SCALING_NONE, ERROR_UNSUPPORTED, TEGROUP_IMPL_OPERAND_PATH(D, SCALING),
        "must be none: a product does not quantise its result, a call after it does", TEGROUP_SCALING_NONE, d->scaling);
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         a->scaling != TEGROUP_SCALING_NONE || b->scaling != TEGROUP_SCALING_NONE
                             || (tegroup_impl_goes_with(a->dtype, b->dtype)
                                 && (desc->op != TEGROUP_OP_WGRAD /* which has no weights for an operand */
                                     || tegroup_impl_bits(a->dtype) == tegroup_impl_bits(b->dtype))),
                         ERROR_DTYPE, TEGROUP_IMPL_OPERAND_PATH(B, DTYPE), names->operand[TEGROUP_IMPL_A]->dtype,
                         a->dtype, b->dtype);
    TEGROUP_IMPL_RULE_AS(DTYPE, a->dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE,
                         TEGROUP_IMPL_OPERAND_PATH(A, DTYPE), "F64 needs compute F64", TEGROUP_DTYPE_F32, a->dtype);
    TEGROUP_IMPL_RULE_AS(DTYPE, b->dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE,
                         TEGROUP_IMPL_OPERAND_PATH(B, DTYPE), "F64 needs compute F64", TEGROUP_DTYPE_F32, b->dtype);
    TEGROUP_IMPL_RULE_AS(DTYPE, d->dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE,
                         TEGROUP_IMPL_OPERAND_PATH(D, DTYPE), "F64 needs compute F64", TEGROUP_DTYPE_F32, d->dtype);
    if (desc->c.dtype != TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_RULE_AS(DTYPE, desc->c.dtype == d->dtype, ERROR_DTYPE, TEGROUP_IMPL_OPERAND_PATH(C, DTYPE),
                             "must equal d.dtype", d->dtype, desc->c.dtype);
    if (desc->bias.dtype != TEGROUP_DTYPE_UNSET) {
        TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_FLOATS >> desc->bias.dtype & 1u, ERROR_DTYPE,
                             TEGROUP_IMPL_OPERAND_PATH(BIAS, DTYPE), "must be one that a bias has", TEGROUP_IMPL_FLOATS,
                             desc->bias.dtype);
        TEGROUP_IMPL_RULE_AS(DTYPE, desc->bias.dtype != TEGROUP_DTYPE_F64 || is_f64, ERROR_DTYPE,
                             TEGROUP_IMPL_OPERAND_PATH(BIAS, DTYPE), "F64 needs compute F64", TEGROUP_DTYPE_F32,
                             desc->bias.dtype);
    }
    return tegroup_impl_check_real(desc->row_scale_dtype, "row_scale_dtype", error);
}

/* The operand whose rows bias belongs to, and in a wgrad is the sum of. */
TEGROUP_IMPL_HD const tegroup_tensor *tegroup_impl_biased(const tegroup_gemm_desc *desc) {
    return desc->bias_of_b ? &desc->b : &desc->a;
}

/* Rules about what goes with what. */
static inline tegroup_status tegroup_impl_check_extras(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                       tegroup_error *error) {
    const tegroup_tensor *c = &desc->c, *d = &desc->d, *bias = &desc->bias;
    int has_c = c->dtype != TEGROUP_DTYPE_UNSET, has_bias = bias->dtype != TEGROUP_DTYPE_UNSET;
    if (has_c) {
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_pair(c, names->operand[TEGROUP_IMPL_C], d, names->operand[TEGROUP_IMPL_D], error));
        TEGROUP_IMPL_RULE(tegroup_impl_irregular(&c->shape) == tegroup_impl_irregular(&d->shape), ERROR_COMBINATION,
                          TEGROUP_IMPL_OPERAND_PATH(C, COL_SIZES), "and elements must be set just when d's are",
                          tegroup_impl_irregular(&d->shape), tegroup_impl_irregular(&c->shape));
        TEGROUP_IMPL_RULE(c->shape.groups == d->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(C, GROUPS),
                          names->operand[TEGROUP_IMPL_D]->groups, d->shape.groups, c->shape.groups);
        TEGROUP_IMPL_RULE(c->shape.cols == d->shape.cols, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(C, COLS),
                          names->operand[TEGROUP_IMPL_D]->cols, d->shape.cols, c->shape.cols);
        TEGROUP_IMPL_RULE(!desc->accumulate, ERROR_COMBINATION, "accumulate",
                          "does not go with c: it makes d its own c", 0, 1);
    }
    TEGROUP_IMPL_RULE(desc->beta.space == TEGROUP_SPACE_UNSET || !desc->accumulate, ERROR_COMBINATION, "accumulate",
                      "does not go with beta: it is 1", 0, 1);
    TEGROUP_IMPL_RULE(desc->beta.space == TEGROUP_SPACE_UNSET || has_c, ERROR_COMBINATION, "beta", "needs c", 1, 0);
    TEGROUP_IMPL_RULE(desc->tail == TEGROUP_TAIL_KEEP || desc->op != TEGROUP_OP_WGRAD, ERROR_COMBINATION, names->tail,
                      "does not go with op WGRAD: its d has no tail", 0, desc->tail);
    TEGROUP_IMPL_RULE(desc->tail == TEGROUP_TAIL_KEEP || !tegroup_impl_irregular(&d->shape), ERROR_COMBINATION,
                      names->tail, "other than KEEP needs d's groups to be rows of one width", 0, desc->tail);
    TEGROUP_IMPL_RULE(desc->tail == TEGROUP_TAIL_KEEP || !tegroup_impl_listed(d), ERROR_COMBINATION, names->tail,
                      "other than KEEP does not go with d.pointers", 0, desc->tail);
    TEGROUP_IMPL_RULE(desc->row_scale_dtype == TEGROUP_DTYPE_UNSET || has_bias, ERROR_COMBINATION, "row_scale_dtype",
                      "needs bias", 0, desc->row_scale_dtype);
    TEGROUP_IMPL_RULE(!desc->bias_of_b || desc->op == TEGROUP_OP_WGRAD, ERROR_COMBINATION, "bias_of_b",
                      "needs op WGRAD: in others a has the rows", TEGROUP_OP_WGRAD, desc->op);
    TEGROUP_IMPL_RULE(!desc->bias_of_b || has_bias, ERROR_COMBINATION, "bias_of_b", "needs bias", 0, 1);
    TEGROUP_IMPL_RULE(desc->row_scale_dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_listed(tegroup_impl_biased(desc)),
                      ERROR_COMBINATION, "row_scale_dtype",
                      desc->bias_of_b ? "does not go with b.pointers: its rows have no common numbering"
                                      : "does not go with a.pointers: its rows have no common numbering",
                      0, desc->row_scale_dtype);
    if (has_bias) {
        const int of_d = desc->op == TEGROUP_OP_DGRAD || desc->bias_of_b;
        const int64_t n = of_d || desc->op == TEGROUP_OP_FORWARD ? d->shape.cols : desc->a.shape.cols;
        TEGROUP_IMPL_RULE(!tegroup_impl_ragged(&bias->shape), ERROR_COMBINATION,
                          TEGROUP_IMPL_OPERAND_PATH(BIAS, ROW_SIZES), "must be unset: one row a group", 0,
                          bias->shape.row_sizes.encoding);
        TEGROUP_IMPL_RULE(bias->shape.groups == d->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(BIAS, GROUPS),
                          names->operand[TEGROUP_IMPL_D]->groups, d->shape.groups, bias->shape.groups);
        TEGROUP_IMPL_RULE(bias->shape.rows == 1, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(BIAS, ROWS), "must be 1", 1,
                          bias->shape.rows);
        TEGROUP_IMPL_RULE(bias->shape.cols == n, ERROR_SHAPE, TEGROUP_IMPL_OPERAND_PATH(BIAS, COLS),
                          of_d ? "must equal k, the columns of d" : "must equal n, the columns of Y", n,
                          bias->shape.cols);
    }
    return TEGROUP_OK;
}

/* An operand that has memory must have a dtype, too, or it would be left out silently. */
static inline tegroup_status tegroup_impl_check_said(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                     tegroup_error *error) {
    if (desc->c.dtype == TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(tegroup_impl_check_absent(&desc->c, names->operand[TEGROUP_IMPL_C], desc->d.dtype, error));
    if (desc->bias.dtype == TEGROUP_DTYPE_UNSET)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_absent(&desc->bias, names->operand[TEGROUP_IMPL_BIAS], desc->a.dtype, error));
    TEGROUP_IMPL_RULE(desc->alpha.space != TEGROUP_SPACE_UNSET || !desc->alpha.data, ERROR_UNSET, "alpha.space",
                      "must be set with data", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE(desc->beta.space != TEGROUP_SPACE_UNSET || !desc->beta.data, ERROR_UNSET, "beta.space",
                      "must be set with data", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, desc->row_scale_dtype != TEGROUP_DTYPE_UNSET || !desc->row_scale, ERROR_UNSET,
                         "row_scale_dtype", "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    return TEGROUP_OK;
}

static inline void tegroup_impl_operands_of(const tegroup_gemm_desc *desc,
                                            const tegroup_tensor *operands[TEGROUP_IMPL_OPERANDS]) {
    operands[TEGROUP_IMPL_A] = &desc->a;
    operands[TEGROUP_IMPL_B] = &desc->b;
    operands[TEGROUP_IMPL_C] = &desc->c;
    operands[TEGROUP_IMPL_D] = &desc->d;
    operands[TEGROUP_IMPL_BIAS] = &desc->bias;
}

/* Check a descriptor without its data pointers and resolve its defaults, in the words of whoever made it. */
static inline tegroup_status tegroup_impl_problem_of(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                     tegroup_problem *problem, tegroup_error *error) {
    const tegroup_tensor *operands[TEGROUP_IMPL_OPERANDS];
    int32_t i;
    tegroup_impl_operands_of(desc, operands);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_numbers(desc, names, error));
    for (i = 0; i < TEGROUP_IMPL_OPERANDS; i++)
        if (operands[i]->dtype != TEGROUP_DTYPE_UNSET || (i != TEGROUP_IMPL_C && i != TEGROUP_IMPL_BIAS))
            TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(operands[i], names->operand[i], error));
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++)
        TEGROUP_IMPL_TRY(tegroup_impl_check_copy_lists(operands[i], names->operand[i], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_gather(&desc->gather_a, &desc->a, names->operand[TEGROUP_IMPL_A],
                                               TEGROUP_IMPL_A, desc->op, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_gather(&desc->gather_b, &desc->b, names->operand[TEGROUP_IMPL_B],
                                               TEGROUP_IMPL_B, desc->op, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_shapes(desc, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_dtypes(desc, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_extras(desc, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_said(desc, names, error));

    memset(problem, 0, sizeof *problem);
    problem->op = desc->op;
    problem->space = desc->space;
    problem->compute = desc->options.compute;
    problem->groups = desc->a.shape.groups;
    problem->rows = desc->a.shape.rows;
    problem->n = desc->op == TEGROUP_OP_FORWARD ? desc->d.shape.cols : desc->a.shape.cols;
    problem->k = desc->op == TEGROUP_OP_FORWARD ? desc->a.shape.cols : desc->d.shape.cols;
    problem->a = desc->a.dtype;
    problem->b = desc->b.dtype;
    problem->c = desc->c.dtype;
    problem->d = desc->d.dtype;
    problem->bias = desc->bias.dtype;
    problem->row_scale = desc->row_scale_dtype;
    problem->a_scaling = desc->a.scaling;
    problem->b_scaling = desc->b.scaling;
    problem->d_scaling = desc->d.scaling;
    problem->lda = tegroup_impl_ld(&desc->a);
    problem->ldb = tegroup_impl_ld(&desc->b);
    problem->ldc = desc->c.dtype != TEGROUP_DTYPE_UNSET ? tegroup_impl_ld(&desc->c) : 0;
    problem->ldd = tegroup_impl_ld(&desc->d);
    for (i = 0; i < TEGROUP_IMPL_OPERANDS; i++) {
        const tegroup_tensor *t = operands[i];
        if (t->dtype == TEGROUP_DTYPE_UNSET) continue;
        problem->pointers_space[i] = (uint8_t)t->pointers_space;
        if (i == TEGROUP_IMPL_BIAS) continue;
        if (tegroup_impl_ragged(&t->shape)) problem->rows_space[i] = (uint8_t)t->shape.row_sizes.space;
        problem->ragged_cols[i] = t->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET;
        problem->has_elements[i] = t->shape.elements > 0;
        problem->irregular = (uint8_t)(problem->irregular | tegroup_impl_irregular(&t->shape));
    }
    /* the side that is uniform in a regular problem */
    problem->irregular =
        (uint8_t)(problem->irregular
                  | tegroup_impl_ragged(desc->op == TEGROUP_OP_WGRAD ? &desc->d.shape : &desc->b.shape));
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++) {
        problem->scale_dtype[i] = (uint8_t)operands[i]->scale_dtype;
        problem->scale_strides[i] = operands[i]->scale_outer_stride > 0;
        problem->columnwise_order[i] = (uint8_t)operands[i]->columnwise_order;
    }
    problem->gathered[TEGROUP_IMPL_A] = desc->gather_a.rows > 0;
    problem->gathered[TEGROUP_IMPL_B] = desc->gather_b.rows > 0;
    problem->alpha_space = (uint8_t)desc->alpha.space;
    problem->beta_space = (uint8_t)desc->beta.space;
    problem->alpha_stride = (uint8_t)(desc->alpha.space != TEGROUP_SPACE_UNSET ? desc->alpha.stride : 0);
    problem->beta_stride = (uint8_t)(desc->beta.space != TEGROUP_SPACE_UNSET ? desc->beta.stride : 0);
    problem->accumulate = (uint8_t)desc->accumulate;
    problem->bias_of_b = (uint8_t)desc->bias_of_b;
    problem->tail = desc->tail;
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm_problem(const tegroup_gemm_desc *desc, tegroup_problem *problem,
                                                tegroup_error *error) {
    tegroup_gemm_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(problem != NULL, ERROR_NULL_ARGUMENT, "problem", "must not be NULL", 1, 0);
    return tegroup_impl_problem_of(desc, tegroup_impl_gemm_names(), problem, error);
}

/* ==== [41] Backend and quirk tables (src/core/backend_table.h) ==== */

/* What each backend does where. Explain, plan, checks and docs/backends.md read this table and nothing else. */
TEGROUP_API const tegroup_backend_rule *tegroup_backend_rules(int32_t *count) {
#define TEGROUP_IMPL_DT(name) (1u << TEGROUP_DTYPE_##name)
#define TEGROUP_IMPL_SC(name) (1u << TEGROUP_SCALING_##name)
#define TEGROUP_IMPL_HALVES (TEGROUP_IMPL_DT(F16) | TEGROUP_IMPL_DT(BF16))
#define TEGROUP_IMPL_FP8 (TEGROUP_IMPL_DT(F8E4M3) | TEGROUP_IMPL_DT(F8E5M2))
#define TEGROUP_IMPL_RESULTS (TEGROUP_IMPL_HALVES | TEGROUP_IMPL_DT(F32))
#define TEGROUP_IMPL_COMMON (TEGROUP_FEATURE_GROUP_SCALARS | TEGROUP_FEATURE_LISTS)
#define TEGROUP_IMPL_BUNDLED                                                                                           \
    (TEGROUP_FEATURE_DEVICE_SIZES | TEGROUP_IMPL_COMMON | TEGROUP_FEATURE_BIAS | TEGROUP_FEATURE_TAIL                  \
     | TEGROUP_FEATURE_SM_LIMIT)
#define TEGROUP_IMPL_CUBLASLT (TEGROUP_IMPL_COMMON | TEGROUP_FEATURE_IRREGULAR)
    static const tegroup_backend_rule table[] = {
        /* backend, SM from, to, cuBLASLt from, operands, results, scalings, features, alignment, known from */
        {TEGROUP_BACKEND_SM90, 90, 90, 0, TEGROUP_IMPL_HALVES, TEGROUP_IMPL_RESULTS, TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_BUNDLED | TEGROUP_FEATURE_GATHER, 16, "TMA asks for 16-byte rows"},
        {TEGROUP_BACKEND_SM90, 90, 90, 0, TEGROUP_IMPL_FP8, TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(TENSOR) | TEGROUP_IMPL_SC(ROW) | TEGROUP_IMPL_SC(BLOCK_1X128) | TEGROUP_IMPL_SC(BLOCK_128X128),
         TEGROUP_IMPL_BUNDLED, 16, "wgmma of FP8, whose sums of 128 of k are added in FP32; TMA asks for 16-byte rows"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 100, 110, 130300, TEGROUP_IMPL_DT(F16),
         TEGROUP_IMPL_DT(F16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_DEVICE_SIZES, 0, "TransformerEngine pull request 2765"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 100, 110, 130300, TEGROUP_IMPL_DT(BF16),
         TEGROUP_IMPL_DT(BF16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_DEVICE_SIZES, 0, "TransformerEngine pull request 2765"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 90, 90, 130400, TEGROUP_IMPL_DT(F16),
         TEGROUP_IMPL_DT(F16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_DEVICE_SIZES, 0,
         "TransformerEngine, cublaslt_grouped_gemm.cu; per-group scalars by experiment with 13.10"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 90, 90, 130400, TEGROUP_IMPL_DT(BF16),
         TEGROUP_IMPL_DT(BF16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_DEVICE_SIZES, 0,
         "TransformerEngine, cublaslt_grouped_gemm.cu; per-group scalars by experiment with 13.10"},
        {TEGROUP_BACKEND_PORTABLE, 80, 999, 0, TEGROUP_IMPL_HALVES | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(NONE), TEGROUP_IMPL_BUNDLED | TEGROUP_FEATURE_IRREGULAR | TEGROUP_FEATURE_MIXED, 0,
         "mma.sync of SM80"},
        {TEGROUP_BACKEND_PORTABLE, 80, 999, 0, TEGROUP_IMPL_HALVES | TEGROUP_IMPL_FP8, TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(NONE) | TEGROUP_IMPL_SC(TENSOR) | TEGROUP_IMPL_SC(ROW) | TEGROUP_IMPL_SC(BLOCK_1X128)
             | TEGROUP_IMPL_SC(BLOCK_128X128) | TEGROUP_IMPL_SC(BLOCK_32X32),
         TEGROUP_IMPL_BUNDLED | TEGROUP_FEATURE_IRREGULAR, 0,
         "mma.sync of SM80 in BF16 or F16, in which values are exact; F32 scales multiply sums"},
        {TEGROUP_BACKEND_PORTABLE, 80, 999, 0, TEGROUP_IMPL_DT(BF16) | TEGROUP_IMPL_FP8 | TEGROUP_IMPL_DT(F4E2M1),
         TEGROUP_IMPL_RESULTS,
         TEGROUP_IMPL_SC(NONE) | TEGROUP_IMPL_SC(MXFP8) | TEGROUP_IMPL_SC(MXFP8_32X32) | TEGROUP_IMPL_SC(MXFP4)
             | TEGROUP_IMPL_SC(NVFP4) | TEGROUP_IMPL_SC(NVFP4_16X16),
         TEGROUP_IMPL_BUNDLED | TEGROUP_FEATURE_IRREGULAR, 0,
         "mma.sync of SM80 in BF16, in which values times their scales are exact"},
        {TEGROUP_BACKEND_CUBLASLT_LOOP, 70, 999, 120000, TEGROUP_IMPL_DT(F16),
         TEGROUP_IMPL_DT(F16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_HOST_SIZES, 0,
         "cuBLAS documentation, cublasLtMatmul; with C the product may be rounded to d's type first (seen with 13.1)"},
        {TEGROUP_BACKEND_CUBLASLT_LOOP, 70, 999, 120000, TEGROUP_IMPL_DT(BF16),
         TEGROUP_IMPL_DT(BF16) | TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_SC(NONE),
         TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_HOST_SIZES, 0,
         "cuBLAS documentation, cublasLtMatmul; with C the product may be rounded to d's type first (seen with 13.1)"},
        {TEGROUP_BACKEND_CUBLASLT_LOOP, 70, 999, 120000, TEGROUP_IMPL_DT(F32), TEGROUP_IMPL_DT(F32),
         TEGROUP_IMPL_SC(NONE), TEGROUP_IMPL_CUBLASLT | TEGROUP_FEATURE_HOST_SIZES, 0,
         "cuBLAS documentation, cublasLtMatmul"},
        {TEGROUP_BACKEND_CPU, 0, 0, 0, TEGROUP_IMPL_FLOATS | TEGROUP_IMPL_FP8 | TEGROUP_IMPL_DT(F4E2M1),
         TEGROUP_IMPL_FLOATS, (1u << TEGROUP_SCALING_COUNT) - 1,
         TEGROUP_IMPL_COMMON | TEGROUP_FEATURE_HOST_SIZES | TEGROUP_FEATURE_HOST_MEMORY | TEGROUP_FEATURE_IRREGULAR
             | TEGROUP_FEATURE_BIAS | TEGROUP_FEATURE_TAIL | TEGROUP_FEATURE_F64 | TEGROUP_FEATURE_GATHER
             | TEGROUP_FEATURE_MIXED,
         0, "plain C"},
    };
#undef TEGROUP_IMPL_CUBLASLT
#undef TEGROUP_IMPL_BUNDLED
#undef TEGROUP_IMPL_COMMON
#undef TEGROUP_IMPL_RESULTS
#undef TEGROUP_IMPL_FP8
#undef TEGROUP_IMPL_HALVES
#undef TEGROUP_IMPL_SC
#undef TEGROUP_IMPL_DT
    if (count) *count = (int32_t)(sizeof table / sizeof table[0]);
    return table;
}

/* Known-bad combinations. */
TEGROUP_API const tegroup_quirk *tegroup_quirks(int32_t *count) {
    static const tegroup_quirk table[] = {
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, 130300, 90, 110, TEGROUP_QUIRK_WGRAD, TEGROUP_QUIRK_REFUSE,
         "has a known fault: weight gradients are wrong when a group is empty",
         "https://github.com/NVIDIA/TransformerEngine/pull/2765"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, 130800, 90, 110, TEGROUP_QUIRK_ALWAYS, TEGROUP_QUIRK_SEPARATE,
         "has a known fault: stale tensor-map descriptors in a shared workspace hang the second replay of a graph",
         "https://github.com/NVIDIA/TransformerEngine/pull/3171"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 130700, 130800, 103, 110, TEGROUP_QUIRK_ALWAYS, TEGROUP_QUIRK_REFUSE,
         "has a known fault: one grouped algorithm silently corrupts results on B300 and Rubin",
         "https://github.com/NVIDIA/TransformerEngine/pull/3475"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, 130801, 90, 110, TEGROUP_QUIRK_ALWAYS, TEGROUP_QUIRK_REFUSE,
         "has a known fault: grouped products may corrupt data (this covers the older reports above, unless it is "
         "ignored)",
         "warning that TransformerEngine 2.20.2 prints for grouped GEMM below cuBLAS 13.8.1"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, TEGROUP_QUIRK_UNFIXED, 90, 110, TEGROUP_QUIRK_MISALIGNED_LD,
         TEGROUP_QUIRK_REFUSE,
         "has a known fault: a leading dimension that is not a multiple of 16 bytes returns SUCCESS and wrong numbers",
         "seen with cuBLAS 13.10.0.20 on an H200, BF16, k = 260 and n = 516: relative error 1.4"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, 131000, 90, 90, TEGROUP_QUIRK_GROUP_SCALARS, TEGROUP_QUIRK_REFUSE,
         "has a known fault: alpha and beta in device memory are not known to be honoured",
         "TransformerEngine refuses them on SM90; shown right by a value test with 13.10.0.20"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, TEGROUP_QUIRK_UNFIXED, 90, 110, TEGROUP_QUIRK_MISALIGNED_COLS,
         TEGROUP_QUIRK_REFUSE,
         "has a known fault: where d's columns are not a multiple of 16 bytes, the bytes after them are overwritten",
         "seen with cuBLAS 13.10.0.20 on an H200: tests/gpu/test_gpu.cu, F16, 35 columns in rows of 48"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, TEGROUP_QUIRK_UNFIXED, 100, 110, TEGROUP_QUIRK_GROUP_SCALARS,
         TEGROUP_QUIRK_REFUSE, "may have a fault: alpha and beta in device memory have met no value test on this GPU",
         "not run there by tegroup; TransformerEngine passes them"},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, 0, TEGROUP_QUIRK_UNFIXED, 90, 110, TEGROUP_QUIRK_ACCUMULATED_HALVES,
         TEGROUP_QUIRK_AVOID,
         "has a known fault: results are wrong where c and d are one layout and one list, so c gets its own",
         "seen with cuBLAS 13.10.0.20 on an H200: the GPU suite, errors of 1.7 to 146 bounds"},
        {TEGROUP_BACKEND_CUBLASLT_LOOP, 0, TEGROUP_QUIRK_UNFIXED, 70, 999, TEGROUP_QUIRK_ACCUMULATED_HALVES,
         TEGROUP_QUIRK_AVOID, "is not trusted where c and d are one layout, as cublaslt_grouped is not: c gets its own",
         "not seen here by itself; one rule serves both"},
        {TEGROUP_BACKEND_CUBLASLT_LOOP, 0, TEGROUP_QUIRK_UNFIXED, 70, 999, TEGROUP_QUIRK_ADDED_HALVES,
         TEGROUP_QUIRK_AVOID,
         "rounds alpha times the sum to d's type before it adds where c is d, and nowhere else: c is copied into d "
         "first",
         "seen with cuBLAS 13.1; tests/gpu/test_invariance.cu"},
    };
    if (count) *count = (int32_t)(sizeof table / sizeof table[0]);
    return table;
}

/* Does the caller take the risk of what goes wrong in this case? */
static inline int tegroup_impl_quirk_ignored(const tegroup_gemm_desc *desc, tegroup_quirk_case when) {
    int32_t count, i;
    const tegroup_quirk *quirks = tegroup_quirks(&count);
    for (i = 0; i < count; i++)
        if (quirks[i].when == when && desc->options.ignore_quirks >> i & 1u) return 1;
    return 0;
}

/* Must the library be called in another way than the plain one, so that this does not happen? */
static inline int tegroup_impl_quirk_avoided(tegroup_backend backend, int32_t sm, int32_t cublaslt_version,
                                             tegroup_quirk_case when) {
    int32_t count, i;
    const tegroup_quirk *quirks = tegroup_quirks(&count);
    for (i = 0; i < count; i++)
        if (quirks[i].action == TEGROUP_QUIRK_AVOID && quirks[i].when == when && quirks[i].backend == backend
            && sm >= quirks[i].sm_min && sm <= quirks[i].sm_max && cublaslt_version >= quirks[i].cublaslt_from
            && cublaslt_version < quirks[i].cublaslt_below)
            return 1;
    return 0;
}

/* ==== [42] What decides the bits of a result (src/core/numerics.h) ==== */

/* FNV-1a. */
#define TEGROUP_IMPL_HASH UINT64_C(14695981039346656037)
static inline uint64_t tegroup_impl_hash(uint64_t hash, const void *bytes, size_t count) {
    size_t i;
    for (i = 0; i < count; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Of what decides the order of a sum and the rounding of its terms; rows and groups are not in it. */
static inline uint64_t tegroup_impl_numerics_id(const tegroup_problem *p, tegroup_backend backend, int32_t sm) {
    int64_t parts[10];
    parts[0] = backend;
    parts[1] = p->op;
    parts[2] = p->compute;
    parts[3] = p->op == TEGROUP_OP_WGRAD ? 0 : p->n;
    parts[4] = p->op == TEGROUP_OP_WGRAD ? 0 : p->k;
    parts[5] = p->a;
    parts[6] = p->b;
    parts[7] = p->d;
    parts[8] = p->a_scaling * TEGROUP_SCALING_COUNT + p->b_scaling;
    parts[9] = sm;
    return tegroup_impl_hash(TEGROUP_IMPL_HASH, parts, sizeof parts);
}

static inline int tegroup_impl_uses_cublaslt(tegroup_backend backend) {
    return backend == TEGROUP_BACKEND_CUBLASLT_GROUPED || backend == TEGROUP_BACKEND_CUBLASLT_LOOP;
}

/* ==== [43] What a plan chooses (src/core/choice.h) ==== */

/* The choice that a plan made among equals: cuBLASLt's algorithm, the tile of sm90. All zero where a backend has one
 * candidate. */
typedef struct tegroup_impl_choice {
    uint64_t words[8];
} tegroup_impl_choice;

/* What a plan can choose from, each once. */
typedef struct tegroup_impl_choices {
    tegroup_impl_choice list[TEGROUP_TUNE_CANDIDATES];
    int32_t count;
} tegroup_impl_choices;

static inline void tegroup_impl_choices_add(tegroup_impl_choices *choices, const tegroup_impl_choice *choice) {
    int32_t i;
    for (i = 0; i < choices->count; i++)
        if (memcmp(&choices->list[i], choice, sizeof *choice) == 0) return;
    if (choices->count < TEGROUP_TUNE_CANDIDATES) choices->list[choices->count++] = *choice;
}

/* plan.algorithm of the bundled backends: the kernel's address in this unit, its threads, shared memory and blocks.
 * SM90 has the driver's function that makes tensor maps besides, how many of the last groups have narrow tiles
 * alone, and the kernel's number in its table. */
enum {
    TEGROUP_IMPL_PLANNED_KERNEL,
    TEGROUP_IMPL_PLANNED_THREADS,
    TEGROUP_IMPL_PLANNED_SHARED,
    TEGROUP_IMPL_PLANNED_BLOCKS,
    TEGROUP_IMPL_PLANNED_ENCODE,
    TEGROUP_IMPL_PLANNED_NARROWS,
    TEGROUP_IMPL_PLANNED_ROW
};

/* What a backend says of the tile that it takes. */
typedef struct tegroup_impl_forecast {
    const char *why; /* NULL: it says nothing */
    double us;       /* predicted time of a call; 0: not predicted */
} tegroup_impl_forecast;

/* Rows of all groups together that a plan is made for. */
static inline int64_t tegroup_impl_expected_rows(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    if (desc->options.expected_rows > 0) return desc->options.expected_rows;
    return p->rows_space[TEGROUP_IMPL_A] ? p->rows : tegroup_impl_mul(p->rows, p->groups);
}

/* ==== [44] The product of one group (src/core/product.h) ==== */

/* The row of its data from which row r of a gathered operand comes; -1: the row is of zeros. */
TEGROUP_IMPL_HD int64_t tegroup_impl_gathered(const tegroup_gather *gather, int64_t r) {
    const int64_t slot = gather->slot_of_row[r], row = slot < 0 || gather->slots <= 1 ? slot : slot / gather->slots;
    return row >= 0 && row < gather->rows ? row : -1;
}

/* The element where row r of a group begins, of an operand that may be gathered; -1: the row is of zeros. */
TEGROUP_IMPL_HD int64_t tegroup_impl_row_at(const tegroup_gather *gather, const tegroup_impl_block *block, int64_t r) {
    int64_t row;
    if (gather->rows == 0) return block->first + r * block->ld;
    row = tegroup_impl_gathered(gather, block->row0 + r);
    return row < 0 ? -1 : row * block->ld;
}

/* D = alpha * A' * B' + beta * C for one group, with A' [m, k] and B' [k, n] given by strides. */
typedef struct tegroup_impl_product {
    int64_t m, n, k;
    tegroup_impl_block a, b, c, d, bias;
    int64_t a_line, a_k, b_line, b_k; /* strides in elements: between lines of m (or n), and along k */
    double alpha, beta;
    int32_t skip;      /* the sizes say that this group is not to be touched */
    int32_t untouched; /* D is its own C, and nothing is added to it         */
} tegroup_impl_product;

TEGROUP_IMPL_HD double tegroup_impl_scalar(const tegroup_scalars *s, int32_t g, double otherwise) {
    if (s->space == TEGROUP_SPACE_UNSET) return otherwise;
    return tegroup_impl_load_f64(s->dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, s->data,
                                 s->stride ? g : 0);
}

/* Extents of a group's product, [m, k] times [k, n]. */
typedef struct tegroup_impl_meeting {
    int64_t m, n, k;
} tegroup_impl_meeting;

/* Operands whose sizes disagree, because their snapshots do, meet in the smaller one. */
TEGROUP_IMPL_HD tegroup_impl_meeting tegroup_impl_meet(tegroup_op op, tegroup_impl_sides a, tegroup_impl_sides b,
                                                       tegroup_impl_sides d) {
    const int forward = op == TEGROUP_OP_FORWARD, wgrad = op == TEGROUP_OP_WGRAD;
    tegroup_impl_meeting size;
    size.m = tegroup_impl_min(wgrad ? a.cols : a.rows, d.rows);
    size.n = tegroup_impl_min(forward ? b.rows : b.cols, d.cols);
    size.k = tegroup_impl_min(wgrad ? a.rows : a.cols, forward ? b.cols : b.rows);
    return size;
}

/* A C whose own snapshot is smaller bounds the product, too. */
TEGROUP_IMPL_HD void tegroup_impl_meet_c(tegroup_impl_meeting *size, tegroup_impl_sides c) {
    size->m = tegroup_impl_min(size->m, c.rows);
    size->n = tegroup_impl_min(size->n, c.cols);
}

/* The product of group g. alpha and beta are the defaults for scalars that the descriptor leaves out. */
TEGROUP_IMPL_HD tegroup_impl_product tegroup_impl_product_of(const tegroup_gemm_desc *desc,
                                                             const tegroup_snapshot_view views[4], int32_t g,
                                                             double alpha, double beta) {
    tegroup_impl_product p;
    tegroup_impl_sides a, b, d;
    tegroup_impl_meeting size;
    const tegroup_tensor *c = desc->accumulate ? &desc->d : &desc->c;
    memset(&p, 0, sizeof p);
    p.a = tegroup_impl_locate(&desc->a, &views[TEGROUP_IMPL_A], g);
    p.b = tegroup_impl_locate(&desc->b, &views[TEGROUP_IMPL_B], g);
    p.d = tegroup_impl_locate(&desc->d, &views[TEGROUP_IMPL_D], g);
    if (c->dtype != TEGROUP_DTYPE_UNSET)
        p.c = tegroup_impl_locate(c, &views[desc->accumulate ? TEGROUP_IMPL_D : TEGROUP_IMPL_C], g);
    if (desc->bias.dtype != TEGROUP_DTYPE_UNSET) p.bias = tegroup_impl_locate(&desc->bias, NULL, g);
    p.alpha = tegroup_impl_scalar(&desc->alpha, g, alpha);
    p.beta = desc->accumulate ? 1 : tegroup_impl_scalar(&desc->beta, g, beta);
    p.skip = p.a.rows < 0 || p.b.rows < 0 || p.d.rows < 0;
    a = tegroup_impl_sides_of(p.a.rows, p.a.cols);
    b = tegroup_impl_sides_of(p.b.rows, p.b.cols);
    d = tegroup_impl_sides_of(p.d.rows, p.d.cols);
    if (desc->op == TEGROUP_OP_WGRAD) {
        size = tegroup_impl_meet(TEGROUP_OP_WGRAD, a, b, d);
        p.a_line = 1;
        p.a_k = p.a.ld;
        p.b_line = 1;
        p.b_k = p.b.ld;
    } else {
        int forward = desc->op == TEGROUP_OP_FORWARD;
        size = tegroup_impl_meet(forward ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, a, b, d);
        p.a_line = p.a.ld;
        p.a_k = 1;
        p.b_line = forward ? p.b.ld : 1;
        p.b_k = forward ? 1 : p.b.ld;
    }
    if (c->dtype != TEGROUP_DTYPE_UNSET) tegroup_impl_meet_c(&size, tegroup_impl_sides_of(p.c.rows, p.c.cols));
    p.m = size.m;
    p.n = size.n;
    p.k = size.k;
    p.untouched = p.k == 0 && p.beta == 1 && p.c.base == p.d.base && p.c.first == p.d.first
                  && (desc->bias.dtype == TEGROUP_DTYPE_UNSET || desc->op == TEGROUP_OP_WGRAD);
    return p;
}

/* Rows in one group of the operand that bias belongs to. */
TEGROUP_IMPL_HD const tegroup_impl_block *tegroup_impl_biased_block(const tegroup_gemm_desc *desc,
                                                                    const tegroup_impl_product *p) {
    return desc->bias_of_b ? &p->b : &p->a;
}

/* The element where row r of a group begins that a wgrad sums for bias; -1: the row is of zeros. */
TEGROUP_IMPL_HD int64_t tegroup_impl_biased_row_at(const tegroup_gemm_desc *desc, const tegroup_impl_product *p,
                                                   int64_t r) {
    return tegroup_impl_row_at(desc->bias_of_b ? &desc->gather_b : &desc->gather_a, tegroup_impl_biased_block(desc, p),
                               r);
}

/* Which operands of the group are looked at, or written: a bit each, by tegroup_impl_operand. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_uses(const tegroup_gemm_desc *desc, const tegroup_impl_product *p) {
    const int has_bias = desc->bias.dtype != TEGROUP_DTYPE_UNSET, wgrad = desc->op == TEGROUP_OP_WGRAD;
    const tegroup_impl_block *summed = tegroup_impl_biased_block(desc, p);
    uint32_t used = 0;
    if (p->skip) return 0;
    if (p->m > 0 && p->n > 0 && !p->untouched) {
        used |= 1u << TEGROUP_IMPL_D;
        if (p->k > 0) used |= 1u << TEGROUP_IMPL_A | 1u << TEGROUP_IMPL_B;
        if (p->beta != 0) used |= 1u << TEGROUP_IMPL_C;
        if (has_bias && !wgrad) used |= 1u << TEGROUP_IMPL_BIAS;
    }
    if (has_bias && wgrad && tegroup_impl_min(summed->cols, p->bias.cols) > 0
        && (summed->rows > 0 || !desc->accumulate)) {
        used |= 1u << TEGROUP_IMPL_BIAS;
        if (summed->rows > 0) used |= 1u << (desc->bias_of_b ? TEGROUP_IMPL_B : TEGROUP_IMPL_A);
    }
    return used;
}

/* ==== [45] Quantised operands (src/core/quantised.h) ==== */

static inline int tegroup_impl_quantised(const tegroup_problem *p) {
    return p->a_scaling != TEGROUP_SCALING_NONE || p->b_scaling != TEGROUP_SCALING_NONE;
}

/* Does a product sum over the operand's rows? Then it reads the copy that is quantised along columns. */
TEGROUP_IMPL_HD int tegroup_impl_sums_rows(tegroup_op op, tegroup_impl_operand operand) {
    return op == TEGROUP_OP_WGRAD || (op == TEGROUP_OP_DGRAD && operand == TEGROUP_IMPL_B);
}

/* Which copy of a or b a product reads. Where a scale is chosen for as many rows as columns (a group, or a square
 * block), values are the same along both, and the rowwise copy serves where there is no other. */
static inline int tegroup_impl_reads_columnwise(const tegroup_gemm_desc *desc, tegroup_impl_operand operand) {
    const tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b;
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    if (t->scaling == TEGROUP_SCALING_NONE || !tegroup_impl_sums_rows(desc->op, operand)) return 0;
    return t->columnwise_data || t->columnwise_pointers || facts->choice_outer != facts->block_inner;
}

/* The operand with that copy in the place of the rowwise one. */
static inline tegroup_tensor tegroup_impl_as_read(const tegroup_gemm_desc *desc, tegroup_impl_operand operand) {
    tegroup_tensor t = operand == TEGROUP_IMPL_A ? desc->a : desc->b;
    if (!tegroup_impl_reads_columnwise(desc, operand)) return t;
    t.data = t.columnwise_data;
    t.pointers = t.columnwise_pointers;
    t.scale_inv = t.columnwise_scale_inv;
    t.scale_pointers = t.columnwise_scale_pointers;
    return t;
}

/* What a call reads of a quantised operand: one of its copies, and that one's scales. */
typedef struct tegroup_impl_copy_paths {
    const char *data, *scales; /* the buffers or the lists */
} tegroup_impl_copy_paths;
static inline tegroup_impl_copy_paths tegroup_impl_copy_paths_of(const tegroup_impl_name *name, int listed,
                                                                 int columnwise) {
    tegroup_impl_copy_paths paths;
    if (listed) {
        paths.data = columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_POINTERS) : TEGROUP_IMPL_PATH(POINTERS);
        paths.scales = columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_SCALE_POINTERS) : TEGROUP_IMPL_PATH(SCALE_POINTERS);
    } else {
        paths.data = columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_DATA) : TEGROUP_IMPL_PATH(DATA);
        paths.scales = columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_SCALE_INV) : TEGROUP_IMPL_PATH(SCALE_INV);
    }
    return paths;
}

/* A quantised operand of one group, as lines of m or n that a product sums along k. Element k of a line is at
 * first + line * line_stride + k * k_stride of `data`. */
typedef struct tegroup_impl_scaled {
    const tegroup_scaling_facts *facts; /* NULL: the operand is not quantised                             */
    const void *data, *scales;          /* of the group, or of all                                        */
    int64_t first, line_stride, k_stride;
    tegroup_impl_scale_grid grid;     /* where the group's scales are                                   */
    double global;                    /* what all values of the group are multiplied by                 */
    tegroup_dtype dtype, scale_dtype; /* of the elements, and of what the grid counts                   */
    int32_t columnwise, sums_rows;
    int64_t elements, stored; /* elements of a transposed copy, and scales, that the groups up to this one take */
} tegroup_impl_scaled;

/* Before the first group. desc: as the caller made it, or with operands as they are read. */
static inline tegroup_impl_scaled tegroup_impl_scaled_of(const tegroup_gemm_desc *desc, tegroup_impl_operand operand) {
    const tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b;
    tegroup_impl_scaled scaled;
    memset(&scaled, 0, sizeof scaled);
    if (t->scaling == TEGROUP_SCALING_NONE) return scaled;
    scaled.facts = tegroup_scaling_info(t->scaling);
    scaled.dtype = t->dtype;
    scaled.scale_dtype = tegroup_impl_scale_dtype(t, scaled.facts);
    if (scaled.scale_dtype == TEGROUP_DTYPE_I32) scaled.scale_dtype = TEGROUP_DTYPE_F8E8M0;
    scaled.columnwise = tegroup_impl_reads_columnwise(desc, operand);
    scaled.sums_rows = tegroup_impl_sums_rows(desc->op, operand);
    return scaled;
}

/* Goes on to group g, the one after the last. t: the operand as it is read. */
TEGROUP_IMPL_HD void tegroup_impl_scaled_next(tegroup_impl_scaled *scaled, const tegroup_tensor *t,
                                              const tegroup_snapshot_view *view, int32_t g) {
    const tegroup_impl_elements at = tegroup_impl_elements_after(t, view, g, scaled->columnwise, scaled->elements);
    const int listed = tegroup_impl_listed(t);
    scaled->grid = tegroup_impl_scale_grid_after(t, scaled->facts, view, g, scaled->columnwise, scaled->stored);
    scaled->data = listed ? t->pointers[g] : t->data;
    scaled->scales = listed ? t->scale_pointers[g] : t->scale_inv;
    scaled->first = at.first;
    scaled->line_stride = scaled->sums_rows ? at.col_stride : at.row_stride;
    scaled->k_stride = scaled->sums_rows ? at.row_stride : at.col_stride;
    scaled->global = t->global_scale_inv ? tegroup_impl_f64_of_f32(t->global_scale_inv[g]) : 1;
    scaled->elements += tegroup_impl_transposed_count(tegroup_impl_group_sides(t, view, g));
    scaled->stored += scaled->grid.count;
}

/* The scale of element k of a line, and in *shared how many from k on have it. */
TEGROUP_IMPL_HD double tegroup_impl_scale_along(const tegroup_impl_scaled *scaled, int64_t line, int64_t k,
                                                int64_t *shared) {
    const int k_is_inner = scaled->sums_rows == scaled->columnwise;
    const int64_t at =
        k_is_inner ? tegroup_impl_scale_at(&scaled->grid, line, k) : tegroup_impl_scale_at(&scaled->grid, k, line);
    *shared = tegroup_impl_scale_shared(&scaled->grid, k, !k_is_inner);
    return tegroup_impl_load_f64(scaled->scale_dtype, scaled->scales, at);
}

/* ==== [46] An activation in an epilogue (src/core/epilogue.h) ==== */

/* An activation in the epilogue of a forward product, or the gradient of one in that of a dgrad. */
typedef struct tegroup_impl_epilogue {
    tegroup_fused_kernel kernel;               /* of the product that has it */
    tegroup_activation_desc activation;        /* of D; a gradient's, of its input */
    const tegroup_gemm_desc *up;               /* forward: the product of the ups, whose weights and bias are b and bias
                                                  there; NULL: they are in the gates' */
    int keeps_d;                               /* forward: D is wanted, too */
    int activates_again;                       /* gradient: activation.output is wanted, too */
    tegroup_activation_backward_desc gradient; /* of D, whose memory holds sums for grad_row_scale instead */
} tegroup_impl_epilogue;

/* ==== [47] Prepare a snapshot (src/gemm/prepare.h) ==== */

#if defined(TEGROUP_IMPL_CUDA)
static inline tegroup_status tegroup_impl_cuda_prepare(const tegroup_impl_preparation *p,
                                                       const tegroup_prepare_desc *desc, const tegroup_layout *layout,
                                                       struct CUstream_st *stream, tegroup_error *error);
#endif

/* What the check has passed. */
static inline tegroup_impl_preparation tegroup_impl_preparation_of(const tegroup_prepare_desc *desc,
                                                                   const tegroup_layout *layout) {
    tegroup_impl_preparation p;
    memset(&p, 0, sizeof p);
    p.groups = desc->shape.groups;
    p.irregular = tegroup_impl_irregular(&desc->shape);
    p.capacity_rows = desc->shape.rows;
    p.capacity_cols = desc->shape.cols;
    p.capacity_elements = desc->shape.elements;
    p.ld = desc->ld;
    p.rows = desc->shape.row_sizes;
    if (desc->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET) p.cols = desc->shape.col_sizes;
    p.offsets = desc->shape.offsets;
    p.start = (int64_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_START, desc->snapshot);
    p.out_rows = (int64_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_ROWS, desc->snapshot);
    p.prefix = (int64_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_PREFIX, desc->snapshot);
    p.order = (int32_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_ORDER, desc->snapshot);
    p.order_entries = tegroup_impl_sort_extent(p.groups);
    p.threads = tegroup_impl_threads(desc->threads);
    if (p.irregular) {
        p.out_cols = (int64_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_COLS, desc->snapshot);
        p.out_offset = (int64_t *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_SNAPSHOT_OFFSET, desc->snapshot);
    }
    return p;
}

TEGROUP_API tegroup_status tegroup_prepare(const tegroup_prepare_desc *desc, struct CUstream_st *stream,
                                           tegroup_error *error) {
    tegroup_prepare_desc taken;
    tegroup_layout layout;
    tegroup_impl_preparation p;
    tegroup_snapshot_header *header;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_prepare(desc, &layout, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_KERNELS, desc->space, error));
    p = tegroup_impl_preparation_of(desc, &layout);
    if (!desc->clamp && tegroup_impl_data_space(&p.rows) == TEGROUP_SPACE_HOST)
        TEGROUP_IMPL_TRY(tegroup_impl_prepare_refuse(&p, error));
#if defined(TEGROUP_IMPL_CUDA)
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_prepare(&p, desc, &layout, stream, error);
#endif
    memset(desc->snapshot, 0, layout.total_bytes);
    header = (tegroup_snapshot_header *)desc->snapshot;
    tegroup_impl_snapshot_open(header, &p);
    tegroup_impl_prepare_host(&p, header);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_shape_prepare(tegroup_shape *shape, void *snapshot, size_t snapshot_bytes,
                                                 struct CUstream_st *stream, tegroup_error *error) {
    tegroup_prepare_desc prepare;
    TEGROUP_IMPL_RULE(shape != NULL, ERROR_NULL_ARGUMENT, "shape", "must not be NULL", 1, 0);
    memset(&prepare, 0, sizeof prepare);
    prepare.struct_size = sizeof prepare;
    /* a space that is none is the sizes' to refuse, by a name that the caller knows */
    prepare.space = shape->row_sizes.space == TEGROUP_SPACE_DEVICE ? TEGROUP_SPACE_DEVICE : TEGROUP_SPACE_HOST;
    prepare.shape = *shape;
    prepare.snapshot = snapshot;
    prepare.snapshot_bytes = snapshot_bytes;
    TEGROUP_IMPL_TRY(tegroup_prepare(&prepare, stream, error));
    shape->snapshot = snapshot;
    return TEGROUP_OK;
}

/* ==== [48] Rows (src/cpu/rows.h) ==== */

/* Rows are worked on in pieces of this many elements, widened to the type of the sums: the choice of a data type is
 * made once a piece, and the loops in between are ones that compilers vectorise. */
#define TEGROUP_IMPL_PIECE 256

/* x[j] = data[first + j * stride] */
static inline void tegroup_impl_load_row_f32(tegroup_dtype dtype, const void *data, int64_t first, int64_t stride,
                                              int64_t n, float *x) {
    int64_t j;
#define TEGROUP_IMPL_LOAD_ROW(type)                                                                                    \
    if (stride == 1) {                                                                                                 \
        for (j = 0; j < n; j++) x[j] = tegroup_impl_load_f32(TEGROUP_DTYPE_##type, data, first + j);                  \
    } else {                                                                                                           \
        for (j = 0; j < n; j++) x[j] = tegroup_impl_load_f32(TEGROUP_DTYPE_##type, data, first + j * stride);         \
    }
    switch (dtype) {
    case TEGROUP_DTYPE_F64: TEGROUP_IMPL_LOAD_ROW(F64) break;
    case TEGROUP_DTYPE_F32: TEGROUP_IMPL_LOAD_ROW(F32) break;
    case TEGROUP_DTYPE_F16: TEGROUP_IMPL_LOAD_ROW(F16) break;
    case TEGROUP_DTYPE_F8E4M3: TEGROUP_IMPL_LOAD_ROW(F8E4M3) break;
    case TEGROUP_DTYPE_F8E5M2: TEGROUP_IMPL_LOAD_ROW(F8E5M2) break;
    case TEGROUP_DTYPE_F4E2M1: TEGROUP_IMPL_LOAD_ROW(F4E2M1) break;
    case TEGROUP_DTYPE_F8E8M0: TEGROUP_IMPL_LOAD_ROW(F8E8M0) break;
    default: TEGROUP_IMPL_LOAD_ROW(BF16) break;
    }
#undef TEGROUP_IMPL_LOAD_ROW
}

/* data[first + j * stride] = x[j] */
static inline void tegroup_impl_store_row_f32(tegroup_dtype dtype, void *data, int64_t first, int64_t stride,
                                               int64_t n, const float *x) {
    int64_t j;
#define TEGROUP_IMPL_STORE_ROW(type)                                                                                   \
    if (stride == 1) {                                                                                                 \
        for (j = 0; j < n; j++) tegroup_impl_store_f32(TEGROUP_DTYPE_##type, data, first + j, x[j]);                  \
    } else {                                                                                                           \
        for (j = 0; j < n; j++) tegroup_impl_store_f32(TEGROUP_DTYPE_##type, data, first + j * stride, x[j]);         \
    }
    switch (dtype) {
    case TEGROUP_DTYPE_F64: TEGROUP_IMPL_STORE_ROW(F64) break;
    case TEGROUP_DTYPE_F32: TEGROUP_IMPL_STORE_ROW(F32) break;
    case TEGROUP_DTYPE_F16: TEGROUP_IMPL_STORE_ROW(F16) break;
    case TEGROUP_DTYPE_F8E4M3: TEGROUP_IMPL_STORE_ROW(F8E4M3) break;
    case TEGROUP_DTYPE_F8E5M2: TEGROUP_IMPL_STORE_ROW(F8E5M2) break;
    case TEGROUP_DTYPE_F4E2M1: TEGROUP_IMPL_STORE_ROW(F4E2M1) break;
    case TEGROUP_DTYPE_F8E8M0: TEGROUP_IMPL_STORE_ROW(F8E8M0) break;
    default: TEGROUP_IMPL_STORE_ROW(BF16) break;
    }
#undef TEGROUP_IMPL_STORE_ROW
}

/* sum + x . y, in eight interleaved sums that are added up in order: fixed, and fast. */
static inline float tegroup_impl_dot_f32(const float *x, const float *y, int64_t n, float sum) {
    float part[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int64_t j;
    int32_t lane;
    for (j = 0; j + 8 <= n; j += 8)
        for (lane = 0; lane < 8; lane++) part[lane] += x[j + lane] * y[j + lane];
    for (lane = 0; j < n; j++, lane++) part[lane] += x[j] * y[j];
    for (lane = 0; lane < 8; lane++) sum += part[lane];
    return sum;
}

/* x[j] = data[first + j * stride] */
static inline void tegroup_impl_load_row_f64(tegroup_dtype dtype, const void *data, int64_t first, int64_t stride,
                                              int64_t n, double *x) {
    int64_t j;
#define TEGROUP_IMPL_LOAD_ROW(type)                                                                                    \
    if (stride == 1) {                                                                                                 \
        for (j = 0; j < n; j++) x[j] = tegroup_impl_load_f64(TEGROUP_DTYPE_##type, data, first + j);                  \
    } else {                                                                                                           \
        for (j = 0; j < n; j++) x[j] = tegroup_impl_load_f64(TEGROUP_DTYPE_##type, data, first + j * stride);         \
    }
    switch (dtype) {
    case TEGROUP_DTYPE_F64: TEGROUP_IMPL_LOAD_ROW(F64) break;
    case TEGROUP_DTYPE_F32: TEGROUP_IMPL_LOAD_ROW(F32) break;
    case TEGROUP_DTYPE_F16: TEGROUP_IMPL_LOAD_ROW(F16) break;
    case TEGROUP_DTYPE_F8E4M3: TEGROUP_IMPL_LOAD_ROW(F8E4M3) break;
    case TEGROUP_DTYPE_F8E5M2: TEGROUP_IMPL_LOAD_ROW(F8E5M2) break;
    case TEGROUP_DTYPE_F4E2M1: TEGROUP_IMPL_LOAD_ROW(F4E2M1) break;
    case TEGROUP_DTYPE_F8E8M0: TEGROUP_IMPL_LOAD_ROW(F8E8M0) break;
    default: TEGROUP_IMPL_LOAD_ROW(BF16) break;
    }
#undef TEGROUP_IMPL_LOAD_ROW
}

/* data[first + j * stride] = x[j] */
static inline void tegroup_impl_store_row_f64(tegroup_dtype dtype, void *data, int64_t first, int64_t stride,
                                               int64_t n, const double *x) {
    int64_t j;
#define TEGROUP_IMPL_STORE_ROW(type)                                                                                   \
    if (stride == 1) {                                                                                                 \
        for (j = 0; j < n; j++) tegroup_impl_store_f64(TEGROUP_DTYPE_##type, data, first + j, x[j]);                  \
    } else {                                                                                                           \
        for (j = 0; j < n; j++) tegroup_impl_store_f64(TEGROUP_DTYPE_##type, data, first + j * stride, x[j]);         \
    }
    switch (dtype) {
    case TEGROUP_DTYPE_F64: TEGROUP_IMPL_STORE_ROW(F64) break;
    case TEGROUP_DTYPE_F32: TEGROUP_IMPL_STORE_ROW(F32) break;
    case TEGROUP_DTYPE_F16: TEGROUP_IMPL_STORE_ROW(F16) break;
    case TEGROUP_DTYPE_F8E4M3: TEGROUP_IMPL_STORE_ROW(F8E4M3) break;
    case TEGROUP_DTYPE_F8E5M2: TEGROUP_IMPL_STORE_ROW(F8E5M2) break;
    case TEGROUP_DTYPE_F4E2M1: TEGROUP_IMPL_STORE_ROW(F4E2M1) break;
    case TEGROUP_DTYPE_F8E8M0: TEGROUP_IMPL_STORE_ROW(F8E8M0) break;
    default: TEGROUP_IMPL_STORE_ROW(BF16) break;
    }
#undef TEGROUP_IMPL_STORE_ROW
}

/* sum + x . y, in eight interleaved sums that are added up in order: fixed, and fast. */
static inline double tegroup_impl_dot_f64(const double *x, const double *y, int64_t n, double sum) {
    double part[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int64_t j;
    int32_t lane;
    for (j = 0; j + 8 <= n; j += 8)
        for (lane = 0; lane < 8; lane++) part[lane] += x[j + lane] * y[j + lane];
    for (lane = 0; j < n; j++, lane++) part[lane] += x[j] * y[j];
    for (lane = 0; lane < 8; lane++) sum += part[lane];
    return sum;
}

/* ==== [49] CPU GEMM kernel (src/cpu/gemm_kernel.h) ==== */

/* The blocked product after Goto and van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication": panels of
 * A and B are copied (and widened to the type of the sums) so that the innermost kernel reads both in order. Each
 * element of D is one chain of additions over k from 0 upwards, whatever the tile that it falls into, so a row's bits
 * do not depend on its neighbours, the number of threads, or the instruction set (fused multiply-add apart, which is
 * the compiler's choice). */
#define TEGROUP_IMPL_CPU_TILE_M 128
#define TEGROUP_IMPL_CPU_TILE_N 256
#define TEGROUP_IMPL_CPU_TILE_K 256
#define TEGROUP_IMPL_CPU_PANEL_N 32        /* room for any MICRO_N below */
#define TEGROUP_IMPL_CPU_TILE_M_PADDED 144 /* room for rounding TILE_M up to any MICRO_M below */

/* Registers decide the innermost kernel: MICRO_M rows by two vectors of columns. */
#if defined(__AVX512F__)
#define TEGROUP_IMPL_VECTOR_BYTES 64
#define TEGROUP_IMPL_MICRO_M 12
#elif defined(__AVX__)
#define TEGROUP_IMPL_VECTOR_BYTES 32
#define TEGROUP_IMPL_MICRO_M 6
#else
#define TEGROUP_IMPL_VECTOR_BYTES 16
#define TEGROUP_IMPL_MICRO_M 6
#endif

#if defined(__GNUC__) || defined(__clang__)
#define TEGROUP_IMPL_INLINE static inline __attribute__((always_inline))
#else
#define TEGROUP_IMPL_INLINE static inline
#endif

/* Unrolling is what keeps the accumulators in registers. */
#if defined(__CUDACC__)
#define TEGROUP_IMPL_UNROLL
#elif defined(__clang__)
#define TEGROUP_IMPL_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define TEGROUP_IMPL_UNROLL _Pragma("GCC unroll 16")
#else
#define TEGROUP_IMPL_UNROLL
#endif

static inline int64_t tegroup_impl_cpu_panel_bytes(tegroup_compute compute) {
    int64_t a = TEGROUP_IMPL_CPU_TILE_M_PADDED * TEGROUP_IMPL_CPU_TILE_K,
            b = TEGROUP_IMPL_CPU_TILE_K * TEGROUP_IMPL_CPU_PANEL_N,
            sums = TEGROUP_IMPL_CPU_TILE_M_PADDED * TEGROUP_IMPL_CPU_TILE_N;
    return (a + b + sums) * (compute == TEGROUP_COMPUTE_F64 ? 8 : 4);
}

static inline void tegroup_impl_cpu_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    tegroup_impl_layout_add(layout, "panels of each thread",
                            tegroup_impl_mul(tegroup_impl_cpu_panel_bytes(plan->problem.compute), plan->threads));
}

static inline void tegroup_impl_cpu_tile(const tegroup_gemm_desc *desc, const tegroup_target *target,
                                         tegroup_plan *plan, tegroup_impl_forecast *forecast) {
    (void)desc, (void)target, (void)forecast; /* there is one */
    plan->tile_m = TEGROUP_IMPL_CPU_TILE_M;
    plan->tile_n = TEGROUP_IMPL_CPU_TILE_N;
    plan->tile_k = TEGROUP_IMPL_CPU_TILE_K;
}

/* Vectors where the compiler has them and float arithmetic is done in float (not on x87). */
#if defined(__GNUC__) && defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ == 0
#define TEGROUP_IMPL_VECTORS
#endif

/* Eight lines at a time, whose elements along k are neighbours, are transposed in registers: what a line's loads give
 * are vectors of k, and what is multiplied are vectors of lines. Eight lines that are a power of two apart are as many
 * as the ways of a first-level cache hold. */
#if defined(TEGROUP_IMPL_VECTORS) && defined(__AVX__) && !defined(__CUDACC__) && (defined(__clang__) || __GNUC__ >= 12)
#define TEGROUP_IMPL_TRANSPOSES
#define TEGROUP_IMPL_FEW 6      /* no more rows, nor than MICRO_M, are multiplied by lines as these are transposed */
#define TEGROUP_IMPL_PIECE_K 64 /* of as much of k: eight lines wait in 2 KB */
typedef float tegroup_impl_quad __attribute__((vector_size(16), aligned(2), may_alias));
typedef float tegroup_impl_oct __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t tegroup_impl_oct_bits __attribute__((vector_size(32)));
typedef short tegroup_impl_halves __attribute__((vector_size(32), aligned(2), may_alias));

/* How many elements of each line are transposed at a time; 0: none are, and the type is packed element by element. */
TEGROUP_IMPL_INLINE int32_t tegroup_impl_cpu_step(tegroup_dtype dtype) {
#if defined(__F16C__)
    if (dtype == TEGROUP_DTYPE_F16) return 16; /* the compiler was told of the instruction that widens them */
#endif
    return dtype == TEGROUP_DTYPE_F32 ? 4 : dtype == TEGROUP_DTYPE_BF16 ? 8 : 0;
}

/* v[i] = element i of each of eight lines, widened, for as many i as a step has. To transpose is to interleave one half
 * of the registers with the other, as often as halving them leaves one. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_transpose(tegroup_dtype dtype, const char *at, int64_t stride_bytes,
                                                    tegroup_impl_oct v[16]) {
    int32_t round, i;
#if defined(__F16C__)
    if (dtype == TEGROUP_DTYPE_F16) { /* elements 0 to 7 in the lower halves of the registers, 8 to 15 in the upper */
        tegroup_impl_halves w[8], next[8];
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 8; i++) w[i] = *(const tegroup_impl_halves *)(const void *)(at + i * stride_bytes);
        TEGROUP_IMPL_UNROLL
        for (round = 0; round < 3; round++) {
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < 4; i++) {
                next[2 * i] =
                    __builtin_shufflevector(w[i], w[i + 4], 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
                next[2 * i + 1] =
                    __builtin_shufflevector(w[i], w[i + 4], 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
            }
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < 8; i++) w[i] = next[i];
        }
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 8; i++) {
            v[i] = (tegroup_impl_oct)__builtin_ia32_vcvtph2ps256(
                __builtin_shufflevector(w[i], w[i], 0, 1, 2, 3, 4, 5, 6, 7));
            v[i + 8] = (tegroup_impl_oct)__builtin_ia32_vcvtph2ps256(
                __builtin_shufflevector(w[i], w[i], 8, 9, 10, 11, 12, 13, 14, 15));
        }
        return;
    }
#endif
    { /* lines 0 to 3 in the lower halves of the registers, 4 to 7 in the upper; two BF16 are moved as one element */
        tegroup_impl_oct w[4], next[4];
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 4; i++)
            w[i] = __builtin_shufflevector(*(const tegroup_impl_quad *)(const void *)(at + i * stride_bytes),
                                           *(const tegroup_impl_quad *)(const void *)(at + (i + 4) * stride_bytes), 0,
                                           1, 2, 3, 4, 5, 6, 7);
        TEGROUP_IMPL_UNROLL
        for (round = 0; round < 2; round++) {
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < 2; i++) {
                next[2 * i] = __builtin_shufflevector(w[i], w[i + 2], 0, 8, 1, 9, 4, 12, 5, 13);
                next[2 * i + 1] = __builtin_shufflevector(w[i], w[i + 2], 2, 10, 3, 11, 6, 14, 7, 15);
            }
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < 4; i++) w[i] = next[i];
        }
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < 4; i++)
            if (dtype == TEGROUP_DTYPE_BF16) {
                v[2 * i] = (tegroup_impl_oct)((tegroup_impl_oct_bits)w[i] << 16);
                v[2 * i + 1] = (tegroup_impl_oct)((tegroup_impl_oct_bits)w[i] & 0xffff0000u);
            } else v[i] = w[i];
    }
}

/* Eight lines of k elements, at least a step of them, to panel[k][width]. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_pack_eight(tegroup_dtype dtype, const char *at, int64_t stride_bytes,
                                                     int32_t k, int32_t width, float *panel) {
    const int32_t step = tegroup_impl_cpu_step(dtype), bytes = tegroup_impl_bits(dtype) / 8;
    int32_t kk, i;
    for (kk = 0; kk < k; kk += step) {
        tegroup_impl_oct v[16];
        if (kk > k - step) kk = k - step; /* some of the last are packed twice */
        tegroup_impl_cpu_transpose(dtype, at + (int64_t)kk * bytes, stride_bytes, v);
        TEGROUP_IMPL_UNROLL
        for (i = 0; i < step; i++) *(tegroup_impl_oct *)(void *)(panel + (kk + i) * width) = v[i];
    }
}

/* sums[rows][8 * groups lines] += a[k][MICRO_M] * the lines' k elements, whole pieces of them. The last eight lines are
 * multiplied in their registers. Of two groups the first waits in the panel: two chains of additions, in turn, take no
 * longer than one. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_few_typed(tegroup_dtype dtype, int32_t rows, int32_t groups, const char *at,
                                                    int64_t stride_bytes, int32_t k, const float *a, float *panel,
                                                    float *sums) {
    const int32_t step = tegroup_impl_cpu_step(dtype), bytes = tegroup_impl_bits(dtype) / 8, packed = groups - 1;
    tegroup_impl_oct s[TEGROUP_IMPL_FEW][2];
    int32_t k0, kk, i, r, g;
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        TEGROUP_IMPL_UNROLL
        for (g = 0; g < groups; g++)
            s[r][g] = ((const tegroup_impl_oct *)(const void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N))[g];
    }
    for (k0 = 0; k0 < k; k0 += TEGROUP_IMPL_PIECE_K, at += TEGROUP_IMPL_PIECE_K * bytes) {
        const tegroup_impl_oct *waiting = (const tegroup_impl_oct *)(const void *)panel;
        if (packed) tegroup_impl_cpu_pack_eight(dtype, at, stride_bytes, TEGROUP_IMPL_PIECE_K, 8, panel);
        for (kk = 0; kk < TEGROUP_IMPL_PIECE_K; kk += step) {
            tegroup_impl_oct v[16];
            tegroup_impl_cpu_transpose(dtype, at + 8 * packed * stride_bytes + kk * bytes, stride_bytes, v);
            TEGROUP_IMPL_UNROLL
            for (i = 0; i < step; i++, a += TEGROUP_IMPL_MICRO_M) {
                TEGROUP_IMPL_UNROLL
                for (r = 0; r < rows; r++) {
                    if (packed) s[r][0] += a[r] * waiting[kk + i];
                    s[r][packed] += a[r] * v[i];
                    /* A compiler that saw the next product of the chain might change their order, or, as gcc does for
                     * AMD's processors, fuse none of a chain's additions. */
                    __asm__("" : "+x"(s[r][packed]));
                    if (packed) __asm__("" : "+x"(s[r][0]));
                }
            }
        }
    }
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        TEGROUP_IMPL_UNROLL
        for (g = 0; g < groups; g++) ((tegroup_impl_oct *)(void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N))[g] = s[r][g];
    }
}

/* The same for `lines` lines and any number of rows from 1 to FEW. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_few_rows(tegroup_dtype dtype, int32_t m, int32_t lines, const char *at,
                                                   int64_t stride_bytes, int32_t k, const float *a, float *panel,
                                                   float *sums) {
    const int32_t groups = dtype == TEGROUP_DTYPE_F32 ? 1 : 2; /* four bytes take longer to be read than to be added */
    int32_t j;
    for (j = 0; j < lines; j += 8 * groups) {
        const char *from = at + j * stride_bytes;
        if (m > 4)
            tegroup_impl_cpu_few_typed(dtype, TEGROUP_IMPL_FEW, groups, from, stride_bytes, k, a, panel, sums + j);
        else if (m > 2) tegroup_impl_cpu_few_typed(dtype, 4, groups, from, stride_bytes, k, a, panel, sums + j);
        else if (m > 1) tegroup_impl_cpu_few_typed(dtype, 2, groups, from, stride_bytes, k, a, panel, sums + j);
        else tegroup_impl_cpu_few_typed(dtype, 1, groups, from, stride_bytes, k, a, panel, sums + j);
    }
}

/* sums[m][lines] += packed A * `lines` lines of B, for as much of k as is returned: 0 where the product is not one of
 * few rows and whole groups of lines that can be transposed. */
static inline int32_t tegroup_impl_cpu_few_f32(tegroup_dtype dtype, const void *data, int64_t first,
                                               int64_t stride_line, int64_t stride_k, int32_t m, int32_t lines,
                                               int32_t k, const float *a, float *panel, float *sums) {
    const int32_t bytes = tegroup_impl_bits(dtype) / 8, whole = k / TEGROUP_IMPL_PIECE_K * TEGROUP_IMPL_PIECE_K;
    const char *at = (const char *)data + first * bytes;
    if (m > TEGROUP_IMPL_FEW || lines % 16 != 0 || stride_k != 1 || tegroup_impl_cpu_step(dtype) == 0) return 0;
    stride_line *= bytes;
    if (dtype == TEGROUP_DTYPE_F32)
        tegroup_impl_cpu_few_rows(TEGROUP_DTYPE_F32, m, lines, at, stride_line, whole, a, panel, sums);
    else if (dtype == TEGROUP_DTYPE_BF16)
        tegroup_impl_cpu_few_rows(TEGROUP_DTYPE_BF16, m, lines, at, stride_line, whole, a, panel, sums);
#if defined(__F16C__)
    else tegroup_impl_cpu_few_rows(TEGROUP_DTYPE_F16, m, lines, at, stride_line, whole, a, panel, sums);
#endif
    return whole;
}
#endif
#if defined(TEGROUP_IMPL_TRANSPOSES)
#define TEGROUP_IMPL_STEP_f32(dtype) tegroup_impl_cpu_step(dtype)
#define TEGROUP_IMPL_PACK_EIGHT_f32 tegroup_impl_cpu_pack_eight
#define TEGROUP_IMPL_FEW_f32 tegroup_impl_cpu_few_f32
#else
#define TEGROUP_IMPL_STEP_f32(dtype) 0
#define TEGROUP_IMPL_PACK_EIGHT_f32(dtype, at, stride_bytes, k, width, panel) (void)0
#define TEGROUP_IMPL_FEW_f32(dtype, data, first, stride_line, stride_k, m, lines, k, a, panel, sums) 0
#endif
#define TEGROUP_IMPL_STEP_f64(dtype) 0
#define TEGROUP_IMPL_PACK_EIGHT_f64(dtype, at, stride_bytes, k, width, panel) (void)0
#define TEGROUP_IMPL_FEW_f64(dtype, data, first, stride_line, stride_k, m, lines, k, a, panel, sums) 0

#define TEGROUP_IMPL_LANES_f32 ((int32_t)(TEGROUP_IMPL_VECTOR_BYTES / sizeof(float)))
#define TEGROUP_IMPL_MICRO_N_f32 (2 * TEGROUP_IMPL_LANES_f32)

/* sums[rows][2 vectors] += a[k][MICRO_M] * b[k][MICRO_N]; rows is a constant after inlining. */
#if defined(TEGROUP_IMPL_VECTORS)
typedef float tegroup_impl_vector_f32
    __attribute__((vector_size(TEGROUP_IMPL_VECTOR_BYTES), aligned(sizeof(float)), may_alias));

TEGROUP_IMPL_INLINE void tegroup_impl_cpu_micro_f32(int32_t rows, int64_t k, const float *a, const float *b,
                                                     float *sums) {
    tegroup_impl_vector_f32 s[TEGROUP_IMPL_MICRO_M][2];
    int64_t kk;
    int32_t r;
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        const tegroup_impl_vector_f32 *from =
            (const tegroup_impl_vector_f32 *)(const void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N);
        s[r][0] = from[0];
        s[r][1] = from[1];
    }
    for (kk = 0; kk < k; kk++) {
        const tegroup_impl_vector_f32 *row =
            (const tegroup_impl_vector_f32 *)(const void *)(b + kk * TEGROUP_IMPL_MICRO_N_f32);
        tegroup_impl_vector_f32 b0 = row[0], b1 = row[1];
        const float *column = a + kk * TEGROUP_IMPL_MICRO_M;
        TEGROUP_IMPL_UNROLL
        for (r = 0; r < rows; r++) {
            s[r][0] += column[r] * b0;
            s[r][1] += column[r] * b1;
        }
    }
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        tegroup_impl_vector_f32 *to = (tegroup_impl_vector_f32 *)(void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N);
        to[0] = s[r][0];
        to[1] = s[r][1];
    }
}
#else
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_micro_f32(int32_t rows, int64_t k, const float *a, const float *b,
                                                     float *sums) {
    int64_t kk;
    int32_t r, j;
    for (kk = 0; kk < k; kk++)
        for (r = 0; r < rows; r++)
            for (j = 0; j < TEGROUP_IMPL_MICRO_N_f32; j++)
                sums[r * TEGROUP_IMPL_CPU_TILE_N + j] +=
                    a[kk * TEGROUP_IMPL_MICRO_M + r] * b[kk * TEGROUP_IMPL_MICRO_N_f32 + j];
}
#endif

/* Copy `count` lines of k elements into panels of `width` lines, [panel][k][width], the last filled up with zeros. Line
 * i, element kk is at data[i * stride_line + kk * stride_k]. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_pack_typed_f32(tegroup_dtype dtype, const void *data, int64_t first,
                                                          int64_t stride_line, int64_t stride_k, int32_t count,
                                                          int32_t k, int32_t width, float *panel) {
    const int32_t bytes = tegroup_impl_bits(dtype) / 8;
    int32_t base, i, kk;
    (void)bytes;
    for (base = 0; base < count; base += width, panel += (int64_t)k * width) {
        int32_t lines = count - base < width ? count - base : width;
        int64_t at = first + base * stride_line;
        if (lines < width) memset(panel, 0, (size_t)k * (size_t)width * sizeof(float));
        if (stride_line == 1 && lines == width)
            for (kk = 0; kk < k; kk++)
                for (i = 0; i < width; i++)
                    panel[kk * width + i] = tegroup_impl_load_f32(dtype, data, at + kk * stride_k + i);
        else if (stride_k == 1) {
            i = 0;
            if (TEGROUP_IMPL_STEP_f32(dtype) > 0 && k >= TEGROUP_IMPL_STEP_f32(dtype))
                for (; i + 8 <= lines; i += 8)
                    TEGROUP_IMPL_PACK_EIGHT_f32(dtype, (const char *)data + (at + i * stride_line) * bytes,
                                                 stride_line * bytes, k, width, panel + i);
            for (; i < lines; i++)
                for (kk = 0; kk < k; kk++)
                    panel[kk * width + i] = tegroup_impl_load_f32(dtype, data, at + i * stride_line + kk);
        } else
            for (kk = 0; kk < k; kk++)
                for (i = 0; i < lines; i++)
                    panel[kk * width + i] = tegroup_impl_load_f32(dtype, data, at + i * stride_line + kk * stride_k);
    }
}

static inline void tegroup_impl_cpu_pack_f32(tegroup_dtype dtype, const void *data, int64_t first, int64_t stride_line,
                                              int64_t stride_k, int32_t count, int32_t k, int32_t width, float *panel) {
    switch (dtype) { /* the type is a constant inside each copy */
    case TEGROUP_DTYPE_F64:
        tegroup_impl_cpu_pack_typed_f32(TEGROUP_DTYPE_F64, data, first, stride_line, stride_k, count, k, width, panel);
        break;
    case TEGROUP_DTYPE_F32:
        tegroup_impl_cpu_pack_typed_f32(TEGROUP_DTYPE_F32, data, first, stride_line, stride_k, count, k, width, panel);
        break;
    case TEGROUP_DTYPE_F16:
        tegroup_impl_cpu_pack_typed_f32(TEGROUP_DTYPE_F16, data, first, stride_line, stride_k, count, k, width, panel);
        break;
    default:
        tegroup_impl_cpu_pack_typed_f32(TEGROUP_DTYPE_BF16, data, first, stride_line, stride_k, count, k, width,
                                         panel);
        break;
    }
}

/* sums[m][MICRO_N] += packed A * one panel of B. Fewer rows than MICRO_M run a kernel of their own height. */
static inline void tegroup_impl_cpu_block_f32(int32_t m, int64_t k, const float *a, const float *b, float *sums) {
    int32_t i;
    for (i = 0; i < m; i += TEGROUP_IMPL_MICRO_M) {
        const float *panel = a + i * k;
        float *at = sums + i * TEGROUP_IMPL_CPU_TILE_N;
        const int32_t rows = m - i;
        if (rows > 4) tegroup_impl_cpu_micro_f32(TEGROUP_IMPL_MICRO_M, k, panel, b, at);
        else if (rows > 2) tegroup_impl_cpu_micro_f32(4, k, panel, b, at);
        else if (rows > 1) tegroup_impl_cpu_micro_f32(2, k, panel, b, at);
        else tegroup_impl_cpu_micro_f32(1, k, panel, b, at);
    }
}

#define TEGROUP_IMPL_LANES_f64 ((int32_t)(TEGROUP_IMPL_VECTOR_BYTES / sizeof(double)))
#define TEGROUP_IMPL_MICRO_N_f64 (2 * TEGROUP_IMPL_LANES_f64)

/* sums[rows][2 vectors] += a[k][MICRO_M] * b[k][MICRO_N]; rows is a constant after inlining. */
#if defined(TEGROUP_IMPL_VECTORS)
typedef double tegroup_impl_vector_f64
    __attribute__((vector_size(TEGROUP_IMPL_VECTOR_BYTES), aligned(sizeof(double)), may_alias));

TEGROUP_IMPL_INLINE void tegroup_impl_cpu_micro_f64(int32_t rows, int64_t k, const double *a, const double *b,
                                                     double *sums) {
    tegroup_impl_vector_f64 s[TEGROUP_IMPL_MICRO_M][2];
    int64_t kk;
    int32_t r;
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        const tegroup_impl_vector_f64 *from =
            (const tegroup_impl_vector_f64 *)(const void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N);
        s[r][0] = from[0];
        s[r][1] = from[1];
    }
    for (kk = 0; kk < k; kk++) {
        const tegroup_impl_vector_f64 *row =
            (const tegroup_impl_vector_f64 *)(const void *)(b + kk * TEGROUP_IMPL_MICRO_N_f64);
        tegroup_impl_vector_f64 b0 = row[0], b1 = row[1];
        const double *column = a + kk * TEGROUP_IMPL_MICRO_M;
        TEGROUP_IMPL_UNROLL
        for (r = 0; r < rows; r++) {
            s[r][0] += column[r] * b0;
            s[r][1] += column[r] * b1;
        }
    }
    TEGROUP_IMPL_UNROLL
    for (r = 0; r < rows; r++) {
        tegroup_impl_vector_f64 *to = (tegroup_impl_vector_f64 *)(void *)(sums + r * TEGROUP_IMPL_CPU_TILE_N);
        to[0] = s[r][0];
        to[1] = s[r][1];
    }
}
#else
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_micro_f64(int32_t rows, int64_t k, const double *a, const double *b,
                                                     double *sums) {
    int64_t kk;
    int32_t r, j;
    for (kk = 0; kk < k; kk++)
        for (r = 0; r < rows; r++)
            for (j = 0; j < TEGROUP_IMPL_MICRO_N_f64; j++)
                sums[r * TEGROUP_IMPL_CPU_TILE_N + j] +=
                    a[kk * TEGROUP_IMPL_MICRO_M + r] * b[kk * TEGROUP_IMPL_MICRO_N_f64 + j];
}
#endif

/* Copy `count` lines of k elements into panels of `width` lines, [panel][k][width], the last filled up with zeros. Line
 * i, element kk is at data[i * stride_line + kk * stride_k]. */
TEGROUP_IMPL_INLINE void tegroup_impl_cpu_pack_typed_f64(tegroup_dtype dtype, const void *data, int64_t first,
                                                          int64_t stride_line, int64_t stride_k, int32_t count,
                                                          int32_t k, int32_t width, double *panel) {
    const int32_t bytes = tegroup_impl_bits(dtype) / 8;
    int32_t base, i, kk;
    (void)bytes;
    for (base = 0; base < count; base += width, panel += (int64_t)k * width) {
        int32_t lines = count - base < width ? count - base : width;
        int64_t at = first + base * stride_line;
        if (lines < width) memset(panel, 0, (size_t)k * (size_t)width * sizeof(double));
        if (stride_line == 1 && lines == width)
            for (kk = 0; kk < k; kk++)
                for (i = 0; i < width; i++)
                    panel[kk * width + i] = tegroup_impl_load_f64(dtype, data, at + kk * stride_k + i);
        else if (stride_k == 1) {
            i = 0;
            if (TEGROUP_IMPL_STEP_f64(dtype) > 0 && k >= TEGROUP_IMPL_STEP_f64(dtype))
                for (; i + 8 <= lines; i += 8)
                    TEGROUP_IMPL_PACK_EIGHT_f64(dtype, (const char *)data + (at + i * stride_line) * bytes,
                                                 stride_line * bytes, k, width, panel + i);
            for (; i < lines; i++)
                for (kk = 0; kk < k; kk++)
                    panel[kk * width + i] = tegroup_impl_load_f64(dtype, data, at + i * stride_line + kk);
        } else
            for (kk = 0; kk < k; kk++)
                for (i = 0; i < lines; i++)
                    panel[kk * width + i] = tegroup_impl_load_f64(dtype, data, at + i * stride_line + kk * stride_k);
    }
}

static inline void tegroup_impl_cpu_pack_f64(tegroup_dtype dtype, const void *data, int64_t first, int64_t stride_line,
                                              int64_t stride_k, int32_t count, int32_t k, int32_t width, double *panel) {
    switch (dtype) { /* the type is a constant inside each copy */
    case TEGROUP_DTYPE_F64:
        tegroup_impl_cpu_pack_typed_f64(TEGROUP_DTYPE_F64, data, first, stride_line, stride_k, count, k, width, panel);
        break;
    case TEGROUP_DTYPE_F32:
        tegroup_impl_cpu_pack_typed_f64(TEGROUP_DTYPE_F32, data, first, stride_line, stride_k, count, k, width, panel);
        break;
    case TEGROUP_DTYPE_F16:
        tegroup_impl_cpu_pack_typed_f64(TEGROUP_DTYPE_F16, data, first, stride_line, stride_k, count, k, width, panel);
        break;
    default:
        tegroup_impl_cpu_pack_typed_f64(TEGROUP_DTYPE_BF16, data, first, stride_line, stride_k, count, k, width,
                                         panel);
        break;
    }
}

/* sums[m][MICRO_N] += packed A * one panel of B. Fewer rows than MICRO_M run a kernel of their own height. */
static inline void tegroup_impl_cpu_block_f64(int32_t m, int64_t k, const double *a, const double *b, double *sums) {
    int32_t i;
    for (i = 0; i < m; i += TEGROUP_IMPL_MICRO_M) {
        const double *panel = a + i * k;
        double *at = sums + i * TEGROUP_IMPL_CPU_TILE_N;
        const int32_t rows = m - i;
        if (rows > 4) tegroup_impl_cpu_micro_f64(TEGROUP_IMPL_MICRO_M, k, panel, b, at);
        else if (rows > 2) tegroup_impl_cpu_micro_f64(4, k, panel, b, at);
        else if (rows > 1) tegroup_impl_cpu_micro_f64(2, k, panel, b, at);
        else tegroup_impl_cpu_micro_f64(1, k, panel, b, at);
    }
}

/* ==== [50] CPU GEMM of quantised operands (src/cpu/quantised.h) ==== */

/* A quantised operand, and what its codes mean. */
typedef struct tegroup_impl_cpu_codes {
    tegroup_impl_scaled scaled;
    float value[256]; /* by code: 16 of them, or all */
} tegroup_impl_cpu_codes;

static inline void tegroup_impl_cpu_codes_of(const tegroup_gemm_desc *desc, tegroup_impl_operand operand,
                                             tegroup_impl_cpu_codes *codes) {
    int32_t i, count;
    codes->scaled = tegroup_impl_scaled_of(desc, operand);
    if (!codes->scaled.facts) return;
    count = 1 << tegroup_impl_bits(codes->scaled.dtype);
    for (i = 0; i < count; i++) codes->value[i] = tegroup_impl_f32_of_code(codes->scaled.dtype, (uint32_t)i);
}

/* Goes on to group g, the one after the last. Returns what all its values are multiplied by. */
static inline double tegroup_impl_cpu_codes_next(tegroup_impl_cpu_codes *codes, const tegroup_tensor *t,
                                                 const tegroup_snapshot_view *view, int32_t g) {
    if (!codes->scaled.facts) return 1;
    tegroup_impl_scaled_next(&codes->scaled, t, view, g);
    return codes->scaled.global;
}

/* tegroup_impl_cpu_pack of a quantised operand, from `line` and `from` of k on. The product of a value and its scale is
 * exact in double, whatever their types, and so is rounded once, to the type of the sums. */
static inline void tegroup_impl_cpu_pack_codes_f32(const tegroup_impl_cpu_codes *codes, int64_t line, int64_t from,
                                                    int32_t count, int32_t k, int32_t width, float *panel) {
    const tegroup_impl_scaled *s = &codes->scaled;
    const uint8_t *bytes = (const uint8_t *)s->data;
    const int64_t step = s->k_stride;
    int32_t i, kk, j;
    if (count % width != 0)
        memset(panel + (int64_t)(count / width) * k * width, 0, (size_t)k * (size_t)width * sizeof(float));
    for (i = 0; i < count; i++)
        for (kk = 0; kk < k;) {
            int64_t shared, at = s->first + (line + i) * s->line_stride + (from + kk) * step;
            const double scale = tegroup_impl_scale_along(s, line + i, from + kk, &shared);
            const int32_t run = (int32_t)tegroup_impl_min(shared, k - kk);
            float *to = panel + (int64_t)(i / width) * k * width + (int64_t)kk * width + i % width;
            if (tegroup_impl_bits(s->dtype) == 8)
                for (j = 0; j < run; j++, at += step, to += width) *to = (float)(codes->value[bytes[at]] * scale);
            else
                for (j = 0; j < run; j++, at += step, to += width)
                    *to = (float)(codes->value[tegroup_impl_load_code(s->dtype, bytes, at)] * scale);
            kk += run;
        }
}

/* Bias gradient of one group, at most TILE_N columns from j0, whose rows are quantised: sums of them in their order. */
static inline void tegroup_impl_cpu_sum_codes_f32(const tegroup_gemm_desc *desc, const tegroup_impl_cpu_codes *codes,
                                                   const tegroup_impl_block *dy, int64_t j0, int64_t n, float *panel,
                                                   float *sums) {
    int64_t r0, r, j, c;
    for (j = 0; j < n; j += TEGROUP_IMPL_CPU_PANEL_N) {
        const int64_t cols = tegroup_impl_min(TEGROUP_IMPL_CPU_PANEL_N, n - j);
        for (r0 = 0; r0 < dy->rows; r0 += TEGROUP_IMPL_CPU_TILE_K) {
            const int64_t rows = tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_K, dy->rows - r0);
            tegroup_impl_cpu_pack_codes_f32(codes, j0 + j, r0, (int32_t)cols, (int32_t)rows, TEGROUP_IMPL_CPU_PANEL_N,
                                             panel);
            for (r = 0; r < rows; r++) {
                const float scale =
                    desc->row_scale_dtype != TEGROUP_DTYPE_UNSET
                        ? tegroup_impl_load_f32(desc->row_scale_dtype, desc->row_scale, dy->row0 + r0 + r)
                        : 1;
                for (c = 0; c < cols; c++) sums[j + c] += scale * panel[r * TEGROUP_IMPL_CPU_PANEL_N + c];
            }
        }
        for (c = 0; c < cols; c++) sums[j + c] *= (float)codes->scaled.global;
    }
}

/* tegroup_impl_cpu_pack of a quantised operand, from `line` and `from` of k on. The product of a value and its scale is
 * exact in double, whatever their types, and so is rounded once, to the type of the sums. */
static inline void tegroup_impl_cpu_pack_codes_f64(const tegroup_impl_cpu_codes *codes, int64_t line, int64_t from,
                                                    int32_t count, int32_t k, int32_t width, double *panel) {
    const tegroup_impl_scaled *s = &codes->scaled;
    const uint8_t *bytes = (const uint8_t *)s->data;
    const int64_t step = s->k_stride;
    int32_t i, kk, j;
    if (count % width != 0)
        memset(panel + (int64_t)(count / width) * k * width, 0, (size_t)k * (size_t)width * sizeof(double));
    for (i = 0; i < count; i++)
        for (kk = 0; kk < k;) {
            int64_t shared, at = s->first + (line + i) * s->line_stride + (from + kk) * step;
            const double scale = tegroup_impl_scale_along(s, line + i, from + kk, &shared);
            const int32_t run = (int32_t)tegroup_impl_min(shared, k - kk);
            double *to = panel + (int64_t)(i / width) * k * width + (int64_t)kk * width + i % width;
            if (tegroup_impl_bits(s->dtype) == 8)
                for (j = 0; j < run; j++, at += step, to += width) *to = (double)(codes->value[bytes[at]] * scale);
            else
                for (j = 0; j < run; j++, at += step, to += width)
                    *to = (double)(codes->value[tegroup_impl_load_code(s->dtype, bytes, at)] * scale);
            kk += run;
        }
}

/* Bias gradient of one group, at most TILE_N columns from j0, whose rows are quantised: sums of them in their order. */
static inline void tegroup_impl_cpu_sum_codes_f64(const tegroup_gemm_desc *desc, const tegroup_impl_cpu_codes *codes,
                                                   const tegroup_impl_block *dy, int64_t j0, int64_t n, double *panel,
                                                   double *sums) {
    int64_t r0, r, j, c;
    for (j = 0; j < n; j += TEGROUP_IMPL_CPU_PANEL_N) {
        const int64_t cols = tegroup_impl_min(TEGROUP_IMPL_CPU_PANEL_N, n - j);
        for (r0 = 0; r0 < dy->rows; r0 += TEGROUP_IMPL_CPU_TILE_K) {
            const int64_t rows = tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_K, dy->rows - r0);
            tegroup_impl_cpu_pack_codes_f64(codes, j0 + j, r0, (int32_t)cols, (int32_t)rows, TEGROUP_IMPL_CPU_PANEL_N,
                                             panel);
            for (r = 0; r < rows; r++) {
                const double scale =
                    desc->row_scale_dtype != TEGROUP_DTYPE_UNSET
                        ? tegroup_impl_load_f64(desc->row_scale_dtype, desc->row_scale, dy->row0 + r0 + r)
                        : 1;
                for (c = 0; c < cols; c++) sums[j + c] += scale * panel[r * TEGROUP_IMPL_CPU_PANEL_N + c];
            }
        }
        for (c = 0; c < cols; c++) sums[j + c] *= (double)codes->scaled.global;
    }
}

/* ==== [51] Set-up of a grouped cuBLASLt matmul (src/cuda/cublaslt_setup.h) ==== */

/* The arrays that a grouped cuBLASLt matmul reads, in order, with [groups] entries each: of 8 bytes, but floats in the
 * last two. cuBLASLt is column-major and computes the transpose of D, so its A is the descriptor's b and its B the
 * descriptor's a. */
typedef enum tegroup_impl_setup_item {
    /* addresses of the matrices */
    TEGROUP_IMPL_SETUP_A,
    TEGROUP_IMPL_SETUP_B,
    TEGROUP_IMPL_SETUP_C,
    TEGROUP_IMPL_SETUP_D,
    /* addresses of each group's scalars and scales */
    TEGROUP_IMPL_SETUP_ALPHA,
    TEGROUP_IMPL_SETUP_BETA,
    TEGROUP_IMPL_SETUP_A_SCALE,
    TEGROUP_IMPL_SETUP_B_SCALE,
    /* extents as int64, column-major; C has D's rows and columns */
    TEGROUP_IMPL_SETUP_A_ROWS,
    TEGROUP_IMPL_SETUP_A_COLS,
    TEGROUP_IMPL_SETUP_A_LD,
    TEGROUP_IMPL_SETUP_B_ROWS,
    TEGROUP_IMPL_SETUP_B_COLS,
    TEGROUP_IMPL_SETUP_B_LD,
    TEGROUP_IMPL_SETUP_C_LD,
    TEGROUP_IMPL_SETUP_D_ROWS,
    TEGROUP_IMPL_SETUP_D_COLS,
    TEGROUP_IMPL_SETUP_D_LD,
    /* the scalars themselves, as floats */
    TEGROUP_IMPL_SETUP_ALPHA_VALUE,
    TEGROUP_IMPL_SETUP_BETA_VALUE,
    TEGROUP_IMPL_SETUP_COUNT
} tegroup_impl_setup_item;

/* What becomes of a group. Row-major D = A' B' is column-major D^T = B'^T A'^T, and leading dimensions stay the same.
 * Some groups are hidden from cuBLASLt, which is told that they have no columns of D: groups that are skipped, groups
 * whose result D holds already, empty sums unless cuBLASLt is known to write their zeros, and groups that cuBLASLt
 * would read or write wrongly. The last are those whose addresses or rows of D are not whole multiples of 16 bytes,
 * unless the caller ignores the quirk that says so. They become NaN, or beta * C if the sum is empty. */
typedef enum tegroup_impl_alone {
    TEGROUP_IMPL_ALONE_NOTHING, /* cuBLASLt writes it, or there is nothing to write */
    TEGROUP_IMPL_ALONE_EMPTY,   /* the set-up kernel writes beta * C */
    TEGROUP_IMPL_ALONE_NAN      /* the set-up kernel writes NaN: not whole multiples of 16 bytes */
} tegroup_impl_alone;

/* One group's D and C, row-major. */
typedef struct tegroup_impl_result {
    int64_t m, n, ldc, ldd;
    int64_t c, d; /* addresses */
} tegroup_impl_result;

typedef struct tegroup_impl_setup {
    int64_t entry[TEGROUP_IMPL_SETUP_ALPHA_VALUE]; /* of every array of 8-byte entries */
    float alpha, beta;
    tegroup_impl_alone alone;
    tegroup_impl_result result;
} tegroup_impl_setup;

/* Where the arrays are, each at a multiple of TEGROUP_ALIGNMENT: those of 8-byte entries at equal distances, then the
 * two of floats. */
typedef struct tegroup_impl_setup_items {
    char *base;
    uint32_t pitch, last; /* bytes: from one array to the next, and to the last */
} tegroup_impl_setup_items;

static inline tegroup_impl_setup_items tegroup_impl_setup_items_of(int32_t groups, void *base) {
    tegroup_impl_setup_items items;
    items.base = (char *)base;
    items.pitch = (uint32_t)tegroup_impl_align(8 * (int64_t)groups, TEGROUP_ALIGNMENT);
    items.last = TEGROUP_IMPL_SETUP_ALPHA_VALUE * items.pitch
                 + (uint32_t)tegroup_impl_align(4 * (int64_t)groups, TEGROUP_ALIGNMENT);
    return items;
}

static inline int64_t tegroup_impl_setup_bytes(int32_t groups) {
    return (int64_t)tegroup_impl_setup_items_of(groups, NULL).last
           + tegroup_impl_align(4 * (int64_t)groups, TEGROUP_ALIGNMENT);
}

TEGROUP_IMPL_HD char *tegroup_impl_setup_at(const tegroup_impl_setup_items *items, int32_t item) {
    return items->base + (item < TEGROUP_IMPL_SETUP_COUNT - 1 ? (uint32_t)item * items->pitch : items->last);
}

/* Whether no product of this problem has terms, whatever its groups' sizes. cuBLASLt is not called then. */
TEGROUP_IMPL_HD int tegroup_impl_termless(const tegroup_gemm_desc *desc) {
    return desc->a.shape.rows == 0 || desc->a.shape.cols == 0 || desc->d.shape.cols == 0;
}

/* A plan without rows has no algorithm, and cannot serve a call that has some. */
static inline tegroup_status tegroup_impl_check_terms(int has_algorithm, const tegroup_gemm_desc *desc,
                                                      const tegroup_impl_names *names, tegroup_error *error) {
    TEGROUP_IMPL_RULE(has_algorithm || desc->a.shape.groups == 0 || tegroup_impl_termless(desc), ERROR_PLAN,
                      TEGROUP_IMPL_OPERAND_PATH(A, ROWS), "must be 0, as planned: cuBLASLt was asked for no algorithm",
                      0, desc->a.shape.rows);
    return TEGROUP_OK;
}

/* What a descriptor says, as far as it is the same for every group, computed on the host. The set-up kernel runs for a
 * few microseconds, in which its instructions, parameters and data come from cold memory, so it has few of each. An
 * operand: */
typedef struct tegroup_impl_setup_operand {
    const int64_t *rows_at, *begin_at; /* arrays of a snapshot, begin_at in units; not read unless ragged */
    const int64_t *cols_at;            /* an array of a snapshot; NULL: every group has `cols` */
    void *const *pointers;             /* NULL: one buffer, `data` */
    char *data;
    int64_t unit, rows, cols; /* unit: in bytes; group g begins g units on if not ragged */
    int64_t ld;               /* 0: packed, each group by its own width; else at least 1 */
    int32_t ragged;
} tegroup_impl_setup_operand;

typedef struct tegroup_impl_setup_scalar {
    const void *at; /* NULL: value */
    int32_t stride, is_f64;
    float value;
} tegroup_impl_setup_scalar;

typedef struct tegroup_impl_setup_call {
    tegroup_op op;
    int32_t groups, termless;
    int32_t fit_count;  /* of fits; one snapshot often serves all operands */
    int32_t separate_c; /* 0: C is D, or is absent and beta is 0 */
    /* Masks of bits that must be 0 for cuBLASLt in an address and in the bytes of a row of D: 15, or 0 if the quirk
     * that says so is ignored. */
    int64_t starts, ends;
    int32_t usual; /* 1: no separate C, no columns or buffers of groups' own, no scalars in memory */
    tegroup_dtype d_dtype;
    int32_t d_bytes; /* of an element */
    tegroup_impl_setup_items items;
    tegroup_impl_setup_scalar alpha, beta;
    tegroup_impl_setup_operand a, b, d, c;
    tegroup_impl_fit fits[4]; /* the snapshots that are read, each once */
} tegroup_impl_setup_call;

static inline tegroup_impl_setup_operand tegroup_impl_setup_operand_of(const tegroup_tensor *t,
                                                                       const tegroup_snapshot_view *view) {
    const int64_t bytes = tegroup_impl_bits(t->dtype) / 8;
    tegroup_impl_setup_operand o;
    memset(&o, 0, sizeof o);
    o.ragged = view->rows != NULL;
    o.rows_at = view->rows;
    o.begin_at = view->offset ? view->offset : view->start;
    o.cols_at = view->cols;
    o.rows = t->shape.rows;
    o.cols = t->shape.cols;
    o.ld = t->ld > 0 ? t->ld : view->cols ? 0 : o.cols;
    o.unit = !o.ragged ? tegroup_impl_group_stride(t) : view->offset ? 1 : o.ld;
    o.unit = tegroup_impl_mul(o.unit, bytes);
    if (!view->cols) o.ld = tegroup_impl_max(1, o.ld);
    o.data = (char *)t->data;
    if (!tegroup_impl_listed(t)) return o;
    o.pointers = t->pointers;
    o.unit = 0;
    return o;
}

static inline tegroup_impl_setup_scalar tegroup_impl_setup_scalar_of(const tegroup_scalars *s, float otherwise) {
    tegroup_impl_setup_scalar made;
    made.at = s->space != TEGROUP_SPACE_UNSET ? s->data : NULL;
    made.stride = s->stride;
    made.is_f64 = s->dtype == TEGROUP_DTYPE_F64;
    made.value = otherwise;
    return made;
}

/* Adds a tensor's snapshot to the fits unless it is there. */
static inline void tegroup_impl_setup_fit(const tegroup_tensor *t, tegroup_impl_setup_call *call) {
    const tegroup_impl_fit fit = tegroup_impl_fit_of(t);
    int32_t i;
    if (!fit.header) return;
    for (i = 0; i < call->fit_count; i++)
        if (memcmp(&call->fits[i], &fit, sizeof fit) == 0) return;
    call->fits[call->fit_count++] = fit;
}

/* Whether all snapshots are what tegroup_prepare wrote; if not, every group is skipped. */
TEGROUP_IMPL_HD int tegroup_impl_setup_prepared(const tegroup_impl_setup_call *call) {
    int32_t i;
    for (i = 0; i < call->fit_count; i++)
        if (!tegroup_impl_fits(&call->fits[i])) return 0;
    return 1;
}

/* alpha and beta are the values of scalars that the descriptor leaves out. items: addresses only, nothing is read
 * there. */
static inline tegroup_impl_setup_call tegroup_impl_setup_call_of(const tegroup_gemm_desc *desc,
                                                                 const tegroup_snapshot_view views[4], float alpha,
                                                                 float beta, tegroup_impl_setup_items items) {
    tegroup_impl_setup_call call;
    memset(&call, 0, sizeof call);
    call.op = desc->op;
    call.groups = desc->d.shape.groups;
    call.termless = tegroup_impl_termless(desc);
    call.separate_c = !desc->accumulate && desc->c.dtype != TEGROUP_DTYPE_UNSET;
    call.d_dtype = desc->d.dtype;
    call.d_bytes = tegroup_impl_bits(desc->d.dtype) / 8;
    call.starts = tegroup_impl_quirk_ignored(desc, TEGROUP_QUIRK_MISALIGNED_LD) ? 0 : 15;
    call.ends = tegroup_impl_quirk_ignored(desc, TEGROUP_QUIRK_MISALIGNED_COLS) ? 0 : 15;
    call.items = items;
    call.alpha = tegroup_impl_setup_scalar_of(&desc->alpha, alpha);
    call.beta.value = (float)desc->accumulate;
    call.a = tegroup_impl_setup_operand_of(&desc->a, &views[TEGROUP_IMPL_A]);
    call.b = tegroup_impl_setup_operand_of(&desc->b, &views[TEGROUP_IMPL_B]);
    call.d = tegroup_impl_setup_operand_of(&desc->d, &views[TEGROUP_IMPL_D]);
    call.usual = !call.separate_c && !call.alpha.at && !call.a.cols_at && !call.b.cols_at && !call.d.cols_at
                 && !call.a.pointers && !call.b.pointers && !call.d.pointers;
    tegroup_impl_setup_fit(&desc->a, &call);
    tegroup_impl_setup_fit(&desc->b, &call);
    tegroup_impl_setup_fit(&desc->d, &call);
    if (!call.separate_c) return call;
    tegroup_impl_setup_fit(&desc->c, &call);
    call.beta = tegroup_impl_setup_scalar_of(&desc->beta, beta);
    call.c = tegroup_impl_setup_operand_of(&desc->c, &views[TEGROUP_IMPL_C]);
    return call;
}

/* A group's part of an operand. */
typedef struct tegroup_impl_setup_part {
    int64_t rows, cols, begin, base, ld;
} tegroup_impl_setup_part;

/* list[g] if there, else `otherwise`: one predicated load, as the compiler makes some loads wait for others. */
TEGROUP_IMPL_HD int64_t tegroup_impl_setup_load(int32_t there, const int64_t *list, int32_t g, int64_t otherwise) {
#if defined(__CUDA_ARCH__)
    asm volatile("{.reg .pred p;\nsetp.ne.s32 p, %1, 0;\n@p ld.global.s64 %0, [%2];}"
                 : "+l"(otherwise)
                 : "r"(there), "l"(list + g));
    return otherwise;
#else
    return there ? list[g] : otherwise;
#endif
}

/* Reads what the usual case needs of a group. If not prepared, the group is skipped and nothing of the snapshots is
 * read. */
TEGROUP_IMPL_HD tegroup_impl_setup_part tegroup_impl_setup_read(const tegroup_impl_setup_operand *o, int prepared,
                                                                int32_t g) {
    tegroup_impl_setup_part part;
    part.rows = tegroup_impl_setup_load(o->ragged && prepared, o->rows_at, g, prepared ? o->rows : -1);
    part.begin = tegroup_impl_setup_load(o->ragged && prepared, o->begin_at, g, o->ragged ? 0 : g);
    part.cols = o->cols;
    part.base = (int64_t)(uintptr_t)o->data;
    part.ld = o->ld;
    return part;
}

/* Reads what else the group has of its own if the case is not the usual one. */
TEGROUP_IMPL_HD void tegroup_impl_setup_read_more(const tegroup_impl_setup_operand *o, int prepared, int32_t g,
                                                  tegroup_impl_setup_part *part) {
    if (o->cols_at && prepared) part->cols = o->cols_at[g];
    if (o->pointers) part->base = (int64_t)(uintptr_t)o->pointers[g];
    if (o->ld == 0) part->ld = tegroup_impl_max(1, part->cols);
}

TEGROUP_IMPL_HD int64_t tegroup_impl_setup_address(const tegroup_impl_setup_operand *o,
                                                   const tegroup_impl_setup_part *part) {
    return part->base + part->begin * o->unit;
}

TEGROUP_IMPL_HD float tegroup_impl_setup_number(const tegroup_impl_setup_scalar *s, int32_t g) {
    const int32_t i = s->stride ? g : 0;
    if (!s->at) return s->value;
    return s->is_f64 ? (float)((const double *)s->at)[i] : ((const float *)s->at)[i];
}

/* An address for cuBLASLt. One that it could not take is replaced; such a group has no columns, so it is not
 * accessed. */
TEGROUP_IMPL_HD int64_t tegroup_impl_setup_safe(int64_t address, int64_t starts, int64_t otherwise) {
    return address == 0 || (address & starts) ? otherwise : address;
}

/* Fills in the entries of group g. usual: call->usual, or 0. */
TEGROUP_IMPL_HD void tegroup_impl_setup_group(const tegroup_impl_setup_call *call, int usual, int32_t g,
                                              tegroup_impl_setup *s) {
    const int forward = call->op == TEGROUP_OP_FORWARD, wgrad = call->op == TEGROUP_OP_WGRAD,
              prepared = tegroup_impl_setup_prepared(call);
    tegroup_impl_setup_part a = tegroup_impl_setup_read(&call->a, prepared, g),
                            b = tegroup_impl_setup_read(&call->b, prepared, g),
                            d = tegroup_impl_setup_read(&call->d, prepared, g), c;
    tegroup_impl_meeting size;
    int64_t m, n, k, at_a, at_b, at_c, at_d;
    int narrow; /* cuBLASLt's stores would reach past D's columns */
    s->alpha = call->alpha.value;
    s->beta = call->beta.value;
    if (!usual) {
        s->alpha = tegroup_impl_setup_number(&call->alpha, g);
        s->beta = tegroup_impl_setup_number(&call->beta, g);
        tegroup_impl_setup_read_more(&call->a, prepared, g, &a);
        tegroup_impl_setup_read_more(&call->b, prepared, g, &b);
        tegroup_impl_setup_read_more(&call->d, prepared, g, &d);
    }
    size = tegroup_impl_meet(call->op, tegroup_impl_sides_of(a.rows, a.cols), tegroup_impl_sides_of(b.rows, b.cols),
                             tegroup_impl_sides_of(d.rows, d.cols));
    at_a = tegroup_impl_setup_address(&call->a, &a);
    at_b = tegroup_impl_setup_address(&call->b, &b);
    at_c = at_d = tegroup_impl_setup_address(&call->d, &d);
    c.ld = d.ld;
    if (!usual && call->separate_c) {
        c = tegroup_impl_setup_read(&call->c, prepared, g);
        tegroup_impl_setup_read_more(&call->c, prepared, g, &c);
        at_c = tegroup_impl_setup_address(&call->c, &c);
        tegroup_impl_meet_c(&size, tegroup_impl_sides_of(c.rows, c.cols));
    }
    m = tegroup_impl_max(0, size.m);
    n = tegroup_impl_max(0, size.n);
    k = tegroup_impl_max(0, size.k);
    s->result.m = m;
    s->result.n = n;
    s->result.ldc = c.ld;
    s->result.ldd = d.ld;
    s->result.c = at_c;
    s->result.d = at_d;
    s->alone = TEGROUP_IMPL_ALONE_NOTHING;
    narrow = (n * call->d_bytes & call->ends) != 0;
    if (a.rows < 0 || b.rows < 0 || d.rows < 0 || n == 0) m = 0;
    if (k == 0 || narrow || ((at_a | at_b | at_c | at_d) & call->starts) || !at_a || !at_b || !at_c || !at_d) {
        const int64_t spare = (int64_t)(uintptr_t)tegroup_impl_setup_at(&call->items, TEGROUP_IMPL_SETUP_A);
        if (k == 0 && s->beta == 1 && at_c == at_d) m = 0; /* D is its own C, and nothing is added to it */
        if (m > 0 && k == 0) {
            /* cuBLASLt writes a wgrad's zeros, as 0 * alpha, which asks for a finite alpha */
            int finite = (tegroup_impl_bits_of_f32(s->alpha) & 0x7f800000u) != 0x7f800000u;
            if (!wgrad || s->beta != 0 || !finite || narrow || ((at_c | at_d) & call->starts) || call->termless)
                s->alone = TEGROUP_IMPL_ALONE_EMPTY;
        }
        if (m > 0 && s->alone == TEGROUP_IMPL_ALONE_NOTHING
            && (narrow || (k > 0 && ((at_a | at_b) & call->starts)) || ((at_c | at_d) & call->starts)))
            s->alone = TEGROUP_IMPL_ALONE_NAN;
        if (s->alone != TEGROUP_IMPL_ALONE_NOTHING) m = 0;
        at_a = tegroup_impl_setup_safe(at_a, call->starts, spare);
        at_b = tegroup_impl_setup_safe(at_b, call->starts, spare);
        at_c = tegroup_impl_setup_safe(at_c, call->starts, spare);
        at_d = tegroup_impl_setup_safe(at_d, call->starts, spare);
    }
    s->entry[TEGROUP_IMPL_SETUP_A] = at_b;
    s->entry[TEGROUP_IMPL_SETUP_B] = at_a;
    s->entry[TEGROUP_IMPL_SETUP_C] = at_c;
    s->entry[TEGROUP_IMPL_SETUP_D] = at_d;
    s->entry[TEGROUP_IMPL_SETUP_ALPHA] =
        (int64_t)(uintptr_t)tegroup_impl_setup_at(&call->items, TEGROUP_IMPL_SETUP_ALPHA_VALUE) + 4 * (int64_t)g;
    s->entry[TEGROUP_IMPL_SETUP_BETA] =
        (int64_t)(uintptr_t)tegroup_impl_setup_at(&call->items, TEGROUP_IMPL_SETUP_BETA_VALUE) + 4 * (int64_t)g;
    s->entry[TEGROUP_IMPL_SETUP_A_SCALE] = s->entry[TEGROUP_IMPL_SETUP_B_SCALE] = 0;
    s->entry[TEGROUP_IMPL_SETUP_A_ROWS] = forward ? k : n;
    s->entry[TEGROUP_IMPL_SETUP_A_COLS] = forward ? n : k;
    s->entry[TEGROUP_IMPL_SETUP_B_ROWS] = wgrad ? m : k;
    s->entry[TEGROUP_IMPL_SETUP_B_COLS] = wgrad ? k : m;
    s->entry[TEGROUP_IMPL_SETUP_D_ROWS] = n;
    s->entry[TEGROUP_IMPL_SETUP_D_COLS] = m;
    s->entry[TEGROUP_IMPL_SETUP_A_LD] = b.ld;
    s->entry[TEGROUP_IMPL_SETUP_B_LD] = a.ld;
    s->entry[TEGROUP_IMPL_SETUP_C_LD] = c.ld;
    s->entry[TEGROUP_IMPL_SETUP_D_LD] = d.ld;
}

TEGROUP_IMPL_HD void tegroup_impl_setup_store(const tegroup_impl_setup *s, const tegroup_impl_setup_items *items,
                                              int32_t g) {
    char *at = tegroup_impl_setup_at(items, TEGROUP_IMPL_SETUP_A) + 8 * (int64_t)g;
    int32_t i;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (i = 0; i < TEGROUP_IMPL_SETUP_ALPHA_VALUE; i++, at += items->pitch) *(int64_t *)(void *)at = s->entry[i];
    ((float *)(void *)tegroup_impl_setup_at(items, TEGROUP_IMPL_SETUP_ALPHA_VALUE))[g] = s->alpha;
    ((float *)(void *)tegroup_impl_setup_at(items, TEGROUP_IMPL_SETUP_BETA_VALUE))[g] = s->beta;
}

/* The layouts of cuBLASLt's workspaces, which the host knows without the library. */
static inline int64_t tegroup_impl_cublas_bytes(const tegroup_plan *plan) {
    return plan->cublas_workspace_bytes > (size_t)PTRDIFF_MAX ? INT64_MAX : (int64_t)plan->cublas_workspace_bytes;
}

static inline void tegroup_impl_lt_grouped_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    const int64_t cublas = tegroup_impl_cublas_bytes(plan);
    tegroup_impl_layout_add(layout, "addresses and extents of each group's matrices",
                            tegroup_impl_setup_bytes(plan->problem.groups));
    tegroup_impl_layout_add(layout, plan->cublas_parts > 1 ? "cuBLASLt, forward" : "cuBLASLt", cublas);
    if (plan->cublas_parts > 1) tegroup_impl_layout_add(layout, "cuBLASLt, dgrad", cublas);
    if (plan->cublas_parts > 1) tegroup_impl_layout_add(layout, "cuBLASLt, wgrad", cublas);
}

static inline void tegroup_impl_lt_loop_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    const tegroup_problem *p = &plan->problem;
    tegroup_impl_layout_add(
        layout, "cuBLASLt, one part a stream",
        tegroup_impl_mul(tegroup_impl_align(tegroup_impl_cublas_bytes(plan), TEGROUP_ALIGNMENT), plan->cublas_parts));
    if (p->alpha_space == TEGROUP_SPACE_DEVICE || p->beta_space == TEGROUP_SPACE_DEVICE) {
        tegroup_impl_layout_add(layout, "alpha", 4 * (int64_t)p->groups);
        tegroup_impl_layout_add(layout, "beta", 4 * (int64_t)p->groups);
    }
}

/* ==== [52] Hopper GEMM: the table of kernels (src/cuda/sm90_kernels.h) ==== */

#define TEGROUP_IMPL_SM90_K           64  /* k of a pipeline stage: 128 bytes, the widest swizzle of TMA */
#define TEGROUP_IMPL_SM90_MOST_BLOCKS 160 /* the most blocks; no Hopper GPU has more than 144 multiprocessors */
#define TEGROUP_IMPL_SM90_USUAL       132 /* multiprocessors of an H100 SXM and of an H200 */
#define TEGROUP_IMPL_SM90_WIDE        192 /* columns of a wide tile, in kernels that have narrow ones */
#define TEGROUP_IMPL_SM90_NARROW      128 /* columns of a narrow tile */
#define TEGROUP_IMPL_SM90_FIT         32  /* rows of D; a fitting tile has a multiple of them */
#define TEGROUP_IMPL_SM90_SMALLER     4   /* how many multiples below the largest a fitting tile may have */

/* The kernel rows, one on each line: KERNEL(name, op, lines, cols, turns, slabs, flips, ns, epilogue, tb, us).
 *
 *   name      the tile's rows and columns of D; TEGROUP_IMPL_SM90_<name> is the row's number, which a plan holds
 *   op        1 forward, 2 dgrad, 3 wgrad, as tegroup_op
 *   lines ... flips   arguments of tegroup_impl_sm90_shape, which explains them
 *   ns        nanoseconds that a tile takes for each unit of k
 *   epilogue  time of a tile's epilogue, as the k that would take as long
 *   tb        TB/s at which operands are read and results are written
 *   us        microseconds to launch, and to fill and drain the pipeline
 *
 * `make tiles` measures the costs on a Hopper GPU, `make fit` fits them: tests/bench/tiles.py.
 *
 * The first kernel of an operation runs every problem, but a dgrad with bias. MMA(name, op, ns, epilogue, tb, us) is
 * PORTABLE's kernel of 64 x 128 tiles, for short groups: a multiprocessor holds two of its blocks, and its results have
 * the same bits. ns, epilogue, tb and us are for an H200, fitted to the times of all kernels in 3,500 products of 4 to
 * 256 groups of 4 to 2,048 rows, 192 to 28,672 columns and results of two bytes. */
#define TEGROUP_IMPL_SM90_KERNELS(KERNEL, MMA)                                                                         \
    KERNEL(FORWARD_128X192, 1, 128, 192, 1, 3, 0, 7.75, 11, 4.06, 15.2)                                                \
    KERNEL(FORWARD_64X256, 1, 64, 256, 1, 4, 0, 5.74, 31, 4.07, 13.5)                                                  \
    KERNEL(FORWARD_128X256, 1, 64, 256, 0, 2, 0, 10.50, 109, 4.37, 12.0)                                               \
    KERNEL(FORWARD_192X128, 1, 128, 192, 1, 3, 1, 7.41, 19, 4.35, 11.7)                                                \
    KERNEL(FORWARD_64X128, 1, 64, 128, 1, 2, 0, 3.98, 40, 4.25, 10.6)                                                  \
    KERNEL(DGRAD_128X192, 2, 128, 192, 1, 3, 0, 7.90, 0, 4.20, 16.3)                                                   \
    KERNEL(DGRAD_64X256, 2, 64, 256, 1, 4, 0, 6.55, 43, 4.34, 12.3)                                                    \
    KERNEL(DGRAD_128X256, 2, 64, 256, 0, 2, 0, 10.53, 105, 4.57, 11.7)                                                 \
    KERNEL(DGRAD_192X128, 2, 128, 192, 1, 3, 1, 7.28, 9, 4.62, 12.8)                                                   \
    MMA(DGRAD_64X128, 2, 11.76, 212, 4.43, 10.8)                                                                       \
    KERNEL(WGRAD_128X192, 3, 128, 192, 1, 4, 0, 8.76, 144, 3.23, 14.9)                                                 \
    KERNEL(WGRAD_128X128, 3, 128, 128, 1, 4, 0, 7.20, 143, 5.29, 17.5)                                                 \
    KERNEL(WGRAD_192X128, 3, 128, 192, 1, 3, 1, 8.71, 170, 3.62, 6.4)

enum {
#define TEGROUP_IMPL_SM90_NUMBER(name, op, lines, cols, turns, slabs, flips, ns, epilogue, tb, us)                     \
    TEGROUP_IMPL_SM90_##name,
#define TEGROUP_IMPL_SM90_MMA_NUMBER(name, op, ns, epilogue, tb, us) TEGROUP_IMPL_SM90_##name,
    TEGROUP_IMPL_SM90_KERNELS(TEGROUP_IMPL_SM90_NUMBER, TEGROUP_IMPL_SM90_MMA_NUMBER) TEGROUP_IMPL_SM90_KERNEL_COUNT
#undef TEGROUP_IMPL_SM90_NUMBER
#undef TEGROUP_IMPL_SM90_MMA_NUMBER
};

typedef struct tegroup_impl_sm90_row {
    tegroup_op op;
    int32_t tile_m, tile_n; /* rows and columns of D */
    int32_t flips;          /* whether tiles are flipped: wgmma's M dimension is D's columns */
    int32_t fits;           /* whether tiles are fitting ones: they have a multiple of TEGROUP_IMPL_SM90_FIT rows */
    int32_t narrows;        /* whether a tile row may end in narrow tiles */
    int32_t mma;            /* whether the kernel is PORTABLE's */
    double ns, epilogue, tb, us;
} tegroup_impl_sm90_row;

static inline const tegroup_impl_sm90_row *tegroup_impl_sm90_row_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_ROW(name, op, lines, cols, turns, slabs, flips, ns, epilogue, tb, us)                        \
    {(tegroup_op)(op),                                                                                                 \
     (flips) ? (cols) : (lines) * (2 - (turns)),                                                                       \
     (flips) ? (lines) * (2 - (turns)) : (cols),                                                                       \
     flips,                                                                                                            \
     (flips) && (op) != 3,                                                                                             \
     (cols) == TEGROUP_IMPL_SM90_WIDE && !((flips) && (op) != 3),                                                      \
     0,                                                                                                                \
     ns,                                                                                                               \
     epilogue,                                                                                                         \
     tb,                                                                                                               \
     us},
#define TEGROUP_IMPL_SM90_MMA_ROW(name, op, ns, epilogue, tb, us)                                                      \
    {(tegroup_op)(op), 64, 128, 0, 0, 0, 1, ns, epilogue, tb, us},
    static const tegroup_impl_sm90_row rows[TEGROUP_IMPL_SM90_KERNEL_COUNT] = {
        TEGROUP_IMPL_SM90_KERNELS(TEGROUP_IMPL_SM90_ROW, TEGROUP_IMPL_SM90_MMA_ROW)};
#undef TEGROUP_IMPL_SM90_ROW
#undef TEGROUP_IMPL_SM90_MMA_ROW
    return &rows[kernel];
}

/* Whether flipped tiles can run a problem: they store results of two bytes to which nothing is added, and gather no
 * rows. Fitting tiles store boxes of 64 rows, which would reach past a group's end where D is not ragged. */
static inline int tegroup_impl_sm90_can_flip(const tegroup_problem *p) {
    return (p->op == TEGROUP_OP_WGRAD || p->rows_space[TEGROUP_IMPL_D] != TEGROUP_SPACE_UNSET)
           && p->d != TEGROUP_DTYPE_F32 && p->c == TEGROUP_DTYPE_UNSET && !p->accumulate
           && (p->bias == TEGROUP_DTYPE_UNSET || p->op == TEGROUP_OP_WGRAD) && !p->gathered[TEGROUP_IMPL_A]
           && !p->gathered[TEGROUP_IMPL_B];
}
/* Whether the kernels of an operation, with tiles of so many columns, add a bias. It would cost those of dgrad with 128
 * by 192 tiles registers, which they spill. */
#define TEGROUP_IMPL_SM90_ADDS_BIAS(op, cols, flips)                                                                   \
    (!(flips)                                                                                                          \
     && ((op) == TEGROUP_OP_FORWARD || ((op) == TEGROUP_OP_DGRAD && (cols) > TEGROUP_IMPL_SM90_WIDE)))

/* Whether a kernel can run a problem. PORTABLE's gathers no rows. with_mma: PORTABLE is in the build. */
static inline int tegroup_impl_sm90_runs(const tegroup_problem *p, int32_t kernel, int with_mma) {
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_row_of(kernel);
    return row->op == p->op && (!row->mma || (with_mma && !p->gathered[TEGROUP_IMPL_A]))
           && (!row->flips || tegroup_impl_sm90_can_flip(p))
           && (p->bias == TEGROUP_DTYPE_UNSET || p->op == TEGROUP_OP_WGRAD || row->mma
               || TEGROUP_IMPL_SM90_ADDS_BIAS(row->op, row->tile_n, row->flips));
}

/* ==== [53] Hopper GEMM: what tiles cost, and which block is done first (src/cuda/sm90_balance.h) ==== */

/* A tile row ends in two narrow tiles where these hold the columns that are left: 4,096 columns are 20 tiles of 192 and
 * two of 128, and no tile is partly empty. A forward product or dgrad with at least this k balances blocks if it has
 * narrow tiles, and may have a single one in a tile row; round-robin, that would make blocks fall out of step. */
#define TEGROUP_IMPL_SM90_BALANCED_K 2048

/* The narrow tiles of a tile row of `cols` columns. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_narrow_tiles(int wgrad, int32_t cols, int32_t k) {
    const int32_t wide = TEGROUP_IMPL_SM90_WIDE, tiles = (cols + wide - 1) / wide,
                  room = (tiles * wide - cols) / (wide - TEGROUP_IMPL_SM90_NARROW);
    if (room < 2 && (wgrad || k < TEGROUP_IMPL_SM90_BALANCED_K)) return 0;
    return room < tiles ? room : tiles;
}

/* The cost of a tile of `cols` columns, with `steps` times 64 of k. A unit is 64 columns by one step, 256 cycles of
 * wgmma; two units are for the time between tiles. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_tile_cost(int32_t cols, int32_t steps) {
    return cols / 8 * steps / 8 + 2; /* below 2^28: cols are a multiple of 8 up to 256, and steps at most 2^25 */
}
/* The columns that cost as much as a fitting tile of `cols`. Its steps wait for shared memory: those of 96, 128, 160
 * and 192 columns take as long as wgmma takes for 160, 165, 176 and 203. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_fit_cost(int32_t cols) {
    return (int32_t)tegroup_impl_max(cols + 8, 136 + cols / 4);
}

/* Steps of all tiles of an average group below which scheduling is round-robin: balancing makes every block find all
 * stretches, and a few tiles of short sums are done sooner than that. */
#define TEGROUP_IMPL_SM90_BALANCED_STEPS 512

/* ---- balance: a tile goes to a block that would be done first, if all tiles took as long as they cost ----
 *
 * Every block computes the loads of all blocks, and so knows its own tiles without any communication. In a kernel a
 * warp holds the loads, lane l those of blocks l, l + 32, ...; on the host, where a plan looks ahead, one thread holds
 * all of them. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define TEGROUP_IMPL_LANES 32
#define TEGROUP_IMPL_LANE ((int32_t)threadIdx.x & 31)
#define TEGROUP_IMPL_LEAST(x) __reduce_min_sync(0xffffffffu, x)
#define TEGROUP_IMPL_WHERE(holds) __ballot_sync(0xffffffffu, holds)
#define TEGROUP_IMPL_COUNT(bits) __popc(bits)
#else
#define TEGROUP_IMPL_LANES 1
#define TEGROUP_IMPL_LANE 0
#define TEGROUP_IMPL_LEAST(x) (x)
#define TEGROUP_IMPL_WHERE(holds) ((holds) ? 1u : 0u)
#define TEGROUP_IMPL_COUNT(bits) ((int32_t)(bits))
#endif

typedef struct tegroup_impl_sm90_loads {
    int32_t *load;  /* [each] cost of a block's tiles so far, less `passed`; INT32_MAX: there is no such block */
    int32_t each;   /* blocks of a lane */
    int32_t fresh;  /* blocks without a tile so far, which are served first, in their order */
    int64_t passed; /* cost that every block has had, and that is left out of `load` */
} tegroup_impl_sm90_loads;

/* The number of blocks whose load is below `limit`. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_below(const tegroup_impl_sm90_loads *loads, int32_t limit) {
    int32_t blocks = 0, i;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (i = 0; i < loads->each; i++) blocks += TEGROUP_IMPL_COUNT(TEGROUP_IMPL_WHERE(loads->load[i] < limit));
    return blocks;
}

/* How often the margin below is halved at most. */
#define TEGROUP_IMPL_SM90_HALVED 2

/* Assigns one tile each to blocks whose load exceeds the least one by less than a margin, half of what a tile costs.
 * If `closely` is set, the margin is halved, HALVED times at most, as long as it leaves no fewer blocks than tiles.
 * Returns how many of the tiles are assigned; `mine` is the number of the tile that block `me` gets, or -1. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sm90_assign(tegroup_impl_sm90_loads *loads, int32_t tiles, int32_t cost,
                                                 int closely, int32_t me, int32_t *mine) {
    int32_t least = loads->load[0], given = 0, about = loads->fresh > 0 ? 1 : (cost + 1) / 2, limit, halved, i;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (i = 1; i < loads->each; i++) least = loads->load[i] < least ? loads->load[i] : least;
    least = TEGROUP_IMPL_LEAST(least);
    for (halved = 0; closely && loads->fresh <= 0 && halved < TEGROUP_IMPL_SM90_HALVED
                     && tegroup_impl_sm90_below(loads, least + about / 2) >= tiles;
         halved++)
        about /= 2;
    limit = least + about;
    *mine = -1;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (i = 0; i < loads->each; i++) {
        const uint32_t gets = TEGROUP_IMPL_WHERE(loads->load[i] < limit);
        const int32_t number = given + TEGROUP_IMPL_COUNT(gets & ((1u << TEGROUP_IMPL_LANE) - 1)),
                      my_number = given + TEGROUP_IMPL_COUNT(gets & ((1u << me % TEGROUP_IMPL_LANES) - 1));
        if (me / TEGROUP_IMPL_LANES == i && (gets >> me % TEGROUP_IMPL_LANES & 1) && my_number < tiles)
            *mine = my_number;
        if (loads->load[i] < INT32_MAX) loads->load[i] += (loads->load[i] < limit && number < tiles ? cost : 0) - least;
        given += TEGROUP_IMPL_COUNT(gets);
    }
    given = given < tiles ? given : tiles;
    loads->fresh -= given;
    loads->passed += least;
    return given;
}

/* ==== [54] Hopper GEMM of FP8: the table of kernels, and where a group's scales are (src/cuda/sm90_fp8_kernels.h) ==== */

/* The kernel rows of FP8, one on each line: KERNEL(name, op, lines, cols, turns, slabs, narrows). narrows: whether a
 * tile row may end in narrow tiles; the others are as in sm90_kernels.h. All are kernels of a forward product or of a
 * weight gradient: a dgrad is a forward product with the transposed copy of the weights. The first kernel of an
 * operation runs every problem. A thread has two sums of each element in registers, so that a warpgroup's part of a
 * tile is at most 64 x 192. A kernel without narrow tiles finds its tiles sooner. */
#define TEGROUP_IMPL_SM90_FP8_KERNELS(KERNEL)                                                                          \
    KERNEL(FP8_128X192, 1, 64, 192, 0, 3, 0)                                                                           \
    KERNEL(FP8_128X192_NARROW, 1, 64, 192, 0, 3, 1)                                                                    \
    KERNEL(FP8_64X128, 1, 64, 128, 1, 2, 0)                                                                            \
    KERNEL(FP8_WGRAD_128X192, 3, 64, 192, 0, 3, 0)

enum {
#define TEGROUP_IMPL_SM90_FP8_NUMBER(name, op, lines, cols, turns, slabs, narrows) TEGROUP_IMPL_SM90_##name,
    TEGROUP_IMPL_SM90_FP8_KERNELS(TEGROUP_IMPL_SM90_FP8_NUMBER) TEGROUP_IMPL_SM90_FP8_KERNEL_COUNT
#undef TEGROUP_IMPL_SM90_FP8_NUMBER
};

#define TEGROUP_IMPL_SM90_FP8_K 128    /* k of a pipeline stage, after which sums are promoted; of a block's scale */
#define TEGROUP_IMPL_SM90_FP8_SHORT 64 /* rows of an average group up to which the lower tile is taken */

typedef struct tegroup_impl_sm90_fp8_row {
    tegroup_op op;          /* FORWARD is for dgrad, too */
    int32_t tile_m, tile_n; /* rows and columns of D */
    int32_t narrows;        /* whether a tile row may end in narrow tiles */
} tegroup_impl_sm90_fp8_row;

static inline const tegroup_impl_sm90_fp8_row *tegroup_impl_sm90_fp8_row_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_FP8_ROW(name, op, lines, cols, turns, slabs, narrows)                                        \
    {(tegroup_op)(op), (lines) * (2 - (turns)), cols, narrows},
    static const tegroup_impl_sm90_fp8_row rows[TEGROUP_IMPL_SM90_FP8_KERNEL_COUNT] = {
        TEGROUP_IMPL_SM90_FP8_KERNELS(TEGROUP_IMPL_SM90_FP8_ROW)};
#undef TEGROUP_IMPL_SM90_FP8_ROW
    return &rows[kernel];
}

/* Whether a kernel can run a problem. */
static inline int tegroup_impl_sm90_fp8_runs(const tegroup_problem *p, int32_t kernel) {
    return (tegroup_impl_sm90_fp8_row_of(kernel)->op == TEGROUP_OP_WGRAD) == (p->op == TEGROUP_OP_WGRAD);
}

static inline void tegroup_impl_sm90_fp8_tile(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                              tegroup_impl_forecast *forecast) {
    const tegroup_problem *p = &plan->problem;
    const int forward = p->op == TEGROUP_OP_FORWARD, wgrad = p->op == TEGROUP_OP_WGRAD;
    const int64_t cols = tegroup_impl_min(forward ? p->n : p->k, INT32_MAX),
                  k = tegroup_impl_min(forward ? p->k : p->n, INT32_MAX),
                  average = tegroup_impl_expected_rows(desc, p) / tegroup_impl_max(1, p->groups);
    const int lower = average <= TEGROUP_IMPL_SM90_FP8_SHORT,
              narrows = tegroup_impl_sm90_narrow_tiles(0, (int32_t)cols, (int32_t)k) > 0;
    const int32_t kernel = wgrad     ? TEGROUP_IMPL_SM90_FP8_WGRAD_128X192
                           : lower   ? TEGROUP_IMPL_SM90_FP8_64X128
                           : narrows ? TEGROUP_IMPL_SM90_FP8_128X192_NARROW
                                     : TEGROUP_IMPL_SM90_FP8_128X192;
    plan->tile_m = tegroup_impl_sm90_fp8_row_of(kernel)->tile_m;
    plan->tile_n = tegroup_impl_sm90_fp8_row_of(kernel)->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_FP8_K;
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
    forecast->why = wgrad     ? "by rule: the one of weight gradients"
                    : lower   ? "by rule: groups are short"
                    : narrows ? "by rule: groups are long, and tile rows end in narrow tiles"
                              : "by rule: groups are long";
}

/* A weight gradient reads copies whose rows are as far apart as its group is long, so each group has two tensor maps of
 * its own, of 128 bytes, which a kernel makes in the workspace. */
static inline void tegroup_impl_sm90_workspace(const tegroup_plan *plan, tegroup_layout *layout) {
    if (tegroup_impl_quantised(&plan->problem) && plan->problem.op == TEGROUP_OP_WGRAD)
        tegroup_impl_layout_add(layout, "tensor maps", (int64_t)256 * plan->problem.groups);
}

/* Where the scales of an operand's group are: that of line l (of m or n) and block b of k is
 * at[(l >> line_shift) * line_stride + b * k_stride]. */
typedef struct tegroup_impl_sm90_scales {
    const float *at;
    int64_t line_stride, k_stride; /* k_stride is 0 where one scale is for all of k */
    int32_t line_shift;
} tegroup_impl_sm90_scales;

/* before: see tegroup_impl_scale_grid_after. */
TEGROUP_IMPL_HD tegroup_impl_sm90_scales tegroup_impl_sm90_scales_of(const tegroup_tensor *t,
                                                                     const tegroup_scaling_facts *facts,
                                                                     const tegroup_snapshot_view *view, int32_t g,
                                                                     int columnwise, int64_t before) {
    const tegroup_impl_scale_grid grid = tegroup_impl_scale_grid_after(t, facts, view, g, columnwise, before);
    tegroup_impl_sm90_scales scales;
    scales.at = (const float *)(tegroup_impl_listed(t) ? t->scale_pointers[g] : t->scale_inv) + grid.base;
    scales.line_stride = grid.outer_stride;
    scales.k_stride = facts->block_inner > 0 ? grid.inner_stride : 0;
    scales.line_shift = grid.outer_shift;
    return scales;
}

/* ==== [55] Hopper GEMM: which kernel a plan takes (src/cuda/sm90_choice.h) ==== */

/* Constants of the prediction besides those of each kernel in the table, together with which the times were fitted. */
#define TEGROUP_IMPL_SM90_STRETCH_US 0.55 /* us to find a stretch, or to assign a wave of its tiles */
#define TEGROUP_IMPL_SM90_NARROW_AS                                                                                    \
    (TEGROUP_IMPL_SM90_NARROW * 7 / 6.0) /* columns of a wide tile that take as long as a narrow tile */
#define TEGROUP_IMPL_SM90_FEW_WAVES 8    /* waves from which on the last one counts as half full */
#define TEGROUP_IMPL_SM90_SPILL 0.02     /* part of a wave that does not count as another wave */
#define TEGROUP_IMPL_SM90_STEP_DRIFT                                                                                   \
    2e-6 /* share that each unit of k adds to a forward product's fitting tiles: blocks fall out of step */
#define TEGROUP_IMPL_SM90_MMA_BLOCKS 2    /* blocks of PORTABLE's kernel that a multiprocessor holds */
#define TEGROUP_IMPL_SM90_MMA_FIXED 0.875 /* of 1.875: time of PORTABLE's tile that does not depend on its rows */
#define TEGROUP_IMPL_SM90_MMA_DRAIN 65    /* time that PORTABLE's blocks wait for memory at the end of a sum, in k */
#define TEGROUP_IMPL_SM90_ZIPF_PARTS 32   /* sizes that represent those of all groups */
#define TEGROUP_IMPL_SM90_ZIPF_POWER 4.0  /* the largest exponent of the fall of sizes that is considered */
#define TEGROUP_IMPL_SM90_UNKNOWN_MOST                                                                                 \
    2.5 /* rows of the largest group over the mean's, where it is not known: the best of seven for tiles.csv */

/* The sizes of groups that a plan expects: of `count` groups, an equal share has each of `parts` sizes. */
typedef struct tegroup_impl_sm90_groups {
    double count, mean, rows[TEGROUP_IMPL_SM90_ZIPF_PARTS];
    int32_t parts;
    int alike;
} tegroup_impl_sm90_groups;

/* Derives sizes from the mean and the largest: they fall as a power of rank, as tokens do over experts (Zipf's law). */
static inline tegroup_impl_sm90_groups tegroup_impl_sm90_expect(double count, double mean, double most) {
    const int32_t parts = most > mean + 1 ? (int32_t)fmin(count, TEGROUP_IMPL_SM90_ZIPF_PARTS) : 1;
    tegroup_impl_sm90_groups groups;
    double low = 0, high = TEGROUP_IMPL_SM90_ZIPF_POWER;
    int32_t step, i;
    memset(&groups, 0, sizeof groups);
    groups.count = count;
    groups.mean = mean;
    groups.parts = parts;
    groups.alike = most < 2 * mean + 2;
    groups.rows[0] = mean;
    for (step = 0; parts > 1 && step < 20; step++) { /* a bisection down to 4 / 2^20 */
        const double power = (low + high) / 2;
        double sum = 0;
        for (i = 0; i < parts; i++) {
            groups.rows[i] = most * pow((i + 0.5) * count / parts + 0.5, -power); /* the rank in the middle of a part */
            sum += groups.rows[i];
        }
        if (sum > mean * parts) low = power;
        else high = power;
    }
    return groups;
}

/* An average group. */
typedef struct tegroup_impl_sm90_share {
    double there; /* share of groups that have rows */
    double tiles;
    double work;      /* time of its tiles, in units of a full tile's */
    double stretches; /* stretches if blocks are balanced; 0: scheduling is round-robin */
} tegroup_impl_sm90_share;

/* Tiles of 128 rows by 192 columns that cover a weight gradient; a narrow one counts as `narrow` columns of these. */
static inline double tegroup_impl_sm90_covering(int64_t rows, int64_t cols, double narrow) {
    return (double)tegroup_impl_ceil_div(rows, 128)
           * ((double)tegroup_impl_ceil_div(cols, TEGROUP_IMPL_SM90_WIDE)
              - (1 - narrow / TEGROUP_IMPL_SM90_WIDE)
                    * tegroup_impl_sm90_narrow_tiles(1, (int32_t)tegroup_impl_min(cols, INT32_MAX), 0));
}

static inline tegroup_impl_sm90_share tegroup_impl_sm90_wgrad_share(const tegroup_problem *p,
                                                                    const tegroup_impl_sm90_row *row) {
    tegroup_impl_sm90_share share = {1, 0, 0, 0};
    share.tiles = !row->narrows ? ceil((double)p->n / row->tile_m) * ceil((double)p->k / row->tile_n)
                  : row->flips  ? tegroup_impl_sm90_covering(p->k, p->n, TEGROUP_IMPL_SM90_NARROW_AS)
                                : tegroup_impl_sm90_covering(p->n, p->k, TEGROUP_IMPL_SM90_NARROW_AS);
    share.work = share.tiles;
    return share;
}

/* For a forward product or dgrad: n is the columns of D, k the length of its sums. */
static inline tegroup_impl_sm90_share tegroup_impl_sm90_rows_share(const tegroup_impl_sm90_groups *groups,
                                                                   const tegroup_impl_sm90_row *row, double n,
                                                                   double k) {
    const double across = ceil(n / row->tile_n), part = 1.0 / groups->parts,
                 narrows =
                     row->narrows ? tegroup_impl_sm90_narrow_tiles(0, (int32_t)n, (int32_t)fmin(k, INT32_MAX)) : 0;
    const int balanced = row->fits || (narrows > 0 && narrows < across && k >= TEGROUP_IMPL_SM90_BALANCED_K);
    tegroup_impl_sm90_share share = {0, 0, 0, 0};
    int32_t i;
    for (i = 0; i < groups->parts; i++) {
        const double rows = groups->rows[i], tall = ceil(rows / row->tile_m);
        double each = 1 - narrows / across * (1 - TEGROUP_IMPL_SM90_NARROW_AS / row->tile_n);
        if (rows < 0.5) continue;
        if (row->fits) { /* Tiles share the group's rows evenly. */
            const int32_t least = row->tile_m - TEGROUP_IMPL_SM90_SMALLER * TEGROUP_IMPL_SM90_FIT;
            const double high = fmax(least, ceil(rows / tall / TEGROUP_IMPL_SM90_FIT) * TEGROUP_IMPL_SM90_FIT);
            each = (double)tegroup_impl_sm90_fit_cost((int32_t)high) / tegroup_impl_sm90_fit_cost(row->tile_m)
                   * (row->op == TEGROUP_OP_FORWARD ? 1 + k * TEGROUP_IMPL_SM90_STEP_DRIFT : 1);
        }
        if (row->mma)
            each = (TEGROUP_IMPL_SM90_MMA_FIXED + fmin(rows / tall, row->tile_m) / row->tile_m)
                   / (TEGROUP_IMPL_SM90_MMA_FIXED + 1);
        share.there += part;
        share.tiles += part * tall * across;
        share.work += part * tall * across * each;
        if (balanced)
            share.stretches += part * ceil(tall / 8) * (!row->fits ? 2 : tall > 1 ? 2 * ceil(across / 16) : 1);
    }
    if (share.tiles * k / TEGROUP_IMPL_SM90_K < TEGROUP_IMPL_SM90_BALANCED_STEPS) share.stretches = 0;
    return share;
}

/* Predicted times in us. */
typedef struct tegroup_impl_sm90_time {
    double math, scheduling, memory, total;
} tegroup_impl_sm90_time;

/* Predicts the time of a product with one kernel. Math, scheduling and memory overlap; they are combined as
 * cbrt(a^3 + b^3 + c^3), which lies between their maximum and their sum. */
static inline tegroup_impl_sm90_time tegroup_impl_sm90_predict(const tegroup_problem *p,
                                                               const tegroup_impl_sm90_groups *groups,
                                                               const tegroup_impl_sm90_row *row, int64_t blocks) {
    const int forward = p->op == TEGROUP_OP_FORWARD, wgrad = p->op == TEGROUP_OP_WGRAD;
    const double n = (double)(forward ? p->n : p->k), k = (double)(forward ? p->k : p->n),
                 terms = !wgrad          ? k
                         : groups->alike ? ceil(groups->mean / 64) * 64
                                         : groups->mean + 32;
    const tegroup_impl_sm90_share share =
        wgrad ? tegroup_impl_sm90_wgrad_share(p, row) : tegroup_impl_sm90_rows_share(groups, row, n, k);
    const double waves =
                     groups->count * share.tiles / (double)(row->mma ? TEGROUP_IMPL_SM90_MMA_BLOCKS * blocks : blocks),
                 whole = waves < TEGROUP_IMPL_SM90_FEW_WAVES ? ceil(waves - TEGROUP_IMPL_SM90_SPILL) : waves + 0.5;
    tegroup_impl_sm90_time us;
    us.math = whole * (share.tiles > 0 ? share.work / share.tiles : 0) * row->ns * (terms + row->epilogue) * 1e-3;
    us.scheduling = share.stretches > 0 ? TEGROUP_IMPL_SM90_STRETCH_US * (groups->count * share.stretches + waves) : 0;
    us.memory = 2e-6 * groups->count * (share.there * n * k + groups->mean * (n + k)) / row->tb
                * (row->mma ? 1 + TEGROUP_IMPL_SM90_MMA_DRAIN / k : 1);
    us.total = cbrt(us.math * us.math * us.math + us.scheduling * us.scheduling * us.scheduling
                    + us.memory * us.memory * us.memory)
               + row->us;
    return us;
}

/* The kernel for a weight gradient that cannot have flipped tiles, such as one to which C is added. It is bound by
 * memory, so larger tiles than 128 x 128 pay off only for long sums, or where they cover D without a rest. (The limits
 * come from medians of the kernels' times on an H200.) most: rows of the largest group, as hinted. */
static inline int32_t tegroup_impl_sm90_wide_wgrad(const tegroup_problem *p, int64_t average, int64_t most) {
    const int adds = p->accumulate || p->c != TEGROUP_DTYPE_UNSET, alike = most < 2 * average + 2,
              divides = tegroup_impl_sm90_covering(p->n, p->k, TEGROUP_IMPL_SM90_NARROW)
                        <= (double)p->n / 128 * (double)p->k / 192;
    return average <= 128 || (adds && alike && average <= 512 && !divides)
               ? TEGROUP_IMPL_SM90_WGRAD_128X128
               : TEGROUP_IMPL_SM90_WGRAD_128X192;
}

/* The kernel where one of many short groups has most of the rows, and it is not known how many of the others have any:
 * one for short groups, but fitting tiles if the largest group is just one of them and weights are large, or if that
 * group is very large. (The limits come from 1,006 such products on an H200.) */
static inline int32_t tegroup_impl_sm90_one_large(const tegroup_problem *p, double most) {
    const int forward = p->op == TEGROUP_OP_FORWARD,
              one = most > 128 && most <= 192 && (double)p->n * (double)p->k >= 2e7;
    if (one || most >= (forward ? 1000 : 640))
        return forward ? TEGROUP_IMPL_SM90_FORWARD_192X128 : TEGROUP_IMPL_SM90_DGRAD_192X128;
    return forward ? TEGROUP_IMPL_SM90_FORWARD_64X128 : TEGROUP_IMPL_SM90_DGRAD_64X256;
}

/* A kernel, why it was taken, and its predicted time, which is 0 if a rule took it. */
typedef struct tegroup_impl_sm90_taken {
    int32_t kernel;
    const char *why;
    tegroup_impl_sm90_time us;
} tegroup_impl_sm90_taken;

static inline const char *tegroup_impl_sm90_why(const tegroup_impl_sm90_time *us, int mma) {
    if (mma) return "fastest predicted, PORTABLE's kernel: groups are short";
    if (us->math >= us->memory && us->math >= us->scheduling) return "fastest predicted, bound by mathematics";
    return us->memory >= us->scheduling ? "fastest predicted, bound by memory"
                                        : "fastest predicted, bound by scheduling";
}

/* Takes the kernel with the least predicted time, unless a rule says which. with_mma: PORTABLE is in the build. */
static inline tegroup_impl_sm90_taken tegroup_impl_sm90_take_fastest(const tegroup_gemm_desc *desc,
                                                                     const tegroup_problem *p, int64_t blocks,
                                                                     int with_mma) {
    const int64_t total = tegroup_impl_min(tegroup_impl_expected_rows(desc, p), INT32_MAX),
                  count = tegroup_impl_max(1, p->groups), average = tegroup_impl_max(1, total / count),
                  most = desc->options.expected_rows_max;
    const int flips = tegroup_impl_sm90_can_flip(p);
    const double unknown = fmin((double)total, TEGROUP_IMPL_SM90_UNKNOWN_MOST * (double)average);
    const tegroup_impl_sm90_groups groups =
        tegroup_impl_sm90_expect((double)count, (double)average, most > 0 ? (double)most : unknown);
    tegroup_impl_sm90_taken taken;
    int32_t kernel;
    memset(&taken, 0, sizeof taken);
    taken.kernel = -1;
    if (p->op == TEGROUP_OP_WGRAD && !flips) {
        taken.kernel = tegroup_impl_sm90_wide_wgrad(p, average, most);
        taken.why = taken.kernel == TEGROUP_IMPL_SM90_WGRAD_128X128 ? "by rule: bound by memory, and sums are short"
                                                                    : "by rule: bound by memory, and sums are long";
        return taken;
    }
    if (p->op != TEGROUP_OP_WGRAD && flips && average <= 64 && most > 64 && most > total / 2) {
        taken.kernel = tegroup_impl_sm90_one_large(p, (double)most);
        taken.why = "by rule: one group has most of the rows";
        return taken;
    }
    for (kernel = 0; kernel < TEGROUP_IMPL_SM90_KERNEL_COUNT; kernel++) {
        tegroup_impl_sm90_time us;
        if (!tegroup_impl_sm90_runs(p, kernel, with_mma)) continue;
        us = tegroup_impl_sm90_predict(p, &groups, tegroup_impl_sm90_row_of(kernel), blocks);
        if (taken.kernel >= 0 && us.total >= taken.us.total) continue;
        taken.kernel = kernel;
        taken.us = us;
    }
    taken.why = tegroup_impl_sm90_why(&taken.us, tegroup_impl_sm90_row_of(taken.kernel)->mma);
    return taken;
}

/* ---- even groups: how many of the last ones have only narrow tiles ---- */

/* Assigns that many tiles of one cost to the blocks. */
static inline void tegroup_impl_sm90_assign_all(tegroup_impl_sm90_loads *loads, int64_t tiles, int32_t cost,
                                                int closely) {
    int32_t mine;
    while (tiles > 0)
        tiles -= tegroup_impl_sm90_assign(loads, (int32_t)tegroup_impl_min(tiles, INT32_MAX), cost, closely, -1, &mine);
}

/* The cost of the tiles of the busiest block. Each group has `tile_rows` tile rows of 128 by 192 tiles; the last
 * `narrows` groups have only narrow tiles. */
static inline int64_t tegroup_impl_sm90_span(int64_t groups, int64_t tile_rows, int32_t cols, int32_t k, int64_t blocks,
                                             int64_t narrows) {
    const int32_t steps = (int32_t)tegroup_impl_ceil_div(k, TEGROUP_IMPL_SM90_K),
                  ends = tegroup_impl_sm90_narrow_tiles(0, cols, k),
                  cost = tegroup_impl_sm90_tile_cost(TEGROUP_IMPL_SM90_WIDE, steps),
                  narrow_cost = tegroup_impl_sm90_tile_cost(TEGROUP_IMPL_SM90_NARROW, steps);
    const int64_t wide = tegroup_impl_ceil_div(cols, TEGROUP_IMPL_SM90_WIDE) - ends,
                  all = tegroup_impl_ceil_div(cols, TEGROUP_IMPL_SM90_NARROW);
    int32_t load[TEGROUP_IMPL_SM90_MOST_BLOCKS] = {0}, most = 0, b;
    tegroup_impl_sm90_loads loads;
    int64_t g;
    if (narrows == 0 && ends == 0)
        return tegroup_impl_ceil_div(groups * tile_rows * wide, blocks) * cost; /* Scheduling is round-robin. */
    loads.load = load;
    loads.each = loads.fresh = (int32_t)blocks;
    loads.passed = 0;
    for (g = 0; g < groups; g++) { /* by the stretches of tegroup_impl_sm90_stretches */
        const int closely = g / 32 == (groups - 1) / 32;
        int64_t row, height;
        if (g >= groups - narrows) {
            tegroup_impl_sm90_assign_all(&loads, all * tile_rows, narrow_cost, closely);
            continue;
        }
        for (row = 0; row < tile_rows; row += height) {
            height = ends == 0 || wide == 0 ? tile_rows : tegroup_impl_min(8, tile_rows - row);
            tegroup_impl_sm90_assign_all(&loads, wide * height, cost, closely);
            tegroup_impl_sm90_assign_all(&loads, ends * height, narrow_cost, closely);
        }
    }
    for (b = 0; b < loads.each; b++) most = load[b] > most ? load[b] : most;
    return loads.passed + most;
}

/* How many of the last groups have only narrow tiles, with FORWARD_128X192. The last wave of even groups is seldom
 * full: 3,840 tiles are 29 waves of 132, and 12 tiles that take as long as another wave. Narrow tiles fill that wave.
 * A call takes as long as its busiest block, to within a percent. The speedup was 1.028 in the mean of 313 products. */
static inline int64_t tegroup_impl_sm90_tapering(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                 int64_t blocks) {
    /* One wave of many costs little, and the search must be quick. */
    const int64_t most_tapering = 8, most_waves = 64, most_groups = 128;
    const int32_t cols = (int32_t)p->n, k = (int32_t)p->k;
    const int64_t groups = p->groups, average = tegroup_impl_expected_rows(desc, p) / tegroup_impl_max(1, groups),
                  most = desc->options.expected_rows_max, tile_rows = tegroup_impl_ceil_div(average, 128);
    int64_t best = 0, least, narrows;
    if (p->op != TEGROUP_OP_FORWARD || k < TEGROUP_IMPL_SM90_BALANCED_K || groups > most_groups
        || (most > 0 && tegroup_impl_ceil_div(most, 128) != tile_rows)
        || tegroup_impl_mul(groups * tile_rows, tegroup_impl_ceil_div(cols, TEGROUP_IMPL_SM90_WIDE))
               > most_waves * blocks)
        return 0;
    least = tegroup_impl_sm90_span(groups, tile_rows, cols, k, blocks, 0);
    least -= least / 100; /* A gain of less than 1% is not worth it. */
    for (narrows = 1; narrows <= tegroup_impl_min(most_tapering, groups); narrows++) {
        int64_t span = tegroup_impl_sm90_span(groups, tile_rows, cols, k, blocks, narrows);
        span += span * 8 * narrows / (100 * groups); /* Narrow tiles take 8% longer than their columns say. */
        if (span >= least) continue;
        least = span;
        best = narrows;
    }
    return best;
}

/* Sets tile, kernel and groups of narrow tiles of a plan for a target. */
static inline void tegroup_impl_sm90_tile(const tegroup_gemm_desc *desc, const tegroup_target *target,
                                          tegroup_plan *plan, tegroup_impl_forecast *forecast) {
    const int64_t there = target->multiprocessors > 0 ? target->multiprocessors : TEGROUP_IMPL_SM90_USUAL,
                  limit = desc->options.sm_limit > 0 ? desc->options.sm_limit : there,
                  blocks = tegroup_impl_min(tegroup_impl_min(there, limit), TEGROUP_IMPL_SM90_MOST_BLOCKS);
    if (tegroup_impl_quantised(&plan->problem)) {
        tegroup_impl_sm90_fp8_tile(desc, plan, forecast);
        return;
    }
    const tegroup_impl_sm90_taken taken = tegroup_impl_sm90_take_fastest(
        desc, &plan->problem, blocks, (int)(target->built >> TEGROUP_BACKEND_PORTABLE & 1u));
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_row_of(taken.kernel);
    plan->tile_m = row->tile_m;
    plan->tile_n = row->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_K;
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)taken.kernel;
    plan->algorithm[TEGROUP_IMPL_PLANNED_NARROWS] = (uint64_t)tegroup_impl_sm90_tapering(desc, &plan->problem, blocks);
    forecast->why = taken.why;
    forecast->us = taken.us.total;
}

/* ==== [56] The backends, a row of functions each (src/gemm/backends.h) ==== */

/* What a backend can be asked: a function type for each question. */
typedef void tegroup_impl_workspace_function(const tegroup_plan *plan, tegroup_layout *layout);
typedef void tegroup_impl_tile_function(const tegroup_gemm_desc *desc, const tegroup_target *target, tegroup_plan *plan,
                                        tegroup_impl_forecast *forecast);
typedef int tegroup_impl_image_function(int32_t sm);
typedef tegroup_status tegroup_impl_plan_function(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                  tegroup_plan *plan, tegroup_error *error);
typedef tegroup_status tegroup_impl_check_function(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                   const tegroup_impl_names *names, tegroup_error *error);
typedef tegroup_status tegroup_impl_run_function(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                 struct CUstream_st *stream, tegroup_error *error);
typedef tegroup_impl_choice tegroup_impl_chosen_function(const tegroup_plan *plan);
typedef tegroup_status tegroup_impl_choices_function(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                     tegroup_impl_choices *choices, tegroup_error *error);
typedef tegroup_status tegroup_impl_take_function(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                  tegroup_error *error);
typedef tegroup_status tegroup_impl_plan_fused_function(const tegroup_plan *plan, tegroup_fused_kernel *kernel,
                                                        tegroup_error *error);
typedef tegroup_status tegroup_impl_run_fused_function(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                       const tegroup_impl_epilogue *epilogue,
                                                       struct CUstream_st *stream, tegroup_error *error);

/* A backend. Workspace and tile are known to every build; the other functions are NULL where the build lacks its
 * code, or where the comment says so. */
typedef struct tegroup_impl_backend {
    tegroup_impl_workspace_function *workspace; /* adds the parts of a plan's workspace; NULL: it needs none */
    tegroup_impl_tile_function *tile;           /* the tile of a plan for any target; NULL: `plan` knows it */
    tegroup_impl_image_function *image;     /* does this unit hold code for the current GPU? NULL: as other kernels */
    tegroup_impl_plan_function *plan;       /* completes a plan for the current GPU; NULL: nothing is left to do */
    tegroup_impl_check_function *check;     /* what a call must be besides the common rules; NULL: nothing */
    tegroup_impl_run_function *run;         /* what the check has passed */
    tegroup_impl_chosen_function *chosen;   /* what a plan has chosen; NULL, as the next two: there is one kernel */
    tegroup_impl_choices_function *choices; /* adds what a plan could choose */
    tegroup_impl_take_function *take;       /* the plan with another choice */
    tegroup_impl_plan_fused_function *plan_fused; /* the kernel with an activation in its epilogue; NULL: it has none */
    tegroup_impl_run_fused_function *run_fused;
} tegroup_impl_backend;
#define TEGROUP_IMPL_NOT_BUILT(workspace, tile)                                                                        \
    { workspace, tile, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

static inline tegroup_impl_run_function tegroup_impl_cpu_gemm;
#define TEGROUP_IMPL_BACKEND_CPU                                                                                       \
    {                                                                                                                  \
        tegroup_impl_cpu_workspace, tegroup_impl_cpu_tile, NULL, NULL, NULL, tegroup_impl_cpu_gemm, NULL, NULL, NULL,  \
            NULL, NULL                                                                                                 \
    }

#if defined(TEGROUP_IMPL_CUDA) && !defined(TEGROUP_NO_SM90)
static inline tegroup_impl_image_function tegroup_impl_sm90_image;
static inline tegroup_impl_plan_function tegroup_impl_sm90_plan;
static inline tegroup_impl_check_function tegroup_impl_sm90_check;
static inline tegroup_impl_run_function tegroup_impl_sm90_gemm;
static inline tegroup_impl_chosen_function tegroup_impl_sm90_chosen;
static inline tegroup_impl_choices_function tegroup_impl_sm90_choices;
static inline tegroup_impl_take_function tegroup_impl_sm90_take;
#if TEGROUP_IMPL_FUSED_KERNELS
static inline tegroup_impl_plan_fused_function tegroup_impl_sm90_plan_fused;
static inline tegroup_impl_run_fused_function tegroup_impl_sm90_launch;
#define TEGROUP_IMPL_SM90_FUSED tegroup_impl_sm90_plan_fused, tegroup_impl_sm90_launch
#else
#define TEGROUP_IMPL_SM90_FUSED NULL, NULL
#endif
#define TEGROUP_IMPL_BACKEND_SM90                                                                                      \
    {                                                                                                                  \
        tegroup_impl_sm90_workspace, tegroup_impl_sm90_tile, tegroup_impl_sm90_image, tegroup_impl_sm90_plan,          \
            tegroup_impl_sm90_check, tegroup_impl_sm90_gemm, tegroup_impl_sm90_chosen, tegroup_impl_sm90_choices,      \
            tegroup_impl_sm90_take, TEGROUP_IMPL_SM90_FUSED                                                            \
    }
#else
#define TEGROUP_IMPL_BACKEND_SM90 TEGROUP_IMPL_NOT_BUILT(tegroup_impl_sm90_workspace, tegroup_impl_sm90_tile)
#endif

#if defined(TEGROUP_IMPL_CUDA) && !defined(TEGROUP_NO_PORTABLE)
static inline tegroup_impl_image_function tegroup_impl_portable_image;
static inline tegroup_impl_plan_function tegroup_impl_portable_plan;
static inline tegroup_impl_run_function tegroup_impl_portable_gemm;
#if TEGROUP_IMPL_FUSED_KERNELS
static inline tegroup_impl_plan_fused_function tegroup_impl_portable_plan_fused;
static inline tegroup_impl_run_fused_function tegroup_impl_portable_gemm_fused;
#define TEGROUP_IMPL_PORTABLE_FUSED tegroup_impl_portable_plan_fused, tegroup_impl_portable_gemm_fused
#else
#define TEGROUP_IMPL_PORTABLE_FUSED NULL, NULL
#endif
#define TEGROUP_IMPL_BACKEND_PORTABLE                                                                                  \
    {                                                                                                                  \
        NULL, NULL, tegroup_impl_portable_image, tegroup_impl_portable_plan, NULL, tegroup_impl_portable_gemm, NULL,   \
            NULL, NULL, TEGROUP_IMPL_PORTABLE_FUSED                                                                    \
    }
#else
#define TEGROUP_IMPL_BACKEND_PORTABLE TEGROUP_IMPL_NOT_BUILT(NULL, NULL)
#endif

#if defined(TEGROUP_IMPL_CUDA) && !defined(TEGROUP_NO_CUBLASLT)
static inline tegroup_impl_chosen_function tegroup_impl_lt_chosen;
static inline tegroup_impl_take_function tegroup_impl_lt_take;
static inline tegroup_impl_plan_function tegroup_impl_lt_grouped_plan, tegroup_impl_lt_loop_plan;
static inline tegroup_impl_check_function tegroup_impl_lt_grouped_check, tegroup_impl_lt_loop_check;
static inline tegroup_impl_run_function tegroup_impl_lt_grouped_gemm, tegroup_impl_lt_loop_gemm;
static inline tegroup_impl_choices_function tegroup_impl_lt_grouped_choices, tegroup_impl_lt_loop_choices;
#define TEGROUP_IMPL_BACKEND_CUBLASLT_GROUPED                                                                          \
    {                                                                                                                  \
        tegroup_impl_lt_grouped_workspace, NULL, NULL, tegroup_impl_lt_grouped_plan, tegroup_impl_lt_grouped_check,    \
            tegroup_impl_lt_grouped_gemm, tegroup_impl_lt_chosen, tegroup_impl_lt_grouped_choices,                     \
            tegroup_impl_lt_take, NULL, NULL                                                                           \
    }
#define TEGROUP_IMPL_BACKEND_CUBLASLT_LOOP                                                                             \
    {                                                                                                                  \
        tegroup_impl_lt_loop_workspace, NULL, NULL, tegroup_impl_lt_loop_plan, tegroup_impl_lt_loop_check,             \
            tegroup_impl_lt_loop_gemm, tegroup_impl_lt_chosen, tegroup_impl_lt_loop_choices, tegroup_impl_lt_take,     \
            NULL, NULL                                                                                                 \
    }
#else
#define TEGROUP_IMPL_BACKEND_CUBLASLT_GROUPED TEGROUP_IMPL_NOT_BUILT(tegroup_impl_lt_grouped_workspace, NULL)
#define TEGROUP_IMPL_BACKEND_CUBLASLT_LOOP TEGROUP_IMPL_NOT_BUILT(tegroup_impl_lt_loop_workspace, NULL)
#endif

static inline const tegroup_impl_backend *tegroup_impl_backend_of(tegroup_backend backend) {
    static const tegroup_impl_backend rows[TEGROUP_BACKEND_COUNT] = {TEGROUP_IMPL_NOT_BUILT(NULL, NULL), /* AUTO */
                                                                     TEGROUP_IMPL_BACKEND_SM90,
                                                                     TEGROUP_IMPL_BACKEND_CUBLASLT_GROUPED,
                                                                     TEGROUP_IMPL_BACKEND_PORTABLE,
                                                                     TEGROUP_IMPL_BACKEND_CUBLASLT_LOOP,
                                                                     TEGROUP_IMPL_BACKEND_CPU};
    return &rows[(uint32_t)backend < TEGROUP_BACKEND_COUNT ? backend : TEGROUP_BACKEND_AUTO];
}

/* What a build was made without, above the backends' bits in a resolved target's `built`; a caller's never has it. */
#define TEGROUP_IMPL_WITHOUT_FP8 (1u << 29)
#define TEGROUP_IMPL_WITHOUT_F16 (1u << 30)
#define TEGROUP_IMPL_WITHOUT_BACKWARD (1u << 31)
#define TEGROUP_IMPL_WITHOUT (TEGROUP_IMPL_WITHOUT_FP8 | TEGROUP_IMPL_WITHOUT_F16 | TEGROUP_IMPL_WITHOUT_BACKWARD)

/* What this build holds. */
static inline uint32_t tegroup_impl_built(void) {
    uint32_t built = 0;
    int b;
    for (b = 0; b < TEGROUP_BACKEND_COUNT; b++)
        if (tegroup_impl_backend_of((tegroup_backend)b)->run) built |= 1u << b;
#if defined(TEGROUP_NO_FP8)
    built |= TEGROUP_IMPL_WITHOUT_FP8;
#endif
#if defined(TEGROUP_NO_F16)
    built |= TEGROUP_IMPL_WITHOUT_F16;
#endif
#if defined(TEGROUP_NO_BACKWARD)
    built |= TEGROUP_IMPL_WITHOUT_BACKWARD;
#endif
    return built;
}

/* ==== [57] What each backend can do (src/gemm/verdicts.h) ==== */

/* Backends in order of preference. If only the device knows d's columns, CUBLASLT_GROUPED gives NaN for groups whose D
 * it cannot store (see tegroup_impl_setup_group), so it comes after PORTABLE, which takes any. */
static inline tegroup_backend tegroup_impl_preference(const tegroup_problem *p, int32_t i) {
    static const tegroup_backend order[2][TEGROUP_BACKEND_COUNT - 1] = {
        {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_CUBLASLT_GROUPED, TEGROUP_BACKEND_PORTABLE,
         TEGROUP_BACKEND_CUBLASLT_LOOP, TEGROUP_BACKEND_CPU},
        {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_PORTABLE, TEGROUP_BACKEND_CUBLASLT_GROUPED,
         TEGROUP_BACKEND_CUBLASLT_LOOP, TEGROUP_BACKEND_CPU}};
    return order[p->ragged_cols[TEGROUP_IMPL_D] != 0][i];
}

/* Whether this operand's groups have their own widths and no common leading dimension. */
static inline int tegroup_impl_packed(const tegroup_problem *p, tegroup_impl_operand operand, int64_t ld) {
    return !ld && p->ragged_cols[operand];
}

static inline int tegroup_impl_quirk_applies(const tegroup_quirk *quirk, const tegroup_gemm_desc *desc,
                                             const tegroup_problem *p, tegroup_backend backend,
                                             const tegroup_target *target) {
    int64_t a_bits = tegroup_impl_bits(p->a), d_bits = tegroup_impl_bits(p->d);
    if (quirk->backend != backend || target->sm < quirk->sm_min || target->sm > quirk->sm_max) return 0;
    if (target->cublaslt_version < quirk->cublaslt_from || target->cublaslt_version >= quirk->cublaslt_below) return 0;
    switch (quirk->when) {
    case TEGROUP_QUIRK_WGRAD: return p->op == TEGROUP_OP_WGRAD;
    case TEGROUP_QUIRK_MISALIGNED_LD: /* packed groups may have any leading dimension */
        return tegroup_impl_packed(p, TEGROUP_IMPL_A, p->lda) || tegroup_impl_packed(p, TEGROUP_IMPL_B, p->ldb)
               || tegroup_impl_packed(p, TEGROUP_IMPL_C, p->ldc) || tegroup_impl_packed(p, TEGROUP_IMPL_D, p->ldd)
               || p->lda * a_bits % 128 || p->ldb * tegroup_impl_bits(p->b) % 128 || p->ldc * d_bits % 128
               || p->ldd * d_bits % 128 || tegroup_impl_stride_bytes(&desc->a) % 16
               || tegroup_impl_stride_bytes(&desc->b) % 16 || tegroup_impl_stride_bytes(&desc->c) % 16
               || tegroup_impl_stride_bytes(&desc->d) % 16;
    case TEGROUP_QUIRK_MISALIGNED_COLS:
        return !p->ragged_cols[TEGROUP_IMPL_D] && (p->op == TEGROUP_OP_FORWARD ? p->n : p->k) * d_bits % 128 != 0;
    case TEGROUP_QUIRK_GROUP_SCALARS:
        return p->alpha_stride || p->beta_stride || p->alpha_space == TEGROUP_SPACE_DEVICE
               || p->beta_space == TEGROUP_SPACE_DEVICE;
    default: return 1;
    }
}

/* The first cuBLASLt version, from `version` on, that has none of the faults for which the problem is refused. */
static inline int32_t tegroup_impl_version_needed(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                  tegroup_backend backend, const tegroup_target *target,
                                                  int32_t version) {
    int32_t count, i;
    const tegroup_quirk *quirks = tegroup_quirks(&count);
    tegroup_target then = *target;
    then.cublaslt_version = version;
    for (i = 0; i < count; i++) {
        if (quirks[i].action != TEGROUP_QUIRK_REFUSE || quirks[i].cublaslt_below == TEGROUP_QUIRK_UNFIXED
            || desc->options.ignore_quirks >> i & 1u
            || !tegroup_impl_quirk_applies(&quirks[i], desc, p, backend, &then))
            continue;
        then.cublaslt_version = quirks[i].cublaslt_below;
        i = -1; /* another fault may be in that version */
    }
    return then.cublaslt_version;
}

/* A problem that is judged by one row of the table. */
typedef struct tegroup_impl_case {
    const tegroup_backend_rule *rule;
    const tegroup_gemm_desc *desc;
    const tegroup_impl_names *names;
    const tegroup_problem *p;
    const tegroup_target *target;
    int here;           /* the target is this machine, so the handle must be there, too */
    tegroup_verdict *v; /* receives the first condition that is not met */
    int32_t met;        /* number of conditions met before that one */
} tegroup_impl_case;

#define TEGROUP_IMPL_NEED(holds, code, name, words, want, came)                                                        \
    TEGROUP_IMPL_NEED_AS(NUMBER, holds, code, name, words, want, came)
#define TEGROUP_IMPL_NEED_AS(kind, holds, code, name, words, want, came)                                               \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            c->v->status = TEGROUP_##code;                                                                             \
            c->v->field = (name);                                                                                      \
            c->v->rule = (words);                                                                                      \
            c->v->expected = (int64_t)(want);                                                                          \
            c->v->got = (int64_t)(came);                                                                               \
            c->v->reading = TEGROUP_READING_##kind;                                                                    \
            return 0;                                                                                                  \
        }                                                                                                              \
        c->met++;                                                                                                      \
    } while (0)
#define TEGROUP_IMPL_HAS(feature) ((rule->features & TEGROUP_FEATURE_##feature) != 0)

/* Each of the following functions returns whether all of its conditions are met. */

/* Where it runs: build, memory, GPU. */
static inline int tegroup_impl_judge_machine(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_problem *p = c->p;
    const tegroup_target *target = c->target;
    const int device = c->p->space == TEGROUP_SPACE_DEVICE;
    TEGROUP_IMPL_NEED(target->built >> rule->backend & 1u, ERROR_NOT_BUILT, "target.built",
                      rule->backend == TEGROUP_BACKEND_SM90
                          ? "must hold this backend: nvcc -gencode arch=compute_90a,code=sm_90a"
                          : "must hold this backend, with code for this GPU",
                      1, 0);
    TEGROUP_IMPL_NEED(TEGROUP_IMPL_HAS(HOST_MEMORY) != device, ERROR_UNSUPPORTED, "space",
                      "must be where this backend's operands live",
                      TEGROUP_IMPL_HAS(HOST_MEMORY) ? TEGROUP_SPACE_HOST : TEGROUP_SPACE_DEVICE, p->space);
    TEGROUP_IMPL_NEED(TEGROUP_IMPL_HAS(HOST_MEMORY) || target->sm > 0, ERROR_UNSUPPORTED, "target.sm",
                      "must be that of a GPU; no usable one was found", rule->sm_min, target->sm);
    TEGROUP_IMPL_NEED(TEGROUP_IMPL_HAS(HOST_MEMORY) || target->sm >= rule->sm_min, ERROR_UNSUPPORTED, "target.sm",
                      "is older than the backend needs", rule->sm_min, target->sm);
    TEGROUP_IMPL_NEED(TEGROUP_IMPL_HAS(HOST_MEMORY) || target->sm <= rule->sm_max, ERROR_UNSUPPORTED, "target.sm",
                      "is newer than the backend knows", rule->sm_max, target->sm);
    return 1;
}

/* Types, scalings, and the library's version. */
static inline int tegroup_impl_judge_types(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_gemm_desc *desc = c->desc;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    const tegroup_target *target = c->target;
    const int here = c->here;
    /* what build switches leave out of the bundled backends' kernels */
    const int bundled = c->rule->backend == TEGROUP_BACKEND_SM90 || c->rule->backend == TEGROUP_BACKEND_PORTABLE;
    const uint32_t without = bundled ? c->target->built : 0;
    TEGROUP_IMPL_NEED_AS(DTYPES, rule->operand_dtypes >> p->a & 1u, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(A, DTYPE), "must be one that the backend multiplies here",
                         rule->operand_dtypes, p->a);
    TEGROUP_IMPL_NEED_AS(SCALINGS, rule->scalings >> p->a_scaling & 1u, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(A, SCALING), "must be one that the backend knows here",
                         rule->scalings, p->a_scaling);
    TEGROUP_IMPL_NEED_AS(SCALINGS, rule->scalings >> p->b_scaling & 1u, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(B, SCALING), "must be one that the backend knows here",
                         rule->scalings, p->b_scaling);
    TEGROUP_IMPL_NEED_AS(DTYPE, p->a != TEGROUP_DTYPE_F32 || p->b == p->a || TEGROUP_IMPL_HAS(MIXED), ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(B, DTYPE),
                         "must be F32, too: the backend multiplies no F32 by weights of 16 bits", p->a, p->b);
    TEGROUP_IMPL_NEED_AS(DTYPES, rule->operand_dtypes >> p->b & 1u, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(B, DTYPE), "must be one that the backend multiplies here",
                         rule->operand_dtypes, p->b);
    TEGROUP_IMPL_NEED_AS(SCALING, !(without & TEGROUP_IMPL_WITHOUT_FP8) || !tegroup_impl_quantised(p), ERROR_NOT_BUILT,
                         p->a_scaling ? TEGROUP_IMPL_OPERAND_PATH(A, SCALING) : TEGROUP_IMPL_OPERAND_PATH(B, SCALING),
                         "must be none in a build with TEGROUP_NO_FP8", TEGROUP_SCALING_NONE,
                         p->a_scaling ? p->a_scaling : p->b_scaling);
    TEGROUP_IMPL_NEED_AS(DTYPE, p->a != TEGROUP_DTYPE_F16 || !(without & TEGROUP_IMPL_WITHOUT_F16), ERROR_NOT_BUILT,
                         TEGROUP_IMPL_OPERAND_PATH(A, DTYPE), "must not be F16 in a build with TEGROUP_NO_F16",
                         TEGROUP_DTYPE_BF16, p->a);
    TEGROUP_IMPL_NEED(p->op == TEGROUP_OP_FORWARD || !(without & TEGROUP_IMPL_WITHOUT_BACKWARD), ERROR_NOT_BUILT, "op",
                      "must be FORWARD in a build with TEGROUP_NO_BACKWARD", TEGROUP_OP_FORWARD, p->op);
    TEGROUP_IMPL_NEED_AS(DTYPES, rule->result_dtypes >> p->d & 1u, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(D, DTYPE), "must be one that the backend writes",
                         rule->result_dtypes, p->d);
    TEGROUP_IMPL_NEED(target->cublaslt_version >= rule->cublaslt_min, ERROR_UNSUPPORTED, "target.cublaslt_version",
                      "is older than the backend needs here",
                      tegroup_impl_version_needed(desc, p, rule->backend, target, rule->cublaslt_min),
                      target->cublaslt_version);
    TEGROUP_IMPL_NEED(!here || !rule->cublaslt_min || desc->options.cublaslt, ERROR_UNSUPPORTED, "options.cublaslt",
                      "must be the caller's cublasLtHandle_t", 1, 0);
    TEGROUP_IMPL_NEED(p->compute == TEGROUP_COMPUTE_F32 || TEGROUP_IMPL_HAS(F64), ERROR_UNSUPPORTED, "options.compute",
                      "must be F32", TEGROUP_COMPUTE_F32, p->compute);
    return 1;
}

/* Sizes of groups: in which memory they are, and what may differ between groups. */
static inline int tegroup_impl_judge_sizes(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    int i;
    for (i = 0; i < 4; i++) {
        const char *field = names->operand[i]->members[TEGROUP_IMPL_MEMBER_SIZES_SPACE];
        TEGROUP_IMPL_NEED(p->rows_space[i] != TEGROUP_SPACE_DEVICE || TEGROUP_IMPL_HAS(DEVICE_SIZES), ERROR_UNSUPPORTED,
                          field, "must be HOST", TEGROUP_SPACE_HOST, p->rows_space[i]);
        TEGROUP_IMPL_NEED(p->rows_space[i] != TEGROUP_SPACE_HOST || TEGROUP_IMPL_HAS(HOST_SIZES), ERROR_UNSUPPORTED,
                          field, "must be DEVICE", TEGROUP_SPACE_DEVICE, p->rows_space[i]);
    }
    for (i = 0; i < 4; i++) {
        TEGROUP_IMPL_NEED(!p->ragged_cols[i] || TEGROUP_IMPL_HAS(IRREGULAR), ERROR_UNSUPPORTED,
                          names->operand[i]->members[TEGROUP_IMPL_MEMBER_COL_SIZES],
                          "must be unset: the backend takes groups of the same columns", TEGROUP_ENCODING_UNSET, 1);
        TEGROUP_IMPL_NEED(!p->has_elements[i] || TEGROUP_IMPL_HAS(IRREGULAR), ERROR_UNSUPPORTED,
                          names->operand[i]->members[TEGROUP_IMPL_MEMBER_ELEMENTS],
                          "must be 0: the backend takes groups of the same columns", 0, 1);
    }
    TEGROUP_IMPL_NEED(!p->irregular || TEGROUP_IMPL_HAS(IRREGULAR), ERROR_UNSUPPORTED,
                      names->operand[p->op == TEGROUP_OP_WGRAD ? TEGROUP_IMPL_D : TEGROUP_IMPL_B]
                          ->members[TEGROUP_IMPL_MEMBER_ROW_SIZES],
                      "must be unset: the backend takes groups of the same rows there", TEGROUP_ENCODING_UNSET, 1);
    return 1;
}

/* Where operands are: gathered rows, lists of addresses. */
static inline int tegroup_impl_judge_places(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_gemm_desc *desc = c->desc;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    int i;
    for (i = 0; i < 2; i++)
        TEGROUP_IMPL_NEED(!p->gathered[i] || TEGROUP_IMPL_HAS(GATHER), ERROR_UNSUPPORTED,
                          names->operand[i]->members[TEGROUP_IMPL_MEMBER_GATHER_ROWS],
                          "must be 0: the backend reads rows in their order, from a permuted copy", 0,
                          i == TEGROUP_IMPL_A ? desc->gather_a.rows : desc->gather_b.rows);
    for (i = 0; i < 5; i++) {
        const char *field = names->operand[i]->members[TEGROUP_IMPL_MEMBER_POINTERS_SPACE];
        TEGROUP_IMPL_NEED(p->pointers_space[i] == TEGROUP_SPACE_UNSET || TEGROUP_IMPL_HAS(LISTS), ERROR_UNSUPPORTED,
                          field, "must be unset", TEGROUP_SPACE_UNSET, p->pointers_space[i]);
        TEGROUP_IMPL_NEED(p->pointers_space[i] != TEGROUP_SPACE_HOST || !TEGROUP_IMPL_HAS(DEVICE_SIZES),
                          ERROR_UNSUPPORTED, field, "must be DEVICE: its kernels read the list", TEGROUP_SPACE_DEVICE,
                          p->pointers_space[i]);
        TEGROUP_IMPL_NEED(p->pointers_space[i] != TEGROUP_SPACE_DEVICE || TEGROUP_IMPL_HAS(DEVICE_SIZES),
                          ERROR_UNSUPPORTED, field, "must be HOST: the list is read there", TEGROUP_SPACE_HOST,
                          p->pointers_space[i]);
    }
    return 1;
}

/* Copies and scales of quantised operands, of which SM90's kernels take some. */
static inline int tegroup_impl_judge_copies(tegroup_impl_case *c) {
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    int i;
    if (c->rule->backend != TEGROUP_BACKEND_SM90 || !tegroup_impl_quantised(p)) return 1;
    for (i = 0; i < 2; i++) {
        const tegroup_impl_name *name = names->operand[i];
        const int32_t parts = i ? c->desc->b.scale_parts : c->desc->a.scale_parts;
        TEGROUP_IMPL_NEED(p->columnwise_order[i] == TEGROUP_COLUMNWISE_TRANSPOSED
                              || !tegroup_impl_sums_rows(p->op, (tegroup_impl_operand)i),
                          ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(COLUMNWISE_ORDER),
                          "must be TRANSPOSED: wgmma takes FP8 contiguous along k alone", TEGROUP_COLUMNWISE_TRANSPOSED,
                          p->columnwise_order[i]);
        TEGROUP_IMPL_NEED_AS(DTYPE, p->scale_dtype[i] == TEGROUP_DTYPE_UNSET || p->scale_dtype[i] == TEGROUP_DTYPE_F32,
                             ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALE_DTYPE), "must be F32 for this backend",
                             TEGROUP_DTYPE_F32, p->scale_dtype[i]);
        TEGROUP_IMPL_NEED(parts <= 1, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALE_PARTS),
                          "must be 0 or 1 for this backend", 1, parts);
    }
    TEGROUP_IMPL_NEED(p->op != TEGROUP_OP_WGRAD || p->bias == TEGROUP_DTYPE_UNSET
                          || (c->target->built >> TEGROUP_BACKEND_PORTABLE & 1u),
                      ERROR_NOT_BUILT, names->operand[TEGROUP_IMPL_BIAS]->name,
                      "of quantised rows is summed by a kernel of PORTABLE, which must be part of the build", 0,
                      p->bias);
    return 1;
}

/* alpha and beta. */
static inline int tegroup_impl_judge_scalars(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_problem *p = c->p;
    const int device = c->p->space == TEGROUP_SPACE_DEVICE;
    TEGROUP_IMPL_NEED(p->alpha_space != TEGROUP_SPACE_DEVICE || device, ERROR_UNSUPPORTED, "alpha.space",
                      "must be HOST for operands in host memory", TEGROUP_SPACE_HOST, p->alpha_space);
    TEGROUP_IMPL_NEED(p->beta_space != TEGROUP_SPACE_DEVICE || device, ERROR_UNSUPPORTED, "beta.space",
                      "must be HOST for operands in host memory", TEGROUP_SPACE_HOST, p->beta_space);
    TEGROUP_IMPL_NEED(!p->alpha_stride || p->alpha_space == TEGROUP_SPACE_DEVICE || !TEGROUP_IMPL_HAS(DEVICE_SIZES),
                      ERROR_UNSUPPORTED, "alpha.space", "must be DEVICE for one a group", TEGROUP_SPACE_DEVICE,
                      p->alpha_space);
    TEGROUP_IMPL_NEED(!p->beta_stride || p->beta_space == TEGROUP_SPACE_DEVICE || !TEGROUP_IMPL_HAS(DEVICE_SIZES),
                      ERROR_UNSUPPORTED, "beta.space", "must be DEVICE for one a group", TEGROUP_SPACE_DEVICE,
                      p->beta_space);
    TEGROUP_IMPL_NEED(!p->alpha_stride || p->alpha_space != TEGROUP_SPACE_HOST || p->beta_space != TEGROUP_SPACE_DEVICE,
                      ERROR_UNSUPPORTED, "alpha.space", "must be DEVICE for one a group where beta's is",
                      TEGROUP_SPACE_DEVICE, p->alpha_space);
    TEGROUP_IMPL_NEED(!p->beta_stride || p->beta_space != TEGROUP_SPACE_HOST || p->alpha_space != TEGROUP_SPACE_DEVICE,
                      ERROR_UNSUPPORTED, "beta.space", "must be DEVICE for one a group where alpha's is",
                      TEGROUP_SPACE_DEVICE, p->beta_space);
    TEGROUP_IMPL_NEED(!p->alpha_stride || TEGROUP_IMPL_HAS(GROUP_SCALARS), ERROR_UNSUPPORTED, "alpha.stride",
                      "must be 0", 0, p->alpha_stride);
    TEGROUP_IMPL_NEED(!p->beta_stride || TEGROUP_IMPL_HAS(GROUP_SCALARS), ERROR_UNSUPPORTED, "beta.stride", "must be 0",
                      0, p->beta_stride);
    return 1;
}

/* Bias, tail, sm_limit. */
static inline int tegroup_impl_judge_extras(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_gemm_desc *desc = c->desc;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    const int device = c->p->space == TEGROUP_SPACE_DEVICE;
    TEGROUP_IMPL_NEED(p->bias == TEGROUP_DTYPE_UNSET || TEGROUP_IMPL_HAS(BIAS), ERROR_UNSUPPORTED,
                      names->operand[TEGROUP_IMPL_BIAS]->name, "must be absent", 0, p->bias);
    TEGROUP_IMPL_NEED(p->tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_HAS(TAIL), ERROR_UNSUPPORTED, names->tail,
                      "must be KEEP", TEGROUP_TAIL_KEEP, p->tail);
    TEGROUP_IMPL_NEED(!desc->options.sm_limit || !device || TEGROUP_IMPL_HAS(SM_LIMIT), ERROR_UNSUPPORTED,
                      "options.sm_limit", "must be 0: cuBLASLt takes it for a hint", 0, desc->options.sm_limit);
    return 1;
}

/* Addresses and strides. */
static inline int tegroup_impl_judge_alignment(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_gemm_desc *desc = c->desc;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    const int64_t data = c->rule->backend == TEGROUP_BACKEND_CUBLASLT_GROUPED ? 16 : c->rule->ld_alignment_bytes;
    const int64_t unit = (int64_t)c->rule->ld_alignment_bytes * 8;
    int i;
    TEGROUP_IMPL_NEED(!desc->options.data_alignment_bytes || desc->options.data_alignment_bytes >= data,
                      ERROR_UNSUPPORTED, "options.data_alignment_bytes", "must be 0 or at least what the backend needs",
                      data, desc->options.data_alignment_bytes);
    TEGROUP_IMPL_NEED(rule->backend != TEGROUP_BACKEND_CUBLASLT_GROUPED || !tegroup_impl_placed(desc)
                          || desc->options.data_alignment_bytes >= data,
                      ERROR_UNSUPPORTED, "options.data_alignment_bytes",
                      "must say that groups at shape.offsets begin at multiples of what the backend needs", data,
                      desc->options.data_alignment_bytes);
    for (i = 0; unit && i < 4; i++) {
        const tegroup_impl_name *name = names->operand[i];
        const tegroup_tensor *tensors[4] = {&desc->a, &desc->b, &desc->c, &desc->d}, *t = tensors[i];
        const tegroup_dtype dtypes[4] = {p->a, p->b, p->d, p->d};
        const int64_t lds[4] = {p->lda, p->ldb, p->ldc, p->ldd}, bits = lds[i] * tegroup_impl_bits(dtypes[i]),
                      stride = tegroup_impl_stride_bytes(t);
        TEGROUP_IMPL_NEED(bits % unit == 0, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(LD),
                          "must be a multiple of so many bytes", rule->ld_alignment_bytes, bits / 8);
        TEGROUP_IMPL_NEED(stride % rule->ld_alignment_bytes == 0, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                          "must be a multiple of so many bytes", rule->ld_alignment_bytes, stride);
        TEGROUP_IMPL_NEED(stride <= TEGROUP_IMPL_TMA_STRIDE_BYTES, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                          "must be at most so many bytes, for TMA", TEGROUP_IMPL_TMA_STRIDE_BYTES, stride);
    }
    return 1;
}

#undef TEGROUP_IMPL_HAS
#undef TEGROUP_IMPL_NEED
#undef TEGROUP_IMPL_NEED_AS

/* Finds the first condition of one table row that the problem does not meet. Returns how many it met before, or
 * INT32_MAX if it meets all. */
static inline int32_t tegroup_impl_judge(const tegroup_backend_rule *rule, const tegroup_gemm_desc *desc,
                                         const tegroup_impl_names *names, const tegroup_problem *p,
                                         const tegroup_target *target, int here, tegroup_verdict *v) {
    tegroup_impl_case c;
    c.rule = rule;
    c.desc = desc;
    c.names = names;
    c.p = p;
    c.target = target;
    c.here = here;
    c.v = v;
    c.met = 0;
    if (tegroup_impl_judge_machine(&c) && tegroup_impl_judge_types(&c) && tegroup_impl_judge_sizes(&c)
        && tegroup_impl_judge_places(&c) && tegroup_impl_judge_copies(&c) && tegroup_impl_judge_scalars(&c)
        && tegroup_impl_judge_extras(&c) && tegroup_impl_judge_alignment(&c))
        return INT32_MAX;
    return c.met;
}

/* ==== [58] Explain and plan (src/gemm/plan.h) ==== */

#if defined(TEGROUP_IMPL_CUDA)
/* Describes the current device as a target; sm stays 0 without one. Returns the device, or -1. */
static inline int32_t tegroup_impl_cuda_target(tegroup_target *target);
/* The backends that this unit holds code of for the current device, whose architecture is sm. */
static inline uint32_t tegroup_impl_cuda_images(int32_t sm);
/* The version of the cuBLASLt that this descriptor reaches; 0: none. */
static inline int32_t tegroup_impl_cuda_cublaslt_version(const tegroup_gemm_desc *desc);
#endif

/* A plan's workspace: the one layout that its size, the check and the carving follow. */
static inline void tegroup_impl_plan_layout(const tegroup_plan *plan, tegroup_layout *layout) {
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    tegroup_impl_layout_begin(layout);
    if (backend->workspace) backend->workspace(plan, layout);
}

/* How many parts of the workspace are cuBLASLt's own: one, one for each operation (see the quirks), or one for each
 * stream. */
static inline int32_t tegroup_impl_cublas_parts(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                tegroup_backend backend, const tegroup_target *target) {
    int32_t count, i;
    const tegroup_quirk *quirks = tegroup_quirks(&count);
    if (backend == TEGROUP_BACKEND_CUBLASLT_LOOP)
        return desc->options.stream_count > 0 ? desc->options.stream_count : 1;
    for (i = 0; i < count; i++)
        if (quirks[i].action == TEGROUP_QUIRK_SEPARATE && !(desc->options.ignore_quirks >> i & 1u)
            && tegroup_impl_quirk_applies(&quirks[i], desc, p, backend, target))
            return 3;
    return 1;
}

static inline tegroup_status tegroup_impl_take_target(const tegroup_target *given, tegroup_target *target,
                                                      tegroup_error *error) {
    TEGROUP_IMPL_RULE(tegroup_impl_size_fits(given->struct_size, sizeof *given), ERROR_STRUCT_SIZE,
                      "target.struct_size", TEGROUP_IMPL_SIZE_RULE, sizeof *given, given->struct_size);
    memset(target, 0, sizeof *target);
    memcpy(target, given, given->struct_size);
    target->struct_size = sizeof *target;
    TEGROUP_IMPL_RULE(target->sm >= 0, ERROR_VALUE, "target.sm", "must not be negative", 0, target->sm);
    TEGROUP_IMPL_RULE(target->cublaslt_version >= 0, ERROR_VALUE, "target.cublaslt_version", "must not be negative", 0,
                      target->cublaslt_version);
    TEGROUP_IMPL_RULE(target->multiprocessors >= 0, ERROR_VALUE, "target.multiprocessors", "must not be negative", 0,
                      target->multiprocessors);
    TEGROUP_IMPL_RULE(target->threads >= 0, ERROR_VALUE, "target.threads", "must not be negative", 0, target->threads);
    return TEGROUP_OK;
}

/* The target that a plan is made for: the caller's, or this machine. */
static inline tegroup_status tegroup_impl_target(const tegroup_gemm_desc *desc, const tegroup_target *given,
                                                 tegroup_target *target, tegroup_error *error) {
    (void)desc;
    memset(target, 0, sizeof *target);
    if (given) {
        TEGROUP_IMPL_TRY(tegroup_impl_take_target(given, target, error));
        target->built &= ~TEGROUP_IMPL_WITHOUT;
    }
#if defined(TEGROUP_IMPL_CUDA)
    else {
        if (tegroup_impl_cuda_target(target) >= 0) target->built = tegroup_impl_cuda_images(target->sm);
        target->cublaslt_version = tegroup_impl_cuda_cublaslt_version(desc);
    }
#endif
    if (!target->built) target->built = tegroup_impl_built();
    return TEGROUP_OK;
}

static inline int32_t tegroup_impl_plan_threads(const tegroup_gemm_desc *desc, const tegroup_target *target) {
    int32_t limit = desc->options.threads > 0 && target->threads > 0
                        ? (int32_t)tegroup_impl_min(desc->options.threads, target->threads)
                        : desc->options.threads + target->threads;
    return target->threads > 0 ? limit : tegroup_impl_threads(limit);
}

/* Makes a plan for one backend as far as the host knows it. here: the target is this machine. */
static inline void tegroup_impl_plan_begin(const tegroup_gemm_desc *desc, const tegroup_problem *problem,
                                           tegroup_backend backend, const tegroup_target *target, int here,
                                           tegroup_plan *made, tegroup_impl_forecast *forecast) {
    const tegroup_impl_backend *row = tegroup_impl_backend_of(backend);
    tegroup_layout layout;
    memset(made, 0, sizeof *made);
    made->struct_size = sizeof *made;
    made->magic = TEGROUP_PLAN_MAGIC;
    made->backend = backend;
    made->problem = *problem;
    made->sm = backend == TEGROUP_BACKEND_CPU ? 0 : target->sm;
    made->device = -1;
    made->cublaslt_version = target->cublaslt_version;
    made->hypothetical = !row->run || (!here && backend != TEGROUP_BACKEND_CPU);
    made->threads = tegroup_impl_plan_threads(desc, target);
    made->sm_limit = desc->options.sm_limit;
    made->numerics_id = tegroup_impl_numerics_id(problem, backend, made->sm);
    if (backend == TEGROUP_BACKEND_CUBLASLT_GROUPED || backend == TEGROUP_BACKEND_CUBLASLT_LOOP) {
        made->cublas_workspace_bytes =
            desc->options.cublas_workspace_bytes ? desc->options.cublas_workspace_bytes : (size_t)32 << 20;
        made->cublas_parts = tegroup_impl_cublas_parts(desc, problem, backend, target);
    }
    memset(forecast, 0, sizeof *forecast);
    if (row->tile) row->tile(desc, target, made, forecast);
    tegroup_impl_plan_layout(made, &layout);
    made->workspace_bytes = layout.total_bytes;
}

static inline int64_t tegroup_impl_distance(int64_t a, int64_t b) { return a < b ? b - a : a - b; }

/* One backend's verdict: that of the table row that meets the most conditions, then the quirks'. plan: set if the
 * verdict is OK, as far as the host knows it. */
static inline void tegroup_impl_verdict(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                        const tegroup_problem *p, tegroup_backend backend, const tegroup_target *target,
                                        int here, tegroup_verdict *verdict, tegroup_plan *plan) {
    int32_t count, i, best = -1;
    const tegroup_backend_rule *rules = tegroup_backend_rules(&count);
    const tegroup_quirk *quirks;
    tegroup_impl_forecast forecast;
    memset(verdict, 0, sizeof *verdict);
    for (i = 0; i < count && best < INT32_MAX; i++) {
        tegroup_verdict v;
        int32_t met, closer; /* of rows that fail the same condition, the one that misses it least */
        if (rules[i].backend != backend) continue;
        memset(&v, 0, sizeof v);
        met = tegroup_impl_judge(&rules[i], desc, names, p, target, here, &v);
        closer = met == best
                 && tegroup_impl_distance(v.expected, v.got) < tegroup_impl_distance(verdict->expected, verdict->got);
        if (met > best || closer) {
            best = met;
            *verdict = v;
        }
    }
    verdict->backend = backend;
    verdict->quirk = -1;
    if (verdict->status != TEGROUP_OK) return;
    quirks = tegroup_quirks(&count);
    for (i = 0; i < count; i++)
        if (quirks[i].action == TEGROUP_QUIRK_REFUSE && !(desc->options.ignore_quirks >> i & 1u)
            && tegroup_impl_quirk_applies(&quirks[i], desc, p, backend, target)) {
            verdict->status = TEGROUP_ERROR_UNSUPPORTED;
            verdict->field = "target.cublaslt_version";
            verdict->rule = quirks[i].text;
            verdict->expected = quirks[i].cublaslt_below == TEGROUP_QUIRK_UNFIXED
                                    ? 0
                                    : tegroup_impl_version_needed(desc, p, backend, target, target->cublaslt_version);
            verdict->got = target->cublaslt_version;
            verdict->quirk = i;
            return;
        }
    tegroup_impl_plan_begin(desc, p, backend, target, here, plan, &forecast);
    if (plan->workspace_bytes == SIZE_MAX) {
        verdict->status = TEGROUP_ERROR_OVERFLOW;
        verdict->field = "options.cublas_workspace_bytes";
        verdict->rule = "must leave the workspace addressable";
        verdict->expected = tegroup_impl_max_bytes();
        verdict->got = INT64_MAX;
        return;
    }
    verdict->workspace_bytes = plan->workspace_bytes;
    verdict->tile_m = plan->tile_m;
    verdict->tile_n = plan->tile_n;
    verdict->tile_k = plan->tile_k;
    verdict->tile_why = forecast.why;
    verdict->predicted_us = forecast.us;
}

/* Completes the plan by the choice of kernel, for which the current device is queried. */
static inline tegroup_status tegroup_impl_plan_complete(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                        tegroup_plan *plan, tegroup_error *error) {
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    if (plan->hypothetical || !backend->plan) return TEGROUP_OK;
#if defined(TEGROUP_IMPL_CUDA)
    tegroup_target target;
    plan->device = tegroup_impl_cuda_target(&target);
#endif
    return backend->plan(desc, names, plan, error);
}

/* Makes the verdicts of tegroup_explain, and the plan of the chosen backend; made->backend is AUTO if there is none. */
static inline tegroup_status tegroup_impl_choose(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                 const tegroup_target *target,
                                                 tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1],
                                                 tegroup_plan *made, tegroup_error *error) {
    const int here = target == NULL;
    tegroup_problem problem;
    tegroup_target resolved;
    int32_t i;
    memset(made, 0, sizeof *made);
    TEGROUP_IMPL_TRY(tegroup_impl_problem_of(desc, names, &problem, error));
    TEGROUP_IMPL_TRY(tegroup_impl_target(desc, target, &resolved, error));
    for (i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++) {
        tegroup_verdict *v = &verdicts[i];
        tegroup_plan plan;
        tegroup_error why;
        tegroup_status status;
        tegroup_impl_verdict(desc, names, &problem, tegroup_impl_preference(&problem, i), &resolved, here, v, &plan);
        if (made->backend != TEGROUP_BACKEND_AUTO || v->status != TEGROUP_OK
            || (desc->options.backend != TEGROUP_BACKEND_AUTO && desc->options.backend != v->backend))
            continue;
        memset(&why, 0, sizeof why); /* else compilers that inline some of the calls warn */
        status = tegroup_impl_plan_complete(desc, names, &plan, &why);
        v->chosen = status == TEGROUP_OK;
        if (v->chosen) *made = plan;
        else {
            /* a CUDA or cuBLASLt call failed, or nothing is offered */
            v->status = status;
            v->native = why.native;
            v->field = why.field;
            v->rule = why.rule;
            v->expected = why.expected;
            v->got = why.got;
            v->workspace_bytes = 0;
            v->tile_m = v->tile_n = v->tile_k = 0;
            v->tile_why = NULL;
            v->predicted_us = 0;
        }
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_explain(const tegroup_gemm_desc *desc, const tegroup_target *target,
                                           tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1], tegroup_error *error) {
    tegroup_gemm_desc taken;
    tegroup_verdict said[TEGROUP_BACKEND_COUNT - 1];
    tegroup_plan plan;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_choose(desc, tegroup_impl_gemm_names(), target, said, &plan, error));
    TEGROUP_IMPL_RULE(verdicts != NULL, ERROR_NULL_ARGUMENT, "verdicts", "must not be NULL", 1, 0);
    memcpy(verdicts, said, sizeof said);
    return TEGROUP_OK;
}

/* Makes a plan for a complete descriptor; errors use the names of the caller's tensors. */
static inline tegroup_status tegroup_impl_plan_make(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                    const tegroup_target *target, tegroup_plan *plan,
                                                    tegroup_error *error) {
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
    const tegroup_verdict *refused = NULL;
    tegroup_plan made;
    int32_t i;
    TEGROUP_IMPL_TRY(tegroup_impl_choose(desc, names, target, verdicts, &made, error));
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    if (made.backend == TEGROUP_BACKEND_AUTO) {
        for (i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++) {
            int asked = desc->options.backend == TEGROUP_BACKEND_AUTO
                            ? (verdicts[i].backend == TEGROUP_BACKEND_CPU) == (desc->space == TEGROUP_SPACE_HOST)
                            : verdicts[i].backend == desc->options.backend;
            if (asked && (!refused || (verdicts[i].native && !refused->native)))
                refused = &verdicts[i]; /* a failed library call is reported first */
        }
        (void)tegroup_impl_fail_as(refused->reading, error, refused->status, refused->field, refused->rule,
                                   refused->expected, refused->got);
        if (error) error->native = refused->native;
        /* never OK here; said so that compilers do not warn of an unset plan in the caller */
        return refused->status != TEGROUP_OK ? refused->status : TEGROUP_ERROR_UNSUPPORTED;
    }
    *plan = made;
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_plan_make(const tegroup_gemm_desc *desc, const tegroup_target *target,
                                             tegroup_plan *plan, tegroup_error *error) {
    tegroup_gemm_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    return tegroup_impl_plan_make(desc, tegroup_impl_gemm_names(), target, plan, error);
}

/* ==== [59] CPU GEMM (src/cpu/gemm.h) ==== */

/* tegroup_impl_cpu_pack for rows that an index picks: from row `row` and column `col` of the group on. The rows are the
 * lines, or where along_k is set what is summed over. */
static inline void tegroup_impl_cpu_pack_gathered_f32(tegroup_dtype dtype, const tegroup_gather *gather,
                                                       const tegroup_impl_block *block, int64_t row, int64_t col,
                                                       int along_k, int32_t count, int32_t k, int32_t width,
                                                       float *panel) {
    float x[TEGROUP_IMPL_CPU_TILE_N > TEGROUP_IMPL_CPU_TILE_K ? TEGROUP_IMPL_CPU_TILE_N : TEGROUP_IMPL_CPU_TILE_K];
    int32_t rows = along_k ? k : count, cols = along_k ? count : k, r, j;
    if (count % width != 0)
        memset(panel + (int64_t)(count / width) * k * width, 0, (size_t)k * (size_t)width * sizeof(float));
    for (r = 0; r < rows; r++) {
        int64_t at = tegroup_impl_row_at(gather, block, row + r);
        if (at < 0) memset(x, 0, (size_t)cols * sizeof(float));
        else tegroup_impl_load_row_f32(dtype, block->base, at + col, 1, cols, x);
        if (along_k)
            for (j = 0; j < cols; j++) panel[(int64_t)(j / width) * k * width + r * width + j % width] = x[j];
        else
            for (j = 0; j < cols; j++) panel[(int64_t)(r / width) * k * width + j * width + r % width] = x[j];
    }
}

/* One tile of one group: rows i0.., columns j0.. of D, from an empty sum to the stored result. */
static inline void tegroup_impl_cpu_gemm_tile_f32(const tegroup_gemm_desc *desc, const tegroup_impl_product *p,
                                                   const tegroup_impl_cpu_codes codes[2], int64_t i0, int64_t j0,
                                                   float *scratch) {
    float *a = scratch, *b = a + TEGROUP_IMPL_CPU_TILE_M_PADDED * TEGROUP_IMPL_CPU_TILE_K,
         *sums = b + TEGROUP_IMPL_CPU_TILE_K * TEGROUP_IMPL_CPU_PANEL_N;
    int32_t m = (int32_t)tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_M, p->m - i0),
            n = (int32_t)tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_N, p->n - j0), i, j;
    float alpha = (float)p->alpha, beta = (float)p->beta, scale = 1;
    int has_bias = desc->bias.dtype != TEGROUP_DTYPE_UNSET && desc->op != TEGROUP_OP_WGRAD;
    int wgrad = desc->op == TEGROUP_OP_WGRAD;
    /* Of few rows A is packed for as much of k as there is room for: lines of B are then read on and on. (Picked
     * rows are widened TILE_K elements at a time.) */
    const int32_t most = m <= TEGROUP_IMPL_MICRO_M && desc->gather_a.rows == 0
                             ? TEGROUP_IMPL_CPU_TILE_M_PADDED * TEGROUP_IMPL_CPU_TILE_K / TEGROUP_IMPL_MICRO_M
                             : TEGROUP_IMPL_CPU_TILE_K;
    int32_t kk;
    int64_t k0;
    memset(sums, 0, (size_t)(m + TEGROUP_IMPL_MICRO_M) * TEGROUP_IMPL_CPU_TILE_N * sizeof(float));
    for (k0 = 0; k0 < p->k; k0 += most) {
        const int32_t k = (int32_t)tegroup_impl_min(most, p->k - k0);
        if (codes[TEGROUP_IMPL_A].scaled.facts)
            tegroup_impl_cpu_pack_codes_f32(&codes[TEGROUP_IMPL_A], i0, k0, m, k, TEGROUP_IMPL_MICRO_M, a);
        else if (desc->gather_a.rows > 0)
            tegroup_impl_cpu_pack_gathered_f32(desc->a.dtype, &desc->gather_a, &p->a, wgrad ? k0 : i0, wgrad ? i0 : k0,
                                                wgrad, m, k, TEGROUP_IMPL_MICRO_M, a);
        else
            tegroup_impl_cpu_pack_f32(desc->a.dtype, p->a.base, p->a.first + i0 * p->a_line + k0 * p->a_k, p->a_line,
                                       p->a_k, m, k, TEGROUP_IMPL_MICRO_M, a);
        for (j = 0; j < n; j += TEGROUP_IMPL_MICRO_N_f32) { /* a panel of B stays in the first cache for all of A */
            const int32_t cols = n - j < TEGROUP_IMPL_MICRO_N_f32 ? n - j : TEGROUP_IMPL_MICRO_N_f32;
            kk = desc->gather_b.rows > 0 || codes[TEGROUP_IMPL_B].scaled.facts
                     ? 0
                     : TEGROUP_IMPL_FEW_f32(desc->b.dtype, p->b.base, p->b.first + (j0 + j) * p->b_line + k0 * p->b_k,
                                             p->b_line, p->b_k, m, cols, k, a, b, sums + j);
            for (; kk < k; kk += TEGROUP_IMPL_CPU_TILE_K) {
                const int32_t deep = k - kk < TEGROUP_IMPL_CPU_TILE_K ? k - kk : TEGROUP_IMPL_CPU_TILE_K;
                if (codes[TEGROUP_IMPL_B].scaled.facts)
                    tegroup_impl_cpu_pack_codes_f32(&codes[TEGROUP_IMPL_B], j0 + j, k0 + kk, cols, deep,
                                                     TEGROUP_IMPL_MICRO_N_f32, b);
                else if (desc->gather_b.rows > 0)
                    tegroup_impl_cpu_pack_gathered_f32(desc->b.dtype, &desc->gather_b, &p->b, k0 + kk, j0 + j, 1, cols,
                                                        deep, TEGROUP_IMPL_MICRO_N_f32, b);
                else
                    tegroup_impl_cpu_pack_f32(desc->b.dtype, p->b.base,
                                               p->b.first + (j0 + j) * p->b_line + (k0 + kk) * p->b_k, p->b_line,
                                               p->b_k, cols, deep, TEGROUP_IMPL_MICRO_N_f32, b);
                /* k is more than deep where A is one panel alone */
                tegroup_impl_cpu_block_f32(m, deep, a + kk * TEGROUP_IMPL_MICRO_M, b, sums + j);
            }
        }
    }
    for (i = 0; i < m; i++) {
        float *x = sums + i * TEGROUP_IMPL_CPU_TILE_N;
        int64_t c = p->c.first + (i0 + i) * p->c.ld + j0, d = p->d.first + (i0 + i) * p->d.ld + j0;
        if (p->k == 0) /* D = beta * C exactly: an empty sum is no term at all */
            for (j = 0; j < n; j++)
                x[j] = beta != 0 ? beta * tegroup_impl_load_f32(desc->d.dtype, p->c.base, c + j) : 0;
        else {
            for (j = 0; j < n; j++) x[j] *= alpha;
            if (beta != 0)
                for (j = 0; j < n; j++) x[j] += beta * tegroup_impl_load_f32(desc->d.dtype, p->c.base, c + j);
        }
        if (has_bias) {
            if (desc->row_scale_dtype != TEGROUP_DTYPE_UNSET)
                scale = tegroup_impl_load_f32(desc->row_scale_dtype, desc->row_scale, p->a.row0 + i0 + i);
            for (j = 0; j < n; j++)
                x[j] += scale * tegroup_impl_load_f32(desc->bias.dtype, p->bias.base, p->bias.first + j0 + j);
        }
        tegroup_impl_store_row_f32(desc->d.dtype, p->d.base, d, 1, n, x);
    }
}

/* Bias gradient of one group, TILE_N columns from j0: sums of dY's rows in their order. */
static inline void tegroup_impl_cpu_bias_grad_f32(const tegroup_gemm_desc *desc, const tegroup_impl_product *p,
                                                   const tegroup_impl_cpu_codes codes[2], int64_t j0, float *scratch) {
    float sums[TEGROUP_IMPL_CPU_TILE_N];
    const tegroup_impl_block *dy = tegroup_impl_biased_block(desc, p);
    const tegroup_dtype dtype = tegroup_impl_biased(desc)->dtype;
    const tegroup_impl_cpu_codes *quantised = &codes[desc->bias_of_b ? TEGROUP_IMPL_B : TEGROUP_IMPL_A];
    int64_t n = tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_N, tegroup_impl_min(dy->cols, p->bias.cols) - j0), r, j;
    memset(sums, 0, sizeof sums);
    if (quantised->scaled.facts) tegroup_impl_cpu_sum_codes_f32(desc, quantised, dy, j0, n, scratch, sums);
    for (r = 0; r < dy->rows && !quantised->scaled.facts; r++) {
        float scale = desc->row_scale_dtype != TEGROUP_DTYPE_UNSET
                         ? tegroup_impl_load_f32(desc->row_scale_dtype, desc->row_scale, dy->row0 + r)
                         : 1;
        int64_t at = tegroup_impl_biased_row_at(desc, p, r);
        for (j = 0; j < n; j++) sums[j] += scale * (at < 0 ? 0 : tegroup_impl_load_f32(dtype, dy->base, at + j0 + j));
    }
    if (desc->accumulate && dy->rows == 0) return; /* untouched, bit for bit */
    if (desc->accumulate)
        for (j = 0; j < n; j++)
            sums[j] += tegroup_impl_load_f32(desc->bias.dtype, p->bias.base, p->bias.first + j0 + j);
    tegroup_impl_store_row_f32(desc->bias.dtype, p->bias.base, p->bias.first + j0, 1, n, sums);
}

/* tegroup_impl_cpu_pack for rows that an index picks: from row `row` and column `col` of the group on. The rows are the
 * lines, or where along_k is set what is summed over. */
static inline void tegroup_impl_cpu_pack_gathered_f64(tegroup_dtype dtype, const tegroup_gather *gather,
                                                       const tegroup_impl_block *block, int64_t row, int64_t col,
                                                       int along_k, int32_t count, int32_t k, int32_t width,
                                                       double *panel) {
    double x[TEGROUP_IMPL_CPU_TILE_N > TEGROUP_IMPL_CPU_TILE_K ? TEGROUP_IMPL_CPU_TILE_N : TEGROUP_IMPL_CPU_TILE_K];
    int32_t rows = along_k ? k : count, cols = along_k ? count : k, r, j;
    if (count % width != 0)
        memset(panel + (int64_t)(count / width) * k * width, 0, (size_t)k * (size_t)width * sizeof(double));
    for (r = 0; r < rows; r++) {
        int64_t at = tegroup_impl_row_at(gather, block, row + r);
        if (at < 0) memset(x, 0, (size_t)cols * sizeof(double));
        else tegroup_impl_load_row_f64(dtype, block->base, at + col, 1, cols, x);
        if (along_k)
            for (j = 0; j < cols; j++) panel[(int64_t)(j / width) * k * width + r * width + j % width] = x[j];
        else
            for (j = 0; j < cols; j++) panel[(int64_t)(r / width) * k * width + j * width + r % width] = x[j];
    }
}

/* One tile of one group: rows i0.., columns j0.. of D, from an empty sum to the stored result. */
static inline void tegroup_impl_cpu_gemm_tile_f64(const tegroup_gemm_desc *desc, const tegroup_impl_product *p,
                                                   const tegroup_impl_cpu_codes codes[2], int64_t i0, int64_t j0,
                                                   double *scratch) {
    double *a = scratch, *b = a + TEGROUP_IMPL_CPU_TILE_M_PADDED * TEGROUP_IMPL_CPU_TILE_K,
         *sums = b + TEGROUP_IMPL_CPU_TILE_K * TEGROUP_IMPL_CPU_PANEL_N;
    int32_t m = (int32_t)tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_M, p->m - i0),
            n = (int32_t)tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_N, p->n - j0), i, j;
    double alpha = (double)p->alpha, beta = (double)p->beta, scale = 1;
    int has_bias = desc->bias.dtype != TEGROUP_DTYPE_UNSET && desc->op != TEGROUP_OP_WGRAD;
    int wgrad = desc->op == TEGROUP_OP_WGRAD;
    /* Of few rows A is packed for as much of k as there is room for: lines of B are then read on and on. (Picked
     * rows are widened TILE_K elements at a time.) */
    const int32_t most = m <= TEGROUP_IMPL_MICRO_M && desc->gather_a.rows == 0
                             ? TEGROUP_IMPL_CPU_TILE_M_PADDED * TEGROUP_IMPL_CPU_TILE_K / TEGROUP_IMPL_MICRO_M
                             : TEGROUP_IMPL_CPU_TILE_K;
    int32_t kk;
    int64_t k0;
    memset(sums, 0, (size_t)(m + TEGROUP_IMPL_MICRO_M) * TEGROUP_IMPL_CPU_TILE_N * sizeof(double));
    for (k0 = 0; k0 < p->k; k0 += most) {
        const int32_t k = (int32_t)tegroup_impl_min(most, p->k - k0);
        if (codes[TEGROUP_IMPL_A].scaled.facts)
            tegroup_impl_cpu_pack_codes_f64(&codes[TEGROUP_IMPL_A], i0, k0, m, k, TEGROUP_IMPL_MICRO_M, a);
        else if (desc->gather_a.rows > 0)
            tegroup_impl_cpu_pack_gathered_f64(desc->a.dtype, &desc->gather_a, &p->a, wgrad ? k0 : i0, wgrad ? i0 : k0,
                                                wgrad, m, k, TEGROUP_IMPL_MICRO_M, a);
        else
            tegroup_impl_cpu_pack_f64(desc->a.dtype, p->a.base, p->a.first + i0 * p->a_line + k0 * p->a_k, p->a_line,
                                       p->a_k, m, k, TEGROUP_IMPL_MICRO_M, a);
        for (j = 0; j < n; j += TEGROUP_IMPL_MICRO_N_f64) { /* a panel of B stays in the first cache for all of A */
            const int32_t cols = n - j < TEGROUP_IMPL_MICRO_N_f64 ? n - j : TEGROUP_IMPL_MICRO_N_f64;
            kk = desc->gather_b.rows > 0 || codes[TEGROUP_IMPL_B].scaled.facts
                     ? 0
                     : TEGROUP_IMPL_FEW_f64(desc->b.dtype, p->b.base, p->b.first + (j0 + j) * p->b_line + k0 * p->b_k,
                                             p->b_line, p->b_k, m, cols, k, a, b, sums + j);
            for (; kk < k; kk += TEGROUP_IMPL_CPU_TILE_K) {
                const int32_t deep = k - kk < TEGROUP_IMPL_CPU_TILE_K ? k - kk : TEGROUP_IMPL_CPU_TILE_K;
                if (codes[TEGROUP_IMPL_B].scaled.facts)
                    tegroup_impl_cpu_pack_codes_f64(&codes[TEGROUP_IMPL_B], j0 + j, k0 + kk, cols, deep,
                                                     TEGROUP_IMPL_MICRO_N_f64, b);
                else if (desc->gather_b.rows > 0)
                    tegroup_impl_cpu_pack_gathered_f64(desc->b.dtype, &desc->gather_b, &p->b, k0 + kk, j0 + j, 1, cols,
                                                        deep, TEGROUP_IMPL_MICRO_N_f64, b);
                else
                    tegroup_impl_cpu_pack_f64(desc->b.dtype, p->b.base,
                                               p->b.first + (j0 + j) * p->b_line + (k0 + kk) * p->b_k, p->b_line,
                                               p->b_k, cols, deep, TEGROUP_IMPL_MICRO_N_f64, b);
                /* k is more than deep where A is one panel alone */
                tegroup_impl_cpu_block_f64(m, deep, a + kk * TEGROUP_IMPL_MICRO_M, b, sums + j);
            }
        }
    }
    for (i = 0; i < m; i++) {
        double *x = sums + i * TEGROUP_IMPL_CPU_TILE_N;
        int64_t c = p->c.first + (i0 + i) * p->c.ld + j0, d = p->d.first + (i0 + i) * p->d.ld + j0;
        if (p->k == 0) /* D = beta * C exactly: an empty sum is no term at all */
            for (j = 0; j < n; j++)
                x[j] = beta != 0 ? beta * tegroup_impl_load_f64(desc->d.dtype, p->c.base, c + j) : 0;
        else {
            for (j = 0; j < n; j++) x[j] *= alpha;
            if (beta != 0)
                for (j = 0; j < n; j++) x[j] += beta * tegroup_impl_load_f64(desc->d.dtype, p->c.base, c + j);
        }
        if (has_bias) {
            if (desc->row_scale_dtype != TEGROUP_DTYPE_UNSET)
                scale = tegroup_impl_load_f64(desc->row_scale_dtype, desc->row_scale, p->a.row0 + i0 + i);
            for (j = 0; j < n; j++)
                x[j] += scale * tegroup_impl_load_f64(desc->bias.dtype, p->bias.base, p->bias.first + j0 + j);
        }
        tegroup_impl_store_row_f64(desc->d.dtype, p->d.base, d, 1, n, x);
    }
}

/* Bias gradient of one group, TILE_N columns from j0: sums of dY's rows in their order. */
static inline void tegroup_impl_cpu_bias_grad_f64(const tegroup_gemm_desc *desc, const tegroup_impl_product *p,
                                                   const tegroup_impl_cpu_codes codes[2], int64_t j0, double *scratch) {
    double sums[TEGROUP_IMPL_CPU_TILE_N];
    const tegroup_impl_block *dy = tegroup_impl_biased_block(desc, p);
    const tegroup_dtype dtype = tegroup_impl_biased(desc)->dtype;
    const tegroup_impl_cpu_codes *quantised = &codes[desc->bias_of_b ? TEGROUP_IMPL_B : TEGROUP_IMPL_A];
    int64_t n = tegroup_impl_min(TEGROUP_IMPL_CPU_TILE_N, tegroup_impl_min(dy->cols, p->bias.cols) - j0), r, j;
    memset(sums, 0, sizeof sums);
    if (quantised->scaled.facts) tegroup_impl_cpu_sum_codes_f64(desc, quantised, dy, j0, n, scratch, sums);
    for (r = 0; r < dy->rows && !quantised->scaled.facts; r++) {
        double scale = desc->row_scale_dtype != TEGROUP_DTYPE_UNSET
                         ? tegroup_impl_load_f64(desc->row_scale_dtype, desc->row_scale, dy->row0 + r)
                         : 1;
        int64_t at = tegroup_impl_biased_row_at(desc, p, r);
        for (j = 0; j < n; j++) sums[j] += scale * (at < 0 ? 0 : tegroup_impl_load_f64(dtype, dy->base, at + j0 + j));
    }
    if (desc->accumulate && dy->rows == 0) return; /* untouched, bit for bit */
    if (desc->accumulate)
        for (j = 0; j < n; j++)
            sums[j] += tegroup_impl_load_f64(desc->bias.dtype, p->bias.base, p->bias.first + j0 + j);
    tegroup_impl_store_row_f64(desc->bias.dtype, p->bias.base, p->bias.first + j0, 1, n, sums);
}

/* Rows that follow group g (g = -1: that precede every group) and belong to nobody: [*from, *to). */
TEGROUP_IMPL_HD void tegroup_impl_gap_after(const tegroup_snapshot_view *view, int32_t g, int64_t rows, int64_t *from,
                                            int64_t *to) {
    int32_t h;
    *from = *to = 0;
    if (g >= 0 && view->rows[g] <= 0) return;
    if (g >= 0) *from = view->start[g] + view->rows[g];
    *to = rows;
    for (h = 0; h < view->header->groups; h++)
        if (view->rows[h] > 0 && view->start[h] >= *from && view->start[h] < *to) *to = view->start[h];
}

static inline void tegroup_impl_cpu_fill_row(const tegroup_tensor *t, int64_t row, tegroup_tail tail) {
    double value = 0;
    int64_t j;
    if (tail == TEGROUP_TAIL_POISON) value = (double)tegroup_impl_f32_of_bits(0x7fc00000u);
    for (j = 0; j < t->shape.cols; j++) tegroup_impl_store_f64(t->dtype, t->data, row * tegroup_impl_ld(t) + j, value);
}

/* Everything that a thread of the team does; the loops hand out their iterations among the threads. */
static inline void tegroup_impl_cpu_gemm_thread(const tegroup_gemm_desc *desc, const tegroup_snapshot_view views[4],
                                                int32_t thread) {
    tegroup_impl_cpu_codes codes[2];
    char *scratch = (char *)desc->options.workspace + thread * tegroup_impl_cpu_panel_bytes(desc->options.compute);
    int is_f64 = desc->options.compute == TEGROUP_COMPUTE_F64;
    int bias_grad = desc->op == TEGROUP_OP_WGRAD && desc->bias.dtype != TEGROUP_DTYPE_UNSET;
    int32_t groups = desc->a.shape.groups, g;
    int64_t t;
    tegroup_impl_cpu_codes_of(desc, TEGROUP_IMPL_A, &codes[TEGROUP_IMPL_A]);
    tegroup_impl_cpu_codes_of(desc, TEGROUP_IMPL_B, &codes[TEGROUP_IMPL_B]);
    for (g = 0; g < groups; g++) {
        tegroup_impl_product p = tegroup_impl_product_of(desc, views, g, 1, 0);
        int64_t tiles_n = tegroup_impl_ceil_div(tegroup_impl_max(0, p.n), TEGROUP_IMPL_CPU_TILE_N);
        int64_t tiles = p.skip ? 0 : tegroup_impl_ceil_div(tegroup_impl_max(0, p.m), TEGROUP_IMPL_CPU_TILE_M) * tiles_n;
        int64_t chunks =
            bias_grad && !p.skip ? tegroup_impl_ceil_div(
                tegroup_impl_min(tegroup_impl_biased_block(desc, &p)->cols, p.bias.cols), TEGROUP_IMPL_CPU_TILE_N)
                                 : 0;
        if (p.untouched) tiles = 0;
        p.alpha *= tegroup_impl_cpu_codes_next(&codes[TEGROUP_IMPL_A], &desc->a, &views[TEGROUP_IMPL_A], g)
                   * tegroup_impl_cpu_codes_next(&codes[TEGROUP_IMPL_B], &desc->b, &views[TEGROUP_IMPL_B], g);
        TEGROUP_IMPL_OMP(omp for schedule(dynamic, 1) nowait)
        for (t = 0; t < tiles; t++) {
            int64_t i0 = t / tiles_n * TEGROUP_IMPL_CPU_TILE_M, j0 = t % tiles_n * TEGROUP_IMPL_CPU_TILE_N;
            if (is_f64) tegroup_impl_cpu_gemm_tile_f64(desc, &p, codes, i0, j0, (double *)(void *)scratch);
            else tegroup_impl_cpu_gemm_tile_f32(desc, &p, codes, i0, j0, (float *)(void *)scratch);
        }
        TEGROUP_IMPL_OMP(omp for schedule(dynamic, 1) nowait)
        for (t = 0; t < chunks; t++) {
            const int64_t j0 = t * TEGROUP_IMPL_CPU_TILE_N;
            if (is_f64) tegroup_impl_cpu_bias_grad_f64(desc, &p, codes, j0, (double *)(void *)scratch);
            else tegroup_impl_cpu_bias_grad_f32(desc, &p, codes, j0, (float *)(void *)scratch);
        }
    }
    if (desc->tail != TEGROUP_TAIL_KEEP && views[TEGROUP_IMPL_D].header) {
        TEGROUP_IMPL_OMP(omp for schedule(dynamic, 1) nowait)
        for (g = -1; g < groups; g++) {
            int64_t from, to;
            tegroup_impl_gap_after(&views[TEGROUP_IMPL_D], g, desc->d.shape.rows, &from, &to);
            for (; from < to; from++) tegroup_impl_cpu_fill_row(&desc->d, from, desc->tail);
        }
    }
}

/* The steps of a product, counted no further than a fork is worth: a tile packs its A and its B, two elements a step,
 * and the innermost kernel multiplies eight. */
static inline double tegroup_impl_cpu_gemm_steps(const tegroup_gemm_desc *desc, const tegroup_snapshot_view views[4]) {
    const tegroup_snapshot_view *rows = &views[TEGROUP_IMPL_D];
    const double groups = desc->a.shape.groups;
    double steps = 0;
    int32_t g;
    if (desc->tail != TEGROUP_TAIL_KEEP && rows->header)
        steps += groups * groups + (double)(desc->d.shape.rows - rows->header->rows_total) * (double)desc->d.shape.cols;
    for (g = 0; g < desc->a.shape.groups && steps < TEGROUP_IMPL_FORK_STEPS; g++) {
        const tegroup_impl_product p = tegroup_impl_product_of(desc, views, g, 1, 0);
        const double m = (double)p.m, n = (double)p.n, k = (double)p.k;
        if (p.skip) continue;
        if (p.m > 0 && p.n > 0 && !p.untouched)
            steps += n * k / 2 * (double)tegroup_impl_ceil_div(p.m, TEGROUP_IMPL_CPU_TILE_M)
                     + m * k / 2 * (double)tegroup_impl_ceil_div(p.n, TEGROUP_IMPL_CPU_TILE_N) + m * n * (1 + k / 8);
        if (desc->op == TEGROUP_OP_WGRAD && desc->bias.dtype != TEGROUP_DTYPE_UNSET)
            steps += (double)p.a.rows * (double)tegroup_impl_min(p.a.cols, p.bias.cols);
    }
    return steps;
}

static inline int32_t tegroup_impl_cpu_gemm_team(int32_t threads, const tegroup_gemm_desc *desc,
                                                 const tegroup_snapshot_view views[4]) {
    return threads > 1 ? tegroup_impl_team(threads, tegroup_impl_cpu_gemm_steps(desc, views)) : 1;
}

static inline tegroup_status tegroup_impl_cpu_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                   struct CUstream_st *stream, tegroup_error *error) {
    tegroup_snapshot_view views[4];
    tegroup_gemm_desc read = *desc;
    int32_t i;
    const tegroup_tensor *tensors[4];
    read.a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    read.b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    tensors[TEGROUP_IMPL_A] = &desc->a;
    tensors[TEGROUP_IMPL_B] = &desc->b;
    tensors[TEGROUP_IMPL_C] = &desc->c;
    tensors[TEGROUP_IMPL_D] = &desc->d;
    for (i = 0; i < 4; i++)
        views[i] =
            tegroup_snapshot_read(tensors[i]->dtype != TEGROUP_DTYPE_UNSET && tegroup_impl_ragged(&tensors[i]->shape)
                                      ? tensors[i]->shape.snapshot
                                      : NULL);
    (void)plan, (void)stream, (void)error;
#if defined(_OPENMP)
#pragma omp parallel num_threads((int)tegroup_impl_cpu_gemm_team(plan->threads, &read, views))
    tegroup_impl_cpu_gemm_thread(&read, views, (int32_t)omp_get_thread_num());
#else
    tegroup_impl_cpu_gemm_thread(&read, views, 0); /* there is one thread */
#endif
    return TEGROUP_OK;
}

/* ==== [60] What a call checks (src/gemm/check.h) ==== */

#if defined(TEGROUP_IMPL_CUDA)
static inline tegroup_status tegroup_impl_cuda_check_pointers(const tegroup_gemm_desc *desc,
                                                              const tegroup_impl_names *names, tegroup_error *error);
/* The device that a plan is bound to must be the current one. */
static inline tegroup_status tegroup_impl_cuda_check_device(const tegroup_plan *plan, tegroup_error *error);
#endif

/* A call's problem must equal the planned one, field by field; but rows that are ragged are what a call's buffers hold,
 * which may be fewer or more. */
static inline tegroup_status tegroup_impl_check_planned(const tegroup_problem *planned, const tegroup_problem *p,
                                                        const tegroup_impl_names *names, tegroup_error *error) {
#define TEGROUP_IMPL_SAME_AS(reading, member, field)                                                                   \
    TEGROUP_IMPL_RULE_AS(reading, planned->member == p->member, ERROR_PLAN, field, "must be as planned",               \
                         planned->member, p->member)
#define TEGROUP_IMPL_SAME(member, field) TEGROUP_IMPL_SAME_AS(NUMBER, member, field)
#define TEGROUP_IMPL_SAME_EACH(member, count, path)                                                                    \
    for (i = 0; i < (count); i++) TEGROUP_IMPL_SAME(member[i], names->operand[i]->members[TEGROUP_IMPL_MEMBER_##path])
    int32_t i;
    TEGROUP_IMPL_SAME(op, "op");
    TEGROUP_IMPL_SAME(space, "space");
    TEGROUP_IMPL_SAME(compute, "options.compute");
    TEGROUP_IMPL_SAME(groups, TEGROUP_IMPL_OPERAND_PATH(A, GROUPS));
    if (!p->rows_space[TEGROUP_IMPL_A] || !planned->rows_space[TEGROUP_IMPL_A])
        TEGROUP_IMPL_SAME(rows, TEGROUP_IMPL_OPERAND_PATH(A, ROWS));
    TEGROUP_IMPL_SAME(n, p->op == TEGROUP_OP_FORWARD ? TEGROUP_IMPL_OPERAND_PATH(D, COLS)
                                                     : TEGROUP_IMPL_OPERAND_PATH(A, COLS));
    TEGROUP_IMPL_SAME(k, p->op == TEGROUP_OP_FORWARD ? TEGROUP_IMPL_OPERAND_PATH(A, COLS)
                                                     : TEGROUP_IMPL_OPERAND_PATH(D, COLS));
    TEGROUP_IMPL_SAME_AS(DTYPE, a, TEGROUP_IMPL_OPERAND_PATH(A, DTYPE));
    TEGROUP_IMPL_SAME_AS(DTYPE, b, TEGROUP_IMPL_OPERAND_PATH(B, DTYPE));
    TEGROUP_IMPL_SAME_AS(DTYPE, c, TEGROUP_IMPL_OPERAND_PATH(C, DTYPE));
    TEGROUP_IMPL_SAME_AS(DTYPE, d, TEGROUP_IMPL_OPERAND_PATH(D, DTYPE));
    TEGROUP_IMPL_SAME_AS(DTYPE, bias, TEGROUP_IMPL_OPERAND_PATH(BIAS, DTYPE));
    TEGROUP_IMPL_SAME_AS(DTYPE, row_scale, "row_scale_dtype");
    TEGROUP_IMPL_SAME_AS(SCALING, a_scaling, TEGROUP_IMPL_OPERAND_PATH(A, SCALING));
    TEGROUP_IMPL_SAME_AS(SCALING, b_scaling, TEGROUP_IMPL_OPERAND_PATH(B, SCALING));
    TEGROUP_IMPL_SAME_AS(SCALING, d_scaling, TEGROUP_IMPL_OPERAND_PATH(D, SCALING));
    TEGROUP_IMPL_SAME(lda, TEGROUP_IMPL_OPERAND_PATH(A, LD));
    TEGROUP_IMPL_SAME(ldb, TEGROUP_IMPL_OPERAND_PATH(B, LD));
    TEGROUP_IMPL_SAME(ldc, TEGROUP_IMPL_OPERAND_PATH(C, LD));
    TEGROUP_IMPL_SAME(ldd, TEGROUP_IMPL_OPERAND_PATH(D, LD));
    for (i = 0; i < 4; i++)
        TEGROUP_IMPL_RULE(!planned->rows_space[i] == !p->rows_space[i], ERROR_PLAN,
                          names->operand[i]->members[TEGROUP_IMPL_MEMBER_ROW_SIZES], "must be set just when planned so",
                          planned->rows_space[i] != 0, p->rows_space[i] != 0);
    TEGROUP_IMPL_SAME_EACH(rows_space, 4, SIZES_SPACE);
    TEGROUP_IMPL_SAME_EACH(ragged_cols, 4, COL_SIZES);
    TEGROUP_IMPL_SAME_EACH(has_elements, 4, ELEMENTS);
    TEGROUP_IMPL_SAME_EACH(pointers_space, 5, POINTERS_SPACE);
    TEGROUP_IMPL_SAME_EACH(gathered, 2, GATHER_ROWS);
    TEGROUP_IMPL_SAME_EACH(scale_dtype, 2, SCALE_DTYPE);
    TEGROUP_IMPL_SAME_EACH(scale_strides, 2, SCALE_OUTER_STRIDE);
    TEGROUP_IMPL_SAME_EACH(columnwise_order, 2, COLUMNWISE_ORDER);
    TEGROUP_IMPL_SAME(alpha_space, "alpha.space");
    TEGROUP_IMPL_SAME(alpha_stride, "alpha.stride");
    TEGROUP_IMPL_SAME(beta_space, "beta.space");
    TEGROUP_IMPL_SAME(beta_stride, "beta.stride");
    TEGROUP_IMPL_SAME(accumulate, "accumulate");
    TEGROUP_IMPL_SAME(bias_of_b, "bias_of_b");
    TEGROUP_IMPL_SAME(tail, names->tail);
#undef TEGROUP_IMPL_SAME_EACH
#undef TEGROUP_IMPL_SAME
#undef TEGROUP_IMPL_SAME_AS
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_check_scalar_memory(const tegroup_scalars *s, const char *data_field,
                                                              tegroup_error *error) {
    size_t element = s->dtype == TEGROUP_DTYPE_F64 ? 8 : 4;
    TEGROUP_IMPL_RULE(s->data || s->space == TEGROUP_SPACE_UNSET, ERROR_NULL_ARGUMENT, data_field, "must not be NULL",
                      1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(s->data, element), ERROR_ALIGNMENT, data_field,
                      "must be aligned to its element", element, (uintptr_t)s->data % element);
    return TEGROUP_OK;
}

static inline int64_t tegroup_impl_scalar_bytes(const tegroup_scalars *s, int32_t groups) {
    if (s->space == TEGROUP_SPACE_UNSET) return 0;
    return (s->stride ? (int64_t)groups : 1) * (s->dtype == TEGROUP_DTYPE_F64 ? 8 : 4);
}

static inline int64_t tegroup_impl_index_bytes(const tegroup_gather *gather, const tegroup_tensor *t) {
    return gather->rows > 0 ? tegroup_impl_mul(8, t->shape.rows) : 0;
}

static inline int64_t tegroup_impl_row_scale_bytes(const tegroup_gemm_desc *desc) {
    const tegroup_shape *shape = &tegroup_impl_biased(desc)->shape;
    return tegroup_impl_mul(tegroup_impl_mul(shape->rows, tegroup_impl_ragged(shape) ? 1 : shape->groups),
                            tegroup_impl_bits(desc->row_scale_dtype) / 8);
}

/* The workspace, d, and bias in a wgrad share no memory with anything else that the call touches; but d may be c. */
static inline tegroup_status tegroup_impl_check_overlaps(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                         const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_tensor *d = &desc->d, *c = &desc->c, *tensors[TEGROUP_IMPL_OPERANDS];
    const tegroup_tensor a = tegroup_impl_stored(&desc->a, &desc->gather_a),
                         b = tegroup_impl_stored(&desc->b, &desc->gather_b);
    const int in_place =
        c->data == d->data && c->pointers == d->pointers && tegroup_impl_ld(c) == tegroup_impl_ld(d)
        && (tegroup_impl_ragged(&d->shape) ? c->shape.snapshot == d->shape.snapshot
                                           : tegroup_impl_group_stride(c) == tegroup_impl_group_stride(d));
    tegroup_impl_buffer buffers[2 * TEGROUP_IMPL_OPERANDS + 10];
    tegroup_tensor read[2]; /* of quantised operands, for the lists' sake */
    int32_t i, count = 0;
    tensors[TEGROUP_IMPL_A] = &a;
    tensors[TEGROUP_IMPL_B] = &b;
    tensors[TEGROUP_IMPL_C] = c;
    tensors[TEGROUP_IMPL_D] = d;
    tensors[TEGROUP_IMPL_BIAS] = &desc->bias;
    buffers[count++] = tegroup_impl_workspace_buffer(&desc->options, plan->workspace_bytes);
    buffers[count++] = tegroup_impl_tensor_buffer(d, names->operand[TEGROUP_IMPL_D], 1);
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_C; i++)
        if (i <= TEGROUP_IMPL_B && tensors[i]->scaling != TEGROUP_SCALING_NONE) {
            const int columnwise = tegroup_impl_reads_columnwise(desc, (tegroup_impl_operand)i);
            read[i] = tegroup_impl_as_read(desc, (tegroup_impl_operand)i);
            buffers[count++] = tegroup_impl_copy_buffer(&read[i], names->operand[i], columnwise, 0);
            buffers[count++] = tegroup_impl_copy_buffer(&read[i], names->operand[i], columnwise, 1);
            buffers[count++] = tegroup_impl_buffer_of(read[i].global_scale_inv, 4 * (int64_t)read[i].shape.groups, NULL,
                                                      names->operand[i]->apart, 0);
        } else if (tensors[i]->dtype != TEGROUP_DTYPE_UNSET) {
            buffers[count] = tegroup_impl_tensor_buffer(tensors[i], names->operand[i], 0);
            if (i == TEGROUP_IMPL_C) buffers[count].twin = 1;
            if (i == TEGROUP_IMPL_C && !in_place)
                buffers[count].twin_apart = "must not overlap c, unless it is c with the same ld and snapshot";
            count++;
        }
    buffers[count++] =
        tegroup_impl_tensor_buffer(&desc->bias, names->operand[TEGROUP_IMPL_BIAS], desc->op == TEGROUP_OP_WGRAD);
    for (i = 0; i < 4; i++)
        if (i == 0 || tensors[i]->shape.snapshot != a.shape.snapshot)
            buffers[count++] = tegroup_impl_snapshot_buffer(tensors[i]);
    if (desc->row_scale_dtype != TEGROUP_DTYPE_UNSET)
        buffers[count++] = tegroup_impl_buffer_of(desc->row_scale, tegroup_impl_row_scale_bytes(desc), NULL,
                                                  "must not overlap row_scale", 0);
    buffers[count++] =
        tegroup_impl_buffer_of(desc->alpha.data, tegroup_impl_scalar_bytes(&desc->alpha, d->shape.groups), NULL,
                               "must not overlap alpha.data", 0);
    buffers[count++] = tegroup_impl_buffer_of(desc->beta.data, tegroup_impl_scalar_bytes(&desc->beta, d->shape.groups),
                                              NULL, "must not overlap beta.data", 0);
    buffers[count++] =
        tegroup_impl_buffer_of(desc->gather_a.slot_of_row, tegroup_impl_index_bytes(&desc->gather_a, &desc->a), NULL,
                               "must not overlap gather_a.slot_of_row", 0);
    buffers[count++] =
        tegroup_impl_buffer_of(desc->gather_b.slot_of_row, tegroup_impl_index_bytes(&desc->gather_b, &desc->b), NULL,
                               "must not overlap gather_b.slot_of_row", 0);
    return tegroup_impl_check_apart(buffers, count, desc->options.check_level, NULL, error);
}

/* Reads the snapshots of a call's operands. Returns whether all of them are in host memory. */
static inline int tegroup_impl_host_views(const tegroup_gemm_desc *desc, tegroup_snapshot_view views[4]) {
    const tegroup_tensor *tensors[4] = {&desc->a, &desc->b, &desc->c, &desc->d};
    int32_t i;
    for (i = 0; i < 4; i++) {
        const int ragged = tensors[i]->dtype != TEGROUP_DTYPE_UNSET && tegroup_impl_ragged(&tensors[i]->shape);
        if (ragged && tensors[i]->shape.row_sizes.space != TEGROUP_SPACE_HOST) return 0;
        views[i] = tegroup_snapshot_read(ragged ? tensors[i]->shape.snapshot : NULL);
    }
    return 1;
}

/* The deep check of snapshots in host memory against each other: each group has the same number of rows in all operands
 * whose rows are activations. Otherwise the call would work on the smallest number. */
static inline tegroup_status tegroup_impl_check_groups_meet(const tegroup_gemm_desc *desc,
                                                            const tegroup_impl_names *names, tegroup_error *error) {
    const int wgrad = desc->op == TEGROUP_OP_WGRAD;
    tegroup_snapshot_view views[4];
    int32_t i, g;
    if (!tegroup_impl_host_views(desc, views) || !views[TEGROUP_IMPL_A].rows) return TEGROUP_OK;
    for (i = TEGROUP_IMPL_B; i <= TEGROUP_IMPL_D; i++) {
        const tegroup_impl_name *name = names->operand[i];
        if (!views[i].rows || (i == TEGROUP_IMPL_B) != wgrad) continue;
        for (g = 0; g < desc->a.shape.groups; g++) {
            const int64_t rows = tegroup_impl_max(0, views[TEGROUP_IMPL_A].rows[g]),
                          here = tegroup_impl_max(0, views[i].rows[g]);
            TEGROUP_IMPL_RULE(here == rows, ERROR_CAPACITY, TEGROUP_IMPL_PATH(SNAPSHOT),
                              "must give each group as many rows as a's", rows, here);
        }
    }
    return TEGROUP_OK;
}

/* Checks a list's address for a group that uses it. */
static inline tegroup_status tegroup_impl_check_entry(void *const *list, tegroup_dtype dtype, const char *field,
                                                      int32_t g, tegroup_error *error) {
    const size_t element = tegroup_impl_element(dtype);
    TEGROUP_IMPL_RULE(list[g] != NULL, ERROR_NULL_ARGUMENT, field,
                      "must hold no NULL for a group that is worked on; got the group's index", -1, g);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(list[g], element), ERROR_ALIGNMENT, field,
                      "must hold addresses aligned to the element", element, (uintptr_t)list[g] % element);
    return TEGROUP_OK;
}

/* Alignment of scales: of I32, that of words. */
static inline tegroup_dtype tegroup_impl_stored_scales(const tegroup_tensor *t) {
    return tegroup_impl_scale_dtype(t, tegroup_scaling_info(t->scaling));
}

/* The memory of a, b, bias and whatever else is an operand: of a quantised one, the copy that is read and no other. */
static inline tegroup_status tegroup_impl_check_operand(const tegroup_gemm_desc *desc, tegroup_impl_operand operand,
                                                        const tegroup_tensor *t, const tegroup_impl_name *name,
                                                        tegroup_error *error) {
    const tegroup_check_level level = desc->options.check_level;
    const int listed = tegroup_impl_listed(t);
    tegroup_impl_copy_paths paths;
    tegroup_tensor read;
    if (t->scaling == TEGROUP_SCALING_NONE) return tegroup_impl_check_memory(t, name, level, error);
    TEGROUP_IMPL_TRY(tegroup_impl_check_routing(t, name, level, error));
    if (listed ? t->shape.groups == 0 : tegroup_impl_extent(t) == 0) return TEGROUP_OK;
    read = tegroup_impl_as_read(desc, operand);
    paths = tegroup_impl_copy_paths_of(name, listed, tegroup_impl_reads_columnwise(desc, operand));
    TEGROUP_IMPL_TRY(tegroup_impl_check_address(listed ? (const void *)read.pointers : read.data,
                                                listed ? sizeof(void *) : tegroup_impl_element(t->dtype), paths.data,
                                                error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_address(
        listed ? (const void *)read.scale_pointers : read.scale_inv,
        listed ? sizeof(void *) : tegroup_impl_element(tegroup_impl_stored_scales(t)), paths.scales, error));
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(t->global_scale_inv, sizeof(float)), ERROR_ALIGNMENT,
                      TEGROUP_IMPL_PATH(GLOBAL_SCALE_INV), "must be aligned to its element", sizeof(float),
                      (uintptr_t)t->global_scale_inv % sizeof(float));
    return TEGROUP_OK;
}

/* The addresses of one group in the lists of an operand. */
static inline tegroup_status tegroup_impl_check_group_entries(const tegroup_gemm_desc *desc,
                                                              tegroup_impl_operand operand, const tegroup_tensor *t,
                                                              const tegroup_impl_name *name, int32_t g,
                                                              tegroup_error *error) {
    tegroup_impl_copy_paths paths;
    if (t->scaling == TEGROUP_SCALING_NONE)
        return tegroup_impl_check_entry(t->pointers, t->dtype, TEGROUP_IMPL_PATH(POINTERS), g, error);
    paths = tegroup_impl_copy_paths_of(name, 1, tegroup_impl_reads_columnwise(desc, operand));
    TEGROUP_IMPL_TRY(tegroup_impl_check_entry(t->pointers, t->dtype, paths.data, g, error));
    return tegroup_impl_check_entry(t->scale_pointers, tegroup_impl_stored_scales(t), paths.scales, g, error);
}

/* In a list that is written, no two groups' buffers share a byte, or one of them would be lost. They may be windows of
 * one buffer. */
static inline tegroup_status tegroup_impl_check_entries(const tegroup_tensor *t, tegroup_impl_operand operand,
                                                        const tegroup_impl_names *names,
                                                        const tegroup_snapshot_view *view, const unsigned char *used,
                                                        tegroup_error *error) {
    const tegroup_impl_name *name = names->operand[operand];
    const int64_t bytes = (int64_t)tegroup_impl_element(t->dtype);
    int32_t g, h;
    for (g = 0; g < t->shape.groups; g++) {
        const tegroup_impl_block x = tegroup_impl_locate(t, view, g);
        for (h = 0; h < t->shape.groups && (used[g] >> operand & 1); h++) {
            const tegroup_impl_block y = tegroup_impl_locate(t, view, h);
            const uintptr_t from = (uintptr_t)x.base, to = (uintptr_t)y.base;
            if (h == g || !(used[h] >> operand & 1) || to < from || (to == from && h < g)) continue;
            TEGROUP_IMPL_RULE(tegroup_impl_room((int64_t)(to - from), x.ld * bytes, x.cols * bytes, y.cols * bytes)
                                  >= x.rows,
                              ERROR_OVERLAP, TEGROUP_IMPL_PATH(POINTERS),
                              "must hold buffers that share nothing; expected and got are two groups whose do", g, h);
        }
    }
    return TEGROUP_OK;
}

/* Checks lists in host memory, which are read there together with the sizes: every address that is used, and at the
 * deep level the buffers of results against each other. */
static inline tegroup_status tegroup_impl_check_lists(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                      tegroup_error *error) {
    tegroup_gemm_desc host; /* as it is read, without scalars that the host may not read */
    const tegroup_tensor *tensors[5] = {&host.a, &host.b, &desc->c, &desc->d, &desc->bias};
    tegroup_snapshot_view views[4];
    unsigned char used[TEGROUP_MAX_GROUPS]; /* for each group, a bit for each list that it uses */
    uint32_t listed = 0;
    int32_t i, g;
    host = *desc;
    host.a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    host.b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    for (i = 0; i < 5; i++)
        if (tensors[i]->dtype != TEGROUP_DTYPE_UNSET && tensors[i]->pointers_space == TEGROUP_SPACE_HOST)
            listed |= 1u << i;
    if (!listed || !tegroup_impl_host_views(desc, views)) return TEGROUP_OK;
    if (host.alpha.space == TEGROUP_SPACE_DEVICE) host.alpha.space = TEGROUP_SPACE_UNSET;
    if (host.beta.space == TEGROUP_SPACE_DEVICE) host.beta.space = TEGROUP_SPACE_UNSET;
    for (g = 0; g < desc->a.shape.groups; g++) {
        const tegroup_impl_product p = tegroup_impl_product_of(&host, views, g, 1, 0);
        used[g] = (unsigned char)(listed & tegroup_impl_uses(&host, &p));
        for (i = 0; i < 5; i++)
            if (used[g] >> i & 1)
                TEGROUP_IMPL_TRY(tegroup_impl_check_group_entries(&host, (tegroup_impl_operand)i, tensors[i],
                                                                  names->operand[i], g, error));
    }
    if (desc->options.check_level != TEGROUP_CHECK_DEEP) return TEGROUP_OK;
    if (listed >> TEGROUP_IMPL_D & 1u)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_entries(&desc->d, TEGROUP_IMPL_D, names, &views[TEGROUP_IMPL_D], used, error));
    if (desc->op == TEGROUP_OP_WGRAD && (listed >> TEGROUP_IMPL_BIAS & 1u))
        TEGROUP_IMPL_TRY(tegroup_impl_check_entries(&desc->bias, TEGROUP_IMPL_BIAS, names, NULL, used, error));
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_check_plan(const tegroup_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE_PLAN(plan, TEGROUP_PLAN_MAGIC, "must be what tegroup_plan_make wrote");
    return TEGROUP_OK;
}

/* A plan for a given target serves for sizes only, and a plan may come from a unit compiled with other switches. */
static inline tegroup_status tegroup_impl_check_runs_here(const tegroup_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE(tegroup_impl_backend_of(plan->backend)->run != NULL, ERROR_NOT_BUILT, "plan.backend",
                      "must be part of this build", TEGROUP_BACKEND_CPU, plan->backend);
    TEGROUP_IMPL_RULE(!plan->hypothetical, ERROR_PLAN, "plan.hypothetical",
                      "must be 0: one made for a target gives sizes alone", 0, plan->hypothetical);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_check_row_scale(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                          tegroup_error *error) {
    const size_t element = (size_t)tegroup_impl_bits(p->row_scale) / 8;
    if (p->row_scale == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(desc->row_scale || p->rows == 0 || p->groups == 0, ERROR_NULL_ARGUMENT, "row_scale",
                      "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(desc->row_scale, element), ERROR_ALIGNMENT, "row_scale",
                      "must be aligned to its element", element, (uintptr_t)desc->row_scale % element);
    return TEGROUP_OK;
}

/* All that a product's call checks except tegroup_impl_check_overlaps, which a call of several products does once for
 * all of them. Errors use the names of the caller's tensors. */
static inline tegroup_status tegroup_impl_gemm_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                     const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_check_level level = desc->options.check_level;
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    const tegroup_tensor *operands[TEGROUP_IMPL_OPERANDS];
    tegroup_problem problem;
    int32_t i;
    tegroup_impl_operands_of(desc, operands);
    TEGROUP_IMPL_TRY(tegroup_impl_problem_of(desc, names, &problem, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_planned(&plan->problem, &problem, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_runs_here(plan, error));
    for (i = 0; i < TEGROUP_IMPL_OPERANDS; i++) {
        const tegroup_tensor *t = operands[i];
        if (t->dtype != TEGROUP_DTYPE_UNSET)
            TEGROUP_IMPL_TRY(tegroup_impl_check_operand(desc, (tegroup_impl_operand)i, t, names->operand[i], error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_index(&desc->gather_a, &desc->a, names->operand[TEGROUP_IMPL_A], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_index(&desc->gather_b, &desc->b, names->operand[TEGROUP_IMPL_B], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalar_memory(&desc->alpha, "alpha.data", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalar_memory(&desc->beta, "beta.data", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_row_scale(desc, &problem, error));
    if (level == TEGROUP_CHECK_DEEP) TEGROUP_IMPL_TRY(tegroup_impl_check_groups_meet(desc, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_lists(desc, names, error));
#if defined(TEGROUP_IMPL_CUDA)
    if (level == TEGROUP_CHECK_DEEP && desc->space == TEGROUP_SPACE_DEVICE)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointers(desc, names, error));
    if (plan->backend != TEGROUP_BACKEND_CPU) TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_device(plan, error));
#endif
    if (backend->check) TEGROUP_IMPL_TRY(backend->check(plan, desc, names, error));
    return tegroup_impl_check_options_workspace(plan->workspace_bytes, &desc->options, error);
}

/* The same with overlaps, for tegroup_gemm and its own names. */
static inline tegroup_status tegroup_impl_gemm_check_own(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                         tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check(plan, desc, tegroup_impl_gemm_names(), error));
    return tegroup_impl_check_overlaps(plan, desc, tegroup_impl_gemm_names(), error);
}

TEGROUP_API tegroup_status tegroup_gemm_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                              tegroup_error *error) {
    tegroup_gemm_desc taken;
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    return tegroup_impl_gemm_check_own(plan, desc, error);
}

/* ==== [61] Run (src/gemm/run.h) ==== */

/* What the check has passed; it refuses a plan for a backend that is not built. */
static inline tegroup_status tegroup_impl_gemm_run(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                   struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_backend_of(plan->backend)->run(plan, desc, stream, error);
}

TEGROUP_API tegroup_status tegroup_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                        struct CUstream_st *stream, tegroup_error *error) {
    tegroup_gemm_desc taken;
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check_own(plan, desc, error));
    return tegroup_impl_gemm_run(plan, desc, stream, error);
}

TEGROUP_API tegroup_status tegroup_plan_layout(const tegroup_plan *plan, tegroup_layout *layout, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    tegroup_impl_plan_layout(plan, layout);
    return TEGROUP_OK;
}

/* ==== [62] One call for a product that runs once (src/gemm/once.h) ==== */

/* Whether two operands have one routing's sizes, so that one snapshot serves both. */
static inline int tegroup_impl_same_sizes(const tegroup_sizes *x, const tegroup_sizes *y) {
    return x->data == y->data && x->encoding == y->encoding && x->dtype == y->dtype && x->space == y->space
           && x->data_space == y->data_space && x->starts == y->starts && x->alignment == y->alignment
           && x->stride == y->stride;
}

/* Plans a call, and lays out its workspace: the snapshot, then what the plan asks for. */
static inline tegroup_status tegroup_impl_once_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                    tegroup_layout *layout, tegroup_error *error) {
    static const char *const sizes[4] = {"a.shape.row_sizes", "b.shape.row_sizes", "c.shape.row_sizes",
                                         "d.shape.row_sizes"};
    const tegroup_impl_names *names = tegroup_impl_gemm_names();
    const tegroup_tensor *operands[TEGROUP_IMPL_OPERANDS];
    tegroup_layout part;
    int32_t i;
    TEGROUP_IMPL_TRY(tegroup_impl_plan_make(desc, names, NULL, plan, error));
    tegroup_impl_operands_of(desc, operands);
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_D; i++) {
        const tegroup_impl_name *name = names->operand[i];
        TEGROUP_IMPL_RULE(operands[i]->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_irregular(&operands[i]->shape),
                          ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(COL_SIZES),
                          "and elements must be unset: columns that differ are for tegroup_prepare", 0, 1);
    }
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_D; i++) {
        const tegroup_shape *shape = &operands[i]->shape;
        const tegroup_impl_name *name = names->operand[i];
        if (operands[i]->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_ragged(shape)) continue;
        TEGROUP_IMPL_RULE(!shape->snapshot, ERROR_COMBINATION, TEGROUP_IMPL_PATH(SNAPSHOT),
                          "must be NULL: this call makes the snapshot", 0, 1);
        TEGROUP_IMPL_RULE(tegroup_impl_same_sizes(&shape->row_sizes, &desc->a.shape.row_sizes), ERROR_COMBINATION,
                          sizes[i], "must be those of a, field by field: one snapshot serves all", 0, 1);
        TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(shape, desc->space, TEGROUP_IMPL_PATH(SIZES_SPACE), error));
    }
    tegroup_impl_snapshot_layout(desc->a.shape.groups, 0, &part);
    tegroup_impl_layout_begin(layout);
    tegroup_impl_layout_add(layout, "snapshot", tegroup_impl_ragged(&desc->a.shape) ? (int64_t)part.total_bytes : 0);
    tegroup_impl_plan_layout(plan, &part);
    for (i = 0; i < part.count; i++) tegroup_impl_layout_add(layout, part.items[i].name, (int64_t)part.items[i].bytes);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm_once_layout(const tegroup_gemm_desc *desc, tegroup_layout *layout,
                                                    tegroup_error *error) {
    tegroup_gemm_desc taken;
    tegroup_layout made;
    tegroup_plan plan;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_once_plan(desc, &plan, &made, error));
    *layout = made;
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_gemm_once(const tegroup_gemm_desc *desc, struct CUstream_st *stream,
                                             tegroup_error *error) {
    tegroup_gemm_desc taken, ready, buffers;
    tegroup_prepare_desc prepare;
    tegroup_tensor *const ragged[4] = {&ready.a, &ready.b, &ready.c, &ready.d};
    tegroup_layout layout;
    tegroup_plan plan, whole;
    int32_t i;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_once_plan(desc, &plan, &layout, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_options_workspace(layout.total_bytes, &desc->options, error));
    buffers = *desc; /* the snapshot is written before the call is checked, so it lies apart from every buffer */
    buffers.options.check_level = TEGROUP_CHECK_HOST; /* lists are walked with the snapshot, later */
    whole = plan;
    whole.workspace_bytes = layout.total_bytes;
    TEGROUP_IMPL_TRY(tegroup_impl_check_overlaps(&whole, &buffers, tegroup_impl_gemm_names(), error));

    ready = *desc;
    memset(&prepare, 0, sizeof prepare);
    prepare.struct_size = sizeof prepare;
    prepare.shape = desc->a.shape;
    prepare.space = desc->space;
    prepare.snapshot = desc->options.workspace;
    prepare.snapshot_bytes = layout.total_bytes - plan.workspace_bytes;
    prepare.check_level = desc->options.check_level;
    prepare.threads = desc->options.threads;
    prepare.host_sizes_final = desc->options.host_sizes_final;
    for (i = 0; i < 4; i++) {
        if (ragged[i]->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_ragged(&ragged[i]->shape)) continue;
        ragged[i]->shape.snapshot = prepare.snapshot;
        prepare.shape.rows = tegroup_impl_min(prepare.shape.rows, ragged[i]->shape.rows);
    }
    ready.options.workspace = (char *)desc->options.workspace + prepare.snapshot_bytes;
    ready.options.workspace_bytes = plan.workspace_bytes;
    /* a snapshot in host memory is read by the check; one in device memory is not, so nothing is enqueued before */
    if (desc->space == TEGROUP_SPACE_DEVICE) TEGROUP_IMPL_TRY(tegroup_impl_gemm_check_own(&plan, &ready, error));
    if (tegroup_impl_ragged(&desc->a.shape)) TEGROUP_IMPL_TRY(tegroup_prepare(&prepare, stream, error));
    if (desc->space == TEGROUP_SPACE_HOST) TEGROUP_IMPL_TRY(tegroup_impl_gemm_check_own(&plan, &ready, error));
    return tegroup_impl_gemm_run(&plan, &ready, stream, error);
}

/* ==== [63] Tune, save and load a plan (src/gemm/tune.h) ==== */

#if defined(TEGROUP_IMPL_CUDA)
static inline tegroup_status tegroup_impl_cuda_tune(tegroup_plan *plan, const tegroup_tune_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error);
/* A number that tells kinds of devices apart. */
static inline tegroup_status tegroup_impl_cuda_kind(int32_t device, uint64_t *kind, tegroup_error *error);
#endif

/* What a plan has chosen of its backend's offers; all zero if the backend has no choice. */
static inline tegroup_impl_choice tegroup_impl_chosen(const tegroup_plan *plan) {
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    tegroup_impl_choice only;
    memset(&only, 0, sizeof only);
    return backend->chosen ? backend->chosen(plan) : only;
}

/* Collects all that a backend offers for the plan's problem, the plan's own choice first. */
static inline tegroup_status tegroup_impl_choices_of(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                     tegroup_impl_choices *choices, tegroup_error *error) {
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    const tegroup_impl_choice own = tegroup_impl_chosen(plan);
    choices->count = 0;
    tegroup_impl_choices_add(choices, &own);
    return backend->choices ? backend->choices(plan, desc, choices, error) : TEGROUP_OK;
}

/* Puts one of the backend's choices into the plan. */
static inline tegroup_status tegroup_impl_take_choice(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                      tegroup_error *error) {
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    return backend->take ? backend->take(plan, choice, error) : TEGROUP_OK;
}

/* Puts a saved choice into the plan. It must be among those offered here. */
static inline tegroup_status tegroup_impl_choose_again(tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                       const tegroup_impl_choice *choice, tegroup_error *error) {
    tegroup_impl_choices offered;
    int32_t i;
    TEGROUP_IMPL_TRY(tegroup_impl_choices_of(plan, desc, &offered, error));
    for (i = 0; i < offered.count; i++)
        if (memcmp(&offered.list[i], choice, sizeof *choice) == 0) return tegroup_impl_take_choice(plan, choice, error);
    return tegroup_impl_fail(error, TEGROUP_ERROR_PLAN, "bytes", "must name an algorithm that is offered here", 1, 0);
}

TEGROUP_API tegroup_status tegroup_plan_tune(tegroup_plan *plan, const tegroup_tune_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    tegroup_tune_desc taken;
    tegroup_gemm_desc gemm_taken;
    const tegroup_gemm_desc *gemm;
    int32_t i;
    (void)stream;
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(desc->gemm != NULL, ERROR_NULL_ARGUMENT, "gemm", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->overwrite == 1, ERROR_VALUE, "overwrite", "must be 1: the results are overwritten", 1,
                      desc->overwrite);
    TEGROUP_IMPL_RULE(desc->any_numerics == 0 || desc->any_numerics == 1, ERROR_VALUE, "any_numerics", "must be 0 or 1",
                      1, desc->any_numerics);
    TEGROUP_IMPL_RULE(desc->rounds >= 0 && desc->rounds <= TEGROUP_TUNE_ROUNDS, ERROR_VALUE, "rounds",
                      "must be 0 to TEGROUP_TUNE_ROUNDS", TEGROUP_TUNE_ROUNDS, desc->rounds);
    TEGROUP_IMPL_RULE(desc->flush != NULL || desc->flush_bytes == 0, ERROR_NULL_ARGUMENT, "flush",
                      "must not be NULL where flush_bytes is given", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_gemm_check(plan, desc->gemm, error));
    gemm = desc->gemm;
    TEGROUP_IMPL_TAKE(gemm, gemm_taken);
    taken = *desc;
    taken.gemm = gemm;
#if defined(TEGROUP_IMPL_CUDA)
    if (plan->backend != TEGROUP_BACKEND_CPU) return tegroup_impl_cuda_tune(plan, &taken, stream, error);
#endif
    for (i = 0; i < TEGROUP_TUNE_CANDIDATES && taken.milliseconds; i++) taken.milliseconds[i] = -1;
    return TEGROUP_OK;
}

#define TEGROUP_IMPL_SAVED_MAGIC 0x54475431u /* "TGT1" */

/* What the bytes of a saved plan hold. The last 8 of them are a hash of the others. */
typedef struct tegroup_impl_saved {
    uint32_t magic;
    int32_t version; /* TEGROUP_VERSION */
    tegroup_backend backend;
    int32_t sm;
    int32_t cublaslt_version; /* 0 where the backend does not use it */
    uint64_t kind;
    uint64_t numerics_id;
    tegroup_impl_choice choice;
    tegroup_problem problem;
} tegroup_impl_saved;

#define TEGROUP_IMPL_SAVED_HASH (TEGROUP_SAVED_PLAN_BYTES - sizeof(uint64_t))
typedef char tegroup_impl_saved_fits[sizeof(tegroup_impl_saved) <= TEGROUP_IMPL_SAVED_HASH ? 1 : -1];

/* The record that a plan is saved as. */
static inline tegroup_status tegroup_impl_saved_of(const tegroup_plan *plan, tegroup_impl_saved *saved,
                                                   tegroup_error *error) {
    (void)error;
    memset(saved, 0, sizeof *saved);
    saved->magic = TEGROUP_IMPL_SAVED_MAGIC;
    saved->version = TEGROUP_VERSION;
    saved->backend = plan->backend;
    saved->sm = plan->sm;
    saved->cublaslt_version = tegroup_impl_uses_cublaslt(plan->backend) ? plan->cublaslt_version : 0;
    saved->numerics_id = plan->numerics_id;
    saved->problem = plan->problem;
    saved->choice = tegroup_impl_chosen(plan);
#if defined(TEGROUP_IMPL_CUDA)
    if (plan->backend != TEGROUP_BACKEND_CPU)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_kind(plan->device, &saved->kind, error));
#endif
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_plan_save(const tegroup_plan *plan, void *bytes, size_t size, tegroup_error *error) {
    tegroup_impl_saved saved;
    uint64_t hash;
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_runs_here(plan, error));
    TEGROUP_IMPL_RULE(bytes != NULL, ERROR_NULL_ARGUMENT, "bytes", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(size >= TEGROUP_SAVED_PLAN_BYTES, ERROR_WORKSPACE, "size",
                      "must be at least TEGROUP_SAVED_PLAN_BYTES", TEGROUP_SAVED_PLAN_BYTES, size);
    TEGROUP_IMPL_TRY(tegroup_impl_saved_of(plan, &saved, error));
    memset(bytes, 0, TEGROUP_SAVED_PLAN_BYTES);
    memcpy(bytes, &saved, sizeof saved);
    hash = tegroup_impl_hash(TEGROUP_IMPL_HASH, bytes, TEGROUP_IMPL_SAVED_HASH);
    memcpy((char *)bytes + TEGROUP_IMPL_SAVED_HASH, &hash, sizeof hash);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_plan_load(const tegroup_gemm_desc *desc, const void *bytes, size_t size,
                                             tegroup_plan *plan, tegroup_error *error) {
    tegroup_impl_saved saved, here;
    tegroup_gemm_desc same; /* a copy; an older, shorter descriptor is filled up in it */
    tegroup_plan made;
    uint64_t hash;
    TEGROUP_IMPL_TAKE(desc, same);
    TEGROUP_IMPL_RULE(bytes != NULL, ERROR_NULL_ARGUMENT, "bytes", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(size == TEGROUP_SAVED_PLAN_BYTES, ERROR_PLAN, "size", "must be TEGROUP_SAVED_PLAN_BYTES",
                      TEGROUP_SAVED_PLAN_BYTES, size);
    memcpy(&saved, bytes, sizeof saved);
    memcpy(&hash, (const char *)bytes + TEGROUP_IMPL_SAVED_HASH, sizeof hash);
    TEGROUP_IMPL_RULE(saved.magic == TEGROUP_IMPL_SAVED_MAGIC, ERROR_PLAN, "bytes",
                      "must be what tegroup_plan_save wrote", TEGROUP_IMPL_SAVED_MAGIC, saved.magic);
    TEGROUP_IMPL_RULE(saved.version == TEGROUP_VERSION, ERROR_PLAN, "bytes", "must come from this version of tegroup",
                      TEGROUP_VERSION, saved.version);
    TEGROUP_IMPL_RULE(hash == tegroup_impl_hash(TEGROUP_IMPL_HASH, bytes, TEGROUP_IMPL_SAVED_HASH), ERROR_PLAN, "bytes",
                      "must be what tegroup_plan_save wrote: the hash differs",
                      tegroup_impl_hash(TEGROUP_IMPL_HASH, bytes, TEGROUP_IMPL_SAVED_HASH), hash);
    TEGROUP_IMPL_RULE((uint32_t)saved.backend - 1 < TEGROUP_BACKEND_COUNT - 1, ERROR_PLAN, "bytes",
                      "must be of a backend that exists", TEGROUP_BACKEND_COUNT - 1, saved.backend);
    TEGROUP_IMPL_RULE(desc->options.backend == TEGROUP_BACKEND_AUTO || desc->options.backend == saved.backend,
                      ERROR_PLAN, "options.backend", "must be AUTO or that of the saved plan", saved.backend,
                      desc->options.backend);
    same = *desc;
    same.options.backend = saved.backend;
    TEGROUP_IMPL_TRY(tegroup_plan_make(&same, NULL, &made, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_planned(&saved.problem, &made.problem, tegroup_impl_gemm_names(), error));
    TEGROUP_IMPL_TRY(tegroup_impl_saved_of(&made, &here, error));
    TEGROUP_IMPL_RULE(here.sm == saved.sm && here.kind == saved.kind, ERROR_PLAN, "bytes",
                      "must be saved on the same kind of device", saved.sm, here.sm);
    TEGROUP_IMPL_RULE(here.cublaslt_version == saved.cublaslt_version, ERROR_PLAN, "bytes",
                      "must be saved with the same version of cuBLASLt", saved.cublaslt_version, here.cublaslt_version);
    TEGROUP_IMPL_TRY(tegroup_impl_choose_again(&made, &same, &saved.choice, error));
    TEGROUP_IMPL_RULE(made.numerics_id == saved.numerics_id, ERROR_PLAN, "bytes",
                      "must stand for the numerics of this build", saved.numerics_id, made.numerics_id);
    *plan = made;
    return TEGROUP_OK;
}

/* ==== [64] Formulas (src/cpu/real.h) ==== */

/* Arithmetic of one element, in float and in double, for the CPU's loops and the kernels' threads alike. On the host
 * exp is the platform's (glibc: at most 1 ULP off). On the device it is at most 4 ULP off, whatever the flags (with
 * --use_fast_math numbers below 2^-126 may be taken as 0): e^x is 2^high (1 + low ln 2), high + low = x log2 e, and the
 * hardware's power of two is at most 2 ULP off. */
TEGROUP_IMPL_HD float tegroup_impl_exp_f32(float x) {
#if defined(__CUDA_ARCH__)
    float high, low, power;
    x = x < -110.0f ? -110.0f : x > 110.0f ? 110.0f : x; /* beyond, 0 and infinity come out; NaN stays */
    high = __fmul_rn(x, 1.442695021629333f);
    low = __fmaf_rn(x, 1.442695021629333f, -high);
    low = __fmaf_rn(x, 1.925963033500e-8f, low);
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(high));
    return __fmul_rn(power, __fmaf_rn(low, 0.6931471805599453f, 1.0f));
#else
    return expf(x);
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_exp_f64(double x) { return exp(x); }

/* Gradient of a chosen probability, by way of its weight: `chosen` sums the token's, `dot` those times their
 * gradients. */
TEGROUP_IMPL_HD float tegroup_impl_choice_grad_f32(float grad_weight, float dot, float chosen, int32_t normalize) {
    return normalize ? (grad_weight - dot / chosen) / chosen : grad_weight;
}

/* Gradient of a chosen probability, by way of its weight: `chosen` sums the token's, `dot` those times their
 * gradients. */
TEGROUP_IMPL_HD double tegroup_impl_choice_grad_f64(double grad_weight, double dot, double chosen, int32_t normalize) {
    return normalize ? (grad_weight - dot / chosen) / chosen : grad_weight;
}

/* ==== [65] Activation formulas (src/core/activation_formulas.h) ==== */

/* Each operation is rounded by itself, or is one fused multiply-add where that is written: an activation in the
 * epilogue of a product gives the bits that the separate call gives. (A host compiler may fuse what it likes.) */
TEGROUP_IMPL_HD float tegroup_impl_mul_f32(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_mul_f64(double a, double b) {
#if defined(__CUDA_ARCH__)
    return __dmul_rn(a, b);
#else
    return a * b;
#endif
}
TEGROUP_IMPL_HD float tegroup_impl_fma_f32(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return a * b + c;
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_fma_f64(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
    return __fma_rn(a, b, c);
#else
    return a * b + c;
#endif
}

/* x, or the bound that it passes; NaN stays. */
TEGROUP_IMPL_HD float tegroup_impl_at_least_f32(float x, float bound) { return x < bound ? bound : x; }
TEGROUP_IMPL_HD float tegroup_impl_at_most_f32(float x, float bound) { return x > bound ? bound : x; }

/* x, or the bound that it passes; NaN stays. */
TEGROUP_IMPL_HD double tegroup_impl_at_least_f64(double x, double bound) { return x < bound ? bound : x; }
TEGROUP_IMPL_HD double tegroup_impl_at_most_f64(double x, double bound) { return x > bound ? bound : x; }

/* What stands for infinity where it is multiplied by 0. */
#define TEGROUP_IMPL_LARGEST_f32 3.4028234663852886e38f
#define TEGROUP_IMPL_LARGEST_f64 1.7976931348623157e308

/* |x|, but no more than where the tail below is 0. */
TEGROUP_IMPL_HD float tegroup_impl_magnitude_f32(float x) { return tegroup_impl_at_most_f32(fabsf(x), 15.0f); }
TEGROUP_IMPL_HD double tegroup_impl_magnitude_f64(double x) { return tegroup_impl_at_most_f64(fabs(x), 40.0); }

#if defined(__CUDA_ARCH__)
/* 2^x, at most 2 ULP off; 0 below 2^-126. */
static __device__ inline float tegroup_impl_power(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
/* 2^(high + low) by its first power of low, and `add`. */
static __device__ inline float tegroup_impl_power(float high, float low, float add) {
    return __fmaf_rn(tegroup_impl_power(high), __fmaf_rn(low, 0.6931471805599453f, 1.0f), add);
}
/* At most 1 ULP off; 0 below 2^-126. */
static __device__ inline float tegroup_impl_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

/* 1 / (1 + exp(-x)). In float at most 5 ULP off on the device and 3 on the host with glibc's expf (every float was
 * tried); below 2^-126 it may be 0. half: for results that are rounded to halves; on the device it may be 1.25 |x| (1 -
 * it) ULP more off. */
TEGROUP_IMPL_HD float tegroup_impl_sigmoid_f32(float x, int half) {
#if defined(__CUDA_ARCH__)
    float high, low;
    if (half) return tegroup_impl_reciprocal(__fadd_rn(1.0f, tegroup_impl_power(__fmul_rn(x, -1.442695021629333f))));
    x = tegroup_impl_at_most_f32(tegroup_impl_at_least_f32(x, -128.0f), 128.0f);
    high = __fmul_rn(x, -1.442695021629333f);
    low = __fmaf_rn(x, -1.442695021629333f, -high);
    low = __fmaf_rn(x, -1.925963033500e-8f, low);
    return tegroup_impl_reciprocal(tegroup_impl_power(high, low, 1.0f));
#else
    (void)half;
    return 1.0f / (1.0f + expf(-x));
#endif
}
TEGROUP_IMPL_HD double tegroup_impl_sigmoid_f64(double x, int half) {
    (void)half;
    return 1.0 / (1.0 + exp(-x));
}

/* The tail of the standard normal distribution beyond t, 0 to 15, and its density there. With the density's exponential
 * taken out, what is left of the tail is smooth in y = (t - 3.75) / (t + 3.75): in float a polynomial through Chebyshev
 * nodes, 0.5 units of roundoff off, which also makes good that 0.7213475... is a float and not log2(e) / 2. The tail is
 * taken as it is and never as 1 minus the rest: it keeps its digits. In float it is at most 9 ULP off, the density t t
 * / 8 + 4 (every float was tried, on host and device); in double as erfc and exp are. half: for results that are
 * rounded to halves, from t that was one; on the device both may be t t / 2 ULP more off, a seven hundredth of what
 * separates neighbours of BF16. */
TEGROUP_IMPL_HD float tegroup_impl_tail_f32(float t, int half, float *density) {
#if defined(__CUDA_ARCH__) /* high + low is -0.7213475... t t, with what rounding takes from t t */
    const float square = __fmul_rn(t, t), high = __fmul_rn(square, -0.7213475108146667f),
                low = __fmaf_rn(__fmaf_rn(t, t, -square), -0.7213475108146667f,
                                __fmaf_rn(square, -0.7213475108146667f, -high)),
                gauss = half ? tegroup_impl_power(high) : tegroup_impl_power(high, low, 0.0f),
                q = tegroup_impl_reciprocal(__fadd_rn(t, 3.75f));
#else
    const float gauss = (float)exp(-0.6931471805599453 * (double)0.7213475108146667f * t * t), q = 1.0f / (t + 3.75f);
    (void)half;
#endif
    const float y = tegroup_impl_fma_f32(q, -7.5f, 1.0f);
    float p = 4.491023428272456e-4f;
    p = tegroup_impl_fma_f32(p, y, 5.185334011912346e-4f);
    p = tegroup_impl_fma_f32(p, y, -4.1710506193339825e-3f);
    p = tegroup_impl_fma_f32(p, y, 1.192011870443821e-3f);
    p = tegroup_impl_fma_f32(p, y, 3.7490565329790115e-2f);
    p = tegroup_impl_fma_f32(p, y, -1.5151989459991455e-1f);
    p = tegroup_impl_fma_f32(p, y, 3.529394865036011e-1f);
    p = tegroup_impl_fma_f32(p, y, -5.881885886192322e-1f);
    p = tegroup_impl_fma_f32(p, y, 7.502939701080322e-1f);
    *density = tegroup_impl_mul_f32(gauss, 0.3989422804014327f);
    return tegroup_impl_mul_f32(tegroup_impl_mul_f32(p, q), gauss);
}
TEGROUP_IMPL_HD double tegroup_impl_tail_f64(double t, int half, double *density) {
    (void)half;
    *density = 0.3989422804014327 * exp(-0.5 * t * t);
    return 0.5 * erfc(0.7071067811865476 * t);
}

/* Gate and up in pairs, or one input an output? */
TEGROUP_IMPL_HD int tegroup_impl_gated(tegroup_activation kind) { return kind <= TEGROUP_ACTIVATION_SWIGLU_CLAMPED; }

/* The clamped kind's parameters, spelt out. */
TEGROUP_IMPL_HD double tegroup_impl_alpha(double alpha) { return alpha != 0 ? alpha : 1.702; }
TEGROUP_IMPL_HD double tegroup_impl_limit(double limit) { return limit != 0 ? limit : 7.0; }

/* Functions of the gate, or of the one input: most serve a kind with an up and one without. Each has the number of a
 * kind that has it, so that most kinds need no translation. */
typedef enum tegroup_impl_curve_kind {
    TEGROUP_IMPL_CURVE_SILU = TEGROUP_ACTIVATION_SWIGLU,
    TEGROUP_IMPL_CURVE_GELU = TEGROUP_ACTIVATION_GEGLU,
    TEGROUP_IMPL_CURVE_GELU_TANH = TEGROUP_ACTIVATION_GEGLU_TANH,
    TEGROUP_IMPL_CURVE_RELU = TEGROUP_ACTIVATION_REGLU,
    TEGROUP_IMPL_CURVE_SILU_OF_ALPHA = TEGROUP_ACTIVATION_SWIGLU_CLAMPED, /* x sigmoid(alpha x) */
    TEGROUP_IMPL_CURVE_RELU_SQUARED = TEGROUP_ACTIVATION_RELU_SQUARED,
    TEGROUP_IMPL_CURVE_IDENTITY = TEGROUP_ACTIVATION_IDENTITY
} tegroup_impl_curve_kind;

TEGROUP_IMPL_HD tegroup_impl_curve_kind tegroup_impl_curve_of(tegroup_activation kind) {
    switch (kind) {
    case TEGROUP_ACTIVATION_SILU: return TEGROUP_IMPL_CURVE_SILU;
    case TEGROUP_ACTIVATION_GELU: return TEGROUP_IMPL_CURVE_GELU;
    case TEGROUP_ACTIVATION_GELU_TANH: return TEGROUP_IMPL_CURVE_GELU_TANH;
    case TEGROUP_ACTIVATION_RELU: return TEGROUP_IMPL_CURVE_RELU;
    default: return (tegroup_impl_curve_kind)kind;
    }
}

/* A loop for every curve, so that the choice is made once for many elements: BODY(a kind that has the curve). Where
 * that one has an up and the caller's has none, up is 1. */
#define TEGROUP_IMPL_BY_CURVE(kind, BODY)                                                                              \
    switch (tegroup_impl_curve_of(kind)) {                                                                             \
    case TEGROUP_IMPL_CURVE_GELU: BODY(TEGROUP_ACTIVATION_GEGLU) break;                                                \
    case TEGROUP_IMPL_CURVE_GELU_TANH: BODY(TEGROUP_ACTIVATION_GEGLU_TANH) break;                                      \
    case TEGROUP_IMPL_CURVE_RELU: BODY(TEGROUP_ACTIVATION_REGLU) break;                                                \
    case TEGROUP_IMPL_CURVE_SILU_OF_ALPHA: BODY(TEGROUP_ACTIVATION_SWIGLU_CLAMPED) break;                              \
    case TEGROUP_IMPL_CURVE_RELU_SQUARED: BODY(TEGROUP_ACTIVATION_RELU_SQUARED) break;                                 \
    case TEGROUP_IMPL_CURVE_IDENTITY: BODY(TEGROUP_ACTIVATION_IDENTITY) break;                                         \
    default: BODY(TEGROUP_ACTIVATION_SWIGLU) break;                                                                    \
    }

/* A loop for every kind with an up, and for every kind without. */
#define TEGROUP_IMPL_BY_GATED(kind, BODY)                                                                              \
    switch (kind) {                                                                                                    \
    case TEGROUP_ACTIVATION_GEGLU: BODY(TEGROUP_ACTIVATION_GEGLU) break;                                               \
    case TEGROUP_ACTIVATION_GEGLU_TANH: BODY(TEGROUP_ACTIVATION_GEGLU_TANH) break;                                     \
    case TEGROUP_ACTIVATION_REGLU: BODY(TEGROUP_ACTIVATION_REGLU) break;                                               \
    case TEGROUP_ACTIVATION_SWIGLU_CLAMPED: BODY(TEGROUP_ACTIVATION_SWIGLU_CLAMPED) break;                             \
    default: BODY(TEGROUP_ACTIVATION_SWIGLU) break;                                                                    \
    }

#define TEGROUP_IMPL_BY_PLAIN(kind, BODY)                                                                              \
    switch (kind) {                                                                                                    \
    case TEGROUP_ACTIVATION_GELU: BODY(TEGROUP_ACTIVATION_GELU) break;                                                 \
    case TEGROUP_ACTIVATION_GELU_TANH: BODY(TEGROUP_ACTIVATION_GELU_TANH) break;                                       \
    case TEGROUP_ACTIVATION_RELU: BODY(TEGROUP_ACTIVATION_RELU) break;                                                 \
    case TEGROUP_ACTIVATION_RELU_SQUARED: BODY(TEGROUP_ACTIVATION_RELU_SQUARED) break;                                 \
    case TEGROUP_ACTIVATION_IDENTITY: BODY(TEGROUP_ACTIVATION_IDENTITY) break;                                         \
    default: BODY(TEGROUP_ACTIVATION_SILU) break;                                                                      \
    }

/* What an activation multiplies `up` by, and its derivative, a rectifier's where it is open. x s, s = sigmoid(w), has
 * the derivative s + x s w' (1 - s), and (1 + tanh(z)) / 2 is sigmoid(2 z): no digits are lost where tanh comes close
 * to -1. GELU is max(x, 0) - |x| tail(|x|). At an infinite x both are their limits: where the other factor is 0, the
 * largest number or the bounded magnitude stands in for x. half: as the sigmoid and the tail are told. */
TEGROUP_IMPL_HD float tegroup_impl_curve_f32(tegroup_activation kind, int half, float alpha, float x, float *slope) {
    float s, w = x, rate = 1, density;
    int rated = 0; /* rate is not 1 */
    switch (tegroup_impl_curve_of(kind)) {
    case TEGROUP_IMPL_CURVE_GELU:
        w = tegroup_impl_magnitude_f32(x);
        s = tegroup_impl_tail_f32(w, half, &density);
        *slope = x > 0 ? tegroup_impl_fma_f32(w, density, (float)1 - s) : tegroup_impl_fma_f32(-w, density, s);
        return tegroup_impl_fma_f32(-w, s, x <= 0 ? (float)0 : x);
    case TEGROUP_IMPL_CURVE_RELU: *slope = 1; return x <= 0 ? (float)0 : x;
    case TEGROUP_IMPL_CURVE_IDENTITY: *slope = 1; return x;
    case TEGROUP_IMPL_CURVE_RELU_SQUARED:
        w = x <= 0 ? (float)0 : x;
        *slope = w + w;
        return tegroup_impl_mul_f32(w, w);
    case TEGROUP_IMPL_CURVE_GELU_TANH: /* 2 sqrt(2 / pi) (x + 0.044715 x^3); past 24 the sigmoid is 0 or 1 */
        w = tegroup_impl_at_most_f32(tegroup_impl_at_least_f32(x, -24), 24);
        s = tegroup_impl_mul_f32(w, w);
        rate = tegroup_impl_fma_f32(s, (float)0.21406444881780073, (float)1.5957691216057308);
        rated = 1;
        w = tegroup_impl_mul_f32(w, tegroup_impl_fma_f32(s, (float)0.07135481627260025, (float)1.5957691216057308));
        break;
    case TEGROUP_IMPL_CURVE_SILU_OF_ALPHA:
        w = tegroup_impl_mul_f32(alpha, x);
        rate = alpha;
        rated = 1;
        break;
    default: break;
    }
    s = tegroup_impl_sigmoid_f32(w, half);
    x = tegroup_impl_at_least_f32(x, -TEGROUP_IMPL_LARGEST_f32);
    w = (float)1 - s;
    *slope = tegroup_impl_fma_f32(tegroup_impl_mul_f32(tegroup_impl_at_most_f32(x, TEGROUP_IMPL_LARGEST_f32), s),
                                   rated ? tegroup_impl_mul_f32(rate, w) : w, s);
    return tegroup_impl_mul_f32(x, s);
}

/* What the kind gives for a gate and an up, which is not looked at without one; and, the other way, the gradients of
 * both from that of the result, returning the result again. alpha and limit are the clamped kind's. half: gate and up
 * were halves, and what comes of them will be. A comparison that NaN decides takes it for inside, so NaN shows. Where
 * the gate counts for nothing, clamped or rectified, its gradient is 0 even if the other one is infinite, as torch's
 * is. */
TEGROUP_IMPL_HD float tegroup_impl_activation_grad_f32(tegroup_activation kind, int half, float alpha, float limit,
                                                       float gate, float up, float grad, float *grad_gate, float *grad_up) {
    const tegroup_impl_curve_kind curve = tegroup_impl_curve_of(kind);
    const int clamps = kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED,
              rectifies = curve == TEGROUP_IMPL_CURVE_RELU || curve == TEGROUP_IMPL_CURVE_RELU_SQUARED,
              gate_out = clamps && gate > limit, up_out = clamps && (up > limit || up < -limit);
    float slope, value = tegroup_impl_curve_f32(kind, half, alpha, gate_out ? limit : gate, &slope);
    if (!tegroup_impl_gated(kind)) up = 1;
    if (clamps) up = (up > limit ? limit : up < -limit ? -limit : up) + (float)1;
    *grad_gate =
        gate_out || (rectifies && gate <= 0) ? (float)0 : tegroup_impl_mul_f32(tegroup_impl_mul_f32(grad, up), slope);
    *grad_up = up_out ? (float)0 : tegroup_impl_mul_f32(grad, value);
    return tegroup_impl_mul_f32(value, up);
}
TEGROUP_IMPL_HD float tegroup_impl_activation_f32(tegroup_activation kind, int half, float alpha, float limit, float gate,
                                                  float up) {
    float grad_gate, grad_up;
    return tegroup_impl_activation_grad_f32(kind, half, alpha, limit, gate, up, 0, &grad_gate, &grad_up);
}

/* What an activation multiplies `up` by, and its derivative, a rectifier's where it is open. x s, s = sigmoid(w), has
 * the derivative s + x s w' (1 - s), and (1 + tanh(z)) / 2 is sigmoid(2 z): no digits are lost where tanh comes close
 * to -1. GELU is max(x, 0) - |x| tail(|x|). At an infinite x both are their limits: where the other factor is 0, the
 * largest number or the bounded magnitude stands in for x. half: as the sigmoid and the tail are told. */
TEGROUP_IMPL_HD double tegroup_impl_curve_f64(tegroup_activation kind, int half, double alpha, double x, double *slope) {
    double s, w = x, rate = 1, density;
    int rated = 0; /* rate is not 1 */
    switch (tegroup_impl_curve_of(kind)) {
    case TEGROUP_IMPL_CURVE_GELU:
        w = tegroup_impl_magnitude_f64(x);
        s = tegroup_impl_tail_f64(w, half, &density);
        *slope = x > 0 ? tegroup_impl_fma_f64(w, density, (double)1 - s) : tegroup_impl_fma_f64(-w, density, s);
        return tegroup_impl_fma_f64(-w, s, x <= 0 ? (double)0 : x);
    case TEGROUP_IMPL_CURVE_RELU: *slope = 1; return x <= 0 ? (double)0 : x;
    case TEGROUP_IMPL_CURVE_IDENTITY: *slope = 1; return x;
    case TEGROUP_IMPL_CURVE_RELU_SQUARED:
        w = x <= 0 ? (double)0 : x;
        *slope = w + w;
        return tegroup_impl_mul_f64(w, w);
    case TEGROUP_IMPL_CURVE_GELU_TANH: /* 2 sqrt(2 / pi) (x + 0.044715 x^3); past 24 the sigmoid is 0 or 1 */
        w = tegroup_impl_at_most_f64(tegroup_impl_at_least_f64(x, -24), 24);
        s = tegroup_impl_mul_f64(w, w);
        rate = tegroup_impl_fma_f64(s, (double)0.21406444881780073, (double)1.5957691216057308);
        rated = 1;
        w = tegroup_impl_mul_f64(w, tegroup_impl_fma_f64(s, (double)0.07135481627260025, (double)1.5957691216057308));
        break;
    case TEGROUP_IMPL_CURVE_SILU_OF_ALPHA:
        w = tegroup_impl_mul_f64(alpha, x);
        rate = alpha;
        rated = 1;
        break;
    default: break;
    }
    s = tegroup_impl_sigmoid_f64(w, half);
    x = tegroup_impl_at_least_f64(x, -TEGROUP_IMPL_LARGEST_f64);
    w = (double)1 - s;
    *slope = tegroup_impl_fma_f64(tegroup_impl_mul_f64(tegroup_impl_at_most_f64(x, TEGROUP_IMPL_LARGEST_f64), s),
                                   rated ? tegroup_impl_mul_f64(rate, w) : w, s);
    return tegroup_impl_mul_f64(x, s);
}

/* What the kind gives for a gate and an up, which is not looked at without one; and, the other way, the gradients of
 * both from that of the result, returning the result again. alpha and limit are the clamped kind's. half: gate and up
 * were halves, and what comes of them will be. A comparison that NaN decides takes it for inside, so NaN shows. Where
 * the gate counts for nothing, clamped or rectified, its gradient is 0 even if the other one is infinite, as torch's
 * is. */
TEGROUP_IMPL_HD double tegroup_impl_activation_grad_f64(tegroup_activation kind, int half, double alpha, double limit,
                                                       double gate, double up, double grad, double *grad_gate, double *grad_up) {
    const tegroup_impl_curve_kind curve = tegroup_impl_curve_of(kind);
    const int clamps = kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED,
              rectifies = curve == TEGROUP_IMPL_CURVE_RELU || curve == TEGROUP_IMPL_CURVE_RELU_SQUARED,
              gate_out = clamps && gate > limit, up_out = clamps && (up > limit || up < -limit);
    double slope, value = tegroup_impl_curve_f64(kind, half, alpha, gate_out ? limit : gate, &slope);
    if (!tegroup_impl_gated(kind)) up = 1;
    if (clamps) up = (up > limit ? limit : up < -limit ? -limit : up) + (double)1;
    *grad_gate =
        gate_out || (rectifies && gate <= 0) ? (double)0 : tegroup_impl_mul_f64(tegroup_impl_mul_f64(grad, up), slope);
    *grad_up = up_out ? (double)0 : tegroup_impl_mul_f64(grad, value);
    return tegroup_impl_mul_f64(value, up);
}
TEGROUP_IMPL_HD double tegroup_impl_activation_f64(tegroup_activation kind, int half, double alpha, double limit, double gate,
                                                  double up) {
    double grad_gate, grad_up;
    return tegroup_impl_activation_grad_f64(kind, half, alpha, limit, gate, up, 0, &grad_gate, &grad_up);
}

/* ==== [66] Activations (src/layer/activation.h) ==== */

#if TEGROUP_IMPL_ACTIVATION_KERNELS
static inline tegroup_status tegroup_impl_cuda_activation_forward(const tegroup_activation_desc *desc,
                                                                  struct CUstream_st *stream, tegroup_error *error);
#endif
#if TEGROUP_IMPL_ACTIVATION_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
static inline tegroup_status tegroup_impl_cuda_activation_backward(const tegroup_activation_backward_desc *desc,
                                                                   struct CUstream_st *stream, tegroup_error *error);
#endif

/* Does any group own this row? Groups lie in any order, so all are asked; a routing has few against a row's columns. */
TEGROUP_IMPL_HD int tegroup_impl_row_owned(const tegroup_snapshot_view *view, int64_t row) {
    int32_t g;
    if (!view->header) return 1;
    for (g = 0; g < view->header->groups; g++)
        if (row >= view->start[g] && row - view->start[g] < view->rows[g]) return 1;
    return 0;
}

static inline float tegroup_impl_row_scale_f32(const tegroup_matrix *scale, int64_t row) {
    if (scale->dtype == TEGROUP_DTYPE_UNSET) return 1;
    return tegroup_impl_load_f32(scale->dtype, tegroup_impl_matrix_row(scale, row), 0);
}

/* Up to TEGROUP_IMPL_PIECE results from column `at` of a row of input, of `width`. */
static inline void tegroup_impl_activation_piece_f32(const tegroup_activation_desc *desc, const void *x, float scale,
                                                      int64_t width, int64_t at, int64_t n, float *gate) {
    const int gated = tegroup_impl_gated(desc->activation);
    int64_t step = desc->interleaved ? 2 : 1, to_up = desc->interleaved ? 1 : width, j;
    float alpha = (float)tegroup_impl_alpha(desc->alpha), limit = (float)tegroup_impl_limit(desc->limit);
    float up[TEGROUP_IMPL_PIECE];
    for (j = 0; j < n; j++) up[j] = 1;
    tegroup_impl_load_row_f32(desc->input.dtype, x, step * at, step, n, gate);
    if (gated) tegroup_impl_load_row_f32(desc->input.dtype, x, step * at + to_up, step, n, up);
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    for (j = 0; j < n; j++) gate[j] = scale * tegroup_impl_activation_f32(kind, 0, alpha, limit, gate[j], up[j]);
    TEGROUP_IMPL_BY_CURVE(desc->activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
}

/* A piece of the row is read before its results are stored, so output may be input. */
static inline void tegroup_impl_activation_row_f32(const tegroup_activation_desc *desc, int64_t row) {
    const tegroup_matrix *out = &desc->output;
    const void *x = tegroup_impl_matrix_row(&desc->input, row);
    float scale = tegroup_impl_row_scale_f32(&desc->row_scale, row), y[TEGROUP_IMPL_PIECE];
    int64_t width = out->cols, at;
    for (at = 0; at < width; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, width - at);
        tegroup_impl_activation_piece_f32(desc, x, scale, width, at, n, y);
        tegroup_impl_store_row_f32(out->dtype, tegroup_impl_matrix_row(out, row), at, 1, n, y);
    }
}

/* Up to TEGROUP_IMPL_PIECE gradients of gates and ups from column `at` of a row of grad_output, of `width`. Returns
 * `sum` with what they add to the gradient of the row's scale. */
static inline float tegroup_impl_activation_grad_piece_f32(const tegroup_activation_backward_desc *desc, const void *x,
                                                           const void *dy, float scale, int64_t width, int64_t at,
                                                           int64_t n, float sum, float *gate, float *up) {
    const int gated = tegroup_impl_gated(desc->activation);
    int64_t step = desc->interleaved ? 2 : 1, to_up = desc->interleaved ? 1 : width, j;
    float alpha = (float)tegroup_impl_alpha(desc->alpha), limit = (float)tegroup_impl_limit(desc->limit);
    float grad[TEGROUP_IMPL_PIECE], value[TEGROUP_IMPL_PIECE];
    for (j = 0; j < n; j++) up[j] = 1;
    tegroup_impl_load_row_f32(desc->input.dtype, x, step * at, step, n, gate);
    if (gated) tegroup_impl_load_row_f32(desc->input.dtype, x, step * at + to_up, step, n, up);
    tegroup_impl_load_row_f32(desc->grad_output.dtype, dy, at, 1, n, grad);
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    for (j = 0; j < n; j++)                                                                                            \
        value[j] = tegroup_impl_activation_grad_f32(kind, 0, alpha, limit, gate[j], up[j], scale * grad[j], &gate[j], \
                                                     &up[j]);
    TEGROUP_IMPL_BY_CURVE(desc->activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
    return tegroup_impl_dot_f32(grad, value, n, sum);
}

/* A piece of each operand is read before its gradients are stored, so grad_input may be one. */
static inline void tegroup_impl_activation_grad_row_f32(const tegroup_activation_backward_desc *desc, int64_t row) {
    const tegroup_matrix *out = &desc->grad_input, *dy = &desc->grad_output;
    int64_t width = dy->cols, step = desc->interleaved ? 2 : 1, to_up = desc->interleaved ? 1 : width, at;
    const void *x = tegroup_impl_matrix_row(&desc->input, row);
    void *dx = tegroup_impl_matrix_row(out, row);
    float scale = tegroup_impl_row_scale_f32(&desc->row_scale, row), sum = 0;
    float gate[TEGROUP_IMPL_PIECE], up[TEGROUP_IMPL_PIECE];
    for (at = 0; at < width; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, width - at);
        sum = tegroup_impl_activation_grad_piece_f32(desc, x, tegroup_impl_matrix_row(dy, row), scale, width, at, n,
                                                      sum, gate, up);
        tegroup_impl_store_row_f32(out->dtype, dx, step * at, step, n, gate);
        if (tegroup_impl_gated(desc->activation))
            tegroup_impl_store_row_f32(out->dtype, dx, step * at + to_up, step, n, up);
    }
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET)
        tegroup_impl_store_f32(desc->grad_row_scale.dtype, tegroup_impl_matrix_row(&desc->grad_row_scale, row), 0,
                                sum);
}

static inline double tegroup_impl_row_scale_f64(const tegroup_matrix *scale, int64_t row) {
    if (scale->dtype == TEGROUP_DTYPE_UNSET) return 1;
    return tegroup_impl_load_f64(scale->dtype, tegroup_impl_matrix_row(scale, row), 0);
}

/* Up to TEGROUP_IMPL_PIECE results from column `at` of a row of input, of `width`. */
static inline void tegroup_impl_activation_piece_f64(const tegroup_activation_desc *desc, const void *x, double scale,
                                                      int64_t width, int64_t at, int64_t n, double *gate) {
    const int gated = tegroup_impl_gated(desc->activation);
    int64_t step = desc->interleaved ? 2 : 1, to_up = desc->interleaved ? 1 : width, j;
    double alpha = (double)tegroup_impl_alpha(desc->alpha), limit = (double)tegroup_impl_limit(desc->limit);
    double up[TEGROUP_IMPL_PIECE];
    for (j = 0; j < n; j++) up[j] = 1;
    tegroup_impl_load_row_f64(desc->input.dtype, x, step * at, step, n, gate);
    if (gated) tegroup_impl_load_row_f64(desc->input.dtype, x, step * at + to_up, step, n, up);
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    for (j = 0; j < n; j++) gate[j] = scale * tegroup_impl_activation_f64(kind, 0, alpha, limit, gate[j], up[j]);
    TEGROUP_IMPL_BY_CURVE(desc->activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
}

/* A piece of the row is read before its results are stored, so output may be input. */
static inline void tegroup_impl_activation_row_f64(const tegroup_activation_desc *desc, int64_t row) {
    const tegroup_matrix *out = &desc->output;
    const void *x = tegroup_impl_matrix_row(&desc->input, row);
    double scale = tegroup_impl_row_scale_f64(&desc->row_scale, row), y[TEGROUP_IMPL_PIECE];
    int64_t width = out->cols, at;
    for (at = 0; at < width; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, width - at);
        tegroup_impl_activation_piece_f64(desc, x, scale, width, at, n, y);
        tegroup_impl_store_row_f64(out->dtype, tegroup_impl_matrix_row(out, row), at, 1, n, y);
    }
}

/* Up to TEGROUP_IMPL_PIECE gradients of gates and ups from column `at` of a row of grad_output, of `width`. Returns
 * `sum` with what they add to the gradient of the row's scale. */
static inline double tegroup_impl_activation_grad_piece_f64(const tegroup_activation_backward_desc *desc, const void *x,
                                                           const void *dy, double scale, int64_t width, int64_t at,
                                                           int64_t n, double sum, double *gate, double *up) {
    const int gated = tegroup_impl_gated(desc->activation);
    int64_t step = desc->interleaved ? 2 : 1, to_up = desc->interleaved ? 1 : width, j;
    double alpha = (double)tegroup_impl_alpha(desc->alpha), limit = (double)tegroup_impl_limit(desc->limit);
    double grad[TEGROUP_IMPL_PIECE], value[TEGROUP_IMPL_PIECE];
    for (j = 0; j < n; j++) up[j] = 1;
    tegroup_impl_load_row_f64(desc->input.dtype, x, step * at, step, n, gate);
    if (gated) tegroup_impl_load_row_f64(desc->input.dtype, x, step * at + to_up, step, n, up);
    tegroup_impl_load_row_f64(desc->grad_output.dtype, dy, at, 1, n, grad);
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    for (j = 0; j < n; j++)                                                                                            \
        value[j] = tegroup_impl_activation_grad_f64(kind, 0, alpha, limit, gate[j], up[j], scale * grad[j], &gate[j], \
                                                     &up[j]);
    TEGROUP_IMPL_BY_CURVE(desc->activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
    return tegroup_impl_dot_f64(grad, value, n, sum);
}

/* A piece of each operand is read before its gradients are stored, so grad_input may be one. */
static inline void tegroup_impl_activation_grad_row_f64(const tegroup_activation_backward_desc *desc, int64_t row) {
    const tegroup_matrix *out = &desc->grad_input, *dy = &desc->grad_output;
    int64_t width = dy->cols, step = desc->interleaved ? 2 : 1, to_up = desc->interleaved ? 1 : width, at;
    const void *x = tegroup_impl_matrix_row(&desc->input, row);
    void *dx = tegroup_impl_matrix_row(out, row);
    double scale = tegroup_impl_row_scale_f64(&desc->row_scale, row), sum = 0;
    double gate[TEGROUP_IMPL_PIECE], up[TEGROUP_IMPL_PIECE];
    for (at = 0; at < width; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, width - at);
        sum = tegroup_impl_activation_grad_piece_f64(desc, x, tegroup_impl_matrix_row(dy, row), scale, width, at, n,
                                                      sum, gate, up);
        tegroup_impl_store_row_f64(out->dtype, dx, step * at, step, n, gate);
        if (tegroup_impl_gated(desc->activation))
            tegroup_impl_store_row_f64(out->dtype, dx, step * at + to_up, step, n, up);
    }
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET)
        tegroup_impl_store_f64(desc->grad_row_scale.dtype, tegroup_impl_matrix_row(&desc->grad_row_scale, row), 0,
                                sum);
}

/* What both descriptors say of the function itself. */
static inline tegroup_status tegroup_impl_check_activation_kind(tegroup_activation kind, int32_t interleaved,
                                                                double alpha, double limit, tegroup_error *error) {
    const int clamps = kind == TEGROUP_ACTIVATION_SWIGLU_CLAMPED;
    TEGROUP_IMPL_RULE(kind != TEGROUP_ACTIVATION_UNSET, ERROR_UNSET, "activation", "must be set",
                      TEGROUP_ACTIVATION_SWIGLU, 0);
    TEGROUP_IMPL_RULE_ENUM(kind, TEGROUP_ACTIVATION_IDENTITY, "activation", "must be a tegroup_activation");
    TEGROUP_IMPL_RULE(interleaved == 0 || interleaved == 1, ERROR_VALUE, "interleaved", "must be 0 or 1", 1,
                      interleaved);
    TEGROUP_IMPL_RULE(!interleaved || tegroup_impl_gated(kind), ERROR_VALUE, "interleaved",
                      "must be 0 for an activation without gate and up", 0, interleaved);
    TEGROUP_IMPL_RULE(clamps || alpha == 0, ERROR_VALUE, "alpha", "must be 0 for an activation that takes none", 0, 1);
    TEGROUP_IMPL_RULE(clamps || limit == 0, ERROR_VALUE, "limit", "must be 0 for an activation that takes none", 0, 1);
    TEGROUP_IMPL_RULE(alpha >= 0 && alpha <= 3.4028234663852886e38, ERROR_VALUE, "alpha",
                      "must be 0 to the largest float", 0, -1);
    TEGROUP_IMPL_RULE(limit >= 0, ERROR_VALUE, "limit", "must not be negative or NaN", 0, -1);
    return TEGROUP_OK;
}

static inline int64_t tegroup_impl_activation_cols(tegroup_activation kind, int64_t width) {
    return tegroup_impl_gated(kind) ? 2 * width : width;
}

/* A layer with an activation: its row sizes must lie where its data does. */
static inline tegroup_status tegroup_impl_activation_check_sizes(tegroup_space space, const tegroup_shape *input,
                                                                 tegroup_error *error) {
    TEGROUP_IMPL_RULE(space != TEGROUP_SPACE_DEVICE || input->row_sizes.space != TEGROUP_SPACE_HOST, ERROR_UNSUPPORTED,
                      "input.shape.row_sizes.space", "must be DEVICE: the activation's kernel reads the snapshot there",
                      TEGROUP_SPACE_DEVICE, TEGROUP_SPACE_HOST);
    TEGROUP_IMPL_RULE(space != TEGROUP_SPACE_HOST || input->row_sizes.space != TEGROUP_SPACE_DEVICE, ERROR_UNSUPPORTED,
                      "input.shape.row_sizes.space", "must be HOST: the snapshot is read there", TEGROUP_SPACE_HOST,
                      TEGROUP_SPACE_DEVICE);
    return TEGROUP_OK;
}

/* What errors call the matrices of an activation and of its gradient: a layer that runs one has other words for
 * them. */
typedef struct tegroup_impl_matrix_name {
    const char *paths[5];    /* as TEGROUP_IMPL_MATRIX_PATHS */
    const char *apart;       /* the rule of another that shares its memory */
    const char *apart_or_it; /* ... and may do so where it is this one, and the operation in place */
} tegroup_impl_matrix_name;

typedef struct tegroup_impl_activation_names {
    tegroup_impl_matrix_name input, row_scale, output, grad_output, grad_input, grad_row_scale;
    const char *snapshot;
} tegroup_impl_activation_names;

static inline const tegroup_impl_activation_names *tegroup_impl_activation_own_names(void) {
#define TEGROUP_IMPL_OWN(name)                                                                                         \
    {                                                                                                                  \
        TEGROUP_IMPL_MATRIX_PATHS(name), "must not overlap " name,                                                     \
            "must not overlap " name ", unless it is " name " with the same ld and dtype"                              \
    }
    static const tegroup_impl_activation_names names = {TEGROUP_IMPL_OWN("input"),
                                                        TEGROUP_IMPL_OWN("row_scale"),
                                                        TEGROUP_IMPL_OWN("output"),
                                                        TEGROUP_IMPL_OWN("grad_output"),
                                                        TEGROUP_IMPL_OWN("grad_input"),
                                                        TEGROUP_IMPL_OWN("grad_row_scale"),
                                                        "snapshot"};
#undef TEGROUP_IMPL_OWN
    return &names;
}

static inline tegroup_impl_buffer tegroup_impl_named_buffer(const tegroup_matrix *m,
                                                            const tegroup_impl_matrix_name *name, int writes) {
    return tegroup_impl_matrix_buffer(m, name->paths[0], name->apart, writes);
}

/* An operand that the result at `place` of the buffers may be: each of its elements comes from the one in the same
 * place. */
static inline tegroup_impl_buffer tegroup_impl_twin_buffer(const tegroup_matrix *m,
                                                           const tegroup_impl_matrix_name *name,
                                                           const tegroup_matrix *result, int32_t place) {
    tegroup_impl_buffer buffer = tegroup_impl_named_buffer(m, name, 0);
    buffer.twin = place;
    if (result->data != m->data || result->dtype != m->dtype
        || tegroup_impl_matrix_ld(result) != tegroup_impl_matrix_ld(m))
        buffer.twin_apart = name->apart_or_it;
    return buffer;
}

/* Everything that tegroup_activation_forward checks before it starts. */
static inline tegroup_status tegroup_impl_activation_check(const tegroup_activation_desc *desc,
                                                           const tegroup_impl_activation_names *names,
                                                           tegroup_error *error) {
    tegroup_impl_buffer buffers[4];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, desc->alpha, desc->limit, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->output, names->output.paths, -1, -1, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->input, names->input.paths, desc->output.rows,
                                               tegroup_impl_activation_cols(desc->activation, desc->output.cols),
                                               TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->row_scale, names->row_scale.paths, desc->output.rows, 1,
                                                 TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_ACTIVATION_KERNELS, desc->space, error));
    if (desc->snapshot)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_snapshot(desc->snapshot, names->snapshot, desc->output.rows, desc->space, error));
    buffers[0] = tegroup_impl_named_buffer(&desc->output, &names->output, 1);
    buffers[1] = tegroup_impl_gated(desc->activation)
                     ? tegroup_impl_named_buffer(&desc->input, &names->input, 0)
                     : tegroup_impl_twin_buffer(&desc->input, &names->input, &desc->output, 0);
    buffers[2] = tegroup_impl_named_buffer(&desc->row_scale, &names->row_scale, 0);
    buffers[3] = tegroup_impl_shapeless_snapshot_buffer(desc->snapshot, desc->space);
    return tegroup_impl_check_apart(buffers, 4, TEGROUP_CHECK_HOST, NULL, error);
}

/* The threads that an activation's rows are worth: each is looked up among the groups, and an element of one that a
 * group owns costs some eight steps. */
static inline int32_t tegroup_impl_activation_team(int32_t limit, const tegroup_snapshot_view *view, int64_t rows,
                                                   int64_t width) {
    const double groups = view->header ? view->header->groups : 0,
                 owned = view->header ? (double)view->header->rows_total : (double)rows;
    return tegroup_impl_team(tegroup_impl_threads(limit), groups * (double)rows + 8 * owned * (double)width);
}

static inline tegroup_status tegroup_impl_activation_run(const tegroup_activation_desc *desc,
                                                         struct CUstream_st *stream, tegroup_error *error) {
    const int64_t rows = tegroup_impl_matrix_rows(&desc->output);
    tegroup_snapshot_view view;
    int64_t row;
    (void)stream, (void)error;
#if TEGROUP_IMPL_ACTIVATION_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_activation_forward(desc, stream, error);
#endif
    view = tegroup_snapshot_read(desc->snapshot);
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
        tegroup_impl_activation_team(desc->threads, &view, rows, desc->output.cols)))
    for (row = 0; row < rows; row++) {
        if (!tegroup_impl_row_owned(&view, row)) continue;
        if (desc->input.dtype == TEGROUP_DTYPE_F64) tegroup_impl_activation_row_f64(desc, row);
        else tegroup_impl_activation_row_f32(desc, row);
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_activation_forward(const tegroup_activation_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    tegroup_activation_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_activation_check(desc, tegroup_impl_activation_own_names(), error));
    return tegroup_impl_activation_run(desc, stream, error);
}

/* The backward of a described activation; its gradients are left for the caller to fill in. */
static inline void tegroup_impl_activation_backward_of(const tegroup_activation_desc *forward,
                                                       tegroup_activation_backward_desc *backward) {
    memset(backward, 0, sizeof *backward);
    backward->struct_size = sizeof *backward;
    backward->space = forward->space;
    backward->activation = forward->activation;
    backward->interleaved = forward->interleaved;
    backward->alpha = forward->alpha;
    backward->limit = forward->limit;
    backward->snapshot = forward->snapshot;
    backward->input = forward->input;
    backward->row_scale = forward->row_scale;
    backward->threads = forward->threads;
}

/* Everything that tegroup_activation_backward checks before it starts. */
static inline tegroup_status tegroup_impl_activation_backward_check(const tegroup_activation_backward_desc *desc,
                                                                    const tegroup_impl_activation_names *names,
                                                                    tegroup_error *error) {
    tegroup_impl_buffer buffers[6];
    int64_t rows, cols;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, desc->alpha, desc->limit, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->grad_output, names->grad_output.paths, -1, -1, TEGROUP_IMPL_FLOATS, error));
    rows = desc->grad_output.rows;
    cols = tegroup_impl_activation_cols(desc->activation, desc->grad_output.cols);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->input, names->input.paths, rows, cols, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->grad_input, names->grad_input.paths, rows, cols, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->row_scale, names->row_scale.paths, rows, 1, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->grad_row_scale, names->grad_row_scale.paths, rows, 1,
                                                 TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_built(TEGROUP_IMPL_ACTIVATION_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS, desc->space, error));
    if (desc->snapshot)
        TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot(desc->snapshot, names->snapshot, rows, desc->space, error));
    buffers[0] = tegroup_impl_named_buffer(&desc->grad_row_scale, &names->grad_row_scale, 1);
    buffers[1] = tegroup_impl_named_buffer(&desc->grad_input, &names->grad_input, 1);
    buffers[2] = tegroup_impl_named_buffer(&desc->row_scale, &names->row_scale, 0);
    buffers[3] = tegroup_impl_gated(desc->activation)
                     ? tegroup_impl_named_buffer(&desc->grad_output, &names->grad_output, 0)
                     : tegroup_impl_twin_buffer(&desc->grad_output, &names->grad_output, &desc->grad_input, 1);
    buffers[4] = tegroup_impl_twin_buffer(&desc->input, &names->input, &desc->grad_input, 1);
    buffers[5] = tegroup_impl_shapeless_snapshot_buffer(desc->snapshot, desc->space);
    return tegroup_impl_check_apart(buffers, 6, TEGROUP_CHECK_HOST, NULL, error);
}

static inline tegroup_status tegroup_impl_activation_backward_run(const tegroup_activation_backward_desc *desc,
                                                                  struct CUstream_st *stream, tegroup_error *error) {
    const int64_t rows = desc->grad_output.rows;
    tegroup_snapshot_view view;
    int64_t row;
    (void)stream, (void)error;
#if TEGROUP_IMPL_ACTIVATION_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_activation_backward(desc, stream, error);
#endif
    view = tegroup_snapshot_read(desc->snapshot);
    if (desc->grad_output.cols == 0 && desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
        tegroup_impl_activation_team(desc->threads, &view, rows, 2 * desc->grad_output.cols)))
    for (row = 0; row < rows; row++) {
        if (!tegroup_impl_row_owned(&view, row)) continue;
        if (desc->input.dtype == TEGROUP_DTYPE_F64) tegroup_impl_activation_grad_row_f64(desc, row);
        else tegroup_impl_activation_grad_row_f32(desc, row);
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_activation_backward(const tegroup_activation_backward_desc *desc,
                                                       struct CUstream_st *stream, tegroup_error *error) {
    tegroup_activation_backward_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_activation_backward_check(desc, tegroup_impl_activation_own_names(), error));
    return tegroup_impl_activation_backward_run(desc, stream, error);
}

/* ==== [67] Quantise and dequantise: rules (src/layer/quantize_rules.h) ==== */

/* Copies of a quantised tensor, as arrays of them go. */
enum { TEGROUP_IMPL_ROWWISE, TEGROUP_IMPL_COLUMNWISE, TEGROUP_IMPL_COPIES };

/* Where a copy is: its elements and scales, or the lists of them. */
typedef struct tegroup_impl_copy_memory {
    void *data, *scales;
    void *const *pointers, *const *scale_pointers;
} tegroup_impl_copy_memory;

TEGROUP_IMPL_HD tegroup_impl_copy_memory tegroup_impl_memory_of(const tegroup_tensor *t, int columnwise) {
    tegroup_impl_copy_memory memory;
    memory.data = columnwise ? t->columnwise_data : t->data;
    memory.scales = columnwise ? t->columnwise_scale_inv : t->scale_inv;
    memory.pointers = columnwise ? t->columnwise_pointers : t->pointers;
    memory.scale_pointers = columnwise ? t->columnwise_scale_pointers : t->scale_pointers;
    return memory;
}

TEGROUP_IMPL_HD int tegroup_impl_has_copy(const tegroup_tensor *t, int columnwise) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    return memory.data || memory.scales || memory.pointers || memory.scale_pointers;
}

/* The type of a scale by itself: of I32, which holds four, F8E8M0. */
TEGROUP_IMPL_HD tegroup_dtype tegroup_impl_one_scale(const tegroup_tensor *t, const tegroup_scaling_facts *facts) {
    const tegroup_dtype dtype = tegroup_impl_scale_dtype(t, facts);
    return dtype == TEGROUP_DTYPE_I32 ? TEGROUP_DTYPE_F8E8M0 : dtype;
}

/* What errors call a copy's memory. */
typedef struct tegroup_impl_copy_name {
    const char *data, *pointers, *scales, *scale_pointers, *apart, *scales_apart;
} tegroup_impl_copy_name;

#define TEGROUP_IMPL_COPY_NAME(data, pointers, scales, scale_pointers)                                                 \
    { data, pointers, scales, scale_pointers, "must not overlap " data, "must not overlap " scales }
#define TEGROUP_IMPL_COPY_NAMES(name)                                                                                  \
    {                                                                                                                  \
        TEGROUP_IMPL_COPY_NAME(name ".data", name ".pointers", name ".scale_inv", name ".scale_pointers"),             \
            TEGROUP_IMPL_COPY_NAME(name ".columnwise_data", name ".columnwise_pointers", name ".columnwise_scale_inv", \
                                   name ".columnwise_scale_pointers")                                                  \
    }

/* One address, or a list of them: there where something is behind it. */
static inline tegroup_status tegroup_impl_check_there(const void *address, int64_t bytes, size_t alignment,
                                                      const char *field, tegroup_error *error) {
    return bytes == 0 && !address ? TEGROUP_OK : tegroup_impl_check_address(address, alignment, field, error);
}

/* A list in host memory has an address for each group that uses it: one with elements, and, for a scale of all of a
 * group (`always`), every one. */
static inline tegroup_status tegroup_impl_check_each(const tegroup_tensor *t, void *const *list, int always,
                                                     const char *field, tegroup_error *error) {
    tegroup_snapshot_view view;
    int32_t g;
    if (t->pointers_space != TEGROUP_SPACE_HOST) return TEGROUP_OK; /* the snapshot may be on the device, too */
    view = tegroup_snapshot_read(tegroup_impl_ragged(&t->shape) ? t->shape.snapshot : NULL);
    for (g = 0; g < t->shape.groups; g++) {
        const tegroup_impl_sides sides = tegroup_impl_group_sides(t, &view, g);
        TEGROUP_IMPL_RULE(list[g] != NULL || (!always && (sides.rows == 0 || sides.cols == 0)), ERROR_NULL_ARGUMENT,
                          field, "must hold no NULL for a group that is worked on; got the group's index", -1, g);
    }
    return TEGROUP_OK;
}

/* The memory of one copy: buffers or lists, not both, and scales just when there are elements. */
static inline tegroup_status tegroup_impl_check_copy(const tegroup_tensor *t, int columnwise,
                                                     const tegroup_impl_copy_name *name, const char *space_field,
                                                     tegroup_error *error) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    const int64_t entries = (int64_t)sizeof(void *) * t->shape.groups;
    const size_t element = tegroup_impl_element(t->dtype),
                 scale = (size_t)tegroup_impl_bits(tegroup_impl_scale_dtype(t, tegroup_scaling_info(t->scaling))) / 8;
    if (tegroup_impl_listed(t)) {
        TEGROUP_IMPL_RULE(!memory.data, ERROR_COMBINATION, name->data, "does not go with pointers_space", 0, 1);
        TEGROUP_IMPL_RULE(!memory.scales, ERROR_COMBINATION, name->scales, "does not go with pointers_space", 0, 1);
        TEGROUP_IMPL_TRY(tegroup_impl_check_there(memory.pointers, entries, sizeof(void *), name->pointers, error));
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_there(memory.scale_pointers, entries, sizeof(void *), name->scale_pointers, error));
        TEGROUP_IMPL_TRY(tegroup_impl_check_each(t, memory.pointers, 0, name->pointers, error));
        return tegroup_impl_check_each(t, memory.scale_pointers,
                                       tegroup_impl_scaled_as_one(tegroup_scaling_info(t->scaling)),
                                       name->scale_pointers, error);
    }
    TEGROUP_IMPL_RULE(!memory.pointers && !memory.scale_pointers, ERROR_UNSET, space_field,
                      "must be set with lists of addresses", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_there(memory.data, tegroup_impl_copy_bytes(t, columnwise), element, name->data, error));
    return tegroup_impl_check_there(memory.scales, tegroup_impl_scale_bytes(t, columnwise), scale, name->scales, error);
}

/* A quantised tensor and the plain one beside it: of one shape, by one snapshot, but for what a buffer holds, and
 * `cols` columns. */
static inline tegroup_status tegroup_impl_check_beside(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                       const tegroup_tensor *plain, const tegroup_impl_name *plain_name,
                                                       int64_t cols, const char *cols_rule, tegroup_error *error) {
    static const uint32_t dtypes = 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16;
    const tegroup_shape *shape = &plain->shape;
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(plain, plain_name, error));
    TEGROUP_IMPL_RULE_AS(DTYPES, dtypes >> plain->dtype & 1u, ERROR_DTYPE,
                         plain_name->members[TEGROUP_IMPL_MEMBER_DTYPE], "must be one that is quantised", dtypes,
                         plain->dtype);
    TEGROUP_IMPL_RULE(shape->groups == t->shape.groups, ERROR_SHAPE, plain_name->members[TEGROUP_IMPL_MEMBER_GROUPS],
                      name->groups, t->shape.groups, shape->groups);
    TEGROUP_IMPL_TRY(tegroup_impl_check_pair(plain, plain_name, t, name, error));
    TEGROUP_IMPL_RULE(shape->cols == cols, ERROR_SHAPE, plain_name->members[TEGROUP_IMPL_MEMBER_COLS], cols_rule, cols,
                      shape->cols);
    TEGROUP_IMPL_RULE(shape->snapshot == t->shape.snapshot, ERROR_COMBINATION,
                      plain_name->members[TEGROUP_IMPL_MEMBER_SNAPSHOT],
                      "must be that of the quantised tensor: one routing", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_irregular(shape) == tegroup_impl_irregular(&t->shape), ERROR_COMBINATION,
                      plain_name->members[TEGROUP_IMPL_MEMBER_COL_SIZES],
                      "and elements must be set just when the quantised tensor's are",
                      tegroup_impl_irregular(&t->shape), tegroup_impl_irregular(shape));
    return TEGROUP_OK;
}

/* A plain tensor's elements. */
static inline tegroup_status tegroup_impl_check_plain(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                      tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_data(t, name, error));
    return tegroup_impl_check_each(t, t->pointers, 0, TEGROUP_IMPL_PATH(POINTERS), error);
}

/* Sizes and lists lie where the data do; and of a snapshot in host memory, what its groups say. */
static inline tegroup_status tegroup_impl_check_spaces(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                       tegroup_space space, tegroup_error *error) {
    tegroup_snapshot_view view;
    int64_t total = 0;
    int32_t g;
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(&t->shape, space, TEGROUP_IMPL_PATH(SIZES_SPACE), error));
    TEGROUP_IMPL_RULE(!tegroup_impl_listed(t) || t->pointers_space == space, ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_PATH(POINTERS_SPACE), "must equal space: the list is read where the data are", space,
                      t->pointers_space);
    TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot_address(t, name, error));
    if (!tegroup_impl_ragged(&t->shape) || space != TEGROUP_SPACE_HOST) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_prepared(t, name, TEGROUP_CHECK_DEEP, error));
    view = tegroup_snapshot_read(t->shape.snapshot);
    for (g = 0; g < t->shape.groups; g++) total += tegroup_impl_max(0, view.rows[g]);
    TEGROUP_IMPL_RULE(total <= t->shape.rows, ERROR_CAPACITY, TEGROUP_IMPL_PATH(SNAPSHOT),
                      "must have shape.rows rows or fewer in all", t->shape.rows, total);
    return TEGROUP_OK;
}

/* A tensor's copies as buffers: elements, scales, and where they are lists, the entries. */
static inline int32_t tegroup_impl_copy_buffers(const tegroup_tensor *t, int columnwise,
                                                const tegroup_impl_copy_name *name, int writes,
                                                tegroup_impl_buffer *buffers) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    const int64_t entries = (int64_t)sizeof(void *) * t->shape.groups;
    if (tegroup_impl_listed(t)) {
        buffers[0] = tegroup_impl_buffer_of(memory.pointers, entries, name->pointers, name->apart, 0);
        buffers[1] =
            tegroup_impl_buffer_of(memory.scale_pointers, entries, name->scale_pointers, name->scales_apart, 0);
    } else {
        buffers[0] = tegroup_impl_buffer_of(memory.data, tegroup_impl_copy_bytes(t, columnwise), name->data,
                                            name->apart, writes);
        buffers[1] = tegroup_impl_buffer_of(memory.scales, tegroup_impl_scale_bytes(t, columnwise), name->scales,
                                            name->scales_apart, writes);
    }
    return 2;
}

/* Rows of a tensor's buffer, as matrices beside it number them. */
static inline int64_t tegroup_impl_numbered_rows(const tegroup_shape *shape) {
    return tegroup_impl_ragged(shape) ? shape->rows : tegroup_impl_mul(shape->rows, shape->groups);
}

/* What makes the values that are quantised: nothing, an index, an activation, its gradient. */
static inline tegroup_status tegroup_impl_check_made(const tegroup_quantize_desc *desc, const tegroup_impl_name *input,
                                                     tegroup_error *error) {
    static const tegroup_impl_name grad_output = TEGROUP_IMPL_NAME("grad_output");
    static const char *const row_scale[5] = TEGROUP_IMPL_MATRIX_PATHS("row_scale"), *const grad_row_scale[5] =
                                                                                        TEGROUP_IMPL_MATRIX_PATHS(
                                                                                            "grad_row_scale");
    static const tegroup_impl_name output = TEGROUP_IMPL_NAME("output");
    const tegroup_tensor *dy = &desc->grad_output;
    const int gradient = dy->dtype != TEGROUP_DTYPE_UNSET, gated = tegroup_impl_gated(desc->activation);
    const int64_t rows = tegroup_impl_numbered_rows(&desc->output.shape);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_gather(&desc->gather_input, &desc->input, input, TEGROUP_IMPL_A, TEGROUP_OP_FORWARD, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_index(&desc->gather_input, &desc->input, input, error));
    if (desc->activation == TEGROUP_ACTIVATION_UNSET) {
        TEGROUP_IMPL_RULE(!gradient, ERROR_UNSET, "activation", "must be set with grad_output",
                          TEGROUP_ACTIVATION_SWIGLU, 0);
        TEGROUP_IMPL_RULE(desc->row_scale.dtype == TEGROUP_DTYPE_UNSET, ERROR_UNSET, "activation",
                          "must be set with row_scale", TEGROUP_ACTIVATION_IDENTITY, 0);
        TEGROUP_IMPL_RULE(!desc->interleaved, ERROR_COMBINATION, "interleaved", "needs activation", 0,
                          desc->interleaved);
        TEGROUP_IMPL_RULE(desc->alpha == 0, ERROR_COMBINATION, "alpha", "needs activation", 0, 1);
        TEGROUP_IMPL_RULE(desc->limit == 0, ERROR_COMBINATION, "limit", "needs activation", 0, 1);
    } else {
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, desc->alpha, desc->limit, error));
        TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&desc->output.shape), ERROR_COMBINATION, "activation",
                          "does not go with col_sizes or elements", TEGROUP_ACTIVATION_UNSET, desc->activation);
        TEGROUP_IMPL_RULE(!gradient || !gated || desc->output.shape.cols % 2 == 0, ERROR_SHAPE, "output.shape.cols",
                          "must be even: gates and ups", 0, desc->output.shape.cols);
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->row_scale, row_scale, rows, 1, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_RULE(desc->row_scale.dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_listed(&desc->output),
                      ERROR_COMBINATION, "row_scale.dtype",
                      "does not go with lists: their rows have no common numbering", 0, desc->row_scale.dtype);
    TEGROUP_IMPL_RULE(desc->gather_input.rows == 0 || desc->activation == TEGROUP_ACTIVATION_UNSET, ERROR_COMBINATION,
                      "gather_input.rows", "does not go with activation", 0, desc->gather_input.rows);
    TEGROUP_IMPL_RULE(desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET || gradient, ERROR_COMBINATION,
                      "grad_row_scale.dtype", "needs grad_output", 0, desc->grad_row_scale.dtype);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->grad_row_scale, grad_row_scale, rows, 1, TEGROUP_IMPL_REALS, error));
    if (!gradient) return tegroup_impl_check_absent(dy, &grad_output, desc->input.dtype, error);
    TEGROUP_IMPL_RULE(desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_listed(&desc->output),
                      ERROR_COMBINATION, "grad_row_scale.dtype",
                      "does not go with lists: their rows have no common numbering", 0, desc->grad_row_scale.dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_check_beside(&desc->output, &output, dy, &grad_output,
                                               gated ? desc->output.shape.cols / 2 : desc->output.shape.cols,
                                               "must be those of the activation's output", error));
    TEGROUP_IMPL_RULE_AS(DTYPE, dy->dtype == desc->input.dtype, ERROR_DTYPE, "grad_output.dtype",
                         "must equal input.dtype", desc->input.dtype, dy->dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_check_spaces(dy, &grad_output, desc->space, error));
    return tegroup_impl_check_plain(dy, &grad_output, error);
}

/* One amax for all of a group, which the scales wait for. */
TEGROUP_IMPL_HD int tegroup_impl_waits_for_amax(const tegroup_quantize_desc *desc, const tegroup_scaling_facts *facts) {
    return (tegroup_impl_scaled_as_one(facts) && desc->rule.method != TEGROUP_SCALE_GIVEN)
           || desc->output.global_scale_inv != NULL;
}

/* The rule, and what is one number a group. */
static inline tegroup_status tegroup_impl_check_group_numbers(const tegroup_quantize_desc *desc, tegroup_error *error) {
    const tegroup_tensor *t = &desc->output;
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const int64_t bytes = (int64_t)sizeof(float) * t->shape.groups;
    const int given = desc->rule.method == TEGROUP_SCALE_GIVEN;
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_rule(&desc->rule, t->dtype, "output.dtype",
                                                   tegroup_impl_one_scale(t, facts), "output.scale_dtype", error));
    TEGROUP_IMPL_RULE(!given || tegroup_impl_scaled_as_one(facts), ERROR_COMBINATION, "rule.method",
                      "GIVEN needs scaling TENSOR", TEGROUP_SCALING_TENSOR, t->scaling);
    TEGROUP_IMPL_RULE(!given || !desc->rule.special_is_one, ERROR_COMBINATION, "rule.special_is_one",
                      "must be 0 with GIVEN: no amax counts", 0, 1);
    TEGROUP_IMPL_RULE(t->scale_parts <= 1 || !tegroup_impl_scaled_as_one(facts), ERROR_UNSUPPORTED,
                      "output.scale_parts", "must be at most 1 with TENSOR: amax has one number a group", 1,
                      t->scale_parts);
    TEGROUP_IMPL_RULE(
        tegroup_impl_bits(t->dtype) >= 8 || t->scale_parts <= 1 || t->columnwise_order == TEGROUP_COLUMNWISE_AS_DATA
            || t->shape.rows / t->scale_parts % 2 == 0,
        ERROR_UNSUPPORTED, "output.scale_parts",
        "must be of an even number of rows where F4E2M1 is transposed: two rows share a byte", 0, t->scale_parts);
    TEGROUP_IMPL_TRY(tegroup_impl_check_there(t->amax, tegroup_impl_waits_for_amax(desc, facts) ? bytes : 0,
                                              sizeof(float), "output.amax", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_there(t->columnwise_amax, 0, sizeof(float), "output.columnwise_amax", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_there(t->global_scale_inv, 0, sizeof(float), "output.global_scale_inv", error));
    return tegroup_impl_check_there(t->scale, given ? bytes : 0, sizeof(float), "output.scale", error);
}

/* What the call writes lies apart from all that it touches. */
static inline tegroup_status tegroup_impl_check_quantize_apart(const tegroup_quantize_desc *desc,
                                                               const tegroup_impl_name *input,
                                                               const tegroup_impl_copy_name *names,
                                                               tegroup_error *error) {
    static const tegroup_impl_name grad_output = TEGROUP_IMPL_NAME("grad_output");
    const tegroup_tensor *t = &desc->output, stored = tegroup_impl_stored(&desc->input, &desc->gather_input);
    const int64_t bytes = (int64_t)sizeof(float) * t->shape.groups;
    const tegroup_impl_buffer index = tegroup_impl_buffer_of(
        desc->gather_input.slot_of_row, desc->gather_input.rows > 0 ? tegroup_impl_mul(8, desc->input.shape.rows) : 0,
        NULL, "must not overlap gather_input.slot_of_row", 0);
    tegroup_impl_buffer buffers[14];
    int32_t count = 0;
    count += tegroup_impl_copy_buffers(t, 0, &names[0], 1, buffers + count);
    count += tegroup_impl_copy_buffers(t, 1, &names[1], 1, buffers + count);
    buffers[count++] = tegroup_impl_buffer_of(t->amax, bytes, "output.amax", "must not overlap output.amax", 1);
    buffers[count++] = tegroup_impl_buffer_of(t->columnwise_amax, bytes, "output.columnwise_amax",
                                              "must not overlap output.columnwise_amax", 1);
    buffers[count++] = tegroup_impl_buffer_of(t->global_scale_inv, bytes, "output.global_scale_inv",
                                              "must not overlap output.global_scale_inv", 1);
    buffers[count++] =
        tegroup_impl_matrix_buffer(&desc->grad_row_scale, "grad_row_scale.data", "must not overlap grad_row_scale", 1);
    buffers[count++] = tegroup_impl_buffer_of(t->scale, bytes, NULL, "must not overlap output.scale", 0);
    buffers[count++] = tegroup_impl_tensor_buffer(&stored, input, 0);
    buffers[count++] = index;
    buffers[count++] = tegroup_impl_tensor_buffer(&desc->grad_output, &grad_output, 0);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->row_scale, NULL, "must not overlap row_scale", 0);
    buffers[count++] = tegroup_impl_snapshot_buffer(t);
    return tegroup_impl_check_apart(buffers, count, TEGROUP_CHECK_HOST, NULL, error);
}

/* A tensor that is quantised. */
static inline tegroup_status tegroup_impl_check_quantised(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                          tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(t, name, error));
    TEGROUP_IMPL_RULE_AS(SCALINGS, t->scaling != TEGROUP_SCALING_NONE, ERROR_UNSET, TEGROUP_IMPL_PATH(SCALING),
                         "must be set", (1u << TEGROUP_SCALING_COUNT) - 2, 0);
    return TEGROUP_OK;
}

/* Everything that tegroup_quantize checks before it starts. */
static inline tegroup_status tegroup_impl_check_quantize(const tegroup_quantize_desc *desc, tegroup_error *error) {
    static const tegroup_impl_name input = TEGROUP_IMPL_NAME("input"), output = TEGROUP_IMPL_NAME("output");
    static const tegroup_impl_copy_name names[TEGROUP_IMPL_COPIES] = TEGROUP_IMPL_COPY_NAMES("output");
    const tegroup_tensor *t = &desc->output;
    const int doubled = desc->activation != TEGROUP_ACTIVATION_UNSET && tegroup_impl_gated(desc->activation)
                        && desc->grad_output.dtype == TEGROUP_DTYPE_UNSET;
    tegroup_tensor stored;
    int copy;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantised(t, &output, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_beside(t, &output, &desc->input, &input, tegroup_impl_mul(t->shape.cols, doubled ? 2 : 1),
                                  doubled ? "must be twice output.shape.cols: gates and ups" : output.cols, error));
    TEGROUP_IMPL_RULE_AS(SCALING, desc->input.scaling == TEGROUP_SCALING_NONE, ERROR_VALUE, "input.scaling",
                         "must be unset", TEGROUP_SCALING_NONE, desc->input.scaling);
    TEGROUP_IMPL_TRY(tegroup_impl_check_group_numbers(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_spaces(t, &output, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_spaces(&desc->input, &input, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_made(desc, &input, error));
    stored = tegroup_impl_stored(&desc->input, &desc->gather_input);
    TEGROUP_IMPL_TRY(tegroup_impl_check_plain(&stored, &input, error));
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++)
        if (tegroup_impl_has_copy(t, copy)
            || (copy == TEGROUP_IMPL_ROWWISE && !tegroup_impl_has_copy(t, TEGROUP_IMPL_COLUMNWISE)))
            TEGROUP_IMPL_TRY(tegroup_impl_check_copy(t, copy, &names[copy],
                                                     output.members[TEGROUP_IMPL_MEMBER_POINTERS_SPACE], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantize_apart(desc, &input, names, error));
    TEGROUP_IMPL_RULE(desc->space != TEGROUP_SPACE_DEVICE || desc->activation == TEGROUP_ACTIVATION_UNSET
                          || (TEGROUP_IMPL_ACTIVATION_KERNELS
                              && (TEGROUP_IMPL_BACKWARD_KERNELS || desc->grad_output.dtype == TEGROUP_DTYPE_UNSET)),
                      ERROR_NOT_BUILT, "activation", "must be unset: this build has no such kernels",
                      TEGROUP_ACTIVATION_UNSET, desc->activation);
    return tegroup_impl_check_built(TEGROUP_IMPL_FP8_KERNELS, desc->space, error);
}

/* Everything that tegroup_dequantize checks before it starts. */
static inline tegroup_status tegroup_impl_check_dequantize(const tegroup_dequantize_desc *desc, tegroup_error *error) {
    static const tegroup_impl_name input = TEGROUP_IMPL_NAME("input"), output = TEGROUP_IMPL_NAME("output");
    static const tegroup_impl_copy_name names[TEGROUP_IMPL_COPIES] = TEGROUP_IMPL_COPY_NAMES("input");
    const tegroup_tensor *t = &desc->input;
    const int64_t bytes = (int64_t)sizeof(float) * t->shape.groups;
    tegroup_impl_buffer buffers[5];
    int32_t count = 0;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_RULE(desc->columnwise == 0 || desc->columnwise == 1, ERROR_VALUE, "columnwise", "must be 0 or 1", 1,
                      desc->columnwise);
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantised(t, &input, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_beside(t, &input, &desc->output, &output, t->shape.cols, input.cols, error));
    TEGROUP_IMPL_RULE_AS(SCALING, desc->output.scaling == TEGROUP_SCALING_NONE, ERROR_VALUE, "output.scaling",
                         "must be unset", TEGROUP_SCALING_NONE, desc->output.scaling);
    TEGROUP_IMPL_TRY(tegroup_impl_check_spaces(t, &input, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_spaces(&desc->output, &output, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_copy(t, desc->columnwise, &names[desc->columnwise],
                                             input.members[TEGROUP_IMPL_MEMBER_POINTERS_SPACE], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_there(t->global_scale_inv, 0, sizeof(float), "input.global_scale_inv", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_plain(&desc->output, &output, error));
    buffers[count++] = tegroup_impl_tensor_buffer(&desc->output, &output, 1);
    count += tegroup_impl_copy_buffers(t, desc->columnwise, &names[desc->columnwise], 0, buffers + count);
    buffers[count++] =
        tegroup_impl_buffer_of(t->global_scale_inv, bytes, NULL, "must not overlap input.global_scale_inv", 0);
    buffers[count++] = tegroup_impl_snapshot_buffer(t);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, count, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_FP8_KERNELS, desc->space, error);
}

/* ==== [68] Quantise and dequantise (src/layer/quantize.h) ==== */

#if TEGROUP_IMPL_FP8_KERNELS
static inline tegroup_status tegroup_impl_cuda_quantize(const tegroup_quantize_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error);
static inline tegroup_status tegroup_impl_cuda_dequantize(const tegroup_dequantize_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error);
#endif

/* Work is cut into tiles: no block of a scaling reaches over the edge of one, but for those of all rows or columns. */
enum { TEGROUP_IMPL_QUANTIZE_TILE = 128 };

/* A copy of one group. data NULL: it is not there. */
typedef struct tegroup_impl_copy {
    char *data, *scales;
    tegroup_impl_elements at;
    tegroup_impl_scale_grid grid;
} tegroup_impl_copy;

/* What the groups before a group take in the copies' buffers: scales of each, and elements of a transposed one. */
typedef struct tegroup_impl_before {
    int64_t scales[TEGROUP_IMPL_COPIES], transposed;
} tegroup_impl_before;

/* ... and a group of these extents more. */
TEGROUP_IMPL_HD void tegroup_impl_pass_group(const tegroup_tensor *t, const tegroup_scaling_facts *facts,
                                             tegroup_impl_sides sides, tegroup_impl_before *before) {
    int copy;
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++)
        before->scales[copy] += tegroup_impl_scale_grid_alone(t, facts, sides, copy).count;
    before->transposed += tegroup_impl_transposed_count(sides);
}

TEGROUP_IMPL_HD tegroup_impl_copy tegroup_impl_copy_of(const tegroup_tensor *t, const tegroup_scaling_facts *facts,
                                                       const tegroup_snapshot_view *view, int32_t g, int columnwise,
                                                       const tegroup_impl_before *before) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    tegroup_impl_copy copy;
    copy.data = (char *)(memory.pointers ? memory.pointers[g] : memory.data);
    copy.scales = (char *)(memory.scale_pointers ? memory.scale_pointers[g] : memory.scales);
    copy.at = tegroup_impl_elements_after(t, view, g, columnwise, before->transposed);
    copy.grid = tegroup_impl_scale_grid_after(t, facts, view, g, columnwise, before->scales[columnwise]);
    return copy;
}

TEGROUP_IMPL_HD int64_t tegroup_impl_element_of(const tegroup_impl_copy *copy, int64_t row, int64_t col) {
    return copy->at.first + row * copy->at.row_stride + col * copy->at.col_stride;
}

/* The blocks beside a tile whose first element is `first` end here: where the next tile's begin, or with the last one's
 * that are stored. */
TEGROUP_IMPL_HD int64_t tegroup_impl_blocks_end(int64_t first, int64_t block, int64_t count, int64_t extent) {
    const int64_t next = (first + TEGROUP_IMPL_QUANTIZE_TILE) / block;
    return next < count ? next : extent;
}

/* What is one number a group: the scale of TENSOR in both copies, the global scale. amax: the group's, where the scales
 * wait for it. Returns what tegroup_impl_scale_block takes as `global`. */
TEGROUP_IMPL_HD float tegroup_impl_group_global(const tegroup_quantize_desc *desc, int32_t g) {
    if (desc->rule.method == TEGROUP_SCALE_GIVEN) return desc->output.scale[g];
    return desc->output.global_scale_inv ? tegroup_impl_scale_global(desc->output.amax[g]) : 1.0f;
}
TEGROUP_IMPL_HD void tegroup_impl_store_group(const tegroup_quantize_desc *desc, const tegroup_scaling_facts *facts,
                                              const tegroup_impl_copy copies[TEGROUP_IMPL_COPIES], int32_t g) {
    const tegroup_tensor *t = &desc->output;
    const float global = tegroup_impl_group_global(desc, g);
    const tegroup_dtype dtype = tegroup_impl_one_scale(t, facts);
    tegroup_block_scale block;
    int copy;
    if (t->global_scale_inv)
        t->global_scale_inv[g] =
            tegroup_impl_is_nan(global) ? tegroup_impl_f32_of_bits(0x7fffffffu) : tegroup_impl_inverse_f32(global);
    if (!tegroup_impl_scaled_as_one(facts)) return;
    block = tegroup_impl_scale_block(&desc->rule, t->dtype, dtype, t->amax ? t->amax[g] : 0.0f, global);
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++)
        if (copies[copy].scales)
            tegroup_impl_store_code(dtype, copies[copy].scales, copies[copy].grid.base, block.bits);
}

/* ---- on the CPU ---- */

/* A group as the CPU's loops meet it. */
typedef struct tegroup_impl_quantize_group {
    int32_t g, part;
    int64_t rows, cols, part_rows; /* of the group; of one part */
    tegroup_impl_copy copies[TEGROUP_IMPL_COPIES];
} tegroup_impl_quantize_group;

/* A pass over a tensor. A work is a tile of one part of a group, or (spans) all tiles of its part beside each other or
 * above each other. */
typedef struct tegroup_impl_quantize_pass {
    const tegroup_tensor *t;
    const tegroup_scaling_facts *facts;
    tegroup_snapshot_view view;
    const void *desc; /* of the call */
    int spans_cols, spans_rows;
    void (*work)(const struct tegroup_impl_quantize_pass *pass, const tegroup_impl_quantize_group *group, int64_t row,
                 int64_t col);
} tegroup_impl_quantize_pass;

static inline tegroup_impl_quantize_group tegroup_impl_quantize_group_of(const tegroup_impl_quantize_pass *pass,
                                                                         int32_t g, const tegroup_impl_before *before) {
    const tegroup_impl_sides sides = tegroup_impl_group_sides(pass->t, &pass->view, g);
    tegroup_impl_quantize_group group;
    int copy;
    group.g = g;
    group.part = 0;
    group.rows = sides.rows;
    group.cols = sides.cols;
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++)
        group.copies[copy] = tegroup_impl_copy_of(pass->t, pass->facts, &pass->view, g, copy, before);
    group.part_rows = group.copies[0].grid.part_rows;
    return group;
}

/* Works first .. last - 1 of all; returns how many there are. Without works nothing is done but counting. */
static inline int64_t tegroup_impl_quantize_works(const tegroup_impl_quantize_pass *pass, int64_t first, int64_t last) {
    tegroup_impl_before before;
    int64_t begun = 0, w;
    int32_t g;
    memset(&before, 0, sizeof before);
    for (g = 0; g < pass->t->shape.groups; g++) {
        tegroup_impl_quantize_group group = tegroup_impl_quantize_group_of(pass, g, &before);
        const int64_t across = pass->spans_cols ? 1 : tegroup_impl_blocks(group.cols, TEGROUP_IMPL_QUANTIZE_TILE),
                      down = pass->spans_rows ? 1 : tegroup_impl_blocks(group.part_rows, TEGROUP_IMPL_QUANTIZE_TILE);
        for (group.part = 0; group.part < group.copies[0].grid.parts; group.part++) {
            for (w = tegroup_impl_max(0, first - begun); w < tegroup_impl_min(across * down, last - begun); w++)
                pass->work(pass, &group, w / across * TEGROUP_IMPL_QUANTIZE_TILE,
                           w % across * TEGROUP_IMPL_QUANTIZE_TILE);
            begun += across * down;
        }
        tegroup_impl_pass_group(pass->t, pass->facts, tegroup_impl_sides_of(group.rows, group.cols), &before);
    }
    return begun;
}

/* Each thread takes its share of the works; an element costs some ten steps. */
static inline void tegroup_impl_quantize_run(const tegroup_impl_quantize_pass *pass, int32_t limit) {
    const int64_t works = tegroup_impl_quantize_works(pass, 0, 0);
    const double steps = 10.0 * (double)(TEGROUP_IMPL_QUANTIZE_TILE * TEGROUP_IMPL_QUANTIZE_TILE) * (double)works;
    const int32_t shares = tegroup_impl_team(tegroup_impl_threads(limit), steps);
    int32_t share;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(shares))
    for (share = 0; share < shares; share++)
        (void)tegroup_impl_quantize_works(pass, tegroup_impl_share_begin(works, share, shares),
                                          tegroup_impl_share_begin(works, share + 1, shares));
}

/* The activation, or the gradient of one, that makes the values. */
static inline tegroup_activation_desc tegroup_impl_made_forward(const tegroup_quantize_desc *desc) {
    tegroup_activation_desc made;
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.space = desc->space;
    made.activation = desc->activation;
    made.interleaved = desc->interleaved;
    made.alpha = desc->alpha;
    made.limit = desc->limit;
    made.input.dtype = desc->input.dtype;
    made.row_scale = desc->row_scale;
    made.threads = desc->threads;
    return made;
}
static inline tegroup_activation_backward_desc tegroup_impl_made_backward(const tegroup_quantize_desc *desc) {
    const tegroup_activation_desc forward = tegroup_impl_made_forward(desc);
    tegroup_activation_backward_desc made;
    tegroup_impl_activation_backward_of(&forward, &made);
    made.grad_output.dtype = desc->grad_output.dtype;
    made.grad_row_scale = desc->grad_row_scale;
    return made;
}

/* Where a row of an operand begins, of which `first` is the first element. */
static inline const void *tegroup_impl_row_from(const tegroup_tensor *t, const tegroup_impl_block *block,
                                                int64_t first) {
    return block->base + first * (tegroup_impl_bits(t->dtype) / 8);
}

/* n gradients of a group's row from column `at`: halves are gates, then ups; interleaved ones are whole pairs. */
static inline void tegroup_impl_quantize_gradients(const tegroup_quantize_desc *desc, const void *x, const void *dy,
                                                   float scale, int64_t at, int64_t n, float *to) {
    const tegroup_activation_backward_desc made = tegroup_impl_made_backward(desc);
    const int64_t cols = desc->output.shape.cols, width = tegroup_impl_gated(desc->activation) ? cols / 2 : cols;
    float gate[TEGROUP_IMPL_PIECE], up[TEGROUP_IMPL_PIECE];
    int64_t j, i, took;
    if (desc->interleaved) {
        (void)tegroup_impl_activation_grad_piece_f32(&made, x, dy, scale, width, at / 2, n / 2, 0, gate, up);
        for (j = 0; j < n; j++) to[j] = j % 2 ? up[j / 2] : gate[j / 2];
        return;
    }
    for (j = 0; j < n; j += took) {
        const int ups = at + j >= width;
        const int64_t from = at + j - (ups ? width : 0);
        took = tegroup_impl_min(n - j, width - from);
        (void)tegroup_impl_activation_grad_piece_f32(&made, x, dy, scale, width, from, took, 0, gate, up);
        for (i = 0; i < took; i++) to[j + i] = ups ? up[i] : gate[i];
    }
}

/* n values of a group's row from column `at`: those of input, or what is made of them, as they would be stored. */
static inline void tegroup_impl_quantize_row(const tegroup_quantize_desc *desc, const tegroup_impl_block *in,
                                             const tegroup_impl_block *dy, int64_t row, int64_t at, int64_t n,
                                             float *to) {
    const tegroup_dtype dtype = desc->input.dtype;
    const int64_t first = tegroup_impl_row_at(&desc->gather_input, in, row);
    const void *x = first < 0 ? NULL : tegroup_impl_row_from(&desc->input, in, first);
    int64_t j;
    if (!x) {
        for (j = 0; j < n; j++) to[j] = 0;
        return;
    }
    if (desc->activation == TEGROUP_ACTIVATION_UNSET) {
        tegroup_impl_load_row_f32(dtype, x, at, 1, n, to);
        return;
    }
    if (desc->grad_output.dtype != TEGROUP_DTYPE_UNSET) {
        tegroup_impl_quantize_gradients(desc, x,
                                        tegroup_impl_row_from(&desc->grad_output, dy, dy->first + row * dy->ld),
                                        tegroup_impl_row_scale_f32(&desc->row_scale, in->row0 + row), at, n, to);
    } else {
        const tegroup_activation_desc made = tegroup_impl_made_forward(desc);
        tegroup_impl_activation_piece_f32(&made, x, tegroup_impl_row_scale_f32(&desc->row_scale, in->row0 + row),
                                          desc->output.shape.cols, at, n, to);
    }
    for (j = 0; j < n; j++) to[j] = tegroup_impl_f32_of_code(dtype, tegroup_impl_code_of_f32(dtype, to[j]));
}

/* A tile of values, as far as its part has them: [row][column]. */
typedef struct tegroup_impl_quantize_tile {
    int64_t row, col; /* its first, in the part's rows */
    int32_t rows, cols;
    float value[TEGROUP_IMPL_QUANTIZE_TILE * TEGROUP_IMPL_QUANTIZE_TILE];
} tegroup_impl_quantize_tile;

static inline void tegroup_impl_quantize_load(const tegroup_impl_quantize_pass *pass,
                                              const tegroup_impl_quantize_group *group, int64_t row, int64_t col,
                                              tegroup_impl_quantize_tile *tile) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const tegroup_impl_block in = tegroup_impl_locate(&desc->input, &pass->view, group->g),
                             dy = tegroup_impl_locate(&desc->grad_output, &pass->view, group->g);
    int32_t r;
    tile->row = row;
    tile->col = col;
    tile->rows = (int32_t)tegroup_impl_min(TEGROUP_IMPL_QUANTIZE_TILE, group->part_rows - row);
    tile->cols = (int32_t)tegroup_impl_min(TEGROUP_IMPL_QUANTIZE_TILE, group->cols - col);
    for (r = 0; r < tile->rows; r++)
        tegroup_impl_quantize_row(desc, &in, &dy, group->part * group->part_rows + row + r, col, tile->cols,
                                  tile->value + r * TEGROUP_IMPL_QUANTIZE_TILE);
}

/* A tile as one copy has it: outer and inner in the place of rows and columns, or the other way round. */
typedef struct tegroup_impl_quantize_side {
    int64_t outer0, inner0;
    int32_t outer, inner, outer_step, inner_step, choice, span; /* choice, span: extents of a block of one amax */
} tegroup_impl_quantize_side;

static inline tegroup_impl_quantize_side tegroup_impl_quantize_side_of(const tegroup_scaling_facts *facts,
                                                                       const tegroup_impl_quantize_tile *tile,
                                                                       int columnwise) {
    tegroup_impl_quantize_side side;
    side.outer0 = columnwise ? tile->col : tile->row;
    side.inner0 = columnwise ? tile->row : tile->col;
    side.outer = columnwise ? tile->cols : tile->rows;
    side.inner = columnwise ? tile->rows : tile->cols;
    side.outer_step = columnwise ? 1 : TEGROUP_IMPL_QUANTIZE_TILE;
    side.inner_step = columnwise ? TEGROUP_IMPL_QUANTIZE_TILE : 1;
    side.choice = facts->choice_outer > 0 ? facts->choice_outer : TEGROUP_IMPL_QUANTIZE_TILE;
    side.span = facts->block_inner > 0 ? facts->block_inner : TEGROUP_IMPL_QUANTIZE_TILE;
    return side;
}

/* amax with the values of one block of a tile more. */
static inline float tegroup_impl_quantize_amax(const tegroup_scale_rule *rule, const tegroup_impl_quantize_side *side,
                                               const float *value, int32_t o, int32_t i, float amax) {
    const int32_t outer_end = (int32_t)tegroup_impl_min(side->outer, o + side->choice),
                  inner_end = (int32_t)tegroup_impl_min(side->inner, i + side->span);
    int32_t x, y;
    for (x = o; x < outer_end; x++)
        for (y = i; y < inner_end; y++)
            amax = tegroup_impl_amax(rule, amax, value[x * side->outer_step + y * side->inner_step]);
    return amax;
}

/* The codes of one block of a tile, and its scale: stored once for each block of rows that it is the scale of. That of
 * TENSOR is the group's, and stored elsewhere. */
static inline void tegroup_impl_quantize_block(const tegroup_impl_quantize_pass *pass,
                                               const tegroup_impl_quantize_group *group, int columnwise,
                                               const tegroup_impl_quantize_side *side, const float *value, int32_t o,
                                               int32_t i, float amax) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const tegroup_impl_copy *copy = &group->copies[columnwise];
    const tegroup_dtype dtype = desc->output.dtype, scale = tegroup_impl_one_scale(&desc->output, pass->facts);
    const tegroup_block_scale block =
        tegroup_impl_scale_block(&desc->rule, dtype, scale, amax, tegroup_impl_group_global(desc, group->g));
    const int32_t outer_end = (int32_t)tegroup_impl_min(side->outer, o + side->choice),
                  inner_end = (int32_t)tegroup_impl_min(side->inner, i + side->span);
    const int64_t row0 = group->part * group->part_rows;
    int32_t x, y;
    for (x = o; x < outer_end; x++)
        for (y = i; y < inner_end; y++) {
            const int64_t outer = side->outer0 + x, inner = side->inner0 + y;
            tegroup_impl_store_code(
                dtype, copy->data,
                columnwise ? tegroup_impl_element_of(copy, row0 + inner, outer)
                           : tegroup_impl_element_of(copy, row0 + outer, inner),
                tegroup_impl_scaled_code(dtype, &block, value[x * side->outer_step + y * side->inner_step]));
        }
    for (x = o; x < outer_end && !tegroup_impl_scaled_as_one(pass->facts); x += pass->facts->block_outer)
        tegroup_impl_store_code(scale, copy->scales,
                                tegroup_impl_scale_of_block(&copy->grid, group->part,
                                                            (side->outer0 + x) / copy->grid.block_outer,
                                                            (side->inner0 + i) / copy->grid.block_inner),
                                block.bits);
}

/* Zeros for what pads a part's scales beside a tile's: behind the last blocks, outer and inner. */
static inline void tegroup_impl_pad_scales(const tegroup_impl_quantize_pass *pass,
                                           const tegroup_impl_quantize_group *group, int columnwise,
                                           const tegroup_impl_quantize_side *side) {
    const tegroup_impl_copy *copy = &group->copies[columnwise];
    const tegroup_impl_scale_grid *grid = &copy->grid;
    const int64_t outer_begin = side->outer0 / grid->block_outer, inner_begin = side->inner0 / grid->block_inner;
    const int64_t outer_end =
                      tegroup_impl_blocks_end(side->outer0, grid->block_outer, grid->outer_count, grid->outer_extent),
                  inner_end =
                      tegroup_impl_blocks_end(side->inner0, grid->block_inner, grid->inner_count, grid->inner_extent);
    int64_t o, i;
    for (o = outer_begin; o < outer_end; o++)
        for (i = o < grid->outer_count ? tegroup_impl_max(inner_begin, grid->inner_count) : inner_begin; i < inner_end;
             i++)
            tegroup_impl_store_code(tegroup_impl_one_scale(pass->t, pass->facts), copy->scales,
                                    tegroup_impl_scale_of_block(grid, group->part, o, i), 0);
}

/* Zeros for what pads the rows of a transposed copy, beside its last tiles. */
static inline void tegroup_impl_pad_transposed(const tegroup_impl_quantize_pass *pass,
                                               const tegroup_impl_quantize_group *group,
                                               const tegroup_impl_quantize_tile *tile) {
    const tegroup_impl_copy *copy = &group->copies[TEGROUP_IMPL_COLUMNWISE];
    int64_t row, col;
    if (group->part * group->part_rows + tile->row + tile->rows < group->rows) return;
    for (col = tile->col; col < tile->col + tile->cols; col++)
        for (row = group->rows; row < copy->at.col_stride; row++)
            tegroup_impl_store_code(pass->t->dtype, copy->data, tegroup_impl_element_of(copy, row, col), 0);
}

/* A tile in one copy. amax: of its outer indices, or of TENSOR one; NULL: each block has its own. */
static inline void tegroup_impl_quantize_encode(const tegroup_impl_quantize_pass *pass,
                                                const tegroup_impl_quantize_group *group, int columnwise,
                                                const tegroup_impl_quantize_tile *tile, const float *amax) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const tegroup_impl_quantize_side side = tegroup_impl_quantize_side_of(pass->facts, tile, columnwise);
    int32_t o, i;
    for (o = 0; o < side.outer; o += side.choice)
        for (i = 0; i < side.inner; i += side.span)
            tegroup_impl_quantize_block(pass, group, columnwise, &side, tile->value, o, i,
                                        amax ? amax[o]
                                             : tegroup_impl_quantize_amax(&desc->rule, &side, tile->value, o, i, 0));
    tegroup_impl_pad_scales(pass, group, columnwise, &side);
    if (tegroup_impl_transposed(pass->t, columnwise)) tegroup_impl_pad_transposed(pass, group, tile);
}

/* Work: a tile in both copies. */
static inline void tegroup_impl_quantize_work(const tegroup_impl_quantize_pass *pass,
                                              const tegroup_impl_quantize_group *group, int64_t row, int64_t col) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const float amax = desc->output.amax ? desc->output.amax[group->g] : 0;
    tegroup_impl_quantize_tile tile;
    int copy;
    tegroup_impl_quantize_load(pass, group, row, col, &tile);
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++)
        if (group->copies[copy].data)
            tegroup_impl_quantize_encode(pass, group, copy, &tile,
                                         tegroup_impl_scaled_as_one(pass->facts) ? &amax : NULL);
}

/* Work for scaling ROW: all tiles of the rows, or of the columns, whose scales one copy has. */
static inline void tegroup_impl_quantize_line_work(const tegroup_impl_quantize_pass *pass,
                                                   const tegroup_impl_quantize_group *group, int64_t row, int64_t col) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const int columnwise = pass->spans_rows;
    const int64_t inner = columnwise ? group->part_rows : group->cols;
    float amax[TEGROUP_IMPL_QUANTIZE_TILE];
    tegroup_impl_quantize_tile tile;
    int64_t at;
    int32_t o, again;
    for (o = 0; o < TEGROUP_IMPL_QUANTIZE_TILE; o++) amax[o] = 0;
    for (again = 0; again < 2; again++)
        for (at = 0; at < inner; at += TEGROUP_IMPL_QUANTIZE_TILE) {
            tegroup_impl_quantize_side side;
            tegroup_impl_quantize_load(pass, group, columnwise ? at : row, columnwise ? col : at, &tile);
            side = tegroup_impl_quantize_side_of(pass->facts, &tile, columnwise);
            for (o = 0; o < side.outer && !again; o++)
                amax[o] = tegroup_impl_quantize_amax(&desc->rule, &side, tile.value, o, 0, amax[o]);
            if (again) tegroup_impl_quantize_encode(pass, group, columnwise, &tile, amax);
        }
}

/* Raises a group's amax, which several threads may do at once; a lock would be a global. Compilers that have no such
 * operations run this on one thread. */
#if defined(__GNUC__)
#define TEGROUP_IMPL_RAISES_TOGETHER 1
static inline void tegroup_impl_raise_amax(float *to, float amax) {
    tegroup_impl_any32 *const at = (tegroup_impl_any32 *)(void *)to, is = tegroup_impl_bits_of_f32(amax);
    tegroup_impl_any32 was = __atomic_load_n(at, __ATOMIC_RELAXED); /* bits of magnitudes are in their order */
    while (is > was && !__atomic_compare_exchange_n(at, &was, is, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
#else
#define TEGROUP_IMPL_RAISES_TOGETHER 0
static inline void tegroup_impl_raise_amax(float *to, float amax) {
    if (tegroup_impl_bits_of_f32(amax) > tegroup_impl_bits_of_f32(*to)) *to = amax;
}
#endif

/* Work: the largest magnitude of a tile goes to its group. */
static inline void tegroup_impl_quantize_amax_work(const tegroup_impl_quantize_pass *pass,
                                                   const tegroup_impl_quantize_group *group, int64_t row, int64_t col) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const tegroup_scaling_facts *whole = tegroup_scaling_info(TEGROUP_SCALING_TENSOR);
    tegroup_impl_quantize_tile tile;
    tegroup_impl_quantize_side side;
    float amax;
    tegroup_impl_quantize_load(pass, group, row, col, &tile);
    side = tegroup_impl_quantize_side_of(whole, &tile, 0);
    amax = tegroup_impl_quantize_amax(&desc->rule, &side, tile.value, 0, 0, 0);
    if (desc->output.amax) tegroup_impl_raise_amax(&desc->output.amax[group->g], amax);
    if (desc->output.columnwise_amax) tegroup_impl_raise_amax(&desc->output.columnwise_amax[group->g], amax);
}

/* Work: the gradient of a row's scale, for the rows of a tile and all columns. */
static inline void tegroup_impl_quantize_sum_work(const tegroup_impl_quantize_pass *pass,
                                                  const tegroup_impl_quantize_group *group, int64_t row, int64_t col) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const tegroup_activation_backward_desc made = tegroup_impl_made_backward(desc);
    const tegroup_impl_block in = tegroup_impl_locate(&desc->input, &pass->view, group->g),
                             dy = tegroup_impl_locate(&desc->grad_output, &pass->view, group->g);
    float gate[TEGROUP_IMPL_PIECE], up[TEGROUP_IMPL_PIECE];
    int64_t r, at;
    (void)col;
    for (r = row; r < tegroup_impl_min(row + TEGROUP_IMPL_QUANTIZE_TILE, group->part_rows); r++) {
        const int64_t i = group->part * group->part_rows + r;
        const void *x = tegroup_impl_row_from(&desc->input, &in, in.first + i * in.ld),
                   *grad = tegroup_impl_row_from(&desc->grad_output, &dy, dy.first + i * dy.ld);
        const float scale = tegroup_impl_row_scale_f32(&desc->row_scale, in.row0 + i);
        float sum = 0;
        for (at = 0; at < dy.cols; at += TEGROUP_IMPL_PIECE)
            sum = tegroup_impl_activation_grad_piece_f32(
                &made, x, grad, scale, dy.cols, at, tegroup_impl_min(TEGROUP_IMPL_PIECE, dy.cols - at), sum, gate, up);
        tegroup_impl_store_f32(desc->grad_row_scale.dtype, tegroup_impl_matrix_row(&desc->grad_row_scale, in.row0 + i),
                               0, sum);
    }
}

/* What is one number a group: amax of both copies begins as 0, or the scales are made of it. */
static inline void tegroup_impl_quantize_groups(const tegroup_impl_quantize_pass *pass, int made) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    tegroup_impl_before before;
    int32_t g;
    memset(&before, 0, sizeof before);
    for (g = 0; g < pass->t->shape.groups; g++) {
        const tegroup_impl_quantize_group group = tegroup_impl_quantize_group_of(pass, g, &before);
        if (made) tegroup_impl_store_group(desc, pass->facts, group.copies, g);
        if (!made && desc->output.amax) desc->output.amax[g] = 0;
        if (!made && desc->output.columnwise_amax) desc->output.columnwise_amax[g] = 0;
        tegroup_impl_pass_group(pass->t, pass->facts, tegroup_impl_sides_of(group.rows, group.cols), &before);
    }
}

static inline tegroup_impl_quantize_pass tegroup_impl_quantize_pass_of(const tegroup_tensor *t, const void *desc) {
    tegroup_impl_quantize_pass pass;
    memset(&pass, 0, sizeof pass);
    pass.t = t;
    pass.facts = tegroup_scaling_info(t->scaling);
    pass.view = tegroup_snapshot_read(tegroup_impl_ragged(&t->shape) ? t->shape.snapshot : NULL);
    pass.desc = desc;
    return pass;
}

TEGROUP_API tegroup_status tegroup_quantize(const tegroup_quantize_desc *desc, struct CUstream_st *stream,
                                            tegroup_error *error) {
    tegroup_quantize_desc taken;
    tegroup_impl_quantize_pass pass;
    int columnwise;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantize(desc, error));
#if TEGROUP_IMPL_FP8_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_quantize(desc, stream, error);
#endif
    pass = tegroup_impl_quantize_pass_of(&desc->output, desc);
    tegroup_impl_quantize_groups(&pass, 0);
    pass.work = tegroup_impl_quantize_amax_work;
    if (desc->output.amax || desc->output.columnwise_amax)
        tegroup_impl_quantize_run(&pass, TEGROUP_IMPL_RAISES_TOGETHER ? desc->threads : 1);
    tegroup_impl_quantize_groups(&pass, 1);
    pass.work = tegroup_impl_quantize_work;
    if (pass.facts->block_inner > 0 || tegroup_impl_scaled_as_one(pass.facts))
        tegroup_impl_quantize_run(&pass, desc->threads);
    else
        for (columnwise = 0; columnwise < TEGROUP_IMPL_COPIES; columnwise++) {
            pass.work = tegroup_impl_quantize_line_work;
            pass.spans_cols = !columnwise;
            pass.spans_rows = columnwise;
            if (tegroup_impl_has_copy(&desc->output, columnwise)) tegroup_impl_quantize_run(&pass, desc->threads);
        }
    pass.work = tegroup_impl_quantize_sum_work;
    pass.spans_cols = 1;
    pass.spans_rows = 0;
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) tegroup_impl_quantize_run(&pass, desc->threads);
    return TEGROUP_OK;
}

/* One value of a copy, exactly; a NaN is the one that a GPU's arithmetic gives. global: the group's global scale. */
TEGROUP_IMPL_HD double tegroup_impl_dequantized(const tegroup_tensor *t, tegroup_dtype scale_dtype,
                                                const tegroup_impl_copy *copy, float global, int64_t row, int64_t col) {
    const int columnwise = copy->grid.columnwise;
    const int64_t scale = tegroup_impl_scale_at(&copy->grid, columnwise ? col : row, columnwise ? row : col);
    const double value = tegroup_impl_load_f64(t->dtype, copy->data, tegroup_impl_element_of(copy, row, col))
                         * tegroup_impl_load_f64(scale_dtype, copy->scales, scale) * tegroup_impl_f64_of_f32(global);
    const float nan = tegroup_impl_f32_of_bits(0x7fffffffu);
    return tegroup_impl_is_nan(tegroup_impl_f32_odd_of_f64(value)) ? tegroup_impl_f64_of_f32(nan) : value;
}

/* Work: the rows of a tile, and all columns. */
static inline void tegroup_impl_dequantize_work(const tegroup_impl_quantize_pass *pass,
                                                const tegroup_impl_quantize_group *group, int64_t row, int64_t col) {
    const tegroup_dequantize_desc *desc = (const tegroup_dequantize_desc *)pass->desc;
    const tegroup_impl_block out = tegroup_impl_locate(&desc->output, &pass->view, group->g);
    const tegroup_dtype scale = tegroup_impl_one_scale(pass->t, pass->facts);
    const float global = pass->t->global_scale_inv ? pass->t->global_scale_inv[group->g] : 1.0f;
    double x[TEGROUP_IMPL_PIECE];
    int64_t r, at, j;
    for (r = row; r < tegroup_impl_min(row + TEGROUP_IMPL_QUANTIZE_TILE, group->part_rows); r++)
        for (at = col; at < group->cols; at += TEGROUP_IMPL_PIECE) {
            const int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, group->cols - at),
                          i = group->part * group->part_rows + r;
            for (j = 0; j < n; j++)
                x[j] = tegroup_impl_dequantized(pass->t, scale, &group->copies[desc->columnwise], global, i, at + j);
            tegroup_impl_store_row_f64(desc->output.dtype, out.base, out.first + i * out.ld + at, 1, n, x);
        }
}

TEGROUP_API tegroup_status tegroup_dequantize(const tegroup_dequantize_desc *desc, struct CUstream_st *stream,
                                              tegroup_error *error) {
    tegroup_dequantize_desc taken;
    tegroup_impl_quantize_pass pass;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_dequantize(desc, error));
#if TEGROUP_IMPL_FP8_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_dequantize(desc, stream, error);
#endif
    pass = tegroup_impl_quantize_pass_of(&desc->input, desc);
    pass.work = tegroup_impl_dequantize_work;
    pass.spans_cols = 1;
    tegroup_impl_quantize_run(&pass, desc->threads);
    return TEGROUP_OK;
}

/* ==== [69] Grouped linear layer (src/layer/linear.h) ==== */

/* The tensors of a layer, by name. */
/* clang-format off */
#define TEGROUP_IMPL_LINEAR_TENSORS(X)                                                                                 \
    X(WEIGHT, weight) X(BIAS, bias) X(INPUT, input) X(OUT, out) X(GRAD_OUTPUT, grad_output) X(DGRAD_OUT, dgrad_out)    \
    X(MAIN_GRAD, main_grad) X(BIAS_GRAD, bias_grad) X(GRAD_ROW_SCALE, grad_row_scale)
/* clang-format on */

#define TEGROUP_IMPL_ENUMERATE(name, member) TEGROUP_IMPL_LINEAR_##name,
typedef enum tegroup_impl_linear_tensor {
    TEGROUP_IMPL_LINEAR_NONE,
    TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_ENUMERATE) TEGROUP_IMPL_LINEAR_COUNT
} tegroup_impl_linear_tensor;
#undef TEGROUP_IMPL_ENUMERATE

/* The products of a layer: those that are a tegroup_op by its number, then row_scale's gradient. That is a forward
 * product with dY for X and each expert's bias for a weight of one row. */
enum { TEGROUP_IMPL_LINEAR_ROW_SCALE = TEGROUP_OP_WGRAD + 1, TEGROUP_IMPL_LINEAR_PRODUCTS };

/* Which tensor is a, b, c, d and bias of a product. */
static inline int tegroup_impl_linear_role(int product, int operand) {
#define TEGROUP_IMPL_ROLES(a, b, d, bias)                                                                              \
    {                                                                                                                  \
        TEGROUP_IMPL_LINEAR_##a, TEGROUP_IMPL_LINEAR_##b, TEGROUP_IMPL_LINEAR_NONE, TEGROUP_IMPL_LINEAR_##d,           \
            TEGROUP_IMPL_LINEAR_##bias                                                                                 \
    }
    static const tegroup_impl_linear_tensor roles[TEGROUP_IMPL_LINEAR_PRODUCTS][TEGROUP_IMPL_OPERANDS] = {
        TEGROUP_IMPL_ROLES(NONE, NONE, NONE, NONE), TEGROUP_IMPL_ROLES(INPUT, WEIGHT, OUT, BIAS),
        TEGROUP_IMPL_ROLES(GRAD_OUTPUT, WEIGHT, DGRAD_OUT, NONE),
        TEGROUP_IMPL_ROLES(GRAD_OUTPUT, INPUT, MAIN_GRAD, BIAS_GRAD),
        TEGROUP_IMPL_ROLES(GRAD_OUTPUT, BIAS, GRAD_ROW_SCALE, NONE)};
#undef TEGROUP_IMPL_ROLES
    return (int)roles[product][operand];
}

/* One linear layer by reference: the caller's own, one of an MLP's two, or an op of a chain. A tensor that is not there
 * is NULL, or has no dtype. Errors call the tensors by these names. */
typedef struct tegroup_impl_layer {
    const tegroup_tensor *tensor[TEGROUP_IMPL_LINEAR_COUNT];
    const tegroup_impl_name *name[TEGROUP_IMPL_LINEAR_COUNT];
    tegroup_space space;
    const void *row_scale;
    tegroup_dtype row_scale_dtype;
    int32_t accumulate;
    tegroup_tail out_tail, dgrad_out_tail;
    tegroup_weight_layout weight_layout;
    const char *weight_layout_name;
    const tegroup_options *options;
    int32_t halves; /* 1: out and grad_output are halves of wider rows */
} tegroup_impl_layer;

static inline int tegroup_impl_layer_has(const tegroup_impl_layer *layer, int tensor) {
    return layer->tensor[tensor] && layer->tensor[tensor]->dtype != TEGROUP_DTYPE_UNSET;
}

/* Columns of Y and of X. */
static inline int64_t tegroup_impl_weight_out(const tegroup_tensor *weight, tegroup_weight_layout layout) {
    return layout == TEGROUP_WEIGHT_IN_OUT ? weight->shape.cols : weight->shape.rows;
}
static inline int64_t tegroup_impl_weight_in(const tegroup_tensor *weight, tegroup_weight_layout layout) {
    return layout == TEGROUP_WEIGHT_IN_OUT ? weight->shape.rows : weight->shape.cols;
}

/* The op that computes a product. Of transposed weights, forward multiplies as a DGRAD does, and dgrad as a FORWARD. */
static inline tegroup_op tegroup_impl_layer_op(const tegroup_impl_layer *layer, int product) {
    if (product == TEGROUP_IMPL_LINEAR_ROW_SCALE) return TEGROUP_OP_FORWARD;
    if (layer->weight_layout == TEGROUP_WEIGHT_OUT_IN || product == TEGROUP_OP_WGRAD) return (tegroup_op)product;
    return product == TEGROUP_OP_FORWARD ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD;
}

/* Which tensor is an operand of a product. The gradient of transposed weights is X^T dY. */
static inline int tegroup_impl_layer_role(const tegroup_impl_layer *layer, int product, int operand) {
    const int swaps = layer->weight_layout == TEGROUP_WEIGHT_IN_OUT && product == TEGROUP_OP_WGRAD;
    if (swaps && operand == TEGROUP_IMPL_A) return TEGROUP_IMPL_LINEAR_INPUT;
    if (swaps && operand == TEGROUP_IMPL_B) return TEGROUP_IMPL_LINEAR_GRAD_OUTPUT;
    return tegroup_impl_linear_role(product, operand);
}

/* The tensor whose presence asks for a product. */
static inline int tegroup_impl_layer_output(int product) { return tegroup_impl_linear_role(product, TEGROUP_IMPL_D); }

/* The names by which errors call a product's operands. */
static inline tegroup_impl_names tegroup_impl_layer_names(const tegroup_impl_layer *layer, int product) {
    tegroup_impl_names names = *tegroup_impl_gemm_names();
    int operand;
    for (operand = 0; operand < TEGROUP_IMPL_OPERANDS; operand++) {
        const int tensor = tegroup_impl_layer_role(layer, product, operand);
        if (tensor != TEGROUP_IMPL_LINEAR_NONE) names.operand[operand] = layer->name[tensor];
    }
    names.tail = product == TEGROUP_OP_DGRAD ? "dgrad_out_tail" : "out_tail";
    return names;
}

static inline int tegroup_impl_layer_halved(const tegroup_impl_layer *layer, int tensor) {
    return layer->halves && (tensor == TEGROUP_IMPL_LINEAR_OUT || tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT);
}

/* The alignment of data of which the second half of a row begins `cols` elements behind the first. */
static inline int32_t tegroup_impl_half_alignment(const tegroup_tensor *half, int32_t alignment) {
    const int64_t bytes = tegroup_impl_mul(half->shape.cols, tegroup_impl_bits(half->dtype)) / 8,
                  most = alignment > 0 ? alignment : 16;
    int64_t each = 1;
    if (alignment < 0 || (alignment & (alignment - 1)) != 0) return alignment; /* which the product refuses */
    while (each < most && bytes % (2 * each) == 0) each *= 2;
    return each < most ? (int32_t)each : alignment;
}

/* A product as tegroup_gemm takes it. */
static inline void tegroup_impl_layer_product(const tegroup_impl_layer *layer, int product, tegroup_gemm_desc *gemm) {
    tegroup_tensor *const operands[TEGROUP_IMPL_OPERANDS] = {&gemm->a, &gemm->b, &gemm->c, &gemm->d, &gemm->bias};
    int operand, is_op = product != TEGROUP_IMPL_LINEAR_ROW_SCALE;
    memset(gemm, 0, sizeof *gemm);
    gemm->struct_size = sizeof *gemm;
    gemm->op = tegroup_impl_layer_op(layer, product);
    gemm->space = layer->space;
    for (operand = 0; operand < TEGROUP_IMPL_OPERANDS; operand++) {
        const int tensor = tegroup_impl_layer_role(layer, product, operand);
        if (tensor != TEGROUP_IMPL_LINEAR_NONE && layer->tensor[tensor]) *operands[operand] = *layer->tensor[tensor];
    }
    if (gemm->bias.dtype != TEGROUP_DTYPE_UNSET) {
        gemm->row_scale = layer->row_scale;
        gemm->row_scale_dtype = layer->row_scale_dtype;
        gemm->bias_of_b = product == TEGROUP_OP_WGRAD && layer->weight_layout == TEGROUP_WEIGHT_IN_OUT;
    }
    if (product == TEGROUP_OP_WGRAD) gemm->accumulate = layer->accumulate;
    if (product == TEGROUP_OP_FORWARD) gemm->tail = layer->out_tail;
    if (product == TEGROUP_OP_DGRAD) gemm->tail = layer->dgrad_out_tail;
    gemm->options = *layer->options;
    for (operand = 0; operand < TEGROUP_IMPL_OPERANDS; operand++)
        if (tegroup_impl_layer_halved(layer, tegroup_impl_layer_role(layer, product, operand)))
            gemm->options.data_alignment_bytes =
                tegroup_impl_half_alignment(operands[operand], gemm->options.data_alignment_bytes);
    if (!is_op)
        gemm->options.backend = TEGROUP_BACKEND_AUTO; /* nor is the choice, or the word, about rows of one column */
    if (!is_op) gemm->options.data_alignment_bytes = 0;
}

/* The tensors whose rows are those of the routing. */
static inline int tegroup_impl_layer_has_rows(int tensor) {
    return tensor == TEGROUP_IMPL_LINEAR_INPUT || tensor == TEGROUP_IMPL_LINEAR_OUT
           || tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT || tensor == TEGROUP_IMPL_LINEAR_DGRAD_OUT
           || tensor == TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE;
}

/* The tensor that the others have their rows from. */
static inline int tegroup_impl_layer_rows_of(const tegroup_impl_layer *layer) {
    return tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_INPUT) ? TEGROUP_IMPL_LINEAR_INPUT
                                                                    : TEGROUP_IMPL_LINEAR_GRAD_OUTPUT;
}

/* What a layer asks of a tensor's memory: one snapshot for the routing, and outputs without gaps. */
static inline tegroup_status tegroup_impl_layer_check_memory(const tegroup_impl_layer *layer, int tensor,
                                                             tegroup_error *error) {
    const tegroup_impl_name *name = layer->name[tensor];
    const tegroup_tensor *t = layer->tensor[tensor];
    const tegroup_shape *shape = &t->shape;
    const int rows_of = tegroup_impl_layer_rows_of(layer), has_rows = tegroup_impl_layer_has_rows(tensor);
    if (has_rows) {
        const void *snapshot = layer->tensor[rows_of]->shape.snapshot;
        TEGROUP_IMPL_RULE(shape->snapshot == snapshot || !shape->snapshot || !snapshot, ERROR_COMBINATION,
                          TEGROUP_IMPL_PATH(SNAPSHOT),
                          rows_of == TEGROUP_IMPL_LINEAR_INPUT
                              ? "must be input.shape.snapshot, one for the routing"
                              : "must be grad_output.shape.snapshot, one for the routing",
                          0, 1);
    }
    if (tensor == TEGROUP_IMPL_LINEAR_WEIGHT || tensor == TEGROUP_IMPL_LINEAR_BIAS
        || tensor == TEGROUP_IMPL_LINEAR_INPUT || tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT
        || tegroup_impl_layer_halved(layer, tensor))
        return TEGROUP_OK;
    TEGROUP_IMPL_RULE(tegroup_impl_ld(t) == shape->cols, ERROR_LAYOUT, TEGROUP_IMPL_PATH(LD),
                      "must be 0 or shape.cols: outputs are contiguous", shape->cols, t->ld);
    TEGROUP_IMPL_RULE(has_rows || tegroup_impl_group_stride(t) == shape->rows * shape->cols, ERROR_LAYOUT,
                      TEGROUP_IMPL_PATH(GROUP_STRIDE), "must be 0 or shape.rows * shape.cols: outputs are contiguous",
                      shape->rows * shape->cols, t->group_stride);
    return TEGROUP_OK;
}

/* One tensor by itself and against the weight, which says what groups, n and k are. */
static inline tegroup_status tegroup_impl_layer_check_tensor(const tegroup_impl_layer *layer, int tensor,
                                                             tegroup_error *error) {
    const tegroup_impl_name *name = layer->name[tensor], *weight_name = layer->name[TEGROUP_IMPL_LINEAR_WEIGHT];
    const tegroup_tensor *t = layer->tensor[tensor], *weight = layer->tensor[TEGROUP_IMPL_LINEAR_WEIGHT];
    const tegroup_shape *shape = &t->shape;
    const int is_weight = tensor == TEGROUP_IMPL_LINEAR_WEIGHT || tensor == TEGROUP_IMPL_LINEAR_MAIN_GRAD,
              has_k = tensor == TEGROUP_IMPL_LINEAR_INPUT || tensor == TEGROUP_IMPL_LINEAR_DGRAD_OUT,
              like_cols = is_weight || has_k == (layer->weight_layout == TEGROUP_WEIGHT_OUT_IN);
    const int64_t cols = like_cols ? weight->shape.cols : weight->shape.rows;
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(t, name, error));
    TEGROUP_IMPL_RULE_AS(SCALING, t->scaling == TEGROUP_SCALING_NONE, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALING),
                         "must be none: layers do not take quantised tensors, products do", TEGROUP_SCALING_NONE,
                         t->scaling);
    TEGROUP_IMPL_RULE(shape->groups == weight->shape.groups, ERROR_SHAPE, TEGROUP_IMPL_PATH(GROUPS),
                      weight_name->groups, weight->shape.groups, shape->groups);
    TEGROUP_IMPL_RULE(shape->col_sizes.encoding == TEGROUP_ENCODING_UNSET, ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_PATH(COL_SIZES), "must be unset: a layer's groups have one n and one k", 0,
                      shape->col_sizes.encoding);
    TEGROUP_IMPL_RULE(shape->elements == 0, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(ELEMENTS),
                      "must be 0: a layer's groups have one n and one k", 0, shape->elements);
    if (tegroup_impl_layer_has_rows(tensor)) {
        TEGROUP_IMPL_RULE(tegroup_impl_ragged(shape), ERROR_UNSET, TEGROUP_IMPL_PATH(ROW_SIZES),
                          "must be set: a layer's rows are ragged", TEGROUP_ENCODING_COUNTS, 0);
        TEGROUP_IMPL_RULE(!tegroup_impl_listed(t), ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(POINTERS_SPACE),
                          "must be unset: a layer's rows are one buffer", 0, t->pointers_space);
    } else {
        TEGROUP_IMPL_RULE(!tegroup_impl_ragged(shape), ERROR_COMBINATION, TEGROUP_IMPL_PATH(ROW_SIZES),
                          "must be unset: every group is alike", 0, shape->row_sizes.encoding);
        TEGROUP_IMPL_RULE(!is_weight || shape->rows == weight->shape.rows, ERROR_SHAPE, TEGROUP_IMPL_PATH(ROWS),
                          weight_name->rows, weight->shape.rows, shape->rows);
        TEGROUP_IMPL_RULE(is_weight || shape->rows == 1, ERROR_SHAPE, TEGROUP_IMPL_PATH(ROWS), "must be 1", 1,
                          shape->rows);
    }
    if (tensor == TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE)
        TEGROUP_IMPL_RULE(shape->cols == 1, ERROR_SHAPE, TEGROUP_IMPL_PATH(COLS), "must be 1", 1, shape->cols);
    else
        TEGROUP_IMPL_RULE(shape->cols == cols, ERROR_SHAPE, TEGROUP_IMPL_PATH(COLS),
                          like_cols ? weight_name->cols : weight_name->rows, cols, shape->cols);
    if (tensor == TEGROUP_IMPL_LINEAR_INPUT || tensor == TEGROUP_IMPL_LINEAR_GRAD_OUTPUT)
        TEGROUP_IMPL_RULE_AS(DTYPE, tegroup_impl_goes_with(t->dtype, weight->dtype), ERROR_DTYPE,
                             TEGROUP_IMPL_PATH(DTYPE), weight_name->dtype, weight->dtype, t->dtype);
    return tegroup_impl_layer_check_memory(layer, tensor, error);
}

/* The rules between the layer's tensors. The rules of a product are checked with the product. */
static inline tegroup_status tegroup_impl_layer_check(const tegroup_impl_layer *layer, tegroup_error *error) {
    int tensor;
    TEGROUP_IMPL_RULE_ENUM(layer->weight_layout, TEGROUP_WEIGHT_IN_OUT, layer->weight_layout_name,
                           "must be a tegroup_weight_layout");
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        if (tensor == TEGROUP_IMPL_LINEAR_WEIGHT || tegroup_impl_layer_has(layer, tensor))
            TEGROUP_IMPL_TRY(tegroup_impl_layer_check_tensor(layer, tensor, error));
    return TEGROUP_OK;
}

/* The product that gives grad_row_scale has dY and the bias for operands. */
static inline tegroup_status tegroup_impl_layer_check_bias_type(const tegroup_impl_layer *layer, tegroup_error *error) {
    const tegroup_dtype bias = layer->tensor[TEGROUP_IMPL_LINEAR_BIAS]->dtype,
                        grad_output = layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT]->dtype;
    TEGROUP_IMPL_RULE(tegroup_impl_goes_with(grad_output, bias), ERROR_UNSUPPORTED, "grad_row_scale",
                      "needs a bias of a dtype that weights have beside grad_output.dtype, to multiply them",
                      grad_output, bias);
    return TEGROUP_OK;
}

static inline const tegroup_plan *tegroup_impl_linear_made(const tegroup_linear_plan *plan, int product) {
    switch (product) {
    case TEGROUP_OP_FORWARD: return &plan->forward;
    case TEGROUP_OP_DGRAD: return &plan->dgrad;
    case TEGROUP_OP_WGRAD: return &plan->wgrad;
    default: return &plan->grad_row_scale;
    }
}

/* Plan one product into a plan that is being made. adds: the result is added to what is there already. */
static inline tegroup_status tegroup_impl_layer_plan(const tegroup_impl_layer *layer, int product, int adds,
                                                     const tegroup_target *target, tegroup_linear_plan *plan,
                                                     tegroup_error *error) {
    const tegroup_impl_names names = tegroup_impl_layer_names(layer, product);
    tegroup_plan *one = (tegroup_plan *)(uintptr_t)tegroup_impl_linear_made(plan, product);
    tegroup_gemm_desc gemm;
    tegroup_impl_layer_product(layer, product, &gemm);
    if (adds) gemm.accumulate = 1;
    plan->struct_size = sizeof *plan;
    plan->magic = TEGROUP_LINEAR_PLAN_MAGIC;
    plan->weight_layout = layer->weight_layout;
    TEGROUP_IMPL_TRY(tegroup_impl_plan_make(&gemm, &names, target, one, error));
    if (one->workspace_bytes > plan->workspace_bytes) plan->workspace_bytes = one->workspace_bytes;
    return TEGROUP_OK;
}

/* A product of a call: described, and everything about it checked. apart: what it writes, too; else the call sees to
 * that. */
static inline tegroup_status tegroup_impl_layer_check_product(const tegroup_impl_layer *layer, int product, int adds,
                                                              int apart, const tegroup_linear_plan *plan,
                                                              tegroup_gemm_desc *gemm, tegroup_error *error) {
    const tegroup_impl_names names = tegroup_impl_layer_names(layer, product);
    const tegroup_plan *one = tegroup_impl_linear_made(plan, product);
    const tegroup_impl_name *name = layer->name[tegroup_impl_layer_output(product)];
    int operand;
    TEGROUP_IMPL_RULE_AS(DTYPE, tegroup_impl_layer_has(layer, tegroup_impl_layer_output(product)), ERROR_UNSET,
                         TEGROUP_IMPL_PATH(DTYPE), "must be set: it is what this call writes", TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE(one->magic == TEGROUP_PLAN_MAGIC, ERROR_PLAN, TEGROUP_IMPL_PATH(DTYPE),
                      "must have been set when the plan was made", 0,
                      layer->tensor[tegroup_impl_layer_output(product)]->dtype);
    TEGROUP_IMPL_RULE(plan->weight_layout == layer->weight_layout, ERROR_PLAN, layer->weight_layout_name,
                      "must be as planned", plan->weight_layout, layer->weight_layout);
    tegroup_impl_layer_product(layer, product, gemm);
    if (adds) gemm->accumulate = 1;
    for (operand = 0; operand < TEGROUP_IMPL_OPERANDS; operand++) {
        const int tensor = tegroup_impl_layer_role(layer, product, operand);
        if (tensor != TEGROUP_IMPL_LINEAR_NONE && tegroup_impl_layer_has(layer, tensor))
            TEGROUP_IMPL_TRY(tegroup_impl_layer_check_memory(layer, tensor, error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check(one, gemm, &names, error));
    return apart ? tegroup_impl_check_overlaps(one, gemm, &names, error) : TEGROUP_OK;
}

/* Forward and wgrad are one product each. run 0: only what the call checks. */
static inline tegroup_status tegroup_impl_layer_call(const tegroup_impl_layer *layer, const tegroup_linear_plan *plan,
                                                     tegroup_op op, int run, struct CUstream_st *stream,
                                                     tegroup_error *error) {
    tegroup_gemm_desc gemm;
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check_product(layer, (int)op, 0, 1, plan, &gemm, error));
    return run ? tegroup_impl_gemm_run(tegroup_impl_linear_made(plan, (int)op), &gemm, stream, error) : TEGROUP_OK;
}

/* The products of dgrad are apart from their own operands; neither may write what the other touches. */
static inline tegroup_status tegroup_impl_layer_check_dgrad_apart(const tegroup_impl_layer *layer,
                                                                  size_t workspace_bytes, tegroup_error *error) {
    static const int tensors[] = {TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE, TEGROUP_IMPL_LINEAR_DGRAD_OUT,
                                  TEGROUP_IMPL_LINEAR_BIAS, TEGROUP_IMPL_LINEAR_WEIGHT};
    tegroup_impl_buffer buffers[5];
    int i;
    buffers[0] = tegroup_impl_workspace_buffer(layer->options, workspace_bytes);
    for (i = 0; i < 4; i++)
        buffers[i + 1] = tegroup_impl_tensor_buffer(layer->tensor[tensors[i]], layer->name[tensors[i]], i < 2);
    return tegroup_impl_check_apart(buffers, 5, layer->options->check_level, NULL, error);
}

/* Two products when row_scale has a gradient; both are checked before the first runs. */
static inline tegroup_status tegroup_impl_layer_dgrad(const tegroup_impl_layer *layer, const tegroup_linear_plan *plan,
                                                      int run, struct CUstream_st *stream, tegroup_error *error) {
    const int second = TEGROUP_IMPL_LINEAR_ROW_SCALE,
              wants_scale = tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE);
    tegroup_gemm_desc gemm, other;
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check_product(layer, TEGROUP_OP_DGRAD, 0, 1, plan, &gemm, error));
    TEGROUP_IMPL_RULE((plan->grad_row_scale.magic != 0) == wants_scale, ERROR_PLAN, "grad_row_scale.dtype",
                      "must be set just when planned so", plan->grad_row_scale.problem.d,
                      wants_scale ? layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE]->dtype : 0);
    if (wants_scale) {
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_product(layer, second, 0, 1, plan, &other, error));
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_dgrad_apart(layer, plan->dgrad.workspace_bytes, error));
    }
    if (!run) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_run(&plan->dgrad, &gemm, stream, error));
    return wants_scale ? tegroup_impl_gemm_run(&plan->grad_row_scale, &other, stream, error) : TEGROUP_OK;
}

static inline const tegroup_impl_name *tegroup_impl_linear_name(int tensor) {
#define TEGROUP_IMPL_ROW(name, member) TEGROUP_IMPL_NAME(#member),
    static const tegroup_impl_name names[] = {TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_ROW)};
#undef TEGROUP_IMPL_ROW
    return &names[tensor - 1];
}

/* The caller's descriptor as a layer. */
static inline void tegroup_impl_linear_layer(const tegroup_linear_desc *desc, tegroup_impl_layer *layer) {
    int tensor;
    memset(layer, 0, sizeof *layer);
#define TEGROUP_IMPL_POINT(name, member) layer->tensor[TEGROUP_IMPL_LINEAR_##name] = &desc->member;
    TEGROUP_IMPL_LINEAR_TENSORS(TEGROUP_IMPL_POINT)
#undef TEGROUP_IMPL_POINT
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        layer->name[tensor] = tegroup_impl_linear_name(tensor);
    layer->space = desc->space;
    layer->row_scale = desc->row_scale;
    layer->row_scale_dtype = desc->row_scale_dtype;
    layer->accumulate = desc->accumulate;
    layer->out_tail = desc->out_tail;
    layer->dgrad_out_tail = desc->dgrad_out_tail;
    layer->weight_layout = desc->weight_layout;
    layer->weight_layout_name = "weight_layout";
    layer->options = &desc->options;
}

#define TEGROUP_IMPL_THERE(member) (desc->member.dtype != TEGROUP_DTYPE_UNSET)

/* Which tensors are there, and for which others. */
static inline tegroup_status tegroup_impl_linear_check_there(const tegroup_linear_desc *desc,
                                                             const tegroup_impl_layer *layer, tegroup_error *error) {
    int tensor;
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        if (!tegroup_impl_layer_has(layer, tensor))
            TEGROUP_IMPL_TRY(
                tegroup_impl_check_absent(layer->tensor[tensor], layer->name[tensor], TEGROUP_DTYPE_F64, error));
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         TEGROUP_IMPL_THERE(out) || TEGROUP_IMPL_THERE(dgrad_out) || TEGROUP_IMPL_THERE(main_grad),
                         ERROR_UNSET, "out.dtype", "must be set, or dgrad_out's, or main_grad's", TEGROUP_DTYPE_F64, 0);
#define TEGROUP_IMPL_NEEDS(member, other)                                                                              \
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(member) || TEGROUP_IMPL_THERE(other), ERROR_COMBINATION, #member,            \
                      "needs " #other, 1, 0)
    TEGROUP_IMPL_NEEDS(out, input);
    TEGROUP_IMPL_NEEDS(dgrad_out, grad_output);
    TEGROUP_IMPL_NEEDS(main_grad, input);
    TEGROUP_IMPL_NEEDS(main_grad, grad_output);
    TEGROUP_IMPL_NEEDS(bias_grad, main_grad);
    TEGROUP_IMPL_NEEDS(bias_grad, bias);
    TEGROUP_IMPL_NEEDS(grad_row_scale, dgrad_out);
    TEGROUP_IMPL_NEEDS(grad_row_scale, bias);
#undef TEGROUP_IMPL_NEEDS
    TEGROUP_IMPL_RULE_ENUM(desc->out_tail, TEGROUP_TAIL_POISON, "out_tail", "must be a tegroup_tail");
    TEGROUP_IMPL_RULE_ENUM(desc->dgrad_out_tail, TEGROUP_TAIL_POISON, "dgrad_out_tail", "must be a tegroup_tail");
    TEGROUP_IMPL_TRY(tegroup_impl_check_real(desc->row_scale_dtype, "row_scale_dtype", error));
    TEGROUP_IMPL_RULE_AS(DTYPE, !desc->row_scale || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET,
                         "row_scale_dtype", "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    TEGROUP_IMPL_RULE(desc->row_scale_dtype == TEGROUP_DTYPE_UNSET || TEGROUP_IMPL_THERE(bias), ERROR_COMBINATION,
                      "row_scale_dtype", "needs bias", 0, desc->row_scale_dtype);
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(grad_row_scale) || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET,
                      ERROR_COMBINATION, "grad_row_scale", "needs row_scale", 1, 0);
    TEGROUP_IMPL_RULE(!desc->accumulate || TEGROUP_IMPL_THERE(main_grad), ERROR_COMBINATION, "accumulate",
                      "needs main_grad", 0, desc->accumulate);
    TEGROUP_IMPL_RULE(desc->out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(out), ERROR_COMBINATION, "out_tail",
                      "needs out", 0, desc->out_tail);
    TEGROUP_IMPL_RULE(desc->dgrad_out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(dgrad_out), ERROR_COMBINATION,
                      "dgrad_out_tail", "needs dgrad_out", 0, desc->dgrad_out_tail);
    return TEGROUP_OK;
}

/* The layer's own rules. */
static inline tegroup_status tegroup_impl_linear_check(const tegroup_linear_desc *desc, tegroup_impl_layer *layer,
                                                       tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    tegroup_impl_linear_layer(desc, layer);
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check_there(desc, layer, error));
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check(layer, error));
    return TEGROUP_IMPL_THERE(grad_row_scale) ? tegroup_impl_layer_check_bias_type(layer, error) : TEGROUP_OK;
}
#undef TEGROUP_IMPL_THERE

TEGROUP_API tegroup_status tegroup_linear_gemm(const tegroup_linear_desc *desc, tegroup_op op, tegroup_gemm_desc *gemm,
                                               tegroup_error *error) {
    tegroup_linear_desc taken;
    tegroup_impl_layer layer;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check(desc, &layer, error));
    TEGROUP_IMPL_RULE(op != TEGROUP_OP_UNSET, ERROR_UNSET, "op", "must be set", TEGROUP_OP_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(op, TEGROUP_OP_WGRAD, "op", "must be a tegroup_op");
    TEGROUP_IMPL_RULE(gemm != NULL, ERROR_NULL_ARGUMENT, "gemm", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, tegroup_impl_layer_has(&layer, tegroup_impl_layer_output((int)op)), ERROR_UNSET,
                         layer.name[tegroup_impl_layer_output((int)op)]->members[TEGROUP_IMPL_MEMBER_DTYPE],
                         "must be set: it is what this call writes", TEGROUP_DTYPE_F64, 0);
    tegroup_impl_layer_product(&layer, (int)op, gemm);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_linear_plan_make(const tegroup_linear_desc *desc, const tegroup_target *target,
                                                    tegroup_linear_plan *plan, tegroup_error *error) {
    tegroup_linear_desc taken;
    tegroup_linear_plan made;
    tegroup_impl_layer layer;
    int product;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_linear_check(desc, &layer, error));
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    memset(&made, 0, sizeof made);
    for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++)
        if (tegroup_impl_layer_has(&layer, tegroup_impl_layer_output(product)))
            TEGROUP_IMPL_TRY(tegroup_impl_layer_plan(&layer, product, 0, target, &made, error));
    *plan = made;
    return TEGROUP_OK;
}

/* A call: its layer points into the descriptor that it took. */
typedef struct tegroup_impl_linear_call {
    tegroup_linear_desc taken;
    tegroup_impl_layer layer;
} tegroup_impl_linear_call;

/* What a call checks before its product checks itself. Tensors that the call does not use are not looked at. */
static inline tegroup_status tegroup_impl_linear_begin(tegroup_impl_linear_call *call, const tegroup_linear_plan *plan,
                                                       const tegroup_linear_desc *desc, tegroup_error *error) {
    TEGROUP_IMPL_RULE_PLAN(plan, TEGROUP_LINEAR_PLAN_MAGIC, "must be what tegroup_linear_plan_make wrote");
    TEGROUP_IMPL_TAKE(desc, call->taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    tegroup_impl_linear_layer(desc, &call->layer);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_linear_forward(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                  struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_linear_call call;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_begin(&call, plan, desc, error));
    return tegroup_impl_layer_call(&call.layer, plan, TEGROUP_OP_FORWARD, 1, stream, error);
}

TEGROUP_API tegroup_status tegroup_linear_dgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_linear_call call;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_begin(&call, plan, desc, error));
    return tegroup_impl_layer_dgrad(&call.layer, plan, 1, stream, error);
}

TEGROUP_API tegroup_status tegroup_linear_wgrad(const tegroup_linear_plan *plan, const tegroup_linear_desc *desc,
                                                struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_linear_call call;
    TEGROUP_IMPL_TRY(tegroup_impl_linear_begin(&call, plan, desc, error));
    return tegroup_impl_layer_call(&call.layer, plan, TEGROUP_OP_WGRAD, 1, stream, error);
}

/* ==== [70] Grouped MLP: tensors and rules (src/layer/mlp_rules.h) ==== */

/* Its tensors, by name: weights, then what has the routing's rows, of which the last three are what is saved. */
/* clang-format off */
#define TEGROUP_IMPL_MLP_TENSORS(X)                                                                                    \
    X(FC1_WEIGHT, fc1.weight) X(FC1_BIAS, fc1.bias) X(FC1_MAIN_GRAD, fc1.main_grad) X(FC1_BIAS_GRAD, fc1.bias_grad)    \
    X(FC2_WEIGHT, fc2.weight) X(FC2_BIAS, fc2.bias) X(FC2_MAIN_GRAD, fc2.main_grad) X(FC2_BIAS_GRAD, fc2.bias_grad)    \
    X(FC1_UP_WEIGHT, fc1_up.weight) X(FC1_UP_BIAS, fc1_up.bias) X(FC1_UP_MAIN_GRAD, fc1_up.main_grad)                  \
    X(FC1_UP_BIAS_GRAD, fc1_up.bias_grad)                                                                              \
    X(INPUT, input) X(OUT, out) X(GRAD_OUTPUT, grad_output) X(DGRAD_OUT, dgrad_out)                                    \
    X(GRAD_ROW_SCALE, grad_row_scale) X(PREACTIVATION, preactivation) X(ACTIVATED, activated)                          \
    X(GRAD_PREACTIVATION, grad_preactivation)
/* clang-format on */

#define TEGROUP_IMPL_ENUMERATE(name, member) TEGROUP_IMPL_MLP_##name,
typedef enum tegroup_impl_mlp_tensor {
    TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_ENUMERATE) TEGROUP_IMPL_MLP_ROW_SCALE, /* no tensor, but memory like one */
    TEGROUP_IMPL_MLP_COUNT
} tegroup_impl_mlp_tensor;
#undef TEGROUP_IMPL_ENUMERATE
enum {
    TEGROUP_IMPL_MLP_DTYPES_FIT =
        1 / (TEGROUP_IMPL_MLP_COUNT == sizeof(((tegroup_mlp_planned *)0)->dtypes) / sizeof(tegroup_dtype))
};

static inline const tegroup_tensor *tegroup_impl_mlp_at(const tegroup_mlp_desc *desc, int tensor) {
#define TEGROUP_IMPL_CASE(name, member)                                                                                \
    case TEGROUP_IMPL_MLP_##name: return &desc->member;
    switch (tensor) { TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_CASE) default : return NULL; }
#undef TEGROUP_IMPL_CASE
}

static inline tegroup_dtype tegroup_impl_mlp_dtype(const tegroup_mlp_desc *desc, int tensor) {
    return tensor == TEGROUP_IMPL_MLP_ROW_SCALE ? desc->row_scale_dtype : tegroup_impl_mlp_at(desc, tensor)->dtype;
}

static inline const tegroup_impl_name *tegroup_impl_mlp_name(int tensor) {
#define TEGROUP_IMPL_ROW(name, member) TEGROUP_IMPL_NAME(#member),
    static const tegroup_impl_name names[TEGROUP_IMPL_MLP_COUNT] = {TEGROUP_IMPL_MLP_TENSORS(TEGROUP_IMPL_ROW)
                                                                        TEGROUP_IMPL_NAME("row_scale")};
#undef TEGROUP_IMPL_ROW
    return &names[tensor];
}
static inline const char *tegroup_impl_mlp_path(int tensor, int member) {
    return tegroup_impl_mlp_name(tensor)->members[member];
}

/* What a linear layer's tensor is here. The gradient of activated, fc2's dgrad_out, goes by the name of what it is
 * shaped as. */
static inline int tegroup_impl_mlp_role(tegroup_mlp_layer layer, int tensor) {
#define TEGROUP_IMPL_WORD(name) TEGROUP_IMPL_MLP_##name
    static const int roles[3][TEGROUP_IMPL_LINEAR_COUNT] = {
        {-1, TEGROUP_IMPL_WORD(FC1_WEIGHT), TEGROUP_IMPL_WORD(FC1_BIAS), TEGROUP_IMPL_WORD(INPUT),
         TEGROUP_IMPL_WORD(PREACTIVATION), TEGROUP_IMPL_WORD(GRAD_PREACTIVATION), TEGROUP_IMPL_WORD(DGRAD_OUT),
         TEGROUP_IMPL_WORD(FC1_MAIN_GRAD), TEGROUP_IMPL_WORD(FC1_BIAS_GRAD), -1},
        {-1, TEGROUP_IMPL_WORD(FC2_WEIGHT), TEGROUP_IMPL_WORD(FC2_BIAS), TEGROUP_IMPL_WORD(ACTIVATED),
         TEGROUP_IMPL_WORD(OUT), TEGROUP_IMPL_WORD(GRAD_OUTPUT), TEGROUP_IMPL_WORD(ACTIVATED),
         TEGROUP_IMPL_WORD(FC2_MAIN_GRAD), TEGROUP_IMPL_WORD(FC2_BIAS_GRAD), TEGROUP_IMPL_WORD(GRAD_ROW_SCALE)},
        {-1, TEGROUP_IMPL_WORD(FC1_UP_WEIGHT), TEGROUP_IMPL_WORD(FC1_UP_BIAS), TEGROUP_IMPL_WORD(INPUT),
         TEGROUP_IMPL_WORD(PREACTIVATION), TEGROUP_IMPL_WORD(GRAD_PREACTIVATION), TEGROUP_IMPL_WORD(DGRAD_OUT),
         TEGROUP_IMPL_WORD(FC1_UP_MAIN_GRAD), TEGROUP_IMPL_WORD(FC1_UP_BIAS_GRAD), -1}};
#undef TEGROUP_IMPL_WORD
    return roles[layer - 1][tensor];
}

/* What the activation's matrices are here. */
static inline const tegroup_impl_activation_names *tegroup_impl_mlp_activation_names(void) {
#define TEGROUP_IMPL_ROWS(name)                                                                                        \
    {                                                                                                                  \
        {name ".data", name ".shape.rows", name ".shape.cols", name ".ld", name ".dtype"}, "must not overlap " name,   \
            "must not overlap " name ", unless it is " name " with the same dtype"                                     \
    }
    static const tegroup_impl_activation_names names = {
        TEGROUP_IMPL_ROWS("preactivation"),
        {{"row_scale", "input.shape.rows", "row_scale", "row_scale", "row_scale_dtype"},
         "must not overlap row_scale",
         NULL},
        TEGROUP_IMPL_ROWS("activated"),
        TEGROUP_IMPL_ROWS("activated"),
        TEGROUP_IMPL_ROWS("grad_preactivation"),
        TEGROUP_IMPL_ROWS("grad_row_scale"),
        "input.shape.snapshot"};
#undef TEGROUP_IMPL_ROWS
    return &names;
}

#define TEGROUP_IMPL_THERE(member) (desc->member.dtype != TEGROUP_DTYPE_UNSET)

/* The tensor that asks for a product by being there. */
static inline int tegroup_impl_mlp_asks(tegroup_mlp_layer layer, int product) {
    switch (product) {
    case TEGROUP_OP_FORWARD: return TEGROUP_IMPL_MLP_OUT;
    case TEGROUP_OP_DGRAD:
        return layer == TEGROUP_MLP_FC2 ? TEGROUP_IMPL_MLP_GRAD_PREACTIVATION : TEGROUP_IMPL_MLP_DGRAD_OUT;
    case TEGROUP_OP_WGRAD: return tegroup_impl_mlp_role(layer, TEGROUP_IMPL_LINEAR_MAIN_GRAD);
    default: return TEGROUP_IMPL_MLP_GRAD_ROW_SCALE;
    }
}

/* Whether gates and ups are two weights. */
static inline int tegroup_impl_mlp_apart(const tegroup_mlp_desc *desc) { return TEGROUP_IMPL_THERE(fc1_up.weight); }

static inline int tegroup_impl_mlp_wants(const tegroup_mlp_desc *desc, tegroup_mlp_layer layer, int product) {
    return tegroup_impl_mlp_at(desc, tegroup_impl_mlp_asks(layer, product))->dtype != TEGROUP_DTYPE_UNSET
           && (layer != TEGROUP_MLP_FC1_UP || tegroup_impl_mlp_apart(desc))
           && (product != TEGROUP_IMPL_LINEAR_ROW_SCALE || (layer == TEGROUP_MLP_FC2 && desc->fc2_bias_scaled));
}

/* The bias's part of grad_row_scale is added to what the activation gave, and the ups' part of dX to the gates'. */
static inline int tegroup_impl_mlp_adds(tegroup_mlp_layer layer, int product) {
    return product == TEGROUP_IMPL_LINEAR_ROW_SCALE || (layer == TEGROUP_MLP_FC1_UP && product == TEGROUP_OP_DGRAD);
}

/* Does forward leave activated to the caller? Else it is scratch. */
static inline int tegroup_impl_mlp_keeps(const tegroup_mlp_desc *desc) {
    return TEGROUP_IMPL_THERE(activated) && !desc->recompute;
}

/* The layers as a call sees them, with the rows between them that lie in the workspace. It points into itself. */
typedef struct tegroup_impl_mlp_layers {
    tegroup_tensor preactivation, activated; /* in the workspace; the latter is its gradient as well */
    tegroup_tensor out[2], grad_output[2];   /* fc1_up: gates' and ups' halves of preactivation and of its gradient */
    tegroup_impl_layer fc1, fc2, fc1_up;
} tegroup_impl_mlp_layers;

static inline tegroup_tensor tegroup_impl_mlp_scratch(const tegroup_mlp_desc *desc, tegroup_dtype dtype, int64_t cols) {
    tegroup_tensor t;
    memset(&t, 0, sizeof t);
    t.shape = desc->input.shape;
    t.shape.cols = cols;
    t.dtype = dtype;
    return t;
}

static inline void tegroup_impl_mlp_layer_of(const tegroup_mlp_desc *desc, tegroup_mlp_layer which,
                                             tegroup_impl_layer *layer) {
    const tegroup_mlp_weights *weights = which == TEGROUP_MLP_FC1   ? &desc->fc1
                                         : which == TEGROUP_MLP_FC2 ? &desc->fc2
                                                                    : &desc->fc1_up;
    int tensor;
    memset(layer, 0, sizeof *layer);
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        if (tegroup_impl_mlp_role(which, tensor) >= 0)
            layer->name[tensor] = tegroup_impl_mlp_name(tegroup_impl_mlp_role(which, tensor));
    layer->tensor[TEGROUP_IMPL_LINEAR_WEIGHT] = &weights->weight;
    layer->tensor[TEGROUP_IMPL_LINEAR_BIAS] = &weights->bias;
    layer->tensor[TEGROUP_IMPL_LINEAR_MAIN_GRAD] = &weights->main_grad;
    layer->tensor[TEGROUP_IMPL_LINEAR_BIAS_GRAD] = &weights->bias_grad;
    layer->space = desc->space;
    layer->accumulate = desc->accumulate;
    layer->weight_layout = weights->weight_layout;
    layer->weight_layout_name = which == TEGROUP_MLP_FC1   ? "fc1.weight_layout"
                                : which == TEGROUP_MLP_FC2 ? "fc2.weight_layout"
                                                           : "fc1_up.weight_layout";
    layer->options = &desc->options;
}

/* The gates' or the ups' half of rows that hold both. */
static inline tegroup_tensor tegroup_impl_mlp_half(const tegroup_tensor *t, int up) {
    tegroup_tensor half = *t;
    half.ld = tegroup_impl_ld(t);
    half.shape.cols = t->shape.cols / 2;
    if (up && t->data)
        half.data = (void *)((uintptr_t)t->data
                             + (uintptr_t)tegroup_impl_mul(half.shape.cols, tegroup_impl_bits(t->dtype)) / 8);
    return half;
}

/* Gives gates and ups their halves of the rows between the layers. */
static inline void tegroup_impl_mlp_split(const tegroup_mlp_desc *desc, tegroup_impl_mlp_layers *layers) {
    const tegroup_tensor *out = TEGROUP_IMPL_THERE(preactivation) ? &desc->preactivation : &layers->preactivation;
    int up;
    for (up = 0; up < 2; up++) {
        tegroup_impl_layer *layer = up ? &layers->fc1_up : &layers->fc1;
        layers->out[up] = tegroup_impl_mlp_half(out, up);
        layers->grad_output[up] = tegroup_impl_mlp_half(&desc->grad_preactivation, up);
        layer->tensor[TEGROUP_IMPL_LINEAR_OUT] = &layers->out[up];
        layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT] = &layers->grad_output[up];
        layer->halves = 1;
    }
}

/* The type of activated and of its gradient in the workspace: F32 rows stay so where weights are narrower. */
static inline tegroup_dtype tegroup_impl_mlp_between(const tegroup_mlp_desc *desc) {
    if (TEGROUP_IMPL_THERE(activated)) return desc->activated.dtype;
    return desc->input.dtype == TEGROUP_DTYPE_F32 && desc->fc1.weight.dtype != TEGROUP_DTYPE_F32
               ? TEGROUP_DTYPE_F32
               : desc->fc2.weight.dtype;
}

/* The layers as `op` sees them; what lies in the workspace has no address yet. */
static inline void tegroup_impl_mlp_layers_of(const tegroup_mlp_desc *desc, tegroup_op op,
                                              tegroup_impl_mlp_layers *layers) {
    tegroup_impl_layer *fc1 = &layers->fc1, *fc2 = &layers->fc2, *fc1_up = &layers->fc1_up;
    const int64_t width = tegroup_impl_weight_out(&desc->fc1.weight, desc->fc1.weight_layout);
    const int64_t twice = tegroup_impl_mul(2, tegroup_impl_max(0, width));
    layers->preactivation =
        tegroup_impl_mlp_scratch(desc, desc->input.dtype, tegroup_impl_mlp_apart(desc) ? twice : width);
    layers->activated = tegroup_impl_mlp_scratch(desc, tegroup_impl_mlp_between(desc),
                                                 tegroup_impl_weight_in(&desc->fc2.weight, desc->fc2.weight_layout));
    tegroup_impl_mlp_layer_of(desc, TEGROUP_MLP_FC1, fc1);
    tegroup_impl_mlp_layer_of(desc, TEGROUP_MLP_FC2, fc2);
    tegroup_impl_mlp_layer_of(desc, TEGROUP_MLP_FC1_UP, fc1_up);
    fc1->tensor[TEGROUP_IMPL_LINEAR_INPUT] = &desc->input;
    fc1->tensor[TEGROUP_IMPL_LINEAR_OUT] =
        TEGROUP_IMPL_THERE(preactivation) ? &desc->preactivation : &layers->preactivation;
    fc1->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT] = &desc->grad_preactivation;
    fc1->tensor[TEGROUP_IMPL_LINEAR_DGRAD_OUT] = &desc->dgrad_out;
    fc1->dgrad_out_tail = desc->dgrad_out_tail; /* which fc1_up, that adds, finds filled */
    fc1_up->tensor[TEGROUP_IMPL_LINEAR_INPUT] = &desc->input;
    fc1_up->tensor[TEGROUP_IMPL_LINEAR_DGRAD_OUT] = &desc->dgrad_out;
    if (tegroup_impl_mlp_apart(desc)) tegroup_impl_mlp_split(desc, layers);
    fc2->tensor[TEGROUP_IMPL_LINEAR_INPUT] =
        TEGROUP_IMPL_THERE(activated) && !(op == TEGROUP_OP_FORWARD && desc->recompute) ? &desc->activated
                                                                                        : &layers->activated;
    fc2->tensor[TEGROUP_IMPL_LINEAR_OUT] = &desc->out;
    fc2->out_tail = desc->out_tail;
    fc2->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT] = &desc->grad_output;
    fc2->tensor[TEGROUP_IMPL_LINEAR_DGRAD_OUT] = &layers->activated;
    fc2->tensor[TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE] = &desc->grad_row_scale;
    if (!desc->fc2_bias_scaled) return;
    fc2->row_scale = desc->row_scale;
    fc2->row_scale_dtype = desc->row_scale_dtype;
}

static inline const tegroup_impl_layer *tegroup_impl_mlp_layer_at(const tegroup_impl_mlp_layers *layers,
                                                                  tegroup_mlp_layer which) {
    return which == TEGROUP_MLP_FC1 ? &layers->fc1 : which == TEGROUP_MLP_FC2 ? &layers->fc2 : &layers->fc1_up;
}

/* Which tensors are there, and for which others. */
static inline tegroup_status tegroup_impl_mlp_check_there(const tegroup_mlp_desc *desc, tegroup_error *error) {
    int tensor;
    for (tensor = 0; tensor < TEGROUP_IMPL_MLP_ROW_SCALE; tensor++) {
        const tegroup_tensor *t = tegroup_impl_mlp_at(desc, tensor);
        if (t->dtype == TEGROUP_DTYPE_UNSET)
            TEGROUP_IMPL_TRY(tegroup_impl_check_absent(t, tegroup_impl_mlp_name(tensor), TEGROUP_DTYPE_F64, error));
        TEGROUP_IMPL_RULE_ENUM(t->dtype, TEGROUP_DTYPE_COUNT - 1,
                               tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_DTYPE), "must be a tegroup_dtype");
    }
    TEGROUP_IMPL_RULE_AS(DTYPE, TEGROUP_IMPL_THERE(input), ERROR_UNSET, "input.dtype", "must be set", TEGROUP_DTYPE_F64,
                         0);
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         TEGROUP_IMPL_THERE(out) || TEGROUP_IMPL_THERE(grad_preactivation)
                             || TEGROUP_IMPL_THERE(fc1.main_grad) || TEGROUP_IMPL_THERE(fc2.main_grad),
                         ERROR_UNSET, "out.dtype", "must be set, or grad_preactivation's, or a main_grad's",
                         TEGROUP_DTYPE_F64, 0);
#define TEGROUP_IMPL_NEEDS(member, other)                                                                              \
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(member) || TEGROUP_IMPL_THERE(other), ERROR_COMBINATION, #member,            \
                      "needs " #other, 1, 0)
    TEGROUP_IMPL_NEEDS(dgrad_out, grad_preactivation);
    TEGROUP_IMPL_NEEDS(grad_row_scale, grad_preactivation);
    TEGROUP_IMPL_NEEDS(grad_preactivation, preactivation);
    TEGROUP_IMPL_NEEDS(grad_preactivation, grad_output);
    TEGROUP_IMPL_NEEDS(fc1.main_grad, grad_preactivation);
    TEGROUP_IMPL_NEEDS(fc2.main_grad, grad_output);
    TEGROUP_IMPL_NEEDS(fc2.main_grad, activated);
    TEGROUP_IMPL_NEEDS(fc1.bias_grad, fc1.main_grad);
    TEGROUP_IMPL_NEEDS(fc1.bias_grad, fc1.bias);
    TEGROUP_IMPL_NEEDS(fc2.bias_grad, fc2.main_grad);
    TEGROUP_IMPL_NEEDS(fc2.bias_grad, fc2.bias);
    TEGROUP_IMPL_NEEDS(fc1_up.bias, fc1_up.weight);
    TEGROUP_IMPL_NEEDS(fc1_up.main_grad, fc1_up.weight);
    TEGROUP_IMPL_NEEDS(fc1_up.bias_grad, fc1_up.weight);
#undef TEGROUP_IMPL_NEEDS
    TEGROUP_IMPL_RULE(!desc->recompute || TEGROUP_IMPL_THERE(activated), ERROR_COMBINATION, "recompute",
                      "needs activated", 0, 1);
    TEGROUP_IMPL_RULE(!desc->recompute || TEGROUP_IMPL_THERE(grad_preactivation), ERROR_COMBINATION, "recompute",
                      "needs grad_preactivation: dgrad does it", 0, 1);
    TEGROUP_IMPL_RULE_AS(DTYPE, !desc->row_scale || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET,
                         "row_scale_dtype", "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(grad_row_scale) || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET,
                      ERROR_COMBINATION, "grad_row_scale", "needs row_scale", 1, 0);
    TEGROUP_IMPL_RULE(!desc->fc2_bias_scaled || desc->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                      "fc2_bias_scaled", "needs row_scale", 0, 1);
    TEGROUP_IMPL_RULE(!desc->fc2_bias_scaled || TEGROUP_IMPL_THERE(fc2.bias), ERROR_COMBINATION, "fc2_bias_scaled",
                      "needs fc2.bias", 0, 1);
    TEGROUP_IMPL_RULE(!desc->accumulate || TEGROUP_IMPL_THERE(fc1.main_grad) || TEGROUP_IMPL_THERE(fc2.main_grad),
                      ERROR_COMBINATION, "accumulate", "needs fc1.main_grad or fc2.main_grad", 0, desc->accumulate);
    TEGROUP_IMPL_RULE(desc->out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(out), ERROR_COMBINATION, "out_tail",
                      "needs out", 0, desc->out_tail);
    TEGROUP_IMPL_RULE(desc->dgrad_out_tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_THERE(dgrad_out), ERROR_COMBINATION,
                      "dgrad_out_tail", "needs dgrad_out", 0, desc->dgrad_out_tail);
    return TEGROUP_OK;
}

/* Rows that gates and ups share hold both, and where a backend needs whole 16 bytes, ups begin at some. */
static inline tegroup_status tegroup_impl_mlp_check_halves(const tegroup_mlp_desc *desc, const tegroup_tensor *t,
                                                           int tensor, int64_t h, tegroup_error *error) {
    const tegroup_backend backend = desc->options.backend;
    const int64_t each = tegroup_impl_max(1, 128 / tegroup_impl_max(1, tegroup_impl_bits(t->dtype)));
    if (t->dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(t->shape.cols == tegroup_impl_mul(2, h), ERROR_SHAPE,
                      tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_COLS),
                      "must be those of gates and of ups: fc1's and fc1_up's", tegroup_impl_mul(2, h), t->shape.cols);
    TEGROUP_IMPL_RULE((backend != TEGROUP_BACKEND_SM90 && backend != TEGROUP_BACKEND_CUBLASLT_GROUPED) || h % each == 0,
                      ERROR_UNSUPPORTED, tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_COLS),
                      "must be twice a multiple of 16 bytes: ups begin there, and options.backend needs it", 2 * each,
                      t->shape.cols);
    return TEGROUP_OK;
}

/* fc1_up is as fc1, for an activation of both. */
static inline tegroup_status tegroup_impl_mlp_check_up(const tegroup_mlp_desc *desc,
                                                       const tegroup_impl_mlp_layers *layers, tegroup_error *error) {
    static const char *const same[] = {"must equal fc1.weight.dtype", "must equal fc1.bias.dtype",
                                       "must equal fc1.main_grad.dtype", "must equal fc1.bias_grad.dtype"};
    const tegroup_impl_name *name = tegroup_impl_mlp_name(TEGROUP_IMPL_MLP_FC1_UP_WEIGHT),
                            *gates = tegroup_impl_mlp_name(TEGROUP_IMPL_MLP_FC1_WEIGHT);
    const tegroup_shape *shape = &desc->fc1_up.weight.shape, *like = &desc->fc1.weight.shape;
    const int64_t h = tegroup_impl_weight_out(&desc->fc1.weight, desc->fc1.weight_layout);
    int i;
    if (!tegroup_impl_mlp_apart(desc)) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->fc1.weight, gates, error)); /* the others are held against it */
    TEGROUP_IMPL_RULE(tegroup_impl_gated(desc->activation), ERROR_COMBINATION, "fc1_up.weight",
                      "needs an activation of gate and up", TEGROUP_ACTIVATION_SWIGLU, desc->activation);
    TEGROUP_IMPL_RULE(!desc->interleaved, ERROR_COMBINATION, "interleaved",
                      "must be 0 with fc1_up.weight: gates and ups are halves", 0, desc->interleaved);
    for (i = 0; i < 4; i++) {
        const tegroup_dtype gate = tegroup_impl_mlp_dtype(desc, TEGROUP_IMPL_MLP_FC1_WEIGHT + i),
                            up = tegroup_impl_mlp_dtype(desc, TEGROUP_IMPL_MLP_FC1_UP_WEIGHT + i);
        const char *field = tegroup_impl_mlp_path(TEGROUP_IMPL_MLP_FC1_UP_WEIGHT + i, TEGROUP_IMPL_MEMBER_DTYPE);
        TEGROUP_IMPL_RULE_AS(DTYPE, up == gate || up != TEGROUP_DTYPE_UNSET, ERROR_UNSET, field, same[i], gate, up);
        TEGROUP_IMPL_RULE_AS(DTYPE, up == gate, ERROR_DTYPE, field, same[i], gate, up);
    }
    TEGROUP_IMPL_RULE(desc->fc1_up.weight_layout == desc->fc1.weight_layout, ERROR_COMBINATION, "fc1_up.weight_layout",
                      "must equal fc1.weight_layout", desc->fc1.weight_layout, desc->fc1_up.weight_layout);
    TEGROUP_IMPL_RULE(shape->groups == like->groups, ERROR_SHAPE, TEGROUP_IMPL_PATH(GROUPS), gates->groups,
                      like->groups, shape->groups);
    TEGROUP_IMPL_RULE(shape->rows == like->rows, ERROR_SHAPE, TEGROUP_IMPL_PATH(ROWS), gates->rows, like->rows,
                      shape->rows);
    TEGROUP_IMPL_RULE(shape->cols == like->cols, ERROR_SHAPE, TEGROUP_IMPL_PATH(COLS), gates->cols, like->cols,
                      shape->cols);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_halves(
        desc, TEGROUP_IMPL_THERE(preactivation) ? &desc->preactivation : &layers->preactivation,
        TEGROUP_IMPL_MLP_PREACTIVATION, h, error));
    return tegroup_impl_mlp_check_halves(desc, &desc->grad_preactivation, TEGROUP_IMPL_MLP_GRAD_PREACTIVATION, h,
                                         error);
}

/* A tensor of the routing's rows: they and the snapshot are input's. */
static inline tegroup_status tegroup_impl_mlp_check_rows(const tegroup_mlp_desc *desc, int tensor,
                                                         tegroup_error *error) {
    const tegroup_impl_name *name = tegroup_impl_mlp_name(tensor);
    const tegroup_shape *shape = &tegroup_impl_mlp_at(desc, tensor)->shape, *like = &desc->input.shape;
    if (tegroup_impl_mlp_dtype(desc, tensor) == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(shape->rows == like->rows, ERROR_SHAPE, TEGROUP_IMPL_PATH(ROWS), "must equal input.shape.rows",
                      like->rows, shape->rows);
    TEGROUP_IMPL_RULE(shape->snapshot == like->snapshot || !shape->snapshot || !like->snapshot, ERROR_COMBINATION,
                      TEGROUP_IMPL_PATH(SNAPSHOT), "must be input.shape.snapshot, one for the routing", 0, 1);
    return TEGROUP_OK;
}

/* A tensor that the activation reads or writes. */
static inline tegroup_status tegroup_impl_mlp_check_saved(const tegroup_mlp_desc *desc, int tensor,
                                                          tegroup_error *error) {
    const tegroup_impl_name *name = tegroup_impl_mlp_name(tensor);
    const tegroup_tensor *t = tegroup_impl_mlp_at(desc, tensor);
    if (t->dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_FLOATS >> t->dtype & 1u, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(DTYPE),
                         "must be one that an activation has", TEGROUP_IMPL_FLOATS, t->dtype);
    TEGROUP_IMPL_RULE(t->ld == 0 || t->ld == t->shape.cols, ERROR_LAYOUT, TEGROUP_IMPL_PATH(LD),
                      "must be 0 or shape.cols: what is saved is contiguous", t->shape.cols, t->ld);
    return TEGROUP_OK;
}

/* Rules of the MLP's own numbers and enums. */
static inline tegroup_status tegroup_impl_mlp_check_numbers(const tegroup_mlp_desc *desc, tegroup_error *error) {
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_activation_kind(desc->activation, desc->interleaved, desc->alpha, desc->limit, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->options.threads, "options.threads", error));
    TEGROUP_IMPL_RULE(desc->recompute == 0 || desc->recompute == 1, ERROR_VALUE, "recompute", "must be 0 or 1", 1,
                      desc->recompute);
    TEGROUP_IMPL_RULE(desc->fc2_bias_scaled == 0 || desc->fc2_bias_scaled == 1, ERROR_VALUE, "fc2_bias_scaled",
                      "must be 0 or 1", 1, desc->fc2_bias_scaled);
    TEGROUP_IMPL_RULE_ENUM(desc->fusion, TEGROUP_FUSION_REQUIRED, "fusion", "must be a tegroup_fusion");
    TEGROUP_IMPL_RULE_ENUM(desc->out_tail, TEGROUP_TAIL_POISON, "out_tail", "must be a tegroup_tail");
    TEGROUP_IMPL_RULE_ENUM(desc->dgrad_out_tail, TEGROUP_TAIL_POISON, "dgrad_out_tail", "must be a tegroup_tail");
    return tegroup_impl_check_real(desc->row_scale_dtype, "row_scale_dtype", error);
}

/* The rules of the MLP: what its tensors are to each other. Those of a product are the product's. */
static inline tegroup_status tegroup_impl_mlp_check(const tegroup_mlp_desc *desc, tegroup_impl_mlp_layers *layers,
                                                    tegroup_error *error) {
    const int twice = tegroup_impl_gated(desc->activation) && !tegroup_impl_mlp_apart(desc);
    int64_t out, width;
    int i;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_numbers(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_there(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_activation_check_sizes(desc->space, &desc->input.shape, error));
    tegroup_impl_mlp_layers_of(desc, TEGROUP_OP_WGRAD, layers);
    for (i = TEGROUP_IMPL_MLP_OUT; i < TEGROUP_IMPL_MLP_ROW_SCALE; i++)
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_rows(desc, i, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_up(desc, layers, error));
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check(&layers->fc1, error));
    if (tegroup_impl_mlp_apart(desc)) TEGROUP_IMPL_TRY(tegroup_impl_layer_check(&layers->fc1_up, error));
    TEGROUP_IMPL_RULE(desc->fc2.weight.shape.groups == desc->fc1.weight.shape.groups, ERROR_SHAPE,
                      "fc2.weight.shape.groups", "must equal fc1.weight.shape.groups", desc->fc1.weight.shape.groups,
                      desc->fc2.weight.shape.groups); /* before fc2's tensors are held against fc2.weight */
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check(&layers->fc2, error));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_IMPL_LINEAR_ROW_SCALE))
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_bias_type(&layers->fc2, error));
    out = tegroup_impl_weight_out(&desc->fc1.weight, desc->fc1.weight_layout);
    width = twice ? tegroup_impl_activation_cols(desc->activation, layers->activated.shape.cols)
                  : layers->activated.shape.cols;
    TEGROUP_IMPL_RULE(out == width, ERROR_SHAPE,
                      desc->fc1.weight_layout == TEGROUP_WEIGHT_IN_OUT ? "fc1.weight.shape.cols"
                                                                       : "fc1.weight.shape.rows",
                      desc->fc2.weight_layout == TEGROUP_WEIGHT_IN_OUT
                          ? (twice ? "must be twice fc2.weight.shape.rows: gate and up"
                                   : "must equal fc2.weight.shape.rows")
                      : twice ? "must be twice fc2.weight.shape.cols: gate and up"
                              : "must equal fc2.weight.shape.cols",
                      width, out);
    for (i = TEGROUP_IMPL_MLP_PREACTIVATION; i < TEGROUP_IMPL_MLP_ROW_SCALE; i++)
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_saved(desc, i, error));
    return tegroup_impl_check_real(desc->grad_row_scale.dtype, "grad_row_scale.dtype", error);
}
#undef TEGROUP_IMPL_THERE

/* What a call writes lies apart from all else that it touches, and so does the workspace: for all of its products at
 * once. Sets are bits of tegroup_impl_mlp_tensor. */
static inline tegroup_status tegroup_impl_mlp_check_apart(const tegroup_mlp_desc *desc, uint32_t reads, uint32_t writes,
                                                          size_t workspace_bytes, tegroup_check_level level,
                                                          tegroup_error *error) {
    tegroup_impl_buffer buffers[TEGROUP_IMPL_MLP_COUNT + 2];
    int32_t i, count = 0, preactivation = -1;
    buffers[count++] = tegroup_impl_workspace_buffer(&desc->options, workspace_bytes);
    for (i = 0; i < TEGROUP_IMPL_MLP_ROW_SCALE; i++) {
        if (!((reads | writes) >> i & 1u)) continue;
        if (i == TEGROUP_IMPL_MLP_PREACTIVATION) preactivation = count;
        buffers[count] =
            tegroup_impl_tensor_buffer(tegroup_impl_mlp_at(desc, i), tegroup_impl_mlp_name(i), writes >> i & 1u);
        if (i == TEGROUP_IMPL_MLP_GRAD_PREACTIVATION && desc->grad_preactivation.data == desc->preactivation.data
            && desc->grad_preactivation.dtype == desc->preactivation.dtype)
            buffers[count].twin = preactivation;
        count++;
    }
    if (reads >> TEGROUP_IMPL_MLP_ROW_SCALE & 1u)
        buffers[count++] = tegroup_impl_buffer_of(
            desc->row_scale, tegroup_impl_mul(desc->input.shape.rows, tegroup_impl_bits(desc->row_scale_dtype) / 8),
            NULL, "must not overlap row_scale", 0);
    buffers[count++] = tegroup_impl_snapshot_buffer(&desc->input);
    return tegroup_impl_check_apart(buffers, count, level, NULL, error);
}

/* ==== [71] Grouped MLP: plan (src/layer/mlp_plan.h) ==== */

/* A plan's parts: what it holds for itself, and those of the two layers. A chain keeps them apart. */
typedef struct tegroup_impl_mlp_plans {
    const tegroup_mlp_planned *planned;
    const tegroup_linear_plan *fc1, *fc2, *fc1_up; /* fc1_up: NULL in a chain, whose gates and ups are one weight */
} tegroup_impl_mlp_plans;

static inline tegroup_impl_mlp_plans tegroup_impl_mlp_plans_of(const tegroup_mlp_plan *plan) {
    tegroup_impl_mlp_plans plans;
    plans.planned = &plan->planned;
    plans.fc1 = &plan->fc1;
    plans.fc2 = &plan->fc2;
    plans.fc1_up = &plan->fc1_up;
    return plans;
}

static inline const tegroup_linear_plan *tegroup_impl_mlp_linear(const tegroup_impl_mlp_plans *plans,
                                                                 tegroup_mlp_layer layer) {
    return layer == TEGROUP_MLP_FC1 ? plans->fc1 : layer == TEGROUP_MLP_FC2 ? plans->fc2 : plans->fc1_up;
}

static inline tegroup_mlp_layer tegroup_impl_mlp_last(const tegroup_impl_mlp_plans *plans) {
    return plans->fc1_up ? TEGROUP_MLP_FC1_UP : TEGROUP_MLP_FC2;
}

static inline const tegroup_plan *tegroup_impl_mlp_made(const tegroup_impl_mlp_plans *plans, tegroup_mlp_layer layer,
                                                        int product) {
    return tegroup_impl_linear_made(tegroup_impl_mlp_linear(plans, layer), product);
}

/* Why a product has no activation in its epilogue: fc1's forward product, or fc2's dgrad; NULL: it has. up: the ups'
 * product, where they are apart; else NULL. What a plan for another machine could do is not for this build to say. */
static inline const char *tegroup_impl_mlp_unfused(const tegroup_mlp_desc *desc, const tegroup_plan *product,
                                                   const tegroup_plan *up, tegroup_op op) {
    const int gradient = op == TEGROUP_OP_DGRAD;
    tegroup_dtype out, input;
    int64_t cols;
    tegroup_impl_mlp_layers layers;
    tegroup_impl_mlp_layers_of(desc, op, &layers);
    out = layers.fc1.tensor[TEGROUP_IMPL_LINEAR_OUT]->dtype;
    input = layers.fc2.tensor[TEGROUP_IMPL_LINEAR_INPUT]->dtype;
    cols = layers.activated.shape.cols;
    if (product->backend != TEGROUP_BACKEND_SM90 && product->backend != TEGROUP_BACKEND_PORTABLE)
        return "must not be REQUIRED: only SM90 and PORTABLE have products with an activation in their epilogue";
    if (!TEGROUP_IMPL_FUSED_KERNELS && !product->hypothetical)
        return "must not be REQUIRED: this build leaves out activations on the GPU";
    if (product->problem.op != op)
        return gradient ? "must not be REQUIRED: the epilogue is that of a product of fc2.weight_layout OUT_IN"
                        : "must not be REQUIRED: the epilogue is that of a product of fc1.weight_layout OUT_IN";
    if (!tegroup_impl_gated(desc->activation))
        return "must not be REQUIRED: the epilogue's activation has a gate and an up";
    if (product->problem.a != out || out != input || tegroup_impl_bits(out) != 16
        || (gradient && (desc->grad_preactivation.dtype != out || layers.activated.dtype != out)))
        return "must not be REQUIRED: the epilogue has its product's operands, preactivation, activated and their "
               "gradients as the same of F16 and BF16";
    if (up
        && (up->backend != product->backend || up->problem.ldb != product->problem.ldb
            || up->problem.pointers_space[TEGROUP_IMPL_B] != product->problem.pointers_space[TEGROUP_IMPL_B]))
        return "must not be REQUIRED: the epilogue has fc1.weight and fc1_up.weight of one ld, both lists or neither, "
               "and both aligned as the backend needs it";
    if (cols % 8 != 0) return "must not be REQUIRED: the epilogue has rows of 16 bytes";
    if (desc->options.data_alignment_bytes > 0 && desc->options.data_alignment_bytes < 16)
        return "must not be REQUIRED: the epilogue has 16 bytes at once, and options.data_alignment_bytes is less";
    return NULL;
}

/* Which steps an epilogue takes over: the one place that knows of fused products. SM90's have tiles of 128 lines alone,
 * and are the slower ones where groups have fewer rows; forward also where the product would have tiles that fit its
 * groups, and sums so long that lines left empty cost more than the activation's bytes. PORTABLE's, which do not
 * multiply meanwhile, gain nothing, and run when they must. */
static inline tegroup_status tegroup_impl_mlp_fuse(const tegroup_mlp_desc *desc, const tegroup_plan *product,
                                                   const tegroup_plan *up, tegroup_op op, uint32_t bit, uint32_t *fused,
                                                   tegroup_fused_kernel *kernel, tegroup_error *error) {
    const int required = desc->fusion == TEGROUP_FUSION_REQUIRED;
    const int64_t rows = desc->options.expected_rows > 0 ? desc->options.expected_rows : desc->input.shape.rows,
                  average = tegroup_impl_ceil_div(rows, tegroup_impl_max(1, desc->input.shape.groups));
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(product->backend);
    const char *why;
    if (!tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, (int)op)) return TEGROUP_OK;
    why = tegroup_impl_mlp_unfused(desc, product, up, op);
    TEGROUP_IMPL_RULE(!required || !why, ERROR_UNSUPPORTED, "fusion", why, TEGROUP_FUSION_AUTO, desc->fusion);
    if (why || desc->fusion == TEGROUP_FUSION_NEVER) return TEGROUP_OK;
    if (!required
        && (product->backend != TEGROUP_BACKEND_SM90 || average <= 128
            || (op == TEGROUP_OP_FORWARD && product->tile_m > 128
                && desc->input.shape.cols > tegroup_impl_mul(6, average))))
        return TEGROUP_OK;
    *fused |= bit;
    if (product->hypothetical) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(backend->plan_fused != NULL, ERROR_PLAN, "plan", "must be of a backend that fuses in this build",
                      TEGROUP_BACKEND_SM90, product->backend);
    return backend->plan_fused(product, kernel, error);
}

/* The product whose plan needs the most workspace, of all or of the weight gradients alone. */
static inline const tegroup_plan *tegroup_impl_mlp_neediest(const tegroup_impl_mlp_plans *plans, int wgrads) {
    const tegroup_plan *most = NULL;
    int layer, product;
    for (layer = TEGROUP_MLP_FC1; layer <= (int)tegroup_impl_mlp_last(plans); layer++)
        for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            const tegroup_plan *one = tegroup_impl_mlp_made(plans, (tegroup_mlp_layer)layer, product);
            if (one->magic != TEGROUP_PLAN_MAGIC || (wgrads && product != TEGROUP_OP_WGRAD)) continue;
            if (!most || one->workspace_bytes > most->workspace_bytes) most = one;
        }
    return most;
}

/* Where what lies in the workspace is in its layout; -1 = not there. */
typedef struct tegroup_impl_mlp_items {
    int32_t activated, preactivation;
} tegroup_impl_mlp_items;

/* What each byte is for. The products' workspace comes first, so that wgrad, which has no scratch, can do with that
 * part. */
static inline tegroup_impl_mlp_items tegroup_impl_mlp_layout(const tegroup_impl_mlp_plans *plans,
                                                             tegroup_mlp_memory memory, tegroup_layout *layout) {
    const tegroup_mlp_planned *planned = plans->planned;
    const int in_workspace = memory == TEGROUP_MLP_WORKSPACE, by_forward = memory == TEGROUP_MLP_SAVED_BY_FORWARD,
              by_dgrad = memory == TEGROUP_MLP_SAVED_BY_DGRAD,
              saves_preactivation = planned->preactivation_bytes > 0 && !planned->scratch_preactivation,
              saves_activated = planned->dtypes[TEGROUP_IMPL_MLP_ACTIVATED] != TEGROUP_DTYPE_UNSET;
    const tegroup_plan *most =
        by_forward || by_dgrad ? NULL : tegroup_impl_mlp_neediest(plans, memory == TEGROUP_MLP_WGRAD_WORKSPACE);
    tegroup_impl_mlp_items items;
    items.activated = items.preactivation = -1;
    tegroup_impl_layout_begin(layout);
    if (most) tegroup_impl_plan_layout(most, layout);
    if (in_workspace && planned->scratch_activated) {
        items.activated = layout->count;
        tegroup_impl_layout_add(layout, "activated, and in dgrad its gradient", planned->activated_bytes);
    }
    if (in_workspace && planned->scratch_preactivation) {
        items.preactivation = layout->count;
        tegroup_impl_layout_add(layout, "preactivation", planned->preactivation_bytes);
    }
    if (by_forward && saves_preactivation)
        tegroup_impl_layout_add(layout, "preactivation", planned->preactivation_bytes);
    if (saves_activated && (planned->recompute ? by_dgrad : by_forward))
        tegroup_impl_layout_add(layout, "activated", planned->activated_bytes);
    if (by_dgrad && plans->fc2->dgrad.magic == TEGROUP_PLAN_MAGIC)
        tegroup_impl_layout_add(layout, "grad_preactivation", planned->grad_preactivation_bytes);
    return items;
}

/* What a plan remembers of a descriptor. */
static inline tegroup_mlp_planned tegroup_impl_mlp_record(const tegroup_mlp_desc *desc,
                                                          const tegroup_impl_mlp_layers *layers) {
    const int forward = tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_FORWARD),
              dgrad = tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_DGRAD),
              has_preactivation = desc->preactivation.dtype != TEGROUP_DTYPE_UNSET,
              has_activated = desc->activated.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_mlp_planned planned;
    int tensor;
    memset(&planned, 0, sizeof planned);
    planned.activation = desc->activation;
    planned.interleaved = desc->interleaved;
    planned.recompute = desc->recompute;
    planned.fc2_bias_scaled = desc->fc2_bias_scaled;
    for (tensor = 0; tensor < TEGROUP_IMPL_MLP_COUNT; tensor++)
        planned.dtypes[tensor] = tegroup_impl_mlp_dtype(desc, tensor);
    planned.scratch_preactivation = forward && !has_preactivation;
    planned.scratch_activated = dgrad || (forward && !tegroup_impl_mlp_keeps(desc));
    if (forward || has_preactivation)
        planned.preactivation_bytes =
            tegroup_impl_extent_bytes(has_preactivation ? &desc->preactivation : &layers->preactivation);
    if (planned.scratch_activated || has_activated)
        planned.activated_bytes = tegroup_impl_extent_bytes(&layers->activated);
    if (dgrad) planned.grad_preactivation_bytes = tegroup_impl_extent_bytes(&desc->grad_preactivation);
    return planned;
}

/* The sizes of a plan that is otherwise made. */
static inline tegroup_status tegroup_impl_mlp_sizes(const tegroup_mlp_desc *desc, tegroup_mlp_plan *plan,
                                                    tegroup_error *error) {
    const tegroup_impl_mlp_plans plans = tegroup_impl_mlp_plans_of(plan);
    size_t *const bytes[] = {&plan->workspace_bytes, &plan->wgrad_workspace_bytes, &plan->saved_by_forward_bytes,
                             &plan->saved_by_dgrad_bytes};
    tegroup_layout layout;
    int i;
    for (i = 0; i < 4; i++) {
        (void)tegroup_impl_mlp_layout(&plans, (tegroup_mlp_memory)(TEGROUP_MLP_WORKSPACE + i), &layout);
        *bytes[i] = layout.total_bytes;
        TEGROUP_IMPL_RULE(i > 0 || !tegroup_impl_layout_overflowed(&layout), ERROR_OVERFLOW, "input.shape.rows",
                          "must leave the workspace addressable", tegroup_impl_max_bytes(), desc->input.shape.rows);
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_mlp_plan_make(const tegroup_mlp_desc *desc, const tegroup_target *target,
                                                 tegroup_mlp_plan *plan, tegroup_error *error) {
    tegroup_mlp_desc taken;
    tegroup_impl_mlp_layers layers;
    tegroup_mlp_plan made;
    int layer, product;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check(desc, &layers, error));
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.magic = TEGROUP_MLP_PLAN_MAGIC;
    made.planned = tegroup_impl_mlp_record(desc, &layers);
    for (layer = TEGROUP_MLP_FC1; layer <= TEGROUP_MLP_FC1_UP; layer++)
        for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            if (!tegroup_impl_mlp_wants(desc, (tegroup_mlp_layer)layer, product)) continue;
            tegroup_impl_mlp_layers_of(desc, (tegroup_op)product, &layers);
            TEGROUP_IMPL_TRY(tegroup_impl_layer_plan(tegroup_impl_mlp_layer_at(&layers, (tegroup_mlp_layer)layer),
                                                     product, tegroup_impl_mlp_adds((tegroup_mlp_layer)layer, product),
                                                     target,
                                                     layer == TEGROUP_MLP_FC1   ? &made.fc1
                                                     : layer == TEGROUP_MLP_FC2 ? &made.fc2
                                                                                : &made.fc1_up,
                                                     error));
        }
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_fuse(
        desc, &made.fc1.forward, tegroup_impl_mlp_apart(desc) ? &made.fc1_up.forward : NULL, TEGROUP_OP_FORWARD,
        TEGROUP_FUSED_FORWARD, &made.planned.fused, &made.planned.activated_kernel, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_fuse(desc, &made.fc2.dgrad, NULL, TEGROUP_OP_DGRAD, TEGROUP_FUSED_DGRAD,
                                           &made.planned.fused, &made.planned.gradient_kernel, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_sizes(desc, &made, error));
    *plan = made;
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_mlp_check_plan(const tegroup_mlp_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE_PLAN(plan, TEGROUP_MLP_PLAN_MAGIC, "must be what tegroup_mlp_plan_make wrote");
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_mlp_layout(const tegroup_mlp_plan *plan, tegroup_mlp_memory memory,
                                              tegroup_layout *layout, tegroup_error *error) {
    tegroup_impl_mlp_plans plans;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_RULE(memory != TEGROUP_MLP_MEMORY_UNSET, ERROR_UNSET, "memory", "must be set", TEGROUP_MLP_WORKSPACE,
                      0);
    TEGROUP_IMPL_RULE((uint32_t)memory <= TEGROUP_MLP_SAVED_BY_DGRAD, ERROR_VALUE, "memory",
                      "must be a tegroup_mlp_memory", TEGROUP_MLP_SAVED_BY_DGRAD, memory);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    plans = tegroup_impl_mlp_plans_of(plan);
    (void)tegroup_impl_mlp_layout(&plans, memory, layout);
    return TEGROUP_OK;
}

/* Give what lies in the workspace its addresses there. */
static inline void tegroup_impl_mlp_place(const tegroup_impl_mlp_plans *plans, const tegroup_mlp_desc *desc,
                                          tegroup_impl_mlp_layers *layers) {
    tegroup_layout layout;
    const tegroup_impl_mlp_items items = tegroup_impl_mlp_layout(plans, TEGROUP_MLP_WORKSPACE, &layout);
    void *workspace = desc->options.workspace;
    if (!workspace) return;
    if (items.activated >= 0) layers->activated.data = tegroup_impl_layout_at(&layout, items.activated, workspace);
    if (items.preactivation >= 0)
        layers->preactivation.data = tegroup_impl_layout_at(&layout, items.preactivation, workspace);
    if (tegroup_impl_mlp_apart(desc)) tegroup_impl_mlp_split(desc, layers);
}

TEGROUP_API tegroup_status tegroup_mlp_gemm(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                            tegroup_mlp_layer layer, tegroup_op op, tegroup_gemm_desc *gemm,
                                            tegroup_error *error) {
    tegroup_mlp_desc taken;
    tegroup_impl_mlp_layers layers;
    if (plan) TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check(desc, &layers, error));
    TEGROUP_IMPL_RULE(layer != TEGROUP_MLP_LAYER_UNSET, ERROR_UNSET, "layer", "must be set", TEGROUP_MLP_FC1, 0);
    TEGROUP_IMPL_RULE_ENUM(layer, TEGROUP_MLP_FC1_UP, "layer", "must be a tegroup_mlp_layer");
    TEGROUP_IMPL_RULE(op != TEGROUP_OP_UNSET, ERROR_UNSET, "op", "must be set", TEGROUP_OP_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(op, TEGROUP_OP_WGRAD, "op", "must be a tegroup_op");
    TEGROUP_IMPL_RULE(gemm != NULL, ERROR_NULL_ARGUMENT, "gemm", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_mlp_wants(desc, layer, (int)op), ERROR_COMBINATION, "op",
                      "must be of a product whose output is there", 1, 0);
    tegroup_impl_mlp_layers_of(desc, op, &layers);
    if (plan) {
        const tegroup_impl_mlp_plans plans = tegroup_impl_mlp_plans_of(plan);
        tegroup_impl_mlp_place(&plans, desc, &layers);
    }
    tegroup_impl_layer_product(tegroup_impl_mlp_layer_at(&layers, layer), (int)op, gemm);
    if (tegroup_impl_mlp_adds(layer, (int)op)) gemm->accumulate = 1;
    return TEGROUP_OK;
}

/* ==== [72] Grouped MLP: calls (src/layer/mlp.h) ==== */

#if TEGROUP_IMPL_FUSED_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
/* Gradients of row_scale, of the sums that a dgrad with a gradient in its epilogue leaves in D's place. */
static inline tegroup_status tegroup_impl_cuda_row_sums(const tegroup_activation_backward_desc *desc,
                                                        const float *sums, struct CUstream_st *stream,
                                                        tegroup_error *error);
#endif

/* What a call of an MLP works with. */
typedef struct tegroup_impl_mlp_product {
    tegroup_mlp_layer layer;
    int product;
    const tegroup_plan *plan;
    tegroup_gemm_desc gemm;
} tegroup_impl_mlp_product;

typedef struct tegroup_impl_mlp_call {
    const tegroup_mlp_desc *desc;
    const tegroup_impl_mlp_plans *plans;
    uint32_t reads, writes; /* bits of tegroup_impl_mlp_tensor: all that the call touches */
    int count;
    tegroup_impl_mlp_product products[4]; /* in the order in which they run */
    tegroup_impl_mlp_layers layers;
} tegroup_impl_mlp_call;

static inline void tegroup_impl_mlp_call_add(tegroup_impl_mlp_call *call, tegroup_mlp_layer layer, int product,
                                             uint32_t reads, uint32_t writes) {
    call->products[call->count].layer = layer;
    call->products[call->count].product = product;
    call->products[call->count++].plan = tegroup_impl_mlp_made(call->plans, layer, product);
    call->reads |= reads;
    call->writes |= writes;
}

/* The plan and the descriptor ask for the same, as far as the products do not see to it. */
static inline tegroup_status tegroup_impl_mlp_check_planned(const tegroup_impl_mlp_call *call, tegroup_error *error) {
    const tegroup_mlp_desc *desc = call->desc;
    const tegroup_mlp_planned *planned = call->plans->planned;
    int i;
    TEGROUP_IMPL_RULE(planned->activation == desc->activation, ERROR_PLAN, "activation", "must be as planned",
                      planned->activation, desc->activation);
    TEGROUP_IMPL_RULE(planned->interleaved == desc->interleaved, ERROR_PLAN, "interleaved", "must be as planned",
                      planned->interleaved, desc->interleaved);
    TEGROUP_IMPL_RULE(planned->recompute == desc->recompute, ERROR_PLAN, "recompute", "must be as planned",
                      planned->recompute, desc->recompute);
    TEGROUP_IMPL_RULE(planned->fc2_bias_scaled == desc->fc2_bias_scaled, ERROR_PLAN, "fc2_bias_scaled",
                      "must be as planned", planned->fc2_bias_scaled, desc->fc2_bias_scaled);
    for (i = 0; i < TEGROUP_IMPL_MLP_COUNT; i++)
        TEGROUP_IMPL_RULE(
            !((call->reads | call->writes) >> i & 1u) || tegroup_impl_mlp_dtype(desc, i) == planned->dtypes[i],
            ERROR_PLAN,
            i == TEGROUP_IMPL_MLP_ROW_SCALE ? "row_scale_dtype" : tegroup_impl_mlp_path(i, TEGROUP_IMPL_MEMBER_DTYPE),
            "must be as planned", planned->dtypes[i], tegroup_impl_mlp_dtype(desc, i));
    return TEGROUP_OK;
}

/* A call may have more rows than planned where none of them lie in the workspace. */
static inline tegroup_status tegroup_impl_mlp_check_scratch(const tegroup_impl_mlp_call *call, tegroup_error *error) {
    const tegroup_impl_mlp_layers *layers = &call->layers;
    const int op = call->products[0].product,
              scratch = op == TEGROUP_OP_DGRAD
                        || (op == TEGROUP_OP_FORWARD
                            && (call->desc->preactivation.dtype == TEGROUP_DTYPE_UNSET
                                || layers->fc2.tensor[TEGROUP_IMPL_LINEAR_INPUT] == &layers->activated));
    const int64_t planned = call->products[0].plan->problem.rows, rows = call->desc->input.shape.rows;
    TEGROUP_IMPL_RULE(!scratch || rows <= planned, ERROR_PLAN, "input.shape.rows",
                      "must be at most as planned: the workspace holds rows between the layers", planned, rows);
    return TEGROUP_OK;
}

/* Everything that a call checks but its activation: the tensors that it touches, and that its products check
 * themselves. */
static inline tegroup_status tegroup_impl_mlp_check_call(tegroup_impl_mlp_call *call, size_t workspace_bytes,
                                                         tegroup_error *error) {
    const tegroup_mlp_desc *desc = call->desc;
    const uint32_t touched = call->reads | call->writes;
    int i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_numbers(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_planned(call, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_scratch(call, error));
    for (i = TEGROUP_IMPL_MLP_OUT; i < TEGROUP_IMPL_MLP_ROW_SCALE; i++) {
        if (!(touched >> i & 1u)) continue;
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_rows(desc, i, error));
        if (i >= TEGROUP_IMPL_MLP_PREACTIVATION) TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_saved(desc, i, error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_options_workspace(workspace_bytes, &desc->options, error));
    tegroup_impl_mlp_place(call->plans, desc, &call->layers);
    TEGROUP_IMPL_TRY(
        tegroup_impl_mlp_check_apart(desc, call->reads, call->writes, workspace_bytes, TEGROUP_CHECK_HOST, error));
    for (i = 0; i < call->count; i++) {
        tegroup_impl_mlp_product *p = &call->products[i];
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_product(tegroup_impl_mlp_layer_at(&call->layers, p->layer),
                                                          p->product, tegroup_impl_mlp_adds(p->layer, p->product), 0,
                                                          tegroup_impl_mlp_linear(call->plans, p->layer), &p->gemm,
                                                          error));
    }
    if (desc->options.check_level != TEGROUP_CHECK_DEEP) return TEGROUP_OK; /* lists may be walked now */
    return tegroup_impl_mlp_check_apart(desc, call->reads, call->writes, workspace_bytes, TEGROUP_CHECK_DEEP, error);
}

/* A call begins: the descriptor's head, and that what the call writes is there and planned. */
static inline tegroup_status tegroup_impl_mlp_begin(tegroup_impl_mlp_call *call, const tegroup_impl_mlp_plans *plans,
                                                    const tegroup_mlp_desc *desc, tegroup_op op, tegroup_error *error) {
    const tegroup_dtype up = plans->planned->dtypes[TEGROUP_IMPL_MLP_FC1_UP_WEIGHT];
    int layer, product;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    call->desc = desc;
    call->plans = plans;
    call->reads = call->writes = 0;
    call->count = 0;
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         op != TEGROUP_OP_WGRAD || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1, (int)op)
                             || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, (int)op),
                         ERROR_UNSET, "fc1.main_grad.dtype",
                         "must be set, or fc2.main_grad's: they are what this call writes", TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, op == TEGROUP_OP_WGRAD || tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, (int)op),
                         ERROR_UNSET, op == TEGROUP_OP_FORWARD ? "out.dtype" : "grad_preactivation.dtype",
                         "must be set: it is what this call writes", TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE_AS(DTYPE, tegroup_impl_mlp_apart(desc) == (up != TEGROUP_DTYPE_UNSET), ERROR_PLAN,
                         "fc1_up.weight.dtype", "must be set just when planned so", up, desc->fc1_up.weight.dtype);
    for (layer = TEGROUP_MLP_FC1; layer <= (int)tegroup_impl_mlp_last(plans); layer++)
        for (product = (int)op; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++) {
            const tegroup_plan *one = tegroup_impl_mlp_made(plans, (tegroup_mlp_layer)layer, product);
            const int tensor = tegroup_impl_mlp_asks((tegroup_mlp_layer)layer, product);
            if (product != (int)op && !(product == TEGROUP_IMPL_LINEAR_ROW_SCALE && op == TEGROUP_OP_DGRAD)) continue;
            TEGROUP_IMPL_RULE(
                (one->magic == TEGROUP_PLAN_MAGIC) == tegroup_impl_mlp_wants(desc, (tegroup_mlp_layer)layer, product),
                ERROR_PLAN, tegroup_impl_mlp_path(tensor, TEGROUP_IMPL_MEMBER_DTYPE),
                "must be set just when planned so", one->problem.d, tegroup_impl_mlp_at(desc, tensor)->dtype);
        }
    TEGROUP_IMPL_RULE(op == TEGROUP_OP_WGRAD || desc->input.shape.snapshot != NULL, ERROR_NULL_ARGUMENT,
                      "input.shape.snapshot", "must not be NULL: prepare first", 1, 0);
    tegroup_impl_mlp_layers_of(desc, op, &call->layers);
    return TEGROUP_OK;
}

static inline tegroup_matrix tegroup_impl_mlp_matrix(const tegroup_tensor *t) {
    tegroup_matrix m;
    m.data = t->data;
    m.rows = t->shape.rows;
    m.cols = t->shape.cols;
    m.ld = t->ld;
    m.dtype = t->dtype;
    return m;
}

static inline tegroup_matrix tegroup_impl_mlp_row_scale(const tegroup_mlp_desc *desc) {
    tegroup_matrix m;
    m.data = (void *)(uintptr_t)desc->row_scale;
    m.rows = desc->input.shape.rows;
    m.cols = 1;
    m.ld = 0;
    m.dtype = desc->row_scale_dtype;
    return m;
}

/* activated = row_scale * f(preactivation), from and to where the products have them. */
static inline void tegroup_impl_mlp_describe_activation(const tegroup_mlp_desc *desc,
                                                        const tegroup_tensor *preactivation,
                                                        const tegroup_tensor *activated,
                                                        tegroup_activation_desc *activation) {
    memset(activation, 0, sizeof *activation);
    activation->struct_size = sizeof *activation;
    activation->space = desc->space;
    activation->activation = desc->activation;
    activation->interleaved = desc->interleaved;
    activation->alpha = desc->alpha;
    activation->limit = desc->limit;
    activation->snapshot = desc->input.shape.snapshot;
    activation->input = tegroup_impl_mlp_matrix(preactivation);
    activation->row_scale = tegroup_impl_mlp_row_scale(desc);
    activation->output = tegroup_impl_mlp_matrix(activated);
    activation->threads = desc->options.threads;
}

static inline tegroup_status tegroup_impl_mlp_activation(const tegroup_mlp_desc *desc,
                                                         const tegroup_tensor *preactivation,
                                                         const tegroup_tensor *activated,
                                                         tegroup_activation_desc *activation, tegroup_error *error) {
    tegroup_impl_mlp_describe_activation(desc, preactivation, activated, activation);
    return tegroup_impl_activation_check(activation, tegroup_impl_mlp_activation_names(), error);
}

static inline tegroup_status tegroup_impl_mlp_activation_backward(const tegroup_mlp_desc *desc,
                                                                  const tegroup_tensor *grad_activated,
                                                                  tegroup_activation_backward_desc *activation,
                                                                  tegroup_error *error) {
    tegroup_activation_desc forward;
    tegroup_impl_mlp_describe_activation(desc, &desc->preactivation, &desc->activated, &forward);
    tegroup_impl_activation_backward_of(&forward, activation);
    activation->grad_output = tegroup_impl_mlp_matrix(grad_activated);
    activation->grad_input = tegroup_impl_mlp_matrix(&desc->grad_preactivation);
    activation->grad_row_scale = tegroup_impl_mlp_matrix(&desc->grad_row_scale);
    return tegroup_impl_activation_backward_check(activation, tegroup_impl_mlp_activation_names(), error);
}

/* Whether a call runs its first product fused, as planned. */
static inline tegroup_status tegroup_impl_mlp_check_fused(const tegroup_impl_mlp_call *call, uint32_t bit, int *fused,
                                                          tegroup_error *error) {
    const tegroup_backend backend = call->products[0].plan->backend;
    *fused = (call->plans->planned->fused & bit) != 0;
    TEGROUP_IMPL_RULE(call->desc->fusion != (*fused ? TEGROUP_FUSION_NEVER : TEGROUP_FUSION_REQUIRED), ERROR_PLAN,
                      "fusion", "must be as planned", *fused ? TEGROUP_FUSION_REQUIRED : TEGROUP_FUSION_NEVER,
                      call->desc->fusion);
    TEGROUP_IMPL_RULE(!*fused || backend == TEGROUP_BACKEND_SM90 || backend == TEGROUP_BACKEND_PORTABLE, ERROR_PLAN,
                      "plan", "must have the product that was fused", TEGROUP_BACKEND_SM90, backend);
    return TEGROUP_OK;
}

/* What an epilogue has to do with and no product checks. */
static inline tegroup_status tegroup_impl_mlp_check_epilogue(const tegroup_matrix *m, const char *field,
                                                             tegroup_error *error) {
    TEGROUP_IMPL_RULE(
        tegroup_impl_aligned(m->data, 16) || m->rows == 0 || m->cols == 0, ERROR_ALIGNMENT, field,
        "must be 16-byte aligned for an epilogue; a plan made with options.data_alignment_bytes 2 takes any", 16,
        (uintptr_t)m->data % 16);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_mlp_run(const tegroup_impl_mlp_product *p, struct CUstream_st *stream,
                                                  tegroup_error *error) {
    return tegroup_impl_gemm_run(p->plan, &p->gemm, stream, error);
}

static inline tegroup_status tegroup_impl_mlp_run_fused(const tegroup_impl_mlp_product *p,
                                                        const tegroup_impl_epilogue *epilogue,
                                                        struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_TRY(
        tegroup_impl_backend_of(p->plan->backend)->run_fused(p->plan, &p->gemm, epilogue, stream, error));
#if TEGROUP_IMPL_FUSED_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
    if (p->gemm.op == TEGROUP_OP_DGRAD)
        return tegroup_impl_cuda_row_sums(&epilogue->gradient, (const float *)p->gemm.d.data, stream, error);
#endif
    return TEGROUP_OK;
}

#define TEGROUP_IMPL_BIT(name) (1u << TEGROUP_IMPL_MLP_##name)

/* The calls; run 0: only what they check. */

static inline tegroup_status tegroup_impl_mlp_forward(const tegroup_impl_mlp_plans *plans, size_t workspace_bytes,
                                                      const tegroup_mlp_desc *desc, int run, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    tegroup_impl_mlp_call call;
    tegroup_impl_epilogue epilogue;
    const tegroup_tensor *preactivation =
        desc->preactivation.dtype != TEGROUP_DTYPE_UNSET ? &desc->preactivation : &call.layers.preactivation;
    const tegroup_impl_mlp_product *fc2;
    int fused, i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_begin(&call, plans, desc, TEGROUP_OP_FORWARD, error));
    TEGROUP_IMPL_RULE(tegroup_impl_mlp_keeps(desc) || plans->planned->scratch_activated, ERROR_PLAN, "activated.dtype",
                      "must be as planned", plans->fc2->forward.problem.a, 0);
    tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC1, TEGROUP_OP_FORWARD,
                              TEGROUP_IMPL_BIT(INPUT) | TEGROUP_IMPL_BIT(FC1_WEIGHT) | TEGROUP_IMPL_BIT(FC1_BIAS),
                              TEGROUP_IMPL_BIT(PREACTIVATION));
    if (tegroup_impl_mlp_apart(desc))
        tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC1_UP, TEGROUP_OP_FORWARD,
                                  TEGROUP_IMPL_BIT(FC1_UP_WEIGHT) | TEGROUP_IMPL_BIT(FC1_UP_BIAS), 0);
    fc2 = &call.products[call.count];
    tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC2, TEGROUP_OP_FORWARD,
                              TEGROUP_IMPL_BIT(FC2_WEIGHT) | TEGROUP_IMPL_BIT(FC2_BIAS) | TEGROUP_IMPL_BIT(ROW_SCALE),
                              TEGROUP_IMPL_BIT(OUT) | (tegroup_impl_mlp_keeps(desc) ? TEGROUP_IMPL_BIT(ACTIVATED) : 0));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(&call, workspace_bytes, error));
    memset(&epilogue, 0, sizeof epilogue); /* there is no gradient */
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_activation(desc, preactivation, &fc2->gemm.a, &epilogue.activation, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_fused(&call, TEGROUP_FUSED_FORWARD, &fused, error));
    if (fused) {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.output, "activated.data", error));
        if (desc->preactivation.dtype != TEGROUP_DTYPE_UNSET)
            TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.input, "preactivation.data", error));
    }

    if (!run) return TEGROUP_OK;
    if (fused) {
        epilogue.kernel = plans->planned->activated_kernel;
        epilogue.keeps_d = desc->preactivation.dtype != TEGROUP_DTYPE_UNSET;
        epilogue.up = tegroup_impl_mlp_apart(desc) ? &call.products[1].gemm : NULL;
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run_fused(&call.products[0], &epilogue, stream, error));
    } else {
        for (i = 0; i + 1 < call.count; i++)
            TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[i], stream, error));
        TEGROUP_IMPL_TRY(tegroup_impl_activation_run(&epilogue.activation, stream, error));
    }
    return tegroup_impl_mlp_run(fc2, stream, error);
}

/* fc2's dgrad, then what is wanted of the bias's part of grad_row_scale and of fc1's dgrad. */
static inline void tegroup_impl_mlp_dgrad_products(tegroup_impl_mlp_call *call) {
    const tegroup_mlp_desc *desc = call->desc;
    tegroup_impl_mlp_call_add(call, TEGROUP_MLP_FC2, TEGROUP_OP_DGRAD,
                              TEGROUP_IMPL_BIT(GRAD_OUTPUT) | TEGROUP_IMPL_BIT(FC2_WEIGHT)
                                  | TEGROUP_IMPL_BIT(PREACTIVATION) | TEGROUP_IMPL_BIT(ROW_SCALE),
                              TEGROUP_IMPL_BIT(GRAD_PREACTIVATION) | TEGROUP_IMPL_BIT(GRAD_ROW_SCALE)
                                  | (desc->recompute ? TEGROUP_IMPL_BIT(ACTIVATED) : 0));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_IMPL_LINEAR_ROW_SCALE))
        tegroup_impl_mlp_call_add(call, TEGROUP_MLP_FC2, TEGROUP_IMPL_LINEAR_ROW_SCALE, TEGROUP_IMPL_BIT(FC2_BIAS), 0);
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1, TEGROUP_OP_DGRAD))
        tegroup_impl_mlp_call_add(call, TEGROUP_MLP_FC1, TEGROUP_OP_DGRAD, TEGROUP_IMPL_BIT(FC1_WEIGHT),
                                  TEGROUP_IMPL_BIT(DGRAD_OUT));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1_UP, TEGROUP_OP_DGRAD))
        tegroup_impl_mlp_call_add(call, TEGROUP_MLP_FC1_UP, TEGROUP_OP_DGRAD, TEGROUP_IMPL_BIT(FC1_UP_WEIGHT), 0);
}

/* The activation's gradient follows fc2's dgrad. activated is computed again before its input may be overwritten. */
static inline tegroup_status tegroup_impl_mlp_dgrad(const tegroup_impl_mlp_plans *plans, size_t workspace_bytes,
                                                    const tegroup_mlp_desc *desc, int run, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    tegroup_impl_mlp_call call;
    tegroup_impl_epilogue epilogue;
    int fused, i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_begin(&call, plans, desc, TEGROUP_OP_DGRAD, error));
    tegroup_impl_mlp_dgrad_products(&call);
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(&call, workspace_bytes, error));
    if (desc->recompute)
        TEGROUP_IMPL_TRY(
            tegroup_impl_mlp_activation(desc, &desc->preactivation, &desc->activated, &epilogue.activation, error));
    else {
        tegroup_impl_mlp_describe_activation(desc, &desc->preactivation, &desc->activated, &epilogue.activation);
        /* kernels take from it where ups are, also where activated is absent */
        epilogue.activation.output.cols = call.layers.activated.shape.cols;
    }
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_activation_backward(desc, &call.products[0].gemm.d, &epilogue.gradient, error));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_fused(&call, TEGROUP_FUSED_DGRAD, &fused, error));
    if (fused) {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.input, "preactivation.data", error));
        TEGROUP_IMPL_TRY(
            tegroup_impl_mlp_check_epilogue(&epilogue.gradient.grad_input, "grad_preactivation.data", error));
        if (desc->recompute)
            TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_epilogue(&epilogue.activation.output, "activated.data", error));
    }

    if (!run) return TEGROUP_OK;
    if (fused) {
        epilogue.kernel = plans->planned->gradient_kernel;
        epilogue.keeps_d = 0;
        epilogue.up = NULL;
        epilogue.activates_again = desc->recompute;
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run_fused(&call.products[0], &epilogue, stream, error));
    } else {
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[0], stream, error));
        if (desc->recompute)
            TEGROUP_IMPL_TRY(tegroup_impl_activation_run(&epilogue.activation, stream, error));
        TEGROUP_IMPL_TRY(tegroup_impl_activation_backward_run(&epilogue.gradient, stream, error));
    }
    for (i = 1; i < call.count; i++) TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[i], stream, error));
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_mlp_wgrad(const tegroup_impl_mlp_plans *plans, size_t workspace_bytes,
                                                    const tegroup_mlp_desc *desc, int run, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    tegroup_impl_mlp_call call;
    int i;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_begin(&call, plans, desc, TEGROUP_OP_WGRAD, error));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC2, TEGROUP_OP_WGRAD))
        tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC2, TEGROUP_OP_WGRAD,
                                  TEGROUP_IMPL_BIT(GRAD_OUTPUT) | TEGROUP_IMPL_BIT(ACTIVATED)
                                      | (desc->fc2_bias_scaled && desc->fc2.bias_grad.dtype != TEGROUP_DTYPE_UNSET
                                             ? TEGROUP_IMPL_BIT(ROW_SCALE)
                                             : 0),
                                  TEGROUP_IMPL_BIT(FC2_MAIN_GRAD) | TEGROUP_IMPL_BIT(FC2_BIAS_GRAD));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1, TEGROUP_OP_WGRAD))
        tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC1, TEGROUP_OP_WGRAD,
                                  TEGROUP_IMPL_BIT(GRAD_PREACTIVATION) | TEGROUP_IMPL_BIT(INPUT),
                                  TEGROUP_IMPL_BIT(FC1_MAIN_GRAD) | TEGROUP_IMPL_BIT(FC1_BIAS_GRAD));
    if (tegroup_impl_mlp_wants(desc, TEGROUP_MLP_FC1_UP, TEGROUP_OP_WGRAD))
        tegroup_impl_mlp_call_add(&call, TEGROUP_MLP_FC1_UP, TEGROUP_OP_WGRAD, 0,
                                  TEGROUP_IMPL_BIT(FC1_UP_MAIN_GRAD) | TEGROUP_IMPL_BIT(FC1_UP_BIAS_GRAD));
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_call(&call, workspace_bytes, error));
    for (i = 0; i < call.count && run; i++) TEGROUP_IMPL_TRY(tegroup_impl_mlp_run(&call.products[i], stream, error));
    return TEGROUP_OK;
}
#undef TEGROUP_IMPL_BIT

static inline tegroup_status tegroup_impl_mlp_run_op(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                                     tegroup_op op, struct CUstream_st *stream, tegroup_error *error) {
    tegroup_mlp_desc taken;
    tegroup_impl_mlp_plans plans;
    TEGROUP_IMPL_TRY(tegroup_impl_mlp_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    plans = tegroup_impl_mlp_plans_of(plan);
    switch (op) {
    case TEGROUP_OP_FORWARD: return tegroup_impl_mlp_forward(&plans, plan->workspace_bytes, desc, 1, stream, error);
    case TEGROUP_OP_DGRAD: return tegroup_impl_mlp_dgrad(&plans, plan->workspace_bytes, desc, 1, stream, error);
    default: return tegroup_impl_mlp_wgrad(&plans, plan->wgrad_workspace_bytes, desc, 1, stream, error);
    }
}

TEGROUP_API tegroup_status tegroup_mlp_forward(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                               struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_mlp_run_op(plan, desc, TEGROUP_OP_FORWARD, stream, error);
}

TEGROUP_API tegroup_status tegroup_mlp_dgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_mlp_run_op(plan, desc, TEGROUP_OP_DGRAD, stream, error);
}

TEGROUP_API tegroup_status tegroup_mlp_wgrad(const tegroup_mlp_plan *plan, const tegroup_mlp_desc *desc,
                                             struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_mlp_run_op(plan, desc, TEGROUP_OP_WGRAD, stream, error);
}

/* ==== [73] Op chain: rules and buffers (src/layer/chain_rules.h) ==== */

/* A descriptor resolved: what each op is given, and what lies between ops. values[i] is what op i reads and values[i +
 * 1] what it writes; grads are their gradients, absent where none is computed. */
typedef struct tegroup_impl_chain {
    int32_t at;                                              /* the op that is being looked at; -1 = the chain */
    uint32_t named;                                          /* bit i: op i has an argument */
    tegroup_chain_argument arguments[TEGROUP_CHAIN_MAX_OPS]; /* zero where it has none */
    tegroup_tensor values[TEGROUP_CHAIN_MAX_VALUES], grads[TEGROUP_CHAIN_MAX_VALUES];
    const char *reasons[TEGROUP_CHAIN_MAX_OPS]; /* why an activation is not part of a grouped MLP */
    uint32_t fused;                             /* as in the plan */
    size_t saved_bytes;                         /* of what lies in `saved` */
} tegroup_impl_chain;

#define TEGROUP_IMPL_THERE(t) ((t).dtype != TEGROUP_DTYPE_UNSET)

static inline int tegroup_impl_chain_backward(const tegroup_chain_desc *desc) {
    return TEGROUP_IMPL_THERE(desc->grad_output);
}

/* Rows between ops, and arguments that stand for them: [rows, cols] as the chain's input is, in one contiguous
 * buffer. */
static inline tegroup_status tegroup_impl_chain_check_rows(const tegroup_chain_desc *desc, const tegroup_tensor *t,
                                                           int64_t cols, const char *const *paths,
                                                           tegroup_error *error) {
    const tegroup_shape *shape = &t->shape, *like = &desc->input.shape;
    TEGROUP_IMPL_RULE_AS(DTYPE, TEGROUP_IMPL_THERE(*t), ERROR_UNSET, paths[TEGROUP_IMPL_MEMBER_DTYPE], "must be set",
                         TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE_ENUM(t->dtype, TEGROUP_DTYPE_COUNT - 1, paths[TEGROUP_IMPL_MEMBER_DTYPE],
                           "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_FLOATS >> t->dtype & 1u, ERROR_DTYPE, paths[TEGROUP_IMPL_MEMBER_DTYPE],
                         "must be one that rows between ops have", TEGROUP_IMPL_FLOATS, t->dtype);
    TEGROUP_IMPL_RULE(shape->groups == like->groups, ERROR_SHAPE, paths[TEGROUP_IMPL_MEMBER_GROUPS],
                      "must equal input.shape.groups", like->groups, shape->groups);
    TEGROUP_IMPL_RULE(shape->rows == like->rows, ERROR_SHAPE, paths[TEGROUP_IMPL_MEMBER_ROWS],
                      "must equal input.shape.rows", like->rows, shape->rows);
    TEGROUP_IMPL_RULE(shape->cols == cols, ERROR_SHAPE, paths[TEGROUP_IMPL_MEMBER_COLS],
                      "must equal the columns that the ops give it", cols, shape->cols);
    TEGROUP_IMPL_RULE(t->ld == 0 || t->ld == cols, ERROR_LAYOUT, paths[TEGROUP_IMPL_MEMBER_LD],
                      "must be 0 or shape.cols: what lies between ops is contiguous", cols, t->ld);
    TEGROUP_IMPL_RULE(!tegroup_impl_listed(t), ERROR_UNSUPPORTED, paths[TEGROUP_IMPL_MEMBER_POINTERS_SPACE],
                      "must be unset: rows are one buffer", 0, t->pointers_space);
    TEGROUP_IMPL_RULE(!t->pointers, ERROR_UNSUPPORTED, paths[TEGROUP_IMPL_MEMBER_POINTERS],
                      "must be NULL: rows are one buffer", 0, 1);
    TEGROUP_IMPL_RULE(t->group_stride == 0, ERROR_COMBINATION, paths[TEGROUP_IMPL_MEMBER_GROUP_STRIDE],
                      "does not go with row_sizes", 0, t->group_stride);
    TEGROUP_IMPL_RULE(t->scaling == TEGROUP_SCALING_NONE, ERROR_UNSUPPORTED, paths[TEGROUP_IMPL_MEMBER_SCALING],
                      "must be 0: rows between ops are not quantised", TEGROUP_SCALING_NONE, t->scaling);
    return TEGROUP_OK;
}

/* An optional tensor is there by its dtype; one that has memory and none was not meant to be dropped. */
static inline tegroup_status tegroup_impl_chain_check_there(const tegroup_tensor *t, const char *field,
                                                            tegroup_error *error) {
    TEGROUP_IMPL_RULE_AS(DTYPE, TEGROUP_IMPL_THERE(*t) || (!t->data && !t->pointers), ERROR_UNSET, field,
                         "must be set with data", TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_RULE_ENUM(t->dtype, TEGROUP_DTYPE_COUNT - 1, field, "must be a tegroup_dtype");
    return TEGROUP_OK;
}

/* Rows with op i's routing: the sizes of the chain's input, and its snapshot unless the op has one. */
static inline const void *tegroup_impl_chain_snapshot(const tegroup_impl_chain *chain, int32_t i) {
    const void *given = chain->arguments[i].snapshot;
    return given ? given : chain->values[0].shape.snapshot;
}

static inline tegroup_tensor tegroup_impl_chain_rows(const tegroup_impl_chain *chain, int32_t i,
                                                     const tegroup_tensor *rows) {
    tegroup_tensor t = *rows;
    if (!TEGROUP_IMPL_THERE(t)) return t;
    t.shape = chain->values[0].shape;
    t.shape.cols = rows->shape.cols;
    t.shape.snapshot = tegroup_impl_chain_snapshot(chain, i);
    return t;
}

/* An op by itself, and which arguments it takes. */
static inline tegroup_status tegroup_impl_chain_check_op(const tegroup_chain_desc *desc,
                                                         const tegroup_impl_chain *chain, int32_t i,
                                                         tegroup_error *error) {
    static const char *const grad_row_scale[] = TEGROUP_IMPL_PATHS("arguments.grad_row_scale");
    const tegroup_chain_op *op = &desc->ops[i];
    const tegroup_chain_argument *given = &chain->arguments[i];
    const int scales =
        op->kind == TEGROUP_CHAIN_LINEAR || op->kind == TEGROUP_CHAIN_ACTIVATION || op->kind == TEGROUP_CHAIN_SCALE;
    TEGROUP_IMPL_RULE(op->kind != TEGROUP_CHAIN_UNSET, ERROR_UNSET, "ops.kind", "must be set", TEGROUP_CHAIN_LINEAR, 0);
    TEGROUP_IMPL_RULE_ENUM(op->kind, TEGROUP_CHAIN_USER, "ops.kind", "must be a tegroup_chain_kind");
    TEGROUP_IMPL_TRY(tegroup_impl_check_real(given->row_scale_dtype, "arguments.row_scale_dtype", error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&given->out, "arguments.out.dtype", error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&given->grad_input, "arguments.grad_input.dtype", error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&given->grad_row_scale, "arguments.grad_row_scale.dtype", error));
    if (op->kind == TEGROUP_CHAIN_LINEAR || op->kind == TEGROUP_CHAIN_BIAS) {
        TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&op->weights.bias, "bias.dtype", error));
        TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&op->weights.bias_grad, "bias_grad.dtype", error));
    }
    if (op->kind == TEGROUP_CHAIN_LINEAR)
        TEGROUP_IMPL_TRY(tegroup_impl_chain_check_there(&op->weights.main_grad, "main_grad.dtype", error));
    if (op->kind == TEGROUP_CHAIN_ACTIVATION)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_activation_kind(op->activation, op->interleaved, op->alpha, op->limit, error));
    if (op->kind == TEGROUP_CHAIN_LINEAR) { /* its outputs become columns */
        TEGROUP_IMPL_RULE_AS(DTYPE, TEGROUP_IMPL_THERE(op->weights.weight), ERROR_UNSET, "weight.dtype", "must be set",
                             TEGROUP_DTYPE_F64, 0);
        TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&op->weights.weight,
                                                   tegroup_impl_linear_name(TEGROUP_IMPL_LINEAR_WEIGHT), error));
        TEGROUP_IMPL_RULE_ENUM(op->weights.weight_layout, TEGROUP_WEIGHT_IN_OUT, "weight_layout",
                               "must be a tegroup_weight_layout");
    }
    if (op->kind == TEGROUP_CHAIN_BIAS) {
        const tegroup_tensor *bias = &op->weights.bias, *bias_grad = &op->weights.bias_grad;
        const int32_t groups = desc->input.shape.groups;
        TEGROUP_IMPL_RULE_AS(DTYPE, TEGROUP_IMPL_THERE(*bias), ERROR_UNSET, "bias.dtype", "must be set",
                             TEGROUP_DTYPE_F64, 0);
        TEGROUP_IMPL_RULE(bias->shape.groups == groups, ERROR_SHAPE, "bias.shape.groups",
                          "must equal input.shape.groups", groups, bias->shape.groups);
        TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(*bias_grad) || bias_grad->shape.groups == groups, ERROR_SHAPE,
                          "bias_grad.shape.groups", "must equal input.shape.groups", groups, bias_grad->shape.groups);
        TEGROUP_IMPL_RULE_AS(DTYPE, !TEGROUP_IMPL_THERE(given->out) || given->out.dtype == chain->values[i].dtype,
                             ERROR_DTYPE, "arguments.out.dtype", "must be that of a BIAS's input",
                             chain->values[i].dtype, given->out.dtype);
    }
    if (op->kind == TEGROUP_CHAIN_SCALE)
        TEGROUP_IMPL_RULE_AS(DTYPE, given->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET,
                             "arguments.row_scale_dtype", "must be set for a SCALE", TEGROUP_DTYPE_F32, 0);
    if (op->kind == TEGROUP_CHAIN_USER) {
        TEGROUP_IMPL_RULE(op->forward != NULL, ERROR_NULL_ARGUMENT, "ops.forward", "must not be NULL", 1, 0);
        TEGROUP_IMPL_RULE(op->backward != NULL || !tegroup_impl_chain_backward(desc), ERROR_NULL_ARGUMENT,
                          "ops.backward", "must not be NULL with grad_output", 1, 0);
        TEGROUP_IMPL_RULE(op->cols >= 0 && op->cols <= TEGROUP_MAX_COLS, ERROR_VALUE, "ops.cols",
                          "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, op->cols);
    }
    TEGROUP_IMPL_RULE(op->kind != TEGROUP_CHAIN_BIAS || !TEGROUP_IMPL_THERE(given->grad_input), ERROR_COMBINATION,
                      "arguments.grad_input", "is not taken by a BIAS: it is the gradient of its output", 0, 1);
    TEGROUP_IMPL_RULE(scales || given->row_scale_dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION,
                      "arguments.row_scale_dtype", "is not taken by this op", 0, given->row_scale_dtype);
    TEGROUP_IMPL_RULE_AS(DTYPE, !given->row_scale || given->row_scale_dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET,
                         "arguments.row_scale_dtype", "must be set with row_scale", TEGROUP_DTYPE_F32, 0);
    TEGROUP_IMPL_RULE(op->kind != TEGROUP_CHAIN_LINEAR || given->row_scale_dtype == TEGROUP_DTYPE_UNSET
                          || TEGROUP_IMPL_THERE(op->weights.bias),
                      ERROR_COMBINATION, "arguments.row_scale_dtype", "is not taken by a LINEAR without bias", 0,
                      given->row_scale_dtype);
    TEGROUP_IMPL_RULE(!TEGROUP_IMPL_THERE(given->grad_row_scale) || given->row_scale_dtype != TEGROUP_DTYPE_UNSET,
                      ERROR_COMBINATION, "arguments.grad_row_scale", "needs row_scale", 1, 0);
    TEGROUP_IMPL_RULE(op->kind != TEGROUP_CHAIN_USER || !given->snapshot, ERROR_COMBINATION, "arguments.snapshot",
                      "is not taken by a USER op", 0, 1);
    TEGROUP_IMPL_RULE(tegroup_impl_chain_backward(desc)
                          || (!TEGROUP_IMPL_THERE(given->grad_input) && !TEGROUP_IMPL_THERE(given->grad_row_scale)),
                      ERROR_COMBINATION,
                      TEGROUP_IMPL_THERE(given->grad_input) ? "arguments.grad_input" : "arguments.grad_row_scale",
                      "needs grad_output", 1, 0);
    TEGROUP_IMPL_RULE(i > 0 || TEGROUP_IMPL_THERE(given->grad_input) || !TEGROUP_IMPL_THERE(given->grad_row_scale),
                      ERROR_COMBINATION, "arguments.grad_row_scale", "needs grad_input in the first op", 1, 0);
    if (!TEGROUP_IMPL_THERE(given->grad_row_scale)) return TEGROUP_OK;
    if (op->kind != TEGROUP_CHAIN_LINEAR)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_real(given->grad_row_scale.dtype, grad_row_scale[TEGROUP_IMPL_MEMBER_DTYPE], error));
    return tegroup_impl_chain_check_rows(desc, &given->grad_row_scale, 1, grad_row_scale, error);
}

static inline int64_t tegroup_impl_chain_cols(const tegroup_chain_op *op, int64_t cols) {
    if (op->kind == TEGROUP_CHAIN_LINEAR) 
        return tegroup_impl_weight_out(&op->weights.weight, op->weights.weight_layout);
    if (op->kind == TEGROUP_CHAIN_ACTIVATION && tegroup_impl_gated(op->activation)) return cols / 2;
    return op->kind == TEGROUP_CHAIN_USER && op->cols > 0 ? op->cols : cols;
}

/* NULL, or why the activation at i + 1 and its neighbours are no grouped MLP: what the MLP cannot give. */
static inline const char *tegroup_impl_chain_unfit(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                   int32_t i) {
    const tegroup_chain_argument *first, *middle, *last;
    if (desc->unfused) return "the fusion pass is turned off";
    if (i < 0 || i + 2 >= desc->op_count || desc->ops[i].kind != TEGROUP_CHAIN_LINEAR
        || desc->ops[i + 2].kind != TEGROUP_CHAIN_LINEAR)
        return "it does not lie between two linears";
    if (i > 0 && (chain->fused >> (i - 1) & 1u || (i > 1 && chain->fused >> (i - 2) & 1u)))
        return "the linear before it is part of a grouped MLP already";
    first = &chain->arguments[i];
    middle = first + 1;
    last = first + 2;
    if (first->row_scale_dtype != TEGROUP_DTYPE_UNSET) return "the linear before it scales its bias";
    if (last->row_scale_dtype != TEGROUP_DTYPE_UNSET && last->row_scale_dtype != middle->row_scale_dtype)
        return "the linear after it scales its bias by other numbers";
    if (last->row_scale_dtype != TEGROUP_DTYPE_UNSET
        && (TEGROUP_IMPL_THERE(last->grad_row_scale) || TEGROUP_IMPL_THERE(middle->grad_row_scale)))
        return "the gradients of its row_scale and of its bias's are wanted by themselves";
    if (TEGROUP_IMPL_THERE(last->grad_input)) return "the gradient of what it gives is wanted";
    if (tegroup_impl_chain_backward(desc) && chain->values[i + 2].dtype != desc->input.dtype)
        return "what it gives has another dtype than the chain's input";
    return NULL;
}

/* ... and what their addresses say. A plan may be made without them: NULL is then the same as any. */
static inline int tegroup_impl_chain_differ(const void *a, const void *b) { return a && b && a != b; }

static inline const char *tegroup_impl_chain_unlike(const tegroup_impl_chain *chain, int32_t i) {
    const tegroup_chain_argument *middle = &chain->arguments[i + 1], *last = middle + 1;
    const void *snapshots[3];
    int32_t j;
    for (j = 0; j < 3; j++) snapshots[j] = tegroup_impl_chain_snapshot(chain, i + j);
    if (last->row_scale_dtype != TEGROUP_DTYPE_UNSET && tegroup_impl_chain_differ(last->row_scale, middle->row_scale))
        return "the linear after it scales its bias by other numbers";
    if (chain->values[i + 2].data && chain->values[i + 2].data == chain->values[i + 1].data) return "it works in place";
    for (j = 0; j < 3; j++)
        if (tegroup_impl_chain_differ(snapshots[j], snapshots[(j + 1) % 3]))
            return "it and its neighbours have different routings";
    return NULL;
}

/* At a call there are addresses, and what the plan fused must be given one routing and one row_scale. */
static inline tegroup_status tegroup_impl_chain_check_alike(const tegroup_chain_desc *desc, tegroup_impl_chain *chain,
                                                            tegroup_error *error) {
    int32_t i, j;
    for (i = 0; i < desc->op_count; i++) {
        const tegroup_chain_argument *given = &chain->arguments[i];
        if (!(chain->fused >> i & 1u)) continue;
        for (j = i + 1; j < i + 3; j++) {
            chain->at = j;
            TEGROUP_IMPL_RULE(
                tegroup_impl_chain_snapshot(chain, j) == tegroup_impl_chain_snapshot(chain, i), ERROR_PLAN,
                "arguments.snapshot",
                "must be that of the op before: the plan fused them. Plan with both snapshots, or unfused", 0, 1);
        }
        TEGROUP_IMPL_RULE(given[2].row_scale_dtype == TEGROUP_DTYPE_UNSET || given[2].row_scale == given[1].row_scale,
                          ERROR_PLAN, "arguments.row_scale",
                          "must be that of the op before: the plan fused them. Plan with both, or unfused", 0, 1);
    }
    chain->at = -1;
    return TEGROUP_OK;
}

/* The descriptor's own numbers, and its input. */
static inline tegroup_status tegroup_impl_chain_check_desc(const tegroup_chain_desc *desc, tegroup_error *error) {
    static const char *const input[] = TEGROUP_IMPL_PATHS("input");
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_options(&desc->options, error));
    TEGROUP_IMPL_RULE(desc->ops != NULL, ERROR_NULL_ARGUMENT, "ops", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->op_count >= 1 && desc->op_count <= TEGROUP_CHAIN_MAX_OPS, ERROR_VALUE, "op_count",
                      "must be 1 to TEGROUP_CHAIN_MAX_OPS", TEGROUP_CHAIN_MAX_OPS, desc->op_count);
    TEGROUP_IMPL_RULE(desc->argument_count >= 0, ERROR_VALUE, "argument_count", "must not be negative", 0,
                      desc->argument_count);
    TEGROUP_IMPL_RULE(desc->argument_count <= desc->op_count, ERROR_VALUE, "argument_count",
                      "must be at most op_count: an op is named once", desc->op_count, desc->argument_count);
    TEGROUP_IMPL_RULE(desc->arguments || desc->argument_count == 0, ERROR_NULL_ARGUMENT, "arguments",
                      "must not be NULL with argument_count", 1, 0);
    TEGROUP_IMPL_RULE(desc->unfused == 0 || desc->unfused == 1, ERROR_VALUE, "unfused", "must be 0 or 1", 1,
                      desc->unfused);
    TEGROUP_IMPL_RULE(desc->accumulate == 0 || desc->accumulate == 1, ERROR_VALUE, "accumulate", "must be 0 or 1", 1,
                      desc->accumulate);
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_rows(desc, &desc->input, desc->input.shape.cols, input, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_tensor(&desc->input, tegroup_impl_linear_name(TEGROUP_IMPL_LINEAR_INPUT), error));
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&desc->input.shape), ERROR_UNSET, "input.shape.row_sizes.encoding",
                      "must be set: a chain's rows are ragged", TEGROUP_ENCODING_COUNTS, 0);
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&desc->input.shape), ERROR_UNSUPPORTED, "input.shape.col_sizes.encoding",
                      "must be unset: a chain's groups have one width", 0, 1);
    return tegroup_impl_chain_check_there(&desc->grad_output, "grad_output.dtype", error);
}

/* Each op gets its argument. */
static inline tegroup_status tegroup_impl_chain_take_arguments(const tegroup_chain_desc *desc,
                                                               tegroup_impl_chain *chain, tegroup_error *error) {
    int32_t i;
    for (i = 0; i < desc->argument_count; i++) {
        const tegroup_chain_argument *given = &desc->arguments[i];
        chain->at = -1;
        TEGROUP_IMPL_RULE(given->op >= 0 && given->op < desc->op_count, ERROR_VALUE, "arguments.op",
                          "must be the index of an op", desc->op_count - 1, given->op);
        chain->at = given->op;
        TEGROUP_IMPL_RULE(!(chain->named >> given->op & 1u), ERROR_COMBINATION, "arguments.op",
                          "must not be named twice", 1, 2);
        chain->arguments[given->op] = *given;
        chain->named |= 1u << given->op;
    }
    return TEGROUP_OK;
}

/* What each op gives: in its argument, or in `saved`. */
static inline tegroup_status tegroup_impl_chain_resolve_values(const tegroup_chain_desc *desc,
                                                               tegroup_impl_chain *chain, tegroup_error *error) {
    static const char *const out[] = TEGROUP_IMPL_PATHS("arguments.out");
    tegroup_layout saved;
    int32_t i;
    tegroup_impl_layout_begin(&saved);
    chain->values[0] = desc->input;
    for (i = 0; i < desc->op_count; i++) {
        const tegroup_chain_argument *given = &chain->arguments[i];
        const tegroup_chain_op *op = &desc->ops[i];
        const int64_t cols = chain->values[i].shape.cols;
        tegroup_tensor *value = &chain->values[i + 1];
        chain->at = i;
        TEGROUP_IMPL_TRY(tegroup_impl_chain_check_op(desc, chain, i, error));
        chain->arguments[i].grad_row_scale = tegroup_impl_chain_rows(chain, i, &given->grad_row_scale);
        if (op->kind == TEGROUP_CHAIN_ACTIVATION || op->kind == TEGROUP_CHAIN_SCALE)
            TEGROUP_IMPL_TRY(tegroup_impl_activation_check_sizes(desc->space, &desc->input.shape, error));
        TEGROUP_IMPL_RULE(op->kind != TEGROUP_CHAIN_ACTIVATION || !tegroup_impl_gated(op->activation) || cols % 2 == 0,
                          ERROR_SHAPE, "ops.activation", "needs an even number of columns: gate and up", cols + 1,
                          cols);
        *value = desc->input;
        value->shape.cols = tegroup_impl_chain_cols(op, cols);
        value->ld = 0;
        if (TEGROUP_IMPL_THERE(given->out)) {
            TEGROUP_IMPL_TRY(tegroup_impl_chain_check_rows(desc, &given->out, value->shape.cols, out, error));
            value->dtype = given->out.dtype;
            value->data = given->out.data;
            continue;
        }
        TEGROUP_IMPL_RULE_AS(DTYPE, i + 1 < desc->op_count, ERROR_UNSET, "arguments.out.dtype",
                             "must be set for the last op", TEGROUP_DTYPE_F64, 0);
        value->data =
            desc->saved && !tegroup_impl_layout_overflowed(&saved) ? (char *)desc->saved + saved.total_bytes : NULL;
        tegroup_impl_layout_add(&saved, "what an op gave", tegroup_impl_extent_bytes(value));
    }
    chain->saved_bytes = saved.total_bytes;
    return TEGROUP_OK;
}

/* Which ops run as a grouped MLP. planned: what a call's plan fused; NULL = to be found out. */
static inline void tegroup_impl_chain_fuse(const tegroup_chain_desc *desc, const uint32_t *planned,
                                           tegroup_impl_chain *chain) {
    int32_t i;
    for (i = 0; i < desc->op_count; i++) {
        if (desc->ops[i].kind != TEGROUP_CHAIN_ACTIVATION) continue;
        chain->reasons[i] = tegroup_impl_chain_unfit(desc, chain, i - 1);
        if (!chain->reasons[i] && !planned) chain->reasons[i] = tegroup_impl_chain_unlike(chain, i - 1);
        if (!chain->reasons[i] && (!planned || (*planned >> (i - 1) & 1u))) chain->fused |= 1u << (i - 1);
    }
}

/* Gradients between ops lie in this many buffers by turns: an op reads one while it writes another, and a third holds
 * what a BIAS hands on. */
#define TEGROUP_IMPL_CHAIN_TURNS 3

/* Bytes of contiguous rows; INT64_MAX: too many. */
static inline int64_t tegroup_impl_rows_bytes(int64_t rows, int64_t cols, tegroup_dtype dtype) {
    return tegroup_impl_mul(tegroup_impl_mul(rows, cols), tegroup_impl_bits(dtype) / 8);
}

/* The gradient of what each op was given: in its argument, or in one of the buffers that begin at `gradients`. */
static inline tegroup_status tegroup_impl_chain_resolve_grads(const tegroup_chain_desc *desc, char *gradients,
                                                              tegroup_impl_chain *chain, tegroup_error *error) {
    static const char *const grad_input[] = TEGROUP_IMPL_PATHS("arguments.grad_input"), *const grad_output[] =
                                                                                            TEGROUP_IMPL_PATHS(
                                                                                                "grad_output");
    int64_t most = 0;
    int32_t i, turn = 0;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_rows(desc, &desc->grad_output, chain->values[desc->op_count].shape.cols,
                                                   grad_output, error));
    chain->grads[desc->op_count] = desc->grad_output;
    chain->grads[desc->op_count].shape = chain->values[desc->op_count].shape;
    for (i = 1; i <= desc->op_count; i++) most = tegroup_impl_max(most, chain->values[i].shape.cols);
    most =
        tegroup_impl_align(tegroup_impl_rows_bytes(desc->input.shape.rows, most, desc->input.dtype), TEGROUP_ALIGNMENT);
    if (most > tegroup_impl_max_bytes() / TEGROUP_IMPL_CHAIN_TURNS) gradients = NULL; /* the plan is refused */
    for (i = desc->op_count - 1; i >= 0; i--) {
        const tegroup_chain_argument *given = &chain->arguments[i];
        tegroup_tensor *grad = &chain->grads[i];
        chain->at = i;
        if (i >= 2 && chain->fused >> (i - 2) & 1u) continue; /* the MLP's own */
        if (desc->ops[i].kind == TEGROUP_CHAIN_BIAS) {
            *grad = chain->grads[i + 1];
            continue;
        }
        if (i == 0 && !TEGROUP_IMPL_THERE(given->grad_input)) continue;
        *grad = chain->values[i];
        grad->ld = 0;
        if (TEGROUP_IMPL_THERE(given->grad_input)) {
            TEGROUP_IMPL_TRY(tegroup_impl_chain_check_rows(desc, &given->grad_input, chain->values[i].shape.cols,
                                                           grad_input, error));
            grad->dtype = given->grad_input.dtype;
            grad->data = given->grad_input.data;
            continue;
        }
        grad->dtype = desc->input.dtype;
        grad->data = gradients ? gradients + turn * most : NULL;
        turn = (turn + 1) % TEGROUP_IMPL_CHAIN_TURNS;
    }
    return TEGROUP_OK;
}

/* Everything about a descriptor but its products. planned: what a call's plan fused; NULL = to be found out. gradients:
 * where those between ops begin, or NULL. */
static inline tegroup_status tegroup_impl_chain_resolve(const tegroup_chain_desc *desc, const uint32_t *planned,
                                                        char *gradients, tegroup_impl_chain *chain,
                                                        tegroup_error *error) {
    memset(chain, 0, sizeof *chain);
    chain->at = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_desc(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_take_arguments(desc, chain, error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve_values(desc, chain, error));
    tegroup_impl_chain_fuse(desc, planned, chain);
    chain->at = -1;
    if (tegroup_impl_chain_backward(desc))
        TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve_grads(desc, gradients, chain, error));
    chain->at = -1;
    return TEGROUP_OK;
}

/* The buffers of a chain's call, and the op that each is of. */
#define TEGROUP_IMPL_CHAIN_BUFFERS (9 * TEGROUP_CHAIN_MAX_OPS + 4)
typedef struct tegroup_impl_chain_buffers {
    tegroup_impl_buffer all[TEGROUP_IMPL_CHAIN_BUFFERS];
    int32_t at[TEGROUP_IMPL_CHAIN_BUFFERS], count;
    int32_t next; /* the buffer of what the next op reads, backward its gradient; -1: in saved or the workspace */
} tegroup_impl_chain_buffers;

static inline void tegroup_impl_chain_add(tegroup_impl_chain_buffers *buffers, tegroup_impl_buffer buffer, int32_t at) {
    buffers->at[buffers->count] = at;
    buffers->all[buffers->count++] = buffer;
}

/* A tensor that errors call `field`, and other buffers' errors "another buffer of the chain". */
static inline void tegroup_impl_chain_add_tensor(tegroup_impl_chain_buffers *buffers, const tegroup_tensor *t,
                                                 const char *field, int32_t at, int writes) {
    tegroup_impl_buffer buffer =
        tegroup_impl_tensor_buffer(t, tegroup_impl_linear_name(TEGROUP_IMPL_LINEAR_INPUT), writes);
    buffer.field = field;
    buffer.apart = "must not overlap another buffer of the chain";
    tegroup_impl_chain_add(buffers, buffer, at);
}

/* Does op i put its results where it reads them from? */
static inline int tegroup_impl_chain_in_place(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                              int32_t i, int backward) {
    const void *from = backward ? chain->grads[i + 1].data : chain->values[i].data,
               *to = backward ? chain->grads[i].data : chain->values[i + 1].data;
    return to && to == from && !(backward && desc->ops[i].kind == TEGROUP_CHAIN_BIAS); /* which hands the gradient on */
}

/* It may where each element comes from the one that lies there and, forward, its backward does not read that one
 * again. */
static inline tegroup_status tegroup_impl_chain_check_in_place(const tegroup_chain_desc *desc,
                                                               const tegroup_impl_chain *chain, int32_t i, int backward,
                                                               tegroup_error *error) {
    const tegroup_chain_op *op = &desc->ops[i];
    const tegroup_dtype from = backward ? chain->grads[i + 1].dtype : chain->values[i].dtype,
                        to = backward ? chain->grads[i].dtype : chain->values[i + 1].dtype;
    const int by_element = op->kind == TEGROUP_CHAIN_BIAS || op->kind == TEGROUP_CHAIN_SCALE
                           || (op->kind == TEGROUP_CHAIN_ACTIVATION && !tegroup_impl_gated(op->activation)
                               && (i == 0 || !(chain->fused >> (i - 1) & 1u))),
              read_again = !backward
                           && (op->kind == TEGROUP_CHAIN_SCALE
                                   ? TEGROUP_IMPL_THERE(chain->arguments[i].grad_row_scale)
                                   : op->kind == TEGROUP_CHAIN_ACTIVATION && TEGROUP_IMPL_THERE(chain->grads[i]));
    TEGROUP_IMPL_RULE(
        !tegroup_impl_chain_in_place(desc, chain, i, backward) || (by_element && !read_again && from == to),
        ERROR_OVERLAP, backward ? "arguments.grad_input.data" : "arguments.out.data",
        backward ? "must not overlap the gradient that its op reads, unless it is that with the same dtype, "
                   "of a SCALE or an ACTIVATION without gate"
                 : "must not overlap what its op reads, unless it is that with the same dtype, of a BIAS, a "
                   "SCALE or an ACTIVATION without gate, and backward does not read it again",
        0, 1);
    return TEGROUP_OK;
}

/* Where op i puts its results: a buffer of its own, or the one that it reads, which is then written. */
static inline void tegroup_impl_chain_add_results(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                  int32_t i, int backward, tegroup_impl_chain_buffers *buffers) {
    const tegroup_chain_argument *given = &chain->arguments[i];
    if (backward && desc->ops[i].kind == TEGROUP_CHAIN_BIAS) return; /* it hands the gradient on */
    if (!TEGROUP_IMPL_THERE(*(backward ? &given->grad_input : &given->out))) buffers->next = -1;
    else if (buffers->next >= 0 && tegroup_impl_chain_in_place(desc, chain, i, backward))
        buffers->all[buffers->next].writes = 1;
    else {
        buffers->next = buffers->count;
        if (backward) tegroup_impl_chain_add_tensor(buffers, &chain->grads[i], "arguments.grad_input.data", i, 1);
        else tegroup_impl_chain_add_tensor(buffers, &chain->values[i + 1], "arguments.out.data", i, 1);
    }
}

/* What op i touches in this direction. */
static inline void tegroup_impl_chain_op_buffers(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                 int32_t i, int backward, tegroup_impl_chain_buffers *buffers) {
    const tegroup_chain_op *op = &desc->ops[i];
    const tegroup_mlp_weights *weights = &op->weights;
    const tegroup_chain_argument *given = &chain->arguments[i];
    const tegroup_tensor rows = tegroup_impl_chain_rows(chain, i, &desc->input);
    const int wants_dx = TEGROUP_IMPL_THERE(chain->grads[i]) || (i >= 2 && (chain->fused >> (i - 2) & 1u)),
              linear = op->kind == TEGROUP_CHAIN_LINEAR, has_bias = linear || op->kind == TEGROUP_CHAIN_BIAS;
    tegroup_impl_chain_add(buffers, tegroup_impl_snapshot_buffer(&rows), i);
    if (linear && (!backward || wants_dx)) /* a list that is not read may dangle */
        tegroup_impl_chain_add_tensor(buffers, &weights->weight, "weight.data", i, 0);
    if (has_bias && (!backward || TEGROUP_IMPL_THERE(given->grad_row_scale)))
        tegroup_impl_chain_add_tensor(buffers, &weights->bias, "bias.data", i, 0);
    if (has_bias && backward) tegroup_impl_chain_add_tensor(buffers, &weights->bias_grad, "bias_grad.data", i, 1);
    if (linear && backward) tegroup_impl_chain_add_tensor(buffers, &weights->main_grad, "main_grad.data", i, 1);
    tegroup_impl_chain_add_results(desc, chain, i, backward, buffers);
    if (backward && TEGROUP_IMPL_THERE(given->out) && i + 1 < desc->op_count) /* what the last gave is not read */
        tegroup_impl_chain_add_tensor(buffers, &chain->values[i + 1], "arguments.out.data", i, 0);
    if (given->row_scale_dtype != TEGROUP_DTYPE_UNSET)
        tegroup_impl_chain_add(buffers,
                               tegroup_impl_buffer_of(given->row_scale,
                                                      tegroup_impl_mul(desc->input.shape.rows,
                                                                       tegroup_impl_bits(given->row_scale_dtype) / 8),
                                                      "arguments.row_scale",
                                                      "must not overlap another buffer of the chain", 0),
                               i);
    if (!backward) return;
    tegroup_impl_chain_add_tensor(buffers, &given->grad_row_scale, "arguments.grad_row_scale.data", i, 1);
}

/* What a call writes, apart from all that it touches: products and activations see to their own operands, this to those
 * of other ops, to every op's snapshot, and to the caller's two large buffers. Gradients between ops are in the
 * workspace or an argument. */
static inline tegroup_status tegroup_impl_chain_check_apart(const tegroup_chain_desc *desc, tegroup_impl_chain *chain,
                                                            size_t workspace_bytes, int backward,
                                                            tegroup_check_level level, tegroup_error *error) {
    tegroup_impl_chain_buffers buffers;
    tegroup_status status;
    int32_t i, about = 0;
    buffers.count = 0;
    tegroup_impl_chain_add_tensor(&buffers, &desc->input, "input.data", -1, 0);
    if (backward) tegroup_impl_chain_add_tensor(&buffers, &chain->grads[desc->op_count], "grad_output.data", -1, 0);
    buffers.next = buffers.count - 1;
    for (i = 0; i < desc->op_count; i++) {
        chain->at = i;
        TEGROUP_IMPL_TRY(tegroup_impl_chain_check_in_place(desc, chain, i, backward, error));
    }
    for (i = 0; i < desc->op_count; i++)
        tegroup_impl_chain_op_buffers(desc, chain, backward ? desc->op_count - 1 - i : i, backward, &buffers);
    tegroup_impl_chain_add(&buffers, tegroup_impl_workspace_buffer(&desc->options, workspace_bytes), -1);
    tegroup_impl_chain_add(
        &buffers,
        tegroup_impl_buffer_of(desc->saved, (int64_t)chain->saved_bytes, "saved", "must not overlap saved", 1), -1);
    status = tegroup_impl_check_apart(buffers.all, buffers.count, level, &about, error);
    chain->at = status == TEGROUP_OK ? -1 : buffers.at[about];
    return status;
}
#undef TEGROUP_IMPL_THERE

/* ==== [74] Op chain: ops as layers (src/layer/chain_ops.h) ==== */

/* A LINEAR as a layer, with the rows that it reads and writes: op i's routing may be its own. It points into itself. */
typedef struct tegroup_impl_chain_linear {
    tegroup_tensor input, out, grad_output, dgrad_out;
    tegroup_impl_layer layer;
} tegroup_impl_chain_linear;

static inline void tegroup_impl_chain_linear_of(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                int32_t i, tegroup_impl_chain_linear *linear) {
    const tegroup_mlp_weights *weights = &desc->ops[i].weights;
    const tegroup_chain_argument *given = &chain->arguments[i];
    tegroup_impl_layer *layer = &linear->layer;
    int tensor;
    memset(layer, 0, sizeof *layer);
    for (tensor = TEGROUP_IMPL_LINEAR_WEIGHT; tensor < TEGROUP_IMPL_LINEAR_COUNT; tensor++)
        layer->name[tensor] = tegroup_impl_linear_name(tensor);
    linear->input = tegroup_impl_chain_rows(chain, i, &chain->values[i]);
    linear->out = tegroup_impl_chain_rows(chain, i, &chain->values[i + 1]);
    layer->tensor[TEGROUP_IMPL_LINEAR_WEIGHT] = &weights->weight;
    layer->tensor[TEGROUP_IMPL_LINEAR_BIAS] = &weights->bias;
    layer->tensor[TEGROUP_IMPL_LINEAR_INPUT] = &linear->input;
    layer->tensor[TEGROUP_IMPL_LINEAR_OUT] = &linear->out;
    layer->space = desc->space;
    layer->row_scale = given->row_scale;
    layer->row_scale_dtype = given->row_scale_dtype;
    layer->weight_layout = weights->weight_layout;
    layer->weight_layout_name = "weight_layout";
    layer->options = &desc->options;
    if (!tegroup_impl_chain_backward(desc)) return;
    linear->grad_output = tegroup_impl_chain_rows(chain, i, &chain->grads[i + 1]);
    linear->dgrad_out = tegroup_impl_chain_rows(chain, i, &chain->grads[i]);
    layer->tensor[TEGROUP_IMPL_LINEAR_MAIN_GRAD] = &weights->main_grad;
    layer->tensor[TEGROUP_IMPL_LINEAR_BIAS_GRAD] = &weights->bias_grad;
    layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_OUTPUT] = &linear->grad_output;
    layer->tensor[TEGROUP_IMPL_LINEAR_DGRAD_OUT] = &linear->dgrad_out;
    layer->tensor[TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE] = &given->grad_row_scale;
    layer->accumulate = desc->accumulate;
}

static inline void tegroup_impl_chain_mlp(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain, int32_t i,
                                          tegroup_mlp_desc *mlp) {
    const tegroup_chain_op *op = &desc->ops[i + 1];
    const tegroup_chain_argument *given = &chain->arguments[i + 1];
    const int backward = tegroup_impl_chain_backward(desc);
    memset(mlp, 0, sizeof *mlp);
    mlp->struct_size = sizeof *mlp;
    mlp->space = desc->space;
    mlp->fc1 = desc->ops[i].weights;
    mlp->fc2 = desc->ops[i + 2].weights;
    mlp->activation = op->activation;
    mlp->interleaved = op->interleaved;
    mlp->alpha = op->alpha;
    mlp->limit = op->limit;
    mlp->input = tegroup_impl_chain_rows(chain, i, &chain->values[i]);
    mlp->preactivation = tegroup_impl_chain_rows(chain, i, &chain->values[i + 1]);
    mlp->activated = tegroup_impl_chain_rows(chain, i, &chain->values[i + 2]);
    mlp->out = tegroup_impl_chain_rows(chain, i, &chain->values[i + 3]);
    mlp->row_scale = given->row_scale;
    mlp->row_scale_dtype = given->row_scale_dtype;
    mlp->fc2_bias_scaled = chain->arguments[i + 2].row_scale_dtype != TEGROUP_DTYPE_UNSET;
    mlp->options = desc->options;
    if (!backward) {
        memset(&mlp->fc1.main_grad, 0, sizeof mlp->fc1.main_grad);
        memset(&mlp->fc1.bias_grad, 0, sizeof mlp->fc1.bias_grad);
        memset(&mlp->fc2.main_grad, 0, sizeof mlp->fc2.main_grad);
        memset(&mlp->fc2.bias_grad, 0, sizeof mlp->fc2.bias_grad);
        return;
    }
    mlp->grad_output = tegroup_impl_chain_rows(chain, i, &chain->grads[i + 3]);
    mlp->grad_preactivation = tegroup_impl_chain_rows(chain, i, &chain->grads[i + 1]);
    mlp->dgrad_out = tegroup_impl_chain_rows(chain, i, &chain->grads[i]);
    mlp->grad_row_scale = given->grad_row_scale;
    mlp->accumulate =
        desc->accumulate
        && (mlp->fc1.main_grad.dtype != TEGROUP_DTYPE_UNSET || mlp->fc2.main_grad.dtype != TEGROUP_DTYPE_UNSET);
}

/* x + bias is a product without terms: k is 0, C is x, and beta 1. So is the sum of dY that is the bias's gradient. */
static inline void tegroup_impl_chain_bias(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain, int32_t i,
                                           tegroup_op op, tegroup_gemm_desc *gemm) {
    static const float one = 1;
    const tegroup_mlp_weights *weights = &desc->ops[i].weights;
    tegroup_tensor x = tegroup_impl_chain_rows(chain, i, &chain->values[i]), none = x;
    none.shape.cols = 0;
    none.ld = 0;
    none.data = NULL;
    memset(gemm, 0, sizeof *gemm);
    gemm->struct_size = sizeof *gemm;
    gemm->space = desc->space;
    gemm->op = op;
    gemm->b = weights->bias; /* for its groups */
    gemm->b.dtype = x.dtype;
    gemm->b.data = NULL;
    gemm->b.pointers = NULL;
    gemm->b.pointers_space = TEGROUP_SPACE_UNSET;
    gemm->b.ld = gemm->b.group_stride = 0;
    gemm->b.shape.rows = x.shape.cols;
    gemm->b.shape.cols = 0;
    if (op == TEGROUP_OP_FORWARD) {
        gemm->a = none;
        gemm->c = x;
        gemm->d = tegroup_impl_chain_rows(chain, i, &chain->values[i + 1]);
        gemm->bias = weights->bias;
        gemm->beta.data = &one;
        gemm->beta.space = TEGROUP_SPACE_HOST;
    } else {
        gemm->d = gemm->b;
        gemm->d.dtype = weights->bias_grad.dtype;
        gemm->a = tegroup_impl_chain_rows(chain, i, &chain->grads[i + 1]);
        gemm->b = none;
        gemm->b.dtype = gemm->a.dtype;
        gemm->bias = weights->bias_grad;
    }
    gemm->options = desc->options;
    gemm->options.backend = TEGROUP_BACKEND_AUTO;
    if (op == TEGROUP_OP_WGRAD) gemm->accumulate = desc->accumulate;
}

/* The operands of these products, in a linear's words. */
static inline tegroup_impl_names tegroup_impl_chain_bias_names(tegroup_op op) {
    tegroup_impl_names names = *tegroup_impl_gemm_names();
    const int wgrad = op == TEGROUP_OP_WGRAD;
    const tegroup_impl_name *bias =
        tegroup_impl_linear_name(wgrad ? TEGROUP_IMPL_LINEAR_BIAS_GRAD : TEGROUP_IMPL_LINEAR_BIAS);
    const tegroup_impl_name *rows =
        tegroup_impl_linear_name(wgrad ? TEGROUP_IMPL_LINEAR_GRAD_OUTPUT : TEGROUP_IMPL_LINEAR_INPUT);
    names.operand[TEGROUP_IMPL_A] = rows;
    names.operand[TEGROUP_IMPL_B] = bias;
    names.operand[TEGROUP_IMPL_C] = wgrad ? bias : rows;
    names.operand[TEGROUP_IMPL_D] = wgrad ? bias : tegroup_impl_linear_name(TEGROUP_IMPL_LINEAR_OUT);
    names.operand[TEGROUP_IMPL_BIAS] = bias;
    return names;
}

static inline tegroup_status tegroup_impl_chain_plan_bias(const tegroup_chain_desc *desc,
                                                          const tegroup_impl_chain *chain, int32_t i, tegroup_op op,
                                                          const tegroup_target *target, tegroup_linear_plan *plan,
                                                          tegroup_error *error) {
    const tegroup_impl_names names = tegroup_impl_chain_bias_names(op);
    tegroup_plan *one = op == TEGROUP_OP_WGRAD ? &plan->wgrad : &plan->forward;
    tegroup_gemm_desc gemm;
    tegroup_impl_chain_bias(desc, chain, i, op, &gemm);
    TEGROUP_IMPL_TRY(tegroup_impl_plan_make(&gemm, &names, target, one, error));
    if (one->workspace_bytes > plan->workspace_bytes) plan->workspace_bytes = one->workspace_bytes;
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_chain_call_bias(const tegroup_chain_desc *desc,
                                                          const tegroup_impl_chain *chain, int32_t i, tegroup_op op,
                                                          const tegroup_linear_plan *plan, int run,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_names names = tegroup_impl_chain_bias_names(op);
    const tegroup_plan *one = op == TEGROUP_OP_WGRAD ? &plan->wgrad : &plan->forward;
    tegroup_gemm_desc gemm;
    tegroup_impl_chain_bias(desc, chain, i, op, &gemm);
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check(one, &gemm, &names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_overlaps(one, &gemm, &names, error));
    return run ? tegroup_impl_gemm_run(one, &gemm, stream, error) : TEGROUP_OK;
}

static inline void tegroup_impl_chain_activation(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                 int32_t i, tegroup_activation_desc *forward,
                                                 tegroup_activation_backward_desc *backward) {
    const tegroup_chain_op *op = &desc->ops[i];
    const tegroup_chain_argument *given = &chain->arguments[i];
    memset(forward, 0, sizeof *forward);
    forward->struct_size = sizeof *forward;
    forward->space = desc->space;
    forward->activation = TEGROUP_ACTIVATION_IDENTITY; /* SCALE */
    if (op->kind == TEGROUP_CHAIN_ACTIVATION) {
        forward->activation = op->activation;
        forward->interleaved = op->interleaved;
        forward->alpha = op->alpha;
        forward->limit = op->limit;
    }
    forward->snapshot = tegroup_impl_chain_snapshot(chain, i);
    forward->input = tegroup_impl_mlp_matrix(&chain->values[i]);
    forward->output = tegroup_impl_mlp_matrix(&chain->values[i + 1]);
    if (given->row_scale_dtype != TEGROUP_DTYPE_UNSET) {
        forward->row_scale.data = (void *)(uintptr_t)given->row_scale;
        forward->row_scale.rows = desc->input.shape.rows;
        forward->row_scale.cols = 1;
        forward->row_scale.dtype = given->row_scale_dtype;
    }
    forward->threads = desc->options.threads;
    tegroup_impl_activation_backward_of(forward, backward);
    backward->grad_output = tegroup_impl_mlp_matrix(&chain->grads[i + 1]);
    backward->grad_input = tegroup_impl_mlp_matrix(&chain->grads[i]);
    backward->grad_row_scale = tegroup_impl_mlp_matrix(&given->grad_row_scale);
}

/* ==== [75] Op chain: plan (src/layer/chain_plan.h) ==== */

/* Tell the caller which op a failure is about. */
static inline tegroup_status tegroup_impl_chain_name_op(tegroup_status status, const tegroup_chain_desc *desc,
                                                        int32_t at) {
    if (status != TEGROUP_OK && desc->refused) *desc->refused = at;
    return status;
}

static inline tegroup_chain_planned tegroup_impl_chain_record(const tegroup_chain_desc *desc,
                                                              const tegroup_impl_chain *chain) {
    tegroup_chain_planned record;
    int32_t i;
    memset(&record, 0, sizeof record);
    record.groups = desc->input.shape.groups;
    record.rows = desc->input.shape.rows;
    for (i = 0; i <= desc->op_count; i++) {
        if (i < desc->op_count) record.kinds[i] = (uint8_t)desc->ops[i].kind;
        if (i < desc->op_count && desc->ops[i].kind == TEGROUP_CHAIN_ACTIVATION) {
            record.activations[i] = (uint8_t)desc->ops[i].activation;
            record.interleaved[i] = (uint8_t)desc->ops[i].interleaved;
        }
        if (i > 0 && chain->arguments[i - 1].out.dtype == TEGROUP_DTYPE_UNSET) record.saved |= 1u << i;
        record.cols[i] = chain->values[i].shape.cols;
        record.dtypes[i] = (uint8_t)chain->values[i].dtype;
        record.grad_dtypes[i] = (uint8_t)chain->grads[i].dtype;
    }
    for (i = 0; i < desc->op_count; i++) {
        const tegroup_mlp_weights *weights = &desc->ops[i].weights;
        const int backward = tegroup_impl_chain_backward(desc), linear = desc->ops[i].kind == TEGROUP_CHAIN_LINEAR;
        if (backward && linear) record.main_grads[i] = (uint8_t)weights->main_grad.dtype;
        if (backward && (linear || desc->ops[i].kind == TEGROUP_CHAIN_BIAS))
            record.bias_grads[i] = (uint8_t)weights->bias_grad.dtype;
        record.row_scales[i] = (uint8_t)chain->arguments[i].row_scale_dtype;
        record.grad_row_scales[i] = (uint8_t)chain->arguments[i].grad_row_scale.dtype;
    }
    return record;
}

/* A call's chain must be the planned one. What ops need for themselves is in their plans; this is what lies between
 * them. */
static inline tegroup_status tegroup_impl_chain_check_planned(const tegroup_chain_plan *plan,
                                                              const tegroup_chain_desc *desc, tegroup_impl_chain *chain,
                                                              tegroup_error *error) {
#define TEGROUP_IMPL_SAME(member, field)                                                                               \
    TEGROUP_IMPL_RULE(planned->member == now.member, ERROR_PLAN, field, "must be as planned", planned->member,         \
                      now.member)
    const tegroup_chain_planned *planned = &plan->planned, now = tegroup_impl_chain_record(desc, chain);
    int32_t i;
    TEGROUP_IMPL_RULE(plan->op_count == desc->op_count, ERROR_PLAN, "op_count", "must be as planned", plan->op_count,
                      desc->op_count);
    TEGROUP_IMPL_SAME(groups, "input.shape.groups");
    TEGROUP_IMPL_SAME(rows, "input.shape.rows");
    TEGROUP_IMPL_SAME(cols[0], "input.shape.cols");
    TEGROUP_IMPL_SAME(dtypes[0], "input.dtype");
    for (i = 0; i < desc->op_count; i++) {
        chain->at = i;
        TEGROUP_IMPL_SAME(kinds[i], "ops.kind");
        TEGROUP_IMPL_SAME(activations[i], "ops.activation");
        TEGROUP_IMPL_SAME(interleaved[i], "ops.interleaved");
        TEGROUP_IMPL_SAME(cols[i + 1], now.kinds[i] == TEGROUP_CHAIN_USER     ? "ops.cols"
                                       : now.kinds[i] != TEGROUP_CHAIN_LINEAR ? "ops.activation"
                                       : desc->ops[i].weights.weight_layout == TEGROUP_WEIGHT_IN_OUT
                                           ? "weight.shape.cols"
                                           : "weight.shape.rows");
        TEGROUP_IMPL_RULE(((planned->saved ^ now.saved) >> (i + 1) & 1u) == 0, ERROR_PLAN, "arguments.out",
                          "must be there just when planned so", !(planned->saved >> (i + 1) & 1u),
                          !(now.saved >> (i + 1) & 1u));
        TEGROUP_IMPL_SAME(dtypes[i + 1], "arguments.out.dtype");
        TEGROUP_IMPL_SAME(row_scales[i], "arguments.row_scale_dtype");
    }
    chain->at = -1;
    TEGROUP_IMPL_RULE(plan->fused == chain->fused, ERROR_PLAN, "ops", "must fuse as planned", plan->fused,
                      chain->fused);
    TEGROUP_IMPL_SAME(grad_dtypes[desc->op_count], "grad_output.dtype");
    for (i = desc->op_count - 1; i >= 0; i--) { /* a BIAS has that of the op after it */
        chain->at = i;
        TEGROUP_IMPL_SAME(grad_dtypes[i], "arguments.grad_input.dtype");
        TEGROUP_IMPL_SAME(grad_row_scales[i], "arguments.grad_row_scale.dtype");
        TEGROUP_IMPL_SAME(main_grads[i], "main_grad.dtype");
        TEGROUP_IMPL_SAME(bias_grads[i], "bias_grad.dtype");
    }
    chain->at = -1;
#undef TEGROUP_IMPL_SAME
    return TEGROUP_OK;
}

/* Ops that run as one from op i on. */
static inline int32_t tegroup_impl_chain_count(const tegroup_impl_chain *chain, int32_t i) {
    return chain->fused >> i & 1u ? 3 : 1;
}

/* A LINEAR's rules and the plans of its products. */
static inline tegroup_status tegroup_impl_chain_plan_linear(const tegroup_chain_desc *desc,
                                                            const tegroup_impl_chain *chain, int32_t i,
                                                            const tegroup_target *target, tegroup_linear_plan *plan,
                                                            tegroup_error *error) {
    tegroup_impl_chain_linear linear;
    const tegroup_impl_layer *layer = &linear.layer;
    int product;
    tegroup_impl_chain_linear_of(desc, chain, i, &linear);
    TEGROUP_IMPL_RULE(!tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_BIAS_GRAD)
                          || tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_MAIN_GRAD),
                      ERROR_COMBINATION, "bias_grad", "needs main_grad", 1, 0);
    TEGROUP_IMPL_RULE(!tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_BIAS_GRAD)
                          || tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_BIAS),
                      ERROR_COMBINATION, "bias_grad", "needs bias", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_layer_check(layer, error));
    if (tegroup_impl_layer_has(layer, TEGROUP_IMPL_LINEAR_GRAD_ROW_SCALE))
        TEGROUP_IMPL_TRY(tegroup_impl_layer_check_bias_type(layer, error));
    for (product = TEGROUP_OP_FORWARD; product < TEGROUP_IMPL_LINEAR_PRODUCTS; product++)
        if (tegroup_impl_layer_has(layer, tegroup_impl_layer_output(product)))
            TEGROUP_IMPL_TRY(tegroup_impl_layer_plan(layer, product, 0, target, plan, error));
    return TEGROUP_OK;
}

/* Op i, or the MLP that begins there. bytes: the workspace that it needs. */
static inline tegroup_status tegroup_impl_chain_plan(const tegroup_chain_desc *desc, const tegroup_impl_chain *chain,
                                                     int32_t i, const tegroup_target *target, tegroup_chain_plan *plan,
                                                     size_t *bytes, tegroup_error *error) {
    const tegroup_chain_op *op = &desc->ops[i];
    *bytes = 0;
    if (chain->fused >> i & 1u) {
        tegroup_mlp_desc mlp;
        tegroup_mlp_plan made;
        tegroup_impl_chain_mlp(desc, chain, i, &mlp);
        TEGROUP_IMPL_TRY(tegroup_mlp_plan_make(&mlp, target, &made, error));
        plan->ops[i] = made.fc1;
        plan->ops[i + 2] = made.fc2;
        plan->mlps[i / 3] = made.planned;
        *bytes = made.workspace_bytes;
        return TEGROUP_OK;
    }
    if (op->kind == TEGROUP_CHAIN_LINEAR)
        TEGROUP_IMPL_TRY(tegroup_impl_chain_plan_linear(desc, chain, i, target, &plan->ops[i], error));
    if (op->kind == TEGROUP_CHAIN_BIAS) {
        TEGROUP_IMPL_TRY(
            tegroup_impl_chain_plan_bias(desc, chain, i, TEGROUP_OP_FORWARD, target, &plan->ops[i], error));
        if (tegroup_impl_chain_backward(desc) && op->weights.bias_grad.dtype != TEGROUP_DTYPE_UNSET)
            TEGROUP_IMPL_TRY(
                tegroup_impl_chain_plan_bias(desc, chain, i, TEGROUP_OP_WGRAD, target, &plan->ops[i], error));
    }
    *bytes = plan->ops[i].workspace_bytes;
    return TEGROUP_OK;
}

/* What each byte of a plan's memory is for. */
static inline void tegroup_impl_chain_layout(const tegroup_chain_plan *plan, tegroup_chain_memory memory,
                                             tegroup_layout *layout) {
    const tegroup_chain_planned *planned = &plan->planned;
    int64_t most = 0;
    int32_t i;
    tegroup_impl_layout_begin(layout);
    for (i = 1; i <= plan->op_count && memory == TEGROUP_CHAIN_SAVED; i++)
        if (planned->saved >> i & 1u)
            tegroup_impl_layout_add(
                layout, "what an op gave",
                tegroup_impl_rows_bytes(planned->rows, planned->cols[i], (tegroup_dtype)planned->dtypes[i]));
    if (memory == TEGROUP_CHAIN_SAVED) return;
    tegroup_impl_layout_add(layout, "the op that runs", (int64_t)plan->op_bytes);
    if (planned->grad_dtypes[plan->op_count] == TEGROUP_DTYPE_UNSET) return;
    for (i = 1; i <= plan->op_count; i++) most = tegroup_impl_max(most, planned->cols[i]);
    most = tegroup_impl_rows_bytes(planned->rows, most, (tegroup_dtype)planned->dtypes[0]);
    for (i = 0; i < TEGROUP_IMPL_CHAIN_TURNS; i++)
        tegroup_impl_layout_add(layout, "gradients between ops, by turns", most);
}

static inline tegroup_status tegroup_impl_chain_make(const tegroup_chain_desc *desc, const tegroup_target *target,
                                                     tegroup_chain_plan *plan, tegroup_impl_chain *chain,
                                                     tegroup_error *error) {
    tegroup_chain_plan made;
    tegroup_target taken;
    tegroup_layout saved, workspace;
    size_t bytes;
    int32_t i;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve(desc, NULL, NULL, chain, error));
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    if (target) TEGROUP_IMPL_TRY(tegroup_impl_take_target(target, &taken, error));
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.magic = TEGROUP_CHAIN_PLAN_MAGIC;
    made.op_count = desc->op_count;
    made.fused = chain->fused;
    made.planned = tegroup_impl_chain_record(desc, chain);
    for (i = 0; i < desc->op_count; i += tegroup_impl_chain_count(chain, i)) {
        chain->at = i;
        TEGROUP_IMPL_TRY(tegroup_impl_chain_plan(desc, chain, i, target, &made, &bytes, error));
        if (bytes > made.op_bytes) made.op_bytes = bytes;
    }
    chain->at = -1;
    tegroup_impl_chain_layout(&made, TEGROUP_CHAIN_SAVED, &saved);
    tegroup_impl_chain_layout(&made, TEGROUP_CHAIN_WORKSPACE, &workspace);
    TEGROUP_IMPL_RULE(!tegroup_impl_layout_overflowed(&saved) && !tegroup_impl_layout_overflowed(&workspace),
                      ERROR_OVERFLOW, "input.shape.rows", "must leave saved and the workspace addressable",
                      tegroup_impl_max_bytes(), desc->input.shape.rows);
    made.saved_bytes = saved.total_bytes;
    made.workspace_bytes = workspace.total_bytes;
    *plan = made;
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_chain_plan_make(const tegroup_chain_desc *desc, const tegroup_target *target,
                                                   tegroup_chain_plan *plan, tegroup_error *error) {
    tegroup_chain_desc taken;
    tegroup_impl_chain chain;
    tegroup_status status;
    TEGROUP_IMPL_TAKE(desc, taken);
    status = tegroup_impl_chain_make(desc, target, plan, &chain, error);
    return tegroup_impl_chain_name_op(status, desc, chain.at);
}

static inline tegroup_status tegroup_impl_chain_check_plan(const tegroup_chain_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE_PLAN(plan, TEGROUP_CHAIN_PLAN_MAGIC, "must be what tegroup_chain_plan_make wrote");
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_chain_layout(const tegroup_chain_plan *plan, tegroup_chain_memory memory,
                                                tegroup_layout *layout, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_plan(plan, error));
    TEGROUP_IMPL_RULE(memory != TEGROUP_CHAIN_MEMORY_UNSET, ERROR_UNSET, "memory", "must be set",
                      TEGROUP_CHAIN_WORKSPACE, 0);
    TEGROUP_IMPL_RULE((uint32_t)memory <= TEGROUP_CHAIN_SAVED, ERROR_VALUE, "memory", "must be a tegroup_chain_memory",
                      TEGROUP_CHAIN_SAVED, memory);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    tegroup_impl_chain_layout(plan, memory, layout);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_chain_judge(const tegroup_chain_desc *desc, tegroup_impl_chain *chain,
                                                      tegroup_chain_verdict *verdicts, tegroup_error *error) {
    int32_t i, j, count;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve(desc, NULL, NULL, chain, error));
    TEGROUP_IMPL_RULE(verdicts != NULL, ERROR_NULL_ARGUMENT, "verdicts", "must not be NULL", 1, 0);
    for (i = 0; i < desc->op_count; i += count)
        for (j = i, count = tegroup_impl_chain_count(chain, i); j < i + count; j++) {
            verdicts[j].first = i;
            verdicts[j].count = count;
            verdicts[j].reason = chain->reasons[j];
        }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_chain_explain(const tegroup_chain_desc *desc,
                                                 tegroup_chain_verdict verdicts[TEGROUP_CHAIN_MAX_OPS],
                                                 tegroup_error *error) {
    tegroup_chain_desc taken;
    tegroup_impl_chain chain;
    tegroup_status status;
    TEGROUP_IMPL_TAKE(desc, taken);
    status = tegroup_impl_chain_judge(desc, &chain, verdicts, error);
    return tegroup_impl_chain_name_op(status, desc, chain.at);
}

/* ==== [76] Op chain: calls (src/layer/chain.h) ==== */

/* Rows of op i and its routing, by a linear's word for them: what no product of the op sees to. */
static inline tegroup_status tegroup_impl_chain_check_memory(const tegroup_chain_desc *desc,
                                                             const tegroup_impl_chain *chain, int32_t i,
                                                             const tegroup_tensor *rows, int word,
                                                             tegroup_error *error) {
    const tegroup_tensor t = tegroup_impl_chain_rows(chain, i, rows);
    if (t.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    return tegroup_impl_check_memory(&t, tegroup_impl_linear_name(word), desc->options.check_level, error);
}

/* What a caller's function is handed. */
static inline tegroup_status tegroup_impl_chain_check_user(const tegroup_chain_desc *desc,
                                                           const tegroup_impl_chain *chain, int32_t i, int backward,
                                                           tegroup_error *error) {
    const tegroup_tensor *x = &chain->values[i], *dx = &chain->grads[i];
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_memory(desc, chain, i, x, TEGROUP_IMPL_LINEAR_INPUT, error));
    if (!backward) return tegroup_impl_chain_check_memory(desc, chain, i, x + 1, TEGROUP_IMPL_LINEAR_OUT, error);
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_memory(desc, chain, i, dx + 1, TEGROUP_IMPL_LINEAR_GRAD_OUTPUT, error));
    return tegroup_impl_chain_check_memory(desc, chain, i, dx, TEGROUP_IMPL_LINEAR_DGRAD_OUT, error);
}

/* What it returned; why not, in its own words or, where it left those out, in ours. */
static inline tegroup_status tegroup_impl_chain_user_said(tegroup_status status, const char *field,
                                                          const tegroup_error *said, tegroup_error *error) {
    if (status == TEGROUP_OK) return status;
    if (said->status != status)
        return tegroup_impl_fail(error, status, field, "returned this status, and no more", TEGROUP_OK, status);
    if (error) *error = *said;
    return status;
}

/* The plans of the MLP that begins at op i, and the workspace that each of its calls needs. */
static inline tegroup_impl_mlp_plans tegroup_impl_chain_mlp_plans(const tegroup_chain_plan *plan, int32_t i) {
    tegroup_impl_mlp_plans plans;
    plans.planned = &plan->mlps[i / 3];
    plans.fc1 = &plan->ops[i];
    plans.fc2 = &plan->ops[i + 2];
    plans.fc1_up = NULL;
    return plans;
}

static inline size_t tegroup_impl_chain_mlp_bytes(const tegroup_impl_mlp_plans *plans, tegroup_mlp_memory memory) {
    tegroup_layout layout;
    (void)tegroup_impl_mlp_layout(plans, memory, &layout);
    return layout.total_bytes;
}

/* One op, or the MLP that begins there. run 0: only what it checks. */
static inline tegroup_status tegroup_impl_chain_forward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                        const tegroup_impl_chain *chain, int32_t i, int run,
                                                        struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_chain_op *op = &desc->ops[i];
    tegroup_impl_chain_linear linear;
    tegroup_activation_desc activation;
    tegroup_activation_backward_desc unused;
    tegroup_error said;
    if (chain->fused >> i & 1u) {
        const tegroup_impl_mlp_plans plans = tegroup_impl_chain_mlp_plans(plan, i);
        tegroup_mlp_desc mlp;
        tegroup_impl_chain_mlp(desc, chain, i, &mlp);
        return tegroup_impl_mlp_forward(&plans, tegroup_impl_chain_mlp_bytes(&plans, TEGROUP_MLP_WORKSPACE), &mlp, run,
                                        stream, error);
    }
    switch (op->kind) {
    case TEGROUP_CHAIN_LINEAR:
        tegroup_impl_chain_linear_of(desc, chain, i, &linear);
        return tegroup_impl_layer_call(&linear.layer, &plan->ops[i], TEGROUP_OP_FORWARD, run, stream, error);
    case TEGROUP_CHAIN_BIAS:
        return tegroup_impl_chain_call_bias(desc, chain, i, TEGROUP_OP_FORWARD, &plan->ops[i], run, stream, error);
    case TEGROUP_CHAIN_USER:
        if (!run) return tegroup_impl_chain_check_user(desc, chain, i, 0, error);
        memset(&said, 0, sizeof said);
        return tegroup_impl_chain_user_said(
            op->forward(op->context, &chain->values[i], &chain->values[i + 1], stream, &said), "ops.forward", &said,
            error);
    default:
        TEGROUP_IMPL_TRY(
            tegroup_impl_chain_check_memory(desc, chain, i, &chain->values[i], TEGROUP_IMPL_LINEAR_INPUT, error));
        tegroup_impl_chain_activation(desc, chain, i, &activation, &unused);
        TEGROUP_IMPL_TRY(tegroup_impl_activation_check(&activation, tegroup_impl_activation_own_names(), error));
        return run ? tegroup_impl_activation_run(&activation, stream, error) : TEGROUP_OK;
    }
}

static inline tegroup_status tegroup_impl_chain_back(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                     const tegroup_impl_chain *chain, int32_t i, int run,
                                                     struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_chain_op *op = &desc->ops[i];
    const int wants_dx = chain->grads[i].dtype != TEGROUP_DTYPE_UNSET;
    tegroup_impl_chain_linear linear;
    tegroup_activation_desc unused;
    tegroup_activation_backward_desc activation;
    tegroup_error said;
    if (chain->fused >> i & 1u) {
        const tegroup_impl_mlp_plans plans = tegroup_impl_chain_mlp_plans(plan, i);
        tegroup_mlp_desc mlp;
        tegroup_impl_chain_mlp(desc, chain, i, &mlp);
        TEGROUP_IMPL_TRY(tegroup_impl_mlp_dgrad(&plans, tegroup_impl_chain_mlp_bytes(&plans, TEGROUP_MLP_WORKSPACE),
                                                &mlp, run, stream, error));
        if (mlp.fc1.main_grad.dtype == TEGROUP_DTYPE_UNSET && mlp.fc2.main_grad.dtype == TEGROUP_DTYPE_UNSET)
            return TEGROUP_OK;
        return tegroup_impl_mlp_wgrad(&plans, tegroup_impl_chain_mlp_bytes(&plans, TEGROUP_MLP_WGRAD_WORKSPACE), &mlp,
                                      run, stream, error);
    }
    switch (op->kind) {
    case TEGROUP_CHAIN_LINEAR:
        tegroup_impl_chain_linear_of(desc, chain, i, &linear);
        if (wants_dx) TEGROUP_IMPL_TRY(tegroup_impl_layer_dgrad(&linear.layer, &plan->ops[i], run, stream, error));
        if (op->weights.main_grad.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
        return tegroup_impl_layer_call(&linear.layer, &plan->ops[i], TEGROUP_OP_WGRAD, run, stream, error);
    case TEGROUP_CHAIN_BIAS:
        if (op->weights.bias_grad.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
        return tegroup_impl_chain_call_bias(desc, chain, i, TEGROUP_OP_WGRAD, &plan->ops[i], run, stream, error);
    case TEGROUP_CHAIN_USER:
        if (!run) return tegroup_impl_chain_check_user(desc, chain, i, 1, error);
        memset(&said, 0, sizeof said);
        return tegroup_impl_chain_user_said(
            op->backward(op->context, &chain->values[i], &chain->grads[i + 1], &chain->grads[i], stream, &said),
            "ops.backward", &said, error);
    default:
        if (!wants_dx) return TEGROUP_OK;
        TEGROUP_IMPL_TRY(
            tegroup_impl_chain_check_memory(desc, chain, i, &chain->values[i], TEGROUP_IMPL_LINEAR_INPUT, error));
        tegroup_impl_chain_activation(desc, chain, i, &unused, &activation);
        TEGROUP_IMPL_TRY(
            tegroup_impl_activation_backward_check(&activation, tegroup_impl_activation_own_names(), error));
        return run ? tegroup_impl_activation_backward_run(&activation, stream, error) : TEGROUP_OK;
    }
}

/* Every op is checked before the first runs. */
static inline tegroup_status tegroup_impl_chain_call(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                     int backward, tegroup_impl_chain *chain,
                                                     struct CUstream_st *stream, tegroup_error *error) {
    int32_t starts[TEGROUP_CHAIN_MAX_OPS], i, count = 0, run;
    char *gradients = NULL;
    chain->at = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_plan(plan, error));
    if (desc->options.workspace) gradients = (char *)desc->options.workspace + plan->op_bytes;
    TEGROUP_IMPL_TRY(tegroup_impl_chain_resolve(desc, &plan->fused, gradients, chain, error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_planned(plan, desc, chain, error));
    TEGROUP_IMPL_TRY(tegroup_impl_chain_check_alike(desc, chain, error));
    TEGROUP_IMPL_RULE_AS(DTYPE, !backward || tegroup_impl_chain_backward(desc), ERROR_UNSET, "grad_output.dtype",
                         "must be set", TEGROUP_DTYPE_F64, 0);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_workspace(plan->saved_bytes, "saved", "saved_bytes", desc->saved, desc->saved_bytes, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_options_workspace(plan->workspace_bytes, &desc->options, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_chain_check_apart(desc, chain, plan->workspace_bytes, backward, TEGROUP_CHECK_HOST, error));
    for (i = 0; i < desc->op_count; i += tegroup_impl_chain_count(chain, i)) starts[count++] = i;
    for (run = 0; run < 2; run++) {
        for (i = 0; i < count; i++) {
            chain->at = starts[backward ? count - 1 - i : i];
            TEGROUP_IMPL_TRY(backward ? tegroup_impl_chain_back(plan, desc, chain, chain->at, run, stream, error)
                                      : tegroup_impl_chain_forward(plan, desc, chain, chain->at, run, stream, error));
        }
        if (!run && desc->options.check_level == TEGROUP_CHECK_DEEP) /* lists may be walked now */
            TEGROUP_IMPL_TRY(tegroup_impl_chain_check_apart(desc, chain, plan->workspace_bytes, backward,
                                                            TEGROUP_CHECK_DEEP, error));
    }
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_chain_run(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                    int backward, struct CUstream_st *stream, tegroup_error *error) {
    tegroup_chain_desc taken;
    tegroup_impl_chain chain;
    tegroup_status status;
    TEGROUP_IMPL_TAKE(desc, taken);
    status = tegroup_impl_chain_call(plan, desc, backward, &chain, stream, error);
    return tegroup_impl_chain_name_op(status, desc, chain.at);
}

TEGROUP_API tegroup_status tegroup_chain_forward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                 struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_chain_run(plan, desc, 0, stream, error);
}

TEGROUP_API tegroup_status tegroup_chain_backward(const tegroup_chain_plan *plan, const tegroup_chain_desc *desc,
                                                  struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_chain_run(plan, desc, 1, stream, error);
}

/* ==== [77] Validate (src/gemm/validate.h) ==== */

enum { TEGROUP_IMPL_FINITE, TEGROUP_IMPL_NAN, TEGROUP_IMPL_INFINITE };

/* By the bits, which no compiler flag can turn into a promise that there is no NaN. */
TEGROUP_IMPL_HD int tegroup_impl_kind(tegroup_dtype dtype, const void *data, int64_t i) {
    uint64_t magnitude, infinity;
    switch (dtype) {
    case TEGROUP_DTYPE_F64:
        magnitude = ((const tegroup_impl_any64 *)data)[i] & 0x7fffffffffffffffull;
        infinity = 0x7ff0000000000000ull;
        break;
    case TEGROUP_DTYPE_F32:
        magnitude = ((const tegroup_impl_any32 *)data)[i] & 0x7fffffffu;
        infinity = 0x7f800000u;
        break;
    default:
        magnitude = ((const tegroup_impl_any16 *)data)[i] & 0x7fffu;
        infinity = dtype == TEGROUP_DTYPE_F16 ? 0x7c00u : 0x7f80u;
        break;
    }
    return magnitude > infinity    ? TEGROUP_IMPL_NAN
           : magnitude == infinity ? TEGROUP_IMPL_INFINITE
                                   : TEGROUP_IMPL_FINITE;
}

/* A snapshot that fits the tensor, or a view of nothing. */
TEGROUP_IMPL_HD tegroup_snapshot_view tegroup_impl_validate_view(const tegroup_tensor *t) {
    const tegroup_impl_fit fit = tegroup_impl_fit_of(t);
    tegroup_snapshot_view view;
    memset(&view, 0, sizeof view);
    if (!tegroup_impl_fits(&fit)) return view;
    return tegroup_impl_snapshot_view(t->shape.snapshot, t->shape.groups, 0);
}

/* Bits for one group: its place, and its step in the prefix sums. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_validate_group(const tegroup_snapshot_view *view, int64_t capacity, int32_t g) {
    const int64_t rows = tegroup_impl_max(0, view->rows[g]);
    uint32_t bits = 0;
    const int64_t room = rows > 0 ? capacity : tegroup_impl_max(capacity, view->header->capacity_rows);
    if (view->rows[g] < -1 || view->start[g] < 0 || view->start[g] > room || rows > room - view->start[g])
        bits |= TEGROUP_VALIDATION_BOUNDS;
    if ((uint64_t)view->prefix[g + 1] - (uint64_t)view->prefix[g] /* what is there may be anything */
            != (uint64_t)tegroup_impl_ceil_div(rows, TEGROUP_GRANULE)
        || view->prefix[0] != 0)
        bits |= TEGROUP_VALIDATION_SUMS;
    return bits;
}

/* Is a row the group's? A start below 0, which prepare never writes, is no start. */
TEGROUP_IMPL_HD int tegroup_impl_validate_owns(const tegroup_snapshot_view *view, int32_t g, int64_t row) {
    return view->start[g] >= 0 && row >= view->start[g] && row - view->start[g] < view->rows[g];
}

/* Bits for the sums in the header, from those of the rows. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_validate_sums(const tegroup_snapshot_header *header, int64_t total, int64_t most,
                                                    int64_t end) {
    return header->rows_total != total || header->rows_max != most || header->rows_end != end ? TEGROUP_VALIDATION_SUMS
                                                                                              : 0;
}

/* The first bad element is kept as its number, row by row, -1 for none, until the record is closed. */
TEGROUP_IMPL_HD void tegroup_impl_validate_close(tegroup_validation *result, int64_t cols) {
    tegroup_validation_values *values = &result->owned;
    int32_t tail;
    for (tail = 0; tail < 2; tail++, values = &result->tail) {
        if (values->first_row < 0) continue;
        result->status |= tail ? TEGROUP_VALIDATION_TAIL : TEGROUP_VALIDATION_VALUES;
        values->first_col = values->first_row % cols;
        values->first_row /= cols;
    }
    result->magic = TEGROUP_VALIDATION_MAGIC;
}

/* Rows of the buffer: of every group when all are alike, else the capacity; and where such a row begins. */
TEGROUP_IMPL_HD int64_t tegroup_impl_validate_rows(const tegroup_tensor *t) {
    return t->shape.cols == 0 ? 0 : tegroup_impl_ragged(&t->shape) ? t->shape.rows : t->shape.groups * t->shape.rows;
}
TEGROUP_IMPL_HD int64_t tegroup_impl_validate_first(const tegroup_tensor *t, int64_t row) {
    if (tegroup_impl_ragged(&t->shape)) return row * tegroup_impl_ld(t);
    return row / t->shape.rows * tegroup_impl_group_stride(t) + row % t->shape.rows * tegroup_impl_ld(t);
}

static inline void tegroup_impl_validate_host(const tegroup_tensor *t, tegroup_validation *result) {
    tegroup_snapshot_view view;
    int64_t row, col, total = 0, most = 0, end = 0;
    int32_t g;
    memset(result, 0, sizeof *result);
    memset(&view, 0, sizeof view);
    result->bad_group = -1;
    result->owned.first_row = result->owned.first_col = result->tail.first_row = result->tail.first_col = -1;
    if (tegroup_impl_ragged(&t->shape)) {
        view = tegroup_impl_validate_view(t);
        if (!view.header) result->status |= TEGROUP_VALIDATION_SNAPSHOT;
    }
    for (g = 0; view.header && g < t->shape.groups; g++) {
        uint32_t bits = tegroup_impl_validate_group(&view, t->shape.rows, g);
        int64_t rows = tegroup_impl_max(0, view.rows[g]);
        result->status |= bits;
        if (bits && result->bad_group < 0) result->bad_group = g;
        total = (int64_t)((uint64_t)total + (uint64_t)rows); /* wraps, as an atomic sum does */
        most = tegroup_impl_max(most, rows);
        if (rows > 0) end = tegroup_impl_max(end, tegroup_impl_add(tegroup_impl_max(0, view.start[g]), rows));
    }
    if (view.header) {
        result->snapshot_status = view.header->status;
        if (view.header->status) result->status |= TEGROUP_VALIDATION_SIZES;
        result->status |= tegroup_impl_validate_sums(view.header, total, most, end);
    }
    for (row = 0; row < tegroup_impl_validate_rows(t); row++) {
        int owned = !tegroup_impl_ragged(&t->shape);
        tegroup_validation_values *values;
        for (g = 0; view.header && g < t->shape.groups && !owned; g++)
            owned = tegroup_impl_validate_owns(&view, g, row);
        values = owned ? &result->owned : &result->tail;
        for (col = 0; col < t->shape.cols; col++) {
            int kind = tegroup_impl_kind(t->dtype, t->data, tegroup_impl_validate_first(t, row) + col);
            if (kind == TEGROUP_IMPL_FINITE) continue;
            if (kind == TEGROUP_IMPL_NAN) values->nans++;
            else values->infinities++;
            if (values->first_row < 0) values->first_row = row * t->shape.cols + col;
        }
    }
    tegroup_impl_validate_close(result, t->shape.cols);
}

#if defined(TEGROUP_IMPL_CUDA)
static inline tegroup_status tegroup_impl_cuda_validate(const tegroup_validate_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error);
#endif

TEGROUP_API tegroup_status tegroup_validate(const tegroup_validate_desc *desc, struct CUstream_st *stream,
                                            tegroup_error *error) {
    tegroup_validate_desc taken;
    static const tegroup_impl_name name = TEGROUP_IMPL_NAME("tensor");
    const tegroup_tensor *t;
    tegroup_impl_buffer buffers[3];
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    t = &desc->tensor;
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(t, &name, error));
    TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_FLOATS >> t->dtype & 1u, ERROR_DTYPE, "tensor.dtype",
                         "must be one that can be validated", TEGROUP_IMPL_FLOATS, t->dtype);
    TEGROUP_IMPL_RULE(!tegroup_impl_irregular(&t->shape), ERROR_COMBINATION, "tensor.shape.col_sizes.encoding",
                      "must be unset, as must be elements: groups of one width are validated", 0, 1);
    TEGROUP_IMPL_RULE(!tegroup_impl_listed(t), ERROR_COMBINATION, "tensor.pointers_space",
                      "must be unset: one buffer is validated", 0, t->pointers_space);
    TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot_address(t, &name, error)); /* what it holds is data here */
    TEGROUP_IMPL_TRY(tegroup_impl_check_data(t, &name, error));
    TEGROUP_IMPL_RULE(desc->result != NULL, ERROR_NULL_ARGUMENT, "result", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(desc->result, sizeof(int64_t)), ERROR_ALIGNMENT, "result",
                      "must be aligned to its element", 8, (uintptr_t)desc->result % sizeof(int64_t));
    buffers[0] = tegroup_impl_buffer_of(desc->result, (int64_t)sizeof *desc->result, "result", NULL, 1);
    buffers[1] = tegroup_impl_tensor_buffer(t, &name, 0);
    buffers[2] = tegroup_impl_snapshot_buffer(t);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 3, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_KERNELS, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(&t->shape, desc->space, "tensor.shape.row_sizes.space", error));
#if defined(TEGROUP_IMPL_CUDA)
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_validate(desc, stream, error);
#endif
    tegroup_impl_validate_host(t, desc->result);
    return TEGROUP_OK;
}

/* ==== [78] Scales in another layout (src/gemm/scale_convert.h) ==== */

#if defined(TEGROUP_IMPL_CUDA)
static inline tegroup_status tegroup_impl_cuda_scale_convert(const tegroup_impl_scales *from,
                                                             const tegroup_impl_scales *to, struct CUstream_st *stream,
                                                             tegroup_error *error);
#endif

static inline const tegroup_impl_name *tegroup_impl_scale_names(void) {
    static const tegroup_impl_name names[2] = {TEGROUP_IMPL_NAME("from"), TEGROUP_IMPL_NAME("to")};
    return names;
}

/* The buffer of one copy's scales, or the list of their buffers. */
static inline const void *tegroup_impl_scale_buffer(const tegroup_tensor *t, int32_t columnwise) {
    if (!tegroup_impl_listed(t)) return columnwise ? t->columnwise_scale_inv : t->scale_inv;
    return (const void *)(columnwise ? t->columnwise_scale_pointers : t->scale_pointers);
}

static inline const char *tegroup_impl_scale_field(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                   int32_t columnwise) {
    if (!tegroup_impl_listed(t))
        return columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_SCALE_INV) : TEGROUP_IMPL_PATH(SCALE_INV);
    return columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_SCALE_POINTERS) : TEGROUP_IMPL_PATH(SCALE_POINTERS);
}

/* The memory of one tensor's scales, when a call is about to run. */
static inline tegroup_status tegroup_impl_check_scale_memory(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             int32_t columnwise, tegroup_space space,
                                                             tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const void *buffer = tegroup_impl_scale_buffer(t, columnwise);
    const char *field = tegroup_impl_scale_field(t, name, columnwise);
    const int listed = tegroup_impl_listed(t);
    const size_t element = listed ? sizeof(void *) : (size_t)tegroup_impl_bits(tegroup_impl_scale_dtype(t, facts)) / 8;
    TEGROUP_IMPL_RULE(!listed || t->pointers_space == space, ERROR_COMBINATION, TEGROUP_IMPL_PATH(POINTERS_SPACE),
                      "must equal space, or be unset", space, t->pointers_space);
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(&t->shape, space, TEGROUP_IMPL_PATH(SIZES_SPACE), error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot_address(t, name, error));
    if (space == TEGROUP_SPACE_HOST && tegroup_impl_ragged(&t->shape))
        TEGROUP_IMPL_TRY(tegroup_impl_check_prepared(t, name, TEGROUP_CHECK_DEEP, error));
    if (tegroup_impl_scale_capacity(t, columnwise) == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(buffer != NULL, ERROR_NULL_ARGUMENT, field, "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(buffer, element), ERROR_ALIGNMENT, field, "must be aligned to its element",
                      element, (uintptr_t)buffer % element);
    return TEGROUP_OK;
}

static inline tegroup_impl_buffer tegroup_impl_scale_memory(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                            int32_t columnwise, const char *apart, int writes) {
    const void *buffer = tegroup_impl_scale_buffer(t, columnwise);
    const int listed = tegroup_impl_listed(t);
    tegroup_impl_buffer memory =
        tegroup_impl_buffer_of(listed ? NULL : buffer, listed ? 0 : tegroup_impl_scale_bytes(t, columnwise),
                               tegroup_impl_scale_field(t, name, columnwise), apart, writes);
    memory.list = listed ? buffer : NULL;
    memory.list_bytes = listed ? (int64_t)sizeof(void *) * t->shape.groups : 0;
    return memory;
}

/* What two descriptions of the same scales have in common. */
static inline tegroup_status tegroup_impl_check_same_scales(const tegroup_tensor *from, const tegroup_tensor *to,
                                                            tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(from->scaling);
    const int64_t parts = tegroup_impl_max(1, from->scale_parts);
    TEGROUP_IMPL_RULE_AS(SCALING, from->scaling != TEGROUP_SCALING_NONE, ERROR_UNSET, "from.scaling", "must be set",
                         TEGROUP_SCALING_TENSOR, from->scaling);
    TEGROUP_IMPL_RULE_AS(SCALING, to->scaling == from->scaling, ERROR_SHAPE, "to.scaling", "must equal from.scaling",
                         from->scaling, to->scaling);
    TEGROUP_IMPL_RULE(to->shape.groups == from->shape.groups, ERROR_SHAPE, "to.shape.groups",
                      "must equal from.shape.groups", from->shape.groups, to->shape.groups);
    TEGROUP_IMPL_RULE(to->shape.cols == from->shape.cols, ERROR_SHAPE, "to.shape.cols", "must equal from.shape.cols",
                      from->shape.cols, to->shape.cols);
    TEGROUP_IMPL_RULE(tegroup_impl_max(1, to->scale_parts) == parts, ERROR_SHAPE, "to.scale_parts",
                      "must equal from.scale_parts", parts, to->scale_parts);
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&from->shape) || tegroup_impl_ragged(&to->shape)
                          || to->shape.rows == from->shape.rows,
                      ERROR_SHAPE, "to.shape.rows", "must equal from.shape.rows", from->shape.rows, to->shape.rows);
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         tegroup_impl_scale_dtype(from, facts) != TEGROUP_DTYPE_F32
                             || tegroup_impl_scale_dtype(to, facts) != TEGROUP_DTYPE_BF16,
                         ERROR_UNSUPPORTED, "to.scale_dtype",
                         "must not be BF16 for scales in F32, which it would round", TEGROUP_DTYPE_F32,
                         TEGROUP_DTYPE_BF16);
    return TEGROUP_OK;
}

/* A group's scales in host memory as both tensors have them, from and to; the sums go on from group to group. */
typedef struct tegroup_impl_scale_pair {
    tegroup_snapshot_view views[2];
    int64_t before[2];
    tegroup_impl_scale_grid grids[2];
    void *data[2];
} tegroup_impl_scale_pair;

static inline void tegroup_impl_scale_pair_begin(tegroup_impl_scale_pair *pair, const tegroup_impl_scales scales[2]) {
    memset(pair, 0, sizeof *pair);
    pair->views[0] = tegroup_impl_fitting_view(&scales[0].tensor);
    pair->views[1] = tegroup_impl_fitting_view(&scales[1].tensor);
}

static inline void tegroup_impl_scale_pair_next(tegroup_impl_scale_pair *pair, const tegroup_impl_scales scales[2],
                                                int32_t g) {
    int i;
    for (i = 0; i < 2; i++) {
        pair->grids[i] = tegroup_impl_scales_grid(&scales[i], &pair->views[i], g, pair->before[i]);
        pair->before[i] += pair->grids[i].count;
        pair->data[i] = pair->grids[i].count > 0 ? tegroup_impl_scales_at(&scales[i], g) : NULL;
    }
}

static inline uint32_t tegroup_impl_pair_scale(const tegroup_impl_scale_pair *pair, const tegroup_impl_scales scales[2],
                                               tegroup_impl_scale_place place) {
    return tegroup_impl_converted_scale(&pair->grids[0], scales[0].dtype, pair->data[0], &pair->grids[1],
                                        scales[1].dtype, place);
}

/* What only host memory can be asked of a group: its rows in both tensors, and room for those up to it. */
static inline tegroup_status tegroup_impl_check_scale_group(const tegroup_impl_scales scales[2],
                                                            const tegroup_impl_sides sides[2], const int64_t totals[2],
                                                            tegroup_error *error) {
    const tegroup_impl_name *names = tegroup_impl_scale_names();
    int ragged[2], i;
    for (i = 0; i < 2; i++) {
        const tegroup_shape *shape = &scales[i].tensor.shape;
        ragged[i] = tegroup_impl_ragged(shape);
        TEGROUP_IMPL_RULE(!ragged[i] || totals[i] <= shape->rows, ERROR_CAPACITY,
                          names[i].members[TEGROUP_IMPL_MEMBER_SNAPSHOT], "must have shape.rows rows or fewer in all",
                          shape->rows, totals[i]);
    }
    TEGROUP_IMPL_RULE(sides[0].rows == sides[1].rows || (!ragged[0] && sides[1].rows < sides[0].rows)
                          || (!ragged[1] && sides[0].rows < sides[1].rows),
                      ERROR_SHAPE, names[ragged[1]].members[TEGROUP_IMPL_MEMBER_SNAPSHOT],
                      "must have the rows of the other tensor in each group, or fewer than a uniform one",
                      sides[!ragged[1]].rows, sides[ragged[1]].rows);
    TEGROUP_IMPL_RULE(sides[0].rows == 0 || sides[1].rows == 0 || sides[0].cols == sides[1].cols, ERROR_SHAPE,
                      names[1].members[TEGROUP_IMPL_MEMBER_SNAPSHOT], "must have the columns of from in each group",
                      sides[0].cols, sides[1].cols);
    return TEGROUP_OK;
}

/* All groups, and whether every scale has a value in its new type. scales: from, to. */
static inline tegroup_status tegroup_impl_check_scale_groups(const tegroup_impl_scales scales[2],
                                                             tegroup_error *error) {
    const tegroup_impl_name *names = tegroup_impl_scale_names();
    const int narrows = tegroup_impl_is_exponent(scales[1].dtype) && !tegroup_impl_is_exponent(scales[0].dtype);
    tegroup_impl_scale_pair pair;
    int64_t totals[2] = {0, 0}, bad = 0, e;
    int32_t g, i;
    tegroup_impl_scale_pair_begin(&pair, scales);
    for (g = 0; g < scales[1].tensor.shape.groups; g++) {
        tegroup_impl_sides sides[2];
        for (i = 0; i < 2; i++) {
            sides[i] = tegroup_impl_group_sides(&scales[i].tensor, &pair.views[i], g);
            totals[i] += sides[i].rows;
        }
        TEGROUP_IMPL_TRY(tegroup_impl_check_scale_group(scales, sides, totals, error));
        tegroup_impl_scale_pair_next(&pair, scales, g);
        for (i = 0; i < 2; i++)
            TEGROUP_IMPL_RULE(pair.grids[i].count == 0 || pair.data[i], ERROR_NULL_ARGUMENT,
                              tegroup_impl_scale_field(&scales[i].tensor, &names[i], scales[i].columnwise),
                              "must have a buffer for each group with scales", 1, 0);
        for (e = 0; narrows && e < pair.grids[1].count; e++)
            bad += tegroup_impl_exponent_of(
                       tegroup_impl_pair_scale(&pair, scales, tegroup_impl_scale_place_of(&pair.grids[1], e)))
                   < 0;
    }
    TEGROUP_IMPL_RULE(bad == 0, ERROR_VALUE,
                      tegroup_impl_scale_field(&scales[0].tensor, &names[0], scales[0].columnwise),
                      "must hold powers of two, 2^-127 to 2^127, to become F8E8M0 (how many do not)", 0, bad);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_scale_convert_check(const tegroup_scale_convert_desc *desc,
                                                              tegroup_error *error) {
    const tegroup_impl_name *names = tegroup_impl_scale_names();
    tegroup_impl_buffer buffers[4];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(desc->columnwise == 0 || desc->columnwise == 1, ERROR_VALUE, "columnwise", "must be 0 or 1", 1,
                      desc->columnwise);
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->from, &names[0], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->to, &names[1], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_same_scales(&desc->from, &desc->to, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_memory(&desc->from, &names[0], desc->columnwise, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_memory(&desc->to, &names[1], desc->columnwise, desc->space, error));
    buffers[0] = tegroup_impl_scale_memory(&desc->to, &names[1], desc->columnwise, "must not overlap to's list", 1);
    buffers[1] = tegroup_impl_scale_memory(&desc->from, &names[0], desc->columnwise, "must not overlap from", 0);
    buffers[2] = tegroup_impl_snapshot_buffer(&desc->from);
    buffers[3] = tegroup_impl_snapshot_buffer(&desc->to);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 4, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_KERNELS, desc->space, error);
}

static inline int32_t tegroup_impl_scale_team(int32_t threads, int64_t count) {
    return tegroup_impl_team(tegroup_impl_threads(threads), 10.0 * (double)count); /* steps: its divisions */
}

static inline void tegroup_impl_convert_group(const tegroup_impl_scale_pair *pair, const tegroup_impl_scales scales[2],
                                              int32_t threads) {
    const tegroup_impl_scale_grid *to = &pair->grids[1];
    int64_t e;
    (void)threads;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(tegroup_impl_scale_team(threads, to->count)))
    for (e = 0; e < to->count; e++) {
        const tegroup_impl_scale_place place = tegroup_impl_scale_place_of(to, e);
        tegroup_impl_store_scale(scales[1].dtype, pair->data[1],
                                 tegroup_impl_scale_of_block(to, place.part, place.outer, place.inner),
                                 tegroup_impl_pair_scale(pair, scales, place));
    }
}

TEGROUP_API tegroup_status tegroup_scale_convert(const tegroup_scale_convert_desc *desc, struct CUstream_st *stream,
                                                 tegroup_error *error) {
    tegroup_scale_convert_desc taken;
    tegroup_impl_scales scales[2];
    tegroup_impl_scale_pair pair;
    int32_t g;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_scale_convert_check(desc, error));
    scales[0] = tegroup_impl_scales_of(&desc->from, desc->columnwise);
    scales[1] = tegroup_impl_scales_of(&desc->to, desc->columnwise);
#if defined(TEGROUP_IMPL_CUDA)
    if (desc->space == TEGROUP_SPACE_DEVICE)
        return tegroup_impl_cuda_scale_convert(&scales[0], &scales[1], stream, error);
#endif
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_groups(scales, error));
    tegroup_impl_scale_pair_begin(&pair, scales);
    for (g = 0; g < desc->to.shape.groups; g++) {
        tegroup_impl_scale_pair_next(&pair, scales, g);
        tegroup_impl_convert_group(&pair, scales, desc->threads);
    }
    return TEGROUP_OK;
}

/* ==== [79] Counts of groups (src/moe/count.h) ==== */

#if TEGROUP_IMPL_MOE_KERNELS
static inline tegroup_status tegroup_impl_cuda_count(const tegroup_count_desc *desc, struct CUstream_st *stream,
                                                     tegroup_error *error);
#endif

/* Counts of I32 or I64; absent ones are left alone. */
static inline void tegroup_impl_clear_counts(const tegroup_matrix *counts) {
    const int64_t groups = counts->dtype != TEGROUP_DTYPE_UNSET ? counts->cols : 0;
    int64_t g;
    for (g = 0; g < groups; g++) tegroup_impl_store_int(counts->dtype, counts->data, g, 0);
}

/* Any thread may add. */
static inline void tegroup_impl_count_one(const tegroup_matrix *counts, int64_t g) {
    if (counts->dtype == TEGROUP_DTYPE_I32) {
        TEGROUP_IMPL_OMP(omp atomic)
        ((tegroup_impl_any32 *)counts->data)[g] += 1;
    } else if (counts->dtype == TEGROUP_DTYPE_I64) {
        TEGROUP_IMPL_OMP(omp atomic)
        ((tegroup_impl_any64 *)counts->data)[g] += 1;
    }
}

static inline tegroup_status tegroup_impl_count_check(const tegroup_count_desc *desc, tegroup_error *error) {
    static const char *const labels[5] = TEGROUP_IMPL_MATRIX_PATHS("labels"),
                             *const counts[5] = TEGROUP_IMPL_MATRIX_PATHS("counts"),
                             *const offsets[5] = TEGROUP_IMPL_MATRIX_PATHS("offsets");
    const int64_t groups = desc->groups;
    int64_t most;
    tegroup_impl_buffer buffers[3];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(groups >= 0 && groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, groups);
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->labels, labels, -1, -1, TEGROUP_IMPL_INTEGERS, error));
    most = tegroup_impl_mul(desc->labels.rows, desc->labels.cols);
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->counts, counts, 1, groups, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->counts, counts, most, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->offsets, offsets, 1, groups + 1, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->offsets, offsets, most, error));
    buffers[0] = tegroup_impl_matrix_buffer(&desc->offsets, offsets[0], NULL, 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->counts, counts[0], "must not overlap counts", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->labels, NULL, "must not overlap labels", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 3, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error);
}

TEGROUP_API tegroup_status tegroup_count(const tegroup_count_desc *desc, struct CUstream_st *stream,
                                         tegroup_error *error) {
    tegroup_count_desc taken;
    int64_t t, j, label, g, before = 0;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_count_check(desc, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_count(desc, stream, error);
#endif
    tegroup_impl_clear_counts(&desc->counts);
    for (t = 0; t < tegroup_impl_matrix_rows(&desc->labels); t++)
        for (j = 0; j < desc->labels.cols; j++) {
            label = tegroup_impl_load_int(desc->labels.dtype, tegroup_impl_matrix_row(&desc->labels, t), j);
            if (tegroup_impl_within(label, desc->groups)) tegroup_impl_count_one(&desc->counts, label);
        }
    for (g = 0; g <= desc->groups; g++) {
        tegroup_impl_store_int(desc->offsets.dtype, desc->offsets.data, g, before);
        if (g < desc->groups) before += tegroup_impl_load_int(desc->counts.dtype, desc->counts.data, g);
    }
    return TEGROUP_OK;
}

/* ==== [80] Router (src/moe/router.h) ==== */

#if TEGROUP_IMPL_MOE_KERNELS
static inline tegroup_status tegroup_impl_cuda_router(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error);
#endif
#if TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
static inline tegroup_status tegroup_impl_cuda_router_backward(const tegroup_router_backward_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error);
#endif

/* Balance gradient of a probability: coefficient * experts * (count / (tokens k)) / tokens, for each assignment
 * counted. */
static inline double tegroup_impl_router_per_count(const tegroup_router_backward_desc *desc) {
    double tokens = (double)desc->probabilities.rows;
    return desc->balance_coefficient * (desc->loss_scale != 0 ? desc->loss_scale : 1) * desc->experts
           / (tokens * tokens * desc->k);
}

/* The most experts a token can choose. */
#define TEGROUP_IMPL_CHOICES 64

/* Is an expert better than the best so far, a lower one? By probability, and by logit where the softmax does not tell
 * them apart, far below the largest or close together. NaN never wins. */
static inline int tegroup_impl_router_better_f32(const tegroup_router_desc *desc, const void *logits,
                                                  const float *probabilities, int32_t e, int32_t best) {
    if (probabilities[e] != probabilities[best]) return probabilities[e] > probabilities[best];
    return tegroup_impl_load_f64(desc->logits.dtype, logits, e)
           > tegroup_impl_load_f64(desc->logits.dtype, logits, best);
}

/* One token: probabilities, its k best experts and their weights. The exponent is shifted by the row's largest
 * logit. */
static inline void tegroup_impl_router_row_f32(const tegroup_router_desc *desc, int64_t token, float *probabilities) {
    const void *logits = tegroup_impl_matrix_row(&desc->logits, token);
    float *weights = (float *)(void *)tegroup_impl_matrix_row(&desc->weights, token);
    int32_t indices[TEGROUP_IMPL_CHOICES], e, j, i;
    float largest = tegroup_impl_load_f32(desc->logits.dtype, logits, 0), sum = 0, chosen = 0;
    for (e = 1; e < desc->experts; e++) {
        float x = tegroup_impl_load_f32(desc->logits.dtype, logits, e);
        if (x > largest) largest = x;
    }
    for (e = 0; e < desc->experts; e++) {
        probabilities[e] = tegroup_impl_exp_f32(tegroup_impl_load_f32(desc->logits.dtype, logits, e) - largest);
        sum += probabilities[e];
    }
    for (e = 0; e < desc->experts; e++) probabilities[e] /= sum;
    for (j = 0; j < desc->k; j++) {
        int32_t best = -1;
        for (e = 0; e < desc->experts; e++) {
            for (i = 0; i < j && indices[i] != e; i++) {}
            if (i == j && (best < 0 || tegroup_impl_router_better_f32(desc, logits, probabilities, e, best))) best = e;
        }
        indices[j] = best;
        chosen += probabilities[best];
        tegroup_impl_store_int(desc->indices.dtype, tegroup_impl_matrix_row(&desc->indices, token), j, best);
        tegroup_impl_count_one(&desc->counts, best);
    }
    for (j = 0; j < desc->k && desc->weights.dtype != TEGROUP_DTYPE_UNSET; j++)
        weights[j] = desc->normalize ? probabilities[indices[j]] / chosen : probabilities[indices[j]];
}

/* A choice that is no expert's was dropped after routing. It is still part of what the weights were divided by, and can
 * be named: as the router takes the largest probabilities, those dropped are the largest that the token's other choices
 * leave. They get their places back; their weights went nowhere, so their gradients are 0. */
TEGROUP_IMPL_HD void tegroup_impl_router_recall_f32(const float *probabilities, int32_t experts, int32_t k,
                                                     int32_t *indices, float *grad_weights) {
    int32_t j, e, i;
    for (j = 0; j < k; j++) {
        int32_t best = -1;
        if (tegroup_impl_within(indices[j], experts)) continue;
        for (e = 0; e < experts; e++) {
            if (best >= 0 && !(probabilities[e] > probabilities[best])) continue;
            for (i = 0; i < k && indices[i] != e; i++) {}
            if (i == k) best = e;
        }
        indices[j] = best;
        grad_weights[j] = 0;
    }
}

/* One token's logit gradient: through the normalised weights to the probabilities, add the balance term, through
 * softmax. */
static inline void tegroup_impl_router_grad_row_f32(const tegroup_router_backward_desc *desc, int64_t token) {
    const float *probabilities = (const float *)(const void *)tegroup_impl_matrix_row(&desc->probabilities, token);
    void *grad_logits = tegroup_impl_matrix_row(&desc->grad_logits, token);
    int balanced = desc->balance_coefficient != 0;
    float per_count = balanced ? (float)tegroup_impl_router_per_count(desc) : 0, chosen = 0, dot = 0, mean = 0;
    float grad_weights[TEGROUP_IMPL_CHOICES];
    int32_t indices[TEGROUP_IMPL_CHOICES], pass, e, j;
    memcpy(grad_weights, tegroup_impl_matrix_row(&desc->grad_weights, token), (size_t)desc->k * sizeof(float));
    for (j = 0; j < desc->k; j++) {
        const int64_t index =
            tegroup_impl_load_int(desc->indices.dtype, tegroup_impl_matrix_row(&desc->indices, token), j);
        indices[j] = tegroup_impl_within(index, desc->experts) ? (int32_t)index : -1;
    }
    tegroup_impl_router_recall_f32(probabilities, desc->experts, desc->k, indices, grad_weights);
    for (j = 0; j < desc->k; j++) chosen += probabilities[indices[j]];
    for (j = 0; j < desc->k; j++) dot += grad_weights[j] * probabilities[indices[j]];
    for (pass = 0; pass < 2; pass++) /* the mean gradient first, then each one's difference from it */
        for (e = 0; e < desc->experts; e++) {
            float grad =
                balanced ? per_count * (float)tegroup_impl_load_int(desc->counts.dtype, desc->counts.data, e) : 0;
            for (j = 0; j < desc->k; j++)
                if (indices[j] == e)
                    grad += tegroup_impl_choice_grad_f32(grad_weights[j], dot, chosen, desc->normalize);
            if (pass == 0) mean += probabilities[e] * grad;
            else tegroup_impl_store_f32(desc->grad_logits.dtype, grad_logits, e, probabilities[e] * (grad - mean));
        }
}

/* Is an expert better than the best so far, a lower one? By probability, and by logit where the softmax does not tell
 * them apart, far below the largest or close together. NaN never wins. */
static inline int tegroup_impl_router_better_f64(const tegroup_router_desc *desc, const void *logits,
                                                  const double *probabilities, int32_t e, int32_t best) {
    if (probabilities[e] != probabilities[best]) return probabilities[e] > probabilities[best];
    return tegroup_impl_load_f64(desc->logits.dtype, logits, e)
           > tegroup_impl_load_f64(desc->logits.dtype, logits, best);
}

/* One token: probabilities, its k best experts and their weights. The exponent is shifted by the row's largest
 * logit. */
static inline void tegroup_impl_router_row_f64(const tegroup_router_desc *desc, int64_t token, double *probabilities) {
    const void *logits = tegroup_impl_matrix_row(&desc->logits, token);
    double *weights = (double *)(void *)tegroup_impl_matrix_row(&desc->weights, token);
    int32_t indices[TEGROUP_IMPL_CHOICES], e, j, i;
    double largest = tegroup_impl_load_f64(desc->logits.dtype, logits, 0), sum = 0, chosen = 0;
    for (e = 1; e < desc->experts; e++) {
        double x = tegroup_impl_load_f64(desc->logits.dtype, logits, e);
        if (x > largest) largest = x;
    }
    for (e = 0; e < desc->experts; e++) {
        probabilities[e] = tegroup_impl_exp_f64(tegroup_impl_load_f64(desc->logits.dtype, logits, e) - largest);
        sum += probabilities[e];
    }
    for (e = 0; e < desc->experts; e++) probabilities[e] /= sum;
    for (j = 0; j < desc->k; j++) {
        int32_t best = -1;
        for (e = 0; e < desc->experts; e++) {
            for (i = 0; i < j && indices[i] != e; i++) {}
            if (i == j && (best < 0 || tegroup_impl_router_better_f64(desc, logits, probabilities, e, best))) best = e;
        }
        indices[j] = best;
        chosen += probabilities[best];
        tegroup_impl_store_int(desc->indices.dtype, tegroup_impl_matrix_row(&desc->indices, token), j, best);
        tegroup_impl_count_one(&desc->counts, best);
    }
    for (j = 0; j < desc->k && desc->weights.dtype != TEGROUP_DTYPE_UNSET; j++)
        weights[j] = desc->normalize ? probabilities[indices[j]] / chosen : probabilities[indices[j]];
}

/* A choice that is no expert's was dropped after routing. It is still part of what the weights were divided by, and can
 * be named: as the router takes the largest probabilities, those dropped are the largest that the token's other choices
 * leave. They get their places back; their weights went nowhere, so their gradients are 0. */
TEGROUP_IMPL_HD void tegroup_impl_router_recall_f64(const double *probabilities, int32_t experts, int32_t k,
                                                     int32_t *indices, double *grad_weights) {
    int32_t j, e, i;
    for (j = 0; j < k; j++) {
        int32_t best = -1;
        if (tegroup_impl_within(indices[j], experts)) continue;
        for (e = 0; e < experts; e++) {
            if (best >= 0 && !(probabilities[e] > probabilities[best])) continue;
            for (i = 0; i < k && indices[i] != e; i++) {}
            if (i == k) best = e;
        }
        indices[j] = best;
        grad_weights[j] = 0;
    }
}

/* One token's logit gradient: through the normalised weights to the probabilities, add the balance term, through
 * softmax. */
static inline void tegroup_impl_router_grad_row_f64(const tegroup_router_backward_desc *desc, int64_t token) {
    const double *probabilities = (const double *)(const void *)tegroup_impl_matrix_row(&desc->probabilities, token);
    void *grad_logits = tegroup_impl_matrix_row(&desc->grad_logits, token);
    int balanced = desc->balance_coefficient != 0;
    double per_count = balanced ? (double)tegroup_impl_router_per_count(desc) : 0, chosen = 0, dot = 0, mean = 0;
    double grad_weights[TEGROUP_IMPL_CHOICES];
    int32_t indices[TEGROUP_IMPL_CHOICES], pass, e, j;
    memcpy(grad_weights, tegroup_impl_matrix_row(&desc->grad_weights, token), (size_t)desc->k * sizeof(double));
    for (j = 0; j < desc->k; j++) {
        const int64_t index =
            tegroup_impl_load_int(desc->indices.dtype, tegroup_impl_matrix_row(&desc->indices, token), j);
        indices[j] = tegroup_impl_within(index, desc->experts) ? (int32_t)index : -1;
    }
    tegroup_impl_router_recall_f64(probabilities, desc->experts, desc->k, indices, grad_weights);
    for (j = 0; j < desc->k; j++) chosen += probabilities[indices[j]];
    for (j = 0; j < desc->k; j++) dot += grad_weights[j] * probabilities[indices[j]];
    for (pass = 0; pass < 2; pass++) /* the mean gradient first, then each one's difference from it */
        for (e = 0; e < desc->experts; e++) {
            double grad =
                balanced ? per_count * (double)tegroup_impl_load_int(desc->counts.dtype, desc->counts.data, e) : 0;
            for (j = 0; j < desc->k; j++)
                if (indices[j] == e)
                    grad += tegroup_impl_choice_grad_f64(grad_weights[j], dot, chosen, desc->normalize);
            if (pass == 0) mean += probabilities[e] * grad;
            else tegroup_impl_store_f64(desc->grad_logits.dtype, grad_logits, e, probabilities[e] * (grad - mean));
        }
}

static inline tegroup_status tegroup_impl_check_router_sizes(int32_t experts, int32_t k, int32_t normalize,
                                                             double coefficient, tegroup_error *error) {
    TEGROUP_IMPL_RULE(experts >= 1 && experts <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "experts",
                      "must be 1 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, experts);
    TEGROUP_IMPL_RULE(k >= 1 && k <= TEGROUP_IMPL_CHOICES, ERROR_VALUE, "k", "must be 1 to 64", TEGROUP_IMPL_CHOICES,
                      k);
    TEGROUP_IMPL_RULE(k <= experts, ERROR_VALUE, "k", "must be at most experts", experts, k);
    TEGROUP_IMPL_RULE(normalize == 0 || normalize == 1, ERROR_VALUE, "normalize", "must be 0 or 1", 1, normalize);
    TEGROUP_IMPL_RULE(coefficient >= 0, ERROR_VALUE, "balance_coefficient", "must not be negative or NaN", 0, -1);
    return TEGROUP_OK;
}

/* Sums of probabilities over this many runs of tokens, added up in order: the load-balancing loss needs no atomics. */
#define TEGROUP_IMPL_ROUTER_RUNS 64

TEGROUP_API tegroup_status tegroup_router_layout(const tegroup_router_desc *desc, tegroup_layout *layout,
                                                 tegroup_error *error) {
    tegroup_router_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_router_sizes(desc->experts, desc->k, desc->normalize, desc->balance_coefficient, error));
    tegroup_impl_layout_begin(layout);
    if (desc->space == TEGROUP_SPACE_DEVICE && desc->balance_loss)
        tegroup_impl_layout_add(layout, "sums of probabilities", 8 * (int64_t)TEGROUP_IMPL_ROUTER_RUNS * desc->experts);
    return TEGROUP_OK;
}

/* The type of the probabilities, wanted or not. */
static inline tegroup_dtype tegroup_impl_router_real(const tegroup_router_desc *desc) {
    if (desc->probabilities.dtype != TEGROUP_DTYPE_UNSET) return desc->probabilities.dtype;
    if (desc->weights.dtype != TEGROUP_DTYPE_UNSET) return desc->weights.dtype;
    return desc->logits.dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
}

static inline void tegroup_impl_router_row(const tegroup_router_desc *desc, int64_t token) {
    union {
        double f64[TEGROUP_MAX_GROUPS];
        float f32[TEGROUP_MAX_GROUPS];
    } unwanted;
    const int wanted = desc->probabilities.dtype != TEGROUP_DTYPE_UNSET;
    void *row = wanted ? tegroup_impl_matrix_row(&desc->probabilities, token) : NULL;
    if (tegroup_impl_router_real(desc) == TEGROUP_DTYPE_F64)
        tegroup_impl_router_row_f64(desc, token, wanted ? (double *)row : unwanted.f64);
    else tegroup_impl_router_row_f32(desc, token, wanted ? (float *)row : unwanted.f32);
}

/* At least one output, and what the load-balancing loss is computed from. */
static inline tegroup_status tegroup_impl_check_router_outputs(const tegroup_router_desc *desc, tegroup_error *error) {
    const int probabilities = desc->probabilities.dtype != TEGROUP_DTYPE_UNSET,
              counts = desc->counts.dtype != TEGROUP_DTYPE_UNSET;
    TEGROUP_IMPL_RULE_AS(DTYPES, probabilities || !desc->balance_loss, ERROR_UNSET, "probabilities.dtype",
                         "must be set with balance_loss", TEGROUP_IMPL_REALS, 0);
    TEGROUP_IMPL_RULE_AS(DTYPES, counts || !desc->balance_loss, ERROR_UNSET, "counts.dtype",
                         "must be set with balance_loss", TEGROUP_IMPL_INTEGERS, 0);
    TEGROUP_IMPL_RULE_AS(DTYPES,
                         probabilities || counts || desc->weights.dtype != TEGROUP_DTYPE_UNSET
                             || desc->indices.dtype != TEGROUP_DTYPE_UNSET,
                         ERROR_UNSET, "probabilities.dtype", "must be set where weights, indices and counts are absent",
                         TEGROUP_IMPL_REALS, 0);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_router_check(const tegroup_router_desc *desc, tegroup_error *error) {
    static const char *const logits[5] = TEGROUP_IMPL_MATRIX_PATHS("logits"),
                             *const probabilities[5] = TEGROUP_IMPL_MATRIX_PATHS("probabilities"),
                             *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("weights"),
                             *const indices[5] = TEGROUP_IMPL_MATRIX_PATHS("indices"),
                             *const counts[5] = TEGROUP_IMPL_MATRIX_PATHS("counts");
    const int64_t tokens = desc->logits.rows;
    tegroup_impl_buffer buffers[6];
    tegroup_layout layout;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_router_sizes(desc->experts, desc->k, desc->normalize, desc->balance_coefficient, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->logits, logits, -1, desc->experts, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->probabilities, probabilities, tokens, desc->experts,
                                                 TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(
        &desc->weights, weights, tokens, desc->k,
        desc->probabilities.dtype != TEGROUP_DTYPE_UNSET ? 1u << desc->probabilities.dtype : TEGROUP_IMPL_REALS,
        error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->indices, indices, tokens, desc->k, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->counts, counts, 1, desc->experts, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->counts, counts, tegroup_impl_mul(tokens, desc->k), error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_router_outputs(desc, error));
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(desc->balance_loss, sizeof(double)), ERROR_ALIGNMENT, "balance_loss",
                      "must be aligned to its element", 8, (uintptr_t)desc->balance_loss % sizeof(double));
    buffers[0] = tegroup_impl_buffer_of(desc->balance_loss, (int64_t)sizeof(double), "balance_loss",
                                        "must not overlap balance_loss", 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->counts, counts[0], "must not overlap counts", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->indices, indices[0], "must not overlap indices", 1);
    buffers[3] = tegroup_impl_matrix_buffer(&desc->weights, weights[0], "must not overlap weights", 1);
    buffers[4] =
        tegroup_impl_matrix_buffer(&desc->probabilities, probabilities[0], "must not overlap probabilities", 1);
    buffers[5] = tegroup_impl_matrix_buffer(&desc->logits, NULL, "must not overlap logits", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 6, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(tegroup_router_layout(desc, &layout, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error));
    return tegroup_impl_check_matrix_workspace(&layout, desc->workspace, desc->workspace_bytes, buffers, 6, error);
}

/* The threads that so many tokens are worth, of so many steps for each expert. */
static inline int32_t tegroup_impl_router_team(int32_t limit, int64_t tokens, int32_t experts, double steps) {
    return tegroup_impl_team(tegroup_impl_threads(limit), (double)tokens * experts * steps);
}

/* experts * sum of share * mean probability, summed by expert, then by token. A thread sums for a cache line of experts
 * at a time; each expert's sum is in the order of tokens, whoever adds it up. */
static inline double tegroup_impl_router_balance(const tegroup_router_desc *desc) {
    const int64_t tokens = desc->logits.rows;
    double mean[TEGROUP_MAX_GROUPS], loss = 0;
    int64_t t;
    int32_t first, e;
    if (tokens == 0) return 0;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) private(t, e) num_threads(
        tegroup_impl_router_team(desc->threads, tokens, desc->experts, 2)))
    for (first = 0; first < desc->experts; first += 8) {
        const int32_t end = (int32_t)tegroup_impl_min(first + 8, desc->experts);
        for (e = first; e < end; e++) mean[e] = 0;
        for (t = 0; t < tokens; t++) {
            const void *row = tegroup_impl_matrix_row(&desc->probabilities, t);
            for (e = first; e < end; e++) mean[e] += tegroup_impl_load_f64(desc->probabilities.dtype, row, e);
        }
    }
    for (e = 0; e < desc->experts; e++)
        loss += (double)tegroup_impl_load_int(desc->counts.dtype, desc->counts.data, e) / ((double)tokens * desc->k)
                * (mean[e] / (double)tokens);
    return desc->balance_coefficient * desc->experts * loss;
}

TEGROUP_API tegroup_status tegroup_router(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                          tegroup_error *error) {
    tegroup_router_desc taken;
    int64_t tokens, t;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_router_check(desc, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_router(desc, stream, error);
#endif

    tokens = desc->logits.rows; /* of each, the exponentials, and k looks at what is not chosen yet */
    tegroup_impl_clear_counts(&desc->counts);
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
        tegroup_impl_router_team(desc->threads, tokens, desc->experts, 8 + desc->k * (desc->k + 1) / 2)))
    for (t = 0; t < tokens; t++) tegroup_impl_router_row(desc, t);
    if (desc->balance_loss) *desc->balance_loss = tegroup_impl_router_balance(desc);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_router_backward(const tegroup_router_backward_desc *desc, struct CUstream_st *stream,
                                                   tegroup_error *error) {
    tegroup_router_backward_desc taken;
    static const char *const probabilities[5] = TEGROUP_IMPL_MATRIX_PATHS("probabilities"),
                             *const indices[5] = TEGROUP_IMPL_MATRIX_PATHS("indices"),
                             *const counts[5] = TEGROUP_IMPL_MATRIX_PATHS("counts"),
                             *const grad_weights[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_weights"),
                             *const grad_logits[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_logits");
    tegroup_impl_buffer buffers[5];
    int64_t tokens, t;
    int32_t count = 0;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_router_sizes(desc->experts, desc->k, desc->normalize, desc->balance_coefficient, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->probabilities, probabilities, -1, desc->experts, TEGROUP_IMPL_REALS, error));
    tokens = desc->probabilities.rows;
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->indices, indices, tokens, desc->k, TEGROUP_IMPL_INTEGERS, error));
    if (desc->balance_coefficient != 0)
        TEGROUP_IMPL_TRY(
            tegroup_impl_check_matrix(&desc->counts, counts, 1, desc->experts, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->grad_weights, grad_weights, tokens, desc->k,
                                               1u << desc->probabilities.dtype, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->grad_logits, grad_logits, tokens, desc->experts, TEGROUP_IMPL_FLOATS, error));
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->grad_logits, grad_logits[0], NULL, 1);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->probabilities, NULL, "must not overlap probabilities", 0);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->indices, NULL, "must not overlap indices", 0);
    if (desc->balance_coefficient != 0)
        buffers[count++] = tegroup_impl_matrix_buffer(&desc->counts, NULL, "must not overlap counts", 0);
    buffers[count++] = tegroup_impl_matrix_buffer(&desc->grad_weights, NULL, "must not overlap grad_weights", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, count, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS, desc->space, error));
#if TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_router_backward(desc, stream, error);
#endif
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
        tegroup_impl_router_team(desc->threads, tokens, desc->experts, 2 * desc->k)))
    for (t = 0; t < tokens; t++) {
        if (desc->probabilities.dtype == TEGROUP_DTYPE_F64) tegroup_impl_router_grad_row_f64(desc, t);
        else tegroup_impl_router_grad_row_f32(desc, t);
    }
    return TEGROUP_OK;
}

/* ==== [81] Permute and combine (src/moe/permutation.h) ==== */

#if TEGROUP_IMPL_MOE_KERNELS
static inline tegroup_status tegroup_impl_cuda_permutation_make(const tegroup_permutation_desc *desc,
                                                                struct CUstream_st *stream, tegroup_error *error);
static inline tegroup_status tegroup_impl_cuda_permute(const tegroup_permute_desc *desc, struct CUstream_st *stream,
                                                       tegroup_error *error);
static inline tegroup_status tegroup_impl_cuda_combine(const tegroup_combine_desc *desc, struct CUstream_st *stream,
                                                       tegroup_error *error);
#endif
#if TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
static inline tegroup_status tegroup_impl_cuda_combine_backward(const tegroup_combine_backward_desc *desc,
                                                                struct CUstream_st *stream, tegroup_error *error);
#endif

/* An entry of a matrix of indices, or of a map. */
static inline int64_t tegroup_impl_entry(const tegroup_matrix *m, int64_t row, int64_t col) {
    return tegroup_impl_load_int(m->dtype, tegroup_impl_matrix_row(m, row), col);
}

/* A map is as wide as its numbers, which are below `count`, need it to be. */
static inline tegroup_status tegroup_impl_check_map(const tegroup_matrix *map, const char *const paths[5], int64_t rows,
                                                    int64_t cols, int64_t count, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(map, paths, rows, cols, TEGROUP_IMPL_INTEGERS, error));
    return tegroup_impl_check_reach(map, paths, count, error);
}

/* Weight of a slot, 1 when there are none. */
TEGROUP_IMPL_HD double tegroup_impl_slot_weight(const tegroup_matrix *weights, int64_t slot) {
    int64_t ld = weights->ld > 0 ? weights->ld : weights->cols;
    if (weights->dtype == TEGROUP_DTYPE_UNSET) return 1;
    return tegroup_impl_load_f64(weights->dtype, weights->data, slot / weights->cols * ld + slot % weights->cols);
}

/* to[j] = weight * from[j] */
static inline void tegroup_impl_scale_row_f32(const tegroup_matrix *in, int64_t from, const tegroup_matrix *out,
                                               int64_t to, float weight) {
    float x[TEGROUP_IMPL_PIECE];
    int64_t at, j;
    for (at = 0; at < out->cols; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, out->cols - at);
        tegroup_impl_load_row_f32(in->dtype, tegroup_impl_matrix_row(in, from), at, 1, n, x);
        for (j = 0; j < n; j++) x[j] *= weight;
        tegroup_impl_store_row_f32(out->dtype, tegroup_impl_matrix_row(out, to), at, 1, n, x);
    }
}

/* One token: its k rows, weighted and added in the order of its choices. */
static inline void tegroup_impl_combine_row_f32(const tegroup_combine_desc *desc, int64_t token) {
    const tegroup_matrix *in = &desc->permuted, *out = &desc->tokens;
    int64_t k = desc->row_of_slot.cols, at, j, slot;
    float x[TEGROUP_IMPL_PIECE], sum[TEGROUP_IMPL_PIECE];
    for (at = 0; at < out->cols; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, out->cols - at);
        for (j = 0; j < n; j++) sum[j] = 0;
        for (slot = 0; slot < k; slot++) {
            const int64_t row = tegroup_impl_entry(&desc->row_of_slot, token, slot);
            float weight;
            if (!tegroup_impl_within(row, in->rows)) continue;
            weight = (float)tegroup_impl_slot_weight(&desc->weights, token * k + slot);
            tegroup_impl_load_row_f32(in->dtype, tegroup_impl_matrix_row(in, row), at, 1, n, x);
            for (j = 0; j < n; j++) sum[j] += weight * x[j];
        }
        tegroup_impl_store_row_f32(out->dtype, tegroup_impl_matrix_row(out, token), at, 1, n, sum);
    }
}

static inline float tegroup_impl_dot_row_f32(const tegroup_matrix *a, int64_t i, const tegroup_matrix *b, int64_t r) {
    float x[TEGROUP_IMPL_PIECE], y[TEGROUP_IMPL_PIECE], sum = 0;
    int64_t at;
    for (at = 0; at < a->cols; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, a->cols - at);
        tegroup_impl_load_row_f32(a->dtype, tegroup_impl_matrix_row(a, i), at, 1, n, x);
        tegroup_impl_load_row_f32(b->dtype, tegroup_impl_matrix_row(b, r), at, 1, n, y);
        sum = tegroup_impl_dot_f32(x, y, n, sum);
    }
    return sum;
}

/* to[j] = weight * from[j] */
static inline void tegroup_impl_scale_row_f64(const tegroup_matrix *in, int64_t from, const tegroup_matrix *out,
                                               int64_t to, double weight) {
    double x[TEGROUP_IMPL_PIECE];
    int64_t at, j;
    for (at = 0; at < out->cols; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, out->cols - at);
        tegroup_impl_load_row_f64(in->dtype, tegroup_impl_matrix_row(in, from), at, 1, n, x);
        for (j = 0; j < n; j++) x[j] *= weight;
        tegroup_impl_store_row_f64(out->dtype, tegroup_impl_matrix_row(out, to), at, 1, n, x);
    }
}

/* One token: its k rows, weighted and added in the order of its choices. */
static inline void tegroup_impl_combine_row_f64(const tegroup_combine_desc *desc, int64_t token) {
    const tegroup_matrix *in = &desc->permuted, *out = &desc->tokens;
    int64_t k = desc->row_of_slot.cols, at, j, slot;
    double x[TEGROUP_IMPL_PIECE], sum[TEGROUP_IMPL_PIECE];
    for (at = 0; at < out->cols; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, out->cols - at);
        for (j = 0; j < n; j++) sum[j] = 0;
        for (slot = 0; slot < k; slot++) {
            const int64_t row = tegroup_impl_entry(&desc->row_of_slot, token, slot);
            double weight;
            if (!tegroup_impl_within(row, in->rows)) continue;
            weight = (double)tegroup_impl_slot_weight(&desc->weights, token * k + slot);
            tegroup_impl_load_row_f64(in->dtype, tegroup_impl_matrix_row(in, row), at, 1, n, x);
            for (j = 0; j < n; j++) sum[j] += weight * x[j];
        }
        tegroup_impl_store_row_f64(out->dtype, tegroup_impl_matrix_row(out, token), at, 1, n, sum);
    }
}

static inline double tegroup_impl_dot_row_f64(const tegroup_matrix *a, int64_t i, const tegroup_matrix *b, int64_t r) {
    double x[TEGROUP_IMPL_PIECE], y[TEGROUP_IMPL_PIECE], sum = 0;
    int64_t at;
    for (at = 0; at < a->cols; at += TEGROUP_IMPL_PIECE) {
        int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, a->cols - at);
        tegroup_impl_load_row_f64(a->dtype, tegroup_impl_matrix_row(a, i), at, 1, n, x);
        tegroup_impl_load_row_f64(b->dtype, tegroup_impl_matrix_row(b, r), at, 1, n, y);
        sum = tegroup_impl_dot_f64(x, y, n, sum);
    }
    return sum;
}

/* The threads that rows of `choices` rows each are worth. */
static inline int32_t tegroup_impl_rows_team(int32_t limit, int64_t rows, int64_t choices, int64_t cols) {
    return tegroup_impl_team(tegroup_impl_threads(limit), (double)rows * (double)choices * (double)cols);
}

/* Slots of one run: a warp counts a run's slots by expert, and takes them in order. */
static inline int64_t tegroup_impl_permutation_run(int32_t experts) {
    return 512 * tegroup_impl_max(1, tegroup_impl_ceil_div(experts, 1024));
}

static inline tegroup_status tegroup_impl_check_permutation_sizes(const tegroup_permutation_desc *desc,
                                                                  tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(desc->shape.groups >= 0 && desc->shape.groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "shape.groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, desc->shape.groups);
    TEGROUP_IMPL_RULE(desc->shape.rows >= 0 && desc->shape.rows <= TEGROUP_MAX_COLS, ERROR_VALUE, "shape.rows",
                      "must be 0 to TEGROUP_MAX_COLS: slot_of_row has a column for each", TEGROUP_MAX_COLS,
                      desc->shape.rows);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_permutation_layout(const tegroup_permutation_desc *desc, tegroup_layout *layout,
                                                      tegroup_error *error) {
    tegroup_permutation_desc taken;
    int64_t runs;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_permutation_sizes(desc, error));
    TEGROUP_IMPL_RULE(desc->indices.rows >= 0 && desc->indices.rows <= TEGROUP_MAX_ROWS, ERROR_VALUE, "indices.rows",
                      "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, desc->indices.rows);
    TEGROUP_IMPL_RULE(desc->indices.cols >= 0 && desc->indices.cols <= TEGROUP_MAX_COLS, ERROR_VALUE, "indices.cols",
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, desc->indices.cols);
    runs = tegroup_impl_ceil_div(tegroup_impl_mul(desc->indices.rows, desc->indices.cols),
                                 tegroup_impl_permutation_run(desc->shape.groups));
    TEGROUP_IMPL_RULE(
        desc->space != TEGROUP_SPACE_DEVICE
            || tegroup_impl_mul(runs, 8 * (int64_t)desc->shape.groups) <= tegroup_impl_max_bytes() - TEGROUP_ALIGNMENT,
        ERROR_OVERFLOW, "indices.rows", "times shape.groups must be addressable",
        tegroup_impl_max_bytes() - TEGROUP_ALIGNMENT, tegroup_impl_mul(runs, 8 * (int64_t)desc->shape.groups));
    tegroup_impl_layout_begin(layout);
    if (desc->space == TEGROUP_SPACE_DEVICE)
        tegroup_impl_layout_add(layout, "slots of each expert before each run", 8 * runs * desc->shape.groups);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_permutation_check(const tegroup_permutation_desc *desc,
                                                            tegroup_error *error) {
    static const char *const indices[5] = TEGROUP_IMPL_MATRIX_PATHS("indices"),
                             *const row_of_slot[5] = TEGROUP_IMPL_MATRIX_PATHS("row_of_slot"),
                             *const slot_of_row[5] = TEGROUP_IMPL_MATRIX_PATHS("slot_of_row");
    tegroup_impl_buffer buffers[4];
    tegroup_layout layout;
    TEGROUP_IMPL_TRY(tegroup_impl_check_permutation_sizes(desc, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->indices, indices, -1, -1, TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_map(&desc->row_of_slot, row_of_slot, desc->indices.rows, desc->indices.cols,
                                            desc->shape.rows, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_map(&desc->slot_of_row, slot_of_row, 1, desc->shape.rows,
                                            tegroup_impl_mul(desc->indices.rows, desc->indices.cols), error));
    tegroup_impl_snapshot_layout(desc->shape.groups, tegroup_impl_irregular(&desc->shape), &layout);
    buffers[0] = tegroup_impl_matrix_buffer(&desc->slot_of_row, slot_of_row[0], "must not overlap slot_of_row", 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->row_of_slot, row_of_slot[0], "must not overlap row_of_slot", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->indices, NULL, "must not overlap indices", 0);
    buffers[3] = tegroup_impl_buffer_of(desc->shape.snapshot, (int64_t)layout.total_bytes, NULL,
                                        "must not overlap the snapshot", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 4, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_RULE(desc->shape.snapshot != NULL, ERROR_NULL_ARGUMENT, "shape.snapshot",
                      "must not be NULL: prepare first", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(&desc->shape, desc->space, "shape.row_sizes.space", error));
    TEGROUP_IMPL_TRY(tegroup_permutation_layout(desc, &layout, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix_workspace(&layout, desc->workspace, desc->workspace_bytes, buffers, 4, error));
    return tegroup_impl_check_snapshot(desc->shape.snapshot, "shape.snapshot", desc->shape.rows, desc->space, error);
}

/* Rows for the slots of tokens from .. to-1: a slot takes its expert's next free row, or -1 where there is none. What
 * the slots before them take is counted first, so that the tokens may be shared out among threads. */
static inline void tegroup_impl_permutation_share(const tegroup_permutation_desc *desc,
                                                  const tegroup_snapshot_view *view, int64_t from, int64_t to) {
    const tegroup_matrix *rows = &desc->row_of_slot, *slots = &desc->slot_of_row;
    const int32_t groups = view->header->groups;
    int64_t taken[TEGROUP_MAX_GROUPS], k = desc->indices.cols, t, j;
    memset(taken, 0, (size_t)groups * sizeof *taken);
    for (t = 0; t < to; t++)
        for (j = 0; j < k; j++) {
            const int64_t expert = tegroup_impl_entry(&desc->indices, t, j);
            const int found = tegroup_impl_within(expert, groups) && taken[expert] < view->rows[expert];
            const int64_t row = found ? view->start[expert] + taken[expert] : -1;
            if (t >= from) tegroup_impl_store_int(rows->dtype, tegroup_impl_matrix_row(rows, t), j, row);
            if (t >= from && found) tegroup_impl_store_int(slots->dtype, slots->data, row, t * k + j);
            if (found) taken[expert]++;
        }
}

TEGROUP_API tegroup_status tegroup_permutation_make(const tegroup_permutation_desc *desc, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    tegroup_permutation_desc taken;
    tegroup_snapshot_view view;
    const tegroup_matrix *slots;
    int64_t tokens, row;
    int32_t threads, share;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_permutation_check(desc, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_permutation_make(desc, stream, error);
#endif
    view = tegroup_snapshot_read(desc->shape.snapshot);
    TEGROUP_IMPL_RULE(view.header->groups == desc->shape.groups, ERROR_CAPACITY, "shape.snapshot",
                      "must be of as many groups", desc->shape.groups, view.header->groups);

    tokens = tegroup_impl_matrix_rows(&desc->indices);
    slots = &desc->slot_of_row;
    threads = tegroup_impl_team(tegroup_impl_threads(desc->threads),
                                (double)desc->shape.rows + 2 * (double)tokens * (double)desc->indices.cols);
    TEGROUP_IMPL_OMP(omp parallel private(row, share) num_threads(threads)) {
        TEGROUP_IMPL_OMP(omp for schedule(static))
        for (row = 0; row < desc->shape.rows; row++) tegroup_impl_store_int(slots->dtype, slots->data, row, -1);
        TEGROUP_IMPL_OMP(omp for schedule(static))
        for (share = 0; share < threads; share++)
            tegroup_impl_permutation_share(desc, &view, tegroup_impl_share_begin(tokens, share, threads),
                                           tegroup_impl_share_begin(tokens, share + 1, threads));
    }
    return TEGROUP_OK;
}

/* What permute copies byte by byte: types of whole bytes that are not floating point. */
#define TEGROUP_IMPL_BYTES                                                                                             \
    (1u << TEGROUP_DTYPE_F8E4M3 | 1u << TEGROUP_DTYPE_F8E5M2 | 1u << TEGROUP_DTYPE_F8E8M0 | TEGROUP_IMPL_INTEGERS)

static inline tegroup_status tegroup_impl_permute_check(const tegroup_permute_desc *desc, tegroup_error *error) {
    static const char *const tokens[5] = TEGROUP_IMPL_MATRIX_PATHS("tokens"),
                             *const slot_of_row[5] = TEGROUP_IMPL_MATRIX_PATHS("slot_of_row"),
                             *const row_of_slot[5] = TEGROUP_IMPL_MATRIX_PATHS("row_of_slot"),
                             *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("weights"),
                             *const permuted[5] = TEGROUP_IMPL_MATRIX_PATHS("permuted");
    const int weighted = desc->weights.dtype != TEGROUP_DTYPE_UNSET,
              by_slots = desc->row_of_slot.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_impl_buffer buffers[4];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_RULE(desc->k >= 1 && desc->k <= TEGROUP_IMPL_CHOICES, ERROR_VALUE, "k", "must be 1 to 64",
                      TEGROUP_IMPL_CHOICES, desc->k);
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_matrix(&desc->tokens, tokens, -1, -1, TEGROUP_IMPL_FLOATS | TEGROUP_IMPL_BYTES, error));
    TEGROUP_IMPL_RULE_AS(DTYPES, !weighted || tegroup_impl_is_float(desc->tokens.dtype), ERROR_DTYPE, tokens[4],
                         "must be floating point with weights", TEGROUP_IMPL_FLOATS, desc->tokens.dtype);
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->row_of_slot, row_of_slot, desc->tokens.rows, desc->k,
                                                 TEGROUP_IMPL_INTEGERS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->row_of_slot, row_of_slot, desc->permuted.rows, error));
    if (!by_slots)
        TEGROUP_IMPL_TRY(tegroup_impl_check_map(&desc->slot_of_row, slot_of_row, 1, -1,
                                                tegroup_impl_mul(desc->tokens.rows, desc->k), error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(
        &desc->permuted, permuted, by_slots ? -1 : desc->slot_of_row.cols, desc->tokens.cols,
        tegroup_impl_is_float(desc->tokens.dtype) ? TEGROUP_IMPL_FLOATS : 1u << desc->tokens.dtype, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->weights, weights, desc->tokens.rows, desc->k, TEGROUP_IMPL_REALS, error));
    buffers[0] = tegroup_impl_matrix_buffer(&desc->permuted, permuted[0], NULL, 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->tokens, NULL, "must not overlap tokens", 0);
    buffers[2] = by_slots
                     ? tegroup_impl_matrix_buffer(&desc->row_of_slot, NULL, "must not overlap row_of_slot", 0)
                     : tegroup_impl_matrix_buffer(&desc->slot_of_row, NULL, "must not overlap slot_of_row", 0);
    buffers[3] = tegroup_impl_matrix_buffer(&desc->weights, NULL, "must not overlap weights", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 4, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error);
}

static inline int32_t tegroup_impl_permute_team(const tegroup_permute_desc *desc) {
    return tegroup_impl_rows_team(desc->threads, tegroup_impl_min(desc->permuted.rows, desc->tokens.rows * desc->k), 1,
                                  desc->permuted.cols);
}

/* Puts a slot's token into a row, unless one of them is outside. */
static inline void tegroup_impl_permute_slot(const tegroup_permute_desc *desc, int64_t slot, int64_t row) {
    double weight;
    if (!tegroup_impl_within(slot, tegroup_impl_mul(desc->tokens.rows, desc->k))
        || !tegroup_impl_within(row, desc->permuted.rows))
        return;
    weight = tegroup_impl_slot_weight(&desc->weights, slot);
    if (!tegroup_impl_is_float(desc->tokens.dtype))
        memcpy(tegroup_impl_matrix_row(&desc->permuted, row), tegroup_impl_matrix_row(&desc->tokens, slot / desc->k),
               (size_t)desc->tokens.cols * tegroup_impl_element(desc->tokens.dtype));
    else if (desc->tokens.dtype == TEGROUP_DTYPE_F64)
        tegroup_impl_scale_row_f64(&desc->tokens, slot / desc->k, &desc->permuted, row, weight);
    else tegroup_impl_scale_row_f32(&desc->tokens, slot / desc->k, &desc->permuted, row, (float)weight);
}

TEGROUP_API tegroup_status tegroup_permute(const tegroup_permute_desc *desc, struct CUstream_st *stream,
                                           tegroup_error *error) {
    tegroup_permute_desc taken;
    int64_t row, t, j;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_permute_check(desc, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_permute(desc, stream, error);
#endif
    if (desc->row_of_slot.dtype != TEGROUP_DTYPE_UNSET) {
        TEGROUP_IMPL_OMP(omp parallel for schedule(static) private(j) num_threads(tegroup_impl_permute_team(desc)))
        for (t = 0; t < tegroup_impl_matrix_rows(&desc->tokens); t++)
            for (j = 0; j < desc->k; j++)
                tegroup_impl_permute_slot(desc, t * desc->k + j, tegroup_impl_entry(&desc->row_of_slot, t, j));
        return TEGROUP_OK;
    }
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(tegroup_impl_permute_team(desc)))
    for (row = 0; row < tegroup_impl_matrix_rows(&desc->permuted); row++)
        tegroup_impl_permute_slot(desc, tegroup_impl_entry(&desc->slot_of_row, 0, row), row);
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_combine(const tegroup_combine_desc *desc, struct CUstream_st *stream,
                                           tegroup_error *error) {
    tegroup_combine_desc taken;
    static const char *const permuted[5] = TEGROUP_IMPL_MATRIX_PATHS("permuted"),
                             *const row_of_slot[5] = TEGROUP_IMPL_MATRIX_PATHS("row_of_slot"),
                             *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("weights"),
                             *const tokens[5] = TEGROUP_IMPL_MATRIX_PATHS("tokens");
    tegroup_impl_buffer buffers[4];
    int64_t t;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->permuted, permuted, -1, -1, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_map(&desc->row_of_slot, row_of_slot, -1, -1, desc->permuted.rows, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->tokens, tokens, desc->row_of_slot.rows, desc->permuted.cols,
                                               TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->weights, weights, desc->row_of_slot.rows,
                                                 desc->row_of_slot.cols, TEGROUP_IMPL_REALS, error));
    buffers[0] = tegroup_impl_matrix_buffer(&desc->tokens, tokens[0], NULL, 1);
    buffers[1] = tegroup_impl_matrix_buffer(&desc->permuted, NULL, "must not overlap permuted", 0);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->row_of_slot, NULL, "must not overlap row_of_slot", 0);
    buffers[3] = tegroup_impl_matrix_buffer(&desc->weights, NULL, "must not overlap weights", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 4, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS, desc->space, error));
#if TEGROUP_IMPL_MOE_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_combine(desc, stream, error);
#endif
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(
        tegroup_impl_rows_team(desc->threads, desc->tokens.rows, desc->row_of_slot.cols, desc->tokens.cols)))
    for (t = 0; t < tegroup_impl_matrix_rows(&desc->tokens); t++) {
        if (desc->permuted.dtype == TEGROUP_DTYPE_F64) tegroup_impl_combine_row_f64(desc, t);
        else tegroup_impl_combine_row_f32(desc, t);
    }
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_combine_backward(const tegroup_combine_backward_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    tegroup_combine_backward_desc taken;
    static const char *const grad_tokens[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_tokens"),
                             *const permuted[5] = TEGROUP_IMPL_MATRIX_PATHS("permuted"),
                             *const row_of_slot[5] = TEGROUP_IMPL_MATRIX_PATHS("row_of_slot"),
                             *const weights[5] = TEGROUP_IMPL_MATRIX_PATHS("weights"),
                             *const grad_permuted[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_permuted"),
                             *const grad_weights[5] = TEGROUP_IMPL_MATRIX_PATHS("grad_weights");
    tegroup_impl_buffer buffers[6];
    int64_t k, t, j;
    int wants_weights;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    wants_weights = desc->grad_weights.dtype != TEGROUP_DTYPE_UNSET;
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->grad_tokens, grad_tokens, -1, -1, TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->row_of_slot, row_of_slot, desc->grad_tokens.rows, -1,
                                               TEGROUP_IMPL_INTEGERS, error));
    k = desc->row_of_slot.cols;
    TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->grad_permuted, grad_permuted, -1, desc->grad_tokens.cols,
                                               TEGROUP_IMPL_FLOATS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_reach(&desc->row_of_slot, row_of_slot, desc->grad_permuted.rows, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_optional(&desc->weights, weights, desc->grad_tokens.rows, k, TEGROUP_IMPL_REALS, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->grad_weights, grad_weights, desc->grad_tokens.rows, k,
                                                 TEGROUP_IMPL_REALS, error));
    if (wants_weights) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_matrix(&desc->permuted, permuted, desc->grad_permuted.rows,
                                                   desc->grad_tokens.cols, TEGROUP_IMPL_FLOATS, error));
    } else {
        TEGROUP_IMPL_RULE(desc->permuted.dtype == TEGROUP_DTYPE_UNSET, ERROR_COMBINATION, "permuted.dtype",
                          "must be UNSET without grad_weights", TEGROUP_DTYPE_UNSET, desc->permuted.dtype);
        TEGROUP_IMPL_TRY(tegroup_impl_check_optional(&desc->permuted, permuted, -1, -1, TEGROUP_IMPL_FLOATS, error));
    }
    buffers[0] = tegroup_impl_matrix_buffer(&desc->grad_weights, grad_weights[0], NULL, 1);
    buffers[1] =
        tegroup_impl_matrix_buffer(&desc->grad_permuted, grad_permuted[0], "must not overlap grad_permuted", 1);
    buffers[2] = tegroup_impl_matrix_buffer(&desc->grad_tokens, NULL, "must not overlap grad_tokens", 0);
    buffers[3] = tegroup_impl_matrix_buffer(&desc->permuted, NULL, "must not overlap permuted", 0);
    buffers[4] = tegroup_impl_matrix_buffer(&desc->row_of_slot, NULL, "must not overlap row_of_slot", 0);
    buffers[5] = tegroup_impl_matrix_buffer(&desc->weights, NULL, "must not overlap weights", 0);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 6, TEGROUP_CHECK_HOST, NULL, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_check_built(TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS, desc->space, error));
#if TEGROUP_IMPL_MOE_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_combine_backward(desc, stream, error);
#endif
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) private(j) num_threads(
        tegroup_impl_rows_team(desc->threads, desc->grad_tokens.rows, k, (1 + wants_weights) * desc->grad_tokens.cols)))
    for (t = 0; t < tegroup_impl_matrix_rows(&desc->row_of_slot); t++)
        for (j = 0; j < k; j++) {
            int64_t row = tegroup_impl_entry(&desc->row_of_slot, t, j);
            double weight = tegroup_impl_slot_weight(&desc->weights, t * k + j), grad_weight = 0;
            int there = tegroup_impl_within(row, desc->grad_permuted.rows),
                is_f64 = desc->grad_tokens.dtype == TEGROUP_DTYPE_F64;
            if (there && is_f64) tegroup_impl_scale_row_f64(&desc->grad_tokens, t, &desc->grad_permuted, row, weight);
            if (there && !is_f64)
                tegroup_impl_scale_row_f32(&desc->grad_tokens, t, &desc->grad_permuted, row, (float)weight);
            if (!wants_weights) continue;
            if (there && is_f64) grad_weight = tegroup_impl_dot_row_f64(&desc->grad_tokens, t, &desc->permuted, row);
            if (there && !is_f64)
                grad_weight = (double)tegroup_impl_dot_row_f32(&desc->grad_tokens, t, &desc->permuted, row);
            tegroup_impl_store_f64(desc->grad_weights.dtype, tegroup_impl_matrix_row(&desc->grad_weights, t), j,
                                   grad_weight);
        }
    return TEGROUP_OK;
}
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
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
 * permit persons to whom the Software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
 * Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 * WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
 * OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
