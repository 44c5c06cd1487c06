/* Quantise and dequantise on a GPU: bit for bit what the CPU makes, every byte of every buffer; what is made in passing against
 * the separate calls on the GPU; captured and replayed with other sizes; snapshots that somebody wrote over. */
#define TEGROUP_EXTERN
#include "mirror.h"
#include "quantize.h"
#include "graph.h"
#include "test.h"

static tegroup_error error;

static void *const *list_to_device(void *const *list, int32_t groups) {
    void *entries[MOST_GROUPS + 1] = {NULL};
    for (int32_t g = 0; g < groups; g++) entries[g] = device_of(list[g]);
    void **twin = (void **)arena_take(sizeof entries, 0);
    copy_up(twin, entries, sizeof entries);
    return twin;
}

/* Every address of a tensor by its twin's. */
static tegroup_tensor on_device(tegroup_tensor t) {
    const int32_t groups = t.shape.groups;
    if (t.dtype == TEGROUP_DTYPE_UNSET) return t;
    shape_to_device(&t.shape);
    t.data = device_of(t.data), t.columnwise_data = device_of(t.columnwise_data);
    t.scale_inv = device_of(t.scale_inv), t.columnwise_scale_inv = device_of(t.columnwise_scale_inv);
    t.scale = (float *)device_of(t.scale), t.amax = (float *)device_of(t.amax), t.columnwise_amax = (float *)device_of(t.columnwise_amax);
    t.global_scale_inv = (float *)device_of(t.global_scale_inv);
    if (t.pointers_space == TEGROUP_SPACE_UNSET) return t;
    t.pointers_space = TEGROUP_SPACE_DEVICE;
    if (t.pointers != NULL) t.pointers = list_to_device(t.pointers, groups);
    if (t.columnwise_pointers != NULL) t.columnwise_pointers = list_to_device(t.columnwise_pointers, groups);
    if (t.scale_pointers != NULL) t.scale_pointers = list_to_device(t.scale_pointers, groups);
    if (t.columnwise_scale_pointers != NULL) t.columnwise_scale_pointers = list_to_device(t.columnwise_scale_pointers, groups);
    return t;
}
static tegroup_matrix matrix_on_device(tegroup_matrix m) {
    m.data = device_of(m.data);
    return m;
}
static tegroup_quantize_desc quantize_on_device(tegroup_quantize_desc d) {
    d.space = TEGROUP_SPACE_DEVICE;
    d.input = on_device(d.input);
    d.grad_output = on_device(d.grad_output);
    d.output = on_device(d.output);
    d.row_scale = matrix_on_device(d.row_scale);
    d.grad_row_scale = matrix_on_device(d.grad_row_scale);
    d.gather_input.slot_of_row = (const int64_t *)device_of(d.gather_input.slot_of_row);
    return d;
}

#define MUST_RUN(call)                                                                                                          \
    do {                                                                                                                        \
        const tegroup_status status_ = call;                                                                                    \
        if (status_ != TEGROUP_OK) TEST_FAIL("%s: %s %s\n", tegroup_status_name(status_), error.field, error.rule);            \
    } while (0)

static void describe(const quantizing *q) {
    const depot *s = &q->scales[0];
    fprintf(stderr, "scaling %d, preset %d, %s to %s, %s%s, %d parts, order %d, copies %d%d, %d groups, %ld columns\n", (int)s->scaling, (int)q->preset,
            tegroup_dtype_name(q->desc.input.dtype), tegroup_dtype_name(q->desc.output.dtype), s->ragged ? "ragged" : "uniform", s->listed ? ", lists" : "",
            (int)s->parts, (int)q->desc.output.columnwise_order, q->has[0], q->has[1], (int)s->groups, (long)s->cols);
}

/* The CPU's result is what the GPU's must be. */
static void same_as_on_the_cpu(quantizing *q, const tegroup_quantize_desc *d, void *mark) {
    MUST_RUN(tegroup_quantize(d, NULL, &error));
    remember_all();
    quantizing_poison(q);
    mirror_up(mark);
    const tegroup_quantize_desc device = quantize_on_device(*d);
    MUST_RUN(tegroup_quantize(&device, NULL, &error));
    MUST(cudaDeviceSynchronize());
    mirror_down();
    const int64_t wrong = unexpected_bytes();
    if (wrong != 0) describe(q);
    ASSERT_EQ(wrong, 0);
    ASSERT_EQ(guards_changed(), 0);
}

TEST(quantize_gpu, every_byte_is_the_cpus) {
    rng r = rng_seed(9400);
    int64_t bytes = 0;
    for (int64_t i = scaled(400); i > 0; i--) {
        void *mark = guards_mark();
        quantizing q;
        tegroup_quantize_desc d;
        quantizing_make(&q, &r, (tegroup_scaling)(1 + i % (TEGROUP_SCALING_COUNT - 1)), i % 11 == 0 ? 700 : 60, i % 7 == 0 ? 900 : 200);
        d = q.desc;
        if (i % 5 == 0 && q.scales[0].ragged && !q.scales[0].listed) make_gather(&q, &r, &d);
        same_as_on_the_cpu(&q, &d, mark);
        ASSERT_PASSING();
        bytes += q.desc.output.shape.rows * q.scales[0].cols;
        guards_release(mark);
    }
    printf("elements: %ld\n", (long)bytes);
}

/* Of longer rows a block's registers hold a stretch at a time. */
TEST(quantize_gpu, rows_longer_than_a_block_holds) {
    rng r = rng_seed(9405);
    for (int64_t i = scaled(12); i > 0; i--) {
        void *mark = guards_mark();
        quantizing q;
        quantizing_make(&q, &r, TEGROUP_SCALING_ROW, 5, 60000);
        const tegroup_quantize_desc d = q.desc;
        same_as_on_the_cpu(&q, &d, mark);
        ASSERT_PASSING();
        guards_release(mark);
    }
}

static double sum_at(const void *data, tegroup_dtype dtype, int64_t i) { return dtype == TEGROUP_DTYPE_F64 ? ((const double *)data)[i] : ((const float *)data)[i]; }

/* The gradients of rows' scales are sums in an order of their own: where they are near what the separate call made, they are taken
 * for that. Of the terms' magnitudes nothing is known here but that the largest sum is not much less than their sum. */
static void forgive_order(const tegroup_matrix *sums, int64_t terms) {
    if (sums->dtype == TEGROUP_DTYPE_UNSET) return;
    const guarded_node *node = guarded_find(sums->data);
    const size_t each = size_of(sums->dtype);
    const int64_t count = (int64_t)(node->bytes / each);
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        const double want = sum_at(node->copy, sums->dtype, i);
        if (isfinite(want) && fabs(want) < 1e6 && fabs(want) > most) most = fabs(want); /* poison is larger, or none */
    }
    for (int64_t i = 0; i < count; i++)
        if (fabs(sum_at(node->copy, sums->dtype, i) - sum_at(node->data, sums->dtype, i)) <= (double)terms * 0x1p-24 * 16 * most)
            memcpy(node->data + (size_t)i * each, node->copy + (size_t)i * each, each);
}

TEST(quantize_gpu, in_passing_as_by_separate_calls) {
    rng r = rng_seed(9401);
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        const int gradient = (int)(i % 2);
        quantizing q;
        tegroup_quantize_desc fused;
        quantizing_make(&q, &r, (tegroup_scaling)0, i % 10 == 0 ? 300 : 40, i % 7 == 0 ? 700 : 160);
        make_activation(&q, &r, gradient, &fused);
        mirror_up(mark);
        for (int32_t g = 0; g < q.scales[0].groups; g++) {
            separate_call call = separate_activation(&q, &fused, g);
            call.forward.space = call.backward.space = TEGROUP_SPACE_DEVICE;
            call.forward.input = call.backward.input = matrix_on_device(call.forward.input);
            call.forward.row_scale = call.backward.row_scale = matrix_on_device(call.forward.row_scale);
            call.forward.output = call.backward.grad_input = matrix_on_device(call.forward.output);
            call.backward.grad_output = matrix_on_device(call.backward.grad_output);
            call.backward.grad_row_scale = matrix_on_device(call.backward.grad_row_scale);
            if (gradient) MUST_RUN(tegroup_activation_backward(&call.backward, NULL, &error));
            else MUST_RUN(tegroup_activation_forward(&call.forward, NULL, &error));
        }
        tegroup_quantize_desc device = quantize_on_device(q.desc);
        MUST_RUN(tegroup_quantize(&device, NULL, &error));
        MUST(cudaDeviceSynchronize());
        mirror_down();
        remember_all(); /* what the separate calls made */
        quantizing_poison(&q);
        if (fused.grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) poison_again(fused.grad_row_scale.data);
        mirror_up(mark);
        device = quantize_on_device(fused);
        MUST_RUN(tegroup_quantize(&device, NULL, &error));
        MUST(cudaDeviceSynchronize());
        mirror_down();
        forgive_order(&fused.grad_row_scale, fused.grad_output.shape.cols);
        const int64_t wrong = unexpected_bytes();
        if (wrong != 0) describe(&q), fprintf(stderr, "activation %d, gradient %d, interleaved %d\n", (int)fused.activation, gradient, (int)fused.interleaved);
        ASSERT_EQ(wrong, 0);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

TEST(quantize_gpu, back_to_the_cpus_bits) {
    rng r = rng_seed(9402);
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16};
    for (int64_t i = scaled(300); i > 0; i--) {
        void *mark = guards_mark(), *list[MOST_GROUPS];
        quantizing q;
        tegroup_dequantize_desc d;
        tensors_in_parts = 1;
        quantizing_make(&q, &r, (tegroup_scaling)(1 + i % (TEGROUP_SCALING_COUNT - 1)), i % 11 == 0 ? 500 : 60, i % 7 == 0 ? 700 : 200);
        tensors_in_parts = 0;
        const depot *s = &q.scales[0];
        for (guarded_node *node = guarded_top; node != (guarded_node *)mark; node = node->older) {
            int written = (void *)node->data == (void *)q.desc.output.global_scale_inv;
            for (int c = 0; c < 2; c++)
                for (int32_t g = 0; g < (s->listed ? s->groups : 1) && q.has[c]; g++)
                    written |= (void *)node->data == q.list[c][g] || (void *)node->data == (s->listed ? q.scales[c].list[g] : q.scales[c].memory);
            for (size_t b = 0; b < node->bytes && written; b++) node->data[b] = (unsigned char)rng_int(&r, 0, 255);
        }
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.space = TEGROUP_SPACE_HOST;
        d.input = q.desc.output;
        d.columnwise = q.has[0] && (!q.has[1] || rng_chance(&r, 50)) ? 0 : 1;
        d.output = plain_beside(&q, &r, types[i % 3], s->cols, 0, NULL, list);
        MUST_RUN(tegroup_dequantize(&d, NULL, &error));
        remember_all();
        for (int32_t g = 0; g < (s->listed ? s->groups : 1); g++) poison_again(s->listed ? list[g] : d.output.data);
        mirror_up(mark);
        d.space = TEGROUP_SPACE_DEVICE;
        d.input = on_device(d.input);
        d.output = on_device(d.output);
        MUST_RUN(tegroup_dequantize(&d, NULL, &error));
        MUST(cudaDeviceSynchronize());
        mirror_down();
        const int64_t wrong = unexpected_bytes();
        if (wrong != 0) describe(&q), fprintf(stderr, "columnwise %d to %s\n", (int)d.columnwise, tegroup_dtype_name(d.output.dtype));
        ASSERT_EQ(wrong, 0);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* One graph of nothing but kernels serves every routing: the snapshot in its memory is another one at each replay. */
TEST(quantize_gpu, a_graph_serves_other_sizes) {
    rng r = rng_seed(9403);
    static const tegroup_scaling scalings[] = {TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_ROW, TEGROUP_SCALING_BLOCK_1X128, TEGROUP_SCALING_MXFP8, TEGROUP_SCALING_NVFP4};
    for (int64_t i = 0; i < 5; i++) {
        void *mark = guards_mark();
        quantizing q;
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        do {
            guards_release(mark);
            quantizing_make(&q, &r, scalings[i], 120, 400);
        } while (!q.scales[0].ragged || q.scales[0].listed || q.scales[0].groups < 2);
        fill_values(&r, q.desc.input.dtype, (char *)q.desc.input.data, q.desc.input.shape.rows, q.scales[0].cols,
                    q.desc.input.ld > 0 ? q.desc.input.ld : q.scales[0].cols, NULL); /* rows that were nobody's, too */
        mirror_up(mark);
        const tegroup_quantize_desc device = quantize_on_device(q.desc);
        MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        MUST_RUN(tegroup_quantize(&device, stream, &error));
        MUST(cudaStreamEndCapture(stream, &graph));
        ASSERT_TRUE(only_kernels(graph));
        MUST(cudaGraphInstantiate(&exec, graph, 0));
        for (int replay = 0; replay < 20; replay++) { /* of 5 scalings: 100 */
            tegroup_shape shape = q.desc.output.shape;
            int64_t counts[MOST_GROUPS], left = shape.rows;
            for (int32_t g = 0; g < shape.groups; g++) left -= counts[g] = rng_chance(&r, 30) ? 0 : rng_int(&r, 0, left);
            shape.row_sizes = tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
            guarded_node *snapshot = guarded_find(shape.snapshot);
            MUST_RUN(tegroup_shape_prepare(&shape, snapshot->data, snapshot->bytes, NULL, &error));
            quantizing_poison(&q);
            MUST_RUN(tegroup_quantize(&q.desc, NULL, &error));
            remember_all();
            quantizing_poison(&q);
            mirror_up(mark); /* the twins' addresses stay */
            MUST(cudaDeviceSynchronize());
            MUST(cudaGraphLaunch(exec, stream));
            MUST(cudaStreamSynchronize(stream));
            mirror_down();
            ASSERT_EQ(unexpected_bytes(), 0);
            ASSERT_EQ(guards_changed(), 0);
        }
        MUST(cudaGraphExecDestroy(exec));
        MUST(cudaGraphDestroy(graph));
        MUST(cudaStreamDestroy(stream));
        guards_release(mark);
    }
}

/* Of a snapshot that is none for the shape nothing is written; entries that somebody wrote over lead nowhere outside. */
TEST(quantize_gpu, spoilt_snapshots_lead_nowhere) {
    rng r = rng_seed(9404);
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        const int none = rng_chance(&r, 40);
        quantizing q;
        quantizing_make(&q, &r, (tegroup_scaling)0, 40, 200);
        const depot *s = &q.scales[0];
        if (!s->ragged || s->listed || s->groups == 0) { guards_release(mark); continue; }
        const tegroup_snapshot_view view = tegroup_snapshot_read(q.desc.output.shape.snapshot);
        if (none) ((tegroup_snapshot_header *)view.header)->magic++;
        for (int32_t g = 0; g < s->groups; g++) {
            if (rng_chance(&r, 40)) ((int64_t *)view.rows)[g] = rng_chance(&r, 50) ? s->capacity_rows : (int64_t)rng_next(&r);
            if (rng_chance(&r, 20)) ((int64_t *)view.start)[g] = rng_chance(&r, 50) ? -1 : (int64_t)rng_next(&r);
        }
        remember_all();
        mirror_up(mark);
        const tegroup_quantize_desc device = quantize_on_device(q.desc);
        MUST_RUN(tegroup_quantize(&device, NULL, &error));
        MUST(cudaDeviceSynchronize());
        mirror_down();
        if (none) ASSERT_EQ(unexpected_bytes(), 0);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

TEST_MAIN()
