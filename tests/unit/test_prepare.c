/* tegroup_prepare: honest sizes give exactly what this file works out for itself; sizes that lie never lead outside. */
#define TEGROUP_IMPLEMENTATION
#include "support.h"
#include "test.h"

typedef __int128 wide;

/* ---- a reference that cannot overflow ----------------------------------------------------------------------------- */

/* One set of sizes as a test holds it: 64-bit values, whatever the type in which the library gets them. */
typedef struct sizes_case {
    tegroup_shape shape;      /* data, starts and offsets point at guarded arrays */
    int64_t ld;
    int64_t values[TEGROUP_MAX_GROUPS + 1], starts[TEGROUP_MAX_GROUPS], cols[TEGROUP_MAX_GROUPS], offsets[TEGROUP_MAX_GROUPS];
} sizes_case;

/* What they mean. rows are those of an honest case; kept are what is left when lies are cut. */
typedef struct meaning {
    int32_t lowest_bad; /* lowest group that a lie is about; -1 = honest */
    unsigned char bad[TEGROUP_MAX_GROUPS]; /* 1: a lie is about this one */
    wide elements; /* shape.elements, or where that is 0 those that one buffer would need, of an honest case */
    wide start[TEGROUP_MAX_GROUPS], rows[TEGROUP_MAX_GROUPS], kept[TEGROUP_MAX_GROUPS], offset[TEGROUP_MAX_GROUPS];
} meaning;

static sizes_case kase;
static meaning want;

static int honest(void) { return want.lowest_bad < 0; }

static wide round_up(wide x, wide to) { return (x + to - 1) / to * to; }

static void blame(meaning *m, int32_t g) {
    if (m->lowest_bad < 0 || g < m->lowest_bad) m->lowest_bad = g;
    m->bad[g] = 1;
}

/* Of two blocks that share something, the one that starts first (of equals: the lower index) must be cut at the other. */
static int must_be_cut(wide at, int32_t g, wide length, wide other_at, int32_t h) {
    return (at < other_at || (at == other_at && g < h)) && other_at < at + length;
}

/* Do two windows share an element? As rectangles on a grid of rows of `pitch` elements; where a window's rows go on into the grid's next
 * ones, that part is a rectangle of its own. */
typedef struct rectangle { wide row, col, rows, cols; } rectangle;
static int rectangles(wide at, wide rows, wide cols, wide pitch, rectangle *r) {
    wide row = at / pitch, col = at % pitch, first = cols < pitch - col ? cols : pitch - col;
    r[0] = (rectangle){row, col, rows, first};
    r[1] = (rectangle){row + 1, 0, rows, cols - first};
    return cols > first ? 2 : 1;
}
static int windows_meet(wide at, wide rows, wide cols, wide other_at, wide other_rows, wide other_cols, wide pitch) {
    rectangle a[2], b[2];
    int parts = rectangles(at, rows, cols, pitch, a), others = rectangles(other_at, other_rows, other_cols, pitch, b);
    for (int i = 0; i < parts; i++)
        for (int j = 0; j < others; j++)
            if (a[i].row < b[j].row + b[j].rows && b[j].row < a[i].row + a[i].rows && a[i].col < b[j].col + b[j].cols && b[j].col < a[i].col + a[i].cols)
                return 1;
    return 0;
}
/* ... of groups of a case: with one ld they are windows of one buffer, without they are packed, each by its own width. */
static int groups_meet(int64_t ld, wide at, wide rows, wide cols, wide other_at, wide other_rows, wide other_cols) {
    if (rows <= 0 || cols <= 0 || other_rows <= 0 || other_cols <= 0) return 0;
    if (ld != 0) return windows_meet(at, rows, cols, other_at, other_rows, other_cols, ld);
    return at < other_at + other_rows * other_cols && other_at < at + rows * cols;
}

static void understand(const sizes_case *c, meaning *m) {
    const tegroup_shape *shape = &c->shape;
    const tegroup_sizes *sizes = &shape->row_sizes;
    int32_t G = shape->groups;
    wide at = 0, packed = 0, alignment = sizes->alignment > 0 ? sizes->alignment : 1;
    int counts = sizes->encoding == TEGROUP_ENCODING_COUNTS, ends = sizes->encoding == TEGROUP_ENCODING_ENDS;
    m->lowest_bad = -1;
    m->elements = shape->elements;
    memset(m->bad, 0, sizeof m->bad);
    for (int32_t g = 0; g < G; g++) {
        wide v = c->values[g], start, rows;
        if (counts) {
            start = sizes->starts != NULL ? (wide)c->starts[g] : sizes->stride > 0 ? (wide)g * sizes->stride : at;
            rows = v;
            if (v < -1 || (v != -1 && start < 0)) blame(m, g);
            if (sizes->stride > 0 && v > sizes->stride && g + 1 < G) { blame(m, g); rows = sizes->stride; }
            if (v > 0) at = round_up(at + v, alignment);
        } else {
            wide end = ends ? v : (wide)c->values[g + 1], before = ends ? (g > 0 ? (wide)c->values[g - 1] : 0) : v;
            if (!ends && g == 0) { /* rows before the first offset are nobody's */
                if (v != 0) blame(m, g);
                at = v > 0 ? v : 0;
            }
            start = ends ? round_up(at, alignment) : at;
            rows = end > start ? end - start : 0;
            /* an end that repeats is an empty group, padded or not; one within the padding is nothing */
            if (end < before || (end < start && end != before) || (end > shape->rows && end > start)) blame(m, g);
            if (end > at) at = end;
        }
        if (rows > 0 && start + rows > shape->rows) blame(m, g);
        m->start[g] = start;
        m->rows[g] = rows;
        m->kept[g] = rows <= 0 || start < 0 || start >= shape->rows ? 0 : start + rows > shape->rows ? shape->rows - start : rows;
    }
    if (sizes->starts != NULL) {
        static wide cut[TEGROUP_MAX_GROUPS];
        for (int32_t g = 0; g < G; g++) {
            cut[g] = m->kept[g];
            for (int32_t h = 0; h < G; h++)
                if (m->kept[g] > 0 && m->kept[h] > 0 && must_be_cut(m->start[g], g, cut[g], m->start[h], h)) {
                    blame(m, g);
                    cut[g] = m->start[h] - m->start[g];
                }
        }
        memcpy(m->kept, cut, sizeof cut);
    }
    int ragged_cols = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    if (!ragged_cols && shape->offsets == NULL) return;
    static wide length[TEGROUP_MAX_GROUPS], width[TEGROUP_MAX_GROUPS];
    for (int32_t g = 0; g < G; g++) {
        wide cols = ragged_cols ? c->cols[g] : shape->cols, bound = cols < 0 ? 0 : cols > shape->cols ? shape->cols : cols, ld = c->ld != 0 ? c->ld : bound;
        if (cols != bound) blame(m, g);
        width[g] = bound;
        length[g] = m->kept[g] > 0 && bound > 0 ? (m->kept[g] - 1) * ld + bound : 0;
        m->offset[g] = shape->offsets != NULL ? (wide)c->offsets[g] : c->ld != 0 ? m->start[g] * ld : packed;
        packed += m->kept[g] * bound;
        if (length[g] > 0 && shape->elements > 0 && (m->offset[g] < 0 || m->offset[g] + length[g] > shape->elements)) { blame(m, g); length[g] = 0; }
        if (length[g] > 0 && m->offset[g] + length[g] > m->elements) m->elements = m->offset[g] + length[g];
    }
    for (int32_t g = 0; shape->offsets != NULL && g < G; g++)
        for (int32_t h = 0; h < G; h++)
            if (length[g] > 0 && length[h] > 0 && (m->offset[g] < m->offset[h] || (m->offset[g] == m->offset[h] && g < h))
                && groups_meet(c->ld, m->offset[g], m->kept[g], width[g], m->offset[h], m->kept[h], width[h]))
                blame(m, g);
}

/* ---- making sizes --------------------------------------------------------------------------------------------------- */

static void attach(sizes_case *c) { /* give the library guarded copies */
    tegroup_shape *shape = &c->shape;
    tegroup_sizes *rows = &shape->row_sizes;
    int32_t G = shape->groups;
    rows->space = TEGROUP_SPACE_HOST;
    rows->data = index_array(rows->dtype, c->values, G + (rows->encoding == TEGROUP_ENCODING_OFFSETS));
    if (rows->starts != NULL) rows->starts = index_array(rows->dtype, c->starts, G);
    if (shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET) {
        shape->col_sizes.space = TEGROUP_SPACE_HOST;
        shape->col_sizes.data = index_array(shape->col_sizes.dtype, c->cols, G);
    }
    if (shape->offsets != NULL) shape->offsets = (const int64_t *)index_array(TEGROUP_DTYPE_I64, c->offsets, G);
}

static const void *const present = &kase; /* "there is one": replaced by attach */

/* Every group has columns of its own, or those of another one whose rows end above its own; where the first begins is anywhere in a
 * row, so that some go on into the next. */
static void windows_case(rng *r, sizes_case *c, const int64_t *count) {
    tegroup_shape *shape = &c->shape;
    int64_t shift, col = 0, next = 0, above = 0; /* next: the first column that nobody has; above: the row after the last group's */
    c->ld = shape->cols;
    for (int32_t g = 0; g < shape->groups; g++) c->ld += c->cols[g] = rng_int(r, 0, shape->cols);
    shift = rng_int(r, 0, c->ld - 1);
    shape->elements = 1;
    for (int32_t g = 0; g < shape->groups; g++) {
        int64_t n = count[g] > 0 ? count[g] : 0, row = rng_int(r, 0, 3);
        if (g > 0 && c->cols[g] <= c->cols[g - 1] && rng_chance(r, 30)) row += above; /* under the one before */
        else col = next;
        c->offsets[g] = shift + row * c->ld + col;
        above = row + n;
        if (n > 0 && c->cols[g] > 0 && c->offsets[g] + (n - 1) * c->ld + c->cols[g] > shape->elements)
            shape->elements = c->offsets[g] + (n - 1) * c->ld + c->cols[g];
        if (col + c->cols[g] > next) next = col + c->cols[g];
    }
}

static void honest_case(rng *r, sizes_case *c, int32_t groups, int64_t most) {
    static const int64_t alignments[] = {0, 1, 2, 5, 16, 128, 256};
    tegroup_shape *shape = &c->shape;
    tegroup_sizes *rows = &shape->row_sizes;
    memset(shape, 0, sizeof *shape);
    c->ld = 0;
    shape->groups = groups;
    shape->cols = rng_int(r, 1, 20);
    rows->encoding = (tegroup_encoding)rng_int(r, 1, 3);
    rows->dtype = rng_chance(r, 50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64;
    int counts = rows->encoding == TEGROUP_ENCODING_COUNTS, place = counts ? (int)rng_int(r, 0, 3) : 0;
    if (rows->encoding == TEGROUP_ENCODING_ENDS || place == 1) rows->alignment = alignments[rng_int(r, 0, 6)];
    if (place == 2) rows->stride = most + rng_int(r, 0, 3) + (most == 0);
    if (place == 3) rows->starts = present;
    int64_t at = 0, end = 0, step = rows->alignment > 0 ? rows->alignment : 1;
    static int32_t order[TEGROUP_MAX_GROUPS];
    for (int32_t g = 0; g < groups; g++) order[g] = g;
    if (place == 3) rng_shuffle(r, order, groups);
    static int64_t count[TEGROUP_MAX_GROUPS];
    for (int32_t i = 0; i < groups; i++) {
        int32_t g = order[i];
        count[g] = rng_chance(r, 25) ? 0 : rng_int(r, 0, most);
        if (counts && rng_chance(r, 10)) count[g] = -1;
        int64_t n = count[g] > 0 ? count[g] : 0;
        if (place == 2) at = g * rows->stride;
        if (place == 3) at += rng_int(r, 0, 2);
        at = (at + step - 1) / step * step;
        c->starts[g] = at;
        c->values[g] = counts ? count[g] : rows->encoding == TEGROUP_ENCODING_ENDS ? at + n : at;
        at += n;
        end = at;
    }
    if (rows->encoding == TEGROUP_ENCODING_OFFSETS) c->values[groups] = at;
    shape->rows = (place == 2 ? groups * rows->stride : end) + (rng_chance(r, 50) ? 0 : rng_int(r, 0, 9));
    /* 0..2 regular, 3 packed, 4 offsets, 5 rows of one buffer, 6 offsets of equal widths, 7 windows side by side in one buffer */
    int kind = (int)rng_int(r, 0, 7);
    if (kind < 3) return;
    if (kind != 6) {
        shape->col_sizes.encoding = TEGROUP_ENCODING_COUNTS;
        shape->col_sizes.dtype = rng_chance(r, 50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64;
    }
    if (kind == 5 || (kind == 6 && rng_chance(r, 50))) c->ld = shape->cols + rng_int(r, 0, 3);
    if (kind == 4 || kind >= 6) shape->offsets = (const int64_t *)present;
    if (kind == 7) {
        windows_case(r, c, count);
        return;
    }
    int64_t elements = 0;
    for (int32_t g = 0; g < groups; g++) {
        int64_t n = count[g] > 0 ? count[g] : 0;
        c->cols[g] = kind == 6 ? shape->cols : rng_int(r, 0, shape->cols);
        if (kind == 4 || kind == 6) elements += rng_int(r, 0, 3);
        c->offsets[g] = elements;
        if (n > 0) elements += (n - 1) * (c->ld != 0 ? c->ld : c->cols[g]) + c->cols[g];
    }
    if (kind != 4 && kind != 6 && rng_chance(r, 30)) return; /* without a bound, as lists are */
    shape->elements = kind == 5 ? shape->rows * c->ld : elements;
    if (shape->elements == 0) shape->elements = 1;
}

static int64_t hostile_value(rng *r, const sizes_case *c) {
    static const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, -1, -2, -3, INT32_MIN, INT32_MAX,
        INT64_C(1) << 31, INT64_C(1) << 32, INT64_C(1) << 40, INT64_C(1) << 53, INT64_C(1) << 62, -(INT64_C(1) << 62), 0, 1};
    switch (rng_int(r, 0, 5)) {
    case 0: case 1: return extremes[rng_int(r, 0, 16)];
    case 2: return (int64_t)rng_next(r);
    case 3: return (int64_t)(rng_next(r) >> rng_int(r, 1, 63));
    case 4: return c->shape.rows + rng_int(r, -2, 2);
    default: return rng_int(r, -4, 2 * c->shape.rows + 4);
    }
}

/* Honest sizes with anything from one lie to nothing but lies. */
static void hostile_case(rng *r, sizes_case *c, int32_t groups) {
    honest_case(r, c, groups, rng_int(r, 0, 12));
    tegroup_shape *shape = &c->shape;
    int percent = rng_chance(r, 40) ? 100 : (int)rng_int(r, 1, 60);
    for (int32_t g = 0; g < groups; g++) {
        if (rng_chance(r, percent)) c->values[g] = hostile_value(r, c);
        if (rng_chance(r, percent)) c->starts[g] = hostile_value(r, c);
        if (c->shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET && rng_chance(r, percent)) c->cols[g] = rng_chance(r, 50) ? rng_int(r, -2, shape->cols + 2) : hostile_value(r, c);
        if (rng_chance(r, percent)) c->offsets[g] = rng_chance(r, 50) ? rng_int(r, -2, shape->elements + 2) : hostile_value(r, c);
    }
    if (rng_chance(r, percent)) c->values[groups] = hostile_value(r, c);
    if (rng_chance(r, 20)) shape->rows = rng_int(r, 0, shape->rows);
    if (rng_chance(r, 20) && shape->elements > 1) shape->elements = rng_int(r, 1, shape->elements);
    if (rng_chance(r, 3)) shape->rows = TEGROUP_MAX_ROWS;
    if (shape->row_sizes.alignment > 0 && rng_chance(r, 10)) shape->row_sizes.alignment = INT64_C(1) << rng_int(r, 0, 40);
    if (shape->row_sizes.stride > 0 && rng_chance(r, 30)) shape->row_sizes.stride = rng_chance(r, 50) ? rng_int(r, 1, 12) : INT64_C(1) << rng_int(r, 0, 40);
    /* the values as they are after their conversion */
    for (int32_t g = 0; g <= groups; g++) {
        if (shape->row_sizes.dtype == TEGROUP_DTYPE_I32) c->values[g] = (int32_t)c->values[g];
        if (g == groups) break;
        if (shape->row_sizes.dtype == TEGROUP_DTYPE_I32) c->starts[g] = (int32_t)c->starts[g];
        if (shape->col_sizes.dtype == TEGROUP_DTYPE_I32) c->cols[g] = (int32_t)c->cols[g];
    }
}

/* Prepare, clamping lies, into a guarded buffer of exactly the bytes that the layout asks for. NULL when the call fails. */
static tegroup_prepare_desc desc; /* of the last one */
static const void *prepared(sizes_case *c, tegroup_error *error) {
    tegroup_layout layout;
    memset(&desc, 0, sizeof desc);
    desc.clamp = 1;
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    attach(c);
    desc.shape = c->shape;
    desc.ld = c->ld;
    if (tegroup_snapshot_layout(&c->shape, &layout, error) != TEGROUP_OK) return NULL;
    desc.snapshot_bytes = layout.total_bytes;
    desc.snapshot = guarded(layout.total_bytes);
    return tegroup_prepare(&desc, NULL, error) == TEGROUP_OK ? desc.snapshot : NULL;
}

/* The same sizes without clamping: honest ones give the very same snapshot, and of lies the call names a group that lies, by a status that
 * says how, and writes nothing. Returns what is wrong, or NULL. */
static const char *refused(const sizes_case *c, const void *snapshot) {
    tegroup_prepare_desc plain = desc;
    tegroup_error error = {TEGROUP_OK, 0, NULL, NULL, 0, 0, TEGROUP_READING_NUMBER, NULL};
    size_t bytes = desc.snapshot_bytes;
    plain.clamp = 0;
    plain.snapshot = guarded(bytes);
    guarded_remember(plain.snapshot);
    tegroup_status status = tegroup_prepare(&plain, NULL, &error);
    if (honest()) return status != TEGROUP_OK ? "honest sizes are refused" : memcmp(plain.snapshot, snapshot, bytes) != 0 ? "clamping changes honest sizes" : NULL;
    if (status == TEGROUP_OK) return "a lie is not refused";
    if (guarded_changed(plain.snapshot) != 0) return "a refused call wrote";
    if (status != TEGROUP_ERROR_VALUE && status != TEGROUP_ERROR_CAPACITY && status != TEGROUP_ERROR_OVERLAP) return "no status for a lie";
    if (strncmp(error.field, "shape.", 6) != 0) return "the field is not of the shape";
    return error.got < 0 || error.got >= c->shape.groups || !want.bad[error.got] ? "the group that is named does not lie" : NULL;
}

/* The same sizes for a snapshot on the device. Those that a kernel takes as its parameter make the same snapshot, read from the parcel
 * alone, and the call is refused for want of a kernel alone; more of them are refused by their number. Returns what is wrong, or NULL. */
static const char *sent(const sizes_case *c, const void *snapshot) {
    const tegroup_sizes *rows = &c->shape.row_sizes, *cols = &c->shape.col_sizes;
    const int64_t G = c->shape.groups;
    const struct { int there; int64_t entries; tegroup_dtype dtype; } arrays[] = {
        {rows->data != NULL, G + (rows->encoding == TEGROUP_ENCODING_OFFSETS), rows->dtype}, {rows->starts != NULL, G, rows->dtype},
        {cols->encoding != TEGROUP_ENCODING_UNSET, G, cols->dtype}, {c->shape.offsets != NULL, G, TEGROUP_DTYPE_I64}};
    tegroup_prepare_desc device = desc;
    tegroup_error error = {TEGROUP_OK, 0, NULL, NULL, 0, 0, TEGROUP_READING_NUMBER, NULL};
    int64_t bytes = 0;
    for (int i = 0; i < 4; i++)
        if (arrays[i].there) bytes += arrays[i].dtype == TEGROUP_DTYPE_I64 ? 8 * arrays[i].entries : (4 * arrays[i].entries + 7) / 8 * 8;
    device.space = device.shape.row_sizes.space = device.shape.col_sizes.space = TEGROUP_SPACE_DEVICE;
    device.shape.row_sizes.data_space = device.shape.col_sizes.data_space = TEGROUP_SPACE_HOST;
    device.snapshot = guarded(desc.snapshot_bytes);
    guarded_remember(device.snapshot);
    tegroup_status status = tegroup_prepare(&device, NULL, &error);
    if (guarded_changed(device.snapshot) != 0) return "a refused call wrote";
    if (bytes > 3584) return status != TEGROUP_ERROR_UNSUPPORTED || error.expected != 3584 || error.got != bytes ? "too many are not refused" : NULL;
    if (status != TEGROUP_ERROR_NOT_BUILT) return "few are refused";

    tegroup_layout layout;
    tegroup_impl_parcel parcel;
    if (tegroup_snapshot_layout(&device.shape, &layout, NULL) != TEGROUP_OK) return "no layout";
    tegroup_impl_preparation p = tegroup_impl_preparation_of(&device, &layout);
    memset(&parcel, 0xA5, sizeof parcel);
    tegroup_impl_parcel_pack(&p, &parcel);
    if (8 * parcel.count != bytes) return "the parcel is of another length than it was checked for";
    const void *const nowhere = (const void *)(uintptr_t)8; /* what the kernel must not read */
    p.rows.data = nowhere;
    if (p.rows.starts != NULL) p.rows.starts = nowhere;
    if (p.cols.data != NULL) p.cols.data = nowhere;
    if (p.offsets != NULL) p.offsets = (const int64_t *)nowhere;
    p = tegroup_impl_parcel_open(&p, &parcel);
    memset(device.snapshot, 0, desc.snapshot_bytes);
    tegroup_impl_snapshot_open((tegroup_snapshot_header *)device.snapshot, &p);
    tegroup_impl_prepare_host(&p, (tegroup_snapshot_header *)device.snapshot);
    return memcmp(device.snapshot, snapshot, desc.snapshot_bytes) != 0 ? "sizes on their way to a kernel make another snapshot" : NULL;
}

/* What holds of every snapshot, honest or not. Returns what is broken, or NULL. */
static const char *broken(const sizes_case *c, const void *snapshot) {
    const tegroup_shape *shape = &c->shape;
    tegroup_snapshot_view v = tegroup_snapshot_read(snapshot);
    int32_t G = shape->groups;
    int irregular = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET || shape->offsets != NULL;
    int64_t total = 0, most = 0, end = 0;
    if (v.header->magic != TEGROUP_SNAPSHOT_MAGIC || v.header->groups != G || v.header->irregular != irregular) return "header";
    if (v.header->capacity_rows != shape->rows || v.header->capacity_cols != shape->cols) return "capacity";
    int64_t elements = v.header->capacity_elements;
    if (irregular && shape->elements == 0 ? elements < 0 || (honest() && elements != (int64_t)want.elements) : elements != (irregular ? shape->elements : 0)) return "capacity_elements";
    if ((v.cols != NULL) != irregular || (v.offset != NULL) != irregular) return "cols or offset present";
    if ((v.header->status == 0) != (v.header->bad_group == -1)) return "status and bad_group disagree";
    if (v.header->bad_group < -1 || v.header->bad_group >= (G > 0 ? G : 1)) return "bad_group range";
    int64_t sum = 0;
    for (int32_t g = 0; g <= G; g++) {
        if (v.prefix[g] != sum) return "prefix sums";
        if (g < G && v.rows[g] > 0) sum += v.rows[g] / 4 + (v.rows[g] % 4 != 0);
    }
    for (int32_t g = 0; g < G; g++) {
        int64_t rows = v.rows[g];
        if (rows < -1) return "rows below -1";
        if (v.start[g] < 0 || v.start[g] > shape->rows) return "start outside the buffer";
        if (rows > 0 && rows > shape->rows - v.start[g]) return "rows past the buffer";
        total += rows > 0 ? rows : 0;
        if (rows > most) most = rows;
        if (rows > 0 && v.start[g] + rows > end) end = v.start[g] + rows;
        if (irregular) {
            if (v.cols[g] < 0 || v.cols[g] > shape->cols) return "cols outside 0 .. shape.cols";
            if (v.offset[g] < 0 || v.offset[g] > elements) return "offset outside the buffer";
            if (rows > 0 && v.cols[g] > 0
                && (wide)v.offset[g] + (wide)(rows - 1) * (c->ld != 0 ? c->ld : v.cols[g]) + v.cols[g] > elements) return "elements past the buffer";
        }
        for (int32_t h = 0; h < g; h++) {
            if (rows <= 0 || v.rows[h] <= 0) continue;
            if (v.start[g] < v.start[h] + v.rows[h] && v.start[h] < v.start[g] + rows) return "two groups share rows";
            if (!irregular || v.cols[g] == 0 || v.cols[h] == 0 || (c->ld != 0 && shape->offsets == NULL)) continue;
            if (groups_meet(c->ld, v.offset[g], rows, v.cols[g], v.offset[h], v.rows[h], v.cols[h])) return "two groups share elements";
        }
    }
    if (v.header->rows_total != total || v.header->rows_max != most || v.header->rows_end != end) return "totals";
    static char seen[TEGROUP_MAX_GROUPS];
    memset(seen, 0, sizeof seen);
    for (int32_t i = 0; i < G; i++) {
        int32_t g = v.order[i];
        if (g < 0 || g >= G || seen[g]) return "order is no permutation";
        seen[g] = 1;
        if (i == 0) continue;
        int32_t before = v.order[i - 1];
        int64_t x = v.rows[before] > 0 ? v.rows[before] : 0, y = v.rows[g] > 0 ? v.rows[g] : 0;
        if (x < y || (x == y && before > g)) return "order is not sorted";
    }
    return NULL;
}

static void show(const sizes_case *c, const void *snapshot) {
    const tegroup_shape *shape = &c->shape;
    tegroup_snapshot_view v = tegroup_snapshot_read(snapshot);
    fprintf(stderr, "encoding %d dtype %d starts %d alignment %ld stride %ld capacity %ld cols %ld elements %ld offsets %d ld %ld status %u bad %d want %d %d\n",
            (int)shape->row_sizes.encoding, (int)shape->row_sizes.dtype, shape->row_sizes.starts != NULL, (long)shape->row_sizes.alignment,
            (long)shape->row_sizes.stride, (long)shape->rows, (long)shape->cols, (long)shape->elements, shape->offsets != NULL, (long)c->ld,
            v.header->status, v.header->bad_group, honest(), want.lowest_bad);
    for (int32_t g = 0; g < shape->groups && g < 12; g++)
        fprintf(stderr, "  %d: value %ld start %ld -> start %ld rows %ld%s", g, (long)c->values[g],
                shape->row_sizes.starts != NULL ? (long)c->starts[g] : 0L, (long)v.start[g], (long)v.rows[g], v.cols == NULL ? "\n" : "");
    for (int32_t g = 0; v.cols != NULL && g < shape->groups && g < 12; g++)
        fprintf(stderr, "  %d: cols %ld offset %ld -> cols %ld offset %ld\n", g, (long)c->cols[g],
                shape->offsets != NULL ? (long)c->offsets[g] : -1L, (long)v.cols[g], (long)v.offset[g]);
}

/* ---- tests -------------------------------------------------------------------------------------------------------------- */

TEST(prepare, honest_sizes_exactly) {
    rng r = rng_seed(2001);
    int64_t cases = scaled(6000);
    for (int64_t i = 0; i < cases; i++) {
        void *mark = guards_mark();
        tegroup_error error;
        int32_t groups = i % 500 == 499 ? TEGROUP_MAX_GROUPS : (int32_t)rng_int(&r, 0, 70);
        honest_case(&r, &kase, groups, rng_int(&r, 0, 300));
        understand(&kase, &want);
        ASSERT_TRUE(honest()); /* of the generator */
        const void *snapshot = prepared(&kase, &error);
        ASSERT_TRUE(snapshot != NULL);
        tegroup_snapshot_view v = tegroup_snapshot_read(snapshot);
        const char *complaint = broken(&kase, snapshot);
        if (complaint == NULL) complaint = refused(&kase, snapshot);
        if (complaint == NULL) complaint = sent(&kase, snapshot);
        if (complaint != NULL || v.header->status != 0) show(&kase, snapshot);
        ASSERT_STREQ("", complaint != NULL ? complaint : "");
        ASSERT_EQ(v.header->status, 0u);
        ASSERT_EQ(v.header->bad_group, -1);
        for (int32_t g = 0; g < groups; g++) {
            ASSERT_EQ(v.rows[g], (int64_t)want.rows[g]);
            if (want.start[g] <= kase.shape.rows) ASSERT_EQ(v.start[g], (int64_t)want.start[g]);
            if (v.cols == NULL) continue;
            ASSERT_EQ(v.cols[g], kase.cols[g]);
            if (want.rows[g] > 0 && kase.cols[g] > 0) ASSERT_EQ(v.offset[g], (int64_t)want.offset[g]);
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    printf("honest arrays: %ld\n", (long)cases);
}

TEST(prepare, hostile_sizes_stay_inside) {
    rng r = rng_seed(2002);
    int64_t cases = scaled(120000), lies = 0;
    for (int64_t i = 0; i < cases; i++) {
        void *mark = guards_mark();
        tegroup_error error;
        int32_t groups = i % 5000 == 4999 ? (int32_t)rng_int(&r, 4000, TEGROUP_MAX_GROUPS) : (int32_t)(rng_chance(&r, 70) ? rng_int(&r, 0, 8) : rng_int(&r, 0, 64));
        hostile_case(&r, &kase, groups);
        understand(&kase, &want);
        const void *snapshot = prepared(&kase, &error);
        if (snapshot == NULL) fprintf(stderr, "%d %s %s\n", (int)error.status, error.field, error.rule);
        ASSERT_TRUE(snapshot != NULL);
        tegroup_snapshot_view v = tegroup_snapshot_read(snapshot);
        const char *complaint = broken(&kase, snapshot);
        if (complaint == NULL && (v.header->status == 0) != honest()) complaint = honest() ? "honest sizes called a lie" : "a lie went unnoticed";
        if (complaint == NULL && v.header->bad_group != want.lowest_bad) complaint = "bad_group";
        if (complaint == NULL) complaint = refused(&kase, snapshot);
        if (complaint == NULL) complaint = sent(&kase, snapshot);
        if (complaint != NULL) show(&kase, snapshot);
        ASSERT_STREQ("", complaint != NULL ? complaint : "");
        for (int32_t g = 0; g < groups && honest(); g++) ASSERT_EQ(v.rows[g], (int64_t)want.rows[g]);
        ASSERT_EQ(guards_changed(), 0);
        lies += !honest();
        guards_release(mark);
    }
    ASSERT_GT(lies, cases / 2);
    ASSERT_LT(lies, cases);
    printf("hostile arrays: %ld, of which %ld lie\n", (long)cases, (long)lies);
}

/* One planted lie: its bit, and nothing else's; the groups that it does not touch are as they were. */
TEST(prepare, each_lie_has_its_bit) {
    static const struct { tegroup_encoding encoding; int64_t values[5]; int64_t starts[4]; int listed; int64_t rows; uint32_t status; int32_t bad; int64_t want[4];
                          tegroup_status refusal; const char *field; int64_t expected; } lie[] = {
        {TEGROUP_ENCODING_COUNTS, {3, -2, 4, 1}, {0}, 0, 20, TEGROUP_SNAPSHOT_NEGATIVE, 1, {3, 0, 4, 1}, TEGROUP_ERROR_VALUE, "shape.row_sizes.data", -1},
        {TEGROUP_ENCODING_COUNTS, {3, INT64_MIN, 4, 1}, {0}, 0, 20, TEGROUP_SNAPSHOT_NEGATIVE, 1, {3, 0, 4, 1}, TEGROUP_ERROR_VALUE, "shape.row_sizes.data", -1},
        {TEGROUP_ENCODING_COUNTS, {3, -1, 4, 1}, {0}, 0, 20, 0, -1, {3, -1, 4, 1}, TEGROUP_OK, NULL, 0},
        {TEGROUP_ENCODING_COUNTS, {3, 2, 4, 1}, {0}, 0, 8, TEGROUP_SNAPSHOT_CAPACITY, 2, {3, 2, 3, 0}, TEGROUP_ERROR_CAPACITY, "shape.row_sizes.data", 8},
        {TEGROUP_ENCODING_COUNTS, {3, INT64_MAX, INT64_MAX, 1}, {0}, 0, 8, TEGROUP_SNAPSHOT_CAPACITY, 1, {3, 5, 0, 0}, TEGROUP_ERROR_CAPACITY, "shape.row_sizes.data", 8},
        {TEGROUP_ENCODING_COUNTS, {3, 2, 4, 1}, {10, 0, -5, 2}, 1, 20, TEGROUP_SNAPSHOT_START, 2, {3, 2, 0, 1}, TEGROUP_ERROR_VALUE, "shape.row_sizes.starts", 0},
        {TEGROUP_ENCODING_COUNTS, {3, 2, 4, 1}, {10, 0, 2, 5}, 1, 20, TEGROUP_SNAPSHOT_OVERLAP, 2, {3, 2, 3, 1}, TEGROUP_ERROR_OVERLAP, "shape.row_sizes.starts", -1},
        {TEGROUP_ENCODING_OFFSETS, {0, 3, 5, 9, 10}, {0}, 0, 20, 0, -1, {3, 2, 4, 1}, TEGROUP_OK, NULL, 0},
        {TEGROUP_ENCODING_OFFSETS, {0, 3, 5, 9, 10}, {0}, 0, 8, TEGROUP_SNAPSHOT_CAPACITY, 2, {3, 2, 3, 0}, TEGROUP_ERROR_CAPACITY, "shape.row_sizes.data", 8},
        {TEGROUP_ENCODING_OFFSETS, {1, 3, 5, 9, 10}, {0}, 0, 20, TEGROUP_SNAPSHOT_START, 0, {2, 2, 4, 1}, TEGROUP_ERROR_VALUE, "shape.row_sizes.data", 0},
        {TEGROUP_ENCODING_ENDS, {3, 5, 9, 10}, {0}, 0, 20, 0, -1, {3, 2, 4, 1}, TEGROUP_OK, NULL, 0},
        {TEGROUP_ENCODING_ENDS, {3, 5, 9, 10}, {0}, 0, 8, TEGROUP_SNAPSHOT_CAPACITY, 2, {3, 2, 3, 0}, TEGROUP_ERROR_CAPACITY, "shape.row_sizes.data", 8},
        {TEGROUP_ENCODING_ENDS, {3, 5, 4, 10}, {0}, 0, 20, TEGROUP_SNAPSHOT_NEGATIVE, 2, {3, 2, 0, 5}, TEGROUP_ERROR_VALUE, "shape.row_sizes.data", 0},
    };
    for (size_t i = 0; i < sizeof lie / sizeof *lie; i++) {
        tegroup_error error;
        void *mark = guards_mark();
        memset(&kase.shape, 0, sizeof kase.shape);
        kase.ld = 0;
        kase.shape.groups = 4; kase.shape.rows = lie[i].rows; kase.shape.cols = 3;
        kase.shape.row_sizes.encoding = lie[i].encoding;
        kase.shape.row_sizes.dtype = TEGROUP_DTYPE_I64;
        kase.shape.row_sizes.starts = lie[i].listed ? present : NULL;
        memcpy(kase.values, lie[i].values, sizeof lie[i].values);
        memcpy(kase.starts, lie[i].starts, sizeof lie[i].starts);
        const void *snapshot = prepared(&kase, &error);
        ASSERT_TRUE(snapshot != NULL);
        tegroup_snapshot_view v = tegroup_snapshot_read(snapshot);
        if (v.header->status != lie[i].status || v.header->bad_group != lie[i].bad || memcmp(v.rows, lie[i].want, 32) != 0) {
            fprintf(stderr, "lie %d\n", (int)i);
            show(&kase, snapshot);
        }
        ASSERT_EQ(v.header->status, lie[i].status);
        ASSERT_EQ(v.header->bad_group, lie[i].bad);
        for (int32_t g = 0; g < 4; g++) ASSERT_EQ(v.rows[g], lie[i].want[g]);
        desc.clamp = 0;
        guarded_remember(snapshot);
        ASSERT_EQ(tegroup_prepare(&desc, NULL, &error), lie[i].refusal);
        ASSERT_EQ(guarded_changed(snapshot), 0); /* honest sizes give the same again */
        if (lie[i].refusal != TEGROUP_OK) {
            ASSERT_STREQ(lie[i].field, error.field);
            ASSERT_EQ(error.expected, lie[i].expected);
            ASSERT_EQ(error.got, lie[i].bad);
        }
        guards_release(mark);
    }
}

/* Behind the padding of a buffer's last rows an empty group begins past the buffer, and ends there. */
TEST(prepare, an_empty_group_may_end_behind_the_padding) {
    static const struct { int64_t ends[3]; uint32_t status; int32_t bad; } cases[] = {
        {{6, 8, 8}, 0, -1}, {{6, 6, 8}, 0, -1}, {{6, 6, 6}, 0, -1},
        {{6, 7, 7}, TEGROUP_SNAPSHOT_NEGATIVE, 1}, {{6, 8, 9}, TEGROUP_SNAPSHOT_CAPACITY, 2},
        {{7, 8, 8}, TEGROUP_SNAPSHOT_CAPACITY, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tegroup_error error;
        void *mark = guards_mark();
        memset(&kase.shape, 0, sizeof kase.shape);
        kase.ld = 0;
        kase.shape.groups = 3; kase.shape.rows = 6; kase.shape.cols = 3;
        kase.shape.row_sizes.encoding = TEGROUP_ENCODING_ENDS;
        kase.shape.row_sizes.dtype = TEGROUP_DTYPE_I64;
        kase.shape.row_sizes.alignment = 4;
        memcpy(kase.values, cases[i].ends, sizeof cases[i].ends);
        const void *snapshot = prepared(&kase, &error);
        ASSERT_TRUE(snapshot != NULL);
        tegroup_snapshot_view v = tegroup_snapshot_read(snapshot);
        ASSERT_EQ(v.header->status, cases[i].status);
        ASSERT_EQ(v.header->bad_group, cases[i].bad);
        for (int32_t g = 0; g < 3; g++) ASSERT_EQ(v.rows[g], g == 0 ? 6 : 0);
        desc.clamp = 0;
        ASSERT_EQ(tegroup_prepare(&desc, NULL, &error) == TEGROUP_OK, cases[i].status == 0);
        guards_release(mark);
    }
}

/* Slots of equal distance: only the last group's has no neighbour that it could run into. */
TEST(prepare, the_last_group_may_be_longer_than_the_stride) {
    tegroup_error error;
    void *mark = guards_mark();
    memset(&kase.shape, 0, sizeof kase.shape);
    kase.ld = 0;
    kase.shape.groups = 3; kase.shape.rows = 15; kase.shape.cols = 3;
    kase.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    kase.shape.row_sizes.dtype = TEGROUP_DTYPE_I64;
    kase.shape.row_sizes.stride = 4;
    kase.values[0] = kase.values[1] = 4;
    kase.values[2] = 7;
    tegroup_snapshot_view v = tegroup_snapshot_read(prepared(&kase, &error));
    ASSERT_TRUE(v.header != NULL);
    ASSERT_EQ(v.header->status, 0u);
    for (int32_t g = 0; g < 3; g++) {
        ASSERT_EQ(v.start[g], g * 4);
        ASSERT_EQ(v.rows[g], kase.values[g]);
    }
    desc.clamp = 0;
    ASSERT_EQ(tegroup_prepare(&desc, NULL, &error), TEGROUP_OK);
    guards_release(mark);
}

/* The sizes are read once: what happens to the array afterwards changes nothing. */
TEST(prepare, a_snapshot_is_a_copy) {
    rng r = rng_seed(2003);
    tegroup_error error;
    void *mark = guards_mark();
    spec s = {.op = TEGROUP_OP_FORWARD, .groups = 5, .n = 7, .k = 9, .seed = 3, .tail_rows = 4};
    s.m = random_rows(&r, s.groups, 20, 0);
    problem p;
    problem_make(&p, &s);
    ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    memset((void *)(uintptr_t)p.desc.a.shape.row_sizes.data, 0x7F, 5 * 8);
    problem_reference(&p);
    ASSERT_EQ(tegroup_gemm(&p.plan, &p.desc, NULL, &error), TEGROUP_OK);
    ASSERT_LT(problem_compare(&p).worst, 1.0);
    ASSERT_EQ(guards_changed(), 0);
    guards_release(mark);
}

/* A tensor over a case: zeros if it is an operand, poison if it is the result. */
static tegroup_tensor tensor_over(const sizes_case *c, const void *snapshot, int result) {
    tegroup_tensor t;
    int64_t ld = c->ld != 0 ? c->ld : c->shape.cols;
    int64_t elements = c->shape.elements > 0 ? c->shape.elements : c->shape.rows > 0 ? (c->shape.rows - 1) * ld + c->shape.cols : 0;
    memset(&t, 0, sizeof t);
    t.shape = c->shape;
    t.shape.snapshot = snapshot;
    t.dtype = TEGROUP_DTYPE_F32;
    t.ld = c->ld;
    t.data = guarded((size_t)elements * 4);
    if (!result) memset(t.data, 0, (size_t)elements * 4);
    guarded_remember(t.data);
    return t;
}

/* Bytes of a result that changed although no group of its snapshot owns them, and elements that are neither zero nor the
 * poison of something that nobody computed: every operand is zero and all around them is NaN. */
static int64_t strayed(const tegroup_tensor *t, int64_t *written) {
    tegroup_snapshot_view v = tegroup_snapshot_read(t->shape.snapshot);
    guarded_node *node = guarded_find(t->data);
    int64_t odd = 0;
    for (int32_t g = 0; g < t->shape.groups; g++) {
        int64_t cols = v.cols != NULL ? v.cols[g] : t->shape.cols, ld = t->ld != 0 ? t->ld : cols;
        int64_t first = v.offset != NULL ? v.offset[g] : v.start[g] * ld;
        for (int64_t i = 0; i < v.rows[g]; i++)
            for (int64_t at = first + i * ld; at < first + i * ld + cols; at++) {
                int changed = memcmp(node->data + 4 * at, node->copy + 4 * at, 4) != 0;
                odd += changed && load(TEGROUP_DTYPE_F32, t->data, at) != 0;
                *written += changed;
                memcpy(node->copy + 4 * at, node->data + 4 * at, 4);
            }
    }
    return odd + guarded_changed(t->data);
}

/* Products over snapshots of lies: not a byte outside the rows that the snapshots grant, and nothing read from outside that
 * shows. ASan adds: nothing read from outside at all. */
TEST(prepare, products_over_lies_stay_inside) {
    rng r = rng_seed(2004);
    int64_t cases = scaled(4000), written = 0;
    static sizes_case plain, w;
    for (int64_t i = 0; i < cases; i++) {
        void *mark = guards_mark();
        tegroup_error error;
        tegroup_op op = (tegroup_op)rng_int(&r, 1, 3);
        int32_t groups = (int32_t)rng_int(&r, 0, 12);
        do hostile_case(&r, &kase, groups); /* in one buffer, which needs a bound */
        while (kase.shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET && kase.shape.elements == 0);
        if (kase.shape.rows > 4096) kase.shape.rows = 4096;
        int irregular = kase.shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET, wgrad = op == TEGROUP_OP_WGRAD;
        /* two ragged tensors, the hostile one and one of n columns over the same lies; which is the operand varies */
        int flip = rng_chance(&r, 50), forward = op == TEGROUP_OP_FORWARD;
        int64_t n = rng_int(&r, 1, 9), width = kase.shape.cols;
        plain = kase;
        memset(&plain.shape.col_sizes, 0, sizeof plain.shape.col_sizes);
        plain.shape.offsets = NULL; plain.shape.elements = 0; plain.shape.cols = n; plain.ld = 0;
        const void *snapshot = prepared(&kase, &error), *plain_snapshot = prepared(&plain, &error);
        ASSERT_TRUE(snapshot != NULL && plain_snapshot != NULL);
        tegroup_tensor hostile = tensor_over(&kase, snapshot, !wgrad && flip), other = tensor_over(&plain, plain_snapshot, !wgrad && !flip), weight;
        /* weights: rows of the other's width and columns of the hostile one's, or the other way round */
        int across = wgrad ? !flip : forward == flip; /* the hostile widths are rows */
        memset(&w, 0, sizeof w);
        w.shape.groups = groups;
        w.shape.rows = across ? width : n;
        w.shape.cols = across ? n : width;
        if (irregular) { /* with lies of their own, in a buffer that has not an element to spare */
            w.shape.rows *= groups;
            w.shape.row_sizes.encoding = w.shape.col_sizes.encoding = TEGROUP_ENCODING_COUNTS;
            w.shape.row_sizes.dtype = w.shape.col_sizes.dtype = TEGROUP_DTYPE_I64;
            for (int32_t g = 0; g < groups; g++) {
                w.values[g] = rng_chance(&r, 70) ? (across ? kase.cols[g] : n) : rng_int(&r, -1, w.shape.cols);
                w.cols[g] = rng_chance(&r, 70) ? (across ? n : kase.cols[g]) : rng_chance(&r, 50) ? rng_int(&r, 0, w.shape.cols) : hostile_value(&r, &kase);
            }
            w.shape.elements = groups * n * width > 0 ? groups * n * width : 1;
            const void *found = prepared(&w, &error); /* what these sizes need, if they fit at all */
            ASSERT_TRUE(found != NULL);
            tegroup_snapshot_view v = tegroup_snapshot_read(found);
            int64_t need = 1;
            for (int32_t g = 0; g < groups; g++) if (v.rows[g] > 0 && v.offset[g] + v.rows[g] * v.cols[g] > need) need = v.offset[g] + v.rows[g] * v.cols[g];
            w.shape.elements = need;
            const void *weight_snapshot = prepared(&w, &error);
            ASSERT_TRUE(weight_snapshot != NULL);
            weight = tensor_over(&w, weight_snapshot, wgrad);
        } else {
            w.shape.elements = groups * n * width;
            weight = tensor_over(&w, NULL, wgrad);
            weight.shape.elements = 0;
        }
        tegroup_gemm_desc d;
        tegroup_plan plan;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.op = op;
        d.space = TEGROUP_SPACE_HOST;
        d.options.threads = 1;
        d.a = flip ? other : hostile;
        d.b = wgrad ? (flip ? hostile : other) : weight;
        d.d = wgrad ? weight : flip ? hostile : other;
        tegroup_status status = tegroup_plan_make(&d, NULL, &plan, &error);
        if (status == TEGROUP_OK) {
            d.options.workspace_bytes = plan.workspace_bytes;
            d.options.workspace = guarded(d.options.workspace_bytes);
            status = tegroup_gemm(&plan, &d, NULL, &error);
        }
        if (status != TEGROUP_OK) fprintf(stderr, "%d %s %s %ld %ld\n", (int)status, error.field, error.rule, (long)error.expected, (long)error.got);
        ASSERT_EQ(status, TEGROUP_OK);
        ASSERT_EQ(guards_changed(), 0);
        if (d.d.shape.snapshot != NULL) ASSERT_EQ(strayed(&d.d, &written), 0);
        for (int64_t e = 0; wgrad && !irregular && e < groups * n * width; e++) /* zero, or the poison of a skipped group */
            ASSERT_TRUE(load(TEGROUP_DTYPE_F32, d.d.data, e) == 0 || memcmp((char *)d.d.data + 4 * e, guarded_find(d.d.data)->copy + 4 * e, 4) == 0);
        guards_release(mark);
    }
    ASSERT_GT(written, cases);
    printf("products over hostile sizes: %ld\n", (long)cases);
}

/* A C whose own snapshot has fewer rows, or columns, than D's is not read beyond them, and D not written. */
TEST(prepare, a_smaller_c_bounds_the_product) {
    int64_t m[3] = {4, 0, 5}, n[3] = {6, 2, 7}, fewer[3];
    for (int side = 0; side < 3; side++) { /* neither, rows, columns */
        void *mark = guards_mark();
        spec s = {.op = TEGROUP_OP_FORWARD, .groups = 3, .m = m, .n = 7, .ng = n, .k = 5, .pack = PACK_LD, .pad = 1,
            .c = C_SEPARATE, .beta = SCALARS_ONE, .seed = 5};
        problem p;
        problem_make(&p, &s);
        *(float *)p.beta = 2;
        grid_fill(&p, &p.c, 'c', FILL_NORMAL, 1);
        guarded_remember(p.beta);
        guarded_remember(p.c.tensor.data);
        problem_reference(&p);
        ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
        ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
        memcpy(fewer, side == 1 ? m : n, sizeof fewer);
        fewer[2] = 3;
        if (side == 1) p.c.tensor.shape.row_sizes.data = fewer;
        if (side == 2) p.c.tensor.shape.col_sizes.data = fewer;
        ASSERT_EQ(grid_prepare(&p.c, &p.error), TEGROUP_OK);
        ASSERT_EQ(tegroup_gemm(&p.plan, &p.desc, NULL, &p.error), TEGROUP_OK);
        if (side > 0) (side == 1 ? p.d.rows : p.d.cols)[2] = 3;
        for (int64_t i = 0; i < p.d.rows[2]; i++)
            for (int64_t j = 0; j < p.d.cols[2]; j++)
                ASSERT_LE(fabs(value_at(&p.d, 2, i, j) - p.want[2][i * n[2] + j]), p.bound[2][i * n[2] + j]);
        ASSERT_EQ(problem_disturbed(&p), 0);
        problem_release(&p);
        guards_release(mark);
    }
}

TEST_MAIN()
