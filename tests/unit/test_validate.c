/* tegroup_validate against a plain search: every count, the first bad element, and every way in which a snapshot can be wrong. */
#define TEGROUP_EXTERN
#include "validated.h"
#include "test.h"

static const tegroup_dtype dtypes[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F64};

static tegroup_validate_desc of(tegroup_tensor tensor, tegroup_validation *result) {
    tegroup_validate_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    desc.tensor = tensor;
    desc.result = result;
    return desc;
}

/* Groups in any place, with gaps and a tail, or all alike; each bad element counted by hand. */
TEST(validate, values) {
    rng r = rng_seed(6001);
    int64_t owned_found = 0, tail_found = 0;
    for (int64_t i = scaled(600); i > 0; i--) {
        void *mark = guards_mark();
        const int ragged = rng_chance(&r, 70);
        int64_t rows, cols = rng_int(&r, 0, 20), pad = rng_int(&r, 0, 3);
        tegroup_tensor t;
        tegroup_validation want, *got;
        memset(&t, 0, sizeof t);
        if (ragged) {
            spec s = {.op = TEGROUP_OP_FORWARD, .groups = (int32_t)rng_int(&r, 0, 9), .n = 1, .k = 1, .place = (place_kind)rng_int(&r, 0, 3), .alignment = 4, .tail_rows = rng_int(&r, 0, 9), .seed = rng_next(&r)};
            problem p;
            s.m = random_rows(&r, s.groups, 6, 1);
            problem_make(&p, &s);
            ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
            t.shape = p.a.tensor.shape;
            rows = t.shape.rows;
        } else {
            t.shape.groups = (int32_t)rng_int(&r, 0, 4);
            t.shape.rows = rng_int(&r, 0, 6);
            rows = t.shape.groups * t.shape.rows;
        }
        t.shape.cols = cols;
        t.dtype = dtypes[rng_int(&r, 0, 3)];
        t.ld = cols + pad > 0 ? cols + pad : 0;
        if (!ragged && rng_chance(&r, 50)) t.group_stride = t.shape.rows * (cols + pad) + 7;
        int64_t stride = ragged ? 0 : t.group_stride ? t.group_stride : t.shape.rows * (cols + pad);
        int64_t elements = rows == 0 ? 0 : ragged ? rows * (cols + pad) : t.shape.groups * stride;
        t.data = guarded((size_t)(elements > 0 ? elements : 1) * size_of(t.dtype)); /* poison: what lies between rows is NaN */
        memset(&want, 0, sizeof want);
        want.magic = TEGROUP_VALIDATION_MAGIC;
        want.bad_group = -1;
        want.owned.first_row = want.owned.first_col = want.tail.first_row = want.tail.first_col = want.scales.first = want.scales.first_global = -1;
        tegroup_snapshot_view v = tegroup_snapshot_read(ragged ? t.shape.snapshot : NULL);
        for (int64_t row = 0; row < rows; row++) {
            int64_t first = ragged ? row * (cols + pad) : row / t.shape.rows * stride + row % t.shape.rows * (cols + pad);
            int owned = !ragged;
            for (int32_t g = 0; ragged && g < t.shape.groups; g++) owned |= v.rows[g] > 0 && row >= v.start[g] && row < v.start[g] + v.rows[g];
            tegroup_validation_values *values = owned ? &want.owned : &want.tail;
            for (int64_t col = 0; col < cols; col++) {
                double x = rng_chance(&r, 97) ? rng_normal(&r) : rng_chance(&r, 50) ? (double)NAN : rng_chance(&r, 50) ? (double)INFINITY : -(double)INFINITY;
                store(t.dtype, t.data, first + col, x);
                if (isfinite(x)) continue;
                if (isnan(x)) values->nans++; else values->infinities++;
                if (values->first_row < 0) { values->first_row = row; values->first_col = col; }
            }
        }
        if (want.owned.first_row >= 0) { want.status |= TEGROUP_VALIDATION_VALUES; owned_found++; }
        if (want.tail.first_row >= 0) { want.status |= TEGROUP_VALIDATION_TAIL; tail_found++; }
        got = (tegroup_validation *)guarded(sizeof *got);
        guarded_remember(t.data);
        tegroup_validate_desc desc = of(t, got);
        ASSERT_EQ(TEGROUP_OK, tegroup_validate(&desc, NULL, NULL));
        ASSERT_EQ(0, memcmp(&want, got, sizeof want));
        ASSERT_EQ(0, guarded_changed(t.data) + guards_changed());
        guards_release(mark);
    }
    ASSERT_TRUE(owned_found > 0 && tail_found > 0);
}

/* The largest finite number, the smallest, and zero of either sign are no find; every pattern past infinity is. */
TEST(validate, every_half) {
    static uint16_t halves[65536];
    for (int i = 0; i < 65536; i++) halves[i] = (uint16_t)i;
    for (int which = 0; which < 2; which++) {
        tegroup_validation got;
        tegroup_tensor t = tegroup_tensor_uniform(1, 256, 256, which ? TEGROUP_DTYPE_F16 : TEGROUP_DTYPE_BF16, halves);
        tegroup_validate_desc desc = of(t, &got);
        ASSERT_EQ(TEGROUP_OK, tegroup_validate(&desc, NULL, NULL));
        ASSERT_EQ(2, got.owned.infinities);
        ASSERT_EQ(which ? 2 * 1023 : 2 * 127, got.owned.nans);
        ASSERT_EQ(which ? 0x7c : 0x7f, got.owned.first_row);
        ASSERT_EQ(which ? 0 : 0x80, got.owned.first_col);
    }
}

/* A snapshot that somebody wrote over, one number at a time. */
TEST(validate, snapshots) {
    _Alignas(256) static unsigned char memory[8192];
    static const int64_t counts[4] = {3, 0, 5, 2};
    static float data[12 * 3];
    for (int what = -1; what < 15; what++) {
        tegroup_validation got;
        uint32_t wanted = 0;
        int32_t bad = -1;
        const tegroup_sizes sizes = tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
        tegroup_shape shape = tegroup_shape_of(4, 12, 3, sizes);
        ASSERT_EQ(TEGROUP_OK, tegroup_shape_prepare(&shape, memory, sizeof memory, NULL, NULL));
        tegroup_tensor t = tegroup_tensor_of(shape, 3, TEGROUP_DTYPE_F32, data);
        tegroup_snapshot_header *header = (tegroup_snapshot_header *)(void *)memory;
        tegroup_snapshot_view v = tegroup_snapshot_read(memory);
        int64_t *start = (int64_t *)(uintptr_t)v.start, *rows = (int64_t *)(uintptr_t)v.rows, *prefix = (int64_t *)(uintptr_t)v.prefix;
        switch (what) {
        case 0: header->magic++; wanted = TEGROUP_VALIDATION_SNAPSHOT; break;
        case 1: header->groups--; wanted = TEGROUP_VALIDATION_SNAPSHOT; break;
        case 2: header->irregular = 1; wanted = TEGROUP_VALIDATION_SNAPSHOT; break;
        case 3: header->rows_end = 13; wanted = TEGROUP_VALIDATION_SNAPSHOT; break;
        case 4: header->status = TEGROUP_SNAPSHOT_OVERLAP; wanted = TEGROUP_VALIDATION_SIZES; break;
        case 5: header->rows_total++; wanted = TEGROUP_VALIDATION_SUMS; break;
        case 6: header->rows_max--; wanted = TEGROUP_VALIDATION_SUMS; break;
        case 7: header->rows_end--; wanted = TEGROUP_VALIDATION_SUMS; break;
        case 8: start[1] = 13; wanted = TEGROUP_VALIDATION_BOUNDS; bad = 1; break;
        case 9: start[2] = -1; wanted = TEGROUP_VALIDATION_BOUNDS | TEGROUP_VALIDATION_SUMS; bad = 2; header->rows_end++; break;
        case 10: rows[1] = -2; wanted = TEGROUP_VALIDATION_BOUNDS; bad = 1; break;
        case 11: rows[3] = INT64_MAX; wanted = TEGROUP_VALIDATION_BOUNDS | TEGROUP_VALIDATION_SUMS; bad = 3; break;
        case 12: prefix[3]++; wanted = TEGROUP_VALIDATION_SUMS; bad = 2; break;
        case 13: for (int i = 0; i <= 4; i++) prefix[i]++; wanted = TEGROUP_VALIDATION_SUMS; bad = 0; break;
        case 14: prefix[0] = 1; prefix[1] = INT64_MIN; wanted = TEGROUP_VALIDATION_SUMS; bad = 0; break;
        }
        tegroup_validate_desc desc = of(t, &got);
        ASSERT_EQ(TEGROUP_OK, tegroup_validate(&desc, NULL, NULL));
        ASSERT_EQ(wanted, got.status);
        ASSERT_EQ(bad, got.bad_group);
        ASSERT_EQ(what == 4 ? TEGROUP_SNAPSHOT_OVERLAP : 0u, got.snapshot_status);
        ASSERT_EQ(TEGROUP_VALIDATION_MAGIC, got.magic);
    }
}

/* Quantised tensors of every scaling, copy and layout of scales: each wrong code, value and scale is counted, padding is not. */
TEST(validate, quantised) {
    rng r = rng_seed(6002);
    int64_t seen[8] = {0};
    for (int64_t i = scaled(4000); i > 0; i--) {
        void *mark = guards_mark();
        validated v;
        validated_make(&v, &r);
        remember_all();
        ASSERT_EQ(TEGROUP_OK, tegroup_validate(&v.desc, NULL, NULL));
        const tegroup_validation *got = v.desc.result, *want = &v.want;
        const int64_t pairs[][2] = {{want->owned.nans, got->owned.nans}, {want->owned.infinities, got->owned.infinities},
                                    {want->scales.nans, got->scales.nans}, {want->scales.infinities, got->scales.infinities},
                                    {want->scales.negatives, got->scales.negatives}, {want->scales.zeros, got->scales.zeros},
                                    {want->scales.first, got->scales.first}, {want->scales.first_global, got->scales.first_global}};
        for (int k = 0; k < 8; k++) {
            ASSERT_EQ(pairs[k][0], pairs[k][1]);
            seen[k] += pairs[k][0] > 0;
        }
        ASSERT_EQ(0, memcmp(want, got, sizeof *want));
        expect_bytes(got, 0, want, sizeof *want);
        ASSERT_EQ(0, unexpected_bytes());
        guards_release(mark);
    }
    for (int k = 0; k < 8; k++) ASSERT_GT(seen[k], 0);
}

/* Groups that a spoilt snapshot lays over each other may need more scales, or more of a transposed copy, than the buffers hold: the
 * first one that would lead out of them is named, and nothing of it is read. */
TEST(validate, quantised_bounds) {
    _Alignas(256) unsigned char memory[8192];
    static const int64_t counts[2] = {20, 20};
    const size_t sizes[4] = {40 * 128, 44 * 4, 96 * 128, 2 * 128 * 4}; /* elements and scales of the copies */
    void *buffers[4];
    tegroup_shape shape = tegroup_shape_of(2, 40, 128, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    tegroup_layout layout;
    tegroup_validation got;
    ASSERT_EQ(TEGROUP_OK, tegroup_shape_prepare(&shape, memory, sizeof memory, NULL, NULL));
    tegroup_validate_desc desc = of(tegroup_tensor_of(shape, 128, TEGROUP_DTYPE_F8E4M3, NULL), &got);
    desc.tensor.scaling = TEGROUP_SCALING_BLOCK_1X128;
    desc.tensor.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    ASSERT_EQ(TEGROUP_OK, tegroup_tensor_layout(&desc.tensor, TEGROUP_COPIES_BOTH, &layout, NULL));
    for (int i = 0; i < 4; i++) {
        ASSERT_EQ(sizes[i], layout.items[i].bytes);
        buffers[i] = malloc(sizes[i]); /* so that the address sanitizer sees its end */
        memset(buffers[i], 1, sizes[i]);
    }
    desc.tensor.data = buffers[0], desc.tensor.scale_inv = buffers[1];
    desc.tensor.columnwise_data = buffers[2], desc.tensor.columnwise_scale_inv = buffers[3];
    tegroup_snapshot_view view = tegroup_snapshot_read(memory);
    int64_t *start = (int64_t *)(uintptr_t)view.start, *rows = (int64_t *)(uintptr_t)view.rows;
    start[1] = 0;
    rows[0] = 40;
    for (int columnwise = 0; columnwise < 2; columnwise++)
        for (int out = 0; out < 2; out++) {
            rows[1] = (columnwise ? 32 : 4) + out;
            desc.columnwise = columnwise;
            ASSERT_EQ(TEGROUP_OK, tegroup_validate(&desc, NULL, NULL));
            ASSERT_EQ(out ? TEGROUP_VALIDATION_BOUNDS : 0u, got.status & TEGROUP_VALIDATION_BOUNDS);
            ASSERT_EQ(0u, got.status & (TEGROUP_VALIDATION_VALUES | TEGROUP_VALIDATION_SCALES | TEGROUP_VALIDATION_ZERO_SCALES));
        }
    for (int i = 0; i < 4; i++) free(buffers[i]);
}

/* What an address must be, and what goes with what. */
/* What the scale of a group without values is, nobody has said. */
TEST(validate, scales_of_groups_without_values) {
    static const unsigned char codes[64];
    static const float scales[2] = {NAN, NAN};
    static const int64_t sizes[][2] = {{0, 32}, {2, 0}, {0, 0}, {2, 16}};
    for (int i = 0; i < 4; i++) {
        tegroup_validation got;
        tegroup_error error;
        const int64_t rows = sizes[i][0], cols = sizes[i][1];
        tegroup_validate_desc d = of(tegroup_tensor_uniform(2, rows, cols, TEGROUP_DTYPE_F8E4M3, codes), &got);
        d.tensor.scaling = TEGROUP_SCALING_TENSOR;
        d.tensor.scale_inv = (void *)scales;
        ASSERT_EQ(TEGROUP_OK, tegroup_validate(&d, NULL, &error));
        ASSERT_EQ(i == 3 ? 2 : 0, got.scales.nans);
        ASSERT_EQ(i == 3, (got.status & TEGROUP_VALIDATION_SCALES) != 0);
    }
}

TEST(validate, quantised_refusals) {
    static unsigned char codes[64];
    static float scales[8];
    tegroup_validation got;
    tegroup_error error;
    tegroup_validate_desc good = of(tegroup_tensor_uniform(1, 2, 32, TEGROUP_DTYPE_F8E4M3, codes), &got);
    good.tensor.scaling = TEGROUP_SCALING_ROW;
    good.tensor.scale_inv = scales;
    ASSERT_EQ(TEGROUP_OK, tegroup_validate(&good, NULL, &error));
    memset(&got, 0x5a, sizeof got);
    const tegroup_validation before = got;
#define REFUSED(change, status, name, wanted, came)                      \
    do {                                                                 \
        tegroup_validate_desc bad = good;                                \
        change;                                                          \
        ASSERT_EQ(TEGROUP_##status, tegroup_validate(&bad, NULL, &error)); \
        ASSERT_STREQ(name, error.field);                                 \
        ASSERT_EQ(wanted, error.expected);                               \
        ASSERT_EQ(came, error.got);                                      \
        ASSERT_EQ(0, memcmp(&before, &got, sizeof got));                 \
    } while (0)
    REFUSED(bad.columnwise = 2, ERROR_VALUE, "columnwise", 1, 2);
    REFUSED(bad.columnwise = 1, ERROR_NULL_ARGUMENT, "tensor.columnwise_data", 1, 0);
    REFUSED(bad.tensor.scaling = TEGROUP_SCALING_NONE; bad.tensor.dtype = TEGROUP_DTYPE_F32; bad.columnwise = 1, ERROR_COMBINATION, "columnwise", 0, 1);
    REFUSED(bad.tensor.scale_inv = NULL, ERROR_NULL_ARGUMENT, "tensor.scale_inv", 1, 0);
    REFUSED(bad.tensor.data = NULL, ERROR_NULL_ARGUMENT, "tensor.data", 1, 0);
    REFUSED(bad.tensor.scale_inv = (char *)scales + 1, ERROR_ALIGNMENT, "tensor.scale_inv", 4, 1);
    REFUSED(bad.tensor.global_scale_inv = scales, ERROR_COMBINATION, "tensor.global_scale_inv", 0, 1);
    REFUSED(bad.tensor.scale_inv = &got, ERROR_OVERLAP, "result", 0, 1);
    REFUSED(bad.tensor.data = &got, ERROR_OVERLAP, "result", 0, 1);
    REFUSED(bad.tensor.pointers_space = TEGROUP_SPACE_HOST; bad.tensor.data = bad.tensor.scale_inv = NULL, ERROR_COMBINATION, "tensor.pointers_space", 0,
            TEGROUP_SPACE_HOST);
    REFUSED(bad.space = TEGROUP_SPACE_DEVICE, ERROR_NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    good.tensor = tegroup_tensor_uniform(1, 2, 32, TEGROUP_DTYPE_F4E2M1, codes);
    good.tensor.scaling = TEGROUP_SCALING_NVFP4;
    static unsigned char tiles[512];
    good.tensor.scale_inv = tiles;
    REFUSED(bad.tensor.global_scale_inv = (float *)(void *)((char *)scales + 2), ERROR_ALIGNMENT, "tensor.global_scale_inv", 4, 2);
    REFUSED(bad.tensor.global_scale_inv = (float *)(void *)&got, ERROR_OVERLAP, "result", 0, 1);
#undef REFUSED
}

TEST_MAIN()
