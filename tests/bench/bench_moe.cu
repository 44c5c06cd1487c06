/* nvcc -std=c++17 -O3 -DTEGROUP_NO_PORTABLE -gencode arch=compute_90a,code=sm_90a -I. tests/bench/bench_moe.cu -o bench_moe
 * bench_moe [calls] [router] [routing] [permutation] [rows] [activations]      all, or those named */

/* Operations around the products: bytes that must move, by time, as a fraction of the rate of a device-to-device copy in the
 * same run. Contestants take turns in random order, 256 MB are written before each (L2 is cold), medians of 30 rounds. A row
 * that is gathered counts each time that it is read; probabilities read again for the load-balancing loss do not count. */
#include <stdlib.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int code_ = (int)(call);                                                                                       \
        if (code_ != 0) {                                                                                              \
            fprintf(stderr, "%s:%d: code %d\n", __FILE__, __LINE__, code_);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum : int64_t { TOKENS = 32768, K = 8, EXPERTS = 128, ROWS = TOKENS * K / 4 };

/* Of either sign, 0.5 to 2, as BF16; and as floats. */
static __device__ uint16_t random_half(size_t i) {
    unsigned h = (unsigned)i * 2654435761u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (uint16_t)((h & 0x80ffu) | 0x3f00u);
}
static __global__ void fill_random(uint16_t *x, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) x[i] = random_half(i);
}
static __global__ void fill_floats(float *x, size_t count) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        x[i] = __uint_as_float((unsigned)random_half(2 * i) << 16 | random_half(2 * i + 1));
}

static __global__ void nothing() {}

static std::vector<void *> held;
static void *device(size_t bytes) {
    void *p;
    MUST(cudaMalloc(&p, bytes > 0 ? bytes : 1));
    fill_random<<<1024, 256>>>((uint16_t *)p, bytes / 2);
    held.push_back(p);
    return p;
}
static void release() {
    MUST(cudaDeviceSynchronize());
    for (void *p : held) MUST(cudaFree(p));
    held.clear();
}
static tegroup_matrix matrix(tegroup_dtype dtype, int64_t rows, int64_t cols) {
    return tegroup_matrix_of(device((size_t)(rows * cols * tegroup_dtype_bits(dtype) / 8)), rows, cols, dtype);
}
static double bytes_of(const tegroup_matrix &m) { return (double)(m.rows * m.cols * tegroup_dtype_bits(m.dtype) / 8); }

struct contestant {
    std::string name;
    double bytes;
    std::function<void()> run;
};

/* Rows of which each group owns as many as counts say, prepared. */
static tegroup_shape routed(const std::vector<int64_t> &counts, int64_t rows) {
    const size_t bytes = counts.size() * sizeof(int64_t);
    void *sizes = device(bytes);
    const tegroup_sizes on_device = tegroup_sizes_of(sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    tegroup_shape shape = tegroup_shape_of((int32_t)counts.size(), rows, 0, on_device);
    tegroup_layout layout;
    MUST(cudaMemcpy(sizes, counts.data(), bytes, cudaMemcpyHostToDevice));
    MUST(tegroup_snapshot_layout(&shape, &layout, NULL));
    MUST(tegroup_shape_prepare(&shape, device(layout.total_bytes), layout.total_bytes, NULL, NULL));
    return shape;
}

/* All of them against a copy that moves 512 MB there and 512 MB back. */
static void race(std::vector<contestant> contestants) {
    static char *flush, *copy;
    const size_t copied = (size_t)512 << 20;
    cudaEvent_t begin, end;
    if (!flush) {
        MUST(cudaMalloc((void **)&flush, (size_t)256 << 20));
        MUST(cudaMalloc((void **)&copy, 2 * copied));
    }
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    contestants.push_back({"copy", 2.0 * (double)copied, [=] { MUST(cudaMemcpyAsync(copy + copied, copy, copied, cudaMemcpyDeviceToDevice, 0)); }});
    std::vector<std::vector<float>> times(contestants.size());
    std::vector<size_t> order(contestants.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    for (int round = -3; round < 30; round++) {
        for (size_t i = order.size() - 1; i > 0; i--) std::swap(order[i], order[(size_t)rand() % (i + 1)]);
        for (size_t i : order) {
            float ms;
            MUST(cudaMemsetAsync(flush, round, (size_t)256 << 20));
            MUST(cudaEventRecord(begin));
            contestants[i].run();
            MUST(cudaEventRecord(end));
            MUST(cudaEventSynchronize(end));
            MUST(cudaEventElapsedTime(&ms, begin, end));
            if (round >= 0) times[i].push_back(ms * 1e-3f);
        }
    }
    for (auto &t : times) std::sort(t.begin(), t.end());
    const double rate = contestants.back().bytes / times.back()[15];
    for (size_t i = 0; i < contestants.size(); i++)
        if (contestants[i].bytes == 0) printf("%-44s %10.1f us\n", contestants[i].name.c_str(), times[i][15] * 1e6);
        else printf("%-44s %10.1f us %8.3f TB/s %6.2f of copy\n", contestants[i].name.c_str(), times[i][15] * 1e6, contestants[i].bytes / times[i][15] * 1e-12,
               contestants[i].bytes / times[i][15] / rate);
    MUST(cudaEventDestroy(begin));
    MUST(cudaEventDestroy(end));
}

template <typename DESC> static DESC desc() {
    DESC d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.space = TEGROUP_SPACE_DEVICE;
    return d;
}

/* What a caller runs beside a small layer's products, in microseconds: an empty kernel shows what a launch takes. */
static void time_small_calls() {
    tegroup_error error;
    tegroup_layout layout;
    for (int32_t experts : {8, 32, 128, 512}) {
        const int64_t tokens = 64, width = 2048;
        const std::string of = " of " + std::to_string(experts);
        auto r = desc<tegroup_router_desc>();
        r.experts = experts;
        r.k = K;
        r.normalize = 1;
        r.logits = matrix(TEGROUP_DTYPE_F32, tokens, experts);
        fill_floats<<<1024, 256>>>((float *)r.logits.data, (size_t)(tokens * experts));
        r.probabilities = matrix(TEGROUP_DTYPE_F32, tokens, experts);
        r.weights = matrix(TEGROUP_DTYPE_F32, tokens, K);
        r.indices = matrix(TEGROUP_DTYPE_I32, tokens, K);
        r.counts = matrix(TEGROUP_DTYPE_I64, 1, experts);
        MUST(tegroup_router(&r, NULL, &error));
        tegroup_shape shape = tegroup_shape_of(experts, tokens * K, 0, tegroup_sizes_of(r.counts.data, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
        MUST(tegroup_snapshot_layout(&shape, &layout, &error));
        void *const snapshot = device(layout.total_bytes);
        const size_t snapshot_bytes = layout.total_bytes;
        MUST(tegroup_shape_prepare(&shape, snapshot, snapshot_bytes, NULL, &error));
        auto m = desc<tegroup_permutation_desc>();
        m.indices = r.indices;
        m.shape = shape;
        m.row_of_slot = matrix(TEGROUP_DTYPE_I64, tokens, K);
        m.slot_of_row = matrix(TEGROUP_DTYPE_I64, 1, tokens * K);
        MUST(tegroup_permutation_layout(&m, &layout, &error));
        m.workspace = device(layout.total_bytes);
        m.workspace_bytes = layout.total_bytes;
        MUST(tegroup_permutation_make(&m, NULL, &error));
        auto p = desc<tegroup_permute_desc>();
        p.k = K;
        p.tokens = matrix(TEGROUP_DTYPE_BF16, tokens, width);
        p.slot_of_row = m.slot_of_row;
        p.permuted = matrix(TEGROUP_DTYPE_BF16, tokens * K, width);
        auto c = desc<tegroup_combine_desc>();
        c.permuted = p.permuted;
        c.row_of_slot = m.row_of_slot;
        c.weights = r.weights;
        c.tokens = p.tokens;
        race({{"an empty kernel", 0, [] { nothing<<<1, 32>>>(); }},
              {"prepare" + of, 0, [&] { MUST(tegroup_shape_prepare(&shape, snapshot, snapshot_bytes, NULL, &error)); }},
              {"router [64," + std::to_string(experts) + "]", 0, [&] { MUST(tegroup_router(&r, NULL, &error)); }},
              {"permutation [64,8]" + of, 0, [&] { MUST(tegroup_permutation_make(&m, NULL, &error)); }},
              {"permute 64 tokens, width 2048", 0, [&] { MUST(tegroup_permute(&p, NULL, &error)); }},
              {"combine 64 tokens, width 2048", 0, [&] { MUST(tegroup_combine(&c, NULL, &error)); }}});
        release();
    }
}

static void time_router() {
    tegroup_error error;
    tegroup_layout layout;
    for (int64_t tokens : {(int64_t)1048576, (int64_t)262144, (int64_t)65536, (int64_t)4096})
        for (tegroup_dtype in : {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16})
            for (int32_t experts : {128, 256}) {
                auto r = desc<tegroup_router_desc>();
                r.experts = experts;
                r.k = K;
                r.normalize = 1;
                r.logits = matrix(in, tokens, experts);
                if (in == TEGROUP_DTYPE_F32) fill_floats<<<1024, 256>>>((float *)r.logits.data, (size_t)(tokens * experts));
                r.probabilities = matrix(TEGROUP_DTYPE_F32, tokens, experts);
                r.weights = matrix(TEGROUP_DTYPE_F32, tokens, K);
                r.indices = matrix(TEGROUP_DTYPE_I32, tokens, K);
                r.counts = matrix(TEGROUP_DTYPE_I64, 1, experts);
                r.balance_coefficient = 0.01;
                auto with_loss = r;
                with_loss.balance_loss = (double *)device(8);
                MUST(tegroup_router_layout(&with_loss, &layout, &error));
                with_loss.workspace = device(layout.total_bytes);
                with_loss.workspace_bytes = layout.total_bytes;
                MUST(tegroup_router(&r, NULL, &error));
                auto b = desc<tegroup_router_backward_desc>();
                b.experts = experts;
                b.k = K;
                b.normalize = 1;
                b.probabilities = r.probabilities;
                b.indices = r.indices;
                b.counts = r.counts;
                b.grad_weights = matrix(TEGROUP_DTYPE_F32, tokens, K);
                b.grad_logits = matrix(in, tokens, experts);
                b.balance_coefficient = 0.01;
                auto v3 = r;
                v3.balance_coefficient = 0;
                v3.scheme.score = TEGROUP_SCORE_SIGMOID;
                v3.scheme.n_group = 8;
                v3.scheme.topk_group = 4;
                v3.scheme.bias = matrix(TEGROUP_DTYPE_F32, 1, experts);
                fill_floats<<<1024, 256>>>((float *)v3.scheme.bias.data, (size_t)experts);
                v3.scheme.normalize_epsilon = 1e-20;
                v3.scheme.route_factor = 2.5;
                v3.probabilities = matrix(TEGROUP_DTYPE_F32, tokens, experts);
                v3.indices = matrix(TEGROUP_DTYPE_I32, tokens, K);
                auto v3_losses = v3;
                v3_losses.balance_coefficient = 1e-4;
                v3_losses.scheme.sequence_tokens = 4096;
                v3_losses.scheme.z_coefficient = 1e-3;
                v3_losses.balance_loss = (double *)device(8);
                v3_losses.z_loss = (double *)device(8);
                v3_losses.loss_gradients = matrix(TEGROUP_DTYPE_F64, tokens / 4096, experts + 1);
                MUST(tegroup_router_layout(&v3_losses, &layout, &error));
                v3_losses.workspace = device(layout.total_bytes);
                v3_losses.workspace_bytes = layout.total_bytes;
                MUST(tegroup_router(&v3, NULL, &error));
                MUST(tegroup_router(&v3_losses, NULL, &error));
                auto v3_back = b;
                v3_back.balance_coefficient = 0;
                v3_back.scheme = v3.scheme;
                v3_back.probabilities = v3.probabilities;
                v3_back.indices = v3.indices;
                const double forward = bytes_of(r.logits) + bytes_of(r.probabilities) + bytes_of(r.weights) + bytes_of(r.indices);
                const std::string shape = " [" + std::to_string(tokens) + "," + std::to_string(experts) + "] " + tegroup_dtype_name(in);
                race({{"router" + shape, forward, [&] { MUST(tegroup_router(&r, NULL, &error)); }},
                      {"router, loss" + shape, forward, [&] { MUST(tegroup_router(&with_loss, NULL, &error)); }},
                      {"router backward" + shape, bytes_of(b.probabilities) + bytes_of(b.indices) + bytes_of(b.grad_weights) + bytes_of(b.grad_logits),
                       [&] { MUST(tegroup_router_backward(&b, NULL, &error)); }},
                      {"router, DeepSeek-V3" + shape, forward, [&] { MUST(tegroup_router(&v3, NULL, &error)); }},
                      {"router, DeepSeek-V3, its losses" + shape, forward, [&] { MUST(tegroup_router(&v3_losses, NULL, &error)); }},
                      {"router backward, DeepSeek-V3" + shape, bytes_of(b.probabilities) + bytes_of(b.indices) + bytes_of(b.grad_weights) + bytes_of(b.grad_logits),
                       [&] { MUST(tegroup_router_backward(&v3_back, NULL, &error)); }}});
                release();
            }
}

/* A call's launches as a graph, launched on the stream of all others. */
static std::function<void()> captured(const std::function<void(cudaStream_t)> &call) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    call(stream);
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&replay, graph, 0));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    return [replay] { MUST(cudaGraphLaunch(replay, 0)); };
}

/* From a router's indices to the rows of experts and their weights, in graphs: three calls, which begin with counts, and
 * one, which needs none. */
static void time_routing() {
    tegroup_error error;
    tegroup_layout layout;
    for (int32_t experts : {128, 512})
        for (int64_t tokens : {8, 512, 4096, 24576}) {
            auto m = desc<tegroup_permutation_desc>();
            std::vector<int32_t> indices((size_t)(tokens * K));
            std::vector<int64_t> counts((size_t)experts);
            for (auto &e : indices) counts[(size_t)(e = rand() % experts)]++;
            m.indices = matrix(TEGROUP_DTYPE_I32, tokens, K);
            MUST(cudaMemcpy(m.indices.data, indices.data(), indices.size() * 4, cudaMemcpyHostToDevice));
            tegroup_shape shape = routed(counts, tokens * K);
            MUST(tegroup_snapshot_layout(&shape, &layout, &error));
            const size_t snapshot_bytes = layout.total_bytes;
            void *const snapshot = device(snapshot_bytes);
            m.shape = shape;
            m.row_of_slot = matrix(TEGROUP_DTYPE_I32, tokens, K);
            m.slot_of_row = matrix(TEGROUP_DTYPE_I32, 1, tokens * K);
            MUST(tegroup_permutation_layout(&m, &layout, &error));
            m.workspace = device(layout.total_bytes);
            m.workspace_bytes = layout.total_bytes;
            auto one = m;
            one.shape.snapshot = NULL;
            one.snapshot = snapshot;
            one.snapshot_bytes = snapshot_bytes;
            one.slot_weights = matrix(TEGROUP_DTYPE_F32, tokens, K);
            one.row_weights = matrix(TEGROUP_DTYPE_F32, 1, tokens * K);
            auto weights = desc<tegroup_permute_desc>();
            weights.k = 1;
            weights.tokens = tegroup_matrix_of(one.slot_weights.data, tokens * K, 1, TEGROUP_DTYPE_F32);
            weights.row_of_slot = tegroup_matrix_of(m.row_of_slot.data, tokens * K, 1, TEGROUP_DTYPE_I32);
            weights.permuted = tegroup_matrix_of(one.row_weights.data, tokens * K, 1, TEGROUP_DTYPE_F32);
            const auto prepare = [&](cudaStream_t s) {
                tegroup_shape prepared = shape;
                MUST(tegroup_shape_prepare(&prepared, (void *)(uintptr_t)shape.snapshot, snapshot_bytes, s, &error));
            };
            const auto permutation = [&](cudaStream_t s) { MUST(tegroup_permutation_make(&m, s, &error)); };
            const auto row_weights = [&](cudaStream_t s) { MUST(tegroup_permute(&weights, s, &error)); };
            const std::string of = " [" + std::to_string(tokens) + ",8] of " + std::to_string(experts);
            race({{"an empty kernel", 0, captured([](cudaStream_t s) { nothing<<<1, 32, 0, s>>>(); })},
                  {"prepare" + of, 0, captured(prepare)},
                  {"permutation" + of, 0, captured(permutation)},
                  {"weights by row" + of, 0, captured(row_weights)},
                  {"these three" + of, 0, captured([&](cudaStream_t s) { prepare(s), permutation(s), row_weights(s); })},
                  {"one call" + of, 0, captured([&](cudaStream_t s) { MUST(tegroup_permutation_make(&one, s, &error)); })}});
            release();
        }
}

static void time_permutation() {
    tegroup_error error;
    tegroup_layout layout;
    for (int32_t experts : {8, 128, 4096}) {
        auto p = desc<tegroup_permutation_desc>();
        const int64_t tokens = 65536;
        std::vector<int32_t> indices((size_t)(tokens * K));
        std::vector<int64_t> counts((size_t)experts);
        for (auto &e : indices) counts[(size_t)(e = rand() % experts)]++;
        p.indices = matrix(TEGROUP_DTYPE_I32, tokens, K);
        MUST(cudaMemcpy(p.indices.data, indices.data(), indices.size() * 4, cudaMemcpyHostToDevice));
        p.shape = routed(counts, tokens * K);
        p.row_of_slot = matrix(TEGROUP_DTYPE_I64, tokens, K);
        p.slot_of_row = matrix(TEGROUP_DTYPE_I64, 1, tokens * K);
        MUST(tegroup_permutation_layout(&p, &layout, &error));
        p.workspace = device(layout.total_bytes);
        p.workspace_bytes = layout.total_bytes;
        auto weighed = p;
        weighed.weights = matrix(TEGROUP_DTYPE_F32, tokens, K);
        fill_floats<<<1024, 256>>>((float *)weighed.weights.data, (size_t)(tokens * K));
        for (auto &count : counts) count = count * 9 / 10;
        weighed.shape = routed(counts, tokens * K);
        MUST(tegroup_permutation_layout(&weighed, &layout, &error));
        weighed.workspace = device(layout.total_bytes);
        weighed.workspace_bytes = layout.total_bytes;
        const double bytes = bytes_of(p.indices) + bytes_of(p.row_of_slot) + bytes_of(p.slot_of_row);
        race({{"permutation [65536,8] of " + std::to_string(experts), bytes, [&] { MUST(tegroup_permutation_make(&p, NULL, &error)); }},
              {"permutation by weight [65536,8] of " + std::to_string(experts), bytes + bytes_of(weighed.weights),
               [&] { MUST(tegroup_permutation_make(&weighed, NULL, &error)); }}});
        release();
    }
}

static void time_rows() {
    tegroup_error error;
    for (int64_t width : {2048, 4096, 7168, 14336}) {
        const std::string shape = " width " + std::to_string(width) + " BF16";
        { /* a quarter of the slots for the widest to fit: tokens of TOKENS / 4 */
            const int64_t tokens = TOKENS / 4;
            std::vector<int64_t> rows((size_t)ROWS), slots((size_t)ROWS);
            for (int64_t i = 0; i < ROWS; i++) rows[(size_t)i] = i;
            for (int64_t i = ROWS - 1; i > 0; i--) std::swap(rows[(size_t)i], rows[(size_t)(rand() % (i + 1))]);
            for (int64_t i = 0; i < ROWS; i++) slots[(size_t)rows[(size_t)i]] = i;
            auto p = desc<tegroup_permute_desc>();
            p.k = K;
            p.tokens = matrix(TEGROUP_DTYPE_BF16, tokens, width);
            p.slot_of_row = matrix(TEGROUP_DTYPE_I64, 1, ROWS);
            p.permuted = matrix(TEGROUP_DTYPE_BF16, ROWS, width);
            MUST(cudaMemcpy(p.slot_of_row.data, slots.data(), slots.size() * 8, cudaMemcpyHostToDevice));
            auto q = desc<tegroup_combine_desc>();
            q.permuted = p.permuted;
            q.row_of_slot = matrix(TEGROUP_DTYPE_I64, tokens, K);
            q.weights = matrix(TEGROUP_DTYPE_F32, tokens, K);
            q.tokens = matrix(TEGROUP_DTYPE_BF16, tokens, width);
            MUST(cudaMemcpy(q.row_of_slot.data, rows.data(), rows.size() * 8, cudaMemcpyHostToDevice));
            auto b = desc<tegroup_combine_backward_desc>();
            b.grad_tokens = p.tokens;
            b.permuted = p.permuted;
            b.row_of_slot = q.row_of_slot;
            b.weights = q.weights;
            b.grad_permuted = matrix(TEGROUP_DTYPE_BF16, ROWS, width);
            b.grad_weights = matrix(TEGROUP_DTYPE_F32, tokens, K);
            auto by_slots = p;
            by_slots.row_of_slot = q.row_of_slot;
            race({{"permute by slots" + shape, bytes_of(p.tokens) + bytes_of(p.permuted), [&] { MUST(tegroup_permute(&by_slots, NULL, &error)); }},
                  {"permute" + shape, 2 * bytes_of(p.permuted), [&] { MUST(tegroup_permute(&p, NULL, &error)); }},
                  {"combine" + shape, bytes_of(q.permuted) + bytes_of(q.tokens), [&] { MUST(tegroup_combine(&q, NULL, &error)); }},
                  {"combine backward" + shape, bytes_of(b.grad_tokens) + bytes_of(b.permuted) + bytes_of(b.grad_permuted),
                   [&] { MUST(tegroup_combine_backward(&b, NULL, &error)); }}});
            release();
        }
        for (int ragged = 0; ragged < 2; ragged++) {
            const int64_t rows = 32768;
            std::vector<int64_t> counts((size_t)EXPERTS, rows / EXPERTS);
            for (size_t g = 0; g + 1 < counts.size(); g += 2) { /* uneven, with the same sum */
                const int64_t moved = rand() % (rows / EXPERTS);
                counts[g] -= moved;
                counts[g + 1] += moved;
            }
            const tegroup_shape shared = routed(counts, rows);
            auto f = desc<tegroup_activation_desc>();
            f.activation = TEGROUP_ACTIVATION_SWIGLU;
            f.snapshot = ragged ? shared.snapshot : NULL;
            f.input = matrix(TEGROUP_DTYPE_BF16, rows, 2 * width);
            f.output = matrix(TEGROUP_DTYPE_BF16, rows, width);
            f.row_scale = matrix(TEGROUP_DTYPE_F32, rows, 1);
            auto g = f;
            g.interleaved = 1;
            auto b = desc<tegroup_activation_backward_desc>();
            b.activation = f.activation;
            b.snapshot = f.snapshot;
            b.input = f.input;
            b.row_scale = f.row_scale;
            b.grad_output = f.output;
            b.grad_input = matrix(TEGROUP_DTYPE_BF16, rows, 2 * width);
            b.grad_row_scale = matrix(TEGROUP_DTYPE_F32, rows, 1);
            auto v = desc<tegroup_validate_desc>();
            v.tensor = tegroup_tensor_of(shared, width, TEGROUP_DTYPE_BF16, f.output.data);
            v.result = (tegroup_validation *)device(sizeof(tegroup_validation));
            const std::string of = shape + (ragged ? ", 128 groups" : "");
            auto c = b;
            c.interleaved = 1;
            race({{"SwiGLU" + of, bytes_of(f.input) + bytes_of(f.output), [&] { MUST(tegroup_activation_forward(&f, NULL, &error)); }},
                  {"SwiGLU interleaved" + of, bytes_of(f.input) + bytes_of(f.output), [&] { MUST(tegroup_activation_forward(&g, NULL, &error)); }},
                  {"SwiGLU backward" + of, 2 * bytes_of(f.input) + bytes_of(f.output), [&] { MUST(tegroup_activation_backward(&b, NULL, &error)); }},
                  {"SwiGLU interleaved backward" + of, 2 * bytes_of(f.input) + bytes_of(f.output), [&] { MUST(tegroup_activation_backward(&c, NULL, &error)); }},
                  {"validate" + of, bytes_of(f.output), [&] { MUST(tegroup_validate(&v, NULL, &error)); }}});
            release();
        }
    }
}

static void time_activations() {
    tegroup_error error;
    const struct { tegroup_activation kind; const char *name; } others[] = {
        {TEGROUP_ACTIVATION_GEGLU, "GEGLU"}, {TEGROUP_ACTIVATION_GEGLU_TANH, "GEGLU tanh"}, {TEGROUP_ACTIVATION_REGLU, "ReGLU"},
        {TEGROUP_ACTIVATION_SWIGLU_CLAMPED, "clamped SwiGLU"}, {TEGROUP_ACTIVATION_SWIGLU_LIMITED, "limited SwiGLU"}, {TEGROUP_ACTIVATION_SITU_GLU, "SiTU-GLU"}, {TEGROUP_ACTIVATION_SILU, "SiLU"}, {TEGROUP_ACTIVATION_GELU, "GELU"},
        {TEGROUP_ACTIVATION_GELU_TANH, "GELU tanh"}, {TEGROUP_ACTIVATION_RELU, "ReLU"}, {TEGROUP_ACTIVATION_RELU_SQUARED, "squared ReLU"}};
    for (const auto &other : others) {
        const int64_t rows = 32768, width = 7168, cols = other.kind <= TEGROUP_ACTIVATION_SITU_GLU ? 2 * width : width;
        auto f = desc<tegroup_activation_desc>();
        f.activation = other.kind;
        f.input = matrix(TEGROUP_DTYPE_BF16, rows, cols);
        f.output = matrix(TEGROUP_DTYPE_BF16, rows, width);
        f.row_scale = matrix(TEGROUP_DTYPE_F32, rows, 1);
        auto b = desc<tegroup_activation_backward_desc>();
        b.activation = f.activation;
        b.input = f.input;
        b.row_scale = f.row_scale;
        b.grad_output = f.output;
        b.grad_input = matrix(TEGROUP_DTYPE_BF16, rows, cols);
        b.grad_row_scale = matrix(TEGROUP_DTYPE_F32, rows, 1);
        const std::string of = " width " + std::to_string(width) + " BF16";
        race({{other.name + of, bytes_of(f.input) + bytes_of(f.output), [&] { MUST(tegroup_activation_forward(&f, NULL, &error)); }},
              {other.name + (" backward" + of), 2 * bytes_of(f.input) + bytes_of(f.output), [&] { MUST(tegroup_activation_backward(&b, NULL, &error)); }}});
        release();
    }
}

int main(int argc, char **argv) {
    const struct { const char *name; void (*run)(); } parts[] = {
        {"calls", time_small_calls}, {"router", time_router}, {"routing", time_routing}, {"permutation", time_permutation}, {"rows", time_rows}, {"activations", time_activations}};
    for (const auto &part : parts)
        if (argc < 2 || std::find(argv + 1, argv + argc, std::string(part.name)) != argv + argc) part.run();
    return 0;
}
