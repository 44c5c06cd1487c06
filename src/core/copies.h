/* ---- Copies of a quantised tensor ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"

/* Copies of a quantised tensor, as arrays of them go. */
enum { TEGROUP_IMPL_ROWWISE, TEGROUP_IMPL_COLUMNWISE, TEGROUP_IMPL_COPIES };

/* Where a copy is: its elements and scales, or the lists of them. */
typedef struct tegroup_impl_copy_memory {
    void *data, *scales;
    void *const *pointers, *const *scale_pointers;
} tegroup_impl_copy_memory;

TEGROUP_IMPL_HD tegroup_impl_copy_memory tegroup_impl_memory_of(const tegroup_tensor *t, int columnwise) {
    tegroup_impl_copy_memory memory;
    memory.data = columnwise ? t->columnwise_data : t->data;
    memory.scales = columnwise ? t->columnwise_scale_inv : t->scale_inv;
    memory.pointers = columnwise ? t->columnwise_pointers : t->pointers;
    memory.scale_pointers = columnwise ? t->columnwise_scale_pointers : t->scale_pointers;
    return memory;
}

TEGROUP_IMPL_HD int tegroup_impl_has_copy(const tegroup_tensor *t, int columnwise) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    return memory.data || memory.scales || memory.pointers || memory.scale_pointers;
}

/* Refuses what is about a columnwise copy of codes where that copy holds values. */
#define TEGROUP_IMPL_RULE_NO_VALUES(t, columnwise)                                                                     \
    TEGROUP_IMPL_RULE(!(columnwise) || !tegroup_impl_keeps_values(t), ERROR_COMBINATION, "columnwise",                 \
                      "must be 0 where columnwise_order is of values: that copy is a plain tensor", 0, 1)

/* The order of values of a type. */
TEGROUP_IMPL_STATIC tegroup_columnwise_order tegroup_impl_values_order(tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_BF16   ? TEGROUP_COLUMNWISE_BF16
           : dtype == TEGROUP_DTYPE_F16  ? TEGROUP_COLUMNWISE_F16
           : dtype == TEGROUP_DTYPE_F32  ? TEGROUP_COLUMNWISE_F32
                                         : TEGROUP_COLUMNWISE_AS_DATA;
}

/* The columnwise copy of values by itself. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_values_of(const tegroup_tensor *t) {
    tegroup_tensor values;
    memset(&values, 0, sizeof values);
    values.shape = t->shape;
    values.dtype = tegroup_impl_copy_dtype(t, 1);
    values.ld = t->ld;
    values.group_stride = t->group_stride;
    values.data = t->columnwise_data;
    values.pointers = t->columnwise_pointers;
    values.pointers_space = t->pointers_space;
    return values;
}

/* The tensor with one copy in the place of the rowwise one. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_with_copy(const tegroup_tensor *t, int columnwise) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    tegroup_tensor with = *t;
    with.data = memory.data;
    with.pointers = memory.pointers;
    with.scale_inv = memory.scales;
    with.scale_pointers = memory.scale_pointers;
    return with;
}

/* The type of a scale by itself: of I32, which holds four, F8E8M0. */
TEGROUP_IMPL_HD tegroup_dtype tegroup_impl_one_scale(const tegroup_tensor *t, const tegroup_scaling_facts *facts) {
    const tegroup_dtype dtype = tegroup_impl_scale_dtype(t, facts);
    return dtype == TEGROUP_DTYPE_I32 ? TEGROUP_DTYPE_F8E8M0 : dtype;
}

/* What errors call a copy's elements and scales: the buffers, or the lists. */
typedef struct tegroup_impl_copy_paths {
    const char *data, *scales;
} tegroup_impl_copy_paths;
TEGROUP_IMPL_STATIC tegroup_impl_copy_paths tegroup_impl_copy_paths_of(const tegroup_impl_name *name, int listed,
                                                                       int columnwise) {
    tegroup_impl_copy_paths paths;
    if (listed) {
        paths.data = columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_POINTERS) : TEGROUP_IMPL_PATH(POINTERS);
        paths.scales = columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_SCALE_POINTERS) : TEGROUP_IMPL_PATH(SCALE_POINTERS);
    } else {
        paths.data = columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_DATA) : TEGROUP_IMPL_PATH(DATA);
        paths.scales = columnwise ? TEGROUP_IMPL_PATH(COLUMNWISE_SCALE_INV) : TEGROUP_IMPL_PATH(SCALE_INV);
    }
    return paths;
}

/* A copy's elements and scales are buffers, or where the tensor is a list, lists. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_copy_kind(const tegroup_tensor *t, int columnwise,
                                                                const tegroup_impl_name *name, tegroup_error *error) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    const tegroup_impl_copy_paths buffers = tegroup_impl_copy_paths_of(name, 0, columnwise);
    const int listed = tegroup_impl_listed(t);
    TEGROUP_IMPL_RULE(listed || (!memory.pointers && !memory.scale_pointers), ERROR_UNSET,
                      TEGROUP_IMPL_PATH(POINTERS_SPACE), "must be set with pointers", TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE(!listed || !memory.data, ERROR_COMBINATION, buffers.data, "does not go with pointers_space", 0,
                      1);
    TEGROUP_IMPL_RULE(!listed || !memory.scales, ERROR_COMBINATION, buffers.scales, "does not go with pointers_space",
                      0, 1);
    return TEGROUP_OK;
}

/* One address, or a list of them: there where something is behind it. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_there(const void *address, int64_t bytes, size_t alignment,
                                                            const char *field, tegroup_error *error) {
    return bytes == 0 && !address ? TEGROUP_OK : tegroup_impl_check_address(address, alignment, field, error);
}

/* A list in host memory has an address for each group that uses it: one with elements, and, for a scale of all of a
 * group (`always`), every one. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_each(const tegroup_tensor *t, void *const *list, int always,
                                                           const char *field, tegroup_error *error) {
    tegroup_snapshot_view view;
    int32_t g;
    if (t->pointers_space != TEGROUP_SPACE_HOST) return TEGROUP_OK; /* the snapshot may be on the device, too */
    view = tegroup_snapshot_read(tegroup_impl_ragged(&t->shape) ? t->shape.snapshot : NULL);
    for (g = 0; g < t->shape.groups; g++) {
        const tegroup_impl_sides sides = tegroup_impl_group_sides(t, &view, g);
        TEGROUP_IMPL_RULE(list[g] != NULL || (!always && (sides.rows == 0 || sides.cols == 0)), ERROR_NULL_ARGUMENT,
                          field, "must hold no NULL for a group that is worked on; got the group's index", -1, g);
    }
    return TEGROUP_OK;
}

/* A copy of values has no scales. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_unscaled(const tegroup_tensor *t, int columnwise,
                                                               const tegroup_impl_name *name, tegroup_error *error) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    TEGROUP_IMPL_RULE(!columnwise || !tegroup_impl_keeps_values(t) || (!memory.scales && !memory.scale_pointers),
                      ERROR_COMBINATION,
                      tegroup_impl_copy_paths_of(name, tegroup_impl_listed(t), columnwise).scales,
                      "must be NULL where columnwise_order is of values, which have no scales", 0, 1);
    return TEGROUP_OK;
}

/* The memory of one copy: elements and scales just where the tensor has any. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_copy(const tegroup_tensor *t, int columnwise,
                                                           const tegroup_impl_name *name, tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t->scaling);
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    const int listed = tegroup_impl_listed(t), values = columnwise && tegroup_impl_keeps_values(t);
    const tegroup_impl_copy_paths paths = tegroup_impl_copy_paths_of(name, listed, columnwise);
    const int64_t entries = (int64_t)sizeof(void *) * t->shape.groups;
    TEGROUP_IMPL_TRY(tegroup_impl_check_copy_kind(t, columnwise, name, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_unscaled(t, columnwise, name, error));
    if (!listed) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_there(memory.data, tegroup_impl_copy_bytes(t, columnwise),
                                                  tegroup_impl_element(tegroup_impl_copy_dtype(t, columnwise)),
                                                  paths.data, error));
        return tegroup_impl_check_there(memory.scales, tegroup_impl_scale_bytes(t, columnwise),
                                        tegroup_impl_element(tegroup_impl_scale_dtype(t, facts)), paths.scales, error);
    }
    TEGROUP_IMPL_TRY(tegroup_impl_check_there(memory.pointers, entries, sizeof(void *), paths.data, error));
    if (!values)
        TEGROUP_IMPL_TRY(tegroup_impl_check_there(memory.scale_pointers, entries, sizeof(void *), paths.scales, error));
    TEGROUP_IMPL_TRY(tegroup_impl_check_each(t, memory.pointers, 0, paths.data, error));
    if (values) return TEGROUP_OK;
    return tegroup_impl_check_each(t, memory.scale_pointers, tegroup_impl_scaled_as_one(facts), paths.scales, error);
}
