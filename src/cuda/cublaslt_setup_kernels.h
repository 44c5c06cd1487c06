/* ---- Set-up kernel of a grouped cuBLASLt matmul ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/convert.h"
#include "cuda/cublaslt_setup.h"
#include "cuda/cublaslt_scales.h"
#include "cuda/call.h"

/* Writes the result of a group that is hidden from cuBLASLt: NaN, or beta * C. Without a C beta is 0. */
static __device__ inline void tegroup_impl_write_alone(const tegroup_impl_result &p, tegroup_dtype dtype, float beta,
                                                       bool nan, int64_t first, int64_t step) {
    for (int64_t e = first; e < p.m * p.n; e += step) {
        const int64_t i = e / p.n, j = e % p.n;
        float x = nan ? tegroup_impl_f32_of_bits(0x7fc00000u) : 0.0f;
        if (!nan && beta != 0)
            x = tegroup_impl_gpu_mul(beta, tegroup_impl_load_f32(dtype, (const void *)(uintptr_t)p.c, i * p.ldc + j));
        tegroup_impl_store_f32(dtype, (void *)(uintptr_t)p.d, i * p.ldd + j, x);
    }
}

/* One thread sets up one group, `each` groups a block. At the end a block's threads together write the results that the
 * set-up kernel writes; they compute the set-up again for that, so that a block without such a group fetches little
 * code. USUAL: call.usual. */
template <bool USUAL>
static __global__ void __launch_bounds__(128)
    tegroup_impl_setup_kernel(int32_t each, const __grid_constant__ tegroup_impl_setup_call call) {
    const int32_t first = (int32_t)blockIdx.x * each, thread = (int32_t)threadIdx.x,
                  end = call.groups - first < each ? call.groups : first + each;
    bool alone = false;
    if (first + thread < end) {
        tegroup_impl_setup s;
        tegroup_impl_setup_group(&call, USUAL, first + thread, &s);
        tegroup_impl_setup_store(&s, &call.items, first + thread);
        alone = s.alone != TEGROUP_IMPL_ALONE_NOTHING;
    }
    if (!__syncthreads_or(alone)) return;
    for (int32_t g = first; g < end; g++) {
        tegroup_impl_setup s;
        tegroup_impl_setup_group(&call, USUAL, g, &s);
        if (s.alone != TEGROUP_IMPL_ALONE_NOTHING)
            tegroup_impl_write_alone(s.result, call.d_dtype, s.beta, s.alone == TEGROUP_IMPL_ALONE_NAN, thread,
                                     blockDim.x);
    }
}

/* A quantised a and b, as one kernel parameter. */
typedef struct tegroup_impl_setup_both {
    tegroup_impl_setup_scaled of[2];
} tegroup_impl_setup_both;

/* Quantised operands: blockIdx.x is the group, whose own results the blocks of blockIdx.y write in turn. A warp adds up
 * what the groups before take of copies and scales that lie one after another. */
static __global__ void __launch_bounds__(128)
    tegroup_impl_setup_scaled_kernel(const __grid_constant__ tegroup_impl_setup_call call,
                                     const __grid_constant__ tegroup_impl_setup_both both) {
    __shared__ tegroup_impl_setup s;
    const int32_t g = (int32_t)blockIdx.x;
    if (threadIdx.x < 32) {
        const int prepared = tegroup_impl_setup_prepared(&call);
        tegroup_impl_setup_taken before[2] = {{0, 0}, {0, 0}};
        for (int32_t h = (int32_t)threadIdx.x; h < g && prepared; h += 32) {
            tegroup_impl_setup_take(&both.of[0], &call.a, h, &before[0]);
            tegroup_impl_setup_take(&both.of[1], &call.b, h, &before[1]);
        }
        for (int32_t apart = 16; apart > 0; apart /= 2) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                before[i].scales += __shfl_xor_sync(0xffffffffu, before[i].scales, apart);
                before[i].copy += __shfl_xor_sync(0xffffffffu, before[i].copy, apart);
            }
        }
        if (threadIdx.x == 0) {
            tegroup_impl_setup_scaled_group(&call, both.of, before, prepared, g, &s);
            if (blockIdx.y == 0) tegroup_impl_setup_store(&s, &call.items, g);
        }
    }
    __syncthreads();
    if (s.alone != TEGROUP_IMPL_ALONE_NOTHING)
        tegroup_impl_write_alone(s.result, call.d_dtype, s.beta, s.alone == TEGROUP_IMPL_ALONE_NAN,
                                 (int64_t)blockIdx.y * blockDim.x + threadIdx.x, (int64_t)gridDim.y * blockDim.x);
}
