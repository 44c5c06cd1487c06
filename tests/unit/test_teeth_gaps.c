/* What planted faults (tests/teeth) showed that no other test would notice. */
#define _GNU_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include <sys/mman.h>
#include <stdlib.h>
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"
#include "test.h"

/* One exact product of small whole numbers: plan, prepare what is ragged, run. */
static tegroup_status run(tegroup_gemm_desc *desc, tegroup_shape *ragged) {
    tegroup_plan plan;
    tegroup_status status;
    void *snapshot = NULL;
    memset(&plan, 0, sizeof plan);
    desc->struct_size = sizeof *desc;
    desc->space = TEGROUP_SPACE_HOST;
    desc->options.threads = 1;
    if (ragged) {
        tegroup_layout layout;
        status = tegroup_snapshot_layout(ragged, &layout, NULL);
        if (status != TEGROUP_OK) return status;
        snapshot = aligned_alloc(TEGROUP_ALIGNMENT, layout.total_bytes);
        status = tegroup_shape_prepare(ragged, snapshot, layout.total_bytes, NULL, NULL);
        if (status != TEGROUP_OK) return status;
        desc->a.shape.snapshot = desc->d.shape.snapshot = snapshot;
    }
    status = tegroup_plan_make(desc, NULL, &plan, NULL);
    if (status != TEGROUP_OK) return status;
    desc->options.workspace_bytes = plan.workspace_bytes;
    desc->options.workspace = aligned_alloc(TEGROUP_ALIGNMENT, desc->options.workspace_bytes);
    status = tegroup_gemm(&plan, desc, NULL, NULL);
    free(desc->options.workspace);
    free(snapshot);
    return status;
}

static uint16_t bf16(int value) { /* exact up to 256 */
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Pages that are never touched cost nothing; NULL where the machine does not hand out so many. */
static uint16_t *huge(size_t elements) {
    void *at = mmap(NULL, 2 * elements, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : (uint16_t *)at;
}

/* A's group 1 begins 5 * 2^30 elements in, B's 2^32 + 8: in 32 bits both would land inside group 0. */
TEST(gaps, elements_past_2_to_32) {
    enum { ROWS = 6, N = 3, K = 4 };
    const int64_t lda = INT64_C(1) << 30, stride = (INT64_C(1) << 32) + 8;
    const size_t a_elements = (ROWS - 1) * (size_t)lda + K, b_elements = (size_t)stride + N * K;
    const int64_t counts[2] = {5, 1};
    float d[ROWS][N];
    uint16_t *a, *b;
    tegroup_gemm_desc desc;
    if (sizeof(void *) < 8) SKIP("needs 64-bit addresses");
    a = huge(a_elements);
    b = huge(b_elements);
    if (!a || !b) SKIP("needs 20 GB of address space");
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < K; i++) a[r * lda + i] = bf16(7 * r + i + 1);
    for (int g = 0; g < 2; g++)
        for (int i = 0; i < N * K; i++) b[g * stride + i] = bf16(g ? 20 - i : i + 1);
    memset(&desc, 0, sizeof desc);
    desc.op = TEGROUP_OP_FORWARD;
    tegroup_shape rows = tegroup_shape_of(2, ROWS, K, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    desc.a = tegroup_tensor_of(rows, K, TEGROUP_DTYPE_BF16, a);
    desc.a.ld = lda;
    desc.b = tegroup_tensor_uniform(2, N, K, TEGROUP_DTYPE_BF16, b);
    desc.b.group_stride = stride;
    desc.d = tegroup_tensor_of(rows, N, TEGROUP_DTYPE_F32, d);
    ASSERT_TRUE(run(&desc, &desc.a.shape) == TEGROUP_OK);
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < N; j++) {
            int want = 0;
            for (int i = 0; i < K; i++) want += (7 * r + i + 1) * (r == 5 ? 20 - (j * K + i) : j * K + i + 1);
            ASSERT_EQ((float)want, d[r][j]);
        }
    munmap(a, 2 * a_elements);
    munmap(b, 2 * b_elements);
}

/* C's rows lie further apart than D's, and NaN fills what is between. */
TEST(gaps, c_with_a_leading_dimension_of_its_own) {
    enum { GROUPS = 2, M = 3, N = 4, K = 2, LDC = 7 };
    float a[GROUPS][M][K], b[GROUPS][N][K], c[GROUPS][M][LDC], d[GROUPS][M][N];
    const float beta = 2;
    tegroup_gemm_desc desc;
    for (int g = 0; g < GROUPS; g++) {
        for (int i = 0; i < M * K; i++) a[g][i / K][i % K] = (float)(g + i + 1);
        for (int i = 0; i < N * K; i++) b[g][i / K][i % K] = (float)(3 * i - g);
        for (int i = 0; i < M * LDC; i++) c[g][i / LDC][i % LDC] = i % LDC < N ? (float)(10 * g + i) : NAN;
    }
    memset(&desc, 0, sizeof desc);
    desc.op = TEGROUP_OP_FORWARD;
    desc.a = tegroup_tensor_uniform(GROUPS, M, K, TEGROUP_DTYPE_F32, a);
    desc.b = tegroup_tensor_uniform(GROUPS, N, K, TEGROUP_DTYPE_F32, b);
    desc.c = tegroup_tensor_uniform(GROUPS, M, N, TEGROUP_DTYPE_F32, c);
    desc.c.ld = LDC;
    desc.d = tegroup_tensor_uniform(GROUPS, M, N, TEGROUP_DTYPE_F32, d);
    desc.beta.data = &beta;
    desc.beta.space = TEGROUP_SPACE_HOST;
    ASSERT_TRUE(run(&desc, NULL) == TEGROUP_OK);
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++)
                ASSERT_EQ(a[g][i][0] * b[g][j][0] + a[g][i][1] * b[g][j][1] + beta * c[g][i][j], d[g][i][j]);
}

/* (1 + 2^30) - 2^30 is 0 in F32, 1 + (2^30 - 2^30) is 1: choices are added in their order. */
TEST(gaps, combine_adds_in_the_order_of_choices) {
    float permuted[3] = {0x1p30f, -0x1p30f, 1}, token;
    int64_t row_of_slot[3] = {2, 0, 1};
    tegroup_combine_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_HOST;
    desc.permuted = tegroup_matrix_of(permuted, 3, 1, TEGROUP_DTYPE_F32);
    desc.row_of_slot = tegroup_matrix_of(row_of_slot, 1, 3, TEGROUP_DTYPE_I64);
    desc.tokens = tegroup_matrix_of(&token, 1, 1, TEGROUP_DTYPE_F32);
    ASSERT_TRUE(tegroup_combine(&desc, NULL, NULL) == TEGROUP_OK);
    ASSERT_EQ(0.0f, token);
    row_of_slot[0] = 0;
    row_of_slot[1] = 1;
    row_of_slot[2] = 2;
    ASSERT_TRUE(tegroup_combine(&desc, NULL, NULL) == TEGROUP_OK);
    ASSERT_EQ(1.0f, token);
}

/* Whatever its payload, and from either width. */
TEST(gaps, nan_stays_nan_in_16_bits) {
    const uint32_t payloads[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7fffffffu, 0xffffe000u, 0x7fc01fffu};
    int64_t row_of_slot = 0;
    for (size_t i = 0; i < sizeof payloads / sizeof payloads[0]; i++)
        for (int wide = 0; wide < 2; wide++)
            for (int half = 0; half < 2; half++) {
                float narrow_nan;
                double wide_nan;
                uint16_t result = 0;
                int magnitude, infinity = half ? 0x7c00 : 0x7f80;
                tegroup_combine_desc desc;
                memcpy(&narrow_nan, &payloads[i], sizeof narrow_nan);
                wide_nan = (double)narrow_nan;
                memset(&desc, 0, sizeof desc);
                desc.struct_size = sizeof desc;
                desc.space = TEGROUP_SPACE_HOST;
                desc.permuted = wide ? tegroup_matrix_of(&wide_nan, 1, 1, TEGROUP_DTYPE_F64)
                                     : tegroup_matrix_of(&narrow_nan, 1, 1, TEGROUP_DTYPE_F32);
                desc.row_of_slot = tegroup_matrix_of(&row_of_slot, 1, 1, TEGROUP_DTYPE_I64);
                desc.tokens = tegroup_matrix_of(&result, 1, 1, half ? TEGROUP_DTYPE_F16 : TEGROUP_DTYPE_BF16);
                ASSERT_TRUE(tegroup_combine(&desc, NULL, NULL) == TEGROUP_OK);
                magnitude = result & 0x7fff;
                ASSERT_GT(magnitude, infinity);
            }
}

/* The numbers are part of the interface: programs written against an older header keep their meaning. */
TEST(gaps, numbers_and_texts_are_stable) {
    static const char *const statuses[] = {
        "OK", "ERROR_NULL_ARGUMENT", "ERROR_STRUCT_SIZE", "ERROR_UNSET", "ERROR_VALUE", "ERROR_SHAPE", "ERROR_DTYPE", "ERROR_LAYOUT",
        "ERROR_ALIGNMENT", "ERROR_OVERLAP", "ERROR_WORKSPACE", "ERROR_CAPACITY", "ERROR_OVERFLOW", "ERROR_COMBINATION", "ERROR_PLAN",
        "ERROR_UNSUPPORTED", "ERROR_NOT_BUILT"};
    static const char *const dtypes[] = {"?", "F64", "F32", "F16", "BF16", "F8E4M3", "F8E5M2", "F4E2M1", "F8E8M0", "I32", "I64"};
    for (int i = 0; i < (int)(sizeof statuses / sizeof statuses[0]); i++)
        ASSERT_STREQ(statuses[i], tegroup_status_name((tegroup_status)i));
    for (int i = 0; i < (int)(sizeof dtypes / sizeof dtypes[0]); i++) ASSERT_STREQ(dtypes[i], tegroup_dtype_name((tegroup_dtype)i));
    for (int i = 0; i < TEGROUP_STATUS_COUNT; i++) /* no two statuses read the same */
        for (int j = 0; j < i; j++)
            ASSERT_STRNE(tegroup_status_string((tegroup_status)i), tegroup_status_string((tegroup_status)j));
}

/* Groups of other rows in b alone, sizes in device memory: the deep check, which a host cannot let read those, leaves them alone. */
TEST(gaps, deep_check_of_a_snapshot_on_the_device) {
    char *device = (char *)mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tegroup_gemm_desc d;
    tegroup_error error;
    memset(&d, 0, sizeof d);
    ASSERT_TRUE((void *)device != MAP_FAILED);
    d.struct_size = sizeof d;
    d.op = TEGROUP_OP_FORWARD;
    d.space = TEGROUP_SPACE_DEVICE;
    d.options.check_level = TEGROUP_CHECK_DEEP;
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    d.a = d.d = tegroup_tensor_uniform(2, 4, 16, TEGROUP_DTYPE_BF16, device + 4096);
    d.b = tegroup_tensor_of(tegroup_shape_of(2, 32, 16, sizes), 16, TEGROUP_DTYPE_BF16, device + 4096);
    d.b.shape.snapshot = device;
    ASSERT_EQ(tegroup_impl_check_groups_meet(&d, tegroup_impl_gemm_names(), &error), TEGROUP_OK);
    munmap(device, 1 << 16);
}

/* A snapshot of packed groups that was written over: what its last group would need is more than can be counted. */
TEST(gaps, deep_check_of_a_group_past_every_count) {
    int64_t one = 1;
    const tegroup_sizes sizes = tegroup_sizes_of(&one, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    tegroup_shape shape = tegroup_shape_of(1, INT64_C(1) << 40, INT64_C(1) << 31, sizes);
    tegroup_layout layout;
    tegroup_error error;
    shape.col_sizes = sizes;
    shape.elements = 4;
    ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, NULL), TEGROUP_OK);
    void *snapshot = aligned_alloc(TEGROUP_ALIGNMENT, layout.total_bytes);
    ASSERT_EQ(tegroup_shape_prepare(&shape, snapshot, layout.total_bytes, NULL, NULL), TEGROUP_OK);
    const tegroup_tensor t = tegroup_tensor_of(shape, shape.cols, TEGROUP_DTYPE_F32, NULL);
    ASSERT_EQ(tegroup_impl_check_groups(&t, "a.shape.snapshot", &error), TEGROUP_OK);
    const tegroup_snapshot_view view = tegroup_snapshot_read(t.shape.snapshot);
    *(int64_t *)(uintptr_t)view.rows = t.shape.rows;
    *(int64_t *)(uintptr_t)view.cols = t.shape.cols;
    ASSERT_EQ(tegroup_impl_check_groups(&t, "a.shape.snapshot", &error), TEGROUP_ERROR_CAPACITY);
    ASSERT_EQ(error.got, INT64_MAX);
    free(snapshot);
}

/* Bytes of a saved plan that are whole but of another machine, library or numerics, or of no backend. */
TEST(gaps, saved_plans_of_others) {
    const float a[4] = {0}, b[4] = {0};
    float d[4];
    unsigned char bytes[TEGROUP_SAVED_PLAN_BYTES];
    tegroup_gemm_desc desc;
    tegroup_plan plan, loaded;
    tegroup_error error;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.op = TEGROUP_OP_FORWARD;
    desc.space = TEGROUP_SPACE_HOST;
    desc.a = tegroup_tensor_uniform(1, 2, 2, TEGROUP_DTYPE_F32, (void *)(uintptr_t)a);
    desc.b = tegroup_tensor_uniform(1, 2, 2, TEGROUP_DTYPE_F32, (void *)(uintptr_t)b);
    desc.d = tegroup_tensor_uniform(1, 2, 2, TEGROUP_DTYPE_F32, d);
    ASSERT_EQ(tegroup_plan_make(&desc, NULL, &plan, NULL), TEGROUP_OK);
    for (int turn = -1; turn < 8; turn++) {
        tegroup_impl_saved saved;
        ASSERT_EQ(tegroup_plan_save(&plan, bytes, sizeof bytes, NULL), TEGROUP_OK);
        memcpy(&saved, bytes, sizeof saved);
        if (turn == 0) saved.version++;
        if (turn == 1) saved.sm = 90;
        if (turn == 2) saved.kind = 1;
        if (turn == 3) saved.cublaslt_version = 131000;
        if (turn == 4) saved.numerics_id ^= 1;
        if (turn == 5) saved.backend = TEGROUP_BACKEND_AUTO;
        if (turn == 6) saved.backend = TEGROUP_BACKEND_COUNT;
        if (turn == 7) memset(&saved.backend, 0xFF, sizeof saved.backend);
        memcpy(bytes, &saved, sizeof saved);
        const uint64_t hash = tegroup_impl_hash(TEGROUP_IMPL_HASH, bytes, sizeof bytes - sizeof hash);
        memcpy(bytes + sizeof bytes - sizeof hash, &hash, sizeof hash);
        ASSERT_EQ(tegroup_plan_load(&desc, bytes, sizeof bytes, &loaded, &error),
                  turn < 0 ? TEGROUP_OK : TEGROUP_ERROR_PLAN);
        if (turn >= 0) ASSERT_STREQ("bytes", error.field);
    }
}

TEST_MAIN()
