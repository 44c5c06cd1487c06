/* tegroup_cuda.cuh - the CUDA half of tegroup. tegroup.h includes it by itself when nvcc (or clang -x cuda) compiles;
 * do not include it alone. It holds the prepare kernel, the operations around the GEMM, the portable GEMM kernels (SM80
 * and later), those for Hopper (sm_90a) and the cuBLASLt backends; link with the CUDA runtime, which nvcc does by
 * itself. Kernels are static: each file that defines TEGROUP_IMPLEMENTATION has its own, so keep to one such .cu file
 * where build time matters.
 *
 * Licence: MIT, at the end of this file. Stitched from src/ by `make headers`: edit there. */
