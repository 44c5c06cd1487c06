/* ---- Portable GEMM: plan and launch ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "layer/mlp_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "core/layout.h"
#include "core/field_names.h"
#include "core/choice.h"
#include "core/quantised.h"
#include "core/epilogue.h"
#include "cuda/decoded.h"
#include "cuda/portable_decoded.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/codes.h"
#include "cuda/decode.h"
#include "cuda/portable.h"
#include "cuda/portable_f32.h"
#include "cuda/portable_formats.h"
#include "cuda/portable_weights.h"
#include "cuda/portable_promoted.h"

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
