// Conversions against those of the CUDA toolkit's headers, on the host: every code, every F16 and BF16, and a million F32.
// test_formats_oracles.sh compiles it with a C++ compiler; needs cuda_fp8.h and cuda_fp4.h.
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

static long checked, wrong;

static void expect(const char *what, uint32_t from, uint32_t want, uint32_t got) {
    checked++;
    if (want != got && wrong++ < 10) printf("%s of %08x: want %02x, got %02x\n", what, (unsigned)from, (unsigned)want, (unsigned)got);
}

static void encode(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    expect("E4M3", bits, __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3), tegroup_impl_f8e4m3_of_f32(x));
    expect("E5M2", bits, __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2), tegroup_impl_f8e5m2_of_f32(x));
    expect("E2M1", bits, __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest), tegroup_impl_f4e2m1_of_f32(x));
    expect("E8M0 up", bits, __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf), tegroup_impl_f8e8m0_of_f32(x, TEGROUP_IMPL_UP));
    expect("E8M0 down", bits, __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero), tegroup_impl_f8e8m0_of_f32(x, TEGROUP_IMPL_DOWN));
}

// The toolkit decodes to F16 or BF16; a NaN is one of any bits.
static void decode(const char *what, uint32_t code, tegroup_dtype through, uint16_t half, float got) {
    const float want = tegroup_decode(through, half);
    expect(what, code, want != want ? 1 : tegroup_encode(TEGROUP_DTYPE_F32, want), got != got ? 1 : tegroup_encode(TEGROUP_DTYPE_F32, got));
}

int main() {
    uint64_t state = 1;
    for (uint32_t code = 0; code < 65536; code++) {
        encode(tegroup_encode(TEGROUP_DTYPE_F32, tegroup_decode(TEGROUP_DTYPE_F16, code)));
        encode(code << 16);
    }
    for (int i = 0; i < 1000000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        encode((uint32_t)(state >> 32));
    }
    for (uint32_t code = 0; code < 256; code++) {
        const uint8_t c = (uint8_t)code;
        decode("E4M3", code, TEGROUP_DTYPE_F16, __nv_cvt_fp8_to_halfraw(c, __NV_E4M3).x, tegroup_impl_f32_of_f8e4m3(c));
        decode("E5M2", code, TEGROUP_DTYPE_F16, __nv_cvt_fp8_to_halfraw(c, __NV_E5M2).x, tegroup_impl_f32_of_f8e5m2(c));
        decode("E8M0", code, TEGROUP_DTYPE_BF16, __nv_cvt_e8m0_to_bf16raw(c).x, tegroup_impl_f32_of_f8e8m0(c));
        if (code < 16) decode("E2M1", code, TEGROUP_DTYPE_F16, __nv_cvt_fp4_to_halfraw(c, __NV_E2M1).x, tegroup_impl_f32_of_f4e2m1(c));
    }
    printf("%ld conversions compared, %ld wrong\n", checked, wrong);
    return wrong > 0;
}
