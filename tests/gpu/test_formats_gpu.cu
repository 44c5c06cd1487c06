/* Conversions and scale rules on a GPU: the bits of the toolkit's device functions, and those that the host computes. */
#define TEGROUP_IMPLEMENTATION
#define TEGROUP_NO_SM90
#define TEGROUP_NO_PORTABLE
#define TEGROUP_NO_CUBLASLT
#define TEGROUP_NO_MOE
#define TEGROUP_NO_ACTIVATION
#include "support.h"
#include "numbers.h"
#include "test.h"
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <vector>

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t code_ = (call);                                                                                    \
        if (code_ != cudaSuccess) {                                                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(code_));                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* An array on both sides. */
template <typename T> struct array {
    std::vector<T> host;
    T *device;
    explicit array(size_t count) : host(count) { MUST(cudaMalloc((void **)&device, (count + 1) * sizeof(T))); }
    ~array() { cudaFree(device); }
    void up() { MUST(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice)); }
    void down() { MUST(cudaMemcpy(host.data(), device, host.size() * sizeof(T), cudaMemcpyDeviceToHost)); }
};

/* E4M3, E5M2, E2M1, E8M0 up and down. */
struct codes { uint8_t ours[5], toolkits[5]; };

static __host__ __device__ void encode(float x, uint8_t *code) {
    code[0] = tegroup_impl_f8e4m3_of_f32(x);
    code[1] = tegroup_impl_f8e5m2_of_f32(x);
    code[2] = tegroup_impl_f4e2m1_of_f32(x);
    code[3] = tegroup_impl_f8e8m0_of_f32(x, TEGROUP_IMPL_UP);
    code[4] = tegroup_impl_f8e8m0_of_f32(x, TEGROUP_IMPL_DOWN);
}
static __global__ void encode_all(const float *x, int n, codes *out) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    encode(x[i], out[i].ours);
    out[i].toolkits[0] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E4M3);
    out[i].toolkits[1] = __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, __NV_E5M2);
    out[i].toolkits[2] = __nv_cvt_float_to_fp4(x[i], __NV_E2M1, cudaRoundNearest) & 0xf;
    out[i].toolkits[3] = __nv_cvt_float_to_e8m0(x[i], __NV_SATFINITE, cudaRoundPosInf);
    out[i].toolkits[4] = __nv_cvt_float_to_e8m0(x[i], __NV_SATFINITE, cudaRoundZero);
}

TEST(formats_gpu, conversions_equal_the_toolkits_and_the_hosts) {
    const int random = (int)scaled(1000000), n = 2 * 65536 + random;
    array<float> x((size_t)n);
    array<codes> out((size_t)n);
    rng r = rng_seed(30);
    int64_t wrong = 0, unlike_host = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t bits = i < 65536 ? (uint32_t)i << 16 : (uint32_t)rng_next(&r);
        if (i >= 65536 && i < 2 * 65536) x.host[(size_t)i] = tegroup_decode(TEGROUP_DTYPE_F16, (uint32_t)i);
        else memcpy(&x.host[(size_t)i], &bits, 4);
    }
    x.up();
    encode_all<<<(n + 255) / 256, 256>>>(x.device, n, out.device);
    MUST(cudaGetLastError());
    out.down();
    for (size_t i = 0; i < (size_t)n; i++) {
        uint8_t here[5];
        encode(x.host[i], here);
        const int bad = memcmp(out.host[i].ours, out.host[i].toolkits, 5) != 0;
        if (bad && wrong++ == 0)
            for (int k = 0; k < 5; k++) fprintf(stderr, "%a: toolkit %02x, ours %02x\n", (double)x.host[i], out.host[i].toolkits[k], out.host[i].ours[k]);
        unlike_host += memcmp(out.host[i].ours, here, 5) != 0;
    }
    ASSERT_EQ(wrong, 0);
    ASSERT_EQ(unlike_host, 0);
}

static __global__ void decode_all(tegroup_dtype dtype, uint8_t *packed, float *x, double *y, uint8_t *again) {
    const int i = (int)threadIdx.x;
    x[i] = tegroup_impl_load_f32(dtype, packed, i);
    y[i] = tegroup_impl_load_f64(dtype, packed, i);
    if (dtype != TEGROUP_DTYPE_F4E2M1) tegroup_impl_store_f32(dtype, again, i, x[i]);
    else if (i % 2 == 0) { /* two elements share a byte, and so a thread */
        tegroup_impl_store_f32(dtype, again, i, x[i]);
        tegroup_impl_store_f64(dtype, again, i + 1, tegroup_impl_load_f64(dtype, packed, i + 1));
    }
}

TEST(formats_gpu, every_code_is_decoded) {
    for (int t = 0; t < 4; t++) {
        const unsigned count = small_codes(small_types[t]);
        array<uint8_t> packed(256), again(256);
        array<float> x(256);
        array<double> y(256);
        for (unsigned code = 0; code < count; code++) tegroup_impl_store_code(small_types[t], packed.host.data(), code, code);
        packed.up();
        again.up();
        decode_all<<<1, count>>>(small_types[t], packed.device, x.device, y.device, again.device);
        MUST(cudaGetLastError());
        x.down();
        y.down();
        again.down();
        for (unsigned code = 0; code < count; code++) {
            const double want = small_value(small_types[t], code);
            const unsigned got = tegroup_impl_load_code(small_types[t], again.host.data(), code);
            ASSERT_TRUE(isnan(want) ? isnan(x.host[code]) && isnan(y.host[code]) : (double)x.host[code] == want && y.host[code] == want);
            ASSERT_TRUE(isnan(want) || isinf(want) ? got == small_code(small_types[t], want) : got == code);
        }
    }
}

struct block { tegroup_block_scale scale; uint32_t code; float global; };

static __host__ __device__ block quantised(const tegroup_scale_rule *rule, tegroup_dtype data, tegroup_dtype scale, float amax, float group, float x) {
    block b;
    b.global = tegroup_impl_scale_global(group);
    b.scale = tegroup_impl_scale_block(rule, data, scale, tegroup_impl_amax(rule, amax, x), b.global);
    b.code = tegroup_impl_scaled_code(data, &b.scale, x);
    return b;
}
static __global__ void quantise_all(tegroup_scale_rule rule, tegroup_dtype data, tegroup_dtype scale, const float *x, int n, block *out) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = quantised(&rule, data, scale, fabsf(x[i]), x[(i + 1) % n], x[(i + 2) % n]);
}

static int same_float(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, 4) == 0; }

TEST(formats_gpu, scale_rules_equal_the_hosts) {
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F4E2M1};
    const int n = (int)scaled(40000) + 8;
    array<float> x((size_t)n);
    array<block> out((size_t)n);
    rng r = rng_seed(31);
    for (int i = 0; i < n; i++) {
        const uint32_t bits = rng_chance(&r, 10) ? (uint32_t)rng_next(&r) & 0x807fffffu : (uint32_t)rng_next(&r);
        if (rng_chance(&r, 50)) x.host[(size_t)i] = (float)ldexp(rng_normal(&r), (int)rng_int(&r, -20, 20));
        else memcpy(&x.host[(size_t)i], &bits, 4);
    }
    x.host[0] = 0;
    x.host[3] = INFINITY;
    x.up();
    for (int preset = 1; preset < TEGROUP_SCALE_PRESET_COUNT; preset++)
        for (int t = 0; t < 3; t++) {
            const tegroup_scale_rule rule = tegroup_scale_rule_of((tegroup_scale_preset)preset);
            const tegroup_dtype scale = scale_type((tegroup_scale_preset)preset);
            if (preset == TEGROUP_SCALE_TE_NVFP4 && types[t] != TEGROUP_DTYPE_F4E2M1) continue;
            quantise_all<<<(n + 255) / 256, 256>>>(rule, types[t], scale, x.device, n, out.device);
            MUST(cudaGetLastError());
            out.down();
            for (int i = 0; i < n; i++) {
                const block want = quantised(&rule, types[t], scale, fabsf(x.host[(size_t)i]), x.host[(size_t)((i + 1) % n)], x.host[(size_t)((i + 2) % n)]);
                const block *got = &out.host[(size_t)i];
                const int same = same_float(want.scale.multiplier, got->scale.multiplier) && same_float(want.scale.stored, got->scale.stored)
                                 && same_float(want.global, got->global) && want.scale.divide == got->scale.divide && want.code == got->code;
                if (!same) fprintf(stderr, "preset %d, %s, %a\n", preset, tegroup_dtype_name(types[t]), (double)x.host[(size_t)i]);
                ASSERT_TRUE(same);
                ASSERT_TRUE(isnan(want.scale.stored) || want.scale.bits == got->scale.bits);
            }
        }
}

TEST_MAIN()
