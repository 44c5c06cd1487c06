/* ---- Hopper GEMM: plan and launch ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "core/activation_types.h"
#include "layer/mlp_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/copies.h"
#include "core/problem.h"
#include "core/choice.h"
#include "core/quantised.h"
#include "core/epilogue.h"
#include "cuda/sm90_kernels.h"
#include "cuda/sm90_balance.h"
#include "cuda/decoded.h"
#include "cuda/sm90_decoded.h"
#include "cuda/sm90_fp8_kernels.h"
#include "cuda/sm90_repack.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/codes.h"
#include "cuda/decode.h"
#include "cuda/portable_plan.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_scheduler.h"
#include "cuda/sm90_multiply.h"
#include "cuda/sm90_code.h"
#include "cuda/sm90_repack_kernels.h"

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
