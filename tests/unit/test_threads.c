/* The CPU's threads: how many a call takes, and that no bit depends on it. */
#define TEGROUP_EXTERN
#include "support.h"
#include "test.h"
#if defined(_OPENMP)
#include <omp.h>
#endif

/* The most threads that a parallel region has asked for since it was 0. Of libgomp alone: its GOMP_parallel gives way to
 * this one, which goes on as libgomp's does. */
static unsigned asked;
#if defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__)
#define ASKS 1
void GOMP_parallel_start(void (*work)(void *), void *data, unsigned threads);
void GOMP_parallel_end(void);
void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags);
void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags) {
    (void)flags;
    if (threads > asked) asked = threads;
    GOMP_parallel_start(work, data, threads);
    work(data);
    GOMP_parallel_end();
}
#else
#define ASKS 0
#endif

enum { MOST = 8 }; /* what OpenMP gives in these tests, however many cores there are */
static void most_threads(void) {
#if defined(_OPENMP)
    omp_set_num_threads(MOST);
#endif
}
static const int32_t limits[] = {1, 2, 3, 8, 0};
static unsigned taken_of(int32_t limit) { return limit > 0 ? (unsigned)limit : MOST; }

/* ---- every operation around the products -------------------------------------------------------------------------- */

enum { ROUTER, ROUTER_BACKWARD, PERMUTATION, PERMUTE, COMBINE, COMBINE_BACKWARD, FORWARD, BACKWARD, DISPATCH, COMBINE_RANKS, OPS };

typedef struct routing {
    tegroup_router_desc router;
    tegroup_router_backward_desc router_backward;
    tegroup_permutation_desc permutation;
    tegroup_permute_desc permute;
    tegroup_combine_desc combine;
    tegroup_combine_backward_desc combine_backward;
    tegroup_activation_desc forward;
    tegroup_activation_backward_desc backward;
    tegroup_ep_dispatch_desc dispatch; /* of one rank, to itself */
    tegroup_ep_combine_desc combine_ranks;
    void *window;
    tegroup_matrix indices; /* the router's, some of them dropped */
    double loss;
    int64_t *counts; /* rows of each expert */
    void *out[OPS][4];
} routing;

static tegroup_matrix empty(tegroup_dtype dtype, int64_t rows, int64_t cols) {
    return tegroup_matrix_of(guarded((size_t)(rows * cols) * size_of(dtype)), rows, cols, dtype);
}
static tegroup_matrix filled(rng *r, tegroup_dtype dtype, int64_t rows, int64_t cols) {
    tegroup_matrix m = empty(dtype, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) store(dtype, m.data, i, rng_normal(r));
    return m;
}

static tegroup_status routing_run(routing *c, int op, int32_t threads, tegroup_error *error) {
    switch (op) {
    case ROUTER: c->router.threads = threads; return tegroup_router(&c->router, NULL, error);
    case ROUTER_BACKWARD: c->router_backward.threads = threads; return tegroup_router_backward(&c->router_backward, NULL, error);
    case PERMUTATION: c->permutation.threads = threads; return tegroup_permutation_make(&c->permutation, NULL, error);
    case PERMUTE: c->permute.threads = threads; return tegroup_permute(&c->permute, NULL, error);
    case COMBINE: c->combine.threads = threads; return tegroup_combine(&c->combine, NULL, error);
    case COMBINE_BACKWARD: c->combine_backward.threads = threads; return tegroup_combine_backward(&c->combine_backward, NULL, error);
    case FORWARD: c->forward.threads = threads; return tegroup_activation_forward(&c->forward, NULL, error);
    case DISPATCH: c->dispatch.threads = threads; return tegroup_ep_dispatch(&c->dispatch, NULL, error);
    case COMBINE_RANKS: c->combine_ranks.threads = threads; return tegroup_ep_combine(&c->combine_ranks, NULL, error);
    default: c->backward.threads = threads; return tegroup_activation_backward(&c->backward, NULL, error);
    }
}

/* Descriptors of one layer, each run once by one thread, so that the next has its operands. Some choices are dropped, some
 * groups are too small for what chose them, and some rows are nobody's. */
static void routing_make(routing *c, rng *r, tegroup_dtype dtype, int64_t tokens, int32_t experts, int32_t k, int64_t width) {
    const tegroup_dtype real = dtype == TEGROUP_DTYPE_F64 ? TEGROUP_DTYPE_F64 : TEGROUP_DTYPE_F32;
    int64_t rows = 5;
    memset(c, 0, sizeof *c);
    tegroup_router_desc router = {.struct_size = sizeof router, .space = TEGROUP_SPACE_HOST, .experts = experts, .k = k, .normalize = 1,
        .logits = filled(r, dtype, tokens, experts), .probabilities = empty(real, tokens, experts), .weights = empty(real, tokens, k),
        .indices = empty(TEGROUP_DTYPE_I32, tokens, k), .counts = empty(TEGROUP_DTYPE_I64, 1, experts), .balance_coefficient = 0.5};
    router.balance_loss = (double *)guarded(sizeof(double));
    c->router = router;
    ASSERT_EQ(routing_run(c, ROUTER, 1, NULL), TEGROUP_OK);
    tegroup_router_backward_desc router_backward = {.struct_size = sizeof router_backward, .space = TEGROUP_SPACE_HOST, .experts = experts, .k = k,
        .normalize = 1, .probabilities = router.probabilities, .indices = router.indices, .counts = router.counts,
        .grad_weights = filled(r, real, tokens, k), .grad_logits = empty(dtype, tokens, experts), .balance_coefficient = 0.5};
    c->router_backward = router_backward;
    c->indices = empty(TEGROUP_DTYPE_I32, tokens, k);
    for (int64_t i = 0; i < tokens * k; i++)
        ((int32_t *)c->indices.data)[i] = rng_chance(r, 3) ? (int32_t)rng_int(r, -2, 2) * experts : ((int32_t *)router.indices.data)[i];
    c->counts = (int64_t *)scratch((size_t)experts * sizeof(int64_t));
    for (int32_t e = 0; e < experts; e++) {
        c->counts[e] = ((int64_t *)router.counts.data)[e];
        c->counts[e] = c->counts[e] > 4 && e % 3 == 0 ? c->counts[e] - 4 : c->counts[e] + e % 2;
        rows += c->counts[e];
    }
    tegroup_shape shape = tegroup_shape_of(experts, rows, width, tegroup_sizes_of(c->counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    tegroup_layout layout;
    ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, NULL), TEGROUP_OK);
    ASSERT_EQ(tegroup_shape_prepare(&shape, scratch(layout.total_bytes), layout.total_bytes, NULL, NULL), TEGROUP_OK);
    tegroup_permutation_desc permutation = {.struct_size = sizeof permutation, .space = TEGROUP_SPACE_HOST, .indices = c->indices, .shape = shape,
        .row_of_slot = empty(TEGROUP_DTYPE_I64, tokens, k), .slot_of_row = empty(TEGROUP_DTYPE_I64, 1, rows)};
    c->permutation = permutation;
    ASSERT_EQ(routing_run(c, PERMUTATION, 1, NULL), TEGROUP_OK);
    tegroup_permute_desc permute = {.struct_size = sizeof permute, .space = TEGROUP_SPACE_HOST, .k = k, .tokens = filled(r, dtype, tokens, width),
        .slot_of_row = permutation.slot_of_row, .weights = router.weights, .permuted = empty(dtype, rows, width)};
    tegroup_combine_desc combine = {.struct_size = sizeof combine, .space = TEGROUP_SPACE_HOST, .permuted = filled(r, dtype, rows, width),
        .row_of_slot = permutation.row_of_slot, .weights = router.weights, .tokens = empty(dtype, tokens, width)};
    tegroup_combine_backward_desc combine_backward = {.struct_size = sizeof combine_backward, .space = TEGROUP_SPACE_HOST, .grad_tokens = permute.tokens,
        .permuted = combine.permuted, .row_of_slot = permutation.row_of_slot, .weights = router.weights, .grad_permuted = empty(dtype, rows, width),
        .grad_weights = empty(real, tokens, k)};
    tegroup_activation_desc forward = {.struct_size = sizeof forward, .space = TEGROUP_SPACE_HOST, .activation = TEGROUP_ACTIVATION_SWIGLU,
        .snapshot = shape.snapshot, .input = filled(r, dtype, rows, 2 * width), .row_scale = filled(r, real, rows, 1), .output = empty(dtype, rows, width)};
    tegroup_activation_backward_desc backward = {.struct_size = sizeof backward, .space = TEGROUP_SPACE_HOST, .activation = forward.activation,
        .snapshot = shape.snapshot, .input = forward.input, .row_scale = forward.row_scale, .grad_output = combine.permuted,
        .grad_input = empty(dtype, rows, 2 * width), .grad_row_scale = empty(real, rows, 1)};
    const size_t window_bytes = (size_t)(rows * width) * size_of(dtype) + (size_t)rows * 8 + 8;
    c->window = guarded(window_bytes);
    tegroup_ep_dispatch_desc dispatch = {.struct_size = sizeof dispatch, .space = TEGROUP_SPACE_HOST, .row_of_slot = permutation.row_of_slot,
        .tokens = permute.tokens, .weights = router.weights, .rows = tegroup_matrix_of(c->window, rows, width, dtype)};
    dispatch.windows.ranks = 1, dispatch.windows.addresses = &c->window, dispatch.windows.bytes = window_bytes;
    dispatch.row_weights = tegroup_matrix_of((char *)c->window + ((size_t)(rows * width) * size_of(dtype) + 7) / 8 * 8, rows, 1, real);
    tegroup_ep_combine_desc combine_ranks = {.struct_size = sizeof combine_ranks, .space = TEGROUP_SPACE_HOST, .windows = dispatch.windows,
        .row_of_slot = permutation.row_of_slot, .rows = dispatch.rows, .weights = router.weights, .tokens = empty(dtype, tokens, width),
        .row_values = dispatch.row_weights, .values = empty(real, tokens, k)};
    c->dispatch = dispatch, c->combine_ranks = combine_ranks;
    c->permute = permute, c->combine = combine, c->combine_backward = combine_backward, c->forward = forward, c->backward = backward;
    void *const out[OPS][4] = {{router.balance_loss, router.counts.data, router.indices.data, router.weights.data}, {router_backward.grad_logits.data},
        {permutation.row_of_slot.data, permutation.slot_of_row.data}, {permute.permuted.data}, {combine.tokens.data},
        {combine_backward.grad_permuted.data, combine_backward.grad_weights.data}, {forward.output.data}, {backward.grad_input.data, backward.grad_row_scale.data},
        {c->window}, {combine_ranks.tokens.data, combine_ranks.values.data}};
    memcpy(c->out, out, sizeof out);
}

/* What an operation writes: poisoned, kept as one thread left it, held against that. */
static void outputs_poison(routing *c, int op) {
    for (int i = 0; i < 4 && c->out[op][i] != NULL; i++) memset(c->out[op][i], 0xa5, guarded_find(c->out[op][i])->bytes);
}
static void outputs_remember(routing *c, int op) {
    for (int i = 0; i < 4 && c->out[op][i] != NULL; i++) guarded_remember(c->out[op][i]);
}
static int64_t outputs_changed(routing *c, int op) {
    int64_t changed = 0;
    for (int i = 0; i < 4 && c->out[op][i] != NULL; i++) changed += guarded_changed(c->out[op][i]);
    return changed;
}

static void same_bits(rng *r, tegroup_dtype dtype, int64_t tokens, int large) {
    void *mark = guards_mark();
    tegroup_error error;
    routing c;
    routing_make(&c, r, dtype, tokens, 24, 5, 8);
    ASSERT_PASSING();
    for (int op = 0; op < OPS; op++)
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
            outputs_poison(&c, op);
            asked = 0;
            ASSERT_EQ(routing_run(&c, op, limits[i], &error), TEGROUP_OK);
            if (i == 0) outputs_remember(&c, op);
            ASSERT_EQ(outputs_changed(&c, op), 0);
            if (ASKS) ASSERT_EQ(asked, large ? taken_of(limits[i]) : 1);
        }
    ASSERT_EQ(guards_changed(), 0);
    guards_release(mark);
}

/* What is work for many is shared out among as many as were asked for, and what is not stays where it is. */
TEST(threads, same_bits_for_any_number) {
    rng r = rng_seed(9001);
    static const tegroup_dtype dtypes[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F64};
    most_threads();
    for (int i = 0; i < 3; i++) {
        same_bits(&r, dtypes[i], 4567, 1);
        same_bits(&r, dtypes[i], 3, 0);
        same_bits(&r, dtypes[i], 0, 0);
    }
}

/* Against brute force: a slot's row, and the counts and the loss, as many threads leave them. */
TEST(threads, routing_of_many_threads) {
    rng r = rng_seed(9002);
    routing c;
    most_threads();
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        void *mark = guards_mark();
        const int64_t tokens = 4500 + rng_int(&r, 0, 99), slots = tokens * 5;
        int64_t start[25] = {0}, next[24] = {0}, counts[24] = {0}, wrong = 0, nowhere = 0;
        double mean[24] = {0}, loss = 0;
        routing_make(&c, &r, TEGROUP_DTYPE_F32, tokens, 24, 5, 2);
        ASSERT_PASSING();
        outputs_poison(&c, ROUTER), outputs_poison(&c, PERMUTATION);
        ASSERT_EQ(routing_run(&c, ROUTER, limits[i], NULL), TEGROUP_OK);
        ASSERT_EQ(routing_run(&c, PERMUTATION, limits[i], NULL), TEGROUP_OK);
        const int64_t *row_of_slot = (const int64_t *)c.permutation.row_of_slot.data, *slot_of_row = (const int64_t *)c.permutation.slot_of_row.data;
        int64_t *slot = (int64_t *)scratch((size_t)c.permutation.shape.rows * sizeof(int64_t));
        for (int32_t e = 0; e < 24; e++) start[e + 1] = start[e] + c.counts[e];
        for (int64_t row = 0; row < c.permutation.shape.rows; row++) slot[row] = -1;
        for (int64_t s = 0; s < slots; s++) {
            const int32_t e = ((const int32_t *)c.indices.data)[s];
            const int64_t row = e >= 0 && e < 24 && next[e] < c.counts[e] ? start[e] + next[e]++ : -1;
            wrong += row_of_slot[s] != row;
            if (row >= 0) slot[row] = s;
            nowhere += row < 0;
            counts[((const int32_t *)c.router.indices.data)[s]]++;
        }
        for (int64_t row = 0; row < c.permutation.shape.rows; row++) wrong += slot_of_row[row] != slot[row];
        for (int64_t t = 0; t < tokens; t++) for (int32_t e = 0; e < 24; e++) mean[e] += (double)((const float *)c.router.probabilities.data)[t * 24 + e];
        for (int32_t e = 0; e < 24; e++) {
            wrong += ((const int64_t *)c.router.counts.data)[e] != counts[e];
            loss += 0.5 * 24 * (double)counts[e] / (double)slots * mean[e] / (double)tokens;
        }
        ASSERT_EQ(wrong, 0);
        ASSERT_GT(nowhere, 0);
        ASSERT_LE(fabs(*c.router.balance_loss - loss), (double)(tokens + 60) * 0x1p-53 * loss);
        ASSERT_EQ(guards_changed(), 0);
        guards_release(mark);
    }
}

TEST(threads, negative_is_refused) {
    rng r = rng_seed(9003);
    routing c;
    void *mark = guards_mark();
    tegroup_error error;
    routing_make(&c, &r, TEGROUP_DTYPE_F32, 6, 24, 5, 8);
    ASSERT_PASSING();
    for (int op = 0; op < OPS; op++)
        for (int32_t threads = -1; threads > -9; threads -= 7) {
            outputs_poison(&c, op);
            outputs_remember(&c, op);
            ASSERT_EQ(routing_run(&c, op, threads, &error), TEGROUP_ERROR_VALUE);
            ASSERT_STREQ(error.field, "threads");
            ASSERT_EQ(error.expected, 0);
            ASSERT_EQ(error.got, threads);
            ASSERT_EQ(outputs_changed(&c, op), 0);
        }
    guards_release(mark);
}

/* ---- prepare ------------------------------------------------------------------------------------------------------- */

/* Groups by counts; at starts; and as blocks side by side in the rows of one buffer, whose overlaps are looked for in time
 * by their number squared. lie: the last two lie in one place. */
static void prepare_case(int kind, int lie, int32_t groups) {
    rng r = rng_seed(9004);
    void *mark = guards_mark();
    int64_t *sizes = (int64_t *)scratch((size_t)groups * 8), *places = (int64_t *)scratch((size_t)groups * 8);
    tegroup_prepare_desc desc = {.struct_size = sizeof desc, .space = TEGROUP_SPACE_HOST, .clamp = lie == 2};
    tegroup_layout layout;
    tegroup_error error;
    for (int32_t g = 0; g < groups; g++) sizes[g] = kind == 2 ? 3 : rng_int(&r, 1, 40), places[g] = g;
    for (int32_t g = groups - 1; g > 0; g--) { /* in any order */
        const int64_t other = rng_int(&r, 0, g), place = places[g];
        places[g] = places[other], places[other] = place;
    }
    if (lie) places[groups - 1] = places[groups - 2];
    for (int32_t g = 0; g < groups; g++) places[g] *= kind == 2 ? 4 : 40;
    desc.shape = tegroup_shape_of(groups, 40 * (int64_t)groups, 4, tegroup_sizes_of(sizes, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    if (kind == 1) desc.shape.row_sizes.starts = places;
    if (kind == 2) desc.shape.offsets = places, desc.ld = 4 * (int64_t)groups, desc.shape.elements = 3 * desc.ld;
    ASSERT_EQ(tegroup_snapshot_layout(&desc.shape, &layout, NULL), TEGROUP_OK);
    desc.snapshot = guarded(layout.total_bytes);
    desc.snapshot_bytes = layout.total_bytes;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        desc.threads = limits[i];
        memset(desc.snapshot, 0xa5, layout.total_bytes);
        asked = 0;
        const tegroup_status status = tegroup_prepare(&desc, NULL, &error);
        if (ASKS) ASSERT_EQ(asked, groups > 256 ? taken_of(limits[i]) : 1);
        ASSERT_EQ(status, lie == 1 ? TEGROUP_ERROR_OVERLAP : TEGROUP_OK);
        if (lie == 1) ASSERT_TRUE(error.got == groups - 2 && strcmp(error.field, kind == 1 ? "shape.row_sizes.starts" : "shape.offsets") == 0);
        if (i == 0) guarded_remember(desc.snapshot);
        ASSERT_EQ(guarded_changed(desc.snapshot), 0);
        if (lie == 1) continue;
        const tegroup_snapshot_view view = tegroup_snapshot_read(desc.snapshot);
        int64_t wrong = 0;
        for (int32_t g = 0; g < groups; g++) {
            const int32_t a = g > 0 ? view.order[g - 1] : view.order[0], b = view.order[g];
            wrong += g > 0 && !(view.rows[a] > view.rows[b] || (view.rows[a] == view.rows[b] && a < b));
            wrong += lie == 0 && view.rows[g] != sizes[g];
        }
        ASSERT_EQ(wrong, 0);
        ASSERT_EQ(view.header->status, lie ? TEGROUP_SNAPSHOT_OVERLAP : 0);
        ASSERT_EQ(view.header->bad_group, lie ? groups - 2 : -1);
    }
    ASSERT_EQ(guards_changed(), 0);
    desc.threads = -1;
    ASSERT_EQ(tegroup_prepare(&desc, NULL, &error), TEGROUP_ERROR_VALUE);
    ASSERT_STREQ(error.field, "threads");
    ASSERT_EQ(guarded_changed(desc.snapshot), 0);
    guards_release(mark);
}
TEST(threads, prepare) {
    static const int32_t groups[] = {3, 128, 513, 1000};
    most_threads();
    for (int g = 0; g < 4; g++)
        for (int kind = 0; kind < 3; kind++)
            for (int lie = 0; lie < (kind > 0 ? 3 : 1); lie++)
                if (kind < 2 || g != 1) prepare_case(kind, lie, groups[g]); /* 128 side by side are looked at by many */
}

/* ---- products, and the layers that hand the number on ----------------------------------------------------------------- */

/* One token of a small model is work for one thread; many tokens are for as many as the options say, in the activations,
 * too. */
static void mlp_case(int64_t tokens, int32_t threads, unsigned wanted) {
    void *mark = guards_mark();
    rng r = rng_seed(9005);
    int64_t counts[8] = {0}, rows = 2 * tokens;
    tegroup_layout layout;
    tegroup_mlp_plan plan;
    tegroup_error error;
    for (int64_t i = 0; i < rows; i++) counts[i * 3 % 8]++;
    tegroup_shape shape = tegroup_shape_of(8, rows, 64, tegroup_sizes_of(counts, TEGROUP_DTYPE_I64, TEGROUP_SPACE_HOST));
    ASSERT_EQ(tegroup_snapshot_layout(&shape, &layout, NULL), TEGROUP_OK);
    ASSERT_EQ(tegroup_shape_prepare(&shape, scratch(layout.total_bytes), layout.total_bytes, NULL, NULL), TEGROUP_OK);
#define ROWS(make, width) tegroup_tensor_of(shape, width, TEGROUP_DTYPE_F32, make.data)
    tegroup_mlp_desc desc = {.struct_size = sizeof desc, .space = TEGROUP_SPACE_HOST, .activation = TEGROUP_ACTIVATION_SWIGLU, .options.threads = threads};
    desc.fc1.weight = tegroup_tensor_uniform(8, 64, 64, TEGROUP_DTYPE_F32, filled(&r, TEGROUP_DTYPE_F32, 8 * 64, 64).data);
    desc.fc2.weight = tegroup_tensor_uniform(8, 64, 32, TEGROUP_DTYPE_F32, filled(&r, TEGROUP_DTYPE_F32, 8 * 64, 32).data);
    desc.input = ROWS(filled(&r, TEGROUP_DTYPE_F32, rows, 64), 64);
    desc.out = ROWS(empty(TEGROUP_DTYPE_F32, rows, 64), 64);
    desc.grad_output = ROWS(filled(&r, TEGROUP_DTYPE_F32, rows, 64), 64);
    desc.preactivation = ROWS(empty(TEGROUP_DTYPE_F32, rows, 64), 64);
    desc.activated = ROWS(empty(TEGROUP_DTYPE_F32, rows, 32), 32);
    desc.grad_preactivation = ROWS(empty(TEGROUP_DTYPE_F32, rows, 64), 64);
    desc.recompute = 1;
    ASSERT_EQ(tegroup_mlp_plan_make(&desc, NULL, &plan, &error), TEGROUP_OK);
    desc.options.workspace = scratch(plan.workspace_bytes);
    desc.options.workspace_bytes = plan.workspace_bytes;
    asked = 0;
    ASSERT_EQ(tegroup_mlp_forward(&plan, &desc, NULL, &error), TEGROUP_OK);
    if (ASKS) ASSERT_EQ(asked, wanted);
    asked = 0;
    ASSERT_EQ(tegroup_mlp_dgrad(&plan, &desc, NULL, &error), TEGROUP_OK);
    if (ASKS) ASSERT_EQ(asked, wanted);
    desc.options.threads = -4;
    ASSERT_EQ(tegroup_mlp_forward(&plan, &desc, NULL, &error), TEGROUP_ERROR_VALUE);
    ASSERT_STREQ(error.field, "options.threads");
    ASSERT_EQ(error.got, -4);

    tegroup_chain_op op = {.kind = TEGROUP_CHAIN_ACTIVATION, .activation = TEGROUP_ACTIVATION_SILU};
    tegroup_chain_argument argument = {.out = desc.out, .grad_input = desc.preactivation};
    tegroup_chain_desc chain = {.struct_size = sizeof chain, .space = TEGROUP_SPACE_HOST, .ops = &op, .op_count = 1, .arguments = &argument,
        .argument_count = 1, .input = desc.input, .grad_output = desc.grad_output, .options.threads = threads};
    tegroup_chain_plan chain_plan;
    ASSERT_EQ(tegroup_chain_plan_make(&chain, NULL, &chain_plan, &error), TEGROUP_OK);
    chain.saved = scratch(chain_plan.saved_bytes), chain.saved_bytes = chain_plan.saved_bytes;
    chain.options.workspace = scratch(chain_plan.workspace_bytes), chain.options.workspace_bytes = chain_plan.workspace_bytes;
    asked = 0;
    ASSERT_EQ(tegroup_chain_forward(&chain_plan, &chain, NULL, &error), TEGROUP_OK);
    if (ASKS) ASSERT_EQ(asked, wanted);
    asked = 0;
    ASSERT_EQ(tegroup_chain_backward(&chain_plan, &chain, NULL, &error), TEGROUP_OK);
    if (ASKS) ASSERT_EQ(asked, wanted);
    ASSERT_EQ(guards_changed(), 0);
    guards_release(mark);
}
TEST(threads, layers_take_what_their_options_say) {
    most_threads();
    for (int32_t threads = 0; threads <= 3; threads++) {
        mlp_case(1, threads, 1);
        mlp_case(500, threads, taken_of(threads));
    }
}

/* A product forks for its sum over k, for its tail and for its bias gradient, each alone. */
TEST(threads, products) {
    static const struct { int64_t rows, n, k, tail_rows; int bias; unsigned wanted; } cases[] = {
        {1, 16, 16, 0, 0, 1}, {1, 512, 512, 0, 0, 3}, {0, 512, 512, 0, 0, 1}, {0, 64, 8, 2000, 0, 3}, {0, 64, 8, 200, 0, 1}, {5000, 64, 0, 0, 1, 3}, {50, 64, 0, 0, 1, 1}};
    most_threads();
    for (int i = 0; i < 7; i++) {
        int64_t m[2] = {cases[i].rows, 0};
        spec s = {.op = cases[i].bias ? TEGROUP_OP_WGRAD : TEGROUP_OP_FORWARD, .groups = 2, .m = m, .n = cases[i].n, .k = cases[i].k, .encoding = TEGROUP_ENCODING_COUNTS,
                  .tail_rows = cases[i].tail_rows, .bias = cases[i].bias, .threads = 3, .seed = 9006};
        if (cases[i].tail_rows > 0) s.tail = TEGROUP_TAIL_ZERO;
        problem p;
        problem_make(&p, &s);
        ASSERT_EQ(problem_plan(&p), TEGROUP_OK);
        ASSERT_EQ(problem_prepare(&p), TEGROUP_OK);
        asked = 0;
        ASSERT_EQ(tegroup_gemm(&p.plan, &p.desc, NULL, &p.error), TEGROUP_OK);
        if (ASKS) ASSERT_EQ(asked, cases[i].wanted);
        problem_release(&p);
    }
}

TEST_MAIN()
