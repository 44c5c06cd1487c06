/* The whole MoE layer on the GPU: its output against the reference in FP64, everything that it writes bit for bit what the
 * separate calls give, and a captured step replayed with other logits, with saved memory, workspace and results poisoned. */
#define TEGROUP_EXTERN
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "backends.h"
#include "graph.h"
#include "moe_layer.h"
#include "test.h"
#include "moe_by_hand.h"

static cudaStream_t stream;

void *fresh(size_t bytes) { /* poisoned, and freed with the mark's other memory */
    void *memory = arena_take(bytes + 1, 0);
    MUST(cudaMemset(memory, 0xF3, bytes + 1));
    return memory;
}

/* The layer, made on the host, with everything in device memory. wide: columns are multiples of 16 bytes; given: the routing is the
 * caller's own. */
static int device_layer(layer *l, rng *r, tegroup_dtype dtype, tegroup_backend backend, int wide, int given, const layer_format *format, tegroup_moe_desc *desc, tegroup_moe_plan *plan, void *mark) {
    tegroup_error error;
    layer_made_of = format != NULL ? 16 : wide ? 8 : 1;
    layer_make(l, r, dtype, 1, rng_int(r, 0, 3));
    layer_made_of = 1;
    if (format != NULL) layer_in_format(l, format);
    if (given) give_routing(l, r, rng_int(r, 0, 3));
    if (test_failed) return 0;
    *desc = l->desc;
    mirror_up(mark);
    desc->space = TEGROUP_SPACE_DEVICE;
    desc->experts.options.backend = backend;
    tegroup_matrix *matrices[] = {&desc->tokens, &desc->router.logits, &desc->output, &desc->grad_output, &desc->grad_tokens, &desc->grad_logits,
                                  &desc->router.scheme.given_indices, &desc->given_weights, &desc->grad_weights};
    for (int i = 0; i < (int)(sizeof matrices / sizeof *matrices); i++) matrices[i]->data = device_of(matrices[i]->data);
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

static void layers(tegroup_backend backend, const tegroup_dtype *dtypes, int count, uint64_t seed) {
    rng r = rng_seed(seed);
    int64_t ran = 0, outputs = 0;
    double worst = 0;
    if (!backend_here(backend)) SKIP("not on this machine or not in this build");
    if (stream == NULL) MUST(cudaStreamCreate(&stream));
    for (int64_t i = scaled(52) + 8; i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        tegroup_moe_desc desc;
        tegroup_moe_plan plan;
        result results[RESULTS];
        if (device_layer(&l, &r, dtypes[rng_int(&r, 0, count - 1)], backend, backend == TEGROUP_BACKEND_SM90 || rng_chance(&r, 50), 0, NULL, &desc, &plan, mark)) {
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
            by_hand(&l, &desc, stream);
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
    ASSERT_GT(ran, scaled(10) > 1 ? 10 : 0);
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
        made = device_layer(&l, &r, TEGROUP_DTYPE_BF16, backend, 1, 0, NULL, &desc, &plan, mark);
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
    for (int64_t replay = scaled(100); replay > 0; replay--) {
        unsigned char *got[2];
        for (int64_t i = 0; i < l.tokens * l.experts; i++) store(TEGROUP_DTYPE_BF16, logits, i, 4 * rng_normal(&r));
        copy_up(desc.router.logits.data, logits, (size_t)(l.tokens * l.experts) * 2);
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

/* A layer of today's models is 6 launches forward, and 15 with all its gradients. It is captured and not run. */
TEST(moe_layer_gpu, sm90_launches) {
    const int64_t T = 4096, E = 128, K = 8, D = 256, H = 128;
    tegroup_moe_desc d;
    tegroup_moe_plan plan;
    tegroup_error error;
    unsigned char *memory;
    size_t taken = 0;
    if (!backend_here(TEGROUP_BACKEND_SM90)) SKIP("not on this machine or not in this build");
    if (stream == NULL) MUST(cudaStreamCreate(&stream));
    MUST(cudaMalloc((void **)&memory, (size_t)1 << 30));
    const auto take = [&](size_t bytes) {
        unsigned char *at = memory + taken;
        taken += (bytes + 255) / 256 * 256;
        return (void *)at;
    };
    const auto matrix_of = [&](int64_t rows, int64_t cols, tegroup_dtype dtype) {
        return tegroup_matrix_of(take((size_t)(rows * cols) * size_of(dtype)), rows, cols, dtype);
    };
    const auto weight_of = [&](int64_t rows, int64_t cols) {
        return tegroup_tensor_uniform((int32_t)E, rows, cols, TEGROUP_DTYPE_BF16, take((size_t)(E * rows * cols) * 2));
    };
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.space = TEGROUP_SPACE_DEVICE;
    d.tokens = matrix_of(T, D, TEGROUP_DTYPE_BF16);
    d.output = matrix_of(T, D, TEGROUP_DTYPE_BF16);
    d.grad_output = matrix_of(T, D, TEGROUP_DTYPE_BF16);
    d.grad_tokens = matrix_of(T, D, TEGROUP_DTYPE_BF16);
    d.router.logits = matrix_of(T, E, TEGROUP_DTYPE_BF16);
    d.grad_logits = matrix_of(T, E, TEGROUP_DTYPE_BF16);
    d.router.k = (int32_t)K;
    d.router.normalize = 1;
    d.experts.activation = TEGROUP_ACTIVATION_SWIGLU;
    d.experts.options.backend = TEGROUP_BACKEND_SM90;
    d.experts.fc1.weight = weight_of(2 * H, D);
    d.experts.fc2.weight = weight_of(D, H);
    d.experts.fc1.main_grad = weight_of(2 * H, D);
    d.experts.fc2.main_grad = weight_of(D, H);
    for (int training = 0; training < 2; training++) {
        tegroup_moe_desc now = d;
        cudaGraph_t graph;
        const size_t before = taken;
        if (!training) {
            now.grad_output = now.grad_tokens = now.grad_logits = tegroup_matrix();
            now.experts.fc1.main_grad = now.experts.fc2.main_grad = tegroup_tensor();
        }
        must(tegroup_moe_plan_make(&now, NULL, &plan, &error), &error);
        ASSERT_PASSING();
        now.saved_by_forward = take(now.saved_by_forward_bytes = plan.saved_by_forward_bytes);
        now.saved_by_dgrad = take(now.saved_by_dgrad_bytes = plan.saved_by_dgrad_bytes);
        now.experts.options.workspace = take(now.experts.options.workspace_bytes = plan.workspace_bytes);
        ASSERT_LT(taken, (size_t)1 << 30);
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        if (training) step(&plan, &now);
        else must(tegroup_moe_forward(&plan, &now, stream, &error), &error);
        MUST(cudaStreamEndCapture(stream, &graph));
        ASSERT_PASSING();
        ASSERT_EQ(training ? 15 : 6, only_kernels(graph));
        MUST(cudaGraphDestroy(graph));
        taken = before;
    }
    MUST(cudaFree(memory));
}

/* In every format that the backend has: every bit is that of the separate calls, which quantise permuted copies. */
static void formats(tegroup_backend backend, uint64_t seed) {
    rng r = rng_seed(seed);
    int served = 0; /* SM90 wants columnwise copies transposed, and takes no quantised weights beside BF16 */
    if (!backend_here(backend)) SKIP("not on this machine or not in this build");
    if (stream == NULL) MUST(cudaStreamCreate(&stream));
    for (int which = 0; which < LAYER_FORMATS; which++) {
        int64_t ran = 0;
        double apart = 0, size = 0, unused;
        for (int64_t i = scaled(12) + 3; i > 0; i--) {
            void *mark = guards_mark();
            layer l;
            tegroup_moe_desc desc;
            tegroup_moe_plan plan;
            result results[RESULTS];
            if (device_layer(&l, &r, TEGROUP_DTYPE_BF16, backend, 1, 0, &layer_formats[which], &desc, &plan, mark)) {
                results_of(&desc, results);
                step(&plan, &desc);
                ASSERT_PASSING();
                unsigned char *got = bytes_of(results), *want;
                ASSERT_EQ(workspace_guards_changed(), 0);
                for (int64_t t = 0; t < l.tokens; t++)
                    for (int64_t o = 0; o < l.outputs; o++) {
                        const double exact = reference(&l, t, o, &unused), difference = load(l.dtype, got, t * l.outputs + o) - exact;
                        apart += difference * difference, size += exact * exact;
                    }
                poison_results(results);
                by_hand(&l, &desc, stream);
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
        printf("%s, %s: %ld layers, %.4f\n", tegroup_backend_name(backend), layer_formats[which].name, (long)ran, size > 0 ? sqrt(apart / size) : 0);
        ASSERT_LE(apart, 0.3 * 0.3 * size);
        served += ran > 0;
    }
    ASSERT_GE(served, backend == TEGROUP_BACKEND_SM90 ? 5 : LAYER_FORMATS);
}
TEST(moe_layer_gpu, portable_formats_as_by_hand) { formats(TEGROUP_BACKEND_PORTABLE, 57); }
TEST(moe_layer_gpu, sm90_formats_as_by_hand) { formats(TEGROUP_BACKEND_SM90, 58); }

/* With room for fewer rows than choices, and an expert that keeps the choices of the largest weights. */
static void drops(tegroup_backend backend, tegroup_dtype dtype, uint64_t seed) {
    rng r = rng_seed(seed);
    int64_t dropped = 0;
    if (!backend_here(backend)) SKIP("not on this machine or not in this build");
    if (stream == NULL) MUST(cudaStreamCreate(&stream));
    for (int64_t i = scaled(52) + 8; i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        tegroup_moe_desc desc;
        tegroup_moe_plan plan;
        tegroup_error error;
        result results[RESULTS];
        if (device_layer(&l, &r, dtype, backend, 1, 0, NULL, &desc, &plan, mark) && l.tokens > 0) {
            const int each = rng_chance(&r, 50);
            const int64_t capacity = rng_int(&r, 1, each ? l.tokens : l.tokens * l.k);
            double close;
            const int64_t fewer = drop(&l, capacity, each, 1, &close);
            desc.capacity = each ? 0 : capacity, desc.expert_capacity = each ? capacity : 0, desc.drops_by_weight = 1;
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
    ASSERT_GT(dropped, scaled(10) > 1 ? 10 : 0);
}
TEST(moe_layer_gpu, portable_drops_by_weight) { drops(TEGROUP_BACKEND_PORTABLE, TEGROUP_DTYPE_F32, 55); }
TEST(moe_layer_gpu, sm90_drops_by_weight) { drops(TEGROUP_BACKEND_SM90, TEGROUP_DTYPE_BF16, 56); }

/* ---- a routing of the caller's own -------------------------------------------------------------------------------------- */

/* What Y is with the weight of one choice alone, which is 1, times dY: the gradient of that weight. */
static double slope_of_weight(layer *l, int64_t t, int32_t j, double *bound) {
    double kept[3], sum = 0;
    for (int32_t i = 0; i < l->k; i++) {
        kept[i] = l->given_weights[t * l->k + i];
        l->given_weights[t * l->k + i] = i == j;
    }
    *bound = 0;
    for (int64_t o = 0; o < l->outputs; o++) {
        double size, dy = l->dy[t * l->outputs + o];
        sum += dy * reference(l, t, o, &size);
        *bound += fabs(dy) * (2 * output_bound(l, size) + (double)l->outputs * SUPPORT_SUM_ROUNDING * size);
    }
    for (int32_t i = 0; i < l->k; i++) l->given_weights[t * l->k + i] = kept[i];
    return sum;
}

/* Output, and the gradient of the weights, against the reference; all that a step writes, twice the same bits. */
static void given(tegroup_backend backend, const tegroup_dtype *dtypes, int count, uint64_t seed) {
    rng r = rng_seed(seed);
    int64_t weights = 0;
    double worst = 0;
    if (!backend_here(backend)) SKIP("not on this machine or not in this build");
    if (stream == NULL) MUST(cudaStreamCreate(&stream));
    for (int64_t i = scaled(52) + 8; i > 0; i--) {
        void *mark = guards_mark();
        layer l;
        tegroup_moe_desc desc;
        tegroup_moe_plan plan;
        result results[RESULTS];
        if (device_layer(&l, &r, dtypes[rng_int(&r, 0, count - 1)], backend, 1, 1, NULL, &desc, &plan, mark)) {
            const int64_t slots = l.tokens * l.k;
            float *grad = (float *)malloc((size_t)slots * 4 + 4);
            results_of(&desc, results);
            results[2] = result_of(desc.grad_weights.data, slots, TEGROUP_DTYPE_F32); /* there are no logits */
            step(&plan, &desc);
            unsigned char *got = bytes_of(results), *again;
            poison_results(results);
            step(&plan, &desc);
            again = bytes_of(results);
            ASSERT_EQ(workspace_guards_changed(), 0);
            ASSERT_EQ(memcmp(got, again, all_bytes(results)), 0);
            MUST(cudaMemcpy(grad, desc.grad_weights.data, (size_t)slots * 4, cudaMemcpyDeviceToHost));
            for (int64_t t = 0; t < l.tokens; t++) {
                for (int64_t o = 0; o < l.outputs; o++) {
                    double size, exact = reference(&l, t, o, &size);
                    worst = fmax(worst, fabs(load(l.dtype, got, t * l.outputs + o) - exact) / output_bound(&l, size));
                }
                for (int32_t j = 0; j < l.k; j++, weights++) {
                    double bound, exact = slope_of_weight(&l, t, j, &bound);
                    const double error = fabs(grad[t * l.k + j] - exact);
                    worst = fmax(worst, error == 0 ? 0 : error / bound); /* a choice without an expert has a bound of 0 */
                }
            }
            ASSERT_TRUE(worst <= 1);
            free(got), free(again), free(grad);
            mirror_down();
            ASSERT_EQ(guards_changed(), 0);
        }
        ASSERT_PASSING();
        layer_free(&l);
        guards_release(mark);
    }
    ASSERT_GT(weights, 0);
    printf("%s: %ld weights, error/bound at most %.3f\n", tegroup_backend_name(backend), (long)weights, worst);
}
TEST(moe_layer_gpu, portable_given_routing) { given(TEGROUP_BACKEND_PORTABLE, wide_types, 3, 59); }
TEST(moe_layer_gpu, sm90_given_routing) { given(TEGROUP_BACKEND_SM90, wide_types, 2, 60); }

TEST_MAIN()
