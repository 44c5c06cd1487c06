/* ---- Plan and explain ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "layer/quantize_types.h"

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
    uint8_t         code_order[2];     /* tegroup_code_order of a, b                                           */
    uint8_t         irregular;         /* 1: n or k may differ between groups                                  */
    uint8_t         alpha_space, beta_space; /* UNSET = default: 1 and 0                                       */
    uint8_t         alpha_stride, beta_stride;
    uint8_t         accumulate, bias_of_b, functor;
} tegroup_problem;

/* A machine, present or not. What 0 means stands with each field. */
typedef struct tegroup_target {
    size_t   struct_size;      /* sizeof(tegroup_target)                                                       */
    int32_t  sm;               /* compute capability, 10 * major + minor: 80, 90, 100, 120 ...; 0 = no GPU     */
    int32_t  cublaslt_version; /* cublasLtGetVersion(): 130100 is 13.1, 131000 is 13.10; 0 = none              */
    int32_t  threads;          /* CPU threads; 0 = what OpenMP gives here                                      */
    uint32_t built;            /* bit b set: backend b's code is in the build; 0 = what this build holds       */
    int32_t  multiprocessors;  /* of the GPU, which SM90's choice of a tile follows; 0 = 132, of an H100 SXM or H200 */
    int32_t  memory_bits;      /* width of the GPU's memory bus, likewise: 5120 of an H100 SXM, 6016 of an H200, no
                                  other was measured; 0 = 5120                                                 */
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
    double          predicted_us; /* SM90: predicted time of a call in us, by which the tile was chosen, on the target's
                                     GPU, which memory_bits tells from another; 0 = a rule chose it */
    double          quantised_us; /* SM90, a or b with a scaling: predicted time of a call in us, likewise, and of
                                     quantising its ragged rows before, in the copy that it reads; weights stay.
                                     0 = no scaling */
    double          bf16_us;      /* beside it, that of the same product of BF16: if smaller, BF16 is the faster plan */
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
#define TEGROUP_FEATURE_FUNCTOR     4096u   /* a functor of the caller's, see tegroup_gemm_with */

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
    TEGROUP_QUIRK_ADDED_HALVES,  /* there is a c, or accumulate, and d is F16 or BF16            */
    TEGROUP_QUIRK_NVFP4,         /* operands are NVFP4                                           */
    TEGROUP_QUIRK_SUMMED_BLOCKS  /* op is WGRAD, and operands are MXFP8                          */
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
    uint64_t        numerics_id;  /* equal ids mean equal bits for a row, however many rows come with it (of
                                     F32_FAST: in groups of as many rows). Of the CPU backend: within one build,
                                     as compilers may fuse a product and a sum. Of CUBLASLT_LOOP: for data
                                     aligned to 16 bytes; else its library takes another algorithm, as for
                                     shapes that the planned one cannot do                                   */
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
    const tegroup_plan *rival_plan;  /* another way to the results, such as a product of BF16 where gemm is of FP8,
                                        timed in turns with the candidates; NULL = none                             */
    const tegroup_gemm_desc *rival;  /* its call, on real buffers, whose results are overwritten, too               */
    const struct tegroup_quantize_desc *quantize; /* [quantize_count] what gemm needs before each call and the rival
                                        does not, such as quantise of its rows: run first, timed in turns as well, and
                                        whatever it writes is overwritten. NULL with 0: nothing                     */
    int32_t             quantize_count;
    float              *rival_milliseconds; /* [2], required with a rival: medians of gemm, by the candidate that is
                                        kept, with its quantize; and of the rival, which is the faster plan where its
                                        number is the smaller one. -1: not timed, by the CPU backend                */
} tegroup_tune_desc;

#define TEGROUP_SAVED_PLAN_BYTES 1024 /* what tegroup_plan_save writes */
