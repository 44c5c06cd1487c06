/* In the place of cuBLASLt's header, where nothing of cuBLAS is installed or could run. Tests ask for a handle before they
 * know whether it is there; version 0 says that it is not. */
#ifndef TEGROUP_EMULATOR_CUBLASLT_H
#define TEGROUP_EMULATOR_CUBLASLT_H

#include <stddef.h>

typedef struct cublasLtContext *cublasLtHandle_t;
enum { CUBLAS_STATUS_SUCCESS = 0 };

static inline int cublasLtCreate(cublasLtHandle_t *handle) {
    static int none;
    *handle = (cublasLtHandle_t)&none;
    return CUBLAS_STATUS_SUCCESS;
}
static inline size_t cublasLtGetVersion(void) { return 0; }

#endif
