/* One translation unit of the compile matrix, as C, C++ or CUDA: tegroup.h comes first and alone, and where it brings
 * functions some are called. -DUNIT=name names this unit's function, so that several can be linked together. */
#include "tegroup.h"

#ifndef UNIT
#define UNIT unit
#endif
#ifdef __cplusplus
extern "C" {
#endif
tegroup_status UNIT(const tegroup_prepare_desc *sizes, const tegroup_gemm_desc *product);
#ifdef __cplusplus
}
#endif

tegroup_status UNIT(const tegroup_prepare_desc *sizes, const tegroup_gemm_desc *product) {
#if defined(TEGROUP_IMPLEMENTATION) || defined(TEGROUP_EXTERN)
    tegroup_plan   plan;
    tegroup_error  error;
    tegroup_status status = tegroup_prepare(sizes, NULL, &error);
    if (status == TEGROUP_OK) status = tegroup_plan_make(product, NULL, &plan, &error);
    if (status == TEGROUP_OK) status = tegroup_gemm(&plan, product, NULL, &error);
    return status;
#else
    return sizes != NULL && product != NULL ? TEGROUP_OK : TEGROUP_ERROR_NULL_ARGUMENT;
#endif
}
