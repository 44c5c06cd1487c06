/* TEGROUP_EXTERN after the functions were already made static: the documented #error. */
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#define TEGROUP_EXTERN
#include "tegroup.h"
