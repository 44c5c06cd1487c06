/* ---- Validate: values and scales ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/validation_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "formats/scale_layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/quantised.h"

enum { TEGROUP_IMPL_FINITE, TEGROUP_IMPL_NAN, TEGROUP_IMPL_INFINITE };

/* By the bits, which no compiler flag can turn into a promise that there is no NaN. */
TEGROUP_IMPL_HD int tegroup_impl_kind(tegroup_dtype dtype, const void *data, int64_t i) {
    uint64_t magnitude, infinity;
    switch (dtype) {
    case TEGROUP_DTYPE_F64:
        magnitude = ((const tegroup_impl_any64 *)data)[i] & 0x7fffffffffffffffull;
        infinity = 0x7ff0000000000000ull;
        break;
    case TEGROUP_DTYPE_F32:
        magnitude = ((const tegroup_impl_any32 *)data)[i] & 0x7fffffffu;
        infinity = 0x7f800000u;
        break;
    default:
        magnitude = ((const tegroup_impl_any16 *)data)[i] & 0x7fffu;
        infinity = dtype == TEGROUP_DTYPE_F16 ? 0x7c00u : 0x7f80u;
        break;
    }
    return magnitude > infinity    ? TEGROUP_IMPL_NAN
           : magnitude == infinity ? TEGROUP_IMPL_INFINITE
                                   : TEGROUP_IMPL_FINITE;
}

/* What is wrong with a scale. */
enum {
    TEGROUP_IMPL_SCALE_GOOD,
    TEGROUP_IMPL_SCALE_NAN,
    TEGROUP_IMPL_SCALE_INFINITE,
    TEGROUP_IMPL_SCALE_NEGATIVE,
    TEGROUP_IMPL_SCALE_ZERO,
    TEGROUP_IMPL_SCALE_KINDS
};

TEGROUP_IMPL_HD int tegroup_impl_scale_kind(float scale) {
    const uint32_t bits = tegroup_impl_bits_of_f32(scale), magnitude = bits & 0x7fffffffu;
    return magnitude > 0x7f800000u    ? TEGROUP_IMPL_SCALE_NAN
           : magnitude == 0           ? TEGROUP_IMPL_SCALE_ZERO
           : bits >> 31               ? TEGROUP_IMPL_SCALE_NEGATIVE
           : magnitude == 0x7f800000u ? TEGROUP_IMPL_SCALE_INFINITE
                                      : TEGROUP_IMPL_SCALE_GOOD;
}

/* Where the record counts it. */
TEGROUP_IMPL_HD int64_t *tegroup_impl_scale_counter(tegroup_validation_scales *scales, int kind) {
    return kind == TEGROUP_IMPL_SCALE_NAN        ? &scales->nans
           : kind == TEGROUP_IMPL_SCALE_INFINITE ? &scales->infinities
           : kind == TEGROUP_IMPL_SCALE_NEGATIVE ? &scales->negatives
                                                 : &scales->zeros;
}

/* One copy of a quantised tensor, looked at a group after another. */
typedef struct tegroup_impl_validated {
    tegroup_tensor tensor; /* with the copy in the place of the rowwise one                                  */
    tegroup_scaling_facts facts;
    tegroup_impl_scaled of;     /* lines are rows                                                            */
    tegroup_impl_sides sides;   /* of the group; none where it leads out of the buffers                      */
    int64_t elements, capacity; /* of a transposed copy, and scales, that the buffers hold                   */
    int64_t row0;               /* number of the group's first row                                           */
    int64_t scales;             /* how many the group's values have                                          */
} tegroup_impl_validated;

TEGROUP_IMPL_STATIC tegroup_impl_validated tegroup_impl_validated_of(const tegroup_tensor *t, int columnwise) {
    tegroup_impl_validated copy;
    memset(&copy, 0, sizeof copy);
    copy.tensor = tegroup_impl_with_copy(t, columnwise);
    copy.facts = *tegroup_scaling_info(t->scaling);
    copy.of = tegroup_impl_scaled_copy(t, columnwise, 0);
    copy.elements = tegroup_impl_transposed(t, columnwise) ? tegroup_impl_transposed_capacity(t) : INT64_MAX;
    copy.capacity = tegroup_impl_scale_capacity(t, columnwise);
    return copy;
}

/* Goes on to group g, the one after the last. Returns whether it lies within the buffers. */
TEGROUP_IMPL_HD int tegroup_impl_validated_next(tegroup_impl_validated *copy, const tegroup_snapshot_view *view,
                                                int32_t g) {
    const tegroup_tensor *t = &copy->tensor;
    const tegroup_impl_scale_grid *grid = &copy->of.grid;
    int within;
    copy->of.facts = &copy->facts;
    tegroup_impl_scaled_next(&copy->of, t, view, g);
    within = tegroup_impl_scale_end(grid, tegroup_impl_scales_strided(t, copy->of.columnwise)) <= copy->capacity
             && copy->of.elements <= copy->elements;
    copy->sides = within ? tegroup_impl_group_sides(t, view, g) : tegroup_impl_sides_of(0, 0);
    copy->row0 = tegroup_impl_block_of(t, view, g).row0;
    /* A group without values has a place for the scale of all of it, and nothing there that counts. */
    copy->scales =
        copy->sides.rows > 0 && copy->sides.cols > 0 ? grid->parts * grid->outer_count * grid->inner_count : 0;
    return within;
}

/* The value that an element means is exact in FP64; it is infinite where it would be stored so in F32. */
TEGROUP_IMPL_HD int tegroup_impl_validated_value(const tegroup_impl_validated *copy, int64_t row, int64_t col) {
    const tegroup_impl_scaled *of = &copy->of;
    int64_t shared;
    const double scale = tegroup_impl_scale_along(of, row, col, &shared);
    const float value = tegroup_impl_f32_of_f64(
        tegroup_impl_load_f64(of->dtype, of->data, of->first + row * of->line_stride + col * of->k_stride) * scale
        * of->global);
    return tegroup_impl_kind(TEGROUP_DTYPE_F32, &value, 0);
}

/* Scale number i of the group, and its place in the buffer. */
TEGROUP_IMPL_HD int tegroup_impl_validated_scale(const tegroup_impl_validated *copy, int64_t i, int64_t *at) {
    const tegroup_impl_scale_grid *grid = &copy->of.grid;
    const int64_t each = grid->outer_count * grid->inner_count, block = i % each;
    *at = tegroup_impl_scale_of_block(grid, i / each, block / grid->inner_count, block % grid->inner_count);
    return tegroup_impl_scale_kind(tegroup_impl_load_f32(copy->of.scale_dtype, copy->of.scales, *at));
}

/* The global scale of the group, good where it has none or no values. */
TEGROUP_IMPL_HD int tegroup_impl_validated_global(const tegroup_impl_validated *copy, int32_t g) {
    const float *global = copy->tensor.global_scale_inv;
    return global && copy->sides.rows > 0 && copy->sides.cols > 0 ? tegroup_impl_scale_kind(global[g])
                                                                  : TEGROUP_IMPL_SCALE_GOOD;
}

TEGROUP_IMPL_STATIC void tegroup_impl_note_scale(tegroup_validation_scales *scales, int kind, int64_t *first,
                                                 int64_t at) {
    if (kind == TEGROUP_IMPL_SCALE_GOOD) return;
    ++*tegroup_impl_scale_counter(scales, kind);
    if (*first < 0 || at < *first) *first = at;
}

TEGROUP_IMPL_STATIC void tegroup_impl_validate_quantised(const tegroup_tensor *t, int columnwise,
                                                         const tegroup_snapshot_view *view,
                                                         tegroup_validation *result) {
    tegroup_impl_validated copy = tegroup_impl_validated_of(t, columnwise);
    tegroup_validation_values *values = &result->owned;
    int64_t row, col, i, at;
    int32_t g;
    if (tegroup_impl_ragged(&t->shape) && !view->header) return;
    for (g = 0; g < t->shape.groups; g++) {
        if (!tegroup_impl_validated_next(&copy, view, g)) {
            result->status |= TEGROUP_VALIDATION_BOUNDS;
            if (result->bad_group < 0 || g < result->bad_group) result->bad_group = g;
        }
        for (row = 0; row < copy.sides.rows; row++)
            for (col = 0; col < copy.sides.cols; col++) {
                const int kind = tegroup_impl_validated_value(&copy, row, col);
                const int64_t number = (copy.row0 + row) * t->shape.cols + col;
                if (kind == TEGROUP_IMPL_FINITE) continue;
                if (kind == TEGROUP_IMPL_NAN) values->nans++;
                else values->infinities++;
                if (values->first_row < 0 || number < values->first_row) values->first_row = number;
            }
        for (i = 0; i < copy.scales; i++) {
            const int kind = tegroup_impl_validated_scale(&copy, i, &at);
            tegroup_impl_note_scale(&result->scales, kind, &result->scales.first, at);
        }
        tegroup_impl_note_scale(&result->scales, tegroup_impl_validated_global(&copy, g), &result->scales.first_global,
                                g);
    }
}
