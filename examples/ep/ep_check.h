/* Numbers for the layer of ep_layer.h, and whether one rank with all tokens and all experts has the same bits:
 * tegroup_moe_forward, tegroup_moe_dgrad and tegroup_moe_wgrad, which know nothing of ranks. And whether tokens that
 * are quantised before they cross ranks have the bytes of those quantised after it. */
#ifndef EP_CHECK_H
#define EP_CHECK_H

#include "ep_layer.h"

enum { EP_OF_TOKENS = 1, EP_OF_LOGITS, EP_OF_GRADIENT, EP_OF_FC1, EP_OF_FC2 };

/* Number i of a tensor, -size to size: any rank can work out any of them. */
static float ep_number(uint64_t seed, int tensor, int64_t i, float size) {
    uint64_t x = seed * 0x9e3779b97f4a7c15u + (uint64_t)tensor * 0xd1342543de82ef95u + (uint64_t)i;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return size * ((float)(int32_t)((x >> 40) % 8191) - 4095) / 4096;
}

/* Numbers first .. first + count - 1 of a tensor, put to where calls work. */
static void ep_fill(void *there, tegroup_dtype dtype, uint64_t seed, int tensor, int64_t first, int64_t count,
                    float size) {
    char *here = (char *)malloc((size_t)count * ep_bytes(dtype) + 1);
    for (int64_t i = 0; i < count; i++) {
        const float x = ep_number(seed, tensor, first + i, size);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (dtype == TEGROUP_DTYPE_F32) memcpy(here + 4 * i, &bits, 4);
        else ((uint16_t *)here)[i] = (uint16_t)(bits >> 16); /* BF16, cut */
    }
    ep_put(there, here, (size_t)count * ep_bytes(dtype));
    free(here);
}

/* The rank's part of the numbers that all ranks have together. seed: of the step. */
static void ep_layer_fill(ep_layer *l, uint64_t seed) {
    const ep_size *s = &l->size;
    const int64_t here = s->experts / s->ranks, before = s->rank * s->tokens, first = s->rank * here;
    ep_fill(l->dispatch.tokens.data, s->dtype, seed, EP_OF_TOKENS, before * s->width, s->tokens * s->width, 1);
    ep_fill(l->dispatch_grad.tokens.data, s->dtype, seed, EP_OF_GRADIENT, before * s->width, s->tokens * s->width, 1);
    ep_fill(l->router.logits.data, TEGROUP_DTYPE_F32, seed, EP_OF_LOGITS, before * s->experts, s->tokens * s->experts,
            2);
    ep_fill(l->mlp.fc1.weight.data, s->dtype, 1, EP_OF_FC1, first * 2 * s->hidden * s->width,
            here * 2 * s->hidden * s->width, 0.25f);
    ep_fill(l->mlp.fc2.weight.data, s->dtype, 1, EP_OF_FC2, first * s->hidden * s->width, here * s->hidden * s->width,
            0.25f);
}

typedef struct ep_one_rank {
    tegroup_moe_desc desc;
    tegroup_moe_plan plan;
} ep_one_rank;

static void ep_one_rank_make(ep_one_rank *one, const ep_size *s) {
    tegroup_moe_desc *d = &one->desc;
    const int64_t tokens = s->ranks * s->tokens;
    memset(one, 0, sizeof *one);
    d->struct_size = sizeof *d;
    d->space = s->space;
    d->tokens = ep_matrix(tokens, s->width, s->dtype);
    d->output = ep_matrix(tokens, s->width, s->dtype);
    d->grad_output = ep_matrix(tokens, s->width, s->dtype);
    d->grad_tokens = ep_matrix(tokens, s->width, s->dtype);
    d->grad_logits = ep_matrix(tokens, s->experts, TEGROUP_DTYPE_F32);
    d->router.k = s->k;
    d->router.normalize = 1;
    d->router.logits = ep_matrix(tokens, s->experts, TEGROUP_DTYPE_F32);
    d->experts.activation = TEGROUP_ACTIVATION_SWIGLU;
    d->experts.fc1 = ep_weights(s->experts, 2 * s->hidden, s->width, s->dtype, 1);
    d->experts.fc2 = ep_weights(s->experts, s->width, s->hidden, s->dtype, 1);
    ep_must(tegroup_moe_plan_make(d, NULL, &one->plan, &ep_error));
    d->saved_by_forward = ep_memory(one->plan.saved_by_forward_bytes);
    d->saved_by_forward_bytes = one->plan.saved_by_forward_bytes;
    d->saved_by_dgrad = ep_memory(one->plan.saved_by_dgrad_bytes);
    d->saved_by_dgrad_bytes = one->plan.saved_by_dgrad_bytes;
    d->experts.options.workspace = ep_memory(one->plan.workspace_bytes);
    d->experts.options.workspace_bytes = one->plan.workspace_bytes;
    ep_fill(d->experts.fc1.weight.data, s->dtype, 1, EP_OF_FC1, 0, s->experts * 2 * s->hidden * s->width, 0.25f);
    ep_fill(d->experts.fc2.weight.data, s->dtype, 1, EP_OF_FC2, 0, s->experts * s->hidden * s->width, 0.25f);
}

static void ep_one_rank_run(ep_one_rank *one, const ep_size *s, uint64_t seed, struct CUstream_st *stream) {
    tegroup_moe_desc *d = &one->desc;
    const int64_t tokens = s->ranks * s->tokens;
    ep_fill(d->tokens.data, s->dtype, seed, EP_OF_TOKENS, 0, tokens * s->width, 1);
    ep_fill(d->grad_output.data, s->dtype, seed, EP_OF_GRADIENT, 0, tokens * s->width, 1);
    ep_fill(d->router.logits.data, TEGROUP_DTYPE_F32, seed, EP_OF_LOGITS, 0, tokens * s->experts, 2);
    ep_must(tegroup_moe_forward(&one->plan, d, stream, &ep_error));
    ep_must(tegroup_moe_dgrad(&one->plan, d, stream, &ep_error));
    ep_must(tegroup_moe_wgrad(&one->plan, d, stream, &ep_error));
}

/* Compares a rank's `count` elements with those of one rank from `first` on, which must not all be zeros. */
static void ep_same(const char *what, const void *of_rank, const void *of_one, tegroup_dtype dtype, int64_t first,
                    int64_t count) {
    const size_t bytes = (size_t)count * ep_bytes(dtype);
    char *mine = (char *)malloc(bytes + 1), *ones = (char *)malloc(bytes + 1);
    size_t i, zeros = 0;
    ep_get(mine, of_rank, bytes);
    ep_get(ones, (const char *)of_one + (size_t)first * ep_bytes(dtype), bytes);
    for (i = 0; i < bytes; i++) {
        if (mine[i] != ones[i])
            give_up("%s: element %lld has not the bits of one rank", what, (long long)(i / ep_bytes(dtype)));
        zeros += ones[i] == 0;
    }
    if (bytes > 0 && zeros == bytes) give_up("%s: all zeros", what);
    free(mine), free(ones);
}

static const char *ep_kinship(const ep_size *s) {
    return s->crossing == EP_SUMS_ONCE ? "are within roundings of those" : "have the bits";
}

static float ep_widened(tegroup_dtype dtype, const char *data, int64_t i) {
    uint32_t bits = 0;
    float x;
    if (dtype == TEGROUP_DTYPE_F32) memcpy(&bits, data + 4 * i, 4);
    else memcpy((char *)&bits + 2, data + 2 * i, 2);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The same for sums by owner, which are added in another order and rounded once more for each owner: so many roundings
 * of sums up to twice as large as the largest result. (tests/unit/ep.h has each such sum bit for bit.) */
static void ep_close(const char *what, const void *of_rank, const void *of_one, tegroup_dtype dtype, int64_t first,
                     int64_t count, int32_t roundings) {
    const size_t bytes = (size_t)count * ep_bytes(dtype);
    const float unit = dtype == TEGROUP_DTYPE_F32 ? 1 / 16777216.0f : 1 / 512.0f;
    char *mine = (char *)malloc(bytes + 1), *ones = (char *)malloc(bytes + 1);
    float largest = 0;
    ep_get(mine, of_rank, bytes);
    ep_get(ones, (const char *)of_one + (size_t)first * ep_bytes(dtype), bytes);
    for (int64_t i = 0; i < count; i++) {
        const float x = ep_widened(dtype, ones, i);
        if (x > largest || -x > largest) largest = x < 0 ? -x : x;
    }
    for (int64_t i = 0; i < count; i++) {
        const float apart = ep_widened(dtype, mine, i) - ep_widened(dtype, ones, i);
        if (!((apart < 0 ? -apart : apart) <= 2 * (float)roundings * unit * largest))
            give_up("%s: element %lld is %g off that of one rank", what, (long long)i, (double)apart);
    }
    if (count > 0 && largest == 0) give_up("%s: all zeros", what);
    free(mine), free(ones);
}

static void ep_compare_tokens(const char *what, const ep_size *s, const void *of_rank, const void *of_one) {
    const int64_t first = s->rank * s->tokens * s->width, count = s->tokens * s->width;
    if (s->crossing == EP_SUMS_ONCE) ep_close(what, of_rank, of_one, s->dtype, first, count, s->ranks + s->k);
    else ep_same(what, of_rank, of_one, s->dtype, first, count);
}

static void ep_compare(const ep_layer *l, const ep_one_rank *one) {
    const ep_size *s = &l->size;
    const tegroup_moe_desc *d = &one->desc;
    const int64_t here = s->experts / s->ranks, before = s->rank * s->tokens, first = s->rank * here,
                  n = s->width * s->hidden;
    ep_compare_tokens("output", s, l->combine.tokens.data, d->output.data);
    ep_compare_tokens("gradient of the tokens", s, l->combine_grad.tokens.data, d->grad_tokens.data);
    ep_same("gradient of the logits", l->router_backward.grad_logits.data, d->grad_logits.data, TEGROUP_DTYPE_F32,
            before * s->experts, s->tokens * s->experts);
    ep_same("gradient of fc1", l->mlp.fc1.main_grad.data, d->experts.fc1.main_grad.data, TEGROUP_DTYPE_F32,
            first * 2 * n, here * 2 * n);
    ep_same("gradient of fc2", l->mlp.fc2.main_grad.data, d->experts.fc2.main_grad.data, TEGROUP_DTYPE_F32, first * n,
            here * n);
}

/* Tokens quantised to FP8 with a scale for each 128 of a row, before the dispatch and after it. Rows go to pieces of
 * the windows that nobody reads any more; by messages there are no such windows. */
typedef struct ep_quantised {
    tegroup_matrix codes, scales; /* dispatched */
    tegroup_tensor after;
} ep_quantised;

static void ep_quantised_make(ep_quantised *both, ep_layer *l, const ep_transport *t, struct CUstream_st *stream) {
    const ep_size *s = &l->size;
    const int64_t blocks = (s->width + 127) / 128;
    tegroup_ep_dispatch_desc d = l->dispatch;
    tegroup_quantize_desc q;
    memset(&q, 0, sizeof q);
    q.struct_size = sizeof q;
    q.space = s->space;
    q.rule = tegroup_scale_rule_of(TEGROUP_SCALE_DEEPGEMM);
    q.input = tegroup_tensor_uniform(1, s->tokens, s->width, s->dtype, l->dispatch.tokens.data);
    q.output =
        tegroup_tensor_uniform(1, s->tokens, s->width, TEGROUP_DTYPE_F8E4M3, ep_memory((size_t)(s->tokens * s->width)));
    q.output.scaling = TEGROUP_SCALING_BLOCK_1X128;
    q.output.scale_inv = ep_memory((size_t)(s->tokens * blocks) * 4);
    q.output.scale_outer_stride = blocks;
    q.output.scale_inner_stride = 1;
    ep_must(tegroup_quantize(&q, stream, &ep_error));
    memset(&d.weights, 0, sizeof d.weights), memset(&d.row_weights, 0, sizeof d.row_weights);
    d.rows.data = l->window + l->at[EP_GRAD_ROWS]; /* as they are, to be quantised where they arrive */
    t->meet(t->self, NULL);                        /* a slower rank may still be in the step before */
    ep_must(tegroup_ep_dispatch(&d, stream, &ep_error));
    d.tokens = tegroup_matrix_of(q.output.data, s->tokens, s->width, TEGROUP_DTYPE_F8E4M3);
    d.scales = tegroup_matrix_of(q.output.scale_inv, s->tokens, blocks, TEGROUP_DTYPE_F32);
    d.rows = tegroup_matrix_of(l->window + l->at[EP_DGRAD_OUT], s->capacity, s->width, TEGROUP_DTYPE_F8E4M3);
    d.row_scales = tegroup_matrix_of(l->window + l->at[EP_OUT], s->capacity, blocks, TEGROUP_DTYPE_F32);
    ep_must(tegroup_ep_dispatch(&d, stream, &ep_error));
    t->meet(t->self, l->report);
    if (s->crossing) {
        tegroup_ep_links_desc expand = l->expand;
        expand.rows = d.rows, expand.row_scales = d.row_scales;
        ep_must(tegroup_ep_expand(&expand, stream, &ep_error));
        ep_must(tegroup_ep_expand(&l->expand_grad, stream, &ep_error));
    }
    q.input = tegroup_tensor_of(l->received.shape, s->width, s->dtype, l->window + l->at[EP_GRAD_ROWS]);
    q.input.shape.snapshot = l->received.snapshot;
    q.output.shape = q.input.shape;
    q.output.data = ep_memory((size_t)(s->capacity * s->width));
    q.output.scale_inv = ep_memory((size_t)(s->capacity * blocks) * 4);
    ep_must(tegroup_quantize(&q, stream, &ep_error));
    both->codes = d.rows, both->scales = d.row_scales, both->after = q.output;
}

/* How many rows there were, all of them of the same bytes. To be called when meetings are known to have gone well. */
static int64_t ep_quantised_compare(const ep_quantised *both, const ep_layer *l) {
    const ep_size *s = &l->size;
    const int64_t here = s->experts / s->ranks, blocks = both->scales.cols;
    const size_t codes_bytes = (size_t)(s->capacity * s->width), scales_bytes = (size_t)(s->capacity * blocks) * 4;
    char *codes = (char *)malloc(2 * codes_bytes), *scales = (char *)malloc(2 * scales_bytes);
    int64_t *rows = (int64_t *)malloc(8 * (size_t)here), all = 0;
    ep_get(codes, both->codes.data, codes_bytes), ep_get(codes + codes_bytes, both->after.data, codes_bytes);
    ep_get(scales, both->scales.data, scales_bytes), ep_get(scales + scales_bytes, both->after.scale_inv, scales_bytes);
    ep_get(rows, l->sizes.receive_rows.data, 8 * (size_t)here);
    for (int64_t e = 0; e < here; e++) all += rows[e];
    if (memcmp(codes, codes + codes_bytes, (size_t)(all * s->width)) != 0
        || memcmp(scales, scales + scales_bytes, (size_t)(all * blocks) * 4) != 0)
        give_up("rows quantised before the dispatch are not those quantised after it");
    free(codes), free(scales), free(rows);
    return all;
}

#endif
