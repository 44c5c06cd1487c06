/* The grouped MLP: every combination against FP64, the same bits whatever is kept and wherever it lies, gradients against finite
 * differences, refusals. */
#define TEGROUP_IMPLEMENTATION
#include "support.h"
#include "mlp.h"
#include "utest.h"

static tegroup_status mlp_plan(mlp *l) {
    tegroup_status status = tegroup_mlp_plan_make(&l->desc, NULL, &l->plan, &l->error);
    if (status != TEGROUP_OK) return status;
    l->desc.workspace_bytes = l->plan.workspace.total_bytes;
    l->desc.workspace = scratch(l->desc.workspace_bytes);
    return grid_prepare(&l->f1.a, &l->error);
}

static tegroup_status mlp_steps(mlp *l, int delayed) {
    const tegroup_mlp_desc *desc = &l->desc;
    tegroup_mlp_desc only[3];
    for (int op = 0; op < 3; op++) only[op] = delayed ? mlp_only(desc, (tegroup_op)(TEGROUP_OP_FORWARD + op)) : *desc;
    if (delayed) {
        only[2].workspace_bytes = l->plan.wgrad_workspace.total_bytes;
        only[2].workspace = scratch(only[2].workspace_bytes);
    }
    tegroup_status status = TEGROUP_OK;
    if (l->forward) status = tegroup_mlp_forward(&l->plan, &only[0], NULL, &l->error);
    if (status == TEGROUP_OK) status = tegroup_mlp_dgrad(&l->plan, &only[1], NULL, &l->error);
    if (status == TEGROUP_OK) status = tegroup_mlp_wgrad(&l->plan, &only[2], NULL, &l->error);
    return status;
}

static tegroup_status mlp_run(mlp *l, int delayed) {
    tegroup_status status = mlp_plan(l);
    if (status == TEGROUP_OK) status = mlp_steps(l, delayed);
    if (status == TEGROUP_OK && delayed == 2) {
        problem_reset(&l->f1); /* the oldest: everything since */
        poison(l->desc.workspace, l->desc.workspace_bytes);
        status = mlp_steps(l, delayed);
    }
    if (status != TEGROUP_OK && strcmp(l->error.field, "fusion") != 0) fprintf(stderr, "%s %s (expected %ld, got %ld)\n", l->error.field, l->error.rule, (long)l->error.expected, (long)l->error.got);
    return status;
}

UTEST(mlp, every_combination) {
    const int sample = (int)scaled(1000), step = sample < 500 ? 1000 / sample - 1 : 1, all = (MLP_COMBINATIONS + step - 1) / step;
    layers_worst = 0;
    int right = check_every_mlp(mlp_odd, 0, step, 7001, mlp_run);
    printf("run %d/%d, skipped 0, of which %ld refused with fusion REQUIRED and run with AUTO; %ld elements, error/bound at most %.3f\n", right, all,
           (long)mlps_refused, (long)layers_elements, layers_worst);
    ASSERT_EQ(all, right);
}

UTEST(mlp, wide_types) {
    rng r = rng_seed(7002);
    for (int i = 0; i < 120; i++) {
        mlp_choice m = {{i & 1, i % 3, i % 3, i / 3 % 3, i / 9 % 4, i % ROUTINGS, (tegroup_tail)(i / 4 % 3)}, i & 1};
        if (i % 2 && m.c.gradients == 2) m.c.gradients = 1; /* F64 sums are not narrowed here */
        ASSERT_STREQ("", check_mlp(&m, i % 2 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32, mlp_odd, 0, &r, mlp_run));
    }
}

UTEST_MAIN()
