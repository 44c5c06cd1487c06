/* Quantise and the conversion of scales on a GPU with sizes that lie: a graph has a hundred arrays of them, each prepared, quantised
 * and converted; what the last one leaves is the CPU's, byte for byte, and nothing outside of the buffers changes. And
 * tegroup_validate of quantised tensors: the CPU's record, of spoilt snapshots, too. */
#define TEGROUP_EXTERN
#define TEGROUP_NO_SM90
#define TEGROUP_NO_PORTABLE
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#include "mirror.h"
#include "validated.h"
#include "test.h"

static tegroup_error error;

#define MUST_RUN(call)                                                                                                \
    do {                                                                                                              \
        const tegroup_status status_ = call;                                                                          \
        if (status_ != TEGROUP_OK) TEST_FAIL("%s: %s %s\n", tegroup_status_name(status_), error.field, error.rule); \
    } while (0)

/* Every address of a tensor without lists by its twin's. */
static tegroup_tensor on_device(tegroup_tensor t) {
    shape_to_device(&t.shape);
    t.data = device_of(t.data), t.columnwise_data = device_of(t.columnwise_data);
    t.scale_inv = device_of(t.scale_inv), t.columnwise_scale_inv = device_of(t.columnwise_scale_inv);
    t.scale = (float *)device_of(t.scale), t.amax = (float *)device_of(t.amax), t.columnwise_amax = (float *)device_of(t.columnwise_amax);
    t.global_scale_inv = (float *)device_of(t.global_scale_inv);
    return t;
}

enum { ARRAYS = 100 };

/* The same scales in another place: as they lie by default, columnwise or not. */
static tegroup_scale_convert_desc conversion_of(const quantizing *q, depot *to, rng *r) {
    const int columnwise = !q->has[0], any = q->scales[0].dtype == TEGROUP_DTYPE_F32 || q->scales[0].dtype == TEGROUP_DTYPE_BF16; /* not powers of two alone */
    tegroup_scale_convert_desc d;
    *to = q->scales[columnwise];
    do *to = described_again(&q->scales[columnwise], r);
    while (to->listed || to->capacity_rows != q->scales[0].capacity_rows || (any && to->dtype != TEGROUP_DTYPE_F32 && to->dtype != q->scales[0].dtype));
    to->t.shape = q->desc.output.shape;
    (void)depot_memory(to);
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.space = TEGROUP_SPACE_HOST;
    d.columnwise = columnwise;
    d.from = q->desc.output;
    d.to = to->t;
    return d;
}

static void one_tensor(rng *r, int replays) {
    void *mark = guards_mark();
    quantizing q;
    depot to;
    quantizing_make_ragged(&q, r, 40, 200);
    const depot *s = &q.scales[0];
    const int32_t groups = s->groups;
    tegroup_scale_convert_desc convert = conversion_of(&q, &to, r);
    int64_t *const sizes = (int64_t *)guarded((size_t)ARRAYS * (MOST_GROUPS + 1) * 8);
    tegroup_encoding encodings[ARRAYS];
    for (int i = 0; i < ARRAYS; i++) encodings[i] = hostile_sizes(r, s, sizes + i * (MOST_GROUPS + 1));
    mirror_up(mark);
    tegroup_quantize_desc quantize = q.desc;
    tegroup_scale_convert_desc converted = convert;
    quantize.space = converted.space = TEGROUP_SPACE_DEVICE;
    quantize.input = on_device(q.desc.input), quantize.output = on_device(q.desc.output);
    converted.from = on_device(convert.from), converted.to = on_device(convert.to);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < ARRAYS; i++) {
        tegroup_prepare_desc prepare;
        memset(&prepare, 0, sizeof prepare);
        prepare.struct_size = sizeof prepare;
        prepare.shape = quantize.output.shape;
        prepare.shape.row_sizes.encoding = encodings[i];
        if (encodings[i] != TEGROUP_ENCODING_COUNTS) prepare.shape.row_sizes.alignment = 0;
        prepare.shape.row_sizes.data = device_of(sizes + i * (MOST_GROUPS + 1));
        prepare.space = TEGROUP_SPACE_DEVICE;
        prepare.snapshot = (void *)quantize.output.shape.snapshot;
        prepare.snapshot_bytes = guarded_find(q.desc.output.shape.snapshot)->bytes;
        if (i == ARRAYS - 1) { /* what the earlier ones have left goes */
            for (int c = 0; c < 2; c++)
                if (q.has[c]) {
                    MUST(cudaMemsetAsync(device_of(q.list[c][0]), 0x6b, guarded_find(q.list[c][0])->bytes, stream));
                    MUST(cudaMemsetAsync(device_of(q.scales[c].memory), 0x6b, guarded_find(q.scales[c].memory)->bytes, stream));
                }
            MUST(cudaMemsetAsync(device_of(to.memory), 0x6b, guarded_find(to.memory)->bytes, stream));
        }
        MUST_RUN(tegroup_prepare(&prepare, stream, &error));
        MUST_RUN(tegroup_quantize(&quantize, stream, &error));
        MUST_RUN(tegroup_scale_convert(&converted, stream, &error));
    }
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&exec, graph, 0));
    for (int replay = 0; replay < replays; replay++) {
        for (int i = 0; i < ARRAYS; i++) /* encodings stay */
            for (int32_t g = 0; g <= groups; g++)
                sizes[i * (MOST_GROUPS + 1) + g] = g == 0 && encodings[i] == TEGROUP_ENCODING_OFFSETS && rng_chance(r, 80) ? 0 : hostile_size(r, s->capacity_rows);
        copy_up(device_of(sizes), sizes, (size_t)ARRAYS * (MOST_GROUPS + 1) * 8);
        MUST(cudaDeviceSynchronize());
        MUST(cudaGraphLaunch(exec, stream));
        MUST(cudaStreamSynchronize(stream));
        if (replay % 10 != 0 && replay != replays - 1) continue;
        /* the last array on the CPU */
        quantizing_prepare(&q, encodings[ARRAYS - 1], sizes + (ARRAYS - 1) * (MOST_GROUPS + 1));
        for (int c = 0; c < 2; c++)
            if (q.has[c]) {
                memset(q.list[c][0], 0x6b, guarded_find(q.list[c][0])->bytes);
                memset(q.scales[c].memory, 0x6b, guarded_find(q.scales[c].memory)->bytes);
            }
        memset(to.memory, 0x6b, guarded_find(to.memory)->bytes);
        MUST_RUN(tegroup_quantize(&q.desc, NULL, &error));
        MUST_RUN(tegroup_scale_convert(&convert, NULL, &error));
        remember_all();
        mirror_down();
        const int64_t wrong = unexpected_bytes();
        if (wrong != 0) fprintf(stderr, "scaling %d, preset %d, copies %d%d, replay %d\n", (int)s->scaling, (int)q.preset, q.has[0], q.has[1], replay);
        ASSERT_EQ(wrong, 0);
        ASSERT_EQ(guards_changed(), 0);
    }
    MUST(cudaGraphExecDestroy(exec));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    guards_release(mark);
}

TEST(hostile_gpu, sizes_that_lie_lead_nowhere) {
    rng r = rng_seed(9500);
    const int64_t tensors = 50, replays = scaled(20);
    for (int64_t i = 0; i < tensors; i++) {
        one_tensor(&r, (int)replays);
        ASSERT_PASSING();
    }
    printf("%ld arrays\n", (long)(tensors * replays * ARRAYS));
}

TEST(hostile_gpu, validate_equals_the_cpus) {
    rng r = rng_seed(9501);
    int64_t found = 0, bounds = 0;
    for (int64_t i = 40 + scaled(400); i > 0; i--) {
        void *mark = guards_mark();
        validated v;
        validated_make(&v, &r);
        const depot *s = &v.q.scales[0];
        if (s->ragged && rng_chance(&r, 40)) {
            const tegroup_snapshot_view view = tegroup_snapshot_read(v.desc.tensor.shape.snapshot);
            for (int32_t g = 0; g < s->groups; g++) {
                if (rng_chance(&r, 40)) ((int64_t *)view.rows)[g] = rng_chance(&r, 70) ? rng_int(&r, 0, s->capacity_rows) : (int64_t)rng_next(&r);
                if (rng_chance(&r, 40)) ((int64_t *)view.start)[g] = rng_chance(&r, 70) ? rng_int(&r, 0, s->capacity_rows) : (int64_t)rng_next(&r);
            }
        }
        MUST_RUN(tegroup_validate(&v.desc, NULL, &error));
        found += v.desc.result->status != 0;
        bounds += (v.desc.result->status & TEGROUP_VALIDATION_BOUNDS) != 0;
        remember_all();
        poison_again(v.desc.result);
        mirror_up(mark);
        tegroup_validate_desc device = v.desc;
        device.space = TEGROUP_SPACE_DEVICE;
        device.tensor = on_device(v.desc.tensor);
        device.result = (tegroup_validation *)device_of(v.desc.result);
        MUST_RUN(tegroup_validate(&device, NULL, &error));
        MUST(cudaDeviceSynchronize());
        mirror_down();
        ASSERT_EQ(unexpected_bytes(), 0);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    ASSERT_TRUE(found > 0 && bounds > 0);
}

TEST_MAIN()
