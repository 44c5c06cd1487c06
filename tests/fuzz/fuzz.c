/* libFuzzer target: bytes become descriptors, and descriptors go through the public API.
 *
 * Each input builds a sensible problem, spoils up to three of its numbers and one of its pointers, and gives every buffer
 * exactly the bytes that the header's documentation asks for, so that the address sanitizer sees the first byte too many.
 * A descriptor that claims more memory than there is must only be checked, never run: it goes to SPACE_DEVICE, whose
 * checks touch nothing. What must hold afterwards is stated with MUST, in the words of the header and not of the code. */
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include <stdio.h>
#include <stdlib.h>

#define MUST(what)                                                              \
    do {                                                                        \
        if (!(what)) {                                                          \
            fprintf(stderr, "%s:%d: violated: %s\n", __FILE__, __LINE__, #what); \
            abort();                                                            \
        }                                                                       \
    } while (0)
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* ---- bytes in -------------------------------------------------------------------------------------------------- */

static const uint8_t *input;
static size_t         input_left;

static int byte(void) { return input_left ? (input_left--, *input++) : 0; }
static int below(int64_t limit) { return limit > 0 ? (int)(byte() % limit) : 0; }
static int chance(int percent) { return byte() * 100 / 256 < percent; }

static int64_t number(void) { /* from the edges of what the API knows, or anything at all */
    static const int64_t edges[] = {0, -1, 1, 2, 64, 65, 127, 128, 129, 256, 4095, 4096, 4097, INT32_MAX, INT32_MIN, INT64_C(1) << 31,
                                    (INT64_C(1) << 31) + 1, INT64_C(1) << 32, INT64_C(1) << 40, (INT64_C(1) << 40) + 1, INT64_C(1) << 53,
                                    INT64_C(1) << 62, INT64_MAX - 1, INT64_MAX, INT64_MIN, INT64_MIN + 1};
    int kind = byte(), i;
    uint64_t x = 0;
    if (kind < 96) return kind % 16;
    if (kind < 224) return edges[kind % COUNT(edges)];
    for (i = 0; i < (kind & 7) + 1; i++) x = x << 8 | (uint64_t)byte();
    return (int64_t)x;
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

/* Everything that an input may point to; a buffer ends where its region ends. */
static struct region { char *at; size_t bytes; } regions[256];
static int   region_count;
static char *workspace;
static size_t workspace_bytes;

static void *add_region(char *at, size_t bytes) {
    MUST(at != NULL && region_count < COUNT(regions));
    regions[region_count].at = at;
    regions[region_count++].bytes = bytes;
    return at;
}

static void *buffer(size_t bytes) {
    char *at = (char *)malloc(bytes ? bytes : 1);
    memset(at, byte(), bytes);
    return add_region(at, bytes);
}

static void *aligned_buffer(size_t bytes) {
    char *at = (char *)aligned_alloc(TEGROUP_ALIGNMENT, bytes ? bytes : TEGROUP_ALIGNMENT);
    memset(at, byte(), bytes);
    return add_region(at, bytes);
}

static void release(void) { /* the workspace, region 0, stays */
    while (region_count > 1) free(regions[--region_count].at);
}

/* Bytes from here to the end of the buffer. NULL has room for anything: refusing it is the library's business. */
static size_t room(const void *pointer) {
    int i;
    if (!pointer) return SIZE_MAX;
    for (i = 0; i < region_count; i++)
        if ((const char *)pointer >= regions[i].at && (const char *)pointer < regions[i].at + regions[i].bytes)
            return regions[i].bytes - (size_t)((const char *)pointer - regions[i].at);
    return 0;
}

static uint64_t hash_on(uint64_t hash, const char *from, size_t bytes) {
    size_t at;
    for (at = 0; at + 8 <= bytes; at += 8) {
        uint64_t word;
        memcpy(&word, from + at, 8);
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    for (; at < bytes; at++) hash = (hash ^ (uint8_t)from[at]) * UINT64_C(0x9E3779B97F4A7C15);
    return hash;
}

static uint64_t memory_hash(void) { /* of all but the workspace */
    uint64_t hash = 1;
    int i;
    for (i = 1; i < region_count; i++) hash = hash_on(hash, regions[i].at, regions[i].bytes);
    return hash;
}

/* A call given an older, shorter struct has taken the rest of it for zeros. */
static void forget_untold(void *desc, size_t told, size_t whole) {
    if (told < whole) memset((char *)desc + told, 0, whole - told);
}

/* ---- spoiling a descriptor ------------------------------------------------------------------------------------- */

typedef struct field { size_t at, bytes; } field;
#define FIELD(type, member) {offsetof(type, member), sizeof(((type *)0)->member)}

static void spoil_number(void *desc, field f) {
    int64_t x = number();
    int32_t narrow = (int32_t)x;
    MUST(f.bytes == 4 || f.bytes == 8);
    memcpy((char *)desc + f.at, f.bytes == 4 ? (void *)&narrow : (void *)&x, f.bytes);
}

static void spoil_numbers(void *desc, const field *fields, int count) {
    int times = below(8);
    for (times = times > 3 ? 0 : times; times > 0; times--) spoil_number(desc, fields[(byte() << 8 | byte()) % count]);
}

static void spoil_pointer(void *desc, field f) {
    char *pointer;
    memcpy(&pointer, (char *)desc + f.at, sizeof pointer);
    switch (below(3)) {
    case 0: pointer = NULL; break;
    case 1: pointer = pointer ? pointer + 1 : NULL; break;
    default: pointer = regions[below(region_count)].at; break;
    }
    memcpy((char *)desc + f.at, &pointer, sizeof pointer);
}

static void spoil_pointers(void *desc, const field *fields, int count) {
    if (chance(25)) spoil_pointer(desc, fields[byte() % count]);
}

/* ---- what must hold -------------------------------------------------------------------------------------------- */

/* Text of a length that snprintf would return, in a buffer of a size of its own. */
static char *text_buffer(size_t size) { return size ? (char *)malloc(size) : NULL; }
static void check_text(int length, char *text, size_t size) {
    MUST(length > 0 && (size == 0 || strlen(text) == ((size_t)length < size ? (size_t)length : size - 1)));
    free(text);
}

static void check_error(tegroup_status status, const tegroup_error *error) {
    size_t size = (size_t)below(48);
    char *text = text_buffer(size);
    MUST(status >= TEGROUP_OK && status < TEGROUP_STATUS_COUNT);
    if (status == TEGROUP_OK) MUST(error->status == TEGROUP_STATUS_COUNT); /* as it was set before the call */
    else MUST(error->status == status && error->field && error->rule && error->native == 0);
    check_text(tegroup_error_text(status ? error : NULL, text, size), text, size);
}

static const tegroup_error no_error = {TEGROUP_STATUS_COUNT, 0, NULL, NULL, 0, 0};

static void check_layout(const tegroup_layout *layout) {
    size_t end = 0, size = (size_t)byte();
    char *text = text_buffer(size);
    int i;
    MUST(layout->count >= 0 && layout->count <= TEGROUP_LAYOUT_MAX_ITEMS);
    for (i = 0; i < layout->count; i++) {
        const tegroup_layout_item *item = &layout->items[i];
        MUST(item->name && item->offset_bytes % TEGROUP_ALIGNMENT == 0 && item->offset_bytes == end);
        MUST(item->bytes <= (size_t)PTRDIFF_MAX - end);
        end = (end + item->bytes + TEGROUP_ALIGNMENT - 1) / TEGROUP_ALIGNMENT * TEGROUP_ALIGNMENT;
    }
    MUST(layout->total_bytes == end); /* no slack */
    check_text(tegroup_layout_text(layout, text, size), text, size);
}

/* Do rows of `cols` elements, `ld` apart, from one element and from a later one share any? Row by row where the first reaches the second. */
static int share(__int128 from, int64_t rows, int64_t cols, __int128 later, int64_t other_rows, int64_t other_cols, int64_t ld) {
    __int128 row;
    if (rows <= 0 || cols <= 0 || other_rows <= 0 || other_cols <= 0) return 0;
    row = (later - from) / ld; /* the row of the first one that begins last before the second, or where it does */
    if (row < rows && later < from + row * ld + cols) return 1;
    return row + 1 < rows && later + other_cols > from + (row + 1) * ld;
}

static void check_snapshot(const tegroup_prepare_desc *desc) {
    const tegroup_shape *shape = &desc->shape;
    tegroup_snapshot_view view = tegroup_snapshot_read(desc->snapshot);
    const tegroup_snapshot_header *header = view.header;
    int64_t total = 0, largest = 0, end = 0;
    int32_t g, h, i;
    MUST(header->magic == TEGROUP_SNAPSHOT_MAGIC && header->groups == shape->groups && header->capacity_rows == shape->rows);
    MUST((header->status == 0) == (header->bad_group == -1) && header->status < 64 && header->bad_group < shape->groups);
    MUST(shape->elements > 0 ? header->capacity_elements == shape->elements : header->capacity_elements >= 0);
    MUST((view.cols != NULL) == (shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET || shape->elements > 0));
    for (g = 0; g < shape->groups; g++) {
        int64_t rows = view.rows[g], start = view.start[g];
        MUST(rows >= -1 && start >= 0 && start <= shape->rows && rows <= shape->rows - start);
        if (shape->row_sizes.encoding == TEGROUP_ENCODING_COUNTS) {
            int64_t count = shape->row_sizes.dtype == TEGROUP_DTYPE_I32 ? ((const int32_t *)shape->row_sizes.data)[g] : ((const int64_t *)shape->row_sizes.data)[g];
            MUST((rows == -1) == (count == -1));
            MUST(rows <= (count > 0 ? count : 0) && (header->status || rows == count));
        } else MUST(rows >= 0);
        rows = rows > 0 ? rows : 0;
        total += rows;
        largest = rows > largest ? rows : largest;
        if (rows > 0 && start + rows > end) end = start + rows;
        for (h = 0; h < g && rows > 0; h++)
            MUST(view.rows[h] <= 0 || start >= view.start[h] + view.rows[h] || view.start[h] >= start + rows);
        MUST(view.prefix[g + 1] - view.prefix[g] == (rows + TEGROUP_GRANULE - 1) / TEGROUP_GRANULE);
    }
    MUST(header->rows_total == total && header->rows_max == largest && header->rows_end == end);
    MUST(view.prefix[0] == 0);
    for (i = 0; i < shape->groups; i++) {
        int64_t before, rows;
        g = view.order[i];
        MUST(g >= 0 && g < shape->groups);
        if (i == 0) continue;
        rows = view.rows[g] > 0 ? view.rows[g] : 0;
        before = view.rows[view.order[i - 1]] > 0 ? view.rows[view.order[i - 1]] : 0;
        MUST(before > rows || (before == rows && view.order[i - 1] < g)); /* strictly rising: a permutation, too */
    }
    for (g = 0; view.cols && g < shape->groups; g++) {
        int64_t rows = view.rows[g] > 0 ? view.rows[g] : 0, cols = view.cols[g], ld = desc->ld ? desc->ld : cols;
        __int128 from = view.offset[g], to = from + (rows && cols ? (__int128)(rows - 1) * ld + cols : 0);
        MUST(cols >= 0 && cols <= shape->cols && from >= 0 && to <= header->capacity_elements);
        for (h = 0; h < g && to > from; h++) {
            int64_t other_rows = view.rows[h], other_cols = view.cols[h], other_ld = desc->ld ? desc->ld : other_cols;
            __int128 other = view.offset[h];
            MUST(from <= other ? !share(from, rows, cols, other, other_rows, other_cols, ld) : !share(other, other_rows, other_cols, from, rows, cols, other_ld));
        }
    }
}

/* ---- layouts and scale shapes ---------------------------------------------------------------------------------- */

static void fuzz_layouts(void) {
    tegroup_error error = no_error;
    tegroup_layout layout;
    tegroup_shape shape;
    tegroup_scale_extent extent = {0, 0, 0};
    tegroup_scaling scaling = (tegroup_scaling)(chance(90) ? below(TEGROUP_SCALING_COUNT) : number());
    tegroup_status status;
    int64_t rows = number(), cols = number(), i, j;
    int32_t columnwise = chance(90) ? below(2) : (int32_t)number();
    memset(&shape, 0, sizeof shape);
    shape.groups = (int32_t)number();
    shape.elements = number();
    shape.col_sizes.encoding = (tegroup_encoding)below(3);
    status = tegroup_snapshot_layout(&shape, &layout, &error);
    check_error(status, &error);
    if (status == TEGROUP_OK) check_layout(&layout);

    error = no_error;
    status = tegroup_scale_shape(scaling, columnwise, rows, cols, &extent, &error);
    check_error(status, &error);
    if (status == TEGROUP_OK) {
        const tegroup_scaling_facts *facts = tegroup_scaling_info(scaling);
        MUST(facts && facts->scaling == scaling && rows >= 0 && cols >= 0);
        MUST((__int128)extent.outer * extent.inner * tegroup_dtype_bits(facts->scale_dtype) / 8 == extent.bytes);
        MUST(extent.outer % facts->pad_outer == 0 && extent.inner % facts->pad_inner == 0);
        if (extent.bytes > 0 && extent.outer * extent.inner <= 2048) { /* every scale has a place of its own */
            uint8_t taken[2048] = {0};
            for (i = 0; i < extent.outer; i++)
                for (j = 0; j < extent.inner; j++) {
                    int64_t at = tegroup_scale_index(scaling, &extent, i, j);
                    MUST(at >= 0 && at < extent.outer * extent.inner && !taken[at]);
                    taken[at] = 1;
                }
        } else if (extent.bytes > 0) {
            int64_t at = tegroup_scale_index(scaling, &extent, extent.outer - 1, extent.inner - 1);
            MUST(at >= 0 && at < extent.outer * extent.inner);
        }
    }
}

/* Bytes of a tensor that may be anything: the last scale that its buffer has is in it. */
static void fuzz_tensor_layout(void) {
    static const tegroup_dtype narrow[] = {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F4E2M1};
    tegroup_error error = no_error;
    tegroup_layout layout;
    tegroup_tensor t;
    tegroup_status status;
    memset(&t, 0, sizeof t);
    t.scaling = (tegroup_scaling)(chance(95) ? below(TEGROUP_SCALING_COUNT) : number());
    t.dtype = chance(90) ? narrow[below(3)] : (tegroup_dtype)below(TEGROUP_DTYPE_COUNT);
    t.shape.groups = chance(90) ? below(6) : (int32_t)number();
    t.shape.rows = chance(50) ? below(300) : number();
    t.shape.cols = chance(50) ? below(3000) : number();
    if (chance(40)) t.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS, t.shape.row_sizes.space = TEGROUP_SPACE_DEVICE;
    if (chance(30)) t.scale_dtype = (tegroup_dtype)below(TEGROUP_DTYPE_COUNT);
    if (chance(40)) t.scale_outer_stride = chance(50) ? below(3000) : number(), t.scale_inner_stride = chance(50) ? below(3) : number();
    if (chance(20)) t.scale_parts = chance(90) ? below(4) : (int32_t)number();
    if (chance(20)) t.pointers_space = (tegroup_space)below(3);
    t.columnwise_order = (tegroup_columnwise_order)below(chance(70) ? 2 : 5);
    status = tegroup_tensor_layout(&t, (tegroup_copies)(1 + below(3)), &layout, &error);
    check_error(status, &error);
    if (status != TEGROUP_OK) return;
    check_layout(&layout);
    if (t.scaling == TEGROUP_SCALING_NONE || t.shape.groups == 0 || t.shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET || layout.items[1].bytes == 0) return;
    const tegroup_scaling_facts *facts = tegroup_scaling_info(t.scaling);
    const tegroup_impl_scale_grid grid = tegroup_impl_scale_grid_of(&t, facts, NULL, t.pointers_space ? 0 : t.shape.groups - 1, 0);
    const int64_t last = tegroup_impl_scale_of_block(&grid, grid.parts - 1, grid.outer_extent - 1, grid.inner_extent - 1);
    const size_t each = t.scale_dtype == TEGROUP_DTYPE_I32 ? 1 : (size_t)tegroup_dtype_bits(t.scale_dtype ? t.scale_dtype : facts->scale_dtype) / 8;
    MUST(last >= 0 && ((size_t)last + 1) * each == layout.items[1].bytes);
}

/* ---- prepare --------------------------------------------------------------------------------------------------- */

static void fill_sizes(const tegroup_sizes *sizes, void *data, int32_t count, int64_t hostile) {
    int64_t x = 0;
    int32_t i;
    for (i = 0; i < count; i++) {
        int64_t next = chance((int)hostile) ? number() : below(8);
        x = sizes->encoding == TEGROUP_ENCODING_COUNTS ? next : sizes->encoding == TEGROUP_ENCODING_OFFSETS && i == 0 ? next / 4 : (int64_t)((uint64_t)x + (uint64_t)next);
        if (sizes->dtype == TEGROUP_DTYPE_I32) ((int32_t *)data)[i] = (int32_t)x;
        else ((int64_t *)data)[i] = x;
    }
}

static size_t sizes_bytes(const tegroup_sizes *sizes, int32_t groups) {
    return ((size_t)groups + (sizes->encoding == TEGROUP_ENCODING_OFFSETS)) * (sizes->dtype == TEGROUP_DTYPE_I32 ? 4 : 8);
}

/* How the sizes of a shape are written down ... */
static void make_sizes(tegroup_shape *shape) {
    tegroup_sizes *rows = &shape->row_sizes;
    rows->encoding = (tegroup_encoding)(1 + below(3));
    rows->dtype = chance(50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64;
    rows->space = TEGROUP_SPACE_HOST;
    if (rows->encoding != TEGROUP_ENCODING_OFFSETS) rows->alignment = chance(25) ? 1 + below(9) : 0;
    if (rows->encoding == TEGROUP_ENCODING_COUNTS && !rows->alignment) rows->stride = chance(25) ? 1 + below(9) : 0;
    if (shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET) {
        shape->col_sizes.encoding = TEGROUP_ENCODING_COUNTS;
        shape->col_sizes.dtype = rows->dtype;
        shape->col_sizes.space = TEGROUP_SPACE_HOST;
    }
}

/* ... and the sizes themselves, in so many of a hundred hostile ones. */
static void make_size_data(tegroup_shape *shape, int hostile) {
    tegroup_sizes *rows = &shape->row_sizes;
    void *data = buffer(sizes_bytes(rows, shape->groups));
    fill_sizes(rows, data, shape->groups + (rows->encoding == TEGROUP_ENCODING_OFFSETS), hostile);
    rows->data = data;
    if (rows->encoding == TEGROUP_ENCODING_COUNTS && !rows->stride && !rows->alignment && chance(30)) {
        rows->starts = data = buffer(sizes_bytes(rows, shape->groups));
        fill_sizes(rows, data, shape->groups, hostile);
    }
    if (shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET) {
        shape->col_sizes.data = data = buffer(sizes_bytes(&shape->col_sizes, shape->groups));
        fill_sizes(&shape->col_sizes, data, shape->groups, hostile);
    }
    if (shape->elements > 0 && chance(40)) {
        tegroup_sizes as_i64 = {NULL, TEGROUP_ENCODING_COUNTS, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST, TEGROUP_SPACE_UNSET, NULL, 0, 0};
        shape->offsets = (const int64_t *)(data = buffer(8 * (size_t)shape->groups));
        fill_sizes(&as_i64, data, shape->groups, hostile);
    }
}

#define SIZES_FIELDS(type, sizes)                                                                                             \
    FIELD(type, sizes.encoding), FIELD(type, sizes.dtype), FIELD(type, sizes.space), FIELD(type, sizes.data_space), FIELD(type, sizes.alignment), \
    FIELD(type, sizes.stride)
#define SHAPE_FIELDS(type, shape)                                                                                             \
    FIELD(type, shape.groups), FIELD(type, shape.rows), FIELD(type, shape.cols), FIELD(type, shape.elements),                 \
    SIZES_FIELDS(type, shape.row_sizes), SIZES_FIELDS(type, shape.col_sizes)

static void fuzz_prepare(void) {
    static const field numbers[] = {FIELD(tegroup_prepare_desc, struct_size), FIELD(tegroup_prepare_desc, ld), FIELD(tegroup_prepare_desc, space),
                                    FIELD(tegroup_prepare_desc, snapshot_bytes), FIELD(tegroup_prepare_desc, clamp), FIELD(tegroup_prepare_desc, host_sizes_final), FIELD(tegroup_prepare_desc, threads), FIELD(tegroup_prepare_desc, check_level),
                                    SHAPE_FIELDS(tegroup_prepare_desc, shape)};
    static const field pointers[] = {FIELD(tegroup_prepare_desc, shape.row_sizes.data), FIELD(tegroup_prepare_desc, shape.row_sizes.starts),
                                     FIELD(tegroup_prepare_desc, shape.col_sizes.data), FIELD(tegroup_prepare_desc, shape.offsets),
                                     FIELD(tegroup_prepare_desc, snapshot)};
    tegroup_prepare_desc desc;
    tegroup_shape *shape = &desc.shape;
    tegroup_layout layout;
    tegroup_error error = no_error;
    tegroup_status status;
    uint64_t before;
    int hostile = below(3) * 30, lies = 0;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    shape->groups = chance(90) ? below(10) : below(64);
    shape->rows = chance(70) ? below(64) : number();
    shape->cols = below(20);
    if (chance(50)) {
        shape->col_sizes.encoding = (tegroup_encoding)below(2);
        shape->elements = chance(70) ? byte() * 4 : number();
        desc.ld = chance(30) ? shape->cols + below(chance(50) ? 4 : 40) : 0;
    }
    desc.clamp = below(2);
    desc.check_level = (tegroup_check_level)below(2);
    make_sizes(shape);
    spoil_numbers(&desc, numbers, COUNT(numbers));

    /* Arrays of as many groups as there are now, unless there are too many for a quick look. */
    lies = shape->groups < 0 || shape->groups > 64;
    if (lies) {
        int32_t groups = shape->groups;
        shape->groups = 0;
        make_size_data(shape, hostile);
        shape->groups = groups;
    } else make_size_data(shape, hostile);
    if (tegroup_snapshot_layout(shape, &layout, NULL) != TEGROUP_OK) memset(&layout, 0, sizeof layout);
    desc.snapshot = aligned_buffer(lies ? TEGROUP_ALIGNMENT : layout.total_bytes);
    if (desc.snapshot_bytes == 0) desc.snapshot_bytes = layout.total_bytes - (size_t)chance(5);
    spoil_pointers(&desc, pointers, COUNT(pointers));
    lies |= room(desc.snapshot) < layout.total_bytes && desc.snapshot_bytes >= layout.total_bytes;
    lies |= shape->groups > 0 && (room(shape->row_sizes.data) < sizes_bytes(&shape->row_sizes, shape->groups)
                                  || room(shape->row_sizes.starts) < sizes_bytes(&shape->row_sizes, shape->groups)
                                  || room(shape->col_sizes.data) < sizes_bytes(&shape->col_sizes, shape->groups)
                                  || room(shape->offsets) < 8 * (size_t)shape->groups);
    if (lies) desc.space = shape->row_sizes.space = shape->col_sizes.space = TEGROUP_SPACE_DEVICE;

    before = memory_hash();
    status = tegroup_prepare(&desc, NULL, &error);
    check_error(status, &error);
    forget_untold(&desc, desc.struct_size, sizeof desc);
    if (status == TEGROUP_OK) {
        check_snapshot(&desc);
        MUST(desc.clamp || ((const tegroup_snapshot_header *)desc.snapshot)->status == 0); /* lies are refused */
    } else MUST(memory_hash() == before);
}

/* ---- GEMM: problem, explain, plan, check, run ------------------------------------------------------------------ */

static int bits_of(tegroup_dtype dtype) {
    static const int bits[TEGROUP_DTYPE_COUNT] = {0, 64, 32, 16, 16, 8, 8, 4, 8, 32, 64};
    return (uint32_t)dtype < TEGROUP_DTYPE_COUNT ? bits[dtype] : 0;
}

/* Bytes that a tensor's documentation asks of its buffer, or of each of them. */
static double tensor_bytes(const tegroup_tensor *t) {
    const tegroup_shape *shape = &t->shape;
    double ld = (double)(t->ld ? t->ld : shape->cols), one, elements;
    int ragged = shape->row_sizes.encoding != TEGROUP_ENCODING_UNSET, listed = t->pointers_space != TEGROUP_SPACE_UNSET;
    if (shape->groups < 0 || (shape->groups == 0 && (!ragged || listed)) || shape->rows <= 0 || shape->cols <= 0) return 0;
    one = (double)(shape->rows - 1) * ld + (double)shape->cols;
    elements = ragged || listed ? one : (shape->groups - 1) * (t->group_stride ? (double)t->group_stride : (double)shape->rows * ld) + one;
    if (!listed && (shape->elements > 0 || shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET)) elements = (double)shape->elements;
    return elements * bits_of(t->dtype) / 8;
}

#define MOST_BYTES       8192      /* of one buffer; who claims more, lies */
#define MOST_SAVED_BYTES (1 << 26) /* of what a layer keeps; one that asks for more is planned and not run */

static int tensor_lies(const tegroup_tensor *t) {
    double bytes = tensor_bytes(t);
    int32_t g;
    if (t->dtype == TEGROUP_DTYPE_UNSET) return 0;
    if (t->shape.groups > 64 || t->shape.rows > 4096) return 1;
    if (t->pointers_space == TEGROUP_SPACE_UNSET) return bytes > (double)room(t->data);
    if (!t->pointers || t->shape.groups <= 0 || room(t->pointers) < 8 * (size_t)t->shape.groups) return t->pointers != NULL && t->shape.groups > 0;
    for (g = 0; g < t->shape.groups && (uintptr_t)t->pointers % 8 == 0; g++)
        if (t->pointers[g] == NULL || bytes > (double)room(t->pointers[g])) return 1; /* an entry is read at the deep level only */
    return 0;
}

static uint64_t snapshots_hash(tegroup_tensor *const *tensors, int count) {
    uint64_t hash = 1;
    int i;
    for (i = 0; i < count; i++)
        if (tensors[i]->shape.snapshot) hash = hash_on(hash, (const char *)tensors[i]->shape.snapshot, room(tensors[i]->shape.snapshot));
    return hash;
}

static void tensor_memory(tegroup_tensor *t) {
    double bytes = tensor_bytes(t);
    int32_t g, groups = t->shape.groups < 0 ? 0 : t->shape.groups > 8 ? 8 : t->shape.groups;
    if (bytes < 0 || bytes > MOST_BYTES) bytes = 8;
    if (t->pointers_space == TEGROUP_SPACE_UNSET) {
        t->data = buffer((size_t)(bytes + 0.5));
        return;
    }
    t->pointers = (void *const *)buffer(8 * (size_t)groups);
    for (g = 0; g < groups; g++) ((void **)t->pointers)[g] = g < 3 || chance(50) ? buffer((size_t)(bytes + 0.5)) : t->pointers[0];
}

/* The copies and scales of a quantised operand: buffers of just the size, or lists of them; any may be missing. */
static void *maybe_buffer(size_t bytes) { return chance(90) ? buffer(bytes) : NULL; }
static void *const *maybe_list(int32_t groups, size_t bytes) {
    void **list = (void **)maybe_buffer(8 * (size_t)groups);
    for (int32_t g = 0; list && g < groups; g++) list[g] = maybe_buffer(bytes);
    return list;
}
static void copies_memory(tegroup_tensor *t) {
    const int32_t groups = t->shape.groups;
    tegroup_layout layout;
    if (tegroup_tensor_layout(t, TEGROUP_COPIES_BOTH, &layout, NULL) != TEGROUP_OK || layout.total_bytes > 16 * MOST_BYTES || groups > 8) return;
    if (layout.items[4].bytes && chance(50)) t->global_scale_inv = (float *)buffer(layout.items[4].bytes);
    if (t->pointers_space == TEGROUP_SPACE_UNSET) {
        t->data = maybe_buffer(layout.items[0].bytes);
        t->scale_inv = maybe_buffer(layout.items[1].bytes);
        t->columnwise_data = maybe_buffer(layout.items[2].bytes);
        if (layout.items[3].bytes || chance(5)) t->columnwise_scale_inv = maybe_buffer(layout.items[3].bytes); /* values have none */
        return;
    }
    t->pointers = maybe_list(groups, layout.items[0].bytes);
    t->scale_pointers = maybe_list(groups, layout.items[1].bytes);
    t->columnwise_pointers = maybe_list(groups, layout.items[2].bytes);
    if (layout.items[3].bytes || chance(5)) t->columnwise_scale_pointers = maybe_list(groups, layout.items[3].bytes);
}
static int list_lies(void *const *list, int32_t groups, size_t bytes) {
    if (!list || groups <= 0) return 0;
    if (room(list) < 8 * (size_t)groups) return 1;
    for (int32_t g = 0; g < groups && (uintptr_t)list % 8 == 0; g++)
        if (room(list[g]) < bytes) return 1;
    return 0;
}
static int copies_lie(const tegroup_tensor *t) {
    tegroup_layout layout;
    tegroup_tensor plain = *t;
    plain.data = NULL; /* what is said of bytes does not depend on where they are */
    plain.pointers = NULL;
    if (t->dtype == TEGROUP_DTYPE_UNSET || (t->scaling == TEGROUP_SCALING_NONE && !t->scale_inv && !t->columnwise_data)) return 0;
    if (t->shape.groups > 64 || t->shape.rows > 4096) return 1;
    if (tegroup_tensor_layout(&plain, TEGROUP_COPIES_BOTH, &layout, NULL) != TEGROUP_OK) return t->scaling != TEGROUP_SCALING_NONE;
    return room(t->data) < layout.items[0].bytes || room(t->scale_inv) < layout.items[1].bytes || room(t->columnwise_data) < layout.items[2].bytes
           || room(t->columnwise_scale_inv) < layout.items[3].bytes || room(t->global_scale_inv) < layout.items[4].bytes
           || list_lies(t->pointers, t->shape.groups, layout.items[0].bytes) || list_lies(t->scale_pointers, t->shape.groups, layout.items[1].bytes)
           || list_lies(t->columnwise_pointers, t->shape.groups, layout.items[2].bytes)
           || list_lies(t->columnwise_scale_pointers, t->shape.groups, layout.items[3].bytes);
}

/* What is in memory of an operand whose rows may be picked by an index. */
static tegroup_tensor stored(const tegroup_tensor *t, const tegroup_gather *gather) {
    tegroup_tensor in_memory = *t;
    if (gather && gather->rows > 0 && t->shape.rows > 0) in_memory.shape.rows = gather->rows;
    return in_memory;
}

static void make_index(tegroup_gather *gather, const tegroup_tensor *t) {
    int64_t rows = t->shape.rows < 0 || t->shape.rows > MOST_BYTES / 8 ? 1 : t->shape.rows, i;
    int64_t *slots;
    if (gather->rows == 0) return;
    slots = (int64_t *)buffer(8 * (size_t)rows);
    for (i = 0; i < rows; i++) slots[i] = chance(90) ? below(20) : number(); /* anything is allowed */
    gather->slot_of_row = slots;
}

/* A tensor of [rows, cols] a group, or of `rows` rows in all. kind 0 uniform, 1 ragged rows, 2 ragged both. */
static void make_tensor(tegroup_tensor *t, tegroup_dtype dtype, int kind, const tegroup_shape *sizes, int64_t rows, int64_t cols) {
    t->dtype = dtype;
    if (kind) t->shape = *sizes;
    t->shape.groups = sizes->groups;
    t->shape.rows = rows;
    t->shape.cols = cols;
    t->ld = chance(30) ? cols + below(3) : 0;
    if (kind == 2) {
        t->shape.col_sizes.encoding = (tegroup_encoding)below(2);
        t->shape.elements = rows * (cols + below(3));
    }
    if (kind == 0 && chance(20)) t->group_stride = rows * (cols + 2) + below(3);
    if (!chance(15)) return;
    t->pointers_space = TEGROUP_SPACE_HOST;
    if (chance(90)) t->shape.elements = 0;
}

/* Prepare a tensor's shape. When it cannot be prepared it has no snapshot, which a run must refuse. */
static void prepare_tensor(tegroup_tensor *t) {
    tegroup_prepare_desc desc;
    tegroup_layout layout;
    memset(&desc, 0, sizeof desc);
    t->shape.row_sizes.data = t->shape.row_sizes.starts = t->shape.col_sizes.data = NULL;
    t->shape.offsets = NULL;
    if (t->shape.row_sizes.encoding == TEGROUP_ENCODING_UNSET || t->shape.groups < 0 || t->shape.groups > 64) return;
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    desc.shape = t->shape;
    desc.ld = t->ld;
    desc.clamp = chance(80);
    make_sizes(&desc.shape);
    make_size_data(&desc.shape, 10);
    if (tegroup_snapshot_layout(&desc.shape, &layout, NULL) != TEGROUP_OK) return;
    desc.snapshot = aligned_buffer(layout.total_bytes);
    desc.snapshot_bytes = layout.total_bytes;
    if (tegroup_prepare(&desc, NULL, NULL) == TEGROUP_OK) t->shape.snapshot = desc.snapshot;
}

/* Somebody writes over a snapshot's groups: the deep level of checks must notice what would leave the buffers. */
static void spoil_snapshot(const void *snapshot) {
    tegroup_snapshot_view view = tegroup_snapshot_read(snapshot);
    const int64_t *arrays[4];
    int count = view.cols ? 4 : 2;
    if (!snapshot || view.header->groups == 0) return;
    arrays[0] = view.start; arrays[1] = view.rows; arrays[2] = view.cols; arrays[3] = view.offset;
    ((int64_t *)(uintptr_t)arrays[below(count)])[below(view.header->groups)] = number();
}

#define TENSOR_FIELDS(type, t)                                                                                                     \
    SHAPE_FIELDS(type, t.shape), FIELD(type, t.dtype), FIELD(type, t.scaling), FIELD(type, t.ld), FIELD(type, t.group_stride), FIELD(type, t.pointers_space), \
    FIELD(type, t.scale_dtype), FIELD(type, t.scale_outer_stride), FIELD(type, t.scale_inner_stride), FIELD(type, t.scale_parts), FIELD(type, t.columnwise_order)
#define TENSOR_POINTERS(type, t) FIELD(type, t.data), FIELD(type, t.pointers), FIELD(type, t.shape.snapshot)
#define SCALARS_FIELDS(s) FIELD(tegroup_gemm_desc, s.dtype), FIELD(tegroup_gemm_desc, s.space), FIELD(tegroup_gemm_desc, s.stride)

static void check_verdicts(const tegroup_gemm_desc *desc, const tegroup_target *target, tegroup_plan *plan, tegroup_status *planned) {
    tegroup_error error = no_error, problem_error = no_error, plan_error = no_error;
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
    const tegroup_verdict *chosen = NULL;
    tegroup_problem problem;
    tegroup_status status = tegroup_gemm_problem(desc, &problem, &problem_error), explained = tegroup_explain(desc, target, verdicts, &error);
    int i;
    check_error(status, &problem_error);
    check_error(explained, &error);
    *planned = tegroup_plan_make(desc, target, plan, &plan_error);
    check_error(*planned, &plan_error);
    if (status != TEGROUP_OK) MUST(explained == status && *planned == status && !memcmp(&error, &problem_error, sizeof error));
    if (explained != TEGROUP_OK) {
        MUST(*planned == explained);
        return;
    }
    for (i = 0; i < COUNT(verdicts); i++) {
        const tegroup_verdict *v = &verdicts[i];
        size_t size = (size_t)below(64);
        char *text = text_buffer(size);
        check_text(tegroup_verdict_text(v, text, size), text, size);
        MUST(v->backend > TEGROUP_BACKEND_AUTO && v->backend < TEGROUP_BACKEND_COUNT);
        if (v->status == TEGROUP_OK) MUST(!v->field && v->workspace_bytes <= PTRDIFF_MAX && v->quirk == -1);
        else MUST(v->field && v->rule && !v->chosen && !v->workspace_bytes);
        if (v->chosen) {
            MUST(!chosen);
            chosen = v;
        }
    }
    MUST((chosen != NULL) == (*planned == TEGROUP_OK));
    if (!chosen) return;
    MUST(plan->backend == chosen->backend && plan->workspace_bytes == chosen->workspace_bytes);
    MUST(desc->options.backend == TEGROUP_BACKEND_AUTO || desc->options.backend == plan->backend);
    MUST((plan->backend == TEGROUP_BACKEND_CPU) == (desc->space == TEGROUP_SPACE_HOST));
    tegroup_layout layout;
    MUST(tegroup_plan_layout(plan, &layout, NULL) == TEGROUP_OK && layout.total_bytes == plan->workspace_bytes);
    check_layout(&layout);
}

static void fuzz_gemm(void) {
#define GEMM_FIELDS(t)   TENSOR_FIELDS(tegroup_gemm_desc, t)
#define GEMM_POINTERS(t) TENSOR_POINTERS(tegroup_gemm_desc, t)
    static const field numbers[] = {
        FIELD(tegroup_gemm_desc, struct_size), FIELD(tegroup_gemm_desc, op), FIELD(tegroup_gemm_desc, space), GEMM_FIELDS(a), GEMM_FIELDS(b), GEMM_FIELDS(c),
        GEMM_FIELDS(d), GEMM_FIELDS(bias), FIELD(tegroup_gemm_desc, row_scale_dtype), SCALARS_FIELDS(alpha), SCALARS_FIELDS(beta),
        FIELD(tegroup_gemm_desc, accumulate), FIELD(tegroup_gemm_desc, tail), FIELD(tegroup_gemm_desc, options.compute),
        FIELD(tegroup_gemm_desc, options.expected_rows), FIELD(tegroup_gemm_desc, options.expected_rows_max), FIELD(tegroup_gemm_desc, options.backend),
        FIELD(tegroup_gemm_desc, options.data_alignment_bytes), FIELD(tegroup_gemm_desc, options.sm_limit), FIELD(tegroup_gemm_desc, options.threads), FIELD(tegroup_gemm_desc, options.ignore_quirks), FIELD(tegroup_gemm_desc, options.check_level),
        FIELD(tegroup_gemm_desc, options.workspace_bytes), FIELD(tegroup_gemm_desc, options.cublas_workspace_bytes), FIELD(tegroup_gemm_desc, options.stream_count),
        FIELD(tegroup_gemm_desc, gather_a.rows), FIELD(tegroup_gemm_desc, gather_a.slots), FIELD(tegroup_gemm_desc, gather_b.rows), FIELD(tegroup_gemm_desc, gather_b.slots)};
    static const field pointers[] = {GEMM_POINTERS(a), GEMM_POINTERS(b), GEMM_POINTERS(c), GEMM_POINTERS(d), GEMM_POINTERS(bias),
                                     FIELD(tegroup_gemm_desc, a.scale_inv), FIELD(tegroup_gemm_desc, b.scale_inv), FIELD(tegroup_gemm_desc, a.columnwise_data), FIELD(tegroup_gemm_desc, b.columnwise_data),
                                     FIELD(tegroup_gemm_desc, a.columnwise_scale_inv), FIELD(tegroup_gemm_desc, b.columnwise_scale_inv), FIELD(tegroup_gemm_desc, b.global_scale_inv),
                                     FIELD(tegroup_gemm_desc, alpha.data), FIELD(tegroup_gemm_desc, beta.data), FIELD(tegroup_gemm_desc, row_scale),
                                     FIELD(tegroup_gemm_desc, gather_a.slot_of_row), FIELD(tegroup_gemm_desc, gather_b.slot_of_row), FIELD(tegroup_gemm_desc, options.workspace)};
    static const field of_target[] = {FIELD(tegroup_target, struct_size), FIELD(tegroup_target, sm), FIELD(tegroup_target, cublaslt_version),
                                      FIELD(tegroup_target, threads), FIELD(tegroup_target, built)};
    static const int32_t machines[] = {0, 75, 80, 89, 90, 100, 103, 110, 120};
    static const int32_t libraries[] = {0, 120000, 130200, 130300, 130400, 130500, 130700, 130800, 130801, 131000, 131100};
    tegroup_gemm_desc desc;
    tegroup_tensor *tensors[5];
    tegroup_gather *gathers[5] = {&desc.gather_a, &desc.gather_b, NULL, NULL, NULL};
    tegroup_shape sizes;
    tegroup_target target;
    tegroup_plan plan;
    tegroup_tensor in_memory;
    tegroup_error error = no_error;
    tegroup_status planned, status;
    int64_t rows = below(12), n = chance(90) ? below(20) : byte() * 2, k = chance(90) ? below(20) : byte() * 2;
    int kind = below(8), own = chance(20), i, lies = 0;
    uint64_t before;
    tegroup_dtype operand, result;
    memset(&desc, 0, sizeof desc);
    memset(&sizes, 0, sizeof sizes);
    memset(&target, 0, sizeof target);
    tensors[0] = &desc.a; tensors[1] = &desc.b; tensors[2] = &desc.c; tensors[3] = &desc.d; tensors[4] = &desc.bias;
    kind = kind < 5 ? 1 : kind - 5;
    sizes.groups = below(6);
    if (kind) {
        sizes.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
        sizes.row_sizes.dtype = TEGROUP_DTYPE_I64;
        sizes.row_sizes.space = TEGROUP_SPACE_HOST;
    }

    desc.struct_size = sizeof desc;
    desc.op = (tegroup_op)(1 + below(3));
    desc.space = chance(70) ? TEGROUP_SPACE_HOST : TEGROUP_SPACE_DEVICE;
    desc.options.compute = (tegroup_compute)below(4);
    operand = (tegroup_dtype)(desc.options.compute == TEGROUP_COMPUTE_F64 ? 1 + below(4) : 2 + below(3));
    result = (tegroup_dtype)(desc.options.compute == TEGROUP_COMPUTE_F64 ? 1 + below(4) : 2 + below(3));
    if (chance(40)) operand = (tegroup_dtype)(TEGROUP_DTYPE_F8E4M3 + below(3));
    switch (desc.op) {
    case TEGROUP_OP_FORWARD:
        make_tensor(&desc.a, operand, kind, &sizes, rows, k);
        make_tensor(&desc.b, operand, own && kind == 2 ? 2 : 0, &sizes, n, k);
        make_tensor(&desc.d, result, kind, &sizes, rows, n);
        break;
    case TEGROUP_OP_DGRAD:
        make_tensor(&desc.a, operand, kind, &sizes, rows, n);
        make_tensor(&desc.b, operand, own && kind == 2 ? 2 : 0, &sizes, n, k);
        make_tensor(&desc.d, result, kind, &sizes, rows, k);
        break;
    default:
        make_tensor(&desc.a, operand, kind, &sizes, rows, n);
        make_tensor(&desc.b, operand, kind, &sizes, rows, k);
        make_tensor(&desc.d, result, own && kind == 2 ? 2 : 0, &sizes, n, k);
        break;
    }
    if (bits_of(operand) < 16) {
        tegroup_tensor *two[2] = {&desc.a, &desc.b};
        const tegroup_scaling_facts *first = NULL;
        for (i = 0; i < 2; i++) { /* scalings that carry the type, most often of one kind */
            int tries = 0;
            do two[i]->scaling = (tegroup_scaling)(1 + below(TEGROUP_SCALING_COUNT - 1));
            while (tries++ < 20 && (!(tegroup_scaling_info(two[i]->scaling)->data_dtypes >> operand & 1)
                                    || (first && tegroup_scaling_info(two[i]->scaling)->scale_dtype != first->scale_dtype)));
            first = tegroup_scaling_info(two[i]->scaling);
            two[i]->columnwise_order = (tegroup_columnwise_order)below(chance(80) ? 2 : 5);
            if (first->scale_dtype != TEGROUP_DTYPE_F8E4M3 && chance(20))
                two[i]->scale_dtype = first->scale_dtype == TEGROUP_DTYPE_F32 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_I32;
            if (first->block_outer == 1 && chance(20)) two[i]->scale_outer_stride = 1 + two[i]->shape.cols, two[i]->scale_inner_stride = 1;
            if (chance(20)) two[i]->scale_parts = below(3);
            if (operand == TEGROUP_DTYPE_F4E2M1) two[i]->ld = (two[i]->shape.cols + 1) / 2 * 2, two[i]->group_stride = 0;
        }
        if (chance(20)) { /* weights beside rows as they are */
            desc.a.dtype = TEGROUP_DTYPE_BF16;
            memset(&desc.a.scaling, 0, sizeof desc.a.scaling);
            desc.a.scale_dtype = TEGROUP_DTYPE_UNSET;
            desc.a.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA;
            desc.a.scale_outer_stride = desc.a.scale_inner_stride = desc.a.scale_parts = 0;
        }
    }
    if (chance(25)) {
        make_tensor(&desc.bias, result, 0, &sizes, 1, desc.op == TEGROUP_OP_WGRAD ? n : desc.d.shape.cols);
        if (chance(40)) desc.row_scale_dtype = (tegroup_dtype)(1 + below(2));
    }
    switch (below(4)) {
    case 0: desc.accumulate = 1; break;
    case 1:
        desc.c = desc.d;
        desc.beta.space = TEGROUP_SPACE_HOST;
        desc.beta.dtype = (tegroup_dtype)below(3);
        desc.beta.stride = below(2);
        break;
    default: break;
    }
    if (chance(30)) {
        desc.alpha.space = TEGROUP_SPACE_HOST;
        desc.alpha.dtype = (tegroup_dtype)below(3);
        desc.alpha.stride = below(2);
    }
    if (desc.op != TEGROUP_OP_WGRAD && kind != 2) desc.tail = (tegroup_tail)below(3);
    for (i = 0; i < (desc.op == TEGROUP_OP_WGRAD ? 2 : 1); i++)
        if (kind == 1 && chance(20)) {
            gathers[i]->rows = below(12);
            gathers[i]->slots = below(4);
        }
    desc.options.check_level = (tegroup_check_level)below(2);
    if (desc.space == TEGROUP_SPACE_DEVICE && chance(30)) desc.options.backend = (tegroup_backend)below(TEGROUP_BACKEND_COUNT);
    if (desc.space == TEGROUP_SPACE_DEVICE && chance(20)) {
        desc.options.cublas_workspace_bytes = (size_t)number();
        desc.options.stream_count = below(9);
    }
    desc.options.workspace_bytes = workspace_bytes;
    target.struct_size = sizeof target;
    target.sm = machines[below(COUNT(machines))];
    target.cublaslt_version = libraries[below(COUNT(libraries))];
    target.built = desc.space == TEGROUP_SPACE_DEVICE ? ~0u >> below(3) : 0;
    spoil_numbers(&desc, numbers, COUNT(numbers));
    if (chance(10)) spoil_numbers(&target, of_target, COUNT(of_target));

    for (i = 0; i < 5; i++)
        if (tensors[i]->dtype != TEGROUP_DTYPE_UNSET) {
            if (i == 3 && !own && tensors[i]->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET && kind == 1) tensors[i]->shape.snapshot = desc.a.shape.snapshot;
            else prepare_tensor(tensors[i]);
            in_memory = stored(tensors[i], gathers[i]);
            tensor_memory(&in_memory);
            tensors[i]->data = in_memory.data;
            tensors[i]->pointers = in_memory.pointers;
            if (i < 2 && (uint32_t)tensors[i]->scaling - 1 < TEGROUP_SCALING_COUNT - 1) copies_memory(tensors[i]);
            if (gathers[i]) make_index(gathers[i], tensors[i]);
        }
    if (desc.c.dtype != TEGROUP_DTYPE_UNSET && chance(50)) { /* in place */
        desc.c.data = desc.d.data;
        desc.c.pointers = desc.d.pointers;
        desc.c.shape.snapshot = desc.d.shape.snapshot;
    }
    desc.alpha.data = desc.alpha.space ? buffer(64) : NULL;
    desc.beta.data = desc.beta.space ? buffer(64) : NULL;
    desc.row_scale = desc.row_scale_dtype ? buffer(8 * (size_t)rows * (size_t)(kind ? 1 : sizes.groups)) : NULL;
    desc.options.workspace = workspace;
    if (desc.options.check_level == TEGROUP_CHECK_DEEP && chance(20)) spoil_snapshot(tensors[below(4)]->shape.snapshot);
    spoil_pointers(&desc, pointers, COUNT(pointers));

    for (i = 0; i < 5; i++) {
        const void *snapshot = tensors[i]->shape.snapshot;
        in_memory = stored(tensors[i], gathers[i]);
        lies |= tensor_lies(&in_memory) || room(snapshot) < sizeof(tegroup_snapshot_header);
        if (i < 2) lies |= copies_lie(tensors[i]);
        if (gathers[i] && gathers[i]->rows > 0)
            lies |= tensors[i]->shape.rows > 4096 || (double)room(gathers[i]->slot_of_row) < 8 * (double)tensors[i]->shape.rows;
        if (tensors[i]->pointers_space != TEGROUP_SPACE_UNSET && room(tensors[i]->pointers) < 8 * (size_t)(tensors[i]->shape.groups > 0 ? tensors[i]->shape.groups : 0))
            tensors[i]->pointers = NULL;
    }
    lies |= room(desc.alpha.data) < (desc.alpha.stride ? 8 * (size_t)desc.a.shape.groups : 8);
    lies |= room(desc.beta.data) < (desc.beta.stride ? 8 * (size_t)desc.a.shape.groups : 8);
    lies |= desc.alpha.space == TEGROUP_SPACE_DEVICE || desc.beta.space == TEGROUP_SPACE_DEVICE;
    lies |= (double)room(desc.row_scale) < (double)bits_of(desc.row_scale_dtype) / 8 * (double)desc.a.shape.rows
                                               * (desc.a.shape.row_sizes.encoding == TEGROUP_ENCODING_UNSET ? desc.a.shape.groups : 1);
    if (lies) desc.space = TEGROUP_SPACE_DEVICE;
    forget_untold(&desc, desc.struct_size, sizeof desc);

    check_verdicts(&desc, chance(80) ? &target : NULL, &plan, &planned);
    if (planned != TEGROUP_OK) return;
    if (desc.options.workspace_bytes > room(desc.options.workspace)) desc.options.workspace_bytes = room(desc.options.workspace);
    before = memory_hash();
    if (desc.space == TEGROUP_SPACE_DEVICE) { /* checks alone, as a build with that backend would make them */
        plan.hypothetical = 0;
        status = tegroup_gemm_check(&plan, &desc, &error);
    } else status = tegroup_gemm(&plan, &desc, NULL, &error);
    check_error(status, &error);
    MUST(desc.space == TEGROUP_SPACE_HOST || tegroup_gemm_check(&plan, &desc, NULL) == status);
    if (status != TEGROUP_OK || desc.space == TEGROUP_SPACE_DEVICE) MUST(memory_hash() == before);
    if (status == TEGROUP_OK && chance(10)) { /* another problem under the same plan */
        tegroup_problem problem;
        spoil_number(&desc, numbers[(byte() << 8 | byte()) % COUNT(numbers)]);
        if (tegroup_gemm_problem(&desc, &problem, NULL) != TEGROUP_OK) return;
        if (problem.rows_space[0] && plan.problem.rows_space[0]) problem.rows = plan.problem.rows; /* of ragged buffers a call's own */
        if (memcmp(&problem, &plan.problem, sizeof problem))
            MUST(tegroup_gemm_check(&plan, &desc, NULL) == TEGROUP_ERROR_PLAN);
    }
}

/* ---- around the GEMM ------------------------------------------------------------------------------------------- */

static void set_matrix(tegroup_matrix *m, int64_t rows, int64_t cols, tegroup_dtype dtype) {
    m->rows = rows;
    m->cols = cols;
    m->dtype = dtype;
    m->ld = chance(20) ? cols + below(3) : 0;
}

static double matrix_bytes(const tegroup_matrix *m) {
    double ld = (double)(m->ld ? m->ld : m->cols);
    return m->rows <= 0 || m->cols <= 0 ? 0 : ((double)(m->rows - 1) * ld + (double)m->cols) * bits_of(m->dtype) / 8;
}

/* Spoil, allocate, fill and spoil again. Indices come from the input: -1 .. limit, sometimes anything. Returns whether one lies. */
static int finish_matrices(tegroup_matrix *const *matrices, int count, int64_t limit) {
    static const field numbers[] = {FIELD(tegroup_matrix, rows), FIELD(tegroup_matrix, cols), FIELD(tegroup_matrix, ld), FIELD(tegroup_matrix, dtype)};
    static const field pointer = FIELD(tegroup_matrix, data);
    int times = below(6), i, lies = 0;
    for (times = times > 2 ? 0 : times; times > 0; times--) spoil_number(matrices[below(count)], numbers[below(4)]);
    for (i = 0; i < count; i++) {
        tegroup_matrix *m = matrices[i];
        double bytes = matrix_bytes(m);
        int64_t at;
        if (m->dtype == TEGROUP_DTYPE_UNSET) continue;
        if (bytes < 0 || bytes > MOST_BYTES) bytes = 8;
        m->data = buffer((size_t)(bytes + 0.5));
        if (m->dtype != TEGROUP_DTYPE_I32 && m->dtype != TEGROUP_DTYPE_I64) continue;
        for (at = 0; at < (int64_t)bytes / (bits_of(m->dtype) / 8); at++) {
            int64_t x = chance(3) ? number() : (int64_t)below(limit + 2) - (chance(5) ? 1 : 0);
            if (m->dtype == TEGROUP_DTYPE_I32) ((int32_t *)m->data)[at] = (int32_t)x;
            else ((int64_t *)m->data)[at] = x;
        }
    }
    if (chance(20)) spoil_pointer(matrices[below(count)], pointer);
    for (i = 0; i < count; i++)
        lies |= matrices[i]->dtype != TEGROUP_DTYPE_UNSET && (matrix_bytes(matrices[i]) > (double)room(matrices[i]->data) || matrices[i]->rows > 4096);
    return lies;
}

/* A call that fails has written nothing. After it the descriptor says what the call was told and no more. */
#define CALL(function, desc)                                        \
    do {                                                            \
        tegroup_error error = no_error;                             \
        uint64_t before = memory_hash();                            \
        status = function(&(desc), NULL, &error);                   \
        check_error(status, &error);                                \
        if (status != TEGROUP_OK) MUST(memory_hash() == before);    \
        forget_untold(&(desc), (desc).struct_size, sizeof(desc));   \
    } while (0)

/* Numbers of a descriptor outside its matrices, spoilt now and then. */
#define SPOIL(type, desc, ...)                                                         \
    do {                                                                               \
        static const field spoilt[] = {FIELD(type, struct_size), FIELD(type, space), __VA_ARGS__}; \
        if (chance(25)) spoil_number(&(desc), spoilt[below(COUNT(spoilt))]);           \
    } while (0)
#define OPEN(desc) (memset(&(desc), 0, sizeof(desc)), (desc).struct_size = sizeof(desc), (desc).space = TEGROUP_SPACE_HOST)

static tegroup_dtype any_float(void) { return (tegroup_dtype)(1 + below(4)); }
static tegroup_dtype any_real(void) { return (tegroup_dtype)(1 + below(2)); }

static tegroup_dtype any_int(void) { return chance(50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64; }
/* An entry of a matrix of integers. */
static int64_t entry(const tegroup_matrix *m, int64_t i, int64_t j) {
    int64_t at = i * (m->ld ? m->ld : m->cols) + j;
    return m->dtype == TEGROUP_DTYPE_I32 ? ((const int32_t *)m->data)[at] : ((const int64_t *)m->data)[at];
}

static void fuzz_count(void) {
    tegroup_count_desc desc;
    tegroup_matrix *matrices[] = {&desc.labels, &desc.counts, &desc.offsets, &desc.starts, &desc.slot_of_row, &desc.padded_rows, &desc.row_of_slot};
    tegroup_status status;
    int64_t sum = 0, g, rows = below(30);
    OPEN(desc);
    desc.groups = below(9);
    if (chance(50)) {
        desc.block = 1 + below(5);
        set_matrix(&desc.labels, 1, (rows + desc.block - 1) / desc.block, any_int());
        set_matrix(&desc.slot_of_row, 1, rows, any_int());
        set_matrix(&desc.row_of_slot, below(6), below(5), any_int());
        if (chance(50)) set_matrix(&desc.padded_rows, 1, 1, any_int());
    } else set_matrix(&desc.labels, below(6), below(5), any_int());
    if (chance(50)) set_matrix(&desc.starts, 1, desc.groups, any_int());
    set_matrix(&desc.counts, 1, desc.groups, any_int());
    if (chance(60)) set_matrix(&desc.offsets, 1, desc.groups + 1, any_int());
    SPOIL(tegroup_count_desc, desc, FIELD(tegroup_count_desc, groups), FIELD(tegroup_count_desc, block));
    if (finish_matrices(matrices, COUNT(matrices), desc.groups > 0 && desc.groups < 100 ? desc.groups : 0)) desc.space = TEGROUP_SPACE_DEVICE;
    CALL(tegroup_count, desc);
    if (status != TEGROUP_OK) return;
    for (g = 0; g < desc.groups; g++) {
        MUST(desc.offsets.dtype == TEGROUP_DTYPE_UNSET || entry(&desc.offsets, 0, g) == sum);
        sum += entry(&desc.counts, 0, g);
    }
    MUST(sum <= (desc.slot_of_row.dtype != TEGROUP_DTYPE_UNSET && desc.slot_of_row.cols > 0 ? desc.slot_of_row.cols : desc.labels.rows * desc.labels.cols) && (desc.offsets.dtype == TEGROUP_DTYPE_UNSET || entry(&desc.offsets, 0, g) == sum));
}

/* A scheme, often one that serves, its matrices still without memory. */
static void some_scheme(tegroup_router_scheme *s, int64_t tokens, int32_t experts, int32_t k) {
    s->score = (tegroup_score)below(4);
    if (chance(40)) s->n_group = 2 * below(3), s->topk_group = below(4), s->group_score = (tegroup_group_score)below(2);
    if (chance(40)) set_matrix(&s->bias, 1, experts, any_real());
    if (chance(20)) set_matrix(&s->given_indices, tokens, k, any_int());
    if (chance(30)) s->normalize_epsilon = below(2);
    if (chance(30)) s->route_factor = below(4) - 1;
    if (chance(30)) s->sequence_tokens = below(4);
    if (chance(30)) s->z_coefficient = below(3) - 1;
    if (chance(30)) s->token_mask = (const uint8_t *)buffer((size_t)tokens);
    if (chance(30)) s->valid_tokens = (const int64_t *)buffer(8);
}

static int mask_lies(const tegroup_router_scheme *s, int64_t tokens) {
    return s->token_mask && (double)tokens > (double)room(s->token_mask);
}

static void fuzz_router(void) {
    tegroup_router_desc desc;
    tegroup_matrix *matrices[] = {&desc.logits, &desc.probabilities, &desc.weights, &desc.indices, &desc.counts, &desc.scheme.bias, &desc.scheme.given_indices, &desc.loss_gradients};
    tegroup_dtype real = any_real();
    int64_t tokens = below(5), i, j;
    tegroup_status status;
    OPEN(desc);
    desc.experts = 1 + below(9);
    desc.k = 1 + below(desc.experts);
    desc.normalize = below(2);
    desc.balance_coefficient = below(3);
    set_matrix(&desc.logits, tokens, desc.experts, any_float());
    if (chance(80)) set_matrix(&desc.probabilities, tokens, desc.experts, real);
    if (chance(80)) set_matrix(&desc.weights, tokens, desc.k, real);
    if (chance(80)) set_matrix(&desc.indices, tokens, desc.k, any_int());
    if (chance(80)) set_matrix(&desc.counts, 1, desc.experts, any_int());
    if (chance(60)) {
        some_scheme(&desc.scheme, tokens, desc.experts, desc.k);
        if (chance(40)) set_matrix(&desc.loss_gradients, desc.scheme.sequence_tokens ? tokens / desc.scheme.sequence_tokens : 1, desc.experts + 1, TEGROUP_DTYPE_F64);
        desc.z_loss = chance(40) ? (double *)buffer(8) : NULL;
    }
    SPOIL(tegroup_router_desc, desc, FIELD(tegroup_router_desc, experts), FIELD(tegroup_router_desc, k), FIELD(tegroup_router_desc, threads), FIELD(tegroup_router_desc, normalize),
          FIELD(tegroup_router_desc, balance_coefficient));
    desc.balance_loss = chance(50) ? (double *)buffer(8) : NULL;
    if (desc.balance_loss && chance(5)) desc.balance_loss = (double *)((char *)desc.balance_loss + 1);
    if (finish_matrices(matrices, COUNT(matrices), 0) || mask_lies(&desc.scheme, desc.logits.rows)) desc.space = TEGROUP_SPACE_DEVICE;
    CALL(tegroup_router, desc);
    if (status != TEGROUP_OK) return;
    for (i = 0; desc.indices.dtype != TEGROUP_DTYPE_UNSET && i < desc.indices.rows; i++) /* every choice an expert, none twice */
        for (j = 0; j < desc.k; j++) {
            int64_t expert = entry(&desc.indices, i, j), other;
            if (expert == -1 && (desc.scheme.given_indices.dtype != TEGROUP_DTYPE_UNSET || desc.scheme.token_mask || desc.scheme.valid_tokens)) continue;
            MUST(expert >= 0 && expert < desc.experts);
            if (desc.scheme.given_indices.dtype != TEGROUP_DTYPE_UNSET) continue;
            for (other = 0; other < j; other++) MUST(entry(&desc.indices, i, other) != expert);
        }
}

static void fuzz_router_backward(void) {
    tegroup_router_backward_desc desc;
    tegroup_matrix *matrices[] = {&desc.probabilities, &desc.indices, &desc.counts, &desc.grad_weights, &desc.grad_logits, &desc.scheme.bias, &desc.scheme.given_indices, &desc.loss_gradients, &desc.logits};
    tegroup_dtype real = any_real();
    int64_t tokens = below(5);
    int lies;
    tegroup_status status;
    OPEN(desc);
    desc.experts = 1 + below(9);
    desc.k = 1 + below(desc.experts);
    desc.normalize = below(2);
    desc.balance_coefficient = below(3);
    set_matrix(&desc.probabilities, tokens, desc.experts, real);
    set_matrix(&desc.indices, tokens, desc.k, any_int());
    if (desc.balance_coefficient != 0 || chance(10)) set_matrix(&desc.counts, 1, desc.experts, any_int());
    set_matrix(&desc.grad_weights, tokens, desc.k, real);
    set_matrix(&desc.grad_logits, tokens, desc.experts, any_float());
    if (chance(60)) {
        some_scheme(&desc.scheme, tokens, desc.experts, desc.k);
        if (chance(90)) desc.balance_coefficient = 0;
        if (chance(60)) set_matrix(&desc.loss_gradients, desc.scheme.sequence_tokens > 0 ? tokens / desc.scheme.sequence_tokens : 1, desc.experts + 1, TEGROUP_DTYPE_F64);
        if (chance(60)) set_matrix(&desc.logits, tokens, desc.experts, any_float());
    }
    SPOIL(tegroup_router_backward_desc, desc, FIELD(tegroup_router_backward_desc, experts), FIELD(tegroup_router_backward_desc, k), FIELD(tegroup_router_backward_desc, threads),
          FIELD(tegroup_router_backward_desc, normalize), FIELD(tegroup_router_backward_desc, balance_coefficient));
    lies = finish_matrices(matrices, COUNT(matrices), desc.experts > 0 && desc.experts < 100 ? desc.experts - 2 : 0);
    if (lies || mask_lies(&desc.scheme, desc.probabilities.rows)) desc.space = TEGROUP_SPACE_DEVICE;
    CALL(tegroup_router_backward, desc);
}

static void fuzz_permutation(void) {
    tegroup_permutation_desc desc;
    tegroup_tensor rows;
    tegroup_matrix *matrices[] = {&desc.indices, &desc.row_of_slot, &desc.slot_of_row, &desc.slot_weights, &desc.row_weights};
    tegroup_status status;
    int64_t tokens = below(6), k = below(4), i, j;
    OPEN(desc);
    memset(&rows, 0, sizeof rows);
    rows.shape.groups = below(8);
    rows.shape.rows = below(24);
    rows.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    prepare_tensor(&rows);
    desc.shape = rows.shape;
    set_matrix(&desc.indices, tokens, k, any_int());
    set_matrix(&desc.row_of_slot, tokens, k, any_int());
    set_matrix(&desc.slot_of_row, 1, desc.shape.rows, any_int());
    if (chance(40)) set_matrix(&desc.slot_weights, tokens, k, any_float()), set_matrix(&desc.row_weights, 1, desc.shape.rows, any_float());
    SPOIL(tegroup_permutation_desc, desc, FIELD(tegroup_permutation_desc, shape.groups), FIELD(tegroup_permutation_desc, shape.rows), FIELD(tegroup_permutation_desc, threads));
    if (finish_matrices(matrices, COUNT(matrices), rows.shape.groups)) desc.space = TEGROUP_SPACE_DEVICE;
    if (chance(5)) desc.shape.snapshot = NULL;
    if (chance(40)) { /* made here */
        tegroup_layout layout;
        if (tegroup_snapshot_layout(&desc.shape, &layout, NULL) == TEGROUP_OK) {
            desc.snapshot_bytes = layout.total_bytes - (size_t)chance(5);
            desc.snapshot = aligned_buffer(layout.total_bytes);
            if (chance(95)) desc.shape.snapshot = chance(50) ? NULL : desc.snapshot;
        }
    }
    CALL(tegroup_permutation_make, desc);
    if (status != TEGROUP_OK) return;
    for (i = 0; i < desc.row_of_slot.rows; i++) /* the two maps are each other's inverse */
        for (j = 0; j < desc.row_of_slot.cols; j++) {
            int64_t row = entry(&desc.row_of_slot, i, j);
            MUST(row >= -1 && row < desc.shape.rows);
            if (row >= 0 && desc.slot_of_row.dtype != TEGROUP_DTYPE_UNSET) MUST(entry(&desc.slot_of_row, 0, row) == i * desc.row_of_slot.cols + j);
        }
    for (i = 0; i < desc.shape.rows && desc.slot_of_row.dtype != TEGROUP_DTYPE_UNSET; i++) {
        int64_t slot = entry(&desc.slot_of_row, 0, i);
        MUST(slot >= -1 && slot < desc.row_of_slot.rows * desc.row_of_slot.cols);
        if (slot >= 0) MUST(entry(&desc.row_of_slot, slot / desc.row_of_slot.cols, slot % desc.row_of_slot.cols) == i);
    }
}

static void fuzz_export(void) {
    tegroup_export_desc desc;
    tegroup_tensor rows;
    tegroup_matrix *matrices[] = {&desc.counts, &desc.offsets, &desc.ends, &desc.labels, &desc.slot_of_row, &desc.sorted_ids, &desc.source_rows};
    tegroup_status status;
    OPEN(desc);
    memset(&rows, 0, sizeof rows);
    rows.shape.groups = below(8);
    rows.shape.rows = below(24);
    rows.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    prepare_tensor(&rows);
    desc.shape = rows.shape;
    desc.block = below(5);
    const int64_t groups = desc.shape.groups, n = desc.shape.rows, block = desc.block > 1 ? desc.block : 1;
    if (chance(70)) set_matrix(&desc.counts, 1, groups, any_int());
    if (chance(70)) set_matrix(&desc.offsets, 1, groups + 1, any_int());
    if (chance(70)) set_matrix(&desc.ends, 1, groups, any_int());
    if (chance(70)) set_matrix(&desc.labels, 1, (n + block - 1) / block, any_int());
    if (chance(70)) set_matrix(&desc.sorted_ids, 1, n, any_int()), set_matrix(&desc.slot_of_row, 1, n, any_int()), desc.slots = below(40);
    if (chance(70)) set_matrix(&desc.source_rows, 1, n, any_int()), desc.from = desc.shape;
    SPOIL(tegroup_export_desc, desc, FIELD(tegroup_export_desc, shape.groups), FIELD(tegroup_export_desc, shape.rows), FIELD(tegroup_export_desc, block), FIELD(tegroup_export_desc, slots),
          FIELD(tegroup_export_desc, from.rows), FIELD(tegroup_export_desc, threads));
    if (finish_matrices(matrices, COUNT(matrices), 40)) desc.space = TEGROUP_SPACE_DEVICE;
    if (chance(5)) desc.shape.snapshot = NULL;
    CALL(tegroup_export, desc);
    if (status != TEGROUP_OK || desc.source_rows.dtype == TEGROUP_DTYPE_UNSET) return;
    for (int64_t row = 0; row < n; row++) MUST(entry(&desc.source_rows, 0, row) == -1 || entry(&desc.source_rows, 0, row) == row); /* its own buffer */
}

static void fuzz_skew(void) {
    tegroup_skew_desc desc;
    tegroup_tensor rows;
    tegroup_status status;
    OPEN(desc);
    memset(&rows, 0, sizeof rows);
    rows.shape.groups = below(8);
    rows.shape.rows = below(24);
    rows.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    prepare_tensor(&rows);
    desc.shape = rows.shape;
    desc.tile_rows = below(5);
    desc.row_bytes = below(9);
    desc.result = (tegroup_skew *)buffer(sizeof *desc.result);
    SPOIL(tegroup_skew_desc, desc, FIELD(tegroup_skew_desc, shape.groups), FIELD(tegroup_skew_desc, shape.rows), FIELD(tegroup_skew_desc, tile_rows), FIELD(tegroup_skew_desc, row_bytes));
    if (chance(5)) desc.shape.snapshot = NULL;
    CALL(tegroup_skew_report, desc);
    if (status == TEGROUP_OK) MUST(desc.result->rows >= desc.result->rows_max && desc.result->rows_max >= desc.result->rows_median && desc.result->rows_median >= desc.result->rows_min);
}

static void fuzz_permute(void) {
    tegroup_permute_desc desc;
    tegroup_matrix *matrices[] = {&desc.tokens, &desc.slot_of_row, &desc.permuted, &desc.weights};
    tegroup_status status;
    int64_t tokens = below(5), width = below(7), rows = below(10);
    OPEN(desc);
    desc.k = 1 + below(3);
    set_matrix(&desc.tokens, tokens, width, chance(70) ? any_float() : (tegroup_dtype)(5 + below(6)));
    set_matrix(&desc.slot_of_row, 1, rows, any_int());
    set_matrix(&desc.permuted, rows, width, desc.tokens.dtype > TEGROUP_DTYPE_BF16 ? desc.tokens.dtype : any_float());
    if (chance(50)) set_matrix(&desc.weights, tokens, desc.k, any_real());
    SPOIL(tegroup_permute_desc, desc, FIELD(tegroup_permute_desc, k), FIELD(tegroup_permute_desc, threads));
    if (finish_matrices(matrices, COUNT(matrices), tokens * (desc.k > 0 && desc.k < 9 ? desc.k : 1) - 2)) desc.space = TEGROUP_SPACE_DEVICE;
    CALL(tegroup_permute, desc);
}

static void fuzz_combine(void) {
    tegroup_combine_desc desc;
    tegroup_matrix *matrices[] = {&desc.permuted, &desc.row_of_slot, &desc.tokens, &desc.weights};
    tegroup_status status;
    int64_t tokens = below(5), width = below(7), rows = below(10), k = below(4);
    OPEN(desc);
    set_matrix(&desc.permuted, rows, width, any_float());
    set_matrix(&desc.row_of_slot, tokens, k, any_int());
    set_matrix(&desc.tokens, tokens, width, any_float());
    if (chance(50)) set_matrix(&desc.weights, tokens, k, any_real());
    SPOIL(tegroup_combine_desc, desc, FIELD(tegroup_combine_desc, space), FIELD(tegroup_combine_desc, threads));
    if (finish_matrices(matrices, COUNT(matrices), rows - 2)) desc.space = TEGROUP_SPACE_DEVICE;
    CALL(tegroup_combine, desc);
}

static void fuzz_combine_backward(void) {
    tegroup_combine_backward_desc desc;
    tegroup_matrix *matrices[] = {&desc.grad_tokens, &desc.row_of_slot, &desc.grad_permuted, &desc.weights, &desc.permuted, &desc.grad_weights};
    tegroup_status status;
    int64_t tokens = below(5), width = below(7), rows = below(10), k = below(4);
    OPEN(desc);
    set_matrix(&desc.grad_tokens, tokens, width, any_float());
    set_matrix(&desc.row_of_slot, tokens, k, any_int());
    set_matrix(&desc.grad_permuted, rows, width, any_float());
    if (chance(50)) set_matrix(&desc.weights, tokens, k, any_real());
    if (chance(50)) {
        set_matrix(&desc.permuted, rows, width, any_float());
        set_matrix(&desc.grad_weights, tokens, k, any_real());
    }
    SPOIL(tegroup_combine_backward_desc, desc, FIELD(tegroup_combine_backward_desc, space), FIELD(tegroup_combine_backward_desc, threads));
    if (finish_matrices(matrices, COUNT(matrices), rows - 2)) desc.space = TEGROUP_SPACE_DEVICE;
    CALL(tegroup_combine_backward, desc);
}

static void fuzz_ep_sizes(void) {
    tegroup_ep_sizes_desc desc;
    tegroup_matrix *matrices[] = {&desc.counts, &desc.send_rows, &desc.send_starts, &desc.receive_rows};
    tegroup_status status;
    const int32_t ranks = 1 + below(5), here = below(4);
    int64_t sum = 0, e;
    OPEN(desc);
    desc.ranks = ranks;
    desc.rank = below(ranks);
    desc.capacity = below(40);
    desc.alignment = below(6);
    set_matrix(&desc.counts, ranks, ranks * here, any_int());
    set_matrix(&desc.send_rows, 1, ranks * here, any_int());
    set_matrix(&desc.send_starts, 1, ranks * here, desc.send_rows.dtype);
    set_matrix(&desc.receive_rows, 1, here, any_int());
    SPOIL(tegroup_ep_sizes_desc, desc, FIELD(tegroup_ep_sizes_desc, ranks), FIELD(tegroup_ep_sizes_desc, rank), FIELD(tegroup_ep_sizes_desc, capacity), FIELD(tegroup_ep_sizes_desc, alignment));
    if (finish_matrices(matrices, COUNT(matrices), 12)) desc.space = TEGROUP_SPACE_DEVICE;
    if (chance(70)) desc.report = (tegroup_ep_report *)buffer(sizeof *desc.report);
    CALL(tegroup_ep_sizes, desc);
    if (status != TEGROUP_OK) return;
    for (e = 0; e < desc.send_rows.cols; e++) {
        const int64_t rows = entry(&desc.send_rows, 0, e), start = entry(&desc.send_starts, 0, e), owner = e / (desc.send_rows.cols / desc.ranks);
        MUST(rows >= 0 && start >= owner * desc.capacity && start + rows <= (owner + 1) * desc.capacity);
    }
    for (e = 0; e < desc.receive_rows.cols; e++) sum += entry(&desc.receive_rows, 0, e);
    MUST(sum <= desc.capacity);
}

/* Windows of the size that their matrices need, up to TEGROUP_ALIGNMENT. */
static void fuzz_ep_exchange(void) {
    tegroup_ep_dispatch_desc to;
    tegroup_ep_combine_desc from;
    tegroup_status status;
    tegroup_matrix *matrices[] = {&to.tokens, &to.scales, &to.weights, &to.row_of_slot, &from.tokens, &from.values};
    const int64_t tokens = below(5), width = below(7), blocks = below(3), k = 1 + below(4), capacity = below(10);
    const int32_t ranks = 1 + below(4);
    void *addresses[4];
    size_t rows_bytes, scales_bytes;
    OPEN(to);
    OPEN(from);
    set_matrix(&to.tokens, tokens, width, any_float());
    if (chance(50)) set_matrix(&to.scales, tokens, blocks, TEGROUP_DTYPE_F32);
    set_matrix(&to.weights, tokens, k, any_real());
    set_matrix(&to.row_of_slot, tokens, k, any_int());
    set_matrix(&from.tokens, tokens, width, any_float());
    if (chance(50)) set_matrix(&from.values, tokens, k, to.weights.dtype);
    to.rows = tegroup_matrix_of(NULL, capacity, width, to.tokens.dtype);
    to.row_scales = to.scales.dtype ? tegroup_matrix_of(NULL, capacity, blocks, TEGROUP_DTYPE_F32) : to.scales;
    to.row_weights = tegroup_matrix_of(NULL, capacity, 1, to.weights.dtype);
    if (chance(50)) to.row_links = tegroup_matrix_of(NULL, capacity, 1, TEGROUP_DTYPE_I32);
    rows_bytes = ((size_t)(capacity * width) * 8 + 7) / 8 * 8;
    scales_bytes = ((size_t)(capacity * blocks) * 4 + 7) / 8 * 8;
    to.windows.ranks = ranks;
    to.windows.rank = below(ranks);
    to.windows.addresses = addresses;
    to.windows.bytes = (rows_bytes + scales_bytes + (size_t)capacity * 12 + TEGROUP_ALIGNMENT) / TEGROUP_ALIGNMENT * TEGROUP_ALIGNMENT;
    for (int32_t r = 0; r < 4; r++) addresses[r] = aligned_buffer(to.windows.bytes);
    to.rows.data = addresses[to.windows.rank];
    if (to.scales.dtype) to.row_scales.data = (char *)to.rows.data + rows_bytes;
    to.row_weights.data = (char *)to.rows.data + rows_bytes + scales_bytes;
    if (to.row_links.dtype) to.row_links.data = (char *)to.row_weights.data + capacity * 8;
    SPOIL(tegroup_ep_dispatch_desc, to, FIELD(tegroup_ep_dispatch_desc, threads), FIELD(tegroup_ep_dispatch_desc, windows.ranks), FIELD(tegroup_ep_dispatch_desc, windows.rank),
          FIELD(tegroup_ep_dispatch_desc, rows.rows), FIELD(tegroup_ep_dispatch_desc, rows.ld), FIELD(tegroup_ep_dispatch_desc, row_weights.rows));
    if (to.windows.ranks > 4) to.windows.ranks = 300; /* there are no more addresses */
    if (finish_matrices(matrices, COUNT(matrices), ranks * capacity)) to.space = from.space = TEGROUP_SPACE_DEVICE;
    from.windows = to.windows;
    from.row_of_slot = to.row_of_slot;
    from.rows = to.rows;
    if (chance(50)) from.weights = to.weights;
    if (from.values.dtype) from.row_values = to.row_weights;
    from.by_owner = chance(30) + chance(2);
    CALL(tegroup_ep_dispatch, to);
    CALL(tegroup_ep_combine, from);
}

/* Links of any kind, between rows of a prepared shape. */
static void fuzz_ep_links(void) {
    tegroup_ep_links_desc desc;
    tegroup_matrix *matrices[] = {&desc.row_links, &desc.rows, &desc.row_scales};
    tegroup_status status;
    tegroup_tensor t;
    const int64_t rows = below(12), width = below(9);
    OPEN(desc);
    memset(&t, 0, sizeof t);
    t.shape.groups = below(6);
    t.shape.rows = rows;
    t.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    prepare_tensor(&t);
    desc.shape = t.shape;
    set_matrix(&desc.row_links, rows, 1, TEGROUP_DTYPE_I32);
    set_matrix(&desc.rows, rows, width, any_float());
    if (chance(50)) set_matrix(&desc.row_scales, rows, below(3), TEGROUP_DTYPE_F32);
    SPOIL(tegroup_ep_links_desc, desc, FIELD(tegroup_ep_links_desc, threads), FIELD(tegroup_ep_links_desc, shape.groups), FIELD(tegroup_ep_links_desc, shape.rows));
    if (finish_matrices(matrices, COUNT(matrices), rows)) desc.space = TEGROUP_SPACE_DEVICE;
    CALL(tegroup_ep_expand, desc);
    CALL(tegroup_ep_reduce, desc);
}

static const void *some_snapshot(int64_t rows) {
    tegroup_tensor t;
    memset(&t, 0, sizeof t);
    t.shape.groups = below(6);
    t.shape.rows = rows + chance(10);
    t.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    prepare_tensor(&t);
    return t.shape.snapshot;
}

static void fuzz_activation(void) {
    tegroup_activation_desc desc;
    tegroup_matrix *matrices[] = {&desc.input, &desc.output, &desc.row_scale};
    tegroup_status status;
    int64_t rows = below(8), width = below(9);
    int gated;
    OPEN(desc);
    desc.activation = (tegroup_activation)(1 + below(TEGROUP_ACTIVATION_IDENTITY));
    gated = desc.activation <= TEGROUP_ACTIVATION_SITU_GLU;
    desc.interleaved = gated ? below(2) : 0;
    if (gated && desc.activation >= TEGROUP_ACTIVATION_SWIGLU_CLAMPED) {
        desc.alpha = below(3);
        desc.limit = below(9);
    }
    desc.snapshot = chance(60) ? some_snapshot(rows) : NULL;
    set_matrix(&desc.input, rows, gated ? 2 * width : width, any_float());
    set_matrix(&desc.output, rows, width, any_float());
    if (chance(50)) set_matrix(&desc.row_scale, rows, 1, any_real());
    SPOIL(tegroup_activation_desc, desc, FIELD(tegroup_activation_desc, activation), FIELD(tegroup_activation_desc, threads), FIELD(tegroup_activation_desc, interleaved), FIELD(tegroup_activation_desc, alpha), FIELD(tegroup_activation_desc, limit));
    if (finish_matrices(matrices, COUNT(matrices), 0)) desc.space = TEGROUP_SPACE_DEVICE;
    CALL(tegroup_activation_forward, desc);
}

static void fuzz_activation_backward(void) {
    tegroup_activation_backward_desc desc;
    tegroup_matrix *matrices[] = {&desc.input, &desc.grad_output, &desc.grad_input, &desc.row_scale, &desc.grad_row_scale};
    tegroup_status status;
    int64_t rows = below(8), width = below(9);
    int gated;
    OPEN(desc);
    desc.activation = (tegroup_activation)(1 + below(TEGROUP_ACTIVATION_IDENTITY));
    gated = desc.activation <= TEGROUP_ACTIVATION_SITU_GLU;
    desc.interleaved = gated ? below(2) : 0;
    if (gated && desc.activation >= TEGROUP_ACTIVATION_SWIGLU_CLAMPED) {
        desc.alpha = below(3);
        desc.limit = below(9);
    }
    desc.snapshot = chance(60) ? some_snapshot(rows) : NULL;
    set_matrix(&desc.input, rows, gated ? 2 * width : width, any_float());
    set_matrix(&desc.grad_output, rows, width, any_float());
    set_matrix(&desc.grad_input, rows, gated ? 2 * width : width, any_float());
    if (chance(50)) set_matrix(&desc.row_scale, rows, 1, any_real());
    if (chance(50)) set_matrix(&desc.grad_row_scale, rows, 1, any_real());
    SPOIL(tegroup_activation_backward_desc, desc, FIELD(tegroup_activation_backward_desc, activation), FIELD(tegroup_activation_backward_desc, threads), FIELD(tegroup_activation_backward_desc, interleaved), FIELD(tegroup_activation_backward_desc, alpha), FIELD(tegroup_activation_backward_desc, limit));
    if (finish_matrices(matrices, COUNT(matrices), 0)) desc.space = TEGROUP_SPACE_DEVICE;
    CALL(tegroup_activation_backward, desc);
}

/* ---- the grouped linear layer ---------------------------------------------------------------------------------- */

static void fuzz_linear(void) {
#define LINEAR_FIELDS(t)   TENSOR_FIELDS(tegroup_linear_desc, t)
#define LINEAR_POINTERS(t) TENSOR_POINTERS(tegroup_linear_desc, t)
    static const field numbers[] = {
        FIELD(tegroup_linear_desc, struct_size), FIELD(tegroup_linear_desc, space), LINEAR_FIELDS(weight), LINEAR_FIELDS(bias), LINEAR_FIELDS(input), LINEAR_FIELDS(out),
        LINEAR_FIELDS(grad_output), LINEAR_FIELDS(dgrad_out), LINEAR_FIELDS(main_grad), LINEAR_FIELDS(bias_grad), LINEAR_FIELDS(grad_row_scale),
        FIELD(tegroup_linear_desc, row_scale_dtype), FIELD(tegroup_linear_desc, accumulate), FIELD(tegroup_linear_desc, out_tail),
        FIELD(tegroup_linear_desc, dgrad_out_tail), FIELD(tegroup_linear_desc, options.compute), FIELD(tegroup_linear_desc, options.backend), FIELD(tegroup_linear_desc, options.check_level),
        FIELD(tegroup_linear_desc, options.workspace_bytes)};
    static const field pointers[] = {LINEAR_POINTERS(weight), LINEAR_POINTERS(bias), LINEAR_POINTERS(input), LINEAR_POINTERS(out), LINEAR_POINTERS(grad_output),
                                     LINEAR_POINTERS(dgrad_out), LINEAR_POINTERS(main_grad), LINEAR_POINTERS(bias_grad), LINEAR_POINTERS(grad_row_scale),
                                     FIELD(tegroup_linear_desc, row_scale), FIELD(tegroup_linear_desc, options.workspace)};
    static tegroup_status (*const calls[])(const tegroup_linear_plan *, const tegroup_linear_desc *, struct CUstream_st *, tegroup_error *) = {
        tegroup_linear_forward, tegroup_linear_dgrad, tegroup_linear_wgrad};
    tegroup_linear_desc desc;
    tegroup_tensor *tensors[] = {&desc.weight, &desc.bias, &desc.main_grad, &desc.bias_grad, &desc.input, &desc.out, &desc.grad_output, &desc.dgrad_out, &desc.grad_row_scale};
    tegroup_shape sizes;
    tegroup_linear_plan plan;
    tegroup_gemm_desc gemm;
    tegroup_error error = no_error;
    tegroup_status status;
    int64_t rows = below(12), n = below(20), k = below(20);
    tegroup_dtype operand = any_float(), result = any_float();
    int i, lies = 0, scaled = chance(50);
    uint64_t snapshots;
    memset(&desc, 0, sizeof desc);
    memset(&sizes, 0, sizeof sizes);
    sizes.groups = below(6);
    make_tensor(&desc.weight, operand, 0, &sizes, n, k);
    if (chance(70)) make_tensor(&desc.bias, chance(70) ? operand : any_float(), 0, &sizes, 1, n);
    if (chance(80)) make_tensor(&desc.main_grad, result, 0, &sizes, n, k);
    if (desc.bias.dtype && desc.main_grad.dtype && chance(80)) make_tensor(&desc.bias_grad, result, 0, &sizes, 1, n);
    sizes.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    sizes.row_sizes.dtype = TEGROUP_DTYPE_I64;
    sizes.row_sizes.space = TEGROUP_SPACE_HOST;
    make_tensor(&desc.input, operand, 1, &sizes, rows, k);
    make_tensor(&desc.grad_output, operand, 1, &sizes, rows, n);
    if (chance(80)) make_tensor(&desc.out, result, 1, &sizes, rows, n);
    if (chance(80)) make_tensor(&desc.dgrad_out, result, 1, &sizes, rows, k);
    if (desc.bias.dtype && scaled) desc.row_scale_dtype = any_real();
    if (desc.row_scale_dtype && desc.dgrad_out.dtype && chance(70)) make_tensor(&desc.grad_row_scale, result, 1, &sizes, rows, 1);
    for (i = 0; i < 9; i++) {
        int output = i == 2 || i == 3 || i == 5 || i > 6;
        if (output && chance(97)) tensors[i]->ld = tensors[i]->group_stride = 0;
        if (i > 3 && chance(97)) tensors[i]->pointers_space = TEGROUP_SPACE_UNSET;
    }
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    desc.accumulate = desc.main_grad.dtype ? below(2) : 0;
    desc.out_tail = desc.out.dtype ? (tegroup_tail)below(3) : TEGROUP_TAIL_KEEP;
    desc.dgrad_out_tail = desc.dgrad_out.dtype ? (tegroup_tail)below(3) : TEGROUP_TAIL_KEEP;
    desc.options.compute = TEGROUP_COMPUTE_F64;
    desc.options.check_level = (tegroup_check_level)below(2);
    desc.options.workspace_bytes = workspace_bytes;
    spoil_numbers(&desc, numbers, COUNT(numbers));

    prepare_tensor(&desc.input);
    for (i = 0; i < 9; i++)
        if (tensors[i]->dtype != TEGROUP_DTYPE_UNSET) {
            if (tensors[i]->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET) tensors[i]->shape.snapshot = desc.input.shape.snapshot;
            tensor_memory(tensors[i]);
        }
    desc.row_scale = desc.row_scale_dtype ? buffer(8 * (size_t)rows) : NULL;
    desc.options.workspace = workspace;
    if (desc.options.check_level == TEGROUP_CHECK_DEEP && chance(20)) spoil_snapshot(desc.input.shape.snapshot);
    spoil_pointers(&desc, pointers, COUNT(pointers));
    for (i = 0; i < 9; i++) {
        lies |= tensor_lies(tensors[i]) || room(tensors[i]->shape.snapshot) < sizeof(tegroup_snapshot_header);
        lies |= (double)room(desc.row_scale) < 8 * (double)tensors[i]->shape.rows;
        if (tensors[i]->pointers_space != TEGROUP_SPACE_UNSET && room(tensors[i]->pointers) < 8 * (size_t)(tensors[i]->shape.groups > 0 ? tensors[i]->shape.groups : 0))
            tensors[i]->pointers = NULL;
    }
    if (lies) desc.space = TEGROUP_SPACE_DEVICE; /* no kernels here: planning alone */
    forget_untold(&desc, desc.struct_size, sizeof desc);

    status = tegroup_linear_plan_make(&desc, NULL, &plan, &error);
    check_error(status, &error);
    for (i = 1; i < 4; i++) {
        error = no_error;
        check_error(tegroup_linear_gemm(&desc, (tegroup_op)i, &gemm, &error), &error);
    }
    if (status != TEGROUP_OK) return;
    MUST(desc.space == TEGROUP_SPACE_HOST);
    if (desc.options.workspace_bytes > room(desc.options.workspace)) desc.options.workspace_bytes = room(desc.options.workspace);
    snapshots = snapshots_hash(tensors, 9);
    for (i = 0; i < 3; i++) {
        uint64_t before = memory_hash();
        int j;
        for (j = 0; j < 9; j++)
            if (tensor_lies(tensors[j])) return; /* a call may write over a list or snapshot that it has no business with */
        if (snapshots_hash(tensors, 9) != snapshots) return;
        error = no_error;
        status = calls[i](&plan, &desc, NULL, &error);
        check_error(status, &error);
        if (status != TEGROUP_OK) MUST(memory_hash() == before);
    }
}

/* ---- the grouped MLP --------------------------------------------------------------------------------------------- */

static void fuzz_mlp(void) {
#define MLP_FIELDS(t)   TENSOR_FIELDS(tegroup_mlp_desc, t)
#define MLP_POINTERS(t) TENSOR_POINTERS(tegroup_mlp_desc, t)
    static const field numbers[] = {
        FIELD(tegroup_mlp_desc, struct_size), FIELD(tegroup_mlp_desc, space), MLP_FIELDS(fc1.weight), MLP_FIELDS(fc1.bias), MLP_FIELDS(fc1.main_grad), MLP_FIELDS(fc1.bias_grad),
        MLP_FIELDS(fc2.weight), MLP_FIELDS(fc2.bias), MLP_FIELDS(fc2.main_grad), MLP_FIELDS(fc2.bias_grad), MLP_FIELDS(input), MLP_FIELDS(out), MLP_FIELDS(grad_output),
        MLP_FIELDS(dgrad_out), MLP_FIELDS(grad_row_scale), MLP_FIELDS(preactivation), MLP_FIELDS(activated), MLP_FIELDS(grad_preactivation),
        FIELD(tegroup_mlp_desc, activation), FIELD(tegroup_mlp_desc, interleaved), FIELD(tegroup_mlp_desc, recompute), FIELD(tegroup_mlp_desc, row_scale_dtype),
        FIELD(tegroup_mlp_desc, fc2_bias_scaled), FIELD(tegroup_mlp_desc, accumulate), FIELD(tegroup_mlp_desc, out_tail), FIELD(tegroup_mlp_desc, dgrad_out_tail),
        FIELD(tegroup_mlp_desc, fusion), FIELD(tegroup_mlp_desc, options.compute), FIELD(tegroup_mlp_desc, options.backend), FIELD(tegroup_mlp_desc, options.check_level),
        FIELD(tegroup_mlp_desc, options.workspace_bytes), MLP_FIELDS(fc1_up.weight), MLP_FIELDS(fc1_up.bias), MLP_FIELDS(fc1_up.main_grad), MLP_FIELDS(fc1_up.bias_grad)};
    static const field pointers[] = {
        MLP_POINTERS(fc1_up.weight), MLP_POINTERS(fc1_up.bias), MLP_POINTERS(fc1_up.main_grad), MLP_POINTERS(fc1_up.bias_grad), MLP_POINTERS(fc1.weight), MLP_POINTERS(fc1.bias), MLP_POINTERS(fc1.main_grad), MLP_POINTERS(fc1.bias_grad), MLP_POINTERS(fc2.weight), MLP_POINTERS(fc2.bias),
        MLP_POINTERS(fc2.main_grad), MLP_POINTERS(fc2.bias_grad), MLP_POINTERS(input), MLP_POINTERS(out), MLP_POINTERS(grad_output), MLP_POINTERS(dgrad_out),
        MLP_POINTERS(grad_row_scale), MLP_POINTERS(preactivation), MLP_POINTERS(activated), MLP_POINTERS(grad_preactivation), FIELD(tegroup_mlp_desc, row_scale),
        FIELD(tegroup_mlp_desc, options.workspace)};
    static tegroup_status (*const calls[])(const tegroup_mlp_plan *, const tegroup_mlp_desc *, struct CUstream_st *, tegroup_error *) = {
        tegroup_mlp_forward, tegroup_mlp_dgrad, tegroup_mlp_wgrad};
    tegroup_mlp_desc desc;
    tegroup_tensor *tensors[] = {&desc.fc1.weight, &desc.fc1.bias, &desc.fc2.weight, &desc.fc2.bias, &desc.fc1.main_grad, &desc.fc1.bias_grad, &desc.fc2.main_grad,
                                 &desc.fc2.bias_grad, &desc.input, &desc.grad_output, &desc.out, &desc.dgrad_out, &desc.grad_row_scale, &desc.preactivation,
                                 &desc.activated, &desc.grad_preactivation, &desc.fc1_up.weight, &desc.fc1_up.bias, &desc.fc1_up.main_grad, &desc.fc1_up.bias_grad};
    enum { MLP_TENSORS = COUNT(tensors), FIRST_UP = 16 };
    tegroup_shape sizes;
    tegroup_mlp_plan plan;
    tegroup_gemm_desc gemm;
    tegroup_error error = no_error;
    uint64_t snapshots;
    tegroup_status status;
    int64_t rows = below(12), n = below(12), h = below(12), k = below(12);
    tegroup_dtype operand = any_float(), result = any_float();
    int64_t width;
    int i, lies = 0, wide, apart, biases = chance(50), backward = chance(85), scaled = chance(50);
    memset(&desc, 0, sizeof desc);
    memset(&sizes, 0, sizeof sizes);
    sizes.groups = below(6);
    desc.activation = (tegroup_activation)(1 + below(TEGROUP_ACTIVATION_IDENTITY));
    wide = desc.activation <= TEGROUP_ACTIVATION_SITU_GLU ? 2 : 1;
    apart = wide == 2 && chance(30); /* gates and ups are two weights */
    width = apart ? h : wide * h;
    desc.interleaved = wide == 2 && !apart ? below(2) : 0;
    make_tensor(&desc.fc1.weight, operand, 0, &sizes, width, k);
    make_tensor(&desc.fc2.weight, operand, 0, &sizes, n, h);
    if (biases) make_tensor(&desc.fc1.bias, any_float(), 0, &sizes, 1, width);
    if (biases) make_tensor(&desc.fc2.bias, operand, 0, &sizes, 1, n);
    if (backward && chance(80)) make_tensor(&desc.fc1.main_grad, result, 0, &sizes, width, k);
    if (backward && chance(80)) make_tensor(&desc.fc2.main_grad, result, 0, &sizes, n, h);
    if (biases && desc.fc1.main_grad.dtype && chance(80)) make_tensor(&desc.fc1.bias_grad, result, 0, &sizes, 1, width);
    if (biases && desc.fc2.main_grad.dtype && chance(80)) make_tensor(&desc.fc2.bias_grad, result, 0, &sizes, 1, n);
    for (i = 0; i < 4 && apart; i++) { /* weight, bias, main_grad, bias_grad: as those of fc1 */
        const tegroup_tensor *gates = tensors[i < 2 ? i : i + 2];
        if (gates->dtype != TEGROUP_DTYPE_UNSET) make_tensor(tensors[FIRST_UP + i], gates->dtype, 0, &sizes, gates->shape.rows, gates->shape.cols);
    }
    sizes.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    sizes.row_sizes.dtype = TEGROUP_DTYPE_I64;
    sizes.row_sizes.space = TEGROUP_SPACE_HOST;
    make_tensor(&desc.input, operand, 1, &sizes, rows, k);
    if (!backward || chance(85)) make_tensor(&desc.out, result, 1, &sizes, rows, n);
    if (backward || chance(50)) make_tensor(&desc.preactivation, any_float(), 1, &sizes, rows, wide * h);
    if (backward || chance(50)) make_tensor(&desc.activated, operand, 1, &sizes, rows, h);
    if (scaled) desc.row_scale_dtype = any_real();
    if (backward) {
        make_tensor(&desc.grad_output, operand, 1, &sizes, rows, n);
        make_tensor(&desc.grad_preactivation, operand, 1, &sizes, rows, wide * h);
        if (chance(80)) make_tensor(&desc.dgrad_out, result, 1, &sizes, rows, k);
        if (scaled && chance(70)) make_tensor(&desc.grad_row_scale, any_real(), 1, &sizes, rows, 1);
        desc.recompute = below(2);
    }
    for (i = 0; i < MLP_TENSORS; i++) {
        if (i > 3 && i != 8 && i != 9 && (i < FIRST_UP || i > FIRST_UP + 1) && chance(97)) tensors[i]->ld = tensors[i]->group_stride = 0;
        if (i > 7 && i < FIRST_UP && chance(97)) tensors[i]->pointers_space = TEGROUP_SPACE_UNSET;
    }
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    desc.fc2_bias_scaled = biases && scaled ? below(2) : 0;
    desc.accumulate = desc.fc1.main_grad.dtype ? below(2) : 0;
    desc.out_tail = desc.out.dtype ? (tegroup_tail)below(3) : TEGROUP_TAIL_KEEP;
    desc.dgrad_out_tail = desc.dgrad_out.dtype ? (tegroup_tail)below(3) : TEGROUP_TAIL_KEEP;
    desc.options.compute = TEGROUP_COMPUTE_F64;
    desc.options.check_level = (tegroup_check_level)below(2);
    desc.options.threads = 1;
    desc.options.workspace_bytes = workspace_bytes;
    spoil_numbers(&desc, numbers, COUNT(numbers));

    prepare_tensor(&desc.input);
    for (i = 0; i < MLP_TENSORS; i++)
        if (tensors[i]->dtype != TEGROUP_DTYPE_UNSET) {
            if (tensors[i]->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET) tensors[i]->shape.snapshot = desc.input.shape.snapshot;
            tensor_memory(tensors[i]);
        }
    desc.row_scale = desc.row_scale_dtype ? buffer(8 * (size_t)rows) : NULL;
    desc.options.workspace = workspace;
    if (desc.options.check_level == TEGROUP_CHECK_DEEP && chance(20)) spoil_snapshot(desc.input.shape.snapshot);
    if (chance(20)) desc.grad_preactivation.data = desc.preactivation.data;
    spoil_pointers(&desc, pointers, COUNT(pointers));
    for (i = 0; i < MLP_TENSORS; i++) {
        lies |= tensor_lies(tensors[i]) || room(tensors[i]->shape.snapshot) < sizeof(tegroup_snapshot_header);
        lies |= (double)room(desc.row_scale) < 8 * (double)tensors[i]->shape.rows && desc.row_scale_dtype && i > 7 && i < FIRST_UP;
        if (tensors[i]->pointers_space != TEGROUP_SPACE_UNSET && room(tensors[i]->pointers) < 8 * (size_t)(tensors[i]->shape.groups > 0 ? tensors[i]->shape.groups : 0))
            tensors[i]->pointers = NULL;
    }
    if (lies) desc.space = TEGROUP_SPACE_DEVICE; /* no kernels here: planning alone */
    forget_untold(&desc, desc.struct_size, sizeof desc);

    status = tegroup_mlp_plan_make(&desc, NULL, &plan, &error);
    check_error(status, &error);
    for (i = 1; i < 4; i++) {
        error = no_error;
        check_error(tegroup_mlp_gemm(NULL, &desc, (tegroup_mlp_layer)(1 + below(3)), (tegroup_op)i, &gemm, &error), &error);
    }
    if (status != TEGROUP_OK) return;
    MUST(desc.space == TEGROUP_SPACE_HOST);
    if (desc.options.workspace_bytes > room(desc.options.workspace)) desc.options.workspace_bytes = room(desc.options.workspace);
    snapshots = snapshots_hash(tensors, MLP_TENSORS);
    for (i = 0; i < 3; i++) {
        uint64_t before = memory_hash();
        int j;
        for (j = 0; j < MLP_TENSORS; j++)
            if (tensor_lies(tensors[j])) return; /* a call may write over a list or snapshot that it has no business with */
        if (snapshots_hash(tensors, MLP_TENSORS) != snapshots) return;
        error = no_error;
        status = calls[i](&plan, &desc, NULL, &error);
        check_error(status, &error);
        if (status != TEGROUP_OK) MUST(memory_hash() == before);
    }
}

/* ---- the MoE layer ----------------------------------------------------------------------------------------------- */

/* A weight, its bias, and their gradients. */
static void some_weights(tegroup_mlp_weights *w, tegroup_dtype dtype, int32_t groups, int64_t out, int64_t in, int biases, int trains) {
    tegroup_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.groups = groups;
    w->weight_layout = (tegroup_weight_layout)below(2);
    make_tensor(&w->weight, dtype, 0, &shape, w->weight_layout ? in : out, w->weight_layout ? out : in);
    if (biases) make_tensor(&w->bias, dtype, 0, &shape, 1, out);
    if (trains) make_tensor(&w->main_grad, any_float(), 0, &shape, w->weight.shape.rows, w->weight.shape.cols);
    if (trains && biases) make_tensor(&w->bias_grad, w->main_grad.dtype, 0, &shape, 1, out);
    w->main_grad.ld = w->main_grad.group_stride = w->bias_grad.ld = w->bias_grad.group_stride = 0;
}

static void router_of_layer(tegroup_moe_desc *desc, int64_t tokens, int32_t experts, tegroup_dtype real, int backward) {
    tegroup_router_desc *router = &desc->router;
    router->normalize = below(2);
    if (chance(30)) router->balance_coefficient = 0.5;
    set_matrix(&router->logits, tokens, experts, any_float());
    if (chance(50)) some_scheme(&router->scheme, tokens, experts, router->k);
    if (chance(30)) set_matrix(&router->probabilities, tokens, experts, real);
    if (chance(30)) set_matrix(&router->weights, tokens, router->k, real);
    if (chance(30)) set_matrix(&router->indices, tokens, router->k, any_int());
    if (chance(30)) set_matrix(&router->counts, 1, experts, any_int());
    if (backward && chance(80)) set_matrix(&desc->grad_logits, tokens, experts, any_float());
    router->balance_loss = chance(30) ? (double *)buffer(8) : NULL;
    router->z_loss = chance(20) ? (double *)buffer(8) : NULL;
}

static void fuzz_moe(void) {
#define MOE_FIELDS(t)   TENSOR_FIELDS(tegroup_moe_desc, experts.t)
#define MOE_POINTERS(t) TENSOR_POINTERS(tegroup_moe_desc, experts.t)
    static const field numbers[] = {
        FIELD(tegroup_moe_desc, struct_size), FIELD(tegroup_moe_desc, space), FIELD(tegroup_moe_desc, router.k), FIELD(tegroup_moe_desc, router.normalize), FIELD(tegroup_moe_desc, router.threads),
        FIELD(tegroup_moe_desc, router.balance_coefficient), FIELD(tegroup_moe_desc, router.scheme.score), FIELD(tegroup_moe_desc, router.scheme.n_group), FIELD(tegroup_moe_desc, router.scheme.topk_group),
        FIELD(tegroup_moe_desc, router.scheme.sequence_tokens), FIELD(tegroup_moe_desc, router.scheme.z_coefficient), FIELD(tegroup_moe_desc, loss_scale), FIELD(tegroup_moe_desc, capacity),
        FIELD(tegroup_moe_desc, drops_by_weight), FIELD(tegroup_moe_desc, saved_by_forward_bytes), FIELD(tegroup_moe_desc, saved_by_dgrad_bytes), FIELD(tegroup_moe_desc, rows_format.scaling),
        FIELD(tegroup_moe_desc, rows_format.dtype), FIELD(tegroup_moe_desc, grad_format.scaling), FIELD(tegroup_moe_desc, experts.activation), FIELD(tegroup_moe_desc, experts.interleaved),
        FIELD(tegroup_moe_desc, experts.recompute), FIELD(tegroup_moe_desc, experts.row_scale_dtype), FIELD(tegroup_moe_desc, experts.fc2_bias_scaled), FIELD(tegroup_moe_desc, experts.accumulate),
        FIELD(tegroup_moe_desc, experts.out_tail), FIELD(tegroup_moe_desc, experts.fusion), FIELD(tegroup_moe_desc, experts.options.compute), FIELD(tegroup_moe_desc, experts.options.backend),
        FIELD(tegroup_moe_desc, experts.options.check_level), FIELD(tegroup_moe_desc, experts.options.workspace_bytes), MOE_FIELDS(fc1.weight), MOE_FIELDS(fc1.bias), MOE_FIELDS(fc1.main_grad),
        MOE_FIELDS(fc2.weight), MOE_FIELDS(fc2.bias), MOE_FIELDS(fc2.main_grad), MOE_FIELDS(fc1_up.weight), MOE_FIELDS(input), MOE_FIELDS(activated)};
    static const field pointers[] = {
        MOE_POINTERS(fc1.weight), MOE_POINTERS(fc1.bias), MOE_POINTERS(fc1.main_grad), MOE_POINTERS(fc1.bias_grad), MOE_POINTERS(fc2.weight), MOE_POINTERS(fc2.bias), MOE_POINTERS(fc2.main_grad),
        MOE_POINTERS(fc2.bias_grad), MOE_POINTERS(fc1_up.weight), FIELD(tegroup_moe_desc, saved_by_forward), FIELD(tegroup_moe_desc, saved_by_dgrad), FIELD(tegroup_moe_desc, experts.options.workspace)};
    static tegroup_status (*const calls[])(const tegroup_moe_plan *, const tegroup_moe_desc *, struct CUstream_st *, tegroup_error *) = {
        tegroup_moe_forward, tegroup_moe_dgrad, tegroup_moe_wgrad};
    tegroup_moe_desc desc;
    tegroup_mlp_weights *weights[] = {&desc.experts.fc1, &desc.experts.fc2, &desc.experts.fc1_up};
    tegroup_matrix *matrices[] = {&desc.tokens, &desc.output, &desc.grad_output, &desc.grad_tokens, &desc.grad_logits, &desc.router.logits, &desc.router.probabilities, &desc.router.weights,
                                  &desc.router.indices, &desc.router.counts, &desc.router.loss_gradients, &desc.router.scheme.bias, &desc.router.scheme.given_indices,
                                  &desc.given_weights, &desc.grad_weights};
    tegroup_tensor *tensors[12];
    tegroup_moe_plan plan;
    tegroup_error error = no_error;
    tegroup_status status;
    const int64_t tokens = below(7), width = below(9), hidden = below(9), outputs = below(9);
    const int32_t experts = 1 + below(6);
    const tegroup_dtype dtype = any_float(), real = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
    const int biases = chance(40), backward = chance(80), apart = chance(25);
    int i, wide, lies = 0, forwards = 0;
    OPEN(desc);
    desc.router.k = 1 + below(experts);
    set_matrix(&desc.tokens, tokens, width, dtype);
    set_matrix(&desc.output, tokens, outputs, any_float());
    if (backward) {
        set_matrix(&desc.grad_output, tokens, outputs, dtype);
        if (chance(80)) set_matrix(&desc.grad_tokens, tokens, width, any_float());
        desc.experts.recompute = below(2);
    }
    if (chance(75)) router_of_layer(&desc, tokens, experts, real, backward);
    else { /* a routing of the caller's own */
        set_matrix(&desc.given_weights, tokens, desc.router.k, real);
        set_matrix(&desc.router.scheme.given_indices, tokens, desc.router.k, any_int());
        if (backward && chance(80)) set_matrix(&desc.grad_weights, tokens, desc.router.k, real);
    }
    if (chance(30)) desc.capacity = below(1 + tokens * desc.router.k);
    desc.drops_by_weight = below(2);
    desc.experts.activation = (tegroup_activation)(1 + below(TEGROUP_ACTIVATION_IDENTITY));
    wide = desc.experts.activation <= TEGROUP_ACTIVATION_SITU_GLU ? 2 : 1;
    desc.experts.interleaved = wide == 2 && !apart ? below(2) : 0;
    some_weights(weights[0], dtype, experts, apart && wide == 2 ? hidden : wide * hidden, width, biases, backward && chance(80));
    some_weights(weights[1], dtype, experts, outputs, hidden, biases, backward && chance(80));
    if (apart && wide == 2) some_weights(weights[2], dtype, experts, hidden, width, biases, weights[0]->main_grad.dtype != TEGROUP_DTYPE_UNSET);
    if (apart && wide == 2) weights[2]->weight_layout = weights[0]->weight_layout;
    desc.experts.options.compute = TEGROUP_COMPUTE_F64;
    desc.experts.options.check_level = (tegroup_check_level)below(2);
    desc.experts.options.threads = 1;
    desc.experts.options.workspace = workspace;
    desc.experts.options.workspace_bytes = workspace_bytes;
    spoil_numbers(&desc, numbers, COUNT(numbers));

    lies |= finish_matrices(matrices, COUNT(matrices), experts);
    for (i = 0; i < 3; i++) {
        tensors[4 * i] = &weights[i]->weight;
        tensors[4 * i + 1] = &weights[i]->bias;
        tensors[4 * i + 2] = &weights[i]->main_grad;
        tensors[4 * i + 3] = &weights[i]->bias_grad;
    }
    for (i = 0; i < 12; i++)
        if (tensors[i]->dtype != TEGROUP_DTYPE_UNSET) tensor_memory(tensors[i]);
    spoil_pointers(&desc, pointers, COUNT(pointers));
    for (i = 0; i < 12; i++) {
        lies |= tensor_lies(tensors[i]) || room(tensors[i]->shape.snapshot) < sizeof(tegroup_snapshot_header);
        if (tensors[i]->pointers_space != TEGROUP_SPACE_UNSET && room(tensors[i]->pointers) < 8 * (size_t)(tensors[i]->shape.groups > 0 ? tensors[i]->shape.groups : 0))
            tensors[i]->pointers = NULL;
    }
    lies |= mask_lies(&desc.router.scheme, desc.tokens.rows);
    if (lies) desc.space = TEGROUP_SPACE_DEVICE; /* no kernels here: planning alone */
    forget_untold(&desc, desc.struct_size, sizeof desc);

    status = tegroup_moe_plan_make(&desc, NULL, &plan, &error);
    check_error(status, &error);
    if (status != TEGROUP_OK) return;
    MUST(desc.space == TEGROUP_SPACE_HOST);
    for (i = TEGROUP_MOE_SAVED_BY_FORWARD; i <= TEGROUP_MOE_WGRAD_WORKSPACE; i++) {
        tegroup_layout layout;
        MUST(tegroup_moe_layout(&plan, (tegroup_moe_memory)i, &layout, NULL) == TEGROUP_OK);
        check_layout(&layout);
        if (i <= TEGROUP_MOE_SAVED_BY_DGRAD) MUST(layout.total_bytes == (i == TEGROUP_MOE_SAVED_BY_FORWARD ? plan.saved_by_forward_bytes : plan.saved_by_dgrad_bytes));
        else MUST(layout.total_bytes <= plan.workspace_bytes);
    }
    if ((double)plan.saved_by_forward_bytes + (double)plan.saved_by_dgrad_bytes > MOST_SAVED_BYTES) return; /* a huge capacity is no lie */
    desc.saved_by_forward = aligned_buffer(plan.saved_by_forward_bytes);
    desc.saved_by_forward_bytes = plan.saved_by_forward_bytes - (size_t)(plan.saved_by_forward_bytes && chance(3));
    desc.saved_by_dgrad = aligned_buffer(plan.saved_by_dgrad_bytes);
    desc.saved_by_dgrad_bytes = plan.saved_by_dgrad_bytes - (size_t)(plan.saved_by_dgrad_bytes && chance(3));
    spoil_pointers(&desc, pointers, COUNT(pointers));
    for (i = 0; i < 12; i++)
        if (tensor_lies(tensors[i])) return; /* as the second spoiling may have left it */
    if (desc.saved_by_forward_bytes > room(desc.saved_by_forward)) desc.saved_by_forward_bytes = room(desc.saved_by_forward);
    if (desc.saved_by_dgrad_bytes > room(desc.saved_by_dgrad)) desc.saved_by_dgrad_bytes = room(desc.saved_by_dgrad);
    if (desc.experts.options.workspace_bytes > room(desc.experts.options.workspace)) desc.experts.options.workspace_bytes = room(desc.experts.options.workspace);
    for (i = 0; i < 5; i++) { /* forward twice: the second leaves what dgrad and wgrad read */
        const int call = i < 2 ? 0 : below(3);
        uint64_t before;
        int j;
        for (j = 0; j < 12; j++)
            if (tensor_lies(tensors[j])) return; /* a call may write over a list that it has no business with */
        before = memory_hash();
        error = no_error;
        status = calls[call](&plan, &desc, NULL, &error);
        check_error(status, &error);
        if (call == 0 && status == TEGROUP_OK) forwards++;
        /* a list in host memory may lack an expert that is chosen: then the router has written */
        if (status != TEGROUP_OK && !(status == TEGROUP_ERROR_NULL_ARGUMENT && strstr(error.field, "pointers"))) MUST(memory_hash() == before);
        if (call != 0 && status == TEGROUP_OK) MUST(forwards > 0 && backward);
    }
}

/* ---- the op chain ------------------------------------------------------------------------------------------------ */

/* A caller's op finds what the header promises it: rows as long as the tensors say. */
static tegroup_status user_op(const tegroup_tensor *from, const tegroup_tensor *to) {
    MUST(from->shape.rows == to->shape.rows && from->shape.snapshot == to->shape.snapshot && tensor_bytes(from) <= (double)room(from->data));
    MUST(tensor_bytes(to) <= (double)room(to->data));
    if (to->shape.rows > 0 && to->shape.cols > 0) memset(to->data, byte(), (size_t)tensor_bytes(to));
    return chance(95) ? TEGROUP_OK : TEGROUP_ERROR_UNSUPPORTED;
}
static int user_failed;
static tegroup_status user_forward(void *context, const tegroup_tensor *x, const tegroup_tensor *y, struct CUstream_st *stream, tegroup_error *error) {
    tegroup_status status = user_op(x, y);
    (void)stream, (void)error;
    MUST(context == &user_failed);
    user_failed |= status != TEGROUP_OK;
    return status;
}
static tegroup_status user_backward(void *context, const tegroup_tensor *x, const tegroup_tensor *dy, const tegroup_tensor *dx, struct CUstream_st *stream, tegroup_error *error) {
    tegroup_status status = dx->dtype != TEGROUP_DTYPE_UNSET ? user_op(dy, dx) : TEGROUP_OK;
    (void)stream, (void)error;
    MUST(context == &user_failed && tensor_bytes(x) <= (double)room(x->data));
    user_failed |= status != TEGROUP_OK;
    return status;
}

/* A chain's rows are as long as rows and cols say: row and column sizes are the input's, and no others are looked at. */
static tegroup_tensor chain_tensor(const tegroup_tensor *t, const tegroup_tensor *input, int is_rows) {
    tegroup_tensor seen = *t;
    if (!is_rows || t == input) return seen;
    seen.shape = input->shape;
    seen.shape.rows = t->shape.rows;
    seen.shape.cols = t->shape.cols;
    return seen;
}

static void fuzz_chain(void) {
#define OPS 5
    static const field numbers[] = {
        FIELD(tegroup_chain_desc, struct_size), FIELD(tegroup_chain_desc, space), FIELD(tegroup_chain_desc, op_count), FIELD(tegroup_chain_desc, argument_count),
        TENSOR_FIELDS(tegroup_chain_desc, input), TENSOR_FIELDS(tegroup_chain_desc, grad_output), FIELD(tegroup_chain_desc, unfused), FIELD(tegroup_chain_desc, accumulate),
        FIELD(tegroup_chain_desc, options.compute), FIELD(tegroup_chain_desc, options.backend), FIELD(tegroup_chain_desc, options.check_level)};
    static const field pointers[] = {TENSOR_POINTERS(tegroup_chain_desc, input), TENSOR_POINTERS(tegroup_chain_desc, grad_output), FIELD(tegroup_chain_desc, saved),
                                     FIELD(tegroup_chain_desc, options.workspace)};
    static const field op_numbers[] = {
        FIELD(tegroup_chain_op, kind), FIELD(tegroup_chain_op, activation), FIELD(tegroup_chain_op, interleaved), FIELD(tegroup_chain_op, cols),
        TENSOR_FIELDS(tegroup_chain_op, weights.weight), TENSOR_FIELDS(tegroup_chain_op, weights.bias), TENSOR_FIELDS(tegroup_chain_op, weights.main_grad),
        TENSOR_FIELDS(tegroup_chain_op, weights.bias_grad)};
    static const field op_pointers[] = {TENSOR_POINTERS(tegroup_chain_op, weights.weight), TENSOR_POINTERS(tegroup_chain_op, weights.bias),
                                        TENSOR_POINTERS(tegroup_chain_op, weights.main_grad), TENSOR_POINTERS(tegroup_chain_op, weights.bias_grad)};
    static const field argument_numbers[] = {
        FIELD(tegroup_chain_argument, op), FIELD(tegroup_chain_argument, row_scale_dtype), TENSOR_FIELDS(tegroup_chain_argument, out),
        TENSOR_FIELDS(tegroup_chain_argument, grad_input), TENSOR_FIELDS(tegroup_chain_argument, grad_row_scale)};
    static const field argument_pointers[] = {TENSOR_POINTERS(tegroup_chain_argument, out), TENSOR_POINTERS(tegroup_chain_argument, grad_input),
                                              TENSOR_POINTERS(tegroup_chain_argument, grad_row_scale), FIELD(tegroup_chain_argument, row_scale),
                                              FIELD(tegroup_chain_argument, snapshot)};
    tegroup_chain_op ops[OPS];
    tegroup_chain_argument arguments[OPS];
    tegroup_chain_desc desc;
    tegroup_chain_plan plan;
    tegroup_chain_verdict verdicts[TEGROUP_CHAIN_MAX_OPS];
    tegroup_tensor routings[OPS], seen, *tensors[2 + 8 * OPS]; /* routings: for their snapshots alone */
    tegroup_shape sizes, uniform;
    tegroup_error error = no_error;
    tegroup_status status, explained;
    int64_t rows = below(10), cols[OPS + 1];
    tegroup_dtype operand = any_float();
    int i, count = 1 + below(OPS), tensor_count = 0, weight_count = 0, lies = 0, backward = chance(70);
    int32_t refused = -2;
    uint64_t snapshots;
    memset(&desc, 0, sizeof desc);
    memset(ops, 0, sizeof ops);
    memset(arguments, 0, sizeof arguments);
    memset(&sizes, 0, sizeof sizes);
    sizes.groups = below(4);
    uniform = sizes;
    sizes.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    sizes.row_sizes.dtype = TEGROUP_DTYPE_I64;
    sizes.row_sizes.space = TEGROUP_SPACE_HOST;
    cols[0] = below(12);
    make_tensor(&desc.input, operand, 1, &sizes, rows, cols[0]);
    for (i = 0; i < count; i++) {
        static const tegroup_chain_kind kinds[] = {TEGROUP_CHAIN_LINEAR, TEGROUP_CHAIN_ACTIVATION, TEGROUP_CHAIN_LINEAR, TEGROUP_CHAIN_BIAS,
                                                   TEGROUP_CHAIN_SCALE, TEGROUP_CHAIN_USER};
        tegroup_chain_op *op = &ops[i];
        tegroup_chain_argument *given = &arguments[i];
        tegroup_dtype result = chance(80) ? operand : any_float();
        op->kind = chance(60) ? kinds[i % 3] : kinds[below(6)];
        cols[i + 1] = cols[i];
        given->op = i;
        switch (op->kind) {
        case TEGROUP_CHAIN_LINEAR:
            cols[i + 1] = below(12);
            make_tensor(&op->weights.weight, operand, 0, &uniform, cols[i + 1], cols[i]);
            if (chance(50)) make_tensor(&op->weights.bias, any_float(), 0, &uniform, 1, cols[i + 1]);
            if (backward && chance(80)) make_tensor(&op->weights.main_grad, result, 0, &uniform, cols[i + 1], cols[i]);
            if (op->weights.main_grad.dtype && op->weights.bias.dtype) make_tensor(&op->weights.bias_grad, result, 0, &uniform, 1, cols[i + 1]);
            if (op->weights.bias.dtype && chance(40)) given->row_scale_dtype = any_real();
            break;
        case TEGROUP_CHAIN_ACTIVATION:
            op->activation = (tegroup_activation)(1 + below(TEGROUP_ACTIVATION_IDENTITY));
            if (op->activation <= TEGROUP_ACTIVATION_SITU_GLU) {
                op->interleaved = below(2);
                cols[i + 1] = cols[i] / 2;
            }
            if (chance(50)) given->row_scale_dtype = any_real();
            break;
        case TEGROUP_CHAIN_BIAS:
            make_tensor(&op->weights.bias, any_float(), 0, &uniform, 1, cols[i]);
            if (backward && chance(60)) make_tensor(&op->weights.bias_grad, result, 0, &uniform, 1, cols[i]);
            break;
        case TEGROUP_CHAIN_SCALE: given->row_scale_dtype = any_real(); break;
        default:
            op->forward = user_forward;
            op->backward = user_backward;
            op->context = &user_failed;
            cols[i + 1] = chance(50) ? cols[i] : (op->cols = below(12));
            if (op->cols == 0) cols[i + 1] = cols[i];
        }
        if (i + 1 == count || chance(30)) make_tensor(&given->out, chance(80) ? operand : any_float(), 1, &sizes, rows, cols[i + 1]);
        if (backward && op->kind != TEGROUP_CHAIN_BIAS && chance(i ? 20 : 60)) make_tensor(&given->grad_input, chance(80) ? operand : any_float(), 1, &sizes, rows, cols[i]);
        if (backward && given->row_scale_dtype && (i > 0 || given->grad_input.dtype) && chance(50)) make_tensor(&given->grad_row_scale, any_real(), 1, &sizes, rows, 1);
        tensors[weight_count++] = &op->weights.weight;
        tensors[weight_count++] = &op->weights.bias;
        tensors[weight_count++] = &op->weights.main_grad;
        tensors[weight_count++] = &op->weights.bias_grad;
    }
    tensor_count = weight_count;
    for (i = 0; i < count; i++) {
        tensors[tensor_count++] = &arguments[i].out;
        tensors[tensor_count++] = &arguments[i].grad_input;
        tensors[tensor_count++] = &arguments[i].grad_row_scale;
    }
    if (backward) make_tensor(&desc.grad_output, operand, 1, &sizes, rows, cols[count]);
    tensors[tensor_count++] = &desc.input;
    tensors[tensor_count++] = &desc.grad_output;
    for (i = 0; i < tensor_count; i++)
        if (chance(97)) {
            if (i >= weight_count) tensors[i]->pointers_space = TEGROUP_SPACE_UNSET;
            tensors[i]->ld = tensors[i]->group_stride = 0;
        }
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    desc.ops = ops;
    desc.op_count = desc.argument_count = count;
    desc.arguments = arguments;
    desc.unfused = chance(30);
    desc.accumulate = backward ? below(2) : 0;
    desc.options.compute = TEGROUP_COMPUTE_F64;
    desc.options.check_level = (tegroup_check_level)below(2);
    desc.options.threads = 1;
    desc.refused = &refused;
    if (chance(30)) spoil_numbers(&desc, numbers, COUNT(numbers));
    if (chance(30)) spoil_numbers(&ops[below(count)], op_numbers, COUNT(op_numbers));
    if (chance(30)) spoil_numbers(&arguments[below(count)], argument_numbers, COUNT(argument_numbers));
    desc.op_count = desc.op_count > OPS ? TEGROUP_CHAIN_MAX_OPS + 1 : desc.op_count;
    desc.argument_count = desc.argument_count > OPS ? OPS : desc.argument_count;

    /* Memory as long as the tensors are. Routing that an op has of its own is another snapshot of the same sizes. */
    prepare_tensor(&desc.input);
    for (i = 0; i < tensor_count; i++)
        if (tensors[i]->dtype != TEGROUP_DTYPE_UNSET) {
            seen = chain_tensor(tensors[i], &desc.input, i >= weight_count);
            tensor_memory(&seen);
            tensors[i]->data = seen.data;
            tensors[i]->pointers = seen.pointers;
        }
    for (i = 0; i < count; i++) {
        arguments[i].row_scale = arguments[i].row_scale_dtype && chance(90) ? buffer(8 * (size_t)rows) : NULL;
        if (chance(80)) arguments[i].snapshot = NULL;
        else if (desc.input.shape.snapshot && ops[i].kind != TEGROUP_CHAIN_USER) {
            const size_t bytes = room(desc.input.shape.snapshot);
            arguments[i].snapshot = memcpy(aligned_buffer(bytes), desc.input.shape.snapshot, bytes);
        }
    }
    for (i = 0; i < tensor_count; i++)
        if (tensors[i] != &desc.input) tensors[i]->shape.snapshot = NULL;
    if (desc.options.check_level == TEGROUP_CHECK_DEEP && chance(20)) spoil_snapshot(desc.input.shape.snapshot);
    desc.options.workspace = workspace;
    desc.options.workspace_bytes = workspace_bytes;
    spoil_pointers(&ops[below(count)], op_pointers, COUNT(op_pointers));
    spoil_pointers(&arguments[below(count)], argument_pointers, COUNT(argument_pointers));
    for (i = 0; i < tensor_count; i++) {
        seen = chain_tensor(tensors[i], &desc.input, i >= weight_count);
        lies |= tensor_lies(&seen);
        if (tensors[i]->pointers_space != TEGROUP_SPACE_UNSET && room(tensors[i]->pointers) < 8 * (size_t)(tensors[i]->shape.groups > 0 ? tensors[i]->shape.groups : 0))
            tensors[i]->pointers = NULL;
    }
    lies |= desc.input.shape.rows > rows || room(desc.input.shape.snapshot) < sizeof(tegroup_snapshot_header);
    for (i = 0; i < count; i++) {
        lies |= arguments[i].row_scale_dtype && (double)room(arguments[i].row_scale) < 8 * (double)rows;
        lies |= room(arguments[i].snapshot) < sizeof(tegroup_snapshot_header);
        memset(&routings[i], 0, sizeof routings[i]);
        routings[i].shape.snapshot = arguments[i].snapshot;
    }
    if (lies) desc.space = TEGROUP_SPACE_DEVICE; /* no kernels here: planning alone */
    forget_untold(&desc, desc.struct_size, sizeof desc);

    explained = tegroup_chain_explain(&desc, verdicts, &error);
    check_error(explained, &error);
    for (i = 0; explained == TEGROUP_OK && i < desc.op_count; i++) MUST(verdicts[i].first <= i && i < verdicts[i].first + verdicts[i].count);
    error = no_error;
    status = tegroup_chain_plan_make(&desc, NULL, &plan, &error);
    check_error(status, &error);
    if (status != TEGROUP_OK) {
        MUST(desc.struct_size != sizeof desc || (refused >= -1 && refused < OPS));
        return;
    }
    if (desc.space == TEGROUP_SPACE_DEVICE) { /* the caller's functions need no kernels of ours */
        for (i = 0; i < desc.op_count; i++) MUST(ops[i].kind == TEGROUP_CHAIN_USER);
        return;
    }
    tegroup_layout layout;
    MUST(tegroup_chain_layout(&plan, TEGROUP_CHAIN_SAVED, &layout, NULL) == TEGROUP_OK && layout.total_bytes == plan.saved_bytes);
    check_layout(&layout);
    MUST(tegroup_chain_layout(&plan, TEGROUP_CHAIN_WORKSPACE, &layout, NULL) == TEGROUP_OK && layout.total_bytes == plan.workspace_bytes);
    check_layout(&layout);
    if (plan.saved_bytes > MOST_SAVED_BYTES) return; /* nor are huge rows between two ops */
    desc.saved = aligned_buffer(plan.saved_bytes);
    desc.saved_bytes = plan.saved_bytes - (size_t)(plan.saved_bytes && chance(3));
    spoil_pointers(&desc, pointers, COUNT(pointers));
    if (room(desc.saved) < desc.saved_bytes) desc.saved_bytes = room(desc.saved);
    if (room(desc.options.workspace) < desc.options.workspace_bytes) desc.options.workspace_bytes = room(desc.options.workspace);
    if (room(desc.input.shape.snapshot) < sizeof(tegroup_snapshot_header)) return;
    for (i = 0; i < count; i++) tensors[tensor_count++] = &routings[i];
    snapshots = snapshots_hash(tensors, tensor_count);
    for (i = 0; i < 2; i++) {
        uint64_t before = memory_hash();
        int j;
        for (j = 0; j < tensor_count - count; j++) {
            seen = chain_tensor(tensors[j], &desc.input, j >= weight_count);
            if (tensor_lies(&seen)) return; /* a call may write over a list or snapshot that it has no business with */
        }
        if (snapshots_hash(tensors, tensor_count) != snapshots) return;
        error = no_error;
        user_failed = 0;
        status = i ? tegroup_chain_backward(&plan, &desc, NULL, &error) : tegroup_chain_forward(&plan, &desc, NULL, &error);
        check_error(status, &error);
        if (user_failed) MUST(status == TEGROUP_ERROR_UNSUPPORTED);
        else if (status != TEGROUP_OK) MUST(memory_hash() == before);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const targets[])(void) = {fuzz_layouts, fuzz_tensor_layout, fuzz_prepare, fuzz_gemm, fuzz_prepare, fuzz_gemm, fuzz_gemm, fuzz_count, fuzz_router, fuzz_router_backward,
                                            fuzz_permutation, fuzz_export, fuzz_skew, fuzz_permute, fuzz_combine, fuzz_combine_backward, fuzz_ep_sizes, fuzz_ep_exchange, fuzz_ep_links, fuzz_activation, fuzz_activation_backward, fuzz_linear, fuzz_linear, fuzz_mlp, fuzz_mlp, fuzz_moe, fuzz_chain, fuzz_chain, fuzz_chain};
    if (!workspace) { /* what the CPU backend needs at the most, with one thread */
        workspace_bytes = (size_t)4 << 20;
        workspace = (char *)aligned_buffer(workspace_bytes);
    }
    input = data;
    input_left = size;
    targets[below(COUNT(targets))]();
    release();
    return 0;
}
