/* ---- Prepare: the place of a group ---- */

#pragma once
#include "base/version.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "base/arithmetic.h"
#include "formats/convert.h"

/* How sizes become a snapshot, group by group. Each function below is one step of one group, so that a loop and a
 * kernel run the same code; the steps in between are scans (sum or maximum) and a sorting network, which give the same
 * integers in whatever order they are evaluated. Nothing here trusts a size: every intermediate stays far inside 64
 * bits. */

/* What prepare works on: the caller's arrays and the snapshot's. */
typedef struct tegroup_impl_preparation {
    int32_t groups;
    int32_t irregular;
    int64_t capacity_rows, capacity_cols, capacity_elements, ld;
    tegroup_sizes rows, cols;
    const int64_t *offsets;
    int64_t *start, *out_rows, *prefix, *out_cols, *out_offset;
    int32_t *order, order_entries; /* a power of two: groups, and what pads them for the sort */
    int32_t threads;               /* on the host */
} tegroup_impl_preparation;

/* The scan that places groups: a running sum of counts, or a running maximum of ends. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_scan(const tegroup_impl_preparation *p, int64_t carry, int64_t term) {
    return p->rows.encoding == TEGROUP_ENCODING_COUNTS ? carry + term : tegroup_impl_max(carry, term);
}

/* Term of group g: its rows with their padding, or its end. At most 2^41, so that 4,096 of them cannot overflow. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_term(const tegroup_impl_preparation *p, int32_t g) {
    int64_t raw = tegroup_impl_load_int(p->rows.dtype, p->rows.data,
                                        p->rows.encoding == TEGROUP_ENCODING_OFFSETS ? (int64_t)g + 1 : g);
    int64_t value = tegroup_impl_clamp(raw, 0, p->capacity_rows);
    return p->rows.encoding == TEGROUP_ENCODING_COUNTS && p->rows.alignment > 1
               ? tegroup_impl_align(value, p->rows.alignment)
               : value;
}

/* What the scan begins with: the row at which group 0 begins. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_first(const tegroup_impl_preparation *p) {
    if (p->rows.encoding != TEGROUP_ENCODING_OFFSETS) return 0;
    return tegroup_impl_clamp(tegroup_impl_load_int(p->rows.dtype, p->rows.data, 0), 0, p->capacity_rows);
}

/* Where a group lies. cols and offset: of an irregular shape. */
typedef struct tegroup_impl_place {
    int64_t start, rows, cols, offset;
} tegroup_impl_place;

/* Place group g, given the scan of the groups before it. Returns the status bits that it raises. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_prepare_place(const tegroup_impl_preparation *p, int32_t g, int64_t carry,
                                                    tegroup_impl_place *x) {
    const tegroup_sizes *sizes = &p->rows;
    int64_t capacity = p->capacity_rows, start = carry, rows;
    uint32_t bits = 0;
    if (sizes->encoding == TEGROUP_ENCODING_COUNTS) {
        rows = tegroup_impl_load_int(sizes->dtype, sizes->data, g);
        if (sizes->starts) start = tegroup_impl_load_int(sizes->dtype, sizes->starts, g);
        else if (sizes->stride > 0) start = g * sizes->stride;
        if (rows == -1) { /* skipped: owns nothing, and says so */
            x->start = tegroup_impl_clamp(start, 0, capacity);
            x->rows = -1;
            return 0;
        }
        if (rows < 0) {
            bits |= TEGROUP_SNAPSHOT_NEGATIVE;
            rows = 0;
        }
        if (start < 0) { /* only a caller's start can be */
            bits |= TEGROUP_SNAPSHOT_START;
            start = 0;
            rows = 0;
        }
        if (!sizes->starts && sizes->stride > 0 && rows > sizes->stride && g + 1 < p->groups) {
            bits |= TEGROUP_SNAPSHOT_OVERLAP;
            rows = sizes->stride;
        }
    } else {
        int64_t end, before;
        if (sizes->encoding == TEGROUP_ENCODING_OFFSETS) {
            end = tegroup_impl_load_int(sizes->dtype, sizes->data, (int64_t)g + 1);
            before = tegroup_impl_load_int(sizes->dtype, sizes->data, g);
            if (g == 0 && before != 0) bits |= TEGROUP_SNAPSHOT_START;
        } else {
            end = tegroup_impl_load_int(sizes->dtype, sizes->data, g);
            before = g ? tegroup_impl_load_int(sizes->dtype, sizes->data, (int64_t)g - 1) : 0;
            if (sizes->alignment > 1) start = tegroup_impl_align(start, sizes->alignment);
        }
        if (end < before || (end < start && end != before))
            bits |= TEGROUP_SNAPSHOT_NEGATIVE; /* an end within the padding is no end */
        /* An empty group may begin, and end, in the padding behind the buffer. */
        if (end > capacity && end > start) bits |= TEGROUP_SNAPSHOT_CAPACITY;
        rows = tegroup_impl_max(0, tegroup_impl_clamp(end, 0, capacity) - start);
    }
    if (rows > 0 && (start >= capacity || rows > capacity - start)) {
        bits |= TEGROUP_SNAPSHOT_CAPACITY;
        rows = start >= capacity ? 0 : capacity - start;
    }
    x->start = tegroup_impl_min(start, capacity);
    x->rows = rows;
    return bits;
}

/* The columns of group g. Returns the status bits that they raise. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_prepare_cols(const tegroup_impl_preparation *p, int32_t g,
                                                   tegroup_impl_place *x) {
    int64_t cols = p->capacity_cols;
    if (p->cols.encoding != TEGROUP_ENCODING_UNSET) cols = tegroup_impl_load_int(p->cols.dtype, p->cols.data, g);
    x->cols = tegroup_impl_clamp(cols, 0, p->capacity_cols);
    return cols != x->cols ? TEGROUP_SNAPSHOT_COLS : 0;
}

/* The elements of a packed group: the next group begins so many behind it. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_elements(const tegroup_impl_place *x) {
    return tegroup_impl_mul(tegroup_impl_max(0, x->rows), x->cols);
}

/* Elements from the first of a group's block to the last, rows ld apart. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_reach(const tegroup_impl_preparation *p, const tegroup_impl_place *x) {
    int64_t ld = p->ld > 0 ? p->ld : x->cols;
    if (x->rows <= 0 || x->cols == 0) return 0;
    return tegroup_impl_add(tegroup_impl_mul(x->rows - 1, ld), x->cols);
}

/* Its first element, given the elements before it; a block that leaves the buffer is dropped. Without a bound, as for
 * lists, none does. */
TEGROUP_IMPL_HD uint32_t tegroup_impl_prepare_offset(const tegroup_impl_preparation *p, int32_t g, int64_t carry,
                                                     tegroup_impl_place *x) {
    int64_t offset = p->offsets ? p->offsets[g] : p->ld > 0 ? tegroup_impl_mul(x->start, p->ld) : carry;
    int64_t reach = tegroup_impl_prepare_reach(p, x);
    int64_t bound = p->capacity_elements > 0 ? p->capacity_elements : reach > 0 ? INT64_MAX : 0;
    x->offset = tegroup_impl_clamp(offset, 0, bound);
    if (reach == 0 || (offset == x->offset && reach <= bound - offset)) return 0;
    x->rows = 0;
    return TEGROUP_SNAPSHOT_ELEMENTS;
}

/* The carry before group g where no size lies, as far as its rows depend on it. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_before(const tegroup_impl_preparation *p, int32_t g) {
    const int64_t at = p->rows.encoding == TEGROUP_ENCODING_OFFSETS ? (int64_t)g : (int64_t)g - 1;
    return p->rows.encoding == TEGROUP_ENCODING_COUNTS || at < 0
               ? 0
               : tegroup_impl_load_int(p->rows.dtype, p->rows.data, at);
}

/* What the snapshot has of group g; on the host, as long as nothing is written, what the sizes say, of which none
 * lies. */
TEGROUP_IMPL_HD tegroup_impl_place tegroup_impl_prepare_read(const tegroup_impl_preparation *p, int32_t g) {
    tegroup_impl_place x = {0, 0, 0, 0};
#if !defined(__CUDA_ARCH__)
    if (!p->out_rows) {
        (void)tegroup_impl_prepare_place(p, g, tegroup_impl_prepare_before(p, g), &x);
        if (p->irregular) (void)tegroup_impl_prepare_cols(p, g, &x);
        if (p->offsets) x.offset = p->offsets[g];
        return x;
    }
#endif
    x.start = p->start[g];
    x.rows = p->out_rows[g];
    if (!p->irregular) return x;
    x.cols = p->out_cols[g];
    x.offset = p->out_offset[g];
    return x;
}

/* Granules of a group of so many rows: what the prefix sums add up. */
TEGROUP_IMPL_HD int64_t tegroup_impl_granules(int64_t rows) { return (rows + TEGROUP_GRANULE - 1) / TEGROUP_GRANULE; }

TEGROUP_IMPL_HD void tegroup_impl_prepare_write(const tegroup_impl_preparation *p, int32_t g,
                                                const tegroup_impl_place *x) {
    p->start[g] = x->start;
    p->out_rows[g] = x->rows;
    if (!p->irregular) return;
    p->out_cols[g] = x->cols;
    p->out_offset[g] = x->offset;
}
