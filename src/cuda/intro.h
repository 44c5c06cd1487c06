/* tegroup_cuda.cuh - the CUDA half of tegroup. tegroup.h includes it by itself when nvcc (or clang -x cuda) compiles;
 * do not include it alone. It holds no kernel in this version: tegroup_explain says of every GPU backend that it is not built.
 *
 * Licence: MIT, at the end of this file. Stitched from src/ by `make headers`: edit there.
 */
