/* ---- Linkage of the functions ---- */

#pragma once
#include "base/status_types.h"

#if !defined(TEGROUP_EXTERN)
#define TEGROUP_IMPL_STATIC_FUNCTIONS
#define TEGROUP_API static inline
#elif defined(__cplusplus)
#define TEGROUP_API extern "C"
#else
#define TEGROUP_API extern
#endif
#define TEGROUP_API_STATUS TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status /* to be read by the caller */
