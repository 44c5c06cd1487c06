/* The constructors: what they return, field by field, and what may become of it; tegroup_shape_prepare beside
 * tegroup_prepare. */
#define TEGROUP_EXTERN
#include "tegroup.h"
#include "../compile/constructors.h"
#include "test.h"

enum { GROUPS = 3, ROWS = 5, N = 3, K = 4 };

static const int64_t counts[GROUPS] = {2, 0, 1};
static _Alignas(TEGROUP_ALIGNMENT) unsigned char snapshot[8192], other[8192], workspace[1 << 20];

static tegroup_shape rows_of(const void *sizes, tegroup_dtype dtype, tegroup_space space) {
    return tegroup_shape_of(GROUPS, ROWS, K, tegroup_sizes_of(sizes, dtype, space));
}
static tegroup_shape on_host(const int64_t *sizes) { return rows_of(sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST); }

static tegroup_status prepare(const tegroup_shape *shape, void *memory, size_t bytes, tegroup_error *error) {
    tegroup_prepare_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.shape = *shape;
    desc.space = TEGROUP_SPACE_HOST;
    desc.snapshot = memory;
    desc.snapshot_bytes = bytes;
    return tegroup_prepare(&desc, NULL, error);
}

TEST(constructors, every_field) { ASSERT_EQ(constructors_wrong(), 0); }

/* Ends instead of counts, rows further apart, a list instead of a buffer: what was edited is what runs. */
TEST(constructors, what_they_return_may_be_edited) {
    static const int32_t ends[GROUPS] = {2, 2, 3};
    float x[ROWS][K + 2], w[GROUPS][N][K], y[ROWS][N];
    void *weights[GROUPS] = {w[2], w[1], w[0]};
    tegroup_shape rows = rows_of(ends, TEGROUP_DTYPE_I32, TEGROUP_SPACE_HOST);
    tegroup_gemm_desc desc;
    tegroup_plan plan;
    tegroup_error error;
    for (int i = 0; i < ROWS * (K + 2); i++) x[i / (K + 2)][i % (K + 2)] = (float)(i % 7 - 3);
    for (int i = 0; i < GROUPS * N * K; i++) w[i / (N * K)][i / K % N][i % K] = (float)(i % 5 - 2);
    for (int i = 0; i < ROWS * N; i++) y[i / N][i % N] = 99;

    rows.row_sizes.encoding = TEGROUP_ENCODING_ENDS;
    ASSERT_EQ(tegroup_shape_prepare(&rows, snapshot, sizeof snapshot, NULL, &error), TEGROUP_OK);
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.op = TEGROUP_OP_FORWARD;
    desc.space = TEGROUP_SPACE_HOST;
    desc.a = tegroup_tensor_of(rows, K, TEGROUP_DTYPE_F32, x);
    desc.a.ld = K + 2;
    desc.b = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_F32, NULL);
    desc.b.pointers = weights;
    desc.b.pointers_space = TEGROUP_SPACE_HOST;
    desc.d = tegroup_tensor_of(rows, N, TEGROUP_DTYPE_F32, y);
    desc.options.threads = 1;
    desc.options.workspace = workspace;
    desc.options.workspace_bytes = sizeof workspace;
    ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
    ASSERT_EQ(tegroup_gemm(&plan, &desc, NULL, &error), TEGROUP_OK);
    for (int row = 0; row < ROWS; row++)
        for (int j = 0; j < N; j++) {
            float want = 99; /* nobody's */
            if (row < 3) want = 0;
            for (int i = 0; i < K && row < 3; i++) want += x[row][i] * w[row < 2 ? 2 : 0][j][i];
            ASSERT_EQ(want, y[row][j]);
        }
}

/* The snapshot is tegroup_prepare's, byte for byte; the shape has it and is otherwise as it was. */
TEST(constructors, shape_prepare_is_prepare) {
    static const int64_t again[GROUPS] = {0, 4, 1}, widths[GROUPS] = {1, 4, 2};
    tegroup_layout layout;
    for (int i = 0; i < 3; i++) { /* once more with another routing, and with columns that differ */
        tegroup_shape shape = on_host(i == 1 ? again : counts), before;
        if (i == 1) shape.snapshot = snapshot;
        if (i == 2) {
            shape.col_sizes = tegroup_sizes_of(widths, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
            shape.elements = 2 * 1 + 1 * 2;
        }
        ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, NULL), TEGROUP_OK);
        memset(snapshot, 0xA5, sizeof snapshot);
        memset(other, 0xA5, sizeof other);
        before = shape;
        ASSERT_EQ(prepare(&shape, other, layout.total_bytes, NULL), TEGROUP_OK);
        ASSERT_EQ(tegroup_shape_prepare(&shape, snapshot, layout.total_bytes, NULL, NULL), TEGROUP_OK);
        ASSERT_EQ(memcmp(snapshot, other, sizeof snapshot), 0);
        ASSERT_EQ(tegroup_snapshot_read(snapshot).rows[1], i == 1 ? 4 : 0);
        before.snapshot = snapshot;
        ASSERT_TRUE(same_shape(&shape, &before));
    }
}

/* Tensors made from the shape have its snapshot from then on; those made before do not. */
TEST(constructors, tensors_take_the_snapshot_along) {
    tegroup_shape shape = on_host(counts);
    const tegroup_tensor early = tegroup_tensor_of(shape, N, TEGROUP_DTYPE_F32, NULL);
    ASSERT_EQ(tegroup_shape_prepare(&shape, snapshot, sizeof snapshot, NULL, NULL), TEGROUP_OK);
    const tegroup_tensor late = tegroup_tensor_of(shape, N, TEGROUP_DTYPE_F32, NULL);
    ASSERT_TRUE(early.shape.snapshot == NULL);
    ASSERT_TRUE(late.shape.snapshot == snapshot);
}

/* What tegroup_prepare refuses: the same error, by the same names, and neither the shape nor the memory was touched. */
TEST(constructors, shape_prepare_refuses_as_prepare) {
    static const int64_t lies[GROUPS] = {2, -5, 1}, many[GROUPS] = {2, 4, 1};
    const struct { tegroup_status status; const char *field; } want[] = {
        {TEGROUP_ERROR_UNSET, "shape.row_sizes.encoding"},  {TEGROUP_ERROR_UNSET, "shape.row_sizes.space"},
        {TEGROUP_ERROR_VALUE, "shape.row_sizes.space"},     {TEGROUP_ERROR_UNSET, "shape.row_sizes.dtype"},
        {TEGROUP_ERROR_NULL_ARGUMENT, "shape.row_sizes.data"}, {TEGROUP_ERROR_VALUE, "shape.row_sizes.data"},
        {TEGROUP_ERROR_CAPACITY, "shape.row_sizes.data"},   {TEGROUP_ERROR_VALUE, "shape.groups"},
        {TEGROUP_ERROR_VALUE, "shape.rows"},                {TEGROUP_ERROR_VALUE, "shape.cols"},
        {TEGROUP_ERROR_NULL_ARGUMENT, "snapshot"},          {TEGROUP_ERROR_ALIGNMENT, "snapshot"},
        {TEGROUP_ERROR_WORKSPACE, "snapshot_bytes"},        {TEGROUP_ERROR_OVERLAP, "snapshot"}};
    for (int i = 0; i < (int)(sizeof want / sizeof want[0]); i++) {
        tegroup_shape shape = on_host(counts), before;
        void *memory = snapshot;
        size_t bytes = sizeof snapshot;
        tegroup_error error, same;
        shape.snapshot = other; /* of the routing before */
        switch (i) {
        case 0: memset(&shape.row_sizes, 0, sizeof shape.row_sizes); break;
        case 1: shape.row_sizes.space = TEGROUP_SPACE_UNSET; break;
        case 2: shape.row_sizes.space = (tegroup_space)(TEGROUP_SPACE_DEVICE + 1); break;
        case 3: shape.row_sizes.dtype = TEGROUP_DTYPE_UNSET; break;
        case 4: shape.row_sizes.data = NULL; break;
        case 5: shape.row_sizes.data = lies; break;
        case 6: shape.row_sizes.data = many; break;
        case 7: shape.groups = -1; break;
        case 8: shape.rows = -1; break;
        case 9: shape.cols = -1; break;
        case 10: memory = NULL; break;
        case 11: memory = snapshot + 64; bytes -= 64; break;
        case 12: bytes = 100; break;
        case 13: shape.row_sizes.data = snapshot + 256; break;
        }
        before = shape;
        memset(snapshot, 0, sizeof snapshot); /* three groups without rows, where the sizes lie there */
        ASSERT_EQ(tegroup_shape_prepare(&shape, memory, bytes, NULL, &error), want[i].status);
        ASSERT_EQ(error.status, want[i].status);
        ASSERT_STREQ(want[i].field, error.field);
        ASSERT_EQ(prepare(&shape, memory, bytes, &same), want[i].status);
        ASSERT_STREQ(same.field, error.field);
        ASSERT_STREQ(same.rule, error.rule);
        ASSERT_EQ(same.expected, error.expected);
        ASSERT_EQ(same.got, error.got);
        ASSERT_EQ(same.reading, error.reading);
        ASSERT_TRUE(same_shape(&shape, &before));
        for (size_t at = 0; at < sizeof snapshot; at++) ASSERT_EQ(snapshot[at], 0);
    }
}

TEST(constructors, shape_prepare_of_nothing) {
    tegroup_error error;
    ASSERT_EQ(tegroup_shape_prepare(NULL, snapshot, sizeof snapshot, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT);
    ASSERT_EQ(error.status, TEGROUP_ERROR_NULL_ARGUMENT);
    ASSERT_STREQ("shape", error.field);
    ASSERT_EQ(tegroup_shape_prepare(NULL, snapshot, sizeof snapshot, NULL, NULL), TEGROUP_ERROR_NULL_ARGUMENT);
}

/* Sizes in device memory go with a snapshot there: a build without nvcc has no kernel for them, and touches neither. */
TEST(constructors, shape_prepare_on_a_device) {
    tegroup_shape shape = rows_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    const tegroup_shape before = shape;
    tegroup_error error;
    memset(snapshot, 0xA5, sizeof snapshot);
    ASSERT_EQ(tegroup_shape_prepare(&shape, snapshot, sizeof snapshot, NULL, &error), TEGROUP_ERROR_NOT_BUILT);
    ASSERT_STREQ("space", error.field);
    ASSERT_EQ(error.got, TEGROUP_SPACE_DEVICE);
    ASSERT_TRUE(same_shape(&shape, &before));
    for (size_t at = 0; at < sizeof snapshot; at++) ASSERT_EQ(snapshot[at], 0xA5);
}

TEST_MAIN()
