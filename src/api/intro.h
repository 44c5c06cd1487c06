/* tegroup - grouped GEMM for mixture-of-experts layers, as C headers you copy into your tree.
 *
 * D[g] = alpha[g] * op(A[g]) * op(B[g]) + beta[g] * C[g], row-major, for up to 4,096 groups whose sizes
 * live in memory that the host need not read:
 *
 *     forward  Y  = X W^T      X [sum m, k], W [E, n, k]   ("NT")
 *     dgrad    dX = dY W                                   ("NN")
 *     wgrad    dW = dY^T X     one product an expert       ("TN", ragged k)
 *
 * Do this, in each file that calls tegroup:
 *
 *     #define TEGROUP_IMPLEMENTATION
 *     #include "tegroup.h"
 *
 *     1. prepare   tegroup_shape_prepare(&rows, ...) turns a routing's group sizes into a snapshot, once a routing
 *     2. describe  fill a tegroup_gemm_desc; zero means default, except for required enums and sizes
 *     3. plan      tegroup_plan_make(&desc, NULL, &plan, &error) picks the backend and the workspace, once
 *     4. run       tegroup_gemm(&plan, &desc, stream, &error), as often as you like
 *
 * examples/quickstart.c is this in forty lines. Without TEGROUP_IMPLEMENTATION only types, constants and
 * their documentation are seen. TEGROUP_EXTERN gives prototypes with C linkage instead; both together give
 * the exported definitions (`make lib` builds libtegroup that way).
 *
 * tegroup does not: allocate, free, wait for the GPU (but in tegroup_plan_tune), print, exit, throw, read an
 * environment variable, or keep state of its own. Every buffer is the caller's; every call returns a status and,
 * if asked, the field that was wrong with what was expected and what came. What a check refuses has written nothing.
 *
 * Needs: C99 or C++11 and the C library (link with -lm). nvcc adds tegroup_cuda.cuh by itself.
 * Licence: MIT, at the end of this file. Stitched from src/ by `make headers`: edit there.
 */
