/* Codes from one order to the other, against the picture in docs/formats.md; products of interleaved codes, bit for bit those of
 * codes in order; and who refuses them. */
#define TEGROUP_EXTERN
#include "quantised_problem.h"
#include "test.h"

static int64_t width(rng *r) { return 64 * rng_int(r, 1, rng_chance(r, 10) ? 50 : 4); }

static unsigned code_at(tegroup_dtype dtype, const void *data, int64_t i) {
    const unsigned char *bytes = (const unsigned char *)data;
    return dtype == TEGROUP_DTYPE_F4E2M1 ? bytes[i / 2] >> i % 2 * 4 & 15u : bytes[i];
}

/* One copy of weights, in order: where its lines are, in codes, in one buffer or a list. */
typedef struct lines {
    tegroup_tensor t;
    int columnwise;
    int bits;
    int64_t lines, length, ld, group, room; /* room: of a buffer, in bytes */
    unsigned char *memory[6];
} lines;

static unsigned char *line_of(const lines *l, int32_t g, int64_t i) {
    return l->t.pointers_space ? l->memory[g] + i * l->ld * l->bits / 8 : l->memory[0] + (g * l->group + i * l->ld) * l->bits / 8;
}

static tegroup_scaling some_scaling(rng *r) {
    static const tegroup_scaling all[] = {TEGROUP_SCALING_MXFP8, TEGROUP_SCALING_MXFP4, TEGROUP_SCALING_NVFP4};
    return all[rng_int(r, 0, 2)];
}

static lines lines_make(rng *r, int32_t groups, int64_t rows, int64_t cols, int columnwise, tegroup_scaling scaling, tegroup_code_order order) {
    lines l;
    memset(&l, 0, sizeof l);
    l.bits = scaling == TEGROUP_SCALING_MXFP8 ? 8 : 4;
    l.t = tegroup_tensor_uniform(groups, rows, cols, l.bits == 8 ? TEGROUP_DTYPE_F8E4M3 : TEGROUP_DTYPE_F4E2M1, NULL);
    l.t.scaling = scaling;
    l.t.code_order = order;
    l.columnwise = columnwise;
    l.lines = columnwise ? cols : rows;
    l.length = columnwise ? rows : cols;
    if (columnwise) l.t.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    else if (rng_chance(r, 50)) {
        const int64_t unit = order == TEGROUP_CODES_INTERLEAVED ? 64 : 2;
        l.t.ld = cols + unit * rng_int(r, 0, 3);
        if (rng_chance(r, 50)) l.t.group_stride = rows * l.t.ld + unit * rng_int(r, 0, 3);
    }
    l.ld = columnwise ? rows : l.t.ld ? l.t.ld : cols;
    l.group = !columnwise && l.t.group_stride ? l.t.group_stride : l.lines * l.ld;
    if (rng_chance(r, 40)) l.t.pointers_space = TEGROUP_SPACE_HOST;
    const int32_t buffers = l.t.pointers_space ? groups : 1;
    l.room = ((l.t.pointers_space ? 0 : groups - 1) * l.group + (l.lines - 1) * l.ld + l.length) * l.bits / 8;
    for (int32_t g = 0; g < buffers; g++) {
        l.memory[g] = (unsigned char *)guarded_skewed((size_t)l.room, (size_t)rng_int(r, 0, 3));
        for (int64_t i = 0; i < l.room; i++) l.memory[g][i] = (unsigned char)rng_int(r, 0, 255);
    }
    void **list = NULL;
    if (l.t.pointers_space) {
        list = (void **)guarded((size_t)groups * sizeof(void *));
        for (int32_t g = 0; g < groups; g++) list[g] = l.memory[g];
    }
    if (columnwise) { l.t.columnwise_data = list ? NULL : l.memory[0]; l.t.columnwise_pointers = list; }
    else { l.t.data = list ? NULL : l.memory[0]; l.t.pointers = list; }
    return l;
}

/* What `to` must hold: every line of `from`, its other bytes as they were. */
static void expect_lines(const lines *from, const lines *to, unsigned char *want[6]) {
    for (int32_t g = 0; g < from->t.shape.groups; g++)
        for (int64_t i = 0; i < from->lines; i++) {
            unsigned char *line = want[to->t.pointers_space ? g : 0] + (line_of(to, g, i) - to->memory[to->t.pointers_space ? g : 0]);
            for (int64_t k = 0; k < from->length; k++) store_interleaved(from->t.dtype, line, k, code_at(from->t.dtype, line_of(from, g, i), k));
        }
}

TEST(code_order, by_the_picture_and_back) {
    rng r = rng_seed(7701);
    tegroup_error error;
    for (int64_t n = scaled(200); n > 0; n--) {
        void *mark = guards_mark();
        const int32_t groups = (int32_t)rng_int(&r, 1, 5);
        const int columnwise = rng_chance(&r, 40);
        const int64_t rows = columnwise ? width(&r) : rng_int(&r, 1, 9), cols = columnwise && rng_chance(&r, 50) ? 64 : width(&r);
        const tegroup_scaling scaling = some_scaling(&r);
        lines from = lines_make(&r, groups, rows, cols, columnwise, scaling, TEGROUP_CODES_IN_ORDER), to = lines_make(&r, groups, rows, cols, columnwise, scaling, TEGROUP_CODES_INTERLEAVED);
        lines back = from;
        const int32_t buffers = to.t.pointers_space ? groups : 1, sources = from.t.pointers_space ? groups : 1;
        unsigned char *want[6] = {NULL}, *before[6] = {NULL};
        for (int32_t g = 0; g < buffers; g++) memcpy(want[g] = (unsigned char *)scratch((size_t)to.room), to.memory[g], (size_t)to.room);
        for (int32_t g = 0; g < sources; g++) memcpy(before[g] = (unsigned char *)scratch((size_t)from.room), from.memory[g], (size_t)from.room);
        expect_lines(&from, &to, want);
        tegroup_code_convert_desc desc = {sizeof desc, TEGROUP_SPACE_HOST, columnwise, from.t, to.t, (int32_t)rng_int(&r, 0, 3)};
        ASSERT_EQ(tegroup_code_convert(&desc, NULL, &error), TEGROUP_OK);
        for (int32_t g = 0; g < buffers; g++) ASSERT_EQ(memcmp(want[g], to.memory[g], (size_t)to.room), 0);
        for (int32_t g = 0; g < sources; g++) ASSERT_EQ(memcmp(before[g], from.memory[g], (size_t)from.room), 0);
        /* Back into the memory that the codes came from, whose lines are poisoned first. */
        for (int32_t g = 0; g < groups; g++)
            for (int64_t i = 0; i < from.lines; i++) memset(line_of(&back, g, i), 0x5a, (size_t)(back.length * back.bits / 8));
        desc.from = to.t;
        desc.to = back.t;
        ASSERT_EQ(tegroup_code_convert(&desc, NULL, &error), TEGROUP_OK);
        for (int32_t g = 0; g < sources; g++) ASSERT_EQ(memcmp(before[g], from.memory[g], (size_t)from.room), 0);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

TEST(code_order, in_place) {
    rng r = rng_seed(7702);
    tegroup_error error;
    for (int64_t n = scaled(60); n > 0; n--) {
        void *mark = guards_mark();
        const int columnwise = rng_chance(&r, 40);
        lines to = lines_make(&r, 3, columnwise ? width(&r) : 5, width(&r), columnwise, some_scaling(&r), TEGROUP_CODES_INTERLEAVED), from = to;
        unsigned char *want[6] = {NULL};
        const int32_t buffers = to.t.pointers_space ? 3 : 1;
        from.t.code_order = TEGROUP_CODES_IN_ORDER;
        for (int32_t g = 0; g < buffers; g++) memcpy(want[g] = (unsigned char *)scratch((size_t)to.room), to.memory[g], (size_t)to.room);
        expect_lines(&from, &to, want);
        tegroup_code_convert_desc desc = {sizeof desc, TEGROUP_SPACE_HOST, columnwise, from.t, to.t, 2};
        ASSERT_EQ(tegroup_code_convert(&desc, NULL, &error), TEGROUP_OK);
        for (int32_t g = 0; g < buffers; g++) ASSERT_EQ(memcmp(want[g], to.memory[g], (size_t)to.room), 0);
        guards_release(mark);
    }
}

/* No groups, no lines, no codes: nothing is there to convert, and no memory needed. */
TEST(code_order, nothing) {
    static const int64_t shapes[][3] = {{0, 4, 64}, {2, 0, 64}, {2, 4, 0}};
    tegroup_error error;
    for (int i = 0; i < 3; i++) {
        tegroup_tensor t = tegroup_tensor_uniform((int32_t)shapes[i][0], shapes[i][1], shapes[i][2], TEGROUP_DTYPE_F4E2M1, NULL);
        t.scaling = TEGROUP_SCALING_MXFP4;
        tegroup_code_convert_desc desc = {sizeof desc, TEGROUP_SPACE_HOST, 0, t, t, 0};
        desc.to.code_order = TEGROUP_CODES_INTERLEAVED;
        ASSERT_EQ(tegroup_code_convert(&desc, NULL, &error), TEGROUP_OK);
    }
}

#define REFUSED(change, status, name, wanted, came)                                   \
    do {                                                                              \
        tegroup_code_convert_desc d = fine;                                           \
        tegroup_error error;                                                          \
        change;                                                                       \
        memset(out, 0x5a, sizeof out);                                                \
        ASSERT_EQ(tegroup_code_convert(&d, NULL, &error), TEGROUP_##status);          \
        ASSERT_STREQ(name, error.field);                                              \
        ASSERT_EQ(error.expected, (int64_t)(wanted));                                 \
        ASSERT_EQ(error.got, (int64_t)(came));                                        \
        for (size_t i_ = 0; i_ < sizeof out; i_++) ASSERT_EQ(out[i_], 0x5a);          \
    } while (0)

TEST(code_order, refusals) {
    static unsigned char in[3 * 64 * 128 / 2], out[sizeof in];
    int32_t sizes[3] = {1, 2, 3};
    void *some[3] = {out, NULL, out};
    tegroup_code_convert_desc fine = {sizeof fine, TEGROUP_SPACE_HOST, 0, tegroup_tensor_uniform(3, 64, 128, TEGROUP_DTYPE_F4E2M1, in), tegroup_tensor_uniform(3, 64, 128, TEGROUP_DTYPE_F4E2M1, out), 0};
    fine.from.scaling = fine.to.scaling = TEGROUP_SCALING_NVFP4;
    fine.to.code_order = TEGROUP_CODES_INTERLEAVED;
    tegroup_error nothing;
    ASSERT_EQ(tegroup_code_convert(&fine, NULL, &nothing), TEGROUP_OK);
    REFUSED(d.struct_size = 8, ERROR_STRUCT_SIZE, "struct_size", sizeof d, 8);
    REFUSED(d.space = TEGROUP_SPACE_UNSET, ERROR_UNSET, "space", TEGROUP_SPACE_HOST, 0);
    REFUSED(d.space = TEGROUP_SPACE_DEVICE, ERROR_NOT_BUILT, "space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    REFUSED(d.columnwise = 2, ERROR_VALUE, "columnwise", 1, 2);
    REFUSED(d.columnwise = 1, ERROR_COMBINATION, "columnwise", 0, 1);
    REFUSED(d.threads = -1, ERROR_VALUE, "threads", 0, -1);
    REFUSED(d.to.code_order = TEGROUP_CODES_IN_ORDER, ERROR_COMBINATION, "to.code_order", TEGROUP_CODES_INTERLEAVED, TEGROUP_CODES_IN_ORDER);
    REFUSED(d.from.code_order = TEGROUP_CODES_INTERLEAVED, ERROR_COMBINATION, "to.code_order", TEGROUP_CODES_IN_ORDER, TEGROUP_CODES_INTERLEAVED);
    REFUSED(d.to.code_order = (tegroup_code_order)2, ERROR_VALUE, "to.code_order", 1, 2);
    REFUSED(d.to.dtype = TEGROUP_DTYPE_F8E5M2; d.to.scaling = TEGROUP_SCALING_MXFP8, ERROR_COMBINATION, "to.code_order", TEGROUP_CODES_IN_ORDER, TEGROUP_CODES_INTERLEAVED);
    REFUSED(d.to.dtype = TEGROUP_DTYPE_F8E4M3; d.to.scaling = TEGROUP_SCALING_BLOCK_1X128, ERROR_COMBINATION, "to.code_order", TEGROUP_CODES_IN_ORDER, TEGROUP_CODES_INTERLEAVED);
    REFUSED(d.from.dtype = TEGROUP_DTYPE_F8E4M3; d.from.scaling = TEGROUP_SCALING_MXFP8, ERROR_DTYPE, "to.dtype", TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F4E2M1);
    REFUSED(d.to.scaling = TEGROUP_SCALING_MXFP4, ERROR_SHAPE, "to.scaling", TEGROUP_SCALING_NVFP4, TEGROUP_SCALING_MXFP4);
    REFUSED(d.to.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED, ERROR_COMBINATION, "to.columnwise_order", 0, 1);
    REFUSED(d.to.shape.row_sizes = tegroup_sizes_of(sizes, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST), ERROR_COMBINATION, "to.code_order", TEGROUP_CODES_IN_ORDER, TEGROUP_CODES_INTERLEAVED);
    REFUSED(d.from.shape.row_sizes = tegroup_sizes_of(sizes, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST), ERROR_COMBINATION, "from.shape.row_sizes.encoding", 0, TEGROUP_ENCODING_COUNTS);
    REFUSED(d.to.shape.groups = 2, ERROR_SHAPE, "to.shape.groups", 3, 2);
    REFUSED(d.to.shape.rows = 63, ERROR_SHAPE, "to.shape.rows", 64, 63);
    REFUSED(d.to.shape.cols = 64, ERROR_SHAPE, "to.shape.cols", 128, 64);
    REFUSED(d.to.shape.cols = 96, ERROR_LAYOUT, "to.shape.cols", 64, 96);
    REFUSED(d.to.ld = 160, ERROR_LAYOUT, "to.ld", 64, 160);
    REFUSED(d.to.group_stride = 64 * 128 + 32, ERROR_LAYOUT, "to.group_stride", 64, 64 * 128 + 32);
    REFUSED(d.from.columnwise_order = d.to.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED; d.from.shape.rows = d.to.shape.rows = 32, ERROR_LAYOUT, "to.shape.rows", 64, 32);
    REFUSED(d.from.data = NULL, ERROR_NULL_ARGUMENT, "from.data", 1, 0);
    REFUSED(d.to.data = NULL, ERROR_NULL_ARGUMENT, "to.data", 1, 0);
    REFUSED(d.to.data = in + 32, ERROR_OVERLAP, "to.data", 0, 1);
    REFUSED(d.to.data = in; d.to.group_stride = 65 * 128, ERROR_OVERLAP, "to.data", 0, 1);
    REFUSED(d.to.data = NULL; d.to.pointers_space = TEGROUP_SPACE_DEVICE, ERROR_COMBINATION, "to.pointers_space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    REFUSED(d.to.data = NULL; d.to.pointers_space = TEGROUP_SPACE_HOST; d.to.pointers = some, ERROR_NULL_ARGUMENT, "to.pointers", -1, 1);
    ASSERT_EQ(tegroup_code_convert(NULL, NULL, &nothing), TEGROUP_ERROR_NULL_ARGUMENT);
}

/* ---- products ---- */

/* A product's D, with weights in order and interleaved: every bit. */
TEST(code_order, products_have_the_same_bits) {
    rng r = rng_seed(7703);
    tegroup_error error;
    for (int64_t n = scaled(150); n > 0; n--) {
        void *mark = guards_mark();
        const int dgrad = rng_chance(&r, 50), f64 = rng_chance(&r, 30);
        const int64_t rows = rng_chance(&r, 30) ? rng_int(&r, 17, 60) : rng_int(&r, 0, 16), sum = rng_chance(&r, 5) ? 3072 + width(&r) : width(&r), across = 64 * rng_int(&r, 1, 2);
        const tegroup_scaling scaling = some_scaling(&r);
        lines in_order = lines_make(&r, 3, dgrad ? sum : across, dgrad ? across : sum, dgrad, scaling, TEGROUP_CODES_IN_ORDER);
        lines interleaved = lines_make(&r, 3, dgrad ? sum : across, dgrad ? across : sum, dgrad, scaling, TEGROUP_CODES_INTERLEAVED);
        for (int32_t g = 0; g < 3 && in_order.bits == 8; g++) /* no NaN */
            for (int64_t i = 0; i < in_order.lines; i++)
                for (int64_t k = 0; k < in_order.length; k++) line_of(&in_order, g, i)[k] &= 0xbf;
        tegroup_code_convert_desc convert = {sizeof convert, TEGROUP_SPACE_HOST, dgrad, in_order.t, interleaved.t, 1};
        ASSERT_EQ(tegroup_code_convert(&convert, NULL, &error), TEGROUP_OK);
        tegroup_layout layout;
        ASSERT_EQ(tegroup_tensor_layout(&in_order.t, dgrad ? TEGROUP_COPIES_COLUMNWISE : TEGROUP_COPIES_ROWWISE, &layout, &error), TEGROUP_OK);
        const int64_t scale_bytes = (int64_t)layout.items[dgrad ? 3 : 1].bytes; /* of all groups, or the largest of a list */
        unsigned char *scales = (unsigned char *)scratch((size_t)(scale_bytes * 3));
        void *list[3] = {scales, scales + scale_bytes, scales + 2 * scale_bytes};
        for (int64_t i = 0; i < 3 * scale_bytes; i++) scales[i] = (unsigned char)rng_int(&r, 112, 126); /* E8M0 and E4M3 alike: numbers */
        float *a = (float *)scratch((size_t)(3 * rows * sum + 1) * 4), *d[2];
        for (int64_t i = 0; i < 3 * rows * sum; i++) a[i] = (float)(2 * rng_unit(&r) - 1);
        for (int which = 0; which < 2; which++) {
            const lines *w = which ? &interleaved : &in_order;
            tegroup_gemm_desc desc;
            tegroup_plan plan;
            memset(&desc, 0, sizeof desc);
            desc.struct_size = sizeof desc;
            desc.op = dgrad ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD;
            desc.space = TEGROUP_SPACE_HOST;
            desc.a = tegroup_tensor_uniform(3, rows, sum, TEGROUP_DTYPE_F32, a);
            desc.b = w->t;
            /* A list has a buffer a group; scales of one buffer lie a group after another. */
            const int listed = w->t.pointers_space != TEGROUP_SPACE_UNSET;
            const int64_t all = in_order.t.pointers_space ? scale_bytes : scale_bytes / 3;
            for (int g = 0; g < 3; g++) list[g] = scales + g * all;
            if (dgrad) { desc.b.columnwise_scale_inv = listed ? NULL : scales; desc.b.columnwise_scale_pointers = listed ? list : NULL; }
            else { desc.b.scale_inv = listed ? NULL : scales; desc.b.scale_pointers = listed ? list : NULL; }
            d[which] = (float *)guarded((size_t)(3 * rows * across) * 4);
            memset(d[which], 0xff, (size_t)(3 * rows * across) * 4);
            desc.d = tegroup_tensor_uniform(3, rows, across, TEGROUP_DTYPE_F32, d[which]);
            desc.options.compute = f64 ? TEGROUP_COMPUTE_F64 : n % 2 ? TEGROUP_COMPUTE_F32 : TEGROUP_COMPUTE_F32_FAST;
            desc.options.threads = 1 + which;
            ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
            desc.options.workspace = scratch(plan.workspace_bytes);
            desc.options.workspace_bytes = plan.workspace_bytes;
            ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
        }
        ASSERT_EQ(memcmp(d[0], d[1], (size_t)(3 * rows * across) * 4), 0);
        for (int64_t i = 0; i < 3 * rows * across; i++) ASSERT_TRUE(d[0][i] == d[0][i]);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* A linear layer, forward and back, whose weights have both copies interleaved. */
TEST(code_order, linear_layer) {
    enum { GROUPS = 2, ROWS = 9, N = 128, K = 64, CODES = GROUPS * N * K / 2, SCALES = GROUPS * 512 };
    static unsigned char codes[2][2][CODES], scales[2][SCALES]; /* rowwise, columnwise; in order, interleaved */
    static float x[ROWS * K], dy[ROWS * N], y[2][ROWS * N], dx[2][ROWS * K];
    const int64_t counts[GROUPS] = {4, 5};
    rng r = rng_seed(7704);
    tegroup_error error;
    tegroup_layout layout;
    for (int i = 0; i < CODES; i++)
        for (int copy = 0; copy < 2; copy++) codes[copy][0][i] = (unsigned char)rng_int(&r, 0, 255);
    for (int i = 0; i < SCALES; i++)
        for (int copy = 0; copy < 2; copy++) scales[copy][i] = (unsigned char)rng_int(&r, 120, 130);
    for (int i = 0; i < ROWS * K; i++) x[i] = (float)(2 * rng_unit(&r) - 1);
    for (int i = 0; i < ROWS * N; i++) dy[i] = (float)(2 * rng_unit(&r) - 1);
    tegroup_tensor weight = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_F4E2M1, codes[0][0]);
    weight.scaling = TEGROUP_SCALING_MXFP4;
    weight.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    weight.columnwise_data = codes[1][0];
    weight.scale_inv = scales[0];
    weight.columnwise_scale_inv = scales[1];
    tegroup_tensor interleaved = weight;
    interleaved.data = codes[0][1];
    interleaved.columnwise_data = codes[1][1];
    interleaved.code_order = TEGROUP_CODES_INTERLEAVED;
    for (int columnwise = 0; columnwise < 2; columnwise++) {
        tegroup_code_convert_desc convert = {sizeof convert, TEGROUP_SPACE_HOST, columnwise, weight, interleaved, 1};
        ASSERT_EQ(tegroup_code_convert(&convert, NULL, &error), TEGROUP_OK);
    }
    tegroup_shape rows = tegroup_shape_of(GROUPS, ROWS, K, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    ASSERT_EQ(tegroup_snapshot_layout(&rows, &layout, &error), TEGROUP_OK);
    ASSERT_EQ(tegroup_shape_prepare(&rows, guarded(layout.total_bytes), layout.total_bytes, NULL, &error), TEGROUP_OK);
    for (int which = 0; which < 2; which++) {
        tegroup_linear_desc desc;
        tegroup_linear_plan plan;
        memset(&desc, 0, sizeof desc);
        desc.struct_size = sizeof desc;
        desc.space = TEGROUP_SPACE_HOST;
        desc.weight = which ? interleaved : weight;
        desc.input = tegroup_tensor_of(rows, K, TEGROUP_DTYPE_F32, x);
        desc.grad_output = tegroup_tensor_of(rows, N, TEGROUP_DTYPE_F32, dy);
        desc.out = tegroup_tensor_of(rows, N, TEGROUP_DTYPE_F32, y[which]);
        desc.dgrad_out = tegroup_tensor_of(rows, K, TEGROUP_DTYPE_F32, dx[which]);
        memset(y[which], 0xff, sizeof y[which]);
        memset(dx[which], 0xff, sizeof dx[which]);
        ASSERT_EQ(tegroup_linear_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
        desc.options.workspace_bytes = plan.workspace_bytes;
        desc.options.workspace = scratch(plan.workspace_bytes);
        ASSERT_EQ(tegroup_linear_forward(&plan, &desc, NULL, &error), TEGROUP_OK);
        ASSERT_EQ(tegroup_linear_dgrad(&plan, &desc, NULL, &error), TEGROUP_OK);
    }
    ASSERT_EQ(memcmp(y[0], y[1], sizeof y[0]), 0);
    ASSERT_EQ(memcmp(dx[0], dx[1], sizeof dx[0]), 0);
    for (int i = 0; i < ROWS * N; i++) ASSERT_TRUE(y[0][i] == y[0][i]);
}

static tegroup_gemm_desc product_on(tegroup_space space, tegroup_op op) {
    tegroup_gemm_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.op = op;
    desc.space = space;
    desc.a = tegroup_tensor_uniform(2, 64, 128, TEGROUP_DTYPE_BF16, NULL);
    desc.b = tegroup_tensor_uniform(2, 128, 128, TEGROUP_DTYPE_F4E2M1, NULL);
    desc.b.scaling = TEGROUP_SCALING_MXFP4;
    desc.b.code_order = TEGROUP_CODES_INTERLEAVED;
    if (op == TEGROUP_OP_DGRAD) desc.b.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    desc.d = tegroup_tensor_uniform(2, 64, 128, TEGROUP_DTYPE_BF16, NULL);
    return desc;
}

TEST(code_order, who_reads_them) {
    tegroup_error error;
    tegroup_problem problem;
    tegroup_gemm_desc desc = product_on(TEGROUP_SPACE_HOST, TEGROUP_OP_FORWARD);
    ASSERT_EQ(tegroup_gemm_problem(&desc, &problem, &error), TEGROUP_OK);
    ASSERT_EQ(problem.code_order[1], TEGROUP_CODES_INTERLEAVED);
    desc.a = desc.b;
    desc.d.shape.rows = 128;
    ASSERT_EQ(tegroup_gemm_problem(&desc, &problem, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ("a.code_order", error.field);
    desc = product_on(TEGROUP_SPACE_HOST, TEGROUP_OP_DGRAD);
    ASSERT_EQ(tegroup_gemm_problem(&desc, &problem, &error), TEGROUP_OK);
    desc.b.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA;
    ASSERT_EQ(tegroup_gemm_problem(&desc, &problem, &error), TEGROUP_ERROR_COMBINATION);
    ASSERT_STREQ("b.columnwise_order", error.field);
    desc = product_on(TEGROUP_SPACE_HOST, TEGROUP_OP_WGRAD);
    desc.b.shape.rows = 64;
    desc.d = tegroup_tensor_uniform(2, 128, 128, TEGROUP_DTYPE_BF16, NULL);
    ASSERT_EQ(tegroup_gemm_problem(&desc, &problem, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ("b.code_order", error.field);
    /* The rowwise copy does not serve a dgrad, though a square block's values are the same along both. */
    static unsigned char memory[2 * 128 * 128];
    desc = product_on(TEGROUP_SPACE_HOST, TEGROUP_OP_DGRAD);
    desc.b.scaling = TEGROUP_SCALING_NVFP4_16X16;
    tegroup_plan plan;
    ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
    desc.a.data = desc.b.data = desc.b.scale_inv = memory;
    static uint16_t d[2 * 64 * 128];
    desc.d.data = d;
    ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT);
    ASSERT_STREQ("b.columnwise_data", error.field);
    /* A call's order is that of its plan. */
    desc.b.columnwise_data = desc.b.columnwise_scale_inv = memory;
    desc.b.code_order = TEGROUP_CODES_IN_ORDER;
    ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_ERROR_PLAN);
    ASSERT_STREQ("b.code_order", error.field);
}

/* On a Hopper GPU SM90 alone takes them, and says what it lacks where it does not. */
TEST(code_order, verdicts) {
    static const tegroup_backend backends[] = {TEGROUP_BACKEND_SM90, TEGROUP_BACKEND_PORTABLE, TEGROUP_BACKEND_CUBLASLT_GROUPED, TEGROUP_BACKEND_CUBLASLT_LOOP};
    tegroup_error error;
    tegroup_target target;
    memset(&target, 0, sizeof target);
    target.struct_size = sizeof target;
    target.sm = 90;
    target.cublaslt_version = 131000;
    for (int b = 0; b < 4; b++) target.built |= 1u << backends[b];
    for (int change = 0; change < 6; change++) {
        tegroup_gemm_desc desc = product_on(TEGROUP_SPACE_DEVICE, change == 1 ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD);
        tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
        if (change < 5) desc.a.shape.row_sizes = desc.d.shape.row_sizes = tegroup_sizes_of(&target, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE); /* which nobody reads */
        if (change == 2) desc.d.dtype = TEGROUP_DTYPE_F32;
        if (change == 3) desc.b.scale_outer_stride = 4, desc.b.scale_inner_stride = 1;
        if (change == 4) desc.options.expected_rows = 1 << 20; /* codes in order would be decoded first */
        ASSERT_EQ(tegroup_explain(&desc, &target, verdicts, &error), TEGROUP_OK);
        for (int32_t i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++) {
            const int sm90 = verdicts[i].backend == TEGROUP_BACKEND_SM90, fine = sm90 && change != 2 && change != 3 && change != 5;
            if (verdicts[i].backend == TEGROUP_BACKEND_CPU) continue;
            ASSERT_EQ(verdicts[i].status == TEGROUP_OK, fine);
            ASSERT_EQ(verdicts[i].chosen, fine);
            if (verdicts[i].backend == TEGROUP_BACKEND_PORTABLE || (sm90 && !fine)) ASSERT_STREQ("b.code_order", verdicts[i].field);
        }
    }
    /* Tiles are low up to 96 rows a group, of two groups, and tall above, however many there are. */
    static const struct { int64_t expected; int32_t tile; } tiles[] = {{2, 64}, {192, 64}, {193, 256}, {1 << 20, 256}};
    for (int t = 0; t < 4; t++) {
        tegroup_gemm_desc desc = product_on(TEGROUP_SPACE_DEVICE, TEGROUP_OP_FORWARD);
        tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
        desc.a.shape.row_sizes = desc.d.shape.row_sizes = tegroup_sizes_of(&target, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
        desc.a.shape.rows = desc.d.shape.rows = 1 << 20;
        desc.options.expected_rows = tiles[t].expected;
        ASSERT_EQ(tegroup_explain(&desc, &target, verdicts, &error), TEGROUP_OK);
        for (int32_t i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++)
            if (verdicts[i].backend == TEGROUP_BACKEND_SM90) ASSERT_EQ(verdicts[i].tile_m, tiles[t].tile);
    }
}

/* What works on values wants codes in order. */
TEST(code_order, quantise_and_dequantise_refuse_them) {
    tegroup_error error;
    tegroup_quantize_desc to;
    memset(&to, 0, sizeof to);
    to.struct_size = sizeof to;
    to.space = TEGROUP_SPACE_HOST;
    to.input = tegroup_tensor_uniform(2, 64, 64, TEGROUP_DTYPE_F32, NULL);
    to.output = tegroup_tensor_uniform(2, 64, 64, TEGROUP_DTYPE_F4E2M1, NULL);
    to.output.scaling = TEGROUP_SCALING_MXFP4;
    to.output.code_order = TEGROUP_CODES_INTERLEAVED;
    to.rule = tegroup_scale_rule_of(TEGROUP_SCALE_OCP_MX);
    ASSERT_EQ(tegroup_quantize(&to, NULL, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ("output.code_order", error.field);
    tegroup_dequantize_desc back;
    memset(&back, 0, sizeof back);
    back.struct_size = sizeof back;
    back.space = TEGROUP_SPACE_HOST;
    back.input = to.output;
    back.output = to.input;
    ASSERT_EQ(tegroup_dequantize(&back, NULL, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ("input.code_order", error.field);
}

TEST_MAIN()
