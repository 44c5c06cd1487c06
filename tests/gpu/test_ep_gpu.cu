/* Expert parallelism on one GPU: several ranks as several windows in its memory. The tests of ep.h, and all calls of all
 * ranks in one captured graph that is replayed with other routings. */
#define TEGROUP_EXTERN
#define TEGROUP_NO_PORTABLE /* no product is tested here */
#define TEGROUP_NO_SM90
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_FP8
#include "tegroup.h"
#include "graph.h"
#define EP_SPACE TEGROUP_SPACE_DEVICE
#define EP_AT(memory) device_of(memory)
#define EP_UP(mark) mirror_up(mark)
#define EP_DOWN() mirror_down()
#include "ep.h"

static void enqueue(const world *w, const sized *x, sending *d, cudaStream_t stream) {
    for (int32_t s = 0; s < w->ranks; s++) {
        sized_run(&x[s], stream);
        map_run(w, s, &x[s], stream);
        sending_run(d, w, s, stream);
    }
    for (int32_t s = 0; s < w->ranks && d->what & 8; s++) expand_run(d, w, s, &x[s], stream);
}

TEST(ep_gpu, one_graph_serves_every_routing) {
    rng r = rng_seed(7);
    cudaStream_t stream;
    MUST(cudaStreamCreate(&stream));
    for (int64_t round = 0; round < scaled(10); round++) {
        world w = world_make(&r);
        sized x[MOST_RANKS];
        sending d = sending_make(&w, &r);
        unsigned char *want[MOST_RANKS];
        cudaGraph_t graph;
        cudaGraphExec_t replay;
        for (int32_t s = 0; s < w.ranks; s++) x[s] = sized_make(&w, s), want[s] = (unsigned char *)malloc(d.x.bytes);
        EP_UP(w.mark);
        enqueue(&w, x, &d, stream); /* what is loaded at first is */
        MUST(cudaStreamSynchronize(stream));
        ASSERT_PASSING();
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        enqueue(&w, x, &d, stream);
        MUST(cudaStreamEndCapture(stream, &graph));
        ASSERT_PASSING();
        ASSERT_TRUE(only_kernels(graph));
        MUST(cudaGraphInstantiate(&replay, graph, 0));
        for (int again = 0; again < 100; again++) {
            choose(&w, &r);
            for (int32_t s = 0; s < w.ranks; s++) {
                poison(d.x.host[s], d.x.bytes);
                memcpy(want[s], d.x.host[s], d.x.bytes);
            }
            EP_UP(w.mark);
            MUST(cudaGraphLaunch(replay, stream));
            MUST(cudaStreamSynchronize(stream));
            EP_DOWN();
            check_places(&w, x);
            ASSERT_PASSING();
            sending_reference(&d, &w, want, 1);
            for (int32_t s = 0; s < w.ranks; s++) ASSERT_EQ(0, memcmp(want[s], d.x.host[s], d.x.bytes));
        }
        ASSERT_EQ(0, guards_changed());
        MUST(cudaGraphExecDestroy(replay));
        MUST(cudaGraphDestroy(graph));
        for (int32_t s = 0; s < w.ranks; s++) free(want[s]);
        guards_release(w.mark);
    }
    MUST(cudaStreamDestroy(stream));
}

/* Up to as many experts as there may be: what the CPU makes of the same counts, which ep.h has of few. */
TEST(ep_gpu, many_experts_have_the_places_of_the_cpu) {
    rng r = rng_seed(8);
    for (int64_t round = 0; round < scaled(40); round++) {
        void *mark = guards_mark();
        tegroup_ep_sizes_desc cpu;
        tegroup_error error;
        const int32_t most = (int32_t)rng_int(&r, 1, TEGROUP_MAX_GROUPS);
        memset(&cpu, 0, sizeof cpu);
        cpu.struct_size = sizeof cpu;
        cpu.space = TEGROUP_SPACE_HOST;
        cpu.ranks = (int32_t)rng_int(&r, 1, most < 256 ? most : 256);
        cpu.rank = (int32_t)rng_int(&r, 0, cpu.ranks - 1);
        cpu.capacity = rng_int(&r, 0, 20000);
        cpu.alignment = rng_int(&r, 0, 130);
        const int32_t experts = most / cpu.ranks * cpu.ranks;
        cpu.counts = fresh(TEGROUP_DTYPE_I64, cpu.ranks, experts);
        for (int64_t i = 0; i < cpu.ranks * experts; i++) set_whole(&cpu.counts, i, rng_chance(&r, 99) ? rng_int(&r, 0, 40) : rng_chance(&r, 50) ? INT64_MIN : INT64_MAX);
        tegroup_ep_sizes_desc gpu = cpu;
        tegroup_ep_sizes_desc *of_each[2] = {&cpu, &gpu};
        for (tegroup_ep_sizes_desc *d : of_each) {
            d->send_rows = fresh(TEGROUP_DTYPE_I32, 1, experts);
            d->send_starts = fresh(TEGROUP_DTYPE_I32, 1, experts);
            d->receive_rows = fresh(TEGROUP_DTYPE_I64, 1, experts / cpu.ranks);
            d->report = (tegroup_ep_report *)guarded(sizeof *d->report);
        }
        mirror_up(mark);
        tegroup_ep_sizes_desc there = gpu;
        there.space = TEGROUP_SPACE_DEVICE;
        there.counts = at(gpu.counts), there.send_rows = at(gpu.send_rows), there.send_starts = at(gpu.send_starts), there.receive_rows = at(gpu.receive_rows);
        there.report = (tegroup_ep_report *)device_of(gpu.report);
        went_well(tegroup_ep_sizes(&there, NULL, &error), &error);
        mirror_down();
        went_well(tegroup_ep_sizes(&cpu, NULL, &error), &error);
        ASSERT_PASSING();
        ASSERT_EQ(0, memcmp(cpu.send_rows.data, gpu.send_rows.data, 4 * (size_t)experts));
        ASSERT_EQ(0, memcmp(cpu.send_starts.data, gpu.send_starts.data, 4 * (size_t)experts));
        ASSERT_EQ(0, memcmp(cpu.receive_rows.data, gpu.receive_rows.data, 8 * (size_t)(experts / cpu.ranks)));
        ASSERT_EQ(0, memcmp(cpu.report, gpu.report, sizeof *cpu.report));
        ASSERT_EQ(0, guards_changed());
        guards_release(mark);
    }
}

TEST_MAIN()
