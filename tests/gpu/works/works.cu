/* Ways in which the library is used, on every backend that is here: threads and streams, another device, leading dimensions,
 * scalars in every place, results and operands past 2^31 elements, a limit on multiprocessors. Link with cuBLASLt. */
#define TEGROUP_IMPLEMENTATION
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "../backends.h"
#include "test.h"
#include <thread>
#include <vector>

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};

#define EACH_BACKEND(b)                                                                                                \
    for (int b = 0; b < BACKENDS; b++)                                                                                 \
        if (backend_here(backends[b]))

static void set_product(product *p, tegroup_backend backend, tegroup_op op, tegroup_dtype out, int32_t groups, const int64_t *counts, int64_t rows, int64_t n, int64_t k) {
    memset(p, 0, sizeof *p);
    p->op = op;
    p->in = TEGROUP_DTYPE_BF16;
    p->out = out;
    p->groups = groups;
    p->rows = rows;
    p->n = n;
    p->k = k;
    p->seed = 3;
    product_make(p, backend);
    product_counts(p, counts);
}

/* Threads with a stream, a workspace, a snapshot and results of their own share one plan for each operation. */
TEST(works, concurrent_threads_and_streams) {
    enum { THREADS = 8, RUNS = 25 };
    static const int64_t counts[5] = {130, 0, 64, 1, 300};
    EACH_BACKEND(b) {
        std::vector<product> products(THREADS * 3);
        std::vector<std::thread> threads;
        uint64_t want[3];
        int wrong[THREADS] = {0};
        for (int i = 0; i < THREADS * 3; i++) {
            set_product(&products[i], backends[b], ops[i % 3], TEGROUP_DTYPE_F32, 5, counts, 512, 136, 264);
            if (i < 3) ASSERT_EQ(TEGROUP_OK, product_plan(&products[i]));
            else product_workspace(&products[i], &products[i % 3].plan);
        }
        for (int op = 0; op < 3; op++) {
            ASSERT_EQ(TEGROUP_OK, product_run(&products[op], &products[op].plan, NULL));
            want[op] = product_hash(&products[op], NULL);
        }
        MUST(cudaDeviceSynchronize());
        for (int t = 0; t < THREADS; t++)
            threads.emplace_back([&, t] {
                cudaStream_t stream;
                MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
                for (int i = 0; i < RUNS; i++)
                    for (int op = 0; op < 3; op++) {
                        product *p = &products[t * 3 + op];
                        product_poison(p, stream);
                        if (product_run(p, &products[op].plan, stream) != TEGROUP_OK) wrong[t]++;
                        else wrong[t] += product_hash(p, stream) != want[op];
                    }
                MUST(cudaStreamDestroy(stream));
            });
        for (int t = 0; t < THREADS; t++) threads[t].join();
        for (int t = 0; t < THREADS; t++) ASSERT_EQ(0, wrong[t]);
        for (int i = 0; i < THREADS * 3; i++) product_free(&products[i]);
    }
}

/* A thread in which no context is current yet, because nothing of CUDA was called there. */
TEST(works, first_call_of_a_thread) {
    static const int64_t counts[2] = {20, 130};
    EACH_BACKEND(b)
    for (int op = 0; op < 3; op++) {
        product p;
        tegroup_status status = TEGROUP_ERROR_CUDA;
        set_product(&p, backends[b], ops[op], TEGROUP_DTYPE_F32, 2, counts, 150, 64, 64);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
        const uint64_t want = product_hash(&p, NULL);
        product_poison(&p, NULL);
        MUST(cudaDeviceSynchronize());
        std::thread([&] { status = tegroup_gemm(&p.plan, &p.desc, NULL, &p.error); }).join();
        ASSERT_EQ(TEGROUP_OK, status);
        ASSERT_EQ(want, product_hash(&p, NULL));
        product_free(&p);
    }
}

/* How far apart groups lie means nothing where there is one. */
TEST(works, stride_of_one_group) {
    static const int64_t counts[1] = {70};
    EACH_BACKEND(b)
    for (int op = 0; op < 3; op++) {
        product p;
        set_product(&p, backends[b], ops[op], TEGROUP_DTYPE_F32, 1, counts, 80, 64, 64);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
        const uint64_t want = product_hash(&p, NULL);
        product_poison(&p, NULL);
        (ops[op] == TEGROUP_OP_WGRAD ? p.desc.d : p.desc.b).group_stride = 64 * 64 + 1;
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
        ASSERT_EQ(want, product_hash(&p, NULL));
        product_free(&p);
    }
}

/* A plan belongs to the device that was current when it was made. */
TEST(works, plan_on_another_device) {
    static const int64_t counts[2] = {20, 30};
    int devices = 0;
    MUST(cudaGetDeviceCount(&devices));
    EACH_BACKEND(b) {
        product p;
        set_product(&p, backends[b], TEGROUP_OP_FORWARD, TEGROUP_DTYPE_F32, 2, counts, 64, 64, 64);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        ASSERT_EQ(TEGROUP_OK, product_prepare(&p, NULL));
        const uint64_t untouched = product_hash(&p, NULL);
        tegroup_plan plan = p.plan;
        if (devices > 1) MUST(cudaSetDevice(1));
        else plan.device++;
        ASSERT_EQ(TEGROUP_ERROR_PLAN, tegroup_gemm(&plan, &p.desc, NULL, &p.error));
        ASSERT_STREQ("plan.device", p.error.field);
        ASSERT_EQ(plan.device, (int)p.error.expected);
        MUST(cudaSetDevice(0));
        ASSERT_EQ(untouched, product_hash(&p, NULL));
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
        ASSERT_NE(untouched, product_hash(&p, NULL));
        product_free(&p);
    }
    printf("plan_on_another_device: %s\n", devices > 1 ? "two devices" : "one device, and a plan that names another");
}

/* Operands and results whose rows lie further apart than they are wide. */
TEST(works, leading_dimensions) {
    rng r = rng_seed(5001);
    static const int64_t pads[] = {8, 24, 120};
    EACH_BACKEND(b)
    for (int op = 0; op < 3; op++)
        for (int i = 0; i < 9; i++) {
            void *mark = guards_mark();
            const int64_t m[4] = {rng_int(&r, 0, 90), 0, 1, 128};
            problem p;
            spec s;
            memset(&s, 0, sizeof s);
            s.op = ops[op];
            s.groups = 4;
            s.m = m;
            s.n = 8 * rng_int(&r, 1, 20);
            s.k = 8 * rng_int(&r, 1, 20);
            s.in = i % 2 ? TEGROUP_DTYPE_F16 : TEGROUP_DTYPE_BF16;
            s.out = i % 3 ? TEGROUP_DTYPE_F32 : s.in;
            s.pad = pads[i % 3] + (backends[b] == TEGROUP_BACKEND_PORTABLE ? i % 2 : 0);
            s.aligned = 1;
            s.c = (c_kind)(i % 4);
            s.beta = SCALARS_ONE;
            s.seed = rng_next(&r);
            if (backends[b] == TEGROUP_BACKEND_CUBLASLT_LOOP) s.out = s.in, s.rounds_product = 1; /* what every version has */
            problem_make(&p, &s);
            p.desc.options.backend = backends[b];
            problem_reference(&p);
            ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
            const verdict v = problem_compare(&p);
            ASSERT_TRUE(v.worst <= 1);
            ASSERT_EQ(0, problem_disturbed(&p));
            guards_release(mark);
        }
}

/* alpha and beta: on the host or the device, one or one a group, F32 or F64. Where all groups have the same two the bits agree
 * among all the ways whose plans have one numerics_id; where they differ the result is checked by the bound. */
TEST(works, scalars_in_every_place) {
    const int64_t m[3] = {40, 0, 17};
    EACH_BACKEND(b) {
        unsigned char *first = NULL;
        uint64_t first_id = 0;
        int taken = 0;
        for (int way = 0; way < 8; way++) { /* bits: 1 device, 2 one a group, 4 F64 */
            for (int equal = 0; equal < 2; equal++) {
                void *mark = guards_mark();
                problem p;
                spec s;
                memset(&s, 0, sizeof s);
                s.op = TEGROUP_OP_FORWARD;
                s.groups = 3;
                s.m = m;
                s.n = 40;
                s.k = 72;
                s.in = TEGROUP_DTYPE_BF16;
                s.out = TEGROUP_DTYPE_F32;
                s.c = C_SEPARATE;
                s.aligned = 1;
                s.seed = 12;
                s.alpha = s.beta = way & 2 ? SCALARS_EACH : SCALARS_ONE;
                s.scalar_dtype = way & 4 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
                problem_make(&p, &s);
                grid_fill(&p, &p.c, 'c', s.fill_c, 1); /* also where a drawn beta was 0: it may be replaced below */
                p.desc.options.backend = backends[b];
                for (int g = 0; g < (way & 2 ? 3 : 1); g++) {
                    store(p.desc.alpha.dtype, p.alpha, g, equal ? 1.5 : -0.75 + g);
                    store(p.desc.beta.dtype, p.beta, g, equal ? 0.375 : 2 - g * 0.5);
                }
                for (guarded_node *node = guarded_top; node != (guarded_node *)p.mark; node = node->older)
                    if (!node->scratch) guarded_remember(node->data);
                problem_reference(&p);
                mirror_up(p.mark);
                tegroup_gemm_desc desc = desc_to_device(&p.desc);
                desc.alpha.space = desc.beta.space = way & 1 ? TEGROUP_SPACE_DEVICE : TEGROUP_SPACE_HOST;
                desc.alpha.data = way & 1 ? device_of(p.alpha) : p.alpha;
                desc.beta.data = way & 1 ? device_of(p.beta) : p.beta;
                const tegroup_status status = tegroup_plan_make(&desc, NULL, &p.plan, &p.error);
                if (status != TEGROUP_OK) { /* the field says which of the two, and of what */
                    ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, status);
                    ASSERT_TRUE(strncmp(p.error.field, "alpha.", 6) == 0 || strncmp(p.error.field, "beta.", 5) == 0);
                    printf("%s refuses scalars %s, %s, %s: %s %s\n", tegroup_backend_name(backends[b]), way & 1 ? "on the device" : "on the host",
                           way & 2 ? "one a group" : "one for all", way & 4 ? "F64" : "F32", p.error.field, p.error.rule);
                    ASSERT_TRUE(way != 0 && (!backend_bundled(backends[b]) || (way & 3) == 2)); /* a kernel cannot read an array on the host */
                } else {
                    desc.options.workspace_bytes = p.plan.workspace_bytes;
                    desc.options.workspace = workspace_of(desc.options.workspace_bytes);
                    ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, NULL));
                    ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, NULL, &p.error));
                    MUST(cudaDeviceSynchronize());
                    mirror_down();
                    const verdict v = problem_compare(&p);
                    ASSERT_TRUE(v.worst <= 1);
                    const size_t bytes = guarded_find(p.d.tensor.data)->bytes;
                    if (equal && first == NULL) {
                        first = (unsigned char *)malloc(bytes);
                        memcpy(first, p.d.tensor.data, bytes);
                        first_id = p.plan.numerics_id;
                    }
                    if (backend_bundled(backends[b])) ASSERT_EQ(true, first == NULL || first_id == p.plan.numerics_id);
                    if (equal && first_id == p.plan.numerics_id) ASSERT_EQ(0, memcmp(first, p.d.tensor.data, bytes));
                    ASSERT_EQ(0, problem_disturbed(&p));
                    taken++;
                }
                guards_release(mark);
            }
        }
        free(first);
        ASSERT_GE(taken, backend_bundled(backends[b]) ? 12 : 2);
    }
}

/* More elements than an int32 counts, in D and (FORWARD and DGRAD with a tail) in what follows it. */
TEST(works, results_past_2_31_elements) {
    static const int64_t tall[3] = {200001, 0, 339000}, wide[8] = {64, 0, 64, 1, 100, 64, 64, 64};
    size_t free_bytes, all_bytes;
    MUST(cudaMemGetInfo(&free_bytes, &all_bytes));
    if (free_bytes < ((size_t)8 << 30)) SKIP("needs a GPU with 8 GiB of free memory");
    EACH_BACKEND(b)
    for (int op = 0; op < 3; op++) {
        product p;
        rng r = rng_seed(5002);
        int64_t disturbed;
        if (ops[op] == TEGROUP_OP_WGRAD) set_product(&p, backends[b], ops[op], TEGROUP_DTYPE_BF16, 8, wide, 512, 16384, 16640);
        else set_product(&p, backends[b], ops[op], TEGROUP_DTYPE_BF16, 3, tall, 540000, op == 0 ? 4096 : 64, op == 0 ? 64 : 4096);
        ASSERT_GT(p.d_count, INT64_C(1) << 31);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        product_poison(&p, NULL);
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
        MUST(cudaDeviceSynchronize());
        const verdict v = product_sample(&p, 100000, &r, &disturbed);
        ASSERT_TRUE(v.worst <= 1);
        ASSERT_EQ(0, disturbed);
        product_free(&p);
    }
}

/* The same in what is read: ragged operands, of which the last groups lie past 2^31 elements, and weights. */
TEST(works, operands_past_2_31_elements) {
    enum { MANY = 60, FEW = 8 };
    static const int64_t few[FEW] = {64, 0, 64, 1, 100, 64, 64, 64};
    static const struct { tegroup_op op; int32_t groups; int64_t rows, n, k; } cases[] = {
        {TEGROUP_OP_FORWARD, MANY, 540000, 64, 4096}, {TEGROUP_OP_DGRAD, MANY, 540000, 4096, 64}, {TEGROUP_OP_WGRAD, MANY, 540000, 4096, 64},
        {TEGROUP_OP_WGRAD, MANY, 540000, 64, 4096},   {TEGROUP_OP_FORWARD, FEW, 512, 16384, 16640}, {TEGROUP_OP_DGRAD, FEW, 512, 16384, 16640}};
    int64_t many[MANY];
    size_t free_bytes, all_bytes;
    for (int g = 0; g < MANY; g++) many[g] = g % 10 == 3 ? 0 : g % 10 == 4 ? 17990 - g : 8990 - g;
    MUST(cudaMemGetInfo(&free_bytes, &all_bytes));
    if (free_bytes < ((size_t)8 << 30)) SKIP("needs a GPU with 8 GiB of free memory");
    EACH_BACKEND(b)
    for (int i = 0; i < 6 && backend_bundled(backends[b]); i++) {
        product p;
        rng r = rng_seed(5003);
        int64_t disturbed;
        set_product(&p, backends[b], cases[i].op, i % 2 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16, cases[i].groups, cases[i].groups == MANY ? many : few, cases[i].rows,
                    cases[i].n, cases[i].k);
        ASSERT_LE(p.filled, p.rows);
        ASSERT_GT(p.a_count > p.b_count ? p.a_count : p.b_count, INT64_C(1) << 31);
        if (cases[i].groups == MANY) ASSERT_GT(p.start[MANY - 1] * 4096, INT64_C(1) << 31);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        product_poison(&p, NULL);
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
        MUST(cudaDeviceSynchronize());
        const verdict v = product_sample(&p, 3000, &r, &disturbed);
        ASSERT_TRUE(v.worst <= 1);
        ASSERT_EQ(0, disturbed);
        product_free(&p);
    }
}

static float milliseconds(product *p, const tegroup_plan *plan) {
    cudaEvent_t from, to;
    float best = INFINITY;
    MUST(cudaEventCreate(&from));
    MUST(cudaEventCreate(&to));
    for (int i = 0; i < 6; i++) {
        float time;
        MUST(cudaEventRecord(from, NULL));
        if (tegroup_gemm(plan, &p->desc, NULL, &p->error) != TEGROUP_OK) exit(1);
        MUST(cudaEventRecord(to, NULL));
        MUST(cudaEventSynchronize(to));
        MUST(cudaEventElapsedTime(&time, from, to));
        if (i > 0 && time < best) best = time;
    }
    MUST(cudaEventDestroy(from));
    MUST(cudaEventDestroy(to));
    return best;
}

/* sm_limit is refused by name, or kept: a product that every multiprocessor works on takes about as many times longer as
 * there are fewer of them, and comes out the same. */
TEST(works, sm_limit) {
    static const int64_t counts[8] = {512, 512, 512, 512, 512, 512, 512, 512};
    int multiprocessors, device;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    EACH_BACKEND(b) {
        product p;
        tegroup_plan few;
        set_product(&p, backends[b], TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, 8, counts, 4096, 4096, 2048);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
        const uint64_t want = product_hash(&p, NULL);
        p.desc.options.sm_limit = 8;
        const tegroup_status status = tegroup_plan_make(&p.desc, NULL, &few, &p.error);
        if (status != TEGROUP_OK) {
            ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, status);
            ASSERT_STREQ("options.sm_limit", p.error.field);
            printf("%s refuses sm_limit\n", tegroup_backend_name(backends[b]));
        } else {
            ASSERT_EQ(8, few.sm_limit);
            p.desc.options.sm_limit = 0;
            const float all = milliseconds(&p, &p.plan);
            p.desc.options.sm_limit = 8;
            MUST(cudaFree(p.desc.options.workspace));
            p.desc.options.workspace = NULL;
            product_workspace(&p, &few);
            product_poison(&p, NULL);
            const float limited = milliseconds(&p, &few);
            printf("%s: %.3f ms on %d multiprocessors, %.3f ms on 8\n", tegroup_backend_name(backends[b]), (double)all, multiprocessors, (double)limited);
            ASSERT_TRUE(limited > all * (float)multiprocessors / 8 / 3);
            if (few.numerics_id == p.plan.numerics_id) ASSERT_EQ(want, product_hash(&p, NULL));
        }
        product_free(&p);
    }
}

TEST_MAIN()
