/* ---- GPU calls ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "core/activation_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/snapshot_checks.h"
#include "core/problem.h"
#include "core/choice.h"
#include "core/product.h"
#include "core/epilogue.h"
#include "core/activation_formulas.h"
#include "cuda/launch.h"
#include "cuda/rows.h"

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
