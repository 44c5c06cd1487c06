/* Scales in another layout on a GPU: bit for bit what the CPU makes of them, padding and what stays untouched included; spoilt
 * snapshots lead nowhere. */
#define TEGROUP_EXTERN
#include "mirror.h"
#include "scales.h"
#include "graph.h"
#include "test.h"

/* A list's twin holds the twins' addresses. */
static void *const *list_to_device(const depot *s) {
    void *entries[MOST_GROUPS + 1] = {NULL};
    for (int32_t g = 0; g < s->groups; g++) entries[g] = device_of(s->list[g]);
    void **list = (void **)arena_take(sizeof entries, 0);
    copy_up(list, entries, sizeof entries);
    return list;
}

static tegroup_tensor depot_to_device(const depot *s) {
    tegroup_tensor t = s->t;
    shape_to_device(&t.shape);
    if (s->listed) {
        t.pointers_space = TEGROUP_SPACE_DEVICE;
        *(s->columnwise ? &t.columnwise_scale_pointers : &t.scale_pointers) = list_to_device(s);
    } else {
        *(s->columnwise ? &t.columnwise_scale_inv : &t.scale_inv) = device_of(s->memory);
    }
    return t;
}

static tegroup_scale_convert_desc conversion_on_device(const depot *from, const depot *to) {
    tegroup_scale_convert_desc d = conversion(from, to);
    d.space = TEGROUP_SPACE_DEVICE;
    d.from = depot_to_device(from);
    d.to = depot_to_device(to);
    return d;
}

/* What the CPU makes of it is kept as the memory of `to`'s buffers, which are then as they were. */
static void make_on_host(const depot *from, const depot *to) {
    unsigned char *first = NULL;
    remember_depot(to);
    tegroup_scale_convert_desc d = conversion(from, to);
    ASSERT_EQ(tegroup_scale_convert(&d, NULL, NULL), TEGROUP_OK);
    for (int32_t g = 0; g < (to->listed ? to->groups : 1); g++) {
        guarded_node *node = guarded_find(to->listed ? to->list[g] : to->memory);
        first = (unsigned char *)malloc(node->bytes + 1);
        memcpy(first, node->data, node->bytes);
        memcpy(node->data, node->copy, node->bytes);
        memcpy(node->copy, first, node->bytes);
        free(first);
    }
}

static int64_t converted;
static void convert_on_device(const depot *from, const depot *to, void *mark, cudaStream_t stream) {
    tegroup_error error;
    memset(&error, 0, sizeof error);
    make_on_host(from, to);
    ASSERT_PASSING();
    remember_depot(from);
    mirror_up(mark);
    tegroup_scale_convert_desc d = conversion_on_device(from, to);
    const tegroup_status status = tegroup_scale_convert(&d, stream, &error);
    if (status != TEGROUP_OK) fprintf(stderr, "refused: %s %s\n", error.field, error.rule);
    ASSERT_EQ(status, TEGROUP_OK);
    MUST(cudaDeviceSynchronize());
    mirror_down();
    ASSERT_EQ(changed_depot(to), 0); /* against what the CPU made */
    ASSERT_EQ(changed_depot(from), 0);
    ASSERT_EQ(guards_changed(), 0);
    converted += to->stored;
}

TEST(scales_gpu, every_layout_to_every_other) {
    rng r = rng_seed(9201);
    for (int64_t n = scaled(400); n > 0; n--) {
        void *mark = guards_mark();
        depot from = random_depot(&r, rng_chance(&r, 10) ? 700 : 40, rng_chance(&r, 10) ? 3000 : 300), to = described_again(&from, &r);
        ASSERT_TRUE(depot_prepare(&from) && depot_prepare(&to));
        if (from.dtype == TEGROUP_DTYPE_F32 && to.dtype == TEGROUP_DTYPE_BF16) { guards_release(mark); continue; }
        depot_memory(&from);
        depot_memory(&to);
        values v = values_for(&from, &to, rng_next(&r));
        walk(&from, write_visitor, &v);
        convert_on_device(&from, &to, mark, NULL);
        ASSERT_PASSING();
        guards_release(mark);
    }
    printf("scales: %ld\n", (long)converted);
}

/* What has no exponent becomes NaN's, where the CPU would have refused. */
TEST(scales_gpu, no_power_of_two) {
    rng r = rng_seed(9202);
    void *mark = guards_mark();
    depot from, to;
    memset(&from, 0, sizeof from);
    from.scaling = TEGROUP_SCALING_BLOCK_1X128;
    from.dtype = TEGROUP_DTYPE_F32;
    from.parts = 1;
    from.groups = 2;
    from.rows[0] = from.rows[1] = 40;
    from.cols = 1000;
    from.t = tegroup_tensor_uniform(2, 40, 1000, TEGROUP_DTYPE_F8E4M3, NULL);
    from.t.scaling = from.scaling;
    to = from;
    to.dtype = to.t.scale_dtype = TEGROUP_DTYPE_F8E8M0;
    depot_memory(&from);
    const size_t bytes = depot_memory(&to);
    float *x = (float *)from.memory;
    for (int i = 0; i < 2 * 40 * 8; i++) x[i] = rng_chance(&r, 50) ? ldexpf(1, (int)rng_int(&r, -127, 127)) : 3.0f * (float)rng_int(&r, 0, 9);
    mirror_up(mark);
    tegroup_scale_convert_desc d = conversion_on_device(&from, &to);
    ASSERT_EQ(tegroup_scale_convert(&d, NULL, NULL), TEGROUP_OK);
    MUST(cudaDeviceSynchronize());
    mirror_down();
    for (size_t i = 0; i < bytes; i++) {
        int exponent;
        const int power = x[i] > 0 && frexp((double)x[i], &exponent) == 0.5;
        ASSERT_EQ(((unsigned char *)to.memory)[i], power ? exponent - 1 + 127 : 255);
    }
    ASSERT_EQ(guards_changed(), 0);
    guards_release(mark);
}

/* A snapshot in device memory that somebody wrote over: of one that no longer fits nothing is written, and no entry leads
 * outside. */
TEST(scales_gpu, spoilt_snapshots_lead_nowhere) {
    rng r = rng_seed(9203);
    for (int64_t n = scaled(200); n > 0; n--) {
        void *mark = guards_mark();
        depot from = random_depot(&r, 20, 150);
        if (!from.ragged || from.groups == 0) { guards_release(mark); continue; }
        depot to = from;
        ASSERT_TRUE(depot_prepare(&from) && depot_prepare(&to));
        depot_memory(&from);
        depot_memory(&to);
        values v = values_for(&from, &to, rng_next(&r));
        walk(&from, write_visitor, &v);
        const depot *spoilt = rng_chance(&r, 50) ? &to : &from;
        const tegroup_snapshot_view view = tegroup_snapshot_read(spoilt->t.shape.snapshot);
        const int other = rng_chance(&r, 30);
        if (other) ((tegroup_snapshot_header *)view.header)->magic++;
        for (int32_t g = 0; g < from.groups; g++) {
            if (rng_chance(&r, 40)) ((int64_t *)view.rows)[g] = rng_chance(&r, 50) ? from.capacity_rows : (int64_t)rng_next(&r);
            if (rng_chance(&r, 20)) ((int64_t *)view.start)[g] = rng_chance(&r, 50) ? -1 : (int64_t)rng_next(&r);
        }
        remember_depot(&to);
        remember_depot(&from);
        mirror_up(mark);
        tegroup_scale_convert_desc d = conversion_on_device(&from, &to);
        ASSERT_EQ(tegroup_scale_convert(&d, NULL, NULL), TEGROUP_OK);
        MUST(cudaDeviceSynchronize());
        mirror_down();
        if (other) ASSERT_EQ(changed_depot(&to), 0);
        ASSERT_EQ(changed_depot(&from), 0);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* One kernel in a graph, replayed after the scales have changed. */
TEST(scales_gpu, captured) {
    rng r = rng_seed(9204);
    void *mark = guards_mark();
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t step;
    depot from = random_depot(&r, 40, 300);
    while (from.stored == 0) from = random_depot(&r, 40, 300);
    depot to = from;
    ASSERT_TRUE(depot_prepare(&from) && depot_prepare(&to));
    depot_memory(&from);
    depot_memory(&to);
    MUST(cudaStreamCreate(&stream));
    values v = values_for(&from, &to, 1);
    walk(&from, write_visitor, &v);
    make_on_host(&from, &to);
    ASSERT_PASSING();
    mirror_up(mark);
    tegroup_scale_convert_desc d = conversion_on_device(&from, &to);
    MUST(cudaDeviceSynchronize());
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const tegroup_status status = tegroup_scale_convert(&d, stream, NULL);
    MUST(cudaStreamEndCapture(stream, &graph));
    ASSERT_EQ(status, TEGROUP_OK);
    ASSERT_TRUE(only_kernels(graph));
    MUST(cudaGraphInstantiate(&step, graph, 0));
    MUST(cudaGraphLaunch(step, stream));
    MUST(cudaStreamSynchronize(stream));
    mirror_down();
    ASSERT_EQ(changed_depot(&to), 0);
    MUST(cudaGraphExecDestroy(step));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    guards_release(mark);
}

TEST_MAIN()
