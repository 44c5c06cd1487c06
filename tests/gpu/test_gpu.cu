/* The GPU backends, each against an FP64 reference by the bound of tests/unit/support.h (with truncating tensor-core sums
 * allowed for) and against the contract; prepare against the host bit for bit. Link with cuBLASLt. */
#define TEGROUP_EXTERN
#define SUPPORT_SUM_ROUNDING 0x1p-23
#include "backends.h"
#include "graph.h"
#include "test.h"

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
static const tegroup_dtype halves[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16};

/* What comparisons add to, until a test of random problems begins again: error / bound. */
static struct { double worst; int64_t elements; } totals;
static char refusal[BACKENDS][200]; /* the last */

#define EACH_BACKEND(b)                                                                                                \
    for (int b = 0; b < BACKENDS; b++)                                                                                 \
        if (backend_here(backends[b]))

static int64_t multiple_of_8(int64_t x) { return (x + 7) / 8 * 8; }

/* A random problem in terms that the backend has: what it refuses by a rule of its table is not asked for. */
static void for_backend(rng *r, spec *s, tegroup_backend backend) {
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32};
    const int grouped = backend == TEGROUP_BACKEND_CUBLASLT_GROUPED;
    s->compute = TEGROUP_COMPUTE_F32;
    if (s->in == TEGROUP_DTYPE_F64 || (grouped && s->in == TEGROUP_DTYPE_F32) || s->in == TEGROUP_DTYPE_UNSET) s->in = types[rng_int(r, 0, grouped ? 1 : 2)];
    if (s->out == TEGROUP_DTYPE_F64 || s->out == TEGROUP_DTYPE_UNSET) s->out = types[rng_int(r, 0, 2)];
    if (s->bias_dtype == TEGROUP_DTYPE_F64) s->bias_dtype = TEGROUP_DTYPE_UNSET;
    if (backend != TEGROUP_BACKEND_PORTABLE) s->weights = TEGROUP_DTYPE_UNSET;
    if (backend == TEGROUP_BACKEND_SM90) { /* rows of whole 16 bytes, however wide the matrices */
        if (s->in == TEGROUP_DTYPE_F32) s->in = halves[rng_int(r, 0, 1)];
        s->ng = s->kg = NULL;
        s->aligned = 1;
        s->k = s->k / 8 * 8 + s->n % 8;
        s->pad = multiple_of_8(s->n) - s->n + (s->pad > 4 ? 8 : 0);
        s->off = rng_chance(r, 30) ? rng_int(r, 1, 7) : 0; /* but for those of a and b, which may be repacked */
    }
    if (backend_bundled(backend)) return;
    if (s->out != TEGROUP_DTYPE_F32) s->out = s->in;
    s->bias = s->bias_of_b = 0;
    s->row_scale_dtype = s->bias_dtype = TEGROUP_DTYPE_UNSET;
    s->tail = TEGROUP_TAIL_KEEP;
    if (!grouped) return;
    int device, major;
    MUST(cudaGetDevice(&device));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (major != 9 || cublasLtGetVersion() < 131000) { /* one scalar for all */
        if (s->alpha == SCALARS_EACH) s->alpha = SCALARS_ONE;
        if (s->beta == SCALARS_EACH) s->beta = SCALARS_ONE;
    }
    /* rows of whole 16 bytes, and so many of D's columns; what is summed over may be any number of columns, or of D's rows */
    const int ragged = s->ng != NULL || s->kg != NULL;
    s->aligned = s->apart = 1;
    if (ragged || s->op == TEGROUP_OP_FORWARD) s->n = multiple_of_8(s->n);
    if (ragged || s->op != TEGROUP_OP_FORWARD) s->k = multiple_of_8(s->k);
    s->pad = s->pad > 4 ? 8 : 0;
    if (s->ng != NULL) s->ng = whole_widths(s->ng, s->groups);
    if (s->kg != NULL) s->kg = whole_widths(s->kg, s->groups);
    if (ragged) s->pack = PACK_LD;
}

static spec spec_for(rng *r, tegroup_op op, int64_t most_rows, int64_t most_width, tegroup_backend backend) {
    spec s = random_spec(r, op, most_rows, most_width);
    for_backend(r, &s, backend);
    return s;
}

static spec plain_spec(tegroup_op op, int32_t groups, const int64_t *m, int64_t n, int64_t k, tegroup_dtype in, tegroup_dtype out, uint64_t seed) {
    spec s;
    memset(&s, 0, sizeof s);
    s.op = op;
    s.groups = groups;
    s.m = m;
    s.n = n;
    s.k = k;
    s.in = in;
    s.out = out;
    s.seed = seed;
    return s;
}

static void problem_for(problem *p, const spec *given, tegroup_backend backend) {
    spec adjusted = *given;
    const spec *s = &adjusted;
    /* gradients of FP16 operands in FP32: 13.10 without its kernels for older GPUs offers nothing; test_cublaslt counts that */
    if (backend == TEGROUP_BACKEND_CUBLASLT_LOOP && s->in == TEGROUP_DTYPE_F16 && s->out == TEGROUP_DTYPE_F32) adjusted.out = s->in;
    problem_make(p, s);
    p->desc.options.backend = backend;
    p->s.rounds_product = backend == TEGROUP_BACKEND_CUBLASLT_LOOP; /* as kernels of cuBLASLt for two-byte results do */
}

static void print_spec(const char *wrong, const spec *s, tegroup_backend backend) {
    fprintf(stderr, "%s %s: op %d groups %d n %ld k %ld encoding %d place %d pack %d ng %d kg %d in %d weights %d out %d pad %ld lists %d gather %d alpha %d beta %d c %d bias %d tail %d seed %llu\n",
            tegroup_backend_name(backend), wrong, (int)s->op, s->groups, (long)s->n, (long)s->k, (int)s->encoding, (int)s->place, (int)s->pack, s->ng != NULL, s->kg != NULL,
            (int)s->in, (int)s->weights, (int)s->out, (long)s->pad, s->lists, s->gather, s->alpha, s->beta, (int)s->c, s->bias, (int)s->tail, (unsigned long long)s->seed);
}

/* Of some products cuBLASLt has no kernel for this GPU; then the plan says so, and nothing is written. */
static int library_lacks(int b, tegroup_status status, const char *rule) {
    return backends[b] == TEGROUP_BACKEND_CUBLASLT_LOOP && status == TEGROUP_ERROR_UNSUPPORTED && strstr(rule, "cuBLASLt offers no algorithm") != NULL;
}

/* "" when all is well, "refused" when the backend would not, else what is wrong. */
static const char *run_and_check(const spec *s, int b) {
    static char message[200];
    problem p;
    const char *wrong = "";
    problem_for(&p, s, backends[b]);
    problem_reference(&p);
    tegroup_status status = problem_run_on_device(&p);
    if (status != TEGROUP_OK) {
        snprintf(refusal[b], sizeof refusal[b], "%s %s (expected %ld, got %ld)", p.error.field, p.error.rule, (long)p.error.expected, (long)p.error.got);
        snprintf(message, sizeof message, "refused: %s", refusal[b]);
        wrong = status == TEGROUP_ERROR_UNSUPPORTED ? "refused" : message;
        if (problem_disturbed(&p) != 0) wrong = "refused, and something was written";
    } else {
        verdict v = problem_compare(&p), bias = problem_compare_bias(&p);
        int64_t changed = guards_changed() + workspace_guards_changed(), disturbed = problem_disturbed(&p);
        totals.worst = v.worst > totals.worst ? v.worst : totals.worst;
        totals.elements += v.count + bias.count;
        if (!(v.worst <= 1) || !(bias.worst <= 1)) {
            snprintf(message, sizeof message, "error/bound %g, bias gradient %g", v.worst, bias.worst);
            wrong = message;
        } else if (p.s.out == TEGROUP_DTYPE_F32 && !gate_holds(v)) wrong = "99.9th percentile of error/bound is not below 1/4";
        else if (changed != 0) wrong = "guard bytes changed";
        else if (disturbed != 0 && s->tail == TEGROUP_TAIL_KEEP) wrong = "bytes changed that are not the result's";
    }
    if (wrong[0] != 0 && strcmp(wrong, "refused") != 0) print_spec(wrong, s, backends[b]);
    problem_release(&p);
    return wrong;
}

/* The same where every backend must have the problem, unless its library lacks it. */
static const char *run_and_check_each(const spec *s, int b) {
    const char *wrong = run_and_check(s, b);
    return strcmp(wrong, "refused") == 0 && library_lacks(b, TEGROUP_ERROR_UNSUPPORTED, refusal[b]) ? "" : wrong;
}

/* What is not here, and why. A library too old for grouped products must be told so by the version that it takes. */
TEST(gpu, a_backends) {
    EACH_BACKEND(b) printf("gpu: %s\n", tegroup_backend_name(backends[b]));
    for (int b = 0; b < BACKENDS; b++) {
        tegroup_verdict v = backend_verdict(backends[b]);
        if (v.status == TEGROUP_OK) continue;
        ASSERT_TRUE(v.field != NULL && v.rule != NULL);
        const long version = (long)cublasLtGetVersion();
        if (v.status == TEGROUP_ERROR_NOT_BUILT) {
            printf("skip gpu_%s needs a build that has it\n", tegroup_backend_name(backends[b]));
        } else {
            ASSERT_EQ(TEGROUP_BACKEND_CUBLASLT_GROUPED, backends[b]);
            ASSERT_EQ(TEGROUP_ERROR_UNSUPPORTED, v.status);
            ASSERT_STREQ("target.cublaslt_version", v.field);
            ASSERT_EQ(version, (long)v.got);
            ASSERT_GT((long)v.expected, version);
            ASSERT_GE((long)v.expected, 130300);
            printf("skip gpu_%s needs cuBLASLt %ld, not %ld: CUBLAS_HOME=FOLDER\n", tegroup_backend_name(backends[b]), (long)v.expected, version);
        }
    }
    ASSERT_TRUE(getenv("TEGROUP_TEST_BACKENDS") != NULL || backend_here(TEGROUP_BACKEND_PORTABLE));
}

static void random_problems(int b) {
    rng r = rng_seed(2001 + (uint64_t)b);
    const int64_t count = scaled(2000);
    int64_t run = 0, refused = 0;
    memset(&totals, 0, sizeof totals);
    while (run < count) {
        void *mark = guards_mark();
        spec s = spec_for(&r, ops[rng_int(&r, 0, 2)], 60, 90, backends[b]);
        if (backends[b] == TEGROUP_BACKEND_SM90) {
            random_gather(&r, &s, 33);
            mirror_tile = rng_chance(&r, 50) ? MIRROR_ANY_TILE : MIRROR_PLANNED_TILE;
        }
        const char *wrong = run_and_check(&s, b);
        mirror_tile = MIRROR_PLANNED_TILE;
        const int was_refused = strcmp(wrong, "refused") == 0;
        if (!was_refused) ASSERT_STREQ("", wrong);
        refused += was_refused;
        run += !was_refused;
        ASSERT_LE(refused, backend_bundled(backends[b]) ? 0 : count / 2);
        guards_release(mark);
    }
    printf("%s: %ld random problems, %ld elements, error/bound at most %.3f\n", tegroup_backend_name(backends[b]), (long)run, (long)totals.elements, totals.worst);
    if (refused > 0) printf("%s refused %ld more; the last: %s\n", tegroup_backend_name(backends[b]), (long)refused, refusal[b]);
}
/* A plan for buffers of other rows serves: fewer, more, and other ones in each operand. */
TEST(gpu, buffers_of_other_rows_than_planned) {
    rng r = rng_seed(2011);
    EACH_BACKEND(b)
        for (int64_t i = scaled(300); i > 0; i--) {
            void *mark = guards_mark();
            spec s = spec_for(&r, ops[i % 3], 60, 90, backends[b]);
            if (backends[b] == TEGROUP_BACKEND_SM90) random_gather(&r, &s, 33);
            mirror_planned_rows = (int)rng_int(&r, 1, 300);
            s.off = 0; /* what is repacked has room for the planned rows alone */
            const char *wrong = run_and_check(&s, b);
            mirror_planned_rows = 0;
            if (backend_bundled(backends[b]) || strcmp(wrong, "refused") != 0) ASSERT_STREQ("", wrong);
            guards_release(mark);
        }
}

TEST(gpu, random_problems_portable) { if (backend_here(backends[0])) random_problems(0); }
TEST(gpu, random_problems_cublaslt_grouped) { if (backend_here(backends[1])) random_problems(1); }
TEST(gpu, random_problems_cublaslt_loop) { if (backend_here(backends[2])) random_problems(2); }

TEST(gpu, random_problems_sm90) { if (backend_here(backends[3])) random_problems(3); }

/* Rows of A or B that begin off multiples of 16 bytes have the bits that PORTABLE gives, whichever tile multiplies their copies. */
TEST(gpu, repacked_rows_have_the_bits_of_portable) {
    rng r = rng_seed(2031);
    if (!backend_here(TEGROUP_BACKEND_SM90) || !backend_here(TEGROUP_BACKEND_PORTABLE)) return;
    for (int64_t i = scaled(300); i > 0; i--) {
        void *mark = guards_mark();
        spec s = spec_for(&r, ops[i % 3], 200, 300, TEGROUP_BACKEND_SM90);
        problem p, q;
        s.off = rng_int(&r, 1, 7);
        problem_for(&p, &s, TEGROUP_BACKEND_SM90);
        mirror_tile = MIRROR_ANY_TILE;
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
        mirror_tile = MIRROR_PLANNED_TILE;
        problem_for(&q, &s, TEGROUP_BACKEND_PORTABLE);
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&q));
        if (p.plan.workspace_bytes > 0) ASSERT_EQ(p.plan.numerics_id, q.plan.numerics_id);
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t row = 0; row < p.d.rows[g]; row++) {
                const size_t from = (size_t)(row * p.d.ld[g]) * size_of(p.d.dtype);
                ASSERT_EQ(0, memcmp(p.d.at[g] + from, q.d.at[g] + from, (size_t)p.d.cols[g] * size_of(p.d.dtype)));
            }
        problem_release(&q);
        problem_release(&p);
        guards_release(mark);
    }
}

/* The workspace of a plan has no room for more rows than it was made for, so that a call with more is refused. */
TEST(gpu, repacked_rows_are_at_most_those_planned) {
    const int64_t m[2] = {5, 7};
    problem p;
    if (!backend_here(TEGROUP_BACKEND_SM90)) return;
    for (int planned = 11; planned <= 12; planned++) {
        void *mark = guards_mark();
        spec s = plain_spec(TEGROUP_OP_FORWARD, 2, m, 64, 36, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16, 2032);
        problem_for(&p, &s, TEGROUP_BACKEND_SM90);
        mirror_planned_rows = planned;
        const tegroup_status status = problem_run_on_device(&p);
        mirror_planned_rows = 0;
        ASSERT_EQ(planned < 12 ? TEGROUP_ERROR_PLAN : TEGROUP_OK, status);
        if (planned < 12) {
            ASSERT_STREQ("a.shape.rows", p.error.field);
            ASSERT_EQ(11, (int)p.error.expected);
            ASSERT_EQ(12, (int)p.error.got);
            ASSERT_EQ(0, (int)problem_disturbed(&p));
        }
        problem_release(&p);
        guards_release(mark);
    }
}

TEST(gpu, tile_edges) {
    rng r = rng_seed(2002);
    static const int64_t edges[] = {1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 257};
    for (int64_t i = scaled(200); i > 0; i--)
        EACH_BACKEND(b) {
            void *mark = guards_mark();
            int64_t m[3];
            tegroup_dtype in = halves[rng_int(&r, 0, 1)];
            for (int g = 0; g < 3; g++) m[g] = edges[rng_int(&r, 0, 13)];
            spec s = plain_spec(ops[rng_int(&r, 0, 2)], 3, m, edges[rng_int(&r, 0, 13)], edges[rng_int(&r, 0, 13)], in, rng_chance(&r, 50) ? TEGROUP_DTYPE_F32 : in, rng_next(&r));
            s.pad = rng_chance(&r, 50) ? 8 - s.n % 8 : 0;
            if (backends[b] == TEGROUP_BACKEND_PORTABLE && rng_chance(&r, 33)) s.weights = s.in, s.in = TEGROUP_DTYPE_F32;
            for_backend(&r, &s, backends[b]);
            if (backends[b] == TEGROUP_BACKEND_SM90) random_gather(&r, &s, 33);
            ASSERT_STREQ("", run_and_check_each(&s, b));
            guards_release(mark);
        }
}

static int row_bits_differ(const problem *p, int32_t g, int64_t row, const problem *q, int32_t h, int64_t other) {
    int64_t element = (int64_t)size_of(p->d.dtype);
    return memcmp(p->d.at[g] + row * p->d.ld[g] * element, q->d.at[h] + other * q->d.ld[h] * element, (size_t)(p->d.cols[g] * element)) != 0;
}

/* F32 times weights of 16 bits: the bits of the product with the same weights in F32. */
TEST(gpu, portable_narrow_weights_and_the_same_in_f32) {
    if (!backend_here(TEGROUP_BACKEND_PORTABLE)) return;
    rng r = rng_seed(2012);
    int64_t rows = 0;
    for (int64_t i = scaled(120); i > 0; i--) {
        void *mark = guards_mark();
        problem p, q;
        spec s = spec_for(&r, ops[i % 2], 100, i % 8 == 0 ? 300 : 90, TEGROUP_BACKEND_PORTABLE), t;
        s.in = TEGROUP_DTYPE_F32;
        s.weights = halves[i / 2 % 2];
        t = s;
        t.weights = TEGROUP_DTYPE_F32;
        problem_for(&p, &s, TEGROUP_BACKEND_PORTABLE);
        problem_for(&q, &t, TEGROUP_BACKEND_PORTABLE);
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t row = 0; row < p.b.rows[g]; row++)
                for (int64_t col = 0; col < p.b.cols[g]; col++) store(TEGROUP_DTYPE_F32, q.b.at[g], row * q.b.ld[g] + col, value_at(&p.b, g, row, col));
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&q));
        ASSERT_EQ(s.weights, p.plan.problem.b);
        ASSERT_TRUE(p.plan.numerics_id != q.plan.numerics_id); /* the ids are of the types, too */
        for (int32_t g = 0; g < s.groups; g++) {
            for (int64_t row = 0; row < p.d.rows[g]; row++) ASSERT_EQ(0, row_bits_differ(&p, g, row, &q, g, row));
            rows += p.d.rows[g];
        }
        ASSERT_EQ(0, guards_changed());
        guards_release(mark);
    }
    ASSERT_GT(rows, 0);
}

/* Both operands of a product that is cut along k are windows side by side in the rows of one buffer, and so is a result where its columns
 * are the groups'; the same as lists of addresses, which need neither elements nor ld to be prepared. */
TEST(gpu, windows_of_one_buffer) {
    int64_t m[4] = {5, 70, 0, 33}, k[4] = {24, 8, 40, 0}, n[4] = {16, 64, 8, 40};
    for (int b = 0; b < BACKENDS; b++)
        for (int way = 0; way < 12 && backends[b] != TEGROUP_BACKEND_SM90 && backend_here(backends[b]); way++) {
            void *mark = guards_mark();
            spec s = plain_spec(ops[way % 3], 4, m, 64, 40, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16, (uint64_t)way);
            s.kg = k;
            s.ng = way / 6 ? n : NULL;
            s.pack = PACK_WINDOWS;
            s.lists = way / 3 % 2 ? 15 : 0;
            s.aligned = 1;
            if (backends[b] == TEGROUP_BACKEND_CUBLASLT_GROUPED && s.lists == 0) continue; /* groups at offsets need data_alignment_bytes */
            ASSERT_STREQ("", run_and_check_each(&s, b));
            guards_release(mark);
        }
}

/* Snapshots made by the GPU equal the host's, byte for byte, honest sizes or not. */
static void snapshots_equal_the_hosts(int64_t count, int percent_of_many_groups) {
    rng r = rng_seed(2003);
    for (int64_t i = count; i > 0; i--) {
        void *mark = guards_mark();
        const int many = rng_chance(&r, percent_of_many_groups);
        int32_t groups = (int32_t)(many ? rng_int(&r, 1000, 4096) : rng_int(&r, 0, 70));
        tegroup_prepare_desc desc;
        tegroup_layout layout;
        memset(&desc, 0, sizeof desc);
        desc.struct_size = sizeof desc;
        desc.space = TEGROUP_SPACE_HOST;
        desc.clamp = 1; /* on the device that makes no difference */
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
            desc.shape.elements = rng_chance(&r, 20) ? 0 : rng_int(&r, 1, 100000); /* without a bound, as lists are */
            if (desc.shape.elements > 0 && rng_chance(&r, 40)) {
                for (int32_t g = 0; g <= groups; g++) cols[g] = rng_int(&r, -2, desc.shape.elements);
                desc.shape.offsets = (const int64_t *)index_array(TEGROUP_DTYPE_I64, cols, groups + 1);
            }
            if (rng_chance(&r, 30)) desc.ld = desc.shape.cols + rng_int(&r, 1, rng_chance(&r, 50) ? 9 : 2000); /* with offsets: windows side by side */
        }
        ASSERT_EQ(TEGROUP_OK, tegroup_snapshot_layout(&desc.shape, &layout, NULL));
        void *ours = guarded(layout.total_bytes), *theirs = guarded(layout.total_bytes), *sent = guarded(layout.total_bytes);
        desc.snapshot = ours;
        desc.snapshot_bytes = layout.total_bytes;
        ASSERT_EQ(TEGROUP_OK, tegroup_prepare(&desc, NULL, NULL));
        mirror_up(mark);
        tegroup_prepare_desc device = desc;
        shape_to_device(&device.shape);
        device.space = TEGROUP_SPACE_DEVICE;
        device.snapshot = device_of(theirs);
        ASSERT_EQ(TEGROUP_OK, tegroup_prepare(&device, NULL, NULL));
        device.shape = desc.shape; /* sizes that stay on the host: a few travel as parameters */
        device.shape.row_sizes.space = device.shape.col_sizes.space = TEGROUP_SPACE_DEVICE;
        device.shape.row_sizes.data_space = device.shape.col_sizes.data_space = TEGROUP_SPACE_HOST;
        device.snapshot = device_of(sent);
        device.check_level = rng_chance(&r, 50) ? TEGROUP_CHECK_DEEP : TEGROUP_CHECK_HOST;
        ASSERT_EQ(many ? TEGROUP_ERROR_UNSUPPORTED : TEGROUP_OK, tegroup_prepare(&device, NULL, NULL));
        MUST(cudaDeviceSynchronize());
        mirror_down();
        ASSERT_EQ(0, memcmp(ours, theirs, layout.total_bytes));
        if (!many) ASSERT_EQ(0, memcmp(ours, sent, layout.total_bytes));
        ASSERT_EQ(0, guards_changed());
        guards_release(mark);
    }
}
TEST(gpu, snapshots_equal_the_hosts) { snapshots_equal_the_hosts(scaled(3000), 5); }
TEST(sanitize, snapshots_equal_the_hosts) { snapshots_equal_the_hosts(60, 25); }

/* Counts on the host, of no groups up to as many as parameters hold: the bytes of a snapshot made of counts on the device, whatever becomes
 * of the counts as soon as the call returns. One that lies is refused by name, and nothing is launched; clamped it is as on the device. */
TEST(gpu, counts_on_the_host_travel_as_parameters) {
    static const struct { int32_t groups; tegroup_dtype dtype; } cases[] = {
        {0, TEGROUP_DTYPE_I64}, {1, TEGROUP_DTYPE_I32}, {31, TEGROUP_DTYPE_I64}, {32, TEGROUP_DTYPE_I32}, {128, TEGROUP_DTYPE_I64},
        {448, TEGROUP_DTYPE_I64}, {896, TEGROUP_DTYPE_I32}};
    rng r = rng_seed(2004);
    for (int i = 0; i < 7; i++)
        for (int lie = 0; lie < (cases[i].groups > 0 ? 3 : 1); lie++) { /* 1: refused, 2: clamped */
            void *mark = guards_mark();
            const int32_t groups = cases[i].groups;
            int64_t values[896];
            tegroup_layout layout;
            tegroup_error error;
            tegroup_prepare_desc host, device;
            for (int32_t g = 0; g < groups; g++) values[g] = rng_int(&r, -1, 20);
            if (lie) values[groups - 1] = -7;
            memset(&host, 0, sizeof host);
            host.struct_size = sizeof host;
            host.space = TEGROUP_SPACE_DEVICE;
            host.clamp = lie == 2;
            host.shape = tegroup_shape_of(groups, 20 * (int64_t)groups, 8,
                                          tegroup_sizes_of(index_array(cases[i].dtype, values, groups), cases[i].dtype, TEGROUP_SPACE_DEVICE));
            ASSERT_EQ(TEGROUP_OK, tegroup_snapshot_layout(&host.shape, &layout, NULL));
            void *of_device = guarded(layout.total_bytes), *of_host = guarded(layout.total_bytes);
            guarded_remember(of_host);
            host.snapshot_bytes = layout.total_bytes;
            mirror_up(mark);
            device = host;
            shape_to_device(&device.shape);
            device.snapshot = device_of(of_device);
            ASSERT_EQ(TEGROUP_OK, tegroup_prepare(&device, NULL, NULL));
            host.shape.row_sizes.data_space = TEGROUP_SPACE_HOST;
            host.snapshot = device_of(of_host);
            const tegroup_status status = tegroup_prepare(&host, NULL, &error);
            ASSERT_EQ(lie == 1 ? TEGROUP_ERROR_VALUE : TEGROUP_OK, status);
            if (groups > 0) memset((void *)host.shape.row_sizes.data, 0x55, (size_t)groups * size_of(cases[i].dtype));
            MUST(cudaDeviceSynchronize());
            mirror_down();
            if (lie == 1) {
                ASSERT_STREQ("shape.row_sizes.data", error.field);
                ASSERT_EQ(groups - 1, error.got);
                ASSERT_EQ(0, guarded_changed(of_host));
            } else ASSERT_EQ(0, memcmp(of_device, of_host, layout.total_bytes));
            ASSERT_EQ(lie ? (uint32_t)TEGROUP_SNAPSHOT_NEGATIVE : 0u, tegroup_snapshot_read(of_device).header->status);
            guards_release(mark);
        }
}

/* A graph keeps the sizes of its capture, so one of sizes on the host is refused, with nothing in it, unless the caller says that they are
 * final; then each launch makes the same snapshot, whatever the array holds by then. */
TEST(gpu, a_graph_keeps_final_host_sizes) {
    enum { GROUPS = 5 };
    int64_t counts[GROUPS] = {3, 0, -1, 7, 2};
    void *memory;
    unsigned char *before, *after;
    tegroup_layout layout;
    tegroup_error error;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t step;
    size_t nodes = 1;
    tegroup_prepare_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.shape = tegroup_shape_of(GROUPS, 12, 4, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE));
    desc.shape.row_sizes.data_space = TEGROUP_SPACE_HOST;
    ASSERT_EQ(TEGROUP_OK, tegroup_snapshot_layout(&desc.shape, &layout, NULL));
    MUST(cudaMalloc(&memory, layout.total_bytes));
    desc.snapshot = memory;
    desc.snapshot_bytes = layout.total_bytes;
    before = (unsigned char *)malloc(2 * layout.total_bytes);
    after = before + layout.total_bytes;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ASSERT_EQ(TEGROUP_OK, tegroup_prepare(&desc, stream, NULL)); /* kernels are loaded when they first run */
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaMemcpy(before, memory, layout.total_bytes, cudaMemcpyDeviceToHost));

    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const tegroup_status refused = tegroup_prepare(&desc, stream, &error);
    const tegroup_status shape_refused = tegroup_shape_prepare(&desc.shape, memory, layout.total_bytes, stream, NULL);
    MUST(cudaStreamEndCapture(stream, &graph));
    ASSERT_EQ(TEGROUP_ERROR_COMBINATION, refused);
    ASSERT_STREQ("host_sizes_final", error.field);
    ASSERT_EQ(TEGROUP_ERROR_COMBINATION, shape_refused);
    MUST(cudaGraphGetNodes(graph, NULL, &nodes));
    ASSERT_EQ(0, (int)nodes);
    MUST(cudaGraphDestroy(graph));

    desc.host_sizes_final = 1;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const tegroup_status captured = tegroup_prepare(&desc, stream, NULL);
    MUST(cudaStreamEndCapture(stream, &graph));
    ASSERT_EQ(TEGROUP_OK, captured);
    ASSERT_TRUE(only_kernels(graph));
    MUST(cudaGraphInstantiate(&step, graph, 0));
    memset(counts, 0, sizeof counts);
    for (int launch = 0; launch < 2; launch++) {
        MUST(cudaMemsetAsync(memory, 0xA5, layout.total_bytes, stream));
        MUST(cudaGraphLaunch(step, stream));
        MUST(cudaStreamSynchronize(stream));
        MUST(cudaMemcpy(after, memory, layout.total_bytes, cudaMemcpyDeviceToHost));
        ASSERT_EQ(0, memcmp(before, after, layout.total_bytes));
    }
    ASSERT_EQ(12, tegroup_snapshot_read(after).header->rows_total);
    MUST(cudaGraphExecDestroy(step));
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    MUST(cudaFree(memory));
    free(before);
}

/* A host address where the sizes, or the snapshot, are said to be on the device: the deep check asks the driver, names the field and
 * launches nothing, so that the context lives on. */
TEST(gpu, prepare_asks_whose_memory_it_is) {
    static const char *const fields[] = {"snapshot", "shape.row_sizes.data", "shape.row_sizes.starts", "shape.col_sizes.data", "shape.offsets"};
    enum { GROUPS = 3 };
    const int64_t rows[GROUPS] = {2, 0, 3}, starts[GROUPS] = {4, 0, 1}, cols[GROUPS] = {1, 5, 4}, offsets[GROUPS] = {20, 0, 2};
    void *mark = guards_mark();
    tegroup_prepare_desc host, device;
    tegroup_layout layout;
    tegroup_error error;
    memset(&host, 0, sizeof host);
    host.struct_size = sizeof host;
    host.space = TEGROUP_SPACE_DEVICE;
    host.check_level = TEGROUP_CHECK_DEEP;
    const tegroup_dtype i64 = TEGROUP_DTYPE_I64;
    const tegroup_sizes sizes = tegroup_sizes_of(index_array(i64, rows, GROUPS), i64, TEGROUP_SPACE_DEVICE);
    host.shape = tegroup_shape_of(GROUPS, 6, 5, sizes);
    host.shape.row_sizes.starts = index_array(i64, starts, GROUPS);
    host.shape.col_sizes = tegroup_sizes_of(index_array(i64, cols, GROUPS), i64, TEGROUP_SPACE_DEVICE);
    host.shape.elements = 30;
    host.shape.offsets = (const int64_t *)index_array(TEGROUP_DTYPE_I64, offsets, GROUPS);
    ASSERT_EQ(TEGROUP_OK, tegroup_snapshot_layout(&host.shape, &layout, NULL));
    host.snapshot = guarded(layout.total_bytes);
    host.snapshot_bytes = layout.total_bytes;
    guarded_remember(host.snapshot);
    mirror_up(mark);
    device = host;
    shape_to_device(&device.shape);
    device.snapshot = device_of(host.snapshot);
    for (int i = 0; i < 5; i++) {
        tegroup_prepare_desc lost = device;
        if (i == 0) lost.snapshot = host.snapshot;
        if (i == 1) lost.shape.row_sizes.data = host.shape.row_sizes.data;
        if (i == 2) lost.shape.row_sizes.starts = host.shape.row_sizes.starts;
        if (i == 3) lost.shape.col_sizes.data = host.shape.col_sizes.data;
        if (i == 4) lost.shape.offsets = host.shape.offsets;
        ASSERT_EQ(TEGROUP_ERROR_VALUE, tegroup_prepare(&lost, NULL, &error));
        ASSERT_STREQ(fields[i], error.field);
        ASSERT_EQ((int64_t)cudaMemoryTypeDevice, error.expected);
    }
    MUST(cudaDeviceSynchronize());
    mirror_down();
    ASSERT_EQ(0, guarded_changed(host.snapshot));
    mirror_up(mark);
    ASSERT_EQ(TEGROUP_OK, tegroup_prepare(&device, NULL, &error));
    MUST(cudaDeviceSynchronize());
    mirror_down();
    ASSERT_EQ(0u, tegroup_snapshot_read(host.snapshot).header->status);
    ASSERT_EQ(5, tegroup_snapshot_read(host.snapshot).header->rows_total);
    guards_release(mark);
}

/* ---- the contract, line by line, on every backend ----------------------------------------------------------------- */

static int same_bits(double a, double b) { return (isnan(a) && isnan(b)) || (a == b && !signbit(a) == !signbit(b)); }

/* 1. The same plan writes the same bits wherever D lies, and an output written before is not touched again; no workspace
 * grows with the rows, so nothing is staged. */
TEST(contract, line1_output_in_callers_buffer) {
    rng r = rng_seed(3001);
    EACH_BACKEND(b)
    for (int64_t i = scaled(60); i > 0; i--) {
        product p;
        int64_t counts[4];
        memset(&p, 0, sizeof p);
        p.op = ops[i % 3];
        p.in = halves[i % 2];
        p.out = rng_chance(&r, 50) ? TEGROUP_DTYPE_F32 : p.in;
        p.groups = 4;
        p.n = 8 * rng_int(&r, 1, 30);
        p.k = 8 * rng_int(&r, 1, 30);
        p.rows = 200;
        p.seed = rng_next(&r);
        for (int g = 0; g < 4; g++) counts[g] = rng_int(&r, 0, 50);
        product_make(&p, backends[b]);
        product_counts(&p, counts);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
        const uint64_t first = product_hash(&p, NULL);
        const size_t bytes = (size_t)p.d_count * size_of(p.out);
        unsigned char *elsewhere;
        void *there = p.desc.d.data;
        MUST(cudaMalloc((void **)&elsewhere, bytes + 4096));
        for (int place = 0; place < 4; place++) { /* places of every alignment that the backend takes */
            p.desc.d.data = elsewhere + (backends[b] == TEGROUP_BACKEND_PORTABLE ? size_of(p.out) : 16) * (size_t)rng_int(&r, 0, 60);
            product_poison(&p, NULL);
            ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
            ASSERT_EQ(first, product_hash(&p, NULL));
        }
        p.desc.d.data = there;
        ASSERT_EQ(first, product_hash(&p, NULL));
        tegroup_plan more;
        p.desc.a.shape.rows *= 100;
        if (p.op == TEGROUP_OP_WGRAD) p.desc.b.shape.rows *= 100;
        else p.desc.d.shape.rows *= 100;
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&p.desc, NULL, &more, &p.error));
        ASSERT_EQ(p.plan.workspace_bytes, more.workspace_bytes);
        MUST(cudaFree(elsewhere));
        product_free(&p);
    }
}

/* 2. Rows that no group owns: KEEP leaves every bit (random_problems sees to that as well), ZERO writes exact zeros, POISON
 * writes NaN; rows that one owns are the same in all three, and what lies between rows is nobody's. */
TEST(contract, line2_tail_untouched) {
    rng r = rng_seed(3002);
    int64_t unowned[3] = {0, 0, 0};
    EACH_BACKEND(b)
    for (int64_t i = scaled(100); i > 0; i--) {
        void *mark = guards_mark();
        spec s = spec_for(&r, ops[i % 2], 30, 40, backends[b]);
        problem p[3];
        if (s.m == NULL) { s.m = random_rows(&r, s.groups, 30, 1); s.encoding = TEGROUP_ENCODING_COUNTS; }
        s.ng = s.kg = NULL;
        s.lists &= ~(8 | 4);
        s.tail_rows = rng_int(&r, 0, 20);
        const int last = backend_bundled(backends[b]) ? TEGROUP_TAIL_POISON : TEGROUP_TAIL_KEEP;
        for (int tail = TEGROUP_TAIL_KEEP; tail <= last; tail++) {
            problem *q = &p[tail];
            s.tail = (tegroup_tail)tail;
            problem_for(q, &s, backends[b]);
            const tegroup_status ran = problem_run_on_device(q);
            if (library_lacks(b, ran, q->error.rule)) break;
            ASSERT_EQ(TEGROUP_OK, ran);
            size_t element = size_of(q->d.dtype);
            int64_t ld = q->d.tensor.ld != 0 ? q->d.tensor.ld : q->d.tensor.shape.cols, width = q->d.tensor.shape.cols, wrong = 0;
            const unsigned char *then = (const unsigned char *)guarded_memory(q->d.tensor.data), *now = (const unsigned char *)q->d.tensor.data;
            static const unsigned char zeros[8] = {0};
            for (int64_t row = 0; row < q->capacity; row++) {
                int owned = 0;
                for (int32_t g = 0; g < s.groups; g++) owned |= row >= q->start[g] && row < q->start[g] + q->d.rows[g];
                for (int64_t col = 0; col < (row + 1 < q->capacity ? ld : width); col++) {
                    size_t at = (size_t)(row * ld + col) * element;
                    if (owned && col < width) continue;
                    if (col >= width || tail == TEGROUP_TAIL_KEEP) wrong += memcmp(now + at, then + at, element) != 0;
                    else if (tail == TEGROUP_TAIL_ZERO) wrong += memcmp(now + at, zeros, element) != 0;
                    else wrong += !isnan(load(q->d.dtype, now, row * ld + col)) || memcmp(now + at, then + at, element) == 0;
                    unowned[tail] += col < width;
                }
            }
            ASSERT_EQ(0, wrong);
            for (int32_t g = 0; g < s.groups; g++)
                for (int64_t row = 0; row < q->d.rows[g]; row++) ASSERT_EQ(0, row_bits_differ(&p[0], g, row, q, g, row));
            ASSERT_EQ(0, guards_changed());
        }
        guards_release(mark);
    }
    for (int tail = 0; tail < 3; tail++) ASSERT_GT(unowned[tail], 0);
}

/* 3a. Nothing to sum: D = beta * C exactly, with -0, NaN, infinity and subnormals in C; with beta 0 exactly +0, C unread. */
static void nothing_to_sum(rng *r, int b, int what) {
    static const double special[] = {-0.0, 0.0, INFINITY, -INFINITY, NAN, 0x1p-140, -0x1p-24, 1.0, -3.5, 0x1p120};
    static const double betas[] = {1, -1, 0.5, 0, -2, 1};
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32};
    int64_t none[6] = {0, 0, 0, 0, 0, 0}, one[6] = {1, 1, 1, 1, 1, 1}, mixed[6] = {0, 3, 0, 1, 0, 0};
    for (int op = 0; op < 3; op++)
        for (int type = 0; type < (backends[b] == TEGROUP_BACKEND_CUBLASLT_GROUPED ? 2 : 3); type++)
            for (int c = C_SEPARATE; c <= C_ACCUMULATE; c++) {
                void *mark = guards_mark();
                const int wgrad = ops[op] == TEGROUP_OP_WGRAD;
                spec s = plain_spec(ops[op], 6, what == 0 ? none : what == 1 ? mixed : one, 5, 7, types[type], types[type], rng_next(r));
                problem p;
                s.c = (c_kind)c;
                s.alpha = s.beta = SCALARS_EACH;
                s.pad = 2;
                for_backend(r, &s, backends[b]);
                if (what == 2 && ops[op] == TEGROUP_OP_FORWARD) s.k = 0; /* one row of width 0 */
                if (what == 2 && ops[op] == TEGROUP_OP_DGRAD) s.n = 0;
                if (s.aligned && (s.n == 0 || s.k == 0)) s.n = s.n == 0 ? 0 : 8, s.k = s.k == 0 ? 0 : 8, s.pad = 8;
                if (what == 2 && wgrad) s.m = none;
                problem_for(&p, &s, backends[b]);
                grid *from = c == C_SEPARATE ? &p.c : &p.d;
                const int each = p.s.beta == SCALARS_EACH;
                for (int32_t g = 0; g < s.groups; g++) {
                    if (c != C_ACCUMULATE && (each || g == 0)) ((float *)p.beta)[g] = (float)betas[each ? g : what];
                    const double beta = beta_of(&p, g);
                    for (int64_t i = 0; i < from->rows[g]; i++)
                        for (int64_t j = 0; j < from->cols[g]; j++)
                            store(from->dtype, from->at[g], i * from->ld[g] + j, beta == 0 ? (double)NAN : special[rng_int(r, 0, 9)]);
                }
                for (guarded_node *node = guarded_top; node != (guarded_node *)p.mark; node = node->older)
                    if (!node->scratch) guarded_remember(node->data);
                const tegroup_status status = problem_run_on_device(&p);
                if (status != TEGROUP_OK) fprintf(stderr, "%s: %s %s\n", tegroup_backend_name(backends[b]), p.error.field, p.error.rule);
                ASSERT_EQ(TEGROUP_OK, status);
                const unsigned char *before = (const unsigned char *)guarded_memory(from->tensor.data), *base = (const unsigned char *)from->tensor.data;
                for (int32_t g = 0; g < s.groups; g++) {
                    if (what == 1 && s.m[g] > 0) continue; /* these have something to sum */
                    const double beta = beta_of(&p, g);
                    for (int64_t i = 0; i < p.d.rows[g]; i++)
                        for (int64_t j = 0; j < p.d.cols[g]; j++) {
                            const double was = load(from->dtype, before + (from->at[g] - base), i * from->ld[g] + j);
                            const double want = beta == 0 ? 0.0 : rounded(s.out, (double)(float)((float)beta * (float)was));
                            if (!same_bits(value_at(&p.d, g, i, j), want)) {
                                fprintf(stderr, "beta %g, C %g: wanted %g, got %g\n", beta, was, want, value_at(&p.d, g, i, j));
                                print_spec("nothing to sum", &s, backends[b]);
                            }
                            ASSERT_TRUE(same_bits(value_at(&p.d, g, i, j), want));
                        }
                }
                ASSERT_EQ(0, problem_disturbed(&p));
                guards_release(mark);
            }
}

/* 3b. NaN in a valid row shows in all that depends on it and in nothing else. */
static void nan_shows(rng *r, int b) {
    int64_t shown = 0;
    for (int64_t i = scaled(150); i > 0; i--) {
        void *mark = guards_mark();
        problem p, q;
        spec s = spec_for(r, ops[i % 3], 12, 20, backends[b]);
        s.c = C_NONE;
        s.lists = 0;
        s.alpha = SCALARS_DEFAULT;
        problem_for(&p, &s, backends[b]);
        const tegroup_status ran = problem_run_on_device(&p);
        if (library_lacks(b, ran, p.error.rule)) { guards_release(mark); continue; }
        ASSERT_EQ(TEGROUP_OK, ran);
        problem_for(&q, &s, backends[b]);
        const int which = (int)rng_int(r, 0, 1), wgrad = s.op == TEGROUP_OP_WGRAD;
        grid *t = which == 0 ? &q.a : &q.b;
        const int32_t bad = s.groups > 0 ? (int32_t)rng_int(r, 0, s.groups - 1) : 0;
        if (s.groups == 0 || t->rows[bad] == 0 || t->cols[bad] == 0 || (!wgrad && q.d.rows[bad] == 0) || group_skipped(&s, bad)) { guards_release(mark); continue; }
        const int64_t row = rng_int(r, 0, t->rows[bad] - 1), col = rng_int(r, 0, t->cols[bad] - 1);
        store(t->dtype, t->at[bad], row * t->ld[bad] + col, NAN);
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&q));
        /* a spoils a row of D (WGRAD: the row of its column); b a column (FORWARD: the column of its row) */
        const int64_t bad_row = which == 0 ? (wgrad ? col : row) : -1, bad_col = which == 1 ? (s.op == TEGROUP_OP_FORWARD ? row : col) : -1;
        for (int32_t g = 0; g < s.groups; g++)
            for (int64_t y = 0; y < q.d.rows[g]; y++)
                for (int64_t x = 0; x < q.d.cols[g]; x++) {
                    const double got = value_at(&q.d, g, y, x), clean = value_at(&p.d, g, y, x);
                    if (group_skipped(&s, g)) continue;
                    if (g == bad && (y == bad_row || x == bad_col)) { ASSERT_TRUE(isnan(got)); shown++; }
                    else ASSERT_TRUE(same_bits(got, clean) && !isnan(got));
                }
        guards_release(mark);
    }
    ASSERT_GT(shown, 0);
}

TEST(contract, line3_nothing_to_sum_is_beta_c) {
    rng r = rng_seed(3003);
    EACH_BACKEND(b) {
        for (int what = 0; what < 3; what++) {
            nothing_to_sum(&r, b, what);
            ASSERT_PASSING();
        }
        for (int op = 0; op < 3; op++) { /* no groups at all: nothing is needed, nothing happens */
            int64_t no_rows[1] = {0};
            spec s = plain_spec(ops[op], 0, no_rows, 8, 16, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16, 1);
            problem p;
            s.tail_rows = 4;
            s.aligned = 1;
            problem_for(&p, &s, backends[b]);
            ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
            ASSERT_EQ(0, problem_disturbed(&p));
            problem_release(&p);
        }
        /* all padding and every C of a group whose beta is 0 is NaN in these problems: none of it may leak */
        for (int64_t i = scaled(150); i > 0; i--) {
            void *mark = guards_mark();
            problem p;
            spec s = spec_for(&r, ops[i % 3], 20, 30, backends[b]);
            s.c = (c_kind)rng_int(&r, 0, 2);
            s.pad += s.aligned ? 8 : 3;
            if (s.c == C_IN_PLACE) s.lists = (s.lists & ~4) | ((s.lists & 8) >> 1);
            problem_for(&p, &s, backends[b]);
            const tegroup_status ran = problem_run_on_device(&p);
            if (!library_lacks(b, ran, p.error.rule)) ASSERT_EQ(TEGROUP_OK, ran);
            for (int32_t g = 0; ran == TEGROUP_OK && g < s.groups; g++)
                for (int64_t row = 0; row < p.d.rows[g]; row++)
                    for (int64_t col = 0; col < p.d.cols[g]; col++)
                        if (!(s.op == TEGROUP_OP_WGRAD && group_skipped(&s, g))) ASSERT_FALSE(isnan(value_at(&p.d, g, row, col)));
            guards_release(mark);
        }
        nan_shows(&r, b);
        ASSERT_PASSING();
    }
    /* alpha 0 hides nothing, and NaN in C shows where beta is not 0 (cuBLAS does not read A and B where alpha is 0) */
    int64_t rows[1] = {2};
    problem p;
    spec s = plain_spec(TEGROUP_OP_FORWARD, 1, rows, 3, 4, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F32, 0);
    s.c = C_SEPARATE;
    s.alpha = s.beta = SCALARS_ONE;
    for (int type = 0; type < 3; type++) {
        s.in = type == 0 ? TEGROUP_DTYPE_F32 : halves[type - 1];
        problem_for(&p, &s, TEGROUP_BACKEND_PORTABLE);
        ((float *)p.alpha)[0] = 0;
        ((float *)p.beta)[0] = 0.5f;
        for (int e = 0; e < 6; e++) store(s.out, p.c.at[0], e, e == 5 ? (double)NAN : e);
        store(s.in, p.a.at[0], 2, NAN);
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
        for (int e = 0; e < 6; e++) ASSERT_EQ(e < 3 || e == 5, !!isnan(value_at(&p.d, 0, e / 3, e % 3)));
        problem_release(&p);
    }
    /* beta is 0 where it is that as an FP32 number */
    EACH_BACKEND(b) {
        if (!backend_bundled(backends[b])) continue;
        s = plain_spec(TEGROUP_OP_FORWARD, 1, rows, 3, 4, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16, 0);
        s.c = C_SEPARATE;
        s.beta = SCALARS_EACH; /* in the device's memory */
        s.scalar_dtype = TEGROUP_DTYPE_F64;
        for_backend(&r, &s, backends[b]);
        problem_for(&p, &s, backends[b]);
        *(double *)p.beta = 1e-60;
        for (int64_t row = 0; row < 2; row++)
            for (int64_t col = 0; col < p.c.cols[0]; col++) store(s.out, p.c.at[0], row * p.c.ld[0] + col, NAN);
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&p));
        for (int64_t row = 0; row < 2; row++)
            for (int64_t col = 0; col < p.d.cols[0]; col++) ASSERT_FALSE(isnan(value_at(&p.d, 0, row, col)));
        problem_release(&p);
    }
}

/* 4. Hostile sizes. One problem serves many arrays: prepare, product, a kernel that counts what changed outside of what the
 * snapshot grants, and everything as it was; the host looks once for all. */
typedef struct watch {
    const unsigned char *now, *then;
    int64_t head, gap, bytes; /* [0, head) and [head + gap, bytes) are compared; the workspace lies between */
    int64_t free_at[5], free_end[5]; /* snapshots and a bias gradient: may be written anywhere */
    int64_t d_at, d_end, ld_bytes, row_bytes; /* ld_bytes 0: all of it may be written */
    const int64_t *start, *rows;
    const tegroup_snapshot_header *header;
    int32_t groups;
} watch;

static __global__ void count_changed(const watch w, unsigned long long *changed, unsigned long long *told) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < w.bytes - w.gap; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t at = i < w.head ? i : i + w.gap;
        if (w.now[at] == w.then[at]) continue;
        int allowed = 0;
        for (int s = 0; s < 5; s++) allowed |= at >= w.free_at[s] && at < w.free_end[s];
        if (at >= w.d_at && at < w.d_end) {
            if (w.ld_bytes == 0) allowed = 1;
            else if ((at - w.d_at) % w.ld_bytes < w.row_bytes) {
                const int64_t row = (at - w.d_at) / w.ld_bytes;
                for (int32_t g = 0; g < w.groups; g++) allowed |= row >= w.start[g] && row < w.start[g] + w.rows[g];
            }
        }
        if (!allowed) atomicAdd(changed, 1ull);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0 && w.header->status != 0) atomicAdd(told, 1ull);
}

static int64_t hostile_value(rng *r) {
    static const int64_t lies[] = {INT64_MIN, INT64_MAX, -1, -2, -1000, 1 << 20, INT32_MAX, INT32_MIN, INT64_C(1) << 32, INT64_C(1) << 40, INT64_C(1) << 62, 0};
    const int kind = (int)rng_int(r, 0, 9);
    return kind < 4 ? rng_int(r, 0, 12) : kind < 7 ? lies[rng_int(r, 0, 11)] : kind < 9 ? rng_int(r, -20, 80) : (int64_t)rng_next(r);
}

static void hostile_sizes(int b) {
    enum { CONFIGURATIONS = 50 };
    rng r = rng_seed(3004 + (uint64_t)b);
    const int64_t each = (scaled(100000) + CONFIGURATIONS - 1) / CONFIGURATIONS;
    unsigned char *then;
    unsigned long long *counters, found[2];
    MUST(cudaMalloc((void **)&then, (size_t)64 << 20));
    MUST(cudaMalloc((void **)&counters, 2 * sizeof *counters));
    MUST(cudaMemset(counters, 0, 2 * sizeof *counters));
    for (int configuration = 0; configuration < CONFIGURATIONS; configuration++) {
        void *mark = guards_mark();
        problem p;
        spec s = spec_for(&r, ops[configuration % 3], 12, 24, backends[b]);
        s.groups = (int32_t)rng_int(&r, 1, 6);
        s.m = random_rows(&r, s.groups, 12, 0);
        s.ng = s.kg = NULL;
        s.lists = 0;
        if (configuration % 4 == 3 && backends[b] != TEGROUP_BACKEND_SM90) { /* columns lie, too */
            s.ng = random_widths(&r, s.groups, s.n);
            s.kg = random_widths(&r, s.groups, s.k);
            s.pack = (pack_kind)rng_int(&r, 0, 2);
            for_backend(&r, &s, backends[b]);
        }
        s.tail_rows = rng_int(&r, 0, 3);
        s.alignment = rng_int(&r, 1, 16);
        s.encoding = (tegroup_encoding)rng_int(&r, 1, 3);
        s.place = s.encoding == TEGROUP_ENCODING_COUNTS ? (place_kind)rng_int(&r, 0, 3) : s.encoding == TEGROUP_ENCODING_ENDS ? (place_kind)rng_int(&r, 0, 1) : PLACE_DENSE;
        problem_for(&p, &s, backends[b]);
        p.desc.options.cublas_workspace_bytes = (size_t)4 << 20;
        /* the arrays: each[groups + 1], and as many starts */
        const int32_t stride = s.groups + 1;
        const size_t element = size_of(p.desc.a.shape.row_sizes.dtype);
        unsigned char *arrays = (unsigned char *)scratch((size_t)(each * stride) * 2 * element);
        for (int64_t i = 0; i < each * stride * 2; i++) {
            const int64_t value = i % stride == 0 && s.encoding == TEGROUP_ENCODING_OFFSETS && rng_chance(&r, 80) ? 0 : hostile_value(&r);
            if (element == 8) ((int64_t *)arrays)[i] = value;
            else ((int32_t *)arrays)[i] = (int32_t)value;
        }
        mirror_up(p.mark);
        tegroup_gemm_desc desc = desc_to_device(&p.desc);
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
        watch w;
        memset(&w, 0, sizeof w);
        w.head = (int64_t)arena_used;
        w.now = arena;
        w.then = then;
        desc.options.workspace_bytes = p.plan.workspace_bytes;
        if (desc.options.workspace_bytes > 0) desc.options.workspace = arena_take(desc.options.workspace_bytes, 0);
        if (desc.options.workspace != NULL) w.head = (unsigned char *)desc.options.workspace - arena, w.gap = (int64_t)desc.options.workspace_bytes;
        w.bytes = (int64_t)arena_used;
        ASSERT_LE(w.bytes, (int64_t)64 << 20);
        MUST(cudaMemcpy(then, arena, (size_t)w.bytes, cudaMemcpyDeviceToDevice));
        const grid *grids[] = {&p.a, &p.b, &p.c, &p.d};
        const tegroup_tensor *tensors[] = {&desc.a, &desc.b, &desc.c, &desc.d};
        for (int t = 0; t < 4; t++) {
            if (grids[t]->snapshot == NULL) continue;
            w.free_at[t] = (const unsigned char *)device_of(grids[t]->snapshot) - arena;
            w.free_end[t] = w.free_at[t] + (int64_t)guarded_find(grids[t]->snapshot)->bytes;
        }
        if (s.bias && s.op == TEGROUP_OP_WGRAD) {
            w.free_at[4] = (unsigned char *)desc.bias.data - arena;
            w.free_end[4] = w.free_at[4] + (int64_t)guarded_find(p.bias.tensor.data)->bytes;
        }
        tegroup_layout layout;
        ASSERT_EQ(TEGROUP_OK, tegroup_snapshot_layout(&desc.a.shape, &layout, NULL));
        const char *snapshot = (const char *)(s.op == TEGROUP_OP_WGRAD ? desc.a.shape.snapshot : desc.d.shape.snapshot);
        w.header = (const tegroup_snapshot_header *)snapshot;
        ASSERT_STREQ("start", layout.items[1].name);
        ASSERT_STREQ("rows", layout.items[2].name);
        w.start = (const int64_t *)(snapshot + layout.items[1].offset_bytes);
        w.rows = (const int64_t *)(snapshot + layout.items[2].offset_bytes);
        w.groups = s.groups;
        w.d_at = (unsigned char *)desc.d.data - arena;
        w.d_end = w.d_at + (int64_t)guarded_find(p.d.tensor.data)->bytes;
        if (s.op != TEGROUP_OP_WGRAD && s.ng == NULL) {
            w.row_bytes = p.d.tensor.shape.cols * (int64_t)size_of(p.d.dtype);
            w.ld_bytes = p.d.tensor.ld != 0 ? p.d.tensor.ld * (int64_t)size_of(p.d.dtype) : w.row_bytes;
        }
        const unsigned char *lies = (const unsigned char *)device_of(arrays);
        for (int64_t i = 0; i < each; i++) {
            const unsigned char *sizes = lies + (size_t)(i * stride) * 2 * element, *others = sizes + (size_t)stride * element;
            for (int t = 0; t < 4; t++) {
                tegroup_prepare_desc prepare;
                if (grids[t]->snapshot == NULL) continue;
                memset(&prepare, 0, sizeof prepare);
                prepare.struct_size = sizeof prepare;
                prepare.shape = tensors[t]->shape;
                prepare.shape.row_sizes.data = sizes;
                if (prepare.shape.row_sizes.starts != NULL) prepare.shape.row_sizes.starts = others;
                if (s.ng != NULL) {
                    prepare.shape.col_sizes.data = others;
                    if (prepare.shape.offsets != NULL) prepare.shape.offsets = (const int64_t *)sizes;
                    prepare.ld = tensors[t]->ld;
                }
                prepare.space = TEGROUP_SPACE_DEVICE;
                prepare.snapshot = (void *)tensors[t]->shape.snapshot;
                prepare.snapshot_bytes = guarded_find(grids[t]->snapshot)->bytes;
                ASSERT_EQ(TEGROUP_OK, tegroup_prepare(&prepare, NULL, NULL));
            }
            ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, NULL, &p.error));
            count_changed<<<32, 256>>>(w, counters, counters + 1);
            MUST(cudaMemcpyAsync(arena, then, (size_t)w.head, cudaMemcpyDeviceToDevice, NULL));
        }
        MUST(cudaDeviceSynchronize());
        guards_release(mark);
    }
    MUST(cudaMemcpy(found, counters, sizeof found, cudaMemcpyDeviceToHost));
    ASSERT_EQ(0, found[0]);
    ASSERT_GT(found[1], each * CONFIGURATIONS / 2);
    MUST(cudaFree(then));
    MUST(cudaFree(counters));
}

/* On the host the sizes are clamped by the same functions; whole calls run on lies there, too. */
static void hostile_host_sizes(int b) {
    rng r = rng_seed(3014);
    for (int64_t i = scaled(1000); i > 0; i--) {
        void *mark = guards_mark();
        problem p;
        spec s = spec_for(&r, ops[i % 3], 12, 9, backends[b]);
        s.groups = (int32_t)rng_int(&r, 1, 6);
        s.m = random_rows(&r, s.groups, 12, 0);
        s.ng = s.kg = NULL;
        s.lists = 0;
        s.place = PLACE_DENSE;
        s.encoding = (tegroup_encoding)rng_int(&r, 1, 3);
        s.index = TEGROUP_DTYPE_I64;
        s.clamp = 1;
        problem_for(&p, &s, backends[b]);
        int64_t *sizes = (int64_t *)(uintptr_t)p.desc.a.shape.row_sizes.data;
        for (int32_t g = 0; g < s.groups; g++) if (rng_chance(&r, 40)) sizes[g] = hostile_value(&r);
        guarded_remember(sizes);
        ASSERT_EQ(TEGROUP_OK, problem_prepare(&p));
        tegroup_snapshot_view v = tegroup_snapshot_read(p.desc.a.shape.snapshot);
        for (int32_t g = 0; g < s.groups; g++) { /* what the snapshot grants is D's; the rest is compared */
            ASSERT_TRUE(v.rows[g] <= 0 || (v.start[g] >= 0 && v.start[g] + v.rows[g] <= p.capacity));
            if (s.op == TEGROUP_OP_WGRAD) continue;
            p.d.rows[g] = v.rows[g] > 0 ? v.rows[g] : 0;
            p.d.at[g] = (unsigned char *)p.d.tensor.data + v.start[g] * p.d.ld[g] * (int64_t)size_of(p.d.dtype);
        }
        const tegroup_status ran = problem_run_on_device(&p);
        if (!library_lacks(b, ran, p.error.rule)) ASSERT_EQ(TEGROUP_OK, ran);
        ASSERT_EQ(0, problem_disturbed(&p));
        ASSERT_EQ(0, workspace_guards_changed());
        guards_release(mark);
    }
}

TEST(contract, line4_lying_sizes_stay_inside) {
    EACH_BACKEND(b) {
        if (backends[b] == TEGROUP_BACKEND_CUBLASLT_LOOP) hostile_host_sizes(b);
        else hostile_sizes(b);
        ASSERT_PASSING();
    }
}

/* A snapshot in device memory that is none for its tensor: never prepared, or for other groups, with more rows than the tensor's buffer (also
 * where it is an operand's whose buffer is larger), of another kind of shape or, where columns differ, for more elements. The host cannot look; whatever kernel runs looks before it reads anything else there, and then nothing
 * is written: no row, no tail, no bias gradient. One that was prepared for no groups lies in no more memory than that takes. */
static const char *snapshot_that_is_none(rng *r, const spec *given, int b, int kind) {
    static char message[200];
    problem p;
    spec s = *given;
    tegroup_layout layout;
    int64_t changed = 0;
    problem_for(&p, &s, backends[b]);
    mirror_up(p.mark);
    tegroup_gemm_desc desc = desc_to_device(&p.desc);
    tegroup_tensor *const tensors[] = {&desc.a, &desc.b, &desc.d, &desc.c};
    const grid *const grids[] = {&p.a, &p.b, &p.d, &p.c};
    tegroup_status status = tegroup_plan_make(&desc, NULL, &p.plan, &p.error);
    const int32_t tiles = status == TEGROUP_OK ? plan_tiles(&p.plan) : 0;
    if (tiles > 0 && !plan_take_tile(&p.plan, (int32_t)rng_int(r, 0, tiles - 1))) status = TEGROUP_ERROR_UNSUPPORTED;
    int spoilt = (int)rng_int(r, 0, s.c == C_SEPARATE ? 3 : 2);
    if (grids[spoilt]->snapshot == NULL) spoilt = 0;
    message[0] = 0;
    if (status == TEGROUP_OK) {
        desc.options.workspace_bytes = p.plan.workspace_bytes;
        desc.options.workspace = workspace_of(desc.options.workspace_bytes);
        status = problem_prepare_on_device(&p, NULL);
        MUST(cudaDeviceSynchronize());
        tegroup_snapshot_header header;
        void *at = (void *)(uintptr_t)tensors[spoilt]->shape.snapshot;
        MUST(cudaMemcpy(&header, at, sizeof header, cudaMemcpyDeviceToHost));
        if (kind == 2) header.groups++;
        if (kind == 3) header.rows_end = tensors[spoilt]->shape.rows + 1;
        if (kind == 4) header.irregular ^= 1;
        if (kind == 5) header.magic ^= 1;
        if (kind == 6 && header.irregular) header.capacity_cols = tensors[spoilt]->shape.cols + 1;
        else if (kind == 6) header.magic = 0;
        if (kind < 2) MUST(cudaMemset(at, kind ? 0 : 0xF7, guarded_find(grids[spoilt]->snapshot)->bytes));
        else copy_up(at, &header, sizeof header);
        if (kind == 8) { /* a buffer one row too short for the last group */
            if (header.rows_end > 0 && s.ng == NULL && s.c != C_IN_PLACE) tensors[spoilt]->shape.snapshot = desc.a.shape.snapshot;
            if (header.rows_end > 0) tensors[spoilt]->shape.rows = header.rows_end - 1;
            else MUST(cudaMemset(at, 0, sizeof header));
        }
        if (kind == 7) {
            tegroup_prepare_desc none;
            memset(&none, 0, sizeof none);
            none.struct_size = sizeof none;
            none.space = TEGROUP_SPACE_DEVICE;
            none.shape = tensors[spoilt]->shape;
            none.shape.groups = 0;
            if (tegroup_snapshot_layout(&none.shape, &layout, NULL) != TEGROUP_OK) exit(1);
            none.snapshot = arena_take(none.snapshot_bytes = layout.total_bytes, 0);
            status = tegroup_prepare(&none, NULL, &p.error);
            tensors[spoilt]->shape.snapshot = none.snapshot;
            if (s.c == C_IN_PLACE && spoilt == 2) desc.c.shape.snapshot = none.snapshot;
        }
    }
    if (status == TEGROUP_OK) status = tegroup_gemm(&p.plan, &desc, NULL, &p.error);
    MUST(cudaDeviceSynchronize());
    mirror_down();
    for (guarded_node *node = guarded_top; node != (guarded_node *)p.mark; node = node->older)
        if (!node->scratch && node->copy != NULL) changed += guarded_changed(node->data);
    changed += guards_changed() + workspace_guards_changed();
    if (status != TEGROUP_OK && status != TEGROUP_ERROR_UNSUPPORTED) snprintf(message, sizeof message, "refused: %s %s", p.error.field, p.error.rule);
    else if (changed != 0) snprintf(message, sizeof message, "%ld bytes changed", (long)changed);
    if (message[0] != 0) fprintf(stderr, "kind %d of operand %d: ", kind, spoilt), print_spec(message, &s, backends[b]);
    problem_release(&p);
    return message;
}

static void snapshots_that_are_none(int64_t each) {
    rng r = rng_seed(3024);
    EACH_BACKEND(b) {
        if (backends[b] == TEGROUP_BACKEND_CUBLASLT_LOOP) continue; /* whose snapshots the host looks at */
        for (int64_t i = 0; i < each; i++) {
            void *mark = guards_mark();
            spec s = spec_for(&r, ops[i % 3], 90, 60, backends[b]);
            const int irregular = i % 4 == 3 && backends[b] != TEGROUP_BACKEND_SM90;
            s.groups = (int32_t)rng_int(&r, 1, irregular ? 20 : 40); /* lists of windows grow with the third power */
            s.m = random_rows(&r, s.groups, 90, 1);
            s.encoding = TEGROUP_ENCODING_COUNTS;
            s.place = (place_kind)rng_int(&r, 0, 3);
            s.alignment = 16;
            s.ng = s.kg = NULL;
            if (irregular) {
                s.ng = random_widths(&r, s.groups, s.n);
                s.kg = random_widths(&r, s.groups, s.k);
                s.pack = (pack_kind)rng_int(&r, 0, 3);
                for_backend(&r, &s, backends[b]);
            }
            if (backend_bundled(backends[b]) && s.op != TEGROUP_OP_WGRAD && s.ng == NULL) {
                s.lists &= ~8;
                s.tail = (tegroup_tail)rng_int(&r, 0, 2);
                s.tail_rows = 3;
            }
            if (backends[b] == TEGROUP_BACKEND_SM90) random_gather(&r, &s, 30);
            ASSERT_STREQ("", snapshot_that_is_none(&r, &s, b, (int)(i / 3 % 9)));
            guards_release(mark);
        }
    }
}

TEST(gpu, snapshots_that_are_none) { snapshots_that_are_none(scaled(600)); }
TEST(sanitize, snapshots_that_are_none) {
    mirror_exact = 1;
    snapshots_that_are_none(108);
    mirror_exact = 0;
}

/* 5. A step of prepare and three products, captured once and replayed with other sizes: the bits of eager calls, and within
 * the bound. Host sizes are baked into a graph, so that backend refuses before anything is enqueued. */
static void replays(int b) {
    enum { GROUPS = 6, CAPACITY = 200 };
    rng r = rng_seed(3005);
    product p[3];
    uint64_t eager[3];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t step;
    const int on_host = backends[b] == TEGROUP_BACKEND_CUBLASLT_LOOP;
    int64_t counts[GROUPS] = {30, 0, 17, 64, 1, 20};
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int op = 0; op < 3; op++) {
        memset(&p[op], 0, sizeof p[op]);
        p[op].op = ops[op];
        p[op].in = TEGROUP_DTYPE_BF16;
        p[op].out = op == 1 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F32;
        p[op].groups = GROUPS;
        p[op].rows = CAPACITY;
        p[op].n = 96;
        p[op].k = 136;
        p[op].seed = (uint64_t)op + 5;
        product_make(&p[op], backends[b]);
        product_counts(&p[op], counts);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p[op]));
        ASSERT_EQ(TEGROUP_OK, product_run(&p[op], &p[op].plan, stream)); /* kernels are loaded when they first run */
        MUST(cudaStreamSynchronize(stream));
    }
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int op = 0; op < 3; op++) {
        ASSERT_EQ(TEGROUP_OK, product_prepare(&p[op], stream));
        const tegroup_status status = tegroup_gemm(&p[op].plan, &p[op].desc, stream, &p[op].error);
        if (on_host) ASSERT_NE(TEGROUP_OK, status);
        else ASSERT_EQ(TEGROUP_OK, status);
    }
    MUST(cudaStreamEndCapture(stream, &graph));
    if (on_host) {
        size_t nodes = 1;
        MUST(cudaGraphGetNodes(graph, NULL, &nodes));
        ASSERT_EQ(0, (int)nodes);
    } else {
        MUST(cudaGraphInstantiate(&step, graph, 0));
        const int64_t splits = scaled(100);
        for (int64_t i = 0; i < splits; i++) {
            int64_t left = CAPACITY;
            for (int g = 0; g < GROUPS; g++) left -= counts[g] = rng_chance(&r, 15) ? 0 : rng_int(&r, 0, left < 90 ? left : 90);
            if (i == 1) memset(counts, 0, sizeof counts);
            for (int op = 0; op < 3; op++) {
                product_counts(&p[op], counts);
                product_poison(&p[op], stream);
                ASSERT_EQ(TEGROUP_OK, product_run(&p[op], &p[op].plan, stream));
                eager[op] = product_hash(&p[op], stream);
                product_poison(&p[op], stream);
                MUST(cudaMemsetAsync((void *)p[op].desc.a.shape.snapshot, 0xFF, p[op].snapshot_bytes, stream));
            }
            MUST(cudaGraphLaunch(step, stream));
            MUST(cudaStreamSynchronize(stream));
            for (int op = 0; op < 3; op++) {
                int64_t disturbed;
                ASSERT_EQ(eager[op], product_hash(&p[op], stream));
                const verdict v = product_compare(&p[op], &disturbed);
                ASSERT_TRUE(v.worst <= 1);
                ASSERT_EQ(0, disturbed);
            }
        }
        MUST(cudaGraphExecDestroy(step));
    }
    MUST(cudaGraphDestroy(graph));
    MUST(cudaStreamDestroy(stream));
    for (int op = 0; op < 3; op++) product_free(&p[op]);
}

TEST(contract, line5_replay_with_other_sizes) {
    EACH_BACKEND(b) {
        replays(b);
        ASSERT_PASSING();
    }
}

/* One call for prepare, plan and product: the bits of the three, with sizes on the device and on the host; captured as they are, host sizes
 * only when they are final. CUBLASLT_LOOP's snapshot would lie on the host. */
static void sizes_at(tegroup_gemm_desc *desc, const void *sizes, tegroup_space data_space) {
    tegroup_tensor *const tensors[] = {&desc->a, &desc->b, &desc->d};
    for (int i = 0; i < 3; i++) {
        if (tensors[i]->shape.row_sizes.encoding == TEGROUP_ENCODING_UNSET) continue;
        tensors[i]->shape.row_sizes.data = sizes;
        tensors[i]->shape.row_sizes.data_space = data_space;
        tensors[i]->shape.snapshot = NULL;
    }
}

static void once_as_three_calls(int b, tegroup_op op) {
    enum { GROUPS = 6, CAPACITY = 200 };
    const int64_t counts[GROUPS] = {30, 0, 17, 64, 1, 20}, others[GROUPS] = {0, 90, 2, 3, 50, 11};
    const void *device_sizes;
    uint64_t eager[2];
    cudaStream_t stream;
    tegroup_error error;
    tegroup_layout layout;
    product p;
    memset(&p, 0, sizeof p);
    p.op = op;
    p.in = TEGROUP_DTYPE_BF16;
    p.out = op == TEGROUP_OP_DGRAD ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F32;
    p.groups = GROUPS;
    p.rows = CAPACITY;
    p.n = 96;
    p.k = 136;
    p.seed = 17;
    product_make(&p, backends[b]);
    device_sizes = p.desc.a.shape.row_sizes.data;
    tegroup_gemm_desc desc = p.desc;
    sizes_at(&desc, device_sizes, TEGROUP_SPACE_UNSET);
    if (backends[b] == TEGROUP_BACKEND_CUBLASLT_LOOP) {
        ASSERT_EQ(TEGROUP_ERROR_COMBINATION, tegroup_gemm_once_layout(&desc, &layout, &error));
        ASSERT_STREQ("a.shape.row_sizes.space", error.field);
        product_free(&p);
        return;
    }
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ASSERT_EQ(TEGROUP_OK, product_plan(&p));
    for (int i = 1; i >= 0; i--) { /* and counts are those on the device afterwards */
        product_counts(&p, i ? others : counts);
        product_poison(&p, stream);
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, stream));
        eager[i] = product_hash(&p, stream);
    }
    ASSERT_NE(eager[0], eager[1]);
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm_once_layout(&desc, &layout, NULL));
    ASSERT_EQ(layout.total_bytes, p.plan.workspace_bytes + p.snapshot_bytes);
    MUST(cudaMalloc(&desc.options.workspace, layout.total_bytes));
    desc.options.workspace_bytes = layout.total_bytes;
    for (int on_host = 0; on_host < 2; on_host++) {
        cudaGraph_t graph;
        cudaGraphExec_t step;
        size_t nodes = 1;
        int64_t given[GROUPS];
        memcpy(given, counts, sizeof given);
        sizes_at(&desc, on_host ? (const void *)given : device_sizes, on_host ? TEGROUP_SPACE_HOST : TEGROUP_SPACE_UNSET);
        product_poison(&p, stream);
        ASSERT_EQ(TEGROUP_OK, tegroup_gemm_once(&desc, stream, NULL));
        ASSERT_EQ(eager[0], product_hash(&p, stream));
        if (on_host) {
            MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
            const tegroup_status refused = tegroup_gemm_once(&desc, stream, &error);
            MUST(cudaStreamEndCapture(stream, &graph));
            ASSERT_EQ(TEGROUP_ERROR_COMBINATION, refused);
            ASSERT_STREQ("host_sizes_final", error.field);
            MUST(cudaGraphGetNodes(graph, NULL, &nodes));
            ASSERT_EQ(0, (int)nodes);
            MUST(cudaGraphDestroy(graph));
            desc.options.host_sizes_final = 1;
        }
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        const tegroup_status captured = tegroup_gemm_once(&desc, stream, NULL);
        MUST(cudaStreamEndCapture(stream, &graph));
        ASSERT_EQ(TEGROUP_OK, captured);
        MUST(cudaGraphInstantiate(&step, graph, 0));
        memcpy(given, others, sizeof given);
        product_counts(&p, others); /* device sizes are read at each launch, those of the host were at the capture */
        product_poison(&p, stream);
        MUST(cudaGraphLaunch(step, stream));
        ASSERT_EQ(eager[on_host ? 0 : 1], product_hash(&p, stream));
        product_counts(&p, counts);
        MUST(cudaGraphExecDestroy(step));
        MUST(cudaGraphDestroy(graph));
    }
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaFree(desc.options.workspace));
    MUST(cudaStreamDestroy(stream));
    product_free(&p);
}

TEST(gpu, once_is_the_three_calls) {
    EACH_BACKEND(b)
    for (int op = 0; op < 3; op++) {
        once_as_three_calls(b, ops[op]);
        ASSERT_PASSING();
    }
}

/* 6a. A thousand runs, one hash, whatever the workspace held and whichever stream. */
static void one_hash(int b) {
    const int64_t runs = scaled(1000);
    cudaStream_t stream[2];
    for (int s = 0; s < 2; s++) MUST(cudaStreamCreateWithFlags(&stream[s], cudaStreamNonBlocking));
    for (int op = 0; op < 3; op++) {
        int64_t counts[8] = {700, 0, 3, 420, 64, 1, 511, 300};
        unsigned long long *sums, *seen = (unsigned long long *)malloc((size_t)runs * sizeof *seen);
        product p;
        memset(&p, 0, sizeof p);
        p.op = ops[op];
        p.in = TEGROUP_DTYPE_BF16;
        p.out = op == 1 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F32;
        p.groups = 8;
        p.rows = 2048;
        p.n = 512;
        p.k = 776;
        p.seed = 77;
        product_make(&p, backends[b]);
        product_counts(&p, counts);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        MUST(cudaMalloc((void **)&sums, (size_t)runs * sizeof *sums));
        MUST(cudaMemset(sums, 0, (size_t)runs * sizeof *sums));
        for (int64_t i = 0; i < runs; i++) {
            if (i % 500 == 0) MUST(cudaDeviceSynchronize()); /* the stream changes */
            cudaStream_t on = stream[i / 500 % 2];
            MUST(cudaMemsetAsync(p.desc.d.data, 0xFF, (size_t)p.d_count * size_of(p.out), on));
            if (p.desc.options.workspace != NULL && i % 3 != 0) MUST(cudaMemsetAsync(p.desc.options.workspace, i % 3 == 1 ? 0xFF : 0x3F, p.desc.options.workspace_bytes, on));
            ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, on));
            add_hash<<<512, 256, 0, on>>>((const uint16_t *)p.desc.d.data, p.d_count * (int64_t)size_of(p.out) / 2, sums + i);
        }
        MUST(cudaDeviceSynchronize());
        MUST(cudaMemcpy(seen, sums, (size_t)runs * sizeof *sums, cudaMemcpyDeviceToHost));
        int64_t distinct = 0;
        for (int64_t i = 0; i < runs; i++) {
            int old = 0;
            for (int64_t j = 0; j < i && !old; j++) old = seen[j] == seen[i];
            distinct += !old;
        }
        ASSERT_EQ(1, distinct);
        rng r = rng_seed(78);
        int64_t disturbed;
        const verdict v = product_sample(&p, 4000, &r, &disturbed); /* and it is the right one */
        ASSERT_TRUE(v.worst <= 1);
        ASSERT_EQ(0, disturbed);
        MUST(cudaFree(sums));
        free(seen);
        product_free(&p);
    }
    for (int s = 0; s < 2; s++) MUST(cudaStreamDestroy(stream[s]));
}

/* 6b. Equal numerics_id, equal rows: in other company, another grouping and with every tile. */
static void rows_keep_their_bits(int b) {
    rng r = rng_seed(3006);
    int64_t compared = 0;
    for (int64_t i = scaled(40); i > 0; i--) {
        void *mark = guards_mark();
        const int64_t rows[] = {300, 1, 5, 16, 40, 64, 100}, k = 8 * rng_int(&r, 1, 50), n = 8 * rng_int(&r, 1, 25);
        const uint64_t seed = rng_next(&r);
        const int32_t id[3] = {0, 9, 0};
        tegroup_op op = ops[rng_int(&r, 0, 1)];
        tegroup_dtype type = halves[rng_int(&r, 0, 1)];
        problem first;
        for (int j = 0; j < 7; j++) {
            const int64_t cut = j == 0 ? rows[0] : rng_int(&r, 0, rows[j]), m[3] = {cut, rng_int(&r, 0, 9), rows[j] - cut}, from[3] = {0, 0, cut};
            spec s = plain_spec(op, 3, m, n, k, type, TEGROUP_DTYPE_F32, seed);
            problem p;
            s.group_id = id; /* the rows in two pieces with a stranger between */
            s.row_first = from;
            s.aligned = 1;
            problem_for(j == 0 ? &first : &p, &s, backends[b]);
            problem *q = j == 0 ? &first : &p;
            if (j % 3 == 1) q->desc.options.expected_rows = rows[j];
            ASSERT_EQ(TEGROUP_OK, problem_run_on_device(q));
            if (backend_bundled(backends[b])) ASSERT_EQ(first.plan.numerics_id, q->plan.numerics_id);
            if (first.plan.numerics_id == q->plan.numerics_id && j > 0) {
                for (int32_t g = 0; g < 3; g += 2)
                    for (int64_t row = 0; row < q->d.rows[g]; row++) ASSERT_EQ(0, row_bits_differ(&first, 0, from[g] + row, q, g, row));
                compared++;
            }
            if (j > 0) problem_release(q);
        }
        guards_release(mark);
    }
    if (backend_bundled(backends[b])) ASSERT_GT(compared, 0);
}

/* Numbers of unlike size, whose sums lose most of them; subnormals; seldom infinity or NaN. */
static __global__ void fill_wild(int bf16, uint16_t *data, int64_t count, uint64_t seed) {
    const uint32_t mantissa_bits = bf16 ? 7 : 10, most = bf16 ? 255 : 31;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        const uint64_t h = stirred(seed + (uint64_t)i);
        const uint32_t common = bf16 ? 107 + (uint32_t)(h >> 16) % 41 : (uint32_t)(h >> 16) % 31,
                       exponent = h >> 32 & 63 ? common : h >> 38 & 63 ? 0 : most;
        data[i] = (uint16_t)((h & 1) << 15 | exponent << mantissa_bits | (h >> 1 & ((1u << mantissa_bits) - 1)));
    }
}

/* Every kernel of the Hopper backend's table gives the same bits, whichever the plan would take, and the right ones. */
TEST(contract, line6_sm90_tiles_agree) {
    if (!backend_here(TEGROUP_BACKEND_SM90)) return;
    rng r = rng_seed(3016);
    for (int64_t i = scaled(60); i > 0; i--) {
        product p;
        int64_t counts[6], disturbed;
        memset(&p, 0, sizeof p);
        p.op = ops[i % 3];
        p.in = halves[i / 3 % 2];
        p.out = rng_chance(&r, 50) ? TEGROUP_DTYPE_F32 : p.in;
        p.groups = 6;
        p.n = 8 * rng_int(&r, 1, 90);
        p.k = 8 * rng_int(&r, 1, 90);
        p.rows = 4500;
        p.seed = rng_next(&r);
        for (int g = 0; g < 6; g++) counts[g] = rng_chance(&r, 20) ? 0 : rng_int(&r, 0, 250);
        if (i % 4 == 0) { /* many tiles of a group, and of its columns: stripes and their parts */
            p.n = 8 * rng_int(&r, 250, 350);
            p.k = 8 * rng_int(&r, 250, 350);
            counts[2] = rng_int(&r, 1500, 3000); /* enough to be dealt */
        }
        product_make(&p, TEGROUP_BACKEND_SM90);
        product_counts(&p, counts);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        const int32_t rows = plan_tiles(&p.plan);
        const int wild = i / 6 % 2;
        uint64_t hash = 0;
        if (wild) {
            fill_wild<<<1024, 256>>>(p.in == TEGROUP_DTYPE_BF16, (uint16_t *)p.desc.a.data, p.a_count, p.seed);
            fill_wild<<<1024, 256>>>(p.in == TEGROUP_DTYPE_BF16, (uint16_t *)p.desc.b.data, p.b_count, p.seed + ((uint64_t)1 << 40));
        }
        ASSERT_GT(rows, 1);
        for (int32_t row = 0; row < rows; row++) {
            ASSERT_EQ(TEGROUP_OK, sm90_choose(&p.plan, sm90_candidate(&p.plan, row), &p.error));
            product_poison(&p, NULL);
            ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
            if (row == 0) hash = product_hash(&p, NULL);
            ASSERT_EQ(hash, product_hash(&p, NULL));
            const verdict v = product_sample(&p, 500, &r, &disturbed);
            ASSERT_TRUE(wild || v.worst <= 1);
            ASSERT_EQ(0, disturbed);
        }
        product_free(&p);
    }
}

/* The results' bits, of D and of a bias gradient, as one number. */
static uint64_t hash_more(uint64_t hash, const unsigned char *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) hash = stirred(hash + data[i] + UINT64_C(0x9E3779B97F4A7C15));
    return hash;
}
static uint64_t results_hash(const problem *p) {
    uint64_t hash = 0;
    for (int32_t g = 0; g < p->s.groups; g++) {
        for (int64_t i = 0; i < p->d.rows[g]; i++)
            hash = hash_more(hash, p->d.at[g] + i * p->d.ld[g] * (int64_t)size_of(p->d.dtype),
                             (size_t)p->d.cols[g] * size_of(p->d.dtype));
        if (p->s.bias && p->s.op == TEGROUP_OP_WGRAD)
            hash = hash_more(hash, p->bias.at[g], (size_t)p->bias.cols[g] * size_of(p->bias.dtype));
    }
    return hash;
}

/* Rows that an index picks, with every kernel of the Hopper backend's table: the bits of a permuted copy. */
TEST(contract, line6_sm90_gathered_rows) {
    if (!backend_here(TEGROUP_BACKEND_SM90)) return;
    rng r = rng_seed(3026);
    int64_t hashes = 0;
    for (int64_t i = scaled(54); i > 0; i--) {
        void *mark = guards_mark();
        const int op = (int)(i % 3);
        int64_t m[5];
        for (int g = 0; g < 5; g++) m[g] = rng_chance(&r, 20) ? 0 : rng_int(&r, 0, i % 2 == 0 ? 300 : 40);
        const tegroup_dtype in = halves[i / 3 % 2];
        spec s = plain_spec(ops[op], 5, m, 8 * rng_int(&r, 1, 40), 8 * rng_int(&r, 1, 40), in, rng_chance(&r, 50) ? TEGROUP_DTYPE_F32 : in, rng_next(&r)), t;
        s.aligned = 1;
        s.place = (place_kind)rng_int(&r, 0, 3);
        s.alignment = 4;
        s.tail_rows = rng_int(&r, 0, 200);
        s.pad = 8 * rng_int(&r, 0, 1);
        s.bias = rng_chance(&r, 50);
        s.bias_of_b = s.bias && ops[op] == TEGROUP_OP_WGRAD && rng_chance(&r, 50);
        s.c = (c_kind)rng_int(&r, 0, 3);
        s.beta = SCALARS_ONE;
        s.gather = ops[op] == TEGROUP_OP_WGRAD ? (int32_t)rng_int(&r, 1, 3) : 1;
        t = s;
        t.gather = 0;
        problem p, q;
        problem_for(&p, &s, TEGROUP_BACKEND_SM90);
        problem_for(&q, &t, TEGROUP_BACKEND_SM90);
        ASSERT_EQ(TEGROUP_OK, gather_copy(&p.a, &q.a, &q.error));
        ASSERT_EQ(TEGROUP_OK, gather_copy(&p.b, &q.b, &q.error));
        ASSERT_EQ(TEGROUP_OK, problem_run_on_device(&q));
        const uint64_t wanted = results_hash(&q);
        int32_t rows = 1;
        for (int32_t row = 0; row < rows; row++) {
            problem_reset(&p);
            mirror_up(mark);
            tegroup_gemm_desc desc = desc_to_device(&p.desc);
            ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
            ASSERT_EQ(q.plan.numerics_id, p.plan.numerics_id);
            rows = plan_tiles(&p.plan);
            ASSERT_GT(rows, 1);
            ASSERT_EQ(TEGROUP_OK, sm90_choose(&p.plan, sm90_candidate(&p.plan, row), &p.error));
            desc.options.workspace_bytes = p.plan.workspace_bytes;
            desc.options.workspace = workspace_of(desc.options.workspace_bytes);
            ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, NULL));
            ASSERT_EQ(TEGROUP_OK, tegroup_gemm(&p.plan, &desc, NULL, &p.error));
            MUST(cudaDeviceSynchronize());
            mirror_down();
            ASSERT_EQ(wanted, results_hash(&p));
            ASSERT_EQ(0, guards_changed());
            hashes++;
        }
        ASSERT_EQ(0, problem_disturbed(&p));
        guards_release(mark);
    }
    ASSERT_GT(hashes, 0);
}

/* Tuning times every tile, changes no bit, and its result can be saved and loaded. */
TEST(sanitize, sm90_tune) {
    if (!backend_here(TEGROUP_BACKEND_SM90)) return;
    const int64_t counts[4] = {300, 0, 17, 640};
    for (int op = 0; op < 3; op++) {
        float milliseconds[TEGROUP_TUNE_CANDIDATES];
        unsigned char bytes[TEGROUP_SAVED_PLAN_BYTES];
        cudaEvent_t begin, end;
        tegroup_plan tuned, loaded;
        tegroup_tune_desc tune;
        product p;
        int32_t timed = 0;
        memset(&p, 0, sizeof p);
        p.op = ops[op];
        p.in = p.out = TEGROUP_DTYPE_BF16;
        p.groups = 4;
        p.rows = 1000;
        p.n = 384;
        p.k = 512;
        p.seed = 5;
        product_make(&p, TEGROUP_BACKEND_SM90);
        product_counts(&p, counts);
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        product_poison(&p, NULL);
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
        const uint64_t want = product_hash(&p, NULL);
        MUST(cudaEventCreate(&begin));
        MUST(cudaEventCreate(&end));
        memset(&tune, 0, sizeof tune);
        tune.struct_size = sizeof tune;
        tune.gemm = &p.desc;
        tune.overwrite = 1;
        tune.rounds = 1; /* a candidate is launched twice: under a sanitizer each takes long */
        tune.begin = begin;
        tune.end = end;
        tune.milliseconds = milliseconds;
        tuned = p.plan;
        tune.flush = counts; /* the host's */
        tune.flush_bytes = sizeof counts;
        ASSERT_EQ(TEGROUP_ERROR_VALUE, tegroup_plan_tune(&tuned, &tune, NULL, &p.error));
        ASSERT_STREQ("flush", p.error.field);
        ASSERT_EQ(0, memcmp(&tuned, &p.plan, sizeof tuned));
        void *flush; /* any device memory: it is only read; of one that initcheck knows to be written */
        tune.flush_bytes = 1 << 20;
        MUST(cudaMalloc(&flush, tune.flush_bytes));
        MUST(cudaMemset(flush, 0, tune.flush_bytes));
        tune.flush = flush;
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_tune(&tuned, &tune, NULL, &p.error));
        for (int i = 0; i < TEGROUP_TUNE_CANDIDATES; i++) timed += milliseconds[i] > 0;
        ASSERT_EQ(plan_tiles(&p.plan), timed);
        ASSERT_EQ(p.plan.numerics_id, tuned.numerics_id);
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_save(&tuned, bytes, sizeof bytes, &p.error));
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_load(&p.desc, bytes, sizeof bytes, &loaded, &p.error));
        ASSERT_EQ(0, memcmp(&tuned, &loaded, sizeof tuned));
        product_poison(&p, NULL);
        ASSERT_EQ(TEGROUP_OK, product_run(&p, &loaded, NULL));
        ASSERT_EQ(want, product_hash(&p, NULL));
        MUST(cudaEventDestroy(begin));
        MUST(cudaEventDestroy(end));
        MUST(cudaFree(flush));
        product_free(&p);
    }
}

/* FP32 weight gradients that are added to D, some of whose tiles' parts L2 adds, have the bits of those where C lies elsewhere, which
 * no L2 adds: of sums and C of all sizes, subnormal, infinite and NaN. */
TEST(sanitize, sm90_adds_in_l2) {
    if (!backend_here(TEGROUP_BACKEND_SM90)) return;
    const int64_t counts[4] = {300, 20, 17, 640};
    const uint32_t special[8] = {0, 0x80000000, 1, 0x807fffff, 0x00800000, 0x7f800000, 0xff800000, 0x7fc00000};
    for (int tiny = 0; tiny < 2; tiny++) {
        const float alpha = tiny ? 0x1p-125f : 1, one = 1;
        uint64_t wanted = 0;
        float *c;
        product p;
        memset(&p, 0, sizeof p);
        p.op = TEGROUP_OP_WGRAD;
        p.in = TEGROUP_DTYPE_BF16;
        p.out = TEGROUP_DTYPE_F32;
        p.groups = 4;
        p.rows = 1000;
        p.n = 392;
        p.k = 520;
        p.seed = 6;
        product_make(&p, TEGROUP_BACKEND_SM90);
        product_counts(&p, counts);
        const size_t bytes = (size_t)p.d_count * 4;
        uint32_t *bits = (uint32_t *)malloc(bytes);
        for (int64_t i = 0; i < p.d_count; i++) {
            const uint32_t r = (uint32_t)(((uint64_t)i * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
            bits[i] = r % 3 == 0 ? special[r / 3 % 8] : tiny ? r & 0x80ffffff : (r & 0x8fffffff) + 0x38000000;
        }
        MUST(cudaMalloc((void **)&c, bytes));
        copy_up(c, bits, bytes);
        p.desc.alpha.data = &alpha;
        p.desc.alpha.space = TEGROUP_SPACE_HOST;
        for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
            p.desc.accumulate = !elsewhere;
            if (elsewhere) {
                p.desc.c = p.desc.d;
                p.desc.c.data = c;
                p.desc.beta.data = &one;
                p.desc.beta.space = TEGROUP_SPACE_HOST;
            }
            ASSERT_EQ(TEGROUP_OK, product_plan(&p));
            ASSERT_GT(plan_tiles(&p.plan), 1);
            for (int32_t i = 0; i < plan_tiles(&p.plan); i++) {
                ASSERT_EQ(TEGROUP_OK, sm90_choose(&p.plan, sm90_candidate(&p.plan, i), &p.error));
                if (!elsewhere) copy_up(p.desc.d.data, bits, bytes);
                else MUST(cudaMemset(p.desc.d.data, 0xFF, bytes));
                ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
                const uint64_t hash = product_hash(&p, NULL);
                if (wanted == 0) wanted = hash;
                ASSERT_EQ(wanted, hash);
            }
        }
        MUST(cudaFree(c));
        free(bits);
        product_free(&p);
    }
}

/* Few tiles, whose sums are long enough for dealing them: of two widths, and narrow ones with others. */
TEST(sanitize, sm90_deals) {
    if (!backend_here(TEGROUP_BACKEND_SM90)) return;
    const int64_t counts[3][2] = {{300, 40}, {0, 340}, {339, 1}};
    rng r = rng_seed(3021);
    for (int i = 0; i < 4; i++) {
        product p;
        int64_t disturbed;
        memset(&p, 0, sizeof p);
        p.op = ops[i % 2];
        p.in = p.out = halves[i / 2];
        p.groups = 2;
        p.rows = 340;
        p.n = i % 2 ? 6144 : 448;
        p.k = i % 2 ? 448 : 6144;
        p.seed = 30 + (uint64_t)i;
        product_make(&p, TEGROUP_BACKEND_SM90);
        p.desc.options.sm_limit = 4; /* so few tiles are rounds, too */
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        for (int sizes = 0; sizes < 3; sizes++) {
            uint64_t wanted = 0;
            product_counts(&p, counts[sizes]);
            for (int32_t row = 0; row < plan_tiles(&p.plan); row++) {
                ASSERT_EQ(TEGROUP_OK, sm90_choose(&p.plan, sm90_candidate(&p.plan, row), &p.error));
                product_poison(&p, NULL);
                ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
                if (row == 0) wanted = product_hash(&p, NULL);
                ASSERT_EQ(wanted, product_hash(&p, NULL));
                const verdict v = product_sample(&p, 500, &r, &disturbed);
                ASSERT_LE(v.worst, 1);
                ASSERT_EQ(0, disturbed);
            }
        }
        product_free(&p);
    }
}

/* Where a plan knows that groups are even, the last ones may have narrow tiles alone. The bits are those of other tiles, also where
 * groups turn out to be uneven. */
TEST(sanitize, sm90_tapers) {
    if (!backend_here(TEGROUP_BACKEND_SM90)) return;
    const int64_t counts[4][3] = {{100, 100, 100}, {0, 300, 0}, {171, 0, 129}, {0, 3, 290}}, cols[4] = {384, 520, 576, 1096};
    rng r = rng_seed(3020);
    for (int i = 0; i < 4; i++) {
        product p;
        int64_t disturbed;
        memset(&p, 0, sizeof p);
        p.op = TEGROUP_OP_FORWARD;
        p.in = p.out = halves[i % 2];
        p.bias = i / 2;
        p.groups = 3;
        p.rows = 300;
        p.n = cols[i];
        p.k = i == 0 ? 16384 : 2048; /* tiles are dealt, and go round in turn */
        p.seed = 12 + (uint64_t)i;
        product_make(&p, TEGROUP_BACKEND_SM90);
        p.desc.options.sm_limit = 4; /* so few tiles are rounds, too */
        p.desc.options.expected_rows = 300;
        p.desc.options.expected_rows_max = 130; /* two lines of tiles, where the others have one */
        ASSERT_EQ(TEGROUP_OK, product_plan(&p));
        ASSERT_EQ(0u, *sm90_narrows(&p.plan));
        p.desc.options.expected_rows_max = 100;
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&p.desc, NULL, &p.plan, &p.error));
        for (int32_t row = 0; p.plan.tile_m != 128 || p.plan.tile_n != 192; row++)
            ASSERT_EQ(TEGROUP_OK, sm90_choose(&p.plan, sm90_candidate(&p.plan, row), &p.error));
        const uint64_t planned = *sm90_narrows(&p.plan), narrows[3] = {0, planned, 3};
        ASSERT_GT(planned, 0u);
        for (int sizes = 0; sizes < 4; sizes++) {
            uint64_t wanted = 0;
            product_counts(&p, counts[sizes]);
            for (int j = 0; j < 3; j++) {
                *sm90_narrows(&p.plan) = narrows[j];
                product_poison(&p, NULL);
                ASSERT_EQ(TEGROUP_OK, product_run(&p, &p.plan, NULL));
                if (j == 0) wanted = product_hash(&p, NULL);
                ASSERT_EQ(wanted, product_hash(&p, NULL));
                const verdict v = product_sample(&p, 500, &r, &disturbed);
                ASSERT_LE(v.worst, 1);
                ASSERT_EQ(0, disturbed);
            }
        }
        product_free(&p);
    }
}

TEST(contract, line6_bitwise_deterministic) {
    EACH_BACKEND(b) {
        one_hash(b);
        ASSERT_PASSING();
        rows_keep_their_bits(b);
        ASSERT_PASSING();
    }
}

/* 7. What explain says of this machine is what the plan does, for problems that a backend takes and for those it refuses. */
TEST(contract, line7_explain_is_the_plan) {
    rng r = rng_seed(3007);
    int64_t taken = 0, refused = 0;
    for (int64_t i = scaled(300); i > 0; i--) {
        void *mark = guards_mark();
        const int b = (int)(i % (BACKENDS + 1));
        const tegroup_backend backend = b == BACKENDS ? TEGROUP_BACKEND_AUTO : backends[b];
        tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
        tegroup_plan plan;
        problem p;
        spec s = rng_chance(&r, 50) ? random_spec(&r, ops[i / 4 % 3], 5, 9) : spec_for(&r, ops[i / 4 % 3], 5, 9, backend);
        problem_for(&p, &s, backend);
        mirror_up(p.mark);
        tegroup_gemm_desc desc = desc_to_device(&p.desc);
        ASSERT_EQ(TEGROUP_OK, tegroup_explain(&desc, NULL, verdicts, &p.error));
        const tegroup_status status = tegroup_plan_make(&desc, NULL, &plan, &p.error);
        int chosen = -1;
        for (int v = 0; v < TEGROUP_BACKEND_COUNT - 1; v++) {
            if (verdicts[v].chosen) chosen = v;
            if (verdicts[v].status != TEGROUP_OK) ASSERT_TRUE(verdicts[v].field != NULL && verdicts[v].rule != NULL);
        }
        ASSERT_EQ(chosen >= 0, status == TEGROUP_OK);
        if (chosen >= 0) {
            ASSERT_EQ((int)verdicts[chosen].backend, (int)plan.backend);
            ASSERT_EQ(verdicts[chosen].workspace_bytes, plan.workspace_bytes);
            taken++;
        } else refused++;
        guards_release(mark);
    }
    ASSERT_GT(taken, 0);
    ASSERT_GT(refused, 0);
}

/* 9. A launch that CUDA refuses is ERROR_CUDA with CUDA's own number: here the default stream is used while another one that
 * waits for it is being captured. A plan for another device, and host memory where device memory must be, are refused. */
TEST(contract, line9_errors_name_the_field) {
    void *mark = guards_mark();
    int64_t m[2] = {3, 4};
    problem p;
    spec s = plain_spec(TEGROUP_OP_FORWARD, 2, m, 16, 16, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16, 0);
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    s.alpha = SCALARS_EACH; /* in the device's memory */
    problem_for(&p, &s, TEGROUP_BACKEND_PORTABLE);
    mirror_up(p.mark);
    tegroup_gemm_desc desc = desc_to_device(&p.desc);
    ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
    desc.options.workspace_bytes = p.plan.workspace_bytes;
    desc.options.workspace = workspace_of(desc.options.workspace_bytes);
    ASSERT_EQ(TEGROUP_OK, prepare_on_device(&p.a, NULL, &p.error)); /* kernels are loaded when they first run */
    MUST(cudaStreamCreate(&stream));
    for (int call = 0; call < 2; call++) {
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        const tegroup_status status = call == 0 ? tegroup_gemm(&p.plan, &desc, NULL, &p.error) : prepare_on_device(&p.a, NULL, &p.error);
        ASSERT_EQ(TEGROUP_ERROR_CUDA, status);
        ASSERT_STREQ("stream", p.error.field);
        ASSERT_EQ((int)cudaErrorStreamCaptureImplicit, p.error.native);
        ASSERT_EQ((int)p.error.got, p.error.native);
        (void)cudaStreamEndCapture(stream, &graph); /* the attempt spoilt it */
        (void)cudaGetLastError();
        if (graph != NULL) MUST(cudaGraphDestroy(graph));
        graph = NULL;
    }
    MUST(cudaStreamDestroy(stream));
    tegroup_gemm_desc lost = desc; /* host memory, told from device memory by the deep check alone */
    lost.options.check_level = TEGROUP_CHECK_DEEP;
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm_check(&p.plan, &lost, &p.error));
    for (int i = 0; i < 4; i++) {
        static const char *const fields[] = {"b.data", "a.shape.snapshot", "alpha.data", "options.workspace"};
        lost = desc;
        lost.options.check_level = TEGROUP_CHECK_DEEP;
        if (i == 0) lost.b.data = p.desc.b.data;
        if (i == 1) lost.a.shape.snapshot = p.desc.a.shape.snapshot;
        if (i == 2) lost.alpha.data = p.alpha;
        if (i == 3) lost.options.workspace = p.desc.d.data, lost.options.workspace_bytes += TEGROUP_ALIGNMENT;
        ASSERT_EQ(TEGROUP_ERROR_VALUE, tegroup_gemm_check(&p.plan, &lost, &p.error));
        ASSERT_STREQ(fields[i], p.error.field);
    }
    EACH_BACKEND(b) {
        tegroup_gemm_desc other = desc;
        problem q;
        spec t = s;
        t.aligned = 1;
        t.alpha = SCALARS_DEFAULT;
        problem_for(&q, &t, backends[b]);
        mirror_up(q.mark);
        other = desc_to_device(&q.desc);
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&other, NULL, &q.plan, &q.error));
        other.options.workspace_bytes = q.plan.workspace_bytes;
        other.options.workspace = workspace_of(other.options.workspace_bytes);
        ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&q, NULL));
        tegroup_plan elsewhere = q.plan;
        elsewhere.device = q.plan.device + 1;
        ASSERT_EQ(TEGROUP_ERROR_PLAN, tegroup_gemm(&elsewhere, &other, NULL, &q.error));
        ASSERT_STREQ("plan.device", q.error.field);
        if (other.options.workspace_bytes > 0) {
            other.options.workspace_bytes--;
            ASSERT_EQ(TEGROUP_ERROR_WORKSPACE, tegroup_gemm(&q.plan, &other, NULL, &q.error));
        }
        MUST(cudaDeviceSynchronize());
        mirror_down();
        ASSERT_EQ(0, guarded_changed(q.d.tensor.data));
        problem_release(&q);
    }
    ASSERT_EQ(cudaSuccess, cudaGetLastError());
    guards_release(mark);
}

/* Data two bytes past what the chosen kernel takes are refused by a rule that names the way out, and that way leads to the right
 * numbers. */
TEST(gpu, data_between_sixteen_bytes) {
    for (int op = 0; op < 3; op++)
        for (int moved_b = 0; moved_b < 2; moved_b++) {
            void *mark = guards_mark();
            static const int64_t m[] = {70, 0, 33};
            problem p;
            spec s = plain_spec(ops[op], 3, m, 72, 64, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F32, 7602 + (uint64_t)op);
            s.aligned = 1;
            problem_for(&p, &s, TEGROUP_BACKEND_PORTABLE);
            problem_reference(&p);
            mirror_up(p.mark);
            tegroup_gemm_desc desc = desc_to_device(&p.desc);
            desc.options.backend = TEGROUP_BACKEND_AUTO;
            tegroup_tensor *moved = moved_b ? &desc.b : &desc.a;
            tegroup_layout layout;
            ASSERT_EQ(TEGROUP_OK, tegroup_tensor_layout(moved, TEGROUP_COPIES_ROWWISE, &layout, NULL));
            const size_t bytes = layout.total_bytes;
            char *room, text[256];
            MUST(cudaMalloc((void **)&room, bytes + 2));
            MUST(cudaMemcpy(room + 2, moved->data, bytes, cudaMemcpyDeviceToDevice));
            moved->data = room + 2;
            for (desc.options.data_alignment_bytes = 0; desc.options.data_alignment_bytes <= 2; desc.options.data_alignment_bytes += 2) {
                ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&desc, NULL, &p.plan, &p.error));
                desc.options.workspace_bytes = p.plan.workspace_bytes;
                desc.options.workspace = workspace_of(desc.options.workspace_bytes);
                ASSERT_EQ(TEGROUP_OK, problem_prepare_on_device(&p, NULL));
                const tegroup_status status = tegroup_gemm(&p.plan, &desc, NULL, &p.error);
                if (p.plan.backend == TEGROUP_BACKEND_SM90) {
                    ASSERT_EQ(0, desc.options.data_alignment_bytes);
                    ASSERT_EQ(TEGROUP_ERROR_ALIGNMENT, status);
                    ASSERT_STREQ(moved_b ? "b.data" : "a.data", p.error.field);
                    tegroup_error_text(&p.error, text, sizeof text);
                    ASSERT_TRUE(strstr(text, "options.data_alignment_bytes 2 ") != NULL);
                    continue;
                }
                ASSERT_EQ(TEGROUP_OK, status);
                MUST(cudaDeviceSynchronize());
                mirror_down();
                ASSERT_TRUE(problem_compare(&p).worst <= 1);
                ASSERT_EQ(0, guards_changed());
            }
            MUST(cudaFree(room));
            problem_release(&p);
            guards_release(mark);
        }
}

/* ---- for compute-sanitizer: every kernel at least once, each buffer an allocation of its own ----------------------- */

TEST(sanitize, every_kernel) {
    static const int64_t rows[] = {1, 7, 16, 33, 65, 130}, shapes[][2] = {{72, 40}, {17, 23}, {136, 200}, {8, 264}};
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32};
    rng r = rng_seed(4001);
    mirror_exact = 1;
    EACH_BACKEND(b)
    for (int op = 0; op < 3; op++)
        for (int in = 0; in < (backends[b] == TEGROUP_BACKEND_CUBLASLT_GROUPED ? 2 : backends[b] == TEGROUP_BACKEND_PORTABLE && ops[op] != TEGROUP_OP_WGRAD ? 5 : 3); in++)
            for (int out = 0; out < 3; out++)
                for (int i = 0; i < 6; i++) {
                    void *mark = guards_mark();
                    const int64_t m[3] = {rows[i], 0, rows[i]}, *shape = shapes[rng_int(&r, 0, 3)];
                    spec s = plain_spec(ops[op], 3, m, shape[0], shape[1], types[in < 3 ? in : 2], types[out], rng_next(&r));
                    if (in >= 3) s.weights = halves[in - 3]; /* beside F32 */
                    s.tail_rows = 2;
                    s.tail = ops[op] == TEGROUP_OP_WGRAD ? TEGROUP_TAIL_KEEP : (tegroup_tail)(i % 3);
                    s.bias = i % 2;
                    s.bias_of_b = ops[op] == TEGROUP_OP_WGRAD && i % 4 == 1;
                    s.c = (c_kind)((i + out) % 4);
                    s.alpha = s.beta = i % 3;
                    if (i == 5) s.place = PLACE_STARTS;
                    for_backend(&r, &s, backends[b]);
                    if (backends[b] == TEGROUP_BACKEND_SM90) s.gather = ops[op] == TEGROUP_OP_WGRAD ? i % 4 : i % 2;
                    ASSERT_STREQ("", run_and_check_each(&s, b));
                    guards_release(mark);
                }
    mirror_exact = 0;
}

/* Every tile of both tables, whichever a plan would take, for ragged groups and for uniform ones of more rows than a tile has. */
TEST(sanitize, every_tile) {
    const int64_t m[3] = {130, 0, 70};
    rng r = rng_seed(4004);
    mirror_exact = 1;
    EACH_BACKEND(b) {
        if (!backend_bundled(backends[b])) continue;
        for (int op = 0; op < 3; op++)
            for (int in = 0; in < 4; in++)
                for (mirror_tile = 0, mirror_tiles = 1; mirror_tile < mirror_tiles; mirror_tile++) {
                    void *mark = guards_mark();
                    spec s = plain_spec(ops[op], 3, in < 2 ? m : NULL, in % 2 == 0 ? 72 : 77, in % 2 == 0 ? 136 : 141, halves[in % 2], halves[in % 2], rng_next(&r));
                    s.rows_each = in < 2 ? 0 : 288;
                    for_backend(&r, &s, backends[b]);
                    const char *wrong = run_and_check(&s, b);
                    /* of PORTABLE's a GPU may have too little shared memory for the higher ones */
                    if (strcmp(wrong, "refused") != 0 || backends[b] != TEGROUP_BACKEND_PORTABLE || mirror_tile == 0) ASSERT_STREQ("", wrong);
                    guards_release(mark);
                }
    }
    mirror_tile = MIRROR_PLANNED_TILE;
    mirror_exact = 0;
}

/* So many tiles that a block finds some again and again in the same place. */
TEST(sanitize, many_tiles) {
    enum { GROUPS = 700 };
    int64_t rows[GROUPS];
    rng r = rng_seed(4002);
    for (int g = 0; g < GROUPS; g++) rows[g] = rng_int(&r, 0, 3);
    EACH_BACKEND(b) {
        if (!backend_bundled(backends[b])) continue;
        for (int op = 0; op < 3; op++) {
            void *mark = guards_mark();
            spec s = plain_spec(ops[op], GROUPS, rows, 264, 72, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16, rng_next(&r));
            for_backend(&r, &s, backends[b]);
            ASSERT_STREQ("", run_and_check(&s, b));
            guards_release(mark);
        }
    }
}

/* The loop's own kernels, without one of cuBLASLt's: racecheck breaks off in those. */
TEST(sanitize, loop_without_products) {
    static const int64_t rows[] = {3, 0, 5};
    enum { LOOP = 2 };
    rng r = rng_seed(4003);
    handle_make();
    for (int each = 0; each < 2; each++) {
        void *mark = guards_mark();
        mirror_loop_scalars = each;
        spec s = plain_spec(TEGROUP_OP_FORWARD, 3, rows, 24, 0, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F32, rng_next(&r));
        s.c = C_SEPARATE;
        s.alpha = s.beta = each ? SCALARS_EACH : SCALARS_ONE;
        for_backend(&r, &s, backends[LOOP]);
        ASSERT_STREQ("", run_and_check(&s, LOOP));
        guards_release(mark);
    }
    mirror_loop_scalars = 0;
}

TEST_MAIN()
