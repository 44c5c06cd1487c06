/* What the two files of the pair do for each other. */
#ifndef TEGROUP_TESTS_PAIR_H
#define TEGROUP_TESTS_PAIR_H

#define TEGROUP_IMPLEMENTATION
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "../product.h"

tegroup_status other_plan(product *p);
tegroup_status other_run(product *p, const tegroup_plan *plan);

#endif
