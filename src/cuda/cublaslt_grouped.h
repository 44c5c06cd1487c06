/* ---- cublaslt_grouped ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/cublaslt_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/copies.h"
#include "core/problem.h"
#include "core/choice.h"
#include "core/quantised.h"
#include "cuda/cublaslt_setup.h"
#include "cuda/cublaslt_scales.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/cublaslt.h"
#include "cuda/cublaslt_setup_kernels.h"

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
