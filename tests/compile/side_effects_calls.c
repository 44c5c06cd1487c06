/* Calls every function of the library, once well and, where a status is returned, once badly, in a thread that has 128 KiB of
 * stack, and exits 1 if any of them did not do what it should: 2 if they did and something was allocated, freed or read from the
 * environment meanwhile. */
#define TEGROUP_EXTERN
#include "tegroup.h"
#include "world.h"
#include <pthread.h>
#include <stdio.h>

void side_effects_begin(void);
long side_effects_end(void);

enum { STACK_BYTES = 128 << 10 };

static world         w;
static int           wrong;
static long          counted;
static tegroup_error error;

/* The MLP's three ops as a chain. */
static tegroup_chain_op       ops[3];
static tegroup_chain_argument arguments[3];
static tegroup_chain_desc     chain;
static tegroup_chain_plan     chain_plan;
static tegroup_chain_verdict  verdicts[TEGROUP_CHAIN_MAX_OPS];

static void chain_make(void) {
    for (int i = 0; i < 3; i++) {
        ops[i].kind = i == 1 ? TEGROUP_CHAIN_ACTIVATION : TEGROUP_CHAIN_LINEAR;
        arguments[i].op = i;
    }
    ops[0].weights = w.mlp.fc1;
    ops[1].activation = w.mlp.activation;
    ops[2].weights = w.mlp.fc2;
    arguments[0].out = w.mlp.preactivation;
    arguments[1].out = w.mlp.activated;
    arguments[2].out = w.mlp.out;
    chain.struct_size = sizeof chain;
    chain.space = TEGROUP_SPACE_HOST;
    chain.ops = ops;
    chain.op_count = 3;
    chain.arguments = arguments;
    chain.argument_count = 3;
    chain.input = w.mlp.input;
    chain.grad_output = w.mlp.grad_output;
    chain.options.workspace = w.workspace;
    chain.options.workspace_bytes = sizeof w.workspace;
    chain.options.threads = 1;
}

static void must(int holds, int line) {
    if (!holds && wrong == 0) wrong = line;
}
#define MUST(holds) must((holds) != 0, __LINE__)
#define BOTH(good, bad) (MUST((good) == TEGROUP_OK), MUST((bad) != TEGROUP_OK), MUST(tegroup_error_text(&error, text, sizeof text) > 0))

static void *call_all(void *unused) {
    static char text[4096];
    int32_t     count;

    side_effects_begin();
    MUST(tegroup_version() == TEGROUP_VERSION);
    MUST(tegroup_status_name(TEGROUP_OK) && tegroup_status_string(TEGROUP_OK) && tegroup_dtype_name(TEGROUP_DTYPE_BF16));
    MUST(tegroup_op_name(TEGROUP_OP_WGRAD) && tegroup_backend_name(TEGROUP_BACKEND_CPU) && tegroup_dtype_bits(TEGROUP_DTYPE_BF16) == 16);
    MUST(tegroup_scaling_info(TEGROUP_SCALING_MXFP8));
    MUST(tegroup_backend_rules(&count) && count > 0);
    MUST(tegroup_quirks(&count) && count > 0);
    BOTH(tegroup_scale_shape(TEGROUP_SCALING_MXFP8, 0, 200, 300, &w.extent, &error), tegroup_scale_shape(TEGROUP_SCALING_MXFP8, 0, -1, 1, &w.extent, &error));
    MUST(tegroup_scale_index(TEGROUP_SCALING_MXFP8, &w.extent, 1, 1) > 0);
    const tegroup_scale_rule rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_NVFP4);
    tegroup_block_scale block;
    const float amax = tegroup_scale_amax(&rule, 1, 2), global = tegroup_scale_global(amax); /* 2 and 448 * 6 / 2 */
    MUST(amax == 2 && global == 1344);
    BOTH(tegroup_scale_block(&rule, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3, amax, global, &block, &error), tegroup_scale_block(NULL, TEGROUP_DTYPE_F4E2M1, TEGROUP_DTYPE_F8E4M3, amax, global, &block, &error));
    MUST(tegroup_scaled_code(TEGROUP_DTYPE_F4E2M1, &block, amax) == 7 && tegroup_encode(TEGROUP_DTYPE_F8E4M3, 1) == 0x38 && tegroup_decode(TEGROUP_DTYPE_F8E4M3, 0x38) == 1);
    BOTH(tegroup_snapshot_layout(&w.prepare.shape, &w.layout, &error), tegroup_snapshot_layout(NULL, &w.layout, &error));
    MUST(tegroup_layout_text(&w.layout, text, sizeof text) > 0);
    BOTH(tegroup_prepare(&w.prepare, NULL, &error), tegroup_prepare(NULL, NULL, &error));
    BOTH(tegroup_prepare(&w.irregular, NULL, &error), tegroup_prepare(NULL, NULL, &error));
    const tegroup_sizes sizes = tegroup_sizes_of(w.counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    tegroup_shape shape = tegroup_shape_of(EXPERTS, ROWS, K, sizes);
    BOTH(tegroup_shape_prepare(&shape, w.snapshot_out, sizeof w.snapshot_out, NULL, &error),
         tegroup_shape_prepare(NULL, NULL, 0, NULL, &error));
    BOTH(tegroup_tiles_of(TEGROUP_OP_FORWARD, &shape, 0, N, 64, 64, &w.tiles, &error),
         tegroup_tiles_of(TEGROUP_OP_FORWARD, &shape, 0, N, 0, 64, &w.tiles, &error));
    MUST(tegroup_tensor_of(shape, N, TEGROUP_DTYPE_F32, w.y).data == w.y);
    MUST(tegroup_tensor_uniform(EXPERTS, N, K, TEGROUP_DTYPE_F32, w.weight).data == w.weight);
    MUST(tegroup_matrix_of(w.tokens, TOKENS, N, TEGROUP_DTYPE_F32).data == w.tokens);
    MUST(tegroup_snapshot_read(w.snapshot).header);
    BOTH(tegroup_gemm_problem(&w.wgrad, &w.problem, &error), tegroup_gemm_problem(NULL, &w.problem, &error));
    BOTH(tegroup_explain(&w.dgrad, &w.target, w.verdicts, &error), tegroup_explain(NULL, NULL, w.verdicts, &error));
    MUST(tegroup_verdict_text(&w.verdicts[0], text, sizeof text) > 0);
    BOTH(tegroup_plan_make(&w.forward, NULL, &w.plan, &error), tegroup_plan_make(NULL, NULL, &w.plan, &error));
    BOTH(tegroup_plan_layout(&w.plan, &w.layout, &error), tegroup_plan_layout(NULL, &w.layout, &error));
    BOTH(tegroup_gemm_check(&w.forward_plan, &w.forward, &error), tegroup_gemm_check(&w.forward_plan, NULL, &error));
    BOTH(tegroup_gemm(&w.forward_plan, &w.forward, NULL, &error), tegroup_gemm(&w.forward_plan, &w.dgrad, NULL, &error));
    BOTH(tegroup_gemm(&w.dgrad_plan, &w.dgrad, NULL, &error), tegroup_gemm(&w.dgrad_plan, &w.wgrad, NULL, &error));
    BOTH(tegroup_gemm(&w.wgrad_plan, &w.wgrad, NULL, &error), tegroup_gemm(&w.wgrad_plan, &w.forward, NULL, &error));
    w.gemm = w.dgrad;
    w.gemm.a.shape.snapshot = w.gemm.d.shape.snapshot = NULL;
    BOTH(tegroup_gemm_once_layout(&w.gemm, &w.layout, &error), tegroup_gemm_once_layout(NULL, &w.layout, &error));
    BOTH(tegroup_gemm_once(&w.gemm, NULL, &error), tegroup_gemm_once(&w.dgrad, NULL, &error));
    BOTH(tegroup_plan_tune(&w.forward_plan, &w.tune, NULL, &error), tegroup_plan_tune(&w.forward_plan, NULL, NULL, &error));
    BOTH(tegroup_plan_save(&w.forward_plan, w.saved, sizeof w.saved, &error), tegroup_plan_save(&w.forward_plan, w.saved, 1, &error));
    BOTH(tegroup_plan_load(&w.forward, w.saved, sizeof w.saved, &w.plan, &error), tegroup_plan_load(&w.dgrad, w.saved, sizeof w.saved, &w.plan, &error));
    BOTH(tegroup_linear_plan_make(&w.linear, NULL, &w.linear_plan_out, &error), tegroup_linear_plan_make(NULL, NULL, &w.linear_plan_out, &error));
    BOTH(tegroup_linear_gemm(&w.linear, TEGROUP_OP_DGRAD, &w.gemm, &error), tegroup_linear_gemm(&w.linear, TEGROUP_OP_UNSET, &w.gemm, &error));
    BOTH(tegroup_linear_forward(&w.linear_plan, &w.linear, NULL, &error), tegroup_linear_forward(NULL, &w.linear, NULL, &error));
    BOTH(tegroup_linear_dgrad(&w.linear_plan, &w.linear, NULL, &error), tegroup_linear_dgrad(&w.linear_plan, NULL, NULL, &error));
    BOTH(tegroup_linear_wgrad(&w.linear_plan, &w.linear, NULL, &error), tegroup_linear_wgrad(&w.linear_plan, NULL, NULL, &error));
    BOTH(tegroup_mlp_plan_make(&w.mlp, NULL, &w.mlp_plan_out, &error), tegroup_mlp_plan_make(NULL, NULL, &w.mlp_plan_out, &error));
    BOTH(tegroup_mlp_layout(&w.mlp_plan, TEGROUP_MLP_WORKSPACE, &w.layout, &error),
         tegroup_mlp_layout(&w.mlp_plan, TEGROUP_MLP_MEMORY_UNSET, &w.layout, &error));
    BOTH(tegroup_mlp_gemm(&w.mlp_plan, &w.mlp, TEGROUP_MLP_FC1, TEGROUP_OP_DGRAD, &w.gemm, &error), tegroup_mlp_gemm(NULL, &w.mlp, TEGROUP_MLP_FC1, TEGROUP_OP_UNSET, &w.gemm, &error));
    BOTH(tegroup_mlp_forward(&w.mlp_plan, &w.mlp, NULL, &error), tegroup_mlp_forward(NULL, &w.mlp, NULL, &error));
    BOTH(tegroup_mlp_dgrad(&w.mlp_plan, &w.mlp, NULL, &error), tegroup_mlp_dgrad(&w.mlp_plan, NULL, NULL, &error));
    BOTH(tegroup_mlp_wgrad(&w.mlp_plan, &w.mlp, NULL, &error), tegroup_mlp_wgrad(&w.mlp_plan, NULL, NULL, &error));
    BOTH(tegroup_moe_plan_make(&w.moe, NULL, &w.moe_plan_out, &error), tegroup_moe_plan_make(NULL, NULL, &w.moe_plan_out, &error));
    BOTH(tegroup_moe_layout(&w.moe_plan, TEGROUP_MOE_SAVED_BY_FORWARD, &w.layout, &error),
         tegroup_moe_layout(&w.moe_plan, TEGROUP_MOE_MEMORY_UNSET, &w.layout, &error));
    BOTH(tegroup_moe_forward(&w.moe_plan, &w.moe, NULL, &error), tegroup_moe_forward(NULL, &w.moe, NULL, &error));
    BOTH(tegroup_moe_dgrad(&w.moe_plan, &w.moe, NULL, &error), tegroup_moe_dgrad(&w.moe_plan, NULL, NULL, &error));
    BOTH(tegroup_moe_wgrad(&w.moe_plan, &w.moe, NULL, &error), tegroup_moe_wgrad(&w.moe_plan, NULL, NULL, &error));
    BOTH(tegroup_chain_plan_make(&chain, NULL, &chain_plan, &error), tegroup_chain_plan_make(NULL, NULL, &chain_plan, &error));
    BOTH(tegroup_chain_layout(&chain_plan, TEGROUP_CHAIN_SAVED, &w.layout, &error),
         tegroup_chain_layout(&chain_plan, TEGROUP_CHAIN_MEMORY_UNSET, &w.layout, &error));
    BOTH(tegroup_chain_explain(&chain, verdicts, &error), tegroup_chain_explain(&chain, NULL, &error));
    BOTH(tegroup_chain_forward(&chain_plan, &chain, NULL, &error), tegroup_chain_forward(NULL, &chain, NULL, &error));
    BOTH(tegroup_chain_backward(&chain_plan, &chain, NULL, &error), tegroup_chain_backward(&chain_plan, NULL, NULL, &error));
    BOTH(tegroup_activation_forward(&w.activation, NULL, &error), tegroup_activation_forward(NULL, NULL, &error));
    BOTH(tegroup_activation_backward(&w.activation_backward, NULL, &error), tegroup_activation_backward(NULL, NULL, &error));
    BOTH(tegroup_count(&w.count, NULL, &error), tegroup_count(NULL, NULL, &error));
    BOTH(tegroup_count(&w.count_slots, NULL, &error), tegroup_count(NULL, NULL, &error));
    BOTH(tegroup_export(&w.exports, NULL, &error), tegroup_export(NULL, NULL, &error));
    BOTH(tegroup_skew_report(&w.skew, NULL, &error), tegroup_skew_report(NULL, NULL, &error));
    MUST(tegroup_skew_text(w.skew_out, text, sizeof text) > 0);
    BOTH(tegroup_router(&w.router, NULL, &error), tegroup_router(NULL, NULL, &error));
    BOTH(tegroup_router_backward(&w.router_backward, NULL, &error), tegroup_router_backward(NULL, NULL, &error));
    BOTH(tegroup_permutation_make(&w.permutation, NULL, &error), tegroup_permutation_make(NULL, NULL, &error));
    tegroup_permutation_desc prepares = w.permutation;
    static float row_weights[1024];
    MUST(prepares.shape.rows <= 1024);
    prepares.shape.snapshot = NULL;
    prepares.snapshot = w.snapshot_out, prepares.snapshot_bytes = sizeof w.snapshot_out;
    prepares.slot_weights = tegroup_matrix_of(w.weights_grad, TOKENS, CHOICES, TEGROUP_DTYPE_F32);
    prepares.row_weights = tegroup_matrix_of(row_weights, 1, prepares.shape.rows, TEGROUP_DTYPE_F32);
    BOTH(tegroup_permutation_make(&prepares, NULL, &error), tegroup_permutation_make(NULL, NULL, &error));
    w.router.scheme.score = w.router_backward.scheme.score = TEGROUP_SCORE_SIGMOID; /* a scheme has arrays of its own on the stack */
    w.router_backward.balance_coefficient = 0;
    BOTH(tegroup_router(&w.router, NULL, &error), tegroup_router(NULL, NULL, &error));
    BOTH(tegroup_router_backward(&w.router_backward, NULL, &error), tegroup_router_backward(NULL, NULL, &error));
    w.permutation.weights = tegroup_matrix_of(w.weights_grad, TOKENS, CHOICES, TEGROUP_DTYPE_F32);
    BOTH(tegroup_permutation_make(&w.permutation, NULL, &error), tegroup_permutation_make(NULL, NULL, &error));
    BOTH(tegroup_permute(&w.permute, NULL, &error), tegroup_permute(NULL, NULL, &error));
    BOTH(tegroup_combine(&w.combine, NULL, &error), tegroup_combine(NULL, NULL, &error));
    BOTH(tegroup_combine_backward(&w.combine_backward, NULL, &error), tegroup_combine_backward(NULL, NULL, &error));
    BOTH(tegroup_ep_sizes(&w.ep_sizes, NULL, &error), tegroup_ep_sizes(NULL, NULL, &error));
    BOTH(tegroup_ep_dispatch(&w.ep_dispatch, NULL, &error), tegroup_ep_dispatch(NULL, NULL, &error));
    BOTH(tegroup_ep_expand(&w.ep_expand, NULL, &error), tegroup_ep_expand(NULL, NULL, &error));
    BOTH(tegroup_ep_reduce(&w.ep_reduce, NULL, &error), tegroup_ep_reduce(NULL, NULL, &error));
    BOTH(tegroup_ep_combine(&w.ep_combine, NULL, &error), tegroup_ep_combine(NULL, NULL, &error));
    BOTH(tegroup_validate(&w.validate, NULL, &error), tegroup_validate(NULL, NULL, &error));
    BOTH(tegroup_scale_convert(&w.scale_convert, NULL, &error), tegroup_scale_convert(NULL, NULL, &error));
    BOTH(tegroup_code_convert(&w.code_convert, NULL, &error), tegroup_code_convert(NULL, NULL, &error));
    BOTH(tegroup_quantize(&w.quantize, NULL, &error), tegroup_quantize(NULL, NULL, &error));
    BOTH(tegroup_dequantize(&w.dequantize, NULL, &error), tegroup_dequantize(NULL, NULL, &error));
    BOTH(tegroup_tensor_layout(&w.scale_convert.from, TEGROUP_COPIES_BOTH, &w.layout, &error), tegroup_tensor_layout(NULL, TEGROUP_COPIES_BOTH, &w.layout, &error));
    BOTH(tegroup_router_layout(&w.router, &w.layout, &error), tegroup_router_layout(NULL, &w.layout, &error));
    BOTH(tegroup_permutation_layout(&w.permutation, &w.layout, &error), tegroup_permutation_layout(NULL, &w.layout, &error));
    counted = side_effects_end();
    return unused;
}

int main(void) {
    pthread_attr_t small;
    pthread_t      thread;

    if (world_make(&w, &error) != TEGROUP_OK) return 1;
    chain_make();
    if (pthread_attr_init(&small) || pthread_attr_setstacksize(&small, STACK_BYTES) || pthread_create(&thread, &small, call_all, NULL)
        || pthread_join(thread, NULL))
        return 1;
    if (wrong != 0) fprintf(stderr, "line %d does not hold: %s\n", wrong, error.field == NULL ? "" : error.field);
    else if (counted != 0) fprintf(stderr, "%ld calls of the allocator or of the environment\n", counted);
    return wrong != 0 ? 1 : counted != 0 ? 2 : 0;
}
