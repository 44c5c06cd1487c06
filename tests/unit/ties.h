/* Rows of eight logits that a softmax does not tell apart, or not all of them, with the experts in the order in which a token takes
 * them: by probability, then by logit, then by index. Shared by the tests of the CPU's router and of the GPU's. */
#ifndef TEGROUP_TESTS_TIES_H
#define TEGROUP_TESTS_TIES_H

#include "support.h"

typedef struct tie { double logits[8]; int32_t order[8]; } tie;

#define INF ((double)INFINITY)
static const tie ties[] = {
    {{0, 1, 2, 850, 4, 5, 6, 1000}, {7, 3, 6, 5, 4, 2, 1, 0}}, /* all but the largest have a probability of 0 */
    {{-1000, -850, 0, -900, -900, -850, -INF, -2000}, {2, 1, 5, 3, 4, 0, 7, 6}},
    {{1000, -1000, 1000, -1000, -996, 1000, -992, -1000}, {0, 2, 5, 6, 4, 1, 3, 7}},
    {{-INF, 0, -INF, 1000, -INF, 1, -INF, -INF}, {3, 5, 1, 0, 2, 4, 6, 7}},
    {{-INF, -INF, -INF, -INF, -INF, -INF, -INF, 3}, {7, 0, 1, 2, 3, 4, 5, 6}},
    {{100, -4, -3, -5, -3.5, -2, -6, -7}, {0, 5, 2, 4, 1, 3, 6, 7}}, /* the smallest numbers that there are, or 0 */
    {{0x1p-20, 0x1p-22, 0x1p-21, 0x1p-24, 0, -0x1p-24, 0x1p-23, 0x1p-22}, {0, 2, 1, 7, 6, 3, 4, 5}}, /* nearly an eighth each */
    {{0, 0x1p-24, 0, 0x1p-24, 0x1p-23, 0, 0x1p-23, 0}, {4, 6, 1, 3, 0, 2, 5, 7}},
    {{60, 0x1p-12, 0x1p-11, 0, -0x1p-12, 0x1p-13, -0x1p-11, 0x1p-14}, {0, 2, 1, 5, 7, 3, 4, 6}}, /* what separates them is lost beside 60 */
    {{0, -0.0, 0, -0.0, 0, -0.0, 0, -0.0}, {0, 1, 2, 3, 4, 5, 6, 7}},
    {{5, 3, 5, 3, 5, 3, 5, 3}, {0, 2, 4, 6, 1, 3, 5, 7}},
    {{3, 1, 2, (double)NAN, 7, 5, 6, 4}, {0, 1, 2, 3, 4, 5, 6, 7}}, /* no probabilities */
    {{3, 1, 2, INF, 7, 5, 6, 4}, {0, 1, 2, 3, 4, 5, 6, 7}},
    {{-INF, -INF, -INF, -INF, -INF, -INF, -INF, -INF}, {0, 1, 2, 3, 4, 5, 6, 7}},
    {{1, 1 + 0x1p-40, 1 - 0x1p-40, 1 + 0x1p-30, 1, 1 - 0x1p-30, 1 + 0x1p-50, 1 - 0x1p-52}, {3, 1, 6, 0, 4, 7, 2, 5}}, /* F64 alone holds these two */
    {{0, 1e-300, 2e-300, -1e-300, 3e-300, 0, -2e-300, 1e-300}, {4, 2, 1, 7, 0, 5, 3, 6}}};
#undef INF
enum { TIES = sizeof ties / sizeof *ties, TIES_OF_HALVES = TIES - 2 };

#endif
