/* ---- Version and configuration ---- */

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

/* Macros that a user may define before including this file: TEGROUP_IMPLEMENTATION and TEGROUP_EXTERN, see the top;
 * TEGROUP_NO_CUDA keeps nvcc from pulling in tegroup_cuda.cuh; TEGROUP_NO_PORTABLE leaves out the portable GEMM kernels
 * (most of what nvcc has to compile), TEGROUP_NO_SM90 those for Hopper, TEGROUP_NO_CUBLASLT both cuBLASLt backends. None changes a struct. */

/* The only CUDA types in this header, by their tags, so that no toolkit is needed to include it:
 * cudaStream_t is struct CUstream_st *, cublasLtHandle_t is struct cublasLtContext *. */
struct CUstream_st;
struct CUevent_st;
struct cublasLtContext;

#define TEGROUP_MAX_GROUPS 4096          /* groups in one problem; 0 is allowed                            */
#define TEGROUP_MAX_ROWS   (INT64_C(1) << 40) /* rows that one buffer may hold                             */
#define TEGROUP_MAX_COLS   (INT64_C(1) << 31) /* columns, and elements between rows                        */
#define TEGROUP_ALIGNMENT  256           /* bytes: every workspace and snapshot, and each item within them */
