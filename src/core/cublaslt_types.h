/* ---- cuBLASLt's functions ---- */

#pragma once
#include "base/version.h"

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
