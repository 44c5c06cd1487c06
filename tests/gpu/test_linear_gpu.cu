/* The grouped linear layer on the GPU backends: every combination of tests/unit/linear.h against FP64, now, delayed on a second
 * stream, and captured with it, where the graph must hold kernels alone. */
#define TEGROUP_EXTERN
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "backends.h"
#include "graph.h"
#include "linear.h"
#include "test.h"

static tegroup_backend asked;
static cudaStream_t first, second;
static cudaEvent_t ready, done;

static tegroup_status steps(layer *l, const tegroup_linear_desc *desc, int delayed) {
    tegroup_linear_desc saved = delayed ? layer_saved(desc) : *desc;
    tegroup_status status = prepare_on_device(&l->f.a, first, &l->error);
    if (status == TEGROUP_OK && desc->out.dtype != TEGROUP_DTYPE_UNSET) status = tegroup_linear_forward(&l->plan, desc, first, &l->error);
    if (status == TEGROUP_OK && desc->dgrad_out.dtype != TEGROUP_DTYPE_UNSET) status = tegroup_linear_dgrad(&l->plan, desc, first, &l->error);
    if (!delayed) return status == TEGROUP_OK ? tegroup_linear_wgrad(&l->plan, &saved, first, &l->error) : status;
    MUST(cudaEventRecord(ready, first));
    MUST(cudaStreamWaitEvent(second, ready, 0));
    if (status == TEGROUP_OK) status = tegroup_linear_wgrad(&l->plan, &saved, second, &l->error);
    MUST(cudaEventRecord(done, second));
    MUST(cudaStreamWaitEvent(first, done, 0));
    return status;
}

/* Everything in device memory as it is on the host, and the descriptor of it. */
static tegroup_linear_desc layer_to_device(const layer *l) {
    tegroup_linear_desc desc = l->desc;
    tegroup_tensor *tensors[] = {&desc.weight, &desc.bias, &desc.input, &desc.out, &desc.grad_output, &desc.dgrad_out, &desc.main_grad, &desc.bias_grad, &desc.grad_row_scale};
    mirror_up(l->f.mark);
    for (int i = 0; i < 9; i++) tensor_to_device(tensors[i], 0);
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.row_scale = device_of(desc.row_scale);
    desc.gather_input.slot_of_row = (const int64_t *)device_of(desc.gather_input.slot_of_row);
    desc.gather_grad_output.slot_of_row = (const int64_t *)device_of(desc.gather_grad_output.slot_of_row);
    desc.options.backend = asked;
    desc.options.threads = 0;
    desc.options.workspace_bytes = l->plan.workspace_bytes;
    desc.options.workspace = workspace_of(desc.options.workspace_bytes);
    return desc;
}

static tegroup_status captured(layer *l, const tegroup_linear_desc *desc) {
    cudaGraph_t graph;
    cudaGraphExec_t step;
    MUST(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    tegroup_status status = steps(l, desc, 1);
    MUST(cudaStreamEndCapture(first, &graph));
    if (status == TEGROUP_OK && only_kernels(graph) == 0) status = TEGROUP_ERROR_CUDA;
    MUST(cudaGraphInstantiate(&step, graph, 0));
    if (status == TEGROUP_OK) MUST(cudaGraphLaunch(step, first));
    MUST(cudaStreamSynchronize(first));
    MUST(cudaGraphExecDestroy(step));
    MUST(cudaGraphDestroy(graph));
    return status;
}

static tegroup_status run_on_device(layer *l, int delayed) {
    tegroup_linear_desc desc = layer_to_device(l);
    tegroup_status status = tegroup_linear_plan_make(&desc, NULL, &l->plan, &l->error);
    if (status == TEGROUP_OK) {
        desc = layer_to_device(l); /* now with a workspace */
        status = steps(l, &desc, delayed != 0);
        MUST(cudaDeviceSynchronize());
    }
    if (status == TEGROUP_OK && delayed == 2) { /* kernels are loaded when they first run, so the capture comes second */
        desc = layer_to_device(l);
        status = captured(l, &desc);
    }
    MUST(cudaDeviceSynchronize());
    mirror_down();
    if (status == TEGROUP_OK && workspace_guards_changed() != 0) status = TEGROUP_ERROR_WORKSPACE;
    if (status != TEGROUP_OK) fprintf(stderr, "status %d: %s %s\n", (int)status, l->error.field, l->error.rule);
    return status;
}

static void streams_make(void) {
    if (first != NULL) return;
    MUST(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    MUST(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    MUST(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
}

static void every_combination(tegroup_backend backend, int aligned) {
    if (!backend_here(backend)) return;
    streams_make();
    asked = backend;
    can_gather = backend == TEGROUP_BACKEND_SM90 ? 7 : 0;
    const int sample = (int)scaled(1000), step = sample < 500 ? 1000 / sample - 1 : 1; /* few under tools */
    const int all = (3 * COMBINATIONS + step - 1) / step;
    int right = check_every_layer(3, aligned, step, 6101 + (uint64_t)backend, run_on_device);
    printf("%s: run %d/%d; %ld elements, error/bound at most %.3f\n", tegroup_backend_name(backend), right, all,
           (long)layers_elements, layers_worst);
    ASSERT_EQ(all, right);
}

TEST(linear_gpu, portable) { every_combination(TEGROUP_BACKEND_PORTABLE, 0); }
/* F32, with weights of F32 and narrower ones. */
TEST(linear_gpu, portable_f32) {
    if (!backend_here(TEGROUP_BACKEND_PORTABLE)) return;
    rng r = rng_seed(6111);
    streams_make();
    asked = TEGROUP_BACKEND_AUTO; /* which has no other */
    for (int i = (int)scaled(180); i > 0; i--) {
        choice c = {i & 1, i % 3, i % 3, i / 3 % 3, 1 + i / 9 % 3, i % ROUTINGS, (tegroup_tail)(i / 4 % 3)};
        ASSERT_STREQ("", check_layer(&c, TEGROUP_DTYPE_F32, 0, &r, run_on_device));
    }
}
TEST(linear_gpu, sm90) { every_combination(TEGROUP_BACKEND_SM90, 1); }

TEST_MAIN()
