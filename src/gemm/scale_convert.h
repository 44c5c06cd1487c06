/* ---- Scales in another layout ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/scale_convert_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "base/range.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/tensor_checks.h"
#include "core/snapshot_checks.h"
#include "core/copies.h"
#include "core/stored_scales.h"
#include "core/apart.h"

#if TEGROUP_IMPL_FP8_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_scale_convert(const tegroup_impl_scales *from,
                                                                   const tegroup_impl_scales *to,
                                                                   struct CUstream_st *stream, tegroup_error *error);
#endif

TEGROUP_IMPL_STATIC const tegroup_impl_name *tegroup_impl_scale_names(void) {
    static const tegroup_impl_name names[2] = {TEGROUP_IMPL_NAME("from"), TEGROUP_IMPL_NAME("to")};
    return names;
}

TEGROUP_IMPL_STATIC const char *tegroup_impl_scale_path(const tegroup_impl_scales *scales,
                                                        const tegroup_impl_name *name) {
    return tegroup_impl_copy_paths_of(name, tegroup_impl_listed(&scales->tensor), scales->columnwise).scales;
}

/* The memory of one tensor's scales, when a call is about to run. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_scale_memory(const tegroup_tensor *t,
                                                                   const tegroup_impl_name *name, int32_t columnwise,
                                                                   tegroup_space space, tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    const int listed = tegroup_impl_listed(t);
    TEGROUP_IMPL_RULE(!listed || t->pointers_space == space, ERROR_COMBINATION, TEGROUP_IMPL_PATH(POINTERS_SPACE),
                      "must equal space, or be unset", space, t->pointers_space);
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes_space(&t->shape, space, TEGROUP_IMPL_PATH(SIZES_SPACE), error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_snapshot_address(t, name, error));
    if (space == TEGROUP_SPACE_HOST && tegroup_impl_ragged(&t->shape))
        TEGROUP_IMPL_TRY(tegroup_impl_check_prepared(t, name, TEGROUP_CHECK_DEEP, error));
    if (tegroup_impl_scale_capacity(t, columnwise) == 0) return TEGROUP_OK;
    return tegroup_impl_check_address(listed ? (const void *)memory.scale_pointers : memory.scales,
                                      listed ? sizeof(void *)
                                             : tegroup_impl_element(tegroup_impl_scale_dtype(t, facts)),
                                      tegroup_impl_copy_paths_of(name, listed, columnwise).scales, error);
}

/* What two descriptions of the same scales have in common. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_same_scales(const tegroup_tensor *from, const tegroup_tensor *to,
                                                                  tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(from->scaling);
    const int64_t parts = tegroup_impl_max(1, from->scale_parts);
    TEGROUP_IMPL_RULE_AS(SCALING, from->scaling != TEGROUP_SCALING_NONE, ERROR_UNSET, "from.scaling", "must be set",
                         TEGROUP_SCALING_TENSOR, from->scaling);
    TEGROUP_IMPL_RULE_AS(SCALING, to->scaling == from->scaling, ERROR_SHAPE, "to.scaling", "must equal from.scaling",
                         from->scaling, to->scaling);
    TEGROUP_IMPL_RULE(to->shape.groups == from->shape.groups, ERROR_SHAPE, "to.shape.groups",
                      "must equal from.shape.groups", from->shape.groups, to->shape.groups);
    TEGROUP_IMPL_RULE(to->shape.cols == from->shape.cols, ERROR_SHAPE, "to.shape.cols", "must equal from.shape.cols",
                      from->shape.cols, to->shape.cols);
    TEGROUP_IMPL_RULE(tegroup_impl_max(1, to->scale_parts) == parts, ERROR_SHAPE, "to.scale_parts",
                      "must equal from.scale_parts", parts, to->scale_parts);
    TEGROUP_IMPL_RULE(tegroup_impl_ragged(&from->shape) || tegroup_impl_ragged(&to->shape)
                          || to->shape.rows == from->shape.rows,
                      ERROR_SHAPE, "to.shape.rows", "must equal from.shape.rows", from->shape.rows, to->shape.rows);
    TEGROUP_IMPL_RULE_AS(DTYPE,
                         tegroup_impl_scale_dtype(from, facts) != TEGROUP_DTYPE_F32
                             || tegroup_impl_scale_dtype(to, facts) != TEGROUP_DTYPE_BF16,
                         ERROR_UNSUPPORTED, "to.scale_dtype",
                         "must not be BF16 for scales in F32, which it would round", TEGROUP_DTYPE_F32,
                         TEGROUP_DTYPE_BF16);
    return TEGROUP_OK;
}

/* A group's scales in host memory as both tensors have them, from and to; the sums go on from group to group. */
typedef struct tegroup_impl_scale_pair {
    tegroup_snapshot_view views[2];
    int64_t before[2];
    tegroup_impl_scale_grid grids[2];
    void *data[2];
} tegroup_impl_scale_pair;

TEGROUP_IMPL_STATIC void tegroup_impl_scale_pair_begin(tegroup_impl_scale_pair *pair,
                                                       const tegroup_impl_scales scales[2]) {
    memset(pair, 0, sizeof *pair);
    pair->views[0] = tegroup_impl_fitting_view(&scales[0].tensor);
    pair->views[1] = tegroup_impl_fitting_view(&scales[1].tensor);
}

TEGROUP_IMPL_STATIC void tegroup_impl_scale_pair_next(tegroup_impl_scale_pair *pair,
                                                      const tegroup_impl_scales scales[2], int32_t g) {
    int i;
    for (i = 0; i < 2; i++) {
        pair->grids[i] = tegroup_impl_scales_grid(&scales[i], &pair->views[i], g, pair->before[i]);
        pair->before[i] += pair->grids[i].count;
        pair->data[i] = pair->grids[i].count > 0 ? tegroup_impl_scales_at(&scales[i], g) : NULL;
    }
}

TEGROUP_IMPL_STATIC uint32_t tegroup_impl_pair_scale(const tegroup_impl_scale_pair *pair,
                                                     const tegroup_impl_scales scales[2],
                                                     tegroup_impl_scale_place place) {
    return tegroup_impl_converted_scale(&pair->grids[0], scales[0].dtype, pair->data[0], &pair->grids[1],
                                        scales[1].dtype, place);
}

/* What only host memory can be asked of a group: its rows in both tensors, and room for those up to it. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_scale_group(const tegroup_impl_scales scales[2],
                                                                  const tegroup_impl_sides sides[2],
                                                                  const int64_t totals[2], tegroup_error *error) {
    const tegroup_impl_name *names = tegroup_impl_scale_names();
    int ragged[2], i;
    for (i = 0; i < 2; i++) {
        const tegroup_shape *shape = &scales[i].tensor.shape;
        ragged[i] = tegroup_impl_ragged(shape);
        TEGROUP_IMPL_RULE(!ragged[i] || totals[i] <= shape->rows, ERROR_CAPACITY,
                          names[i].members[TEGROUP_IMPL_MEMBER_SNAPSHOT], "must have shape.rows rows or fewer in all",
                          shape->rows, totals[i]);
    }
    TEGROUP_IMPL_RULE(sides[0].rows == sides[1].rows || (!ragged[0] && sides[1].rows < sides[0].rows)
                          || (!ragged[1] && sides[0].rows < sides[1].rows),
                      ERROR_SHAPE, names[ragged[1]].members[TEGROUP_IMPL_MEMBER_SNAPSHOT],
                      "must have the rows of the other tensor in each group, or fewer than a uniform one",
                      sides[!ragged[1]].rows, sides[ragged[1]].rows);
    TEGROUP_IMPL_RULE(sides[0].rows == 0 || sides[1].rows == 0 || sides[0].cols == sides[1].cols, ERROR_SHAPE,
                      names[1].members[TEGROUP_IMPL_MEMBER_SNAPSHOT], "must have the columns of from in each group",
                      sides[0].cols, sides[1].cols);
    return TEGROUP_OK;
}

/* All groups, and whether every scale has a value in its new type. scales: from, to. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_scale_groups(const tegroup_impl_scales scales[2],
                                                                   tegroup_error *error) {
    const tegroup_impl_name *names = tegroup_impl_scale_names();
    const int narrows = tegroup_impl_is_exponent(scales[1].dtype) && !tegroup_impl_is_exponent(scales[0].dtype);
    tegroup_impl_scale_pair pair;
    int64_t totals[2] = {0, 0}, bad = 0, e;
    int32_t g, i;
    tegroup_impl_scale_pair_begin(&pair, scales);
    for (g = 0; g < scales[1].tensor.shape.groups; g++) {
        tegroup_impl_sides sides[2];
        for (i = 0; i < 2; i++) {
            sides[i] = tegroup_impl_group_sides(&scales[i].tensor, &pair.views[i], g);
            totals[i] += sides[i].rows;
        }
        TEGROUP_IMPL_TRY(tegroup_impl_check_scale_group(scales, sides, totals, error));
        tegroup_impl_scale_pair_next(&pair, scales, g);
        for (i = 0; i < 2; i++)
            TEGROUP_IMPL_RULE(pair.grids[i].count == 0 || pair.data[i], ERROR_NULL_ARGUMENT,
                              tegroup_impl_scale_path(&scales[i], &names[i]),
                              "must have a buffer for each group with scales", 1, 0);
        for (e = 0; narrows && e < pair.grids[1].count; e++)
            bad += tegroup_impl_exponent_of(
                       tegroup_impl_pair_scale(&pair, scales, tegroup_impl_scale_place_of(&pair.grids[1], e)))
                   < 0;
    }
    TEGROUP_IMPL_RULE(bad == 0, ERROR_VALUE, tegroup_impl_scale_path(&scales[0], &names[0]),
                      "must hold powers of two, 2^-127 to 2^127, to become F8E8M0 (how many do not)", 0, bad);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_scale_convert_check(const tegroup_scale_convert_desc *desc,
                                                                    tegroup_error *error) {
    const tegroup_impl_name *names = tegroup_impl_scale_names();
    tegroup_impl_buffer buffers[4];
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(desc->columnwise == 0 || desc->columnwise == 1, ERROR_VALUE, "columnwise", "must be 0 or 1", 1,
                      desc->columnwise);
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->from, &names[0], error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_tensor(&desc->to, &names[1], error));
    TEGROUP_IMPL_RULE_NO_VALUES(&desc->from, desc->columnwise);
    TEGROUP_IMPL_RULE_NO_VALUES(&desc->to, desc->columnwise);
    TEGROUP_IMPL_TRY(tegroup_impl_check_same_scales(&desc->from, &desc->to, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_memory(&desc->from, &names[0], desc->columnwise, desc->space, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_memory(&desc->to, &names[1], desc->columnwise, desc->space, error));
    buffers[0] = tegroup_impl_copy_buffer(&desc->to, &names[1], desc->columnwise, 1, 1);
    buffers[1] = tegroup_impl_copy_buffer(&desc->from, &names[0], desc->columnwise, 1, 0);
    buffers[2] = tegroup_impl_snapshot_buffer(&desc->from);
    buffers[3] = tegroup_impl_snapshot_buffer(&desc->to);
    TEGROUP_IMPL_TRY(tegroup_impl_check_apart(buffers, 4, TEGROUP_CHECK_HOST, NULL, error));
    return tegroup_impl_check_built(TEGROUP_IMPL_FP8_KERNELS, desc->space, error);
}

TEGROUP_IMPL_STATIC int32_t tegroup_impl_scale_team(int32_t threads, int64_t count) {
    return tegroup_impl_team(tegroup_impl_threads(threads), 10.0 * (double)count); /* steps: its divisions */
}

TEGROUP_IMPL_STATIC void tegroup_impl_convert_group(const tegroup_impl_scale_pair *pair,
                                                    const tegroup_impl_scales scales[2], int32_t threads) {
    const tegroup_impl_scale_grid *to = &pair->grids[1];
    int64_t e;
    (void)threads;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(tegroup_impl_scale_team(threads, to->count)))
    for (e = 0; e < to->count; e++) {
        const tegroup_impl_scale_place place = tegroup_impl_scale_place_of(to, e);
        tegroup_impl_store_scale(scales[1].dtype, pair->data[1],
                                 tegroup_impl_scale_of_block(to, place.part, place.outer, place.inner),
                                 tegroup_impl_pair_scale(pair, scales, place));
    }
}

TEGROUP_API tegroup_status tegroup_scale_convert(const tegroup_scale_convert_desc *desc, struct CUstream_st *stream,
                                                 tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_scale_convert")
    tegroup_scale_convert_desc taken;
    tegroup_impl_scales scales[2];
    tegroup_impl_scale_pair pair;
    int32_t g;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_scale_convert_check(desc, error));
    scales[0] = tegroup_impl_scales_of(&desc->from, desc->columnwise);
    scales[1] = tegroup_impl_scales_of(&desc->to, desc->columnwise);
#if TEGROUP_IMPL_FP8_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE)
        return tegroup_impl_cuda_scale_convert(&scales[0], &scales[1], stream, error);
#endif
    TEGROUP_IMPL_TRY(tegroup_impl_check_scale_groups(scales, error));
    tegroup_impl_scale_pair_begin(&pair, scales);
    for (g = 0; g < desc->to.shape.groups; g++) {
        tegroup_impl_scale_pair_next(&pair, scales, g);
        tegroup_impl_convert_group(&pair, scales, desc->threads);
    }
    return TEGROUP_OK;
}
