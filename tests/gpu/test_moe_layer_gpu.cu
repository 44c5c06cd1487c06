/* The whole MoE layer on the GPU: its output against the reference in FP64, everything that it writes bit for bit what the
 * separate calls give, and a captured step replayed with other logits, with saved memory, workspace and results poisoned. */
#define TEGROUP_IMPLEMENTATION
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "backends.h"
#include "graph.h"
#include "moe_layer.h"
#include "test.h"

static cudaStream_t stream;

static void *fresh(size_t bytes) { /* poisoned, and freed with the mark's other memory */
    void *memory = arena_take(bytes + 1, 0);
    MUST(cudaMemset(memory, 0xF3, bytes + 1));
    return memory;
}
static tegroup_matrix fresh_matrix(int64_t rows, int64_t cols, tegroup_dtype dtype) {
    return tegroup_matrix_of(fresh((size_t)(rows * cols) * size_of(dtype)), rows, cols, dtype);
}
static void must(tegroup_status status, const tegroup_error *error) {
    char text[400];
    if (status == TEGROUP_OK) return;
    tegroup_error_text(error, text, sizeof text);
    printf("%s\n", text);
    test_failed = 1;
}

/* The layer, made on the host, with everything in device memory. wide: columns are multiples of 16 bytes. */
static int device_layer(layer *l, rng *r, tegroup_dtype dtype, tegroup_backend backend, int wide, tegroup_moe_desc *desc, tegroup_moe_plan *plan, void *mark) {
    tegroup_error error;
    layer_made_of = wide ? 8 : 1;
    layer_make(l, r, dtype, 1, rng_int(r, 0, 3));
    layer_made_of = 1;
    if (test_failed) return 0;
    *desc = l->desc;
    mirror_up(mark);
    desc->space = TEGROUP_SPACE_DEVICE;
    desc->experts.options.backend = backend;
    tegroup_matrix *matrices[] = {&desc->tokens, &desc->router.logits, &desc->output, &desc->grad_output, &desc->grad_tokens, &desc->grad_logits};
    for (int i = 0; i < 6; i++) matrices[i]->data = device_of(matrices[i]->data);
    tegroup_mlp_weights *weights[] = {&desc->experts.fc1, &desc->experts.fc2};
    for (int i = 0; i < 2; i++) {
        tensor_to_device(&weights[i]->weight, 0), tensor_to_device(&weights[i]->bias, 0);
        tensor_to_device(&weights[i]->main_grad, 0), tensor_to_device(&weights[i]->bias_grad, 0);
    }
    const tegroup_status status = tegroup_moe_plan_make(desc, NULL, plan, &error);
    if (status == TEGROUP_ERROR_UNSUPPORTED) return 0; /* the backend's word on these shapes */
    must(status, &error);
    desc->saved_by_forward = fresh(plan->saved_by_forward_bytes), desc->saved_by_forward_bytes = plan->saved_by_forward_bytes;
    desc->saved_by_dgrad = fresh(plan->saved_by_dgrad_bytes), desc->saved_by_dgrad_bytes = plan->saved_by_dgrad_bytes;
    desc->experts.options.workspace_bytes = plan->workspace_bytes;
    desc->experts.options.workspace = workspace_of(plan->workspace_bytes);
    return !test_failed;
}

static void step(const tegroup_moe_plan *plan, const tegroup_moe_desc *desc) {
    tegroup_error error;
    must(tegroup_moe_forward(plan, desc, stream, &error), &error);
    must(tegroup_moe_dgrad(plan, desc, stream, &error), &error);
    must(tegroup_moe_wgrad(plan, desc, stream, &error), &error);
}

/* The results of a layer: where they are and how long. */
typedef struct result { const void *data; size_t bytes; } result;
enum { RESULTS = 7 };
static void results_of(const tegroup_moe_desc *d, result *results) {
    const tegroup_matrix *m[] = {&d->output, &d->grad_tokens, &d->grad_logits};
    const tegroup_tensor *t[] = {&d->experts.fc1.main_grad, &d->experts.fc2.main_grad, &d->experts.fc1.bias_grad, &d->experts.fc2.bias_grad};
    for (int i = 0; i < 3; i++) results[i] = {m[i]->data, (size_t)(m[i]->rows * m[i]->cols) * size_of(m[i]->dtype)};
    for (int i = 0; i < 4; i++)
        results[3 + i] = {t[i]->data, t[i]->dtype ? (size_t)(t[i]->shape.groups * t[i]->shape.rows * t[i]->shape.cols) * size_of(t[i]->dtype) : 0};
}
static unsigned char *bytes_of(const result *results) {
    size_t all = 0;
    for (int i = 0; i < RESULTS; i++) all += results[i].bytes;
    unsigned char *copy = (unsigned char *)malloc(all + 1), *at = copy;
    MUST(cudaStreamSynchronize(stream));
    for (int i = 0; i < RESULTS; at += results[i++].bytes) MUST(cudaMemcpy(at, results[i].data, results[i].bytes, cudaMemcpyDeviceToHost));
    *at = 0;
    return copy;
}
static size_t all_bytes(const result *results) {
    size_t all = 0;
    for (int i = 0; i < RESULTS; i++) all += results[i].bytes;
    return all;
}
static void poison_results(const result *results) {
    for (int i = 0; i < RESULTS; i++) MUST(cudaMemset((void *)results[i].data, 0xF1, results[i].bytes));
}

/* Router, prepare, permutation, permute, MLP and combine, by hand, into the desc's outputs. */
static void by_hand(const layer *l, const tegroup_moe_desc *d) {
    const int64_t T = l->tokens, k = l->k, rows = T * k;
    tegroup_error error;
    tegroup_layout layout;
    tegroup_router_desc router = d->router;
    router.struct_size = sizeof router, router.space = d->space, router.experts = l->experts;
    router.probabilities = fresh_matrix(T, l->experts, TEGROUP_DTYPE_F32);
    router.weights = fresh_matrix(T, k, TEGROUP_DTYPE_F32);
    router.indices = fresh_matrix(T, k, TEGROUP_DTYPE_I64);
    router.counts = fresh_matrix(1, l->experts, TEGROUP_DTYPE_I64);
    must(tegroup_router_layout(&router, &layout, &error), &error);
    router.workspace = fresh(layout.total_bytes), router.workspace_bytes = layout.total_bytes;
    must(tegroup_router(&router, stream, &error), &error);
    tegroup_shape shape = tegroup_shape_of(l->experts, rows, 0, tegroup_sizes_of(router.counts.data, TEGROUP_DTYPE_I64, d->space));
    must(tegroup_snapshot_layout(&shape, &layout, &error), &error);
    must(tegroup_shape_prepare(&shape, fresh(layout.total_bytes), layout.total_bytes, stream, &error), &error);
    tegroup_permutation_desc permutation;
    memset(&permutation, 0, sizeof permutation);
    permutation.struct_size = sizeof permutation, permutation.space = d->space, permutation.indices = router.indices, permutation.shape = shape;
    permutation.row_of_slot = fresh_matrix(T, k, TEGROUP_DTYPE_I64), permutation.slot_of_row = fresh_matrix(1, rows, TEGROUP_DTYPE_I64);
    must(tegroup_permutation_layout(&permutation, &layout, &error), &error);
    permutation.workspace = fresh(layout.total_bytes), permutation.workspace_bytes = layout.total_bytes;
    must(tegroup_permutation_make(&permutation, stream, &error), &error);
    tegroup_matrix x = fresh_matrix(rows, l->width, l->dtype), y = fresh_matrix(rows, l->outputs, l->dtype), scale = fresh_matrix(rows, 1, TEGROUP_DTYPE_F32),
                   dy = fresh_matrix(rows, l->outputs, l->dtype), dx = fresh_matrix(rows, l->width, l->dtype), dscale = fresh_matrix(rows, 1, TEGROUP_DTYPE_F32),
                   dweights = fresh_matrix(T, k, TEGROUP_DTYPE_F32);
    tegroup_permute_desc permute;
    memset(&permute, 0, sizeof permute);
    permute.struct_size = sizeof permute, permute.space = d->space, permute.k = (int32_t)k, permute.slot_of_row = permutation.slot_of_row;
    permute.tokens = d->tokens, permute.permuted = x;
    must(tegroup_permute(&permute, stream, &error), &error);
    permute.tokens = d->grad_output, permute.permuted = dy;
    must(tegroup_permute(&permute, stream, &error), &error);
    permute.k = 1, permute.tokens = tegroup_matrix_of(router.weights.data, rows, 1, TEGROUP_DTYPE_F32), permute.permuted = scale;
    must(tegroup_permute(&permute, stream, &error), &error);
    tegroup_mlp_desc mlp = d->experts;
    tegroup_mlp_plan plan;
    mlp.struct_size = sizeof mlp, mlp.space = d->space, mlp.recompute = 0;
    mlp.input = tegroup_tensor_of(shape, l->width, l->dtype, x.data), mlp.out = tegroup_tensor_of(shape, l->outputs, l->dtype, y.data);
    mlp.grad_output = tegroup_tensor_of(shape, l->outputs, l->dtype, dy.data), mlp.dgrad_out = tegroup_tensor_of(shape, l->width, l->dtype, dx.data);
    mlp.preactivation = tegroup_tensor_of(shape, 2 * l->hidden, l->dtype, fresh((size_t)(rows * 2 * l->hidden) * size_of(l->dtype)));
    mlp.grad_preactivation = tegroup_tensor_of(shape, 2 * l->hidden, l->dtype, fresh((size_t)(rows * 2 * l->hidden) * size_of(l->dtype)));
    mlp.activated = tegroup_tensor_of(shape, l->hidden, l->dtype, fresh((size_t)(rows * l->hidden) * size_of(l->dtype)));
    mlp.grad_row_scale = tegroup_tensor_of(shape, 1, TEGROUP_DTYPE_F32, dscale.data);
    mlp.row_scale_dtype = TEGROUP_DTYPE_F32, mlp.fc2_bias_scaled = l->biases;
    mlp.options.workspace = NULL, mlp.options.workspace_bytes = 0;
    must(tegroup_mlp_plan_make(&mlp, NULL, &plan, &error), &error);
    mlp.row_scale = scale.data;
    mlp.options.workspace = fresh(plan.workspace_bytes), mlp.options.workspace_bytes = plan.workspace_bytes;
    must(tegroup_mlp_forward(&plan, &mlp, stream, &error), &error);
    must(tegroup_mlp_dgrad(&plan, &mlp, stream, &error), &error);
    must(tegroup_mlp_wgrad(&plan, &mlp, stream, &error), &error);
    tegroup_combine_desc combine;
    memset(&combine, 0, sizeof combine);
    combine.struct_size = sizeof combine, combine.space = d->space, combine.row_of_slot = permutation.row_of_slot;
    combine.permuted = y, combine.tokens = d->output;
    must(tegroup_combine(&combine, stream, &error), &error);
    combine.permuted = dx, combine.tokens = d->grad_tokens;
    must(tegroup_combine(&combine, stream, &error), &error);
    combine.row_of_slot = tegroup_matrix_of(permutation.row_of_slot.data, rows, 1, TEGROUP_DTYPE_I64);
    combine.permuted = dscale, combine.tokens = tegroup_matrix_of(dweights.data, rows, 1, TEGROUP_DTYPE_F32);
    must(tegroup_combine(&combine, stream, &error), &error);
    tegroup_router_backward_desc backward;
    memset(&backward, 0, sizeof backward);
    backward.struct_size = sizeof backward, backward.space = d->space, backward.experts = l->experts, backward.k = l->k;
    backward.normalize = d->router.normalize, backward.scheme = d->router.scheme, backward.probabilities = router.probabilities, backward.indices = router.indices;
    backward.grad_weights = dweights, backward.grad_logits = d->grad_logits;
    must(tegroup_router_backward(&backward, stream, &error), &error);
}

static void layers(tegroup_backend backend, const tegroup_dtype *dtypes, int count, uint64_t seed) {
    rng r = rng_seed(seed);
    int64_t ran = 0, outputs = 0;
    double worst = 0;
    if (!backend_here(backend)) SKIP("not on this machine or not in this build");
    if (stream == NULL) MUST(cudaStreamCreate(&stream));
    for (int64_t i = scaled(60); i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        tegroup_moe_desc desc;
        tegroup_moe_plan plan;
        result results[RESULTS];
        if (device_layer(&l, &r, dtypes[rng_int(&r, 0, count - 1)], backend, backend == TEGROUP_BACKEND_SM90 || rng_chance(&r, 50), &desc, &plan, mark)) {
            results_of(&desc, results);
            step(&plan, &desc);
            ASSERT_PASSING();
            unsigned char *got = bytes_of(results), *want;
            ASSERT_EQ(workspace_guards_changed(), 0);
            for (int64_t t = 0; t < l.tokens; t++)
                for (int64_t o = 0; o < l.outputs; o++, outputs++) {
                    double size, exact = reference(&l, t, o, &size), bound = output_bound(&l, size);
                    const double ratio = fabs(load(l.dtype, got, t * l.outputs + o) - exact) / bound;
                    ASSERT_LE(ratio, 1);
                    worst = fmax(worst, ratio);
                }
            poison_results(results);
            by_hand(&l, &desc);
            ASSERT_PASSING();
            want = bytes_of(results);
            ASSERT_EQ(memcmp(got, want, all_bytes(results)), 0);
            free(got), free(want);
            mirror_down();
            ASSERT_EQ(guards_changed(), 0);
            ran++;
        }
        ASSERT_PASSING();
        layer_free(&l);
        guards_release(mark);
    }
    ASSERT_GT(ran, 10);
    printf("%s: %ld layers, %ld outputs, error/bound at most %.3f\n", tegroup_backend_name(backend), (long)ran, (long)outputs, worst);
}
static const tegroup_dtype wide_types[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32};
TEST(moe_layer_gpu, portable_as_by_hand) { layers(TEGROUP_BACKEND_PORTABLE, wide_types, 3, 51); }
TEST(moe_layer_gpu, sm90_as_by_hand) { layers(TEGROUP_BACKEND_SM90, wide_types, 2, 52); }

/* One captured step, replayed with other logits; before each replay all that it writes and all scratch is poisoned. */
static void replays(tegroup_backend backend, uint64_t seed) {
    rng r = rng_seed(seed);
    void *mark = guards_mark();
    layer l;
    tegroup_moe_desc desc;
    tegroup_moe_plan plan;
    result results[RESULTS];
    cudaGraph_t graph;
    cudaGraphExec_t run_step;
    int made = 0;
    if (!backend_here(backend)) SKIP("not on this machine or not in this build");
    if (stream == NULL) MUST(cudaStreamCreate(&stream));
    while (!made || l.tokens < 8) {
        if (made) layer_free(&l);
        guards_release(mark);
        made = device_layer(&l, &r, TEGROUP_DTYPE_BF16, backend, 1, &desc, &plan, mark);
        ASSERT_PASSING();
    }
    results_of(&desc, results);
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    step(&plan, &desc);
    MUST(cudaStreamEndCapture(stream, &graph));
    ASSERT_PASSING();
    ASSERT_TRUE(only_kernels(graph));
    MUST(cudaGraphInstantiate(&run_step, graph, 0));
    MUST(cudaGraphDestroy(graph));
    uint16_t *logits = (uint16_t *)malloc((size_t)(l.tokens * l.experts) * 2);
    for (int replay = 0; replay < 100; replay++) {
        unsigned char *got[2];
        for (int64_t i = 0; i < l.tokens * l.experts; i++) store(TEGROUP_DTYPE_BF16, logits, i, 4 * rng_normal(&r));
        MUST(cudaMemcpy(desc.router.logits.data, logits, (size_t)(l.tokens * l.experts) * 2, cudaMemcpyHostToDevice));
        for (int eager = 0; eager < 2; eager++) {
            poison_results(results);
            MUST(cudaMemset(desc.saved_by_forward, 0xF1, desc.saved_by_forward_bytes));
            MUST(cudaMemset(desc.saved_by_dgrad, 0xF1, desc.saved_by_dgrad_bytes));
            MUST(cudaMemset(desc.experts.options.workspace, 0xF1, desc.experts.options.workspace_bytes));
            MUST(cudaDeviceSynchronize());
            if (eager) step(&plan, &desc);
            else MUST(cudaGraphLaunch(run_step, stream));
            got[eager] = bytes_of(results);
        }
        ASSERT_EQ(memcmp(got[0], got[1], all_bytes(results)), 0);
        free(got[0]), free(got[1]);
    }
    free(logits);
    MUST(cudaGraphExecDestroy(run_step));
    layer_free(&l);
    guards_release(mark);
}
TEST(moe_layer_gpu, portable_replays_with_other_logits) { replays(TEGROUP_BACKEND_PORTABLE, 53); }
TEST(moe_layer_gpu, sm90_replays_with_other_logits) { replays(TEGROUP_BACKEND_SM90, 54); }

/* With room for fewer rows than choices, and an expert that keeps the choices of the largest weights. */
static void drops(tegroup_backend backend, tegroup_dtype dtype, uint64_t seed) {
    rng r = rng_seed(seed);
    int64_t dropped = 0;
    if (!backend_here(backend)) SKIP("not on this machine or not in this build");
    if (stream == NULL) MUST(cudaStreamCreate(&stream));
    for (int64_t i = scaled(60); i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        tegroup_moe_desc desc;
        tegroup_moe_plan plan;
        tegroup_error error;
        result results[RESULTS];
        if (device_layer(&l, &r, dtype, backend, 1, &desc, &plan, mark) && l.tokens > 0) {
            const int64_t capacity = rng_int(&r, 1, l.tokens * l.k);
            double close;
            const int64_t fewer = drop(&l, capacity, 1, &close);
            desc.capacity = capacity, desc.drops_by_weight = 1;
            must(tegroup_moe_plan_make(&desc, NULL, &plan, &error), &error);
            desc.saved_by_forward = fresh(plan.saved_by_forward_bytes), desc.saved_by_forward_bytes = plan.saved_by_forward_bytes;
            desc.saved_by_dgrad = fresh(plan.saved_by_dgrad_bytes), desc.saved_by_dgrad_bytes = plan.saved_by_dgrad_bytes;
            desc.experts.options.workspace_bytes = plan.workspace_bytes, desc.experts.options.workspace = workspace_of(plan.workspace_bytes);
            results_of(&desc, results);
            step(&plan, &desc);
            ASSERT_PASSING();
            unsigned char *got = bytes_of(results);
            ASSERT_EQ(workspace_guards_changed(), 0);
            for (int64_t t = 0; t < l.tokens && close >= 1e-5; t++) /* else rounding may decide */
                for (int64_t o = 0; o < l.outputs; o++) {
                    double size, exact = reference(&l, t, o, &size);
                    ASSERT_LE(fabs(load(l.dtype, got, t * l.outputs + o) - exact), output_bound(&l, size));
                }
            dropped += close >= 1e-5 ? fewer : 0;
            free(got);
            mirror_down();
            ASSERT_EQ(guards_changed(), 0);
        }
        ASSERT_PASSING();
        layer_free(&l);
        guards_release(mark);
    }
    ASSERT_GT(dropped, 10);
}
TEST(moe_layer_gpu, portable_drops_by_weight) { drops(TEGROUP_BACKEND_PORTABLE, TEGROUP_DTYPE_F32, 55); }
TEST(moe_layer_gpu, sm90_drops_by_weight) { drops(TEGROUP_BACKEND_SM90, TEGROUP_DTYPE_BF16, 56); }

TEST_MAIN()
