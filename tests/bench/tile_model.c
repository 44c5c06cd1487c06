/* The library's prediction of a kernel's time, for tests/bench/tiles.py to fit: a shared library of one function. */
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

typedef struct product {
    int64_t op, groups, rows, n, k, most; /* rows of all groups together, of the largest; 0: spread evenly */
} product;

/* us[i]: what product i is predicted to take with this kernel on so many blocks, beside memory of this slowness, if it had these
 * costs: ns, epilogue, tb, us. */
void tile_model(int32_t kernel, const double costs[4], int64_t blocks, double slowness, int64_t count, const product *products, double *us) {
    tegroup_impl_sm90_row row = *tegroup_impl_sm90_row_of(kernel);
    row.ns = costs[0];
    row.epilogue = costs[1];
    row.tb = costs[2];
    row.us = costs[3];
    for (int64_t i = 0; i < count; i++) {
        const product *p = &products[i];
        const double groups = (double)tegroup_impl_max(1, p->groups), mean = (double)tegroup_impl_max(1, p->rows / tegroup_impl_max(1, p->groups));
        const tegroup_impl_sm90_groups expected = tegroup_impl_sm90_expect(groups, mean, (double)p->most);
        tegroup_problem problem;
        memset(&problem, 0, sizeof problem);
        problem.op = (tegroup_op)p->op;
        problem.n = p->n;
        problem.k = p->k;
        us[i] = tegroup_impl_sm90_predict(&problem, &expected, &row, blocks, slowness).total;
    }
}
