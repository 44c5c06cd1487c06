/* nvcc -arch=compute_80 -I. examples/own_kernel.cu -o own_kernel && ./own_kernel */
#include <math.h>
#define TEGROUP_NO_SM90 /* this page has a kernel of its own, and takes from tegroup the routing alone */
#define TEGROUP_NO_PORTABLE
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
#define TEGROUP_NO_EP
#define TEGROUP_NO_FP8
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include "check.h"

/* ---- the kernel: Y = X W^T and dW = dY^T X, in F32 ---- */

enum { SIDE = 16 }; /* a tile, and a step along what is summed over; a thread for each element */

/* FORWARD: a [rows, k], b [groups, n, k], d [rows, n]; WGRAD: a [rows, m], b [rows, n], d [groups, m, n]. */
template <tegroup_op OP>
static __global__ void multiply(const __grid_constant__ tegroup_tiles tiles, const float *a, const float *b, float *d,
                                int64_t k) {
    constexpr bool WGRAD = OP == TEGROUP_OP_WGRAD;
    __shared__ tegroup_tile_walk walk;
    __shared__ float left[SIDE][SIDE + 1], right[SIDE][SIDE + 1]; /* [line][k] */
    const int x = threadIdx.x, y = threadIdx.y;
    tegroup_tile tile;
    for (int32_t round = 0; tegroup_tile_take(&walk, &tiles, round, &tile); round++) {
        const int64_t count = WGRAD ? tile.group_rows : k; /* clamped: whatever the sizes say, no row is read past them */
        float sum = 0;
        for (int64_t q = 0; q < count; q += SIDE) {
            if (WGRAD) { /* rows of both operands run along what is summed over */
                const bool there = q + y < count;
                const int64_t row = tile.start + q + y;
                left[x][y] = there && x < tile.rows ? a[row * tiles.m + tile.row + x] : 0;
                right[x][y] = there && x < tile.cols ? b[row * tiles.n + tile.col + x] : 0;
            } else {
                const bool there = q + x < count;
                left[y][x] = there && y < tile.rows ? a[(tile.start + tile.row + y) * k + q + x] : 0;
                right[y][x] = there && y < tile.cols ? b[(tile.group * tiles.n + tile.col + y) * k + q + x] : 0;
            }
            __syncthreads();
            for (int s = 0; s < SIDE; s++) sum += left[y][s] * right[x][s];
            __syncthreads(); /* the next step overwrites both */
        }
        if (y < tile.rows && x < tile.cols)
            d[((WGRAD ? tile.group * tiles.m : tile.start) + tile.row + y) * tiles.n + tile.col + x] = sum;
    }
}

/* ---- and how it is tested ---- */

enum { GROUPS = 5, CAPACITY = 200, K = 70, N = 45 };
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != 0) return printf("%s failed\n", #call), 1;                                                       \
    } while (0)

/* What both products must be for these rows, and everything else as it was. */
static int right(const char *what, const int64_t *rows, const float *x, const float *w, const float *y, const float *dw) {
    static double want[CAPACITY * N], size[CAPACITY * N], want_dw[N * K], size_dw[N * K];
    check_result forward = {}, wgrad = {};
    int64_t start = 0, first = 0;
    for (int g = 0; g < GROUPS; start += rows[g++]) {
        check_product(TEGROUP_OP_FORWARD, rows[g], N, K, TEGROUP_DTYPE_F32, x + start * K, K, w + g * N * K, K, want, size);
        for (int64_t e = 0; e < rows[g] * N; e++)
            check_element(&forward, g, e / N, e % N, y[start * N + e], want[e], check_bound(K, 0x1p-24, size[e], TEGROUP_DTYPE_F32, want[e]));
        check_product(TEGROUP_OP_WGRAD, N, K, rows[g], TEGROUP_DTYPE_F32, y + start * N, N, x + start * K, K, want_dw, size_dw);
        for (int64_t e = 0; e < N * K; e++)
            check_element(&wgrad, g, e / K, e % K, dw[g * N * K + e], want_dw[e], check_bound(rows[g], 0x1p-24, size_dw[e], TEGROUP_DTYPE_F32, want_dw[e]));
    }
    int64_t beyond = check_bands_changed(y, CAPACITY * N * sizeof *y, &first) + check_bands_changed(dw, GROUPS * N * K * sizeof *dw, &first);
    for (int64_t e = start * N; e < CAPACITY * N; e++) beyond += !isnan(y[e]);
    printf("%s: %lld rows; %lld places written that no group owns\n", what, (long long)start, (long long)beyond);
    return (start == 0 || check_report(&forward, "  forward")) & check_report(&wgrad, "  wgrad") & (beyond == 0);
}

int main() {
    /* What a router might say, and what none should: the second row lies, and its groups are cut at the buffer's end. */
    static const int64_t said[][GROUPS] = {{64, 0, 1, 100, 17}, {-3, 0, INT64_MAX, 5, 150}, {0, 0, 0, 0, 0}, {1, 150, 0, 3, 46}};
    static const int64_t owned[][GROUPS] = {{64, 0, 1, 100, 17}, {0, 0, CAPACITY, 0, 0}, {0, 0, 0, 0, 0}, {1, 150, 0, 3, 46}};
    const size_t y_bytes = CAPACITY * N * sizeof(float), dw_bytes = GROUPS * N * K * sizeof(float);
    float *x, *w;
    void *y_memory, *dw_memory, *snapshot;
    int64_t *counts;
    tegroup_layout layout;
    tegroup_tiles forward, wgrad;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    int wrong = 0;
    MUST(cudaMallocManaged(&x, CAPACITY * K * sizeof *x)); /* managed: this page need not copy */
    MUST(cudaMallocManaged(&w, GROUPS * N * K * sizeof *w));
    MUST(cudaMallocManaged(&y_memory, check_room(y_bytes)));
    MUST(cudaMallocManaged(&dw_memory, check_room(dw_bytes)));
    MUST(cudaMallocManaged(&counts, GROUPS * sizeof *counts));
    for (int i = 0; i < CAPACITY * K; i++) x[i] = (i * 37 % 101 - 50) / 64.0f;
    for (int i = 0; i < GROUPS * N * K; i++) w[i] = (i * 53 % 97 - 48) / 64.0f;
    float *y = (float *)check_guard(y_memory, y_bytes), *dw = (float *)check_guard(dw_memory, dw_bytes);

    tegroup_shape rows = tegroup_shape_of(GROUPS, CAPACITY, K, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    MUST(tegroup_snapshot_layout(&rows, &layout, NULL));
    MUST(cudaMallocManaged(&snapshot, layout.total_bytes));
    MUST(cudaStreamCreate(&stream));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    MUST(tegroup_shape_prepare(&rows, snapshot, layout.total_bytes, stream, NULL));
    MUST(tegroup_tiles_of(TEGROUP_OP_FORWARD, &rows, 0, N, SIDE, SIDE, &forward, NULL));
    MUST(tegroup_tiles_of(TEGROUP_OP_WGRAD, &rows, N, K, SIDE, SIDE, &wgrad, NULL));
    multiply<TEGROUP_OP_FORWARD><<<60, dim3(SIDE, SIDE), 0, stream>>>(forward, x, w, y, K); /* any grid */
    multiply<TEGROUP_OP_WGRAD><<<60, dim3(SIDE, SIDE), 0, stream>>>(wgrad, y, x, dw, 0);
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < (int)(sizeof said / sizeof *said); i++) { /* one graph, whatever the sizes */
        memcpy(counts, said[i], sizeof *said);
        check_guard(y_memory, y_bytes);
        check_guard(dw_memory, dw_bytes);
        MUST(cudaGraphLaunch(replay, stream));
        MUST(cudaStreamSynchronize(stream));
        wrong += !right("replay", owned[i], x, w, y, dw);
    }
    return wrong > 0;
}
