/* The same products in every kind of build. Prints "hash NAME NUMERICS_ID BITS" for each: builds whose numerics_id agree must
 * agree in the bits. With EXPECT_NOT_BUILT the build is for another architecture alone, and says so before a launch. Switches leave out
 * some of the products, and those alone. */
#define TEGROUP_IMPLEMENTATION
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "../product.h"
#include "test.h"
#include <thread>
#include <vector>

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
static const tegroup_dtype types[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32};

static bool left_out(tegroup_op op, tegroup_dtype in) {
    bool out = false;
#if defined(TEGROUP_NO_F16)
    out |= in == TEGROUP_DTYPE_F16;
#endif
#if defined(TEGROUP_NO_BACKWARD)
    out |= op != TEGROUP_OP_FORWARD;
#endif
    return (void)op, (void)in, out;
}

static void set_product(product *p, tegroup_backend backend, tegroup_op op, tegroup_dtype in, tegroup_dtype out, int64_t rows, int64_t n, int64_t k) {
    const int64_t counts[4] = {rows, 0, rows / 2, 1};
    memset(p, 0, sizeof *p);
    p->op = op;
    p->in = in;
    p->out = out;
    p->groups = 4;
    p->rows = 2 * rows + 10;
    p->n = n;
    p->k = k;
    p->seed = 9;
    product_make(p, backend);
    product_counts(p, counts);
}

#if defined(EXPECT_NOT_BUILT)

TEST(variant, other_architecture_is_not_built) {
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    const tegroup_shape rows = tegroup_shape_of(4, 64, 64, sizes);
    for (int op = 0; op < 3; op++)
        for (int in = 0; in < 3; in++) {
            tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
            tegroup_gemm_desc desc;
            tegroup_error error;
            tegroup_plan plan;
            memset(&desc, 0, sizeof desc); /* no memory is needed, and no kernel of this file's would run */
            desc.struct_size = sizeof desc;
            desc.op = ops[op];
            desc.space = TEGROUP_SPACE_DEVICE;
            desc.options.backend = TEGROUP_BACKEND_PORTABLE;
            desc.a = tegroup_tensor_of(rows, 64, types[in], NULL);
            desc.b = op == 2 ? desc.a : tegroup_tensor_uniform(4, 64, 64, types[in], NULL);
            desc.d = op == 2 ? tegroup_tensor_uniform(4, 64, 64, TEGROUP_DTYPE_F32, NULL)
                             : tegroup_tensor_of(rows, 64, TEGROUP_DTYPE_F32, NULL);
            ASSERT_EQ(TEGROUP_ERROR_NOT_BUILT, tegroup_plan_make(&desc, NULL, &plan, &error));
            ASSERT_TRUE(error.field != NULL && error.rule != NULL);
            ASSERT_EQ(TEGROUP_OK, tegroup_explain(&desc, NULL, verdicts, &error));
            for (int v = 0; v < TEGROUP_BACKEND_COUNT - 1; v++)
                if (verdicts[v].backend == TEGROUP_BACKEND_PORTABLE) ASSERT_EQ(TEGROUP_ERROR_NOT_BUILT, verdicts[v].status);
        }
    ASSERT_EQ(cudaSuccess, cudaGetLastError());
}

#else

/* Builds without code for sm_90a say so, and do without it. */
TEST(variant, hopper_kernels) {
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
    product p;
    set_product(&p, TEGROUP_BACKEND_AUTO, TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16, 16, 64, 64);
    ASSERT_EQ(TEGROUP_OK, tegroup_explain(&p.desc, NULL, verdicts, &p.error));
    const tegroup_status planned = product_plan(&p);
    if (planned != TEGROUP_OK) fprintf(stderr, "%s %s (native %d)\n", p.error.field, p.error.rule, (int)p.error.native);
    ASSERT_EQ(TEGROUP_OK, planned);
    for (int v = 0; v < TEGROUP_BACKEND_COUNT - 1; v++)
        if (verdicts[v].backend == TEGROUP_BACKEND_SM90) ASSERT_EQ(EXPECT_SM90 ? TEGROUP_OK : TEGROUP_ERROR_NOT_BUILT, verdicts[v].status);
    ASSERT_EQ(EXPECT_SM90 ? TEGROUP_BACKEND_SM90 : TEGROUP_BACKEND_PORTABLE, p.plan.backend);
    product_free(&p);
}

TEST(variant, products) {
    static const int64_t shapes[][3] = {{1, 72, 40}, {16, 17, 23}, {40, 200, 264}, {150, 136, 96}};
    for (int op = 0; op < 3; op++)
        for (int in = 0; in < 3 + 2 * EXPECT_SM90; in++) /* the last two on the Hopper backend */
            for (int shape = 0; shape < 4; shape++) {
                product p;
                int64_t disturbed;
                if (in >= 3 && shape == 1) continue; /* rows of whole 16 bytes */
                set_product(&p, in < 3 ? TEGROUP_BACKEND_PORTABLE : TEGROUP_BACKEND_SM90, ops[op], types[in % 3], (op + shape) % 2 == 0 ? TEGROUP_DTYPE_F32 : types[in % 3], shapes[shape][0], shapes[shape][1], shapes[shape][2]);
                const tegroup_status status = product_plan(&p);
                if (left_out(ops[op], types[in % 3])) {
                    ASSERT_EQ(TEGROUP_ERROR_NOT_BUILT, status);
                    ASSERT_TRUE(strstr(p.error.rule, "in a build with TEGROUP_NO_") != NULL);
                    product_free(&p);
                    continue;
                }
                if (status != TEGROUP_OK) fprintf(stderr, "%s %s\n", p.error.field, p.error.rule);
                ASSERT_EQ(TEGROUP_OK, status);
                ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
                const uint64_t hash = product_hash(&p, NULL);
                const verdict v = product_compare(&p, &disturbed);
                ASSERT_TRUE(v.worst <= 1);
                ASSERT_EQ(0, disturbed);
                printf("hash %d/%d/%d %016llx %016llx\n", op, in, shape, (unsigned long long)p.plan.numerics_id, (unsigned long long)hash);
                product_free(&p);
            }
}

/* Each thread on its default stream: one for all of them, or with --default-stream per-thread one each. Nothing but the
 * stream orders a thread's poison, prepare, product and copy. */
TEST(variant, default_streams) {
    enum { THREADS = 8, RUNS = 20 };
    std::vector<product> products(THREADS);
    std::vector<std::thread> threads;
    uint64_t want = 0;
    int wrong[THREADS] = {0};
    for (int t = 0; t < THREADS; t++) {
        set_product(&products[t], TEGROUP_BACKEND_AUTO, TEGROUP_OP_FORWARD, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F32, 100, 136, 264);
        ASSERT_EQ(TEGROUP_OK, product_plan(&products[t]));
    }
    ASSERT_EQ(TEGROUP_OK, product_run(&products[0], &products[0].plan, NULL));
    want = product_hash(&products[0], NULL);
    MUST(cudaDeviceSynchronize());
    for (int t = 0; t < THREADS; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < RUNS; i++) {
                product *p = &products[t];
                product_poison(p, NULL);
                if (product_run(p, &products[0].plan, NULL) != TEGROUP_OK) wrong[t]++;
                else wrong[t] += product_hash(p, NULL) != want;
            }
        });
    for (int t = 0; t < THREADS; t++) threads[t].join();
    for (int t = 0; t < THREADS; t++) {
        ASSERT_EQ(0, wrong[t]);
        product_free(&products[t]);
    }
}

/* A prepare and a product, captured and replayed over poison. */
TEST(variant, capture) {
    product p;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t step;
    const bool whole = !left_out(TEGROUP_OP_WGRAD, TEGROUP_DTYPE_F16);
    set_product(&p, TEGROUP_BACKEND_AUTO, whole ? TEGROUP_OP_WGRAD : TEGROUP_OP_FORWARD, whole ? TEGROUP_DTYPE_F16 : TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F32, 100, 136, 264);
    ASSERT_EQ(TEGROUP_OK, product_plan(&p));
    ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
    const uint64_t want = product_hash(&p, NULL);
    MUST(cudaStreamCreate(&stream));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, stream));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&step, graph, 0));
    product_poison(&p, stream);
    MUST(cudaGraphLaunch(step, stream));
    ASSERT_EQ(want, product_hash(&p, stream));
    MUST(cudaGraphExecDestroy(step));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    product_free(&p);
}

#endif

TEST_MAIN()
