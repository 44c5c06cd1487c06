/* Layers of quantised operands on a GPU, in every recipe, by whatever backend AUTO takes: each product within FP64 bounds of what
 * the copies that it read mean; results straight into the caller's buffer, and what the MLP quantises in passing, with the bits of
 * separate calls on the GPU; the weight gradients later, on a second stream; all of it captured, with the caller's quantising and
 * the routing inside, and replayed with other sizes. */
#define TEGROUP_EXTERN
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "graph.h"
#include "quantised_layers.h"
#include "test.h"

static tegroup_error error;
static cudaStream_t first, second;
static cudaEvent_t ready, done;

#define OK(call)                                                                                                        \
    do {                                                                                                                \
        const tegroup_status status_ = (call);                                                                          \
        if (status_ != TEGROUP_OK) TEST_FAIL("%s: %s %s (%ld, %ld)\n", tegroup_status_name(status_), error.field, error.rule, (long)error.expected, (long)error.got); \
    } while (0)

static void streams_make(void) {
    if (first != NULL) return;
    MUST(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    MUST(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    MUST(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
}

static tegroup_tensor on_device(tegroup_tensor t) {
    if (t.dtype == TEGROUP_DTYPE_UNSET) return t;
    tensor_to_device(&t, 0);
    t.amax = (float *)device_of(t.amax);
    return t;
}
static tegroup_quantize_desc quantize_on_device(tegroup_quantize_desc q) {
    q.space = TEGROUP_SPACE_DEVICE;
    q.input = on_device(q.input), q.output = on_device(q.output), q.grad_output = on_device(q.grad_output);
    q.row_scale.data = device_of(q.row_scale.data), q.grad_row_scale.data = device_of(q.grad_row_scale.data);
    return q;
}
static tegroup_mlp_weights weights_on_device(tegroup_mlp_weights w) {
    w.weight = on_device(w.weight), w.bias = on_device(w.bias), w.main_grad = on_device(w.main_grad), w.bias_grad = on_device(w.bias_grad);
    return w;
}
static tegroup_mlp_desc mlp_on_device(const tegroup_mlp_desc *host) {
    tegroup_mlp_desc d = *host;
    tegroup_tensor *rows[] = {&d.input, &d.out, &d.grad_output, &d.dgrad_out, &d.grad_row_scale, &d.preactivation, &d.activated, &d.grad_preactivation};
    d.space = TEGROUP_SPACE_DEVICE;
    d.fc1 = weights_on_device(d.fc1), d.fc2 = weights_on_device(d.fc2);
    for (int i = 0; i < 8; i++) *rows[i] = on_device(*rows[i]);
    d.row_scale = device_of(d.row_scale);
    return d;
}
static tegroup_linear_desc linear_on_device(const tegroup_linear_desc *host) {
    tegroup_linear_desc d = *host;
    tegroup_tensor *all[] = {&d.weight, &d.bias, &d.input, &d.out, &d.grad_output, &d.dgrad_out, &d.main_grad, &d.bias_grad};
    d.space = TEGROUP_SPACE_DEVICE;
    for (int i = 0; i < 8; i++) *all[i] = on_device(*all[i]);
    d.row_scale = device_of(d.row_scale);
    return d;
}

/* The routing, and what the caller quantises every step, on the GPU. */
static tegroup_status begin_step(const quantised_layer *l) {
    const tegroup_quantize_desc x = quantize_on_device(l->x), dy = quantize_on_device(l->dy);
    tegroup_shape shape = l->rows;
    void *snapshot = device_of(shape.snapshot);
    sizes_to_device(&shape.row_sizes);
    shape.snapshot = NULL;
    tegroup_status status = tegroup_shape_prepare(&shape, snapshot, 4096, first, &error);
    if (status == TEGROUP_OK) status = tegroup_quantize(&x, first, &error);
    return status == TEGROUP_OK ? tegroup_quantize(&dy, first, &error) : status;
}
static void join(void) {
    MUST(cudaEventRecord(done, second));
    MUST(cudaStreamWaitEvent(first, done, 0));
}
static void fork_second(void) {
    MUST(cudaEventRecord(ready, first));
    MUST(cudaStreamWaitEvent(second, ready, 0));
}

static tegroup_status linear_step(const quantised_layer *l, const tegroup_linear_plan *plan, const tegroup_linear_desc *d) {
    tegroup_linear_desc saved = *d;
    tegroup_status status = begin_step(l);
    saved.weight.data = saved.weight.columnwise_data = saved.out.data = saved.dgrad_out.data = NULL;
    if (l->f->rows != TEGROUP_SCALING_TENSOR) saved.input.data = saved.input.scale_inv = saved.grad_output.data = saved.grad_output.scale_inv = NULL;
    if (status == TEGROUP_OK) status = tegroup_linear_forward(plan, d, first, &error);
    if (status == TEGROUP_OK) status = tegroup_linear_dgrad(plan, d, first, &error);
    fork_second(); /* after dgrad, as they share a workspace */
    if (status == TEGROUP_OK) status = tegroup_linear_wgrad(plan, &saved, second, &error);
    join();
    return status;
}
static tegroup_status mlp_step(const quantised_layer *l, const tegroup_mlp_plan *plan, const tegroup_mlp_desc *d) {
    tegroup_mlp_desc saved = *d;
    tegroup_status status = begin_step(l);
    saved.fc1.weight.data = saved.fc2.weight.data = saved.out.data = saved.dgrad_out.data = saved.preactivation.data = NULL;
    saved.options.workspace_bytes = plan->wgrad_workspace_bytes;
    if (status == TEGROUP_OK) status = tegroup_mlp_forward(plan, d, first, &error);
    if (status == TEGROUP_OK) status = tegroup_mlp_dgrad(plan, d, first, &error);
    fork_second();
    if (status == TEGROUP_OK) status = tegroup_mlp_wgrad(plan, &saved, second, &error);
    join();
    return status;
}

/* Brings everything back, with a snapshot that the host may read. */
static void bring_back(quantised_layer *l) {
    mirror_down();
    memcpy(l->counts, l->rows.row_sizes.data, sizeof l->counts);
    tegroup_shape again = l->rows;
    void *snapshot = (void *)(uintptr_t)again.snapshot;
    again.snapshot = NULL;
    OK(tegroup_shape_prepare(&again, snapshot, 4096, NULL, &error));
}

/* Other sizes for a replay, of as many rows or fewer. */
static void other_sizes(const quantised_layer *l, rng *r) {
    int64_t counts[QL_GROUPS], left = l->rows.rows;
    for (int g = 0; g < QL_GROUPS; g++) counts[g] = rng_chance(r, 25) ? 0 : rng_int(r, 0, left), left -= counts[g];
    copy_up(device_of(l->rows.row_sizes.data), counts, sizeof counts);
    MUST(cudaDeviceSynchronize());
}

/* The worst of a product that was made by `plan`: FP8 with scales of F32 is multiplied by Hopper's FP8 instructions on SM90. */
static double worst_by(const tegroup_plan *plan, const quantised_layer *l, tegroup_op op, const tegroup_tensor *a, const tegroup_tensor *b,
                       const tegroup_tensor *d, const tegroup_tensor *bias, const float *scale) {
    const int values = op == TEGROUP_OP_WGRAD && keeps_values(a); /* are multiplied as they are */
    ql_instruction_error = plan->backend == TEGROUP_BACKEND_SM90 && !values && tegroup_scaling_info(a->scaling)->scale_dtype == TEGROUP_DTYPE_F32 ? 0x1p-9 : 0;
    return worst_of(l, op, a, b, d, bias, scale, SUPPORT_SUM_ROUNDING);
}
static double linear_wrong(const quantised_layer *l, const tegroup_linear_plan *plan) {
    const tegroup_linear_desc *d = &l->linear;
    const int in_out = d->weight_layout == TEGROUP_WEIGHT_IN_OUT;
    const tegroup_tensor *x = &d->input, *dy = &d->grad_output;
    double worst = worst_by(&plan->forward, l, in_out ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD, x, &d->weight, &d->out, &d->bias, (const float *)d->row_scale);
    worst = fmax(worst, worst_by(&plan->dgrad, l, in_out ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, dy, &d->weight, &d->dgrad_out, NULL, NULL));
    worst = fmax(worst, worst_by(&plan->wgrad, l, TEGROUP_OP_WGRAD, in_out ? x : dy, in_out ? dy : x, &d->main_grad, NULL, NULL));
    if (d->bias.dtype != TEGROUP_DTYPE_UNSET) worst = fmax(worst, worst_sum(l, dy, &d->bias_grad, (const float *)d->row_scale, SUPPORT_SUM_ROUNDING));
    return worst;
}
static double mlp_wrong(const quantised_layer *l, const tegroup_mlp_plan *plan) {
    const tegroup_mlp_desc *d = &l->mlp;
    const int t1 = d->fc1.weight_layout == TEGROUP_WEIGHT_IN_OUT, t2 = d->fc2.weight_layout == TEGROUP_WEIGHT_IN_OUT;
    const double u = SUPPORT_SUM_ROUNDING;
    double worst = l->in_place ? 0 : worst_by(&plan->fc1.forward, l, t1 ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD, &d->input, &d->fc1.weight, &d->preactivation, &d->fc1.bias, NULL);
    if (!d->recompute)
        worst = fmax(worst, worst_by(&plan->fc2.forward, l, t2 ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD, &d->activated, &d->fc2.weight, &d->out, &d->fc2.bias, NULL));
    worst = fmax(worst, worst_by(&plan->fc1.dgrad, l, t1 ? TEGROUP_OP_FORWARD : TEGROUP_OP_DGRAD, &d->grad_preactivation, &d->fc1.weight, &d->dgrad_out, NULL, NULL));
    worst = fmax(worst, worst_by(&plan->fc2.wgrad, l, TEGROUP_OP_WGRAD, t2 ? &d->activated : &d->grad_output, t2 ? &d->grad_output : &d->activated, &d->fc2.main_grad, NULL, NULL));
    worst = fmax(worst, worst_by(&plan->fc1.wgrad, l, TEGROUP_OP_WGRAD, t1 ? &d->input : &d->grad_preactivation, t1 ? &d->grad_preactivation : &d->input, &d->fc1.main_grad, NULL, NULL));
    if (d->fc1.bias.dtype != TEGROUP_DTYPE_UNSET) worst = fmax(worst, fmax(worst_sum(l, &d->grad_preactivation, &d->fc1.bias_grad, NULL, u), worst_sum(l, &d->grad_output, &d->fc2.bias_grad, NULL, u)));
    return worst;
}

/* Bits of two buffers. */
static int64_t differ(const void *a, const void *b) { return a != NULL && b != NULL && memcmp(a, b, guarded_find(a)->bytes) != 0; }
static tegroup_tensor elsewhere(const tegroup_tensor *t) {
    tegroup_tensor other = *t;
    void **all[] = {&other.data, &other.scale_inv, &other.columnwise_data, &other.columnwise_scale_inv, (void **)&other.global_scale_inv, (void **)&other.amax};
    for (int i = 0; i < 6; i++)
        if (*all[i] != NULL) *all[i] = room(guarded_find(*all[i])->bytes);
    return other;
}

static void graph_of_linear(quantised_layer *l, const tegroup_linear_plan *plan, const tegroup_linear_desc *d, rng *r) {
    cudaGraph_t graph;
    cudaGraphExec_t step;
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    const tegroup_status status = linear_step(l, plan, d);
    MUST(cudaStreamEndCapture(first, &graph));
    OK(status);
    ASSERT_TRUE(only_kernels(graph));
    MUST(cudaGraphInstantiate(&step, graph, 0));
    for (int i = 0; i < 2; i++) {
        other_sizes(l, r);
        MUST(cudaGraphLaunch(step, first));
        MUST(cudaStreamSynchronize(first));
        bring_back(l);
        ASSERT_PASSING();
        ASSERT_LE(linear_wrong(l, plan), 1);
        ASSERT_EQ(guards_changed(), 0);
    }
    MUST(cudaGraphExecDestroy(step));
    MUST(cudaGraphDestroy(graph));
}
static void linear_on_gpu(const recipe *f, uint64_t seed) {
    rng r = rng_seed(seed);
    streams_make();
    for (int64_t i = 0; i < 2 + scaled(4); i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_linear_plan plan;
        tegroup_gemm_desc forward, dgrad;
        quantised_linear_make(&l, f, &r);
        const tegroup_tensor y = elsewhere(&l.linear.out), dx = elsewhere(&l.linear.dgrad_out);
        mirror_up(mark);
        tegroup_linear_desc d = linear_on_device(&l.linear);
        OK(tegroup_linear_plan_make(&d, NULL, &plan, &error));
        d.options.workspace_bytes = plan.workspace_bytes;
        d.options.workspace = workspace_of(plan.workspace_bytes);
        OK(linear_step(&l, &plan, &d));
        OK(tegroup_linear_gemm(&d, TEGROUP_OP_FORWARD, &forward, &error));
        OK(tegroup_linear_gemm(&d, TEGROUP_OP_DGRAD, &dgrad, &error));
        forward.d.data = device_of(y.data), dgrad.d.data = device_of(dx.data);
        OK(tegroup_gemm(&plan.forward, &forward, first, &error));
        OK(tegroup_gemm(&plan.dgrad, &dgrad, first, &error));
        MUST(cudaDeviceSynchronize());
        bring_back(&l);
        ASSERT_PASSING();
        if (i == 0) printf("%s: by %s, error/bound %.3f\n", f->name, tegroup_backend_name(plan.forward.backend), linear_wrong(&l, &plan));
        ASSERT_LE(linear_wrong(&l, &plan), 1);
        ASSERT_EQ(differ(l.linear.out.data, y.data) + differ(l.linear.dgrad_out.data, dx.data), 0);
        ASSERT_EQ(tail_changed(&l, &l.linear.out) + tail_changed(&l, &l.linear.dgrad_out) + guards_changed() + workspace_guards_changed(), 0);
        graph_of_linear(&l, &plan, &d, &r);
        ASSERT_PASSING();
        guards_release(mark);
    }
}

static void graph_of_mlp(quantised_layer *l, const tegroup_mlp_plan *plan, const tegroup_mlp_desc *d, rng *r) {
    cudaGraph_t graph;
    cudaGraphExec_t step;
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    const tegroup_status status = mlp_step(l, plan, d);
    MUST(cudaStreamEndCapture(first, &graph));
    OK(status);
    ASSERT_TRUE(only_kernels(graph));
    MUST(cudaGraphInstantiate(&step, graph, 0));
    for (int i = 0; i < 2; i++) {
        other_sizes(l, r);
        MUST(cudaGraphLaunch(step, first));
        MUST(cudaStreamSynchronize(first));
        bring_back(l);
        ASSERT_PASSING();
        ASSERT_LE(mlp_wrong(l, plan), 1);
        ASSERT_EQ(guards_changed(), 0);
    }
    MUST(cudaGraphExecDestroy(step));
    MUST(cudaGraphDestroy(graph));
}
static void mlp_on_gpu(const recipe *f, uint64_t seed) {
    rng r = rng_seed(seed);
    streams_make();
    for (int64_t i = 0; i < 2 + scaled(4); i++) {
        void *mark = guards_mark();
        quantised_layer l;
        tegroup_mlp_plan plan;
        tegroup_quantize_desc again;
        quantised_mlp_make(&l, f, -1, &r);
        tegroup_mlp_desc *host = &l.mlp;
        memset(&again, 0, sizeof again); /* activated once more, by a call of its own */
        again.struct_size = sizeof again;
        again.input = host->preactivation;
        again.activation = host->activation, again.interleaved = host->interleaved, again.alpha = host->alpha, again.limit = host->limit;
        again.rule = host->activated_rule;
        again.output = elsewhere(&host->activated);
        if (host->row_scale != NULL) again.row_scale = tegroup_matrix_of(host->row_scale, l.rows.rows, 1, host->row_scale_dtype);
        const tegroup_tensor copies = again.output;
        mirror_up(mark);
        tegroup_mlp_desc d = mlp_on_device(host);
        OK(tegroup_mlp_plan_make(&d, NULL, &plan, &error));
        d.options.workspace_bytes = plan.workspace_bytes;
        d.options.workspace = workspace_of(plan.workspace_bytes);
        OK(mlp_step(&l, &plan, &d));
        again = quantize_on_device(again);
        OK(tegroup_quantize(&again, first, &error));
        MUST(cudaDeviceSynchronize());
        bring_back(&l);
        ASSERT_PASSING();
        if (i == 0) printf("%s: by %s, error/bound %.3f\n", f->name, tegroup_backend_name(plan.fc1.forward.backend), mlp_wrong(&l, &plan));
        ASSERT_LE(mlp_wrong(&l, &plan), 1);
        if (!l.in_place) /* else its gradient is what preactivation holds */
            ASSERT_EQ(differ(host->activated.data, copies.data) + differ(host->activated.scale_inv, copies.scale_inv)
                      + differ(host->activated.columnwise_data, copies.columnwise_data) + differ(host->activated.columnwise_scale_inv, copies.columnwise_scale_inv), 0);
        ASSERT_EQ(tail_changed(&l, &host->out) + tail_changed(&l, &host->dgrad_out) + guards_changed() + workspace_guards_changed(), 0);
        graph_of_mlp(&l, &plan, &d, &r);
        ASSERT_PASSING();
        guards_release(mark);
    }
}

#define EVERY(name, i)                                                                              \
    TEST(quantised_layers_gpu, linear_##name) { linear_on_gpu(&recipes[i], 8100 + i); }             \
    TEST(quantised_layers_gpu, mlp_##name) { mlp_on_gpu(&recipes[i], 8200 + i); }
EVERY(block_fp8, 0)
EVERY(per_row, 1)
EVERY(per_tensor, 2)
EVERY(mxfp8, 3)
EVERY(nvfp4, 4)

TEST_MAIN()
