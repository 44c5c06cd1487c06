/* tegroup_gemm_once: one call does what prepare, plan and gemm do, bit for bit, in the workspace that its layout says, and refuses
 * what they refuse. */
#define TEGROUP_EXTERN
#include "support.h"
#include "../compile/world.h"
#include "test.h"

static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};

static void forget_snapshots(tegroup_gemm_desc *desc) {
    desc->a.shape.snapshot = desc->b.shape.snapshot = desc->c.shape.snapshot = desc->d.shape.snapshot = NULL;
    desc->options.workspace = NULL;
    desc->options.workspace_bytes = 0;
}

static const char *once(const spec *s, int64_t *regular) {
    static const char *complaint;
    problem p;
    tegroup_layout layout, snapshot;
    complaint = NULL;
    problem_make(&p, s);
    const tegroup_shape *const shapes[] = {&p.desc.a.shape, &p.desc.b.shape, &p.desc.d.shape};
    int columns = 0;
    for (int i = 0; i < 3; i++) columns |= shapes[i]->col_sizes.encoding != TEGROUP_ENCODING_UNSET || shapes[i]->elements > 0;
    tegroup_gemm_desc desc = p.desc;
    forget_snapshots(&desc);
    tegroup_status status = tegroup_gemm_once_layout(&desc, &layout, &p.error);
    if (columns) { /* of which no snapshot is made here */
        if (status != TEGROUP_ERROR_UNSUPPORTED || strstr(p.error.field, ".shape.col_sizes.encoding") == NULL) complaint = "columns that differ are not refused";
        if (tegroup_gemm_once(&desc, NULL, NULL) != TEGROUP_ERROR_UNSUPPORTED) complaint = "columns that differ are taken";
        problem_release(&p);
        return complaint;
    }
    if (status != TEGROUP_OK || problem_plan(&p) != TEGROUP_OK) return "no layout or no plan";
    ++*regular;
    if (tegroup_snapshot_layout(&p.desc.a.shape, &snapshot, NULL) != TEGROUP_OK) return "no layout of the snapshot";
    if (layout.total_bytes != p.plan.workspace_bytes + (s->m != NULL ? snapshot.total_bytes : 0)) complaint = "the workspace is not the two that it stands for";
    if (strcmp(layout.items[0].name, "snapshot") != 0 || layout.items[0].bytes != (s->m != NULL ? snapshot.total_bytes : 0)) complaint = "the snapshot's item";
    desc.options.workspace = guarded(layout.total_bytes);
    desc.options.workspace_bytes = layout.total_bytes;
    const tegroup_gemm_desc before = desc;
    problem_reference(&p); /* now: it reads C, which D may be */
    if (tegroup_gemm_once(&desc, NULL, &p.error) != TEGROUP_OK) { fprintf(stderr, "%s %s\n", p.error.field, p.error.rule); return "the call fails"; }
    if (memcmp(&before, &desc, sizeof desc) != 0) complaint = "the descriptor has changed";
    const verdict v = problem_compare(&p), bias = problem_compare_bias(&p);
    if (!(v.worst <= 1) || !(bias.worst <= 1)) complaint = "the result is outside its bound";
    guarded_node *const outputs[] = {p.desc.d.pointers == NULL && p.desc.d.data != NULL ? guarded_find(p.desc.d.data) : NULL,
                                     s->op == TEGROUP_OP_WGRAD && p.desc.bias.pointers == NULL && p.desc.bias.data != NULL ? guarded_find(p.desc.bias.data) : NULL};
    unsigned char *results[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++)
        if (outputs[i] != NULL) results[i] = (unsigned char *)memcpy(malloc(outputs[i]->bytes + 1), outputs[i]->data, outputs[i]->bytes);
    problem_reset(&p);
    if (problem_prepare(&p) != TEGROUP_OK || tegroup_gemm(&p.plan, &p.desc, NULL, NULL) != TEGROUP_OK) complaint = "the three calls fail";
    for (int i = 0; i < 2; i++) {
        if (outputs[i] != NULL && memcmp(results[i], outputs[i]->data, outputs[i]->bytes) != 0) complaint = "the bits are others than of three calls";
        free(results[i]);
    }
    problem_reset(&p);
    if (tegroup_gemm_once(&desc, NULL, NULL) != TEGROUP_OK) complaint = "the call fails in a workspace that was used";
    if (problem_disturbed(&p) != 0 || guards_changed() != 0) complaint = "bytes changed that are not the result's";
    problem_release(&p);
    return complaint;
}

TEST(once, is_prepare_plan_and_gemm) {
    rng r = rng_seed(6001);
    int64_t regular = 0, problems = scaled(1200);
    for (int64_t i = 0; i < problems; i++) {
        void *mark = guards_mark();
        spec s = random_spec(&r, ops[i % 3], 40, 60);
        random_gather(&r, &s, 20);
        const char *complaint = once(&s, &regular);
        if (complaint != NULL) printf("op %d groups %d seed %llu\n", (int)s.op, s.groups, (unsigned long long)s.seed);
        ASSERT_STREQ("", complaint != NULL ? complaint : "");
        guards_release(mark);
    }
    ASSERT_GT(regular, problems / 4);
    ASSERT_LT(regular, problems);
}

/* ---- refusals: nothing is written but into the workspace --------------------------------------------------------------------- */

static world w, good, before; /* what a call is given, the memory that it leads into, and its bytes before the call */

static void spoil_nothing(void) {
    static world pristine;
    static int made;
    tegroup_error error;
    if (!made) {
        if (world_make(&good, &error) != TEGROUP_OK) { printf("%s %s\n", error.field, error.rule); exit(1); }
        memcpy(&pristine, &good, sizeof good);
        made = 1;
    }
    memcpy(&good, &pristine, sizeof good);
    memcpy(&w, &good, sizeof w);
    forget_snapshots(&w.forward);
    forget_snapshots(&w.wgrad);
    w.forward.options.workspace = w.wgrad.options.workspace = good.workspace;
    w.forward.options.workspace_bytes = w.wgrad.options.workspace_bytes = sizeof good.workspace;
}
static int only_the_workspace_changed(void) {
    memcpy(before.workspace, good.workspace, sizeof good.workspace);
    return memcmp(&before, &good, sizeof good) == 0;
}
#define REFUSED(call, spoil, status_, field_, expected_, got_)                                      \
    do {                                                                                            \
        tegroup_error error;                                                                        \
        spoil_nothing();                                                                            \
        spoil;                                                                                      \
        memcpy(&before, &good, sizeof before);                                                      \
        ASSERT_EQ(TEGROUP_ERROR_##status_, tegroup_gemm_once(&w.call, NULL, &error));               \
        ASSERT_EQ(TEGROUP_ERROR_##status_, tegroup_gemm_once(&w.call, NULL, NULL));                 \
        ASSERT_STREQ(field_, error.field);                                                          \
        ASSERT_EQ((int64_t)(expected_), error.expected);                                            \
        ASSERT_EQ((int64_t)(got_), error.got);                                                      \
        ASSERT_TRUE(only_the_workspace_changed());                                                  \
    } while (0)
/* ... by the layout, too, which needs nothing but the problem. */
#define REFUSED_EARLY(call, spoil, status_, field_, expected_, got_)                                \
    do {                                                                                            \
        tegroup_layout layout, untouched;                                                           \
        tegroup_error early;                                                                        \
        REFUSED(call, spoil, status_, field_, expected_, got_);                                     \
        memset(&layout, 0xA5, sizeof layout);                                                       \
        memset(&untouched, 0xA5, sizeof untouched);                                                 \
        ASSERT_EQ(TEGROUP_ERROR_##status_, tegroup_gemm_once_layout(&w.call, &layout, &early));     \
        ASSERT_STREQ(field_, early.field);                                                          \
        ASSERT_EQ(0, memcmp(&layout, &untouched, sizeof layout));                                   \
    } while (0)

static tegroup_layout layout_of(const tegroup_gemm_desc *desc) {
    tegroup_layout layout;
    if (tegroup_gemm_once_layout(desc, &layout, NULL) != TEGROUP_OK) exit(1);
    return layout;
}

TEST(once, what_the_sizes_must_be) {
    static int64_t other[EXPERTS] = {1, 1, 1, 1}, widths[EXPERTS] = {1, 2, 3, 4};
    REFUSED_EARLY(forward, w.forward.a.shape.snapshot = good.snapshot, COMBINATION, "a.shape.snapshot", 0, 1);
    REFUSED_EARLY(forward, w.forward.d.shape.snapshot = good.snapshot, COMBINATION, "d.shape.snapshot", 0, 1);
    REFUSED_EARLY(wgrad, w.wgrad.b.shape.snapshot = good.snapshot, COMBINATION, "b.shape.snapshot", 0, 1);
    REFUSED_EARLY(forward, w.forward.d.shape.row_sizes.data = other, COMBINATION, "d.shape.row_sizes", 0, 1);
    REFUSED_EARLY(forward, w.forward.c.shape.row_sizes.alignment = 8, COMBINATION, "c.shape.row_sizes", 0, 1);
    REFUSED_EARLY(forward, w.forward.d.shape.row_sizes.stride = 8, COMBINATION, "d.shape.row_sizes", 0, 1);
    REFUSED_EARLY(forward, w.forward.d.shape.row_sizes.starts = other, COMBINATION, "d.shape.row_sizes", 0, 1);
    REFUSED_EARLY(forward, w.forward.d.shape.row_sizes.data_space = TEGROUP_SPACE_HOST, COMBINATION, "d.shape.row_sizes", 0, 1);
    REFUSED_EARLY(forward, w.forward.d.shape.row_sizes.dtype = TEGROUP_DTYPE_I32, COMBINATION, "d.shape.row_sizes", 0, 1);
    REFUSED_EARLY(wgrad, w.wgrad.b.shape.row_sizes.encoding = TEGROUP_ENCODING_ENDS, COMBINATION, "b.shape.row_sizes", 0, 1);
    REFUSED_EARLY(wgrad, w.wgrad.b.shape.col_sizes = tegroup_sizes_of(widths, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
                  w.wgrad.b.shape.elements = 99; w.wgrad.d.shape.row_sizes = w.wgrad.a.shape.row_sizes; w.wgrad.bias.dtype = TEGROUP_DTYPE_UNSET;
                  w.wgrad.bias.data = NULL; w.wgrad.d.shape.col_sizes = w.wgrad.b.shape.col_sizes; w.wgrad.d.shape.elements = 99,
                  UNSUPPORTED, "b.shape.col_sizes.encoding", 0, 1);
    REFUSED_EARLY(forward, w.forward.a.shape.row_sizes.space = w.forward.c.shape.row_sizes.space = w.forward.d.shape.row_sizes.space = TEGROUP_SPACE_DEVICE,
                  UNSUPPORTED, "a.shape.row_sizes.space", TEGROUP_SPACE_HOST, TEGROUP_SPACE_DEVICE);
    REFUSED_EARLY(forward, w.forward.op = TEGROUP_OP_UNSET, UNSET, "op", TEGROUP_OP_FORWARD, 0);
    /* in the words of tegroup_prepare: data that is not there, data that lies, for the smallest buffer */
    REFUSED(forward, w.forward.a.shape.row_sizes.data = w.forward.c.shape.row_sizes.data = w.forward.d.shape.row_sizes.data = NULL, NULL_ARGUMENT,
            "shape.row_sizes.data", 1, 0);
    REFUSED(forward, good.counts[2] = -2, VALUE, "shape.row_sizes.data", -1, 2);
    REFUSED(forward, good.counts[0] = ROWS + 1, CAPACITY, "shape.row_sizes.data", ROWS, 0);
    REFUSED(forward, w.forward.d.shape.rows = SLOTS - 1, CAPACITY, "shape.row_sizes.data", SLOTS - 1, EXPERTS - 1);
    REFUSED(wgrad, w.wgrad.b.shape.rows = SLOTS - 1, CAPACITY, "shape.row_sizes.data", SLOTS - 1, EXPERTS - 1);
    REFUSED(forward, w.forward.options.host_sizes_final = 2, VALUE, "options.host_sizes_final", 1, 2);
}

TEST(once, what_the_buffers_must_be) {
    tegroup_error error;
    spoil_nothing();
    const tegroup_layout layout = layout_of(&w.forward);
    REFUSED(forward, w.forward.options.workspace = NULL, NULL_ARGUMENT, "options.workspace", 1, 0);
    REFUSED(forward, w.forward.options.workspace = good.workspace + 128, ALIGNMENT, "options.workspace", TEGROUP_ALIGNMENT, 128);
    REFUSED(forward, w.forward.options.workspace_bytes = layout.total_bytes - 1, WORKSPACE, "options.workspace_bytes", layout.total_bytes, layout.total_bytes - 1);
    REFUSED(forward, w.forward.a.data = NULL, NULL_ARGUMENT, "a.data", 1, 0);
    REFUSED(forward, w.forward.d.data = (char *)w.forward.d.data + 1, ALIGNMENT, "d.data", 4, 1);
    /* the snapshot's part of the workspace and the plan's: neither may be anybody's, and neither is written then */
    REFUSED(forward, w.forward.options.workspace = good.x, OVERLAP, "options.workspace", 0, 1);
    REFUSED(forward, w.forward.d.data = good.workspace, OVERLAP, "options.workspace", 0, 1);
    REFUSED(forward, w.forward.a.data = good.workspace + layout.total_bytes - 4, OVERLAP, "options.workspace", 0, 1);
    REFUSED(forward, w.forward.row_scale = good.workspace, OVERLAP, "options.workspace", 0, 1);
    REFUSED(forward, w.forward.d.data = w.forward.a.data, OVERLAP, "d.data", 0, 1);
    REFUSED(forward, w.forward.a.shape.row_sizes.data = w.forward.c.shape.row_sizes.data = w.forward.d.shape.row_sizes.data = good.workspace + 512, OVERLAP,
            "snapshot", 0, 1);

    /* what is behind the bytes that it asks for may be */
    spoil_nothing();
    w.forward.options.workspace_bytes = layout.total_bytes;
    memcpy(good.workspace + layout.total_bytes, good.x, sizeof good.x);
    w.forward.a.data = good.workspace + layout.total_bytes;
    ASSERT_EQ(TEGROUP_OK, tegroup_gemm_once(&w.forward, NULL, &error));
    ASSERT_EQ(0, memcmp(good.workspace + layout.total_bytes, good.x, sizeof good.x));
}

TEST(once, needs_its_arguments) {
    tegroup_layout layout;
    tegroup_error error;
    spoil_nothing();
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_gemm_once(NULL, NULL, &error));
    ASSERT_STREQ("desc", error.field);
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_gemm_once_layout(NULL, &layout, &error));
    ASSERT_STREQ("desc", error.field);
    ASSERT_EQ(TEGROUP_ERROR_NULL_ARGUMENT, tegroup_gemm_once_layout(&w.forward, NULL, &error));
    ASSERT_STREQ("layout", error.field);
    w.forward.struct_size--;
    ASSERT_EQ(TEGROUP_ERROR_STRUCT_SIZE, tegroup_gemm_once(&w.forward, NULL, &error));
    ASSERT_STREQ("struct_size", error.field);
    ASSERT_EQ(TEGROUP_ERROR_STRUCT_SIZE, tegroup_gemm_once_layout(&w.forward, &layout, &error));
    ASSERT_STREQ("struct_size", error.field);
}

TEST_MAIN()
