/* ---- Layout arithmetic ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"

TEGROUP_IMPL_HD void tegroup_impl_layout_begin(tegroup_layout *layout) { memset(layout, 0, sizeof *layout); }

/* Append an item. Sizes are INT64_MAX when they overflowed; the total then is SIZE_MAX and stays there. */
TEGROUP_IMPL_HD void tegroup_impl_layout_add(tegroup_layout *layout, const char *name, int64_t bytes) {
    int64_t end = tegroup_impl_align(
        tegroup_impl_add(
            (int64_t)(layout->total_bytes > (size_t)PTRDIFF_MAX ? (size_t)PTRDIFF_MAX : layout->total_bytes), bytes),
        TEGROUP_ALIGNMENT);
    tegroup_layout_item *item = &layout->items[layout->count++];
    item->name = name;
    item->offset_bytes = layout->total_bytes;
    item->bytes = bytes > tegroup_impl_max_bytes() ? SIZE_MAX : (size_t)bytes;
    layout->total_bytes = end > tegroup_impl_max_bytes() || layout->total_bytes == SIZE_MAX ? SIZE_MAX : (size_t)end;
}

TEGROUP_IMPL_STATIC int tegroup_impl_layout_overflowed(const tegroup_layout *layout) {
    return layout->total_bytes == SIZE_MAX;
}

/* The address of an item: the only way in which a workspace is carved. */
TEGROUP_IMPL_STATIC void *tegroup_impl_layout_at(const tegroup_layout *layout, int32_t item, void *base) {
    return (char *)base + layout->items[item].offset_bytes;
}

/* A workspace that a plan or a layout says needs `needed` bytes. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_workspace(size_t needed, const char *field,
                                                                const char *bytes_field, const void *memory,
                                                                size_t bytes, tegroup_error *error) {
    TEGROUP_IMPL_RULE(needed == 0 || memory != NULL, ERROR_NULL_ARGUMENT, field, "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(memory, TEGROUP_ALIGNMENT), ERROR_ALIGNMENT, field,
                      "must be 256-byte aligned", TEGROUP_ALIGNMENT, (uintptr_t)memory % TEGROUP_ALIGNMENT);
    TEGROUP_IMPL_RULE(bytes >= needed, ERROR_WORKSPACE, bytes_field, "must be at least what the plan or layout says",
                      needed, bytes);
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_options_workspace(size_t needed, const tegroup_options *options,
                                                                        tegroup_error *error) {
    return tegroup_impl_check_workspace(needed, "options.workspace", "options.workspace_bytes", options->workspace,
                                        options->workspace_bytes, error);
}

enum { /* items of a snapshot */
       TEGROUP_IMPL_SNAPSHOT_HEADER,
       TEGROUP_IMPL_SNAPSHOT_START,
       TEGROUP_IMPL_SNAPSHOT_ROWS,
       TEGROUP_IMPL_SNAPSHOT_PREFIX,
       TEGROUP_IMPL_SNAPSHOT_ORDER,
       TEGROUP_IMPL_SNAPSHOT_COLS,
       TEGROUP_IMPL_SNAPSHOT_OFFSET
};

/* order[] is padded to a power of two, because the network that sorts it needs one. */
TEGROUP_IMPL_HD int32_t tegroup_impl_sort_extent(int32_t groups) {
    int32_t extent = 1;
    while (extent < groups) extent *= 2;
    return extent;
}

TEGROUP_IMPL_HD void tegroup_impl_snapshot_layout(int32_t groups, int irregular, tegroup_layout *layout) {
    int64_t array = 8 * (int64_t)groups;
    tegroup_impl_layout_begin(layout);
    tegroup_impl_layout_add(layout, "header", (int64_t)sizeof(tegroup_snapshot_header));
    tegroup_impl_layout_add(layout, "start", array);
    tegroup_impl_layout_add(layout, "rows", array);
    tegroup_impl_layout_add(layout, "prefix", array + 8);
    tegroup_impl_layout_add(layout, "order", 4 * (int64_t)tegroup_impl_sort_extent(groups));
    if (irregular) {
        tegroup_impl_layout_add(layout, "cols", array);
        tegroup_impl_layout_add(layout, "offset", array);
    }
}

TEGROUP_IMPL_HD int tegroup_impl_irregular(const tegroup_shape *shape) {
    return shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET || shape->elements > 0;
}

TEGROUP_API tegroup_status tegroup_snapshot_layout(const tegroup_shape *shape, tegroup_layout *layout,
                                                   tegroup_error *error) {
    TEGROUP_IMPL_RULE(shape != NULL, ERROR_NULL_ARGUMENT, "shape", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(shape->groups >= 0 && shape->groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "shape.groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, shape->groups);
    tegroup_impl_snapshot_layout(shape->groups, tegroup_impl_irregular(shape), layout);
    return TEGROUP_OK;
}

/* Where a snapshot's parts lie; the memory itself is not looked at. */
TEGROUP_IMPL_HD tegroup_snapshot_view tegroup_impl_snapshot_view(const void *snapshot, int32_t groups, int irregular) {
    tegroup_snapshot_view view;
    tegroup_layout layout;
#define TEGROUP_IMPL_PART(type, item)                                                                                  \
    ((const type *)(const void *)((const char *)snapshot + layout.items[TEGROUP_IMPL_SNAPSHOT_##item].offset_bytes))
    memset(&view, 0, sizeof view);
    tegroup_impl_snapshot_layout(groups, irregular, &layout);
    view.header = (const tegroup_snapshot_header *)snapshot;
    view.start = TEGROUP_IMPL_PART(int64_t, START);
    view.rows = TEGROUP_IMPL_PART(int64_t, ROWS);
    view.prefix = TEGROUP_IMPL_PART(int64_t, PREFIX);
    view.order = TEGROUP_IMPL_PART(int32_t, ORDER);
    if (irregular) view.cols = TEGROUP_IMPL_PART(int64_t, COLS);
    if (irregular) view.offset = TEGROUP_IMPL_PART(int64_t, OFFSET);
#undef TEGROUP_IMPL_PART
    return view;
}

TEGROUP_API tegroup_snapshot_view tegroup_snapshot_read(const void *snapshot) {
    const tegroup_snapshot_header *header = (const tegroup_snapshot_header *)snapshot;
    tegroup_snapshot_view none;
    memset(&none, 0, sizeof none);
    return header ? tegroup_impl_snapshot_view(snapshot, header->groups, header->irregular) : none;
}
