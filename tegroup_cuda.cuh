/* tegroup_cuda.cuh - the CUDA half of tegroup. tegroup.h includes it by itself when nvcc (or clang -x cuda) compiles;
 * do not include it alone. It holds the prepare kernel, the operations around the GEMM, the portable GEMM kernels
 * (SM80 and later) and the cuBLASLt backends; link with the CUDA runtime, which nvcc does by itself. Kernels are static:
 * each file that defines TEGROUP_IMPLEMENTATION has its own, so keep to one such .cu file where build time matters.
 *
 * Licence: MIT, at the end of this file. Stitched from src/ by `make headers`: edit there.
 */

/* Map: search for the number in brackets.
 *
 *   [1] Guards and version
 *   [2] Launching
 *   [3] Prepare kernel
 *   [4] Rows on the GPU
 *   [5] Activation kernels
 *   [6] Router kernels
 *   [7] Permute and combine kernels
 *   [8] Validate kernels
 *   [9] GPU calls
 *   [10] cuBLASLt: functions, descriptors, algorithms
 *   [11] Set-up kernel of a grouped cuBLASLt matmul
 *   [12] cublaslt_grouped
 *   [13] cublaslt_loop
 *   [14] Portable GEMM kernels
 *   [15] Portable GEMM: plan and launch
 *   [16] GPU backends: plan, check and run
 *   [17] GPU backends: choosing an algorithm
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

/* ==== [4] Rows on the GPU ==== */

/* Kernels over rows are written once, over an access: vectors move 16 bytes a step, for matrices of one type whose rows all
 * begin at multiples of 16 bytes; scalars move one element of any type. A block works on a few rows at a time, so that each
 * of its threads has several loads under way. */
enum { TEGROUP_IMPL_ROWS_UNIT = TEGROUP_GRANULE(0), TEGROUP_IMPL_ROWS_THREADS = 256 };

static __device__ __forceinline__ float tegroup_impl_low_half(uint32_t word, bool bf16) {
#if __CUDA_ARCH__ >= 530
    float x;
    if (bf16) return __uint_as_float(word << 16);
    asm("{.reg .f16 h; mov.b32 {h, _}, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(word));
    return x;
#else
    return bf16 ? tegroup_impl_f32_of_bf16((uint16_t)word) : tegroup_impl_f32_of_f16((uint16_t)word);
#endif
}

static __device__ __forceinline__ float tegroup_impl_high_half(uint32_t word, bool bf16) {
    return bf16 ? __uint_as_float(word & 0xffff0000u) : tegroup_impl_low_half(word >> 16, false);
}

/* What arithmetic gives is rounded by the hardware to the very bits that the conversions of the C part give: its NaN is the
 * quiet one with all bits set. */
static __device__ __forceinline__ uint32_t tegroup_impl_two_halves(float low, float high, bool bf16) {
#if __CUDA_ARCH__ >= 800
    uint32_t word;
    if (bf16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return bf16 ? (uint32_t)tegroup_impl_bf16_of_f32(low) | (uint32_t)tegroup_impl_bf16_of_f32(high) << 16
                : (uint32_t)tegroup_impl_f16_of_f32(low) | (uint32_t)tegroup_impl_f16_of_f32(high) << 16;
#endif
}

template <int DTYPE> struct tegroup_impl_vectors {
    typedef float real;
    typedef uint4 raw;
    enum { lanes = DTYPE == TEGROUP_DTYPE_F32 ? 4 : 8, bytes = 16 / lanes };
    static __device__ __forceinline__ char *row(const tegroup_matrix &m, int64_t row) {
        return (char *)m.data + row * m.ld * bytes;
    }
    static __device__ __forceinline__ raw load(const tegroup_matrix &, const char *row, int64_t step) {
        return ((const raw *)row)[step];
    }
    static __device__ __forceinline__ void store(const tegroup_matrix &, char *row, int64_t step, raw x) {
        ((raw *)row)[step] = x;
    }
    static __device__ __forceinline__ void unpack(raw v, real *x) {
        const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (DTYPE == TEGROUP_DTYPE_F32) {
                x[i] = __uint_as_float(word[i]);
            } else {
                x[2 * i] = tegroup_impl_low_half(word[i], DTYPE == TEGROUP_DTYPE_BF16);
                x[2 * i + 1] = tegroup_impl_high_half(word[i], DTYPE == TEGROUP_DTYPE_BF16);
            }
        }
    }
    static __device__ __forceinline__ raw pack(const real *x) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = DTYPE == TEGROUP_DTYPE_F32
                          ? __float_as_uint(x[i])
                          : tegroup_impl_two_halves(x[2 * i], x[2 * i + 1], DTYPE == TEGROUP_DTYPE_BF16);
        return make_uint4(word[0], word[1], word[2], word[3]);
    }
};

/* One element of any type; no inlining, for what calls them is never fast, and should at least be small. */
static __device__ __noinline__ float tegroup_impl_load_as(tegroup_dtype dtype, const void *data, int64_t i, float) {
    return tegroup_impl_load_f32(dtype, data, i);
}
static __device__ __noinline__ double tegroup_impl_load_as(tegroup_dtype dtype, const void *data, int64_t i, double) {
    return tegroup_impl_load_f64(dtype, data, i);
}
static __device__ __noinline__ void tegroup_impl_store_as(tegroup_dtype dtype, void *data, int64_t i, float x) {
    tegroup_impl_store_f32(dtype, data, i, x);
}
static __device__ __noinline__ void tegroup_impl_store_as(tegroup_dtype dtype, void *data, int64_t i, double x) {
    tegroup_impl_store_f64(dtype, data, i, x);
}

template <typename REAL> struct tegroup_impl_scalars {
    typedef REAL real;
    typedef REAL raw;
    enum { lanes = 1 };
    static __device__ __forceinline__ char *row(const tegroup_matrix &m, int64_t row) {
        return tegroup_impl_matrix_row(&m, row);
    }
    static __device__ __forceinline__ raw load(const tegroup_matrix &m, const char *row, int64_t step) {
        return tegroup_impl_load_as(m.dtype, row, step, raw());
    }
    static __device__ __forceinline__ void store(const tegroup_matrix &m, char *row, int64_t step, raw x) {
        tegroup_impl_store_as(m.dtype, row, step, x);
    }
    static __device__ __forceinline__ void unpack(raw v, real *x) { x[0] = v; }
    static __device__ __forceinline__ raw pack(const real *x) { return x[0]; }
};

/* Matrices of weights, scales and their gradients are F32 or F64. An absent one is full of ones. */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_weight(const tegroup_matrix &m, int64_t row, int64_t col) {
    const int64_t at = row * m.ld + col;
    return m.dtype == TEGROUP_DTYPE_UNSET ? (REAL)1
           : m.dtype == TEGROUP_DTYPE_F32 ? (REAL)((const float *)m.data)[at]
                                          : (REAL)((const double *)m.data)[at];
}
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_set_weight(const tegroup_matrix &m, int64_t row, int64_t col,
                                                               REAL x) {
    const int64_t at = row * m.ld + col;
    if (m.dtype == TEGROUP_DTYPE_F32) ((float *)m.data)[at] = (float)x;
    else ((double *)m.data)[at] = (double)x;
}

/* The rows that groups own, in units of a few rows of one group; without a snapshot, all rows. What the snapshot says is
 * bounded by the matrix, and a buffer that is no snapshot for it has no rows. */
struct tegroup_impl_units {
    const int64_t *start, *rows, *prefix;
    int64_t capacity, count;
    int32_t groups;

    __device__ tegroup_impl_units(const void *snapshot, int64_t matrix_rows)
        : start(NULL), rows(NULL), prefix(NULL), capacity(matrix_rows),
          count(tegroup_impl_ceil_div(matrix_rows, TEGROUP_IMPL_ROWS_UNIT)), groups(0) {
        const tegroup_snapshot_header *header = (const tegroup_snapshot_header *)snapshot;
        if (!header) return;
        if (header->magic == TEGROUP_SNAPSHOT_MAGIC && header->groups >= 0 && header->groups <= TEGROUP_MAX_GROUPS
            && header->capacity_rows <= matrix_rows) {
            const tegroup_snapshot_view view = tegroup_impl_snapshot_view(snapshot, header->groups, 0);
            groups = header->groups;
            start = view.start;
            rows = view.rows;
            prefix = view.prefix[0];
        }
        count = groups > 0 ? tegroup_impl_min(prefix[groups], count + groups) : 0;
    }

    /* Rows of a unit, and the first of them. */
    __device__ int32_t at(int64_t unit, int64_t *first) const {
        int64_t room = capacity - unit * TEGROUP_IMPL_ROWS_UNIT;
        *first = unit * TEGROUP_IMPL_ROWS_UNIT;
        if (prefix) {
            int32_t g = 0, above = groups;
            while (above - g > 1) {
                const int32_t middle = (g + above) / 2;
                if (prefix[middle] <= unit) g = middle;
                else above = middle;
            }
            const int64_t skipped = (unit - prefix[g]) * TEGROUP_IMPL_ROWS_UNIT;
            *first = start[g] + skipped;
            if (skipped < 0 || *first < 0) return 0;
            room = tegroup_impl_min(rows[g] - skipped, capacity - *first);
        }
        return (int32_t)tegroup_impl_clamp(room, 0, TEGROUP_IMPL_ROWS_UNIT);
    }
};

/* The sums of a block's threads, one for each row of a unit: row r's is returned to thread r. The order is fixed. */
template <typename REAL> static __device__ REAL tegroup_impl_block_sums(REAL (&sum)[TEGROUP_IMPL_ROWS_UNIT]) {
    __shared__ REAL part[TEGROUP_IMPL_ROWS_THREADS / 32][TEGROUP_IMPL_ROWS_UNIT];
    const int32_t thread = (int32_t)threadIdx.x, warps = (int32_t)blockDim.x / 32;
    REAL total = 0;
#pragma unroll
    for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++)
        for (int step = 16; step > 0; step /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], step);
    __syncthreads(); /* the last unit's parts are read */
    if (thread % 32 == 0)
        for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) part[thread / 32][r] = sum[r];
    __syncthreads();
    if (thread < TEGROUP_IMPL_ROWS_UNIT)
        for (int32_t w = 0; w < warps; w++) total += part[w][thread];
    return total;
}

/* A matrix with its leading dimension spelt out. */
static inline tegroup_matrix tegroup_impl_cuda_matrix(const tegroup_matrix *m) {
    tegroup_matrix spelt = *m;
    spelt.ld = tegroup_impl_matrix_ld(m);
    return spelt;
}

/* The access that fits rows of `width` elements in every matrix given: the type of the vectors; else F64, scalars in double,
 * when the first is of that type; else UNSET, scalars in float. */
static inline tegroup_dtype tegroup_impl_cuda_access(const tegroup_matrix *const *matrices, int32_t count,
                                                     int64_t width) {
    const tegroup_dtype dtype = matrices[0]->dtype;
    const int64_t bytes = tegroup_impl_bits(dtype) / 8;
    int32_t i;
    if (dtype == TEGROUP_DTYPE_F64) return dtype;
    for (i = 0; i < count; i++) {
        const tegroup_matrix *m = matrices[i];
        if (m->dtype == TEGROUP_DTYPE_UNSET) continue;
        if (m->dtype != dtype || !tegroup_impl_aligned(m->data, 16) || tegroup_impl_matrix_ld(m) * bytes % 16 != 0
            || width * bytes % 16 != 0)
            return TEGROUP_DTYPE_UNSET;
    }
    return dtype;
}

/* LAUNCH(access, elements a step) for the access chosen above. */
#define TEGROUP_IMPL_BY_ACCESS(chosen, LAUNCH)                                                                         \
    switch (chosen) {                                                                                                  \
    case TEGROUP_DTYPE_BF16: LAUNCH(tegroup_impl_vectors<TEGROUP_DTYPE_BF16>) break;                                   \
    case TEGROUP_DTYPE_F16: LAUNCH(tegroup_impl_vectors<TEGROUP_DTYPE_F16>) break;                                     \
    case TEGROUP_DTYPE_F32: LAUNCH(tegroup_impl_vectors<TEGROUP_DTYPE_F32>) break;                                     \
    case TEGROUP_DTYPE_F64: LAUNCH(tegroup_impl_scalars<double>) break;                                                \
    default: LAUNCH(tegroup_impl_scalars<float>) break;                                                                \
    }

/* Blocks of a launch whose kernel strides over `units` of work: enough for several rounds on every multiprocessor. */
static inline tegroup_status tegroup_impl_cuda_blocks(int64_t units, int32_t each, unsigned *blocks,
                                                      tegroup_error *error) {
    int device = 0, multiprocessors = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "there must be a current device", error));
    *blocks = (unsigned)tegroup_impl_clamp(units, 1, (int64_t)each * multiprocessors);
    return TEGROUP_OK;
}

/* Launch over units of rows, a thread to a step of `lanes` elements. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_rows(void (*kernel)(const DESC), const DESC *desc, int64_t width,
                                                    int32_t lanes, int64_t units, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    unsigned blocks;
    const unsigned threads =
        (unsigned)tegroup_impl_clamp(tegroup_impl_align(width / lanes, 32), 64, TEGROUP_IMPL_ROWS_THREADS);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(units, 32, &blocks, error));
    kernel<<<blocks, threads, 0, stream>>>(*desc);
    return tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error);
}

/* ==== [5] Activation kernels ==== */

static __device__ __forceinline__ float tegroup_impl_swiglu(float gate, float up) {
    return tegroup_impl_swiglu_f32(gate, up);
}
static __device__ __forceinline__ double tegroup_impl_swiglu(double gate, double up) {
    return tegroup_impl_swiglu_f64(gate, up);
}
static __device__ __forceinline__ void tegroup_impl_swiglu_grad(float gate, float up, float grad, float *grad_gate,
                                                                float *grad_up) {
    tegroup_impl_swiglu_grad_f32(gate, up, grad, grad_gate, grad_up);
}
static __device__ __forceinline__ void tegroup_impl_swiglu_grad(double gate, double up, double grad, double *grad_gate,
                                                                double *grad_up) {
    tegroup_impl_swiglu_grad_f64(gate, up, grad, grad_gate, grad_up);
}

/* Two steps of a gated row, in the order in which they lie there: halves hold gates in the one and ups in the other,
 * interleaved ones pairs. */
template <bool INTERLEAVED> struct tegroup_impl_gated {
    static __device__ __forceinline__ int64_t step(int64_t c, int64_t steps, int half) {
        return INTERLEAVED ? 2 * c + half : c + half * steps;
    }
    static __device__ __forceinline__ int gate(int, int i) { return INTERLEAVED ? 2 * i : i; }
    static __device__ __forceinline__ int up(int lanes, int i) { return INTERLEAVED ? 2 * i + 1 : lanes + i; }
};

template <typename ACCESS, bool INTERLEAVED>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_activation_kernel(const __grid_constant__ tegroup_activation_desc desc) {
    typedef typename ACCESS::real real;
    typedef tegroup_impl_gated<INTERLEAVED> gated;
    const int lanes = ACCESS::lanes;
    const tegroup_impl_units units(desc.snapshot, desc.output.rows);
    const int64_t steps = desc.output.cols / lanes;
    for (int64_t unit = blockIdx.x; unit < units.count; unit += gridDim.x) {
        int64_t first;
        const int32_t rows = units.at(unit, &first);
        if (rows == 0) continue;
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            typename ACCESS::raw x[TEGROUP_IMPL_ROWS_UNIT][2];
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) { /* past the unit's rows its last one, read again */
                const char *from = ACCESS::row(desc.input, first + tegroup_impl_min(r, rows - 1));
                x[r][0] = ACCESS::load(desc.input, from, gated::step(c, steps, 0));
                x[r][1] = ACCESS::load(desc.input, from, gated::step(c, steps, 1));
            }
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                if (r >= rows) break;
                const real scale = tegroup_impl_weight<real>(desc.row_scale, first + r, 0);
                real both[2 * lanes], y[lanes];
                ACCESS::unpack(x[r][0], both);
                ACCESS::unpack(x[r][1], both + lanes);
#pragma unroll
                for (int i = 0; i < lanes; i++)
                    y[i] = scale * tegroup_impl_swiglu(both[gated::gate(lanes, i)], both[gated::up(lanes, i)]);
                ACCESS::store(desc.output, ACCESS::row(desc.output, first + r), c, ACCESS::pack(y));
            }
        }
    }
}

/* A thread reads a step of every operand before it writes there, so grad_input may be input. */
template <typename ACCESS, bool INTERLEAVED>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS, 3)
    tegroup_impl_activation_grad_kernel(const __grid_constant__ tegroup_activation_backward_desc desc) {
    typedef typename ACCESS::real real;
    typedef tegroup_impl_gated<INTERLEAVED> gated;
    const int lanes = ACCESS::lanes;
    const tegroup_impl_units units(desc.snapshot, desc.grad_output.rows);
    const int64_t steps = desc.grad_output.cols / lanes;
    const bool wants_sum = desc.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET;
    for (int64_t unit = blockIdx.x; unit < units.count; unit += gridDim.x) {
        int64_t first;
        const int32_t rows = units.at(unit, &first);
        real sum[TEGROUP_IMPL_ROWS_UNIT] = {0, 0, 0, 0};
        if (rows == 0) continue;
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            typename ACCESS::raw x[TEGROUP_IMPL_ROWS_UNIT][2], dy[TEGROUP_IMPL_ROWS_UNIT];
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                const int64_t row = first + tegroup_impl_min(r, rows - 1);
                const char *from = ACCESS::row(desc.input, row);
                x[r][0] = ACCESS::load(desc.input, from, gated::step(c, steps, 0));
                x[r][1] = ACCESS::load(desc.input, from, gated::step(c, steps, 1));
                dy[r] = ACCESS::load(desc.grad_output, ACCESS::row(desc.grad_output, row), c);
            }
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                if (r >= rows) break;
                const real scale = tegroup_impl_weight<real>(desc.row_scale, first + r, 0);
                real both[2 * lanes], grad[lanes], out[2 * lanes];
                ACCESS::unpack(x[r][0], both);
                ACCESS::unpack(x[r][1], both + lanes);
                ACCESS::unpack(dy[r], grad);
#pragma unroll
                for (int i = 0; i < lanes; i++) {
                    const int g = gated::gate(lanes, i), u = gated::up(lanes, i);
                    if (wants_sum) sum[r] = fma(grad[i], tegroup_impl_swiglu(both[g], both[u]), sum[r]);
                    tegroup_impl_swiglu_grad(both[g], both[u], scale * grad[i], &out[g], &out[u]);
                }
                char *to = ACCESS::row(desc.grad_input, first + r);
                ACCESS::store(desc.grad_input, to, gated::step(c, steps, 0), ACCESS::pack(out));
                ACCESS::store(desc.grad_input, to, gated::step(c, steps, 1), ACCESS::pack(out + lanes));
            }
        }
        if (wants_sum) {
            const real total = tegroup_impl_block_sums(sum);
            if ((int32_t)threadIdx.x < rows)
                tegroup_impl_set_weight(desc.grad_row_scale, first + threadIdx.x, 0, total);
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_activation_forward(const tegroup_activation_desc *desc,
                                                                  struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->input, &desc->output};
    const int64_t width = desc->output.cols;
    tegroup_activation_desc d = *desc;
    if (desc->output.rows == 0 || width == 0) return TEGROUP_OK;
    d.input = tegroup_impl_cuda_matrix(&desc->input);
    d.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    d.output = tegroup_impl_cuda_matrix(&desc->output);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(desc->interleaved ? tegroup_impl_activation_kernel<__VA_ARGS__, true>                \
                                                    : tegroup_impl_activation_kernel<__VA_ARGS__, false>,              \
                                  &d, width, __VA_ARGS__::lanes,                                                       \
                                  tegroup_impl_ceil_div(desc->output.rows, TEGROUP_IMPL_ROWS_UNIT), stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

static inline tegroup_status tegroup_impl_cuda_activation_backward(const tegroup_activation_backward_desc *desc,
                                                                   struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->input, &desc->grad_output, &desc->grad_input};
    const int64_t width = desc->grad_output.cols;
    tegroup_activation_backward_desc d = *desc;
    if (desc->grad_output.rows == 0 || (width == 0 && desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET))
        return TEGROUP_OK;
    d.input = tegroup_impl_cuda_matrix(&desc->input);
    d.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    d.grad_output = tegroup_impl_cuda_matrix(&desc->grad_output);
    d.grad_input = tegroup_impl_cuda_matrix(&desc->grad_input);
    d.grad_row_scale = tegroup_impl_cuda_matrix(&desc->grad_row_scale);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(desc->interleaved ? tegroup_impl_activation_grad_kernel<__VA_ARGS__, true>           \
                                                    : tegroup_impl_activation_grad_kernel<__VA_ARGS__, false>,         \
                                  &d, width, __VA_ARGS__::lanes,                                                       \
                                  tegroup_impl_ceil_div(desc->grad_output.rows, TEGROUP_IMPL_ROWS_UNIT), stream,       \
                                  error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 3, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

/* ==== [6] Router kernels ==== */

/* A token's experts, in quads, are spread over a few lanes of a warp: quad q belongs to lane q % LANES, which keeps the
 * largest probability of each of its quads in a register. To choose, the lanes agree on the largest of all, and only the lane
 * that has it looks into the quad, which lies in shared memory. */
enum { TEGROUP_IMPL_ROUTER_SHARED = 48 * 1024, TEGROUP_IMPL_ROUTER_HISTOGRAM = 1024 };

template <typename REAL> struct tegroup_impl_quad { REAL x[4]; };

template <typename REAL, int LANES> static __device__ __forceinline__ REAL tegroup_impl_lanes_max(REAL x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        const REAL other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
    return x;
}

template <typename REAL, int LANES> static __device__ __forceinline__ REAL tegroup_impl_lanes_sum(REAL x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

static __device__ __forceinline__ float tegroup_impl_exp(float x) { return tegroup_impl_exp_f32(x); }
static __device__ __forceinline__ double tegroup_impl_exp(double x) { return tegroup_impl_exp_f64(x); }
static __device__ __forceinline__ float tegroup_impl_choice_grad(float g, float dot, float chosen, int32_t normalize) {
    return tegroup_impl_choice_grad_f32(g, dot, chosen, normalize);
}
static __device__ __forceinline__ double tegroup_impl_choice_grad(double g, double dot, double chosen,
                                                                  int32_t normalize) {
    return tegroup_impl_choice_grad_f64(g, dot, chosen, normalize);
}

/* Four elements of a row from element e; past `count` the value `rest`. quads: rows allow loads of four elements. */
template <typename REAL>
static __device__ __forceinline__ tegroup_impl_quad<REAL> tegroup_impl_load_quad(const tegroup_matrix &m,
                                                                                 const char *row, int32_t e,
                                                                                 int32_t count, REAL rest, bool quads) {
    tegroup_impl_quad<REAL> v;
    if (quads && m.dtype == TEGROUP_DTYPE_F32) {
        const float4 f = ((const float4 *)row)[e / 4];
        v.x[0] = (REAL)f.x;
        v.x[1] = (REAL)f.y;
        v.x[2] = (REAL)f.z;
        v.x[3] = (REAL)f.w;
    } else if (quads && m.dtype != TEGROUP_DTYPE_F64) {
        const uint2 h = ((const uint2 *)row)[e / 4];
        const bool bf16 = m.dtype == TEGROUP_DTYPE_BF16;
        v.x[0] = (REAL)tegroup_impl_low_half(h.x, bf16);
        v.x[1] = (REAL)tegroup_impl_high_half(h.x, bf16);
        v.x[2] = (REAL)tegroup_impl_low_half(h.y, bf16);
        v.x[3] = (REAL)tegroup_impl_high_half(h.y, bf16);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) v.x[i] = e + i < count ? tegroup_impl_load_as(m.dtype, row, e + i, REAL()) : rest;
    }
    return v;
}

template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_store_quad(const tegroup_matrix &m, char *row, int32_t e,
                                                               int32_t count, const tegroup_impl_quad<REAL> &v,
                                                               bool quads) {
    if (quads && m.dtype == TEGROUP_DTYPE_F32) {
        ((float4 *)row)[e / 4] = make_float4((float)v.x[0], (float)v.x[1], (float)v.x[2], (float)v.x[3]);
    } else if (quads && m.dtype != TEGROUP_DTYPE_F64 && sizeof(REAL) == 4) { /* a double is not to be rounded twice */
        const bool bf16 = m.dtype == TEGROUP_DTYPE_BF16;
        ((uint2 *)row)[e / 4] = make_uint2(tegroup_impl_two_halves((float)v.x[0], (float)v.x[1], bf16),
                                           tegroup_impl_two_halves((float)v.x[2], (float)v.x[3], bf16));
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (e + i < count) tegroup_impl_store_as(m.dtype, row, e + i, v.x[i]);
    }
}

template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_quad_max(const tegroup_impl_quad<REAL> &v) {
    const REAL low = v.x[0] > v.x[1] ? v.x[0] : v.x[1], high = v.x[2] > v.x[3] ? v.x[2] : v.x[3];
    return low > high ? low : high;
}

/* What both router kernels are given besides the descriptor. */
typedef struct tegroup_impl_router_way {
    double per_count;                       /* backward: see tegroup_impl_router_per_count                    */
    int32_t in_quads, out_quads, histogram; /* histogram: assignments are counted a block at a time */
    int32_t experts_room, k_room;           /* rounded up to quads                                  */
} tegroup_impl_router_way;

static __device__ __forceinline__ char *tegroup_impl_router_memory() {
    extern __shared__ uint4 tegroup_impl_router_shared[];
    return (char *)tegroup_impl_router_shared;
}

template <typename REAL, int LANES, int QUADS>
static __global__ void __launch_bounds__(256, sizeof(REAL) == 8 ? 1
                                              : QUADS < 32      ? 4
                                                                : 2)
    tegroup_impl_router_kernel(const __grid_constant__ tegroup_router_desc desc,
                               const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_quad<REAL> quad;
    const int batch = QUADS < 8 ? QUADS : 8; /* quads that a lane loads before it looks at them */
    const int32_t experts = desc.experts, k = desc.k, lane = (int32_t)threadIdx.x % LANES,
                  place = (int32_t)threadIdx.x / LANES, places = (int32_t)blockDim.x / LANES;
    const int64_t tokens = desc.logits.rows;
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    char *mine = tegroup_impl_router_memory() + (way.histogram ? 4 * way.experts_room : 0)
                 + place * (way.experts_room * (int32_t)sizeof(REAL) + way.k_room * (int32_t)(sizeof(REAL) + 4));
    quad *row = (quad *)mine;
    REAL *value = (REAL *)(row + way.experts_room / 4);
    int32_t *index = (int32_t *)(value + way.k_room);
    const REAL none = -(REAL)INFINITY;

    if (way.histogram) {
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x) histogram[e] = 0;
        __syncthreads();
    }
    for (int64_t base = (int64_t)blockIdx.x * places; base < tokens; base += (int64_t)gridDim.x * places) {
        const bool live = base + place < tokens; /* lanes without a token repeat the last one and write nothing */
        const int64_t token = live ? base + place : tokens - 1;
        const char *logits = tegroup_impl_matrix_row(&desc.logits, token);
        char *probabilities = tegroup_impl_matrix_row(&desc.probabilities, token);
        REAL largest = none, sum = 0, chosen = 0, best[QUADS];
#pragma unroll
        for (int q0 = 0; q0 < QUADS; q0 += batch) {
            quad v[batch];
#pragma unroll
            for (int b = 0; b < batch; b++) {
                const int32_t q = (q0 + b) * LANES + lane;
                if (4 * q < experts)
                    v[b] = tegroup_impl_load_quad(desc.logits, logits, 4 * q, experts, none, way.in_quads);
            }
#pragma unroll
            for (int b = 0; b < batch; b++) {
                const int32_t q = (q0 + b) * LANES + lane;
                if (4 * q >= experts) continue;
                row[q] = v[b];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (v[b].x[i] > largest) largest = v[b].x[i];
            }
        }
        largest = tegroup_impl_lanes_max<REAL, LANES>(largest);
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = j * LANES + lane;
            if (4 * q >= experts) continue;
            quad v = row[q];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v.x[i] = tegroup_impl_exp(v.x[i] - largest);
                if (4 * q + i < experts) sum += v.x[i];
            }
            row[q] = v;
        }
        sum = tegroup_impl_lanes_sum<REAL, LANES>(sum);
        /* A logit that is no number or infinite makes every probability NaN; the first k experts are then chosen. */
        const bool odd = sum != sum;
        const REAL scale = (REAL)1 / sum;
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = j * LANES + lane;
            best[j] = -2;
            if (4 * q >= experts) continue;
            quad v = row[q];
#pragma unroll
            for (int i = 0; i < 4; i++) v.x[i] *= scale;
            if (live) tegroup_impl_store_quad(desc.probabilities, probabilities, 4 * q, experts, v, way.out_quads);
#pragma unroll
            for (int i = 0; i < 4; i++) v.x[i] = 4 * q + i >= experts ? (REAL)-1 : odd ? (REAL)0 : v.x[i];
            row[q] = v;
            best[j] = tegroup_impl_quad_max(v);
        }
        for (int32_t j = 0; j < k; j++) {
            REAL most = best[0];
            int32_t my_quad = INT32_MAX, quad_taken;
#pragma unroll
            for (int i = 1; i < QUADS; i++) most = best[i] > most ? best[i] : most;
            most = tegroup_impl_lanes_max<REAL, LANES>(most);
#pragma unroll
            for (int i = QUADS - 1; i >= 0; i--)
                if (best[i] == most) my_quad = i * LANES + lane;
            quad_taken = my_quad;
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2) /* of equals the lowest quad, and in it the lowest expert */
                quad_taken = min(quad_taken, __shfl_xor_sync(0xffffffffu, quad_taken, step));
            chosen += most;
            if (my_quad == quad_taken) {
                quad v = row[quad_taken];
                int32_t at = 3;
#pragma unroll
                for (int i = 2; i >= 0; i--)
                    if (v.x[i] == most) at = i;
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (i == at) v.x[i] = -1;
                row[quad_taken] = v;
                const REAL next = tegroup_impl_quad_max(v);
#pragma unroll
                for (int i = 0; i < QUADS; i++)
                    if (i * LANES + lane == quad_taken) best[i] = next;
                value[j] = most;
                index[j] = 4 * quad_taken + at;
                if (live && way.histogram) atomicAdd(&histogram[index[j]], 1u);
                if (live && !way.histogram)
                    atomicAdd((unsigned long long *)desc.counts.data + 4 * quad_taken + at, 1ull);
            }
            __syncwarp();
        }
        for (int32_t j = lane; j < k && live; j += LANES) {
            const REAL weight = odd ? sum : desc.normalize ? value[j] / chosen : value[j];
            tegroup_impl_set_weight(desc.weights, token, j, weight);
            ((int32_t *)desc.indices.data)[token * desc.indices.ld + j] = index[j];
        }
        __syncwarp();
    }
    if (way.histogram) {
        __syncthreads();
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x)
            if (histogram[e] != 0)
                atomicAdd((unsigned long long *)desc.counts.data + e, (unsigned long long)histogram[e]);
    }
}

/* Sums of 32 experts' probabilities over one run of tokens: blockIdx.x the experts, blockIdx.y the run. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_router_sums_kernel(const __grid_constant__ tegroup_router_desc desc) {
    __shared__ double part[8][32];
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32,
                  e = (int32_t)blockIdx.x * 32 + lane;
    const int64_t tokens = desc.probabilities.rows, each = tegroup_impl_ceil_div(tokens, TEGROUP_IMPL_ROUTER_RUNS),
                  first = (int64_t)blockIdx.y * each, last = tegroup_impl_min(tokens, first + each);
    double sum = 0;
#pragma unroll 8
    for (int64_t t = first + warp; t < last; t += 8)
        if (e < desc.experts) sum += tegroup_impl_weight<double>(desc.probabilities, t, e);
    part[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || e >= desc.experts) return;
    sum = 0;
    for (int32_t w = 0; w < 8; w++) sum += part[w][lane];
    ((double *)desc.workspace)[(int64_t)blockIdx.y * desc.experts + e] = sum;
}

static __global__ void __launch_bounds__(1024)
    tegroup_impl_router_loss_kernel(const __grid_constant__ tegroup_router_desc desc) {
    __shared__ double part[1024];
    const int32_t thread = (int32_t)threadIdx.x;
    const double tokens = (double)desc.probabilities.rows, *sums = (const double *)desc.workspace;
    double loss = 0;
    for (int32_t e = thread; e < desc.experts && tokens > 0; e += 1024) {
        double mean = 0;
#pragma unroll 16
        for (int32_t run = 0; run < TEGROUP_IMPL_ROUTER_RUNS; run++) mean += sums[(int64_t)run * desc.experts + e];
        loss += (double)((const int64_t *)desc.counts.data)[e] / (tokens * desc.k) * (mean / tokens);
    }
    part[thread] = loss;
    for (int32_t step = 512; step > 0; step /= 2) {
        __syncthreads();
        if (thread < step) part[thread] += part[thread + step];
    }
    if (thread == 0) *desc.balance_loss = desc.balance_coefficient * desc.experts * part[0];
}

/* A warp to a token, whose gradient by expert is put together in shared memory. */
template <typename REAL>
static __global__ void __launch_bounds__(256)
    tegroup_impl_router_grad_kernel(const __grid_constant__ tegroup_router_backward_desc desc,
                                    const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_quad<REAL> quad;
    const int32_t experts = desc.experts, k = desc.k, lane = (int32_t)threadIdx.x % 32,
                  warp = (int32_t)threadIdx.x / 32, warps = (int32_t)blockDim.x / 32;
    quad *row = (quad *)(void *)tegroup_impl_router_memory() + warp * (way.experts_room / 4);
    REAL *grad = (REAL *)row;
    const REAL per_count = (REAL)way.per_count;
    const bool balanced = desc.balance_coefficient != 0;
    for (int64_t token = (int64_t)blockIdx.x * warps + warp; token < desc.probabilities.rows;
         token += (int64_t)gridDim.x * warps) {
        const char *probabilities = tegroup_impl_matrix_row(&desc.probabilities, token);
        const int32_t *indices = (const int32_t *)desc.indices.data + token * desc.indices.ld;
        const REAL *grad_weights = (const REAL *)desc.grad_weights.data + token * desc.grad_weights.ld;
        REAL chosen = 0, dot = 0, mean = 0;
        for (int32_t q = lane; 4 * q < experts; q += 32) {
            quad v;
#pragma unroll
            for (int i = 0; i < 4; i++)
                v.x[i] = balanced && 4 * q + i < experts
                             ? per_count * (REAL)((const int64_t *)desc.counts.data)[4 * q + i]
                             : (REAL)0;
            row[q] = v;
        }
        for (int32_t j = lane; j < k; j += 32) { /* an index that is no expert's is nobody's */
            const int32_t e = indices[j];
            const REAL p = e >= 0 && e < experts ? ((const REAL *)probabilities)[e] : (REAL)0;
            chosen += p;
            dot += e >= 0 && e < experts ? grad_weights[j] * p : (REAL)0;
        }
        chosen = tegroup_impl_lanes_sum<REAL, 32>(chosen);
        dot = tegroup_impl_lanes_sum<REAL, 32>(dot);
        __syncwarp();
        for (int32_t base = 0; base < k; base += 32) {
            const int32_t j = base + lane, e = j < k ? indices[j] : -1;
            const bool present = e >= 0 && e < experts;
            const REAL add = present ? tegroup_impl_choice_grad(grad_weights[j], dot, chosen, desc.normalize) : (REAL)0;
            const uint32_t same = __match_any_sync(0xffffffffu, present ? e : -1);
            const int32_t turn = __popc(same & ((1u << lane) - 1)); /* of slots with one expert each adds in its turn */
            for (int32_t now = 0; __any_sync(0xffffffffu, present && turn >= now); now++) {
                if (present && turn == now) grad[e] += add;
                __syncwarp();
            }
        }
        for (int32_t q = lane; 4 * q < experts; q += 32) {
            const quad v = row[q], p = tegroup_impl_load_quad(desc.probabilities, probabilities, 4 * q, experts,
                                                              (REAL)0, way.in_quads);
#pragma unroll
            for (int i = 0; i < 4; i++) mean = fma(p.x[i], v.x[i], mean);
        }
        mean = tegroup_impl_lanes_sum<REAL, 32>(mean);
        char *to = tegroup_impl_matrix_row(&desc.grad_logits, token);
        for (int32_t q = lane; 4 * q < experts; q += 32) {
            const quad p =
                tegroup_impl_load_quad(desc.probabilities, probabilities, 4 * q, experts, (REAL)0, way.in_quads);
            quad v = row[q];
#pragma unroll
            for (int i = 0; i < 4; i++) v.x[i] = p.x[i] * (v.x[i] - mean);
            tegroup_impl_store_quad(desc.grad_logits, to, 4 * q, experts, v, way.out_quads);
        }
        __syncwarp();
    }
}

/* May rows of a matrix of floats be read and written in fours? */
static inline int tegroup_impl_cuda_quads(const tegroup_matrix *m) {
    const int64_t bytes = tegroup_impl_bits(m->dtype) / 8;
    return m->dtype != TEGROUP_DTYPE_F64 && m->cols % 4 == 0 && tegroup_impl_matrix_ld(m) % 4 == 0
           && tegroup_impl_aligned(m->data, (size_t)(4 * bytes));
}

static inline tegroup_impl_router_way tegroup_impl_cuda_router_way(const tegroup_matrix *in, const tegroup_matrix *out,
                                                                   int32_t k) {
    tegroup_impl_router_way way;
    memset(&way, 0, sizeof way);
    way.in_quads = tegroup_impl_cuda_quads(in);
    way.out_quads = tegroup_impl_cuda_quads(out);
    way.histogram = in->cols <= TEGROUP_IMPL_ROUTER_HISTOGRAM;
    way.experts_room = (int32_t)tegroup_impl_align(in->cols, 4);
    way.k_room = (int32_t)tegroup_impl_align(k, 4);
    return way;
}

/* One launch of `lanes` lanes a token, as many warps to a block as its shared memory holds. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_router_launch(void (*kernel)(const DESC, const tegroup_impl_router_way),
                                                             const DESC *desc, const tegroup_impl_router_way *way,
                                                             int64_t tokens, int32_t lanes, int64_t token_bytes,
                                                             int64_t block_bytes, struct CUstream_st *stream,
                                                             tegroup_error *error) {
    const int64_t warp_bytes = 32 / lanes * token_bytes;
    const int32_t warps = (int32_t)tegroup_impl_clamp((TEGROUP_IMPL_ROUTER_SHARED - block_bytes) / warp_bytes, 1, 8);
    unsigned blocks;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(tokens, 32 / lanes * warps), 64 / warps, &blocks, error));
    kernel<<<blocks, 32u * (unsigned)warps, (size_t)(block_bytes + warps * warp_bytes), stream>>>(*desc, *way);
    return tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_router(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int64_t tokens = desc->logits.rows;
    const int is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    const tegroup_impl_router_way way = tegroup_impl_cuda_router_way(&desc->logits, &desc->probabilities, desc->k);
    const int64_t real_bytes = is_f64 ? 8 : 4,
                  token_bytes = way.experts_room * real_bytes + way.k_room * (real_bytes + 4),
                  block_bytes = way.histogram ? 4 * (int64_t)way.experts_room : 0;
    tegroup_router_desc d = *desc;
    d.logits = tegroup_impl_cuda_matrix(&desc->logits);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaMemsetAsync(desc->counts.data, 0, 8 * (size_t)desc->experts, stream),
                                              "stream", "the counts must be cleared", error));
#define TEGROUP_IMPL_LAUNCH(real, lanes, quads)                                                                        \
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_router_launch(tegroup_impl_router_kernel<real, lanes, quads>, &d, &way, tokens, \
                                                     lanes, token_bytes, block_bytes, stream, error))
    if (tokens > 0) {
        if (is_f64) TEGROUP_IMPL_LAUNCH(double, 32, 32);
        else if (desc->experts <= 128) TEGROUP_IMPL_LAUNCH(float, 4, 8);
        else if (desc->experts <= 512) TEGROUP_IMPL_LAUNCH(float, 16, 8);
        else TEGROUP_IMPL_LAUNCH(float, 32, 32);
    }
#undef TEGROUP_IMPL_LAUNCH
    if (!desc->balance_loss) return TEGROUP_OK;
    tegroup_impl_router_sums_kernel<<<dim3((unsigned)(desc->experts + 31) / 32, TEGROUP_IMPL_ROUTER_RUNS), 256, 0,
                                      stream>>>(d);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error));
    tegroup_impl_router_loss_kernel<<<1, 1024, 0, stream>>>(d);
    return tegroup_impl_cuda_status(cudaGetLastError(), "stream", "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_router_backward(const tegroup_router_backward_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    const int64_t tokens = desc->probabilities.rows;
    tegroup_impl_router_way way = tegroup_impl_cuda_router_way(&desc->probabilities, &desc->grad_logits, desc->k);
    tegroup_router_backward_desc d = *desc;
    if (tokens == 0) return TEGROUP_OK;
    if (desc->balance_coefficient != 0) way.per_count = tegroup_impl_router_per_count(desc);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    d.grad_weights = tegroup_impl_cuda_matrix(&desc->grad_weights);
    d.grad_logits = tegroup_impl_cuda_matrix(&desc->grad_logits);
    return tegroup_impl_cuda_router_launch(
        is_f64 ? tegroup_impl_router_grad_kernel<double> : tegroup_impl_router_grad_kernel<float>, &d, &way, tokens, 32,
        (int64_t)way.experts_room * (is_f64 ? 8 : 4), 0, stream, error);
}

/* ==== [7] Permute and combine kernels ==== */

/* Of the few slots or rows of a unit, each is worked out by one lane of a warp and handed to the others. */
template <typename REAL> struct tegroup_impl_moves {
    int64_t from[TEGROUP_IMPL_ROWS_UNIT], to[TEGROUP_IMPL_ROWS_UNIT]; /* to is -1: nothing to do */
    REAL weight[TEGROUP_IMPL_ROWS_UNIT];

    __device__ void share(int64_t my_from, int64_t my_to, REAL my_weight) {
#pragma unroll
        for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
            from[r] = __shfl_sync(0xffffffffu, my_from, r);
            to[r] = __shfl_sync(0xffffffffu, my_to, r);
            weight[r] = __shfl_sync(0xffffffffu, my_weight, r);
        }
    }
};

template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_permute_kernel(const __grid_constant__ tegroup_permute_desc desc) {
    typedef typename ACCESS::real real;
    const int lanes = ACCESS::lanes;
    const int64_t steps = desc.permuted.cols / lanes, rows = desc.permuted.rows, slots = desc.tokens.rows * desc.k;
    const bool weighted = desc.weights.dtype != TEGROUP_DTYPE_UNSET;
    for (int64_t first = (int64_t)blockIdx.x * TEGROUP_IMPL_ROWS_UNIT; first < rows;
         first += (int64_t)gridDim.x * TEGROUP_IMPL_ROWS_UNIT) {
        const int64_t row = first + threadIdx.x % TEGROUP_IMPL_ROWS_UNIT;
        const int64_t slot = row < rows ? ((const int64_t *)desc.slot_of_row.data)[row] : -1;
        const bool moves_one = slot >= 0 && slot < slots;
        const int64_t token = moves_one ? slot / desc.k : 0;
        tegroup_impl_moves<real> moves;
        moves.share(token, moves_one ? row : -1,
                    moves_one ? tegroup_impl_weight<real>(desc.weights, token, slot - token * desc.k) : (real)0);
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            typename ACCESS::raw x[TEGROUP_IMPL_ROWS_UNIT];
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                x[r] = typename ACCESS::raw();
                if (moves.to[r] >= 0) x[r] = ACCESS::load(desc.tokens, ACCESS::row(desc.tokens, moves.from[r]), c);
            }
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                if (moves.to[r] < 0) continue;
                if (weighted) {
                    real y[lanes];
                    ACCESS::unpack(x[r], y);
#pragma unroll
                    for (int i = 0; i < lanes; i++) y[i] *= moves.weight[r];
                    x[r] = ACCESS::pack(y);
                }
                ACCESS::store(desc.permuted, ACCESS::row(desc.permuted, moves.to[r]), c, x[r]);
            }
        }
    }
}

/* A block to a token; its slots in batches whose rows are all loaded before the first is added. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_combine_kernel(const __grid_constant__ tegroup_combine_desc desc) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes, batch = 8 };
    const int64_t steps = desc.tokens.cols / lanes, k = desc.row_of_slot.cols;
    for (int64_t token = blockIdx.x; token < desc.tokens.rows; token += gridDim.x) {
        const int64_t *rows = (const int64_t *)desc.row_of_slot.data + token * desc.row_of_slot.ld;
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            real sum[lanes];
#pragma unroll
            for (int i = 0; i < lanes; i++) sum[i] = 0;
            for (int64_t j = 0; j < k; j += batch) {
                typename ACCESS::raw x[batch];
                real weight[batch];
                uint32_t present = 0;
#pragma unroll
                for (int b = 0; b < batch; b++) {
                    const int64_t row = j + b < k ? rows[j + b] : -1;
                    x[b] = typename ACCESS::raw();
                    weight[b] = 0;
                    if (row >= 0 && row < desc.permuted.rows) {
                        present |= 1u << b;
                        weight[b] = tegroup_impl_weight<real>(desc.weights, token, j + b);
                        x[b] = ACCESS::load(desc.permuted, ACCESS::row(desc.permuted, row), c);
                    }
                }
#pragma unroll
                for (int b = 0; b < batch; b++) {
                    if (!(present >> b & 1u)) continue;
                    real y[lanes];
                    ACCESS::unpack(x[b], y);
#pragma unroll
                    for (int i = 0; i < lanes; i++) sum[i] = fma(weight[b], y[i], sum[i]);
                }
            }
            ACCESS::store(desc.tokens, ACCESS::row(desc.tokens, token), c, ACCESS::pack(sum));
        }
    }
}

template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_combine_grad_kernel(const __grid_constant__ tegroup_combine_backward_desc desc) {
    typedef typename ACCESS::real real;
    const int lanes = ACCESS::lanes;
    const int64_t steps = desc.grad_tokens.cols / lanes, k = desc.row_of_slot.cols, slots = desc.grad_tokens.rows * k;
    const bool wants_weights = desc.grad_weights.dtype != TEGROUP_DTYPE_UNSET;
    for (int64_t first = (int64_t)blockIdx.x * TEGROUP_IMPL_ROWS_UNIT; first < slots;
         first += (int64_t)gridDim.x * TEGROUP_IMPL_ROWS_UNIT) {
        const int64_t slot = first + threadIdx.x % TEGROUP_IMPL_ROWS_UNIT, token = slot < slots ? slot / k : 0,
                      choice = slot < slots ? slot - token * k : 0;
        int64_t row =
            slot < slots ? ((const int64_t *)desc.row_of_slot.data)[token * desc.row_of_slot.ld + choice] : -1;
        if (row < 0 || row >= desc.grad_permuted.rows) row = -1;
        tegroup_impl_moves<real> moves;
        moves.share(token, row, row >= 0 ? tegroup_impl_weight<real>(desc.weights, token, choice) : (real)0);
        real sum[TEGROUP_IMPL_ROWS_UNIT] = {0, 0, 0, 0};
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            typename ACCESS::raw g[TEGROUP_IMPL_ROWS_UNIT], p[TEGROUP_IMPL_ROWS_UNIT];
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                g[r] = p[r] = typename ACCESS::raw();
                if (moves.to[r] < 0) continue;
                g[r] = ACCESS::load(desc.grad_tokens, ACCESS::row(desc.grad_tokens, moves.from[r]), c);
                if (wants_weights) p[r] = ACCESS::load(desc.permuted, ACCESS::row(desc.permuted, moves.to[r]), c);
            }
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                if (moves.to[r] < 0) continue;
                real grad[lanes], x[lanes];
                ACCESS::unpack(g[r], grad);
                ACCESS::unpack(p[r], x);
#pragma unroll
                for (int i = 0; i < lanes; i++) {
                    sum[r] = fma(grad[i], x[i], sum[r]);
                    grad[i] *= moves.weight[r];
                }
                ACCESS::store(desc.grad_permuted, ACCESS::row(desc.grad_permuted, moves.to[r]), c, ACCESS::pack(grad));
            }
        }
        if (wants_weights) {
            const real total = tegroup_impl_block_sums(sum);
            if (threadIdx.x < TEGROUP_IMPL_ROWS_UNIT && slot < slots)
                tegroup_impl_set_weight(desc.grad_weights, token, choice, total);
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_permute(const tegroup_permute_desc *desc, struct CUstream_st *stream,
                                                       tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->tokens, &desc->permuted};
    const int64_t width = desc->permuted.cols;
    tegroup_permute_desc d = *desc;
    if (desc->permuted.rows == 0 || width == 0) return TEGROUP_OK;
    d.tokens = tegroup_impl_cuda_matrix(&desc->tokens);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.permuted = tegroup_impl_cuda_matrix(&desc->permuted);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(tegroup_impl_permute_kernel<__VA_ARGS__>, &d, width, __VA_ARGS__::lanes,             \
                                  tegroup_impl_ceil_div(desc->permuted.rows, TEGROUP_IMPL_ROWS_UNIT), stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

static inline tegroup_status tegroup_impl_cuda_combine(const tegroup_combine_desc *desc, struct CUstream_st *stream,
                                                       tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->permuted, &desc->tokens};
    const int64_t width = desc->tokens.cols;
    tegroup_combine_desc d = *desc;
    if (desc->tokens.rows == 0 || width == 0) return TEGROUP_OK;
    d.permuted = tegroup_impl_cuda_matrix(&desc->permuted);
    d.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.tokens = tegroup_impl_cuda_matrix(&desc->tokens);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(tegroup_impl_combine_kernel<__VA_ARGS__>, &d, width, __VA_ARGS__::lanes,             \
                                  desc->tokens.rows, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

static inline tegroup_status tegroup_impl_cuda_combine_backward(const tegroup_combine_backward_desc *desc,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    const int wants_weights = desc->grad_weights.dtype != TEGROUP_DTYPE_UNSET;
    const tegroup_matrix *const matrices[] = {&desc->grad_tokens, &desc->grad_permuted, &desc->permuted};
    const int64_t width = desc->grad_tokens.cols, slots = desc->grad_tokens.rows * desc->row_of_slot.cols;
    tegroup_combine_backward_desc d = *desc;
    if (slots == 0 || (width == 0 && !wants_weights)) return TEGROUP_OK;
    d.grad_tokens = tegroup_impl_cuda_matrix(&desc->grad_tokens);
    d.permuted = tegroup_impl_cuda_matrix(&desc->permuted);
    d.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.grad_permuted = tegroup_impl_cuda_matrix(&desc->grad_permuted);
    d.grad_weights = tegroup_impl_cuda_matrix(&desc->grad_weights);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(tegroup_impl_combine_grad_kernel<__VA_ARGS__>, &d, width, __VA_ARGS__::lanes,        \
                                  tegroup_impl_ceil_div(slots, TEGROUP_IMPL_ROWS_UNIT), stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, wants_weights ? 3 : 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

/* ---- making the permutation ---- */

/* Slots are cut into runs, a warp to each. The first kernel counts each run's slots by expert, the second turns the counts
 * into the number of slots of that expert before the run, the third ranks the slots of a run in their order. */
typedef struct tegroup_impl_permutation_call {
    tegroup_permutation_desc desc;
    tegroup_snapshot_view view;
    int64_t *before; /* [runs][groups] */
    int64_t slots, run, runs;
} tegroup_impl_permutation_call;

/* A warp's counters for the experts, [groups], in shared memory. */
static __device__ __forceinline__ uint32_t *tegroup_impl_permutation_counters(int32_t groups) {
    extern __shared__ uint32_t tegroup_impl_permutation_shared[];
    return tegroup_impl_permutation_shared + (int64_t)(threadIdx.x / 32) * groups;
}

/* Where a slot lies in a matrix of slots. */
static __device__ __forceinline__ int64_t tegroup_impl_slot_at(const tegroup_matrix &m, int64_t slot) {
    return m.ld == m.cols ? slot : slot / m.cols * m.ld + slot % m.cols;
}

/* The expert of a slot, -1 for none. */
static __device__ __forceinline__ int32_t tegroup_impl_slot_expert(const tegroup_impl_permutation_call &call,
                                                                   int64_t slot) {
    const tegroup_matrix &m = call.desc.indices;
    const int32_t e = ((const int32_t *)m.data)[tegroup_impl_slot_at(m, slot)];
    return e >= 0 && e < call.desc.shape.groups ? e : -1;
}

static __global__ void __launch_bounds__(256)
    tegroup_impl_permutation_count_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    const int32_t groups = call.desc.shape.groups, lane = (int32_t)threadIdx.x % 32;
    const int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, threads = (int64_t)gridDim.x * blockDim.x;
    uint32_t *counters = tegroup_impl_permutation_counters(groups);
    for (int64_t row = thread; row < call.desc.shape.rows; row += threads)
        ((int64_t *)call.desc.slot_of_row.data)[row] = -1;
    for (int64_t run = thread / 32; run < call.runs; run += threads / 32) {
        const int64_t last = tegroup_impl_min(call.slots, (run + 1) * call.run);
        for (int32_t g = lane; g < groups; g += 32) counters[g] = 0;
        __syncwarp();
        for (int64_t slot = run * call.run + lane; slot < last; slot += 32) {
            const int32_t e = tegroup_impl_slot_expert(call, slot);
            if (e >= 0) atomicAdd(&counters[e], 1u);
        }
        __syncwarp();
        for (int32_t g = lane; g < groups; g += 32) call.before[run * groups + g] = counters[g];
    }
}

/* A block sums eight experts, in 128 stretches of runs. */
static __global__ void __launch_bounds__(1024)
    tegroup_impl_permutation_scan_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    __shared__ int64_t sums[128][8];
    const int32_t groups = call.desc.shape.groups, stretch = (int32_t)threadIdx.x / 8,
                  column = (int32_t)threadIdx.x % 8, g = (int32_t)blockIdx.x * 8 + column;
    const int64_t each = tegroup_impl_ceil_div(call.runs, 128), first = stretch * each,
                  last = g < groups ? tegroup_impl_min(call.runs, first + each) : first;
    int64_t sum = 0;
#pragma unroll 8
    for (int64_t run = first; run < last; run++) sum += call.before[run * groups + g];
    sums[stretch][column] = sum;
    __syncthreads();
    for (int32_t step = 1; step < 128; step *= 2) {
        const int64_t below = stretch >= step ? sums[stretch - step][column] : 0;
        __syncthreads();
        sums[stretch][column] += below;
        __syncthreads();
    }
    sum = sums[stretch][column] - sum;
    for (int64_t run = first; run < last; run++) {
        const int64_t count = call.before[run * groups + g];
        call.before[run * groups + g] = sum;
        sum += count;
    }
}

static __global__ void __launch_bounds__(256)
    tegroup_impl_permutation_rank_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    const int32_t groups = call.desc.shape.groups, lane = (int32_t)threadIdx.x % 32;
    const int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, threads = (int64_t)gridDim.x * blockDim.x,
                  capacity = call.desc.shape.rows;
    const tegroup_snapshot_header *header = call.view.header;
    const bool prepared =
        header->magic == TEGROUP_SNAPSHOT_MAGIC && header->groups == groups && header->capacity_rows <= capacity;
    uint32_t *counters = tegroup_impl_permutation_counters(groups);
    for (int64_t run = thread / 32; run < call.runs; run += threads / 32) {
        const int64_t last = tegroup_impl_min(call.slots, (run + 1) * call.run);
        for (int32_t g = lane; g < groups; g += 32) counters[g] = 0;
        __syncwarp();
        for (int64_t base = run * call.run; base < last; base += 32) {
            const int64_t slot = base + lane;
            const int32_t e = slot < last && prepared ? tegroup_impl_slot_expert(call, slot) : -1;
            const uint32_t same = __match_any_sync(0xffffffffu, e), lower = same & ((1u << lane) - 1);
            const uint32_t taken = e >= 0 ? counters[e] : 0;
            int64_t to = -1;
            __syncwarp();
            if (e >= 0) {
                const int64_t rank = call.before[run * groups + e] + taken + __popc(lower);
                if (lower == 0) counters[e] = taken + (uint32_t)__popc(same);
                if (rank < call.view.rows[e]) to = call.view.start[e] + rank;
                if (to < 0 || to >= capacity) to = -1;
            }
            __syncwarp();
            if (slot < last) {
                const tegroup_matrix &m = call.desc.row_of_slot;
                ((int64_t *)m.data)[tegroup_impl_slot_at(m, slot)] = to;
                if (to >= 0) ((int64_t *)call.desc.slot_of_row.data)[to] = slot;
            }
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_permutation_make(const tegroup_permutation_desc *desc,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    const int32_t groups = desc->shape.groups;
    const int64_t counters_bytes = 4 * tegroup_impl_max(1, groups);
    const int32_t warps = (int32_t)tegroup_impl_clamp(48 * 1024 / counters_bytes, 1, 8);
    const size_t shared = (size_t)(warps * counters_bytes);
    tegroup_impl_permutation_call call;
    unsigned blocks, fill;
    cudaError_t code;
    call.desc = *desc;
    call.desc.indices = tegroup_impl_cuda_matrix(&desc->indices);
    call.desc.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    call.view = tegroup_impl_snapshot_view(desc->shape.snapshot, groups, 0);
    call.before = (int64_t *)desc->workspace; /* the only item */
    call.slots = desc->indices.rows * desc->indices.cols;
    call.run = tegroup_impl_permutation_run(groups);
    call.runs = tegroup_impl_ceil_div(call.slots, call.run);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(call.runs, warps), 64, &blocks, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(desc->shape.rows, 1024), 8, &fill, error));
    if (fill < blocks) fill = blocks;
    tegroup_impl_permutation_count_kernel<<<fill, 32u * (unsigned)warps, shared, stream>>>(call);
    code = cudaGetLastError();
    if (code == cudaSuccess && groups > 0 && call.runs > 0) {
        tegroup_impl_permutation_scan_kernel<<<(unsigned)(groups + 7) / 8, 1024, 0, stream>>>(call);
        code = cudaGetLastError();
    }
    if (code == cudaSuccess && call.runs > 0) {
        tegroup_impl_permutation_rank_kernel<<<blocks, 32u * (unsigned)warps, shared, stream>>>(call);
        code = cudaGetLastError();
    }
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}

/* ==== [8] Validate kernels ==== */

/* The sizes, in one block; it also opens the record. */
static __global__ void __launch_bounds__(1024)
    tegroup_impl_validate_sizes_kernel(const __grid_constant__ tegroup_validate_desc desc) {
    __shared__ unsigned long long total, most, end;
    __shared__ uint32_t status, bad_group;
    const tegroup_tensor &t = desc.tensor;
    tegroup_snapshot_view view;
    view.header = NULL;
    if (tegroup_impl_ragged(&t.shape)) view = tegroup_impl_validate_view(&t);
    if (threadIdx.x == 0) {
        total = most = end = 0;
        status = tegroup_impl_ragged(&t.shape) && !view.header ? TEGROUP_VALIDATION_SNAPSHOT : 0;
        bad_group = UINT32_MAX; /* -1 is the largest */
    }
    __syncthreads();
    for (int32_t g = (int32_t)threadIdx.x; view.header && g < t.shape.groups; g += 1024) {
        const uint32_t bits = tegroup_impl_validate_group(&view, t.shape.rows, g);
        const int64_t rows = tegroup_impl_max(0, view.rows[g]);
        if (bits) {
            atomicOr(&status, bits);
            atomicMin(&bad_group, (uint32_t)g);
        }
        atomicAdd(&total, (unsigned long long)rows);
        atomicMax(&most, (unsigned long long)rows);
        if (rows > 0) atomicMax(&end, (unsigned long long)tegroup_impl_add(tegroup_impl_max(0, view.start[g]), rows));
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    tegroup_validation result;
    result.magic = 0;
    result.status = status;
    result.snapshot_status = 0;
    result.bad_group = (int32_t)bad_group;
    result.owned.nans = result.owned.infinities = result.tail.nans = result.tail.infinities = 0;
    result.owned.first_row = result.owned.first_col = result.tail.first_row = result.tail.first_col = -1;
    if (view.header) {
        result.snapshot_status = view.header->status;
        if (view.header->status) result.status |= TEGROUP_VALIDATION_SIZES;
        result.status |= tegroup_impl_validate_sums(view.header, (int64_t)total, (int64_t)most, (int64_t)end);
    }
    *desc.result = result;
}

/* Could one of 16 bytes' elements be NaN or infinite? Its exponent would be all ones. */
static __device__ __forceinline__ bool tegroup_impl_suspicious(tegroup_dtype dtype, uint4 v) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    const uint32_t ones = dtype == TEGROUP_DTYPE_F64   ? 0x7ff00000u
                          : dtype == TEGROUP_DTYPE_F16 ? 0x7c000000u
                                                       : 0x7f800000u;
    bool found = false;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (dtype == TEGROUP_DTYPE_F64 && i % 2 == 0) continue;
        found = found || (word[i] & ones) == ones;
        if (dtype == TEGROUP_DTYPE_F16 || dtype == TEGROUP_DTYPE_BF16) found = found || (word[i] << 16 & ones) == ones;
    }
    return found;
}

/* A block takes 32 rows at a time and finds out, all groups asked at once, which of them are owned; then a warp to a row. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_validate_values_kernel(const __grid_constant__ tegroup_validate_desc desc) {
    __shared__ uint32_t owned;
    const tegroup_tensor &t = desc.tensor;
    const int64_t rows = tegroup_impl_validate_rows(&t), cols = t.shape.cols;
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32,
                  bytes = tegroup_impl_bits(t.dtype) / 8, each = 16 / bytes;
    const bool ragged = tegroup_impl_ragged(&t.shape);
    tegroup_snapshot_view view;
    view.header = NULL;
    if (ragged) view = tegroup_impl_validate_view(&t);
    for (int64_t base = (int64_t)blockIdx.x * 32; base < rows; base += (int64_t)gridDim.x * 32) {
        if (threadIdx.x == 0) owned = ragged ? 0 : UINT32_MAX;
        __syncthreads();
        for (int32_t g = (int32_t)threadIdx.x; view.header && g < t.shape.groups; g += 256) {
            uint32_t bits = 0;
            const int64_t start = view.start[g];
            if (start < 0 || start > base + 31 || (start <= base && base - start >= view.rows[g])) continue;
            for (int32_t i = 0; i < 32; i++)
                if (tegroup_impl_validate_owns(&view, g, base + i)) bits |= 1u << i;
            if (bits) atomicOr(&owned, bits);
        }
        __syncthreads();
        for (int32_t i = warp; i < 32 && base + i < rows; i += 8) {
            tegroup_validation_values *values = owned >> i & 1u ? &desc.result->owned : &desc.result->tail;
            const int64_t at = tegroup_impl_validate_first(&t, base + i);
            const char *row = (const char *)t.data + at * bytes;
            const int64_t vectors = (uintptr_t)row % 16 == 0 ? cols / each : 0;
            unsigned long long nans = 0, infinities = 0, first = UINT64_MAX;
            auto look = [&](int64_t col) {
                const int kind = tegroup_impl_kind(t.dtype, row, col);
                if (kind == TEGROUP_IMPL_FINITE) return;
                if (kind == TEGROUP_IMPL_NAN) nans++;
                else infinities++;
                first = min(first, (unsigned long long)((base + i) * cols + col));
            };
#pragma unroll 4
            for (int64_t c = lane; c < vectors; c += 32)
                if (tegroup_impl_suspicious(t.dtype, ((const uint4 *)row)[c]))
                    for (int32_t j = 0; j < each; j++) look(c * each + j);
            for (int64_t col = vectors * each + lane; col < cols; col += 32) look(col);
            if (first == UINT64_MAX) continue;
            if (nans) atomicAdd((unsigned long long *)&values->nans, nans);
            if (infinities) atomicAdd((unsigned long long *)&values->infinities, infinities);
            atomicMin((unsigned long long *)&values->first_row, first); /* -1 is the largest */
        }
        __syncthreads();
    }
}

static __global__ void tegroup_impl_validate_close_kernel(tegroup_validation *result, int64_t cols) {
    tegroup_impl_validate_close(result, cols);
}

static inline tegroup_status tegroup_impl_cuda_validate(const tegroup_validate_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    const int64_t rows = tegroup_impl_validate_rows(&desc->tensor);
    unsigned blocks;
    cudaError_t code;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(rows, 32), 8, &blocks, error));
    tegroup_impl_validate_sizes_kernel<<<1, 1024, 0, stream>>>(*desc);
    code = cudaGetLastError();
    if (code == cudaSuccess && rows > 0) {
        tegroup_impl_validate_values_kernel<<<blocks, 256, 0, stream>>>(*desc);
        code = cudaGetLastError();
    }
    if (code == cudaSuccess) {
        tegroup_impl_validate_close_kernel<<<1, 1, 0, stream>>>(desc->result, desc->tensor.shape.cols);
        code = cudaGetLastError();
    }
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}

/* ==== [9] GPU calls ==== */

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

/* ==== [10] cuBLASLt: functions, descriptors, algorithms ==== */

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
/* The library has no algorithm; its code, where it gave one, goes along. */
static inline tegroup_status tegroup_impl_lt_nothing(int code, tegroup_error *error) {
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_UNSUPPORTED, "backend",
                            "must be another one: cuBLASLt offers no algorithm for this", 1, 0);
    if (error) error->native = code;
    return TEGROUP_ERROR_UNSUPPORTED;
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

/* ==== [11] Set-up kernel of a grouped cuBLASLt matmul ==== */

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

/* ==== [12] cublaslt_grouped ==== */

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
        if (lt.count == 0) return tegroup_impl_lt_nothing(code, error);
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

/* ==== [13] cublaslt_loop ==== */

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
        if (lt.count == 0) return tegroup_impl_lt_nothing(code, error);
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

/* ==== [14] Portable GEMM kernels ==== */

/* One kernel family for every GPU since SM80: a persistent grid whose blocks walk the groups' tiles, cp.async into a ring of
 * swizzled shared-memory tiles, ldmatrix, mma.sync (PTX ISA 8.0, sections 9.7.8.22 and 9.7.13). Sizes come from the snapshot.
 * Each element is summed over k in steps of 16 from 0 upwards, whatever the tile, so the tile never changes a bit. */
#define TEGROUP_IMPL_PORTABLE_TILE_K 64 /* two-byte elements: one 128-byte row of shared memory */
#define TEGROUP_IMPL_PORTABLE_FOUND 4   /* tiles that are found at a time */

/* A tile of a group's product: where its operands and results begin, and how much of the group there is from there on. */
typedef struct tegroup_impl_gpu_tile {
    const char *a, *b, *c, *bias; /* bias, scale: NULL = none */
    const char *scale;
    char *d;
    int64_t a_row, b_row, c_row, d_row; /* bytes between rows */
    int64_t k;
    int32_t m, n; /* at most the tile's own */
    float alpha, beta;
    int16_t reads_c, valid; /* 0: beta is 0, and C is not read; no tile is left */
} tegroup_impl_gpu_tile;

static __device__ __forceinline__ uint32_t tegroup_impl_shared(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* 16 bytes from global to shared memory, of which `bytes` are read and the rest are zeros. */
static __device__ __forceinline__ void tegroup_impl_cp_async(uint32_t to, const void *from, int32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/* All 16, or nothing; without a branch between the instructions around it. */
static __device__ __forceinline__ void tegroup_impl_cp_async_if(bool there, uint32_t to, const void *from) {
    asm volatile(
        "{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p cp.async.cg.shared.global [%1], [%2], 16;}\n" ::"r"((int)there),
        "r"(to), "l"(from)
        : "memory");
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

/* volatile, as the loads of fragments are: their order is the program's, not the compiler's. */
template <bool BF16>
static __device__ __forceinline__ void tegroup_impl_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1) {
    if (BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};\n"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
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

/* One warp walks the groups, 32 at a time: each lane counts one group's tiles, a scan places them. Then each of a few lanes looks
 * for a tile of its own: it takes long, and no longer for several. Tiles are asked for in rising order, so the
 * walk never turns back. Lives in shared memory: registers are for sums. */
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
    /* Tile number t of this lane, or none when there are fewer; lanes that look for nothing pass NULL. Within a group tiles go in
     * stripes of 8 along m: their operands stay in L2. */
    __device__ __forceinline__ void find(const tegroup_impl_gpu_call &call, int64_t t, tegroup_impl_gpu_tile *tile) {
        for (;;) {
            if (tile && t < before + upto[31]) {
                int32_t owner = 0;
                while (t >= before + upto[owner]) owner++;
                put(call, base + owner, t - before - (owner > 0 ? upto[owner - 1] : 0), tile);
                tile = NULL;
            }
            const bool more = base + 32 < call.desc.a.shape.groups;
            if (tile && !more) tile->valid = 0;
            if (!more || !__any_sync(0xffffffffu, tile != NULL)) break;
            load(call, base + 32, before + upto[31]);
        }
        __syncwarp();
    }
    /* Tile number `local` of group g. */
    __device__ __forceinline__ void put(const tegroup_impl_gpu_call &call, int32_t g, int64_t local,
                                        tegroup_impl_gpu_tile *tile) {
        const tegroup_gemm_desc &desc = call.desc;
        tegroup_impl_product p;
        tegroup_impl_gpu_product(&call, g, &p);
        const int64_t tiles_m = tegroup_impl_ceil_div(p.m, TILE_M), tiles_n = tegroup_impl_ceil_div(p.n, TILE_N);
        const int64_t stripe = local / (8 * tiles_n), height = tegroup_impl_min(8, tiles_m - 8 * stripe),
                      within = local - stripe * 8 * tiles_n;
        const int64_t i0 = (8 * stripe + within % height) * TILE_M, j0 = within / height * TILE_N;
        const int32_t in = desc.a.dtype == TEGROUP_DTYPE_F32 ? 4 : 2, out = desc.d.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
        tile->a_row = p.a.ld * in;
        tile->b_row = p.b.ld * in;
        tile->c_row = p.c.ld * out;
        tile->d_row = p.d.ld * out;
        tile->a = p.a.base + (p.a.first + i0 * p.a_line) * in;
        tile->b = p.b.base + (p.b.first + j0 * p.b_line) * in;
        tile->c = p.c.base + (p.c.first + j0) * out + i0 * tile->c_row;
        tile->d = p.d.base + (p.d.first + j0) * out + i0 * tile->d_row;
        tile->bias = desc.bias.dtype == TEGROUP_DTYPE_UNSET || desc.op != TEGROUP_OP_FORWARD
                         ? NULL
                         : p.bias.base + (p.bias.first + j0) * (desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2);
        tile->scale =
            desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
                ? NULL
                : (const char *)desc.row_scale + (p.a.row0 + i0) * (desc.row_scale_dtype == TEGROUP_DTYPE_F64 ? 8 : 4);
        tile->k = p.k;
        tile->m = (int32_t)tegroup_impl_min(TILE_M, p.m - i0);
        tile->n = (int32_t)tegroup_impl_min(TILE_N, p.n - j0);
        tile->alpha = (float)p.alpha;
        tile->beta = (float)p.beta;
        tile->reads_c = p.beta != 0;
        tile->valid = 1;
    }
};

/* ---- loading ---- */

/* 16 bytes of a tile, element by element: rows that are not 16-byte aligned. AT_ONCE: words of the four, as registers allow. */
template <int AT_ONCE>
static __device__ __forceinline__ void tegroup_impl_load_slowly(uint32_t to, const char *from, int32_t bytes) {
#pragma unroll AT_ONCE
    for (int i = 0; i < 16; i += 4) {
        uint32_t low = i < bytes ? *(const uint16_t *)(from + i) : 0u,
                 high = i + 2 < bytes ? *(const uint16_t *)(from + i + 2) : 0u;
        asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(to + (uint32_t)i), "r"(low | high << 16) : "memory");
    }
}

/* Loads one operand's tiles of LINES lines (of m or n) by TILE_K. Contiguous along k a tile is stored [line][k], else in panels of
 * 64 lines, each [k][line]; either way rows have 128 bytes, whose 16-byte chunks are permuted by XOR with the row's number, so
 * that eight rows meet eight banks. Every pass of the block's threads permutes alike, since it moves by a multiple of eight rows. */
template <int LINES, bool ALONG_K, int THREADS> struct tegroup_impl_loader {
    static constexpr int TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, ROWS = ALONG_K ? LINES : TILE_K;
    static constexpr int ROWS_A_PASS = THREADS / 8, PASSES_A_PANEL = ROWS / ROWS_A_PASS,
                         PASSES = PASSES_A_PANEL * (ALONG_K ? 1 : LINES / 64);
    static_assert(ALONG_K || LINES % 64 == 0, "panels are whole");
    static_assert(ROWS_A_PASS % 8 == 0 && ROWS % ROWS_A_PASS == 0, "the permutation must repeat from pass to pass");
    const char *from; /* this thread's first chunk of the next step */
    int32_t room;     /* lines left from its row (along k), or from its chunk */
    bool whole;       /* rows are of whole 16 bytes and no 4 GB, and chunks are all there or not at all */

    static __device__ __forceinline__ int32_t row() { return (int32_t)threadIdx.x / 8; }
    static __device__ __forceinline__ int32_t chunk() { return (int32_t)threadIdx.x % 8; }
    static __device__ __forceinline__ int32_t down(int pass) { return pass % PASSES_A_PANEL * ROWS_A_PASS; }
    static __device__ __forceinline__ int32_t panel(int pass) { return pass / PASSES_A_PANEL; }
    static __device__ __forceinline__ bool aligned(const char *at, int64_t row_bytes) {
        return (((uintptr_t)at | (uintptr_t)row_bytes) & 15) == 0;
    }

    __device__ __forceinline__ void open(const char *base, int64_t row_bytes, int32_t lines) {
        from = base + row() * row_bytes + chunk() * 16;
        room = ALONG_K ? lines - row() : lines - chunk() * 8;
        whole = aligned(base, row_bytes) && (ALONG_K || lines % 8 == 0) && row_bytes < (int64_t)1 << 32;
    }
    /* This thread's place in a stage. */
    static __device__ __forceinline__ uint32_t place() {
        return (uint32_t)((row() * 8 + (chunk() ^ (row() & 7))) * 16);
    }
    /* The tile of the next step, to this thread's place `to`; k elements along k, all TILE_K of them where WHOLE is said ahead. Of
     * lines that do not exist nothing is loaded: whatever is there in their place leads to results that nobody stores. */
    template <bool WHOLE> __device__ __forceinline__ void load(uint32_t to, int64_t row_bytes, int32_t k) const {
        if (!WHOLE && (!whole || k < TILE_K)) {
            piece_by_piece(to, row_bytes, k);
            return;
        }
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++)
            tegroup_impl_cp_async_if(ALONG_K ? down(pass) < room : panel(pass) * 64 < room,
                                     to + (uint32_t)((panel(pass) * ROWS + down(pass)) * 128),
                                     from + (uint32_t)down(pass) * (uint64_t)(uint32_t)row_bytes + panel(pass) * 128);
    }
    /* The same where it may end within a chunk, or chunks are not aligned. */
    __device__ __forceinline__ void piece_by_piece(uint32_t to, int64_t row_bytes, int32_t k) const {
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++) { /* of no bytes nothing is read, wherever that would be */
            const char *at = from + down(pass) * row_bytes + panel(pass) * 128;
            const int32_t there = ALONG_K ? (down(pass) < room ? k - chunk() * 8 : 0)
                                          : (row() + down(pass) < k ? room - panel(pass) * 64 : 0);
            const int32_t bytes = there < 0 ? 0 : there > 8 ? 16 : there * 2;
            const uint32_t place = to + (uint32_t)((panel(pass) * ROWS + down(pass)) * 128);
            if (aligned(from, row_bytes)) tegroup_impl_cp_async(place, at, bytes);
            else tegroup_impl_load_slowly<THREADS <= 128 ? 4 : 1>(place, at, bytes);
        }
    }
    __device__ __forceinline__ void advance(int64_t row_bytes) { from += ALONG_K ? TILE_K * 2 : TILE_K * row_bytes; }
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
    for (int i = 0; i < 4; i++) word[i] = tegroup_impl_two_halves(x[2 * i], x[2 * i + 1], bf16);
    if (whole) {
        *(uint4 *)to = make_uint4(word[0], word[1], word[2], word[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) ((uint16_t *)to)[i] = (uint16_t)(word[i / 2] >> i % 2 * 16);
}

/* Eight sums of line `line` from column `first` on, both within the tile: alpha * sum + beta * C + scale * bias. The tile is a
 * copy in registers: the compiler cannot know that stores to D leave shared memory alone. */
static __device__ __forceinline__ void tegroup_impl_gpu_finish(const tegroup_gemm_desc &desc,
                                                               const tegroup_impl_gpu_tile &tile, int line, int first,
                                                               const float *sums) {
    const bool empty = tile.k == 0; /* an empty sum is no term at all */
    const int32_t count = tile.n - first < 8 ? tile.n - first : 8, bytes = desc.d.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
    const float4 low = ((const float4 *)sums)[0], high = ((const float4 *)sums)[1];
    float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, y[8];
    if (line >= tile.m || count <= 0) return;
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = empty ? 0.0f : tegroup_impl_gpu_mul(tile.alpha, x[e]);
    if (tile.reads_c) {
        tegroup_impl_gpu_load8(desc.d.dtype, tile.c + line * tile.c_row + first * bytes, count, y);
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[e] = empty ? tegroup_impl_gpu_mul(tile.beta, y[e]) : tegroup_impl_gpu_fma(tile.beta, y[e], x[e]);
    }
    if (tile.bias) {
        const float by = tile.scale ? tegroup_impl_load_f32(desc.row_scale_dtype, tile.scale, line) : 1.0f;
        tegroup_impl_gpu_load8(desc.bias.dtype, tile.bias + first * (desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2),
                               count, y);
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = tegroup_impl_gpu_fma(by, y[e], x[e]);
    }
    tegroup_impl_gpu_store8(desc.d.dtype, tile.d + line * tile.d_row + first * bytes, count, x);
}

/* Is the result alpha times the sum and nothing else, two bytes wide, in whole 16-byte pieces? */
static __device__ __forceinline__ bool tegroup_impl_gpu_plain(const tegroup_gemm_desc &desc,
                                                              const tegroup_impl_gpu_tile &tile) {
    return tile.k > 0 && !tile.reads_c && !tile.bias && desc.d.dtype != TEGROUP_DTYPE_F32
           && (((uintptr_t)tile.d | (uintptr_t)tile.d_row | (uintptr_t)tile.n * 2) & 15) == 0;
}

/* ---- fragments ---- */

/* Where a lane reads its row of a fragment's first 8x8 matrix: `line` is the warp's first line, upper and later (0 or 1) say
 * whether its matrix is the one of the eight higher lines, and of the eight later k. */
template <bool ALONG_K>
static __device__ __forceinline__ uint32_t tegroup_impl_fragments(int line, int upper, int later, int r) {
    return ALONG_K ? (uint32_t)((line + upper * 8 + r) * 128 + (later ^ r) * 16)
                   : (uint32_t)(line / 64 * 8192 + (later * 8 + r) * 128 + ((line % 64 / 8 + upper) ^ r) * 16);
}

/* The same for sixteen kk of k and the i-th sixteen lines. The chunk's number is permuted by XOR, and so moved by XOR: a warp's
 * first line is a multiple of 32 where a tile is in panels. skip: when that is in the middle of a panel, bytes of one, since
 * the next then begins at i = 2. */
template <bool ALONG_K>
static __device__ __forceinline__ uint32_t tegroup_impl_fragment(uint32_t at, uint32_t skip, int kk, int i) {
    return ALONG_K ? (at ^ (uint32_t)(kk * 32)) + (uint32_t)(i * 16 * 128)
                   : (at ^ (uint32_t)(i % 4 * 32)) + (uint32_t)(kk * 16 * 128 + i / 4 * 8192) + (i % 4 >= 2 ? skip : 0);
}

/* ---- the two-byte kernel ---- */

/* A block's work on one tile: the ring of loads, the fragments and the sums. */
template <bool BF16, int OP, int TILE_M_, int TILE_N_, int WARPS_M, int WARPS_N, int STAGES>
struct tegroup_impl_portable_block {
    static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K;
    static constexpr int WARPS = WARPS_M * WARPS_N, THREADS = WARPS * 32;
    static constexpr int WARP_N = TILE_N / WARPS_N, MI = TILE_M / WARPS_M / 16, NI = WARP_N / 8, PAIRS = NI / 2;
    static constexpr int STEPS = TILE_K / 16, CHUNKS = TILE_N / 8, LINES_A_PASS = THREADS / CHUNKS;
    static constexpr int PADDED_N = TILE_N + 8; /* eight rows of fragments meet different banks */
    static constexpr bool A_ALONG_K = OP != TEGROUP_OP_WGRAD, B_ALONG_K = OP == TEGROUP_OP_FORWARD;
    static constexpr int A_BYTES = TILE_M * TILE_K * 2, STAGE_BYTES = A_BYTES + TILE_N * TILE_K * 2,
                         RING_BYTES = STAGES * STAGE_BYTES, SUMS_BYTES = TILE_M * PADDED_N * 4;
    /* The sums take the ring's place in the end; 128: room to align it. */
    static constexpr int SHARED_BYTES = (RING_BYTES > SUMS_BYTES ? RING_BYTES : SUMS_BYTES) + 128;
    static constexpr bool SHARED = A_ALONG_K && MI == 4; /* where a group ends, warps share the lines that are left */
    static_assert(PAIRS % 2 == 0, "B's two sets of fragments alternate");

    uint32_t ring, place;      /* the ring, and in its first stage the thread's own place */
    uint32_t at_a, at_b, skip; /* this lane's place in a tile of A and of B */
    tegroup_impl_loader<TILE_M, A_ALONG_K, THREADS> load_a;
    tegroup_impl_loader<TILE_N, B_ALONG_K, THREADS> load_b;
    int32_t left, reading; /* steps from this one on; its stage. STAGES - 1 of them are on their way */
    int32_t rows;          /* sixteens of lines that a warp works on */
    float sum[MI][NI][4];
    uint32_t fa[MI][4], fb[2][4];

    /* The thread's number, read anew: what follows from it is not worked out long ahead, in registers that there are not. */
    static __device__ __forceinline__ int thread() {
        int number;
        asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(number));
        return number;
    }
    __device__ __forceinline__ int warp_m(int thread) const { return thread / 32 % WARPS_M * rows * 16; }
    static __device__ __forceinline__ int warp_n(int thread) { return thread / 32 / WARPS_M * WARP_N; }

    __device__ __forceinline__ explicit tegroup_impl_portable_block(const void *memory) {
        ring = tegroup_impl_shared(memory);
        place = ring + load_a.place();
    }

    /* The first loads of a tile. The ring must be free. */
    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile) {
        load_a.open(tile.a, tile.a_row, tile.m);
        load_b.open(tile.b, tile.b_row, tile.n);
        reading = 0;
#pragma unroll 1
        for (left = (int32_t)((tile.k + TILE_K - 1) / TILE_K) + STAGES - 1; reading < STAGES - 1; reading++, left--) {
            load_into_a<false>(tile, reading);
            load_into_b<false>(tile, reading);
            advance(tile);
        }
        reading = 0;
    }
    /* Elements of k in the step STAGES - 1 after this one. */
    __device__ __forceinline__ int32_t loadable(const tegroup_impl_gpu_tile &tile) const {
        return left > STAGES ? TILE_K : (int32_t)((uint32_t)(tile.k - 1) % TILE_K) + 1;
    }
    template <bool WHOLE>
    __device__ __forceinline__ void load_into_a(const tegroup_impl_gpu_tile &tile, int32_t stage) {
        if (left >= STAGES)
            load_a.template load<WHOLE>(place + (uint32_t)(stage * STAGE_BYTES), tile.a_row, loadable(tile));
    }
    template <bool WHOLE>
    __device__ __forceinline__ void load_into_b(const tegroup_impl_gpu_tile &tile, int32_t stage) {
        if (left >= STAGES)
            load_b.template load<WHOLE>(place + (uint32_t)(stage * STAGE_BYTES + A_BYTES), tile.b_row, loadable(tile));
        tegroup_impl_cp_commit(); /* also when empty, so that the count of pending groups stays true */
    }
    /* Long after the loads: an address that the queue of loads has not taken yet cannot be moved, and the warp would wait. */
    __device__ __forceinline__ void advance(const tegroup_impl_gpu_tile &tile) {
        load_a.advance(tile.a_row);
        load_b.advance(tile.b_row);
    }
    __device__ __forceinline__ int32_t free_stage() const { return reading == 0 ? STAGES - 1 : reading - 1; }
    __device__ __forceinline__ void
    arrive() { /* the next step's tile is there, and the one before this step's is free */
        tegroup_impl_cp_wait<STAGES - 2>();
        __syncthreads();
    }

    __device__ __forceinline__ void fetch_a(int kk, int i) {
        tegroup_impl_ldmatrix<!A_ALONG_K>(fa[i], ring + (uint32_t)(reading * STAGE_BYTES)
                                                     + tegroup_impl_fragment<A_ALONG_K>(at_a, 0, kk, i));
    }
    __device__ __forceinline__ void fetch_b(int kk, int pair) {
        tegroup_impl_ldmatrix<!B_ALONG_K>(
            fb[pair % 2], ring + (uint32_t)(reading * STAGE_BYTES)
                              + tegroup_impl_fragment<B_ALONG_K>(at_b, WARP_N % 64 ? skip : 0, kk, pair));
    }

    /* Sixteen kk of a step: B's fragments come a pair of columns ahead of their products, A's of the next sixteen row by row under
     * the last pair. One set of A's is what registers leave room for; the other warp of the scheduler fills the gaps. */
    template <bool WHOLE, int ROWS, int KK>
    __device__ __forceinline__ void sixteen(const tegroup_impl_gpu_tile &tile, bool more) {
        constexpr int NEXT = (KK + 1) % STEPS;
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            const bool last = pair + 1 == PAIRS;
            if (last && NEXT == 0) {
                advance(tile);
                arrive();
                reading = reading + 1 == STAGES ? 0 : reading + 1;
            }
            if (!last) fetch_b(KK, pair + 1);
            else if (NEXT > 0 || more) fetch_b(NEXT, 0);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                tegroup_impl_mma<BF16>(sum[i][2 * pair], fa[i], fb[pair % 2][0], fb[pair % 2][1]);
                tegroup_impl_mma<BF16>(sum[i][2 * pair + 1], fa[i], fb[pair % 2][2], fb[pair % 2][3]);
                if (last && (NEXT > 0 || more)) fetch_a(NEXT, i);
            }
            if (WHOLE && pair == 1 && KK == 0) load_into_a<true>(tile, free_stage());
            if (WHOLE && pair == 1 && KK == 1) load_into_b<true>(tile, free_stage());
        }
    }
    template <int ROWS> __device__ __forceinline__ void fetch() {
#pragma unroll
        for (int i = 0; i < ROWS; i++) fetch_a(0, i);
        fetch_b(0, 0);
    }
    /* Loads that may end anywhere are made between steps, where no fragments take up registers. */
    template <bool WHOLE, int ROWS> __device__ __forceinline__ void steps(const tegroup_impl_gpu_tile &tile) {
        if (WHOLE) fetch<ROWS>();
#pragma unroll 1
        for (; left > 0; left--) {
            if (!WHOLE) {
                load_into_a<false>(tile, free_stage());
                load_into_b<false>(tile, free_stage());
                fetch<ROWS>();
            }
            sixteen<WHOLE, ROWS, 0>(tile, true);
            sixteen<WHOLE, ROWS, 1>(tile, true);
            sixteen<WHOLE, ROWS, 2>(tile, true);
            sixteen<WHOLE, ROWS, 3>(tile, WHOLE && left > 1);
        }
    }
    /* A warp that has none of the group's lines or columns leaves the tensor cores to others. */
    __device__ __forceinline__ void multiply(const tegroup_impl_gpu_tile &tile) {
        /* In A's tile the matrices of a fragment run along m first, in B's along k first. */
        const int me = thread(), matrix = me % 32 / 8, r = me % 8, least = (tile.m + WARPS_M * 16 - 1) / (WARPS_M * 16);
        const bool whole = load_a.whole && load_b.whole && tile.k % TILE_K == 0;
        rows = SHARED && whole && least < MI ? least : MI;
        at_a = tegroup_impl_fragments<A_ALONG_K>(warp_m(me), matrix & 1, matrix >> 1, r);
        skip = (uint32_t)(warp_n(me) % 64 / 32 * 8192);
        at_b = A_BYTES + tegroup_impl_fragments<B_ALONG_K>(warp_n(me), matrix >> 1, matrix & 1, r);
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = 0;
        if (tile.k > 0) {
            arrive();
            if (warp_m(me) >= tile.m || warp_n(me) >= tile.n) {
#pragma unroll 1
                for (; left > 0; left--, reading = reading + 1 == STAGES ? 0 : reading + 1) {
                    load_into_a<false>(tile, free_stage());
                    load_into_b<false>(tile, free_stage());
                    advance(tile);
                    arrive();
                }
            } else if (SHARED && rows == 1) steps<true, 1>(tile);
            else if (SHARED && rows == 2) steps<true, 2>(tile);
            else if (SHARED && rows == 3) steps<true, 3>(tile);
            else if (whole) steps<true, MI>(tile);
            else steps<false, MI>(tile);
        }
        tegroup_impl_cp_wait<0>();
        __syncthreads(); /* the ring is free */
    }

    /* Results go through the ring, so that neighbouring threads store neighbouring columns: alpha times the sums as two-byte
     * numbers, ready to be copied, */
    __device__ __forceinline__ void store_plainly(bool bf16, const tegroup_impl_gpu_tile &tile, unsigned char *memory) {
        const float alpha = tile.alpha;
        const int me = thread(), from_m = warp_m(me) + me % 32 / 4, from_n = warp_n(me) + me % 4 * 2;
        uint16_t *results = (uint16_t *)memory;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
            if (i / 2 < rows) {
#pragma unroll
                for (int j = 0; j < NI; j++)
                    *(uint32_t *)(results + (from_m + i * 8) * PADDED_N + from_n + j * 8) =
                        tegroup_impl_two_halves(tegroup_impl_gpu_mul(alpha, sum[i / 2][j][i % 2 * 2]),
                                                tegroup_impl_gpu_mul(alpha, sum[i / 2][j][i % 2 * 2 + 1]), bf16);
            }
        __syncthreads();
        const int line = me / CHUNKS, first = me % CHUNKS * 8;
        const int64_t row = tile.d_row;
        const int32_t lines = line < LINES_A_PASS && first < tile.n ? tile.m : 0;
        char *to = tile.d + line * row + first * 2;
        const uint16_t *from = results + line * PADDED_N + first;
#pragma unroll 8
        for (int i = line; i < lines; i += LINES_A_PASS, from += LINES_A_PASS * PADDED_N, to += LINES_A_PASS * row)
            *(uint4 *)to = *(const uint4 *)from;
    }
    /* or the sums as they are, for everything else. */
    __device__ __forceinline__ void store(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &shared,
                                          unsigned char *memory) {
        const int me = thread(), from_m = warp_m(me) + me % 32 / 4, from_n = warp_n(me) + me % 4 * 2;
        const int line = me / CHUNKS, first = me % CHUNKS * 8;
        float *sums = (float *)memory;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
            if (i / 2 < rows) {
#pragma unroll
                for (int j = 0; j < NI; j++)
                    *(float2 *)(sums + (from_m + i * 8) * PADDED_N + from_n + j * 8) =
                        make_float2(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
            }
        __syncthreads();
        const tegroup_impl_gpu_tile tile = shared;
#pragma unroll 2
        for (int i = line; i < (line < LINES_A_PASS ? tile.m : 0); i += LINES_A_PASS)
            tegroup_impl_gpu_finish(desc, tile, i, first, sums + i * PADDED_N + first);
    }
};

/* Blocks take turns at the tiles, each round beginning one block later: else some would always get the short tiles where groups
 * end. */
static __device__ __forceinline__ int64_t tegroup_impl_gpu_number(int64_t round) {
    return round * gridDim.x + (uint32_t)((blockIdx.x + round) % gridDim.x);
}

template <bool BF16, int OP, int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int STAGES>
static __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32)
    tegroup_impl_portable_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap(); /* built for an older GPU alone; the plan refuses before it comes to this */
#else
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    /* To 128 bytes, as the permutation of chunks needs: debug and relocatable builds do not keep to a larger __align__. */
    unsigned char *const ring = tegroup_impl_memory + (128 - tegroup_impl_shared(tegroup_impl_memory) % 128) % 128;
    constexpr int FOUND = TEGROUP_IMPL_PORTABLE_FOUND;
    __shared__ tegroup_impl_gpu_tile tiles[2 * FOUND]; /* those that are worked on, and those after them */
    __shared__ tegroup_impl_gpu_walk<TILE_M, TILE_N> walk;
    tegroup_impl_portable_block<BF16, OP, TILE_M, TILE_N, WARPS_M, WARPS_N, STAGES> block(ring);
    const int32_t lane = (int32_t)threadIdx.x;
    if (lane < 32) {
        walk.load(call, 0, 0);
        walk.find(call, tegroup_impl_gpu_number(lane), lane < FOUND ? &tiles[lane] : NULL);
    }
    for (int32_t round = 0;; round++) {
        __syncthreads(); /* the tile is known, and nobody still reads the shared memory of the last one */
        const tegroup_impl_gpu_tile &tile = tiles[round % (2 * FOUND)];
        if (!tile.valid) break;
        block.open(tile);
        if (lane < 32 && round % FOUND == FOUND - 1) /* while the first loads are on their way */
            walk.find(call, tegroup_impl_gpu_number(round + 1 + lane),
                      lane < FOUND ? &tiles[(round + 1 + lane) % (2 * FOUND)] : NULL);
        block.multiply(tile);
        if (tegroup_impl_gpu_plain(call.desc, tile))
            block.store_plainly(call.desc.d.dtype == TEGROUP_DTYPE_BF16, tile, ring);
        else block.store(call.desc, tile, ring);
    }
#endif
}

/* ---- the FP32 kernel ---- */

/* Plain FMA, for gradient checks: 64 x 64 tiles, 4 x 4 elements a thread, one chain of FMAs over k an element. */
template <int OP>
static __global__ void __launch_bounds__(256)
    tegroup_impl_portable_f32_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    constexpr int TILE = 64, TILE_K = 16;
    __shared__ __align__(16) float a[TILE_K][TILE + 4], b[TILE_K][TILE + 4], sums[TILE * (TILE + 8)];
    __shared__ tegroup_impl_gpu_tile tile;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    __shared__ tegroup_impl_gpu_walk<TILE, TILE> walk;
    if (threadIdx.x < 32) walk.load(call, 0, 0);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads();
        if (threadIdx.x < 32) walk.find(call, t, threadIdx.x == 0 ? &tile : NULL);
        __syncthreads();
        if (!tile.valid) break;
        constexpr bool A_ALONG_K = OP != TEGROUP_OP_WGRAD, B_ALONG_K = OP == TEGROUP_OP_FORWARD;
        const int64_t a_line = A_ALONG_K ? tile.a_row / 4 : 1, a_k = A_ALONG_K ? 1 : tile.a_row / 4;
        const int64_t b_line = B_ALONG_K ? tile.b_row / 4 : 1, b_k = B_ALONG_K ? 1 : tile.b_row / 4;
        float sum[4][4] = {};
        for (int64_t k0 = 0; k0 < tile.k; k0 += TILE_K) {
            for (int e = (int)threadIdx.x; e < TILE * TILE_K;
                 e += 256) { /* threads run along whichever direction is contiguous */
                const int la = !A_ALONG_K ? e % TILE : e / TILE_K, ka = !A_ALONG_K ? e / TILE : e % TILE_K;
                const int lb = B_ALONG_K ? e / TILE_K : e % TILE, kb = B_ALONG_K ? e % TILE_K : e / TILE;
                const bool in_a = la < tile.m && k0 + ka < tile.k, in_b = lb < tile.n && k0 + kb < tile.k;
                a[ka][la] = in_a ? ((const float *)tile.a)[la * a_line + (k0 + ka) * a_k] : 0.0f;
                b[kb][lb] = in_b ? ((const float *)tile.b)[lb * b_line + (k0 + kb) * b_k] : 0.0f;
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
        const tegroup_impl_gpu_tile here = tile;
#pragma unroll 1
        for (int e = (int)threadIdx.x; e < TILE * TILE / 8; e += 256)
            tegroup_impl_gpu_finish(call.desc, here, e / (TILE / 8), e % (TILE / 8) * 8,
                                    sums + e / (TILE / 8) * (TILE + 8) + e % (TILE / 8) * 8);
    }
}

/* ==== [15] Portable GEMM: plan and launch ==== */

/* One kernel of the family, for BF16 and for FP16. Tiles of up to 128 lines fit SM86, 89 and 120, whose blocks have 99 KB of
 * shared memory for what the kernel declares itself (less than 2 KB) and the ring; the highest is for SM90 and 100. */
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
        TEGROUP_IMPL_PORTABLE_ROW(1, 128, 128, 2, 2, 3), TEGROUP_IMPL_PORTABLE_ROW(1, 256, 192, 4, 2, 3)};
    static const tegroup_impl_portable_row dgrad[] = {
        TEGROUP_IMPL_PORTABLE_ROW(2, 16, 128, 1, 4, 4), TEGROUP_IMPL_PORTABLE_ROW(2, 64, 128, 2, 2, 3),
        TEGROUP_IMPL_PORTABLE_ROW(2, 128, 128, 2, 2, 3), TEGROUP_IMPL_PORTABLE_ROW(2, 256, 192, 4, 2, 3)};
    static const tegroup_impl_portable_row wgrad[] = {TEGROUP_IMPL_PORTABLE_ROW(3, 64, 128, 2, 2, 3),
                                                      TEGROUP_IMPL_PORTABLE_ROW(3, 128, 128, 2, 2, 3)};
    *count = op == TEGROUP_OP_WGRAD ? 2 : 4;
    return op == TEGROUP_OP_FORWARD ? forward : op == TEGROUP_OP_DGRAD ? dgrad : wgrad;
}

#define TEGROUP_IMPL_PORTABLE_DECLARED 2048 /* bytes of shared memory that a kernel declares itself, at most */
#define TEGROUP_IMPL_PORTABLE_FITS(m, n, warps_m, warps_n, stages, kilobytes)                                          \
    static_assert(tegroup_impl_portable_block<true, 1, m, n, warps_m, warps_n, stages>::SHARED_BYTES                   \
                          + TEGROUP_IMPL_PORTABLE_DECLARED                                                             \
                      <= (kilobytes)*1024,                                                                             \
                  "a block's shared memory")
TEGROUP_IMPL_PORTABLE_FITS(16, 128, 1, 4, 4, 99);
TEGROUP_IMPL_PORTABLE_FITS(64, 128, 2, 2, 3, 99);
TEGROUP_IMPL_PORTABLE_FITS(128, 128, 2, 2, 3, 99);
TEGROUP_IMPL_PORTABLE_FITS(256, 192, 4, 2, 3, 227);

/* The lowest tile that holds a group of `lines` lines, the average; the 256-line one, which wastes most where a group ends, only
 * where groups are long and alike and its width leaves few columns over. limit: shared memory that a block may have. */
static inline const tegroup_impl_portable_row *tegroup_impl_portable_choose(tegroup_op op, int64_t lines,
                                                                            int64_t columns, int alike, int32_t limit) {
    int32_t count, i;
    const tegroup_impl_portable_row *rows = tegroup_impl_portable_rows(op, &count);
    for (i = 0; i + 1 < count; i++)
        if (rows[i].tile_m >= lines || rows[i + 1].shared_bytes + TEGROUP_IMPL_PORTABLE_DECLARED > limit
            || (rows[i + 1].tile_m > 128
                && (lines < 384 || !alike
                    || tegroup_impl_ceil_div(columns, rows[i + 1].tile_n) * rows[i + 1].tile_n
                           > columns + columns / 10)))
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
        const tegroup_impl_portable_row *row = tegroup_impl_portable_choose(
            p->op, lines, p->op == TEGROUP_OP_FORWARD ? p->n : p->k, desc->expected_rows_max <= 2 * average, limit);
        kernel = p->a == TEGROUP_DTYPE_BF16 ? row->bf16 : row->f16;
        threads = row->threads;
        shared = row->shared_bytes;
        plan->tile_m = row->tile_m;
        plan->tile_n = row->tile_n;
        plan->tile_k = TEGROUP_IMPL_PORTABLE_TILE_K;
    }
    code = cudaFuncGetAttributes(&attributes, kernel);
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

/* ==== [16] GPU backends: plan, check and run ==== */

#if defined(TEGROUP_NO_CUBLASLT)
static inline int32_t tegroup_impl_cuda_cublaslt_version(const tegroup_gemm_desc *desc) {
    (void)desc;
    return 0;
}
#endif

/* All kernels of a unit are compiled for the same architectures; the one asked about stands for them. Built for GPUs before
 * SM80 alone, what the driver makes of it for a later one has no mma.sync. */
static inline uint32_t tegroup_impl_cuda_images(uint32_t built) {
    cudaFuncAttributes attributes;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, (const void *)tegroup_impl_prepare_kernel);
    if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction) {
        (void)cudaGetLastError();
        return built & 1u << TEGROUP_BACKEND_CPU;
    }
    return code == cudaSuccess && attributes.ptxVersion < 80 ? built & ~(1u << TEGROUP_BACKEND_PORTABLE) : built;
}

static inline tegroup_status tegroup_impl_cuda_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                    tegroup_error *error) {
    tegroup_target target;
    (void)desc, (void)error; /* unread where no GPU backend is built */
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

/* ==== [17] GPU backends: choosing an algorithm ==== */

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
