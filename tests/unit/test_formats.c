/* Scale layouts against an enumeration of their own; conversions and scale rules against arithmetic, every code and many values. */
#define TEGROUP_IMPLEMENTATION
#include "support.h"
#include "numbers.h"
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

/* A product that does not fit, or has a negative factor, is the largest number; with a factor of 0 it is 0. */
TEST(formats, products_stop) {
    static const int64_t odd[] = {0, 1, 2, 3, INT64_C(1) << 31, INT64_C(3037000499), INT64_C(3037000500), INT64_C(1) << 62, INT64_MAX / 2, INT64_MAX / 2 + 1, INT64_MAX, -1, -2, INT64_MIN};
    enum { ODD = sizeof odd / sizeof *odd };
    rng r = rng_seed(77);
    for (int64_t i = 0; i < ODD * ODD + scaled(100000); i++) {
        const int64_t a = i < ODD * ODD ? odd[i / ODD] : (int64_t)(rng_next(&r) >> rng_int(&r, 0, 63)), b = i < ODD * ODD ? odd[i % ODD] : (int64_t)(rng_next(&r) >> rng_int(&r, 0, 63));
        const __int128 product = (__int128)a * b;
        ASSERT_EQ(tegroup_impl_mul(a, b), product != 0 && (a < 0 || b < 0 || product > INT64_MAX) ? INT64_MAX : (int64_t)product);
    }
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

/* ---- 8 and 4 bits ------------------------------------------------------------------------------------------------------- */

static uint32_t f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static float f32_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static int same_f32(float a, float b) { return (isnan(a) && isnan(b)) || f32_bits(a) == f32_bits(b); }

/* 1, and says so, when a value is not encoded as arithmetic has it. */
static int64_t encoded_wrong(tegroup_dtype dtype, float x) {
    const unsigned want = small_code(dtype, (double)x), got = tegroup_encode(dtype, x);
    if (want != got) fprintf(stderr, "%a to %s: want %02x, got %02x\n", (double)x, tegroup_dtype_name(dtype), want, got);
    return want != got;
}

TEST(formats, every_small_code_is_decoded_exactly) {
    for (int t = 0; t < 4; t++) {
        const unsigned count = small_codes(small_types[t]);
        for (unsigned code = 0; code < count; code++) {
            const double value = small_value(small_types[t], code);
            ASSERT_TRUE(same_f32(tegroup_decode(small_types[t], code), (float)value));
            ASSERT_TRUE(same_f32(tegroup_decode(small_types[t], code | ~(count - 1)), (float)value)); /* the bits above are not looked at */
            if (isnan(value)) ASSERT_TRUE(isnan(small_value(small_types[t], tegroup_encode(small_types[t], (float)value))));
            else if (!isinf(value)) ASSERT_EQ(tegroup_encode(small_types[t], (float)value), code);
        }
    }
}

TEST(formats, small_types_take_the_nearest_code_of_every_16_bit_value) {
    static const tegroup_dtype from[] = {TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16};
    int64_t wrong = 0;
    for (int t = 0; t < 4; t++)
        for (int f = 0; f < 2; f++)
            for (unsigned code = 0; code < 65536 && wrong == 0; code++) {
                const double value = decode16(from[f], (uint16_t)code);
                ASSERT_TRUE(same((double)tegroup_decode(from[f], code), value));
                wrong += encoded_wrong(small_types[t], tegroup_decode(from[f], code));
            }
    ASSERT_EQ(wrong, 0);
}

/* Near a tie of two codes, at an end of the type, or any pattern at all. */
static float awkward_for(rng *r, tegroup_dtype dtype) {
    const unsigned code = (unsigned)rng_int(r, 0, small_largest(dtype));
    const double low = small_value(dtype, code), high = small_value(dtype, code + (code < small_largest(dtype)));
    float x = (float)(rng_chance(r, 50) ? (low + high) / 2 : rng_chance(r, 50) ? low : low + (high - low) * rng_unit(r));
    if (rng_chance(r, 20)) return f32_of((uint32_t)rng_next(r));
    if (rng_chance(r, 10)) x = (float)small_value(dtype, small_largest(dtype)) * (float)(1 + 0.1 * rng_unit(r));
    if (rng_chance(r, 40)) x = nextafterf(x, rng_chance(r, 50) ? INFINITY : 0);
    return rng_chance(r, 50) ? -x : x;
}

TEST(formats, small_types_round_to_nearest_even) {
    rng r = rng_seed(8);
    int64_t wrong = 0;
    for (int t = 0; t < 4; t++)
        for (int64_t n = scaled(40000); n > 0 && wrong == 0; n--) {
            const float x = awkward_for(&r, small_types[t]);
            unsigned char stored[8] = {0xff, 0xff};
            double y = (double)x;
            wrong += encoded_wrong(small_types[t], x);
            tegroup_impl_store_f32(small_types[t], stored, 0, x);
            wrong += (stored[0] & (small_codes(small_types[t]) - 1)) != small_code(small_types[t], y);
            if (rng_chance(&r, 50)) y = nextafter(y, rng_chance(&r, 50) ? INFINITY : -INFINITY); /* between two floats: rounded once */
            tegroup_impl_store_f64(small_types[t], stored, 0, y);
            wrong += (stored[0] & (small_codes(small_types[t]) - 1)) != small_code(small_types[t], y);
            ASSERT_EQ(stored[1], 0xff);
        }
    ASSERT_EQ(wrong, 0);
}

TEST(formats, what_no_small_type_holds_saturates_and_nan_stays) {
    static const float large[] = {464.0f, 465.0f, 1e9f, 61440.0f, 61441.0f, FLT_MAX, INFINITY};
    static const uint32_t nans[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu};
    for (int i = 0; i < 7; i++) {
        ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F8E4M3, large[i]), 0x7e);
        ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F8E4M3, -large[i]), 0xfe);
        ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F4E2M1, large[i]), 7);
        ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F4E2M1, -large[i]), 15);
        if (large[i] > 6e4f) ASSERT_TRUE(large[i] == 1e9f || tegroup_encode(TEGROUP_DTYPE_F8E5M2, large[i]) == 0x7b);
        if (large[i] > 6e4f) ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F8E5M2, -large[i]), 0xfb);
    }
    ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F8E8M0, INFINITY), 254);
    for (int i = 0; i < 6; i++) {
        ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F8E4M3, f32_of(nans[i])), 0x7f);
        ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F8E5M2, f32_of(nans[i])), 0x7f);
        ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F4E2M1, f32_of(nans[i])), 7);
        ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F8E8M0, f32_of(nans[i])), 255);
    }
    ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F8E4M3, -0.0f), 0x80);
    ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F8E5M2, -1e-30f), 0x80);
    ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F4E2M1, -0.25f), 8);
    ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F8E8M0, 0.0f), 0);
    ASSERT_TRUE(isnan(tegroup_decode(TEGROUP_DTYPE_I32, 5)) && isnan(tegroup_decode(TEGROUP_DTYPE_F64, 5)) && isnan(tegroup_decode((tegroup_dtype)99, 5)));
    ASSERT_TRUE(tegroup_encode(TEGROUP_DTYPE_I32, 5) == 0 && tegroup_encode(TEGROUP_DTYPE_UNSET, 5) == 0);
    ASSERT_EQ(tegroup_encode(TEGROUP_DTYPE_F32, -2.5f), f32_bits(-2.5f));
}

TEST(formats, powers_of_two_round_up_and_down) {
    rng r = rng_seed(9);
    for (int64_t n = scaled(100000); n > 0; n--) {
        const float x = rng_chance(&r, 50) ? awkward_for(&r, TEGROUP_DTYPE_F8E8M0) : f32_of((uint32_t)rng_next(&r) & (rng_chance(&r, 20) ? 0x80ffffffu : ~0u));
        ASSERT_EQ(tegroup_impl_f8e8m0_of_f32(x, TEGROUP_IMPL_UP), power_up((double)x));
        ASSERT_EQ(tegroup_impl_f8e8m0_of_f32(x, TEGROUP_IMPL_DOWN), power_down((double)x));
    }
}

TEST(formats, a_small_code_in_16_bits_is_rounded_once) {
    static const tegroup_dtype wide[] = {TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64};
    for (int t = 0; t < 4; t++)
        for (int w = 0; w < 4; w++)
            for (unsigned code = 0; code < small_codes(small_types[t]); code++) {
                const double value = rounded(wide[w], small_value(small_types[t], code));
                unsigned char from = (unsigned char)code, to[8] = {0};
                tegroup_impl_store_f32(wide[w], to, 0, tegroup_impl_load_f32(small_types[t], &from, 0));
                ASSERT_TRUE(same(load(wide[w], to, 0), value));
                tegroup_impl_store_f64(wide[w], to, 0, tegroup_impl_load_f64(small_types[t], &from, 0));
                ASSERT_TRUE(same(load(wide[w], to, 0), value));
            }
}

/* Rows with and without a stride; of 4 bits, what lies between them keeps its bits. */
TEST(formats, rows_of_small_types) {
    rng r = rng_seed(10);
    for (int t = 0; t < 4; t++)
        for (int64_t n = scaled(400); n > 0; n--) {
            void *mark = guards_mark();
            const int64_t count = rng_int(&r, 0, 40), first = rng_int(&r, 0, 5), stride = rng_chance(&r, 50) ? 1 : rng_int(&r, 2, 4);
            const int per_byte = small_types[t] == TEGROUP_DTYPE_F4E2M1 ? 2 : 1, bits = 8 / per_byte;
            const size_t bytes = (size_t)((first + count * stride + 2) / per_byte);
            unsigned char *row = (unsigned char *)guarded(bytes);
            float x32[40], back32[40];
            double x64[40], back64[40];
            guarded_remember(row);
            for (int64_t j = 0; j < count; j++) x64[j] = (double)(x32[j] = awkward_for(&r, small_types[t]));
            if (rng_chance(&r, 50)) tegroup_impl_store_row_f32(small_types[t], row, first, stride, count, x32);
            else tegroup_impl_store_row_f64(small_types[t], row, first, stride, count, x64);
            tegroup_impl_load_row_f32(small_types[t], row, first, stride, count, back32);
            tegroup_impl_load_row_f64(small_types[t], row, first, stride, count, back64);
            for (int64_t i = 0; i < (int64_t)bytes * per_byte; i++) {
                const int64_t j = (i - first) / stride;
                const int written = i >= first && (i - first) % stride == 0 && j < count;
                const unsigned got = row[i / per_byte] >> (i % per_byte * bits) & ((1u << bits) - 1);
                const unsigned before = ((const unsigned char *)guarded_memory(row))[i / per_byte] >> (i % per_byte * bits) & ((1u << bits) - 1);
                ASSERT_EQ(got, written ? small_code(small_types[t], x64[j]) : before);
                if (written) ASSERT_TRUE(same((double)back32[j], small_value(small_types[t], got)) && same(back64[j], small_value(small_types[t], got)));
            }
            ASSERT_EQ(guards_changed(), 0);
            guards_release(mark);
        }
}

TEST(formats, products_and_quotients_round_once) {
    rng r = rng_seed(11);
    for (int64_t n = scaled(300000); n > 0; n--) {
        float a = f32_of((uint32_t)rng_next(&r)), b = f32_of((uint32_t)rng_next(&r));
        if (rng_chance(&r, 30)) b = ldexpf((float)rng_int(&r, 1, 64), (int)rng_int(&r, -20, 150)); /* subnormal results, ties among them */
        if (rng_chance(&r, 20)) a = f32_of((uint32_t)rng_next(&r) & 0x80ffffffu);
        ASSERT_TRUE(same_f32(tegroup_impl_product_f32(a, b), a * b));
        ASSERT_TRUE(same_f32(tegroup_impl_quotient_f32(a, b), a / b));
    }
}

/* ---- how scales are chosen ---------------------------------------------------------------------------------------------- */

static const tegroup_dtype data_types[] = {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F4E2M1};

static int goes_with(tegroup_scale_preset preset, tegroup_dtype data) { return preset != TEGROUP_SCALE_TE_NVFP4 || data == TEGROUP_DTYPE_F4E2M1; }

/* An amax: any magnitude, near a power of two times the largest value, near the ends of F32, or special. */
static float awkward_amax(rng *r, tegroup_dtype data) {
    static const float special[] = {0, FLT_MIN, FLT_MAX, 1e-4f, 448e-4f, INFINITY, 1e-45f, 1.0f / 512, 2e-45f};
    float x = ldexpf((float)small_value(data, small_largest(data)), (int)rng_int(r, -160, 128));
    if (rng_chance(r, 10)) return special[rng_int(r, 0, 8)];
    if (rng_chance(r, 40)) x = f32_of((uint32_t)rng_next(r) & 0x7fffffffu);
    else if (rng_chance(r, 40)) x = (float)fabs(ldexp(rng_normal(r), (int)rng_int(r, -30, 30)));
    else if (rng_chance(r, 70)) x = nextafterf(x, rng_chance(r, 50) ? INFINITY : 0);
    return isnan(x) ? 1 : x;
}

TEST(formats, scale_rules_are_those_of_their_sources) {
    rng r = rng_seed(12);
    for (int preset = 1; preset < TEGROUP_SCALE_PRESET_COUNT; preset++)
        for (int t = 0; t < 3; t++)
            for (int64_t n = goes_with((tegroup_scale_preset)preset, data_types[t]) ? scaled(8000) : 0; n > 0; n--) {
                const tegroup_scale_rule rule = tegroup_scale_rule_of((tegroup_scale_preset)preset);
                const tegroup_dtype own = scale_type((tegroup_scale_preset)preset), scale = own == TEGROUP_DTYPE_F32 && rng_chance(&r, 30) ? TEGROUP_DTYPE_BF16 : own;
                const float amax = awkward_amax(&r, data_types[t]), group = rng_chance(&r, 20) ? amax : awkward_amax(&r, data_types[t]);
                const float global = preset == TEGROUP_SCALE_TE_NVFP4 ? tegroup_scale_global(group) : 1 + (float)rng_unit(&r);
                const wanted_scale want = wanted_stored(wanted_block((tegroup_scale_preset)preset, data_types[t], amax, global), scale, (tegroup_scale_preset)preset);
                tegroup_block_scale got;
                memset(&got, 0xff, sizeof got);
                ASSERT_EQ(tegroup_scale_block(&rule, data_types[t], scale, rng_chance(&r, 50) ? amax : -amax, global, &got, NULL), TEGROUP_OK);
                if (!same_f32(got.multiplier, want.multiplier) || !same_f32(got.stored, want.stored) || got.divide != want.divide)
                    fprintf(stderr, "preset %d, %s, amax %a: want %a and %a, got %a and %a\n", preset, tegroup_dtype_name(data_types[t]), (double)amax,
                            (double)want.multiplier, (double)want.stored, (double)got.multiplier, (double)got.stored);
                ASSERT_TRUE(same_f32(got.multiplier, want.multiplier) && same_f32(got.stored, want.stored) && got.divide == want.divide);
                ASSERT_TRUE(same_f32(tegroup_decode(scale, got.bits), want.stored));
                for (int k = 0; k < 4; k++) {
                    const float x = rng_chance(&r, 10) ? amax : amax * (float)(2 * rng_unit(&r) - 1);
                    const float scaled_x = want.divide ? x / want.stored : x * want.multiplier;
                    ASSERT_EQ(tegroup_scaled_code(data_types[t], &got, x), small_code(data_types[t], (double)scaled_x));
                }
            }
}

/* A value and what its code means are apart by what the data type rounds, and by the roundings of the scale: unless the rule lets
 * large values saturate, or its ceiling or the range of its scales makes small ones vanish. */
TEST(formats, scaled_values_are_near_what_they_were) {
    rng r = rng_seed(13);
    for (int preset = 1; preset < TEGROUP_SCALE_PRESET_COUNT; preset++)
        for (int t = 0; t < 3; t++) {
            if (preset == TEGROUP_SCALE_TE_DELAYED || preset == TEGROUP_SCALE_OCP_MX || !goes_with((tegroup_scale_preset)preset, data_types[t])) continue;
            for (int64_t n = scaled(2000); n > 0; n--) {
                const tegroup_scale_rule rule = tegroup_scale_rule_of((tegroup_scale_preset)preset);
                const int bits = data_types[t] == TEGROUP_DTYPE_F8E4M3 ? 3 : data_types[t] == TEGROUP_DTYPE_F8E5M2 ? 2 : 1;
                const double step = small_value(data_types[t], 1);
                float x[16], amax = 0;
                for (int i = 0; i < 16; i++) {
                    x[i] = (float)ldexp(rng_normal(&r), (int)rng_int(&r, -4, 8));
                    amax = tegroup_scale_amax(&rule, amax, x[i]);
                }
                const float global = preset == TEGROUP_SCALE_TE_NVFP4 ? tegroup_scale_global(amax) : 1;
                tegroup_block_scale block;
                ASSERT_EQ(tegroup_scale_block(&rule, data_types[t], scale_type((tegroup_scale_preset)preset), amax, global, &block, NULL), TEGROUP_OK);
                for (int i = 0; i < 16; i++) {
                    const double unit = (double)block.stored / (double)global; /* NVFP4's two scales */
                    const double value = small_value(data_types[t], tegroup_scaled_code(data_types[t], &block, x[i])) * unit;
                    ASSERT_LE(fabs(value - (double)x[i]), fmax(fabs((double)x[i]) * ldexp(1, -bits - 1), step * unit / 2) * (1 + 1e-6) + 1e-6 * fabs((double)x[i]));
                }
            }
        }
}

TEST(formats, blocks_of_zeros_and_with_infinity_or_nan) {
    static const struct { tegroup_scale_preset preset; float amax, multiplier, stored; } want[] = {
        {TEGROUP_SCALE_TE_CURRENT, 0, 1, 1}, {TEGROUP_SCALE_TE_CURRENT, INFINITY, 1, 1}, {TEGROUP_SCALE_TE_BLOCK, NAN, 1, 1},
        {TEGROUP_SCALE_TE_BLOCK, 1e-45f, 0x1p127f, 0x1p-127f}, {TEGROUP_SCALE_TE_BLOCK_F32, 1e-45f, FLT_MAX, 0x1p-128f},
        {TEGROUP_SCALE_TE_MXFP8, 0, 0x1p127f, 0x1p-127f}, {TEGROUP_SCALE_TE_MXFP8, INFINITY, 0x1p-127f, 0x1p127f}, {TEGROUP_SCALE_TE_MXFP8, NAN, NAN, NAN},
        {TEGROUP_SCALE_DEEPGEMM, INFINITY, 0, INFINITY}, {TEGROUP_SCALE_DEEPGEMM, NAN, NAN, NAN},
        {TEGROUP_SCALE_DEEPGEMM_UE8M0, 0, 0x1p22f, 0x1p-22f}, {TEGROUP_SCALE_DEEPGEMM_UE8M0, INFINITY, 0x1p-127f, 0x1p127f}, {TEGROUP_SCALE_DEEPGEMM_UE8M0, NAN, NAN, NAN},
        {TEGROUP_SCALE_DEEPSEEK, 0, 0, 0}, {TEGROUP_SCALE_DEEPSEEK, INFINITY, 0, INFINITY}, {TEGROUP_SCALE_DEEPSEEK, NAN, NAN, NAN},
        {TEGROUP_SCALE_FBGEMM_ROW, 0, 229376, 0x1.24924ap-18f}, {TEGROUP_SCALE_FBGEMM_ROW, INFINITY, 0, INFINITY}, {TEGROUP_SCALE_FBGEMM_ROW, NAN, NAN, NAN},
        {TEGROUP_SCALE_OCP_MX, 0, 0x1p127f, 0x1p-127f}, {TEGROUP_SCALE_OCP_MX, INFINITY, 0x1p-120f, 0x1p120f}, {TEGROUP_SCALE_OCP_MX, NAN, NAN, NAN}};
    for (int i = 0; i < (int)(sizeof want / sizeof *want); i++) {
        const tegroup_scale_rule rule = tegroup_scale_rule_of(want[i].preset);
        tegroup_block_scale got;
        ASSERT_EQ(tegroup_scale_block(&rule, TEGROUP_DTYPE_F8E4M3, scale_type(want[i].preset), want[i].amax, 1, &got, NULL), TEGROUP_OK);
        if (!same_f32(got.multiplier, want[i].multiplier) || !same_f32(got.stored, want[i].stored))
            fprintf(stderr, "case %d: want %a and %a, got %a and %a\n", i, (double)want[i].multiplier, (double)want[i].stored, (double)got.multiplier, (double)got.stored);
        ASSERT_TRUE(same_f32(got.multiplier, want[i].multiplier) && same_f32(got.stored, want[i].stored));
        if (want[i].amax == 0) {
            ASSERT_EQ(tegroup_scaled_code(TEGROUP_DTYPE_F8E4M3, &got, 0.0f), 0);
            ASSERT_EQ(tegroup_scaled_code(TEGROUP_DTYPE_F8E4M3, &got, -0.0f), 0x80);
        }
        ASSERT_EQ(tegroup_scaled_code(TEGROUP_DTYPE_F8E4M3, &got, NAN), 0x7f); /* NaN shows, whatever the scale */
    }
    const tegroup_scale_rule nvfp4 = tegroup_scale_rule_of(TEGROUP_SCALE_TE_NVFP4);
    tegroup_block_scale got;
    ASSERT_EQ(tegroup_scale_global(0), 1);
    ASSERT_EQ(tegroup_scale_global(INFINITY), 1);
    ASSERT_EQ(tegroup_scale_global(1e-45f), FLT_MAX);
    ASSERT_EQ(tegroup_scale_global(-2688.0f), 1);
    ASSERT_TRUE(isnan(tegroup_scale_global(NAN)));
    ASSERT_EQ(tegroup_scale_block(&nvfp4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3, 0, 1, &got, NULL), TEGROUP_OK);
    ASSERT_TRUE(got.bits == 0 && got.stored == 0 && got.multiplier == FLT_MAX && tegroup_scaled_code(TEGROUP_DTYPE_F4E2M1, &got, -0.0f) == 8);
    ASSERT_EQ(tegroup_scale_block(&nvfp4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3, INFINITY, 1, &got, NULL), TEGROUP_OK);
    ASSERT_TRUE(got.bits == 0x7e && got.stored == 448);
    ASSERT_EQ(tegroup_scale_block(&nvfp4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3, NAN, 1, &got, NULL), TEGROUP_OK);
    ASSERT_TRUE(got.bits == 0x7f && isnan(got.stored));
}

TEST(formats, amax_counts_nan_where_the_rule_says_so) {
    rng r = rng_seed(14);
    for (int64_t n = scaled(2000); n > 0; n--) {
        tegroup_scale_rule rule = tegroup_scale_rule_of(TEGROUP_SCALE_DEEPGEMM);
        float amax = 0, want = 0;
        int nans = 0;
        rule.nan_shows = (int32_t)rng_int(&r, 0, 1);
        for (int i = 0; i < 8; i++) {
            const float x = rng_chance(&r, 5) ? f32_of(0xffc00001u) : rng_chance(&r, 5) ? -INFINITY : f32_of((uint32_t)rng_next(&r));
            amax = tegroup_scale_amax(&rule, amax, x);
            nans += isnan(x);
            if (!isnan(x)) want = fmaxf(want, fabsf(x));
        }
        ASSERT_TRUE(same_f32(amax, rule.nan_shows && nans ? NAN : want));
    }
}

/* Fields that no preset sets. */
TEST(formats, scale_rules_can_be_edited) {
    rng r = rng_seed(15);
    for (int64_t n = scaled(20000); n > 0; n--) {
        const tegroup_dtype data = data_types[rng_int(&r, 0, 2)];
        const float largest = (float)small_value(data, small_largest(data)), amax = awkward_amax(&r, data), floor = ldexpf(1 + (float)rng_unit(&r), (int)rng_int(&r, -30, 5));
        const float taken = amax < floor ? floor : amax;
        tegroup_scale_rule rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_BLOCK_F32);
        tegroup_block_scale got;
        rule.amax_floor = floor;
        ASSERT_EQ(tegroup_scale_block(&rule, data, TEGROUP_DTYPE_F32, amax, 1, &got, NULL), TEGROUP_OK);
        ASSERT_TRUE(same_f32(got.multiplier, isinf(taken) ? 1 : largest / taken));
        rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_BLOCK_F32);
        rule.multiplier_of_infinity = 0x1.fep127f; /* BF16's largest, which TransformerEngine takes where its input is BF16 */
        ASSERT_EQ(tegroup_scale_block(&rule, data, TEGROUP_DTYPE_F32, amax, 1, &got, NULL), TEGROUP_OK);
        ASSERT_TRUE(same_f32(got.multiplier, amax == 0 || isinf(amax) ? 1 : isinf(largest / amax) ? 0x1.fep127f : largest / amax));
        rule = tegroup_scale_rule_of(TEGROUP_SCALE_DEEPGEMM);
        rule.by_reciprocal = rule.divide = 1; /* as torch divides by a number on a GPU */
        ASSERT_EQ(tegroup_scale_block(&rule, data, TEGROUP_DTYPE_F32, amax, 1, &got, NULL), TEGROUP_OK);
        ASSERT_TRUE(same_f32(got.stored, (amax < 1e-4f ? 1e-4f : amax) * (1 / largest)));
        ASSERT_EQ(tegroup_scaled_code(data, &got, amax / 3), small_code(data, (double)(amax / 3 / got.stored)));
        rule = tegroup_scale_rule_of(TEGROUP_SCALE_DEEPGEMM);
        rule.amax_floor = 0; /* scales may then be too small for a reciprocal */
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const float tiny = ldexpf(1 + (float)rng_unit(&r), (int)rng_int(&r, -149, -100));
            ASSERT_EQ(tegroup_scale_block(&rule, data, bf16 ? TEGROUP_DTYPE_BF16 : TEGROUP_DTYPE_F32, tiny, 1, &got, NULL), TEGROUP_OK);
            if (tiny / largest < 0x1p-126f) ASSERT_EQ(got.stored, tiny / largest > 0 ? 0x1p-126f : 0);
            else ASSERT_LE(fabs(got.stored * (double)largest / (double)tiny - 1), 0x1p-8);
            ASSERT_EQ(tegroup_scaled_code(data, &got, 0.0f), 0);
            ASSERT_LE(fabs(small_value(data, tegroup_scaled_code(data, &got, tiny)) * (double)got.stored - (double)tiny), (double)tiny / 4 + small_value(data, 1) * (double)got.stored / 2 + (double)tiny * (got.stored > 0 ? 0x1p-8 : 1));
        }
        rule = tegroup_scale_rule_of(TEGROUP_SCALE_FBGEMM_ROW);
        rule.power_of_two = 1;
        ASSERT_EQ(tegroup_scale_block(&rule, data, TEGROUP_DTYPE_F8E8M0, amax, 1, &got, NULL), TEGROUP_OK);
        ASSERT_EQ(got.bits, power_up(1 / fmin(largest / (double)amax, 229376)));
        ASSERT_EQ(got.stored, small_value(TEGROUP_DTYPE_F8E8M0, got.bits));
    }
}

TEST(formats, scale_rules_that_cannot_be_are_refused) {
    static const struct { tegroup_scale_preset preset; tegroup_dtype data, scale; tegroup_status status; const char *field; } types[] = {
        {TEGROUP_SCALE_DEEPGEMM, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F32, TEGROUP_ERROR_DTYPE, "data"},
        {TEGROUP_SCALE_DEEPGEMM, TEGROUP_DTYPE_UNSET, TEGROUP_DTYPE_F32, TEGROUP_ERROR_DTYPE, "data"},
        {TEGROUP_SCALE_DEEPGEMM, (tegroup_dtype)64, TEGROUP_DTYPE_F32, TEGROUP_ERROR_DTYPE, "data"},
        {TEGROUP_SCALE_DEEPGEMM, TEGROUP_DTYPE_F8E8M0, TEGROUP_DTYPE_F32, TEGROUP_ERROR_DTYPE, "data"},
        {TEGROUP_SCALE_DEEPGEMM, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E8M0, TEGROUP_ERROR_DTYPE, "scale"},
        {TEGROUP_SCALE_DEEPGEMM, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F16, TEGROUP_ERROR_DTYPE, "scale"},
        {TEGROUP_SCALE_TE_NVFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_BF16, TEGROUP_ERROR_DTYPE, "scale"},
        {TEGROUP_SCALE_DEEPGEMM, TEGROUP_DTYPE_F8E4M3, (tegroup_dtype)-1, TEGROUP_ERROR_DTYPE, "scale"},
        {TEGROUP_SCALE_TE_BLOCK, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E4M3, TEGROUP_ERROR_DTYPE, "scale"},
        {TEGROUP_SCALE_TE_DELAYED, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E8M0, TEGROUP_ERROR_DTYPE, "scale"},
        {TEGROUP_SCALE_TE_NVFP4, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F32, TEGROUP_ERROR_DTYPE, "scale"},
        {TEGROUP_SCALE_TE_NVFP4, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E4M3, TEGROUP_ERROR_DTYPE, "data"},
        {TEGROUP_SCALE_PRESET_UNSET, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F32, TEGROUP_ERROR_UNSET, "rule.method"},
        {(tegroup_scale_preset)-1, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F32, TEGROUP_ERROR_UNSET, "rule.method"}};
    tegroup_block_scale block, poisoned;
    tegroup_error error;
    tegroup_scale_rule rule;
    poison(&block, sizeof block);
    poisoned = block;
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++) {
        rule = tegroup_scale_rule_of(types[i].preset);
        ASSERT_EQ(tegroup_scale_block(&rule, types[i].data, types[i].scale, 1, 1, &block, &error), types[i].status);
        ASSERT_STREQ(error.field, types[i].field);
    }
#define REFUSED(preset, edit, status, name)                                                                                       \
    do {                                                                                                                          \
        rule = tegroup_scale_rule_of(TEGROUP_SCALE_##preset);                                                                     \
        rule.edit;                                                                                                                \
        ASSERT_EQ(tegroup_scale_block(&rule, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F32, 1, 1, &block, &error), TEGROUP_##status);   \
        ASSERT_STREQ(error.field, "rule." name);                                                                                  \
    } while (0)
    REFUSED(TE_BLOCK, method = (tegroup_scale_method)-1, ERROR_VALUE, "method");
    REFUSED(TE_BLOCK, method = TEGROUP_SCALE_METHOD_COUNT, ERROR_VALUE, "method");
    REFUSED(TE_BLOCK, amax_floor = -1, ERROR_VALUE, "amax_floor");
    REFUSED(TE_BLOCK, amax_floor = NAN, ERROR_VALUE, "amax_floor");
    REFUSED(TE_BLOCK, multiplier_max = INFINITY, ERROR_VALUE, "multiplier_max");
    REFUSED(TE_BLOCK, multiplier_of_infinity = INFINITY, ERROR_VALUE, "multiplier_of_infinity");
    REFUSED(TE_BLOCK, power_of_two = 2, ERROR_VALUE, "power_of_two");
    REFUSED(OCP_MX, power_of_two = 1, ERROR_COMBINATION, "power_of_two");
    REFUSED(TE_BLOCK, by_reciprocal = 1, ERROR_COMBINATION, "by_reciprocal");
    REFUSED(TE_BLOCK, divide = 1, ERROR_COMBINATION, "divide");
    REFUSED(TE_BLOCK, special_is_one = -1, ERROR_VALUE, "special_is_one");
    REFUSED(TE_BLOCK, nan_shows = 2, ERROR_VALUE, "nan_shows");
    REFUSED(TE_DELAYED, special_is_one = 1, ERROR_COMBINATION, "special_is_one");
    REFUSED(DEEPGEMM, multiplier_max = 1, ERROR_COMBINATION, "multiplier_max");
    REFUSED(DEEPGEMM, multiplier_of_infinity = 1, ERROR_COMBINATION, "multiplier_of_infinity");
#undef REFUSED
    rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_BLOCK);
    ASSERT_EQ(tegroup_scale_block(NULL, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F32, 1, 1, &block, &error), TEGROUP_ERROR_NULL_ARGUMENT);
    ASSERT_STREQ(error.field, "rule");
    ASSERT_EQ(tegroup_scale_block(&rule, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F32, 1, 1, NULL, &error), TEGROUP_ERROR_NULL_ARGUMENT);
    ASSERT_STREQ(error.field, "block");
    ASSERT_EQ(memcmp(&block, &poisoned, sizeof block), 0);
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
