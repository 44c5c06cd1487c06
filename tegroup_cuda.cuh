/* tegroup_cuda.cuh - the CUDA half of tegroup. tegroup.h includes it by itself when nvcc (or clang -x cuda) compiles;
 * do not include it alone. It holds the prepare kernel and the portable GEMM kernels (SM80 and later); link with the CUDA
 * runtime, which nvcc does by itself. Kernels are static: each file that defines TEGROUP_IMPLEMENTATION has its own, so keep
 * to one such .cu file where build time matters.
 *
 * Licence: MIT, at the end of this file. Stitched from src/ by `make headers`: edit there.
 */

/* Map: search for the number in brackets.
 *
 *   [1] Guards and version
 *   [2] Launching
 *   [3] Prepare kernel
 *   [4] GPU calls
 *   [5] Portable GEMM kernels
 *   [6] Portable GEMM: plan and launch
 *   [7] GPU backends: plan and run
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
    if (t->dtype == TEGROUP_DTYPE_UNSET || !address) return TEGROUP_OK;
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
#if !defined(TEGROUP_NO_PORTABLE)

/* ==== [5] Portable GEMM kernels ==== */

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

template <int TILE_M, int TILE_N>
static __device__ __forceinline__ int64_t tegroup_impl_gpu_tiles(const tegroup_impl_gpu_call &call, int32_t g,
                                                                 tegroup_impl_product *p) {
    *p = tegroup_impl_product_of(&call.desc, call.views, g, (double)call.alpha, (double)call.beta);
    if (p->skip || p->untouched || p->m <= 0 || p->n <= 0) return 0;
    return tegroup_impl_ceil_div(p->m, TILE_M) * tegroup_impl_ceil_div(p->n, TILE_N);
}

/* One warp walks the groups, 32 at a time: each lane counts one group's tiles, a scan places them. Tiles are asked for in
 * rising order, so the walk never turns back. */
template <int TILE_M, int TILE_N> struct tegroup_impl_gpu_walk {
    int32_t base;         /* first group of the 32 at hand */
    int64_t before, upto; /* tiles before those, and of this lane's group and the ones before it among them */
    int64_t total;

    __device__ __forceinline__ void load(const tegroup_impl_gpu_call &call) {
        int32_t lane = (int32_t)threadIdx.x & 31, g = base + lane, step;
        tegroup_impl_product p;
        upto = g < call.desc.a.shape.groups ? tegroup_impl_gpu_tiles<TILE_M, TILE_N>(call, g, &p) : 0;
        for (step = 1; step < 32; step *= 2) {
            int64_t other = __shfl_up_sync(0xffffffffu, upto, step);
            if (lane >= step) upto += other;
        }
        total = __shfl_sync(0xffffffffu, upto, 31);
    }
    __device__ __forceinline__ void start(const tegroup_impl_gpu_call &call) {
        base = 0;
        before = 0;
        load(call);
    }
    /* Tile number t, or none when there are fewer. Within a group tiles go in stripes of 8 along m: their operands stay in L2. */
    __device__ __forceinline__ void find(const tegroup_impl_gpu_call &call, int64_t t, tegroup_impl_gpu_tile *tile) {
        int32_t lane = (int32_t)threadIdx.x & 31, owner;
        while (t >= before + total) {
            if (base + 32 >= call.desc.a.shape.groups) {
                if (lane == 0) tile->valid = 0;
                return;
            }
            before += total;
            base += 32;
            load(call);
        }
        owner = __ffs((int)__ballot_sync(0xffffffffu, t < before + upto)) - 1;
        if (lane == owner) {
            tegroup_impl_product p;
            int64_t count = tegroup_impl_gpu_tiles<TILE_M, TILE_N>(call, base + lane, &p),
                    local = t - (before + upto - count);
            int64_t tiles_m = tegroup_impl_ceil_div(p.m, TILE_M), tiles_n = tegroup_impl_ceil_div(p.n, TILE_N);
            int64_t stripe = local / (8 * tiles_n), height = tegroup_impl_min(8, tiles_m - 8 * stripe),
                    within = local - stripe * 8 * tiles_n;
            tile->p = p;
            tile->i0 = (8 * stripe + within % height) * TILE_M;
            tile->j0 = within / height * TILE_N;
            tile->valid = 1;
        }
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
 * either way 16-byte chunks are permuted within their row by the row number, so that eight rows meet eight banks. What depends
 * on the thread alone is worked out once a tile: a step then costs an addition and two comparisons a chunk. */
template <int LINES, bool ALONG_K, int THREADS> struct tegroup_impl_loader {
    static constexpr int TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, CHUNKS = ALONG_K ? TILE_K / 8 : LINES / 8;
    static constexpr int ROWS = ALONG_K ? LINES : TILE_K, ROWS_A_PASS = THREADS / CHUNKS,
                         PASSES = (ROWS + ROWS_A_PASS - 1) / ROWS_A_PASS;
    static_assert(ALONG_K || LINES >= 64, "a row of eight chunks is what the permutation needs");
    const char *from, *valid; /* this thread's first chunk at k0 = 0, and an address that may always be named */
    int64_t pass, step;       /* bytes from pass to pass, and from one TILE_K to the next */
    uint32_t to;
    int32_t row, room; /* its first row; lines left from there (along k), or elements of the chunk that are within the lines */
    int32_t chunk;
    bool fast;

    __device__ __forceinline__ void open(const char *base, int64_t ld, int64_t lines) {
        row = (int32_t)threadIdx.x / CHUNKS;
        chunk = (int32_t)threadIdx.x % CHUNKS;
        valid = base;
        from = base + (row * ld + chunk * 8) * 2;
        pass = ROWS_A_PASS * ld * 2;
        step = (ALONG_K ? TILE_K : TILE_K * ld) * 2;
        to = (uint32_t)((row * CHUNKS + (chunk ^ (row & 7))) * 16);
        room = (int32_t)tegroup_impl_clamp(ALONG_K ? lines - row : lines - chunk * 8, 0, LINES);
        fast = (((uintptr_t)base | (uintptr_t)(ld * 2)) & 15) == 0;
    }
    /* Bytes that there are of the chunk in pass r / ROWS_A_PASS, when k more elements of k are left. */
    __device__ __forceinline__ int32_t bytes(int r, int32_t k) const {
        const int32_t there = ALONG_K ? (r < room ? k - chunk * 8 : 0) : (row + r < k ? room : 0);
        return there < 0 ? 0 : there > 8 ? 16 : there * 2;
    }
    /* k_left: elements of k from this step on. ROWS_A_PASS is a multiple of 8, so every pass permutes alike. */
    __device__ __forceinline__ void load(uint32_t stage, int64_t k_left) {
        const int32_t k = k_left < TILE_K ? (int32_t)k_left : TILE_K;
        const char *at = from;
        if (fast) {
#pragma unroll
            for (int i = 0; i < PASSES; i++, at += pass) {
                const int r = i * ROWS_A_PASS;
                if (ROWS % ROWS_A_PASS != 0 && row + r >= ROWS) break;
                const int32_t count = bytes(r, k);
                tegroup_impl_cp_async(stage + to + (uint32_t)(r * CHUNKS * 16), count > 0 ? at : valid, count);
            }
        } else {
#pragma unroll 1
            for (int i = 0; i < PASSES && row + i * ROWS_A_PASS < ROWS; i++, at += pass)
                tegroup_impl_load_slowly(stage + to + (uint32_t)(i * ROWS_A_PASS * CHUNKS * 16), at,
                                         bytes(i * ROWS_A_PASS, k));
        }
        from += step;
    }
    static_assert(ROWS_A_PASS % 8 == 0, "the permutation must repeat from pass to pass");
};

/* ---- storing ---- */

static __device__ __forceinline__ float tegroup_impl_gpu_row_scale(const tegroup_gemm_desc &desc,
                                                                   const tegroup_impl_product &p, int64_t row) {
    return desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
               ? 1.0f
               : tegroup_impl_load_f32(desc.row_scale_dtype, desc.row_scale, p.a.row0 + row);
}

/* alpha * x + beta * c + scale * bias; an empty sum is no term at all, and beta 0 does not read C. */
static __device__ __forceinline__ float tegroup_impl_gpu_finish(const tegroup_gemm_desc &desc,
                                                                const tegroup_impl_product &p, int64_t row, int64_t col,
                                                                float scale, float x) {
    const float beta = (float)p.beta;
    if (p.k == 0)
        x = beta != 0 ? beta * tegroup_impl_load_f32(desc.d.dtype, p.c.base, p.c.first + row * p.c.ld + col) : 0.0f;
    else {
        x *= (float)p.alpha;
        if (beta != 0) x += beta * tegroup_impl_load_f32(desc.d.dtype, p.c.base, p.c.first + row * p.c.ld + col);
    }
    if (desc.bias.dtype != TEGROUP_DTYPE_UNSET && desc.op == TEGROUP_OP_FORWARD)
        x += scale * tegroup_impl_load_f32(desc.bias.dtype, p.bias.base, p.bias.first + col);
    return x;
}

/* Is the result alpha times the sum, and nothing else? */
static __device__ __forceinline__ bool tegroup_impl_gpu_plain(const tegroup_gemm_desc &desc,
                                                              const tegroup_impl_product &p) {
    return p.k > 0 && p.beta == 0 && (desc.bias.dtype == TEGROUP_DTYPE_UNSET || desc.op != TEGROUP_OP_FORWARD);
}

/* Two neighbouring elements of a row; one store where their address allows it. */
static __device__ __forceinline__ void tegroup_impl_gpu_store_pair(const tegroup_gemm_desc &desc,
                                                                   const tegroup_impl_product &p, int64_t row,
                                                                   int64_t col, bool plain, float alpha, float scale,
                                                                   float x0, float x1) {
    const int64_t at = p.d.first + row * p.d.ld + col;
    if (col >= p.n) return;
    if (plain) {
        x0 *= alpha;
        x1 *= alpha;
    } else {
        x0 = tegroup_impl_gpu_finish(desc, p, row, col, scale, x0);
        if (col + 1 < p.n) x1 = tegroup_impl_gpu_finish(desc, p, row, col + 1, scale, x1);
    }
    if (desc.d.dtype == TEGROUP_DTYPE_F32) {
        float *to = (float *)p.d.base + at;
        if (col + 1 < p.n && ((uintptr_t)to & 7) == 0) {
            *(float2 *)to = make_float2(x0, x1);
            return;
        }
        to[0] = x0;
        if (col + 1 < p.n) to[1] = x1;
    } else {
        const bool bf16 = desc.d.dtype == TEGROUP_DTYPE_BF16;
        uint16_t *to = (uint16_t *)p.d.base + at,
                 h0 = bf16 ? tegroup_impl_bf16_of_f32(x0) : tegroup_impl_f16_of_f32(x0),
                 h1 = bf16 ? tegroup_impl_bf16_of_f32(x1) : tegroup_impl_f16_of_f32(x1);
        if (col + 1 < p.n && ((uintptr_t)to & 3) == 0) {
            *(uint32_t *)to = (uint32_t)h0 | (uint32_t)h1 << 16;
            return;
        }
        to[0] = h0;
        if (col + 1 < p.n) to[1] = h1;
    }
}

/* ---- the two-byte kernel ---- */

template <bool BF16, int OP, int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int STAGES>
static __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32)
    tegroup_impl_portable_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap(); /* built for an older GPU alone; the plan refuses before it comes to this */
#else
    constexpr int TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, THREADS = WARPS_M * WARPS_N * 32;
    constexpr int MI = TILE_M / WARPS_M / 16, NI = TILE_N / WARPS_N / 8;
    constexpr bool A_ALONG_K = OP != TEGROUP_OP_WGRAD, B_ALONG_K = OP == TEGROUP_OP_FORWARD;
    constexpr uint32_t A_BYTES = TILE_M * TILE_K * 2, STAGE_BYTES = A_BYTES + TILE_N * TILE_K * 2;
    static_assert(NI % 2 == 0, "B fragments are loaded in pairs");
    extern __shared__ __align__(128) unsigned char tegroup_impl_memory[];
    __shared__ tegroup_impl_gpu_tile tile;
    const uint32_t memory = tegroup_impl_shared(tegroup_impl_memory);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x & 31;
    const int warp_m = warp % WARPS_M * (TILE_M / WARPS_M), warp_n = warp / WARPS_M * (TILE_N / WARPS_N);
    tegroup_impl_gpu_walk<TILE_M, TILE_N> walk;
    if (warp == 0) walk.start(call);

    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads(); /* nobody still reads the last tile or its shared memory */
        if (warp == 0) walk.find(call, t, &tile);
        __syncthreads();
        if (!tile.valid) break;
        const int64_t i0 = tile.i0, j0 = tile.j0, k = tile.p.k;
        tegroup_impl_loader<TILE_M, A_ALONG_K, THREADS> load_a;
        tegroup_impl_loader<TILE_N, B_ALONG_K, THREADS> load_b;
        load_a.open(tile.p.a.base + (tile.p.a.first + i0 * tile.p.a_line) * 2, tile.p.a.ld, tile.p.m - i0);
        load_b.open(tile.p.b.base + (tile.p.b.first + j0 * tile.p.b_line) * 2, tile.p.b.ld, tile.p.n - j0);
        int64_t k_left = k;
        int32_t filling = 0, reading = 0; /* stages */
        float sum[MI][NI][4];
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = 0;

        auto load = [&]() {
            if (k_left > 0) {
                const uint32_t stage = memory + (uint32_t)filling * STAGE_BYTES;
                load_a.load(stage, k_left);
                load_b.load(stage + A_BYTES, k_left);
                k_left -= TILE_K;
                filling = filling + 1 == STAGES ? 0 : filling + 1;
            }
            tegroup_impl_cp_commit(); /* also when empty, so that the count of pending groups stays true */
        };
        for (int s = 0; s < STAGES - 1; s++) load();
        for (int64_t done = 0; done < k; done += TILE_K) {
            tegroup_impl_cp_wait<STAGES - 2>();
            __syncthreads(); /* this step's tile is there, and the one before it is free */
            load();
            const uint32_t at_a = memory + (uint32_t)reading * STAGE_BYTES, at_b = at_a + A_BYTES;
            reading = reading + 1 == STAGES ? 0 : reading + 1;
#pragma unroll
            for (int kk = 0; kk < TILE_K / 16; kk++) {
                uint32_t fa[MI][4], fb[NI / 2][4];
                const int matrix = lane >> 3, r = lane & 7;
#pragma unroll
                for (int i = 0; i < MI; i++) {
                    const int m = warp_m + i * 16;
                    if (A_ALONG_K) {
                        const int row = m + (matrix & 1) * 8 + r, chunk = kk * 2 + (matrix >> 1);
                        tegroup_impl_ldmatrix<false>(
                            fa[i], at_a + (uint32_t)((row * (TILE_K / 8) + (chunk ^ (row & 7))) * 16));
                    } else {
                        const int row = kk * 16 + (matrix >> 1) * 8 + r, chunk = m / 8 + (matrix & 1);
                        tegroup_impl_ldmatrix<true>(fa[i],
                                                    at_a + (uint32_t)((row * (TILE_M / 8) + (chunk ^ (row & 7))) * 16));
                    }
                }
#pragma unroll
                for (int j = 0; j < NI / 2; j++) {
                    const int n = warp_n + j * 16;
                    if (B_ALONG_K) {
                        const int row = n + (matrix >> 1) * 8 + r, chunk = kk * 2 + (matrix & 1);
                        tegroup_impl_ldmatrix<false>(
                            fb[j], at_b + (uint32_t)((row * (TILE_K / 8) + (chunk ^ (row & 7))) * 16));
                    } else {
                        const int row = kk * 16 + (matrix & 1) * 8 + r, chunk = n / 8 + (matrix >> 1);
                        tegroup_impl_ldmatrix<true>(fb[j],
                                                    at_b + (uint32_t)((row * (TILE_N / 8) + (chunk ^ (row & 7))) * 16));
                    }
                }
#pragma unroll
                for (int i = 0; i < MI; i++)
#pragma unroll
                    for (int j = 0; j < NI; j++)
                        tegroup_impl_mma<BF16>(sum[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
            }
        }
        tegroup_impl_cp_wait<0>();

        const bool plain = tegroup_impl_gpu_plain(call.desc, tile.p);
        const float alpha = (float)tile.p.alpha;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int64_t row = i0 + warp_m + i * 16 + half * 8 + lane / 4;
                if (row >= tile.p.m) continue;
                const float scale = tegroup_impl_gpu_row_scale(call.desc, tile.p, row);
#pragma unroll
                for (int j = 0; j < NI; j++)
                    tegroup_impl_gpu_store_pair(call.desc, tile.p, row, j0 + warp_n + j * 8 + lane % 4 * 2, plain,
                                                alpha, scale, sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
            }
    }
#endif
}

/* ---- the FP32 kernel ---- */

/* Plain FMA, for gradient checks: 64 x 64 tiles, 4 x 4 elements a thread, one chain of FMAs over k an element. */
template <int OP>
static __global__ void __launch_bounds__(256)
    tegroup_impl_portable_f32_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    constexpr int TILE = 64, TILE_K = 16;
    __shared__ float a[TILE_K][TILE + 4], b[TILE_K][TILE + 4];
    __shared__ tegroup_impl_gpu_tile tile;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    tegroup_impl_gpu_walk<TILE, TILE> walk;
    if (threadIdx.x < 32) walk.start(call);
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
                    for (int j = 0; j < 4; j++) sum[i][j] = __fmaf_rn(a[kk][ty * 4 + i], b[kk][tx * 4 + j], sum[i][j]);
            __syncthreads();
        }
        for (int i = 0; i < 4; i++) {
            const int64_t row = tile.i0 + ty * 4 + i;
            if (row >= p.m) continue;
            const float scale = tegroup_impl_gpu_row_scale(call.desc, p, row);
            for (int j = 0; j < 4; j += 2)
                tegroup_impl_gpu_store_pair(call.desc, p, row, tile.j0 + tx * 4 + j, false, 1.0f, scale, sum[i][j],
                                            sum[i][j + 1]);
        }
    }
}

/* ==== [6] Portable GEMM: plan and launch ==== */

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

static inline tegroup_status tegroup_impl_portable_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan, tegroup_error *error) {
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
#endif /* TEGROUP_NO_PORTABLE */

/* ==== [7] GPU backends: plan and run ==== */

static inline tegroup_status tegroup_impl_cuda_plan(const tegroup_gemm_desc *desc, tegroup_plan *plan,
                                                    tegroup_error *error) {
    tegroup_target target;
    (void)desc, (void)error; /* unread where no GPU backend is built */
    plan->device = tegroup_impl_cuda_target(&target);
    switch (plan->backend) {
#if !defined(TEGROUP_NO_PORTABLE)
    case TEGROUP_BACKEND_PORTABLE: return tegroup_impl_portable_plan(desc, plan, error);
#endif
    default: break; /* explain offers nothing else that is built */
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
    default: break;
    }
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
