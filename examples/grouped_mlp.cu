/* nvcc -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90a,code=sm_90a -I. examples/grouped_mlp.cu -o grouped_mlp && ./grouped_mlp */

/* A grouped MLP, forward and backward, in a CUDA graph: every buffer is the caller's, the weights' gradients are computed on a
 * second stream, added to FP32 main_grad, and the graph is replayed with another routing each time. The CPU does the same
 * by the same descriptor, and must agree in every bit: ReGLU keeps numbers so small exact wherever they are summed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cuda_bf16.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

enum { EXPERTS = 8, ROWS = 256, K = 64, H = 96, N = 72, STEPS = 3, MOST = 32 };

static tegroup_error error; static char text[2048];

#define MUST(call) /* of CUDA and of tegroup alike: 0 is fine */ \
    do { int code = (int)(call); if (code) { tegroup_error_text(&error, text, sizeof text); \
         printf("%s gave %d; tegroup: %s\n", #call, code, text); exit(1); } } while (0)

/* Managed, so that this page need not copy and the CPU can have the same; a program would use cudaMalloc. */
static void *memory(size_t bytes) {
    void *p;
    MUST(cudaMallocManaged(&p, bytes + 1));
    memset(p, 0, bytes + 1);
    return p;
}

static void *integers(int64_t count, int seed, int most) { /* -most to most, BF16 */
    __nv_bfloat16 *x = (__nv_bfloat16 *)memory(sizeof *x * count);
    for (unsigned i = 0, h; i < count; i++) { h = (i + seed * 40503u) * 2654435761u; h = (h ^ h >> 15) * 2246822519u;
        x[i] = __float2bfloat16((float)((int)(h >> 8) % (2 * most + 1) - most)); }
    return x;
}

/* One of each expert, and rows of the routing, in memory of their own where no data are given. */
static tegroup_tensor each(int64_t rows, int64_t cols, tegroup_dtype dtype, void *data) {
    if (!data) data = memory((size_t)(EXPERTS * rows * cols) * (size_t)tegroup_dtype_bits(dtype) / 8);
    return tegroup_tensor_uniform(EXPERTS, rows, cols, dtype, data);
}
static tegroup_tensor routed(tegroup_shape rows, int64_t cols, tegroup_dtype dtype, void *data) {
    if (!data) data = memory((size_t)(ROWS * cols) * (size_t)tegroup_dtype_bits(dtype) / 8);
    return tegroup_tensor_of(rows, cols, dtype, data);
}

/* One machine's copy of everything. */
struct machine {
    tegroup_mlp_desc mlp;
    tegroup_mlp_plan plan;
    tegroup_shape rows;
    tegroup_layout layout; /* of snapshot */
    int64_t *counts;
    void *snapshot, *wgrad_workspace;
};

static void make(machine *m, tegroup_space space) {
    const tegroup_dtype bf16 = TEGROUP_DTYPE_BF16, f32 = TEGROUP_DTYPE_F32;
    memset(m, 0, sizeof *m);
    m->counts = (int64_t *)memory(sizeof(int64_t) * EXPERTS);
    m->rows = tegroup_shape_of(EXPERTS, ROWS, K, tegroup_sizes_of(m->counts, TEGROUP_DTYPE_I64, space));
    MUST(tegroup_snapshot_layout(&m->rows, &m->layout, &error));
    m->rows.snapshot = m->snapshot = memory(m->layout.total_bytes); /* prepared in each step, at the same address */

    /* 1. describe: weights, gradients, rows, and what lives from forward to backward */
    tegroup_mlp_desc *d = &m->mlp;
    d->struct_size = sizeof *d;
    d->space = space;
    d->activation = TEGROUP_ACTIVATION_REGLU; /* gate and up: fc1 gives 2 H columns */
    d->fc1.weight = each(2 * H, K, bf16, integers(EXPERTS * 2 * H * K, 1, 1));
    d->fc1.bias = each(1, 2 * H, bf16, integers(EXPERTS * 2 * H, 2, 3));
    d->fc2.weight = each(N, H, bf16, integers(EXPERTS * N * H, 3, 1));
    d->fc1.main_grad = each(2 * H, K, f32, NULL);
    d->fc1.bias_grad = each(1, 2 * H, f32, NULL);
    d->fc2.main_grad = each(N, H, f32, NULL);
    d->accumulate = 1;
    d->input = routed(m->rows, K, bf16, integers(ROWS * K, 4, 1));
    d->out = routed(m->rows, N, f32, NULL);
    d->grad_output = routed(m->rows, N, bf16, integers(ROWS * N, 5, 1));
    d->dgrad_out = routed(m->rows, K, f32, NULL);
    d->preactivation = routed(m->rows, 2 * H, bf16, NULL);
    d->grad_preactivation = d->preactivation; /* in place: dgrad uses it up */
    d->activated = routed(m->rows, H, bf16, NULL);
    d->recompute = 1; /* forward keeps preactivation alone; dgrad fills activated in for wgrad */
    d->grad_row_scale = routed(m->rows, 1, f32, NULL);
    float *probability = (float *)memory(sizeof(float) * ROWS);
    for (int i = 0; i < ROWS; i++) probability[i] = i % 3 ? 0.5f : 0.25f;
    d->row_scale = probability;
    d->row_scale_dtype = f32;

    /* 2. plan, once: the products' backends, the workspaces, and what is saved, in bytes */
    MUST(tegroup_mlp_plan_make(d, NULL, &m->plan, &error));
    d->options.workspace_bytes = m->plan.workspace_bytes;
    d->options.workspace = memory(d->options.workspace_bytes);
    m->wgrad_workspace = memory(m->plan.wgrad_workspace_bytes); /* of its own: wgrad runs beside other calls */
}

/* 3. a step: on the second stream the weights' gradients, while the first goes on to the layer below */
static void step(machine *m, cudaStream_t first, cudaStream_t second, cudaEvent_t fork, cudaEvent_t join) {
    tegroup_mlp_desc saved;
    MUST(tegroup_shape_prepare(&m->rows, m->snapshot, m->layout.total_bytes, first, &error));
    MUST(tegroup_mlp_forward(&m->plan, &m->mlp, first, &error));
    MUST(tegroup_mlp_dgrad(&m->plan, &m->mlp, first, &error));
    saved = m->mlp; /* plain buffers: all that wgrad needs, now or at any later time */
    saved.options.workspace = m->wgrad_workspace;
    saved.options.workspace_bytes = m->plan.wgrad_workspace_bytes;
    if (first) MUST(cudaEventRecord(fork, first));
    if (first) MUST(cudaStreamWaitEvent(second, fork, 0));
    MUST(tegroup_mlp_wgrad(&m->plan, &saved, second, &error));
    if (first) MUST(cudaEventRecord(join, second));
    if (first) MUST(cudaStreamWaitEvent(first, join, 0));
}

int main() {
    machine *gpu = new machine, *cpu = new machine;
    cudaStream_t first, second; cudaEvent_t fork, join; cudaGraph_t graph; cudaGraphExec_t replay;
    MUST(cudaStreamCreate(&first)); MUST(cudaStreamCreate(&second)); MUST(cudaEventCreate(&fork)); MUST(cudaEventCreate(&join));
    make(gpu, TEGROUP_SPACE_DEVICE);
    make(cpu, TEGROUP_SPACE_HOST);
    const struct { const char *name; tegroup_mlp_memory of; } memories[] = {
        {"saved by forward", TEGROUP_MLP_SAVED_BY_FORWARD}, {"saved by dgrad", TEGROUP_MLP_SAVED_BY_DGRAD}, {"workspace", TEGROUP_MLP_WORKSPACE}};
    for (int i = 0; i < 3; i++) {
        tegroup_layout layout;
        MUST(tegroup_mlp_layout(&gpu->plan, memories[i].of, &layout, &error));
        tegroup_layout_text(&layout, text, sizeof text), printf("%s\n%s\n", memories[i].name, text);
    }

    step(gpu, first, second, fork, join); MUST(cudaStreamSynchronize(first)); /* no rows yet: loads the kernels */
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    step(gpu, first, second, fork, join);
    MUST(cudaStreamEndCapture(first, &graph)); MUST(cudaGraphInstantiate(&replay, graph, 0));
    for (int s = 0; s < STEPS; s++) {
        for (int e = 0; e < EXPERTS; e++) gpu->counts[e] = cpu->counts[e] = (e * 13 + s * 7) % (MOST + 1);
        MUST(cudaGraphLaunch(replay, first));
        MUST(cudaStreamSynchronize(first));
        step(cpu, NULL, NULL, NULL, NULL);
    }
    const tegroup_tensor *results[2][6];
    for (int i = 0; i < 2; i++) {
        const tegroup_mlp_desc *d = i ? &cpu->mlp : &gpu->mlp;
        const tegroup_tensor *all[6] = {&d->out, &d->dgrad_out, &d->grad_row_scale, &d->fc1.main_grad, &d->fc1.bias_grad, &d->fc2.main_grad};
        memcpy(results[i], all, sizeof all);
    }
    int64_t differ = 0, count = 0;
    for (int i = 0; i < 6; i++)
        for (int64_t j = (i < 3 ? 1 : EXPERTS) * results[0][i]->shape.rows * results[0][i]->shape.cols; j-- > 0; count++)
            differ += !(((float *)results[0][i]->data)[j] == ((float *)results[1][i]->data)[j]);
    printf("%s and %s: %ld of %ld numbers differ; Y[0][0] = %g, dW1[0][0] = %g\n", tegroup_backend_name(gpu->plan.fc1.forward.backend),
           tegroup_backend_name(cpu->plan.fc1.forward.backend), (long)differ, (long)count, ((float *)gpu->mlp.out.data)[0], ((float *)gpu->mlp.fc1.main_grad.data)[0]);
    return differ != 0;
}
