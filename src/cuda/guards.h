/* ---- Guards and version ---- */

#pragma once
#include "base/version.h"

#ifndef TEGROUP_CUDA_CUH
#define TEGROUP_CUDA_CUH

#if !defined(__CUDACC__)
#error "tegroup_cuda.cuh needs nvcc or clang -x cuda; a plain C or C++ file includes tegroup.h instead"
#endif
#if !defined(TEGROUP_H)
#error "include tegroup.h, which brings tegroup_cuda.cuh by itself"
#endif

/* Both files of the pair carry the version; vendoring one without the other stops here. */
#define TEGROUP_CUDA_VERSION 100
#if TEGROUP_CUDA_VERSION != TEGROUP_VERSION
#error "tegroup.h and tegroup_cuda.cuh are of different versions; copy both from the same release"
#endif

#endif /* TEGROUP_CUDA_CUH */
