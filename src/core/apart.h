/* ---- What a call writes lies apart ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "core/options_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/checks.h"
#include "core/copies.h"

/* Memory that a call touches. What it writes may share none with anything else that it touches. */
typedef struct tegroup_impl_buffer {
    const tegroup_tensor *tensor; /* whose list it is; NULL: no list                                      */
    const void *base, *list;      /* its elements, NULL where they are a list's; that list, which is read */
    int64_t bytes, list_bytes;
    int32_t columnwise, of_scales; /* of a list: which copy's, and whether of its scales                  */
    const char *field; /* what an error about it names, and how one about another buffer ends: "must not overlap ..." */
    const char *apart;
    int32_t writes;
    int32_t twin;           /* buffer that it may be, wholly: an operation in place; -1 = none         */
    const char *twin_apart; /* what is said of the twin where it is another; NULL: it is the same      */
} tegroup_impl_buffer;

/* Plain memory. apart NULL: no other buffer's error names it. */
TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_buffer_of(const void *base, int64_t bytes, const char *field,
                                                               const char *apart, int writes) {
    tegroup_impl_buffer buffer;
    memset(&buffer, 0, sizeof buffer);
    buffer.base = base;
    buffer.bytes = bytes;
    buffer.field = field;
    buffer.apart = apart;
    buffer.writes = writes;
    buffer.twin = -1;
    return buffer;
}

TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_tensor_buffer(const tegroup_tensor *t,
                                                                   const tegroup_impl_name *name, int writes) {
    const int there = t->dtype != TEGROUP_DTYPE_UNSET, listed = there && tegroup_impl_listed(t);
    tegroup_impl_buffer buffer = tegroup_impl_buffer_of(
        there && !listed ? t->data : NULL, there && !listed ? tegroup_impl_extent_bytes(t) : 0,
        listed ? TEGROUP_IMPL_PATH(POINTERS) : TEGROUP_IMPL_PATH(DATA), name->apart, writes && there);
    if (!listed) return buffer;
    buffer.tensor = t;
    buffer.list = t->pointers;
    buffer.list_bytes = (int64_t)sizeof(void *) * t->shape.groups;
    return buffer;
}

/* The elements of a copy of a quantised tensor, or its scales. */
TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_copy_buffer(const tegroup_tensor *t, const tegroup_impl_name *name,
                                                                 int columnwise, int of_scales, int writes) {
    const tegroup_impl_copy_memory memory = tegroup_impl_memory_of(t, columnwise);
    const tegroup_impl_copy_paths paths = tegroup_impl_copy_paths_of(name, tegroup_impl_listed(t), columnwise);
    tegroup_impl_buffer buffer = tegroup_impl_tensor_buffer(t, name, writes);
    buffer.field = of_scales ? paths.scales : paths.data;
    buffer.columnwise = columnwise;
    buffer.of_scales = of_scales;
    if (tegroup_impl_listed(t)) buffer.list = of_scales ? memory.scale_pointers : memory.pointers;
    else {
        buffer.base = of_scales ? memory.scales : memory.data;
        buffer.bytes = of_scales ? tegroup_impl_scale_bytes(t, columnwise) : tegroup_impl_copy_bytes(t, columnwise);
    }
    return buffer;
}

TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_snapshot_buffer(const tegroup_tensor *t) {
    tegroup_layout layout;
    if (t->dtype == TEGROUP_DTYPE_UNSET || !tegroup_impl_ragged(&t->shape))
        return tegroup_impl_buffer_of(NULL, 0, NULL, NULL, 0);
    tegroup_impl_snapshot_layout(t->shape.groups, tegroup_impl_irregular(&t->shape), &layout);
    return tegroup_impl_buffer_of(t->shape.snapshot, (int64_t)layout.total_bytes, NULL, "must not overlap a snapshot",
                                  0);
}

/* A matrix; an absent one has no bytes. */
TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_matrix_buffer(const tegroup_matrix *m, const char *field,
                                                                   const char *apart, int writes) {
    return tegroup_impl_buffer_of(m->data, tegroup_impl_matrix_bytes(m), field, apart, writes);
}

/* A snapshot that came without its shape: in host memory its header, which must have been checked, tells how long it
 * is. */
TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_shapeless_snapshot_buffer(const void *snapshot,
                                                                               tegroup_space space) {
    const tegroup_snapshot_header *header = (const tegroup_snapshot_header *)snapshot;
    tegroup_layout layout;
    if (!snapshot || space == TEGROUP_SPACE_DEVICE) return tegroup_impl_buffer_of(NULL, 0, NULL, NULL, 0);
    tegroup_impl_snapshot_layout(header->groups, header->irregular, &layout);
    return tegroup_impl_buffer_of(snapshot, (int64_t)layout.total_bytes, NULL, "must not overlap the snapshot", 0);
}

TEGROUP_IMPL_STATIC tegroup_impl_buffer tegroup_impl_workspace_buffer(const tegroup_options *options, size_t bytes) {
    return tegroup_impl_buffer_of(options->workspace, (int64_t)bytes, "options.workspace",
                                  "must not overlap options.workspace", 1);
}

/* Does any matrix of a list that the host can walk share memory with a range? */
TEGROUP_IMPL_STATIC int tegroup_impl_entries_overlap(const tegroup_impl_buffer *buffer, const void *base,
                                                     int64_t bytes) {
    const tegroup_tensor *t = buffer->tensor;
    tegroup_snapshot_view view = tegroup_snapshot_read(NULL);
    tegroup_tensor one = *t; /* as large as the group */
    int32_t g;
    if (t->pointers_space != TEGROUP_SPACE_HOST) return 0;
    if (!buffer->list || !tegroup_impl_aligned(buffer->list, sizeof(void *))) return 0; /* refused where it is read */
    if (tegroup_impl_ragged(&t->shape) && t->shape.row_sizes.space == TEGROUP_SPACE_HOST)
        view = tegroup_snapshot_read(t->shape.snapshot);
    for (g = 0; g < t->shape.groups; g++) {
        if (view.rows) { /* exactly what the group has there */
            one.shape.rows = tegroup_impl_max(0, view.rows[g]);
            one.shape.cols = view.cols ? view.cols[g] : t->shape.cols;
        }
        if (tegroup_impl_overlaps(((void *const *)buffer->list)[g],
                                  buffer->of_scales ? tegroup_impl_scale_bytes(&one, buffer->columnwise)
                                                    : tegroup_impl_copy_bytes(&one, buffer->columnwise),
                                  base, bytes))
            return 1;
    }
    return 0;
}

/* Does a buffer that is written share memory with a range? The deep level walks the buffer's list, but two lists are
 * not compared entry by entry. */
TEGROUP_IMPL_STATIC int tegroup_impl_buffer_meets(const tegroup_impl_buffer *out, const void *base, int64_t bytes,
                                                  tegroup_check_level level) {
    if (tegroup_impl_overlaps(out->base, out->bytes, base, bytes)) return 1;
    return level == TEGROUP_CHECK_DEEP && out->tensor && tegroup_impl_entries_overlap(out, base, bytes);
}

TEGROUP_IMPL_STATIC int tegroup_impl_data_overlap(const tegroup_impl_buffer *out, const tegroup_impl_buffer *other,
                                                  tegroup_check_level level) {
    return tegroup_impl_buffer_meets(out, other->base, other->bytes, level)
           || (level == TEGROUP_CHECK_DEEP && other->tensor
               && tegroup_impl_entries_overlap(other, out->base, out->bytes));
}

/* The one rule about memory that is written: it lies apart from all other memory, and from every list, its own
 * included. Of two that are written and share elements, the first in the array is named. about: the index of the buffer
 * that the error names; NULL = not wanted. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_apart(const tegroup_impl_buffer *buffers, int32_t count,
                                                            tegroup_check_level level, int32_t *about,
                                                            tegroup_error *error) {
    int32_t i, j;
    for (i = 0; i < count; i++) {
        const tegroup_impl_buffer *out = &buffers[i];
        if (!out->writes) continue;
        if (about) *about = i;
        for (j = 0; j < count; j++) {
            const tegroup_impl_buffer *other = &buffers[j];
            const int twins = out->twin == j || other->twin == i, told = i == j || (j < i && other->writes);
            const char *twin_apart = out->twin == j ? out->twin_apart : other->twin_apart;
            if (other->list)
                TEGROUP_IMPL_RULE(!tegroup_impl_buffer_meets(out, other->list, other->list_bytes, level), ERROR_OVERLAP,
                                  out->field, other->apart, 0, 1);
            if (told || (twins && !twin_apart)) continue;
            TEGROUP_IMPL_RULE(!tegroup_impl_data_overlap(out, other, level), ERROR_OVERLAP, out->field,
                              twins ? twin_apart : other->apart, 0, 1);
        }
    }
    return TEGROUP_OK;
}

/* Two windows of one buffer with rows of so many columns, `pitch` from one row to the next, the second beginning
 * `ahead` behind the first: how many rows the first one can have that share nothing with the second; INT64_MAX: any
 * number. No window is wider than the pitch, and one that begins late in a row goes on into the next. */
TEGROUP_IMPL_HD int64_t tegroup_impl_room(int64_t ahead, int64_t pitch, int64_t cols, int64_t other_cols) {
    const int64_t row = ahead < pitch ? 0 : ahead / pitch, col = ahead - row * pitch; /* seldom divided */
    if (col < cols) return row;
    return col + other_cols > pitch ? row + 1 : INT64_MAX;
}

/* The workspace of an operation on so many buffers at most: large enough, and apart from each of them. */
enum { TEGROUP_IMPL_MOST_BUFFERS = 15 };
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_check_matrix_workspace(const tegroup_layout *layout,
                                                                       const void *workspace, size_t workspace_bytes,
                                                                       const tegroup_impl_buffer *others, int32_t count,
                                                                       tegroup_error *error) {
    tegroup_impl_buffer buffers[1 + TEGROUP_IMPL_MOST_BUFFERS];
    int32_t i;
    TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(layout->total_bytes, "workspace", "workspace_bytes", workspace,
                                                  workspace_bytes, error));
    buffers[0] = tegroup_impl_buffer_of(workspace, (int64_t)layout->total_bytes, "workspace", NULL, 1);
    for (i = 0; i < count; i++) {
        buffers[1 + i] = others[i];
        buffers[1 + i].writes = 0; /* They are apart from each other already. */
    }
    return tegroup_impl_check_apart(buffers, 1 + count, TEGROUP_CHECK_HOST, NULL, error);
}
