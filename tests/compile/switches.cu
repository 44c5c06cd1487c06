/* What a build by nvcc says of the kernels that switches leave out. Needs no GPU: what is left out is refused before one is asked for,
 * and tegroup_explain answers for a Hopper that is not there. Prints nothing when all is well. */
#define TEGROUP_IMPLEMENTATION
#include "tegroup.h"

#if defined(TEGROUP_NO_F16)
static const bool F16 = false;
#else
static const bool F16 = true;
#endif
#if defined(TEGROUP_NO_BACKWARD)
static const bool BACKWARD = false;
#else
static const bool BACKWARD = true;
#endif
#if defined(TEGROUP_NO_FP8)
static const bool FP8 = false;
#else
static const bool FP8 = true;
#endif
#if defined(TEGROUP_NO_SM90)
static const bool SM90 = false;
#else
static const bool SM90 = true;
#endif
#if defined(TEGROUP_NO_PORTABLE)
static const bool PORTABLE = false;
#else
static const bool PORTABLE = true;
#endif

static int failed;
static void expect(int holds, const char *what, int first, int second) {
    if (!holds) failed = 1, printf("%s (%d, %d)\n", what, first, second);
}

static tegroup_tensor tensor(tegroup_dtype dtype, int64_t rows, int ragged) {
    const tegroup_sizes sizes = tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, TEGROUP_SPACE_DEVICE);
    return ragged ? tegroup_tensor_of(tegroup_shape_of(2, rows, 64, sizes), 64, dtype, NULL)
                  : tegroup_tensor_uniform(2, rows, 64, dtype, NULL);
}

/* A product of 2 groups, on a Hopper without cuBLASLt. built: 0 = what this build holds. */
static void product(tegroup_op op, tegroup_dtype dtype, uint32_t built) {
    const int whole = built != 0 || ((F16 || dtype != TEGROUP_DTYPE_F16) && (BACKWARD || op == TEGROUP_OP_FORWARD));
    const char *field = dtype == TEGROUP_DTYPE_F16 && !F16 ? "a.dtype" : "op";
    tegroup_gemm_desc desc;
    tegroup_target target;
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
    tegroup_plan plan;
    tegroup_error error;
    memset(&desc, 0, sizeof desc);
    memset(&target, 0, sizeof target);
    desc.struct_size = sizeof desc;
    desc.op = op;
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.a = tensor(dtype, 64, 1);
    desc.b = tensor(dtype, 64, op == TEGROUP_OP_WGRAD);
    desc.d = tensor(dtype, 64, op != TEGROUP_OP_WGRAD);
    target.struct_size = sizeof target;
    target.sm = 90;
    target.threads = 1;
    target.built = built;
    expect(tegroup_explain(&desc, &target, verdicts, &error) == TEGROUP_OK, "explain", op, dtype);
    for (int i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++) {
        const tegroup_verdict &v = verdicts[i];
        const int sm90 = v.backend == TEGROUP_BACKEND_SM90, portable = v.backend == TEGROUP_BACKEND_PORTABLE;
        if (!sm90 && !portable) continue;
        const char *wants = !built && !(sm90 ? SM90 : PORTABLE) ? "target.built" : whole ? NULL : field;
        expect(v.status == (wants ? TEGROUP_ERROR_NOT_BUILT : TEGROUP_OK), "status of a verdict", op, dtype);
        expect(wants ? v.field && strcmp(v.field, wants) == 0 : !v.field, "field of a verdict", op, dtype);
    }
    const tegroup_status status = tegroup_plan_make(&desc, &target, &plan, &error);
    expect(status == (built || (whole && (SM90 || PORTABLE)) ? TEGROUP_OK : TEGROUP_ERROR_NOT_BUILT), "plan", op, dtype);
}

/* One of FP8 rows and weights: a scale each, which PORTABLE has, or MXFP8, which SM90 decodes. */
static void quantised(tegroup_op op, uint32_t built, tegroup_backend backend, tegroup_scaling scaling) {
    const bool here = backend == TEGROUP_BACKEND_SM90 ? SM90 : PORTABLE;
    const char *wants = built != 0 ? NULL : !here ? "target.built" : !FP8 ? "a.scaling" : !BACKWARD && op != TEGROUP_OP_FORWARD ? "op" : NULL;
    tegroup_gemm_desc desc;
    tegroup_target target;
    tegroup_verdict verdicts[TEGROUP_BACKEND_COUNT - 1];
    tegroup_error error;
    memset(&desc, 0, sizeof desc);
    memset(&target, 0, sizeof target);
    desc.struct_size = sizeof desc;
    desc.op = op;
    desc.space = TEGROUP_SPACE_DEVICE;
    desc.a = tensor(TEGROUP_DTYPE_F8E4M3, 64, 1);
    desc.b = tensor(TEGROUP_DTYPE_F8E4M3, 64, op == TEGROUP_OP_WGRAD);
    desc.d = tensor(TEGROUP_DTYPE_BF16, 64, op != TEGROUP_OP_WGRAD);
    desc.a.scaling = desc.b.scaling = scaling;
    target.struct_size = sizeof target;
    target.sm = 90;
    target.threads = 1;
    target.built = built;
    expect(tegroup_explain(&desc, &target, verdicts, &error) == TEGROUP_OK, "explain of FP8", op, 0);
    for (int i = 0; i < TEGROUP_BACKEND_COUNT - 1; i++) {
        const tegroup_verdict &v = verdicts[i];
        if (v.backend != backend) continue;
        expect(v.status == (wants ? TEGROUP_ERROR_NOT_BUILT : TEGROUP_OK), "status of a verdict of FP8", op, (int)v.status);
        expect(wants ? v.field && strcmp(v.field, wants) == 0 : !v.field, v.field ? v.field : "no field", op, 0);
    }
}

alignas(TEGROUP_ALIGNMENT) static double memory[16][1024]; /* stands for device memory, which nobody gets to */
static tegroup_matrix matrix(int which, tegroup_dtype dtype, int64_t rows, int64_t cols) {
    return tegroup_matrix_of(memory[which], rows, cols, dtype);
}
template <typename DESC> static DESC described(void) {
    DESC desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.space = TEGROUP_SPACE_DEVICE;
    return desc;
}
static inline void left_out(tegroup_status status, const tegroup_error &error, int which) {
    expect(status == TEGROUP_ERROR_NOT_BUILT, "status", which, (int)status);
    expect(error.field && strcmp(error.field, "space") == 0, error.field ? error.field : "no field", which, (int)status);
}

static void activation(void) {
    const tegroup_dtype f32 = TEGROUP_DTYPE_F32;
    tegroup_activation_desc forward = described<tegroup_activation_desc>();
    tegroup_activation_backward_desc backward = described<tegroup_activation_backward_desc>();
    tegroup_error error;
    forward.activation = backward.activation = TEGROUP_ACTIVATION_RELU;
    forward.input = backward.input = matrix(0, f32, 2, 4);
    forward.output = matrix(1, f32, 2, 4);
    backward.grad_output = matrix(2, f32, 2, 4);
    backward.grad_input = matrix(3, f32, 2, 4);
#if defined(TEGROUP_NO_ACTIVATION)
    left_out(tegroup_activation_forward(&forward, NULL, &error), error, 1);
#endif
#if defined(TEGROUP_NO_ACTIVATION) || defined(TEGROUP_NO_BACKWARD)
    left_out(tegroup_activation_backward(&backward, NULL, &error), error, 2);
#endif
    forward.space = TEGROUP_SPACE_HOST; /* the CPU backend always has everything */
    expect(tegroup_activation_forward(&forward, NULL, &error) == TEGROUP_OK, "activation on the CPU", 0, 0);
    backward.space = TEGROUP_SPACE_HOST;
    expect(tegroup_activation_backward(&backward, NULL, &error) == TEGROUP_OK, "its gradient on the CPU", 0, 0);
}

static void moe(void) {
    const tegroup_dtype f32 = TEGROUP_DTYPE_F32, i64 = TEGROUP_DTYPE_I64;
    tegroup_count_desc count = described<tegroup_count_desc>();
    tegroup_export_desc exported = described<tegroup_export_desc>();
    tegroup_router_desc router = described<tegroup_router_desc>();
    tegroup_router_backward_desc router_backward = described<tegroup_router_backward_desc>();
    tegroup_permutation_desc permutation = described<tegroup_permutation_desc>();
    tegroup_permute_desc permute = described<tegroup_permute_desc>();
    tegroup_combine_desc combine = described<tegroup_combine_desc>();
    tegroup_combine_backward_desc combine_backward = described<tegroup_combine_backward_desc>();
    tegroup_error error;
    router.experts = router_backward.experts = 4;
    router.k = router_backward.k = permute.k = 2;
    router.logits = matrix(0, f32, 2, 4);
    router.probabilities = router_backward.probabilities = matrix(1, f32, 2, 4);
    router.weights = matrix(2, f32, 2, 2);
    router.indices = router_backward.indices = permutation.indices = matrix(3, TEGROUP_DTYPE_I32, 2, 2);
    router.counts = matrix(4, i64, 1, 4);
    count.groups = 4;
    count.labels = router.indices;
    count.counts = router.counts;
    router_backward.grad_weights = matrix(5, f32, 2, 2);
    router_backward.grad_logits = matrix(6, f32, 2, 4);
    permutation.shape = tensor(f32, 4, 1).shape;
    permutation.shape.snapshot = memory[7];
    exported.shape = permutation.shape;
    exported.counts = matrix(13, i64, 1, exported.shape.groups);
    permutation.row_of_slot = combine.row_of_slot = combine_backward.row_of_slot = matrix(8, i64, 2, 2);
    permutation.slot_of_row = permute.slot_of_row = matrix(9, i64, 1, 4);
    permute.tokens = combine.tokens = combine_backward.grad_tokens = matrix(10, f32, 2, 4);
    permute.permuted = combine.permuted = matrix(11, f32, 4, 4);
    combine_backward.grad_permuted = matrix(12, f32, 4, 4);
#if defined(TEGROUP_NO_MOE)
    left_out(tegroup_router(&router, NULL, &error), error, 3);
    left_out(tegroup_permutation_make(&permutation, NULL, &error), error, 4);
    left_out(tegroup_permute(&permute, NULL, &error), error, 5);
    left_out(tegroup_combine(&combine, NULL, &error), error, 6);
    left_out(tegroup_count(&count, NULL, &error), error, 9);
    left_out(tegroup_export(&exported, NULL, &error), error, 12);
    tegroup_skew_desc skew = described<tegroup_skew_desc>();
    skew.shape = exported.shape;
    left_out(tegroup_skew_report(&skew, NULL, &error), error, 13);
#endif
#if defined(TEGROUP_NO_MOE) || defined(TEGROUP_NO_BACKWARD)
    left_out(tegroup_router_backward(&router_backward, NULL, &error), error, 7);
    left_out(tegroup_combine_backward(&combine_backward, NULL, &error), error, 8);
#endif
    router.space = TEGROUP_SPACE_HOST;
    expect(tegroup_router(&router, NULL, &error) == TEGROUP_OK, "router on the CPU", 0, 0);
}

static void expert_parallel(void) {
    tegroup_ep_sizes_desc sizes = described<tegroup_ep_sizes_desc>();
    tegroup_ep_dispatch_desc dispatch = described<tegroup_ep_dispatch_desc>();
    tegroup_ep_combine_desc combine = described<tegroup_ep_combine_desc>();
    tegroup_error error;
    void *windows[1] = {memory[3]};
    sizes.ranks = 1;
    sizes.counts = matrix(0, TEGROUP_DTYPE_I64, 1, 4);
    sizes.send_rows = matrix(1, TEGROUP_DTYPE_I64, 1, 4);
    sizes.send_starts = matrix(2, TEGROUP_DTYPE_I64, 1, 4);
    sizes.receive_rows = matrix(4, TEGROUP_DTYPE_I64, 1, 4);
    dispatch.windows.ranks = 1;
    dispatch.windows.addresses = windows;
    dispatch.windows.bytes = sizeof memory[3];
    dispatch.row_of_slot = matrix(5, TEGROUP_DTYPE_I64, 2, 2);
    dispatch.tokens = matrix(6, TEGROUP_DTYPE_F32, 2, 4);
    dispatch.rows = matrix(3, TEGROUP_DTYPE_F32, 4, 4);
    combine.windows = dispatch.windows;
    combine.row_of_slot = dispatch.row_of_slot;
    combine.rows = dispatch.rows;
    combine.tokens = matrix(7, TEGROUP_DTYPE_F32, 2, 4);
#if defined(TEGROUP_NO_EP)
    left_out(tegroup_ep_sizes(&sizes, NULL, &error), error, 12);
    left_out(tegroup_ep_dispatch(&dispatch, NULL, &error), error, 13);
    left_out(tegroup_ep_combine(&combine, NULL, &error), error, 14);
    tegroup_ep_links_desc links = described<tegroup_ep_links_desc>();
    left_out(tegroup_ep_expand(&links, NULL, &error), error, 15);
    left_out(tegroup_ep_reduce(&links, NULL, &error), error, 16);
#endif
    sizes.space = TEGROUP_SPACE_HOST;
    expect(tegroup_ep_sizes(&sizes, NULL, &error) == TEGROUP_OK, "sizes of expert parallelism on the CPU", 0, 0);
}

static void fp8(void) {
    tegroup_quantize_desc quantize = described<tegroup_quantize_desc>();
    tegroup_dequantize_desc dequantize = described<tegroup_dequantize_desc>();
    tegroup_error error;
    quantize.input = dequantize.output = tegroup_tensor_uniform(1, 2, 4, TEGROUP_DTYPE_F32, memory[0]);
    quantize.output = tegroup_tensor_uniform(1, 2, 4, TEGROUP_DTYPE_F8E4M3, memory[1]);
    quantize.output.scaling = TEGROUP_SCALING_ROW;
    quantize.output.scale_inv = memory[2];
    quantize.rule = tegroup_scale_rule_of(TEGROUP_SCALE_FBGEMM_ROW);
    dequantize.input = quantize.output;
#if defined(TEGROUP_NO_FP8)
    left_out(tegroup_quantize(&quantize, NULL, &error), error, 10);
    left_out(tegroup_dequantize(&dequantize, NULL, &error), error, 11);
#endif
    quantize.space = dequantize.space = TEGROUP_SPACE_HOST;
    expect(tegroup_quantize(&quantize, NULL, &error) == TEGROUP_OK, "quantise on the CPU", 0, 0);
    expect(tegroup_dequantize(&dequantize, NULL, &error) == TEGROUP_OK, "dequantise on the CPU", 0, 0);
}

int main(void) {
    static const tegroup_op ops[] = {TEGROUP_OP_FORWARD, TEGROUP_OP_DGRAD, TEGROUP_OP_WGRAD};
    static const tegroup_dtype dtypes[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16};
    for (int op = 0; op < 3; op++)
        for (int dtype = 0; dtype < 2; dtype++) {
            product(ops[op], dtypes[dtype], 0);
            product(ops[op], dtypes[dtype], ~0u); /* another build, which holds everything */
        }
    for (int op = 0; op < 3; op++) {
        for (uint32_t built = 0; built <= 1; built++) {
            quantised(ops[op], 0u - built, TEGROUP_BACKEND_PORTABLE, TEGROUP_SCALING_TENSOR);
            quantised(ops[op], 0u - built, TEGROUP_BACKEND_SM90, TEGROUP_SCALING_MXFP8);
        }
    }
    activation();
    moe();
    expert_parallel();
    fp8();
    return failed;
}
