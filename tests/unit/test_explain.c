/* tegroup_explain over random problems, GPUs and library versions: it is the plan, and it always says why. */
#define TEGROUP_EXTERN
#include "support.h"
#include "test.h"

enum { BACKENDS = TEGROUP_BACKEND_COUNT - 1 };

static const int32_t sms[] = {0, 75, 80, 86, 89, 90, 100, 103, 110, 120};
static const int32_t versions[] = {0, 120400, 130100, 130200, 130300, 130400, 130500, 130700, 130801, 131000};
static const uint32_t everything = 0xFFFFFFFFu;

/* A descriptor without data: valid more often than not, of every kind that there is. */
static tegroup_gemm_desc random_desc(rng *r) {
    static const tegroup_dtype operands[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F8E4M3,
                                             TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F4E2M1};
    static const tegroup_dtype results[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64};
    tegroup_gemm_desc d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.op = (tegroup_op)rng_int(r, 1, 3);
    d.space = rng_chance(r, 75) ? TEGROUP_SPACE_DEVICE : TEGROUP_SPACE_HOST;
    int32_t groups = (int32_t)rng_int(r, 0, 300);
    int64_t rows = rng_int(r, 0, 5000), step = rng_chance(r, 60) ? 16 : 1, n = rng_int(r, 1, 40) * step, k = rng_int(r, 1, 40) * step;
    tegroup_tensor x, w, y;
    memset(&x, 0, sizeof x);
    x.dtype = operands[rng_int(r, 0, 7)];
    if (x.dtype == TEGROUP_DTYPE_F8E4M3 || x.dtype == TEGROUP_DTYPE_F8E5M2) x.scaling = (tegroup_scaling)rng_int(r, TEGROUP_SCALING_TENSOR, TEGROUP_SCALING_MXFP8);
    if (x.dtype == TEGROUP_DTYPE_F4E2M1) x.scaling = TEGROUP_SCALING_NVFP4;
    x.shape.groups = groups;
    x.shape.rows = rows;
    if (rng_chance(r, 85)) {
        x.shape.row_sizes.encoding = (tegroup_encoding)rng_int(r, 1, 3);
        x.shape.row_sizes.dtype = rng_chance(r, 50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64;
        x.shape.row_sizes.space = rng_chance(r, 90) ? d.space : rng_chance(r, 50) ? TEGROUP_SPACE_HOST : TEGROUP_SPACE_DEVICE;
    }
    y = w = x;
    memset(&w.shape.row_sizes, 0, sizeof w.shape.row_sizes);
    w.shape.rows = n;
    w.shape.cols = x.shape.cols = k;
    y.shape.cols = n;
    if (rng_chance(r, 15)) x.ld = k + rng_int(r, 0, 20);
    d.a = d.op == TEGROUP_OP_FORWARD ? x : y;
    d.b = d.op == TEGROUP_OP_WGRAD ? x : w;
    d.d = d.op == TEGROUP_OP_FORWARD ? y : d.op == TEGROUP_OP_DGRAD ? x : w;
    d.d.dtype = x.dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : results[rng_int(r, 0, 3)];
    d.d.scaling = TEGROUP_SCALING_NONE;
    if (x.dtype == TEGROUP_DTYPE_F64 || rng_chance(r, 8)) d.options.compute = TEGROUP_COMPUTE_F64;
    if (rng_chance(r, 20)) {
        d.c = d.d;
        d.beta.space = d.space;
        d.beta.stride = (int32_t)rng_int(r, 0, 1);
    } else {
        d.accumulate = rng_chance(r, 15);
    }
    if (rng_chance(r, 30)) { d.alpha.space = d.space; d.alpha.stride = (int32_t)rng_int(r, 0, 1); }
    if (rng_chance(r, 15)) {
        d.bias = tegroup_tensor_uniform(groups, 1, n, TEGROUP_DTYPE_F32, NULL);
    }
    tegroup_tensor *lists[] = {&d.a, &d.b, &d.d};
    if (rng_chance(r, 10)) lists[rng_int(r, 0, 2)]->pointers_space = d.space;
    if (rng_chance(r, 15) && x.scaling == TEGROUP_SCALING_NONE && x.shape.row_sizes.encoding != TEGROUP_ENCODING_UNSET) {
        if (d.a.pointers_space == TEGROUP_SPACE_UNSET) d.gather_a.rows = rng_int(r, 0, 5000);
        if (d.op == TEGROUP_OP_WGRAD && d.b.pointers_space == TEGROUP_SPACE_UNSET) d.gather_b.rows = rng_int(r, 0, 5000);
        d.gather_a.slots = rng_int(r, 0, 8);
    }
    if (rng_chance(r, 8)) d.functor = 1;
    if (rng_chance(r, 8)) d.tail = (tegroup_tail)rng_int(r, 0, 2);
    if (rng_chance(r, 10)) d.options.ignore_quirks = rng_next(r);
    if (x.dtype == TEGROUP_DTYPE_F32 && rng_chance(r, 50)) d.b.dtype = operands[rng_int(r, 0, 2)];
    if (rng_chance(r, 5)) d.b.shape.cols++; /* and some that are wrong */
    return d;
}

static tegroup_target target_of(int32_t sm, int32_t version, uint32_t built) {
    tegroup_target target;
    memset(&target, 0, sizeof target);
    target.struct_size = sizeof target;
    target.sm = sm;
    target.cublaslt_version = version;
    target.built = built;
    return target;
}

static int same_text(const char *a, const char *b) { return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0); }

/* "" or the first thing that is wrong with what explain and the plan say of one problem on one machine. */
static const char *disagreement(const tegroup_gemm_desc *d, const tegroup_target *target, int64_t *chosen, int64_t *refused) {
    tegroup_verdict v[BACKENDS];
    tegroup_plan plan, untouched;
    tegroup_error explain_error, error;
    memset(&plan, 0x5A, sizeof plan);
    memset(v, 0x5A, sizeof v);
    untouched = plan;
    memset(&explain_error, 0, sizeof explain_error);
    tegroup_status explained = tegroup_explain(d, target, v, &explain_error), planned = tegroup_plan_make(d, target, &plan, &error);
    if (explained != TEGROUP_OK) {
        if (planned != explained || error.status != explain_error.status || !same_text(error.field, explain_error.field)
            || !same_text(error.rule, explain_error.rule) || error.expected != explain_error.expected || error.got != explain_error.got) return "two errors for one bad descriptor";
        for (size_t i = 0; i < sizeof v; i++) if (((unsigned char *)v)[i] != 0x5A) return "verdicts were written by a call that failed";
        return memcmp(&plan, &untouched, sizeof plan) == 0 ? "" : "a plan was written by a call that failed";
    }
    uint32_t built = target->built != 0 ? target->built : 1u << TEGROUP_BACKEND_CPU, seen = 0;
    const tegroup_verdict *took = NULL, *asked = NULL, *first = NULL;
    int32_t quirks;
    tegroup_quirks(&quirks);
    for (int i = 0; i < BACKENDS; i++) {
        if (v[i].backend <= TEGROUP_BACKEND_AUTO || v[i].backend >= TEGROUP_BACKEND_COUNT || seen >> v[i].backend & 1) return "a backend twice or never";
        seen |= 1u << v[i].backend;
        if (v[i].status == TEGROUP_OK) {
            if (v[i].quirk != -1 || v[i].field != NULL || v[i].rule != NULL) return "a reason to refuse what is not refused";
            if (d->options.backend == TEGROUP_BACKEND_AUTO ? first == NULL : v[i].backend == d->options.backend) first = &v[i];
        } else {
            if (v[i].status != TEGROUP_ERROR_UNSUPPORTED && v[i].status != TEGROUP_ERROR_NOT_BUILT) return "an odd status";
            if (v[i].field == NULL || v[i].rule == NULL || v[i].field[0] == 0 || v[i].rule[0] == 0) return "refused without a reason";
            if (v[i].chosen) return "refused and chosen";
            if (v[i].workspace_bytes != 0) return "a workspace for nothing";
            if (v[i].quirk < -1 || v[i].quirk >= quirks) return "an unknown quirk";
            if (v[i].quirk >= 0 && d->options.ignore_quirks >> v[i].quirk & 1) return "a quirk that was to be ignored";
            (*refused)++;
        }
        if ((v[i].status == TEGROUP_ERROR_NOT_BUILT) != !(built >> v[i].backend & 1)) return "NOT_BUILT is not what is not built";
        if (v[i].chosen && took != NULL) return "two chosen";
        if (v[i].chosen) took = &v[i];
        int for_space = (v[i].backend == TEGROUP_BACKEND_CPU) == (d->space == TEGROUP_SPACE_HOST);
        if (asked == NULL && (d->options.backend == TEGROUP_BACKEND_AUTO ? for_space : v[i].backend == d->options.backend)) asked = &v[i];
    }
    if (took != first) return "not the most preferred of those that could";
    if (took != NULL) {
        (*chosen)++;
        if (planned != TEGROUP_OK) return "chosen and not planned";
        if (plan.backend != took->backend) return "the plan took another";
        if (plan.workspace_bytes != took->workspace_bytes) return "two sizes of one workspace";
        if (plan.hypothetical != (took->backend != TEGROUP_BACKEND_CPU)) return "hypothetical";
        return "";
    }
    if (planned != asked->status || error.status != asked->status) return "the plan's status is not the verdict's";
    if (error.field != asked->field || error.rule != asked->rule || error.expected != asked->expected || error.got != asked->got) return "the plan's reason is not the verdict's";
    return memcmp(&plan, &untouched, sizeof plan) == 0 ? "" : "a plan was written by a call that failed";
}

TEST(explain, is_the_plan) {
    rng r = rng_seed(6001);
    int64_t problems = scaled(1000), chosen = 0, refused = 0, calls = 0;
    for (int64_t i = 0; i < problems; i++) {
        tegroup_gemm_desc d = random_desc(&r);
        int32_t forced = rng_chance(&r, 40) ? (int32_t)rng_int(&r, 1, BACKENDS) : 0;
        for (int s = 0; s < 10; s++)
            for (int v = 0; v < 10; v++)
                for (int built = 0; built < 2; built++) {
                    tegroup_target target = target_of(sms[s], versions[v], built ? everything : 0);
                    d.options.backend = (tegroup_backend)forced;
                    const char *wrong = disagreement(&d, &target, &chosen, &refused);
                    if (wrong[0] != 0) fprintf(stderr, "%s: problem %ld, sm %d, cuBLASLt %d, built %d, forced %d\n", wrong, (long)i, sms[s], versions[v], built, forced);
                    ASSERT_STREQ("", wrong);
                    calls++;
                }
    }
    ASSERT_GT(chosen, calls / 12);
    ASSERT_GT(refused, calls);
    printf("explained: %ld problems, %ld calls, %ld chosen, %ld refusals\n", (long)problems, (long)calls, (long)chosen, (long)refused);
}

/* Forcing a backend changes who is chosen and nothing that is said of any of them. */
TEST(explain, forcing_changes_the_choice_alone) {
    rng r = rng_seed(6002);
    int64_t taken = 0;
    for (int64_t i = scaled(500); i > 0; i--) {
        tegroup_gemm_desc d = random_desc(&r);
        tegroup_target target = target_of(sms[rng_int(&r, 0, 9)], versions[rng_int(&r, 0, 9)], everything);
        tegroup_verdict free_choice[BACKENDS], forced[BACKENDS];
        if (tegroup_explain(&d, &target, free_choice, NULL) != TEGROUP_OK) continue;
        for (int b = 1; b <= BACKENDS; b++) {
            d.options.backend = (tegroup_backend)b;
            ASSERT_EQ(tegroup_explain(&d, &target, forced, NULL), TEGROUP_OK);
            for (int j = 0; j < BACKENDS; j++) {
                ASSERT_EQ(forced[j].chosen, (int)forced[j].backend == b && forced[j].status == TEGROUP_OK);
                taken += forced[j].chosen;
                forced[j].chosen = free_choice[j].chosen;
                ASSERT_TRUE(forced[j].backend == free_choice[j].backend && forced[j].status == free_choice[j].status && forced[j].field == free_choice[j].field
                            && forced[j].rule == free_choice[j].rule && forced[j].expected == free_choice[j].expected && forced[j].got == free_choice[j].got
                            && forced[j].quirk == free_choice[j].quirk && forced[j].workspace_bytes == free_choice[j].workspace_bytes);
            }
        }
    }
    ASSERT_GT(taken, 0);
}

/* Groups at offsets may begin anywhere: cuBLASLt's grouped matmul is not taken for them, unless the caller vouches for 16 bytes. A
 * sum of no columns, and a single group, have no distance that could be odd. */
TEST(explain, where_groups_begin) {
    const int64_t offsets[2] = {0, 512};
    const tegroup_sizes counted = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE);
    for (int step = 0; step < 5; step++) {
        tegroup_target target = target_of(100, 131000, everything);
        tegroup_verdict v[BACKENDS];
        tegroup_plan plan;
        tegroup_gemm_desc d;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.op = TEGROUP_OP_FORWARD;
        d.space = TEGROUP_SPACE_DEVICE;
        const int32_t groups = step == 4 ? 1 : 2;
        d.a = d.d = tegroup_tensor_of(tegroup_shape_of(groups, 8, 64, counted), 64, TEGROUP_DTYPE_BF16, NULL);
        d.b = tegroup_tensor_uniform(groups, 64, 64, TEGROUP_DTYPE_BF16, NULL);
        if (step == 1 || step == 2) {
            d.a.shape.offsets = offsets;
            d.a.shape.elements = 1024;
            d.options.data_alignment_bytes = step == 2 ? 16 : 0;
        }
        if (step == 3) d.a.shape.cols = d.b.shape.cols = 0;
        if (step == 4) d.b.group_stride = 64 * 64 + 1;
        ASSERT_EQ(TEGROUP_OK, tegroup_explain(&d, &target, v, NULL));
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&d, &target, &plan, NULL));
        ASSERT_EQ(step == 1 ? TEGROUP_BACKEND_PORTABLE : TEGROUP_BACKEND_CUBLASLT_GROUPED, plan.backend);
        for (int i = 0; i < BACKENDS; i++)
            if (step == 1 && v[i].backend == TEGROUP_BACKEND_CUBLASLT_GROUPED) ASSERT_STREQ("options.data_alignment_bytes", v[i].field);
    }
}

/* SM90 counts rows and columns in 32 bits, and its tiles reach behind the last: explain says so of a GPU that is not
 * here. */
TEST(explain, what_sm90_counts) {
    static const char *const fields[3] = {"a.shape.rows", "d.shape.cols", "a.shape.cols"};
    const int64_t most = (INT64_C(1) << 31) - 512;
    const tegroup_sizes counted = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE);
    tegroup_target target = target_of(90, 131000, everything);
    for (int i = 0; i < 3 * 2; i++) {
        int64_t sizes[3] = {64, 64, 64}; /* rows, n, k */
        tegroup_verdict v[BACKENDS];
        tegroup_gemm_desc d;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.op = TEGROUP_OP_FORWARD;
        d.space = TEGROUP_SPACE_DEVICE;
        sizes[i / 2] = most + i % 2 * 8;
        d.a = tegroup_tensor_of(tegroup_shape_of(2, sizes[0], sizes[2], counted), sizes[2], TEGROUP_DTYPE_BF16, NULL);
        d.d = tegroup_tensor_of(tegroup_shape_of(2, sizes[0], sizes[1], counted), sizes[1], TEGROUP_DTYPE_BF16, NULL);
        d.b = tegroup_tensor_uniform(2, sizes[1], sizes[2], TEGROUP_DTYPE_BF16, NULL);
        ASSERT_EQ(TEGROUP_OK, tegroup_explain(&d, &target, v, NULL));
        for (int b = 0; b < BACKENDS; b++) {
            if (v[b].backend != TEGROUP_BACKEND_SM90) continue;
            ASSERT_EQ(i % 2 ? TEGROUP_ERROR_UNSUPPORTED : TEGROUP_OK, v[b].status);
            if (i % 2 == 0) continue;
            ASSERT_STREQ(fields[i / 2], v[b].field);
            ASSERT_EQ(most, v[b].expected);
            ASSERT_EQ(most + 8, v[b].got);
        }
    }
}

/* F32 times weights of 16 bits: AUTO takes portable on every GPU that it runs on, and the others say which of the two types it is. */
TEST(explain, f32_with_narrow_weights) {
    const tegroup_dtype narrow[] = {TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16};
    const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD};
    for (int i = 0; i < 2 * 2 * 10 * 2; i++) {
        const int host = i & 1; /* where data and sizes are */
        const tegroup_space space = host ? TEGROUP_SPACE_HOST : TEGROUP_SPACE_DEVICE;
        const tegroup_shape shape = tegroup_shape_of(2, 8, 64, tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, space));
        tegroup_target target = target_of(sms[i / 8], 131000, everything);
        tegroup_verdict v[BACKENDS];
        tegroup_plan plan;
        tegroup_error error;
        tegroup_gemm_desc d;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.op = ops[i >> 1 & 1];
        d.space = space;
        d.a = d.d = tegroup_tensor_of(shape, 64, TEGROUP_DTYPE_F32, NULL);
        d.b = tegroup_tensor_uniform(2, 64, 64, narrow[i >> 2 & 1], NULL);
        const tegroup_status planned = tegroup_plan_make(&d, &target, &plan, &error);
        if (host || target.sm >= 80) {
            ASSERT_EQ(planned, TEGROUP_OK);
            ASSERT_EQ(plan.backend, host ? TEGROUP_BACKEND_CPU : TEGROUP_BACKEND_PORTABLE);
        } else ASSERT_EQ(planned, TEGROUP_ERROR_UNSUPPORTED);
        if (host || target.sm != 90) continue; /* where all four are that a GPU may have */
        ASSERT_EQ(tegroup_explain(&d, &target, v, &error), TEGROUP_OK);
        for (int j = 0; j < BACKENDS; j++) {
            const int loop = v[j].backend == TEGROUP_BACKEND_CUBLASLT_LOOP; /* which has F32, but not beside other types */
            if (v[j].backend == TEGROUP_BACKEND_PORTABLE || v[j].backend == TEGROUP_BACKEND_CPU) continue;
            ASSERT_EQ(v[j].status, TEGROUP_ERROR_UNSUPPORTED);
            ASSERT_STREQ(loop ? "b.dtype" : "a.dtype", v[j].field);
            ASSERT_EQ(v[j].got, loop ? d.b.dtype : TEGROUP_DTYPE_F32);
            if (loop) ASSERT_EQ(v[j].expected, TEGROUP_DTYPE_F32);
        }
    }
}

/* Groups with columns of d of their own: cuBLASLt's grouped matmul, which has NaN for some, comes after the kernels that take any, and
 * is taken where it is named or alone. */
TEST(explain, columns_that_the_device_knows) {
    const tegroup_sizes counted = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE);
    for (int step = 0; step < 4; step++) {
        tegroup_target target = target_of(step < 3 ? 90 : 100, 131000, everything);
        tegroup_verdict v[BACKENDS];
        tegroup_plan plan;
        tegroup_gemm_desc d;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.op = TEGROUP_OP_FORWARD;
        d.space = TEGROUP_SPACE_DEVICE;
        d.a = d.d = tegroup_tensor_of(tegroup_shape_of(2, 8, 64, counted), 64, TEGROUP_DTYPE_BF16, NULL);
        d.d.shape.col_sizes = counted;
        d.d.shape.elements = 8 * 64;
        d.d.ld = 64;
        d.b = tegroup_tensor_of(tegroup_shape_of(2, 128, 64, counted), 64, TEGROUP_DTYPE_BF16, NULL);
        if (step == 1) d.options.backend = TEGROUP_BACKEND_CUBLASLT_GROUPED;
        if (step == 2) target.built &= ~(1u << TEGROUP_BACKEND_PORTABLE);
        ASSERT_EQ(TEGROUP_OK, tegroup_explain(&d, &target, v, NULL));
        ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&d, &target, &plan, NULL));
        ASSERT_EQ(step == 1 || step == 2 ? TEGROUP_BACKEND_CUBLASLT_GROUPED : TEGROUP_BACKEND_PORTABLE, plan.backend);
        ASSERT_EQ(TEGROUP_BACKEND_PORTABLE, v[1].backend);
        ASSERT_EQ(TEGROUP_BACKEND_CUBLASLT_GROUPED, v[2].backend);
        ASSERT_EQ(TEGROUP_OK, v[2].status);
    }
}

/* Rows of groups that are packed, each by its own width, begin anywhere: of any operand that is reason enough to keep
 * cuBLASLt's grouped matmul from it. */
TEST(explain, packed_groups_are_not_aligned) {
    const tegroup_target target = target_of(90, 131000, everything);
    const tegroup_sizes counted = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE);
    for (int which = -1; which < 4; which++) {
        tegroup_verdict v[BACKENDS];
        tegroup_gemm_desc d;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.op = TEGROUP_OP_WGRAD;
        d.space = TEGROUP_SPACE_DEVICE;
        d.a = d.b = d.c = d.d = tegroup_tensor_of(tegroup_shape_of(2, 64, 64, counted), 64, TEGROUP_DTYPE_BF16, NULL);
        tegroup_tensor *const tensors[] = {&d.a, &d.b, &d.c, &d.d};
        for (int i = 0; i < 4; i++) {
            tensors[i]->shape.col_sizes = counted;
            tensors[i]->shape.elements = 64 * 64;
            tensors[i]->ld = i == which ? 0 : 64;
        }
        ASSERT_EQ(TEGROUP_OK, tegroup_explain(&d, &target, v, NULL));
        ASSERT_EQ(TEGROUP_BACKEND_CUBLASLT_GROUPED, v[2].backend);
        ASSERT_EQ(which < 0 ? TEGROUP_OK : TEGROUP_ERROR_UNSUPPORTED, v[2].status);
        ASSERT_EQ(which < 0 ? -1 : 4, v[2].quirk); /* as docs/backends.md numbers it */
    }
}

/* A plan has the fewer of the threads that the descriptor and the target allow, where both say how many. */
TEST(explain, threads_of_a_plan) {
    for (int32_t asked = 0; asked <= 3; asked++)
        for (int32_t there = 1; there <= 3; there++) {
            tegroup_target target = target_of(0, 0, 0);
            tegroup_plan plan;
            tegroup_gemm_desc d;
            memset(&d, 0, sizeof d);
            d.struct_size = sizeof d;
            d.op = TEGROUP_OP_FORWARD;
            d.space = TEGROUP_SPACE_HOST;
            d.a = d.b = d.d = tegroup_tensor_uniform(2, 8, 8, TEGROUP_DTYPE_F32, NULL);
            d.options.threads = asked;
            target.threads = there;
            ASSERT_EQ(TEGROUP_OK, tegroup_plan_make(&d, &target, &plan, NULL));
            ASSERT_EQ(asked > 0 && asked < there ? asked : there, plan.threads);
        }
}

/* What runs where for a plain product, written down again from docs and sources: BF16, aligned, nothing special. */
static int could(tegroup_backend backend, int32_t sm, int32_t version, int device, int device_sizes, int gathered) {
    if (gathered && backend != TEGROUP_BACKEND_SM90 && backend != TEGROUP_BACKEND_CPU) return 0;
    switch (backend) {
    case TEGROUP_BACKEND_SM90: return device_sizes && sm == 90;
    case TEGROUP_BACKEND_CUBLASLT_GROUPED: return device_sizes && ((sm == 90 && version >= 130400) || (sm >= 100 && sm <= 110 && version >= 130300));
    case TEGROUP_BACKEND_PORTABLE: return device_sizes && sm >= 80;
    case TEGROUP_BACKEND_CUBLASLT_LOOP: return device && !device_sizes && sm >= 70 && version >= 120000;
    default: return !device;
    }
}

TEST(explain, plain_products_run_where_they_can) {
    for (int op = 1; op <= 3; op++)
        for (int s = 0; s < 10; s++)
            for (int v = 0; v < 10; v++)
                for (int which = 0; which < 9; which++) { /* host; device with sizes on the host; all on the device: in order, gathered a, b */
                    int place = which % 3, device = place > 0, device_sizes = place == 2, gathered = which / 3;
                    tegroup_gemm_desc d;
                    tegroup_verdict verdicts[BACKENDS];
                    tegroup_target target = target_of(sms[s], versions[v], everything);
                    memset(&d, 0, sizeof d);
                    d.struct_size = sizeof d;
                    d.op = (tegroup_op)op;
                    d.space = device ? TEGROUP_SPACE_DEVICE : TEGROUP_SPACE_HOST;
                    d.options.ignore_quirks = ~UINT64_C(0);
                    const tegroup_space space = device_sizes ? TEGROUP_SPACE_DEVICE : TEGROUP_SPACE_HOST;
                    tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, space);
                    sizes.encoding = TEGROUP_ENCODING_OFFSETS;
                    const tegroup_tensor weights = tegroup_tensor_uniform(8, 64, 64, TEGROUP_DTYPE_BF16, NULL);
                    d.a = tegroup_tensor_of(tegroup_shape_of(8, 512, 64, sizes), 64, TEGROUP_DTYPE_BF16, NULL);
                    d.b = op == TEGROUP_OP_WGRAD ? d.a : weights;
                    d.d = op == TEGROUP_OP_WGRAD ? weights : d.a;
                    if (gathered == 2 && op != TEGROUP_OP_WGRAD) continue;
                    if (gathered == 1) d.gather_a.rows = 100;
                    if (gathered == 2) d.gather_b.rows = 100;
                    ASSERT_EQ(tegroup_explain(&d, &target, verdicts, NULL), TEGROUP_OK);
                    for (int i = 0; i < BACKENDS; i++) {
                        int want = could(verdicts[i].backend, sms[s], versions[v], device, device_sizes, gathered);
                        if (!want && gathered && could(verdicts[i].backend, sms[s], versions[v], device, device_sizes, 0)) {
                            ASSERT_STREQ(gathered == 1 ? "gather_a.rows" : "gather_b.rows", verdicts[i].field);
                            ASSERT_EQ(100, verdicts[i].got);
                        }
                        if (want != (verdicts[i].status == TEGROUP_OK))
                            fprintf(stderr, "%s on sm %d, cuBLASLt %d, place %d: %s %s\n", tegroup_backend_name(verdicts[i].backend), sms[s], versions[v], place, verdicts[i].field, verdicts[i].rule);
                        ASSERT_EQ(verdicts[i].status == TEGROUP_OK, want);
                    }
                }
}

/* This build has no GPU code: every GPU backend says so, whatever the machine, and a plan for one only gives sizes. */
TEST(explain, default_build_has_the_cpu_backend_alone) {
    rng r = rng_seed(6003);
    for (int s = 0; s < 10; s++) {
        tegroup_gemm_desc d;
        tegroup_verdict v[BACKENDS];
        tegroup_target target = target_of(sms[s], 131000, 0);
        do d = random_desc(&r); while (tegroup_explain(&d, &target, v, NULL) != TEGROUP_OK);
        for (int i = 0; i < BACKENDS; i++) {
            if (v[i].backend == TEGROUP_BACKEND_CPU) ASSERT_NE(v[i].status, TEGROUP_ERROR_NOT_BUILT);
            else ASSERT_EQ(v[i].status, TEGROUP_ERROR_NOT_BUILT);
        }
        ASSERT_EQ(tegroup_explain(&d, NULL, v, NULL), TEGROUP_OK); /* this machine: the same */
        for (int i = 0; i < BACKENDS; i++)
            if (v[i].backend != TEGROUP_BACKEND_CPU) ASSERT_EQ(v[i].status, TEGROUP_ERROR_NOT_BUILT);
    }
    problem p;
    tegroup_error error;
    tegroup_target target = target_of(90, 131000, everything);
    spec s = {.op = TEGROUP_OP_FORWARD, .groups = 2, .rows_each = 4, .n = 8, .k = 8, .in = TEGROUP_DTYPE_BF16};
    problem_make(&p, &s);
    p.desc.space = TEGROUP_SPACE_DEVICE;
    ASSERT_EQ(tegroup_plan_make(&p.desc, &target, &p.plan, &error), TEGROUP_OK);
    ASSERT_NE((int)p.plan.backend, TEGROUP_BACKEND_CPU);
    ASSERT_EQ(p.plan.hypothetical, 1);
    p.desc.options.workspace = scratch(p.plan.workspace_bytes);
    p.desc.options.workspace_bytes = p.plan.workspace_bytes;
    ASSERT_EQ(tegroup_gemm(&p.plan, &p.desc, NULL, &error), TEGROUP_ERROR_NOT_BUILT);
    ASSERT_EQ(guarded_changed(p.d.tensor.data), 0);
    problem_release(&p);
}

TEST(explain, bad_targets_are_refused) {
    tegroup_gemm_desc d;
    tegroup_verdict v[BACKENDS];
    tegroup_plan plan;
    tegroup_error error;
    rng r = rng_seed(6004);
    do d = random_desc(&r); while (tegroup_explain(&d, NULL, v, NULL) != TEGROUP_OK);
    tegroup_target target = target_of(90, 131000, 0);
    target.struct_size--;
    ASSERT_EQ(tegroup_explain(&d, &target, v, &error), TEGROUP_ERROR_STRUCT_SIZE);
    ASSERT_STREQ("target.struct_size", error.field);
    ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, &error), TEGROUP_ERROR_STRUCT_SIZE);
    ASSERT_EQ(tegroup_explain(NULL, NULL, v, &error), TEGROUP_ERROR_NULL_ARGUMENT);
    ASSERT_EQ(tegroup_explain(&d, NULL, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT);
    ASSERT_EQ(tegroup_plan_make(&d, NULL, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT);
}

/* One line that names the backend, and for a refusal the field and the rule. */
TEST(explain, verdict_text) {
    rng r = rng_seed(6005);
    int64_t kinds[3] = {0, 0, 0}; /* chosen, could, refused */
    for (int64_t i = 240 + scaled(60); i > 0; i--) {
        tegroup_gemm_desc d = random_desc(&r);
        tegroup_target target = target_of(sms[rng_int(&r, 0, 9)], versions[rng_int(&r, 0, 9)], rng_chance(&r, 80) ? everything : 0);
        tegroup_verdict v[BACKENDS];
        if (tegroup_explain(&d, &target, v, NULL) != TEGROUP_OK) continue;
        for (int b = 0; b < BACKENDS; b++) {
            char text[1024], number[32];
            int length = tegroup_verdict_text(&v[b], text, sizeof text);
            ASSERT_EQ(length, (int)strlen(text));
            ASSERT_TRUE(strstr(text, tegroup_backend_name(v[b].backend)) != NULL);
            ASSERT_TRUE(strchr(text, '\n') == NULL || strchr(text, '\n') == text + length - 1);
            kinds[v[b].chosen ? 0 : v[b].status == TEGROUP_OK ? 1 : 2]++;
            ASSERT_EQ(strstr(text, "chosen") != NULL || strstr(text, "CHOSEN") != NULL, v[b].chosen == 1);
            if (v[b].status != TEGROUP_OK) {
                ASSERT_TRUE(strstr(text, v[b].field) != NULL && strstr(text, v[b].rule) != NULL);
                const char *came = number;
                snprintf(number, sizeof number, "got %ld)", (long)v[b].got);
                if (v[b].reading == TEGROUP_READING_DTYPE || v[b].reading == TEGROUP_READING_DTYPES)
                    came = tegroup_dtype_name((tegroup_dtype)v[b].got);
                if (v[b].reading == TEGROUP_READING_SCALINGS) came = tegroup_scaling_info((tegroup_scaling)v[b].got)->name;
                ASSERT_TRUE(strstr(text, came) != NULL);
            }
            void *mark = guards_mark();
            size_t size = (size_t)rng_int(&r, 1, length + 2), kept = size - 1 < (size_t)length ? size - 1 : (size_t)length;
            char *part = (char *)guarded(size);
            ASSERT_EQ(tegroup_verdict_text(&v[b], part, size), length);
            ASSERT_EQ(strlen(part), kept);
            ASSERT_EQ(memcmp(part, text, kept), 0);
            ASSERT_EQ(tegroup_verdict_text(&v[b], NULL, 0), length);
            ASSERT_EQ(guards_changed(), 0);
            guards_release(mark);
        }
    }
    for (int i = 0; i < 3; i++) ASSERT_GT(kinds[i], 0);
}

/* PORTABLE multiplies every pair of formats from SM80 on: of scales of one type, or beside BF16, or beside F16 where scales are of
 * F32. docs/formats.md says so; a pair that is no product is refused before. */
TEST(explain, portable_has_every_pair_of_formats) {
    enum { PLAIN = 3, ALL = PLAIN + TEGROUP_SCALING_COUNT - 1 };
    static const tegroup_dtype plain[PLAIN] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32};
    int32_t can = 0, cannot = 0;
    for (int a = 0; a < ALL; a++)
        for (int b = 0; b < ALL; b++)
            for (int op = 1; op <= 3; op++)
                for (int sm = 75; sm <= 90; sm += 5) {
                    const int which[2] = {a, b}, both_plain = a < PLAIN && b < PLAIN;
                    int f32 = 0, bits8 = 0, kinds = 0;
                    tegroup_gemm_desc d;
                    tegroup_verdict v[BACKENDS];
                    tegroup_error error;
                    tegroup_target target = {.struct_size = sizeof target, .sm = sm, .threads = 1, .built = 1u << TEGROUP_BACKEND_PORTABLE};
                    if (both_plain) continue;
                    memset(&d, 0, sizeof d);
                    d.struct_size = sizeof d;
                    d.op = (tegroup_op)op;
                    d.space = TEGROUP_SPACE_DEVICE;
                    d.a = tegroup_tensor_uniform(4, 64, 64, TEGROUP_DTYPE_BF16, NULL);
                    d.b = d.d = d.a;
                    for (int i = 0; i < 2; i++) {
                        tegroup_tensor *t = i ? &d.b : &d.a;
                        const int s = which[i] - PLAIN + 1;
                        if (s <= 0) { t->dtype = plain[which[i]]; continue; }
                        const int fp4 = s == TEGROUP_SCALING_NVFP4 || s == TEGROUP_SCALING_NVFP4_16X16 || s == TEGROUP_SCALING_MXFP4;
                        const int e4m3 = s == TEGROUP_SCALING_NVFP4 || s == TEGROUP_SCALING_NVFP4_16X16, mx = s == TEGROUP_SCALING_MXFP8 || s == TEGROUP_SCALING_MXFP8_32X32 || s == TEGROUP_SCALING_MXFP4;
                        t->scaling = (tegroup_scaling)s;
                        t->dtype = fp4 ? TEGROUP_DTYPE_F4E2M1 : i ? TEGROUP_DTYPE_F8E5M2 : TEGROUP_DTYPE_F8E4M3;
                        f32 |= !e4m3 && !mx;
                        bits8 |= e4m3 || mx;
                        kinds |= e4m3 ? 1 : mx ? 2 : 4;
                    }
                    const int product = (kinds & (kinds - 1)) == 0 && (b >= PLAIN || op == TEGROUP_OP_WGRAD);
                    const tegroup_dtype beside = a < PLAIN ? d.a.dtype : b < PLAIN ? d.b.dtype : TEGROUP_DTYPE_BF16;
                    const int able = sm >= 80 && (beside == TEGROUP_DTYPE_BF16 || (beside == TEGROUP_DTYPE_F16 && f32 && !bits8));
                    const tegroup_status status = tegroup_explain(&d, &target, v, &error);
                    ASSERT_EQ(status == TEGROUP_OK, product);
                    for (int i = 0; product && i < BACKENDS; i++)
                        if (v[i].backend == TEGROUP_BACKEND_PORTABLE) {
                            ASSERT_EQ(v[i].status, able ? TEGROUP_OK : TEGROUP_ERROR_UNSUPPORTED);
                            ASSERT_TRUE(able || strcmp(v[i].field, sm < 80 ? "target.sm" : a < PLAIN ? "b.scaling" : "b.dtype") == 0);
                            can += able;
                            cannot += !able;
                        }
                }
    ASSERT_TRUE(can > 100 && cannot > 100);
}

/* A product of quantised operands in device memory, with copies as cuBLASLt wants them. */
static tegroup_gemm_desc quantised_desc(tegroup_op op, tegroup_scaling a, tegroup_scaling b, tegroup_dtype a_type, tegroup_dtype b_type) {
    const tegroup_shape rows = tegroup_shape_of(4, 512, 64, tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE));
    tegroup_gemm_desc d;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.op = op;
    d.space = TEGROUP_SPACE_DEVICE;
    d.a = tegroup_tensor_of(rows, 64, a_type, NULL);
    d.b = op == TEGROUP_OP_WGRAD ? tegroup_tensor_of(rows, 64, b_type, NULL) : tegroup_tensor_uniform(4, 64, 64, b_type, NULL);
    d.d = op == TEGROUP_OP_WGRAD ? tegroup_tensor_uniform(4, 64, 64, TEGROUP_DTYPE_BF16, NULL) : tegroup_tensor_of(rows, 64, TEGROUP_DTYPE_BF16, NULL);
    d.a.scaling = a;
    d.b.scaling = b;
    d.a.columnwise_order = d.b.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    d.options.backend = TEGROUP_BACKEND_CUBLASLT_GROUPED;
    return d;
}

/* Which quantised operands cuBLASLt's grouped matmul takes on which GPU from which version on, written down again from
 * TransformerEngine's list and from what 13.10 was seen to do. 0: never. */
static int32_t lt_from(tegroup_op op, tegroup_scaling a, tegroup_scaling b, tegroup_dtype a_type, tegroup_dtype b_type, int32_t sm) {
    const tegroup_scaling one = TEGROUP_SCALING_BLOCK_1X128, two = TEGROUP_SCALING_BLOCK_128X128;
    const int mx = (a == TEGROUP_SCALING_MXFP8 || a == TEGROUP_SCALING_MXFP8_32X32) && (b == TEGROUP_SCALING_MXFP8 || b == TEGROUP_SCALING_MXFP8_32X32);
    const int nv = (a == TEGROUP_SCALING_NVFP4 || a == TEGROUP_SCALING_NVFP4_16X16) && (b == TEGROUP_SCALING_NVFP4 || b == TEGROUP_SCALING_NVFP4_16X16);
    const int blackwell = sm == 100 || sm == 103 || sm == 110;
    if (a_type == TEGROUP_DTYPE_F8E5M2 && b_type == TEGROUP_DTYPE_F8E5M2) return 0;
    if (sm == 90 && a == TEGROUP_SCALING_TENSOR && b == a) return 130500;
    if (sm == 90 && (a == one || a == two) && (b == one || b == two)) return a == two && b == two ? 0 : 130400;
    if (blackwell && mx) return 130300;
    if (blackwell && nv) return op == TEGROUP_OP_WGRAD ? 0 : 130400;
    return 0;
}

TEST(explain, cublaslt_has_the_formats_of_each_gpu) {
    static const tegroup_dtype fp8[] = {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2};
    int64_t can = 0, cannot = 0;
    for (int a = 1; a < TEGROUP_SCALING_COUNT; a++)
        for (int b = 1; b < TEGROUP_SCALING_COUNT; b++)
            for (int op = 1; op <= 3; op++)
                for (int types = 0; types < 4; types++)
                    for (int s = 0; s < 10; s++)
                        for (int v = 0; v < 10; v++) {
                            const int fp4_a = a == TEGROUP_SCALING_NVFP4 || a == TEGROUP_SCALING_NVFP4_16X16 || a == TEGROUP_SCALING_MXFP4;
                            const int fp4_b = b == TEGROUP_SCALING_NVFP4 || b == TEGROUP_SCALING_NVFP4_16X16 || b == TEGROUP_SCALING_MXFP4;
                            const tegroup_dtype a_type = fp4_a ? TEGROUP_DTYPE_F4E2M1 : fp8[types & 1], b_type = fp4_b ? TEGROUP_DTYPE_F4E2M1 : fp8[types >> 1];
                            tegroup_gemm_desc d = quantised_desc((tegroup_op)op, (tegroup_scaling)a, (tegroup_scaling)b, a_type, b_type);
                            const tegroup_target target = target_of(sms[s], versions[v], everything);
                            const int32_t from = lt_from(d.op, d.a.scaling, d.b.scaling, a_type, b_type, sms[s]);
                            tegroup_plan plan;
                            d.options.ignore_quirks = ~UINT64_C(0);
                            const tegroup_status status = tegroup_plan_make(&d, &target, &plan, NULL);
                            if (status == TEGROUP_ERROR_COMBINATION) continue; /* no product of any backend */
                            const int want = from != 0 && versions[v] >= from;
                            if ((status == TEGROUP_OK) != want) fprintf(stderr, "%s x %s, op %d, types %d, sm %d, cuBLAS %d\n", tegroup_scaling_info(d.a.scaling)->name, tegroup_scaling_info(d.b.scaling)->name, op, types, sms[s], versions[v]);
                            ASSERT_EQ(status, want ? TEGROUP_OK : TEGROUP_ERROR_UNSUPPORTED);
                            can += want;
                            cannot += !want;
                        }
    ASSERT_TRUE(can > 100 && cannot > 1000);
}

/* What it cannot take of them is refused when the plan is made, with the field; on newer GPUs two quirks say what was never run. */
TEST(explain, cublaslt_refuses_by_field) {
    const tegroup_scaling tensor = TEGROUP_SCALING_TENSOR, one = TEGROUP_SCALING_BLOCK_1X128, two = TEGROUP_SCALING_BLOCK_128X128, mx = TEGROUP_SCALING_MXFP8, nv = TEGROUP_SCALING_NVFP4;
    const tegroup_dtype e4m3 = TEGROUP_DTYPE_F8E4M3, e5m2 = TEGROUP_DTYPE_F8E5M2, e2m1 = TEGROUP_DTYPE_F4E2M1;
    const tegroup_op forward = TEGROUP_OP_FORWARD, dgrad = TEGROUP_OP_DGRAD, wgrad = TEGROUP_OP_WGRAD;
    tegroup_gemm_desc d;
    tegroup_plan plan;
    tegroup_error error;
    tegroup_layout layout;
    tegroup_target target = target_of(90, 131000, everything);
#define REFUSED(change, name, want, came) \
    do { \
        change; \
        ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, &error), TEGROUP_ERROR_UNSUPPORTED); \
        ASSERT_STREQ(name, error.field); \
        ASSERT_EQ(error.expected, (int64_t)(want)); \
        ASSERT_EQ(error.got, (int64_t)(came)); \
    } while (0)
    REFUSED(d = quantised_desc(forward, tensor, tensor, e5m2, e5m2), "b.dtype", e4m3, e5m2);
    REFUSED(d = quantised_desc(forward, two, two, e4m3, e4m3), "b.scaling", one, two);
    REFUSED(d = quantised_desc(forward, tensor, one, e4m3, e4m3), "b.scaling", 1u << tensor, one);
    REFUSED(d = quantised_desc(forward, tensor, tensor, e4m3, e4m3); d.a.scale_dtype = TEGROUP_DTYPE_BF16, "a.scale_dtype", TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16);
    REFUSED(d = quantised_desc(forward, one, two, e4m3, e4m3); d.b.scale_outer_stride = 1; d.b.scale_inner_stride = 4, "b.scale_outer_stride", 0, 1);
    REFUSED(d = quantised_desc(forward, one, two, e4m3, e4m3); d.b.scale_parts = 2, "b.scale_parts", 1, 2);
    REFUSED(d = quantised_desc(dgrad, one, two, e4m3, e4m3); d.b.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA, "b.columnwise_order", TEGROUP_COLUMNWISE_TRANSPOSED, 0);
    REFUSED(d = quantised_desc(wgrad, tensor, tensor, e4m3, e4m3); d.a.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA, "a.columnwise_order", TEGROUP_COLUMNWISE_TRANSPOSED, 0);
    REFUSED(d = quantised_desc(forward, tensor, tensor, e4m3, e4m3); d.a.shape.col_sizes = d.a.shape.row_sizes; d.a.shape.elements = 64, "a.shape.col_sizes.encoding", 0, 1);
    REFUSED(d = quantised_desc(forward, tensor, tensor, e4m3, e4m3); d.a.shape.cols = d.b.shape.cols = 72, "target.cublaslt_version", 0, 131000); /* rows of 72 bytes */
    d.a.ld = d.b.ld = 80;
    ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, &error), TEGROUP_OK);
    d = quantised_desc(dgrad, one, two, e4m3, e4m3); /* a transposed copy has distances of its own */
    d.b.ld = 65;
    ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(tegroup_plan_layout(&plan, &layout, &error), TEGROUP_OK);
    ASSERT_EQ(layout.count, 2);
    target.cublaslt_version = 130500;
    d = quantised_desc(forward, tensor, tensor, e4m3, e4m3);
    REFUSED((void)d, "target.cublaslt_version", 130801, 130500);

    target = target_of(100, 131000, everything);
    REFUSED(d = quantised_desc(wgrad, nv, nv, e2m1, e2m1), "op", dgrad, wgrad);
    REFUSED(d = quantised_desc(forward, mx, mx, e4m3, e4m3); d.a.shape.cols = d.b.shape.cols = 80, "a.shape.cols", 32, 80);
    REFUSED(d = quantised_desc(dgrad, nv, nv, e2m1, e2m1); d.a.shape.cols = d.b.shape.rows = 80, "a.shape.cols", 32, 80);
    REFUSED(d = quantised_desc(forward, nv, nv, e2m1, e2m1); d.d.dtype = TEGROUP_DTYPE_F16, "d.dtype", 1u << TEGROUP_DTYPE_BF16 | 1u << TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16);
    REFUSED(d = quantised_desc(forward, mx, mx, e4m3, e4m3); d.a.scale_dtype = TEGROUP_DTYPE_I32, "a.scale_dtype", TEGROUP_DTYPE_F8E8M0, TEGROUP_DTYPE_I32);
    REFUSED(d = quantised_desc(wgrad, mx, mx, e4m3, e4m3), "target.cublaslt_version", 0, 131000);
    d.options.ignore_quirks = UINT64_C(1) << 12; /* as docs/backends.md numbers it */
    d.a.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA; /* MXFP8 is read along either */
    ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, &error), TEGROUP_OK);
    target.cublaslt_version = 130400;
    d = quantised_desc(forward, nv, nv, e2m1, e2m1);
    d.options.ignore_quirks = UINT64_C(1) << 3;
    REFUSED((void)d, "target.cublaslt_version", 130401, 130400);
    d.options.ignore_quirks |= UINT64_C(1) << 11;
    ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, &error), TEGROUP_OK);
#undef REFUSED
}

/* Hopper decodes operands whose scales are of 8 bits, in any of their storage orders, beside BF16; the workspace has room for each,
 * in rows of whole sixteens, and for alpha. Bytes are written down again from docs/workspaces.md. */
TEST(explain, hopper_decodes_what_has_scales_of_8_bits) {
    enum { GROUPS = 3, A_ROWS = 50, B_ROWS = 70, N = 40, K = 72 };
    int64_t can = 0, cannot = 0;
    for (int a = 0; a < TEGROUP_SCALING_COUNT; a++)
        for (int b = 0; b < TEGROUP_SCALING_COUNT; b++)
            for (int op = 1; op <= 3; op++)
                for (int way = 0; way < 8; way++) { /* uniform, or ragged; beside F16; whole rows, or not */
                    const int which[2] = {a, b}, ragged = way & 1, f16 = way >> 1 & 1, odd = way >> 2, wgrad = op == TEGROUP_OP_WGRAD;
                    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
                    const int64_t cols[2] = {op == TEGROUP_OP_FORWARD ? K : N, K}, padded[2] = {op == TEGROUP_OP_FORWARD ? 80 : 48, 80};
                    const int64_t rows[2] = {ragged ? A_ROWS : GROUPS * A_ROWS, wgrad ? (ragged ? B_ROWS : GROUPS * A_ROWS) : GROUPS * N};
                    int with_8_bits = 1;
                    tegroup_gemm_desc d;
                    tegroup_verdict v[BACKENDS];
                    tegroup_plan plan;
                    tegroup_layout layout;
                    tegroup_error error;
                    tegroup_target target = target_of(90, 0, 1u << TEGROUP_BACKEND_SM90 | 1u << TEGROUP_BACKEND_PORTABLE);
                    if (a == 0 && b == 0) continue;
                    memset(&d, 0, sizeof d);
                    d.struct_size = sizeof d;
                    d.op = (tegroup_op)op;
                    d.space = TEGROUP_SPACE_DEVICE;
                    d.options.backend = TEGROUP_BACKEND_SM90;
                    for (int i = 0; i < 2; i++) {
                        tegroup_tensor *t = i ? &d.b : &d.a;
                        const int s = which[i], fp4 = s == TEGROUP_SCALING_NVFP4 || s == TEGROUP_SCALING_NVFP4_16X16 || s == TEGROUP_SCALING_MXFP4;
                        const tegroup_dtype dtype = s == 0 ? (f16 ? TEGROUP_DTYPE_F16 : TEGROUP_DTYPE_BF16) : fp4 ? TEGROUP_DTYPE_F4E2M1 : i ? TEGROUP_DTYPE_F8E5M2 : TEGROUP_DTYPE_F8E4M3;
                        if (i == 0 || wgrad)
                            *t = ragged ? tegroup_tensor_of(tegroup_shape_of(GROUPS, i ? B_ROWS : A_ROWS, cols[i], sizes), cols[i], dtype, NULL) : tegroup_tensor_uniform(GROUPS, A_ROWS, cols[i], dtype, NULL);
                        else *t = tegroup_tensor_uniform(GROUPS, N, K, dtype, NULL);
                        t->scaling = (tegroup_scaling)s;
                        if (odd && s > 0) t->ld = cols[i] + 2; /* TMA does not see it */
                        with_8_bits &= s != TEGROUP_SCALING_TENSOR && s != TEGROUP_SCALING_ROW && s != TEGROUP_SCALING_BLOCK_1X128 && s != TEGROUP_SCALING_BLOCK_128X128 && s != TEGROUP_SCALING_BLOCK_32X32;
                    }
                    d.d = wgrad    ? tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_F32, NULL)
                          : ragged ? tegroup_tensor_of(tegroup_shape_of(GROUPS, A_ROWS, op == TEGROUP_OP_FORWARD ? N : K, sizes), op == TEGROUP_OP_FORWARD ? N : K, TEGROUP_DTYPE_BF16, NULL)
                                   : tegroup_tensor_uniform(GROUPS, A_ROWS, op == TEGROUP_OP_FORWARD ? N : K, TEGROUP_DTYPE_BF16, NULL);
                    if (tegroup_explain(&d, &target, v, &error) != TEGROUP_OK) continue; /* a pair that nothing multiplies */
                    ASSERT_EQ(v[0].backend, TEGROUP_BACKEND_SM90);
                    const int beside_f16 = f16 && (a == 0 || b == 0);
                    if (!with_8_bits) {
                        if (v[0].status != TEGROUP_OK) cannot++;
                        continue;
                    }
                    ASSERT_EQ(v[0].status, beside_f16 ? TEGROUP_ERROR_UNSUPPORTED : TEGROUP_OK);
                    if (beside_f16) {
                        ASSERT_STREQ(a == 0 ? "b.scaling" : "b.dtype", v[0].field);
                        cannot++;
                        continue;
                    }
                    ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, &error), TEGROUP_OK);
                    ASSERT_EQ(tegroup_plan_layout(&plan, &layout, &error), TEGROUP_OK);
                    ASSERT_EQ(plan.backend, TEGROUP_BACKEND_SM90);
                    ASSERT_TRUE(plan.workspace_bytes == layout.total_bytes && v[0].workspace_bytes == layout.total_bytes);
                    ASSERT_EQ(layout.count, 3);
                    ASSERT_STREQ("decoded a", layout.items[0].name);
                    ASSERT_STREQ("decoded b", layout.items[1].name);
                    ASSERT_STREQ("alpha", layout.items[2].name);
                    for (int i = 0; i < 2; i++) ASSERT_EQ((int64_t)layout.items[i].bytes, which[i] == 0 ? 0 : rows[i] * padded[i] * 2);
                    ASSERT_EQ(layout.items[2].bytes, 4 * GROUPS);
                    if (ragged) { /* more rows take more, and a plan never less */
                        tegroup_plan larger;
                        d.a.shape.rows++;
                        d.b.shape.rows += wgrad;
                        ASSERT_EQ(tegroup_plan_make(&d, &target, &larger, &error), TEGROUP_OK);
                        ASSERT_GE(larger.workspace_bytes, plan.workspace_bytes);
                        ASSERT_EQ(larger.numerics_id, plan.numerics_id);
                    }
                    can++;
                }
    ASSERT_TRUE(can > 300 && cannot > 300);
}

/* Which weights SM90 decodes in registers, without workspace, and which not: each row changes one thing that it cannot, or can. */
TEST(explain, hopper_holds_weights) {
    static const struct { const char *what; int holds; } rows[] = {
        {"as it is", 1}, {"NVFP4", 1}, {"MXFP4", 1}, {"squares of 32", 1}, {"squares of 16", 1}, {"bias", 1},
        {"F16 results", 1}, {"rows of MXFP8", 1},
        {"1,024 rows a group", 1}, {"2,560 rows beside MXFP4", 1},
        {"E5M2", 0}, {"F32 results", 0}, {"accumulate", 0}, {"c", 0}, {"k of 96", 0}, {"odd ld", 0}, {"odd stride of groups", 0},
        {"strides of scales", 0}, {"parts of scales", 0}, {"words of scales", 0}, {"dgrad", 0},
        {"dgrad by the transposed copy", 1}, {"that of n of 96", 0}, {"more rows a group", 0},
        {"more rows beside MXFP4", 0}, {"even groups", 0}, {"picked rows", 0}};
    const tegroup_target target = target_of(90, 0, 1u << TEGROUP_BACKEND_SM90);
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        const char *what = rows[i].what;
        tegroup_gemm_desc d;
        tegroup_plan plan;
        tegroup_layout layout;
        tegroup_error error;
#define IS(name) (strcmp(what, name) == 0)
        const int mxfp4 = strstr(what, "MXFP4") != NULL;
        const int turned = IS("dgrad by the transposed copy") || IS("that of n of 96"), dgrad = turned || IS("dgrad");
        const int64_t n = IS("dgrad by the transposed copy") ? 128 : 96, k = IS("k of 96") ? 96 : 128;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.op = dgrad ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD;
        d.space = TEGROUP_SPACE_DEVICE;
        d.options.backend = TEGROUP_BACKEND_SM90;
        d.a = tegroup_tensor_of(tegroup_shape_of(4, 12000, k, sizes), dgrad ? n : k, TEGROUP_DTYPE_BF16, NULL);
        if (IS("even groups")) d.a = tegroup_tensor_uniform(4, 2000, k, TEGROUP_DTYPE_BF16, NULL);
        const tegroup_dtype codes = IS("NVFP4") || mxfp4 || IS("squares of 16") ? TEGROUP_DTYPE_F4E2M1
                                    : IS("E5M2")                                ? TEGROUP_DTYPE_F8E5M2
                                                                                : TEGROUP_DTYPE_F8E4M3;
        const tegroup_dtype result = IS("F32 results")   ? TEGROUP_DTYPE_F32
                                     : IS("F16 results") ? TEGROUP_DTYPE_F16
                                                         : TEGROUP_DTYPE_BF16;
        d.b = tegroup_tensor_uniform(4, n, k, codes, NULL);
        d.b.scaling = IS("NVFP4")           ? TEGROUP_SCALING_NVFP4
                      : mxfp4               ? TEGROUP_SCALING_MXFP4
                      : IS("squares of 32") ? TEGROUP_SCALING_MXFP8_32X32
                      : IS("squares of 16") ? TEGROUP_SCALING_NVFP4_16X16
                                            : TEGROUP_SCALING_MXFP8;
        d.d = tegroup_tensor_of(tegroup_shape_of(4, 12000, n, sizes), dgrad ? k : n, result, NULL);
        if (IS("even groups")) d.d = tegroup_tensor_uniform(4, 2000, n, TEGROUP_DTYPE_BF16, NULL);
        if (turned) d.b.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
        if (IS("accumulate")) d.accumulate = 1;
        if (IS("c")) d.c = d.d;
        if (IS("bias")) d.bias = tegroup_tensor_uniform(4, 1, n, TEGROUP_DTYPE_F32, NULL);
        if (IS("rows of MXFP8")) d.a.dtype = TEGROUP_DTYPE_F8E4M3, d.a.scaling = TEGROUP_SCALING_MXFP8;
        if (IS("odd ld")) d.b.ld = k + 8;
        if (IS("odd stride of groups")) d.b.group_stride = n * k + 8;
        if (IS("strides of scales")) d.b.scale_outer_stride = 4, d.b.scale_inner_stride = 1;
        if (IS("parts of scales")) d.b.scale_parts = 2;
        if (IS("words of scales")) d.b.scale_dtype = TEGROUP_DTYPE_I32;
        if (IS("picked rows")) d.gather_a.rows = 500;
        d.options.expected_rows = IS("1,024 rows a group")        ? 4 * 1024
                                  : IS("more rows a group")       ? 4 * 1024 + 1
                                  : IS("2,560 rows beside MXFP4") ? 4 * 2560
                                  : IS("more rows beside MXFP4")  ? 4 * 2560 + 1
                                                                  : 400;
#undef IS
        const tegroup_status status = tegroup_plan_make(&d, &target, &plan, &error);
        if (status != TEGROUP_OK) fprintf(stderr, "%s: %s %s\n", what, error.field, error.rule);
        ASSERT_EQ(status, TEGROUP_OK);
        ASSERT_EQ(tegroup_plan_layout(&plan, &layout, &error), TEGROUP_OK);
        ASSERT_STREQ("decoded b", layout.items[1].name);
        if ((layout.items[1].bytes == 0) != rows[i].holds) fprintf(stderr, "%s\n", what);
        ASSERT_EQ(layout.items[1].bytes == 0, rows[i].holds);
        ASSERT_EQ(layout.count, rows[i].holds && strcmp(what, "rows of MXFP8") != 0 ? 2 : 3);
    }
}

/* Where PORTABLE decodes operands, all of which are quantised: each row changes one thing. Without workspace it is on
 * the way, with room for A alone weights are decoded in registers, and with room for both they are decoded first. */
TEST(explain, portable_holds_weights) {
    enum { ON_THE_WAY, REGISTERS, FIRST };
    static const struct { const char *what; int where; } rows[] = {
        {"as it is", REGISTERS}, {"a scale a tensor", REGISTERS}, {"a scale a row", REGISTERS}, {"1x128", REGISTERS},
        {"MXFP8", REGISTERS}, {"NVFP4", REGISTERS}, {"scales of BF16", REGISTERS}, {"strides of scales", REGISTERS},
        {"odd ld", REGISTERS}, {"F32 results", REGISTERS}, {"accumulate", REGISTERS},
        {"dgrad by the transposed copy", REGISTERS}, {"128 rows a group", REGISTERS},
        {"256 rows beside NVFP4", REGISTERS},
        {"dgrad", FIRST}, {"E5M2", FIRST}, {"k of 96", FIRST}, {"strides of MXFP8's scales", FIRST},
        {"more rows", FIRST}, {"more rows beside MXFP8", FIRST}, {"more rows beside NVFP4", FIRST},
        {"squares of 32", ON_THE_WAY}, {"parts of scales", ON_THE_WAY}, {"one row a group, of E5M2", ON_THE_WAY}};
    const tegroup_target target = target_of(80, 0, 1u << TEGROUP_BACKEND_PORTABLE);
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        const char *what = rows[i].what;
        tegroup_gemm_desc d;
        tegroup_plan plan;
        tegroup_layout layout;
        tegroup_error error;
#define HAS(words) (strstr(what, words) != NULL)
        const int dgrad = HAS("dgrad"), fp4 = HAS("NVFP4"), mx = HAS("MXFP8");
        const int64_t n = 128, k = HAS("k of 96") ? 96 : 192;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.op = dgrad ? TEGROUP_OP_DGRAD : TEGROUP_OP_FORWARD;
        d.space = TEGROUP_SPACE_DEVICE;
        d.options.backend = TEGROUP_BACKEND_PORTABLE;
        d.a = tegroup_tensor_of(tegroup_shape_of(4, 12000, k, sizes), dgrad ? n : k,
                                fp4 ? TEGROUP_DTYPE_F4E2M1 : TEGROUP_DTYPE_F8E4M3, NULL);
        d.a.scaling = fp4                    ? TEGROUP_SCALING_NVFP4
                      : mx                   ? TEGROUP_SCALING_MXFP8
                      : HAS("tensor")        ? TEGROUP_SCALING_TENSOR
                      : HAS("scale a row")   ? TEGROUP_SCALING_ROW
                      : HAS("squares of 32") ? TEGROUP_SCALING_BLOCK_32X32
                                             : TEGROUP_SCALING_BLOCK_1X128;
        d.b = tegroup_tensor_uniform(4, n, k, HAS("E5M2") ? TEGROUP_DTYPE_F8E5M2 : d.a.dtype, NULL);
        d.b.scaling = d.a.scaling;
        if (d.b.scaling == TEGROUP_SCALING_BLOCK_1X128 && !HAS("1x128")) d.b.scaling = TEGROUP_SCALING_BLOCK_128X128;
        d.d = tegroup_tensor_of(tegroup_shape_of(4, 12000, n, sizes), dgrad ? k : n,
                                HAS("F32") ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16, NULL);
        if (HAS("transposed")) d.b.columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
        if (HAS("accumulate")) d.accumulate = 1;
        if (HAS("odd ld")) d.b.ld = k + 8;
        if (HAS("strides of")) d.b.scale_outer_stride = 8, d.b.scale_inner_stride = 1;
        if (HAS("scales of BF16")) d.b.scale_dtype = TEGROUP_DTYPE_BF16;
        if (HAS("parts")) d.b.scale_parts = 2;
        d.options.expected_rows = HAS("one row")     ? 4
                                  : HAS("128 rows")  ? 4 * 128
                                  : HAS("256 rows")  ? 4 * 256
                                  : HAS("more rows") ? 4 * (fp4 ? 256 : 128) + 1
                                                     : 400;
#undef HAS
        const tegroup_status status = tegroup_plan_make(&d, &target, &plan, &error);
        if (status != TEGROUP_OK) fprintf(stderr, "%s: %s %s\n", what, error.field, error.rule);
        ASSERT_EQ(status, TEGROUP_OK);
        ASSERT_EQ(tegroup_plan_layout(&plan, &layout, &error), TEGROUP_OK);
        const int where = plan.workspace_bytes == 0 ? ON_THE_WAY : layout.items[1].bytes == 0 ? REGISTERS : FIRST;
        if (where != rows[i].where) fprintf(stderr, "%s\n", what);
        ASSERT_EQ(where, rows[i].where);
    }
}

/* What TMA reads as it is must lie as TMA asks, beside a decoded operand, too. */
TEST(explain, hopper_refuses_beside_what_it_decodes) {
    const tegroup_target target = target_of(90, 0, 1u << TEGROUP_BACKEND_SM90);
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    tegroup_gemm_desc d, other;
    tegroup_plan plan;
    tegroup_error error;
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.op = TEGROUP_OP_FORWARD;
    d.space = TEGROUP_SPACE_DEVICE;
    d.options.backend = TEGROUP_BACKEND_SM90;
    d.a = tegroup_tensor_of(tegroup_shape_of(2, 64, 96, sizes), 96, TEGROUP_DTYPE_BF16, NULL);
    d.b = tegroup_tensor_uniform(2, 64, 96, TEGROUP_DTYPE_F4E2M1, NULL);
    d.b.scaling = TEGROUP_SCALING_MXFP4;
    d.d = tegroup_tensor_of(tegroup_shape_of(2, 64, 64, sizes), 64, TEGROUP_DTYPE_BF16, NULL);
    ASSERT_EQ(tegroup_plan_make(&d, &target, &plan, &error), TEGROUP_OK);
    /* The time to decode is predicted, too: at least that of the bytes at 4.8 TB/s, the data sheet's. Weights that are decoded in
     * registers are read as codes; with scales at strides, or so many rows that decoding once is faster, they are written, too. */
    tegroup_verdict decoded[BACKENDS], held[BACKENDS], plain[BACKENDS];
    other = d;
    other.b.shape.groups = other.a.shape.groups = other.d.shape.groups = 128;
    other.b.shape.rows = other.d.shape.cols = 4096;
    other.b.shape.cols = other.a.shape.cols = 2048;
    other.a.ld = other.b.ld = other.d.ld = 0;
    ASSERT_EQ(tegroup_explain(&other, &target, held, &error), TEGROUP_OK);
    other.b.scale_outer_stride = 64;
    other.b.scale_inner_stride = 1;
    ASSERT_EQ(tegroup_explain(&other, &target, decoded, &error), TEGROUP_OK);
    other.b.scale_outer_stride = other.b.scale_inner_stride = 0;
    other.b.dtype = TEGROUP_DTYPE_BF16;
    other.b.scaling = TEGROUP_SCALING_NONE;
    ASSERT_EQ(tegroup_explain(&other, &target, plain, &error), TEGROUP_OK);
    ASSERT_GT(plain[0].predicted_us, 0);
    ASSERT_GT(decoded[0].predicted_us, plain[0].predicted_us + 128.0 * 4096 * 2048 * 2.5 / 4.8e6);
    ASSERT_EQ(held[0].predicted_us, 0);
    ASSERT_GT(held[0].quantised_us, 128.0 * 4096 * 2048 * 0.5 / 4.8e6);
    ASSERT_LT(held[0].quantised_us, 0.75 * held[0].bf16_us);
    ASSERT_EQ(held[0].workspace_bytes, 0);
    ASSERT_TRUE(decoded[0].workspace_bytes >= (size_t)128 * 4096 * 2048 * 2);
    other = d;
    other.a.ld = 100;
    ASSERT_EQ(tegroup_plan_make(&other, &target, &plan, &error), TEGROUP_ERROR_UNSUPPORTED);
    ASSERT_STREQ("a.ld", error.field);
    ASSERT_EQ(error.got, 200);
    other = d;
    other.b.group_stride = 64 * 96 + 2;
    ASSERT_EQ(tegroup_plan_make(&other, &target, &plan, &error), TEGROUP_OK);
}

/* The tables that dispatch reads are sound. */
TEST(explain, tables) {
    int32_t rules, quirks;
    const tegroup_backend_rule *rule = tegroup_backend_rules(&rules);
    uint32_t seen = 0;
    for (int32_t i = 0; i < rules; i++) {
        ASSERT_TRUE(rule[i].backend > TEGROUP_BACKEND_AUTO && rule[i].backend < TEGROUP_BACKEND_COUNT);
        seen |= 1u << rule[i].backend;
        ASSERT_LE(rule[i].sm_min, rule[i].sm_max);
        ASSERT_TRUE(rule[i].operand_dtypes != 0 && rule[i].result_dtypes != 0 && rule[i].scalings != 0 && rule[i].features != 0);
        ASSERT_TRUE(rule[i].note != NULL && rule[i].note[0] != 0);
        for (int d = 0; d < TEGROUP_DTYPE_COUNT; d++) /* a type and a scaling that a row admits belong together */
            if (rule[i].operand_dtypes >> d & 1) {
                int carried = 0;
                for (int s = 0; s < TEGROUP_SCALING_COUNT; s++)
                    carried |= (rule[i].scalings >> s & 1) && (tegroup_scaling_info((tegroup_scaling)s)->data_dtypes >> d & 1);
                ASSERT_TRUE(carried);
            }
    }
    for (int b = 1; b < TEGROUP_BACKEND_COUNT; b++) {
        ASSERT_TRUE(seen >> b & 1);
        ASSERT_STRNE("?", tegroup_backend_name((tegroup_backend)b));
    }
    ASSERT_TRUE(tegroup_quirks(&quirks) != NULL && quirks >= 5 && quirks <= 64);
    ASSERT_TRUE(tegroup_quirks(NULL) == tegroup_quirks(&quirks) && tegroup_backend_rules(NULL) == rule);
}

TEST_MAIN()
