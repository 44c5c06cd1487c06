/* ---- What each backend can do ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "core/problem.h"
#include "core/backend_table.h"
#include "core/quantised.h"
#include "cuda/sm90_decoded.h"
#include "cuda/sm90_repack.h"
#include "gemm/backends.h"

/* Backends in order of preference. If only the device knows d's columns, CUBLASLT_GROUPED gives NaN for groups whose D
 * it cannot store (see tegroup_impl_setup_group), so it comes after PORTABLE, which takes any. So does SM90 where it
 * would have to copy weights for few rows; either's results have the same bits then. */
TEGROUP_IMPL_STATIC tegroup_backend tegroup_impl_preference(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                            int32_t i) {
    static const tegroup_backend order[3][TEGROUP_BACKEND_COUNT - 1] = {
        {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_CUBLASLT_GROUPED, TEGROUP_BACKEND_PORTABLE,
         TEGROUP_BACKEND_CUBLASLT_LOOP, TEGROUP_BACKEND_CPU},
        {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_PORTABLE, TEGROUP_BACKEND_CUBLASLT_GROUPED,
         TEGROUP_BACKEND_CUBLASLT_LOOP, TEGROUP_BACKEND_CPU},
        {TEGROUP_BACKEND_CUBLASLT_GROUPED, TEGROUP_BACKEND_PORTABLE, TEGROUP_BACKEND_SM90,
         TEGROUP_BACKEND_CUBLASLT_LOOP, TEGROUP_BACKEND_CPU}};
    return order[p->ragged_cols[TEGROUP_IMPL_D] ? 1 : tegroup_impl_sm90_repays(desc, p) ? 0 : 2][i];
}

/* Whether this operand's groups have their own widths and no common leading dimension. */
TEGROUP_IMPL_STATIC int tegroup_impl_packed(const tegroup_problem *p, tegroup_impl_operand operand, int64_t ld) {
    return !ld && p->ragged_cols[operand];
}

/* Do rows of what is read of a or b, or its groups, lie apart by other than whole multiples of 16 bytes? Those of a
 * transposed copy are padded. */
TEGROUP_IMPL_STATIC int tegroup_impl_odd_distances(const tegroup_tensor *t, const tegroup_problem *p,
                                                   tegroup_impl_operand operand, int64_t ld) {
    if (tegroup_impl_plans_transposed(p, operand)) return 0;
    return ld * tegroup_impl_bits(t->dtype) % 128 != 0 || tegroup_impl_stride_bytes(t) % 16 != 0;
}

TEGROUP_IMPL_STATIC int tegroup_impl_quirk_applies(const tegroup_quirk *quirk, const tegroup_gemm_desc *desc,
                                                   const tegroup_problem *p, tegroup_backend backend,
                                                   const tegroup_target *target) {
    const int64_t d_bits = tegroup_impl_bits(p->d);
    const tegroup_dtype scale_dtype = tegroup_scaling_info(p->a_scaling)->scale_dtype;
    if (quirk->backend != backend || target->sm < quirk->sm_min || target->sm > quirk->sm_max) return 0;
    if (target->cublaslt_version < quirk->cublaslt_from || target->cublaslt_version >= quirk->cublaslt_below) return 0;
    switch (quirk->when) {
    case TEGROUP_QUIRK_WGRAD: return p->op == TEGROUP_OP_WGRAD;
    case TEGROUP_QUIRK_MISALIGNED_LD: /* packed groups may have any leading dimension */
        return tegroup_impl_packed(p, TEGROUP_IMPL_A, p->lda) || tegroup_impl_packed(p, TEGROUP_IMPL_B, p->ldb)
               || tegroup_impl_packed(p, TEGROUP_IMPL_C, p->ldc) || tegroup_impl_packed(p, TEGROUP_IMPL_D, p->ldd)
               || tegroup_impl_odd_distances(&desc->a, p, TEGROUP_IMPL_A, p->lda)
               || tegroup_impl_odd_distances(&desc->b, p, TEGROUP_IMPL_B, p->ldb) || p->ldc * d_bits % 128
               || p->ldd * d_bits % 128 || tegroup_impl_stride_bytes(&desc->c) % 16
               || tegroup_impl_stride_bytes(&desc->d) % 16;
    case TEGROUP_QUIRK_MISALIGNED_COLS:
        return !p->ragged_cols[TEGROUP_IMPL_D] && (p->op == TEGROUP_OP_FORWARD ? p->n : p->k) * d_bits % 128 != 0;
    case TEGROUP_QUIRK_GROUP_SCALARS:
        return p->alpha_stride || p->beta_stride || p->alpha_space == TEGROUP_SPACE_DEVICE
               || p->beta_space == TEGROUP_SPACE_DEVICE;
    case TEGROUP_QUIRK_NVFP4: return scale_dtype == TEGROUP_DTYPE_F8E4M3;
    case TEGROUP_QUIRK_SUMMED_BLOCKS: return p->op == TEGROUP_OP_WGRAD && scale_dtype == TEGROUP_DTYPE_F8E8M0;
    default: return 1;
    }
}

/* The first cuBLASLt version, from `version` on, that has none of the faults for which the problem is refused. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_version_needed(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                        tegroup_backend backend, const tegroup_target *target,
                                                        int32_t version) {
    int32_t count, i;
    const tegroup_quirk *quirks = tegroup_quirks(&count);
    tegroup_target then = *target;
    then.cublaslt_version = version;
    for (i = 0; i < count; i++) {
        if (quirks[i].action != TEGROUP_QUIRK_REFUSE || quirks[i].cublaslt_below == TEGROUP_QUIRK_UNFIXED
            || desc->options.ignore_quirks >> i & 1u
            || !tegroup_impl_quirk_applies(&quirks[i], desc, p, backend, &then))
            continue;
        then.cublaslt_version = quirks[i].cublaslt_below;
        i = -1; /* another fault may be in that version */
    }
    return then.cublaslt_version;
}

/* A problem that is judged by one row of the table. */
typedef struct tegroup_impl_case {
    const tegroup_backend_rule *rule;
    const tegroup_gemm_desc *desc;
    const tegroup_impl_names *names;
    const tegroup_problem *p;
    const tegroup_target *target;
    int here;           /* the target is this machine, so the handle must be there, too */
    tegroup_verdict *v; /* receives the first condition that is not met */
    int32_t met;        /* number of conditions met before that one */
} tegroup_impl_case;

#define TEGROUP_IMPL_NEED(holds, code, name, words, want, came)                                                        \
    TEGROUP_IMPL_NEED_AS(NUMBER, holds, code, name, words, want, came)
#define TEGROUP_IMPL_NEED_AS(kind, holds, code, name, words, want, came)                                               \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            c->v->status = TEGROUP_##code;                                                                             \
            c->v->field = (name);                                                                                      \
            c->v->rule = (words);                                                                                      \
            c->v->expected = (int64_t)(want);                                                                          \
            c->v->got = (int64_t)(came);                                                                               \
            c->v->reading = TEGROUP_READING_##kind;                                                                    \
            return 0;                                                                                                  \
        }                                                                                                              \
        c->met++;                                                                                                      \
    } while (0)
#define TEGROUP_IMPL_HAS(feature) ((rule->features & TEGROUP_FEATURE_##feature) != 0)

/* Each of the following functions returns whether all of its conditions are met. */

/* Where it runs: build, memory, GPU. */
TEGROUP_IMPL_STATIC int tegroup_impl_judge_machine(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_problem *p = c->p;
    const tegroup_target *target = c->target;
    const int device = c->p->space == TEGROUP_SPACE_DEVICE;
    TEGROUP_IMPL_NEED(target->built >> rule->backend & 1u, ERROR_NOT_BUILT, "target.built",
                      rule->backend == TEGROUP_BACKEND_SM90
                          ? "must hold this backend: nvcc -gencode arch=compute_90a,code=sm_90a"
                          : "must hold this backend, with code for this GPU",
                      1, 0);
    TEGROUP_IMPL_NEED(TEGROUP_IMPL_HAS(HOST_MEMORY) != device, ERROR_UNSUPPORTED, "space",
                      "must be where this backend's operands live",
                      TEGROUP_IMPL_HAS(HOST_MEMORY) ? TEGROUP_SPACE_HOST : TEGROUP_SPACE_DEVICE, p->space);
    TEGROUP_IMPL_NEED(TEGROUP_IMPL_HAS(HOST_MEMORY) || target->sm > 0, ERROR_UNSUPPORTED, "target.sm",
                      "must be that of a GPU; no usable one was found", rule->sm_min, target->sm);
    TEGROUP_IMPL_NEED(TEGROUP_IMPL_HAS(HOST_MEMORY) || target->sm >= rule->sm_min, ERROR_UNSUPPORTED, "target.sm",
                      "is older than the backend needs", rule->sm_min, target->sm);
    TEGROUP_IMPL_NEED(TEGROUP_IMPL_HAS(HOST_MEMORY) || target->sm <= rule->sm_max, ERROR_UNSUPPORTED, "target.sm",
                      "is newer than the backend knows", rule->sm_max, target->sm);
    return 1;
}

/* The types of operands of all the backend's rows for this GPU. */
TEGROUP_IMPL_STATIC uint32_t tegroup_impl_operand_dtypes(const tegroup_impl_case *c) {
    int32_t count, i;
    const tegroup_backend_rule *rules = tegroup_backend_rules(&count);
    uint32_t dtypes = 0;
    for (i = 0; i < count; i++)
        if (rules[i].backend == c->rule->backend
            && (rules[i].sm_max == 0 || (c->target->sm >= rules[i].sm_min && c->target->sm <= rules[i].sm_max)))
            dtypes |= rules[i].operand_dtypes;
    return dtypes;
}

/* Types, scalings, and the library's version. */
TEGROUP_IMPL_STATIC int tegroup_impl_judge_types(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_gemm_desc *desc = c->desc;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    const tegroup_target *target = c->target;
    const int here = c->here;
    /* what build switches leave out of the bundled backends' kernels */
    const int bundled = c->rule->backend == TEGROUP_BACKEND_SM90 || c->rule->backend == TEGROUP_BACKEND_PORTABLE;
    const uint32_t without = bundled ? c->target->built : 0;
    TEGROUP_IMPL_NEED_AS(DTYPES, rule->operand_dtypes >> p->a & 1u, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(A, DTYPE), "must be one that the backend multiplies here",
                         tegroup_impl_operand_dtypes(c), p->a);
    TEGROUP_IMPL_NEED_AS(SCALINGS, rule->scalings >> p->a_scaling & 1u, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(A, SCALING), "must be one that the backend knows here",
                         rule->scalings, p->a_scaling);
    TEGROUP_IMPL_NEED_AS(SCALINGS, rule->scalings >> p->b_scaling & 1u, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(B, SCALING), "must be one that the backend knows here",
                         rule->scalings, p->b_scaling);
    TEGROUP_IMPL_NEED_AS(DTYPE, p->a != TEGROUP_DTYPE_F32 || p->b == p->a || TEGROUP_IMPL_HAS(MIXED), ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(B, DTYPE),
                         "must be F32, too: the backend multiplies no F32 by weights of 16 bits", p->a, p->b);
    TEGROUP_IMPL_NEED_AS(DTYPES, rule->operand_dtypes >> p->b & 1u, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(B, DTYPE), "must be one that the backend multiplies here",
                         tegroup_impl_operand_dtypes(c), p->b);
    TEGROUP_IMPL_NEED_AS(SCALING, !(without & TEGROUP_IMPL_WITHOUT_FP8) || !tegroup_impl_quantised(p), ERROR_NOT_BUILT,
                         p->a_scaling ? TEGROUP_IMPL_OPERAND_PATH(A, SCALING) : TEGROUP_IMPL_OPERAND_PATH(B, SCALING),
                         "must be none in a build with TEGROUP_NO_FP8", TEGROUP_SCALING_NONE,
                         p->a_scaling ? p->a_scaling : p->b_scaling);
    TEGROUP_IMPL_NEED_AS(DTYPE, p->a != TEGROUP_DTYPE_F16 || !(without & TEGROUP_IMPL_WITHOUT_F16), ERROR_NOT_BUILT,
                         TEGROUP_IMPL_OPERAND_PATH(A, DTYPE), "must not be F16 in a build with TEGROUP_NO_F16",
                         TEGROUP_DTYPE_BF16, p->a);
    TEGROUP_IMPL_NEED(p->op == TEGROUP_OP_FORWARD || !(without & TEGROUP_IMPL_WITHOUT_BACKWARD), ERROR_NOT_BUILT, "op",
                      "must be FORWARD in a build with TEGROUP_NO_BACKWARD", TEGROUP_OP_FORWARD, p->op);
    TEGROUP_IMPL_NEED_AS(DTYPES, rule->result_dtypes >> p->d & 1u, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(D, DTYPE), "must be one that the backend writes",
                         rule->result_dtypes, p->d);
    TEGROUP_IMPL_NEED(target->cublaslt_version >= rule->cublaslt_min, ERROR_UNSUPPORTED, "target.cublaslt_version",
                      "is older than the backend needs here",
                      tegroup_impl_version_needed(desc, p, rule->backend, target, rule->cublaslt_min),
                      target->cublaslt_version);
    TEGROUP_IMPL_NEED(!here || !rule->cublaslt_min || desc->options.cublaslt, ERROR_UNSUPPORTED, "options.cublaslt",
                      "must be the caller's cublasLtHandle_t", 1, 0);
    TEGROUP_IMPL_NEED(p->compute != TEGROUP_COMPUTE_F64 || TEGROUP_IMPL_HAS(F64), ERROR_UNSUPPORTED, "options.compute",
                      "must be F32", TEGROUP_COMPUTE_F32, p->compute);
    return 1;
}

/* How quantised operands are stored, and which of them go together, for cuBLASLt (its documentation, "cublasLtMatmul"
 * and "Narrow precision data types usage"; by experiment with 13.10 on SM90). */
TEGROUP_IMPL_STATIC int tegroup_impl_judge_quantised(tegroup_impl_case *c) {
    const tegroup_gemm_desc *desc = c->desc;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    const tegroup_scaling scalings[2] = {p->a_scaling, p->b_scaling};
    const int fp4 = p->a == TEGROUP_DTYPE_F4E2M1;
    const int mxfp8 = tegroup_scaling_info(p->a_scaling)->scale_dtype == TEGROUP_DTYPE_F8E8M0;
    int i;
    if (c->rule->backend != TEGROUP_BACKEND_CUBLASLT_GROUPED || !tegroup_impl_quantised(p)) return 1;
    TEGROUP_IMPL_NEED_AS(DTYPE, p->a != TEGROUP_DTYPE_F8E5M2 || p->b != TEGROUP_DTYPE_F8E5M2, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(B, DTYPE), "must be F8E4M3 beside an a of F8E5M2",
                         TEGROUP_DTYPE_F8E4M3, p->b);
    TEGROUP_IMPL_NEED_AS(SCALING,
                         p->a_scaling != TEGROUP_SCALING_BLOCK_128X128 || p->b_scaling != TEGROUP_SCALING_BLOCK_128X128,
                         ERROR_UNSUPPORTED, TEGROUP_IMPL_OPERAND_PATH(B, SCALING),
                         "must be 1x128 beside an a of 128x128", TEGROUP_SCALING_BLOCK_1X128, p->b_scaling);
    TEGROUP_IMPL_NEED(!fp4 || p->op != TEGROUP_OP_WGRAD, ERROR_UNSUPPORTED, "op",
                      "must not be WGRAD: it sums over rows, which need not fill blocks", TEGROUP_OP_DGRAD, p->op);
    TEGROUP_IMPL_NEED((!fp4 && !mxfp8) || p->op == TEGROUP_OP_WGRAD || desc->a.shape.cols % 32 == 0, ERROR_UNSUPPORTED,
                      TEGROUP_IMPL_OPERAND_PATH(A, COLS), "must be a multiple of so many, to fill blocks and 16 bytes",
                      32, desc->a.shape.cols);
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++) {
        const tegroup_tensor *t = i == TEGROUP_IMPL_A ? &desc->a : &desc->b;
        const tegroup_impl_name *name = names->operand[i];
        const tegroup_dtype own = tegroup_scaling_info(scalings[i])->scale_dtype;
        TEGROUP_IMPL_NEED_AS(DTYPE, p->scale_dtype[i] == TEGROUP_DTYPE_UNSET || p->scale_dtype[i] == own,
                             ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALE_DTYPE), "must be the scaling's own", own,
                             p->scale_dtype[i]);
        TEGROUP_IMPL_NEED(!p->scale_strides[i], ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALE_OUTER_STRIDE),
                          "must be 0: the backend reads scales in the default packing", 0, t->scale_outer_stride);
        TEGROUP_IMPL_NEED(t->scale_parts <= 1, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALE_PARTS),
                          "must be 0 or 1: the backend reads one grid of scales a group", 1, t->scale_parts);
        TEGROUP_IMPL_NEED(mxfp8 || !tegroup_impl_sums_rows(p->op, (tegroup_impl_operand)i)
                              || tegroup_impl_plans_transposed(p, (tegroup_impl_operand)i),
                          ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(COLUMNWISE_ORDER),
                          "must be TRANSPOSED: the backend sums along contiguous elements of this type",
                          TEGROUP_COLUMNWISE_TRANSPOSED, p->columnwise_order[i]);
    }
    return 1;
}

/* Sizes of groups: in which memory they are, and what may differ between groups. */
TEGROUP_IMPL_STATIC int tegroup_impl_judge_sizes(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    int i;
    for (i = 0; i < 4; i++) {
        const char *field = names->operand[i]->members[TEGROUP_IMPL_MEMBER_SIZES_SPACE];
        TEGROUP_IMPL_NEED(p->rows_space[i] != TEGROUP_SPACE_DEVICE || TEGROUP_IMPL_HAS(DEVICE_SIZES), ERROR_UNSUPPORTED,
                          field, "must be HOST", TEGROUP_SPACE_HOST, p->rows_space[i]);
        TEGROUP_IMPL_NEED(p->rows_space[i] != TEGROUP_SPACE_HOST || TEGROUP_IMPL_HAS(HOST_SIZES), ERROR_UNSUPPORTED,
                          field, "must be DEVICE", TEGROUP_SPACE_DEVICE, p->rows_space[i]);
    }
    for (i = 0; i < 4; i++) {
        TEGROUP_IMPL_NEED(!p->ragged_cols[i] || TEGROUP_IMPL_HAS(IRREGULAR), ERROR_UNSUPPORTED,
                          names->operand[i]->members[TEGROUP_IMPL_MEMBER_COL_SIZES],
                          "must be unset: the backend takes groups of the same columns", TEGROUP_ENCODING_UNSET, 1);
        TEGROUP_IMPL_NEED(!p->has_elements[i] || TEGROUP_IMPL_HAS(IRREGULAR), ERROR_UNSUPPORTED,
                          names->operand[i]->members[TEGROUP_IMPL_MEMBER_ELEMENTS],
                          "must be 0: the backend takes groups of the same columns", 0, 1);
    }
    TEGROUP_IMPL_NEED(!p->irregular || TEGROUP_IMPL_HAS(IRREGULAR), ERROR_UNSUPPORTED,
                      names->operand[p->op == TEGROUP_OP_WGRAD ? TEGROUP_IMPL_D : TEGROUP_IMPL_B]
                          ->members[TEGROUP_IMPL_MEMBER_ROW_SIZES],
                      "must be unset: the backend takes groups of the same rows there", TEGROUP_ENCODING_UNSET, 1);
    if (rule->backend != TEGROUP_BACKEND_SM90) return 1;
    TEGROUP_IMPL_NEED(p->rows <= TEGROUP_IMPL_SM90_MOST, ERROR_UNSUPPORTED, TEGROUP_IMPL_OPERAND_PATH(A, ROWS),
                      "must be countable in 31 bits", TEGROUP_IMPL_SM90_MOST, p->rows);
    TEGROUP_IMPL_NEED(p->n <= TEGROUP_IMPL_SM90_MOST, ERROR_UNSUPPORTED,
                      p->op == TEGROUP_OP_FORWARD ? TEGROUP_IMPL_OPERAND_PATH(D, COLS)
                                                  : TEGROUP_IMPL_OPERAND_PATH(A, COLS),
                      "must be countable in 31 bits", TEGROUP_IMPL_SM90_MOST, p->n);
    TEGROUP_IMPL_NEED(p->k <= TEGROUP_IMPL_SM90_MOST, ERROR_UNSUPPORTED,
                      p->op == TEGROUP_OP_FORWARD ? TEGROUP_IMPL_OPERAND_PATH(A, COLS)
                                                  : TEGROUP_IMPL_OPERAND_PATH(D, COLS),
                      "must be countable in 31 bits", TEGROUP_IMPL_SM90_MOST, p->k);
    return 1;
}

/* Where operands are: gathered rows, lists of addresses. */
TEGROUP_IMPL_STATIC int tegroup_impl_judge_places(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_gemm_desc *desc = c->desc;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    int i;
    for (i = 0; i < 2; i++)
        TEGROUP_IMPL_NEED(!p->gathered[i] || TEGROUP_IMPL_HAS(GATHER), ERROR_UNSUPPORTED,
                          names->operand[i]->members[TEGROUP_IMPL_MEMBER_GATHER_ROWS],
                          "must be 0: the backend reads rows in their order, from a permuted copy", 0,
                          i == TEGROUP_IMPL_A ? desc->gather_a.rows : desc->gather_b.rows);
    for (i = 0; i < 2 && rule->backend == TEGROUP_BACKEND_SM90; i++) {
        const int64_t rows = i == TEGROUP_IMPL_A ? desc->gather_a.rows : desc->gather_b.rows;
        TEGROUP_IMPL_NEED(rows <= INT32_MAX, ERROR_UNSUPPORTED,
                          names->operand[i]->members[TEGROUP_IMPL_MEMBER_GATHER_ROWS], "must be countable in 31 bits",
                          INT32_MAX, rows);
    }
    for (i = 0; i < 5; i++) {
        const char *field = names->operand[i]->members[TEGROUP_IMPL_MEMBER_POINTERS_SPACE];
        TEGROUP_IMPL_NEED(p->pointers_space[i] == TEGROUP_SPACE_UNSET || TEGROUP_IMPL_HAS(LISTS), ERROR_UNSUPPORTED,
                          field, "must be unset", TEGROUP_SPACE_UNSET, p->pointers_space[i]);
        TEGROUP_IMPL_NEED(p->pointers_space[i] != TEGROUP_SPACE_HOST || !TEGROUP_IMPL_HAS(DEVICE_SIZES),
                          ERROR_UNSUPPORTED, field, "must be DEVICE: its kernels read the list", TEGROUP_SPACE_DEVICE,
                          p->pointers_space[i]);
        TEGROUP_IMPL_NEED(p->pointers_space[i] != TEGROUP_SPACE_DEVICE || TEGROUP_IMPL_HAS(DEVICE_SIZES),
                          ERROR_UNSUPPORTED, field, "must be HOST: the list is read there", TEGROUP_SPACE_HOST,
                          p->pointers_space[i]);
    }
    return 1;
}

/* Copies and scales of quantised operands, of which SM90's kernels take some. */
TEGROUP_IMPL_STATIC int tegroup_impl_judge_copies(tegroup_impl_case *c) {
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    int i;
    TEGROUP_IMPL_NEED(
        p->code_order[TEGROUP_IMPL_B] == TEGROUP_CODES_IN_ORDER || c->rule->backend == TEGROUP_BACKEND_CPU
            || (c->rule->backend == TEGROUP_BACKEND_SM90 && tegroup_impl_sm90_holds_weights(c->desc, p)),
        ERROR_UNSUPPORTED, TEGROUP_IMPL_OPERAND_PATH(B, CODE_ORDER),
        c->rule->backend == TEGROUP_BACKEND_SM90
            ? "must be IN_ORDER unless weights are decoded in registers: ragged rows that no index picks, "
              "d of two bytes to which a bias alone is added, scales in the default packing"
            : "must be IN_ORDER for this backend",
        TEGROUP_CODES_IN_ORDER, p->code_order[TEGROUP_IMPL_B]);
    if (c->rule->backend != TEGROUP_BACKEND_SM90 || !tegroup_impl_sm90_multiplies_fp8(p)) return 1;
    for (i = 0; i < 2; i++) {
        const tegroup_impl_name *name = names->operand[i];
        const int32_t parts = i ? c->desc->b.scale_parts : c->desc->a.scale_parts;
        TEGROUP_IMPL_NEED(p->columnwise_order[i] == TEGROUP_COLUMNWISE_TRANSPOSED
                              || !tegroup_impl_sums_rows(p->op, (tegroup_impl_operand)i),
                          ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(COLUMNWISE_ORDER),
                          "must be TRANSPOSED: wgmma takes FP8 contiguous along k alone", TEGROUP_COLUMNWISE_TRANSPOSED,
                          p->columnwise_order[i]);
        TEGROUP_IMPL_NEED_AS(DTYPE, p->scale_dtype[i] == TEGROUP_DTYPE_UNSET || p->scale_dtype[i] == TEGROUP_DTYPE_F32,
                             ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALE_DTYPE), "must be F32 for this backend",
                             TEGROUP_DTYPE_F32, p->scale_dtype[i]);
        TEGROUP_IMPL_NEED(parts <= 1, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALE_PARTS),
                          "must be 0 or 1 for this backend", 1, parts);
    }
    return 1;
}

/* alpha and beta. */
TEGROUP_IMPL_STATIC int tegroup_impl_judge_scalars(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_problem *p = c->p;
    const int device = c->p->space == TEGROUP_SPACE_DEVICE;
    TEGROUP_IMPL_NEED(p->alpha_space != TEGROUP_SPACE_DEVICE || device, ERROR_UNSUPPORTED, "alpha.space",
                      "must be HOST for operands in host memory", TEGROUP_SPACE_HOST, p->alpha_space);
    TEGROUP_IMPL_NEED(p->beta_space != TEGROUP_SPACE_DEVICE || device, ERROR_UNSUPPORTED, "beta.space",
                      "must be HOST for operands in host memory", TEGROUP_SPACE_HOST, p->beta_space);
    TEGROUP_IMPL_NEED(!p->alpha_stride || p->alpha_space == TEGROUP_SPACE_DEVICE || !TEGROUP_IMPL_HAS(DEVICE_SIZES),
                      ERROR_UNSUPPORTED, "alpha.space", "must be DEVICE for one a group", TEGROUP_SPACE_DEVICE,
                      p->alpha_space);
    TEGROUP_IMPL_NEED(!p->beta_stride || p->beta_space == TEGROUP_SPACE_DEVICE || !TEGROUP_IMPL_HAS(DEVICE_SIZES),
                      ERROR_UNSUPPORTED, "beta.space", "must be DEVICE for one a group", TEGROUP_SPACE_DEVICE,
                      p->beta_space);
    TEGROUP_IMPL_NEED(!p->alpha_stride || p->alpha_space != TEGROUP_SPACE_HOST || p->beta_space != TEGROUP_SPACE_DEVICE,
                      ERROR_UNSUPPORTED, "alpha.space", "must be DEVICE for one a group where beta's is",
                      TEGROUP_SPACE_DEVICE, p->alpha_space);
    TEGROUP_IMPL_NEED(!p->beta_stride || p->beta_space != TEGROUP_SPACE_HOST || p->alpha_space != TEGROUP_SPACE_DEVICE,
                      ERROR_UNSUPPORTED, "beta.space", "must be DEVICE for one a group where alpha's is",
                      TEGROUP_SPACE_DEVICE, p->beta_space);
    TEGROUP_IMPL_NEED(!p->alpha_stride || TEGROUP_IMPL_HAS(GROUP_SCALARS), ERROR_UNSUPPORTED, "alpha.stride",
                      "must be 0", 0, p->alpha_stride);
    TEGROUP_IMPL_NEED(!p->beta_stride || TEGROUP_IMPL_HAS(GROUP_SCALARS), ERROR_UNSUPPORTED, "beta.stride", "must be 0",
                      0, p->beta_stride);
    return 1;
}

/* Bias, tail, sm_limit. */
TEGROUP_IMPL_STATIC int tegroup_impl_judge_extras(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_gemm_desc *desc = c->desc;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    const int device = c->p->space == TEGROUP_SPACE_DEVICE;
    TEGROUP_IMPL_NEED(p->bias == TEGROUP_DTYPE_UNSET || TEGROUP_IMPL_HAS(BIAS), ERROR_UNSUPPORTED,
                      names->operand[TEGROUP_IMPL_BIAS]->name, "must be absent", 0, p->bias);
    TEGROUP_IMPL_NEED(p->tail == TEGROUP_TAIL_KEEP || TEGROUP_IMPL_HAS(TAIL), ERROR_UNSUPPORTED, names->tail,
                      "must be KEEP", TEGROUP_TAIL_KEEP, p->tail);
    TEGROUP_IMPL_NEED(!p->functor || TEGROUP_IMPL_HAS(FUNCTOR), ERROR_UNSUPPORTED, "functor",
                      "must be 0: no kernel of this backend takes one here", 0, 1);
    TEGROUP_IMPL_NEED_AS(DTYPE, !p->functor || p->a != TEGROUP_DTYPE_F32, ERROR_UNSUPPORTED,
                         TEGROUP_IMPL_OPERAND_PATH(A, DTYPE), "must have 16 bits where there is a functor",
                         TEGROUP_DTYPE_BF16, p->a);
    TEGROUP_IMPL_NEED(!desc->options.sm_limit || !device || TEGROUP_IMPL_HAS(SM_LIMIT), ERROR_UNSUPPORTED,
                      "options.sm_limit", "must be 0: cuBLASLt takes it for a hint", 0, desc->options.sm_limit);
    return 1;
}

/* Addresses and strides. */
TEGROUP_IMPL_STATIC int tegroup_impl_judge_alignment(tegroup_impl_case *c) {
    const tegroup_backend_rule *rule = c->rule;
    const tegroup_gemm_desc *desc = c->desc;
    const tegroup_impl_names *names = c->names;
    const tegroup_problem *p = c->p;
    const int64_t data = c->rule->backend == TEGROUP_BACKEND_CUBLASLT_GROUPED ? 16 : c->rule->ld_alignment_bytes;
    const int64_t unit = (int64_t)c->rule->ld_alignment_bytes * 8;
    int i;
    TEGROUP_IMPL_NEED(!desc->options.data_alignment_bytes || desc->options.data_alignment_bytes >= data,
                      ERROR_UNSUPPORTED, "options.data_alignment_bytes", "must be 0 or at least what the backend needs",
                      data, desc->options.data_alignment_bytes);
    TEGROUP_IMPL_NEED(rule->backend != TEGROUP_BACKEND_CUBLASLT_GROUPED || !tegroup_impl_placed(desc)
                          || desc->options.data_alignment_bytes >= data,
                      ERROR_UNSUPPORTED, "options.data_alignment_bytes",
                      "must say that groups at shape.offsets begin at multiples of what the backend needs", data,
                      desc->options.data_alignment_bytes);
    for (i = 0; unit && i < 4; i++) {
        if (i < 2 && rule->backend == TEGROUP_BACKEND_SM90
            && tegroup_impl_scaled_by_8_bits(i ? p->b_scaling : p->a_scaling))
            continue; /* TMA loads what is decoded elsewhere */
        const tegroup_impl_name *name = names->operand[i];
        const tegroup_tensor *tensors[4] = {&desc->a, &desc->b, &desc->c, &desc->d}, *t = tensors[i];
        const tegroup_dtype dtypes[4] = {p->a, p->b, p->d, p->d};
        const int64_t lds[4] = {p->lda, p->ldb, p->ldc, p->ldd}, bits = lds[i] * tegroup_impl_bits(dtypes[i]),
                      stride = tegroup_impl_stride_bytes(t);
        if (rule->backend == TEGROUP_BACKEND_SM90 && i <= TEGROUP_IMPL_B
            && tegroup_impl_sm90_repacks(p, (tegroup_impl_operand)i)) {
            TEGROUP_IMPL_NEED(!tegroup_impl_ragged(&t->shape) || t->shape.rows <= p->rows, ERROR_UNSUPPORTED,
                              TEGROUP_IMPL_PATH(ROWS), "must be at most a's where ld is repacked", p->rows,
                              t->shape.rows);
            continue;
        }
        TEGROUP_IMPL_NEED(bits % unit == 0, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(LD),
                          "must be a multiple of so many bytes", rule->ld_alignment_bytes, bits / 8);
        TEGROUP_IMPL_NEED(stride % rule->ld_alignment_bytes == 0, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                          "must be a multiple of so many bytes", rule->ld_alignment_bytes, stride);
        TEGROUP_IMPL_NEED(stride <= TEGROUP_IMPL_TMA_STRIDE_BYTES, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(GROUP_STRIDE),
                          "must be at most so many bytes, for TMA", TEGROUP_IMPL_TMA_STRIDE_BYTES, stride);
    }
    return 1;
}

#undef TEGROUP_IMPL_HAS
#undef TEGROUP_IMPL_NEED
#undef TEGROUP_IMPL_NEED_AS

/* Finds the first condition of one table row that the problem does not meet. Returns how many it met before, or
 * INT32_MAX if it meets all. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_judge(const tegroup_backend_rule *rule, const tegroup_gemm_desc *desc,
                                               const tegroup_impl_names *names, const tegroup_problem *p,
                                               const tegroup_target *target, int here, tegroup_verdict *v) {
    tegroup_impl_case c;
    c.rule = rule;
    c.desc = desc;
    c.names = names;
    c.p = p;
    c.target = target;
    c.here = here;
    c.v = v;
    c.met = 0;
    if (tegroup_impl_judge_machine(&c) && tegroup_impl_judge_types(&c) && tegroup_impl_judge_quantised(&c)
        && tegroup_impl_judge_sizes(&c) && tegroup_impl_judge_places(&c) && tegroup_impl_judge_copies(&c)
        && tegroup_impl_judge_scalars(&c)
        && tegroup_impl_judge_extras(&c) && tegroup_impl_judge_alignment(&c))
        return INT32_MAX;
    return c.met;
}
