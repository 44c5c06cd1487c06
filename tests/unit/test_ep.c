/* Expert parallelism on the CPU: the tests of ep.h, quantised tokens, and refusals. */
#define TEGROUP_EXTERN
#include "tegroup.h"
#define EP_SPACE TEGROUP_SPACE_HOST
#define EP_AT(memory) ((void *)(memory))
#define EP_UP(mark) (void)(mark)
#define EP_DOWN() (void)0
#include "ep.h"

TEST(ep, digests_tell_any_two_worlds_apart) {
    rng r = rng_seed(3);
    for (int64_t round = 0; round < scaled(100); round++) {
        world w = world_make(&r);
        tegroup_error error;
        sized x = sized_make(&w, 0);
        uint64_t seen;
        ASSERT_EQ(TEGROUP_OK, tegroup_ep_sizes(&x.desc, NULL, &error));
        seen = x.desc.report->digest;
        x.desc.capacity++;
        ASSERT_EQ(TEGROUP_OK, tegroup_ep_sizes(&x.desc, NULL, &error));
        ASSERT_TRUE(seen != x.desc.report->digest);
        x.desc.capacity--;
        const int64_t i = rng_int(&r, 0, w.ranks * w.experts - 1), j = rng_int(&r, 0, w.ranks * w.experts - 1);
        const int64_t a = whole(&w.counts, i), b = whole(&w.counts, j);
        set_whole(&w.counts, i, b);
        set_whole(&w.counts, j, a);
        ASSERT_EQ(TEGROUP_OK, tegroup_ep_sizes(&x.desc, NULL, &error));
        ASSERT_EQ(a == b, seen == x.desc.report->digest);
        guards_release(w.mark);
    }
}

/* slot_of_row is not needed for the other map, with weights or without. */
TEST(ep, a_map_without_its_inverse_is_the_same) {
    rng r = rng_seed(9);
    for (int64_t round = 0; round < scaled(100); round++) {
        world w = world_make(&r);
        tegroup_permutation_desc p;
        tegroup_error error;
        memset(&p, 0, sizeof p);
        p.struct_size = sizeof p;
        p.space = TEGROUP_SPACE_HOST;
        tegroup_sizes sizes = tegroup_sizes_of(w.counts.data, w.integers, TEGROUP_SPACE_HOST); /* rank 0's */
        p.shape = tegroup_shape_of(w.experts, rng_int(&r, 0, 1) ? MOST_TOKENS * MOST_K : 7, 1, sizes);
        tegroup_prepare_desc prepare;
        memset(&prepare, 0, sizeof prepare);
        prepare.struct_size = sizeof prepare;
        prepare.shape = p.shape;
        prepare.space = TEGROUP_SPACE_HOST;
        prepare.clamp = 1;
        prepare.snapshot = scratch(SNAPSHOT_BYTES);
        prepare.snapshot_bytes = SNAPSHOT_BYTES;
        ASSERT_EQ(TEGROUP_OK, tegroup_prepare(&prepare, NULL, &error));
        p.shape.snapshot = prepare.snapshot;
        p.indices = w.indices[0];
        if (rng_chance(&r, 50)) {
            p.weights = fresh(TEGROUP_DTYPE_F32, w.tokens[0], w.k);
            for (int64_t i = 0; i < w.tokens[0] * w.k; i++) store(TEGROUP_DTYPE_F32, p.weights.data, i, rng_normal(&r));
        }
        p.row_of_slot = w.maps[0];
        p.slot_of_row = fresh(w.integers, 1, p.shape.rows);
        ASSERT_EQ(TEGROUP_OK, tegroup_permutation_make(&p, NULL, &error));
        memset(&p.slot_of_row, 0, sizeof p.slot_of_row);
        p.row_of_slot = fresh(w.integers, w.tokens[0], w.k);
        ASSERT_EQ(TEGROUP_OK, tegroup_permutation_make(&p, NULL, &error));
        ASSERT_EQ(0, memcmp(w.maps[0].data, p.row_of_slot.data, (size_t)(w.tokens[0] * w.k) * size_of(w.integers)));
        ASSERT_EQ(0, guards_changed());
        guards_release(w.mark);
    }
}

/* Quantised tokens that are dispatched are the dispatched tokens, quantised: FP8 with a scale for each 128 of a row. */
TEST(ep, quantising_before_the_dispatch_is_quantising_after_it) {
    enum { TOKENS = 9, WIDTH = 256, BLOCKS = 2, ROWS = 24 };
    rng r = rng_seed(6);
    void *mark = guards_mark();
    tegroup_quantize_desc q;
    tegroup_ep_dispatch_desc d;
    tegroup_error error;
    void *addresses[1] = {guarded(ROWS * WIDTH * 3 + ROWS * BLOCKS * 4 + 512)};
    char *own = (char *)addresses[0];
    tegroup_matrix tokens = fresh(TEGROUP_DTYPE_BF16, TOKENS, WIDTH), map = fresh(TEGROUP_DTYPE_I32, TOKENS, 2);
    tegroup_matrix codes = fresh(TEGROUP_DTYPE_F8E4M3, ROWS, WIDTH), scales = fresh(TEGROUP_DTYPE_F32, ROWS, BLOCKS);
    for (int64_t i = 0; i < TOKENS * WIDTH; i++) store(TEGROUP_DTYPE_BF16, tokens.data, i, rng_normal(&r) * exp(rng_normal(&r)));
    for (int32_t i = 0; i < TOKENS * 2; i++) ((int32_t *)map.data)[i] = (i * 5 + 1) % 23;
    memset(&q, 0, sizeof q);
    q.struct_size = sizeof q;
    q.space = TEGROUP_SPACE_HOST;
    q.rule = tegroup_scale_rule_of(TEGROUP_SCALE_DEEPGEMM);
    q.input = tegroup_tensor_uniform(1, TOKENS, WIDTH, TEGROUP_DTYPE_BF16, tokens.data);
    q.output = tegroup_tensor_uniform(1, TOKENS, WIDTH, TEGROUP_DTYPE_F8E4M3, guarded(TOKENS * WIDTH));
    q.output.scaling = TEGROUP_SCALING_BLOCK_1X128;
    q.output.scale_inv = (float *)guarded(TOKENS * BLOCKS * 4);
    q.output.scale_outer_stride = BLOCKS;
    q.output.scale_inner_stride = 1;
    ASSERT_EQ(TEGROUP_OK, tegroup_quantize(&q, NULL, &error));
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.space = TEGROUP_SPACE_HOST;
    d.windows.ranks = 1;
    d.windows.addresses = addresses;
    d.windows.bytes = ROWS * WIDTH * 3 + ROWS * BLOCKS * 4 + 512;
    d.row_of_slot = map;
    d.tokens = tegroup_matrix_of(q.output.data, TOKENS, WIDTH, TEGROUP_DTYPE_F8E4M3);
    d.scales = tegroup_matrix_of(q.output.scale_inv, TOKENS, BLOCKS, TEGROUP_DTYPE_F32);
    d.rows = tegroup_matrix_of(own, ROWS, WIDTH, TEGROUP_DTYPE_F8E4M3);
    d.row_scales = tegroup_matrix_of(own + ROWS * WIDTH, ROWS, BLOCKS, TEGROUP_DTYPE_F32);
    ASSERT_EQ(TEGROUP_OK, tegroup_ep_dispatch(&d, NULL, &error));
    memset(own + ROWS * WIDTH + ROWS * BLOCKS * 4, 0, ROWS * WIDTH * 2); /* rows that no slot has */
    d.tokens = tokens;
    d.scales.dtype = d.row_scales.dtype = TEGROUP_DTYPE_UNSET;
    d.scales.data = d.row_scales.data = NULL;
    d.rows = tegroup_matrix_of(own + ROWS * WIDTH + ROWS * BLOCKS * 4, ROWS, WIDTH, TEGROUP_DTYPE_BF16);
    ASSERT_EQ(TEGROUP_OK, tegroup_ep_dispatch(&d, NULL, &error));
    q.input = tegroup_tensor_uniform(1, ROWS, WIDTH, TEGROUP_DTYPE_BF16, d.rows.data);
    q.output.shape.rows = ROWS;
    q.output.data = codes.data;
    q.output.scale_inv = scales.data;
    ASSERT_EQ(TEGROUP_OK, tegroup_quantize(&q, NULL, &error));
    for (int32_t i = 0; i < TOKENS * 2; i++) {
        const int32_t row = ((int32_t *)map.data)[i];
        ASSERT_EQ(0, memcmp((char *)codes.data + row * WIDTH, own + row * WIDTH, WIDTH));
        ASSERT_EQ(0, memcmp((char *)scales.data + row * BLOCKS * 4, own + ROWS * WIDTH + row * BLOCKS * 4, BLOCKS * 4));
    }
    ASSERT_EQ(0, guards_changed());
    guards_release(mark);
}

/* ---- refusals ---- */

static struct good {
    int64_t counts[2][4], send_rows[4], send_starts[4], receive_rows[2];
    int32_t map[3][2];
    float tokens[3][8], scales[3][2], weights[3][2], combined[3][8], values[3][2];
    tegroup_ep_report report;
    void *addresses[2];
    tegroup_ep_sizes_desc sizes;
    int32_t links[6];
    tegroup_ep_dispatch_desc dispatch;
    tegroup_ep_links_desc expand, reduce;
    tegroup_ep_combine_desc combine;
} g, before;
enum { WINDOW = 1024 };
static union { char bytes[2][WINDOW]; uint64_t aligned; } memory_of_windows[2], windows_before;

static tegroup_shape good_shape; /* 2 experts of 2 and 3 rows, in a window of 6 */
static union { char bytes[8192]; uint64_t aligned; } memory_of_snapshot;
static void good_prepare(void) {
    static const int64_t rows[2] = {2, 3};
    tegroup_error error;
    good_shape = tegroup_shape_of(2, 6, 8, tegroup_sizes_of(rows, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    ASSERT_EQ(TEGROUP_OK, tegroup_shape_prepare(&good_shape, (void *)(((uintptr_t)&memory_of_snapshot + 255) / 256 * 256), 4096, NULL, &error));
}
static void good_make(void) {
    char *first = (char *)(((uintptr_t)&memory_of_windows + 255) / 256 * 256);
    memset(&g, 0, sizeof g);
    g.addresses[0] = first;
    g.addresses[1] = first + WINDOW;
    g.sizes.struct_size = sizeof g.sizes;
    g.sizes.space = g.dispatch.space = g.combine.space = TEGROUP_SPACE_HOST;
    g.sizes.ranks = 2;
    g.sizes.rank = 1;
    g.sizes.capacity = 6;
    g.sizes.counts = tegroup_matrix_of(g.counts, 2, 4, TEGROUP_DTYPE_I64);
    g.sizes.send_rows = tegroup_matrix_of(g.send_rows, 1, 4, TEGROUP_DTYPE_I64);
    g.sizes.send_starts = tegroup_matrix_of(g.send_starts, 1, 4, TEGROUP_DTYPE_I64);
    g.sizes.receive_rows = tegroup_matrix_of(g.receive_rows, 1, 2, TEGROUP_DTYPE_I64);
    g.sizes.report = &g.report;
    g.dispatch.struct_size = sizeof g.dispatch;
    g.dispatch.windows.ranks = 2;
    g.dispatch.windows.rank = 1;
    g.dispatch.windows.addresses = g.addresses;
    g.dispatch.windows.bytes = WINDOW;
    g.dispatch.row_of_slot = tegroup_matrix_of(g.map, 3, 2, TEGROUP_DTYPE_I32);
    g.dispatch.tokens = tegroup_matrix_of(g.tokens, 3, 8, TEGROUP_DTYPE_F32);
    g.dispatch.scales = tegroup_matrix_of(g.scales, 3, 2, TEGROUP_DTYPE_F32);
    g.dispatch.weights = tegroup_matrix_of(g.weights, 3, 2, TEGROUP_DTYPE_F32);
    g.dispatch.rows = tegroup_matrix_of(first + WINDOW, 6, 8, TEGROUP_DTYPE_F32);
    g.dispatch.row_scales = tegroup_matrix_of(first + WINDOW + 256, 6, 2, TEGROUP_DTYPE_F32);
    g.dispatch.row_weights = tegroup_matrix_of(first + WINDOW + 512, 6, 1, TEGROUP_DTYPE_F32);
    g.dispatch.row_links = tegroup_matrix_of(first + WINDOW + 768, 6, 1, TEGROUP_DTYPE_I32);
    g.expand.struct_size = sizeof g.expand;
    g.expand.space = TEGROUP_SPACE_HOST;
    g.expand.shape = good_shape;
    g.expand.row_links = tegroup_matrix_of(g.links, 6, 1, TEGROUP_DTYPE_I32);
    g.expand.rows = g.dispatch.rows;
    g.reduce = g.expand;
    g.expand.row_scales = g.dispatch.row_scales;
    g.combine.struct_size = sizeof g.combine;
    g.combine.windows = g.dispatch.windows;
    g.combine.row_of_slot = g.dispatch.row_of_slot;
    g.combine.rows = g.dispatch.rows;
    g.combine.weights = g.dispatch.weights;
    g.combine.tokens = tegroup_matrix_of(g.combined, 3, 8, TEGROUP_DTYPE_F32);
    g.combine.row_values = g.dispatch.row_weights;
    g.combine.values = tegroup_matrix_of(g.values, 3, 2, TEGROUP_DTYPE_F32);
}
/* The good calls work; spoilt by one statement each is refused by this status and field, and nothing is written. */
#define REFUSED(call, spoil, wanted, name, expect, come)                                                                          \
    do {                                                                                                                          \
        tegroup_error error;                                                                                                      \
        good_make();                                                                                                              \
        ASSERT_EQ(TEGROUP_OK, tegroup_ep_##call(&g.call, NULL, &error));                                                          \
        good_make();                                                                                                              \
        spoil;                                                                                                                    \
        memcpy(&before, &g, sizeof g);                                                                                            \
        memcpy(&windows_before, &memory_of_windows[0], sizeof windows_before);                                                    \
        ASSERT_EQ(TEGROUP_ERROR_##wanted, tegroup_ep_##call(&g.call, NULL, &error));                                              \
        ASSERT_STREQ(name, error.field);                                                                                          \
        ASSERT_EQ(expect, error.expected);                                                                                        \
        ASSERT_EQ(come, error.got);                                                                                               \
        ASSERT_EQ(TEGROUP_ERROR_##wanted, tegroup_ep_##call(&g.call, NULL, NULL));                                                \
        ASSERT_EQ(0, memcmp(&before, &g, sizeof g));                                                                              \
        ASSERT_EQ(0, memcmp(&windows_before, &memory_of_windows[0], sizeof windows_before));                                      \
    } while (0)
#define INTEGERS (1 << TEGROUP_DTYPE_I32 | 1 << TEGROUP_DTYPE_I64)

TEST(ep, sizes_refuse) {
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_ep_sizes(NULL, NULL, NULL));
    REFUSED(sizes, g.sizes.struct_size += 8, STRUCT_SIZE, "struct_size", sizeof g.sizes, sizeof g.sizes + 8);
    REFUSED(sizes, g.sizes.space = TEGROUP_SPACE_UNSET, UNSET, "space", TEGROUP_SPACE_HOST, 0);
    REFUSED(sizes, g.sizes.space = TEGROUP_SPACE_DEVICE, NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    REFUSED(sizes, g.sizes.ranks = 0, VALUE, "ranks", TEGROUP_EP_MAX_RANKS, 0);
    REFUSED(sizes, g.sizes.ranks = 257, VALUE, "ranks", TEGROUP_EP_MAX_RANKS, 257);
    REFUSED(sizes, g.sizes.rank = 2, VALUE, "rank", 1, 2);
    REFUSED(sizes, g.sizes.rank = -1, VALUE, "rank", 1, -1);
    REFUSED(sizes, g.sizes.capacity = -1, VALUE, "capacity", TEGROUP_MAX_COLS / 2, -1);
    REFUSED(sizes, g.sizes.capacity = TEGROUP_MAX_COLS / 2 + 1, VALUE, "capacity", TEGROUP_MAX_COLS / 2, TEGROUP_MAX_COLS / 2 + 1);
    REFUSED(sizes, g.sizes.alignment = -1, VALUE, "alignment", TEGROUP_MAX_COLS, -1);
    REFUSED(sizes, g.sizes.alignment = TEGROUP_MAX_COLS + 1, VALUE, "alignment", TEGROUP_MAX_COLS, TEGROUP_MAX_COLS + 1);
    REFUSED(sizes, g.sizes.counts.rows = 3, SHAPE, "counts.rows", 2, 3);
    REFUSED(sizes, g.sizes.counts.cols = g.sizes.counts.ld = 3, SHAPE, "counts.cols", 2, 3);
    REFUSED(sizes, g.sizes.counts.cols = 4098, VALUE, "counts.cols", TEGROUP_MAX_GROUPS, 4098);
    REFUSED(sizes, g.sizes.counts.dtype = TEGROUP_DTYPE_F32, DTYPE, "counts.dtype", INTEGERS, TEGROUP_DTYPE_F32);
    REFUSED(sizes, g.sizes.counts.data = NULL, NULL_ARGUMENT, "counts.data", 1, 0);
    REFUSED(sizes, g.sizes.send_rows.cols = 3, SHAPE, "send_rows.cols", 4, 3);
    REFUSED(sizes, g.sizes.send_rows.dtype = TEGROUP_DTYPE_I32; g.sizes.capacity = 1 << 30, DTYPE, "send_rows.dtype", 1 << TEGROUP_DTYPE_I64, TEGROUP_DTYPE_I32);
    REFUSED(sizes, g.sizes.send_starts.dtype = TEGROUP_DTYPE_I32, DTYPE, "send_starts.dtype", 1 << TEGROUP_DTYPE_I64, TEGROUP_DTYPE_I32);
    REFUSED(sizes, g.sizes.receive_rows.cols = 1, SHAPE, "receive_rows.cols", 2, 1);
    REFUSED(sizes, g.sizes.receive_rows.dtype = TEGROUP_DTYPE_UNSET, UNSET, "receive_rows.dtype", INTEGERS, 0);
    REFUSED(sizes, g.sizes.report = (tegroup_ep_report *)(void *)((char *)&g.report + 4), ALIGNMENT, "report", 8, 4);
    REFUSED(sizes, g.sizes.send_rows.data = g.counts[1], OVERLAP, "send_rows.data", 0, 1);
    REFUSED(sizes, g.sizes.send_starts.data = g.receive_rows, OVERLAP, "send_starts.data", 0, 1);
    REFUSED(sizes, g.sizes.report = (tegroup_ep_report *)(void *)g.counts, OVERLAP, "report", 0, 1);
}

TEST(ep, windows_are_checked) {
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_ep_dispatch(NULL, NULL, NULL));
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_ep_combine(NULL, NULL, NULL));
#define BOTH(spoil, wanted, name, expect, come)                                \
    REFUSED(dispatch, spoil(g.dispatch), wanted, name, expect, come);          \
    REFUSED(combine, spoil(g.combine), wanted, name, expect, come)
#define SPOIL(x) x.struct_size = 8
    BOTH(SPOIL, STRUCT_SIZE, "struct_size", error.expected, 8);
#undef SPOIL
#define SPOIL(x) x.space = TEGROUP_SPACE_UNSET
    BOTH(SPOIL, UNSET, "space", TEGROUP_SPACE_HOST, 0);
#undef SPOIL
#define SPOIL(x) x.space = TEGROUP_SPACE_DEVICE
    BOTH(SPOIL, NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
#undef SPOIL
#define SPOIL(x) x.threads = -1
    BOTH(SPOIL, VALUE, "threads", 0, -1);
#undef SPOIL
#define SPOIL(x) x.windows.ranks = 0
    BOTH(SPOIL, VALUE, "windows.ranks", TEGROUP_EP_MAX_RANKS, 0);
#undef SPOIL
#define SPOIL(x) x.windows.rank = 2
    BOTH(SPOIL, VALUE, "windows.rank", 1, 2);
#undef SPOIL
#define SPOIL(x) x.windows.addresses = NULL
    BOTH(SPOIL, NULL_ARGUMENT, "windows.addresses", 1, 0);
#undef SPOIL
#define SPOIL(x) x.windows.addresses = (void *const *)(const void *)((const char *)x.windows.addresses + 1)
    BOTH(SPOIL, ALIGNMENT, "windows.addresses", sizeof(void *), ((uintptr_t)g.addresses + 1) % sizeof(void *));
#undef SPOIL
#define SPOIL(x) x.windows.addresses = (void *const *)memcpy(g.addresses[0], g.addresses, sizeof(void *) * 2)
    BOTH(SPOIL, OVERLAP, "windows.addresses", 0, 1);
#undef SPOIL
#define SPOIL(x) g.addresses[0] = NULL
    BOTH(SPOIL, NULL_ARGUMENT, "windows.addresses", -1, 0);
#undef SPOIL
#define SPOIL(x) g.addresses[0] = (char *)g.addresses[0] + 128
    BOTH(SPOIL, ALIGNMENT, "windows.addresses", TEGROUP_ALIGNMENT, 0);
#undef SPOIL
#define SPOIL(x) g.addresses[0] = (char *)g.addresses[1] + 256
    BOTH(SPOIL, OVERLAP, "windows.addresses", WINDOW, 256);
#undef SPOIL
#define SPOIL(x) x.windows.bytes = WINDOW + 1
    BOTH(SPOIL, OVERLAP, "windows.addresses", WINDOW + 1, WINDOW);
#undef SPOIL
/* Nothing else may lie in another rank's window, not even where this call would not write. */
#define SPOIL(x) x.row_of_slot.data = (char *)g.addresses[0] + WINDOW - 24
    BOTH(SPOIL, OVERLAP, "windows.addresses", 0, 1);
#undef SPOIL
#define SPOIL(x) x.tokens.data = g.addresses[0]
    BOTH(SPOIL, OVERLAP, "windows.addresses", 0, 1);
#undef SPOIL
#define SPOIL(x) x.weights.data = (char *)g.addresses[0] + 512
    BOTH(SPOIL, OVERLAP, "windows.addresses", 0, 1);
#undef SPOIL
#define SPOIL(x) x.windows.bytes = SIZE_MAX
    BOTH(SPOIL, OVERFLOW, "windows.bytes", INT64_MAX - 1, INT64_MAX);
#undef SPOIL
#define SPOIL(x) x.windows.bytes = 191
    BOTH(SPOIL, VALUE, "rows.data", 191, 192);
#undef SPOIL
#define SPOIL(x) x.rows.data = (char *)g.addresses[1] - 4
    BOTH(SPOIL, VALUE, "rows.data", 0, -1);
#undef SPOIL
#define SPOIL(x) x.rows.data = (char *)g.addresses[1] + WINDOW - 188
    BOTH(SPOIL, VALUE, "rows.data", WINDOW, WINDOW + 4);
#undef SPOIL
#define SPOIL(x) x.rows.rows = TEGROUP_MAX_COLS / 2 + 1
    BOTH(SPOIL, VALUE, "rows.rows", TEGROUP_MAX_COLS / 2, TEGROUP_MAX_COLS / 2 + 1);
#undef SPOIL
#define SPOIL(x) x.row_of_slot.cols = 0
    REFUSED(dispatch, SPOIL(g.dispatch); g.dispatch.weights.cols = 0, VALUE, "row_of_slot.cols", 64, 0);
    REFUSED(combine, SPOIL(g.combine); g.combine.weights.cols = g.combine.values.cols = 0, VALUE, "row_of_slot.cols", 64, 0);
#undef SPOIL
#define SPOIL(x) x.row_of_slot.dtype = TEGROUP_DTYPE_F32
    BOTH(SPOIL, DTYPE, "row_of_slot.dtype", INTEGERS, TEGROUP_DTYPE_F32);
#undef SPOIL
#undef BOTH
}

TEST(ep, dispatch_and_combine_refuse) {
    tegroup_matrix none;
    memset(&none, 0, sizeof none);
    REFUSED(dispatch, g.dispatch.tokens.rows = 2, SHAPE, "tokens.rows", 3, 2);
    REFUSED(dispatch, g.dispatch.rows.cols = 7, SHAPE, "rows.cols", 8, 7);
    REFUSED(dispatch, g.dispatch.rows.dtype = TEGROUP_DTYPE_BF16, DTYPE, "rows.dtype", 1 << TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    REFUSED(dispatch, g.dispatch.tokens.dtype = TEGROUP_DTYPE_F4E2M1, DTYPE, "tokens.dtype", error.expected, TEGROUP_DTYPE_F4E2M1);
    REFUSED(dispatch, g.dispatch.tokens = none, COMBINATION, "rows.dtype", TEGROUP_DTYPE_UNSET, TEGROUP_DTYPE_F32);
    REFUSED(dispatch, g.dispatch.tokens = g.dispatch.scales = g.dispatch.weights = none, UNSET, "tokens.dtype", error.expected, 0);
    REFUSED(dispatch, g.dispatch.row_scales.rows = 5, SHAPE, "row_scales.rows", 6, 5);
    REFUSED(dispatch, g.dispatch.row_scales = none, UNSET, "row_scales.dtype", 1 << TEGROUP_DTYPE_F32, 0);
    REFUSED(dispatch, g.dispatch.weights.cols = 1, SHAPE, "weights.cols", 2, 1);
    REFUSED(dispatch, g.dispatch.weights.dtype = TEGROUP_DTYPE_BF16, DTYPE, "weights.dtype", 1 << TEGROUP_DTYPE_F32 | 1 << TEGROUP_DTYPE_F64, TEGROUP_DTYPE_BF16);
    REFUSED(dispatch, g.dispatch.row_weights.cols = 2, SHAPE, "row_weights.cols", 1, 2);
    REFUSED(dispatch, g.dispatch.row_scales.data = (char *)g.dispatch.rows.data + 188, OVERLAP, "rows.data", 0, 1);
    REFUSED(dispatch, g.dispatch.tokens.data = g.dispatch.row_scales.data, OVERLAP, "row_scales.data", 0, 1);
    REFUSED(dispatch, g.dispatch.scales.data = g.addresses[0], OVERLAP, "windows.addresses", 0, 1);
    REFUSED(dispatch, g.dispatch.tokens = g.dispatch.rows = none, COMBINATION, "row_links.dtype", TEGROUP_DTYPE_UNSET, TEGROUP_DTYPE_I32);
    REFUSED(dispatch, g.dispatch.row_links.dtype = TEGROUP_DTYPE_I64, DTYPE, "row_links.dtype", 1 << TEGROUP_DTYPE_I32, TEGROUP_DTYPE_I64);
    REFUSED(dispatch, g.dispatch.row_links.dtype = TEGROUP_DTYPE_UNSET, UNSET, "row_links.dtype", error.expected, 0);
    REFUSED(dispatch, g.dispatch.row_links.rows = 5, SHAPE, "row_links.rows", 6, 5);
    REFUSED(dispatch, g.dispatch.row_links.data = g.links, VALUE, "row_links.data", error.expected, error.got);
    REFUSED(dispatch, g.dispatch.row_links.data = g.dispatch.rows.data, OVERLAP, "rows.data", 0, 1);
    REFUSED(combine, g.combine.by_owner = 2, VALUE, "by_owner", 1, 2);
    REFUSED(combine, g.combine.by_owner = 1, COMBINATION, "weights.dtype", TEGROUP_DTYPE_UNSET, TEGROUP_DTYPE_F32);
    REFUSED(combine, g.combine.tokens = g.combine.rows = g.combine.weights = none; g.combine.by_owner = 1, COMBINATION, "by_owner", 0, 1);
    REFUSED(combine, g.combine.accumulate = 2, VALUE, "accumulate", 1, 2);
    REFUSED(combine, g.combine.tokens = g.combine.rows = g.combine.weights = none; g.combine.accumulate = 1, COMBINATION, "accumulate", 0, 1);
    REFUSED(combine, g.combine.tokens.rows = 2, SHAPE, "tokens.rows", 3, 2);
    REFUSED(combine, g.combine.rows.cols = 7, SHAPE, "rows.cols", 8, 7);
    REFUSED(combine, g.combine.rows.dtype = TEGROUP_DTYPE_F8E4M3, DTYPE, "rows.dtype", error.expected, TEGROUP_DTYPE_F8E4M3);
    REFUSED(combine, g.combine.tokens = g.combine.rows = none, COMBINATION, "weights.dtype", TEGROUP_DTYPE_UNSET, TEGROUP_DTYPE_F32);
    REFUSED(combine, g.combine.tokens = g.combine.values = none, UNSET, "tokens.dtype", error.expected, 0);
    REFUSED(combine, g.combine.values.dtype = TEGROUP_DTYPE_F64; g.combine.values.rows = 0; g.combine.row_of_slot.rows = 0; g.combine.tokens.rows = 0; g.combine.weights.rows = 0,
        DTYPE, "row_values.dtype", 1 << TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F32);
    REFUSED(combine, g.combine.row_values = none, UNSET, "row_values.dtype", 1 << TEGROUP_DTYPE_F32, 0);
    REFUSED(combine, g.combine.row_values.rows = 5, SHAPE, "row_values.rows", 6, 5);
    REFUSED(combine, g.combine.values.cols = 1, SHAPE, "values.cols", 2, 1);
    REFUSED(combine, g.combine.tokens.data = (char *)g.combine.rows.data, OVERLAP, "tokens.data", 0, 1);
    REFUSED(combine, g.combine.values.data = g.combine.weights.data, OVERLAP, "values.data", 0, 1);
    REFUSED(combine, g.combine.values.data = g.addresses[0], OVERLAP, "windows.addresses", 0, 1);
}

TEST(ep, expand_and_reduce_refuse) {
    tegroup_matrix none;
    memset(&none, 0, sizeof none);
    good_prepare();
    ASSERT_PASSING();
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_ep_expand(NULL, NULL, NULL));
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_ep_reduce(NULL, NULL, NULL));
#define BOTH(spoil, wanted, name, expect, come)                            \
    REFUSED(expand, spoil(g.expand), wanted, name, expect, come);          \
    REFUSED(reduce, spoil(g.reduce), wanted, name, expect, come)
#define SPOIL(x) x.struct_size = 8
    BOTH(SPOIL, STRUCT_SIZE, "struct_size", error.expected, 8);
#undef SPOIL
#define SPOIL(x) x.space = TEGROUP_SPACE_DEVICE
    BOTH(SPOIL, NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
#undef SPOIL
#define SPOIL(x) x.threads = -1
    BOTH(SPOIL, VALUE, "threads", 0, -1);
#undef SPOIL
#define SPOIL(x) x.shape.snapshot = NULL
    BOTH(SPOIL, NULL_ARGUMENT, "shape.snapshot", 1, 0);
#undef SPOIL
#define SPOIL(x) x.shape.groups = 3
    BOTH(SPOIL, CAPACITY, "shape.snapshot", 3, 2);
#undef SPOIL
#define SPOIL(x) x.row_links.rows = 5
    BOTH(SPOIL, SHAPE, "row_links.rows", 6, 5);
#undef SPOIL
#define SPOIL(x) x.row_links.dtype = TEGROUP_DTYPE_I64
    BOTH(SPOIL, DTYPE, "row_links.dtype", 1 << TEGROUP_DTYPE_I32, TEGROUP_DTYPE_I64);
#undef SPOIL
#define SPOIL(x) x.rows.rows = 5
    BOTH(SPOIL, SHAPE, "rows.rows", 6, 5);
#undef SPOIL
#define SPOIL(x) x.rows = none
    BOTH(SPOIL, UNSET, "rows.dtype", error.expected, 0);
#undef SPOIL
#define SPOIL(x) x.row_links.data = x.rows.data
    BOTH(SPOIL, OVERLAP, "rows.data", 0, 1);
#undef SPOIL
#define SPOIL(x) x.rows.data = (void *)x.shape.snapshot
    BOTH(SPOIL, OVERLAP, "rows.data", 0, 1);
#undef SPOIL
    REFUSED(expand, g.expand.rows.dtype = TEGROUP_DTYPE_F4E2M1, DTYPE, "rows.dtype", error.expected, TEGROUP_DTYPE_F4E2M1);
    REFUSED(expand, g.expand.row_scales.rows = 5, SHAPE, "row_scales.rows", 6, 5);
    REFUSED(expand, g.expand.row_scales.data = g.expand.rows.data, OVERLAP, "rows.data", 0, 1);
    REFUSED(reduce, g.reduce.rows.dtype = TEGROUP_DTYPE_F8E4M3, DTYPE, "rows.dtype", error.expected, TEGROUP_DTYPE_F8E4M3);
    REFUSED(reduce, g.reduce.row_scales = g.expand.row_scales, COMBINATION, "row_scales.dtype", TEGROUP_DTYPE_UNSET, TEGROUP_DTYPE_F32);
#undef BOTH
}

TEST_MAIN()
