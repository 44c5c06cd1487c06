/* ---- What this build has ---- */

#pragma once

#include <math.h>
#include <stdio.h>
#include <string.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

#if defined(__CUDACC__) && !defined(TEGROUP_NO_CUDA)
#define TEGROUP_IMPL_CUDA /* tegroup_cuda.cuh follows and defines what is declared under this name */
#define TEGROUP_IMPL_KERNELS 1 /* and what is declared under these */
#else
#define TEGROUP_IMPL_KERNELS 0
#endif
#if defined(TEGROUP_NO_BACKWARD)
#define TEGROUP_IMPL_BACKWARD_KERNELS 0
#else
#define TEGROUP_IMPL_BACKWARD_KERNELS TEGROUP_IMPL_KERNELS
#endif
#if defined(TEGROUP_NO_ACTIVATION)
#define TEGROUP_IMPL_ACTIVATION_KERNELS 0
#else
#define TEGROUP_IMPL_ACTIVATION_KERNELS TEGROUP_IMPL_KERNELS
#endif
#if defined(TEGROUP_NO_SM90) && defined(TEGROUP_NO_PORTABLE)
#define TEGROUP_IMPL_FUSED_KERNELS 0
#else
#define TEGROUP_IMPL_FUSED_KERNELS TEGROUP_IMPL_ACTIVATION_KERNELS
#endif
#if defined(TEGROUP_NO_MOE)
#define TEGROUP_IMPL_MOE_KERNELS 0
#else
#define TEGROUP_IMPL_MOE_KERNELS TEGROUP_IMPL_KERNELS
#endif
#if defined(TEGROUP_NO_EP)
#define TEGROUP_IMPL_EP_KERNELS 0
#else
#define TEGROUP_IMPL_EP_KERNELS TEGROUP_IMPL_KERNELS
#endif
#if defined(TEGROUP_NO_FP8)
#define TEGROUP_IMPL_FP8_KERNELS 0
#else
#define TEGROUP_IMPL_FP8_KERNELS TEGROUP_IMPL_KERNELS
#endif

/* Stop here if you only want the API. */
