#if defined(TEGROUP_IMPLEMENTATION) && !defined(TEGROUP_IMPLEMENTATION_INCLUDED)
#define TEGROUP_IMPLEMENTATION_INCLUDED
#include <math.h>
#include <stdio.h>
#include <string.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

/* Stop here if you only want the API. */
