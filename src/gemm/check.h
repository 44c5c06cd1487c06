/* ---- What a call checks ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/options_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/snapshot_checks.h"
#include "core/copies.h"
#include "core/apart.h"
#include "core/problem.h"
#include "core/product.h"
#include "core/quantised.h"
#include "gemm/backends.h"

#if defined(TEGROUP_IMPL_CUDA)
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_check_pointers(const tegroup_gemm_desc *desc,
                                                                    const tegroup_impl_names *names,
                                                                    tegroup_error *error);
/* The device that a plan is bound to must be the current one. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_check_device(const tegroup_plan *plan, tegroup_error *error);
#endif

/* A call's problem must equal the planned one, field by field; but rows that are ragged are what a call's buffers hold,
 * which may be fewer or more. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_planned(const tegroup_problem *planned, const tegroup_problem *p,
                                                              const tegroup_impl_names *names, tegroup_error *error) {
#define TEGROUP_IMPL_SAME_AS(reading, member, field)                                                                   \
    TEGROUP_IMPL_RULE_AS(reading, planned->member == p->member, ERROR_PLAN, field, "must be as planned",               \
                         planned->member, p->member)
#define TEGROUP_IMPL_SAME(member, field) TEGROUP_IMPL_SAME_AS(NUMBER, member, field)
#define TEGROUP_IMPL_SAME_EACH(member, count, path)                                                                    \
    for (i = 0; i < (count); i++) TEGROUP_IMPL_SAME(member[i], names->operand[i]->members[TEGROUP_IMPL_MEMBER_##path])
    int32_t i;
    TEGROUP_IMPL_SAME(op, "op");
    TEGROUP_IMPL_SAME(space, "space");
    TEGROUP_IMPL_SAME(compute, "options.compute");
    TEGROUP_IMPL_SAME(groups, TEGROUP_IMPL_OPERAND_PATH(A, GROUPS));
    if (!p->rows_space[TEGROUP_IMPL_A] || !planned->rows_space[TEGROUP_IMPL_A])
        TEGROUP_IMPL_SAME(rows, TEGROUP_IMPL_OPERAND_PATH(A, ROWS));
    TEGROUP_IMPL_SAME(n, p->op == TEGROUP_OP_FORWARD ? TEGROUP_IMPL_OPERAND_PATH(D, COLS)
                                                     : TEGROUP_IMPL_OPERAND_PATH(A, COLS));
    TEGROUP_IMPL_SAME(k, p->op == TEGROUP_OP_FORWARD ? TEGROUP_IMPL_OPERAND_PATH(A, COLS)
                                                     : TEGROUP_IMPL_OPERAND_PATH(D, COLS));
    TEGROUP_IMPL_SAME_AS(DTYPE, a, TEGROUP_IMPL_OPERAND_PATH(A, DTYPE));
    TEGROUP_IMPL_SAME_AS(DTYPE, b, TEGROUP_IMPL_OPERAND_PATH(B, DTYPE));
    TEGROUP_IMPL_SAME_AS(DTYPE, c, TEGROUP_IMPL_OPERAND_PATH(C, DTYPE));
    TEGROUP_IMPL_SAME_AS(DTYPE, d, TEGROUP_IMPL_OPERAND_PATH(D, DTYPE));
    TEGROUP_IMPL_SAME_AS(DTYPE, bias, TEGROUP_IMPL_OPERAND_PATH(BIAS, DTYPE));
    TEGROUP_IMPL_SAME_AS(DTYPE, row_scale, "row_scale_dtype");
    TEGROUP_IMPL_SAME_AS(SCALING, a_scaling, TEGROUP_IMPL_OPERAND_PATH(A, SCALING));
    TEGROUP_IMPL_SAME_AS(SCALING, b_scaling, TEGROUP_IMPL_OPERAND_PATH(B, SCALING));
    TEGROUP_IMPL_SAME_AS(SCALING, d_scaling, TEGROUP_IMPL_OPERAND_PATH(D, SCALING));
    TEGROUP_IMPL_SAME(lda, TEGROUP_IMPL_OPERAND_PATH(A, LD));
    TEGROUP_IMPL_SAME(ldb, TEGROUP_IMPL_OPERAND_PATH(B, LD));
    TEGROUP_IMPL_SAME(ldc, TEGROUP_IMPL_OPERAND_PATH(C, LD));
    TEGROUP_IMPL_SAME(ldd, TEGROUP_IMPL_OPERAND_PATH(D, LD));
    for (i = 0; i < 4; i++)
        TEGROUP_IMPL_RULE(!planned->rows_space[i] == !p->rows_space[i], ERROR_PLAN,
                          names->operand[i]->members[TEGROUP_IMPL_MEMBER_ROW_SIZES], "must be set just when planned so",
                          planned->rows_space[i] != 0, p->rows_space[i] != 0);
    TEGROUP_IMPL_SAME_EACH(rows_space, 4, SIZES_SPACE);
    TEGROUP_IMPL_SAME_EACH(ragged_cols, 4, COL_SIZES);
    TEGROUP_IMPL_SAME_EACH(has_elements, 4, ELEMENTS);
    TEGROUP_IMPL_SAME_EACH(pointers_space, 5, POINTERS_SPACE);
    TEGROUP_IMPL_SAME_EACH(gathered, 2, GATHER_ROWS);
    TEGROUP_IMPL_SAME_EACH(scale_dtype, 2, SCALE_DTYPE);
    TEGROUP_IMPL_SAME_EACH(scale_strides, 2, SCALE_OUTER_STRIDE);
    TEGROUP_IMPL_SAME_EACH(columnwise_order, 2, COLUMNWISE_ORDER);
    TEGROUP_IMPL_SAME_EACH(code_order, 2, CODE_ORDER);
    TEGROUP_IMPL_SAME(alpha_space, "alpha.space");
    TEGROUP_IMPL_SAME(alpha_stride, "alpha.stride");
    TEGROUP_IMPL_SAME(beta_space, "beta.space");
    TEGROUP_IMPL_SAME(beta_stride, "beta.stride");
    TEGROUP_IMPL_SAME(accumulate, "accumulate");
    TEGROUP_IMPL_SAME(bias_of_b, "bias_of_b");
    TEGROUP_IMPL_SAME(functor, "functor");
    TEGROUP_IMPL_SAME(tail, names->tail);
#undef TEGROUP_IMPL_SAME_EACH
#undef TEGROUP_IMPL_SAME
#undef TEGROUP_IMPL_SAME_AS
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_scalar_memory(const tegroup_scalars *s, const char *data_field,
                                                                    tegroup_error *error) {
    size_t element = s->dtype == TEGROUP_DTYPE_F64 ? 8 : 4;
    TEGROUP_IMPL_RULE(s->data || s->space == TEGROUP_SPACE_UNSET, ERROR_NULL_ARGUMENT, data_field, "must not be NULL",
                      1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(s->data, element), ERROR_ALIGNMENT, data_field,
                      "must be aligned to its element", element, (uintptr_t)s->data % element);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC int64_t tegroup_impl_scalar_bytes(const tegroup_scalars *s, int32_t groups) {
    if (s->space == TEGROUP_SPACE_UNSET) return 0;
    return (s->stride ? (int64_t)groups : 1) * (s->dtype == TEGROUP_DTYPE_F64 ? 8 : 4);
}

/* What a product reads of the index of a gathered operand. */
TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_index_buffer(const tegroup_gather *gather, const tegroup_tensor *t,
                                                                  const tegroup_impl_name *name) {
    return tegroup_impl_buffer_of(gather->slot_of_row, gather->rows > 0 ? tegroup_impl_mul(8, t->shape.rows) : 0, NULL,
                                  name->index_apart, 0);
}

TEGROUP_IMPL_STATIC int64_t tegroup_impl_row_scale_bytes(const tegroup_gemm_desc *desc) {
    const tegroup_shape *shape = &tegroup_impl_biased(desc)->shape;
    return tegroup_impl_mul(tegroup_impl_mul(shape->rows, tegroup_impl_ragged(shape) ? 1 : shape->groups),
                            tegroup_impl_bits(desc->row_scale_dtype) / 8);
}

/* What a product reads of a or b, t: of a quantised one the copy that it reads, with its scales and those of groups.
 * Returns how many buffers that is. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_operand_buffers(const tegroup_gemm_desc *desc, tegroup_impl_operand operand,
                                                         const tegroup_tensor *t, const tegroup_impl_name *name,
                                                         tegroup_impl_buffer *buffers) {
    const int columnwise = tegroup_impl_reads_columnwise(desc, operand);
    if (t->scaling == TEGROUP_SCALING_NONE) {
        buffers[0] = tegroup_impl_tensor_buffer(t, name, 0);
        return 1;
    }
    buffers[0] = tegroup_impl_copy_buffer(t, name, columnwise, 0, 0);
    buffers[1] = tegroup_impl_copy_buffer(t, name, columnwise, 1, 0);
    buffers[2] = tegroup_impl_buffer_of(t->global_scale_inv, 4 * (int64_t)t->shape.groups, NULL, name->apart, 0);
    return 3;
}

/* The workspace, d, and bias in a wgrad share no memory with anything else that the call touches; but d may be c. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_overlaps(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                               const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_tensor *d = &desc->d, *c = &desc->c, *tensors[TEGROUP_IMPL_OPERANDS];
    const tegroup_tensor a = tegroup_impl_stored(&desc->a, &desc->gather_a),
                         b = tegroup_impl_stored(&desc->b, &desc->gather_b);
    const int in_place =
        c->data == d->data && c->pointers == d->pointers && tegroup_impl_ld(c) == tegroup_impl_ld(d)
        && (tegroup_impl_ragged(&d->shape) ? c->shape.snapshot == d->shape.snapshot
                                           : tegroup_impl_group_stride(c) == tegroup_impl_group_stride(d));
    tegroup_impl_buffer buffers[2 * TEGROUP_IMPL_OPERANDS + 10];
    int32_t i, count = 0;
    tensors[TEGROUP_IMPL_A] = &a;
    tensors[TEGROUP_IMPL_B] = &b;
    tensors[TEGROUP_IMPL_C] = c;
    tensors[TEGROUP_IMPL_D] = d;
    tensors[TEGROUP_IMPL_BIAS] = &desc->bias;
    buffers[count++] = tegroup_impl_workspace_buffer(&desc->options, plan->workspace_bytes);
    buffers[count++] = tegroup_impl_tensor_buffer(d, names->operand[TEGROUP_IMPL_D], 1);
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++)
        count += tegroup_impl_operand_buffers(desc, (tegroup_impl_operand)i, tensors[i], names->operand[i],
                                              buffers + count);
    if (c->dtype != TEGROUP_DTYPE_UNSET) {
        buffers[count] = tegroup_impl_tensor_buffer(c, names->operand[TEGROUP_IMPL_C], 0);
        buffers[count].twin = 1;
        if (!in_place) buffers[count].twin_apart = "must not overlap c, unless it is c with the same ld and snapshot";
        count++;
    }
    buffers[count++] =
        tegroup_impl_tensor_buffer(&desc->bias, names->operand[TEGROUP_IMPL_BIAS], desc->op == TEGROUP_OP_WGRAD);
    for (i = 0; i < 4; i++)
        if (i == 0 || tensors[i]->shape.snapshot != a.shape.snapshot)
            buffers[count++] = tegroup_impl_snapshot_buffer(tensors[i]);
    if (desc->row_scale_dtype != TEGROUP_DTYPE_UNSET)
        buffers[count++] = tegroup_impl_buffer_of(desc->row_scale, tegroup_impl_row_scale_bytes(desc), NULL,
                                                  "must not overlap row_scale", 0);
    buffers[count++] =
        tegroup_impl_buffer_of(desc->alpha.data, tegroup_impl_scalar_bytes(&desc->alpha, d->shape.groups), NULL,
                               "must not overlap alpha.data", 0);
    buffers[count++] = tegroup_impl_buffer_of(desc->beta.data, tegroup_impl_scalar_bytes(&desc->beta, d->shape.groups),
                                              NULL, "must not overlap beta.data", 0);
    buffers[count++] = tegroup_impl_index_buffer(&desc->gather_a, &desc->a, names->operand[TEGROUP_IMPL_A]);
    buffers[count++] = tegroup_impl_index_buffer(&desc->gather_b, &desc->b, names->operand[TEGROUP_IMPL_B]);
    return tegroup_impl_check_apart(buffers, count, desc->options.check_level, NULL, error);
}

/* Reads the snapshots of a call's operands. Returns whether all of them are in host memory. */
TEGROUP_IMPL_STATIC int tegroup_impl_host_views(const tegroup_gemm_desc *desc, tegroup_snapshot_view views[4]) {
    const tegroup_tensor *tensors[4] = {&desc->a, &desc->b, &desc->c, &desc->d};
    int32_t i;
    for (i = 0; i < 4; i++) {
        const int ragged = tensors[i]->dtype != TEGROUP_DTYPE_UNSET && tegroup_impl_ragged(&tensors[i]->shape);
        if (ragged && tensors[i]->shape.row_sizes.space != TEGROUP_SPACE_HOST) return 0;
        views[i] = tegroup_snapshot_read(ragged ? tensors[i]->shape.snapshot : NULL);
    }
    return 1;
}

/* The deep check of snapshots in host memory against each other: each group has the same number of rows in all operands
 * whose rows are activations. Otherwise the call would work on the smallest number. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_groups_meet(const tegroup_gemm_desc *desc,
                                                                  const tegroup_impl_names *names,
                                                                  tegroup_error *error) {
    const int wgrad = desc->op == TEGROUP_OP_WGRAD;
    tegroup_snapshot_view views[4];
    int32_t i, g;
    if (!tegroup_impl_host_views(desc, views) || !views[TEGROUP_IMPL_A].rows) return TEGROUP_OK;
    for (i = TEGROUP_IMPL_B; i <= TEGROUP_IMPL_D; i++) {
        const tegroup_impl_name *name = names->operand[i];
        if (!views[i].rows || (i == TEGROUP_IMPL_B) != wgrad) continue;
        for (g = 0; g < desc->a.shape.groups; g++) {
            const int64_t rows = tegroup_impl_max(0, views[TEGROUP_IMPL_A].rows[g]),
                          here = tegroup_impl_max(0, views[i].rows[g]);
            TEGROUP_IMPL_RULE(here == rows, ERROR_CAPACITY, TEGROUP_IMPL_PATH(SNAPSHOT),
                              "must give each group as many rows as a's", rows, here);
        }
    }
    return TEGROUP_OK;
}

/* Checks a list's address for a group that uses it. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_entry(void *const *list, tegroup_dtype dtype, const char *field,
                                                            int32_t g, tegroup_error *error) {
    const size_t element = tegroup_impl_element(dtype);
    TEGROUP_IMPL_RULE(list[g] != NULL, ERROR_NULL_ARGUMENT, field,
                      "must hold no NULL for a group that is worked on; got the group's index", -1, g);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(list[g], element), ERROR_ALIGNMENT, field,
                      "must hold addresses aligned to the element", element, (uintptr_t)list[g] % element);
    return TEGROUP_OK;
}

/* Alignment of scales: of I32, that of words. */
TEGROUP_IMPL_STATIC tegroup_dtype tegroup_impl_stored_scales(const tegroup_tensor *t) {
    return tegroup_impl_scale_dtype(t, tegroup_scaling_info(t->scaling));
}

/* The memory of a, b, bias and whatever else is an operand: of a quantised one, the copy that is read and no other. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_operand(const tegroup_gemm_desc *desc,
                                                              tegroup_impl_operand operand, const tegroup_tensor *t,
                                                              const tegroup_impl_name *name, tegroup_error *error) {
    const tegroup_check_level level = desc->options.check_level;
    const int listed = tegroup_impl_listed(t), columnwise = tegroup_impl_reads_columnwise(desc, operand);
    tegroup_impl_copy_paths paths;
    tegroup_tensor read;
    if (t->scaling == TEGROUP_SCALING_NONE) return tegroup_impl_check_memory(t, name, level, error);
    TEGROUP_IMPL_TRY(tegroup_impl_check_routing(t, name, level, error));
    if (listed ? t->shape.groups == 0 : tegroup_impl_extent(t) == 0) return TEGROUP_OK;
    read = tegroup_impl_as_read(desc, operand);
    paths = tegroup_impl_copy_paths_of(name, listed, columnwise);
    TEGROUP_IMPL_TRY(tegroup_impl_check_address(listed ? (const void *)read.pointers : read.data,
                                                listed ? sizeof(void *) : tegroup_impl_element(t->dtype), paths.data,
                                                error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_there(
        listed ? (const void *)read.scale_pointers : read.scale_inv,
        listed ? t->shape.groups : tegroup_impl_scale_bytes(t, columnwise), /* no groups: rows have room, scales none */
        listed ? sizeof(void *) : tegroup_impl_element(tegroup_impl_stored_scales(t)), paths.scales, error));
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(t->global_scale_inv, sizeof(float)), ERROR_ALIGNMENT,
                      TEGROUP_IMPL_PATH(GLOBAL_SCALE_INV), "must be aligned to its element", sizeof(float),
                      (uintptr_t)t->global_scale_inv % sizeof(float));
    return TEGROUP_OK;
}

/* The addresses of one group in the lists of an operand. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_group_entries(const tegroup_gemm_desc *desc,
                                                                    tegroup_impl_operand operand,
                                                                    const tegroup_tensor *t,
                                                                    const tegroup_impl_name *name, int32_t g,
                                                                    tegroup_error *error) {
    tegroup_impl_copy_paths paths;
    if (t->scaling == TEGROUP_SCALING_NONE)
        return tegroup_impl_check_entry(t->pointers, t->dtype, TEGROUP_IMPL_PATH(POINTERS), g, error);
    paths = tegroup_impl_copy_paths_of(name, 1, tegroup_impl_reads_columnwise(desc, operand));
    TEGROUP_IMPL_TRY(tegroup_impl_check_entry(t->pointers, t->dtype, paths.data, g, error));
    return tegroup_impl_check_entry(t->scale_pointers, tegroup_impl_stored_scales(t), paths.scales, g, error);
}

/* What is written of a group's buffer. A group that is narrower than others has as narrow a bias gradient. */
TEGROUP_IMPL_STATIC tegroup_impl_block tegroup_impl_written(const tegroup_gemm_desc *desc, tegroup_impl_operand operand,
                                                            const tegroup_snapshot_view views[4], int32_t g) {
    const tegroup_impl_operand biased = desc->bias_of_b ? TEGROUP_IMPL_B : TEGROUP_IMPL_A;
    tegroup_impl_block block;
    if (operand == TEGROUP_IMPL_D) return tegroup_impl_locate(&desc->d, &views[TEGROUP_IMPL_D], g);
    block = tegroup_impl_locate(&desc->bias, NULL, g);
    block.cols = tegroup_impl_min(block.cols, tegroup_impl_locate(tegroup_impl_biased(desc), &views[biased], g).cols);
    return block;
}

/* In a list that is written, no two groups' buffers share a byte, or one of them would be lost. They may be windows of
 * one buffer. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_entries(const tegroup_gemm_desc *desc,
                                                              tegroup_impl_operand operand,
                                                              const tegroup_impl_names *names,
                                                              const tegroup_snapshot_view views[4],
                                                              const unsigned char *used, tegroup_error *error) {
    const tegroup_impl_name *name = names->operand[operand];
    const tegroup_tensor *t = operand == TEGROUP_IMPL_D ? &desc->d : &desc->bias;
    const int64_t bytes = (int64_t)tegroup_impl_element(t->dtype);
    int32_t g, h;
    for (g = 0; g < t->shape.groups; g++) {
        const tegroup_impl_block x = tegroup_impl_written(desc, operand, views, g);
        for (h = 0; h < t->shape.groups && (used[g] >> operand & 1); h++) {
            const tegroup_impl_block y = tegroup_impl_written(desc, operand, views, h);
            const uintptr_t from = (uintptr_t)x.base, to = (uintptr_t)y.base;
            if (h == g || !(used[h] >> operand & 1) || to < from || (to == from && h < g)) continue;
            TEGROUP_IMPL_RULE(tegroup_impl_room((int64_t)(to - from), x.ld * bytes, x.cols * bytes, y.cols * bytes)
                                  >= x.rows,
                              ERROR_OVERLAP, TEGROUP_IMPL_PATH(POINTERS),
                              "must hold buffers that share nothing; expected and got are two groups whose do", g, h);
        }
    }
    return TEGROUP_OK;
}

/* Checks lists in host memory, which are read there together with the sizes: every address that is used, and at the
 * deep level the buffers of results against each other. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_lists(const tegroup_gemm_desc *desc,
                                                            const tegroup_impl_names *names, tegroup_error *error) {
    tegroup_gemm_desc host; /* as it is read, without scalars that the host may not read */
    const tegroup_tensor *tensors[5] = {&host.a, &host.b, &desc->c, &desc->d, &desc->bias};
    tegroup_snapshot_view views[4];
    unsigned char used[TEGROUP_MAX_GROUPS]; /* for each group, a bit for each list that it uses */
    uint32_t listed = 0;
    int32_t i, g;
    host = *desc;
    host.a = tegroup_impl_as_read(desc, TEGROUP_IMPL_A);
    host.b = tegroup_impl_as_read(desc, TEGROUP_IMPL_B);
    for (i = 0; i < 5; i++)
        if (tensors[i]->dtype != TEGROUP_DTYPE_UNSET && tensors[i]->pointers_space == TEGROUP_SPACE_HOST)
            listed |= 1u << i;
    if (!listed || !tegroup_impl_host_views(desc, views)) return TEGROUP_OK;
    if (host.alpha.space == TEGROUP_SPACE_DEVICE) host.alpha.space = TEGROUP_SPACE_UNSET;
    if (host.beta.space == TEGROUP_SPACE_DEVICE) host.beta.space = TEGROUP_SPACE_UNSET;
    for (g = 0; g < desc->a.shape.groups; g++) {
        const tegroup_impl_product p = tegroup_impl_product_of(&host, views, g, 1, 0);
        used[g] = (unsigned char)(listed & tegroup_impl_uses(&host, &p));
        for (i = 0; i < 5; i++)
            if (used[g] >> i & 1)
                TEGROUP_IMPL_TRY(tegroup_impl_check_group_entries(&host, (tegroup_impl_operand)i, tensors[i],
                                                                  names->operand[i], g, error));
    }
    if (desc->options.check_level != TEGROUP_CHECK_DEEP) return TEGROUP_OK;
    if (listed >> TEGROUP_IMPL_D & 1u)
        TEGROUP_IMPL_TRY(tegroup_impl_check_entries(&host, TEGROUP_IMPL_D, names, views, used, error));
    if (desc->op == TEGROUP_OP_WGRAD && (listed >> TEGROUP_IMPL_BIAS & 1u))
        TEGROUP_IMPL_TRY(tegroup_impl_check_entries(&host, TEGROUP_IMPL_BIAS, names, views, used, error));
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_plan(const tegroup_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE_PLAN(plan, TEGROUP_PLAN_MAGIC, "must be what tegroup_plan_make wrote");
    return TEGROUP_OK;
}

/* A plan for a given target serves for sizes only, and a plan may come from a unit compiled with other switches. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_runs_here(const tegroup_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE(tegroup_impl_backend_of(plan->backend)->run != NULL, ERROR_NOT_BUILT, "plan.backend",
                      "must be part of this build", TEGROUP_BACKEND_CPU, plan->backend);
    TEGROUP_IMPL_RULE(!plan->hypothetical, ERROR_PLAN, "plan.hypothetical",
                      "must be 0: one made for a target gives sizes alone", 0, plan->hypothetical);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_row_scale(const tegroup_gemm_desc *desc, const tegroup_problem *p,
                                                                tegroup_error *error) {
    const size_t element = (size_t)tegroup_impl_bits(p->row_scale) / 8;
    if (p->row_scale == TEGROUP_DTYPE_UNSET) return TEGROUP_OK;
    TEGROUP_IMPL_RULE(desc->row_scale || p->rows == 0 || p->groups == 0, ERROR_NULL_ARGUMENT, "row_scale",
                      "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(desc->row_scale, element), ERROR_ALIGNMENT, "row_scale",
                      "must be aligned to its element", element, (uintptr_t)desc->row_scale % element);
    return TEGROUP_OK;
}

/* All that a product's call checks except tegroup_impl_check_overlaps, which a call of several products does once for
 * all of them. Errors use the names of the caller's tensors. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_gemm_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                           const tegroup_impl_names *names, tegroup_error *error) {
    const tegroup_check_level level = desc->options.check_level;
    const tegroup_impl_backend *backend = tegroup_impl_backend_of(plan->backend);
    const tegroup_tensor *operands[TEGROUP_IMPL_OPERANDS];
    tegroup_problem problem;
    int32_t i;
    tegroup_impl_operands_of(desc, operands);
    TEGROUP_IMPL_TRY(tegroup_impl_problem_of(desc, names, &problem, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_planned(&plan->problem, &problem, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_runs_here(plan, error));
    for (i = 0; i < TEGROUP_IMPL_OPERANDS; i++) {
        const tegroup_tensor *t = operands[i];
        if (t->dtype != TEGROUP_DTYPE_UNSET)
            TEGROUP_IMPL_TRY(tegroup_impl_check_operand(desc, (tegroup_impl_operand)i, t, names->operand[i], error));
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_index(&desc->gather_a, &desc->a, names->operand[TEGROUP_IMPL_A], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_index(&desc->gather_b, &desc->b, names->operand[TEGROUP_IMPL_B], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalar_memory(&desc->alpha, "alpha.data", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scalar_memory(&desc->beta, "beta.data", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_row_scale(desc, &problem, error));
    if (level == TEGROUP_CHECK_DEEP) TEGROUP_IMPL_TRY(tegroup_impl_check_groups_meet(desc, names, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_lists(desc, names, error));
#if defined(TEGROUP_IMPL_CUDA)
    if (level == TEGROUP_CHECK_DEEP && desc->space == TEGROUP_SPACE_DEVICE)
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_pointers(desc, names, error));
    if (plan->backend != TEGROUP_BACKEND_CPU) TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_device(plan, error));
#endif
    if (backend->check) TEGROUP_IMPL_TRY(backend->check(plan, desc, names, error));
    return tegroup_impl_check_options_workspace(plan->workspace_bytes, &desc->options, error);
}

/* The same with overlaps, for tegroup_gemm and its own names. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_gemm_check_own(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                               tegroup_error *error) {
    TEGROUP_IMPL_TRY(tegroup_impl_gemm_check(plan, desc, tegroup_impl_gemm_names(), error));
    return tegroup_impl_check_overlaps(plan, desc, tegroup_impl_gemm_names(), error);
}

TEGROUP_API tegroup_status tegroup_gemm_check(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                              tegroup_error *error) {
    tegroup_gemm_desc taken;
    TEGROUP_IMPL_TRY(tegroup_impl_check_plan(plan, error));
    TEGROUP_IMPL_TAKE(desc, taken);
    return tegroup_impl_gemm_check_own(plan, desc, error);
}
