/* nvcc -O2 -gencode arch=compute_90a,code=sm_90a -I. examples/ep/ep_nccl.cu -o ep_nccl -Xlinker -l:libnccl.so.2 && ./ep_nccl */

/* Expert parallelism on GPUs: the MoE layer of ep_layer.h with NCCL (2.30.7 or later; its nccl.h and libnccl.so.2 by -I and
 * -L) as the transport, one process a GPU, all of one host.
 *
 *     ./ep_nccl [--ranks N] [--messages] [--tokens-once] [--sums-once]
 *               [--bench TOKENS [--experts N] [--model NAME]] [--timeout SECONDS] [--fault NAME]
 *
 * NCCL makes the windows (ncclMemAlloc, a symmetric registration) and gives the addresses of the peers' ones. Then kernels
 * store rows and counts straight into them, fc2 and fc1's dgrad write where combine reads, and a signal word a rank says who
 * is where: nothing of NCCL's runs in a step, the host reads nothing, and one graph serves every routing. Where windows are
 * not reached, or with --messages, rows travel by grouped ncclSend and ncclRecv, for which the host has to read the counts.
 * With --tokens-once a token crosses to each rank once, and with --sums-once its results come back as one sum, too.
 *
 * Without --bench every result is held against one rank with all tokens and all experts, bit for bit. A fault shows what
 * happens when something is wrong: gone, late, counts, small, misaligned. All of them end in one line and exit status 1. */
#define TEGROUP_IMPLEMENTATION
#define TEGROUP_NO_PORTABLE
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_F16
#include "tegroup.h"

#include <algorithm>
#include <cuda_runtime.h>
#include <nccl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

/* Since NCCL 2.29.2, in its device headers. */
extern "C" ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **address)
    __attribute__((weak));

enum { MOST_RANKS = 64 };
static int rank, ranks;
static double patience = 30;
static cudaStream_t stream;
static const char *doing = "starting";

static void give_up(const char *format, ...) {
    char line[640];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "ep_nccl: rank %d: %s\n", rank, line);
    _exit(1); /* without waiting for what a peer that is gone never ends */
}
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        const cudaError_t code_ = (call);                                                                              \
        if (code_ != cudaSuccess) give_up("%s while %s", cudaGetErrorString(code_), doing);                            \
    } while (0)
#define NCCL(call)                                                                                                     \
    do {                                                                                                               \
        const ncclResult_t code_ = (call);                                                                             \
        if (code_ != ncclSuccess) give_up("%s while %s", ncclGetErrorString(code_), doing);                            \
    } while (0)

/* Whatever NCCL or the driver waits for, it does not wait longer than this. */
static void too_long(int) {
    char line[160];
    const int length =
        snprintf(line, sizeof line, "ep_nccl: rank %d: %s took longer than %g s\n", rank, doing, patience);
    if (write(2, line, (size_t)length) < 0) _exit(2);
    _exit(1);
}
static void within_patience(const char *what) {
    doing = what;
    alarm((unsigned)(2 * patience) + 2); /* meetings of ranks time out before */
}

static void *ep_memory(size_t bytes) {
    void *memory;
    MUST(cudaMalloc(&memory, bytes + 1));
    MUST(cudaMemsetAsync(memory, 0, bytes + 1, stream));
    return memory;
}
static void ep_put(void *there, const void *here, size_t bytes) {
    MUST(cudaMemcpyAsync(there, here, bytes, cudaMemcpyHostToDevice, stream));
    MUST(cudaStreamSynchronize(stream));
}
static void ep_get(void *here, const void *there, size_t bytes) {
    MUST(cudaMemcpyAsync(here, there, bytes, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
}

#include "ep_check.h"

/* ---- ranks meet ---- */

enum { NOBODY_CAME = 1, DISAGREES = 2 };

/* What the meeting's kernel gets. A rank's word in a window has the number of its meeting above, and of its digest 32 bits
 * below. */
typedef struct meeting {
    char *windows[MOST_RANKS];
    size_t counts_at, signals_at;
    int32_t rank, ranks, experts;
    const int32_t *counts;           /* stored into every window first; NULL = none */
    const tegroup_ep_report *report; /* NULL = no digest                            */
    uint32_t *number;                /* of this rank's last meeting                 */
    uint32_t *trouble;               /* 0; or what * 65536 + who                    */
    uint64_t patience_ns;
} meeting;

static __device__ uint64_t nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
static __device__ void store_for_peers(uint64_t *word, uint64_t x) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(x) : "memory");
}
static __device__ uint64_t load_from_peers(const uint64_t *word) {
    uint64_t x;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(word) : "memory");
    return x;
}

/* One block. What this rank stored before is seen by all when they have met; after trouble nobody waits again. */
static __global__ void meet_kernel(const __grid_constant__ meeting m) {
    __shared__ uint32_t number;
    if (threadIdx.x == 0) number = ++*m.number;
    for (int32_t i = (int32_t)threadIdx.x; m.counts && i < m.ranks * m.experts; i += (int32_t)blockDim.x)
        ((int32_t *)(m.windows[i / m.experts] + m.counts_at))[m.rank * m.experts + i % m.experts] =
            m.counts[i % m.experts];
    __threadfence_system();
    __syncthreads();
    const int32_t peer = (int32_t)threadIdx.x;
    if (peer >= m.ranks) return;
    const uint64_t digest = m.report ? m.report->digest : 0,
                   word = (uint64_t)number << 32 | (uint32_t)(digest ^ digest >> 32);
    store_for_peers((uint64_t *)(m.windows[peer] + m.signals_at) + m.rank, word);
    const uint64_t *signal = (const uint64_t *)(m.windows[m.rank] + m.signals_at) + peer, since = nanoseconds();
    uint64_t seen = load_from_peers(signal);
    while ((int32_t)((uint32_t)(seen >> 32) - number) < 0) {
        if (*(volatile uint32_t *)m.trouble) return;
        if (nanoseconds() - since > m.patience_ns) {
            atomicCAS(m.trouble, 0u, NOBODY_CAME * 65536u + (uint32_t)peer);
            return;
        }
        seen = load_from_peers(signal);
    }
    if (seen >> 32 == number && (uint32_t)seen != (uint32_t)word)
        atomicCAS(m.trouble, 0u, DISAGREES * 65536u + (uint32_t)peer);
}

static void meet(void *self, const tegroup_ep_report *report) {
    meeting m = *(const meeting *)self;
    m.report = report;
    meet_kernel<<<1, 256, 0, stream>>>(m);
    MUST(cudaGetLastError());
}
static void share_counts(void *self, const int32_t *counts, int32_t experts) {
    meeting m = *(const meeting *)self;
    m.counts = counts;
    m.experts = experts;
    meet_kernel<<<1, 256, 0, stream>>>(m);
    MUST(cudaGetLastError());
}
/* Waits for the stream, and ends the program after trouble. */
static void look(const meeting *m, const ep_layer *layer) {
    uint32_t trouble;
    ep_get(&trouble, m->trouble, sizeof trouble);
    if (trouble >> 16 == NOBODY_CAME) give_up("rank %u did not come within %g s", trouble & 65535, patience);
    if (trouble >> 16 == DISAGREES) give_up("rank %u does not have the same counts", trouble & 65535);
    ep_look(layer);
}

/* ---- where windows are not reached ---- */

static ncclComm_t comm;

static void gather_counts(void *self, const int32_t *counts, int32_t experts) {
    const meeting *m = (const meeting *)self;
    NCCL(ncclAllGather(counts, m->windows[rank] + m->counts_at, (size_t)experts, ncclInt32, comm, stream));
}
static void exchange(void *, const ep_message *sends, const ep_message *receives, int32_t count) {
    NCCL(ncclGroupStart());
    for (int32_t i = 0; i < count; i++) {
        if (sends[i].bytes > 0) NCCL(ncclSend(sends[i].data, sends[i].bytes, ncclChar, sends[i].peer, comm, stream));
        if (receives[i].bytes > 0)
            NCCL(ncclRecv(receives[i].data, receives[i].bytes, ncclChar, receives[i].peer, comm, stream));
    }
    NCCL(ncclGroupEnd());
}

/* ---- windows ---- */

typedef struct options {
    int messages;
    ep_crossing crossing;
    int64_t bench; /* tokens of a rank; 0 = check */
    int32_t experts;
    const struct model *model; /* whose layer is timed */
    const char *fault;
} options;
static const struct model {
    const char *name;
    int64_t width, hidden;
} models[] = {{"dsv3", 7168, 2048}, {"qwen3-30b", 2048, 768}}; /* DeepSeek-V3, Qwen3-30B-A3B; 8 experts a token */
static int has_fault(const options *o, const char *name) { return strcmp(o->fault, name) == 0; }

/* Whether all ranks say so. */
static int all_of_them(int mine) {
    int32_t *word = (int32_t *)ep_memory(sizeof *word), all = mine;
    ep_put(word, &all, sizeof all);
    NCCL(ncclAllReduce(word, word, 1, ncclInt32, ncclMin, comm, stream));
    ep_get(&all, word, sizeof all);
    MUST(cudaFree(word));
    return all;
}

/* Windows of so many bytes, and where they are reached; 0 = some rank does not reach them all. */
static int windows_make(const options *o, size_t bytes, void **addresses) {
    const size_t page = NCCL_WIN_REQUIRED_ALIGNMENT, room = (bytes + 2 * page - 1) / page * page;
    ncclWindow_t window = NULL;
    void *own = NULL;
    int reached = 1;
    within_patience("registering the windows");
    NCCL(ncclMemAlloc(&own, room));
    MUST(cudaMemset(own, 0, room));
    memset(addresses, 0, sizeof *addresses * MOST_RANKS);
    addresses[rank] = own;
    if (o->messages) return 0;
    NCCL(ncclCommWindowRegister(comm, own, room, &window, NCCL_WIN_COLL_SYMMETRIC));
    for (int r = 0; r < ranks; r++) {
        if (r == rank) continue;
        if (!window || !ncclGetPeerDevicePointer || ncclGetPeerDevicePointer(window, 0, r, &addresses[r]) != ncclSuccess
            || !addresses[r])
            reached = 0;
    }
    if (!all_of_them(reached)) {
        if (rank == 0) printf("not all windows are reached: rows travel as messages\n");
        return 0;
    }
    if (has_fault(o, "misaligned"))
        for (int r = 0; r < ranks; r++) addresses[r] = (char *)addresses[r] + 8;
    return 1;
}

typedef struct session {
    ep_layer layer;
    meeting meet;
    ep_transport transport;
    void *addresses[MOST_RANKS];
} session;

static void session_make(session *x, const options *o, const ep_size *size, int with_gradients) {
    size_t at[EP_PIECES];
    const int reached = windows_make(o, ep_window(size, size->capacity, at), x->addresses);
    within_patience("making the layer");
    for (int r = 0; r < ranks; r++) x->meet.windows[r] = (char *)x->addresses[r];
    x->meet.counts_at = at[EP_COUNTS];
    x->meet.signals_at = at[EP_SIGNALS];
    x->meet.rank = rank;
    x->meet.ranks = ranks;
    x->meet.number = (uint32_t *)ep_memory(sizeof(uint32_t));
    x->meet.trouble = (uint32_t *)ep_memory(sizeof(uint32_t));
    x->meet.patience_ns = (uint64_t)(patience * 1e9);
    x->transport.self = &x->meet;
    x->transport.share_counts = reached ? share_counts : gather_counts;
    x->transport.meet = reached ? meet : NULL;
    x->transport.exchange = reached ? NULL : exchange;
    ep_layer_make(&x->layer, size, x->addresses, reached, with_gradients);
    MUST(cudaStreamSynchronize(stream));
}

static void everything(session *x) {
    ep_forward(&x->layer, &x->transport, stream);
    ep_dgrad(&x->layer, &x->transport, stream);
    ep_wgrad(&x->layer, stream);
}

/* ---- graphs ---- */

typedef struct nodes {
    int kernels, copies, memsets, others;
} nodes;

template <typename WORK> static cudaGraphExec_t capture(const WORK &work, nodes *n) {
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    size_t count = 0;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    work();
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphGetNodes(graph, NULL, &count));
    cudaGraphNode_t *list = (cudaGraphNode_t *)malloc((count + 1) * sizeof *list);
    MUST(cudaGraphGetNodes(graph, list, &count));
    memset(n, 0, sizeof *n);
    for (size_t i = 0; i < count; i++) {
        cudaGraphNodeType type;
        MUST(cudaGraphNodeGetType(list[i], &type));
        if (type == cudaGraphNodeTypeKernel) n->kernels++;
        else if (type == cudaGraphNodeTypeMemcpy) n->copies++;
        else if (type == cudaGraphNodeTypeMemset) n->memsets++;
        else if (type != cudaGraphNodeTypeEmpty) n->others++;
    }
    free(list);
    MUST(cudaGraphInstantiate(&replay, graph, 0));
    return replay;
}

/* ---- results against one rank ---- */

/* A copy on the host of everything that a step writes for its caller. */
static void results(const ep_layer *l, char *to, int poison_them, size_t *bytes) {
    const ep_size *s = &l->size;
    const size_t here = (size_t)(s->experts / s->ranks) * (size_t)(s->width * s->hidden) * 4,
                 rows = (size_t)(s->tokens * s->width) * ep_bytes(s->dtype);
    const struct {
        void *data;
        size_t bytes;
    } list[] = {{l->combine.tokens.data, rows},
                {l->combine_grad.tokens.data, rows},
                {l->router_backward.grad_logits.data, (size_t)(s->tokens * s->experts) * 4},
                {l->mlp.fc1.main_grad.data, 2 * here},
                {l->mlp.fc2.main_grad.data, here}};
    *bytes = 0;
    for (const auto &r : list) {
        if (to) ep_get(to + *bytes, r.data, r.bytes);
        if (poison_them) MUST(cudaMemsetAsync(r.data, 0xF3, r.bytes, stream));
        *bytes += r.bytes;
    }
    MUST(cudaStreamSynchronize(stream));
}

/* Poison in all of this rank's window but its signals. No rank goes on before all have done so. */
static void poison_window(session *x) {
    size_t at[EP_PIECES + 1];
    at[EP_PIECES] = ep_window(&x->layer.size, x->layer.size.capacity, at);
    for (int piece = 0; piece < EP_PIECES; piece++) {
        if (piece != EP_SIGNALS)
            MUST(cudaMemsetAsync(x->layer.window + at[piece], 0xF3, at[piece + 1] - at[piece], stream));
    }
    meet(&x->meet, NULL);
}

/* One graph, 100 routings: the bits of the same calls without one, with windows poisoned between them. */
static void replays(session *x) {
    size_t bytes;
    nodes n;
    results(&x->layer, NULL, 0, &bytes);
    char *eager = (char *)malloc(bytes), *replayed = (char *)malloc(bytes);
    cudaGraphExec_t graph = capture([&] { everything(x); }, &n);
    if (n.copies + n.memsets + n.others > 0)
        give_up("the step has %d copies, %d memsets and %d host calls or others", n.copies, n.memsets, n.others);
    for (int step = 1; step <= 100; step++) {
        within_patience("replaying a step");
        ep_layer_fill(&x->layer, 100 + (uint64_t)step);
        everything(x);
        look(&x->meet, &x->layer);
        results(&x->layer, eager, 1, &bytes);
        poison_window(x);
        MUST(cudaGraphLaunch(graph, stream));
        look(&x->meet, &x->layer);
        results(&x->layer, replayed, 0, &bytes);
        if (memcmp(eager, replayed, bytes) != 0) give_up("replay %d has not the bits of the calls", step);
    }
    if (rank == 0)
        printf("ok one graph of %d kernels, no copy, no memset, no host call: 100 replays have the bits of the calls\n",
               n.kernels);
}

static void quantised(session *x) {
    ep_quantised both;
    ep_quantised_make(&both, &x->layer, &x->transport, stream);
    look(&x->meet, &x->layer);
    const int64_t rows = ep_quantised_compare(&both, &x->layer);
    if (rows == 0) give_up("no rows were dispatched");
    if (rank == 0)
        printf("ok FP8 with 1x128 scales: %lld rows quantised before the dispatch are those quantised after it\n",
               (long long)rows);
}

static void check(const options *o) {
    static session x;
    static ep_one_rank one;
    ep_size size = {TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_BF16, ranks, rank, 8 * ranks, 4, 300, 512, 256, 0, o->crossing};
    size.capacity = has_fault(o, "small") ? 200 : ranks * size.tokens * size.k;
    session_make(&x, o, &size, 1);
    ep_one_rank_make(&one, &size);
    for (int step = 1; step <= 3; step++) {
        within_patience("a step");
        ep_layer_fill(&x.layer, (uint64_t)step);
        if (has_fault(o, "gone") && rank == ranks - 1) _exit(3);
        if (has_fault(o, "late") && rank == ranks - 1) sleep((unsigned)(2 * patience) + 1);
        if (has_fault(o, "counts") && rank == ranks - 1
            && !o->messages) { /* it works with another count than all others */
            ep_must(tegroup_router(&x.layer.router, stream, &ep_error));
            share_counts(&x.meet, (const int32_t *)x.layer.router.counts.data, size.experts);
            const int32_t lie = 7;
            ep_put(x.meet.windows[rank] + x.meet.counts_at, &lie, sizeof lie);
            ep_must(tegroup_ep_sizes(&x.layer.sizes, stream, &ep_error));
            meet(&x.meet, x.layer.report);
            look(&x.meet, &x.layer);
        }
        everything(&x);
        look(&x.meet, &x.layer);
        ep_one_rank_run(&one, &size, (uint64_t)step, stream);
        ep_compare(&x.layer, &one);
    }
    if (rank == 0)
        printf("ok %d ranks, BF16, by %s: output and gradients of 3 steps %s of one rank\n", ranks,
               x.transport.exchange ? "messages" : "stores into windows", ep_kinship(&size));
    if (x.transport.exchange) return;
    quantised(&x);
    replays(&x);
}

/* ---- times ---- */

/* BF16 of either sign, from `least` up to twice that. */
static __global__ void noise_kernel(uint16_t *to, int64_t count, uint32_t least) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t x = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
        to[i] = (uint16_t)(least | (uint32_t)(x >> 57) | (uint32_t)(x >> 48 & 1) << 15);
    }
}

/* Both ways at once: 16 bytes a thread, the whole grid. */
static __global__ void store_kernel(uint4 *to, int64_t count) {
    const uint4 x = make_uint4(blockIdx.x, threadIdx.x, 1, 2);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x)
        to[i] = x;
}

/* Microseconds of one call, all ranks at once, the least of some: ranks meet before each. */
template <typename WORK> static double timed(session *x, const WORK &work) {
    cudaEvent_t begin, end;
    double least = 1e30;
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int i = 0; i < 12; i++) {
        float ms;
        meet(&x->meet, NULL);
        MUST(cudaEventRecord(begin, stream));
        work();
        MUST(cudaEventRecord(end, stream));
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 2 && ms * 1e3 < least) least = ms * 1e3;
    }
    return least;
}

/* Rows that cross where a token goes to each other rank once: pairs of a token and a rank that owns a row of it. */
static int64_t crossing_once(const ep_layer *l) {
    const ep_size *s = &l->size;
    const int64_t slots = s->tokens * s->k;
    int32_t *rows = (int32_t *)malloc(sizeof *rows * (size_t)slots);
    int64_t pairs = 0;
    ep_get(rows, l->map.row_of_slot.data, sizeof *rows * (size_t)slots);
    for (int64_t t = 0; t < s->tokens; t++) {
        uint64_t owners = 0;
        for (int32_t j = 0; j < s->k; j++)
            if (rows[t * s->k + j] >= 0) owners |= UINT64_C(1) << rows[t * s->k + j] / s->capacity;
        pairs += __builtin_popcountll(owners & ~(UINT64_C(1) << s->rank));
    }
    free(rows);
    return pairs;
}

/* The same rows in this rank's own memory alone, one after another as they would be sent: what puts rows into the
 * buffers of a transport without windows, and adds up what it brings back. */
struct near_by {
    tegroup_ep_dispatch_desc dispatch;
    tegroup_ep_combine_desc combine;
    void *address[1];

    explicit near_by(const ep_layer *l) {
        const ep_size *s = &l->size;
        const size_t count = (size_t)(s->tokens * s->k);
        std::vector<int32_t> rows(count), order;
        ep_get(rows.data(), l->map.row_of_slot.data, sizeof rows[0] * count);
        order = rows;
        std::sort(order.begin(), order.end());
        for (int32_t &row : rows)
            if (row >= 0) row = (int32_t)(std::lower_bound(order.begin(), order.end(), row) - order.begin());
        const tegroup_matrix row_of_slot = ep_matrix(s->tokens, s->k, TEGROUP_DTYPE_I32);
        ep_put(row_of_slot.data, rows.data(), sizeof rows[0] * count);
        address[0] = l->window;
        dispatch = l->dispatch;
        combine = l->combine;
        dispatch.row_of_slot = combine.row_of_slot = row_of_slot;
        dispatch.windows.ranks = combine.windows.ranks = 1;
        dispatch.windows.rank = combine.windows.rank = 0;
        dispatch.windows.addresses = combine.windows.addresses = address;
    }
};

/* Forward through a model's layer: 8 experts a token, of 256 unless the options say otherwise. */
static void bench(const options *o, int64_t tokens) {
    session *x = (session *)calloc(1, sizeof *x);
    ep_size size = {TEGROUP_SPACE_DEVICE, TEGROUP_DTYPE_BF16, ranks, rank,       o->experts, 8, tokens,
                    o->model->width,      o->model->hidden,   0,     o->crossing};
    const int64_t here = size.experts / ranks, width = size.width, hidden = size.hidden;
    size.capacity = tokens * size.k * 5 / 4;
    session_make(x, o, &size, 0);
    if (x->transport.exchange) give_up("windows are not reached, and there is nothing to measure");
    ep_layer *l = &x->layer;
    nodes n;
    within_patience("measuring");
    ep_fill(l->router.logits.data, TEGROUP_DTYPE_F32, 1, EP_OF_LOGITS, rank * tokens * size.experts,
            tokens * size.experts, 2);
    noise_kernel<<<1024, 256, 0, stream>>>((uint16_t *)l->dispatch.tokens.data, tokens * width, 0x3f00); /* 0.5 */
    noise_kernel<<<1024, 256, 0, stream>>>((uint16_t *)l->mlp.fc1.weight.data, here * 2 * hidden * width,
                                           0x3c80); /* 2^-6 */
    noise_kernel<<<1024, 256, 0, stream>>>((uint16_t *)l->mlp.fc2.weight.data, here * hidden * width, 0x3c80);
    MUST(cudaGetLastError());
    ep_forward(l, &x->transport, stream);
    look(&x->meet, l);
    const double layer_eager = timed(x, [&] { ep_forward(l, &x->transport, stream); });
    cudaGraphExec_t graph = capture([&] { ep_forward(l, &x->transport, stream); }, &n);
    const double layer = timed(x, [&] { MUST(cudaGraphLaunch(graph, stream)); });
    look(&x->meet, l);

    int64_t rows[TEGROUP_MAX_GROUPS], away = 0;
    ep_get(rows, l->sizes.send_rows.data, sizeof *rows * (size_t)size.experts);
    for (int32_t e = 0; e < size.experts; e++) away += e / here == rank ? 0 : rows[e];
    const int64_t once = size.crossing ? crossing_once(l) : away;
    const double wire = (double)once * (double)width * 2, /* there, and back */
        back = (double)(size.crossing == EP_SUMS_ONCE ? once : away) * (double)width * 2;
    const int next = (rank + 1) % ranks;
    const int64_t pieces = size.capacity * width * 2 / 16;
    const double rate_us = timed(x,
                                 [&] {
                                     store_kernel<<<132, 1024, 0, stream>>>(
                                         (uint4 *)(x->meet.windows[next] + l->at[EP_OUT]), pieces);
                                 }),
                 rate = (double)pieces * 16 / rate_us * 1e-3; /* GB/s */
    const double dispatch = timed(x,
                                  [&] {
                                      ep_must(tegroup_ep_dispatch(&l->dispatch, stream, &ep_error));
                                      meet(&x->meet, NULL);
                                  }),
                 combine = timed(x, [&] {
                     ep_must(tegroup_ep_combine(&l->combine, stream, &ep_error));
                     meet(&x->meet, NULL);
                 });
    double messages_there = 0, messages_back = 0, expand = 0, reduce = 0;
    if (size.crossing) expand = timed(x, [&] { ep_must(tegroup_ep_expand(&l->expand, stream, &ep_error)); });
    if (size.crossing == EP_SUMS_ONCE)
        reduce = timed(x, [&] { ep_must(tegroup_ep_reduce(&l->reduce, stream, &ep_error)); });
    const auto messages = [&](double all) {
        const size_t bytes = (size_t)(all / (ranks - 1)); /* in one message a peer */
        NCCL(ncclGroupStart());
        for (int r = 0; r < ranks; r++) {
            if (r == rank) continue;
            NCCL(ncclSend(l->window + l->at[EP_GRAD_ROWS], bytes, ncclChar, r, comm, stream));
            NCCL(ncclRecv(l->window + l->at[EP_DGRAD_OUT], bytes, ncclChar, r, comm, stream));
        }
        NCCL(ncclGroupEnd());
    };
    if (ranks > 1) messages_there = messages_back = timed(x, [&] { messages(wire); });
    if (ranks > 1 && back != wire) messages_back = timed(x, [&] { messages(back); });
    double packed = 0, taken = 0;
    if (ranks > 1 && !size.crossing) { /* what a program with such messages has to run besides, at the least */
        const near_by near(l);
        packed = timed(x, [&] {
            ep_must(tegroup_ep_dispatch(&near.dispatch, stream, &ep_error));
            messages(wire);
        });
        taken = timed(x, [&] {
            messages(back);
            ep_must(tegroup_ep_combine(&near.combine, stream, &ep_error));
        });
    }
    tegroup_ep_dispatch_desc fp8 = l->dispatch; /* the bytes of FP8 and its scales, whatever they are */
    fp8.tokens = tegroup_matrix_of(l->dispatch.tokens.data, tokens, width, TEGROUP_DTYPE_F8E4M3);
    fp8.scales = tegroup_matrix_of(l->dispatch_grad.tokens.data, tokens, width / 128, TEGROUP_DTYPE_F32);
    fp8.rows = tegroup_matrix_of(l->window + l->at[EP_GRAD_ROWS], size.capacity, width, TEGROUP_DTYPE_F8E4M3);
    fp8.row_scales = tegroup_matrix_of(l->window + l->at[EP_DGRAD_OUT], size.capacity, width / 128, TEGROUP_DTYPE_F32);
    const double narrow = timed(x,
                                [&] {
                                    ep_must(tegroup_ep_dispatch(&fp8, stream, &ep_error));
                                    meet(&x->meet, NULL);
                                }),
                 alone = timed(x, [&] { meet(&x->meet, NULL); }),
                 routing = timed(x, [&] {
                     ep_must(tegroup_router(&l->router, stream, &ep_error));
                     share_counts(&x->meet, (const int32_t *)l->router.counts.data, size.experts);
                     ep_must(tegroup_ep_sizes(&l->sizes, stream, &ep_error));
                     ep_must(tegroup_prepare(&l->sent, stream, &ep_error));
                     ep_must(tegroup_permutation_make(&l->map, stream, &ep_error));
                     ep_must(tegroup_prepare(&l->received, stream, &ep_error));
                 });
    look(&x->meet, l);
    if (rank == 0) {
        printf("%s, %lld tokens a rank, %d ranks: layer %.0f us in a graph (%d kernels, %d copies, %d memsets, %d "
               "others), "
               "%.0f us without\n",
               o->model->name, (long long)tokens, ranks, layer, n.kernels, n.copies, n.memsets, n.others, layer_eager);
        printf("  meeting %.1f us, routing %.1f us, dispatch %.0f us (FP8 %.0f), expand %.0f us, reduce %.0f us, "
               "combine %.0f us, %.1f MB over the wire, %.1f MB back\n",
               alone, routing, dispatch, narrow, expand, reduce, combine, wire * 1e-6, back * 1e-6);
        if (ranks > 1)
            printf("  stores to a peer %.0f GB/s: dispatch %.2f of that, combine %.2f; NCCL's grouped send and receive "
                   "of as many bytes %.0f and %.0f us: %.2f and %.2f of our time\n",
                   rate, wire / rate * 1e-3 / dispatch, back / rate * 1e-3 / combine, messages_there, messages_back,
                   messages_there / dispatch, messages_back / combine);
        if (packed > 0)
            printf(
                "  with rows put into its buffers, and taken from them and added up: %.0f and %.0f us, %.2f and %.2f "
                "of our time\n",
                packed, taken, packed / dispatch, taken / combine);
        fflush(stdout);
    }
    MUST(cudaDeviceSynchronize());
}

/* ---- processes ---- */

/* Memory that parent and children share: how the ranks learn of each other on one host. Ranks of several hosts would get
 * the identifier from their launcher. */
typedef struct meeting_point {
    ncclUniqueId id;
    volatile int ready;
} meeting_point;

static int work(const options *o, meeting_point *shared) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int devices = 0, version = 0;
    signal(SIGALRM, too_long);
    within_patience("starting NCCL");
    setenv("NCCL_NVLS_ENABLE", "0", 0); /* plain stores are all that is used */
    MUST(cudaGetDeviceCount(&devices));
    if (devices < ranks) give_up("%d ranks need a GPU each, and there are %d", ranks, devices);
    MUST(cudaSetDevice(rank));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    NCCL(ncclGetVersion(&version));
    if (version < 23007) give_up("NCCL is %d, and must be 23007 (2.30.7) or later", version);
    if (rank == 0) {
        NCCL(ncclGetUniqueId(&shared->id));
        __sync_synchronize();
        shared->ready = 1;
    }
    while (!shared->ready) usleep(1000);
    NCCL(ncclCommInitRankConfig(&comm, ranks, shared->id, rank, &config));
    if (o->bench) {
        bench(o, o->bench);
        return 0;
    }
    check(o);
    fflush(stdout);
    return 0;
}

/* Waits for all ranks. One that fails takes the others with it, after they have had time to say why they failed. */
static int wait_for_all(const pid_t *children) {
    int failed = 0, status;
    for (int left = ranks; left > 0; left--) {
        const pid_t child = wait(&status);
        if (child < 0) return 1;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        if (!failed) {
            failed = 1;
            for (int tenths = 0; tenths < 10 * (3 * patience + 5) && left > 1; tenths++) {
                usleep(100000);
                while (waitpid(-1, &status, WNOHANG) > 0) left--;
            }
        }
        for (int r = 0; r < ranks; r++)
            if (children[r] != child) kill(children[r], SIGKILL);
    }
    return failed;
}

int main(int argc, char **argv) {
    static const char *const faults[] = {"", "gone", "late", "counts", "small", "misaligned"};
    options o = {0, EP_EACH_SLOT, 0, 256, &models[0], ""};
    pid_t children[MOST_RANKS];
    int known = 0;
    ranks = 2;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--messages") == 0) o.messages = 1;
        else if (strcmp(argv[i], "--tokens-once") == 0) o.crossing = EP_TOKENS_ONCE;
        else if (strcmp(argv[i], "--sums-once") == 0) o.crossing = EP_SUMS_ONCE;
        else if (strcmp(argv[i], "--bench") == 0 && i + 1 < argc) o.bench = atoll(argv[++i]);
        else if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc) ranks = atoi(argv[++i]);
        else if (strcmp(argv[i], "--experts") == 0 && i + 1 < argc) o.experts = atoi(argv[++i]);
        else if (strcmp(argv[i], "--model") == 0 && i + 1 < argc) {
            o.model = NULL;
            i++;
            for (const model &m : models)
                if (strcmp(argv[i], m.name) == 0) o.model = &m;
            if (!o.model) give_up("unknown model %s", argv[i]);
        } else if (strcmp(argv[i], "--timeout") == 0 && i + 1 < argc) patience = atof(argv[++i]);
        else if (strcmp(argv[i], "--fault") == 0 && i + 1 < argc) o.fault = argv[++i];
        else give_up("unknown option %s", argv[i]);
    }
    for (const char *fault : faults) known |= strcmp(o.fault, fault) == 0;
    if (!known) give_up("unknown fault %s", o.fault);
    if (ranks < 1 || ranks > MOST_RANKS || !(patience > 0))
        give_up("--ranks takes 1 to %d, --timeout more than 0", (int)MOST_RANKS);
    if (o.bench < 0 || (o.bench && (o.experts < 8 || o.experts > TEGROUP_MAX_GROUPS || o.experts % ranks != 0)))
        give_up("--bench takes a number of tokens, and --experts a multiple of ranks from 8 on");
    if (o.messages && (has_fault(&o, "counts") || has_fault(&o, "misaligned")))
        give_up("--fault %s needs windows, not --messages", o.fault);
    if (o.messages && o.crossing) give_up("--tokens-once and --sums-once need windows, not --messages");
    if (o.bench && o.fault[0]) give_up("--fault is not for --bench");
    meeting_point *shared =
        (meeting_point *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) give_up("no shared memory");
    for (rank = 0; rank < ranks; rank++) {
        children[rank] = fork(); /* before any call of CUDA's */
        if (children[rank] < 0) give_up("no process");
        if (children[rank] == 0) _exit(work(&o, shared));
    }
    return wait_for_all(children);
}
