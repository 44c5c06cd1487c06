/* Where scales and copies lie, how many bytes they take, and scales from one layout to another: against a walk through storage. */
#define TEGROUP_IMPLEMENTATION
#include "scales.h"
#include "test.h"

/* ---- the address of a scale -------------------------------------------------------------------------------------------- */

typedef struct addresses {
    const depot *s;
    const tegroup_snapshot_view *view;
    rng r;
    int32_t g;
    tegroup_impl_scale_grid grid;
    int64_t wrong, checked;
} addresses;

/* An element of the block, by the elements' own indices; what only pads has none. */
static void address_visitor(void *context, int32_t g, int64_t part, int64_t outer, int64_t inner, int64_t index) {
    addresses *a = (addresses *)context;
    const depot *s = a->s;
    const scaling_row row = row_of(s->scaling);
    if (outer >= outer_blocks(s, g) || inner >= inner_blocks(s, g)) return;
    if (g != a->g) a->grid = tegroup_impl_scale_grid_of(&s->t, tegroup_scaling_info(s->scaling), a->view, g, s->columnwise);
    a->g = g;
    const int64_t outer_extent = s->columnwise ? s->cols : direction_rows(s, g), inner_extent = s->columnwise ? direction_rows(s, g) : s->cols;
    if (outer_extent == 0 || inner_extent == 0) return; /* one scale of nothing */
    const int64_t outer_step = row.block_outer == 0 ? outer_extent : row.block_outer, inner_step = row.block_inner == 0 ? inner_extent : row.block_inner;
    const int64_t outer_room = outer_extent - outer * outer_step, inner_room = inner_extent - inner * inner_step;
    int64_t x = outer * outer_step + rng_int(&a->r, 0, (outer_room < outer_step ? outer_room : outer_step) - 1);
    int64_t y = inner * inner_step + rng_int(&a->r, 0, (inner_room < inner_step ? inner_room : inner_step) - 1);
    *(s->columnwise ? &y : &x) += part * direction_rows(s, g);
    a->wrong += tegroup_impl_scale_at(&a->grid, x, y) != index;
    a->checked++;
}

TEST(scales, every_address) {
    rng r = rng_seed(9101);
    int64_t checked = 0;
    for (int64_t n = scaled(100000); n > 0; n--) {
        void *mark = guards_mark();
        depot s = random_depot(&r, rng_chance(&r, 5) ? 300 : 12, rng_chance(&r, 5) ? 1500 : 200);
        ASSERT_TRUE(depot_prepare(&s));
        const tegroup_snapshot_view view = tegroup_snapshot_read(s.t.shape.snapshot);
        addresses a = {.s = &s, .view = &view, .r = rng_seed(rng_next(&r)), .g = -1};
        walk(&s, address_visitor, &a);
        ASSERT_EQ(a.wrong, 0);
        checked += a.checked;
        /* a loop that carries the sum has the same bases */
        int64_t before = 0;
        for (int32_t g = 0; g < s.groups; g++) {
            const tegroup_scaling_facts *facts = tegroup_scaling_info(s.scaling);
            const tegroup_impl_scale_grid carried = tegroup_impl_scale_grid_after(&s.t, facts, &view, g, s.columnwise, before),
                                          direct = tegroup_impl_scale_grid_of(&s.t, facts, &view, g, s.columnwise);
            ASSERT_EQ(carried.base, direct.base);
            before += carried.count;
        }
        guards_release(mark);
    }
    printf("scales: %ld\n", (long)checked);
}

/* ---- the copies -------------------------------------------------------------------------------------------------------- */

TEST(scales, transposed_copy) {
    rng r = rng_seed(9102);
    for (int64_t n = scaled(3000); n > 0; n--) {
        void *mark = guards_mark();
        depot s = random_depot(&r, 50, 60);
        s.t.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
        ASSERT_TRUE(depot_prepare(&s));
        const tegroup_snapshot_view view = tegroup_snapshot_read(s.t.shape.snapshot);
        tegroup_layout layout;
        ASSERT_EQ(tegroup_tensor_layout(&s.t, TEGROUP_COPIES_COLUMNWISE, &layout, NULL), TEGROUP_OK);
        int64_t next = 0, longest = 0, wrong = 0;
        for (int32_t g = 0; g < s.groups; g++) {
            const tegroup_impl_elements at = tegroup_impl_elements_of(&s.t, &view, g, 1);
            if (s.listed) next = 0;
            for (int64_t col = 0; col < s.cols; col++)
                for (int64_t row = 0; row < (s.rows[g] + 31) / 32 * 32; row++, next++)
                    wrong += at.first + row * at.row_stride + col * at.col_stride != next;
            if (next > longest) longest = next;
        }
        const int64_t bytes = row_of(s.scaling).data == TEGROUP_DTYPE_F4E2M1 ? longest / 2 : longest;
        if (s.ragged) ASSERT_LE(bytes, (int64_t)layout.items[2].bytes);
        else ASSERT_EQ(bytes, (int64_t)layout.items[2].bytes);
        ASSERT_EQ(wrong, 0);
        guards_release(mark);
    }
}

TEST(scales, copies_as_data) {
    rng r = rng_seed(9103);
    for (int64_t n = scaled(3000); n > 0; n--) {
        void *mark = guards_mark();
        depot s = random_depot(&r, 20, 40);
        s.t.ld = rng_chance(&r, 50) ? 0 : s.cols + 2 * rng_int(&r, 1, 4);
        ASSERT_TRUE(depot_prepare(&s));
        const tegroup_snapshot_view view = tegroup_snapshot_read(s.t.shape.snapshot);
        const int64_t ld = s.t.ld > 0 ? s.t.ld : s.cols;
        for (int32_t g = 0; g < s.groups; g++)
            for (int columnwise = 0; columnwise < 2; columnwise++) {
                const tegroup_impl_elements at = tegroup_impl_elements_of(&s.t, &view, g, columnwise);
                ASSERT_EQ(at.first, s.listed ? 0 : s.ragged ? s.start[g] * ld : g * s.rows[0] * ld);
                ASSERT_EQ(at.row_stride, ld);
                ASSERT_EQ(at.col_stride, 1);
            }
        guards_release(mark);
    }
}

/* ---- bytes ------------------------------------------------------------------------------------------------------------- */

/* Items 1 to 3 of the most that any sizes take: every way of giving `rows` rows to the groups is tried. */
static void most_of(depot *s, int32_t g, int64_t left, size_t most[4]) {
    if (g < s->groups) {
        for (s->rows[g] = 0; s->rows[g] <= left; s->rows[g]++) most_of(s, g + 1, left - s->rows[g], most);
        return;
    }
    size_t transposed = 0;
    for (g = 0; g < s->groups; g++) transposed += (size_t)((s->rows[g] + 31) / 32 * 32 * s->cols);
    if (row_of(s->scaling).data == TEGROUP_DTYPE_F4E2M1) transposed = (transposed + 1) / 2;
    if (transposed > most[2]) most[2] = transposed;
    for (s->columnwise = 0; s->columnwise < 2; s->columnwise++) {
        int64_t stored = 0;
        walk(s, longest_visitor, &stored);
        const size_t bytes = (size_t)stored * scale_size(s->dtype);
        if (bytes > most[s->columnwise ? 3 : 1]) most[s->columnwise ? 3 : 1] = bytes;
    }
}

/* Exact: some sizes need every byte, and no sizes need more. */
TEST(scales, bytes_of_ragged_rows) {
    rng r = rng_seed(9104);
    for (int64_t n = scaled(600); n > 0; n--) {
        depot s;
        tegroup_layout layout;
        memset(&s, 0, sizeof s);
        s.scaling = (tegroup_scaling)rng_int(&r, 1, TEGROUP_SCALING_COUNT - 1);
        s.ragged = s.parts = 1;
        s.groups = (int32_t)rng_int(&r, 0, 3);
        s.cols = 2 * rng_int(&r, 0, 40);
        s.capacity_rows = s.groups < 3 ? rng_int(&r, 0, 150) : rng_int(&r, 0, 20);
        depot_describe(&s, &r);
        s.listed = 0;
        s.packing = PACKED_GROUPS;
        s.t.pointers_space = TEGROUP_SPACE_UNSET;
        s.t.scale_outer_stride = s.t.scale_inner_stride = 0;
        s.t.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
        s.t.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
        s.t.shape.row_sizes.space = TEGROUP_SPACE_DEVICE;
        ASSERT_EQ(tegroup_tensor_layout(&s.t, TEGROUP_COPIES_BOTH, &layout, NULL), TEGROUP_OK);
        size_t most[4] = {0, 0, 0, 0};
        most_of(&s, 0, s.capacity_rows, most);
        for (int item = 1; item < 4; item++) ASSERT_EQ(layout.items[item].bytes, most[item]);
        ASSERT_EQ(layout.items[0].bytes, (size_t)(s.capacity_rows * s.cols) / (row_of(s.scaling).data == TEGROUP_DTYPE_F4E2M1 ? 2 : 1));
        ASSERT_EQ(layout.items[4].bytes, row_of(s.scaling).scale == TEGROUP_DTYPE_F8E4M3 ? 4 * (size_t)s.groups : 0);
    }
}

TEST(scales, bytes_of_uniform_rows_and_strides) {
    rng r = rng_seed(9105);
    for (int64_t n = scaled(5000); n > 0; n--) {
        void *mark = guards_mark();
        depot s = random_depot(&r, 40, 300);
        ASSERT_TRUE(depot_prepare(&s));
        tegroup_layout layout;
        ASSERT_EQ(tegroup_tensor_layout(&s.t, s.columnwise ? TEGROUP_COPIES_COLUMNWISE : TEGROUP_COPIES_ROWWISE, &layout, NULL), TEGROUP_OK);
        ASSERT_EQ(layout.count, 5);
        const size_t needed = (size_t)s.stored * scale_size(s.dtype), bytes = layout.items[s.columnwise ? 3 : 1].bytes;
        if (s.ragged) ASSERT_GE(bytes, needed);
        else ASSERT_EQ(bytes, needed);
        ASSERT_EQ(layout.items[s.columnwise ? 0 : 2].bytes + layout.items[s.columnwise ? 1 : 3].bytes, 0);
        guards_release(mark);
    }
}

TEST(scales, bytes_are_monotone) {
    rng r = rng_seed(9106);
    for (int64_t n = scaled(5000); n > 0; n--) {
        void *mark = guards_mark();
        depot s = random_depot(&r, 100, 300);
        tegroup_layout small, large;
        if (s.ragged) s.t.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS, s.t.shape.row_sizes.space = TEGROUP_SPACE_HOST;
        s.t.columnwise_order = (tegroup_columnwise_order)rng_int(&r, 0, 1);
        ASSERT_EQ(tegroup_tensor_layout(&s.t, TEGROUP_COPIES_BOTH, &small, NULL), TEGROUP_OK);
        s.t.shape.rows += s.parts * rng_int(&r, 0, 3);
        s.t.shape.cols += s.packing == PACKED_GROUPS ? 2 * rng_int(&r, 0, 3) : 0;
        s.t.shape.groups += (int32_t)rng_int(&r, 0, 2);
        s.t.scale_inner_stride *= s.packing == WHOLE_BUFFER ? 1000 : 1;
        ASSERT_EQ(tegroup_tensor_layout(&s.t, TEGROUP_COPIES_BOTH, &large, NULL), TEGROUP_OK);
        for (int item = 0; item < 5; item++) ASSERT_GE(large.items[item].bytes, small.items[item].bytes);
        guards_release(mark);
    }
}

/* ---- from one layout to another ---------------------------------------------------------------------------------------- */

/* The scale that must be there; it is then poisoned, so that afterwards whatever else was written shows. */
static void read_visitor(void *context, int32_t g, int64_t part, int64_t outer, int64_t inner, int64_t index) {
    values *v = (values *)context;
    const depot *s = v->s;
    const int padding = outer >= outer_blocks(s, g) || inner >= inner_blocks(s, g);
    const uint32_t want = padding ? 0 : value_of(v, g, part, outer, inner);
    unsigned char *at = scale_address(s, g, index);
    uint32_t got = 0;
    if (s->dtype == TEGROUP_DTYPE_F32) memcpy(&got, at, 4);
    else if (s->dtype == TEGROUP_DTYPE_BF16) memcpy((char *)&got + 2, at, 2);
    else got = *at;
    const int bytes = s->dtype != TEGROUP_DTYPE_F32 && s->dtype != TEGROUP_DTYPE_BF16;
    uint32_t wanted = bytes && !v->codes ? (want == 0x7FFFFFFFu ? 255 : want >> 23) : want;
    if (s->dtype == TEGROUP_DTYPE_BF16) wanted &= 0xFFFF0000u;
    v->wrong += got != wanted;
    const unsigned char *was = (const unsigned char *)guarded_memory(s->listed ? s->list[g] : s->memory);
    memcpy(at, was + (size_t)index * scale_size(s->dtype), scale_size(s->dtype));
}

static void convert_and_look(const depot *from, const depot *to, uint64_t seed) {
    values v = values_for(from, to, seed);
    walk(from, write_visitor, &v);
    remember_depot(from);
    remember_depot(to);
    tegroup_error error = {TEGROUP_OK, 0, "", "", 0, 0, TEGROUP_READING_NUMBER, NULL};
    tegroup_scale_convert_desc d = conversion(from, to);
    d.threads = (int32_t)(seed % 4);
    const tegroup_status status = tegroup_scale_convert(&d, NULL, &error);
    if (from->dtype == TEGROUP_DTYPE_F32 && to->dtype == TEGROUP_DTYPE_BF16) {
        ASSERT_EQ(status, TEGROUP_ERROR_UNSUPPORTED);
        ASSERT_STREQ("to.scale_dtype", error.field);
        ASSERT_EQ(changed_depot(to), 0);
        return;
    }
    if (status != TEGROUP_OK) fprintf(stderr, "%s %s\n", error.field, error.rule);
    ASSERT_EQ(status, TEGROUP_OK);
    v.s = to;
    walk(to, read_visitor, &v);
    ASSERT_EQ(v.wrong, 0);
    ASSERT_EQ(changed_depot(to), 0); /* what is left is as it was: gaps, and rows that nobody owns */
    ASSERT_EQ(changed_depot(from), 0);
    ASSERT_EQ(guards_changed(), 0);
}

TEST(scales, every_layout_to_every_other) {
    rng r = rng_seed(9107);
    for (int64_t n = scaled(20000); n > 0; n--) {
        void *mark = guards_mark();
        depot from = random_depot(&r, rng_chance(&r, 5) ? 300 : 20, rng_chance(&r, 5) ? 1500 : 300), to = described_again(&from, &r);
        ASSERT_TRUE(depot_prepare(&from) && depot_prepare(&to));
        depot_memory(&from);
        depot_memory(&to);
        convert_and_look(&from, &to, rng_next(&r));
        ASSERT_PASSING();
        guards_release(mark);
    }
}

/* Sizes that lie, 100,000 arrays of them in the long suite: what prepare leaves of them is converted, and nothing else is touched. */
TEST(scales, sizes_that_lie_lead_nowhere) {
    rng r = rng_seed(9117);
    int64_t arrays = 0, rows = 0;
    const int64_t wanted = scaled(in_the_long_suite(100000, 5000));
    while (arrays < wanted) {
        void *mark = guards_mark();
        depot from = random_depot(&r, 6, 100), to = from;
        if (!from.ragged || from.groups == 0) { guards_release(mark); continue; }
        do to = described_again(&from, &r);
        while (to.capacity_rows != from.capacity_rows || (from.dtype == TEGROUP_DTYPE_F32 && to.dtype == TEGROUP_DTYPE_BF16));
        to.t.shape.row_sizes.alignment = from.t.shape.row_sizes.alignment;
        ASSERT_TRUE(depot_prepare(&from) && depot_prepare(&to));
        depot_memory(&from);
        depot_memory(&to);
        for (int turn = 0; turn < 50; turn++, arrays++) {
            int64_t sizes[MOST_GROUPS + 1];
            const tegroup_encoding encoding = hostile_sizes(&r, &from, sizes);
            depot_clamp(&from, encoding, sizes);
            depot_clamp(&to, encoding, sizes);
            convert_and_look(&from, &to, rng_next(&r));
            ASSERT_PASSING();
            for (int32_t g = 0; g < from.groups; g++) rows += from.rows[g];
        }
        guards_release(mark);
    }
    ASSERT_GT(rows, arrays);
    printf("%ld arrays, %ld rows\n", (long)arrays, (long)rows);
}

/* A ragged tensor in one of the same number of rows a group, and back: what it has is kept, what it has not is 0. */
TEST(scales, ragged_and_uniform) {
    rng r = rng_seed(9108);
    for (int64_t n = scaled(4000); n > 0; n--) {
        void *mark = guards_mark();
        depot ragged = random_depot(&r, 40, 300), uniform, back;
        int64_t most = 0;
        if (!ragged.ragged || ragged.scaling == TEGROUP_SCALING_TENSOR) { guards_release(mark); continue; }
        for (int32_t g = 0; g < ragged.groups; g++) if (ragged.rows[g] > most) most = ragged.rows[g];
        uniform = ragged;
        uniform.ragged = 0;
        memset(&uniform.t, 0, sizeof uniform.t);
        for (int32_t g = 0; g < uniform.groups; g++) uniform.rows[g] = most;
        back = described_again(&ragged, &r);
        depot_describe(&uniform, &r);
        ragged.dtype = back.dtype = uniform.dtype; /* types have a test of their own */
        ragged.t.scale_dtype = back.t.scale_dtype = uniform.t.scale_dtype;
        if (ragged.packing != PACKED_GROUPS) depot_strides(&ragged, &r);
        if (back.packing != PACKED_GROUPS) depot_strides(&back, &r);
        ASSERT_TRUE(depot_prepare(&ragged) && depot_prepare(&back));
        depot_memory(&ragged);
        const size_t bytes = depot_memory(&uniform);
        depot_memory(&back);
        tegroup_scale_convert_desc there = conversion(&ragged, &uniform);
        values v = {.s = &ragged, .seed = rng_next(&r), .codes = uniform.dtype == TEGROUP_DTYPE_F8E4M3, .exponents = 1};
        if (v.codes) v.exponents = 0;
        walk(&ragged, write_visitor, &v);
        ASSERT_EQ(tegroup_scale_convert(&there, NULL, NULL), TEGROUP_OK);
        remember_depot(&back);
        tegroup_scale_convert_desc again = conversion(&uniform, &back);
        ASSERT_EQ(tegroup_scale_convert(&again, NULL, NULL), TEGROUP_OK);
        v.s = &back;
        walk(&back, read_visitor, &v);
        ASSERT_EQ(v.wrong, 0);
        ASSERT_EQ(changed_depot(&back), 0);
        /* as many bytes of the uniform one are set as the ragged one has, at the most: the rest is 0 or was not written */
        if (uniform.packing == PACKED_GROUPS && !uniform.listed) {
            int64_t own = 0, set = 0;
            for (int32_t g = 0; g < ragged.groups; g++) own += outer_blocks(&ragged, g) * inner_blocks(&ragged, g);
            for (size_t i = 0; i < bytes; i++) set += ((unsigned char *)uniform.memory)[i] != 0;
            ASSERT_LE(set, own * (int64_t)scale_size(uniform.dtype));
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* DeepGEMM's layout of exponents, in its own words: word [k / 4][row] of a buffer whose rows are padded to four, the first of
 * four k in the lowest byte, and no k is exponent 0. */
TEST(scales, packed_exponents_of_a_whole_buffer) {
    enum { ROWS = 37, K = 1000, BLOCKS = 8, PITCH = 40 };
    static float sf[ROWS][BLOCKS], back[ROWS][BLOCKS];
    static uint32_t words[BLOCKS / 4][PITCH];
    const int64_t counts[3] = {20, 0, 17};
    rng r = rng_seed(9109);
    depot s;
    memset(&s, 0, sizeof s);
    memset(words, 0xAB, sizeof words);
    for (int i = 0; i < ROWS; i++) for (int k = 0; k < BLOCKS; k++) sf[i][k] = ldexpf(1, (int)rng_int(&r, -127, 127));
    s.groups = 3;
    s.ragged = 1;
    memcpy(s.sizes, counts, sizeof counts);
    s.t.shape.groups = 3;
    s.t.shape.rows = ROWS;
    s.t.shape.cols = K;
    s.t.scaling = TEGROUP_SCALING_BLOCK_1X128;
    s.t.dtype = TEGROUP_DTYPE_F8E4M3;
    ASSERT_TRUE(depot_prepare(&s));
    tegroup_scale_convert_desc d = conversion(&s, &s);
    d.from.scale_outer_stride = BLOCKS;
    d.from.scale_inner_stride = 1;
    d.from.scale_inv = sf;
    d.to.scale_dtype = TEGROUP_DTYPE_I32;
    d.to.scale_outer_stride = 1;
    d.to.scale_inner_stride = PITCH;
    d.to.scale_inv = words;
    ASSERT_EQ(tegroup_scale_convert(&d, NULL, NULL), TEGROUP_OK);
    for (int k = 0; k < BLOCKS; k++)
        for (int i = 0; i < PITCH; i++) {
            const uint32_t exponent = words[k / 4][i] >> 8 * (k % 4) & 0xFF;
            if (i < ROWS) ASSERT_EQ(ldexp(1, (int)exponent - 127), (double)sf[i][k]);
            else ASSERT_EQ(exponent, 0xAB); /* rows of nobody */
        }
    tegroup_scale_convert_desc other = d;
    other.from = d.to;
    other.to = d.from;
    other.to.scale_inv = back;
    ASSERT_EQ(tegroup_scale_convert(&other, NULL, NULL), TEGROUP_OK);
    ASSERT_EQ(memcmp(sf, back, sizeof sf), 0);
}

/* Every F32 that is a power of two becomes its exponent, and nothing else becomes one. */
TEST(scales, powers_of_two) {
    rng r = rng_seed(9110);
    for (int e = -127; e <= 127; e++) {
        const float x = ldexpf(1, e);
        ASSERT_EQ(tegroup_impl_exponent_of(tegroup_impl_bits_of_f32(x)), e + 127);
        ASSERT_EQ(tegroup_impl_exponent_of(tegroup_impl_bits_of_f32(-x)), -1);
        ASSERT_EQ(tegroup_impl_exponent_of(tegroup_impl_bits_of_f32(x) + 1), -1);
        ASSERT_EQ(tegroup_impl_exponent_of(tegroup_impl_bits_of_f32(x) - 1), -1);
    }
    ASSERT_EQ(tegroup_impl_exponent_of(0), -1);
    ASSERT_EQ(tegroup_impl_exponent_of(0x80000000u), -1);
    ASSERT_EQ(tegroup_impl_exponent_of(0x7F800000u), -1);
    ASSERT_EQ(tegroup_impl_exponent_of(0xFF800000u), -1);
    ASSERT_EQ(tegroup_impl_exponent_of(0x7FC00000u), 255);
    ASSERT_EQ(tegroup_impl_exponent_of(0xFF800001u), 255);
    for (int64_t n = scaled(1000000); n > 0; n--) {
        const uint32_t bits = (uint32_t)rng_next(&r);
        int exponent;
        const double x = (double)tegroup_impl_f32_of_bits(bits);
        const int power = x > 0 && !isinf(x) && frexp(x, &exponent) == 0.5 && exponent - 1 >= -127;
        ASSERT_EQ(tegroup_impl_exponent_of(bits), isnan(x) ? 255 : power ? exponent - 1 + 127 : -1);
    }
    /* what a kernel writes where it cannot refuse */
    unsigned char byte = 7;
    tegroup_impl_store_scale(TEGROUP_DTYPE_F8E8M0, &byte, 0, tegroup_impl_bits_of_f32(3.0f));
    ASSERT_EQ(byte, 255);
}

/* ---- what is refused --------------------------------------------------------------------------------------------------- */

static const int64_t REFUSED_ROWS = 64, REFUSED_COLS = 256;
static float scales_in[4096], scales_out[4096];

static tegroup_scale_convert_desc good(void) {
    tegroup_scale_convert_desc d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.space = TEGROUP_SPACE_HOST;
    d.from = tegroup_tensor_uniform(3, REFUSED_ROWS, REFUSED_COLS, TEGROUP_DTYPE_F8E4M3, NULL);
    d.from.scaling = TEGROUP_SCALING_BLOCK_1X128;
    d.to = d.from;
    d.from.scale_inv = scales_in;
    d.to.scale_inv = scales_out;
    return d;
}

#define REFUSED(change, status, name, wanted, came)                                            \
    do {                                                                                        \
        tegroup_scale_convert_desc d = good();                                                  \
        tegroup_error error;                                                                    \
        memset(&error, 0, sizeof error);                                                        \
        change;                                                                                 \
        poison(scales_out, sizeof scales_out);                                                  \
        memcpy(kept, scales_out, sizeof kept);                                                  \
        ASSERT_EQ(tegroup_scale_convert(&d, NULL, &error), TEGROUP_##status);                   \
        ASSERT_STREQ(name, error.field);                                                        \
        ASSERT_EQ(error.expected, (int64_t)(wanted));                                           \
        ASSERT_EQ(error.got, (int64_t)(came));                                                  \
        ASSERT_EQ(memcmp(kept, scales_out, sizeof kept), 0);                                    \
    } while (0)

TEST(scales, refusals) {
    static float kept[4096];
    tegroup_scale_convert_desc fine = good();
    for (int i = 0; i < 4096; i++) scales_in[i] = 1 + (float)i;
    ASSERT_EQ(tegroup_scale_convert(&fine, NULL, NULL), TEGROUP_OK);
    REFUSED(d.space = TEGROUP_SPACE_UNSET, ERROR_UNSET, "space", TEGROUP_SPACE_HOST, 0);
    REFUSED(d.space = TEGROUP_SPACE_DEVICE, ERROR_NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    REFUSED(d.columnwise = 2, ERROR_VALUE, "columnwise", 1, 2);
    REFUSED(d.threads = -1, ERROR_VALUE, "threads", 0, -1);
    REFUSED(d.from.scaling = TEGROUP_SCALING_NONE; d.from.dtype = TEGROUP_DTYPE_F32, ERROR_UNSET, "from.scaling", TEGROUP_SCALING_TENSOR, 0);
    REFUSED(d.to.scaling = TEGROUP_SCALING_MXFP8, ERROR_SHAPE, "to.scaling", TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_MXFP8);
    REFUSED(d.to.shape.groups = 2, ERROR_SHAPE, "to.shape.groups", 3, 2);
    REFUSED(d.to.shape.cols = 255, ERROR_SHAPE, "to.shape.cols", 256, 255);
    REFUSED(d.to.shape.rows = 65, ERROR_SHAPE, "to.shape.rows", 64, 65);
    REFUSED(d.to.scale_parts = 2, ERROR_SHAPE, "to.scale_parts", 1, 2);
    REFUSED(d.to.scale_dtype = TEGROUP_DTYPE_BF16, ERROR_UNSUPPORTED, "to.scale_dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    REFUSED(d.from.scale_inv = NULL, ERROR_NULL_ARGUMENT, "from.scale_inv", 1, 0);
    REFUSED(d.to.scale_inv = NULL, ERROR_NULL_ARGUMENT, "to.scale_inv", 1, 0);
    REFUSED(d.columnwise = 1, ERROR_NULL_ARGUMENT, "from.columnwise_scale_inv", 1, 0);
    REFUSED(d.to.scale_inv = (char *)scales_out + 2, ERROR_ALIGNMENT, "to.scale_inv", 4, ((uintptr_t)scales_out + 2) % 4);
    REFUSED(d.to.scale_inv = scales_in + 383, ERROR_OVERLAP, "to.scale_inv", 0, 1);
    REFUSED(d.to.scale_dtype = TEGROUP_DTYPE_F8E8M0, ERROR_VALUE, "from.scale_inv", 0, 3 * 64 * 2 - 9); /* 1, 2, 4, ..., 256 */
    REFUSED(d.to.pointers_space = TEGROUP_SPACE_DEVICE, ERROR_COMBINATION, "to.pointers_space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    REFUSED(d.to.pointers_space = TEGROUP_SPACE_HOST, ERROR_NULL_ARGUMENT, "to.scale_pointers", 1, 0);
    void *some[3] = {scales_out, NULL, scales_out + 128};
    REFUSED(d.to.pointers_space = TEGROUP_SPACE_HOST; d.to.scale_pointers = some, ERROR_NULL_ARGUMENT, "to.scale_pointers", 1, 0);
}

/* The fields of a tensor, through whatever takes one. */
TEST(scales, refusals_of_a_tensor) {
    static float kept[4096];
    const uint32_t f32 = 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_BF16 | 1u << TEGROUP_DTYPE_F8E8M0, words = 1u << TEGROUP_DTYPE_I32;
    const int64_t addressable = PTRDIFF_MAX < INT64_MAX ? PTRDIFF_MAX : INT64_MAX - 1;
    REFUSED(d.to.scale_dtype = (tegroup_dtype)99, ERROR_VALUE, "to.scale_dtype", TEGROUP_DTYPE_COUNT - 1, 99);
    REFUSED(d.to.scale_dtype = TEGROUP_DTYPE_F16, ERROR_DTYPE, "to.scale_dtype", f32 | words, TEGROUP_DTYPE_F16);
    REFUSED(d.to.scaling = TEGROUP_SCALING_ROW; d.to.scale_dtype = TEGROUP_DTYPE_I32, ERROR_DTYPE, "to.scale_dtype", f32, TEGROUP_DTYPE_I32);
    REFUSED(d.to.scaling = TEGROUP_SCALING_BLOCK_128X128; d.to.scale_dtype = TEGROUP_DTYPE_I32, ERROR_DTYPE, "to.scale_dtype", f32, TEGROUP_DTYPE_I32);
    REFUSED(d.to.scaling = TEGROUP_SCALING_MXFP8; d.to.scale_dtype = TEGROUP_DTYPE_BF16, ERROR_DTYPE, "to.scale_dtype", 1u << TEGROUP_DTYPE_F8E8M0 | words, TEGROUP_DTYPE_BF16);
    REFUSED(d.to.dtype = TEGROUP_DTYPE_F32; d.to.scaling = TEGROUP_SCALING_NONE; d.to.scale_dtype = TEGROUP_DTYPE_F32, ERROR_COMBINATION, "to.scale_dtype", 0, TEGROUP_DTYPE_F32);
    REFUSED(d.to.scale_outer_stride = -1, ERROR_VALUE, "to.scale_outer_stride", 0, -1);
    REFUSED(d.to.scale_inner_stride = -2, ERROR_VALUE, "to.scale_inner_stride", 0, -2);
    REFUSED(d.to.scale_outer_stride = 2, ERROR_COMBINATION, "to.scale_inner_stride", 1, 0);
    REFUSED(d.to.scale_inner_stride = 2, ERROR_COMBINATION, "to.scale_inner_stride", 0, 2);
    REFUSED(d.to.scaling = TEGROUP_SCALING_TENSOR; d.to.scale_outer_stride = d.to.scale_inner_stride = 1, ERROR_COMBINATION, "to.scale_outer_stride", 0, 1);
    REFUSED(d.to.dtype = TEGROUP_DTYPE_F32; d.to.scaling = TEGROUP_SCALING_NONE; d.to.scale_outer_stride = d.to.scale_inner_stride = 1, ERROR_COMBINATION, "to.scale_outer_stride", 0, 1);
    REFUSED(d.to.scale_outer_stride = 1; d.to.scale_inner_stride = 191, ERROR_LAYOUT, "to.scale_inner_stride", 192, 191);
    REFUSED(d.to.scale_outer_stride = 2; d.to.scale_inner_stride = 2, ERROR_LAYOUT, "to.scale_inner_stride", 383, 2);
    REFUSED(d.to.scale_outer_stride = INT64_MAX / 4; d.to.scale_inner_stride = 1, ERROR_OVERFLOW, "to.scaling", addressable, INT64_MAX);
    REFUSED(d.to.scale_outer_stride = 1; d.to.scale_inner_stride = INT64_MAX / 2, ERROR_OVERFLOW, "to.scaling", addressable, INT64_MAX);
    REFUSED(d.to.scale_dtype = TEGROUP_DTYPE_I32; d.to.scale_outer_stride = INT64_MAX; d.to.scale_inner_stride = 1, ERROR_OVERFLOW, "to.scaling", addressable, INT64_MAX);
    REFUSED(d.to.shape.row_sizes = tegroup_sizes_of(scales_in, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST); d.to.scaling = TEGROUP_SCALING_BLOCK_32X32;
            d.to.scale_outer_stride = 8; d.to.scale_inner_stride = 1, ERROR_COMBINATION, "to.scale_outer_stride", 0, 8);
    REFUSED(d.to.shape.row_sizes = tegroup_sizes_of(scales_in, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST); d.to.shape.elements = 64 * 256;
            d.to.scale_outer_stride = 8; d.to.scale_inner_stride = 1, ERROR_COMBINATION, "to.scale_outer_stride", 0, 8);
    REFUSED(d.to.scale_parts = -1, ERROR_VALUE, "to.scale_parts", 0, -1);
    REFUSED(d.to.scale_parts = 3, ERROR_LAYOUT, "to.scale_parts", 64, 3);
    REFUSED(d.to.shape.row_sizes = tegroup_sizes_of(scales_in, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST); d.to.scale_parts = 2, ERROR_COMBINATION, "to.scale_parts", 0, 2);
    REFUSED(d.to.dtype = TEGROUP_DTYPE_F32; d.to.scaling = TEGROUP_SCALING_NONE; d.to.scale_parts = 2, ERROR_COMBINATION, "to.scale_parts", 0, 2);
    REFUSED(d.to.columnwise_order = (tegroup_columnwise_order)5, ERROR_VALUE, "to.columnwise_order", 4, 5);
    REFUSED(d.to.columnwise_order = (tegroup_columnwise_order)-1, ERROR_VALUE, "to.columnwise_order", 4, -1);
    REFUSED(d.to.dtype = TEGROUP_DTYPE_F32; d.to.scaling = TEGROUP_SCALING_NONE; d.to.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED, ERROR_COMBINATION, "to.columnwise_order", 0, 1);
    REFUSED(d.to.global_scale_inv = scales_in, ERROR_COMBINATION, "to.global_scale_inv", 0, 1);
    REFUSED(d.to.dtype = TEGROUP_DTYPE_F4E2M1; d.to.scaling = TEGROUP_SCALING_MXFP4; d.to.global_scale_inv = scales_in, ERROR_COMBINATION, "to.global_scale_inv", 0, 1);
    REFUSED(d.to.dtype = TEGROUP_DTYPE_F4E2M1; d.to.scaling = TEGROUP_SCALING_MXFP4; d.to.shape.cols = 255, ERROR_LAYOUT, "to.ld", 256, 255);
    REFUSED(d.to.dtype = TEGROUP_DTYPE_F4E2M1; d.to.scaling = TEGROUP_SCALING_NVFP4; d.to.ld = 257, ERROR_LAYOUT, "to.ld", 258, 257);
    REFUSED(d.to.dtype = TEGROUP_DTYPE_F4E2M1; d.to.scaling = TEGROUP_SCALING_NVFP4; d.to.group_stride = 64 * 256 + 1, ERROR_LAYOUT, "to.group_stride", 64 * 256 + 2, 64 * 256 + 1);
    REFUSED(d.to.shape.row_sizes = tegroup_sizes_of(scales_in, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST); d.to.shape.elements = 64; d.to.dtype = TEGROUP_DTYPE_F4E2M1;
            d.to.scaling = TEGROUP_SCALING_NVFP4, ERROR_UNSUPPORTED, "to.shape.col_sizes.encoding", 0, 0);
}

TEST(scales, refusals_of_a_layout) {
    tegroup_tensor t = tegroup_tensor_uniform(2, 64, 64, TEGROUP_DTYPE_BF16, NULL);
    tegroup_layout layout, before;
    tegroup_error error;
    memset(&layout, 0x5A, sizeof layout);
    before = layout;
    ASSERT_EQ(tegroup_tensor_layout(NULL, TEGROUP_COPIES_ROWWISE, &layout, &error), TEGROUP_ERROR_NULL_ARGUMENT);
    ASSERT_STREQ("tensor", error.field);
    ASSERT_EQ(tegroup_tensor_layout(&t, TEGROUP_COPIES_ROWWISE, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT);
    ASSERT_STREQ("layout", error.field);
    ASSERT_EQ(tegroup_tensor_layout(&t, TEGROUP_COPIES_UNSET, &layout, &error), TEGROUP_ERROR_UNSET);
    ASSERT_STREQ("copies", error.field);
    ASSERT_EQ(tegroup_tensor_layout(&t, (tegroup_copies)4, &layout, &error), TEGROUP_ERROR_VALUE);
    ASSERT_EQ(error.got, 4);
    ASSERT_EQ(tegroup_tensor_layout(&t, TEGROUP_COPIES_BOTH, &layout, &error), TEGROUP_ERROR_COMBINATION);
    ASSERT_STREQ("copies", error.field);
    t.scaling = TEGROUP_SCALING_MXFP8;
    ASSERT_EQ(tegroup_tensor_layout(&t, TEGROUP_COPIES_BOTH, &layout, &error), TEGROUP_ERROR_DTYPE);
    ASSERT_STREQ("tensor.dtype", error.field);
    t.dtype = TEGROUP_DTYPE_F8E4M3;
    t.scale_outer_stride = INT64_MAX / 127 - 1; /* 128 rows: the scales alone would fit */
    t.scale_inner_stride = 1;
    ASSERT_EQ(tegroup_tensor_layout(&t, TEGROUP_COPIES_ROWWISE, &layout, &error), TEGROUP_ERROR_OVERFLOW);
    ASSERT_STREQ("tensor.shape.rows", error.field);
    ASSERT_EQ(memcmp(&layout, &before, sizeof layout), 0);
    ASSERT_EQ(tegroup_tensor_layout(&t, TEGROUP_COPIES_COLUMNWISE, &layout, &error), TEGROUP_OK);
}

/* ---- snapshots that somebody wrote over -------------------------------------------------------------------------------- */

static int64_t anything(rng *r) {
    static const int64_t odd[] = {INT64_MIN, INT64_MAX, -1, -2, INT64_MAX - 127, INT64_C(1) << 40, INT32_MAX};
    return rng_chance(r, 50) ? odd[rng_int(r, 0, 6)] : rng_chance(r, 50) ? rng_int(r, 0, 60) : (int64_t)rng_next(r);
}

/* As a kernel goes through it, which can ask nobody: no index leaves the buffer. */
TEST(scales, no_snapshot_leads_outside) {
    rng r = rng_seed(9111);
    int64_t stored = 0;
    for (int64_t n = scaled(20000); n > 0; n--) {
        void *mark = guards_mark();
        depot s = random_depot(&r, 20, 150);
        if (!s.ragged) { guards_release(mark); continue; }
        ASSERT_TRUE(depot_prepare(&s));
        tegroup_snapshot_view view = tegroup_snapshot_read(s.t.shape.snapshot);
        for (int32_t g = 0; g < s.groups; g++) {
            if (rng_chance(&r, 50)) ((int64_t *)view.rows)[g] = rng_chance(&r, 40) ? s.capacity_rows : anything(&r);
            if (rng_chance(&r, 30)) ((int64_t *)view.start)[g] = anything(&r);
        }
        const tegroup_impl_scales scales = tegroup_impl_scales_of(&s.t, s.columnwise);
        for (int32_t g = 0; g < s.groups; g++) {
            int64_t before = 0;
            for (int32_t h = 0; h < g; h++)
                before = tegroup_impl_add(before, tegroup_impl_scale_grid_alone(&s.t, &scales.facts, tegroup_impl_group_sides(&s.t, &view, h), s.columnwise).count);
            const tegroup_impl_scale_grid grid = tegroup_impl_scales_grid(&scales, &view, g, before);
            for (int64_t e = 0; e < grid.count; e++) {
                const tegroup_impl_scale_place place = tegroup_impl_scale_place_of(&grid, e);
                const int64_t at = tegroup_impl_scale_of_block(&grid, place.part, place.outer, place.inner);
                ASSERT_TRUE(at >= 0 && at < scales.capacity);
                stored++;
            }
        }
        guards_release(mark);
    }
    printf("scales of spoilt snapshots: %ld\n", (long)stored);
}

TEST(scales, spoilt_snapshots_are_refused) {
    rng r = rng_seed(9112);
    for (int64_t n = scaled(3000); n > 0; n--) {
        void *mark = guards_mark();
        depot from = random_depot(&r, 20, 100);
        if (!from.ragged || from.groups == 0) { guards_release(mark); continue; }
        depot to = from;
        ASSERT_TRUE(depot_prepare(&from) && depot_prepare(&to));
        depot_memory(&from);
        depot_memory(&to);
        values v = {.s = &from, .seed = 5, .exponents = from.dtype != TEGROUP_DTYPE_F8E4M3, .codes = from.dtype == TEGROUP_DTYPE_F8E4M3};
        walk(&from, write_visitor, &v);
        remember_depot(&to);
        const int which = (int)rng_int(&r, 0, 1);
        const depot *spoilt = which ? &to : &from;
        const tegroup_snapshot_view view = tegroup_snapshot_read(spoilt->t.shape.snapshot);
        const int32_t g = (int32_t)rng_int(&r, 0, from.groups - 1);
        tegroup_error error;
        const int64_t rows = view.rows[g];
        switch (rng_int(&r, 0, 3)) {
        case 0: ((int64_t *)view.rows)[g] = spoilt->capacity_rows + 1; break;
        case 1: ((int64_t *)view.start)[g] = -1; break;
        case 2: ((tegroup_snapshot_header *)view.header)->magic++; break;
        default: ((int64_t *)view.rows)[g] = (rows > 0 ? rows : 0) + 1; break; /* too many in all, or others than the other tensor's */
        }
        tegroup_scale_convert_desc d = conversion(&from, &to);
        const tegroup_status status = tegroup_scale_convert(&d, NULL, &error);
        ASSERT_TRUE(status == TEGROUP_ERROR_CAPACITY || status == TEGROUP_ERROR_SHAPE);
        ASSERT_TRUE(strstr(error.field, ".shape.snapshot") != NULL);
        ASSERT_EQ(changed_depot(&to), 0);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* Kernels find a block by a shift. */
TEST(scales, blocks_are_powers_of_two) {
    for (int scaling = 0; scaling < TEGROUP_SCALING_COUNT; scaling++) {
        const tegroup_scaling_facts *f = tegroup_scaling_info((tegroup_scaling)scaling);
        ASSERT_EQ(f->block_outer & (f->block_outer - 1), 0);
        ASSERT_EQ(f->block_inner & (f->block_inner - 1), 0);
    }
}

TEST_MAIN()
