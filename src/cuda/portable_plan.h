/* ---- Portable GEMM: plan and launch ---- */

/* One kernel of the family. Tiles are chosen for SM86, 89 and 120, whose blocks have 99 KB of shared memory. */
typedef struct tegroup_impl_portable_kernel_row {
    const void *bf16, *f16;
    int32_t tile_m, tile_n, threads, shared_bytes;
} tegroup_impl_portable_kernel_row;

#define TEGROUP_IMPL_PORTABLE_ROW(op, m, n, warps_m, warps_n, stages)                                                  \
    {                                                                                                                  \
        (const void *)tegroup_impl_portable_kernel<true, op, m, n, warps_m, warps_n, stages>,                          \
            (const void *)tegroup_impl_portable_kernel<false, op, m, n, warps_m, warps_n, stages>, m, n,               \
            (warps_m) * (warps_n)*32, (stages) * ((m) + (n)) * TEGROUP_IMPL_PORTABLE_TILE_K * 2                        \
    }

/* Rows of one operation, from the lowest tile to the highest. */
static inline const tegroup_impl_portable_kernel_row *tegroup_impl_portable_rows(tegroup_op op, int32_t *count) {
    static const tegroup_impl_portable_kernel_row forward[] = {TEGROUP_IMPL_PORTABLE_ROW(1, 16, 128, 1, 4, 4),
                                                               TEGROUP_IMPL_PORTABLE_ROW(1, 64, 128, 2, 4, 3),
                                                               TEGROUP_IMPL_PORTABLE_ROW(1, 128, 128, 2, 2, 3)};
    static const tegroup_impl_portable_kernel_row dgrad[] = {TEGROUP_IMPL_PORTABLE_ROW(2, 16, 128, 1, 4, 4),
                                                             TEGROUP_IMPL_PORTABLE_ROW(2, 64, 128, 2, 4, 3),
                                                             TEGROUP_IMPL_PORTABLE_ROW(2, 128, 128, 2, 2, 3)};
    static const tegroup_impl_portable_kernel_row wgrad[] = {TEGROUP_IMPL_PORTABLE_ROW(3, 64, 128, 2, 4, 3),
                                                             TEGROUP_IMPL_PORTABLE_ROW(3, 128, 128, 2, 2, 3)};
    *count = op == TEGROUP_OP_WGRAD ? 2 : 3;
    return op == TEGROUP_OP_FORWARD ? forward : op == TEGROUP_OP_DGRAD ? dgrad : wgrad;
}
static_assert(3 * (128 + 128) * TEGROUP_IMPL_PORTABLE_TILE_K * 2 <= 99 * 1024,
              "the largest tile fits every architecture");

/* plan.algorithm: the kernel's address in this unit, its threads, shared memory and blocks. */
enum {
    TEGROUP_IMPL_PORTABLE_KERNEL,
    TEGROUP_IMPL_PORTABLE_THREADS,
    TEGROUP_IMPL_PORTABLE_SHARED,
    TEGROUP_IMPL_PORTABLE_BLOCKS
};

static inline tegroup_status tegroup_impl_portable_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                        tegroup_error *error) {
    const tegroup_problem *p = &plan->problem;
    cudaFuncAttributes attributes;
    const void *kernel;
    int32_t threads, shared = 0, count, i;
    int multiprocessors = 0, blocks = 0;
    cudaError_t code;
    if (p->a == TEGROUP_DTYPE_F32) {
        kernel = p->op == TEGROUP_OP_FORWARD ? (const void *)tegroup_impl_portable_f32_kernel<TEGROUP_OP_FORWARD>
                 : p->op == TEGROUP_OP_DGRAD ? (const void *)tegroup_impl_portable_f32_kernel<TEGROUP_OP_DGRAD>
                                             : (const void *)tegroup_impl_portable_f32_kernel<TEGROUP_OP_WGRAD>;
        threads = 256;
        plan->tile_m = plan->tile_n = 64;
        plan->tile_k = 16;
    } else {
        const tegroup_impl_portable_kernel_row *rows = tegroup_impl_portable_rows(p->op, &count);
        const int64_t total = desc->expected_rows > 0 ? desc->expected_rows : p->rows;
        const int64_t lines = p->op == TEGROUP_OP_WGRAD
                                  ? p->n
                                  : total / tegroup_impl_max(1, p->rows_space[TEGROUP_IMPL_A] ? p->groups : 1);
        for (i = 0; i + 1 < count && rows[i].tile_m < lines; i++) {
        } /* the lowest tile that holds a group of average size */
        kernel = p->a == TEGROUP_DTYPE_BF16 ? rows[i].bf16 : rows[i].f16;
        threads = rows[i].threads;
        shared = rows[i].shared_bytes;
        plan->tile_m = rows[i].tile_m;
        plan->tile_n = rows[i].tile_n;
        plan->tile_k = TEGROUP_IMPL_PORTABLE_TILE_K;
    }
    code = cudaFuncGetAttributes(&attributes, kernel);
    if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction
        || (code == cudaSuccess && attributes.ptxVersion < 80)) {
        (void)cudaGetLastError();
        return tegroup_impl_fail(error, TEGROUP_ERROR_NOT_BUILT, "target.sm",
                                 "needs a build for this GPU, such as -gencode arch=compute_80,code=compute_80",
                                 plan->sm, 0);
    }
    if (code == cudaSuccess) code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, plan->device);
    if (code == cudaSuccess)
        code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, (size_t)shared);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "plan", "the kernel's attributes must be readable", error));
    if (desc->sm_limit > 0 && desc->sm_limit < multiprocessors) multiprocessors = desc->sm_limit;
    plan->algorithm[TEGROUP_IMPL_PORTABLE_KERNEL] = (uint64_t)(uintptr_t)kernel;
    plan->algorithm[TEGROUP_IMPL_PORTABLE_THREADS] = (uint64_t)threads;
    plan->algorithm[TEGROUP_IMPL_PORTABLE_SHARED] = (uint64_t)shared;
    plan->algorithm[TEGROUP_IMPL_PORTABLE_BLOCKS] = (uint64_t)(multiprocessors * (blocks > 0 ? blocks : 1));
    return TEGROUP_OK;
}

/* The product first: should CUDA refuse it, nothing was enqueued. */
static inline tegroup_status tegroup_impl_portable_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                        struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_gpu_call call = tegroup_impl_gpu_call_of(desc);
    void *arguments[1];
    cudaError_t code;
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    arguments[0] = &call;
    code = cudaLaunchKernel((const void *)(uintptr_t)plan->algorithm[TEGROUP_IMPL_PORTABLE_KERNEL],
                            dim3((unsigned)plan->algorithm[TEGROUP_IMPL_PORTABLE_BLOCKS]),
                            dim3((unsigned)plan->algorithm[TEGROUP_IMPL_PORTABLE_THREADS]), arguments,
                            (size_t)plan->algorithm[TEGROUP_IMPL_PORTABLE_SHARED], stream);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "stream", "the kernel must launch", error));
    if (desc->tail != TEGROUP_TAIL_KEEP && call.views[TEGROUP_IMPL_D].rows)
        tegroup_impl_tail_kernel<<<(unsigned)desc->d.shape.groups + 1, 256, 0, stream>>>(call);
    if (desc->op == TEGROUP_OP_WGRAD && desc->bias.dtype != TEGROUP_DTYPE_UNSET && desc->bias.shape.cols > 0
        && desc->d.shape.groups > 0) {
        dim3 blocks((unsigned)tegroup_impl_ceil_div(desc->bias.shape.cols, 128), (unsigned)desc->d.shape.groups);
        tegroup_impl_bias_grad_kernel<<<blocks, 128, 0, stream>>>(call);
    }
    return tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernels must launch", error);
}
