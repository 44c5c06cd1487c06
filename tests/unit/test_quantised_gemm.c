/* Products of quantised operands on the CPU: every pair of formats against FP64 products of what the codes and scales mean, which
 * quantised.h works out, and against the library's own products of the same values in F32. */
#define TEGROUP_EXTERN
#include "quantised_problem.h"
#include "test.h"

static struct { double worst; int64_t problems, elements, with_bias[4], with_c[4]; } totals; /* of each op */

static int run_one(uint64_t seed, const scaling_row *fa, const scaling_row *fb, tegroup_op op) {
    rng r = rng_seed(seed);
    problem p;
    quantised q[2];
    const char *wrong = NULL;
    quantised_problem(&p, &r, fa, fb, op, q, 0);
    problem_reference(&p);
    if (problem_run(&p) != TEGROUP_OK) wrong = "refused";
    else {
        const verdict v = problem_compare(&p), b = problem_compare_bias(&p);
        totals.problems++;
        totals.with_bias[op] += p.s.bias;
        totals.with_c[op] += p.s.c != C_NONE;
        totals.elements += v.count + b.count;
        totals.worst = fmax(totals.worst, fmax(v.worst, b.worst));
        if (!(v.worst <= 1)) wrong = "result";
        else if (!(b.worst <= 1)) wrong = "bias gradient";
        else if (problem_disturbed(&p) != 0) wrong = "bytes changed that are not the result's";
        if (wrong != NULL) fprintf(stderr, "error / bound %g, bias gradient %g\n", v.worst, b.worst);
    }
    if (wrong != NULL)
        fprintf(stderr, "%s: %s x %s, op %d, seed %llu, compute %d, lists %d, ng %d kg %d uniform %d\n", wrong, name_of(fa), name_of(fb), (int)op, (unsigned long long)seed,
                (int)p.s.compute, p.s.lists, p.s.ng != NULL, p.s.kg != NULL, p.s.m == NULL);
    problem_release(&p);
    return wrong == NULL;
}

/* Every pair of formats that is multiplied, in every op, with bias (a wgrad: its gradient) and C: each element within the bound of rounding theory, and nothing else touched. */
TEST(quantised_gemm, fp64) {
    int64_t pairs = 0;
    for (int a = -1; a < SCALINGS; a++)
        for (int b = -1; b < SCALINGS; b++)
            for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) {
                const scaling_row *fa = a < 0 ? NULL : &scaling_rows[a], *fb = b < 0 ? NULL : &scaling_rows[b];
                if ((a < 0 && b < 0) || !goes(fa, fb, (tegroup_op)op)) continue;
                pairs++;
                for (int64_t i = 0; i < scaled(in_the_long_suite(2000, 200)); i++)
                    ASSERT_TRUE(run_one((uint64_t)(((a + 1) * 16 + b + 1) * 4 + op) * 1000003u + (uint64_t)i, fa, fb, (tegroup_op)op));
            }
    ASSERT_EQ(pairs, 3 * (25 + 9 + 4 + 10) + 10);
    for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) ASSERT_TRUE(totals.with_bias[op] > 0 && totals.with_c[op] > 0);
    printf("%ld pairs and ops, %ld problems, %ld elements, error/bound at most %.3f\n", (long)pairs, (long)totals.problems, (long)totals.elements, totals.worst);
}

/* The operand as a plain one of F32, in the places of its F64 grid. */
static void widen(tegroup_tensor *to, const grid *t) {
    const int64_t count = (int64_t)(guarded_find(t->tensor.data)->bytes / 8);
    const tegroup_shape shape = to->shape;
    float *data = (float *)scratch((size_t)count * 4);
    for (int64_t i = 0; i < count; i++) data[i] = (float)((const double *)t->tensor.data)[i];
    *to = t->tensor;
    to->shape = shape;
    to->dtype = TEGROUP_DTYPE_F32;
    to->data = data;
}

/* Where a value times its scale is exact in F32 (powers of two; NVFP4 without the scale of a group), D has the bits of the product
 * of these values in F32, whatever the number of threads. */
TEST(quantised_gemm, bits_of_exact_values) {
    int64_t results = 0;
    for (int64_t i = 0; i < scaled(2000); i++) {
        rng r = rng_seed(77000000u + (uint64_t)i);
        const scaling_row *exact[] = {NULL, &scaling_rows[5], &scaling_rows[6], &scaling_rows[7], &scaling_rows[8], &scaling_rows[9]};
        const scaling_row *fa = exact[rng_int(&r, 0, 5)], *fb = exact[rng_int(&r, 0, 5)];
        const tegroup_op op = (tegroup_op)rng_int(&r, 1, 3);
        problem p;
        quantised q[2];
        int64_t count, again;
        memset(q, 0, sizeof q);
        if ((fa == NULL && fb == NULL) || !goes(fa, fb, op)) continue;
        quantised_problem(&p, &r, fa, fb, op, q, 0);
        if (p.s.compute == TEGROUP_COMPUTE_F64 || q[0].global || q[1].global || (p.s.lists & 3)) { problem_release(&p); continue; }
        p.desc.options.threads = (int32_t)rng_int(&r, 1, 4);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        double *quantised_bits = results_of(&p, &count);
        problem_reset(&p);
        widen(&p.desc.a, &p.a);
        widen(&p.desc.b, &p.b);
        p.desc.options.threads = 1;
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        double *plain_bits = results_of(&p, &again);
        ASSERT_EQ(count, again);
        ASSERT_EQ(memcmp(quantised_bits, plain_bits, (size_t)count * 8), 0);
        results += count;
        free(quantised_bits);
        free(plain_bits);
        problem_release(&p);
    }
    ASSERT_GT(results, 0);
    printf("%ld results of the same bits\n", (long)results);
}

/* One group of rows that lie as they do in a list of tokens, FP8 with F32 scales or MXFP8, with weights [n, k]. */
static void make_tokens(problem *p, rng *r, int f, quantised q[2]) {
    spec s;
    memset(&s, 0, sizeof s);
    s.op = TEGROUP_OP_FORWARD;
    s.groups = 1;
    s.rows_each = rng_int(r, 2, 40);
    s.n = rng_int(r, 1, 60);
    s.k = rng_int(r, 1, 300);
    s.in = TEGROUP_DTYPE_F64;
    s.out = TEGROUP_DTYPE_F32;
    s.seed = rng_next(r);
    problem_make(p, &s);
    p->s.compute = p->desc.options.compute = TEGROUP_COMPUTE_F32;
    for (int which = 0; which < 2; which++) {
        memset(&q[which], 0, sizeof *q);
        q[which].f = &scaling_rows[f];
        q[which].dtype = quantised_fp8[0];
        q[which].parts = 1;
        q[which].outer_stride = which == 0 && f != 5;
        quantise_operand(p, which, &q[which], r);
    }
    remember(p);
}

/* A row's bits do not depend on how many rows there are, and the id says so. */
TEST(quantised_gemm, rows_alone) {
    for (int64_t i = 0; i < scaled(300); i++) {
        rng r = rng_seed(5150000u + (uint64_t)i);
        problem p;
        quantised q[2];
        int64_t count, few;
        make_tokens(&p, &r, i % 2 == 0 ? 2 : 1, q); /* 1x128 and row */
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        const uint64_t id = p.plan.numerics_id;
        double *all = results_of(&p, &count), *one;
        problem_reset(&p);
        const int64_t rows = rng_int(&r, 1, p.s.rows_each);
        p.desc.a.shape.rows = p.desc.d.shape.rows = rows;
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        one = results_of(&p, &few);
        ASSERT_EQ(memcmp(all, one, (size_t)(rows * p.s.n) * 8), 0);
        ASSERT_TRUE(p.plan.numerics_id == id);
        free(all);
        free(one);
        problem_release(&p);
    }
}

/* NaN in one scale of a shows in the row that it covers, one in the padding of scales nowhere; so does a value that is NaN. */
TEST(quantised_gemm, nan_shows) {
    int64_t shown = 0, padding = 0;
    for (int64_t i = 0; i < scaled(600); i++) {
        rng r = rng_seed(6160000u + (uint64_t)i);
        problem p;
        quantised q[2];
        make_tokens(&p, &r, 5, q);
        const int64_t R = p.s.rows_each, C = p.s.k, O = R, I = blocks_of(C, 32), at = rng_int(&r, 0, part_scales(&q[0], R, C, 0) - 1);
        int64_t row = -1;
        for (int64_t o = 0; o < O; o++)
            for (int64_t in = 0; in < I; in++)
                if (packed_scale(&q[0], O, I, o, in) == at) row = o;
        if (rng_chance(&r, 70)) ((unsigned char *)p.desc.a.scale_inv)[at] = 0xff;
        else {
            row = rng_int(&r, 0, R - 1);
            ((unsigned char *)p.desc.a.data)[row * (p.desc.a.ld != 0 ? p.desc.a.ld : C) + rng_int(&r, 0, C - 1)] = 0x7f;
        }
        problem_reference(&p);
        ASSERT_EQ(problem_run(&p), TEGROUP_OK);
        for (int64_t o = 0; o < R; o++)
            for (int64_t j = 0; j < p.s.n; j++) {
                const double got = value_at(&p.d, 0, o, j);
                if (o == row) ASSERT_TRUE(isnan(got));
                else ASSERT_LE(fabs(got - p.want[0][o * p.s.n + j]), p.bound[0][o * p.s.n + j]);
            }
        shown += row >= 0;
        padding += row < 0;
        problem_release(&p);
    }
    ASSERT_TRUE(shown > 0 && padding > 0);
}

static void expect(problem *p, tegroup_status status, const char *field) {
    p->error.field = NULL;
    ASSERT_EQ(tegroup_gemm(&p->plan, &p->desc, NULL, &p->error), status);
    ASSERT_STREQ(field, p->error.field);
    ASSERT_EQ(problem_disturbed(p), 0);
}

/* A call names what it lacks of the copy that it reads, and asks for nothing of the other. */
TEST(quantised_gemm, copy_that_is_read) {
    int64_t refused = 0;
    for (int64_t i = 0; i < scaled(3000); i++) {
        rng r = rng_seed(4140000u + (uint64_t)i);
        const scaling_row *f = &scaling_rows[rng_int(&r, 0, SCALINGS - 1)];
        const int which = (int)rng_int(&r, 0, 1);
        const tegroup_op op = (tegroup_op)rng_int(&r, 1, 3);
        problem p;
        quantised q[2];
        char field[64];
        quantised_problem(&p, &r, f, f, op, q, 0);
        const int sums_rows = op == TEGROUP_OP_WGRAD || (which && op == TEGROUP_OP_DGRAD), cw = q[which].columnwise, scales = (int)rng_int(&r, 0, 1);
        tegroup_tensor *t = which ? &p.desc.b : &p.desc.a;
        const int64_t capacity = t->shape.rows * t->shape.cols * t->shape.groups;
        const int listed = t->pointers_space != TEGROUP_SPACE_UNSET;
        ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
        ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
        snprintf(field, sizeof field, "%c.%s%s", "ab"[which], cw ? "columnwise_" : "",
                 listed ? (scales ? "scale_pointers" : "pointers") : scales ? "scale_inv" : "data");
        if (listed) {
            void *const **list = cw ? (scales ? &t->columnwise_scale_pointers : &t->columnwise_pointers) : scales ? &t->scale_pointers : &t->pointers;
            *list = NULL;
        } else {
            void **data = cw ? (scales ? &t->columnwise_scale_inv : &t->columnwise_data) : scales ? &t->scale_inv : &t->data;
            *data = NULL;
        }
        /* without its columnwise elements a square block is read from the rowwise copy, which may be there or not */
        if (capacity > 0 && !(cw && !scales && is_square(f))) {
            expect(&p, TEGROUP_ERROR_NULL_ARGUMENT, field);
            ASSERT_PASSING();
            refused++;
        }
        if (sums_rows && !is_square(f)) ASSERT_TRUE(cw);
        if (!sums_rows) ASSERT_FALSE(cw);
        problem_release(&p);
    }
    ASSERT_GT(refused, 0);
}

/* Addresses: of scales to their element, of what a call reads apart from what it writes. */
TEST(quantised_gemm, memory) {
    rng r = rng_seed(31);
    problem p;
    quantised q[2];
    make_tokens(&p, &r, 2, q);
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    const tegroup_gemm_desc good = p.desc;
    p.desc.a.scale_inv = (char *)good.a.scale_inv + 2;
    expect(&p, TEGROUP_ERROR_ALIGNMENT, "a.scale_inv");
    ASSERT_PASSING();
    p.desc = good;
    p.desc.a.scale_inv = good.d.data;
    expect(&p, TEGROUP_ERROR_OVERLAP, "d.data");
    ASSERT_PASSING();
    p.desc = good;
    p.desc.b.data = good.d.data;
    expect(&p, TEGROUP_ERROR_OVERLAP, "d.data");
    ASSERT_PASSING();
    p.desc = good;
    p.desc.a.columnwise_data = p.desc.a.columnwise_scale_inv = good.d.data; /* not read */
    ASSERT_EQ(tegroup_gemm_check(&p.plan, &p.desc, &p.error), TEGROUP_OK);
    p.desc.c.scaling = TEGROUP_SCALING_MXFP8; /* of an operand that is absent */
    ASSERT_EQ(tegroup_gemm_check(&p.plan, &p.desc, &p.error), TEGROUP_OK);
    p.desc.c.scaling = TEGROUP_SCALING_NONE;
    void *lists[4] = {good.a.data, good.a.scale_inv, NULL, NULL};
    p.desc.a = good.a;
    p.desc.a.pointers = &lists[0];
    expect(&p, TEGROUP_ERROR_UNSET, "a.pointers_space");
    ASSERT_PASSING();
    p.desc.a = good.a;
    p.desc.a.columnwise_scale_pointers = &lists[0];
    expect(&p, TEGROUP_ERROR_UNSET, "a.pointers_space");
    ASSERT_PASSING();
    p.desc.a = good.a;
    p.desc.a.pointers_space = TEGROUP_SPACE_HOST;
    p.desc.a.pointers = &lists[0];
    p.desc.a.scale_pointers = &lists[1];
    p.desc.a.data = NULL;
    expect(&p, TEGROUP_ERROR_COMBINATION, "a.scale_inv");
    ASSERT_PASSING();
    p.desc.a.scale_inv = NULL;
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    ASSERT_EQ(tegroup_gemm_check(&p.plan, &p.desc, &p.error), TEGROUP_OK);
    p.desc.options.check_level = TEGROUP_CHECK_DEEP;
    lists[1] = good.d.data;
    expect(&p, TEGROUP_ERROR_OVERLAP, "d.data");
    ASSERT_PASSING();
    lists[1] = (char *)good.a.scale_inv + 1;
    expect(&p, TEGROUP_ERROR_ALIGNMENT, "a.scale_pointers");
    ASSERT_PASSING();
    lists[1] = NULL;
    expect(&p, TEGROUP_ERROR_NULL_ARGUMENT, "a.scale_pointers");
    ASSERT_PASSING();
    lists[0] = NULL;
    expect(&p, TEGROUP_ERROR_NULL_ARGUMENT, "a.pointers");
    problem_release(&p);

    quantised_problem(&p, &r, &scaling_rows[8], &scaling_rows[8], TEGROUP_OP_FORWARD, q, 0);
    while (p.s.groups == 0 || p.s.lists != 0 || p.desc.a.shape.rows == 0) {
        problem_release(&p);
        quantised_problem(&p, &r, &scaling_rows[8], &scaling_rows[8], TEGROUP_OP_FORWARD, q, 0);
    }
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
    p.desc.b.global_scale_inv = (float *)p.desc.d.data;
    p.error.field = NULL;
    ASSERT_NE(tegroup_gemm_check(&p.plan, &p.desc, &p.error), TEGROUP_OK);
    ASSERT_STREQ((uintptr_t)p.desc.d.data % 4 != 0 ? "b.global_scale_inv" : "d.data", p.error.field);
    problem_release(&p);

    /* no groups: rows have room, and scales have none */
    for (;; problem_release(&p)) {
        quantised_problem(&p, &r, &scaling_rows[8], &scaling_rows[8], TEGROUP_OP_FORWARD, q, 0);
        if (p.s.groups == 0 && p.s.lists == 0 && p.desc.a.shape.rows > 0 && p.desc.a.scale_outer_stride == 0) break;
    }
    p.desc.a.scale_inv = p.desc.b.scale_inv = NULL;
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
    ASSERT_EQ(tegroup_gemm_check(&p.plan, &p.desc, &p.error), TEGROUP_OK);
    problem_release(&p);
}

/* Pairs that are not multiplied are refused, with what goes with a; and a call's formats are those of its plan. */
TEST(quantised_gemm, refusals) {
    tegroup_error error;
    tegroup_problem made;
    for (int a = -1; a < SCALINGS; a++)
        for (int b = -1; b < SCALINGS; b++)
            for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) {
                const scaling_row *fa = a < 0 ? NULL : &scaling_rows[a], *fb = b < 0 ? NULL : &scaling_rows[b];
                tegroup_gemm_desc desc;
                memset(&desc, 0, sizeof desc);
                desc.struct_size = sizeof desc;
                desc.op = (tegroup_op)op;
                desc.space = TEGROUP_SPACE_HOST;
                desc.a = tegroup_tensor_uniform(2, 8, 8, fa == NULL ? TEGROUP_DTYPE_BF16 : is_fp4(fa->scaling) ? TEGROUP_DTYPE_F4E2M1 : quantised_fp8[0], NULL);
                desc.b = tegroup_tensor_uniform(2, 8, 8, fb == NULL ? TEGROUP_DTYPE_BF16 : is_fp4(fb->scaling) ? TEGROUP_DTYPE_F4E2M1 : quantised_fp8[1], NULL);
                desc.d = tegroup_tensor_uniform(2, 8, 8, TEGROUP_DTYPE_F32, NULL);
                desc.a.scaling = fa == NULL ? TEGROUP_SCALING_NONE : fa->scaling;
                desc.b.scaling = fb == NULL ? TEGROUP_SCALING_NONE : fb->scaling;
                const tegroup_status status = tegroup_gemm_problem(&desc, &made, &error);
                if (goes(fa, fb, desc.op)) {
                    ASSERT_EQ(status, TEGROUP_OK);
                    continue;
                }
                ASSERT_EQ(status, TEGROUP_ERROR_COMBINATION);
                ASSERT_STREQ("b.scaling", error.field);
                ASSERT_EQ(error.got, desc.b.scaling);
                ASSERT_EQ(error.reading, TEGROUP_READING_SCALINGS);
                for (int s = -1; s < SCALINGS; s++)
                    ASSERT_EQ(error.expected >> (s < 0 ? 0 : (int)scaling_rows[s].scaling) & 1, goes(fa, s < 0 ? NULL : &scaling_rows[s], desc.op));
            }
    rng r = rng_seed(32);
    problem p;
    quantised q[2];
    make_tokens(&p, &r, 2, q);
    ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
    const tegroup_gemm_desc good = p.desc;
    p.desc.b.scale_dtype = TEGROUP_DTYPE_BF16;
    expect(&p, TEGROUP_ERROR_PLAN, "b.scale_dtype");
    ASSERT_PASSING();
    p.desc = good;
    p.desc.a.scale_outer_stride = p.desc.a.scale_inner_stride = 0;
    expect(&p, TEGROUP_ERROR_PLAN, "a.scale_outer_stride");
    ASSERT_PASSING();
    p.desc = good;
    p.desc.a.columnwise_order = good.a.columnwise_order == TEGROUP_COLUMNWISE_AS_DATA ? TEGROUP_COLUMNWISE_TRANSPOSED : TEGROUP_COLUMNWISE_AS_DATA;
    expect(&p, TEGROUP_ERROR_PLAN, "a.columnwise_order");
    ASSERT_PASSING();
    p.desc = good;
    p.desc.b.scaling = TEGROUP_SCALING_ROW;
    expect(&p, TEGROUP_ERROR_PLAN, "b.scaling");
    problem_release(&p);
}

TEST_MAIN()
