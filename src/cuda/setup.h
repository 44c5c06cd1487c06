/* ---- Set-up kernel of a grouped cuBLASLt matmul ---- */

/* What a group gets that cuBLASLt is not asked for. Without a C beta is 0. */
static __device__ inline void tegroup_impl_write_alone(const tegroup_impl_product &p, tegroup_dtype dtype, float beta,
                                                       bool nan, int64_t first, int64_t step) {
    for (int64_t e = first; e < p.m * p.n; e += step) {
        const int64_t i = e / p.n, j = e % p.n;
        float x = nan ? tegroup_impl_f32_of_bits(0x7fc00000u) : 0.0f;
        if (!nan && beta != 0) x = __fmul_rn(beta, tegroup_impl_load_f32(dtype, p.c.base, p.c.first + i * p.c.ld + j));
        tegroup_impl_store_f32(dtype, p.d.base, p.d.first + i * p.d.ld + j, x);
    }
}

/* A block a group. */
static __global__ void __launch_bounds__(128)
    tegroup_impl_setup_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                              const __grid_constant__ tegroup_impl_setup_items items) {
    __shared__ tegroup_impl_setup s;
    const int32_t g = (int32_t)blockIdx.x;
    if (threadIdx.x == 0) {
        tegroup_impl_setup_group(&call.desc, call.views, g, call.alpha, call.beta, &items, &s);
        tegroup_impl_setup_store(&s, &items, g);
    }
    __syncthreads();
    if (s.alone != TEGROUP_IMPL_ALONE_NOTHING)
        tegroup_impl_write_alone(s.product, call.desc.d.dtype, s.beta, s.alone == TEGROUP_IMPL_ALONE_NAN, threadIdx.x,
                                 blockDim.x);
}
