/* ---- Version and configuration ---- */

#pragma once

#define TEGROUP_VERSION_MAJOR 0
#define TEGROUP_VERSION_MINOR 1
#define TEGROUP_VERSION_PATCH 0
/* major * 10000 + minor * 100 + patch. Before 1.0 a minor step may change a public struct. */
#define TEGROUP_VERSION 100

#include <stddef.h>
#include <stdint.h>

#if defined(TEGROUP_IMPLEMENATION) || defined(TEGROUP_IMPL) || defined(TEGROUP_IMPLEMENT)
#error "tegroup: the macro is spelt TEGROUP_IMPLEMENTATION"
#endif
#if defined(TEGROUP_STATIC)
#error "tegroup: there is no TEGROUP_STATIC; functions are static unless TEGROUP_EXTERN is defined"
#endif
#if defined(TEGROUP_NO_FP16) || defined(TEGROUP_NO_HALF)
#error "tegroup: the switch is spelt TEGROUP_NO_F16"
#endif
#if defined(TEGROUP_NO_GRADIENT) || defined(TEGROUP_NO_GRADIENTS) || defined(TEGROUP_NO_GRAD)
#error "tegroup: the switch is spelt TEGROUP_NO_BACKWARD"
#endif
#if defined(TEGROUP_NO_ACTIVATIONS)
#error "tegroup: the switch is spelt TEGROUP_NO_ACTIVATION"
#endif
#if defined(TEGROUP_NO_ROUTER) || defined(TEGROUP_NO_PERMUTATION)
#error "tegroup: router and permutation have one switch, TEGROUP_NO_MOE"
#endif
#if defined(TEGROUP_NO_EXPERT_PARALLEL) || defined(TEGROUP_NO_DISPATCH)
#error "tegroup: the switch is spelt TEGROUP_NO_EP"
#endif
#if defined(TEGROUP_NO_F8) || defined(TEGROUP_NO_QUANTIZE)
#error "tegroup: the switch is spelt TEGROUP_NO_FP8"
#endif
#if defined(TEGROUP_NO_HOPPER)
#error "tegroup: the switch is spelt TEGROUP_NO_SM90"
#endif
#if defined(TEGROUP_NO_CUBLAS)
#error "tegroup: the switch is spelt TEGROUP_NO_CUBLASLT"
#endif

/* Macros that a user may define before including this file: TEGROUP_IMPLEMENTATION and TEGROUP_EXTERN, see the top; and
 * switches that leave out kernels, so that nvcc is done sooner. What a build lacks, calls and tegroup_explain refuse as
 * NOT_BUILT; the CPU backend always has everything, and no switch changes a struct.
 *
 *     TEGROUP_NO_PORTABLE    the portable GEMM kernels
 *     TEGROUP_NO_SM90        the GEMM kernels for Hopper
 *     TEGROUP_NO_CUBLASLT    both cuBLASLt backends
 *     TEGROUP_NO_F16         of both kinds of GEMM kernels those whose rows are FP16; results may still be, and
 *                            weights beside FP32
 *     TEGROUP_NO_BACKWARD    of both kinds those of dgrad and wgrad, and whatever else only a backward pass runs
 *     TEGROUP_NO_ACTIVATION  activations
 *     TEGROUP_NO_MOE         counts, exports, skew, router, permutation, permute and combine
 *     TEGROUP_NO_EP          sizes, dispatch and combine of expert parallelism
 *     TEGROUP_NO_FP8         quantise and dequantise, conversion of scales, and products of quantised
 *                            operands
 *     TEGROUP_NO_CUDA        all of them: nvcc does not pull in tegroup_cuda.cuh
 *
 * docs/lab/compile-time.md has the seconds that most of them save.
 *
 * TEGROUP_NVTX makes a range of each call that takes a stream, for NVIDIA's profilers, in C++ and under nvcc; it needs
 * their <nvtx3/nvToolsExt.h>, which every CUDA toolkit has, and where that asks for it -ldl. */

/* The only CUDA types in this header, by their tags, so that no toolkit is needed to include it:
 * cudaStream_t is struct CUstream_st *, cublasLtHandle_t is struct cublasLtContext *. */
struct CUstream_st;
struct CUevent_st;
struct cublasLtContext;

#define TEGROUP_MAX_GROUPS 4096          /* groups in one problem; 0 is allowed                            */
#define TEGROUP_MAX_ROWS   (INT64_C(1) << 40) /* rows that one buffer may hold                             */
#define TEGROUP_MAX_COLS   (INT64_C(1) << 31) /* columns, and elements between rows                        */
#define TEGROUP_ALIGNMENT  256           /* bytes: every workspace and snapshot, and each item within them */
