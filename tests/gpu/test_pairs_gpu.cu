/* Pairs of blocks that share a group's rows (cuda/sm90_tiles.h), which a plan takes where rows begin at odd multiples of
 * 16 bytes, and weight gradients whose tiles are dealt (cuda/sm90_balance.h): against FP64, and bit for bit as other
 * kernels. Small, so that the emulator runs it, too. */
#define TEGROUP_IMPLEMENTATION
#define TEGROUP_NO_F16
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_NO_FP8
#define TEGROUP_NO_CUBLASLT
#include "product.h"
#include "test.h"

static int takes_pairs(const tegroup_plan *plan) { return tegroup_impl_sm90_row_of((int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ROW])->pairs; }

/* Results by one kernel: their hash, and whether all are right and nothing else was written. */
static uint64_t by_kernel(product *p, int32_t kernel, int *right) {
    int64_t disturbed = 0;
    *right = tegroup_impl_sm90_choose(&p->plan, kernel, &p->error) == TEGROUP_OK;
    product_poison(p, NULL);
    *right &= product_run(p, &p->plan, NULL) == TEGROUP_OK;
    const uint64_t hash = product_hash(p, NULL);
    const verdict v = product_compare(p, &disturbed);
    *right &= v.worst <= 1 && disturbed == 0;
    return hash;
}

TEST(pairs_gpu, bits_of_single_blocks) {
    rng r = rng_seed(4103);
    int64_t planned = 0;
    if (!hopper_here()) return;
    for (int64_t i = scaled(400) + 6; i > 0; i--) {
        product p;
        int64_t counts[5];
        int right;
        memset(&p, 0, sizeof p);
        p.op = i % 2 ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD;
        p.in = p.out = TEGROUP_DTYPE_BF16;
        p.groups = 5;
        p.n = 16 * rng_int(&r, 0, 22) + 8; /* columns of D that end in either block of the last pair */
        p.k = 16 * rng_int(&r, 0, 22) + 8;
        p.rows = 1500;
        p.seed = rng_next(&r);
        for (int g = 0; g < 5; g++) counts[g] = rng_chance(&r, 25) ? 0 : rng_int(&r, 1, g ? 140 : 420); /* tiles of all widths */
        product_make(&p, TEGROUP_BACKEND_SM90);
        p.desc.options.sm_limit = rng_chance(&r, 30) ? (int32_t)rng_int(&r, 2, 5) : 0; /* an odd block is left out */
        product_counts(&p, counts);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        planned += takes_pairs(&p.plan);
        const uint64_t single = by_kernel(&p, p.op == TEGROUP_OP_FORWARD ? TEGROUP_IMPL_SM90_FORWARD_192X128 : TEGROUP_IMPL_SM90_DGRAD_192X128, &right);
        ASSERT_TRUE(right);
        ASSERT_EQ(single, by_kernel(&p, p.op == TEGROUP_OP_FORWARD ? TEGROUP_IMPL_SM90_FORWARD_192X256 : TEGROUP_IMPL_SM90_DGRAD_192X256, &right));
        ASSERT_TRUE(right);
        product_free(&p);
    }
    ASSERT_GT(planned, 0);
}

/* One block is no pair: neither a plan nor tegroup_plan_tune takes one where there is no other. */
TEST(pairs_gpu, none_of_one_block) {
    if (!hopper_here()) return;
    for (int limit = 1; limit <= 2; limit++) {
        product p;
        const int64_t counts[4] = {700, 600, 500, 200};
        memset(&p, 0, sizeof p);
        p.op = TEGROUP_OP_FORWARD;
        p.in = p.out = TEGROUP_DTYPE_BF16;
        p.groups = 4;
        p.n = 520;
        p.k = 1096;
        p.rows = 2000;
        product_make(&p, TEGROUP_BACKEND_SM90);
        p.desc.options.sm_limit = limit;
        product_counts(&p, counts);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        ASSERT_EQ(takes_pairs(&p.plan), limit == 2);
        ASSERT_EQ(tegroup_impl_sm90_takes(&p.plan, TEGROUP_IMPL_SM90_FORWARD_192X256), limit == 2);
        product_free(&p);
    }
}

/* Weight gradients of short groups of unlike sizes, whose tiles are dealt: right, and bit for bit as where none are. */
TEST(pairs_gpu, dealt_weight_gradients) {
    rng r = rng_seed(4104);
    if (!hopper_here()) return;
    for (int64_t i = scaled(60) + 6; i > 0; i--) {
        product p;
        int64_t counts[70];
        int right;
        memset(&p, 0, sizeof p);
        p.op = TEGROUP_OP_WGRAD;
        p.in = TEGROUP_DTYPE_BF16;
        p.out = rng_chance(&r, 50) ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16;
        p.groups = (int32_t)rng_int(&r, 20, 70);
        p.n = 16 * rng_int(&r, 1, 22) + 8;
        p.k = 16 * rng_int(&r, 1, 22) + 8;
        p.rows = 70 * 450;
        p.seed = rng_next(&r);
        for (int g = 0; g < p.groups; g++) counts[g] = rng_chance(&r, 50) ? 0 : rng_int(&r, 1, g % 16 ? 140 : 900);
        product_make(&p, TEGROUP_BACKEND_SM90);
        p.desc.options.sm_limit = 2;
        product_counts(&p, counts);
        p.desc.options.expected_rows = 100 * p.groups;
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        const uint64_t bits = by_kernel(&p, TEGROUP_IMPL_SM90_WGRAD_128X128, &right);
        ASSERT_TRUE(right);
        ASSERT_EQ(bits, by_kernel(&p, TEGROUP_IMPL_SM90_WGRAD_128X192, &right));
        ASSERT_TRUE(right);
        product_free(&p);
    }
}

TEST_MAIN()
