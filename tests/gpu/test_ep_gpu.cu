/* Expert parallelism on one GPU: several ranks as several windows in its memory. The tests of ep.h, and all calls of all
 * ranks in one captured graph that is replayed with other routings. */
#define TEGROUP_IMPLEMENTATION
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
            sending_reference(&d, &w, want);
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

TEST_MAIN()
