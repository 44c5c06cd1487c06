#if defined(TEGROUP_EXTERN) && defined(TEGROUP_IMPL_STATIC_FUNCTIONS)
#error "tegroup: TEGROUP_EXTERN was defined after tegroup.h was included with TEGROUP_IMPLEMENTATION alone; define it first"
#endif
#if (defined(TEGROUP_IMPLEMENTATION) || defined(TEGROUP_EXTERN)) && !defined(TEGROUP_FUNCTIONS_INCLUDED)
#define TEGROUP_FUNCTIONS_INCLUDED
#if !defined(TEGROUP_EXTERN)
#define TEGROUP_IMPL_STATIC_FUNCTIONS
#define TEGROUP_API static inline
#elif defined(__cplusplus)
#define TEGROUP_API extern "C"
#else
#define TEGROUP_API extern
#endif
#define TEGROUP_API_STATUS TEGROUP_API TEGROUP_IMPL_NODISCARD tegroup_status /* to be read by the caller */
