/* Random descriptions of scales, and where each scale then is, in the tests' own words: storage is walked in its order and
 * numbered. Nothing of the library's arithmetic is used. */
#ifndef TEGROUP_TESTS_SCALES_H
#define TEGROUP_TESTS_SCALES_H

#include "support.h"

/* Of each scaling: block and padding, written down again from docs/formats.md. 0 = all. */
typedef struct scaling_row {
    tegroup_dtype data, scale;
    int64_t block_outer, block_inner, pad_outer, pad_inner;
    int outer_first, tiles;
} scaling_row;

SUPPORT scaling_row row_of(tegroup_scaling scaling) {
    static const scaling_row rows[TEGROUP_SCALING_COUNT] = {
        {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_UNSET, 0, 0, 1, 1, 0, 0},      {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F32, 0, 0, 1, 1, 0, 0},
        {TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F32, 1, 0, 1, 1, 0, 0},     {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F32, 1, 128, 4, 1, 1, 0},
        {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F32, 128, 128, 1, 4, 0, 0}, {TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F8E8M0, 1, 32, 128, 4, 0, 1},
        {TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3, 1, 16, 128, 4, 0, 1}, {TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E8M0, 1, 32, 128, 4, 0, 1},
        {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F32, 32, 32, 1, 1, 0, 0},   {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E8M0, 1, 32, 128, 4, 0, 1},
        {TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3, 1, 16, 128, 4, 0, 1}};
    return rows[scaling];
}

enum { MOST_GROUPS = 9 };
typedef enum packing_kind { PACKED_GROUPS, TOKEN_MAJOR, WHOLE_BUFFER, PACKINGS } packing_kind;

/* A tensor of scales alone. */
typedef struct depot {
    tegroup_tensor t;
    tegroup_scaling scaling;
    tegroup_dtype dtype;
    int ragged, columnwise, listed;
    packing_kind packing;
    int32_t groups, parts;
    int64_t rows[MOST_GROUPS], start[MOST_GROUPS], cols; /* of each group; a skipped one has 0 rows here */
    int64_t sizes[MOST_GROUPS];                          /* as the library is told: -1 = skipped          */
    int64_t capacity_rows, stored;                       /* scales of the buffer, by the walk             */
    void *list[MOST_GROUPS];
    void *memory;
} depot;

SUPPORT int64_t parts_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
SUPPORT int64_t blocks_in(int64_t extent, int64_t block) { return block == 0 ? 1 : parts_up(extent, block); }
SUPPORT size_t scale_size(tegroup_dtype dtype) { return dtype == TEGROUP_DTYPE_F32 ? 4 : dtype == TEGROUP_DTYPE_BF16 ? 2 : 1; } /* I32: by exponents */
SUPPORT int64_t direction_rows(const depot *s, int32_t g) { return s->rows[g] / s->parts; }
SUPPORT int64_t outer_blocks(const depot *s, int32_t g) {
    if (s->scaling != TEGROUP_SCALING_TENSOR && (s->rows[g] == 0 || s->cols == 0)) return 0;
    return blocks_in(s->columnwise ? s->cols : direction_rows(s, g), row_of(s->scaling).block_outer);
}
SUPPORT int64_t inner_blocks(const depot *s, int32_t g) {
    if (s->scaling != TEGROUP_SCALING_TENSOR && (s->rows[g] == 0 || s->cols == 0)) return 0;
    return blocks_in(s->columnwise ? direction_rows(s, g) : s->cols, row_of(s->scaling).block_inner);
}
SUPPORT int64_t to_multiple(int64_t a, int64_t b) { return parts_up(a, b) * b; }

/* The walk: visit(context, group, part, outer, inner, index) for everything that is stored, padding included, in the order
 * in which it lies. index counts within the buffer, or within the group's own. */
typedef void scale_visitor(void *context, int32_t g, int64_t part, int64_t outer, int64_t inner, int64_t index);

SUPPORT int64_t walk_part(const depot *s, int32_t g, int64_t part, int64_t at, scale_visitor *visit, void *context) {
    const scaling_row row = row_of(s->scaling);
    const int words = s->dtype == TEGROUP_DTYPE_I32;
    const int64_t outers = to_multiple(outer_blocks(s, g), words ? 4 : row.pad_outer), inners = to_multiple(inner_blocks(s, g), words ? 4 : row.pad_inner);
    if (words) { /* words of four exponents, the outer index contiguous */
        for (int64_t w = 0; w < inners / 4; w++)
            for (int64_t o = 0; o < outers; o++)
                for (int64_t byte = 0; byte < 4; byte++) visit(context, g, part, o, 4 * w + byte, at++);
    } else if (row.tiles) {
        for (int64_t to = 0; to < outers; to += 128)
            for (int64_t ti = 0; ti < inners; ti += 4)
                for (int64_t r = 0; r < 32; r++)
                    for (int64_t strip = 0; strip < 4; strip++)
                        for (int64_t c = 0; c < 4; c++) visit(context, g, part, to + strip * 32 + r, ti + c, at++);
    } else if (row.outer_first) {
        for (int64_t i = 0; i < inners; i++)
            for (int64_t o = 0; o < outers; o++) visit(context, g, part, o, i, at++);
    } else {
        for (int64_t o = 0; o < outers; o++)
            for (int64_t i = 0; i < inners; i++) visit(context, g, part, o, i, at++);
    }
    return at;
}

/* Strides: a line of scales for each outer block of the buffer; a ragged group's begin at its first row. */
SUPPORT void walk_lines(const depot *s, scale_visitor *visit, void *context) {
    const int words = s->dtype == TEGROUP_DTYPE_I32;
    int64_t line = 0;
    for (int32_t g = 0; g < s->groups; g++) {
        if (s->listed) line = 0;
        for (int64_t part = 0; part < s->parts; part++)
            for (int64_t o = 0; o < outer_blocks(s, g); o++) {
                const int64_t at = s->ragged && !s->listed ? s->start[g] + o : line++;
                for (int64_t i = 0; i < to_multiple(inner_blocks(s, g), words ? 4 : 1); i++)
                    visit(context, g, part, o, i,
                          words ? 4 * (at * s->t.scale_outer_stride + i / 4 * s->t.scale_inner_stride) + i % 4
                                : at * s->t.scale_outer_stride + i * s->t.scale_inner_stride);
            }
    }
}

SUPPORT void walk(const depot *s, scale_visitor *visit, void *context) {
    int64_t at = 0;
    if (s->packing != PACKED_GROUPS) { walk_lines(s, visit, context); return; }
    for (int32_t g = 0; g < s->groups; g++) {
        if (s->listed) at = 0;
        for (int64_t part = 0; part < s->parts; part++) at = walk_part(s, g, part, at, visit, context);
    }
}

SUPPORT void longest_visitor(void *context, int32_t g, int64_t part, int64_t outer, int64_t inner, int64_t index) {
    (void)g, (void)part, (void)outer, (void)inner;
    if (index >= *(int64_t *)context) *(int64_t *)context = index + 1;
}

/* The rows of the groups, and where each begins. */
SUPPORT void depot_rows(depot *s, rng *r, int64_t most) {
    int64_t end = 0;
    const int64_t alignment = rng_chance(r, 30) ? rng_int(r, 1, 40) : 1;
    for (int32_t g = 0; g < s->groups; g++) {
        s->sizes[g] = rng_chance(r, 15) ? 0 : rng_chance(r, 5) ? -1 : rng_int(r, 1, rng_chance(r, 10) ? 4 * most : most);
        s->rows[g] = s->sizes[g] < 0 ? 0 : s->sizes[g];
        s->start[g] = end;
        end = to_multiple(end + s->rows[g], alignment);
    }
    s->capacity_rows = end + rng_int(r, 0, 5);
    s->t.shape.row_sizes.alignment = alignment;
}

SUPPORT tegroup_dtype random_scale_dtype(rng *r, tegroup_scaling scaling) {
    const scaling_row row = row_of(scaling);
    const int packs = row.block_outer == 1 && row.block_inner > 0;
    if (row.scale == TEGROUP_DTYPE_F8E4M3 || rng_chance(r, 50)) return row.scale;
    if (packs && rng_chance(r, 40)) return TEGROUP_DTYPE_I32;
    if (row.scale == TEGROUP_DTYPE_F8E8M0) return row.scale;
    return rng_chance(r, 50) ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F8E8M0;
}

/* Strides that keep scales apart, with and without gaps, lines contiguous or across. */
SUPPORT void depot_strides(depot *s, rng *r) {
    const int words = s->dtype == TEGROUP_DTYPE_I32;
    const int64_t inner = blocks_in(s->cols, row_of(s->scaling).block_inner);
    int64_t lines = 0, blocks = inner > 0 ? inner : 1; /* whatever rows there are */
    for (int32_t g = 0; g < s->groups; g++) {
        const int64_t own = s->parts * outer_blocks(s, g);
        lines = s->listed ? (own > lines ? own : lines) : lines + own;
    }
    if (s->ragged) lines = s->capacity_rows;
    if (words) blocks = parts_up(blocks, 4);
    if (s->packing == TOKEN_MAJOR) {
        s->t.scale_inner_stride = rng_chance(r, 80) ? 1 : rng_int(r, 1, 3);
        s->t.scale_outer_stride = (blocks - 1) * s->t.scale_inner_stride + 1 + (rng_chance(r, 30) ? rng_int(r, 0, 5) : 0);
    } else {
        s->t.scale_outer_stride = rng_chance(r, 80) ? 1 : rng_int(r, 1, 3);
        s->t.scale_inner_stride = (lines > 0 ? lines - 1 : 0) * s->t.scale_outer_stride + 1 + (rng_chance(r, 50) ? rng_int(r, 0, 7) : 0);
    }
}

/* How else the same scales may be described: everything of `s` that does not belong to the data is drawn. */
SUPPORT void depot_describe(depot *s, rng *r) {
    const scaling_row row = row_of(s->scaling);
    s->dtype = random_scale_dtype(r, s->scaling);
    s->listed = rng_chance(r, 15);
    s->packing = s->columnwise || s->scaling == TEGROUP_SCALING_TENSOR || (s->ragged && row.block_outer != 1) ? PACKED_GROUPS : (packing_kind)rng_int(r, 0, PACKINGS - 1);
    s->t.scaling = s->scaling;
    s->t.dtype = row.data;
    s->t.scale_dtype = s->dtype == row.scale && rng_chance(r, 70) ? TEGROUP_DTYPE_UNSET : s->dtype;
    s->t.scale_outer_stride = s->t.scale_inner_stride = 0;
    s->t.scale_parts = s->parts == 1 && rng_chance(r, 70) ? 0 : s->parts;
    s->t.pointers_space = s->listed ? TEGROUP_SPACE_HOST : TEGROUP_SPACE_UNSET;
    s->t.shape.groups = s->groups;
    s->t.shape.cols = s->cols;
    s->t.shape.rows = s->ragged ? s->capacity_rows : s->groups > 0 ? s->rows[0] : 6; /* which parts divide */
    if (s->packing != PACKED_GROUPS) depot_strides(s, r);
    s->stored = 0;
    walk(s, longest_visitor, &s->stored);
}

/* A snapshot by the library; false: it refused. */
SUPPORT int depot_prepare(depot *s) {
    tegroup_layout layout;
    if (!s->ragged) return 1;
    s->t.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    s->t.shape.row_sizes.dtype = TEGROUP_DTYPE_I64;
    s->t.shape.row_sizes.space = TEGROUP_SPACE_HOST;
    s->t.shape.row_sizes.data = s->sizes;
    if (tegroup_snapshot_layout(&s->t.shape, &layout, NULL) != TEGROUP_OK) return 0;
    const int fine = tegroup_shape_prepare(&s->t.shape, guarded(layout.total_bytes), layout.total_bytes, NULL, NULL) == TEGROUP_OK;
    s->t.shape.row_sizes.data = NULL; /* a depot may be copied */
    return fine;
}

/* A size that may be anything. */
SUPPORT int64_t hostile_size(rng *r, int64_t rows) {
    static const int64_t lies[] = {INT64_MIN, INT64_MAX, -1, -2, -1000, INT32_MAX, INT32_MIN, INT64_C(1) << 32, INT64_C(1) << 40, INT64_C(1) << 62};
    const int64_t kind = rng_int(r, 0, 9);
    return kind < 5 ? rng_int(r, 0, rows / 3) : kind < 7 ? lies[rng_int(r, 0, 9)] : kind < 9 ? rng_int(r, -5, 2 * rows) : (int64_t)rng_next(r);
}

/* Prepares it again, in the same memory, of sizes that may lie; its groups are then those of the snapshot, whose own test is
 * test_prepare. */
SUPPORT void depot_clamp(depot *s, tegroup_encoding encoding, const int64_t *sizes) {
    const guarded_node *snapshot = guarded_find(s->t.shape.snapshot);
    tegroup_prepare_desc prepare;
    memset(&prepare, 0, sizeof prepare);
    prepare.struct_size = sizeof prepare;
    prepare.shape = s->t.shape;
    prepare.shape.row_sizes.encoding = encoding;
    prepare.shape.row_sizes.data = sizes;
    if (encoding != TEGROUP_ENCODING_COUNTS) prepare.shape.row_sizes.alignment = 0;
    prepare.space = TEGROUP_SPACE_HOST;
    prepare.snapshot = snapshot->data;
    prepare.snapshot_bytes = snapshot->bytes;
    prepare.clamp = 1;
    if (tegroup_prepare(&prepare, NULL, NULL) != TEGROUP_OK) abort();
    const tegroup_snapshot_view view = tegroup_snapshot_read(snapshot->data);
    for (int32_t g = 0; g < s->groups; g++) s->rows[g] = view.rows[g] > 0 ? view.rows[g] : 0, s->start[g] = view.start[g];
}

/* Sizes of any encoding, most of which lie. */
SUPPORT tegroup_encoding hostile_sizes(rng *r, const depot *s, int64_t *sizes) {
    static const tegroup_encoding encodings[] = {TEGROUP_ENCODING_COUNTS, TEGROUP_ENCODING_ENDS, TEGROUP_ENCODING_OFFSETS};
    const tegroup_encoding encoding = encodings[rng_int(r, 0, 2)];
    for (int32_t g = 0; g <= s->groups; g++) sizes[g] = hostile_size(r, s->capacity_rows);
    if (encoding == TEGROUP_ENCODING_OFFSETS && rng_chance(r, 80)) sizes[0] = 0;
    return encoding;
}

SUPPORT depot random_depot(rng *r, int64_t most_rows, int64_t most_cols) {
    depot s;
    memset(&s, 0, sizeof s);
    s.scaling = (tegroup_scaling)rng_int(r, 1, TEGROUP_SCALING_COUNT - 1);
    s.ragged = rng_chance(r, 60);
    s.columnwise = rng_chance(r, 35);
    s.groups = (int32_t)rng_int(r, 0, MOST_GROUPS);
    s.cols = rng_chance(r, 5) ? 0 : 2 * rng_int(r, 1, most_cols / 2);
    s.parts = s.ragged || rng_chance(r, 50) ? 1 : (int32_t)rng_int(r, 1, 3);
    if (s.ragged) {
        depot_rows(&s, r, most_rows);
    } else {
        const int64_t rows = rng_chance(r, 5) ? 0 : s.parts * rng_int(r, 1, most_rows);
        for (int32_t g = 0; g < s.groups; g++) s.rows[g] = rows;
    }
    depot_describe(&s, r);
    return s;
}

/* Memory for the scales, exactly as much as the library says that the tensor needs at its capacity. */
SUPPORT size_t depot_memory(depot *s) {
    tegroup_layout layout;
    tegroup_error error;
    if (tegroup_tensor_layout(&s->t, TEGROUP_COPIES_BOTH, &layout, &error) != TEGROUP_OK) {
        fprintf(stderr, "no layout: %s %s (%ld, %ld)\n", error.field, error.rule, (long)error.expected, (long)error.got);
        abort();
    }
    const size_t bytes = layout.items[s->columnwise ? 3 : 1].bytes;
    const size_t element = s->dtype == TEGROUP_DTYPE_I32 ? 4 : scale_size(s->dtype);
    if (!s->listed) {
        s->memory = guarded_skewed(bytes, element * 3);
        *(s->columnwise ? &s->t.columnwise_scale_inv : &s->t.scale_inv) = s->memory;
        return bytes;
    }
    void **pointers = (void **)guarded(sizeof(void *) * (size_t)(s->groups > 0 ? s->groups : 1));
    for (int32_t g = 0; g < s->groups; g++) pointers[g] = s->list[g] = guarded_skewed(bytes, element);
    if (s->columnwise) s->t.columnwise_scale_pointers = pointers;
    else s->t.scale_pointers = pointers;
    return bytes;
}
SUPPORT unsigned char *scale_address(const depot *s, int32_t g, int64_t index) {
    return (unsigned char *)(s->listed ? s->list[g] : s->memory) + (size_t)index * scale_size(s->dtype);
}

/* What a scale of a block is, whatever the layout: a number drawn from its place, which every type of both tensors holds. */
typedef struct values {
    const depot *s;
    uint64_t seed;
    int exponents, codes, bf16;
    int64_t wrong;
} values;

SUPPORT uint32_t value_of(const values *v, int32_t g, int64_t part, int64_t outer, int64_t inner) {
    uint64_t state = v->seed ^ (uint64_t)g << 48 ^ (uint64_t)part << 40 ^ (uint64_t)outer << 20 ^ (uint64_t)inner;
    const uint32_t bits = (uint32_t)splitmix64(&state);
    if (v->codes) return bits & 0xFF;
    if (v->exponents) return bits % 256 == 255 ? 0x7FFFFFFFu : bits % 256 == 0 ? 0x00400000u : bits % 256 << 23;
    return v->bf16 ? bits & 0xFFFF0000u : bits;
}

SUPPORT void write_visitor(void *context, int32_t g, int64_t part, int64_t outer, int64_t inner, int64_t index) {
    values *v = (values *)context;
    const depot *s = v->s;
    if (outer >= outer_blocks(s, g) || inner >= inner_blocks(s, g)) return; /* padding stays poison */
    const uint32_t bits = value_of(v, g, part, outer, inner);
    unsigned char *at = scale_address(s, g, index);
    const uint16_t half = (uint16_t)(bits >> 16);
    if (s->dtype == TEGROUP_DTYPE_F32) memcpy(at, &bits, 4);
    else if (s->dtype == TEGROUP_DTYPE_BF16) memcpy(at, &half, 2);
    else if (v->codes) *at = (unsigned char)bits;
    else *at = bits == 0x7FFFFFFFu ? 255 : (unsigned char)(bits >> 23);
}

/* Values that both tensors' types hold. */
SUPPORT values values_for(const depot *from, const depot *to, uint64_t seed) {
    const tegroup_dtype types[2] = {from->dtype, to->dtype};
    values v;
    memset(&v, 0, sizeof v);
    v.s = from;
    v.seed = seed;
    v.codes = from->dtype == TEGROUP_DTYPE_F8E4M3;
    for (int i = 0; i < 2; i++) {
        v.exponents |= types[i] == TEGROUP_DTYPE_I32 || types[i] == TEGROUP_DTYPE_F8E8M0;
        v.bf16 |= types[i] == TEGROUP_DTYPE_BF16;
    }
    return v;
}

SUPPORT void remember_depot(const depot *s) {
    if (!s->listed) guarded_remember(s->memory);
    for (int32_t g = 0; s->listed && g < s->groups; g++) guarded_remember(s->list[g]);
}
SUPPORT int64_t changed_depot(const depot *s) {
    int64_t changed = s->listed ? 0 : guarded_changed(s->memory);
    for (int32_t g = 0; s->listed && g < s->groups; g++) changed += guarded_changed(s->list[g]);
    return changed;
}

SUPPORT tegroup_scale_convert_desc conversion(const depot *from, const depot *to) {
    tegroup_scale_convert_desc d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.space = TEGROUP_SPACE_HOST;
    d.columnwise = from->columnwise;
    d.from = from->t;
    d.to = to->t;
    return d;
}

/* The same groups, described otherwise; ragged rows may lie elsewhere. */
SUPPORT depot described_again(const depot *from, rng *r) {
    depot to = *from;
    if (to.ragged && rng_chance(r, 50)) {
        int64_t end = 0;
        to.t.shape.row_sizes.alignment = rng_int(r, 1, 9);
        for (int32_t g = 0; g < to.groups; g++) {
            to.start[g] = end;
            end = to_multiple(end + to.rows[g], to.t.shape.row_sizes.alignment);
        }
        to.capacity_rows = end + rng_int(r, 0, 20);
    }
    to.t.scale_inv = to.t.columnwise_scale_inv = NULL;
    to.t.scale_pointers = to.t.columnwise_scale_pointers = NULL;
    to.t.shape.snapshot = NULL;
    depot_describe(&to, r);
    return to;
}

#endif
