/* The cuBLASLt backends on a GPU: set-up arrays against the host bit for bit, products against an FP64 reference, graphs,
 * tuning, saved plans. It adapts to the cuBLASLt that is loaded: one without a grouped matmul must be refused by version. */
#define TEGROUP_IMPLEMENTATION
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "mirror.h"
#include "test.h"
#include <chrono>
#include <cublasLt.h>

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
static const tegroup_backend grouped = TEGROUP_BACKEND_CUBLASLT_GROUPED, loop = TEGROUP_BACKEND_CUBLASLT_LOOP;
/* What the comparisons of a test add to, until it prints them: error / bound; problems for which the library has no kernel; plans
 * that use more than 16 bytes of alignment. */
static struct { double worst; int64_t problems, refused, aligned; } totals;

static void print_totals(const char *what) {
    printf("%s: cuBLAS %d, %ld problems, error/bound at most %.3f; the library offers nothing for %ld\n", what, (int)cublasLtGetVersion(), (long)totals.problems, totals.worst, (long)totals.refused);
    memset(&totals, 0, sizeof totals);
}

static cublasLtHandle_t handle(void) {
    static cublasLtHandle_t one;
    if (one == NULL && cublasLtCreate(&one) != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "cublasLtCreate fails\n");
        exit(1);
    }
    return one;
}

/* Is cublaslt_grouped to be expected here, with every feature that the problems use? Scalars of each group are refused elsewhere. */
static int has_grouped(void) {
    const char *wanted = getenv("TEGROUP_TEST_BACKENDS"); /* see backends.h */
    int device, major;
    if (wanted != NULL && strstr(wanted, "cublaslt_grouped") == NULL) return 0;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    return major == 9 && cublasLtGetVersion() >= 131000;
}

/* A workspace with canaries behind it. */
static unsigned char *workspace;
static const size_t workspace_most = (size_t)160 << 20;
static void workspace_give(tegroup_gemm_desc *desc, const tegroup_plan *plan) {
    if (workspace == NULL) MUST(cudaMalloc((void **)&workspace, workspace_most + 4096));
    if (plan->workspace_bytes > workspace_most) exit(1);
    desc->options.workspace = workspace;
    desc->options.workspace_bytes = plan->workspace_bytes;
    MUST(cudaMemset(workspace + desc->options.workspace_bytes, 0xA5, 4096));
}
static int64_t workspace_overrun(const tegroup_gemm_desc *desc) {
    unsigned char behind[4096];
    int64_t changed = 0;
    MUST(cudaMemcpy(behind, workspace + desc->options.workspace_bytes, sizeof behind, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < sizeof behind; i++) changed += behind[i] != 0xA5;
    return changed;
}

/* A list of device addresses in host memory, for the backend that reads lists there. */
static void list_to_host(tegroup_tensor *t, const tegroup_tensor *host) {
    if (host->dtype == TEGROUP_DTYPE_UNSET) return;
    t->data = device_of(host->data);
    if (host->pointers_space == TEGROUP_SPACE_UNSET) return;
    void **list = (void **)scratch((size_t)t->shape.groups * sizeof(void *));
    for (int32_t g = 0; g < t->shape.groups; g++) list[g] = device_of(host->pointers[g]);
    t->pointers = list;
}
/* Operands in device memory, sizes and snapshots on the host. */
static tegroup_gemm_desc desc_to_loop(const tegroup_gemm_desc *host) {
    tegroup_gemm_desc desc = *host;
    desc.space = TEGROUP_SPACE_DEVICE;
    list_to_host(&desc.a, &host->a);
    list_to_host(&desc.b, &host->b);
    list_to_host(&desc.d, &host->d);
    list_to_host(&desc.c, &host->c);
    if (host->c.dtype != TEGROUP_DTYPE_UNSET && host->c.pointers == host->d.pointers) desc.c.pointers = desc.d.pointers;
    desc.options.workspace = NULL;
    desc.options.workspace_bytes = 0;
    return desc;
}
static void scalars_anywhere(tegroup_gemm_desc *desc, const tegroup_gemm_desc *host, rng *r) {
    if (!rng_chance(r, 40)) return; /* what is on the device, is there with both or by one number */
    if (host->alpha.space != TEGROUP_SPACE_UNSET) { desc->alpha = host->alpha; desc->alpha.space = TEGROUP_SPACE_DEVICE; desc->alpha.data = device_of(host->alpha.data); }
    if (host->beta.space != TEGROUP_SPACE_UNSET) { desc->beta = host->beta; desc->beta.space = TEGROUP_SPACE_DEVICE; desc->beta.data = device_of(host->beta.data); }
}

enum { STREAMS = 3 };
static cudaStream_t streams[STREAMS];
static cudaEvent_t events[STREAMS + 1];
static void streams_give(tegroup_gemm_desc *desc, int32_t count) {
    for (int i = 0; i <= STREAMS; i++) {
        if (i < STREAMS && streams[i] == NULL) MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        if (events[i] == NULL) MUST(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
    }
    desc->options.stream_count = count;
    desc->options.streams = streams;
    desc->options.events = events;
}

static void print_error(const char *what, const tegroup_error *error) {
    char text[512];
    tegroup_error_text(error, text, sizeof text);
    fprintf(stderr, "%s: %s, native %d\n", what, text, error->native);
}

/* Bytes that every address of a, b, c, d is a multiple of, at most `most`. */
static int32_t alignment_of(const tegroup_gemm_desc *host, int32_t most) {
    const tegroup_tensor *tensors[] = {&host->a, &host->b, &host->c, &host->d};
    uintptr_t all = (uintptr_t)most;
    for (const tegroup_tensor *t : tensors) {
        if (t->dtype == TEGROUP_DTYPE_UNSET) continue;
        if (t->pointers_space == TEGROUP_SPACE_UNSET) all |= (uintptr_t)device_of(t->data);
        for (int32_t g = 0; t->pointers_space != TEGROUP_SPACE_UNSET && g < t->shape.groups; g++) all |= (uintptr_t)device_of(t->pointers[g]);
    }
    return (int32_t)(all & -all);
}

static const char *run_and_check(const spec *s, tegroup_backend backend, rng *r) {
    static char message[600];
    problem p;
    message[0] = 0;
    problem_make(&p, s);
    p.s.rounds_product = backend == loop; /* as kernels of cuBLASLt for two-byte results do */
    problem_reference(&p);
    tegroup_status status = problem_prepare(&p); /* the host's snapshots: the loop reads them, the others make their own */
    mirror_up(p.mark);
    tegroup_gemm_desc desc = backend == loop ? desc_to_loop(&p.desc) : desc_to_device(&p.desc);
    scalars_anywhere(&desc, &p.desc, r);
    desc.options.backend = backend;
    desc.options.cublaslt = handle();
    if (backend == loop) streams_give(&desc, (int32_t)rng_int(r, 0, STREAMS));
    if (backend == grouped && rng_chance(r, 60)) desc.options.data_alignment_bytes = alignment_of(&p.desc, 16 << rng_int(r, 0, 4));
    if (status == TEGROUP_OK) status = tegroup_plan_make(&desc, NULL, &p.plan, &p.error);
    if (status == TEGROUP_OK && backend == grouped) totals.aligned += tegroup_impl_lt_plan_of(&p.plan).alignment > 16;
    if (status == TEGROUP_OK) workspace_give(&desc, &p.plan);
    if (status == TEGROUP_OK && backend != loop) status = problem_prepare_on_device(&p, NULL);
    if (status == TEGROUP_OK) status = tegroup_gemm(&p.plan, &desc, NULL, &p.error);
    cudaError_t code = cudaDeviceSynchronize();
    if (code != cudaSuccess) {
        snprintf(message, sizeof message, "CUDA: %s", cudaGetErrorString(code));
    } else if (backend == loop && status == TEGROUP_ERROR_UNSUPPORTED && strcmp(p.error.field, "options.backend") == 0) {
        totals.refused++; /* the library says that it has nothing, as 13.10 without kernels for older GPUs for two-byte operands into FP32 */
    } else if (status != TEGROUP_OK) {
        snprintf(message, sizeof message, "refused: %s %s (expected %ld, got %ld, native %d)", p.error.field, p.error.rule, (long)p.error.expected, (long)p.error.got, p.error.native);
    } else {
        int64_t overrun = workspace_overrun(&desc);
        mirror_down();
        verdict v = problem_compare(&p);
        int64_t changed = guards_changed(), disturbed = problem_disturbed(&p);
        totals.worst = v.worst > totals.worst ? v.worst : totals.worst;
        totals.problems++;
        if (!(v.worst <= 1)) snprintf(message, sizeof message, "error/bound %g", v.worst);
        else if (p.s.out == TEGROUP_DTYPE_F32 && !gate_holds(v)) snprintf(message, sizeof message, "99.9th percentile of error/bound is not below 1/4");
        else if (changed != 0) snprintf(message, sizeof message, "guard bytes changed");
        else if (disturbed != 0) snprintf(message, sizeof message, "%ld bytes changed that are not the result's", (long)disturbed);
        else if (overrun != 0) snprintf(message, sizeof message, "bytes changed behind the workspace");
    }
    if (message[0] != 0) {
        fprintf(stderr, "%s: %s op %d groups %d n %ld k %ld each %ld encoding %d place %d pack %d ng %d kg %d in %d out %d pad %ld lists %d alpha %d/%d beta %d/%d c %d seed %llu\n", tegroup_backend_name(backend),
                message, (int)s->op, s->groups, (long)s->n, (long)s->k, (long)s->rows_each, (int)s->encoding, (int)s->place, (int)s->pack, s->ng != NULL, s->kg != NULL, (int)s->in,
                (int)s->out, (long)s->pad, s->lists, s->alpha, (int)desc.alpha.space, s->beta, (int)desc.beta.space, (int)s->c, (unsigned long long)s->seed);
        for (int32_t g = 0; g < s->groups; g++) fprintf(stderr, "  group %d: m %ld n %ld k %ld\n", g, (long)(s->m ? s->m[g] : s->rows_each), (long)group_n(s, g), (long)group_k(s, g));
        if (code != cudaSuccess) exit(1); /* nothing runs after that */
    }
    problem_release(&p);
    return message;
}

TEST(cublaslt, grouped_random_problems) {
    rng r = rng_seed(8001);
    if (!has_grouped()) { printf("cublaslt_grouped is not in cuBLAS %d on this GPU\n", (int)cublasLtGetVersion()); return; }
    for (int64_t i = scaled(2000); i > 0; i--) {
        void *mark = guards_mark();
        spec s = random_half_spec(&r, ops[i % 3], 60, 90, 1);
        ASSERT_STREQ("", run_and_check(&s, grouped, &r));
        guards_release(mark);
    }
    if (scaled(2000) == 2000) ASSERT_GT(totals.aligned, 0);
    print_totals("grouped");
}

TEST(cublaslt, grouped_larger_problems) {
    rng r = rng_seed(8002);
    if (!has_grouped()) return;
    for (int64_t i = scaled(60); i > 0; i--) {
        void *mark = guards_mark();
        spec s = random_half_spec(&r, ops[i % 3], 400, 500, 1);
        ASSERT_STREQ("", run_and_check(&s, grouped, &r));
        guards_release(mark);
    }
    print_totals("larger groups");
}

TEST(cublaslt, loop_random_problems) {
    rng r = rng_seed(8003);
    for (int64_t i = scaled(2000); i > 0; i--) {
        void *mark = guards_mark();
        spec s = random_half_spec(&r, ops[i % 3], 60, 90, (int)(i % 2));
        if (rng_chance(&r, 30)) s.in = s.out = TEGROUP_DTYPE_F32;
        ASSERT_STREQ("", run_and_check(&s, loop, &r));
        guards_release(mark);
    }
    ASSERT_GT(totals.problems, 2 * totals.refused);
    print_totals("loop");
}

/* What the kernel writes itself: elements of D that are other than they should be, given what they were before. */
static int64_t alone_wrong(const problem *p, const tegroup_impl_setup *groups, int64_t *alone) {
    const grid *d = &p->d, *c = p->s.c == C_SEPARATE ? &p->c : d;
    const size_t element = size_of(d->dtype);
    int64_t wrong = 0;
    for (int32_t g = 0; g < p->s.groups; g++) {
        if (d->rows[g] <= 0 || d->cols[g] <= 0) continue;
        const size_t bytes = (size_t)((d->rows[g] - 1) * d->ld[g] + d->cols[g]) * element;
        unsigned char *now = (unsigned char *)malloc(bytes);
        MUST(cudaMemcpy(now, device_of(d->at[g]), bytes, cudaMemcpyDeviceToHost));
        alone[groups[g].alone]++;
        for (int64_t i = 0; i < d->rows[g]; i++)
            for (int64_t j = 0; j < d->cols[g]; j++) {
                const int64_t at = i * d->ld[g] + j;
                const double got = load(d->dtype, now, at), beta = groups[g].beta, want = beta == 0 ? 0 : beta * value_at(c, g, i, j);
                wrong += groups[g].alone == TEGROUP_IMPL_ALONE_NOTHING ? memcmp(now + (size_t)at * element, d->at[g] + (size_t)at * element, element) != 0
                         : groups[g].alone == TEGROUP_IMPL_ALONE_NAN   ? !isnan(got)
                                                                       : !(fabs(got - want) <= 0x1p-8 * fabs(want) + smallest_step(d->dtype));
            }
        free(now);
    }
    return wrong;
}

/* The arrays that the kernel wrote are the host's, bit for bit; up to 4,096 groups, aligned or not, a block each or 32 a block, in the
 * general way and, where it is one, in that of the usual case. */
TEST(cublaslt, setup_arrays_equal_the_hosts) {
    rng r = rng_seed(8004);
    int64_t alone[3] = {0, 0, 0}, usual_cases = 0;
    for (int64_t i = scaled(500); i > 0; i--) {
        void *mark = guards_mark();
        spec s = random_half_spec(&r, ops[i % 3], i % 50 == 0 ? 2 : 20, i % 50 == 0 ? 8 : 24, (int)(i % 2));
        if (i % 50 == 0) {
            s.groups = i % 100 == 0 ? 4096 : 1000;
            s.m = random_rows(&r, s.groups, 2, 1);
            s.encoding = TEGROUP_ENCODING_COUNTS;
            s.place = PLACE_DENSE;
            s.ng = s.kg = NULL;
            s.lists &= 2;
        }
        if (i == 1) { /* a usual case, however few there are */
            s.groups = 40;
            s.m = random_rows(&r, s.groups, 20, 1);
            s.encoding = TEGROUP_ENCODING_COUNTS;
            s.place = PLACE_DENSE;
            s.ng = s.kg = NULL;
            s.lists = 0;
            s.alpha = SCALARS_ONE;
            s.c = C_NONE;
        }
        problem p;
        problem_make(&p, &s);
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        const size_t setup_bytes = (size_t)tegroup_impl_setup_bytes(s.groups);
        unsigned char *wrote = (unsigned char *)scratch(setup_bytes), *want = (unsigned char *)scratch(setup_bytes);
        tegroup_impl_setup *groups = (tegroup_impl_setup *)scratch((size_t)s.groups * sizeof *groups);
        for (int way = 0; way < 4; way++) { /* D and the arrays as they were before, each time */
            const int32_t each = way % 2 ? 32 : 1;
            mirror_up(p.mark);
            tegroup_gemm_desc desc = desc_to_device(&p.desc), host = desc_to_loop(&p.desc);
            ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, NULL));
            unsigned char *at = arena_take(setup_bytes, 0);
            tegroup_impl_setup_items theirs = tegroup_impl_setup_items_of(s.groups, at), ours = tegroup_impl_setup_items_of(s.groups, want);
            tegroup_impl_gpu_call call = tegroup_impl_gpu_call_of(&desc), host_call = tegroup_impl_gpu_call_of(&desc);
            host.alpha = desc.alpha.space == TEGROUP_SPACE_DEVICE ? p.desc.alpha : call.desc.alpha;
            host.beta = desc.beta.space == TEGROUP_SPACE_DEVICE ? p.desc.beta : call.desc.beta;
            host_call.views[TEGROUP_IMPL_A] = tegroup_snapshot_read(p.desc.a.shape.snapshot);
            host_call.views[TEGROUP_IMPL_B] = tegroup_snapshot_read(p.desc.b.shape.snapshot);
            host_call.views[TEGROUP_IMPL_C] = tegroup_snapshot_read(p.desc.c.dtype != TEGROUP_DTYPE_UNSET ? p.desc.c.shape.snapshot : NULL);
            host_call.views[TEGROUP_IMPL_D] = tegroup_snapshot_read(p.desc.d.shape.snapshot);
            const tegroup_impl_setup_call setup = tegroup_impl_setup_call_of(&call.desc, call.views, call.alpha, call.beta, theirs);
            const tegroup_impl_setup_call host_setup = tegroup_impl_setup_call_of(&host, host_call.views, call.alpha, call.beta, theirs);
            const unsigned blocks = (unsigned)tegroup_impl_ceil_div(s.groups, each), threads = each == 1 ? 128 : 32;
            if (way >= 2 && !setup.usual) break;
            MUST(cudaMemset(at, 0x5A, setup_bytes));
            memset(want, 0x5A, setup_bytes);
            if (s.groups > 0 && way < 2) tegroup_impl_setup_kernel<false><<<blocks, threads>>>(each, setup);
            if (s.groups > 0 && way >= 2) tegroup_impl_setup_kernel<true><<<blocks, threads>>>(each, setup);
            MUST(cudaGetLastError());
            MUST(cudaDeviceSynchronize());
            MUST(cudaMemcpy(wrote, at, setup_bytes, cudaMemcpyDeviceToHost));
            for (int32_t g = 0; g < s.groups; g++) {
                tegroup_impl_setup_group(&host_setup, 0, g, &groups[g]);
                tegroup_impl_setup_store(&groups[g], &ours, g);
            }
            for (int32_t item = 0; item < TEGROUP_IMPL_SETUP_COUNT; item++) {
                const size_t from = (size_t)(tegroup_impl_setup_at(&ours, item) - (char *)want), bytes = (size_t)s.groups * (item < TEGROUP_IMPL_SETUP_ALPHA_VALUE ? 8 : 4);
                if (memcmp(wrote + from, want + from, bytes) != 0)
                    fprintf(stderr, "array %d differs: op %d groups %d way %d seed %llu\n", item, (int)s.op, s.groups, way, (unsigned long long)s.seed);
                ASSERT_EQ(0, memcmp(wrote + from, want + from, bytes));
            }
            ASSERT_EQ(0, alone_wrong(&p, groups, alone));
            usual_cases += way == 3;
        }
        problem_release(&p);
        guards_release(mark);
    }
    printf("set-ups: %ld usual; groups with nothing, an empty sum, NaN alone: %ld, %ld, %ld\n", (long)usual_cases, (long)alone[0], (long)alone[1], (long)alone[2]);
    ASSERT_GT(usual_cases, 0);
    if (scaled(500) == 500) ASSERT_TRUE(alone[1] > 0 && alone[2] > 0);
}

/* A forward product of six groups for the tests below. */
static int64_t usual_m[6] = {30, 0, 17, 64, 1, 20};
static spec usual(void) {
    spec s;
    memset(&s, 0, sizeof s);
    s.op = TEGROUP_OP_FORWARD;
    s.in = TEGROUP_DTYPE_BF16;
    s.out = TEGROUP_DTYPE_F32;
    s.groups = 6;
    s.m = usual_m;
    s.n = 96;
    s.k = 200;
    s.tail_rows = 68;
    s.seed = 5;
    return s;
}

static tegroup_gemm_desc usual_desc(problem *p, tegroup_backend backend) {
    tegroup_gemm_desc desc;
    spec s = usual();
    problem_make(p, &s);
    if (problem_prepare(p) != TEGROUP_OK) exit(1);
    mirror_up(p->mark);
    desc = backend == loop ? desc_to_loop(&p->desc) : desc_to_device(&p->desc);
    desc.options.backend = backend;
    desc.options.cublaslt = handle();
    return desc;
}

/* Prepare inside the graph; other sizes each time; output and workspace spoilt before each replay. */
TEST(cublaslt, grouped_graph_replays_with_other_sizes) {
    rng r = rng_seed(8005);
    void *mark = guards_mark();
    problem p;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    if (!has_grouped()) return;
    tegroup_gemm_desc desc = usual_desc(&p, grouped);
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
    workspace_give(&desc, &p.plan);
    MUST(cudaStreamCreate(&stream));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, stream));
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, stream, &p.error));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&replay, graph, 0));
    size_t d_bytes = (size_t)(p.capacity * p.s.n) * 4;
    unsigned char *eager = (unsigned char *)malloc(d_bytes), *replayed = (unsigned char *)malloc(d_bytes);
    for (int i = 0; i < 100; i++) {
        int64_t left = p.capacity, counts[6];
        for (int g = 0; g < 6; g++) left -= counts[g] = rng_int(&r, 0, left < 60 ? left : 60);
        copy_up((void *)desc.a.shape.row_sizes.data, counts, sizeof counts);
        for (int turn = 0; turn < 2; turn++) {
            MUST(cudaMemset(desc.d.data, 0xFF, d_bytes));
            MUST(cudaMemset(desc.options.workspace, 0xEE, desc.options.workspace_bytes));
            if (turn == 0) {
                MUST(cudaGraphLaunch(replay, stream));
            } else {
                ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, stream));
                ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, stream, &p.error));
            }
            MUST(cudaStreamSynchronize(stream));
            MUST(cudaMemcpy(turn == 0 ? replayed : eager, desc.d.data, d_bytes, cudaMemcpyDeviceToHost));
        }
        ASSERT_EQ(0, memcmp(eager, replayed, d_bytes));
        ASSERT_EQ(0, workspace_overrun(&desc));
    }
    MUST(cudaGraphExecDestroy(replay));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    free(eager);
    free(replayed);
    problem_release(&p);
    guards_release(mark);
}

/* Sizes on the host are refused under capture before anything is enqueued, unless they are final. */
TEST(cublaslt, loop_under_capture) {
    void *mark = guards_mark();
    problem p;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    size_t nodes = 99;
    tegroup_gemm_desc desc = usual_desc(&p, loop);
    streams_give(&desc, 2);
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
    workspace_give(&desc, &p.plan);
    MUST(cudaStreamCreate(&stream));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ASSERT_EQ(TEGROUP_ERROR_COMBINATION, tegroup_gemm(&p.plan, &desc, stream, &p.error));
    ASSERT_STREQ("options.host_sizes_final", p.error.field);
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphGetNodes(graph, NULL, &nodes));
    ASSERT_EQ((size_t)0, nodes);
    MUST(cudaGraphDestroy(graph));
    desc.options.host_sizes_final = 1;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, stream, &p.error));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&replay, graph, 0));
    size_t d_bytes = (size_t)(p.capacity * p.s.n) * 4;
    unsigned char *eager = (unsigned char *)malloc(d_bytes), *replayed = (unsigned char *)malloc(d_bytes);
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, stream, &p.error));
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(eager, desc.d.data, d_bytes, cudaMemcpyDeviceToHost));
    MUST(cudaMemset(desc.d.data, 0, d_bytes));
    MUST(cudaGraphLaunch(replay, stream));
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(replayed, desc.d.data, d_bytes, cudaMemcpyDeviceToHost));
    for (int64_t row = 0; row < p.rows_end; row++) ASSERT_EQ(0, memcmp(eager + row * p.s.n * 4, replayed + row * p.s.n * 4, (size_t)p.s.n * 4));
    MUST(cudaGraphExecDestroy(replay));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    free(eager);
    free(replayed);
    problem_release(&p);
    guards_release(mark);
}

/* Tuning keeps an algorithm that is offered; what was saved is loaded again and gives the same bits. */
TEST(cublaslt, tune_save_load) {
    const tegroup_backend backends[] = {grouped, loop};
    cudaEvent_t begin, end;
    cudaStream_t stream;
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    MUST(cudaStreamCreate(&stream));
    for (int b = has_grouped() ? 0 : 1; b < 2; b++) {
        void *mark = guards_mark();
        problem p;
        tegroup_plan tuned, loaded;
        tegroup_tune_desc tune;
        float times[TEGROUP_TUNE_CANDIDATES];
        unsigned char saved[TEGROUP_SAVED_PLAN_BYTES];
        tegroup_gemm_desc desc = usual_desc(&p, backends[b]);
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
        workspace_give(&desc, &p.plan);
        if (b == 0) ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, stream));
        memset(&tune, 0, sizeof tune);
        tune.struct_size = sizeof tune;
        tune.gemm = &desc;
        tune.overwrite = tune.any_numerics = 1;
        tune.rounds = 5;
        tune.begin = begin;
        tune.end = end;
        tune.milliseconds = times;
        unsigned char *flush, flushed[4097];
        MUST(cudaMalloc((void **)&flush, sizeof flushed));
        MUST(cudaMemset(flush, 0x5A, sizeof flushed));
        tune.flush = flush + 1;
        tune.flush_bytes = sizeof flushed - 1;
        tuned = p.plan;
        tegroup_status status = tegroup_plan_tune(&tuned, &tune, stream, &p.error);
        MUST(cudaMemcpy(flushed, flush, sizeof flushed, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < sizeof flushed; i++) ASSERT_EQ(0x5A, flushed[i]);
        MUST(cudaFree(flush));
        tune.flush = NULL;
        tune.flush_bytes = 0;
        if (status != TEGROUP_OK) print_error("tune", &p.error);
        ASSERT_EQ(TEGROUP_OK, status);
        tegroup_impl_choices offers;
        ASSERT_EQ(TEGROUP_OK, tegroup_impl_choices_of(&p.plan, &desc, &offers, &p.error));
        const tegroup_impl_choice kept = tegroup_impl_chosen(&tuned);
        int timed = 0, chosen = -1;
        for (int i = 0; i < offers.count; i++) chosen = memcmp(&offers.list[i], &kept, sizeof kept) == 0 ? i : chosen;
        ASSERT_GE(chosen, 0);
        for (int i = 0; i < TEGROUP_TUNE_CANDIDATES; i++) {
            timed += times[i] >= 0;
            ASSERT_TRUE((times[i] < 0 || times[i] >= times[chosen]) && times[chosen] > 0);
        }
        printf("%s: %d algorithms offered, %d timed, number %d kept: %.1f us, the first %.1f us\n", tegroup_backend_name(backends[b]), offers.count, timed, chosen,
               1000 * times[chosen], 1000 * times[0]);
        ASSERT_EQ(chosen == 0, tuned.numerics_id == p.plan.numerics_id);
        tune.any_numerics = 0; /* within one numerics_id there is one algorithm */
        loaded = p.plan;
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_tune(&loaded, &tune, stream, &p.error));
        ASSERT_EQ(p.plan.numerics_id, loaded.numerics_id);
        for (int i = 1; i < TEGROUP_TUNE_CANDIDATES; i++) ASSERT_TRUE(times[i] == -1 || i >= offers.count);

        for (int i = 0; i < offers.count; i++) { /* each offer can be saved and found again */
            tegroup_plan other = tuned;
            ASSERT_EQ(TEGROUP_OK, tegroup_impl_take_choice(&other, &offers.list[i], &p.error));
            ASSERT_EQ(TEGROUP_OK, tegroup_plan_save(&other, saved, sizeof saved, &p.error));
            status = tegroup_plan_load(&desc, saved, sizeof saved, &loaded, &p.error);
            if (status != TEGROUP_OK) print_error("load", &p.error);
            ASSERT_EQ(TEGROUP_OK, status);
            ASSERT_EQ(0, memcmp(&loaded, &other, sizeof loaded));
        }
        tegroup_impl_saved whole;
        memcpy(&whole, saved, sizeof whole);
        whole.choice.words[0] = ~whole.choice.words[0]; /* an algorithm that nobody offers, under a right hash */
        memcpy(saved, &whole, sizeof whole);
        uint64_t hash = tegroup_impl_hash(TEGROUP_IMPL_HASH, saved, sizeof saved - sizeof hash);
        memcpy(saved + sizeof saved - sizeof hash, &hash, sizeof hash);
        ASSERT_EQ(TEGROUP_ERROR_PLAN, tegroup_plan_load(&desc, saved, sizeof saved, &loaded, &p.error));

        cudaGraph_t graph;
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        ASSERT_EQ(TEGROUP_ERROR_COMBINATION, tegroup_plan_tune(&tuned, &tune, stream, &p.error));
        ASSERT_STREQ("stream", p.error.field);
        MUST(cudaStreamEndCapture(stream, &graph));
        MUST(cudaGraphDestroy(graph));
        problem_release(&p);
        guards_release(mark);
    }
    MUST(cudaEventDestroy(begin));
    MUST(cudaEventDestroy(end));
    MUST(cudaStreamDestroy(stream));
}

/* Rows of a group that the library is asked for, and what it offers for that many alone. */
static int32_t averages_of(const tegroup_gemm_desc *desc, int64_t rows, int64_t most, int64_t averages[4]) {
    tegroup_gemm_desc hinted = *desc;
    tegroup_problem problem;
    hinted.options.expected_rows = rows;
    hinted.options.expected_rows_max = most;
    if (tegroup_gemm_problem(&hinted, &problem, NULL) != TEGROUP_OK) exit(1);
    return tegroup_impl_lt_grouped_averages(&hinted, &problem, averages);
}
static tegroup_impl_choices offers_for(const tegroup_gemm_desc *desc, int64_t rows) {
    tegroup_gemm_desc hinted = *desc;
    tegroup_impl_choices offers;
    tegroup_plan plan;
    tegroup_error error;
    hinted.options.expected_rows = rows * desc->a.shape.groups;
    hinted.options.expected_rows_max = rows;
    if (tegroup_plan_make(&hinted, NULL, &plan, &error) != TEGROUP_OK) exit(1);
    if (tegroup_impl_choices_of(&plan, &hinted, &offers, &error) != TEGROUP_OK) exit(1);
    return offers;
}
static int offered(const tegroup_impl_choices *offers, const tegroup_impl_choice *choice) {
    int count = 0;
    for (int i = 0; i < offers->count; i++) count += memcmp(&offers->list[i], choice, sizeof *choice) == 0;
    return count;
}

/* A decode step: a few groups have most of the rows. What is offered for larger groups than the mean is among the candidates, after
 * what is offered for the mean; none is there twice, each is right, and can be saved and found again. */
TEST(cublaslt, grouped_offers_for_uneven_groups) {
    static const int64_t m[32] = {160, 0, 3, 0, 40, 0, 1, 0, 0, 16, 0, 0, 8, 0, 0, 2, 0, 0, 0, 5, 0, 0, 16, 0, 0, 0, 1, 0, 4, 0, 0, 0};
    if (!has_grouped()) return;
    for (int op = 0; op < 3; op++) {
        void *mark = guards_mark();
        problem p;
        int64_t averages[4];
        spec s = usual();
        s.op = ops[op];
        s.groups = 32;
        s.m = m;
        s.n = 256;
        s.k = 384;
        s.tail_rows = 0;
        problem_make(&p, &s);
        problem_reference(&p);
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        mirror_up(p.mark);
        tegroup_gemm_desc desc = desc_to_device(&p.desc);
        desc.options.backend = grouped;
        desc.options.cublaslt = handle();

        ASSERT_EQ(4, averages_of(&desc, 0, 0, averages)); /* the capacity is 256 rows */
        ASSERT_TRUE(averages[0] == 8 && averages[1] == 32 && averages[2] == 64 && averages[3] == 256);
        ASSERT_EQ(4, averages_of(&desc, 160, 129, averages));
        ASSERT_TRUE(averages[0] == 5 && averages[1] == 32 && averages[2] == 64 && averages[3] == 256);
        ASSERT_EQ(3, averages_of(&desc, 0, 40, averages));
        ASSERT_TRUE(averages[0] == 8 && averages[1] == 32 && averages[2] == 64);
        ASSERT_EQ(2, averages_of(&desc, 0, 17, averages));
        ASSERT_EQ(1, averages_of(&desc, 0, 8, averages));
        ASSERT_EQ(2, averages_of(&desc, 128 * 32, 0, averages));
        ASSERT_TRUE(averages[0] == 128 && averages[1] == 256);
        ASSERT_EQ(1, averages_of(&desc, 129 * 32, 0, averages));

        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
        const tegroup_impl_choices mean = offers_for(&desc, 8);
        tegroup_impl_choices all;
        ASSERT_EQ(TEGROUP_OK, tegroup_impl_choices_of(&p.plan, &desc, &all, &p.error));
        ASSERT_TRUE(mean.count <= TEGROUP_IMPL_LT_OFFERED && all.count <= TEGROUP_TUNE_CANDIDATES);
        ASSERT_GT(all.count, mean.count);
        ASSERT_EQ(0, memcmp(all.list, mean.list, (size_t)mean.count * sizeof mean.list[0]));
        for (int i = 0; i < all.count; i++) ASSERT_EQ(1, offered(&all, &all.list[i]));
        for (int64_t rows : {32, 64, 256}) {
            const tegroup_impl_choices larger = offers_for(&desc, rows);
            for (int i = 0; i < larger.count; i++) ASSERT_TRUE(offered(&all, &larger.list[i]) == 1 || all.count == TEGROUP_TUNE_CANDIDATES);
        }

        workspace_give(&desc, &p.plan);
        ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, NULL));
        const size_t d_bytes = (size_t)(s.op == TEGROUP_OP_WGRAD ? s.groups * s.n * s.k : p.rows_end * (s.op == TEGROUP_OP_FORWARD ? s.n : s.k)) * 4;
        double worst = 0;
        for (int i = 0; i < all.count; i++) {
            unsigned char saved[TEGROUP_SAVED_PLAN_BYTES];
            tegroup_plan plan = p.plan, loaded;
            ASSERT_EQ(TEGROUP_OK, tegroup_impl_take_choice(&plan, &all.list[i], &p.error));
            ASSERT_EQ(i == 0, plan.numerics_id == p.plan.numerics_id);
            ASSERT_EQ(TEGROUP_OK, tegroup_plan_save(&plan, saved, sizeof saved, &p.error));
            ASSERT_EQ(TEGROUP_OK, tegroup_plan_load(&desc, saved, sizeof saved, &loaded, &p.error));
            ASSERT_EQ(0, memcmp(&loaded, &plan, sizeof loaded));
            MUST(cudaMemset(desc.d.data, 0xFF, d_bytes));
            ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&loaded, &desc, NULL, &p.error));
            MUST(cudaDeviceSynchronize());
            mirror_down();
            const verdict v = problem_compare(&p);
            worst = v.worst > worst ? v.worst : worst;
            ASSERT_TRUE(v.worst <= 1 && gate_holds(v));
            ASSERT_EQ(0, guards_changed());
            ASSERT_EQ(0, workspace_overrun(&desc));
        }
        printf("cublaslt_grouped: op %d: %d algorithms for the mean, %d with those for larger groups, max error/bound %.3f\n", (int)s.op, mean.count, all.count, worst);
        problem_release(&p);
        guards_release(mark);
    }
}

/* The caller's word on addresses: it is worth what the distances of rows allow, it is kept to, and without it 16 bytes do. */
TEST(cublaslt, grouped_alignment_is_kept_to) {
    static const struct { tegroup_op op; int64_t n, k; int32_t worth; } cases[] = {
        {TEGROUP_OP_WGRAD, 256, 128, 256}, {TEGROUP_OP_WGRAD, 192, 128, 128}, {TEGROUP_OP_FORWARD, 128, 384, 256}, {TEGROUP_OP_DGRAD, 96, 128, 64}, {TEGROUP_OP_WGRAD, 136, 128, 16}};
    if (!has_grouped()) return;
    for (const auto &c : cases) {
        void *mark = guards_mark();
        problem p;
        tegroup_plan plain, aligned;
        spec s = usual();
        s.op = c.op;
        s.n = c.n;
        s.k = c.k;
        problem_make(&p, &s);
        problem_reference(&p);
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        mirror_up(p.mark);
        tegroup_gemm_desc desc = desc_to_device(&p.desc);
        desc.options.backend = grouped;
        desc.options.cublaslt = handle();
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &plain, &p.error));
        ASSERT_EQ(16, tegroup_impl_lt_plan_of(&plain).alignment);
        desc.options.data_alignment_bytes = 256;
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &aligned, &p.error));
        ASSERT_EQ(c.worth, tegroup_impl_lt_plan_of(&aligned).alignment);
        const tegroup_impl_choice with = tegroup_impl_chosen(&aligned), without = tegroup_impl_chosen(&plain);
        ASSERT_EQ(memcmp(&with, &without, sizeof with) == 0, aligned.numerics_id == plain.numerics_id);
        workspace_give(&desc, &aligned);
        ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, NULL));

        /* the same numbers for a at every step of 16 bytes; its rows stay where they are, so that a copy beside it is read */
        const size_t bytes = (size_t)(p.capacity * (c.op == TEGROUP_OP_FORWARD ? c.k : c.n)) * 2;
        unsigned char *room;
        MUST(cudaMalloc((void **)&room, bytes + 256));
        for (int32_t step = 0; step < 256; step += 16) {
            tegroup_gemm_desc moved = desc;
            moved.a.data = room + step;
            MUST(cudaMemcpy(room + step, desc.a.data, bytes, cudaMemcpyDeviceToDevice));
            for (int turn = 0; turn < 2; turn++) {
                const tegroup_plan *plan = turn ? &aligned : &plain;
                const int fits = step % (turn ? c.worth : 16) == 0;
                const tegroup_status status = tegroup_gemm(plan, &moved, NULL, &p.error);
                ASSERT_EQ(fits ? TEGROUP_OK : TEGROUP_ERROR_ALIGNMENT, status);
                if (!fits) {
                    ASSERT_STREQ("a.data", p.error.field);
                    ASSERT_EQ(c.worth, (int)p.error.expected);
                    continue;
                }
                MUST(cudaDeviceSynchronize());
                mirror_down();
                ASSERT_TRUE(problem_compare(&p).worst <= 1);
                ASSERT_EQ(0, guards_changed());
                ASSERT_EQ(0, workspace_overrun(&moved));
            }
        }
        MUST(cudaFree(room));
        problem_release(&p);
        guards_release(mark);
    }
}

static int failing_matmul(struct cublasLtContext *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *, void *, void *, const void *, void *,
                          size_t, struct CUstream_st *) { return CUBLAS_STATUS_EXECUTION_FAILED; }
static int idle_matmul(struct cublasLtContext *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *, void *, void *, const void *, void *,
                       size_t, struct CUstream_st *) { return 0; }

static int answer; /* of a library that offers nothing */
static int no_algorithms(struct cublasLtContext *, void *, void *, void *, void *, void *, void *, int, void *, int *) { return answer; }

/* What is refused, and how a failure of the library comes back. */
TEST(cublaslt, refusals) {
    void *mark = guards_mark();
    const int version = (int)cublasLtGetVersion();
    problem p;
    tegroup_gemm_desc desc = usual_desc(&p, grouped), bad;
    tegroup_plan plan;
    tegroup_error error;
    if (has_grouped()) {
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &plan, &error));
        ASSERT_EQ(plan.cublaslt_version, version);
        workspace_give(&desc, &plan);
        bad = desc;
        bad.options.cublaslt = NULL;
        ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, tegroup_plan_make(&bad, NULL, &p.plan, &error));
        ASSERT_STREQ("options.cublaslt", error.field);
        ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_gemm(&plan, &bad, NULL, &error));
        ASSERT_STREQ("options.cublaslt", error.field);
        bad = desc;
        bad.options.sm_limit = 16;
        ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, tegroup_plan_make(&bad, NULL, &p.plan, &error));
        ASSERT_STREQ("options.sm_limit", error.field);
        bad = desc;
        bad.a.data = (char *)bad.a.data + 2;
        ASSERT_EQ(TEGROUP_ERROR_ALIGNMENT, tegroup_gemm(&plan, &bad, NULL, &error));
        ASSERT_STREQ("a.data", error.field);
        bad = desc;
        bad.options.backend = TEGROUP_BACKEND_AUTO;
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&bad, NULL, &p.plan, &error));
        ASSERT_TRUE(p.plan.backend == grouped || p.plan.backend == TEGROUP_BACKEND_SM90); /* which comes first where it is built */
    } else if (version < 130400) {
        ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, tegroup_plan_make(&desc, NULL, &plan, &error));
        ASSERT_STREQ("target.cublaslt_version", error.field);
        ASSERT_EQ(version, (int)error.got);
        ASSERT_EQ(130801, error.expected); /* older grouped products may corrupt data */
        print_error("as it should be", &error);
    }
    problem_release(&p);

    desc = usual_desc(&p, loop);
    streams_give(&desc, 0);
    tegroup_cublaslt_functions functions = tegroup_impl_lt_find(&desc), none = functions;
    ASSERT_TRUE(functions.cublasLtMatmul != NULL);
    functions.cublasLtMatmul = (tegroup_function)failing_matmul;
    desc.options.cublaslt_functions = &functions; /* a caller's table */
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &plan, &error));
    workspace_give(&desc, &plan);
    for (int i = 0; i < 2; i++) {
        ASSERT_EQ(TEGROUP_ERROR_CUBLAS, tegroup_gemm(&plan, &desc, NULL, &error));
        ASSERT_EQ((int)CUBLAS_STATUS_EXECUTION_FAILED, error.native);
    }
    functions.cublasLtMatmulAlgoGetHeuristic = (tegroup_function)no_algorithms;
    for (answer = 1; answer <= 15; answer += 14) { /* CUBLAS_STATUS_NOT_INITIALIZED, NOT_SUPPORTED */
        const tegroup_status want = answer == 1 ? TEGROUP_ERROR_CUBLAS : TEGROUP_ERROR_UNSUPPORTED;
        tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
        ASSERT_EQ(want, tegroup_plan_make(&desc, NULL, &plan, &error));
        ASSERT_STREQ(answer == 1 ? "options.cublaslt" : "options.backend", error.field);
        ASSERT_EQ(answer, error.native);
        ASSERT_EQ(TEGROUP_OK, tegroup_explain(&desc, NULL, verdicts, &error));
        for (int i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++) {
            ASSERT_EQ(0, verdicts[i].chosen);
            if (verdicts[i].backend == loop) ASSERT_TRUE(verdicts[i].status == want && verdicts[i].native == answer);
        }
    }
    none.cublasLtMatmul = NULL;
    desc.options.cublaslt_functions = &none;
    ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, tegroup_plan_make(&desc, NULL, &plan, &error));
    ASSERT_STREQ("target.cublaslt_version", error.field);
    ASSERT_EQ(0, (int)error.got);
    desc.options.cublaslt_functions = NULL;
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &plan, &error));
    bad = desc;
    bad.options.stream_count = 2;
    ASSERT_EQ(TEGROUP_ERROR_PLAN, tegroup_gemm(&plan, &bad, NULL, &error));
    ASSERT_STREQ("options.stream_count", error.field);
    streams_give(&bad, 2);
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&bad, NULL, &plan, &error));
    workspace_give(&bad, &plan);
    bad.options.events = NULL;
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_gemm(&plan, &bad, NULL, &error));
    ASSERT_STREQ("options.events", error.field);
    MUST(cudaDeviceSynchronize());
    problem_release(&p);
    guards_release(mark);
}

/* Before a product with results of two bytes C is brought to D: of groups whose beta is not 0, and nothing else. */
TEST(cublaslt, setup_brings_c_to_d) {
    for (int each = 0; each < 2; each++) { /* beta on the host, on the device */
        void *mark = guards_mark();
        problem p;
        spec s = usual();
        s.in = s.out = TEGROUP_DTYPE_BF16;
        s.c = C_SEPARATE;
        s.beta = SCALARS_EACH;
        s.pad = 3;
        problem_make(&p, &s);
        for (int32_t g = 0; g < s.groups; g++) ((float *)p.beta)[g] = g % 2 ? 0.5f : 0;
        grid_fill(&p, &p.c, 'c', FILL_NORMAL, 1);
        guarded_remember(p.beta);
        guarded_remember(p.c.tensor.data);
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        mirror_up(p.mark);
        tegroup_gemm_desc desc = desc_to_loop(&p.desc);
        tegroup_cublaslt_functions functions = tegroup_impl_lt_find(&desc);
        functions.cublasLtMatmul = (tegroup_function)idle_matmul;
        desc.options.cublaslt_functions = &functions;
        desc.options.backend = loop;
        desc.options.cublaslt = handle();
        if (each) desc.beta.space = TEGROUP_SPACE_DEVICE, desc.beta.data = device_of(p.beta);
        streams_give(&desc, 2);
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
        workspace_give(&desc, &p.plan);
        const size_t bytes = guarded_find(p.d.tensor.data)->bytes, row = (size_t)s.n * 2;
        unsigned char *before = (unsigned char *)scratch(bytes);
        memcpy(before, p.d.tensor.data, bytes);
        ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, NULL, &p.error));
        MUST(cudaDeviceSynchronize());
        mirror_down();
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t i = 0; i < p.d.rows[g]; i++) {
                const unsigned char *at = p.d.at[g] + i * p.d.ld[g] * 2;
                const unsigned char *want = g % 2 ? p.c.at[g] + i * p.c.ld[g] * 2 : before + (at - (unsigned char *)p.d.tensor.data);
                ASSERT_EQ(0, memcmp(want, at, row));
            }
        ASSERT_EQ(0, problem_disturbed(&p));
        ASSERT_EQ(0, guards_changed());
        problem_release(&p);
        guards_release(mark);
    }
}

/* Equal numerics_id, equal bits, wherever C lies; and no plan knows where that will be, but for accumulate's. */
TEST(cublaslt, loop_adds_alike_wherever_c_lies) {
    enum { SEPARATE, OTHER_LD, IN_D, ACCUMULATE, WAYS };
    static const tegroup_dtype dtypes[][2] = {
        {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16}, {TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F16}, {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F32}, {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F32}};
    for (int i = 0; i < 12; i++) {
        void *mark = guards_mark(), *room;
        problem p;
        spec s = usual();
        uint64_t ids[WAYS];
        unsigned char *bits[WAYS];
        s.op = ops[i % 3];
        s.in = dtypes[i / 3][0];
        s.out = dtypes[i / 3][1];
        s.c = C_SEPARATE;
        s.beta = SCALARS_ONE;
        s.aligned = s.rounds_product = 1;
        problem_make(&p, &s);
        *(float *)p.beta = 1;
        grid_fill(&p, &p.c, 'c', FILL_NORMAL, s.op != TEGROUP_OP_WGRAD);
        problem_reference(&p);
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        mirror_up(p.mark);
        const tegroup_gemm_desc usual_way = desc_to_loop(&p.desc);
        const tegroup_shape *shape = &p.d.tensor.shape;
        const size_t rows = (size_t)(s.op == TEGROUP_OP_WGRAD ? shape->rows * s.groups : p.rows_end), row = (size_t)shape->cols * size_of(s.out), wide = row + 16;
        MUST(cudaMalloc(&room, rows * wide));
        MUST(cudaMemcpy2D(room, wide, usual_way.c.data, row, row, rows, cudaMemcpyDeviceToDevice));
        for (int way = 0; way < WAYS; way++) {
            tegroup_gemm_desc desc = usual_way;
            desc.options.backend = loop;
            desc.options.cublaslt = handle();
            streams_give(&desc, 0);
            if (way == OTHER_LD) desc.c.data = room, desc.c.ld = (int64_t)(wide / size_of(s.out));
            if (way == IN_D) desc.c = desc.d;
            if (way == ACCUMULATE) {
                memset(&desc.c, 0, sizeof desc.c);
                memset(&desc.beta, 0, sizeof desc.beta);
                desc.accumulate = 1;
            }
            if (way >= IN_D) MUST(cudaMemcpy(desc.d.data, usual_way.c.data, rows * row, cudaMemcpyDeviceToDevice));
            else MUST(cudaMemset(desc.d.data, 0xFF, rows * row));
            ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
            workspace_give(&desc, &p.plan);
            ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, NULL, &p.error));
            MUST(cudaDeviceSynchronize());
            mirror_down();
            ASSERT_TRUE(problem_compare(&p).worst <= 1);
            ASSERT_EQ(0, guards_changed());
            ids[way] = p.plan.numerics_id;
            bits[way] = (unsigned char *)malloc(rows * row);
            memcpy(bits[way], p.d.tensor.data, rows * row);
            if (way == IN_D || (way == OTHER_LD && s.out != TEGROUP_DTYPE_F32)) ASSERT_EQ(ids[SEPARATE], ids[way]);
            if (way == ACCUMULATE) ASSERT_EQ(s.out != TEGROUP_DTYPE_F32, ids[SEPARATE] == ids[way]);
            for (int other = 0; other < way; other++)
                if (ids[other] == ids[way] && memcmp(bits[other], bits[way], rows * row) != 0) {
                    fprintf(stderr, "op %d in %d out %d: ways %d and %d differ in bits\n", (int)s.op, (int)s.in, (int)s.out, other, way);
                    ASSERT_TRUE(0);
                }
        }
        for (int way = 0; way < WAYS; way++) free(bits[way]);
        MUST(cudaFree(room));
        problem_release(&p);
        guards_release(mark);
    }
}

/* The loop reads its lists on the host: it looks at each address that is used before it enqueues anything, and at the deep level whether two
 * groups would write the same memory. */
TEST(cublaslt, loop_looks_at_its_lists) {
    void *mark = guards_mark();
    problem p;
    tegroup_plan plan;
    tegroup_error error;
    spec s = usual();
    s.lists = 2 | 8;
    problem_make(&p, &s);
    ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
    mirror_up(p.mark);
    tegroup_gemm_desc desc = desc_to_loop(&p.desc);
    desc.options.backend = loop;
    desc.options.cublaslt = handle();
    streams_give(&desc, 0);
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &plan, &error));
    workspace_give(&desc, &plan);
    void **b = (void **)(uintptr_t)desc.b.pointers, **d = (void **)(uintptr_t)desc.d.pointers, *kept;
    kept = b[2], b[2] = NULL;
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_gemm(&plan, &desc, NULL, &error));
    ASSERT_STREQ("b.pointers", error.field);
    ASSERT_EQ(2, error.got);
    b[2] = kept;
    kept = d[5], d[5] = NULL;
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_gemm(&plan, &desc, NULL, &error));
    ASSERT_STREQ("d.pointers", error.field);
    ASSERT_EQ(5, error.got);
    d[5] = d[3];
    desc.options.check_level = TEGROUP_CHECK_DEEP;
    ASSERT_EQ(TEGROUP_ERROR_OVERLAP, tegroup_gemm(&plan, &desc, NULL, &error));
    ASSERT_STREQ("d.pointers", error.field);
    ASSERT_EQ(3, error.expected);
    ASSERT_EQ(5, error.got);
    d[5] = kept;
    MUST(cudaDeviceSynchronize());
    mirror_down();
    for (int32_t g = 0; g < s.groups; g++) ASSERT_EQ(0, guarded_changed(p.d.tensor.pointers[g]));
    b[1] = d[1] = NULL; /* a group without rows */
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&plan, &desc, NULL, &error));
    MUST(cudaDeviceSynchronize());
    mirror_down();
    problem_reference(&p);
    ASSERT_TRUE(problem_compare(&p).worst <= 1);
    problem_release(&p);
    guards_release(mark);
}

/* One weight gradient many times: one hash. */
TEST(cublaslt, grouped_runs_have_one_hash) {
    void *mark = guards_mark();
    problem p;
    if (!has_grouped()) return;
    spec s = usual();
    s.op = TEGROUP_OP_WGRAD;
    problem_make(&p, &s);
    mirror_up(p.mark);
    tegroup_gemm_desc desc = desc_to_device(&p.desc);
    desc.options.backend = grouped;
    desc.options.cublaslt = handle();
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
    workspace_give(&desc, &p.plan);
    ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, NULL));
    size_t bytes = (size_t)(p.s.groups * p.s.n * p.s.k) * 4;
    unsigned char *first = (unsigned char *)malloc(bytes), *again = (unsigned char *)malloc(bytes);
    for (int i = 0; i < 200; i++) {
        MUST(cudaMemset(desc.d.data, 0xFF, bytes));
        ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, NULL, &p.error));
        MUST(cudaMemcpy(i == 0 ? first : again, desc.d.data, bytes, cudaMemcpyDeviceToHost));
        if (i > 0) ASSERT_EQ(0, memcmp(first, again, bytes));
    }
    free(first);
    free(again);
    problem_release(&p);
    guards_release(mark);
}

/* What a call costs the host besides cublasLtMatmul: that one is replaced by a function that does nothing. */
TEST(cublaslt, host_time) {
    void *mark = guards_mark();
    problem p;
    if (!has_grouped()) return;
    tegroup_gemm_desc desc = usual_desc(&p, grouped);
    tegroup_cublaslt_functions functions = tegroup_impl_lt_find(&desc);
    functions.cublasLtMatmul = (tegroup_function)idle_matmul;
    desc.options.cublaslt_functions = &functions;
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
    workspace_give(&desc, &p.plan);
    ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, NULL));
    double best = 1e9;
    for (int round = 0; round < 20; round++) {
        MUST(cudaDeviceSynchronize());
        auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < 200; i++) ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, NULL, &p.error));
        double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / 200;
        if (us < best) best = us;
    }
    MUST(cudaDeviceSynchronize());
    printf("cublaslt_grouped: %.2f us a call on the host, set-up launch included, cublasLtMatmul apart\n", best);
    problem_release(&p);
    guards_release(mark);
}

TEST_MAIN()
