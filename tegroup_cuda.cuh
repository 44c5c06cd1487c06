/* tegroup_cuda.cuh - the CUDA half of tegroup. tegroup.h includes it by itself when nvcc (or clang -x cuda) compiles;
 * do not include it alone. It holds the prepare kernel, the portable GEMM kernels (SM80 and later) and the cuBLASLt
 * backends; link with the CUDA runtime, which nvcc does by itself. Kernels are static: each file that defines
 * TEGROUP_IMPLEMENTATION has its own, so keep to one such .cu file where build time matters.
 *
 * Licence: MIT, at the end of this file. Stitched from src/ by `make headers`: edit there.
 */

/* Map: search for the number in brackets.
 *
 *   [1] Guards and version
 *   [2] Launching
 *   [3] Prepare kernel
 *   [4] GPU calls
 *   [5] cuBLASLt: functions, descriptors, algorithms
 *   [6] Set-up kernel of a grouped cuBLASLt matmul
 *   [7] cublaslt_grouped
 *   [8] cublaslt_loop
 *   [9] Portable GEMM kernels
 *   [10] Portable GEMM: plan and launch
 *   [11] GPU backends: plan, check and run
 *   [12] GPU backends: choosing an algorithm
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
#if defined(TEGROUP_IMPLEMENTATION) && !defined(TEGROUP_CUDA_IMPLEMENTATION_INCLUDED)
#define TEGROUP_CUDA_IMPLEMENTATION_INCLUDED

/* ==== [2] Launching ==== */

#include <cuda_runtime.h>

/* A CUDA error as a status. The sticky error state is cleared, so that it is reported once. */
static inline tegroup_status tegroup_impl_cuda_status(cudaError_t code, const char *field, const char *rule,
                                                      tegroup_error *error) {
    if (code == cudaSuccess) return TEGROUP_OK;
    (void)cudaGetLastError();
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_CUDA, field, rule, 0, (int64_t)code);
    if (error) error->native = (int32_t)code;
    return TEGROUP_ERROR_CUDA;
}

/* The current device as a target; sm stays 0 where there is none. Returns the device, or -1. */
static inline int32_t tegroup_impl_cuda_target(tegroup_target *target) {
    int device = 0, major = 0, minor = 0;
    if (cudaGetDevice(&device) != cudaSuccess
        || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess
        || cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
        (void)cudaGetLastError(); /* no device is an answer, not an error to leave behind */
        return -1;
    }
    target->sm = 10 * major + minor;
    return device;
}

/* The deep check of an operand in device memory: the driver knows its address as the current device's. */
static inline tegroup_status tegroup_impl_cuda_check_pointer(const tegroup_tensor *t, tegroup_impl_operand operand,
                                                             tegroup_error *error) {
    cudaPointerAttributes attributes;
    int device = -1;
    const void *address = tegroup_impl_listed(t) ? (const void *)t->pointers : t->data;
    const char *field = tegroup_impl_listed(t) ? TEGROUP_IMPL_PATH(POINTERS) : TEGROUP_IMPL_PATH(DATA);
    if (t->dtype == TEGROUP_DTYPE_UNSET || !address || t->pointers_space == TEGROUP_SPACE_HOST) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_status(cudaGetDevice(&device), "plan.device", "there must be a current device", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaPointerGetAttributes(&attributes, address), field,
                                              "must be known to the driver", error));
    TEGROUP_IMPL_RULE(attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged, ERROR_VALUE,
                      field, "must be device memory (a cudaMemoryType)", cudaMemoryTypeDevice, attributes.type);
    TEGROUP_IMPL_RULE(attributes.type == cudaMemoryTypeManaged || attributes.device == device, ERROR_VALUE, field,
                      "must be on the current device", device, attributes.device);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_cuda_check_pointers(const tegroup_gemm_desc *desc, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&desc->a, TEGROUP_IMPL_A, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&desc->b, TEGROUP_IMPL_B, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&desc->c, TEGROUP_IMPL_C, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&desc->d, TEGROUP_IMPL_D, error));
    return tegroup_impl_cuda_check_pointer(&desc->bias, TEGROUP_IMPL_BIAS, error);
}

/* ==== [3] Prepare kernel ==== */

/* The steps of tegroup_impl_prepare_host, a thread to each group or position, in one block: scans and the sorting network
 * give the same integers in any order, so the snapshot equals the host's bit for bit. */
#define TEGROUP_IMPL_PREPARE_THREADS 1024
#define TEGROUP_IMPL_PREPARE_SHARED 1024 /* groups whose order is sorted in shared memory */

/* Exclusive scan over the groups, starting from `first`: visit(g, scan of the terms before g). */
template <typename Term, typename Combine, typename Visit>
static __device__ void tegroup_impl_block_scan(int32_t groups, int64_t first, Term term, Combine combine, Visit visit) {
    __shared__ int64_t warps[TEGROUP_IMPL_PREPARE_THREADS / 32];
    const int32_t thread = (int32_t)threadIdx.x, lane = thread & 31;
    const int32_t each = (groups + TEGROUP_IMPL_PREPARE_THREADS - 1) / TEGROUP_IMPL_PREPARE_THREADS,
                  from = thread * each;
    int64_t mine = 0, before;
    for (int32_t g = from; g < from + each && g < groups; g++) mine = combine(mine, term(g));
    int64_t upto = mine;
    for (int32_t step = 1; step < 32; step *= 2) {
        const int64_t other = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto = combine(upto, other);
    }
    __syncthreads(); /* the last scan's sums are read */
    if (lane == 31) warps[thread / 32] = upto;
    before = __shfl_up_sync(0xffffffffu, upto, 1);
    if (lane == 0) before = 0;
    __syncthreads();
    int64_t carry = first;
    for (int32_t w = 0; w < thread / 32; w++) carry = combine(carry, warps[w]);
    carry = combine(carry, before);
    for (int32_t g = from; g < from + each && g < groups; g++) {
        const int64_t value = term(g);
        visit(g, carry);
        carry = combine(carry, value);
    }
    __syncthreads();
}

static __device__ void tegroup_impl_block_sort(const tegroup_impl_preparation &p, tegroup_impl_sort_key key) {
    const int32_t extent = tegroup_impl_sort_extent(p.groups), thread = (int32_t)threadIdx.x;
    for (int32_t i = thread; i < extent; i += TEGROUP_IMPL_PREPARE_THREADS) p.order[i] = i;
    __syncthreads();
    for (int32_t run = 2; run <= extent; run *= 2)
        for (int32_t distance = run / 2; distance > 0; distance /= 2) {
            for (int32_t i = thread; i < extent; i += TEGROUP_IMPL_PREPARE_THREADS)
                tegroup_impl_sort_compare(&p, key, i, run, distance);
            __syncthreads();
        }
}

static __global__ void __launch_bounds__(TEGROUP_IMPL_PREPARE_THREADS)
    tegroup_impl_prepare_kernel(const __grid_constant__ tegroup_impl_preparation given, tegroup_snapshot_header *header,
                                int64_t words) {
    __shared__ tegroup_snapshot_header result;
    __shared__ int32_t owners, order[TEGROUP_IMPL_PREPARE_SHARED];
    __shared__ int64_t rows[TEGROUP_IMPL_PREPARE_SHARED];
    const tegroup_impl_preparation &p = given;
    const int32_t thread = (int32_t)threadIdx.x;

    auto note = [&](int32_t g, uint32_t bits) {
        if (!bits) return;
        atomicOr(&result.status, bits);
        atomicMin((uint32_t *)&result.bad_group, (uint32_t)g); /* -1 is the largest */
    };
    auto disjoin = [&](tegroup_impl_sort_key key) {
        __syncthreads();
        if (thread == 0) owners = 0;
        __syncthreads();
        for (int32_t g = thread; g < p.groups; g += TEGROUP_IMPL_PREPARE_THREADS)
            if (tegroup_impl_prepare_owns(&p, key, g)) atomicAdd(&owners, 1);
        __syncthreads();
        tegroup_impl_block_sort(p, key);
        for (int32_t i = thread; i < owners; i += TEGROUP_IMPL_PREPARE_THREADS) {
            const int32_t g = tegroup_impl_prepare_separate(&p, key, owners, i);
            if (g >= 0) note(g, TEGROUP_SNAPSHOT_OVERLAP);
        }
        __syncthreads();
    };

    for (int64_t w = thread; w < words; w += TEGROUP_IMPL_PREPARE_THREADS) ((uint32_t *)header)[w] = 0;
    if (thread == 0) {
        tegroup_impl_snapshot_open(&result, &p);
    }
    __syncthreads();
    if (p.groups > 0)
        tegroup_impl_block_scan(
            p.groups, tegroup_impl_prepare_first(&p), [&](int32_t g) { return tegroup_impl_prepare_term(&p, g); },
            [&](int64_t a, int64_t b) { return tegroup_impl_prepare_scan(&p, a, b); },
            [&](int32_t g, int64_t carry) { note(g, tegroup_impl_prepare_place(&p, g, carry)); });
    if (p.rows.starts) disjoin(TEGROUP_IMPL_SORT_BY_START);
    if (p.irregular) {
        for (int32_t g = thread; g < p.groups; g += TEGROUP_IMPL_PREPARE_THREADS)
            note(g, tegroup_impl_prepare_cols(&p, g));
        __syncthreads();
        tegroup_impl_block_scan(
            p.groups, 0, [&](int32_t g) { return tegroup_impl_prepare_elements(&p, g); },
            [](int64_t a, int64_t b) { return tegroup_impl_add(a, b); },
            [&](int32_t g, int64_t carry) { note(g, tegroup_impl_prepare_offset(&p, g, carry)); });
        if (p.offsets) disjoin(TEGROUP_IMPL_SORT_BY_OFFSET);
    }
    for (int32_t i = 0; i < TEGROUP_GRANULE_COUNT; i++) {
        int64_t *prefix = p.prefix + (int64_t)i * (p.groups + 1);
        tegroup_impl_block_scan(
            p.groups, 0,
            [&](int32_t g) { return tegroup_impl_ceil_div(tegroup_impl_max(0, p.out_rows[g]), TEGROUP_GRANULE(i)); },
            [](int64_t a, int64_t b) { return a + b; },
            [&](int32_t g, int64_t before) {
                prefix[g + 1] = before + tegroup_impl_ceil_div(tegroup_impl_max(0, p.out_rows[g]), TEGROUP_GRANULE(i));
            });
    }
    for (int32_t g = thread; g < p.groups; g += TEGROUP_IMPL_PREPARE_THREADS) {
        const int64_t r = tegroup_impl_max(0, p.out_rows[g]);
        atomicAdd((unsigned long long *)&result.rows_total, (unsigned long long)r);
        atomicMax((unsigned long long *)&result.rows_max, (unsigned long long)r);
        if (r > 0) atomicMax((unsigned long long *)&result.rows_end, (unsigned long long)(p.start[g] + r));
    }
    __syncthreads();
    tegroup_impl_preparation sorted = p;
    if (p.groups <= TEGROUP_IMPL_PREPARE_SHARED) {
        for (int32_t g = thread; g < p.groups; g += TEGROUP_IMPL_PREPARE_THREADS) rows[g] = p.out_rows[g];
        sorted.out_rows = rows;
        sorted.order = order;
        __syncthreads();
    }
    tegroup_impl_block_sort(sorted, TEGROUP_IMPL_SORT_BY_SIZE);
    if (sorted.order != p.order)
        for (int32_t i = thread; i < tegroup_impl_sort_extent(p.groups); i += TEGROUP_IMPL_PREPARE_THREADS)
            p.order[i] = order[i];
    if (thread == 0) *header = result;
}

static inline tegroup_status tegroup_impl_cuda_prepare(const tegroup_impl_preparation *p,
                                                       const tegroup_prepare_desc *desc, const tegroup_layout *layout,
                                                       struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_prepare_kernel<<<1, TEGROUP_IMPL_PREPARE_THREADS, 0, stream>>>(
        *p, (tegroup_snapshot_header *)desc->snapshot, (int64_t)(layout->total_bytes / 4));
    return tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the prepare kernel must launch", error);
}

/* ==== [4] GPU calls ==== */

/* Where the kernels find everything; travels as a kernel parameter. */
typedef struct tegroup_impl_gpu_call {
    tegroup_gemm_desc desc;
    tegroup_snapshot_view views[4];
    float alpha, beta; /* values of host scalars */
} tegroup_impl_gpu_call;

/* The addresses that a snapshot in device memory has, by its layout: the header is not read here. */
static inline tegroup_snapshot_view tegroup_impl_cuda_view(const tegroup_tensor *t) {
    tegroup_snapshot_view view;
    memset(&view, 0, sizeof view);
    if (t->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_ragged(&t->shape)) return view;
    return tegroup_impl_snapshot_view(t->shape.snapshot, t->shape.groups, tegroup_impl_irregular(&t->shape));
}

/* Scalars on the host are read here and travel by value. */
static inline tegroup_impl_gpu_call tegroup_impl_gpu_call_of(const tegroup_gemm_desc *desc) {
    tegroup_impl_gpu_call call;
    memset(&call, 0, sizeof call);
    call.desc = *desc;
    call.views[TEGROUP_IMPL_A] = tegroup_impl_cuda_view(&desc->a);
    call.views[TEGROUP_IMPL_B] = tegroup_impl_cuda_view(&desc->b);
    call.views[TEGROUP_IMPL_C] = tegroup_impl_cuda_view(&desc->c);
    call.views[TEGROUP_IMPL_D] = tegroup_impl_cuda_view(&desc->d);
    call.alpha = 1;
    if (desc->alpha.space == TEGROUP_SPACE_HOST) {
        call.alpha = (float)tegroup_impl_scalar(&desc->alpha, 0, 1);
        call.desc.alpha.space = TEGROUP_SPACE_UNSET;
    }
    if (desc->beta.space == TEGROUP_SPACE_HOST) {
        call.beta = (float)tegroup_impl_scalar(&desc->beta, 0, 0);
        call.desc.beta.space = TEGROUP_SPACE_UNSET;
    }
    return call;
}

/* ---- bias gradient and tail ---- */

/* One thread a column and group: rows in their order, as the CPU adds them. */
static __global__ void __launch_bounds__(128)
    tegroup_impl_bias_grad_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    __shared__ tegroup_impl_product p;
    const tegroup_gemm_desc &desc = call.desc;
    if (threadIdx.x == 0) p = tegroup_impl_product_of(&desc, call.views, (int32_t)blockIdx.y, 1, 0);
    __syncthreads();
    const int64_t j = (int64_t)blockIdx.x * 128 + threadIdx.x;
    if (p.skip || j >= tegroup_impl_min(p.a.cols, p.bias.cols) || (desc.accumulate && p.a.rows == 0)) return;
    float sum = 0;
    for (int64_t r = 0; r < p.a.rows; r++) {
        float x = tegroup_impl_load_f32(desc.a.dtype, p.a.base, p.a.first + r * p.a.ld + j);
        float scale = desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
                          ? 1.0f
                          : tegroup_impl_load_f32(desc.row_scale_dtype, desc.row_scale, p.a.row0 + r);
        sum = __fadd_rn(sum, __fmul_rn(scale, x));
    }
    if (desc.accumulate) sum += tegroup_impl_load_f32(desc.bias.dtype, p.bias.base, p.bias.first + j);
    tegroup_impl_store_f32(desc.bias.dtype, p.bias.base, p.bias.first + j, sum);
}

/* Block g fills the rows after group g - 1 that belong to nobody (block 0: those before every group). */
static __global__ void __launch_bounds__(256)
    tegroup_impl_tail_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    __shared__ unsigned long long next;
    const tegroup_tensor &d = call.desc.d;
    const tegroup_snapshot_view &view = call.views[TEGROUP_IMPL_D];
    const int32_t g = (int32_t)blockIdx.x - 1;
    if (g >= 0 && view.rows[g] <= 0) return;
    const int64_t from = g < 0 ? 0 : view.start[g] + view.rows[g];
    if (threadIdx.x == 0) next = (unsigned long long)d.shape.rows;
    __syncthreads();
    for (int32_t h = (int32_t)threadIdx.x; h < d.shape.groups; h += 256)
        if (view.rows[h] > 0 && view.start[h] >= from) atomicMin(&next, (unsigned long long)view.start[h]);
    __syncthreads();
    const int64_t cols = d.shape.cols, count = ((int64_t)next - from) * cols, ld = tegroup_impl_ld(&d);
    const float value = call.desc.tail == TEGROUP_TAIL_POISON ? tegroup_impl_f32_of_bits(0x7fc00000u) : 0.0f;
    for (int64_t e = threadIdx.x; e < count; e += 256)
        tegroup_impl_store_f32(d.dtype, d.data, (from + e / cols) * ld + e % cols, value);
}
#if !defined(TEGROUP_NO_CUBLASLT)

/* ==== [5] cuBLASLt: functions, descriptors, algorithms ==== */

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

/* Numbers of cublasLt.h, which is not included: an installed one may be older than the library that is loaded. */
enum {
    TEGROUP_IMPL_LT_F32 = 0,   /* CUDA_R_32F  */
    TEGROUP_IMPL_LT_F16 = 2,   /* CUDA_R_16F  */
    TEGROUP_IMPL_LT_BF16 = 14, /* CUDA_R_16BF */
    /* CUBLAS_COMPUTE_32F, and 32F_PEDANTIC: no TF32 and no emulation, whatever the environment says */
    TEGROUP_IMPL_LT_COMPUTE_32F = 68,
    TEGROUP_IMPL_LT_COMPUTE_32F_PEDANTIC = 69,
    TEGROUP_IMPL_LT_POINTER_MODE = 2,      /* CUBLASLT_MATMUL_DESC_POINTER_MODE: 0 host, 1 device     */
    TEGROUP_IMPL_LT_TRANSA = 3,            /* CUBLASLT_MATMUL_DESC_TRANSA: 0 CUBLAS_OP_N, 1 _T        */
    TEGROUP_IMPL_LT_TRANSB = 4,            /* CUBLASLT_MATMUL_DESC_TRANSB                             */
    TEGROUP_IMPL_LT_ALPHA_STRIDE = 39,     /* CUBLASLT_MATMUL_DESC_ALPHA_BATCH_STRIDE                 */
    TEGROUP_IMPL_LT_BETA_STRIDE = 40,      /* CUBLASLT_MATMUL_DESC_BETA_BATCH_STRIDE                  */
    TEGROUP_IMPL_LT_BATCH_INVARIANCE = 41, /* CUBLASLT_MATMUL_DESC_BATCH_INVARIANCE_FLAGS             */
    TEGROUP_IMPL_LT_ROWS_COLS_WIDTH =
        12,                            /* CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_COLS_ARRAY_INTEGER_WIDTH: 1 = 64 bits */
    TEGROUP_IMPL_LT_LD_WIDTH = 13,     /* CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY_INTEGER_WIDTH   */
    TEGROUP_IMPL_LT_MAX_WORKSPACE = 1, /* CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES                */
    TEGROUP_IMPL_LT_REDUCTIONS = 3,    /* CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: 0 = k is not split */
    TEGROUP_IMPL_LT_ALIGNMENT_A = 5,   /* CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, then _B, _C, _D    */
    TEGROUP_IMPL_LT_AVERAGE_K = 13,    /* CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM      */
    TEGROUP_IMPL_LT_AVERAGE_ROWS = 14, /* CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS        */
    TEGROUP_IMPL_LT_AVERAGE_COLS = 15  /* CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_COLS        */
};

/* Descriptors, opaque and several times as large as any version's. */
typedef struct tegroup_impl_lt_opaque {
    uint64_t words[64];
} tegroup_impl_lt_opaque;

typedef struct tegroup_impl_lt_matmul {
    tegroup_impl_lt_opaque desc, a, b, c, d;
} tegroup_impl_lt_matmul;

typedef struct tegroup_impl_lt_result { /* cublasLtMatmulHeuristicResult_t */
    tegroup_impl_choice algorithm;      /* cublasLtMatmulAlgo_t            */
    size_t workspace_bytes;
    int32_t state;
    float waves;
    int32_t reserved[4];
} tegroup_impl_lt_result;

/* plan.algorithm of both backends. */
typedef struct tegroup_impl_lt_plan {
    tegroup_cublaslt_functions functions;
    tegroup_impl_choice algorithms[TEGROUP_TUNE_CANDIDATES];
    tegroup_impl_choice unaligned; /* loop: for addresses that are aligned to their element only */
    int32_t count, chosen;         /* algorithms; count 0: no product of the problem has a term  */
    int32_t has_unaligned;
    int32_t alignment;    /* loop: bytes that addresses must be a multiple of for algorithms */
    int32_t stream_count; /* loop */
} tegroup_impl_lt_plan;
static_assert(sizeof(tegroup_impl_lt_plan) <= sizeof(((tegroup_plan *)0)->algorithm), "the plan holds it");

#define TEGROUP_IMPL_SIGNATURE(name, result, arguments) typedef result(*tegroup_impl_##name) arguments;
TEGROUP_CUBLASLT_LIST(TEGROUP_IMPL_SIGNATURE)
#undef TEGROUP_IMPL_SIGNATURE
#define TEGROUP_IMPL_LT(functions, name) (reinterpret_cast<tegroup_impl_##name>((functions)->name))

static inline tegroup_impl_lt_plan tegroup_impl_lt_plan_of(const tegroup_plan *plan) {
    tegroup_impl_lt_plan lt;
    memcpy(&lt, plan->algorithm, sizeof lt);
    return lt;
}

/* The functions: the caller's, or those of the shared object that holds the cublasLtMatmul that the process would call.
 * A library that was loaded privately is found by its usual names. Nothing is loaded here. */
static inline tegroup_cublaslt_functions tegroup_impl_lt_find(const tegroup_gemm_desc *desc) {
    tegroup_cublaslt_functions f;
    if (desc->cublaslt_functions) return *desc->cublaslt_functions;
    memset(&f, 0, sizeof f);
    f.struct_size = sizeof f;
#if !defined(_WIN32)
    static const char *const names[] = {"libcublasLt.so.14", "libcublasLt.so.13", "libcublasLt.so.12",
                                        "libcublasLt.so"};
    void *matmul = dlsym(RTLD_DEFAULT, "cublasLtMatmul"), *library = NULL;
    Dl_info info;
    if (matmul && dladdr(matmul, &info) && info.dli_fname) library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    for (int32_t i = 0; !matmul && !library && i < 4; i++) library = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
#define TEGROUP_IMPL_FIND(name, result, arguments)                                                                     \
    f.name = reinterpret_cast<tegroup_function>(dlsym(library ? library : RTLD_DEFAULT, #name));
    TEGROUP_CUBLASLT_LIST(TEGROUP_IMPL_FIND)
#undef TEGROUP_IMPL_FIND
    if (library) dlclose(library); /* whoever loaded it still holds it */
#endif
    return f;
}

/* 0 unless every function was found; the grouped one is newer than the others and may be missing. */
static inline int32_t tegroup_impl_cuda_cublaslt_version(const tegroup_gemm_desc *desc) {
    tegroup_cublaslt_functions f = tegroup_impl_lt_find(desc);
    int complete = 1;
    if (!f.cublasLtGroupedMatrixLayoutInit_internal) f.cublasLtGroupedMatrixLayoutInit_internal = f.cublasLtGetVersion;
#define TEGROUP_IMPL_FOUND(name, result, arguments) complete &= f.name != NULL;
    TEGROUP_CUBLASLT_LIST(TEGROUP_IMPL_FOUND)
#undef TEGROUP_IMPL_FOUND
    return complete ? (int32_t)TEGROUP_IMPL_LT(&f, cublasLtGetVersion)() : 0;
}

static inline tegroup_status tegroup_impl_lt_status(int code, const char *field, const char *rule,
                                                    tegroup_error *error) {
    if (code == 0) return TEGROUP_OK;
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_CUBLAS, field, rule, 0, code);
    if (error) error->native = code;
    return TEGROUP_ERROR_CUBLAS;
}

/* Set an attribute in the width that the library gives it (all of them are integers; hosts are little-endian). */
typedef int (*tegroup_impl_lt_get)(const void *, int, void *, size_t, size_t *);
typedef int (*tegroup_impl_lt_set)(void *, int, const void *, size_t);
static inline int tegroup_impl_lt_put(tegroup_function get, tegroup_function set, tegroup_impl_lt_opaque *object,
                                      int attribute, int64_t value) {
    size_t bytes = 0;
    int code = reinterpret_cast<tegroup_impl_lt_get>(get)(object, attribute, NULL, 0, &bytes);
    if (code != 0) return code;
    if (bytes > sizeof value) return 7; /* CUBLAS_STATUS_INVALID_VALUE: not an integer */
    return reinterpret_cast<tegroup_impl_lt_set>(set)(object, attribute, &value, bytes);
}

static inline int tegroup_impl_lt_dtype(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F32    ? TEGROUP_IMPL_LT_F32
           : dtype == TEGROUP_DTYPE_BF16 ? TEGROUP_IMPL_LT_BF16
                                         : TEGROUP_IMPL_LT_F16;
}

/* The operation. Scalars in device memory are arrays of pointers where the matmul is grouped, else one number each. */
static inline int tegroup_impl_lt_describe(const tegroup_cublaslt_functions *f, const tegroup_problem *p, int grouped,
                                           tegroup_impl_lt_opaque *desc) {
    const int device_scalars = p->alpha_space == TEGROUP_SPACE_DEVICE || p->beta_space == TEGROUP_SPACE_DEVICE;
    const tegroup_function get = f->cublasLtMatmulDescGetAttribute, set = f->cublasLtMatmulDescSetAttribute;
    int code = TEGROUP_IMPL_LT(f, cublasLtMatmulDescInit_internal)(
        desc, sizeof *desc,
        p->a == TEGROUP_DTYPE_F32 ? TEGROUP_IMPL_LT_COMPUTE_32F_PEDANTIC : TEGROUP_IMPL_LT_COMPUTE_32F,
        TEGROUP_IMPL_LT_F32);
    if (!code) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_TRANSA, p->op == TEGROUP_OP_FORWARD);
    if (!code) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_TRANSB, p->op == TEGROUP_OP_WGRAD);
    if (!code) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_POINTER_MODE, device_scalars);
    if (!code && device_scalars && grouped) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_ALPHA_STRIDE, 1);
    if (!code && device_scalars && grouped) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_BETA_STRIDE, 1);
    /* unset, it would follow an environment variable; older libraries have neither */
    if (!code) (void)tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_BATCH_INVARIANCE, 0);
    return code;
}

/* The usual size of a group, as rows and columns of cuBLASLt's D and the terms of a sum. */
typedef struct tegroup_impl_lt_size {
    int64_t rows, cols, k;
} tegroup_impl_lt_size;

static inline tegroup_impl_lt_size tegroup_impl_lt_usual(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    const int64_t parts = desc->expected_rows > 0 || p->rows_space[TEGROUP_IMPL_A] ? tegroup_impl_max(1, p->groups) : 1;
    const int64_t total = desc->expected_rows > 0 ? desc->expected_rows : p->rows;
    const int64_t rows = tegroup_impl_max(1, tegroup_impl_ceil_div(total, parts));
    tegroup_impl_lt_size size;
    size.rows = p->op == TEGROUP_OP_FORWARD ? p->n : p->k;
    size.cols = p->op == TEGROUP_OP_WGRAD ? p->n : rows;
    size.k = p->op == TEGROUP_OP_FORWARD ? p->k : p->op == TEGROUP_OP_DGRAD ? p->n : rows;
    return size;
}

/* What the library offers, fastest first by its own estimate. Returns how many. */
static inline int32_t tegroup_impl_lt_offers(const tegroup_cublaslt_functions *f, struct cublasLtContext *handle,
                                             tegroup_impl_lt_matmul *m, int64_t workspace_bytes, int32_t alignment,
                                             const tegroup_impl_lt_size *grouped, tegroup_impl_choice *algorithms,
                                             int32_t most, int *code) {
    const tegroup_function get = f->cublasLtMatmulPreferenceGetAttribute, set = f->cublasLtMatmulPreferenceSetAttribute;
    tegroup_impl_lt_opaque preference;
    tegroup_impl_lt_result results[TEGROUP_TUNE_CANDIDATES];
    int found = 0;
    int32_t count = 0;
    memset(results, 0, sizeof results);
    *code = TEGROUP_IMPL_LT(f, cublasLtMatmulPreferenceInit_internal)(&preference, sizeof preference);
    if (!*code) *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_MAX_WORKSPACE, workspace_bytes);
    for (int i = 0; i < 4 && !*code; i++)
        *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_ALIGNMENT_A + i, alignment);
    if (grouped) {
        if (!*code) *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_AVERAGE_ROWS, grouped->rows);
        if (!*code) *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_AVERAGE_COLS, grouped->cols);
        if (!*code) *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_AVERAGE_K, grouped->k);
    } else if (!*code) {
        *code = tegroup_impl_lt_put(get, set, &preference, TEGROUP_IMPL_LT_REDUCTIONS, 0);
    }
    if (*code) return 0;
    *code = TEGROUP_IMPL_LT(f, cublasLtMatmulAlgoGetHeuristic)(handle, &m->desc, &m->a, &m->b, &m->c, &m->d,
                                                               &preference, most, results, &found);
    if (*code) return 0;
    for (int i = 0; i < found && i < most; i++)
        if (results[i].state == 0 && (int64_t)results[i].workspace_bytes <= workspace_bytes)
            algorithms[count++] = results[i].algorithm;
    return count;
}

/* A kernel of ours must have an image for this GPU before anything is enqueued. */
static inline tegroup_status tegroup_impl_lt_image(const tegroup_plan *plan, const void *kernel, tegroup_error *error) {
    cudaFuncAttributes attributes;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);
    if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction) {
        (void)cudaGetLastError();
        return tegroup_impl_fail(error, TEGROUP_ERROR_NOT_BUILT, "target.sm",
                                 "needs a build for this GPU, such as -gencode arch=compute_80,code=compute_80",
                                 plan->sm, 0);
    }
    return tegroup_impl_cuda_status(code, "plan", "the kernel's attributes must be readable", error);
}

/* Take candidate i. The library's version and the algorithm decide the bits, so the numerics follow it. */
static inline void tegroup_impl_lt_choose(tegroup_plan *plan, tegroup_impl_lt_plan *lt, int32_t i) {
    uint64_t id = tegroup_impl_numerics_id(&plan->problem, plan->backend, plan->sm);
    id = tegroup_impl_hash(id, &plan->cublaslt_version, sizeof plan->cublaslt_version);
    lt->chosen = i;
    if (i < lt->count) id = tegroup_impl_hash(id, &lt->algorithms[i], sizeof lt->algorithms[i]);
    plan->numerics_id = id;
    memcpy(plan->algorithm, lt, sizeof *lt);
}

/* ==== [6] Set-up kernel of a grouped cuBLASLt matmul ==== */

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

/* ==== [7] cublaslt_grouped ==== */

/* The whole matmul over a set-up workspace at `base`. */
static inline int tegroup_impl_lt_grouped(const tegroup_cublaslt_functions *f, const tegroup_problem *p,
                                          const tegroup_impl_setup_items *items, tegroup_impl_lt_matmul *m) {
    static const tegroup_setup_item parts[4][3] = {{TEGROUP_SETUP_A_ROWS, TEGROUP_SETUP_A_COLS, TEGROUP_SETUP_A_LD},
                                                   {TEGROUP_SETUP_B_ROWS, TEGROUP_SETUP_B_COLS, TEGROUP_SETUP_B_LD},
                                                   {TEGROUP_SETUP_D_ROWS, TEGROUP_SETUP_D_COLS, TEGROUP_SETUP_C_LD},
                                                   {TEGROUP_SETUP_D_ROWS, TEGROUP_SETUP_D_COLS, TEGROUP_SETUP_D_LD}};
    const tegroup_function get = f->cublasLtMatrixLayoutGetAttribute, set = f->cublasLtMatrixLayoutSetAttribute;
    tegroup_impl_lt_opaque *const layouts[4] = {&m->a, &m->b, &m->c, &m->d};
    const tegroup_dtype dtypes[4] = {p->b, p->a, p->d, p->d};
    int code = tegroup_impl_lt_describe(f, p, 1, &m->desc);
    for (int i = 0; i < 4 && !code; i++) {
        code = TEGROUP_IMPL_LT(f, cublasLtGroupedMatrixLayoutInit_internal)(
            layouts[i], sizeof *layouts[i], tegroup_impl_lt_dtype(dtypes[i]), p->groups, items->at[parts[i][0]],
            items->at[parts[i][1]], items->at[parts[i][2]]);
        if (!code) code = tegroup_impl_lt_put(get, set, layouts[i], TEGROUP_IMPL_LT_ROWS_COLS_WIDTH, 1);
        if (!code) code = tegroup_impl_lt_put(get, set, layouts[i], TEGROUP_IMPL_LT_LD_WIDTH, 1);
    }
    return code;
}

/* The part of the workspace that is cuBLASLt's own: one, or one an operation (see the quirks). */
static inline const tegroup_layout_item *tegroup_impl_lt_grouped_part(const tegroup_plan *plan) {
    const int separate = plan->workspace.count > TEGROUP_SETUP_COUNT + 1;
    return &plan->workspace.items[TEGROUP_SETUP_COUNT + (separate ? plan->problem.op - TEGROUP_OP_FORWARD : 0)];
}

static inline tegroup_status tegroup_impl_lt_grouped_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                          tegroup_error *error) {
    /* the heuristic is asked before there is a workspace: it looks at no address, but there must be one */
    const tegroup_impl_setup_items items =
        tegroup_impl_setup_items_of(&plan->workspace, (void *)(uintptr_t)TEGROUP_ALIGNMENT);
    const tegroup_impl_lt_size usual = tegroup_impl_lt_usual(desc, &plan->problem);
    tegroup_impl_lt_matmul m;
    tegroup_impl_lt_plan lt;
    int code = 0;
    TEGROUP_IMPL_TRY(tegroup_impl_lt_image(plan, (const void *)tegroup_impl_setup_kernel, error));
    memset(&lt, 0, sizeof lt);
    lt.functions = tegroup_impl_lt_find(desc);
    TEGROUP_IMPL_RULE(lt.functions.cublasLtGroupedMatrixLayoutInit_internal != NULL, ERROR_UNSUPPORTED,
                      "cublaslt_functions", "must hold cublasLtGroupedMatrixLayoutInit_internal", 1, 0);
    if (plan->problem.groups > 0 && !tegroup_impl_termless(desc)) {
        code = tegroup_impl_lt_grouped(&lt.functions, &plan->problem, &items, &m);
        TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
        lt.count = tegroup_impl_lt_offers(&lt.functions, desc->cublaslt, &m,
                                          (int64_t)tegroup_impl_lt_grouped_part(plan)->bytes, 16, &usual, lt.algorithms,
                                          TEGROUP_TUNE_CANDIDATES, &code);
        if (lt.count == 0) {
            (void)tegroup_impl_fail(error, TEGROUP_ERROR_UNSUPPORTED, "backend",
                                    "must be another one: cuBLASLt offers no algorithm for this", 1, 0);
            if (error) error->native = code;
            return TEGROUP_ERROR_UNSUPPORTED;
        }
    }
    tegroup_impl_lt_choose(plan, &lt, 0);
    return TEGROUP_OK;
}

/* Addresses by columns are what cuBLASLt was told; those of lists are seen by the set-up kernel only. */
static inline tegroup_status tegroup_impl_lt_grouped_operand(const tegroup_tensor *t, tegroup_impl_operand operand,
                                                             tegroup_error *error) {
    if (t->dtype == TEGROUP_DTYPE_UNSET || tegroup_impl_listed(t)) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(t->data, 16), ERROR_ALIGNMENT, TEGROUP_IMPL_PATH(DATA),
                      "must be 16-byte aligned for cuBLASLt's grouped matmul", 16, (uintptr_t)t->data % 16);
    TEGROUP_IMPL_RULE(tegroup_impl_stride_bytes(t) % 16 == 0 || t->shape.groups < 2, ERROR_ALIGNMENT,
                      TEGROUP_IMPL_PATH(GROUP_STRIDE), "must be a multiple of 16 bytes for cuBLASLt's grouped matmul",
                      16, tegroup_impl_stride_bytes(t));
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_lt_grouped_check(const tegroup_gemm_desc *desc, tegroup_error *error) {
    TEGROUP_IMPL_RULE(desc->cublaslt != NULL, ERROR_NULL_ARGUMENT, "cublaslt", "must not be NULL", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_lt_grouped_operand(&desc->a, TEGROUP_IMPL_A, error));
    TEGROUP_IMPL_TRY(tegroup_impl_lt_grouped_operand(&desc->b, TEGROUP_IMPL_B, error));
    TEGROUP_IMPL_TRY(tegroup_impl_lt_grouped_operand(&desc->c, TEGROUP_IMPL_C, error));
    return tegroup_impl_lt_grouped_operand(&desc->d, TEGROUP_IMPL_D, error);
}

static inline tegroup_status tegroup_impl_lt_grouped_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    const tegroup_impl_gpu_call call = tegroup_impl_gpu_call_of(desc);
    const tegroup_impl_setup_items items = tegroup_impl_setup_items_of(&plan->workspace, desc->workspace);
    const tegroup_layout_item *part = tegroup_impl_lt_grouped_part(plan);
    const int device_scalars =
        plan->problem.alpha_space == TEGROUP_SPACE_DEVICE || plan->problem.beta_space == TEGROUP_SPACE_DEVICE;
    const float beta = desc->accumulate ? 1.0f : call.beta;
    const void *alphas = device_scalars ? (const void *)items.at[TEGROUP_SETUP_ALPHA] : &call.alpha;
    const void *betas = device_scalars ? (const void *)items.at[TEGROUP_SETUP_BETA] : &beta;
    tegroup_impl_lt_matmul m;
    int code;
    if (plan->problem.groups == 0) return TEGROUP_OK;
    if (lt.count > 0) {
        code = tegroup_impl_lt_grouped(&lt.functions, &plan->problem, &items, &m);
        TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
    }
    tegroup_impl_setup_kernel<<<(unsigned)plan->problem.groups, 128, 0, stream>>>(call, items);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the set-up kernel must launch", error));
    if (lt.count == 0) return TEGROUP_OK;
    code = TEGROUP_IMPL_LT(&lt.functions, cublasLtMatmul)(
        desc->cublaslt, &m.desc, alphas, items.at[TEGROUP_SETUP_A], &m.a, items.at[TEGROUP_SETUP_B], &m.b, betas,
        items.at[TEGROUP_SETUP_C], &m.c, items.at[TEGROUP_SETUP_D], &m.d, &lt.algorithms[lt.chosen],
        (char *)desc->workspace + part->offset_bytes, part->bytes, stream);
    return tegroup_impl_lt_status(code, "stream", "cublasLtMatmul must take the planned product", error);
}

/* ==== [8] cublaslt_loop ==== */

/* One algorithm serves every group: it is chosen when the plan is made, for a group of the usual size, from those that
 * do not split k, so that a call asks no heuristic (tens of microseconds a shape) and a row's bits do not depend on its
 * group's rows. The price: a group far from the usual size may run slower than its own best algorithm would. */

/* Four plain layouts of a product; dimensions of at least one. */
static inline int tegroup_impl_lt_layouts(const tegroup_cublaslt_functions *f, const tegroup_problem *p, int64_t rows,
                                          int64_t cols, int64_t k, const int64_t ld[4], tegroup_impl_lt_matmul *m) {
    const int forward = p->op == TEGROUP_OP_FORWARD, wgrad = p->op == TEGROUP_OP_WGRAD;
    tegroup_impl_lt_opaque *const layouts[4] = {&m->a, &m->b, &m->c, &m->d};
    const tegroup_dtype dtypes[4] = {p->b, p->a, p->d, p->d};
    const int64_t high[4] = {forward ? k : rows, wgrad ? cols : k, rows, rows};
    const int64_t wide[4] = {forward ? rows : k, wgrad ? k : cols, cols, cols};
    int code = 0;
    for (int i = 0; i < 4 && !code; i++)
        code = TEGROUP_IMPL_LT(f, cublasLtMatrixLayoutInit_internal)(
            layouts[i], sizeof *layouts[i], tegroup_impl_lt_dtype(dtypes[i]), (uint64_t)high[i], (uint64_t)wide[i],
            ld[i] > 0 ? ld[i] : high[i]);
    return code;
}

/* The largest power of two, 16 at the most, that divides every distance between rows and between groups. */
static inline int32_t tegroup_impl_lt_alignment(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    const int64_t a = tegroup_impl_bits(p->a) / 8, d = tegroup_impl_bits(p->d) / 8;
    const int64_t all = p->lda * a | p->ldb * a | p->ldc * d | p->ldd * d | tegroup_impl_stride_bytes(&desc->a)
                        | tegroup_impl_stride_bytes(&desc->b) | tegroup_impl_stride_bytes(&desc->c)
                        | tegroup_impl_stride_bytes(&desc->d);
    int32_t alignment = 16;
    int packed = !p->lda || !p->ldb || !p->ldd || (p->c && !p->ldc); /* groups of any width, one after another */
    for (int i = 0; i < 4; i++) packed |= p->has_elements[i];
    if (packed) return (int32_t)tegroup_impl_min(a, d);
    while (all % alignment != 0) alignment /= 2;
    return alignment;
}

/* Scalars that live in device memory, as floats in the workspace. */
static __global__ void tegroup_impl_scalars_kernel(const tegroup_scalars alpha, const tegroup_scalars beta, float one,
                                                   float zero, int32_t groups, float *alphas, float *betas) {
    const int32_t g = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (g >= groups) return;
    alphas[g] = (float)tegroup_impl_scalar(&alpha, g, one);
    betas[g] = (float)tegroup_impl_scalar(&beta, g, zero);
}

/* beta * C of a group without terms. */
static __global__ void tegroup_impl_empty_kernel(const __grid_constant__ tegroup_impl_product p, tegroup_dtype dtype,
                                                 float beta, const float *beta_at) {
    tegroup_impl_write_alone(p, dtype, beta_at ? *beta_at : beta, false, (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                             (int64_t)gridDim.x * blockDim.x);
}

static inline tegroup_status tegroup_impl_lt_loop_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                       tegroup_error *error) {
    const tegroup_problem *p = &plan->problem;
    const int64_t slots = tegroup_impl_max(1, desc->stream_count),
                  slot = (int64_t)plan->workspace.items[0].bytes / slots;
    const int64_t ld[4] = {p->ldb, p->lda, p->ldc ? p->ldc : p->ldd, p->ldd};
    const tegroup_impl_lt_size usual = tegroup_impl_lt_usual(desc, p);
    const int32_t element = (int32_t)tegroup_impl_min(tegroup_impl_bits(p->a), tegroup_impl_bits(p->d)) / 8;
    tegroup_impl_lt_matmul m;
    tegroup_impl_lt_plan lt;
    TEGROUP_IMPL_TRY(tegroup_impl_lt_image(plan, (const void *)tegroup_impl_empty_kernel, error));
    memset(&lt, 0, sizeof lt);
    lt.functions = tegroup_impl_lt_find(desc);
    lt.stream_count = desc->stream_count;
    lt.alignment = tegroup_impl_lt_alignment(desc, p);
    if (p->groups > 0 && !tegroup_impl_termless(desc)) {
        int code = tegroup_impl_lt_describe(&lt.functions, p, 0, &m.desc);
        if (!code) code = tegroup_impl_lt_layouts(&lt.functions, p, usual.rows, usual.cols, usual.k, ld, &m);
        TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
        lt.count = tegroup_impl_lt_offers(&lt.functions, desc->cublaslt, &m, slot, lt.alignment, NULL, lt.algorithms,
                                          TEGROUP_TUNE_CANDIDATES, &code);
        if (lt.count == 0) {
            (void)tegroup_impl_fail(error, TEGROUP_ERROR_UNSUPPORTED, "backend",
                                    "must be another one: cuBLASLt offers no algorithm for this", 1, 0);
            if (error) error->native = code;
            return TEGROUP_ERROR_UNSUPPORTED;
        }
        lt.has_unaligned =
            tegroup_impl_lt_offers(&lt.functions, desc->cublaslt, &m, slot, element, NULL, &lt.unaligned, 1, &code);
    }
    tegroup_impl_lt_choose(plan, &lt, 0);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_lt_loop_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                        tegroup_error *error) {
    const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    TEGROUP_IMPL_RULE(desc->cublaslt != NULL, ERROR_NULL_ARGUMENT, "cublaslt", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->stream_count == lt.stream_count, ERROR_PLAN, "stream_count", "must be as planned",
                      lt.stream_count, desc->stream_count);
    if (desc->stream_count == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(desc->streams != NULL, ERROR_NULL_ARGUMENT, "streams", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->events != NULL, ERROR_NULL_ARGUMENT, "events", "must not be NULL", 1, 0);
    for (int32_t i = 0; i <= desc->stream_count; i++)
        TEGROUP_IMPL_RULE(desc->events[i] != NULL, ERROR_NULL_ARGUMENT, "events",
                          "must hold no NULL; got the event's index", -1, i);
    return TEGROUP_OK;
}

/* What every group of a call shares. */
typedef struct tegroup_impl_lt_loop {
    const tegroup_impl_lt_plan *lt;
    tegroup_gemm_desc desc; /* scalars in device memory left out: the host must not read them */
    tegroup_snapshot_view views[4];
    tegroup_impl_lt_matmul m;
    float *alphas, *betas; /* device; NULL = on the host */
    int32_t aligned;
} tegroup_impl_lt_loop;

static inline tegroup_status tegroup_impl_lt_loop_group(tegroup_impl_lt_loop *loop, const tegroup_plan *plan, int32_t g,
                                                        char *slot, int64_t slot_bytes, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    const tegroup_impl_lt_plan *lt = loop->lt;
    const tegroup_gemm_desc *desc = &loop->desc;
    const tegroup_impl_product p = tegroup_impl_product_of(desc, loop->views, g, 1, 0);
    const int has_c = desc->accumulate || desc->c.dtype != TEGROUP_DTYPE_UNSET;
    const float alpha = (float)p.alpha, beta = has_c ? (float)p.beta : 0;
    const int64_t ld[4] = {p.b.ld, p.a.ld, has_c ? p.c.ld : p.d.ld, p.d.ld};
    const void *a = (const void *)(uintptr_t)tegroup_impl_setup_address(&p.a, desc->a.dtype);
    const void *b = (const void *)(uintptr_t)tegroup_impl_setup_address(&p.b, desc->b.dtype);
    void *d = (void *)(uintptr_t)tegroup_impl_setup_address(&p.d, desc->d.dtype);
    const void *c = has_c ? (const void *)(uintptr_t)tegroup_impl_setup_address(&p.c, desc->d.dtype) : d;
    tegroup_impl_lt_result result;
    const tegroup_impl_choice *algorithm;
    int code;
    if (p.skip || p.m <= 0 || p.n <= 0 || (p.untouched && !loop->betas)) return TEGROUP_OK;
    if (p.k <= 0) {
        const int64_t blocks = tegroup_impl_min(1024, tegroup_impl_ceil_div(p.m * p.n, 256));
        tegroup_impl_empty_kernel<<<(unsigned)blocks, 256, 0, stream>>>(p, desc->d.dtype, beta,
                                                                        loop->betas ? loop->betas + g : NULL);
        return tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error);
    }
    code = tegroup_impl_lt_layouts(&lt->functions, &plan->problem, p.n, p.m, p.k, ld, &loop->m);
    TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
    /* an algorithm that cannot do this very shape gives way to the library's own choice */
    algorithm = loop->aligned ? &lt->algorithms[lt->chosen] : lt->has_unaligned ? &lt->unaligned : NULL;
    if (algorithm
        && (TEGROUP_IMPL_LT(&lt->functions, cublasLtMatmulAlgoCheck)(
                desc->cublaslt, &loop->m.desc, &loop->m.a, &loop->m.b, &loop->m.c, &loop->m.d, algorithm, &result)
            || (int64_t)result.workspace_bytes > slot_bytes))
        algorithm = NULL;
    code = TEGROUP_IMPL_LT(&lt->functions, cublasLtMatmul)(
        desc->cublaslt, &loop->m.desc, loop->alphas ? (const void *)(loop->alphas + g) : &alpha, b, &loop->m.a, a,
        &loop->m.b, loop->betas ? (const void *)(loop->betas + g) : &beta, c, &loop->m.c, d, &loop->m.d, algorithm,
        slot, (size_t)slot_bytes, stream);
    return tegroup_impl_lt_status(code, "stream", "cublasLtMatmul must take each group", error);
}

/* Is every group's address as aligned as the chosen algorithm was told? Distances are; the bases decide. */
static inline int tegroup_impl_lt_loop_aligned(const tegroup_gemm_desc *desc, int32_t alignment) {
    const tegroup_tensor *tensors[4] = {&desc->a, &desc->b, &desc->c, &desc->d};
    for (int i = 0; i < 4; i++) {
        const tegroup_tensor *t = tensors[i];
        if (t->dtype == TEGROUP_DTYPE_UNSET) continue;
        if (!tegroup_impl_listed(t) && !tegroup_impl_aligned(t->data, (size_t)alignment)) return 0;
        for (int32_t g = 0; tegroup_impl_listed(t) && g < t->shape.groups; g++)
            if (!tegroup_impl_aligned(t->pointers[g], (size_t)alignment)) return 0;
    }
    return 1;
}

static inline tegroup_status tegroup_impl_lt_loop_capture(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    int ragged = 0;
    for (int i = 0; i < 4; i++) ragged |= plan->problem.rows_space[i] == TEGROUP_SPACE_HOST;
    if (!ragged || desc->host_sizes_final) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaStreamIsCapturing(stream, &capture), "stream",
                                              "must tell whether it is capturing", error));
    TEGROUP_IMPL_RULE(capture == cudaStreamCaptureStatusNone, ERROR_COMBINATION, "host_sizes_final",
                      "must be 1 while stream is capturing: the graph keeps these sizes", 1, 0);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_lt_loop_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                       struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    const tegroup_problem *p = &plan->problem;
    const tegroup_tensor *tensors[4] = {&desc->a, &desc->b, &desc->c, &desc->d};
    const int32_t forks = (int32_t)tegroup_impl_min(desc->stream_count, p->groups);
    const int64_t slot_bytes = (int64_t)plan->workspace.items[0].bytes / tegroup_impl_max(1, desc->stream_count);
    char *slots = (char *)tegroup_impl_layout_at(&plan->workspace, 0, desc->workspace);
    tegroup_impl_lt_loop loop;
    cudaError_t cuda = cudaSuccess;
    tegroup_status status = TEGROUP_OK;
    int code;
    TEGROUP_IMPL_TRY(tegroup_impl_lt_loop_capture(plan, desc, stream, error));
    if (p->groups == 0) return TEGROUP_OK;
    memset(&loop, 0, sizeof loop);
    loop.lt = &lt;
    loop.desc = *desc;
    loop.aligned = tegroup_impl_lt_loop_aligned(desc, lt.alignment);
    for (int i = 0; i < 4; i++)
        if (p->rows_space[i]) loop.views[i] = tegroup_snapshot_read(tensors[i]->shape.snapshot);
    code = tegroup_impl_lt_describe(&lt.functions, p, 0, &loop.m.desc);
    TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
    if (p->alpha_space == TEGROUP_SPACE_DEVICE || p->beta_space == TEGROUP_SPACE_DEVICE) {
        const float one = p->alpha_space == TEGROUP_SPACE_HOST ? (float)tegroup_impl_scalar(&desc->alpha, 0, 1) : 1.0f;
        const float zero = p->beta_space == TEGROUP_SPACE_HOST ? (float)tegroup_impl_scalar(&desc->beta, 0, 0)
                                                               : (float)desc->accumulate;
        memset(&loop.desc.alpha, 0, sizeof loop.desc.alpha);
        memset(&loop.desc.beta, 0, sizeof loop.desc.beta);
        tegroup_scalars alpha = loop.desc.alpha, beta = loop.desc.beta;
        if (p->alpha_space == TEGROUP_SPACE_DEVICE) alpha = desc->alpha;
        if (p->beta_space == TEGROUP_SPACE_DEVICE) beta = desc->beta;
        loop.alphas = (float *)tegroup_impl_layout_at(&plan->workspace, 1, desc->workspace);
        loop.betas = (float *)tegroup_impl_layout_at(&plan->workspace, 2, desc->workspace);
        tegroup_impl_scalars_kernel<<<(unsigned)tegroup_impl_ceil_div(p->groups, 128), 128, 0, stream>>>(
            alpha, beta, one, zero, p->groups, loop.alphas, loop.betas);
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error));
    }
    if (forks > 0) cuda = cudaEventRecord(desc->events[0], stream);
    for (int32_t i = 0; i < forks && cuda == cudaSuccess; i++)
        cuda = cudaStreamWaitEvent(desc->streams[i], desc->events[0], 0);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cuda, "streams", "must wait for stream", error));
    /* the largest groups first, dealt out in turn */
    for (int32_t i = 0; i < p->groups && status == TEGROUP_OK; i++) {
        const int32_t g = loop.views[TEGROUP_IMPL_A].order ? loop.views[TEGROUP_IMPL_A].order[i] : i;
        const int32_t fork = forks > 0 ? i % forks : 0;
        status = tegroup_impl_lt_loop_group(&loop, plan, g, slots + fork * slot_bytes, slot_bytes,
                                            forks > 0 ? desc->streams[fork] : stream, error);
    }
    for (int32_t i = 0; i < forks; i++) { /* joined whatever happened, so that a capture can end */
        cudaError_t joined = cudaEventRecord(desc->events[i + 1], desc->streams[i]);
        if (joined == cudaSuccess) joined = cudaStreamWaitEvent(stream, desc->events[i + 1], 0);
        if (cuda == cudaSuccess) cuda = joined;
    }
    TEGROUP_IMPL_TRY(status);
    return tegroup_impl_cuda_status(cuda, "events", "must join streams with stream", error);
}
#endif /* TEGROUP_NO_CUBLASLT */
#if !defined(TEGROUP_NO_PORTABLE)

/* ==== [9] Portable GEMM kernels ==== */

/* One kernel family for every GPU since SM80: a persistent grid whose blocks walk the groups' tiles, cp.async into a ring of
 * swizzled shared-memory tiles, ldmatrix, mma.sync (PTX ISA 8.0, sections 9.7.8.22 and 9.7.13). Sizes come from the snapshot.
 * Each element is summed over k in steps of 16 from 0 upwards, whatever the tile, so the tile never changes a bit. */
#define TEGROUP_IMPL_PORTABLE_TILE_K 64 /* two-byte elements: one 128-byte row of shared memory */

/* The tile that a block works on. */
typedef struct tegroup_impl_gpu_tile {
    tegroup_impl_product p;
    int64_t i0, j0;
    int32_t valid;
} tegroup_impl_gpu_tile;

static __device__ __forceinline__ uint32_t tegroup_impl_shared(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* 16 bytes from global to shared memory, of which `bytes` are read and the rest are zeros. */
static __device__ __forceinline__ void tegroup_impl_cp_async(uint32_t to, const void *from, int32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void tegroup_impl_cp_commit(void) {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int PENDING> static __device__ __forceinline__ void tegroup_impl_cp_wait(void) {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

template <bool TRANSPOSED>
static __device__ __forceinline__ void tegroup_impl_ldmatrix(uint32_t (&r)[4], uint32_t from) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(from)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(from)
                     : "memory");
}

template <bool BF16>
static __device__ __forceinline__ void tegroup_impl_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1) {
    if (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- scheduling ---- */

/* Out of line: every kernel and every place in it shares the one copy, which is most of what there would be to compile. */
static __device__ __noinline__ void tegroup_impl_gpu_product(const tegroup_impl_gpu_call *call, int32_t g,
                                                             tegroup_impl_product *p) {
    *p = tegroup_impl_product_of(&call->desc, call->views, g, (double)call->alpha, (double)call->beta);
}

template <int TILE_M, int TILE_N>
static __device__ __forceinline__ int64_t tegroup_impl_gpu_tiles(const tegroup_impl_gpu_call &call, int32_t g,
                                                                 tegroup_impl_product *p) {
    tegroup_impl_gpu_product(&call, g, p);
    if (p->skip || p->untouched || p->m <= 0 || p->n <= 0) return 0;
    return tegroup_impl_ceil_div(p->m, TILE_M) * tegroup_impl_ceil_div(p->n, TILE_N);
}

/* One warp walks the groups, 32 at a time: each lane counts one group's tiles, a scan places them. Tiles are asked for in
 * rising order, so the walk never turns back. Lives in shared memory: registers are for sums. */
template <int TILE_M, int TILE_N> struct tegroup_impl_gpu_walk {
    int64_t before;   /* tiles before the 32 groups at hand */
    int64_t upto[32]; /* of these: tiles of each one and those before it */
    int32_t base;     /* the first of these */

    __device__ __forceinline__ void load(const tegroup_impl_gpu_call &call, int32_t first, int64_t tiles_before) {
        const int32_t lane = (int32_t)threadIdx.x & 31, g = first + lane;
        tegroup_impl_product p;
        int64_t sum = g < call.desc.a.shape.groups ? tegroup_impl_gpu_tiles<TILE_M, TILE_N>(call, g, &p) : 0;
        for (int32_t step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += other;
        }
        __syncwarp();
        upto[lane] = sum;
        if (lane == 0) {
            base = first;
            before = tiles_before;
        }
        __syncwarp();
    }
    /* Tile number t, or none when there are fewer. Within a group tiles go in stripes of 8 along m: their operands stay in L2. */
    __device__ __forceinline__ void find(const tegroup_impl_gpu_call &call, int64_t t, tegroup_impl_gpu_tile *tile) {
        const int32_t lane = (int32_t)threadIdx.x & 31;
        while (t >= before + upto[31]) {
            if (base + 32 >= call.desc.a.shape.groups) {
                if (lane == 0) tile->valid = 0;
                __syncwarp();
                return;
            }
            load(call, base + 32, before + upto[31]);
        }
        const int32_t owner = __ffs((int)__ballot_sync(0xffffffffu, t < before + upto[lane])) - 1;
        if (lane == owner) {
            tegroup_impl_product p;
            const int64_t count = tegroup_impl_gpu_tiles<TILE_M, TILE_N>(call, base + lane, &p),
                          local = t - (before + upto[lane] - count);
            const int64_t tiles_m = tegroup_impl_ceil_div(p.m, TILE_M), tiles_n = tegroup_impl_ceil_div(p.n, TILE_N);
            const int64_t stripe = local / (8 * tiles_n), height = tegroup_impl_min(8, tiles_m - 8 * stripe),
                          within = local - stripe * 8 * tiles_n;
            tile->p = p;
            tile->i0 = (8 * stripe + within % height) * TILE_M;
            tile->j0 = within / height * TILE_N;
            tile->valid = 1;
        }
        __syncwarp();
    }
};

/* ---- loading ---- */

/* 16 bytes of a tile, element by element: rows that are not 16-byte aligned. */
static __device__ __noinline__ void tegroup_impl_load_slowly(uint32_t to, const char *from, int32_t bytes) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low = 4 * i < bytes ? *(const uint16_t *)(from + 4 * i) : 0u,
                 high = 4 * i + 2 < bytes ? *(const uint16_t *)(from + 4 * i + 2) : 0u;
        word[i] = low | high << 16;
    }
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};\n" ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
}

/* Loads one operand's tiles of LINES lines (of m or n) by TILE_K. Contiguous along k a tile is stored [line][k], else [k][line];
 * either way 16-byte chunks are permuted within their row by XOR with the row's number, so that eight rows meet eight banks.
 * Every pass of the block's threads permutes alike, since it moves by a multiple of eight rows. */
template <int LINES, bool ALONG_K, int THREADS> struct tegroup_impl_loader {
    static constexpr int TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, CHUNKS = ALONG_K ? TILE_K / 8 : LINES / 8;
    static constexpr int ROWS = ALONG_K ? LINES : TILE_K, ROWS_A_PASS = THREADS / CHUNKS,
                         PASSES = (ROWS + ROWS_A_PASS - 1) / ROWS_A_PASS;
    static_assert(ALONG_K || LINES >= 64, "a row of eight chunks is what the permutation needs");
    static_assert(ROWS_A_PASS % 8 == 0, "the permutation must repeat from pass to pass");
    const char *from; /* this thread's first chunk of the next step */
    int64_t row_bytes;
    int32_t room;      /* lines left from its row (along k), or elements of its chunk that are within the lines */
    bool fast, steady; /* rows of whole 16 bytes; and every line exists, so that whole steps need no bounds */

    static __device__ __forceinline__ int32_t row() { return (int32_t)threadIdx.x / CHUNKS; }
    static __device__ __forceinline__ int32_t chunk() { return (int32_t)threadIdx.x % CHUNKS; }

    __device__ __forceinline__ void open(const char *base, int64_t ld, int64_t lines) {
        row_bytes = ld * 2;
        from = base + row() * row_bytes + chunk() * 16;
        room = (int32_t)tegroup_impl_clamp(ALONG_K ? lines - row() : lines - chunk() * 8, 0, LINES);
        fast = (((uintptr_t)base | (uintptr_t)row_bytes) & 15) == 0;
        steady = fast && lines >= LINES && ROWS % ROWS_A_PASS == 0;
    }
    /* Bytes that there are of the chunk r rows down, when k more elements of k are left. */
    __device__ __forceinline__ int32_t bytes(int r, int32_t k) const {
        const int32_t there = ALONG_K ? (r < room ? k - chunk() * 8 : 0) : (row() + r < k ? room : 0);
        return there < 0 ? 0 : there > 8 ? 16 : there * 2;
    }
    /* k_left: elements of k from this step on. */
    __device__ __forceinline__ void load(uint32_t stage, int64_t k_left) {
        const int32_t k = k_left < TILE_K ? (int32_t)k_left : TILE_K;
        const uint32_t to = stage + (uint32_t)((row() * CHUNKS + (chunk() ^ (row() & 7))) * 16);
        const char *at = from;
        from += ALONG_K ? TILE_K * 2 : TILE_K * row_bytes;
        if (steady && k == TILE_K) {
#pragma unroll
            for (int i = 0; i < PASSES; i++, at += ROWS_A_PASS * row_bytes)
                tegroup_impl_cp_async(to + (uint32_t)(i * ROWS_A_PASS * CHUNKS * 16), at, 16);
        } else if (fast) { /* of no bytes nothing is read, wherever that would be */
#pragma unroll 1
            for (int i = 0; i < PASSES && row() + i * ROWS_A_PASS < ROWS; i++, at += ROWS_A_PASS * row_bytes)
                tegroup_impl_cp_async(to + (uint32_t)(i * ROWS_A_PASS * CHUNKS * 16), at, bytes(i * ROWS_A_PASS, k));
        } else {
#pragma unroll 1
            for (int i = 0; i < PASSES && row() + i * ROWS_A_PASS < ROWS; i++, at += ROWS_A_PASS * row_bytes)
                tegroup_impl_load_slowly(to + (uint32_t)(i * ROWS_A_PASS * CHUNKS * 16), at, bytes(i * ROWS_A_PASS, k));
        }
    }
};

/* ---- storing ---- */

/* Multiplications and additions that no compiler flag rewrites or flushes. */
static __device__ __forceinline__ float tegroup_impl_gpu_mul(float a, float b) {
    float r;
    asm("mul.rn.f32 %0, %1, %2;\n" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
static __device__ __forceinline__ float tegroup_impl_gpu_fma(float a, float b, float c) {
    float r;
    asm("fma.rn.f32 %0, %1, %2, %3;\n" : "=f"(r) : "f"(a), "f"(b), "f"(c));
    return r;
}

/* Eight neighbours of BF16, FP16 or FP32, of which `count` exist, as floats: in one or two loads where their address allows it. */
static __device__ __forceinline__ void tegroup_impl_gpu_load8(tegroup_dtype dtype, const char *from, int32_t count,
                                                              float (&x)[8]) {
    if (count == 8 && ((uintptr_t)from & 15) == 0) {
        uint4 low = *(const uint4 *)from, high = low;
        if (dtype == TEGROUP_DTYPE_F32) high = ((const uint4 *)from)[1];
        const uint32_t word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint16_t half = (uint16_t)(word[i / 2] >> i % 2 * 16);
            x[i] = dtype == TEGROUP_DTYPE_F32    ? tegroup_impl_f32_of_bits(word[i])
                   : dtype == TEGROUP_DTYPE_BF16 ? tegroup_impl_f32_of_bits((uint32_t)half << 16)
                                                 : tegroup_impl_f32_of_f16(half);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < count ? tegroup_impl_load_f32(dtype, from, i) : 0.0f;
}

static __device__ __forceinline__ uint32_t tegroup_impl_gpu_pack(bool bf16, float low, float high) {
    uint32_t r;
    if (bf16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

static __device__ __forceinline__ void tegroup_impl_gpu_store8(tegroup_dtype dtype, char *to, int32_t count,
                                                               const float (&x)[8]) {
    const bool f32 = dtype == TEGROUP_DTYPE_F32, bf16 = dtype == TEGROUP_DTYPE_BF16;
    const bool whole = count == 8 && ((uintptr_t)to & 15) == 0;
    if (f32) {
        if (whole) {
            ((float4 *)to)[0] = make_float4(x[0], x[1], x[2], x[3]);
            ((float4 *)to)[1] = make_float4(x[4], x[5], x[6], x[7]);
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < count) ((float *)to)[i] = x[i];
        return;
    }
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) word[i] = tegroup_impl_gpu_pack(bf16, x[2 * i], x[2 * i + 1]);
    if (whole) {
        *(uint4 *)to = make_uint4(word[0], word[1], word[2], word[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) ((uint16_t *)to)[i] = (uint16_t)(word[i / 2] >> i % 2 * 16);
}

/* Where the results of one tile go: alpha * sum + beta * C + scale * bias. Few registers, since all the sums are in others, and
 * none of it read from shared memory again: the compiler cannot know that stores to D leave that alone. */
struct tegroup_impl_gpu_output {
    char *d; /* of the tile's first element, as the others */
    const char *c, *bias;
    const char *scale;    /* of its first row; NULL = 1 */
    int64_t d_row, c_row; /* bytes between rows */
    int32_t m, n;         /* of the tile */
    float alpha, beta;
    bool empty, reads_c; /* an empty sum is no term at all, and beta 0 does not read C */

    template <int TILE_M, int TILE_N>
    __device__ __forceinline__ void open(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &tile) {
        const tegroup_impl_product &p = tile.p;
        const int32_t bytes = desc.d.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
        d_row = p.d.ld * bytes;
        c_row = p.c.ld * bytes;
        d = p.d.base + (p.d.first + tile.j0) * bytes + tile.i0 * d_row;
        c = p.c.base + (p.c.first + tile.j0) * bytes + tile.i0 * c_row;
        bias = desc.bias.dtype == TEGROUP_DTYPE_UNSET || desc.op != TEGROUP_OP_FORWARD
                   ? NULL
                   : p.bias.base + (p.bias.first + tile.j0) * (desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2);
        scale = desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
                    ? NULL
                    : (const char *)desc.row_scale
                          + (p.a.row0 + tile.i0) * (desc.row_scale_dtype == TEGROUP_DTYPE_F64 ? 8 : 4);
        m = (int32_t)tegroup_impl_min(TILE_M, p.m - tile.i0);
        n = (int32_t)tegroup_impl_min(TILE_N, p.n - tile.j0);
        alpha = (float)p.alpha;
        beta = (float)p.beta;
        empty = p.k == 0;
        reads_c = p.beta != 0;
    }
    /* Eight sums of line `line` from column `first` on, both within the tile. */
    __device__ __forceinline__ void store(const tegroup_gemm_desc &desc, int line, int first, const float *sums) const {
        const int32_t count = n - first < 8 ? n - first : 8;
        const float4 low = ((const float4 *)sums)[0], high = ((const float4 *)sums)[1];
        float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, y[8];
        if (line >= m || count <= 0) return;
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = empty ? 0.0f : tegroup_impl_gpu_mul(alpha, x[e]);
        const int32_t bytes = desc.d.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
        if (reads_c) {
            tegroup_impl_gpu_load8(desc.d.dtype, c + line * c_row + first * bytes, count, y);
#pragma unroll
            for (int e = 0; e < 8; e++)
                x[e] = empty ? tegroup_impl_gpu_mul(beta, y[e]) : tegroup_impl_gpu_fma(beta, y[e], x[e]);
        }
        if (bias) {
            const float by = scale ? tegroup_impl_load_f32(desc.row_scale_dtype, scale, line) : 1.0f;
            tegroup_impl_gpu_load8(desc.bias.dtype, bias + first * (desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2),
                                   count, y);
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] = tegroup_impl_gpu_fma(by, y[e], x[e]);
        }
        tegroup_impl_gpu_store8(desc.d.dtype, d + line * d_row + first * bytes, count, x);
    }
};

/* Is the result alpha times the sum and nothing else, two bytes wide, in whole 16-byte pieces? */
static __device__ __forceinline__ bool tegroup_impl_gpu_plain(const tegroup_gemm_desc &desc,
                                                              const tegroup_impl_product &p, int64_t columns) {
    return p.k > 0 && p.beta == 0 && (desc.bias.dtype == TEGROUP_DTYPE_UNSET || desc.op != TEGROUP_OP_FORWARD)
           && desc.d.dtype != TEGROUP_DTYPE_F32 && columns <= p.n
           && (((uintptr_t)p.d.base + (uintptr_t)p.d.first * 2 | (uintptr_t)p.d.ld * 2) & 15) == 0;
}

/* ---- fragments ---- */

/* Where a lane reads its row of a fragment's first 8x8 matrix: `line` is the warp's first line, upper and later (0 or 1) say
 * whether its matrix is the one of the eight higher lines, and of the eight later k. */
template <int LINES, bool ALONG_K>
static __device__ __forceinline__ uint32_t tegroup_impl_fragments(int line, int upper, int later, int r) {
    return ALONG_K ? (uint32_t)((line + upper * 8 + r) * TEGROUP_IMPL_PORTABLE_TILE_K * 2 + (later ^ r) * 16)
                   : (uint32_t)((later * 8 + r) * LINES * 2 + ((line / 8 + upper) ^ r) * 16);
}

/* The same for sixteen kk of k and the i-th sixteen lines. The chunk's number is permuted by XOR, and so moved by XOR: the bits
 * that change are not among those that the warp's own line sets. */
template <int LINES, bool ALONG_K>
static __device__ __forceinline__ uint32_t tegroup_impl_fragment(uint32_t at, int kk, int i) {
    return ALONG_K ? (at ^ (uint32_t)(kk * 32)) + (uint32_t)(i * 16 * TEGROUP_IMPL_PORTABLE_TILE_K * 2)
                   : (at ^ (uint32_t)(i * 32)) + (uint32_t)(kk * 16 * LINES * 2);
}

/* ---- the two-byte kernel ---- */

/* A block's work on one tile: the ring of loads, the fragments and the sums. */
template <bool BF16, int OP, int TILE_M_, int TILE_N_, int WARPS_M, int WARPS_N, int STAGES>
struct tegroup_impl_portable_block {
    static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K;
    static constexpr int WARPS = WARPS_M * WARPS_N, THREADS = WARPS * 32;
    static constexpr int WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N, MI = WARP_M / 16, NI = WARP_N / 8;
    static constexpr int STEPS = TILE_K / 16, CHUNKS = TILE_N / 8, LINES_A_PASS = THREADS / CHUNKS;
    static constexpr int PADDED_N = TILE_N + 8; /* eight rows of fragments meet different banks */
    static constexpr bool A_ALONG_K = OP != TEGROUP_OP_WGRAD, B_ALONG_K = OP == TEGROUP_OP_FORWARD;
    static constexpr int A_BYTES = TILE_M * TILE_K * 2, STAGE_BYTES = A_BYTES + TILE_N * TILE_K * 2,
                         SHARED_BYTES = STAGES * STAGE_BYTES;
    static_assert(NI % 2 == 0 && STEPS % 2 == 0, "B's fragments are loaded in pairs, and two sets alternate");
    static_assert(TILE_M * PADDED_N * 4 <= SHARED_BYTES, "the ring has room for the sums");

    uint32_t ring, at_a, at_b; /* the ring; this lane's place in a tile of A and of B */
    tegroup_impl_loader<TILE_M, A_ALONG_K, THREADS> load_a;
    tegroup_impl_loader<TILE_N, B_ALONG_K, THREADS> load_b;
    int64_t k_left;           /* elements of k that are not yet on their way */
    int32_t filling, reading; /* stages */
    float sum[MI][NI][4];
    uint32_t fa[2][MI][4], fb[2][NI / 2][4];

    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }
    static __device__ __forceinline__ int warp_m() { return (int)threadIdx.x / 32 % WARPS_M * WARP_M; }
    static __device__ __forceinline__ int warp_n() { return (int)threadIdx.x / 32 / WARPS_M * WARP_N; }

    __device__ __forceinline__ explicit tegroup_impl_portable_block(const void *memory) {
        /* In A's tile the matrices of a fragment run along m first, in B's along k first. */
        const int matrix = lane() >> 3, r = lane() & 7;
        ring = tegroup_impl_shared(memory);
        at_a = tegroup_impl_fragments<TILE_M, A_ALONG_K>(warp_m(), matrix & 1, matrix >> 1, r);
        at_b = A_BYTES + tegroup_impl_fragments<TILE_N, B_ALONG_K>(warp_n(), matrix >> 1, matrix & 1, r);
    }

    /* The first loads of a tile. The ring must be free. */
    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile) {
        const tegroup_impl_product &p = tile.p;
        load_a.open(p.a.base + (p.a.first + tile.i0 * p.a_line) * 2, p.a.ld, p.m - tile.i0);
        load_b.open(p.b.base + (p.b.first + tile.j0 * p.b_line) * 2, p.b.ld, p.n - tile.j0);
        k_left = p.k;
        filling = reading = 0;
#pragma unroll 1
        for (int s = 0; s < STAGES - 1; s++) {
            load_into_a();
            load_into_b();
        }
    }
    __device__ __forceinline__ void load_into_a() {
        if (k_left > 0) load_a.load(ring + (uint32_t)(filling * STAGE_BYTES), k_left);
    }
    __device__ __forceinline__ void load_into_b() {
        if (k_left > 0) {
            load_b.load(ring + (uint32_t)(filling * STAGE_BYTES + A_BYTES), k_left);
            k_left -= TILE_K;
            filling = filling + 1 == STAGES ? 0 : filling + 1;
        }
        tegroup_impl_cp_commit(); /* also when empty, so that the count of pending groups stays true */
    }

    __device__ __forceinline__ void fetch(int set, int kk) {
        const uint32_t stage = ring + (uint32_t)(reading * STAGE_BYTES);
#pragma unroll
        for (int i = 0; i < MI; i++)
            tegroup_impl_ldmatrix<!A_ALONG_K>(fa[set][i],
                                              tegroup_impl_fragment<TILE_M, A_ALONG_K>(stage + at_a, kk, i));
#pragma unroll
        for (int j = 0; j < NI / 2; j++)
            tegroup_impl_ldmatrix<!B_ALONG_K>(fb[set][j],
                                              tegroup_impl_fragment<TILE_N, B_ALONG_K>(stage + at_b, kk, j));
    }
    __device__ __forceinline__ void
    arrive() { /* the next step's tile is there, and the one before this step's is free */
        tegroup_impl_cp_wait<STAGES - 2>();
        __syncthreads();
    }

    /* Fragments are loaded under the products of the sixteen of k before theirs. */
    __device__ __forceinline__ void multiply(int64_t k) {
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
        if (k > 0) {
            arrive();
            fetch(0, 0);
        }
        for (int64_t left = k; left > 0; left -= TILE_K) {
#pragma unroll
            for (int kk = 0; kk < STEPS; kk++) {
                if (kk + 1 < STEPS) fetch((kk + 1) % 2, kk + 1);
                else {
                    arrive();
                    reading = reading + 1 == STAGES ? 0 : reading + 1;
                    if (left > TILE_K) fetch((kk + 1) % 2, 0);
                }
                if (kk == 0) load_into_a();
                if (kk == 1) load_into_b();
#pragma unroll
                for (int i = 0; i < MI; i++)
#pragma unroll
                    for (int j = 0; j < NI; j++)
                        tegroup_impl_mma<BF16>(sum[i][j], fa[kk % 2][i], fb[kk % 2][j / 2][j % 2 * 2],
                                               fb[kk % 2][j / 2][j % 2 * 2 + 1]);
            }
        }
        tegroup_impl_cp_wait<0>();
        __syncthreads(); /* the ring is free */
    }

    /* Results go through the ring, so that neighbouring threads store neighbouring columns: alpha times the sums as two-byte
     * numbers, ready to be copied, */
    __device__ __forceinline__ void store_plainly(bool bf16, const tegroup_impl_gpu_tile &tile, unsigned char *memory) {
        const float alpha = (float)tile.p.alpha;
        uint16_t *results = (uint16_t *)memory;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
                *(uint32_t *)(results + (warp_m() + i * 8 + lane() / 4) * PADDED_N + warp_n() + j * 8
                              + lane() % 4 * 2) =
                    tegroup_impl_gpu_pack(bf16, tegroup_impl_gpu_mul(alpha, sum[i / 2][j][i % 2 * 2]),
                                          tegroup_impl_gpu_mul(alpha, sum[i / 2][j][i % 2 * 2 + 1]));
        __syncthreads();
        const tegroup_impl_block d = tile.p.d;
        const int line = (int)threadIdx.x / CHUNKS, first = (int)threadIdx.x % CHUNKS * 8;
        const int32_t lines = (int32_t)tegroup_impl_min(tile.p.m - tile.i0, TILE_M);
        char *to = d.base + (d.first + (tile.i0 + line) * d.ld + tile.j0 + first) * 2;
        const uint16_t *from = results + line * PADDED_N + first;
        const int64_t step = LINES_A_PASS * 2 * d.ld;
#pragma unroll 8
        for (int i = line; i < lines; i += LINES_A_PASS, from += LINES_A_PASS * PADDED_N, to += step)
            *(uint4 *)to = *(const uint4 *)from;
    }
    /* or the sums as they are, for everything else. */
    __device__ __forceinline__ void store(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &tile,
                                          unsigned char *memory) {
        float *sums = (float *)memory;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
                *(float2 *)(sums + (warp_m() + i * 8 + lane() / 4) * PADDED_N + warp_n() + j * 8 + lane() % 4 * 2) =
                    make_float2(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
        __syncthreads();
        tegroup_impl_gpu_output output;
        output.open<TILE_M, TILE_N>(desc, tile);
        const int line = (int)threadIdx.x / CHUNKS, first = (int)threadIdx.x % CHUNKS * 8;
#pragma unroll 2
        for (int i = line; i < output.m; i += LINES_A_PASS) output.store(desc, i, first, sums + i * PADDED_N + first);
    }
};

template <bool BF16, int OP, int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int STAGES>
static __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32)
    tegroup_impl_portable_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap(); /* built for an older GPU alone; the plan refuses before it comes to this */
#else
    extern __shared__ __align__(128) unsigned char tegroup_impl_memory[];
    __shared__ tegroup_impl_gpu_tile tiles[2]; /* the one that is worked on, and the next */
    __shared__ tegroup_impl_gpu_walk<TILE_M, TILE_N> walk;
    tegroup_impl_portable_block<BF16, OP, TILE_M, TILE_N, WARPS_M, WARPS_N, STAGES> block(tegroup_impl_memory);
    const bool walks = threadIdx.x < 32;
    if (walks) {
        walk.load(call, 0, 0);
        walk.find(call, blockIdx.x, &tiles[0]);
    }
    int32_t at = 0;
    for (int64_t t = blockIdx.x;; t += gridDim.x, at ^= 1) {
        __syncthreads(); /* the tile is known, and nobody still reads the shared memory of the last one */
        const tegroup_impl_gpu_tile &tile = tiles[at];
        if (!tile.valid) break;
        block.open(tile);
        if (walks) walk.find(call, t + gridDim.x, &tiles[at ^ 1]); /* while the first loads are on their way */
        block.multiply(tile.p.k);
        if (tegroup_impl_gpu_plain(call.desc, tile.p, tile.j0 + TILE_N))
            block.store_plainly(call.desc.d.dtype == TEGROUP_DTYPE_BF16, tile, tegroup_impl_memory);
        else block.store(call.desc, tile, tegroup_impl_memory);
    }
#endif
}

/* ---- the FP32 kernel ---- */

/* Plain FMA, for gradient checks: 64 x 64 tiles, 4 x 4 elements a thread, one chain of FMAs over k an element. */
template <int OP>
static __global__ void __launch_bounds__(256)
    tegroup_impl_portable_f32_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    constexpr int TILE = 64, TILE_K = 16;
    __shared__ float a[TILE_K][TILE + 4], b[TILE_K][TILE + 4], sums[TILE * (TILE + 8)];
    __shared__ tegroup_impl_gpu_tile tile;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    __shared__ tegroup_impl_gpu_walk<TILE, TILE> walk;
    if (threadIdx.x < 32) walk.load(call, 0, 0);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads();
        if (threadIdx.x < 32) walk.find(call, t, &tile);
        __syncthreads();
        if (!tile.valid) break;
        const tegroup_impl_product &p = tile.p;
        float sum[4][4] = {};
        for (int64_t k0 = 0; k0 < p.k; k0 += TILE_K) {
            for (int e = (int)threadIdx.x; e < TILE * TILE_K;
                 e += 256) { /* threads run along whichever direction is contiguous */
                const int la = OP == TEGROUP_OP_WGRAD ? e % TILE : e / TILE_K,
                          ka = OP == TEGROUP_OP_WGRAD ? e / TILE : e % TILE_K;
                const int lb = OP == TEGROUP_OP_FORWARD ? e / TILE_K : e % TILE,
                          kb = OP == TEGROUP_OP_FORWARD ? e % TILE_K : e / TILE;
                const bool in_a = tile.i0 + la < p.m && k0 + ka < p.k, in_b = tile.j0 + lb < p.n && k0 + kb < p.k;
                a[ka][la] =
                    in_a ? ((const float *)p.a.base)[p.a.first + (tile.i0 + la) * p.a_line + (k0 + ka) * p.a_k] : 0.0f;
                b[kb][lb] =
                    in_b ? ((const float *)p.b.base)[p.b.first + (tile.j0 + lb) * p.b_line + (k0 + kb) * p.b_k] : 0.0f;
            }
            __syncthreads();
#pragma unroll
            for (int kk = 0; kk < TILE_K; kk++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        sum[i][j] = tegroup_impl_gpu_fma(a[kk][ty * 4 + i], b[kk][tx * 4 + j], sum[i][j]);
            __syncthreads();
        }
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) sums[(ty * 4 + i) * (TILE + 8) + tx * 4 + j] = sum[i][j];
        __syncthreads();
        tegroup_impl_gpu_output output;
        output.open<TILE, TILE>(call.desc, tile);
#pragma unroll 1
        for (int e = (int)threadIdx.x; e < TILE * TILE / 8; e += 256)
            output.store(call.desc, e / (TILE / 8), e % (TILE / 8) * 8,
                         sums + e / (TILE / 8) * (TILE + 8) + e % (TILE / 8) * 8);
    }
}

/* ==== [10] Portable GEMM: plan and launch ==== */

/* One kernel of the family, for BF16 and for FP16. Tiles of up to 128 lines fit SM86, 89 and 120, whose blocks have 99 KB of
 * shared memory for what the kernel declares itself (less than 2 KB) and the ring; the highest is for SM80, 90 and 100. */
typedef struct tegroup_impl_portable_row {
    const void *bf16, *f16;
    int32_t tile_m, tile_n, threads, shared_bytes;
} tegroup_impl_portable_row;

#define TEGROUP_IMPL_PORTABLE_ROW(op, m, n, warps_m, warps_n, stages)                                                  \
    {                                                                                                                  \
        (const void *)tegroup_impl_portable_kernel<true, op, m, n, warps_m, warps_n, stages>,                          \
            (const void *)tegroup_impl_portable_kernel<false, op, m, n, warps_m, warps_n, stages>, m, n,               \
            tegroup_impl_portable_block<true, op, m, n, warps_m, warps_n, stages>::THREADS,                            \
            tegroup_impl_portable_block<true, op, m, n, warps_m, warps_n, stages>::SHARED_BYTES                        \
    }

/* Rows of one operation, from the lowest tile to the highest. */
static inline const tegroup_impl_portable_row *tegroup_impl_portable_rows(tegroup_op op, int32_t *count) {
    static const tegroup_impl_portable_row forward[] = {
        TEGROUP_IMPL_PORTABLE_ROW(1, 16, 128, 1, 4, 4), TEGROUP_IMPL_PORTABLE_ROW(1, 64, 128, 2, 2, 3),
        TEGROUP_IMPL_PORTABLE_ROW(1, 128, 128, 2, 2, 3), TEGROUP_IMPL_PORTABLE_ROW(1, 256, 128, 4, 2, 3)};
    static const tegroup_impl_portable_row dgrad[] = {
        TEGROUP_IMPL_PORTABLE_ROW(2, 16, 128, 1, 4, 4), TEGROUP_IMPL_PORTABLE_ROW(2, 64, 128, 2, 2, 3),
        TEGROUP_IMPL_PORTABLE_ROW(2, 128, 128, 2, 2, 3), TEGROUP_IMPL_PORTABLE_ROW(2, 256, 128, 4, 2, 3)};
    static const tegroup_impl_portable_row wgrad[] = {TEGROUP_IMPL_PORTABLE_ROW(3, 64, 128, 2, 2, 3),
                                                      TEGROUP_IMPL_PORTABLE_ROW(3, 128, 128, 2, 2, 3)};
    *count = op == TEGROUP_OP_WGRAD ? 2 : 4;
    return op == TEGROUP_OP_FORWARD ? forward : op == TEGROUP_OP_DGRAD ? dgrad : wgrad;
}

/* The lowest tile that holds a group of `lines` lines, the average; the 256-line one, which wastes most where a group ends, only
 * where groups are long and alike. limit: shared memory that a block may have. */
#define TEGROUP_IMPL_PORTABLE_DECLARED 2048 /* bytes of it that a kernel declares itself, at most */
static inline const tegroup_impl_portable_row *tegroup_impl_portable_choose(tegroup_op op, int64_t lines, int alike,
                                                                            int32_t limit) {
    int32_t count, i;
    const tegroup_impl_portable_row *rows = tegroup_impl_portable_rows(op, &count);
    for (i = 0; i + 1 < count; i++)
        if (rows[i].tile_m >= lines || rows[i + 1].shared_bytes + TEGROUP_IMPL_PORTABLE_DECLARED > limit
            || (rows[i + 1].tile_m > 128 && (lines < 384 || !alike)))
            break;
    return &rows[i];
}

/* plan.algorithm: the kernel's address in this unit, its threads, shared memory and blocks. */
enum {
    TEGROUP_IMPL_PORTABLE_KERNEL,
    TEGROUP_IMPL_PORTABLE_THREADS,
    TEGROUP_IMPL_PORTABLE_SHARED,
    TEGROUP_IMPL_PORTABLE_BLOCKS
};

/* Shared memory that one block may have here. A test can pretend to be on a smaller GPU. */
static inline cudaError_t tegroup_impl_shared_limit(int device, int *limit) {
    cudaError_t code = cudaDeviceGetAttribute(limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
#if defined(TEGROUP_IMPL_SHARED_LIMIT)
    *limit = (int)tegroup_impl_min(*limit, TEGROUP_IMPL_SHARED_LIMIT);
#endif
    return code;
}

static inline tegroup_status tegroup_impl_portable_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                        tegroup_error *error) {
    const tegroup_problem *p = &plan->problem;
    cudaFuncAttributes attributes;
    const void *kernel;
    int32_t threads, shared = 0;
    int multiprocessors = 0, blocks = 0, limit = 0;
    cudaError_t code = tegroup_impl_shared_limit(plan->device, &limit);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "plan.device", "must be readable", error));
    if (p->a == TEGROUP_DTYPE_F32) {
        kernel = p->op == TEGROUP_OP_FORWARD ? (const void *)tegroup_impl_portable_f32_kernel<TEGROUP_OP_FORWARD>
                 : p->op == TEGROUP_OP_DGRAD ? (const void *)tegroup_impl_portable_f32_kernel<TEGROUP_OP_DGRAD>
                                             : (const void *)tegroup_impl_portable_f32_kernel<TEGROUP_OP_WGRAD>;
        threads = 256;
        plan->tile_m = plan->tile_n = 64;
        plan->tile_k = 16;
    } else {
        const int64_t total = desc->expected_rows > 0 ? desc->expected_rows : p->rows,
                      average = total / tegroup_impl_max(1, p->rows_space[TEGROUP_IMPL_A] ? p->groups : 1),
                      lines = p->op == TEGROUP_OP_WGRAD ? p->n : average;
        const tegroup_impl_portable_row *row =
            tegroup_impl_portable_choose(p->op, lines, desc->expected_rows_max <= 2 * average, limit);
        kernel = p->a == TEGROUP_DTYPE_BF16 ? row->bf16 : row->f16;
        threads = row->threads;
        shared = row->shared_bytes;
        plan->tile_m = row->tile_m;
        plan->tile_n = row->tile_n;
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
    if (code == cudaSuccess)
        TEGROUP_IMPL_RULE((int64_t)attributes.sharedSizeBytes + shared <= limit, ERROR_UNSUPPORTED, "target.sm",
                          "must give a block this much shared memory", (int64_t)attributes.sharedSizeBytes + shared,
                          limit);
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
#endif /* TEGROUP_NO_PORTABLE */

/* ==== [11] GPU backends: plan, check and run ==== */

#if defined(TEGROUP_NO_CUBLASLT)
static inline int32_t tegroup_impl_cuda_cublaslt_version(const tegroup_gemm_desc *desc) {
    (void)desc;
    return 0;
}
#endif

static inline tegroup_status tegroup_impl_cuda_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                    tegroup_error *error) {
    tegroup_target target;
    (void)desc, (void)error; /* unused where every backend is left out */
    plan->device = tegroup_impl_cuda_target(&target);
    switch (plan->backend) {
#if !defined(TEGROUP_NO_PORTABLE)
    case TEGROUP_BACKEND_PORTABLE: return tegroup_impl_portable_plan(desc, plan, error);
#endif
#if !defined(TEGROUP_NO_CUBLASLT)
    case TEGROUP_BACKEND_CUBLASLT_GROUPED: return tegroup_impl_lt_grouped_plan(desc, plan, error);
    case TEGROUP_BACKEND_CUBLASLT_LOOP: return tegroup_impl_lt_loop_plan(desc, plan, error);
#endif
    default: break; /* explain offers nothing else that is built */
    }
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_cuda_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                     tegroup_error *error) {
    (void)desc, (void)error;
    switch (plan->backend) {
#if !defined(TEGROUP_NO_CUBLASLT)
    case TEGROUP_BACKEND_CUBLASLT_GROUPED: return tegroup_impl_lt_grouped_check(desc, error);
    case TEGROUP_BACKEND_CUBLASLT_LOOP: return tegroup_impl_lt_loop_check(plan, desc, error);
#endif
    default: break;
    }
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_cuda_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    int device = -1;
    cudaError_t code = cudaGetDevice(&device);
    (void)desc, (void)stream;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "plan.device", "there must be a current device", error));
    TEGROUP_IMPL_RULE(device == plan->device, ERROR_PLAN, "plan.device", "must be the current device", plan->device,
                      device);
    switch (plan->backend) {
#if !defined(TEGROUP_NO_PORTABLE)
    case TEGROUP_BACKEND_PORTABLE: return tegroup_impl_portable_gemm(plan, desc, stream, error);
#endif
#if !defined(TEGROUP_NO_CUBLASLT)
    case TEGROUP_BACKEND_CUBLASLT_GROUPED: return tegroup_impl_lt_grouped_gemm(plan, desc, stream, error);
    case TEGROUP_BACKEND_CUBLASLT_LOOP: return tegroup_impl_lt_loop_gemm(plan, desc, stream, error);
#endif
    default: break;
    }
    return TEGROUP_OK;
}

/* ==== [12] GPU backends: choosing an algorithm ==== */

static inline tegroup_impl_choice tegroup_impl_cuda_choice(const tegroup_plan *plan) {
    tegroup_impl_choice choice;
    memset(&choice, 0, sizeof choice);
#if !defined(TEGROUP_NO_CUBLASLT)
    if (tegroup_impl_uses_cublaslt(plan->backend)) {
        const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
        if (lt.count > 0) choice = lt.algorithms[lt.chosen];
    }
#else
    (void)plan;
#endif
    return choice;
}

/* A choice from elsewhere must be among what is offered here. */
static inline tegroup_status tegroup_impl_cuda_choose(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                      tegroup_error *error) {
    const tegroup_impl_choice now = tegroup_impl_cuda_choice(plan);
    if (memcmp(&now, choice, sizeof now) == 0) return TEGROUP_OK;
#if !defined(TEGROUP_NO_CUBLASLT)
    if (tegroup_impl_uses_cublaslt(plan->backend)) {
        tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
        for (int32_t i = 0; i < lt.count; i++)
            if (memcmp(&lt.algorithms[i], choice, sizeof *choice) == 0) {
                tegroup_impl_lt_choose(plan, &lt, i);
                return TEGROUP_OK;
            }
    }
#endif
    return tegroup_impl_fail(error, TEGROUP_ERROR_PLAN, "bytes", "must name an algorithm that is offered here", 1, 0);
}

static inline tegroup_status tegroup_impl_cuda_kind(int32_t device, uint64_t *kind, tegroup_error *error) {
    cudaDeviceProp properties;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaGetDeviceProperties(&properties, device), "plan.device",
                                              "must be readable", error));
    *kind = tegroup_impl_hash(TEGROUP_IMPL_HASH, properties.name, strlen(properties.name));
    *kind = tegroup_impl_hash(*kind, &properties.multiProcessorCount, sizeof properties.multiProcessorCount);
    return TEGROUP_OK;
}

/* One timed run; milliseconds is -1 where the candidate does not run. */
static inline tegroup_status tegroup_impl_cuda_time(const tegroup_plan *plan, const tegroup_tune_desc *desc,
                                                    struct CUstream_st *stream, float *milliseconds,
                                                    tegroup_error *error) {
    cudaError_t code = cudaEventRecord(desc->begin, stream);
    tegroup_status status;
    *milliseconds = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "begin", "must be an event that can be recorded", error));
    status = tegroup_gemm(plan, desc->gemm, stream, error);
    if (status != TEGROUP_OK) return status;
    code = cudaEventRecord(desc->end, stream);
    if (code == cudaSuccess) code = cudaEventSynchronize(desc->end);
    if (code == cudaSuccess) code = cudaEventElapsedTime(milliseconds, desc->begin, desc->end);
    return tegroup_impl_cuda_status(code, "end", "must be an event with timing", error);
}

static inline float tegroup_impl_median(float *times, int32_t count) {
    for (int32_t i = 1; i < count; i++)
        for (int32_t j = i; j > 0 && times[j - 1] > times[j]; j--) {
            const float t = times[j];
            times[j] = times[j - 1];
            times[j - 1] = t;
        }
    return times[count / 2];
}

/* Candidates take turns, so that a clock that changes meets all of them alike. */
static inline tegroup_status tegroup_impl_cuda_tune(tegroup_plan *plan, const tegroup_tune_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    tegroup_plan candidates[TEGROUP_TUNE_CANDIDATES];
    float times[TEGROUP_TUNE_CANDIDATES][TEGROUP_TUNE_ROUNDS], medians[TEGROUP_TUNE_CANDIDATES];
    const int32_t rounds = desc->rounds > 0 ? desc->rounds : 15;
    int32_t count = 1, best = -1;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    tegroup_error first;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaStreamIsCapturing(stream, &capture), "stream",
                                              "must tell whether it is capturing", error));
    TEGROUP_IMPL_RULE(capture == cudaStreamCaptureStatusNone, ERROR_COMBINATION, "stream",
                      "must not be capturing: tuning waits", 0, 1);
    TEGROUP_IMPL_RULE(desc->begin != NULL, ERROR_NULL_ARGUMENT, "begin", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->end != NULL, ERROR_NULL_ARGUMENT, "end", "must not be NULL", 1, 0);
    memset(&first, 0, sizeof first);
    candidates[0] = *plan;
#if !defined(TEGROUP_NO_CUBLASLT)
    if (tegroup_impl_uses_cublaslt(plan->backend)) {
        tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
        count = 0;
        for (int32_t i = 0; i < TEGROUP_TUNE_CANDIDATES && (i < lt.count || i == 0); i++) {
            candidates[i] = *plan;
            tegroup_impl_lt_choose(&candidates[i], &lt, i);
            count = i + 1;
        }
    }
#endif
    for (int32_t i = 0; i < TEGROUP_TUNE_CANDIDATES; i++)
        medians[i] = i < count && (desc->any_numerics || candidates[i].numerics_id == plan->numerics_id) ? 0.0f : -1.0f;
    for (int32_t round = -1; round < rounds; round++) /* the first to warm up */
        for (int32_t i = 0; i < count; i++) {
            float time = -1;
            if (medians[i] < 0) continue;
            if (tegroup_impl_cuda_time(&candidates[i], desc, stream, &time, &first) != TEGROUP_OK) medians[i] = -1;
            else if (round >= 0) times[i][round] = time;
        }
    for (int32_t i = 0; i < count; i++) {
        if (medians[i] < 0) continue;
        medians[i] = tegroup_impl_median(times[i], rounds);
        if (best < 0 || medians[i] < medians[best]) best = i;
    }
    if (best < 0) { /* none ran: as the last one said */
        if (error) *error = first;
        return first.status;
    }
    *plan = candidates[best];
    for (int32_t i = 0; i < TEGROUP_TUNE_CANDIDATES && desc->milliseconds; i++) desc->milliseconds[i] = medians[i];
    return TEGROUP_OK;
}
#endif /* TEGROUP_CUDA_IMPLEMENTATION_INCLUDED */
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
