/* tegroup_cuda.cuh - the CUDA half of tegroup. tegroup.h includes it by itself when nvcc (or clang -x cuda) compiles;
 * do not include it alone. It holds the prepare kernel, the operations around the GEMM, the portable GEMM kernels (SM80
 * and later), those for Hopper (sm_90a) and the cuBLASLt backends; link with the CUDA runtime, which nvcc does by
 * itself. Kernels are static: each file that defines TEGROUP_IMPLEMENTATION has its own, so keep to one such .cu file
 * where build time matters.
 *
 * Licence: MIT, at the end of this file. Stitched from src/ by `make headers`: edit there. */

/* Map: the parts, their files in src/, their titles. Search for the number in brackets.
 *
 *   [1]  cuda/guards.h            Guards and version
 *   [2]  cuda/launch.h            Launching
 *   [3]  cuda/prepare.h           Prepare kernel
 *   [4]  cuda/rows.h              Rows on the GPU
 *   [5]  cuda/activation_epilogue.h Activations in epilogues
 *   [6]  layer/activation_cuda.h  Activation kernels
 *   [7]  moe/count_cuda.h         Counts of groups: kernels
 *   [8]  moe/router_batch_cuda.h  Router: a warp's batch of tokens
 *   [9]  moe/router_choice_cuda.h Router kernels: the choice
 *   [10] moe/router_gradient_cuda.h Router kernels: the gradient
 *   [11] moe/router_scheme_cuda.h Router kernels: schemes
 *   [12] moe/router_losses_cuda.h Router kernels: losses
 *   [13] moe/router_scheme_launch_cuda.h Router kernels: gradients of schemes, and launches
 *   [14] moe/router_cuda.h        Router launches
 *   [15] moe/permute_cuda.h       Permute and combine kernels
 *   [16] moe/permutation_cuda.h   Permutation kernels
 *   [17] moe/export_cuda.h        Layouts of other libraries: kernels
 *   [18] moe/skew_cuda.h          Skew of a routing: kernel
 *   [19] ep/ep_cuda.h             Expert parallelism: kernels
 *   [20] ep/links_cuda.h          Expert parallelism: kernels for rows of one token in one window
 *   [21] gemm/validate_quantised_cuda.h Validate kernel of quantised tensors
 *   [22] gemm/scale_convert_cuda.h Scales in another layout: kernel
 *   [23] gemm/code_convert_cuda.h Codes in another order: kernel
 *   [24] gemm/validate_cuda.h     Validate kernels
 *   [25] cuda/walk.h              A walk through tiles
 *   [26] cuda/functor.h           A functor in the epilogue
 *   [27] cuda/call.h              GPU calls
 *   [28] cuda/quantize_values.h   Quantise: eight values at a time
 *   [29] cuda/quantize_walk.h     Quantise: a block's way through the groups
 *   [30] cuda/quantize_launch.h   Quantise and dequantise: what launches share
 *   [31] cuda/dequantize.h        Dequantise
 *   [32] layer/quantize_tile_cuda.h Quantise: tiles, and what tiles, strips and rows share
 *   [33] layer/quantize_strip_cuda.h Quantise: strips of rows
 *   [34] layer/quantize_registers_cuda.h Quantise: BF16 in registers
 *   [35] layer/quantize_registers_calls_cuda.h Quantise: which calls go in registers
 *   [36] layer/quantize_rows_cuda.h Quantise: whole rows
 *   [37] layer/quantize_cuda.h    Quantise and dequantise: launches
 *   [38] cuda/cublaslt.h          cuBLASLt: functions, descriptors, algorithms
 *   [39] cuda/cublaslt_setup_kernels.h Set-up kernel of a grouped cuBLASLt matmul
 *   [40] cuda/cublaslt_grouped.h  cublaslt_grouped
 *   [41] cuda/cublaslt_loop.h     cublaslt_loop
 *   [42] cuda/codes.h             Quantised operands on a GPU, from codes to values
 *   [43] cuda/decode.h            Decoding operands before they are multiplied
 *   [44] cuda/portable_tiles.h    Portable GEMM: tiles
 *   [45] cuda/portable_store.h    Portable GEMM: storing, and where fragments lie
 *   [46] cuda/portable.h          Portable GEMM: the kernels
 *   [47] cuda/portable_f32.h      Portable GEMM: the FP32 kernel
 *   [48] cuda/portable_formats.h  Portable GEMM: products of quantised operands
 *   [49] cuda/portable_weights.h  Portable GEMM: weights that are decoded in registers
 *   [50] cuda/portable_promoted.h Portable GEMM: products whose sums are promoted
 *   [51] cuda/portable_plan.h     Portable GEMM: plan and launch
 *   [52] cuda/hopper.h            Hopper's instructions
 *   [53] cuda/sm90_tiles.h        Hopper GEMM: tiles
 *   [54] cuda/sm90_scheduler.h    Hopper GEMM: the scheduler
 *   [55] cuda/sm90_epilogue.h     Hopper GEMM: the epilogue
 *   [56] cuda/sm90_block.h        Hopper GEMM: a block
 *   [57] cuda/sm90_pace.h         Hopper GEMM: blocks that keep step
 *   [58] cuda/sm90_load.h         Hopper GEMM: operands to shared memory
 *   [59] cuda/sm90_store.h        Hopper GEMM: results from shared memory
 *   [60] cuda/sm90_multiply.h     Hopper GEMM: the multiplying warpgroups, and the kernel
 *   [61] cuda/sm90_weights.h      Hopper GEMM: weights that are decoded in registers
 *   [62] cuda/sm90_fp8.h          Hopper GEMM of FP8: the kernel
 *   [63] cuda/sm90_fp8_code.h     Hopper GEMM of FP8: the compiled kernels
 *   [64] cuda/sm90_code.h         Hopper GEMM: the compiled kernels
 *   [65] cuda/sm90_repack_kernels.h Hopper GEMM: repacking rows
 *   [66] cuda/sm90_plan.h         Hopper GEMM: plan and launch
 *   [67] cuda/sm90_weights_plan.h Hopper GEMM: weights that are decoded in registers: launch
 *   [68] cuda/sm90_fp8_plan.h     Hopper GEMM of FP8: plan and launch
 *   [69] gemm/machine_cuda.h      The GPU and the library at hand
 *   [70] layer/tune_cuda.h        GPU backends: choosing an algorithm
 *   [71] gemm/functor_cuda.h      A product with a functor
 */

/* ==== [1] Guards and version (src/cuda/guards.h) ==== */

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

/* ==== [2] Launching (src/cuda/launch.h) ==== */

#include <cuda_runtime.h>

/* A CUDA error as a status. The sticky error is cleared, so that it is reported once. */
static inline tegroup_status tegroup_impl_cuda_status(cudaError_t code, const char *field, const char *rule,
                                                      tegroup_error *error) {
    if (code == cudaSuccess) return TEGROUP_OK;
    (void)cudaGetLastError();
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_CUDA, field, rule, 0, (int64_t)code);
    if (error) error->native = (int32_t)code;
    return TEGROUP_ERROR_CUDA;
}

/* Launches a kernel and returns the launch's own result, unlike cudaGetLastError, which may still hold an error of the
 * caller's earlier calls. */
template <typename T> struct tegroup_impl_as { typedef T type; };
template <typename... PARAMETERS>
static inline cudaError_t tegroup_impl_launch(void (*kernel)(PARAMETERS...), dim3 blocks, unsigned threads,
                                              size_t shared_bytes, struct CUstream_st *stream,
                                              const typename tegroup_impl_as<PARAMETERS>::type &...arguments) {
    void *addresses[] = {(void *)(uintptr_t)&arguments...};
    return cudaLaunchKernel((const void *)kernel, blocks, dim3(threads), addresses, shared_bytes, stream);
}

/* The same of a kernel whose blocks wait for one another: CUDA refuses it unless all of them can run at a time. */
template <typename... PARAMETERS>
static inline cudaError_t tegroup_impl_launch_together(void (*kernel)(PARAMETERS...), dim3 blocks, unsigned threads,
                                                       size_t shared_bytes, struct CUstream_st *stream,
                                                       const typename tegroup_impl_as<PARAMETERS>::type &...arguments) {
    void *addresses[] = {(void *)(uintptr_t)&arguments...};
    return cudaLaunchCooperativeKernel((const void *)kernel, blocks, dim3(threads), addresses, shared_bytes, stream);
}

/* Launches a kernel by its address, in clusters of `each` blocks: as many whole ones as `blocks` are. */
static inline cudaError_t tegroup_impl_launch_clusters(const void *kernel, unsigned blocks, unsigned each,
                                                       unsigned threads, void **arguments, size_t shared_bytes,
                                                       struct CUstream_st *stream) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cluster = {};
    if (each < 2) return cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), arguments, shared_bytes, stream);
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = each;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3(blocks - blocks % each);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaLaunchKernelExC(&config, kernel, arguments);
}

/* The thread's number, read from its special register each time. The compiler then cannot compute values that depend on
 * it far ahead and keep them in registers, which are scarce. */
static __device__ __forceinline__ int tegroup_impl_thread(void) {
    int number;
    asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(number));
    return number;
}

/* A graph keeps the sizes that the host knew when it was captured, so the caller has to say that they are final. */
static inline tegroup_status tegroup_impl_cuda_check_capture(int32_t sizes_final, const char *field,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (sizes_final) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaStreamIsCapturing(stream, &capture), "stream",
                                              "must tell whether it is capturing", error));
    TEGROUP_IMPL_RULE(capture == cudaStreamCaptureStatusNone, ERROR_COMBINATION, field,
                      "must be 1 while stream is capturing: the graph keeps these sizes", 1, 0);
    return TEGROUP_OK;
}

/* Describes the current device as a target; target->sm stays as it is without one. Returns the device, or -1. */
static inline int32_t tegroup_impl_cuda_target(tegroup_target *target) {
    int device = 0, major = 0, minor = 0, multiprocessors = 0, memory_bits = 0;
    if (cudaGetDevice(&device) != cudaSuccess
        || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess
        || cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess
        || cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess
        || cudaDeviceGetAttribute(&memory_bits, cudaDevAttrGlobalMemoryBusWidth, device) != cudaSuccess) {
        (void)cudaGetLastError(); /* having no device is an answer, so no error is left behind */
        return -1;
    }
    target->sm = 10 * major + minor;
    target->multiprocessors = multiprocessors;
    target->memory_bits = memory_bits; /* its clock would tell more, but takes the driver a millisecond to read */
    return device;
}

/* The deep check of an address in device memory: the driver knows it, as managed or as the current device's memory. */
static inline tegroup_status tegroup_impl_cuda_check_address(const void *address, const char *field,
                                                             tegroup_error *error) {
    cudaPointerAttributes attributes;
    int device = -1;
    if (!address) return TEGROUP_OK;
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

static inline tegroup_status tegroup_impl_cuda_check_pointer(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             tegroup_error *error) {
    if (t->dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    if (tegroup_impl_ragged(&t->shape) && t->shape.row_sizes.space == TEGROUP_SPACE_DEVICE)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(t->shape.snapshot, TEGROUP_IMPL_PATH(SNAPSHOT), error));
    if (t->pointers_space == TEGROUP_SPACE_HOST || t->scaling != TEGROUP_SCALING_NONE) return TEGROUP_OK;
    return tegroup_impl_listed(t)
               ? tegroup_impl_cuda_check_address((const void *)t->pointers, TEGROUP_IMPL_PATH(POINTERS), error)
               : tegroup_impl_cuda_check_address(t->data, TEGROUP_IMPL_PATH(DATA), error);
}

/* Of a quantised operand, the copy that is read. */
static inline tegroup_status tegroup_impl_cuda_check_copy(const tegroup_gemm_desc *desc, tegroup_impl_operand operand,
                                                          const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_tensor t = tegroup_impl_as_read(desc, operand);
    const tegroup_impl_name *name = names->operand[operand];
    const int listed = tegroup_impl_listed(&t);
    const tegroup_impl_copy_paths paths =
        tegroup_impl_copy_paths_of(name, listed, tegroup_impl_reads_columnwise(desc, operand));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&t, name, error));
    if (t.scaling == TEGROUP_SCALING_NONE) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(listed ? (const void *)t.pointers : t.data, paths.data, error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_check_address(listed ? (const void *)t.scale_pointers : t.scale_inv, paths.scales, error));
    return tegroup_impl_cuda_check_address(t.global_scale_inv, TEGROUP_IMPL_PATH(GLOBAL_SCALE_INV), error);
}

static inline tegroup_status tegroup_impl_cuda_check_index(const tegroup_gather *gather, const tegroup_impl_name *name,
                                                           tegroup_error *error) {
    return tegroup_impl_cuda_check_address(gather->rows > 0 ? gather->slot_of_row : NULL,
                                           TEGROUP_IMPL_PATH(SLOT_OF_ROW), error);
}

static inline tegroup_status tegroup_impl_cuda_check_scalars(const tegroup_scalars *s, const char *field,
                                                             tegroup_error *error) {
    return tegroup_impl_cuda_check_address(s->space == TEGROUP_SPACE_DEVICE ? s->data : NULL, field, error);
}

static inline tegroup_status tegroup_impl_cuda_check_pointers(const tegroup_gemm_desc *desc,
                                                              const tegroup_impl_names *names, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_copy(desc, TEGROUP_IMPL_A, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_copy(desc, TEGROUP_IMPL_B, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_index(&desc->gather_a, names->operand[TEGROUP_IMPL_A], error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_index(&desc->gather_b, names->operand[TEGROUP_IMPL_B], error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&desc->c, names->operand[TEGROUP_IMPL_C], error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&desc->d, names->operand[TEGROUP_IMPL_D], error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointer(&desc->bias, names->operand[TEGROUP_IMPL_BIAS], error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_scalars(&desc->alpha, "alpha.data", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_scalars(&desc->beta, "beta.data", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(
        desc->row_scale_dtype != TEGROUP_DTYPE_UNSET ? desc->row_scale : NULL, "row_scale", error));
    return tegroup_impl_cuda_check_address(desc->options.workspace_bytes > 0 ? desc->options.workspace : NULL,
                                           "options.workspace", error);
}

/* ==== [3] Prepare kernel (src/cuda/prepare.h) ==== */

/* One block runs the steps of tegroup_impl_prepare_host with a thread for each group, or for four of them where there
 * are more than 1,024. What a thread knows of its groups stays in registers. Scans and sorting give the same integers
 * in whatever order they are evaluated, so the snapshot equals the host's bit for bit. The kernel runs once, most often
 * with cold caches, and then waits for its instructions more than for anything else: loops are not unrolled, and what
 * few shapes need is out of line. */
#define TEGROUP_IMPL_PREPARE_THREADS 1024

/* What of the header is found group by group. */
typedef struct tegroup_impl_row_totals {
    int64_t rows_total, rows_max, rows_end, elements; /* the header's; elements: of an irregular shape */
} tegroup_impl_row_totals;

typedef struct tegroup_impl_findings {
    uint32_t status, bad_group;
    tegroup_impl_row_totals warps[32]; /* of the groups of each warp's threads */
} tegroup_impl_findings;

/* Status bits of group g. */
static __device__ __forceinline__ void tegroup_impl_block_note(tegroup_impl_findings &findings, int32_t g,
                                                               uint32_t bits) {
    if (!bits) return;
    atomicOr(&findings.status, bits);
    atomicMin(&findings.bad_group, (uint32_t)g);
}

/* Sum, or maximum, of the values that the threads before this one have; none is negative. */
static __device__ __forceinline__ int64_t tegroup_impl_block_scan(int64_t value, bool maximum) {
    __shared__ int64_t warps[32];
    const int32_t lane = (int32_t)threadIdx.x & 31, warp = (int32_t)threadIdx.x / 32;
    const auto combine = [=](int64_t a, int64_t b) {
        return maximum ? tegroup_impl_max(a, b) : tegroup_impl_add(a, b);
    };
#pragma unroll 1
    for (int32_t step = 1; step < 32; step *= 2) {
        const int64_t other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value = combine(value, other);
    }
    int64_t before = __shfl_up_sync(0xffffffffu, value, 1);
    if (lane == 0) before = 0;
    if (blockDim.x == 32) return before;
    __syncthreads(); /* what the last scan left has been read */
    if (lane == 31) warps[warp] = value;
    __syncthreads();
    int64_t of_warps = lane < warp ? warps[lane] : 0;
#pragma unroll 1
    for (int32_t step = 16; step > 0; step /= 2)
        of_warps = combine(of_warps, __shfl_xor_sync(0xffffffffu, of_warps, step));
    return combine(before, of_warps);
}

/* Sorts (value, group) pairs by value and then by group with Batcher's bitonic network: position EACH * thread + e of
 * `extent`, a power of two, ends with the pair that belongs there. THREADS: the most that the block has. */
template <int EACH, int THREADS>
static __device__ __forceinline__ void tegroup_impl_block_sort(int32_t extent, int64_t (&value)[EACH],
                                                               int32_t (&group)[EACH]) {
    __shared__ int64_t values[THREADS];
    __shared__ int32_t groups[THREADS];
    const int32_t thread = (int32_t)threadIdx.x;
#pragma unroll 1
    for (int32_t run = 2; run <= extent; run *= 2)
#pragma unroll 1
        for (int32_t distance = run / 2; distance > 0; distance /= 2) {
            const int32_t away = distance / EACH; /* threads between the partners; 0: they are this thread's */
            int64_t value_there[EACH];
            int32_t group_there[EACH];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (away == 0) {
                    value_there[e] = distance == 1 ? value[(e ^ 1) % EACH] : value[(e ^ 2) % EACH];
                    group_there[e] = distance == 1 ? group[(e ^ 1) % EACH] : group[(e ^ 2) % EACH];
                } else if (away < 32) {
                    value_there[e] = __shfl_xor_sync(0xffffffffu, value[e], away);
                    group_there[e] = __shfl_xor_sync(0xffffffffu, group[e], away);
                } else {
                    __syncthreads(); /* what was there has been read */
                    values[thread] = value[e];
                    groups[thread] = group[e];
                    __syncthreads();
                    value_there[e] = values[thread ^ away];
                    group_there[e] = groups[thread ^ away];
                }
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int32_t i = EACH * thread + e;
                const bool less =
                    value_there[e] < value[e] || (value_there[e] == value[e] && group_there[e] < group[e]);
                const bool keeps_smaller = ((i & distance) == 0) == ((i & run) == 0);
                if (less != keeps_smaller) continue;
                value[e] = value_there[e];
                group[e] = group_there[e];
            }
        }
}

/* Of groups that share rows, or elements, the one that begins first ends where the next begins. Reads and writes the
 * snapshot. */
template <int EACH, int THREADS>
static __device__ void tegroup_impl_block_disjoin(const tegroup_impl_preparation &p, tegroup_impl_sort_key key,
                                                  tegroup_impl_findings &findings) {
    int64_t value[EACH];
    int32_t group[EACH];
    int owners = 0;
    for (int e = 0; e < EACH; e++) {
        group[e] = EACH * (int32_t)threadIdx.x + e;
        value[e] = tegroup_impl_sort_value(&p, key, group[e]);
        owners += group[e] < p.groups && tegroup_impl_prepare_owns(&p, key, group[e]);
    }
    __shared__ int all;
    if (threadIdx.x == 0) all = 0;
    __syncthreads();
    atomicAdd(&all, owners);
    tegroup_impl_block_sort<EACH, THREADS>(p.order_entries, value, group);
    for (int e = 0; e < EACH; e++)
        if (EACH * (int32_t)threadIdx.x + e < p.order_entries) p.order[EACH * threadIdx.x + e] = group[e];
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < all; i += (int32_t)blockDim.x) {
        const int64_t kept = tegroup_impl_prepare_apart(&p, key, all, i);
        if (kept < p.out_rows[p.order[i]]) tegroup_impl_block_note(findings, p.order[i], TEGROUP_SNAPSHOT_OVERLAP);
        p.out_rows[p.order[i]] = kept;
    }
    __syncthreads();
}

/* The columns and first element of each group of an irregular shape. Reads and writes the snapshot. */
template <int EACH, int THREADS>
static __device__ void tegroup_impl_block_place_elements(const tegroup_impl_preparation &p,
                                                         tegroup_impl_findings &findings) {
    const int32_t from = EACH * (int32_t)threadIdx.x, to = (int32_t)tegroup_impl_min(from + EACH, p.groups);
    int64_t mine = 0;
    for (int32_t g = from; g < to; g++) {
        tegroup_impl_place x = tegroup_impl_prepare_read(&p, g);
        tegroup_impl_block_note(findings, g, tegroup_impl_prepare_cols(&p, g, &x));
        mine = tegroup_impl_add(mine, tegroup_impl_prepare_elements(&x));
    }
    int64_t carry = tegroup_impl_block_scan(mine, false);
    for (int32_t g = from; g < to; g++) {
        tegroup_impl_place x = tegroup_impl_prepare_read(&p, g);
        (void)tegroup_impl_prepare_cols(&p, g, &x);
        const int64_t elements = tegroup_impl_prepare_elements(&x); /* of one that is dropped, too */
        tegroup_impl_block_note(findings, g, tegroup_impl_prepare_offset(&p, g, carry, &x));
        tegroup_impl_prepare_write(&p, g, &x);
        carry = tegroup_impl_add(carry, elements);
    }
    __syncthreads();
    if (p.offsets) tegroup_impl_block_disjoin<EACH, THREADS>(p, TEGROUP_IMPL_SORT_BY_OFFSET, findings);
}

/* What only starts that the caller gives, or an irregular shape, ask for: the snapshot has starts and rows before and
 * after. */
template <int EACH, int THREADS>
static __device__ __noinline__ void tegroup_impl_block_place_apart(const tegroup_impl_preparation &p,
                                                                   tegroup_impl_findings &findings) {
    __syncthreads();
    if (p.rows.starts) tegroup_impl_block_disjoin<EACH, THREADS>(p, TEGROUP_IMPL_SORT_BY_START, findings);
    if (p.irregular) tegroup_impl_block_place_elements<EACH, THREADS>(p, findings);
}

/* Where each of the thread's groups begins, and how many rows it has: into x and the snapshot. */
template <int EACH, int THREADS>
static __device__ __forceinline__ void tegroup_impl_block_place(const tegroup_impl_preparation &p,
                                                                tegroup_impl_place (&x)[EACH],
                                                                tegroup_impl_findings &findings) {
    const int32_t from = EACH * (int32_t)threadIdx.x;
    int64_t mine = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (from + e < p.groups) mine = tegroup_impl_prepare_scan(&p, mine, tegroup_impl_prepare_term(&p, from + e));
    const bool counts = p.rows.encoding == TEGROUP_ENCODING_COUNTS;
    int64_t carry = tegroup_impl_block_scan(mine, !counts);
    carry = tegroup_impl_prepare_scan(&p, p.groups > 0 ? tegroup_impl_prepare_first(&p) : 0, carry);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int32_t g = from + e;
        x[e] = {0, 0, 0, 0};
        if (g >= p.groups) continue;
        tegroup_impl_block_note(findings, g, tegroup_impl_prepare_place(&p, g, carry, &x[e]));
        tegroup_impl_prepare_write(&p, g, &x[e]);
        if (e + 1 < EACH) carry = tegroup_impl_prepare_scan(&p, carry, tegroup_impl_prepare_term(&p, g));
    }
    if (!p.rows.starts && !p.irregular) return;
    tegroup_impl_block_place_apart<EACH, THREADS>(p, findings);
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (from + e < p.groups) x[e] = tegroup_impl_prepare_read(&p, from + e);
}

/* Every lane gets the warp's sum and maxima. */
static __device__ __forceinline__ tegroup_impl_row_totals tegroup_impl_warp_totals(tegroup_impl_row_totals x) {
#pragma unroll 1
    for (int32_t step = 16; step > 0; step /= 2) {
        x.rows_total += __shfl_xor_sync(0xffffffffu, x.rows_total, step);
        x.rows_max = tegroup_impl_max(x.rows_max, __shfl_xor_sync(0xffffffffu, x.rows_max, step));
        x.rows_end = tegroup_impl_max(x.rows_end, __shfl_xor_sync(0xffffffffu, x.rows_end, step));
        x.elements = tegroup_impl_max(x.elements, __shfl_xor_sync(0xffffffffu, x.elements, step));
    }
    return x;
}

/* The prefix sums, and the warp's share of the header. */
template <int EACH>
static __device__ __forceinline__ void tegroup_impl_block_sum(const tegroup_impl_preparation &p,
                                                              const tegroup_impl_place (&x)[EACH],
                                                              tegroup_impl_findings &findings) {
    const int32_t from = EACH * (int32_t)threadIdx.x;
    tegroup_impl_row_totals mine = {0, 0, 0, 0};
    int64_t granules = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int64_t rows = tegroup_impl_max(0, x[e].rows);
        granules += tegroup_impl_granules(rows);
        mine.rows_total += rows;
        mine.rows_max = tegroup_impl_max(mine.rows_max, rows);
        if (rows > 0) mine.rows_end = tegroup_impl_max(mine.rows_end, x[e].start + rows);
        const int64_t reach = p.irregular ? tegroup_impl_prepare_reach(&p, &x[e]) : 0;
        if (reach > 0) mine.elements = tegroup_impl_max(mine.elements, x[e].offset + reach);
    }
    int64_t before = tegroup_impl_block_scan(granules, false);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (from + e >= p.groups) continue;
        before += tegroup_impl_granules(tegroup_impl_max(0, x[e].rows));
        p.prefix[from + e + 1] = before;
    }
    findings.warps[threadIdx.x / 32] = tegroup_impl_warp_totals(mine);
}

/* The header, by one warp. */
static __device__ __forceinline__ void tegroup_impl_block_header(const tegroup_impl_preparation &p,
                                                                 const tegroup_impl_findings &findings,
                                                                 tegroup_snapshot_header *header) {
    tegroup_impl_row_totals all = {0, 0, 0, 0};
    if (threadIdx.x < blockDim.x / 32) all = findings.warps[threadIdx.x];
    all = tegroup_impl_warp_totals(all);
    if (threadIdx.x > 0) return;
    tegroup_snapshot_header result;
    tegroup_impl_snapshot_open(&result, &p);
    result.status = findings.status;
    result.bad_group = (int32_t)findings.bad_group;
    result.rows_total = all.rows_total;
    result.rows_max = all.rows_max;
    result.rows_end = all.rows_end;
    if (all.elements > 0) result.capacity_elements = tegroup_impl_max(result.capacity_elements, all.elements);
    *header = result;
}

template <int EACH, int THREADS>
static __device__ __forceinline__ void tegroup_impl_block_prepare(const tegroup_impl_preparation &p,
                                                                  tegroup_snapshot_header *header, int32_t bytes) {
    __shared__ tegroup_impl_findings findings;
    const int32_t thread = (int32_t)threadIdx.x;
    if (thread == 0) {
        findings.status = 0;
        findings.bad_group = ~0u; /* -1, none */
    }
#pragma unroll 1
    for (int32_t at = thread; at < bytes / 16; at += (int32_t)blockDim.x)
        ((uint4 *)header)[at] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    tegroup_impl_place x[EACH];
    tegroup_impl_block_place<EACH, THREADS>(p, x, findings);
    tegroup_impl_block_sum(p, x, findings);
    int64_t value[EACH];
    int32_t group[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        group[e] = EACH * thread + e;
        value[e] = group[e] < p.groups ? -tegroup_impl_max(0, x[e].rows) : INT64_MAX;
    }
    tegroup_impl_block_sort<EACH, THREADS>(p.order_entries, value, group);
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (EACH * thread + e < p.order_entries) p.order[EACH * thread + e] = group[e];
    __syncthreads();
    if (thread < 32) tegroup_impl_block_header(p, findings, header);
}

/* Counts of groups that lie one behind another in a regular shape, which is what most routers give. */
static inline bool tegroup_impl_prepare_plain(const tegroup_impl_preparation *p) {
    return !p->irregular && p->rows.encoding == TEGROUP_ENCODING_COUNTS && !p->rows.starts && p->rows.stride == 0
           && p->rows.alignment <= 1;
}

/* Such a preparation with that spelt out, so that the compiler leaves out what it does not need. */
static __device__ __forceinline__ tegroup_impl_preparation
tegroup_impl_prepare_as_plain(const tegroup_impl_preparation &p) {
    tegroup_impl_preparation plain = p;
    plain.irregular = 0;
    plain.rows.encoding = TEGROUP_ENCODING_COUNTS;
    plain.rows.starts = NULL;
    plain.rows.stride = plain.rows.alignment = 0;
    plain.offsets = NULL;
    return plain;
}

/* PLAIN is tegroup_impl_prepare_plain. */
template <int EACH, bool PLAIN>
static __global__ void __launch_bounds__(TEGROUP_IMPL_PREPARE_THREADS, 1)
    tegroup_impl_prepare_kernel(const __grid_constant__ tegroup_impl_preparation p, tegroup_snapshot_header *header,
                                int32_t bytes) {
    enum { THREADS = TEGROUP_IMPL_PREPARE_THREADS };
    if (PLAIN) tegroup_impl_block_prepare<EACH, THREADS>(tegroup_impl_prepare_as_plain(p), header, bytes);
    else tegroup_impl_block_prepare<EACH, THREADS>(p, header, bytes);
}

/* The same of sizes that were on the host. Their groups are few enough for a thread each. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_PREPARE_THREADS, 1)
    tegroup_impl_prepare_parcel_kernel(const __grid_constant__ tegroup_impl_preparation p,
                                       const __grid_constant__ tegroup_impl_parcel parcel,
                                       tegroup_snapshot_header *header, int32_t bytes) {
    static_assert(TEGROUP_HOST_SIZES_MAX_BYTES / 4 <= TEGROUP_IMPL_PREPARE_THREADS, "a thread has one group");
    static_assert(sizeof p + sizeof parcel + sizeof header + sizeof bytes <= 4096, "parameters of any CUDA kernel");
    tegroup_impl_block_prepare<1, TEGROUP_IMPL_PREPARE_THREADS>(tegroup_impl_parcel_open(&p, &parcel), header, bytes);
}

/* The deep check: what the kernel reads and writes is device memory. */
static inline tegroup_status tegroup_impl_cuda_check_prepare(const tegroup_prepare_desc *desc, tegroup_error *error) {
    const tegroup_shape *shape = &desc->shape;
    const int ragged_cols = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(desc->snapshot, "snapshot", error));
    if (tegroup_impl_data_space(&shape->row_sizes) == TEGROUP_SPACE_HOST) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(shape->row_sizes.data, "shape.row_sizes.data", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(shape->row_sizes.starts, "shape.row_sizes.starts", error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_check_address(ragged_cols ? shape->col_sizes.data : NULL, "shape.col_sizes.data", error));
    return tegroup_impl_cuda_check_address(shape->offsets, "shape.offsets", error);
}

static inline tegroup_status tegroup_impl_cuda_prepare(const tegroup_impl_preparation *p,
                                                       const tegroup_prepare_desc *desc, const tegroup_layout *layout,
                                                       struct CUstream_st *stream, tegroup_error *error) {
    if (desc->check_level == TEGROUP_CHECK_DEEP) TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_prepare(desc, error));
    const int32_t each = p->groups > TEGROUP_IMPL_PREPARE_THREADS ? 4 : 1;
    const unsigned threads = (unsigned)tegroup_impl_max(32, p->order_entries / each);
    if (tegroup_impl_data_space(&p->rows) == TEGROUP_SPACE_HOST) {
        tegroup_impl_parcel parcel;
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_capture(desc->host_sizes_final, "host_sizes_final", stream, error));
        tegroup_impl_parcel_pack(p, &parcel);
        return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_prepare_parcel_kernel, 1, threads, 0, stream,
                                                            *p, parcel, (tegroup_snapshot_header *)desc->snapshot,
                                                            (int32_t)layout->total_bytes),
                                        "stream", "the prepare kernel must launch", error);
    }
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(each > 1                        ? tegroup_impl_prepare_kernel<4, false>
                            : tegroup_impl_prepare_plain(p) ? tegroup_impl_prepare_kernel<1, true>
                                                            : tegroup_impl_prepare_kernel<1, false>,
                            1, threads, 0, stream, *p, (tegroup_snapshot_header *)desc->snapshot,
                            (int32_t)layout->total_bytes),
        "stream", "the prepare kernel must launch", error);
}

/* ==== [4] Rows on the GPU (src/cuda/rows.h) ==== */

/* Kernels over rows are templates over how they access a matrix. "Vectors" move 16 bytes a step, for matrices of one
 * type whose rows all begin at multiples of 16 bytes; "scalars" move one element of any type. A block works on a few
 * rows at a time, so that each thread has several loads in flight. */
enum { TEGROUP_IMPL_ROWS_UNIT = TEGROUP_GRANULE, TEGROUP_IMPL_ROWS_THREADS = 256 };

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
#if __CUDA_ARCH__ >= 530
    float x;
    if (bf16) return __uint_as_float(word & 0xffff0000u);
    asm("{.reg .f16 h; mov.b32 {_, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(x) : "r"(word));
    return x;
#else
    return bf16 ? __uint_as_float(word & 0xffff0000u) : tegroup_impl_low_half(word >> 16, false);
#endif
}

/* For results of arithmetic the hardware rounds to the same bits as the plain C conversions: the only NaN that
 * arithmetic produces is the quiet one with all bits set. */
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
    /* Rounds numbers to the matrix's type. */
    static __device__ __forceinline__ void round(const tegroup_matrix &, real *x) { unpack(pack(x), x); }
};

/* Loads and stores one element of F64, F32, F16 or BF16. These functions are not inlined: their callers are slow in any
 * case, and stay small this way. They must not have other types: when they did, an activation's kernel that called one
 * where its warp had diverged read from an address whose low word was lost (nvcc 13.0, H100; why was not found). */
static __device__ __noinline__ float tegroup_impl_load_as(tegroup_dtype dtype, const void *data, int64_t i, float) {
    return tegroup_impl_load_float_f32(dtype, data, i);
}
static __device__ __noinline__ double tegroup_impl_load_as(tegroup_dtype dtype, const void *data, int64_t i, double) {
    return tegroup_impl_load_float_f64(dtype, data, i);
}
static __device__ __noinline__ void tegroup_impl_store_as(tegroup_dtype dtype, void *data, int64_t i, float x) {
    tegroup_impl_store_float_f32(dtype, data, i, x);
}
static __device__ __noinline__ void tegroup_impl_store_as(tegroup_dtype dtype, void *data, int64_t i, double x) {
    tegroup_impl_store_float_f64(dtype, data, i, x);
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
    static __device__ __forceinline__ void round(const tegroup_matrix &m, real *x) {
        real rounded = 0;
        tegroup_impl_store_as(m.dtype, &rounded, 0, x[0]);
        x[0] = tegroup_impl_load_as(m.dtype, &rounded, 0, real());
    }
};

/* Matrices of weights, scales and their gradients are F32 or F64. An absent one reads as ones. */
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

/* The rows that groups own, cut into units of up to TEGROUP_IMPL_ROWS_UNIT rows of one group; without a snapshot, all
 * rows. What the snapshot says is clamped to the matrix. A buffer that is no snapshot for this matrix has no units. */
struct tegroup_impl_units {
    const int64_t *start, *rows, *prefix;
    int64_t capacity, count;
    int32_t groups;

    __device__ tegroup_impl_units(const void *snapshot, int64_t matrix_rows)
        : start(NULL), rows(NULL), prefix(NULL), capacity(matrix_rows),
          count(tegroup_impl_ceil_div(matrix_rows, TEGROUP_IMPL_ROWS_UNIT)), groups(0) {
        if (!snapshot) return;
        const tegroup_impl_fit fit = tegroup_impl_fit_of_rows(snapshot, matrix_rows);
        if (tegroup_impl_fits(&fit)) {
            const tegroup_snapshot_view view = tegroup_impl_snapshot_view(snapshot, fit.groups, 0);
            groups = fit.groups;
            start = view.start;
            rows = view.rows;
            prefix = view.prefix;
        }
        count = groups > 0 ? tegroup_impl_min(prefix[groups], count + groups) : 0;
    }

    /* Returns the number of rows of a unit, and sets *first to its first row; with a snapshot, *group to its group. */
    __device__ int32_t at(int64_t unit, int64_t *first, int32_t *group = NULL) const {
        int64_t room = capacity - unit * TEGROUP_IMPL_ROWS_UNIT;
        *first = unit * TEGROUP_IMPL_ROWS_UNIT;
        if (prefix) {
            int32_t g = 0, above = groups;
            while (above - g > 1) {
                const int32_t middle = (g + above) / 2;
                if (prefix[middle] <= unit) g = middle;
                else above = middle;
            }
            if (group) *group = g;
            const int64_t skipped = (unit - prefix[g]) * TEGROUP_IMPL_ROWS_UNIT;
            *first = start[g] + skipped;
            if (skipped < 0 || *first < 0) return 0;
            room = tegroup_impl_min(rows[g] - skipped, capacity - *first);
        }
        return (int32_t)tegroup_impl_clamp(room, 0, TEGROUP_IMPL_ROWS_UNIT);
    }
};

/* Sums over a block's threads, one for each row of a unit, in a fixed order. Thread r gets the sum of row r. */
template <typename REAL> static __device__ REAL tegroup_impl_block_sums(REAL (&sum)[TEGROUP_IMPL_ROWS_UNIT]) {
    __shared__ REAL part[TEGROUP_IMPL_ROWS_THREADS / 32][TEGROUP_IMPL_ROWS_UNIT];
    const int32_t thread = (int32_t)threadIdx.x, warps = (int32_t)blockDim.x / 32;
    REAL total = 0;
#pragma unroll
    for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++)
        for (int step = 16; step > 0; step /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], step);
    __syncthreads(); /* the parts of the previous unit have been read */
    if (thread % 32 == 0)
        for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) part[thread / 32][r] = sum[r];
    __syncthreads();
    if (thread < TEGROUP_IMPL_ROWS_UNIT)
        for (int32_t w = 0; w < warps; w++) total += part[w][thread];
    return total;
}

/* A copy of the matrix with its leading dimension filled in. */
static inline tegroup_matrix tegroup_impl_cuda_matrix(const tegroup_matrix *m) {
    tegroup_matrix spelt = *m;
    spelt.ld = tegroup_impl_matrix_ld(m);
    return spelt;
}

/* The largest number of bytes, up to 16, in which a matrix's rows can be copied piece by piece. */
static inline int32_t tegroup_impl_cuda_piece(const tegroup_matrix *m) {
    const int64_t bytes = tegroup_impl_bits(m->dtype) / 8;
    int32_t piece = 16;
    while (m->cols * bytes % piece != 0 || tegroup_impl_matrix_ld(m) * bytes % piece != 0
           || !tegroup_impl_aligned(m->data, (size_t)piece))
        piece /= 2;
    return piece;
}

/* The access that suits rows of `width` elements in all of the matrices: the element type for vectors, F64 for scalars
 * in double if the first matrix is F64, else UNSET for scalars in float. */
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

/* Runs LAUNCH with the access type that tegroup_impl_cuda_access has chosen. */
#define TEGROUP_IMPL_BY_ACCESS(chosen, LAUNCH)                                                                         \
    switch (chosen) {                                                                                                  \
    case TEGROUP_DTYPE_BF16: LAUNCH(tegroup_impl_vectors<TEGROUP_DTYPE_BF16>) break;                                   \
    case TEGROUP_DTYPE_F16: LAUNCH(tegroup_impl_vectors<TEGROUP_DTYPE_F16>) break;                                     \
    case TEGROUP_DTYPE_F32: LAUNCH(tegroup_impl_vectors<TEGROUP_DTYPE_F32>) break;                                     \
    case TEGROUP_DTYPE_F64: LAUNCH(tegroup_impl_scalars<double>) break;                                                \
    default: LAUNCH(tegroup_impl_scalars<float>) break;                                                                \
    }

/* Blocks for a kernel that strides over `units` of work: one a unit, but at most `each` a multiprocessor. */
static inline tegroup_status tegroup_impl_cuda_blocks(int64_t units, int32_t each, unsigned *blocks,
                                                      tegroup_error *error) {
    int device = 0, multiprocessors = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "there must be a current device", error));
    *blocks = (unsigned)tegroup_impl_clamp(units, 1, (int64_t)each * multiprocessors);
    return TEGROUP_OK;
}

/* Rows shorter than a block may lie side by side in it, as those of fewer steps than a warp do: `rows` of them at a
 * time, of which a thread has number `row` (none if that is `rows`), from `step` on, every `stride` steps. */
struct tegroup_impl_abreast {
    int32_t rows, row, step, stride;
    __device__ explicit tegroup_impl_abreast(int64_t steps)
        : stride((int32_t)tegroup_impl_min(steps, (int64_t)blockDim.x)) {
        rows = (int32_t)blockDim.x / stride;
        row = (int32_t)threadIdx.x / stride;
        step = (int32_t)threadIdx.x % stride;
    }
};

/* Launches a kernel over units of rows, with one thread for each step of `lanes` elements, up to a block's limit. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_rows(void (*kernel)(const DESC), const DESC *desc, int64_t width,
                                                    int32_t lanes, int64_t units, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    unsigned blocks;
    const unsigned threads =
        (unsigned)tegroup_impl_clamp(tegroup_impl_align(width / lanes, 32), 64, TEGROUP_IMPL_ROWS_THREADS);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(units, 32, &blocks, error));
    return tegroup_impl_cuda_status(tegroup_impl_launch(kernel, blocks, threads, 0, stream, *desc), "stream",
                                    "the kernel must launch", error);
}

/* The same for a kernel whose rows may be abreast. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_rows_abreast(void (*kernel)(const DESC), const DESC *desc, int64_t width,
                                                            int32_t lanes, int64_t rows, struct CUstream_st *stream,
                                                            tegroup_error *error) {
    const int64_t steps = width / lanes, together = TEGROUP_IMPL_ROWS_THREADS / steps;
    unsigned blocks;
    if (steps >= 32) return tegroup_impl_cuda_rows(kernel, desc, width, lanes, rows, stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(rows, together), 8, &blocks, error));
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, blocks, TEGROUP_IMPL_ROWS_THREADS, 0, stream, *desc), "stream",
        "the kernel must launch", error);
}

/* What the sums of a step of a row begin with: what it holds, or 0. */
template <typename ACCESS>
static __device__ __forceinline__ void tegroup_impl_begin_sum(const tegroup_matrix &out, int64_t row, int64_t c,
                                                              int32_t accumulate, typename ACCESS::real *sum) {
#pragma unroll
    for (int i = 0; i < ACCESS::lanes; i++) sum[i] = 0;
    if (accumulate) ACCESS::unpack(ACCESS::load(out, ACCESS::row(out, row), c), sum);
}
#if !defined(TEGROUP_NO_ACTIVATION)

/* ==== [5] Activations in epilogues (src/cuda/activation_epilogue.h) ==== */

/* Activates eight columns of a row for an epilogue, in words of two halves. x holds eight gates and eight ups, or,
 * interleaved, eight pairs of them. */
template <tegroup_activation KIND, bool INTERLEAVED>
static __device__ __forceinline__ void tegroup_impl_activate_eight(float alpha, float limit, bool bf16, float scale,
                                                                   const uint32_t (&x)[2][4], uint32_t (&y)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t one = INTERLEAVED ? x[i / 2][i % 2 * 2] : x[0][i],
                       two = INTERLEAVED ? x[i / 2][i % 2 * 2 + 1] : x[1][i];
        const float low = tegroup_impl_low_half(one, bf16), high = tegroup_impl_high_half(one, bf16),
                    low2 = tegroup_impl_low_half(two, bf16), high2 = tegroup_impl_high_half(two, bf16);
        y[i] = tegroup_impl_two_halves(
            __fmul_rn(scale, tegroup_impl_activation_f32(KIND, 1, alpha, limit, low, INTERLEAVED ? high : low2)),
            __fmul_rn(scale, tegroup_impl_activation_f32(KIND, 1, alpha, limit, INTERLEAVED ? low2 : high, high2)),
            bf16);
    }
}

#if !defined(TEGROUP_NO_BACKWARD)
/* The sum over a row of gradient times result has a fixed order that an epilogue can follow although it sees a tile's
 * columns at a time: first the columns of a thread's step in order, then the threads of 32 columns in a tree, then each
 * thread's own steps in order, then the block's threads. Activations without gate and up have no such epilogue, and no
 * tree. */
enum { TEGROUP_IMPL_ROW_SUM_COLS = 32 };

/* The tree: every one of `threads` neighbouring lanes gets the sum over all of them. there: the first lanes of the warp
 * that take part. */
static __device__ __forceinline__ float tegroup_impl_tree(float sum, int threads, int there) {
    const uint32_t mask = there < 32 ? (1u << there) - 1 : 0xffffffffu;
#pragma unroll
    for (int step = 1; step < threads; step *= 2) {
        const float other = __shfl_xor_sync(mask, sum, step);
        sum = __fadd_rn(sum, ((int)threadIdx.x % 32 ^ step) < there ? other : 0.0f);
    }
    return sum;
}

/* The gradient for eight columns: gates and ups in x are replaced by their gradients, and the output's gradient in y by
 * the output itself. Returns the part of the row's sum that the eight columns make. */
template <tegroup_activation KIND, bool INTERLEAVED>
static __device__ __forceinline__ float tegroup_impl_differentiate_eight(float alpha, float limit, bool bf16,
                                                                         float scale, uint32_t (&x)[2][4],
                                                                         uint32_t (&y)[4]) {
    float part[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) { /* two columns of y: a word of gates and one of ups, or two words of pairs */
        uint32_t &one = INTERLEAVED ? x[i / 2][i % 2 * 2] : x[0][i],
                 &two = INTERLEAVED ? x[i / 2][i % 2 * 2 + 1] : x[1][i];
        const float a[2] = {tegroup_impl_low_half(one, bf16), tegroup_impl_high_half(one, bf16)},
                    b[2] = {tegroup_impl_low_half(two, bf16), tegroup_impl_high_half(two, bf16)},
                    dy[2] = {tegroup_impl_low_half(y[i], bf16), tegroup_impl_high_half(y[i], bf16)};
        float gate[2], up[2], value[2], &sum = part[INTERLEAVED ? i / 2 : 0];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            value[j] = tegroup_impl_activation_grad_f32(KIND, 1, alpha, limit,
                                                        !INTERLEAVED ? a[j]
                                                        : j          ? b[0]
                                                                     : a[0],
                                                        !INTERLEAVED ? b[j]
                                                        : j          ? b[1]
                                                                     : a[1],
                                                        __fmul_rn(scale, dy[j]), &gate[j], &up[j]);
            sum = __fmaf_rn(dy[j], value[j], sum);
        }
        one = tegroup_impl_two_halves(gate[0], INTERLEAVED ? up[0] : gate[1], bf16);
        two = tegroup_impl_two_halves(INTERLEAVED ? gate[1] : up[0], up[1], bf16);
        y[i] = tegroup_impl_two_halves(__fmul_rn(scale, value[0]), __fmul_rn(scale, value[1]), bf16);
    }
    return INTERLEAVED ? __fadd_rn(part[0], part[1]) : part[0];
}

/* Finishes the rows' sums when an epilogue has made them for every 32 columns. One thread does for a row what a warp
 * does for its lanes in the order described above. */
typedef struct tegroup_impl_row_sums {
    tegroup_activation_backward_desc desc;
    const float *of_cols; /* [ceil(cols / 32)][rows] */
} tegroup_impl_row_sums;

/* COUNT: columns in a thread's step in that order, and so also the number of 32-column sums in a warp's step. */
template <int COUNT>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_row_sums_kernel(const __grid_constant__ tegroup_impl_row_sums sums) {
    __shared__ float part[TEGROUP_IMPL_ROWS_THREADS];
    const tegroup_activation_backward_desc &desc = sums.desc;
    const tegroup_impl_units units(desc.snapshot, desc.grad_output.rows);
    const int64_t count = tegroup_impl_ceil_div(desc.grad_output.cols, TEGROUP_IMPL_ROW_SUM_COLS);
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32, warps = (int32_t)blockDim.x / 32;
    for (int64_t unit = (int64_t)blockIdx.x * (32 / TEGROUP_IMPL_ROWS_UNIT); unit < units.count;
         unit += (int64_t)gridDim.x * (32 / TEGROUP_IMPL_ROWS_UNIT)) {
        const int64_t mine = unit + lane / TEGROUP_IMPL_ROWS_UNIT;
        const int32_t within = lane % TEGROUP_IMPL_ROWS_UNIT;
        int64_t row = 0;
        const bool there = mine < units.count && within < units.at(mine, &row);
        float sum[COUNT] = {0};
        row += within;
        for (int64_t from = warp * COUNT; there && from < count; from += warps * COUNT)
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                if (from + j < count) sum[j] += sums.of_cols[(from + j) * desc.grad_output.rows + row];
#pragma unroll
        for (int half = COUNT / 2; half > 0; half /= 2)
#pragma unroll
            for (int j = 0; j < half; j++) sum[j] += sum[j + half];
        part[threadIdx.x] = sum[0];
        __syncthreads();
        if (warp == 0 && there) {
            float total = 0;
            for (int32_t w = 0; w < warps; w++) total += part[w * 32 + lane];
            tegroup_impl_set_weight(desc.grad_row_scale, row, 0, total);
        }
        __syncthreads();
    }
}

/* desc is as for tegroup_impl_cuda_activation_backward with vectors of eight elements. */
static inline tegroup_status tegroup_impl_cuda_row_sums(const tegroup_activation_backward_desc *desc,
                                                        const float *of_cols, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    tegroup_impl_row_sums sums;
    if (desc->grad_output.rows == 0 || desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    sums.desc = *desc;
    sums.desc.grad_row_scale = tegroup_impl_cuda_matrix(&desc->grad_row_scale);
    sums.of_cols = of_cols;
    return tegroup_impl_cuda_rows(desc->interleaved ? tegroup_impl_row_sums_kernel<4> : tegroup_impl_row_sums_kernel<8>,
                                  &sums, desc->grad_output.cols, 8, tegroup_impl_ceil_div(desc->grad_output.rows, 32),
                                  stream, error);
}
#endif /* TEGROUP_NO_BACKWARD */

/* ==== [6] Activation kernels (src/layer/activation_cuda.h) ==== */

static __device__ __forceinline__ float tegroup_impl_activation(tegroup_activation kind, bool half, float alpha,
                                                               float limit, float gate, float up) {
    return tegroup_impl_activation_f32(kind, half, alpha, limit, gate, up);
}
static __device__ __forceinline__ float tegroup_impl_activation_grad(tegroup_activation kind, bool half, float alpha,
                                                                    float limit, float gate, float up, float grad,
                                                                    float *grad_gate, float *grad_up) {
    return tegroup_impl_activation_grad_f32(kind, half, alpha, limit, gate, up, grad, grad_gate, grad_up);
}
/* One element at a time. This is not inlined: the path is slow in any case, and stays small this way. */
static __device__ __noinline__ float tegroup_impl_activation_call(tegroup_activation kind, bool half, float alpha,
                                                                 float limit, float gate, float up, float grad,
                                                                 float *grad_gate, float *grad_up) {
    return tegroup_impl_activation_grad_f32(kind, half, alpha, limit, gate, up, grad, grad_gate, grad_up);
}

static __device__ __forceinline__ double tegroup_impl_activation(tegroup_activation kind, bool half, double alpha,
                                                               double limit, double gate, double up) {
    return tegroup_impl_activation_f64(kind, half, alpha, limit, gate, up);
}
static __device__ __forceinline__ double tegroup_impl_activation_grad(tegroup_activation kind, bool half, double alpha,
                                                                    double limit, double gate, double up, double grad,
                                                                    double *grad_gate, double *grad_up) {
    return tegroup_impl_activation_grad_f64(kind, half, alpha, limit, gate, up, grad, grad_gate, grad_up);
}
/* One element at a time. This is not inlined: the path is slow in any case, and stays small this way. */
static __device__ __noinline__ double tegroup_impl_activation_call(tegroup_activation kind, bool half, double alpha,
                                                                 double limit, double gate, double up, double grad,
                                                                 double *grad_gate, double *grad_up) {
    return tegroup_impl_activation_grad_f64(kind, half, alpha, limit, gate, up, grad, grad_gate, grad_up);
}

/* Whether both matrices have elements of 16 bits. */
static __device__ __forceinline__ bool tegroup_impl_halves(const tegroup_matrix &a, const tegroup_matrix &b) {
    return tegroup_impl_bits(a.dtype) == 16 && tegroup_impl_bits(b.dtype) == 16;
}

/* What a thread holds of a row of gates and ups, and of the row of half as many elements beside it: two steps of the
 * first, in their order in memory (by halves: gates, then ups; interleaved: pairs), and one step of the second. Without
 * gates and ups the first step is all there is, and the second is filled with ones. `together` rows are held at a time;
 * more would take registers, and with fewer registers more blocks are resident, which keeps memory busier than more
 * loads in flight in each. */
template <typename ACCESS, bool INTERLEAVED, bool SPLIT = false> struct tegroup_impl_pairs {
    typedef typename ACCESS::real real;
    typedef typename ACCESS::raw raw;
    typedef raw one;
    enum { count = ACCESS::lanes, together = 2 };
    raw step[2];

    static __device__ __forceinline__ int64_t at(int64_t c, int64_t steps, int half) {
        return INTERLEAVED ? 2 * c + half : c + half * steps;
    }
    static __device__ __forceinline__ int gate(int i) { return INTERLEAVED ? 2 * i : i; }
    static __device__ __forceinline__ int up(int i) { return INTERLEAVED ? 2 * i + 1 : count + i; }

    __device__ __forceinline__ void load(const tegroup_matrix &m, const char *row, int64_t c, int64_t steps,
                                         bool gated) {
        real ones[count];
#pragma unroll
        for (int i = 0; i < count; i++) ones[i] = 1;
        step[0] = ACCESS::load(m, row, at(c, steps, 0));
        step[1] = gated ? ACCESS::load(m, row, at(c, steps, 1)) : ACCESS::pack(ones);
    }
    __device__ __forceinline__ void unpack(real *both) const {
        ACCESS::unpack(step[0], both);
        ACCESS::unpack(step[1], both + count);
    }
    static __device__ __forceinline__ void store(const tegroup_matrix &m, char *row, int64_t c, int64_t steps,
                                                 bool gated, const real *both) {
        ACCESS::store(m, row, at(c, steps, 0), ACCESS::pack(both));
        if (gated) ACCESS::store(m, row, at(c, steps, 1), ACCESS::pack(both + count));
    }
    static __device__ __forceinline__ one load_one(const tegroup_matrix &m, const char *row, int64_t c) {
        return ACCESS::load(m, row, c);
    }
    static __device__ __forceinline__ void unpack_one(one v, real *x) { ACCESS::unpack(v, x); }
};

/* Interleaved vectors that are written back: one step of pairs, and half a step of the other row. Neighbouring threads
 * then write neighbouring bytes, whereas two steps at a time would write half of each memory sector, twice. */
template <typename ACCESS> struct tegroup_impl_pairs<ACCESS, true, true> {
    typedef typename ACCESS::real real;
    typedef uint2 one;
    enum { count = ACCESS::lanes / 2, together = 4 };
    uint4 step;

    static __device__ __forceinline__ int gate(int i) { return 2 * i; }
    static __device__ __forceinline__ int up(int i) { return 2 * i + 1; }

    __device__ __forceinline__ void load(const tegroup_matrix &m, const char *row, int64_t c, int64_t, bool) {
        step = ACCESS::load(m, row, c);
    }
    __device__ __forceinline__ void unpack(real *both) const { ACCESS::unpack(step, both); }
    static __device__ __forceinline__ void store(const tegroup_matrix &m, char *row, int64_t c, int64_t, bool,
                                                 const real *both) {
        ACCESS::store(m, row, c, ACCESS::pack(both));
    }
    static __device__ __forceinline__ one load_one(const tegroup_matrix &, const char *row, int64_t c) {
        return ((const uint2 *)row)[c];
    }
    static __device__ __forceinline__ void unpack_one(one v, real *x) {
        real full[2 * count];
        ACCESS::unpack(make_uint4(v.x, v.y, 0, 0), full);
#pragma unroll
        for (int i = 0; i < count; i++) x[i] = full[i];
    }
};

/* Blocks of the forward kernel that should fit a multiprocessor; one of SM75 has room for 1,024 threads. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
enum { TEGROUP_IMPL_ACTIVATION_BLOCKS = 4 };
#else
enum { TEGROUP_IMPL_ACTIVATION_BLOCKS = 5 };
#endif

/* y[i] = scale * f(gate[i], up[i]) for what a thread holds of a row. */
template <typename ACCESS, bool GATED, typename PAIRS, typename REAL>
static __device__ __forceinline__ void tegroup_impl_activation_step(const tegroup_activation_desc &desc, bool half,
                                                                    REAL alpha, REAL limit, REAL scale, const PAIRS &x,
                                                                    REAL *y) {
    const int count = PAIRS::count;
    REAL both[2 * count];
    x.unpack(both);
    if (ACCESS::lanes == 1) {
        y[0] = scale
               * tegroup_impl_activation_call(desc.activation, half, alpha, limit, both[0], both[1], (REAL)0, &both[0],
                                              &both[1]);
        return;
    }
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    _Pragma("unroll") for (int i = 0; i < count; i++) y[i] =                                                           \
        scale * tegroup_impl_activation(kind, half, alpha, limit, both[PAIRS::gate(i)], both[PAIRS::up(i)]);
    if (GATED) TEGROUP_IMPL_BY_GATED(desc.activation, TEGROUP_IMPL_LOOP)
    else TEGROUP_IMPL_BY_PLAIN(desc.activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
}

/* A thread reads a step of the rows that it holds before it writes there, so output may be input if both are as
 * wide. */
template <typename ACCESS, bool INTERLEAVED, bool GATED>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS, TEGROUP_IMPL_ACTIVATION_BLOCKS)
    tegroup_impl_activation_kernel(const __grid_constant__ tegroup_activation_desc desc) {
    typedef typename ACCESS::real real;
    typedef tegroup_impl_pairs<ACCESS, INTERLEAVED> pairs;
    const int count = pairs::count;
    const tegroup_impl_units units(desc.snapshot, desc.output.rows);
    const int64_t steps = desc.output.cols / count;
    const real alpha = (real)desc.alpha, limit = (real)desc.limit;
    const bool gated = ACCESS::lanes == 1 ? (bool)tegroup_impl_gated(desc.activation) : GATED,
               half = ACCESS::lanes == 1 ? tegroup_impl_halves(desc.input, desc.output) : ACCESS::lanes == 8;
    for (int64_t unit = blockIdx.x; unit < units.count; unit += gridDim.x) {
        int64_t first;
        const int32_t rows = units.at(unit, &first);
        if (rows == 0) continue;
#pragma unroll 1
        for (int from = 0; from < rows; from += pairs::together) {
            const char *in[pairs::together];
            char *out[pairs::together];
            real scale[pairs::together];
#pragma unroll
            for (int r = 0; r < pairs::together; r++) { /* past the unit's last row, that row is read again */
                const int64_t row = first + tegroup_impl_min(from + r, rows - 1);
                in[r] = ACCESS::row(desc.input, row);
                out[r] = ACCESS::row(desc.output, row);
                scale[r] = tegroup_impl_weight<real>(desc.row_scale, row, 0);
            }
            for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
                pairs x[pairs::together];
#pragma unroll
                for (int r = 0; r < pairs::together; r++) x[r].load(desc.input, in[r], c, steps, gated);
#pragma unroll
                for (int r = 0; r < pairs::together; r++) {
                    if (from + r >= rows) break;
                    real y[count];
                    tegroup_impl_activation_step<ACCESS, GATED>(desc, half, alpha, limit, scale[r], x[r], y);
                    ACCESS::store(desc.output, out[r], c, ACCESS::pack(y));
                }
            }
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_activation_forward(const tegroup_activation_desc *desc,
                                                                  struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->input, &desc->output};
    const int64_t width = desc->output.cols, units = tegroup_impl_ceil_div(desc->output.rows, TEGROUP_IMPL_ROWS_UNIT);
    tegroup_activation_desc d = *desc;
    if (desc->output.rows == 0 || width == 0) return TEGROUP_OK;
    d.alpha = tegroup_impl_alpha(desc->activation, desc->alpha);
    d.limit = tegroup_impl_limit(desc->activation, desc->limit);
    d.input = tegroup_impl_cuda_matrix(&desc->input);
    d.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    d.output = tegroup_impl_cuda_matrix(&desc->output);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(desc->interleaved ? tegroup_impl_activation_kernel<__VA_ARGS__, true, true>          \
                                  : tegroup_impl_gated(desc->activation)                                               \
                                      ? tegroup_impl_activation_kernel<__VA_ARGS__, false, true>                       \
                                      : tegroup_impl_activation_kernel<__VA_ARGS__, false, false>,                     \
                                  &d, width, __VA_ARGS__::lanes, units, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

#if !defined(TEGROUP_NO_BACKWARD)
/* The gradients of gates and ups for what a thread holds of a row. Returns its contribution to the gradient of the
 * row's scale: for one element `sum` plus it, for several elements their own sum, without `sum`. */
template <typename ACCESS, bool GATED, typename PAIRS, typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_activation_grad_step(const tegroup_activation_backward_desc &desc,
                                                                         bool half, REAL alpha, REAL limit, REAL scale,
                                                                         const PAIRS &x, const typename PAIRS::one &dy,
                                                                         REAL sum, REAL *out) {
    const int count = PAIRS::count;
    REAL both[2 * count], grad[count], part = 0;
    x.unpack(both);
    PAIRS::unpack_one(dy, grad);
    if (ACCESS::lanes == 1) {
        const REAL value = tegroup_impl_activation_call(desc.activation, half, alpha, limit, both[0], both[1],
                                                        scale * grad[0], &out[0], &out[1]);
        return fma(grad[0], value, sum);
    }
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    _Pragma("unroll") for (int i = 0; i < count; i++) {                                                                \
        const int g = PAIRS::gate(i), u = PAIRS::up(i);                                                                \
        const REAL value = tegroup_impl_activation_grad(kind, half, alpha, limit, both[g], both[u], scale * grad[i],   \
                                                        &out[g], &out[u]);                                             \
        part = fma(grad[i], value, part);                                                                              \
    }
    if (GATED) TEGROUP_IMPL_BY_GATED(desc.activation, TEGROUP_IMPL_LOOP)
    else TEGROUP_IMPL_BY_PLAIN(desc.activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
    return part;
}

/* A thread reads a step of every operand before it writes there, so grad_input may be one of them. The rows' addresses
 * are computed anew in each step: held across steps, as in the kernel above, they would spill registers. */
template <typename ACCESS, bool INTERLEAVED, bool GATED>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS, 4)
    tegroup_impl_activation_grad_kernel(const __grid_constant__ tegroup_activation_backward_desc desc) {
    typedef typename ACCESS::real real;
    typedef tegroup_impl_pairs<ACCESS, INTERLEAVED, (INTERLEAVED && ACCESS::lanes > 1)> pairs;
    const int count = pairs::count, lane = (int)threadIdx.x % 32;
    const tegroup_impl_units units(desc.snapshot, desc.grad_output.rows);
    const int64_t steps = desc.grad_output.cols / count;
    const real alpha = (real)desc.alpha, limit = (real)desc.limit;
    const bool gated = ACCESS::lanes == 1 ? (bool)tegroup_impl_gated(desc.activation) : GATED,
               half = ACCESS::lanes == 1 ? tegroup_impl_halves(desc.input, desc.grad_input)
                                               && tegroup_impl_halves(desc.grad_output, desc.grad_input)
                                         : ACCESS::lanes == 8,
               wants_sum = desc.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET;
    for (int64_t unit = blockIdx.x; unit < units.count; unit += gridDim.x) {
        int64_t first;
        const int32_t rows = units.at(unit, &first);
        real sum[TEGROUP_IMPL_ROWS_UNIT] = {0, 0, 0, 0};
        if (rows == 0) continue;
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            const int there = (int)tegroup_impl_min(32, steps - (c - lane));
#pragma unroll
            for (int from = 0; from < TEGROUP_IMPL_ROWS_UNIT; from += pairs::together) {
                pairs x[pairs::together];
                typename pairs::one dy[pairs::together];
                if (from >= rows) break;
#pragma unroll
                for (int r = 0; r < pairs::together; r++) {
                    const int64_t row = first + tegroup_impl_min(from + r, rows - 1);
                    x[r].load(desc.input, ACCESS::row(desc.input, row), c, steps, gated);
                    dy[r] = pairs::load_one(desc.grad_output, ACCESS::row(desc.grad_output, row), c);
                }
#pragma unroll
                for (int r = 0; r < pairs::together; r++) {
                    if (from + r >= rows) break;
                    const int64_t row = first + from + r;
                    const real scale = tegroup_impl_weight<real>(desc.row_scale, row, 0);
                    real out[2 * count];
                    real part = tegroup_impl_activation_grad_step<ACCESS, GATED>(desc, half, alpha, limit, scale, x[r],
                                                                                 dy[r], sum[from + r], out);
                    if (ACCESS::lanes == 1) sum[from + r] = part;
                    if (desc.grad_input.data) /* else row_scale's gradient alone is wanted */
                        pairs::store(desc.grad_input, ACCESS::row(desc.grad_input, row), c, steps, gated, out);
                    if (ACCESS::lanes == 1 || !wants_sum) continue;
                    if (gated) part = tegroup_impl_tree((float)part, TEGROUP_IMPL_ROW_SUM_COLS / count, there);
                    if (!gated || lane % (TEGROUP_IMPL_ROW_SUM_COLS / count) == 0) sum[from + r] += part;
                }
            }
        }
        if (wants_sum) {
            const real total = tegroup_impl_block_sums(sum);
            if ((int32_t)threadIdx.x < rows)
                tegroup_impl_set_weight(desc.grad_row_scale, first + threadIdx.x, 0, total);
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_activation_backward(const tegroup_activation_backward_desc *desc,
                                                                   struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->input, &desc->grad_output, &desc->grad_input};
    const int64_t width = desc->grad_output.cols,
                  units = tegroup_impl_ceil_div(desc->grad_output.rows, TEGROUP_IMPL_ROWS_UNIT);
    tegroup_activation_backward_desc d = *desc;
    if (desc->grad_output.rows == 0 || (width == 0 && desc->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET))
        return TEGROUP_OK;
    d.alpha = tegroup_impl_alpha(desc->activation, desc->alpha);
    d.limit = tegroup_impl_limit(desc->activation, desc->limit);
    d.input = tegroup_impl_cuda_matrix(&desc->input);
    d.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    d.grad_output = tegroup_impl_cuda_matrix(&desc->grad_output);
    d.grad_input = tegroup_impl_cuda_matrix(&desc->grad_input);
    d.grad_row_scale = tegroup_impl_cuda_matrix(&desc->grad_row_scale);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(desc->interleaved ? tegroup_impl_activation_grad_kernel<__VA_ARGS__, true, true>     \
                                  : tegroup_impl_gated(desc->activation)                                               \
                                      ? tegroup_impl_activation_grad_kernel<__VA_ARGS__, false, true>                  \
                                      : tegroup_impl_activation_grad_kernel<__VA_ARGS__, false, false>,                \
                                  &d, width, __VA_ARGS__::lanes, units, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 3, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}
#endif /* TEGROUP_NO_BACKWARD */
#endif /* TEGROUP_NO_ACTIVATION */
#if !defined(TEGROUP_NO_MOE)

/* ==== [7] Counts of groups: kernels (src/moe/count_cuda.h) ==== */

/* The element of a matrix of slots where a slot lies. Rows apart are rare, and a division is many instructions. */
static __device__ __noinline__ int64_t tegroup_impl_slot_apart(int64_t cols, int64_t ld, int64_t slot) {
    return slot / cols * ld + slot % cols;
}
static __device__ __forceinline__ int64_t tegroup_impl_slot_at(const tegroup_matrix &m, int64_t slot) {
    return m.ld == m.cols ? slot : tegroup_impl_slot_apart(m.cols, m.ld, slot);
}

/* Adds to a count of I32 or I64, if counts are wanted. */
static __device__ __forceinline__ void tegroup_impl_add_count(const tegroup_matrix &counts, int64_t g, uint32_t n) {
    if (counts.dtype == TEGROUP_DTYPE_I32) atomicAdd((uint32_t *)counts.data + g, n);
    else if (counts.dtype == TEGROUP_DTYPE_I64) atomicAdd((unsigned long long *)counts.data + g, (unsigned long long)n);
}

/* The smallest of `first` and what is at g, of an unsigned matrix; and the largest, of a signed one. */
static __device__ __forceinline__ void tegroup_impl_lower_start(const tegroup_matrix &m, int64_t g, int64_t first) {
    if (m.dtype == TEGROUP_DTYPE_I32) atomicMin((uint32_t *)m.data + g, (uint32_t)first);
    else if (m.dtype == TEGROUP_DTYPE_I64) atomicMin((unsigned long long *)m.data + g, (unsigned long long)first);
}
static __device__ __forceinline__ void tegroup_impl_raise_row(const tegroup_matrix &m, int64_t slot, int64_t row) {
    const int64_t at = tegroup_impl_slot_at(m, slot);
    if (m.dtype == TEGROUP_DTYPE_I32) atomicMax((int32_t *)m.data + at, (int32_t)row);
    else atomicMax((long long *)m.data + at, (long long)row);
}

/* Counts 0; starts and rows that nothing has met: all bits set. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_count_clear_kernel(const __grid_constant__ tegroup_count_desc desc) {
    const int64_t threads = (int64_t)gridDim.x * blockDim.x, thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                  slots = desc.row_of_slot.rows * desc.row_of_slot.cols;
    for (int64_t g = thread; g < desc.groups; g += threads) {
        tegroup_impl_store_int(desc.counts.dtype, desc.counts.data, g, 0);
        tegroup_impl_store_int(desc.starts.dtype, desc.starts.data, g, -1);
    }
    if (desc.row_of_slot.dtype == TEGROUP_DTYPE_UNSET) return;
    for (int64_t slot = thread; slot < slots; slot += threads)
        tegroup_impl_store_int(desc.row_of_slot.dtype, desc.row_of_slot.data,
                               tegroup_impl_slot_at(desc.row_of_slot, slot), -1);
}

/* A block counts its rows in shared memory first: sums, smallest and largest of integers are the same in whatever order
 * they come. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_count_kernel(const __grid_constant__ tegroup_count_desc desc) {
    extern __shared__ uint32_t tegroup_impl_count_shared[];
    uint32_t *counts = tegroup_impl_count_shared;
    const int64_t rows = tegroup_impl_count_rows(&desc), used = tegroup_impl_count_used(&desc),
                  threads = (int64_t)gridDim.x * blockDim.x;
    for (int32_t g = (int32_t)threadIdx.x; g < desc.groups; g += (int32_t)blockDim.x) counts[g] = 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += threads) {
        const int64_t slot = tegroup_impl_count_slot(&desc, row, used),
                      at = tegroup_impl_slot_at(desc.labels, desc.block > 1 ? row / desc.block : row),
                      g = tegroup_impl_count_group(&desc, at, slot);
        if (g < 0) continue;
        atomicAdd(&counts[g], 1u);
        tegroup_impl_lower_start(desc.starts, g, row);
        if (slot >= 0) tegroup_impl_raise_row(desc.row_of_slot, slot, row);
    }
    __syncthreads();
    for (int32_t g = (int32_t)threadIdx.x; g < desc.groups; g += (int32_t)blockDim.x)
        if (counts[g] != 0) tegroup_impl_add_count(desc.counts, g, counts[g]);
}

/* One block: a thread has up to four groups, and the scan gives it the sum of those before them. Starts that nothing
 * has met become 0. */
static __global__ void __launch_bounds__(1024)
    tegroup_impl_count_offsets_kernel(const __grid_constant__ tegroup_count_desc desc) {
    const int32_t each = (desc.groups + 1023) / 1024, first = (int32_t)threadIdx.x * each,
                  last = (int32_t)tegroup_impl_min(desc.groups, first + each);
    int64_t sum = 0;
    for (int32_t g = first; g < last; g++) sum += tegroup_impl_load_int(desc.counts.dtype, desc.counts.data, g);
    int64_t before = tegroup_impl_block_scan(sum, false);
    if (threadIdx.x == blockDim.x - 1)
        tegroup_impl_store_int(desc.offsets.dtype, desc.offsets.data, desc.groups, before + sum);
    for (int32_t g = first; g < last; g++) {
        tegroup_impl_store_int(desc.offsets.dtype, desc.offsets.data, g, before);
        before += tegroup_impl_load_int(desc.counts.dtype, desc.counts.data, g);
        if (desc.starts.dtype != TEGROUP_DTYPE_UNSET
            && tegroup_impl_load_int(desc.starts.dtype, desc.starts.data, g) < 0)
            tegroup_impl_store_int(desc.starts.dtype, desc.starts.data, g, 0);
    }
}

/* Without a kernel for this device nothing is enqueued, also not what comes before the kernel. */
static inline tegroup_status tegroup_impl_cuda_check_image(const void *kernel, tegroup_error *error) {
    cudaFuncAttributes image;
    return tegroup_impl_cuda_status(cudaFuncGetAttributes(&image, kernel), "space",
                                    "this unit must hold code for the device", error);
}

static __global__ void __launch_bounds__(256)
    tegroup_impl_clear_counts_kernel(const __grid_constant__ tegroup_matrix counts) {
    for (int64_t g = threadIdx.x; g < counts.cols; g += blockDim.x)
        tegroup_impl_store_int(counts.dtype, counts.data, g, 0);
}

/* By a kernel, so that a captured layer is nothing but kernels. */
static inline tegroup_status tegroup_impl_cuda_clear_counts(const tegroup_matrix *counts, struct CUstream_st *stream,
                                                            tegroup_error *error) {
    if (tegroup_impl_matrix_bytes(counts) == 0) return TEGROUP_OK;
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_clear_counts_kernel, 1, 256, 0, stream, *counts), "stream",
        "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_count(const tegroup_count_desc *desc, struct CUstream_st *stream,
                                                     tegroup_error *error) {
    const int64_t rows = tegroup_impl_count_rows(desc);
    const int maps = desc->starts.dtype != TEGROUP_DTYPE_UNSET || desc->slot_of_row.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_count_desc d = *desc;
    unsigned blocks;
    cudaError_t code = cudaSuccess;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_image((const void *)tegroup_impl_count_kernel, error));
    d.labels = tegroup_impl_cuda_matrix(&desc->labels);
    d.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(rows, 2048), 4, &blocks, error));
    blocks = (unsigned)tegroup_impl_max(blocks, rows >> 31); /* a block's counts fit 32 bits */
    if (!maps) TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_counts(&desc->counts, stream, error));
    else code = tegroup_impl_launch(tegroup_impl_count_clear_kernel, blocks, 256, 0, stream, d);
    if (code == cudaSuccess && rows > 0 && desc->groups > 0)
        code = tegroup_impl_launch(tegroup_impl_count_kernel, blocks, 256, 4 * (size_t)desc->groups, stream, d);
    if (code == cudaSuccess
        && (desc->offsets.dtype != TEGROUP_DTYPE_UNSET || desc->starts.dtype != TEGROUP_DTYPE_UNSET))
        code = tegroup_impl_launch(tegroup_impl_count_offsets_kernel, 1, 1024, 0, stream, d);
    return tegroup_impl_cuda_status(code, "stream", "the kernel must launch", error);
}

/* ==== [8] Router: a warp's batch of tokens (src/moe/router_batch_cuda.h) ==== */

/* A warp takes a batch of tokens at a time. LANES lanes compute a token's softmax in registers, TURNS tokens one after
 * another; quad q of a token's experts is in the registers of lane q % LANES. To choose, the lanes share out the batch:
 * each has one token, or an equal part of one token's experts. Probabilities lie in shared memory, beside them the
 * maximum of each quad; a lane has the maximum of every four quads in registers. The best expert is found on the way
 * down this tree, and taking it out changes only that path. With four warps a block and three blocks a multiprocessor a
 * lane has 168 registers. With fewer some are spilled, and a read from local memory waits for all loads in flight. */
enum { TEGROUP_IMPL_ROUTER_WARPS = 4, TEGROUP_IMPL_ROUTER_HISTOGRAM = 1024 };

template <typename REAL> struct alignas(16) tegroup_impl_quad { REAL x[4]; };

static __device__ __forceinline__ float tegroup_impl_larger(float a, float b) { return fmaxf(a, b); }
static __device__ __forceinline__ double tegroup_impl_larger(double a, double b) { return fmax(a, b); }
static __device__ __forceinline__ float tegroup_impl_smaller(float a, float b) { return fminf(a, b); }
static __device__ __forceinline__ double tegroup_impl_smaller(double a, double b) { return fmin(a, b); }

template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_quad_max(const tegroup_impl_quad<REAL> &v) {
    return tegroup_impl_larger(tegroup_impl_larger(v.x[0], v.x[1]), tegroup_impl_larger(v.x[2], v.x[3]));
}

/* The largest value that is left after the largest, or one of its equals, is taken out. */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_quad_second(const tegroup_impl_quad<REAL> &v) {
    return tegroup_impl_larger(
        tegroup_impl_smaller(tegroup_impl_larger(v.x[0], v.x[1]), tegroup_impl_larger(v.x[2], v.x[3])),
        tegroup_impl_larger(tegroup_impl_smaller(v.x[0], v.x[1]), tegroup_impl_smaller(v.x[2], v.x[3])));
}

/* Reads a whole quad from shared memory in one access; reading its elements takes several. */
static __device__ __forceinline__ tegroup_impl_quad<float> tegroup_impl_quad_at(const float *from) {
    const float4 x = *(const float4 *)(const void *)from;
    const tegroup_impl_quad<float> v = {{x.x, x.y, x.z, x.w}};
    return v;
}
static __device__ __forceinline__ tegroup_impl_quad<double> tegroup_impl_quad_at(const double *from) {
    return *(const tegroup_impl_quad<double> *)(const void *)from;
}

/* The first element that equals the largest. */
template <typename REAL>
static __device__ __forceinline__ int32_t tegroup_impl_quad_find(const tegroup_impl_quad<REAL> &v, REAL largest) {
    int32_t at = 3;
    if (v.x[2] == largest) at = 2;
    if (v.x[1] == largest) at = 1;
    if (v.x[0] == largest) at = 0;
    return at;
}

/* All bits that are set in any of the floats. */
static __device__ __forceinline__ uint32_t tegroup_impl_quad_bits(const tegroup_impl_quad<float> &v) {
    return __float_as_uint(v.x[0]) | __float_as_uint(v.x[1]) | __float_as_uint(v.x[2]) | __float_as_uint(v.x[3]);
}
static __device__ __forceinline__ uint32_t tegroup_impl_quad_bits(const tegroup_impl_quad<double> &) { return 1; }

template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_quad_sum(const tegroup_impl_quad<REAL> &v) {
    return (v.x[0] + v.x[1]) + (v.x[2] + v.x[3]);
}

template <typename REAL, int LANES> static __device__ __forceinline__ REAL tegroup_impl_lanes_max(REAL x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = tegroup_impl_larger(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

template <typename REAL, int LANES> static __device__ __forceinline__ REAL tegroup_impl_lanes_sum(REAL x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* e^x for the softmax, for x <= 0; its relative error is at most (1.5 |x| + 9) 2^-24. The hardware's power of two
 * flushes results below 2^-126 to zero, so it computes the square root of the result. */
static __device__ __forceinline__ float tegroup_impl_softmax_exp(float x) {
    float root;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(__fmul_rn(x, 0.7213475204444817f)));
    return __fmul_rn(root, root);
}
static __device__ __noinline__ double tegroup_impl_softmax_exp(double x) { return tegroup_impl_exp_f64(x); } /* long */

/* x / y without a branch. It is rounded as a division is if the result is finite and neither y, its reciprocal nor the
 * result is denormal. A result that is not finite becomes NaN. */
static __device__ __forceinline__ float tegroup_impl_quotient(float x, float y) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
    const float q = __fmul_rn(x, r);
    return __fmaf_rn(__fmaf_rn(-q, y, x), r, q);
}
static __device__ __forceinline__ double tegroup_impl_quotient(double x, double y) { return x / y; }

/* As tegroup_impl_choice_grad_f32, with quotients without a branch. */
static __device__ __forceinline__ float tegroup_impl_choice_grad(float g, float dot, float chosen, int32_t normalize) {
    return normalize ? tegroup_impl_quotient(g - tegroup_impl_quotient(dot, chosen), chosen) : g;
}
static __device__ __forceinline__ double tegroup_impl_choice_grad(double g, double dot, double chosen,
                                                                  int32_t normalize) {
    return tegroup_impl_choice_grad_f64(g, dot, chosen, normalize);
}

/* How a matrix's rows are read: element by element, or four floats or halves at a time. */
typedef enum tegroup_impl_router_access {
    TEGROUP_IMPL_ROUTER_ELEMENTS,
    TEGROUP_IMPL_ROUTER_FLOATS,
    TEGROUP_IMPL_ROUTER_HALVES
} tegroup_impl_router_access;

/* What both router kernels need besides the descriptor. */
typedef struct tegroup_impl_router_way {
    double per_count;               /* backward: see tegroup_impl_router_per_count */
    int64_t batches, each, longer;  /* number of batches; tokens in each; how many have one more */
    tegroup_impl_router_access in;  /* forward: how rows are read */
    int32_t in_piece, in_whole;     /* backward: bytes of a piece of a row; whether a batch's rows are one copy */
    int32_t out_piece, out_whole;   /* the same for rows that are written */
    int32_t out_element;            /* bytes of an element of these */
    int32_t histogram;              /* forward: assignments are counted a block at a time */
    int32_t block_bytes;            /* bytes that a block's warps share: the histogram, or balance gradients */
    int32_t row_bytes, token_bytes; /* bytes of a token's rows; of what else it has, behind all rows */
    uint32_t k, per_k;              /* choices of a token; 2^16 / k, rounded up */
    int32_t by_fours;               /* backward: choices are copied four at a time */
} tegroup_impl_router_way;

static __device__ __forceinline__ char *tegroup_impl_router_memory() {
    extern __shared__ uint4 tegroup_impl_router_shared[];
    return (char *)tegroup_impl_router_shared;
}

/* Starts a copy into shared memory that occupies no register; before SM80 it copies at once. */
template <typename T> static __device__ __forceinline__ void tegroup_impl_copy_soon(T *to, const T *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from),
                 "n"(sizeof(T))
                 : "memory");
#else
    *to = *from;
#endif
}
static __device__ __forceinline__ void tegroup_impl_copies_done() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* ---- rows between global and shared memory, a batch's at a time ---- */

template <typename T>
static __device__ __forceinline__ void tegroup_impl_router_copy(char *to, const char *from, int32_t bytes) {
    for (int32_t at = (int32_t)threadIdx.x % 32 * (int32_t)sizeof(T); at < bytes; at += 32 * (int32_t)sizeof(T))
        *(T *)(void *)(to + at) = *(const T *)(const void *)(from + at);
}
template <typename T>
static __device__ __forceinline__ void tegroup_impl_router_copy_soon(char *to, const char *from, int32_t bytes) {
    for (int32_t at = (int32_t)threadIdx.x % 32 * (int32_t)sizeof(T); at < bytes; at += 32 * (int32_t)sizeof(T))
        tegroup_impl_copy_soon((T *)(void *)(to + at), (const T *)(const void *)(from + at));
}

/* Starts copying a batch's rows of floats or doubles into shared memory, `pitch` bytes apart. On SM90 the bulk copy
 * engine copies them all at once if they are contiguous. */
static __device__ __forceinline__ void tegroup_impl_router_fetch(const tegroup_matrix &m,
                                                                 const tegroup_impl_router_way &way, char *rows,
                                                                 int32_t pitch, uint64_t *barrier, int64_t first,
                                                                 int32_t live) {
    const int64_t element = tegroup_impl_bits(m.dtype) / 8;
    const int32_t bytes = (int32_t)(m.cols * element);
    const char *from = (const char *)m.data + first * m.ld * element;
#if __CUDA_ARCH__ >= 900
    if (way.in_whole) {
        if (threadIdx.x % 32 == 0 && live > 0)
            asm volatile(
                "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n"
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    (uint32_t)__cvta_generic_to_shared(rows)),
                "l"(from), "r"(live * bytes), "r"((uint32_t)__cvta_generic_to_shared(barrier))
                : "memory");
        return;
    }
#endif
    for (int32_t place = 0; place < live; place++, from += m.ld * element, rows += pitch)
        if (way.in_piece == 16) tegroup_impl_router_copy_soon<uint4>(rows, from, bytes);
        else if (way.in_piece == 8) tegroup_impl_router_copy_soon<uint2>(rows, from, bytes);
        else tegroup_impl_router_copy_soon<uint32_t>(rows, from, bytes);
}
/* Waits until those copies have arrived, and all others that the warp's lanes have started. */
static __device__ __forceinline__ void tegroup_impl_router_fetched(const tegroup_impl_router_way &way,
                                                                   uint64_t *barrier, uint32_t parity) {
    tegroup_impl_copies_done();
#if __CUDA_ARCH__ >= 900
    if (way.in_whole)
        asm volatile("{.reg .pred over;\n"
                     "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                     "@!over bra again;}" ::"r"((uint32_t)__cvta_generic_to_shared(barrier)),
                     "r"(parity)
                     : "memory");
#endif
    __syncwarp();
}

/* Copies a batch's rows, `pitch` bytes apart, out of shared memory, which must not change until the copy is done. On
 * SM90 the bulk copy engine takes contiguous rows all at once: ordinary stores share a queue with the lanes' reads of
 * shared memory, which would wait with them when memory is slow to take the stores. */
static __device__ __forceinline__ void tegroup_impl_router_store(const tegroup_matrix &m,
                                                                 const tegroup_impl_router_way &way, const char *rows,
                                                                 int32_t pitch, int64_t first, int32_t live) {
    const int32_t bytes = (int32_t)m.cols * way.out_element;
    char *to = (char *)m.data + first * m.ld * way.out_element;
#if __CUDA_ARCH__ >= 900
    if (way.out_whole) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                         "cp.async.bulk.commit_group;" ::"l"(to),
                         "r"((uint32_t)__cvta_generic_to_shared(rows)), "r"(live * bytes)
                         : "memory");
        return;
    }
#endif
    __syncwarp();
    for (int32_t place = 0; place < live; place++, to += m.ld * way.out_element, rows += pitch)
        if (way.out_piece == 16) tegroup_impl_router_copy<uint4>(to, rows, bytes);
        else if (way.out_piece == 8) tegroup_impl_router_copy<uint2>(to, rows, bytes);
        else if (way.out_piece == 4) tegroup_impl_router_copy<uint32_t>(to, rows, bytes);
        else tegroup_impl_router_copy<uint16_t>(to, rows, bytes);
}
static __device__ __forceinline__ void tegroup_impl_router_store_done() {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
    __syncwarp();
}

/* ---- a warp's batch ---- */

/* Makes the compiler compute a pointer here, once. Otherwise it computes the pointer at each use, in 64-bit
 * arithmetic. */
template <typename T> static __device__ __forceinline__ T *tegroup_impl_router_fixed(T *p) {
    asm volatile("" : "+l"(p));
    __builtin_assume(__isGlobal(p));
    return p;
}

/* A warp's batch of tokens, and a lane's part of it. Neighbouring warps have neighbouring batches, and batches differ
 * in length by at most one token, so memory is read in order and all warps have the same work. What a token has besides
 * its row has an odd number of 16-byte pieces, so that lanes with a token each do not all hit the same bank. */
template <typename REAL, int LANES, int QUADS, int TURNS> struct tegroup_impl_router_batch {
    typedef tegroup_impl_quad<REAL> quad;
    enum { tokens = 32 / LANES * TURNS };

    int64_t index, first; /* number of the batch; of its first token */
    int32_t live;         /* number of its tokens */
    quad v[TURNS][QUADS];

    __device__ __forceinline__ explicit tegroup_impl_router_batch(const tegroup_impl_router_way &way)
        : index((int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) {
        find(way);
    }
    /* Moves on to the warp's next batch; behind the last one all are empty. */
    __device__ __forceinline__ void advance(const tegroup_impl_router_way &way) {
        index += (int64_t)gridDim.x * (blockDim.x / 32);
        find(way);
    }
    __device__ __forceinline__ void find(const tegroup_impl_router_way &way) {
        first = index * way.each + tegroup_impl_min(index, way.longer);
        live = index < way.batches ? (int32_t)way.each + (index < way.longer) : 0;
    }
    static __device__ __forceinline__ int32_t part() { return (int32_t)threadIdx.x % LANES; }
    static __device__ __forceinline__ int32_t quad_of(int j) { return j * LANES + part(); }
    static __device__ __forceinline__ int32_t place(int turn) {
        return turn * (32 / LANES) + (int32_t)threadIdx.x % 32 / LANES;
    }
    /* Where the row of the batch's token number `at` begins. */
    template <typename T> __device__ __forceinline__ T *row_of(const tegroup_matrix &m, int32_t at) const {
        return (T *)m.data + first * m.ld + (uint32_t)at * m.ld;
    }
    /* The lane's j-th quad; the row's last quad in place of one that the row does not have. */
    static __device__ __forceinline__ int32_t quad_within(int j, int64_t cols) {
        return min(quad_of(j), (int32_t)(((uint32_t)cols + 3) / 4) - 1);
    }

    /* Starts the loads of the batch. Places behind the last token repeat it. Halves stay halves, in half of a quad.
     * Rows that are read element by element are loaded by settle(). */
    __device__ __forceinline__ void load(const tegroup_matrix &m, tegroup_impl_router_access access) {
        if (live <= 0) return;
        const int32_t end = live - 1;
        if (access == TEGROUP_IMPL_ROUTER_FLOATS) {
            const float *start = tegroup_impl_router_fixed(row_of<const float>(m, 0));
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                const float4 *row = (const float4 *)(start + (uint32_t)min(place(turn), end) * m.ld);
#pragma unroll
                for (int j = 0; j < QUADS; j++) {
                    const float4 x = row[quad_within(j, m.cols)];
                    v[turn][j].x[0] = (REAL)x.x;
                    v[turn][j].x[1] = (REAL)x.y;
                    v[turn][j].x[2] = (REAL)x.z;
                    v[turn][j].x[3] = (REAL)x.w;
                }
            }
        } else if (access == TEGROUP_IMPL_ROUTER_HALVES) {
            const uint16_t *start = tegroup_impl_router_fixed(row_of<const uint16_t>(m, 0));
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                const uint2 *row = (const uint2 *)(start + (uint32_t)min(place(turn), end) * m.ld);
#pragma unroll
                for (int j = 0; j < QUADS; j++) {
                    const uint2 x = row[quad_within(j, m.cols)];
                    v[turn][j].x[0] = (REAL)__uint_as_float(x.x);
                    v[turn][j].x[1] = (REAL)__uint_as_float(x.y);
                }
            }
        }
    }

    /* Loads the rows that load() left out, by way of the batch's rows in shared memory. Elements behind a row's end in
     * its last quad are set to `rest`. */
    __device__ __forceinline__ void settle(const tegroup_matrix &m, const tegroup_impl_router_way &way, char *rows,
                                           REAL rest) {
        if (way.in != TEGROUP_IMPL_ROUTER_ELEMENTS) return;
        const int32_t bytes = tegroup_impl_bits(m.dtype) / 8, cols = (int32_t)m.cols;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            const char *row = (const char *)m.data + (first + min(place(turn), live - 1)) * m.ld * bytes;
            REAL *to = (REAL *)(rows + place(turn) * way.row_bytes);
#pragma unroll 1
            for (int32_t e = part(); e < (cols + 3) / 4 * 4; e += LANES)
                to[e] = e < cols ? tegroup_impl_load_as(m.dtype, row, e, rest) : rest;
            __syncwarp();
#pragma unroll
            for (int j = 0; j < QUADS; j++) v[turn][j] = ((const quad *)to)[quad_within(j, cols)];
            __syncwarp(); /* other lanes read the last quad, too */
        }
    }

    /* Reads rows of numbers from shared memory. Places behind the last token repeat it. The row's last quad, filled up
     * with zeros, stands in for quads that the row does not have. */
    __device__ __forceinline__ void read(const char *rows, int32_t pitch, int32_t cols) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int j = 0; j < QUADS; j++)
                v[turn][j] = tegroup_impl_quad_at((const REAL *)(rows + min(place(turn), live - 1) * pitch)
                                                  + 4 * quad_within(j, cols));
        if (cols % 4 != 0)
#pragma unroll
            for (int j = 0; j < QUADS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (4 * quad_within(j, cols) + i >= cols)
#pragma unroll
                        for (int turn = 0; turn < TURNS; turn++) v[turn][j].x[i] = 0;
    }

    /* Writes the numbers to shared memory as rows of the matrix. */
    __device__ __forceinline__ void put(const tegroup_matrix &m, char *rows, int32_t pitch) const {
        if (m.dtype == TEGROUP_DTYPE_F32) {
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (int j = 0; j < QUADS; j++)
                    if (4 * quad_of(j) < m.cols)
                        ((float4 *)(rows + place(turn) * pitch))[quad_of(j)] =
                            make_float4((float)v[turn][j].x[0], (float)v[turn][j].x[1], (float)v[turn][j].x[2],
                                        (float)v[turn][j].x[3]);
        } else if (m.dtype != TEGROUP_DTYPE_F64 && sizeof(REAL) == 4) {
            const bool bf16 = m.dtype == TEGROUP_DTYPE_BF16;
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (int j = 0; j < QUADS; j++)
                    if (4 * quad_of(j) < m.cols)
                        ((uint2 *)(rows + place(turn) * pitch))[quad_of(j)] =
                            make_uint2(tegroup_impl_two_halves((float)v[turn][j].x[0], (float)v[turn][j].x[1], bf16),
                                       tegroup_impl_two_halves((float)v[turn][j].x[2], (float)v[turn][j].x[3], bf16));
        } else { /* doubles become halves directly, so as not to be rounded twice */
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
                for (int j = 0; j < QUADS; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (4 * quad_of(j) + i < m.cols)
                            tegroup_impl_store_as(m.dtype, rows + place(turn) * pitch, 4 * quad_of(j) + i,
                                                  v[turn][j].x[i]);
        }
    }

    /* Whether every number of the warp's is a half's, of at most 11 significant bits: a float that was a half has its
     * last 13 bits clear. Doubles never count, as they may have been rounded. */
    __device__ __forceinline__ bool halves(tegroup_dtype dtype) const {
        if (dtype != TEGROUP_DTYPE_F32) return dtype != TEGROUP_DTYPE_F64;
        uint32_t bits = 0;
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int j = 0; j < QUADS; j++) bits |= tegroup_impl_quad_bits(v[turn][j]);
        return !__any_sync(0xffffffffu, bits & 0x1fff);
    }

    /* Converts halves to numbers. */
    __device__ __forceinline__ void widen(bool bf16) {
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                const uint32_t low = __float_as_uint((float)v[turn][j].x[0]),
                               high = __float_as_uint((float)v[turn][j].x[1]);
                v[turn][j].x[0] = (REAL)tegroup_impl_low_half(low, bf16);
                v[turn][j].x[1] = (REAL)tegroup_impl_high_half(low, bf16);
                v[turn][j].x[2] = (REAL)tegroup_impl_low_half(high, bf16);
                v[turn][j].x[3] = (REAL)tegroup_impl_high_half(high, bf16);
            }
    }
};

/* The slots of a warp's batch in the order in which its lanes take them, UNIT in a row each: the token's place in the
 * batch, and the choice. */
template <int UNIT> struct tegroup_impl_router_slots {
    uint32_t at, place, choice;

    __device__ __forceinline__ explicit tegroup_impl_router_slots(const tegroup_impl_router_way &way)
        : at(threadIdx.x % 32 * UNIT) {
        find(way);
    }
    __device__ __forceinline__ void advance(const tegroup_impl_router_way &way) {
        at += 32 * UNIT;
        find(way);
    }
    __device__ __forceinline__ void find(const tegroup_impl_router_way &way) {
        place = at * way.per_k >> 16; /* exact while at * (k * per_k - 2^16) < 2^16 */
        choice = at - place * way.k;
    }
};

/* ==== [9] Router kernels: the choice (src/moe/router_choice_cuda.h) ==== */

/* Logits may differ although probabilities are equal only if the least chosen one times `sum`, which exp(logit -
 * largest) is divided by, is below what this returns. halves: every logit of the batch has at most the 11 significant
 * bits of a half. Then logits of 1/16 and more lie at least 2^-14 apart, so equal probabilities come from equal logits,
 * unless they are close to 0. */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_router_edge(REAL sum, REAL largest, bool halves) {
    const REAL small = (REAL)0.125; /* twice 1/16, so that rounding does not matter here */
    const REAL edge = largest > -small ? tegroup_impl_softmax_exp(small - largest) : (REAL)0;
    return halves ? tegroup_impl_larger(edge, (REAL)0x1p-100 * sum) : (REAL)INFINITY;
}

/* An integer that compares with those of a matrix's other logits as the logit does, unless one is NaN: any float's bits
 * without the sign are in its order. */
static __device__ __forceinline__ int64_t tegroup_impl_router_order(const tegroup_matrix &m, int64_t at) {
    const uint64_t bits = m.dtype == TEGROUP_DTYPE_F64   ? ((const tegroup_impl_any64 *)m.data)[at]
                          : m.dtype == TEGROUP_DTYPE_F32 ? (uint64_t)((const tegroup_impl_any32 *)m.data)[at] << 32
                                                         : (uint64_t)((const tegroup_impl_any16 *)m.data)[at] << 48;
    const int64_t magnitude = (int64_t)(bits & INT64_MAX);
    return bits >> 63 ? -magnitude : magnitude;
}

/* A token's largest logit, and its sum of exponentials, later what its weights are divided by. */
template <typename REAL> struct alignas(2 * sizeof(REAL)) tegroup_impl_router_softmax { REAL divisor, largest; };

template <typename REAL> struct alignas(2 * sizeof(REAL)) tegroup_impl_router_choice {
    REAL probability;
    int32_t expert;
};

/* What a token has in shared memory besides its probabilities: first the maximum of each quad; then, at these indices,
 * its softmax, and its choices, with the largest probability that is left behind them. */
struct tegroup_impl_router_places {
    int32_t softmax, choices;

    explicit __device__ __forceinline__ tegroup_impl_router_places(int32_t room)
        : softmax((room / 4 + 3) / 4 * 4), choices(softmax + 2) {}
    template <typename REAL>
    __device__ __forceinline__ tegroup_impl_router_softmax<REAL> &softmax_of(REAL *token) const {
        return *(tegroup_impl_router_softmax<REAL> *)(token + softmax);
    }
    template <typename REAL>
    __device__ __forceinline__ tegroup_impl_router_choice<REAL> *choices_of(REAL *token) const {
        return (tegroup_impl_router_choice<REAL> *)(token + choices);
    }
};

/* A warp corrects a token's choice among equal probabilities: larger logits come first, and of equal logits the lower
 * experts. So far lower experts came first whatever their logits. Leaves that were chosen are -1. This code is seldom
 * in an instruction cache, so it is short and nothing is unrolled. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_untie(const tegroup_router_desc &desc, int64_t token,
                                                                 REAL *leaves,
                                                                 tegroup_impl_router_choice<REAL> *choices) {
    const int32_t lane = (int32_t)threadIdx.x % 32, k = desc.k;
    __syncwarp();
#pragma unroll 1
    for (int32_t j = lane; j < k; j += 32) leaves[choices[j].expert] = choices[j].probability;
    __syncwarp();
#pragma unroll 1
    for (int32_t j = 0; j < k; j++) {
        const REAL value = choices[j].probability;
        const bool begins = j == 0 || choices[j - 1].probability != value;
        int64_t most = INT64_MIN, least = INT64_MAX;
        int32_t best = 0;
        if (begins && choices[j + 1].probability != value) continue;
#pragma unroll 1
        for (int32_t e = lane; e < desc.experts; e += 32) {
            if (leaves[e] != value) continue;
            const int64_t x = tegroup_impl_router_order(desc.logits, token * desc.logits.ld + e);
            if (x > most) most = x, best = e;
            least = tegroup_impl_min(least, x);
        }
#pragma unroll 1
        for (int step = 16; step > 0; step /= 2) {
            const int64_t other = __shfl_xor_sync(0xffffffffu, most, step);
            const int32_t its = __shfl_xor_sync(0xffffffffu, best, step);
            if (other > most || (other == most && its < best)) most = other, best = its;
            least = tegroup_impl_min(least, __shfl_xor_sync(0xffffffffu, least, step));
        }
        if (begins && most == least) { /* all logits are equal, so the choice is right */
            while (j + 1 < k && choices[j + 1].probability == value) j++;
            continue;
        }
        __syncwarp(); /* all lanes have read what one writes next */
        if (lane == 0) {
            choices[j].expert = best;
            leaves[best] = -1;
        }
        __syncwarp();
    }
}

/* Replaces a batch's logits by exp(logit - largest), and sets `sum` to each token's sum of them. Returns the sum of
 * these sums. */
template <typename REAL, int LANES, int QUADS, int TURNS>
static __device__ __forceinline__ REAL tegroup_impl_router_exponentials(
    tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> &batch, const tegroup_impl_router_way &way,
    const tegroup_impl_router_places &at, char *memory, int32_t experts, REAL *sum) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    REAL largest[TURNS], sums_of_all = 0;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        quad most = batch.v[turn][0], sums = {{0, 0, 0, 0}};
#pragma unroll
        for (int j = 1; j < QUADS; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) most.x[i] = tegroup_impl_larger(most.x[i], batch.v[turn][j].x[i]);
        largest[turn] = tegroup_impl_lanes_max<REAL, LANES>(tegroup_impl_quad_max(most));
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            /* a quad that stands in for one that the row lacks adds 0 */
            const REAL shift = 4 * batch_of::quad_of(j) < experts ? largest[turn] : (REAL)INFINITY;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                batch.v[turn][j].x[i] = tegroup_impl_softmax_exp(batch.v[turn][j].x[i] - shift);
                sums.x[i] += batch.v[turn][j].x[i];
            }
        }
        sum[turn] = tegroup_impl_lanes_sum<REAL, LANES>(tegroup_impl_quad_sum(sums));
        sums_of_all += sum[turn];
    }
    if (batch_of::part() == 0) /* after all turns: a branch in each would keep them from overlapping */
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
            at.softmax_of((REAL *)(memory + batch_of::place(turn) * way.token_bytes)) = {sum[turn], largest[turn]};
    return sums_of_all;
}

/* Writes the probabilities to the batch's rows in shared memory, and the maximum of each quad beside them. */
template <typename REAL, int LANES, int QUADS, int TURNS>
static __device__ __forceinline__ void tegroup_impl_router_probabilities(
    const tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> &batch, const tegroup_impl_router_way &way,
    const tegroup_impl_router_places &at, char *rows, char *memory, int32_t experts, const REAL *sum) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const int32_t place = batch_of::place(turn);
        REAL *parents = (REAL *)(memory + place * way.token_bytes);
        quad *leaves = (quad *)(rows + place * way.row_bytes);
        const REAL scale = tegroup_impl_quotient((REAL)1, sum[turn]);
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = batch_of::quad_of(j);
            quad v = batch.v[turn][j];
#pragma unroll
            for (int i = 0; i < 4; i++) v.x[i] *= scale;
            const REAL most = tegroup_impl_quad_max(v);
            if (4 * q < experts) {
                leaves[q] = v;
                parents[q] = most;
            }
        }
    }
}

/* If a token's logits include NaN or infinity, or are all minus infinity, every probability is NaN, and the first k
 * experts are to be chosen. For that all its probabilities in shared memory become 0. (Minus infinity beside finite
 * logits is a probability of 0.) */
template <typename REAL, int LANES>
static __device__ __forceinline__ void tegroup_impl_router_choose_first(const tegroup_impl_router_way &way,
                                                                        const tegroup_impl_router_places &at,
                                                                        char *rows, char *memory, int32_t tokens,
                                                                        int32_t experts) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
#pragma unroll 1
    for (int32_t place = lane / LANES; place < tokens; place += 32 / LANES) {
        const REAL sum = at.softmax_of((REAL *)(memory + place * way.token_bytes)).divisor;
        if (sum == sum) continue;
#pragma unroll 1
        for (int32_t q = lane % LANES; 4 * q < experts; q += LANES) {
#pragma unroll 1
            for (int32_t e = 4 * q; e < experts && e < 4 * q + 4; e++) ((REAL *)(rows + place * way.row_bytes))[e] = 0;
            ((REAL *)(memory + place * way.token_bytes))[q] = 0;
        }
    }
}

/* One of the SHARE lanes that choose for a token. It has NODES fours of the token's quads: `root` is the maximum of
 * each four, `parents` the maximum of each quad, `leaves` the probabilities. What was chosen is -1. */
template <typename REAL, int SHARE, int NODES> struct tegroup_impl_router_chooser {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_choice<REAL> choice;
    int32_t experts, fellow, begin;
    uint32_t before; /* the token's lanes in front of this one */
    REAL *tree, *parents, *leaves;
    REAL all, edge;         /* sum of exponentials; see tegroup_impl_router_edge */
    REAL chosen, last, gap; /* sum of choices; the last choice; the least step between two */
    REAL root[NODES];

    __device__ __forceinline__ tegroup_impl_router_chooser(const tegroup_impl_router_way &way,
                                                           const tegroup_impl_router_places &at, char *rows,
                                                           char *memory, int32_t experts_, bool halves)
        : experts(experts_) {
        const int32_t lane = (int32_t)threadIdx.x % 32;
        fellow = lane % SHARE;
        begin = 4 * (4 * NODES) * fellow;
        before = (1u << lane) - (1u << (lane - fellow));
        tree = (REAL *)(memory + lane / SHARE * way.token_bytes);
        parents = tree + begin / 4;
        leaves = (REAL *)(rows + lane / SHARE * way.row_bytes) + begin;
        const tegroup_impl_router_softmax<REAL> softmax = at.softmax_of(tree);
        all = softmax.divisor;
        edge = tegroup_impl_router_edge(all, softmax.largest, halves);
        chosen = all != all ? all : (REAL)0;
        last = gap = 2;
#pragma unroll
        for (int i = 0; i < NODES; i++)
            root[i] = 16 * (fellow * NODES + i) < experts ? tegroup_impl_quad_max(tegroup_impl_quad_at(parents + 4 * i))
                                                          : (REAL)-1;
    }
    __device__ __forceinline__ REAL best_of_mine() const {
        REAL mine = root[0];
#pragma unroll
        for (int i = 1; i < NODES; i++) mine = tegroup_impl_larger(mine, root[i]);
        return mine;
    }
    /* Makes a choice. Every lane finds its own best, and what would remain without it, before the token's lanes know
     * whose is taken: these steps depend on one another, while lanes are free. Of equals the first is taken, also
     * between lanes. */
    __device__ __forceinline__ void choose(choice *to) {
        const REAL mine = best_of_mine();
        const REAL best = tegroup_impl_lanes_max<REAL, SHARE>(mine);
        const bool taken = !(__ballot_sync(0xffffffffu, mine == best) & before) && mine == best;
        int32_t here = NODES - 1, q = 0, e = 0;
        REAL second = -1, next = -1;
        if (begin < experts) {
#pragma unroll
            for (int i = NODES - 2; i >= 0; i--)
                if (root[i] == mine) here = i;
            const quad above = tegroup_impl_quad_at(parents + 4 * here);
            q = 4 * here + tegroup_impl_quad_find(above, mine);
            const quad leaf = tegroup_impl_quad_at(leaves + 4 * q);
            e = 4 * q + tegroup_impl_quad_find(leaf, mine);
            second = tegroup_impl_quad_second(leaf);
            next = tegroup_impl_larger(tegroup_impl_quad_second(above), second);
        }
        chosen += best;
        gap = tegroup_impl_smaller(gap, last - best);
        last = best;
        if (taken) {
            *to = {best, begin + e};
            leaves[e] = -1;
            parents[q] = second;
        }
#pragma unroll
        for (int i = 0; i < NODES; i++) root[i] = taken && i == here ? next : root[i];
    }
    /* Notes the best that is left behind the last choice. Returns whether the choice may be wrong among equals. */
    __device__ __forceinline__ bool finish(choice *end) {
        const REAL rest = tegroup_impl_lanes_max<REAL, SHARE>(best_of_mine());
        if (fellow == 0) end->probability = rest;
        return tegroup_impl_smaller(gap, last - rest) == 0 && last * all < edge;
    }
};

/* The lanes choose for the batch's tokens. halves: see tegroup_impl_router_edge. */
template <typename REAL, int TOKENS, int QUADS>
static __device__ __forceinline__ void tegroup_impl_router_choose(const tegroup_router_desc &desc,
                                                                  const tegroup_impl_router_way &way,
                                                                  const tegroup_impl_router_places &at, char *rows,
                                                                  char *memory, int64_t first, int32_t live,
                                                                  bool halves) {
    enum { share = 32 / TOKENS };
    const int32_t lane = (int32_t)threadIdx.x % 32;
    tegroup_impl_router_chooser<REAL, share, QUADS / 4> my(way, at, rows, memory, desc.experts, halves);
    tegroup_impl_router_choice<REAL> *to = at.choices_of(my.tree), *const end = to + desc.k;
#pragma unroll 1
    for (; to != end; to++) my.choose(to);
    const bool doubt = my.finish(end) && my.fellow == 0 && lane / share < live;
    for (uint32_t left = __ballot_sync(0xffffffffu, doubt); left != 0; left &= left - 1) {
        const int32_t place = (__ffs((int)left) - 1) / share;
        tegroup_impl_router_untie(desc, first + place, (REAL *)(rows + place * way.row_bytes),
                                  at.choices_of((REAL *)(memory + place * way.token_bytes)));
    }
    __syncwarp(); /* all lanes have read `all` from there */
    if (my.fellow == 0) at.softmax_of(my.tree).divisor = desc.normalize || my.all != my.all ? my.chosen : (REAL)1;
}

/* Writes the batch's weights and indices, and counts them, as far as they are wanted. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_write(const tegroup_router_desc &desc,
                                                                 const tegroup_impl_router_way &way,
                                                                 const tegroup_impl_router_places &at, char *memory,
                                                                 uint32_t *histogram, int64_t first, int32_t live) {
    REAL *weights = tegroup_impl_router_fixed((REAL *)desc.weights.data + first * desc.weights.ld);
    char *indices = tegroup_impl_router_fixed(
        (char *)desc.indices.data + first * desc.indices.ld * (desc.indices.dtype == TEGROUP_DTYPE_I64 ? 8 : 4));
    const bool weighted = desc.weights.dtype != TEGROUP_DTYPE_UNSET;
    for (tegroup_impl_router_slots<1> slot(way); (int32_t)slot.place < live; slot.advance(way)) {
        REAL *token = (REAL *)(memory + slot.place * way.token_bytes);
        const tegroup_impl_router_choice<REAL> chosen = at.choices_of(token)[slot.choice];
        const int32_t e = chosen.expert;
        if (way.histogram) atomicAdd(&histogram[e], 1u);
        else tegroup_impl_add_count(desc.counts, e, 1);
        if (weighted)
            weights[slot.place * desc.weights.ld + slot.choice] =
                tegroup_impl_quotient(chosen.probability, at.softmax_of(token).divisor);
        tegroup_impl_store_int(desc.indices.dtype, indices, slot.place * desc.indices.ld + slot.choice, e);
    }
}

template <typename REAL, int LANES, int QUADS, int TURNS>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_ROUTER_WARPS,
                                         sizeof(REAL) == 8 || TURNS * QUADS > 16 ? 1 : 3)
    tegroup_impl_router_kernel(const __grid_constant__ tegroup_router_desc desc,
                               const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    enum { tokens = batch_of::tokens, quads = LANES * QUADS * tokens / 32 }; /* quads of a lane in choosing */
    const int32_t experts = desc.experts, room = (experts + 3) / 4 * 4, lane = (int32_t)threadIdx.x % 32,
                  warp = (int32_t)threadIdx.x / 32;
    const tegroup_impl_router_places at(room);
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    char *rows = tegroup_impl_router_memory() + way.block_bytes + warp * tokens * (way.row_bytes + way.token_bytes),
         *memory = rows + tokens * way.row_bytes;
    batch_of batch(way);

    batch.load(desc.logits, way.in);
    if (lane < tokens) /* what only fills up a quad is never chosen */
        for (int32_t q = room / 4; q % 4 != 0; q++) ((REAL *)(memory + lane * way.token_bytes))[q] = -1;
    if (way.histogram) {
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x) histogram[e] = 0;
        __syncthreads();
    }
    while (batch.live > 0) {
        const int64_t first = batch.first;
        const int32_t live = batch.live;
        REAL sum[TURNS];
        if (way.in == TEGROUP_IMPL_ROUTER_HALVES) {
            if (desc.logits.dtype == TEGROUP_DTYPE_BF16) batch.widen(true);
            else batch.widen(false);
        }
        batch.settle(desc.logits, way, rows, -(REAL)INFINITY);
        const bool halves = batch.halves(desc.logits.dtype);
        const REAL sums_of_all = tegroup_impl_router_exponentials(batch, way, at, memory, experts, sum);
        tegroup_impl_router_probabilities(batch, way, at, rows, memory, experts, sum);
        if (desc.probabilities.dtype != TEGROUP_DTYPE_UNSET)
            tegroup_impl_router_store(desc.probabilities, way, rows, way.row_bytes, first, live);
        tegroup_impl_router_store_done();
        batch.advance(way);
        batch.load(desc.logits, way.in); /* in flight while the lanes choose */
        if (lane < tokens)
            for (int32_t e = experts; e % 4 != 0; e++) ((REAL *)(rows + lane * way.row_bytes))[e] = -1;
        if (sums_of_all != sums_of_all)
            tegroup_impl_router_choose_first<REAL, LANES>(way, at, rows, memory, tokens, experts);
        __syncwarp();
        tegroup_impl_router_choose<REAL, tokens, quads>(desc, way, at, rows, memory, first, live, halves);
        __syncwarp();
        tegroup_impl_router_write<REAL>(desc, way, at, memory, histogram, first, live);
        __syncwarp();
    }
    if (way.histogram) {
        __syncthreads();
        for (int32_t e = (int32_t)threadIdx.x; e < experts; e += (int32_t)blockDim.x)
            if (gridDim.x == 1) tegroup_impl_store_int(desc.counts.dtype, desc.counts.data, e, histogram[e]);
            else if (histogram[e] != 0) tegroup_impl_add_count(desc.counts, e, histogram[e]);
    }
}

/* The sum of every eighth row of a column, from row `first` on. Many loads are in flight at a time. */
template <typename REAL>
static __device__ __forceinline__ double tegroup_impl_router_column(const tegroup_matrix &m, int64_t first,
                                                                    int64_t last, int32_t col) {
    const REAL *from = (const REAL *)m.data + col;
    double sum = 0;
#pragma unroll 16
    for (int64_t row = first; row < last; row += 8) sum += (double)from[row * m.ld];
    return sum;
}

/* Sums of 32 experts' probabilities over one run of tokens. blockIdx.x: the experts; blockIdx.y: the run. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_router_sums_kernel(const __grid_constant__ tegroup_router_desc desc) {
    __shared__ double part[8][32];
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32,
                  e = (int32_t)blockIdx.x * 32 + lane;
    const int64_t tokens = desc.probabilities.rows, each = tegroup_impl_ceil_div(tokens, TEGROUP_IMPL_ROUTER_RUNS),
                  first = (int64_t)blockIdx.y * each, last = tegroup_impl_min(tokens, first + each);
    double sum = 0;
    if (e < desc.experts)
        sum = desc.probabilities.dtype == TEGROUP_DTYPE_F32
                  ? tegroup_impl_router_column<float>(desc.probabilities, first + warp, last, e)
                  : tegroup_impl_router_column<double>(desc.probabilities, first + warp, last, e);
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
        loss +=
            (double)tegroup_impl_load_int(desc.counts.dtype, desc.counts.data, e) / (tokens * desc.k) * (mean / tokens);
    }
    part[thread] = loss;
    for (int32_t step = 512; step > 0; step /= 2) {
        __syncthreads();
        if (thread < step) part[thread] += part[thread + step];
    }
    if (thread == 0) *desc.balance_loss = desc.balance_coefficient * desc.experts * part[0];
}

/* ==== [10] Router kernels: the gradient (src/moe/router_gradient_cuda.h) ==== */

/* What the balance loss adds to the gradient of a quad of probabilities, the same in every row. */
template <typename REAL>
static __device__ __noinline__ tegroup_impl_quad<REAL> tegroup_impl_router_balance(
    const tegroup_router_backward_desc &desc, const tegroup_impl_router_way &way, int32_t q) {
    tegroup_impl_quad<REAL> v;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v.x[i] = desc.balance_coefficient != 0 && 4 * q + i < desc.experts
                     ? (REAL)way.per_count * (REAL)tegroup_impl_load_int(desc.counts.dtype, desc.counts.data, 4 * q + i)
                     : (REAL)0;
    return v;
}

/* An index as 32 bits: -1 if it is no expert's. */
static __device__ __forceinline__ int32_t tegroup_impl_expert(const tegroup_matrix &indices, int64_t token,
                                                              int64_t choice, int32_t experts) {
    const int64_t index = tegroup_impl_load_int(indices.dtype, indices.data, token * indices.ld + choice);
    return tegroup_impl_within(index, experts) ? (int32_t)index : -1;
}

/* Starts copying a batch's choices and the gradients of their weights, those of each token into its memory from `to`
 * on. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_choices(const tegroup_router_backward_desc &desc,
                                                                   const tegroup_impl_router_way &way, char *to,
                                                                   int64_t first, int32_t live) {
    const REAL *grad_weights =
        tegroup_impl_router_fixed((const REAL *)desc.grad_weights.data + first * desc.grad_weights.ld);
    const int32_t *indices = tegroup_impl_router_fixed((const int32_t *)desc.indices.data + first * desc.indices.ld);
    const bool wide = desc.indices.dtype == TEGROUP_DTYPE_I64;
    if (sizeof(REAL) == 4 && way.by_fours) {
        for (tegroup_impl_router_slots<4> slot(way); (int32_t)slot.place < live; slot.advance(way)) {
            REAL *grads = (REAL *)(to + slot.place * way.token_bytes);
            tegroup_impl_copy_soon((uint4 *)(grads + slot.choice),
                                   (const uint4 *)(grad_weights + (slot.place * desc.grad_weights.ld + slot.choice)));
            tegroup_impl_copy_soon((uint4 *)((int32_t *)(grads + desc.k) + slot.choice),
                                   (const uint4 *)(indices + (slot.place * desc.indices.ld + slot.choice)));
        }
        return;
    }
    for (tegroup_impl_router_slots<1> slot(way); (int32_t)slot.place < live; slot.advance(way)) {
        REAL *grads = (REAL *)(to + slot.place * way.token_bytes);
        tegroup_impl_copy_soon(grads + slot.choice, grad_weights + (slot.place * desc.grad_weights.ld + slot.choice));
        int32_t *to_index = (int32_t *)(grads + desc.k) + slot.choice;
        if (wide) *to_index = tegroup_impl_expert(desc.indices, first + slot.place, slot.choice, desc.experts);
        else tegroup_impl_copy_soon(to_index, indices + (slot.place * desc.indices.ld + slot.choice));
    }
}

static __device__ __forceinline__ void tegroup_impl_router_recall(const float *probabilities, int32_t experts,
                                                                  int32_t k, int32_t *indices, float *grad_weights) {
    tegroup_impl_router_recall_f32(probabilities, experts, k, indices, grad_weights);
}
static __device__ __forceinline__ void tegroup_impl_router_recall(const double *probabilities, int32_t experts,
                                                                  int32_t k, int32_t *indices, double *grad_weights) {
    tegroup_impl_router_recall_f64(probabilities, experts, k, indices, grad_weights);
}

/* Sums over what the lane's token chose: `chosen` of the probabilities, `dot` of the weights' gradients times these. If
 * weights were divided by the sum of all choices, those that were dropped after routing are recalled first. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_router_weigh(const tegroup_router_backward_desc &desc, bool live,
                                                                 const REAL *probabilities, int32_t *indices,
                                                                 REAL *grads, REAL &chosen, REAL &dot) {
    const int32_t experts = desc.experts, k = desc.k;
    while (live) {
        int32_t kept = 0;
        chosen = dot = 0;
#pragma unroll 8
        for (int32_t j = 0; j < k; j++) {
            const int32_t e = indices[j];
            const bool there = tegroup_impl_within(e, experts);
            const REAL p = there ? probabilities[e] : (REAL)0;
            kept += there;
            chosen += p;
            dot += there ? grads[j] * p : (REAL)0;
        }
        if (!desc.normalize || kept == 0 || kept == k) break; /* dropped choices do not count */
        tegroup_impl_router_recall(probabilities, experts, k, indices, grads);
    }
}

/* Turns a batch's probabilities into the gradients of its logits. gradients: rows of the probabilities' gradients. */
template <typename REAL, int LANES, int QUADS, int TURNS>
static __device__ __forceinline__ void tegroup_impl_router_through_softmax(
    tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> &batch, const char *gradients, int32_t pitch,
    int32_t experts) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    REAL mean[TURNS]; /* for all tokens first, as these sums wait for other lanes */
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const quad *row = (const quad *)(gradients + batch_of::place(turn) * pitch);
        quad sums = {{0, 0, 0, 0}};
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = batch_of::quad_of(j);
            quad grad = {{0, 0, 0, 0}};
            if (4 * q < experts) grad = row[q];
#pragma unroll
            for (int i = 0; i < 4; i++) sums.x[i] = fma(batch.v[turn][j].x[i], grad.x[i], sums.x[i]);
        }
        mean[turn] = tegroup_impl_lanes_sum<REAL, LANES>(tegroup_impl_quad_sum(sums));
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        const quad *row = (const quad *)(gradients + batch_of::place(turn) * pitch);
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = batch_of::quad_of(j);
            quad grad = {{0, 0, 0, 0}};
            if (4 * q < experts) grad = row[q];
#pragma unroll
            for (int i = 0; i < 4; i++) batch.v[turn][j].x[i] *= grad.x[i] - mean[turn];
        }
    }
}

/* Each lane of a warp makes, in shared memory, the gradients by expert of one token of the batch, on top of what the
 * balance loss adds. Then LANES lanes a token take them through the softmax. */
template <typename REAL, int LANES, int QUADS, int TURNS>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_ROUTER_WARPS,
                                         sizeof(REAL) == 8 || TURNS * QUADS > 16 ? 1 : 3)
    tegroup_impl_router_grad_kernel(const __grid_constant__ tegroup_router_backward_desc desc,
                                    const __grid_constant__ tegroup_impl_router_way way) {
    typedef tegroup_impl_quad<REAL> quad;
    typedef tegroup_impl_router_batch<REAL, LANES, QUADS, TURNS> batch_of;
    enum { tokens = batch_of::tokens };
    const int32_t experts = desc.experts, k = desc.k, room = (experts + 3) / 4 * 4, lane = (int32_t)threadIdx.x % 32,
                  warp = (int32_t)threadIdx.x / 32, out_bytes = room * (tegroup_impl_bits(desc.grad_logits.dtype) / 8),
                  in_bytes = room * (int32_t)sizeof(REAL), gradient_bytes = way.row_bytes - in_bytes;
    quad *balances = (quad *)(void *)tegroup_impl_router_memory();
    /* of the batch: gradients by expert; probabilities; for each token its choices and the gradients of their
     * weights */
    char *rows = tegroup_impl_router_memory() + way.block_bytes + warp * tokens * (way.row_bytes + way.token_bytes),
         *probabilities = rows + tokens * way.row_bytes - tokens * in_bytes, *memory = rows + tokens * way.row_bytes;
    __shared__ uint64_t barriers[TEGROUP_IMPL_ROUTER_WARPS];
    uint64_t *barrier = barriers + warp;
    uint32_t parity = 0;
    batch_of batch(way);

#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                     "fence.proxy.async.shared::cta;" ::"r"((uint32_t)__cvta_generic_to_shared(barrier))
                     : "memory");
    __syncwarp();
#endif
    tegroup_impl_router_fetch(desc.probabilities, way, probabilities, in_bytes, barrier, batch.first, batch.live);
    tegroup_impl_router_choices<REAL>(desc, way, memory, batch.first, batch.live);
    for (int32_t q = (int32_t)threadIdx.x; way.block_bytes != 0 && 4 * q < experts; q += (int32_t)blockDim.x)
        balances[q] = tegroup_impl_router_balance<REAL>(desc, way, q);
    __syncthreads();
    while (batch.live > 0) {
        const int64_t first = batch.first;
        const int32_t live = batch.live;
        /* of the lane's token */
        REAL *gradient = (REAL *)(rows + lane * gradient_bytes), chosen = 0, dot = 0;
        const REAL *from = (const REAL *)(probabilities + lane * in_bytes);
        REAL *grads = (REAL *)(memory + lane * way.token_bytes);
        int32_t *indices = (int32_t *)(grads + k);
        tegroup_impl_router_fetched(way, barrier, parity);
        parity ^= 1;
        batch.read(probabilities, in_bytes, experts);
        tegroup_impl_router_weigh(desc, lane < live, from, indices, grads, chosen, dot);
        tegroup_impl_router_store_done();
#pragma unroll
        for (int j = 0; j < QUADS; j++) {
            const int32_t q = batch_of::quad_of(j);
            if (4 * q >= experts) continue;
            const quad balance = way.block_bytes != 0 ? balances[q] : tegroup_impl_router_balance<REAL>(desc, way, q);
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
                ((quad *)(rows + batch_of::place(turn) * gradient_bytes))[q] = balance;
        }
        __syncwarp();
        if (lane < live)
            for (int32_t j = 0; j < k; j++) {
                const int32_t e = indices[j];
                if (tegroup_impl_within(e, experts))
                    gradient[e] += tegroup_impl_choice_grad(grads[j], dot, chosen, desc.normalize);
            }
        batch.advance(way);
        __syncwarp();
        tegroup_impl_router_fetch(desc.probabilities, way, probabilities, in_bytes, barrier, batch.first, batch.live);
        tegroup_impl_router_choices<REAL>(desc, way, memory, batch.first, batch.live);
        tegroup_impl_router_through_softmax(batch, rows, gradient_bytes, experts);
        __syncwarp(); /* every row has been read; results overwrite them */
        batch.put(desc.grad_logits, rows, out_bytes);
        tegroup_impl_router_store(desc.grad_logits, way, rows, out_bytes, first, live);
    }
    tegroup_impl_router_store_done();
}

/* ==== [11] Router kernels: schemes (src/moe/router_scheme_cuda.h) ==== */

/* A warp takes a token at a time. Lane l has experts l, l + 32, ...: scores and keys lie in the warp's shared memory.
 * To choose, a lane sorts up to EACH keys of floats in its registers, and the warp's largest is one instruction (from
 * SM80 on). Where keys are close to equal, for doubles, and for more than 1,024 experts each lane knows the best of its
 * own, and the one whose best is taken searches its own again. */
enum { TEGROUP_IMPL_SCHEME_WARPS = 8 };

/* A loop over the lane's elements of a row. All lanes go round equally often, so that the warp stays together: where
 * lanes left a loop one after another, it went on in parts, and ran the code behind the loop two or three times (nvcc
 * 13.0). */
#define TEGROUP_IMPL_OF_LANE(i, count)                                                                                 \
    for (int32_t i = (int32_t)threadIdx.x % 32, round_of_##i = 0; round_of_##i < (count); round_of_##i += 32, i += 32) \
        if (i >= (count)) {                                                                                            \
        } else

/* How many elements of a row a lane loads before it uses the first; each: keys that it sorts. */
#define TEGROUP_IMPL_AT_ONCE(real, each) (sizeof(real) == 8 ? 2 : (each) == 4 ? 4 : 8)

/* Where the parts of what a call's kernels hand on lie, and what a warp has in shared memory. */
typedef struct tegroup_impl_scheme_way {
    double *totals, *logsumexp, *sums, *losses; /* NULL: not wanted */
    int64_t *counts;                            /* likewise: assignments of each sequence */
    int32_t histogram, room;                    /* assignments are counted a block at a time; experts of a row */
} tegroup_impl_scheme_way;

static __device__ __forceinline__ tegroup_impl_key_f32 tegroup_impl_key_of(float x) {
    return tegroup_impl_key_of_f32(x);
}
static __device__ __forceinline__ float tegroup_impl_exp(float x) { return tegroup_impl_exp_f32(x); }
static __device__ __forceinline__ float tegroup_impl_score(tegroup_score score, float x) {
    return tegroup_impl_score_f32(score, x);
}
static __device__ __forceinline__ float tegroup_impl_score_grad(tegroup_score score, float s, float grad_log) {
    return tegroup_impl_score_grad_f32(score, s, grad_log);
}
/* Not inlined: most kernels need it only where keys are close to equal. */
static __device__ __noinline__ int32_t tegroup_impl_best(const tegroup_impl_key_f32 *keys, tegroup_dtype dtype,
                                                         const void *logits, int32_t first, int32_t experts) {
    return tegroup_impl_best_f32(keys, dtype, logits, first, 32, experts);
}
/* A logit's key, 0 where logits do not count. */
static __device__ __forceinline__ tegroup_impl_key_f32 tegroup_impl_tie(tegroup_dtype dtype, const void *logits,
                                                                         int32_t e, float) {
    return logits ? tegroup_impl_key_of_f32(tegroup_impl_load_f32(dtype, logits, e)) : 0;
}
static __device__ __forceinline__ tegroup_impl_key_f32 tegroup_impl_group_key(tegroup_group_score score, int32_t size,
                                                                               tegroup_impl_key_f32 first,
                                                                               tegroup_impl_key_f32 second) {
    return tegroup_impl_group_key_f32(score, size, first, second);
}
static __device__ __forceinline__ void tegroup_impl_two_largest(tegroup_impl_key_f32 key, tegroup_impl_key_f32 &first,
                                                                tegroup_impl_key_f32 &second) {
    tegroup_impl_two_largest_f32(key, &first, &second);
}
static __device__ __forceinline__ int tegroup_impl_group_stays(const tegroup_router_scheme &s,
                                                               const tegroup_impl_key_f32 *groups, int32_t g) {
    return tegroup_impl_group_stays_f32(&s, groups, g);
}
static __device__ __forceinline__ float tegroup_impl_scheme_weight(const tegroup_router_scheme &s, float score,
                                                                  float divisor) {
    return tegroup_impl_scheme_weight_f32(&s, score, divisor);
}

static __device__ __forceinline__ tegroup_impl_key_f64 tegroup_impl_key_of(double x) {
    return tegroup_impl_key_of_f64(x);
}
static __device__ __forceinline__ double tegroup_impl_exp(double x) { return tegroup_impl_exp_f64(x); }
static __device__ __forceinline__ double tegroup_impl_score(tegroup_score score, double x) {
    return tegroup_impl_score_f64(score, x);
}
static __device__ __forceinline__ double tegroup_impl_score_grad(tegroup_score score, double s, double grad_log) {
    return tegroup_impl_score_grad_f64(score, s, grad_log);
}
/* Not inlined: most kernels need it only where keys are close to equal. */
static __device__ __noinline__ int32_t tegroup_impl_best(const tegroup_impl_key_f64 *keys, tegroup_dtype dtype,
                                                         const void *logits, int32_t first, int32_t experts) {
    return tegroup_impl_best_f64(keys, dtype, logits, first, 32, experts);
}
/* A logit's key, 0 where logits do not count. */
static __device__ __forceinline__ tegroup_impl_key_f64 tegroup_impl_tie(tegroup_dtype dtype, const void *logits,
                                                                         int32_t e, double) {
    return logits ? tegroup_impl_key_of_f64(tegroup_impl_load_f64(dtype, logits, e)) : 0;
}
static __device__ __forceinline__ tegroup_impl_key_f64 tegroup_impl_group_key(tegroup_group_score score, int32_t size,
                                                                               tegroup_impl_key_f64 first,
                                                                               tegroup_impl_key_f64 second) {
    return tegroup_impl_group_key_f64(score, size, first, second);
}
static __device__ __forceinline__ void tegroup_impl_two_largest(tegroup_impl_key_f64 key, tegroup_impl_key_f64 &first,
                                                                tegroup_impl_key_f64 &second) {
    tegroup_impl_two_largest_f64(key, &first, &second);
}
static __device__ __forceinline__ int tegroup_impl_group_stays(const tegroup_router_scheme &s,
                                                               const tegroup_impl_key_f64 *groups, int32_t g) {
    return tegroup_impl_group_stays_f64(&s, groups, g);
}
static __device__ __forceinline__ double tegroup_impl_scheme_weight(const tegroup_router_scheme &s, double score,
                                                                  double divisor) {
    return tegroup_impl_scheme_weight_f64(&s, score, divisor);
}

/* The largest of the lanes' values. */
static __device__ __forceinline__ uint32_t tegroup_impl_lanes_most(uint32_t x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, x);
#else
    for (int step = 16; step > 0; step /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
    return x;
#endif
}
static __device__ __forceinline__ uint64_t tegroup_impl_lanes_most(uint64_t x) {
    for (int step = 16; step > 0; step /= 2) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)x, step);
        x = other > x ? other : x;
    }
    return x;
}

/* Numbers of one type in another. These instructions keep what is subnormal, whatever the compiler is told. */
static __device__ __forceinline__ float tegroup_impl_real_as(float x, float) { return x; }
static __device__ __forceinline__ double tegroup_impl_real_as(double x, double) { return x; }
static __device__ __forceinline__ float tegroup_impl_real_as(double x, float) {
    float y;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x));
    return y;
}
static __device__ __forceinline__ double tegroup_impl_real_as(float x, double) {
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}
static __device__ __forceinline__ uint16_t tegroup_impl_half_as(float x, bool bf16) {
    return (uint16_t)tegroup_impl_two_halves(x, 0, bf16);
}
static __device__ __forceinline__ uint16_t tegroup_impl_half_as(double x, bool bf16) {
    const float odd = tegroup_impl_f32_odd_of_f64(x);
    return bf16 ? tegroup_impl_bf16_of_f32(odd) : tegroup_impl_f16_of_f32(odd);
}

/* Loads N elements of a row, 32 apart; those at `count` and beyond are 0. All are under way before one is used. */
template <int N, typename T>
static __device__ __forceinline__ void tegroup_impl_load_apart(const T *row, int32_t first, int32_t count, T *x) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = first + 32 * i < count ? row[first + 32 * i] : (T)0;
}
/* Stores N elements in the same places; those at `count` and beyond are left alone. */
template <int N, typename T>
static __device__ __forceinline__ void tegroup_impl_store_apart(T *row, int32_t first, int32_t count, const T *x) {
#pragma unroll
    for (int i = 0; i < N; i++)
        if (first + 32 * i < count) row[first + 32 * i] = x[i];
}

/* Loads elements of a matrix's row, whose type is looked at once. */
template <int N, typename REAL>
static __device__ __forceinline__ void tegroup_impl_load_row(const tegroup_matrix &m, const void *row, int32_t first,
                                                             int32_t count, REAL *x) {
    if (m.dtype == TEGROUP_DTYPE_F32) {
        float raw[N];
        tegroup_impl_load_apart<N>((const float *)row, first, count, raw);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = tegroup_impl_real_as(raw[i], (REAL)0);
    } else if (m.dtype == TEGROUP_DTYPE_F64) {
        double raw[N];
        tegroup_impl_load_apart<N>((const double *)row, first, count, raw);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = tegroup_impl_real_as(raw[i], (REAL)0);
    } else {
        uint16_t raw[N];
        const bool bf16 = m.dtype == TEGROUP_DTYPE_BF16;
        tegroup_impl_load_apart<N>((const uint16_t *)row, first, count, raw);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = tegroup_impl_real_as(tegroup_impl_low_half(raw[i], bf16), (REAL)0);
    }
}

/* Stores numbers in a matrix's row, rounded to its type. */
template <int N, typename REAL>
static __device__ __forceinline__ void tegroup_impl_store_row(const tegroup_matrix &m, void *row, int32_t first,
                                                              int32_t count, const REAL *x) {
#define TEGROUP_IMPL_STORE(type, value)                                                                                \
    _Pragma("unroll") for (int i = 0; i < N; i++) if (first + 32 * i < count)((type *)row)[first + 32 * i] = value;
    if (m.dtype == TEGROUP_DTYPE_F32) {
        TEGROUP_IMPL_STORE(float, tegroup_impl_real_as(x[i], 0.0f))
    } else if (m.dtype == TEGROUP_DTYPE_F64) {
        TEGROUP_IMPL_STORE(double, tegroup_impl_real_as(x[i], 0.0))
    } else {
        const bool bf16 = m.dtype == TEGROUP_DTYPE_BF16;
        TEGROUP_IMPL_STORE(uint16_t, tegroup_impl_half_as(x[i], bf16))
    }
#undef TEGROUP_IMPL_STORE
}

/* What a warp has of a token in shared memory: a row of scores or of their gradients, a row of keys, the keys of
 * groups, and its choices. */
template <typename REAL, typename KEY> struct tegroup_impl_scheme_token {
    REAL *row;
    KEY *keys, *groups;
    int32_t *indices;

    static __host__ __device__ __forceinline__ int32_t bytes(int32_t room) {
        return room * (int32_t)(sizeof(REAL) + sizeof(KEY)) + TEGROUP_IMPL_EXPERT_GROUPS * (int32_t)sizeof(KEY)
               + TEGROUP_IMPL_CHOICES * 4;
    }
    __device__ __forceinline__ tegroup_impl_scheme_token(char *memory, int32_t room) {
        keys = (KEY *)(memory + (int32_t)threadIdx.x / 32 * bytes(room));
        groups = keys + room;
        row = (REAL *)(groups + TEGROUP_IMPL_EXPERT_GROUPS);
        indices = (int32_t *)(row + room);
    }

    /* Keys of scores, 0 for the experts of groups that do not stay. */
    template <int AT_ONCE> __device__ __forceinline__ void rank(const tegroup_router_scheme &s, int32_t experts) {
        for (int32_t base = 0; base < experts; base += 32 * AT_ONCE) {
            const int32_t first = base + (int32_t)threadIdx.x % 32;
            REAL score[AT_ONCE], bias[AT_ONCE] = {0};
            KEY key[AT_ONCE];
            if (s.bias.dtype != TEGROUP_DTYPE_UNSET)
                tegroup_impl_load_row<AT_ONCE>(s.bias, s.bias.data, first, experts, bias);
            tegroup_impl_load_apart<AT_ONCE>(row, first, experts, score);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) key[i] = tegroup_impl_key_of(score[i] + bias[i]);
            tegroup_impl_store_apart<AT_ONCE>(keys, first, experts, key);
        }
        __syncwarp();
        if (s.n_group != 0) drop_groups(s, experts / s.n_group);
    }
    /* Sets the keys of groups that do not stay to 0. 2^shift lanes share a group, as many as there are for each, and
     * take turns at its experts. Each group's lanes begin at another turn, as those of groups of 32 experts would meet
     * in a bank otherwise. */
    __device__ __forceinline__ void drop_groups(const tegroup_router_scheme &s, int32_t size) {
        const int32_t lane = (int32_t)threadIdx.x % 32;
        int32_t shift = 0;
        while (s.n_group <= 16 >> shift) shift++;
        const int32_t turns = (size + (1 << shift) - 1) >> shift, mine = lane & ((1 << shift) - 1);
        for (int32_t base = 0; base < s.n_group; base += 32 >> shift) {
            const int32_t g = base + (lane >> shift);
            int32_t turn = min(lane >> shift, turns - 1);
            KEY first = 0, second = 0;
#pragma unroll 4
            for (int32_t i = 0; i < turns; i++) {
                const int32_t e = (turn << shift) + mine;
                tegroup_impl_two_largest(g < s.n_group && e < size ? keys[g * size + e] : (KEY)0, first, second);
                turn = turn + 1 < turns ? turn + 1 : 0;
            }
            for (int32_t other = 1; other < 1 << shift; other *= 2) {
                const KEY most = __shfl_xor_sync(0xffffffffu, first, other),
                          rest = __shfl_xor_sync(0xffffffffu, second, other);
                tegroup_impl_two_largest(most, first, second);
                tegroup_impl_two_largest(rest, first, second);
            }
            if (g < s.n_group && mine == 0) groups[g] = tegroup_impl_group_key(s.group_score, size, first, second);
        }
        __syncwarp();
        for (int32_t base = 0; base < s.n_group; base += 32 >> shift) {
            const int32_t g = base + (lane >> shift);
            const bool drops = g < s.n_group && !tegroup_impl_group_stays(s, groups, g);
            int32_t turn = min(lane >> shift, turns - 1);
#pragma unroll 4
            for (int32_t i = 0; i < turns; i++) {
                const int32_t e = (turn << shift) + mine;
                if (drops && e < size) keys[g * size + e] = 0;
                turn = turn + 1 < turns ? turn + 1 : 0;
            }
        }
        __syncwarp();
    }
    /* Fills up the choices: each that is -1 becomes the best expert that is not among them. */
    __device__ __forceinline__ void choose(int32_t experts, int32_t k, tegroup_dtype dtype, const void *logits) {
        const int32_t lane = (int32_t)threadIdx.x % 32;
        TEGROUP_IMPL_OF_LANE(j, k)
            if (indices[j] >= 0) keys[indices[j]] = 0;
        __syncwarp();
        int32_t mine = tegroup_impl_best(keys, dtype, logits, lane, experts);
        KEY key = mine >= 0 ? keys[mine] : 0;
#pragma unroll 1
        for (int32_t j = 0; j < k; j++) {
            if (indices[j] >= 0) continue; /* the same for all lanes */
            const KEY most = tegroup_impl_lanes_most(key);
            uint32_t equal = __ballot_sync(0xffffffffu, key == most && key != 0);
            if ((equal & (equal - 1)) != 0) { /* several lanes: the larger logit, then the lower expert */
                const bool mine_too = equal >> lane & 1;
                const KEY tie = mine_too && most != 1 ? tegroup_impl_tie(dtype, logits, mine, (REAL)0) : 0,
                          largest = tegroup_impl_lanes_most(tie);
                const uint32_t first =
                    ~tegroup_impl_lanes_most(mine_too && tie == largest ? ~(uint32_t)mine : 0u);
                equal = __ballot_sync(0xffffffffu, mine_too && (uint32_t)mine == first);
            }
            __syncwarp(); /* every lane has seen that there was no choice yet */
            if (equal >> lane & 1) {
                indices[j] = mine;
                keys[mine] = 0;
                mine = tegroup_impl_best(keys, dtype, logits, lane, experts);
                key = mine >= 0 ? keys[mine] : 0;
            }
            __syncwarp();
        }
    }
};

/* Sorts a lane's numbers, the largest first: Batcher's network, which merges runs of RUN numbers by comparing those
 * that are APART. */
template <int N, int RUN = 1, int APART = 1, bool MORE = (RUN < N)> struct tegroup_impl_sort_down {
    static __device__ __forceinline__ void sort(uint32_t *x) {
#pragma unroll
        for (int i = APART % RUN; i + APART < N; i++)
            if ((i - APART % RUN) / APART % 2 == 0 && i / (2 * RUN) == (i + APART) / (2 * RUN)) {
                const uint32_t larger = max(x[i], x[i + APART]);
                x[i + APART] = min(x[i], x[i + APART]);
                x[i] = larger;
            }
        tegroup_impl_sort_down<N, (APART > 1 ? RUN : 2 * RUN), (APART > 1 ? APART / 2 : 2 * RUN)>::sort(x);
    }
};
template <int N, int RUN, int APART> struct tegroup_impl_sort_down<N, RUN, APART, false> {
    static __device__ __forceinline__ void sort(uint32_t *) {}
};

/* Makes choices from up to EACH keys a lane. A lane sorts its keys in registers; the one that has the warp's largest
 * gives it up, and its other keys move up by one. The lowest bits of a key are replaced by its number in the lane. Two
 * keys that differ in these alone have no known order: the first such choice and all after it stay -1. Returns how many
 * choices were made. */
template <int EACH>
static __device__ __forceinline__ int32_t tegroup_impl_scheme_take(const uint32_t *keys, int32_t *indices,
                                                                   int32_t experts, int32_t k) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    uint32_t key[EACH], last = 0;
    bool mine = false;
    if (experts > 32 * EACH) return 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        key[i] = lane + 32 * i < experts ? (keys[lane + 32 * i] & ~(uint32_t)(EACH - 1)) | (uint32_t)i : 0;
    tegroup_impl_sort_down<EACH>::sort(key);
#pragma unroll 1
    for (int32_t j = 0; j <= k; j++) { /* one round more: the next key tells whether the last choice was sure */
        const uint32_t most = tegroup_impl_lanes_most(key[0]);
        if (j > 0 && (most ^ last) < EACH) {
            if (mine) indices[j - 1] = -1;
            return j - 1;
        }
        mine = key[0] == most;
        const uint32_t lanes = __ballot_sync(0xffffffffu, mine);
        if (j == k || most < EACH || (lanes & (lanes - 1)) != 0)
            return j; /* no number is left, or several lanes have it */
        if (mine) {
            indices[j] = lane + 32 * (int32_t)(most % EACH);
#pragma unroll
            for (int i = 1; i < EACH; i++) key[i - 1] = key[i];
            key[EACH - 1] = 0;
        }
        last = most;
    }
    return k;
}
template <int EACH>
static __device__ __forceinline__ int32_t tegroup_impl_scheme_take(const uint64_t *, int32_t *, int32_t, int32_t) {
    return 0;
}

/* A row of a matrix to shared memory, zeros where there is none. */
template <int AT_ONCE, typename REAL>
static __device__ __forceinline__ void tegroup_impl_scheme_read_row(const tegroup_matrix &m, int64_t token, bool there,
                                                                    REAL *row) {
    const int32_t experts = (int32_t)m.cols;
    const char *const from = tegroup_impl_matrix_row(&m, token);
    for (int32_t base = 0; base < experts; base += 32 * AT_ONCE) {
        const int32_t first = base + (int32_t)threadIdx.x % 32;
        REAL x[AT_ONCE];
        tegroup_impl_load_row<AT_ONCE>(m, from, first, there ? experts : 0, x);
        tegroup_impl_store_apart<AT_ONCE>(row, first, experts, x);
    }
}

/* The lanes' largest logit, and the sum of exp(logit - largest). Each lane reads only what it wrote itself. */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_scheme_exponentials(const REAL *logits, int32_t experts,
                                                                        REAL &largest) {
    REAL sum = 0;
    largest = -(REAL)INFINITY;
    TEGROUP_IMPL_OF_LANE(e, experts) largest = tegroup_impl_larger(largest, logits[e]);
    largest = tegroup_impl_lanes_max<REAL, 32>(largest);
    TEGROUP_IMPL_OF_LANE(e, experts) sum += tegroup_impl_exp(logits[e] - largest);
    return tegroup_impl_lanes_sum<REAL, 32>(sum);
}

/* The scores of a token's logits, 0 where it is padding, and what the losses need of them. */
template <int AT_ONCE, typename REAL>
static __device__ __forceinline__ void tegroup_impl_scheme_scores(const tegroup_router_desc &desc,
                                                                  const tegroup_impl_scheme_way &way, int64_t token,
                                                                  bool there, REAL *scores) {
    const tegroup_score score = desc.scheme.score;
    const int32_t lane = (int32_t)threadIdx.x % 32, experts = desc.experts;
    const bool softmax = score == TEGROUP_SCORE_SOFTMAX;
    REAL largest = 0, sum = 1, total = 0;
    tegroup_impl_scheme_read_row<AT_ONCE>(desc.logits, token, there, scores);
    if (there && (softmax || way.logsumexp)) sum = tegroup_impl_scheme_exponentials(scores, experts, largest);
    if (there && score == TEGROUP_SCORE_SIGMOID) {
        for (int32_t base = 0; base < experts; base += 32 * AT_ONCE) {
            REAL x[AT_ONCE];
            tegroup_impl_load_apart<AT_ONCE>(scores, base + lane, experts, x);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) x[i] = tegroup_impl_score(TEGROUP_SCORE_SIGMOID, x[i]);
            tegroup_impl_store_apart<AT_ONCE>(scores, base + lane, experts, x);
        }
    } else if (there) {
#pragma unroll 1
        TEGROUP_IMPL_OF_LANE(e, experts)
            scores[e] = softmax ? tegroup_impl_exp(scores[e] - largest) / sum
                                : tegroup_impl_score(TEGROUP_SCORE_SQRT_SOFTPLUS, scores[e]);
    }
    if (way.totals) {
        TEGROUP_IMPL_OF_LANE(e, experts) total += scores[e];
        total = softmax ? (REAL)1 : tegroup_impl_lanes_sum<REAL, 32>(total);
        if (lane == 0) way.totals[token] = total == 0 ? 1.0 : (double)total;
    }
    if (way.logsumexp && lane == 0) way.logsumexp[token] = there ? (double)largest + log((double)sum) : 0.0;
    __syncwarp();
}

/* What a token's weights are divided by. */
template <typename REAL>
static __device__ __forceinline__ REAL tegroup_impl_scheme_divisor(const tegroup_router_scheme &s, int32_t normalize,
                                                                   int32_t k, const int32_t *indices,
                                                                   const REAL *scores) {
    REAL sum = 0;
    if (!normalize) return 1;
    TEGROUP_IMPL_OF_LANE(j, k)
        if (indices[j] >= 0) sum += scores[indices[j]];
    return tegroup_impl_lanes_sum<REAL, 32>(sum) + (REAL)s.normalize_epsilon;
}

template <typename REAL, typename KEY, int EACH>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_SCHEME_WARPS, EACH < 32 ? 4 : 2)
    tegroup_impl_scheme_kernel(const __grid_constant__ tegroup_router_desc desc,
                               const __grid_constant__ tegroup_impl_scheme_way way) {
    const tegroup_router_scheme &s = desc.scheme;
    enum { AT_ONCE = TEGROUP_IMPL_AT_ONCE(REAL, EACH) };
    const int32_t experts = desc.experts, k = desc.k, lane = (int32_t)threadIdx.x % 32,
                  warps = (int32_t)blockDim.x / 32;
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    tegroup_impl_scheme_token<REAL, KEY> my(
        tegroup_impl_router_memory() + (way.histogram ? 4 * way.room : 0), way.room);
    for (int32_t e = (int32_t)threadIdx.x; way.histogram && e < experts; e += (int32_t)blockDim.x) histogram[e] = 0;
    __syncthreads();
    for (int64_t token = (int64_t)blockIdx.x * warps + threadIdx.x / 32; token < desc.logits.rows;
         token += (int64_t)gridDim.x * warps) {
        const bool there = tegroup_impl_token_there(&s, token), given = s.given_indices.dtype != TEGROUP_DTYPE_UNSET;
        tegroup_impl_scheme_scores<AT_ONCE>(desc, way, token, there, my.row);
#pragma unroll 1
        TEGROUP_IMPL_OF_LANE(j, k)
            my.indices[j] = there && given ? tegroup_impl_index(&s.given_indices, token, j, experts) : -1;
        __syncwarp();
        if (there && !given) {
            my.template rank<AT_ONCE>(s, experts);
            if (tegroup_impl_scheme_take<EACH>(my.keys, my.indices, experts, k) < k) {
                __syncwarp();
                my.choose(experts, k, desc.logits.dtype, tegroup_impl_matrix_row(&desc.logits, token));
            }
            __syncwarp();
        }
        const REAL divisor = tegroup_impl_scheme_divisor(s, desc.normalize, k, my.indices, my.row);
#pragma unroll 1
        TEGROUP_IMPL_OF_LANE(j, k) {
            const int32_t e = my.indices[j];
            tegroup_impl_store_int(desc.indices.dtype, tegroup_impl_matrix_row(&desc.indices, token), j, e);
            if (desc.weights.dtype != TEGROUP_DTYPE_UNSET)
                ((REAL *)tegroup_impl_matrix_row(&desc.weights, token))[j] =
                    e < 0 ? (REAL)0 : tegroup_impl_scheme_weight(s, my.row[e], divisor);
            if (e >= 0 && way.histogram) atomicAdd(&histogram[e], 1u);
            else if (e >= 0) tegroup_impl_add_count(desc.counts, e, 1);
        }
        if (desc.probabilities.dtype != TEGROUP_DTYPE_UNSET) {
            REAL *const probabilities = (REAL *)tegroup_impl_matrix_row(&desc.probabilities, token);
            for (int32_t base = 0; base < experts; base += 32 * AT_ONCE)
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    if (base + 32 * i + lane < experts)
                        probabilities[base + 32 * i + lane] = my.row[base + 32 * i + lane];
        }
        __syncwarp();
    }
    __syncthreads();
    for (int32_t e = (int32_t)threadIdx.x; way.histogram && e < experts; e += (int32_t)blockDim.x)
        if (histogram[e] != 0) tegroup_impl_add_count(desc.counts, e, histogram[e]);
}

/* ==== [12] Router kernels: losses (src/moe/router_losses_cuda.h) ==== */

/* The tokens of run number `at`, where each sequence is cut into `runs` runs. */
struct tegroup_impl_scheme_run {
    int64_t sequence, first, last;
    __device__ __forceinline__ tegroup_impl_scheme_run(const tegroup_router_desc &desc, int64_t runs, int64_t at) {
        const int64_t length = tegroup_impl_sequence_length(&desc.scheme, desc.logits.rows),
                      each = tegroup_impl_ceil_div(length, runs);
        sequence = at / runs;
        first = sequence * length + tegroup_impl_min(length, at % runs * each);
        last = sequence * length + tegroup_impl_min(length, (at % runs + 1) * each);
    }
};

enum { TEGROUP_IMPL_SCHEME_COUNTED = 256 }; /* tokens whose assignments a block counts, one a thread */

/* Counts the assignments of each run; all: the runs of all sequences. Sums of integers are the same in whatever order
 * they are added. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_SCHEME_COUNTED)
    tegroup_impl_scheme_counts_kernel(const __grid_constant__ tegroup_router_desc desc,
                                      const __grid_constant__ tegroup_impl_scheme_way way, int64_t runs, int64_t all) {
    uint32_t *histogram = (uint32_t *)tegroup_impl_router_memory();
    for (int64_t at = blockIdx.x; at < all; at += gridDim.x) {
        const tegroup_impl_scheme_run run(desc, runs, at);
        for (int32_t e = (int32_t)threadIdx.x; e < desc.experts; e += (int32_t)blockDim.x) histogram[e] = 0;
        __syncthreads();
        for (int64_t t = run.first + threadIdx.x; t < run.last; t += blockDim.x)
            for (int32_t j = 0; j < desc.k; j++) {
                const int32_t e = tegroup_impl_index(&desc.indices, t, j, desc.experts);
                if (e >= 0) atomicAdd(&histogram[e], 1u);
            }
        __syncthreads();
        for (int32_t e = (int32_t)threadIdx.x; e < desc.experts; e += (int32_t)blockDim.x)
            if (histogram[e] != 0)
                atomicAdd((unsigned long long *)way.counts + run.sequence * desc.experts + e,
                          (unsigned long long)histogram[e]);
        __syncthreads();
    }
}

/* Sums of 32 experts' shares over a run of tokens, and behind the last expert of the squares of logsumexp. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_scheme_sums_kernel(const __grid_constant__ tegroup_router_desc desc,
                                    const __grid_constant__ tegroup_impl_scheme_way way, int64_t runs, int64_t all) {
    __shared__ double part[8][32];
    const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32,
                  e = (int32_t)blockIdx.x * 32 + lane;
    const tegroup_matrix &p = desc.probabilities;
    for (int64_t at = blockIdx.y; at < all; at += gridDim.y) {
        const tegroup_impl_scheme_run run(desc, runs, at);
        double sum = 0;
        if (e < desc.experts && desc.balance_loss)
            for (int64_t t = run.first + warp; t < run.last; t += 8)
                sum += (p.dtype == TEGROUP_DTYPE_F32 ? (double)((const float *)p.data)[t * p.ld + e]
                                                     : ((const double *)p.data)[t * p.ld + e])
                       / way.totals[t];
        if (e == desc.experts && way.logsumexp)
            for (int64_t t = run.first + warp; t < run.last; t += 8) sum += way.logsumexp[t] * way.logsumexp[t];
        part[warp][lane] = sum;
        __syncthreads();
        sum = 0;
        for (int32_t w = 0; w < 8; w++) sum += part[w][lane];
        if (warp == 0 && e <= desc.experts) way.sums[at * (desc.experts + 1) + e] = sum;
        __syncthreads();
    }
}

/* The block's sum, in a tree. */
template <typename T> static __device__ __forceinline__ T tegroup_impl_block_tree(T *part, T x) {
    part[threadIdx.x] = x;
    for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    }
    __syncthreads();
    x = part[0];
    __syncthreads();
    return x;
}

/* Each sequence's balance loss, sum of squares and tokens, and the slopes of its shares. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_scheme_sequences_kernel(const __grid_constant__ tegroup_router_desc desc,
                                         const __grid_constant__ tegroup_impl_scheme_way way) {
    __shared__ double part[256];
    __shared__ int64_t whole[256];
    const int64_t sequences = tegroup_impl_sequences(&desc.scheme, desc.logits.rows),
                  length = tegroup_impl_sequence_length(&desc.scheme, desc.logits.rows),
                  runs = tegroup_impl_sequence_runs(sequences), pitch = desc.experts + 1;
    for (int64_t q = blockIdx.x; q < sequences; q += gridDim.x) {
        int64_t tokens = 0;
        double loss = 0;
        for (int64_t t = q * length + threadIdx.x; t < (q + 1) * length; t += blockDim.x)
            tokens += tegroup_impl_token_there(&desc.scheme, t);
        tokens = tegroup_impl_block_tree(whole, tokens);
        for (int32_t e = (int32_t)threadIdx.x; e <= desc.experts; e += (int32_t)blockDim.x) {
            double sum = 0;
            for (int64_t r = q * runs; r < (q + 1) * runs; r++) sum += way.sums[r * pitch + e];
            if (e == desc.experts) {
                way.losses[3 * q + 1] = sum;
                continue;
            }
            const double slope =
                way.counts ? tegroup_impl_balance_slope(&desc, way.counts[q * desc.experts + e], tokens) : 0;
            loss += slope * sum;
            if (desc.loss_gradients.dtype != TEGROUP_DTYPE_UNSET)
                ((double *)tegroup_impl_matrix_row(&desc.loss_gradients, q))[e] = slope / (double)sequences;
        }
        loss = tegroup_impl_block_tree(part, loss);
        if (threadIdx.x == 0) way.losses[3 * q] = loss, way.losses[3 * q + 2] = (double)tokens;
    }
}

/* One block: the means over sequences and tokens. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_scheme_losses_kernel(const __grid_constant__ tegroup_router_desc desc,
                                      const __grid_constant__ tegroup_impl_scheme_way way) {
    __shared__ double part[256];
    const int64_t sequences = tegroup_impl_sequences(&desc.scheme, desc.logits.rows);
    double sum[3] = {0, 0, 0};
    for (int64_t q = threadIdx.x; q < sequences; q += blockDim.x)
        for (int i = 0; i < 3; i++) sum[i] += way.losses[3 * q + i];
    for (int i = 0; i < 3; i++) sum[i] = tegroup_impl_block_tree(part, sum[i]);
    const int64_t tokens = (int64_t)sum[2];
    if (threadIdx.x == 0 && desc.balance_loss) *desc.balance_loss = sequences > 0 ? sum[0] / (double)sequences : 0;
    if (threadIdx.x == 0 && desc.z_loss) *desc.z_loss = tegroup_impl_z_mean(&desc, sum[1], tokens);
    for (int64_t q = threadIdx.x; desc.loss_gradients.dtype != TEGROUP_DTYPE_UNSET && q < sequences; q += blockDim.x)
        ((double *)tegroup_impl_matrix_row(&desc.loss_gradients, q))[desc.experts] =
            tegroup_impl_z_mean(&desc, 2, tokens);
}

/* ==== [13] Router kernels: gradients of schemes, and launches (src/moe/router_scheme_launch_cuda.h) ==== */

#if !defined(TEGROUP_NO_BACKWARD)
/* As tegroup_impl_scheme_shares_f32; slopes NULL: no loss has a gradient. */
template <typename REAL>
static __device__ __forceinline__ void tegroup_impl_scheme_shares(const tegroup_router_backward_desc &desc,
                                                                  const REAL *scores, const double *slopes, REAL by,
                                                                  REAL *grads) {
    REAL sum = 1, mean = 0;
    if (!slopes) {
        TEGROUP_IMPL_OF_LANE(e, desc.experts) grads[e] = 0;
        return;
    }
    if (desc.scheme.score != TEGROUP_SCORE_SOFTMAX) {
        sum = 0;
        TEGROUP_IMPL_OF_LANE(e, desc.experts) sum += scores[e];
        sum = tegroup_impl_lanes_sum<REAL, 32>(sum);
        if (sum == 0) sum = 1;
        TEGROUP_IMPL_OF_LANE(e, desc.experts) mean += by * (REAL)slopes[e] * (scores[e] / sum);
        mean = tegroup_impl_lanes_sum<REAL, 32>(mean);
    }
    TEGROUP_IMPL_OF_LANE(e, desc.experts) grads[e] = scores[e] / sum * (by * (REAL)slopes[e] - mean);
}

/* As tegroup_impl_scheme_choices_f32, on top of the gradients by the balance loss. Keys make room for gradients when
 * the choices are known. */
template <int AT_ONCE, typename REAL, typename KEY>
static __device__ __forceinline__ void tegroup_impl_scheme_choices(const tegroup_router_backward_desc &desc,
                                                                   int64_t token,
                                                                   tegroup_impl_scheme_token<REAL, KEY> &my,
                                                                   const double *slopes, REAL by, REAL *grads) {
    const tegroup_router_scheme &s = desc.scheme;
    const int32_t experts = desc.experts, k = desc.k, lane = (int32_t)threadIdx.x % 32;
    const bool given = s.given_indices.dtype != TEGROUP_DTYPE_UNSET;
    const REAL *grad_weights = (const REAL *)tegroup_impl_matrix_row(&desc.grad_weights, token);
    REAL grad[2] = {0, 0}, mean = 0;
    int32_t mine[2], kept = 0;
    for (int32_t i = 0; i < 2; i++) { /* choices i * 32 + lane: there are at most 64 */
        const int32_t j = 32 * i + lane;
        mine[i] = j < k ? tegroup_impl_index(&desc.indices, token, j, experts) : -1;
        if (mine[i] >= 0) grad[i] = grad_weights[j];
        if (j < k) my.indices[j] = mine[i];
        if (j < k && mine[i] < 0 && desc.normalize && given)
            my.indices[j] = tegroup_impl_index(&s.given_indices, token, j, experts);
        kept += __popc(__ballot_sync(0xffffffffu, mine[i] >= 0));
    }
    __syncwarp();
    if (desc.normalize && kept > 0 && kept < k && !given) {
        my.template rank<AT_ONCE>(s, experts);
        my.choose(experts, k, TEGROUP_DTYPE_UNSET, NULL);
    }
    tegroup_impl_scheme_shares(desc, my.row, slopes, by, grads);
    if (kept == 0) return;
    const REAL divisor = tegroup_impl_scheme_divisor(s, desc.normalize, k, my.indices, my.row);
    for (int32_t i = 0; i < 2; i++)
        if (desc.normalize && divisor != 0 && mine[i] >= 0) mean += grad[i] * (my.row[mine[i]] / divisor);
    if (desc.normalize) mean = tegroup_impl_lanes_sum<REAL, 32>(mean);
    for (int32_t i = 0; i < 2; i++) {
        const int32_t e = 32 * i + lane < k ? my.indices[32 * i + lane] : -1;
        grad[i] = e < 0 ? (REAL)0 : tegroup_impl_scheme_weight(s, my.row[e], divisor) * (grad[i] - mean);
    }
    for (int32_t j = 0; j < k; j++) { /* in order: an expert that was given twice gets both */
        const REAL of_choice = __shfl_sync(0xffffffffu, j < 32 ? grad[0] : grad[1], j % 32);
        if (my.indices[j] >= 0 && my.indices[j] % 32 == lane) grads[my.indices[j]] += of_choice;
    }
}

/* The gradients of logits by way of their scores, from those of the scores' logarithms; sum: of these over all
 * experts, for softmax. */
template <int N, typename REAL>
static __device__ __forceinline__ void tegroup_impl_scheme_score_grad(tegroup_score kind, const REAL *score, REAL sum,
                                                                      REAL *grad) {
#define TEGROUP_IMPL_GRAD(value) _Pragma("unroll") for (int i = 0; i < N; i++) grad[i] = value;
    if (kind == TEGROUP_SCORE_SOFTMAX) {
        TEGROUP_IMPL_GRAD(grad[i] - score[i] * sum)
    } else if (kind == TEGROUP_SCORE_SIGMOID) {
        TEGROUP_IMPL_GRAD(tegroup_impl_score_grad(TEGROUP_SCORE_SIGMOID, score[i], grad[i]))
    } else {
        TEGROUP_IMPL_GRAD(tegroup_impl_score_grad(TEGROUP_SCORE_SQRT_SOFTPLUS, score[i], grad[i]))
    }
#undef TEGROUP_IMPL_GRAD
}

/* As tegroup_impl_scheme_grad_row_f32, a warp a token. */
template <typename REAL, typename KEY>
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_SCHEME_WARPS)
    tegroup_impl_scheme_grad_kernel(const __grid_constant__ tegroup_router_backward_desc desc, int32_t room) {
    enum { AT_ONCE = TEGROUP_IMPL_AT_ONCE(REAL, 8) };
    const tegroup_router_scheme &s = desc.scheme;
    const int32_t experts = desc.experts, lane = (int32_t)threadIdx.x % 32, warps = (int32_t)blockDim.x / 32;
    const bool softmax = s.score == TEGROUP_SCORE_SOFTMAX;
    const REAL by = desc.loss_scale != 0 ? (REAL)desc.loss_scale : (REAL)1;
    tegroup_impl_scheme_token<REAL, KEY> my(tegroup_impl_router_memory(), room);
    REAL *grads = (REAL *)(void *)my.keys;
    for (int64_t token = (int64_t)blockIdx.x * warps + threadIdx.x / 32; token < desc.probabilities.rows;
         token += (int64_t)gridDim.x * warps) {
        const double *slopes = tegroup_impl_loss_slopes(&desc, token);
        const bool there = tegroup_impl_token_there(&s, token), z_loss = there && s.z_coefficient != 0;
        REAL largest = 0, z = 0, sum = 0;
        if (z_loss) {
            tegroup_impl_scheme_read_row<AT_ONCE>(desc.logits, token, true, my.row);
            const REAL all = tegroup_impl_scheme_exponentials(my.row, experts, largest);
            z = by * (REAL)slopes[experts] * (REAL)((double)largest + log((double)all)) / all;
        }
        if (there) {
            tegroup_impl_scheme_read_row<AT_ONCE>(desc.probabilities, token, true, my.row);
            __syncwarp();
            tegroup_impl_scheme_choices<AT_ONCE>(desc, token, my, slopes, by, grads);
        }
        if (there && softmax) {
            TEGROUP_IMPL_OF_LANE(e, experts) sum += grads[e];
            sum = tegroup_impl_lanes_sum<REAL, 32>(sum);
        }
        for (int32_t base = 0; base < experts; base += 32 * AT_ONCE) {
            const int32_t first = base + lane;
            REAL x[AT_ONCE], grad[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const bool mine = there && first + 32 * i < experts;
                x[i] = mine ? my.row[first + 32 * i] : (REAL)0;
                grad[i] = mine ? grads[first + 32 * i] : (REAL)0;
            }
            tegroup_impl_scheme_score_grad<AT_ONCE>(s.score, x, sum, grad);
            if (z_loss) {
                tegroup_impl_load_row<AT_ONCE>(desc.logits, tegroup_impl_matrix_row(&desc.logits, token), first,
                                               experts, x);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) grad[i] += z * tegroup_impl_exp(x[i] - largest);
            }
            tegroup_impl_store_row<AT_ONCE>(desc.grad_logits, tegroup_impl_matrix_row(&desc.grad_logits, token), first,
                                            experts, grad);
        }
        __syncwarp();
    }
}
#endif /* TEGROUP_NO_BACKWARD */

/* ---- launches ---- */

/* Blocks of as many warps as have room in 48 KiB beside what the block shares, or of one; as many blocks as fill the
 * device. */
template <typename REAL, typename KEY, typename DESC, typename WAY>
static inline tegroup_status tegroup_impl_cuda_scheme_launch(void (*kernel)(const DESC, const WAY), const DESC *desc,
                                                             WAY way, int64_t tokens, int32_t room, int32_t block_bytes,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const int64_t warp_bytes = tegroup_impl_scheme_token<REAL, KEY>::bytes(room),
                  warps = tegroup_impl_clamp((49152 - block_bytes) / warp_bytes, 1, TEGROUP_IMPL_SCHEME_WARPS),
                  bytes = block_bytes + warps * warp_bytes;
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(tokens, warps), 16, &blocks, error));
    if (bytes > 49152) /* the same value in every call: other threads launch this kernel, too */
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 98304), "space",
            "the device must have the shared memory", error));
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, blocks, 32u * (unsigned)warps, (size_t)bytes, stream, *desc, way), "stream",
        "the kernel must launch", error);
}

/* The losses of rows that are routed. */
static inline tegroup_status tegroup_impl_cuda_scheme_losses(const tegroup_router_desc *desc,
                                                             const tegroup_impl_scheme_way *way,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const int64_t sequences = tegroup_impl_sequences(&desc->scheme, desc->logits.rows), most = 65535,
                  runs = tegroup_impl_sequence_runs(sequences), all = sequences * runs,
                  length = tegroup_impl_sequence_length(&desc->scheme, desc->logits.rows),
                  counted = tegroup_impl_max(1, tegroup_impl_ceil_div(length, TEGROUP_IMPL_SCHEME_COUNTED));
    const unsigned columns = (unsigned)(desc->experts + 1 + 31) / 32;
    if (way->counts && all > 0) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            cudaMemsetAsync(way->counts, 0, 8 * (size_t)(sequences * desc->experts), stream), "stream",
            "the counts must be cleared", error));
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_scheme_counts_kernel,
                                (unsigned)tegroup_impl_min(sequences * counted, most), TEGROUP_IMPL_SCHEME_COUNTED,
                                4 * (size_t)desc->experts, stream, *desc, *way, counted, sequences * counted),
            "stream", "the kernel must launch", error));
    }
    if (all > 0) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_scheme_sums_kernel, dim3(columns, (unsigned)tegroup_impl_min(all, most)),
                                256, 0, stream, *desc, *way, runs, all),
            "stream", "the kernel must launch", error));
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_scheme_sequences_kernel, (unsigned)tegroup_impl_min(sequences, most), 256,
                                0, stream, *desc, *way),
            "stream", "the kernel must launch", error));
    }
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_scheme_losses_kernel, 1, 256, 0, stream, *desc, *way), "stream",
        "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_scheme(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int64_t tokens = desc->logits.rows;
    const int32_t room = (int32_t)tegroup_impl_align(desc->experts, 4);
    tegroup_impl_scheme_way way;
    tegroup_router_desc d = *desc;
    tegroup_layout layout;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_image((const void *)tegroup_impl_scheme_sums_kernel, error));
    memset(&way, 0, sizeof way);
    d.logits = tegroup_impl_cuda_matrix(&desc->logits);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    d.loss_gradients = tegroup_impl_cuda_matrix(&desc->loss_gradients);
    d.scheme.given_indices = tegroup_impl_cuda_matrix(&desc->scheme.given_indices);
    tegroup_impl_layout_begin(&layout);
    tegroup_impl_scheme_layout(desc, &layout);
    if (layout.count > 0) {
        char *at = (char *)desc->workspace;
        const int slopes = desc->loss_gradients.dtype != TEGROUP_DTYPE_UNSET;
        if (desc->balance_loss) way.totals = (double *)(at + layout.items[TEGROUP_IMPL_LOSS_TOTALS].offset_bytes);
        if (desc->z_loss) way.logsumexp = (double *)(at + layout.items[TEGROUP_IMPL_LOSS_LOGSUMEXP].offset_bytes);
        if (desc->balance_loss || slopes)
            way.counts = (int64_t *)(at + layout.items[TEGROUP_IMPL_LOSS_COUNTS].offset_bytes);
        way.sums = (double *)(at + layout.items[TEGROUP_IMPL_LOSS_SUMS].offset_bytes);
        way.losses = (double *)(at + layout.items[TEGROUP_IMPL_LOSS_SEQUENCES].offset_bytes);
    }
    way.room = room;
    way.histogram = desc->counts.dtype != TEGROUP_DTYPE_UNSET && desc->experts <= TEGROUP_IMPL_ROUTER_HISTOGRAM;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_counts(&desc->counts, stream, error));
#define TEGROUP_IMPL_LAUNCH(real, key, each)                                                                           \
    TEGROUP_IMPL_TRY((tegroup_impl_cuda_scheme_launch<real, key>(tegroup_impl_scheme_kernel<real, key, each>, &d, way, \
                                                                 tokens, room, way.histogram ? 4 * room : 0, stream,   \
                                                                 error)))
    if (tokens > 0) {
        if (tegroup_impl_router_real(desc) == TEGROUP_DTYPE_F64) TEGROUP_IMPL_LAUNCH(double, uint64_t, 1);
        else if (desc->experts <= 128) TEGROUP_IMPL_LAUNCH(float, uint32_t, 4);
        else if (desc->experts <= 256) TEGROUP_IMPL_LAUNCH(float, uint32_t, 8);
        else if (desc->experts <= 512) TEGROUP_IMPL_LAUNCH(float, uint32_t, 16);
        else if (desc->experts <= 1024) TEGROUP_IMPL_LAUNCH(float, uint32_t, 32);
        else TEGROUP_IMPL_LAUNCH(float, uint32_t, 1); /* none in registers */
    }
#undef TEGROUP_IMPL_LAUNCH
    return layout.count > 0 ? tegroup_impl_cuda_scheme_losses(&d, &way, stream, error) : TEGROUP_OK;
}

#if !defined(TEGROUP_NO_BACKWARD)
static inline tegroup_status tegroup_impl_cuda_scheme_backward(const tegroup_router_backward_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int64_t tokens = desc->probabilities.rows;
    const int32_t room = (int32_t)tegroup_impl_align(desc->experts, 4);
    tegroup_router_backward_desc d = *desc;
    if (tokens == 0) return TEGROUP_OK;
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    d.grad_weights = tegroup_impl_cuda_matrix(&desc->grad_weights);
    d.grad_logits = tegroup_impl_cuda_matrix(&desc->grad_logits);
    d.logits = tegroup_impl_cuda_matrix(&desc->logits);
    d.loss_gradients = tegroup_impl_cuda_matrix(&desc->loss_gradients);
    if (desc->probabilities.dtype == TEGROUP_DTYPE_F64)
        return tegroup_impl_cuda_scheme_launch<double, uint64_t>(tegroup_impl_scheme_grad_kernel<double, uint64_t>, &d,
                                                                 room, tokens, room, 0, stream, error);
    return tegroup_impl_cuda_scheme_launch<float, uint32_t>(tegroup_impl_scheme_grad_kernel<float, uint32_t>, &d, room,
                                                            tokens, room, 0, stream, error);
}
#endif /* TEGROUP_NO_BACKWARD */

/* ==== [14] Router launches (src/moe/router_cuda.h) ==== */

/* How the rows of a matrix may be read. */
static inline tegroup_impl_router_access tegroup_impl_cuda_router_access(const tegroup_matrix *m, int is_f64) {
    const int64_t bytes = tegroup_impl_bits(m->dtype) / 8;
    if (m->dtype == TEGROUP_DTYPE_F64 || (is_f64 && m->dtype != TEGROUP_DTYPE_F32) || m->cols % 4 != 0
        || tegroup_impl_matrix_ld(m) % 4 != 0 || !tegroup_impl_aligned(m->data, (size_t)(4 * bytes)))
        return TEGROUP_IMPL_ROUTER_ELEMENTS;
    return m->dtype == TEGROUP_DTYPE_F32 ? TEGROUP_IMPL_ROUTER_FLOATS : TEGROUP_IMPL_ROUTER_HALVES;
}

/* Launches a kernel over batches of `tokens`, each with `bytes` of shared memory besides its row. out: what is written
 * row by row; where nothing is, any matrix of as many rows. There are at most three blocks a multiprocessor, as each
 * adds its counts to the same few addresses. For few tokens blocks are smaller, so that every multiprocessor has
 * some. */
template <typename DESC>
static inline tegroup_status tegroup_impl_cuda_router_launch(void (*kernel)(const DESC, const tegroup_impl_router_way),
                                                             const DESC *desc, tegroup_impl_router_way *way,
                                                             const tegroup_matrix *out, int32_t tokens, int64_t bytes,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const int64_t rows = out->rows, batches = tegroup_impl_ceil_div(rows, tokens);
    int device = 0, multiprocessors = 0, shared = 0;
    int64_t warps, fit, warp_bytes, blocks, block_bytes;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (code == cudaSuccess) code = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "there must be a current device", error));
    way->out_element = tegroup_impl_bits(out->dtype) / 8;
    way->out_piece = tegroup_impl_cuda_piece(out);
    way->out_whole = way->out_piece == 16 && out->ld == out->cols && out->cols % 4 == 0;
    way->token_bytes = (int32_t)(tegroup_impl_ceil_div(bytes, 16) | 1) * 16;
    warp_bytes = (int64_t)tokens * (way->row_bytes + way->token_bytes);
    fit = (shared / 3 - 1024 - way->block_bytes) / warp_bytes; /* 1024: what CUDA reserves in each block */
    if (fit < 1) fit = 1;
    warps = tegroup_impl_clamp(tegroup_impl_ceil_div(batches, 3 * multiprocessors), 1,
                               tegroup_impl_min(fit, TEGROUP_IMPL_ROUTER_WARPS));
    blocks = tegroup_impl_min(tegroup_impl_ceil_div(batches, warps), 3 * multiprocessors);
    block_bytes = way->block_bytes + warps * warp_bytes;
    way->batches = tegroup_impl_ceil_div(batches, blocks * warps) * blocks * warps;
    way->each = rows / way->batches;
    way->longer = rows % way->batches;
    way->k = (uint32_t)desc->k;
    way->per_k = 65535 / way->k + 1;
    /* the same value in every call: other threads launch this kernel, too */
    code = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared - 1024);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "space", "the device must have the shared memory", error));
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, (unsigned)blocks, 32u * (unsigned)warps, (size_t)block_bytes, stream, *desc, *way),
        "stream", "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_router(const tegroup_router_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int is_f64 = tegroup_impl_router_real(desc) == TEGROUP_DTYPE_F64;
    const int64_t real_bytes = is_f64 ? 8 : 4;
    const int64_t room = tegroup_impl_align(desc->experts, 4),
                  bytes = (tegroup_impl_align(room / 4, 4) + 2 + 2 * (desc->k + 1)) * real_bytes;
    tegroup_impl_router_way way;
    tegroup_router_desc d = *desc;
    if (tegroup_impl_router_schemed(desc)) return tegroup_impl_cuda_scheme(desc, stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_image((const void *)tegroup_impl_router_sums_kernel, error));
    memset(&way, 0, sizeof way);
    way.in = tegroup_impl_cuda_router_access(&desc->logits, is_f64);
    way.histogram = desc->counts.dtype != TEGROUP_DTYPE_UNSET && desc->experts <= TEGROUP_IMPL_ROUTER_HISTOGRAM;
    way.row_bytes = (int32_t)(room * real_bytes);
    way.block_bytes = way.histogram ? (int32_t)tegroup_impl_align(4 * desc->experts, 16) : 0;
    d.logits = tegroup_impl_cuda_matrix(&desc->logits);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    /* A single batch is a single block, which writes the counts. */
#define TEGROUP_IMPL_LAUNCH(real, lanes, quads, turns)                                                                 \
    if (!way.histogram || desc->logits.rows > 32 / (lanes) * (turns))                                                  \
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_counts(&desc->counts, stream, error));                                \
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_router_launch(tegroup_impl_router_kernel<real, lanes, quads, turns>, &d, &way,  \
                                                     d.probabilities.dtype ? &d.probabilities : &d.logits,             \
                                                     32 / (lanes) * (turns), bytes, stream, error))
    if (desc->logits.rows == 0) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_counts(&desc->counts, stream, error));
    } else if (is_f64 && desc->experts <= 1024) {
        TEGROUP_IMPL_LAUNCH(double, 32, 8, 1);
    } else if (is_f64) {
        TEGROUP_IMPL_LAUNCH(double, 32, 32, 1);
    } else if (desc->experts <= 128) {
        TEGROUP_IMPL_LAUNCH(float, 8, 4, 4);
    } else if (desc->experts <= 256) {
        TEGROUP_IMPL_LAUNCH(float, 16, 4, 4);
    } else if (desc->experts <= 512) {
        TEGROUP_IMPL_LAUNCH(float, 32, 4, 4);
    } else {
        TEGROUP_IMPL_LAUNCH(float, 32, 32, 1);
    }
#undef TEGROUP_IMPL_LAUNCH
    if (!desc->balance_loss) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_router_sums_kernel,
                            dim3((unsigned)(desc->experts + 31) / 32, TEGROUP_IMPL_ROUTER_RUNS), 256, 0, stream, d),
        "stream", "the kernel must launch", error));
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_router_loss_kernel, 1, 1024, 0, stream, d),
                                    "stream", "the kernel must launch", error);
}

#if !defined(TEGROUP_NO_BACKWARD)
static inline tegroup_status tegroup_impl_cuda_router_backward(const tegroup_router_backward_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int is_f64 = desc->probabilities.dtype == TEGROUP_DTYPE_F64;
    const int64_t real_bytes = is_f64 ? 8 : 4, room = tegroup_impl_align(desc->experts, 4),
                  bytes = desc->k * (real_bytes + 4);
    tegroup_impl_router_way way;
    tegroup_router_backward_desc d = *desc;
    if (desc->probabilities.rows == 0) return TEGROUP_OK;
    if (tegroup_impl_backward_schemed(&desc->scheme, &desc->loss_gradients))
        return tegroup_impl_cuda_scheme_backward(desc, stream, error);
    memset(&way, 0, sizeof way);
    d.probabilities = tegroup_impl_cuda_matrix(&desc->probabilities);
    d.indices = tegroup_impl_cuda_matrix(&desc->indices);
    d.grad_weights = tegroup_impl_cuda_matrix(&desc->grad_weights);
    d.grad_logits = tegroup_impl_cuda_matrix(&desc->grad_logits);
    way.in_piece = tegroup_impl_cuda_piece(&d.probabilities);
    way.in_whole = way.in_piece == 16 && d.probabilities.ld == d.probabilities.cols && desc->experts % 4 == 0;
    way.row_bytes = (int32_t)(room * (real_bytes + (desc->grad_logits.dtype == TEGROUP_DTYPE_F64 ? 8 : real_bytes)));
    way.by_fours = d.indices.dtype == TEGROUP_DTYPE_I32 && tegroup_impl_cuda_piece(&d.grad_weights) == 16
                   && tegroup_impl_cuda_piece(&d.indices) == 16;
    /* for more experts there is no room for the balance gradients, and they are computed again for every token */
    way.block_bytes = desc->experts <= 1024 ? (int32_t)(room * real_bytes) : 0;
    if (desc->balance_coefficient != 0) way.per_count = tegroup_impl_router_per_count(desc);
#define TEGROUP_IMPL_LAUNCH(real, lanes, quads, turns)                                                                 \
    return tegroup_impl_cuda_router_launch(tegroup_impl_router_grad_kernel<real, lanes, quads, turns>, &d, &way,       \
                                           &d.grad_logits, 32 / (lanes) * (turns), bytes, stream, error)
    if (is_f64 && desc->experts <= 1024) TEGROUP_IMPL_LAUNCH(double, 32, 8, 1);
    if (is_f64) TEGROUP_IMPL_LAUNCH(double, 32, 32, 1);
    if (desc->experts <= 128) TEGROUP_IMPL_LAUNCH(float, 8, 4, 4);
    if (desc->experts <= 256) TEGROUP_IMPL_LAUNCH(float, 16, 4, 4);
    if (desc->experts <= 512) TEGROUP_IMPL_LAUNCH(float, 32, 4, 4);
    TEGROUP_IMPL_LAUNCH(float, 32, 32, 1);
#undef TEGROUP_IMPL_LAUNCH
}
#endif /* TEGROUP_NO_BACKWARD */

/* ==== [15] Permute and combine kernels (src/moe/permute_cuda.h) ==== */

/* The moves of a unit's rows. One lane of a warp computes each move and hands it to all lanes. */
template <typename REAL> struct tegroup_impl_moves {
    int64_t from[TEGROUP_IMPL_ROWS_UNIT], to[TEGROUP_IMPL_ROWS_UNIT]; /* to is -1 if there is nothing to move */
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

/* Moves rows that are no numbers, in pieces of 1, 2, 4 or 8 bytes: as many as the matrix's type has. */
struct tegroup_impl_pieces {
    typedef float real;
    typedef uint64_t raw;
    enum { lanes = 1 };
    static __device__ __forceinline__ char *row(const tegroup_matrix &m, int64_t row) {
        return tegroup_impl_matrix_row(&m, row);
    }
    static __device__ __forceinline__ raw load(const tegroup_matrix &m, const char *row, int64_t step) {
        switch (tegroup_impl_bits(m.dtype)) {
        case 64: return ((const uint64_t *)row)[step];
        case 32: return ((const uint32_t *)row)[step];
        case 16: return ((const uint16_t *)row)[step];
        default: return ((const uint8_t *)row)[step];
        }
    }
    static __device__ __forceinline__ void store(const tegroup_matrix &m, char *row, int64_t step, raw x) {
        switch (tegroup_impl_bits(m.dtype)) {
        case 64: ((uint64_t *)row)[step] = x; break;
        case 32: ((uint32_t *)row)[step] = (uint32_t)x; break;
        case 16: ((uint16_t *)row)[step] = (uint16_t)x; break;
        default: ((uint8_t *)row)[step] = (uint8_t)x; break;
        }
    }
    static __device__ __forceinline__ void unpack(raw, real *) {} /* of weights, which such rows never have */
    static __device__ __forceinline__ raw pack(const real *) { return 0; }
};

/* A matrix of no numbers as one of pieces of `bytes`, whatever type carries them. */
static inline tegroup_matrix tegroup_impl_cuda_pieces(const tegroup_matrix *m, int32_t bytes) {
    const int64_t element = tegroup_impl_bits(m->dtype) / 8;
    tegroup_matrix pieces = *m;
    pieces.ld = tegroup_impl_matrix_ld(m) * element / bytes;
    pieces.cols = m->cols * element / bytes;
    pieces.dtype = bytes == 8   ? TEGROUP_DTYPE_I64
                   : bytes == 4 ? TEGROUP_DTYPE_F32
                   : bytes == 2 ? TEGROUP_DTYPE_BF16
                                : TEGROUP_DTYPE_F8E4M3;
    return pieces;
}

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
        const int64_t slot =
            row < rows ? tegroup_impl_load_int(desc.slot_of_row.dtype, desc.slot_of_row.data, row) : -1;
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

/* The same by the other map: one block serves one token at a time, and writes it to each of its rows. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_permute_tokens_kernel(const __grid_constant__ tegroup_permute_desc desc) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes };
    const tegroup_matrix &map = desc.row_of_slot;
    const int64_t steps = desc.permuted.cols / lanes;
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const bool weighted = desc.weights.dtype != TEGROUP_DTYPE_UNSET;
    for (int64_t token = blockIdx.x; token < desc.tokens.rows; token += gridDim.x)
        for (int32_t first = 0; first < desc.k; first += 32) { /* a lane has one of up to 32 choices */
            const int32_t choices = (int32_t)tegroup_impl_min(32, desc.k - first);
            int64_t mine =
                lane < choices ? tegroup_impl_load_int(map.dtype, map.data, token * map.ld + first + lane) : -1;
            if (mine >= desc.permuted.rows) mine = -1;
            const real my_weight = mine >= 0 ? tegroup_impl_weight<real>(desc.weights, token, first + lane) : (real)0;
            for (int64_t c = threadIdx.x; c - lane < steps; c += blockDim.x) { /* a warp stays together */
                typename ACCESS::raw x = typename ACCESS::raw();
                if (c < steps) x = ACCESS::load(desc.tokens, ACCESS::row(desc.tokens, token), c);
                for (int32_t j = 0; j < choices; j++) {
                    const int64_t row = __shfl_sync(0xffffffffu, mine, j);
                    const real weight = __shfl_sync(0xffffffffu, my_weight, j);
                    typename ACCESS::raw scaled = x;
                    if (row < 0 || c >= steps) continue;
                    if (weighted) {
                        real y[lanes];
                        ACCESS::unpack(x, y);
#pragma unroll
                        for (int i = 0; i < lanes; i++) y[i] *= weight;
                        scaled = ACCESS::pack(y);
                    }
                    ACCESS::store(desc.permuted, ACCESS::row(desc.permuted, row), c, scaled);
                }
            }
        }
}

/* The same for rows that are shorter than a warp. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_permute_short_kernel(const __grid_constant__ tegroup_permute_desc desc) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes };
    const tegroup_matrix &map = desc.row_of_slot;
    const int64_t steps = desc.permuted.cols / lanes;
    const tegroup_impl_abreast at(steps);
    int64_t token = (int64_t)blockIdx.x * at.rows + at.row;
    if (at.row == at.rows) return;
    for (; token < desc.tokens.rows; token += (int64_t)gridDim.x * at.rows) {
        const typename ACCESS::raw x = ACCESS::load(desc.tokens, ACCESS::row(desc.tokens, token), at.step);
        for (int32_t j = 0; j < desc.k; j++) {
            const int64_t row = tegroup_impl_load_int(map.dtype, map.data, token * map.ld + j);
            if (row < 0 || row >= desc.permuted.rows) continue;
            typename ACCESS::raw scaled = x;
            if (desc.weights.dtype != TEGROUP_DTYPE_UNSET) {
                const real weight = tegroup_impl_weight<real>(desc.weights, token, j);
                real y[lanes];
                ACCESS::unpack(x, y);
#pragma unroll
                for (int i = 0; i < lanes; i++) y[i] *= weight;
                scaled = ACCESS::pack(y);
            }
            ACCESS::store(desc.permuted, ACCESS::row(desc.permuted, row), at.step, scaled);
        }
    }
}

/* Adds one step of the rows of up to BATCH of a token's slots, from `slot` on. All rows are loaded before the first is
 * added. */
template <typename ACCESS, int BATCH>
static __device__ __forceinline__ void tegroup_impl_combine_batch(const tegroup_combine_desc &desc, int64_t token,
                                                                  int64_t slot, int64_t k, int64_t c,
                                                                  typename ACCESS::real *sum) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes };
    typename ACCESS::raw x[BATCH];
    real weight[BATCH];
    const tegroup_matrix &map = desc.row_of_slot;
    const int64_t at = token * map.ld + slot;
    int64_t row[BATCH];
    uint32_t present = 0;
#pragma unroll
    for (int b = 0; b < BATCH; b++) row[b] = slot + b < k ? tegroup_impl_load_int(map.dtype, map.data, at + b) : -1;
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        x[b] = typename ACCESS::raw();
        weight[b] = 0;
        if (row[b] >= 0 && row[b] < desc.permuted.rows) {
            present |= 1u << b;
            weight[b] = tegroup_impl_weight<real>(desc.weights, token, slot + b);
            x[b] = ACCESS::load(desc.permuted, ACCESS::row(desc.permuted, row[b]), c);
        }
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        if (!(present >> b & 1u)) continue;
        real y[lanes];
        ACCESS::unpack(x[b], y);
#pragma unroll
        for (int i = 0; i < lanes; i++) sum[i] = fma(weight[b], y[i], sum[i]);
    }
}

/* One block serves one token at a time, or several whose rows are short, and adds its slots in batches. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_combine_kernel(const __grid_constant__ tegroup_combine_desc desc) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes, batch = 8 };
    const int64_t steps = desc.tokens.cols / lanes, k = desc.row_of_slot.cols;
    const tegroup_impl_abreast at(steps);
    int64_t token = (int64_t)blockIdx.x * at.rows + at.row;
    if (at.row == at.rows) return;
    for (; token < desc.tokens.rows; token += (int64_t)gridDim.x * at.rows) {
        for (int64_t c = at.step; c < steps; c += at.stride) {
            real sum[lanes];
            tegroup_impl_begin_sum<ACCESS>(desc.tokens, token, c, desc.accumulate, sum);
            for (int64_t j = 0; j < k; j += batch) tegroup_impl_combine_batch<ACCESS, batch>(desc, token, j, k, c, sum);
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
        int64_t row = slot < slots ? tegroup_impl_load_int(desc.row_of_slot.dtype, desc.row_of_slot.data,
                                                           token * desc.row_of_slot.ld + choice)
                                   : -1;
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
    const int by_slots = desc->row_of_slot.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_permute_desc d = *desc;
    tegroup_dtype access;
    if (desc->permuted.rows == 0 || desc->permuted.cols == 0) return TEGROUP_OK;
    d.tokens = tegroup_impl_cuda_matrix(&desc->tokens);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.permuted = tegroup_impl_cuda_matrix(&desc->permuted);
    d.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    access = tegroup_impl_cuda_access(matrices, 2, desc->permuted.cols);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    if (by_slots && d.permuted.cols / __VA_ARGS__::lanes < 32)                                                         \
        return tegroup_impl_cuda_rows_abreast(tegroup_impl_permute_short_kernel<__VA_ARGS__>, &d, d.permuted.cols,     \
                                              __VA_ARGS__::lanes, d.tokens.rows, stream, error);                       \
    return tegroup_impl_cuda_rows(by_slots ? tegroup_impl_permute_tokens_kernel<__VA_ARGS__>                           \
                                           : tegroup_impl_permute_kernel<__VA_ARGS__>,                                 \
                                  &d, d.permuted.cols, __VA_ARGS__::lanes,                                             \
                                  by_slots ? desc->tokens.rows                                                         \
                                           : tegroup_impl_ceil_div(desc->permuted.rows, TEGROUP_IMPL_ROWS_UNIT),       \
                                  stream, error);
    if (!tegroup_impl_is_float(desc->tokens.dtype)) {
        const int32_t piece =
            (int32_t)tegroup_impl_min(tegroup_impl_cuda_piece(&desc->tokens), tegroup_impl_cuda_piece(&desc->permuted));
        d.tokens = tegroup_impl_cuda_pieces(&desc->tokens, piece == 16 ? 4 : piece);
        d.permuted = tegroup_impl_cuda_pieces(&desc->permuted, piece == 16 ? 4 : piece);
        access = TEGROUP_DTYPE_F32; /* without weights its kernel moves 16 bytes, whatever they are */
        if (piece < 16) {
            TEGROUP_IMPL_LAUNCH(tegroup_impl_pieces)
        }
    }
    TEGROUP_IMPL_BY_ACCESS(access, TEGROUP_IMPL_LAUNCH)
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
    return tegroup_impl_cuda_rows_abreast(tegroup_impl_combine_kernel<__VA_ARGS__>, &d, width, __VA_ARGS__::lanes,     \
                                          desc->tokens.rows, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

#if !defined(TEGROUP_NO_BACKWARD)
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
#endif /* TEGROUP_NO_BACKWARD */

/* ==== [16] Permutation kernels (src/moe/permutation_cuda.h) ==== */

#include <cooperative_groups.h>

/* Slots are cut into runs, one a warp. The first step counts each run's slots by expert. The second turns the counts
 * into the number of the expert's slots in earlier runs. The third ranks the slots of a run in order. Steps are kernels
 * of their own, or one kernel's, which makes the snapshot, too, between the second and the third. */
typedef struct tegroup_impl_permutation_call {
    tegroup_permutation_desc desc;
    tegroup_snapshot_view view;
    int64_t *before; /* [runs][groups] */
    int64_t *counts; /* [groups]: slots of each expert */
    int64_t slots, run, runs;
    tegroup_impl_preparation preparation; /* how the snapshot is made of counts, if it is */
    int32_t snapshot_bytes;
} tegroup_impl_permutation_call;

enum {
    TEGROUP_IMPL_PERMUTATION_THREADS = 256,
    /* Experts up to which the kernel that ranks makes the snapshot, too: shared memory has room for their numbers. */
    TEGROUP_IMPL_PERMUTATION_FUSED = 512
};

/* The warp's array of one number for each expert, in shared memory. */
static __device__ __forceinline__ unsigned long long *tegroup_impl_permutation_numbers(int32_t groups) {
    extern __shared__ unsigned long long tegroup_impl_permutation_shared[];
    return tegroup_impl_permutation_shared + (int64_t)(threadIdx.x / 32) * groups;
}

/* Loads the experts of a lane's slots, which are 32 apart from `first` on; -1 for none. All loads are in flight before
 * the first is waited for. */
enum { TEGROUP_IMPL_PERMUTATION_BATCH = 8 };
template <typename INDEX>
static __device__ __forceinline__ void tegroup_impl_slot_experts_of(const tegroup_impl_permutation_call &call,
                                                                    int64_t first, int64_t last,
                                                                    int32_t (&expert)[TEGROUP_IMPL_PERMUTATION_BATCH]) {
    const tegroup_matrix &m = call.desc.indices;
    INDEX index[TEGROUP_IMPL_PERMUTATION_BATCH];
#pragma unroll
    for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++) {
        const int64_t slot = first + 32 * b;
        index[b] = slot < last ? ((const INDEX *)m.data)[tegroup_impl_slot_at(m, slot)] : -1;
    }
#pragma unroll
    for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++)
        expert[b] = index[b] < 0 || index[b] >= call.desc.shape.groups ? -1 : (int32_t)index[b];
}
static __device__ __forceinline__ void tegroup_impl_slot_experts(const tegroup_impl_permutation_call &call,
                                                                 int64_t first, int64_t last,
                                                                 int32_t (&expert)[TEGROUP_IMPL_PERMUTATION_BATCH]) {
    if (call.desc.indices.dtype == TEGROUP_DTYPE_I32) tegroup_impl_slot_experts_of<int32_t>(call, first, last, expert);
    else tegroup_impl_slot_experts_of<int64_t>(call, first, last, expert);
}

static __device__ __forceinline__ void tegroup_impl_clear_slots(const tegroup_impl_permutation_call &call,
                                                                int64_t thread, int64_t threads) {
    const tegroup_matrix &slots_of = call.desc.slot_of_row;
#pragma unroll 1
    for (int64_t row = thread; row < slots_of.cols; row += threads)
        tegroup_impl_store_int(slots_of.dtype, slots_of.data, row, -1);
}

/* The warp counts a run's slots by expert. */
static __device__ __forceinline__ void tegroup_impl_count_run(const tegroup_impl_permutation_call &call, int64_t run,
                                                              unsigned long long *counts) {
    const int32_t groups = call.desc.shape.groups, lane = (int32_t)threadIdx.x % 32;
    const int64_t last = tegroup_impl_min(call.slots, (run + 1) * call.run);
#pragma unroll 1
    for (int32_t g = lane; g < groups; g += 32) counts[g] = 0;
    __syncwarp();
#pragma unroll 1
    for (int64_t base = run * call.run; base < last; base += 32 * TEGROUP_IMPL_PERMUTATION_BATCH) {
        int32_t expert[TEGROUP_IMPL_PERMUTATION_BATCH];
        tegroup_impl_slot_experts(call, base + lane, last, expert);
#pragma unroll
        for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++)
            if (expert[b] >= 0) atomicAdd((uint32_t *)&counts[expert[b]], 1u); /* a run's counts fit 32 bits */
    }
    __syncwarp();
}

/* The first step, and clear rows. */
static __device__ __forceinline__ void tegroup_impl_count_runs(const tegroup_impl_permutation_call &call) {
    const int32_t groups = call.desc.shape.groups, lane = (int32_t)threadIdx.x % 32;
    const int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, threads = (int64_t)gridDim.x * blockDim.x;
    unsigned long long *counts = tegroup_impl_permutation_numbers(groups);
    tegroup_impl_clear_slots(call, thread, threads);
    for (int64_t run = thread / 32; run < call.runs; run += threads / 32) {
        tegroup_impl_count_run(call, run, counts);
#pragma unroll 1
        for (int32_t g = lane; g < groups; g += 32) call.before[run * groups + g] = (int64_t)counts[g];
        __syncwarp();
    }
}

/* The second step: a block of so many threads makes the prefix sums over runs for eight experts at a time. Runs are
 * split into stretches, with one thread for each stretch and expert. COUNTS: their sums, too. */
template <int THREADS, bool COUNTS>
static __device__ __forceinline__ void tegroup_impl_sum_runs(const tegroup_impl_permutation_call &call) {
    enum { EXPERTS = 8, STRETCHES = THREADS / EXPERTS };
    __shared__ int64_t sums[STRETCHES][EXPERTS];
    const int32_t groups = call.desc.shape.groups, stretch = (int32_t)threadIdx.x / EXPERTS,
                  column = (int32_t)threadIdx.x % EXPERTS;
    const int64_t each = tegroup_impl_ceil_div(call.runs, STRETCHES), first = stretch * each;
#pragma unroll 1
    for (int32_t from = (int32_t)blockIdx.x * EXPERTS; from < groups; from += (int32_t)gridDim.x * EXPERTS) {
        const int32_t g = from + column;
        const int64_t last = g < groups ? tegroup_impl_min(call.runs, first + each) : first;
        int64_t sum = 0;
#pragma unroll 8
        for (int64_t run = first; run < last; run++) sum += call.before[run * groups + g];
        sums[stretch][column] = sum;
        __syncthreads();
#pragma unroll 1
        for (int32_t step = 1; step < STRETCHES; step *= 2) {
            const int64_t below = stretch >= step ? sums[stretch - step][column] : 0;
            __syncthreads();
            sums[stretch][column] += below;
            __syncthreads();
        }
        if (COUNTS && stretch == STRETCHES - 1 && g < groups) call.counts[g] = sums[stretch][column];
        sum = sums[stretch][column] - sum;
#pragma unroll 1
        for (int64_t run = first; run < last; run++) {
            const int64_t count = call.before[run * groups + g];
            call.before[run * groups + g] = sum;
            sum += count;
        }
        __syncthreads(); /* the sums have been read */
    }
}

/* The snapshot of counts, by one block. */
static __device__ __forceinline__ void tegroup_impl_permutation_prepare_block(const tegroup_impl_permutation_call &call,
                                                                              const int64_t *counts) {
    enum { THREADS = TEGROUP_IMPL_PERMUTATION_THREADS, EACH = TEGROUP_IMPL_PERMUTATION_FUSED / THREADS };
    tegroup_impl_preparation preparation = tegroup_impl_prepare_as_plain(call.preparation);
    preparation.rows.dtype = TEGROUP_DTYPE_I64;
    preparation.rows.data = counts;
    tegroup_impl_block_prepare<EACH, THREADS>(preparation, (tegroup_snapshot_header *)call.desc.snapshot,
                                              call.snapshot_bytes);
}

static __global__ void __launch_bounds__(TEGROUP_IMPL_PERMUTATION_THREADS)
    tegroup_impl_permutation_count_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    tegroup_impl_count_runs(call);
}
static __global__ void __launch_bounds__(1024)
    tegroup_impl_permutation_scan_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    tegroup_impl_sum_runs<1024, false>(call);
}

static __device__ __forceinline__ bool tegroup_impl_permutation_prepared(const tegroup_impl_permutation_call &call) {
    tegroup_impl_fit fit = tegroup_impl_fit_of_rows(call.view.header, call.desc.shape.rows);
    fit.groups = call.desc.shape.groups;
    return tegroup_impl_fits(&fit);
}

/* The bits of the weights of a lane's slots, as tegroup_impl_slot_experts_of loads their experts. */
template <typename BITS>
static __device__ __forceinline__ void tegroup_impl_slot_weights_of(
    const tegroup_impl_permutation_call &call, int64_t first, int64_t last,
    uint64_t (&weight)[TEGROUP_IMPL_PERMUTATION_BATCH]) {
    const tegroup_matrix &m = call.desc.slot_weights;
#pragma unroll
    for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++) {
        const int64_t slot = first + 32 * b;
        weight[b] = slot < last ? ((const BITS *)m.data)[tegroup_impl_slot_at(m, slot)] : 0;
    }
}

/* The warp ranks a run's slots. next: the row of each expert's next slot, which may be behind the expert's last row. */
static __device__ __forceinline__ void tegroup_impl_rank_run(const tegroup_impl_permutation_call &call, int64_t run,
                                                             bool prepared, unsigned long long *next) {
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const int64_t capacity = call.desc.shape.rows, last = tegroup_impl_min(call.slots, (run + 1) * call.run);
    const tegroup_matrix &weights = call.desc.row_weights;
#pragma unroll 1
    for (int64_t base = run * call.run; base < last; base += 32 * TEGROUP_IMPL_PERMUTATION_BATCH) {
        int32_t expert[TEGROUP_IMPL_PERMUTATION_BATCH];
        unsigned long long start[TEGROUP_IMPL_PERMUTATION_BATCH];
        int64_t rows[TEGROUP_IMPL_PERMUTATION_BATCH];
        uint64_t weight[TEGROUP_IMPL_PERMUTATION_BATCH];
        tegroup_impl_slot_experts(call, base + lane, last, expert);
        if (weights.dtype == TEGROUP_DTYPE_F32) tegroup_impl_slot_weights_of<uint32_t>(call, base + lane, last, weight);
        else if (weights.dtype == TEGROUP_DTYPE_F64)
            tegroup_impl_slot_weights_of<uint64_t>(call, base + lane, last, weight);
#pragma unroll
        for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++) {
            if (!prepared) expert[b] = -1;
            start[b] = expert[b] >= 0 ? (unsigned long long)call.view.start[expert[b]] : 0;
            rows[b] = expert[b] >= 0 ? call.view.rows[expert[b]] : 0;
        }
#pragma unroll
        for (int b = 0; b < TEGROUP_IMPL_PERMUTATION_BATCH; b++) {
            if (base + 32 * b >= last) break; /* most runs of few slots end here, and instructions come from memory */
            const int32_t e = expert[b];
            const int64_t slot = base + 32 * b + lane;
            const uint32_t same = __match_any_sync(0xffffffffu, e), lower = same & ((1u << lane) - 1);
            const unsigned long long first = e >= 0 ? next[e] : 0, row = first + (unsigned)__popc(lower);
            int64_t to = -1;
            __syncwarp();
            if (e >= 0 && lower == 0) next[e] = first + (unsigned)__popc(same);
            __syncwarp();
            if (e >= 0 && (int64_t)(row - start[b]) < rows[b]) to = (int64_t)row;
            if (to < 0 || to >= capacity) to = -1;
            if (slot < last) {
                const tegroup_matrix &rows_of = call.desc.row_of_slot, &slots_of = call.desc.slot_of_row;
                tegroup_impl_store_int(rows_of.dtype, rows_of.data, tegroup_impl_slot_at(rows_of, slot), to);
                if (to >= 0) tegroup_impl_store_int(slots_of.dtype, slots_of.data, to, slot);
                if (to >= 0 && weights.dtype == TEGROUP_DTYPE_F32) ((uint32_t *)weights.data)[to] = (uint32_t)weight[b];
                else if (to >= 0 && weights.dtype == TEGROUP_DTYPE_F64) ((uint64_t *)weights.data)[to] = weight[b];
            }
        }
    }
}

/* The third step. */
static __device__ __forceinline__ void tegroup_impl_rank_runs(const tegroup_impl_permutation_call &call,
                                                              bool prepared) {
    const int32_t groups = call.desc.shape.groups, lane = (int32_t)threadIdx.x % 32;
    const int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, threads = (int64_t)gridDim.x * blockDim.x;
    unsigned long long *next = tegroup_impl_permutation_numbers(groups);
    for (int64_t run = thread / 32; run < call.runs; run += threads / 32) {
        for (int32_t g = lane; g < groups; g += 32)
            next[g] = prepared
                          ? (unsigned long long)call.view.start[g] + (unsigned long long)call.before[run * groups + g]
                          : 0;
        __syncwarp();
        tegroup_impl_rank_run(call, run, prepared, next);
        __syncwarp();
    }
}

static __global__ void __launch_bounds__(TEGROUP_IMPL_PERMUTATION_THREADS)
    tegroup_impl_permutation_rank_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    tegroup_impl_rank_runs(call, tegroup_impl_permutation_prepared(call));
}

/* All steps, and between them the snapshot. The blocks of the grid wait for one another, so that all of them must run
 * at a time. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_PERMUTATION_THREADS)
    tegroup_impl_permutation_whole_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    tegroup_impl_count_runs(call);
    grid.sync();
    tegroup_impl_sum_runs<TEGROUP_IMPL_PERMUTATION_THREADS, true>(call);
    grid.sync();
    if (blockIdx.x == 0) tegroup_impl_permutation_prepare_block(call, call.counts);
    grid.sync();
    tegroup_impl_rank_runs(call, true);
}

/* The same for few slots, in one block, with a run for each warp: three launches take longer than the work. */
template <bool PREPARES>
static __global__ void __launch_bounds__(TEGROUP_IMPL_PERMUTATION_THREADS)
    tegroup_impl_permutation_block_kernel(const __grid_constant__ tegroup_impl_permutation_call call) {
    const int32_t groups = call.desc.shape.groups, warps = (int32_t)blockDim.x / 32;
    unsigned long long *numbers = tegroup_impl_permutation_numbers(groups),
                       *all = numbers - (int64_t)(threadIdx.x / 32) * groups;
    tegroup_impl_clear_slots(call, threadIdx.x, blockDim.x);
    tegroup_impl_count_run(call, threadIdx.x / 32, numbers);
    __syncthreads();
    if (PREPARES) {
        __shared__ int64_t counts[TEGROUP_IMPL_PERMUTATION_FUSED];
        for (int32_t g = (int32_t)threadIdx.x; g < groups; g += (int32_t)blockDim.x) {
            counts[g] = 0;
            for (int32_t warp = 0; warp < warps; warp++) counts[g] += (int64_t)all[warp * groups + g];
        }
        __syncthreads();
        tegroup_impl_permutation_prepare_block(call, counts);
        __syncthreads();
    }
    const bool prepared = PREPARES || tegroup_impl_permutation_prepared(call);
    for (int32_t g = (int32_t)threadIdx.x; g < groups; g += (int32_t)blockDim.x) {
        unsigned long long next = prepared ? (unsigned long long)call.view.start[g] : 0;
        for (int32_t warp = 0; warp < warps; warp++) {
            const unsigned long long count = all[warp * groups + g];
            all[warp * groups + g] = next;
            next += count;
        }
    }
    __syncthreads();
    tegroup_impl_rank_run(call, threadIdx.x / 32, prepared, numbers);
}

/* ---- which slots full groups keep ---- */

/* Digit by digit, eight bits at a time from the highest on: first those of the weights, then those of the slots, so
 * that no two are equal. An expert keeps the slots above the digit at which its rows run out, and drops those below;
 * those at it are undecided. `kept` has what became of a slot: its expert, -1, or -2 - expert while it is undecided. */
typedef struct tegroup_impl_keep_call {
    tegroup_impl_permutation_call permutation;
    tegroup_matrix weights;
    int32_t *kept;
    unsigned long long *histogram; /* [groups][256] */
    int64_t *left, *digit;         /* [groups] each: rows that are not given away; the digit at which they run out */
    int32_t pass, passes, of_weights; /* passes of all, and of the weights */
} tegroup_impl_keep_call;

static __device__ __forceinline__ int32_t tegroup_impl_keep_digit(const tegroup_impl_keep_call &call, int64_t slot,
                                                                  int32_t pass) {
    if (pass < call.of_weights)
        return (int32_t)(tegroup_impl_weight_key(&call.weights, slot) >> 8 * (call.of_weights - 1 - pass) & 255);
    return (int32_t)((uint64_t)~slot >> 8 * (call.passes - 1 - pass) & 255); /* the first slot has the largest */
}

/* Decides by the last pass's digit, and counts the digits of this one. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_keep_count_kernel(const __grid_constant__ tegroup_impl_keep_call call) {
    const int64_t slots = call.permutation.slots, threads = (int64_t)gridDim.x * blockDim.x;
    const tegroup_matrix &indices = call.permutation.desc.indices;
    const int32_t lane = (int32_t)threadIdx.x % 32;
    for (int64_t base = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) - lane; base < slots; base += threads) {
        const int64_t slot = base + lane;
        int32_t state = -1;
        if (slot < slots && call.pass == 0) {
            const int64_t e = tegroup_impl_load_int(indices.dtype, indices.data, tegroup_impl_slot_at(indices, slot));
            state = tegroup_impl_within(e, call.permutation.desc.shape.groups) ? -2 - (int32_t)e : -1;
        } else if (slot < slots) state = call.kept[slot];
        const int32_t e = -2 - state;
        if (e >= 0 && call.pass > 0) {
            const int64_t digit = tegroup_impl_keep_digit(call, slot, call.pass - 1), at = call.digit[e];
            if (digit != at) state = digit > at ? e : -1;
            else if (call.pass == call.passes) state = -1; /* one slot, for which there is no row */
        }
        if (slot < slots) call.kept[slot] = state;
        if (call.pass == call.passes) continue;
        const int64_t bin = state <= -2 ? e * (int64_t)256 + tegroup_impl_keep_digit(call, slot, call.pass) : -1;
        const uint32_t same = __match_any_sync(0xffffffffu, (unsigned long long)bin);
        if (bin >= 0 && (same & ((1u << lane) - 1)) == 0)
            atomicAdd(&call.histogram[bin], (unsigned long long)__popc(same));
    }
}

/* One block an expert, a thread a digit from the largest on: where do its rows run out? */
static __global__ void __launch_bounds__(256)
    tegroup_impl_keep_choose_kernel(const __grid_constant__ tegroup_impl_keep_call call) {
    const int32_t e = (int32_t)blockIdx.x, digit = 255 - (int32_t)threadIdx.x;
    unsigned long long *mine = &call.histogram[e * (int64_t)256 + digit];
    const int64_t count = (int64_t)*mine, above = tegroup_impl_block_scan(count, false);
    int64_t left = call.left[e];
    if (call.pass == 0)
        left = tegroup_impl_permutation_prepared(call.permutation)
                   ? tegroup_impl_max(0, call.permutation.view.rows[e]) /* it may lie */
                   : 0;
    __syncthreads(); /* all have read what one writes */
    *mine = 0;
    if (above <= left && above + count > left) call.digit[e] = digit, call.left[e] = left - above;
    else if (digit == 0 && above + count <= left) call.digit[e] = -1, call.left[e] = left - above - count;
}

/* Makes `kept`, which then stands for the indices. */
static inline tegroup_status tegroup_impl_cuda_keep_heaviest(const tegroup_permutation_desc *desc,
                                                             tegroup_impl_permutation_call *permutation,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const int32_t groups = desc->shape.groups;
    tegroup_impl_keep_call call;
    tegroup_layout layout;
    unsigned blocks;
    cudaError_t code;
    TEGROUP_IMPL_TRY(tegroup_permutation_layout(desc, &layout, error));
    memset(&call, 0, sizeof call);
    call.permutation = *permutation;
    call.weights = tegroup_impl_cuda_matrix(&desc->weights);
    call.kept = (int32_t *)tegroup_impl_layout_at(&layout, TEGROUP_IMPL_PERMUTATION_KEPT, desc->workspace);
    call.histogram =
        (unsigned long long *)tegroup_impl_layout_at(&layout, TEGROUP_IMPL_PERMUTATION_DIGITS, desc->workspace);
    call.left = (int64_t *)tegroup_impl_layout_at(&layout, TEGROUP_IMPL_PERMUTATION_ROOM, desc->workspace);
    call.digit = call.left + groups;
    call.of_weights = call.passes = tegroup_impl_weight_bits(&desc->weights) / 8;
    for (int64_t most = permutation->slots - 1; most > 0; most >>= 8) call.passes++;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(permutation->slots, 1024), 8, &blocks, error));
    code = cudaMemsetAsync(call.histogram, 0, 8 * 256 * (size_t)groups, stream);
    for (; code == cudaSuccess && call.pass <= call.passes; call.pass++) {
        code = tegroup_impl_launch(tegroup_impl_keep_count_kernel, blocks, 256, 0, stream, call);
        if (code == cudaSuccess && call.pass < call.passes)
            code = tegroup_impl_launch(tegroup_impl_keep_choose_kernel, (unsigned)groups, 256, 0, stream, call);
    }
    permutation->desc.indices = tegroup_matrix_of(call.kept, desc->indices.rows, desc->indices.cols, TEGROUP_DTYPE_I32);
    permutation->desc.indices.ld = desc->indices.cols;
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}

/* The snapshot by calls of its own: counts, and then prepare. */
static inline tegroup_status tegroup_impl_cuda_permutation_prepare(const tegroup_impl_permutation_call *call,
                                                                   const tegroup_prepare_desc *prepare,
                                                                   const tegroup_layout *layout,
                                                                   struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_count_desc count = tegroup_impl_permutation_count(&call->desc, call->counts);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_count(&count, stream, error));
    return tegroup_impl_cuda_prepare(&call->preparation, prepare, layout, stream, error);
}

/* The steps by three kernels, where the snapshot is there. */
static inline cudaError_t tegroup_impl_cuda_permutation_steps(const tegroup_impl_permutation_call &call,
                                                              unsigned blocks, unsigned fill, unsigned threads,
                                                              size_t shared, struct CUstream_st *stream) {
    const int32_t groups = call.desc.shape.groups;
    cudaError_t code;
    code = tegroup_impl_launch(tegroup_impl_permutation_count_kernel, fill > blocks ? fill : blocks, threads, shared,
                               stream, call);
    if (code == cudaSuccess && groups > 0 && call.runs > 0)
        code = tegroup_impl_launch(tegroup_impl_permutation_scan_kernel, (unsigned)(groups + 7) / 8, 1024, 0, stream,
                                   call);
    if (code == cudaSuccess && call.runs > 0)
        code = tegroup_impl_launch(tegroup_impl_permutation_rank_kernel, blocks, threads, shared, stream, call);
    return code;
}

/* prepare: how the snapshot is made, or NULL where it is there. */
static inline tegroup_status tegroup_impl_cuda_permutation_make(const tegroup_permutation_desc *desc,
                                                                const tegroup_prepare_desc *prepare,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    const int32_t groups = desc->shape.groups;
    const int64_t numbers_bytes = 8 * tegroup_impl_max(1, groups), most_of_a_warp = 512, most_rows = 16384;
    const int32_t warps = (int32_t)tegroup_impl_clamp(48 * 1024 / numbers_bytes, 1, 8);
    const size_t shared = (size_t)(warps * numbers_bytes);
    const int weighted = desc->weights.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_impl_permutation_call call;
    tegroup_prepare_desc counted;
    tegroup_layout layout, snapshot;
    unsigned blocks, fill;
    int64_t of_runs, of_rows; /* blocks for all of them */
    int fused = 0;
    memset(&call, 0, sizeof call);
    call.desc = *desc;
    call.desc.indices = tegroup_impl_cuda_matrix(&desc->indices);
    call.desc.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    call.desc.slot_weights = tegroup_impl_cuda_matrix(&desc->slot_weights);
    if (!tegroup_impl_there(&desc->slot_of_row)) call.desc.slot_of_row.cols = 0;
    call.view = tegroup_impl_snapshot_view(desc->shape.snapshot, groups, 0);
    TEGROUP_IMPL_TRY(tegroup_permutation_layout(desc, &layout, error));
    call.before = (int64_t *)tegroup_impl_layout_at(&layout, TEGROUP_IMPL_PERMUTATION_BEFORE, desc->workspace);
    call.counts = (int64_t *)tegroup_impl_layout_at(&layout, TEGROUP_IMPL_PERMUTATION_COUNTS, desc->workspace);
    call.slots = desc->indices.rows * desc->indices.cols;
    if (prepare) {
        counted = *prepare;
        counted.shape.row_sizes.data = call.counts;
        tegroup_impl_snapshot_layout(groups, tegroup_impl_irregular(&counted.shape), &snapshot);
        call.preparation = tegroup_impl_preparation_of(&counted, &snapshot);
        call.snapshot_bytes = (int32_t)snapshot.total_bytes;
        fused = !weighted && groups > 0 && groups <= TEGROUP_IMPL_PERMUTATION_FUSED && call.slots > 0
                && tegroup_impl_prepare_plain(&call.preparation);
        if (!fused) TEGROUP_IMPL_TRY(tegroup_impl_cuda_permutation_prepare(&call, &counted, &snapshot, stream, error));
    }
    if (weighted && call.slots > 0 && groups > 0)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_keep_heaviest(desc, &call, stream, error));
    if (call.slots <= warps * most_of_a_warp && call.desc.slot_of_row.cols <= most_rows) {
        call.runs = warps;
        call.run = tegroup_impl_align(tegroup_impl_ceil_div(call.slots, warps), 32);
        return tegroup_impl_cuda_status(tegroup_impl_launch(fused ? tegroup_impl_permutation_block_kernel<true>
                                                                  : tegroup_impl_permutation_block_kernel<false>,
                                                            1, 32u * (unsigned)warps, shared, stream, call),
                                        "stream", "the kernel must launch", error);
    }
    call.run = tegroup_impl_permutation_run(groups);
    call.runs = tegroup_impl_ceil_div(call.slots, call.run);
    of_runs = tegroup_impl_ceil_div(call.runs, warps);
    of_rows = tegroup_impl_ceil_div(call.desc.slot_of_row.cols, 1024);
    if (fused) {
        const int64_t most = tegroup_impl_max(of_runs, tegroup_impl_max(of_rows, tegroup_impl_ceil_div(groups, 8)));
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(most, 1, &blocks, error));
        const cudaError_t code = tegroup_impl_launch_together(tegroup_impl_permutation_whole_kernel, blocks,
                                                              32u * (unsigned)warps, shared, stream, call);
        if (code != cudaErrorCooperativeLaunchTooLarge && code != cudaErrorNotSupported)
            return tegroup_impl_cuda_status(code, "stream", "the kernel must launch", error);
        (void)cudaGetLastError(); /* Fewer multiprocessors are there than the device has, as in a green context. */
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_permutation_prepare(&call, &counted, &snapshot, stream, error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(of_runs, 64, &blocks, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(of_rows, 8, &fill, error));
    return tegroup_impl_cuda_status(
        tegroup_impl_cuda_permutation_steps(call, blocks, fill, 32u * (unsigned)warps, shared, stream), "stream",
        "the kernels must launch", error);
}

/* ==== [17] Layouts of other libraries: kernels (src/moe/export_cuda.h) ==== */

/* What is said of rows without an owner, and of groups. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_export_kernel(const __grid_constant__ tegroup_export_desc desc) {
    const int64_t threads = (int64_t)gridDim.x * blockDim.x, thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const tegroup_impl_fit fit = tegroup_impl_spans_fit(&desc.shape, desc.shape.groups);
    const tegroup_snapshot_view view = tegroup_impl_snapshot_view(desc.shape.snapshot, desc.shape.groups, 0);
    const bool prepared = tegroup_impl_fits(&fit);
    if (thread == 0 && desc.shape.groups == 0) tegroup_impl_store_int(desc.offsets.dtype, desc.offsets.data, 0, 0);
    for (int64_t row = thread; row < desc.shape.rows; row += threads) tegroup_impl_export_row(&desc, row);
    for (int64_t g = thread; g < desc.shape.groups; g += threads) {
        tegroup_impl_span span = {0, 0};
        if (prepared) span = tegroup_impl_span_of(&view, (int32_t)g, desc.shape.rows);
        tegroup_impl_export_group(&desc, (int32_t)g, span);
    }
}

/* What is said of rows that groups own: a thread takes a unit of them at a time. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_export_owned_kernel(const __grid_constant__ tegroup_export_desc desc) {
    const int64_t threads = (int64_t)gridDim.x * blockDim.x, thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const tegroup_impl_fit fit = tegroup_impl_spans_fit(&desc.shape, desc.shape.groups),
                           other_fit = tegroup_impl_spans_fit(&desc.from, desc.shape.groups);
    const tegroup_snapshot_view view = tegroup_impl_snapshot_view(desc.shape.snapshot, desc.shape.groups, 0),
                                other = tegroup_impl_snapshot_view(desc.from.snapshot, desc.shape.groups, 0);
    const bool has_other = desc.from.snapshot && tegroup_impl_fits(&other_fit);
    if (!tegroup_impl_fits(&fit)) return;
    const tegroup_impl_units units(desc.shape.snapshot, desc.shape.rows);
    for (int64_t unit = thread; unit < units.count; unit += threads) {
        int64_t first;
        int32_t g;
        const int32_t rows = units.at(unit, &first, &g);
        if (rows == 0) continue;
        tegroup_impl_span from = {0, 0};
        const tegroup_impl_span span = tegroup_impl_span_of(&view, g, desc.shape.rows);
        if (has_other) from = tegroup_impl_span_of(&other, g, desc.from.rows);
        for (int32_t i = 0; i < rows; i++) tegroup_impl_export_owned(&desc, g, span, from, first - span.start + i);
    }
}

static inline tegroup_status tegroup_impl_cuda_export(const tegroup_export_desc *desc, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int64_t units = tegroup_impl_ceil_div(desc->shape.rows, TEGROUP_IMPL_ROWS_UNIT) + desc->shape.groups;
    cudaError_t code;
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(units, 64), 8, &blocks, error));
    code = tegroup_impl_launch(tegroup_impl_export_kernel, blocks, 256, 0, stream, *desc);
    if (code == cudaSuccess
        && (desc->labels.dtype != TEGROUP_DTYPE_UNSET || desc->source_rows.dtype != TEGROUP_DTYPE_UNSET))
        code = tegroup_impl_launch(tegroup_impl_export_owned_kernel, blocks, 256, 0, stream, *desc);
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}

/* ==== [18] Skew of a routing: kernel (src/moe/skew_cuda.h) ==== */

/* One block: a thread adds up to four groups, and what it has is added to the block's, in whatever order. */
static __global__ void __launch_bounds__(1024)
    tegroup_impl_skew_kernel(const __grid_constant__ tegroup_skew_desc desc) {
    __shared__ unsigned long long rows, tiles;
    __shared__ int32_t skipped, empty;
    const tegroup_impl_fit fit = tegroup_impl_spans_fit(&desc.shape, desc.shape.groups);
    const tegroup_snapshot_view view = tegroup_impl_snapshot_view(desc.shape.snapshot, desc.shape.groups, 0);
    const bool prepared = tegroup_impl_fits(&fit);
    tegroup_skew sums;
    memset(&sums, 0, sizeof sums);
    if (threadIdx.x == 0) rows = tiles = 0, skipped = empty = 0;
    __syncthreads();
    for (int32_t g = (int32_t)threadIdx.x; g < desc.shape.groups; g += (int32_t)blockDim.x) {
        tegroup_impl_span span = {0, 0};
        if (prepared) span = tegroup_impl_span_of(&view, g, desc.shape.rows);
        tegroup_impl_skew_add(&desc, span, &sums);
    }
    atomicAdd(&rows, (unsigned long long)sums.rows);
    atomicAdd(&tiles, (unsigned long long)sums.tiles);
    atomicAdd(&skipped, sums.skipped);
    atomicAdd(&empty, sums.empty);
    __syncthreads();
    if (threadIdx.x != 0) return;
    sums.rows = (int64_t)rows;
    sums.tiles = (int64_t)tiles;
    sums.skipped = skipped;
    sums.empty = empty;
    *desc.result = tegroup_impl_skew_of(&desc, prepared ? &view : NULL, &sums);
}

static inline tegroup_status tegroup_impl_cuda_skew(const tegroup_skew_desc *desc, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_skew_kernel, 1, 1024, 0, stream, *desc), "stream",
                                    "the kernel must launch", error);
}
#endif /* TEGROUP_NO_MOE */
#if !defined(TEGROUP_NO_EP)

/* ==== [19] Expert parallelism: kernels (src/ep/ep_cuda.h) ==== */

/* Adds what a block's threads have seen. A warp adds up first: sums of 64 bits are slow in shared memory. */
static __device__ __forceinline__ void tegroup_impl_ep_report_merge(tegroup_ep_report *seen, tegroup_ep_report mine) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        mine.received += __shfl_xor_sync(0xffffffffu, mine.received, step);
        mine.dropped += __shfl_xor_sync(0xffffffffu, mine.dropped, step);
        mine.digest += __shfl_xor_sync(0xffffffffu, mine.digest, step);
    }
    atomicMin(&seen->bad_source, mine.bad_source);
    atomicMin(&seen->full_owner, mine.full_owner);
    if (threadIdx.x % 32 != 0) return;
    atomicAdd((unsigned long long *)&seen->received, (unsigned long long)mine.received);
    atomicAdd((unsigned long long *)&seen->dropped, (unsigned long long)mine.dropped);
    atomicAdd((unsigned long long *)&seen->digest, (unsigned long long)mine.digest);
}

/* One block. A thread has EACH neighbouring experts; the scan gives it the rows before them, over all windows, and an
 * expert's start is what comes after the first expert of its owner. */
template <int EACH>
static __global__ void __launch_bounds__(1024)
    tegroup_impl_ep_sizes_kernel(const __grid_constant__ tegroup_ep_sizes_desc desc) {
    __shared__ int64_t before[TEGROUP_MAX_GROUPS];
    __shared__ tegroup_ep_report seen;
    const int32_t groups = (int32_t)desc.counts.cols, experts = tegroup_impl_ep_experts(&desc),
                  first = (int32_t)threadIdx.x * EACH;
    tegroup_impl_ep_expert x[EACH];
    int64_t sum = 0;
    tegroup_ep_report mine = tegroup_impl_ep_report_open(&desc);
    if (threadIdx.x == 0) seen = mine;
    mine.digest = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (first + i >= groups) break;
        x[i] = tegroup_impl_ep_expert_of(&desc, first + i);
        sum += tegroup_impl_ep_align(&desc, x[i].total);
    }
    int64_t start = tegroup_impl_block_scan(sum, false);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (first + i >= groups) break;
        before[first + i] = start;
        start += tegroup_impl_ep_align(&desc, x[i].total);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int32_t e = first + i;
        if (e >= groups) break;
        const int64_t placed = tegroup_impl_ep_place(&desc, e, before[e] - before[e / experts * experts], &x[i]);
        tegroup_impl_ep_report_add(&desc, &mine, e, &x[i], placed);
    }
    tegroup_impl_ep_report_merge(&seen, mine);
    __syncthreads();
    if (threadIdx.x != 0 || !desc.report) return;
    tegroup_impl_ep_report_close(&desc, &seen);
    *desc.report = seen;
}

static inline tegroup_status tegroup_impl_cuda_ep_sizes(const tegroup_ep_sizes_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    const int64_t groups = desc->counts.cols;
    const unsigned threads = (unsigned)tegroup_impl_clamp(tegroup_impl_align(groups, 32), 32, 1024);
    return tegroup_impl_cuda_status(
        groups <= 1024 ? tegroup_impl_launch(tegroup_impl_ep_sizes_kernel<1>, 1, threads, 0, stream, *desc)
                       : tegroup_impl_launch(tegroup_impl_ep_sizes_kernel<4>, 1, 1024, 0, stream, *desc),
        "stream", "the kernel must launch", error);
}

/* Kernels' parameters. A piece is what a thread moves at a time, in bytes. */
typedef struct tegroup_impl_ep_dispatch_call {
    tegroup_ep_dispatch_desc desc;
    tegroup_impl_ep_reach reach;
    int32_t rows_piece, scales_piece;
} tegroup_impl_ep_dispatch_call;
typedef struct tegroup_impl_ep_combine_call {
    tegroup_ep_combine_desc desc;
    tegroup_impl_ep_reach reach;
} tegroup_impl_ep_combine_call;

/* `threads` threads, all of a block or of a warp, copy a row to each of k places, of which those without an address are
 * passed over. Several pieces are in flight before the first is stored. */
template <typename PIECE>
static __device__ __forceinline__ void tegroup_impl_ep_spread(const char *from, char *const *to, int32_t k,
                                                              int64_t bytes, int32_t threads) {
    enum { BATCH = 4 };
    const int64_t pieces = bytes / (int64_t)sizeof(PIECE);
    for (int64_t first = (int32_t)threadIdx.x % threads; first < pieces; first += BATCH * threads) {
        PIECE x[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
            if (first + b * threads < pieces) x[b] = ((const PIECE *)from)[first + b * threads];
        for (int32_t j = 0; j < k; j++) {
            if (!to[j]) continue;
#pragma unroll
            for (int b = 0; b < BATCH; b++)
                if (first + b * threads < pieces) ((PIECE *)to[j])[first + b * threads] = x[b];
        }
    }
}

static __device__ __noinline__ void tegroup_impl_ep_spread_slowly(int32_t piece, const char *from, char *const *to,
                                                                  int32_t k, int64_t bytes, int32_t threads) {
    switch (piece) {
    case 8: tegroup_impl_ep_spread<uint64_t>(from, to, k, bytes, threads); break;
    case 4: tegroup_impl_ep_spread<uint32_t>(from, to, k, bytes, threads); break;
    case 2: tegroup_impl_ep_spread<uint16_t>(from, to, k, bytes, threads); break;
    default: tegroup_impl_ep_spread<uint8_t>(from, to, k, bytes, threads); break;
    }
}

/* The same for a row of a matrix, in pieces of so many bytes. */
static __device__ __forceinline__ void tegroup_impl_ep_spread_row(const tegroup_matrix &m, int64_t row, int32_t piece,
                                                                  char *const *to, int32_t k, int32_t threads) {
    const char *const from = tegroup_impl_matrix_row(&m, row);
    const int64_t bytes = m.cols * (tegroup_impl_bits(m.dtype) / 8);
    if (piece == 16) tegroup_impl_ep_spread<uint4>(from, to, k, bytes, threads);
    else tegroup_impl_ep_spread_slowly(piece, from, to, k, bytes, threads);
}

/* Stores the link of slot j of a token, whose owners are known. Returns whether the token goes to the slot's row. */
static __device__ __noinline__ bool tegroup_impl_ep_store_link(const tegroup_impl_ep_dispatch_call &call,
                                                               const int32_t *owners, int64_t token, int32_t j) {
    const int64_t row = tegroup_impl_entry(&call.desc.row_of_slot, token, j);
    int first;
    if (owners[j] < 0) return false;
    const int32_t link = tegroup_impl_ep_link(&call.desc, &call.reach, owners, token, j, &first);
    *(int32_t *)tegroup_impl_ep_row(&call.reach, &call.desc.row_links, row) = link;
    return first || owners[j] == call.reach.rank;
}

/* One block serves one token at a time: thread j finds the places of slot j, and all of them copy. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_ep_dispatch_kernel(const __grid_constant__ tegroup_impl_ep_dispatch_call call) {
    __shared__ char *rows[TEGROUP_IMPL_CHOICES], *scales[TEGROUP_IMPL_CHOICES];
    __shared__ int32_t owners[TEGROUP_IMPL_CHOICES];
    const tegroup_ep_dispatch_desc &desc = call.desc;
    const int32_t k = (int32_t)desc.row_of_slot.cols, j = (int32_t)threadIdx.x;
    const bool links = tegroup_impl_there(&desc.row_links);
    for (int64_t token = blockIdx.x; token < desc.row_of_slot.rows; token += gridDim.x) {
        __syncthreads(); /* the last token's places have been read */
        if (links) {
            if (j < k) owners[j] = tegroup_impl_ep_owner(&call.reach, tegroup_impl_entry(&desc.row_of_slot, token, j));
            __syncthreads();
        }
        if (j < k) {
            const int64_t row = tegroup_impl_entry(&desc.row_of_slot, token, j);
            const bool goes = !links || tegroup_impl_ep_store_link(call, owners, token, j);
            rows[j] = goes && tegroup_impl_there(&desc.rows) ? tegroup_impl_ep_row(&call.reach, &desc.rows, row) : NULL;
            scales[j] = goes && tegroup_impl_there(&desc.row_scales)
                            ? tegroup_impl_ep_row(&call.reach, &desc.row_scales, row)
                            : NULL;
            char *const weight =
                tegroup_impl_there(&desc.row_weights) ? tegroup_impl_ep_row(&call.reach, &desc.row_weights, row) : NULL;
            if (weight && desc.weights.dtype == TEGROUP_DTYPE_F64)
                *(double *)weight = tegroup_impl_weight<double>(desc.weights, token, j);
            else if (weight) *(float *)weight = tegroup_impl_weight<float>(desc.weights, token, j);
        }
        __syncthreads();
        if (tegroup_impl_there(&desc.tokens))
            tegroup_impl_ep_spread_row(desc.tokens, token, call.rows_piece, rows, k, (int32_t)blockDim.x);
        if (tegroup_impl_there(&desc.scales))
            tegroup_impl_ep_spread_row(desc.scales, token, (int32_t)tegroup_impl_min(8, call.scales_piece), scales, k,
                                       (int32_t)blockDim.x);
    }
}

static inline int32_t tegroup_impl_cuda_ep_piece(const tegroup_matrix *from, const tegroup_matrix *to) {
    if (!tegroup_impl_there(from)) return 1;
    return (int32_t)tegroup_impl_min(tegroup_impl_cuda_piece(from), tegroup_impl_cuda_piece(to));
}

static inline tegroup_status tegroup_impl_cuda_ep_dispatch(const tegroup_ep_dispatch_desc *desc,
                                                           const tegroup_impl_ep_reach *reach,
                                                           struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_ep_dispatch_call call;
    if (desc->row_of_slot.rows == 0) return TEGROUP_OK;
    call.desc = *desc;
    call.desc.weights = tegroup_impl_cuda_matrix(&desc->weights);
    call.reach = *reach;
    call.rows_piece = tegroup_impl_cuda_ep_piece(&desc->tokens, &desc->rows);
    call.scales_piece = tegroup_impl_cuda_ep_piece(&desc->scales, &desc->row_scales);
    return tegroup_impl_cuda_rows(
        tegroup_impl_ep_dispatch_kernel, &call,
        tegroup_impl_max(desc->tokens.cols * (tegroup_impl_bits(desc->tokens.dtype) / 8), desc->row_of_slot.cols * 16),
        call.rows_piece, desc->row_of_slot.rows, stream, error);
}

/* The places of rows in a list of those that are added, in which owners come by rank and an owner's slots in order, and
 * where this rank's own rows are in it. Of another rank's rows only the first is in the list. */
struct tegroup_impl_ep_list {
    int32_t place, begin, end; /* place: of slot j; -1 = it is not in the list */
    __device__ tegroup_impl_ep_list(const int32_t *owners, int32_t k, int32_t rank, int32_t j)
        : place(-1), begin(0), end(0) {
        int32_t before = 0;
        for (int32_t i = 0; i < k; i++) {
            bool there = owners[i] >= 0;
            for (int32_t h = 0; h < i && owners[i] != rank; h++) there &= owners[h] != owners[i];
            begin += there && owners[i] < rank;
            end += there && owners[i] <= rank;
            if (j >= k || !there) continue;
            if (i == j) place = 0;
            before += owners[i] < owners[j] || (owners[i] == owners[j] && i < j);
        }
        if (place == 0) place = before;
    }
};

/* Adds a row, number `place` of the list. `own` are begin and end of this rank's rows in it: where these begin the sums
 * of the owners before are put aside, and where they end these rows' sums are rounded and added to them. */
template <typename ACCESS>
static __device__ __forceinline__ void tegroup_impl_ep_add(const tegroup_ep_combine_desc &desc, const int32_t *own,
                                                           int32_t place, typename ACCESS::real weight,
                                                           typename ACCESS::raw x, typename ACCESS::real *sum,
                                                           typename ACCESS::real *before) {
    typename ACCESS::real y[ACCESS::lanes];
    ACCESS::unpack(x, y);
    if (place == own[0]) {
#pragma unroll
        for (int i = 0; i < ACCESS::lanes; i++) before[i] = sum[i], sum[i] = y[i];
    } else {
#pragma unroll
        for (int i = 0; i < ACCESS::lanes; i++) sum[i] = fma(weight, y[i], sum[i]);
    }
    if (place + 1 != own[1]) return;
    ACCESS::round(desc.rows, sum);
#pragma unroll
    for (int i = 0; i < ACCESS::lanes; i++) sum[i] += before[i];
}

/* One block serves one token at a time. The sum is that of tegroup_impl_combine_kernel, step by step, or by owner. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_ep_combine_kernel(const __grid_constant__ tegroup_impl_ep_combine_call call) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes, BATCH = 8 };
    __shared__ const char *from[TEGROUP_IMPL_CHOICES + BATCH];
    __shared__ real weight[TEGROUP_IMPL_CHOICES + BATCH];
    __shared__ int32_t owners[TEGROUP_IMPL_CHOICES], own[2]; /* own: begin and end in the list; by slot there is none */
    const tegroup_ep_combine_desc &desc = call.desc;
    const int32_t k = (int32_t)desc.row_of_slot.cols, j = (int32_t)threadIdx.x;
    const int64_t steps = tegroup_impl_there(&desc.tokens) ? desc.tokens.cols / lanes : 0;
    for (int64_t token = blockIdx.x; token < desc.row_of_slot.rows; token += gridDim.x) {
        __syncthreads(); /* the last token's places have been read */
        for (int32_t slot = j; slot < k + BATCH; slot += (int32_t)blockDim.x) {
            const int64_t row = slot < k ? tegroup_impl_entry(&desc.row_of_slot, token, slot) : -1;
            from[slot] = tegroup_impl_there(&desc.rows) ? tegroup_impl_ep_row(&call.reach, &desc.rows, row) : NULL;
            weight[slot] = from[slot] ? tegroup_impl_weight<real>(desc.weights, token, slot) : (real)0;
            if (slot >= k || !tegroup_impl_there(&desc.values)) continue;
            const char *const value = tegroup_impl_ep_row(&call.reach, &desc.row_values, row);
            tegroup_impl_store_f64(desc.values.dtype, tegroup_impl_matrix_row(&desc.values, token), slot,
                                   value ? tegroup_impl_load_f64(desc.values.dtype, value, 0) : 0);
        }
        if (j < k) owners[j] = tegroup_impl_ep_owner(&call.reach, tegroup_impl_entry(&desc.row_of_slot, token, j));
        if (j < 2) own[j] = -1;
        __syncthreads();
        if (desc.by_owner) {
            const tegroup_impl_ep_list list(owners, k, call.reach.rank, j);
            const char *const mine = j < k ? from[j] : NULL;
            __syncthreads();
            if (j < k) from[j] = NULL;
            if (j == 0 && list.end > list.begin) own[0] = list.begin, own[1] = list.end;
            __syncthreads();
            if (list.place >= 0) from[list.place] = mine, weight[list.place] = 1;
            __syncthreads();
        }
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            real sum[lanes], before[lanes] = {0};
            tegroup_impl_begin_sum<ACCESS>(desc.tokens, token, c, desc.accumulate, sum);
            for (int32_t slot = 0; slot < k; slot += BATCH) {
                typename ACCESS::raw x[BATCH];
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    x[b] = typename ACCESS::raw();
                    if (from[slot + b]) x[b] = ACCESS::load(desc.rows, from[slot + b], c);
                }
#pragma unroll
                for (int b = 0; b < BATCH; b++)
                    if (from[slot + b])
                        tegroup_impl_ep_add<ACCESS>(desc, own, slot + b, weight[slot + b], x[b], sum, before);
            }
            ACCESS::store(desc.tokens, ACCESS::row(desc.tokens, token), c, ACCESS::pack(sum));
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_ep_combine(const tegroup_ep_combine_desc *desc,
                                                          const tegroup_impl_ep_reach *reach,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->rows, &desc->tokens};
    const int64_t width = tegroup_impl_there(&desc->tokens) ? desc->tokens.cols : 0;
    tegroup_impl_ep_combine_call call;
    if (desc->row_of_slot.rows == 0) return TEGROUP_OK;
    call.desc = *desc;
    call.desc.rows = tegroup_impl_cuda_matrix(&desc->rows);
    call.desc.weights = tegroup_impl_cuda_matrix(&desc->weights);
    call.desc.tokens = tegroup_impl_cuda_matrix(&desc->tokens);
    call.reach = *reach;
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(tegroup_impl_ep_combine_kernel<__VA_ARGS__>, &call, width, __VA_ARGS__::lanes,       \
                                  desc->row_of_slot.rows, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

/* ==== [20] Expert parallelism: kernels for rows of one token in one window (src/ep/links_cuda.h) ==== */

/* A kernel's parameters. A piece is what a thread moves at a time, in bytes. */
typedef struct tegroup_impl_ep_links_call {
    tegroup_ep_links_desc desc;
    int32_t rows_piece, scales_piece;
} tegroup_impl_ep_links_call;

/* A warp has a unit of rows at a time, and calls `work` for each that is the first of a token which has others. */
template <typename WORK>
static __device__ __forceinline__ void tegroup_impl_ep_each_first(const tegroup_ep_links_desc &desc, const WORK &work) {
    const int32_t lane = (int32_t)threadIdx.x % 32, warps = (int32_t)blockDim.x / 32;
    const tegroup_impl_units units(desc.shape.snapshot, desc.shape.rows);
    if (units.groups != desc.shape.groups) return; /* that snapshot is of another shape */
    for (int64_t unit = (int64_t)blockIdx.x * warps + threadIdx.x / 32; unit < units.count;
         unit += (int64_t)gridDim.x * warps) {
        int64_t first;
        const int32_t rows = units.at(unit, &first);
        uint32_t left =
            __ballot_sync(0xffffffffu, lane < rows && tegroup_impl_ep_next(&desc.row_links, first + lane, 1) >= 0);
        for (; left; left &= left - 1) work(first + __ffs((int)left) - 1);
    }
}

/* The other rows of a token lie in shared memory: lane 0 follows the links. */
static __device__ __forceinline__ int32_t tegroup_impl_ep_others_of_warp(const tegroup_matrix &links, int64_t row,
                                                                         int64_t *others) {
    int32_t count = 0;
    __syncwarp(); /* the last token's have been read */
    if (threadIdx.x % 32 == 0) count = tegroup_impl_ep_others(&links, row, others);
    __syncwarp();
    return __shfl_sync(0xffffffffu, count, 0);
}

enum { TEGROUP_IMPL_EP_WARPS = TEGROUP_IMPL_ROWS_THREADS / 32 };

static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_ep_expand_kernel(const __grid_constant__ tegroup_impl_ep_links_call call) {
    __shared__ int64_t of_warps[TEGROUP_IMPL_EP_WARPS][TEGROUP_IMPL_CHOICES];
    __shared__ char *to_of_warps[2][TEGROUP_IMPL_EP_WARPS][TEGROUP_IMPL_CHOICES];
    const tegroup_ep_links_desc &desc = call.desc;
    const int32_t warp = (int32_t)threadIdx.x / 32, lane = (int32_t)threadIdx.x % 32;
    int64_t *const others = of_warps[warp];
    char **const rows = to_of_warps[0][warp], **const scales = to_of_warps[1][warp];
    tegroup_impl_ep_each_first(desc, [&](int64_t row) {
        const int32_t count = tegroup_impl_ep_others_of_warp(desc.row_links, row, others);
        for (int32_t j = lane; j < count; j += 32) {
            rows[j] = tegroup_impl_matrix_row(&desc.rows, others[j]);
            if (tegroup_impl_there(&desc.row_scales)) scales[j] = tegroup_impl_matrix_row(&desc.row_scales, others[j]);
        }
        __syncwarp();
        tegroup_impl_ep_spread_row(desc.rows, row, call.rows_piece, rows, count, 32);
        if (tegroup_impl_there(&desc.row_scales))
            tegroup_impl_ep_spread_row(desc.row_scales, row, (int32_t)tegroup_impl_min(8, call.scales_piece), scales,
                                       count, 32);
    });
}

/* A lane has the same steps of all rows of a token, and reads the first before it writes it. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_ep_reduce_kernel(const __grid_constant__ tegroup_impl_ep_links_call call) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes, BATCH = 4 };
    __shared__ int64_t of_warps[TEGROUP_IMPL_EP_WARPS][TEGROUP_IMPL_CHOICES];
    const tegroup_matrix &rows = call.desc.rows;
    const int64_t steps = rows.cols / lanes;
    int64_t *const others = of_warps[threadIdx.x / 32];
    tegroup_impl_ep_each_first(call.desc, [&](int64_t row) {
        const int32_t count = tegroup_impl_ep_others_of_warp(call.desc.row_links, row, others);
        for (int64_t c = threadIdx.x % 32; c < steps; c += 32) {
            real sum[lanes];
            ACCESS::unpack(ACCESS::load(rows, ACCESS::row(rows, row), c), sum);
            for (int32_t j = 0; j < count; j += BATCH) {
                typename ACCESS::raw x[BATCH];
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    x[b] = typename ACCESS::raw();
                    if (j + b < count) x[b] = ACCESS::load(rows, ACCESS::row(rows, others[j + b]), c);
                }
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    real y[lanes];
                    if (j + b >= count) continue;
                    ACCESS::unpack(x[b], y);
#pragma unroll
                    for (int i = 0; i < lanes; i++) sum[i] += y[i];
                }
            }
            ACCESS::store(rows, ACCESS::row(rows, row), c, ACCESS::pack(sum));
        }
    });
}

static inline tegroup_impl_ep_links_call tegroup_impl_ep_links_call_of(const tegroup_ep_links_desc *desc) {
    tegroup_impl_ep_links_call call;
    call.desc = *desc;
    call.desc.rows = tegroup_impl_cuda_matrix(&desc->rows);
    call.rows_piece = tegroup_impl_cuda_piece(&desc->rows);
    call.scales_piece = tegroup_impl_there(&desc->row_scales) ? tegroup_impl_cuda_piece(&desc->row_scales) : 1;
    return call;
}

/* As many warps as the GPU holds, at most one for each unit of rows. */
static inline tegroup_status tegroup_impl_cuda_ep_links(void (*kernel)(const tegroup_impl_ep_links_call),
                                                        const tegroup_ep_links_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    const tegroup_impl_ep_links_call call = tegroup_impl_ep_links_call_of(desc);
    const int64_t units = tegroup_impl_ceil_div(desc->shape.rows, TEGROUP_IMPL_ROWS_UNIT) + desc->shape.groups;
    unsigned blocks;
    if (desc->shape.rows == 0 || (desc->rows.cols == 0 && !tegroup_impl_there(&desc->row_scales))) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(units, TEGROUP_IMPL_EP_WARPS), 8, &blocks, error));
    return tegroup_impl_cuda_status(tegroup_impl_launch(kernel, blocks, TEGROUP_IMPL_ROWS_THREADS, 0, stream, call),
                                    "stream", "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_ep_expand(const tegroup_ep_links_desc *desc, struct CUstream_st *stream,
                                                         tegroup_error *error) {
    return tegroup_impl_cuda_ep_links(tegroup_impl_ep_expand_kernel, desc, stream, error);
}

static inline tegroup_status tegroup_impl_cuda_ep_reduce(const tegroup_ep_links_desc *desc, struct CUstream_st *stream,
                                                         tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->rows};
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_ep_links(tegroup_impl_ep_reduce_kernel<__VA_ARGS__>, desc, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 1, desc->rows.cols), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}
#endif /* TEGROUP_NO_EP */
#if !defined(TEGROUP_NO_FP8)

/* ==== [21] Validate kernel of quantised tensors (src/gemm/validate_quantised_cuda.h) ==== */

enum { TEGROUP_IMPL_VALIDATE_WARPS = 8 };

/* What a thread has counted goes to the record. No place yet, -1, is the largest for atomicMin. */
static __device__ __forceinline__ void tegroup_impl_validate_add(int64_t *counter, unsigned long long count) {
    if (count) atomicAdd((unsigned long long *)counter, count);
}
static __device__ __forceinline__ void tegroup_impl_validate_lower(int64_t *first, unsigned long long at) {
    if (at != UINT64_MAX) atomicMin((unsigned long long *)first, at);
}

/* Every thread walks through all groups. The warps of the grid take a group's lines in turn, each line along which the
 * copy's elements lie side by side, and its scales, 32 at a time. */
static __global__ void __launch_bounds__(32 * TEGROUP_IMPL_VALIDATE_WARPS)
    tegroup_impl_validate_quantised_kernel(const __grid_constant__ tegroup_impl_validated first,
                                           tegroup_validation *result) {
    tegroup_impl_validated copy = first;
    const tegroup_tensor &t = first.tensor;
    const tegroup_snapshot_view view = tegroup_impl_fitting_view(&t);
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * TEGROUP_IMPL_VALIDATE_WARPS,
                  warp = (int64_t)blockIdx.x * TEGROUP_IMPL_VALIDATE_WARPS + threadIdx.x / 32;
    const bool transposed = tegroup_impl_transposed(&t, copy.of.columnwise);
    unsigned long long kinds[TEGROUP_IMPL_SCALE_KINDS] = {}, nans = 0, infinities = 0;
    unsigned long long first_value = UINT64_MAX, first_scale = UINT64_MAX, first_global = UINT64_MAX;
    int64_t turn = warp; /* the lines that other warps take before this one's next */
    if (tegroup_impl_ragged(&t.shape) && !view.header) return;
    for (int32_t g = 0; g < t.shape.groups; g++) {
        if (!tegroup_impl_validated_next(&copy, &view, g) && warp == 0 && lane == 0) {
            atomicOr(&result->status, TEGROUP_VALIDATION_BOUNDS);
            atomicMin((uint32_t *)&result->bad_group, (uint32_t)g);
        }
        const int64_t lines = transposed ? copy.sides.cols : copy.sides.rows,
                      length = transposed ? copy.sides.rows : copy.sides.cols;
        for (; turn < lines; turn += warps)
            for (int64_t i = lane; i < length; i += 32) {
                const int64_t row = transposed ? i : turn, col = transposed ? turn : i;
                const int kind = tegroup_impl_validated_value(&copy, row, col);
                if (kind == TEGROUP_IMPL_FINITE) continue;
                if (kind == TEGROUP_IMPL_NAN) nans++;
                else infinities++;
                first_value = min(first_value, (unsigned long long)((copy.row0 + row) * t.shape.cols + col));
            }
        turn -= lines;
        for (int64_t i = warp * 32 + lane; i < copy.scales; i += warps * 32) {
            int64_t at;
            const int kind = tegroup_impl_validated_scale(&copy, i, &at);
            kinds[kind]++;
            if (kind != TEGROUP_IMPL_SCALE_GOOD) first_scale = min(first_scale, (unsigned long long)at);
        }
        if (warp == 0 && lane == 0) {
            const int kind = tegroup_impl_validated_global(&copy, g);
            kinds[kind]++;
            if (kind != TEGROUP_IMPL_SCALE_GOOD) first_global = min(first_global, (unsigned long long)g);
        }
    }
    tegroup_impl_validate_add(&result->owned.nans, nans);
    tegroup_impl_validate_add(&result->owned.infinities, infinities);
    tegroup_impl_validate_lower(&result->owned.first_row, first_value);
    for (int kind = TEGROUP_IMPL_SCALE_GOOD + 1; kind < TEGROUP_IMPL_SCALE_KINDS; kind++)
        tegroup_impl_validate_add(tegroup_impl_scale_counter(&result->scales, kind), kinds[kind]);
    tegroup_impl_validate_lower(&result->scales.first, first_scale);
    tegroup_impl_validate_lower(&result->scales.first_global, first_global);
}

static inline cudaError_t tegroup_impl_cuda_validate_quantised(const tegroup_validate_desc *desc, unsigned blocks,
                                                               struct CUstream_st *stream) {
    return tegroup_impl_launch(tegroup_impl_validate_quantised_kernel, blocks, 32 * TEGROUP_IMPL_VALIDATE_WARPS, 0,
                               stream, tegroup_impl_validated_of(&desc->tensor, desc->columnwise), desc->result);
}

/* ==== [22] Scales in another layout: kernel (src/gemm/scale_convert_cuda.h) ==== */

enum { TEGROUP_IMPL_SCALE_THREADS = 256 };

/* What the groups before g store, added up by all threads of a block; 0 where scales do not follow one another. */
static __device__ __forceinline__ int64_t tegroup_impl_block_scales_before(const tegroup_impl_scales &scales,
                                                                           const tegroup_snapshot_view *view, int32_t g,
                                                                           unsigned long long *sum) {
    const tegroup_tensor *t = &scales.tensor;
    int64_t mine = 0;
    if (threadIdx.x == 0) *sum = 0;
    __syncthreads();
    if (!tegroup_impl_listed(t) && !tegroup_impl_scales_strided(t, scales.columnwise)) {
        for (int32_t h = (int32_t)threadIdx.x; h < g; h += TEGROUP_IMPL_SCALE_THREADS)
            mine = tegroup_impl_add(mine, tegroup_impl_scale_grid_alone(
                                              t, &scales.facts, tegroup_impl_group_sides(t, view, h), scales.columnwise)
                                              .count);
        atomicAdd(sum, (unsigned long long)mine);
    }
    __syncthreads();
    return (int64_t)*sum;
}

/* A group a blockIdx.y; the blocks of a group take its scales in turn. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_SCALE_THREADS)
    tegroup_impl_scale_convert_kernel(const __grid_constant__ tegroup_impl_scales from,
                                      const __grid_constant__ tegroup_impl_scales to) {
    __shared__ unsigned long long sums[2];
    const int32_t g = (int32_t)blockIdx.y;
    const tegroup_snapshot_view from_view = tegroup_impl_fitting_view(&from.tensor),
                                to_view = tegroup_impl_fitting_view(&to.tensor);
    if ((tegroup_impl_ragged(&from.tensor.shape) && !from_view.header)
        || (tegroup_impl_ragged(&to.tensor.shape) && !to_view.header))
        return;
    const int64_t first = (int64_t)blockIdx.x * TEGROUP_IMPL_SCALE_THREADS,
                  step = (int64_t)gridDim.x * TEGROUP_IMPL_SCALE_THREADS;
    tegroup_impl_scale_grid written = tegroup_impl_scales_grid(&to, &to_view, g, 0);
    if (first >= written.count) return; /* as all threads of the block do */
    const tegroup_impl_scale_grid read =
        tegroup_impl_scales_grid(&from, &from_view, g, tegroup_impl_block_scales_before(from, &from_view, g, &sums[0]));
    written = tegroup_impl_scales_grid(&to, &to_view, g, tegroup_impl_block_scales_before(to, &to_view, g, &sums[1]));
    for (int64_t e = first + threadIdx.x; e < written.count; e += step) {
        const tegroup_impl_scale_place place = tegroup_impl_scale_place_of(&written, e);
        tegroup_impl_store_scale(to.dtype, tegroup_impl_scales_at(&to, g),
                                 tegroup_impl_scale_of_block(&written, place.part, place.outer, place.inner),
                                 tegroup_impl_converted_scale(&read, from.dtype, tegroup_impl_scales_at(&from, g),
                                                              &written, to.dtype, place));
    }
}

static inline tegroup_status tegroup_impl_cuda_scale_convert(const tegroup_impl_scales *from,
                                                             const tegroup_impl_scales *to, struct CUstream_st *stream,
                                                             tegroup_error *error) {
    const int32_t groups = to->tensor.shape.groups;
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(to->capacity, 4 * TEGROUP_IMPL_SCALE_THREADS), 32,
                                              &blocks, error));
    if (groups == 0 || to->capacity == 0) return TEGROUP_OK;
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_scale_convert_kernel,
                            dim3((unsigned)tegroup_impl_ceil_div(blocks, groups), (unsigned)groups),
                            TEGROUP_IMPL_SCALE_THREADS, 0, stream, *from, *to),
        "stream", "the kernel must launch", error);
}

/* ==== [23] Codes in another order: kernel (src/gemm/code_convert_cuda.h) ==== */

enum { TEGROUP_IMPL_CODE_THREADS = 256 };

/* A thread converts a block of codes at a time. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_CODE_THREADS)
    tegroup_impl_code_convert_kernel(const __grid_constant__ tegroup_impl_codes_moved moved, int64_t count) {
    const int64_t step = (int64_t)gridDim.x * TEGROUP_IMPL_CODE_THREADS;
    for (int64_t block = (int64_t)blockIdx.x * TEGROUP_IMPL_CODE_THREADS + threadIdx.x; block < count; block += step)
        tegroup_impl_convert_block(&moved, block);
}

static inline tegroup_status tegroup_impl_cuda_code_convert(const tegroup_impl_codes_moved *moved,
                                                            struct CUstream_st *stream, tegroup_error *error) {
    const int64_t count = (int64_t)moved->from.shape.groups * moved->lines * moved->blocks;
    unsigned blocks;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(count, TEGROUP_IMPL_CODE_THREADS), 32, &blocks, error));
    if (count == 0) return TEGROUP_OK;
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_code_convert_kernel, blocks,
                                                        TEGROUP_IMPL_CODE_THREADS, 0, stream, *moved, count),
                                    "stream", "the kernel must launch", error);
}
#endif /* TEGROUP_NO_FP8 */

/* ==== [24] Validate kernels (src/gemm/validate_cuda.h) ==== */

/* Checks the sizes in one block, which also initializes the result. */
static __global__ void __launch_bounds__(1024)
    tegroup_impl_validate_sizes_kernel(const __grid_constant__ tegroup_validate_desc desc) {
    __shared__ unsigned long long total, most, end;
    __shared__ uint32_t status, bad_group;
    const tegroup_tensor &t = desc.tensor;
    tegroup_snapshot_view view;
    view.header = NULL;
    if (tegroup_impl_ragged(&t.shape)) view = tegroup_impl_fitting_view(&t);
    if (threadIdx.x == 0) {
        total = most = end = 0;
        status = tegroup_impl_ragged(&t.shape) && !view.header ? TEGROUP_VALIDATION_SNAPSHOT : 0;
        bad_group = UINT32_MAX; /* none: -1 as an int32_t, and the largest for atomicMin */
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
    tegroup_impl_validate_open(&result);
    result.status = status;
    result.bad_group = (int32_t)bad_group;
    if (view.header) {
        result.snapshot_status = view.header->status;
        if (view.header->status) result.status |= TEGROUP_VALIDATION_SIZES;
        result.status |= tegroup_impl_validate_sums(view.header, (int64_t)total, (int64_t)most, (int64_t)end);
    }
    *desc.result = result;
}

/* Whether an element among these 16 bytes may be NaN or infinite: one whose exponent is all ones. */
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

/* A block takes 32 rows at a time. First its threads look through all groups for those that own one of the rows; then
 * each warp checks one row. */
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
    if (ragged) view = tegroup_impl_fitting_view(&t);
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
            atomicMin((unsigned long long *)&values->first_row, first); /* -1, for none, is the largest */
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
    code = tegroup_impl_launch(tegroup_impl_validate_sizes_kernel, 1, 1024, 0, stream, *desc);
#if TEGROUP_IMPL_FP8_KERNELS
    if (code == cudaSuccess && desc->tensor.scaling != TEGROUP_SCALING_NONE)
        code = tegroup_impl_cuda_validate_quantised(desc, blocks, stream);
#endif
    if (code == cudaSuccess && rows > 0 && desc->tensor.scaling == TEGROUP_SCALING_NONE)
        code = tegroup_impl_launch(tegroup_impl_validate_values_kernel, blocks, 256, 0, stream, *desc);
    if (code == cudaSuccess)
        code = tegroup_impl_launch(tegroup_impl_validate_close_kernel, 1, 1, 0, stream, desc->result,
                                   desc->tensor.shape.cols);
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}

/* ==== [25] A walk through tiles (src/cuda/walk.h) ==== */

/* One warp walks the groups, 32 at a time: each lane counts one group's tiles, and a scan adds them up. A few lanes
 * then look up one tile each: a lookup takes long, and several take no longer. Tiles are asked for in rising order, so
 * the walk never goes back. Its state is in shared memory, as registers are for sums. What a CALL and a TILE are, RULE
 * alone knows: lane(), prepared(call), groups(call), tiles(call, g), which is 0 past the last group, put(call, g,
 * local, tile) and none(tile). */
template <typename RULE, typename CALL, typename TILE> struct tegroup_impl_walk {
    int64_t before;   /* tiles in front of the current 32 groups */
    int64_t upto[32]; /* prefix sums of tiles over the current groups, each included */
    int32_t base;     /* the first of the current groups */

    /* Stands before the first groups, or behind the last one if a snapshot was not prepared. */
    __device__ __forceinline__ void begin(const CALL &call) {
        upto[RULE::lane()] = 0;
        if (RULE::lane() == 0) {
            base = RULE::prepared(call) ? -32 : RULE::groups(call);
            before = 0;
        }
        __syncwarp();
    }
    /* Moves on to the next 32 groups. */
    __device__ __forceinline__ void go_on(const CALL &call) {
        const int32_t first = base + 32;
        const int64_t tiles_before = before + upto[31];
        int64_t sum = RULE::tiles(call, first + RULE::lane());
        for (int32_t step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (RULE::lane() >= step) sum += other;
        }
        __syncwarp();
        upto[RULE::lane()] = sum;
        if (RULE::lane() == 0) {
            base = first;
            before = tiles_before;
        }
        __syncwarp();
    }
    /* Finds tile number t for each lane that passes a tile; other lanes pass NULL. */
    __device__ __forceinline__ void find(const CALL &call, int64_t t, TILE *tile) {
        for (;;) {
            if (tile && t < before + upto[31]) {
                int32_t owner = 0; /* of the current groups, those that end before the tile */
#pragma unroll
                for (int32_t half = 16; half > 0; half /= 2)
                    if (t >= before + upto[owner + half - 1]) owner += half;
                RULE::put(call, base + owner, (int32_t)(t - before - (owner > 0 ? upto[owner - 1] : 0)), tile);
                tile = NULL;
            }
            const bool more = base + 32 < RULE::groups(call);
            if (tile && !more) RULE::none(tile);
            if (!more || !__any_sync(0xffffffffu, tile != NULL)) break;
            go_on(call);
        }
        __syncwarp();
    }
};

/* The tile that this block has in wave `round`. Tiles go round-robin, and each wave begins one block later: otherwise
 * some blocks would always get the partial tiles at the groups' ends. */
static __device__ __forceinline__ int64_t tegroup_impl_gpu_number(uint32_t round) {
    return (int64_t)round * gridDim.x + (blockIdx.x + round) % gridDim.x;
}

/* ---- for kernels of the caller's own ---- */

struct tegroup_impl_tile_rule {
    static __device__ __forceinline__ int32_t thread() {
        return (int32_t)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
    }
    static __device__ __forceinline__ int32_t lane() { return thread() & 31; }
    static __device__ __forceinline__ bool prepared(const tegroup_tiles &tiles) {
        return tegroup_impl_tiles_prepared(&tiles);
    }
    static __device__ __forceinline__ int32_t groups(const tegroup_tiles &tiles) { return tiles.groups; }
    static __device__ __forceinline__ int32_t tiles(const tegroup_tiles &tiles, int32_t g) {
        return tegroup_impl_tiles_of_group(&tiles, g);
    }
    static __device__ __forceinline__ void put(const tegroup_tiles &tiles, int32_t g, int32_t local,
                                               tegroup_tile *tile) {
        *tile = tegroup_impl_tile_of_group(&tiles, g, local);
    }
    static __device__ __forceinline__ void none(tegroup_tile *tile) { *tile = tegroup_impl_tile_none(); }
};

#define TEGROUP_TILES_AT_ONCE 8 /* tiles that tegroup_tile_take finds at a time */

/* A block's place among the tiles; in shared memory, and nothing that the caller reads. */
typedef struct tegroup_tile_walk {
    tegroup_impl_walk<tegroup_impl_tile_rule, tegroup_tiles, tegroup_tile> walk;
    tegroup_tile found[TEGROUP_TILES_AT_ONCE];
} tegroup_tile_walk;

/* Takes the block's tile of each round, 0, 1, 2 and so on, none left out, by all threads of the block together: at
 * least 32, in a grid of one dimension and any size. Each tile of each group goes to one block in one round. Returns
 * false, and a tile of group -1, when none is left for the block: at once where all groups are empty, or where the
 * snapshot is not one that tegroup_prepare wrote for these groups and at most these rows. Every eighth round is a
 * barrier of the block's threads and the others are none: a kernel that goes on to use its shared memory anew has its
 * own. walk: in shared memory, not initialized. tiles: the kernel's parameter. */
static __device__ inline bool tegroup_tile_take(tegroup_tile_walk *walk, const tegroup_tiles *tiles, int32_t round,
                                                tegroup_tile *tile) {
    const int32_t thread = tegroup_impl_tile_rule::thread();
    if (round % TEGROUP_TILES_AT_ONCE == 0) {
        __syncthreads(); /* nobody reads those found before any more */
        if (thread < 32 && round == 0) walk->walk.begin(*tiles);
        if (thread < 32)
            walk->walk.find(*tiles, tegroup_impl_gpu_number((uint32_t)(round + thread)),
                            thread < TEGROUP_TILES_AT_ONCE ? &walk->found[thread] : NULL);
        __syncthreads();
    }
    *tile = walk->found[round % TEGROUP_TILES_AT_ONCE];
    return tile->group >= 0;
}

/* ==== [26] A functor in the epilogue (src/cuda/functor.h) ==== */

/* Where an element of d is that a caller's functor is given: see tegroup_gemm_with. */
typedef struct tegroup_element {
    int32_t group;
    int64_t row; /* among the rows of all groups, also where they have buffers of their own: in a FORWARD or DGRAD it is
                    the snapshot's start[group] and the row in the group, in a WGRAD group * d.shape.rows and that */
    int64_t col; /* of the group's part of d */
} tegroup_element;

/* The built-in store. */
struct tegroup_impl_as_is {
    __device__ __forceinline__ float operator()(float x, const tegroup_element &) const { return x; }
};

/* A functor adds its bias itself: a kernel that could add another, too, would have no registers left for it. */
template <typename FUNCTOR> struct tegroup_impl_adds_bias { static constexpr bool value = false; };
template <> struct tegroup_impl_adds_bias<tegroup_impl_as_is> { static constexpr bool value = true; };

/* ==== [27] GPU calls (src/cuda/call.h) ==== */

/* What a product's kernels are given, as one kernel parameter. */
typedef struct tegroup_impl_gpu_call {
    tegroup_gemm_desc desc;
    tegroup_snapshot_view views[4];
    float alpha, beta; /* the scalars that the host knows */
} tegroup_impl_gpu_call;

/* The addresses inside a snapshot in device memory, as its layout places them; its header is not read here. A kernel
 * calls tegroup_impl_prepared before it reads anything else of the snapshot. */
static inline tegroup_snapshot_view tegroup_impl_cuda_view(const tegroup_tensor *t) {
    tegroup_snapshot_view view;
    memset(&view, 0, sizeof view);
    if (t->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_ragged(&t->shape)) return view;
    return tegroup_impl_snapshot_view(t->shape.snapshot, t->shape.groups, tegroup_impl_irregular(&t->shape));
}

/* Reads scalars in host memory, which then travel by value. */
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

/* Where a tensor of uniform groups has them: one after another, or at the addresses of a list. */
typedef struct tegroup_impl_gpu_groups {
    char *data;
    void *const *pointers;
    int64_t stride_bytes;
} tegroup_impl_gpu_groups;

static __device__ __forceinline__ char *tegroup_impl_gpu_group(const tegroup_impl_gpu_groups &groups, int32_t g) {
    return groups.pointers ? (char *)groups.pointers[g] : groups.data + g * groups.stride_bytes;
}

/* An activation of gates and ups in a forward product's epilogue, or its gradient in the epilogue of dgrad, as a kernel
 * takes it: with all leading dimensions filled in. */
typedef struct tegroup_impl_gpu_epilogue {
    tegroup_activation_desc activation; /* forward: of D; gradient: of activation.input */
    tegroup_matrix grad_input;          /* gradient: of gates and ups; D itself is not stored */
    float *row_sums;         /* gradient: [ceil(cols / 32)][rows], sums of gradient times result; NULL: not wanted */
    int32_t keeps_d;         /* forward: D is stored, too */
    int32_t activates_again; /* gradient: activation.output is stored, too */
} tegroup_impl_gpu_epilogue;

/* Forward: ups whose weights and bias are apart from the gates', or else follow them. */
typedef struct tegroup_impl_gpu_up {
    int32_t apart;
    tegroup_impl_gpu_groups weight, bias;
} tegroup_impl_gpu_up;

/* Where ups are apart, the gates' product becomes that of both: its B has as many rows, of which a kernel finds the
 * second half elsewhere. */
static inline void tegroup_impl_gpu_widen(tegroup_gemm_desc *gates) {
    gates->b.group_stride = tegroup_impl_group_stride(&gates->b);
    gates->b.shape.rows *= 2;
    gates->d.shape.cols *= 2;
}

static inline tegroup_impl_gpu_groups tegroup_impl_gpu_groups_of(const tegroup_tensor *t) {
    tegroup_impl_gpu_groups groups;
    groups.data = (char *)t->data;
    groups.pointers = tegroup_impl_listed(t) ? t->pointers : NULL;
    groups.stride_bytes = tegroup_impl_group_stride(t) * (tegroup_impl_bits(t->dtype) / 8);
    return groups;
}

#if TEGROUP_IMPL_FUSED_KERNELS
static inline tegroup_impl_gpu_up tegroup_impl_gpu_up_of(const tegroup_impl_epilogue *epilogue) {
    tegroup_impl_gpu_up up;
    memset(&up, 0, sizeof up);
    if (!epilogue->up) return up;
    up.apart = 1;
    up.weight = tegroup_impl_gpu_groups_of(&epilogue->up->b);
    up.bias = tegroup_impl_gpu_groups_of(&epilogue->up->bias);
    return up;
}

static inline tegroup_impl_gpu_epilogue tegroup_impl_gpu_epilogue_of(const tegroup_gemm_desc *desc,
                                                                     const tegroup_impl_epilogue *epilogue) {
    tegroup_impl_gpu_epilogue made;
    memset(&made, 0, sizeof made);
    made.activation = epilogue->activation;
    made.activation.alpha = tegroup_impl_alpha(epilogue->activation.activation, epilogue->activation.alpha);
    made.activation.limit = tegroup_impl_limit(epilogue->activation.activation, epilogue->activation.limit);
    made.activation.input = tegroup_impl_cuda_matrix(&epilogue->activation.input);
    made.activation.row_scale = tegroup_impl_cuda_matrix(&epilogue->activation.row_scale);
    made.activation.output = tegroup_impl_cuda_matrix(&epilogue->activation.output);
    made.keeps_d = epilogue->keeps_d;
    if (desc->op != TEGROUP_OP_DGRAD) return made;
    made.activates_again = epilogue->activates_again;
    made.grad_input = tegroup_impl_cuda_matrix(&epilogue->gradient.grad_input);
    if (epilogue->gradient.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) made.row_sums = (float *)desc->d.data;
    return made;
}
#endif

/* ---- what the bundled kernels share ---- */

/* Puts a kernel into the plan, with as many blocks as fit on all multiprocessors, but at most `most`. Under a smaller
 * sm_limit there is one block for each multiprocessor of the limit, since blocks spread over multiprocessors before
 * they share one. */
static inline cudaError_t tegroup_impl_planned(tegroup_plan *plan, const void *kernel, int32_t threads, int32_t shared,
                                               int32_t most) {
    int multiprocessors = 0, blocks = 0;
    cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, plan->device);
    if (code == cudaSuccess)
        code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, (size_t)shared);
    if (plan->sm_limit > 0 && plan->sm_limit < multiprocessors) {
        multiprocessors = plan->sm_limit;
        blocks = 1;
    }
    plan->algorithm[TEGROUP_IMPL_PLANNED_KERNEL] = (uint64_t)(uintptr_t)kernel;
    plan->algorithm[TEGROUP_IMPL_PLANNED_THREADS] = (uint64_t)threads;
    plan->algorithm[TEGROUP_IMPL_PLANNED_SHARED] = (uint64_t)shared;
    plan->algorithm[TEGROUP_IMPL_PLANNED_BLOCKS] =
        (uint64_t)tegroup_impl_min((int64_t)multiprocessors * tegroup_impl_max(1, blocks), most);
    return code;
}

static inline tegroup_status tegroup_impl_launch_planned(const tegroup_plan *plan, void **arguments,
                                                         struct CUstream_st *stream, tegroup_error *error) {
    const uint64_t *planned = plan->algorithm;
    return tegroup_impl_cuda_status(cudaLaunchKernel((const void *)(uintptr_t)planned[TEGROUP_IMPL_PLANNED_KERNEL],
                                                     dim3((unsigned)planned[TEGROUP_IMPL_PLANNED_BLOCKS]),
                                                     dim3((unsigned)planned[TEGROUP_IMPL_PLANNED_THREADS]), arguments,
                                                     (size_t)planned[TEGROUP_IMPL_PLANNED_SHARED], stream),
                                    "stream", "the kernel must launch", error);
}

/* A kernel's address for a backend's table, or NULL if a build switch leaves the kernel out; selected by the
 * operation's number, and for FP16. */
#define TEGROUP_IMPL_KERNEL_1(...) (const void *)__VA_ARGS__
#if defined(TEGROUP_NO_BACKWARD)
#define TEGROUP_IMPL_KERNEL_2(...) (const void *)NULL
#define TEGROUP_IMPL_KERNEL_3(...) (const void *)NULL
#else
#define TEGROUP_IMPL_KERNEL_2(...) (const void *)__VA_ARGS__
#define TEGROUP_IMPL_KERNEL_3(...) (const void *)__VA_ARGS__
#endif
#if defined(TEGROUP_NO_F16)
#define TEGROUP_IMPL_KERNEL_F16(op, ...) (const void *)NULL
#else
#define TEGROUP_IMPL_KERNEL_F16(op, ...) TEGROUP_IMPL_KERNEL_##op(__VA_ARGS__)
#endif

static __device__ __forceinline__ uint32_t tegroup_impl_shared(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* Loads from shared memory, in the program's order. */
static __device__ __forceinline__ uint4 tegroup_impl_load_chunk(uint32_t from) {
    uint4 chunk;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
                 : "r"(from)
                 : "memory");
    return chunk;
}
static __device__ __forceinline__ void tegroup_impl_load_words(uint32_t from, uint32_t (&words)[2]) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(from) : "memory");
}
static __device__ __forceinline__ uint32_t tegroup_impl_load_word(uint32_t from) {
    uint32_t word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

/* Copies 16 bytes from global to shared memory, or, if absent, writes zeros and reads nothing. Copies of fewer bytes
 * are not used: memcheck reports them as reads of all 16. Before SM80, where quantise runs, too, it copies at once. */
static __device__ __forceinline__ void tegroup_impl_cp_async_unless(bool absent, uint32_t to, const void *from) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile(
        "{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\ncp.async.cg.shared.global [%1], [%2], 16, p;}\n" ::"r"((int)absent),
        "r"(to), "l"(from)
        : "memory");
#else
    const uint4 x = absent ? make_uint4(0, 0, 0, 0) : *(const uint4 *)from;
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
#endif
}
/* The same of 16 bytes of which the first `bytes` exist, in copies of PIECE bytes, to which `from` is aligned and of
 * which `bytes` is a multiple. */
template <int PIECE>
static __device__ __forceinline__ void tegroup_impl_cp_async_pieces(uint32_t to, const char *from, int32_t bytes) {
#pragma unroll
    for (int i = 0; i < 16; i += PIECE)
        asm volatile("{.reg .pred p;\nsetp.ge.s32 p, %0, %1;\ncp.async.ca.shared.global [%2], [%3], %4, p;}\n" ::"r"(i),
                     "r"(bytes), "r"(to + (uint32_t)i), "l"(from + i), "n"(PIECE)
                     : "memory");
}
/* Copies four bytes. */
static __device__ __forceinline__ void tegroup_impl_cp_async_number(uint32_t to, const float *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(to), "l"(from) : "memory");
}
/* Copies `bytes` bytes of two-byte elements and fills up to 16 with zeros, element by element: for rows that are not
 * aligned to 4 bytes, and where a row ends within them. AT_ONCE: how many of the four words are in flight together, as
 * registers allow. */
template <int AT_ONCE>
static __device__ __forceinline__ void tegroup_impl_load_slowly(uint32_t to, const char *from, int32_t bytes) {
#pragma unroll AT_ONCE
    for (int i = 0; i < 16; i += 4) {
        uint32_t low = i < bytes ? *(const uint16_t *)(from + i) : 0u,
                 high = i + 2 < bytes ? *(const uint16_t *)(from + i + 2) : 0u;
        asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(to + (uint32_t)i), "r"(low | high << 16) : "memory");
    }
}

/* Brings the cache line of an address to L2. */
static __device__ __forceinline__ void tegroup_impl_prefetch(const void *at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

static __device__ __forceinline__ void tegroup_impl_cp_commit(void) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}
template <int PENDING> static __device__ __forceinline__ void tegroup_impl_cp_wait(void) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
#endif
}

/* Arithmetic that no compiler flag changes: it is never contracted, and never flushes subnormal numbers to zero. */
static __device__ __forceinline__ float tegroup_impl_gpu_mul(float a, float b) {
    float r;
    asm("mul.rn.f32 %0, %1, %2;\n" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
static __device__ __forceinline__ float tegroup_impl_gpu_add(float a, float b) {
    float r;
    asm("add.rn.f32 %0, %1, %2;\n" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
static __device__ __forceinline__ float tegroup_impl_gpu_fma(float a, float b, float c) {
    float r;
    asm("fma.rn.f32 %0, %1, %2, %3;\n" : "=f"(r) : "f"(a), "f"(b), "f"(c));
    return r;
}

/* Loads an element of C or of a bias, or a scale of a bias, in the types that the bundled kernels take. The hardware
 * converts FP16 exactly in a few instructions; how it converts a NaN does not matter, since arithmetic then replaces it
 * by its own. */
static __device__ __forceinline__ float tegroup_impl_gpu_load(tegroup_dtype dtype, const void *data, int64_t i) {
    if (dtype == TEGROUP_DTYPE_F32) return ((const float *)data)[i];
    return tegroup_impl_low_half(((const uint16_t *)data)[i], dtype == TEGROUP_DTYPE_BF16);
}
static __device__ __forceinline__ float tegroup_impl_gpu_load_scale(tegroup_dtype dtype, const void *data, int64_t i) {
    return dtype == TEGROUP_DTYPE_F64 ? (float)((const double *)data)[i] : ((const float *)data)[i];
}

/* Whether the snapshots are what tegroup_prepare wrote for these tensors. If one is not, the call has no groups and
 * nothing is written. A snapshot that regular operands share is checked once, unless A has the most rows. */
static __device__ __forceinline__ bool tegroup_impl_prepared(const tegroup_impl_gpu_call &call) {
    const tegroup_gemm_desc &desc = call.desc;
    auto irregular = [](const tegroup_tensor &t) { return tegroup_impl_irregular(&t.shape); };
    auto fits = [](const tegroup_tensor &t) {
        const tegroup_impl_fit fit = tegroup_impl_fit_of(&t);
        return tegroup_impl_fits(&fit);
    };
    auto shared = [&](const tegroup_tensor &t) {
        return t.shape.snapshot == desc.a.shape.snapshot && t.shape.rows >= desc.a.shape.rows && !irregular(t)
               && !irregular(desc.a);
    };
    return fits(desc.a) && (shared(desc.b) || fits(desc.b)) && (shared(desc.c) || fits(desc.c))
           && (shared(desc.d) || fits(desc.d));
}

/* ---- bias gradient and tail ---- */

#if TEGROUP_IMPL_BACKWARD_KERNELS
/* One thread for each column of each group adds the rows in order, as the CPU does. */
static __global__ void __launch_bounds__(128)
    tegroup_impl_bias_grad_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    __shared__ tegroup_impl_product p;
    const tegroup_gemm_desc &desc = call.desc;
    if (threadIdx.x == 0) {
        const bool prepared = tegroup_impl_prepared(call);
        if (prepared) p = tegroup_impl_product_of(&desc, call.views, (int32_t)blockIdx.y, 1, 0);
        else p.skip = 1;
    }
    __syncthreads();
    const int64_t j = (int64_t)blockIdx.x * 128 + threadIdx.x;
    const tegroup_impl_block &dy = *tegroup_impl_biased_block(&desc, &p);
    const tegroup_dtype dtype = tegroup_impl_biased(&desc)->dtype;
    if (p.skip || j >= tegroup_impl_min(dy.cols, p.bias.cols) || (desc.accumulate && dy.rows == 0)) return;
    float sum = 0;
    for (int64_t r = 0; r < dy.rows; r++) {
        const int64_t at = tegroup_impl_biased_row_at(&desc, &p, r);
        float x = at < 0 ? 0.0f : tegroup_impl_load_f32(dtype, dy.base, at + j);
        float scale = desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
                          ? 1.0f
                          : tegroup_impl_load_f32(desc.row_scale_dtype, desc.row_scale, dy.row0 + r);
        sum = tegroup_impl_gpu_add(sum, tegroup_impl_gpu_mul(scale, x));
    }
    if (desc.accumulate)
        sum = tegroup_impl_gpu_add(sum, tegroup_impl_load_f32(desc.bias.dtype, p.bias.base, p.bias.first + j));
    tegroup_impl_store_f32(desc.bias.dtype, p.bias.base, p.bias.first + j, sum);
}
#endif

/* Block g + 1 fills the rows behind group g that no group owns; block 0 those in front of all groups. */
static __global__ void __launch_bounds__(256)
    tegroup_impl_tail_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    __shared__ unsigned long long next;
    const tegroup_tensor &d = call.desc.d;
    const tegroup_snapshot_view &view = call.views[TEGROUP_IMPL_D];
    const int32_t g = (int32_t)blockIdx.x - 1;
    if (!tegroup_impl_prepared(call) || (g >= 0 && view.rows[g] <= 0)) return;
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

/* Is there a bias gradient to be summed? Blocks of 128 columns of each group do it. */
static inline int tegroup_impl_sums_bias(const tegroup_gemm_desc *desc) {
    return desc->op == TEGROUP_OP_WGRAD && desc->bias.dtype != TEGROUP_DTYPE_UNSET && desc->bias.shape.cols > 0
           && desc->d.shape.groups > 0;
}
static inline dim3 tegroup_impl_bias_blocks(const tegroup_gemm_desc *desc) {
    return dim3((unsigned)tegroup_impl_ceil_div(desc->bias.shape.cols, 128), (unsigned)desc->d.shape.groups);
}

/* Launches what a bundled backend's main kernel leaves out: filling rows that no group owns, and the gradient of the
 * bias, unless its rows are quantised. It is enqueued behind the main kernel, so that nothing is written if CUDA
 * refuses that launch. */
static inline tegroup_status tegroup_impl_cuda_rest(const tegroup_impl_gpu_call *call, struct CUstream_st *stream,
                                                    tegroup_error *error) {
    const tegroup_gemm_desc *desc = &call->desc;
    cudaError_t code = cudaSuccess;
    if (desc->tail != TEGROUP_TAIL_KEEP && call->views[TEGROUP_IMPL_D].rows)
        code = tegroup_impl_launch(tegroup_impl_tail_kernel, (unsigned)desc->d.shape.groups + 1, 256, 0, stream, *call);
#if TEGROUP_IMPL_BACKWARD_KERNELS
    if (code == cudaSuccess && tegroup_impl_sums_bias(desc)
        && tegroup_impl_biased(desc)->scaling == TEGROUP_SCALING_NONE)
        code =
            tegroup_impl_launch(tegroup_impl_bias_grad_kernel, tegroup_impl_bias_blocks(desc), 128, 0, stream, *call);
#endif
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}
#if !defined(TEGROUP_NO_FP8)

/* ==== [28] Quantise: eight values at a time (src/cuda/quantize_values.h) ==== */

/* Eight values of a row, in the type that they have in memory. */
template <int DTYPE> struct tegroup_impl_eight {
    typedef tegroup_impl_vectors<DTYPE> vectors;
    enum { raws = 8 / vectors::lanes };
    uint4 raw[raws];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < raws; i++) raw[i] = make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void unpack(float *x) const {
#pragma unroll
        for (int i = 0; i < raws; i++) vectors::unpack(raw[i], x + i * vectors::lanes);
    }
    __device__ __forceinline__ void pack(const float *x) {
#pragma unroll
        for (int i = 0; i < raws; i++) raw[i] = vectors::pack(x + i * vectors::lanes);
    }
    /* All eight at an address that is a multiple of 16, in shared memory, too. */
    __device__ __forceinline__ void load_vectors(const char *from) {
#pragma unroll
        for (int i = 0; i < raws; i++) raw[i] = ((const uint4 *)from)[i];
    }
    __device__ __forceinline__ void store_vectors(char *to) const {
#pragma unroll
        for (int i = 0; i < raws; i++) ((uint4 *)to)[i] = raw[i];
    }
    /* n of the row's elements from column col on, then zeros. */
    __device__ __forceinline__ void load(const char *row, int64_t col, int32_t n, bool vector) {
        if (vector && n >= 8) load_vectors(row + col * vectors::bytes);
        else load_each(row, col, n);
    }
    __device__ __forceinline__ void load_each(const char *row, int64_t col, int32_t n) {
        uint32_t word[4 * raws];
#pragma unroll
        for (int e = 0; e < 4 * raws; e++) word[e] = 0;
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (e < n)
                word[e * raws / 2] |= tegroup_impl_load_code((tegroup_dtype)DTYPE, row, col + e)
                                      << (raws == 1 ? e % 2 * 16 : 0);
#pragma unroll
        for (int i = 0; i < raws; i++)
            raw[i] = make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
    }
};

#if !defined(TEGROUP_NO_ACTIVATION)
/* n of a row's elements from column col on, then zeros. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_eight_of(const char *row, int64_t col, int32_t n, bool vector,
                                                          float *x) {
    tegroup_impl_eight<DTYPE> values;
    values.load(row, col, n, vector);
    values.unpack(x);
}

/* Eight values of an activation, or of the gradient of one, from column col of the row that is quantised: its first n.
 * dy NULL: no gradient. The loops by kind are those of the kernels of activations, and so are the bits. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_made_eight(const tegroup_quantize_desc &desc, const char *x,
                                                            const char *dy, float scale, int64_t col, int32_t n,
                                                            bool vector, float *y) {
    constexpr bool half = DTYPE != TEGROUP_DTYPE_F32;
    const bool gated = tegroup_impl_gated(desc.activation);
    const float alpha = (float)desc.alpha, limit = (float)desc.limit;
    const int64_t cols = desc.output.shape.cols, width = dy && gated ? cols / 2 : cols;
    float both[16], gate[8], up[8], grad[8];
    const bool pairs = gated && desc.interleaved, ups = dy && gated && !pairs && col >= width;
    const int64_t from = ups ? col - width : pairs && dy ? col / 2 : col;
    const int32_t count = pairs && dy ? n / 2 : n; /* of gates */
#pragma unroll
    for (int i = 0; i < 8; i++) up[i] = 1;
    if (pairs) {
        tegroup_impl_eight_of<DTYPE>(x, 2 * from, (int32_t)tegroup_impl_min(8, 2 * count), vector, both);
        tegroup_impl_eight_of<DTYPE>(x, 2 * from + 8, (int32_t)tegroup_impl_max(0, 2 * count - 8),
                                     vector && from % 4 == 0, both + 8);
#pragma unroll
        for (int i = 0; i < 8; i++) gate[i] = both[2 * i], up[i] = both[2 * i + 1];
    } else {
        tegroup_impl_eight_of<DTYPE>(x, from, count, vector && from % 8 == 0, gate);
        if (gated) tegroup_impl_eight_of<DTYPE>(x, from + width, count, vector && (from + width) % 8 == 0, up);
    }
    if (!dy) {
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    _Pragma("unroll") for (int i = 0; i < 8; i++) y[i] =                                                               \
        scale * tegroup_impl_activation_f32(kind, half, alpha, limit, gate[i], up[i]);
        TEGROUP_IMPL_BY_CURVE(desc.activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
        return;
    }
    tegroup_impl_eight_of<DTYPE>(dy, from, count, vector && from % 8 == 0, grad);
#define TEGROUP_IMPL_LOOP(kind)                                                                                        \
    _Pragma("unroll") for (int i = 0; i < 8; i++)(void)                                                                \
        tegroup_impl_activation_grad_f32(kind, half, alpha, limit, gate[i], up[i], scale *grad[i], &gate[i], &up[i]);
    TEGROUP_IMPL_BY_CURVE(desc.activation, TEGROUP_IMPL_LOOP)
#undef TEGROUP_IMPL_LOOP
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = pairs ? (i % 2 ? up[i / 2] : gate[i / 2]) : ups ? up[i] : gate[i];
}

/* What of a gradient is made of eight gates and ups: that of the gates, that of the ups, or both; or, where gates and
 * ups alternate, that of four pairs. */
enum { TEGROUP_IMPL_OF_GATES, TEGROUP_IMPL_OF_UPS, TEGROUP_IMPL_OF_BOTH, TEGROUP_IMPL_OF_PAIRS };

/* Eight values that a gated activation makes of BF16, two in a word. gates and ups are eight of each, or, where they
 * alternate, the first pairs and the others. Of a gradient, PART is made, that of the ups in their place if both are,
 * and dy are the eight or four gradients of what gates and ups make. Values are those of the kernels of activations,
 * bit for bit. */
template <tegroup_activation KIND, bool GRADIENT, int PART>
static __device__ __forceinline__ uint4 tegroup_impl_gated_eight(float alpha, float limit, float scale, uint4 gates,
                                                                 uint4 &ups, uint4 dy) {
    typedef tegroup_impl_vectors<TEGROUP_DTYPE_BF16> vectors;
    constexpr int COUNT = GRADIENT && PART == TEGROUP_IMPL_OF_PAIRS ? 4 : 8;
    float gate[8], up[8], grad[8];
    if (PART == TEGROUP_IMPL_OF_PAIRS) {
        const uint32_t word[8] = {gates.x, gates.y, gates.z, gates.w, ups.x, ups.y, ups.z, ups.w};
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            gate[j] = tegroup_impl_low_half(word[j], true), up[j] = tegroup_impl_high_half(word[j], true);
    } else {
        vectors::unpack(gates, gate);
        vectors::unpack(ups, up);
    }
    if (GRADIENT) vectors::unpack(dy, grad);
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        if (GRADIENT)
            (void)tegroup_impl_activation_grad_f32(KIND, true, alpha, limit, gate[j], up[j], scale * grad[j], &gate[j],
                                                   &up[j]);
        else gate[j] = scale * tegroup_impl_activation_f32(KIND, true, alpha, limit, gate[j], up[j]);
    if (GRADIENT && PART == TEGROUP_IMPL_OF_PAIRS)
#pragma unroll
        for (int j = COUNT - 1; j >= 0; j--) gate[2 * j + 1] = up[j], gate[2 * j] = gate[j];
    if (PART == TEGROUP_IMPL_OF_BOTH) ups = vectors::pack(up);
    return vectors::pack(PART == TEGROUP_IMPL_OF_UPS ? up : gate);
}
#endif

/* The magnitude of x as a code of E2M1, in the last bits of a float. Up to 2 a code is twice its value, up to 4 two
 * more than its value, up to 6 four more than half of it. So what is above 2, and above 4, is added by itself; each
 * step is exact but the one that rounds: a float of 2^23 has no fraction. Of these instructions the minimum alone goes
 * through the pipe of integers, which has half of the others' rate. */
static __device__ __forceinline__ uint32_t tegroup_impl_device_e2m1(float x) {
    float code;
    asm("{.reg .f32 m, to2, to4, to6, above2;\n"
        "abs.f32 m, %1;\n"
        "min.f32 m, m, 0f40C00000;\n"          /* 6, of NaN, too */
        "mul.rn.sat.f32 to2, m, 0f3F000000;\n" /* half of what is up to 2; below, of what is from there to 4, to 6 */
        "fma.rn.sat.f32 to4, m, 0f3F000000, 0fBF800000;\n"
        "fma.rn.sat.f32 to6, m, 0f3F000000, 0fC0000000;\n"
        "fma.rn.f32 above2, to4, 0f40000000, to6;\n"     /* 2 codes up to 4, and 1 up to 6 */
        "fma.rn.f32 to2, to2, 0f40800000, 0f4B000000;\n" /* 4 codes up to 2, and 2^23 */
        "add.rn.f32 %0, to2, above2;}"
        : "=f"(code)
        : "f"(x));
    return __float_as_uint(code);
}

/* Eight of them with their signs, the first in the lowest bits. x are results of arithmetic, whose NaN has no sign. */
static __device__ __forceinline__ uint32_t tegroup_impl_eight_e2m1(const float *x) {
    uint32_t pair[4], sign[4]; /* sign[i]: of values i / 2 * 4 + i % 2 and two further on, in the two lowest bytes */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *from = x + i / 2 * 4 + i % 2;
        pair[i] = tegroup_impl_device_e2m1(x[2 * i]) + (tegroup_impl_device_e2m1(x[2 * i + 1]) << 4);
        sign[i] = __byte_perm(__float_as_uint(from[0]), __float_as_uint(from[2]), 0x73);
    }
    return __byte_perm(__byte_perm(pair[0], pair[1], 0x40), __byte_perm(pair[2], pair[3], 0x40), 0x5410)
           | (__byte_perm(sign[0], sign[2], 0x5410) >> 4 & 0x08080808u)
           | (__byte_perm(sign[1], sign[3], 0x5410) & 0x80808080u);
}

/* Two codes of 8 bits beside each other, of values that are scaled already: those of tegroup_impl_code_of_f32. */
static __device__ __forceinline__ uint32_t tegroup_impl_two_codes(tegroup_dtype dtype, float low, float high) {
#if __CUDA_ARCH__ >= 890
    uint16_t word;
    if (dtype == TEGROUP_DTYPE_F8E5M2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(word) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(word) : "f"(high), "f"(low));
    return word;
#else
    return tegroup_impl_code_of_f32(dtype, low) | tegroup_impl_code_of_f32(dtype, high) << 8;
#endif
}

/* Eight codes from the first in the lowest bits on: two words, of 4 bits one. */
template <int BITS>
static __device__ __forceinline__ uint2 tegroup_impl_eight_codes(tegroup_dtype dtype, const float *x) {
    if (BITS == 4) return make_uint2(tegroup_impl_eight_e2m1(x), 0);
    return make_uint2(tegroup_impl_two_codes(dtype, x[0], x[1]) | tegroup_impl_two_codes(dtype, x[2], x[3]) << 16,
                      tegroup_impl_two_codes(dtype, x[4], x[5]) | tegroup_impl_two_codes(dtype, x[6], x[7]) << 16);
}

/* Eight values as tegroup_impl_scaled_code scales them. Factors are multipliers, or where the rule divides, scales that
 * are not 0. Few rules divide: that is not inlined. */
static __device__ __noinline__ void tegroup_impl_divide_eight(float *x, const float *factor) {
    for (int i = 0; i < 8; i++)
        x[i] = factor[i] != 0.0f ? tegroup_impl_quotient_f32(x[i], factor[i]) : tegroup_impl_product_f32(x[i], 0.0f);
}
static __device__ __forceinline__ void tegroup_impl_scale_eight(float *x, const float *factor, bool divides) {
    if (divides) {
        float y[8], by[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = x[i], by[i] = factor[i];
        tegroup_impl_divide_eight(y, by);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = y[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = tegroup_impl_product_f32(x[i], factor[i]);
    }
}

/* The larger magnitude, as tegroup_impl_amax takes it; shows: a NaN is the largest. */
template <bool SHOWS> static __device__ __forceinline__ uint32_t tegroup_impl_larger_magnitude(uint32_t most, float x) {
    if (SHOWS) return max(most, __float_as_uint(x) & 0x7fffffffu);
    float larger;
    asm("{.reg .f32 a; abs.f32 a, %2; max.f32 %0, %1, a;}" : "=f"(larger) : "f"(__uint_as_float(most)), "f"(x));
    return __float_as_uint(larger);
}

/* The same of two values of 16 bits beside each other. What comes of it has the magnitudes, and any signs; a NaN that
 * does not show stays beside another one. */
template <bool SHOWS, bool BF16>
static __device__ __forceinline__ uint32_t tegroup_impl_larger_two(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 860
    uint32_t larger;
    if (BF16 && SHOWS) asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    else if (BF16) asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    else if (SHOWS) asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    else asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
#else
    const uint32_t infinity = BF16 ? 0x7f80u : 0x7c00u;
    uint32_t word = 0;
    for (int at = 0; at < 32; at += 16) {
        const uint32_t x = a >> at & 0x7fffu, y = b >> at & 0x7fffu;
        word |= (!SHOWS && x > infinity ? y : !SHOWS && y > infinity ? x : max(x, y)) << at;
    }
    return word;
#endif
}

/* The largest magnitudes of eight rows of eight columns, of each row and of each column: of 16 bits two in a word. */
template <int DTYPE, bool SHOWS> struct tegroup_impl_magnitudes {
    enum { in_word = DTYPE == TEGROUP_DTYPE_F32 ? 1 : 2, words = 8 / in_word, BF16 = DTYPE == TEGROUP_DTYPE_BF16 };

    static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
        return in_word == 1 ? tegroup_impl_larger_magnitude<SHOWS>(a, __uint_as_float(b))
                            : tegroup_impl_larger_two<SHOWS, BF16>(a, b);
    }
    /* The j-th, as binary32. */
    static __device__ __forceinline__ uint32_t at(const uint32_t *word, int j) {
        const uint32_t two = word[j / in_word] & 0x7fff7fffu;
        if (in_word == 1) return word[j];
        return __float_as_uint(j % 2 ? tegroup_impl_high_half(two, BF16) : tegroup_impl_low_half(two, BF16));
    }
    static __device__ __forceinline__ uint32_t largest(const uint32_t *word) {
        uint32_t most[words];
#pragma unroll
        for (int k = 0; k < words; k++) most[k] = word[k];
#pragma unroll
        for (int k = 1; k < words; k++) most[0] = larger(most[0], most[k]);
        return in_word == 1 ? most[0] : max(at(most, 0), at(most, 1));
    }
    static __device__ __forceinline__ uint32_t word_of(const tegroup_impl_eight<DTYPE> &x, int k) {
        const uint4 raw = x.raw[k / 4];
        return k % 4 == 0 ? raw.x : k % 4 == 1 ? raw.y : k % 4 == 2 ? raw.z : raw.w;
    }
    /* `most`, and a row of eight more. */
    static __device__ __forceinline__ uint32_t of_row(uint32_t most, const tegroup_impl_eight<DTYPE> &x) {
#pragma unroll
        for (int k = 0; k < words; k++) most = larger(most, word_of(x, k));
        return most;
    }
    /* Of two rows: in one word, or in two. */
    static __device__ __forceinline__ void of_pair(const tegroup_impl_eight<DTYPE> &x,
                                                   const tegroup_impl_eight<DTYPE> &y, uint32_t *most) {
        const uint32_t a = of_row(0, x), b = of_row(0, y);
        if (in_word == 1) most[0] = a, most[1] = b;
        else most[0] = larger(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
    }
    /* Of pairs that as many lanes beside each other as the logarithm says have. */
    static __device__ __forceinline__ void of_lanes(int32_t shift, uint32_t *pair) {
#pragma unroll
        for (int s = 0; s < 4; s++)
#pragma unroll
            for (int i = 0; i < 2 / in_word; i++) {
                const uint32_t other = __shfl_xor_sync(0xffffffffu, pair[i], 1 << s);
                if (s < shift) pair[i] = larger(pair[i], other);
            }
    }
    /* Columns with two rows more. */
    static __device__ __forceinline__ void of_columns(const tegroup_impl_eight<DTYPE> *x, uint32_t *most) {
#pragma unroll
        for (int k = 0; k < words; k++) most[k] = larger(larger(most[k], word_of(x[0], k)), word_of(x[1], k));
    }
};

/* How many elements there are from `at` on, of so many; 8 or more are all of eight, 0 or less are none. They are not
 * cut to 0 .. 8: of max(0, min(8, x)) == 8 nvcc 13.0 made one VIMNMX.RELU for sm_90a, whose predicate said something
 * else, and pieces were taken for whole ones. */
static __device__ __forceinline__ int32_t tegroup_impl_left_of(int64_t count, int32_t at) {
    return (count < TEGROUP_IMPL_QUANTIZE_TILE ? (int32_t)count : TEGROUP_IMPL_QUANTIZE_TILE) - at;
}

/* ==== [29] Quantise: a block's way through the groups (src/cuda/quantize_walk.h) ==== */

enum {
    TEGROUP_IMPL_QUANTIZE_THREADS = 256, /* a thread has 8 rows of 8 columns of a tile */
    TEGROUP_IMPL_QUANTIZE_COLS = 128,    /* entries of a table in shared memory for each 16 rows */
    TEGROUP_IMPL_QUANTIZE_BANDS = 8,     /* of 16 rows, or of 16 columns, in a tile */
    TEGROUP_IMPL_QUANTIZE_SHIFT = 7,     /* logarithm of a tile's extent */
    TEGROUP_IMPL_QUANTIZE_STRIP = 11, /* logarithm of a strip's columns: a thread has 8 times 8 of them, a warp a row */
    TEGROUP_IMPL_QUANTIZE_ROWS = 8,   /* of a strip, or of a work of whole rows */
    TEGROUP_IMPL_QUANTIZE_ALL = 62,   /* logarithm of an extent that no tensor has */
    TEGROUP_IMPL_QUANTIZE_BESIDE = 8  /* blocks that share a stretch of works, so that they read the same rows */
};

/* Blocks that a multiprocessor has room for, and that are launched. In dynamic shared memory each of quantise's has a
 * tile, strips, or ROW's rows; in registers ROW's strips have a table there. dequantise turns a tile of codes in it. */
#define TEGROUP_IMPL_QUANTIZE_RESIDENT(dtype) ((dtype) == TEGROUP_DTYPE_F32 ? 2 : 3)
#define TEGROUP_IMPL_DEQUANTIZE_RESIDENT 3
#define TEGROUP_IMPL_QUANTIZE_STAGED (TEGROUP_IMPL_QUANTIZE_TILE * TEGROUP_IMPL_QUANTIZE_TILE) /* values */
static __device__ __forceinline__ char *tegroup_impl_quantize_memory(void) {
    extern __shared__ uint4 tegroup_impl_quantize_staged[];
    return (char *)tegroup_impl_quantize_staged;
}

/* A call as its kernels are given it; on the way back desc.output is what is read, and desc.input what is written.
 * copies: those that a launch writes, or reads, as bits; other shifts: logarithms of the blocks' extents, of a tile's
 * where a block is all. */
typedef struct tegroup_impl_quantize_launch {
    tegroup_quantize_desc desc;
    tegroup_scaling_facts facts;
    tegroup_dtype scale_dtype;
    int32_t copies, vectors, raises;   /* raises: amax is found on the way                   */
    int32_t down_shift, across_shift;  /* logarithms of a work's rows and columns            */
    int32_t plain;                     /* 1: values are those of input, and rows not gathered */
    int32_t usual;                     /* 1: the rule is tegroup_impl_usual_rule             */
    int32_t paired;                    /* 1: a work is a tile of gates and that of their ups */
    int32_t scale_bits;                /* of a stored scale */
    int64_t in_ld;                     /* of input, where no group has one of its own */
    int64_t in_steps[3], out_steps[3]; /* in registers: bytes from a thread's piece to those 1, 2 and 4 further on;
                                          of input by strips alone */
    int32_t choice_shift, outer_shift, inner_shift;
    int64_t scale_capacity[TEGROUP_IMPL_COPIES], transposed_capacity;
    tegroup_impl_scale_grid grids[TEGROUP_IMPL_COPIES]; /* as tegroup_impl_scale_grid_of_any makes them  */
    tegroup_snapshot_view view;                         /* where a snapshot has what; its header may be of another */
    const int64_t *used; /* groups that have 0 or less here have no works; NULL: all have theirs */
} tegroup_impl_quantize_launch;

/* What the threads of a block share. Of the group and part at hand: what the groups before it take, their works, its
 * own works, extents and copies. Tables of a tile: amax of blocks of a row, [row][block], and of columns, [band of 16
 * rows][column], or, where a scale is chosen for a square, which both copies have, [band of 16 rows][block]; factors,
 * [row or square][block] and [block][column or square]. */
struct tegroup_impl_quantize_shared {
    /* Threads write four at a time. */
    __align__(16) uint32_t amax[TEGROUP_IMPL_COPIES][TEGROUP_IMPL_QUANTIZE_BANDS * TEGROUP_IMPL_QUANTIZE_COLS];
    float factor[TEGROUP_IMPL_COPIES][TEGROUP_IMPL_QUANTIZE_BANDS * TEGROUP_IMPL_QUANTIZE_COLS];
    tegroup_impl_before before, after; /* after: with the group itself */
    int64_t works;                     /* of all groups */
    int64_t works_of, works_before;
    int64_t first, end; /* works of the part */
    int64_t rows, cols, part_rows;
    tegroup_impl_block out; /* the group's place in the quantised tensor */
    int32_t g, part, across;
    float global; /* of the group, as tegroup_impl_scale_block takes it */
    tegroup_impl_block in, dy;
    tegroup_impl_copy copies[TEGROUP_IMPL_COPIES];
};

/* Scales of a tile's blocks: that of block (o, i), of those that are stored, is at(o, i), and the block holds elements
 * where both indices are below the counts. Tiles begin where those of the swizzled layout do. */
struct tegroup_impl_tile_scales {
    const tegroup_impl_scale_grid &grid;
    int64_t outer, inner, first;
    int32_t part, outer_count, inner_count;

    __device__ __forceinline__ tegroup_impl_tile_scales(const tegroup_impl_scale_grid &g, int32_t p, int64_t row0,
                                                        int64_t col0)
        : grid(g), outer((g.columnwise ? col0 : row0) >> g.outer_shift),
          inner((g.columnwise ? row0 : col0) >> g.inner_shift), part(p) {
        const int64_t tile = TEGROUP_IMPL_QUANTIZE_TILE;
        first = tegroup_impl_scale_of_block(&grid, part, outer, inner);
        outer_count = (int32_t)tegroup_impl_clamp(grid.outer_count - outer, 0, tile);
        inner_count = (int32_t)tegroup_impl_clamp(grid.inner_count - inner, 0, tile);
    }
    __device__ __forceinline__ int64_t at(int32_t o, int32_t i) const {
        if (grid.packed) return tegroup_impl_scale_of_block(&grid, part, outer + o, inner + i);
        return first
               + (grid.swizzled ? tegroup_impl_swizzled(0, o & 127, i) : o * grid.outer_stride + i * grid.inner_stride);
    }
};

/* Factors of eight elements beside each other, along the outer index of a copy, from the tile's (row, col) on: that of
 * element j is at[j * step]. They have one each, or one together. outer_shift: of the elements that share one. */
struct tegroup_impl_factors {
    const float *at;
    int32_t step;
};
static __device__ __forceinline__ tegroup_impl_factors
tegroup_impl_factors_of(const tegroup_impl_quantize_launch &call, const tegroup_impl_quantize_shared &shared,
                        int columnwise, int32_t outer_shift, int32_t row, int32_t col) {
    const int32_t blocks = columnwise ? TEGROUP_IMPL_QUANTIZE_COLS : TEGROUP_IMPL_QUANTIZE_TILE >> call.inner_shift;
    tegroup_impl_factors factors;
    factors.at = shared.factor[columnwise]
                 + (columnwise ? (row >> call.inner_shift) * blocks + (col >> outer_shift)
                               : (row >> outer_shift) * blocks + (col >> call.inner_shift));
    factors.step = outer_shift > 0 ? 0 : columnwise ? 1 : blocks;
    return factors;
}

/* What values are multiplied by, or where the rule divides, divided. */
static __device__ __forceinline__ float tegroup_impl_factor_of(const tegroup_block_scale &block) {
    return block.divide ? block.stored : block.multiplier;
}

/* Works of a part above each other and beside each other. */
static __device__ __forceinline__ int64_t tegroup_impl_works_down(const tegroup_impl_quantize_launch &call,
                                                                  int64_t part_rows) {
    return tegroup_impl_blocks_of(part_rows, call.down_shift);
}
static __device__ __forceinline__ int64_t tegroup_impl_works_across(const tegroup_impl_quantize_launch &call,
                                                                    int64_t cols) {
    return tegroup_impl_blocks_of(cols, call.across_shift);
}
static __device__ __forceinline__ int64_t tegroup_impl_part_rows(const tegroup_impl_quantize_launch &call,
                                                                 int64_t rows) {
    return call.grids[0].parts > 1 ? call.grids[0].part_rows : rows;
}
static __device__ __forceinline__ bool tegroup_impl_quantize_turns(const tegroup_impl_quantize_launch &call) {
    return call.copies >> TEGROUP_IMPL_COLUMNWISE & 1 && tegroup_impl_transposed(&call.desc.output, 1);
}

/* tegroup_impl_scale_grid_alone, of which the launch has what all groups have in common. */
static __device__ __forceinline__ tegroup_impl_scale_grid
tegroup_impl_quantize_grid(const tegroup_impl_quantize_launch &call, tegroup_impl_sides sides, int copy) {
    tegroup_impl_scale_grid grid = call.grids[copy];
    tegroup_impl_scale_grid_size(&grid, &call.desc.output, &call.facts, sides);
    return grid;
}

/* The functions from here to the walk are not inlined, and keep what they know in shared memory: they run once a group.
 * A kernel's first instructions are in no cache, and to fetch them takes longer than to execute them: so these are few,
 * and loops are not unrolled. */

/* The works of a group; what it takes is added to what those before it take, as far as the launch asks. */
static __device__ __noinline__ int64_t tegroup_impl_quantize_take(const tegroup_impl_quantize_launch &call, int32_t g,
                                                                  tegroup_impl_before *before) {
    const tegroup_impl_sides sides = tegroup_impl_group_sides(&call.desc.output, &call.view, g);
#pragma unroll 1
    for (int c = 0; c < TEGROUP_IMPL_COPIES; c++)
        if (call.copies >> c & 1) before->scales[c] += tegroup_impl_quantize_grid(call, sides, c).count;
    if (tegroup_impl_quantize_turns(call)) before->transposed += tegroup_impl_transposed_count(sides);
    if (call.used && call.used[g] <= 0) return 0;
    return tegroup_impl_works_across(call, sides.cols)
           * tegroup_impl_works_down(call, tegroup_impl_part_rows(call, sides.rows)) * call.grids[0].parts;
}

/* Goes on to the group and the part of a work: one thread's work. */
static __device__ __noinline__ void tegroup_impl_quantize_find(const tegroup_impl_quantize_launch &call,
                                                               tegroup_impl_quantize_shared &shared, int64_t work) {
    const tegroup_tensor *t = &call.desc.output;
    int32_t g = shared.g;
    int64_t first = shared.works_before, works = shared.works_of;
    while (first + works <= work) {
        shared.before = shared.after;
        first += works;
        works = tegroup_impl_quantize_take(call, ++g, &shared.after);
    }
    const tegroup_impl_block block = tegroup_impl_block_of(t, &call.view, g);
    const tegroup_impl_sides sides = tegroup_impl_block_sides(t, &call.view, &block);
    shared.out = block;
    shared.g = g;
    shared.works_before = first;
    shared.works_of = works;
    shared.rows = sides.rows;
    shared.cols = sides.cols;
    shared.part_rows = tegroup_impl_part_rows(call, sides.rows);
    shared.across = (int32_t)tegroup_impl_works_across(call, sides.cols);
    const int64_t of_part = shared.across * tegroup_impl_works_down(call, shared.part_rows);
    shared.part = call.grids[0].parts > 1 ? (int32_t)((uint32_t)(work - first) / (uint32_t)of_part) : 0;
    shared.first = first + shared.part * of_part;
    shared.end = shared.first + of_part;
}

/* A copy of the group, of no address where it would lie behind its buffer's end. */
static __device__ __noinline__ void tegroup_impl_quantize_describe_copy(const tegroup_impl_quantize_launch &call,
                                                                        tegroup_impl_quantize_shared &shared, int c) {
    const tegroup_tensor *t = &call.desc.output;
    const tegroup_impl_sides sides = tegroup_impl_sides_of(shared.rows, shared.cols);
    const tegroup_impl_scale_grid grid = tegroup_impl_quantize_grid(call, sides, c);
    tegroup_impl_copy copy =
        tegroup_impl_copy_with(t, &call.view, shared.g, c, &shared.before, &shared.out, sides.rows, &grid);
    if (tegroup_impl_scale_end(&copy.grid, tegroup_impl_scales_strided(t, c)) > call.scale_capacity[c]
        || (tegroup_impl_transposed(t, c) && !tegroup_impl_listed(t)
            && copy.at.first + tegroup_impl_transposed_count(sides) > call.transposed_capacity))
        copy.data = NULL;
    shared.copies[c] = copy;
}

/* The scale of TENSOR. */
static __device__ __noinline__ tegroup_block_scale
tegroup_impl_quantize_group_scale(const tegroup_impl_quantize_launch &call, int32_t g) {
    return tegroup_impl_group_scale(&call.desc, &call.facts, g);
}

/* What a group is, a piece of it by each warp. NUMBERS: it may have a number of its own, as TENSOR and NVFP4 do. */
template <bool NUMBERS>
static __device__ __forceinline__ void tegroup_impl_quantize_describe(const tegroup_impl_quantize_launch &call,
                                                                      tegroup_impl_quantize_shared &shared, int piece) {
    const int32_t g = shared.g;
    if (piece < TEGROUP_IMPL_COPIES) {
        if (call.copies >> piece & 1) tegroup_impl_quantize_describe_copy(call, shared, piece);
    } else if (piece < 4) {
        const tegroup_tensor *from = piece == 2 ? &call.desc.input : &call.desc.grad_output;
        if (from->dtype != TEGROUP_DTYPE_UNSET)
            *(piece == 2 ? &shared.in : &shared.dy) = tegroup_impl_locate(from, &call.view, g);
    } else if (NUMBERS && piece == 4 && call.copies) {
        shared.global = tegroup_impl_group_global(&call.desc, g);
        if (tegroup_impl_scaled_as_one(&call.facts)) {
            const float factor = tegroup_impl_factor_of(tegroup_impl_quantize_group_scale(call, g));
            shared.factor[0][0] = shared.factor[1][0] = factor;
        }
    }
}

/* A block's way through the works of a tensor, group by group. All threads call its functions. */
template <bool NUMBERS> struct tegroup_impl_quantize_walk {
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    const bool fits;    /* the snapshot is one for the tensor; else there are no works */
    int64_t begin, end; /* the block's first work, and the end of the stretch that blocks beside each other share */
    int64_t part_end;   /* of the works of the part that was met last; 0 before the first one */
    int32_t step, turn; /* they take turns: of each `step` works the block has one, every time the next of them */

    __device__ __forceinline__ tegroup_impl_quantize_walk(const tegroup_impl_quantize_launch &c,
                                                          tegroup_impl_quantize_shared &s)
        : call(c), shared(s), fits(fitting(c)), begin(0), end(0), part_end(0), step(1), turn(0) {
        if (fits) share();
    }
    static __device__ __forceinline__ bool fitting(const tegroup_impl_quantize_launch &call) {
        const tegroup_impl_fit fit = tegroup_impl_fit_of(&call.desc.output);
        return !tegroup_impl_ragged(&call.desc.output.shape) || (fit.header && tegroup_impl_fits(&fit));
    }

    /* What each thread's groups have: works, scales of either copy, elements of a transposed one. It lies where the
     * tables will be. */
    typedef int64_t of_threads[TEGROUP_IMPL_QUANTIZE_THREADS];
    __device__ __forceinline__ of_threads *sums() const { return (of_threads *)shared.amax; }

    /* Makes sums of what the threads before this one have, of the kinds that are asked for as bits, and returns the
     * total of the first over all threads. A warp makes a sum, of eight threads a lane. */
    __device__ __forceinline__ int64_t scan(int32_t asked) const {
        enum { OF_LANE = TEGROUP_IMPL_QUANTIZE_THREADS / 32 };
        const int32_t lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32;
        __syncthreads();
        if (asked >> warp & 1) {
            int64_t *const mine = sums()[warp] + lane * OF_LANE;
            int64_t before = 0, all = 0;
#pragma unroll 1
            for (int32_t i = 0; i < OF_LANE; i++) all += mine[i];
#pragma unroll 1
            for (int32_t step = 1; step < 32; step *= 2) {
                const int64_t other = __shfl_up_sync(0xffffffffu, before + all, step);
                if (lane >= step) before += other;
            }
#pragma unroll 1
            for (int32_t i = 0; i < OF_LANE; i++) {
                const int64_t one = mine[i];
                mine[i] = before;
                before += one;
            }
            if (threadIdx.x == 31) shared.works = before;
        }
        __syncthreads();
        return shared.works; /* which nobody writes any more */
    }

    /* Counts the works, and finds where the block's begin: the thread that has their group knows what is before it. */
    __device__ __forceinline__ void share() {
        const int32_t groups = call.desc.output.shape.groups, threads = TEGROUP_IMPL_QUANTIZE_THREADS,
                      each = (groups + threads - 1) / threads, blocks = (int32_t)gridDim.x,
                      first = (int32_t)blockIdx.x / TEGROUP_IMPL_QUANTIZE_BESIDE * TEGROUP_IMPL_QUANTIZE_BESIDE;
        const int32_t thread = (int32_t)threadIdx.x, g = min(groups, thread * each), to = min(groups, g + each);
        tegroup_impl_before taken = {{0, 0}, 0};
        int64_t mine = 0;
#pragma unroll 1
        for (int32_t h = g; h < to; h++) mine += tegroup_impl_quantize_take(call, h, &taken);
        of_threads *const sum = sums();
        sum[0][thread] = mine;
        sum[1][thread] = taken.scales[0], sum[2][thread] = taken.scales[1];
        sum[3][thread] = taken.transposed;
        const int64_t works = scan(1 | call.copies << 1 | tegroup_impl_quantize_turns(call) << 3);
        /* A division of 64 bits would be long. What is more than 32 bits, of sizes that no memory holds, is shared out
         * less evenly. */
        const int32_t coarse = works >> 31 ? 31 : 0;
        const int64_t stretch = (int64_t)(((uint32_t)(works >> coarse) + blocks - 1) / (uint32_t)blocks + (coarse > 0))
                                << coarse;
        step = min(TEGROUP_IMPL_QUANTIZE_BESIDE, blocks - first);
        turn = (int32_t)blockIdx.x - first;
        begin = stretch * first + turn;
        end = tegroup_impl_min(stretch * (first + step), works);
        if (begin >= end || begin < sum[0][thread] || begin >= sum[0][thread] + mine) return;
        /* Of a thread with one group that is the group; else its first one comes after one that has no works. */
        shared.g = each > 1 ? g - 1 : g;
        shared.works_before = sum[0][thread];
        shared.works_of = each > 1 ? 0 : mine;
        shared.before = {{sum[1][thread], sum[2][thread]}, sum[3][thread]};
        shared.after = shared.before;
        if (each == 1) {
            shared.after.scales[0] += taken.scales[0];
            shared.after.scales[1] += taken.scales[1];
            shared.after.transposed += taken.transposed;
        }
        tegroup_impl_quantize_find(call, shared, begin);
    }
    __device__ __forceinline__ int64_t next(int64_t work) {
        turn = turn + 1 < step ? turn + 1 : 0;
        return turn > 0 ? work + step + 1 : work + 1;
    }
    /* Goes on to a work of another part, or of another group: to that from part_end on. */
    __device__ __forceinline__ void meet(int64_t work) {
        __syncthreads(); /* what is known of the part before has been read, or the first one has been found */
        if (work != begin) {
            if (threadIdx.x == 0) tegroup_impl_quantize_find(call, shared, work);
            __syncthreads();
        }
        if (threadIdx.x % 32 == 0) tegroup_impl_quantize_describe<NUMBERS>(call, shared, (int)threadIdx.x / 32);
        part_end = shared.end;
        __syncthreads();
    }
    /* The row and column of the part where a work begins. A work has 2^14 elements, or whole rows or columns. */
    __device__ __forceinline__ void place(int64_t work, int64_t *row, int64_t *col) const {
        const uint32_t at = (uint32_t)(work - shared.first), down = at / (uint32_t)shared.across;
        *row = (int64_t)down << call.down_shift;
        *col = (int64_t)(at - down * (uint32_t)shared.across) << call.across_shift;
    }
};

/* ==== [30] Quantise and dequantise: what launches share (src/cuda/quantize_launch.h) ==== */

/* Logarithm of a block's extent; of a tile's where a block is all (0). */
static inline int32_t tegroup_impl_cuda_tile_shift(int32_t block) {
    return block > 0 ? tegroup_impl_shift_of(block) : TEGROUP_IMPL_QUANTIZE_SHIFT;
}

/* What a launch is told of the quantised tensor, whichever way it goes. */
static inline tegroup_impl_quantize_launch tegroup_impl_cuda_quantize_launch(const tegroup_tensor *t) {
    tegroup_impl_quantize_launch call;
    int copy;
    memset(&call, 0, sizeof call);
    call.desc.output = *t;
    call.facts = *tegroup_scaling_info(t->scaling);
    call.facts.name = NULL; /* of no use to a kernel */
    call.choice_shift = tegroup_impl_cuda_tile_shift(call.facts.choice_outer);
    call.outer_shift = tegroup_impl_cuda_tile_shift(call.facts.block_outer);
    call.inner_shift = tegroup_impl_cuda_tile_shift(call.facts.block_inner);
    call.scale_dtype = tegroup_impl_one_scale(t, &call.facts);
    call.scale_bits = tegroup_impl_bits(call.scale_dtype);
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++) {
        call.scale_capacity[copy] = tegroup_impl_scale_capacity(t, copy);
        call.grids[copy] = tegroup_impl_scale_grid_of_any(t, &call.facts, copy);
    }
    call.transposed_capacity = tegroup_impl_transposed_capacity(t);
    if (tegroup_impl_ragged(&t->shape))
        call.view = tegroup_impl_snapshot_view(t->shape.snapshot, t->shape.groups, tegroup_impl_irregular(&t->shape));
    return call;
}

/* Works of 2^down rows and 2^across columns, shared out among as many blocks as have room: `resident` a
 * multiprocessor. */
static inline tegroup_status tegroup_impl_cuda_quantize_blocks(tegroup_impl_quantize_launch *call, int32_t down,
                                                               int32_t across, int32_t resident, unsigned *blocks,
                                                               tegroup_error *error) {
    const tegroup_tensor *t = &call->desc.output;
    const int64_t parts = t->scale_parts > 1 ? t->scale_parts : 1, groups = t->shape.groups, rows = t->shape.rows,
                  works = tegroup_impl_ragged(&t->shape) ? tegroup_impl_blocks_of(rows, down) + groups
                                                         : groups * parts * tegroup_impl_blocks_of(rows / parts, down);
    call->down_shift = down;
    call->across_shift = across;
    return tegroup_impl_cuda_blocks(tegroup_impl_mul(works, tegroup_impl_blocks_of(t->shape.cols, across)), resident,
                                    blocks, error);
}

/* Logarithm of a strip's columns: as many, up to 2,048, as leave the least of a row's last strip empty. */
static inline int32_t tegroup_impl_cuda_strip_shift(int64_t cols) {
    int32_t across = TEGROUP_IMPL_QUANTIZE_STRIP, narrower;
    for (narrower = across - 1; narrower >= 8; narrower--)
        if (tegroup_impl_blocks_of(cols, narrower) << narrower < tegroup_impl_blocks_of(cols, across) << across)
            across = narrower;
    return across;
}

typedef void tegroup_impl_quantize_kernel_type(const tegroup_impl_quantize_launch);

/* Launches a kernel with so many bytes of shared memory besides what it declares. */
static inline tegroup_status tegroup_impl_cuda_quantize_launch_kernel(
    void (*kernel)(const tegroup_impl_quantize_launch), const tegroup_impl_quantize_launch *call, unsigned blocks,
    size_t bytes, struct CUstream_st *stream, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), "space",
        "the device must have the kernel, and shared memory for it", error));
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, blocks, TEGROUP_IMPL_QUANTIZE_THREADS, bytes, stream, *call), "stream",
        "the kernel must launch", error);
}

/* ==== [31] Dequantise (src/cuda/dequantize.h) ==== */

/* Eight codes of a type as values, exactly; a NaN is any. Of 4 bits all are in codes.x. */
template <int CODE> static __device__ __forceinline__ void tegroup_impl_eight_values(uint2 codes, float *x) {
    if (CODE == TEGROUP_DTYPE_F4E2M1) {
#pragma unroll
        for (int j = 0; j < 4; j++) { /* as bits of binary16 a value 2^14 times smaller, subnormal or not */
            const uint32_t word = codes.x >> 4 * j;
            uint32_t halves = (word << 12 & 0x80008000u) | (word << 9 & 0x0e000e00u);
            asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(halves) : "r"(0x74007400u));
            x[j] = tegroup_impl_low_half(halves, false);
            x[j + 4] = tegroup_impl_high_half(halves, false);
        }
    }
#pragma unroll
    for (int j = 0; j < (CODE == TEGROUP_DTYPE_F4E2M1 ? 0 : 8); j += 2) {
        const uint32_t pair = (j < 4 ? codes.x : codes.y) >> j % 4 * 8;
#if __CUDA_ARCH__ >= 890
        uint32_t halves;
        if (CODE == TEGROUP_DTYPE_F8E5M2) asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)pair));
        else asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)pair));
        x[j] = tegroup_impl_low_half(halves, false);
        x[j + 1] = tegroup_impl_high_half(halves, false);
#else
        x[j] = tegroup_impl_f32_of_code((tegroup_dtype)CODE, pair & 0xffu);
        x[j + 1] = tegroup_impl_f32_of_code((tegroup_dtype)CODE, pair >> 8 & 0xffu);
#endif
    }
}

/* A product of a code's value, or that times a scale of E4M3, and a factor, rounded to odd, so that a second rounding
 * to 16 bits gives what one would have given: where something is dropped, one of the two neighbours is odd, and of the
 * other the last bit is 0. That is right where the product is normal: for factors from 2^-80 on, since a value that is
 * not 0 is at least 2^-16. A factor of at most two significant bits, as a power of two is, drops nothing. The function
 * below finds the others. Infinity, as the upper neighbour, is even. */
static __device__ __forceinline__ float tegroup_impl_odd_product(float value, float factor) {
    float down, up; /* in magnitude */
    asm("mul.rz.f32 %0, %1, %2;" : "=f"(down) : "f"(value), "f"(factor));
    asm("{.reg .f32 a, b;\nabs.f32 a, %1;\nabs.f32 b, %2;\nmul.rp.f32 %0, a, b;}" : "=f"(up) : "f"(value), "f"(factor));
    return __uint_as_float(__float_as_uint(down) | (__float_as_uint(up) & 1u));
}
static __device__ __forceinline__ bool tegroup_impl_small_factor(float factor) { /* below 2^-80 */
    const uint32_t magnitude = __float_as_uint(factor) & 0x7fffffffu;
    return magnitude < 0x17800000u && (magnitude & 0x3fffffu) != 0;
}
/* The same of any. */
static __device__ __forceinline__ float tegroup_impl_any_odd_product(float a, float b) {
    const float x = tegroup_impl_f32_odd_of_f64(tegroup_impl_f64_of_f32(a) * tegroup_impl_f64_of_f32(b));
    return tegroup_impl_is_nan(x) ? __uint_as_float(0x7fffffffu) : x;
}

/* A scale, of type UNSET one: values are left as they are. */
static __device__ __forceinline__ float tegroup_impl_load_factor(tegroup_dtype dtype, const char *scales, int64_t i) {
    if (dtype == TEGROUP_DTYPE_UNSET) return 1;
    if (dtype == TEGROUP_DTYPE_F32) return ((const float *)scales)[i];
    if (dtype == TEGROUP_DTYPE_BF16) return tegroup_impl_f32_of_bf16(((const uint16_t *)scales)[i]);
    return dtype == TEGROUP_DTYPE_F8E8M0 ? tegroup_impl_f32_of_f8e8m0(((const uint8_t *)scales)[i])
                                         : tegroup_impl_f32_of_f8e4m3(((const uint8_t *)scales)[i]);
}

/* One by one: at an edge, where codes or values do not begin where vectors do, and by scales of any size. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_dequantize_each(const tegroup_impl_quantize_launch &call,
                                                                 const tegroup_impl_quantize_shared &shared,
                                                                 int columnwise, int64_t row0, int64_t col0,
                                                                 int32_t row, int32_t col, int32_t row_end,
                                                                 int32_t col_end) {
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const tegroup_tensor &t = call.desc.output;
    for (int32_t r = row; r < row_end; r++)
        for (int32_t c = col; c < col_end; c++) {
            const int64_t at = shared.part * shared.part_rows + row0 + r,
                          i = tegroup_impl_element_of(&copy, at, col0 + c);
            const int64_t outer = columnwise ? col0 + c : row0 + r, inner = columnwise ? row0 + r : col0 + c;
            const int64_t of_block = tegroup_impl_scale_of_block(
                &copy.grid, shared.part, outer >> copy.grid.outer_shift, inner >> copy.grid.inner_shift);
            float factor = tegroup_impl_load_factor(call.scale_dtype, copy.scales, of_block),
                  x = tegroup_impl_f32_of_code(t.dtype, tegroup_impl_load_code(t.dtype, copy.data, i));
            if (t.global_scale_inv) x = tegroup_impl_product_f32(x, factor), factor = t.global_scale_inv[shared.g];
            x = DTYPE == TEGROUP_DTYPE_F32 ? tegroup_impl_product_f32(x, factor)
                                           : tegroup_impl_any_odd_product(x, factor);
            tegroup_impl_store_f32((tegroup_dtype)DTYPE, shared.in.base, shared.in.first + at * shared.in.ld + col0 + c,
                                   x);
        }
}

/* How codes become values: their type; TWO: scales have two levels, of E2M1 alone; EXACT: a scale has at most 8
 * significant bits, so that products are exact in F32, but for some below 2^-138, which 16 bits have no number for. */
template <int CODE_, bool TWO_, bool EXACT_> struct tegroup_impl_dequantize_how {
    enum { CODE = CODE_, TWO = TWO_, EXACT = EXACT_, BITS = CODE == TEGROUP_DTYPE_F4E2M1 ? 4 : 8 };
};

/* A copy that lies transposed has a kernel of its own, beside the rowwise and the columnwise one. */
enum { TEGROUP_IMPL_TURNED_COPY = TEGROUP_IMPL_COPIES };

/* A thread's part of a tile: eight rows of eight columns. What is written is the call's input. All codes and scales of
 * a thread are under way before the first is looked at, and what they have in common is asked once for all of them. */
template <int DTYPE, int COPY> struct tegroup_impl_dequantize_piece {
    typedef tegroup_impl_eight<DTYPE> eight;
    enum { BYTES = eight::vectors::bytes, TURNS = COPY == TEGROUP_IMPL_TURNED_COPY, COLUMNWISE = COPY != 0 };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    const tegroup_impl_copy &copy;
    const bool two;         /* levels of scales */
    const int32_t row, col; /* the thread's first, in the tile */
    float of_group;
    int64_t row0, col0; /* the tile's first, in the part */
    int32_t rows, cols; /* from there on */

    __device__ tegroup_impl_dequantize_piece(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s)
        : call(c), shared(s), copy(s.copies[COLUMNWISE]), two(c.desc.output.global_scale_inv != NULL),
          row((int32_t)threadIdx.x >> (c.across_shift - 3) << 3),
          col(((int32_t)threadIdx.x << 3) & ((1 << c.across_shift) - 1)), of_group(1), row0(0), col0(0), rows(0),
          cols(0) {}

    __device__ __forceinline__ void meet() {
        if (two) of_group = call.desc.output.global_scale_inv[shared.g];
    }
    __device__ __forceinline__ void at(int64_t tile_row, int64_t tile_col) {
        row0 = tile_row, col0 = tile_col;
        rows = (int32_t)tegroup_impl_min(1 << call.down_shift, shared.part_rows - row0);
        cols = (int32_t)tegroup_impl_min(1 << call.across_shift, shared.cols - col0);
    }
    __device__ __forceinline__ int64_t first() const { return shared.part * shared.part_rows + row0; }
    /* Where the codes from element (r, c) of the tile on begin. */
    template <int BITS> __device__ __forceinline__ const char *from(int32_t r, int32_t c) const {
        return copy.data + tegroup_impl_element_of(&copy, first() + r, col0 + c) * BITS / 8;
    }

    /* The thread's eight scales, one for each row, or of a columnwise copy for each column: their bits, and below what
     * they mean, which returns whether products need more care. Eight lie within 32 that the swizzled layout has beside
     * each other. */
    __device__ __forceinline__ void load_scales(uint32_t *bits) const {
        const tegroup_impl_scale_grid &grid = copy.grid;
        const int64_t r = row0 + row, c = col0 + col,
                      at = tegroup_impl_scale_of_block(&grid, shared.part, (COLUMNWISE ? c : r) >> grid.outer_shift,
                                                       (COLUMNWISE ? r : c) >> grid.inner_shift),
                      step = grid.outer_shift > 0 ? 0
                             : grid.swizzled      ? 16
                                                  : grid.outer_stride;
        if (call.scale_dtype == TEGROUP_DTYPE_F32) {
#pragma unroll
            for (int k = 0; k < 8; k++) bits[k] = exists(k) ? ((const uint32_t *)copy.scales)[at + k * step] : 0;
        } else if (call.scale_dtype == TEGROUP_DTYPE_BF16) {
#pragma unroll
            for (int k = 0; k < 8; k++) bits[k] = exists(k) ? ((const uint16_t *)copy.scales)[at + k * step] : 0;
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++)
                bits[k] = call.scale_dtype != TEGROUP_DTYPE_UNSET && exists(k)
                              ? ((const uint8_t *)copy.scales)[at + k * step]
                              : 0;
        }
    }
    __device__ __forceinline__ bool exists(int32_t k) const {
        return row + (COLUMNWISE ? 0 : k) < rows && col + (COLUMNWISE ? k : 0) < cols;
    }
    template <typename HOW> __device__ __forceinline__ bool scales_of(const uint32_t *bits, float *scale) const {
        enum { ROUNDS = DTYPE != TEGROUP_DTYPE_F32 && !HOW::EXACT, SINGLE = ROUNDS && !HOW::TWO };
        bool small = ROUNDS && HOW::TWO && tegroup_impl_small_factor(of_group);
        if (call.scale_dtype == TEGROUP_DTYPE_F8E8M0) {
#pragma unroll
            for (int k = 0; k < 8; k++) scale[k] = tegroup_impl_f32_of_f8e8m0((uint8_t)bits[k]);
        } else if (call.scale_dtype == TEGROUP_DTYPE_F8E4M3) {
#pragma unroll
            for (int k = 0; k < 8; k++) scale[k] = tegroup_impl_f32_of_f8e4m3((uint8_t)bits[k]);
        } else if (call.scale_dtype == TEGROUP_DTYPE_BF16) {
#pragma unroll
            for (int k = 0; k < 8; k++) scale[k] = tegroup_impl_f32_of_bf16((uint16_t)bits[k]);
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++)
                scale[k] = call.scale_dtype == TEGROUP_DTYPE_UNSET ? 1.0f : __uint_as_float(bits[k]);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) small = small || (SINGLE && tegroup_impl_small_factor(scale[k]));
        return small;
    }

    /* Eight values of row i from their codes. */
    template <typename HOW>
    __device__ __forceinline__ void store(uint2 codes, const float *scale, int i, char *out) const {
        eight values;
        float x[8];
        tegroup_impl_eight_values<HOW::CODE>(codes, x);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float by = scale[COLUMNWISE ? j : i];
            if (HOW::TWO) x[j] = tegroup_impl_product_f32(x[j], by), by = of_group;
            x[j] = DTYPE == TEGROUP_DTYPE_F32 || HOW::EXACT ? tegroup_impl_product_f32(x[j], by)
                                                            : tegroup_impl_odd_product(x[j], by);
        }
        values.pack(x);
        values.store_vectors(out);
    }

    /* Turns a tile of 128 x 128 codes: as bytes, four columns to a word, 32 words to a row. A thread has 16 rows of
     * four columns. Words of a row are permuted by its number, so that neither those who write nor those who read meet
     * in a bank. */
    static __device__ __forceinline__ int32_t turned_at(int32_t r, int32_t word) {
        return r * 32 + (word ^ r / 16 * 4);
    }
    template <typename HOW>
    __device__ __forceinline__ void turn(const char *tile, int64_t step, uint32_t *turned) const {
        enum { BITS = HOW::BITS };
        const int32_t r = (int32_t)threadIdx.x % 8 * 16, word = (int32_t)threadIdx.x / 8;
        const char *const in = tile + word * 4 * step + r * BITS / 8;
        uint32_t x[4][4]; /* [column][four rows; of 4 bits, every second of eight] */
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (r < rows && word * 4 + k < cols) {
                if (BITS == 8) v = *(const uint4 *)(in + k * step);
                else {
                    const uint2 two = *(const uint2 *)(in + k * step);
                    v = make_uint4(two.x & 0x0f0f0f0fu, two.x >> 4 & 0x0f0f0f0fu, two.y & 0x0f0f0f0fu,
                                   two.y >> 4 & 0x0f0f0f0fu);
                }
            }
            x[k][0] = v.x, x[k][1] = v.y, x[k][2] = v.z, x[k][3] = v.w;
        }
        __syncthreads(); /* what was turned before has been read */
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t two = j < 2 ? 0x5140 : 0x7362, half = j % 2 ? 0x7632 : 0x5410;
                turned[turned_at(r + (BITS == 8 ? i * 4 + j : i / 2 * 8 + j * 2 + i % 2), word)] =
                    __byte_perm(__byte_perm(x[0][i], x[1][i], two), __byte_perm(x[2][i], x[3][i], two), half);
            }
        __syncthreads();
    }
    template <typename HOW> __device__ __forceinline__ uint2 turned_codes(const uint32_t *turned, int32_t r) const {
        const uint2 bytes = *(const uint2 *)(turned + turned_at(r, col / 4));
        if (HOW::BITS == 8) return bytes;
        return make_uint2(__byte_perm(bytes.x | bytes.x >> 4, bytes.y | bytes.y >> 4, 0x6420), 0);
    }

    template <typename HOW> __device__ __forceinline__ void tile(const uint32_t *bits) const {
        enum { BITS = HOW::BITS };
        const int64_t step = (TURNS ? copy.at.col_stride : copy.at.row_stride) * BITS / 8,
                      out_step = shared.in.ld * BYTES;
        const char *in = TURNS ? from<BITS>(0, 0) : from<BITS>(row, col);
        char *out = shared.in.base + (shared.in.first + (first() + row) * shared.in.ld + col0 + col) * BYTES;
        uint32_t *const turned = (uint32_t *)tegroup_impl_quantize_memory();
        const bool aligned = (((uintptr_t)in | (uintptr_t)step) & (TURNS ? 2 * BITS - 1 : BITS - 1)) == 0;
        bool careful = !aligned || col + 8 > cols || (((uintptr_t)out | (uintptr_t)out_step) & 15) != 0;
        float scale[8];
        uint2 codes[8];
        if (TURNS && aligned) turn<HOW>(in, step, turned); /* by all threads */
        if (row >= rows || col >= cols) return;
#pragma unroll
        for (int i = 0; i < 8; i++, in += step) {
            codes[i] = make_uint2(0, 0);
            if (!TURNS && !careful && row + i < rows)
                codes[i] = BITS == 8 ? *(const uint2 *)in : make_uint2(*(const uint32_t *)in, 0);
        }
        careful = scales_of<HOW>(bits, scale) || careful;
        if (careful) {
            tegroup_impl_dequantize_each<DTYPE>(call, shared, COLUMNWISE, row0, col0, row, col, min(rows, row + 8),
                                                min(cols, col + 8));
            return;
        }
#pragma unroll(TURNS ? 2 : 8)
        for (int i = 0; i < 8; i++, out += out_step)
            if (row + i < rows) store<HOW>(TURNS ? turned_codes<HOW>(turned, row + i) : codes[i], scale, i, out);
    }

    /* Asks once a work what all of its products have in common. */
    __device__ __forceinline__ void values() const {
        const bool exact = call.scale_dtype != TEGROUP_DTYPE_F32;
        uint32_t bits[8];
        load_scales(bits);
        if (call.desc.output.dtype == TEGROUP_DTYPE_F4E2M1) {
            if (two) tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F4E2M1, true, false>>(bits);
            else if (exact) tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F4E2M1, false, true>>(bits);
            else tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F4E2M1, false, false>>(bits);
        } else if (call.desc.output.dtype == TEGROUP_DTYPE_F8E5M2) {
            if (exact) tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E5M2, false, true>>(bits);
            else tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E5M2, false, false>>(bits);
        } else {
            if (exact) tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E4M3, false, true>>(bits);
            else tile<tegroup_impl_dequantize_how<TEGROUP_DTYPE_F8E4M3, false, false>>(bits);
        }
    }
};

/* A work is a tile. */
template <int DTYPE, int COPY>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_DEQUANTIZE_RESIDENT)
    tegroup_impl_dequantize_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<false> walk(call, shared);
    tegroup_impl_dequantize_piece<DTYPE, COPY> piece(call, shared);
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        if (work >= walk.part_end) {
            walk.meet(work);
            piece.meet();
        }
        if (!piece.copy.data) continue;
        int64_t row0, col0;
        walk.place(work, &row0, &col0);
        piece.at(row0, col0);
        piece.values();
    }
}

template <int DTYPE> static inline tegroup_impl_quantize_kernel_type *tegroup_impl_dequantize_kernel_of(int copy) {
    return copy == TEGROUP_IMPL_TURNED_COPY  ? tegroup_impl_dequantize_kernel<DTYPE, TEGROUP_IMPL_TURNED_COPY>
           : copy == TEGROUP_IMPL_COLUMNWISE ? tegroup_impl_dequantize_kernel<DTYPE, TEGROUP_IMPL_COLUMNWISE>
                                             : tegroup_impl_dequantize_kernel<DTYPE, TEGROUP_IMPL_ROWWISE>;
}

/* call: of the tensor that is read, and of one copy; its input is what is written. most: blocks; 0: as many as have
 * room. */
static inline tegroup_status tegroup_impl_cuda_dequantize_copy(tegroup_impl_quantize_launch call, unsigned most,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const int columnwise = call.copies >> TEGROUP_IMPL_COLUMNWISE & 1,
              turned = tegroup_impl_transposed(&call.desc.output, columnwise),
              copy = turned ? TEGROUP_IMPL_TURNED_COPY : columnwise;
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_SHIFT,
                  across = turned ? tile : tegroup_impl_cuda_strip_shift(call.desc.output.shape.cols);
    tegroup_impl_quantize_kernel_type *const kernel =
        call.desc.input.dtype == TEGROUP_DTYPE_F32   ? tegroup_impl_dequantize_kernel_of<TEGROUP_DTYPE_F32>(copy)
        : call.desc.input.dtype == TEGROUP_DTYPE_F16 ? tegroup_impl_dequantize_kernel_of<TEGROUP_DTYPE_F16>(copy)
                                                     : tegroup_impl_dequantize_kernel_of<TEGROUP_DTYPE_BF16>(copy);
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&call, 2 * tile - across, across,
                                                       TEGROUP_IMPL_DEQUANTIZE_RESIDENT, &blocks, error));
    if (most > 0 && blocks > most) blocks = most;
    return tegroup_impl_cuda_quantize_launch_kernel(kernel, &call, blocks, turned ? TEGROUP_IMPL_QUANTIZE_STAGED : 0,
                                                    stream, error);
}

/* ==== [32] Quantise: tiles, and what tiles, strips and rows share (src/layer/quantize_tile_cuda.h) ==== */

/* The largest magnitude of a block, from the tables: that of index o of those for which one scale is chosen, and i. */
static __device__ __forceinline__ uint32_t tegroup_impl_table_amax(const tegroup_impl_quantize_launch &call,
                                                                   const tegroup_impl_quantize_shared &shared,
                                                                   int columnwise, int32_t o, int32_t i) {
    const bool square = call.choice_shift > 0;
    const int32_t blocks = TEGROUP_IMPL_QUANTIZE_TILE >> call.inner_shift, bands = 1 << call.inner_shift >> 4;
    if (!square && !columnwise) return shared.amax[0][o * blocks + i];
    const int32_t band = (square && !columnwise ? o : i) * bands, at = !square || columnwise ? o : i,
                  step = square ? blocks : TEGROUP_IMPL_QUANTIZE_COLS;
    uint32_t most = 0;
    for (int32_t b = 0; b < bands; b++) most = max(most, shared.amax[!square][(band + b) * step + at]);
    return most;
}

/* The scale of a block of so large an amax, its factor into the table. Returns its code. */
static __device__ __forceinline__ uint32_t tegroup_impl_table_scale(const tegroup_impl_quantize_launch &call,
                                                                    tegroup_impl_quantize_shared &shared,
                                                                    int columnwise, int32_t entry, float amax) {
    const tegroup_quantize_desc &desc = call.desc;
    const tegroup_block_scale block =
        tegroup_impl_scale_block(&desc.rule, desc.output.dtype, call.scale_dtype, amax, shared.global);
    shared.factor[columnwise][entry] = tegroup_impl_factor_of(block);
    return block.bits;
}

/* The scales of one copy of the tile, or of a strip of tiles: from the table of amax to that of factors, and to
 * where they are stored, with what pads them. The first half of the threads begins with the rowwise copy's, the second
 * with the columnwise one's. */
static __device__ __forceinline__ void tegroup_impl_table_scales(const tegroup_impl_quantize_launch &call,
                                                                 tegroup_impl_quantize_shared &shared, int64_t row0,
                                                                 int64_t col0, int columnwise) {
    const tegroup_impl_copy &copy = shared.copies[columnwise];
    const tegroup_impl_scale_grid &grid = copy.grid;
    const int64_t outer0 = columnwise ? col0 : row0, inner0 = columnwise ? row0 : col0;
    const tegroup_impl_tile_scales scales(grid, shared.part, row0, col0);
    const int32_t outers =
                      (int32_t)(tegroup_impl_blocks_end(outer0, grid.outer_shift, grid.outer_count, grid.outer_extent)
                                - scales.outer),
                  inners = call.facts.block_inner == 0
                               ? 1
                               : (int32_t)(tegroup_impl_blocks_end(inner0, grid.inner_shift, grid.inner_count,
                                                                   grid.inner_extent)
                                           - scales.inner);
    const bool down = !grid.swizzled && grid.outer_stride < grid.inner_stride; /* the outer index is contiguous */
    const int32_t fast = down ? outers : inners, shift = fast > 1 ? 32 - __clz(fast - 1) : 0;
    const int32_t threads = TEGROUP_IMPL_QUANTIZE_THREADS,
                  thread = ((int32_t)threadIdx.x + columnwise * threads / 2) % threads;
    for (int32_t e = thread; e < (down ? inners : outers) << shift; e += threads) {
        const int32_t quick = e & ((1 << shift) - 1), slow = e >> shift, o = down ? quick : slow,
                      i = down ? slow : quick, chosen = o << call.outer_shift >> call.choice_shift;
        uint32_t bits = 0;
        if (quick >= fast) continue;
        if (o < scales.outer_count && i < scales.inner_count)
            bits =
                tegroup_impl_table_scale(call, shared, columnwise,
                                         columnwise ? i * TEGROUP_IMPL_QUANTIZE_COLS + chosen
                                                    : chosen * (TEGROUP_IMPL_QUANTIZE_TILE >> call.inner_shift) + i,
                                         __uint_as_float(tegroup_impl_table_amax(call, shared, columnwise, chosen, i)));
        if (copy.data) tegroup_impl_store_code(call.scale_dtype, copy.scales, scales.at(o, i), bits);
    }
}

/* n codes beside each other from element `at` on, one by one. */
template <int BITS>
static __device__ __noinline__ void tegroup_impl_store_codes(tegroup_dtype dtype, char *data, int64_t at, int32_t n,
                                                             uint2 codes) {
#pragma unroll 1
    for (int32_t e = 0; e < n; e++)
        tegroup_impl_store_code(dtype, data, at + e,
                                (BITS == 8 && e >= 4 ? codes.y : codes.x) >> e % (32 / BITS) * BITS);
}

/* The first bits of 128, with zeros behind them. */
static __device__ __noinline__ uint4 tegroup_impl_first_bits(uint4 v, int32_t bits) {
    uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int32_t k = 0; k < 4; k++) {
        const int32_t left = bits - 32 * k;
        if (left < 32) word[k] = left > 0 ? word[k] & ((1u << left) - 1) : 0;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* The first `bytes` of 16. */
static __device__ __noinline__ void tegroup_impl_store_bytes(char *to, uint4 v, int32_t bytes) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int32_t b = 0; b < 16; b++)
        if (b < bytes) to[b] = (char)(word[b / 4] >> b % 4 * 8);
}

/* Eight values of the group's row r from column `at` on, n of them: of a gathered row, or such as an activation makes;
 * vector: rows are read 16 bytes at a time. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_quantize_row_of(const tegroup_impl_quantize_launch &call,
                                                                 const tegroup_impl_quantize_shared &shared, int64_t r,
                                                                 int64_t at, int32_t n, bool vector,
                                                                 tegroup_impl_eight<DTYPE> *x) {
    const tegroup_quantize_desc &desc = call.desc;
    const int bytes = tegroup_impl_eight<DTYPE>::vectors::bytes;
    x->clear();
#if !defined(TEGROUP_NO_ACTIVATION)
    if (desc.activation != TEGROUP_ACTIVATION_UNSET) {
        const bool gradient = desc.grad_output.dtype != TEGROUP_DTYPE_UNSET;
        const int64_t width = desc.output.shape.cols / 2;
        const bool straddles =
            gradient && tegroup_impl_gated(desc.activation) && !desc.interleaved && at < width && at + n > width;
        const char *in = shared.in.base + (shared.in.first + r * shared.in.ld) * bytes,
                   *dy = gradient ? shared.dy.base + (shared.dy.first + r * shared.dy.ld) * bytes : NULL;
        const float scale = tegroup_impl_weight<float>(desc.row_scale, shared.in.row0 + r, 0);
        float y[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        vector = vector && (!gradient || ((uintptr_t)shared.dy.base & 15) == 0);
        if (!straddles) tegroup_impl_made_eight<DTYPE>(desc, in, dy, scale, at, n, vector, y);
#pragma unroll 1
        for (int32_t e = 0; e < n && straddles; e++) {
            float one[8];
            tegroup_impl_made_eight<DTYPE>(desc, in, dy, scale, at + e, 1, false, one);
            y[e] = one[0];
        }
#pragma unroll
        for (int e = 0; e < 8; e++) y[e] = e < n ? y[e] : 0.0f;
        x->pack(y);
        return;
    }
#endif
    const int64_t row = tegroup_impl_row_at(&desc.gather_input, &shared.in, r);
    if (row >= 0) x->load(shared.in.base + row * bytes, at, n, vector);
}

/* The same, or zeros where n is 0, to where a tile is staged. */
template <int DTYPE>
static __device__ __noinline__ void tegroup_impl_quantize_stage_each(const tegroup_impl_quantize_launch &call,
                                                                     const tegroup_impl_quantize_shared &shared,
                                                                     int64_t r, int64_t at, int32_t n, char *to) {
    const bool vector = call.vectors && ((uintptr_t)shared.in.base & 15) == 0;
    tegroup_impl_eight<DTYPE> x;
    x.clear();
    if (n > 0) tegroup_impl_quantize_row_of<DTYPE>(call, shared, r, at, n, vector, &x);
    x.store_vectors(to);
}

/* Eight values whose place is a multiple of 16 bytes, or zeros where they are absent, without a wait. */
template <int DTYPE>
static __device__ __forceinline__ void tegroup_impl_quantize_stage(bool absent, const char *from, char *to) {
#pragma unroll
    for (int k = 0; k < tegroup_impl_eight<DTYPE>::raws; k++)
        tegroup_impl_cp_async_unless(absent, tegroup_impl_shared(to + 16 * k), from + 16 * k);
}

/* Are values those of input, at multiples of 16 bytes? */
static __device__ __forceinline__ bool tegroup_impl_quantize_direct(const tegroup_impl_quantize_launch &call,
                                                                    const tegroup_impl_quantize_shared &shared) {
    return call.plain && call.vectors && ((uintptr_t)shared.in.base & 15) == 0;
}

/* Eight values by one factor each, as codes of which the first n are stored from element `at` on; vector: eight are
 * one access. */
template <int BITS>
static __device__ __forceinline__ void tegroup_impl_quantize_store(const tegroup_impl_quantize_launch &call, float *x,
                                                                   const float *factor, char *data, int64_t at,
                                                                   int32_t n, bool vector) {
    const tegroup_dtype dtype = call.desc.output.dtype;
    char *const to = data + at * BITS / 8;
    tegroup_impl_scale_eight(x, factor, call.desc.rule.divide);
    const uint2 codes = tegroup_impl_eight_codes<BITS>(dtype, x);
    if (!vector) tegroup_impl_store_codes<BITS>(dtype, data, at, min(8, n), codes);
    else if (BITS == 8) *(uint2 *)to = codes;
    else *(uint32_t *)to = codes.x;
}

/* A thread's part of a tile: rows `row` .. row + 7, columns `col` .. col + 7, and of what is transposed two columns of
 * 32 rows. The tile's values are staged in shared memory, each thread's part by itself, with zeros where there are
 * none. */
template <int DTYPE> struct tegroup_impl_quantize_piece {
    typedef tegroup_impl_eight<DTYPE> eight;
    enum { BYTES = eight::vectors::bytes, TILE = TEGROUP_IMPL_QUANTIZE_TILE };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    char *const tile;
    int32_t row, col;
    int32_t rows, n;    /* from the piece on that its part has */
    int64_t row0, col0; /* the tile's first, in the part */

    __device__ tegroup_impl_quantize_piece(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s,
                                           char *t)
        : call(c), shared(s), tile(t), row((int32_t)threadIdx.x / 16 * 8), col((int32_t)threadIdx.x % 16 * 8), rows(0),
          n(0), row0(0), col0(0) {}

    __device__ __forceinline__ int64_t begin() const { return shared.part * shared.part_rows + row0; }
    __device__ __forceinline__ char *staged(int32_t r, int32_t c) const { return tile + (r * TILE + c) * BYTES; }

    __device__ __forceinline__ void load(int64_t at_row, int64_t at_col) {
        row0 = at_row, col0 = at_col;
        rows = tegroup_impl_left_of(shared.part_rows - row0, row);
        n = tegroup_impl_left_of(shared.cols - col0, col);
        if (tegroup_impl_quantize_direct(call, shared) && n >= 8) {
            const char *from = shared.in.base + (shared.in.first + (begin() + row) * shared.in.ld + col0 + col) * BYTES;
#pragma unroll
            for (int i = 0; i < 8; i++, from += shared.in.ld * BYTES)
                tegroup_impl_quantize_stage<DTYPE>(i >= rows, from, staged(row + i, col));
        } else {
#pragma unroll 1
            for (int i = 0; i < 8; i++)
                tegroup_impl_quantize_stage_each<DTYPE>(call, shared, begin() + row + i, col0 + col,
                                                        i < rows ? min(8, n) : 0, staged(row + i, col));
        }
        tegroup_impl_cp_commit();
        tegroup_impl_cp_wait<0>();
    }

    /* The piece's amax into the tables, the larger of it and what is there unless it is the first; returns it. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t collect(bool first) const {
        typedef tegroup_impl_magnitudes<DTYPE, SHOWS> magnitudes;
        const int32_t lane = (int32_t)threadIdx.x % 32, shift = call.inner_shift - 3; /* of lanes that share a block */
        const bool square = call.choice_shift > 0, leads = (lane & ((1 << shift) - 1)) == 0;
        uint32_t of_col[magnitudes::words] = {0}, most = 0;
#pragma unroll 1
        for (int32_t i = 0; i < 8; i += 2) {
            eight x[2];
            uint32_t pair[2];
            x[0].load_vectors(staged(row + i, col));
            x[1].load_vectors(staged(row + i + 1, col));
            magnitudes::of_columns(x, of_col);
            magnitudes::of_pair(x[0], x[1], pair);
            most = max(most, max(magnitudes::at(pair, 0), magnitudes::at(pair, 1)));
            if (square || !(call.copies & 1 << TEGROUP_IMPL_ROWWISE)) continue;
            magnitudes::of_lanes(shift, pair);
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (leads)
                    shared.amax[0][((row + i + j) << 4 >> shift) + (col >> call.inner_shift)] = magnitudes::at(pair, j);
        }
        if (tegroup_impl_scaled_as_one(&call.facts)) return most;
        if (square) {
            uint32_t of_band = max(most, __shfl_xor_sync(0xffffffffu, most, 16));
            for (int step = 1; step < 1 << shift; step *= 2)
                of_band = max(of_band, __shfl_xor_sync(0xffffffffu, of_band, step));
            if (lane < 16 && leads) shared.amax[0][(row >> 4 << 4 >> shift) + (col >> call.inner_shift)] = of_band;
        } else if (call.copies & 1 << TEGROUP_IMPL_COLUMNWISE) {
#pragma unroll
            for (int k = 0; k < magnitudes::words; k++)
                of_col[k] = magnitudes::larger(of_col[k], __shfl_xor_sync(0xffffffffu, of_col[k], 16));
            uint4 *table = (uint4 *)(shared.amax[1] + row / 16 * TEGROUP_IMPL_QUANTIZE_COLS + col);
#pragma unroll
            for (int k = 0; k < 2 && lane < 16; k++) {
                uint4 now = make_uint4(magnitudes::at(of_col, 4 * k), magnitudes::at(of_col, 4 * k + 1),
                                       magnitudes::at(of_col, 4 * k + 2), magnitudes::at(of_col, 4 * k + 3));
                if (!first) {
                    const uint4 was = table[k];
                    now = make_uint4(max(was.x, now.x), max(was.y, now.y), max(was.z, now.z), max(was.w, now.w));
                }
                table[k] = now;
            }
        }
        return most;
    }

    /* Rows of codes, in the order of the data. */
    template <int BITS, int COLUMNWISE> __device__ __forceinline__ void encode_rows() const {
        const tegroup_impl_copy &copy = shared.copies[COLUMNWISE];
        const int64_t at = tegroup_impl_element_of(&copy, begin() + row, col0 + col), step = copy.at.row_stride;
        const bool vector =
            n >= 8 && (((uintptr_t)(copy.data + at * BITS / 8) | (uintptr_t)(step * BITS / 8)) & (BITS - 1)) == 0;
        const tegroup_impl_factors of = tegroup_impl_factors_of(call, shared, COLUMNWISE, call.choice_shift, row, col);
        float factor[8];
        if (!copy.data || n <= 0) return;
#pragma unroll
        for (int j = 0; j < 8 && COLUMNWISE; j++) factor[j] = of.at[j * of.step];
#pragma unroll 1
        for (int pair = 0; pair < 8; pair += 2) {
            eight x[2];
#pragma unroll
            for (int i = 0; i < 2; i++) x[i].load_vectors(staged(row + pair + i, col));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float y[8];
                if (pair + i >= rows) return;
#pragma unroll
                for (int j = 0; j < 8 && !COLUMNWISE; j++) factor[j] = of.at[(pair + i) * of.step];
                x[i].unpack(y);
                tegroup_impl_quantize_store<BITS>(call, y, factor, copy.data, at + (pair + i) * step, n, vector);
            }
        }
    }

    /* The value of the second column of two, or of the first. */
    static __device__ __forceinline__ float of_two(uint2 word, bool second) {
        if (BYTES == 4) return __uint_as_float(second ? word.y : word.x);
        if (DTYPE == TEGROUP_DTYPE_BF16) return __uint_as_float(__byte_perm(word.x, 0, second ? 0x3244 : 0x1044));
        return tegroup_impl_low_half(word.x >> (second ? 16 : 0), false);
    }
    /* Sixteen rows of two columns at a time. `end` rows are written: those that there are, and zeros that pad the
     * last. */
    template <int BITS> __device__ __forceinline__ void encode_columns() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int64_t whole = tegroup_impl_min(TILE, shared.part_rows - row0);
        const int32_t c0 = (int32_t)threadIdx.x % 64 * 2, r0 = (int32_t)threadIdx.x / 64 * 32,
                      cols = (int32_t)tegroup_impl_min(c0 + 2, shared.cols - col0),
                      end = begin() + whole < shared.rows ? (int32_t)whole : (int32_t)(copy.at.col_stride - begin());
        if (!copy.data || c0 >= cols) return;
#pragma unroll 1
        for (int32_t r = r0; r < min(end, r0 + 32); r += 16) {
            uint2 word[16];
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const char *at = staged(r + i, c0);
                word[i] = BYTES == 4 ? *(const uint2 *)at : make_uint2(*(const uint32_t *)at, 0);
            }
#pragma unroll 1
            for (int32_t c = c0; c < cols; c++) {
                const float scale = *tegroup_impl_factors_of(call, shared, 1, call.choice_shift, r, c).at,
                            factor[8] = {scale, scale, scale, scale, scale, scale, scale, scale};
                uint2 codes[2];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    float y[8];
#pragma unroll
                    for (int i = 0; i < 8; i++) y[i] = of_two(word[8 * k + i], c > c0);
                    tegroup_impl_scale_eight(y, factor, call.desc.rule.divide);
                    codes[k] = tegroup_impl_eight_codes<BITS>(call.desc.output.dtype, y);
                }
                store_column<BITS>(codes, r, c, (int32_t)whole - r, end - r);
            }
        }
    }
    /* Codes of sixteen rows, of which some are there, and some are written. */
    template <int BITS>
    __device__ __forceinline__ void store_column(const uint2 *codes, int32_t r, int32_t c, int32_t there,
                                                 int32_t written) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        char *const to = copy.data + tegroup_impl_element_of(&copy, begin() + r, col0 + c) * BITS / 8;
        uint4 v = BITS == 8 ? make_uint4(codes[0].x, codes[0].y, codes[1].x, codes[1].y)
                            : make_uint4(codes[0].x, codes[1].x, 0, 0);
        if (there < 16) v = tegroup_impl_first_bits(v, max(0, there) * BITS); /* no NaN of a factor pads the rows */
        if (written < 16 || ((uintptr_t)to & (2 * BITS - 1)) != 0)
            tegroup_impl_store_bytes(to, v, min(16, written) * BITS / 8);
        else if (BITS == 8) *(uint4 *)to = v;
        else *(uint2 *)to = make_uint2(v.x, v.y);
    }

    template <int BITS> __device__ __forceinline__ void encode() const {
        if (call.copies & 1 << TEGROUP_IMPL_ROWWISE) encode_rows<BITS, TEGROUP_IMPL_ROWWISE>();
        if (!(call.copies & 1 << TEGROUP_IMPL_COLUMNWISE)) return;
        if (!tegroup_impl_transposed(&call.desc.output, TEGROUP_IMPL_COLUMNWISE)) {
            encode_rows<BITS, TEGROUP_IMPL_COLUMNWISE>();
            return;
        }
        __syncthreads(); /* what other threads staged is there */
        encode_columns<BITS>();
        __syncthreads(); /* and is read */
    }
};

/* The warp's largest magnitude goes to its group. */
static __device__ __forceinline__ void tegroup_impl_raise(const tegroup_tensor &t, int32_t g, uint32_t most) {
    for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (most > 0x7f800000u) most = 0x7fffffffu; /* as tegroup_impl_amax has it */
    if (threadIdx.x % 32 != 0 || most == 0) return;
    if (t.amax) atomicMax((uint32_t *)t.amax + g, most);
    if (t.columnwise_amax) atomicMax((uint32_t *)t.columnwise_amax + g, most);
}

/* amax of every group begins as 0. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS)
    tegroup_impl_quantize_clear_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    const tegroup_tensor &t = call.desc.output;
    const tegroup_snapshot_view view = tegroup_impl_fitting_view(&t);
    if (tegroup_impl_ragged(&t.shape) && !view.header) return;
    for (int32_t g = (int32_t)threadIdx.x; g < t.shape.groups; g += TEGROUP_IMPL_QUANTIZE_THREADS) {
        if (t.amax) t.amax[g] = 0;
        if (t.columnwise_amax) t.columnwise_amax[g] = 0;
    }
}

/* What is one number a group, after its amax: the last block's work. */
static __device__ __noinline__ void tegroup_impl_quantize_store_numbers(const tegroup_impl_quantize_launch &call) {
    for (int32_t g = (int32_t)threadIdx.x; g < call.desc.output.shape.groups; g += TEGROUP_IMPL_QUANTIZE_THREADS) {
        const tegroup_block_scale one = tegroup_impl_quantize_group_scale(call, g);
        tegroup_impl_store_group(&call.desc, &call.facts, &one, g);
    }
}
static __device__ __forceinline__ void tegroup_impl_quantize_store_groups(const tegroup_impl_quantize_launch &call,
                                                                          bool fits) {
    if (blockIdx.x == gridDim.x - 1 && call.copies && fits
        && (tegroup_impl_scaled_as_one(&call.facts) || call.desc.output.global_scale_inv))
        tegroup_impl_quantize_store_numbers(call);
}

/* A work is a tile; of scaling ROW, columnwise, a column of them, through which a block goes down and up again: what it
 * read last is still in the cache. */
template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_QUANTIZE_RESIDENT(DTYPE))
    tegroup_impl_quantize_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<true> walk(call, shared);
    tegroup_impl_quantize_piece<DTYPE> piece(call, shared, tegroup_impl_quantize_memory());
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_TILE;
    const bool whole = tegroup_impl_scaled_as_one(&call.facts);
    uint32_t most = 0;
    int32_t g = -1;
    tegroup_impl_quantize_store_groups(call, walk.fits);
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t row0, col0;
        if (work >= walk.part_end) {
            if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
            most = 0;
            walk.meet(work);
            g = shared.g;
        }
        walk.place(work, &row0, &col0);
        const int64_t last = call.down_shift == TEGROUP_IMPL_QUANTIZE_ALL ? (shared.part_rows - 1) / tile * tile : row0;
        for (int64_t at = row0; at <= last; at += tile) {
            piece.load(at, col0);
            if (!whole || call.raises)
                most = max(most, call.desc.rule.nan_shows ? piece.template collect<true>(at == row0)
                                                          : piece.template collect<false>(at == row0));
        }
        if (!whole) {
            __syncthreads();
#pragma unroll 1
            for (int c = 0; c < TEGROUP_IMPL_COPIES; c++)
                if (call.copies >> c & 1) tegroup_impl_table_scales(call, shared, row0, col0, c);
            __syncthreads();
        }
        for (int64_t at = last; at >= row0; at -= tile) {
            if (at < last) piece.load(at, col0);
            if (tegroup_impl_bits(call.desc.output.dtype) == 8) piece.template encode<8>();
            else piece.template encode<4>();
        }
    }
    if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
}

/* ==== [33] Quantise: strips of rows (src/layer/quantize_strip_cuda.h) ==== */

/* A warp's part of a strip: one row, of which a thread has eight pieces of eight values, those of the warp beside each
 * other. They are staged in shared memory, each thread's by itself. Warps share nothing, and wait for none. */
template <int DTYPE> struct tegroup_impl_quantize_strip {
    typedef tegroup_impl_eight<DTYPE> eight;
    enum { PIECES = 8, COLS = 1 << TEGROUP_IMPL_QUANTIZE_STRIP, BYTES = eight::vectors::bytes };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    const int32_t warp, lane, shift; /* shift: logarithm of the lanes that share a block */
    char *const memory;              /* the thread's */
    int64_t row, col0;
    int32_t cols;

    __device__ tegroup_impl_quantize_strip(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s,
                                           char *m)
        : call(c), shared(s), warp((int32_t)threadIdx.x / 32), lane((int32_t)threadIdx.x % 32),
          shift(c.inner_shift - 3), memory(m + (warp * COLS + lane * 8) * BYTES), row(0), col0(0), cols(0) {}

    __device__ __forceinline__ int32_t at(int32_t k) const { return (k * 32 + lane) * 8; }
    __device__ __forceinline__ char *staged(int32_t k) const { return memory + k * 256 * BYTES; }
    __device__ __forceinline__ int64_t of_group() const { return shared.part * shared.part_rows + row; }
    /* The place in the tables of a piece's block: blocks of a row lie in their order. */
    __device__ __forceinline__ int32_t entry(int32_t k) const {
        return warp * (COLS / 16) + ((k * 32 + lane) >> shift);
    }

    /* False: the warp has no row. */
    __device__ __forceinline__ bool load(int64_t row0, int64_t at_col) {
        row = row0 + warp, col0 = at_col;
        cols = (int32_t)tegroup_impl_min(COLS, shared.cols - col0);
        if (row >= shared.part_rows) return false;
        const char *from = shared.in.base + (shared.in.first + of_group() * shared.in.ld + col0 + at(0)) * BYTES;
        if (tegroup_impl_quantize_direct(call, shared) && (cols & 7) == 0) {
#pragma unroll
            for (int32_t k = 0; k < PIECES; k++)
                tegroup_impl_quantize_stage<DTYPE>(at(k) >= cols, from + k * 256 * BYTES, staged(k));
        } else {
#pragma unroll 1
            for (int32_t k = 0; k < PIECES; k++)
                tegroup_impl_quantize_stage_each<DTYPE>(call, shared, of_group(), col0 + at(k),
                                                        max(0, min(8, cols - at(k))), staged(k));
        }
        tegroup_impl_cp_commit();
        tegroup_impl_cp_wait<0>();
        return true;
    }

    /* The blocks' amax into the table; returns the thread's. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t collect(bool table) const {
        typedef tegroup_impl_magnitudes<DTYPE, SHOWS> magnitudes;
        uint32_t most = 0;
#pragma unroll 1
        for (int32_t k = 0; k < PIECES; k += 2) {
            eight x[2];
            uint32_t pair[2];
            x[0].load_vectors(staged(k));
            x[1].load_vectors(staged(k + 1));
            magnitudes::of_pair(x[0], x[1], pair);
            most = max(most, max(magnitudes::at(pair, 0), magnitudes::at(pair, 1)));
            if (!table) continue;
            magnitudes::of_lanes(shift, pair);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if ((lane & ((1 << shift) - 1)) == 0) shared.amax[0][entry(k + i)] = magnitudes::at(pair, i);
        }
        return most;
    }

    /* From that table to that of factors, and to where scales are stored. */
    __device__ __forceinline__ void scales() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const int32_t first = warp * (COLS / 16);
        const int64_t inner = col0 >> call.inner_shift;
        __syncwarp();
        for (int32_t e = lane; e < COLS >> call.inner_shift && inner + e < copy.grid.inner_count; e += 32) {
            const uint32_t bits = tegroup_impl_table_scale(call, shared, TEGROUP_IMPL_ROWWISE, first + e,
                                                           __uint_as_float(shared.amax[0][first + e]));
            if (copy.data)
                tegroup_impl_store_code(call.scale_dtype, copy.scales,
                                        tegroup_impl_scale_of_block(&copy.grid, shared.part, row, inner + e), bits);
        }
        __syncwarp();
    }

    template <int BITS> __device__ __forceinline__ void encode(bool whole) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const int64_t first = tegroup_impl_element_of(&copy, of_group(), col0);
        const bool aligned = ((uintptr_t)(copy.data + first * BITS / 8) & (BITS - 1)) == 0;
        if (!copy.data) return;
#pragma unroll 1
        for (int32_t k = 0; k < PIECES; k++) {
            const int32_t n = cols - at(k);
            eight x;
            float y[8];
            if (n <= 0) break;
            const float scale = shared.factor[0][whole ? 0 : entry(k)],
                        factor[8] = {scale, scale, scale, scale, scale, scale, scale, scale};
            x.load_vectors(staged(k));
            x.unpack(y);
            tegroup_impl_quantize_store<BITS>(call, y, factor, copy.data, first + at(k), n, aligned && n >= 8);
        }
        __syncwarp(); /* the factors have been read */
    }

    /* Zeros for what pads the scales behind a part's last rows, and behind its last columns: by all threads. */
    __device__ __forceinline__ void pad(int64_t row0) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const tegroup_impl_scale_grid &grid = copy.grid;
        const int64_t inner0 = col0 >> call.inner_shift, rows = shared.part_rows - row0,
                      blocks = (shared.cols - col0 + (1 << call.inner_shift) - 1) >> call.inner_shift,
                      outers =
                          rows <= TEGROUP_IMPL_QUANTIZE_ROWS ? grid.outer_extent - row0 : TEGROUP_IMPL_QUANTIZE_ROWS,
                      inners = shared.cols - col0 <= COLS ? grid.inner_extent - inner0 : COLS >> call.inner_shift;
        if (!copy.data || (outers <= rows && inners <= blocks)) return;
#pragma unroll 1
        for (int64_t o = warp; o < outers; o += TEGROUP_IMPL_QUANTIZE_THREADS / 32)
#pragma unroll 1
            for (int64_t i = (o < rows ? blocks : 0) + lane; i < inners; i += 32)
                tegroup_impl_store_code(call.scale_dtype, copy.scales,
                                        tegroup_impl_scale_of_block(&grid, shared.part, row0 + o, inner0 + i), 0);
    }
};

/* The rowwise copy where no block spans rows, and no kernel in registers makes it, or amax alone. A work is a strip of
 * eight rows. */
template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_QUANTIZE_RESIDENT(DTYPE))
    tegroup_impl_quantize_strip_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<true> walk(call, shared);
    tegroup_impl_quantize_strip<DTYPE> strip(call, shared, tegroup_impl_quantize_memory());
    const bool whole = tegroup_impl_scaled_as_one(&call.facts), table = !whole && call.copies;
    uint32_t most = 0;
    int32_t g = -1;
    tegroup_impl_quantize_store_groups(call, walk.fits);
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t row0, col0;
        if (work >= walk.part_end) {
            if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
            most = 0;
            walk.meet(work);
            g = shared.g;
        }
        walk.place(work, &row0, &col0);
        if (strip.load(row0, col0)) {
            if (table || call.raises)
                most = max(most, call.desc.rule.nan_shows ? strip.template collect<true>(table)
                                                          : strip.template collect<false>(table));
            if (table) strip.scales();
            if (!call.copies) continue;
            if (tegroup_impl_bits(call.desc.output.dtype) == 8) strip.template encode<8>(whole);
            else strip.template encode<4>(whole);
        }
        if (table) strip.pad(row0);
    }
    if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
}

/* ==== [34] Quantise: BF16 in registers (src/layer/quantize_registers_cuda.h) ==== */

/* These kernels make what those of strips and tiles make, of values that are read or, for blocks of 1x128, that a gated
 * activation or its gradient makes: each stays in the registers of its thread from the load to the last store, which
 * takes a third of the instructions. */
enum {
    TEGROUP_IMPL_REGISTERS_RESIDENT = 3, /* blocks a multiprocessor, of up to 80 registers a thread */
    TEGROUP_IMPL_GRADIENT_RESIDENT = 2,  /* those that make a gradient, which needs more of them */
    TEGROUP_IMPL_REGISTERS_PIECES = 8,   /* of a thread, eight values each */
    TEGROUP_IMPL_REGISTERS_ALL = 32,     /* LANES where a scale is of all values of a tile, of a row, or of a group */
    TEGROUP_IMPL_REGISTERS_ROW =
        TEGROUP_IMPL_QUANTIZE_STRIP + 3,   /* logarithm of the longest row of a block's 8 warps */
    TEGROUP_IMPL_REGISTERS_ROWS = 0x7fff80 /* whose tiles of 128 are 65,535: 16 bits count them */
};

/* Where values come from: input as it lies, by tiles also as an index picks its rows; that by strips; gates and ups; or
 * these and the gradient of what they make. */
enum { TEGROUP_IMPL_FROM_INPUT, TEGROUP_IMPL_FROM_GATHERED, TEGROUP_IMPL_FROM_GATES, TEGROUP_IMPL_FROM_GRADIENT };
template <int FROM> struct tegroup_impl_values_from {}; /* so that no kernel compiles another one's way */

/* The rule that most calls have for blocks of 128, 32 and 16 values. A kernel that knows it finds a scale in a third of
 * the steps. */
TEGROUP_IMPL_HD tegroup_scale_rule tegroup_impl_usual_rule(int lanes, int bits) {
    const tegroup_scale_rule deepgemm = {TEGROUP_SCALE_DIVISOR, 1e-4f, 0, 0, 0, 0, 0, 0, 1},
                             mxfp8 = {TEGROUP_SCALE_DIVISOR, 0, 0, 0, 1, 1, 0, 0, 0},
                             mxfp4 = {TEGROUP_SCALE_EXPONENT, 0, 0, 0, 0, 0, 0, 0, 1},
                             nvfp4 = {TEGROUP_SCALE_TWO_LEVEL, 0, 0, 0, 0, 0, 0, 0, 0};
    return lanes == 16 ? deepgemm : lanes == 2 ? nvfp4 : bits == 4 ? mxfp4 : mxfp8;
}

/* A thread's part of a work: eight pieces of eight values. A work is a tile of 128 x 128 (TILE), of which a piece is a
 * row; or, where rows are walked along, a strip: 2,048 values a warp, of one row or, where a row is short, of
 * up to eight, of which a piece of all lanes is 256 beside each other. A row that has one scale is shared by as many
 * warps as it takes. LANES beside each other have a block of each piece, and share out the blocks' scales among them.
 * CODE: the codes' type; 0: amax alone is found. */
template <int LANES, int CODE, bool TILE, int FROM = TEGROUP_IMPL_FROM_INPUT> struct tegroup_impl_quantize_registers {
    typedef tegroup_impl_eight<TEGROUP_DTYPE_BF16> eight;
    enum { PIECES = TEGROUP_IMPL_REGISTERS_PIECES, BYTES = 2, EXTENT = TEGROUP_IMPL_QUANTIZE_TILE };
    enum { BITS = CODE == TEGROUP_DTYPE_F4E2M1 ? 4 : 8 };
    enum { ALL = LANES == TEGROUP_IMPL_REGISTERS_ALL, LOG = LANES >= 16 ? 4 : LANES == 4 ? 2 : 1 };
    enum { SHIFT = LOG + 3, BLOCK = 1 << SHIFT };          /* of a block's values */
    enum { SCALES = LANES < PIECES ? PIECES / LANES : 1 }; /* scales of rows that a lane finds */
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    uint4 *const turned; /* TILE: room for codes; else, where strips collect, for amax of columns */
    const int32_t lane;
    const int32_t in_row, beside; /* logarithms of the pieces that a warp has of a row, and of the warps that
                                           share the row */
    const int32_t first;          /* the thread's column */
    int64_t row0, row, col0;      /* the work's first, and the thread's, in the part */
    int32_t rows, cols;           /* that are there: below `row`, and of the work */
    uint32_t present;             /* bit k: piece k is there */
    bool edge;                    /* the work is one of the part's last, below or beside */
    eight x[PIECES];

    __device__ __forceinline__ tegroup_impl_quantize_registers(const tegroup_impl_quantize_launch &c,
                                                               tegroup_impl_quantize_shared &s, uint4 *t)
        : call(c), shared(s), turned(t), lane((int32_t)threadIdx.x % 32),
          in_row(min(c.across_shift, (int32_t)TEGROUP_IMPL_QUANTIZE_STRIP) - 8),
          beside(max(0, c.across_shift - (int32_t)TEGROUP_IMPL_QUANTIZE_STRIP)),
          first(TILE ? lane % 16 * 8
                     : (((int32_t)threadIdx.x / 32 & ((1 << beside) - 1)) << TEGROUP_IMPL_QUANTIZE_STRIP) + lane * 8) {}

    __device__ __forceinline__ int32_t down(int32_t piece) const { return TILE ? piece : piece >> in_row; }
    __device__ __forceinline__ int32_t at(int32_t piece) const { /* its column behind the thread's first */
        return TILE ? 0 : (piece & ((1 << in_row) - 1)) * 256;
    }
    __device__ __forceinline__ bool there(int32_t piece) const { return present >> piece & 1; }
    __device__ __forceinline__ int64_t of_group(int64_t r) const { return shared.part * shared.part_rows + r; }
    __device__ __forceinline__ bool writes(int copy) const {
        return (call.copies >> copy & 1) != 0 && shared.copies[copy].data;
    }
    __device__ __forceinline__ tegroup_block_scale scale_of(float amax) const {
        const tegroup_dtype code = (tegroup_dtype)CODE;
        const tegroup_scale_rule usual = tegroup_impl_usual_rule(LANES, BITS);
        if (!ALL && CODE != TEGROUP_DTYPE_F8E5M2 && call.usual)
            return tegroup_impl_scale_block(&usual, code,
                                            LANES == 16  ? TEGROUP_DTYPE_F32
                                            : LANES == 2 ? TEGROUP_DTYPE_F8E4M3
                                                         : TEGROUP_DTYPE_F8E8M0,
                                            amax, shared.global);
        return tegroup_impl_scale_block(&call.desc.rule, code, call.scale_dtype, amax, shared.global);
    }

    /* Where the k-th piece is; steps: those of the launch. */
    static __device__ __forceinline__ uint64_t piece_at(const char *from, const int64_t *steps, int32_t k) {
        return (uint64_t)from + (k & 4 ? steps[2] : 0) + (k & 2 ? steps[1] : 0) + (k & 1 ? steps[0] : 0);
    }

    /* Values or zeros, without a branch. The compiler cannot see that an address is one of global memory. */
    static __device__ __forceinline__ uint4 read(bool wanted, uint64_t from) {
        uint4 v;
        asm("{.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
            "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];}\n"
            : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
            : "l"(from), "r"((int)wanted));
        return v;
    }
    static __device__ __forceinline__ uint4 read_half(bool wanted, uint64_t from) {
        uint4 v;
        v.z = v.w = 0;
        asm("{.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
            "@p ld.global.v2.b32 {%0, %1}, [%2];}\n"
            : "=&r"(v.x), "=&r"(v.y)
            : "l"(from), "r"((int)wanted));
        return v;
    }
    /* Whether works are tiles of gates and of their ups. */
    __device__ __forceinline__ bool paired() const { return FROM == TEGROUP_IMPL_FROM_GRADIENT && call.paired; }
    /* The columns of a tile, or of a strip. */
    __device__ __forceinline__ int32_t across() const { return TILE ? (int32_t)EXTENT : 1 << call.across_shift; }
    __device__ __forceinline__ void find_edge() {
        edge = shared.part_rows - row0 <= 1 << call.down_shift || shared.cols - col0 <= across();
    }
    __device__ __forceinline__ void load(int64_t at_row, int64_t at_col) {
        row0 = at_row, col0 = paired() ? at_col / 2 : at_col;
        const int32_t row_of_work =
            TILE ? (int32_t)threadIdx.x / 16 * 8 : (int32_t)threadIdx.x / 32 >> beside << (3 - in_row);
        row = row0 + row_of_work;
        rows = (int32_t)tegroup_impl_min(PIECES, shared.part_rows - row);
        cols = (int32_t)tegroup_impl_min(across(), shared.cols - col0);
        find_edge();
        present = (1 << PIECES) - 1;
        if (edge) {
            present = 0;
#pragma unroll
            for (int32_t k = 0; k < PIECES; k++) present |= (uint32_t)(down(k) < rows && at(k) + first < cols) << k;
        }
        fill(tegroup_impl_values_from<FROM>());
    }
    /* Rows from the thread's first one on, by lanes: which row of input each is, or -1. Slots are 31 bits here, so that
     * nothing is divided by a function. */
    __device__ __forceinline__ int32_t picked() const {
        const tegroup_gather &gather = call.desc.gather_input;
        const int64_t mine = row + lane % PIECES;
        const uint32_t slots = max(1u, (uint32_t)gather.slots);
        if (mine >= shared.part_rows) return -1;
        const int64_t slot = gather.slot_of_row[shared.in.row0 + of_group(mine)];
        return tegroup_impl_within(slot, gather.rows * slots) ? (int32_t)((uint32_t)slot / slots) : -1;
    }
    /* A piece from the row of these that lies so far on from `from`, or zeros. */
    __device__ __forceinline__ void read_row(int32_t rows_on, const char *from, int32_t k) {
        const int32_t r = __shfl_sync(0xffffffffu, rows_on, (lane & 16) | down(k));
        x[k].raw[0] = read(there(k) && r >= 0, (uint64_t)from + (uint64_t)(uint32_t)r * (uint32_t)(call.in_ld * BYTES)
                                                   + (uint64_t)at(k) * BYTES);
    }
    __device__ __forceinline__ void fill(tegroup_impl_values_from<TEGROUP_IMPL_FROM_INPUT>) {
        const bool gathers = call.desc.gather_input.rows > 0;
        const char *from = shared.in.base + (col0 + first) * BYTES;
        if (!TILE || !gathers) from += (shared.in.first + of_group(row) * call.in_ld) * BYTES;
        const int32_t rows_on = TILE && gathers ? picked() : lane % PIECES;
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++)
            if (TILE) read_row(rows_on, from, k);
            else x[k].raw[0] = read(there(k), piece_at(from, call.in_steps, k));
    }
    __device__ __forceinline__ void fill(tegroup_impl_values_from<TEGROUP_IMPL_FROM_GATHERED>) {
        const char *const from = shared.in.base + (col0 + first) * BYTES;
        const int32_t rows_on = picked();
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) read_row(rows_on, from, k);
    }
    /* Where a thread keeps the gradients of ups, while the gates' tile is encoded. */
    static __device__ __forceinline__ uint4 *kept() { return (uint4 *)tegroup_impl_quantize_memory() + threadIdx.x; }
    /* Goes on to the tile of ups. */
    __device__ __forceinline__ void take_ups() {
        col0 += shared.cols / 2;
        find_edge();
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) x[k].raw[0] = kept()[k * TEGROUP_IMPL_QUANTIZE_THREADS];
    }
#if !defined(TEGROUP_NO_ACTIVATION)
    /* What an activation makes of the rows of a tile: of a gradient in pairs both tiles, that of ups kept in shared
     * memory. Where halves do not begin at blocks a tile is of gates, of ups, or of some of each, and what both need is
     * read again, then from L2. BATCH rows are under way at a time, in a loop that is not unrolled: each kind has its
     * own, and they would be too much code. */
    template <tegroup_activation KIND, int PART> __device__ __forceinline__ void make_rows() {
        constexpr bool GRADIENT = FROM == TEGROUP_IMPL_FROM_GRADIENT, PAIRS = PART == TEGROUP_IMPL_OF_PAIRS;
        constexpr int BATCH = 2;
        const tegroup_quantize_desc &desc = call.desc;
        const int64_t gates = GRADIENT ? shared.cols / 2 : shared.cols, r = of_group(row),
                      gate = col0 + first - (PART == TEGROUP_IMPL_OF_UPS ? gates : 0);
        const int64_t in_col = PAIRS && !GRADIENT ? 2 * gate : gate, dy_col = PAIRS ? gate / 2 : gate;
        const uint64_t further = PAIRS ? 16 : (uint64_t)gates * BYTES, step = (uint64_t)shared.in.ld * BYTES,
                       step_dy = (uint64_t)shared.dy.ld * BYTES;
        uint64_t from = (uint64_t)(shared.in.base + (shared.in.first + r * shared.in.ld + in_col) * BYTES),
                 dy = (uint64_t)(shared.dy.base + (shared.dy.first + r * shared.dy.ld + dy_col) * BYTES);
#pragma unroll 1
        for (int32_t k = 0; k < PIECES; k += BATCH, from += BATCH * step, dy += BATCH * step_dy) {
            uint4 gate_of[BATCH], up_of[BATCH], dy_of[BATCH];
            float scale[BATCH];
#pragma unroll
            for (int32_t i = 0; i < BATCH; i++) {
                const bool here = there(k + i);
                gate_of[i] = read(here, from + i * step);
                up_of[i] = PAIRS && GRADIENT ? gate_of[i] : read(here, from + i * step + further);
                if (GRADIENT) dy_of[i] = PAIRS ? read_half(here, dy + i * step_dy) : read(here, dy + i * step_dy);
                else dy_of[i] = gate_of[i];
                scale[i] = here ? tegroup_impl_weight<float>(desc.row_scale, shared.in.row0 + r + k + i, 0) : 0.0f;
            }
#pragma unroll
            for (int32_t i = 0; i < PIECES - BATCH; i++) x[i] = x[i + BATCH];
#pragma unroll
            for (int32_t i = 0; i < BATCH; i++) {
                x[PIECES - BATCH + i].raw[0] = tegroup_impl_gated_eight<KIND, GRADIENT, PART>(
                    (float)desc.alpha, (float)desc.limit, scale[i], gate_of[i], up_of[i], dy_of[i]);
                if (PART == TEGROUP_IMPL_OF_BOTH) kept()[(k + i) * TEGROUP_IMPL_QUANTIZE_THREADS] = up_of[i];
            }
        }
    }
    template <int PART> __device__ __forceinline__ void make_part() {
        switch (call.desc.activation) {
        case TEGROUP_ACTIVATION_SWIGLU_CLAMPED: make_rows<TEGROUP_ACTIVATION_SWIGLU_CLAMPED, PART>(); break;
        case TEGROUP_ACTIVATION_SWIGLU_LIMITED: make_rows<TEGROUP_ACTIVATION_SWIGLU_LIMITED, PART>(); break;
        default: make_rows<TEGROUP_ACTIVATION_SWIGLU, PART>(); break;
        }
    }
    template <int SOURCE> __device__ __forceinline__ void fill(tegroup_impl_values_from<SOURCE>) {
        constexpr bool GRADIENT = FROM == TEGROUP_IMPL_FROM_GRADIENT;
        if (call.desc.interleaved) make_part<TEGROUP_IMPL_OF_PAIRS>();
        else if (paired()) make_part<GRADIENT ? TEGROUP_IMPL_OF_BOTH : TEGROUP_IMPL_OF_GATES>();
        else if (GRADIENT && col0 + first >= shared.cols / 2)
            make_part<GRADIENT ? TEGROUP_IMPL_OF_UPS : TEGROUP_IMPL_OF_GATES>();
        else make_part<TEGROUP_IMPL_OF_GATES>();
    }
#endif

    /* `most` and the magnitudes of all values, two in a word. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t most_of(uint32_t most) const {
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++)
            most = tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, SHOWS>::of_row(most, x[k]);
        return most;
    }

    /* The first of the pieces whose scales the lane finds. */
    __device__ __forceinline__ int32_t first_scaled() const { return lane % LANES * SCALES % PIECES; }
    /* The largest magnitudes of the block in these. All lanes find those of every pair of pieces, and each keeps the
     * pairs that hold its own, of which a lane with one scale has half. */
    template <bool SHOWS> __device__ __forceinline__ void find_amax(float *amax) const {
        typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, SHOWS> magnitudes;
        uint32_t pairs[(SCALES + 1) / 2] = {0};
#pragma unroll
        for (int32_t k = 0; k < PIECES; k += 2) {
            uint32_t pair; /* of pieces k and k + 1 */
            magnitudes::of_pair(x[k], x[k + 1], &pair);
            magnitudes::of_lanes(LOG, &pair);
            if (first_scaled() / SCALES == k / SCALES || (SCALES == 1 && first_scaled() / 2 == k / 2))
                pairs[k % SCALES / 2] = pair;
        }
#pragma unroll
        for (int32_t j = 0; j < SCALES; j++)
            amax[j] = __uint_as_float(magnitudes::at(&pairs[j / 2], SCALES == 1 ? lane & 1 : j & 1));
    }
    __device__ __forceinline__ void store_scale(int columnwise, int64_t outer, int64_t inner, uint32_t bits) const {
        const tegroup_impl_copy &copy = shared.copies[columnwise];
        const int64_t i = tegroup_impl_scale_of_block(&copy.grid, shared.part, outer, inner);
        if (LANES < 16 || call.scale_bits == 8) ((uint8_t *)copy.scales)[i] = (uint8_t)bits;
        else if (call.scale_bits == 16) ((uint16_t *)copy.scales)[i] = (uint16_t)bits;
        else ((uint32_t *)copy.scales)[i] = bits;
    }
    /* The scales of the rows' blocks, each to where it is stored, and the lane's factors. */
    __device__ __forceinline__ void scale_rows(float *factor) const {
        float amax[SCALES];
        if (call.desc.rule.nan_shows) find_amax<true>(amax);
        else find_amax<false>(amax);
#pragma unroll
        for (int32_t j = 0; j < SCALES; j++) {
            const tegroup_block_scale block = scale_of(amax[j]);
            const int32_t piece = first_scaled() + j, col = at(piece) + first / BLOCK * BLOCK;
            factor[j] = block.multiplier;
            if (down(piece) < rows && col < cols && lane % LANES < PIECES)
                store_scale(TEGROUP_IMPL_ROWWISE, row + down(piece), (col0 + col) >> SHIFT, block.bits);
        }
    }

    /* Stores eight codes or nothing, without a branch, so that pieces are encoded beside each other. */
    __device__ __forceinline__ static void store(bool wanted, uint64_t to, uint2 codes) {
        if (BITS == 8)
            asm volatile(
                "{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.v2.b32 [%1], {%2, %3};}\n" ::"r"((int)wanted),
                "l"(to), "r"(codes.x), "r"(codes.y)
                : "memory");
        else
            asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.global.b32 [%1], %2;}\n" ::"r"((int)wanted),
                         "l"(to), "r"(codes.x)
                         : "memory");
    }
    __device__ __forceinline__ void encode_rows(const float *factor) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        char *const to = copy.data + tegroup_impl_element_of(&copy, of_group(row), col0 + first) * BITS / 8;
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) {
            const float by = ALL ? factor[0] : __shfl_sync(0xffffffffu, factor[k % SCALES], k / SCALES, LANES);
            float y[8];
            x[k].unpack(y);
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = tegroup_impl_product_f32(y[j], by);
            store(there(k), piece_at(to, call.out_steps, k), tegroup_impl_eight_codes<BITS>((tegroup_dtype)CODE, y));
        }
    }

    /* Finds the one scale that 2^warps_shift neighbouring warps share, in each of their threads, and returns its
     * factor. `turn` changes with each work, so that no warp writes where another one still reads. */
    __device__ __forceinline__ float scale_together(int32_t warps_shift, int32_t turn) const {
        typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, true> magnitudes;
        const int32_t warp = (int32_t)threadIdx.x / 32, leader = warp >> warps_shift << warps_shift;
        uint32_t *const table = shared.amax[0] + turn % 2 * (TEGROUP_IMPL_QUANTIZE_THREADS / 32),
                        two = call.desc.rule.nan_shows ? most_of<true>(0) : most_of<false>(0);
        uint32_t most = max(magnitudes::at(&two, 0), magnitudes::at(&two, 1));
        for (int step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
        if (lane == 0) table[warp] = most;
        __syncthreads();
        for (int w = 0; w < 1 << warps_shift; w++) most = max(most, table[leader + w]);
        const tegroup_block_scale block = scale_of(__uint_as_float(most));
        for (int c = 0; c < (TILE ? TEGROUP_IMPL_COPIES : 1) && warp == leader && lane == 0 && rows > 0; c++)
            if (writes(c))
                store_scale(c, (c ? col0 : row) >> shared.copies[c].grid.outer_shift,
                            (c ? row : col0) >> shared.copies[c].grid.inner_shift, block.bits);
        return block.multiplier;
    }

    /* The largest magnitudes of the columns of a warp's 16 rows to the table, two columns in a word. */
    template <bool SHOWS> __device__ __forceinline__ void collect_columns() const {
        typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, SHOWS> magnitudes;
        uint32_t most[4] = {0, 0, 0, 0};
#pragma unroll
        for (int32_t k = 0; k < PIECES; k += 2) magnitudes::of_columns(x + k, most);
#pragma unroll
        for (int j = 0; j < 4; j++) most[j] = magnitudes::larger(most[j], __shfl_xor_sync(0xffffffffu, most[j], 16));
        if (lane < 16)
            ((uint4 *)shared.amax[TEGROUP_IMPL_COLUMNWISE])[threadIdx.x / 32 * 16 + lane] =
                make_uint4(most[0], most[1], most[2], most[3]);
    }
    /* From that table to that of factors, [block][column], and to where scales are stored. */
    __device__ __forceinline__ void scale_columns() const {
        const int32_t c = (int32_t)threadIdx.x % EXTENT;
#pragma unroll
        for (int32_t i = (int32_t)threadIdx.x / EXTENT; i < EXTENT / BLOCK;
             i += TEGROUP_IMPL_QUANTIZE_THREADS / EXTENT) {
            const uint16_t *of = (const uint16_t *)shared.amax[TEGROUP_IMPL_COLUMNWISE] + i * BLOCK / 16 * EXTENT + c;
            uint32_t most = 0;
#pragma unroll
            for (int32_t band = 0; band < BLOCK / 16; band++) most = max(most, of[band * EXTENT] & 0x7fffu);
            const tegroup_block_scale block = scale_of(__uint_as_float(most << 16));
            shared.factor[TEGROUP_IMPL_COLUMNWISE][i * EXTENT + c] = block.multiplier;
            if (c < cols && row0 + i * BLOCK < shared.part_rows)
                store_scale(TEGROUP_IMPL_COLUMNWISE, col0 + c, (row0 >> SHIFT) + i, block.bits);
        }
    }
    /* The factors of the thread's columns: one of all, or those of the table. */
    __device__ __forceinline__ void factors_of_columns(bool one, float of_all, float *factor) const {
        const float4 *table = (const float4 *)(shared.factor[TEGROUP_IMPL_COLUMNWISE]
                                               + ((int32_t)threadIdx.x / 16 * 8 >> SHIFT) * EXTENT + first);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float4 four = one ? make_float4(of_all, of_all, of_all, of_all) : table[i];
            factor[4 * i] = four.x, factor[4 * i + 1] = four.y, factor[4 * i + 2] = four.z, factor[4 * i + 3] = four.w;
        }
    }
    __device__ __forceinline__ void encode_columns(const float *factor) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        char *const to = copy.data + tegroup_impl_element_of(&copy, of_group(row), col0 + first) * BITS / 8;
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) {
            float y[8];
            x[k].unpack(y);
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] = tegroup_impl_product_f32(y[j], factor[j]);
            store(there(k), piece_at(to, call.out_steps, k), tegroup_impl_eight_codes<BITS>((tegroup_dtype)CODE, y));
        }
    }

    /* Eight rows of each column to shared memory, in an order by which eight columns it is of, so that neither columns
     * beside each other nor those of one whole column meet in a bank. Rows that are not there are zeros, no NaN of a
     * factor. */
    __device__ __forceinline__ void turn(const float *factor) const {
        const int32_t octet = first / 8, rank = (int32_t)threadIdx.x / 16, left = max(0, rows) * BITS;
        const uint2 mask = make_uint2(left < 32 ? (1u << left) - 1 : ~0u, left < 32   ? 0
                                                                          : left < 64 ? (1u << (left - 32)) - 1
                                                                                      : ~0u);
#pragma unroll
        for (int32_t j = 0; j < 8; j++) {
            float y[8];
#pragma unroll
            for (int32_t k = 0; k < PIECES; k++) {
                const uint4 v = x[k].raw[0];
                const uint32_t word = j / 2 == 0 ? v.x : j / 2 == 1 ? v.y : j / 2 == 2 ? v.z : v.w;
                y[k] = tegroup_impl_product_f32(
                    j % 2 ? tegroup_impl_high_half(word, true) : tegroup_impl_low_half(word, true), factor[j]);
            }
            uint2 codes = tegroup_impl_eight_codes<BITS>((tegroup_dtype)CODE, y);
            codes.x &= mask.x, codes.y &= mask.y;
            if (BITS == 8) ((uint2 *)turned)[(first + j) * 16 + (rank ^ (octet % 8 * 2 + octet / 8))] = codes;
            else ((uint32_t *)turned)[(first + j) * 16 + (rank ^ octet)] = codes.x;
        }
    }
    /* What is in shared memory, to the columns of the transposed copy, sixteen rows at a time, with the zeros that pad
     * them. */
    __device__ __forceinline__ void store_turned() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int32_t piece = (int32_t)threadIdx.x % 8;
        char *const to = copy.data + tegroup_impl_element_of(&copy, row0 + piece * 16, col0) * BITS / 8;
        if (row0 + piece * 16 >= copy.at.col_stride) return;
#pragma unroll
        for (int32_t c = (int32_t)threadIdx.x / 8; c < EXTENT; c += TEGROUP_IMPL_QUANTIZE_THREADS / 8) {
            char *const column = to + c * copy.at.col_stride * BITS / 8;
            const int32_t octet = c / 8;
            if (c >= cols) return;
            if (BITS == 8) {
                const uint4 v = turned[c * 8 + (piece ^ (octet % 8))];
                *(uint4 *)column = octet / 8 ? make_uint4(v.z, v.w, v.x, v.y) : v;
            } else {
                const uint32_t *const words = (const uint32_t *)turned + c * 16;
                *(uint2 *)column = make_uint2(words[(piece * 2) ^ octet], words[(piece * 2 + 1) ^ octet]);
            }
        }
    }

    /* Scaling ROW finds amax of columns on the way of strips through a group's rows: a block keeps what it has seen in
     * `turned`, [warps that share no row][column of a row], two columns in a word. */
    __device__ __forceinline__ bool collects() const {
        return ALL && !TILE && (call.copies >> TEGROUP_IMPL_COLUMNWISE & 1) != 0;
    }
    template <bool SHOWS> __device__ __forceinline__ void collect_strip() const {
        typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, SHOWS> magnitudes;
        const int32_t width = 1 << (TEGROUP_IMPL_QUANTIZE_STRIP + beside);
        uint4 *const table = turned + (((int32_t)threadIdx.x / 32 >> beside) * width + first) / 8;
#pragma unroll
        for (int32_t k = 0; k < PIECES; k++) {
            uint4 *const entry = table + at(k) / 8;
            const uint4 was = *entry, now = x[k].raw[0];
            *entry = make_uint4(magnitudes::larger(was.x, now.x), magnitudes::larger(was.y, now.y),
                                magnitudes::larger(was.z, now.z), magnitudes::larger(was.w, now.w));
        }
    }
    /* What a block has seen of a part goes where the part's scales will be; or, before the first part, nowhere. Zeros
     * are left. All warps meet. */
    __device__ __forceinline__ void pass_columns(bool seen) const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int32_t width = 1 << (TEGROUP_IMPL_QUANTIZE_STRIP + beside), warps = TEGROUP_IMPL_QUANTIZE_THREADS / 32;
        __syncthreads();
        for (int32_t c = (int32_t)threadIdx.x; c < width; c += TEGROUP_IMPL_QUANTIZE_THREADS) {
            uint32_t most = 0;
            for (int32_t w = 0; w < warps >> beside; w++) {
                uint16_t *const entry = (uint16_t *)turned + w * width + c;
                most = max(most, *entry & 0x7fffu);
                *entry = 0;
            }
            if (seen && most > 0 && c < shared.cols && copy.data)
                atomicMax((uint32_t *)copy.scales + tegroup_impl_scale_of_block(&copy.grid, shared.part, c, 0),
                          most << 16);
        }
    }
    /* From there to the table of factors. The last tile of these columns to have read what is there stores scales in
     * its place: amax is of BF16, and the lower half of the first column's counts the tiles. */
    __device__ __forceinline__ void take_columns() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int32_t c = (int32_t)threadIdx.x, tiles = (int32_t)tegroup_impl_works_down(call, shared.part_rows);
        uint32_t *const at =
            (uint32_t *)copy.scales + tegroup_impl_scale_of_block(&copy.grid, shared.part, col0 + c, 0);
        const bool mine = c < EXTENT && c < cols;
        const tegroup_block_scale block =
            scale_of(mine ? __uint_as_float(*(volatile uint32_t *)at & 0xffff0000u) : 0.0f);
        if (c < EXTENT) shared.factor[TEGROUP_IMPL_COLUMNWISE][c] = block.multiplier;
        __syncthreads();
        if (c == 0) {
            __threadfence(); /* what was read has been, before it is said */
            shared.amax[0][0] = (atomicAdd(at, 1u) & 0xffffu) + 1;
        }
        __syncthreads();
        if (mine && (int32_t)shared.amax[0][0] == tiles) *at = block.bits;
    }

    /* In a strip warps wait for each other only where rows have one scale, for its amax. */
    __device__ __forceinline__ void encode_strip(int32_t turn_of_work) const {
        float factor[SCALES];
        if (collects()) {
            if (call.desc.rule.nan_shows) collect_strip<true>();
            else collect_strip<false>();
        }
        if (!writes(TEGROUP_IMPL_ROWWISE) || (!ALL && rows <= 0)) return;
        if (!ALL) scale_rows(factor);
        else if (tegroup_impl_scaled_as_one(&call.facts)) factor[0] = shared.factor[0][0];
        else factor[0] = scale_together(beside, turn_of_work);
        encode_rows(factor);
    }
    __device__ __forceinline__ void encode_tile(int32_t turn_of_work) const {
        const bool whole = tegroup_impl_scaled_as_one(&call.facts), rowwise = writes(TEGROUP_IMPL_ROWWISE),
                   columnwise = writes(TEGROUP_IMPL_COLUMNWISE),
                   lines = ALL && tegroup_impl_scaled_by_line(&call.facts), one = ALL && !lines;
        float factor[SCALES], of_column[8];
        factor[0] = shared.factor[0][0];
        if (one && !whole) factor[0] = scale_together(3, turn_of_work);
        if (!ALL && rowwise) scale_rows(factor);
        if (!ALL && columnwise) {
            if (call.desc.rule.nan_shows) collect_columns<true>();
            else collect_columns<false>();
        }
        __syncthreads(); /* what the tile before left in shared memory has been read */
        if (!ALL && columnwise) scale_columns();
        if (lines && columnwise) take_columns();
        if (rowwise) encode_rows(factor);
        if (!columnwise) return;
        if (!ALL) __syncthreads();
        factors_of_columns(one, factor[0], of_column);
        if (!tegroup_impl_transposed(&call.desc.output, TEGROUP_IMPL_COLUMNWISE)) {
            encode_columns(of_column);
            return;
        }
        turn(of_column);
        __syncthreads();
        store_turned();
    }

    /* Zeros for what pads the scales of a copy behind a part's last rows, and behind its last columns: by all
     * threads, of a work at the edge. */
    __device__ __forceinline__ void pad(int columnwise) const {
        const tegroup_impl_scale_grid &grid = shared.copies[columnwise].grid;
        const int32_t down = 1 << call.down_shift, across = this->across();
        const int64_t left = shared.part_rows - row0, right = shared.cols - col0;
        const int64_t outer_left = columnwise ? right : left, inner_left = columnwise ? left : right,
                      outer_most = columnwise ? across : down, inner_most = columnwise ? down : across,
                      outer0 = (columnwise ? col0 : row0) >> grid.outer_shift,
                      inner0 = (columnwise ? row0 : col0) >> grid.inner_shift,
                      outers = tegroup_impl_blocks_of(tegroup_impl_min(outer_left, outer_most), grid.outer_shift),
                      inners = tegroup_impl_blocks_of(tegroup_impl_min(inner_left, inner_most), grid.inner_shift),
                      outer_end = outer_left <= outer_most ? grid.outer_extent - outer0 : outers,
                      inner_end = inner_left <= inner_most ? grid.inner_extent - inner0 : inners;
        if (outer_end <= outers && inner_end <= inners) return;
#pragma unroll 1
        for (int64_t o = threadIdx.x / 32; o < outer_end; o += blockDim.x / 32)
#pragma unroll 1
            for (int64_t i = (o < outers ? inners : 0) + lane; i < inner_end; i += 32)
                store_scale(columnwise, outer0 + o, inner0 + i, 0);
    }
};

template <int LANES, int CODE, bool TILE, int FROM = TEGROUP_IMPL_FROM_INPUT>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, FROM == TEGROUP_IMPL_FROM_GRADIENT
                                                                            ? TEGROUP_IMPL_GRADIENT_RESIDENT
                                                                            : TEGROUP_IMPL_REGISTERS_RESIDENT)
    tegroup_impl_quantize_registers_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    __shared__ uint4 turned[TILE ? TEGROUP_IMPL_QUANTIZE_STAGED / 16 : 1];
    constexpr bool NUMBERS = LANES == TEGROUP_IMPL_REGISTERS_ALL || LANES == 2; /* TENSOR, and NVFP4's global scales */
    tegroup_impl_quantize_walk<NUMBERS> walk(call, shared);
    tegroup_impl_quantize_registers<LANES, CODE, TILE, FROM> part(
        call, shared, TILE ? turned : (uint4 *)tegroup_impl_quantize_memory());
    if (NUMBERS) tegroup_impl_quantize_store_groups(call, walk.fits);
    int32_t turn = 0;
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work), turn++) {
        int64_t row0, col0;
        if (work >= walk.part_end) {
            if (part.collects()) part.pass_columns(walk.part_end > 0);
            walk.meet(work);
        }
        walk.place(work, &row0, &col0);
        part.load(row0, col0);
        for (int tiles = part.paired() ? 2 : 1; tiles > 0; tiles--) {
            if (TILE) part.encode_tile(turn);
            else part.encode_strip(turn);
#pragma unroll 1
            for (int c = 0; c < (TILE ? TEGROUP_IMPL_COPIES : 1); c++)
                if (part.edge && !tegroup_impl_scaled_as_one(&call.facts) && part.writes(c)) part.pad(c);
            if (tiles == 2) part.take_ups();
        }
    }
    if (part.collects() && walk.part_end > 0) part.pass_columns(true);
}

/* Zeros where the scales of scaling ROW's columns will be, for their amax. A work is 2,048 columns of a part. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS)
    tegroup_impl_quantize_clear_columns_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<false> walk(call, shared);
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t row0, col0;
        if (work >= walk.part_end) walk.meet(work);
        walk.place(work, &row0, &col0);
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_COLUMNWISE];
        const int64_t end = tegroup_impl_min(shared.cols, col0 + (1 << TEGROUP_IMPL_QUANTIZE_STRIP));
        if (!copy.data) continue;
        for (int64_t c = col0 + threadIdx.x; c < end; c += TEGROUP_IMPL_QUANTIZE_THREADS)
            ((uint32_t *)copy.scales)[tegroup_impl_scale_of_block(&copy.grid, shared.part, c, 0)] = 0;
    }
}

/* The groups' amax. */
template <int FROM>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_REGISTERS_RESIDENT)
    tegroup_impl_quantize_amax_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    typedef tegroup_impl_magnitudes<TEGROUP_DTYPE_BF16, true> magnitudes;
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<false> walk(call, shared);
    tegroup_impl_quantize_registers<TEGROUP_IMPL_REGISTERS_ALL, TEGROUP_DTYPE_UNSET, false, FROM> part(call, shared,
                                                                                                       NULL);
    uint32_t two = 0; /* largest magnitudes in a word */
    int32_t g = -1;
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t row0, col0;
        if (work >= walk.part_end) {
            if (g >= 0) tegroup_impl_raise(call.desc.output, g, max(magnitudes::at(&two, 0), magnitudes::at(&two, 1)));
            two = 0;
            walk.meet(work);
            g = shared.g;
        }
        walk.place(work, &row0, &col0);
        part.load(row0, col0);
        two = call.desc.rule.nan_shows ? part.most_of<true>(two) : part.most_of<false>(two);
    }
    if (g >= 0) tegroup_impl_raise(call.desc.output, g, max(magnitudes::at(&two, 0), magnitudes::at(&two, 1)));
}

/* ==== [35] Quantise: which calls go in registers (src/layer/quantize_registers_calls_cuda.h) ==== */

/* Whether a tensor can be read piece by piece: rows at multiples of 16 bytes, of whole pieces. */
static inline int tegroup_impl_in_pieces(const tegroup_tensor *t) {
    return t->dtype == TEGROUP_DTYPE_BF16 && !tegroup_impl_listed(t) && tegroup_impl_aligned(t->data, 16)
           && t->shape.cols % TEGROUP_IMPL_REGISTERS_PIECES == 0;
}

/* Whether a call's values are read into registers as they lie, or as an index picks their rows. */
static inline int tegroup_impl_reads_in_registers(const tegroup_impl_quantize_launch *call) {
    const tegroup_gather *gather = &call->desc.gather_input;
    return call->desc.activation == TEGROUP_ACTIVATION_UNSET && call->vectors
           && tegroup_impl_in_pieces(&call->desc.input) && call->in_ld <= INT32_MAX / 2
           && tegroup_impl_mul(gather->rows, tegroup_impl_max(1, gather->slots)) <= INT32_MAX;
}

/* Whether values are made in registers. */
static inline int tegroup_impl_makes_in_registers(const tegroup_impl_quantize_launch *call) {
    const tegroup_quantize_desc *desc = &call->desc;
    const int gradient = desc->grad_output.dtype != TEGROUP_DTYPE_UNSET;
#if defined(TEGROUP_NO_BACKWARD)
    if (gradient) return 0;
#endif
    return tegroup_impl_makes_at_once(desc->activation, desc->input.dtype, gradient, &desc->output, &desc->rule)
           && call->vectors && tegroup_impl_in_pieces(&desc->input)
           && (!gradient || tegroup_impl_in_pieces(&desc->grad_output))
           && desc->output.shape.cols % TEGROUP_IMPL_REGISTERS_PIECES == 0;
}

/* Whether a call's values come to registers so, and its copies are written from there: eight codes of a row, or sixteen
 * of a column, at multiples of their own length. A column's codes of several parts need not lie so. */
static inline int tegroup_impl_quantizes_in_registers(const tegroup_impl_quantize_launch *call) {
    const tegroup_tensor *out = &call->desc.output;
    const tegroup_scaling_facts *facts = &call->facts;
    const int turned = tegroup_impl_transposed(out, TEGROUP_IMPL_COLUMNWISE), bits = tegroup_impl_bits(out->dtype),
              rowwise = call->copies >> TEGROUP_IMPL_ROWWISE & 1, columnwise = call->copies >> TEGROUP_IMPL_COLUMNWISE;
    if (!tegroup_impl_reads_in_registers(call) && !tegroup_impl_makes_in_registers(call)) return 0;
    if (call->desc.rule.divide || call->raises || tegroup_impl_listed(out)) return 0;
    if (tegroup_impl_scaled_by_line(facts)
        && (out->shape.cols > 1 << TEGROUP_IMPL_REGISTERS_ROW
            || (columnwise && (call->scale_bits != 32 || out->shape.rows > TEGROUP_IMPL_REGISTERS_ROWS))))
        return 0;
    if (!tegroup_impl_scaled_as_one(facts) && facts->block_outer != 128 && facts->choice_outer != 1) return 0;
    if (columnwise && turned && (out->scale_parts > 1 || !tegroup_impl_aligned(out->columnwise_data, 16))) return 0;
    if (columnwise && !turned && !tegroup_impl_aligned(out->columnwise_data, (size_t)bits)) return 0;
    if (rowwise && !tegroup_impl_aligned(out->data, (size_t)bits)) return 0;
    return tegroup_impl_ld(out) % 8 == 0 && (out->shape.groups < 2 || tegroup_impl_group_stride(out) % 8 == 0);
}

/* Whether a gradient's works are tiles of gates and of their ups: where both begin at blocks. */
static inline int tegroup_impl_pairs_tiles(const tegroup_impl_quantize_launch *call) {
    return call->desc.grad_output.dtype != TEGROUP_DTYPE_UNSET && !call->desc.interleaved
           && call->desc.output.shape.cols % (2 * TEGROUP_IMPL_QUANTIZE_TILE) == 0;
}

/* ==== [36] Quantise: whole rows (src/layer/quantize_rows_cuda.h) ==== */

/* Rows that have a scale each, a few at a time: pieces of eight values, every THREADS-th of a row to a thread. They are
 * staged in shared memory, each thread's by itself, unless a row is too long for it: then they are read twice. */
template <int DTYPE> struct tegroup_impl_quantize_rows {
    typedef tegroup_impl_eight<DTYPE> eight;
    enum { THREADS = TEGROUP_IMPL_QUANTIZE_THREADS, WARPS = THREADS / 32, BYTES = eight::vectors::bytes };
    const tegroup_impl_quantize_launch &call;
    tegroup_impl_quantize_shared &shared;
    char *const memory;
    int32_t together, rows; /* rows that fit, at most; those at hand */
    int64_t row0, width;    /* width: of a staged row; 0 = none is */
    bool direct, vector;

    __device__ tegroup_impl_quantize_rows(const tegroup_impl_quantize_launch &c, tegroup_impl_quantize_shared &s,
                                          char *m)
        : call(c), shared(s), memory(m), together(1), rows(0), row0(0), width(0), direct(false), vector(false) {}

    __device__ __forceinline__ void meet() {
        width = tegroup_impl_align(shared.cols, 8);
        together = (int32_t)tegroup_impl_clamp(TEGROUP_IMPL_QUANTIZE_STAGED / width, 1, TEGROUP_IMPL_QUANTIZE_ROWS);
        if (width > TEGROUP_IMPL_QUANTIZE_STAGED) width = 0;
        direct = tegroup_impl_quantize_direct(call, shared);
        vector = call.vectors && ((uintptr_t)shared.in.base & 15) == 0;
    }
    __device__ __forceinline__ int64_t first() const { return shared.part * shared.part_rows + row0; }
    __device__ __forceinline__ const char *from(int32_t r, int64_t c) const {
        return shared.in.base + (shared.in.first + (first() + r) * shared.in.ld + c) * BYTES;
    }
    __device__ __forceinline__ char *staged(int32_t r, int64_t c) const { return memory + (r * width + c) * BYTES; }
    __device__ __forceinline__ int32_t left(int64_t c) const { return (int32_t)tegroup_impl_min(8, shared.cols - c); }

    __device__ __forceinline__ void load() const {
        for (int32_t r = 0; r < rows && width > 0; r++)
            for (int64_t c = 8 * threadIdx.x; c < shared.cols; c += 8 * THREADS) {
                if (direct && left(c) == 8) tegroup_impl_quantize_stage<DTYPE>(false, from(r, c), staged(r, c));
                else tegroup_impl_quantize_stage_each<DTYPE>(call, shared, first() + r, c, left(c), staged(r, c));
            }
        tegroup_impl_cp_commit();
        tegroup_impl_cp_wait<0>();
    }
    __device__ __forceinline__ void read(int32_t r, int64_t c, eight *x) const {
        if (width > 0) x->load_vectors(staged(r, c));
        else if (direct && left(c) == 8) x->load_vectors(from(r, c));
        else {
            eight slow; /* of its own, as the call wants an address, and registers have none */
            tegroup_impl_quantize_row_of<DTYPE>(call, shared, first() + r, c, left(c), vector, &slow);
            *x = slow;
        }
    }

    /* The rows' amax into a table, [row][warp]; returns the thread's. */
    template <bool SHOWS> __device__ __forceinline__ uint32_t collect() const {
        typedef tegroup_impl_magnitudes<DTYPE, SHOWS> magnitudes;
        uint32_t most = 0;
        for (int32_t r = 0; r < rows; r++) {
            uint32_t of_row[magnitudes::words] = {0};
#pragma unroll 4
            for (int64_t c = 8 * threadIdx.x; c < shared.cols; c += 8 * THREADS) {
                eight x;
                read(r, c, &x);
                of_row[0] = magnitudes::of_row(of_row[0], x);
            }
            uint32_t largest = magnitudes::largest(of_row);
            most = max(most, largest);
            for (int step = 16; step > 0; step /= 2)
                largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
            if (threadIdx.x % 32 == 0) shared.amax[0][r * WARPS + threadIdx.x / 32] = largest;
        }
        return most;
    }

    /* From that table to that of factors, and to where scales are stored; a thread has a row. */
    __device__ __forceinline__ void scales() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        const int32_t r = (int32_t)threadIdx.x;
        uint32_t most = 0;
        if (r >= rows) return;
        for (int32_t w = 0; w < WARPS; w++) most = max(most, shared.amax[0][r * WARPS + w]);
        const uint32_t bits = tegroup_impl_table_scale(call, shared, TEGROUP_IMPL_ROWWISE, r, __uint_as_float(most));
        if (copy.data)
            tegroup_impl_store_code(call.scale_dtype, copy.scales,
                                    tegroup_impl_scale_of_block(&copy.grid, shared.part, row0 + r, 0), bits);
    }

    __device__ __forceinline__ void encode() const {
        const tegroup_impl_copy &copy = shared.copies[TEGROUP_IMPL_ROWWISE];
        for (int32_t r = 0; r < rows && copy.data; r++) {
            const int64_t at = tegroup_impl_element_of(&copy, first() + r, 0);
            const float scale = shared.factor[0][r],
                        factor[8] = {scale, scale, scale, scale, scale, scale, scale, scale};
            const bool aligned = ((uintptr_t)(copy.data + at) & 7) == 0;
#pragma unroll 2
            for (int64_t c = 8 * threadIdx.x; c < shared.cols; c += 8 * THREADS) {
                eight x;
                float y[8];
                read(r, c, &x);
                x.unpack(y);
                tegroup_impl_quantize_store<8>(call, y, factor, copy.data, at + c, left(c), aligned && left(c) == 8);
            }
        }
    }
};

/* The rowwise copy of scaling ROW. A work is some rows. */
template <int DTYPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_QUANTIZE_THREADS, TEGROUP_IMPL_QUANTIZE_RESIDENT(DTYPE))
    tegroup_impl_quantize_rows_kernel(const __grid_constant__ tegroup_impl_quantize_launch call) {
    __shared__ tegroup_impl_quantize_shared shared;
    tegroup_impl_quantize_walk<true> walk(call, shared);
    tegroup_impl_quantize_rows<DTYPE> piece(call, shared, tegroup_impl_quantize_memory());
    uint32_t most = 0;
    int32_t g = -1;
    for (int64_t work = walk.begin; work < walk.end; work = walk.next(work)) {
        int64_t begin, col;
        if (work >= walk.part_end) {
            if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
            most = 0;
            walk.meet(work);
            piece.meet();
            g = shared.g;
        }
        walk.place(work, &begin, &col);
        const int64_t end = tegroup_impl_min(shared.part_rows, begin + TEGROUP_IMPL_QUANTIZE_ROWS);
        for (piece.row0 = begin; piece.row0 < end; piece.row0 += piece.together) {
            piece.rows = (int32_t)tegroup_impl_min(piece.together, end - piece.row0);
            piece.load();
            most =
                max(most, call.desc.rule.nan_shows ? piece.template collect<true>() : piece.template collect<false>());
            __syncthreads();
            piece.scales();
            __syncthreads();
            piece.encode();
        }
    }
    if (call.raises && g >= 0) tegroup_impl_raise(call.desc.output, g, most);
}

/* ==== [37] Quantise and dequantise: launches (src/layer/quantize_cuda.h) ==== */

/* Can rows of a plain tensor be read 16 bytes at a time, where its groups begin at multiples of 16? */
static inline int tegroup_impl_cuda_in_vectors(const tegroup_tensor *t) {
    const int64_t bytes = tegroup_impl_bits(t->dtype) / 8;
    return t->dtype == TEGROUP_DTYPE_UNSET
           || (!tegroup_impl_irregular(&t->shape) && tegroup_impl_ld(t) * bytes % 16 == 0
               && (tegroup_impl_ragged(&t->shape) || tegroup_impl_listed(t)
                   || tegroup_impl_group_stride(t) * bytes % 16 == 0));
}

/* Where a thread's pieces are: 2^in_row of them in a row, 256 columns apart, and the others in the rows below. */
static inline void tegroup_impl_cuda_quantize_pieces(tegroup_impl_quantize_launch *call, int32_t in_row) {
    const tegroup_tensor *tensors[2] = {&call->desc.input, &call->desc.output};
    int64_t *const steps[2] = {call->in_steps, call->out_steps};
    for (int i = 0; i < 6; i++)
        steps[i / 3][i % 3] =
            (i % 3 < in_row ? (int64_t)256 << i % 3 : tegroup_impl_ld(tensors[i / 3]) << (i % 3 - in_row))
            * tegroup_impl_bits(tensors[i / 3]->dtype) / 8;
}

/* Strips of rows for the kernels that read in registers: as wide as said above, or as a row that has one scale; and as
 * high as makes 2,048 values a warp. */
static inline tegroup_status tegroup_impl_cuda_quantize_strips(tegroup_impl_quantize_launch *call, unsigned *blocks,
                                                               tegroup_error *error) {
    const int64_t cols = call->desc.output.shape.cols;
    int32_t across = tegroup_impl_cuda_strip_shift(cols);
    if (call->copies && tegroup_impl_scaled_by_line(&call->facts))
        for (across = TEGROUP_IMPL_QUANTIZE_STRIP; cols > (int64_t)1 << across; across++) {}
    tegroup_impl_cuda_quantize_pieces(call, (int32_t)tegroup_impl_min(across, TEGROUP_IMPL_QUANTIZE_STRIP) - 8);
    return tegroup_impl_cuda_quantize_blocks(
        call, tegroup_impl_shift_of(TEGROUP_IMPL_QUANTIZE_ROWS) + TEGROUP_IMPL_QUANTIZE_STRIP - across, across,
        TEGROUP_IMPL_REGISTERS_RESIDENT, blocks, error);
}

/* A tile of values, in bytes. */
static inline size_t tegroup_impl_cuda_staged(const tegroup_tensor *values) {
    return (size_t)(TEGROUP_IMPL_QUANTIZE_STAGED * tegroup_impl_bits(values->dtype) / 8);
}

template <int CODE, bool TILE, int FROM>
static inline tegroup_impl_quantize_kernel_type *tegroup_impl_registers_kernel_of_8_bits(
    const tegroup_impl_quantize_launch *call) {
    if (call->facts.block_inner == 0 || call->facts.block_outer > 1)
        return tegroup_impl_quantize_registers_kernel<TEGROUP_IMPL_REGISTERS_ALL, CODE, TILE, FROM>;
    return call->facts.block_inner == 128 ? tegroup_impl_quantize_registers_kernel<16, CODE, TILE, FROM>
                                          : tegroup_impl_quantize_registers_kernel<4, CODE, TILE, FROM>;
}
template <bool TILE, int FROM>
static inline tegroup_impl_quantize_kernel_type *tegroup_impl_registers_kernel_of(
    const tegroup_impl_quantize_launch *call) {
    switch (call->desc.output.dtype) {
    case TEGROUP_DTYPE_F4E2M1:
        return call->facts.block_inner == 16
                   ? tegroup_impl_quantize_registers_kernel<2, TEGROUP_DTYPE_F4E2M1, TILE, FROM>
                   : tegroup_impl_quantize_registers_kernel<4, TEGROUP_DTYPE_F4E2M1, TILE, FROM>;
    case TEGROUP_DTYPE_F8E5M2:
        if (FROM == TEGROUP_IMPL_FROM_GATHERED) /* where a scale is not of a block */
            return tegroup_impl_quantize_registers_kernel<TEGROUP_IMPL_REGISTERS_ALL, TEGROUP_DTYPE_F8E5M2, TILE, FROM>;
        return tegroup_impl_registers_kernel_of_8_bits<TEGROUP_DTYPE_F8E5M2, TILE, TEGROUP_IMPL_FROM_INPUT>(call);
    default: return tegroup_impl_registers_kernel_of_8_bits<TEGROUP_DTYPE_F8E4M3, TILE, FROM>(call);
    }
}

/* Whether a call's copies, if they are in registers, are made by strips: a rowwise copy alone whose blocks lie along
 * the rows, of no activation. Of rows that an index picks, blocks of E5M2 are not, which gradients have, and these are
 * many or have both copies. */
static inline int tegroup_impl_goes_by_strips(const tegroup_impl_quantize_launch *call) {
    return call->desc.activation == TEGROUP_ACTIVATION_UNSET && call->copies == 1 << TEGROUP_IMPL_ROWWISE
           && call->facts.block_outer <= 1
           && (call->desc.gather_input.rows == 0 || call->facts.block_inner == 0
               || call->desc.output.dtype != TEGROUP_DTYPE_F8E5M2);
}

/* The kernel of a call, by strips or by tiles. */
static inline tegroup_impl_quantize_kernel_type *tegroup_impl_registers_kernel_for(
    const tegroup_impl_quantize_launch *call, int strips) {
#if !defined(TEGROUP_NO_ACTIVATION) && !defined(TEGROUP_NO_BACKWARD)
    if (call->desc.grad_output.dtype != TEGROUP_DTYPE_UNSET)
        return call->desc.output.dtype == TEGROUP_DTYPE_F8E5M2
                   ? tegroup_impl_quantize_registers_kernel<16, TEGROUP_DTYPE_F8E5M2, true, TEGROUP_IMPL_FROM_GRADIENT>
                   : tegroup_impl_quantize_registers_kernel<16, TEGROUP_DTYPE_F8E4M3, true, TEGROUP_IMPL_FROM_GRADIENT>;
#endif
#if !defined(TEGROUP_NO_ACTIVATION)
    if (call->desc.activation != TEGROUP_ACTIVATION_UNSET)
        return tegroup_impl_quantize_registers_kernel<16, TEGROUP_DTYPE_F8E4M3, true, TEGROUP_IMPL_FROM_GATES>;
#endif
    if (!strips) return tegroup_impl_registers_kernel_of<true, TEGROUP_IMPL_FROM_INPUT>(call);
    return call->desc.gather_input.rows > 0 ? tegroup_impl_registers_kernel_of<false, TEGROUP_IMPL_FROM_GATHERED>(call)
                                            : tegroup_impl_registers_kernel_of<false, TEGROUP_IMPL_FROM_INPUT>(call);
}

/* A kernel that quantises in registers, by strips or by tiles. */
static inline tegroup_status tegroup_impl_cuda_launch_registers(tegroup_impl_quantize_launch *call, int strips,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_SHIFT;
    const int collects = strips && call->copies >> TEGROUP_IMPL_COLUMNWISE & 1,
              gradient = call->desc.grad_output.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_impl_quantize_kernel_type *const kernel = tegroup_impl_registers_kernel_for(call, strips);
    unsigned blocks;
    if (strips) TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_strips(call, &blocks, error));
    else {
        tegroup_impl_cuda_quantize_pieces(call, 0);
        call->paired = tegroup_impl_pairs_tiles(call);
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(
            call, tile, tile + call->paired,
            gradient ? TEGROUP_IMPL_GRADIENT_RESIDENT : TEGROUP_IMPL_REGISTERS_RESIDENT, &blocks, error));
    }
    if (collects || call->paired)
        return tegroup_impl_cuda_quantize_launch_kernel(kernel, call, blocks,
                                                        tegroup_impl_cuda_staged(&call->desc.input), stream, error);
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(kernel, blocks, TEGROUP_IMPL_QUANTIZE_THREADS, 0, stream, *call), "stream",
        "the kernel must launch", error);
}

/* Room for amax of columns that have one scale each. */
static inline tegroup_status tegroup_impl_cuda_clear_columns(tegroup_impl_quantize_launch *call,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    unsigned blocks;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(call, TEGROUP_IMPL_QUANTIZE_ALL, TEGROUP_IMPL_QUANTIZE_STRIP,
                                                       TEGROUP_IMPL_REGISTERS_RESIDENT, &blocks, error));
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_quantize_clear_columns_kernel, blocks,
                                                        TEGROUP_IMPL_QUANTIZE_THREADS, 0, stream, *call),
                                    "stream", "the kernel must launch", error);
}

/* The copies of a call in registers, by strips or by tiles. Of scaling ROW, whose columns have a scale each, strips
 * make the rowwise copy and find amax of the columns in the same read, and tiles make the other copy. */
static inline tegroup_status tegroup_impl_cuda_quantize_registers(tegroup_impl_quantize_launch *call,
                                                                  struct CUstream_st *stream, tegroup_error *error) {
    const int bits = tegroup_impl_bits(call->desc.output.dtype), columnwise = 1 << TEGROUP_IMPL_COLUMNWISE;
    const tegroup_scale_rule usual = tegroup_impl_usual_rule(call->facts.block_inner / 8, bits);
    call->usual = memcmp(&call->desc.rule, &usual, sizeof usual) == 0
                  && call->desc.output.dtype == (bits == 4 ? TEGROUP_DTYPE_F4E2M1 : TEGROUP_DTYPE_F8E4M3)
                  && call->scale_dtype == call->facts.scale_dtype;
    if (!tegroup_impl_scaled_by_line(&call->facts) || !(call->copies & columnwise))
        return tegroup_impl_cuda_launch_registers(call, tegroup_impl_goes_by_strips(call), stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_clear_columns(call, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_launch_registers(call, 1, stream, error));
    call->copies = columnwise;
    return tegroup_impl_cuda_launch_registers(call, 0, stream, error);
}

#define TEGROUP_IMPL_BY_VALUES(kernel, ...)                                                                            \
    tegroup_impl_cuda_quantize_launch_kernel(call.desc.input.dtype == TEGROUP_DTYPE_F32 ? kernel<TEGROUP_DTYPE_F32>    \
                                             : call.desc.input.dtype == TEGROUP_DTYPE_F16                              \
                                                 ? kernel<TEGROUP_DTYPE_F16>                                           \
                                                 : kernel<TEGROUP_DTYPE_BF16>,                                         \
                                             &call, __VA_ARGS__, stream, error)

#if !defined(TEGROUP_NO_ACTIVATION) && !defined(TEGROUP_NO_BACKWARD)
/* The gradient of the rows' scales: by the kernel of the separate call, which stores nothing else where grad_input has
 * no address; a group at a time where their rows do not follow one another. */
static inline tegroup_status tegroup_impl_cuda_quantize_sums(const tegroup_quantize_desc *desc,
                                                             struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_tensor *x = &desc->input, *dy = &desc->grad_output;
    const int ragged = tegroup_impl_ragged(&x->shape);
    const int32_t groups = ragged ? 1 : x->shape.groups;
    int32_t g;
    for (g = 0; g < groups; g++) {
        const int64_t rows = x->shape.rows, size = tegroup_impl_bits(x->dtype) / 8;
        tegroup_activation_backward_desc made = tegroup_impl_made_backward(desc);
        made.snapshot = ragged ? x->shape.snapshot : NULL;
        made.input =
            tegroup_matrix_of((char *)x->data + g * tegroup_impl_group_stride(x) * size, rows, x->shape.cols, x->dtype);
        made.input.ld = x->ld;
        made.grad_output = tegroup_matrix_of((char *)dy->data + g * tegroup_impl_group_stride(dy) * size, rows,
                                             dy->shape.cols, dy->dtype);
        made.grad_output.ld = dy->ld;
        made.grad_input = tegroup_matrix_of(NULL, rows, x->shape.cols, x->dtype);
        if (made.row_scale.dtype != TEGROUP_DTYPE_UNSET)
            made.row_scale.data = tegroup_impl_matrix_row(&desc->row_scale, g * rows);
        made.grad_row_scale.data = tegroup_impl_matrix_row(&desc->grad_row_scale, g * rows);
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_activation_backward(&made, stream, error));
    }
    return TEGROUP_OK;
}
#endif

/* The launches of a call: amax of the groups first, where scales wait for it; then the copies, in one launch but for
 * scaling ROW. */
static inline tegroup_status tegroup_impl_cuda_quantize_copies(tegroup_impl_quantize_launch call,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_quantize_desc *desc = &call.desc;
    const int both = tegroup_impl_has_copy(&desc->output, 0) | tegroup_impl_has_copy(&desc->output, 1) << 1,
              lines = tegroup_impl_scaled_by_line(&call.facts);
    const int32_t tile = TEGROUP_IMPL_QUANTIZE_SHIFT, strip = TEGROUP_IMPL_QUANTIZE_STRIP,
                  rows = tegroup_impl_shift_of(TEGROUP_IMPL_QUANTIZE_ROWS), all = TEGROUP_IMPL_QUANTIZE_ALL,
                  resident = TEGROUP_IMPL_QUANTIZE_RESIDENT(desc->input.dtype);
    const size_t staged = tegroup_impl_cuda_staged(&desc->input);
    unsigned blocks;
    call.raises = desc->output.amax || desc->output.columnwise_amax;
    if (tegroup_impl_waits_for_amax(desc, &call.facts) && tegroup_impl_reads_in_registers(&call)) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_strips(&call, &blocks, error));
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(desc->gather_input.rows > 0
                                    ? tegroup_impl_quantize_amax_kernel<TEGROUP_IMPL_FROM_GATHERED>
                                    : tegroup_impl_quantize_amax_kernel<TEGROUP_IMPL_FROM_INPUT>,
                                blocks, TEGROUP_IMPL_QUANTIZE_THREADS, 0, stream, call),
            "stream", "the kernel must launch", error));
        call.raises = 0;
    } else if (tegroup_impl_waits_for_amax(desc, &call.facts)) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&call, rows, strip, resident, &blocks, error));
        TEGROUP_IMPL_TRY(TEGROUP_IMPL_BY_VALUES(tegroup_impl_quantize_strip_kernel, blocks, staged));
        call.raises = 0;
    }
    call.copies = both;
    if (both && tegroup_impl_quantizes_in_registers(&call))
        return tegroup_impl_cuda_quantize_registers(&call, stream, error);
    if (lines) call.copies = both & 1 << TEGROUP_IMPL_COLUMNWISE;
    if (call.copies == 1 << TEGROUP_IMPL_ROWWISE
        && (tegroup_impl_scaled_as_one(&call.facts) || call.facts.choice_outer == 1)) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&call, rows, strip, resident, &blocks, error));
        return TEGROUP_IMPL_BY_VALUES(tegroup_impl_quantize_strip_kernel, blocks, staged);
    }
    if (call.copies) {
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&call, lines ? all : tile, tile, resident, &blocks, error));
        TEGROUP_IMPL_TRY(TEGROUP_IMPL_BY_VALUES(tegroup_impl_quantize_kernel, blocks, staged));
        call.raises = 0;
    }
    call.copies = lines ? both & 1 << TEGROUP_IMPL_ROWWISE : 0;
    if (!call.copies) return TEGROUP_OK;
    if (tegroup_impl_quantizes_in_registers(&call)) return tegroup_impl_cuda_quantize_registers(&call, stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_blocks(&call, rows, all, resident, &blocks, error));
    return TEGROUP_IMPL_BY_VALUES(tegroup_impl_quantize_rows_kernel, blocks, staged);
}

static inline tegroup_status tegroup_impl_cuda_quantize(const tegroup_quantize_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    tegroup_impl_quantize_launch call = tegroup_impl_cuda_quantize_launch(&desc->output);
    call.desc = *desc;
    call.desc.alpha = tegroup_impl_alpha(desc->activation, desc->alpha);
    call.desc.limit = tegroup_impl_limit(desc->activation, desc->limit);
    call.desc.row_scale = tegroup_impl_cuda_matrix(&desc->row_scale);
    call.in_ld = tegroup_impl_ld(&desc->input);
    call.plain = desc->activation == TEGROUP_ACTIVATION_UNSET && desc->gather_input.rows == 0;
    call.vectors = tegroup_impl_cuda_in_vectors(&desc->input) && tegroup_impl_cuda_in_vectors(&desc->grad_output);
    if (desc->output.shape.groups == 0) return TEGROUP_OK;
    if (desc->output.amax || desc->output.columnwise_amax)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_quantize_clear_kernel, 1, TEGROUP_IMPL_QUANTIZE_THREADS, 0, stream, call),
            "stream", "the kernel must launch", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_quantize_copies(call, stream, error));
#if !defined(TEGROUP_NO_ACTIVATION) && !defined(TEGROUP_NO_BACKWARD)
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) return tegroup_impl_cuda_quantize_sums(desc, stream, error);
#endif
    return TEGROUP_OK;
}

#undef TEGROUP_IMPL_BY_VALUES

static inline tegroup_status tegroup_impl_cuda_dequantize(const tegroup_dequantize_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_quantize_launch call = tegroup_impl_cuda_quantize_launch(&desc->input);
    call.copies = 1 << desc->columnwise;
    call.desc.input = desc->output;
    if (desc->input.shape.groups == 0) return TEGROUP_OK;
    return tegroup_impl_cuda_dequantize_copy(call, 0, stream, error);
}
#endif /* TEGROUP_NO_FP8 */
#if !defined(TEGROUP_NO_CUBLASLT)

/* ==== [38] cuBLASLt: functions, descriptors, algorithms (src/cuda/cublaslt.h) ==== */

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

/* Constants of cublasLt.h, which is not included: the installed header may be older than the library that is loaded. */
enum {
    TEGROUP_IMPL_LT_F32 = 0,   /* CUDA_R_32F     */
    TEGROUP_IMPL_LT_F16 = 2,   /* CUDA_R_16F     */
    TEGROUP_IMPL_LT_BF16 = 14, /* CUDA_R_16BF    */
    TEGROUP_IMPL_LT_E4M3 = 28, /* CUDA_R_8F_E4M3 */
    TEGROUP_IMPL_LT_E5M2 = 29, /* CUDA_R_8F_E5M2 */
    TEGROUP_IMPL_LT_E2M1 = 33, /* CUDA_R_4F_E2M1 */
    /* CUBLAS_COMPUTE_32F, and 32F_PEDANTIC, which uses neither TF32 nor emulation whatever the environment says */
    TEGROUP_IMPL_LT_COMPUTE_32F = 68,
    TEGROUP_IMPL_LT_COMPUTE_32F_PEDANTIC = 69,
    TEGROUP_IMPL_LT_POINTER_MODE = 2,      /* CUBLASLT_MATMUL_DESC_POINTER_MODE: 0 host, 1 device     */
    TEGROUP_IMPL_LT_TRANSA = 3,            /* CUBLASLT_MATMUL_DESC_TRANSA: 0 CUBLAS_OP_N, 1 _T        */
    TEGROUP_IMPL_LT_TRANSB = 4,            /* CUBLASLT_MATMUL_DESC_TRANSB                             */
    TEGROUP_IMPL_LT_A_SCALES = 17,         /* CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, then _B           */
    TEGROUP_IMPL_LT_FAST_SUMS = 25,        /* CUBLASLT_MATMUL_DESC_FAST_ACCUM                         */
    TEGROUP_IMPL_LT_A_SCALE_MODE = 31,     /* CUBLASLT_MATMUL_DESC_A_SCALE_MODE, then _B: see below   */
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

/* Storage for any of cuBLASLt's opaque descriptors: several times as large as any version needs. */
typedef struct tegroup_impl_lt_opaque {
    uint64_t words[64];
} tegroup_impl_lt_opaque;

typedef struct tegroup_impl_lt_matmul {
    tegroup_impl_lt_opaque desc, a, b, c, d;
    int32_t in_place; /* C is given as D: with D's layout and list of addresses */
} tegroup_impl_lt_matmul;

static inline int tegroup_impl_lt_avoids(const tegroup_plan *plan, tegroup_quirk_case when) {
    return tegroup_impl_quirk_avoided(plan->backend, plan->sm, plan->cublaslt_version, when);
}

/* Whether C is given as D, with D's layout and list of addresses: if there is no other C, and no quirk forbids it. The
 * library adds to D 5 to 10% faster when it can tell that C is D. */
static inline int32_t tegroup_impl_lt_in_place(const tegroup_plan *plan) {
    const tegroup_problem *p = &plan->problem;
    return p->c == TEGROUP_DTYPE_UNSET
           && (!p->accumulate || p->d == TEGROUP_DTYPE_F32
               || !tegroup_impl_lt_avoids(plan, TEGROUP_QUIRK_ACCUMULATED_HALVES));
}

static inline tegroup_impl_lt_opaque *tegroup_impl_lt_c(tegroup_impl_lt_matmul *m) {
    return m->in_place ? &m->d : &m->c;
}

typedef struct tegroup_impl_lt_result { /* cublasLtMatmulHeuristicResult_t */
    tegroup_impl_choice algorithm;      /* cublasLtMatmulAlgo_t            */
    size_t workspace_bytes;
    int32_t state;
    float waves;
    int32_t reserved[4];
} tegroup_impl_lt_result;

/* What plan.algorithm holds for both cuBLASLt backends. */
typedef struct tegroup_impl_lt_plan {
    tegroup_cublaslt_functions functions;
    tegroup_impl_choice algorithm; /* what runs; until it is tuned, the library's first offer */
    tegroup_impl_choice unaligned; /* loop: for addresses aligned to their element only */
    int32_t has_algorithm;         /* 0: no group has terms to sum, so the library is not called */
    int32_t has_unaligned;
    int32_t alignment; /* bytes that addresses must be a multiple of for `algorithm` */
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

/* Finds the library's functions: the caller's, or those of the shared object that holds the cublasLtMatmul that the
 * process would call. A library that was loaded privately is found by its usual names. Nothing is loaded here. */
static inline tegroup_cublaslt_functions tegroup_impl_lt_find(const tegroup_gemm_desc *desc) {
    const tegroup_cublaslt_functions *given = desc->options.cublaslt_functions;
    tegroup_cublaslt_functions f;
    memset(&f, 0, sizeof f);
    if (given) memcpy(&f, given, given->struct_size);
    f.struct_size = sizeof f;
    if (given) return f;
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
    if (library) dlclose(library); /* whoever loaded the library still holds it */
#endif
    return f;
}

/* The library's version; 0 unless every function was found. The grouped one is newer than the others and may be
 * missing. */
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

/* Sets an attribute in the width that the library gives it. All of them are integers, and hosts are little-endian. */
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
    return dtype == TEGROUP_DTYPE_F32      ? TEGROUP_IMPL_LT_F32
           : dtype == TEGROUP_DTYPE_BF16   ? TEGROUP_IMPL_LT_BF16
           : dtype == TEGROUP_DTYPE_F16    ? TEGROUP_IMPL_LT_F16
           : dtype == TEGROUP_DTYPE_F8E4M3 ? TEGROUP_IMPL_LT_E4M3
           : dtype == TEGROUP_DTYPE_F8E5M2 ? TEGROUP_IMPL_LT_E5M2
                                           : TEGROUP_IMPL_LT_E2M1;
}

/* cublasLtMatmulMatrixScale_t, as a grouped matmul takes it: each mode then has a list of the groups' scales. */
static inline int tegroup_impl_lt_scale_mode(tegroup_scaling scaling) {
    switch (scaling) {
    case TEGROUP_SCALING_BLOCK_1X128: return 4;   /* CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F           */
    case TEGROUP_SCALING_BLOCK_128X128: return 5; /* CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F       */
    case TEGROUP_SCALING_MXFP8:
    case TEGROUP_SCALING_MXFP8_32X32: return 2; /* CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0            */
    case TEGROUP_SCALING_NVFP4:
    case TEGROUP_SCALING_NVFP4_16X16: return 1; /* CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3            */
    default: return 6;                          /* CUBLASLT_MATMUL_MATRIX_SCALE_PER_BATCH_SCALAR_32F   */
    }
}

/* Are alpha and beta read in device memory? Scales of NVFP4's groups are part of alpha. */
static inline int tegroup_impl_lt_device_scalars(const tegroup_problem *p) {
    return p->alpha_space == TEGROUP_SPACE_DEVICE || p->beta_space == TEGROUP_SPACE_DEVICE
           || tegroup_scaling_info(p->a_scaling)->scale_dtype == TEGROUP_DTYPE_F8E4M3;
}

/* Is what a product sums over contiguous in the operand? */
static inline int tegroup_impl_lt_along_k(const tegroup_problem *p, tegroup_impl_operand operand) {
    return !tegroup_impl_sums_rows(p->op, operand) || tegroup_impl_plans_transposed(p, operand);
}

/* Describes the matmul. Scalars in device memory are arrays of pointers if the matmul is grouped, else one number
 * each. */
static inline int tegroup_impl_lt_describe(const tegroup_cublaslt_functions *f, const tegroup_problem *p, int grouped,
                                           tegroup_impl_lt_opaque *desc) {
    const int device_scalars = tegroup_impl_lt_device_scalars(p);
    const tegroup_function get = f->cublasLtMatmulDescGetAttribute, set = f->cublasLtMatmulDescSetAttribute;
    int code = TEGROUP_IMPL_LT(f, cublasLtMatmulDescInit_internal)(
        desc, sizeof *desc,
        p->a == TEGROUP_DTYPE_F32 ? TEGROUP_IMPL_LT_COMPUTE_32F_PEDANTIC : TEGROUP_IMPL_LT_COMPUTE_32F,
        TEGROUP_IMPL_LT_F32);
    if (!code)
        code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_TRANSA, tegroup_impl_lt_along_k(p, TEGROUP_IMPL_B));
    if (!code)
        code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_TRANSB, !tegroup_impl_lt_along_k(p, TEGROUP_IMPL_A));
    if (!code) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_POINTER_MODE, device_scalars);
    if (!code && device_scalars && grouped) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_ALPHA_STRIDE, 1);
    if (!code && device_scalars && grouped) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_BETA_STRIDE, 1);
    /* unset, this follows an environment variable; older libraries have neither */
    if (!code) (void)tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_BATCH_INVARIANCE, 0);
    return code;
}

/* The mean of the groups' expected rows, at least 1. */
static inline int64_t tegroup_impl_lt_mean(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    return tegroup_impl_max(1,
                            tegroup_impl_ceil_div(tegroup_impl_expected_rows(desc, p), tegroup_impl_max(1, p->groups)));
}

/* The size of a group as cuBLASLt sees it: rows and columns of its column-major D, and the terms of a sum. */
typedef struct tegroup_impl_lt_size {
    int64_t rows, cols, k;
} tegroup_impl_lt_size;

static inline tegroup_impl_lt_size tegroup_impl_lt_size_of(const tegroup_problem *p, int64_t rows) {
    tegroup_impl_lt_size size;
    size.rows = p->op == TEGROUP_OP_FORWARD ? p->n : p->k;
    size.cols = p->op == TEGROUP_OP_WGRAD ? p->n : rows;
    size.k = p->op == TEGROUP_OP_FORWARD ? p->k : p->op == TEGROUP_OP_DGRAD ? p->n : rows;
    return size;
}

/* The distances in bytes between rows and between groups of what is read of an operand, as one number of their bits.
 * Those of a transposed copy follow sizes that the device knows, in steps of at least 16 bytes of FP8. */
static inline int64_t tegroup_impl_lt_distances(const tegroup_tensor *t, const tegroup_problem *p,
                                                tegroup_impl_operand operand, int64_t ld) {
    if (tegroup_impl_plans_transposed(p, operand)) return 16;
    return ld * tegroup_impl_bits(t->dtype) / 8 | tegroup_impl_stride_bytes(t);
}

/* The largest power of two, at most `most`, that divides all distances in bytes between rows and between groups. */
static inline int32_t tegroup_impl_lt_alignment(const tegroup_gemm_desc *desc, const tegroup_problem *p, int32_t most) {
    const int64_t a = tegroup_impl_bits(p->a) / 8, d = tegroup_impl_bits(p->d) / 8;
    const int64_t all = tegroup_impl_lt_distances(&desc->a, p, TEGROUP_IMPL_A, p->lda)
                        | tegroup_impl_lt_distances(&desc->b, p, TEGROUP_IMPL_B, p->ldb) | p->ldc * d | p->ldd * d
                        | tegroup_impl_stride_bytes(&desc->c) | tegroup_impl_stride_bytes(&desc->d);
    int32_t alignment = most;
    int packed = !p->lda || !p->ldb || !p->ldd || (p->c && !p->ldc); /* groups of any width, packed one after another */
    for (int i = 0; i < 4; i++) packed |= p->has_elements[i];
    if (packed) return (int32_t)tegroup_impl_min(a, d);
    while (all % alignment != 0) alignment /= 2;
    return alignment;
}

enum { TEGROUP_IMPL_LT_OFFERED = 8 }; /* the most algorithms that one query returns */

/* Asks the library for algorithms, fastest first by its own estimate. Returns how many there are. */
static inline int32_t tegroup_impl_lt_offers(const tegroup_cublaslt_functions *f, struct cublasLtContext *handle,
                                             tegroup_impl_lt_matmul *m, int64_t workspace_bytes, int32_t alignment,
                                             const tegroup_impl_lt_size *grouped, tegroup_impl_choice *algorithms,
                                             int32_t most, int *code) {
    const tegroup_function get = f->cublasLtMatmulPreferenceGetAttribute, set = f->cublasLtMatmulPreferenceSetAttribute;
    tegroup_impl_lt_opaque preference;
    tegroup_impl_lt_result results[TEGROUP_IMPL_LT_OFFERED];
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
    *code = TEGROUP_IMPL_LT(f, cublasLtMatmulAlgoGetHeuristic)(handle, &m->desc, &m->a, &m->b, tegroup_impl_lt_c(m),
                                                               &m->d, &preference, most, results, &found);
    if (*code) return 0;
    for (int i = 0; i < found && i < most; i++)
        if (results[i].state == 0 && (int64_t)results[i].workspace_bytes <= workspace_bytes)
            algorithms[count++] = results[i].algorithm;
    return count;
}
/* The status when the library has no algorithm, or could not be asked. Of its codes CUBLAS_STATUS_SUCCESS,
 * INVALID_VALUE, ARCH_MISMATCH and NOT_SUPPORTED mean that it has none. */
static inline tegroup_status tegroup_impl_lt_nothing(int code, tegroup_error *error) {
    if (code != 0 && code != 7 && code != 8 && code != 15)
        return tegroup_impl_lt_status(code, "options.cublaslt", "must be a handle that can be asked for algorithms",
                                      error);
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_UNSUPPORTED, "options.backend",
                            "must be another one: cuBLASLt offers no algorithm for this", 1, 0);
    if (error) error->native = code;
    return TEGROUP_ERROR_UNSUPPORTED;
}

/* Puts an algorithm into the plan. The bits of a result depend on the library's version, the algorithm and whether the
 * library is told that it adds to D, so numerics_id covers them. */
static inline void tegroup_impl_lt_planned(tegroup_plan *plan, const tegroup_impl_lt_plan *lt) {
    const int32_t adds_to_d = plan->problem.accumulate && tegroup_impl_lt_in_place(plan);
    uint64_t id = tegroup_impl_numerics_id(&plan->problem, plan->backend, plan->sm);
    id = tegroup_impl_hash(id, &plan->cublaslt_version, sizeof plan->cublaslt_version);
    id = tegroup_impl_hash(id, &adds_to_d, sizeof adds_to_d);
    if (lt->has_algorithm) id = tegroup_impl_hash(id, &lt->algorithm, sizeof lt->algorithm);
    plan->numerics_id = id;
    memcpy(plan->algorithm, lt, sizeof *lt);
}

static inline tegroup_impl_choice tegroup_impl_lt_chosen(const tegroup_plan *plan) {
    return tegroup_impl_lt_plan_of(plan).algorithm;
}
static inline tegroup_status tegroup_impl_lt_take(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                  tegroup_error *) {
    tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    lt.algorithm = *choice;
    tegroup_impl_lt_planned(plan, &lt);
    return TEGROUP_OK;
}

/* ==== [39] Set-up kernel of a grouped cuBLASLt matmul (src/cuda/cublaslt_setup_kernels.h) ==== */

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

/* ==== [40] cublaslt_grouped (src/cuda/cublaslt_grouped.h) ==== */

/* Says which scales the operands have, and in which lists of the set-up's they are. Sums are promoted. */
static inline int tegroup_impl_lt_scales(const tegroup_cublaslt_functions *f, const tegroup_problem *p,
                                         const tegroup_impl_setup_items *items, tegroup_impl_lt_opaque *desc) {
    const tegroup_function get = f->cublasLtMatmulDescGetAttribute, set = f->cublasLtMatmulDescSetAttribute;
    const tegroup_scaling scalings[2] = {p->b_scaling, p->a_scaling};
    int code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_FAST_SUMS, 0);
    for (int i = 0; i < 2 && !code; i++) {
        const void *list = tegroup_impl_setup_at(items, TEGROUP_IMPL_SETUP_A_SCALE + i);
        code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_A_SCALE_MODE + i,
                                   tegroup_impl_lt_scale_mode(scalings[i]));
        if (!code) code = tegroup_impl_lt_put(get, set, desc, TEGROUP_IMPL_LT_A_SCALES + i, (int64_t)(uintptr_t)list);
    }
    return code;
}

/* Describes the grouped matmul over the set-up's arrays. */
static inline int tegroup_impl_lt_grouped(const tegroup_cublaslt_functions *f, const tegroup_plan *plan,
                                          const tegroup_impl_setup_items *items, tegroup_impl_lt_matmul *m) {
    const tegroup_problem *p = &plan->problem;
    static const tegroup_impl_setup_item parts[4][3] = {
        {TEGROUP_IMPL_SETUP_A_ROWS, TEGROUP_IMPL_SETUP_A_COLS, TEGROUP_IMPL_SETUP_A_LD},
        {TEGROUP_IMPL_SETUP_B_ROWS, TEGROUP_IMPL_SETUP_B_COLS, TEGROUP_IMPL_SETUP_B_LD},
        {TEGROUP_IMPL_SETUP_D_ROWS, TEGROUP_IMPL_SETUP_D_COLS, TEGROUP_IMPL_SETUP_C_LD},
        {TEGROUP_IMPL_SETUP_D_ROWS, TEGROUP_IMPL_SETUP_D_COLS, TEGROUP_IMPL_SETUP_D_LD}};
    const tegroup_function get = f->cublasLtMatrixLayoutGetAttribute, set = f->cublasLtMatrixLayoutSetAttribute;
    tegroup_impl_lt_opaque *const layouts[4] = {&m->a, &m->b, &m->c, &m->d};
    const tegroup_dtype dtypes[4] = {p->b, p->a, p->d, p->d};
    int code = tegroup_impl_lt_describe(f, p, 1, &m->desc);
    if (!code && tegroup_impl_quantised(p)) code = tegroup_impl_lt_scales(f, p, items, &m->desc);
    m->in_place = tegroup_impl_lt_in_place(plan);
    for (int i = 0; i < 4 && !code; i++) {
        if (m->in_place && layouts[i] == &m->c) continue;
        code = TEGROUP_IMPL_LT(f, cublasLtGroupedMatrixLayoutInit_internal)(
            layouts[i], sizeof *layouts[i], tegroup_impl_lt_dtype(dtypes[i]), p->groups,
            tegroup_impl_setup_at(items, parts[i][0]), tegroup_impl_setup_at(items, parts[i][1]),
            tegroup_impl_setup_at(items, parts[i][2]));
        if (!code) code = tegroup_impl_lt_put(get, set, layouts[i], TEGROUP_IMPL_LT_ROWS_COLS_WIDTH, 1);
        if (!code) code = tegroup_impl_lt_put(get, set, layouts[i], TEGROUP_IMPL_LT_LD_WIDTH, 1);
    }
    return code;
}

/* cuBLASLt's own part of the workspace. There is one, or one for each operation (see the quirks). */
static inline tegroup_layout_item tegroup_impl_lt_grouped_part(const tegroup_plan *plan) {
    tegroup_layout layout;
    tegroup_impl_layout_begin(&layout);
    tegroup_impl_lt_grouped_workspace(plan, &layout);
    return layout.items[1 + (plan->cublas_parts > 1 ? plan->problem.op - TEGROUP_OP_FORWARD : 0)];
}

/* The alignment of all groups' addresses. Where data begins is the caller's promise, which each call is held to. A
 * group of a ragged operand begins at any row, so the distance of rows counts as much. Addresses of a list, and of
 * groups at offsets, are seen by the set-up kernel only, which checks for 16 bytes. */
static inline int32_t tegroup_impl_lt_grouped_alignment(const tegroup_gemm_desc *desc, const tegroup_problem *p) {
    int64_t most = tegroup_impl_placed(desc) ? 16 : desc->options.data_alignment_bytes;
    for (int i = 0; i < 4; i++)
        if (p->pointers_space[i] != TEGROUP_SPACE_UNSET) most = 16;
    return (int32_t)tegroup_impl_max(16, tegroup_impl_lt_alignment(desc, p, (int32_t)tegroup_impl_max(16, most)));
}

/* The rows of a group that the library is asked about. First the mean, whose first offer runs until the plan is tuned;
 * then more for tegroup_plan_tune to try. The library takes all groups to have as many rows as it is told, but in
 * uneven groups the large ones take the longest: with 128 groups of 8 rows on average and one of 640, an algorithm
 * offered for 64 rows took 36 us instead of 40. So it is asked about its tiles' rows, from twice the mean on (it offers
 * smaller tiles for the mean), while the largest group fills more than half of the tile; above a mean of 128 rows about
 * the mean only. Returns how many; averages has room for 4. */
static inline int32_t tegroup_impl_lt_grouped_averages(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                       int64_t *averages) {
    static const int64_t tiles[] = {32, 64, 256};
    const int64_t mean = tegroup_impl_lt_mean(desc, p);
    int64_t most = tegroup_impl_min(p->rows, tegroup_impl_expected_rows(desc, p));
    int32_t count = 1;
    if (desc->options.expected_rows_max > 0) most = tegroup_impl_min(most, desc->options.expected_rows_max);
    averages[0] = mean;
    for (int i = 0; i < 3; i++)
        if (tiles[i] / 2 >= mean && tiles[i] / 2 < most) averages[count++] = tiles[i];
    return count;
}

/* Collects what the library offers for a plan, for the mean and, if `all`, for the other numbers of rows. */
static inline tegroup_status tegroup_impl_lt_grouped_ask(const tegroup_gemm_desc *desc, const tegroup_plan *plan,
                                                         const tegroup_impl_lt_plan *lt, int all,
                                                         tegroup_impl_choices *choices, tegroup_error *error) {
    /* the heuristic runs before there is a workspace: it reads no address, but wants one */
    const tegroup_impl_setup_items items =
        tegroup_impl_setup_items_of(plan->problem.groups, (void *)(uintptr_t)TEGROUP_ALIGNMENT);
    tegroup_impl_lt_matmul m;
    int64_t averages[4];
    const int32_t askings = all ? tegroup_impl_lt_grouped_averages(desc, &plan->problem, averages) : 1;
    int code = tegroup_impl_lt_grouped(&lt->functions, plan, &items, &m);
    TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
    averages[0] = tegroup_impl_lt_mean(desc, &plan->problem);
    for (int32_t i = 0; i < askings; i++) {
        tegroup_impl_choice offered[TEGROUP_IMPL_LT_OFFERED];
        const tegroup_impl_lt_size size = tegroup_impl_lt_size_of(&plan->problem, averages[i]);
        const int32_t count = tegroup_impl_lt_offers(&lt->functions, desc->options.cublaslt, &m,
                                                     (int64_t)tegroup_impl_lt_grouped_part(plan).bytes, lt->alignment,
                                                     &size, offered, TEGROUP_IMPL_LT_OFFERED, &code);
        for (int32_t j = 0; j < count; j++) tegroup_impl_choices_add(choices, &offered[j]);
        if (choices->count == 0) return tegroup_impl_lt_nothing(code, error);
    }
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_lt_grouped_choices(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                             tegroup_impl_choices *choices, tegroup_error *error) {
    const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    return lt.has_algorithm ? tegroup_impl_lt_grouped_ask(desc, plan, &lt, 1, choices, error) : TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_lt_grouped_plan(const tegroup_gemm_desc *desc, const tegroup_impl_names *,
                                                          tegroup_plan *plan, tegroup_error *error) {
    tegroup_impl_choices choices;
    tegroup_impl_lt_plan lt;
    memset(&lt, 0, sizeof lt);
    choices.count = 0;
    lt.functions = tegroup_impl_lt_find(desc);
    lt.alignment = tegroup_impl_lt_grouped_alignment(desc, &plan->problem);
    lt.has_algorithm = plan->problem.groups > 0 && !tegroup_impl_termless(desc);
    TEGROUP_IMPL_RULE(lt.functions.cublasLtGroupedMatrixLayoutInit_internal != NULL, ERROR_UNSUPPORTED,
                      "options.cublaslt_functions", "must hold cublasLtGroupedMatrixLayoutInit_internal", 1, 0);
    if (lt.has_algorithm) {
        TEGROUP_IMPL_TRY(tegroup_impl_lt_grouped_ask(desc, plan, &lt, 0, &choices, error));
        lt.algorithm = choices.list[0];
    }
    tegroup_impl_lt_planned(plan, &lt);
    return TEGROUP_OK;
}

/* An algorithm for aligned addresses cannot be replaced by another, which might give other bits. So addresses that are
 * less aligned are refused. */
static inline tegroup_status tegroup_impl_lt_grouped_operand(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             int columnwise, int32_t alignment, tegroup_error *error) {
    const char *data = columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_DATA) : TEGROUP_IMPL_PATH(DATA);
    if (t->dtype == TEGROUP_DTYPE_UNSET || tegroup_impl_listed(t)) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(t->data, (size_t)alignment), ERROR_ALIGNMENT, data,
                      "must be as aligned as cuBLASLt's grouped matmul was planned for: to 16 bytes, or to "
                      "options.data_alignment_bytes; a plan made with 2 there takes any",
                      alignment, (uintptr_t)t->data % (uintptr_t)alignment);
    TEGROUP_IMPL_RULE(tegroup_impl_transposed(t, columnwise) || tegroup_impl_stride_bytes(t) % alignment == 0,
                      ERROR_ALIGNMENT, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                      "must be a multiple of the bytes that cuBLASLt's grouped matmul was planned for", alignment,
                      tegroup_impl_stride_bytes(t));
    return TEGROUP_OK;
}

/* Of a quantised operand the copy that is summed along must be there, even where the other has the same values, and the
 * library asks 16 bytes of the address of more than one scale. */
static inline tegroup_status tegroup_impl_lt_grouped_scaled(const tegroup_gemm_desc *desc, const tegroup_tensor *read,
                                                            tegroup_impl_operand operand, const tegroup_impl_name *name,
                                                            tegroup_error *error) {
    const int sums_rows = tegroup_impl_sums_rows(desc->op, operand), listed = tegroup_impl_listed(read);
    const tegroup_impl_copy_paths paths = tegroup_impl_copy_paths_of(name, listed, sums_rows);
    const int64_t starts = tegroup_impl_setup_scale_starts(tegroup_scaling_info(read->scaling));
    if (read->scaling == TEGROUP_SCALING_NONE || read->shape.groups == 0 || tegroup_impl_termless(desc))
        return TEGROUP_OK;
    TEGROUP_IMPL_RULE(tegroup_impl_reads_columnwise(desc, operand) == sums_rows, ERROR_NULL_ARGUMENT, paths.data,
                      "must not be NULL: cuBLASLt reads the copy that is quantised along what is summed", 1, 0);
    TEGROUP_IMPL_RULE(read->scale_parts <= 1, ERROR_PLAN, TEGROUP_IMPL_PATH(SCALE_PARTS), "must be 0 or 1, as planned",
                      1, read->scale_parts);
    TEGROUP_IMPL_RULE(listed || ((int64_t)(uintptr_t)read->scale_inv & starts) == 0, ERROR_ALIGNMENT, paths.scales,
                      "must be aligned for cuBLASLt, to 16 bytes where a group has several scales", starts + 1,
                      (int64_t)(uintptr_t)read->scale_inv & starts);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_lt_grouped_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                           const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    const int32_t alignment = lt.alignment;
    TEGROUP_IMPL_TRY(tegroup_impl_check_terms(lt.has_algorithm, desc, names, error));
    TEGROUP_IMPL_RULE(desc->options.cublaslt != NULL, ERROR_NULL_ARGUMENT, "options.cublaslt", "must not be NULL", 1,
                      0);
    TEGROUP_IMPL_RULE(!tegroup_impl_placed(desc) || (desc->options.data_alignment_bytes >= 16 && alignment == 16),
                      ERROR_ALIGNMENT, "options.data_alignment_bytes",
                      "must say, here and in the plan, that groups at shape.offsets begin at multiples of 16 bytes", 16,
                      desc->options.data_alignment_bytes);
    for (int i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++) {
        const tegroup_impl_operand operand = (tegroup_impl_operand)i;
        const tegroup_tensor read = tegroup_impl_as_read(desc, operand);
        TEGROUP_IMPL_TRY(tegroup_impl_lt_grouped_scaled(desc, &read, operand, names->operand[i], error));
        TEGROUP_IMPL_TRY(tegroup_impl_lt_grouped_operand(
            &read, names->operand[i], tegroup_impl_reads_columnwise(desc, operand), alignment, error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_lt_grouped_operand(&desc->c, names->operand[TEGROUP_IMPL_C], 0, alignment, error));
    return tegroup_impl_lt_grouped_operand(&desc->d, names->operand[TEGROUP_IMPL_D], 0, alignment, error);
}

/* Sets up all groups of quantised operands. Zeros of an empty group's weight gradient are written by several blocks. */
static inline tegroup_status tegroup_impl_lt_grouped_setup_scaled(const tegroup_impl_gpu_call *gpu,
                                                                  const tegroup_impl_setup_call *call,
                                                                  struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_setup_both both = {{tegroup_impl_setup_scaled_of(&gpu->desc, TEGROUP_IMPL_A),
                                           tegroup_impl_setup_scaled_of(&gpu->desc, TEGROUP_IMPL_B)}};
    const dim3 blocks((unsigned)call->groups, call->op == TEGROUP_OP_WGRAD ? 8 : 1);
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(tegroup_impl_setup_scaled_kernel, blocks, 128, 0, stream, *call, both), "stream",
        "the set-up kernel must launch", error);
}

/* Sets up all groups, 32 a block; or one a block if the kernel is likely to write large results that cuBLASLt is not
 * asked for, so that the whole device writes them. */
static inline tegroup_status tegroup_impl_lt_grouped_setup(const tegroup_problem *p,
                                                           const tegroup_impl_setup_call *call,
                                                           struct CUstream_st *stream, tegroup_error *error) {
    const int device_scalars = p->alpha_space == TEGROUP_SPACE_DEVICE || p->beta_space == TEGROUP_SPACE_DEVICE;
    const int apart = p->irregular || call->termless
                      || (p->op == TEGROUP_OP_WGRAD && (p->c != TEGROUP_DTYPE_UNSET || device_scalars));
    const int32_t threads = apart ? 128 : 32, each = apart ? 1 : 32;
    const unsigned blocks = (unsigned)tegroup_impl_ceil_div(p->groups, each);
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(call->usual ? tegroup_impl_setup_kernel<true> : tegroup_impl_setup_kernel<false>, blocks,
                            threads, 0, stream, each, *call),
        "stream", "the set-up kernel must launch", error);
}

static inline tegroup_status tegroup_impl_lt_grouped_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    tegroup_gemm_desc read = *desc;
    tegroup_impl_setup_take_copies(&read);
    const tegroup_impl_gpu_call call = tegroup_impl_gpu_call_of(&read);
    const tegroup_impl_setup_items items = tegroup_impl_setup_items_of(plan->problem.groups, desc->options.workspace);
    const tegroup_layout_item part = tegroup_impl_lt_grouped_part(plan);
    const int device_scalars = tegroup_impl_lt_device_scalars(&plan->problem);
    const float beta = desc->accumulate ? 1.0f : call.beta;
    const void *alphas =
        device_scalars ? tegroup_impl_setup_at(&items, TEGROUP_IMPL_SETUP_ALPHA) : (const void *)&call.alpha;
    const void *betas = device_scalars ? tegroup_impl_setup_at(&items, TEGROUP_IMPL_SETUP_BETA) : (const void *)&beta;
    const tegroup_impl_setup_call setup =
        tegroup_impl_setup_call_of(&call.desc, call.views, call.alpha, call.beta, items);
    tegroup_impl_lt_matmul m;
    int code;
    if (plan->problem.groups == 0) return TEGROUP_OK;
    if (lt.has_algorithm) {
        code = tegroup_impl_lt_grouped(&lt.functions, plan, &items, &m);
        TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_quantised(&plan->problem)
                         ? tegroup_impl_lt_grouped_setup_scaled(&call, &setup, stream, error)
                         : tegroup_impl_lt_grouped_setup(&plan->problem, &setup, stream, error));
    if (!lt.has_algorithm) return TEGROUP_OK;
    code = TEGROUP_IMPL_LT(&lt.functions, cublasLtMatmul)(
        desc->options.cublaslt, &m.desc, alphas, tegroup_impl_setup_at(&items, TEGROUP_IMPL_SETUP_A), &m.a,
        tegroup_impl_setup_at(&items, TEGROUP_IMPL_SETUP_B), &m.b, betas,
        tegroup_impl_setup_at(&items, m.in_place ? TEGROUP_IMPL_SETUP_D : TEGROUP_IMPL_SETUP_C), tegroup_impl_lt_c(&m),
        tegroup_impl_setup_at(&items, TEGROUP_IMPL_SETUP_D), &m.d, &lt.algorithm,
        (char *)desc->options.workspace + part.offset_bytes, part.bytes, stream);
    return tegroup_impl_lt_status(code, "stream", "cublasLtMatmul must take the planned product", error);
}

/* ==== [41] cublaslt_loop (src/cuda/cublaslt_loop.h) ==== */

/* One algorithm serves every group. The plan chooses it, for a group of the mean size, from those that do not split k.
 * So a call does not run the heuristic, which takes tens of microseconds a shape, and a row's bits do not depend on its
 * group's number of rows. The price is that a group far from the mean may run slower than with an algorithm of its
 * own. */

/* Describes the four matrices of a group by plain layouts. Dimensions are at least 1. */
static inline int tegroup_impl_lt_layouts(const tegroup_cublaslt_functions *f, const tegroup_plan *plan, int64_t rows,
                                          int64_t cols, int64_t k, const int64_t ld[4], tegroup_impl_lt_matmul *m) {
    const tegroup_problem *p = &plan->problem;
    const int forward = p->op == TEGROUP_OP_FORWARD, wgrad = p->op == TEGROUP_OP_WGRAD;
    tegroup_impl_lt_opaque *const layouts[4] = {&m->a, &m->b, &m->c, &m->d};
    const tegroup_dtype dtypes[4] = {p->b, p->a, p->d, p->d};
    const int64_t high[4] = {forward ? k : rows, wgrad ? cols : k, rows, rows};
    const int64_t wide[4] = {forward ? rows : k, wgrad ? k : cols, cols, cols};
    int code = 0;
    m->in_place = tegroup_impl_lt_in_place(plan);
    for (int i = 0; i < 4 && !code; i++) {
        if (m->in_place && layouts[i] == &m->c) continue;
        code = TEGROUP_IMPL_LT(f, cublasLtMatrixLayoutInit_internal)(
            layouts[i], sizeof *layouts[i], tegroup_impl_lt_dtype(dtypes[i]), (uint64_t)high[i], (uint64_t)wide[i],
            ld[i] > 0 ? ld[i] : high[i]);
    }
    return code;
}

/* Writes scalars in device memory to the workspace as floats. */
static __global__ void tegroup_impl_scalars_kernel(const tegroup_scalars alpha, const tegroup_scalars beta, float one,
                                                   float zero, int32_t groups, float *alphas, float *betas) {
    const int32_t g = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (g >= groups) return;
    alphas[g] = (float)tegroup_impl_scalar(&alpha, g, one);
    betas[g] = (float)tegroup_impl_scalar(&beta, g, zero);
}

/* Writes beta * C for a group without terms. */
static __global__ void tegroup_impl_empty_kernel(const __grid_constant__ tegroup_impl_result p, tegroup_dtype dtype,
                                                 float beta, const float *beta_at) {
    tegroup_impl_write_alone(p, dtype, beta_at ? *beta_at : beta, false, (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                             (int64_t)gridDim.x * blockDim.x);
}

/* Whether D is always computed in place, and a C that lies elsewhere is copied into D first. The library adds in
 * another way if C is D (see the quirk), and a plan does not know where C will be. */
static inline int tegroup_impl_lt_loop_in_d(const tegroup_plan *plan) {
    return plan->problem.d != TEGROUP_DTYPE_F32 && tegroup_impl_lt_avoids(plan, TEGROUP_QUIRK_ADDED_HALVES);
}

static __global__ void tegroup_impl_bring_kernel(const __grid_constant__ tegroup_impl_result p, const float *beta_at) {
    const uint16_t *c = (const uint16_t *)(uintptr_t)p.c;
    uint16_t *d = (uint16_t *)(uintptr_t)p.d;
    if (beta_at && *beta_at == 0) return; /* a beta of 0 means that C is not read */
    for (int64_t i = blockIdx.x; i < p.m; i += gridDim.x)
        for (int64_t j = threadIdx.x; j < p.n; j += blockDim.x) d[i * p.ldd + j] = c[i * p.ldc + j];
}

/* Bytes of the workspace that each stream's matmuls have for themselves. */
static inline int64_t tegroup_impl_lt_loop_slot(const tegroup_plan *plan) {
    return tegroup_impl_align((int64_t)plan->cublas_workspace_bytes, TEGROUP_ALIGNMENT);
}

/* Collects what the library offers for a group of the mean size whose addresses are multiples of `alignment` bytes. */
static inline tegroup_status tegroup_impl_lt_loop_ask(const tegroup_gemm_desc *desc, const tegroup_plan *plan,
                                                      const tegroup_impl_lt_plan *lt, int32_t alignment,
                                                      tegroup_impl_choices *choices, tegroup_error *error) {
    const tegroup_problem *p = &plan->problem;
    const int64_t ld[4] = {p->ldb, p->lda, p->ldc && !tegroup_impl_lt_loop_in_d(plan) ? p->ldc : p->ldd, p->ldd};
    const tegroup_impl_lt_size usual = tegroup_impl_lt_size_of(p, tegroup_impl_lt_mean(desc, p));
    tegroup_impl_choice offered[TEGROUP_IMPL_LT_OFFERED];
    tegroup_impl_lt_matmul m;
    int code = tegroup_impl_lt_describe(&lt->functions, p, 0, &m.desc);
    if (!code) code = tegroup_impl_lt_layouts(&lt->functions, plan, usual.rows, usual.cols, usual.k, ld, &m);
    TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
    const int32_t count =
        tegroup_impl_lt_offers(&lt->functions, desc->options.cublaslt, &m, tegroup_impl_lt_loop_slot(plan), alignment,
                               NULL, offered, TEGROUP_IMPL_LT_OFFERED, &code);
    for (int32_t i = 0; i < count; i++) tegroup_impl_choices_add(choices, &offered[i]);
    return count > 0 ? TEGROUP_OK : tegroup_impl_lt_nothing(code, error);
}

static inline tegroup_status tegroup_impl_lt_loop_choices(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          tegroup_impl_choices *choices, tegroup_error *error) {
    const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    return lt.has_algorithm ? tegroup_impl_lt_loop_ask(desc, plan, &lt, lt.alignment, choices, error) : TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_lt_loop_plan(const tegroup_gemm_desc *desc, const tegroup_impl_names *,
                                                       tegroup_plan *plan, tegroup_error *error) {
    const tegroup_problem *p = &plan->problem;
    const int32_t element = (int32_t)tegroup_impl_min(tegroup_impl_bits(p->a), tegroup_impl_bits(p->d)) / 8;
    tegroup_impl_choices aligned, unaligned;
    tegroup_impl_lt_plan lt;
    memset(&lt, 0, sizeof lt);
    aligned.count = unaligned.count = 0;
    lt.functions = tegroup_impl_lt_find(desc);
    lt.alignment = tegroup_impl_lt_alignment(desc, p, 16);
    lt.has_algorithm = p->groups > 0 && !tegroup_impl_termless(desc);
    if (lt.has_algorithm) {
        TEGROUP_IMPL_TRY(tegroup_impl_lt_loop_ask(desc, plan, &lt, lt.alignment, &aligned, error));
        lt.algorithm = aligned.list[0];
        lt.has_unaligned = tegroup_impl_lt_loop_ask(desc, plan, &lt, element, &unaligned, NULL) == TEGROUP_OK;
        if (lt.has_unaligned) lt.unaligned = unaligned.list[0];
    }
    tegroup_impl_lt_planned(plan, &lt);
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_lt_loop_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                        const tegroup_impl_names *names, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_terms(tegroup_impl_lt_plan_of(plan).has_algorithm, desc, names, error));
    TEGROUP_IMPL_RULE(desc->options.cublaslt != NULL, ERROR_NULL_ARGUMENT, "options.cublaslt", "must not be NULL", 1,
                      0);
    TEGROUP_IMPL_RULE(tegroup_impl_max(1, desc->options.stream_count) == plan->cublas_parts, ERROR_PLAN,
                      "options.stream_count", "must be as planned: each stream has a part of the workspace",
                      plan->cublas_parts, desc->options.stream_count);
    if (desc->options.stream_count == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(desc->options.streams != NULL, ERROR_NULL_ARGUMENT, "options.streams", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->options.events != NULL, ERROR_NULL_ARGUMENT, "options.events", "must not be NULL", 1, 0);
    for (int32_t i = 0; i <= desc->options.stream_count; i++)
        TEGROUP_IMPL_RULE(desc->options.events[i] != NULL, ERROR_NULL_ARGUMENT, "options.events",
                          "must hold no NULL; got the event's index", -1, i);
    return TEGROUP_OK;
}

/* What all groups of a call share. */
typedef struct tegroup_impl_lt_loop {
    const tegroup_impl_lt_plan *lt;
    tegroup_gemm_desc desc; /* without scalars in device memory, which the host must not read */
    tegroup_snapshot_view views[4];
    tegroup_impl_lt_matmul m;
    float *alphas, *betas; /* in device memory; NULL: the scalars are on the host */
    int32_t aligned, in_d;
} tegroup_impl_lt_loop;

static inline char *tegroup_impl_lt_address(const tegroup_impl_block *block, tegroup_dtype dtype) {
    return (char *)((uintptr_t)block->base + (uintptr_t)(block->first * (tegroup_impl_bits(dtype) / 8)));
}

static inline tegroup_status tegroup_impl_lt_loop_group(tegroup_impl_lt_loop *loop, const tegroup_plan *plan, int32_t g,
                                                        char *slot, int64_t slot_bytes, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    const tegroup_impl_lt_plan *lt = loop->lt;
    const tegroup_gemm_desc *desc = &loop->desc;
    const tegroup_impl_product p = tegroup_impl_product_of(desc, loop->views, g, 1, 0);
    const int has_c = desc->accumulate || desc->c.dtype != TEGROUP_DTYPE_UNSET;
    const float alpha = (float)p.alpha, beta = has_c ? (float)p.beta : 0;
    const int in_d = loop->in_d;
    const int64_t ld[4] = {p.b.ld, p.a.ld, has_c && !in_d ? p.c.ld : p.d.ld, p.d.ld};
    const void *a = tegroup_impl_lt_address(&p.a, desc->a.dtype), *b = tegroup_impl_lt_address(&p.b, desc->b.dtype);
    void *d = tegroup_impl_lt_address(&p.d, desc->d.dtype);
    const void *c = has_c ? tegroup_impl_lt_address(&p.c, desc->d.dtype) : d;
    const float *beta_at = loop->betas ? loop->betas + g : NULL;
    const tegroup_impl_result whole = {p.m, p.n, p.c.ld, p.d.ld, (int64_t)(uintptr_t)c, (int64_t)(uintptr_t)d};
    tegroup_impl_lt_result result;
    const tegroup_impl_choice *algorithm;
    int code;
    if (p.skip || p.m <= 0 || p.n <= 0 || (p.untouched && (!loop->betas || desc->accumulate))) return TEGROUP_OK;
    if (p.k <= 0) {
        const int64_t blocks = tegroup_impl_min(1024, tegroup_impl_ceil_div(p.m * p.n, 256));
        return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_empty_kernel, (unsigned)blocks, 256, 0, stream,
                                                            whole, desc->d.dtype, beta, beta_at),
                                        "stream", "the kernel must launch", error);
    }
    if (in_d && c != d && (beta_at || beta != 0))
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_bring_kernel,
                                                                      (unsigned)tegroup_impl_min(4096, p.m), 256, 0,
                                                                      stream, whole, beta_at),
                                                  "stream", "the kernel must launch", error));
    code = tegroup_impl_lt_layouts(&lt->functions, plan, p.n, p.m, p.k, ld, &loop->m);
    TEGROUP_IMPL_TRY(tegroup_impl_lt_status(code, "plan", "must be describable to cuBLASLt", error));
    /* an algorithm that cannot run this shape is replaced by the library's own choice: for NULL it runs its
     * heuristic */
    algorithm = loop->aligned ? &lt->algorithm : lt->has_unaligned ? &lt->unaligned : NULL;
    if (algorithm
        && (TEGROUP_IMPL_LT(&lt->functions, cublasLtMatmulAlgoCheck)(desc->options.cublaslt, &loop->m.desc, &loop->m.a,
                                                                     &loop->m.b, tegroup_impl_lt_c(&loop->m),
                                                                     &loop->m.d, algorithm, &result)
            || (int64_t)result.workspace_bytes > slot_bytes))
        algorithm = NULL;
    code = TEGROUP_IMPL_LT(&lt->functions, cublasLtMatmul)(
        desc->options.cublaslt, &loop->m.desc, loop->alphas ? (const void *)(loop->alphas + g) : &alpha, b, &loop->m.a,
        a, &loop->m.b, beta_at ? (const void *)beta_at : &beta, in_d ? d : c, tegroup_impl_lt_c(&loop->m), d,
        &loop->m.d, algorithm, slot, (size_t)slot_bytes, stream);
    return tegroup_impl_lt_status(code, "stream", "cublasLtMatmul must take each group", error);
}

/* Whether every group's address is as aligned as the chosen algorithm was told. */
static inline int tegroup_impl_lt_loop_aligned(const tegroup_gemm_desc *desc, int32_t alignment, int in_d) {
    const tegroup_tensor *tensors[4] = {&desc->a, &desc->b, &desc->c, &desc->d};
    for (int i = 0; i < 4; i++) {
        const tegroup_tensor *t = tensors[i];
        if (t->dtype == TEGROUP_DTYPE_UNSET || (t == &desc->c && in_d)) continue;
        if (!tegroup_impl_listed(t) && !tegroup_impl_aligned(t->data, (size_t)alignment)) return 0;
        if (!tegroup_impl_listed(t) && !tegroup_impl_ragged(&t->shape) && t->shape.groups > 1
            && tegroup_impl_group_stride(t) * (tegroup_impl_bits(t->dtype) / 8) % alignment != 0)
            return 0; /* the plan may have had another stride; other distances are as planned */
        for (int32_t g = 0; tegroup_impl_listed(t) && g < t->shape.groups; g++)
            if (!tegroup_impl_aligned(t->pointers[g], (size_t)alignment)) return 0;
    }
    return 1;
}

static inline tegroup_status tegroup_impl_lt_loop_capture(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    int ragged = 0;
    for (int i = 0; i < 4; i++) ragged |= plan->problem.rows_space[i] == TEGROUP_SPACE_HOST;
    return tegroup_impl_cuda_check_capture(!ragged || desc->options.host_sizes_final, "options.host_sizes_final",
                                           stream, error);
}

static inline tegroup_status tegroup_impl_lt_loop_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                       struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_lt_plan lt = tegroup_impl_lt_plan_of(plan);
    const tegroup_problem *p = &plan->problem;
    const tegroup_tensor *tensors[4] = {&desc->a, &desc->b, &desc->c, &desc->d};
    const int32_t forks = (int32_t)tegroup_impl_min(desc->options.stream_count, p->groups);
    const int64_t slot_bytes = tegroup_impl_lt_loop_slot(plan);
    char *slots = (char *)desc->options.workspace;
    tegroup_impl_lt_loop loop;
    int32_t forked = 0; /* streams that wait for `stream` */
    cudaError_t cuda = cudaSuccess;
    tegroup_status status = TEGROUP_OK;
    int code;
    TEGROUP_IMPL_TRY(tegroup_impl_lt_loop_capture(plan, desc, stream, error));
    if (p->groups == 0) return TEGROUP_OK;
    memset(&loop, 0, sizeof loop);
    loop.lt = &lt;
    loop.desc = *desc;
    loop.in_d = tegroup_impl_lt_loop_in_d(plan);
    loop.aligned = tegroup_impl_lt_loop_aligned(desc, lt.alignment, loop.in_d);
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
        tegroup_layout layout;
        tegroup_impl_layout_begin(&layout);
        tegroup_impl_lt_loop_workspace(plan, &layout);
        loop.alphas = (float *)tegroup_impl_layout_at(&layout, 1, desc->options.workspace);
        loop.betas = (float *)tegroup_impl_layout_at(&layout, 2, desc->options.workspace);
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
            tegroup_impl_launch(tegroup_impl_scalars_kernel, (unsigned)tegroup_impl_ceil_div(p->groups, 128), 128, 0,
                                stream, alpha, beta, one, zero, p->groups, loop.alphas, loop.betas),
            "stream", "the kernel must launch", error));
    }
    if (forks > 0) cuda = cudaEventRecord(desc->options.events[0], stream);
    while (forked < forks && cuda == cudaSuccess) {
        cuda = cudaStreamWaitEvent(desc->options.streams[forked], desc->options.events[0], 0);
        forked += cuda == cudaSuccess;
    }
    status = tegroup_impl_cuda_status(cuda, "options.streams", "must wait for stream", error);
    /* the largest groups first, round-robin over the streams */
    for (int32_t i = 0; i < p->groups && status == TEGROUP_OK; i++) {
        const int32_t g = loop.views[TEGROUP_IMPL_A].order ? loop.views[TEGROUP_IMPL_A].order[i] : i;
        const int32_t fork = forks > 0 ? i % forks : 0;
        status = tegroup_impl_lt_loop_group(&loop, plan, g, slots + fork * slot_bytes, slot_bytes,
                                            forks > 0 ? desc->options.streams[fork] : stream, error);
    }
    for (int32_t i = 0; i < forked; i++) { /* joined whatever happened, so that a capture can end */
        cudaError_t joined = cudaEventRecord(desc->options.events[i + 1], desc->options.streams[i]);
        if (joined == cudaSuccess) joined = cudaStreamWaitEvent(stream, desc->options.events[i + 1], 0);
        if (cuda == cudaSuccess) cuda = joined;
    }
    TEGROUP_IMPL_TRY(status);
    return tegroup_impl_cuda_status(cuda, "options.events", "must join streams with stream", error);
}
#endif /* TEGROUP_NO_CUBLASLT */
#if !defined(TEGROUP_NO_FP8)

/* ==== [42] Quantised operands on a GPU, from codes to values (src/cuda/codes.h) ==== */

/* What the kernels that read quantised operands share: where a group's codes and scales are, and how codes become
 * values of BF16 or F16. Values of 8 and 4 bits are exact in both (F4E2M1 and what has scales of 8 bits is decoded to
 * BF16 alone), by arithmetic on bits that is the same on every GPU. A value times a scale of 8 bits is exact in BF16,
 * too, or is rounded to it once. */

/* What a kernel is given besides the call. */
typedef struct tegroup_impl_gpu_formats {
    tegroup_impl_scaled first[2];   /* before the first group */
    tegroup_scaling_facts facts[2]; /* what first[].facts points to, in the kernel */
    int32_t bf16;                   /* values are multiplied in BF16, else in F16 */
} tegroup_impl_gpu_formats;

static inline tegroup_impl_gpu_formats tegroup_impl_gpu_formats_of(const tegroup_gemm_desc *desc) {
    const tegroup_tensor *operands[2] = {&desc->a, &desc->b};
    tegroup_impl_gpu_formats formats;
    memset(&formats, 0, sizeof formats);
    formats.bf16 = desc->a.dtype != TEGROUP_DTYPE_F16 && desc->b.dtype != TEGROUP_DTYPE_F16;
    for (int i = 0; i < 2; i++) {
        formats.first[i] = tegroup_impl_scaled_of(desc, (tegroup_impl_operand)i);
        formats.facts[i] = *tegroup_scaling_info(operands[i]->scaling);
    }
    return formats;
}

/* An operand of a tile. Element k of a line is at `at` + line * line_stride + k * k_stride. */
typedef struct tegroup_impl_gpu_codes {
    tegroup_impl_scaled of; /* its group; of.facts is NULL if it is not quantised */
    const char *data;
    int64_t at, line_stride, k_stride, k_bits; /* k_bits: of k_stride elements */
    int64_t first_line; /* of the tile, in the group */
    int32_t lines;      /* that the tile has, at most 128 */
    int32_t bits;       /* of an element */
    int32_t groups;     /* that `of` has counted */
    tegroup_dtype dtype;
    bool along_k, aligned; /* lines are contiguous; 16 elements are one or two loads */
    bool k_is_inner;       /* scales are along k, else along the lines */
} tegroup_impl_gpu_codes;

/* ---- an operand of a tile ---- */

/* Goes on to group g; all lanes of a warp call it. Copies and scales that lie a group after another begin where those
 * of the groups before end. */
static __device__ __forceinline__ void tegroup_impl_gpu_codes_reach(const tegroup_tensor &t,
                                                                    const tegroup_snapshot_view &view, int32_t g,
                                                                    tegroup_impl_gpu_codes *codes) {
    const int32_t lane = (int32_t)threadIdx.x & 31;
    int32_t first = codes->groups;
    int64_t elements = 0, stored = 0;
    if (!codes->of.facts || first > g) return; /* which it is at already */
    for (int32_t h = first + lane; h < g; h += 32) {
        const tegroup_impl_sides sides = tegroup_impl_group_sides(&t, &view, h);
        elements += tegroup_impl_transposed_count(sides);
        stored += tegroup_impl_scale_grid_alone(&t, codes->of.facts, sides, codes->of.columnwise).count;
    }
    for (int32_t apart = 16; apart > 0; apart /= 2) {
        elements += __shfl_xor_sync(0xffffffffu, elements, apart);
        stored += __shfl_xor_sync(0xffffffffu, stored, apart);
    }
    __syncwarp(); /* All lanes have read what the first one changes. */
    if (lane == 0) {
        codes->of.elements += elements;
        codes->of.stored += stored;
        tegroup_impl_scaled_next(&codes->of, &t, &view, g);
        codes->groups = g + 1;
    }
    __syncwarp();
}

/* Are the scales that a line has in parts of k? */
static __device__ __forceinline__ bool tegroup_impl_gpu_codes_in_parts(const tegroup_impl_gpu_codes &codes) {
    return codes.of.grid.parts > 1 && codes.of.sums_rows;
}
/* The index of the scale of an element. A call of its own, as it may take divisions of 64 bits. */
static __device__ __noinline__ int64_t tegroup_impl_gpu_codes_scale(const tegroup_impl_gpu_codes &codes, int64_t line,
                                                                    int64_t k) {
    const int64_t i = codes.first_line + line, outer = codes.k_is_inner ? i : k, inner = codes.k_is_inner ? k : i;
    return tegroup_impl_scale_at(&codes.of.grid, outer, inner);
}

/* Elements of k that share a scale, and lines. */
static __device__ __forceinline__ int64_t tegroup_impl_gpu_codes_k_block(const tegroup_impl_gpu_codes &codes) {
    return codes.k_is_inner ? codes.of.grid.block_inner : codes.of.grid.block_outer;
}
static __device__ __forceinline__ int64_t tegroup_impl_gpu_codes_line_block(const tegroup_impl_gpu_codes &codes) {
    return codes.k_is_inner ? codes.of.grid.block_outer : codes.of.grid.block_inner;
}

/* Where a line of a tile has its scales, which a thread loads one after another. */
struct tegroup_impl_gpu_line_scales {
    int64_t from; /* the index of the first */
    int32_t line;
    bool there, strided; /* the line exists and has scales; they are at strides along k */

    __device__ __forceinline__ void open(const tegroup_impl_gpu_codes &codes, int32_t which) {
        line = which;
        there = codes.of.facts && line < codes.lines;
        strided = codes.k_is_inner && !tegroup_impl_gpu_codes_in_parts(codes);
        from = there && strided ? tegroup_impl_gpu_codes_scale(codes, line, 0) : 0;
    }
    __device__ __forceinline__ int64_t index(const tegroup_impl_gpu_codes &codes, int64_t k) const {
        const tegroup_impl_scale_grid &grid = codes.of.grid;
        if (!strided) return tegroup_impl_gpu_codes_scale(codes, line, k);
        const int64_t at = k >> grid.inner_shift;
        if (grid.swizzled) return from + (at >> 2) * 512 + (at & 3);
        return from + (grid.packed ? (at >> 2) * grid.inner_stride + (at & 3) : at * grid.inner_stride);
    }
};

/* Before the first group. */
static __device__ __forceinline__ void tegroup_impl_gpu_codes_begin(const tegroup_impl_gpu_formats &formats, int which,
                                                                    tegroup_impl_gpu_codes *codes) {
    codes->of = formats.first[which];
    if (codes->of.facts) codes->of.facts = &formats.facts[which];
    codes->groups = 0;
}

/* Opens the operand of a tile, whose group it has reached. plain: where an operand that is not quantised begins. */
static __device__ __forceinline__ void tegroup_impl_gpu_codes_open(const tegroup_tensor &t, bool sums_rows,
                                                                   const char *plain, int64_t plain_row, int64_t line,
                                                                   int32_t lines, tegroup_impl_gpu_codes *codes) {
    const tegroup_impl_scaled &of = codes->of;
    codes->dtype = t.dtype;
    codes->bits = tegroup_impl_bits(t.dtype);
    codes->first_line = line;
    codes->lines = lines;
    codes->along_k = !sums_rows || tegroup_impl_transposed(&t, of.columnwise);
    codes->k_is_inner = of.sums_rows == of.columnwise;
    codes->data = of.facts ? (const char *)of.data : plain;
    codes->line_stride = of.facts ? of.line_stride : sums_rows ? 1 : plain_row / 2;
    codes->k_stride = of.facts ? of.k_stride : sums_rows ? plain_row / 2 : 1;
    codes->k_bits = codes->k_stride * codes->bits;
    codes->at = of.facts ? of.first + line * of.line_stride : 0;
    const uint64_t stride = (uint64_t)(codes->along_k ? codes->line_stride : codes->k_stride),
                   bit = (uint64_t)(uintptr_t)codes->data * 8 + (uint64_t)codes->at * (uint32_t)codes->bits;
    codes->aligned = ((bit | stride * (uint32_t)codes->bits) & (codes->bits == 4 ? 63 : 127)) == 0;
}

/* ---- pieces: 16 elements that are neighbours in memory ---- */

/* Element by element, from the last to the first, each pushing the others on. */
static __device__ __forceinline__ void tegroup_impl_gpu_piece_slowly(const tegroup_impl_gpu_codes &codes, int64_t at,
                                                                     int32_t count, uint32_t (&raw)[8]) {
#pragma unroll 1
    for (at += count; count > 0; count--) {
        at--;
#pragma unroll
        for (int i = 7; i > 0; i--) raw[i] = __funnelshift_l(raw[i - 1], raw[i], (uint32_t)codes.bits);
        raw[0] = raw[0] << codes.bits | tegroup_impl_load_code(codes.dtype, codes.data, at);
    }
}

/* Loads the words of a whole piece from an aligned address. */
static __device__ __forceinline__ void tegroup_impl_gpu_piece_at(const char *from, int32_t bits, uint32_t (&raw)[8]) {
    if (bits == 4) {
        const uint2 both = __ldg((const uint2 *)from);
        raw[0] = both.x, raw[1] = both.y;
        return;
    }
    const uint4 low = __ldg((const uint4 *)from);
    raw[0] = low.x, raw[1] = low.y, raw[2] = low.z, raw[3] = low.w;
    if (bits == 8) return;
    const uint4 high = __ldg((const uint4 *)from + 1);
    raw[4] = high.x, raw[5] = high.y, raw[6] = high.z, raw[7] = high.w;
}

/* a * b of two halves, each rounded once; the -0 that is added keeps the sign of a zero. */
static __device__ __forceinline__ uint32_t tegroup_impl_gpu_mul2(uint32_t a, uint32_t b, bool bf16) {
    uint32_t product;
    if (bf16) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

/* How a type's codes become halves: the bits below the sign are shifted to where a half has its mantissa and the low
 * bits of its exponent, and a power of two makes good for the other bias, subnormal codes included, exactly. Codes of
 * 8 bits whose bits below the sign, `mask` of them, and `carry` add up to 128 get the exponent of infinity and NaN. */
typedef struct tegroup_impl_gpu_decoding {
    uint32_t power, mask, carry, infinity;
    int32_t shift;
} tegroup_impl_gpu_decoding;

static __device__ __forceinline__ tegroup_impl_gpu_decoding tegroup_impl_gpu_decoding_of(tegroup_dtype dtype,
                                                                                         bool bf16) {
    const bool e4m3 = dtype == TEGROUP_DTYPE_F8E4M3, fp4 = dtype == TEGROUP_DTYPE_F4E2M1;
    tegroup_impl_gpu_decoding how;
    /* BF16: 2^126, 2^120, 2^112; F16: 2^8, 1 */
    how.power = bf16 ? (fp4 ? 0x7e807e80u : e4m3 ? 0x7b807b80u : 0x77807780u) : e4m3 ? 0x5c005c00u : 0x3c003c00u;
    how.shift = bf16 ? (e4m3 ? 4 : 3) : e4m3 ? 1 : 0;
    how.mask = e4m3 ? 0x7f7f7f7fu : 0x7c7c7c7cu;
    how.carry = e4m3 ? 0x01010101u : 0x04040404u;
    how.infinity = bf16 ? 0x7f807f80u : 0x7c007c00u;
    return how;
}

/* The two codes of E2M1 of a byte, which comes four times, as numbers of BF16 times 2^-126: the code of its lower bits
 * in the lower half. Of the copies the lowest has the lower code, the second the upper one's sign, and the third what
 * is left of that. The product moves each to its place, where no other is and no carry comes. */
static __device__ __forceinline__ uint32_t tegroup_impl_gpu_two_of_e2m1(uint32_t byte) {
    return (byte & 0x0070800fu) * 0x00011044u & 0x81c081c0u;
}

/* Two codes of E4M3, each in both bytes of a half, as numbers of BF16 times 2^-120, NaN as 480; and which are NaN, by
 * the highest bit of their half. */
static __device__ __forceinline__ uint32_t tegroup_impl_gpu_two_of_e4m3(uint32_t two) {
    return (two & 0x80008000u) | (two & 0x007f007fu) << 4;
}
static __device__ __forceinline__ uint32_t tegroup_impl_gpu_nans_of_e4m3(uint32_t two) {
    return ((two & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
}

/* Decodes a piece in place. */
static __device__ __forceinline__ void tegroup_impl_gpu_decode(const tegroup_impl_gpu_decoding &how, int32_t bits,
                                                               bool bf16, uint32_t (&raw)[8]) {
    if (bits == 4) {
#pragma unroll
        for (int i = 7; i >= 0; i--)
            raw[i] = tegroup_impl_gpu_mul2(
                tegroup_impl_gpu_two_of_e2m1(__byte_perm(raw[i / 4], 0, 0x1111u * (uint32_t)(i % 4))), how.power, bf16);
    } else if (bits == 8) {
        uint32_t flags[4], any = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) any |= flags[i] = ((raw[i] & how.mask) + how.carry) & 0x80808080u;
#pragma unroll
        for (int i = 7; i >= 0; i--) {
            const uint32_t two = __byte_perm(raw[i / 2], 0, i % 2 ? 0x3424 : 0x1404);
            raw[i] = tegroup_impl_gpu_mul2((two & 0x80008000u) | (two & 0x7f007f00u) >> how.shift, how.power, bf16);
        }
        if (any) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t two = __byte_perm(flags[i / 2], 0, i % 2 ? 0x3424 : 0x1404);
                raw[i] |= (two - (two >> 15)) & how.infinity;
            }
        }
    }
}

/* A scale of 8 bits as one of BF16. Those of E8M0 are its exponents, but for the least, which is subnormal, and NaN; of
 * E4M3, codes are decoded as any are. */
static __device__ __forceinline__ uint32_t tegroup_impl_gpu_half_of_scale(bool e8m0, uint32_t code) {
    if (e8m0) return code << 7 | (((code + 1) & 0xfeu) == 0 ? 0x40u : 0u);
    const uint32_t half = (code & 0x80u) << 8 | (code & 0x7fu) << 4;
    return (code & 0x7fu) == 0x7fu
               ? 0x7fffu
               : tegroup_impl_gpu_mul2(half, tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F8E4M3, true).power, true)
                     & 0xffffu;
}

/* ---- the bias gradient ---- */

#if TEGROUP_IMPL_BACKWARD_KERNELS
/* The bias gradient of a quantised dY: tegroup_impl_bias_grad_kernel with scales. */
static __global__ void __launch_bounds__(128)
    tegroup_impl_formats_bias_grad_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                          const __grid_constant__ tegroup_impl_gpu_formats formats) {
    __shared__ tegroup_impl_product p;
    __shared__ tegroup_impl_gpu_codes codes;
    const tegroup_gemm_desc &desc = call.desc;
    const int32_t g = (int32_t)blockIdx.y;
    const int which = desc.bias_of_b ? TEGROUP_IMPL_B : TEGROUP_IMPL_A;
    const tegroup_tensor &dy = desc.bias_of_b ? desc.b : desc.a;
    if (threadIdx.x == 0) {
        tegroup_impl_gpu_codes_begin(formats, which, &codes);
        p.skip = 1;
        if (tegroup_impl_prepared(call)) p = tegroup_impl_product_of(&desc, call.views, g, 1, 0);
    }
    __syncthreads();
    if (p.skip) return;
    if (threadIdx.x < 32) tegroup_impl_gpu_codes_reach(dy, call.views[which], g, &codes);
    __syncthreads();
    const int64_t j = (int64_t)blockIdx.x * 128 + threadIdx.x;
    const tegroup_impl_block &rows = *tegroup_impl_biased_block(&desc, &p);
    if (j >= tegroup_impl_min(rows.cols, p.bias.cols) || (desc.accumulate && rows.rows == 0)) return;
    const tegroup_impl_scaled &of = codes.of;
    float sum = 0, scale = 0;
    int64_t shared = 0;
    for (int64_t r = 0; r < rows.rows; r++, shared--) {
        if (shared == 0) scale = (float)tegroup_impl_scale_along(&of, j, r, &shared);
        const float x = tegroup_impl_f32_of_code(
                        of.dtype,
                        tegroup_impl_load_code(of.dtype, of.data, of.first + j * of.line_stride + r * of.k_stride)),
                    by = desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
                             ? 1.0f
                             : tegroup_impl_load_f32(desc.row_scale_dtype, desc.row_scale, rows.row0 + r);
        sum = tegroup_impl_gpu_add(sum, tegroup_impl_gpu_mul(by, tegroup_impl_gpu_mul(scale, x)));
    }
    sum = tegroup_impl_gpu_mul(sum, (float)of.global);
    if (desc.accumulate)
        sum = tegroup_impl_gpu_add(sum, tegroup_impl_load_f32(desc.bias.dtype, p.bias.base, p.bias.first + j));
    tegroup_impl_store_f32(desc.bias.dtype, p.bias.base, p.bias.first + j, sum);
}
#endif

/* Launches the kernel of the bias gradient, if a quantised dY has one. call: with operands as they are read. */
static inline tegroup_status tegroup_impl_formats_bias_grad(const tegroup_gemm_desc *desc,
                                                            const tegroup_impl_gpu_call *call,
                                                            struct CUstream_st *stream, tegroup_error *error) {
    cudaError_t code = cudaSuccess;
    (void)desc, (void)call, (void)stream; /* without the kernel */
#if TEGROUP_IMPL_BACKWARD_KERNELS
    if (tegroup_impl_sums_bias(desc) && tegroup_impl_biased(desc)->scaling != TEGROUP_SCALING_NONE)
        code = tegroup_impl_launch(tegroup_impl_formats_bias_grad_kernel, tegroup_impl_bias_blocks(desc), 128, 0,
                                   stream, *call, tegroup_impl_gpu_formats_of(desc));
#endif
    return tegroup_impl_cuda_status(code, "stream", "the kernels must launch", error);
}

/* ==== [43] Decoding operands before they are multiplied (src/cuda/decode.h) ==== */

/* The scales of groups, of F32, that the kernels of BF16 do not look for: in alpha. */
static __global__ void tegroup_impl_decoded_alpha_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                                         float *alpha) {
    const tegroup_gemm_desc &desc = call.desc;
    for (int32_t g = (int32_t)threadIdx.x; g < desc.a.shape.groups; g += (int32_t)blockDim.x)
        alpha[g] = tegroup_impl_scaled_alpha(&desc, g, (double)call.alpha);
}

/* Enqueues the decoding of one operand to `decoded`, by the kernel of tegroup_dequantize. Values of scalings whose
 * scales are of F32, or take the place of such, are left as they are: those multiply sums. Weights of a group without
 * rows are left out, as nobody reads them. */
static inline tegroup_status tegroup_impl_decode_operand(const tegroup_gemm_desc *desc, tegroup_impl_operand operand,
                                                         const tegroup_tensor *decoded, unsigned most,
                                                         struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b;
    tegroup_impl_quantize_launch launch = tegroup_impl_cuda_quantize_launch(t);
    launch.copies = 1 << tegroup_impl_reads_columnwise(desc, operand);
    launch.desc.input = *decoded;
    launch.desc.output.global_scale_inv = NULL; /* It is in alpha. */
    if (launch.facts.scale_dtype == TEGROUP_DTYPE_F32) launch.scale_dtype = TEGROUP_DTYPE_UNSET;
    if (operand == TEGROUP_IMPL_B && desc->op != TEGROUP_OP_WGRAD) launch.used = tegroup_impl_cuda_view(&desc->a).rows;
    return tegroup_impl_cuda_dequantize_copy(launch, most, stream, error);
}

/* Enqueues the decoding of `operands`, bit 0 for A and bit 1 for B, to where `layout`, of the plan's workspace, says.
 * decoded: the product that is left, with operands as they are read; its bias gradient is not that of a quantised dY,
 * which tegroup_impl_formats_bias_grad makes of `read`, the call before that. */
static inline tegroup_status tegroup_impl_decode(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                 const tegroup_layout *layout, uint32_t operands,
                                                 tegroup_gemm_desc *decoded, tegroup_impl_gpu_call *read,
                                                 struct CUstream_st *stream, tegroup_error *error) {
    tegroup_tensor *const tensors[2] = {&decoded->a, &decoded->b};
    void *const workspace = desc->options.workspace;
    int multiprocessors = 0, i;
    *decoded = *desc;
    decoded->a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    decoded->b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    *read = tegroup_impl_gpu_call_of(decoded);
    if (operands == 0) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_status(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, plan->device),
                                 "plan.device", "must be readable", error));
    if (tegroup_impl_sums_bias(desc) && tegroup_impl_biased(desc)->scaling != TEGROUP_SCALING_NONE)
        decoded->bias.dtype = TEGROUP_DTYPE_UNSET;
    if (decoded->a.global_scale_inv || decoded->b.global_scale_inv) {
        float *const alpha = (float *)tegroup_impl_layout_at(layout, TEGROUP_IMPL_DECODED_ALPHA, workspace);
        decoded->a.global_scale_inv = decoded->b.global_scale_inv = NULL; /* They are in alpha. */
        decoded->alpha.data = alpha;
        decoded->alpha.dtype = TEGROUP_DTYPE_F32;
        decoded->alpha.space = TEGROUP_SPACE_DEVICE;
        decoded->alpha.stride = 1;
        if (desc->d.shape.groups > 0)
            TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
                tegroup_impl_launch(tegroup_impl_decoded_alpha_kernel, 1, 256, 0, stream, *read, alpha), "stream",
                "the kernel must launch", error));
    }
    for (i = 0; i < 2; i++) {
        if (!(operands >> i & 1u) || tensors[i]->scaling == TEGROUP_SCALING_NONE) continue;
        *tensors[i] = tegroup_impl_decoded(tensors[i], tegroup_impl_layout_at(layout, i, workspace));
        if (desc->d.shape.groups > 0)
            TEGROUP_IMPL_TRY(tegroup_impl_decode_operand(
                desc, (tegroup_impl_operand)i, tensors[i],
                plan->sm_limit < multiprocessors ? (unsigned)plan->sm_limit : 0, stream, error));
    }
    return TEGROUP_OK;
}
#endif /* TEGROUP_NO_FP8 */
#if !defined(TEGROUP_NO_PORTABLE)

/* ==== [44] Portable GEMM: tiles (src/cuda/portable_tiles.h) ==== */

/* One family of kernels for every GPU from SM80 on: a persistent grid walks the groups' tiles, loads by cp.async into a
 * ring of swizzled pipeline stages, and multiplies with ldmatrix and mma.sync (PTX ISA 8.0, sections 9.7.8.22 and
 * 9.7.13). Sizes come from the snapshot. Each element is summed over k in steps of 16 from 0 upwards in every tile, so
 * the choice of the tile never changes a bit. A "line" is a row of A' or a column of B', which are the operands as
 * multiplied: D = A' B'. */
#define TEGROUP_IMPL_PORTABLE_FOUND 8   /* tiles that the scheduler finds at a time */

/* A tile of a group's product: where its operands and results begin, and how much of the group lies within it. */
typedef struct tegroup_impl_gpu_tile {
    const char *a, *b, *c, *bias; /* bias and scale may be NULL */
    const char *scale;
    char *d;
    int64_t a_row, b_row, c_row, d_row; /* bytes between rows */
    int64_t k, row, col;                /* row and col: the tile's first row and column in D's buffer */
    int32_t m, n;                       /* rows and columns, at most those of a full tile */
    float alpha, beta;
    int16_t reads_c, valid; /* reads_c is 0 if beta is 0; valid is 0 behind the last tile */
    int32_t group;          /* for kernels that look up more by it: where gates and ups are apart, and of formats */
} tegroup_impl_gpu_tile;

/* Copies 16 bytes or nothing, without a branch between the surrounding instructions; in pieces of PIECE bytes, to which
 * `from` is aligned. */
template <int PIECE>
static __device__ __forceinline__ void tegroup_impl_cp_async_if(bool there, uint32_t to, const char *from) {
    if (PIECE == 16)
        asm volatile(
            "{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p cp.async.cg.shared.global [%1], [%2], 16;}\n" ::"r"((int)there),
            "r"(to), "l"(from)
            : "memory");
    else
#pragma unroll
        for (int i = 0; i < 16; i += PIECE)
            asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p cp.async.ca.shared.global [%1], [%2], %3;}\n" ::"r"(
                             (int)there),
                         "r"(to + (uint32_t)i), "l"(from + i), "n"(PIECE)
                         : "memory");
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

/* volatile, as the loads of fragments are, so that they stay in the program's order. */
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

/* The scheduler is a walk. A kernel calls it in one place, where all of it is inlined and reads the descriptor as
 * constants; a call would load the descriptor for every tile, and save registers. */
template <int TILE_M, int TILE_N, bool NAMES_GROUP> struct tegroup_impl_gpu_rule {
    static __device__ __forceinline__ int32_t lane() { return (int32_t)threadIdx.x & 31; }
    static __device__ __forceinline__ bool prepared(const tegroup_impl_gpu_call &call) {
        return tegroup_impl_prepared(call);
    }
    static __device__ __forceinline__ int32_t groups(const tegroup_impl_gpu_call &call) {
        return call.desc.a.shape.groups;
    }
    static __device__ __forceinline__ tegroup_impl_product product(const tegroup_impl_gpu_call &call, int32_t g) {
        return tegroup_impl_product_of(&call.desc, call.views, g, (double)call.alpha, (double)call.beta);
    }
    static __device__ __forceinline__ int32_t tiles_m(const tegroup_impl_product &p) {
        return (int32_t)tegroup_impl_ceil_div(p.m, TILE_M);
    }
    static __device__ __forceinline__ int32_t tiles_n(const tegroup_impl_product &p) {
        return (int32_t)tegroup_impl_ceil_div(p.n, TILE_N);
    }
    /* Tiles of a group. They fit an int32_t: no memory has room for a D of 2^31 tiles. */
    static __device__ __forceinline__ int32_t tiles(const tegroup_impl_gpu_call &call, int32_t g) {
        if (g >= call.desc.a.shape.groups) return 0;
        const tegroup_impl_product p = product(call, g);
        return p.skip || p.untouched || p.m <= 0 || p.n <= 0 ? 0 : tiles_m(p) * tiles_n(p);
    }
    static __device__ __forceinline__ void none(tegroup_impl_gpu_tile *tile) { tile->valid = 0; }
    /* Fills in tile number `local` of group g. */
    static __device__ __forceinline__ void put(const tegroup_impl_gpu_call &call, int32_t g, int32_t local,
                                               tegroup_impl_gpu_tile *tile) {
        const tegroup_gemm_desc &desc = call.desc;
        const tegroup_impl_product p = product(call, g);
        int32_t tile_row, tile_col;
        tegroup_impl_tile_place(local, tiles_m(p), tiles_n(p), &tile_row, &tile_col);
        const int64_t i0 = (int64_t)tile_row * TILE_M, j0 = (int64_t)tile_col * TILE_N;
        const int32_t in = desc.a.dtype == TEGROUP_DTYPE_F32 ? 4 : 2, in_b = desc.b.dtype == TEGROUP_DTYPE_F32 ? 4 : 2,
                      out = desc.d.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
        tile->a_row = p.a.ld * in;
        tile->b_row = p.b.ld * in_b;
        tile->c_row = p.c.ld * out;
        tile->d_row = p.d.ld * out;
        tile->a = p.a.base + (p.a.first + i0 * p.a_line) * in;
        tile->b = p.b.base + (p.b.first + j0 * p.b_line) * in_b;
        tile->c = p.c.base + (p.c.first + j0) * out + i0 * tile->c_row;
        tile->d = p.d.base + (p.d.first + j0) * out + i0 * tile->d_row;
        tile->bias = desc.bias.dtype == TEGROUP_DTYPE_UNSET || desc.op == TEGROUP_OP_WGRAD
                         ? NULL
                         : p.bias.base + (p.bias.first + j0) * (desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2);
        tile->scale =
            desc.row_scale_dtype == TEGROUP_DTYPE_UNSET
                ? NULL
                : (const char *)desc.row_scale + (p.a.row0 + i0) * (desc.row_scale_dtype == TEGROUP_DTYPE_F64 ? 8 : 4);
        tile->k = p.k;
        tile->row = p.d.row0 + i0;
        tile->col = j0;
        tile->m = (int32_t)tegroup_impl_min(TILE_M, p.m - i0);
        tile->n = (int32_t)tegroup_impl_min(TILE_N, p.n - j0);
        tile->alpha = (float)p.alpha;
        tile->beta = (float)p.beta;
        tile->reads_c = tile->beta != 0;
        tile->valid = 1;
        if (NAMES_GROUP) tile->group = g;
    }
};
template <int TILE_M, int TILE_N, bool NAMES_GROUP = false>
using tegroup_impl_gpu_walk =
    tegroup_impl_walk<tegroup_impl_gpu_rule<TILE_M, TILE_N, NAMES_GROUP>, tegroup_impl_gpu_call, tegroup_impl_gpu_tile>;

/* ---- loading ---- */

/* Loads an operand's part of a stage: LINES lines by TILE_K. An operand contiguous along k is stored as [line][k], any
 * other in panels of 64 lines as [k][line]. Either way a row has 128 bytes, whose 16-byte chunks are permuted by XOR
 * with the row's number, so that eight rows hit different banks. Passes of the block's threads are multiples of eight
 * rows apart, so each thread's permutation is the same in all of them. */
/* TWICE: the lines from 64 on come from another place in memory. */
template <int LINES, bool ALONG_K, int THREADS, bool TWICE = false> struct tegroup_impl_loader {
    static constexpr int TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, ROWS = ALONG_K ? LINES : TILE_K;
    static constexpr int ROWS_A_PASS = THREADS / 8, PASSES_A_PANEL = ROWS / ROWS_A_PASS,
                         PASSES = PASSES_A_PANEL * (ALONG_K ? 1 : LINES / 64);
    static_assert(ALONG_K || LINES % 64 == 0, "panels are whole");
    static_assert(ROWS_A_PASS % 8 == 0 && ROWS % ROWS_A_PASS == 0, "the permutation must repeat from pass to pass");
    static_assert(!TWICE || (ALONG_K && LINES == 128), "two halves of lines");
    const char *from; /* this thread's first chunk in the next step */
    int32_t room;     /* lines left from the thread's row (along k) or chunk */
    int32_t room2;    /* TWICE: the same for the second half */
    int64_t jump;     /* TWICE: bytes from where the second half would follow the first to where it is */
    int32_t piece; /* bytes to which all is aligned, up to 16; 0: fewer than 4, rows are 4 GB apart, or a chunk may be
                         there in part */

    static __device__ __forceinline__ int32_t row() { return (int32_t)threadIdx.x / 8; }
    static __device__ __forceinline__ int32_t chunk() { return (int32_t)threadIdx.x % 8; }
    static __device__ __forceinline__ int32_t down(int pass) { return pass % PASSES_A_PANEL * ROWS_A_PASS; }
    static __device__ __forceinline__ int32_t panel(int pass) { return pass / PASSES_A_PANEL; }
    static __device__ __forceinline__ bool aligned(const char *at, int64_t row_bytes, int32_t piece = 16) {
        return (((uintptr_t)at | (uintptr_t)row_bytes) & (uintptr_t)(piece - 1)) == 0;
    }

    static __device__ __forceinline__ int32_t alignment(const char *at, int64_t row_bytes) {
        return aligned(at, row_bytes) ? 16 : aligned(at, row_bytes, 8) ? 8 : aligned(at, row_bytes, 4) ? 4 : 0;
    }
    __device__ __forceinline__ bool whole() const { return piece == 16; }

    __device__ __forceinline__ void open(const char *base, int64_t row_bytes, int32_t lines) {
        from = base + row() * row_bytes + chunk() * 16;
        room = ALONG_K ? lines - row() : lines - chunk() * 8;
        piece = (ALONG_K || lines % 8 == 0) && row_bytes < (int64_t)1 << 32 ? alignment(base, row_bytes) : 0;
        room2 = room - 64;
        jump = 0;
    }
    /* Opens two halves of `lines` lines each, the second `apart` lines behind the first. */
    __device__ __forceinline__ void open_twice(const char *base, int64_t row_bytes, int32_t lines, int64_t apart) {
        open(base, row_bytes, lines);
        room2 = room;
        jump = (apart - 64) * row_bytes;
    }
    /* The second half, instead, at an address of its own. */
    __device__ __forceinline__ void move_second(const char *base, const char *second, int64_t row_bytes) {
        jump = (second - base) - 64 * row_bytes;
        if (((uintptr_t)second & 15) != 0) piece = 0;
    }
    __device__ __forceinline__ bool there(int pass) const {
        return TWICE && down(pass) >= 64 ? down(pass) - 64 < room2
               : ALONG_K                 ? down(pass) < room
                                         : panel(pass) * 64 < room;
    }
    __device__ __forceinline__ int64_t further(int pass) const { return TWICE && down(pass) >= 64 ? jump : 0; }
    /* The thread's offset in a stage. */
    static __device__ __forceinline__ uint32_t place() {
        return (uint32_t)((row() * 8 + (chunk() ^ (row() & 7))) * 16);
    }
    /* Loads the next step to `to`, the thread's place in a stage: k elements along k, which WHOLE says at compile time
     * are TILE_K. Lines that do not exist are not loaded: whatever lies in their place only affects results that are
     * never stored. */
    template <bool WHOLE> __device__ __forceinline__ void load(uint32_t to, int64_t row_bytes, int32_t k) const {
        if (WHOLE || (piece == 16 && k == TILE_K)) all<16>(to, row_bytes);
        else if (piece == 8 && k == TILE_K) all<8>(to, row_bytes);
        else if (piece == 4 && k == TILE_K) all<4>(to, row_bytes);
        else piece_by_piece(to, row_bytes, k);
    }
    template <int PIECE> __device__ __forceinline__ void all(uint32_t to, int64_t row_bytes) const {
        tegroup_impl_loader here = *this;
        asm volatile("" : "+r"(here.room), "+r"(here.room2)); /* compared here, not earlier: registers are for sums */
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++)
            tegroup_impl_cp_async_if<PIECE>(here.there(pass), to + (uint32_t)((panel(pass) * ROWS + down(pass)) * 128),
                                            from + (uint32_t)down(pass) * (uint64_t)(uint32_t)row_bytes
                                                + panel(pass) * 128 + further(pass));
    }
    /* The same if k may end within a chunk, or chunks are not aligned. */
    __device__ __forceinline__ void piece_by_piece(uint32_t to, int64_t row_bytes, int32_t k) const {
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++) { /* for 0 bytes nothing is read, wherever `at` points */
            const char *at = from + down(pass) * row_bytes + panel(pass) * 128 + further(pass);
            const int32_t left =
                ALONG_K ? (there(pass) ? k - chunk() * 8 : 0) : (row() + down(pass) < k ? room - panel(pass) * 64 : 0);
            const int32_t bytes = left < 0 ? 0 : left > 8 ? 16 : left * 2;
            const uint32_t place = to + (uint32_t)((panel(pass) * ROWS + down(pass)) * 128);
            if (aligned(at, row_bytes) && bytes % 16 == 0) tegroup_impl_cp_async_unless(bytes == 0, place, at);
            else if (aligned(at, row_bytes, 8) && bytes % 8 == 0) tegroup_impl_cp_async_pieces<8>(place, at, bytes);
            else if (aligned(at, row_bytes, 4) && bytes % 4 == 0) tegroup_impl_cp_async_pieces<4>(place, at, bytes);
            else tegroup_impl_load_slowly<THREADS <= 128 ? 4 : 1>(place, at, bytes);
        }
    }
    __device__ __forceinline__ void advance(int64_t row_bytes) { from += ALONG_K ? TILE_K * 2 : TILE_K * row_bytes; }
};

/* ==== [45] Portable GEMM: storing, and where fragments lie (src/cuda/portable_store.h) ==== */

/* Loads eight neighbours of BF16, FP16 or FP32, of which `count` exist, as floats; in one or two loads if their address
 * is aligned. */
static __device__ __forceinline__ void tegroup_impl_gpu_load8(tegroup_dtype dtype, const char *from, int32_t count,
                                                              float (&x)[8]) {
    if (count == 8 && ((uintptr_t)from & 15) == 0) {
        uint4 low = *(const uint4 *)from, high = low;
        if (dtype == TEGROUP_DTYPE_F32) high = ((const uint4 *)from)[1];
        const uint32_t word[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const bool bf16 = dtype == TEGROUP_DTYPE_BF16;
            x[i] = dtype == TEGROUP_DTYPE_F32 ? tegroup_impl_f32_of_bits(word[i])
                   : i % 2                    ? tegroup_impl_high_half(word[i / 2], bf16)
                                              : tegroup_impl_low_half(word[i / 2], bf16);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = i < count ? tegroup_impl_gpu_load(dtype, from, i) : 0.0f;
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

/* What the functor makes of an element, in row `line` and column `col` of its tile, all of which exist if WHOLE. */
template <bool WHOLE, typename FUNCTOR>
static __device__ __forceinline__ float tegroup_impl_gpu_apply(const tegroup_impl_gpu_tile &tile, int line, int col,
                                                               float x, const FUNCTOR &functor) {
    tegroup_element at;
    if (!WHOLE && (line >= tile.m || col >= tile.n)) return x; /* it is not stored */
    at.group = tile.group;
    at.row = tile.row + line;
    at.col = tile.col + col;
    return functor(x, at);
}

/* Finishes and stores eight sums of row `line` from column `first` on, both counted within the tile: D = alpha * sum +
 * beta * C + scale * bias, or what the functor makes of it. The tile is a copy in registers, since the compiler cannot
 * know that stores to D leave shared memory unchanged. */
template <typename FUNCTOR>
static __device__ __forceinline__ void tegroup_impl_gpu_finish(const tegroup_gemm_desc &desc,
                                                               const tegroup_impl_gpu_tile &tile, int line, int first,
                                                               const float *sums, const FUNCTOR &functor) {
    const bool empty = tile.k == 0; /* an empty sum adds nothing, not even alpha * 0 */
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
        const float by = tile.scale ? tegroup_impl_gpu_load_scale(desc.row_scale_dtype, tile.scale, line) : 1.0f;
        tegroup_impl_gpu_load8(desc.bias.dtype, tile.bias + first * (desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2),
                               count, y);
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = tegroup_impl_gpu_fma(by, y[e], x[e]);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] = tegroup_impl_gpu_apply<false>(tile, line, first + e, x[e], functor);
    tegroup_impl_gpu_store8(desc.d.dtype, tile.d + line * tile.d_row + first * bytes, count, x);
}

/* Whether the result is alpha times the sum and nothing else, of two-byte elements, in whole 16-byte pieces. */
static __device__ __forceinline__ bool tegroup_impl_gpu_plain(const tegroup_gemm_desc &desc,
                                                              const tegroup_impl_gpu_tile &tile) {
    return tile.k > 0 && !tile.reads_c && !tile.bias && desc.d.dtype != TEGROUP_DTYPE_F32
           && (((uintptr_t)tile.d | (uintptr_t)tile.d_row | (uintptr_t)tile.n * 2) & 15) == 0;
}

/* Where a lane reads its row r of a fragment's 8x8 matrix. `line` is the warp's first line; upper and later (0 or 1)
 * say whether the lane's matrix is the one of the upper eight lines, and of the later eight k. */
template <bool ALONG_K>
static __device__ __forceinline__ uint32_t tegroup_impl_fragments(int line, int upper, int later, int r) {
    return ALONG_K ? (uint32_t)((line + upper * 8 + r) * 128 + (later ^ r) * 16)
                   : (uint32_t)(line / 64 * 8192 + (later * 8 + r) * 128 + ((line % 64 / 8 + upper) ^ r) * 16);
}

/* The same for the kk-th k16 and the i-th 16 lines. Chunks are permuted by XOR, so the address of another 16 elements
 * is an XOR, too; in panels this holds because a warp's first line is a multiple of 32. skip: the bytes of a panel if
 * that line is in the middle of one, since the next panel then begins at i = 2; else 0. */
template <bool ALONG_K>
static __device__ __forceinline__ uint32_t tegroup_impl_fragment(uint32_t at, uint32_t skip, int kk, int i) {
    return ALONG_K ? (at ^ (uint32_t)(kk * 32)) + (uint32_t)(i * 16 * 128)
                   : (at ^ (uint32_t)(i % 4 * 32)) + (uint32_t)(kk * 16 * 128 + i / 4 * 8192) + (i % 4 >= 2 ? skip : 0);
}

/* ==== [46] Portable GEMM: the kernels (src/cuda/portable.h) ==== */

/* What multiplies sums over parts of k before they are added up: in most kernels nothing does. For others see
 * tegroup_impl_portable_factors. */
struct tegroup_impl_portable_no_factors {
    static constexpr bool PROMOTE = false;
    __device__ __forceinline__ void before(int32_t) {}
    __device__ __forceinline__ bool after(int32_t) { return false; }
    static constexpr bool one_column = true;
    __device__ __forceinline__ float row(int) const { return 1; }
    __device__ __forceinline__ float column(int) const { return 1; }
};

/* A block's work on one tile: the ring of pipeline stages, fragments and sums. */
template <bool BF16, int OP, int TILE_M_, int TILE_N_, int WARPS_M, int WARPS_N, int STAGES, bool FUSED = false,
          typename FACTORS = tegroup_impl_portable_no_factors>
struct tegroup_impl_portable_block {
    static constexpr int TILE_M = TILE_M_, TILE_N = TILE_N_, TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K;
    static constexpr int WARPS = WARPS_M * WARPS_N, THREADS = WARPS * 32;
    static constexpr int WARP_N = TILE_N / WARPS_N, MI = TILE_M / WARPS_M / 16, NI = WARP_N / 8, PAIRS = NI / 2;
    static constexpr int STEPS = TILE_K / 16, CHUNKS = TILE_N / 8, LINES_A_PASS = THREADS / CHUNKS;
    static constexpr int PADDED_N = TILE_N + 8; /* eight rows of a fragment hit different banks */
    static constexpr bool A_ALONG_K = OP != TEGROUP_OP_WGRAD, B_ALONG_K = OP == TEGROUP_OP_FORWARD;
    static constexpr bool TWICE = FUSED && B_ALONG_K; /* B's lines may be half gates, half ups */
    static constexpr int A_BYTES = TILE_M * TILE_K * 2, STAGE_BYTES = A_BYTES + TILE_N * TILE_K * 2,
                         RING_BYTES = STAGES * STAGE_BYTES, SUMS_BYTES = TILE_M * PADDED_N * 4;
    /* The sums overwrite the ring in the end. 128: room to align it. */
    static constexpr int SHARED_BYTES = (RING_BYTES > SUMS_BYTES ? RING_BYTES : SUMS_BYTES) + 128;
    static constexpr bool SHARED = A_ALONG_K && MI == 4; /* warps share the rows that a group's last tile has */
    static_assert(PAIRS % 2 == 0, "B's two sets of fragments alternate");

    uint32_t ring, place;      /* the ring; the thread's own place in its first stage */
    uint32_t at_a, at_b, skip; /* the lane's place in A's and B's part of a stage; see tegroup_impl_fragment */
    tegroup_impl_loader<TILE_M, A_ALONG_K, THREADS> load_a;
    tegroup_impl_loader<TILE_N, B_ALONG_K, THREADS, TWICE> load_b;
    int32_t left, reading; /* steps of TILE_K left, this one included; its stage */
    int32_t rows;          /* m16 blocks that a warp works on */
    float sum[MI][NI][4];
    FACTORS factors;
    float total[FACTORS::PROMOTE ? MI : 1][NI][4]; /* of sums over parts of k */
    uint32_t fa[MI][4], fb[2][4];

    __device__ __forceinline__ int warp_m(int thread) const { return thread / 32 % WARPS_M * rows * 16; }
    static __device__ __forceinline__ int warp_n(int thread) { return thread / 32 / WARPS_M * WARP_N; }

    __device__ __forceinline__ explicit tegroup_impl_portable_block(const void *memory) {
        ring = tegroup_impl_shared(memory);
        place = ring + load_a.place();
    }

    /* Starts the first loads of a tile. The ring must be free. */
    template <typename FUNCTOR>
    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile, const FUNCTOR &) {
        load_b.open(tile.b, tile.b_row, tile.n);
        begin(tile);
    }
    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile, const tegroup_impl_gpu_epilogue &epilogue,
                                         const tegroup_impl_gpu_up &up) {
        if (halves(epilogue)) { /* half a tile of gates, and half of ups */
            const char *gates = tile.b - tile.col / 2 * tile.b_row;
            load_b.open_twice(gates, tile.b_row, tile.n / 2, epilogue.activation.output.cols);
            if (up.apart)
                load_b.move_second(gates, tegroup_impl_gpu_group(up.weight, tile.group) + tile.col / 2 * tile.b_row,
                                   tile.b_row);
        } else load_b.open(tile.b, tile.b_row, tile.n);
        begin(tile);
    }
    static __device__ __forceinline__ bool halves(const tegroup_impl_gpu_epilogue &epilogue) {
        return OP == TEGROUP_OP_FORWARD && !epilogue.activation.interleaved;
    }
    __device__ __forceinline__ void begin(const tegroup_impl_gpu_tile &tile) {
        load_a.open(tile.a, tile.a_row, tile.m);
        reading = 0;
#pragma unroll 1
        for (left = (int32_t)((tile.k + TILE_K - 1) / TILE_K) + STAGES - 1; reading < STAGES - 1; reading++, left--) {
            load_into_a<false>(tile, reading);
            load_into_b<false>(tile, reading);
            advance(tile);
        }
        reading = 0;
    }
    /* Elements of k in the step that is STAGES - 1 after the current one. */
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
        tegroup_impl_cp_commit(); /* even an empty group, so that the count of pending groups stays right */
    }
    /* Moves on to the next step's addresses. This comes long after the loads: a warp that changes an address register
     * which a queued load has not read yet has to wait. */
    __device__ __forceinline__ void advance(const tegroup_impl_gpu_tile &tile) {
        load_a.advance(tile.a_row);
        load_b.advance(tile.b_row);
    }
    __device__ __forceinline__ int32_t free_stage() const { return reading == 0 ? STAGES - 1 : reading - 1; }
    /* Waits until the next step's stage has arrived. Behind the barrier the stage that was read last is free. */
    __device__ __forceinline__ void arrive() {
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

    /* One k16 of a step. B's fragments are loaded one pair of n8 blocks ahead of their mma, A's for the next k16 row by
     * row during the last pair. Registers have room for one set of A's only; the other warp of the SM sub-partition
     * fills the gaps. */
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
    /* Steps whose loads may end within a chunk load between k16 steps, while no fragments occupy registers. */
    template <bool WHOLE, int ROWS> __device__ __forceinline__ void steps(const tegroup_impl_gpu_tile &tile) {
        if (WHOLE) fetch<ROWS>();
#pragma unroll 1
        for (; left > 0; left--) {
            factors.before(left);
            if (!WHOLE) {
                load_into_a<false>(tile, free_stage());
                load_into_b<false>(tile, free_stage());
                fetch<ROWS>();
            }
            sixteen<WHOLE, ROWS, 0>(tile, true);
            sixteen<WHOLE, ROWS, 1>(tile, true);
            sixteen<WHOLE, ROWS, 2>(tile, true);
            sixteen<WHOLE, ROWS, 3>(tile, WHOLE && left > 1);
            if (factors.after(left)) promote<ROWS>();
        }
    }
    /* Adds the sums over a part of k, times their factors, and begins the next. */
    template <int ROWS> __device__ __forceinline__ void promote() {
        if (factors.one_column) promote_by<ROWS, true>();
        else promote_by<ROWS, false>();
    }
    template <int ROWS, bool ONE_COLUMN> __device__ __forceinline__ void promote_by() {
        const int me = tegroup_impl_thread(), from_m = warp_m(me) + me % 32 / 4, from_n = warp_n(me) + me % 4 * 2;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float factor = tegroup_impl_gpu_mul(factors.row(from_m + i * 16 + e / 2 * 8),
                                                              factors.column(ONE_COLUMN ? 0 : from_n + j * 8 + e % 2));
                    float &to = total[FACTORS::PROMOTE ? i : 0][j][e];
                    to = tegroup_impl_gpu_fma(sum[i][j][e], factor, to);
                    sum[i][j][e] = 0;
                }
    }
    __device__ __forceinline__ void multiply(const tegroup_impl_gpu_tile &tile) {
        /* The four 8x8 matrices of a fragment run along m first in A, along k first in B. */
        const int me = tegroup_impl_thread(), matrix = me % 32 / 8, r = me % 8,
                  least = (tile.m + WARPS_M * 16 - 1) / (WARPS_M * 16);
        const bool whole = load_a.whole() && load_b.whole() && tile.k % TILE_K == 0;
        rows = SHARED && whole && least < MI ? least : MI;
        at_a = tegroup_impl_fragments<A_ALONG_K>(warp_m(me), matrix & 1, matrix >> 1, r);
        skip = (uint32_t)(warp_n(me) % 64 / 32 * 8192);
        at_b = A_BYTES + tegroup_impl_fragments<B_ALONG_K>(warp_n(me), matrix >> 1, matrix & 1, r);
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = total[FACTORS::PROMOTE ? i : 0][j][e] = 0;
        if (tile.k > 0) {
            arrive();
            if (SHARED && rows == 1) steps<true, 1>(tile);
            else if (SHARED && rows == 2) steps<true, 2>(tile);
            else if (SHARED && rows == 3) steps<true, 3>(tile);
            else if (whole) steps<true, MI>(tile);
            else steps<false, MI>(tile);
        }
        if (FACTORS::PROMOTE) {
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int j = 0; j < NI; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) sum[i][j][e] = total[FACTORS::PROMOTE ? i : 0][j][e];
        }
        tegroup_impl_cp_wait<0>();
        __syncthreads(); /* the ring is free */
    }

    /* A functor with members reads what others read, too. It is given all sums before any is stored, so that what it
     * reads of a row or a column is read once, and, of a whole tile, without branches in between. One without members,
     * as the built-in store is, is called where a sum is stored, by result. */
    template <typename FUNCTOR>
    __device__ __forceinline__ void apply(const tegroup_impl_gpu_tile &shared, const FUNCTOR &functor) {
        if (__is_empty(FUNCTOR)) return;
        const tegroup_impl_gpu_tile tile = shared;
        if (tile.m == TILE_M && tile.n == TILE_N) apply_to<true>(tile, functor);
        else apply_to<false>(tile, functor);
    }
    template <bool WHOLE, typename FUNCTOR>
    __device__ __forceinline__ void apply_to(const tegroup_impl_gpu_tile &tile, const FUNCTOR &functor) {
        const int me = tegroup_impl_thread(), from_m = warp_m(me) + me % 32 / 4, from_n = warp_n(me) + me % 4 * 2;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
            if (i / 2 < rows) {
#pragma unroll
                for (int j = 0; j < NI * 2; j++) {
                    float &x = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
                    x = tegroup_impl_gpu_apply<WHOLE>(tile, from_m + i * 8, from_n + j / 2 * 8 + j % 2,
                                                      tegroup_impl_gpu_mul(tile.alpha, x), functor);
                }
            }
    }
    template <typename FUNCTOR>
    static __device__ __forceinline__ float result(const tegroup_impl_gpu_tile &tile, float alpha, int line, int col,
                                                   float x, const FUNCTOR &functor) {
        if (!__is_empty(FUNCTOR)) return x;
        return tegroup_impl_gpu_apply<false>(tile, line, col, tegroup_impl_gpu_mul(alpha, x), functor);
    }

    /* Results go through shared memory, where the ring was, so that neighbouring threads store neighbouring columns.
     * store_plainly puts what the functor makes of alpha times the sums there as two-byte elements, ready to be copied
     * to D. */
    template <typename FUNCTOR>
    __device__ __forceinline__ void store_plainly(bool bf16, const tegroup_impl_gpu_tile &tile, unsigned char *memory,
                                                  const FUNCTOR &functor) {
        const float alpha = tile.alpha;
        apply(tile, functor);
        const int me = tegroup_impl_thread(), from_m = warp_m(me) + me % 32 / 4, from_n = warp_n(me) + me % 4 * 2;
        uint16_t *results = (uint16_t *)memory;
#pragma unroll
        for (int i = 0; i < MI * 2; i++)
            if (i / 2 < rows) {
#pragma unroll
                for (int j = 0; j < NI; j++)
                    *(uint32_t *)(results + (from_m + i * 8) * PADDED_N + from_n + j * 8) = tegroup_impl_two_halves(
                        result(tile, alpha, from_m + i * 8, from_n + j * 8, sum[i / 2][j][i % 2 * 2], functor),
                        result(tile, alpha, from_m + i * 8, from_n + j * 8 + 1, sum[i / 2][j][i % 2 * 2 + 1], functor),
                        bf16);
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
    /* put, for all other epilogues, leaves the sums there as they are. */
    __device__ __forceinline__ void put(unsigned char *memory) const {
        const int me = tegroup_impl_thread(), from_m = warp_m(me) + me % 32 / 4, from_n = warp_n(me) + me % 4 * 2;
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
    }
    template <typename FUNCTOR>
    __device__ __forceinline__ void store(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &shared,
                                          unsigned char *memory, const FUNCTOR &functor) {
        const int me = tegroup_impl_thread(), line = me / CHUNKS, first = me % CHUNKS * 8;
        const float *sums = (const float *)memory;
        put(memory);
        const tegroup_impl_gpu_tile tile = shared;
#pragma unroll 2
        for (int i = line; i < (line < LINES_A_PASS ? tile.m : 0); i += LINES_A_PASS)
            tegroup_impl_gpu_finish(desc, tile, i, first, sums + i * PADDED_N + first, functor);
    }
    template <typename FUNCTOR>
    __device__ __forceinline__ void finish(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &tile,
                                           unsigned char *memory, const FUNCTOR &functor) {
        if (tegroup_impl_gpu_plain(desc, tile))
            store_plainly(desc.d.dtype == TEGROUP_DTYPE_BF16, tile, memory, functor);
        else store(desc, tile, memory, functor);
    }

#if TEGROUP_IMPL_ACTIVATION_KERNELS
    /* With an activation or its gradient, a thread finishes eight columns of its output in a row at a time. */
    __device__ __forceinline__ void finish(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &shared,
                                           unsigned char *memory, const tegroup_impl_gpu_epilogue &epilogue,
                                           const tegroup_impl_gpu_up &up) {
        put(memory);
        const tegroup_impl_gpu_tile tile = shared;
        if (OP == TEGROUP_OP_FORWARD) activate(desc, tile, (const float *)memory, epilogue, up);
#if TEGROUP_IMPL_BACKWARD_KERNELS
        else differentiate(desc, tile, (const float *)memory, epilogue);
#endif
    }
    /* Where a row's eight gates begin that belong to eight columns from column `col` of the activation's output on; or,
     * interleaved, the first eight of sixteen gates and ups. others: bytes from there to the other eight. */
    static __device__ __forceinline__ char *eight(const tegroup_matrix &m, bool interleaved, int64_t row, int64_t col) {
        return (char *)m.data + (row * m.ld + (interleaved ? 2 * col : col)) * 2;
    }
    static __device__ __forceinline__ int64_t others(const tegroup_activation_desc &f) {
        return f.interleaved ? 16 : f.output.cols * 2;
    }
    static __device__ __forceinline__ void take(const float *sums, float alpha, bool empty, float (&x)[8]) {
        const float4 low = ((const float4 *)sums)[0], high = ((const float4 *)sums)[1];
        const float sum[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int e = 0; e < 8; e++) x[e] = empty ? 0.0f : tegroup_impl_gpu_mul(alpha, sum[e]);
    }
    static __device__ __forceinline__ void activate(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &tile,
                                                    const float *sums, const tegroup_impl_gpu_epilogue &epilogue,
                                                    const tegroup_impl_gpu_up &up) {
        const tegroup_activation_desc &f = epilogue.activation;
        const bool interleaved = f.interleaved;
        const float alpha = (float)f.alpha, limit = (float)f.limit;
        const int me = tegroup_impl_thread(), first = me % (CHUNKS / 2) * 8;
        const int64_t col = tile.col / 2 + first;
        if (col >= f.output.cols) return;
#pragma unroll 1
        for (int i = me / (CHUNKS / 2); i < tile.m; i += 2 * LINES_A_PASS) {
            const int64_t row = tile.row + i;
            const float scale = tegroup_impl_weight<float>(f.row_scale, row, 0),
                        by = tile.scale ? tegroup_impl_gpu_load_scale(desc.row_scale_dtype, tile.scale, i) : 1.0f;
            uint32_t x[2][4], y[4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = interleaved ? 2 * first + half * 8 : first + half * 64;
                const int64_t column = interleaved ? 2 * col + half * 8 : col + half * f.output.cols;
                float z[8], bias[8];
                take(sums + i * PADDED_N + at, tile.alpha, tile.k == 0, z);
                if (tile.bias) {
                    const int bytes = desc.bias.dtype == TEGROUP_DTYPE_F32 ? 4 : 2;
                    const char *from = half && up.apart ? tegroup_impl_gpu_group(up.bias, tile.group)
                                                              + (column - f.output.cols) * bytes
                                                        : tile.bias + (column - tile.col) * bytes;
                    tegroup_impl_gpu_load8(desc.bias.dtype, from, 8, bias);
#pragma unroll
                    for (int e = 0; e < 8; e++) z[e] = tegroup_impl_gpu_fma(by, bias[e], z[e]);
                }
#pragma unroll
                for (int e = 0; e < 4; e++) x[half][e] = tegroup_impl_two_halves(z[2 * e], z[2 * e + 1], BF16);
            }
#define TEGROUP_IMPL_CALL(kind)                                                                                        \
    if (interleaved) tegroup_impl_activate_eight<kind, true>(alpha, limit, BF16, scale, x, y);                         \
    else tegroup_impl_activate_eight<kind, false>(alpha, limit, BF16, scale, x, y);
            TEGROUP_IMPL_BY_GATED(f.activation, TEGROUP_IMPL_CALL)
#undef TEGROUP_IMPL_CALL
            if (epilogue.keeps_d) {
                char *to = eight(f.input, interleaved, row, col);
                *(uint4 *)to = make_uint4(x[0][0], x[0][1], x[0][2], x[0][3]);
                *(uint4 *)(to + others(f)) = make_uint4(x[1][0], x[1][1], x[1][2], x[1][3]);
            }
            *(uint4 *)eight(f.output, false, row, col) = make_uint4(y[0], y[1], y[2], y[3]);
        }
    }
#if TEGROUP_IMPL_BACKWARD_KERNELS
    static __device__ __forceinline__ void differentiate(const tegroup_gemm_desc &desc,
                                                         const tegroup_impl_gpu_tile &tile, const float *sums,
                                                         const tegroup_impl_gpu_epilogue &epilogue) {
        const tegroup_activation_desc &f = epilogue.activation;
        const bool interleaved = f.interleaved;
        const float alpha = (float)f.alpha, limit = (float)f.limit;
        const int me = tegroup_impl_thread(), first = me % CHUNKS * 8;
        const int64_t col = tile.col + first;
        const char *from = eight(f.input, interleaved, tile.row + me / CHUNKS, col);
        uint4 one = make_uint4(0, 0, 0, 0), two = one; /* of the thread's next row, loaded early */
        if (me / CHUNKS < tile.m && col < f.output.cols) {
            one = *(const uint4 *)from;
            two = *(const uint4 *)(from + others(f));
        }
#pragma unroll 1
        for (int line = 0; line < tile.m; line += LINES_A_PASS) { /* all lanes of a warp take part in the sums */
            const int i = line + me / CHUNKS;
            const int64_t row = tile.row + i;
            const bool there = i < tile.m && col < f.output.cols;
            uint32_t x[2][4] = {{one.x, one.y, one.z, one.w}, {two.x, two.y, two.z, two.w}};
            float part = 0;
            from += LINES_A_PASS * f.input.ld * 2;
            if (i + LINES_A_PASS < tile.m && col < f.output.cols) {
                one = *(const uint4 *)from;
                two = *(const uint4 *)(from + others(f));
            }
            if (there) {
                const float scale = tegroup_impl_weight<float>(f.row_scale, row, 0);
                uint32_t y[4];
                float dy[8];
                take(sums + i * PADDED_N + first, tile.alpha, tile.k == 0, dy);
#pragma unroll
                for (int e = 0; e < 4; e++) y[e] = tegroup_impl_two_halves(dy[2 * e], dy[2 * e + 1], BF16);
#define TEGROUP_IMPL_CALL(kind)                                                                                        \
    part = interleaved ? tegroup_impl_differentiate_eight<kind, true>(alpha, limit, BF16, scale, x, y)                 \
                       : tegroup_impl_differentiate_eight<kind, false>(alpha, limit, BF16, scale, x, y);
                TEGROUP_IMPL_BY_GATED(f.activation, TEGROUP_IMPL_CALL)
#undef TEGROUP_IMPL_CALL
                char *to = eight(epilogue.grad_input, interleaved, row, col);
                *(uint4 *)to = make_uint4(x[0][0], x[0][1], x[0][2], x[0][3]);
                *(uint4 *)(to + others(f)) = make_uint4(x[1][0], x[1][1], x[1][2], x[1][3]);
                if (epilogue.activates_again)
                    *(uint4 *)eight(f.output, false, row, col) = make_uint4(y[0], y[1], y[2], y[3]);
            }
            if (!epilogue.row_sums) continue;
            part = tegroup_impl_tree(part, TEGROUP_IMPL_ROW_SUM_COLS / 8, 32);
            if (there && me % 4 == 0)
                epilogue.row_sums[col / TEGROUP_IMPL_ROW_SUM_COLS * desc.d.shape.rows + row] = part;
        }
    }
#endif
#endif
};

/* What a block does. The epilogue is that of all tiles: a functor, or an activation and where its ups are. */
template <typename BLOCK, bool NAMES_GROUP, typename... EPILOGUE>
static __device__ __forceinline__ void tegroup_impl_portable_work(const tegroup_impl_gpu_call &call,
                                                                  const EPILOGUE &...epilogue) {
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    /* Aligned to 128 bytes, as the swizzle needs: debug and relocatable builds do not honour a larger __align__. */
    unsigned char *const ring = tegroup_impl_memory + (128 - tegroup_impl_shared(tegroup_impl_memory) % 128) % 128;
    constexpr int FOUND = TEGROUP_IMPL_PORTABLE_FOUND;
    /* The tiles found last, and those found before, of which others may still read the last one. */
    __shared__ tegroup_impl_gpu_tile tiles[2 * FOUND];
    __shared__ tegroup_impl_gpu_walk<BLOCK::TILE_M, BLOCK::TILE_N, NAMES_GROUP> walk;
    BLOCK block(ring);
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x / 32, 0), lane = (int32_t)threadIdx.x & 31;
    if (warp == 0) walk.begin(call);
    for (int32_t round = 0;; round++) {
        if (warp == 0 && round % FOUND == 0)
            walk.find(call, tegroup_impl_gpu_number((uint32_t)(round + lane)),
                      lane < FOUND ? &tiles[(round + lane) % (2 * FOUND)] : NULL);
        __syncthreads(); /* the tile is known, and nobody reads the last tile's shared memory any more */
        const tegroup_impl_gpu_tile &tile = tiles[round % (2 * FOUND)];
        if (!tile.valid) break;
        block.open(tile, epilogue...);
        block.multiply(tile);
        block.finish(call.desc, tile, ring, epilogue...);
    }
}

template <bool BF16, int OP, int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int STAGES>
static __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32)
    tegroup_impl_portable_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap(); /* compiled for older GPUs only; the plan refuses before this is launched */
#else
    typedef tegroup_impl_portable_block<BF16, OP, TILE_M, TILE_N, WARPS_M, WARPS_N, STAGES> block;
    tegroup_impl_portable_work<block, false>(call, tegroup_impl_as_is());
#endif
}

template <bool BF16, int OP, int TILE_M, int TILE_N, int WARPS_M, int WARPS_N, int STAGES, typename FUNCTOR>
static __global__ void __launch_bounds__(WARPS_M *WARPS_N * 32)
    tegroup_impl_portable_functor_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                         const __grid_constant__ FUNCTOR functor) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    typedef tegroup_impl_portable_block<BF16, OP, TILE_M, TILE_N, WARPS_M, WARPS_N, STAGES> block;
    tegroup_impl_portable_work<block, true>(call, functor);
#endif
}

#if TEGROUP_IMPL_FUSED_KERNELS
template <bool BF16, int OP>
using tegroup_impl_portable_fused_block = tegroup_impl_portable_block<BF16, OP, 128, 128, 2, 2, 3, true>;

template <bool BF16, int OP>
static __global__ void __launch_bounds__(128)
    tegroup_impl_portable_fused_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                       const __grid_constant__ tegroup_impl_gpu_epilogue epilogue,
                                       const __grid_constant__ tegroup_impl_gpu_up up) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    typedef tegroup_impl_portable_fused_block<BF16, OP> block;
    tegroup_impl_portable_work<block, block::TWICE>(call, epilogue, up);
#endif
}
#endif

/* ==== [47] Portable GEMM: the FP32 kernel (src/cuda/portable_f32.h) ==== */

/* Plain FMA: 64 x 64 tiles, 4 x 4 elements a thread, and one chain of FMAs over k for each element. MIXED: B is of F16
 * or BF16, and widened, exactly, on its way to shared memory. Its steps are of twice as many k, so that as many bytes
 * of weights are on their way at a time. k is filled up with zeros to whole sixteens, no further, and so the bits are
 * those of the same weights in F32. */
template <int OP, bool MIXED>
static __global__ void __launch_bounds__(256)
    tegroup_impl_portable_f32_kernel(const __grid_constant__ tegroup_impl_gpu_call call) {
    constexpr int TILE = 64, SIXTEEN = 16, TILE_K = MIXED ? 2 * SIXTEEN : SIXTEEN, B_BYTES = MIXED ? 2 : 4;
    __shared__ __align__(16) float a[TILE_K][TILE + 4], b[TILE_K][TILE + 4], sums[TILE * (TILE + 8)];
    __shared__ tegroup_impl_gpu_tile tile;
    const int ty = (int)threadIdx.x / 16, tx = (int)threadIdx.x % 16;
    __shared__ tegroup_impl_gpu_walk<TILE, TILE> walk;
    const bool bf16 = call.desc.b.dtype == TEGROUP_DTYPE_BF16;
    if (threadIdx.x < 32) walk.begin(call);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads();
        if (threadIdx.x < 32) walk.find(call, t, threadIdx.x == 0 ? &tile : NULL);
        __syncthreads();
        if (!tile.valid) break;
        constexpr bool A_ALONG_K = OP != TEGROUP_OP_WGRAD, B_ALONG_K = OP == TEGROUP_OP_FORWARD;
        const int64_t a_line = A_ALONG_K ? tile.a_row / 4 : 1, a_k = A_ALONG_K ? 1 : tile.a_row / 4;
        const int64_t b_line = B_ALONG_K ? tile.b_row / B_BYTES : 1, b_k = B_ALONG_K ? 1 : tile.b_row / B_BYTES;
        float sum[4][4] = {};
        for (int64_t k0 = 0; k0 < tile.k; k0 += TILE_K) {
            for (int e = (int)threadIdx.x; e < TILE * TILE_K;
                 e += 256) { /* threads run along the contiguous direction */
                const int la = !A_ALONG_K ? e % TILE : e / TILE_K, ka = !A_ALONG_K ? e / TILE : e % TILE_K;
                const int lb = B_ALONG_K ? e / TILE_K : e % TILE, kb = B_ALONG_K ? e % TILE_K : e / TILE;
                const bool in_a = la < tile.m && k0 + ka < tile.k, in_b = lb < tile.n && k0 + kb < tile.k;
                a[ka][la] = in_a ? ((const float *)tile.a)[la * a_line + (k0 + ka) * a_k] : 0.0f;
                const int64_t at_b = lb * b_line + (k0 + kb) * b_k;
                if (MIXED) b[kb][lb] = in_b ? tegroup_impl_low_half(((const uint16_t *)tile.b)[at_b], bf16) : 0.0f;
                else b[kb][lb] = in_b ? ((const float *)tile.b)[at_b] : 0.0f;
            }
            __syncthreads();
#pragma unroll 1
            for (int first = 0; first < TILE_K && k0 + first < tile.k; first += SIXTEEN)
#pragma unroll
                for (int kk = first; kk < first + SIXTEEN; kk++)
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
                                    sums + e / (TILE / 8) * (TILE + 8) + e % (TILE / 8) * 8, tegroup_impl_as_is());
    }
}
#if !defined(TEGROUP_NO_FP8)

/* ==== [48] Portable GEMM: products of quantised operands (src/cuda/portable_formats.h) ==== */

/* Kernels for every format, operation and storage order, from SM80 on, one for scales of 8 bits and one for F32: they
 * multiply what is decoded nowhere else (cuda/portable_decoded.h). Values of 8 and 4 bits are exact in BF16, so their
 * codes are decoded on the way to shared memory, by arithmetic on bits that is the same on every GPU, and
 * multiplied by mma.sync in BF16 with FP32 sums (in F16 beside an operand of F16, where E4M3 and E5M2 are exact, too).
 * The products are exact then, and sums are those of the BF16 kernel; Hopper's FP8 instructions keep about 14 bits of
 * a sum (DeepSeek-V3 technical report, section 3.3.2), so these kernels do not use them (sm90_fp8.h does, for 128 of k
 * at a time).
 *
 * Scales of 8 bits are multiplied into the values: a product of both is exact in BF16, or is rounded to it once. Scales
 * of F32 are not: the sum over a block of k that shares its scales is multiplied by them and added to the result's,
 * sum = fma(partial, scale of the row * scale of the column, sum), where the product of the scales is rounded to FP32.
 *
 * k is walked in steps of up to 64. While one is multiplied, the codes of the next are on their way to registers, and
 * the scales of the one after. A step ends where a block of k with a scale of F32 ends, and with a part of the rows,
 * and is filled up with zeros. So each element is summed over k in one order, whatever the tile. */

/* A step of the walk along k; count is 0 behind the last. */
typedef struct tegroup_impl_gpu_step {
    int64_t k;
    int32_t count;
    bool ends; /* a sum over k is to be multiplied by its scales */
} tegroup_impl_gpu_step;

/* Elements of k, from this one on, that a step may take of the operand: no scale of F32 begins anew within it, and one
 * of 8 bits only where a sixteenth element does. */
static __device__ __forceinline__ int64_t tegroup_impl_gpu_codes_run(const tegroup_impl_gpu_codes &codes, int64_t k,
                                                                     bool promotes) {
    const tegroup_impl_scale_grid &grid = codes.of.grid;
    if (!codes.of.facts || (!promotes && !codes.k_is_inner)) return TEGROUP_IMPL_BLOCK_OF_ALL;
    const int64_t shared = tegroup_impl_scale_shared(&grid, k, !codes.k_is_inner);
    const bool in_parts = grid.columnwise && grid.parts > 1;
    const int64_t at = in_parts ? k % grid.part_rows : k;
    if (promotes || at % TEGROUP_IMPL_PORTABLE_TILE_K != 0) return shared;
    return in_parts ? grid.part_rows - at : TEGROUP_IMPL_BLOCK_OF_ALL;
}
/* The same of both operands. A call of its own, as it may take divisions of 64 bits. */
static __device__ __noinline__ int64_t tegroup_impl_gpu_codes_run_of_both(const tegroup_impl_gpu_codes (&codes)[2],
                                                                          int64_t k, bool promotes) {
    return tegroup_impl_min(tegroup_impl_gpu_codes_run(codes[0], k, promotes),
                            tegroup_impl_gpu_codes_run(codes[1], k, promotes));
}

/* PROMOTES: scales are of F32, and multiply sums. */
template <bool PROMOTES> struct tegroup_impl_formats_block {
    static constexpr int TILE = 128, TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, THREADS = 512, MI = 2, NI = 4;
    static constexpr int PART_BYTES = TILE * TILE_K * 2, STAGE_BYTES = 2 * PART_BYTES, PADDED = TILE + 8;
    static constexpr int SHARED_BYTES = TILE * PADDED * 4 + 128; /* for sums, where two stages were; aligned */
    static constexpr int SCALES = PROMOTES ? 1 : 2;              /* that a thread loads for a step */
    static_assert(TILE * PADDED * 4 >= 2 * STAGE_BYTES, "two stages");
    static_assert(TILE * TILE_K == 16 * THREADS, "a thread has a piece of each operand, and a scale of 8 bits");
    static_assert(2 * TILE <= THREADS, "a thread has a scale of F32");

    /* Scales of a step: of 8 bits as halves of BF16, one for each piece if they are along the lines, else one for each
     * line and sixteen of k; or of F32, one for each line of both operands. */
    union scales {
        uint16_t halves[2][4 * TILE];
        float factors[2][TILE];
    };
    /* What a thread keeps of an operand of the tile. */
    struct operand {
        const char *from; /* its piece of the first step, if pieces are aligned */
        int32_t lines;
        bool along_k, aligned, scaled, k_is_inner;
    };

    operand of[2];
    tegroup_impl_gpu_line_scales mine[SCALES];
    int64_t block; /* of k, a power of two, in which a step stays; 0: that is worked out for each step */
    float part[MI][NI][4], sum[MI][NI][4]; /* sums over a block of k, and, PROMOTES, of such sums with their scales */
    uint32_t raw[2][8], code[SCALES];      /* the thread's pieces and scales of steps to come */

    static __device__ __forceinline__ int me() { return (int)threadIdx.x; }

    /* ---- where a thread's pieces and scales are ---- */

    /* Neighbouring threads have neighbouring pieces. across: the piece's line if it lies along k, or its k. */
    static __device__ __forceinline__ int32_t across(const operand &x) { return x.along_k ? me() / 4 : me() / 8; }
    static __device__ __forceinline__ int32_t along(const operand &x) { return (x.along_k ? me() % 4 : me() % 8) * 16; }
    /* Which line and k of a step a scale belongs to, and to which operand. */
    static __device__ __forceinline__ int scaled(int i) { return PROMOTES ? me() / TILE : i; }
    static __device__ __forceinline__ int32_t scaled_line(bool k_is_inner) {
        return PROMOTES || k_is_inner ? me() % TILE : me() % (TILE / 16) * 16;
    }
    static __device__ __forceinline__ int32_t scaled_k(bool k_is_inner) {
        return PROMOTES ? 0 : k_is_inner ? me() / TILE * 16 : me() / (TILE / 16);
    }

    __device__ __forceinline__ void open(const tegroup_impl_gpu_codes (&codes)[2]) {
        block = TEGROUP_IMPL_BLOCK_OF_ALL;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const tegroup_impl_gpu_codes &x = codes[i];
            of[i].lines = x.lines;
            of[i].along_k = x.along_k;
            of[i].aligned = x.aligned;
            of[i].scaled = x.of.facts != NULL;
            of[i].k_is_inner = x.k_is_inner;
            const int32_t line = x.along_k ? across(of[i]) : along(of[i]), k = x.along_k ? along(of[i]) : across(of[i]);
            of[i].from = x.data + (x.at + line * x.line_stride + k * x.k_stride) * x.bits / 8;
            if (!of[i].scaled) continue;
            if (PROMOTES) block = tegroup_impl_min(block, tegroup_impl_gpu_codes_k_block(x));
            if (tegroup_impl_gpu_codes_in_parts(x)) block = 0;
        }
#pragma unroll
        for (int i = 0; i < SCALES; i++) {
            mine[i].there = false;
            if (scaled(i) < 2) mine[i].open(codes[scaled(i)], scaled_line(codes[scaled(i)].k_is_inner));
        }
    }

    /* ---- steps ---- */

    __device__ __forceinline__ tegroup_impl_gpu_step step(const tegroup_impl_gpu_codes (&codes)[2], int64_t k,
                                                          int64_t end) const {
        const int64_t left = block > 0 ? block - (k & (block - 1))
                                       : tegroup_impl_gpu_codes_run_of_both(codes, k, PROMOTES),
                      run = tegroup_impl_min(left, end - k);
        tegroup_impl_gpu_step step;
        step.k = k;
        step.count = (int32_t)tegroup_impl_clamp(run, 0, TILE_K);
        step.ends = PROMOTES && step.count > 0 && run == step.count;
        return step;
    }

    /* ---- scales ---- */

    __device__ __forceinline__ void load_scales(const tegroup_impl_gpu_codes (&codes)[2],
                                                const tegroup_impl_gpu_step &step) {
#pragma unroll
        for (int i = 0; i < SCALES; i++) {
            code[i] = 0; /* of what does not exist: 0 times 0 is no NaN */
            if (!mine[i].there) continue;
            const tegroup_impl_gpu_codes &x = codes[scaled(i)];
            if (PROMOTES ? !step.ends : scaled_k(x.k_is_inner) >= step.count) continue;
            const int64_t at = mine[i].index(x, step.k + scaled_k(x.k_is_inner));
            code[i] = PROMOTES ? tegroup_impl_load_code(x.of.scale_dtype, x.of.scales, at)
                               : __ldg((const uint8_t *)x.of.scales + at) | 0x100u;
        }
    }
    __device__ __forceinline__ void store_scales(const tegroup_impl_gpu_codes (&codes)[2], scales *to) const {
#pragma unroll
        for (int i = 0; i < SCALES; i++) {
            if (scaled(i) >= 2) continue;
            const tegroup_impl_scaled &x = codes[scaled(i)].of;
            if (PROMOTES)
                to->factors[scaled(i)][me() % TILE] = x.facts ? tegroup_impl_f32_of_code(x.scale_dtype, code[i]) : 1.0f;
            else if (x.facts)
                to->halves[i][me()] = code[i] & 0x100u ? (uint16_t)tegroup_impl_gpu_half_of_scale(
                                          x.scale_dtype == TEGROUP_DTYPE_F8E8M0, code[i] & 0xffu)
                                                       : (uint16_t)0;
        }
    }

    /* ---- codes ---- */

    __device__ __forceinline__ void load(const tegroup_impl_gpu_codes (&codes)[2], const tegroup_impl_gpu_step &step) {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const operand &x = of[which];
            const tegroup_impl_gpu_codes &all = codes[which];
            uint32_t(&words)[8] = raw[which];
            const int32_t line = x.along_k ? across(x) : along(x), k = x.along_k ? along(x) : across(x),
                          left = x.along_k ? step.count - along(x) : x.lines - along(x);
            const bool there = line < x.lines && k < step.count;
            if (there && left >= 16 && x.aligned && (!x.along_k || step.k % 16 == 0)) {
                tegroup_impl_gpu_piece_at(x.from + step.k * all.k_bits / 8, all.bits, words);
                continue;
            }
#pragma unroll
            for (int i = 0; i < 8; i++) words[i] = 0;
            if (there)
                tegroup_impl_gpu_piece_slowly(all, all.at + line * all.line_stride + (step.k + k) * all.k_stride,
                                              min(left, 16), words);
        }
    }
    /* Decodes what was loaded, multiplies it by scales of 8 bits, and stores it as the BF16 kernel's loader does; but
     * for pieces by which nothing is multiplied, as they have no line that exists, nor one that fills up sixteen. */
    __device__ __forceinline__ void decode(const tegroup_impl_gpu_codes (&codes)[2], bool bf16, const scales &by,
                                           unsigned char *stage) {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const operand &x = of[which];
            const tegroup_impl_gpu_codes &all = codes[which];
            const uint16_t *halves = by.halves[which];
            uint32_t(&word)[8] = raw[which];
            if ((x.along_k ? across(x) & ~15 : along(x)) >= x.lines) continue;
            tegroup_impl_gpu_decode(tegroup_impl_gpu_decoding_of(all.dtype, bf16), all.bits, bf16, word);
            if (!PROMOTES && x.scaled) {
                if (x.along_k || !x.k_is_inner) { /* one scale */
                    const uint32_t one = x.along_k ? halves[along(x) / 16 * TILE + across(x)]
                                                   : halves[across(x) * (TILE / 16) + along(x) / 16];
#pragma unroll
                    for (int i = 0; i < 8; i++) word[i] = tegroup_impl_gpu_mul2(word[i], one | one << 16, true);
                } else {
                    const uint32_t *two = (const uint32_t *)(halves + across(x) / 16 * TILE + along(x));
#pragma unroll
                    for (int i = 0; i < 8; i++) word[i] = tegroup_impl_gpu_mul2(word[i], two[i], true);
                }
            }
            /* chunks of 16 bytes, permuted */
            unsigned char *row =
                stage + which * PART_BYTES + across(x) * 128 + (x.along_k ? 0 : along(x) / 64 * TILE_K * 128);
            const int chunk = along(x) % 64 / 8;
            *(uint4 *)(row + (chunk ^ (across(x) & 7)) * 16) = make_uint4(word[0], word[1], word[2], word[3]);
            *(uint4 *)(row + ((chunk + 1) ^ (across(x) & 7)) * 16) = make_uint4(word[4], word[5], word[6], word[7]);
        }
    }

    /* ---- products ---- */

    static __device__ __forceinline__ int warp_m() { return (int)threadIdx.x / 32 % 4 * 32; }
    static __device__ __forceinline__ int warp_n() { return (int)threadIdx.x / 128 * 32; }

    /* A warp has 32 x 32 of the tile; blocks of 16 lines that a short group has not are left out. */
    template <bool BF16, bool A_ALONG_K, bool B_ALONG_K>
    __device__ __forceinline__ void multiply_by(const unsigned char *stage, int32_t lines, int32_t count) {
        const int matrix = (int)threadIdx.x % 32 / 8, r = (int)threadIdx.x % 8;
        const uint32_t a = tegroup_impl_shared(stage)
                           + tegroup_impl_fragments<A_ALONG_K>(warp_m(), matrix & 1, matrix >> 1, r),
                       b = tegroup_impl_shared(stage) + PART_BYTES
                           + tegroup_impl_fragments<B_ALONG_K>(warp_n(), matrix >> 1, matrix & 1, r);
#pragma unroll
        for (int kk = 0; kk < TILE_K / 16; kk++) {
            uint32_t fa[MI][4], fb[NI / 2][4];
            if (kk * 16 >= count) break;
#pragma unroll
            for (int j = 0; j < NI / 2; j++)
                tegroup_impl_ldmatrix<!B_ALONG_K>(fb[j], tegroup_impl_fragment<B_ALONG_K>(b, 0, kk, j));
#pragma unroll
            for (int i = 0; i < MI; i++)
                tegroup_impl_ldmatrix<!A_ALONG_K>(fa[i], tegroup_impl_fragment<A_ALONG_K>(a, 0, kk, i));
#pragma unroll
            for (int i = 0; i < MI; i++)
                if (i * 16 < lines) {
#pragma unroll
                    for (int j = 0; j < NI; j++)
                        tegroup_impl_mma<BF16>(part[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
                }
        }
    }
    template <bool BF16> __device__ __forceinline__ void multiply(const unsigned char *stage, int32_t count) {
        const int32_t lines = of[0].lines - warp_m();
        if (lines <= 0 || of[1].lines <= warp_n()) return;
        if (of[0].along_k && of[1].along_k) multiply_by<BF16, true, true>(stage, lines, count);
        else if (of[0].along_k) multiply_by<BF16, true, false>(stage, lines, count);
        else if (of[1].along_k) multiply_by<BF16, false, true>(stage, lines, count);
        else multiply_by<BF16, false, false>(stage, lines, count);
    }

    /* Adds the sums over a block of k, times their scales, and begins the next. */
    __device__ __forceinline__ void promote(const scales &by) {
        const float *rows = by.factors[0] + warp_m() + threadIdx.x % 32 / 4,
                    *columns = by.factors[1] + warp_n() + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float factor = tegroup_impl_gpu_mul(rows[i * 16 + e / 2 * 8], columns[j * 8 + e % 2]);
                    sum[i][j][e] = tegroup_impl_gpu_fma(part[i][j][e], factor, sum[i][j][e]);
                    part[i][j][e] = 0;
                }
    }

    /* Sums of a tile, into shared memory. */
    __device__ __forceinline__ void work(const tegroup_impl_gpu_codes (&codes)[2], bool bf16, int64_t end,
                                         scales (&by)[3], unsigned char *memory) {
        open(codes);
        tegroup_impl_gpu_step now = {0, 0, false}, next = now, after = step(codes, 0, end);
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) part[i][j][e] = sum[i][j][e] = 0;
        for (uint32_t s = 0; now.count + next.count + after.count > 0; s++) {
            const unsigned char *stage = memory + s % 2 * STAGE_BYTES;
            __syncthreads(); /* this step's stage, and the next one's scales, have been stored */
            if (next.count > 0) load(codes, next);
            load_scales(codes, after);
            if (now.count > 0) {
                if (!PROMOTES || bf16) multiply<true>(stage, now.count);
                else multiply<false>(stage, now.count);
            }
            if (now.ends) promote(by[s % 3]);
            if (next.count > 0) decode(codes, !PROMOTES || bf16, by[(s + 1) % 3], memory + (s + 1) % 2 * STAGE_BYTES);
            store_scales(codes, &by[(s + 2) % 3]);
            now = next;
            next = after;
            after = step(codes, next.k + next.count, end);
        }
        __syncthreads();
        float *to = (float *)memory + (warp_m() + threadIdx.x % 32 / 4) * PADDED + warp_n() + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e += 2)
                    *(float2 *)(to + (i * 16 + e * 4) * PADDED + j * 8) =
                        PROMOTES ? make_float2(sum[i][j][e], sum[i][j][e + 1])
                                 : make_float2(part[i][j][e], part[i][j][e + 1]);
        __syncthreads();
    }
};

/* ---- the kernels ---- */

/* Finds a tile and opens its operands, a and b as they are quantised: all threads of a block. The first warp finds the
 * tile, and of each operand a warp where its codes and scales are. Nobody may read the last tile any more. */
template <typename WALK>
static __device__ __forceinline__ void tegroup_impl_formats_find(const tegroup_impl_gpu_call &call,
                                                                 const tegroup_tensor &a, const tegroup_tensor &b,
                                                                 int64_t t, WALK &walk, tegroup_impl_gpu_tile &tile,
                                                                 tegroup_impl_gpu_codes (&codes)[2]) {
    const tegroup_gemm_desc &desc = call.desc;
    const int which = (int)threadIdx.x / 32;
    if (which == 0) walk.find(call, t, threadIdx.x == 0 ? &tile : NULL);
    __syncthreads();
    if (which < 2 && tile.valid && tile.k > 0) {
        const int32_t g = tile.group;
        tegroup_impl_gpu_codes_reach(which ? b : a, call.views[which], g, &codes[which]);
        if (threadIdx.x == 0) {
            const int64_t line = tile.row - tegroup_impl_block_of(&desc.d, &call.views[TEGROUP_IMPL_D], g).row0;
            tegroup_impl_gpu_codes_open(a, desc.op == TEGROUP_OP_WGRAD, tile.a, tile.a_row, line, tile.m, &codes[0]);
            tile.alpha = tegroup_impl_scaled_alpha(&desc, g, (double)call.alpha);
        } else if (threadIdx.x == 32)
            tegroup_impl_gpu_codes_open(b, desc.op != TEGROUP_OP_FORWARD, tile.b, tile.b_row, tile.col, tile.n,
                                        &codes[1]);
    }
    __syncthreads();
}

template <bool PROMOTES>
static __global__ void __launch_bounds__(tegroup_impl_formats_block<PROMOTES>::THREADS)
    tegroup_impl_portable_formats_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                         const __grid_constant__ tegroup_impl_gpu_formats formats) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    typedef tegroup_impl_formats_block<PROMOTES> block_type;
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    unsigned char *const memory = tegroup_impl_memory + (128 - tegroup_impl_shared(tegroup_impl_memory) % 128) % 128;
    __shared__ tegroup_impl_gpu_walk<block_type::TILE, block_type::TILE, true> walk;
    __shared__ tegroup_impl_gpu_tile tile;
    __shared__ tegroup_impl_gpu_codes codes[2];
    __shared__ __align__(16) typename block_type::scales by[3];
    constexpr int CHUNKS = block_type::TILE / 8;
    if (threadIdx.x < 2) tegroup_impl_gpu_codes_begin(formats, (int)threadIdx.x, &codes[threadIdx.x]);
    if (threadIdx.x < 32) walk.begin(call);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads();
        tegroup_impl_formats_find(call, call.desc.a, call.desc.b, t, walk, tile, codes);
        if (!tile.valid) break;
        const tegroup_impl_gpu_tile here = tile;
        block_type block;
        if (here.k > 0) block.work(codes, formats.bf16, here.k, by, memory); /* else its sums are not looked at */
        const float *sums = (const float *)memory;
#pragma unroll 1
        for (int e = (int)threadIdx.x; e < block_type::TILE * CHUNKS; e += block_type::THREADS)
            tegroup_impl_gpu_finish(call.desc, here, e / CHUNKS, e % CHUNKS * 8,
                                    sums + e / CHUNKS * block_type::PADDED + e % CHUNKS * 8, tegroup_impl_as_is());
    }
#endif
}

/* ---- the call ---- */

static inline tegroup_status tegroup_impl_portable_formats_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    tegroup_gemm_desc read = *desc;
    tegroup_impl_gpu_formats formats = tegroup_impl_gpu_formats_of(desc);
    tegroup_impl_gpu_call call;
    void *arguments[2];
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    read.a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    read.b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    call = tegroup_impl_gpu_call_of(&read);
    arguments[0] = &call;
    arguments[1] = &formats;
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_rest(&call, stream, error));
    return tegroup_impl_formats_bias_grad(desc, &call, stream, error);
}

/* ==== [49] Portable GEMM: weights that are decoded in registers (src/cuda/portable_weights.h) ==== */

/* Forward products of few rows a group, and dgrads by the transposed copy of the weights: what they take is reading
 * weights. A ring of stages brings their codes, of E4M3 or E2M1, to shared memory as they are, with scales of 8 bits.
 * The product is multiplied transposed, as weights times rows: a thread then has the codes of two lines of weights in
 * the registers that mma.sync takes, where it decodes them, and a tile may have as few as 8 rows. Sums are those of the
 * BF16 product of the decoded numbers, in its order. Scales of F32 multiply sums (cuda/portable_promoted.h). */

/* Where weights are. Of lists, every group has its own buffers. */
typedef struct tegroup_impl_portable_held {
    const char *codes;
    const uint8_t *scales;
    const void *const *code_lists, *const *scale_lists;
    int64_t group_bytes, line_bytes;              /* of codes */
    int64_t scale_group_bytes, scale_lines_bytes; /* the latter of 128 lines */
    float alpha;                                  /* where the descriptor has none */
} tegroup_impl_portable_held;

/* BITS: of a code. E4M3: scales are, one for 16 of k (NVFP4); else they are E8M0, one for 32; or of F32, by FACTORS. */
template <int BITS, bool E4M3, typename FACTORS = tegroup_impl_portable_no_factors>
struct tegroup_impl_portable_weights_block {
    static constexpr bool PROMOTE = FACTORS::PROMOTE;
    static constexpr int TILE_M = PROMOTE ? 32 : 64; /* two sets of sums have room for half as many rows */
    static constexpr int TILE_N = 128, TILE_K = TEGROUP_IMPL_PORTABLE_TILE_K, THREADS = 128, STAGES = 4;
    static constexpr int MI = 2, NI = TILE_M / 8; /* a warp has 32 lines of weights, and all rows */
    static constexpr int LINE = TILE_K * BITS / 8, CHUNKS_A_LINE = LINE / 16, CODES_BYTES = TILE_N * LINE;
    static constexpr int ROWS_BYTES = TILE_M * TILE_K * 2, PADDED = TILE_N + 8;
    static constexpr int SCALES_BYTES = PROMOTE ? 0 : 512; /* of 128 lines, 4 of each */
    static constexpr int STAGE_BYTES = ROWS_BYTES + CODES_BYTES + SCALES_BYTES,
                         SHARED_BYTES = STAGES * STAGE_BYTES + 128;
    static_assert(TILE_M * PADDED * 4 <= STAGES * STAGE_BYTES, "sums are put where the ring was");

    uint32_t ring;
    tegroup_impl_loader<TILE_M, true, THREADS> load_rows;
    const char *codes, *scales; /* of the tile's lines */
    int64_t line_bytes;
    bool aligned;
    float sum[MI][NI][4];
    FACTORS factors;
    float total[MI][PROMOTE ? NI : 1][4]; /* of sums over parts of k */

    __device__ __forceinline__ explicit tegroup_impl_portable_weights_block(const void *memory)
        : ring(tegroup_impl_shared(memory)) {}

    static __device__ __forceinline__ int me() { return (int)threadIdx.x; }

    /* ---- loading ---- */

    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile, const tegroup_impl_portable_held &held) {
        const int32_t g = tile.group;
        const char *const first =
            held.code_lists ? (const char *)held.code_lists[g] : held.codes + g * held.group_bytes;
        const char *const scale = held.scale_lists ? (const char *)held.scale_lists[g]
                                                   : (const char *)held.scales + g * held.scale_group_bytes;
        line_bytes = held.line_bytes;
        codes = first + tile.col * line_bytes;
        scales = scale + tile.col / TILE_N * held.scale_lines_bytes;
        aligned = (((uintptr_t)codes | (uintptr_t)scales | (uintptr_t)line_bytes) & 15) == 0;
        load_rows.open(tile.a, tile.a_row, tile.m);
    }
    __device__ __forceinline__ void open(const tegroup_impl_gpu_tile &tile, const tegroup_impl_gpu_codes &weights) {
        line_bytes = weights.line_stride;
        codes = weights.data + weights.at;
        scales = NULL;
        aligned = weights.aligned;
        load_rows.open(tile.a, tile.a_row, tile.m);
    }
    /* Loads step s, if it exists. Lines that do not exist are left as they are: so are their results. */
    __device__ __forceinline__ void load(const tegroup_impl_gpu_tile &tile, int64_t s) {
        const uint32_t stage = ring + (uint32_t)(s % STAGES) * STAGE_BYTES, to = stage + ROWS_BYTES;
        if (s * TILE_K < tile.k) {
            load_rows.template load<false>(stage + load_rows.place(), tile.a_row, TILE_K);
            load_rows.advance(tile.a_row);
#pragma unroll
            for (int i = 0; i < CHUNKS_A_LINE; i++) {
                const int chunk = me() + i * THREADS, line = chunk / CHUNKS_A_LINE;
                copy(line < tile.n, to + (uint32_t)(chunk * 16),
                     codes + line * line_bytes + s * LINE + chunk % CHUNKS_A_LINE * 16);
            }
            if (!PROMOTE)
                copy(me() < SCALES_BYTES / 16, to + CODES_BYTES + (uint32_t)(me() * 16),
                     scales + (E4M3 ? s : s / 2) * SCALES_BYTES + me() * 16);
        }
        tegroup_impl_cp_commit(); /* even an empty group, so that the count of pending groups stays right */
    }
    /* 16 bytes, if they exist; byte by byte where the tensor is not aligned. */
    __device__ __forceinline__ void copy(bool there, uint32_t to, const char *from) const {
        if (aligned) tegroup_impl_cp_async_if<16>(there, to, from);
        else if (there)
#pragma unroll 1
            for (int i = 0; i < 16; i++)
                asm volatile("st.shared.u8 [%0], %1;" ::"r"(to + (uint32_t)i), "r"((uint32_t)(uint8_t)from[i])
                             : "memory");
    }

    /* ---- decoding ---- */

    static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) {
        return tegroup_impl_gpu_mul2(a, b, true);
    }
    /* The codes of a half, NaN of E4M3 as 480. */
    static __device__ __forceinline__ uint32_t of_e4m3(uint32_t two) {
        return mul2(tegroup_impl_gpu_two_of_e4m3(two), tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F8E4M3, true).power);
    }
    static __device__ __forceinline__ uint32_t with_nans(uint32_t value, uint32_t nans) {
        return value | (nans - (nans >> 15));
    }
    static __device__ __forceinline__ uint32_t of_e2m1(uint32_t byte) {
        return mul2(tegroup_impl_gpu_two_of_e2m1(byte), tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F4E2M1, true).power);
    }
    /* The codes of a line that this thread multiplies, of one half of a step: two for each half of both sixteens. from:
     * the line's. Returns what is not 0 if one is NaN, which NANS makes of it. */
    template <bool NANS>
    static __device__ __forceinline__ uint32_t decode(uint32_t from, int half_step, uint32_t (&values)[2][2]) {
        const uint32_t quarter = threadIdx.x % 4;
        uint32_t any = 0;
        if (BITS == 4) {
            const uint4 chunk = tegroup_impl_load_chunk(from + (uint32_t)(half_step * 16));
            const uint32_t pick = 0x1111u * quarter;
            values[0][0] = of_e2m1(__byte_perm(chunk.x, 0, pick));
            values[0][1] = of_e2m1(__byte_perm(chunk.y, 0, pick));
            values[1][0] = of_e2m1(__byte_perm(chunk.z, 0, pick));
            values[1][1] = of_e2m1(__byte_perm(chunk.w, 0, pick));
        } else {
            const uint32_t pick = 0x1100u + 0x2222u * quarter; /* bytes 2q, 2q, 2q + 1, 2q + 1 of eight */
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 chunk = tegroup_impl_load_chunk(from + (uint32_t)(half_step * 32 + i * 16));
                const uint32_t two[2] = {__byte_perm(chunk.x, chunk.y, pick), __byte_perm(chunk.z, chunk.w, pick)};
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    any |= tegroup_impl_gpu_nans_of_e4m3(two[j]);
                    values[i][j] =
                        NANS ? with_nans(of_e4m3(two[j]), tegroup_impl_gpu_nans_of_e4m3(two[j])) : of_e4m3(two[j]);
                }
            }
        }
        return any;
    }
    /* The scales of both sixteens, twice each. four: those of a line that lie together; first: which is the first. */
    static __device__ __forceinline__ void decode_scales(uint32_t four, uint32_t first, uint32_t (&by)[2]) {
        if (E4M3) {
            const uint32_t codes = __byte_perm(four, 0, 0x1100u + 0x1111u * first),
                           two = with_nans(of_e4m3(codes), tegroup_impl_gpu_nans_of_e4m3(codes));
            by[0] = __byte_perm(two, 0, 0x1010);
            by[1] = __byte_perm(two, 0, 0x3232);
        } else {
            const uint32_t half = tegroup_impl_gpu_half_of_scale(true, four >> 8 * first & 0xffu);
            by[0] = by[1] = half | half << 16;
        }
    }

    /* A thread's first line of weights; its others are 8 apart. */
    static __device__ __forceinline__ uint32_t first_line() { return threadIdx.x / 32 * 32 + threadIdx.x % 32 / 4; }

    /* Decodes what this thread multiplies of a half of step s. scale: the four of each of its lines. */
    template <bool NANS>
    static __device__ __forceinline__ bool hold(uint32_t stage, int64_t s, int half, const uint32_t (&scale)[2 * MI],
                                                uint32_t (&held)[2][MI][4]) {
        uint32_t any = 0;
#pragma unroll
        for (int i = 0; i < MI * 2; i++) {
            uint32_t values[2][2], by[2];
            any |= decode<NANS>(stage + ROWS_BYTES + (first_line() + (uint32_t)i * 8) * LINE, half, values);
            if (!PROMOTE)
                decode_scales(scale[i], E4M3 ? (uint32_t)half * 2 : (uint32_t)(s % 2) * 2 + (uint32_t)half, by);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t two = values[j / 2][j % 2];
                held[j / 2][i / 2][i % 2 + j % 2 * 2] = PROMOTE ? two : mul2(two, by[j / 2]);
            }
        }
        return any != 0;
    }

    /* ---- products ---- */

    __device__ __forceinline__ void step(const tegroup_impl_gpu_tile &tile, int64_t s) {
        const uint32_t stage = ring + (uint32_t)(s % STAGES) * STAGE_BYTES, matrix = threadIdx.x % 32 / 8,
                       r = threadIdx.x % 8,
                       rows = stage + tegroup_impl_fragments<true>(0, (int)matrix >> 1, (int)matrix & 1, (int)r);
        uint32_t scale[2 * MI];
        /* Scales are swizzled: line l has its four at 16 * (l % 32) + 4 * (l / 32). */
#pragma unroll
        for (int i = 0; i < MI * 2; i++) {
            const uint32_t l = first_line() + (uint32_t)i * 8;
            scale[i] =
                PROMOTE ? 0u : tegroup_impl_load_word(stage + ROWS_BYTES + CODES_BYTES + l % 32 * 16 + l / 32 * 4);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t held[2][MI][4]; /* of both sixteens */
            if (__any_sync(0xffffffffu, hold<false>(stage, s, half, scale, held)))
                (void)hold<true>(stage, s, half, scale, held);
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int pair = 0; pair < NI / 2; pair++) {
                    uint32_t x[4];
                    if (pair * 16 >= tile.m) break;
                    tegroup_impl_ldmatrix<false>(x, tegroup_impl_fragment<true>(rows, 0, half * 2 + j, pair));
#pragma unroll
                    for (int i = 0; i < MI; i++) {
                        tegroup_impl_mma<true>(sum[i][pair * 2], held[j][i], x[0], x[1]);
                        tegroup_impl_mma<true>(sum[i][pair * 2 + 1], held[j][i], x[2], x[3]);
                    }
                }
        }
    }
    /* Adds the sums over a part of k, times their factors, and begins the next. */
    __device__ __forceinline__ void promote(int32_t rows) {
        float lines[2 * MI];
#pragma unroll
        for (int i = 0; i < 2 * MI; i++) lines[i] = factors.column((int)first_line() + i * 8);
#pragma unroll
        for (int j = 0; j < NI; j++) {
            if (j * 8 >= rows) break;
            const float row[2] = {factors.row(j * 8 + me() % 4 * 2), factors.row(j * 8 + me() % 4 * 2 + 1)};
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float &to = total[i][PROMOTE ? j : 0][e];
                    to = tegroup_impl_gpu_fma(sum[i][j][e], tegroup_impl_gpu_mul(row[e % 2], lines[i * 2 + e / 2]), to);
                    sum[i][j][e] = 0;
                }
        }
    }
    __device__ __forceinline__ void multiply(const tegroup_impl_gpu_tile &shared) {
        const tegroup_impl_gpu_tile tile = shared;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][j][e] = total[i][PROMOTE ? j : 0][e] = 0;
        const int64_t count = (tile.k + TILE_K - 1) / TILE_K;
#pragma unroll 1
        for (int64_t s = 0; s < STAGES - 1; s++) load(tile, s);
#pragma unroll 1
        for (int64_t s = 0; s < count; s++) {
            const int32_t left = (int32_t)(count - s);
            factors.before(left);
            tegroup_impl_cp_wait<STAGES - 2>();
            __syncthreads(); /* the step is there, and that before it has been multiplied */
            load(tile, s + STAGES - 1);
            step(tile, s);
            if (factors.after(left)) promote(tile.m);
        }
        if (PROMOTE) {
#pragma unroll
            for (int i = 0; i < MI; i++)
#pragma unroll
                for (int j = 0; j < NI; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) sum[i][j][e] = total[i][PROMOTE ? j : 0][e];
        }
        tegroup_impl_cp_wait<0>();
        __syncthreads(); /* the ring is free */
    }

    /* Sums go through shared memory, which turns them. */
    template <typename FUNCTOR>
    __device__ __forceinline__ void finish(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &shared,
                                           unsigned char *memory, const FUNCTOR &functor) const {
        const tegroup_impl_gpu_tile tile = shared;
        float *const sums = (float *)memory, *const to = sums + me() % 4 * 2 * PADDED + me() / 32 * 32 + me() % 32 / 4;
#pragma unroll
        for (int i = 0; i < MI; i++)
#pragma unroll
            for (int j = 0; j < NI; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) to[(j * 8 + e % 2) * PADDED + i * 16 + e / 2 * 8] = sum[i][j][e];
        __syncthreads();
        constexpr int CHUNKS = TILE_N / 8;
        const int first = me() % CHUNKS * 8;
#pragma unroll 1
        for (int row = me() / CHUNKS; row < tile.m; row += THREADS / CHUNKS)
            tegroup_impl_gpu_finish(desc, tile, row, first, sums + row * PADDED + first, functor);
    }
    __device__ __forceinline__ void finish(const tegroup_gemm_desc &desc, const tegroup_impl_gpu_tile &shared,
                                           unsigned char *memory, const tegroup_impl_portable_held &held) const {
        tegroup_impl_gpu_tile tile = shared;
        tile.alpha = tegroup_impl_scaled_alpha(&desc, tile.group, (double)held.alpha);
        finish(desc, tile, memory, tegroup_impl_as_is());
    }
};

template <int BITS, bool E4M3>
static __global__ void __launch_bounds__(tegroup_impl_portable_weights_block<BITS, E4M3>::THREADS)
    tegroup_impl_portable_weights_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                         const __grid_constant__ tegroup_impl_portable_held held) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    tegroup_impl_portable_work<tegroup_impl_portable_weights_block<BITS, E4M3>, true>(call, held);
#endif
}

/* desc: rows of BF16, weights as they are read. */
static inline tegroup_status tegroup_impl_portable_weights_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    tegroup_gemm_desc read = *desc;
    tegroup_impl_gpu_call call;
    tegroup_impl_portable_held held;
    void *arguments[2] = {&call, &held};
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    read.op = TEGROUP_OP_FORWARD;
    if (desc->op == TEGROUP_OP_DGRAD) read.b = tegroup_impl_turned(&desc->b);
    call = tegroup_impl_gpu_call_of(&read);
    memset(&held, 0, sizeof held);
    const int64_t bits = tegroup_impl_bits(read.b.dtype), ld = tegroup_impl_ld(&read.b);
    const tegroup_impl_scale_grid grid = tegroup_impl_scale_grid_alone(
        &read.b, tegroup_scaling_info(read.b.scaling), tegroup_impl_sides_of(read.b.shape.rows, read.b.shape.cols), 0);
    held.alpha = call.alpha;
    held.codes = (const char *)read.b.data;
    held.scales = (const uint8_t *)read.b.scale_inv;
    if (tegroup_impl_listed(&read.b)) {
        held.code_lists = (const void *const *)read.b.pointers;
        held.scale_lists = (const void *const *)read.b.scale_pointers;
    }
    held.line_bytes = ld * bits / 8;
    held.group_bytes = tegroup_impl_stride_bytes(&read.b);
    held.scale_group_bytes = grid.count;
    held.scale_lines_bytes = grid.inner_extent * 128;
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    return tegroup_impl_cuda_rest(&call, stream, error);
}

/* ==== [50] Portable GEMM: products whose sums are promoted (src/cuda/portable_promoted.h) ==== */

/* Operands of FP8 with scales of F32 are decoded to BF16, where their codes are exact, before the product
 * (cuda/decode.h) or, as weights of short groups, in its registers (cuda/portable_weights.h), and multiplied as BF16
 * is. Sums over a block of k are multiplied by the scales and added up as in cuda/portable_formats.h, in the same
 * order: results have the same bits. */

/* The scales of a block of k. A thread of a block of THREADS has those of one line of an operand, or of one line of
 * each. A step of the walk along k stays in a block, as these have multiples of 64. */
template <int THREADS> struct tegroup_impl_portable_factors {
    static constexpr bool PROMOTE = true;
    static constexpr int LINES = 128, EACH = 2 * LINES / THREADS, K = TEGROUP_IMPL_PORTABLE_TILE_K;
    struct line {
        const tegroup_impl_gpu_codes *codes; /* of its operand, in shared memory */
        tegroup_impl_gpu_line_scales scales;
        const float *next; /* the scale to be loaded next, if those of the line are F32 at strides; else NULL */
        int64_t stride; /* from one block's to the next's; 0 if the line has one, beside blocks of the other operand */
        uint32_t code;  /* the scale of the block that is being summed */
    };
    line mine[EACH];
    float *shared;        /* [2][LINES] */
    int32_t done, within; /* steps of the tile that are over; steps of a block, a power of two, less one */
    bool one_column;      /* all columns of the tile have one scale */

    __device__ __forceinline__ void open(const tegroup_impl_gpu_codes (&both)[2], float (&factors)[2][LINES]) {
        int64_t block = TEGROUP_IMPL_BLOCK_OF_ALL;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (both[i].of.facts) block = tegroup_impl_min(block, tegroup_impl_gpu_codes_k_block(both[i]));
        one_column = !both[1].of.facts || tegroup_impl_gpu_codes_line_block(both[1]) >= LINES;
        shared = &factors[0][0];
        done = 0;
        within = (int32_t)tegroup_impl_min(block / K - 1, INT32_MAX);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            line &my = mine[i];
            my.codes = &both[slot(i) / LINES];
            my.scales.open(*my.codes, slot(i) % LINES);
            const tegroup_impl_scaled &of = my.codes->of;
            my.next = my.scales.there && my.scales.strided && of.scale_dtype == TEGROUP_DTYPE_F32 && !of.grid.packed
                          ? (const float *)of.scales + my.scales.from
                          : NULL;
            my.stride = of.facts && of.grid.block_inner <= block ? of.grid.inner_stride : 0;
        }
        load();
    }
    static __device__ __forceinline__ int32_t slot(int i) { return (int32_t)threadIdx.x + i * THREADS; }
    __device__ __forceinline__ void load() {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            line &my = mine[i];
            if (my.next) {
                my.code = __float_as_uint(__ldg(my.next));
                my.next += my.stride;
            } else {
                const tegroup_impl_scaled &of = my.codes->of;
                my.code = my.scales.there ? tegroup_impl_load_code(of.scale_dtype, of.scales,
                                                                   my.scales.index(*my.codes, (int64_t)done * K))
                                          : 0u;
            }
        }
    }
    /* Before a step, of which `left` are left, itself included. Between its loads and its end all threads meet. Where
     * it has a block of its own, they must meet here, too: the factors before may still be read. */
    __device__ __forceinline__ void before(int32_t left) {
        if ((done & within) != within && left > 1) return;
        if ((done & within) == 0 && done > 0) __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const tegroup_impl_scaled &of = mine[i].codes->of;
            shared[slot(i)] = of.facts ? tegroup_impl_f32_of_code(of.scale_dtype, mine[i].code) : 1.0f;
        }
    }
    /* After it: whether sums are promoted now. The next block's scales are loaded while that is done. */
    __device__ __forceinline__ bool after(int32_t left) {
        const bool ends = (done++ & within) == within || left == 1;
        if (ends && left > 1) load();
        return ends;
    }
    __device__ __forceinline__ float row(int line) const { return shared[line]; }
    __device__ __forceinline__ float column(int line) const { return shared[LINES + line]; }
};

template <int OP>
using tegroup_impl_portable_promoted_block =
    tegroup_impl_portable_block<true, OP, 128, 128, 2, 4, 3, false, tegroup_impl_portable_factors<256>>;
typedef tegroup_impl_portable_weights_block<8, false, tegroup_impl_portable_factors<128>>
    tegroup_impl_portable_promoted_weights_block;

/* The operands as they are quantised, whose scales are read. */
typedef struct tegroup_impl_portable_scaled {
    tegroup_tensor a, b;
    tegroup_impl_gpu_formats formats;
} tegroup_impl_portable_scaled;

/* What a block does; call: of what has been decoded before the product. */
template <typename BLOCK>
static __device__ __forceinline__ void tegroup_impl_portable_promoted_work(const tegroup_impl_gpu_call &call,
                                                                           const tegroup_impl_portable_scaled &scaled) {
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    unsigned char *const ring = tegroup_impl_memory + (128 - tegroup_impl_shared(tegroup_impl_memory) % 128) % 128;
    __shared__ tegroup_impl_gpu_walk<BLOCK::TILE_M, BLOCK::TILE_N, true> walk;
    __shared__ tegroup_impl_gpu_tile tile;
    __shared__ tegroup_impl_gpu_codes codes[2];
    __shared__ float factors[2][decltype(BLOCK::factors)::LINES];
    BLOCK block(ring);
    if (threadIdx.x < 2) tegroup_impl_gpu_codes_begin(scaled.formats, (int)threadIdx.x, &codes[threadIdx.x]);
    if (threadIdx.x < 32) walk.begin(call);
    for (int64_t t = blockIdx.x;; t += gridDim.x) {
        __syncthreads(); /* nobody reads the last tile's shared memory any more */
        tegroup_impl_formats_find(call, scaled.a, scaled.b, t, walk, tile, codes);
        if (!tile.valid) break;
        const tegroup_impl_gpu_tile here = tile; /* in registers, which these kernels have */
        block.open(here, codes[1]);              /* where weights are that the block decodes */
        if (here.k > 0) block.factors.open(codes, factors);
        block.multiply(here);
        block.finish(call.desc, tile, ring, tegroup_impl_as_is());
    }
}

template <int OP>
static __global__ void __launch_bounds__(tegroup_impl_portable_promoted_block<OP>::THREADS)
    tegroup_impl_portable_promoted_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                          const __grid_constant__ tegroup_impl_portable_scaled scaled) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    tegroup_impl_portable_promoted_work<tegroup_impl_portable_promoted_block<OP>>(call, scaled);
#endif
}

/* Three blocks a multiprocessor: two leave too few bytes on their way, and four have too few registers. */
static __global__ void __launch_bounds__(tegroup_impl_portable_promoted_weights_block::THREADS, 3)
    tegroup_impl_portable_promoted_weights_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                                  const __grid_constant__ tegroup_impl_portable_scaled scaled) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    __trap();
#else
    tegroup_impl_portable_promoted_work<tegroup_impl_portable_promoted_weights_block>(call, scaled);
#endif
}

/* desc: as the caller made it; decoded: with operands of BF16, but for weights that the kernel decodes. */
static inline tegroup_status tegroup_impl_portable_promoted_gemm(const tegroup_plan *plan,
                                                                 const tegroup_gemm_desc *desc,
                                                                 const tegroup_gemm_desc *decoded,
                                                                 struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_gpu_call call = tegroup_impl_gpu_call_of(decoded);
    tegroup_impl_portable_scaled scaled;
    void *arguments[2] = {&call, &scaled};
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    memset(&scaled, 0, sizeof scaled);
    scaled.a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    scaled.b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    scaled.formats = tegroup_impl_gpu_formats_of(desc);
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    return tegroup_impl_cuda_rest(&call, stream, error);
}
#endif /* TEGROUP_NO_FP8 */

/* ==== [51] Portable GEMM: plan and launch (src/cuda/portable_plan.h) ==== */

/* A kernel row: one kernel of the family, for BF16 and for FP16. Tiles of up to 128 rows fit SM86, 89 and 120, whose
 * blocks have 99 KB of shared memory for the ring and what the kernel itself declares, less than 2.4 KB. The 256-row
 * tile is for SM90 and 100. */
typedef struct tegroup_impl_portable_row {
    const void *bf16, *f16;
    int32_t tile_m, tile_n, threads, shared_bytes;
} tegroup_impl_portable_row;

#define TEGROUP_IMPL_PORTABLE_ROW(op, m, n, warps_m, warps_n, stages)                                                  \
    {TEGROUP_IMPL_KERNEL_##op(tegroup_impl_portable_kernel<true, op, m, n, warps_m, warps_n, stages>),                 \
     TEGROUP_IMPL_KERNEL_F16(op, tegroup_impl_portable_kernel<false, op, m, n, warps_m, warps_n, stages>),             \
     m,                                                                                                                \
     n,                                                                                                                \
     tegroup_impl_portable_block<true, op, m, n, warps_m, warps_n, stages>::THREADS,                                   \
     tegroup_impl_portable_block<true, op, m, n, warps_m, warps_n, stages>::SHARED_BYTES},

/* The tiles of each operation, ordered by their height: ROW(op, m, n, warps along m, warps along n, stages). */
#define TEGROUP_IMPL_PORTABLE_ROWS_1(ROW) ROW(1, 64, 128, 1, 4, 4) ROW(1, 128, 128, 2, 2, 3) ROW(1, 256, 192, 4, 2, 3)
#define TEGROUP_IMPL_PORTABLE_ROWS_2(ROW) ROW(2, 64, 128, 1, 4, 4) ROW(2, 128, 128, 2, 2, 3) ROW(2, 256, 192, 4, 2, 3)
#define TEGROUP_IMPL_PORTABLE_ROWS_3(ROW) ROW(3, 64, 128, 2, 2, 3) ROW(3, 128, 128, 2, 2, 3)

/* The kernel rows of one operation. */
static inline const tegroup_impl_portable_row *tegroup_impl_portable_rows(tegroup_op op, int32_t *count) {
    static const tegroup_impl_portable_row forward[] = {TEGROUP_IMPL_PORTABLE_ROWS_1(TEGROUP_IMPL_PORTABLE_ROW)};
    static const tegroup_impl_portable_row dgrad[] = {TEGROUP_IMPL_PORTABLE_ROWS_2(TEGROUP_IMPL_PORTABLE_ROW)};
    static const tegroup_impl_portable_row wgrad[] = {TEGROUP_IMPL_PORTABLE_ROWS_3(TEGROUP_IMPL_PORTABLE_ROW)};
    *count = op == TEGROUP_OP_WGRAD ? 2 : 3;
    return op == TEGROUP_OP_FORWARD ? forward : op == TEGROUP_OP_DGRAD ? dgrad : wgrad;
}

#define TEGROUP_IMPL_PORTABLE_DECLARED 2432 /* bytes of shared memory that a kernel declares itself, at most */
#define TEGROUP_IMPL_PORTABLE_FITS(m, n, warps_m, warps_n, stages, kilobytes)                                          \
    static_assert(tegroup_impl_portable_block<true, 1, m, n, warps_m, warps_n, stages>::SHARED_BYTES                   \
                          + TEGROUP_IMPL_PORTABLE_DECLARED                                                             \
                      <= (kilobytes)*1024,                                                                             \
                  "a block's shared memory")
TEGROUP_IMPL_PORTABLE_FITS(64, 128, 1, 4, 4, 99);
TEGROUP_IMPL_PORTABLE_FITS(64, 128, 2, 2, 3, 99);
TEGROUP_IMPL_PORTABLE_FITS(128, 128, 2, 2, 3, 99);
TEGROUP_IMPL_PORTABLE_FITS(256, 192, 4, 2, 3, 227);
#if TEGROUP_IMPL_FP8_KERNELS
static_assert(tegroup_impl_portable_promoted_block<1>::SHARED_BYTES + TEGROUP_IMPL_PORTABLE_DECLARED <= 99 * 1024
                  && tegroup_impl_portable_weights_block<8, false>::SHARED_BYTES + TEGROUP_IMPL_PORTABLE_DECLARED
                         <= 99 * 1024,
              "a block's shared memory");
#endif

/* Chooses the lowest tile that holds `lines`, the rows of an average group's D, within `limit` bytes of shared memory.
 * The 256-row tile wastes most at groups' ends and leaves no room for a second block, which would multiply while the
 * first one stores. It is taken only if groups are long and even (`alike`), its width wastes few columns, and sums are
 * long. */
static inline const tegroup_impl_portable_row *tegroup_impl_portable_choose(tegroup_op op, int64_t lines,
                                                                            int64_t columns, int64_t terms, int alike,
                                                                            int32_t limit) {
    int32_t count, i;
    const tegroup_impl_portable_row *rows = tegroup_impl_portable_rows(op, &count);
    for (i = 0; i + 1 < count; i++)
        if (rows[i].tile_m >= lines || rows[i + 1].shared_bytes + TEGROUP_IMPL_PORTABLE_DECLARED > limit
            || (rows[i + 1].tile_m > 128
                && (lines < 384 || !alike || terms < 1024
                    || tegroup_impl_ceil_div(columns, rows[i + 1].tile_n) * rows[i + 1].tile_n
                           > columns + columns / 10)))
            break;
    return &rows[i];
}

/* Shared memory that a block may have on this device. Tests can pretend to be on a smaller GPU. */
static inline cudaError_t tegroup_impl_shared_limit(int device, int *limit) {
    cudaError_t code = cudaDeviceGetAttribute(limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
#if defined(TEGROUP_IMPL_SHARED_LIMIT)
    *limit = (int)tegroup_impl_min(*limit, TEGROUP_IMPL_SHARED_LIMIT);
#endif
    return code;
}

/* Puts a kernel into the plan, unless its block needs more shared memory than this GPU allows. */
static inline tegroup_status tegroup_impl_portable_take(tegroup_plan *plan, const void *kernel, int32_t threads,
                                                        int32_t shared, tegroup_error *error) {
    cudaFuncAttributes attributes;
    int limit = 0;
    cudaError_t code = tegroup_impl_shared_limit(plan->device, &limit);
    if (code == cudaSuccess) code = cudaFuncGetAttributes(&attributes, kernel);
    if (code == cudaSuccess)
        TEGROUP_IMPL_RULE((int64_t)attributes.sharedSizeBytes + shared <= limit, ERROR_UNSUPPORTED, "target.sm",
                          "must give a block this much shared memory", (int64_t)attributes.sharedSizeBytes + shared,
                          limit);
    if (code == cudaSuccess) code = tegroup_impl_planned(plan, kernel, threads, shared, INT32_MAX);
    return tegroup_impl_cuda_status(code, "plan", "the kernel's attributes must be readable", error);
}
template <typename BLOCK>
static inline tegroup_status tegroup_impl_portable_take_block(tegroup_plan *plan, const void *kernel,
                                                              tegroup_error *error) {
    plan->tile_m = BLOCK::TILE_M;
    plan->tile_n = BLOCK::TILE_N;
    plan->tile_k = BLOCK::TILE_K;
    return tegroup_impl_portable_take(plan, kernel, BLOCK::THREADS, BLOCK::SHARED_BYTES, error);
}
static inline tegroup_status tegroup_impl_portable_take_row(tegroup_plan *plan, const tegroup_impl_portable_row *row,
                                                            tegroup_error *error) {
    plan->tile_m = row->tile_m;
    plan->tile_n = row->tile_n;
    plan->tile_k = TEGROUP_IMPL_PORTABLE_TILE_K;
    return tegroup_impl_portable_take(plan, plan->problem.a == TEGROUP_DTYPE_F16 ? row->f16 : row->bf16, row->threads,
                                      row->shared_bytes, error);
}

/* Whether this build has usable code for the device. If it was compiled for GPUs before SM80 only, what the driver
 * makes of that for a later GPU has no mma.sync. */
static inline int tegroup_impl_portable_image(int32_t) {
    cudaFuncAttributes attributes;
    int32_t count;
    const cudaError_t code =
        cudaFuncGetAttributes(&attributes, tegroup_impl_portable_rows(TEGROUP_OP_FORWARD, &count)->bf16);
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code == cudaSuccess && attributes.ptxVersion >= 80;
}

static inline tegroup_status tegroup_impl_portable_plan(const tegroup_gemm_desc *desc, const tegroup_impl_names *,
                                                        tegroup_plan *plan, tegroup_error *error) {
    const tegroup_problem *p = &plan->problem;
    const int64_t average = tegroup_impl_expected_rows(desc, p) / tegroup_impl_max(1, p->groups),
                  lines = p->op == TEGROUP_OP_WGRAD ? p->n : average;
    const int forward = p->op == TEGROUP_OP_FORWARD;
    int limit = 0;
#if TEGROUP_IMPL_FP8_KERNELS
    if (tegroup_impl_portable_plans_weights(plan)) {
        typedef tegroup_impl_portable_weights_block<8, false> mxfp8;
        typedef tegroup_impl_portable_weights_block<4, false> mxfp4;
        typedef tegroup_impl_portable_weights_block<4, true> nvfp4;
        if (!tegroup_impl_scales_values(p))
            return tegroup_impl_portable_take_block<tegroup_impl_portable_promoted_weights_block>(
                plan, (const void *)tegroup_impl_portable_promoted_weights_kernel, error);
        if (tegroup_impl_bits(p->b) == 8)
            return tegroup_impl_portable_take_block<mxfp8>(
                plan, (const void *)tegroup_impl_portable_weights_kernel<8, false>, error);
        if (p->b_scaling == TEGROUP_SCALING_MXFP4)
            return tegroup_impl_portable_take_block<mxfp4>(
                plan, (const void *)tegroup_impl_portable_weights_kernel<4, false>, error);
        return tegroup_impl_portable_take_block<nvfp4>(
            plan, (const void *)tegroup_impl_portable_weights_kernel<4, true>, error);
    }
    if (tegroup_impl_quantised(p) && !tegroup_impl_portable_decoded(plan)) {
        typedef tegroup_impl_formats_block<false> block;
        plan->tile_m = plan->tile_n = block::TILE;
        plan->tile_k = TEGROUP_IMPL_PORTABLE_TILE_K;
        return tegroup_impl_portable_take(plan,
                                          tegroup_impl_scales_values(p)
                                              ? (const void *)tegroup_impl_portable_formats_kernel<false>
                                              : (const void *)tegroup_impl_portable_formats_kernel<true>,
                                          block::THREADS, block::SHARED_BYTES, error);
    }
    if (tegroup_impl_quantised(p) && !tegroup_impl_scales_values(p))
        return tegroup_impl_portable_take_block<tegroup_impl_portable_promoted_block<1>>(
            plan,
            forward                     ? TEGROUP_IMPL_KERNEL_1(tegroup_impl_portable_promoted_kernel<1>)
            : p->op == TEGROUP_OP_DGRAD ? TEGROUP_IMPL_KERNEL_2(tegroup_impl_portable_promoted_kernel<2>)
                                        : TEGROUP_IMPL_KERNEL_3(tegroup_impl_portable_promoted_kernel<3>),
            error);
#endif
    if (p->a == TEGROUP_DTYPE_F32) {
        const int mixed = p->b != TEGROUP_DTYPE_F32;
        plan->tile_m = plan->tile_n = 64;
        plan->tile_k = mixed ? 32 : 16;
        return tegroup_impl_portable_take(
            plan,
            forward                     ? (mixed ? TEGROUP_IMPL_KERNEL_1(tegroup_impl_portable_f32_kernel<1, true>)
                                                 : TEGROUP_IMPL_KERNEL_1(tegroup_impl_portable_f32_kernel<1, false>))
            : p->op == TEGROUP_OP_DGRAD ? (mixed ? TEGROUP_IMPL_KERNEL_2(tegroup_impl_portable_f32_kernel<2, true>)
                                                 : TEGROUP_IMPL_KERNEL_2(tegroup_impl_portable_f32_kernel<2, false>))
                                        : TEGROUP_IMPL_KERNEL_3(tegroup_impl_portable_f32_kernel<3, false>),
            256, 0, error);
    }
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(tegroup_impl_shared_limit(plan->device, &limit), "plan.device",
                                              "must be readable", error));
    return tegroup_impl_portable_take_row(
        plan,
        tegroup_impl_portable_choose(p->op, lines, forward ? p->n : p->k, forward ? p->k : p->n,
                                     desc->options.expected_rows_max / 2 <= average, limit),
        error);
}

/* Decoded operands are as planned. */
static inline tegroup_status tegroup_impl_portable_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                         const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_tensor *operands[2] = {&desc->a, &desc->b};
    for (int i = 0; i < 2; i++) {
        const tegroup_impl_name *name = names->operand[i];
        if (i == TEGROUP_IMPL_B && tegroup_impl_portable_plans_weights(plan))
            TEGROUP_IMPL_TRY(tegroup_impl_check_held(desc, name, error));
        if (!(tegroup_impl_portable_decoded(plan) >> i & 1u)) continue;
        TEGROUP_IMPL_RULE(operands[i]->scale_parts <= 1, ERROR_PLAN, TEGROUP_IMPL_PATH(SCALE_PARTS),
                          "must be 0 or 1, as planned", 1, operands[i]->scale_parts);
        TEGROUP_IMPL_TRY(tegroup_impl_check_decoded_rows(plan, operands[i], (tegroup_impl_operand)i, name, error));
    }
    return TEGROUP_OK;
}

/* Runs the kernel of a plan on operands that are not quantised. */
static inline tegroup_status tegroup_impl_portable_multiply(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                            struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_gpu_call call = tegroup_impl_gpu_call_of(desc);
    void *arguments[2];
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    arguments[0] = &call;
    arguments[1] = (void *)(uintptr_t)plan->algorithm[TEGROUP_IMPL_PLANNED_FUNCTOR]; /* if the kernel has one */
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    return tegroup_impl_cuda_rest(&call, stream, error);
}

static inline tegroup_status tegroup_impl_portable_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                        struct CUstream_st *stream, tegroup_error *error) {
#if TEGROUP_IMPL_FP8_KERNELS
    const uint32_t operands = tegroup_impl_portable_decoded(plan);
    const int weights = tegroup_impl_portable_plans_weights(plan);
    if (operands || weights) { /* A bias gradient is the sum of a quantised dY's values themselves. */
        tegroup_gemm_desc decoded;
        tegroup_impl_gpu_call read;
        tegroup_layout layout;
        tegroup_impl_layout_begin(&layout);
        tegroup_impl_portable_workspace(plan, &layout);
        TEGROUP_IMPL_TRY(tegroup_impl_decode(plan, desc, &layout, operands, &decoded, &read, stream, error));
        TEGROUP_IMPL_TRY(tegroup_impl_scales_values(&plan->problem)
                             ? (weights ? tegroup_impl_portable_weights_gemm(plan, &decoded, stream, error)
                                        : tegroup_impl_portable_multiply(plan, &decoded, stream, error))
                             : tegroup_impl_portable_promoted_gemm(plan, desc, &decoded, stream, error));
        return tegroup_impl_formats_bias_grad(desc, &read, stream, error);
    }
    if (tegroup_impl_quantised(&plan->problem)) return tegroup_impl_portable_formats_gemm(plan, desc, stream, error);
#endif
    return tegroup_impl_portable_multiply(plan, desc, stream, error);
}

#if TEGROUP_IMPL_FUSED_KERNELS
/* Finds the kernel with an activation, or its gradient, in the epilogue; plan: of a forward product or of dgrad. */
static inline tegroup_status tegroup_impl_portable_plan_fused(const tegroup_plan *plan, tegroup_fused_kernel *kernel,
                                                              tegroup_error *error) {
    const int bf16 = plan->problem.a == TEGROUP_DTYPE_BF16,
              shared = tegroup_impl_portable_fused_block<true, 1>::SHARED_BYTES;
    const void *chosen = plan->problem.op == TEGROUP_OP_FORWARD
                             ? (bf16 ? TEGROUP_IMPL_KERNEL_1(tegroup_impl_portable_fused_kernel<true, 1>)
                                     : TEGROUP_IMPL_KERNEL_F16(1, tegroup_impl_portable_fused_kernel<false, 1>))
                             : (bf16 ? TEGROUP_IMPL_KERNEL_2(tegroup_impl_portable_fused_kernel<true, 2>)
                                     : TEGROUP_IMPL_KERNEL_F16(2, tegroup_impl_portable_fused_kernel<false, 2>));
    tegroup_plan fused = *plan;
    TEGROUP_IMPL_TRY(tegroup_impl_portable_take(&fused, chosen, 128, shared, error));
    kernel->function = fused.algorithm[TEGROUP_IMPL_PLANNED_KERNEL];
    kernel->blocks = fused.algorithm[TEGROUP_IMPL_PLANNED_BLOCKS];
    return TEGROUP_OK;
}

static inline tegroup_status tegroup_impl_portable_gemm_fused(const tegroup_plan *, const tegroup_gemm_desc *desc,
                                                              const tegroup_impl_epilogue *epilogue,
                                                              struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_gpu_call call = tegroup_impl_gpu_call_of(desc);
    tegroup_impl_gpu_epilogue end = tegroup_impl_gpu_epilogue_of(desc, epilogue);
    tegroup_impl_gpu_up up = tegroup_impl_gpu_up_of(epilogue);
    void *arguments[3];
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    if (up.apart) tegroup_impl_gpu_widen(&call.desc);
    arguments[0] = &call;
    arguments[1] = &end;
    arguments[2] = &up;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
        cudaLaunchKernel((const void *)(uintptr_t)epilogue->kernel.function, dim3((unsigned)epilogue->kernel.blocks),
                         dim3(128), arguments, (size_t)tegroup_impl_portable_fused_block<true, 1>::SHARED_BYTES,
                         stream),
        "stream", "the kernel must launch", error));
    return tegroup_impl_cuda_rest(&call, stream, error);
}
#endif
#endif /* TEGROUP_NO_PORTABLE */
#if !defined(TEGROUP_NO_SM90)

/* ==== [52] Hopper's instructions (src/cuda/hopper.h) ==== */

/* mbarriers, TMA and wgmma as PTX ISA 8.0 and later describe them (sections 9.7.13.15, 9.7.9.27 and 9.7.15). They
 * assemble for sm_90a only; TEGROUP_IMPL_HOPPER is 1 in the compiler pass for that architecture. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TEGROUP_IMPL_HOPPER 1
#else
#define TEGROUP_IMPL_HOPPER 0
#endif

#include <cuda.h> /* CUtensorMap; only types of the driver's header are used, nothing of it is linked */

template <bool FIRST, typename A, typename B> struct tegroup_impl_if { typedef A type; };
template <typename A, typename B> struct tegroup_impl_if<false, A, B> { typedef B type; };

#if TEGROUP_IMPL_HOPPER
/* ---- barriers in shared memory ---- */

static __device__ __forceinline__ void tegroup_impl_barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
static __device__ __forceinline__ void tegroup_impl_barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
static __device__ __forceinline__ void tegroup_impl_barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* Waits until the phase of this parity completes. */
static __device__ __forceinline__ void tegroup_impl_barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{.reg .pred over;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@!over bra again;}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* The same on the barrier of block BLOCK of the cluster that has the place of this block's. It says that wgmma has read
 * a stage, so it need not release what threads have written. */
template <int BLOCK> static __device__ __forceinline__ void tegroup_impl_barrier_arrive_at(uint32_t barrier) {
    asm volatile("{.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(barrier),
                 "n"(BLOCK)
                 : "memory");
}
/* Synchronizes all threads of a cluster, and has them see its initialized barriers. */
static __device__ __forceinline__ void tegroup_impl_cluster_sync(void) {
    __syncwarp();
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
/* Synchronizes the 128 threads of a warpgroup. Barrier 0 is the one of __syncthreads. */
static __device__ __forceinline__ void tegroup_impl_warpgroup_sync(int barrier) {
    asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

/* ---- copies ---- */

/* Loads a box of a tensor into shared memory and counts its bytes on the mbarrier `barrier`. anywhere: the tensor map
 * has two more dimensions, with strides of 16 and of 2^35 bytes, by which the box is shifted `origin` bytes, modulo
 * 2^64. */
static __device__ __forceinline__ void tegroup_impl_tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                                             int32_t x, int32_t y, int32_t z, bool anywhere,
                                                             uint64_t origin) {
    if (anywhere)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"((int32_t)(origin >> 4 & 0x7fffffff)),
                     "r"((int32_t)(origin >> 35))
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                     : "memory");
}
/* The same into each of the two blocks of a cluster, at the same place, and counted on the barrier of each. */
static __device__ __forceinline__ void tegroup_impl_tma_load_twice(uint32_t to, const CUtensorMap *map,
                                                                   uint32_t barrier, int32_t x, int32_t y, int32_t z,
                                                                   bool anywhere, uint64_t origin) {
    const uint16_t both = 3;
    if (anywhere)
        asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"((int32_t)(origin >> 4 & 0x7fffffff)),
                     "r"((int32_t)(origin >> 35)), "h"(both)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                     "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(both)
                     : "memory");
}
/* Loads a multiple of 16 bytes, from a multiple of 16, into shared memory, and counts them on an mbarrier. */
static __device__ __forceinline__ void tegroup_impl_bulk_load(uint32_t to, const void *from, uint32_t bytes,
                                                              uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* Lets this thread load by a map in global memory that an earlier kernel wrote. */
static __device__ __forceinline__ void tegroup_impl_tma_map_acquire(const CUtensorMap *map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
/* Stores a box from shared memory. adds: L2 adds the box to the FP32 values in memory instead, with the same results as
 * FADD, subnormals, infinities and NaN included. */
static __device__ __forceinline__ void tegroup_impl_tma_store(const CUtensorMap *map, uint32_t from, int32_t x,
                                                              int32_t y, int32_t z, bool anywhere, uint64_t origin,
                                                              bool adds = false, bool passes = false) {
#define TEGROUP_IMPL_STORE(copy, how)                                                                                  \
    if (anywhere)                                                                                                      \
        asm volatile(                                                                                                  \
            copy ".tensor.5d.global.shared::cta" how ".tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),  \
            "r"(from), "r"(x), "r"(y), "r"(z), "r"((int32_t)(origin >> 4 & 0x7fffffff)), "r"((int32_t)(origin >> 35))  \
            : "memory");                                                                                               \
    else                                                                                                               \
        asm volatile(copy ".tensor.3d.global.shared::cta" how ".tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), \
                     "r"(from), "r"(x), "r"(y), "r"(z)                                                                 \
                     : "memory")
    if (adds) {
        TEGROUP_IMPL_STORE("cp.reduce.async.bulk", ".add");
    } else if (passes && !anywhere) {
        uint64_t policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], "
                     "[%1], %5;" ::"l"(map),
                     "r"(from), "r"(x), "r"(y), "r"(z), "l"(policy)
                     : "memory");
    } else {
        TEGROUP_IMPL_STORE("cp.async.bulk", "");
    }
#undef TEGROUP_IMPL_STORE
}
/* Closes a bulk group: all stores that this thread issued since the last one. */
static __device__ __forceinline__ void tegroup_impl_tma_store_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Waits until at most PENDING of this thread's bulk groups still read shared memory. */
template <int PENDING> static __device__ __forceinline__ void tegroup_impl_tma_store_wait(void) {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
/* Makes this thread's ordinary stores to shared memory visible to TMA and wgmma. */
static __device__ __forceinline__ void tegroup_impl_async_fence(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int REGISTERS> static __device__ __forceinline__ void tegroup_impl_registers_take(void) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> static __device__ __forceinline__ void tegroup_impl_registers_give(void) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* Stores and loads four 8x8 matrices of two-byte elements, held in registers as wgmma's accumulators are, as rows of 16
 * bytes in shared memory. TURNED: transposed. */
template <bool TURNED>
static __device__ __forceinline__ void tegroup_impl_stmatrix(uint32_t to, const uint32_t (&r)[4]) {
    if (TURNED)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]),
                     "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]),
                     "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
}
static __device__ __forceinline__ void tegroup_impl_ldmatrix_rows(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

/* ---- wgmma ---- */

/* The wgmma descriptor of an operand in shared memory: rows of 128 bytes with TMA's 128-byte swizzle, which permutes a
 * row's 16-byte chunks by XOR with the row's number. A "line" here and in names such as A_LINES is an index of wgmma's
 * M or N dimension. leading: bytes from one block of 64 lines to the next if the operand is contiguous along its lines
 * (MN-major); not read if it is contiguous along k. Offsets, in units of 16 bytes, are added to all 64 bits: with the
 * constant upper half kept apart ptxas moves it into place before each wgmma. */
static __device__ __forceinline__ uint64_t tegroup_impl_wgmma_tile(uint32_t address, uint32_t leading) {
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(1024 >> 4) << 32
           | (uint64_t)1 << 62;
}
static __device__ __forceinline__ void tegroup_impl_wgmma_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void tegroup_impl_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> static __device__ __forceinline__ void tegroup_impl_wgmma_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* Keeps the compiler from moving accesses to the sums across this point. */
template <int COUNT> static __device__ __forceinline__ void tegroup_impl_wgmma_keep(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

/* sum[64 x N] (+)= A[64 x 16] B[16 x N], both operands in shared memory; add is 0 to overwrite the sum. A_LINES and
 * B_LINES are 1 for an operand that is contiguous along its lines, 0 along k. Each n8 block of the sum lies in
 * registers as an accumulator of mma.sync does. */
/* clang-format off */
#define TEGROUP_IMPL_F4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define TEGROUP_IMPL_F32(i)                                                                                    \
    TEGROUP_IMPL_F4(i), TEGROUP_IMPL_F4(i + 4), TEGROUP_IMPL_F4(i + 8), TEGROUP_IMPL_F4(i + 12),               \
    TEGROUP_IMPL_F4(i + 16), TEGROUP_IMPL_F4(i + 20), TEGROUP_IMPL_F4(i + 24), TEGROUP_IMPL_F4(i + 28)
#define TEGROUP_IMPL_F16(i)                                                                                    \
    TEGROUP_IMPL_F4(i), TEGROUP_IMPL_F4(i + 4), TEGROUP_IMPL_F4(i + 8), TEGROUP_IMPL_F4(i + 12)
#define TEGROUP_IMPL_TEN(t)                                                                                    \
    "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define TEGROUP_IMPL_SIXTY                                                                                     \
    TEGROUP_IMPL_TEN() ", " TEGROUP_IMPL_TEN(1) ", " TEGROUP_IMPL_TEN(2) ", "                                  \
    TEGROUP_IMPL_TEN(3) ", " TEGROUP_IMPL_TEN(4) ", " TEGROUP_IMPL_TEN(5)
#define TEGROUP_IMPL_NINETY                                                                                    \
    TEGROUP_IMPL_SIXTY ", " TEGROUP_IMPL_TEN(6) ", " TEGROUP_IMPL_TEN(7) ", " TEGROUP_IMPL_TEN(8)
#define TEGROUP_IMPL_THIRTY TEGROUP_IMPL_TEN() ", " TEGROUP_IMPL_TEN(1) ", " TEGROUP_IMPL_TEN(2)
#define TEGROUP_IMPL_SUMS_16 TEGROUP_IMPL_TEN() ", %10, %11, %12, %13, %14, %15"
#define TEGROUP_IMPL_SUMS_32 TEGROUP_IMPL_THIRTY ", %30, %31"
#define TEGROUP_IMPL_SUMS_48                                                                                   \
    TEGROUP_IMPL_THIRTY ", " TEGROUP_IMPL_TEN(3) ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TEGROUP_IMPL_SUMS_64 TEGROUP_IMPL_SIXTY ", %60, %61, %62, %63"
#define TEGROUP_IMPL_SUMS_80 TEGROUP_IMPL_SIXTY ", " TEGROUP_IMPL_TEN(6) ", " TEGROUP_IMPL_TEN(7)
#define TEGROUP_IMPL_SUMS_96 TEGROUP_IMPL_NINETY ", %90, %91, %92, %93, %94, %95"
#define TEGROUP_IMPL_SUMS_112                                                                                  \
    TEGROUP_IMPL_NINETY ", " TEGROUP_IMPL_TEN(9) ", " TEGROUP_IMPL_TEN(10) ", %110, %111"
#define TEGROUP_IMPL_SUMS_128                                                                                  \
    TEGROUP_IMPL_NINETY ", " TEGROUP_IMPL_TEN(9) ", " TEGROUP_IMPL_TEN(10) ", " TEGROUP_IMPL_TEN(11)           \
    ", %120, %121, %122, %123, %124, %125, %126, %127"
/* `sums` are operands 0 to n / 2 - 1; a, b, plus and the two orders are the five operands after them. */
#define TEGROUP_IMPL_WGMMA(n, type, sums, a, b, plus, orders, ...)                                             \
    asm volatile("{.reg .pred plus; setp.ne.b32 plus, %" plus ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" sums "}, %" a ", %" b     \
                 ", plus, 1, 1, %" orders ";}\n"                                                               \
                 : __VA_ARGS__ : "l"(first), "l"(second), "r"(add), "n"(A_LINES), "n"(B_LINES))
#define TEGROUP_IMPL_WGMMA_OF(n, sums, a, b, plus, orders, ...)                                                \
    template <> struct tegroup_impl_wgmma<n> {                                                                 \
        template <bool BF16, int A_LINES, int B_LINES>                                                         \
        static __device__ __forceinline__ void multiply(float (&d)[n / 2], uint64_t first, uint64_t second, int add) { \
            if (BF16) TEGROUP_IMPL_WGMMA(n, "bf16", sums, a, b, plus, orders, __VA_ARGS__);                    \
            else TEGROUP_IMPL_WGMMA(n, "f16", sums, a, b, plus, orders, __VA_ARGS__);                          \
        }                                                                                                      \
    };

/* The same for A[64 x 32] B[32 x N] of FP8, both contiguous along k. A_E5M2, B_E5M2: that operand is of E5M2, else of
 * E4M3. (The instruction keeps about 14 bits of its sum: DeepSeek-V3 technical report, section 3.3.2.) */
#define TEGROUP_IMPL_WGMMA_FP8(n, types, sums, a, b, plus, ...)                                                \
    asm volatile("{.reg .pred plus; setp.ne.b32 plus, %" plus ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." types " {" sums "}, %" a ", %" b             \
                 ", plus, 1, 1;}\n"                                                                            \
                 : __VA_ARGS__ : "l"(first), "l"(second), "r"(add))
#define TEGROUP_IMPL_WGMMA_FP8_OF(n, sums, a, b, plus, ...)                                                    \
    template <> struct tegroup_impl_wgmma_fp8<n> {                                                             \
        template <bool A_E5M2, bool B_E5M2>                                                                    \
        static __device__ __forceinline__ void multiply(float (&d)[n / 2], uint64_t first, uint64_t second, int add) { \
            if (A_E5M2 && B_E5M2) TEGROUP_IMPL_WGMMA_FP8(n, "e5m2.e5m2", sums, a, b, plus, __VA_ARGS__);       \
            else if (A_E5M2) TEGROUP_IMPL_WGMMA_FP8(n, "e5m2.e4m3", sums, a, b, plus, __VA_ARGS__);            \
            else if (B_E5M2) TEGROUP_IMPL_WGMMA_FP8(n, "e4m3.e5m2", sums, a, b, plus, __VA_ARGS__);            \
            else TEGROUP_IMPL_WGMMA_FP8(n, "e4m3.e4m3", sums, a, b, plus, __VA_ARGS__);                        \
        }                                                                                                      \
    };

/* The same for A[64 x 16] B[16 x N] of BF16 with A in registers, as wgmma lays it out: of each thread two neighbours in
 * k of a line and of the one eight below, and likewise eight of k further on. They must not change until the product is
 * waited for. */
#define TEGROUP_IMPL_WGMMA_HELD_OF(n, sums, a0, a1, a2, a3, b, plus, ...)                                      \
    template <> struct tegroup_impl_wgmma_held<n> {                                                            \
        static __device__ __forceinline__ void multiply(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t second, \
                                                        int add) {                                             \
            asm volatile("{.reg .pred plus; setp.ne.b32 plus, %" plus ", 0;\n"                                 \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" sums "}, {%" a0 ", %" a1 \
                         ", %" a2 ", %" a3 "}, %" b ", plus, 1, 1, 0;}\n"                                     \
                         : __VA_ARGS__ : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(second), "r"(add));   \
        }                                                                                                      \
    };

template <int N> struct tegroup_impl_wgmma;
template <int N> struct tegroup_impl_wgmma_fp8;
template <int N> struct tegroup_impl_wgmma_held;
TEGROUP_IMPL_WGMMA_OF(256, TEGROUP_IMPL_SUMS_128, "128", "129", "130", "131, %132",
                      TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64), TEGROUP_IMPL_F32(96))
TEGROUP_IMPL_WGMMA_OF(192, TEGROUP_IMPL_SUMS_96, "96", "97", "98", "99, %100",
                      TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64))
TEGROUP_IMPL_WGMMA_OF(160, TEGROUP_IMPL_SUMS_80, "80", "81", "82", "83, %84",
                      TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F16(64))
TEGROUP_IMPL_WGMMA_OF(128, TEGROUP_IMPL_SUMS_64, "64", "65", "66", "67, %68",
                      TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32))
TEGROUP_IMPL_WGMMA_OF(96, TEGROUP_IMPL_SUMS_48, "48", "49", "50", "51, %52",
                      TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F16(32))
TEGROUP_IMPL_WGMMA_OF(64, TEGROUP_IMPL_SUMS_32, "32", "33", "34", "35, %36", TEGROUP_IMPL_F32(0))
#if TEGROUP_IMPL_FP8_KERNELS
TEGROUP_IMPL_WGMMA_FP8_OF(192, TEGROUP_IMPL_SUMS_96, "96", "97", "98",
                          TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64))
TEGROUP_IMPL_WGMMA_FP8_OF(128, TEGROUP_IMPL_SUMS_64, "64", "65", "66", TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32))
TEGROUP_IMPL_WGMMA_HELD_OF(256, TEGROUP_IMPL_SUMS_128, "128", "129", "130", "131", "132", "133",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64), TEGROUP_IMPL_F32(96))
TEGROUP_IMPL_WGMMA_HELD_OF(224, TEGROUP_IMPL_SUMS_112, "112", "113", "114", "115", "116", "117",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64), TEGROUP_IMPL_F16(96))
TEGROUP_IMPL_WGMMA_HELD_OF(192, TEGROUP_IMPL_SUMS_96, "96", "97", "98", "99", "100", "101",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F32(64))
TEGROUP_IMPL_WGMMA_HELD_OF(160, TEGROUP_IMPL_SUMS_80, "80", "81", "82", "83", "84", "85",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32), TEGROUP_IMPL_F16(64))
TEGROUP_IMPL_WGMMA_HELD_OF(128, TEGROUP_IMPL_SUMS_64, "64", "65", "66", "67", "68", "69",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F32(32))
TEGROUP_IMPL_WGMMA_HELD_OF(96, TEGROUP_IMPL_SUMS_48, "48", "49", "50", "51", "52", "53",
                           TEGROUP_IMPL_F32(0), TEGROUP_IMPL_F16(32))
TEGROUP_IMPL_WGMMA_HELD_OF(64, TEGROUP_IMPL_SUMS_32, "32", "33", "34", "35", "36", "37", TEGROUP_IMPL_F32(0))
TEGROUP_IMPL_WGMMA_HELD_OF(32, TEGROUP_IMPL_SUMS_16, "16", "17", "18", "19", "20", "21", TEGROUP_IMPL_F16(0))
#endif
/* clang-format on */

/* The types of wgmma's operands, as a template argument. K: of one instruction, 32 bytes. */
template <bool BF16> struct tegroup_impl_wgmma_halves {
    static constexpr int K = 16;
    template <int N, int A_LINES, int B_LINES>
    static __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t first, uint64_t second, int add) {
        tegroup_impl_wgmma<N>::template multiply<BF16, A_LINES, B_LINES>(d, first, second, add);
    }
};
#if TEGROUP_IMPL_FP8_KERNELS
template <bool A_E5M2, bool B_E5M2> struct tegroup_impl_wgmma_eights {
    static constexpr int K = 32;
    template <int N, int, int>
    static __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t first, uint64_t second, int add) {
        tegroup_impl_wgmma_fp8<N>::template multiply<A_E5M2, B_E5M2>(d, first, second, add);
    }
};
#endif
#undef TEGROUP_IMPL_WGMMA_HELD_OF
#undef TEGROUP_IMPL_WGMMA_FP8_OF
#undef TEGROUP_IMPL_WGMMA_FP8
#undef TEGROUP_IMPL_WGMMA_OF
#undef TEGROUP_IMPL_WGMMA
#undef TEGROUP_IMPL_SUMS_16
#undef TEGROUP_IMPL_SUMS_32
#undef TEGROUP_IMPL_SUMS_48
#undef TEGROUP_IMPL_SUMS_64
#undef TEGROUP_IMPL_SUMS_80
#undef TEGROUP_IMPL_SUMS_96
#undef TEGROUP_IMPL_SUMS_112
#undef TEGROUP_IMPL_SUMS_128
#undef TEGROUP_IMPL_NINETY
#undef TEGROUP_IMPL_SIXTY
#undef TEGROUP_IMPL_THIRTY
#undef TEGROUP_IMPL_TEN
#undef TEGROUP_IMPL_F16
#undef TEGROUP_IMPL_F32
#undef TEGROUP_IMPL_F4
#endif

/* ==== [53] Hopper GEMM: tiles (src/cuda/sm90_tiles.h) ==== */

/* A persistent kernel of three warpgroups. In the first, one warp schedules tiles, one thread loads operands by TMA
 * into a ring of pipeline stages, and two threads store results by TMA. The other two warpgroups multiply by wgmma:
 * ping-pong (TURNS), each on its own tile, so that one writes results while the other multiplies; or cooperatively,
 * each on half of the lines of a tile. (Where weights are decoded there may be three of them, each on a third.)
 *
 * A "line" is an index along wgmma's M dimension. It is a row of D or, in a flipped tile, a column of D. A tile's
 * "columns" lie along wgmma's N dimension; in a flipped tile they are rows of D.
 *
 * Groups need no padding, and no tensor map is edited on the device, but for weight gradients of FP8, for which a small
 * kernel writes two maps for each group (sm90_fp8_plan.h). A ragged operand is described to TMA as a tensor
 * [start][R][cols], where starts are one row apart, so that boxes overlap, and the first start is R rows before the
 * buffer. The box at y = R - v of start z = first + v then has exactly the v rows from `first` on; the rows after them
 * lie outside of the tensor, so they are read as zeros and never written (A. Goucher's trick, as Triton's ragged tensor
 * descriptors use it). Two more dimensions, with strides of 16 and 2^35 bytes, reach every multiple of 16 modulo 2^64:
 * they move the first start to R rows before the buffer, and from one group's buffer to another's. (The address in the
 * map itself must exist: loads through a map whose base is unmapped memory fault.)
 *
 * For every tile, an element is summed over k in steps of 16 from 0 upwards, so the tile never changes a bit. */
enum {
    TEGROUP_IMPL_SM90_THREADS = 384,
#if defined(__CUDACC_DEBUG__) /* nvcc -G reserves some for itself, which costs one kernel a stage. */
    TEGROUP_IMPL_SM90_SHARED = 219 * 1024,
    TEGROUP_IMPL_SM90_RING = 2,
#else
    TEGROUP_IMPL_SM90_SHARED = 227 * 1024, /* bytes of shared memory that a block can have */
    TEGROUP_IMPL_SM90_RING = 3,            /* pipeline stages that these must have room for */
#endif
    TEGROUP_IMPL_SM90_REST = 2048,  /* bytes of these for barriers, scheduled tiles and gathered row numbers */
    TEGROUP_IMPL_SM90_ALIGN = 1024, /* bytes of these to align the ring */
    TEGROUP_IMPL_SM90_ITEMS = 4,    /* tiles that the scheduler may be ahead */
    TEGROUP_IMPL_SM90_LINES = 64,   /* rows of a TMA box of C and D, and of operands whose rows run along k */
    TEGROUP_IMPL_SM90_SHORT = 16,   /* rows of a TMA box of A for a tile of at most that many lines */
    /* bytes of a stage for each line and column of a tile, but for a line of codes: TMA's widest swizzle */
    TEGROUP_IMPL_SM90_LINE = 128,
    TEGROUP_IMPL_SM90_SLAB = 64 * 128 /* bytes of a slab */
};

/* Weights of ups that are apart have the place of C, which a forward product with an activation has not. */
static constexpr tegroup_impl_operand TEGROUP_IMPL_SM90_UPS = TEGROUP_IMPL_C;

/* Scales of weights that are decoded in registers (sm90_weights.h), swizzled in tiles of 128 x 4. */
typedef struct tegroup_impl_sm90_weights {
    int64_t group_bytes; /* of a group's, where all have one buffer */
    int64_t lines_bytes; /* of 128 lines' */
    int32_t e4m3;        /* of 16 of k each, in E4M3; else of 32, in E8M0 */
} tegroup_impl_sm90_weights;

/* Parameters of one launch. Arrays are indexed by tegroup_impl_operand: a, b, c, d. */
typedef struct tegroup_impl_sm90_call {
    CUtensorMap map[4];
    tegroup_impl_gpu_call call;
    int32_t ragged[4]; /* The map has overlapping boxes, as above; otherwise it is [group][row][col]. */
    int32_t listed[4]; /* Each group has a buffer of its own, by a list of pointers. */
    int32_t has_c, has_bias;
    int32_t narrows;              /* how many of the last groups have only narrow tiles */
    int32_t adds_in_l2;           /* A weight gradient accumulates in FP32, so L2 can add it to D. */
    int32_t gathers_a, gathers_b; /* Rows of the operand are picked by index, and loaded by cp.async, not TMA. */
    union {
        tegroup_impl_gpu_epilogue epilogue;
        tegroup_impl_sm90_weights weights; /* of kernels that decode them, which have no activation */
    };
    union {
        uint64_t activated_shift; /* the shift of `activated` */
        int32_t dealt; /* a weight gradient's tiles are dealt where no group has more rows than that; 0: never */
    };
    /* Maps for an activation. `activated` is that of activation.output. Where gates and ups are two halves of D, map[D]
     * has the gates and `ups` the ups. In a gradient, D is the gradient of gates and ups, and map[C] and c_ups have
     * gates and ups themselves. */
    CUtensorMap activated, ups, c_ups;
    /* Maps with smaller boxes: of B for the narrow tiles of a forward product, and of ups that are apart; of A for
     * short tiles; or of A for fitting tiles, from the second widest on. */
    CUtensorMap smaller[TEGROUP_IMPL_SM90_SMALLER];
    /* For both kinds of maps: bytes, modulo 2^64, from the map's address to the boxes, where a listed buffer's
     * address is still to be added. */
    uint64_t shift[4];
    uint64_t further[TEGROUP_IMPL_SM90_SMALLER]; /* their shifts minus the operand's shift */
    tegroup_impl_gpu_up up;
    /* A weight gradient of FP8: [groups][2] maps of the copies of A and B, since those of a group have its stride. */
    const CUtensorMap *of_groups;
} tegroup_impl_sm90_call;

/* A scheduled tile. */
typedef struct tegroup_impl_sm90_item {
    int32_t group;        /* -1 after the last tile */
    int32_t i0, j0;       /* first line and column, within the group */
    int32_t lines, k;     /* lines of the tile that exist; length of its sums */
    int32_t cols;         /* columns of the tile, whether they exist or not */
    int32_t rows;         /* fitting tiles: columns that exist, which are rows of the group */
    int32_t first_row[4]; /* of the group in ragged operands */
    uint64_t origin[4];   /* bytes, modulo 2^64, from the map's address to the group's boxes */
    float alpha, beta;    /* beta is also 0 where there is no C. */
} tegroup_impl_sm90_item;

/* A kernel's shape: operation, lines of a warpgroup's part of a tile, columns of a tile, whether the warpgroups work
 * ping-pong, slabs of each warpgroup, whether tiles are flipped (which needs results of two bytes to which nothing is
 * added but, with ADDS_BIAS, a bias), whether blocks work in pairs, whether the epilogue has an activation of gates and
 * ups, or its gradient, and the number of warpgroups that multiply. */
template <int OP_, int LINES_, int COLS_, bool TURNS_, int SLABS_, bool FLIPS_ = false, bool PAIRS_ = false,
          bool ACTIVATES_ = false, int MULTIPLIERS_ = 2>
struct tegroup_impl_sm90_shape {
    static constexpr int OP = OP_, LINES = LINES_, COLS = COLS_, SLABS = SLABS_, K = TEGROUP_IMPL_SM90_K;
    static constexpr bool TURNS = TURNS_, FLIPS = FLIPS_, PAIRS = PAIRS_, ACTIVATES = ACTIVATES_;
    static constexpr int MULTIPLIERS = MULTIPLIERS_;
    static_assert(MULTIPLIERS == 2 || !TURNS, "two take turns");
    /* Flipped tiles of a forward product or dgrad are fitting tiles: their columns are rows of a group, and are COLS or
     * up to SMALLER times FIT fewer. They are flipped because wgmma's N is any multiple of 8, but its M is 64. */
    static constexpr bool FITS = FLIPS && OP != TEGROUP_OP_WGRAD;
    static constexpr int FIT = TEGROUP_IMPL_SM90_FIT;
    /* A pair is a cluster of two blocks with neighbouring tiles of the same rows of a group. Each loads half of these
     * rows' part of a stage, for both, by multicast, so that TMA reads fewer rows for what is multiplied. A stage is
     * free when both blocks' warps have read it. Pairs are scheduled as blocks otherwise are, and go through the same
     * steps; where D's columns end in the first block's tile, the second one only passes stages on. */
    static constexpr int BLOCKS = PAIRS ? 2 : 1;
    static_assert(!PAIRS || FITS, "other tiles have no such halves");
    static constexpr __host__ __device__ int fitting(int i) { return FITS ? COLS - i * FIT : COLS; } /* widest first */
    static constexpr int TILE_M = TURNS ? LINES : MULTIPLIERS * LINES,
                         PARTS = LINES / 64; /* PARTS have wgmma's M of 64. */
    /* See tegroup_impl_sm90_narrow_tiles. */
    static constexpr int NARROW = COLS == TEGROUP_IMPL_SM90_WIDE && !FITS ? TEGROUP_IMPL_SM90_NARROW : COLS;
    static constexpr bool NARROWS = NARROW < COLS;
    static constexpr bool PACES = !TURNS; /* see tegroup_impl_sm90_row */
    /* Who gives the other warpgroup its turn after a tile without steps (see the multiplier's yield). */
    static constexpr bool STORER_YIELDS = TURNS && !FITS;
    /* Whether tiles may differ in cost, so that blocks may have to be balanced. */
    static constexpr bool BALANCES = FITS || NARROWS || OP == TEGROUP_OP_WGRAD;
    /* Whether the last groups of a call may have only narrow tiles, which fill the last wave of even groups. */
    static constexpr bool TAPERS = NARROWS && !ACTIVATES && OP == TEGROUP_OP_FORWARD;
    static __host__ __device__ __forceinline__ int32_t narrow(int32_t cols, int32_t k) {
        return NARROWS ? tegroup_impl_sm90_narrow_tiles(OP == TEGROUP_OP_WGRAD, cols, k) : 0;
    }
    /* The operands that a tile's lines and its columns come from. */
    static constexpr tegroup_impl_operand FIRST = FLIPS ? TEGROUP_IMPL_B : TEGROUP_IMPL_A,
                                          SECOND = FLIPS ? TEGROUP_IMPL_A : TEGROUP_IMPL_B;
    static_assert(!FLIPS || !ACTIVATES, "an activation's sets are not turned");
    static constexpr bool ADDS_BIAS = TEGROUP_IMPL_SM90_ADDS_BIAS(OP, COLS, FLIPS);
    /* Whether alpha takes the scales of groups (global_scale_inv) here; else no operand has any. */
    static constexpr bool SCALES_GROUPS = false;
    /* A tile of at most SHORT lines loads no more than these: stale data in the stage only reach lines that nobody
     * stores. */
    static constexpr int SHORT = OP != TEGROUP_OP_WGRAD && TILE_M == 64 ? TEGROUP_IMPL_SM90_SHORT : 0;
    static_assert(!SHORT || !NARROWS || OP != TEGROUP_OP_FORWARD,
                  "smaller[0] holds A's map for short tiles or B's for narrow ones, and not both");
    /* Whether lines of A, or columns of B, rather than k are contiguous in memory. */
    static constexpr bool A_LINES = OP == TEGROUP_OP_WGRAD || (FITS && OP == TEGROUP_OP_DGRAD),
                          B_LINES = OP != TEGROUP_OP_FORWARD && !FITS;
    static constexpr bool OF_GROUPS = false; /* whether each group has maps of its own */
    /* Lanes of a warp that say that it has read a stage: one, or all where racecheck sees what they read. */
    static constexpr int RELEASERS = 1;
    static constexpr int A_BYTES = TILE_M * TEGROUP_IMPL_SM90_LINE,
                         STAGE_BYTES = A_BYTES + COLS * TEGROUP_IMPL_SM90_LINE;
    static constexpr int SLAB_BYTES = MULTIPLIERS * SLABS * TEGROUP_IMPL_SM90_SLAB;
    static constexpr int OTHER_BYTES = SLAB_BYTES + TEGROUP_IMPL_SM90_REST + TEGROUP_IMPL_SM90_ALIGN;
    static constexpr int STAGES = (TEGROUP_IMPL_SM90_SHARED - OTHER_BYTES) / STAGE_BYTES;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + OTHER_BYTES;
    static_assert(STAGES >= TEGROUP_IMPL_SM90_RING, "a ring that hides the way from L2");
    /* Pipeline stages loaded at a time. For short groups memory is read fastest if 256 bytes of a row are in flight. */
    static constexpr int AT_ONCE = STAGES >= 6 ? 2 : 1;
    static_assert((TILE_M <= 128 || FITS) && TILE_M <= 256 && COLS <= 256, "picked rows; lines of a box of TMA");
    /* How a warpgroup's results of four bytes (WIDE) or two go through its slabs: COUNT slabs' worth, ACROSS of them
     * side by side; number n through slab n % USED. */
    template <bool WIDE> struct results {
        static constexpr int COLS = WIDE ? 32 : 64, ACROSS = COLS_ / COLS, COUNT = PARTS * ACROSS,
                             USED = COUNT < SLABS ? COUNT : SLABS - (COUNT % SLABS != 0);
        static_assert(COUNT % USED == 0, "every tile begins with the first slab");
        /* Whether L2 may add C to these results. The first USED slabs have C loaded before the sums are done; of the
         * others L2 adds every second one, since adding them all would take L2 longer than loading C. */
        static constexpr __host__ __device__ bool in_l2(int number) {
            return OP == TEGROUP_OP_WGRAD && WIDE && number >= USED && number % 2 == 1;
        }
    };
    /* With an activation, results go by sets of three pieces of 64 lines by 32 columns: gates, ups and their
     * activation. A forward tile has gates and ups, half of its columns each where they are halves of D; a gradient's
     * tile has columns of the activation. A set takes SET_COLS of a tile's columns, a piece has PIECE bytes, and SETS
     * fit into the slabs. */
    static constexpr int SET_COLS = OP == TEGROUP_OP_FORWARD ? 64 : 32, PIECE = TEGROUP_IMPL_SM90_SLAB / 2,
                         SETS = SLABS < 2 ? 1 : (SLABS * TEGROUP_IMPL_SM90_SLAB) / (3 * PIECE);
    static_assert(!ACTIVATES || (TURNS && SETS >= 2), "one is worked on while another comes or goes");
};

/* What follows the ring and the slabs in shared memory: barriers for each pipeline stage (full, empty), each scheduled
 * tile (found, and taken by all its readers) and each warpgroup; tiles; and row numbers. */
template <typename SHAPE> struct tegroup_impl_sm90_rest {
    uint64_t full[SHAPE::STAGES], empty[SHAPE::STAGES];
    uint64_t found[TEGROUP_IMPL_SM90_ITEMS], taken[TEGROUP_IMPL_SM90_ITEMS];
    uint64_t turn[SHAPE::MULTIPLIERS];                  /* The other warpgroup has seen all stages of its tile full. */
    uint64_t ready[SHAPE::MULTIPLIERS][SHAPE::SLABS];   /* The slab is free, and holds C if that is added. */
    uint64_t written[SHAPE::MULTIPLIERS][SHAPE::SLABS]; /* The slab holds results. */
    tegroup_impl_sm90_item items[TEGROUP_IMPL_SM90_ITEMS];
    /* The rows that gathered operands have in a stage; -1: zeros. */
    int32_t picked_a[128], picked_b[TEGROUP_IMPL_SM90_LINES];
};

/* ==== [54] Hopper GEMM: the scheduler (src/cuda/sm90_scheduler.h) ==== */

#if TEGROUP_IMPL_HOPPER
/* One warp of each block finds the block's tiles. It walks the groups 32 at a time, one for each lane. Tiles of equal
 * cost are scheduled round-robin, in the order of the groups. Otherwise blocks are balanced by what tiles cost, and a
 * weight gradient's groups are walked from the largest one on, balanced or dealt (see TEGROUP_IMPL_SM90_DEALT_ROWS). */

/* The 32 groups that the warp is looking at. */
template <typename SHAPE> struct tegroup_impl_sm90_groups_at_hand {
    const tegroup_impl_sm90_call &call;
    const tegroup_gemm_desc &desc;
    bool balanced;              /* else round-robin */
    int32_t m;                  /* lines of D for WGRAD and FITS; otherwise each group has its own number */
    int32_t across, wide;       /* tiles of a tile row, and its wide ones; FITS: tiles along D's columns */
    int32_t first_group;        /* the first of the 32 */
    int64_t before, sum;        /* tiles before the 32 groups; tiles of the lanes up to and including this one */
    int32_t group, rows, tiles; /* this lane's group, its rows and tiles */
    int32_t first_row[4];       /* of this lane's group, for each operand */

    enum { STRIPE = 8 }; /* Tile rows of a stripe are walked together, column by column, and share B in L2. */
    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }
    /* The number of this block, or of its pair, and how many there are. */
    static __device__ __forceinline__ int32_t worker() { return (int32_t)blockIdx.x / SHAPE::BLOCKS; }
    static __device__ __forceinline__ int32_t workers() { return (int32_t)gridDim.x / SHAPE::BLOCKS; }

    __device__ __forceinline__ explicit tegroup_impl_sm90_groups_at_hand(const tegroup_impl_sm90_call &c)
        : call(c), desc(c.call.desc) {
        const int32_t n = (int32_t)(SHAPE::FLIPS && !SHAPE::FITS ? desc.a.shape.cols : desc.d.shape.cols),
                      width = SHAPE::FITS ? SHAPE::BLOCKS * SHAPE::TILE_M : SHAPE::COLS;
        m = (int32_t)(SHAPE::FLIPS ? desc.d.shape.cols : desc.a.shape.cols);
        across = (n + width - 1) / width;
        wide = SHAPE::FITS ? across : across - SHAPE::narrow(n, k_of(0));
        balanced = SHAPE::BALANCES
                   && (SHAPE::FITS
                       || (SHAPE::OP == TEGROUP_OP_WGRAD
                               ? uneven() && most_rows() > call.dealt
                               : (wide > 0 && wide < across && k_of(0) >= TEGROUP_IMPL_SM90_BALANCED_K)
                                     || (SHAPE::TAPERS && call.narrows > 0)));
    }
    /* Rows of the largest group, or 0 without a snapshot, since groups are even then. */
    __device__ __forceinline__ int32_t most_rows() const {
        const tegroup_snapshot_header *header = call.call.views[TEGROUP_IMPL_A].header;
        return header ? (int32_t)header->rows_max : 0;
    }
    /* Whether tiles of a weight gradient may take unlike times. */
    __device__ __forceinline__ bool uneven() const { return cost(most_rows(), SHAPE::COLS) > cost(0, SHAPE::COLS); }
    /* Whether all tiles of group g are narrow; below, the tiles of its tile rows, and how many of these are wide. */
    __device__ __forceinline__ bool tapers(int32_t g) const {
        return SHAPE::TAPERS && g >= desc.a.shape.groups - call.narrows;
    }
    __device__ __forceinline__ int32_t across_of(int32_t g) const {
        return tapers(g) ? ((int32_t)desc.d.shape.cols + SHAPE::NARROW - 1) / SHAPE::NARROW : across;
    }
    __device__ __forceinline__ int32_t wide_of(int32_t g) const { return tapers(g) ? 0 : wide; }
    /* Tile rows of a group that has `there` rows. */
    __device__ __forceinline__ int32_t tile_rows(int32_t there) const {
        constexpr int32_t EACH = SHAPE::FITS ? SHAPE::COLS : SHAPE::TILE_M;
        return ((SHAPE::OP == TEGROUP_OP_WGRAD ? m : there) + EACH - 1) / EACH;
    }
    /* Tile rows of the stripe that begins with tile row `stripe`. */
    static __device__ __forceinline__ int32_t height(int32_t tile_rows, int32_t stripe) {
        return (int32_t)tegroup_impl_min(STRIPE, tile_rows - stripe);
    }
    /* Whether a group has nothing to compute. A weight gradient of no rows is beta * C, which is D itself where the
     * product accumulates. */
    __device__ __forceinline__ bool idle(int32_t there) const {
        return SHAPE::OP == TEGROUP_OP_WGRAD ? there < 0 || (there == 0 && desc.accumulate) : there <= 0;
    }
    __device__ __forceinline__ int32_t k_of(int32_t there) const {
        return SHAPE::OP == TEGROUP_OP_WGRAD     ? there
               : SHAPE::OP == TEGROUP_OP_FORWARD ? (int32_t)desc.a.shape.cols
                                                 : (int32_t)desc.b.shape.rows;
    }
    /* The cost of a tile of a group of `there` rows: the time of wgmma or, if that is longer, the time to store the
     * results. */
    __device__ __forceinline__ int32_t cost(int32_t there, int32_t cols) const {
        const int32_t steps = (k_of(there) + SHAPE::K - 1) / SHAPE::K,
                      results = tegroup_impl_sm90_store_steps(desc.d.dtype == TEGROUP_DTYPE_F32, call.has_c);
        return tegroup_impl_sm90_tile_cost(SHAPE::FITS ? tegroup_impl_sm90_fit_cost(cols) : cols,
                                           (int32_t)tegroup_impl_max(steps, results));
    }
    /* Whether an operand can have a first row for each group. (Where blocks are never balanced, registers suffice, and
     * ptxas makes better code if this is always true.) */
    static __device__ __forceinline__ constexpr bool starts(int operand) {
        return !SHAPE::BALANCES || operand == TEGROUP_IMPL_A
               || operand == (SHAPE::OP == TEGROUP_OP_WGRAD ? TEGROUP_IMPL_B : TEGROUP_IMPL_D)
               || (operand == TEGROUP_IMPL_C && SHAPE::OP != TEGROUP_OP_WGRAD && !SHAPE::FLIPS);
    }
    /* Looks up where a group starts in an operand and, if rows_too, its rows: where snapshots differ, the fewest. */
    __device__ __forceinline__ void meet(const tegroup_tensor &t, tegroup_impl_operand operand, int32_t g,
                                         bool rows_too) {
        const tegroup_snapshot_view &view = call.call.views[operand];
        const int64_t there = view.rows ? view.rows[g] : t.shape.rows;
        first_row[operand] = view.rows && !call.listed[operand] ? (int32_t)view.start[g] : 0;
        if (rows_too && there < rows) rows = (int32_t)there;
    }
    /* Loads the 32 groups from `from` on. */
    __device__ __forceinline__ void load(int32_t from, int64_t tiles_before) {
        first_group = from;
        before = tiles_before;
        rows = -1;
        for (int i = 0; i < 4; i++) first_row[i] = 0;
        const int32_t *order = call.call.views[TEGROUP_IMPL_A].order;
        int32_t g = from + lane();
        if (g < desc.a.shape.groups && (!SHAPE::FITS || across > 0)) { /* Otherwise FITS has empty stretches. */
            if (SHAPE::OP == TEGROUP_OP_WGRAD && order && uneven()) g = order[g];
            rows = INT32_MAX;
            meet(desc.a, TEGROUP_IMPL_A, g, true);
            meet(desc.b, TEGROUP_IMPL_B, g, SHAPE::OP == TEGROUP_OP_WGRAD);
            meet(desc.d, TEGROUP_IMPL_D, g, SHAPE::OP != TEGROUP_OP_WGRAD);
            if (call.has_c) meet(desc.c, TEGROUP_IMPL_C, g, SHAPE::OP != TEGROUP_OP_WGRAD);
        }
        group = g;
        tiles = idle(rows) ? 0 : tile_rows(rows) * across_of(g); /* A D of 2^31 tiles fits in no memory. */
        sum = tiles;
        for (int step = 1; step < 32; step *= 2) {
            const int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane() >= step) sum += other;
        }
    }
    __device__ __forceinline__ bool last() const { return first_group + 32 >= desc.a.shape.groups; }
};

/* How fitting tiles share a group's rows. There are as few tiles as hold them, of at most two widths, the wider first.
 * A stripe with both widths is walked PART tile columns at a time, and in these first the wider and then the narrower
 * tiles: so tiles of equal cost are neighbours, and those of the same weights are not far from each other. */
template <typename SHAPE> struct tegroup_impl_sm90_fit {
    enum { PART = 16 };
    int32_t each, more; /* rows of a tile, in units of FIT; tiles of the group that have one unit more */
    int32_t wider;      /* tile rows of the stripe that have one unit more */
    __device__ __forceinline__ tegroup_impl_sm90_fit(int32_t there, int32_t tile_rows, int32_t stripe, int32_t high)
        : each(0) {
        const int32_t fits = (there + SHAPE::FIT - 1) / SHAPE::FIT;
#pragma unroll
        for (int i = 1; i <= SHAPE::COLS / SHAPE::FIT; i++) each += fits >= i * tile_rows; /* a division */
        more = fits - each * tile_rows;
        wider = (int32_t)tegroup_impl_clamp(more - stripe, 0, high);
    }
    __device__ __forceinline__ bool two(int32_t high) const { return wider > 0 && wider < high; }
    __device__ __forceinline__ int32_t cols(bool narrower) const {
        return (int32_t)tegroup_impl_max(SHAPE::fitting(TEGROUP_IMPL_SM90_SMALLER), (each + !narrower) * SHAPE::FIT);
    }
};

/* A stretch is tiles of one group that cost the same and are scheduled at once. Every block finds all stretches, but
 * gets no tile of most of them, so this code avoids divisions. */
template <typename SHAPE> struct tegroup_impl_sm90_stretches : tegroup_impl_sm90_groups_at_hand<SHAPE> {
    typedef tegroup_impl_sm90_groups_at_hand<SHAPE> base;
    typedef tegroup_impl_sm90_fit<SHAPE> fit;
    using base::across;
    using base::across_of;
    using base::cost;
    using base::height;
    using base::lane;
    using base::STRIPE;
    using base::wide;
    using base::wide_of;
    int owner;             /* the lane whose tiles they are, or -1 before the first stretch */
    int32_t at, end, each; /* the owner's next tile, the end of the stretch, and the cost of each tile */
    int32_t stripe, part;  /* FITS: the tile row and the tile column at which the stretch begins */
    bool two, later;       /* FITS: whether the stripe has tiles of two widths, and the stretch the narrower ones */
    bool mixes; /* whether stretches mix wide and narrow tiles, as a stripe's wide ones are less than a wave */

    __device__ __forceinline__ explicit tegroup_impl_sm90_stretches(const tegroup_impl_sm90_call &c)
        : base(c), owner(-1), at(0), end(0), stripe(0), part(0), two(false), later(false),
          mixes(SHAPE::OP == TEGROUP_OP_WGRAD && 8 * wide < base::workers()) {}

    /* Finds the next stretch. Returns false if there is none. */
    __device__ __forceinline__ bool next_stretch() {
        while (owner < 0 || !stretch_of_owner()) {
            const uint32_t others = __ballot_sync(0xffffffffu, !this->idle(this->rows) && lane() > owner);
            if (!others && this->last()) return false;
            if (!others) this->load(this->first_group + 32, 0);
            owner = __ffs((int)others) - 1;
            end = stripe = part = 0;
            two = later = false;
        }
        return true;
    }
    __device__ __forceinline__ bool stretch_of_owner() {
        const int32_t there = __shfl_sync(0xffffffffu, this->rows, owner), tile_rows = this->tile_rows(there);
        return SHAPE::FITS ? fitting_stretch(there, tile_rows) : plain_stretch(there, tile_rows);
    }
    __device__ __forceinline__ bool fitting_stretch(int32_t there, int32_t tile_rows) {
        if (end > 0) { /* Step past the current stretch. */
            if (!two || later) part += two ? fit::PART : across;
            later = two && !later;
            if (part >= across) {
                part = 0;
                stripe += STRIPE;
            }
        }
        if (stripe >= tile_rows) return false;
        const int32_t high = height(tile_rows, stripe);
        const fit f(there, tile_rows, stripe, high);
        two = f.two(high);
        at = end;
        end += two ? (later ? high - f.wider : f.wider) * (int32_t)tegroup_impl_min(fit::PART, across - part)
                   : high * across;
        each = cost(there, f.cols(later || f.wider == 0));
        return true;
    }
    /* A stretch is a stripe's wide tiles, or its narrow ones; or all of the group, if they are of one kind or mixed. */
    __device__ __forceinline__ bool plain_stretch(int32_t there, int32_t tile_rows) {
        const int32_t g = __shfl_sync(0xffffffffu, this->group, owner), all = across_of(g), wider = wide_of(g);
        int32_t to = tile_rows * all;
        bool narrower = wider == 0;
        if (end >= to) return false;
        at = end;
        if (wider > 0 && wider < all && !mixes) {
            const int32_t begin = at / (STRIPE * all) * STRIPE, high = height(tile_rows, begin);
            to = begin * all + high * wider;
            narrower = at == to;
            if (narrower) to = (begin + high) * all;
        }
        end = to;
        each = cost(there, narrower ? SHAPE::NARROW : SHAPE::COLS);
        return true;
    }
};

/* A walk through the tiles of this block. */
template <typename SHAPE> struct tegroup_impl_sm90_walk : tegroup_impl_sm90_stretches<SHAPE> {
    typedef tegroup_impl_sm90_stretches<SHAPE> base;
    typedef tegroup_impl_sm90_fit<SHAPE> fit;
    using base::across_of;
    using base::at;
    using base::balanced;
    using base::call;
    using base::desc;
    using base::end;
    using base::first_row;
    using base::height;
    using base::lane;
    using base::STRIPE;
    using base::sum;
    enum { EACH = TEGROUP_IMPL_SM90_MOST_BLOCKS / 32 };
    int64_t turn;                 /* round-robin: the number, among all tiles, of this block's next one */
    bool ahead;                   /* balanced: whether the block's first tile was found before it is assigned */
    int32_t load_of[EACH], fresh; /* see tegroup_impl_sm90_loads */

    /* Unless all snapshots are prepared, there are no groups. */
    __device__ __forceinline__ explicit tegroup_impl_sm90_walk(const tegroup_impl_sm90_call &c, bool prepared)
        : base(c), turn(base::worker()), ahead(false), fresh(base::workers()) {
#pragma unroll
        for (int i = 0; i < EACH; i++) load_of[i] = lane() + 32 * i < base::workers() ? 0 : INT32_MAX;
        this->load(prepared ? 0 : desc.a.shape.groups, 0);
        /* Balancing makes every block find all stretches, at least one for each group. A few tiles of short sums are
         * done sooner round-robin. */
        if (SHAPE::OP != TEGROUP_OP_WGRAD && balanced)
            balanced = __shfl_sync(0xffffffffu, sum, 31) * ((this->k_of(0) + SHAPE::K - 1) / SHAPE::K)
                       >= TEGROUP_IMPL_SM90_BALANCED_STEPS * tegroup_impl_min(32, desc.a.shape.groups);
    }
    /* Finds the block's next tile: the lane that has its group, and its number there. Returns false if none is left. */
    __device__ __forceinline__ bool round_robin(int *of, int32_t *local) {
        for (;;) {
            const int64_t to = this->before + __shfl_sync(0xffffffffu, sum, 31);
            if (turn < to) break;
            if (this->last()) return false;
            this->load(this->first_group + 32, to);
        }
        *of = __ffs((int)__ballot_sync(0xffffffffu, turn < this->before + sum)) - 1;
        *local = (int32_t)(turn - this->before - __shfl_sync(0xffffffffu, sum - this->tiles, *of));
        turn += base::workers();
        return true;
    }
    /* The same for balanced blocks. Only the last groups are assigned closely, since later tiles level the others. */
    __device__ __forceinline__ bool by_cost(int *of, int32_t *local) {
        for (;;) {
            if (at == end && !this->next_stretch()) return false;
            tegroup_impl_sm90_loads loads = {load_of, EACH, fresh, 0};
            int32_t number;
            const int32_t first = at;
            at += tegroup_impl_sm90_assign(&loads, end - first, this->each, this->last(), base::worker(), &number);
            fresh = loads.fresh;
            if (number < 0) continue;
            if (ahead) {
                ahead = false;
                continue;
            }
            *of = this->owner;
            *local = first + number;
            return true;
        }
    }
    __device__ __forceinline__ bool next(tegroup_impl_sm90_item *item) {
        int of;
        int32_t local;
        /* The first tile that a balanced block gets is that of its own number. It is found round-robin, before any is
         * assigned, which takes a while. */
        const bool early = balanced && turn >= 0 && turn < __shfl_sync(0xffffffffu, sum, 31);
        if (!(balanced && !early ? by_cost(&of, &local) : round_robin(&of, &local))) return false;
        if (early) ahead = true;
        if (balanced) turn = -1;
        const int32_t g = __shfl_sync(0xffffffffu, this->group, of), there = __shfl_sync(0xffffffffu, this->rows, of);
        item->group = g;
        item->rows = 0;
        place(local, g, there, item);
        item->lines = (int32_t)tegroup_impl_min(
            (SHAPE::OP == TEGROUP_OP_WGRAD || SHAPE::FITS ? this->m : there) - item->i0, SHAPE::TILE_M);
        item->k = this->k_of(there);
        item->alpha = item->k <= 0           ? 1.0f
                      : SHAPE::SCALES_GROUPS ? tegroup_impl_scaled_alpha(&desc, g, (double)call.call.alpha)
                                             : (float)tegroup_impl_scalar(&desc.alpha, g, (double)call.call.alpha);
        item->beta = call.has_c ? (float)tegroup_impl_scalar(&desc.beta, g, (double)call.call.beta) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            item->first_row[i] = this->starts(i) ? __shfl_sync(0xffffffffu, first_row[i], of) : 0;
            item->origin[i] = call.shift[i];
        }
        if (item->k > 0) { /* Otherwise the entries of a list may be anything. */
            buffer(desc.a.pointers, TEGROUP_IMPL_A, item);
            buffer(desc.b.pointers, TEGROUP_IMPL_B, item);
            if (SHAPE::ACTIVATES && SHAPE::OP == TEGROUP_OP_FORWARD)
                buffer(call.up.weight.pointers, TEGROUP_IMPL_SM90_UPS, item);
            if (SHAPE::SCALES_GROUPS && call.listed[TEGROUP_IMPL_B]
                && (uint64_t)(uintptr_t)desc.b.scale_pointers[g] % 16 != 0)
                item->alpha = tegroup_impl_f32_of_bits(0x7fc00000u); /* NaN, as of codes at such an address */
        }
        if (item->beta != 0) buffer(desc.c.pointers, TEGROUP_IMPL_C, item);
        buffer(desc.d.pointers, TEGROUP_IMPL_D, item);
        return true;
    }
    /* Places tile `local` of group g, which has `there` rows, in D. */
    __device__ __forceinline__ void place(int32_t local, int32_t g, int32_t there, tegroup_impl_sm90_item *item) const {
        const int32_t tile_rows = this->tile_rows(there), across = across_of(g),
                      begin = local / (STRIPE * across) * STRIPE, within = local - begin * across,
                      high = height(tile_rows, begin);
        if (SHAPE::FITS) {
            const fit f(there, tile_rows, begin, high);
            const int32_t from = f.two(high) ? within / (fit::PART * high) * fit::PART : 0,
                          columns = f.two(high) ? (int32_t)tegroup_impl_min(fit::PART, across - from) : across,
                          inside = within - from * high;
            const bool narrower = inside >= f.wider * columns;
            const int32_t number = narrower ? inside - f.wider * columns : inside,
                          beside = narrower ? high - f.wider : f.wider,
                          row = begin + (narrower ? f.wider : 0) + number % beside;
            item->i0 = ((from + number / beside) * SHAPE::BLOCKS + (int32_t)blockIdx.x % SHAPE::BLOCKS) * SHAPE::TILE_M;
            item->j0 = (row * f.each + (int32_t)tegroup_impl_min(row, f.more)) * SHAPE::FIT;
            item->cols = f.cols(narrower);
            item->rows = (int32_t)tegroup_impl_min(there - item->j0, item->cols);
        } else {
            const int32_t column = within / high, wider = this->wide_of(g);
            item->i0 = (begin + within % high) * SHAPE::TILE_M;
            item->j0 =
                column * SHAPE::COLS - (int32_t)tegroup_impl_max(0, column - wider) * (SHAPE::COLS - SHAPE::NARROW);
            item->cols = column < wider ? SHAPE::COLS : SHAPE::NARROW;
        }
    }
    /* Adds the address of a listed buffer. TMA needs multiples of 16 bytes: with an operand at another address
     * results are NaN, and to a D at another address nothing is stored. (A weight gradient's tile keeps its lines,
     * and loses its columns: one without steps must come to the storer, which then yields.) */
    __device__ __forceinline__ void buffer(void *const *pointers, tegroup_impl_operand operand,
                                           tegroup_impl_sm90_item *item) const {
        if (!call.listed[operand]) return;
        const uint64_t address = (uint64_t)(uintptr_t)pointers[item->group];
        item->origin[operand] += address;
        if (address % 16 == 0) return;
        if (operand == TEGROUP_IMPL_D) (SHAPE::OP == TEGROUP_OP_WGRAD ? item->cols : item->lines) = 0;
        else item->alpha = tegroup_impl_f32_of_bits(0x7fc00000u);
    }
};
#endif

/* ==== [55] Hopper GEMM: the epilogue (src/cuda/sm90_epilogue.h) ==== */

#if TEGROUP_IMPL_HOPPER
/* ---- C and bias ---- */

/* The terms beta * C + scale * bias for the sums of one thread. As wgmma lays sums out, a thread has two adjacent
 * columns of each eight columns (an "eight"), in two lines that are eight apart. */
template <typename SHAPE, typename FUNCTOR = tegroup_impl_as_is, bool FLIPS = SHAPE::FLIPS>
struct tegroup_impl_sm90_terms {
    static constexpr bool BIAS = SHAPE::ADDS_BIAS && tegroup_impl_adds_bias<FUNCTOR>::value;
    static constexpr int EIGHTS = SHAPE::COLS / 8;
    float alpha, beta;
    float by[SHAPE::PARTS][2];       /* scale of the bias for each of this thread's lines */
    float bias[(EIGHTS + 7) / 8][2]; /* Lane 8 q + t has columns 2 q and 2 q + 1 of eights t, t + 8, ... */

    /* The column of D that column `i` of the tile is. */
    static __device__ __forceinline__ int64_t column(const tegroup_impl_sm90_call &call,
                                                     const tegroup_impl_sm90_item &item, int i) {
        const int half = item.cols / 2;
        if (!SHAPE::ACTIVATES || call.epilogue.activation.interleaved) return item.j0 + i;
        return item.j0 / 2 + i % half + i / half * call.epilogue.activation.output.cols;
    }
    __device__ __forceinline__ tegroup_impl_sm90_terms(const tegroup_impl_sm90_call &call,
                                                       const tegroup_impl_sm90_item &item, int first_line) {
        const tegroup_gemm_desc &desc = call.call.desc;
        const int lane = (int)threadIdx.x & 31;
        alpha = item.alpha;
        beta = item.beta;
        if (!BIAS || !call.has_bias) return;
        const tegroup_impl_block place = tegroup_impl_locate(&desc.bias, NULL, item.group);
        const bool apart = SHAPE::ACTIVATES && SHAPE::OP == TEGROUP_OP_FORWARD && call.up.apart;
        const int64_t gates = call.epilogue.activation.output.cols;
        const char *ups = apart ? tegroup_impl_gpu_group(call.up.bias, item.group) : NULL;
#pragma unroll
        for (int e = 0; e < (EIGHTS + 7) / 8; e++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int64_t col = column(call, item, (e * 8 + lane % 8) * 8 + lane / 8 * 2 + i);
                const bool there = e * 8 + lane % 8 < EIGHTS && col < desc.d.shape.cols;
                const bool up = apart && col >= gates;
                bias[e][i] = there ? tegroup_impl_gpu_load(desc.bias.dtype, up ? ups : place.base,
                                                           up ? col - gates : place.first + col)
                                   : 0.0f;
            }
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int line = first_line + m * 64 + (int)threadIdx.x / 32 % 4 * 16 + half * 8 + lane / 4;
                by[m][half] = desc.row_scale_dtype == TEGROUP_DTYPE_UNSET || line >= item.lines
                                  ? 1.0f
                                  : tegroup_impl_gpu_load_scale(
                                      desc.row_scale_dtype, desc.row_scale,
                                      item.first_row[TEGROUP_IMPL_A] + item.i0 + line
                                          + (call.ragged[TEGROUP_IMPL_A] ? 0 : item.group * desc.a.shape.rows));
            }
    }
    __device__ __forceinline__ void add(float c, float *x) const { *x = tegroup_impl_gpu_fma(beta, c, *x); }
    /* x: two columns of the upper line, then two of the lower one. */
    __device__ __forceinline__ void add_bias(int m, int eight, float *x) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float b = __shfl_sync(0xffffffffu, bias[eight / 8][i], (int)(threadIdx.x & 3) * 8 + eight % 8);
            x[i] = tegroup_impl_gpu_fma(by[m][0], b, x[i]);
            x[2 + i] = tegroup_impl_gpu_fma(by[m][1], b, x[2 + i]);
        }
    }
};

/* Of a flipped tile, whose lines are columns of D. */
template <typename SHAPE, typename FUNCTOR> struct tegroup_impl_sm90_terms<SHAPE, FUNCTOR, true> {
    static constexpr bool BIAS = SHAPE::ADDS_BIAS && tegroup_impl_adds_bias<FUNCTOR>::value;
    const tegroup_gemm_desc &desc;
    float alpha, beta;
    float bias[SHAPE::PARTS][2]; /* of this thread's lines */
    int64_t row0;                /* of the tile, as row_scale counts */
    int32_t rows;

    __device__ __forceinline__ tegroup_impl_sm90_terms(const tegroup_impl_sm90_call &call,
                                                       const tegroup_impl_sm90_item &item, int first_line)
        : desc(call.call.desc), alpha(item.alpha), beta(item.beta), rows(item.rows) {
        if (!BIAS || !call.has_bias) return;
        const tegroup_impl_block place = tegroup_impl_locate(&desc.bias, NULL, item.group);
        row0 = item.first_row[TEGROUP_IMPL_A] + item.j0
               + (call.ragged[TEGROUP_IMPL_A] ? 0 : item.group * desc.a.shape.rows);
#pragma unroll
        for (int i = 0; i < 2 * SHAPE::PARTS; i++) {
            const int line =
                first_line + i / 2 * 64 + (int)threadIdx.x / 32 % 4 * 16 + i % 2 * 8 + (int)(threadIdx.x & 31) / 4;
            bias[i / 2][i % 2] = line < item.lines ? tegroup_impl_gpu_load(desc.bias.dtype, place.base,
                                                                           place.first + item.i0 + line)
                                                   : 0.0f;
        }
    }
    /* Never called: a flipped tile has no C. */
    __device__ __forceinline__ void add(float c, float *x) const { *x = tegroup_impl_gpu_fma(beta, c, *x); }
    /* x: two columns of the upper line, then two of the lower one. */
    __device__ __forceinline__ void add_bias(int m, int eight, float *x) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = eight * 8 + (int)(threadIdx.x & 3) * 2 + i;
            const float by = desc.row_scale_dtype == TEGROUP_DTYPE_UNSET || row >= rows
                                 ? 1.0f
                                 : tegroup_impl_gpu_load_scale(desc.row_scale_dtype, desc.row_scale, row0 + row);
            x[i] = tegroup_impl_gpu_fma(by, bias[m][0], x[i]);
            x[2 + i] = tegroup_impl_gpu_fma(by, bias[m][1], x[2 + i]);
        }
    }
};

/* Where the sums of one thread lie, which begin with its upper line and first column, for its functor; the built-in
 * store need not know. */
template <typename SHAPE, typename FUNCTOR> struct tegroup_impl_sm90_own {
    int32_t lines, cols; /* of the tile, from there on */
    tegroup_element first;

    __device__ __forceinline__ tegroup_impl_sm90_own(const tegroup_impl_sm90_call &call,
                                                     const tegroup_impl_sm90_item &item, int first_line) {
        const tegroup_tensor &d = call.call.desc.d;
        const int64_t *start = call.call.views[TEGROUP_IMPL_D].start;
        const int me = tegroup_impl_thread(), line = first_line + me / 32 % 4 * 16 + me % 32 / 4, col = me % 4 * 2;
        const int64_t all = SHAPE::FLIPS ? call.call.desc.a.shape.cols : d.shape.cols,
                      row0 = start ? start[item.group] : item.group * d.shape.rows;
        lines = item.lines - line;
        cols = (SHAPE::FITS ? item.rows : (int32_t)tegroup_impl_min(item.cols, all - item.j0)) - col;
        first.group = item.group;
        first.row = row0 + (SHAPE::FLIPS ? item.j0 + col : item.i0 + line);
        first.col = SHAPE::FLIPS ? item.i0 + line : item.j0 + col;
    }
    __device__ __forceinline__ tegroup_element at(int line, int col) const {
        tegroup_element element = first;
        element.row += SHAPE::FLIPS ? col : line;
        element.col += SHAPE::FLIPS ? line : col;
        return element;
    }
};
template <typename SHAPE> struct tegroup_impl_sm90_own<SHAPE, tegroup_impl_as_is> {
    __device__ __forceinline__ tegroup_impl_sm90_own(const tegroup_impl_sm90_call &, const tegroup_impl_sm90_item &,
                                                     int) {}
};

/* Copies a slab in which D's columns end, element by element, to the group's rows from i0 up to `lines` and its columns
 * from j0 on. It is out of line because, inlined into every store, it would be a third of the code. */
template <bool WIDE>
static __device__ __noinline__ void tegroup_impl_sm90_copy(const tegroup_impl_gpu_call *call, int32_t group,
                                                           uint32_t slab, int32_t i0, int32_t lines, int32_t j0) {
    typedef typename tegroup_impl_if<WIDE, float, uint16_t>::type element;
    const int each = 16 / (int)sizeof(element);
    const tegroup_impl_block d = tegroup_impl_locate(&call->desc.d, &call->views[TEGROUP_IMPL_D], group);
    element *to = (element *)d.base + d.first + i0 * d.ld + j0;
    const char *from = (const char *)__cvta_shared_to_generic(slab);
#pragma unroll 1
    for (int i = (int)threadIdx.x % 128; i < 64 * 8; i += 128) {
        const int row = i / 8, chunk = i % 8;
        if (i0 + row >= lines) break;
        const element *source = (const element *)(from + row * 128 + (chunk ^ (row & 7)) * 16);
        for (int e = 0; e < each && j0 + chunk * each + e < d.cols; e++) to[row * d.ld + chunk * each + e] = source[e];
    }
}

/* ---- activation ---- */

/* The offset of a 16-byte chunk in a piece, which has 64 rows of 64 bytes in TMA's 64-byte swizzle. */
static __device__ __forceinline__ uint32_t tegroup_impl_sm90_in_piece(int row, int chunk) {
    return (uint32_t)(row * 64 + (chunk ^ (row / 2 & 3)) * 16);
}

/* Activates sixteen lines of a set, from `line` on. A lane has two results of every second line, and handles four of
 * its lines at a time. scale: lane i has that of line i. */
template <bool BF16, tegroup_activation KIND, bool INTERLEAVED, int PIECE>
static __device__ __forceinline__ void tegroup_impl_sm90_activate_lines(const tegroup_impl_sm90_call &call,
                                                                        uint32_t set, int line, float scale) {
    const tegroup_activation_desc &f = call.epilogue.activation;
    const float alpha = (float)f.alpha, limit = (float)f.limit;
    const int lane = tegroup_impl_thread() % 32, word = lane % 16;
    /* The offset of the lane's word of a piece and, for interleaved pairs, of two words in the first two pieces. */
    const uint32_t one = set + tegroup_impl_sm90_in_piece(line + lane / 16, word / 4) + (uint32_t)(word % 4 * 4),
                   two = set + (uint32_t)(word / 8 * PIECE) + tegroup_impl_sm90_in_piece(line + lane / 16, word % 8 / 2)
                         + (uint32_t)(word % 2 * 8);
#pragma unroll 1
    for (int from = 0; from < 16; from += 8) {
        uint32_t first[4], second[4];
#pragma unroll
        for (int r = 0; r < 4; r++) { /* These rows are two apart, so the swizzle XORs their chunks with r. */
            const uint32_t down = (uint32_t)((from + 2 * r) * 64), turn = (uint32_t)(r * 16);
            if (!INTERLEAVED) {
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(first[r]) : "r"((one ^ turn) + down) : "memory");
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(second[r]) : "r"((one ^ turn) + down + PIECE) : "memory");
            } else
                asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                             : "=r"(first[r]), "=r"(second[r])
                             : "r"((two ^ turn) + down)
                             : "memory");
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const float by = __shfl_sync(0xffffffffu, scale, from + 2 * r + lane / 16),
                        low = tegroup_impl_low_half(first[r], BF16), high = tegroup_impl_high_half(first[r], BF16),
                        low2 = tegroup_impl_low_half(second[r], BF16), high2 = tegroup_impl_high_half(second[r], BF16);
            const float y0 = tegroup_impl_activation_f32(KIND, 1, alpha, limit, low, INTERLEAVED ? high : low2),
                        y1 = tegroup_impl_activation_f32(KIND, 1, alpha, limit, INTERLEAVED ? low2 : high, high2);
            asm volatile("st.shared.u32 [%0], %1;" ::"r"((one ^ (uint32_t)(r * 16))
                                                         + (uint32_t)((from + 2 * r) * 64 + 2 * PIECE)),
                         "r"(tegroup_impl_two_halves(__fmul_rn(by, y0), __fmul_rn(by, y1), BF16))
                         : "memory");
        }
    }
}

#if TEGROUP_IMPL_ACTIVATION_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
static __device__ __forceinline__ void tegroup_impl_sm90_load_chunk(uint32_t from, uint32_t (&word)[4]) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(from)
                 : "memory");
}
static __device__ __forceinline__ void tegroup_impl_sm90_store_chunk(uint32_t to, const uint32_t (&word)[4]) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
}

/* Differentiates sixteen lines of a set. Its third piece holds the gradient of the activation, which is replaced by
 * the activation itself; gates and ups are replaced by their gradients. A lane has eight columns of a line, and a warp
 * eight lines at a time. Only the first `cols` of the set's 32 columns exist; the others may give NaN, so sums leave
 * them out. Lane i has the scale of line i, and returns the line's sum of gradient times result, added up in the order
 * of tegroup_impl_activation_grad_kernel, where a thread has eight columns or, interleaved, four. */
template <bool BF16, tegroup_activation KIND, bool INTERLEAVED, int PIECE>
static __device__ __forceinline__ float tegroup_impl_sm90_differentiate_lines(const tegroup_impl_sm90_call &call,
                                                                              uint32_t set, int line, int32_t cols,
                                                                              float scale) {
    const float alpha = (float)call.epilogue.activation.alpha, limit = (float)call.epilogue.activation.limit;
    const int lane = tegroup_impl_thread() % 32, chunk = lane % 4, row = line + lane / 4;
    const uint32_t first = INTERLEAVED
                               ? set + (uint32_t)(chunk / 2 * PIECE) + tegroup_impl_sm90_in_piece(row, chunk % 2 * 2)
                               : set + tegroup_impl_sm90_in_piece(row, chunk),
                   second = INTERLEAVED ? first ^ 16 : first + PIECE,
                   activated = set + 2 * PIECE + tegroup_impl_sm90_in_piece(row, chunk);
    float sum = 0;
#pragma unroll 1
    for (int from = 0; from < 16; from += 8) {
        const uint32_t down = (uint32_t)(from * 64);
        const float by = __shfl_sync(0xffffffffu, scale, from + lane / 4);
        uint32_t x[2][4], y[4];
        tegroup_impl_sm90_load_chunk(first + down, x[0]);
        tegroup_impl_sm90_load_chunk(second + down, x[1]);
        tegroup_impl_sm90_load_chunk(activated + down, y);
        const float part = tegroup_impl_differentiate_eight<KIND, INTERLEAVED>(alpha, limit, BF16, by, x, y);
        tegroup_impl_sm90_store_chunk(first + down, x[0]);
        tegroup_impl_sm90_store_chunk(second + down, x[1]);
        tegroup_impl_sm90_store_chunk(activated + down, y);
        const float all = tegroup_impl_tree(chunk * 8 < cols ? part : 0.0f, 4, 32),
                    its = __shfl_sync(0xffffffffu, all, lane % 8 * 4);
        if (lane / 8 == from / 8) sum = its;
    }
    return sum;
}
#endif

template <bool BF16, int PIECE>
static __device__ __forceinline__ void tegroup_impl_sm90_activate(const tegroup_impl_sm90_call &call, uint32_t set,
                                                                  int line, float scale) {
#define TEGROUP_IMPL_CALL(kind)                                                                                        \
    if (call.epilogue.activation.interleaved)                                                                          \
        tegroup_impl_sm90_activate_lines<BF16, kind, true, PIECE>(call, set, line, scale);                             \
    else tegroup_impl_sm90_activate_lines<BF16, kind, false, PIECE>(call, set, line, scale);
    TEGROUP_IMPL_BY_GATED(call.epilogue.activation.activation, TEGROUP_IMPL_CALL)
#undef TEGROUP_IMPL_CALL
}

template <bool BF16, int PIECE>
static __device__ __forceinline__ float tegroup_impl_sm90_differentiate(const tegroup_impl_sm90_call &call,
                                                                        uint32_t set, int line, int32_t cols,
                                                                        float scale) {
#if TEGROUP_IMPL_ACTIVATION_KERNELS && TEGROUP_IMPL_BACKWARD_KERNELS
#define TEGROUP_IMPL_CALL(kind)                                                                                        \
    if (call.epilogue.activation.interleaved)                                                                          \
        return tegroup_impl_sm90_differentiate_lines<BF16, kind, true, PIECE>(call, set, line, cols, scale);           \
    return tegroup_impl_sm90_differentiate_lines<BF16, kind, false, PIECE>(call, set, line, cols, scale);
    TEGROUP_IMPL_BY_GATED(call.epilogue.activation.activation, TEGROUP_IMPL_CALL)
#undef TEGROUP_IMPL_CALL
#else
    return 0;
#endif
}
#endif

/* ==== [56] Hopper GEMM: a block (src/cuda/sm90_block.h) ==== */

#if TEGROUP_IMPL_HOPPER
/* A block is a chain of four classes, each the base of the next: what the warps share, loader, storer, multiplier. (If
 * the others hold the first as a member instead, nvcc makes different code.) */
template <typename SHAPE> struct tegroup_impl_sm90_block {
    static constexpr int STAGES = SHAPE::STAGES, ITEMS = TEGROUP_IMPL_SM90_ITEMS;
    const tegroup_impl_sm90_call &call;
    uint32_t ring, slabs; /* addresses in shared memory */
    tegroup_impl_sm90_rest<SHAPE> *rest;

    static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }
    static __device__ __forceinline__ uint32_t at(const uint64_t *barrier) { return tegroup_impl_shared(barrier); }

    __device__ __forceinline__ tegroup_impl_sm90_block(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : call(c) {
        static_assert(sizeof *rest <= TEGROUP_IMPL_SM90_REST, "barriers and found tiles");
        memory += (1024 - tegroup_impl_shared(memory) % 1024) % 1024; /* for the swizzle of TMA and wgmma */
        ring = tegroup_impl_shared(memory);
        slabs = ring + STAGES * SHAPE::STAGE_BYTES;
        rest = (tegroup_impl_sm90_rest<SHAPE> *)(memory + STAGES * SHAPE::STAGE_BYTES + SHAPE::SLAB_BYTES);
    }
    /* A thread of the loading warp initializes the barriers while the scheduler warp checks the snapshots. */
    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 32) {
            const int loaders = gathers() ? 32 : 1;
            for (int s = 0; s < STAGES; s++) {
                tegroup_impl_barrier_init(at(&rest->full[s]), gathers() ? 33 : 1);
                tegroup_impl_barrier_init(at(&rest->empty[s]),
                                          /* warps that multiply it */
                                          4 * (SHAPE::TURNS ? 1 : SHAPE::MULTIPLIERS) * SHAPE::BLOCKS
                                              * SHAPE::RELEASERS);
            }
            for (int i = 0; i < ITEMS; i++) {
                tegroup_impl_barrier_init(at(&rest->found[i]), 1);
                tegroup_impl_barrier_init(at(&rest->taken[i]), /* storers, multipliers */
                                          loaders + 2 + 128 * SHAPE::MULTIPLIERS);
            }
            for (int w = 0; w < SHAPE::MULTIPLIERS; w++) {
                tegroup_impl_barrier_init(at(&rest->turn[w]), 4);
                for (int i = 0; i < SHAPE::SLABS; i++) {
                    tegroup_impl_barrier_init(at(&rest->ready[w][i]), 1);
                    tegroup_impl_barrier_init(at(&rest->written[w][i]), 4);
                }
            }
            tegroup_impl_async_fence();
        }
        if (SHAPE::PAIRS) tegroup_impl_cluster_sync();
        else __syncthreads();
    }
    /* Other threads of a pair may still arrive at this block's barriers, and its loads still write there. */
    static __device__ __forceinline__ void leave() {
        if (SHAPE::PAIRS) tegroup_impl_cluster_sync();
    }
    __device__ __forceinline__ bool gathers() const { return !SHAPE::PAIRS && (call.gathers_a || call.gathers_b); }
    __device__ __forceinline__ bool anywhere(tegroup_impl_operand operand) const {
        return call.ragged[operand] || call.listed[operand];
    }
    /* Waits for the block's tile `number`. */
    __device__ __forceinline__ const tegroup_impl_sm90_item *take(int32_t number) const {
        tegroup_impl_barrier_wait(at(&rest->found[number % ITEMS]), number / ITEMS & 1);
        return &rest->items[number % ITEMS];
    }
    /* Every thread that took a tile calls this after it last reads it. */
    __device__ __forceinline__ void give(int32_t number) const {
        tegroup_impl_barrier_arrive(at(&rest->taken[number % ITEMS]));
    }

    /* Whether the snapshots are what tegroup_prepare wrote for these operands, which are regular. Each lane of the warp
     * looks at one operand's: tegroup_impl_prepared, inlined or called, has ptxas spill the scheduler's registers. */
    __device__ __forceinline__ bool prepared() const {
        const tegroup_gemm_desc &desc = call.call.desc;
        const int operand = lane() % 4;
        const tegroup_impl_fit fit = {call.call.views[operand].header,
                                      operand == TEGROUP_IMPL_A   ? desc.a.shape.rows
                                      : operand == TEGROUP_IMPL_B ? desc.b.shape.rows
                                      : operand == TEGROUP_IMPL_C ? desc.c.shape.rows
                                                                  : desc.d.shape.rows,
                                      INT64_MAX,
                                      INT64_MAX,
                                      -1,
                                      desc.a.shape.groups,
                                      0};
        return __all_sync(0xffffffffu, tegroup_impl_fits(&fit));
    }
    /* Publishes a found tile, once everybody has given back the one in whose place it goes. */
    __device__ __forceinline__ void publish(int32_t number, const tegroup_impl_sm90_item &item) const {
        if (number >= ITEMS) tegroup_impl_barrier_wait(at(&rest->taken[number % ITEMS]), (number / ITEMS & 1) ^ 1);
        if (lane() == 0) {
            rest->items[number % ITEMS] = item;
            tegroup_impl_barrier_arrive(at(&rest->found[number % ITEMS]));
        }
    }
    /* The scheduler warp publishes the block's tiles, and then an item of group -1. */
    __device__ __forceinline__ void schedule() const {
        tegroup_impl_sm90_walk<SHAPE> walk(call, prepared());
        bool there = true;
        for (int32_t number = 0; there; number++) {
            tegroup_impl_sm90_item item;
            item.group = -1;
            there = walk.next(&item);
            publish(number, item);
            __syncwarp();
        }
    }

    /* The first line of a warpgroup's part of a tile. */
    static __device__ __forceinline__ int line_of(int group) { return SHAPE::TURNS ? 0 : group * SHAPE::LINES; }
    static __device__ __forceinline__ bool narrow(const tegroup_impl_sm90_item &item) {
        return SHAPE::NARROWS && item.cols == SHAPE::NARROW;
    }
    __device__ __forceinline__ bool is_wide() const {
        return !SHAPE::FLIPS && call.call.desc.d.dtype == TEGROUP_DTYPE_F32;
    }

    /* ---- results go through slabs of 64 rows of 128 bytes: number n of a tile through slab n % USED ---- */

    __device__ __forceinline__ uint32_t slab(int group, int which) const {
        return slabs + (uint32_t)((group * SHAPE::SLABS + which) * TEGROUP_IMPL_SM90_SLAB);
    }
    template <bool WIDE> __device__ __forceinline__ bool adds_in_l2(int number) const {
        return SHAPE::template results<WIDE>::in_l2(number) && call.adds_in_l2;
    }
    /* Whether D's columns end inside the slab at `line` and `col` of the tile, which has `cols` of them, and not at a
     * multiple of 16 bytes. TMA stores no less than 16 bytes, and so would write past that end. */
    __device__ __forceinline__ bool ends(const tegroup_impl_sm90_item &item, int32_t line, int32_t col,
                                         int32_t cols) const {
        const int32_t left = SHAPE::FLIPS
                                 ? item.lines - line
                                 : (int32_t)tegroup_impl_min(item.cols, call.call.desc.d.shape.cols - item.j0) - col;
        return left > 0 && left < cols && left % (cols / 8) != 0;
    }
    /* The address of a piece of an activation's set. A warpgroup counts its sets from its first tile on. */
    __device__ __forceinline__ uint32_t piece(int group, uint32_t set, int piece) const {
        return slabs
               + (uint32_t)(group * SHAPE::SLABS * TEGROUP_IMPL_SM90_SLAB
                            + ((int)(set % SHAPE::SETS) * 3 + piece) * SHAPE::PIECE);
    }
};
#endif

/* ==== [57] Hopper GEMM: blocks that keep step (src/cuda/sm90_pace.h) ==== */

#if TEGROUP_IMPL_HOPPER
/* The count that is explained below: in device memory, one for each translation unit. */
static __device__ __forceinline__ unsigned long long *tegroup_impl_sm90_step_count(void) {
    static unsigned long long steps;
    return &steps;
}

/* Blocks side by side read the same rows of A or of B. One finds in L2 what another has brought there, as long as both
 * are about as far in their sums. Where groups end within tiles, some tiles have fewer rows to read than others, blocks
 * drift apart, and in the end everything comes from memory, which can double a long product's time.
 *
 * So each block adds its steps to a count in device memory, and one that is ahead of the mean waits for it. That is a
 * hint: no bit of a result depends on it. A block that polls in vain waits no more, since the others may not be running
 * at all: the GPU may be shared.
 *
 * Whatever its steps, a launch adds ALL to the count. Modulo ALL, the count is therefore that of the launch that runs,
 * and 0 between launches: nothing must be cleared. Two launches at a time see a count that is too large, and wait for
 * nobody; so do the other blocks of a launch after the first one is done. */
struct tegroup_impl_sm90_pace {
    /* Steps from one look to the next, and steps that a block may be ahead: of those that were tried, the best
     * (docs/lab/tile-choice.md). Polls until it waits no more: a few microseconds. */
    static constexpr uint32_t EVERY = 4, AHEAD = 1, POLLS = 9;
    static constexpr unsigned long long EACH = 1ull << 32, ALL = EACH << 12; /* what one block adds; what all add */
    bool keeps, waits;
    uint32_t said;           /* steps that this block has added to the count */
    unsigned long long seen; /* the count before the last of these, which arrives while they are loaded */

    /* All blocks of a launch have the same `keeps`. */
    __device__ __forceinline__ explicit tegroup_impl_sm90_pace(bool keeps_)
        : keeps(keeps_), waits(true), said(0), seen(0) {}
    __device__ __forceinline__ bool early() const {
        return seen % ALL + AHEAD * gridDim.x < (unsigned long long)said * gridDim.x;
    }
    /* Before step `step` of the block is loaded. */
    __device__ __forceinline__ void keep(uint32_t step) {
        if (!keeps || step - said < EVERY) return;
#pragma unroll 1
        for (uint32_t polls = 1; waits && early(); polls++) {
            seen = *(const volatile unsigned long long *)tegroup_impl_sm90_step_count();
            waits = polls < POLLS;
        }
        seen = atomicAdd(tegroup_impl_sm90_step_count(), (unsigned long long)EVERY);
        said += EVERY;
    }
    /* After the block's last step. */
    __device__ __forceinline__ void leave() const {
        if (keeps)
            atomicAdd(tegroup_impl_sm90_step_count(),
                      (blockIdx.x == 0 ? ALL - (gridDim.x - 1) * EACH : EACH) - said);
    }
};
#endif

/* ==== [58] Hopper GEMM: operands to shared memory (src/cuda/sm90_load.h) ==== */

#if TEGROUP_IMPL_HOPPER
template <typename SHAPE> struct tegroup_impl_sm90_loader : tegroup_impl_sm90_block<SHAPE> {
    typedef tegroup_impl_sm90_block<SHAPE> base;
    using base::anywhere;
    using base::at;
    using base::call;
    using base::give;
    using base::lane;
    using base::narrow;
    using base::rest;
    using base::ring;
    using base::STAGES;
    using base::take;

    __device__ __forceinline__ tegroup_impl_sm90_loader(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : base(c, memory) {}

    /* One thread loads the stages of every tile by TMA. */
    __device__ __forceinline__ void load() const {
        tegroup_impl_sm90_pace pace(SHAPE::PACES && may_drift());
        uint32_t step = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *take(number);
            give(number);
            if (item.group < 0) break;
            for (int32_t k0 = 0; k0 < item.k; k0 += SHAPE::AT_ONCE * SHAPE::K) {
                if (SHAPE::PACES) pace.keep(step);
                const int32_t left = (item.k - k0 + SHAPE::K - 1) / SHAPE::K,
                              steps = left < SHAPE::AT_ONCE ? left : SHAPE::AT_ONCE;
#pragma unroll
                for (int i = 0; i < SHAPE::AT_ONCE; i++) {
                    if (i == steps) break;
                    const uint32_t stage = (step + i) % STAGES, full = at(&rest->full[stage]);
                    tegroup_impl_barrier_wait(at(&rest->empty[stage]), ((step + i) / STAGES & 1) ^ 1);
                    tegroup_impl_barrier_expect(full, a_bytes(item) + b_bytes(item));
                    load_a(item, k0 + i * SHAPE::K, ring + stage * SHAPE::STAGE_BYTES, full);
                }
#pragma unroll
                for (int i = 0; i < SHAPE::AT_ONCE; i++) {
                    if (i == steps) break;
                    const uint32_t stage = (step + i) % STAGES;
                    load_b(item, k0 + i * SHAPE::K, ring + stage * SHAPE::STAGE_BYTES + SHAPE::A_BYTES,
                           at(&rest->full[stage]));
                }
                step += (uint32_t)steps;
            }
        }
        if (SHAPE::PACES) pace.leave();
    }
    /* Whether blocks may drift apart: some group ends within a tile, and sums are long. */
    __device__ __forceinline__ bool may_drift() const {
        const tegroup_tensor &a = call.call.desc.a;
        const tegroup_snapshot_header *header = call.call.views[TEGROUP_IMPL_A].header;
        const uint64_t rows = (uint64_t)(header ? header->rows_max : a.shape.rows);
        return a.shape.cols >= TEGROUP_IMPL_SM90_DRIFTING_K
               && (rows % SHAPE::TILE_M != 0
                   || (header && rows * (uint64_t)a.shape.groups != (uint64_t)header->rows_total));
    }
    /* Where rows are gathered, one warp loads: each lane copies 16-byte chunks of the rows, and an operand that is not
     * gathered comes by TMA. The warp waits for the copies of a step, and announces them, LAG steps later. That must
     * not deadlock. Multipliers release a stage when the next one is full, so LAG is at most STAGES - 2. At a tile
     * without steps everything is announced: multipliers that still wait take no further tile, and the scheduler is
     * only ITEMS tiles ahead of them. */
    __device__ __forceinline__ void load_gathered() const {
        constexpr uint32_t LAG = STAGES > 3 ? 2 : 1;
        const tegroup_gemm_desc &desc = call.call.desc;
        const bool wgrad = SHAPE::OP == TEGROUP_OP_WGRAD, a = call.gathers_a, b = wgrad && call.gathers_b;
        uint32_t step = 0, said = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *take(number);
            give(number);
            if (item.k <= 0 || item.group < 0) {
                tegroup_impl_cp_wait<0>();
                for (; said < step; said++) arrived(said);
            }
            if (item.group < 0) break;
            if (!wgrad)
                pick(desc.gather_a, item.first_row[TEGROUP_IMPL_A] + item.i0, item.lines, SHAPE::TILE_M,
                     rest->picked_a);
            for (int32_t k0 = 0; k0 < item.k; k0 += SHAPE::K, step++) {
                const uint32_t stage = step % STAGES, full = at(&rest->full[stage]),
                               to = ring + stage * SHAPE::STAGE_BYTES;
                if (wgrad && a)
                    pick(desc.gather_a, item.first_row[TEGROUP_IMPL_A] + k0, item.k - k0, TEGROUP_IMPL_SM90_LINES,
                         rest->picked_a);
                if (b)
                    pick(desc.gather_b, item.first_row[TEGROUP_IMPL_B] + k0, item.k - k0, TEGROUP_IMPL_SM90_LINES,
                         rest->picked_b);
                tegroup_impl_barrier_wait(at(&rest->empty[stage]), (step / STAGES & 1) ^ 1);
                if (lane() == 0) {
                    tegroup_impl_barrier_expect(full, (a ? 0 : SHAPE::A_BYTES) + (b ? 0 : b_bytes(item)));
                    if (!a) load_a(item, k0, to, full);
                    if (!b) load_b(item, k0, to + SHAPE::A_BYTES, full);
                }
                if (!wgrad) copy_rows(desc.a, rest->picked_a, k0, SHAPE::TILE_M, to);
                if (wgrad && a)
                    for (int i = 0; i < SHAPE::TILE_M; i += 64)
                        copy_rows(desc.a, rest->picked_a, item.i0 + i, TEGROUP_IMPL_SM90_LINES, to + i * 128);
                if (b)
                    for (int j = 0; j < SHAPE::COLS; j += 64)
                        copy_rows(desc.b, rest->picked_b, item.j0 + j, TEGROUP_IMPL_SM90_LINES,
                                  to + SHAPE::A_BYTES + j * 128);
                tegroup_impl_cp_commit();
                tegroup_impl_cp_wait<LAG>();
                for (; said + LAG <= step; said++) arrived(said);
            }
        }
    }
    /* Announces that wgmma can read what this lane copied for a step. */
    __device__ __forceinline__ void arrived(uint32_t step) const {
        tegroup_impl_async_fence();
        tegroup_impl_barrier_arrive(at(&rest->full[step % STAGES]));
    }
    /* Looks up which rows `count` gathered rows are, of which the first `there` exist. */
    static __device__ __forceinline__ void pick(const tegroup_gather &gather, int32_t first, int32_t there, int count,
                                                int32_t *picked) {
        __syncwarp(); /* Every lane has read the previous row numbers. */
        for (int i = lane(); i < count; i += 32)
            picked[i] = i < there ? (int32_t)tegroup_impl_gathered(&gather, (int64_t)first + i) : -1;
        __syncwarp();
    }
    /* Copies 64 columns of gathered rows, swizzled as TMA would. A lane has the same chunk of every fourth row. It
     * reads eight row numbers before it copies their chunks, to hide the latency of the reads. */
    __device__ __forceinline__ void copy_rows(const tegroup_tensor &t, const int32_t *picked, int32_t col, int count,
                                              uint32_t to) const {
        const int chunk = lane() % 8, first = lane() / 8;
        const uint64_t row_bytes = (uint64_t)tegroup_impl_ld(&t) * 2;
        const int64_t left = (t.shape.cols - col - chunk * 8) * 2;
        const char *from = (const char *)t.data + (left > 0 ? (int64_t)(col + chunk * 8) * 2 : 0);
        const int32_t none = left > 0 ? 0 : -1;
        to += (uint32_t)(first * 128 + (chunk ^ first) * 16);
        if (left > 0 && left < 16) {
#pragma unroll 1
            for (int i = first, r = 0; i < count; i += 4, r++)
                tegroup_impl_load_slowly<1>((to + (uint32_t)(r * 512)) ^ (uint32_t)(r % 2 * 64),
                                            from + (uint64_t)tegroup_impl_max(picked[i], 0) * row_bytes,
                                            picked[i] < 0 ? 0 : (int32_t)left);
            return;
        }
#pragma unroll 1
        for (int i = first; i < count; i += 32, to += 32 * 128) {
            int32_t row[8];
#pragma unroll
            for (int r = 0; r < 8; r++) row[r] = picked[i + 4 * r] | none;
#pragma unroll
            for (int r = 0; r < 8; r++)
                tegroup_impl_cp_async_unless(row[r] < 0, (to + (uint32_t)(r * 512)) ^ (uint32_t)(r % 2 * 64),
                                             from + (uint64_t)(uint32_t)(row[r] < 0 ? 0 : row[r]) * row_bytes);
        }
    }
    __device__ __forceinline__ void load_a(const tegroup_impl_sm90_item &item, int32_t k0, uint32_t to,
                                           uint32_t full) const {
        if (has_none(item)) return;
        if (SHAPE::OF_GROUPS) load_of_group(item, TEGROUP_IMPL_A, to, full, k0, item.i0);
        else if (is_short(item))
            load_box(item, TEGROUP_IMPL_A, &call.smaller[0], call.further[0], to, full, k0, item.i0, item.lines,
                     SHAPE::SHORT);
        else if (SHAPE::FITS && !SHAPE::A_LINES)
            load_weights(item, TEGROUP_IMPL_B, &call.map[TEGROUP_IMPL_B], to, full, k0, item.i0);
        else if (!SHAPE::A_LINES) load_rows(item, TEGROUP_IMPL_A, to, full, k0, item.i0, item.lines, SHAPE::TILE_M);
        else
#pragma unroll
            for (int i = 0; i < SHAPE::TILE_M; i += 64)
                load_rows(item, SHAPE::FIRST, to + i * 128, full, item.i0 + i, k0, item.k - k0,
                          TEGROUP_IMPL_SM90_LINES);
    }
    /* The second block of a pair may be behind D's columns. */
    static __device__ __forceinline__ bool has_none(const tegroup_impl_sm90_item &item) {
        return SHAPE::PAIRS && item.lines <= 0;
    }
    static __device__ __forceinline__ bool is_short(const tegroup_impl_sm90_item &item) {
        return SHAPE::SHORT > 0 && item.lines <= SHAPE::SHORT;
    }
    /* Bytes of a stage that a tile loads. */
    __device__ __forceinline__ uint32_t a_bytes(const tegroup_impl_sm90_item &item) const {
        return has_none(item) ? 0 : is_short(item) ? SHAPE::SHORT * TEGROUP_IMPL_SM90_LINE : SHAPE::A_BYTES;
    }
    /* Whether gates and ups are two halves of a forward product's D. A tile then has gates, followed by their ups. */
    __device__ __forceinline__ bool halves() const {
        return SHAPE::OP == TEGROUP_OP_FORWARD && SHAPE::ACTIVATES && !call.epilogue.activation.interleaved;
    }
    __device__ __forceinline__ uint32_t b_bytes(const tegroup_impl_sm90_item &item) const {
        return (SHAPE::FITS ? item.cols : narrow(item) ? SHAPE::NARROW : SHAPE::COLS) * TEGROUP_IMPL_SM90_LINE;
    }
    __device__ __forceinline__ void load_b(const tegroup_impl_sm90_item &item, int32_t k0, uint32_t to,
                                           uint32_t full) const {
        if (SHAPE::OF_GROUPS) load_of_group(item, TEGROUP_IMPL_B, to, full, k0, item.j0);
        else if (SHAPE::FITS) {
            /* One box of rows: several small ones take longer, and so does one with more rows than exist. */
            const int32_t smaller = (SHAPE::COLS - item.cols) / SHAPE::FIT - 1,
                          first = (int32_t)blockIdx.x % SHAPE::BLOCKS * (item.cols / SHAPE::BLOCKS), /* of this block */
                row = item.j0 + first, rows = item.rows - first;
            to += (uint32_t)(first * 128);
            if (smaller < 0) load_rows(item, TEGROUP_IMPL_A, to, full, k0, row, rows, SHAPE::COLS / SHAPE::BLOCKS);
            else
                load_box(item, TEGROUP_IMPL_A, &call.smaller[smaller], call.further[smaller], to, full, k0, row, rows,
                         item.cols / SHAPE::BLOCKS);
        } else if (SHAPE::OP == TEGROUP_OP_FORWARD) {
            const CUtensorMap *map = narrow(item) ? &call.smaller[0] : &call.map[TEGROUP_IMPL_B];
            const bool two = halves();
            load_weights(item, TEGROUP_IMPL_B, map, to, full, k0, two ? item.j0 / 2 : item.j0);
            if (two && call.up.apart)
                load_weights(item, TEGROUP_IMPL_SM90_UPS,
                             narrow(item) ? &call.smaller[1] : &call.map[TEGROUP_IMPL_SM90_UPS],
                             to + item.cols / 2 * 128, full, k0, item.j0 / 2);
            else if (two)
                load_weights(item, TEGROUP_IMPL_B, map, to + item.cols / 2 * 128, full, k0,
                             item.j0 / 2 + (int32_t)call.epilogue.activation.output.cols);
        } else
#pragma unroll
            for (int j = 0; j < SHAPE::COLS; j += 64)
                if (j < SHAPE::NARROW || !narrow(item))
                    load_rows(item, SHAPE::SECOND, to + j * 128, full, item.j0 + j, k0, item.k - k0,
                              TEGROUP_IMPL_SM90_LINES);
    }
    /* Loads a box of the weights of a forward product's group, from `row` on. */
    __device__ __forceinline__ void load_weights(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                                 const CUtensorMap *map, uint32_t to, uint32_t full, int32_t k0,
                                                 int32_t row) const {
        tegroup_impl_tma_load(to, map, full, k0, row, call.listed[operand] ? 0 : item.group, anywhere(operand),
                              item.origin[operand]);
    }
    /* Loads a box by the group's own map. */
    __device__ __forceinline__ void load_of_group(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                                  uint32_t to, uint32_t full, int32_t k0, int32_t row) const {
        const CUtensorMap *map = call.of_groups + 2 * item.group + operand;
        if (k0 == 0) tegroup_impl_tma_map_acquire(map);
        tegroup_impl_tma_load(to, map, full, k0, row, 0, false, 0);
    }
    /* Loads 64 columns of a box of the group's rows, from `row` on, of which `rows` exist. */
    __device__ __forceinline__ void load_rows(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                              uint32_t to, uint32_t full, int32_t col, int32_t row, int32_t rows,
                                              int32_t box) const {
        load_box(item, operand, &call.map[operand], 0, to, full, col, row, rows, box);
    }
    /* The same by another map, whose shift is `further` bytes above the operand's. */
    __device__ __forceinline__ void load_box(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                             const CUtensorMap *map, uint64_t further, uint32_t to, uint32_t full,
                                             int32_t col, int32_t row, int32_t rows, int32_t box) const {
        int32_t y = row, z = call.listed[operand] ? 0 : item.group;
        if (call.ragged[operand]) {
            const int32_t v = rows < box ? rows : box;
            y = box - v;
            z = item.first_row[operand] + row + v;
        }
        if (SHAPE::PAIRS && operand == TEGROUP_IMPL_A)
            tegroup_impl_tma_load_twice(to, map, full, col, y, z, anywhere(operand), item.origin[operand] + further);
        else tegroup_impl_tma_load(to, map, full, col, y, z, anywhere(operand), item.origin[operand] + further);
    }
};
#endif

/* ==== [59] Hopper GEMM: results from shared memory (src/cuda/sm90_store.h) ==== */

#if TEGROUP_IMPL_HOPPER
template <typename SHAPE> struct tegroup_impl_sm90_storer : tegroup_impl_sm90_loader<SHAPE> {
    typedef tegroup_impl_sm90_loader<SHAPE> base;
    using base::adds_in_l2;
    using base::anywhere;
    using base::at;
    using base::call;
    using base::ends;
    using base::give;
    using base::is_wide;
    using base::line_of;
    using base::piece;
    using base::rest;
    using base::slab;
    using base::slabs;
    using base::take;

    __device__ __forceinline__ tegroup_impl_sm90_storer(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : base(c, memory) {}

    /* Two threads store the warpgroups' results from the slabs, and load C into them: each those of every second. */
    __device__ __forceinline__ void store(int first) const {
        uint32_t rounds[(SHAPE::MULTIPLIERS + 1) / 2] = {0};
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *take(number);
            give(number);
            if (item.group < 0) break;
#pragma unroll
            for (int i = 0; i < (SHAPE::MULTIPLIERS + 1) / 2; i++) {
                const int group = first + 2 * i;
                if ((SHAPE::TURNS && (number & 1) != group) || group >= SHAPE::MULTIPLIERS
                    || item.lines <= line_of(group))
                    continue;
                if (SHAPE::ACTIVATES) store_sets(group, item, &rounds[i]);
                else if (is_wide()) store_tile<true>(group, item, &rounds[i]);
                else store_tile<false>(group, item, &rounds[i]);
            }
        }
        tegroup_impl_tma_store_wait<0>(); /* The block must not end while TMA reads its shared memory. */
    }
    /* Of a tile without steps: gives the other warpgroup its turn when the first result is written, for all warps.
     * Their lanes all have seen their own turn come then (see the multiplier's yield). */
    __device__ __forceinline__ void yield_for(int group, const tegroup_impl_sm90_item &item, int result) const {
        if (SHAPE::STORER_YIELDS && item.k <= 0 && result == 0)
            for (int i = 0; i < 4; i++) tegroup_impl_barrier_arrive(at(&rest->turn[group ^ 1]));
    }
    template <bool WIDE>
    __device__ __forceinline__ void store_tile(int group, const tegroup_impl_sm90_item &item, uint32_t *rounds) const {
        typedef typename SHAPE::template results<WIDE> results;
        tegroup_impl_tma_store_wait<0>();
        for (int i = 0; i < results::USED; i++) prepare<WIDE>(group, item, i);
#pragma unroll 1
        for (int i = 0; i < results::COUNT; i++) {
            int32_t x, y, z;
            tegroup_impl_barrier_wait(at(&rest->written[group][i % results::USED]), (*rounds + i / results::USED) & 1);
            yield_for(group, item, i);
            if (place<WIDE>(group, item, i, TEGROUP_IMPL_D, &x, &y, &z)
                && !ends(item, line_of(group) + i / results::ACROSS * 64, i % results::ACROSS * results::COLS,
                         results::COLS))
                tegroup_impl_tma_store(&call.map[TEGROUP_IMPL_D], slab(group, i % results::USED), x, y, z,
                                       anywhere(TEGROUP_IMPL_D), item.origin[TEGROUP_IMPL_D], adds_in_l2<WIDE>(i),
                                       SHAPE::OF_GROUPS);
            tegroup_impl_tma_store_commit(); /* one bulk group for each slab, even if empty: waits count slabs */
            if (i == 0 || i - 1 + results::USED >= results::COUNT) continue;
            tegroup_impl_tma_store_wait<1>(); /* TMA has read the slab before this one. */
            prepare<WIDE>(group, item, i - 1 + results::USED);
        }
        *rounds += results::COUNT / results::USED;
    }
    /* Makes the slab of result `number` ready: loads C into it if C is added here, or only says that it is free. */
    template <bool WIDE>
    __device__ __forceinline__ void prepare(int group, const tegroup_impl_sm90_item &item, int number) const {
        typedef typename SHAPE::template results<WIDE> results;
        const uint32_t ready = at(&rest->ready[group][number % results::USED]);
        int32_t x, y, z;
        if (item.beta == 0 || adds_in_l2<WIDE>(number)
            || !place<WIDE>(group, item, number, TEGROUP_IMPL_C, &x, &y, &z)) {
            tegroup_impl_barrier_arrive(ready);
            return;
        }
        tegroup_impl_barrier_expect(ready, TEGROUP_IMPL_SM90_SLAB);
        tegroup_impl_tma_load(slab(group, number % results::USED), &call.map[TEGROUP_IMPL_C], ready, x, y, z,
                              anywhere(TEGROUP_IMPL_C), item.origin[TEGROUP_IMPL_C]);
    }
    /* The TMA coordinates, in D or C, of slab `number` of a tile. Returns false if it has no lines or no columns. */
    template <bool WIDE>
    __device__ __forceinline__ bool place(int group, const tegroup_impl_sm90_item &item, int number,
                                          tegroup_impl_operand operand, int32_t *x, int32_t *y, int32_t *z) const {
        typedef typename SHAPE::template results<WIDE> results;
        const int line = line_of(group) + number / results::ACROSS * 64;
        const int32_t i = item.i0 + line, v = (int32_t)tegroup_impl_min(item.lines - line, TEGROUP_IMPL_SM90_LINES);
        const int32_t col = number % results::ACROSS * results::COLS;
        if (SHAPE::FITS) {
            const int32_t rows = (int32_t)tegroup_impl_min(item.rows - col, TEGROUP_IMPL_SM90_LINES);
            *x = i;
            place_rows(item, operand, item.j0 + col, rows, y, z);
            return v > 0 && rows > 0;
        }
        if (SHAPE::FLIPS) { /* A weight gradient is never ragged. */
            *x = i;
            *y = item.j0 + col;
            *z = call.listed[operand] ? 0 : item.group;
            return v > 0 && col < item.cols;
        }
        *x = item.j0 + col;
        place_rows(item, operand, i, v, y, z);
        return v > 0 && col < item.cols && *x < call.call.desc.d.shape.cols;
    }
    /* The TMA coordinates of a box of `rows` rows of the group, from `row` on. */
    __device__ __forceinline__ void place_rows(const tegroup_impl_sm90_item &item, tegroup_impl_operand operand,
                                               int32_t row, int32_t rows, int32_t *y, int32_t *z) const {
        *y = call.ragged[operand] ? TEGROUP_IMPL_SM90_LINES - rows : row;
        *z = call.ragged[operand] ? item.first_row[operand] + row + rows : call.listed[operand] ? 0 : item.group;
    }
    /* Stores the sets of a tile. Rows of an activation are multiples of 16 bytes, so TMA clips them where they end. */
    __device__ __forceinline__ void store_sets(int group, const tegroup_impl_sm90_item &item, uint32_t *done) const {
        const bool halves = !call.epilogue.activation.interleaved,
                   keeps_d = SHAPE::OP == TEGROUP_OP_DGRAD || call.epilogue.keeps_d,
                   keeps_activated = SHAPE::OP == TEGROUP_OP_FORWARD || call.epilogue.activates_again;
        const int sets = SHAPE::PARTS * (item.cols / SHAPE::SET_COLS);
        tegroup_impl_tma_store_wait<0>();
        for (int i = 0; i < SHAPE::SETS; i++) prepare_set(group, item, *done, i);
#pragma unroll 1
        for (int i = 0; i < sets; i++) {
            const uint32_t set = *done + i;
            int32_t x, y, z;
            tegroup_impl_barrier_wait(at(&rest->written[group][set % SHAPE::SETS]), set / SHAPE::SETS & 1);
            yield_for(group, item, i);
            if (place_set(group, item, i, &x, &y, &z)) {
                if (keeps_d) {
                    tegroup_impl_tma_store(&call.map[TEGROUP_IMPL_D], piece(group, set, 0), halves ? x : 2 * x, y, z,
                                           true, item.origin[TEGROUP_IMPL_D]);
                    tegroup_impl_tma_store(halves ? &call.ups : &call.map[TEGROUP_IMPL_D], piece(group, set, 1),
                                           halves ? x : 2 * x + 32, y, z, true, item.origin[TEGROUP_IMPL_D]);
                }
                if (keeps_activated)
                    tegroup_impl_tma_store(&call.activated, piece(group, set, 2), x, y, z, true, call.activated_shift);
            }
            tegroup_impl_tma_store_commit();
            if (i + SHAPE::SETS >= sets) continue;
            tegroup_impl_tma_store_wait<0>(); /* The warpgroup works on the next set meanwhile. */
            prepare_set(group, item, *done, i + SHAPE::SETS);
        }
        *done += (uint32_t)sets;
    }
    /* Makes set `i` of a tile ready, before which there were `done` sets; loads a gradient's gates and ups into it. */
    __device__ __forceinline__ void prepare_set(int group, const tegroup_impl_sm90_item &item, uint32_t done,
                                                int i) const {
        const uint32_t set = done + i, ready = at(&rest->ready[group][set % SHAPE::SETS]);
        const bool halves = !call.epilogue.activation.interleaved;
        int32_t x, y, z;
        if (SHAPE::OP == TEGROUP_OP_FORWARD || !place_set(group, item, i, &x, &y, &z)) {
            tegroup_impl_barrier_arrive(ready);
            return;
        }
        tegroup_impl_barrier_expect(ready, 2 * SHAPE::PIECE);
        tegroup_impl_tma_load(piece(group, set, 0), &call.map[TEGROUP_IMPL_C], ready, halves ? x : 2 * x, y, z, true,
                              item.origin[TEGROUP_IMPL_C]);
        tegroup_impl_tma_load(piece(group, set, 1), halves ? &call.c_ups : &call.map[TEGROUP_IMPL_C], ready,
                              halves ? x : 2 * x + 32, y, z, true, item.origin[TEGROUP_IMPL_C]);
    }
    /* The TMA coordinates of set `i` of a tile, where x counts columns of the activation. Returns false if it has no
     * lines. */
    __device__ __forceinline__ bool place_set(int group, const tegroup_impl_sm90_item &item, int i, int32_t *x,
                                              int32_t *y, int32_t *z) const {
        const int across = item.cols / SHAPE::SET_COLS, line = line_of(group) + i / across * 64;
        const int32_t v = (int32_t)tegroup_impl_min(item.lines - line, TEGROUP_IMPL_SM90_LINES);
        *x = item.j0 / (SHAPE::SET_COLS / 32) + i % across * 32;
        *y = TEGROUP_IMPL_SM90_LINES - v;
        *z = item.first_row[TEGROUP_IMPL_D] + item.i0 + line + v;
        return v > 0;
    }
};
#endif

/* ==== [60] Hopper GEMM: the multiplying warpgroups, and the kernel (src/cuda/sm90_multiply.h) ==== */

#if TEGROUP_IMPL_HOPPER
template <bool BF16, typename SHAPE> struct tegroup_impl_sm90_multiplier : tegroup_impl_sm90_storer<SHAPE> {
    typedef tegroup_impl_sm90_storer<SHAPE> base;
    using base::adds_in_l2;
    using base::at;
    using base::call;
    using base::ends;
    using base::give;
    using base::is_wide;
    using base::lane;
    using base::line_of;
    using base::narrow;
    using base::piece;
    using base::rest;
    using base::ring;
    using base::slab;
    using base::STAGES;
    using base::take;
    typedef float sums[SHAPE::PARTS][SHAPE::COLS / 2];

    __device__ __forceinline__ tegroup_impl_sm90_multiplier(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : base(c, memory) {}

    /* Warpgroup `group` (0 or 1) multiplies its tiles, or its parts of them, and writes what the functor makes of the
     * results into slabs. */
    template <typename FUNCTOR> __device__ __forceinline__ void multiply(int group, const FUNCTOR &functor) const {
        uint32_t step = 0, rounds = 0; /* rounds: uses of each slab so far or, with an activation, sets so far */
        int32_t number = 0;
        if (SHAPE::TURNS && group == 1) pass(&number, &step);
        for (;;) {
            const tegroup_impl_sm90_item *item = take(number);
            if (item->group < 0) break;
            /* A wait by parity must not miss a phase, so the other warpgroup first sees all of its stages full. */
            if (SHAPE::TURNS) tegroup_impl_barrier_wait(at(&rest->turn[group]), (number / 2 & 1) ^ (group == 0));
            if (item->lines > line_of(group)) work(group, *item, step, &rounds, functor);
            else see_off(group, step, steps_of(*item));
            step += steps_of(*item); /* Computed again, since the sums leave few registers. */
            give(number);
            number++;
            if (SHAPE::TURNS) pass(&number, &step);
        }
    }
    /* Skips a tile of the other warpgroup, but not the item after the last tile. */
    __device__ __forceinline__ void pass(int32_t *number, uint32_t *step) const {
        const tegroup_impl_sm90_item *item = take(*number);
        if (item->group < 0) return;
        *step += steps_of(*item);
        give(*number);
        ++*number;
    }
    static __device__ __forceinline__ uint32_t steps_of(const tegroup_impl_sm90_item &item) {
        return (uint32_t)((item.k + SHAPE::K - 1) / SHAPE::K);
    }
    /* Gives the other warpgroup its turn. Each lane of the warp must have seen its own turn come, or it might miss the
     * phase and wait forever. A wait for wgmma, which a warp executes as one, ensures that, and so does the storer,
     * which yields for a tile without steps. (A __syncwarp here, or only on the path of such a tile, makes ptxas
     * serialize wgmma, C7511. So does a storer that yields for fitting tiles, all of which have no steps or none: there
     * it is left to ptxas, which makes the wait for a turn one instruction of the whole warp.) */
    __device__ __forceinline__ void yield(int group) const {
        if (SHAPE::TURNS && lane() == 0) tegroup_impl_barrier_arrive(at(&rest->turn[group ^ 1]));
    }
    template <typename FUNCTOR>
    __device__ __forceinline__ void work(int group, const tegroup_impl_sm90_item &item, uint32_t step, uint32_t *rounds,
                                         const FUNCTOR &functor) const {
        const bool adds = !SHAPE::FLIPS && item.beta != 0, wide = is_wide();
        const uint32_t steps = steps_of(item);
        sums sum;
        if (steps == 0) nothing(group, adds, sum);
        else if (SHAPE::FITS) add_up_fit(group, item.cols, step, steps, sum);
        else if (!SHAPE::NARROWS || item.cols > SHAPE::NARROW) add_up<SHAPE::COLS>(group, step, steps, sum);
        else add_up<SHAPE::NARROW>(group, step, steps, sum);
        if (SHAPE::ACTIVATES) {
            activate(group, item, rounds, sum);
            return;
        }
        if (wide && (adds || call.has_bias)) store_wide<true>(group, item, adds, *rounds, sum, functor);
        else if (wide) store_wide<false>(group, item, false, *rounds, sum, functor);
        else if (!SHAPE::FLIPS && (adds || call.has_bias)) store_halves<true>(group, item, adds, *rounds, sum, functor);
        else store_halves<false>(group, item, false, *rounds, sum, functor);
        *rounds += wide ? SHAPE::template results<true>::COUNT / SHAPE::template results<true>::USED
                        : SHAPE::template results<false>::COUNT / SHAPE::template results<false>::USED;
    }
    /* Releases the stages of a tile in which this warpgroup has no lines. */
    __device__ __forceinline__ void see_off(int group, uint32_t step, uint32_t steps) const {
#pragma unroll 1
        for (const uint32_t end = step + steps; step < end; step++) {
            wait_full(step);
            __syncwarp();
            release(step);
        }
        yield(group);
    }
    /* The empty sum. Where beta * C is added it is -0, which also leaves a -0 as it is. */
    __device__ __forceinline__ void nothing(int group, bool adds, sums &sum) const {
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int i = 0; i < SHAPE::COLS / 2; i++) sum[m][i] = adds ? -0.0f : 0.0f;
        if (!SHAPE::STORER_YIELDS) yield(group);
    }
    /* Sums for the first COLS columns of the tile. */
    template <int COLS, typename OPERANDS = tegroup_impl_wgmma_halves<BF16>>
    __device__ __forceinline__ void add_up(int group, uint32_t first, uint32_t steps, sums &sum) const {
        const uint64_t a = tegroup_impl_wgmma_tile(ring + line_of(group) * 128, SHAPE::K * 128),
                       b = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, SHAPE::K * 128);
        multiply_stage<COLS, OPERANDS, true>(first, a, b, sum);
        tegroup_impl_wgmma_wait<0>(); /* Otherwise ptxas waits, and warns: the sums change registers here. */
#pragma unroll 1
        for (uint32_t step = first + 1; step < first + steps; step++) {
            multiply_stage<COLS, OPERANDS, false>(step, a, b, sum);
            tegroup_impl_wgmma_wait<1>();
            release(step - 1);
        }
        yield(group);
        tegroup_impl_wgmma_wait<0>();
        fence<COLS>(sum);
        release(first + steps - 1);
    }
    /* Sums for a fitting tile of `cols` columns. */
    __device__ __forceinline__ void add_up_fit(int group, int32_t cols, uint32_t first, uint32_t steps,
                                               sums &sum) const {
        static_assert(TEGROUP_IMPL_SM90_SMALLER == 4, "one for each box");
        if (cols == SHAPE::fitting(0)) add_up<SHAPE::fitting(0)>(group, first, steps, sum);
        else if (cols == SHAPE::fitting(1)) add_up<SHAPE::fitting(1)>(group, first, steps, sum);
        else if (cols == SHAPE::fitting(2)) add_up<SHAPE::fitting(2)>(group, first, steps, sum);
        else if (cols == SHAPE::fitting(3)) add_up<SHAPE::fitting(3)>(group, first, steps, sum);
        else add_up<SHAPE::fitting(4)>(group, first, steps, sum);
    }
    /* Multiplies a stage. The first one of a tile overwrites the sums, so nobody clears them. */
    template <int COLS, typename OPERANDS, bool FIRST>
    __device__ __forceinline__ void multiply_stage(uint32_t step, uint64_t a, uint64_t b, sums &sum) const {
        constexpr int A_STEP = (SHAPE::A_LINES ? 16 * 128 : 32) >> 4, B_STEP = (SHAPE::B_LINES ? 16 * 128 : 32) >> 4;
        const uint64_t offset = (uint64_t)(step % STAGES * (SHAPE::STAGE_BYTES >> 4));
        wait_full(step);
        fence<COLS>(sum);
        tegroup_impl_wgmma_begin();
#pragma unroll
        for (int kk = 0; kk < SHAPE::K / OPERANDS::K; kk++)
#pragma unroll
            for (int m = 0; m < SHAPE::PARTS; m++)
                OPERANDS::template multiply<COLS, SHAPE::A_LINES, SHAPE::B_LINES>(
                    reinterpret_cast<float(&)[COLS / 2]>(sum[m]), a + offset + m * (64 * 128 >> 4) + kk * A_STEP,
                    b + offset + kk * B_STEP, !FIRST || kk > 0);
        tegroup_impl_wgmma_commit();
        fence<COLS>(sum);
    }
    __device__ __forceinline__ void release(uint32_t step) const {
        if (!SHAPE::PAIRS) {
            if (lane() < SHAPE::RELEASERS) tegroup_impl_barrier_arrive(at(&rest->empty[step % STAGES]));
        } else if (lane() == 0) {
            tegroup_impl_barrier_arrive_at<0>(at(&rest->empty[step % STAGES]));
            tegroup_impl_barrier_arrive_at<1>(at(&rest->empty[step % STAGES]));
        }
    }
    __device__ __forceinline__ void wait_full(uint32_t step) const {
        tegroup_impl_barrier_wait(at(&rest->full[step % STAGES]), step / STAGES & 1);
    }
    /* Keeps the sums of the first COLS columns where they are. */
    template <int COLS> static __device__ __forceinline__ void fence(sums &sum) {
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++) tegroup_impl_wgmma_keep(reinterpret_cast<float(&)[COLS / 2]>(sum[m]));
    }

    /* ---- results to slabs ---- */

    /* Waits until the slab of result `number` is free, and holds C if that is added. */
    template <bool WIDE> __device__ __forceinline__ void begin(int group, int number, uint32_t rounds) const {
        typedef typename SHAPE::template results<WIDE> results;
        tegroup_impl_barrier_wait(at(&rest->ready[group][number % results::USED]),
                                  (rounds + number / results::USED) & 1);
    }
    /* Announces that the slab is written. If D's columns end in it, off a multiple of 16 bytes, the warpgroup copies it
     * to D itself. */
    template <bool WIDE>
    __device__ __forceinline__ void end(int group, const tegroup_impl_sm90_item &item, int number) const {
        typedef typename SHAPE::template results<WIDE> results;
        if (ends(item, line_of(group) + number / results::ACROSS * 64, number % results::ACROSS * results::COLS,
                 results::COLS)) {
            tegroup_impl_warpgroup_sync(1 + group);
            const int32_t line = item.i0 + line_of(group) + number / results::ACROSS * 64,
                          col = item.j0 + number % results::ACROSS * results::COLS;
            if (SHAPE::FLIPS)
                tegroup_impl_sm90_copy<WIDE>(
                    &call.call, item.group, slab(group, number % results::USED), col,
                    SHAPE::FITS ? item.j0 + item.rows
                                : (int32_t)tegroup_impl_min(item.j0 + item.cols, call.call.desc.a.shape.cols),
                    line);
            else
                tegroup_impl_sm90_copy<WIDE>(&call.call, item.group, slab(group, number % results::USED), line,
                                             item.i0 + item.lines, col);
            tegroup_impl_warpgroup_sync(1 + group); /* `written` suffices, but racecheck credits only its lane */
        }
        tegroup_impl_async_fence();
        __syncwarp();
        if (lane() == 0) tegroup_impl_barrier_arrive(at(&rest->written[group][number % results::USED]));
    }
    /* The built-in store has no functor. (Even an empty one has ptxas order instructions otherwise.) */
    static __device__ __forceinline__ void apply(const tegroup_impl_sm90_own<SHAPE, tegroup_impl_as_is> &, int, int,
                                                 float *, const tegroup_impl_as_is &) {}
    /* Gives the functor what a thread has of an eight, as `terms` have it, but nothing that is not stored. */
    template <typename FUNCTOR>
    static __device__ __forceinline__ void apply(const tegroup_impl_sm90_own<SHAPE, FUNCTOR> &own, int m, int eight,
                                                 float *x, const FUNCTOR &functor) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int line = m * 64 + i / 2 * 8, col = eight * 8 + i % 2;
            if (line < own.lines && col < own.cols) x[i] = functor(x[i], own.at(line, col));
        }
    }
    template <bool TERMS, typename FUNCTOR>
    __device__ __forceinline__ void store_halves(int group, const tegroup_impl_sm90_item &item, bool adds,
                                                 uint32_t rounds, sums &sum, const FUNCTOR &functor) const {
        typedef typename SHAPE::template results<false> results;
        const bool bf16 = call.call.desc.d.dtype == TEGROUP_DTYPE_BF16;
        const int me = tegroup_impl_thread(), lane = me % 32, warp = me / 32 % 4;
        /* The row of the slab that this lane addresses: one of the warp's sixteen lines or, if flipped, one of sixteen
         * columns, which have these lines in two chunks. */
        const int row = SHAPE::FLIPS ? lane / 16 * 8 + lane % 8 : warp * 16 + lane % 16;
        const uint32_t mine = (uint32_t)(row * 128 + (SHAPE::FLIPS ? ((warp * 2 + lane / 8 % 2) ^ (row & 7)) * 16 : 0));
        const tegroup_impl_sm90_terms<SHAPE, FUNCTOR> terms(call, item, line_of(group));
        const tegroup_impl_sm90_own<SHAPE, FUNCTOR> own(call, item, line_of(group));
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int s = 0; s < results::ACROSS; s++) {
                const int number = m * results::ACROSS + s;
                const uint32_t to = slab(group, number % results::USED) + mine;
                begin<false>(group, number, rounds);
#pragma unroll
                for (int c = 0; c < 8; c += 2) { /* two eights of columns, each of the upper, then the lower lines */
                    const uint32_t there =
                        to + (uint32_t)(SHAPE::FLIPS ? c * 8 * 128 : ((c + lane / 16) ^ (row & 7)) * 16);
                    float x[8];
                    uint32_t word[4];
#pragma unroll
                    for (int i = 0; i < 8; i++) x[i] = tegroup_impl_gpu_mul(terms.alpha, sum[m][(s * 8 + c) * 4 + i]);
                    if (TERMS && adds) {
                        tegroup_impl_ldmatrix_rows(word, there);
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            terms.add(tegroup_impl_low_half(word[i], bf16), &x[2 * i]);
                            terms.add(tegroup_impl_high_half(word[i], bf16), &x[2 * i + 1]);
                        }
                    }
                    if (TERMS && terms.BIAS && call.has_bias) {
                        terms.add_bias(m, s * 8 + c, x);
                        terms.add_bias(m, s * 8 + c + 1, x + 4);
                    }
                    apply(own, m, s * 8 + c, x, functor);
                    apply(own, m, s * 8 + c + 1, x + 4, functor);
#pragma unroll
                    for (int i = 0; i < 4; i++) word[i] = tegroup_impl_two_halves(x[2 * i], x[2 * i + 1], bf16);
                    tegroup_impl_stmatrix<SHAPE::FLIPS>(there, word);
                }
                end<false>(group, item, number);
            }
    }
    template <bool TERMS, typename FUNCTOR>
    __device__ __forceinline__ void store_wide(int group, const tegroup_impl_sm90_item &item, bool adds,
                                               uint32_t rounds, sums &sum, const FUNCTOR &functor) const {
        typedef typename SHAPE::template results<true> results;
        const int me = tegroup_impl_thread(), lane = me % 32;
        const int row = me / 32 % 4 * 16 + lane / 4; /* and eight below it, where chunks are swizzled alike */
        const tegroup_impl_sm90_terms<SHAPE, FUNCTOR> terms(call, item, line_of(group));
        const tegroup_impl_sm90_own<SHAPE, FUNCTOR> own(call, item, line_of(group));
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
            for (int s = 0; s < results::ACROSS; s++) {
                const int number = m * results::ACROSS + s;
                const uint32_t to = slab(group, number % results::USED) + (uint32_t)(row * 128 + lane % 2 * 8);
                begin<true>(group, number, rounds);
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const uint32_t there = to + (uint32_t)(((c * 2 + lane % 4 / 2) ^ (row & 7)) * 16);
                    float x[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) x[i] = tegroup_impl_gpu_mul(terms.alpha, sum[m][(s * 4 + c) * 4 + i]);
                    if (TERMS && adds && !adds_in_l2<true>(number))
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            float old[2];
                            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                                         : "=f"(old[0]), "=f"(old[1])
                                         : "r"(there + half * 8 * 128)
                                         : "memory");
                            terms.add(old[0], &x[2 * half]);
                            terms.add(old[1], &x[2 * half + 1]);
                        }
                    if (TERMS && terms.BIAS && call.has_bias) terms.add_bias(m, s * 4 + c, x);
                    apply(own, m, s * 4 + c, x, functor);
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(there + half * 8 * 128), "f"(x[2 * half]),
                                     "f"(x[2 * half + 1])
                                     : "memory");
                }
                end<true>(group, item, number);
            }
    }
    /* Rounds sums into a set: into its first two pieces for a forward product, into the third for a gradient. Each warp
     * then activates or differentiates the lines that it wrote itself. As that code is long, the loop over sets is not
     * unrolled. */
    __device__ __forceinline__ void activate(int group, const tegroup_impl_sm90_item &item, uint32_t *done,
                                             sums &sum) const {
        constexpr bool FORWARD = SHAPE::OP == TEGROUP_OP_FORWARD;
        constexpr int MOST = SHAPE::COLS / SHAPE::SET_COLS; /* sets side by side, in the widest tile */
        const int across = item.cols / SHAPE::SET_COLS, row = tegroup_impl_thread() / 32 % 4 * 16 + lane() % 16;
        float scale[SHAPE::PARTS]; /* of the activation; lane i has that of the warp's line i */
        const tegroup_impl_sm90_terms<SHAPE> terms(call, item, line_of(group));
#pragma unroll
        for (int m = 0; m < SHAPE::PARTS; m++) {
            scale[m] =
                m * 64 + row < item.lines
                    ? tegroup_impl_weight<float>(call.epilogue.activation.row_scale,
                                                 (int64_t)item.first_row[TEGROUP_IMPL_D] + item.i0 + m * 64 + row, 0)
                    : 0.0f;
            constexpr int AT_ONCE = FORWARD ? 0 : SHAPE::COLS / 8; /* This frees registers for the loop. */
#pragma unroll
            for (int eight = 0; eight < AT_ONCE; eight++) {
                uint32_t word[2];
                round(terms, m, eight, sum[m], word);
                sum[m][eight * 4] = __uint_as_float(word[0]);
                sum[m][eight * 4 + 1] = __uint_as_float(word[1]);
            }
        }
#pragma unroll 1
        for (int n = 0; n < SHAPE::PARTS * MOST; n++) {
            if (n % MOST >= across) continue;
            const int used = (int)(*done % SHAPE::SETS);
            const uint32_t set = piece(group, *done, 0);
            tegroup_impl_barrier_wait(at(&rest->ready[group][used]), *done / SHAPE::SETS & 1);
#pragma unroll
            for (int m = 0; m < SHAPE::PARTS; m++)
#pragma unroll
                for (int s = 0; s < MOST; s++) {
                    if (n != m * MOST + s) continue;
                    if (!FORWARD) put<0>(terms, set + 2 * SHAPE::PIECE, row, m, 4 * s, sum[m]);
                    else if (call.epilogue.activation.interleaved) put<4>(terms, set, row, m, 8 * s, sum[m]);
                    else if (narrow(item)) put<SHAPE::NARROW / 16>(terms, set, row, m, 4 * s, sum[m]);
                    else put<SHAPE::COLS / 16>(terms, set, row, m, 4 * s, sum[m]);
                }
            __syncwarp();
            if (FORWARD) tegroup_impl_sm90_activate<BF16, SHAPE::PIECE>(call, set, row - lane() % 16, scale[n / MOST]);
            else differentiate(item, set, row, n / MOST * 64 + row, item.j0 + n % MOST * 32, scale[n / MOST]);
            tegroup_impl_async_fence();
            __syncwarp();
            if (lane() == 0) tegroup_impl_barrier_arrive(at(&rest->written[group][used]));
            ++*done;
        }
    }
    /* Rounds the two columns that a thread has of an eight: in its upper line, then in its lower one. */
    __device__ __forceinline__ void round(const tegroup_impl_sm90_terms<SHAPE> &terms, int m, int eight,
                                          const float (&sum)[SHAPE::COLS / 2], uint32_t *word) const {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = tegroup_impl_gpu_mul(terms.alpha, sum[eight * 4 + i]);
        if (terms.BIAS && call.has_bias) terms.add_bias(m, eight, x);
        word[0] = tegroup_impl_two_halves(x[0], x[1], BF16);
        word[1] = tegroup_impl_two_halves(x[2], x[3], BF16);
    }
    /* Writes four eights of columns to a piece; in a forward product, those LATER eights further to the next piece. */
    template <int LATER>
    __device__ __forceinline__ void put(const tegroup_impl_sm90_terms<SHAPE> &terms, uint32_t to, int row, int m,
                                        int first, const float (&sum)[SHAPE::COLS / 2]) const {
#pragma unroll
        for (int c = 0; c < (LATER ? 8 : 4); c += 2) {
            const int eight = first + c % 4 + c / 4 * LATER;
            uint32_t word[4] = {__float_as_uint(sum[eight * 4]), __float_as_uint(sum[eight * 4 + 1]),
                                __float_as_uint(sum[eight * 4 + 4]), __float_as_uint(sum[eight * 4 + 5])};
            if (SHAPE::OP == TEGROUP_OP_FORWARD) {
                round(terms, m, eight, sum, word);
                round(terms, m, eight + 1, sum, word + 2);
            }
            tegroup_impl_stmatrix<false>(
                to + c / 4 * SHAPE::PIECE + tegroup_impl_sm90_in_piece(row, c % 4 + lane() / 16), word);
        }
    }
    /* Differentiates the warp's lines of a set. This lane has row `row` of the set, which is `line` of the tile. */
    __device__ __forceinline__ void differentiate(const tegroup_impl_sm90_item &item, uint32_t set, int row, int line,
                                                  int col, float scale) const {
        const int32_t cols = (int32_t)call.call.desc.d.shape.cols - col;
        if (cols <= 0) return;
        const float sum =
            tegroup_impl_sm90_differentiate<BF16, SHAPE::PIECE>(call, set, row - lane() % 16, cols, scale);
        if (call.epilogue.row_sums && lane() < 16 && line < item.lines)
            call.epilogue
                .row_sums[col / 32 * call.call.desc.d.shape.rows + item.first_row[TEGROUP_IMPL_D] + item.i0 + line] =
                sum;
    }
};
#endif

#if TEGROUP_IMPL_HOPPER
template <bool BF16, typename SHAPE, typename FUNCTOR>
static __device__ __forceinline__ void tegroup_impl_sm90_work(const tegroup_impl_sm90_call &call,
                                                              const FUNCTOR &functor) {
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    const tegroup_impl_sm90_multiplier<BF16, SHAPE> block(call, tegroup_impl_memory);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* which the compiler sees to be uniform */
    block.init();
    if (warp < 4) {
        tegroup_impl_registers_give<40>();
        if (warp == 0) block.schedule();
        if (warp == 1 && block.gathers()) block.load_gathered();
        else if (warp == 1 && (threadIdx.x & 31) == 0) block.load();
        if (warp > 1 && (threadIdx.x & 31) == 0) block.store(warp - 2);
    } else {
        tegroup_impl_registers_take<232>();
        block.multiply(warp / 4 - 1, functor);
    }
    block.leave();
}
#endif

/* Code for another GPU than sm_90a has a launch bound of 32. The plan reads it, since nothing else tells code for sm_90
 * from code for sm_90a. */
#define TEGROUP_IMPL_SM90_BOUND __launch_bounds__(TEGROUP_IMPL_HOPPER ? TEGROUP_IMPL_SM90_THREADS : 32, 1)
template <bool BF16, typename SHAPE>
static __global__ void TEGROUP_IMPL_SM90_BOUND
tegroup_impl_sm90_kernel(const __grid_constant__ tegroup_impl_sm90_call call) {
#if TEGROUP_IMPL_HOPPER
    tegroup_impl_sm90_work<BF16, SHAPE>(call, tegroup_impl_as_is());
#else
    __trap();
#endif
}

template <bool BF16, typename SHAPE, typename FUNCTOR>
static __global__ void TEGROUP_IMPL_SM90_BOUND tegroup_impl_sm90_functor_kernel(
    const __grid_constant__ tegroup_impl_sm90_call call, const __grid_constant__ FUNCTOR functor) {
#if TEGROUP_IMPL_HOPPER
    tegroup_impl_sm90_work<BF16, SHAPE>(call, functor);
#else
    __trap();
#endif
}
#if !defined(TEGROUP_NO_FP8)

/* ==== [61] Hopper GEMM: weights that are decoded in registers (src/cuda/sm90_weights.h) ==== */

/* The kernel of sm90_tiles.h for weights of MXFP8, MXFP4 or NVFP4 and rows of BF16: D^T = B A^T in flipped, fitting
 * tiles. TMA loads codes, and tiles of 128 x 4 scales; each thread of the warpgroups, which share a tile, decodes those
 * weights that wgmma takes from its registers. So no more than codes is read, and nothing written. Values and the order
 * of sums are those of the kernels of BF16, and so are the results' bits. */

template <int BITS_, bool INTERLEAVED_, int ROWS_, int K_, int MULTIPLIERS_>
struct tegroup_impl_sm90_weights_shape
    : tegroup_impl_sm90_shape<1, 64, ROWS_, false, (ROWS_ > 64) + 1, true, false, false, MULTIPLIERS_> {
    typedef tegroup_impl_sm90_shape<1, 64, ROWS_, false, (ROWS_ > 64) + 1, true, false, false, MULTIPLIERS_> base;
    /* Of a flipped tile COLS are rows of D; columns of D are its lines. */
    static constexpr int BITS = BITS_, K = K_, COLS = ROWS_;
    static constexpr bool INTERLEAVED = INTERLEAVED_;
    static constexpr int RELEASERS = 32; /* Scales come by bulk copies, whose writes racecheck sees. */
    static constexpr bool ADDS_BIAS = true, SCALES_GROUPS = true, PACES = false;
    static constexpr int SMALLER = TEGROUP_IMPL_SM90_WEIGHTS_SMALLER(COLS);
    static constexpr int LINE = K * BITS / 8; /* bytes of a line's codes in a stage */
    /* A tile begins at a multiple of 64 lines; its scales lie in memory in tiles of 128 lines. A stage has 1,024 bytes
     * for each of these, also where they have 512, since stages begin at multiples of 1,024. */
    static constexpr int A_BYTES = base::TILE_M * LINE, SCALE_BYTES = (base::TILE_M + 127) / 128 * 1024,
                         STAGE_BYTES = A_BYTES + K / 64 * COLS * TEGROUP_IMPL_SM90_LINE + SCALE_BYTES,
                         STAGES = (TEGROUP_IMPL_SM90_SHARED - base::OTHER_BYTES) / STAGE_BYTES,
                         SHARED_BYTES = STAGES * STAGE_BYTES + base::OTHER_BYTES;
    static_assert(STAGES >= TEGROUP_IMPL_SM90_RING && A_BYTES % 1024 == 0, "a ring; swizzled operands");
    /* Threads, and registers of those that do not multiply and of those that do. */
    static constexpr int THREADS = 128 * (1 + base::MULTIPLIERS), FEWER = base::MULTIPLIERS == 2 ? 72 : 56,
                         MORE = base::MULTIPLIERS == 2 ? 216 : 152;
    static_assert(128 * (FEWER + base::MULTIPLIERS * MORE) <= 65536, "a multiprocessor's registers");
    /* Codes are read in chunks of 16 bytes, of which a line has a power of two, permuted as TMA does. */
    static constexpr int CHUNKS = LINE / 16;
};

#if TEGROUP_IMPL_HOPPER
template <typename SHAPE> struct tegroup_impl_sm90_weights_block : tegroup_impl_sm90_multiplier<true, SHAPE> {
    typedef tegroup_impl_sm90_multiplier<true, SHAPE> base;
    typedef typename base::sums sums;
    using base::call;
    using base::lane;
    using base::line_of;
    using base::ring;
    using base::STAGES;
    static constexpr int EACH = SHAPE::K / 32; /* wgmmas of half a stage */
    typedef uint32_t half_stage[EACH][4];      /* weights, as wgmma takes them from registers */

    __device__ __forceinline__ tegroup_impl_sm90_weights_block(const tegroup_impl_sm90_call &c, unsigned char *memory)
        : base(c, memory) {}

    /* Where a stage is in the ring, and whether the ring has been through an odd number of rounds. */
    struct place {
        uint32_t slot, round;
        __device__ __forceinline__ void step_on() {
            if (++slot < STAGES) return;
            slot = 0;
            round ^= 1;
        }
    };
    /* Four scales of each of two lines. Of one of E8M0 that is above 2 `four` has 2, and `rest` its exponent's rest; of
     * one of E4M3 that is NaN `rest` has the highest bit. */
    struct scales {
        uint32_t four[2], rest[2];
    };

    /* ---- loading ---- */

    /* One thread loads the stages of every tile. Stages that hold codes are short, and would wait for its instructions
     * rather than for memory: what all stages of a tile have in common is found once. */
    __device__ __forceinline__ void load() const {
        place in = {0, 0};
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item item = *this->take(number);
            this->give(number);
            if (item.group < 0) break;
            const int smaller = (SHAPE::COLS - item.cols) / SHAPE::FIT - 1;
            const CUtensorMap *rows_map = smaller < 0 ? &call.map[TEGROUP_IMPL_A] : &call.smaller[smaller];
            const uint64_t rows_origin = item.origin[TEGROUP_IMPL_A] + (smaller < 0 ? 0 : call.further[smaller]);
            const bool ragged = call.ragged[TEGROUP_IMPL_A], rows_anywhere = this->anywhere(TEGROUP_IMPL_A),
                       codes_anywhere = this->anywhere(TEGROUP_IMPL_B);
            const int32_t rows_y = ragged ? item.cols - item.rows : item.j0, /* as in load_box */
                rows_z = !ragged ? (call.listed[TEGROUP_IMPL_A] ? 0 : item.group)
                                 : item.first_row[TEGROUP_IMPL_A] + item.j0 + item.rows,
                codes_z = call.listed[TEGROUP_IMPL_B] ? 0 : item.group;
            const uint32_t rows_bytes = (uint32_t)(SHAPE::K / 64 * item.cols * TEGROUP_IMPL_SM90_LINE);
            /* A tile of 128 x 4 scales is of so much of k. */
            const int scales_k = call.weights.e4m3 ? 64 : 128;
            const char *scales = scales_of(item);
            const bool more = SHAPE::SCALE_BYTES > 1024 && item.i0 % 128 + item.lines > 128; /* of the next 128 lines */
#pragma unroll 1
            for (int32_t k = 0; k < item.k; k += SHAPE::K, in.step_on()) {
                const uint32_t full = this->at(&this->rest->full[in.slot]), to = ring + in.slot * SHAPE::STAGE_BYTES,
                               scales_to = to + SHAPE::STAGE_BYTES - SHAPE::SCALE_BYTES,
                               scales_bytes = SHAPE::K > scales_k && k + scales_k < item.k ? 1024 : 512;
                tegroup_impl_barrier_wait(this->at(&this->rest->empty[in.slot]), in.round ^ 1);
                tegroup_impl_barrier_expect(full, SHAPE::A_BYTES + rows_bytes + scales_bytes * (more ? 2 : 1));
                tegroup_impl_tma_load(to, &call.map[TEGROUP_IMPL_B], full, k * SHAPE::BITS / 8, item.i0, codes_z,
                                      codes_anywhere, item.origin[TEGROUP_IMPL_B]);
#pragma unroll
                for (int i = 0; i < SHAPE::K / 64; i++)
                    tegroup_impl_tma_load(to + SHAPE::A_BYTES + i * SHAPE::COLS * TEGROUP_IMPL_SM90_LINE, rows_map,
                                          full, k + 64 * i, rows_y, rows_z, rows_anywhere, rows_origin);
                tegroup_impl_bulk_load(scales_to, scales, scales_bytes, full);
                if (more)
                    tegroup_impl_bulk_load(scales_to + 1024, scales + call.weights.lines_bytes, scales_bytes, full);
                if (SHAPE::K >= scales_k || k % scales_k != 0) scales += SHAPE::K > scales_k ? 1024 : 512;
            }
        }
    }
    /* The scales of a tile's first lines. Those of a listed buffer that begin off 16 bytes make NaN anyway. */
    __device__ __forceinline__ const char *scales_of(const tegroup_impl_sm90_item &item) const {
        const tegroup_tensor &b = call.call.desc.b;
        const char *group = tegroup_impl_listed(&b) ? (const char *)b.scale_pointers[item.group]
                                                    : (const char *)b.scale_inv + item.group * call.weights.group_bytes;
        return (const char *)((uintptr_t)group & ~(uintptr_t)15) + item.i0 / 128 * call.weights.lines_bytes;
    }

    /* ---- multiplying ---- */

    /* What a thread decodes of every stage: of two lines that are eight apart, the same elements of each 16 of k. */
    struct share {
        uint32_t codes;   /* where the upper line's codes are in a stage */
        uint32_t swizzle; /* by which its chunks of 16 bytes are permuted */
        uint32_t pick;    /* by which __byte_perm picks two bytes of eight, each twice, or one of four, four times */
        uint32_t among;   /* or, if codes are interleaved, at which byte this lane's begin among those of 64 of k */
        uint32_t scales;  /* where the upper line's scales are in a stage; the others are 128 bytes on */
    };
    static __device__ __forceinline__ share share_of(int group, int32_t first_line) {
        const uint32_t line = (uint32_t)(line_of(group) + tegroup_impl_thread() / 32 % 4 * 16 + lane() / 4),
                       scaled = line + (uint32_t)first_line % 128, q = (uint32_t)lane() % 4;
        share mine;
        mine.codes = line * SHAPE::LINE;
        mine.swizzle = line * SHAPE::LINE / 128 % SHAPE::CHUNKS * 16;
        mine.pick = SHAPE::BITS == 8 ? 2 * q * 0x0011u + (2 * q + 1) * 0x1100u : 0x1111u * q;
        mine.among = 2 * SHAPE::BITS * q;
        mine.scales =
            SHAPE::STAGE_BYTES - SHAPE::SCALE_BYTES + scaled / 128 * 1024 + scaled % 32 * 16 + scaled % 128 / 32 * 4;
        return mine;
    }
    __device__ __forceinline__ void multiply(int group) const {
        uint32_t step = 0, rounds = 0;
        for (int32_t number = 0;; number++) {
            const tegroup_impl_sm90_item *item = this->take(number);
            if (item->group < 0) break;
            if (item->lines > line_of(group)) work(group, *item, step, &rounds);
            else this->see_off(group, step, this->steps_of(*item));
            step += this->steps_of(*item);
            this->give(number);
        }
    }
    __device__ __forceinline__ void work(int group, const tegroup_impl_sm90_item &item, uint32_t step,
                                         uint32_t *rounds) const {
        typedef typename SHAPE::template results<false> results;
        const share mine = share_of(group, item.i0);
        sums sum;
        if (SHAPE::BITS == 4 && call.weights.e4m3) add_up_fit<SHAPE::BITS == 4>(item, step, mine, sum);
        else add_up_fit<false>(item, step, mine, sum);
        if (call.has_bias)
            this->template store_halves<true>(group, item, false, *rounds, sum, tegroup_impl_as_is());
        else this->template store_halves<false>(group, item, false, *rounds, sum, tegroup_impl_as_is());
        *rounds += results::COUNT / results::USED;
    }
    /* Sums for a fitting tile, which is as wide as fitting(I) or less. E4M3: what scales are. */
    template <bool E4M3, int I = 0>
    __device__ __forceinline__ void add_up_fit(const tegroup_impl_sm90_item &item, uint32_t step, const share &mine,
                                               sums &sum) const {
        if (I == SHAPE::SMALLER || item.cols == SHAPE::fitting(I))
            add_up<SHAPE::fitting(I), E4M3>(item, step, mine, sum);
        else add_up_fit<E4M3, I == SHAPE::SMALLER ? I : I + 1>(item, step, mine, sum);
    }
    /* Sums for a fitting tile of WIDTH columns. Half a stage is decoded while the other half is multiplied. */
    template <int WIDTH, bool E4M3>
    __device__ __forceinline__ void add_up(const tegroup_impl_sm90_item &item, uint32_t step, const share &mine,
                                           sums &sum) const {
        float(&part)[WIDTH / 2] = reinterpret_cast<float(&)[WIDTH / 2]>(sum[0]);
        const int32_t whole = item.k;
        half_stage first, second;
        scales of_lines;
        place in = {step % STAGES, step / STAGES & 1};
        decode<0, E4M3>(in, 0, mine, of_lines, first);
#pragma unroll 1
        for (int32_t k = 0; k < whole;) {
            const place now = in;
            add<WIDTH, 0>(now, k > 0, first, part);
            if (SHAPE::K == 64 || k + 64 < whole) { /* Behind the last column scales may be anything. */
                decode<1, E4M3>(now, k, mine, of_lines, second);
                tegroup_impl_wgmma_wait<0>();
                add<WIDTH, 1>(now, true, second, part);
            }
            k += SHAPE::K;
            in.step_on();
            if (k < whole) decode<0, E4M3>(in, k, mine, of_lines, first);
            tegroup_impl_wgmma_wait<0>();
            tegroup_impl_wgmma_keep(part);
            tegroup_impl_barrier_arrive(this->at(&this->rest->empty[now.slot]));
        }
    }
    /* Begins to multiply half a stage. */
    template <int WIDTH, int HALF>
    __device__ __forceinline__ void add(place in, bool adds, const half_stage &held, float (&part)[WIDTH / 2]) const {
        const uint64_t rows = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, 0) + (in.slot * SHAPE::STAGE_BYTES >> 4);
        tegroup_impl_wgmma_keep(part);
        tegroup_impl_wgmma_begin();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            constexpr int BEFORE = HALF * EACH;
            tegroup_impl_wgmma_held<WIDTH>::multiply(
                part, held[i], rows + ((BEFORE + i) / 4 * (SHAPE::COLS * 128) + (BEFORE + i) % 4 * 32 >> 4),
                adds || i > 0);
        }
        tegroup_impl_wgmma_commit();
        tegroup_impl_wgmma_keep(part);
    }

    /* ---- codes to BF16 ---- */

    static __device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) {
        return tegroup_impl_gpu_mul2(a, b, true);
    }

    /* Decodes this thread's share of half a stage, whose first column is `k`, once it is there. */
    template <int HALF, bool E4M3>
    __device__ __forceinline__ void decode(place in, int32_t k, const share &mine, scales &of_lines,
                                           half_stage &held) const {
        const uint32_t stage = ring + in.slot * SHAPE::STAGE_BYTES, codes = stage + mine.codes;
        if (HALF == 0) tegroup_impl_barrier_wait(this->at(&this->rest->full[in.slot]), in.round);
        /* The half's first scale, of four of a line that lie together. */
        const int first = HALF * EACH / (E4M3 ? 1 : 2) + (SHAPE::K == 64 && !E4M3 ? k / 32 % 4 : 0);
        bool has_nan = false; /* codes of four bits have none */
        if (SHAPE::INTERLEAVED) has_nan = decode_interleaved<HALF>(codes, mine, held);
        else if (SHAPE::BITS == 8) has_nan = decode_eights<HALF>(codes, mine, held);
        else decode_fours<HALF>(codes, mine, held);
        if (HALF == 0 || first == 4)
#pragma unroll
            for (int line = 0; line < 2; line++) {
                const uint32_t four = tegroup_impl_load_word(stage + mine.scales
                                                             + (uint32_t)(first / 4 * 512 + line * 128)),
                               high = four & 0x80808080u;
                of_lines.rest[line] =
                    E4M3 ? (four & 0x7f7f7f7fu) + 0x01010101u & 0x80808080u : four & (high - (high >> 7));
                of_lines.four[line] = E4M3 ? four : four ^ of_lines.rest[line];
            }
        if (E4M3) scale_by_e4m3(of_lines, first % 4, held);
        else scale_by_e8m0(of_lines, first % 4, held);
        if (has_nan && SHAPE::INTERLEAVED) restore_interleaved_nans<HALF>(codes, mine, held);
        else if (has_nan) restore_nans<HALF>(codes, mine, held);
    }
    /* The lower half of two, twice, and the upper one: a product reads them without an instruction for that. */
    static __device__ __forceinline__ uint32_t lower(uint32_t two) {
        uint32_t twice;
        asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low};}" : "=r"(twice) : "r"(two));
        return twice;
    }
    static __device__ __forceinline__ uint32_t upper(uint32_t two) {
        uint32_t twice;
        asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high};}" : "=r"(twice) : "r"(two));
        return twice;
    }
    /* Chunk i of the upper line, or of the lower one. */
    static __device__ __forceinline__ uint4 load_chunk(uint32_t from, const share &mine, int i, int line) {
        return tegroup_impl_load_chunk(from + (uint32_t)(8 * line * SHAPE::LINE) + ((uint32_t)i * 16 ^ mine.swizzle));
    }
    /* Codes of E4M3, NaN as 480. Returns whether there is one. */
    template <int HALF>
    static __device__ __forceinline__ bool decode_eights(uint32_t from, const share &mine, half_stage &held) {
        uint32_t largest = 0;
#pragma unroll
        for (int i = 0; i < 2 * EACH; i++) {
            const uint4 chunk = load_chunk(from, mine, HALF * EACH + i / 2, i % 2);
            const uint32_t low = __byte_perm(chunk.x, chunk.y, mine.pick),
                           high = __byte_perm(chunk.z, chunk.w, mine.pick);
            largest = __vmaxu2(largest, __vmaxu2(low & 0x007f007fu, high & 0x007f007fu));
            held[i / 2][i % 2] = tegroup_impl_gpu_two_of_e4m3(low);
            held[i / 2][2 + i % 2] = tegroup_impl_gpu_two_of_e4m3(high);
        }
        return largest >> 16 == 0x7fu || (largest & 0xffffu) == 0x7fu;
    }
    template <int HALF>
    static __device__ __forceinline__ void restore_nans(uint32_t from, const share &mine, half_stage &held) {
#pragma unroll
        for (int i = 0; i < 2 * EACH; i++) {
            const uint4 chunk = load_chunk(from, mine, HALF * EACH + i / 2, i % 2);
            held[i / 2][i % 2] |= nan_of(__byte_perm(chunk.x, chunk.y, mine.pick));
            held[i / 2][2 + i % 2] |= nan_of(__byte_perm(chunk.z, chunk.w, mine.pick));
        }
    }
    /* What makes NaN of those of two codes that are. */
    static __device__ __forceinline__ uint32_t nan_of(uint32_t two) {
        const uint32_t flags = tegroup_impl_gpu_nans_of_e4m3(two);
        return flags - (flags >> 15);
    }
    template <int HALF>
    static __device__ __forceinline__ void decode_fours(uint32_t from, const share &mine, half_stage &held) {
        uint4 chunks[EACH]; /* of a line and 32 of k */
#pragma unroll
        for (int i = 0; i < EACH; i++) chunks[i] = load_chunk(from, mine, (HALF * EACH + i) / 2, i % 2);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int at = i / 2 * 2, line = i % 2;
            held[at][line] = tegroup_impl_gpu_two_of_e2m1(__byte_perm(chunks[i].x, 0, mine.pick));
            held[at][2 + line] = tegroup_impl_gpu_two_of_e2m1(__byte_perm(chunks[i].y, 0, mine.pick));
            held[at + 1][line] = tegroup_impl_gpu_two_of_e2m1(__byte_perm(chunks[i].z, 0, mine.pick));
            held[at + 1][2 + line] = tegroup_impl_gpu_two_of_e2m1(__byte_perm(chunks[i].w, 0, mine.pick));
        }
    }
    /* Loads a lane's interleaved codes of half a stage and of a line: of 32 of k a word, or of 8 bits two. */
    template <int HALF>
    static __device__ __forceinline__ void load_interleaved(uint32_t from, const share &mine, int line,
                                                            uint32_t (&words)[4]) {
        /* Where the half begins: its 64 of k in the line, or its 32 of k among a lane's codes. */
        constexpr uint32_t BLOCK = EACH == 4 ? 8 * SHAPE::BITS * HALF : 0, WITHIN = EACH == 4 ? 0 : SHAPE::BITS * HALF;
        const uint32_t at = from + (uint32_t)(8 * line * SHAPE::LINE)
                            + (BLOCK + mine.among / 16 * 16 ^ mine.swizzle) + mine.among % 16 + WITHIN;
        if (EACH * SHAPE::BITS == 32) {
            const uint4 chunk = tegroup_impl_load_chunk(at);
            words[0] = chunk.x, words[1] = chunk.y, words[2] = chunk.z, words[3] = chunk.w;
        } else if (EACH * SHAPE::BITS == 16) {
            uint32_t two[2];
            tegroup_impl_load_words(at, two);
            words[0] = two[0], words[1] = two[1];
        } else words[0] = tegroup_impl_load_word(at);
    }
    /* Decodes them; formats/code_order.h says where their bits are. NaN is 480; returns whether there is one. */
    template <int HALF>
    static __device__ __forceinline__ bool decode_interleaved(uint32_t from, const share &mine, half_stage &held) {
        constexpr uint32_t PAIR = SHAPE::BITS == 8 ? 0x87f087f0u : 0x81c081c0u;
        uint32_t nans = 0;
#pragma unroll
        for (int line = 0; line < 2; line++) {
            uint32_t words[4];
            load_interleaved<HALF>(from, mine, line, words);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (SHAPE::BITS == 8) {
                    held[i][line] = words[i] & PAIR;
                    held[i][2 + line] = (words[i] << 4 & 0x80f080f0u) | (words[i] >> 4 & 0x07000700u);
                    nans |= held[i][line] + 0x00100010u | held[i][2 + line] + 0x00100010u;
                } else {
                    const uint32_t word = words[i / 2]; /* whose fourth pair is in the upper byte of each half */
                    held[i][line] = i % 2 == 0 ? word & PAIR : word << 6 & PAIR;
                    held[i][2 + line] = i % 2 == 0 ? word << 3 & PAIR
                                                   : (__byte_perm(word, 0, 0x4341) & 0x006c006cu) * 0x00000421u & PAIR;
                }
            }
        }
        return SHAPE::BITS == 8 && (nans & 0x08000800u) != 0;
    }
    template <int HALF>
    static __device__ __forceinline__ void restore_interleaved_nans(uint32_t from, const share &mine,
                                                                    half_stage &held) {
        half_stage codes;
        decode_interleaved<HALF>(from, mine, codes);
#pragma unroll
        for (int i = 0; i < EACH * 4; i++) {
            const uint32_t flags = (codes[i / 4][i % 4] + 0x00100010u & 0x08000800u) << 4;
            held[i / 4][i % 4] |= flags - (flags >> 15);
        }
    }
    /* Scales of E8M0 of two lines, one for each 32 of k, times what makes good for the exponents of the codes. What is
     * too large for one factor is left for another. */
    static __device__ __forceinline__ void scale_by_e8m0(const scales &of_lines, int first, half_stage &held) {
        constexpr uint32_t POWER = SHAPE::BITS == 8 ? 120 : 126;
        uint32_t factors[2]; /* of a line: of the first 32 of k, and of the second if EACH is 4 */
#pragma unroll
        for (int line = 0; line < 2; line++)
            factors[line] =
                __byte_perm(of_lines.four[line], 0, (uint32_t)(0x4040 + first + (first + 1 & 3) * 0x0100)) * 0x80u
                + POWER * 0x00800080u;
#pragma unroll
        for (int i = 0; i < EACH * 4; i++)
            held[i / 4][i % 4] = mul2(held[i / 4][i % 4], i < 8 ? lower(factors[i % 2]) : upper(factors[i % 2]));
        if (of_lines.rest[0] | of_lines.rest[1])
#pragma unroll
            for (int i = 0; i < EACH * 4; i++) {
                const uint32_t left = of_lines.rest[i % 2] >> (first + i / 8) * 8 & 0xffu;
                held[i / 4][i % 4] =
                    mul2(held[i / 4][i % 4], left == 127 ? 0x7fff7fffu : left * 0x00800080u + 127 * 0x00800080u);
            }
    }
    /* Scales of E4M3 of two lines, one for each 16 of k. Two products, since codes times 2^126 are exact. */
    static __device__ __forceinline__ void scale_by_e4m3(const scales &of_lines, int first, half_stage &held) {
        const uint32_t of_codes = tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F4E2M1, true).power,
                       of_scales = tegroup_impl_gpu_decoding_of(TEGROUP_DTYPE_F8E4M3, true).power;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const uint32_t two = __byte_perm(of_lines.four[0], of_lines.four[1],
                                             (uint32_t)((first + i) * 0x0011 + (4 + first + i) * 0x1100)),
                           scales = mul2(tegroup_impl_gpu_two_of_e4m3(two), of_scales);
#pragma unroll
            for (int r = 0; r < 4; r++)
                held[i][r] = mul2(mul2(held[i][r], of_codes), r % 2 ? upper(scales) : lower(scales));
        }
        if (of_lines.rest[0] | of_lines.rest[1])
#pragma unroll
            for (int i = 0; i < EACH * 4; i++)
                if (of_lines.rest[i % 2] >> (first + i / 4) * 8 & 0x80u) held[i / 4][i % 4] = 0x7fff7fffu;
    }
};
#endif

template <typename SHAPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_HOPPER ? SHAPE::THREADS : 32, 1)
    tegroup_impl_sm90_weights_kernel(const __grid_constant__ tegroup_impl_sm90_call call) {
#if TEGROUP_IMPL_HOPPER
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    const tegroup_impl_sm90_weights_block<SHAPE> block(call, tegroup_impl_memory);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* which the compiler sees to be uniform */
    block.init();
    if (warp < 4) {
        tegroup_impl_registers_give<SHAPE::FEWER>();
        if (warp == 0) block.schedule();
        if (warp == 1 && (threadIdx.x & 31) == 0) block.load();
        if (warp > 1 && (threadIdx.x & 31) == 0) block.store(warp - 2);
    } else {
        tegroup_impl_registers_take<SHAPE::MORE>();
        block.multiply(warp / 4 - 1);
    }
#else
    __trap();
#endif
}

/* ---- the compiled kernels ---- */

#if TEGROUP_IMPL_SM90_HOLDS_WEIGHTS
#define TEGROUP_IMPL_SM90_WEIGHTS_KERNEL(...) (const void *)tegroup_impl_sm90_weights_kernel<__VA_ARGS__>
#else
#define TEGROUP_IMPL_SM90_WEIGHTS_KERNEL(...) (const void *)NULL
#endif

typedef struct tegroup_impl_sm90_weights_code {
    const void *kernel;
    int32_t threads, shared_bytes;
} tegroup_impl_sm90_weights_code;

static inline const tegroup_impl_sm90_weights_code *tegroup_impl_sm90_weights_code_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_WEIGHTS_SHAPE(bits, order, rows, k, multipliers)                                             \
    tegroup_impl_sm90_weights_shape<bits, TEGROUP_CODES_##order == TEGROUP_CODES_INTERLEAVED, rows, k, multipliers>
#define TEGROUP_IMPL_SM90_WEIGHTS_CODE(name, ...)                                                                      \
    {TEGROUP_IMPL_SM90_WEIGHTS_KERNEL(TEGROUP_IMPL_SM90_WEIGHTS_SHAPE(__VA_ARGS__)),                                   \
     TEGROUP_IMPL_SM90_WEIGHTS_SHAPE(__VA_ARGS__)::THREADS,                                                            \
     TEGROUP_IMPL_SM90_WEIGHTS_SHAPE(__VA_ARGS__)::SHARED_BYTES},
    static const tegroup_impl_sm90_weights_code code[TEGROUP_IMPL_SM90_WEIGHTS_COUNT] = {
        TEGROUP_IMPL_SM90_WEIGHTS_KERNELS(TEGROUP_IMPL_SM90_WEIGHTS_CODE)};
#undef TEGROUP_IMPL_SM90_WEIGHTS_CODE
#undef TEGROUP_IMPL_SM90_WEIGHTS_SHAPE
    return &code[kernel - TEGROUP_IMPL_SM90_KERNEL_COUNT];
}

static inline tegroup_status tegroup_impl_sm90_weights_choose(tegroup_plan *plan, int32_t kernel,
                                                              tegroup_error *error) {
    const tegroup_impl_sm90_weights_row *row = tegroup_impl_sm90_weights_row_of(kernel);
    const tegroup_impl_sm90_weights_code *code = tegroup_impl_sm90_weights_code_of(kernel);
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
    plan->tile_m = row->rows;
    plan->tile_n = row->cols;
    plan->tile_k = row->k;
    return tegroup_impl_cuda_status(
        tegroup_impl_planned(plan, code->kernel, code->threads, code->shared_bytes, TEGROUP_IMPL_SM90_MOST_BLOCKS),
        "plan", "the kernel's attributes must be readable", error);
}

/* ==== [62] Hopper GEMM of FP8: the kernel (src/cuda/sm90_fp8.h) ==== */

/* The kernel of sm90_tiles.h for operands of FP8, which wgmma takes contiguous along k alone. A forward product has
 * them so; a dgrad reads the transposed copy of the weights, and a weight gradient those of both operands, so that all
 * three are D = A B^T of rows along k.
 *
 * wgmma keeps about 14 bits of an FP8 sum. So a sum goes over the 128 of k of a stage and no further: then it is
 * multiplied by the scales of its row and its column, whose product is rounded to FP32, and added to the result's,
 * sum = fma(partial, scale, sum), in the order of k and the same in every tile. Where scales are for all of k, partial
 * sums are added as they are, and the sum is multiplied by scale at the end. The two warpgroups share a tile of many
 * rows, and take the tensor cores in turns: while one promotes its sums, the other multiplies. Of few rows each has a
 * tile of its own, and two partial sums, of which one is promoted while the other is multiplied.
 *
 * FAST kernels leave sums whose scales are for all of k in wgmma's accumulators, as kernels of BF16 do. */

/* How scales are applied. */
enum tegroup_impl_sm90_promotion {
    TEGROUP_IMPL_SM90_AT_END,    /* they are for all of k */
    TEGROUP_IMPL_SM90_SQUARE,    /* B's are for 128 columns or for all */
    TEGROUP_IMPL_SM90_LINES_BOTH /* any */
};

/* Parameters of a launch besides the call, whose a and b are the copies that are read, those of a dgrad as a forward
 * product's. */
typedef struct tegroup_impl_sm90_fp8 {
    tegroup_scaling_facts facts[2];
    int32_t promotion, a_e5m2, b_e5m2;
    /* Forward products, whose blocks find many groups' scales: those of one group, or where A is ragged, of one block
     * of rows; the logarithm of such a block (-1: one scale is for a group), and what blocks are padded to. */
    int64_t each[2];
    int32_t shift, pad;
    /* A weight gradient: [groups][2], where the scales of A and of B are. */
    const tegroup_impl_sm90_scales *of_groups;
} tegroup_impl_sm90_fp8;

template <int OP_, int LINES_, int COLS_, bool TURNS_, int SLABS_, bool NARROWS_, bool FAST_>
struct tegroup_impl_sm90_fp8_shape : tegroup_impl_sm90_shape<OP_, LINES_, COLS_, TURNS_, SLABS_> {
    typedef tegroup_impl_sm90_shape<OP_, LINES_, COLS_, TURNS_, SLABS_> base;
    static constexpr int K = TEGROUP_IMPL_SM90_FP8_K;
    static constexpr bool FAST = FAST_, OF_GROUPS = OP_ == TEGROUP_OP_WGRAD, NARROWS = NARROWS_,
                          BALANCES = NARROWS || OF_GROUPS, TAPERS = false, A_LINES = false, B_LINES = false,
                          PACES = false; /* it does not pay: docs/lab/fp8.md */
    static_assert(!NARROWS || (base::NARROWS && !OF_GROUPS), "tiles of 192 columns of a forward product");
    static constexpr int NARROW = NARROWS ? base::NARROW : COLS_;
    static __host__ __device__ __forceinline__ int32_t narrow(int32_t cols, int32_t k) {
        return NARROWS ? base::narrow(cols, k) : 0;
    }
    static constexpr int MORE_BYTES = 6656, OTHER_BYTES = base::OTHER_BYTES + MORE_BYTES;
    static constexpr int STAGES = (TEGROUP_IMPL_SM90_SHARED - OTHER_BYTES) / base::STAGE_BYTES,
                         AT_ONCE = STAGES >= 6 ? 2 : 1, SHARED_BYTES = STAGES * base::STAGE_BYTES + OTHER_BYTES;
    static_assert(STAGES >= TEGROUP_IMPL_SM90_RING && base::PARTS == 1,
                  "a ring that hides the way from L2; registers for sums");
};

/* What this kernel has in shared memory besides. */
template <typename SHAPE> struct tegroup_impl_sm90_fp8_more {
    tegroup_impl_sm90_scales scales[TEGROUP_IMPL_SM90_ITEMS][2]; /* of each scheduled tile's A and B, */
    uint64_t scaled[TEGROUP_IMPL_SM90_ITEMS];                    /* and barriers that say that they are there */
    /* Of each warpgroup: the scales of its tile's columns, then of its lines, of a step and of the two that come. */
    enum { SLOTS = 3, COUNT = SHAPE::COLS + 64 };
    float factors[2][SLOTS][COUNT];
};

#if TEGROUP_IMPL_HOPPER
template <bool FAST> struct tegroup_impl_sm90_fast {};

template <typename SHAPE> struct tegroup_impl_sm90_fp8_block : tegroup_impl_sm90_multiplier<true, SHAPE> {
    typedef tegroup_impl_sm90_multiplier<true, SHAPE> base;
    typedef typename base::sums sums;
    using base::at;
    using base::call;
    using base::give;
    using base::ITEMS;
    using base::lane;
    using base::line_of;
    using base::rest;
    using base::ring;
    using base::STAGES;
    using base::take;
    static constexpr int COLS = SHAPE::COLS;
    template <int PROMOTION> struct factors;
    const tegroup_impl_sm90_fp8 &fp8;
    tegroup_impl_sm90_fp8_more<SHAPE> *more;

    __device__ __forceinline__ tegroup_impl_sm90_fp8_block(const tegroup_impl_sm90_call &c,
                                                           const tegroup_impl_sm90_fp8 &f, unsigned char *memory)
        : base(c, memory), fp8(f) {
        static_assert(sizeof *more <= SHAPE::MORE_BYTES, "scales");
        more = (tegroup_impl_sm90_fp8_more<SHAPE> *)((unsigned char *)rest + TEGROUP_IMPL_SM90_REST);
    }

    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 32)
            for (int i = 0; i < ITEMS; i++)
                tegroup_impl_barrier_init(at(&more->scaled[i]), 2); /* lanes, of which racecheck wants each to say so */
        base::init();
    }

    /* ---- scheduler warp ---- */

    /* As the base's, with scales, which are found after a tile, so that its operands are loaded meanwhile. Those of a
     * weight gradient are looked up; A's others are counted, as their tiles come in the order of groups. */
    __device__ __forceinline__ void schedule() const {
        tegroup_impl_sm90_walk<SHAPE> walk(call, this->prepared());
        tegroup_impl_sm90_scales scales; /* of this lane's operand: lane 0 has A, lane 1 B */
        int64_t before = 0;              /* scales that A's groups before `group` take */
        int32_t group = -1;
        bool there = true;
        for (int32_t number = 0; there; number++) {
            tegroup_impl_sm90_item item;
            item.group = -1;
            there = walk.next(&item);
            this->publish(number, item);
            if (there && item.group != group) {
                if (!SHAPE::OF_GROUPS) before += count_scales((int32_t)tegroup_impl_max(0, group), item.group);
                group = item.group;
                if (lane() < 2)
                    scales = SHAPE::OF_GROUPS
                                 ? fp8.of_groups[2 * group + lane()]
                                 : tegroup_impl_sm90_scales_of(lane() ? &call.call.desc.b : &call.call.desc.a,
                                                               &fp8.facts[lane()], &call.call.views[lane()], group, 0,
                                                               lane() ? group * fp8.each[TEGROUP_IMPL_B] : before);
            }
            if (lane() < 2) {
                more->scales[number % ITEMS][lane()] = scales;
                tegroup_impl_barrier_arrive(at(&more->scaled[number % ITEMS]));
            }
            __syncwarp();
            if (SHAPE::TURNS && there && item.k > 0) fetch(item, more->scales[number % ITEMS][TEGROUP_IMPL_B]);
        }
    }
    /* Brings B's scales of a tile to L2. While weights of few rows are read as fast as memory gives them, a scale that
     * is not there would be waited for behind all of them. */
    __device__ __forceinline__ void fetch(const tegroup_impl_sm90_item &item,
                                          const tegroup_impl_sm90_scales &scales) const {
        const int32_t first = item.j0 + (scales_steps() ? 0 : lane() * (COLS / 32)),
                      steps = scales_steps() ? (int32_t)this->steps_of(item) : 0;
        const float *const from = first_of(scales, first, end_of_columns());
        if (!scales_steps()) tegroup_impl_prefetch(from);
#pragma unroll 1
        for (int32_t s = lane(); s < steps; s += 32) tegroup_impl_prefetch(from + s * scales.k_stride);
    }
    /* Whether sums are scaled a step at a time. */
    __device__ __forceinline__ bool scales_steps() const {
        return !SHAPE::FAST && fp8.promotion != TEGROUP_IMPL_SM90_AT_END;
    }
    /* The scales of A's groups from `first` up to `end`: tegroup_impl_scale_grid_alone in few steps. */
    __device__ __forceinline__ int64_t count_scales(int32_t first, int32_t end) const {
        const tegroup_tensor &a = call.call.desc.a;
        const tegroup_snapshot_view &view = call.call.views[TEGROUP_IMPL_A];
        int64_t blocks = 0;
        if (!view.rows || fp8.shift < 0) return (end - first) * fp8.each[TEGROUP_IMPL_A];
#pragma unroll 1
        for (int32_t g = first + lane(); g < end; g += 32) {
            const int32_t rows = (int32_t)tegroup_impl_group_sides(&a, &view, g).rows,
                          whole = (rows >> fp8.shift) + ((rows & ((1 << fp8.shift) - 1)) > 0);
            blocks += (whole + fp8.pad - 1) & -fp8.pad;
        }
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) blocks += __shfl_xor_sync(0xffffffffu, blocks, apart);
        return blocks * fp8.each[TEGROUP_IMPL_A];
    }

    /* ---- multiplying warpgroups ---- */

    /* As the base's. */
    __device__ __forceinline__ void multiply(int group) const {
        uint32_t step = 0, rounds = 0;
        int32_t number = 0;
        if (SHAPE::TURNS && group == 1) this->pass(&number, &step);
        for (;;) {
            const tegroup_impl_sm90_item *item = take(number);
            if (item->group < 0) break;
            const bool works = item->lines > line_of(group);
            if (works) tegroup_impl_barrier_wait(at(&more->scaled[number % ITEMS]), number / ITEMS & 1);
            /* A sum without terms has no scales: their address may be NULL. */
            if (works && item->k > 0 && !scales_steps()) keep_columns(group, *item, more->scales[number % ITEMS][1]);
            if (works) {
                work(group, number, *item, more->scales[number % ITEMS], step, &rounds);
            } else {
                await(group, number);
                this->see_off(group, step, this->steps_of(*item));
            }
            step += this->steps_of(*item);
            give(number);
            number++;
            if (SHAPE::TURNS) this->pass(&number, &step);
        }
    }
    /* Waits for the warpgroup's turn: scales of the first steps, or of all, are asked for before. */
    __device__ __forceinline__ void await(int group, int32_t number) const {
        if (SHAPE::TURNS) tegroup_impl_barrier_wait(at(&rest->turn[group]), (number / 2 & 1) ^ (group == 0));
    }
    __device__ __forceinline__ void work(int group, int32_t number, const tegroup_impl_sm90_item &item,
                                         const tegroup_impl_sm90_scales *scales, uint32_t step,
                                         uint32_t *rounds) const {
        const bool adds = item.beta != 0, terms = adds || call.has_bias;
        const uint32_t steps = this->steps_of(item);
        sums sum;
        if (steps == 0) {
            await(group, number);
            this->nothing(group, adds, sum);
        } else add_up_all(group, number, item, scales, step, steps, sum, tegroup_impl_sm90_fast<SHAPE::FAST>());
        if (this->is_wide() && terms)
            this->template store_wide<true>(group, item, adds, *rounds, sum, tegroup_impl_as_is());
        else if (this->is_wide())
            this->template store_wide<false>(group, item, false, *rounds, sum, tegroup_impl_as_is());
        else if (terms) this->template store_halves<true>(group, item, adds, *rounds, sum, tegroup_impl_as_is());
        else this->template store_halves<false>(group, item, false, *rounds, sum, tegroup_impl_as_is());
        *rounds += this->is_wide() ? SHAPE::template results<true>::COUNT / SHAPE::template results<true>::USED
                                   : SHAPE::template results<false>::COUNT / SHAPE::template results<false>::USED;
    }
    /* Sums that wgmma keeps. */
    __device__ __forceinline__ void add_up_all(int group, int32_t number, const tegroup_impl_sm90_item &item,
                                               const tegroup_impl_sm90_scales *scales, uint32_t first, uint32_t steps,
                                               sums &sum, tegroup_impl_sm90_fast<true>) const {
        await(group, number);
        if (fp8.a_e5m2 && fp8.b_e5m2) add_up_eights<true, true>(group, item, first, steps, sum);
        else if (fp8.a_e5m2) add_up_eights<true, false>(group, item, first, steps, sum);
        else if (fp8.b_e5m2) add_up_eights<false, true>(group, item, first, steps, sum);
        else add_up_eights<false, false>(group, item, first, steps, sum);
        scale(group, item, scales[0], sum);
    }
    template <bool A_E5M2, bool B_E5M2>
    __device__ __forceinline__ void add_up_eights(int group, const tegroup_impl_sm90_item &item, uint32_t first,
                                                  uint32_t steps, sums &sum) const {
        typedef tegroup_impl_wgmma_eights<A_E5M2, B_E5M2> eights;
        if (SHAPE::TURNS) base::template add_up<COLS, eights>(group, first, steps, sum);
        else if (this->narrow(item)) add_up_kept<SHAPE::NARROW, A_E5M2, B_E5M2>(group, first, steps, sum[0]);
        else add_up_kept<COLS, A_E5M2, B_E5M2>(group, first, steps, sum[0]);
    }
    /* Two warpgroups that share a tile each wait for a stage's products while the other's are made. */
    template <int WIDTH, bool A_E5M2, bool B_E5M2>
    __device__ __forceinline__ void add_up_kept(int group, uint32_t first, uint32_t steps,
                                                float (&sum)[COLS / 2]) const {
        const uint64_t a = tegroup_impl_wgmma_tile(ring + line_of(group) * 128, 0),
                       b = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, 0);
        float(&part)[WIDTH / 2] = reinterpret_cast<float(&)[WIDTH / 2]>(sum);
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) part[i] = 0;
#pragma unroll 1
        for (uint32_t step = first; step < first + steps; step++) {
            const uint64_t offset = (uint64_t)(step % STAGES * (SHAPE::STAGE_BYTES >> 4));
            this->wait_full(step);
            multiply_stage_of<WIDTH, A_E5M2, B_E5M2, true>(a + offset, b + offset, part);
            tegroup_impl_wgmma_wait<0>();
            tegroup_impl_wgmma_keep(part);
            this->release(step);
        }
    }
    /* Sums that are promoted. */
    __device__ __forceinline__ void add_up_all(int group, int32_t number, const tegroup_impl_sm90_item &item,
                                               const tegroup_impl_sm90_scales *scales, uint32_t first, uint32_t steps,
                                               sums &sum, tegroup_impl_sm90_fast<false>) const {
        if (fp8.promotion == TEGROUP_IMPL_SM90_AT_END) {
            add_up_cols<TEGROUP_IMPL_SM90_AT_END>(group, number, item, scales, first, steps, sum[0]);
            scale(group, item, scales[0], sum);
        } else if (fp8.promotion == TEGROUP_IMPL_SM90_SQUARE)
            add_up_cols<TEGROUP_IMPL_SM90_SQUARE>(group, number, item, scales, first, steps, sum[0]);
        else add_up_cols<TEGROUP_IMPL_SM90_LINES_BOTH>(group, number, item, scales, first, steps, sum[0]);
    }
    /* Those of a wide tile, or of a narrow one. */
    template <int PROMOTION>
    __device__ __forceinline__ void add_up_cols(int group, int32_t number, const tegroup_impl_sm90_item &item,
                                                const tegroup_impl_sm90_scales *scales, uint32_t first, uint32_t steps,
                                                float (&sum)[COLS / 2]) const {
        if (SHAPE::TURNS) add_up_two<PROMOTION>(group, number, item, scales, first, steps, sum);
        else if (this->narrow(item)) add_up<PROMOTION, SHAPE::NARROW>(group, item, scales, first, steps, sum);
        else add_up<PROMOTION, COLS>(group, item, scales, first, steps, sum);
    }
    template <int PROMOTION, int WIDTH>
    __device__ __forceinline__ void add_up(int group, const tegroup_impl_sm90_item &item,
                                           const tegroup_impl_sm90_scales *scales, uint32_t first, uint32_t steps,
                                           float (&sum)[COLS / 2]) const {
        const uint64_t a = tegroup_impl_wgmma_tile(ring + line_of(group) * 128, 0),
                       b = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, 0);
        float part[WIDTH / 2];
        factors<PROMOTION> by(*this, group, item, scales, first, first + steps);
#pragma unroll
        for (int i = 0; i < COLS / 2; i++) sum[i] = 0;
#pragma unroll 1
        for (uint32_t step = first; step < first + steps; step++) {
            multiply_stage<WIDTH>(step, a, b, part);
            by.template take<0>(step);
            tegroup_impl_wgmma_wait<0>();
            tegroup_impl_wgmma_keep(part);
            this->release(step);
            if (step + 1 == first + steps) this->yield(group);
            by.template promote<WIDTH>(step, part, sum);
        }
    }
    /* Where there are registers for two partial sums, one is multiplied while the other is promoted. (ptxas serializes
     * wgmma where the loop cannot be left before each multiplication, or a wait depends on whether there was one.) */
    template <int PROMOTION>
    __device__ __forceinline__ void add_up_two(int group, int32_t number, const tegroup_impl_sm90_item &item,
                                               const tegroup_impl_sm90_scales *scales, uint32_t first, uint32_t steps,
                                               float (&sum)[COLS / 2]) const {
        const uint64_t a = tegroup_impl_wgmma_tile(ring + line_of(group) * 128, 0),
                       b = tegroup_impl_wgmma_tile(ring + SHAPE::A_BYTES, 0);
        const uint32_t last = first + steps - 1;
        float even[COLS / 2], odd[COLS / 2];
        factors<PROMOTION> by(*this, group, item, scales, first, first + steps);
#pragma unroll
        for (int i = 0; i < COLS / 2; i++) sum[i] = 0;
        await(group, number);
        multiply_stage<COLS>(first, a, b, even);
#pragma unroll 1
        for (uint32_t step = first;; step += 2) {
            if (step == last) {
                promote_last<0>(group, step, by, even, sum);
                break;
            }
            multiply_stage<COLS>(step + 1, a, b, odd);
            promote<0>(step, by, even, sum);
            if (step + 1 == last) {
                promote_last<1>(group, step + 1, by, odd, sum);
                break;
            }
            multiply_stage<COLS>(step + 2, a, b, even);
            promote<1>(step + 1, by, odd, sum);
        }
    }
    /* Promotes the sums of a step while the next one is multiplied. */
    template <int SLOT, int PROMOTION>
    __device__ __forceinline__ void promote(uint32_t step, factors<PROMOTION> &by, float (&part)[COLS / 2],
                                            float (&sum)[COLS / 2]) const {
        by.template take<SLOT>(step);
        tegroup_impl_wgmma_wait<1>();
        tegroup_impl_wgmma_keep(part);
        this->release(step);
        by.template promote<COLS>(step, part, sum);
    }
    template <int SLOT, int PROMOTION>
    __device__ __forceinline__ void promote_last(int group, uint32_t step, factors<PROMOTION> &by,
                                                 float (&part)[COLS / 2], float (&sum)[COLS / 2]) const {
        by.template take<SLOT>(step);
        tegroup_impl_wgmma_wait<0>();
        tegroup_impl_wgmma_keep(part);
        this->release(step);
        this->yield(group);
        by.template promote<COLS>(step, part, sum);
    }
    /* Multiplies a stage into the partial sums. */
    template <int WIDTH>
    __device__ __forceinline__ void multiply_stage(uint32_t step, uint64_t a, uint64_t b,
                                                   float (&part)[WIDTH / 2]) const {
        const uint64_t offset = (uint64_t)(step % STAGES * (SHAPE::STAGE_BYTES >> 4));
        this->wait_full(step);
        if (fp8.a_e5m2 && fp8.b_e5m2) multiply_stage_of<WIDTH, true, true>(a + offset, b + offset, part);
        else if (fp8.a_e5m2) multiply_stage_of<WIDTH, true, false>(a + offset, b + offset, part);
        else if (fp8.b_e5m2) multiply_stage_of<WIDTH, false, true>(a + offset, b + offset, part);
        else multiply_stage_of<WIDTH, false, false>(a + offset, b + offset, part);
    }
    template <int WIDTH, bool A_E5M2, bool B_E5M2, bool ADDS = false>
    static __device__ __forceinline__ void multiply_stage_of(uint64_t a, uint64_t b, float (&part)[WIDTH / 2]) {
        tegroup_impl_wgmma_keep(part);
        tegroup_impl_wgmma_begin();
#pragma unroll
        for (int kk = 0; kk < SHAPE::K / 32; kk++)
            tegroup_impl_wgmma_fp8<WIDTH>::template multiply<A_E5M2, B_E5M2>(part, a + kk * (32 >> 4),
                                                                             b + kk * (32 >> 4), ADDS || kk > 0);
        tegroup_impl_wgmma_commit();
        tegroup_impl_wgmma_keep(part);
    }

    /* The tile's line that this thread has the upper sums of; the lower ones are eight lines on. */
    static __device__ __forceinline__ int line(int group) {
        return line_of(group) + tegroup_impl_thread() / 32 % 4 * 16 + lane() / 4;
    }
    /* Where the first scale is of line `l` of the tile or, if no such line exists, of the last. */
    static __device__ __forceinline__ const float *first_of(const tegroup_impl_sm90_scales &scales, int32_t l,
                                                            int32_t end) {
        return scales.at + ((int64_t)tegroup_impl_min(l, end - 1) >> scales.line_shift) * scales.line_stride;
    }
    __device__ __forceinline__ int32_t end_of_lines(const tegroup_impl_sm90_item &item) const {
        return item.i0 + item.lines;
    }
    __device__ __forceinline__ int32_t end_of_columns() const { return (int32_t)call.call.desc.d.shape.cols; }

    /* Scales that are for all of k: the columns' go to shared memory while the other warpgroup multiplies; all of the
     * warpgroup call it. */
    __device__ __forceinline__ void keep_columns(int group, const tegroup_impl_sm90_item &item,
                                                 const tegroup_impl_sm90_scales &scales) const {
        tegroup_impl_warpgroup_sync(1 + group); /* Others may still multiply the tile before by its own. */
        for (int col = tegroup_impl_thread() % 128; col < COLS; col += 128)
            more->factors[group][0][col] = *first_of(scales, item.j0 + col, end_of_columns());
    }
    /* Multiplies sums by scales, each in its register: a product in a register of its own leaves ptxas too few. */
    __device__ __forceinline__ void scale(int group, const tegroup_impl_sm90_item &item,
                                          const tegroup_impl_sm90_scales &scales, sums &sum) const {
        float lines[SHAPE::PARTS][2];
#pragma unroll
        for (int i = 0; i < SHAPE::PARTS * 2; i++)
            lines[i / 2][i % 2] = *first_of(scales, item.i0 + line(group) + i / 2 * 64 + i % 2 * 8, end_of_lines(item));
        tegroup_impl_warpgroup_sync(1 + group);
#pragma unroll
        for (int e = 0; e < COLS / 8; e++) {
            const float2 column = *(const float2 *)(more->factors[group][0] + e * 8 + lane() % 4 * 2);
#pragma unroll
            for (int i = 0; i < SHAPE::PARTS * 4; i++) {
                float &x = sum[i / 4][e * 4 + i % 4];
                asm volatile("mul.rn.f32 %0, %0, %1;"
                             : "+f"(x)
                             : "f"(tegroup_impl_gpu_mul(lines[i / 4][i / 2 % 2], i % 2 ? column.y : column.x)));
            }
        }
    }

    /* The scales of a step. Those of a thread's lines and of blocks of columns are in registers, loaded AHEAD steps
     * before; others, a number for each line and each column, are copied to shared memory two steps before: wgmma of a
     * step is often shorter than their way from memory. All of the warpgroup call each function. */
    template <int PROMOTION> struct factors {
        static constexpr bool SQUARE = PROMOTION == TEGROUP_IMPL_SM90_SQUARE,
                              BOTH = PROMOTION == TEGROUP_IMPL_SM90_LINES_BOTH;
        typedef tegroup_impl_sm90_fp8_more<SHAPE> shared;
        static constexpr int OF_B = (COLS + 127) / 128;    /* the blocks of 128 columns that a tile touches */
        static constexpr int AHEAD = SHAPE::TURNS ? 2 : 1; /* steps: many columns leave few registers */
        uint32_t end;                                      /* of the tile's steps */
        const float *a[2], *b[OF_B];                       /* SQUARE: the scales to load next, */
        int64_t a_stride, b_stride;
        float next_a[AHEAD][2], next_b[AHEAD][OF_B]; /* those of the steps to come, */
        float factor[2][OF_B];                       /* and their products of this one */
        bool middle;                                 /* The tile's second third is in its second block. */
        const float *copied[2]; /* BOTH: what this thread copies next, numbers `me` and me + 128 of a slot */
        int64_t stride[2];
        float (*slots)[shared::COUNT];
        int group;

        __device__ __forceinline__ factors(const tegroup_impl_sm90_fp8_block &block, int group_,
                                           const tegroup_impl_sm90_item &item, const tegroup_impl_sm90_scales *scales,
                                           uint32_t first, uint32_t end_)
            : end(end_), group(group_) {
            if (SQUARE) {
                a_stride = scales[0].k_stride;
                b_stride = scales[1].k_stride;
                middle = item.j0 % 128 != 0;
#pragma unroll
                for (int i = 0; i < 2; i++)
                    a[i] = first_of(scales[0], item.i0 + line(group) + 8 * i, block.end_of_lines(item));
#pragma unroll
                for (int i = 0; i < OF_B; i++)
                    b[i] = first_of(scales[1], (item.j0 & -128) + 128 * i, block.end_of_columns());
#pragma unroll
                for (int i = 0; i < AHEAD; i++)
                    if (first + i < end) load(i);
            }
            if (BOTH) {
                slots = block.more->factors[group];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int number = me() + 128 * i;
                    const bool column = number < COLS;
                    copied[i] = column ? first_of(scales[1], item.j0 + number, block.end_of_columns())
                                       : first_of(scales[0], item.i0 + line_of(group) + (number - COLS) % 64,
                                                  block.end_of_lines(item));
                    stride[i] = scales[column ? TEGROUP_IMPL_B : TEGROUP_IMPL_A].k_stride;
                }
                tegroup_impl_warpgroup_sync(1 + group); /* Others may still promote the last step of the tile before. */
                copy(first);
                copy(first + 1);
            }
        }
        static __device__ __forceinline__ int me() { return tegroup_impl_thread() % 128; }
        __device__ __forceinline__ void load(int to) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                next_a[to][i] = *a[i];
                a[i] += a_stride;
            }
#pragma unroll
            for (int i = 0; i < OF_B; i++) {
                next_b[to][i] = *b[i];
                b[i] += b_stride;
            }
        }
        /* Begins to copy the scales of a step, if the tile has it. */
        __device__ __forceinline__ void copy(uint32_t step) {
            const uint32_t to = tegroup_impl_shared(slots[step % shared::SLOTS] + me());
            if (step < end)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    if (me() + 128 * i < shared::COUNT)
                        tegroup_impl_cp_async_number(to + (uint32_t)(512 * i), copied[i]);
                    copied[i] += stride[i];
                }
            tegroup_impl_cp_commit();
        }
        /* SLOT: the step's number in the tile modulo AHEAD. (A register that is moved on would wait for its load.) */
        template <int SLOT> __device__ __forceinline__ void take(uint32_t step) {
            if (SQUARE) {
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int j = 0; j < OF_B; j++)
                        factor[i][j] = tegroup_impl_gpu_mul(next_a[SLOT][i], next_b[SLOT][j]);
                if (step + AHEAD < end) load(SLOT);
            }
            if (BOTH) {
                tegroup_impl_cp_wait<1>();
                tegroup_impl_warpgroup_sync(1 + group); /* All see the copies, and are done with the step before. */
                copy(step + 2);
            }
        }
        template <int WIDTH>
        __device__ __forceinline__ void promote(uint32_t step, const float (&part)[WIDTH / 2],
                                                float (&sum)[COLS / 2]) const {
            const float *const numbers = BOTH ? slots[step % shared::SLOTS] : NULL;
            const int of_line = COLS + line(group) - line_of(group);
            const float upper = BOTH ? numbers[of_line] : 0, lower = BOTH ? numbers[of_line + 8] : 0;
#pragma unroll
            for (int e = 0; e < WIDTH / 8; e++) {
                float2 column;
                if (BOTH) column = *(const float2 *)(numbers + e * 8 + lane() % 4 * 2);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float &to = sum[e * 4 + i];
                    const float x = part[e * 4 + i];
                    if (SQUARE) to = tegroup_impl_gpu_fma(x, of_third(i / 2, e / 8), to);
                    else if (BOTH)
                        to = tegroup_impl_gpu_fma(
                            x, tegroup_impl_gpu_mul(i / 2 ? lower : upper, i % 2 ? column.y : column.x), to);
                    else to = tegroup_impl_gpu_add(to, x);
                }
            }
        }
        /* SQUARE: the factor of the upper or the lower line in a third of a tile of 192 columns, a half of one of 128.
         */
        __device__ __forceinline__ float of_third(int lower, int third) const {
            if (OF_B == 1 || third == 0) return factor[lower][0];
            return third == 2 || middle ? factor[lower][OF_B - 1] : factor[lower][0];
        }
    };
};
#endif

template <typename SHAPE>
static __global__ void __launch_bounds__(TEGROUP_IMPL_HOPPER ? TEGROUP_IMPL_SM90_THREADS : 32, 1)
    tegroup_impl_sm90_fp8_kernel(const __grid_constant__ tegroup_impl_sm90_call call,
                                 const __grid_constant__ tegroup_impl_sm90_fp8 fp8) {
#if TEGROUP_IMPL_HOPPER
    extern __shared__ __align__(16) unsigned char tegroup_impl_memory[];
    const tegroup_impl_sm90_fp8_block<SHAPE> block(call, fp8, tegroup_impl_memory);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* which the compiler sees to be uniform */
    block.init();
    if (warp < 4) {
        tegroup_impl_registers_give<40>();
        if (warp == 0) block.schedule();
        if (warp == 1 && (threadIdx.x & 31) == 0) block.load();
        if (warp > 1 && (threadIdx.x & 31) == 0) block.store(warp - 2);
    } else {
        tegroup_impl_registers_take<232>();
        block.multiply(warp / 4 - 1);
    }
#else
    __trap();
#endif
}

/* ==== [63] Hopper GEMM of FP8: the compiled kernels (src/cuda/sm90_fp8_code.h) ==== */

/* Whether the compiler has tensormap.replace as this source uses it, with strides in bytes (PTX ISA 8.5). Clang does
 * not tell its version of ptxas, so it counts as an older one. */
#if defined(__CUDACC_VER_MAJOR__)
#define TEGROUP_IMPL_SM90_REPLACES (__CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1205)
#else
#define TEGROUP_IMPL_SM90_REPLACES 0
#endif

typedef struct tegroup_impl_sm90_fp8_code {
    const void *kernel; /* NULL where a switch leaves it out */
    int32_t shared_bytes;
} tegroup_impl_sm90_fp8_code;

static inline const tegroup_impl_sm90_fp8_code *tegroup_impl_sm90_fp8_code_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_FP8_CODE(name, op, lines, cols, turns, slabs, narrows, fast)                                 \
    {TEGROUP_IMPL_KERNEL_##op(                                                                                         \
         tegroup_impl_sm90_fp8_kernel<tegroup_impl_sm90_fp8_shape<op, lines, cols, turns, slabs, narrows, fast>>),     \
     tegroup_impl_sm90_fp8_shape<op, lines, cols, turns, slabs, narrows, fast>::SHARED_BYTES},
    static const tegroup_impl_sm90_fp8_code code[TEGROUP_IMPL_SM90_FP8_KERNEL_COUNT] = {
        TEGROUP_IMPL_SM90_FP8_KERNELS(TEGROUP_IMPL_SM90_FP8_CODE)};
#undef TEGROUP_IMPL_SM90_FP8_CODE
    return &code[kernel];
}

static inline tegroup_status tegroup_impl_sm90_fp8_choose(tegroup_plan *plan, int32_t kernel, tegroup_error *error) {
    const tegroup_impl_sm90_fp8_row *row = tegroup_impl_sm90_fp8_row_of(kernel);
    const tegroup_impl_sm90_fp8_code *code = tegroup_impl_sm90_fp8_code_of(kernel);
    TEGROUP_IMPL_RULE(plan->problem.op != TEGROUP_OP_WGRAD || TEGROUP_IMPL_SM90_REPLACES, ERROR_UNSUPPORTED, "op",
                      "must not be WGRAD for FP8 on SM90 in a build by nvcc before 12.5", TEGROUP_OP_FORWARD,
                      plan->problem.op);
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
    plan->tile_m = row->tile_m;
    plan->tile_n = row->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_FP8_K;
    return tegroup_impl_cuda_status(tegroup_impl_planned(plan, code->kernel, TEGROUP_IMPL_SM90_THREADS,
                                                         code->shared_bytes, TEGROUP_IMPL_SM90_MOST_BLOCKS),
                                    "plan", "the kernel's attributes must be readable", error);
}
#endif /* TEGROUP_NO_FP8 */

/* ==== [64] Hopper GEMM: the compiled kernels (src/cuda/sm90_code.h) ==== */

/* The code of a kernel row. */
typedef struct tegroup_impl_sm90_code {
    const void *bf16, *f16; /* NULL where a switch leaves the kernel out, or it is PORTABLE's */
    int32_t shared_bytes;
} tegroup_impl_sm90_code;

static inline const tegroup_impl_sm90_code *tegroup_impl_sm90_code_of(int32_t kernel) {
#define TEGROUP_IMPL_SM90_CODE(name, op, lines, cols, turns, slabs, flips, pairs, ns, epilogue, tb, us)                \
    {TEGROUP_IMPL_KERNEL_##op(                                                                                         \
         tegroup_impl_sm90_kernel<true, tegroup_impl_sm90_shape<op, lines, cols, turns, slabs, flips, pairs>>),        \
     TEGROUP_IMPL_KERNEL_F16(                                                                                          \
         op, tegroup_impl_sm90_kernel<false, tegroup_impl_sm90_shape<op, lines, cols, turns, slabs, flips, pairs>>),   \
     tegroup_impl_sm90_shape<op, lines, cols, turns, slabs>::SHARED_BYTES},
#define TEGROUP_IMPL_SM90_MMA_CODE(name, op, ns, epilogue, tb, us) {NULL, NULL, 0},
    static const tegroup_impl_sm90_code code[TEGROUP_IMPL_SM90_KERNEL_COUNT] = {
        TEGROUP_IMPL_SM90_KERNELS(TEGROUP_IMPL_SM90_CODE, TEGROUP_IMPL_SM90_MMA_CODE)};
#undef TEGROUP_IMPL_SM90_CODE
#undef TEGROUP_IMPL_SM90_MMA_CODE
    return &code[kernel];
}

/* Whether this translation unit has the code of a kernel that the GPU needs: a GPU of sm_90 needs code for sm_90a. */
static inline int tegroup_impl_sm90_holds(const void *kernel) {
    cudaFuncAttributes attributes;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code == cudaSuccess && attributes.maxThreadsPerBlock >= TEGROUP_IMPL_SM90_THREADS;
}
static inline int tegroup_impl_sm90_image(int32_t sm) {
    return sm != 90 || tegroup_impl_sm90_holds(tegroup_impl_sm90_code_of(0)->bf16);
}

/* Makes a plan ready to launch a kernel of the table. */
static inline tegroup_status tegroup_impl_sm90_choose(tegroup_plan *plan, int32_t kernel, tegroup_error *error) {
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_row_of(kernel);
    const tegroup_impl_sm90_code *code = tegroup_impl_sm90_code_of(kernel);
    plan->algorithm[TEGROUP_IMPL_PLANNED_ROW] = (uint64_t)kernel;
#if !defined(TEGROUP_NO_PORTABLE)
    int32_t count;
    if (row->mma)
        return tegroup_impl_portable_take_row(plan, tegroup_impl_portable_rows(plan->problem.op, &count), error);
#endif
    plan->tile_m = row->tile_m;
    plan->tile_n = row->tile_n;
    plan->tile_k = TEGROUP_IMPL_SM90_K;
    return tegroup_impl_cuda_status(
        tegroup_impl_planned(plan, plan->problem.a == TEGROUP_DTYPE_F16 ? code->f16 : code->bf16,
                             TEGROUP_IMPL_SM90_THREADS, code->shared_bytes, TEGROUP_IMPL_SM90_MOST_BLOCKS),
        "plan", "the kernel's attributes must be readable", error);
}

/* A plan's kernel as a choice: its number, and its tile, by which another build finds out if its table differs. */
static inline tegroup_impl_choice tegroup_impl_sm90_chosen(const tegroup_plan *plan) {
    tegroup_impl_choice choice;
    memset(&choice, 0, sizeof choice);
    choice.words[0] = plan->algorithm[TEGROUP_IMPL_PLANNED_ROW];
    choice.words[1] = (uint64_t)plan->tile_m;
    choice.words[2] = (uint64_t)plan->tile_n;
    return choice;
}

static inline tegroup_status tegroup_impl_sm90_take(tegroup_plan *plan, const tegroup_impl_choice *choice,
                                                    tegroup_error *error) {
#if TEGROUP_IMPL_FP8_KERNELS
    if (tegroup_impl_sm90_multiplies_fp8(&plan->problem))
        return tegroup_impl_sm90_fp8_choose(plan, (int32_t)choice->words[0], error);
    if (choice->words[0] >= (uint64_t)TEGROUP_IMPL_SM90_KERNEL_COUNT)
        return tegroup_impl_sm90_weights_choose(plan, (int32_t)choice->words[0], error);
#endif
    return tegroup_impl_sm90_choose(plan, (int32_t)choice->words[0], error);
}

/* Whether a plan may take a kernel. One that decodes weights elsewhere than the plan's would need another workspace. */
static inline int tegroup_impl_sm90_takes(const tegroup_plan *plan, int32_t kernel) {
#if defined(TEGROUP_NO_PORTABLE)
    const int with_mma = 0;
#else
    const int with_mma = 1;
#endif
    const tegroup_problem *p = &plan->problem, multiplied = tegroup_impl_decoded_problem(p);
    const int weights = kernel >= TEGROUP_IMPL_SM90_KERNEL_COUNT;
    if (tegroup_impl_sm90_multiplies_fp8(p)) return tegroup_impl_sm90_fp8_runs(p, kernel);
    if (tegroup_impl_sm90_plans_weights(plan) != weights) return 0;
    return weights ? tegroup_impl_sm90_weights_runs(p, kernel)
                   : tegroup_impl_sm90_runs(&multiplied, kernel, with_mma)
                         && !(tegroup_impl_sm90_row_of(kernel)->pairs && plan->sm_limit == 1);
}
static inline int32_t tegroup_impl_sm90_kernel_count(const tegroup_problem *p) {
    return tegroup_impl_sm90_multiplies_fp8(p) ? (int32_t)TEGROUP_IMPL_SM90_FP8_KERNEL_COUNT
                                               : (int32_t)TEGROUP_IMPL_SM90_WEIGHTS_END;
}

/* The kernels that tegroup_plan_tune may time for a plan. */
static inline tegroup_status tegroup_impl_sm90_choices(const tegroup_plan *plan, const tegroup_gemm_desc *,
                                                       tegroup_impl_choices *choices, tegroup_error *error) {
    for (int32_t kernel = 0; kernel < tegroup_impl_sm90_kernel_count(&plan->problem); kernel++) {
        tegroup_plan candidate = *plan;
        tegroup_impl_choice choice;
        if (!tegroup_impl_sm90_takes(plan, kernel)) continue;
        memset(&choice, 0, sizeof choice);
        choice.words[0] = (uint64_t)kernel;
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_take(&candidate, &choice, error));
        choice = tegroup_impl_sm90_chosen(&candidate);
        tegroup_impl_choices_add(choices, &choice);
    }
    return TEGROUP_OK;
}

/* ==== [65] Hopper GEMM: repacking rows (src/cuda/sm90_repack_kernels.h) ==== */

/* What the kernel is given. Ragged rows are numbered as in their buffer, and those of uniform groups one group after
 * another; a copy has the same numbers. */
typedef struct tegroup_impl_sm90_repacking {
    tegroup_tensor from;
    tegroup_impl_gpu_groups groups; /* of `from`, where its rows are not ragged */
    const void *snapshot;           /* of A's rows: groups without any have nothing copied; NULL: all have rows */
    int64_t snapshot_rows;
    char *to;
    int64_t to_row; /* bytes */
} tegroup_impl_sm90_repacking;

/* Loads 16 bytes, of which `there` exist, in pieces of PIECE bytes, to which `from` and `there` are aligned. */
template <int PIECE> static __device__ __forceinline__ uint4 tegroup_impl_sm90_chunk(const char *from, int64_t there) {
    uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i += PIECE) {
        if (i >= there) continue;
        if (PIECE == 8) {
            const uint2 two = *(const uint2 *)(from + i);
            word[i / 4] = two.x;
            word[i / 4 + 1] = two.y;
        } else if (PIECE == 4) word[i / 4] = *(const uint32_t *)(from + i);
        else word[i / 4] |= (uint32_t) * (const uint16_t *)(from + i) << i % 4 * 8;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Copies the rows of a unit. A thread has one chunk of each of them under way. */
template <int PIECE>
static __device__ __forceinline__ void tegroup_impl_sm90_copy_unit(const char *from, int64_t from_row, char *to,
                                                                   int64_t to_row, int64_t bytes, int32_t rows) {
    for (int64_t at = (int64_t)threadIdx.x * 16; at < bytes; at += (int64_t)blockDim.x * 16) {
        uint4 chunk[TEGROUP_IMPL_ROWS_UNIT];
#pragma unroll
        for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++)
            if (r < rows) chunk[r] = tegroup_impl_sm90_chunk<PIECE>(from + r * from_row + at, bytes - at);
#pragma unroll
        for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++)
            if (r < rows) *(uint4 *)(to + r * to_row + at) = chunk[r];
    }
}

static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_sm90_repack_kernel(const tegroup_impl_sm90_repacking call) {
    const tegroup_tensor &t = call.from;
    const bool ragged = tegroup_impl_ragged(&t.shape);
    const int64_t each = tegroup_impl_ceil_div(t.shape.rows, TEGROUP_IMPL_ROWS_UNIT), bytes = t.shape.cols * 2,
                  from_row = tegroup_impl_ld(&t) * 2;
    const tegroup_impl_units units(call.snapshot, call.snapshot_rows);
    const int64_t count = ragged ? units.count : each * t.shape.groups;
    for (int64_t unit = blockIdx.x; unit < count; unit += gridDim.x) {
        int64_t row;
        int32_t rows;
        const char *from;
        if (ragged) {
            rows = units.at(unit, &row);
            from = (const char *)t.data + row * from_row;
        } else {
            const int32_t g = (int32_t)(unit / each);
            const int64_t within = unit % each * TEGROUP_IMPL_ROWS_UNIT;
            if (call.snapshot && (g >= units.groups || units.rows[g] <= 0)) continue;
            rows = (int32_t)tegroup_impl_min(TEGROUP_IMPL_ROWS_UNIT, t.shape.rows - within);
            row = g * t.shape.rows + within;
            from = tegroup_impl_gpu_group(call.groups, g) + within * from_row;
        }
        char *const to = call.to + row * call.to_row;
        const uint32_t places = (uint32_t)(uintptr_t)from | (uint32_t)from_row;
        if (places % 8 == 0 && bytes % 8 == 0)
            tegroup_impl_sm90_copy_unit<8>(from, from_row, to, call.to_row, bytes, rows);
        else if (places % 4 == 0 && bytes % 4 == 0)
            tegroup_impl_sm90_copy_unit<4>(from, from_row, to, call.to_row, bytes, rows);
        else tegroup_impl_sm90_copy_unit<2>(from, from_row, to, call.to_row, bytes, rows);
    }
}

/* Enqueues the copy of an operand, and makes the call's descriptor have it. */
static inline tegroup_status tegroup_impl_sm90_repack_operand(const tegroup_plan *plan, tegroup_impl_operand operand,
                                                              void *to, tegroup_gemm_desc *desc,
                                                              struct CUstream_st *stream, tegroup_error *error) {
    tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b;
    const tegroup_shape *sized = tegroup_impl_ragged(&t->shape) ? &t->shape : &desc->a.shape;
    const int64_t ld = tegroup_impl_sm90_repacked_ld(&plan->problem, operand);
    tegroup_impl_sm90_repacking call;
    memset(&call, 0, sizeof call);
    call.from = *t;
    call.groups = tegroup_impl_gpu_groups_of(t);
    call.snapshot = tegroup_impl_ragged(sized) ? sized->snapshot : NULL;
    call.snapshot_rows = sized->rows;
    call.to = (char *)to;
    call.to_row = ld * 2;
    t->data = to;
    t->ld = ld;
    t->group_stride = 0;
    t->pointers = NULL;
    t->pointers_space = TEGROUP_SPACE_UNSET;
    /* Of uniform groups without rows nothing is multiplied, and a list may have no addresses. */
    if (tegroup_impl_sm90_repacked_rows(&plan->problem, operand) == 0 || sized->rows == 0) return TEGROUP_OK;
    return tegroup_impl_cuda_rows(tegroup_impl_sm90_repack_kernel, &call, t->shape.cols, 8,
                                  tegroup_impl_ceil_div(tegroup_impl_sm90_repacked_rows(&plan->problem, operand), 4)
                                      + t->shape.groups,
                                  stream, error);
}

/* Enqueues the copies of the operands that a plan repacks. */
static inline tegroup_status tegroup_impl_sm90_repack(const tegroup_plan *plan, tegroup_gemm_desc *desc,
                                                      struct CUstream_st *stream, tegroup_error *error) {
    tegroup_layout layout;
    int32_t i, item = 0;
    tegroup_impl_layout_begin(&layout);
    tegroup_impl_sm90_workspace(plan, &layout);
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++)
        if (tegroup_impl_sm90_repacks(&plan->problem, (tegroup_impl_operand)i))
            TEGROUP_IMPL_TRY(tegroup_impl_sm90_repack_operand(
                plan, (tegroup_impl_operand)i, tegroup_impl_layout_at(&layout, item++, desc->options.workspace), desc,
                stream, error));
    return TEGROUP_OK;
}

/* ==== [66] Hopper GEMM: plan and launch (src/cuda/sm90_plan.h) ==== */

/* Whether a plan's kernel is PORTABLE's. */
static inline int tegroup_impl_sm90_plans_mma(const tegroup_plan *plan) {
    return !tegroup_impl_sm90_multiplies_fp8(&plan->problem) && !tegroup_impl_sm90_plans_weights(plan)
           && tegroup_impl_sm90_row_of((int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ROW])->mma;
}

static inline tegroup_status tegroup_impl_sm90_plan(const tegroup_gemm_desc *desc, const tegroup_impl_names *names,
                                                    tegroup_plan *plan, tegroup_error *error) {
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *encode = NULL;
    cudaError_t code;
    (void)desc, (void)names;
#if CUDART_VERSION >= 12050
    code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
#else
    code = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &encode, cudaEnableDefault, &found);
#endif
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "plan", "the driver must tell its functions", error));
    TEGROUP_IMPL_RULE(encode != NULL, ERROR_UNSUPPORTED, "target.sm", "needs a driver with cuTensorMapEncodeTiled", 1,
                      0);
    plan->algorithm[TEGROUP_IMPL_PLANNED_ENCODE] = (uint64_t)(uintptr_t)encode;
    const tegroup_impl_choice choice = tegroup_impl_sm90_chosen(plan);
    return tegroup_impl_sm90_take(plan, &choice, error);
}

/* TMA needs multiples of 16 bytes. The pointers of a list are in device memory, so the kernel checks them. Rows may be
 * more than planned. data: what errors call t->data. */
static inline tegroup_status tegroup_impl_sm90_check_operand(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                             const char *data, tegroup_error *error) {
    if (t->dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(!tegroup_impl_ragged(&t->shape) || t->shape.rows <= TEGROUP_IMPL_SM90_MOST, ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_PATH(ROWS), "must be countable in 31 bits", TEGROUP_IMPL_SM90_MOST, t->shape.rows);
    if (tegroup_impl_listed(t) || tegroup_impl_extent(t) == 0) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(t->data, 16), ERROR_ALIGNMENT, data,
                      tegroup_impl_bits(t->dtype) == 8 ? "must be 16-byte aligned for TMA"
                                                       : "must be 16-byte aligned for TMA; a plan made with "
                                                         "options.data_alignment_bytes 2 takes any",
                      16, (uintptr_t)t->data % 16);
    TEGROUP_IMPL_RULE(tegroup_impl_stride_bytes(t) % 16 == 0, ERROR_ALIGNMENT, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                      "must be a multiple of 16 bytes for TMA", 16, tegroup_impl_stride_bytes(t));
    TEGROUP_IMPL_RULE(tegroup_impl_stride_bytes(t) <= TEGROUP_IMPL_TMA_STRIDE_BYTES, ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_PATH(GROUP_STRIDE), "must be at most so many bytes, for TMA",
                      TEGROUP_IMPL_TMA_STRIDE_BYTES, tegroup_impl_stride_bytes(t));
    return TEGROUP_OK;
}
#if TEGROUP_IMPL_FP8_KERNELS /* sm90_fp8_plan.h */
static inline tegroup_status tegroup_impl_sm90_fp8_check_operand(const tegroup_gemm_desc *desc,
                                                                 tegroup_impl_operand operand,
                                                                 const tegroup_impl_name *name, tegroup_error *error);
static inline tegroup_impl_run_function tegroup_impl_sm90_fp8_gemm, tegroup_impl_sm90_weights_gemm;
#endif

/* Weights that are decoded in registers: the copy that is read, which TMA loads. */
static inline tegroup_status tegroup_impl_sm90_check_weights(const tegroup_gemm_desc *desc,
                                                             const tegroup_impl_name *name, tegroup_error *error) {
    const int turned = desc->op == TEGROUP_OP_DGRAD;
    const tegroup_tensor *given = &desc->b;
    const tegroup_tensor read = tegroup_impl_as_read(desc, TEGROUP_IMPL_B),
                         lines = turned ? tegroup_impl_turned(&read) : read, bytes = tegroup_impl_sm90_bytes(&lines);
    const tegroup_impl_copy_paths paths = tegroup_impl_copy_paths_of(name, tegroup_impl_listed(given), turned);
    TEGROUP_IMPL_TRY(tegroup_impl_check_held(desc, name, error));
    TEGROUP_IMPL_RULE(tegroup_impl_listed(given) || tegroup_impl_aligned(read.scale_inv, TEGROUP_IMPL_SM90_CODES_BYTES),
                      ERROR_ALIGNMENT, paths.scales, "must be 16-byte aligned for TMA", TEGROUP_IMPL_SM90_CODES_BYTES,
                      (uintptr_t)read.scale_inv % TEGROUP_IMPL_SM90_CODES_BYTES);
    return tegroup_impl_sm90_check_operand(&bytes, name, paths.data, error);
}

/* A or B. One that is copied or decoded is loaded from the workspace, which has room for as many rows as were
 * planned. */
static inline tegroup_status tegroup_impl_sm90_check_read(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          tegroup_impl_operand operand, const tegroup_impl_name *name,
                                                          tegroup_error *error) {
    const tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b;
    tegroup_tensor decoded;
#if TEGROUP_IMPL_FP8_KERNELS
    if (tegroup_impl_sm90_multiplies_fp8(&plan->problem))
        return tegroup_impl_sm90_fp8_check_operand(desc, operand, name, error);
#endif
    if (operand == TEGROUP_IMPL_B && tegroup_impl_sm90_plans_weights(plan))
        return tegroup_impl_sm90_check_weights(desc, name, error);
    if (tegroup_impl_scaled_by_8_bits(t->scaling)) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_decoded_rows(plan, t, operand, name, error));
        decoded = tegroup_impl_decoded(t, NULL);
        return tegroup_impl_sm90_check_operand(&decoded, name, TEGROUP_IMPL_PATH(DATA), error);
    }
    if (!tegroup_impl_sm90_repacks(&plan->problem, operand))
        return tegroup_impl_sm90_check_operand(t, name, TEGROUP_IMPL_PATH(DATA), error);
    TEGROUP_IMPL_RULE(!tegroup_impl_ragged(&t->shape) || t->shape.rows <= plan->problem.rows, ERROR_PLAN,
                      TEGROUP_IMPL_PATH(ROWS), "must be at most as planned: the workspace holds a copy of them",
                      plan->problem.rows, t->shape.rows);
    return TEGROUP_OK;
}
static inline tegroup_status tegroup_impl_sm90_check_gather(const tegroup_gemm_desc *desc,
                                                            const tegroup_impl_names *names, tegroup_error *error) {
    TEGROUP_IMPL_RULE(desc->gather_a.rows <= INT32_MAX, ERROR_UNSUPPORTED, TEGROUP_IMPL_OPERAND_PATH(A, GATHER_ROWS),
                      "must be countable in 31 bits", INT32_MAX, desc->gather_a.rows);
    TEGROUP_IMPL_RULE(desc->gather_b.rows <= INT32_MAX, ERROR_UNSUPPORTED, TEGROUP_IMPL_OPERAND_PATH(B, GATHER_ROWS),
                      "must be countable in 31 bits", INT32_MAX, desc->gather_b.rows);
    return TEGROUP_OK;
}
static inline tegroup_status tegroup_impl_sm90_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                     const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_tensor *tensors[] = {&desc->a, &desc->b, &desc->c, &desc->d};
    int32_t i;
#if defined(TEGROUP_NO_PORTABLE)
    TEGROUP_IMPL_RULE(!tegroup_impl_sm90_plans_mma(plan), ERROR_NOT_BUILT, "plan.backend",
                      "must be part of this build: the plan has PORTABLE's kernel for few rows",
                      TEGROUP_BACKEND_PORTABLE, plan->backend);
#endif
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_check_gather(desc, names, error)); /* what they gather from may change by call */
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_D; i++) {
        const tegroup_impl_name *name = names->operand[i];
        TEGROUP_IMPL_TRY(i <= TEGROUP_IMPL_B
                             ? tegroup_impl_sm90_check_read(plan, desc, (tegroup_impl_operand)i, name, error)
                             : tegroup_impl_sm90_check_operand(tensors[i], name, TEGROUP_IMPL_PATH(DATA), error));
    }
    return TEGROUP_OK;
}

/* Makes a map with boxes of box_cols x box_rows, as the first comment of sm90_tiles.h describes it. A box has rows of
 * 128, 64 or 32 bytes. */
static inline tegroup_status tegroup_impl_sm90_encode(const tegroup_plan *plan, const tegroup_tensor *t,
                                                      tegroup_impl_operand operand, int32_t box_cols, int32_t box_rows,
                                                      CUtensorMap *map, uint64_t *shift, tegroup_error *error) {
    typedef CUresult (*encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    const encoder encode = (encoder)(uintptr_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ENCODE];
    const int listed = t->pointers != NULL /* A list of no groups may be NULL. */,
              ragged = tegroup_impl_ragged(&t->shape), empty = tegroup_impl_extent(t) == 0;
    const int64_t row = tegroup_impl_max(16, tegroup_impl_ld(t) * tegroup_impl_bits(t->dtype) / 8);
    /* A group stride that reaches no second group may be anything, even what TMA refuses, so it is not used. */
    const int64_t plane = ragged || listed || empty || t->shape.groups < 2 ? row : tegroup_impl_stride_bytes(t);
    const int64_t planes = ragged ? t->shape.rows + 1 : listed ? 1 : t->shape.groups;
    const CUtensorMapDataType type = t->dtype == TEGROUP_DTYPE_F32      ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                     : tegroup_impl_bits(t->dtype) == 8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : t->dtype == TEGROUP_DTYPE_BF16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const int32_t box_bits = box_cols * tegroup_impl_bits(t->dtype);
    const CUtensorMapSwizzle swizzle = box_bits == 256   ? CU_TENSOR_MAP_SWIZZLE_32B
                                       : box_bits == 512 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                         : CU_TENSOR_MAP_SWIZZLE_128B;
    const cuuint64_t dims[5] = {(cuuint64_t)tegroup_impl_max(1, t->shape.cols),
                                (cuuint64_t)(ragged ? box_rows : tegroup_impl_max(1, t->shape.rows)),
                                (cuuint64_t)tegroup_impl_max(1, planes), (cuuint64_t)1 << 31, (cuuint64_t)1 << 29};
    const cuuint64_t strides[4] = {(cuuint64_t)row, (cuuint64_t)plane, 16, (cuuint64_t)1 << 35};
    const cuuint32_t box[5] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows, 1, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
    /* The map needs an address that exists: that of the list if there is one, or of the snapshot for a tensor without
     * elements. Without a snapshot, nothing is ever loaded, and any address will do. */
    const uintptr_t address = listed   ? (uintptr_t)t->pointers & ~(uintptr_t)15
                              : !empty ? (uintptr_t)t->data
                                       : (uintptr_t)(ragged ? t->shape.snapshot : plan) & ~(uintptr_t)15;
    /* L2 fetches 256 bytes at a time where the next 128 of a row are loaded soon. If the box that has these is already
     * in flight, as for weights in dgrad and of short groups, both fetch them, which read memory 5% slower. */
    const uint64_t planned = plan->algorithm[TEGROUP_IMPL_PLANNED_ROW];
    const int beside = operand == TEGROUP_IMPL_B
                       && (tegroup_impl_sm90_multiplies_fp8(&plan->problem)
                               ? tegroup_impl_sm90_fp8_row_of((int32_t)planned)->tile_m == TEGROUP_IMPL_SM90_LINES
                               : (plan->problem.op == TEGROUP_OP_DGRAD && !tegroup_impl_sm90_plans_weights(plan))
                                     || planned == TEGROUP_IMPL_SM90_FORWARD_64X128);
    /* Rows of operands that begin off cache lines have 128 bytes in two of these, each of which would fetch 256. */
    const int off = operand <= TEGROUP_IMPL_B && row % TEGROUP_IMPL_SM90_LINE_BYTES != 0;
    const CUtensorMapL2promotion promotion = beside ? CU_TENSOR_MAP_L2_PROMOTION_NONE
                                             : off  ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                                                    : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    CUresult code = CUDA_ERROR_INVALID_CONTEXT;
    /* If this is the thread's first CUDA call, no context is current, and the driver's functions do not make it so. */
    for (int32_t attempt = 0; attempt < 2 && code == CUDA_ERROR_INVALID_CONTEXT; attempt++) {
        if (attempt > 0 && cudaSetDevice(plan->device) != cudaSuccess) break;
        code = encode(map, type, ragged || listed ? 5 : 3, (void *)address, dims, strides, box, steps,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }
    *shift = 0 - (uint64_t)(ragged ? box_rows * row : 0) - (uint64_t)(listed ? address : 0);
    if (code == CUDA_SUCCESS) return TEGROUP_OK;
    (void)tegroup_impl_fail(error, TEGROUP_ERROR_CUDA, "plan",
                            "must be of operands that the driver can describe to TMA", 0, (int64_t)code);
    if (error) error->native = (int32_t)code;
    return TEGROUP_ERROR_CUDA;
}
/* Makes the map of an operand. */
static inline tegroup_status tegroup_impl_sm90_map(const tegroup_plan *plan, const tegroup_tensor *t,
                                                   tegroup_impl_operand operand, int32_t box_cols, int32_t box_rows,
                                                   tegroup_impl_sm90_call *call, tegroup_error *error) {
    call->ragged[operand] = tegroup_impl_ragged(&t->shape);
    call->listed[operand] = tegroup_impl_listed(t);
    return tegroup_impl_sm90_encode(plan, t, operand, box_cols, box_rows, &call->map[operand], &call->shift[operand],
                                    error);
}

/* Makes the map of C or D, if it is there, whose boxes are slabs. */
static inline tegroup_status tegroup_impl_sm90_map_slabs(const tegroup_plan *plan, const tegroup_tensor *t,
                                                         tegroup_impl_operand operand, tegroup_impl_sm90_call *call,
                                                         tegroup_error *error) {
    if (t->dtype == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    return tegroup_impl_sm90_map(plan, t, operand, t->dtype == TEGROUP_DTYPE_F32 ? 32 : 64, TEGROUP_IMPL_SM90_LINES,
                                 call, error);
}

/* Makes map `i` with smaller boxes of an operand whose map is made. */
static inline tegroup_status tegroup_impl_sm90_map_smaller(const tegroup_plan *plan, const tegroup_tensor *t,
                                                           tegroup_impl_operand operand, int32_t box_cols,
                                                           int32_t box_rows, int32_t i, tegroup_impl_sm90_call *call,
                                                           tegroup_error *error) {
    TEGROUP_IMPL_TRY(
        tegroup_impl_sm90_encode(plan, t, operand, box_cols, box_rows, &call->smaller[i], &call->further[i], error));
    call->further[i] -= call->shift[operand];
    return TEGROUP_OK;
}

#if TEGROUP_IMPL_FUSED_KERNELS
template <int OP> struct tegroup_impl_sm90_fused {
    typedef tegroup_impl_sm90_shape<OP, 128, 192, true, 3, false, false, true> shape;
};

/* Makes ready to launch the kernel whose epilogue has an activation, for a plan of a forward product, or its gradient,
 * for a plan of dgrad. The plan stays as it is. */
static inline tegroup_status tegroup_impl_sm90_plan_fused(const tegroup_plan *plan, tegroup_fused_kernel *kernel,
                                                          tegroup_error *error) {
    typedef tegroup_impl_sm90_fused<1>::shape forward;
    typedef tegroup_impl_sm90_fused<2>::shape gradient;
    const int bf16 = plan->problem.a == TEGROUP_DTYPE_BF16;
    const void *chosen = plan->problem.op == TEGROUP_OP_FORWARD
                             ? (bf16 ? TEGROUP_IMPL_KERNEL_1(tegroup_impl_sm90_kernel<true, forward>)
                                     : TEGROUP_IMPL_KERNEL_F16(1, tegroup_impl_sm90_kernel<false, forward>))
                             : (bf16 ? TEGROUP_IMPL_KERNEL_2(tegroup_impl_sm90_kernel<true, gradient>)
                                     : TEGROUP_IMPL_KERNEL_F16(2, tegroup_impl_sm90_kernel<false, gradient>));
    tegroup_plan fused = *plan;
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_status(tegroup_impl_planned(&fused, chosen, TEGROUP_IMPL_SM90_THREADS, forward::SHARED_BYTES,
                                                      TEGROUP_IMPL_SM90_MOST_BLOCKS),
                                 "plan", "the kernel's attributes must be readable", error));
    kernel->function = fused.algorithm[TEGROUP_IMPL_PLANNED_KERNEL];
    kernel->blocks = fused.algorithm[TEGROUP_IMPL_PLANNED_BLOCKS];
    return TEGROUP_OK;
}

/* Makes a map of pieces of 32 columns for a matrix with D's rows. If `ups` is not NULL, it is the map of the matrix's
 * second half, and `map` that of the first. */
static inline tegroup_status tegroup_impl_sm90_map_pieces(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          const tegroup_matrix *m, tegroup_impl_operand operand,
                                                          CUtensorMap *map, CUtensorMap *ups, uint64_t *shift,
                                                          tegroup_error *error) {
    tegroup_tensor part = desc->d;
    part.data = m->data;
    part.shape.cols = ups ? m->cols / 2 : m->cols;
    part.ld = tegroup_impl_matrix_ld(m);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_encode(plan, &part, operand, 32, TEGROUP_IMPL_SM90_LINES, map, shift, error));
    if (!ups) return TEGROUP_OK;
    part.data = (char *)part.data + part.shape.cols * 2;
    return tegroup_impl_sm90_encode(plan, &part, operand, 32, TEGROUP_IMPL_SM90_LINES, ups, shift, error);
}

/* Adds an epilogue to a call. */
static inline tegroup_status tegroup_impl_sm90_fuse(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                    const tegroup_impl_epilogue *epilogue, tegroup_impl_sm90_call *call,
                                                    tegroup_error *error) {
    const tegroup_activation_desc *activation = &epilogue->activation;
    const int halves = !activation->interleaved, gradient = desc->op == TEGROUP_OP_DGRAD;
    CUtensorMap *ups = halves ? &call->ups : NULL, *c_ups = halves ? &call->c_ups : NULL;
    call->epilogue = tegroup_impl_gpu_epilogue_of(desc, epilogue);
    call->up = tegroup_impl_gpu_up_of(epilogue);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_pieces(
        plan, desc, gradient ? &epilogue->gradient.grad_input : &activation->input, TEGROUP_IMPL_D,
        &call->map[TEGROUP_IMPL_D], ups, &call->shift[TEGROUP_IMPL_D], error));
    call->ragged[TEGROUP_IMPL_D] = 1;
    if (gradient)
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_pieces(plan, desc, &activation->input, TEGROUP_IMPL_C,
                                                      &call->map[TEGROUP_IMPL_C], c_ups, &call->shift[TEGROUP_IMPL_C],
                                                      error));
    if (gradient && !epilogue->activates_again) return TEGROUP_OK;
    return tegroup_impl_sm90_map_pieces(plan, desc, &activation->output, TEGROUP_IMPL_D, &call->activated, NULL,
                                        &call->activated_shift, error);
}
#endif

/* Makes the map of ups that are apart, whose boxes are as those of the gates. */
static inline tegroup_status tegroup_impl_sm90_map_ups(const tegroup_plan *plan, const tegroup_tensor *ups,
                                                       int32_t box_rows, int narrows, tegroup_impl_sm90_call *call,
                                                       tegroup_error *error) {
    const tegroup_impl_operand at = TEGROUP_IMPL_SM90_UPS;
    call->listed[at] = tegroup_impl_listed(ups);
    TEGROUP_IMPL_TRY(
        tegroup_impl_sm90_encode(plan, ups, TEGROUP_IMPL_B, 64, box_rows, &call->map[at], &call->shift[at], error));
    return narrows ? tegroup_impl_sm90_encode(plan, ups, TEGROUP_IMPL_B, 64, TEGROUP_IMPL_SM90_NARROW / 2,
                                              &call->smaller[1], &call->further[1], error)
                   : TEGROUP_OK;
}

/* Makes the maps of A, B and C, with the boxes of a kernel row. halves: B's rows are gates and, in its second half,
 * ups; or those are apart. */
static inline tegroup_status tegroup_impl_sm90_map_operands(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                            const tegroup_impl_sm90_row *row, int halves,
                                                            const tegroup_tensor *ups, tegroup_impl_sm90_call *call,
                                                            tegroup_error *error) {
    const int forward = desc->op == TEGROUP_OP_FORWARD, wgrad = desc->op == TEGROUP_OP_WGRAD,
              narrows = forward && row->narrows
                        && (call->narrows > 0
                            || tegroup_impl_sm90_narrow_tiles(0, (int32_t)call->call.desc.d.shape.cols,
                                                              (int32_t)desc->a.shape.cols)
                                   > 0);
    const int32_t lines = TEGROUP_IMPL_SM90_LINES, each = 1 + row->pairs; /* blocks that load a tile's rows */
    call->ragged[TEGROUP_IMPL_A] = call->ragged[TEGROUP_IMPL_B] = 1;      /* also gathered ones, without a map */
    if (!call->gathers_a)
        TEGROUP_IMPL_TRY(
            tegroup_impl_sm90_map(plan, &desc->a, TEGROUP_IMPL_A, 64, wgrad ? lines : row->tile_m / each, call, error));
    if (!call->gathers_a && !wgrad && row->tile_m == lines) /* the shape that has SHORT tiles */
        TEGROUP_IMPL_TRY(
            tegroup_impl_sm90_map_smaller(plan, &desc->a, TEGROUP_IMPL_A, 64, TEGROUP_IMPL_SM90_SHORT, 0, call, error));
    for (int32_t i = 0; row->fits && i < TEGROUP_IMPL_SM90_SMALLER; i++)
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_smaller(plan, &desc->a, TEGROUP_IMPL_A, 64,
                                                       (row->tile_m - (i + 1) * TEGROUP_IMPL_SM90_FIT) / each, i, call,
                                                       error));
    if (!call->gathers_b)
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map(plan, &desc->b, TEGROUP_IMPL_B, 64,
                                               !forward ? lines
                                               : halves ? row->tile_n / 2
                                                        : row->tile_n / each,
                                               call, error));
    if (narrows)
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_smaller(plan, &desc->b, TEGROUP_IMPL_B, 64,
                                                       halves ? TEGROUP_IMPL_SM90_NARROW / 2 : TEGROUP_IMPL_SM90_NARROW,
                                                       0, call, error));
    if (ups) return tegroup_impl_sm90_map_ups(plan, ups, row->tile_n / 2, narrows, call, error); /* in C's place */
    return tegroup_impl_sm90_map_slabs(plan, &call->call.desc.c, TEGROUP_IMPL_C, call, error);
}

/* Sets what of a call follows from its descriptor, but for maps. */
static inline void tegroup_impl_sm90_call_of(const tegroup_gemm_desc *desc, tegroup_impl_sm90_call *call) {
    const int wgrad = desc->op == TEGROUP_OP_WGRAD;
    call->call = tegroup_impl_gpu_call_of(desc);
    if (call->up.apart) tegroup_impl_gpu_widen(&call->call.desc);
    if (desc->accumulate) { /* D is its own C. */
        call->call.desc.c = desc->d;
        call->call.views[TEGROUP_IMPL_C] = call->call.views[TEGROUP_IMPL_D];
        call->call.beta = 1;
    }
    call->has_c = call->call.desc.c.dtype != TEGROUP_DTYPE_UNSET;
    /* Where D's columns end off a multiple of 16 bytes, the last slab is stored by threads and not by TMA. */
    call->adds_in_l2 = wgrad && desc->accumulate && desc->d.dtype == TEGROUP_DTYPE_F32 && desc->d.shape.cols % 4 == 0;
    call->has_bias = !wgrad && desc->bias.dtype != TEGROUP_DTYPE_UNSET;
    call->gathers_a = desc->gather_a.rows > 0;
    call->gathers_b = desc->gather_b.rows > 0;
}

/* The most rows of a group with which a weight gradient's tiles are dealt, by the rows that the plan expects. */
static inline int32_t tegroup_impl_sm90_dealt_rows(const tegroup_plan *plan, const tegroup_impl_sm90_row *row,
                                                   int64_t blocks, int has_c) {
    const tegroup_problem *p = &plan->problem;
    const int64_t groups = tegroup_impl_max(1, p->groups),
                  mean = (int64_t)plan->algorithm[TEGROUP_IMPL_PLANNED_EXPECTED] / groups,
                  tiles = tegroup_impl_ceil_div(p->n, row->tile_m) * tegroup_impl_ceil_div(p->k, row->tile_n),
                  steps = tegroup_impl_max(tegroup_impl_ceil_div(mean, TEGROUP_IMPL_SM90_K),
                                           tegroup_impl_sm90_store_steps(p->d == TEGROUP_DTYPE_F32, has_c)),
                  of_block = tegroup_impl_mul(tegroup_impl_mul(groups, tiles), steps) / blocks;
    if (mean > TEGROUP_IMPL_SM90_DEALT_ROWS) return 0;
    return (int32_t)tegroup_impl_min(INT32_MAX, of_block / TEGROUP_IMPL_SM90_DEALT_PART * TEGROUP_IMPL_SM90_K);
}

/* epilogue: NULL, or the activation in the product's epilogue. */
static inline tegroup_status tegroup_impl_sm90_launch(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                      const tegroup_impl_epilogue *epilogue, struct CUstream_st *stream,
                                                      tegroup_error *error) {
    const int forward = desc->op == TEGROUP_OP_FORWARD, halves = epilogue && !epilogue->activation.interleaved;
    const int32_t number = !epilogue ? (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ROW]
                           : forward ? TEGROUP_IMPL_SM90_FORWARD_128X192
                                     : TEGROUP_IMPL_SM90_DGRAD_128X192;
    const tegroup_impl_sm90_row *row = tegroup_impl_sm90_row_of(number);
    const uint64_t kernel = epilogue ? epilogue->kernel.function : plan->algorithm[TEGROUP_IMPL_PLANNED_KERNEL],
                   blocks = epilogue ? epilogue->kernel.blocks : plan->algorithm[TEGROUP_IMPL_PLANNED_BLOCKS];
    tegroup_impl_sm90_call call;
    void *arguments[2];
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    memset(&call, 0, sizeof call);
#if TEGROUP_IMPL_FUSED_KERNELS
    if (epilogue) TEGROUP_IMPL_TRY(tegroup_impl_sm90_fuse(plan, desc, epilogue, &call, error));
    else
#endif
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_slabs(plan, &desc->d, TEGROUP_IMPL_D, &call, error));
    tegroup_impl_sm90_call_of(desc, &call);
    if (!epilogue && number == TEGROUP_IMPL_SM90_FORWARD_128X192)
        call.narrows = (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_NARROWS];
    if (desc->op == TEGROUP_OP_WGRAD) call.dealt = tegroup_impl_sm90_dealt_rows(plan, row, (int64_t)blocks, call.has_c);
    TEGROUP_IMPL_TRY(
        tegroup_impl_sm90_map_operands(plan, desc, row, halves, call.up.apart ? &epilogue->up->b : NULL, &call, error));
    arguments[0] = &call;
    arguments[1] = (void *)(uintptr_t)plan->algorithm[TEGROUP_IMPL_PLANNED_FUNCTOR]; /* if the kernel has one */
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(
        tegroup_impl_launch_clusters((const void *)(uintptr_t)kernel, (unsigned)blocks, 1 + (unsigned)row->pairs,
                                     TEGROUP_IMPL_SM90_THREADS, arguments,
                                     (size_t)tegroup_impl_sm90_code_of(number)->shared_bytes, stream),
        "stream", "the kernel must launch", error));
    return tegroup_impl_cuda_rest(&call.call, stream, error);
}

/* Runs the kernel of a plan on operands as it reads them. */
static inline tegroup_status tegroup_impl_sm90_multiply(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                        const tegroup_impl_epilogue *epilogue,
                                                        struct CUstream_st *stream, tegroup_error *error) {
#if !defined(TEGROUP_NO_PORTABLE)
    if (!epilogue && tegroup_impl_sm90_plans_mma(plan))
        return tegroup_impl_portable_multiply(plan, desc, stream, error);
#endif
    return tegroup_impl_sm90_launch(plan, desc, epilogue, stream, error);
}

#if TEGROUP_IMPL_FP8_KERNELS
/* Decodes what is quantised, and multiplies it. A bias gradient is the sum of a quantised dY's values themselves. */
static inline tegroup_status tegroup_impl_sm90_gemm_decoded(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                            struct CUstream_st *stream, tegroup_error *error) {
    tegroup_plan multiplied = *plan;
    tegroup_gemm_desc decoded;
    tegroup_impl_gpu_call read;
    tegroup_layout layout;
    tegroup_impl_layout_begin(&layout);
    tegroup_impl_sm90_workspace(plan, &layout);
    multiplied.problem = tegroup_impl_decoded_problem(&plan->problem);
    TEGROUP_IMPL_TRY(
        tegroup_impl_decode(plan, desc, &layout, tegroup_impl_sm90_decoded(plan), &decoded, &read, stream, error));
    if (tegroup_impl_sm90_plans_weights(plan)) return tegroup_impl_sm90_weights_gemm(plan, &decoded, stream, error);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_multiply(&multiplied, &decoded, NULL, stream, error));
    return tegroup_impl_formats_bias_grad(desc, &read, stream, error);
}
#endif

/* Enqueues copies of what the plan decodes or repacks, then the product. */
static inline tegroup_status tegroup_impl_sm90_gemm_fused(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                          const tegroup_impl_epilogue *epilogue,
                                                          struct CUstream_st *stream, tegroup_error *error) {
    tegroup_gemm_desc repacked;
#if TEGROUP_IMPL_FP8_KERNELS
    if (tegroup_impl_sm90_decodes(&plan->problem)) return tegroup_impl_sm90_gemm_decoded(plan, desc, stream, error);
    if (tegroup_impl_sm90_multiplies_fp8(&plan->problem)) return tegroup_impl_sm90_fp8_gemm(plan, desc, stream, error);
#endif
    if (tegroup_impl_sm90_repacks_any(&plan->problem)) {
        repacked = *desc;
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_repack(plan, &repacked, stream, error));
        desc = &repacked;
    }
    return tegroup_impl_sm90_multiply(plan, desc, epilogue, stream, error);
}
static inline tegroup_status tegroup_impl_sm90_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    return tegroup_impl_sm90_gemm_fused(plan, desc, NULL, stream, error);
}
#if !defined(TEGROUP_NO_FP8)

/* ==== [67] Hopper GEMM: weights that are decoded in registers: launch (src/cuda/sm90_weights_plan.h) ==== */

/* Notes where scales of weights are. */
static inline tegroup_impl_sm90_weights tegroup_impl_sm90_weights_of(const tegroup_tensor *b) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(b->scaling);
    const tegroup_impl_scale_grid grid =
        tegroup_impl_scale_grid_alone(b, facts, tegroup_impl_sides_of(b->shape.rows, b->shape.cols), 0);
    tegroup_impl_sm90_weights weights;
    memset(&weights, 0, sizeof weights);
    weights.group_bytes = grid.count;
    weights.lines_bytes = grid.inner_extent * 128;
    weights.e4m3 = facts->scale_dtype == TEGROUP_DTYPE_F8E4M3;
    return weights;
}

/* desc: rows of BF16, weights as they are read. */
static inline tegroup_status tegroup_impl_sm90_weights_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                            struct CUstream_st *stream, tegroup_error *error) {
    const tegroup_impl_sm90_weights_row *row =
        tegroup_impl_sm90_weights_row_of((int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ROW]);
    const int turned = desc->op == TEGROUP_OP_DGRAD;
    tegroup_gemm_desc read = *desc;
    tegroup_tensor bytes;
    tegroup_impl_sm90_call call;
    void *arguments[1] = {&call};
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    read.op = TEGROUP_OP_FORWARD;
    if (turned) read.b = tegroup_impl_turned(&desc->b);
    bytes = tegroup_impl_sm90_bytes(&read.b);
    memset(&call, 0, sizeof call);
    tegroup_impl_sm90_call_of(&read, &call);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_slabs(plan, &desc->d, TEGROUP_IMPL_D, &call, error));
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map(plan, &desc->a, TEGROUP_IMPL_A, 64, row->rows, &call, error));
    for (int32_t i = 0; i < TEGROUP_IMPL_SM90_WEIGHTS_SMALLER(row->rows); i++)
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_smaller(plan, &desc->a, TEGROUP_IMPL_A, 64,
                                                       row->rows - (i + 1) * TEGROUP_IMPL_SM90_FIT, i, &call,
                                                       error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_sm90_map(plan, &bytes, TEGROUP_IMPL_B, row->k * row->bits / 8, row->cols, &call, error));
    call.weights = tegroup_impl_sm90_weights_of(&read.b);
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    return tegroup_impl_cuda_rest(&call.call, stream, error);
}

/* ==== [68] Hopper GEMM of FP8: plan and launch (src/cuda/sm90_fp8_plan.h) ==== */

/* ---- the tensor maps of a weight gradient, and where its scales are ---- */

/* What makes the maps: those of a group that begins at the copies' first elements. */
typedef struct tegroup_impl_sm90_fp8_maps {
    CUtensorMap map[2];
    tegroup_scaling_facts facts[2];
    CUtensorMap *to; /* [groups][2] */
    tegroup_impl_sm90_scales *scales; /* likewise */
} tegroup_impl_sm90_fp8_maps;

#if TEGROUP_IMPL_HOPPER && TEGROUP_IMPL_SM90_REPLACES
/* A field of the map at `map`, in shared memory (PTX ISA, tensormap.replace). */
#define TEGROUP_IMPL_REPLACE(field, type, constraint, map, value)                                                      \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type ", %1;" ::"r"(map), constraint(value)      \
                 : "memory")
#endif
/* A warp for each group and operand. Of the copies that lie a group after another, that of a group begins where those
 * of the groups before end, and so do its scales. */
static __global__ void __launch_bounds__(32)
    tegroup_impl_sm90_fp8_maps_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                      const __grid_constant__ tegroup_impl_sm90_fp8_maps maps) {
#if TEGROUP_IMPL_HOPPER && TEGROUP_IMPL_SM90_REPLACES
    __shared__ __align__(128) CUtensorMap map;
    const int32_t group = (int32_t)blockIdx.x, lane = (int32_t)threadIdx.x;
    const int operand = (int)blockIdx.y;
    const tegroup_tensor &t = operand ? call.desc.b : call.desc.a;
    const tegroup_snapshot_view &view = call.views[operand];
    if (!tegroup_impl_prepared(call)) return; /* and the product has no groups */
    int64_t before = 0, scales = 0;
    if (!tegroup_impl_listed(&t))
        for (int32_t g = lane; g < group; g += 32) {
            const tegroup_impl_sides sides = tegroup_impl_group_sides(&t, &view, g);
            before += tegroup_impl_transposed_count(sides);
            scales += tegroup_impl_scale_grid_alone(&t, &maps.facts[operand], sides, 1).count;
        }
    for (int apart = 16; apart > 0; apart /= 2) {
        before += __shfl_xor_sync(0xffffffffu, before, apart);
        scales += __shfl_xor_sync(0xffffffffu, scales, apart);
    }
    if (lane == 0)
        maps.scales[2 * group + operand] =
            tegroup_impl_sm90_scales_of(&t, &maps.facts[operand], &view, group, 1, scales);
    for (int i = lane; i < (int)(sizeof map / 4); i += 32)
        ((uint32_t *)&map)[i] = ((const uint32_t *)&maps.map[operand])[i];
    __syncwarp();
    const tegroup_impl_elements at = tegroup_impl_elements_after(&t, &view, group, 1, before);
    /* What one operand has beyond the other's rows is not loaded: NaN would show beside the zeros there. */
    const int64_t rows =
        tegroup_impl_min(tegroup_impl_group_sides(&call.desc.a, &call.views[TEGROUP_IMPL_A], group).rows,
                         tegroup_impl_group_sides(&call.desc.b, &call.views[TEGROUP_IMPL_B], group).rows);
    if (lane == 0 && rows > 0) { /* Else nothing is loaded. */
        const uint32_t to = tegroup_impl_shared(&map);
        /* Of a listed buffer that is not at a multiple of 16 bytes results are NaN, but TMA must not see it. */
        const uint64_t address =
            ((uint64_t)(uintptr_t)(tegroup_impl_listed(&t) ? t.pointers[group] : t.data) + (uint64_t)at.first)
            & ~(uint64_t)15;
        TEGROUP_IMPL_REPLACE("global_address", "b64 [%0]", "l", to, address);
        TEGROUP_IMPL_REPLACE("global_dim", "b32 [%0], 0", "r", to, (uint32_t)rows);
        TEGROUP_IMPL_REPLACE("global_stride", "b64 [%0], 0", "l", to, (uint64_t)at.col_stride);
    }
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
                 "[%0], [%1], 128;" ::"l"(maps.to + 2 * group + operand),
                 "r"(tegroup_impl_shared(&map))
                 : "memory");
#else
    __trap();
#endif
}
#if TEGROUP_IMPL_HOPPER && TEGROUP_IMPL_SM90_REPLACES
#undef TEGROUP_IMPL_REPLACE
#endif

/* ---- call ---- */

/* An operand as the kernel reads it: of a dgrad's weights, the transposed copy as a forward product's weights. */
static inline tegroup_tensor tegroup_impl_sm90_fp8_as_read(const tegroup_gemm_desc *desc,
                                                           tegroup_impl_operand operand) {
    const tegroup_tensor t = tegroup_impl_as_read(desc, operand);
    return desc->op == TEGROUP_OP_DGRAD && operand == TEGROUP_IMPL_B ? tegroup_impl_turned(&t) : t;
}

/* Which copies of an operand there are, and what TMA needs of the one that is read. */
static inline tegroup_status tegroup_impl_sm90_fp8_check_operand(const tegroup_gemm_desc *desc,
                                                                 tegroup_impl_operand operand,
                                                                 const tegroup_impl_name *name, tegroup_error *error) {
    const tegroup_tensor *given = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b,
                         read = tegroup_impl_sm90_fp8_as_read(desc, operand);
    const int sums_rows = tegroup_impl_sums_rows(desc->op, operand);
    const char *data = tegroup_impl_copy_paths_of(name, tegroup_impl_listed(&read), sums_rows).data;
    TEGROUP_IMPL_RULE(given->scale_parts <= 1, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALE_PARTS),
                      "must be 0 or 1 for this backend", 1, given->scale_parts);
    TEGROUP_IMPL_RULE(!sums_rows || tegroup_impl_reads_columnwise(desc, operand) || tegroup_impl_extent(&read) == 0,
                      ERROR_NULL_ARGUMENT, data, "must not be NULL: SM90's kernels of FP8 read the transposed copy", 1,
                      0);
    return tegroup_impl_sm90_check_operand(&read, name, data, error);
}

/* Notes how scales of a forward product's groups are counted. */
static inline void tegroup_impl_sm90_fp8_count(const tegroup_gemm_desc *desc, tegroup_impl_sm90_fp8 *fp8) {
    const tegroup_tensor *operands[2] = {&desc->a, &desc->b};
    for (int i = 0; i < 2; i++) {
        const tegroup_impl_scale_grid grid = tegroup_impl_scale_grid_alone(
            operands[i], &fp8->facts[i],
            tegroup_impl_sides_of(operands[i]->shape.rows, operands[i]->shape.cols), 0);
        const int in_blocks = tegroup_impl_ragged(&operands[i]->shape) && !tegroup_impl_scaled_as_one(&fp8->facts[i]);
        fp8->each[i] = in_blocks ? grid.inner_extent : grid.count;
        if (i == TEGROUP_IMPL_A) {
            fp8->shift = in_blocks ? grid.outer_shift : -1;
            fp8->pad = grid.pad_outer;
        }
    }
}

static inline int32_t tegroup_impl_sm90_fp8_promotion(const tegroup_impl_sm90_fp8 *fp8) {
    if (fp8->facts[0].block_inner == 0 && fp8->facts[1].block_inner == 0) return TEGROUP_IMPL_SM90_AT_END;
    return fp8->facts[1].block_outer == 1 ? TEGROUP_IMPL_SM90_LINES_BOTH : TEGROUP_IMPL_SM90_SQUARE;
}

/* Makes the maps of A and B of a weight gradient's groups, and finds their scales, in the workspace. */
static inline tegroup_status tegroup_impl_sm90_fp8_map_groups(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                              const tegroup_impl_sm90_fp8_row *row,
                                                              tegroup_impl_sm90_call *call,
                                                              tegroup_impl_sm90_fp8 *fp8, struct CUstream_st *stream,
                                                              tegroup_error *error) {
    tegroup_impl_sm90_fp8_maps maps;
    tegroup_layout layout;
    uint64_t shift;
    tegroup_impl_layout_begin(&layout);
    tegroup_impl_sm90_workspace(plan, &layout);
    maps.to = (CUtensorMap *)tegroup_impl_layout_at(&layout, 0, desc->options.workspace);
    maps.scales = (tegroup_impl_sm90_scales *)tegroup_impl_layout_at(&layout, 1, desc->options.workspace);
    memcpy(maps.facts, fp8->facts, sizeof maps.facts);
    for (int i = 0; i < 2; i++) {
        const tegroup_tensor *t = i ? &call->call.desc.b : &call->call.desc.a;
        tegroup_tensor one = tegroup_tensor_uniform(1, t->shape.cols, TEGROUP_TRANSPOSED_ROWS, t->dtype, maps.to);
        call->listed[i] = tegroup_impl_listed(t); /* for the check of addresses */
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_encode(plan, &one, (tegroup_impl_operand)i, TEGROUP_IMPL_SM90_FP8_K,
                                                  i ? row->tile_n : row->tile_m, &maps.map[i], &shift, error));
    }
    call->of_groups = maps.to;
    fp8->of_groups = maps.scales;
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_sm90_fp8_maps_kernel,
                                                        dim3((unsigned)desc->a.shape.groups, 2), 32, 0, stream,
                                                        call->call, maps),
                                    "stream", "the kernels must launch", error);
}

static inline tegroup_status tegroup_impl_sm90_fp8_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                        struct CUstream_st *stream, tegroup_error *error) {
    const int wgrad = desc->op == TEGROUP_OP_WGRAD;
    const tegroup_impl_sm90_fp8_row *row =
        tegroup_impl_sm90_fp8_row_of((int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ROW]);
    tegroup_gemm_desc read = *desc;
    tegroup_impl_sm90_call call;
    tegroup_impl_sm90_fp8 fp8;
    void *arguments[2];
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    memset(&call, 0, sizeof call);
    memset(&fp8, 0, sizeof fp8);
    read.a = tegroup_impl_sm90_fp8_as_read(desc, TEGROUP_IMPL_A);
    read.b = tegroup_impl_sm90_fp8_as_read(desc, TEGROUP_IMPL_B);
    if (!wgrad) read.op = TEGROUP_OP_FORWARD;
    fp8.facts[0] = *tegroup_scaling_info(desc->a.scaling);
    fp8.facts[1] = *tegroup_scaling_info(desc->b.scaling);
    fp8.promotion = tegroup_impl_sm90_fp8_promotion(&fp8);
    if (!wgrad) tegroup_impl_sm90_fp8_count(&read, &fp8);
    fp8.a_e5m2 = desc->a.dtype == TEGROUP_DTYPE_F8E5M2;
    fp8.b_e5m2 = desc->b.dtype == TEGROUP_DTYPE_F8E5M2;
    tegroup_impl_sm90_call_of(&read, &call);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_slabs(plan, &call.call.desc.c, TEGROUP_IMPL_C, &call, error));
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_slabs(plan, &call.call.desc.d, TEGROUP_IMPL_D, &call, error));
    if (wgrad) {
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_fp8_map_groups(plan, desc, row, &call, &fp8, stream, error));
    } else {
        TEGROUP_IMPL_TRY(
            tegroup_impl_sm90_map(plan, &read.a, TEGROUP_IMPL_A, TEGROUP_IMPL_SM90_FP8_K, row->tile_m, &call, error));
        if (row->tile_m == TEGROUP_IMPL_SM90_LINES) /* the shape that has SHORT tiles */
            TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_smaller(plan, &read.a, TEGROUP_IMPL_A, TEGROUP_IMPL_SM90_FP8_K,
                                                           TEGROUP_IMPL_SM90_SHORT, 0, &call, error));
        TEGROUP_IMPL_TRY(
            tegroup_impl_sm90_map(plan, &read.b, TEGROUP_IMPL_B, TEGROUP_IMPL_SM90_FP8_K, row->tile_n, &call, error));
        if (row->narrows)
            TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_smaller(plan, &read.b, TEGROUP_IMPL_B, TEGROUP_IMPL_SM90_FP8_K,
                                                           TEGROUP_IMPL_SM90_NARROW, 0, &call, error));
    }
    arguments[0] = &call;
    arguments[1] = &fp8;
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_rest(&call.call, stream, error));
    return tegroup_impl_formats_bias_grad(desc, &call.call, stream, error);
}
#endif /* TEGROUP_NO_FP8 */
#endif /* TEGROUP_NO_SM90 */

/* ==== [69] The GPU and the library at hand (src/gemm/machine_cuda.h) ==== */

#if defined(TEGROUP_NO_CUBLASLT)
static inline int32_t tegroup_impl_cuda_cublaslt_version(const tegroup_gemm_desc *) { return 0; }
#endif

/* The backends that this unit holds code of for the current device. All kernels of a unit are compiled for the same
 * architectures, so the one that is looked up stands for all. */
static inline uint32_t tegroup_impl_cuda_images(int32_t sm) {
    cudaFuncAttributes attributes;
    const cudaError_t code = cudaFuncGetAttributes(&attributes, (const void *)tegroup_impl_prepare_kernel<1, true>);
    uint32_t built = tegroup_impl_built();
    if (code != cudaSuccess) (void)cudaGetLastError();
    if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction
        || code == cudaErrorUnsupportedPtxVersion)
        return built & 1u << TEGROUP_BACKEND_CPU;
    for (int b = 0; b < TEGROUP_BACKEND_COUNT; b++) {
        tegroup_impl_image_function *const image = tegroup_impl_backend_of((tegroup_backend)b)->image;
        if (image && !image(sm)) built &= ~(1u << b);
    }
    return built;
}

static inline tegroup_status tegroup_impl_cuda_check_device(const tegroup_plan *plan, tegroup_error *error) {
    int device = -1;
    cudaError_t code = cudaGetDevice(&device);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "plan.device", "there must be a current device", error));
    TEGROUP_IMPL_RULE(device == plan->device, ERROR_PLAN, "plan.device", "must be the current device", plan->device,
                      device);
    return TEGROUP_OK;
}

/* ==== [70] GPU backends: choosing an algorithm (src/layer/tune_cuda.h) ==== */

static inline tegroup_status tegroup_impl_cuda_kind(int32_t device, uint64_t *kind, tegroup_error *error) {
    cudaDeviceProp properties;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaGetDeviceProperties(&properties, device), "plan.device",
                                              "must be readable", error));
    *kind = tegroup_impl_hash(TEGROUP_IMPL_HASH, properties.name, strlen(properties.name));
    *kind = tegroup_impl_hash(*kind, &properties.multiProcessorCount, sizeof properties.multiProcessorCount);
    return TEGROUP_OK;
}

/* Reads memory, in pieces of 16 bytes, only to fill L2 with data that nobody wants. Writing would fill it, too, but the
 * next call's loads would wait for the write-back: 4 to 10 us with short groups. */
static __global__ void __launch_bounds__(256) tegroup_impl_flush_kernel(const uint4 *from, int64_t count) {
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256)
        asm volatile("{.reg .b32 r<4>;\nld.volatile.global.v4.b32 {r0, r1, r2, r3}, [%0];}" ::"l"(from + i) : "memory");
}
static inline cudaError_t tegroup_impl_flush(const void *flush, size_t bytes, struct CUstream_st *stream) {
    const uintptr_t first = ((uintptr_t)flush + 15) / 16, end = ((uintptr_t)flush + bytes) / 16;
    const int64_t count = (int64_t)(end > first ? end - first : 0);
    if (count == 0) return cudaSuccess;
    return tegroup_impl_launch(tegroup_impl_flush_kernel,
                               dim3((unsigned)tegroup_impl_min(tegroup_impl_ceil_div(count, 256), 4096)), 256, 0,
                               stream, (const uint4 *)(first * 16), count);
}

/* What gemm reads is quantised. */
static inline tegroup_status tegroup_impl_tune_quantize(const tegroup_tune_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    for (int32_t i = 0; i < desc->quantize_count; i++)
        TEGROUP_IMPL_TRY(tegroup_quantize(&desc->quantize[i], stream, error));
    return TEGROUP_OK;
}

/* One timed run, by a plan of gemm, of the rival or, without a plan, of what quantises. *milliseconds is -1 if it does
 * not run. */
static inline tegroup_status tegroup_impl_cuda_time(const tegroup_plan *plan, const tegroup_gemm_desc *gemm,
                                                    const tegroup_tune_desc *desc, struct CUstream_st *stream,
                                                    float *milliseconds, tegroup_error *error) {
    cudaError_t code = tegroup_impl_flush(desc->flush, desc->flush_bytes, stream);
    *milliseconds = -1;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "flush", "must be read by a kernel, which must launch", error));
    code = cudaEventRecord(desc->begin, stream);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "begin", "must be an event that can be recorded", error));
    TEGROUP_IMPL_TRY(plan ? tegroup_gemm(plan, gemm, stream, error) : tegroup_impl_tune_quantize(desc, stream, error));
    code = cudaEventRecord(desc->end, stream);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "end", "must be an event that can be recorded", error));
    code = cudaEventSynchronize(desc->end);
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(code, "stream", "must run what is enqueued", error));
    code = cudaEventElapsedTime(milliseconds, desc->begin, desc->end);
    const int blames_begin =
        code != cudaSuccess && cudaEventElapsedTime(milliseconds, desc->end, desc->end) == cudaSuccess;
    return tegroup_impl_cuda_status(code, blames_begin ? "begin" : "end", "must be an event with timing", error);
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

/* Shuffles `count` numbers by Fisher and Yates, with D. E. Knuth's linear congruential generator (MMIX). */
static inline void tegroup_impl_shuffle(int32_t *order, int32_t count, uint64_t *state) {
    for (int32_t i = count - 1; i > 0; i--) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        const int32_t j = (int32_t)((*state >> 33) % (uint64_t)(i + 1)), other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

enum { /* what is timed beside the candidates */
       TEGROUP_IMPL_TUNE_RIVAL = TEGROUP_TUNE_CANDIDATES,
       TEGROUP_IMPL_TUNE_QUANTIZE,
       TEGROUP_IMPL_TUNE_TIMED
};

/* Runs of all are interleaved, so that a changing clock affects all alike, and shuffled in each round: one that always
 * followed one of little power would always find the clock high. */
static inline tegroup_status tegroup_impl_cuda_tune(tegroup_plan *plan, const tegroup_tune_desc *desc,
                                                    struct CUstream_st *stream, tegroup_error *error) {
    tegroup_plan candidate;
    float times[TEGROUP_IMPL_TUNE_TIMED][TEGROUP_TUNE_ROUNDS], medians[TEGROUP_IMPL_TUNE_TIMED];
    int32_t order[TEGROUP_IMPL_TUNE_TIMED], count, timed;
    tegroup_impl_choices choices;
    uint64_t state = 1;
    const int32_t rounds = desc->rounds > 0 ? desc->rounds : 15;
    int32_t best = -1;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    tegroup_error last;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_status(cudaStreamIsCapturing(stream, &capture), "stream",
                                              "must tell whether it is capturing", error));
    TEGROUP_IMPL_RULE(capture == cudaStreamCaptureStatusNone, ERROR_COMBINATION, "stream",
                      "must not be capturing: tuning waits", 0, 1);
    TEGROUP_IMPL_RULE(desc->begin != NULL, ERROR_NULL_ARGUMENT, "begin", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(desc->end != NULL, ERROR_NULL_ARGUMENT, "end", "must not be NULL", 1, 0);
    if (desc->flush_bytes > 0) { /* only its ends: the caller says that it is one allocation */
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(desc->flush, "flush", error));
        TEGROUP_IMPL_TRY(
            tegroup_impl_cuda_check_address((const char *)desc->flush + desc->flush_bytes - 1, "flush_bytes", error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_choices_of(plan, desc->gemm, &choices, error));
    count = timed = choices.count;
    memset(&last, 0, sizeof last);
    for (int32_t i = 0; i < TEGROUP_IMPL_TUNE_TIMED; i++) medians[i] = -1;
    for (int32_t i = 0; i < count; i++) {
        order[i] = i;
        candidate = *plan;
        TEGROUP_IMPL_TRY(tegroup_impl_take_choice(&candidate, &choices.list[i], error));
        if (desc->any_numerics || candidate.numerics_id == plan->numerics_id) medians[i] = 0;
    }
    if (desc->rival_plan) order[timed++] = TEGROUP_IMPL_TUNE_RIVAL;
    if (desc->quantize_count > 0) order[timed++] = TEGROUP_IMPL_TUNE_QUANTIZE;
    /* Candidates multiply what is there: times depend on data. */
    TEGROUP_IMPL_TRY(tegroup_impl_of_member("quantize", tegroup_impl_tune_quantize(desc, stream, error), error));
    for (int32_t round = -1; round < rounds; round++) { /* the first round warms up */
        tegroup_impl_shuffle(order, timed, &state);
        for (int32_t turn = 0; turn < timed; turn++) {
            const int32_t i = order[turn];
            float time = -1;
            if (i >= TEGROUP_TUNE_CANDIDATES) {
                const int rival = i == TEGROUP_IMPL_TUNE_RIVAL;
                TEGROUP_IMPL_TRY(tegroup_impl_of_member(
                    rival ? "rival" : "quantize",
                    tegroup_impl_cuda_time(rival ? desc->rival_plan : NULL, desc->rival, desc, stream, &time, error),
                    error));
                if (round >= 0) times[i][round] = time;
                continue;
            }
            if (medians[i] < 0) continue;
            candidate = *plan;
            TEGROUP_IMPL_TRY(tegroup_impl_take_choice(&candidate, &choices.list[i], error));
            if (tegroup_impl_cuda_time(&candidate, desc->gemm, desc, stream, &time, &last) != TEGROUP_OK)
                medians[i] = -1;
            else if (round >= 0) times[i][round] = time;
        }
    }
    for (int32_t i = 0; i < count; i++) {
        if (medians[i] < 0) continue;
        medians[i] = tegroup_impl_median(times[i], rounds);
        if (best < 0 || medians[i] < medians[best]) best = i;
    }
    if (best < 0) { /* no candidate ran */
        if (error) *error = last;
        return last.status;
    }
    candidate = *plan;
    TEGROUP_IMPL_TRY(tegroup_impl_take_choice(&candidate, &choices.list[best], error));
    *plan = candidate;
    for (int32_t i = 0; i < TEGROUP_TUNE_CANDIDATES && desc->milliseconds; i++) desc->milliseconds[i] = medians[i];
    if (!desc->rival_plan) return TEGROUP_OK;
    desc->rival_milliseconds[0] = medians[best];
    if (desc->quantize_count > 0)
        desc->rival_milliseconds[0] += tegroup_impl_median(times[TEGROUP_IMPL_TUNE_QUANTIZE], rounds);
    desc->rival_milliseconds[1] = tegroup_impl_median(times[TEGROUP_IMPL_TUNE_RIVAL], rounds);
    return TEGROUP_OK;
}

/* ==== [71] A product with a functor (src/gemm/functor_cuda.h) ==== */

/* A type's own address. The variable is not const, since a linker may fold constants of the same value. */
template <typename FUNCTOR> inline uint64_t tegroup_impl_functor_type() {
    static char type;
    return (uint64_t)(uintptr_t)&type;
}

#define TEGROUP_IMPL_FUNCTOR_BYTES 240
#define TEGROUP_IMPL_FUNCTOR_PARAMETER_BYTES 4096 /* of a kernel, in every CUDA 12 */

/* A kernel's address, if it is wanted: no other is compiled. */
#if !defined(TEGROUP_NO_SM90)
template <bool WANTED, bool BF16, typename SHAPE, typename FUNCTOR> struct tegroup_impl_sm90_functor_code {
    static const void *kernel() { return NULL; }
};
template <bool BF16, typename SHAPE, typename FUNCTOR>
struct tegroup_impl_sm90_functor_code<true, BF16, SHAPE, FUNCTOR> {
    static_assert(sizeof(tegroup_impl_sm90_call) + TEGROUP_IMPL_FUNCTOR_BYTES <= TEGROUP_IMPL_FUNCTOR_PARAMETER_BYTES,
                  "a kernel's parameters have room for a functor");
    static const void *kernel() { return (const void *)tegroup_impl_sm90_functor_kernel<BF16, SHAPE, FUNCTOR>; }
};
template <tegroup_op OP, bool BF16, typename FUNCTOR>
static inline const void *tegroup_impl_sm90_functor_kernel_of(int32_t row) {
#define TEGROUP_IMPL_FUNCTOR_ROW(name, op, lines, cols, turns, slabs, flips, pairs, ns, epilogue, tb, us)              \
    if (row == TEGROUP_IMPL_SM90_##name)                                                                               \
        return tegroup_impl_sm90_functor_code<OP == (op), BF16,                                                        \
                                              tegroup_impl_sm90_shape<op, lines, cols, turns, slabs, flips, pairs>,    \
                                              FUNCTOR>::kernel();
#define TEGROUP_IMPL_FUNCTOR_MMA(name, op, ns, epilogue, tb, us)
    TEGROUP_IMPL_SM90_KERNELS(TEGROUP_IMPL_FUNCTOR_ROW, TEGROUP_IMPL_FUNCTOR_MMA)
#undef TEGROUP_IMPL_FUNCTOR_ROW
#undef TEGROUP_IMPL_FUNCTOR_MMA
    return NULL;
}
template <tegroup_op OP, bool BF16, typename FUNCTOR>
static inline tegroup_status tegroup_impl_sm90_take_functor(tegroup_plan *plan, tegroup_error *error) {
    const int32_t row = (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ROW];
    const void *kernel = tegroup_impl_sm90_functor_kernel_of<OP, BF16, FUNCTOR>(row);
    TEGROUP_IMPL_RULE(tegroup_impl_sm90_holds(kernel), ERROR_NOT_BUILT, "plan.backend",
                      "must be compiled where its functor is, too: nvcc -gencode arch=compute_90a,code=sm_90a",
                      TEGROUP_BACKEND_SM90, plan->backend);
    return tegroup_impl_cuda_status(tegroup_impl_planned(plan, kernel, TEGROUP_IMPL_SM90_THREADS,
                                                         tegroup_impl_sm90_code_of(row)->shared_bytes,
                                                         TEGROUP_IMPL_SM90_MOST_BLOCKS),
                                    "plan", "the kernel's attributes must be readable", error);
}
#endif

#if !defined(TEGROUP_NO_PORTABLE)
template <bool WANTED, bool BF16, int OP, int M, int N, int WARPS_M, int WARPS_N, int STAGES, typename FUNCTOR>
struct tegroup_impl_portable_functor_code {
    static const void *kernel() { return NULL; }
};
template <bool BF16, int OP, int M, int N, int WARPS_M, int WARPS_N, int STAGES, typename FUNCTOR>
struct tegroup_impl_portable_functor_code<true, BF16, OP, M, N, WARPS_M, WARPS_N, STAGES, FUNCTOR> {
    static const void *kernel() {
        return (const void *)tegroup_impl_portable_functor_kernel<BF16, OP, M, N, WARPS_M, WARPS_N, STAGES, FUNCTOR>;
    }
};
template <tegroup_op OP, bool BF16, typename FUNCTOR>
static inline tegroup_status tegroup_impl_portable_take_functor(tegroup_plan *plan, tegroup_error *error) {
    const void *kernel = NULL;
#define TEGROUP_IMPL_FUNCTOR_ROW(op, m, n, warps_m, warps_n, stages)                                                   \
    if (OP == (op) && plan->tile_m == (m))                                                                             \
        kernel = tegroup_impl_portable_functor_code<OP == (op), BF16, op, m, n, warps_m, warps_n, stages,              \
                                                    FUNCTOR>::kernel();
    TEGROUP_IMPL_PORTABLE_ROWS_1(TEGROUP_IMPL_FUNCTOR_ROW)
    TEGROUP_IMPL_PORTABLE_ROWS_2(TEGROUP_IMPL_FUNCTOR_ROW)
    TEGROUP_IMPL_PORTABLE_ROWS_3(TEGROUP_IMPL_FUNCTOR_ROW)
#undef TEGROUP_IMPL_FUNCTOR_ROW
    return tegroup_impl_portable_take(plan, kernel, (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_THREADS],
                                      (int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_SHARED], error);
}
#endif

static inline tegroup_status tegroup_impl_check_has_functor(const tegroup_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_RULE(plan->problem.functor, ERROR_PLAN, "plan.problem.functor",
                      "must be 1: plan a descriptor whose functor is 1", 1, 0);
    return TEGROUP_OK;
}

/* Gives a plan the kernel of a functor, compiled in this file.
 *
 *     struct clamped {                                             parameters are members
 *         float limit;
 *         __device__ float operator()(float x, const tegroup_element &at) const { return fminf(x, limit); }
 *     };
 *     gemm.functor = 1;
 *     tegroup_plan_make(&gemm, NULL, &plan, &error)
 *     tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, clamped>(&plan, &error)
 *     tegroup_gemm_with(&plan, &gemm, clamped{6}, stream, &error)
 *
 * x is alpha * sum + beta * c in F32; what the functor returns is rounded to d's type and stored. It is called once for
 * each element of d that the product writes, whatever the tile, in no order, and for no other; so it may read and write
 * what the caller has for that group, row and column (but for d, which is read as c). Rows that no group owns are the
 * tail's. Of an identity the bits are those of the product without a functor. FUNCTOR is trivially copyable and of at
 * most 240 bytes; it is copied when the call is enqueued, and a graph keeps its members as they were then, so what
 * changes from replay to replay lies behind a pointer to device memory.
 *
 * OP, DTYPE: the plan's, of a and b; kernels are compiled for these alone, one for each tile that a plan may have.
 * plan: made by tegroup_plan_make or tegroup_plan_load of a descriptor whose functor is 1; it may already have another
 * functor's kernel. Tile and workspace stay. On an error it is as before. Returns ERROR_NULL_ARGUMENT,
 * ERROR_STRUCT_SIZE, ERROR_PLAN (of another op or type, or made without a functor), ERROR_UNSUPPORTED (shared memory),
 * ERROR_NOT_BUILT, ERROR_CUDA. What backends cannot do is refused by tegroup_plan_make, and tegroup_explain says it. */
template <tegroup_op OP, tegroup_dtype DTYPE, typename FUNCTOR>
static inline tegroup_status tegroup_plan_with(tegroup_plan *plan, tegroup_error *error) {
    static_assert(DTYPE == TEGROUP_DTYPE_BF16 || DTYPE == TEGROUP_DTYPE_F16, "operands of 16 bits");
    static_assert(__is_trivially_copyable(FUNCTOR), "a kernel's parameter is copied as it lies in memory");
    static_assert(sizeof(FUNCTOR) <= TEGROUP_IMPL_FUNCTOR_BYTES, "a larger one is given a pointer to what it needs");
    tegroup_plan made;
    TEGROUP_IMPL_TRY(tegroup_impl_check_has_functor(plan, error));
    TEGROUP_IMPL_RULE(plan->problem.op == OP, ERROR_PLAN, "plan.problem.op",
                      "must be the operation that the functor is compiled for", OP, plan->problem.op);
    TEGROUP_IMPL_RULE_AS(DTYPE, plan->problem.a == DTYPE, ERROR_PLAN, "plan.problem.a",
                         "must be the type that the functor is compiled for", DTYPE, plan->problem.a);
    TEGROUP_IMPL_TRY(tegroup_impl_check_runs_here(plan, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_device(plan, error));
    made = *plan;
#if !defined(TEGROUP_NO_SM90)
    if (plan->backend == TEGROUP_BACKEND_SM90 && !tegroup_impl_sm90_plans_mma(plan))
        TEGROUP_IMPL_TRY((tegroup_impl_sm90_take_functor<OP, DTYPE == TEGROUP_DTYPE_BF16, FUNCTOR>(&made, error)));
    else
#endif
#if !defined(TEGROUP_NO_PORTABLE)
        TEGROUP_IMPL_TRY((tegroup_impl_portable_take_functor<OP, DTYPE == TEGROUP_DTYPE_BF16, FUNCTOR>(&made, error)));
#else
    TEGROUP_IMPL_RULE(0, ERROR_NOT_BUILT, "plan.backend", "must be part of this build", TEGROUP_BACKEND_SM90,
                      plan->backend);
#endif
    made.algorithm[TEGROUP_IMPL_PLANNED_FUNCTOR] = tegroup_impl_functor_type<FUNCTOR>();
    *plan = made;
    return TEGROUP_OK;
}

/* Runs the product of a plan that has the kernel of this functor, see tegroup_plan_with; like tegroup_gemm in all else:
 * what it checks, enqueues and promises, sizes in device memory, capture. desc is the planned one, with functor 1, and
 * tegroup_gemm_check checks it. functor: copied before the call returns. Returns what tegroup_gemm does, and ERROR_PLAN
 * without a kernel of this functor in the plan. */
template <typename FUNCTOR>
static inline tegroup_status tegroup_gemm_with(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                               const FUNCTOR &functor, struct CUstream_st *stream,
                                               tegroup_error *error) {
    tegroup_gemm_desc taken;
    tegroup_plan run;
    TEGROUP_IMPL_TRY(tegroup_impl_check_has_functor(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(plan->algorithm[TEGROUP_IMPL_PLANNED_FUNCTOR] == tegroup_impl_functor_type<FUNCTOR>(), ERROR_PLAN,
                      "plan", "must have the kernel of this functor's type: tegroup_plan_with", 1, 0);
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check_own(plan, desc, error));
    run = *plan;
    run.algorithm[TEGROUP_IMPL_PLANNED_FUNCTOR] = (uint64_t)(uintptr_t)&functor;
    return tegroup_impl_gemm_run(&run, desc, stream, error);
}
#endif /* TEGROUP_CUDA_IMPLEMENTATION_INCLUDED */
/* MIT License
 *
 * Copyright (c) 2026 the tegroup authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
 * documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
 * permit persons to whom the Software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
 * Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 * WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
 * OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
