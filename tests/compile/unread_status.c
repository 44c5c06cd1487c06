/* An unread status must be a warning. */
#include "tegroup.h"

void unread(const tegroup_gemm_desc *desc, tegroup_problem *problem);

void unread(const tegroup_gemm_desc *desc, tegroup_problem *problem) {
    tegroup_gemm_problem(desc, problem, NULL);
}
