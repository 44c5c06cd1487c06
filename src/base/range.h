/* ---- Ranges for a profiler ---- */

#pragma once

/* With TEGROUP_NVTX, in C++ and under nvcc, each public call that takes a stream is a range of its name in NVIDIA's
 * tools, for as long as it runs on the host. Without, nothing is left of this line. */
#if defined(TEGROUP_NVTX) && defined(__cplusplus)
#include <nvtx3/nvToolsExt.h>
struct tegroup_impl_range {
    explicit tegroup_impl_range(const char *name) { (void)nvtxRangePushA(name); }
    ~tegroup_impl_range() { (void)nvtxRangePop(); }

  private:
    tegroup_impl_range(const tegroup_impl_range &);
    tegroup_impl_range &operator=(const tegroup_impl_range &);
};
#define TEGROUP_IMPL_RANGE(name) const tegroup_impl_range tegroup_impl_this_range(name);
#else
#define TEGROUP_IMPL_RANGE(name)
#endif
