/* Two files with the implementation in one program: a plan made in one is launched in the other, both ways. */
#include "pair.h"
#include "test.h"

static void both_ways(tegroup_op op, tegroup_dtype in) {
    const int64_t counts[4] = {33, 0, 150, 1};
    uint64_t hash[4];
    int64_t disturbed;
    product p;
    tegroup_plan plans[2];
    memset(&p, 0, sizeof p);
    p.op = op;
    p.in = in;
    p.out = TEGROUP_DTYPE_F32;
    p.groups = 4;
    p.rows = 200;
    p.n = 136;
    p.k = 72;
    product_make(&p, TEGROUP_BACKEND_PORTABLE);
    product_counts(&p, counts);
    ASSERT_EQ(TEGROUP_OK, product_plan(&p));
    plans[0] = p.plan;
    MUST(cudaFree(p.desc.options.workspace));
    p.desc.options.workspace = NULL;
    ASSERT_EQ(TEGROUP_OK, other_plan(&p));
    plans[1] = p.plan;
    ASSERT_EQ(plans[0].numerics_id, plans[1].numerics_id);
    for (int i = 0; i < 4; i++) { /* plan of file i / 2, run in file i % 2 */
        product_poison(&p, NULL);
        ASSERT_EQ(TEGROUP_OK, i % 2 == 0 ? product_run(&p, &plans[i / 2], NULL) : other_run(&p, &plans[i / 2]));
        hash[i] = product_hash(&p, NULL);
        ASSERT_EQ(hash[0], hash[i]);
        const verdict v = product_compare(&p, &disturbed);
        ASSERT_TRUE(v.worst <= 1);
        ASSERT_EQ(0, disturbed);
    }
    product_free(&p);
}

TEST(pair, plans_cross_files) {
    static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
    for (int op = 0; op < 3; op++) {
        both_ways(ops[op], TEGROUP_DTYPE_BF16);
        both_ways(ops[op], TEGROUP_DTYPE_F16);
        both_ways(ops[op], TEGROUP_DTYPE_F32);
    }
}

TEST_MAIN()
