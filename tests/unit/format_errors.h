/* What formats cost: a product of quantised operands beside that of the data they were made of, in FP64, and beside that of the values
 * which they hold, in FP64: what the format alone gives. */
#ifndef TEGROUP_TESTS_FORMAT_ERRORS_H
#define TEGROUP_TESTS_FORMAT_ERRORS_H

#include "support.h"

enum { ERRORS_M = 64, ERRORS_N = 64, ERRORS_K = 1024 };

/* How an operand is quantised; scaling NONE: BF16. */
typedef struct format_case {
    const char *name;
    tegroup_scaling scaling;
    tegroup_dtype dtype;
    tegroup_scale_preset preset;
} format_case;

/* Pairs a, b; and DeepGEMM's limit of their difference on normal data (QuantConfig.max_diff of its tests' generators); of E5M2, which it has not, a
 * little more than half of the sum of the squares of what the types round by, 5.3% and 2.65%. */
typedef struct format_pair {
    format_case a, b;
    double limit;
} format_pair;

#define E4M3(name, scaling, preset) {name, TEGROUP_SCALING_##scaling, TEGROUP_DTYPE_F8E4M3, TEGROUP_SCALE_##preset}
#define E5M2(name, scaling, preset) {name, TEGROUP_SCALING_##scaling, TEGROUP_DTYPE_F8E5M2, TEGROUP_SCALE_##preset}
#define E2M1(name, scaling, preset) {name, TEGROUP_SCALING_##scaling, TEGROUP_DTYPE_F4E2M1, TEGROUP_SCALE_##preset}
static const format_pair format_pairs[] = {
    {E4M3("FP8, a scale a tensor", TENSOR, TE_CURRENT), E4M3("the same", TENSOR, TE_CURRENT), 0.001},
    {E4M3("FP8, a scale a row", ROW, FBGEMM_ROW), E4M3("the same", ROW, FBGEMM_ROW), 0.001},
    {E4M3("FP8 in 1x128", BLOCK_1X128, DEEPGEMM), E4M3("FP8 in 128x128", BLOCK_128X128, DEEPGEMM), 0.001},
    {E4M3("FP8 in 1x128, powers of two", BLOCK_1X128, DEEPGEMM_UE8M0), E4M3("FP8 in 128x128, powers of two", BLOCK_128X128, DEEPGEMM_UE8M0), 0.001},
    {E4M3("MXFP8", MXFP8, TE_MXFP8), E4M3("MXFP8", MXFP8, TE_MXFP8), 0.001},
    {E4M3("MXFP8", MXFP8, TE_MXFP8), E2M1("MXFP4", MXFP4, TE_MXFP8), 0.01},
    {{"BF16", TEGROUP_SCALING_NONE, TEGROUP_DTYPE_BF16, TEGROUP_SCALE_PRESET_UNSET}, E2M1("MXFP4", MXFP4, TE_MXFP8), 0.01},
    {{"BF16", TEGROUP_SCALING_NONE, TEGROUP_DTYPE_BF16, TEGROUP_SCALE_PRESET_UNSET}, E2M1("NVFP4", NVFP4, TE_NVFP4), 0.01},
    {E2M1("MXFP4", MXFP4, TE_MXFP8), E2M1("MXFP4", MXFP4, TE_MXFP8), 0.02},
    {E2M1("NVFP4", NVFP4, TE_NVFP4), E2M1("NVFP4", NVFP4, TE_NVFP4), 0.02},
    {E5M2("FP8 of E5M2, a scale a tensor", TENSOR, TE_CURRENT), E4M3("FP8, a scale a tensor", TENSOR, TE_CURRENT), 0.002},
    {E4M3("FP8 in 1x128", BLOCK_1X128, DEEPGEMM), E4M3("FP8 in 32x32", BLOCK_32X32, DEEPGEMM), 0.001},
    {E4M3("MXFP8", MXFP8, TE_MXFP8), E4M3("MXFP8 in 32x32", MXFP8_32X32, TE_MXFP8), 0.001},
    {E2M1("NVFP4", NVFP4, TE_NVFP4), E2M1("NVFP4 in 16x16", NVFP4_16X16, TE_NVFP4), 0.02},
};
#undef E4M3
#undef E5M2
#undef E2M1
enum { FORMAT_PAIRS = sizeof format_pairs / sizeof *format_pairs };

/* Data: normal; log-normal, of either sign; normal with one value in 256 fifty times as large. */
static const char *const data_kinds[] = {"normal", "log-normal", "outliers"};
enum { DATA_KINDS = 3 };
SUPPORT double data_value(rng *r, int kind) {
    const double x = rng_normal(r);
    if (kind == 1) return rng_chance(r, 50) ? exp(x) : -exp(x);
    return kind == 2 && rng_int(r, 0, 255) == 0 ? 50 * x : x;
}

typedef struct format_error {
    double rms, format_rms; /* of the product's error and of the format's, over that of the product                     */
    double worst;           /* an element's distance from the product of the values in FP64, over its bound              */
    double difference;      /* DeepGEMM's 1 - 2 sum(x y) / sum(x x + y y) (calc_diff of its testing/numeric)             */
} format_error;

SUPPORT void must_be_ok(tegroup_status status, const tegroup_error *error) {
    if (status == TEGROUP_OK) return;
    fprintf(stderr, "%s: %s %s\n", tegroup_status_name(status), error->field, error->rule);
    abort();
}

/* A [rows, cols] matrix of F32 in a format, and the values that it then holds. */
SUPPORT tegroup_tensor in_format(const format_case *f, float *data, int64_t rows, int64_t cols, float *held) {
    tegroup_tensor source = tegroup_tensor_uniform(1, rows, cols, TEGROUP_DTYPE_F32, data), made = source;
    tegroup_layout layout;
    tegroup_error error;
    made.dtype = f->dtype;
    made.scaling = f->scaling;
    made.data = NULL;
    if (f->scaling == TEGROUP_SCALING_NONE) {
        made.data = guarded((size_t)(rows * cols) * 2);
        for (int64_t i = 0; i < rows * cols; i++) store(TEGROUP_DTYPE_BF16, made.data, i, (double)data[i]), held[i] = (float)load(TEGROUP_DTYPE_BF16, made.data, i);
        return made;
    }
    must_be_ok(tegroup_tensor_layout(&made, TEGROUP_COPIES_ROWWISE, &layout, &error), &error);
    made.data = guarded(layout.items[0].bytes);
    made.scale_inv = guarded(layout.items[1].bytes);
    if (f->preset == TEGROUP_SCALE_TE_NVFP4) made.global_scale_inv = (float *)guarded(4);
    if (f->preset == TEGROUP_SCALE_TE_NVFP4 || f->scaling == TEGROUP_SCALING_TENSOR) made.amax = (float *)guarded(4);
    tegroup_quantize_desc quantize;
    memset(&quantize, 0, sizeof quantize);
    quantize.struct_size = sizeof quantize;
    quantize.space = TEGROUP_SPACE_HOST;
    quantize.input = source;
    quantize.output = made;
    quantize.rule = tegroup_scale_rule_of(f->preset);
    must_be_ok(tegroup_quantize(&quantize, NULL, &error), &error);
    tegroup_dequantize_desc back;
    memset(&back, 0, sizeof back);
    back.struct_size = sizeof back;
    back.space = TEGROUP_SPACE_HOST;
    back.input = made;
    back.output = source;
    back.output.data = held;
    must_be_ok(tegroup_dequantize(&back, NULL, &error), &error);
    return made;
}

SUPPORT format_error format_error_of(const format_pair *pair, int kind, uint64_t seed) {
    void *mark = guards_mark();
    rng r = rng_seed(seed);
    float *a = (float *)guarded(ERRORS_M * ERRORS_K * 4), *b = (float *)guarded(ERRORS_N * ERRORS_K * 4), *d = (float *)guarded(ERRORS_M * ERRORS_N * 4);
    float *held_a = (float *)guarded(ERRORS_M * ERRORS_K * 4), *held_b = (float *)guarded(ERRORS_N * ERRORS_K * 4);
    format_error e = {0, 0, 0, 0};
    double size = 0, along = 0, both = 0;
    for (int i = 0; i < ERRORS_M * ERRORS_K; i++) a[i] = (float)data_value(&r, kind);
    for (int i = 0; i < ERRORS_N * ERRORS_K; i++) b[i] = (float)data_value(&r, kind);
    tegroup_gemm_desc product;
    tegroup_plan plan;
    tegroup_error error;
    memset(&product, 0, sizeof product);
    product.struct_size = sizeof product;
    product.op = TEGROUP_OP_FORWARD;
    product.space = TEGROUP_SPACE_HOST;
    product.a = in_format(&pair->a, a, ERRORS_M, ERRORS_K, held_a);
    product.b = in_format(&pair->b, b, ERRORS_N, ERRORS_K, held_b);
    product.d = tegroup_tensor_uniform(1, ERRORS_M, ERRORS_N, TEGROUP_DTYPE_F32, d);
    product.options.backend = TEGROUP_BACKEND_CPU;
    must_be_ok(tegroup_plan_make(&product, NULL, &plan, &error), &error);
    product.options.workspace = guarded(plan.workspace_bytes);
    product.options.workspace_bytes = plan.workspace_bytes;
    must_be_ok(tegroup_gemm(&plan, &product, NULL, &error), &error);
    for (int i = 0; i < ERRORS_M; i++)
        for (int j = 0; j < ERRORS_N; j++) {
            double want = 0, held = 0, magnitudes = 0;
            const double got = (double)d[i * ERRORS_N + j];
            for (int k = 0; k < ERRORS_K; k++) {
                const double term = (double)held_a[i * ERRORS_K + k] * (double)held_b[j * ERRORS_K + k];
                want += (double)a[i * ERRORS_K + k] * (double)b[j * ERRORS_K + k];
                held += term;
                magnitudes += fabs(term);
            }
            size += want * want;
            e.rms += (got - want) * (got - want);
            e.format_rms += (held - want) * (held - want);
            e.worst = fmax(e.worst, fabs(got - held) / ((ERRORS_K + 7) * 0x1p-24 * magnitudes)); /* of support.h: sums and three roundings */
            along += got * want;
            both += got * got + want * want;
        }
    e.rms = sqrt(e.rms / size);
    e.format_rms = sqrt(e.format_rms / size);
    e.difference = 1 - 2 * along / both;
    guards_release(mark);
    return e;
}

#endif
