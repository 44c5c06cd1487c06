/* ---- Linkage of the functions ---- */

#pragma once
#include "base/status_types.h"

/* Functions of a file that includes this header, and may not call them. `inline` would have gcc and clang copy them
 * into their callers more readily, where they mostly check and plan: such a file takes 1.1 to 1.3 times as long to
 * compile, and runs no faster (docs/lab/compile-time.md). Without optimization gcc keeps all that are not inline. What
 * loops depend on says `inline` by itself. */
#if defined(__GNUC__) && defined(__OPTIMIZE__) && !defined(__CUDACC__)
#define TEGROUP_IMPL_STATIC static __attribute__((unused))
#else
#define TEGROUP_IMPL_STATIC static inline
#endif

#if !defined(TEGROUP_EXTERN)
#define TEGROUP_IMPL_STATIC_FUNCTIONS
#define TEGROUP_API TEGROUP_IMPL_STATIC
#elif defined(__cplusplus)
#define TEGROUP_API extern "C"
#else
#define TEGROUP_API extern
#endif
#define TEGROUP_API_STATUS TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status /* to be read by the caller */
