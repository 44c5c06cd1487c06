/* Quantised operands of cublaslt_grouped: what the set-up kernel writes is the host's, of every format; FP8 products on Hopper
 * against FP64 products of what codes and scales mean, which tests/unit/quantised.h works out; graphs, and what a call refuses.
 * Products of MXFP8 and NVFP4 need newer GPUs: of them the set-up alone runs. */
#define TEGROUP_IMPLEMENTATION
#define TEGROUP_NO_SM90
#define TEGROUP_NO_PORTABLE
#define TEGROUP_NO_ACTIVATION
#define TEGROUP_NO_MOE
/* Of a term in a sum, by what the test says of it: see run_one. */
static double sum_rounding = 0x1p-13;
#define SUPPORT_SUM_ROUNDING sum_rounding
#include "mirror.h"
#include "quantised_problem.h"
#include "test.h"
#include <cublasLt.h>

static const tegroup_backend grouped = TEGROUP_BACKEND_CUBLASLT_GROUPED;

static int fp8_here(void) {
    const char *wanted = getenv("TEGROUP_TEST_BACKENDS"); /* see backends.h */
    int device, major;
    if (wanted != NULL && strstr(wanted, "cublaslt_grouped") == NULL) return 0;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (mirror_cublaslt == NULL && cublasLtCreate((cublasLtHandle_t *)&mirror_cublaslt) != CUBLAS_STATUS_SUCCESS) exit(1);
    if (major == 9 && cublasLtGetVersion() >= 130801) return 1;
    printf("FP8 of cublaslt_grouped is not in cuBLAS %d on this GPU\n", (int)cublasLtGetVersion());
    return 0;
}

/* ---- products --------------------------------------------------------------------------------------------------------- */

static struct { double worst; int64_t problems, elements, odd; } totals;

/* Hopper's instruction adds 32 products to a sum in about 14 bits, so a term errs by 2^-13 of the largest (DeepSeek-V3 technical
 * report, section 3.3.2); every 128 of k the sum goes into one of FP32. Of so many terms comes the error, however long the sum. */
static int run_one(uint64_t seed, const scaling_row *fa, const scaling_row *fb, tegroup_op op) {
    rng r = rng_seed(seed);
    problem p;
    quantised q[2];
    const char *wrong = NULL;
    while (!lt_problem(&p, &r, fa, fb, op, q, 0, rng_chance(&r, 20) ? 400 : 40, rng_chance(&r, 30) ? 512 : 96)) {}
    const int64_t terms = op == TEGROUP_OP_FORWARD ? p.s.k : op == TEGROUP_OP_DGRAD ? p.s.n : 1;
    sum_rounding = terms <= 128 ? 0x1p-13 : 0x1p-13 * 135 / (double)(terms + 7) + 0x1p-23;
    p.desc.options.backend = grouped;
    if (seed % 2) p.desc.options.check_level = TEGROUP_CHECK_DEEP;
    problem_reference(&p);
    if (problem_run_on_device(&p) != TEGROUP_OK) wrong = "refused";
    else {
        const verdict v = problem_compare(&p);
        totals.problems++;
        totals.elements += v.count;
        totals.worst = fmax(totals.worst, v.worst);
        for (int32_t g = 0; g < p.s.groups; g++) totals.odd += p.s.m[g] > 0 && p.s.m[g] % 4 != 0;
        if (!(v.worst <= 1)) wrong = "result";
        else if (guards_changed() + workspace_guards_changed() != 0) wrong = "guard bytes changed";
        else if (problem_disturbed(&p) != 0) wrong = "bytes changed that are not the result's";
        if (wrong != NULL) fprintf(stderr, "error / bound %g\n", v.worst);
    }
    if (wrong != NULL) {
        fprintf(stderr, "%s: %s x %s, op %d, seed %llu, groups %d n %ld k %ld in %d %d out %d c %d alpha %d beta %d lists %d: %s %s native %d\n", wrong, name_of(fa), name_of(fb), (int)op,
                (unsigned long long)seed, p.s.groups, (long)p.s.n, (long)p.s.k, (int)p.desc.a.dtype, (int)p.desc.b.dtype, (int)p.s.out, (int)p.s.c, p.s.alpha, p.s.beta, p.s.lists,
                p.error.field ? p.error.field : "", p.error.rule ? p.error.rule : "", p.error.native);
        for (int32_t g = 0; g < p.s.groups; g++) fprintf(stderr, " %ld", (long)p.s.m[g]);
        fprintf(stderr, "\n");
    }
    problem_release(&p);
    return wrong == NULL;
}

TEST(cublaslt_formats, fp64) {
    int64_t pairs = 0, failed = 0;
    if (!fp8_here()) return;
    for (int a = 0; a < SCALINGS; a++)
        for (int b = 0; b < SCALINGS; b++)
            for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) {
                int64_t wrong = 0;
                if (!lt_goes(&scaling_rows[a], &scaling_rows[b], 1)) continue;
                pairs++;
                memset(&totals, 0, sizeof totals);
                for (int64_t i = 0; i < scaled(in_the_long_suite(700, 40)) && wrong < 4; i++)
                    wrong += !run_one((uint64_t)(a * 64 + b * 4 + op) * 1000003u + (uint64_t)i, &scaling_rows[a], &scaling_rows[b], (tegroup_op)op);
                printf("%s x %s, op %d: %ld problems, %ld elements, %ld groups of rows that are no multiple of 4, error/bound at most %.4f, %ld wrong\n", name_of(&scaling_rows[a]),
                       name_of(&scaling_rows[b]), op, (long)totals.problems, (long)totals.elements, (long)totals.odd, totals.worst, (long)wrong);
                failed += wrong;
            }
    ASSERT_EQ(pairs, 3 * 4);
    ASSERT_EQ(failed, 0);
}

/* Sums of positive terms, however long, err as those of 128 terms do: partial sums go into FP32. */
TEST(cublaslt_formats, long_sums_are_promoted) {
    static const int pairs[][2] = {{0, 0}, {2, 3}, {2, 2}};
    if (!fp8_here()) return;
    for (int pair = 0; pair < 3; pair++)
        for (int64_t k = 256; k <= 16384; k *= 8) {
            rng r = rng_seed((uint64_t)k);
            void *const mark = guards_mark();
            problem p;
            quantised q[2];
            spec s;
            memset(&s, 0, sizeof s);
            s.op = TEGROUP_OP_FORWARD;
            s.groups = 2;
            s.n = 32;
            s.k = k;
            s.m = random_rows(&r, 2, 40, 0);
            ((int64_t *)(uintptr_t)s.m)[0] = 33;
            s.in = TEGROUP_DTYPE_F64;
            s.out = TEGROUP_DTYPE_F32;
            s.aligned = 1;
            problem_make(&p, &s);
            p.mark = mark;
            p.s.compute = p.desc.options.compute = TEGROUP_COMPUTE_F32;
            for (int which = 0; which < 2; which++) {
                grid *t = which ? &p.b : &p.a;
                for (int32_t g = 0; g < 2; g++)
                    for (int64_t i = 0; i < t->rows[g]; i++)
                        for (int64_t j = 0; j < t->cols[g]; j++) store(TEGROUP_DTYPE_F64, t->at[g], i * t->ld[g] + j, 0.5 + rng_unit(&r));
                memset(&q[which], 0, sizeof *q);
                q[which].f = &scaling_rows[pairs[pair][which]];
                q[which].dtype = TEGROUP_DTYPE_F8E4M3;
                q[which].parts = q[which].aligned = 1;
                quantise_operand(&p, which, &q[which], &r);
            }
            remember(&p);
            problem_reference(&p);
            p.desc.options.backend = grouped;
            ASSERT_EQ(problem_run_on_device(&p), TEGROUP_OK);
            double worst = 0, mean = 0;
            int64_t count = 0;
            for (int32_t g = 0; g < 2; g++)
                for (int64_t i = 0; i < p.d.rows[g]; i++)
                    for (int64_t j = 0; j < 32; j++, count++) {
                        const double want = p.want[g][i * 32 + j], error = value_at(&p.d, g, i, j) / want - 1;
                        worst = fmax(worst, fabs(error));
                        mean += error;
                    }
            printf("%s x %s, k %ld: relative error at most 2^%.1f, mean %.2g\n", name_of(q[0].f), name_of(q[1].f), (long)k, log2(worst), mean / (double)count);
            ASSERT_LE(worst, 132 * 0x1p-13);
            problem_release(&p);
        }
}

/* ---- set-up ----------------------------------------------------------------------------------------------------------- */

/* Addresses on the device, and whatever the set-up reads on the host. */
static void setup_tensor(tegroup_tensor *t, const tegroup_tensor *device, const tegroup_tensor *host) {
    *t = *device;
    t->shape = host->shape;
    t->global_scale_inv = host->global_scale_inv;
    if (host->dtype == TEGROUP_DTYPE_UNSET || host->pointers == NULL) return;
    void **list = (void **)scratch((size_t)t->shape.groups * sizeof(void *));
    for (int32_t g = 0; g < t->shape.groups; g++) list[g] = device_of(host->pointers[g]);
    t->pointers = list;
}

/* The lists of a quantised operand that the set-up reads, with addresses on the device. */
static void setup_lists(tegroup_tensor *t, const tegroup_tensor *host) {
    void *const *const lists[] = {host->columnwise_pointers, host->scale_pointers, host->columnwise_scale_pointers};
    void *const **const to[] = {&t->columnwise_pointers, &t->scale_pointers, &t->columnwise_scale_pointers};
    for (int i = 0; i < 3; i++) {
        if (lists[i] == NULL) continue;
        void **list = (void **)scratch((size_t)t->shape.groups * sizeof(void *));
        for (int32_t g = 0; g < t->shape.groups; g++) list[g] = device_of(lists[i][g]);
        *to[i] = list;
    }
}

/* The set-up kernel's arrays are the host's, bit for bit, up to 1,000 groups; what they lead to tests/unit/test_setup.c says. */
TEST(cublaslt_formats, setup_arrays_equal_the_hosts) {
    int64_t problems = 0, globals = 0, lists = 0, empty = 0;
    for (int a = 0; a < SCALINGS; a++)
        for (int b = 0; b < SCALINGS; b++)
            for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_WGRAD; op++) {
                const scaling_row *fa = &scaling_rows[a], *fb = &scaling_rows[b];
                if ((!lt_goes(fa, fb, 1) && !lt_goes(fa, fb, 0)) || (is_fp4(fa->scaling) && op == TEGROUP_OP_WGRAD)) continue;
                rng r = rng_seed(7200000u + (uint64_t)((a * 16 + b) * 4 + op));
                for (int64_t i = scaled(20); i > 0;) {
                    const int many = i == 1 && a == b && op == TEGROUP_OP_FORWARD && scaled(20) == 20;
                    problem p;
                    quantised q[2];
                    if (!lt_problem(&p, &r, fa, fb, (tegroup_op)op, q, many ? 1000 : 0, many ? 3 : rng_chance(&r, 20) ? 150 : 12, many ? 32 : 64)) continue;
                    if (many && p.s.lists != 0) { problem_release(&p); continue; } /* each of its buffers is as large as one of all */
                    i--;
                    ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
                    const int32_t groups = p.s.groups;
                    const size_t bytes = (size_t)tegroup_impl_setup_bytes(groups);
                    unsigned char *wrote = (unsigned char *)scratch(bytes), *want = (unsigned char *)scratch(bytes);
                    mirror_up(p.mark);
                    tegroup_gemm_desc desc = desc_to_device(&p.desc), host = desc;
                    ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, NULL));
                    setup_tensor(&host.a, &desc.a, &p.desc.a);
                    setup_tensor(&host.b, &desc.b, &p.desc.b);
                    setup_lists(&host.a, &p.desc.a);
                    setup_lists(&host.b, &p.desc.b);
                    setup_tensor(&host.c, &desc.c, &p.desc.c);
                    setup_tensor(&host.d, &desc.d, &p.desc.d);
                    tegroup_impl_setup_take_copies(&desc);
                    tegroup_impl_setup_take_copies(&host);
                    unsigned char *at = arena_take(bytes, 0);
                    const tegroup_impl_setup_items theirs = tegroup_impl_setup_items_of(groups, at), ours = tegroup_impl_setup_items_of(groups, want);
                    const tegroup_impl_gpu_call call = tegroup_impl_gpu_call_of(&desc);
                    tegroup_snapshot_view views[4];
                    const tegroup_tensor *const operands[] = {&p.desc.a, &p.desc.b, &p.desc.c, &p.desc.d};
                    for (int t = 0; t < 4; t++) views[t] = tegroup_snapshot_read(operands[t]->dtype != TEGROUP_DTYPE_UNSET ? operands[t]->shape.snapshot : NULL);
                    host.alpha = desc.alpha.space == TEGROUP_SPACE_DEVICE ? p.desc.alpha : call.desc.alpha;
                    host.beta = desc.beta.space == TEGROUP_SPACE_DEVICE ? p.desc.beta : call.desc.beta;
                    const tegroup_impl_setup_call setup = tegroup_impl_setup_call_of(&call.desc, call.views, call.alpha, call.beta, theirs);
                    const tegroup_impl_setup_call host_setup = tegroup_impl_setup_call_of(&host, views, call.alpha, call.beta, theirs);
                    const tegroup_impl_setup_both both = {{tegroup_impl_setup_scaled_of(&call.desc, TEGROUP_IMPL_A), tegroup_impl_setup_scaled_of(&call.desc, TEGROUP_IMPL_B)}};
                    const tegroup_impl_setup_scaled host_both[2] = {tegroup_impl_setup_scaled_of(&host, TEGROUP_IMPL_A), tegroup_impl_setup_scaled_of(&host, TEGROUP_IMPL_B)};
                    MUST(cudaMemset(at, 0x5A, bytes));
                    memset(want, 0x5A, bytes);
                    if (groups > 0) tegroup_impl_setup_scaled_kernel<<<dim3((unsigned)groups, op == TEGROUP_OP_WGRAD ? 8 : 1), 128>>>(setup, both);
                    MUST(cudaGetLastError());
                    MUST(cudaDeviceSynchronize());
                    MUST(cudaMemcpy(wrote, at, bytes, cudaMemcpyDeviceToHost));
                    tegroup_impl_setup_taken before[2] = {{0, 0}, {0, 0}};
                    for (int32_t g = 0; g < groups; g++) {
                        tegroup_impl_setup s;
                        tegroup_impl_setup_scaled_group(&host_setup, host_both, before, 1, g, &s);
                        tegroup_impl_setup_take(&host_both[0], &host_setup.a, g, &before[0]);
                        tegroup_impl_setup_take(&host_both[1], &host_setup.b, g, &before[1]);
                        tegroup_impl_setup_store(&s, &ours, g);
                        empty += s.alone == TEGROUP_IMPL_ALONE_EMPTY;
                    }
                    for (int32_t item = 0; item < TEGROUP_IMPL_SETUP_COUNT; item++) {
                        const size_t from = (size_t)(tegroup_impl_setup_at(&ours, item) - (char *)want), size = (size_t)groups * (item < TEGROUP_IMPL_SETUP_ALPHA_VALUE ? 8 : 4);
                        if (memcmp(wrote + from, want + from, size) != 0) fprintf(stderr, "array %d differs: %s x %s, op %d, groups %d\n", item, name_of(fa), name_of(fb), op, groups);
                        ASSERT_EQ(0, memcmp(wrote + from, want + from, size));
                    }
                    problems++;
                    lists += (p.s.lists & 3) != 0;
                    globals += q[0].global || q[1].global;
                    problem_release(&p);
                }
            }
    if (scaled(20) == 20) ASSERT_TRUE(empty > 0 && globals > 0 && lists > 0);
    printf("%ld set-ups of quantised operands, %ld with scales of whole groups, %ld with lists\n", (long)problems, (long)globals, (long)lists);
}

/* ---- graphs and refusals ---------------------------------------------------------------------------------------------- */

/* Prepare and product in one graph; other sizes each time, and the same bits as without the graph. */
TEST(cublaslt_formats, graph_replays_with_other_sizes) {
    if (!fp8_here()) return;
    for (int op = TEGROUP_OP_FORWARD; op <= TEGROUP_OP_DGRAD; op++) {
        rng r = rng_seed(8100 + (uint64_t)op);
        problem p;
        quantised q[2];
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t replay;
        do { /* counts, from the beginning of one buffer */
            while (!lt_problem(&p, &r, &scaling_rows[2], &scaling_rows[op == TEGROUP_OP_FORWARD ? 3 : 2], (tegroup_op)op, q, 4, 60, 128)) {}
            if (p.s.index != TEGROUP_DTYPE_I32 && p.s.lists == 0 && p.s.c == C_NONE && p.capacity > 60) break;
            problem_release(&p);
        } while (1);
        mirror_up(p.mark);
        tegroup_gemm_desc desc = desc_to_device(&p.desc);
        desc.options.backend = grouped;
        MUST(cudaMemset(desc.a.scale_inv, 0x3c, guarded_find(p.desc.a.scale_inv)->bytes));
        MUST(cudaMemset(desc.a.data, 0x31, guarded_find(p.desc.a.data)->bytes));
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
        desc.options.workspace_bytes = p.plan.workspace_bytes;
        desc.options.workspace = workspace_of(p.plan.workspace_bytes);
        MUST(cudaStreamCreate(&stream));
        for (int captured = 0; captured < 2; captured++) { /* kernels are loaded when they first run */
            if (captured) MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
            ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, stream));
            ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, stream, &p.error));
            if (captured) MUST(cudaStreamEndCapture(stream, &graph));
            MUST(cudaStreamSynchronize(stream));
        }
        MUST(cudaGraphInstantiate(&replay, graph, 0));
        const size_t bytes = guarded_find(p.desc.d.data)->bytes;
        unsigned char *eager = (unsigned char *)malloc(bytes), *replayed = (unsigned char *)malloc(bytes);
        int64_t written = 0;
        for (int turn = 0; turn < 40; turn++) {
            int64_t left = p.capacity, counts[4];
            for (int g = 0; g < 4; g++) left -= counts[g] = rng_int(&r, 0, left < 50 ? left : 50);
            copy_up((void *)desc.a.shape.row_sizes.data, counts, sizeof counts);
            for (int direct = 0; direct < 2; direct++) {
                MUST(cudaMemset(desc.d.data, 0xFF, bytes));
                MUST(cudaMemset(desc.options.workspace, 0xEE, desc.options.workspace_bytes));
                if (!direct) {
                    MUST(cudaGraphLaunch(replay, stream));
                } else {
                    ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, stream));
                    ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, stream, &p.error));
                }
                MUST(cudaStreamSynchronize(stream));
                MUST(cudaMemcpy(direct ? eager : replayed, desc.d.data, bytes, cudaMemcpyDeviceToHost));
            }
            ASSERT_EQ(0, memcmp(eager, replayed, bytes));
            for (size_t i = 0; i < bytes; i++) written += eager[i] != 0xFF;
        }
        ASSERT_GT(written, 0);
        MUST(cudaGraphExecDestroy(replay));
        MUST(cudaGraphDestroy(graph));
        MUST(cudaStreamDestroy(stream));
        free(eager);
        free(replayed);
        problem_release(&p);
    }
}

/* Every algorithm that the library offers for a plan gives the product, and tegroup_plan_tune keeps one of them. */
TEST(cublaslt_formats, every_offer_is_right) {
    static const int pairs[][2] = {{0, 0}, {2, 3}, {2, 2}};
    cudaEvent_t events[2];
    int64_t offered = 0;
    if (!fp8_here()) return;
    for (int i = 0; i < 2; i++) MUST(cudaEventCreate(&events[i]));
    for (int i = 0; i < 9; i++) {
        rng r = rng_seed(8300 + (uint64_t)i);
        problem p;
        quantised q[2];
        do {
            while (!lt_problem(&p, &r, &scaling_rows[pairs[i % 3][0]], &scaling_rows[pairs[i % 3][1]], (tegroup_op)(1 + i / 3), q, 0, 80, 256)) {}
            if (p.s.groups > 1 && p.capacity > 0 && p.s.c == C_NONE) break;
            problem_release(&p);
        } while (1);
        const int64_t terms = p.s.op == TEGROUP_OP_FORWARD ? p.s.k : p.s.op == TEGROUP_OP_DGRAD ? p.s.n : 1;
        sum_rounding = terms <= 128 ? 0x1p-13 : 0x1p-13 * 135 / (double)(terms + 7) + 0x1p-23;
        problem_reference(&p);
        mirror_up(p.mark);
        tegroup_gemm_desc desc = desc_to_device(&p.desc);
        desc.options.backend = grouped;
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
        desc.options.workspace_bytes = p.plan.workspace_bytes;
        desc.options.workspace = workspace_of(p.plan.workspace_bytes);
        ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, NULL));
        tegroup_tune_desc tune;
        float times[TEGROUP_TUNE_CANDIDATES];
        tegroup_plan tuned = p.plan;
        tegroup_impl_choices offers;
        memset(&tune, 0, sizeof tune);
        tune.struct_size = sizeof tune;
        tune.gemm = &desc;
        tune.overwrite = tune.any_numerics = 1;
        tune.rounds = 3;
        tune.begin = events[0];
        tune.end = events[1];
        tune.milliseconds = times;
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_tune(&tuned, &tune, NULL, &p.error));
        ASSERT_EQ(TEGROUP_OK, tegroup_impl_choices_of(&p.plan, &desc, &offers, &p.error));
        const tegroup_impl_choice kept = tegroup_impl_chosen(&tuned);
        int among = 0;
        for (int c = 0; c < offers.count; c++) {
            tegroup_plan plan = p.plan;
            among |= memcmp(&offers.list[c], &kept, sizeof kept) == 0;
            ASSERT_EQ(TEGROUP_OK, tegroup_impl_take_choice(&plan, &offers.list[c], &p.error));
            ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&plan, &desc, NULL, &p.error));
            MUST(cudaDeviceSynchronize());
            mirror_down();
            const verdict v = problem_compare(&p);
            if (!(v.worst <= 1)) fprintf(stderr, "offer %d of %d, %s x %s, op %d: error/bound %g\n", c, offers.count, name_of(q[0].f), name_of(q[1].f), (int)p.s.op, v.worst);
            ASSERT_TRUE(v.worst <= 1);
            ASSERT_EQ(0, problem_disturbed(&p) + guards_changed() + workspace_guards_changed());
        }
        ASSERT_TRUE(among);
        offered += offers.count;
        problem_release(&p);
    }
    printf("%ld algorithms offered for 9 problems\n", (long)offered);
    for (int i = 0; i < 2; i++) MUST(cudaEventDestroy(events[i]));
}

/* A call names the copy that it lacks, though the other would have the values, and scales that the library cannot read. */
TEST(cublaslt_formats, what_a_call_refuses) {
    rng r = rng_seed(8200);
    if (!fp8_here()) return;
    for (int step = 0; step < 4; step++) {
        problem p;
        quantised q[2];
        tegroup_error error;
        const int f = step == 0 ? 0 : 2;
        do {
            while (!lt_problem(&p, &r, &scaling_rows[f], &scaling_rows[f], step == 0 ? TEGROUP_OP_WGRAD : TEGROUP_OP_FORWARD, q, 0, 40, 64)) {}
            if (p.s.groups > 0 && p.capacity > 0 && p.s.lists == 0) break;
            problem_release(&p);
        } while (1);
        mirror_up(p.mark);
        tegroup_gemm_desc desc = desc_to_device(&p.desc);
        desc.options.backend = grouped;
        desc.options.check_level = TEGROUP_CHECK_HOST;
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &error));
        desc.options.workspace_bytes = p.plan.workspace_bytes;
        desc.options.workspace = workspace_of(p.plan.workspace_bytes);
        ASSERT_EQ(TEGROUP_OK, tegroup_gemm_check(&p.plan, &desc, &error));
        if (step == 0) { desc.b.data = desc.b.columnwise_data; desc.b.scale_inv = desc.b.columnwise_scale_inv; desc.b.columnwise_data = NULL; }
        if (step == 1) desc.a.scale_inv = (char *)desc.a.scale_inv + 4;
        if (step == 2) desc.b.data = (char *)desc.b.data + 8;
        if (step == 3) desc.b.scale_parts = 2;
        const char *fields[] = {"b.columnwise_data", "a.scale_inv", "b.data", "b.scale_parts"};
        const tegroup_status statuses[] = {TEGROUP_ERROR_NULL_ARGUMENT, TEGROUP_ERROR_ALIGNMENT, TEGROUP_ERROR_ALIGNMENT, TEGROUP_ERROR_PLAN};
        ASSERT_EQ(statuses[step], tegroup_gemm(&p.plan, &desc, NULL, &error));
        ASSERT_STREQ(fields[step], error.field);
        MUST(cudaDeviceSynchronize());
        mirror_down();
        ASSERT_EQ(0, problem_disturbed(&p) + guards_changed());
        problem_release(&p);
    }
}

TEST_MAIN()
