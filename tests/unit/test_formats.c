/* Scale layouts against an enumeration of their own; 16-bit conversions against arithmetic, every code and many values. */
#define TEGROUP_IMPLEMENTATION
#include "support.h"
#include "test.h"

/* ---- scales: the table of tegroup_scaling, written down again from the sources that it names --------------------------- */

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }
static int64_t up_to(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/* Extents, and whether storage runs along outer first or in tiles. */
static void expected_extent(tegroup_scaling mode, int64_t outer, int64_t inner, int64_t *o, int64_t *i, int64_t *bytes_each) {
    *o = *i = *bytes_each = 0;
    if ((outer == 0 || inner == 0) && mode != TEGROUP_SCALING_TENSOR) return;
    switch (mode) {
    case TEGROUP_SCALING_TENSOR:        *o = 1;                   *i = 1;                             *bytes_each = 4; break;
    case TEGROUP_SCALING_ROW:           *o = outer;               *i = 1;                             *bytes_each = 4; break;
    case TEGROUP_SCALING_BLOCK_1X128:   *o = up_to(outer, 4);     *i = ceil_div(inner, 128);          *bytes_each = 4; break;
    case TEGROUP_SCALING_BLOCK_128X128: *o = ceil_div(outer, 128); *i = up_to(ceil_div(inner, 128), 4); *bytes_each = 4; break;
    case TEGROUP_SCALING_BLOCK_32X32:   *o = ceil_div(outer, 32); *i = ceil_div(inner, 32);           *bytes_each = 4; break;
    case TEGROUP_SCALING_MXFP4:
    case TEGROUP_SCALING_MXFP8_32X32:
    case TEGROUP_SCALING_MXFP8:         *o = up_to(outer, 128);   *i = up_to(ceil_div(inner, 32), 4); *bytes_each = 1; break;
    case TEGROUP_SCALING_NVFP4_16X16:
    case TEGROUP_SCALING_NVFP4:         *o = up_to(outer, 128);   *i = up_to(ceil_div(inner, 16), 4); *bytes_each = 1; break;
    default: break;
    }
}

static int in_tiles(tegroup_scaling mode) {
    return mode == TEGROUP_SCALING_MXFP8 || mode == TEGROUP_SCALING_NVFP4 || mode == TEGROUP_SCALING_MXFP4 || mode == TEGROUP_SCALING_MXFP8_32X32 ||
           mode == TEGROUP_SCALING_NVFP4_16X16;
}

/* place[outer * inner_extent + inner], by walking through storage in order. */
static void enumerate(tegroup_scaling mode, int64_t outer, int64_t inner, int64_t *place) {
    int64_t next = 0;
    if (in_tiles(mode)) { /* cuBLAS: 512-byte tiles; 16 bytes hold rows r, r+32, r+64, r+96 */
        for (int64_t to = 0; to < outer; to += 128)
            for (int64_t ti = 0; ti < inner; ti += 4)
                for (int64_t r = 0; r < 32; r++)
                    for (int64_t strip = 0; strip < 4; strip++)
                        for (int64_t c = 0; c < 4; c++) place[(to + strip * 32 + r) * inner + ti + c] = next++;
    } else if (mode == TEGROUP_SCALING_BLOCK_1X128) {
        for (int64_t i = 0; i < inner; i++)
            for (int64_t o = 0; o < outer; o++) place[o * inner + i] = next++;
    } else {
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < inner; i++) place[o * inner + i] = next++;
    }
}

TEST(formats, scale_shapes_and_places) {
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 383, 512, 700};
    const int count = (int)(sizeof sizes / sizeof *sizes);
    int64_t checked = 0;
    for (int mode = 0; mode < TEGROUP_SCALING_COUNT; mode++)
        for (int r = 0; r < count; r++)
            for (int c = 0; c < count; c++)
                for (int32_t columnwise = 0; columnwise < 2; columnwise++) {
                    tegroup_scale_extent extent = {-1, -1, -1};
                    int64_t o, i, each;
                    expected_extent((tegroup_scaling)mode, columnwise ? sizes[c] : sizes[r], columnwise ? sizes[r] : sizes[c], &o, &i, &each);
                    ASSERT_EQ(tegroup_scale_shape((tegroup_scaling)mode, columnwise, sizes[r], sizes[c], &extent, NULL), TEGROUP_OK);
                    ASSERT_EQ(extent.outer, o);
                    ASSERT_EQ(extent.inner, i);
                    ASSERT_EQ(extent.bytes, o * i * each);
                    if (o * i == 0) continue;
                    int64_t *place = (int64_t *)malloc((size_t)(o * i) * 8);
                    char *seen = (char *)calloc((size_t)(o * i), 1);
                    int64_t wrong = 0;
                    enumerate((tegroup_scaling)mode, o, i, place);
                    for (int64_t x = 0; x < o; x++)
                        for (int64_t y = 0; y < i; y++) {
                            int64_t index = tegroup_scale_index((tegroup_scaling)mode, &extent, x, y);
                            int inside = index >= 0 && index < o * i && !seen[index]; /* a bijection */
                            if (inside) seen[index] = 1;
                            wrong += !inside || index != place[x * i + y];
                        }
                    free(place);
                    free(seen);
                    ASSERT_EQ(wrong, 0);
                    checked += o * i;
                }
    printf("scales placed: %ld\n", (long)checked);
}

/* The table once more: what carries a scaling, the type of its scales, a block's extents, and the rows of one choice. */
TEST(formats, scaling_facts) {
    const uint32_t fp8 = 1u << TEGROUP_DTYPE_F8E4M3 | 1u << TEGROUP_DTYPE_F8E5M2, fp4 = 1u << TEGROUP_DTYPE_F4E2M1;
    const uint32_t plain = 1u << TEGROUP_DTYPE_F64 | 1u << TEGROUP_DTYPE_F32 | 1u << TEGROUP_DTYPE_F16 | 1u << TEGROUP_DTYPE_BF16;
    const struct { uint32_t data; tegroup_dtype scale; int32_t outer, inner, choice; } want[TEGROUP_SCALING_COUNT] = {
        {plain, TEGROUP_DTYPE_UNSET, 0, 0, 0},     {fp8, TEGROUP_DTYPE_F32, 0, 0, 0},     {fp8, TEGROUP_DTYPE_F32, 1, 0, 1},
        {fp8, TEGROUP_DTYPE_F32, 1, 128, 1},       {fp8, TEGROUP_DTYPE_F32, 128, 128, 128}, {fp8, TEGROUP_DTYPE_F8E8M0, 1, 32, 1},
        {fp4, TEGROUP_DTYPE_F8E4M3, 1, 16, 1},     {fp4, TEGROUP_DTYPE_F8E8M0, 1, 32, 1}, {fp8, TEGROUP_DTYPE_F32, 32, 32, 32},
        {fp8, TEGROUP_DTYPE_F8E8M0, 1, 32, 32},    {fp4, TEGROUP_DTYPE_F8E4M3, 1, 16, 16}};
    for (int mode = 0; mode < TEGROUP_SCALING_COUNT; mode++) {
        const tegroup_scaling_facts *facts = tegroup_scaling_info((tegroup_scaling)mode);
        ASSERT_TRUE(facts != NULL);
        ASSERT_EQ((int)facts->scaling, mode);
        ASSERT_TRUE(facts->name != NULL && facts->name[0] != 0);
        for (int other = 0; other < mode; other++) ASSERT_STRNE(facts->name, tegroup_scaling_info((tegroup_scaling)other)->name);
        ASSERT_EQ(facts->data_dtypes, want[mode].data);
        ASSERT_EQ((int)facts->scale_dtype, (int)want[mode].scale);
        ASSERT_EQ(facts->block_outer, want[mode].outer);
        ASSERT_EQ(facts->block_inner, want[mode].inner);
        ASSERT_EQ(facts->choice_outer, want[mode].choice);
    }
    ASSERT_TRUE(tegroup_scaling_info(TEGROUP_SCALING_COUNT) == NULL);
    ASSERT_TRUE(tegroup_scaling_info((tegroup_scaling)-1) == NULL);
}

TEST(formats, scale_shape_overflow) {
    for (int mode = TEGROUP_SCALING_ROW; mode < TEGROUP_SCALING_COUNT; mode++) {
        tegroup_scale_extent extent = {7, 7, 7};
        tegroup_error error;
        ASSERT_EQ(tegroup_scale_shape((tegroup_scaling)mode, 0, INT64_MAX, INT64_MAX, &extent, &error), TEGROUP_ERROR_OVERFLOW);
        ASSERT_EQ(error.status, TEGROUP_ERROR_OVERFLOW);
        ASSERT_TRUE(extent.outer == 7 && extent.inner == 7 && extent.bytes == 7);
        /* near the edge: the bytes are right or the call says so */
        rng r = rng_seed(31 + (uint64_t)mode);
        for (int64_t n = scaled(2000); n > 0; n--) {
            int64_t rows = (int64_t)(rng_next(&r) >> rng_int(&r, 1, 40)), cols = (int64_t)(rng_next(&r) >> rng_int(&r, 1, 40)), o, i, each;
            tegroup_status status = tegroup_scale_shape((tegroup_scaling)mode, 0, rows, cols, &extent, NULL);
            if (rows > INT64_MAX - 256 || cols > INT64_MAX - 256) continue;
            expected_extent((tegroup_scaling)mode, rows, cols, &o, &i, &each);
            __int128 bytes = (__int128)o * i * each;
            ASSERT_EQ(status, bytes <= (__int128)PTRDIFF_MAX ? TEGROUP_OK : TEGROUP_ERROR_OVERFLOW);
            if (status == TEGROUP_OK) ASSERT_EQ(extent.bytes, (int64_t)bytes);
        }
    }
}

/* ---- conversions: D[i] = A[i] * 1, one product of one term an element ------------------------------------------------------ */

/* Runs values (as `in`) through a product with the number one into `out`. */
static tegroup_status through_gemm(const void *values, int64_t count, tegroup_dtype in, tegroup_dtype out, tegroup_compute compute, void *result) {
    tegroup_gemm_desc d;
    tegroup_plan plan;
    double one[1];
    memset(&d, 0, sizeof d);
    memset(&plan, 0, sizeof plan);
    store(in, one, 0, 1);
    d.struct_size = sizeof d;
    d.op = TEGROUP_OP_FORWARD;
    d.space = TEGROUP_SPACE_HOST;
    d.options.compute = compute;
    d.a = tegroup_tensor_uniform(1, count, 1, in, values);
    d.b = tegroup_tensor_uniform(1, 1, 1, in, one);
    d.d = tegroup_tensor_uniform(1, count, 1, out, result);
    tegroup_status status = tegroup_plan_make(&d, NULL, &plan, NULL);
    if (status != TEGROUP_OK) return status;
    d.options.workspace_bytes = plan.workspace_bytes;
    d.options.workspace = scratch(d.options.workspace_bytes);
    return tegroup_gemm(&plan, &d, NULL, NULL);
}

static int same(double a, double b) { return (isnan(a) && isnan(b)) || a == b; }

TEST(formats, every_16_bit_code) {
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16};
    for (int t = 0; t < 2; t++) {
        void *mark = guards_mark();
        uint16_t *codes = (uint16_t *)guarded(65536 * 2), *back = (uint16_t *)guarded(65536 * 2);
        float *wide = (float *)guarded(65536 * 4);
        for (int i = 0; i < 65536; i++) codes[i] = (uint16_t)i;
        ASSERT_EQ(through_gemm(codes, 65536, types[t], TEGROUP_DTYPE_F32, TEGROUP_COMPUTE_F32, wide), TEGROUP_OK);
        ASSERT_EQ(through_gemm(codes, 65536, types[t], types[t], TEGROUP_COMPUTE_F32, back), TEGROUP_OK);
        for (int i = 0; i < 65536; i++) {
            double value = decode16(types[t], (uint16_t)i);
            ASSERT_TRUE(same((double)wide[i], value));
            if (isnan(value)) ASSERT_TRUE(isnan(decode16(types[t], back[i])));
            else ASSERT_TRUE(back[i] == i || value == 0); /* the sum 0 + -0 is 0 */
            uint16_t helper_back[1] = {0};
            float helper = tegroup_impl_load_f32(types[t], codes, i);
            double helper64 = tegroup_impl_load_f64(types[t], codes, i);
            ASSERT_TRUE(same((double)helper, value) && same(helper64, value) && !!signbit(helper) == !!(i & 0x8000));
            tegroup_impl_store_f32(types[t], helper_back, 0, helper);
            ASSERT_TRUE(isnan(value) ? isnan(decode16(types[t], helper_back[0])) : helper_back[0] == i);
            tegroup_impl_store_f64(types[t], helper_back, 0, helper64);
            ASSERT_TRUE(isnan(value) ? isnan(decode16(types[t], helper_back[0])) : helper_back[0] == i);
        }
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

/* A value that is hard to round to a type: near a tie of two neighbouring codes, or any pattern at all. */
static double awkward(rng *r, tegroup_dtype dtype) {
    if (rng_chance(r, 30)) {
        uint64_t bits = rng_next(r);
        double x;
        memcpy(&x, &bits, 8);
        return x;
    }
    if (rng_chance(r, 20)) return ldexp(rng_normal(r), (int)rng_int(r, -30, 20));
    uint16_t code = (uint16_t)rng_int(r, 0, 0x7FFF);
    double low = decode16(dtype, code), high = decode16(dtype, (uint16_t)(code + 1)), x;
    if (isnan(low) || isinf(low)) return low;
    if (isinf(high)) high = ldexp(1, facts_of(dtype).exponent_max + 1);
    x = isnan(high) ? low : (low + high) / 2;
    if (rng_chance(r, 30)) x = nextafter(x, INFINITY);
    else if (rng_chance(r, 30)) x = nextafter(x, 0);
    else if (rng_chance(r, 30)) x *= 1 + ldexp(rng_unit(r) - 0.5, -(int)rng_int(r, 8, 30));
    return rng_chance(r, 50) ? -x : x;
}

static uint16_t want_code(tegroup_dtype dtype, double x) { return encode16(dtype, x); }

TEST(formats, rounding_to_16_bits) {
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16};
    const int64_t count = scaled(400000);
    for (int t = 0; t < 2; t++) {
        void *mark = guards_mark();
        rng r = rng_seed(77 + (uint64_t)t);
        double *x64 = (double *)guarded((size_t)count * 8);
        float *x32 = (float *)guarded((size_t)count * 4);
        uint16_t *from64 = (uint16_t *)guarded((size_t)count * 2), *from32 = (uint16_t *)guarded((size_t)count * 2);
        for (int64_t i = 0; i < count; i++) {
            x64[i] = awkward(&r, types[t]);
            x32[i] = (float)x64[i];
        }
        ASSERT_EQ(through_gemm(x32, count, TEGROUP_DTYPE_F32, types[t], TEGROUP_COMPUTE_F32, from32), TEGROUP_OK);
        tegroup_status status = through_gemm(x64, count, TEGROUP_DTYPE_F64, types[t], TEGROUP_COMPUTE_F64, from64);
        int64_t wrong32 = 0, wrong64 = 0, wrong_helper32 = 0, wrong_helper64 = 0;
        for (int64_t i = 0; i < count; i++) {
            uint16_t w64 = want_code(types[t], x64[i]), w32 = want_code(types[t], (double)x32[i]), got[2] = {0, 0};
            tegroup_impl_store_f32(types[t], got, 0, x32[i]);
            tegroup_impl_store_f64(types[t], got, 1, x64[i]);
            if (isnan(x64[i])) {
                wrong_helper32 += !isnan(decode16(types[t], got[0]));
                wrong_helper64 += !isnan(decode16(types[t], got[1]));
                wrong32 += !isnan(decode16(types[t], from32[i]));
                if (status == TEGROUP_OK) wrong64 += !isnan(decode16(types[t], from64[i]));
                continue;
            }
            if (got[1] != w64 && wrong_helper64 == 0) fprintf(stderr, "%a to type %d: want %04x, got %04x\n", x64[i], (int)types[t], w64, got[1]);
            wrong_helper32 += got[0] != w32;
            wrong_helper64 += got[1] != w64;
            wrong32 += !same(decode16(types[t], from32[i]), decode16(types[t], w32)); /* by value: -0 + 0 is 0 */
            if (status == TEGROUP_OK) wrong64 += !same(decode16(types[t], from64[i]), decode16(types[t], w64));
        }
        ASSERT_EQ(wrong32, 0);
        ASSERT_EQ(wrong64, 0);
        ASSERT_EQ(wrong_helper32, 0);
        ASSERT_EQ(wrong_helper64, 0);
        if (status != TEGROUP_OK) ASSERT_EQ(status, TEGROUP_ERROR_UNSUPPORTED);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
    printf("values rounded: %ld\n", (long)(4 * count));
}

/* The processor's own conversions are right here, where no flag has it flush subnormal numbers. */
TEST(formats, f64_and_f32) {
    rng r = rng_seed(4);
    int64_t wrong_narrow = 0, wrong_wide = 0;
    for (int64_t n = scaled(3000000); n > 0; n--) {
        uint64_t bits = rng_next(&r), got64, want64;
        uint32_t low = (uint32_t)bits, got, want;
        double x;
        float y;
        if (rng_chance(&r, 50)) /* about the ends of binary32's exponents */
            bits = (bits & 0x800fffffffffffffull) | (uint64_t)(rng_chance(&r, 70) ? rng_int(&r, 865, 905) : rng_int(&r, 1140, 1155)) << 52;
        if (rng_chance(&r, 40)) bits &= ~0ull << rng_int(&r, 20, 52); /* ties */
        if (rng_chance(&r, 30)) low &= 0x80ffffffu;
        memcpy(&x, &bits, 8);
        memcpy(&y, &low, 4);
        want = tegroup_impl_bits_of_f32((float)x);
        got = tegroup_impl_bits_of_f32(tegroup_impl_f32_of_f64(x));
        if (got != want && wrong_narrow++ == 0) fprintf(stderr, "%a: want %08x, got %08x\n", x, want, got);
        x = (double)y;
        memcpy(&want64, &x, 8);
        x = tegroup_impl_f64_of_f32(y);
        memcpy(&got64, &x, 8);
        wrong_wide += got64 != want64;
    }
    ASSERT_EQ(wrong_narrow, 0);
    ASSERT_EQ(wrong_wide, 0);
}

TEST(formats, names_and_bits) {
    static const struct { tegroup_dtype dtype; const char *name; int32_t bits; } want[] = {
        {TEGROUP_DTYPE_F64, "F64", 64}, {TEGROUP_DTYPE_F32, "F32", 32}, {TEGROUP_DTYPE_F16, "F16", 16}, {TEGROUP_DTYPE_BF16, "BF16", 16},
        {TEGROUP_DTYPE_F8E4M3, "F8E4M3", 8}, {TEGROUP_DTYPE_F8E5M2, "F8E5M2", 8}, {TEGROUP_DTYPE_F4E2M1, "F4E2M1", 4},
        {TEGROUP_DTYPE_F8E8M0, "F8E8M0", 8}, {TEGROUP_DTYPE_I32, "I32", 32}, {TEGROUP_DTYPE_I64, "I64", 64}};
    for (int i = 0; i < TEGROUP_DTYPE_COUNT - 1; i++) {
        ASSERT_STREQ(want[i].name, tegroup_dtype_name(want[i].dtype));
        ASSERT_EQ(tegroup_dtype_bits(want[i].dtype), want[i].bits);
    }
    ASSERT_EQ(tegroup_dtype_bits((tegroup_dtype)99), 0);
    ASSERT_STREQ("?", tegroup_dtype_name((tegroup_dtype)99));
    ASSERT_EQ(tegroup_version(), TEGROUP_VERSION);
}

TEST_MAIN()
