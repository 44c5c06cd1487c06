/* ---- Workspace layouts ---- */

#pragma once
#include "base/version.h"

/* Where each part of a workspace lies. Size, check and carving all read the same layout; print it to see what
 * each byte is for. Offsets are multiples of TEGROUP_ALIGNMENT; there is no slack. */
#define TEGROUP_LAYOUT_MAX_ITEMS 32

typedef struct tegroup_layout_item {
    const char *name; /* static string         */
    size_t      offset_bytes;
    size_t      bytes;
} tegroup_layout_item;

typedef struct tegroup_layout {
    int32_t             count;
    size_t              total_bytes;
    tegroup_layout_item items[TEGROUP_LAYOUT_MAX_ITEMS];
} tegroup_layout;
