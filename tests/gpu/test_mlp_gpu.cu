/* The grouped MLP on the GPU backends: every combination of tests/unit/mlp.h against FP64, now, delayed on a second stream, and
 * captured with it, where the graph must hold kernels alone; and one captured step, prepare inside, replayed with many routings. Op chains by the
 * same references. */
#define TEGROUP_EXTERN
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "backends.h"
#include "graph.h"
#include "mlp.h"
#include "test.h"
#include <pthread.h>

static tegroup_backend asked;
static cudaStream_t first, second;
static cudaEvent_t ready, done;

/* Prepare, forward, dgrad on the first stream, wgrad there or, delayed, on the second. */
static tegroup_status steps(mlp *l, const tegroup_mlp_desc *desc, int delayed) {
    tegroup_mlp_desc only[3];
    for (int op = 0; op < 3; op++) only[op] = delayed ? mlp_only(desc, (tegroup_op)(TEGROUP_OP_FORWARD + op)) : *desc;
    only[2].options.workspace_bytes = l->plan.wgrad_workspace_bytes;
    tegroup_status status = prepare_on_device(&l->f1.a, first, &l->error);
    if (status == TEGROUP_OK && l->forward) status = tegroup_mlp_forward(&l->plan, &only[0], first, &l->error);
    if (status == TEGROUP_OK) status = tegroup_mlp_dgrad(&l->plan, &only[1], first, &l->error);
    if (!delayed) return status == TEGROUP_OK ? tegroup_mlp_wgrad(&l->plan, &only[2], first, &l->error) : status;
    MUST(cudaEventRecord(ready, first));
    MUST(cudaStreamWaitEvent(second, ready, 0));
    if (status == TEGROUP_OK) status = tegroup_mlp_wgrad(&l->plan, &only[2], second, &l->error);
    MUST(cudaEventRecord(done, second));
    MUST(cudaStreamWaitEvent(first, done, 0));
    return status;
}

/* Everything in device memory as it is on the host, and the descriptor of it. */
static tegroup_mlp_desc mlp_to_device(const mlp *l) {
    tegroup_mlp_desc desc = l->desc;
    tegroup_tensor *tensors[] = {&desc.fc1_up.weight, &desc.fc1_up.bias, &desc.fc1_up.main_grad, &desc.fc1_up.bias_grad,
                                 &desc.fc1.weight, &desc.fc1.bias, &desc.fc1.main_grad, &desc.fc1.bias_grad, &desc.fc2.weight, &desc.fc2.bias, &desc.fc2.main_grad,
                                 &desc.fc2.bias_grad, &desc.input, &desc.out, &desc.grad_output, &desc.dgrad_out, &desc.grad_row_scale, &desc.preactivation,
                                 &desc.activated, &desc.grad_preactivation};
    mirror_up(l->mark);
    for (int i = 0; i < 20; i++) tensor_to_device(tensors[i], 0);
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.row_scale = device_of(desc.row_scale);
    desc.gather_input.slot_of_row = (const int64_t *)device_of(desc.gather_input.slot_of_row);
    desc.gather_grad_output.slot_of_row = (const int64_t *)device_of(desc.gather_grad_output.slot_of_row);
    desc.options.backend = asked;
    desc.options.threads = 0;
    desc.options.workspace_bytes = l->plan.workspace_bytes;
    desc.options.workspace = workspace_of(desc.options.workspace_bytes);
    return desc;
}

/* The step as a graph; NULL and a status when it cannot be. */
static cudaGraphExec_t capture(mlp *l, const tegroup_mlp_desc *desc, tegroup_status *status) {
    cudaGraph_t graph;
    cudaGraphExec_t step = NULL;
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    *status = steps(l, desc, 1);
    MUST(cudaStreamEndCapture(first, &graph));
    if (*status == TEGROUP_OK && only_kernels(graph) == 0) *status = TEGROUP_ERROR_CUDA;
    if (*status == TEGROUP_OK) MUST(cudaGraphInstantiate(&step, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return step;
}

static tegroup_status run_on_device(mlp *l, int delayed) {
    tegroup_mlp_desc desc = mlp_to_device(l);
    tegroup_status status = tegroup_mlp_plan_make(&desc, NULL, &l->plan, &l->error);
    if (status == TEGROUP_OK) {
        desc = mlp_to_device(l); /* now with a workspace */
        status = steps(l, &desc, delayed != 0);
        MUST(cudaDeviceSynchronize());
    }
    if (status == TEGROUP_OK && delayed == 2) { /* kernels are loaded when they first run, so the capture comes second */
        desc = mlp_to_device(l);
        cudaGraphExec_t step = capture(l, &desc, &status);
        if (step != NULL) {
            MUST(cudaGraphLaunch(step, first));
            MUST(cudaStreamSynchronize(first));
            MUST(cudaGraphExecDestroy(step));
        }
    }
    MUST(cudaDeviceSynchronize());
    mirror_down();
    if (status == TEGROUP_OK && workspace_guards_changed() != 0) status = TEGROUP_ERROR_WORKSPACE;
    if (status != TEGROUP_OK && !(status == TEGROUP_ERROR_UNSUPPORTED && strcmp(l->error.field, "fusion") == 0))
        fprintf(stderr, "status %d: %s %s\n", (int)status, l->error.field, l->error.rule);
    return status;
}

static void streams_make(void) {
    if (first != NULL) return;
    MUST(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    MUST(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    MUST(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
}

static void every_combination(tegroup_backend backend, mlp_sizes sizes) {
    if (!backend_here(backend)) return;
    streams_make();
    asked = backend;
    can_gather = backend == TEGROUP_BACKEND_SM90 ? 7 : 0;
    const int sample = (int)scaled(1000), step = sample < 500 ? 4000 / sample - 1 : 1; /* few under tools */
    const int all = (MLP_COMBINATIONS + step - 1) / step;
    int right = check_every_mlp(sizes, 1, step, 7101 + (uint64_t)backend, run_on_device);
    printf("%s: run %d/%d, skipped 0, of which %ld refused with fusion REQUIRED and run with AUTO, %ld of gates and ups apart; %ld elements, error/bound at most %.3f\n",
           tegroup_backend_name(backend), right, all, (long)mlps_refused, (long)mlps_apart, (long)layers_elements, layers_worst);
    ASSERT_EQ(all, right);
}

TEST(mlp_gpu, portable) { every_combination(TEGROUP_BACKEND_PORTABLE, mlp_odd); }
/* F32, with weights of F32 and narrower ones, which no epilogue activates. */
TEST(mlp_gpu, portable_f32) {
    if (!backend_here(TEGROUP_BACKEND_PORTABLE)) return;
    rng r = rng_seed(7111);
    streams_make();
    asked = TEGROUP_BACKEND_AUTO; /* which has no other */
    const int64_t runs = scaled(240);
    mlps_refused = 0;
    for (int i = 0; i < (int)runs; i++) {
        mlp_choice m = {{i & 1, i % 3, i % 3, i / 3 % 3, i / 9 % 4, i % ROUTINGS, (tegroup_tail)(i / 4 % 3)}, i & 1, TEGROUP_ACTIVATION_UNSET, 1};
        ASSERT_STREQ("", check_mlp(&m, TEGROUP_DTYPE_F32, mlp_odd, 1, &r, run_on_device));
    }
    ASSERT_EQ(runs / 2, mlps_refused);
}
TEST(mlp_gpu, sm90) { every_combination(TEGROUP_BACKEND_SM90, mlp_aligned); }

/* ---- replays ---------------------------------------------------------------------------------------------------------------- */

enum { CAPACITY = 48, GROUP_MOST = 11 };

/* An MLP like the others of its seed, with as large buffers and another split of its rows. */
static void split_make(mlp *l, const mlp_choice *m, mlp_sizes sizes, uint64_t seed, rng *splits) {
    rng same = rng_seed(seed);
    int64_t rows[GROUPS], total = 0;
    for (int g = 0; g < GROUPS; g++) {
        rows[g] = rng_chance(splits, 10) ? -1 : rng_chance(splits, 20) ? 0 : rng_int(splits, 1, GROUP_MOST);
        total += rows[g] > 0 ? rows[g] : 0;
    }
    sizes.tail_rows = CAPACITY - total;
    mlp_make(l, m, TEGROUP_DTYPE_BF16, sizes, rows, &same);
    l->desc.fusion = TEGROUP_FUSION_AUTO;
}

/* Every buffer that a step writes, one after the other. */
static size_t results_of(const mlp *l, unsigned char *to) {
    const tegroup_mlp_desc *d = &l->desc;
    const tegroup_tensor *all[] = {&d->out, &d->dgrad_out, &d->grad_row_scale, &d->preactivation, &d->activated, &d->grad_preactivation, &d->fc1.main_grad, &d->fc1.bias_grad,
                                   &d->fc2.main_grad, &d->fc2.bias_grad, &d->fc1_up.main_grad, &d->fc1_up.bias_grad};
    size_t at = 0;
    for (int i = 0; i < 12; i++) {
        if (all[i]->dtype == TEGROUP_DTYPE_UNSET) continue;
        for (int32_t g = 0; g < (all[i]->pointers != NULL ? GROUPS : 1); g++) {
            guarded_node *node = guarded_find(all[i]->pointers != NULL ? all[i]->pointers[g] : all[i]->data);
            if (to != NULL) memcpy(to + at, node->data, node->bytes);
            at += node->bytes;
        }
    }
    return at;
}

static int same_addresses(const tegroup_mlp_desc *x, const tegroup_mlp_desc *y) {
    const tegroup_tensor *a[] = {&x->fc1_up.weight, &x->fc1_up.bias, &x->fc1_up.main_grad, &x->fc1_up.bias_grad, &x->fc1.weight, &x->fc1.bias, &x->fc1.main_grad, &x->fc1.bias_grad, &x->fc2.weight, &x->fc2.bias, &x->fc2.main_grad, &x->fc2.bias_grad,
                                 &x->input, &x->out, &x->grad_output, &x->dgrad_out, &x->grad_row_scale, &x->preactivation, &x->activated, &x->grad_preactivation};
    for (int i = 0; i < 20; i++) {
        const tegroup_tensor *b = (const tegroup_tensor *)((const char *)y + ((const char *)a[i] - (const char *)x));
        if (a[i]->data != b->data || a[i]->pointers != b->pointers || a[i]->shape.snapshot != b->shape.snapshot || a[i]->shape.row_sizes.data != b->shape.row_sizes.data) return 0;
    }
    return x->row_scale == y->row_scale && x->options.workspace == y->options.workspace;
}

static const mlp_choice step_kinds[] = {{{0, 0, 2, 0, 3, 0, TEGROUP_TAIL_KEEP, 0}, 0, TEGROUP_ACTIVATION_SWIGLU, 1},
                                   {{1, 1, 2, 2, 3, 0, TEGROUP_TAIL_ZERO, 3}, 0, TEGROUP_ACTIVATION_SWIGLU_CLAMPED, 1},
                                   {{1, 2, 2, 1, 3, 0, TEGROUP_TAIL_POISON, 1}, 0, TEGROUP_ACTIVATION_GEGLU, 1},
                                   {{0, 2, 2, 2, 3, 0, TEGROUP_TAIL_ZERO, 2}, 0, TEGROUP_ACTIVATION_RELU_SQUARED, 0}};

static void replays(tegroup_backend backend, mlp_sizes sizes) {
    if (!backend_here(backend)) return;
    streams_make();
    asked = backend;
    layers_worst = 0;
    int splits_run = 0;
    for (int kind = 0; kind < 4; kind++) {
        rng splits = rng_seed(7201 + (uint64_t)kind);
        cudaGraphExec_t step = NULL;
        tegroup_mlp_desc captured;
        tegroup_mlp_plan plan;
        mlp *l = (mlp *)malloc(sizeof *l);
        split_make(l, &step_kinds[kind], sizes, 7301 + (uint64_t)kind, &splits); /* loads the kernels, and plans */
        ASSERT_EQ(run_on_device(l, 1), TEGROUP_OK);
        plan = l->plan;
        mlp_release(l);
        for (int64_t i = 0; i < scaled(100); i++) {
            tegroup_status status = TEGROUP_OK;
            split_make(l, &step_kinds[kind], sizes, 7301 + (uint64_t)kind, &splits);
            l->plan = plan;
            const size_t bytes = results_of(l, NULL);
            unsigned char *replayed = (unsigned char *)malloc(2 * bytes), *eager = replayed + bytes;
            tegroup_mlp_desc desc = mlp_to_device(l);
            if (step == NULL) {
                step = capture(l, &desc, &status);
                captured = desc;
            }
            ASSERT_EQ(status, TEGROUP_OK);
            ASSERT_TRUE(same_addresses(&captured, &desc)); /* those that the graph holds */
            MUST(cudaGraphLaunch(step, first));
            MUST(cudaStreamSynchronize(first));
            mirror_down();
            ASSERT_EQ(workspace_guards_changed(), 0);
            results_of(l, replayed);
            problem_reset(&l->f1);
            desc = mlp_to_device(l);
            ASSERT_EQ(steps(l, &desc, 1), TEGROUP_OK);
            MUST(cudaDeviceSynchronize());
            mirror_down();
            results_of(l, eager);
            ASSERT_EQ(memcmp(replayed, eager, bytes), 0);
            ASSERT_STREQ("", mlp_wrong(l, &step_kinds[kind].c, 1));
            free(replayed);
            mlp_release(l);
            splits_run++;
        }
        size_t before, after, all; /* no memory grows, unless it is others' who use the card: then once more */
        const int64_t many = scaled(10000);
        split_make(l, &step_kinds[kind], sizes, 7301 + (uint64_t)kind, &splits);
        l->plan = plan;
        tegroup_mlp_desc last = mlp_to_device(l);
        ASSERT_TRUE(same_addresses(&captured, &last));
        for (int attempt = 0; attempt == 0 || (after < before && attempt < 3); attempt++) {
            MUST(cudaMemGetInfo(&before, &all));
            for (int64_t i = 0; i < many; i++) {
                MUST(cudaGraphLaunch(step, first));
                if (i % 500 == 499) MUST(cudaStreamSynchronize(first));
            }
            MUST(cudaStreamSynchronize(first));
            MUST(cudaMemGetInfo(&after, &all));
        }
        if (getenv("TEGROUP_TEST_TOGETHER") == NULL) ASSERT_TRUE(after >= before); /* else others come and go all the time */
        MUST(cudaGraphExecDestroy(step));
        mlp_release(l);
        free(l);
    }
    printf("%s: %d splits through 4 graphs, bitwise as eager; error/bound at most %.3f; no memory grown in %ld launches of each\n", tegroup_backend_name(backend), splits_run,
           layers_worst, (long)scaled(10000));
}

TEST(mlp_replays, portable) { replays(TEGROUP_BACKEND_PORTABLE, mlp_odd); }
TEST(mlp_replays, sm90) { replays(TEGROUP_BACKEND_SM90, mlp_aligned); }

/* A snapshot that was never prepared, or was spoilt: forward and both gradients, with activations in epilogues and without, write nothing. */
static void snapshot_that_is_none(tegroup_backend backend, mlp_sizes sizes) {
    if (!backend_here(backend)) return;
    streams_make();
    asked = backend;
    for (int i = 0; i < 24; i++) { /* kinds x fused or not x ways to be none */
        rng splits = rng_seed(7401 + (uint64_t)i);
        mlp *l = (mlp *)malloc(sizeof *l);
        split_make(l, &step_kinds[i % 4], sizes, 7501 + (uint64_t)i, &splits);
        l->desc.fusion = i / 4 % 2 ? TEGROUP_FUSION_AUTO : TEGROUP_FUSION_NEVER;
        tegroup_mlp_desc desc = mlp_to_device(l);
        ASSERT_EQ(tegroup_mlp_plan_make(&desc, NULL, &l->plan, &l->error), TEGROUP_OK);
        desc = mlp_to_device(l); /* now with a workspace */
        ASSERT_EQ(prepare_on_device(&l->f1.a, first, &l->error), TEGROUP_OK);
        MUST(cudaStreamSynchronize(first));
        void *snapshot = (void *)(uintptr_t)desc.input.shape.snapshot;
        MUST(cudaMemset(snapshot, i / 8 == 0 ? 0xF7 : 0, i / 8 < 2 ? guarded_find(l->f1.a.snapshot)->bytes : sizeof(uint32_t))); /* all of it, or the magic */
        MUST(cudaDeviceSynchronize());
        const size_t bytes = results_of(l, NULL);
        unsigned char *before = (unsigned char *)malloc(2 * bytes), *after = before + bytes;
        results_of(l, before);
        ASSERT_EQ(tegroup_mlp_forward(&l->plan, &desc, first, &l->error), TEGROUP_OK);
        ASSERT_EQ(tegroup_mlp_dgrad(&l->plan, &desc, first, &l->error), TEGROUP_OK);
        ASSERT_EQ(tegroup_mlp_wgrad(&l->plan, &desc, first, &l->error), TEGROUP_OK);
        MUST(cudaDeviceSynchronize());
        mirror_down();
        results_of(l, after);
        ASSERT_EQ(memcmp(before, after, bytes), 0);
        ASSERT_EQ(workspace_guards_changed(), 0);
        ASSERT_EQ(guards_changed(), 0);
        free(before);
        mlp_release(l);
        free(l);
    }
}
TEST(mlp_gpu, portable_snapshot_that_is_none) { snapshot_that_is_none(TEGROUP_BACKEND_PORTABLE, mlp_odd); }
TEST(mlp_gpu, sm90_snapshot_that_is_none) { snapshot_that_is_none(TEGROUP_BACKEND_SM90, mlp_aligned); }

/* ---- activations in epilogues ---------------------------------------------------------------------------------------------- */

static void forget_gradients(tegroup_mlp_desc *d) {
    tegroup_tensor *all[] = {&d->fc1.main_grad, &d->fc1.bias_grad, &d->fc2.main_grad, &d->fc2.bias_grad, &d->grad_output, &d->dgrad_out, &d->grad_row_scale, &d->grad_preactivation};
    for (int i = 0; i < 8; i++) memset(all[i], 0, sizeof *all[i]);
    d->accumulate = d->recompute = 0;
    d->dgrad_out_tail = TEGROUP_TAIL_KEEP;
}

/* Two bytes each, without their signs. */
static void positive(const tegroup_tensor *t) {
    for (int g = 0; g < (t->pointers != NULL ? GROUPS : 1); g++) {
        uint16_t *data = (uint16_t *)(t->pointers != NULL ? t->pointers[g] : t->data);
        for (size_t i = 0; i < guarded_find(data)->bytes / 2; i++) data[i] &= 0x7fff;
        guarded_remember(data);
    }
}
/* An infinite gradient where all else is positive, so that its row's sum is infinite, too: returns the row, or -1. */
static int64_t plant_infinity(mlp *l) {
    const tegroup_mlp_desc *d = &l->desc;
    const tegroup_tensor *all[] = {&d->input, &d->fc1.weight, &d->fc2.weight, &d->grad_output, &d->fc1.bias, &d->fc2.bias};
    int g = 0;
    while (g < GROUPS && l->f1.d.rows[g] <= 0) g++;
    if (g == GROUPS || d->grad_row_scale.dtype == TEGROUP_DTYPE_UNSET) return -1;
    for (int i = 0; i < 6; i++)
        if (all[i]->dtype != TEGROUP_DTYPE_UNSET) positive(all[i]);
    const tegroup_tensor *dy = &d->grad_output;
    const int64_t row = l->f1.start[g];
    ((uint16_t *)dy->data)[row * (dy->ld > 0 ? dy->ld : dy->shape.cols)] = dy->dtype == TEGROUP_DTYPE_BF16 ? 0x7f80 : 0x7c00;
    guarded_remember(dy->data);
    return row;
}

/* Forward alone, and with its gradients, fused and not: the same bits, and nothing else is written. */
static void fused(tegroup_backend backend) {
    if (!backend_here(backend)) return;
    static const mlp_sizes sizes[] = {{16, 24, 40, -1}, {72, 200, 48, -1}, {128, 96, 64, -1}, {64, 264, 136, -1}, {200, 8, 16, -1}, {64, 424, 40, -1}};
    static const tegroup_activation kinds[] = {TEGROUP_ACTIVATION_SWIGLU, TEGROUP_ACTIVATION_GEGLU, TEGROUP_ACTIVATION_GEGLU_TANH, TEGROUP_ACTIVATION_REGLU, TEGROUP_ACTIVATION_SWIGLU_CLAMPED,
                                               TEGROUP_ACTIVATION_SWIGLU_LIMITED, TEGROUP_ACTIVATION_SITU_GLU};
    rng r = rng_seed(7601);
    const int wanted = (int)scaled(600), runs = wanted > 40 ? wanted : 40; /* with fewer some kernels are never launched */
    int ran[2] = {0, 0}, refused = 0, infinities = 0;
    streams_make();
    asked = backend;
    for (int i = 0; i < runs; i++) {
        const int bias = i / 2 % 3, can = bias == 2 ? 1 : 3; /* as random_picks */
        const int picks = backend == TEGROUP_BACKEND_SM90 && i % 4 == 0 ? i / 4 & can : 0;
        mlp_choice m = {{i & 1, i / 3 % 3, 0, bias, 3, i % ROUTINGS, TEGROUP_TAIL_KEEP, 0, picks}, 0, kinds[i % 7], 0};
        const int backward = i / 5 % 2;
        int64_t rows[GROUPS];
        for (int g = 0; g < GROUPS; g++) rows[g] = i % 3 ? rng_int(&r, 0, 150) : routings[m.c.routing][g];
        mlp *l = (mlp *)malloc(sizeof *l);
        mlp_off = backward ? 0 : i % 4; /* SM90 copies rows that begin off 16 bytes */
        mlp_make(l, &m, i % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16, sizes[i % 6], rows, &r);
        mlp_off = 0;
        if (!backward) {
            forget_gradients(&l->desc);
            if (i / 5 % 3 == 1) memset(&l->desc.preactivation, 0, sizeof l->desc.preactivation);
            if (i / 5 % 3 == 2) memset(&l->desc.activated, 0, sizeof l->desc.activated);
        } else if (i % 7 == 3) { /* fc2 is not trained: nobody wants to know what was activated */
            memset(&l->desc.fc2.main_grad, 0, sizeof l->desc.fc2.main_grad);
            memset(&l->desc.fc2.bias_grad, 0, sizeof l->desc.fc2.bias_grad);
            memset(&l->desc.activated, 0, sizeof l->desc.activated);
            l->desc.recompute = 0;
        } else if (i % 7 == 0 && l->desc.preactivation.dtype == l->desc.grad_preactivation.dtype) l->desc.grad_preactivation = l->desc.preactivation;
        const int64_t infinite = backward && i % 11 == 5 ? plant_infinity(l) : -1;
        const size_t bytes = results_of(l, NULL);
        unsigned char *results = (unsigned char *)malloc(2 * bytes);
        for (int fuses = 0; fuses < 2; fuses++) {
            if (fuses) problem_reset(&l->f1);
            l->desc.fusion = fuses ? TEGROUP_FUSION_REQUIRED : TEGROUP_FUSION_NEVER;
            tegroup_mlp_desc desc = mlp_to_device(l);
            const tegroup_status planned = tegroup_mlp_plan_make(&desc, NULL, &l->plan, &l->error);
            if (fuses && l->desc.preactivation.dtype == TEGROUP_DTYPE_F32) {
                ASSERT_EQ(planned, TEGROUP_ERROR_UNSUPPORTED);
                ASSERT_STREQ("fusion", l->error.field);
                mirror_down();
                refused++;
                continue;
            }
            ASSERT_EQ(planned, TEGROUP_OK);
            ASSERT_EQ(l->plan.planned.fused, !fuses ? 0u : backward ? TEGROUP_FUSED_DGRAD | TEGROUP_FUSED_FORWARD : TEGROUP_FUSED_FORWARD);
            desc = mlp_to_device(l); /* now with a workspace */
            if (backward) ASSERT_EQ(steps(l, &desc, 0), TEGROUP_OK);
            else {
                ASSERT_EQ(prepare_on_device(&l->f1.a, first, &l->error), TEGROUP_OK);
                ASSERT_EQ(tegroup_mlp_forward(&l->plan, &desc, first, &l->error), TEGROUP_OK);
            }
            MUST(cudaDeviceSynchronize());
            mirror_down();
            ASSERT_EQ(workspace_guards_changed(), 0);
            ASSERT_EQ(guards_changed(), 0);
            results_of(l, results + fuses * bytes);
            if (infinite >= 0) { /* elsewhere are NaN, of any bits */
                ASSERT_TRUE(isinf(((const float *)l->desc.grad_row_scale.data)[infinite]));
                infinities += fuses;
            } else if (fuses) ASSERT_EQ(memcmp(results, results + bytes, bytes), 0);
            ran[backward] += fuses;
        }
        free(results);
        mlp_release(l);
        free(l);
    }
    printf("%s: %d MLPs forward and %d with gradients, fused bitwise as unfused; %d refused by design\n", tegroup_backend_name(backend), ran[0], ran[1], refused);
    ASSERT_TRUE(ran[0] > 0 && ran[1] > 0 && infinities > 0);
}
/* Kernels of one forward call. */
static size_t forward_launches(mlp *l, const tegroup_mlp_desc *desc) {
    cudaGraph_t graph;
    size_t count = 0;
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    const tegroup_status status = tegroup_mlp_forward(&l->plan, desc, first, &l->error);
    MUST(cudaStreamEndCapture(first, &graph));
    MUST(cudaGraphGetNodes(graph, NULL, &count));
    MUST(cudaGraphDestroy(graph));
    return status == TEGROUP_OK ? count : 0;
}

/* Gates and ups as two weights, not fused and fused: the bits of one weight that is not fused, but for dX, and fused as many launches. */
static void apart(tegroup_backend backend) {
    if (!backend_here(backend)) return;
    static const mlp_sizes sizes[] = {{16, 24, 40, -1}, {72, 200, 48, -1}, {128, 96, 64, -1}, {64, 264, 136, -1}, {200, 8, 16, -1}, {64, 424, 40, -1}};
    static const tegroup_activation kinds[] = {TEGROUP_ACTIVATION_SWIGLU, TEGROUP_ACTIVATION_GEGLU, TEGROUP_ACTIVATION_SWIGLU_CLAMPED};
    rng r = rng_seed(7651);
    const int wanted = (int)scaled(240), runs = wanted > 24 ? wanted : 24;
    int ran[2] = {0, 0};
    streams_make();
    asked = backend;
    for (int i = 0; i < runs; i++) {
        mlp_choice m = {{i & 1, i / 3 % 3, 0, i / 2 % 3, 3, i % ROUTINGS, TEGROUP_TAIL_KEEP, i % 8 == 7}, 0, kinds[i % 3], 0};
        int64_t rows[GROUPS];
        for (int g = 0; g < GROUPS; g++) rows[g] = i % 3 ? rng_int(&r, 0, 150) : routings[m.c.routing][g];
        mlp *l = (mlp *)malloc(sizeof *l);
        mlp_make(l, &m, i % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16, sizes[i % 6], rows, &r);
        l->desc.interleaved = 0;
        const int backward = i / 5 % 2;
        if (!backward) {
            forget_gradients(&l->desc);
            if (i / 5 % 3 == 1) memset(&l->desc.preactivation, 0, sizeof l->desc.preactivation);
        }
        const int fusible = !m.c.transposed && l->desc.preactivation.dtype != TEGROUP_DTYPE_F32;
        tegroup_mlp_desc whole = l->desc;
        memset(&whole.dgrad_out, 0, sizeof whole.dgrad_out);
        size_t bytes = 0, launches[2] = {0, 0};
        unsigned char *wants = NULL;
        for (int turn = 0; turn < 4; turn++) { /* one weight, not fused and fused; two, not fused and fused */
            const int fuses = turn & 1, two = turn / 2;
            if (fuses && !fusible) continue;
            if (turn > 0) problem_reset(&l->f1);
            if (turn == 2) mlp_part(l, &r);
            l->desc.fusion = fuses ? TEGROUP_FUSION_REQUIRED : TEGROUP_FUSION_NEVER;
            tegroup_mlp_desc desc = mlp_to_device(l);
            ASSERT_EQ(tegroup_mlp_plan_make(&desc, NULL, &l->plan, &l->error), TEGROUP_OK);
            ASSERT_EQ(l->plan.planned.fused & TEGROUP_FUSED_FORWARD, fuses ? TEGROUP_FUSED_FORWARD : 0u);
            desc = mlp_to_device(l); /* now with a workspace */
            if (backward) ASSERT_EQ(steps(l, &desc, 0), TEGROUP_OK);
            else {
                ASSERT_EQ(prepare_on_device(&l->f1.a, first, &l->error), TEGROUP_OK);
                ASSERT_EQ(tegroup_mlp_forward(&l->plan, &desc, first, &l->error), TEGROUP_OK);
            }
            MUST(cudaDeviceSynchronize());
            mirror_down();
            if (fuses) launches[two] = forward_launches(l, &desc);
            ASSERT_EQ(workspace_guards_changed(), 0);
            ASSERT_EQ(guards_changed(), 0);
            if (two) mlp_join(l);
            const tegroup_mlp_desc now = l->desc;
            l->desc = whole; /* where results lie in one */
            if (turn == 0) wants = (unsigned char *)malloc(2 * (bytes = results_of(l, NULL)) + 1);
            results_of(l, wants + (turn > 0) * bytes);
            l->desc = now;
            if (turn > 0) ASSERT_EQ(memcmp(wants, wants + bytes, bytes), 0);
            ran[fuses] += two;
        }
        if (fusible) ASSERT_GT(launches[0], 0u);
        ASSERT_EQ(launches[0], launches[1]);
        free(wants);
        mlp_release(l);
        free(l);
    }
    printf("%s: %d MLPs of gates and ups apart, and %d of them fused, bitwise as one weight\n", tegroup_backend_name(backend), ran[0], ran[1]);
    ASSERT_TRUE(ran[0] > 0 && ran[1] > 0);
}
TEST(mlp_gpu, sm90_apart) { apart(TEGROUP_BACKEND_SM90); }
TEST(mlp_gpu, portable_apart) { apart(TEGROUP_BACKEND_PORTABLE); }

TEST(mlp_gpu, sm90_fused) { fused(TEGROUP_BACKEND_SM90); }
TEST(mlp_gpu, portable_fused) { fused(TEGROUP_BACKEND_PORTABLE); }

/* ---- op chains ---------------------------------------------------------------------------------------------------------------- */

static void chain_open(tegroup_chain_desc *chain, const tegroup_chain_op *ops, const tegroup_chain_argument *arguments, int count, tegroup_space space) {
    memset(chain, 0, sizeof *chain);
    chain->struct_size = sizeof *chain;
    chain->space = space;
    chain->ops = ops;
    chain->arguments = arguments;
    chain->op_count = chain->argument_count = count;
    chain->options.threads = 1;
    chain->options.backend = space == TEGROUP_SPACE_DEVICE ? asked : TEGROUP_BACKEND_AUTO;
}

/* A call in a thread of its own, whose stack is looked at: how much of it was used, CUDA's own calls included, which take over 100 KiB
 * (128 KiB are enough where no GPU is: tests/compile/side_effects_calls.c). Four times as large as a call may need, so that one that needs
 * more is a failure and no crash. */
enum { STACK_BYTES = 256 << 10 };
static int small_stack; /* 0: calls are made as they stand */
static size_t stack_most;
template <typename CALL> static void *call_in_thread(void *call) {
    (*(CALL *)call)();
    return NULL;
}
template <typename CALL> static tegroup_status on_small_stack(const CALL &call) {
    alignas(4096) static unsigned char stack[4 * STACK_BYTES];
    tegroup_status status = TEGROUP_OK;
    if (!small_stack) return call();
    auto noted = [&] { status = call(); };
    pthread_attr_t attributes;
    pthread_t thread;
    size_t unused = 0;
    memset(stack, 0x5A, sizeof stack);
    if (pthread_attr_init(&attributes) || pthread_attr_setstack(&attributes, stack, sizeof stack)
        || pthread_create(&thread, &attributes, call_in_thread<decltype(noted)>, &noted) || pthread_join(thread, NULL))
        abort();
    while (unused < sizeof stack && stack[unused] == 0x5A) unused++;
    if (sizeof stack - unused > stack_most) stack_most = sizeof stack - unused;
    return status;
}

/* Linear, activation, linear by an MLP's buffers, fused and not: against FP64 as the MLP is. */
static void chain_of_mlp(tegroup_backend backend, mlp_sizes sizes) {
    if (!backend_here(backend)) return;
    rng r = rng_seed(7401);
    streams_make();
    asked = backend;
    tegroup_chain_plan *plan = (tegroup_chain_plan *)malloc(sizeof *plan);
    for (int i = 0; i < (int)scaled(60); i++) {
        mlp_choice m = {{i & 1, i % 3, 0, i / 3 % 3, 3, i % ROUTINGS, TEGROUP_TAIL_KEEP, i / 2 & 3}, 0, TEGROUP_ACTIVATION_UNSET, 0};
        mlp *l = (mlp *)malloc(sizeof *l);
        tegroup_chain_op ops[3];
        tegroup_chain_argument arguments[3];
        tegroup_chain_desc chain;
        mlp_make(l, &m, i % 2 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16, sizes, routings[m.c.routing], &r);
        l->desc.recompute = 0;
        if (l->desc.fc2_bias_scaled) memset(&l->desc.grad_row_scale, 0, sizeof l->desc.grad_row_scale);
        const tegroup_mlp_desc d = mlp_to_device(l);
        memset(ops, 0, sizeof ops);
        memset(arguments, 0, sizeof arguments);
        for (int j = 0; j < 3; j++) arguments[j].op = j;
        ops[0].kind = ops[2].kind = TEGROUP_CHAIN_LINEAR;
        ops[0].weights = d.fc1;
        ops[2].weights = d.fc2;
        ops[1].kind = TEGROUP_CHAIN_ACTIVATION;
        ops[1].activation = d.activation;
        ops[1].interleaved = d.interleaved;
        ops[1].alpha = d.alpha;
        ops[1].limit = d.limit;
        arguments[0].out = d.preactivation;
        arguments[0].grad_input = d.dgrad_out;
        arguments[1].out = d.activated;
        arguments[1].grad_input = d.grad_preactivation;
        arguments[1].grad_row_scale = d.grad_row_scale;
        arguments[1].row_scale = d.row_scale;
        arguments[1].row_scale_dtype = d.row_scale_dtype;
        arguments[2].out = d.out;
        if (d.fc2_bias_scaled) {
            arguments[2].row_scale = d.row_scale;
            arguments[2].row_scale_dtype = d.row_scale_dtype;
        }
        chain_open(&chain, ops, arguments, 3, TEGROUP_SPACE_DEVICE);
        chain.input = d.input;
        chain.grad_output = d.grad_output;
        chain.accumulate = d.accumulate;
        chain.unfused = i / 2 & 1;
        ASSERT_EQ(on_small_stack([&] { return tegroup_chain_plan_make(&chain, NULL, plan, &l->error); }), TEGROUP_OK);
        ASSERT_EQ(plan->fused, chain.unfused ? 0u : 1u);
        chain.options.workspace_bytes = plan->workspace_bytes;
        chain.options.workspace = workspace_of(chain.options.workspace_bytes);
        ASSERT_EQ(on_small_stack([&] { return prepare_on_device(&l->f1.a, first, &l->error); }), TEGROUP_OK);
        ASSERT_EQ(on_small_stack([&] { return tegroup_chain_forward(plan, &chain, first, &l->error); }), TEGROUP_OK);
        ASSERT_EQ(on_small_stack([&] { return tegroup_chain_backward(plan, &chain, first, &l->error); }), TEGROUP_OK);
        MUST(cudaDeviceSynchronize());
        mirror_down();
        ASSERT_EQ(workspace_guards_changed(), 0);
        ASSERT_STREQ("", mlp_wrong(l, &m.c, 1));
        mlp_release(l);
        free(l);
    }
    free(plan);
}
TEST(mlp_gpu, portable_chain) { chain_of_mlp(TEGROUP_BACKEND_PORTABLE, mlp_odd); }
TEST(mlp_gpu, sm90_chain) { chain_of_mlp(TEGROUP_BACKEND_SM90, mlp_eights); }

/* y = p (x + b): small integers, so that host and device agree in every bit. */
static void bias_and_scale(tegroup_backend backend, int64_t cols) {
    if (!backend_here(backend)) return;
    static const int64_t rows[GROUPS] = {5, 0, 7, 2};
    tegroup_chain_plan *plan = (tegroup_chain_plan *)malloc(sizeof *plan);
    streams_make();
    asked = backend;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        problem p, q;
        spec s;
        memset(&s, 0, sizeof s);
        s.op = TEGROUP_OP_FORWARD;
        s.groups = GROUPS;
        s.m = rows;
        s.n = s.k = cols;
        s.tail_rows = 3;
        s.in = TEGROUP_DTYPE_BF16;
        s.bias = s.aligned = 1;
        s.row_scale_dtype = TEGROUP_DTYPE_F32;
        s.fill_a = s.fill_b = s.fill_c = FILL_INTEGER;
        s.seed = 7501;
        problem_make(&p, &s);
        s.op = TEGROUP_OP_DGRAD;
        s.bias = 0;
        s.row_scale_dtype = TEGROUP_DTYPE_UNSET;
        problem_make(&q, &s);
        float *bias_grad = (float *)elements_new(TEGROUP_DTYPE_F32, GROUPS * cols, 1), *scale_grad = (float *)elements_new(TEGROUP_DTYPE_F32, p.capacity, 1);
        for (int64_t e = 0; e < GROUPS * cols; e++) bias_grad[e] = (float)(e % 5);
        guarded_remember(bias_grad);
        guarded_remember(scale_grad);
        const void *results[] = {p.d.tensor.data, q.d.tensor.data, bias_grad, scale_grad};
        void *host[4];
        for (int device = 0; device < 2; device++) {
            const tegroup_space space = device ? TEGROUP_SPACE_DEVICE : TEGROUP_SPACE_HOST;
            tegroup_chain_op ops[2];
            tegroup_chain_argument arguments[2];
            tegroup_chain_desc chain;
            memset(ops, 0, sizeof ops);
            memset(arguments, 0, sizeof arguments);
            ops[0].kind = TEGROUP_CHAIN_BIAS;
            ops[0].weights.bias = p.bias.tensor;
            ops[0].weights.bias_grad = tegroup_tensor_uniform(GROUPS, 1, cols, TEGROUP_DTYPE_F32, bias_grad);
            ops[1].kind = TEGROUP_CHAIN_SCALE;
            arguments[0].op = 1;
            arguments[0].out = p.d.tensor;
            arguments[0].grad_input = q.d.tensor;
            arguments[0].row_scale = p.row_scale;
            arguments[0].row_scale_dtype = TEGROUP_DTYPE_F32;
            arguments[0].grad_row_scale = tegroup_tensor_of(p.d.tensor.shape, 1, TEGROUP_DTYPE_F32, scale_grad);
            chain_open(&chain, ops, arguments, 2, space);
            chain.argument_count = 1;
            chain.input = p.a.tensor;
            chain.grad_output = q.a.tensor;
            chain.accumulate = accumulate;
            tegroup_tensor *tensors[] = {&ops[0].weights.bias, &ops[0].weights.bias_grad, &arguments[0].out, &arguments[0].grad_input, &arguments[0].grad_row_scale,
                                         &chain.input, &chain.grad_output};
            for (int i = 2; i < 7; i++) tensors[i]->shape.snapshot = p.a.snapshot;
            if (device) {
                mirror_up(p.mark);
                for (int i = 0; i < 7; i++) tensor_to_device(tensors[i], 0);
                arguments[0].row_scale = device_of(p.row_scale);
            }
            ASSERT_EQ(tegroup_chain_plan_make(&chain, NULL, plan, &p.error), TEGROUP_OK);
            chain.saved_bytes = plan->saved_bytes;
            chain.options.workspace_bytes = plan->workspace_bytes;
            unsigned char *room = (unsigned char *)(device ? workspace_of(chain.saved_bytes + chain.options.workspace_bytes) : scratch(chain.saved_bytes + chain.options.workspace_bytes));
            chain.saved = room;
            chain.options.workspace = room + chain.saved_bytes;
            ASSERT_EQ(device ? prepare_on_device(&p.a, first, &p.error) : grid_prepare(&p.a, &p.error), TEGROUP_OK);
            ASSERT_EQ(tegroup_chain_forward(plan, &chain, first, &p.error), TEGROUP_OK);
            ASSERT_EQ(tegroup_chain_backward(plan, &chain, first, &p.error), TEGROUP_OK);
            MUST(cudaDeviceSynchronize());
            if (device) mirror_down();
            for (int i = 0; i < 4; i++) {
                const size_t bytes = guarded_find(results[i])->bytes;
                if (!device) host[i] = memcpy(malloc(bytes), results[i], bytes);
                else ASSERT_EQ(memcmp(host[i], results[i], bytes), 0);
                if (device) free(host[i]);
            }
            ASSERT_EQ(guards_changed(), 0);
            if (device) { /* the same where they read: y over x, dx over dy */
                static unsigned char got[1 << 16];
                const size_t width = (size_t)cols * 2;
                memset(&arguments[0].grad_row_scale, 0, sizeof arguments[0].grad_row_scale);
                arguments[0].out = chain.input;
                arguments[0].grad_input = chain.grad_output;
                arguments[1].out = chain.input; /* of op 0 */
                chain.argument_count = 2;
                ASSERT_EQ(tegroup_chain_plan_make(&chain, NULL, plan, &p.error), TEGROUP_OK);
                ASSERT_EQ((size_t)0, plan->saved_bytes);
                chain.options.workspace_bytes = plan->workspace_bytes;
                chain.options.workspace = workspace_of(plan->workspace_bytes);
                ASSERT_EQ(tegroup_chain_forward(plan, &chain, first, &p.error), TEGROUP_OK);
                ASSERT_EQ(tegroup_chain_backward(plan, &chain, first, &p.error), TEGROUP_OK);
                MUST(cudaDeviceSynchronize());
                for (int i = 0; i < 2; i++) {
                    MUST(cudaMemcpy(got, i == 0 ? chain.input.data : chain.grad_output.data, width * (size_t)p.capacity, cudaMemcpyDeviceToHost));
                    for (int64_t row = 0; row < p.capacity; row++)
                        if (owned(&p, row)) ASSERT_EQ(memcmp(got + (size_t)row * width, (const char *)results[i] + (size_t)row * width, width), 0);
                }
            }
            problem_reset(&p);
        }
        problem_release(&p);
    }
    free(plan);
}
TEST(mlp_gpu, portable_bias_and_scale) { bias_and_scale(TEGROUP_BACKEND_PORTABLE, 13); }
TEST(mlp_gpu, sm90_bias_and_scale) { bias_and_scale(TEGROUP_BACKEND_SM90, 24); }

TEST(mlp_gpu, small_stack) {
    small_stack = 1;
    chain_of_mlp(TEGROUP_BACKEND_PORTABLE, mlp_odd);
    small_stack = 0;
    ASSERT_GT(stack_most, 0u);
    printf("stack that calls of a chain have used, CUDA's own included: %ld bytes\n", (long)stack_most);
    ASSERT_LE(stack_most, (size_t)STACK_BYTES);
}

TEST_MAIN()
