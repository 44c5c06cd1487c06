/* ---- Status and errors ---- */

/* One list owns every status: its name, its number (stable, append only) and its text. */
#define TEGROUP_STATUS_LIST(X)                                                                       \
    X(OK, 0, "ok")                                                                                   \
    X(ERROR_NULL_ARGUMENT, 1, "a required pointer is NULL")                                          \
    X(ERROR_STRUCT_SIZE, 2, "struct_size is not the size of this version's struct")                  \
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
