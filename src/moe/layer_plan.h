/* ---- MoE layer: plan ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "layer/quantize_types.h"
#include "layer/mlp_types.h"
#include "moe/routing_types.h"
#include "moe/layer_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"
#include "core/constructors.h"
#include "core/layout.h"
#include "core/scale_grid.h"
#include "core/checks.h"
#include "core/copies.h"
#include "layer/linear_rules.h"
#include "layer/mlp_plan.h"
#include "moe/router_scheme.h"
#include "moe/router.h"
#include "moe/permutation.h"
#include "moe/layer_formats.h"
#include "moe/layer_rules.h"

/* What of the router's is the layer's to keep: what it needs and the caller does not have. */
enum {
    TEGROUP_IMPL_MOE_PROBABILITIES,
    TEGROUP_IMPL_MOE_WEIGHTS,
    TEGROUP_IMPL_MOE_INDICES,
    TEGROUP_IMPL_MOE_COUNTS,
    TEGROUP_IMPL_MOE_ROUTED
};

TEGROUP_IMPL_STATIC tegroup_matrix *tegroup_impl_moe_routed(tegroup_router_desc *router, int which) {
    return which == TEGROUP_IMPL_MOE_PROBABILITIES ? &router->probabilities
           : which == TEGROUP_IMPL_MOE_WEIGHTS     ? &router->weights
           : which == TEGROUP_IMPL_MOE_INDICES     ? &router->indices
                                                   : &router->counts;
}

/* A type for numbers up to `most`. */
TEGROUP_IMPL_STATIC tegroup_dtype tegroup_impl_integer_for(int64_t most) {
    return most <= INT32_MAX ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64;
}

/* Those of a quantised tensor. */
#define TEGROUP_IMPL_MOE_PIECE(ITEM, which, piece, what)                                                               \
    ITEM(which##_##piece, what, pieces[TEGROUP_IMPL_MOE_##which].at[TEGROUP_IMPL_MOE_##piece],                         \
         pieces[TEGROUP_IMPL_MOE_##which].there[TEGROUP_IMPL_MOE_##piece],                                             \
         pieces[TEGROUP_IMPL_MOE_##which].bytes[TEGROUP_IMPL_MOE_##piece], 1)
#define TEGROUP_IMPL_MOE_PIECES_OF(ITEM, which, what)                                                                  \
    TEGROUP_IMPL_MOE_PIECE(ITEM, which, DATA, what ", quantised")                                                      \
    TEGROUP_IMPL_MOE_PIECE(ITEM, which, SCALES, what ": scales")                                                       \
    TEGROUP_IMPL_MOE_PIECE(ITEM, which, COLUMNWISE, what ", by columns")                                               \
    TEGROUP_IMPL_MOE_PIECE(ITEM, which, COLUMNWISE_SCALES, what ": scales by columns")                                 \
    TEGROUP_IMPL_MOE_PIECE(ITEM, which, AMAX, what ": amax")                                                           \
    TEGROUP_IMPL_MOE_PIECE(ITEM, which, GLOBAL, what ": global scales")

/* Every buffer that the layer has: ITEM(name, what it is for, memory, bytes). What forward leaves for dgrad or wgrad is
 * saved; where there is no backward pass it is in forward's workspace. `cell` is the bytes of an element of rows by
 * expert, `real` those of a weight. */
#define TEGROUP_IMPL_MOE_ITEMS(ITEM)                                                                                   \
    ITEM(ROUTER_PROBABILITIES, "the router's probabilities", again ? TEGROUP_MOE_FORWARD_WORKSPACE : kept,             \
         p->keeps[0] && (!again || p->choice.has_losses), tegroup_impl_mul(p->tokens, p->experts), real)               \
    ITEM(ROUTER_INDICES, "the router's indices", kept, p->keeps[2], slots, 4)                                          \
    ITEM(ROUTER_COUNTS, "the router's counts", kept, p->keeps[3], p->experts, slot_bytes)                              \
    ITEM(ROUTER_LOSSES, "gradients of the router's losses", kept, p->keeps_losses, p->sequences,                       \
         8 * ((int64_t)p->experts + 1))                                                                                \
    ITEM(SNAPSHOT, "the snapshot of the routing", kept, 1, (int64_t)snapshot.total_bytes, 1)                           \
    ITEM(ROW_OF_SLOT, "row of each choice", kept, 1, slots, row_bytes)                                                 \
    ITEM(ROW_WEIGHTS, "weight of each row", kept, 1, p->capacity, real)                                                \
    ITEM(ROWS, "tokens by expert", p->recompute ? TEGROUP_MOE_FORWARD_WORKSPACE : kept,                                \
         p->rows_format.scaling == TEGROUP_SCALING_NONE, tegroup_impl_mul(p->capacity, p->width), cell)                \
    ITEM(PREACTIVATION, "preactivation, and then its gradient", kept, p->backward,                                     \
         tegroup_impl_mul(p->capacity, p->preactivation), cell)                                                        \
    ITEM(ACTIVATED, "activated", p->recompute ? TEGROUP_MOE_SAVED_BY_DGRAD : kept,                                     \
         p->wants_activated && p->rows_format.scaling == TEGROUP_SCALING_NONE,                                         \
         tegroup_impl_mul(p->capacity, p->hidden), cell)                                                               \
    ITEM(GRAD_ROWS, "output's gradient by expert", TEGROUP_MOE_SAVED_BY_DGRAD,                                         \
         p->backward && p->grad_format.scaling == TEGROUP_SCALING_NONE, tegroup_impl_mul(p->capacity, p->outputs),     \
         cell)                                                                                                         \
    ITEM(ROUTER_WEIGHTS, "the router's weights", TEGROUP_MOE_FORWARD_WORKSPACE, p->keeps[1], slots, real)              \
    ITEM(SLOT_OF_ROW, "choice of each row", picks ? kept : TEGROUP_MOE_FORWARD_WORKSPACE, 1, p->capacity,              \
         picks ? 8 : slot_bytes)                                                                                       \
    ITEM(OUT, "output by expert", TEGROUP_MOE_FORWARD_WORKSPACE, 1, tegroup_impl_mul(p->capacity, p->outputs), cell)   \
    ITEM(ROUTER, "the router's workspace", TEGROUP_MOE_FORWARD_WORKSPACE, 1, (int64_t)p->router_bytes, 1)              \
    ITEM(PERMUTATION, "the permutation's workspace", TEGROUP_MOE_FORWARD_WORKSPACE, 1, (int64_t)p->permutation_bytes,  \
         1)                                                                                                            \
    ITEM(FORWARD, "the experts' workspace", TEGROUP_MOE_FORWARD_WORKSPACE, 1, (int64_t)experts->workspace_bytes, 1)    \
    ITEM(NO_ROWS, "a snapshot without rows, for checks", TEGROUP_MOE_FORWARD_WORKSPACE,                                \
         p->space == TEGROUP_SPACE_HOST, (int64_t)snapshot.total_bytes, 1)                                             \
    ITEM(PROBABILITIES_AGAIN, "the router's probabilities", TEGROUP_MOE_DGRAD_WORKSPACE, again,                        \
         tegroup_impl_mul(p->tokens, p->experts), real)                                                                \
    ITEM(ROUTER_AGAIN, "the router's workspace", TEGROUP_MOE_DGRAD_WORKSPACE, again, (int64_t)p->router_bytes, 1)      \
    ITEM(GRAD_INPUT, "tokens' gradient by expert", TEGROUP_MOE_DGRAD_WORKSPACE, p->wants_grad_tokens,                  \
         tegroup_impl_mul(p->capacity, p->width), cell)                                                                \
    ITEM(GRAD_ROW_WEIGHTS, "gradient of each row's weight", TEGROUP_MOE_DGRAD_WORKSPACE, p->wants_grad_weights,        \
         p->capacity, real)                                                                                            \
    ITEM(GRAD_WEIGHTS, "gradient of the router's weights", TEGROUP_MOE_DGRAD_WORKSPACE, p->wants_grad_logits, slots,   \
         real)                                                                                                         \
    ITEM(DGRAD, "the experts' workspace", TEGROUP_MOE_DGRAD_WORKSPACE, p->backward, (int64_t)experts->workspace_bytes, \
         1)                                                                                                            \
    ITEM(WGRAD, "the experts' workspace", TEGROUP_MOE_WGRAD_WORKSPACE, p->backward,                                    \
         (int64_t)experts->wgrad_workspace_bytes, 1)                                                                   \
    ITEM(ROWS_AGAIN, "tokens by expert", TEGROUP_MOE_WGRAD_WORKSPACE,                                                  \
         p->recompute && p->rows_format.scaling == TEGROUP_SCALING_NONE, tegroup_impl_mul(p->capacity, p->width),      \
         cell)                                                                                                         \
    TEGROUP_IMPL_MOE_PIECES_OF(ITEM, INPUT, "tokens by expert")                                                        \
    TEGROUP_IMPL_MOE_PIECES_OF(ITEM, INPUT_AGAIN, "tokens by expert")                                                  \
    TEGROUP_IMPL_MOE_PIECES_OF(ITEM, BETWEEN, "activated")                                                             \
    TEGROUP_IMPL_MOE_PIECES_OF(ITEM, GRAD_OUTPUT, "output's gradient by expert")                                       \
    TEGROUP_IMPL_MOE_PIECES_OF(ITEM, GRAD_BETWEEN, "preactivation's gradient")

enum {
#define TEGROUP_IMPL_MOE_ITEM(name, what, memory, there, count, size) TEGROUP_IMPL_MOE_##name,
    TEGROUP_IMPL_MOE_ITEMS(TEGROUP_IMPL_MOE_ITEM) TEGROUP_IMPL_MOE_ITEM_COUNT
#undef TEGROUP_IMPL_MOE_ITEM
};

/* Where each buffer is: an offset in one of the memories; -1 = it is not there. */
typedef struct tegroup_impl_moe_places {
    tegroup_moe_memory memory[TEGROUP_IMPL_MOE_ITEM_COUNT];
    int64_t offset[TEGROUP_IMPL_MOE_ITEM_COUNT];
} tegroup_impl_moe_places;

/* Whether dgrad has the router compute its probabilities, and nothing else, again, and forward need not keep them. */
TEGROUP_IMPL_STATIC int tegroup_impl_moe_routes_again(const tegroup_moe_planned *p) {
    return p->recompute && p->wants_grad_logits && p->keeps[TEGROUP_IMPL_MOE_PROBABILITIES];
}

/* The one layout. layouts: [TEGROUP_MOE_WGRAD_WORKSPACE + 1], by memory. */
TEGROUP_IMPL_STATIC void tegroup_impl_moe_layouts(const tegroup_moe_plan *plan, tegroup_layout *layouts,
                                                  tegroup_impl_moe_places *places) {
    const tegroup_moe_planned *p = &plan->planned;
    const tegroup_mlp_plan *experts = &plan->experts;
    const tegroup_moe_memory kept = p->backward ? TEGROUP_MOE_SAVED_BY_FORWARD : TEGROUP_MOE_FORWARD_WORKSPACE;
    const int64_t cell = tegroup_impl_bits(p->rows) / 8, real = tegroup_impl_bits(p->real) / 8,
                  slots = tegroup_impl_mul(p->tokens, p->k),
                  slot_bytes = tegroup_impl_bits(tegroup_impl_integer_for(slots)) / 8,
                  row_bytes = tegroup_impl_bits(tegroup_impl_integer_for(p->capacity)) / 8;
    const int picks = tegroup_impl_moe_picks(p), again = tegroup_impl_moe_routes_again(p);
    tegroup_impl_moe_pieces pieces[TEGROUP_IMPL_MOE_FORMATTED];
    tegroup_layout snapshot;
    int memory, which;
    for (which = 0; which < TEGROUP_IMPL_MOE_FORMATTED; which++)
        pieces[which] = tegroup_impl_moe_pieces_of(p, (tegroup_impl_moe_formatted)which);
    tegroup_impl_snapshot_layout(p->experts, 0, &snapshot);
    for (memory = 0; memory <= TEGROUP_MOE_WGRAD_WORKSPACE; memory++) tegroup_impl_layout_begin(&layouts[memory]);
#define TEGROUP_IMPL_MOE_ITEM(name, what, where, there, count, size)                                                   \
    places->memory[TEGROUP_IMPL_MOE_##name] = where;                                                                   \
    places->offset[TEGROUP_IMPL_MOE_##name] = -1;                                                                      \
    if (there) {                                                                                                       \
        places->offset[TEGROUP_IMPL_MOE_##name] = (int64_t)layouts[where].total_bytes;                                 \
        tegroup_impl_layout_add(&layouts[where], what, tegroup_impl_mul(count, size));                                 \
    }
    TEGROUP_IMPL_MOE_ITEMS(TEGROUP_IMPL_MOE_ITEM)
#undef TEGROUP_IMPL_MOE_ITEM
}

TEGROUP_IMPL_STATIC tegroup_moe_choice tegroup_impl_moe_choice_of(const tegroup_router_desc *router) {
    const tegroup_router_scheme *scheme = &router->scheme;
    tegroup_router_scheme without_z = *scheme;
    tegroup_router_desc routed = *router;
    tegroup_moe_choice c;
    int which;
    without_z.z_coefficient = 0;
    memset(&c, 0, sizeof c);
    c.normalize = router->normalize;
    c.score = scheme->score;
    c.n_group = scheme->n_group;
    c.topk_group = scheme->topk_group;
    c.group_score = scheme->group_score;
    c.has_bias = tegroup_impl_there(&scheme->bias);
    c.has_given_indices = tegroup_impl_there(&scheme->given_indices);
    c.has_scheme = !tegroup_impl_scheme_plain(&without_z);
    c.has_balance = router->balance_coefficient != 0;
    c.has_z = scheme->z_coefficient != 0;
    c.has_losses = c.has_balance || c.has_z || router->balance_loss || router->z_loss;
    for (which = 0; which < TEGROUP_IMPL_MOE_ROUTED; which++)
        c.gives[which] = tegroup_impl_there(tegroup_impl_moe_routed(&routed, which));
    c.gives_gradients = tegroup_impl_there(&router->loss_gradients);
    return c;
}

/* What a descriptor is for, but for the workspaces of router and permutation. */
TEGROUP_IMPL_STATIC tegroup_moe_planned tegroup_impl_moe_record(const tegroup_moe_desc *desc) {
    const tegroup_mlp_desc *experts = &desc->experts;
    const int apart = experts->fc1_up.weight.dtype != TEGROUP_DTYPE_UNSET;
    const tegroup_router_scheme *scheme = &desc->router.scheme;
    tegroup_moe_planned p;
    int which;
    memset(&p, 0, sizeof p);
    p.space = desc->space;
    p.choice = tegroup_impl_moe_choice_of(&desc->router);
    p.tokens = desc->tokens.rows;
    p.width = desc->tokens.cols;
    p.hidden = tegroup_impl_weight_in(&experts->fc2.weight, experts->fc2.weight_layout);
    p.preactivation =
        tegroup_impl_mul(tegroup_impl_weight_out(&experts->fc1.weight, experts->fc1.weight_layout), 1 + apart);
    p.outputs = tegroup_impl_weight_out(&experts->fc2.weight, experts->fc2.weight_layout);
    p.experts = experts->fc1.weight.shape.groups;
    p.k = desc->router.k;
    p.expert_capacity = desc->expert_capacity;
    p.capacity = desc->expert_capacity > 0 ? tegroup_impl_mul(p.experts, desc->expert_capacity)
                 : desc->capacity > 0      ? desc->capacity
                                           : tegroup_impl_mul(p.tokens, p.k);
    p.backward = tegroup_impl_there(&desc->grad_output);
    p.wants_grad_tokens = tegroup_impl_there(&desc->grad_tokens);
    p.wants_grad_logits = tegroup_impl_there(&desc->grad_logits);
    p.wants_grad_weights = p.wants_grad_logits || tegroup_impl_there(&desc->grad_weights);
    p.given = tegroup_impl_there(&desc->given_weights);
    p.wants_activated = experts->fc2.main_grad.dtype != TEGROUP_DTYPE_UNSET;
    p.wants_fc1 = experts->fc1.main_grad.dtype != TEGROUP_DTYPE_UNSET;
    p.recompute = experts->recompute;
    p.rows_format = desc->rows_format;
    p.grad_format = desc->grad_format;
    p.drops_by_weight = desc->drops_by_weight;
    p.rows = desc->tokens.dtype;
    p.real = p.rows == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
    for (which = 0; which < TEGROUP_IMPL_MOE_ROUTED; which++)
        p.keeps[which] = !p.given && !p.choice.gives[which];
    p.keeps[TEGROUP_IMPL_MOE_PROBABILITIES] &= p.wants_grad_logits || p.choice.has_losses;
    p.keeps[TEGROUP_IMPL_MOE_COUNTS] &= p.choice.has_losses && !p.choice.has_scheme;
    p.keeps_losses = p.wants_grad_logits && !p.choice.gives_gradients
                     && (p.choice.has_z || (p.choice.has_scheme && p.choice.has_balance));
    p.sequences = scheme->sequence_tokens > 0 ? p.tokens / scheme->sequence_tokens : 1;
    return p;
}

/* ---- the parts, as calls of their own ---- */

typedef struct tegroup_impl_moe_parts {
    tegroup_router_desc router, router_again;
    tegroup_permutation_desc permutation;
    tegroup_permute_desc rows, grad_rows;                      /* to rows by expert */
    tegroup_quantize_desc quantised_rows, quantised_grad_rows; /* the same, where they have a format */
    tegroup_mlp_desc experts;
    tegroup_combine_desc output, grad_tokens, grad_weights; /* from them */
    tegroup_router_backward_desc router_backward;
} tegroup_impl_moe_parts;

/* The memories that a call has, by tegroup_moe_memory; NULL to plan. */
typedef struct tegroup_impl_moe_memories {
    char *base[TEGROUP_MOE_WGRAD_WORKSPACE + 1];
    const tegroup_impl_moe_places *places;
    tegroup_op op; /* of the call; FORWARD to plan */
    int planning;
} tegroup_impl_moe_memories;

TEGROUP_IMPL_STATIC void *tegroup_impl_moe_at(const tegroup_impl_moe_memories *memories, int item) {
    char *base = memories->base[memories->places->memory[item]];
    return base && memories->places->offset[item] >= 0 ? base + memories->places->offset[item] : NULL;
}
TEGROUP_IMPL_STATIC tegroup_matrix tegroup_impl_moe_matrix(const tegroup_impl_moe_memories *memories, int item,
                                                           int64_t rows, int64_t cols, tegroup_dtype dtype) {
    return tegroup_matrix_of(tegroup_impl_moe_at(memories, item), rows, cols, dtype);
}

/* Rows by expert: in tokens' dtype at `plain`, or quantised. To plan, a copy of columns is there by an address that
 * nobody reads. */
TEGROUP_IMPL_STATIC tegroup_tensor tegroup_impl_moe_tensor(const tegroup_moe_planned *p,
                                                           const tegroup_impl_moe_memories *memories,
                                                           const tegroup_shape *shape, tegroup_impl_moe_formatted which,
                                                           int plain) {
    const int first = TEGROUP_IMPL_MOE_INPUT_DATA + TEGROUP_IMPL_MOE_PIECES * (int)which,
              columnwise = first + TEGROUP_IMPL_MOE_COLUMNWISE;
    tegroup_tensor t;
    if (tegroup_impl_moe_format_of(p, which)->scaling == TEGROUP_SCALING_NONE)
        return tegroup_tensor_of(*shape, tegroup_impl_moe_cols(p, which), p->rows,
                                 tegroup_impl_moe_at(memories, plain));
    t = tegroup_impl_moe_quantised(p, shape, which);
    t.data = tegroup_impl_moe_at(memories, first + TEGROUP_IMPL_MOE_DATA);
    t.scale_inv = tegroup_impl_moe_at(memories, first + TEGROUP_IMPL_MOE_SCALES);
    t.columnwise_data = tegroup_impl_moe_at(memories, columnwise);
    if (which == TEGROUP_IMPL_MOE_GRAD_BETWEEN && tegroup_impl_keeps_values(&t) && p->wants_fc1)
        t.columnwise_data = tegroup_impl_moe_at(memories, TEGROUP_IMPL_MOE_PREACTIVATION);
    t.columnwise_scale_inv = tegroup_impl_moe_at(memories, first + TEGROUP_IMPL_MOE_COLUMNWISE_SCALES);
    t.amax = (float *)tegroup_impl_moe_at(memories, first + TEGROUP_IMPL_MOE_AMAX);
    t.global_scale_inv = (float *)tegroup_impl_moe_at(memories, first + TEGROUP_IMPL_MOE_GLOBAL);
    if (memories->planning && memories->places->offset[columnwise] >= 0)
        t.columnwise_data = (void *)(uintptr_t)TEGROUP_ALIGNMENT;
    return t;
}

/* Are rows by expert there as tokens have them? A format may keep them so for wgrad. */
TEGROUP_IMPL_STATIC int tegroup_impl_moe_permutes(const tegroup_tensor *rows) {
    return rows->scaling == TEGROUP_SCALING_NONE
           || (tegroup_impl_keeps_values(rows) && tegroup_impl_has_copy(rows, TEGROUP_IMPL_COLUMNWISE));
}
TEGROUP_IMPL_STATIC void *tegroup_impl_moe_permuted(const tegroup_tensor *rows) {
    return rows->scaling == TEGROUP_SCALING_NONE ? rows->data : rows->columnwise_data;
}

/* Rows by expert from the rows of a matrix that an index picks or, where they are permuted, from those. */
TEGROUP_IMPL_STATIC tegroup_quantize_desc tegroup_impl_moe_quantize(const tegroup_moe_desc *desc,
                                                                    const tegroup_moe_planned *p,
                                                                    const tegroup_matrix *from,
                                                                    const tegroup_matrix *map, const tegroup_tensor *to,
                                                                    const tegroup_moe_format *format) {
    tegroup_quantize_desc quantize;
    memset(&quantize, 0, sizeof quantize);
    quantize.struct_size = sizeof quantize;
    quantize.space = desc->space;
    quantize.input = tegroup_tensor_of(to->shape, from->cols, from->dtype, from->data);
    quantize.input.ld = from->ld;
    if (p->tokens == 0) quantize.input.data = (void *)(uintptr_t)to->shape.snapshot; /* of no rows: not read */
    quantize.gather_input.slot_of_row = (const int64_t *)map->data;
    quantize.gather_input.rows = p->tokens;
    quantize.gather_input.slots = p->k;
    if (p->tokens == 0) memset(&quantize.gather_input, 0, sizeof quantize.gather_input);
    quantize.rule = format->rule;
    quantize.output = *to;
    if (tegroup_impl_moe_permutes(to)) {
        memset(&quantize.gather_input, 0, sizeof quantize.gather_input);
        quantize.input = tegroup_impl_values_of(to);
        quantize.output.columnwise_data = NULL;
    }
    quantize.threads = desc->experts.options.threads;
    return quantize;
}

/* A router that writes the same probabilities and nothing else. */
TEGROUP_IMPL_STATIC tegroup_router_desc tegroup_impl_moe_probabilities_alone(const tegroup_router_desc *router) {
    tegroup_router_desc alone = *router;
    memset(&alone.weights, 0, sizeof alone.weights);
    memset(&alone.indices, 0, sizeof alone.indices);
    memset(&alone.counts, 0, sizeof alone.counts);
    memset(&alone.loss_gradients, 0, sizeof alone.loss_gradients);
    alone.balance_loss = alone.z_loss = NULL;
    return alone;
}

/* The router, the snapshot and the permutation. */
TEGROUP_IMPL_STATIC void tegroup_impl_moe_route(const tegroup_moe_desc *desc, const tegroup_moe_planned *p,
                                                const tegroup_impl_moe_memories *memories,
                                                tegroup_impl_moe_parts *parts) {
    const int64_t slots = tegroup_impl_mul(p->tokens, p->k);
    tegroup_router_desc *router = &parts->router;
    tegroup_layout snapshot;
    *router = desc->router;
    router->struct_size = sizeof *router;
    router->space = desc->space;
    router->experts = p->experts;
    router->workspace = tegroup_impl_moe_at(memories, TEGROUP_IMPL_MOE_ROUTER);
    router->workspace_bytes = p->router_bytes;
    if (p->given) {
        router->weights = desc->given_weights;
        router->indices = desc->router.scheme.given_indices;
    }
    if (memories->op == TEGROUP_OP_DGRAD && tegroup_impl_moe_routes_again(p)) {
        router->probabilities =
            tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_PROBABILITIES_AGAIN, p->tokens, p->experts, p->real);
        parts->router_again = tegroup_impl_moe_probabilities_alone(router);
        parts->router_again.workspace = tegroup_impl_moe_at(memories, TEGROUP_IMPL_MOE_ROUTER_AGAIN);
    } else if (memories->places->offset[TEGROUP_IMPL_MOE_ROUTER_PROBABILITIES] >= 0) {
        router->probabilities =
            tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_ROUTER_PROBABILITIES, p->tokens, p->experts, p->real);
    }
    if (p->keeps[TEGROUP_IMPL_MOE_WEIGHTS])
        router->weights = tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_ROUTER_WEIGHTS, p->tokens, p->k, p->real);
    if (p->keeps[TEGROUP_IMPL_MOE_INDICES])
        router->indices =
            tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_ROUTER_INDICES, p->tokens, p->k, TEGROUP_DTYPE_I32);
    if (p->keeps[TEGROUP_IMPL_MOE_COUNTS])
        router->counts = tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_ROUTER_COUNTS, 1, p->experts,
                                                 tegroup_impl_integer_for(slots));
    if (p->keeps_losses)
        router->loss_gradients = tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_ROUTER_LOSSES, p->sequences,
                                                         (int64_t)p->experts + 1, TEGROUP_DTYPE_F64);
    tegroup_impl_snapshot_layout(p->experts, 0, &snapshot);
    parts->permutation.struct_size = sizeof parts->permutation;
    parts->permutation.space = desc->space;
    parts->permutation.indices = router->indices;
    parts->permutation.snapshot = tegroup_impl_moe_at(memories, TEGROUP_IMPL_MOE_SNAPSHOT);
    parts->permutation.snapshot_bytes = snapshot.total_bytes;
    parts->permutation.shape =
        tegroup_shape_of(p->experts, p->capacity, 0, tegroup_sizes_of(NULL, TEGROUP_DTYPE_I64, desc->space));
    parts->permutation.shape.row_sizes.stride = p->expert_capacity;
    parts->permutation.shape.snapshot = parts->permutation.snapshot;
    parts->permutation.row_of_slot = tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_ROW_OF_SLOT, p->tokens, p->k,
                                                             tegroup_impl_integer_for(p->capacity));
    parts->permutation.slot_of_row =
        tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_SLOT_OF_ROW, 1, p->capacity,
                                tegroup_impl_moe_picks(p) ? TEGROUP_DTYPE_I64 : tegroup_impl_integer_for(slots));
    parts->permutation.workspace = tegroup_impl_moe_at(memories, TEGROUP_IMPL_MOE_PERMUTATION);
    parts->permutation.workspace_bytes = p->permutation_bytes;
    parts->permutation.threads = desc->experts.options.threads;
    if (desc->drops_by_weight) parts->permutation.weights = router->weights;
    parts->permutation.slot_weights = router->weights;
    parts->permutation.row_weights =
        tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_ROW_WEIGHTS, 1, p->capacity, p->real);
}

/* The experts between rows by expert. */
TEGROUP_IMPL_STATIC void tegroup_impl_moe_experts(const tegroup_moe_desc *desc, const tegroup_moe_planned *p,
                                                  const tegroup_impl_moe_memories *memories,
                                                  tegroup_impl_moe_parts *parts) {
    tegroup_mlp_desc *mlp = &parts->experts;
    const tegroup_shape *shape = &parts->permutation.shape;
    const int again = p->recompute && memories->op == TEGROUP_OP_WGRAD;
    *mlp = desc->experts;
    mlp->struct_size = sizeof *mlp;
    mlp->space = desc->space;
    mlp->input =
        tegroup_impl_moe_tensor(p, memories, shape, again ? TEGROUP_IMPL_MOE_INPUT_AGAIN : TEGROUP_IMPL_MOE_INPUT,
                                again ? TEGROUP_IMPL_MOE_ROWS_AGAIN : TEGROUP_IMPL_MOE_ROWS);
    mlp->activated_rule = p->rows_format.rule;
    mlp->grad_rule = p->grad_format.rule;
    mlp->out = tegroup_tensor_of(*shape, p->outputs, p->rows, tegroup_impl_moe_at(memories, TEGROUP_IMPL_MOE_OUT));
    mlp->row_scale = tegroup_impl_moe_at(memories, TEGROUP_IMPL_MOE_ROW_WEIGHTS);
    mlp->row_scale_dtype = p->real;
    mlp->fc2_bias_scaled = mlp->fc2.bias.dtype != TEGROUP_DTYPE_UNSET;
    if (p->wants_activated || p->rows_format.scaling != TEGROUP_SCALING_NONE)
        mlp->activated =
            tegroup_impl_moe_tensor(p, memories, shape, TEGROUP_IMPL_MOE_BETWEEN, TEGROUP_IMPL_MOE_ACTIVATED);
    else mlp->recompute = 0; /* nothing that wgrad would read */
    if (!p->backward) return;
    mlp->grad_output =
        tegroup_impl_moe_tensor(p, memories, shape, TEGROUP_IMPL_MOE_GRAD_OUTPUT, TEGROUP_IMPL_MOE_GRAD_ROWS);
    mlp->preactivation = tegroup_tensor_of(*shape, p->preactivation, p->rows,
                                           tegroup_impl_moe_at(memories, TEGROUP_IMPL_MOE_PREACTIVATION));
    mlp->grad_preactivation =
        tegroup_impl_moe_tensor(p, memories, shape, TEGROUP_IMPL_MOE_GRAD_BETWEEN, TEGROUP_IMPL_MOE_PREACTIVATION);
    if (p->wants_grad_tokens)
        mlp->dgrad_out =
            tegroup_tensor_of(*shape, p->width, p->rows, tegroup_impl_moe_at(memories, TEGROUP_IMPL_MOE_GRAD_INPUT));
    if (p->wants_grad_weights)
        mlp->grad_row_scale =
            tegroup_tensor_of(*shape, 1, p->real, tegroup_impl_moe_at(memories, TEGROUP_IMPL_MOE_GRAD_ROW_WEIGHTS));
}

TEGROUP_IMPL_STATIC tegroup_permute_desc tegroup_impl_moe_permute(const tegroup_moe_desc *desc, tegroup_matrix tokens,
                                                                  tegroup_matrix row_of_slot, tegroup_matrix permuted) {
    tegroup_permute_desc permute;
    memset(&permute, 0, sizeof permute);
    permute.struct_size = sizeof permute;
    permute.space = desc->space;
    permute.k = (int32_t)row_of_slot.cols;
    permute.tokens = tokens;
    permute.row_of_slot = row_of_slot;
    permute.permuted = permuted;
    permute.threads = desc->experts.options.threads;
    return permute;
}

TEGROUP_IMPL_STATIC tegroup_combine_desc tegroup_impl_moe_combine(const tegroup_moe_desc *desc, tegroup_matrix permuted,
                                                                  tegroup_matrix row_of_slot, tegroup_matrix tokens) {
    tegroup_combine_desc combine;
    memset(&combine, 0, sizeof combine);
    combine.struct_size = sizeof combine;
    combine.space = desc->space;
    combine.permuted = permuted;
    combine.row_of_slot = row_of_slot;
    combine.tokens = tokens;
    combine.threads = desc->experts.options.threads;
    return combine;
}

/* What choices have as rows of one column: a gradient of rows' weights is combined into that of the choices'. */
TEGROUP_IMPL_STATIC tegroup_matrix tegroup_impl_moe_column(const tegroup_matrix *m) {
    return tegroup_matrix_of(m->data, tegroup_impl_mul(m->rows, m->cols), 1, m->dtype);
}

TEGROUP_IMPL_STATIC void tegroup_impl_moe_parts_of(const tegroup_moe_desc *desc, const tegroup_moe_planned *p,
                                                   const tegroup_impl_moe_memories *memories,
                                                   tegroup_impl_moe_parts *parts) {
    const tegroup_matrix *row_of_slot = &parts->permutation.row_of_slot;
    tegroup_matrix grad_weights;
    memset(parts, 0, sizeof *parts);
    tegroup_impl_moe_route(desc, p, memories, parts);
    tegroup_impl_moe_experts(desc, p, memories, parts);
    parts->rows = tegroup_impl_moe_permute(
        desc, desc->tokens, *row_of_slot,
        tegroup_matrix_of(tegroup_impl_moe_permuted(&parts->experts.input), p->capacity, p->width, p->rows));
    parts->quantised_rows = tegroup_impl_moe_quantize(desc, p, &desc->tokens, &parts->permutation.slot_of_row,
                                                      &parts->experts.input, &p->rows_format);
    parts->output = tegroup_impl_moe_combine(
        desc, tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_OUT, p->capacity, p->outputs, p->rows), *row_of_slot,
        desc->output);
    parts->output.accumulate = desc->adds_to_output;
    if (!p->backward) return;
    parts->quantised_grad_rows = tegroup_impl_moe_quantize(desc, p, &desc->grad_output, &parts->permutation.slot_of_row,
                                                           &parts->experts.grad_output, &p->grad_format);
    parts->grad_rows = tegroup_impl_moe_permute(
        desc, desc->grad_output, *row_of_slot,
        tegroup_matrix_of(tegroup_impl_moe_permuted(&parts->experts.grad_output), p->capacity, p->outputs, p->rows));
    parts->grad_tokens = tegroup_impl_moe_combine(
        desc, tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_GRAD_INPUT, p->capacity, p->width, p->rows),
        *row_of_slot, desc->grad_tokens);
    parts->grad_tokens.accumulate = desc->adds_to_grad_tokens;
    grad_weights = tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_GRAD_WEIGHTS, p->tokens, p->k, p->real);
    if (p->given) grad_weights = desc->grad_weights;
    parts->grad_weights = tegroup_impl_moe_combine(
        desc, tegroup_impl_moe_matrix(memories, TEGROUP_IMPL_MOE_GRAD_ROW_WEIGHTS, p->capacity, 1, p->real),
        tegroup_impl_moe_column(row_of_slot), tegroup_impl_moe_column(&grad_weights));
    parts->router_backward.struct_size = sizeof parts->router_backward;
    parts->router_backward.space = desc->space;
    parts->router_backward.experts = p->experts;
    parts->router_backward.k = p->k;
    parts->router_backward.normalize = desc->router.normalize;
    parts->router_backward.probabilities = parts->router.probabilities;
    parts->router_backward.indices = parts->router.indices;
    parts->router_backward.counts = parts->router.counts;
    parts->router_backward.grad_weights = grad_weights;
    parts->router_backward.grad_logits = desc->grad_logits;
    parts->router_backward.balance_coefficient = desc->router.balance_coefficient;
    parts->router_backward.loss_scale = desc->loss_scale;
    parts->router_backward.scheme = desc->router.scheme;
    parts->router_backward.loss_gradients = parts->router.loss_gradients;
    parts->router_backward.logits = desc->router.logits;
    if (tegroup_impl_backward_schemed(&parts->router.scheme, &parts->router.loss_gradients))
        parts->router_backward.balance_coefficient = 0;
    parts->router_backward.threads = desc->router.threads;
}

/* ---- the plan ---- */

TEGROUP_API tegroup_status tegroup_moe_plan_make(const tegroup_moe_desc *desc, const tegroup_target *target,
                                                 tegroup_moe_plan *plan, tegroup_error *error) {
    tegroup_moe_desc taken;
    tegroup_moe_plan made;
    tegroup_impl_moe_parts parts;
    tegroup_impl_moe_places places;
    tegroup_impl_moe_memories none;
    tegroup_router_desc router;
    tegroup_layout layouts[TEGROUP_MOE_WGRAD_WORKSPACE + 1], layout;
    tegroup_status status;
    double loss;
    int memory;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_RULE(plan != NULL, ERROR_NULL_ARGUMENT, "plan", "must not be NULL", 1, 0);
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.magic = TEGROUP_MOE_PLAN_MAGIC;
    made.planned = tegroup_impl_moe_record(desc);
    TEGROUP_IMPL_TRY(tegroup_impl_moe_told(tegroup_impl_moe_check_shapes(desc, &made.planned, error), error));
    memset(&none, 0, sizeof none);
    tegroup_impl_moe_layouts(&made, layouts, &places); /* what the parts point to is not known yet */
    none.places = &places;
    none.op = TEGROUP_OP_FORWARD;
    none.planning = 1;
    tegroup_impl_moe_parts_of(desc, &made.planned, &none, &parts);
    if (!made.planned.given) {
        TEGROUP_IMPL_TRY(
            tegroup_impl_of_member("router", tegroup_impl_router_check_shapes(&parts.router, error), error));
        router = parts.router;
        if (made.planned.choice.has_losses) router.balance_loss = router.z_loss = &loss; /* calls may want either */
        TEGROUP_IMPL_TRY(tegroup_impl_of_member("router", tegroup_router_layout(&router, &layout, error), error));
        made.planned.router_bytes = layout.total_bytes;
    }
    TEGROUP_IMPL_TRY(tegroup_permutation_layout(&parts.permutation, &layout, error));
    made.planned.permutation_bytes = layout.total_bytes;
    parts.experts.row_scale = NULL;
    status = tegroup_mlp_plan_make(&parts.experts, target, &made.experts, error);
    /* The target is an argument of its own, and no part of the experts. */
    if (error && status != TEGROUP_OK && strncmp(error->field, "target", 6) == 0) return status;
    TEGROUP_IMPL_TRY(tegroup_impl_of_member("experts", status, error));
    tegroup_impl_moe_layouts(&made, layouts, &places);
    for (memory = TEGROUP_MOE_SAVED_BY_FORWARD; memory <= TEGROUP_MOE_WGRAD_WORKSPACE; memory++)
        TEGROUP_IMPL_RULE(!tegroup_impl_layout_overflowed(&layouts[memory]), ERROR_OVERFLOW, "tokens.rows",
                          "must leave what is saved, and the workspace, addressable", tegroup_impl_max_bytes(),
                          desc->tokens.rows);
    made.saved_by_forward_bytes = layouts[TEGROUP_MOE_SAVED_BY_FORWARD].total_bytes;
    made.saved_by_dgrad_bytes = layouts[TEGROUP_MOE_SAVED_BY_DGRAD].total_bytes;
    for (memory = TEGROUP_MOE_FORWARD_WORKSPACE; memory <= TEGROUP_MOE_WGRAD_WORKSPACE; memory++)
        if (layouts[memory].total_bytes > made.workspace_bytes) made.workspace_bytes = layouts[memory].total_bytes;
    *plan = made;
    return TEGROUP_OK;
}

TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_moe_check_plan(const tegroup_moe_plan *plan, tegroup_error *error) {
    TEGROUP_IMPL_RULE_PLAN(plan, TEGROUP_MOE_PLAN_MAGIC, "must be what tegroup_moe_plan_make wrote");
    return TEGROUP_OK;
}

TEGROUP_API tegroup_status tegroup_moe_layout(const tegroup_moe_plan *plan, tegroup_moe_memory memory,
                                              tegroup_layout *layout, tegroup_error *error) {
    tegroup_layout layouts[TEGROUP_MOE_WGRAD_WORKSPACE + 1];
    tegroup_impl_moe_places places;
    TEGROUP_IMPL_TRY(tegroup_impl_moe_check_plan(plan, error));
    TEGROUP_IMPL_RULE(memory != TEGROUP_MOE_MEMORY_UNSET, ERROR_UNSET, "memory", "must be set",
                      TEGROUP_MOE_SAVED_BY_FORWARD, 0);
    TEGROUP_IMPL_RULE_ENUM(memory, TEGROUP_MOE_WGRAD_WORKSPACE, "memory", "must be a tegroup_moe_memory");
    TEGROUP_IMPL_RULE(layout != NULL, ERROR_NULL_ARGUMENT, "layout", "must not be NULL", 1, 0);
    tegroup_impl_moe_layouts(plan, layouts, &places);
    *layout = layouts[memory];
    return TEGROUP_OK;
}
