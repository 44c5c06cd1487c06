/* The set-up of a grouped cuBLASLt matmul: its arrays, read as cuBLASLt reads them by a plain column-major product written
 * here, give the grouped product. */
#define TEGROUP_IMPLEMENTATION
#include "quantised_problem.h"
#include "test.h"

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};

typedef struct arrays {
    tegroup_impl_setup_items items;
    unsigned char *base;
    tegroup_impl_setup *groups;
    int usual; /* 1: the groups were set up in the short way; 2: in that and the general one, and they differ */
} arrays;

static void views_of(const tegroup_gemm_desc *d, tegroup_snapshot_view views[4]) { /* by the shapes, as for a GPU */
    const tegroup_tensor *tensors[4] = {&d->a, &d->b, &d->c, &d->d};
    for (int i = 0; i < 4; i++) {
        const tegroup_shape *shape = &tensors[i]->shape;
        if (tensors[i]->dtype == TEGROUP_DTYPE_UNSET || shape->snapshot == NULL) memset(&views[i], 0, sizeof views[i]);
        else views[i] = tegroup_impl_snapshot_view(shape->snapshot, shape->groups, shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET);
    }
}

static arrays set_up(const problem *p) {
    arrays s;
    tegroup_snapshot_view views[4];
    views_of(&p->desc, views);
    s.base = (unsigned char *)scratch((size_t)tegroup_impl_setup_bytes(p->s.groups));
    s.groups = (tegroup_impl_setup *)scratch((size_t)p->s.groups * sizeof *s.groups);
    s.items = tegroup_impl_setup_items_of(p->s.groups, s.base);
    tegroup_gemm_desc desc = p->desc; /* scalars that are one for all travel by value, as to a GPU */
    float alpha = 1, beta = 0;
    if (!desc.alpha.stride) { alpha = (float)tegroup_impl_scalar(&desc.alpha, 0, 1); desc.alpha.space = TEGROUP_SPACE_UNSET; }
    if (!desc.beta.stride) { beta = (float)tegroup_impl_scalar(&desc.beta, 0, 0); desc.beta.space = TEGROUP_SPACE_UNSET; }
    tegroup_impl_setup_call call = tegroup_impl_setup_call_of(&desc, views, alpha, beta, s.items);
    s.usual = call.usual;
    for (int32_t g = 0; g < p->s.groups; g++) {
        tegroup_impl_setup general;
        memset(&general, 0, sizeof general);
        memset(&s.groups[g], 0, sizeof s.groups[g]);
        tegroup_impl_setup_group(&call, 0, g, &general);
        tegroup_impl_setup_group(&call, call.usual, g, &s.groups[g]);
        tegroup_impl_setup_store(&s.groups[g], &s.items, g);
        if (memcmp(&general, &s.groups[g], sizeof general) != 0) s.usual = 2;
    }
    return s;
}

static int64_t entry(const arrays *s, tegroup_impl_setup_item item, int32_t g) {
    int64_t value;
    memcpy(&value, tegroup_impl_setup_at(&s->items, item) + (size_t)g * 8, 8);
    return value;
}

/* One group's D = alpha op(A) op(B) + beta C by columns, as cublasLtMatmul defines it. "" or what is odd. Where no
 * sum of the problem can have a term, cuBLASLt is not called: then D stays as it is. */
static const char *column_major(const problem *p, const arrays *s, int32_t g) {
    int ta = p->s.op == TEGROUP_OP_FORWARD, tb = p->s.op == TEGROUP_OP_WGRAD;
    int64_t a_rows = entry(s, TEGROUP_IMPL_SETUP_A_ROWS, g), a_cols = entry(s, TEGROUP_IMPL_SETUP_A_COLS, g), lda = entry(s, TEGROUP_IMPL_SETUP_A_LD, g);
    int64_t b_rows = entry(s, TEGROUP_IMPL_SETUP_B_ROWS, g), b_cols = entry(s, TEGROUP_IMPL_SETUP_B_COLS, g), ldb = entry(s, TEGROUP_IMPL_SETUP_B_LD, g);
    int64_t rows = entry(s, TEGROUP_IMPL_SETUP_D_ROWS, g), cols = entry(s, TEGROUP_IMPL_SETUP_D_COLS, g), ldd = entry(s, TEGROUP_IMPL_SETUP_D_LD, g), ldc = entry(s, TEGROUP_IMPL_SETUP_C_LD, g);
    int64_t k = ta ? a_rows : a_cols;
    const void *a = (const void *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_A, g), *b = (const void *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_B, g);
    const void *c = (const void *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_C, g);
    void *d = (void *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_D, g);
    const float *alpha = (const float *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_ALPHA, g), *beta = (const float *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_BETA, g);
    if ((const char *)alpha != tegroup_impl_setup_at(&s->items, TEGROUP_IMPL_SETUP_ALPHA_VALUE) + (size_t)g * 4) return "alpha is elsewhere";
    if ((const char *)beta != tegroup_impl_setup_at(&s->items, TEGROUP_IMPL_SETUP_BETA_VALUE) + (size_t)g * 4) return "beta is elsewhere";
    if ((ta ? a_cols : a_rows) != rows || (tb ? b_rows : b_cols) != cols || (tb ? b_cols : b_rows) != k) return "dimensions disagree";
    if (rows < 0 || cols < 0 || k < 0) return "a negative dimension";
    if ((!p->desc.options.ignore_quirks && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 != 0) || !a || !b || !c || !d) return "an address that cuBLASLt cannot take";
    if (rows * cols == 0 || !p->a.tensor.shape.rows || !p->a.tensor.shape.cols || !p->d.tensor.shape.cols) return "";
    if (ldd < rows || ldc < rows || (k > 0 && (lda < a_rows || ldb < b_rows))) return "a leading dimension is too small";
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++) {
            double sum = 0;
            for (int64_t q = 0; q < k; q++)
                sum += load(p->b.dtype, a, ta ? q + i * lda : i + q * lda) * load(p->a.dtype, b, tb ? j + q * ldb : q + j * ldb);
            sum *= *alpha;
            if (*beta != 0) sum += *beta * load(p->d.dtype, c, i + j * ldc);
            store(p->d.dtype, d, i + j * ldd, sum);
        }
    return "";
}

/* What the set-up kernel writes itself, in the tests' words. */
static void alone(problem *p, const arrays *s, int32_t g) {
    const grid *c = p->s.c == C_SEPARATE ? &p->c : &p->d;
    if (s->groups[g].alone == TEGROUP_IMPL_ALONE_NOTHING) return;
    for (int64_t i = 0; i < p->d.rows[g]; i++)
        for (int64_t j = 0; j < p->d.cols[g]; j++) {
            double x = s->groups[g].alone == TEGROUP_IMPL_ALONE_NAN ? (double)NAN : s->groups[g].beta == 0 ? 0 : s->groups[g].beta * value_at(c, g, i, j);
            store(p->d.dtype, p->d.at[g], i * p->d.ld[g] + j, x);
        }
}

/* Terms of each of a group's sums. */
static int64_t terms(const spec *s, int32_t g) {
    return s->op == TEGROUP_OP_WGRAD ? group_rows(s, g) : s->op == TEGROUP_OP_DGRAD ? group_n(s, g) : group_k(s, g);
}

/* The tests' own rule of which groups cuBLASLt would read or write wrongly: an address, or rows of D, of other than
 * whole 16 bytes. An empty sum is none: it reads neither operand, and beta * C can be written anywhere. */
static int misaligned(const problem *p, int32_t g) {
    uintptr_t all = (uintptr_t)p->a.at[g] | (uintptr_t)p->b.at[g] | (uintptr_t)p->d.at[g];
    if (p->s.c == C_SEPARATE) all |= (uintptr_t)p->c.at[g];
    all |= (uintptr_t)p->d.cols[g] * size_of(p->d.dtype);
    return all % 16 != 0 && terms(&p->s, g) > 0 && p->d.rows[g] > 0 && p->d.cols[g] > 0 && !group_skipped(&p->s, g);
}

TEST(setup, arrays_give_the_product) {
    rng r = rng_seed(7001);
    int64_t kinds[3] = {0, 0, 0}, problems = scaled(1500), elements = 0, usual = 0;
    for (int64_t i = 0; i < problems; i++) {
        void *mark = guards_mark();
        spec s = random_half_spec(&r, ops[i % 3], 20, 30, 1);
        problem p;
        problem_make(&p, &s);
        problem_reference(&p);
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        arrays at = set_up(&p);
        ASSERT_LE(at.usual, 1);
        usual += at.usual;
        for (int32_t g = 0; g < s.groups; g++) {
            ASSERT_STREQ("", column_major(&p, &at, g));
            ASSERT_EQ((int)at.groups[g].alone == TEGROUP_IMPL_ALONE_NAN, 0);
            alone(&p, &at, g);
            kinds[at.groups[g].alone]++;
        }
        verdict v = problem_compare(&p);
        if (!(v.worst <= 1)) printf("problem %ld: error/bound %g\n", (long)i, v.worst);
        ASSERT_TRUE(v.worst <= 1);
        ASSERT_EQ(0, problem_disturbed(&p));
        elements += v.count;
        problem_release(&p);
        guards_release(mark);
    }
    printf("setup: %ld problems, %ld of them usual, %ld elements, %ld groups by cuBLASLt, %ld empty sums\n", (long)problems, (long)usual, (long)elements, (long)kinds[0], (long)kinds[1]);
    ASSERT_GT(kinds[1], 0);
    ASSERT_TRUE(usual > 0 && usual < problems);
}

/* A group at an address that cuBLASLt would read wrongly gives NaN and nothing else; its neighbours are right, and so
 * is an empty sum wherever it lies. Where the caller ignores the quirks all of them are cuBLASLt's. */
TEST(setup, misaligned_groups_show) {
    rng r = rng_seed(7002);
    int64_t shown = 0, fine = 0, risked = 0;
    for (int64_t i = scaled(600); i > 0; i--) {
        void *mark = guards_mark();
        spec s = random_half_spec(&r, ops[i % 3], 12, 20, 0);
        if (i % 2) { /* rows of D of whole 16 bytes: then the addresses alone decide */
            s.n = (s.n + 7) / 8 * 8;
            s.k = (s.k + 7) / 8 * 8;
            if (s.ng != NULL) s.ng = whole_widths(s.ng, s.groups);
            if (s.kg != NULL) s.kg = whole_widths(s.kg, s.groups);
        }
        problem p;
        problem_make(&p, &s);
        if (i % 3 == 0 && i % 2) p.desc.options.ignore_quirks = ~UINT64_C(0);
        problem_reference(&p);
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        arrays at = set_up(&p);
        ASSERT_LE(at.usual, 1);
        for (int32_t g = 0; g < s.groups; g++) {
            int nan = misaligned(&p, g) && !p.desc.options.ignore_quirks;
            ASSERT_EQ(nan, at.groups[g].alone == TEGROUP_IMPL_ALONE_NAN);
            risked += !nan && misaligned(&p, g);
            ASSERT_STREQ("", column_major(&p, &at, g));
            alone(&p, &at, g);
            for (int64_t e = 0; nan && e < p.d.rows[g] * p.d.cols[g]; e++) p.want[g][e] = (double)NAN;
            shown += nan;
            fine += !nan;
        }
        ASSERT_TRUE(problem_compare(&p).worst <= 1);
        ASSERT_EQ(0, problem_disturbed(&p));
        problem_release(&p);
        guards_release(mark);
    }
    ASSERT_GT(shown, 0);
    ASSERT_GT(fine, 0);
    ASSERT_GT(risked, 0);
}

/* Of 16 groups each has another choice of a, b, c and d a step away from whole 16 bytes: all but the first show,
 * unless their sums are empty. Only the set-up is looked at. */
TEST(setup, a_group_shows_where_anything_it_multiplies_is_misaligned) {
    enum { GROUPS = 16 };
    for (int turn = 0; turn < 6; turn++) {
        void *mark = guards_mark();
        int64_t m[GROUPS], k = turn / 3 * 8;
        spec s = {.aligned = 1, .op = ops[turn % 3], .groups = GROUPS, .m = m, .in = TEGROUP_DTYPE_BF16, .lists = 15,
            .c = C_SEPARATE, .tail_rows = 8};
        s.n = s.op == TEGROUP_OP_DGRAD ? k : 8;
        s.k = s.op == TEGROUP_OP_FORWARD ? k : 8;
        for (int32_t g = 0; g < GROUPS; g++) m[g] = s.op == TEGROUP_OP_WGRAD ? k : 8;
        problem p;
        problem_make(&p, &s);
        const tegroup_tensor *const lists[] = {&p.desc.a, &p.desc.b, &p.desc.c, &p.desc.d};
        for (int32_t g = 0; g < GROUPS; g++)
            for (int i = 0; i < 4; i++) ((char **)(uintptr_t)lists[i]->pointers)[g] += g >> i & 1 ? 2 : 0;
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        arrays at = set_up(&p);
        for (int32_t g = 0; g < GROUPS; g++) ASSERT_EQ(k > 0 && g > 0, at.groups[g].alone == TEGROUP_IMPL_ALONE_NAN);
        problem_release(&p);
        guards_release(mark);
    }
}

/* Skipped groups and sums that change nothing have no columns; an infinite alpha does not meet an empty sum. */
TEST(setup, what_is_kept_from_cublaslt) {
    int64_t m[4] = {-1, 0, 3, 8};
    void *mark = guards_mark();
    spec s = {.aligned = 1, .op = TEGROUP_OP_WGRAD, .groups = 4, .m = m, .n = 8, .k = 16, .in = TEGROUP_DTYPE_BF16, .out = TEGROUP_DTYPE_F32, .alpha = SCALARS_ONE};
    for (int turn = 0; turn < 3; turn++) {
        problem p;
        s.c = turn == 1 ? C_ACCUMULATE : C_NONE;
        problem_make(&p, &s);
        if (turn == 2) *(float *)p.alpha = INFINITY;
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        arrays at = set_up(&p);
        ASSERT_EQ(0, entry(&at, TEGROUP_IMPL_SETUP_D_COLS, 0));
        ASSERT_EQ(turn == 0 ? 8 : 0, entry(&at, TEGROUP_IMPL_SETUP_D_COLS, 1));
        ASSERT_EQ(turn == 2 ? TEGROUP_IMPL_ALONE_EMPTY : TEGROUP_IMPL_ALONE_NOTHING, (int)at.groups[1].alone);
        ASSERT_EQ(8, entry(&at, TEGROUP_IMPL_SETUP_D_COLS, 2));
        ASSERT_EQ(16, entry(&at, TEGROUP_IMPL_SETUP_D_ROWS, 3));
        ASSERT_EQ(3, entry(&at, TEGROUP_IMPL_SETUP_A_COLS, 2));
        problem_release(&p);
    }
    problem p; /* no group can have a row, so that cuBLASLt is not called: the zeros are not left to it */
    int64_t none[4] = {0, 0, 0, 0};
    s.c = C_NONE;
    s.m = none;
    problem_make(&p, &s);
    ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
    arrays at = set_up(&p);
    for (int32_t g = 0; g < 4; g++) ASSERT_EQ(TEGROUP_IMPL_ALONE_EMPTY, (int)at.groups[g].alone);
    problem_release(&p);
    s.m = m; /* a C whose rows lie further apart than D's; only the entries are looked at */
    s.c = C_SEPARATE;
    problem_make(&p, &s);
    p.desc.c.ld = 24;
    ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
    at = set_up(&p);
    ASSERT_EQ(24, entry(&at, TEGROUP_IMPL_SETUP_C_LD, 2));
    ASSERT_EQ(16, entry(&at, TEGROUP_IMPL_SETUP_D_LD, 2));
    problem_release(&p);
    guards_release(mark);
}

/* A snapshot that is none for its tensor: never prepared, or for other groups, more rows or another kind of shape. Every group is skipped, and
 * nothing else of it is read, which a buffer that is just long enough for fewer groups shows under a sanitizer. */
TEST(setup, snapshots_that_are_none) {
    rng r = rng_seed(7003);
    for (int64_t i = scaled(600); i > 0; i--) {
        void *mark = guards_mark();
        spec s = random_half_spec(&r, ops[i % 3], 12, 20, 1);
        s.groups = (int32_t)rng_int(&r, 2, 6);
        s.m = random_rows(&r, s.groups, 12, 0);
        s.ng = s.kg = NULL;
        problem p;
        problem_make(&p, &s);
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        tegroup_tensor *const tensors[] = {&p.desc.a, &p.desc.b, &p.desc.d, &p.desc.c};
        tegroup_tensor *t = tensors[rng_int(&r, 0, s.c == C_SEPARATE ? 3 : 2)];
        if (t->shape.row_sizes.encoding == TEGROUP_ENCODING_UNSET) t = &p.desc.a;
        tegroup_snapshot_header *header = (tegroup_snapshot_header *)(uintptr_t)t->shape.snapshot;
        switch (i % 5) {
        case 0: memset(header, 0xF7, sizeof *header); break;
        case 1: memset(header, 0, sizeof *header); break;
        case 2: header->rows_end = t->shape.rows + 1; break;
        case 3: header->irregular = 1; break;
        default: { /* prepared for no groups, in the memory that this takes */
            tegroup_layout layout;
            tegroup_prepare_desc fewer;
            memset(&fewer, 0, sizeof fewer);
            fewer.struct_size = sizeof fewer;
            fewer.shape = t->shape;
            fewer.shape.groups = 0;
            fewer.space = TEGROUP_SPACE_HOST;
            ASSERT_EQ(TEGROUP_OK, tegroup_snapshot_layout(&fewer.shape, &layout, &p.error));
            fewer.snapshot = guarded(fewer.snapshot_bytes = layout.total_bytes);
            ASSERT_EQ(TEGROUP_OK, tegroup_prepare(&fewer, NULL, &p.error));
            t->shape.snapshot = fewer.snapshot;
        }
        }
        arrays at = set_up(&p);
        for (int32_t g = 0; g < s.groups; g++) {
            ASSERT_EQ(0, entry(&at, TEGROUP_IMPL_SETUP_D_COLS, g));
            ASSERT_EQ(TEGROUP_IMPL_ALONE_NOTHING, (int)at.groups[g].alone);
            ASSERT_STREQ("", column_major(&p, &at, g)); /* what cuBLASLt is given is valid, and asks for nothing */
        }
        ASSERT_EQ(0, guards_changed());
        problem_release(&p);
        guards_release(mark);
    }
}

/* ---- quantised operands ---- */

/* The scale of element k of a line of one operand, as cuBLAS documents where its mode has it ("Narrow precision data types usage"):
 * [K / 128][lines up to 4], [lines / 128][K / 128 up to 4], or tiles of 128 lines x 4 blocks. */
static double lt_scale(const scaling_row *f, const void *scales, int64_t K, int64_t lines, int64_t line, int64_t k) {
    const float *f32 = (const float *)scales;
    const unsigned char *bytes = (const unsigned char *)scales;
    const int64_t inner = f->scale == TEGROUP_DTYPE_F8E4M3 ? 16 : 32, block = k / inner;
    if (f->scaling == TEGROUP_SCALING_TENSOR) return f32[0];
    if (f->scaling == TEGROUP_SCALING_BLOCK_1X128) return f32[k / 128 * up(lines, 4) + line];
    if (f->scaling == TEGROUP_SCALING_BLOCK_128X128) return f32[line / 128 * up((K + 127) / 128, 4) + k / 128];
    return small_values(f->scale)[bytes[(line / 128 * (up((K + inner - 1) / inner, 4) / 4) + block / 4) * 512 + line % 32 * 16 + line / 32 % 4 * 4 + block % 4]];
}
static double lt_value(const quantised *q, const void *data, int64_t at) {
    const unsigned char byte = ((const unsigned char *)data)[q->dtype == TEGROUP_DTYPE_F4E2M1 ? at / 2 : at];
    return small_values(q->dtype)[q->dtype != TEGROUP_DTYPE_F4E2M1 ? byte : at % 2 ? byte >> 4 : byte & 15];
}

/* One group of quantised operands, by columns: "" or what is odd. */
static const char *column_major_scaled(const problem *p, const arrays *s, const quantised q[2], int32_t g) {
    const int sums_b = p->s.op != TEGROUP_OP_FORWARD, sums_a = p->s.op == TEGROUP_OP_WGRAD;
    const int ta = !sums_b || q[1].transposed, tb = sums_a && !q[0].transposed; /* of the library's A, which is b, and B */
    const int64_t a_rows = entry(s, TEGROUP_IMPL_SETUP_A_ROWS, g), a_cols = entry(s, TEGROUP_IMPL_SETUP_A_COLS, g), lda = entry(s, TEGROUP_IMPL_SETUP_A_LD, g);
    const int64_t b_rows = entry(s, TEGROUP_IMPL_SETUP_B_ROWS, g), b_cols = entry(s, TEGROUP_IMPL_SETUP_B_COLS, g), ldb = entry(s, TEGROUP_IMPL_SETUP_B_LD, g);
    const int64_t rows = entry(s, TEGROUP_IMPL_SETUP_D_ROWS, g), cols = entry(s, TEGROUP_IMPL_SETUP_D_COLS, g), ldc = entry(s, TEGROUP_IMPL_SETUP_C_LD, g), ldd = entry(s, TEGROUP_IMPL_SETUP_D_LD, g);
    const int64_t k = ta ? a_rows : a_cols;
    const void *a = (const void *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_A, g), *b = (const void *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_B, g), *c = (const void *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_C, g);
    const void *a_scale = (const void *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_A_SCALE, g), *b_scale = (const void *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_B_SCALE, g);
    void *d = (void *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_D, g);
    const float *alpha = (const float *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_ALPHA, g), *beta = (const float *)(uintptr_t)entry(s, TEGROUP_IMPL_SETUP_BETA, g);
    if ((ta ? a_cols : a_rows) != rows || (tb ? b_rows : b_cols) != cols || (tb ? b_cols : b_rows) != k) return "dimensions disagree";
    if (rows < 0 || cols < 0 || k < 0) return "a negative dimension";
    if (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 != 0 || !a || !b || !c || !d) return "an address that cuBLASLt cannot take";
    if (!a_scale || !b_scale || (uintptr_t)a_scale % (q[1].f->outer == 0 ? 4 : 16) != 0 || (uintptr_t)b_scale % (q[0].f->outer == 0 ? 4 : 16) != 0) return "scales at an address that cuBLASLt cannot take";
    if (lda < a_rows || ldb < b_rows || ldd < rows || ldc < rows || lda % 16 != 0 || ldb % 16 != 0) return "a leading dimension";
    if (rows * cols == 0) return "";
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++) {
            double sum = 0;
            for (int64_t z = 0; z < k; z++)
                sum += lt_value(&q[1], a, ta ? z + i * lda : i + z * lda) * lt_scale(q[1].f, a_scale, k, rows, i, z)
                     * lt_value(&q[0], b, tb ? j + z * ldb : z + j * ldb) * lt_scale(q[0].f, b_scale, k, cols, j, z);
            sum *= *alpha;
            if (*beta != 0) sum += *beta * load(p->d.dtype, c, i + j * ldc);
            store(p->d.dtype, d, i + j * ldd, sum);
        }
    return "";
}

static arrays set_up_scaled(const problem *p) {
    arrays s;
    tegroup_snapshot_view views[4];
    tegroup_gemm_desc desc = p->desc;
    float alpha = 1, beta = 0;
    views_of(&desc, views);
    s.base = (unsigned char *)scratch((size_t)tegroup_impl_setup_bytes(p->s.groups));
    s.groups = (tegroup_impl_setup *)scratch((size_t)p->s.groups * sizeof *s.groups);
    s.items = tegroup_impl_setup_items_of(p->s.groups, s.base);
    if (!desc.alpha.stride) { alpha = (float)tegroup_impl_scalar(&desc.alpha, 0, 1); desc.alpha.space = TEGROUP_SPACE_UNSET; }
    if (!desc.beta.stride) { beta = (float)tegroup_impl_scalar(&desc.beta, 0, 0); desc.beta.space = TEGROUP_SPACE_UNSET; }
    tegroup_impl_setup_take_copies(&desc);
    const tegroup_impl_setup_call call = tegroup_impl_setup_call_of(&desc, views, alpha, beta, s.items);
    const tegroup_impl_setup_scaled scaled[2] = {tegroup_impl_setup_scaled_of(&desc, TEGROUP_IMPL_A), tegroup_impl_setup_scaled_of(&desc, TEGROUP_IMPL_B)};
    const int prepared = tegroup_impl_setup_prepared(&call);
    s.usual = 0;
    tegroup_impl_setup_taken before[2] = {{0, 0}, {0, 0}};
    for (int32_t g = 0; g < p->s.groups; g++) {
        memset(&s.groups[g], 0, sizeof s.groups[g]);
        tegroup_impl_setup_scaled_group(&call, scaled, before, prepared, g, &s.groups[g]);
        if (prepared) tegroup_impl_setup_take(&scaled[0], &call.a, g, &before[0]);
        if (prepared) tegroup_impl_setup_take(&scaled[1], &call.b, g, &before[1]);
        tegroup_impl_setup_store(&s.groups[g], &s.items, g);
    }
    return s;
}

/* Every pair of scalings and every operation: what the arrays lead to, read as cuBLAS documents it, gives the product, also for the
 * formats that no GPU at hand multiplies. */
TEST(setup, quantised_arrays_give_the_product) {
    int64_t pairs = 0, elements = 0, empty = 0;
    for (int a = 0; a < SCALINGS; a++)
        for (int b = 0; b < SCALINGS; b++)
            for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) {
                const scaling_row *fa = &scaling_rows[a], *fb = &scaling_rows[b];
                const int hopper = lt_goes(fa, fb, 1);
                if ((!hopper && !lt_goes(fa, fb, 0)) || (is_fp4(fa->scaling) && op == TEGROUP_OP_WGRAD)) continue;
                pairs++;
                rng r = rng_seed(7100000u + (uint64_t)((a * 16 + b) * 4 + op));
                int64_t hollow = 0; /* groups of a wgrad without rows: as their scales may be anything, the library gets none of them */
                for (int64_t i = scaled(8); i > 0 || (op == TEGROUP_OP_WGRAD && hollow == 0);) {
                    problem p;
                    quantised q[2];
                    if (!lt_problem(&p, &r, fa, fb, (tegroup_op)op, q, 0, rng_chance(&r, 20) ? 150 : 12, rng_chance(&r, 10) ? 320 : 64)) continue;
                    i--;
                    problem_reference(&p);
                    ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
                    const arrays at = set_up_scaled(&p);
                    for (int32_t g = 0; g < p.s.groups; g++) {
                        const char *odd = column_major_scaled(&p, &at, q, g);
                        if (odd[0] != 0) printf("%s x %s, op %d, group %d of %d: %s\n", name_of(fa), name_of(fb), op, g, p.s.groups, odd);
                        ASSERT_STREQ("", odd);
                        ASSERT_NE((int)at.groups[g].alone, TEGROUP_IMPL_ALONE_NAN);
                        if (terms(&p.s, g) == 0 && p.d.rows[g] > 0 && p.d.cols[g] > 0 && !group_skipped(&p.s, g)) {
                            ASSERT_EQ(0, entry(&at, TEGROUP_IMPL_SETUP_D_COLS, g));
                            hollow++;
                        }
                        empty += at.groups[g].alone == TEGROUP_IMPL_ALONE_EMPTY;
                        alone(&p, &at, g);
                    }
                    const verdict v = problem_compare(&p);
                    if (!(v.worst <= 1)) printf("%s x %s, op %d: error/bound %g\n", name_of(fa), name_of(fb), op, v.worst);
                    ASSERT_TRUE(v.worst <= 1);
                    ASSERT_EQ(0, problem_disturbed(&p));
                    elements += v.count;
                    problem_release(&p);
                }
            }
    ASSERT_EQ(pairs, 3 * 4 + 3 * 4 + 2 * 4);
    ASSERT_GT(empty, 0);
    printf("setup: %ld quantised pairs and ops, %ld elements, %ld empty sums\n", (long)pairs, (long)elements, (long)empty);
}

/* A group whose scales begin elsewhere than the library can read them gives NaN, unless its sums are empty; one scale may lie at any
 * multiple of four bytes. A snapshot that is none leads to no scales. */
TEST(setup, odd_scales_show) {
    int64_t shown = 0, fine = 0;
    for (int f = 0; f <= 2; f += 2) {
        rng r = rng_seed(7300000u + (uint64_t)f);
        for (int64_t i = scaled(30); i > 0;) {
            problem p;
            quantised q[2];
            if (!lt_problem(&p, &r, &scaling_rows[f], &scaling_rows[f], (tegroup_op)rng_int(&r, 1, 3), q, 0, 12, 64)) continue;
            const int which = (int)rng_int(&r, 0, 1), cw = q[which].columnwise;
            const tegroup_tensor *t = which ? &p.desc.b : &p.desc.a;
            const int32_t odd = p.s.groups > 0 ? (int32_t)rng_int(&r, 0, p.s.groups - 1) : 0;
            if (t->pointers_space == TEGROUP_SPACE_UNSET || p.s.groups == 0) { problem_release(&p); continue; }
            i--;
            void **list = (void **)(uintptr_t)(cw ? t->columnwise_scale_pointers : t->scale_pointers);
            list[odd] = (char *)list[odd] + 4;
            ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
            const arrays at = set_up_scaled(&p);
            for (int32_t g = 0; g < p.s.groups; g++) {
                const int worked_on = terms(&p.s, g) > 0 && p.d.rows[g] > 0 && p.d.cols[g] > 0 && !group_skipped(&p.s, g), nan = g == odd && worked_on && f == 2;
                ASSERT_EQ(nan, at.groups[g].alone == TEGROUP_IMPL_ALONE_NAN);
                ASSERT_EQ(0, entry(&at, TEGROUP_IMPL_SETUP_A_SCALE, g) % (f == 0 ? 4 : 16));
                ASSERT_EQ(0, entry(&at, TEGROUP_IMPL_SETUP_B_SCALE, g) % (f == 0 ? 4 : 16));
                if (nan) ASSERT_EQ(0, entry(&at, TEGROUP_IMPL_SETUP_D_COLS, g));
                shown += nan;
                fine += worked_on && !nan;
            }
            if (p.desc.a.shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET) {
                memset((void *)(uintptr_t)p.desc.a.shape.snapshot, 0xf7, sizeof(tegroup_snapshot_header));
                const arrays none = set_up_scaled(&p);
                for (int32_t g = 0; g < p.s.groups; g++) {
                    ASSERT_EQ(0, entry(&none, TEGROUP_IMPL_SETUP_D_COLS, g));
                    ASSERT_NE(0, entry(&none, TEGROUP_IMPL_SETUP_A_SCALE, g));
                    ASSERT_EQ(TEGROUP_IMPL_ALONE_NOTHING, (int)none.groups[g].alone);
                }
            }
            problem_release(&p);
        }
    }
    ASSERT_TRUE(shown > 0 && fine > 0);
}

TEST_MAIN()
