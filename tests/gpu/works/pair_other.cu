/* The second file of the pair. */
#include "pair.h"

tegroup_status other_plan(product *p) { return product_plan(p); }
tegroup_status other_run(product *p, const tegroup_plan *plan) { return product_run(p, plan, NULL); }
