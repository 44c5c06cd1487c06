/* The contract, a test a line. Run on the CPU backend, where every line that is not about a GPU can be shown. */
#define TEGROUP_EXTERN
#include "support.h"
#include "test.h"

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
static const tegroup_dtype dtypes[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F64};

static int row_bits_differ(const problem *p, int32_t g, int64_t row, const problem *q, int32_t h, int64_t other) {
    int64_t element = (int64_t)size_of(p->d.dtype);
    return memcmp(p->d.at[g] + row * p->d.ld[g] * element, q->d.at[h] + other * q->d.ld[h] * element, (size_t)(p->d.cols[g] * element)) != 0;
}

/* 1. Output goes straight into the caller's buffer. The same product lands with the same bits at another alignment, stride
 * and place; an output written before is not touched again; and no workspace grows with the rows, so nothing is staged. */
TEST(contract, line1_output_in_callers_buffer) {
    rng r = rng_seed(3001);
    for (int64_t i = scaled(40); i > 0; i--) {
        void *mark = guards_mark();
        problem p, q, dgrad;
        spec s = random_spec(&r, ops[i % 3], 40, 60), t;
        s.lists = 0;
        t = s;
        t.pad = s.pad + 3;
        t.tail_rows = s.tail_rows + 7;
        if (s.m != NULL && s.encoding == TEGROUP_ENCODING_COUNTS) t.place = PLACE_STARTS;
        problem_make(&p, &s);
        problem_make(&q, &t);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        guarded_remember(p.d.tensor.data);
        ASSERT_EQ(problem_run(&q), TEGROUP_OK);
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t row = 0; row < p.d.rows[g]; row++)
                if (!group_skipped(&s, g)) ASSERT_EQ(row_bits_differ(&p, g, row, &q, g, row), 0);
        spec u = s; /* another output, and the first is as it was */
        u.op = TEGROUP_OP_DGRAD;
        u.bias = u.bias_of_b = 0;
        u.row_scale_dtype = TEGROUP_DTYPE_UNSET;
        problem_make(&dgrad, &u);
        ASSERT_EQ(problem_run(&dgrad), TEGROUP_OK);
        ASSERT_EQ(guarded_changed(p.d.tensor.data), 0);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    spec few = {.op = TEGROUP_OP_FORWARD, .groups = 2, .n = 64, .k = 64, .rows_each = 1, .threads = 2}, many = few;
    problem p, q;
    many.rows_each = 3000;
    problem_make(&p, &few);
    problem_make(&q, &many);
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    ASSERT_EQ(problem_plan(&q), TEGROUP_OK);
    ASSERT_EQ(p.plan.workspace_bytes, q.plan.workspace_bytes);
    guards_release(p.mark);
}

/* 2. Rows that no group owns: KEEP leaves every bit, ZERO writes exact zeros, POISON writes NaN; rows that one owns are the
 * same in all three, and what lies between rows is nobody's. */
TEST(contract, line2_tail_untouched) {
    rng r = rng_seed(3002);
    int64_t unowned[3] = {0, 0, 0};
    for (int64_t i = scaled(150); i > 0; i--) {
        void *mark = guards_mark();
        spec s = random_spec(&r, ops[i % 2], 30, 40);
        problem p[3];
        if (s.m == NULL) { s.m = random_rows(&r, s.groups, 30, 1); s.encoding = TEGROUP_ENCODING_COUNTS; }
        s.ng = s.kg = NULL;
        s.lists &= ~(8 | 4);
        s.tail_rows = rng_int(&r, 0, 20);
        for (int tail = TEGROUP_TAIL_KEEP; tail <= TEGROUP_TAIL_POISON; tail++) {
            problem *q = &p[tail];
            s.tail = (tegroup_tail)tail;
            problem_make(q, &s);
            ASSERT_EQ(problem_run(q), TEGROUP_OK);
            size_t element = size_of(q->d.dtype);
            int64_t ld = q->d.tensor.ld != 0 ? q->d.tensor.ld : q->d.tensor.shape.cols, width = q->d.tensor.shape.cols, wrong = 0;
            const unsigned char *then = (const unsigned char *)guarded_memory(q->d.tensor.data), *now = (const unsigned char *)q->d.tensor.data;
            static const unsigned char zeros[8];
            for (int64_t row = 0; row < q->capacity; row++) {
                int owned = 0;
                for (int32_t g = 0; g < s.groups; g++) owned |= row >= q->start[g] && row < q->start[g] + q->d.rows[g];
                for (int64_t col = 0; col < (row + 1 < q->capacity ? ld : width); col++) {
                    size_t at = (size_t)(row * ld + col) * element;
                    if (owned && col < width) continue;
                    if (col >= width || tail == TEGROUP_TAIL_KEEP) wrong += memcmp(now + at, then + at, element) != 0;
                    else if (tail == TEGROUP_TAIL_ZERO) wrong += memcmp(now + at, zeros, element) != 0;
                    else wrong += !isnan(load(q->d.dtype, now, row * ld + col)) || memcmp(now + at, then + at, element) == 0;
                    unowned[tail] += col < width;
                }
            }
            ASSERT_EQ(wrong, 0);
            for (int32_t g = 0; g < s.groups; g++)
                for (int64_t row = 0; row < q->d.rows[g]; row++) ASSERT_EQ(row_bits_differ(&p[0], g, row, q, g, row), 0);
            ASSERT_EQ(guards_changed(), 0);
        }
        guards_release(mark);
    }
    for (int tail = 0; tail < 3; tail++) ASSERT_GT(unowned[tail], 0);
}

/* What beta * C is, in the type of the sums, rounded once to the result's. */
static double scaled_c(const spec *s, double beta, double c) {
    return rounded(s->out, s->compute == TEGROUP_COMPUTE_F64 ? beta * c : (double)(float)((float)beta * (float)c));
}

static int same_bits(double a, double b) { return (isnan(a) && isnan(b)) || (a == b && !signbit(a) == !signbit(b)); }

/* 3a. Nothing to sum: D = beta * C exactly, with -0, NaN, infinity and subnormals in C; with beta 0 exactly +0, C unread. */
static void nothing_to_sum(rng *r, int what) {
    static const double special[] = {-0.0, 0.0, INFINITY, -INFINITY, NAN, 0x1p-140, -0x1p-24, 1.0, -3.5, 0x1p120};
    static const double betas[] = {1, -1, 0.5, 0, -2, 1};
    int64_t none[6] = {0, 0, 0, 0, 0, 0}, one[6] = {1, 1, 1, 1, 1, 1}, mixed[6] = {0, 3, 0, 1, 0, 0};
    for (int op = 0; op < 3; op++)
        for (int dtype = 0; dtype < 4; dtype++)
            for (int c = C_SEPARATE; c <= C_ACCUMULATE; c++) {
                void *mark = guards_mark();
                int wgrad = ops[op] == TEGROUP_OP_WGRAD;
                spec s = {.op = ops[op], .groups = 6, .n = 5, .k = 7, .in = dtypes[dtype], .out = dtypes[dtype], .c = (c_kind)c, .alpha = SCALARS_EACH,
                          .beta = SCALARS_EACH, .pad = 2, .threads = 1, .seed = rng_next(r)};
                problem p;
                if (s.in == TEGROUP_DTYPE_F64) s.compute = TEGROUP_COMPUTE_F64;
                s.m = what == 0 ? none : what == 1 ? mixed : one; /* all empty; some; one row of width 0 */
                if (what == 2 && ops[op] == TEGROUP_OP_FORWARD) s.k = 0;
                if (what == 2 && ops[op] == TEGROUP_OP_DGRAD) s.n = 0;
                if (what == 2 && wgrad) s.m = none;
                problem_make(&p, &s);
                grid *from = c == C_SEPARATE ? &p.c : &p.d;
                for (int32_t g = 0; g < s.groups; g++) {
                    if (c != C_ACCUMULATE) ((float *)p.beta)[g] = (float)betas[g];
                    double beta = c == C_ACCUMULATE ? 1 : betas[g];
                    for (int64_t i = 0; i < from->rows[g]; i++)
                        for (int64_t j = 0; j < from->cols[g]; j++) {
                            double x = special[rng_int(r, 0, 9)];
                            if (beta == 0) x = NAN;
                            store(from->dtype, from->at[g], i * from->ld[g] + j, x);
                        }
                }
                for (guarded_node *node = guarded_top; node != (guarded_node *)p.mark; node = node->older)
                    if (!node->scratch) guarded_remember(node->data);
                ASSERT_EQ(problem_run(&p), TEGROUP_OK);
                const unsigned char *before = (const unsigned char *)guarded_memory(from->tensor.data), *base = (const unsigned char *)from->tensor.data;
                for (int32_t g = 0; g < s.groups; g++) {
                    if (what == 1 && s.m[g] > 0) continue; /* these have something to sum */
                    for (int64_t i = 0; i < p.d.rows[g]; i++)
                        for (int64_t j = 0; j < p.d.cols[g]; j++) {
                            double was = load(from->dtype, before + (from->at[g] - base), i * from->ld[g] + j);
                            double beta = c == C_ACCUMULATE ? 1 : betas[g];
                            ASSERT_TRUE(same_bits(value_at(&p.d, g, i, j), beta == 0 ? 0.0 : scaled_c(&s, beta, was)));
                        }
                }
                ASSERT_EQ(problem_disturbed(&p), 0);
                guards_release(mark);
            }
}

/* 3b. NaN in a valid row shows in all that depends on it and in nothing else. */
static void nan_shows(rng *r) {
    int64_t shown = 0;
    for (int64_t i = scaled(150); i > 0; i--) {
        void *mark = guards_mark();
        problem p, q;
        spec s = random_spec(r, ops[i % 3], 12, 20);
        s.c = C_NONE;
        s.lists = 0;
        s.alpha = SCALARS_DEFAULT;
        problem_make(&p, &s);
        problem_make(&q, &s);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        int which = (int)rng_int(r, 0, 1), wgrad = s.op == TEGROUP_OP_WGRAD;
        grid *t = which == 0 ? &q.a : &q.b;
        int32_t bad = s.groups > 0 ? (int32_t)rng_int(r, 0, s.groups - 1) : 0;
        if (s.groups == 0 || t->rows[bad] == 0 || t->cols[bad] == 0 || (!wgrad && q.d.rows[bad] == 0) || group_skipped(&s, bad)) { guards_release(mark); continue; }
        int64_t row = rng_int(r, 0, t->rows[bad] - 1), col = rng_int(r, 0, t->cols[bad] - 1);
        store(t->dtype, t->at[bad], row * t->ld[bad] + col, NAN);
        ASSERT_EQ(problem_run(&q), TEGROUP_OK);
        /* a spoils a row of D (WGRAD: the row of its column); b a column (FORWARD: the column of its row) */
        int64_t bad_row = which == 0 ? (wgrad ? col : row) : -1, bad_col = which == 1 ? (s.op == TEGROUP_OP_FORWARD ? row : col) : -1;
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t y = 0; y < q.d.rows[g]; y++)
                for (int64_t x = 0; x < q.d.cols[g]; x++) {
                    double got = value_at(&q.d, g, y, x), clean = value_at(&p.d, g, y, x);
                    if (group_skipped(&s, g)) continue;
                    if (g == bad && (y == bad_row || x == bad_col)) { ASSERT_TRUE(isnan(got)); shown++; }
                    else ASSERT_TRUE(same_bits(got, clean) && !isnan(got));
                }
        guards_release(mark);
    }
    ASSERT_GT(shown, 0);
}

TEST(contract, line3_nothing_to_sum_is_beta_c) {
    rng r = rng_seed(3003);
    for (int what = 0; what < 3; what++) {
        nothing_to_sum(&r, what);
        ASSERT_PASSING();
    }
    for (int op = 0; op < 3; op++) { /* no groups at all: nothing is needed, nothing happens */
        spec s = {.op = ops[op], .groups = 0, .n = 5, .k = 7, .tail_rows = 4, .m = (int64_t[]){0}};
        problem p;
        problem_make(&p, &s);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        ASSERT_EQ(problem_disturbed(&p), 0);
        problem_release(&p);
    }
    /* all padding and every C of a group whose beta is 0 is NaN in these problems: none of it may leak */
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        problem p;
        spec s = random_spec(&r, ops[i % 3], 20, 30);
        s.c = (c_kind)rng_int(&r, 0, 2);
        s.pad = 3;
        problem_make(&p, &s);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t row = 0; row < p.d.rows[g]; row++)
                for (int64_t col = 0; col < p.d.cols[g]; col++)
                    if (!(s.op == TEGROUP_OP_WGRAD && group_skipped(&s, g))) ASSERT_FALSE(isnan(value_at(&p.d, g, row, col)));
        guards_release(mark);
    }
    nan_shows(&r);
    /* alpha 0 hides nothing, and NaN in C shows where beta is not 0 */
    int64_t rows[1] = {2};
    problem p;
    spec s = {.op = TEGROUP_OP_FORWARD, .groups = 1, .m = rows, .n = 3, .k = 4, .c = C_SEPARATE, .alpha = SCALARS_ONE, .beta = SCALARS_ONE};
    problem_make(&p, &s);
    ((float *)p.alpha)[0] = 0;
    ((float *)p.beta)[0] = 0.5f;
    for (int e = 0; e < 6; e++) store(TEGROUP_DTYPE_F32, p.c.at[0], e, e == 5 ? (double)NAN : e);
    store(TEGROUP_DTYPE_F32, p.a.at[0], 2, NAN);
    ASSERT_EQ(problem_run(&p), TEGROUP_OK);
    for (int e = 0; e < 6; e++) ASSERT_EQ(!!isnan(value_at(&p.d, 0, e / 3, e % 3)), e < 3 || e == 5);
    problem_release(&p);
}

/* 4. Sizes that lie: the snapshot says so, and no byte outside the rows that it grants is written. test_prepare.c does this
 * for 100,000 arrays; here whole calls run on lies. */
TEST(contract, line4_lying_sizes_stay_inside) {
    static const int64_t lies[] = {INT64_MIN, INT64_MAX, -2, -1000, 1 << 20, INT64_C(1) << 40, INT64_C(1) << 62, 5, 0};
    rng r = rng_seed(3004);
    int64_t told = 0, runs = scaled(1500);
    for (int64_t i = 0; i < runs; i++) {
        void *mark = guards_mark();
        problem p;
        spec s = random_spec(&r, ops[i % 3], 12, 9);
        s.groups = (int32_t)rng_int(&r, 1, 6);
        s.m = random_rows(&r, s.groups, 12, 0);
        s.ng = s.kg = NULL;
        s.lists = 0;
        s.place = PLACE_DENSE;
        s.encoding = (tegroup_encoding)rng_int(&r, 1, 3);
        s.index = TEGROUP_DTYPE_I64;
        s.tail_rows = 0;
        s.clamp = 1;
        problem_make(&p, &s);
        int64_t *sizes = (int64_t *)(uintptr_t)p.desc.a.shape.row_sizes.data;
        for (int64_t n = rng_int(&r, 1, 3); n > 0; n--) sizes[rng_int(&r, 0, s.groups - (s.encoding != TEGROUP_ENCODING_OFFSETS))] = lies[rng_int(&r, 0, 8)];
        guarded_remember(sizes);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        tegroup_snapshot_view v = tegroup_snapshot_read(p.desc.a.shape.snapshot);
        ASSERT_EQ(v.header->status != 0, v.header->bad_group >= 0);
        told += v.header->status != 0;
        for (int32_t g = 0; g < s.groups; g++) { /* what the snapshot grants is D's; the rest is compared */
            ASSERT_TRUE(v.rows[g] <= 0 || (v.start[g] >= 0 && v.start[g] + v.rows[g] <= p.capacity));
            if (s.op == TEGROUP_OP_WGRAD) continue;
            p.d.rows[g] = v.rows[g] > 0 ? v.rows[g] : 0;
            p.d.at[g] = (unsigned char *)p.d.tensor.data + v.start[g] * p.d.ld[g] * (int64_t)size_of(p.d.dtype);
        }
        ASSERT_EQ(problem_disturbed(&p), 0);
        guards_release(mark);
    }
    ASSERT_GT(told, runs / 2);
}

/* 5. A call depends on nothing but its arguments: the same plan and descriptor, run again over other sizes and poisoned
 * outputs, gives what fresh ones give, byte for byte. (Capture itself needs a GPU.) */
TEST(contract, line5_replay_with_other_sizes) {
    rng r = rng_seed(3005);
    for (int64_t i = scaled(40); i > 0; i--) {
        void *mark = guards_mark();
        int64_t m[5];
        spec s = random_spec(&r, ops[i % 3], 10, 30);
        s.groups = 5;
        for (int g = 0; g < 5; g++) m[g] = rng_int(&r, 0, 20);
        s.m = m;
        s.encoding = TEGROUP_ENCODING_COUNTS;
        s.index = TEGROUP_DTYPE_I32;
        s.place = PLACE_DENSE;
        s.lists = 0;
        s.ng = s.kg = NULL;
        s.c = C_NONE;
        s.tail_rows = 100 - m[0] - m[1] - m[2] - m[3] - m[4]; /* capacity 100 throughout */
        problem captured;
        problem_make(&captured, &s);
        grid *ragged[] = {&captured.a, &captured.b}; /* rows past the last are numbers, too: later sizes will reach them */
        for (int t = 0; t < (s.op == TEGROUP_OP_WGRAD ? 2 : 1); t++) {
            int64_t ld = ragged[t]->tensor.ld != 0 ? ragged[t]->tensor.ld : ragged[t]->tensor.shape.cols;
            fill(&r, FILL_NORMAL, s.in, ragged[t]->tensor.data, 100, ragged[t]->tensor.shape.cols, ld);
        }
        if (captured.row_scale != NULL) fill(&r, FILL_NORMAL, s.row_scale_dtype, captured.row_scale, 100, 1, 1);
        ASSERT_EQ(problem_plan(&captured), TEGROUP_OK);
        int32_t *counts = (int32_t *)(uintptr_t)captured.desc.a.shape.row_sizes.data;
        for (int replay = 0; replay < 4; replay++) {
            tegroup_gemm_desc fresh = captured.desc;
            tegroup_plan plan;
            tegroup_layout layout;
            size_t d_bytes = guarded_find(captured.d.tensor.data)->bytes, bias_bytes = captured.s.bias ? guarded_find(captured.bias.tensor.data)->bytes : 0;
            int64_t left = 100;
            for (int g = 0; g < 5; g++) counts[g] = (int32_t)rng_int(&r, replay == 2 ? -1 : 0, left < 40 ? left : 40), left -= counts[g] > 0 ? counts[g] : 0;
            if (replay == 3) memset(counts, 0, 20);
            poison(captured.d.tensor.data, d_bytes);
            poison(captured.desc.options.workspace, captured.desc.options.workspace_bytes);
            if (s.op == TEGROUP_OP_WGRAD && captured.s.bias) poison(captured.bias.tensor.data, bias_bytes);
            ASSERT_EQ(problem_prepare(&captured), TEGROUP_OK);
            ASSERT_EQ(tegroup_gemm(&captured.plan, &captured.desc, NULL, NULL), TEGROUP_OK);
            /* the fresh one: new memory for all that is written or derived */
            fresh.d.data = guarded_skewed(d_bytes, 64);
            fresh.options.workspace = NULL;
            if (s.op == TEGROUP_OP_WGRAD && captured.s.bias) fresh.bias.data = guarded(bias_bytes);
            tegroup_tensor *tensors[] = {&fresh.a, &fresh.b, &fresh.d};
            for (int t = 0; t < 3; t++) {
                if (tensors[t]->shape.row_sizes.encoding == TEGROUP_ENCODING_UNSET) continue;
                ASSERT_EQ(tegroup_snapshot_layout(&tensors[t]->shape, &layout, NULL), TEGROUP_OK);
                tegroup_shape *shape = &tensors[t]->shape;
                void *snapshot = guarded(layout.total_bytes);
                ASSERT_EQ(tegroup_shape_prepare(shape, snapshot, layout.total_bytes, NULL, NULL), TEGROUP_OK);
            }
            ASSERT_EQ(tegroup_plan_make(&fresh, NULL, &plan, NULL), TEGROUP_OK);
            fresh.options.workspace_bytes = plan.workspace_bytes;
            fresh.options.workspace = guarded(plan.workspace_bytes);
            ASSERT_EQ(tegroup_gemm(&plan, &fresh, NULL, NULL), TEGROUP_OK);
            ASSERT_EQ(memcmp(fresh.d.data, captured.d.tensor.data, d_bytes), 0);
            if (bias_bytes > 0) ASSERT_EQ(memcmp(fresh.bias.data, captured.bias.tensor.data, bias_bytes), 0);
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* 6. Bitwise deterministic: a row's bits do not depend on how many rows come with it, how they are grouped, who computes
 * them or what the workspace held; a weight gradient depends on its group's rows alone. */
TEST(contract, line6_bitwise_deterministic) {
    static const int64_t batches[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 31, 64, 127, 128, 129, 200, 257, 400};
    rng r = rng_seed(3006);
    for (int op = 0; op < 3; op++)
        for (int dtype = 0; dtype < 4; dtype++) {
            void *mark = guards_mark();
            int64_t whole[1] = {400}, part[4], first[4];
            int32_t id[4] = {0, 0, 1, 0};
            problem all, some;
            spec s = {.op = ops[op], .groups = 1, .m = whole, .n = rng_int(&r, 20, 60), .k = rng_int(&r, 250, 520), .in = dtypes[dtype], .alpha = SCALARS_ONE,
                      .threads = 2, .seed = rng_next(&r)};
            if (op == 1) { int64_t t = s.n; s.n = s.k; s.k = t; }
            problem_make(&all, &s);
            ASSERT_EQ(problem_run(&all), TEGROUP_OK);
            for (int b = 0; b < 20; b++) {
                spec t = s;
                t.groups = 4; /* the batch in three pieces with a stranger between */
                t.threads = b % 4 + 1;
                t.group_id = id;
                t.row_first = first;
                t.m = part;
                int64_t at = rng_int(&r, 0, 400 - batches[b]);
                if (op == 2) { part[0] = 400; part[1] = 0; first[0] = first[1] = 0; part[3] = 0; first[3] = 0; }
                else {
                    part[0] = rng_int(&r, 0, batches[b]);
                    part[1] = rng_int(&r, 0, batches[b] - part[0]);
                    part[3] = batches[b] - part[0] - part[1];
                    first[0] = at; first[1] = at + part[0]; first[3] = at + part[0] + part[1];
                }
                part[2] = rng_int(&r, 0, 9);
                first[2] = 0;
                problem_make(&some, &t);
                ASSERT_EQ(problem_plan(&some), TEGROUP_OK);
                ASSERT_EQ(some.plan.numerics_id, all.plan.numerics_id);
                ASSERT_EQ(problem_prepare(&some), TEGROUP_OK);
                for (size_t e = 0; e < some.desc.options.workspace_bytes; e++) ((unsigned char *)some.desc.options.workspace)[e] = b % 3 == 0 ? 0 : b % 3 == 1 ? 0xFF : (unsigned char)rng_next(&r);
                ASSERT_EQ(tegroup_gemm(&some.plan, &some.desc, NULL, NULL), TEGROUP_OK);
                for (int32_t g = 0; g < 4; g++)
                    for (int64_t row = 0; row < some.d.rows[g] && g != 2 && (op != 2 || g == 0); row++)
                        ASSERT_EQ(row_bits_differ(&all, 0, op == 2 ? row : first[g] + row, &some, g, row), 0);
                ASSERT_EQ(problem_disturbed(&some), 0);
                problem_release(&some);
            }
            guards_release(mark);
        }
    /* the choice of backend and the number of rows do not change numerics_id; what changes the order of a sum does */
    tegroup_gemm_desc d;
    tegroup_plan plan;
    problem p;
    spec s = {.op = TEGROUP_OP_FORWARD, .groups = 3, .rows_each = 8, .n = 16, .k = 32};
    problem_make(&p, &s);
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    d = p.desc;
    d.a.shape.rows = d.d.shape.rows = 100000;
    ASSERT_EQ(tegroup_plan_make(&d, NULL, &plan, NULL), TEGROUP_OK);
    ASSERT_EQ(plan.numerics_id, p.plan.numerics_id);
    d = p.desc;
    d.a.shape.cols = d.b.shape.cols = 33;
    ASSERT_EQ(tegroup_plan_make(&d, NULL, &plan, NULL), TEGROUP_OK);
    ASSERT_NE(plan.numerics_id, p.plan.numerics_id);
    d = p.desc;
    d.a.dtype = d.b.dtype = TEGROUP_DTYPE_BF16;
    ASSERT_EQ(tegroup_plan_make(&d, NULL, &plan, NULL), TEGROUP_OK);
    ASSERT_NE(plan.numerics_id, p.plan.numerics_id);
    d = p.desc;
    d.options.compute = TEGROUP_COMPUTE_F64;
    ASSERT_EQ(tegroup_plan_make(&d, NULL, &plan, NULL), TEGROUP_OK);
    ASSERT_NE(plan.numerics_id, p.plan.numerics_id);
    problem_release(&p);
    /* of a weight gradient, whose sums run over rows, its own rows and columns do not either */
    s.op = TEGROUP_OP_WGRAD;
    problem_make(&p, &s);
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    for (int side = 0; side < 2; side++) {
        d = p.desc;
        if (side) d.b.shape.cols = d.d.shape.cols = 33;
        else d.a.shape.cols = d.d.shape.rows = 17;
        ASSERT_EQ(tegroup_plan_make(&d, NULL, &plan, NULL), TEGROUP_OK);
        ASSERT_EQ(plan.numerics_id, p.plan.numerics_id);
    }
    problem_release(&p);
}

/* 7. Explain is what the plan does, for machines that are not here as well. test_explain.c has the thousand problems. */
TEST(contract, line7_explain_is_the_plan) {
    static const int32_t sms[] = {0, 75, 80, 90, 100, 103, 120}, versions[] = {0, 130100, 130500, 130801, 131000};
    rng r = rng_seed(3007);
    int64_t chosen = 0, refused = 0;
    for (int64_t i = scaled(300); i > 0; i--) {
        void *mark = guards_mark();
        tegroup_verdict v[TEGROUP_BACKEND_COUNT - 1];
        tegroup_target target = {.struct_size = sizeof target, .sm = sms[rng_int(&r, 0, 6)], .cublaslt_version = versions[rng_int(&r, 0, 4)],
                                 .built = rng_chance(&r, 50) ? 0 : 0xFFFFFFFFu};
        tegroup_plan plan = {0};
        tegroup_error error;
        problem p;
        spec s = random_spec(&r, ops[i % 3], 5, 5);
        problem_make(&p, &s);
        tegroup_gemm_desc d = p.desc;
        if (rng_chance(&r, 70)) {
            d.space = TEGROUP_SPACE_DEVICE;
            tegroup_tensor *tensors[] = {&d.a, &d.b, &d.c, &d.d};
            for (int t = 0; t < 4; t++) if (tensors[t]->shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET) tensors[t]->shape.row_sizes.space = tensors[t]->shape.col_sizes.space = TEGROUP_SPACE_DEVICE;
        }
        ASSERT_EQ(tegroup_explain(&d, &target, v, &error), TEGROUP_OK);
        tegroup_status status = tegroup_plan_make(&d, &target, &plan, &error);
        int found = 0;
        for (int b = 0; b < TEGROUP_BACKEND_COUNT - 1; b++) {
            if (v[b].status != TEGROUP_OK) {
                ASSERT_TRUE(v[b].field != NULL && v[b].rule != NULL && !v[b].chosen);
                refused++;
            }
            if (!v[b].chosen) continue;
            found++;
            ASSERT_EQ(status, TEGROUP_OK);
            ASSERT_EQ((int)plan.backend, (int)v[b].backend);
            ASSERT_EQ(plan.workspace_bytes, v[b].workspace_bytes);
        }
        ASSERT_EQ(found, status == TEGROUP_OK);
        chosen += found;
        guards_release(mark);
    }
    ASSERT_GT(chosen, 0);
    ASSERT_GT(refused, 0);
}

/* 8. The five known cases stand in the table, each with where it was reported; each refuses, or asks for separate
 * workspaces, just inside its range, not outside it, and can be overridden. */
TEST(contract, line8_known_bad_combinations) {
    static const struct { int32_t inside, outside, sm; tegroup_quirk_case when; tegroup_quirk_action action; } known[] = {
        {130200, 130300, 100, TEGROUP_QUIRK_WGRAD, TEGROUP_QUIRK_REFUSE},          /* wrong gradients of empty groups below 13.3 */
        {130700, 130800, 100, TEGROUP_QUIRK_ALWAYS, TEGROUP_QUIRK_SEPARATE},       /* stale descriptors up to 13.7               */
        {130700, 130800, 103, TEGROUP_QUIRK_ALWAYS, TEGROUP_QUIRK_REFUSE},         /* corruption on B300 and Rubin               */
        {130800, 130801, 100, TEGROUP_QUIRK_ALWAYS, TEGROUP_QUIRK_REFUSE},         /* grouped bug below 13.8.1                   */
        {131000, -1, 90, TEGROUP_QUIRK_MISALIGNED_LD, TEGROUP_QUIRK_REFUSE},       /* 13.10: leading dimensions                  */
    };
    int32_t count;
    const tegroup_quirk *quirks = tegroup_quirks(&count);
    ASSERT_LE(count, 64);
    for (int32_t q = 0; q < count; q++) {
        ASSERT_TRUE(quirks[q].text != NULL && quirks[q].text[0] != 0);
        ASSERT_TRUE(quirks[q].provenance != NULL && quirks[q].provenance[0] != 0);
        ASSERT_LT(quirks[q].cublaslt_from, quirks[q].cublaslt_below);
        ASSERT_TRUE(quirks[q].action >= TEGROUP_QUIRK_REFUSE && quirks[q].action <= TEGROUP_QUIRK_AVOID);
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int32_t q = -1;
        for (int32_t j = 0; j < count; j++)
            if (quirks[j].when == known[i].when && quirks[j].action == known[i].action && quirks[j].sm_min <= known[i].sm && known[i].sm <= quirks[j].sm_max
                && quirks[j].cublaslt_from <= known[i].inside && known[i].inside < quirks[j].cublaslt_below
                && (known[i].outside < 0 || quirks[j].cublaslt_below == known[i].outside)) q = j;
        ASSERT_GE(q, 0);
        ASSERT_EQ((int)quirks[q].backend, TEGROUP_BACKEND_CUBLASLT_GROUPED);
        /* a problem that it is about, in BF16 so that the library takes it but for the quirk */
        problem p;
        int64_t rows[2] = {8, 8};
        spec s = {.op = known[i].when == TEGROUP_QUIRK_WGRAD ? TEGROUP_OP_WGRAD : TEGROUP_OP_FORWARD, .groups = 2, .m = rows, .n = 16, .k = 16, .in = TEGROUP_DTYPE_BF16};
        if (known[i].when == TEGROUP_QUIRK_MISALIGNED_LD) s.k = 260;
        problem_make(&p, &s);
        tegroup_gemm_desc d = p.desc;
        d.space = TEGROUP_SPACE_DEVICE;
        d.a.shape.row_sizes.space = d.b.shape.row_sizes.space = d.d.shape.row_sizes.space = TEGROUP_SPACE_DEVICE;
        d.options.backend = TEGROUP_BACKEND_CUBLASLT_GROUPED;
        tegroup_target target = {.struct_size = sizeof target, .sm = known[i].sm, .cublaslt_version = known[i].inside, .built = 0xFFFFFFFFu};
        tegroup_verdict v[TEGROUP_BACKEND_COUNT - 1], *grouped = NULL;
        tegroup_plan plan = {0};
        uint64_t others = ~(UINT64_C(1) << q), all = ~UINT64_C(0);
        for (int step = 0; step < 3; step++) { /* 0: this quirk alone; 1: overridden; 2: outside its versions */
            d.options.ignore_quirks = step == 1 ? all : others;
            if (step == 2) target.cublaslt_version = known[i].outside;
            if (step == 2 && known[i].outside < 0) { d.a.ld = d.b.ld = 264; target.cublaslt_version = known[i].inside; }
            ASSERT_EQ(tegroup_explain(&d, &target, v, NULL), TEGROUP_OK);
            for (int b = 0; b < TEGROUP_BACKEND_COUNT - 1; b++) if (v[b].backend == TEGROUP_BACKEND_CUBLASLT_GROUPED) grouped = &v[b];
            tegroup_status status = tegroup_plan_make(&d, &target, &plan, NULL);
            ASSERT_EQ(status, grouped->status);
            if (known[i].inside < 130300 && step < 2) { /* the library of that time has no grouped matmul to refuse for another reason */
                ASSERT_NE(grouped->status, TEGROUP_OK);
                continue;
            }
            if (known[i].action == TEGROUP_QUIRK_SEPARATE) {
                ASSERT_EQ(grouped->status, TEGROUP_OK);
                int32_t parts = 0;
                tegroup_layout layout;
                ASSERT_EQ(tegroup_plan_layout(&plan, &layout, NULL), TEGROUP_OK);
                for (int32_t item = 0; item < layout.count; item++) parts += strncmp(layout.items[item].name, "cuBLASLt", 8) == 0;
                ASSERT_EQ(parts, step == 0 ? 3 : 1);
            } else {
                ASSERT_EQ(grouped->status, step == 0 ? TEGROUP_ERROR_UNSUPPORTED : TEGROUP_OK);
                ASSERT_EQ(grouped->quirk, step == 0 ? q : -1);
                if (step == 0) ASSERT_STREQ(grouped->rule, quirks[q].text);
            }
        }
        problem_release(&p);
    }
}

/* 9. Every error says which field, what was expected and what came; and nothing was written. */
TEST(contract, line9_errors_name_the_field) {
    rng r = rng_seed(3009);
    problem p;
    int64_t rows[3] = {4, 0, 6};
    spec s = {.op = TEGROUP_OP_FORWARD, .groups = 3, .m = rows, .n = 9, .k = 8, .pad = 2, .c = C_SEPARATE, .beta = SCALARS_EACH, .bias = 1, .seed = rng_next(&r)};
    problem_make(&p, &s);
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
    void *workspace = guarded(p.plan.workspace_bytes + 256);
    p.desc.options.workspace = workspace;
    guarded_remember(workspace);
    enum { CASES = 17 };
    for (int i = 0; i < CASES; i++) {
        tegroup_gemm_desc d = p.desc;
        tegroup_plan plan = p.plan;
        tegroup_error error;
        tegroup_status want = TEGROUP_OK;
        const char *field = "";
        int64_t expected = INT64_MIN, got = INT64_MIN; /* asserted where set */
        memset(&error, 0x5A, sizeof error);
        switch (i) {
        case 0: d.struct_size += 8; want = TEGROUP_ERROR_STRUCT_SIZE; field = "struct_size"; expected = (int64_t)sizeof d; got = (int64_t)sizeof d + 8; break;
        case 1: d.op = TEGROUP_OP_UNSET; want = TEGROUP_ERROR_UNSET; field = "op"; break;
        case 2: d.space = TEGROUP_SPACE_UNSET; want = TEGROUP_ERROR_UNSET; field = "space"; break;
        case 3: d.b.shape.cols = 7; want = TEGROUP_ERROR_SHAPE; field = "b.shape.cols"; expected = 8; got = 7; break;
        case 4: d.a.dtype = TEGROUP_DTYPE_BF16; want = TEGROUP_ERROR_DTYPE; field = "b.dtype"; expected = TEGROUP_DTYPE_BF16; got = TEGROUP_DTYPE_F32; break;
        case 5: d.d.ld = 8; want = TEGROUP_ERROR_LAYOUT; field = "d.ld"; expected = 9; got = 8; break;
        case 6: d.a.data = NULL; want = TEGROUP_ERROR_NULL_ARGUMENT; field = "a.data"; break;
        case 7: d.a.data = (char *)d.a.data + 2; want = TEGROUP_ERROR_ALIGNMENT; field = "a.data"; break;
        case 8: d.options.workspace_bytes--; want = TEGROUP_ERROR_WORKSPACE; field = "options.workspace_bytes"; expected = (int64_t)p.plan.workspace_bytes; got = expected - 1; break;
        case 9: d.options.workspace = (char *)workspace + 8; want = TEGROUP_ERROR_ALIGNMENT; field = "options.workspace"; expected = 256; break;
        case 10: d.a.data = (char *)d.d.data + 4; want = TEGROUP_ERROR_OVERLAP; field = "d.data"; break;
        case 11: d.tail = TEGROUP_TAIL_ZERO; want = TEGROUP_ERROR_PLAN; field = "tail"; expected = TEGROUP_TAIL_KEEP; got = TEGROUP_TAIL_ZERO; break;
        case 12: plan.magic++; want = TEGROUP_ERROR_PLAN; field = "plan"; break;
        case 13: d.a.shape.snapshot = NULL; want = TEGROUP_ERROR_NULL_ARGUMENT; field = "a.shape.snapshot"; break;
        case 14: d.accumulate = 1; want = TEGROUP_ERROR_COMBINATION; field = "accumulate"; break;
        case 15: d.tail = (tegroup_tail)9; want = TEGROUP_ERROR_VALUE; field = "tail"; got = 9; break;
        case 16: d.c.data = (char *)d.d.data + 4; want = TEGROUP_ERROR_OVERLAP; field = "d.data"; break;
        }
        tegroup_status status = tegroup_gemm(&plan, &d, NULL, &error);
        if (status != want) fprintf(stderr, "case %d: status %d\n", i, (int)status);
        ASSERT_EQ(status, want);
        ASSERT_EQ(error.status, want);
        ASSERT_STREQ(error.field, field);
        ASSERT_TRUE(error.rule != NULL && error.rule[0] != 0);
        ASSERT_EQ(error.native, 0);
        if (expected != INT64_MIN) ASSERT_EQ(error.expected, expected);
        if (got != INT64_MIN) ASSERT_EQ(error.got, got);
        ASSERT_NE(error.expected, error.got);
        char text[512], *cut = (char *)scratch(8);
        volatile size_t room = 8; /* what gcc knows, it warns of */
        int length = tegroup_error_text(&error, text, sizeof text);
        ASSERT_EQ(length, (int)strlen(text));
        ASSERT_TRUE(strstr(text, field) != NULL && strstr(text, error.rule) != NULL);
        ASSERT_EQ(tegroup_error_text(&error, cut, room), length);
        ASSERT_EQ(strlen(cut), 7);
        ASSERT_EQ(tegroup_error_text(&error, NULL, 0), length);
        ASSERT_EQ(tegroup_gemm(&plan, &d, NULL, NULL), want); /* the error is optional */
        for (guarded_node *node = guarded_top; node != (guarded_node *)p.mark; node = node->older)
            if (!node->scratch && node->copy != NULL) ASSERT_EQ(guarded_changed(node->data), 0);
    }
    ASSERT_EQ(tegroup_gemm(&p.plan, &p.desc, NULL, NULL), TEGROUP_OK); /* and the good call is good */
    ASSERT_NE(guarded_changed(p.d.tensor.data), 0);
    ASSERT_EQ(guards_changed(), 0);
    problem_release(&p);
}

TEST(contract, every_line_has_a_test) {
    char pattern[] = "contract.line?_*", *number = strchr(pattern, '?');
    for (*number = '1'; *number <= '9'; ++*number) ASSERT_EQ(test_count(pattern), 1);
}

TEST_MAIN()
