/* ---- Threads ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"

#if defined(_OPENMP)
#define TEGROUP_IMPL_OMP(directive) _Pragma(#directive)
#else
#define TEGROUP_IMPL_OMP(directive)
#endif

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_threads(int32_t threads, const char *field,
                                                              tegroup_error *error) {
    TEGROUP_IMPL_RULE(threads >= 0, ERROR_VALUE, field, "must not be negative", 0, threads);
    return TEGROUP_OK;
}

/* The threads that there are for a descriptor's limit; 0 = no limit. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_threads(int32_t limit) {
#if defined(_OPENMP)
    int32_t threads = (int32_t)omp_get_max_threads();
#else
    int32_t threads = 1;
#endif
    return limit > 0 && limit < threads ? limit : threads;
}

/* The work of a loop is counted in steps: an element that is read, widened and used, about a nanosecond of one core.
 * Below so many steps a loop stays with its own thread. Measured with gcc 12's libgomp, two threads: a parallel region
 * costs 1 us where the other thread still spins, 10 to 15 where it sleeps, and milliseconds where another program has
 * its core; the first two are little of what half of 65 us saves. docs/lab/cpu.md has the figures. */
#define TEGROUP_IMPL_FORK_STEPS 65536.0

/* Where a thread's share of `count` begins, and that of the thread before it ends. */
TEGROUP_IMPL_HD int64_t tegroup_impl_share_begin(int64_t count, int32_t share, int32_t threads) {
    return count / threads * share + count % threads * share / threads;
}

/* How many of so many threads a loop of so many steps is worth: one, or all. A number between would cost more than it
 * saves, as libgomp ends the threads that a smaller team leaves out, and makes them again for the next one. (steps are
 * a double, which no product of extents overflows.) */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_team(int32_t threads, double steps) {
    return steps < TEGROUP_IMPL_FORK_STEPS ? 1 : threads;
}
