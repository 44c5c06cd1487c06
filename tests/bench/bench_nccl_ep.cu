/* nvcc -std=c++20 -O2 -gencode arch=compute_90a,code=sm_90a -I. -I$NCCL_HOME/include -I$NCCL_EP_HOME/include
 *      tests/bench/bench_nccl_ep.cu -o bench_nccl_ep -Xlinker -l:libnccl.so.2 -Xlinker -l:libnccl_ep.so
 *      -Xlinker --allow-shlib-undefined
 * bench_nccl_ep [--ranks N] [--model NAME] [--tokens N] [--mode MODE] [--calls N] */

/* NCCL EP (nccl-extensions, 0.2) beside examples/ep, for comparison only: its dispatch and combine with the routing of
 * `ep_nccl --bench`, one process a GPU, all of one host. Rows arrive by expert, which is what tegroup's products take.
 * tests/gpu/ep.sh runs both where NCCL EP is installed. Modes are NCCL EP's ways to do it:
 *
 *     permute   high throughput: a token crosses once to each rank, into NCCL EP's memory; kernels bring it from there
 *               to its experts' rows, and add up a rank's results before they go back
 *     local     the same, but into this program's windows, where a kernel copies a token to its other rows
 *     nvlink    each slot crosses, into this program's windows
 *     latency   low latency, for few tokens; combine weights what it adds up
 *
 * Every row that arrives is held against the token that it has to be, and every sum against a plain one. Then come
 * microseconds of a call by events on the stream, all ranks at once: the median of the calls, and the least.
 *
 * NCCL EP takes 16 multiprocessors for what crosses, or NCCL_EP_COMM_SMS of them where that is set. It has barriers
 * for 16 blocks: more need NCCL_EP_DISABLE_GUARD=1, which is safe here, since ranks meet before each call. */
#define TEGROUP_IMPLEMENTATION
#define TEGROUP_NO_SM90
#define TEGROUP_NO_PORTABLE
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_F16
#include "tegroup.h"

#include <algorithm>
#include <cuda_bf16.h>
#include <nccl_ep.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_RANKS = 8, K = 8, MOST_CALLS = 1000, PATIENCE = 90 /* seconds */ };
static int rank, ranks = 2;
static cudaStream_t stream;
static ncclComm_t comm;
static const char *doing = "starting";

static void give_up(const char *format, ...) {
    char line[640];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "bench_nccl_ep: rank %d: %s\n", rank, line);
    _exit(1); /* without waiting for what a peer that is gone never ends */
}
static void must(cudaError_t code) {
    if (code != cudaSuccess) give_up("%s while %s", cudaGetErrorString(code), doing);
}
static void nccl(ncclResult_t code) {
    if (code != ncclSuccess) give_up("%s while %s; %s", ncclGetErrorString(code), doing, ncclGetLastError(comm));
}
static void too_long(int) { give_up("%s took longer than %d s", doing, (int)PATIENCE); }

static void *ep_memory(size_t bytes) {
    void *memory;
    must(cudaMalloc(&memory, bytes + 1));
    must(cudaMemsetAsync(memory, 0, bytes + 1, stream));
    return memory;
}
static void ep_put(void *there, const void *here, size_t bytes) {
    must(cudaMemcpyAsync(there, here, bytes, cudaMemcpyHostToDevice, stream));
    must(cudaStreamSynchronize(stream));
}
static void ep_get(void *here, const void *there, size_t bytes) {
    must(cudaMemcpyAsync(here, there, bytes, cudaMemcpyDeviceToHost, stream));
    must(cudaStreamSynchronize(stream));
}

#include "examples/ep/ep_check.h"

/* ---- what is sent, and what has to come ---- */

typedef enum mode { PERMUTE, LOCAL, NVLINK, LATENCY, MODES } mode;
static const char *const mode_names[MODES] = {"permute", "local", "nvlink", "latency"};
static const struct model {
    const char *name;
    int64_t width;
    int32_t experts;
} models[] = {{"dsv3", 7168, 256}, {"qwen3-30b", 2048, 128}}; /* as in ep_nccl.cu */

/* The choices of all ranks' tokens, which every rank works out, and this rank's experts. */
typedef struct routing {
    const int32_t *chosen; /* [all, K] */
    const float *weights;  /* [all, K] */
    int64_t all, width;
    int32_t first, here; /* experts of this rank */
} routing;

/* Element c of token g, as BF16: the first two say which token it is. */
static __device__ __nv_bfloat16 element(int64_t g, int64_t c) {
    if (c < 2) return __float2bfloat16((float)(c == 0 ? g / 256 : g % 256));
    uint64_t x = (uint64_t)(g * 16384 + c + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return __ushort_as_bfloat16((unsigned short)(0x3f00 | x >> 57 | (x >> 48 & 1) << 15)); /* 0.5 to 1, or -1 to -0.5 */
}
/* What stands for an expert: its rows times this. */
static __device__ float factor(int32_t expert) { return 1 + (float)(expert % 8) / 8; }

static __global__ void tokens_kernel(__nv_bfloat16 *tokens, int64_t count, int64_t width, int64_t first) {
    for (int64_t t = blockIdx.x; t < count; t += gridDim.x)
        for (int64_t c = threadIdx.x; c < width; c += blockDim.x) tokens[t * width + c] = element(first + t, c);
}

/* Rows of expert blockIdx.x, some to each blockIdx.y: looks at what came, and writes what the expert makes of it.
 * seen: [all, K], how often each choice came. */
static __global__ void experts_kernel(routing r, const __nv_bfloat16 *rows, const float *row_weights,
                                      __nv_bfloat16 *out, const int32_t *starts, const int32_t *counts, int32_t *seen,
                                      int32_t *wrong) {
    const int32_t expert = r.first + (int32_t)blockIdx.x;
    for (int32_t i = (int32_t)blockIdx.y; i < counts[blockIdx.x]; i += (int32_t)gridDim.y) {
        const int64_t row = starts[blockIdx.x] + i;
        const __nv_bfloat16 *from = rows + row * r.width;
        const int64_t g = (int64_t)(256 * __bfloat162float(from[0]) + __bfloat162float(from[1]));
        int64_t slot = 0;
        while (g >= 0 && g < r.all && slot < K && r.chosen[g * K + slot] != expert) slot++;
        if (g < 0 || g >= r.all || slot == K) {
            if (threadIdx.x == 0) atomicAdd(wrong, 1);
            continue;
        }
        slot += g * K;
        if (threadIdx.x == 0) {
            atomicAdd(&seen[slot], 1);
            if (row_weights && row_weights[row] != r.weights[slot]) atomicAdd(wrong, 1);
        }
        for (int64_t c = threadIdx.x; c < r.width; c += blockDim.x) {
            if (__bfloat16_as_ushort(from[c]) != __bfloat16_as_ushort(element(g, c))) atomicAdd(wrong, 1);
            out[row * r.width + c] = __float2bfloat16(__bfloat162float(from[c]) * factor(expert));
        }
    }
}
/* Each choice of an expert of this rank came once, and no other one. */
static __global__ void seen_kernel(routing r, const int32_t *seen, int32_t *wrong) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.all * K; i += gridDim.x * blockDim.x)
        if (seen[i] != (r.chosen[i] / r.here == r.first / r.here)) atomicAdd(wrong, 1);
}
/* The largest difference from a plain sum, as a part of it. first: this rank's first token. */
static __global__ void sums_kernel(routing r, const __nv_bfloat16 *sums, int64_t count, int64_t first, bool weighted,
                                   float *largest) {
    for (int64_t t = blockIdx.x; t < count; t += gridDim.x) {
        float of_one = 0;
        for (int64_t slot = (first + t) * K; slot < (first + t + 1) * K; slot++)
            of_one += factor(r.chosen[slot]) * (weighted ? r.weights[slot] : 1);
        for (int64_t c = threadIdx.x; c < r.width; c += blockDim.x) {
            const float x = __bfloat162float(element(first + t, c)), sum = __bfloat162float(sums[t * r.width + c]),
                        apart = fabsf(sum - x * of_one) / (x == 0 ? 1 : fabsf(x) * of_one);
            if (!(apart <= *largest)) atomicMax((int32_t *)largest, __float_as_int(apart == apart ? apart : 1e30f));
        }
    }
}

/* Router, logits and choices are those of `ep_nccl --bench`. */
static routing route(const model *m, int64_t tokens) {
    static ep_layer l;
    memset(&l, 0, sizeof l);
    l.size.space = TEGROUP_SPACE_DEVICE;
    l.size.ranks = ranks;
    l.size.experts = m->experts;
    l.size.k = K;
    l.size.tokens = ranks * tokens;
    l.window = (char *)ep_memory(sizeof(int32_t) * (size_t)(ranks * m->experts));
    ep_make_routing(&l);
    ep_fill(l.router.logits.data, TEGROUP_DTYPE_F32, 1, EP_OF_LOGITS, 0, l.size.tokens * m->experts, 2);
    ep_must(tegroup_router(&l.router, stream, &ep_error));
    const int32_t here = m->experts / ranks;
    return {(const int32_t *)l.router.indices.data, (const float *)l.router.weights.data, l.size.tokens, m->width,
            rank * here, here};
}

/* Rows of this rank's tokens that leave it, where each slot does and where a token does so once a rank. */
static void crossing(const routing *r, int64_t tokens, int64_t *slots, int64_t *once) {
    int32_t *chosen = (int32_t *)malloc(sizeof *chosen * (size_t)(tokens * K));
    ep_get(chosen, r->chosen + rank * tokens * K, sizeof *chosen * (size_t)(tokens * K));
    *slots = *once = 0;
    for (int64_t t = 0; t < tokens; t++) {
        uint32_t owners = 0;
        for (int j = 0; j < K; j++) {
            const int owner = chosen[t * K + j] / r->here;
            *slots += owner != rank;
            owners |= 1u << owner;
        }
        *once += __builtin_popcount(owners & ~(1u << rank));
    }
    free(chosen);
}

/* ---- NCCL EP ---- */

/* A tensor of NCCL EP's, and the sizes that it points to. */
typedef struct tensor {
    ncclEpTensor_t t;
    size_t sizes[3];
} tensor;
static void tensor_set(tensor *x, void *data, ncclDataType_t type, size_t a, size_t b = 0, size_t c = 0) {
    x->t = NCCL_EP_TENSOR_INIT;
    x->t.datatype = type;
    x->t.data = data;
    x->t.ndim = c ? 3 : b ? 2 : 1;
    x->t.sizes = x->sizes;
    x->sizes[0] = a, x->sizes[1] = b, x->sizes[2] = c;
}
/* Memory that peers reach: NCCL EP stores into it and reads from it, and needs none of its own. */
static void *window_make(size_t bytes, ncclWindow_t *window) {
    const size_t page = NCCL_WIN_REQUIRED_ALIGNMENT, room = (bytes + page - 1) / page * page;
    void *memory;
    nccl(ncclMemAlloc(&memory, room));
    must(cudaMemset(memory, 0, room));
    nccl(ncclCommWindowRegister(comm, memory, room, window, NCCL_WIN_COLL_SYMMETRIC));
    return memory;
}

typedef struct exchange {
    mode way;
    int64_t tokens, capacity; /* rows; where latency counts most, room for all tokens at each expert */
    ncclEpGroup_t group;
    ncclEpHandle_t handle;
    tensor chosen, input, weights, rows, row_weights, out, sums, counts, starts;
} exchange;

static void exchange_make(exchange *x, mode way, const routing *r, int64_t tokens) {
    const int latency = way == LATENCY, windows = way == LOCAL || way == NVLINK;
    const int32_t experts = r->here * ranks;
    const size_t width = (size_t)r->width, here = (size_t)r->here, all = (size_t)r->all;
    memset(x, 0, sizeof *x);
    x->way = way;
    x->tokens = tokens;
    x->capacity = latency ? r->here * r->all : tokens * K * 5 / 4; /* as in ep_nccl.cu */

    doing = "making NCCL EP's group";
    if (way == NVLINK) setenv("NCCL_EP_HT_EM_NVLINK_DUP", "1", 1);
    ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
    config.algorithm = latency ? NCCL_EP_ALGO_LOW_LATENCY : NCCL_EP_ALGO_HIGH_THROUGHPUT;
    config.num_experts = (unsigned)experts;
    config.max_dispatch_tokens_per_rank = (unsigned)tokens;
    config.max_recv_tokens_per_rank = latency ? NCCL_EP_AUTO : (unsigned)x->capacity;
    config.max_token_bytes = (unsigned)width * 2;
    config.zero_copy = windows ? NCCL_EP_ZERO_COPY_ON : NCCL_EP_ZERO_COPY_AUTO;
    config.num_topk = K;
    nccl(ncclEpCreateGroup(&x->group, comm, &config));
    doing = "making NCCL EP's handle";
    nccl(ncclEpInitHandle(&x->handle, x->group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, K, NULL));

    doing = "making tensors";
    const size_t rows_bytes = (size_t)x->capacity * width * 2, row = (size_t)x->capacity;
    ncclWindow_t rows_window = NULL, out_window = NULL;
    void *rows = windows ? window_make(rows_bytes, &rows_window) : ep_memory(rows_bytes),
         *out = windows ? window_make(rows_bytes, &out_window) : ep_memory(rows_bytes);
    if (latency) {
        tensor_set(&x->rows, rows, ncclBfloat16, here, all, width);
        tensor_set(&x->out, out, ncclBfloat16, here, all, width);
    } else {
        tensor_set(&x->rows, rows, ncclBfloat16, row, width);
        tensor_set(&x->out, out, ncclBfloat16, row, width);
        x->rows.t.win_hdl = rows_window;
        x->out.t.win_hdl = out_window;
    }
    const int64_t mine = rank * tokens;
    tensor_set(&x->chosen, (void *)(r->chosen + mine * K), ncclInt32, (size_t)tokens, K);
    tensor_set(&x->weights, (void *)(r->weights + mine * K), ncclFloat32, (size_t)tokens, K);
    tensor_set(&x->input, ep_memory((size_t)tokens * width * 2), ncclBfloat16, (size_t)tokens, width);
    tensor_set(&x->sums, ep_memory((size_t)tokens * width * 2), ncclBfloat16, (size_t)tokens, width);
    tensor_set(&x->row_weights, ep_memory(row * 4), ncclFloat32, row);
    tensor_set(&x->counts, ep_memory(here * 4), ncclInt32, here);
    tensor_set(&x->starts, ep_memory(here * 4), ncclInt32, here);
    if (latency) { /* an expert's rows begin where those of all tokens would */
        int32_t *starts = (int32_t *)malloc(here * 4);
        for (int32_t e = 0; e < r->here; e++) starts[e] = e * (int32_t)r->all;
        ep_put(x->starts.t.data, starts, here * 4);
        free(starts);
    }
    tokens_kernel<<<1024, 256, 0, stream>>>((__nv_bfloat16 *)x->input.t.data, tokens, r->width, mine);
    must(cudaGetLastError());
    must(cudaStreamSynchronize(stream));
}

/* Counts, and where rows go: from the choices of all ranks. */
static void update(exchange *x) {
    ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
    info.expert_counters = &x->counts.t;
    info.expert_offsets = &x->starts.t;
    nccl(ncclEpUpdateHandle(x->handle, &x->chosen.t, x->way == LATENCY ? NULL : &info, stream));
}
static void dispatch(exchange *x) {
    ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
    ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
    ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
    in.tokens = &x->input.t;
    out.tokens = &x->rows.t;
    if (x->way == LATENCY) info.expert_counters = &x->counts.t;
    else in.topk_weights = &x->weights.t, out.topk_weights = &x->row_weights.t;
    nccl(ncclEpDispatch(x->handle, &in, &out, x->way == LATENCY ? &info : NULL, NULL, stream));
}
static void combine(exchange *x) {
    ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
    ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
    in.tokens = &x->out.t;
    out.tokens = &x->sums.t;
    if (x->way == LATENCY) out.topk_weights = &x->weights.t;
    nccl(ncclEpCombine(x->handle, &in, &out, NULL, stream));
}

/* Whether all is right, and the largest difference of a sum. */
static float check(exchange *x, const routing *r) {
    int32_t *seen = (int32_t *)ep_memory((size_t)(r->all * K) * 4), *wrong = (int32_t *)ep_memory(4), wrongs;
    float *largest = (float *)ep_memory(4), apart;
    doing = "the first dispatch";
    update(x);
    dispatch(x);
    must(cudaStreamSynchronize(stream));
    experts_kernel<<<dim3((unsigned)r->here, 64), 256, 0, stream>>>(
        *r, (const __nv_bfloat16 *)x->rows.t.data, x->way == LATENCY ? NULL : (const float *)x->row_weights.t.data,
        (__nv_bfloat16 *)x->out.t.data, (const int32_t *)x->starts.t.data, (const int32_t *)x->counts.t.data, seen,
        wrong);
    seen_kernel<<<1024, 256, 0, stream>>>(*r, seen, wrong);
    ep_get(&wrongs, wrong, 4);
    if (wrongs) give_up("%d rows or elements that arrived are wrong", wrongs);
    doing = "the first combine";
    combine(x);
    must(cudaStreamSynchronize(stream));
    sums_kernel<<<1024, 256, 0, stream>>>(*r, (const __nv_bfloat16 *)x->sums.t.data, x->tokens, rank * x->tokens,
                                          x->way == LATENCY, largest);
    ep_get(&apart, largest, 4);
    if (!(apart < 1 / 64.0f)) give_up("a sum is off by %g of itself", (double)apart);
    return apart;
}

/* ---- times ---- */

typedef struct took {
    double median, least; /* microseconds */
} took;
/* All ranks at once: they meet before each call. */
template <typename WORK> static took timed(int calls, const WORK &work) {
    static double us[MOST_CALLS];
    static int32_t *word;
    cudaEvent_t begin, end;
    if (!word) word = (int32_t *)ep_memory(sizeof *word);
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    for (int i = -2; i < calls; i++) {
        float ms;
        nccl(ncclAllReduce(word, word, 1, ncclInt32, ncclMax, comm, stream));
        must(cudaEventRecord(begin, stream));
        work();
        must(cudaEventRecord(end, stream));
        must(cudaStreamSynchronize(stream));
        must(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 0) us[i] = ms * 1e3;
    }
    std::sort(us, us + calls);
    return {us[calls / 2], us[0]};
}

static void bench(const model *m, mode way, int64_t tokens, int calls) {
    static exchange x;
    int64_t slots, once;
    const routing r = route(m, tokens);
    crossing(&r, tokens, &slots, &once);
    exchange_make(&x, way, &r, tokens);
    const float apart = check(&x, &r);
    doing = "measuring";
    const took routed = timed(calls, [&] { update(&x); }), there = timed(calls, [&] { dispatch(&x); }),
               back = timed(calls, [&] { combine(&x); });
    const double bytes = (double)(way == NVLINK ? slots : once) * (double)m->width * 2,
                 bytes_back = (double)(way == PERMUTE || way == LOCAL ? once : slots) * (double)m->width * 2;
    if (rank == 0) {
        printf("ok %s, %lld tokens a rank, %d ranks, NCCL EP, %s: rows and their weights are right, sums within %.2g\n",
               m->name, (long long)tokens, ranks, mode_names[way], (double)apart);
        printf("  routing %.1f us (least %.1f), dispatch %.0f us (%.0f), combine %.0f us (%.0f)\n", routed.median,
               routed.least, there.median, there.least, back.median, back.least);
        printf("  %.1f MB over the wire, %.1f MB back: %.0f and %.0f GB/s\n", bytes * 1e-6, bytes_back * 1e-6,
               bytes / there.median * 1e-3, bytes_back / back.median * 1e-3);
        fflush(stdout);
    }
}

/* ---- processes ---- */

typedef struct meeting_point { /* memory that all processes share */
    ncclUniqueId id;
    volatile int ready;
} meeting_point;

static int work(meeting_point *shared, const model *m, mode way, int64_t tokens, int calls) {
    int devices = 0, version = 0, ep_version = 0;
    signal(SIGALRM, too_long);
    alarm(PATIENCE);
    setenv("NCCL_NVLS_ENABLE", "0", 0); /* as in ep_nccl.cu */
    doing = "starting NCCL";
    must(cudaGetDeviceCount(&devices));
    if (devices < ranks) give_up("%d ranks need a GPU each, and there are %d", ranks, devices);
    must(cudaSetDevice(rank));
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    nccl(ncclGetVersion(&version));
    nccl(ncclEpGetVersion(&ep_version));
    if (rank == 0) {
        printf("NCCL EP %d.%d.%d, NCCL %d.%d.%d\n", ep_version / 10000, ep_version / 100 % 100, ep_version % 100,
               version / 10000, version / 100 % 100, version % 100);
        fflush(stdout);
        nccl(ncclGetUniqueId(&shared->id));
        __sync_synchronize();
        shared->ready = 1;
    }
    while (!shared->ready) usleep(1000);
    nccl(ncclCommInitRank(&comm, ranks, shared->id, rank));
    bench(m, way, tokens, calls);
    return 0;
}

int main(int argc, char **argv) {
    const model *m = &models[0];
    int way = PERMUTE, calls = 20, status, failed = 0;
    int64_t tokens = 4096;
    pid_t children[MOST_RANKS];
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--ranks") == 0) ranks = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--calls") == 0) calls = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--tokens") == 0) tokens = atoll(argv[i + 1]);
        else if (strcmp(argv[i], "--mode") == 0) {
            for (way = 0; way < MODES && strcmp(argv[i + 1], mode_names[way]) != 0;) way++;
            if (way == MODES) give_up("unknown mode %s", argv[i + 1]);
        } else if (strcmp(argv[i], "--model") == 0) {
            m = NULL;
            for (const model &known : models)
                if (strcmp(argv[i + 1], known.name) == 0) m = &known;
            if (!m) give_up("unknown model %s", argv[i + 1]);
        } else give_up("unknown option %s", argv[i]);
    }
    if (ranks < 1 || ranks > MOST_RANKS || m->experts % ranks || tokens < 1 || calls < 1 || calls > MOST_CALLS)
        give_up("--ranks takes 1 to %d, --tokens 1 or more, --calls 1 to %d", (int)MOST_RANKS, (int)MOST_CALLS);
    meeting_point *shared =
        (meeting_point *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) give_up("no shared memory");
    for (rank = 0; rank < ranks; rank++) {
        children[rank] = fork(); /* before any call of CUDA's */
        if (children[rank] < 0) give_up("no process");
        if (children[rank] == 0) _exit(work(shared, m, (mode)way, tokens, calls));
    }
    for (int left = ranks; left > 0; left--) {
        const pid_t child = wait(&status);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        if (WIFSIGNALED(status) && !failed) fprintf(stderr, "bench_nccl_ep: a rank got signal %d\n", WTERMSIG(status));
        if (!failed) sleep(1); /* for the others to say why */
        for (int r = 0; r < ranks; r++)
            if (children[r] != child) kill(children[r], SIGKILL);
        failed = 1;
    }
    return failed;
}
