/* Products whose rows begin off multiples of 16 bytes, on a Hopper GPU that need not be there: which backend has them,
 * and the workspace for the copies that TMA can read. tests/gpu/test_gpu.cu runs them. */
#define TEGROUP_EXTERN
#include "support.h"
#include "test.h"

enum { BACKENDS = TEGROUP_BACKEND_COUNT - 1, REPAYS = 256 /* rows by which weights are multiplied, from which on their copy pays */ };

static int64_t multiple_of_8(int64_t x) { return (x + 7) / 8 * 8; }

static tegroup_target hopper(void) {
    tegroup_target target;
    memset(&target, 0, sizeof target);
    target.struct_size = sizeof target;
    target.sm = 90;
    target.built = (1u << TEGROUP_BACKEND_COUNT) - 1;
    return target;
}

typedef struct product {
    tegroup_op op;
    int32_t groups;
    int ragged;
    int64_t rows, n, k, lda, ldb; /* rows: of all groups together, or of each; ld: 0 = packed */
} product;

static tegroup_gemm_desc desc_of(const product *p, tegroup_backend backend) {
    const int forward = p->op == TEGROUP_OP_FORWARD, wgrad = p->op == TEGROUP_OP_WGRAD;
    tegroup_gemm_desc d;
    tegroup_tensor rows, weights = tegroup_tensor_uniform(p->groups, p->n, p->k, TEGROUP_DTYPE_BF16, NULL);
    tegroup_sizes sizes;
    memset(&d, 0, sizeof d);
    memset(&sizes, 0, sizeof sizes);
    if (p->ragged) sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    rows = tegroup_tensor_of(tegroup_shape_of(p->groups, p->rows, p->k, sizes), p->k, TEGROUP_DTYPE_BF16, NULL);
    d.struct_size = sizeof d;
    d.op = p->op;
    d.space = TEGROUP_SPACE_DEVICE;
    d.a = rows;
    d.a.shape.cols = forward ? p->k : p->n;
    d.a.ld = p->lda;
    d.b = wgrad ? rows : weights;
    d.b.ld = p->ldb;
    d.d = wgrad ? weights : rows;
    d.d.shape.cols = forward ? p->n : p->k;
    d.d.ld = multiple_of_8(d.d.shape.cols);
    d.options.backend = backend;
    return d;
}

static product random_product(rng *r) {
    product p;
    memset(&p, 0, sizeof p);
    p.op = (tegroup_op)rng_int(r, 1, 3);
    p.groups = (int32_t)rng_int(r, 1, 300);
    p.ragged = rng_chance(r, 70);
    p.rows = rng_int(r, 0, 3000);
    p.n = rng_int(r, 1, 3000);
    p.k = rng_int(r, 1, 3000);
    if (rng_chance(r, 30)) p.lda = (p.op == TEGROUP_OP_FORWARD ? p.k : p.n) + rng_int(r, 0, 20);
    if (rng_chance(r, 30)) p.ldb = p.k + rng_int(r, 0, 20);
    return p;
}

/* Bytes of the copy of an operand, whose rows begin at cache lines, in the test's own words; 0: none is needed. */
static int64_t copy_bytes(int64_t rows, int64_t cols, int64_t ld) {
    if (ld == 0) ld = cols;
    return ld * 2 % 16 == 0 ? 0 : rows * ((cols * 2 + 127) / 128 * 128);
}

/* The workspace is what the copies need, part by part, and nothing else; it never shrinks where anything grows. */
TEST(repack, workspace_is_that_of_the_copies) {
    const tegroup_target target = hopper();
    rng r = rng_seed(3701);
    int copies = 0, none = 0;
    for (int64_t i = scaled(3000); i > 0; i--) {
        const product p = random_product(&r);
        const tegroup_gemm_desc d = desc_of(&p, TEGROUP_BACKEND_SM90);
        const int64_t rows = p.ragged ? p.rows : p.rows * p.groups, weights = p.n * p.groups;
        const int64_t want[2] = {copy_bytes(rows, p.op == TEGROUP_OP_FORWARD ? p.k : p.n, p.lda),
                                 copy_bytes(p.op == TEGROUP_OP_WGRAD ? rows : weights, p.k, p.ldb)};
        static const char *const names[] = {"repacked a", "repacked b"};
        int64_t end = 0;
        int32_t item = 0;
        tegroup_plan plan, more;
        tegroup_layout layout;
        product larger = p;
        ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_plan_layout(&plan, &layout, NULL), TEGROUP_OK);
        ASSERT_EQ(plan.workspace_bytes, layout.total_bytes);
        for (int operand = 0; operand < 2; operand++) {
            const int64_t lda = p.lda ? p.lda : p.op == TEGROUP_OP_FORWARD ? p.k : p.n, ld = operand ? p.ldb ? p.ldb : p.k : lda;
            if (ld % 8 == 0) continue;
            ASSERT_LT(item, layout.count);
            ASSERT_STREQ(names[operand], layout.items[item].name);
            ASSERT_EQ((int64_t)layout.items[item].offset_bytes, end);
            ASSERT_EQ((int64_t)layout.items[item].bytes, want[operand]);
            end += (want[operand] + TEGROUP_ALIGNMENT - 1) / TEGROUP_ALIGNMENT * TEGROUP_ALIGNMENT;
            item++;
        }
        ASSERT_EQ(item, layout.count);
        ASSERT_EQ((int64_t)layout.total_bytes, end);
        copies += item > 0;
        none += item == 0;
        if (rng_chance(&r, 50)) larger.rows += rng_int(&r, 1, 100);
        else larger.groups += (int32_t)rng_int(&r, 1, 20);
        const tegroup_gemm_desc grown = desc_of(&larger, TEGROUP_BACKEND_SM90);
        ASSERT_EQ(tegroup_plan_make(&grown, &target, &more, NULL), TEGROUP_OK);
        ASSERT_GE(more.workspace_bytes, plan.workspace_bytes);
    }
    ASSERT_GT(copies, 0);
    ASSERT_GT(none, 0);
}

/* AUTO copies weights for many rows and not for few, unless rows begin at odd elements. What it takes never shows in numerics_id, which is that of PORTABLE,
 * whose sums SM90's are; aligned rows have another one. */
TEST(repack, rows_choose_and_bits_do_not_tell) {
    const tegroup_target target = hopper();
    rng r = rng_seed(3702);
    int took[TEGROUP_BACKEND_COUNT] = {0};
    for (int64_t i = scaled(2000); i > 0; i--) {
        product p = random_product(&r);
        tegroup_gemm_desc d;
        tegroup_plan plan, portable, sm90;
        p.ragged = 1;
        if (p.op == TEGROUP_OP_FORWARD) p.lda = 0;
        d = desc_of(&p, TEGROUP_BACKEND_AUTO);
        d.options.expected_rows = rng_int(&r, 1, 600) * p.groups;
        ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, NULL), TEGROUP_OK);
        d.options.backend = TEGROUP_BACKEND_SM90;
        ASSERT_EQ(tegroup_plan_make(&d, &target, &sm90, NULL), TEGROUP_OK);
        d.options.backend = TEGROUP_BACKEND_PORTABLE;
        ASSERT_EQ(tegroup_plan_make(&d, &target, &portable, NULL), TEGROUP_OK);
        const int64_t lda = p.lda ? p.lda : p.op == TEGROUP_OP_FORWARD ? p.k : p.n, ldb = p.ldb ? p.ldb : p.k;
        const int copies_weights = p.op != TEGROUP_OP_WGRAD && ldb % 8 != 0, few = d.options.expected_rows < REPAYS * p.groups,
                  even = lda % 2 == 0 && ldb % 2 == 0;
        ASSERT_EQ(plan.backend, copies_weights && few && even ? TEGROUP_BACKEND_PORTABLE : TEGROUP_BACKEND_SM90);
        ASSERT_EQ(sm90.numerics_id == portable.numerics_id, lda % 8 != 0 || ldb % 8 != 0);
        if (copies_weights) ASSERT_EQ(plan.numerics_id, portable.numerics_id);
        took[plan.backend]++;
    }
    ASSERT_GT(took[TEGROUP_BACKEND_SM90], 0);
    ASSERT_GT(took[TEGROUP_BACKEND_PORTABLE], 0);
}

/* What explain says of SM90. */
static tegroup_verdict verdict_of_sm90(const tegroup_gemm_desc *d) {
    const tegroup_target target = hopper();
    tegroup_verdict v[BACKENDS], none;
    memset(&none, 0, sizeof none);
    if (tegroup_explain(d, &target, v, NULL) != TEGROUP_OK) return none;
    for (int i = 0; i < BACKENDS; i++)
        if (v[i].backend == TEGROUP_BACKEND_SM90) return v[i];
    return none;
}

/* Rows without one numbering are not copied, nor is what is written, nor more rows of b than a has; the refusal says which. */
TEST(repack, what_is_not_copied_is_refused) {
    static const product forward = {TEGROUP_OP_FORWARD, 4, 1, 100, 64, 36, 0, 0}, wgrad = {TEGROUP_OP_WGRAD, 4, 1, 100, 36, 44, 0, 0};
    tegroup_gemm_desc d = desc_of(&forward, TEGROUP_BACKEND_AUTO);
    tegroup_verdict v = verdict_of_sm90(&d);
    ASSERT_EQ(v.status, TEGROUP_OK);
    ASSERT_TRUE(strstr(v.tile_why, "repacked") != NULL);
    d.gather_a.rows = 50;
    v = verdict_of_sm90(&d);
    ASSERT_EQ(v.status, TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ(v.field, "a.ld");
    ASSERT_EQ(v.expected, 16);
    ASSERT_EQ(v.got, 72);
    d = desc_of(&forward, TEGROUP_BACKEND_AUTO);
    d.a.pointers_space = TEGROUP_SPACE_DEVICE;
    v = verdict_of_sm90(&d);
    ASSERT_EQ(v.status, TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ(v.field, "a.ld");
    d = desc_of(&forward, TEGROUP_BACKEND_AUTO);
    d.b.pointers_space = TEGROUP_SPACE_DEVICE; /* weights have their numbers, wherever they are */
    ASSERT_EQ(verdict_of_sm90(&d).status, TEGROUP_OK);
    d.d.ld = 68;
    v = verdict_of_sm90(&d);
    ASSERT_EQ(v.status, TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ(v.field, "d.ld");
    ASSERT_EQ(v.got, 136);
    d = desc_of(&wgrad, TEGROUP_BACKEND_AUTO);
    ASSERT_EQ(verdict_of_sm90(&d).status, TEGROUP_OK);
    d.b.shape.rows = 101;
    v = verdict_of_sm90(&d);
    ASSERT_EQ(v.status, TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ(v.field, "b.shape.rows");
    ASSERT_EQ(v.expected, 100);
    ASSERT_EQ(v.got, 101);
    d.b.shape.rows = 99;
    ASSERT_EQ(verdict_of_sm90(&d).status, TEGROUP_OK);
}

/* A time is predicted with the copies in it. */
TEST(repack, a_copy_takes_its_time) {
    static const product off = {TEGROUP_OP_FORWARD, 32, 1, 32768, 2048, 1100, 0, 0}, beside = {TEGROUP_OP_FORWARD, 32, 1, 32768, 2048, 1100, 1152, 1152};
    tegroup_gemm_desc d = desc_of(&off, TEGROUP_BACKEND_AUTO), e = desc_of(&beside, TEGROUP_BACKEND_AUTO);
    const tegroup_verdict copied = verdict_of_sm90(&d), plain = verdict_of_sm90(&e);
    const double bytes = 2.0 * (32768 + 32 * 2048) * 2304, peak = 4.8e6; /* bytes a microsecond: the data sheet of an H200 */
    ASSERT_TRUE(copied.chosen && plain.chosen);
    ASSERT_GT(copied.predicted_us, plain.predicted_us + bytes / peak);
    ASSERT_LT(copied.predicted_us, plain.predicted_us + 2 * bytes / peak);
}

TEST_MAIN()
