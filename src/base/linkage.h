/* ---- Linkage of the functions ---- */

#pragma once
#include "base/status_types.h"

/* How functions are declared; a file that includes this header may call few of them. Most check and plan, once a call.
 * The word `inline` would have gcc and clang copy them into their callers more readily: a file would take 1.1 to 1.3
 * times as long to compile, and run no faster (docs/lab/compile-time.md). Without optimization gcc compiles functions
 * that nobody calls, unless they are inline. Those that loops depend on are TEGROUP_IMPL_INLINE or
 * TEGROUP_IMPL_HD_INLINE. */
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
