/* ---- Scales as they are stored ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/snapshot_checks.h"

/* The scales of one copy of a tensor, as a kernel is given them. */
typedef struct tegroup_impl_scales {
    tegroup_tensor tensor;
    tegroup_scaling_facts facts;
    tegroup_dtype dtype;
    int32_t columnwise;
    int64_t capacity; /* scales of the buffer, or of each of a list */
} tegroup_impl_scales;

TEGROUP_IMPL_STATIC tegroup_impl_scales tegroup_impl_scales_of(const tegroup_tensor *t, int32_t columnwise) {
    tegroup_impl_scales scales;
    memset(&scales, 0, sizeof scales);
    scales.tensor = *t;
    scales.facts = *tegroup_scaling_info(t->scaling);
    scales.facts.name = NULL; /* of no use to a kernel */
    scales.dtype = tegroup_impl_scale_dtype(t, &scales.facts);
    scales.columnwise = columnwise;
    scales.capacity = tegroup_impl_scale_capacity(t, columnwise);
    return scales;
}

TEGROUP_IMPL_HD void *tegroup_impl_scales_at(const tegroup_impl_scales *scales, int32_t g) {
    const tegroup_tensor *t = &scales->tensor;
    if (!tegroup_impl_listed(t)) return scales->columnwise ? t->columnwise_scale_inv : t->scale_inv;
    return scales->columnwise ? t->columnwise_scale_pointers[g] : t->scale_pointers[g];
}

/* The snapshot of a ragged tensor, or a view of nothing, also for one that does not fit. */
TEGROUP_IMPL_HD tegroup_snapshot_view tegroup_impl_fitting_view(const tegroup_tensor *t) {
    const tegroup_impl_fit fit = tegroup_impl_fit_of(t);
    tegroup_snapshot_view view;
    memset(&view, 0, sizeof view);
    if (!fit.header || !tegroup_impl_fits(&fit)) return view;
    return tegroup_impl_snapshot_view(t->shape.snapshot, t->shape.groups, fit.irregular);
}

/* Group g's scales, `before` of them in front; none where they would end behind the buffer. */
TEGROUP_IMPL_HD tegroup_impl_scale_grid tegroup_impl_scales_grid(const tegroup_impl_scales *scales,
                                                                 const tegroup_snapshot_view *view, int32_t g,
                                                                 int64_t before) {
    const tegroup_tensor *t = &scales->tensor;
    tegroup_impl_scale_grid grid =
        tegroup_impl_scale_grid_after(t, &scales->facts, view, g, scales->columnwise, before);
    if (tegroup_impl_scale_end(&grid, tegroup_impl_scales_strided(t, scales->columnwise)) > scales->capacity)
        grid.count = grid.outer_count = grid.inner_count = 0;
    return grid;
}

/* Does a type hold exponents alone, so that not every scale can become one? */
TEGROUP_IMPL_HD int tegroup_impl_is_exponent(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F8E8M0 || dtype == TEGROUP_DTYPE_I32;
}

/* The value of a scale of any type. */
TEGROUP_IMPL_HD float tegroup_impl_scale_value(tegroup_dtype dtype, const void *data, int64_t i) {
    return tegroup_impl_load_f32(dtype == TEGROUP_DTYPE_I32 ? TEGROUP_DTYPE_F8E8M0 : dtype, data, i);
}

/* A scale as the bits of a float; F8E4M3, which only ever becomes itself, as its code. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_load_scale(tegroup_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case TEGROUP_DTYPE_F32: return ((const tegroup_impl_any32 *)data)[i];
    case TEGROUP_DTYPE_BF16: return (uint32_t)((const tegroup_impl_any16 *)data)[i] << 16;
    case TEGROUP_DTYPE_F8E4M3: return ((const uint8_t *)data)[i];
    default: return tegroup_impl_bits_of_f32(tegroup_impl_scale_value(dtype, data, i));
    }
}

#define TEGROUP_IMPL_LOWEST_EXPONENT 0x400000u /* 2^-127, which binary32 has as a subnormal: F8E8M0's byte 0 */

/* The F8E8M0 of a float's bits; -1: it has none. */
TEGROUP_IMPL_HD int32_t tegroup_impl_exponent_of(uint32_t bits) {
    if (tegroup_impl_is_nan(tegroup_impl_f32_of_bits(bits))) return 255;
    if (bits == TEGROUP_IMPL_LOWEST_EXPONENT) return 0;
    return bits >> 31 || bits & 0x7fffffu || bits == 0 || bits == 0x7f800000u ? -1 : (int32_t)(bits >> 23);
}

TEGROUP_IMPL_HD void tegroup_impl_store_scale(tegroup_dtype dtype, void *data, int64_t i, uint32_t bits) {
    switch (dtype) {
    case TEGROUP_DTYPE_F32: ((tegroup_impl_any32 *)data)[i] = bits; break;
    case TEGROUP_DTYPE_BF16: ((tegroup_impl_any16 *)data)[i] = (uint16_t)(bits >> 16); break;
    case TEGROUP_DTYPE_F8E4M3: ((uint8_t *)data)[i] = (uint8_t)bits; break;
    default: ((uint8_t *)data)[i] = (uint8_t)tegroup_impl_exponent_of(bits); break; /* -1 is NaN's */
    }
}

/* The place of scale number e of a group, of all that is stored of it, in the order in which they lie. */
typedef struct tegroup_impl_scale_place {
    int64_t part, outer, inner;
} tegroup_impl_scale_place;

TEGROUP_IMPL_HD tegroup_impl_scale_place tegroup_impl_scale_place_of(const tegroup_impl_scale_grid *grid, int64_t e) {
    const int64_t of_part = grid->outer_extent * grid->inner_extent, rest = e % of_part;
    tegroup_impl_scale_place place;
    place.part = e / of_part;
    if (!grid->swizzled && grid->outer_stride < grid->inner_stride) {
        place.outer = rest % grid->outer_extent;
        place.inner = rest / grid->outer_extent;
    } else {
        place.outer = rest / grid->inner_extent;
        place.inner = rest % grid->inner_extent;
    }
    return place;
}

/* The bits that a scale of `to` becomes: those of `from`, where both have one there, or those of padding, 0. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_converted_scale(const tegroup_impl_scale_grid *from, tegroup_dtype from_dtype,
                                                      const void *data, const tegroup_impl_scale_grid *to,
                                                      tegroup_dtype to_dtype, tegroup_impl_scale_place place) {
    if (place.outer < tegroup_impl_min(from->outer_count, to->outer_count)
        && place.inner < tegroup_impl_min(from->inner_count, to->inner_count))
        return tegroup_impl_load_scale(from_dtype, data,
                                       tegroup_impl_scale_of_block(from, place.part, place.outer, place.inner));
    return tegroup_impl_is_exponent(to_dtype) ? TEGROUP_IMPL_LOWEST_EXPONENT : 0; /* whose byte is 0 */
}
