/* Quantise and dequantise on the CPU: every byte of every buffer against a reference of the tests' own; what is made in passing
 * against the separate calls; and what is refused. */
#define TEGROUP_EXTERN
#include "support.h"
#include "quantize.h"
#include "test.h"

static tegroup_error error;

static void report(const quantizing *q, tegroup_status status) {
    fprintf(stderr, "%s: %s %s (%ld, %ld)\n", tegroup_status_name(status), error.field, error.rule, (long)error.expected, (long)error.got);
    (void)q;
}

static void check_one(rng *r, tegroup_scaling scaling, int64_t rows, int64_t cols) {
    void *mark = guards_mark();
    quantizing q;
    quantizing_make(&q, r, scaling, rows, cols);
    expect_all(&q);
    const tegroup_status status = tegroup_quantize(&q.desc, NULL, &error);
    if (status != TEGROUP_OK) report(&q, status);
    ASSERT_EQ(status, TEGROUP_OK);
    const int64_t wrong = unexpected_bytes();
    if (wrong != 0)
        fprintf(stderr, "scaling %d, preset %d, input %s, %s%s, %d parts, order %d, copies %d%d\n", (int)q.scales[0].scaling, (int)q.preset,
                tegroup_dtype_name(q.desc.input.dtype), q.scales[0].ragged ? "ragged" : "uniform", q.scales[0].listed ? ", lists" : "", (int)q.scales[0].parts,
                (int)q.desc.output.columnwise_order, q.has[0], q.has[1]);
    ASSERT_EQ(wrong, 0);
    ASSERT_EQ(guards_changed(), 0);
    guards_release(mark);
}

#define EVERY_BYTE(name, scaling)                                                                  \
    TEST(quantize, every_byte_of_##name) {                                                         \
        rng r = rng_seed(9100 + TEGROUP_SCALING_##scaling);                                        \
        for (int64_t i = scaled(40); i > 0; i--) {                                                 \
            check_one(&r, TEGROUP_SCALING_##scaling, i % 10 == 0 ? 300 : 40, i % 7 == 0 ? 600 : 150); \
            ASSERT_PASSING();                                                                      \
        }                                                                                          \
    }
EVERY_BYTE(tensor, TENSOR)
EVERY_BYTE(row, ROW)
EVERY_BYTE(blocks_of_1x128, BLOCK_1X128)
EVERY_BYTE(blocks_of_128x128, BLOCK_128X128)
EVERY_BYTE(blocks_of_32x32, BLOCK_32X32)
EVERY_BYTE(mxfp8, MXFP8)
EVERY_BYTE(mxfp8_32x32, MXFP8_32X32)
EVERY_BYTE(mxfp4, MXFP4)
EVERY_BYTE(nvfp4, NVFP4)
EVERY_BYTE(nvfp4_16x16, NVFP4_16X16)

/* Delayed scaling: each group by the multiplier that it is given. */
TEST(quantize, delayed_scaling_takes_the_given_multipliers) {
    rng r = rng_seed(9150);
    for (int64_t i = 4 + scaled(20); i > 0; i--) {
        void *mark = guards_mark();
        quantizing q;
        do {
            guards_release(mark);
            quantizing_make(&q, &r, TEGROUP_SCALING_TENSOR, 20, 40);
        } while (q.preset != TEGROUP_SCALE_TE_DELAYED || q.scales[0].groups < 3);
        expect_all(&q);
        ASSERT_EQ(tegroup_quantize(&q.desc, NULL, &error), TEGROUP_OK);
        ASSERT_EQ(unexpected_bytes(), 0);
        guards_release(mark);
    }
}

/* Sizes that lie, 100,000 arrays of them in the long suite: prepare cuts them, no call writes outside of the buffers, and every byte,
 * of which each tenth array is asked, is that of the groups that are left. */
TEST(quantize, sizes_that_lie_lead_nowhere) {
    rng r = rng_seed(9160);
    int64_t arrays = 0, rows = 0;
    const int64_t wanted = scaled(in_the_long_suite(100000, 5000));
    while (arrays < wanted) {
        void *mark = guards_mark(), *list[MOST_GROUPS];
        quantizing q;
        tegroup_dequantize_desc back;
        quantizing_make_ragged(&q, &r, 3, 40);
        depot *s = &q.scales[0];
        memset(&back, 0, sizeof back);
        back.struct_size = sizeof back;
        back.space = TEGROUP_SPACE_HOST;
        back.input = q.desc.output;
        back.columnwise = !q.has[0];
        back.output = plain_beside(&q, &r, TEGROUP_DTYPE_F32, s->cols, 0, NULL, list);
        for (int turn = 0; turn < 50; turn++, arrays++) {
            int64_t sizes[MOST_GROUPS + 1];
            const tegroup_encoding encoding = hostile_sizes(&r, s, sizes);
            quantizing_prepare(&q, encoding, sizes);
            for (int32_t g = 0; g < s->groups; g++) rows += s->rows[g];
            for (int32_t g = 0; g < s->groups && turn % 10 == 0; g++) {
                q.value[g] = (float *)malloc((size_t)(s->rows[g] * s->cols) * 4 + 4);
                const int64_t ld = q.desc.input.ld > 0 ? q.desc.input.ld : s->cols;
                for (int64_t i = 0; i < s->rows[g]; i++)
                    for (int64_t j = 0; j < s->cols; j++) q.value[g][i * s->cols + j] = (float)load(q.desc.input.dtype, q.in_list[g], i * ld + j);
            }
            if (turn % 10 == 0) {
                quantizing_poison(&q);
                expect_all(&q);
                for (int32_t g = 0; g < s->groups; g++) free(q.value[g]);
            }
            ASSERT_EQ(tegroup_quantize(&q.desc, NULL, &error), TEGROUP_OK);
            if (turn % 10 == 0) ASSERT_EQ(unexpected_bytes(), 0);
            ASSERT_EQ(tegroup_dequantize(&back, NULL, &error), TEGROUP_OK);
            ASSERT_EQ(guards_changed(), 0);
        }
        guards_release(mark);
    }
    ASSERT_GT(rows, arrays);
    printf("%ld arrays, %ld rows\n", (long)arrays, (long)rows);
}

/* ---- made in passing: the bits are those of the separate calls ------------------------------------------------------------ */

static void compare_fused(quantizing *q, const tegroup_quantize_desc *fused) {
    ASSERT_EQ(tegroup_quantize(&q->desc, NULL, &error), TEGROUP_OK);
    remember_all();
    quantizing_poison(q);
    if (fused->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) poison_again(fused->grad_row_scale.data);
    const tegroup_status status = tegroup_quantize(fused, NULL, &error);
    if (status != TEGROUP_OK) report(q, status);
    ASSERT_EQ(status, TEGROUP_OK);
    ASSERT_EQ(unexpected_bytes(), 0);
    ASSERT_EQ(guards_changed(), 0);
}

TEST(quantize, an_activations_output_or_gradient_in_passing) {
    rng r = rng_seed(9200);
    for (int64_t i = 50 + scaled(100); i > 0; i--) {
        void *mark = guards_mark();
        quantizing q;
        tegroup_quantize_desc fused;
        quantizing_make(&q, &r, (tegroup_scaling)0, i % 10 == 0 ? 200 : 30, i % 10 == 0 ? 700 : 150);
        make_activation(&q, &r, (int)(i % 2), &fused);
        for (int32_t g = 0; g < q.scales[0].groups; g++) {
            const separate_call call = separate_activation(&q, &fused, g);
            ASSERT_EQ(i % 2 ? tegroup_activation_backward(&call.backward, NULL, &error) : tegroup_activation_forward(&call.forward, NULL, &error), TEGROUP_OK);
        }
        compare_fused(&q, &fused);
        ASSERT_PASSING();
        guards_release(mark);
    }
}

TEST(quantize, rows_picked_by_an_index_in_passing) {
    rng r = rng_seed(9201);
    for (int64_t i = scaled(100); i > 0; i--) {
        void *mark = guards_mark();
        quantizing q;
        tegroup_quantize_desc fused;
        quantizing_make(&q, &r, (tegroup_scaling)0, 40, 150);
        if (q.scales[0].ragged && !q.scales[0].listed) {
            make_gather(&q, &r, &fused);
            compare_fused(&q, &fused);
            ASSERT_PASSING();
        }
        guards_release(mark);
    }
}

/* The columnwise copy is that of the source: quantised from what the rowwise copy means, it would be another. */
TEST(quantize, columnwise_copies_come_from_the_source) {
    int64_t other = 0;
    rng r = rng_seed(9202);
    for (int64_t i = scaled(20); i > 0; i--) {
        void *mark = guards_mark();
        float x[64 * 64], back[64 * 64];
        unsigned char data[2][64 * 64], again[64 * 64];
        unsigned char scales[3][4096];
        tegroup_quantize_desc d;
        tegroup_dequantize_desc e;
        memset(&d, 0, sizeof d), memset(&e, 0, sizeof e);
        for (int j = 0; j < 64 * 64; j++) x[j] = (float)ldexp(rng_normal(&r), (int)rng_int(&r, -4, 4));
        d.struct_size = sizeof d;
        d.space = e.space = TEGROUP_SPACE_HOST;
        d.input = tegroup_tensor_uniform(1, 64, 64, TEGROUP_DTYPE_F32, x);
        d.output = tegroup_tensor_uniform(1, 64, 64, TEGROUP_DTYPE_F8E4M3, data[0]);
        d.output.scaling = TEGROUP_SCALING_MXFP8;
        d.output.scale_inv = scales[0];
        d.output.columnwise_data = data[1];
        d.output.columnwise_scale_inv = scales[1];
        d.rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_MXFP8);
        ASSERT_EQ(tegroup_quantize(&d, NULL, &error), TEGROUP_OK);
        e.struct_size = sizeof e;
        e.input = d.output;
        e.output = tegroup_tensor_uniform(1, 64, 64, TEGROUP_DTYPE_F32, back);
        ASSERT_EQ(tegroup_dequantize(&e, NULL, &error), TEGROUP_OK);
        d.input.data = back;
        d.output.data = d.output.scale_inv = NULL;
        d.output.columnwise_data = again;
        d.output.columnwise_scale_inv = scales[2];
        ASSERT_EQ(tegroup_quantize(&d, NULL, &error), TEGROUP_OK);
        other += memcmp(data[1], again, sizeof again) != 0;
        guards_release(mark);
    }
    ASSERT_EQ(other, scaled(20));
}

/* A quotient is not a product with the reciprocal: 31 s / s is 31, halfway between two codes, and goes to the even one,
 * 32. Times the rounded reciprocal it is less for some s, and would go to 30. */
TEST(quantize, divides_where_the_rule_does) {
    int64_t scales = 0;
    for (int s = 3; s < 4096; s += 2) {
        volatile float reciprocal = 1.0f / (float)s, product = (float)(31 * s) * reciprocal;
        if (product >= 31) continue;
        _Alignas(TEGROUP_ALIGNMENT) float x[128], scale[64];
        _Alignas(TEGROUP_ALIGNMENT) unsigned char code[128];
        tegroup_quantize_desc d;
        memset(&d, 0, sizeof d);
        for (int i = 0; i < 128; i++) x[i] = (float)(i == 0 ? 448 * s : i % 2 ? 31 * s : -31 * s);
        d.struct_size = sizeof d;
        d.space = TEGROUP_SPACE_HOST;
        d.input = tegroup_tensor_uniform(1, 1, 128, TEGROUP_DTYPE_F32, x);
        d.output = tegroup_tensor_uniform(1, 1, 128, TEGROUP_DTYPE_F8E4M3, code);
        d.output.scaling = TEGROUP_SCALING_BLOCK_1X128;
        d.output.scale_inv = scale;
        d.rule = tegroup_scale_rule_of(TEGROUP_SCALE_DEEPSEEK);
        ASSERT_EQ(tegroup_quantize(&d, NULL, &error), TEGROUP_OK);
        ASSERT_EQ(scale[0], s);
        ASSERT_EQ(code[0], 0x7e);
        for (int i = 1; i < 128; i++) ASSERT_EQ(code[i], i % 2 ? 0x60 : 0xe0); /* 2^5 */
        scales++;
    }
    ASSERT_GT(scales, 0);
}

/* ---- dequantise: the exact product, rounded once -------------------------------------------------------------------------- */

static void random_bytes(rng *r, void *data) {
    guarded_node *node = guarded_find(data);
    for (size_t i = 0; i < node->bytes; i++) node->data[i] = (unsigned char)rng_int(r, 0, 255);
}

typedef struct read_scales {
    const quantizing *q;
    int columnwise;
    double *value[MOST_GROUPS][MOST_PARTS];
} read_scales;

static void read_scale(void *context, int32_t g, int64_t part, int64_t outer, int64_t inner, int64_t index) {
    const read_scales *e = (const read_scales *)context;
    const depot *s = &e->q->scales[e->columnwise];
    const unsigned char *at = scale_address(s, g, index);
    float f;
    uint16_t half;
    if (outer >= outer_blocks(s, g) || inner >= inner_blocks(s, g)) return;
    memcpy(&half, at, scale_size(s->dtype) >= 2 ? 2 : 0);
    memcpy(&f, at, scale_size(s->dtype) >= 4 ? 4 : 0);
    e->value[g][part][outer * inner_blocks(s, g) + inner] =
        s->dtype == TEGROUP_DTYPE_F32 ? (double)f : s->dtype == TEGROUP_DTYPE_BF16 ? decode16(TEGROUP_DTYPE_BF16, half)
        : small_value(s->dtype == TEGROUP_DTYPE_I32 ? TEGROUP_DTYPE_F8E8M0 : s->dtype, *at);
}

static void check_back(quantizing *q, int c, const tegroup_dequantize_desc *d, void *const *list) {
    const depot *s = &q->scales[c];
    const scaling_row row = row_of(s->scaling);
    const tegroup_tensor *t = &d->input;
    static read_scales e;
    memset(&e, 0, sizeof e);
    e.q = q;
    e.columnwise = c;
    for (int32_t g = 0; g < s->groups; g++)
        for (int64_t part = 0; part < s->parts; part++)
            e.value[g][part] = (double *)calloc((size_t)(outer_blocks(s, g) * inner_blocks(s, g)) + 1, sizeof(double));
    walk(s, read_scale, &e);
    remember_all();
    for (int32_t g = 0; g < s->groups; g++)
        for (int64_t i = 0; i < s->rows[g]; i++)
            for (int64_t j = 0; j < s->cols; j++) {
                const int64_t part_rows = s->rows[g] / s->parts, in_part = i % part_rows, outer = c ? j : in_part, inner = c ? in_part : j;
                const int64_t place = expected_place(q, c, g, i, j), ld = d->output.ld > 0 ? d->output.ld : s->cols;
                const unsigned char *data = (const unsigned char *)q->list[c][s->listed ? g : 0];
                const unsigned code = t->dtype == TEGROUP_DTYPE_F4E2M1 ? data[place / 2] >> (place % 2 * 4) & 15u : data[place];
                const double scale = e.value[g][i / part_rows][(row.block_outer > 0 ? outer / row.block_outer : 0) * inner_blocks(s, g) +
                                                                (row.block_inner > 0 ? inner / row.block_inner : 0)];
                const double want = small_value(t->dtype, code) * scale * (t->global_scale_inv != NULL ? (double)t->global_scale_inv[g] : 1.0);
                const double got = load(d->output.dtype, list[g], i * ld + j);
                char rounded_value[8];
                store(d->output.dtype, rounded_value, 0, want);
                if (isnan(want)) { /* the NaN of a GPU's arithmetic: all bits but the sign */
                    memset(rounded_value, 0xff, sizeof rounded_value);
                    rounded_value[size_of(d->output.dtype) - 1] = 0x7f;
                }
                if (memcmp(rounded_value, (const char *)list[g] + (size_t)(i * ld + j) * size_of(d->output.dtype), size_of(d->output.dtype)) != 0)
                    TEST_FAIL("group %d, row %ld, column %ld: want %a, got %a\n", (int)g, (long)i, (long)j, want, got);
            }
    for (int32_t g = 0; g < s->groups; g++)
        for (int64_t part = 0; part < s->parts; part++) free(e.value[g][part]);
}

TEST(dequantize, exact_products_rounded_once) {
    rng r = rng_seed(9300);
    int64_t in_parts = 0;
    for (int64_t n = scaled(300); n > 0; n--) {
        void *mark = guards_mark();
        quantizing q;
        void *list[MOST_GROUPS];
        tegroup_dequantize_desc d;
        tensors_in_parts = 1;
        quantizing_make(&q, &r, n % 20 == 1 ? TEGROUP_SCALING_TENSOR : (tegroup_scaling)0, n % 10 == 0 ? 200 : 40, 150);
        tensors_in_parts = 0;
        const depot *s = &q.scales[0];
        in_parts += s->scaling == TEGROUP_SCALING_TENSOR && s->parts > 1;
        memset(&d, 0, sizeof d);
        for (int c = 0; c < 2; c++)
            for (int32_t g = 0; g < (s->listed ? s->groups : 1) && q.has[c]; g++) {
                random_bytes(&r, q.list[c][g]);
                random_bytes(&r, s->listed ? q.scales[c].list[g] : q.scales[c].memory);
            }
        if (q.desc.output.global_scale_inv != NULL) random_bytes(&r, q.desc.output.global_scale_inv);
        d.struct_size = sizeof d;
        d.space = TEGROUP_SPACE_HOST;
        d.input = q.desc.output;
        d.columnwise = q.has[0] && (!q.has[1] || rng_chance(&r, 50)) ? 0 : 1;
        static const tegroup_dtype types[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16};
        d.output = plain_beside(&q, &r, types[n % 3], s->cols, 0, NULL, list);
        d.threads = (int32_t)rng_int(&r, 0, 3);
        remember_all();
        const tegroup_status status = tegroup_dequantize(&d, NULL, &error);
        if (status != TEGROUP_OK) report(&q, status);
        ASSERT_EQ(status, TEGROUP_OK);
        int64_t owned = 0, changed = 0; /* bytes that are no group's stay */
        for (int32_t g = 0; g < s->groups; g++) owned += s->rows[g] * s->cols * (int64_t)size_of(d.output.dtype);
        for (guarded_node *node = guarded_top; node != NULL; node = node->older) changed += guarded_changed(node->data);
        ASSERT_LE(changed, owned);
        check_back(&q, d.columnwise, &d, list);
        ASSERT_PASSING();
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    ASSERT_TRUE(in_parts > 0 || scaled(300) < 200);
}

/* Products within half a unit of F32 of what lies between two numbers of 16 bits: rounded to F32 first, they would be ties. */
TEST(dequantize, products_beside_a_tie_are_no_ties) {
    enum { ROWS = 256 };
    rng r = rng_seed(9301);
    for (int t = 0; t < 2; t++) {
        const tegroup_dtype dtype = t == 0 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16;
        unsigned char data[ROWS];
        float scales[ROWS];
        uint16_t out[ROWS];
        tegroup_dequantize_desc d;
        memset(&d, 0, sizeof d);
        memset(data, 0x39, sizeof data); /* 9/8 */
        for (int i = 0; i < ROWS; i++) {
            const double below = 1 + (double)rng_int(&r, 0, 100) / 128; /* a number of both types */
            scales[i] = (float)((below + (t == 0 ? 1.0 / 256 : 1.0 / 2048)) / 1.125);
        }
        d.struct_size = sizeof d;
        d.space = TEGROUP_SPACE_HOST;
        d.input = tegroup_tensor_uniform(1, ROWS, 1, TEGROUP_DTYPE_F8E4M3, data);
        d.input.scaling = TEGROUP_SCALING_ROW;
        d.input.scale_inv = scales;
        d.output = tegroup_tensor_uniform(1, ROWS, 1, dtype, out);
        ASSERT_EQ(tegroup_dequantize(&d, NULL, &error), TEGROUP_OK);
        for (int i = 0; i < ROWS; i++) ASSERT_EQ(out[i], encode16(dtype, 1.125 * (double)scales[i]));
    }
}

/* ---- refusals: each names its field, and nothing is written ---------------------------------------------------------------- */

enum { G = 3, R = 40, C = 64 };
typedef struct bench {
    _Alignas(256) unsigned char snapshot[8192];
    float input[2 * R * C], grad[R * C], row_scale[R], out_row_scale[R], amax[G + 1], scale[G], global[G], plain[R * C];
    unsigned char data[R * C], columnwise[2 * R * C], scales[16384], columnwise_scales[16384];
    int64_t counts[G], index[R];
    void *list[G], *scale_list[G], *input_list[G];
    tegroup_quantize_desc q;
    tegroup_dequantize_desc d;
} bench;
static bench w, good, before;

static void bench_make(void) {
    tegroup_shape shape;
    memset(&w, 0x5A, sizeof w);
    memset(&w.q, 0, sizeof w.q), memset(&w.d, 0, sizeof w.d);
    w.counts[0] = 7, w.counts[1] = 0, w.counts[2] = 20;
    for (int i = 0; i < R; i++) w.index[i] = i % 5, w.row_scale[i] = 1;
    for (int i = 0; i < 2 * R * C; i++) w.input[i] = (float)(i % 13);
    shape = tegroup_shape_of(G, R, C, tegroup_sizes_of(w.counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    ASSERT_EQ(tegroup_shape_prepare(&shape, w.snapshot, sizeof w.snapshot, NULL, &error), TEGROUP_OK);
    w.q.struct_size = sizeof w.q;
    w.q.space = TEGROUP_SPACE_HOST;
    w.q.input = tegroup_tensor_of(shape, C, TEGROUP_DTYPE_F32, w.input);
    w.q.output = tegroup_tensor_of(shape, C, TEGROUP_DTYPE_F8E4M3, w.data);
    w.q.output.scaling = TEGROUP_SCALING_MXFP8;
    w.q.output.scale_inv = w.scales;
    w.q.output.columnwise_data = w.columnwise;
    w.q.output.columnwise_scale_inv = w.columnwise_scales;
    w.q.rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_MXFP8);
    w.d.struct_size = sizeof w.d;
    w.d.space = TEGROUP_SPACE_HOST;
    w.d.input = w.q.output;
    w.d.output = tegroup_tensor_of(shape, C, TEGROUP_DTYPE_F32, w.plain);
    memcpy(&good, &w, sizeof w);
}

#define BAD(call, spoil, status_name, field_name, expected_number, got_number)                                                   \
    do {                                                                                                                         \
        memcpy(&w, &good, sizeof w);                                                                                             \
        spoil;                                                                                                                   \
        memcpy(&before, &w, sizeof w);                                                                                           \
        const tegroup_status status_ = call;                                                                                     \
        if (status_ != TEGROUP_##status_name) TEST_FAIL("%s: %s, %s %s\n", #spoil, tegroup_status_name(status_), error.field, error.rule); \
        ASSERT_STREQ(error.field, field_name);                                                                                   \
        ASSERT_EQ(error.expected, expected_number);                                                                              \
        ASSERT_EQ(error.got, got_number);                                                                                        \
        ASSERT_EQ(memcmp(&before, &w, sizeof w), 0);                                                                             \
    } while (0)
#define QUANTIZE(spoil, ...) BAD(tegroup_quantize(&w.q, NULL, &error), spoil, __VA_ARGS__)
#define DEQUANTIZE(spoil, ...) BAD(tegroup_dequantize(&w.d, NULL, &error), spoil, __VA_ARGS__)
static void as_tensor(void) {
    w.q.output.scaling = TEGROUP_SCALING_TENSOR;
    w.q.rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_CURRENT);
    w.q.output.amax = w.amax;
}
static void as_given(void) {
    as_tensor();
    w.q.rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_DELAYED);
    w.q.output.scale = w.scale;
}
static void as_fp4(void) {
    w.q.output.scaling = TEGROUP_SCALING_NVFP4;
    w.q.output.dtype = TEGROUP_DTYPE_F4E2M1;
    w.q.rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_NVFP4);
}
static void uniform(tegroup_tensor *t) {
    memset(&t->shape.row_sizes, 0, sizeof t->shape.row_sizes);
    t->shape.snapshot = NULL;
    t->shape.rows = 8;
}
static void both_uniform(int64_t rows) {
    uniform(&w.q.input);
    uniform(&w.q.output);
    w.q.input.shape.rows = w.q.output.shape.rows = rows;
}
static void activated(void) { w.q.activation = TEGROUP_ACTIVATION_SILU; }
static void gradient(void) {
    activated();
    w.q.grad_output = w.q.input;
    w.q.grad_output.data = w.grad;
}
static void gathered(void) {
    w.q.gather_input.slot_of_row = w.index;
    w.q.gather_input.rows = 5;
}
static void listed(void) {
    w.q.output.data = w.q.output.scale_inv = w.q.output.columnwise_data = w.q.output.columnwise_scale_inv = NULL;
    w.q.output.pointers_space = TEGROUP_SPACE_HOST;
    w.q.output.pointers = w.list;
    w.q.output.scale_pointers = w.scale_list;
}
static tegroup_matrix rows_of(const float *data, int64_t rows) { return tegroup_matrix_of(data, rows, 1, TEGROUP_DTYPE_F32); }
static const uint32_t PLAIN = 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16,
                      REALS = 1u << TEGROUP_DTYPE_F64 | 1u << TEGROUP_DTYPE_F32;

TEST(quantize, refuses_by_field) {
    bench_make();
    ASSERT_PASSING();
    ASSERT_EQ(tegroup_quantize(&w.q, NULL, &error), TEGROUP_OK);
    w.q.grad_output.pointers_space = TEGROUP_SPACE_HOST; /* nothing of what is absent is read */
    w.q.grad_output.shape.rows = INT64_C(1) << 62;
    ASSERT_EQ(tegroup_quantize(&w.q, NULL, &error), TEGROUP_OK);
    ASSERT_EQ(tegroup_quantize(NULL, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT);
    QUANTIZE(w.q.struct_size = 8, ERROR_STRUCT_SIZE, "struct_size", sizeof w.q, 8);
    QUANTIZE(w.q.space = TEGROUP_SPACE_UNSET, ERROR_UNSET, "space", TEGROUP_SPACE_HOST, 0);
    QUANTIZE(w.q.threads = -1, ERROR_VALUE, "threads", 0, -1);
    QUANTIZE(w.q.output.dtype = TEGROUP_DTYPE_UNSET, ERROR_UNSET, "output.dtype", (1 << TEGROUP_DTYPE_F8E4M3) | (1 << TEGROUP_DTYPE_F8E5M2), 0);
    QUANTIZE(w.q.output.scaling = TEGROUP_SCALING_NONE; w.q.output.dtype = TEGROUP_DTYPE_F32, ERROR_UNSET, "output.scaling", (1 << TEGROUP_SCALING_COUNT) - 2, 0);
    QUANTIZE(w.q.input.dtype = TEGROUP_DTYPE_F64, ERROR_DTYPE, "input.dtype", PLAIN, TEGROUP_DTYPE_F64);
    QUANTIZE(w.q.input.shape.groups = 2, ERROR_SHAPE, "input.shape.groups", G, 2);
    QUANTIZE(w.q.input.shape.cols = 32, ERROR_SHAPE, "input.shape.cols", C, 32);
    QUANTIZE(uniform(&w.q.input), ERROR_COMBINATION, "input.shape.row_sizes.encoding", 1, 0);
    QUANTIZE(w.q.input.shape.snapshot = w.scales, ERROR_COMBINATION, "input.shape.snapshot", 1, 0);
    QUANTIZE(w.q.input.data = NULL, ERROR_NULL_ARGUMENT, "input.data", 1, 0);
    QUANTIZE(w.q.output.shape.snapshot = w.q.input.shape.snapshot = NULL, ERROR_NULL_ARGUMENT, "output.shape.snapshot", 1, 0);
    QUANTIZE(((tegroup_snapshot_header *)(void *)w.snapshot)->magic++, ERROR_CAPACITY, "output.shape.snapshot", TEGROUP_SNAPSHOT_MAGIC, TEGROUP_SNAPSHOT_MAGIC + 1);
    QUANTIZE(((int64_t *)(uintptr_t)tegroup_snapshot_read(w.snapshot).rows)[2] = 34, ERROR_CAPACITY, "output.shape.snapshot", R, 41);
    QUANTIZE(((int64_t *)(uintptr_t)tegroup_snapshot_read(w.snapshot).rows)[1] = 30, ERROR_CAPACITY, "output.shape.snapshot", R, 57);
    QUANTIZE(w.q.rule.method = TEGROUP_SCALE_UNSET, ERROR_UNSET, "rule.method", 1, 0);
    QUANTIZE(w.q.rule = tegroup_scale_rule_of(TEGROUP_SCALE_DEEPGEMM), ERROR_DTYPE, "output.scale_dtype", 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_BF16,
             TEGROUP_DTYPE_F8E8M0);
    QUANTIZE(w.q.rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_NVFP4), ERROR_DTYPE, "output.scale_dtype", 1u << TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E8M0);
    QUANTIZE(w.q.output.scaling = TEGROUP_SCALING_ROW; w.q.rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_DELAYED), ERROR_COMBINATION, "rule.method",
             TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_ROW);
    QUANTIZE(as_given(); w.q.rule.special_is_one = 1, ERROR_COMBINATION, "rule.special_is_one", 0, 1);
    QUANTIZE(as_given(); w.q.output.scale = NULL, ERROR_NULL_ARGUMENT, "output.scale", 1, 0);
    QUANTIZE(as_tensor(); w.q.output.amax = NULL, ERROR_NULL_ARGUMENT, "output.amax", 1, 0);
    QUANTIZE(as_tensor(); w.q.output.amax = (float *)(void *)((char *)w.amax + 1), ERROR_ALIGNMENT, "output.amax", 4, (uintptr_t)w.q.output.amax % 4);
    QUANTIZE(w.q.output.columnwise_amax = (float *)(void *)((char *)w.amax + 2), ERROR_ALIGNMENT, "output.columnwise_amax", 4, (uintptr_t)w.q.output.columnwise_amax % 4);
    QUANTIZE(as_fp4(); w.q.output.global_scale_inv = w.global, ERROR_NULL_ARGUMENT, "output.amax", 1, 0);
    QUANTIZE(as_fp4(); w.q.output.amax = w.amax; w.q.output.global_scale_inv = (float *)(void *)((char *)w.global + 1), ERROR_ALIGNMENT, "output.global_scale_inv", 4,
             (uintptr_t)w.q.output.global_scale_inv % 4);
    QUANTIZE(as_tensor(); both_uniform(8); w.q.output.scale_parts = 2, ERROR_UNSUPPORTED, "output.scale_parts", 1, 2);
    QUANTIZE(as_fp4(); both_uniform(6); w.q.output.scale_parts = 2;
             w.q.output.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED, ERROR_UNSUPPORTED, "output.scale_parts", 0, 2);
}

TEST(quantize, refuses_memory_by_field) {
    bench_make();
    ASSERT_PASSING();
    QUANTIZE(w.q.output.data = NULL, ERROR_NULL_ARGUMENT, "output.data", 1, 0);
    QUANTIZE(w.q.output.scale_inv = NULL, ERROR_NULL_ARGUMENT, "output.scale_inv", 1, 0);
    QUANTIZE(w.q.output.columnwise_data = NULL, ERROR_NULL_ARGUMENT, "output.columnwise_data", 1, 0);
    QUANTIZE(w.q.output.columnwise_scale_inv = NULL, ERROR_NULL_ARGUMENT, "output.columnwise_scale_inv", 1, 0);
    QUANTIZE(w.q.output.data = w.q.output.scale_inv = w.q.output.columnwise_data = w.q.output.columnwise_scale_inv = NULL, ERROR_NULL_ARGUMENT, "output.data", 1, 0);
    QUANTIZE(as_tensor(); w.q.output.scale_inv = w.scales + 1, ERROR_ALIGNMENT, "output.scale_inv", 4, (uintptr_t)(w.scales + 1) % 4);
    QUANTIZE(w.q.output.pointers_space = TEGROUP_SPACE_HOST, ERROR_COMBINATION, "output.data", 0, 1);
    QUANTIZE(w.q.output.columnwise_pointers = w.list, ERROR_UNSET, "output.pointers_space", TEGROUP_SPACE_HOST, 0);
    QUANTIZE(listed(); w.q.output.scale_pointers = NULL, ERROR_NULL_ARGUMENT, "output.scale_pointers", 1, 0);
    QUANTIZE(listed(); w.list[2] = NULL, ERROR_NULL_ARGUMENT, "output.pointers", -1, 2);
    QUANTIZE(listed(); w.scale_list[0] = NULL, ERROR_NULL_ARGUMENT, "output.scale_pointers", -1, 0);
    QUANTIZE(as_tensor(); listed(); w.scale_list[1] = NULL, ERROR_NULL_ARGUMENT, "output.scale_pointers", -1, 1);
    QUANTIZE(listed(); w.q.output.pointers_space = TEGROUP_SPACE_DEVICE, ERROR_UNSUPPORTED, "output.pointers_space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    QUANTIZE(w.q.input.data = NULL; w.q.input.pointers = w.input_list; w.q.input.pointers_space = TEGROUP_SPACE_HOST; w.input_list[0] = NULL, ERROR_NULL_ARGUMENT,
             "input.pointers", -1, 0);
    QUANTIZE(w.q.output.shape.row_sizes.space = TEGROUP_SPACE_DEVICE, ERROR_COMBINATION, "output.shape.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    QUANTIZE(w.q.output.data = w.input, ERROR_OVERLAP, "output.data", 0, 1);
    QUANTIZE(w.q.output.scale_inv = w.data, ERROR_OVERLAP, "output.data", 0, 1);
    QUANTIZE(w.q.output.columnwise_data = w.snapshot, ERROR_OVERLAP, "output.columnwise_data", 0, 1);
    QUANTIZE(w.q.output.columnwise_scale_inv = w.input + 5, ERROR_OVERLAP, "output.columnwise_scale_inv", 0, 1);
    QUANTIZE(w.q.output.amax = (float *)(void *)w.columnwise_scales, ERROR_OVERLAP, "output.columnwise_scale_inv", 0, 1);
    QUANTIZE(w.q.output.amax = w.amax; w.q.output.columnwise_amax = w.amax + 1, ERROR_OVERLAP, "output.amax", 0, 1);
    QUANTIZE(as_given(); w.q.output.scale = w.amax, ERROR_OVERLAP, "output.amax", 0, 1);
    QUANTIZE(w.q.space = TEGROUP_SPACE_DEVICE; w.q.output.shape.row_sizes.space = w.q.input.shape.row_sizes.space = TEGROUP_SPACE_DEVICE, ERROR_NOT_BUILT, "space",
             TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
}

TEST(quantize, refuses_what_is_made_in_passing_by_field) {
    bench_make();
    ASSERT_PASSING();
    QUANTIZE(w.q.gather_input.rows = 5, ERROR_NULL_ARGUMENT, "gather_input.slot_of_row", 1, 0);
    QUANTIZE(w.q.gather_input.slot_of_row = w.index, ERROR_UNSET, "gather_input.rows", 1, 0);
    QUANTIZE(gathered(); activated(), ERROR_COMBINATION, "gather_input.rows", 0, 5);
    QUANTIZE(gathered(); both_uniform(8), ERROR_COMBINATION, "gather_input.rows", 0, 5);
    QUANTIZE(gathered(); w.q.gather_input.slot_of_row = (const int64_t *)(const void *)w.data, ERROR_OVERLAP, "output.data", 0, 1);
    QUANTIZE(w.q.activation = (tegroup_activation)14, ERROR_VALUE, "activation", TEGROUP_ACTIVATION_IDENTITY, 14);
    QUANTIZE(w.q.activation = TEGROUP_ACTIVATION_SWIGLU, ERROR_SHAPE, "input.shape.cols", 2 * C, C);
    QUANTIZE(activated(); w.q.interleaved = 1, ERROR_VALUE, "interleaved", 0, 1);
    QUANTIZE(w.q.interleaved = 1, ERROR_COMBINATION, "interleaved", 0, 1);
    QUANTIZE(w.q.alpha = 1, ERROR_COMBINATION, "alpha", 0, INT64_C(0x3ff0000000000000)); /* the bits of 1.0 */
    QUANTIZE(w.q.limit = 1, ERROR_COMBINATION, "limit", 0, INT64_C(0x3ff0000000000000));
    QUANTIZE(w.q.row_scale = rows_of(w.row_scale, R), ERROR_UNSET, "activation", TEGROUP_ACTIVATION_IDENTITY, 0);
    QUANTIZE(activated(); w.q.row_scale = rows_of(w.row_scale, R - 1), ERROR_SHAPE, "row_scale.rows", R, R - 1);
    QUANTIZE(activated(); w.q.row_scale = tegroup_matrix_of(w.row_scale, R, 1, TEGROUP_DTYPE_F16), ERROR_DTYPE, "row_scale.dtype", REALS, TEGROUP_DTYPE_F16);
    QUANTIZE(listed(); activated(); w.q.row_scale = rows_of(w.row_scale, R), ERROR_COMBINATION, "row_scale.dtype", 0, TEGROUP_DTYPE_F32);
    QUANTIZE(activated(); w.q.grad_row_scale = rows_of(w.out_row_scale, R), ERROR_COMBINATION, "grad_row_scale.dtype", 0, TEGROUP_DTYPE_F32);
    QUANTIZE(w.q.grad_output = w.q.input, ERROR_UNSET, "activation", TEGROUP_ACTIVATION_SWIGLU, 0);
    QUANTIZE(activated(); w.q.grad_output.data = w.grad, ERROR_UNSET, "grad_output.dtype", PLAIN | REALS, 0);
    QUANTIZE(gradient(); w.q.grad_output.dtype = TEGROUP_DTYPE_BF16, ERROR_DTYPE, "grad_output.dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    QUANTIZE(gradient(); w.q.activation = TEGROUP_ACTIVATION_REGLU, ERROR_SHAPE, "grad_output.shape.cols", C / 2, C);
    QUANTIZE(gradient(); w.q.grad_output.data = NULL, ERROR_NULL_ARGUMENT, "grad_output.data", 1, 0);
    QUANTIZE(gradient(); w.q.output.columnwise_data = w.grad, ERROR_OVERLAP, "output.columnwise_data", 0, 1);
    QUANTIZE(gradient(); w.q.grad_row_scale = rows_of(w.grad, R), ERROR_OVERLAP, "grad_row_scale.data", 0, 1);
    QUANTIZE(gradient(); w.q.grad_row_scale = tegroup_matrix_of(w.out_row_scale, R, 2, TEGROUP_DTYPE_F32), ERROR_SHAPE, "grad_row_scale.cols", 1, 2);
    QUANTIZE(listed(); gradient(); w.q.grad_row_scale = rows_of(w.out_row_scale, R), ERROR_COMBINATION, "grad_row_scale.dtype", 0,
             TEGROUP_DTYPE_F32);
    QUANTIZE(gradient(); w.q.activation = TEGROUP_ACTIVATION_REGLU; w.q.output.shape.cols = w.q.input.shape.cols = 63, ERROR_SHAPE, "output.shape.cols", 0, 63);
}

TEST(dequantize, refuses_by_field) {
    bench_make();
    ASSERT_PASSING();
    ASSERT_EQ(tegroup_quantize(&w.q, NULL, &error), TEGROUP_OK);
    ASSERT_EQ(tegroup_dequantize(&w.d, NULL, &error), TEGROUP_OK);
    ASSERT_EQ(tegroup_dequantize(NULL, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT);
    DEQUANTIZE(w.d.struct_size = 8, ERROR_STRUCT_SIZE, "struct_size", sizeof w.d, 8);
    DEQUANTIZE(w.d.space = (tegroup_space)3, ERROR_VALUE, "space", TEGROUP_SPACE_DEVICE, 3);
    DEQUANTIZE(w.d.threads = -2, ERROR_VALUE, "threads", 0, -2);
    DEQUANTIZE(w.d.columnwise = 2, ERROR_VALUE, "columnwise", 1, 2);
    DEQUANTIZE(w.d.input = w.d.output, ERROR_UNSET, "input.scaling", (1 << TEGROUP_SCALING_COUNT) - 2, 0);
    DEQUANTIZE(w.d.output.dtype = TEGROUP_DTYPE_F64, ERROR_DTYPE, "output.dtype", PLAIN, TEGROUP_DTYPE_F64);
    DEQUANTIZE(w.d.output.shape.cols = 32, ERROR_SHAPE, "output.shape.cols", C, 32);
    DEQUANTIZE(w.d.output.shape.snapshot = w.scales, ERROR_COMBINATION, "output.shape.snapshot", 1, 0);
    DEQUANTIZE(w.d.output.data = NULL, ERROR_NULL_ARGUMENT, "output.data", 1, 0);
    DEQUANTIZE(w.d.input.data = NULL, ERROR_NULL_ARGUMENT, "input.data", 1, 0);
    DEQUANTIZE(w.d.input.scale_inv = NULL, ERROR_NULL_ARGUMENT, "input.scale_inv", 1, 0);
    DEQUANTIZE(w.d.columnwise = 1; w.d.input.columnwise_data = NULL, ERROR_NULL_ARGUMENT, "input.columnwise_data", 1, 0);
    DEQUANTIZE(w.d.columnwise = 1; w.d.input.columnwise_scale_inv = NULL, ERROR_NULL_ARGUMENT, "input.columnwise_scale_inv", 1, 0);
    DEQUANTIZE(w.d.output.data = w.data, ERROR_OVERLAP, "output.data", 0, 1);
    DEQUANTIZE(w.d.output.data = w.scales, ERROR_OVERLAP, "output.data", 0, 1);
    DEQUANTIZE(w.d.output.data = w.snapshot, ERROR_OVERLAP, "output.data", 0, 1);
    DEQUANTIZE(w.d.input.shape.row_sizes.space = TEGROUP_SPACE_DEVICE, ERROR_COMBINATION, "input.shape.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    DEQUANTIZE(w.d.space = TEGROUP_SPACE_DEVICE; w.d.output.shape.row_sizes.space = w.d.input.shape.row_sizes.space = TEGROUP_SPACE_DEVICE, ERROR_NOT_BUILT, "space",
               TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
}

TEST_MAIN()
