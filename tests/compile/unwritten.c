/* Memory that a call is yet to write is handed to a constructor, which no compiler should take for reading it. */
#include "tegroup.h"

void describe(tegroup_gemm_desc *gemm, tegroup_matrix *matrix, void (*run)(tegroup_gemm_desc *, tegroup_matrix *));
void describe(tegroup_gemm_desc *gemm, tegroup_matrix *matrix, void (*run)(tegroup_gemm_desc *, tegroup_matrix *)) {
    float y[3][4], dw[2][3][4], out[3][4];
    gemm->c = tegroup_tensor_of(gemm->a.shape, 4, TEGROUP_DTYPE_F32, y);
    gemm->d = tegroup_tensor_uniform(2, 3, 4, TEGROUP_DTYPE_F32, dw);
    *matrix = tegroup_matrix_of(out, 3, 4, TEGROUP_DTYPE_F32);
    run(gemm, matrix);
}
