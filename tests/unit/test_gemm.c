/* The grouped product against an FP64 reference, against exact answers and against itself in other arrangements. */
#define TEGROUP_EXTERN
#include "support.h"
#include "test.h"

/* What the comparisons of a test add to, until it prints them: error / bound. */
static struct { double worst[3]; int64_t elements, gated, problems; } totals; /* by result: F64, F32, 16 bits */

static int kind_of(tegroup_dtype dtype) { return dtype == TEGROUP_DTYPE_F64 ? 0 : dtype == TEGROUP_DTYPE_F32 ? 1 : 2; }

static void print_totals(const char *what) {
    printf("%s: %ld problems, %ld elements, %ld of them gated; error/bound at most %.3f F64, %.3f F32, %.3f 16-bit\n", what, (long)totals.problems, (long)totals.elements, (long)totals.gated,
           totals.worst[0], totals.worst[1], totals.worst[2]);
    memset(&totals, 0, sizeof totals);
}

/* Gives each operand of activations any number of rows that all groups lie in, once they are prepared for all that there are.
 * Rows of d that a tail is written to stay. */
static void change_rows(problem *p, rng *r) {
    tegroup_tensor *const tensors[] = {&p->desc.a, &p->desc.b, &p->desc.c, &p->desc.d};
    for (int i = 0; i < 4; i++)
        if (tensors[i]->shape.row_sizes.data == p->a.tensor.shape.row_sizes.data && (i < 3 || p->s.tail == TEGROUP_TAIL_KEEP))
            tensors[i]->shape.rows = rng_int(r, p->rows_end, p->capacity);
}

/* Runs a problem by the plan of one with buffers of other rows. */
static tegroup_status run_as_planned(problem *p, const spec *planned) {
    problem other;
    rng r = rng_seed(p->s.seed ^ 5);
    problem_make(&other, planned);
    tegroup_status status = problem_plan(&other);
    p->plan = other.plan;
    problem_release(&other);
    p->desc.options.workspace_bytes = p->plan.workspace_bytes;
    p->desc.options.workspace = scratch(p->plan.workspace_bytes);
    if (status == TEGROUP_OK) status = problem_prepare(p);
    if (planned->seed % 2 == 1) change_rows(p, &r);
    if (status == TEGROUP_OK) status = tegroup_gemm(&p->plan, &p->desc, NULL, &p->error);
    if (status != TEGROUP_OK)
        fprintf(stderr, "%s %s, expected %ld, got %ld\n", p->error.field, p->error.rule, (long)p->error.expected, (long)p->error.got);
    return status;
}

/* One problem from plan to comparison. "" or what is wrong. The gate is for results as precise as the sums. planned: a problem with
 * buffers of other rows, whose plan runs; NULL = its own. */
static const char *run_and_check_as(const spec *s, const spec *planned) {
    static char message[160];
    problem p;
    const char *wrong = "";
    problem_make(&p, s);
    problem_reference(&p);
    if ((planned != NULL ? run_as_planned(&p, planned) : problem_run(&p)) != TEGROUP_OK) {
        wrong = "refused";
    } else {
        verdict v = problem_compare(&p), b = problem_compare_bias(&p);
        int64_t disturbed = problem_disturbed(&p);
        int precise = p.s.out == (p.s.compute == TEGROUP_COMPUTE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32);
        if (v.worst > totals.worst[kind_of(p.s.out)]) totals.worst[kind_of(p.s.out)] = v.worst;
        if (b.worst > totals.worst[kind_of(p.s.bias_dtype)]) totals.worst[kind_of(p.s.bias_dtype)] = b.worst;
        totals.elements += v.count + b.count;
        totals.gated += precise ? v.gated : 0;
        totals.problems++;
        if (!(v.worst <= 1) || !(b.worst <= 1)) {
            snprintf(message, sizeof message, "error/bound %g, bias gradient %g", v.worst, b.worst);
            wrong = message;
        } else if (precise && !gate_holds(v)) wrong = "99.9th percentile of error/bound is not below 1/4";
        else if (disturbed != 0) wrong = "bytes changed that are not the result's";
    }
    if (wrong[0] != 0)
        fprintf(stderr, "%s: op %d groups %d n %ld k %ld encoding %d place %d pack %d ng %d kg %d in %d weights %d out %d compute %d pad %ld lists %d gather %d alpha %d beta %d c %d bias %d seed %llu\n",
                wrong, (int)s->op, s->groups, (long)s->n, (long)s->k, (int)s->encoding, (int)s->place, (int)s->pack, s->ng != NULL, s->kg != NULL,
                (int)s->in, (int)s->weights, (int)s->out, (int)s->compute, (long)s->pad, s->lists, s->gather, s->alpha, s->beta, (int)s->c, s->bias, (unsigned long long)s->seed);
    problem_release(&p);
    return wrong;
}

static const char *run_and_check(const spec *s) { return run_and_check_as(s, NULL); }

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
static const tegroup_dtype dtypes[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F64};

/* Every op x operand type x arrangement x C x scalars x bias once, in sizes drawn at random. */
TEST(gemm, every_combination) {
    rng r = rng_seed(1001);
    for (int op = 0; op < 3; op++)
        for (int dtype = 0; dtype < (ops[op] == TEGROUP_OP_WGRAD ? 4 : 6); dtype++) /* 4 and 5: F32 and narrower weights */
            for (int arrangement = 0; arrangement < 4; arrangement++) /* uniform, ragged, irregular, lists */
                for (int c = C_NONE; c <= C_ACCUMULATE; c++)
                    for (int scalars = SCALARS_DEFAULT; scalars <= SCALARS_EACH; scalars++)
                        for (int bias = 0; bias < 3; bias++) { /* none, plain, scaled */
                            void *mark = guards_mark();
                            spec s;
                            memset(&s, 0, sizeof s);
                            s.op = ops[op];
                            s.in = dtypes[dtype < 4 ? dtype : 0];
                            s.weights = dtypes[dtype < 4 ? dtype : dtype - 3];
                            s.out = s.in != TEGROUP_DTYPE_F64 && rng_chance(&r, 50) ? TEGROUP_DTYPE_F32 : s.in;
                            s.seed = rng_next(&r);
                            s.groups = (int32_t)rng_int(&r, 1, 5);
                            s.n = rng_int(&r, 1, 40);
                            s.k = rng_int(&r, 1, 70);
                            s.pad = rng_chance(&r, 60) ? rng_int(&r, 1, 9) : 0;
                            s.rows_each = rng_int(&r, 0, 20);
                            s.c = (c_kind)c;
                            s.alpha = scalars;
                            s.beta = scalars;
                            s.bias = bias > 0;
                            s.bias_of_b = s.bias && ops[op] == TEGROUP_OP_WGRAD && rng_chance(&r, 50);
                            s.threads = rng_chance(&r, 10) ? 0 : 1;
                            if (bias == 2 && arrangement != 3) s.row_scale_dtype = TEGROUP_DTYPE_F32;
                            if (arrangement > 0) {
                                s.encoding = (tegroup_encoding)rng_int(&r, 1, 3);
                                s.m = random_rows(&r, s.groups, 30, s.encoding == TEGROUP_ENCODING_COUNTS);
                                s.tail_rows = rng_int(&r, 0, 4);
                                if (s.encoding == TEGROUP_ENCODING_COUNTS) s.place = (place_kind)rng_int(&r, 0, 3);
                                s.alignment = 8;
                            }
                            if (arrangement == 2) {
                                s.ng = rng_chance(&r, 70) ? random_widths(&r, s.groups, s.n) : NULL;
                                s.kg = s.ng == NULL || rng_chance(&r, 70) ? random_widths(&r, s.groups, s.k) : NULL;
                                s.pack = (pack_kind)rng_int(&r, 0, 2);
                            }
                            if (arrangement == 3) s.lists = c == C_IN_PLACE ? 31 : (int32_t)rng_int(&r, 1, 31);
                            ASSERT_STREQ("", run_and_check(&s));
                            guards_release(mark);
                        }
    print_totals("combinations");
}

TEST(gemm, random_problems) {
    rng r = rng_seed(1002);
    for (int64_t i = scaled(1500); i > 0; i--) {
        void *mark = guards_mark();
        spec s = random_spec(&r, ops[rng_int(&r, 0, 2)], 60, 90);
        random_gather(&r, &s, 33);
        ASSERT_STREQ("", run_and_check(&s));
        guards_release(mark);
    }
    print_totals("random");
}

/* A ragged buffer may have other rows than planned, and other ones than the other operands and the snapshot, as long as all groups
 * lie in it. What lies behind is neither read nor written. */
TEST(gemm, buffers_of_other_rows_than_planned) {
    rng r = rng_seed(1012);
    for (int64_t i = scaled(900); i > 0;) {
        void *mark = guards_mark();
        spec s = random_spec(&r, ops[i % 3], 40, 50), planned;
        if (s.m != NULL) {
            const int64_t least = s.ng != NULL || s.kg != NULL; /* shape.elements are of the problem, and 0 of no rows */
            random_gather(&r, &s, 33);
            planned = s;
            planned.tail_rows = i % 4 == 0 ? least : rng_int(&r, least, 60);
            s.tail_rows = i % 4 == 1 ? least : rng_int(&r, least, 60);
            ASSERT_STREQ("", run_and_check_as(&s, &planned));
            i--;
        }
        guards_release(mark);
    }
    print_totals("other rows");
}

/* A group that does not fit is named before anything is written: the operand, the rows that its buffer has, and those that are used. */
TEST(gemm, a_buffer_that_lacks_rows_is_refused) {
    rng r = rng_seed(1013);
    for (int64_t i = scaled(300); i > 0;) {
        void *mark = guards_mark();
        problem p;
        spec s = random_spec(&r, ops[i % 3], 20, 20);
        problem_make(&p, &s);
        if (s.m != NULL && p.rows_end > 0) {
            tegroup_tensor *const tensors[] = {&p.desc.a, s.op == TEGROUP_OP_WGRAD ? &p.desc.b : &p.desc.d};
            const int which = rng_chance(&r, 50);
            ASSERT_EQ(TEGROUP_OK, problem_plan(&p));
            ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
            tensors[which]->shape.rows = rng_int(&r, 1, p.rows_end) - 1;
            ASSERT_EQ(TEGROUP_ERROR_CAPACITY, tegroup_gemm(&p.plan, &p.desc, NULL, &p.error));
            ASSERT_STREQ(which == 0 ? "a.shape.snapshot" : s.op == TEGROUP_OP_WGRAD ? "b.shape.snapshot" : "d.shape.snapshot", p.error.field);
            ASSERT_EQ(tensors[which]->shape.rows, p.error.expected);
            ASSERT_EQ(p.rows_end, p.error.got);
            for (guarded_node *node = guarded_top; node != (guarded_node *)p.mark; node = node->older)
                if (!node->scratch) ASSERT_EQ(0, guarded_changed(node->data));
            i--;
        }
        guards_release(mark);
    }
}

/* Nothing of a group without rows lies anywhere, so its start may be behind a buffer that is shorter than the prepared one: it gets
 * its sum of no rows. */
TEST(gemm, an_empty_group_begins_behind_a_short_buffer) {
    static const int64_t counts[2] = {2, 0}, starts[2] = {1, 50};
    _Alignas(256) unsigned char snapshot[4096];
    const float x[3][1] = {{9}, {2}, {3}}, dy[3][1] = {{9}, {5}, {7}};
    float dw[2] = {-1, -1};
    tegroup_sizes sizes = tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    sizes.starts = starts;
    tegroup_shape shape = tegroup_shape_of(2, 100, 1, sizes);
    ASSERT_EQ(TEGROUP_OK, tegroup_shape_prepare(&shape, snapshot, sizeof snapshot, NULL, NULL));
    tegroup_gemm_desc desc = {.struct_size = sizeof desc, .op = TEGROUP_OP_WGRAD, .space = TEGROUP_SPACE_HOST};
    tegroup_plan plan;
    tegroup_error error;
    desc.a = tegroup_tensor_of(shape, 1, TEGROUP_DTYPE_F32, dy);
    desc.b = tegroup_tensor_of(shape, 1, TEGROUP_DTYPE_F32, x);
    desc.d = tegroup_tensor_uniform(2, 1, 1, TEGROUP_DTYPE_F32, dw);
    desc.options.check_level = TEGROUP_CHECK_DEEP;
    desc.options.threads = 1;
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &plan, &error));
    desc.a.shape.rows = desc.b.shape.rows = 3;
    desc.options.workspace = scratch(desc.options.workspace_bytes = plan.workspace_bytes);
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&plan, &desc, NULL, &error));
    ASSERT_EQ(2 * 5 + 3 * 7, dw[0]);
    ASSERT_EQ(0, dw[1]);
}

/* Sizes around the tile (TILE_M, TILE_N, TILE_K) and the innermost kernel, and long sums. */
TEST(gemm, tile_edges) {
    rng r = rng_seed(1003);
    tegroup_plan plan;
    problem p;
    spec probe = {.op = TEGROUP_OP_FORWARD, .groups = 1, .n = 1, .k = 1, .rows_each = 1};
    problem_make(&p, &probe);
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    plan = p.plan;
    problem_release(&p);
    int64_t m[16], n[16], k[16];
    const int64_t around[] = {-2, -1, 0, 1, 2, 7};
    int ms = 0, ns = 0, ks = 0;
    for (int i = 0; i < 6; i++) { m[ms++] = plan.tile_m + around[i]; n[ns++] = plan.tile_n + around[i]; k[ks++] = plan.tile_k + around[i]; }
    for (int i = 0; i < 5; i++) { m[ms++] = rng_int(&r, 1, 33); n[ns++] = rng_int(&r, 1, 65); k[ks++] = rng_int(&r, 1, 9); }
    m[ms++] = 2 * plan.tile_m + 1; n[ns++] = 2 * plan.tile_n + 3; k[ks++] = 2 * plan.tile_k + 1;
    m[ms++] = plan.tile_m / 3; m[ms++] = plan.tile_m / 3 + 1; /* low tiles, of several threads */
    for (int64_t i = 0; i < scaled(36); i++)
        for (int op = 0; op < 3; op++) {
            void *mark = guards_mark();
            int64_t rows[2] = {m[rng_int(&r, 0, ms - 1)], m[rng_int(&r, 6, ms - 1)]};
            spec s = {.op = ops[op], .groups = 2, .m = rows, .n = n[rng_int(&r, 0, ns - 1)], .k = k[rng_int(&r, 0, ks - 1)],
                      .in = dtypes[rng_int(&r, 0, 3)], .weights = dtypes[rng_int(&r, 0, 2)], .alpha = SCALARS_EACH, .pad = rng_int(&r, 0, 1), .threads = (int32_t)rng_int(&r, 0, 2), .seed = rng_next(&r)};
            if (i < ms) rows[0] = m[i];
            if (i < ns) s.n = n[(i * 5) % ns];
            if (i < ks) s.k = k[(i * 7) % ks];
            if (s.in != TEGROUP_DTYPE_F64) s.out = TEGROUP_DTYPE_F32;
            random_gather(&r, &s, 33);
            ASSERT_STREQ("", run_and_check(&s));
            guards_release(mark);
        }
    print_totals("tile edges");
}

/* Groups of one row to fourteen beside lines of every length around what the CPU transposes and multiplies at a time,
 * lines whose elements are neighbours and, in a dgrad, lines that are. */
TEST(gemm, few_rows_of_lines_of_any_length) {
    rng r = rng_seed(1016);
    for (int64_t i = scaled(2000); i > 0; i--) {
        void *mark = guards_mark();
        const int type = (int)(i % 5); /* 3 and 4: F32 and narrower weights */
        int64_t rows[4] = {rng_int(&r, 1, 4), rng_int(&r, 4, 6), rng_int(&r, 0, 2), rng_int(&r, 7, 14)};
        const int64_t lines = 16 * rng_int(&r, 1, 5) + (i % 4 == 0 ? rng_int(&r, 1, 15) : 0);
        const int64_t along = rng_int(&r, 1, 200);
        const int forward = (int)rng_int(&r, 0, 1);
        spec s = {.groups = 4, .m = rows, .in = dtypes[type < 3 ? type : 0], .out = TEGROUP_DTYPE_F32, .threads = 1};
        s.op = forward ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD;
        s.n = forward ? lines : along, s.k = forward ? along : lines;
        s.weights = dtypes[type < 3 ? type : type - 2];
        s.alpha = SCALARS_EACH, s.pad = rng_int(&r, 0, 3), s.seed = rng_next(&r);
        ASSERT_STREQ("", run_and_check(&s));
        guards_release(mark);
    }
    print_totals("few rows");
}

TEST(gemm, long_sums) {
    static const int64_t lengths[] = {509, 1021, 2048, 4093, 6007, 6007, 6007};
    rng r = rng_seed(1004);
    for (int i = 0; i < 7; i++) /* the last two with F32 and narrower weights */
        for (int op = 0; op < (i < 5 ? 3 : 2); op++) {
            void *mark = guards_mark();
            int64_t rows[3] = {3, 9, 17};
            spec s = {.op = ops[op], .groups = 3, .m = rows, .n = 13, .k = 11, .in = dtypes[i < 5 ? i % 4 : 0], .alpha = SCALARS_EACH, .beta = SCALARS_EACH, .c = C_SEPARATE, .threads = 1, .seed = rng_next(&r)};
            if (i >= 5) s.weights = dtypes[i - 4];
            if (ops[op] == TEGROUP_OP_FORWARD) s.k = lengths[i];
            else if (ops[op] == TEGROUP_OP_DGRAD) s.n = lengths[i];
            else rows[2] = lengths[i];
            if (s.in != TEGROUP_DTYPE_F64) s.out = TEGROUP_DTYPE_F32;
            s.bias = ops[op] == TEGROUP_OP_WGRAD;
            ASSERT_STREQ("", run_and_check(&s));
            guards_release(mark);
        }
    print_totals("long sums");
}

TEST(gemm, many_groups) {
    rng r = rng_seed(1005);
    for (int op = 0; op < 3; op++)
        for (int kind = 0; kind < 3; kind++) { /* uniform, ragged, irregular */
            void *mark = guards_mark();
            spec s = {.op = ops[op], .groups = TEGROUP_MAX_GROUPS, .n = 3, .k = 5, .rows_each = 2, .alpha = SCALARS_EACH, .seed = rng_next(&r)};
            if (kind > 0) s.m = random_rows(&r, s.groups, 5, 1);
            if (kind == 2) { s.ng = random_widths(&r, s.groups, 3); s.kg = random_widths(&r, s.groups, 5); }
            ASSERT_STREQ("", run_and_check(&s));
            guards_release(mark);
        }
    print_totals("many groups");
}

/* Narrow operands with sums in F64 are an oracle: with F64 results, exact to FP64's own bound. */
TEST(gemm, narrow_operands_with_f64_sums) {
    rng r = rng_seed(1006);
    for (int i = 0; i < 30; i++) {
        void *mark = guards_mark();
        spec s = random_spec(&r, ops[i % 3], 30, 60);
        s.in = dtypes[i / 3 % 3];
        s.compute = TEGROUP_COMPUTE_F64;
        s.out = TEGROUP_DTYPE_F64;
        s.bias_dtype = TEGROUP_DTYPE_UNSET;
        ASSERT_STREQ("", run_and_check(&s));
        guards_release(mark);
    }
    print_totals("F64 sums");
}

/* ---- exact -------------------------------------------------------------------------------------------------------------- */

/* Small integers: every partial sum is an integer that F32 holds, so the result is the result. */
TEST(gemm, small_integers_are_exact) {
    rng r = rng_seed(1007);
    int64_t elements = 0;
    for (int64_t i = scaled(600); i > 0; i--) {
        void *mark = guards_mark();
        problem p;
        spec s = random_spec(&r, ops[i % 3], 40, 80);
        s.fill_a = s.fill_b = s.fill_c = FILL_INTEGER;
        if (s.out != TEGROUP_DTYPE_F64) s.out = TEGROUP_DTYPE_F32;
        problem_make(&p, &s);
        problem_reference(&p);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        verdict v = problem_compare(&p), b = problem_compare_bias(&p);
        ASSERT_EQ(v.inexact, 0);
        ASSERT_EQ(b.inexact, 0);
        elements += v.count;
        ASSERT_EQ(problem_disturbed(&p), 0);
        guards_release(mark);
    }
    ASSERT_GT(elements, 0);
}

/* One-hot rows: each result is one number of the other operand (WGRAD: a sum of integers), copied to where it belongs. */
TEST(gemm, one_hot_lands_where_it_must) {
    rng r = rng_seed(1008);
    int64_t elements = 0;
    for (int64_t i = scaled(600); i > 0; i--) {
        void *mark = guards_mark();
        problem p;
        spec s = random_spec(&r, ops[i % 3], 40, 80);
        int first = rng_chance(&r, 50);
        s.fill_a = first ? FILL_ONE_HOT : s.op == TEGROUP_OP_WGRAD ? FILL_INTEGER : FILL_NORMAL;
        s.fill_b = !first ? FILL_ONE_HOT : s.op == TEGROUP_OP_WGRAD ? FILL_INTEGER : FILL_NORMAL;
        if (s.op == TEGROUP_OP_DGRAD && !first) s.fill_a = FILL_INTEGER; /* a column of B may hold several ones */
        s.c = C_NONE;
        s.alpha = SCALARS_DEFAULT;
        s.bias = s.bias_of_b = 0;
        s.row_scale_dtype = TEGROUP_DTYPE_UNSET;
        if (s.out != TEGROUP_DTYPE_F64) s.out = TEGROUP_DTYPE_F32;
        problem_make(&p, &s);
        problem_reference(&p);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        verdict v = problem_compare(&p);
        ASSERT_EQ(v.inexact, 0);
        elements += v.count;
        ASSERT_EQ(problem_disturbed(&p), 0);
        guards_release(mark);
    }
    ASSERT_GT(elements, 0);
}

/* Sums that fit F32 but not 16 bits: rounding happens once, at the end. */
TEST(gemm, results_are_rounded_once) {
    rng r = rng_seed(1009);
    int64_t inexact = 0;
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        problem p;
        spec s = random_spec(&r, ops[i % 3], 40, 300);
        s.in = i % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16;
        s.out = s.in;
        s.bias_dtype = TEGROUP_DTYPE_UNSET;
        s.compute = TEGROUP_COMPUTE_F32;
        s.fill_a = s.fill_b = s.fill_c = FILL_INTEGER;
        problem_make(&p, &s);
        problem_reference(&p);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        for (int32_t g = 0; g < s.groups; g++) {
            if (s.op == TEGROUP_OP_WGRAD && group_skipped(&s, g)) continue;
            for (int64_t e = 0; e < p.d.rows[g] * p.d.cols[g]; e++) {
                double want = rounded(s.out, p.want[g][e]);
                ASSERT_EQ(value_at(&p.d, g, e / p.d.cols[g], e % p.d.cols[g]), want);
                inexact += want != p.want[g][e];
            }
        }
        guards_release(mark);
    }
    ASSERT_GT(inexact, 0);
}

/* ---- against itself ------------------------------------------------------------------------------------------------------- */

/* Runs both specs and compares row `row` of group `g` of the first with that of the second, bit for bit, wherever the map
 * says that they are the same numbers. */
static int64_t bits_differ(const problem *p, int32_t g, int64_t row, const problem *q, int32_t h, int64_t other) {
    size_t element = size_of(p->d.dtype);
    return memcmp(p->d.at[g] + row * p->d.ld[g] * (int64_t)element, q->d.at[h] + other * q->d.ld[h] * (int64_t)element, (size_t)p->d.cols[g] * element) != 0;
}

static spec metamorphic_spec(rng *r, tegroup_op op, int64_t *rows) {
    spec s;
    memset(&s, 0, sizeof s);
    s.op = op;
    s.groups = 5;
    for (int g = 0; g < 5; g++) rows[g] = rng_int(r, 0, 40);
    s.m = rows;
    s.n = rng_int(r, 1, 60);
    s.k = rng_int(r, 1, 300);
    s.in = dtypes[rng_int(r, 0, 3)];
    s.alpha = SCALARS_EACH;
    s.threads = 1;
    s.seed = rng_next(r);
    return s;
}

TEST(gemm, permuted_groups) {
    rng r = rng_seed(1010);
    for (int64_t i = scaled(60); i > 0; i--) {
        void *mark = guards_mark();
        int64_t rows[5], permuted[5];
        int32_t order[5] = {0, 1, 2, 3, 4};
        problem p, q;
        spec s = metamorphic_spec(&r, ops[i % 3], rows), t = s;
        rng_shuffle(&r, order, 5);
        for (int g = 0; g < 5; g++) permuted[g] = rows[order[g]];
        t.m = permuted;
        t.group_id = order;
        t.place = PLACE_STARTS;
        t.pad = 3;
        problem_make(&p, &s);
        problem_make(&q, &t);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        ASSERT_EQ(problem_run(&q), TEGROUP_OK);
        for (int32_t h = 0; h < 5; h++)
            for (int64_t row = 0; row < q.d.rows[h]; row++) ASSERT_EQ(bits_differ(&p, order[h], row, &q, h, row), 0);
        guards_release(mark);
    }
}

/* A group cut in two with the same weights gives the same rows; so do two groups of the same weights made one. */
/* Rows picked by an index give the bits of a copy in which they lie in order, under the same numerics_id. */
TEST(gemm, gathered_rows_and_permuted_copies) {
    rng r = rng_seed(1018);
    int64_t rows[4] = {0, 0, 0, 0}; /* of gathered a; of b; of both; of zeros */
    for (int64_t i = 60 + scaled(340); i > 0; i--) {
        void *mark = guards_mark();
        problem p, q;
        spec s = random_spec(&r, ops[i % 3], 40, i % 10 == 0 ? 300 : 60), t;
        random_gather(&r, &s, 100);
        t = s;
        t.gather = 0;
        problem_make(&p, &s);
        problem_make(&q, &t);
        ASSERT_EQ(gather_copy(&p.a, &q.a, &q.error), TEGROUP_OK);
        ASSERT_EQ(gather_copy(&p.b, &q.b, &q.error), TEGROUP_OK);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        ASSERT_EQ(problem_run(&q), TEGROUP_OK);
        ASSERT_EQ(p.plan.numerics_id, q.plan.numerics_id);
        for (int32_t g = 0; g < s.groups; g++) {
            if (s.op == TEGROUP_OP_WGRAD && group_skipped(&s, g)) continue;
            for (int64_t row = 0; row < p.d.rows[g]; row++) ASSERT_EQ(bits_differ(&p, g, row, &q, g, row), 0);
            if (s.bias && s.op == TEGROUP_OP_WGRAD)
                ASSERT_EQ(memcmp(p.bias.at[g], q.bias.at[g], (size_t)p.bias.cols[g] * size_of(p.bias.dtype)), 0);
            if (s.gather) rows[s.gather - 1] += p.a.rows[g];
            for (int64_t row = 0; s.gather & 1 && row < p.a.rows[g]; row++) rows[3] += p.a.picked[p.start[g] + row] < 0;
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    for (int i = 0; i < 4; i++) ASSERT_GT(rows[i], 0);
}

/* F32 times weights of 16 bits has the bits of the product with the same weights in F32. Types differ, and so do ids. Subnormals,
 * infinities and the largest numbers are among the weights. */
TEST(gemm, narrow_weights_and_the_same_in_f32) {
    static const uint16_t special[] = {0x0001, 0x8001, 0x007F, 0x03FF, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7F7F, 0x7F80, 0xFF80, 0x0000, 0x8000};
    rng r = rng_seed(1019);
    int64_t rows[2][2][2] = {{{0}}}; /* by operation, type, and whether the special ones are there */
    for (int64_t i = 60 + scaled(140); i > 0; i--) {
        void *mark = guards_mark();
        problem p, q;
        spec s = random_spec(&r, ops[i % 2], 40, i % 10 == 0 ? 600 : 60), t;
        const int type = (int)(i / 2 % 2), spiced = i % 3 == 0;
        s.in = TEGROUP_DTYPE_F32;
        s.weights = dtypes[1 + type];
        if (s.out == TEGROUP_DTYPE_F64) s.out = s.weights;
        if (s.compute == TEGROUP_COMPUTE_F32_FAST) s.compute = TEGROUP_COMPUTE_F32; /* which may ask for the type */
        if (s.bias_dtype == TEGROUP_DTYPE_F64) s.bias_dtype = TEGROUP_DTYPE_UNSET;
        random_gather(&r, &s, 33);
        t = s;
        t.weights = TEGROUP_DTYPE_F32;
        problem_make(&p, &s);
        problem_make(&q, &t);
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t row = 0; row < p.b.rows[g]; row++)
                for (int64_t col = 0; col < p.b.cols[g]; col++) {
                    const uint16_t code = special[rng_int(&r, 0, sizeof special / sizeof *special - 1)];
                    if (spiced && rng_chance(&r, 2) && !isnan(decode16(s.weights, code))) memcpy(p.b.at[g] + (row * p.b.ld[g] + col) * 2, &code, 2);
                    store(TEGROUP_DTYPE_F32, q.b.at[g], row * q.b.ld[g] + col, value_at(&p.b, g, row, col));
                }
        ASSERT_EQ(p.desc.b.dtype, s.weights);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        ASSERT_EQ(problem_run(&q), TEGROUP_OK);
        ASSERT_EQ(p.plan.problem.b, s.weights);
        ASSERT_TRUE(p.plan.numerics_id != q.plan.numerics_id);
        for (int32_t g = 0; g < s.groups; g++) {
            for (int64_t row = 0; row < p.d.rows[g]; row++) ASSERT_EQ(bits_differ(&p, g, row, &q, g, row), 0);
            rows[i % 2][type][spiced] += p.d.rows[g];
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    for (int i = 0; i < 8; i++) ASSERT_GT((&rows[0][0][0])[i], 0);
}

TEST(gemm, split_and_merged_groups) {
    rng r = rng_seed(1011);
    for (int64_t i = scaled(60); i > 0; i--) {
        void *mark = guards_mark();
        int64_t rows[5], cut[10], first[10];
        int32_t id[10];
        problem p, q;
        spec s = metamorphic_spec(&r, ops[i % 2], rows), t = s;
        for (int g = 0; g < 5; g++) {
            cut[2 * g] = rng_int(&r, 0, rows[g]);
            cut[2 * g + 1] = rows[g] - cut[2 * g];
            first[2 * g] = 0;
            first[2 * g + 1] = cut[2 * g];
            id[2 * g] = id[2 * g + 1] = g;
        }
        t.groups = 10;
        t.m = cut;
        t.row_first = first;
        t.group_id = id;
        problem_make(&p, &s);
        problem_make(&q, &t);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        ASSERT_EQ(problem_run(&q), TEGROUP_OK);
        for (int32_t h = 0; h < 10; h++)
            for (int64_t row = 0; row < q.d.rows[h]; row++) ASSERT_EQ(bits_differ(&p, id[h], row + first[h], &q, h, row), 0);
        guards_release(mark);
    }
}

/* With integers a weight gradient adds up over any cut of its rows. */
TEST(gemm, wgrad_adds_up) {
    rng r = rng_seed(1012);
    for (int64_t i = scaled(40); i > 0; i--) {
        void *mark = guards_mark();
        int64_t rows[5], head[5], tail[5];
        problem p, q;
        spec s = metamorphic_spec(&r, TEGROUP_OP_WGRAD, rows), t;
        s.fill_a = s.fill_b = FILL_INTEGER;
        s.in = TEGROUP_DTYPE_F32;
        s.alpha = SCALARS_DEFAULT;
        t = s;
        for (int g = 0; g < 5; g++) {
            head[g] = rng_int(&r, 0, rows[g]);
            tail[g] = rows[g] - head[g];
        }
        problem_make(&p, &s);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        t.m = head;
        problem_make(&q, &t);
        ASSERT_EQ(problem_run(&q), TEGROUP_OK);
        double *part = (double *)malloc((size_t)(5 * s.n * s.k) * sizeof(double));
        for (int32_t g = 0; g < 5; g++)
            for (int64_t e = 0; e < s.n * s.k; e++) part[g * s.n * s.k + e] = value_at(&q.d, g, e / s.k, e % s.k);
        t.m = tail;
        t.row_first = head;
        problem_make(&q, &t);
        ASSERT_EQ(problem_run(&q), TEGROUP_OK);
        int64_t wrong = 0;
        for (int32_t g = 0; g < 5; g++)
            for (int64_t e = 0; e < s.n * s.k; e++)
                wrong += part[g * s.n * s.k + e] + value_at(&q.d, g, e / s.k, e % s.k) != value_at(&p.d, g, e / s.k, e % s.k);
        free(part);
        ASSERT_EQ(wrong, 0);
        guards_release(mark);
    }
}

/* One row alone gives the bits that it gives among many; a weight gradient those of its group alone. */
TEST(gemm, rows_do_not_depend_on_each_other) {
    rng r = rng_seed(1013);
    for (int64_t i = scaled(60); i > 0; i--) {
        void *mark = guards_mark();
        int64_t rows[5], alone[1], first[1];
        int32_t id[1];
        problem p, q;
        spec s = metamorphic_spec(&r, ops[i % 3], rows), t = s;
        s.c = t.c = C_SEPARATE;
        s.beta = t.beta = SCALARS_EACH;
        int wgrad = s.op == TEGROUP_OP_WGRAD;
        problem_make(&p, &s);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        id[0] = (int32_t)rng_int(&r, 0, 4);
        if (rows[id[0]] > 0) {
            first[0] = wgrad ? 0 : rng_int(&r, 0, rows[id[0]] - 1);
            alone[0] = wgrad ? rows[id[0]] : 1;
            t.groups = 1;
            t.m = alone;
            t.row_first = first;
            t.group_id = id;
            problem_make(&q, &t);
            ASSERT_EQ(problem_run(&q), TEGROUP_OK);
            ASSERT_EQ(p.plan.numerics_id, q.plan.numerics_id);
            for (int64_t row = 0; row < q.d.rows[0]; row++) ASSERT_EQ(bits_differ(&p, id[0], first[0] + row, &q, 0, row), 0);
        }
        guards_release(mark);
    }
}

/* FAST sums keep the bound, repeat, and do not ask where among its group's rows a row is; where no group has more than 4 rows they are
 * other sums than the default's, and everywhere else the same. */
TEST(gemm, fast_sums_in_an_order_of_their_own) {
    rng r = rng_seed(1017);
    const int64_t problems = 10 + scaled(90);
    int others = 0;
    for (int64_t i = problems; i > 0; i--) {
        void *mark = guards_mark();
        const int type = (int)(i % 5), few = i % 2 == 0; /* of the types 3 and 4: F32 and narrower weights */
        int64_t rows[4] = {few ? rng_int(&r, 1, 4) : rng_int(&r, 5, 20), 0, few ? rng_int(&r, 0, 3) : rng_int(&r, 5, 20), few ? 4 : 5};
        problem p, fast, again;
        spec s = {.op = few || i % 3 != 2 ? TEGROUP_OP_FORWARD : ops[type < 3 ? 2 : 1], .groups = 4, .m = rows, .n = rng_int(&r, 1, 300), .k = i % 10 == 0 ? rng_int(&r, 9100, 9800) : rng_int(&r, 1, 300),
                  .in = dtypes[type < 3 ? type : 0], .weights = dtypes[type < 3 ? type : type - 2], .out = TEGROUP_DTYPE_F32, .alpha = SCALARS_EACH, .pad = rng_int(&r, 0, 3),
                  .gather = rng_chance(&r, 30), .threads = 1, .seed = rng_next(&r)}, t = s;
        int64_t differ = 0;
        if (s.k > 300) s.n = t.n = rng_int(&r, 1, 9);
        if (s.op == TEGROUP_OP_WGRAD) { /* as few rows of D, and b contiguous along what is summed */
            s.n = t.n = rng_int(&r, 1, 3);
            s.k = t.k = 1;
            s.pad = t.pad = 0;
            rows[0] += 40;
        }
        t.compute = TEGROUP_COMPUTE_F32_FAST;
        ASSERT_STREQ("", run_and_check(&t));
        problem_make(&p, &s);
        problem_make(&fast, &t);
        t.threads = 3;
        problem_make(&again, &t);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        ASSERT_EQ(problem_run(&fast), TEGROUP_OK);
        ASSERT_EQ(problem_run(&again), TEGROUP_OK);
        ASSERT_TRUE(p.plan.numerics_id != fast.plan.numerics_id && fast.plan.numerics_id == again.plan.numerics_id);
        for (int32_t g = 0; g < 4; g++)
            for (int64_t row = 0; row < p.d.rows[g]; row++) {
                ASSERT_EQ(bits_differ(&fast, g, row, &again, g, row), 0);
                differ += bits_differ(&p, g, row, &fast, g, row) != 0;
            }
        if (!few) ASSERT_EQ(differ, 0);
        others += few && differ > 0;
        guards_release(mark);
    }
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ == 0 && (defined(__clang__) || __GNUC__ >= 9) /* with vectors */
    ASSERT_TRUE(others > problems / 10);
#endif
    print_totals("fast sums");
}

/* Fast accumulation is FP8's on one backend: here every bit is that of F32. */
TEST(gemm, fast_accumulation_changes_nothing_here) {
    rng r = rng_seed(1019);
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        problem p, fast;
        spec s = random_spec(&r, ops[i % 3], 40, i % 4 ? 6 : 60), t;
        if (s.in == TEGROUP_DTYPE_F64) s.in = s.out = TEGROUP_DTYPE_F32;
        s.compute = TEGROUP_COMPUTE_F32;
        t = s;
        t.compute = TEGROUP_COMPUTE_FAST_ACCUM;
        problem_make(&p, &s);
        problem_make(&fast, &t);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        ASSERT_EQ(problem_run(&fast), TEGROUP_OK);
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t row = 0; row < p.d.rows[g]; row++) ASSERT_EQ(bits_differ(&p, g, row, &fast, g, row), 0);
        guards_release(mark);
    }
}

TEST(gemm, fast_sums_of_equal_rows_are_equal) {
    static float x[9][150], w[21][150], y[9][21];
    rng r = rng_seed(1018);
    for (int m = 1; m <= 9; m++)
        for (int k = 1; k <= 150; k += k < 20 ? 1 : 13) {
            tegroup_gemm_desc desc;
            tegroup_plan plan;
            memset(&desc, 0, sizeof desc);
            for (int q = 0; q < k; q++) x[0][q] = (float)(rng_unit(&r) - 0.5);
            for (int i = 1; i < m; i++) memcpy((&x[0][0]) + i * k, x[0], (size_t)k * sizeof(float));
            for (int j = 0; j < 21 * k; j++) (&w[0][0])[j] = (float)(rng_unit(&r) - 0.5);
            desc.struct_size = sizeof desc;
            desc.op = TEGROUP_OP_FORWARD;
            desc.space = TEGROUP_SPACE_HOST;
            desc.a = tegroup_tensor_uniform(1, m, k, TEGROUP_DTYPE_F32, x);
            desc.b = tegroup_tensor_uniform(1, 21, k, TEGROUP_DTYPE_F32, w);
            desc.d = tegroup_tensor_uniform(1, m, 21, TEGROUP_DTYPE_F32, y);
            desc.options.compute = TEGROUP_COMPUTE_F32_FAST;
            desc.options.threads = 1;
            ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, NULL), TEGROUP_OK);
            desc.options.workspace = scratch(desc.options.workspace_bytes = plan.workspace_bytes);
            ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, NULL), TEGROUP_OK);
            for (int i = 1; i < m; i++) ASSERT_EQ(memcmp(y[0], y[i], sizeof y[0]), 0);
        }
}

TEST(gemm, same_bits_for_any_number_of_threads) {
    rng r = rng_seed(1014);
    for (int64_t i = scaled(30); i > 0; i--) {
        void *mark = guards_mark();
        problem p[4];
        spec s = random_spec(&r, ops[i % 3], 200, 300);
        for (int t = 0; t < 4; t++) {
            s.threads = t + 1;
            problem_make(&p[t], &s);
            ASSERT_EQ(problem_run(&p[t]), TEGROUP_OK);
            ASSERT_EQ(problem_disturbed(&p[t]), 0);
            for (int32_t g = 0; g < s.groups; g++)
                for (int64_t row = 0; row < p[0].d.rows[g]; row++) ASSERT_EQ(bits_differ(&p[0], g, row, &p[t], g, row), 0);
        }
        guards_release(mark);
    }
}

/* torch's product of two matrices that is cut along K: group g is D[g] = A[:, K[g]] B[:, K[g]]^T, and both operands are windows side by side
 * in the rows of one buffer. As windows at offsets, and as lists of addresses, of which nothing has to be said but their groups' sizes. */
enum { WINDOWS_M = 2, WINDOWS_N = 3, WINDOWS_K = 8, WINDOWS = 3 };
static const void *windows_snapshot(tegroup_shape *shape, int64_t ld, tegroup_error *error) {
    tegroup_prepare_desc desc;
    tegroup_layout layout;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    desc.shape = *shape;
    desc.ld = ld;
    if (tegroup_snapshot_layout(shape, &layout, error) != TEGROUP_OK) return NULL;
    desc.snapshot = scratch(desc.snapshot_bytes = layout.total_bytes);
    return tegroup_prepare(&desc, NULL, error) == TEGROUP_OK ? shape->snapshot = desc.snapshot : NULL;
}
static tegroup_tensor windows_tensor(void *data, int64_t rows, int64_t cols, int64_t elements, const int64_t *counts, const int64_t *widths) {
    tegroup_tensor t;
    memset(&t, 0, sizeof t);
    t.dtype = TEGROUP_DTYPE_F32;
    t.data = data;
    t.shape.groups = WINDOWS;
    t.shape.rows = rows;
    t.shape.cols = cols;
    t.shape.elements = elements;
    t.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    t.shape.row_sizes.dtype = TEGROUP_DTYPE_I64;
    t.shape.row_sizes.space = TEGROUP_SPACE_HOST;
    t.shape.row_sizes.data = counts;
    if (widths == NULL) return t;
    t.shape.col_sizes = t.shape.row_sizes;
    t.shape.col_sizes.data = widths;
    t.ld = cols;
    return t;
}

TEST(gemm, windows_of_one_buffer) {
    static const int64_t m[WINDOWS] = {WINDOWS_M, WINDOWS_M, WINDOWS_M}, n[WINDOWS] = {WINDOWS_N, WINDOWS_N, WINDOWS_N}, k[WINDOWS] = {3, 0, 5}, start[WINDOWS] = {0, 3, 3};
    float a[WINDOWS_M][WINDOWS_K], b[WINDOWS_N][WINDOWS_K];
    for (int i = 0; i < WINDOWS_M * WINDOWS_K; i++) (&a[0][0])[i] = (float)(i % 5 - 2);
    for (int i = 0; i < WINDOWS_N * WINDOWS_K; i++) (&b[0][0])[i] = (float)(i % 7 - 3);
    for (int way = 0; way < 3; way++) { /* offsets; lists, prepared with ld and without */
        void *mark = guards_mark();
        float d[WINDOWS][WINDOWS_M][WINDOWS_N];
        void *list_a[WINDOWS], *list_b[WINDOWS];
        tegroup_gemm_desc desc;
        tegroup_plan plan;
        tegroup_error error;
        memset(d, 0xFF, sizeof d);
        memset(&desc, 0, sizeof desc);
        desc.struct_size = sizeof desc;
        desc.op = TEGROUP_OP_FORWARD;
        desc.space = TEGROUP_SPACE_HOST;
        desc.a = windows_tensor(a, WINDOWS * WINDOWS_M, WINDOWS_K, WINDOWS_M * WINDOWS_K, m, k);
        desc.b = windows_tensor(b, WINDOWS * WINDOWS_N, WINDOWS_K, WINDOWS_N * WINDOWS_K, n, k);
        desc.d = windows_tensor(d, WINDOWS * WINDOWS_M, WINDOWS_N, 0, m, NULL);
        desc.a.shape.offsets = desc.b.shape.offsets = start;
        for (int g = 0; g < WINDOWS && way > 0; g++) {
            list_a[g] = k[g] > 0 ? &a[0][start[g]] : NULL;
            list_b[g] = &b[0][start[g]];
            desc.a.data = desc.b.data = NULL;
            desc.a.pointers = list_a, desc.b.pointers = list_b;
            desc.a.pointers_space = desc.b.pointers_space = TEGROUP_SPACE_HOST;
            desc.a.shape.elements = desc.b.shape.elements = 0;
            desc.a.shape.offsets = desc.b.shape.offsets = NULL;
        }
        ASSERT_TRUE(windows_snapshot(&desc.a.shape, way < 2 ? WINDOWS_K : 0, &error) && windows_snapshot(&desc.b.shape, way < 2 ? WINDOWS_K : 0, &error) && windows_snapshot(&desc.d.shape, 0, &error));
        ASSERT_EQ(tegroup_snapshot_read(desc.a.shape.snapshot).header->status, 0u);
        ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
        desc.options.workspace = scratch(desc.options.workspace_bytes = plan.workspace_bytes);
        for (int deep = 0; deep < 2; deep++) {
            desc.options.check_level = deep ? TEGROUP_CHECK_DEEP : TEGROUP_CHECK_HOST;
            ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
            for (int g = 0; g < WINDOWS; g++)
                for (int i = 0; i < WINDOWS_M; i++)
                    for (int j = 0; j < WINDOWS_N; j++) {
                        float want = 0;
                        for (int64_t q = start[g]; q < start[g] + k[g]; q++) want += a[i][q] * b[j][q];
                        ASSERT_EQ(d[g][i][j], want);
                    }
        }
        guards_release(mark);
    }
}

/* The bias gradient of a group is as wide as its own rows of dY, so buffers in a list may be as small; the deep check
 * tells buffers that share an element. */
TEST(gemm, bias_gradients_of_unlike_widths) {
    static float dy[5] = {1, 2, 3, 4, 5}, x[2][2] = {{1, 2}, {3, 4}}, dw[5][2], bias_grad[5];
    static const int64_t one[2] = {1, 1}, widths[2] = {1, 4};
    const tegroup_sizes sizes = tegroup_sizes_of(one, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    const tegroup_sizes n = tegroup_sizes_of(widths, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    tegroup_gemm_desc desc = {.struct_size = sizeof desc, .op = TEGROUP_OP_WGRAD, .space = TEGROUP_SPACE_HOST};
    void *list[2], *mark = guards_mark();
    tegroup_plan plan;
    tegroup_error error;
    desc.a = tegroup_tensor_of(tegroup_shape_of(2, 2, 4, sizes), 4, TEGROUP_DTYPE_F32, dy);
    desc.a.shape.col_sizes = n, desc.a.shape.elements = 5;
    desc.b = tegroup_tensor_of(tegroup_shape_of(2, 2, 2, sizes), 2, TEGROUP_DTYPE_F32, x);
    desc.d = tegroup_tensor_of(tegroup_shape_of(2, 5, 2, n), 2, TEGROUP_DTYPE_F32, dw);
    desc.bias = tegroup_tensor_uniform(2, 1, 4, TEGROUP_DTYPE_F32, NULL);
    desc.bias.pointers = list, desc.bias.pointers_space = TEGROUP_SPACE_HOST;
    for (int i = 0; i < 3; i++) {
        tegroup_shape *shape = i == 0 ? &desc.a.shape : i == 1 ? &desc.b.shape : &desc.d.shape;
        ASSERT_EQ(tegroup_shape_prepare(shape, guarded(4096), 4096, NULL, &error), TEGROUP_OK);
    }
    ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
    desc.options.workspace = scratch(desc.options.workspace_bytes = plan.workspace_bytes);
    desc.options.check_level = TEGROUP_CHECK_DEEP;
    for (int apart = 0; apart < 2; apart++) {
        list[0] = bias_grad, list[1] = bias_grad + apart;
        ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), apart ? TEGROUP_OK : TEGROUP_ERROR_OVERLAP);
    }
    for (int i = 0; i < 5; i++) ASSERT_EQ(bias_grad[i], dy[i]);
    guards_release(mark);
}

/* X, dY and weights as transposes of what the products are written with: the table of docs/concepts.md, row by row. Operands and sums are small
 * integers, which F32 holds. */
TEST(gemm, operands_that_lie_transposed) {
    enum { N_ = WINDOWS_M, K_ = WINDOWS_N, ROWS_ = WINDOWS_K };
    static const int64_t n[WINDOWS] = {N_, N_, N_}, k[WINDOWS] = {K_, K_, K_}, counts[WINDOWS] = {3, 0, 5}, start[WINDOWS] = {0, 3, 3};
    static float x[ROWS_][K_], x_t[K_][ROWS_], dy[ROWS_][N_], dy_t[N_][ROWS_], w[WINDOWS][N_][K_], w_t[WINDOWS][K_][N_];
    float dw[WINDOWS][N_][K_], dw_t[WINDOWS][K_][N_], y[ROWS_][N_], y_t[N_][ROWS_];
    rng r = rng_seed(1016);
    for (int row = 0; row < ROWS_; row++) {
        for (int i = 0; i < K_; i++) x[row][i] = x_t[i][row] = (float)rng_int(&r, -9, 9);
        for (int i = 0; i < N_; i++) dy[row][i] = dy_t[i][row] = (float)rng_int(&r, -9, 9);
    }
    for (int g = 0; g < WINDOWS; g++)
        for (int i = 0; i < N_; i++)
            for (int j = 0; j < K_; j++) w[g][i][j] = w_t[g][j][i] = (float)rng_int(&r, -9, 9);
    const tegroup_tensor rows_x = windows_tensor(x, ROWS_, K_, 0, counts, NULL), rows_dy = windows_tensor(dy, ROWS_, N_, 0, counts, NULL),
                         rows_y = windows_tensor(y, ROWS_, N_, 0, counts, NULL),
                         lies_x = windows_tensor(x_t, WINDOWS * K_, ROWS_, K_ * ROWS_, k, counts), lies_dy = windows_tensor(dy_t, WINDOWS * N_, ROWS_, N_ * ROWS_, n, counts),
                         lies_y = windows_tensor(y_t, WINDOWS * N_, ROWS_, N_ * ROWS_, n, counts),
                         each_w = windows_tensor(w, WINDOWS * N_, K_, 0, n, NULL), each_w_t = windows_tensor(w_t, WINDOWS * K_, N_, 0, k, NULL),
                         each_dw = windows_tensor(dw, WINDOWS * N_, K_, 0, n, NULL), each_dw_t = windows_tensor(dw_t, WINDOWS * K_, N_, 0, k, NULL);
    const struct { tegroup_op op; tegroup_tensor a, b, d; } ways[] = {{TEGROUP_OP_DGRAD, lies_dy, rows_x, each_dw}, {TEGROUP_OP_FORWARD, lies_dy, lies_x, each_dw},
        {TEGROUP_OP_DGRAD, lies_x, rows_dy, each_dw_t}, {TEGROUP_OP_WGRAD, lies_x, each_w_t, rows_y}, {TEGROUP_OP_DGRAD, each_w, lies_x, lies_y}};
    for (int way = 0; way < 5; way++) {
        void *mark = guards_mark();
        tegroup_gemm_desc desc;
        tegroup_plan plan;
        tegroup_error error;
        memset(&desc, 0, sizeof desc);
        desc.struct_size = sizeof desc;
        desc.op = ways[way].op;
        desc.space = TEGROUP_SPACE_HOST;
        desc.a = ways[way].a;
        desc.b = ways[way].b;
        desc.d = ways[way].d;
        tegroup_tensor *const tensors[] = {&desc.a, &desc.b, &desc.d};
        for (int t = 0; t < 3; t++) {
            if (tensors[t]->shape.elements > 0) tensors[t]->shape.offsets = start;
            ASSERT_TRUE(windows_snapshot(&tensors[t]->shape, tensors[t]->ld, &error) != NULL);
        }
        memset(dw, 0xFF, sizeof dw);
        memset(dw_t, 0xFF, sizeof dw_t);
        memset(y, 0xFF, sizeof y);
        memset(y_t, 0xFF, sizeof y_t);
        ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
        desc.options.workspace = scratch(desc.options.workspace_bytes = plan.workspace_bytes);
        ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
        for (int g = 0; g < WINDOWS; g++)
            for (int i = 0; i < N_; i++)
                for (int j = 0; j < K_ && way < 3; j++) {
                    float want = 0;
                    for (int64_t row = start[g]; row < start[g] + counts[g]; row++) want += dy[row][i] * x[row][j];
                    ASSERT_EQ(way < 2 ? dw[g][i][j] : dw_t[g][j][i], want);
                }
        for (int g = 0; g < WINDOWS && way >= 3; g++)
            for (int64_t row = start[g]; row < start[g] + counts[g]; row++)
                for (int i = 0; i < N_; i++) {
                    float want = 0;
                    for (int j = 0; j < K_; j++) want += x[row][j] * w[g][i][j];
                    ASSERT_EQ(way == 3 ? y[row][i] : y_t[i][row], want);
                }
        guards_release(mark);
    }
}

/* The oracle agrees with the sums in F32: the same problem in both, compared by the bound of the narrower. */
TEST(gemm, f32_sums_agree_with_the_oracle) {
    rng r = rng_seed(1015);
    for (int64_t i = scaled(60); i > 0; i--) {
        void *mark = guards_mark();
        problem p, q;
        spec s = random_spec(&r, ops[i % 3], 40, 200), t;
        s.in = dtypes[i % 3];
        s.out = TEGROUP_DTYPE_F32;
        s.compute = TEGROUP_COMPUTE_F32;
        s.bias_dtype = TEGROUP_DTYPE_UNSET;
        t = s;
        t.compute = TEGROUP_COMPUTE_F64;
        problem_make(&p, &s);
        problem_reference(&p);
        problem_make(&q, &t);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        ASSERT_EQ(problem_run(&q), TEGROUP_OK);
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t e = 0; e < p.d.rows[g] * p.d.cols[g] && !(s.op == TEGROUP_OP_WGRAD && group_skipped(&s, g)); e++) {
                int64_t row = e / p.d.cols[g], col = e % p.d.cols[g];
                ASSERT_LE(fabs(value_at(&p.d, g, row, col) - value_at(&q.d, g, row, col)), 2 * p.bound[g][e]);
            }
        guards_release(mark);
    }
}

TEST_MAIN()
