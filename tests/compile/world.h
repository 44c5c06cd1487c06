/* A good call of every function: descriptors, random inputs, and outputs full of poison, all in one struct, so that "nothing
 * was written" is one memcmp. A test spoils one thing and calls. Include after tegroup.h. */
#ifndef TEGROUP_TESTS_WORLD_H
#define TEGROUP_TESTS_WORLD_H

#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 4, TOKENS = 9, CHOICES = 2, SLOTS = TOKENS * CHOICES, ROWS = 24, N = 6, K = 5 };

#define MEMORY(type, name, count) __attribute__((aligned(TEGROUP_ALIGNMENT))) type name[count]

typedef struct world {
    tegroup_prepare_desc             prepare;    /* regular: rows alone differ                */
    tegroup_prepare_desc             irregular;  /* columns differ too, and offsets are given */
    tegroup_gemm_desc                forward;    /* with c, bias, row_scale, alpha and beta   */
    tegroup_gemm_desc                dgrad;      /* with nothing                              */
    tegroup_gemm_desc                wgrad;      /* with a bias gradient, accumulating        */
    tegroup_plan                     forward_plan, dgrad_plan, wgrad_plan;
    tegroup_linear_desc              linear;     /* with everything                           */
    tegroup_linear_plan              linear_plan;
    tegroup_mlp_desc                 mlp;        /* with everything                           */
    tegroup_mlp_plan                 mlp_plan;
    tegroup_moe_desc                 moe;        /* the mlp between tokens and logits         */
    tegroup_moe_plan                 moe_plan;
    tegroup_tune_desc                tune;       /* of forward                                */
    tegroup_cublaslt_functions       functions;  /* of no library                             */
    tegroup_target                   target;     /* a machine that is not here                */
    tegroup_activation_desc          activation;
    tegroup_activation_backward_desc activation_backward;
    tegroup_count_desc               count;
    tegroup_count_desc               count_slots; /* of rows in blocks, which have slots      */
    tegroup_export_desc              exports;     /* everything                               */
    tegroup_skew_desc                skew;
    tegroup_router_desc              router;
    tegroup_router_backward_desc     router_backward;
    tegroup_permutation_desc         permutation;
    tegroup_permute_desc             permute;
    tegroup_combine_desc             combine;
    tegroup_combine_backward_desc    combine_backward;
    tegroup_ep_sizes_desc            ep_sizes;      /* of two ranks, of which this is the second */
    tegroup_ep_dispatch_desc         ep_dispatch;
    tegroup_ep_links_desc            ep_expand, ep_reduce; /* of the routed rows: each names itself */
    tegroup_ep_combine_desc          ep_combine;
    void                            *ep_windows[2];
    tegroup_validate_desc            validate;
    tegroup_scale_convert_desc       scale_convert; /* swizzled bytes from plain ones */
    tegroup_code_convert_desc        code_convert;
    tegroup_quantize_desc            quantize;      /* in both copies, an activation's gradient in passing */
    tegroup_dequantize_desc          dequantize;

    /* in */
    MEMORY(int64_t, counts, EXPERTS);
    MEMORY(int64_t, starts, EXPERTS);
    MEMORY(int64_t, col_counts, EXPERTS);
    MEMORY(int64_t, offsets, EXPERTS);
    MEMORY(unsigned char, snapshot, 8192);
    MEMORY(int32_t, indices, SLOTS);
    MEMORY(int64_t, row_of_slot, SLOTS);
    MEMORY(int64_t, slot_of_row, ROWS);
    MEMORY(float, x, ROWS * K);
    MEMORY(float, y_grad, ROWS * N);
    MEMORY(float, weight, EXPERTS * N * K);
    MEMORY(float, old, ROWS * N);
    MEMORY(float, bias, EXPERTS * N);
    MEMORY(float, row_scale, ROWS);
    MEMORY(float, alpha, EXPERTS);
    MEMORY(float, beta, EXPERTS);
    MEMORY(float, gate_up, ROWS * 2 * N);
    MEMORY(float, fc1_weight, EXPERTS * 2 * N * K);
    MEMORY(float, fc1_bias, EXPERTS * 2 * N);
    MEMORY(float, fc2_weight, EXPERTS * K * N);
    MEMORY(float, fc2_bias, EXPERTS * K);
    MEMORY(float, mlp_grad_output, ROWS * K);
    MEMORY(float, preactivation, ROWS * 2 * N);
    MEMORY(float, activated, ROWS * N);
    MEMORY(float, grad_preactivation, ROWS * 2 * N);
    MEMORY(float, logits, TOKENS * EXPERTS);
    MEMORY(float, probabilities, TOKENS * EXPERTS);
    MEMORY(float, tokens, TOKENS * N);
    MEMORY(float, weights, SLOTS);
    MEMORY(float, weights_grad, SLOTS);

    MEMORY(unsigned char, saved, TEGROUP_SAVED_PLAN_BYTES); /* forward_plan */

    /* out, and garbage */
    MEMORY(unsigned char, snapshot_out, 8192);
    MEMORY(unsigned char, workspace, 1 << 20);
    MEMORY(unsigned char, moe_saved_by_forward, 1 << 17);
    MEMORY(unsigned char, moe_saved_by_dgrad, 1 << 17);
    MEMORY(float, y, ROWS * N);
    MEMORY(float, x_grad, ROWS * K);
    MEMORY(float, weight_grad, EXPERTS * N * K);
    MEMORY(float, bias_grad, EXPERTS * N);
    MEMORY(float, row_scale_grad, ROWS);
    MEMORY(float, gate_up_grad, ROWS * 2 * N);
    MEMORY(float, mlp_out, ROWS * K);
    MEMORY(float, fc1_weight_grad, EXPERTS * 2 * N * K);
    MEMORY(float, fc1_bias_grad, EXPERTS * 2 * N);
    MEMORY(float, fc2_weight_grad, EXPERTS * K * N);
    MEMORY(float, fc2_bias_grad, EXPERTS * K);
    MEMORY(float, logits_grad, TOKENS * EXPERTS);
    MEMORY(float, probabilities_out, TOKENS * EXPERTS);
    MEMORY(float, weights_out, SLOTS);
    MEMORY(int32_t, indices_out, SLOTS);
    MEMORY(int64_t, counts_out, EXPERTS);
    MEMORY(int64_t, offsets_out, EXPERTS + 1);
    MEMORY(int64_t, ends_out, EXPERTS);
    MEMORY(int64_t, labels_out, ROWS / 2);
    MEMORY(int64_t, source_rows_out, ROWS);
    MEMORY(tegroup_skew, skew_out, 1);
    MEMORY(double, loss_out, 1);
    MEMORY(int64_t, row_of_slot_out, SLOTS);
    MEMORY(int64_t, slot_of_row_out, ROWS);
    MEMORY(float, rows_out, ROWS * N);
    MEMORY(float, tokens_out, TOKENS * N);
    MEMORY(int64_t, ep_send_rows, EXPERTS);
    MEMORY(int64_t, ep_send_starts, EXPERTS);
    MEMORY(int64_t, ep_receive_rows, EXPERTS / 2);
    MEMORY(tegroup_ep_report, ep_report, 1);
    MEMORY(float, ep_window, 2 * 192); /* two of 768 bytes */
    MEMORY(int32_t, ep_links, ROWS);
    MEMORY(float, ep_rows, ROWS * N);
    MEMORY(float, ep_row_scales, ROWS);
    MEMORY(unsigned char, quantized, ROWS * 2 * N);
    MEMORY(unsigned char, quantized_columnwise, ROWS * 2 * N);
    MEMORY(float, quantized_scales, 64);
    MEMORY(float, quantized_columnwise_scales, 64);
    MEMORY(float, amax_out, EXPERTS);
    MEMORY(tegroup_validation, validation, 1);
    tegroup_layout       layout;
    tegroup_tiles        tiles;
    tegroup_scale_extent extent;
    tegroup_problem      problem;
    tegroup_plan         plan;
    tegroup_linear_plan  linear_plan_out;
    tegroup_mlp_plan     mlp_plan_out;
    tegroup_moe_plan     moe_plan_out;
    tegroup_gemm_desc    gemm;
    tegroup_verdict      verdicts[TEGROUP_BACKEND_COUNT - 1];
} world;

#define RANDOM(array) world_random(array, (int)(sizeof(array) / sizeof(float)))

static void world_random(float *values, int count) {
    for (int i = 0; i < count; i++) values[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

/* Tensors of F32. */
static tegroup_tensor world_tensor(void *data, tegroup_shape shape, int64_t cols) {
    return tegroup_tensor_of(shape, cols, TEGROUP_DTYPE_F32, data);
}

static tegroup_tensor world_uniform(void *data, int64_t rows, int64_t cols) {
    return tegroup_tensor_uniform(EXPERTS, rows, cols, TEGROUP_DTYPE_F32, data);
}

static tegroup_scalars world_scalars(const float *data) {
    tegroup_scalars scalars = {data, TEGROUP_DTYPE_F32, TEGROUP_SPACE_HOST, 1};
    return scalars;
}

static tegroup_gemm_desc world_gemm(world *w, tegroup_op op, tegroup_tensor a, tegroup_tensor b, tegroup_tensor d) {
    tegroup_gemm_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.op = op;
    desc.space = TEGROUP_SPACE_HOST;
    desc.a = a;
    desc.b = b;
    desc.d = d;
    desc.options.threads = 1;
    desc.options.workspace = w->workspace;
    desc.options.workspace_bytes = sizeof w->workspace;
    return desc;
}

/* TEGROUP_OK, or what the library said while it was being set up. */
static tegroup_status world_make(world *w, tegroup_error *error) {
    tegroup_shape  routed;
    tegroup_status status;

    for (size_t i = 0; i < sizeof *w; i++) ((unsigned char *)w)[i] = (unsigned char)(i % 2 ? 0xFF : 0xF1 + i % 13);

    /* A routing: each expert has at least one row, some rows have no slot, one slot is dropped. */
    memset(w->counts, 0, sizeof w->counts);
    for (int s = 0; s < SLOTS; s++) {
        int token = s / CHOICES;
        w->indices[s] = s % CHOICES == 0 ? token % EXPERTS : (token + 1 + rand() % (EXPERTS - 1)) % EXPERTS;
        w->counts[w->indices[s]]++;
    }
    memset(w->slot_of_row, 0xFF, sizeof w->slot_of_row);
    for (int64_t e = 0, row = 0; e < EXPERTS; e++) {
        w->starts[e] = row;
        w->col_counts[e] = rand() % (K + 1);
        w->offsets[e] = row * K;
        for (int64_t s = 0; s < SLOTS; s++)
            if (w->indices[s] == e) { w->row_of_slot[s] = row; w->slot_of_row[row++] = s; }
    }
    w->slot_of_row[w->row_of_slot[SLOTS - 1]] = -1;
    w->row_of_slot[SLOTS - 1] = -1;

    RANDOM(w->x);
    RANDOM(w->y_grad);
    RANDOM(w->weight);
    RANDOM(w->old);
    RANDOM(w->bias);
    RANDOM(w->row_scale);
    RANDOM(w->alpha);
    RANDOM(w->beta);
    RANDOM(w->gate_up);
    RANDOM(w->logits);
    RANDOM(w->weights);
    RANDOM(w->weights_grad);
    RANDOM(w->tokens);
    for (int t = 0; t < TOKENS; t++) {
        float sum = 0;
        for (int e = 0; e < EXPERTS; e++) sum += w->probabilities[t * EXPERTS + e] = 1.0f + (float)(rand() % 9);
        for (int e = 0; e < EXPERTS; e++) w->probabilities[t * EXPERTS + e] /= sum;
    }

    routed = tegroup_shape_of(EXPERTS, ROWS, K, tegroup_sizes_of(w->counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    memset(&w->prepare, 0, sizeof w->prepare);
    w->prepare.struct_size = sizeof w->prepare;
    w->prepare.shape = routed;
    w->prepare.space = TEGROUP_SPACE_HOST;
    w->prepare.snapshot = w->snapshot;
    w->prepare.snapshot_bytes = sizeof w->snapshot;
    status = tegroup_prepare(&w->prepare, NULL, error);
    if (status != TEGROUP_OK) return status;
    w->prepare.snapshot = w->snapshot_out;
    routed.snapshot = w->snapshot;
    w->irregular = w->prepare;
    w->irregular.shape.col_sizes = tegroup_sizes_of(w->col_counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST);
    w->irregular.shape.offsets = w->offsets;
    w->irregular.shape.elements = ROWS * K;

    w->forward = world_gemm(w, TEGROUP_OP_FORWARD, world_tensor(w->x, routed, K), world_uniform(w->weight, N, K),
                            world_tensor(w->y, routed, N));
    w->forward.c = world_tensor(w->old, routed, N);
    w->forward.bias = world_uniform(w->bias, 1, N);
    w->forward.row_scale = w->row_scale;
    w->forward.row_scale_dtype = TEGROUP_DTYPE_F32;
    w->forward.alpha = world_scalars(w->alpha);
    w->forward.beta = world_scalars(w->beta);
    w->dgrad = world_gemm(w, TEGROUP_OP_DGRAD, world_tensor(w->y_grad, routed, N), world_uniform(w->weight, N, K),
                          world_tensor(w->x_grad, routed, K));
    w->wgrad = world_gemm(w, TEGROUP_OP_WGRAD, world_tensor(w->y_grad, routed, N), world_tensor(w->x, routed, K),
                          world_uniform(w->weight_grad, N, K));
    w->wgrad.bias = world_uniform(w->bias_grad, 1, N);
    w->wgrad.accumulate = 1;
    status = tegroup_plan_make(&w->forward, NULL, &w->forward_plan, error);
    if (status == TEGROUP_OK) status = tegroup_plan_make(&w->dgrad, NULL, &w->dgrad_plan, error);
    if (status == TEGROUP_OK) status = tegroup_plan_make(&w->wgrad, NULL, &w->wgrad_plan, error);
    if (status == TEGROUP_OK) status = tegroup_plan_save(&w->forward_plan, w->saved, sizeof w->saved, error);
    memset(&w->tune, 0, sizeof w->tune);
    memset(&w->functions, 0, sizeof w->functions);
    w->tune.struct_size = sizeof w->tune;
    w->tune.gemm = &w->forward;
    w->tune.overwrite = 1;
    w->functions.struct_size = sizeof w->functions;
    if (status != TEGROUP_OK) return status;
    memset(&w->target, 0, sizeof w->target);
    w->target.struct_size = sizeof w->target;
    w->target.sm = 90;
    w->target.cublaslt_version = 130700;

    memset(&w->linear, 0, sizeof w->linear);
    w->linear.struct_size = sizeof w->linear;
    w->linear.space = TEGROUP_SPACE_HOST;
    w->linear.weight = w->forward.b;
    w->linear.bias = w->forward.bias;
    w->linear.input = w->forward.a;
    w->linear.out = w->forward.d;
    w->linear.grad_output = w->dgrad.a;
    w->linear.dgrad_out = w->dgrad.d;
    w->linear.main_grad = w->wgrad.d;
    w->linear.bias_grad = w->wgrad.bias;
    w->linear.grad_row_scale = world_tensor(w->row_scale_grad, routed, 1);
    w->linear.row_scale = w->row_scale;
    w->linear.row_scale_dtype = TEGROUP_DTYPE_F32;
    w->linear.options.threads = 1;
    w->linear.options.workspace = w->workspace;
    w->linear.options.workspace_bytes = sizeof w->workspace;
    status = tegroup_linear_plan_make(&w->linear, NULL, &w->linear_plan, error);
    if (status != TEGROUP_OK) return status;

    memset(&w->mlp, 0, sizeof w->mlp);
    w->mlp.struct_size = sizeof w->mlp;
    w->mlp.space = TEGROUP_SPACE_HOST;
    w->mlp.activation = TEGROUP_ACTIVATION_SWIGLU_CLAMPED;
    w->mlp.fc1.weight = world_uniform(w->fc1_weight, 2 * N, K);
    w->mlp.fc1.main_grad = world_uniform(w->fc1_weight_grad, 2 * N, K);
    w->mlp.fc1.bias = world_uniform(w->fc1_bias, 1, 2 * N);
    w->mlp.fc1.bias_grad = world_uniform(w->fc1_bias_grad, 1, 2 * N);
    w->mlp.fc2.weight = world_uniform(w->fc2_weight, K, N);
    w->mlp.fc2.main_grad = world_uniform(w->fc2_weight_grad, K, N);
    w->mlp.fc2.bias = world_uniform(w->fc2_bias, 1, K);
    w->mlp.fc2.bias_grad = world_uniform(w->fc2_bias_grad, 1, K);
    w->mlp.input = world_tensor(w->x, routed, K);
    w->mlp.out = world_tensor(w->mlp_out, routed, K);
    w->mlp.grad_output = world_tensor(w->mlp_grad_output, routed, K);
    w->mlp.dgrad_out = world_tensor(w->x_grad, routed, K);
    w->mlp.grad_row_scale = world_tensor(w->row_scale_grad, routed, 1);
    w->mlp.preactivation = world_tensor(w->preactivation, routed, 2 * N);
    w->mlp.activated = world_tensor(w->activated, routed, N);
    w->mlp.grad_preactivation = world_tensor(w->grad_preactivation, routed, 2 * N);
    w->mlp.row_scale = w->row_scale;
    w->mlp.row_scale_dtype = TEGROUP_DTYPE_F32;
    w->mlp.fc2_bias_scaled = 1;
    w->mlp.options.threads = 1;
    w->mlp.options.workspace = w->workspace;
    w->mlp.options.workspace_bytes = sizeof w->workspace;
    status = tegroup_mlp_plan_make(&w->mlp, NULL, &w->mlp_plan, error);
    if (status != TEGROUP_OK) return status;

    memset(&w->activation, 0, sizeof w->activation);
    w->activation.struct_size = sizeof w->activation;
    w->activation.space = TEGROUP_SPACE_HOST;
    w->activation.activation = TEGROUP_ACTIVATION_SWIGLU;
    w->activation.snapshot = w->snapshot;
    w->activation.input = tegroup_matrix_of(w->gate_up, ROWS, 2 * N, TEGROUP_DTYPE_F32);
    w->activation.row_scale = tegroup_matrix_of(w->row_scale, ROWS, 1, TEGROUP_DTYPE_F32);
    w->activation.output = tegroup_matrix_of(w->y, ROWS, N, TEGROUP_DTYPE_F32);
    memset(&w->activation_backward, 0, sizeof w->activation_backward);
    w->activation_backward.struct_size = sizeof w->activation_backward;
    w->activation_backward.space = TEGROUP_SPACE_HOST;
    w->activation_backward.activation = TEGROUP_ACTIVATION_SWIGLU;
    w->activation_backward.snapshot = w->snapshot;
    w->activation_backward.input = w->activation.input;
    w->activation_backward.row_scale = w->activation.row_scale;
    w->activation_backward.grad_output = tegroup_matrix_of(w->y_grad, ROWS, N, TEGROUP_DTYPE_F32);
    w->activation_backward.grad_input = tegroup_matrix_of(w->gate_up_grad, ROWS, 2 * N, TEGROUP_DTYPE_F32);
    w->activation_backward.grad_row_scale = tegroup_matrix_of(w->row_scale_grad, ROWS, 1, TEGROUP_DTYPE_F32);

    memset(&w->count, 0, sizeof w->count);
    w->count.struct_size = sizeof w->count;
    w->count.space = TEGROUP_SPACE_HOST;
    w->count.groups = EXPERTS;
    w->count.labels = tegroup_matrix_of(w->indices, TOKENS, CHOICES, TEGROUP_DTYPE_I32);
    w->count.counts = tegroup_matrix_of(w->counts_out, 1, EXPERTS, TEGROUP_DTYPE_I64);
    w->count.offsets = tegroup_matrix_of(w->offsets_out, 1, EXPERTS + 1, TEGROUP_DTYPE_I64);
    w->count_slots = w->count;
    w->count_slots.labels = tegroup_matrix_of(w->indices, 1, ROWS / 2, TEGROUP_DTYPE_I32);
    w->count_slots.block = 2;
    w->count_slots.starts = tegroup_matrix_of(w->ends_out, 1, EXPERTS, TEGROUP_DTYPE_I64);
    w->count_slots.slot_of_row = tegroup_matrix_of(w->slot_of_row, 1, ROWS, TEGROUP_DTYPE_I64);
    w->count_slots.padded_rows = tegroup_matrix_of(w->starts + EXPERTS - 1, 1, 1, TEGROUP_DTYPE_I64);
    w->count_slots.row_of_slot = tegroup_matrix_of(w->row_of_slot_out, TOKENS, CHOICES, TEGROUP_DTYPE_I64);
    memset(&w->exports, 0, sizeof w->exports);
    w->exports.struct_size = sizeof w->exports;
    w->exports.space = TEGROUP_SPACE_HOST;
    w->exports.shape = w->exports.from = routed;
    w->exports.block = 2;
    w->exports.counts = w->count.counts;
    w->exports.offsets = w->count.offsets;
    w->exports.ends = tegroup_matrix_of(w->ends_out, 1, EXPERTS, TEGROUP_DTYPE_I64);
    w->exports.labels = tegroup_matrix_of(w->labels_out, 1, ROWS / 2, TEGROUP_DTYPE_I64);
    w->exports.slot_of_row = tegroup_matrix_of(w->slot_of_row, 1, ROWS, TEGROUP_DTYPE_I64);
    w->exports.slots = SLOTS;
    w->exports.sorted_ids = tegroup_matrix_of(w->slot_of_row_out, 1, ROWS, TEGROUP_DTYPE_I64);
    w->exports.source_rows = tegroup_matrix_of(w->source_rows_out, 1, ROWS, TEGROUP_DTYPE_I64);
    memset(&w->skew, 0, sizeof w->skew);
    w->skew.struct_size = sizeof w->skew;
    w->skew.space = TEGROUP_SPACE_HOST;
    w->skew.shape = routed;
    w->skew.tile_rows = 4;
    w->skew.row_bytes = K * 4;
    w->skew.result = w->skew_out;
    memset(&w->router, 0, sizeof w->router);
    w->router.struct_size = sizeof w->router;
    w->router.space = TEGROUP_SPACE_HOST;
    w->router.experts = EXPERTS;
    w->router.k = CHOICES;
    w->router.normalize = 1;
    w->router.logits = tegroup_matrix_of(w->logits, TOKENS, EXPERTS, TEGROUP_DTYPE_F32);
    w->router.probabilities = tegroup_matrix_of(w->probabilities_out, TOKENS, EXPERTS, TEGROUP_DTYPE_F32);
    w->router.weights = tegroup_matrix_of(w->weights_out, TOKENS, CHOICES, TEGROUP_DTYPE_F32);
    w->router.indices = tegroup_matrix_of(w->indices_out, TOKENS, CHOICES, TEGROUP_DTYPE_I32);
    w->router.counts = tegroup_matrix_of(w->counts_out, 1, EXPERTS, TEGROUP_DTYPE_I64);
    w->router.balance_coefficient = 0.01;
    w->router.balance_loss = w->loss_out;
    memset(&w->moe, 0, sizeof w->moe);
    w->moe.struct_size = sizeof w->moe;
    w->moe.space = TEGROUP_SPACE_HOST;
    w->moe.tokens = tegroup_matrix_of(w->x, TOKENS, K, TEGROUP_DTYPE_F32);
    w->moe.output = tegroup_matrix_of(w->mlp_out, TOKENS, K, TEGROUP_DTYPE_F32);
    w->moe.grad_output = tegroup_matrix_of(w->mlp_grad_output, TOKENS, K, TEGROUP_DTYPE_F32);
    w->moe.grad_tokens = tegroup_matrix_of(w->x_grad, TOKENS, K, TEGROUP_DTYPE_F32);
    w->moe.grad_logits = tegroup_matrix_of(w->logits_grad, TOKENS, EXPERTS, TEGROUP_DTYPE_F32);
    w->moe.router = w->router;
    w->moe.experts.activation = w->mlp.activation;
    w->moe.experts.fc1 = w->mlp.fc1;
    w->moe.experts.fc2 = w->mlp.fc2;
    w->moe.experts.options = w->mlp.options;
    status = tegroup_moe_plan_make(&w->moe, NULL, &w->moe_plan, error);
    if (status != TEGROUP_OK) return status;
    w->moe.saved_by_forward = w->moe_saved_by_forward;
    w->moe.saved_by_forward_bytes = sizeof w->moe_saved_by_forward;
    w->moe.saved_by_dgrad = w->moe_saved_by_dgrad;
    w->moe.saved_by_dgrad_bytes = sizeof w->moe_saved_by_dgrad;
    memset(&w->router_backward, 0, sizeof w->router_backward);
    w->router_backward.struct_size = sizeof w->router_backward;
    w->router_backward.space = TEGROUP_SPACE_HOST;
    w->router_backward.experts = EXPERTS;
    w->router_backward.k = CHOICES;
    w->router_backward.normalize = 1;
    w->router_backward.probabilities = tegroup_matrix_of(w->probabilities, TOKENS, EXPERTS, TEGROUP_DTYPE_F32);
    w->router_backward.indices = tegroup_matrix_of(w->indices, TOKENS, CHOICES, TEGROUP_DTYPE_I32);
    w->router_backward.counts = tegroup_matrix_of(w->counts, 1, EXPERTS, TEGROUP_DTYPE_I64);
    w->router_backward.grad_weights = tegroup_matrix_of(w->weights_grad, TOKENS, CHOICES, TEGROUP_DTYPE_F32);
    w->router_backward.grad_logits = tegroup_matrix_of(w->logits_grad, TOKENS, EXPERTS, TEGROUP_DTYPE_F32);
    w->router_backward.balance_coefficient = 0.01;

    memset(&w->permutation, 0, sizeof w->permutation);
    w->permutation.struct_size = sizeof w->permutation;
    w->permutation.space = TEGROUP_SPACE_HOST;
    w->permutation.indices = tegroup_matrix_of(w->indices, TOKENS, CHOICES, TEGROUP_DTYPE_I32);
    w->permutation.shape = routed;
    w->permutation.row_of_slot = tegroup_matrix_of(w->row_of_slot_out, TOKENS, CHOICES, TEGROUP_DTYPE_I64);
    w->permutation.slot_of_row = tegroup_matrix_of(w->slot_of_row_out, 1, ROWS, TEGROUP_DTYPE_I64);
    memset(&w->permute, 0, sizeof w->permute);
    w->permute.struct_size = sizeof w->permute;
    w->permute.space = TEGROUP_SPACE_HOST;
    w->permute.k = CHOICES;
    w->permute.tokens = tegroup_matrix_of(w->tokens, TOKENS, N, TEGROUP_DTYPE_F32);
    w->permute.slot_of_row = tegroup_matrix_of(w->slot_of_row, 1, ROWS, TEGROUP_DTYPE_I64);
    w->permute.weights = tegroup_matrix_of(w->weights, TOKENS, CHOICES, TEGROUP_DTYPE_F32);
    w->permute.permuted = tegroup_matrix_of(w->rows_out, ROWS, N, TEGROUP_DTYPE_F32);
    memset(&w->combine, 0, sizeof w->combine);
    w->combine.struct_size = sizeof w->combine;
    w->combine.space = TEGROUP_SPACE_HOST;
    w->combine.permuted = tegroup_matrix_of(w->old, ROWS, N, TEGROUP_DTYPE_F32);
    w->combine.row_of_slot = tegroup_matrix_of(w->row_of_slot, TOKENS, CHOICES, TEGROUP_DTYPE_I64);
    w->combine.weights = tegroup_matrix_of(w->weights, TOKENS, CHOICES, TEGROUP_DTYPE_F32);
    w->combine.tokens = tegroup_matrix_of(w->tokens_out, TOKENS, N, TEGROUP_DTYPE_F32);
    memset(&w->combine_backward, 0, sizeof w->combine_backward);
    w->combine_backward.struct_size = sizeof w->combine_backward;
    w->combine_backward.space = TEGROUP_SPACE_HOST;
    w->combine_backward.grad_tokens = tegroup_matrix_of(w->tokens, TOKENS, N, TEGROUP_DTYPE_F32);
    w->combine_backward.permuted = w->combine.permuted;
    w->combine_backward.row_of_slot = w->combine.row_of_slot;
    w->combine_backward.weights = w->combine.weights;
    w->combine_backward.grad_permuted = tegroup_matrix_of(w->rows_out, ROWS, N, TEGROUP_DTYPE_F32);
    w->combine_backward.grad_weights = tegroup_matrix_of(w->weights_out, TOKENS, CHOICES, TEGROUP_DTYPE_F32);
    memset(&w->ep_sizes, 0, sizeof w->ep_sizes);
    w->ep_sizes.struct_size = sizeof w->ep_sizes;
    w->ep_sizes.space = TEGROUP_SPACE_HOST;
    w->ep_sizes.ranks = 2;
    w->ep_sizes.rank = 1;
    w->ep_sizes.capacity = ROWS / 2;
    w->ep_sizes.alignment = 2;
    w->ep_sizes.counts = tegroup_matrix_of(w->counts, 2, EXPERTS / 2, TEGROUP_DTYPE_I64);
    w->ep_sizes.send_rows = tegroup_matrix_of(w->ep_send_rows, 1, EXPERTS / 2, TEGROUP_DTYPE_I64);
    w->ep_sizes.send_starts = tegroup_matrix_of(w->ep_send_starts, 1, EXPERTS / 2, TEGROUP_DTYPE_I64);
    w->ep_sizes.receive_rows = tegroup_matrix_of(w->ep_receive_rows, 1, EXPERTS / 4, TEGROUP_DTYPE_I64);
    w->ep_sizes.report = w->ep_report;
    w->ep_windows[0] = w->ep_window;
    w->ep_windows[1] = w->ep_window + 192;
    memset(&w->ep_dispatch, 0, sizeof w->ep_dispatch);
    w->ep_dispatch.struct_size = sizeof w->ep_dispatch;
    w->ep_dispatch.space = TEGROUP_SPACE_HOST;
    w->ep_dispatch.windows.ranks = 2;
    w->ep_dispatch.windows.rank = 1;
    w->ep_dispatch.windows.addresses = w->ep_windows;
    w->ep_dispatch.windows.bytes = sizeof w->ep_window / 2;
    w->ep_dispatch.row_of_slot = w->combine.row_of_slot;
    w->ep_dispatch.tokens = w->permute.tokens;
    w->ep_dispatch.rows = tegroup_matrix_of(w->ep_windows[1], ROWS / 2, N, TEGROUP_DTYPE_F32);
    w->ep_dispatch.weights = w->permute.weights;
    w->ep_dispatch.row_weights = tegroup_matrix_of(w->ep_window + 192 + 128, ROWS / 2, 1, TEGROUP_DTYPE_F32);
    w->ep_dispatch.row_links = tegroup_matrix_of(w->ep_window + 192 + 160, ROWS / 2, 1, TEGROUP_DTYPE_I32);
    memset(&w->ep_expand, 0, sizeof w->ep_expand);
    w->ep_expand.struct_size = sizeof w->ep_expand;
    w->ep_expand.space = TEGROUP_SPACE_HOST;
    w->ep_expand.shape = routed;
    w->ep_expand.row_links = tegroup_matrix_of(w->ep_links, routed.rows, 1, TEGROUP_DTYPE_I32);
    for (int32_t i = 0; i < ROWS; i++) w->ep_links[i] = i;
    w->ep_expand.rows = tegroup_matrix_of(w->ep_rows, routed.rows, N, TEGROUP_DTYPE_F32);
    w->ep_reduce = w->ep_expand;
    w->ep_expand.row_scales = tegroup_matrix_of(w->ep_row_scales, routed.rows, 1, TEGROUP_DTYPE_F32);
    memset(&w->ep_combine, 0, sizeof w->ep_combine);
    w->ep_combine.struct_size = sizeof w->ep_combine;
    w->ep_combine.space = TEGROUP_SPACE_HOST;
    w->ep_combine.windows = w->ep_dispatch.windows;
    w->ep_combine.row_of_slot = w->combine.row_of_slot;
    w->ep_combine.rows = w->ep_dispatch.rows;
    w->ep_combine.weights = w->combine.weights;
    w->ep_combine.tokens = w->combine.tokens;
    w->ep_combine.row_values = w->ep_dispatch.row_weights;
    w->ep_combine.values = tegroup_matrix_of(w->weights_out, TOKENS, CHOICES, TEGROUP_DTYPE_F32);
    memset(&w->validate, 0, sizeof w->validate);
    w->validate.struct_size = sizeof w->validate;
    w->validate.space = TEGROUP_SPACE_HOST;
    w->validate.tensor = w->forward.a;
    w->validate.result = w->validation;
    memset(&w->scale_convert, 0, sizeof w->scale_convert);
    w->scale_convert.struct_size = sizeof w->scale_convert;
    w->scale_convert.space = TEGROUP_SPACE_HOST;
    w->scale_convert.from = tegroup_tensor_uniform(EXPERTS, N, K, TEGROUP_DTYPE_F8E4M3, NULL);
    w->scale_convert.from.scaling = TEGROUP_SCALING_MXFP8;
    w->scale_convert.to = w->scale_convert.from;
    w->scale_convert.from.scale_inv = w->weight;
    w->scale_convert.from.scale_outer_stride = w->scale_convert.from.scale_inner_stride = 1;
    w->scale_convert.to.scale_inv = w->workspace;
    memset(&w->code_convert, 0, sizeof w->code_convert);
    w->code_convert.struct_size = sizeof w->code_convert;
    w->code_convert.space = TEGROUP_SPACE_HOST;
    w->code_convert.from = tegroup_tensor_uniform(EXPERTS, 3, 64, TEGROUP_DTYPE_F4E2M1, w->weight);
    w->code_convert.from.scaling = TEGROUP_SCALING_MXFP4;
    w->code_convert.to = w->code_convert.from;
    w->code_convert.to.data = w->workspace;
    w->code_convert.to.code_order = TEGROUP_CODES_INTERLEAVED;
    memset(&w->quantize, 0, sizeof w->quantize);
    w->quantize.struct_size = sizeof w->quantize;
    w->quantize.space = TEGROUP_SPACE_HOST;
    w->quantize.input = world_tensor(w->gate_up, routed, 2 * N);
    w->quantize.activation = TEGROUP_ACTIVATION_SWIGLU;
    w->quantize.grad_output = world_tensor(w->y_grad, routed, N);
    w->quantize.row_scale = tegroup_matrix_of(w->row_scale, ROWS, 1, TEGROUP_DTYPE_F32);
    w->quantize.grad_row_scale = tegroup_matrix_of(w->row_scale_grad, ROWS, 1, TEGROUP_DTYPE_F32);
    w->quantize.rule = tegroup_scale_rule_of(TEGROUP_SCALE_TE_BLOCK);
    w->quantize.output = tegroup_tensor_of(routed, 2 * N, TEGROUP_DTYPE_F8E4M3, w->quantized);
    w->quantize.output.scaling = TEGROUP_SCALING_BLOCK_32X32;
    w->quantize.output.scale_inv = w->quantized_scales;
    w->quantize.output.columnwise_data = w->quantized_columnwise;
    w->quantize.output.columnwise_scale_inv = w->quantized_columnwise_scales;
    w->quantize.output.amax = w->amax_out;
    memset(&w->dequantize, 0, sizeof w->dequantize);
    w->dequantize.struct_size = sizeof w->dequantize;
    w->dequantize.space = TEGROUP_SPACE_HOST;
    w->dequantize.input = tegroup_tensor_of(routed, K, TEGROUP_DTYPE_F8E4M3, w->weight);
    w->dequantize.input.scaling = TEGROUP_SCALING_BLOCK_32X32;
    w->dequantize.input.scale_inv = w->bias;
    w->dequantize.output = world_tensor(w->rows_out, routed, K);
    return TEGROUP_OK;
}
#endif
