/* ---- Hopper GEMM: plan and launch ---- */

/* The kernels: X(op, lines of a warpgroup, columns, turns, blocks of a cluster, slabs of a warpgroup). Rows of one operation
 * stand together. */
#define TEGROUP_IMPL_SM90_KERNELS(X)                                                                                   \
    X(1, 64, 256, false, 1, 2)                                                                                         \
    X(1, 64, 256, false, 2, 2)                                                                                         \
    X(1, 64, 256, true, 1, 4)                                                                                          \
    X(1, 128, 128, true, 1, 4)                                                                                         \
    X(2, 64, 256, false, 1, 2)                                                                                         \
    X(2, 64, 256, false, 2, 2)                                                                                         \
    X(2, 64, 256, true, 1, 4)                                                                                          \
    X(2, 128, 128, true, 1, 4)                                                                                         \
    X(3, 64, 256, false, 1, 2)                                                                                         \
    X(3, 64, 256, false, 2, 2)                                                                                         \
    X(3, 128, 128, true, 1, 4)

typedef struct tegroup_impl_sm90_row {
    const void *bf16, *f16;
    int32_t op, tile_m, tile_n, cluster, b_part, shared_bytes;
} tegroup_impl_sm90_row;

static inline const tegroup_impl_sm90_row *tegroup_impl_sm90_rows(int32_t *count) {
#define TEGROUP_IMPL_SM90_ROW(op, lines, cols, turns, cluster, slabs)                                                  \
    {(const void *)tegroup_impl_sm90_kernel<true, tegroup_impl_sm90_shape<op, lines, cols, turns, cluster, slabs>>,    \
     (const void *)tegroup_impl_sm90_kernel<false, tegroup_impl_sm90_shape<op, lines, cols, turns, cluster, slabs>>,   \
     op,                                                                                                               \
     tegroup_impl_sm90_shape<op, lines, cols, turns, cluster, slabs>::TILE_M,                                          \
     cols,                                                                                                             \
     cluster,                                                                                                          \
     tegroup_impl_sm90_shape<op, lines, cols, turns, cluster, slabs>::B_PART,                                          \
     tegroup_impl_sm90_shape<op, lines, cols, turns, cluster, slabs>::SHARED_BYTES},
    static const tegroup_impl_sm90_row rows[] = {TEGROUP_IMPL_SM90_KERNELS(TEGROUP_IMPL_SM90_ROW)};
#undef TEGROUP_IMPL_SM90_ROW
    *count = (int32_t)(sizeof rows / sizeof rows[0]);
    return rows;
}

/* Whether this unit holds code for sm_90a, on a Hopper GPU. */
static inline int tegroup_impl_sm90_image(void) {
    cudaFuncAttributes attributes;
    int32_t count;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, tegroup_impl_sm90_rows(&count)->bf16);
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code == cudaSuccess && attributes.maxThreadsPerBlock >= TEGROUP_IMPL_SM90_THREADS;
}

/* plan.algorithm: the row, its kernel in this unit, blocks, and the driver's function that makes tensor maps. */
enum { TEGROUP_IMPL_SM90_ROW, TEGROUP_IMPL_SM90_KERNEL, TEGROUP_IMPL_SM90_BLOCKS, TEGROUP_IMPL_SM90_ENCODE };

/* Row `number` of the table for this plan. */
static inline tegroup_status tegroup_impl_sm90_choose(tegroup_plan *plan, int32_t number, tegroup_error *error) {
    int32_t count;
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_rows(&count) + number;
    const void *kernel = plan->problem.a == TEGROUP_DTYPE_BF16 ? row->bf16 : row->f16;
    int multiprocessors = 0;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, row->shared_bytes);
    if (code == cudaSuccess && row->cluster > 1)
        code = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 0);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, plan->device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "plan", "the kernel's attributes must be readable", error));
    if (plan->sm_limit > 0 && plan->sm_limit < multiprocessors) multiprocessors = plan->sm_limit;
    plan->tile_m = row->tile_m;
    plan->tile_n = row->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_K;
    plan->algorithm[TEGROUP_IMPL_SM90_ROW] = (uint64_t)number;
    plan->algorithm[TEGROUP_IMPL_SM90_KERNEL] = (uint64_t)(uintptr_t)kernel;
    plan->algorithm[TEGROUP_IMPL_SM90_BLOCKS] = (uint64_t)(multiprocessors / row->cluster * row->cluster);
    return TEGROUP_OK;
}

/* The first row of this plan's operation, and how many there are. */
static inline int32_t tegroup_impl_sm90_candidates(const tegroup_plan *plan, int32_t *first) {
    int32_t count, i, n = 0;
    const tegroup_impl_sm90_row *rows = tegroup_impl_sm90_rows(&count);
    for (i = count - 1; i >= 0; i--)
        if (rows[i].op == (int32_t)plan->problem.op) *first = i, n++;
    return n;
}

static inline tegroup_status tegroup_impl_sm90_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                    tegroup_error *error) {
    const tegroup_problem *p = &plan->problem;
    const int64_t most = (INT64_C(1) << 31) - 512;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *encode = NULL;
    int32_t first = 0;
    cudaError_t code;
    (void)desc;
    TEGROUP_IMPL_RULE(p->rows <= most, ERROR_UNSUPPORTED, "a.shape.rows", "must be countable in 31 bits", most, p->rows);
    TEGROUP_IMPL_RULE(p->n <= most, ERROR_UNSUPPORTED, "n", "must be countable in 31 bits", most, p->n);
    TEGROUP_IMPL_RULE(p->k <= most, ERROR_UNSUPPORTED, "k", "must be countable in 31 bits", most, p->k);
#if CUDART_VERSION >= 12050
    code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
#else
    code = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found);
#endif
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "plan", "the driver must tell its functions", error));
    TEGROUP_IMPL_RULE(encode != NULL, ERROR_UNSUPPORTED, "target.sm", "needs a driver with cuTensorMapEncodeTiled", 1, 0);
    plan->algorithm[TEGROUP_IMPL_SM90_ENCODE] = (uint64_t)(uintptr_t)encode;
    (void)tegroup_impl_sm90_candidates(plan, &first);
    return tegroup_impl_sm90_choose(plan, first, error);
}

/* Addresses by columns are what TMA can take. */
static inline tegroup_status tegroup_impl_sm90_check_operand(const tegroup_tensor *t, tegroup_impl_operand operand,
                                                             tegroup_error *error) {
    if (t->dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(t->data, 16), ERROR_ALIGNMENT, TEGROUP_IMPL_PATH(DATA),
                      "must be 16-byte aligned for TMA", 16, (uintptr_t)t->data % 16);
    TEGROUP_IMPL_RULE(tegroup_impl_stride_bytes(t) % 16 == 0 || t->shape.groups < 2, ERROR_ALIGNMENT,
                      TEGROUP_IMPL_PATH(GROUP_STRIDE), "must be a multiple of 16 bytes for TMA", 16,
                      tegroup_impl_stride_bytes(t));
    return TEGROUP_OK;
}
static inline tegroup_status tegroup_impl_sm90_check(const tegroup_gemm_desc *desc, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_check_operand(&desc->a, TEGROUP_IMPL_A, error));
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_check_operand(&desc->b, TEGROUP_IMPL_B, error));
    return tegroup_impl_sm90_check_operand(&desc->d, TEGROUP_IMPL_D, error);
}

/* The map of an operand: boxes of box_cols x box_rows, as the kernel's first comment says where it is ragged. */
static inline tegroup_status tegroup_impl_sm90_map(const tegroup_plan *plan, const tegroup_tensor *t,
                                                   tegroup_impl_operand operand, int32_t box_cols, int32_t box_rows,
                                                   CUtensorMap *map, int32_t *clipped, tegroup_error *error) {
    typedef CUresult (*encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                                const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    const encoder encode = (encoder)(uintptr_t)plan->algorithm[TEGROUP_IMPL_SM90_ENCODE];
    const int64_t bytes = tegroup_impl_bits(t->dtype) / 8, row = tegroup_impl_ld(t) * bytes,
                  group = tegroup_impl_stride_bytes(t);
    const int ragged = tegroup_impl_ragged(&t->shape);
    const CUtensorMapDataType type = t->dtype == TEGROUP_DTYPE_F32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                     : t->dtype == TEGROUP_DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                      : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const cuuint64_t cols = (cuuint64_t)tegroup_impl_max(1, t->shape.cols);
    const cuuint64_t dims[3] = {cols, (cuuint64_t)(ragged ? box_rows : tegroup_impl_max(1, t->shape.rows)),
                                (cuuint64_t)(ragged ? t->shape.rows + box_rows : tegroup_impl_max(1, t->shape.groups))};
    const cuuint64_t strides[2] = {(cuuint64_t)row, (cuuint64_t)(ragged || group < 16 ? row : group)};
    const cuuint32_t box[3] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows, 1}, steps[3] = {1, 1, 1};
    char *base = !t->data ? (char *)(uintptr_t)TEGROUP_ALIGNMENT : (char *)t->data - (ragged ? box_rows * row : 0);
    const CUresult code =
        encode(map, type, 3, base, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    *clipped = ragged;
    if (code == CUDA_SUCCESS) return TEGROUP_OK;
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_CUDA, TEGROUP_IMPL_PATH(LD), "must be describable to TMA", 0, (int64_t)code);
    if (error) error->native = (int32_t)code;
    return TEGROUP_ERROR_CUDA;
}

/* What the stores do is known on the host, or may differ between groups. */
static inline void tegroup_impl_sm90_results(const tegroup_gemm_desc *desc, tegroup_impl_sm90_call *call) {
    const int in_place = desc->accumulate
                         || (desc->c.data == desc->d.data && tegroup_impl_ld(&desc->c) == tegroup_impl_ld(&desc->d)
                             && tegroup_impl_group_stride(&desc->c) == tegroup_impl_group_stride(&desc->d)
                             && desc->c.shape.snapshot == desc->d.shape.snapshot);
    const float beta = desc->accumulate ? 1.0f : call->call.beta;
    const int known = call->call.desc.beta.space == TEGROUP_SPACE_UNSET,
              bias = desc->bias.dtype != TEGROUP_DTYPE_UNSET && desc->op == TEGROUP_OP_FORWARD;
    call->plain = known && beta == 0 && !bias;
    call->adds = known && beta == 1 && !bias && in_place && desc->d.dtype == TEGROUP_DTYPE_F32;
}

static inline tegroup_status tegroup_impl_sm90_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    int32_t count;
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_rows(&count) + plan->algorithm[TEGROUP_IMPL_SM90_ROW];
    const int forward = desc->op == TEGROUP_OP_FORWARD, wgrad = desc->op == TEGROUP_OP_WGRAD;
    tegroup_impl_sm90_call call;
    cudaLaunchConfig_t config;
    cudaLaunchAttribute cluster;
    void *arguments[1];
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    memset(&call, 0, sizeof call);
    call.call = tegroup_impl_gpu_call_of(desc);
    tegroup_impl_sm90_results(desc, &call);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map(plan, &desc->a, TEGROUP_IMPL_A, 64, wgrad ? TEGROUP_IMPL_SM90_LINES : row->tile_m,
                                           &call.a, &call.clipped[0], error));
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map(plan, &desc->b, TEGROUP_IMPL_B, 64, forward ? row->b_part : TEGROUP_IMPL_SM90_LINES,
                                           &call.b, &call.clipped[1], error));
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map(plan, &desc->d, TEGROUP_IMPL_D, desc->d.dtype == TEGROUP_DTYPE_F32 ? 32 : 64,
                                           TEGROUP_IMPL_SM90_LINES, &call.d, &call.clipped[2], error));
    memset(&config, 0, sizeof config);
    memset(&cluster, 0, sizeof cluster);
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)row->cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)plan->algorithm[TEGROUP_IMPL_SM90_BLOCKS]);
    config.blockDim = dim3(TEGROUP_IMPL_SM90_THREADS);
    config.dynamicSmemBytes = (size_t)row->shared_bytes;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = row->cluster > 1 ? 1 : 0;
    arguments[0] = &call;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
        cudaLaunchKernelExC(&config, (const void *)(uintptr_t)plan->algorithm[TEGROUP_IMPL_SM90_KERNEL], arguments), "stream",
        "the kernel must launch", error));
    return tegroup_impl_cuda_rest(&call.call, stream, error);
}
