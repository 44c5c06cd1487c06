/* What is promised under every flag of the compiler: NaN is found in arrays of the caller's own types, and conversions give the same
 * bits where subnormal numbers are flushed and NaN is said not to exist. Exits with the number of the first line that does not hold. */
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

#define HOLDS(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) return __LINE__ % 256;                                                                            \
    } while (0)
#if defined(__GNUC__)
#define APART __attribute__((noinline))
#else
#define APART
#endif

/* On the stack, so that a compiler sees who writes it and who reads it. */
#define NANS_OF(name, type, bits_type, dtype_, nan_bits)                                                               \
    static APART long name(void) {                                                                                     \
        type x[4][4];                                                                                                  \
        const bits_type bits = nan_bits;                                                                               \
        tegroup_validation found;                                                                                      \
        tegroup_validate_desc v;                                                                                       \
        int i, j;                                                                                                      \
        for (i = 0; i < 4; i++)                                                                                        \
            for (j = 0; j < 4; j++) x[i][j] = (type)1;                                                                 \
        memcpy(&x[2][1], &bits, sizeof bits);                                                                          \
        memset(&v, 0, sizeof v);                                                                                       \
        v.struct_size = sizeof v;                                                                                      \
        v.space = TEGROUP_SPACE_HOST;                                                                                  \
        v.result = &found;                                                                                             \
        v.tensor = tegroup_tensor_uniform(1, 4, 4, dtype_, x);                                                         \
        return tegroup_validate(&v, NULL, NULL) == TEGROUP_OK ? (long)found.owned.nans : -1;                           \
    }
NANS_OF(nans_f32, float, uint32_t, TEGROUP_DTYPE_F32, 0x7fc00001u)
NANS_OF(nans_f64, double, uint64_t, TEGROUP_DTYPE_F64, 0x7ff8000000000001ull)

/* One element, which has its own type. */
typedef struct element {
    double f64;
    float f32;
    uint16_t half;
} element;
static void *place(element *e, tegroup_dtype dtype) {
    return dtype == TEGROUP_DTYPE_F64 ? (void *)&e->f64 : dtype == TEGROUP_DTYPE_F32 ? (void *)&e->f32 : (void *)&e->half;
}
/* The bits of an element of another type that has the value of these. */
static APART uint64_t converted(tegroup_dtype from_type, uint64_t bits, tegroup_dtype to_type) {
    const uint32_t low = (uint32_t)bits;
    element from, to;
    uint32_t f32;
    uint64_t f64;
    memcpy(&from.f64, &bits, 8);
    memcpy(&from.f32, &low, 4);
    from.half = (uint16_t)bits;
    memset(&to, 0, sizeof to);
    tegroup_impl_store_f64(to_type, place(&to, to_type), 0, tegroup_impl_load_f64(from_type, place(&from, from_type), 0));
    memcpy(&f64, &to.f64, 8);
    memcpy(&f32, &to.f32, 4);
    return to_type == TEGROUP_DTYPE_F64 ? f64 : to_type == TEGROUP_DTYPE_F32 ? f32 : to.half;
}

static APART uint32_t encoded(tegroup_dtype dtype, uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return tegroup_encode(dtype, x);
}
static APART uint32_t decoded(tegroup_dtype dtype, uint32_t code) {
    const float x = tegroup_decode(dtype, code);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
/* The scale of a block of E4M3 whose amax has these bits; 0 where the rule is refused. */
static APART uint32_t scaled(tegroup_scale_preset preset, uint32_t bits) {
    const tegroup_scale_rule rule = tegroup_scale_rule_of(preset);
    tegroup_block_scale block;
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    if (tegroup_scale_block(&rule, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F32, amax, 1.0f, &block, NULL)) return 0;
    return block.bits;
}

int main(void) {
    const double tiny = 1e-40;
    uint64_t bits;
    memcpy(&bits, &tiny, sizeof bits);
    HOLDS(nans_f32() == 1 && nans_f64() == 1);
    HOLDS(converted(TEGROUP_DTYPE_F64, bits, TEGROUP_DTYPE_F32) == 0x000116c2u);
    HOLDS(converted(TEGROUP_DTYPE_F32, 0x000116c2u, TEGROUP_DTYPE_F32) == 0x000116c2u);
    HOLDS(converted(TEGROUP_DTYPE_F32, 0x80000001u, TEGROUP_DTYPE_F64) == 0xb6a0000000000000ull);
    HOLDS(converted(TEGROUP_DTYPE_BF16, 0x0001u, TEGROUP_DTYPE_F64) == 0x37a0000000000000ull);
    HOLDS(converted(TEGROUP_DTYPE_BF16, 0x0001u, TEGROUP_DTYPE_BF16) == 0x0001u);
    HOLDS(converted(TEGROUP_DTYPE_F16, 0x0001u, TEGROUP_DTYPE_F64) == 0x3e70000000000000ull);
    HOLDS((converted(TEGROUP_DTYPE_F64, 0x7ff0000000000001ull, TEGROUP_DTYPE_F32) & 0x7fffffffu) > 0x7f800000u);
    HOLDS(encoded(TEGROUP_DTYPE_F8E4M3, 0x7f800001u) == 0x7f && encoded(TEGROUP_DTYPE_F8E5M2, 0xff800000u) == 0xfb);
    HOLDS(encoded(TEGROUP_DTYPE_F8E8M0, 0x00600000u) == 1 && decoded(TEGROUP_DTYPE_F8E8M0, 0) == 0x00400000u);
    HOLDS(scaled(TEGROUP_SCALE_TE_BLOCK, 0x00000001u) == 0x00400000u && scaled(TEGROUP_SCALE_TE_BLOCK, 0x7fc00000u) == 0x3f800000u);
    HOLDS(scaled(TEGROUP_SCALE_TE_BLOCK_F32, 0x00000001u) == 0x00200000u && scaled(TEGROUP_SCALE_DEEPSEEK, 0x00000540u) == 0x00000003u);
    HOLDS((scaled(TEGROUP_SCALE_DEEPGEMM, 0x7fc00000u) & 0x7fffffffu) > 0x7f800000u);
    return 0;
}
