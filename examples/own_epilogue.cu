/* nvcc -t 0 -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90a,code=sm_90a -I. examples/own_epilogue.cu -o own_epilogue && ./own_epilogue */
#include <math.h>
#include <cuda_bf16.h>
#define TEGROUP_NO_F16 /* the six leave out kernels that this page does not run, as in quickstart.cu */
#define TEGROUP_NO_BACKWARD
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_NO_EP
#define TEGROUP_NO_FP8
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include "check.h"

enum { GROUPS = 6, CAPACITY = 300, K = 264, N = 136 };

/* What tegroup has not: a bias, a floor, and the probability of the row, of which the sign is kept for the backward pass. */
struct floored {
    const float *bias;        /* [groups][n] */
    const float *probability; /* [rows] */
    unsigned char *above;     /* [rows][n]: 1 where the floor was not reached */
    float floor;
    __device__ float operator()(float x, const tegroup_element &at) const {
        const float y = x + bias[at.group * N + at.col];
        above[at.row * N + at.col] = y > floor;
        return probability[at.row] * fmaxf(y, floor);
    }
};
struct identity {
    __device__ float operator()(float x, const tegroup_element &) const { return x; }
};

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != 0) return failed(#call);                                                                         \
    } while (0)
static tegroup_error error;
static int failed(const char *call) {
    char text[256];
    tegroup_error_text(&error, text, sizeof text);
    printf("%s failed: %s\n", call, text);
    return 1;
}

struct buffers {
    __nv_bfloat16 *x, *w;
    float *bias, *probability;
    unsigned char *above;
    void *memory, *snapshot; /* y between guard bands, and its routing */
    int64_t *counts;
};

/* Y must be what the functor says of the FP64 product, of as many rows as are owned, and all else as it was. */
static int right(const buffers &b, const floored &f, const int64_t *owned) {
    static double want[CAPACITY * N], size[CAPACITY * N];
    const unsigned char *y = (unsigned char *)b.memory + CHECK_BAND_BYTES;
    const size_t row_bytes = N * sizeof(__nv_bfloat16);
    check_result result = {};
    int64_t start = 0;
    for (int g = 0; g < GROUPS; start += owned[g++]) {
        check_product(TEGROUP_OP_FORWARD, owned[g], N, K, TEGROUP_DTYPE_BF16, b.x + start * K, K, b.w + g * N * K, K, want, size);
        for (int64_t e = 0; e < owned[g] * N; e++) {
            const int64_t row = start + e / N;
            const double bias = b.bias[g * N + e % N], p = b.probability[row], sum = want[e] + bias,
                         near = check_bound(K + 4, 0x1p-23, size[e] + fabs(bias), TEGROUP_DTYPE_F32, sum),
                         wanted = p * fmax(sum, f.floor);
            check_element(&result, g, row - start, e % N, check_load(TEGROUP_DTYPE_BF16, y, row * N + e % N), wanted,
                          fabs(p) * near + check_bound(0, 0, 0, TEGROUP_DTYPE_BF16, wanted));
            if (fabs(sum - f.floor) > near) /* else it may be either */
                check_element(&result, g, row - start, e % N, b.above[row * N + e % N], sum > f.floor, 0);
        }
    }
    int64_t beyond = check_bands_changed(y, CAPACITY * row_bytes, NULL);
    for (size_t i = (size_t)start * row_bytes; i < CAPACITY * row_bytes; i++) beyond += y[i] != check_poison_byte(i);
    printf("%lld rows, %lld bytes written that no group owns; ", (long long)start, (long long)beyond);
    return (check_report(&result, "floored") || start == 0) & (beyond == 0);
}

/* One captured graph of prepare and product, replayed with sizes that are honest, lie, and are none. */
static int replays(tegroup_gemm_desc gemm, const buffers &b, size_t snapshot_bytes) {
    static const int64_t said[][GROUPS] = {{-3, 0, INT64_MAX, 5, 150, 1}, {0, 0, 0, 0, 0, 0}, {70, 0, 1, 129, 17, 60}};
    static const int64_t owned[][GROUPS] = {{0, 0, CAPACITY, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {70, 0, 1, 129, 17, 60}};
    const floored f = {b.bias, b.probability, b.above, -0.25f};
    tegroup_shape rows = gemm.a.shape;
    tegroup_plan plan;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    int wrong = 0;
    gemm.functor = 1;
    MUST(tegroup_plan_make(&gemm, NULL, &plan, &error)); /* what no backend can do is refused here */
    MUST((tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, floored>(&plan, &error)));
    MUST(cudaStreamCreate(&stream));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    MUST(tegroup_shape_prepare(&rows, b.snapshot, snapshot_bytes, stream, &error));
    MUST(tegroup_gemm_with(&plan, &gemm, f, stream, &error));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < 3; i++) {
        memcpy(b.counts, said[i], sizeof *said);
        check_guard(b.memory, CAPACITY * N * sizeof(__nv_bfloat16));
        MUST(cudaGraphLaunch(replay, stream));
        MUST(cudaStreamSynchronize(stream));
        printf("%s, ", tegroup_backend_name(plan.backend));
        wrong += !right(b, f, owned[i]);
    }
    return wrong > 0;
}

/* Under an identity the bits are those of the product without a functor. */
static int changes_nothing(tegroup_gemm_desc gemm, const buffers &b) {
    static unsigned char plain[CAPACITY * N * sizeof(__nv_bfloat16)];
    tegroup_plan plan, with;
    MUST(tegroup_plan_make(&gemm, NULL, &plan, &error));
    MUST(tegroup_gemm(&plan, &gemm, NULL, &error));
    MUST(cudaDeviceSynchronize());
    memcpy(plain, gemm.d.data, sizeof plain);
    check_poison(gemm.d.data, sizeof plain);
    gemm.functor = 1;
    MUST(tegroup_plan_make(&gemm, NULL, &with, &error));
    MUST((tegroup_plan_with<TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, identity>(&with, &error)));
    MUST(tegroup_gemm_with(&with, &gemm, identity(), NULL, &error));
    MUST(cudaDeviceSynchronize());
    const int same = memcmp(plain, gemm.d.data, sizeof plain) == 0;
    printf("%s, identity: %s bits\n", tegroup_backend_name(with.backend), same ? "the same" : "other");
    return !same;
}

int main() {
    const tegroup_backend backends[] = {TEGROUP_BACKEND_PORTABLE, TEGROUP_BACKEND_SM90};
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
    tegroup_layout layout;
    buffers b;
    int wrong = 0, ran = 0;
    MUST(cudaMallocManaged(&b.x, CAPACITY * K * sizeof *b.x)); /* managed: this page need not copy */
    MUST(cudaMallocManaged(&b.w, GROUPS * N * K * sizeof *b.w));
    MUST(cudaMallocManaged(&b.bias, GROUPS * N * sizeof *b.bias));
    MUST(cudaMallocManaged(&b.probability, CAPACITY * sizeof *b.probability));
    MUST(cudaMallocManaged(&b.above, CAPACITY * N));
    MUST(cudaMallocManaged(&b.memory, check_room(CAPACITY * N * sizeof(__nv_bfloat16))));
    MUST(cudaMallocManaged(&b.counts, GROUPS * sizeof *b.counts));
    for (int i = 0; i < CAPACITY * K; i++) b.x[i] = __float2bfloat16((i * 37 % 101 - 50) / 64.0f);
    for (int i = 0; i < GROUPS * N * K; i++) b.w[i] = __float2bfloat16((i * 53 % 97 - 48) / 512.0f);
    for (int i = 0; i < GROUPS * N; i++) b.bias[i] = (i * 29 % 61 - 30) / 64.0f;
    for (int i = 0; i < CAPACITY; i++) b.probability[i] = (i * 7 % 13 + 1) / 13.0f;

    tegroup_shape rows =
        tegroup_shape_of(GROUPS, CAPACITY, K, tegroup_sizes_of(b.counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    tegroup_gemm_desc gemm = {sizeof gemm, TEGROUP_OP_FORWARD, TEGROUP_SPACE_DEVICE};
    MUST(tegroup_snapshot_layout(&rows, &layout, &error));
    MUST(cudaMallocManaged(&b.snapshot, layout.total_bytes));
    rows.snapshot = b.snapshot;
    gemm.a = tegroup_tensor_of(rows, K, TEGROUP_DTYPE_BF16, b.x);
    gemm.b = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_BF16, b.w);
    gemm.d = tegroup_tensor_of(rows, N, TEGROUP_DTYPE_BF16, (char *)b.memory + CHECK_BAND_BYTES);
    gemm.functor = 1;
    MUST(tegroup_explain(&gemm, NULL, verdicts, &error));
    gemm.functor = 0;
    for (tegroup_backend backend : backends)
        for (const tegroup_verdict &v : verdicts) {
            if (v.backend != backend) continue;
            gemm.options.backend = backend;
            if (v.status != TEGROUP_OK) printf("%s: %s %s\n", tegroup_backend_name(backend), v.field, v.rule);
            else ran++, wrong += replays(gemm, b, layout.total_bytes), wrong += changes_nothing(gemm, b);
        }
    return wrong > 0 || ran == 0;
}
