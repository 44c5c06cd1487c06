/* tegroup_cuda.cuh - the CUDA half of tegroup. tegroup.h includes it by itself when nvcc (or clang -x cuda) compiles;
 * do not include it alone. It holds no kernel in this version: tegroup_explain says of every GPU backend that it is not built.
 *
 * Licence: MIT, at the end of this file. Stitched from src/ by `make headers`: edit there.
 */

/* Map: search for the number in brackets.
 *
 *   [1] Guards and version
 */

/* ==== [1] Guards and version ==== */

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
/* MIT License
 *
 * Copyright (c) 2026 the tegroup authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
 * documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
 * persons to whom the Software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
 * Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 * WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
 * OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
