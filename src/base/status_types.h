/* ---- Status and errors ---- */

#pragma once
#include "base/version.h"

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
    TEGROUP_READING_SCALINGS = 4, /* expected has bit s set for each tegroup_scaling s that may be */
    TEGROUP_READING_REAL     = 5  /* the bits of a double each                                    */
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
    const char    *within;   /* the member of the descriptor that field is a path in, such as "experts"
                                of an MoE layer; NULL: field is the whole path                    */
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
