#if defined(TEGROUP_IMPLEMENTATION) && !defined(TEGROUP_IMPLEMENTATION_INCLUDED)
#define TEGROUP_IMPLEMENTATION_INCLUDED
#include <math.h>
#include <stdio.h>
#include <string.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

#if defined(__CUDACC__) && !defined(TEGROUP_NO_CUDA)
#define TEGROUP_IMPL_CUDA /* tegroup_cuda.cuh follows and defines what is declared under this name */
#endif

/* Stop here if you only want the API. */
