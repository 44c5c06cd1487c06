/* ---- Prepare ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/layout.h"
#include "core/checks.h"
#include "core/apart.h"

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
        if (end > capacity) bits |= TEGROUP_SNAPSHOT_CAPACITY;
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

/* Sorting. Groups are ordered by where they begin (to find overlaps) or by size, ties by index, padding last. */
typedef enum tegroup_impl_sort_key {
    TEGROUP_IMPL_SORT_BY_START,
    TEGROUP_IMPL_SORT_BY_OFFSET,
    TEGROUP_IMPL_SORT_BY_SIZE
} tegroup_impl_sort_key;

/* Does the group own any row, or any element? */
TEGROUP_IMPL_HD int tegroup_impl_prepare_owns(const tegroup_impl_preparation *p, tegroup_impl_sort_key key, int32_t g) {
    const tegroup_impl_place x = tegroup_impl_prepare_read(p, g);
    return x.rows > 0 && (key == TEGROUP_IMPL_SORT_BY_START || x.cols > 0);
}

TEGROUP_IMPL_HD int64_t tegroup_impl_sort_value(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                int32_t g) {
    if (g >= p->groups) return INT64_MAX;
    if (key == TEGROUP_IMPL_SORT_BY_SIZE) return -tegroup_impl_max(0, tegroup_impl_prepare_read(p, g).rows);
    if (!tegroup_impl_prepare_owns(p, key, g)) return INT64_MAX - 1; /* behind those that do */
    return key == TEGROUP_IMPL_SORT_BY_START ? tegroup_impl_prepare_read(p, g).start
                                             : tegroup_impl_prepare_read(p, g).offset;
}

/* One comparator of Batcher's bitonic network: position i against its partner at this distance, in runs of this
 * length. */
TEGROUP_IMPL_HD void tegroup_impl_sort_compare(const tegroup_impl_preparation *p, tegroup_impl_sort_key key, int32_t i,
                                               int32_t run, int32_t distance) {
    int32_t partner = i ^ distance, a, b;
    int64_t x, y;
    if (partner < i) return;
    a = p->order[i];
    b = p->order[partner];
    x = tegroup_impl_sort_value(p, key, a);
    y = tegroup_impl_sort_value(p, key, b);
    if ((x > y || (x == y && a > b)) == ((i & run) == 0)) {
        p->order[i] = b;
        p->order[partner] = a;
    }
}

/* The comparators that stay within the positions first .. first + block - 1. */
static inline void tegroup_impl_sort_block(const tegroup_impl_preparation *p, tegroup_impl_sort_key key, int32_t first,
                                           int32_t block, int32_t run, int32_t distance) {
    int32_t i;
    for (; distance > 0; distance /= 2)
        for (i = first; i < first + block; i++) tegroup_impl_sort_compare(p, key, i, run, distance);
}

/* The network, with the positions in a block for each thread, as far as that is a power of two: blocks wait for each
 * other only where a comparator reaches from one to another. */
static inline void tegroup_impl_sort(const tegroup_impl_preparation *p, tegroup_impl_sort_key key) {
    const int32_t extent = p->order_entries;
    int32_t log = 0, block = extent, threads, run, distance, i;
    while (extent >> log > 1) log++;
    /* extent / 2 comparators in each of log (log + 1) / 2 rounds, some twelve steps each */
    threads = tegroup_impl_team(p->threads, 3.0 * extent * log * (log + 1));
    while (block > 1 && extent / block * 2 <= threads) block /= 2;
    for (i = 0; i < extent; i++) p->order[i] = i;
    TEGROUP_IMPL_OMP(omp parallel private(run, distance, i) num_threads(threads)) {
        TEGROUP_IMPL_OMP(omp for schedule(static))
        for (i = 0; i < extent; i += block)
            for (run = 2; run <= block; run *= 2) tegroup_impl_sort_block(p, key, i, block, run, run / 2);
        for (run = 2 * block; run <= extent; run *= 2) {
            for (distance = run / 2; distance >= block; distance /= 2) {
                TEGROUP_IMPL_OMP(omp for schedule(static))
                for (i = 0; i < extent / 2; i++) /* the lower position of each pair */
                    tegroup_impl_sort_compare(p, key, 2 * i - (i & (distance - 1)), run, distance);
            }
            TEGROUP_IMPL_OMP(omp for schedule(static))
            for (i = 0; i < extent; i += block) tegroup_impl_sort_block(p, key, i, block, run, block / 2);
        }
    }
}

/* Rows that the group at position i of the sorted ones keeps to itself. Of two groups that share rows, or elements, the
 * one that starts first ends where they meet; `owners` of them own something. Groups side by side in the rows of one
 * buffer share none: each is held against those that begin before it ends, so that many of these take time by their
 * number squared, and others do not. Of the others only where they begin is read, so that positions can be treated in
 * any order. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_apart(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                   int32_t owners, int32_t i) {
    const int by_start = key == TEGROUP_IMPL_SORT_BY_START;
    tegroup_impl_place x = tegroup_impl_prepare_read(p, p->order[i]);
    int32_t j;
    for (j = i + 1; j < owners && x.rows > 0; j++) {
        const tegroup_impl_place y = tegroup_impl_prepare_read(p, p->order[j]);
        const int64_t ahead = by_start ? y.start - x.start : y.offset - x.offset;
        if (ahead >= (by_start ? x.rows : tegroup_impl_prepare_reach(p, &x))) break;
        x.rows = tegroup_impl_min(
            x.rows, by_start ? ahead : tegroup_impl_room(ahead, p->ld > 0 ? p->ld : x.cols, x.cols, y.cols));
    }
    return x.rows;
}

/* Bytes of an array of sizes, or of starts. */
static inline int64_t tegroup_impl_sizes_bytes(const tegroup_sizes *sizes, int32_t groups) {
    const int64_t entries = (int64_t)groups + (sizes->encoding == TEGROUP_ENCODING_OFFSETS);
    return entries * (tegroup_impl_bits(sizes->dtype) / 8);
}

/* Sizes on their way from host memory to a kernel, of which this is a parameter: their arrays one behind another, those
 * of the rows first, each from a whole word on. */
typedef struct tegroup_impl_parcel {
    int64_t words[TEGROUP_HOST_SIZES_MAX_BYTES / 8];
    int32_t starts, cols, offsets, count; /* words before each array; words in all */
} tegroup_impl_parcel;

static inline int64_t tegroup_impl_parcel_words(int64_t bytes) { return tegroup_impl_ceil_div(bytes, 8); }

/* Appends an array, if there is one. Returns the words before it. */
static inline int32_t tegroup_impl_parcel_add(tegroup_impl_parcel *parcel, const void *array, int64_t bytes) {
    const int32_t before = parcel->count;
    if (!array) return before;
    memcpy(parcel->words + before, array, (size_t)bytes);
    parcel->count += (int32_t)tegroup_impl_parcel_words(bytes);
    return before;
}

/* The check has seen that they have room. */
static inline void tegroup_impl_parcel_pack(const tegroup_impl_preparation *p, tegroup_impl_parcel *parcel) {
    memset(parcel, 0, sizeof *parcel); /* a captured graph keeps all of it */
    (void)tegroup_impl_parcel_add(parcel, p->rows.data, tegroup_impl_sizes_bytes(&p->rows, p->groups));
    parcel->starts = tegroup_impl_parcel_add(parcel, p->rows.starts, tegroup_impl_sizes_bytes(&p->rows, p->groups));
    parcel->cols = tegroup_impl_parcel_add(parcel, p->cols.data, tegroup_impl_sizes_bytes(&p->cols, p->groups));
    parcel->offsets = tegroup_impl_parcel_add(parcel, p->offsets, 8 * (int64_t)p->groups);
}

/* The same preparation, its sizes read from the parcel. */
TEGROUP_IMPL_HD tegroup_impl_preparation tegroup_impl_parcel_open(const tegroup_impl_preparation *p,
                                                                  const tegroup_impl_parcel *parcel) {
    tegroup_impl_preparation opened = *p;
    opened.rows.data = parcel->words;
    if (p->rows.starts) opened.rows.starts = parcel->words + parcel->starts;
    if (p->cols.data) opened.cols.data = parcel->words + parcel->cols;
    if (p->offsets) opened.offsets = parcel->words + parcel->offsets;
    return opened;
}

/* The header as it is before any group is looked at. */
TEGROUP_IMPL_HD void tegroup_impl_snapshot_open(tegroup_snapshot_header *header, const tegroup_impl_preparation *p) {
    memset(header, 0, sizeof *header);
    header->magic = TEGROUP_SNAPSHOT_MAGIC;
    header->groups = p->groups;
    header->bad_group = -1;
    header->irregular = p->irregular;
    header->capacity_rows = p->capacity_rows;
    header->capacity_cols = p->capacity_cols;
    header->capacity_elements = p->capacity_elements;
    header->ld = p->ld;
}

static inline void tegroup_impl_prepare_note(tegroup_snapshot_header *header, int32_t g, uint32_t bits) {
    if (!bits) return;
    header->status |= bits;
    if (header->bad_group < 0 || g < header->bad_group) header->bad_group = g;
}

/* Sort the groups, and write what tegroup_impl_prepare_apart says of those that own something. Returns how many these
 * are. */
static inline int32_t tegroup_impl_prepare_all_apart(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                     int64_t rows[TEGROUP_MAX_GROUPS]) {
    int32_t owners = 0, g, i;
    for (g = 0; g < p->groups; g++) owners += tegroup_impl_prepare_owns(p, key, g);
    tegroup_impl_sort(p, key);
    /* A group is held against the next one or, by offset, against all in its reach; each takes some four steps. */
    TEGROUP_IMPL_OMP(omp parallel for schedule(static, 1) num_threads(
        tegroup_impl_team(p->threads, 4.0 * owners * (key == TEGROUP_IMPL_SORT_BY_START ? 2 : owners))))
    for (i = 0; i < owners; i++) rows[i] = tegroup_impl_prepare_apart(p, key, owners, i);
    return owners;
}

static inline void tegroup_impl_prepare_disjoin(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                tegroup_snapshot_header *header) {
    int64_t rows[TEGROUP_MAX_GROUPS];
    const int32_t owners = tegroup_impl_prepare_all_apart(p, key, rows);
    int32_t g, i;
    for (i = 0; i < owners; i++) {
        g = p->order[i];
        if (rows[i] < p->out_rows[g]) tegroup_impl_prepare_note(header, g, TEGROUP_SNAPSHOT_OVERLAP);
        p->out_rows[g] = rows[i];
    }
}

/* All steps in order, on the host. */
static inline void tegroup_impl_prepare_host(const tegroup_impl_preparation *p, tegroup_snapshot_header *header) {
    tegroup_impl_place x = {0, 0, 0, 0};
    int32_t g;
    int64_t carry = p->groups > 0 ? tegroup_impl_prepare_first(p) : 0;
    for (g = 0; g < p->groups; g++) {
        tegroup_impl_prepare_note(header, g, tegroup_impl_prepare_place(p, g, carry, &x));
        tegroup_impl_prepare_write(p, g, &x);
        carry = tegroup_impl_prepare_scan(p, carry, tegroup_impl_prepare_term(p, g));
    }
    if (p->rows.starts) tegroup_impl_prepare_disjoin(p, TEGROUP_IMPL_SORT_BY_START, header);
    for (g = 0, carry = 0; p->irregular && g < p->groups; g++) {
        const int64_t before = carry;
        x = tegroup_impl_prepare_read(p, g);
        tegroup_impl_prepare_note(header, g, tegroup_impl_prepare_cols(p, g, &x));
        carry = tegroup_impl_add(carry, tegroup_impl_prepare_elements(&x)); /* of one that is dropped, too */
        tegroup_impl_prepare_note(header, g, tegroup_impl_prepare_offset(p, g, before, &x));
        tegroup_impl_prepare_write(p, g, &x);
    }
    if (p->irregular && p->offsets) tegroup_impl_prepare_disjoin(p, TEGROUP_IMPL_SORT_BY_OFFSET, header);
    p->prefix[0] = 0;
    for (g = 0; g < p->groups; g++)
        p->prefix[g + 1] = p->prefix[g] + tegroup_impl_granules(tegroup_impl_max(0, p->out_rows[g]));
    for (g = 0; g < p->groups; g++) {
        const tegroup_impl_place placed = tegroup_impl_prepare_read(p, g);
        const int64_t reach = tegroup_impl_prepare_reach(p, &placed), rows = tegroup_impl_max(0, placed.rows);
        header->rows_total += rows;
        header->rows_max = tegroup_impl_max(header->rows_max, rows);
        if (rows > 0) header->rows_end = tegroup_impl_max(header->rows_end, placed.start + rows);
        if (reach > 0) header->capacity_elements = tegroup_impl_max(header->capacity_elements, placed.offset + reach);
    }
    tegroup_impl_sort(p, TEGROUP_IMPL_SORT_BY_SIZE);
}

/* The error for the lie about group g that these status bits tell of. */
static inline tegroup_status tegroup_impl_prepare_lie(const tegroup_impl_preparation *p, int32_t g, uint32_t bits,
                                                      tegroup_error *error) {
    const char *const rows = "shape.row_sizes.data";
    const int counts = p->rows.encoding == TEGROUP_ENCODING_COUNTS;
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_START), ERROR_VALUE, counts ? "shape.row_sizes.starts" : rows,
                      counts ? "must not be negative; got is the group" : "must begin with 0; got is the group", 0, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_NEGATIVE), ERROR_VALUE, rows,
                      counts ? "must hold no count below -1; got is the group" : "must not fall; got is the group",
                      counts ? -1 : 0, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_OVERLAP), ERROR_OVERLAP, rows,
                      "must be at most shape.row_sizes.stride before the last group; got is the group", p->rows.stride,
                      g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_CAPACITY), ERROR_CAPACITY, rows,
                      "must keep each group within shape.rows; got is the group", p->capacity_rows, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_COLS), ERROR_VALUE, "shape.col_sizes.data",
                      "must be 0 to shape.cols; got is the group", p->capacity_cols, g);
    TEGROUP_IMPL_RULE(!(bits & TEGROUP_SNAPSHOT_ELEMENTS), ERROR_CAPACITY,
                      p->offsets ? "shape.offsets" : "shape.elements",
                      p->offsets ? "must keep each group within shape.elements; got is the group"
                                 : "must have room for each group; got is the group",
                      p->capacity_elements, g);
    return TEGROUP_OK;
}

/* Two groups that share rows, or elements, where no size lies otherwise. */
static inline tegroup_status tegroup_impl_prepare_check_apart(const tegroup_impl_preparation *p,
                                                              tegroup_impl_sort_key key, tegroup_error *error) {
    int64_t rows[TEGROUP_MAX_GROUPS];
    const int32_t owners = tegroup_impl_prepare_all_apart(p, key, rows);
    int32_t lowest = -1, g, i;
    for (i = 0; i < owners; i++) {
        g = p->order[i];
        if ((lowest < 0 || g < lowest) && rows[i] < tegroup_impl_prepare_read(p, g).rows) lowest = g;
    }
    TEGROUP_IMPL_RULE(lowest < 0, ERROR_OVERLAP,
                      key == TEGROUP_IMPL_SORT_BY_START ? "shape.row_sizes.starts" : "shape.offsets",
                      key == TEGROUP_IMPL_SORT_BY_START ? "must give no two groups the same rows; got is the group"
                                                        : "must give no two groups the same elements; got is the group",
                      -1, lowest);
    return TEGROUP_OK;
}

/* Sizes in host memory are looked at before anything is written. */
static inline tegroup_status tegroup_impl_prepare_refuse(const tegroup_impl_preparation *p, tegroup_error *error) {
    int32_t order[TEGROUP_MAX_GROUPS], g;
    tegroup_impl_preparation asked = *p;
    tegroup_impl_place x = {0, 0, 0, 0};
    int64_t carry = p->groups > 0 ? tegroup_impl_prepare_first(p) : 0, elements = 0;
    for (g = 0; g < p->groups; g++) {
        uint32_t bits = tegroup_impl_prepare_place(p, g, carry, &x);
        carry = tegroup_impl_prepare_scan(p, carry, tegroup_impl_prepare_term(p, g));
        if (p->irregular) {
            bits |= tegroup_impl_prepare_cols(p, g, &x);
            bits |= tegroup_impl_prepare_offset(p, g, elements, &x);
            elements = tegroup_impl_add(elements, tegroup_impl_prepare_elements(&x));
        }
        TEGROUP_IMPL_TRY(tegroup_impl_prepare_lie(p, g, bits, error));
    }
    asked.out_rows = NULL;
    asked.order = order;
    if (p->rows.starts) TEGROUP_IMPL_TRY(tegroup_impl_prepare_check_apart(&asked, TEGROUP_IMPL_SORT_BY_START, error));
    if (p->irregular && p->offsets)
        TEGROUP_IMPL_TRY(tegroup_impl_prepare_check_apart(&asked, TEGROUP_IMPL_SORT_BY_OFFSET, error));
    return TEGROUP_OK;
}

/* Where the arrays of sizes are. */
static inline tegroup_space tegroup_impl_data_space(const tegroup_sizes *sizes) {
    return sizes->data_space != TEGROUP_SPACE_UNSET ? sizes->data_space : sizes->space;
}

static inline tegroup_status tegroup_impl_check_sizes(const tegroup_sizes *sizes, int32_t groups, int is_cols,
                                                      tegroup_error *error) {
#define TEGROUP_IMPL_FIELD(name) (is_cols ? "shape.col_sizes." name : "shape.row_sizes." name)
    TEGROUP_IMPL_RULE(sizes->encoding != TEGROUP_ENCODING_UNSET, ERROR_UNSET, TEGROUP_IMPL_FIELD("encoding"),
                      "must be set", TEGROUP_ENCODING_COUNTS, 0);
    TEGROUP_IMPL_RULE_ENUM(sizes->encoding, TEGROUP_ENCODING_ENDS, TEGROUP_IMPL_FIELD("encoding"),
                           "must be a tegroup_encoding");
    TEGROUP_IMPL_RULE_AS(DTYPES, sizes->dtype != TEGROUP_DTYPE_UNSET, ERROR_UNSET, TEGROUP_IMPL_FIELD("dtype"),
                         "must be set", TEGROUP_IMPL_INTEGERS, 0);
    TEGROUP_IMPL_RULE_ENUM(sizes->dtype, TEGROUP_DTYPE_COUNT - 1, TEGROUP_IMPL_FIELD("dtype"),
                           "must be a tegroup_dtype");
    TEGROUP_IMPL_RULE_AS(DTYPES, TEGROUP_IMPL_INTEGERS >> sizes->dtype & 1u, ERROR_DTYPE, TEGROUP_IMPL_FIELD("dtype"),
                         "must be one that sizes have", TEGROUP_IMPL_INTEGERS, sizes->dtype);
    TEGROUP_IMPL_RULE(sizes->space != TEGROUP_SPACE_UNSET, ERROR_UNSET, TEGROUP_IMPL_FIELD("space"), "must be set",
                      TEGROUP_SPACE_HOST, 0);
    TEGROUP_IMPL_RULE_ENUM(sizes->space, TEGROUP_SPACE_DEVICE, TEGROUP_IMPL_FIELD("space"), "must be a tegroup_space");
    TEGROUP_IMPL_RULE_ENUM(sizes->data_space, TEGROUP_SPACE_DEVICE, TEGROUP_IMPL_FIELD("data_space"),
                           "must be a tegroup_space");
    TEGROUP_IMPL_RULE(sizes->data != NULL || groups == 0, ERROR_NULL_ARGUMENT, TEGROUP_IMPL_FIELD("data"),
                      "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(sizes->data, (size_t)tegroup_impl_bits(sizes->dtype) / 8), ERROR_ALIGNMENT,
                      TEGROUP_IMPL_FIELD("data"), "must be aligned to its element", tegroup_impl_bits(sizes->dtype) / 8,
                      (uintptr_t)sizes->data % ((size_t)tegroup_impl_bits(sizes->dtype) / 8));
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(sizes->starts, (size_t)tegroup_impl_bits(sizes->dtype) / 8), ERROR_ALIGNMENT,
                      TEGROUP_IMPL_FIELD("starts"), "must be aligned to its element",
                      tegroup_impl_bits(sizes->dtype) / 8,
                      (uintptr_t)sizes->starts % ((size_t)tegroup_impl_bits(sizes->dtype) / 8));
    TEGROUP_IMPL_RULE(sizes->alignment >= 0 && sizes->alignment <= TEGROUP_MAX_ROWS, ERROR_VALUE,
                      TEGROUP_IMPL_FIELD("alignment"), "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS,
                      sizes->alignment);
    TEGROUP_IMPL_RULE(sizes->stride >= 0 && sizes->stride <= TEGROUP_MAX_ROWS, ERROR_VALUE,
                      TEGROUP_IMPL_FIELD("stride"), "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, sizes->stride);
    TEGROUP_IMPL_RULE(!sizes->starts || sizes->encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("starts"), "goes with encoding COUNTS only", TEGROUP_ENCODING_COUNTS,
                      sizes->encoding);
    TEGROUP_IMPL_RULE(!sizes->stride || sizes->encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("stride"), "goes with encoding COUNTS only", TEGROUP_ENCODING_COUNTS,
                      sizes->encoding);
    TEGROUP_IMPL_RULE(sizes->alignment <= 1 || sizes->encoding != TEGROUP_ENCODING_OFFSETS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("alignment"), "does not go with encoding OFFSETS", 1, sizes->alignment);
    TEGROUP_IMPL_RULE(!sizes->starts || !sizes->stride, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("stride"),
                      "does not go with starts", 0, sizes->stride);
    TEGROUP_IMPL_RULE((!sizes->starts && !sizes->stride) || sizes->alignment <= 1, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("alignment"), "does not go with starts or stride", 1, sizes->alignment);
    TEGROUP_IMPL_RULE(!is_cols || sizes->encoding == TEGROUP_ENCODING_COUNTS, ERROR_COMBINATION,
                      TEGROUP_IMPL_FIELD("encoding"), "must be COUNTS for columns", TEGROUP_ENCODING_COUNTS,
                      sizes->encoding);
    TEGROUP_IMPL_RULE(!is_cols || !sizes->starts, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("starts"),
                      "does not apply to columns", 0, 1);
    TEGROUP_IMPL_RULE(!is_cols || !sizes->stride, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("stride"),
                      "does not apply to columns", 0, sizes->stride);
    TEGROUP_IMPL_RULE(!is_cols || sizes->alignment <= 1, ERROR_COMBINATION, TEGROUP_IMPL_FIELD("alignment"),
                      "does not apply to columns", 1, sizes->alignment);
#undef TEGROUP_IMPL_FIELD
    return TEGROUP_OK;
}

/* An array of sizes, or of starts, which is read. */
static inline tegroup_impl_buffer tegroup_impl_sizes_buffer(const void *data, const tegroup_sizes *sizes,
                                                            int32_t groups, const char *apart) {
    return tegroup_impl_buffer_of(data, tegroup_impl_sizes_bytes(sizes, groups), NULL, apart, 0);
}

static inline tegroup_status tegroup_impl_check_prepare(const tegroup_prepare_desc *desc, tegroup_layout *layout,
                                                        tegroup_error *error) {
    const tegroup_shape *shape;
    tegroup_impl_buffer buffers[5];
    tegroup_space data_space;
    int64_t sent = 0;
    int ragged_cols, i;
    TEGROUP_IMPL_TRY(tegroup_impl_check_space(desc->space, error));
    TEGROUP_IMPL_RULE(desc->clamp == 0 || desc->clamp == 1, ERROR_VALUE, "clamp", "must be 0 or 1", 1, desc->clamp);
    TEGROUP_IMPL_RULE(desc->host_sizes_final == 0 || desc->host_sizes_final == 1, ERROR_VALUE, "host_sizes_final",
                      "must be 0 or 1", 1, desc->host_sizes_final);
    TEGROUP_IMPL_RULE_ENUM(desc->check_level, TEGROUP_CHECK_DEEP, "check_level", "must be a tegroup_check_level");
    TEGROUP_IMPL_TRY(tegroup_impl_check_threads(desc->threads, "threads", error));
    shape = &desc->shape;
    ragged_cols = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    TEGROUP_IMPL_RULE(shape->groups >= 0 && shape->groups <= TEGROUP_MAX_GROUPS, ERROR_VALUE, "shape.groups",
                      "must be 0 to TEGROUP_MAX_GROUPS", TEGROUP_MAX_GROUPS, shape->groups);
    TEGROUP_IMPL_RULE(shape->rows >= 0 && shape->rows <= TEGROUP_MAX_ROWS, ERROR_VALUE, "shape.rows",
                      "must be 0 to TEGROUP_MAX_ROWS", TEGROUP_MAX_ROWS, shape->rows);
    TEGROUP_IMPL_RULE(shape->cols >= 0 && shape->cols <= TEGROUP_MAX_COLS, ERROR_VALUE, "shape.cols",
                      "must be 0 to TEGROUP_MAX_COLS", TEGROUP_MAX_COLS, shape->cols);
    TEGROUP_IMPL_RULE(shape->elements >= 0, ERROR_VALUE, "shape.elements", "must not be negative", 0, shape->elements);
    TEGROUP_IMPL_RULE(shape->elements > 0 || !shape->offsets, ERROR_VALUE, "shape.elements", "must be set with offsets",
                      1, 0);
    TEGROUP_IMPL_RULE(desc->ld <= TEGROUP_MAX_COLS, ERROR_VALUE, "ld", "must be at most TEGROUP_MAX_COLS",
                      TEGROUP_MAX_COLS, desc->ld);
    TEGROUP_IMPL_RULE(desc->ld == 0 || desc->ld >= shape->cols, ERROR_LAYOUT, "ld", "must be 0 or at least shape.cols",
                      shape->cols, desc->ld);
    TEGROUP_IMPL_TRY(tegroup_impl_check_sizes(&shape->row_sizes, shape->groups, 0, error));
    TEGROUP_IMPL_RULE(shape->row_sizes.space == desc->space, ERROR_COMBINATION, "shape.row_sizes.space",
                      "must equal space", desc->space, shape->row_sizes.space);
    data_space = tegroup_impl_data_space(&shape->row_sizes);
    TEGROUP_IMPL_RULE(data_space == TEGROUP_SPACE_HOST || desc->space == TEGROUP_SPACE_DEVICE, ERROR_COMBINATION,
                      "shape.row_sizes.data_space", "must be HOST where space is", TEGROUP_SPACE_HOST, data_space);
    if (ragged_cols) {
        TEGROUP_IMPL_TRY(tegroup_impl_check_sizes(&shape->col_sizes, shape->groups, 1, error));
        TEGROUP_IMPL_RULE(shape->col_sizes.space == desc->space, ERROR_COMBINATION, "shape.col_sizes.space",
                          "must equal space", desc->space, shape->col_sizes.space);
        TEGROUP_IMPL_RULE(tegroup_impl_data_space(&shape->col_sizes) == data_space, ERROR_COMBINATION,
                          "shape.col_sizes.data_space", "must be that of shape.row_sizes", data_space,
                          tegroup_impl_data_space(&shape->col_sizes));
    }
    TEGROUP_IMPL_RULE(tegroup_impl_aligned(shape->offsets, sizeof(int64_t)), ERROR_ALIGNMENT, "shape.offsets",
                      "must be aligned to its element", 8, (uintptr_t)shape->offsets % sizeof(int64_t));
    tegroup_impl_snapshot_layout(shape->groups, tegroup_impl_irregular(shape), layout);
    TEGROUP_IMPL_TRY(tegroup_impl_check_workspace(layout->total_bytes, "snapshot", "snapshot_bytes", desc->snapshot,
                                                  desc->snapshot_bytes, error));
    buffers[0] = tegroup_impl_buffer_of(desc->snapshot, (int64_t)layout->total_bytes, "snapshot", NULL, 1);
    buffers[1] = tegroup_impl_sizes_buffer(shape->row_sizes.data, &shape->row_sizes, shape->groups,
                                           "must not overlap shape.row_sizes.data");
    buffers[2] = tegroup_impl_sizes_buffer(shape->row_sizes.starts, &shape->row_sizes, shape->groups,
                                           "must not overlap shape.row_sizes.starts");
    buffers[3] = tegroup_impl_sizes_buffer(ragged_cols ? shape->col_sizes.data : NULL, &shape->col_sizes, shape->groups,
                                           "must not overlap shape.col_sizes.data");
    buffers[4] =
        tegroup_impl_buffer_of(shape->offsets, 8 * (int64_t)shape->groups, NULL, "must not overlap shape.offsets", 0);
    for (i = 1; i < 5; i++)
        if (buffers[i].base) sent += 8 * tegroup_impl_parcel_words(buffers[i].bytes);
    TEGROUP_IMPL_RULE(data_space == desc->space || sent <= TEGROUP_HOST_SIZES_MAX_BYTES, ERROR_UNSUPPORTED,
                      "shape.row_sizes.data_space",
                      "must be DEVICE, with the sizes there: host sizes may take TEGROUP_HOST_SIZES_MAX_BYTES",
                      TEGROUP_HOST_SIZES_MAX_BYTES, sent);
    return tegroup_impl_check_apart(buffers, 5, TEGROUP_CHECK_HOST, NULL, error);
}
