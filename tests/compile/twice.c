/* Types, then functions, then both again: every order in which headers of one program may include tegroup.h. */
#include "tegroup.h"
#ifdef WITH_EXTERN
#define TEGROUP_EXTERN
#include "tegroup.h"
#endif
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include "unit.c"
