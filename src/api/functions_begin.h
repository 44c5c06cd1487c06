#if defined(TEGROUP_EXTERN) && defined(TEGROUP_IMPL_STATIC_FUNCTIONS)
#error "tegroup: TEGROUP_EXTERN was defined after tegroup.h was included with TEGROUP_IMPLEMENTATION alone; define it first"
#endif
#if (defined(TEGROUP_IMPLEMENTATION) || defined(TEGROUP_EXTERN)) && !defined(TEGROUP_FUNCTIONS_INCLUDED)
#define TEGROUP_FUNCTIONS_INCLUDED
