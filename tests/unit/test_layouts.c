/* Every layout: items in order, aligned, apart, nothing wasted; what fits exactly works and a byte less is refused. */
#define TEGROUP_EXTERN
#include "support.h"
#include "test.h"

static size_t up_to_256(size_t bytes) { return (bytes + 255) / 256 * 256; }

/* "" or what is wrong with a layout as such. */
static const char *flaw(const tegroup_layout *layout) {
    size_t end = 0;
    if (layout->count < 0 || layout->count > TEGROUP_LAYOUT_MAX_ITEMS) return "count";
    for (int32_t i = 0; i < layout->count; i++) {
        const tegroup_layout_item *item = &layout->items[i];
        if (item->name == NULL || item->name[0] == 0) return "an item without a name";
        for (int32_t j = 0; j < i; j++) if (strcmp(item->name, layout->items[j].name) == 0) return "two items of one name";
        if (item->offset_bytes % TEGROUP_ALIGNMENT != 0) return "an item is not aligned";
        if (item->offset_bytes < end) return "items overlap or are out of order";
        if (item->offset_bytes != up_to_256(end)) return "slack between items";
        end = item->offset_bytes + item->bytes;
    }
    return layout->total_bytes == up_to_256(end) ? "" : "total is not the end of the last item";
}

TEST(layouts, snapshot_of_every_count) {
    for (int32_t groups = 0; groups <= TEGROUP_MAX_GROUPS; groups++)
        for (int irregular = 0; irregular < 2; irregular++) {
            tegroup_layout layout;
            tegroup_shape shape;
            static const int32_t some[1] = {0};
            memset(&shape, 0, sizeof shape);
            shape.groups = groups;
            shape.rows = groups * 7; /* nothing but groups and irregularity counts */
            shape.cols = 1000 - groups % 13;
            shape.row_sizes.encoding = (tegroup_encoding)(1 + groups % 3);
            shape.row_sizes.dtype = TEGROUP_DTYPE_I32;
            if (irregular) {
                shape.col_sizes.encoding = TEGROUP_ENCODING_COUNTS;
                shape.col_sizes.dtype = TEGROUP_DTYPE_I32;
                shape.col_sizes.data = some;
                shape.elements = 5;
            }
            ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, NULL), TEGROUP_OK);
            ASSERT_STREQ("", flaw(&layout));
            ASSERT_EQ(layout.count, irregular ? 7 : 5);
            size_t n = (size_t)groups, sorted = 1; /* the sort takes a power of two */
            while (sorted < n) sorted *= 2;
            size_t want[] = {sizeof(tegroup_snapshot_header), 8 * n, 8 * n, 8 * (n + 1), 4 * sorted, 8 * n, 8 * n};
            for (int32_t i = 0; i < layout.count; i++) ASSERT_EQ(layout.items[i].bytes, want[i]);
        }
}

TEST(layouts, snapshot_view_is_its_layout) {
    rng r = rng_seed(7001);
    for (int64_t n = scaled(300); n > 0; n--) {
        void *mark = guards_mark();
        tegroup_layout layout;
        spec s = {.op = TEGROUP_OP_FORWARD, .groups = (int32_t)rng_int(&r, 0, 300), .n = 3, .k = 4, .seed = rng_next(&r)};
        problem p;
        s.m = random_rows(&r, s.groups, 9, 1);
        if (rng_chance(&r, 50)) s.kg = random_widths(&r, s.groups, 4);
        problem_make(&p, &s);
        ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
        ASSERT_EQ(tegroup_snapshot_layout(&p.a.tensor.shape, &layout, NULL), TEGROUP_OK);
        const char *base = (const char *)p.a.snapshot;
        tegroup_snapshot_view v = tegroup_snapshot_read(base);
        ASSERT_TRUE((const char *)v.header == base + layout.items[0].offset_bytes);
        ASSERT_TRUE((const char *)v.start == base + layout.items[1].offset_bytes);
        ASSERT_TRUE((const char *)v.rows == base + layout.items[2].offset_bytes);
        ASSERT_TRUE((const char *)v.prefix == base + layout.items[3].offset_bytes);
        ASSERT_TRUE((const char *)v.order == base + layout.items[4].offset_bytes);
        ASSERT_EQ(v.cols != NULL, s.kg != NULL);
        if (s.kg != NULL) ASSERT_TRUE((const char *)v.cols == base + layout.items[5].offset_bytes && (const char *)v.offset == base + layout.items[6].offset_bytes);
        guards_release(mark);
    }
    tegroup_snapshot_view none = tegroup_snapshot_read(NULL);
    ASSERT_TRUE(none.header == NULL && none.start == NULL && none.rows == NULL && none.prefix == NULL && none.order == NULL && none.cols == NULL && none.offset == NULL);
}

static const char *flaw_of_plan(const tegroup_plan *plan) {
    tegroup_layout layout;
    if (tegroup_plan_layout(plan, &layout, NULL) != TEGROUP_OK) return "a plan without a layout";
    return layout.total_bytes != plan->workspace_bytes ? "the plan has another size than its layout" : flaw(&layout);
}

TEST(layouts, refusals_write_nothing) {
    static const int32_t bad[] = {-1, INT32_MIN, TEGROUP_MAX_GROUPS + 1, INT32_MAX};
    tegroup_layout layout, before;
    tegroup_shape shape;
    tegroup_error error;
    memset(&shape, 0, sizeof shape);
    memset(&layout, 0x5A, sizeof layout);
    before = layout;
    for (int i = 0; i < 4; i++) {
        shape.groups = bad[i];
        ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, &error), TEGROUP_ERROR_VALUE);
        ASSERT_STREQ("shape.groups", error.field);
        ASSERT_EQ(error.got, bad[i]);
    }
    ASSERT_EQ(memcmp(&layout, &before, sizeof layout), 0);
    ASSERT_EQ(tegroup_snapshot_layout(NULL, &layout, &error), TEGROUP_ERROR_NULL_ARGUMENT);
}

/* A snapshot or workspace of exactly the bytes asked for works; with a byte less nothing happens. */
TEST(layouts, exactly_enough) {
    rng r = rng_seed(7002);
    for (int64_t n = scaled(60); n > 0; n--) {
        void *mark = guards_mark();
        problem p;
        tegroup_error error;
        spec s = random_spec(&r, (tegroup_op)rng_int(&r, 1, 3), 20, 30);
        s.threads = (int32_t)rng_int(&r, 1, 3);
        problem_make(&p, &s);
        problem_reference(&p);
        ASSERT_EQ(problem_plan(&p), TEGROUP_OK); /* the workspace that it makes is exact and guarded */
        ASSERT_STREQ("", flaw_of_plan(&p.plan));
        ASSERT_EQ(p.desc.options.workspace_bytes, p.plan.workspace_bytes);
        if (p.a.snapshot != NULL) {
            tegroup_prepare_desc d = {.struct_size = sizeof d, .shape = p.a.tensor.shape, .space = TEGROUP_SPACE_HOST, .snapshot = p.a.snapshot};
            d.ld = d.shape.col_sizes.encoding != TEGROUP_ENCODING_UNSET ? p.a.tensor.ld : 0;
            d.snapshot_bytes = guarded_find(p.a.snapshot)->bytes - 1;
            guarded_remember(p.a.snapshot);
            ASSERT_EQ(tegroup_prepare(&d, NULL, &error), TEGROUP_ERROR_WORKSPACE);
            ASSERT_STREQ("snapshot_bytes", error.field);
            ASSERT_EQ(error.expected, (int64_t)d.snapshot_bytes + 1);
            ASSERT_EQ(error.got, (int64_t)d.snapshot_bytes);
            ASSERT_EQ(guarded_changed(p.a.snapshot), 0);
        }
        ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
        if (p.plan.workspace_bytes > 0) {
            p.desc.options.workspace_bytes--;
            ASSERT_EQ(tegroup_gemm(&p.plan, &p.desc, NULL, &error), TEGROUP_ERROR_WORKSPACE);
            ASSERT_EQ(error.expected, (int64_t)p.plan.workspace_bytes);
            ASSERT_EQ(error.got, (int64_t)p.plan.workspace_bytes - 1);
            p.desc.options.workspace_bytes++;
        }
        ASSERT_EQ(tegroup_gemm(&p.plan, &p.desc, NULL, &error), TEGROUP_OK);
        ASSERT_LE(problem_compare(&p).worst, 1.0);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* The CPU's workspace is the same for each thread, with nothing on top. */
TEST(layouts, cpu_workspace_by_thread) {
    for (int compute = TEGROUP_COMPUTE_F32; compute <= TEGROUP_COMPUTE_FAST_ACCUM; compute++) {
        size_t one = 0;
        for (int32_t threads = 1; threads <= 70; threads++) {
            spec s = {.op = TEGROUP_OP_FORWARD, .groups = 2, .rows_each = 3, .n = 4, .k = 5, .compute = (tegroup_compute)compute};
            tegroup_target target = {.struct_size = sizeof target, .threads = threads};
            problem p;
            problem_make(&p, &s);
            ASSERT_EQ(tegroup_plan_make(&p.desc, &target, &p.plan, NULL), TEGROUP_OK);
            ASSERT_STREQ("", flaw_of_plan(&p.plan));
            if (threads == 1) one = p.plan.workspace_bytes;
            ASSERT_EQ(p.plan.workspace_bytes, one * (size_t)threads);
            ASSERT_EQ(p.plan.threads, threads);
            problem_release(&p);
        }
    }
}

/* Plans for machines that are not here: what the workspace of each backend is made of. */
static tegroup_status plan_for(tegroup_backend backend, int32_t groups, size_t cublas_bytes, int32_t streams, int32_t cublaslt, tegroup_plan *plan, tegroup_error *error) {
    tegroup_gemm_desc d;
    tegroup_target target = {.struct_size = sizeof target, .sm = 100, .cublaslt_version = cublaslt, .built = 0xFFFFFFFFu};
    memset(&d, 0, sizeof d);
    d.struct_size = sizeof d;
    d.op = TEGROUP_OP_FORWARD;
    d.space = TEGROUP_SPACE_DEVICE;
    d.a = tegroup_tensor_uniform(groups, 64, 32, TEGROUP_DTYPE_BF16, NULL);
    d.b = tegroup_tensor_uniform(groups, 16, 32, TEGROUP_DTYPE_BF16, NULL);
    d.d = tegroup_tensor_uniform(groups, 64, 16, TEGROUP_DTYPE_BF16, NULL);
    d.options.backend = backend;
    d.options.cublas_workspace_bytes = cublas_bytes;
    d.options.stream_count = streams;
    return tegroup_plan_make(&d, &target, plan, error);
}

TEST(layouts, workspaces_of_cublaslt) {
    tegroup_plan plan;
    tegroup_layout layout;
    const size_t usual = (size_t)32 << 20; /* cuBLAS' advice for Hopper and later */
    for (int32_t groups = 0; groups <= TEGROUP_MAX_GROUPS; groups += groups < 70 ? 1 : 97) {
        /* 18 arrays of 8 bytes a group, the floats alpha and beta */
        const size_t setup = 18 * up_to_256((size_t)groups * 8) + 2 * up_to_256((size_t)groups * 4);
        ASSERT_EQ(plan_for(TEGROUP_BACKEND_CUBLASLT_GROUPED, groups, 0, 0, 131000, &plan, NULL), TEGROUP_OK);
        ASSERT_STREQ("", flaw_of_plan(&plan));
        ASSERT_EQ(tegroup_plan_layout(&plan, &layout, NULL), TEGROUP_OK);
        ASSERT_EQ(layout.count, 2);
        ASSERT_EQ(layout.items[0].bytes, setup);
        ASSERT_EQ(layout.items[1].bytes, usual);
        ASSERT_EQ(plan.workspace_bytes, setup + usual);
        ASSERT_EQ(plan_for(TEGROUP_BACKEND_CUBLASLT_GROUPED, groups, 1000, 0, 131000, &plan, NULL), TEGROUP_OK);
        ASSERT_EQ(plan.workspace_bytes, setup + 1024);
    }
    for (int32_t streams = 0; streams < 9; streams++) {
        ASSERT_EQ(plan_for(TEGROUP_BACKEND_CUBLASLT_LOOP, 3, 4096, streams, 131000, &plan, NULL), TEGROUP_OK);
        ASSERT_STREQ("", flaw_of_plan(&plan));
        ASSERT_EQ(plan.workspace_bytes, (size_t)4096 * (size_t)(streams > 1 ? streams : 1));
        ASSERT_EQ(plan.hypothetical, 1);
    }
}

TEST(layouts, overflow_is_a_status) {
    static const size_t huge[] = {SIZE_MAX, SIZE_MAX - 255, SIZE_MAX / 2 + 1, SIZE_MAX / 2, SIZE_MAX / 2 - 255};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        tegroup_plan plan, before;
        tegroup_error error;
        memset(&plan, 0x5A, sizeof plan);
        before = plan;
        ASSERT_EQ(plan_for(TEGROUP_BACKEND_CUBLASLT_GROUPED, 5, huge[i], 0, 131000, &plan, &error), TEGROUP_ERROR_OVERFLOW);
        ASSERT_STREQ("options.cublas_workspace_bytes", error.field);
        ASSERT_EQ(plan_for(TEGROUP_BACKEND_CUBLASLT_LOOP, 5, huge[i] / 2, 3, 131000, &plan, &error), TEGROUP_ERROR_OVERFLOW);
        ASSERT_EQ(plan_for(TEGROUP_BACKEND_CUBLASLT_LOOP, 5, huge[i] / 1000, INT32_MAX, 131000, &plan, &error), TEGROUP_ERROR_OVERFLOW);
        ASSERT_EQ(memcmp(&plan, &before, sizeof plan), 0);
    }
}

/* A line an item and one for the sum; the length is the whole text's, whatever fits. */
TEST(layouts, text) {
    tegroup_layout layout;
    char text[4096];
    tegroup_shape shape = {.groups = 33, .elements = 1};
    ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, NULL), TEGROUP_OK);
    int length = tegroup_layout_text(&layout, text, sizeof text), lines = 0;
    ASSERT_EQ(length, (int)strlen(text));
    for (const char *c = text; *c != 0; c++) lines += *c == '\n';
    ASSERT_TRUE(lines == layout.count + 1 || (lines == layout.count && text[length - 1] != '\n'));
    const char *at = text;
    for (int32_t i = 0; i < layout.count; i++) { /* in order, each with its bytes */
        char number[32];
        at = strstr(at, layout.items[i].name);
        ASSERT_TRUE(at != NULL);
        const char *end = strchr(at, '\n'), *line = at;
        while (line > text && line[-1] != '\n') line--;
        snprintf(number, sizeof number, "%lu", (unsigned long)layout.items[i].bytes);
        const char *found = strstr(line, number);
        ASSERT_TRUE(found != NULL && found < end);
    }
    char number[32];
    snprintf(number, sizeof number, "%lu", (unsigned long)layout.total_bytes);
    ASSERT_TRUE(strstr(at, number) != NULL);
    for (size_t size = 0; size <= (size_t)length + 2; size++) {
        void *mark = guards_mark();
        char *part = (char *)guarded(size);
        ASSERT_EQ(tegroup_layout_text(&layout, size > 0 ? part : NULL, size), length);
        if (size > 0) {
            size_t kept = size - 1 < (size_t)length ? size - 1 : (size_t)length;
            ASSERT_EQ(strlen(part), kept);
            ASSERT_EQ(memcmp(part, text, kept), 0);
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* An item that a layout should have. */
typedef struct item { const char *name; size_t bytes; } item;

/* "" or what is wrong: these items in order, each at the next multiple of 256, and the plan's total. */
static const char *unlike(const tegroup_layout *layout, const item *items, int32_t count, size_t planned) {
    size_t end = 0;
    if (layout->count != count) return "another number of items";
    for (int32_t i = 0; i < count; i++) {
        if (strcmp(layout->items[i].name, items[i].name) != 0) return "another item";
        if (layout->items[i].offset_bytes != end || layout->items[i].bytes != items[i].bytes) return "another place";
        end += up_to_256(items[i].bytes);
    }
    return layout->total_bytes != end || planned != end ? "another total" : "";
}

/* What an MLP keeps, and where. On a Hopper, whose kernels need no workspace: what is there is the MLP's own. */
TEST(layouts, memory_of_an_mlp) {
    enum { GROUPS = 4, ROWS = 999, K = 64, H = 48, TRAIN = 0, RECOMPUTE, INFERENCE, KEEP, WAYS };
    const size_t wide = (size_t)ROWS * 2 * H * 2, narrow = (size_t)ROWS * H * 2;
    const item preactivation = {"preactivation", wide}, activated = {"activated", narrow},
               gradient = {"grad_preactivation", wide}, scratch = {"activated, and in dgrad its gradient", narrow};
    const struct { int32_t count; item items[2]; } want[WAYS][4] = {
        {{1, {scratch}}, {0, {{NULL, 0}}}, {2, {preactivation, activated}}, {1, {gradient}}},
        {{1, {scratch}}, {0, {{NULL, 0}}}, {1, {preactivation}}, {2, {activated, gradient}}},
        {{2, {scratch, preactivation}}, {0, {{NULL, 0}}}, {0, {{NULL, 0}}}, {0, {{NULL, 0}}}},
        {{0, {{NULL, 0}}}, {0, {{NULL, 0}}}, {2, {preactivation, activated}}, {0, {{NULL, 0}}}}};
    const tegroup_target hopper = {.struct_size = sizeof hopper, .sm = 90, .built = 1u << TEGROUP_BACKEND_SM90};
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE);
    const tegroup_shape rows = tegroup_shape_of(GROUPS, ROWS, K, sizes);
    const tegroup_dtype bf16 = TEGROUP_DTYPE_BF16;
    for (int way = 0; way < WAYS; way++) {
        tegroup_mlp_desc d;
        tegroup_mlp_plan plan;
        tegroup_layout layout;
        memset(&d, 0, sizeof d);
        d.struct_size = sizeof d;
        d.space = TEGROUP_SPACE_DEVICE;
        d.activation = TEGROUP_ACTIVATION_SWIGLU;
        d.fc1.weight = tegroup_tensor_uniform(GROUPS, 2 * H, K, bf16, NULL);
        d.fc2.weight = tegroup_tensor_uniform(GROUPS, K, H, bf16, NULL);
        d.input = d.out = tegroup_tensor_of(rows, K, bf16, NULL);
        if (way == KEEP) { /* forward alone, of which the caller keeps all */
            d.preactivation = tegroup_tensor_of(rows, 2 * H, bf16, NULL);
            d.activated = tegroup_tensor_of(rows, H, bf16, NULL);
        } else if (way != INFERENCE) {
            d.fc1.main_grad = d.fc1.weight;
            d.fc2.main_grad = d.fc2.weight;
            d.grad_output = d.dgrad_out = d.input;
            d.preactivation = d.grad_preactivation = tegroup_tensor_of(rows, 2 * H, bf16, NULL);
            d.activated = tegroup_tensor_of(rows, H, bf16, NULL);
            d.recompute = way == RECOMPUTE;
        }
        ASSERT_EQ(tegroup_mlp_plan_make(&d, &hopper, &plan, NULL), TEGROUP_OK);
        const size_t planned[4] = {plan.workspace_bytes, plan.wgrad_workspace_bytes, plan.saved_by_forward_bytes,
                                   plan.saved_by_dgrad_bytes};
        for (int m = 0; m < 4; m++) {
            const tegroup_mlp_memory memory = (tegroup_mlp_memory)(TEGROUP_MLP_WORKSPACE + m);
            ASSERT_EQ(tegroup_mlp_layout(&plan, memory, &layout, NULL), TEGROUP_OK);
            ASSERT_STREQ("", unlike(&layout, want[way][m].items, want[way][m].count, planned[m]));
        }
    }
}

/* What an op chain keeps, and the three buffers of the widest op's columns that its gradients take turns in. */
TEST(layouts, memory_of_a_chain) {
    enum { GROUPS = 4, ROWS = 999, K = 64, N = 80 };
    const size_t value = (size_t)ROWS * N * 2;
    const item ran = {"the op that runs", 0}, kept = {"what an op gave", value},
               turn = {"gradients between ops, by turns", value};
    const item saved[2] = {kept, kept}, workspace[4] = {ran, turn, turn, turn};
    const tegroup_target hopper = {.struct_size = sizeof hopper, .sm = 90, .built = 1u << TEGROUP_BACKEND_SM90};
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE);
    const tegroup_shape rows = tegroup_shape_of(GROUPS, ROWS, K, sizes);
    for (int way = 0; way < 3; way++) { /* forward alone; with backward; with a buffer for what the first op gives */
        tegroup_chain_op ops[3];
        tegroup_chain_argument arguments[3];
        tegroup_chain_desc d;
        tegroup_chain_plan plan;
        tegroup_layout layout;
        memset(ops, 0, sizeof ops);
        memset(arguments, 0, sizeof arguments);
        memset(&d, 0, sizeof d);
        ops[0].kind = TEGROUP_CHAIN_LINEAR;
        ops[0].weights.weight = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_BF16, NULL);
        ops[1].kind = TEGROUP_CHAIN_ACTIVATION;
        ops[1].activation = TEGROUP_ACTIVATION_SILU;
        ops[2].kind = TEGROUP_CHAIN_SCALE;
        arguments[0].op = 2;
        arguments[0].out = tegroup_tensor_of(rows, N, TEGROUP_DTYPE_BF16, NULL);
        arguments[0].row_scale_dtype = TEGROUP_DTYPE_F32;
        arguments[1].op = 0;
        if (way == 2) arguments[1].out = arguments[0].out;
        d.struct_size = sizeof d;
        d.space = TEGROUP_SPACE_DEVICE;
        d.ops = ops;
        d.op_count = 3;
        d.arguments = arguments;
        d.argument_count = 2;
        d.input = tegroup_tensor_of(rows, K, TEGROUP_DTYPE_BF16, NULL);
        if (way > 0) d.grad_output = arguments[0].out;
        ASSERT_EQ(tegroup_chain_plan_make(&d, &hopper, &plan, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_chain_layout(&plan, TEGROUP_CHAIN_SAVED, &layout, NULL), TEGROUP_OK);
        ASSERT_STREQ("", unlike(&layout, saved, way == 2 ? 1 : 2, plan.saved_bytes));
        ASSERT_EQ(tegroup_chain_layout(&plan, TEGROUP_CHAIN_WORKSPACE, &layout, NULL), TEGROUP_OK);
        ASSERT_STREQ("", unlike(&layout, workspace, way > 0 ? 4 : 1, plan.workspace_bytes));
    }
}

#define LAYOUT_REFUSED(call, want, name)                                                                               \
    do {                                                                                                               \
        ASSERT_EQ(call, want);                                                                                         \
        ASSERT_STREQ(name, error.field);                                                                               \
        ASSERT_EQ(memcmp(&layout, &before, sizeof layout), 0);                                                         \
    } while (0)

/* Of plans that are none, and of memory that is none. */
TEST(layouts, refused_of_what_is_no_plan) {
    tegroup_plan plan;
    tegroup_mlp_plan mlp;
    tegroup_chain_plan chain;
    tegroup_layout layout, before;
    tegroup_error error;
    memset(&plan, 0, sizeof plan);
    memset(&mlp, 0, sizeof mlp);
    memset(&chain, 0, sizeof chain);
    memset(&layout, 0x5A, sizeof layout);
    before = layout;
    LAYOUT_REFUSED(tegroup_plan_layout(NULL, &layout, &error), TEGROUP_ERROR_NULL_ARGUMENT, "plan");
    LAYOUT_REFUSED(tegroup_plan_layout(&plan, &layout, &error), TEGROUP_ERROR_STRUCT_SIZE, "plan.struct_size");
    plan.struct_size = sizeof plan;
    LAYOUT_REFUSED(tegroup_plan_layout(&plan, &layout, &error), TEGROUP_ERROR_PLAN, "plan");
    plan.magic = TEGROUP_PLAN_MAGIC;
    LAYOUT_REFUSED(tegroup_plan_layout(&plan, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT, "layout");
#define MLP_REFUSED(plan, memory, to, want, name)                                                                      \
    LAYOUT_REFUSED(tegroup_mlp_layout(plan, memory, to, &error), want, name)
    MLP_REFUSED(NULL, TEGROUP_MLP_WORKSPACE, &layout, TEGROUP_ERROR_NULL_ARGUMENT, "plan");
    MLP_REFUSED(&mlp, TEGROUP_MLP_WORKSPACE, &layout, TEGROUP_ERROR_STRUCT_SIZE, "plan.struct_size");
    mlp.struct_size = sizeof mlp;
    MLP_REFUSED(&mlp, TEGROUP_MLP_WORKSPACE, &layout, TEGROUP_ERROR_PLAN, "plan");
    mlp.magic = TEGROUP_MLP_PLAN_MAGIC;
    MLP_REFUSED(&mlp, TEGROUP_MLP_MEMORY_UNSET, &layout, TEGROUP_ERROR_UNSET, "memory");
    MLP_REFUSED(&mlp, (tegroup_mlp_memory)5, &layout, TEGROUP_ERROR_VALUE, "memory");
    MLP_REFUSED(&mlp, TEGROUP_MLP_WORKSPACE, NULL, TEGROUP_ERROR_NULL_ARGUMENT, "layout");
#define CHAIN_REFUSED(plan, memory, to, want, name)                                                                    \
    LAYOUT_REFUSED(tegroup_chain_layout(plan, memory, to, &error), want, name)
    CHAIN_REFUSED(NULL, TEGROUP_CHAIN_SAVED, &layout, TEGROUP_ERROR_NULL_ARGUMENT, "plan");
    CHAIN_REFUSED(&chain, TEGROUP_CHAIN_SAVED, &layout, TEGROUP_ERROR_STRUCT_SIZE, "plan.struct_size");
    chain.struct_size = sizeof chain;
    CHAIN_REFUSED(&chain, TEGROUP_CHAIN_SAVED, &layout, TEGROUP_ERROR_PLAN, "plan");
    chain.magic = TEGROUP_CHAIN_PLAN_MAGIC;
    CHAIN_REFUSED(&chain, TEGROUP_CHAIN_MEMORY_UNSET, &layout, TEGROUP_ERROR_UNSET, "memory");
    CHAIN_REFUSED(&chain, (tegroup_chain_memory)3, &layout, TEGROUP_ERROR_VALUE, "memory");
    CHAIN_REFUSED(&chain, TEGROUP_CHAIN_SAVED, NULL, TEGROUP_ERROR_NULL_ARGUMENT, "layout");
#undef MLP_REFUSED
#undef CHAIN_REFUSED
}
#undef LAYOUT_REFUSED

TEST_MAIN()
