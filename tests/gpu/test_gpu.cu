/* The portable backend on a GPU: prepare against the host bit for bit, products against an FP64 reference by the bound of
 * tests/unit/support.h, with truncating tensor-core sums allowed for. */
#define TEGROUP_IMPLEMENTATION
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "mirror.h"
#include "utest.h"

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
static struct { double worst; int64_t problems, elements, snapshots; } totals;

static const char *run_and_check(const spec *s) {
    static char message[200];
    problem p;
    const char *wrong = "";
    problem_make(&p, s);
    problem_reference(&p);
    if (problem_run_on_device(&p) != TEGROUP_OK) {
        snprintf(message, sizeof message, "refused: %s %s", p.error.field, p.error.rule);
        wrong = message;
    } else {
        verdict v = problem_compare(&p), b = problem_compare_bias(&p);
        int64_t changed = guards_changed(), disturbed = problem_disturbed(&p);
        totals.worst = v.worst > totals.worst ? v.worst : totals.worst;
        totals.elements += v.count + b.count;
        totals.problems++;
        if (!(v.worst <= 1) || !(b.worst <= 1)) {
            snprintf(message, sizeof message, "error/bound %g, bias gradient %g", v.worst, b.worst);
            wrong = message;
        } else if (p.s.out == TEGROUP_DTYPE_F32 && !gate_holds(v)) wrong = "99.9th percentile of error/bound is not below 1/4";
        else if (changed != 0) wrong = "guard bytes changed";
        else if (disturbed != 0) wrong = "bytes changed that are not the result's";
    }
    if (wrong[0] != 0)
        fprintf(stderr, "%s: op %d groups %d n %ld k %ld encoding %d place %d pack %d ng %d kg %d in %d out %d pad %ld lists %d alpha %d beta %d c %d bias %d tail %d seed %llu\n",
                wrong, (int)s->op, s->groups, (long)s->n, (long)s->k, (int)s->encoding, (int)s->place, (int)s->pack, s->ng != NULL, s->kg != NULL, (int)s->in,
                (int)s->out, (long)s->pad, s->lists, s->alpha, s->beta, (int)s->c, s->bias, (int)s->tail, (unsigned long long)s->seed);
    problem_release(&p);
    return wrong;
}

/* What the GPU has no type for, in terms that it has. */
static void for_gpu(rng *r, spec *s) {
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32};
    s->compute = TEGROUP_COMPUTE_F32;
    s->split_k = 0;
    if (s->in == TEGROUP_DTYPE_F64) s->in = types[rng_int(r, 0, 2)];
    if (s->out == TEGROUP_DTYPE_F64 || s->out == TEGROUP_DTYPE_UNSET) s->out = types[rng_int(r, 0, 2)];
    if (s->bias_dtype == TEGROUP_DTYPE_F64) s->bias_dtype = TEGROUP_DTYPE_UNSET;
}

UTEST(gpu, random_problems) {
    rng r = rng_seed(2001);
    for (int64_t i = scaled(2000); i > 0; i--) {
        void *mark = guards_mark();
        spec s = random_spec(&r, ops[rng_int(&r, 0, 2)], 60, 90);
        for_gpu(&r, &s);
        ASSERT_STREQ("", run_and_check(&s));
        guards_release(mark);
    }
}

UTEST(gpu, tile_edges) {
    rng r = rng_seed(2002);
    static const int64_t edges[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 257};
    for (int64_t i = scaled(200); i > 0; i--) {
        void *mark = guards_mark();
        int64_t m[3];
        spec s;
        memset(&s, 0, sizeof s);
        s.op = ops[rng_int(&r, 0, 2)];
        s.in = rng_chance(&r, 50) ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16;
        s.out = rng_chance(&r, 50) ? TEGROUP_DTYPE_F32 : s.in;
        s.groups = 3;
        for (int g = 0; g < 3; g++) m[g] = edges[rng_int(&r, 0, 13)];
        s.m = m;
        s.n = edges[rng_int(&r, 0, 13)];
        s.k = edges[rng_int(&r, 0, 13)];
        s.pad = rng_chance(&r, 50) ? 8 - s.n % 8 : 0;
        s.seed = rng_next(&r);
        ASSERT_STREQ("", run_and_check(&s));
        guards_release(mark);
    }
}

/* Snapshots made by the GPU equal the host's, byte for byte, honest sizes or not. */
UTEST(gpu, snapshots_equal_the_hosts) {
    rng r = rng_seed(2003);
    for (int64_t i = scaled(3000); i > 0; i--) {
        void *mark = guards_mark();
        int32_t groups = (int32_t)(rng_chance(&r, 5) ? rng_int(&r, 1000, 4096) : rng_int(&r, 0, 70));
        tegroup_prepare_desc desc;
        tegroup_layout layout;
        memset(&desc, 0, sizeof desc);
        desc.struct_size = sizeof desc;
        desc.space = TEGROUP_SPACE_HOST;
        desc.shape.groups = groups;
        desc.shape.rows = rng_int(&r, 0, 3000);
        desc.shape.cols = rng_int(&r, 0, 50);
        tegroup_sizes *sizes = &desc.shape.row_sizes;
        sizes->encoding = (tegroup_encoding)rng_int(&r, 1, 3);
        sizes->dtype = rng_chance(&r, 50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64;
        sizes->space = TEGROUP_SPACE_HOST;
        int64_t *values = (int64_t *)scratch((size_t)(groups + 1) * 8), *starts = (int64_t *)scratch((size_t)(groups + 1) * 8), sum = 0;
        int lies = rng_chance(&r, 60);
        for (int32_t g = 0; g <= groups; g++) {
            int64_t rows = rng_int(&r, 0, groups > 100 ? 2 : 60);
            values[g] = sizes->encoding == TEGROUP_ENCODING_COUNTS ? rows : (sum += g || sizes->encoding == TEGROUP_ENCODING_ENDS ? rows : 0);
            if (lies && rng_chance(&r, 10)) values[g] = rng_chance(&r, 50) ? rng_int(&r, -5, 4000) : (int64_t)rng_next(&r);
            starts[g] = rng_int(&r, lies ? -3 : 0, 3000);
        }
        sizes->data = index_array(sizes->dtype, values, groups + 1);
        if (sizes->encoding == TEGROUP_ENCODING_COUNTS && rng_chance(&r, 30)) sizes->starts = index_array(sizes->dtype, starts, groups + 1);
        else if (sizes->encoding == TEGROUP_ENCODING_COUNTS && rng_chance(&r, 30)) sizes->stride = rng_int(&r, 1, 60);
        else if (sizes->encoding != TEGROUP_ENCODING_OFFSETS && rng_chance(&r, 40)) sizes->alignment = rng_int(&r, 1, 64);
        if (rng_chance(&r, 40)) {
            int64_t *cols = (int64_t *)scratch((size_t)(groups + 1) * 8);
            for (int32_t g = 0; g <= groups; g++) cols[g] = rng_int(&r, lies ? -1 : 0, desc.shape.cols + lies);
            desc.shape.col_sizes = *sizes;
            desc.shape.col_sizes.encoding = TEGROUP_ENCODING_COUNTS;
            desc.shape.col_sizes.starts = NULL;
            desc.shape.col_sizes.stride = desc.shape.col_sizes.alignment = 0;
            desc.shape.col_sizes.data = index_array(sizes->dtype, cols, groups + 1);
            desc.shape.elements = rng_int(&r, 1, 100000);
            if (rng_chance(&r, 40)) {
                for (int32_t g = 0; g <= groups; g++) cols[g] = rng_int(&r, -2, desc.shape.elements);
                desc.shape.offsets = (const int64_t *)index_array(TEGROUP_DTYPE_I64, cols, groups + 1);
            } else if (rng_chance(&r, 30)) desc.ld = desc.shape.cols + rng_int(&r, 1, 9);
        }
        ASSERT_EQ(TEGROUP_OK, tegroup_snapshot_layout(&desc.shape, &layout, NULL));
        void *ours = guarded(layout.total_bytes), *theirs = guarded(layout.total_bytes);
        desc.snapshot = ours;
        desc.snapshot_bytes = layout.total_bytes;
        ASSERT_EQ(TEGROUP_OK, tegroup_prepare(&desc, NULL, NULL));
        mirror_up(mark);
        tegroup_prepare_desc device = desc;
        shape_to_device(&device.shape);
        device.space = TEGROUP_SPACE_DEVICE;
        device.snapshot = device_of(theirs);
        ASSERT_EQ(TEGROUP_OK, tegroup_prepare(&device, NULL, NULL));
        MUST(cudaDeviceSynchronize());
        mirror_down();
        ASSERT_EQ(0, memcmp(ours, theirs, layout.total_bytes));
        ASSERT_EQ(0, guards_changed());
        totals.snapshots++;
        guards_release(mark);
    }
}

/* The same rows in other company and with every tile: equal bits. */
UTEST(gpu, rows_keep_their_bits) {
    rng r = rng_seed(2004);
    for (int64_t i = scaled(40); i > 0; i--) {
        void *mark = guards_mark();
        int64_t rows[] = {1, 5, 16, 40, 64, 100, 300}, k = rng_int(&r, 1, 400), n = rng_int(&r, 1, 200);
        uint64_t seed = rng_next(&r);
        tegroup_op op = ops[rng_int(&r, 0, 1)];
        tegroup_dtype type = rng_chance(&r, 50) ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F16;
        unsigned char *first = NULL;
        size_t bytes = 0;
        for (int j = 0; j < 7; j++) {
            int64_t m[1] = {rows[j]};
            problem p;
            spec s;
            memset(&s, 0, sizeof s);
            s.op = op;
            s.in = type;
            s.out = TEGROUP_DTYPE_F32;
            s.groups = 1;
            s.m = m;
            s.n = n;
            s.k = k;
            s.seed = seed;
            problem_make(&p, &s);
            ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
            bytes = (size_t)(op == TEGROUP_OP_FORWARD ? n : k) * 4;
            if (first == NULL) {
                first = (unsigned char *)malloc(bytes);
                memcpy(first, p.d.at[0], bytes);
            }
            ASSERT_EQ(0, memcmp(first, p.d.at[0], bytes));
            problem_release(&p);
        }
        free(first);
        guards_release(mark);
    }
}

/* One captured graph, prepare inside, replayed with other sizes: as a fresh call gives. */
UTEST(gpu, graph_replays_with_other_sizes) {
    rng r = rng_seed(2005);
    void *mark = guards_mark();
    int64_t m[6] = {30, 0, 17, 64, 1, 20};
    problem p;
    spec s;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    memset(&s, 0, sizeof s);
    s.op = TEGROUP_OP_FORWARD;
    s.in = TEGROUP_DTYPE_BF16;
    s.out = TEGROUP_DTYPE_F32;
    s.groups = 6;
    s.m = m;
    s.n = 96;
    s.k = 200;
    s.tail_rows = 68;
    s.seed = 5;
    problem_make(&p, &s);
    mirror_up(p.mark);
    tegroup_gemm_desc desc = desc_to_device(&p.desc);
    desc.tail = TEGROUP_TAIL_ZERO;
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
    MUST(cudaStreamCreate(&stream));
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, stream));
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, stream, &p.error));
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&replay, graph, 0));
    size_t d_bytes = (size_t)(p.capacity * s.n) * 4;
    unsigned char *eager = (unsigned char *)malloc(d_bytes), *replayed = (unsigned char *)malloc(d_bytes);
    for (int i = 0; i < 100; i++) {
        int64_t left = p.capacity, counts[6];
        for (int g = 0; g < 6; g++) left -= counts[g] = rng_int(&r, 0, left < 60 ? left : 60);
        MUST(cudaMemcpy((void *)desc.a.shape.row_sizes.data, counts, sizeof counts, cudaMemcpyHostToDevice));
        MUST(cudaMemset(desc.d.data, 0xFF, d_bytes));
        MUST(cudaGraphLaunch(replay, stream));
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemcpy(replayed, desc.d.data, d_bytes, cudaMemcpyDeviceToHost));
        MUST(cudaMemset(desc.d.data, 0xFF, d_bytes));
        ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, stream));
        ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, stream, &p.error));
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemcpy(eager, desc.d.data, d_bytes, cudaMemcpyDeviceToHost));
        ASSERT_EQ(0, memcmp(eager, replayed, d_bytes));
    }
    MUST(cudaGraphExecDestroy(replay));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    free(eager);
    free(replayed);
    problem_release(&p);
    guards_release(mark);
}

/* A launch that CUDA refuses is ERROR_CUDA with CUDA's own number. Only a plan that somebody wrote over gets there. */
UTEST(gpu, refused_launches) {
    void *mark = guards_mark();
    int64_t m[2] = {3, 4};
    problem p;
    spec s;
    memset(&s, 0, sizeof s);
    s.op = TEGROUP_OP_FORWARD;
    s.in = s.out = TEGROUP_DTYPE_BF16;
    s.groups = 2;
    s.m = m;
    s.n = s.k = 16;
    problem_make(&p, &s);
    mirror_up(p.mark);
    tegroup_gemm_desc desc = desc_to_device(&p.desc);
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
    for (int i = 0; i < 2; i++) {
        tegroup_plan spoilt = p.plan;
        spoilt.algorithm[i == 0 ? TEGROUP_IMPL_PORTABLE_THREADS : TEGROUP_IMPL_PORTABLE_SHARED] = 1u << 20;
        ASSERT_EQ(TEGROUP_ERROR_CUDA, tegroup_gemm(&spoilt, &desc, NULL, &p.error));
        ASSERT_STREQ("stream", p.error.field);
        ASSERT_EQ((int)p.error.got, p.error.native);
        ASSERT_NE(0, p.error.native);
    }
    tegroup_gemm_desc lost = desc; /* host memory, told from device memory by the deep check alone */
    lost.check_level = TEGROUP_CHECK_DEEP;
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm_check(&p.plan, &lost, &p.error));
    lost.b.data = p.desc.b.data;
    ASSERT_EQ(TEGROUP_ERROR_VALUE, tegroup_gemm_check(&p.plan, &lost, &p.error));
    ASSERT_STREQ("b.data", p.error.field);
    tegroup_plan elsewhere = p.plan;
    elsewhere.device = p.plan.device + 1;
    ASSERT_EQ(TEGROUP_ERROR_PLAN, tegroup_gemm(&elsewhere, &desc, NULL, &p.error));
    ASSERT_EQ(cudaSuccess, cudaGetLastError());
    problem_release(&p);
    guards_release(mark);
}

UTEST(gpu, zz_totals) {
    printf("gpu: %ld problems, %ld elements, max error/bound %.3f; %ld snapshots equal\n", (long)totals.problems, (long)totals.elements, totals.worst,
           (long)totals.snapshots);
    ASSERT_TRUE(totals.problems > 0 && totals.snapshots > 0);
}

UTEST_MAIN()
