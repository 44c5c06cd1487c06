/* An MoE layer whose experts are shared out over ranks: router, dispatch, experts, combine, and back. Every rank runs the
 * same calls; what crosses ranks is a transport of three functions, which ep_mpi.c and ep_nccl.cu have. docs/ep.md has
 * the picture. The same file serves host memory and a GPU's.
 *
 * A program defines before it includes this
 *     void give_up(const char *format, ...)             one line, and the end of all ranks
 *     void *ep_memory(size_t bytes)                      zeros, where calls work, TEGROUP_ALIGNMENT-aligned
 *     void ep_put(void *there, const void *here, size_t) and ep_get(void *here, const void *there, size_t): copies between
 *                                                        host memory and where calls work; ep_get waits for the stream
 */
#ifndef EP_LAYER_H
#define EP_LAYER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What one rank sends or receives, where windows are not reached. */
typedef struct ep_message {
    int32_t peer;
    void *data;
    size_t bytes;
} ep_message;

typedef struct ep_transport {
    void *self;
    /* Stores this rank's counts into its row of each window's matrix of counts, and meets. */
    void (*share_counts)(void *self, const int32_t *counts, int32_t experts);
    /* Returns, or lets the stream go on, when every rank has come here: what ranks stored before is seen by all. It ends
     * the program when one does not come, or has another digest than `report` says. */
    void (*meet)(void *self, const tegroup_ep_report *report);
    /* Sends and receives; messages from one rank to another arrive in the order in which they were sent. With it `meet` is
     * not called and may be NULL. NULL: windows are reached by plain stores. */
    void (*exchange)(void *self, const ep_message *sends, const ep_message *receives, int32_t count);
} ep_transport;

/* The pieces of a window. */
typedef enum ep_piece {
    EP_COUNTS,
    EP_SIGNALS,
    EP_ROWS,
    EP_WEIGHTS,
    EP_LINKS,
    EP_OUT,
    EP_GRAD_ROWS,
    EP_DGRAD_OUT,
    EP_GRAD_WEIGHTS,
    EP_PIECES
} ep_piece;

/* What crosses ranks, where windows are reached. */
typedef enum ep_crossing {
    EP_EACH_SLOT,
    EP_TOKENS_ONCE, /* a token goes once to a rank, however many of its experts are there; one rank's bits */
    EP_SUMS_ONCE    /* and its results come back as one sum, with one rounding more for each rank */
} ep_crossing;

typedef struct ep_size {
    tegroup_space space;
    tegroup_dtype dtype;
    int32_t ranks, rank, experts, k;         /* experts: of all ranks */
    int64_t tokens, width, hidden, capacity; /* tokens: of this rank; capacity: rows of a window */
    ep_crossing crossing;
} ep_size;

typedef struct ep_layer {
    ep_size size;
    size_t at[EP_PIECES], pack_at[EP_PIECES];
    char *window, *pack; /* this rank's; the rows as they are sent and come back, where windows are not reached */
    void *pack_address[1];
    int64_t *sent_rows,
        *placed; /* on the host, where windows are not reached: rows to each expert; [ranks][experts here]
                                    first row of the window and rows of each rank, in pairs */
    tegroup_ep_report *report;
    tegroup_router_desc router;
    tegroup_router_backward_desc router_backward;
    tegroup_ep_sizes_desc sizes;
    tegroup_prepare_desc sent, received;
    tegroup_permutation_desc map;
    tegroup_ep_dispatch_desc dispatch, dispatch_grad;
    tegroup_ep_links_desc expand, expand_grad, reduce, reduce_grad;
    tegroup_ep_combine_desc combine, combine_grad;
    tegroup_mlp_desc mlp;
    tegroup_mlp_plan plan;
} ep_layer;

static tegroup_error ep_error;
static void ep_must(tegroup_status status) {
    char text[512];
    if (status == TEGROUP_OK) return;
    tegroup_error_text(&ep_error, text, sizeof text);
    give_up("%s", text);
}

static size_t ep_bytes(tegroup_dtype dtype) { return (size_t)tegroup_dtype_bits(dtype) / 8; }
static size_t ep_row_bytes(const ep_size *s, ep_piece piece) {
    return piece == EP_WEIGHTS || piece == EP_GRAD_WEIGHTS ? sizeof(float)
           : piece == EP_LINKS                             ? sizeof(int32_t)
                                                           : (size_t)s->width * ep_bytes(s->dtype);
}

/* Where pieces lie in a window of so many rows: the same on every rank. Returns its bytes. */
static size_t ep_window(const ep_size *s, int64_t rows, size_t at[EP_PIECES]) {
    size_t bytes = 0;
    for (int piece = 0; piece < EP_PIECES; piece++) {
        at[piece] = bytes;
        bytes += piece == EP_COUNTS    ? sizeof(int32_t) * (size_t)s->ranks * (size_t)s->experts
                 : piece == EP_SIGNALS ? sizeof(uint64_t) * (size_t)s->ranks
                                       : (size_t)rows * ep_row_bytes(s, (ep_piece)piece);
        bytes = (bytes + TEGROUP_ALIGNMENT - 1) / TEGROUP_ALIGNMENT * TEGROUP_ALIGNMENT;
    }
    return bytes;
}

static tegroup_matrix ep_matrix(int64_t rows, int64_t cols, tegroup_dtype dtype) {
    return tegroup_matrix_of(ep_memory((size_t)(rows * cols) * ep_bytes(dtype)), rows, cols, dtype);
}

static void ep_make_routing(ep_layer *l) {
    const ep_size *s = &l->size;
    const int32_t here = s->experts / s->ranks;
    l->router.struct_size = sizeof l->router;
    l->router.space = s->space;
    l->router.experts = s->experts;
    l->router.k = s->k;
    l->router.normalize = 1;
    l->router.logits = ep_matrix(s->tokens, s->experts, TEGROUP_DTYPE_F32);
    l->router.probabilities = ep_matrix(s->tokens, s->experts, TEGROUP_DTYPE_F32);
    l->router.weights = ep_matrix(s->tokens, s->k, TEGROUP_DTYPE_F32);
    l->router.indices = ep_matrix(s->tokens, s->k, TEGROUP_DTYPE_I32);
    l->router.counts = ep_matrix(1, s->experts, TEGROUP_DTYPE_I32);
    tegroup_layout layout;
    ep_must(tegroup_router_layout(&l->router, &layout, &ep_error));
    l->router.workspace = ep_memory(layout.total_bytes);
    l->router.workspace_bytes = layout.total_bytes;

    l->router_backward.struct_size = sizeof l->router_backward;
    l->router_backward.space = s->space;
    l->router_backward.experts = s->experts;
    l->router_backward.k = s->k;
    l->router_backward.normalize = 1;
    l->router_backward.probabilities = l->router.probabilities;
    l->router_backward.indices = l->router.indices;
    l->router_backward.grad_weights = ep_matrix(s->tokens, s->k, TEGROUP_DTYPE_F32);
    l->router_backward.grad_logits = ep_matrix(s->tokens, s->experts, TEGROUP_DTYPE_F32);

    l->sizes.struct_size = sizeof l->sizes;
    l->sizes.space = s->space;
    l->sizes.ranks = s->ranks;
    l->sizes.rank = s->rank;
    l->sizes.capacity = s->capacity;
    l->sizes.counts = tegroup_matrix_of(l->window + l->at[EP_COUNTS], s->ranks, s->experts, TEGROUP_DTYPE_I32);
    l->sizes.send_rows = ep_matrix(1, s->experts, TEGROUP_DTYPE_I64);
    l->sizes.send_starts = ep_matrix(1, s->experts, TEGROUP_DTYPE_I64);
    l->sizes.receive_rows = ep_matrix(1, here, TEGROUP_DTYPE_I64);
    l->sizes.report = l->report = (tegroup_ep_report *)ep_memory(sizeof *l->report);
}

/* The snapshot of some rows, and a shape that has it. */
static tegroup_shape ep_make_snapshot(tegroup_prepare_desc *prepare, tegroup_shape shape) {
    tegroup_layout layout;
    ep_must(tegroup_snapshot_layout(&shape, &layout, &ep_error));
    prepare->struct_size = sizeof *prepare;
    prepare->shape = shape;
    prepare->space = shape.row_sizes.space;
    shape.snapshot = prepare->snapshot = ep_memory(layout.total_bytes);
    prepare->snapshot_bytes = layout.total_bytes;
    return shape;
}

static tegroup_mlp_weights ep_weights(int32_t experts, int64_t n, int64_t k, tegroup_dtype dtype, int with_gradients) {
    tegroup_mlp_weights w;
    memset(&w, 0, sizeof w);
    w.weight = tegroup_tensor_uniform(experts, n, k, dtype, ep_memory((size_t)(experts * n * k) * ep_bytes(dtype)));
    if (with_gradients)
        w.main_grad =
            tegroup_tensor_uniform(experts, n, k, TEGROUP_DTYPE_F32, ep_memory((size_t)(experts * n * k) * 4));
    return w;
}

static void ep_make_experts(ep_layer *l, tegroup_shape rows, int with_gradients) {
    const ep_size *s = &l->size;
    const int32_t here = s->experts / s->ranks;
    l->mlp.struct_size = sizeof l->mlp;
    l->mlp.space = s->space;
    l->mlp.activation = TEGROUP_ACTIVATION_SWIGLU;
    l->mlp.fc1 = ep_weights(here, 2 * s->hidden, s->width, s->dtype, with_gradients);
    l->mlp.fc2 = ep_weights(here, s->width, s->hidden, s->dtype, with_gradients);
    l->mlp.input = tegroup_tensor_of(rows, s->width, s->dtype, l->window + l->at[EP_ROWS]);
    l->mlp.out = tegroup_tensor_of(rows, s->width, s->dtype, l->window + l->at[EP_OUT]);
    l->mlp.row_scale = l->window + l->at[EP_WEIGHTS];
    l->mlp.row_scale_dtype = TEGROUP_DTYPE_F32;
    if (with_gradients) {
        l->mlp.preactivation = tegroup_tensor_of(rows, 2 * s->hidden, s->dtype,
                                                 ep_memory((size_t)(s->capacity * 2 * s->hidden) * ep_bytes(s->dtype)));
        l->mlp.grad_preactivation = l->mlp.preactivation; /* which dgrad uses up */
        l->mlp.activated = tegroup_tensor_of(rows, s->hidden, s->dtype,
                                             ep_memory((size_t)(s->capacity * s->hidden) * ep_bytes(s->dtype)));
        l->mlp.grad_output = tegroup_tensor_of(rows, s->width, s->dtype, l->window + l->at[EP_GRAD_ROWS]);
        l->mlp.dgrad_out = tegroup_tensor_of(rows, s->width, s->dtype, l->window + l->at[EP_DGRAD_OUT]);
        l->mlp.grad_row_scale = tegroup_tensor_of(rows, 1, TEGROUP_DTYPE_F32, l->window + l->at[EP_GRAD_WEIGHTS]);
    }
    ep_must(tegroup_mlp_plan_make(&l->mlp, NULL, &l->plan, &ep_error));
    l->mlp.options.workspace = ep_memory(l->plan.workspace_bytes);
    l->mlp.options.workspace_bytes = l->plan.workspace_bytes;
}

/* Rows go into the windows, or, where those are not reached, into `pack`, a window of this rank alone. */
static void ep_make_exchange(ep_layer *l, tegroup_ep_windows windows, const size_t *at, int64_t capacity) {
    const ep_size *s = &l->size;
    char *own = (char *)windows.addresses[windows.rank];
    l->dispatch.struct_size = sizeof l->dispatch;
    l->dispatch.space = s->space;
    l->dispatch.windows = windows;
    l->dispatch.row_of_slot = l->map.row_of_slot;
    if (s->crossing) l->dispatch.row_links = tegroup_matrix_of(own + at[EP_LINKS], capacity, 1, TEGROUP_DTYPE_I32);
    l->dispatch.tokens = ep_matrix(s->tokens, s->width, s->dtype);
    l->dispatch_grad = l->dispatch;
    l->dispatch_grad.tokens = ep_matrix(s->tokens, s->width, s->dtype);
    l->dispatch_grad.rows = tegroup_matrix_of(own + at[EP_GRAD_ROWS], capacity, s->width, s->dtype);
    l->dispatch.rows = tegroup_matrix_of(own + at[EP_ROWS], capacity, s->width, s->dtype);
    l->dispatch.weights = l->router.weights;
    l->dispatch.row_weights = tegroup_matrix_of(own + at[EP_WEIGHTS], capacity, 1, TEGROUP_DTYPE_F32);

    l->combine.struct_size = sizeof l->combine;
    l->combine.space = s->space;
    l->combine.windows = windows;
    l->combine.row_of_slot = l->map.row_of_slot;
    l->combine.by_owner = s->crossing == EP_SUMS_ONCE;
    l->combine_grad = l->combine;
    l->combine.rows = tegroup_matrix_of(own + at[EP_OUT], capacity, s->width, s->dtype);
    l->combine.tokens = ep_matrix(s->tokens, s->width, s->dtype);
    l->combine_grad.rows = tegroup_matrix_of(own + at[EP_DGRAD_OUT], capacity, s->width, s->dtype);
    l->combine_grad.tokens = ep_matrix(s->tokens, s->width, s->dtype);
    l->combine_grad.row_values = tegroup_matrix_of(own + at[EP_GRAD_WEIGHTS], capacity, 1, TEGROUP_DTYPE_F32);
    l->combine_grad.values = l->router_backward.grad_weights;

    l->expand.struct_size = sizeof l->expand;
    l->expand.space = s->space;
    l->expand.shape = l->mlp.input.shape;
    l->expand.row_links = l->dispatch.row_links;
    l->expand_grad = l->reduce = l->reduce_grad = l->expand;
    l->expand.rows = l->dispatch.rows;
    l->expand_grad.rows = l->dispatch_grad.rows;
    l->reduce.rows = l->combine.rows;
    l->reduce_grad.rows = l->combine_grad.rows;
}

/* addresses: [ranks], of the windows; where they are not reached, this rank's own alone is looked at. */
static void ep_layer_make(ep_layer *l, const ep_size *size, void *const *addresses, int reached, int with_gradients) {
    const int32_t here = size->experts / size->ranks;
    const int64_t slots = size->tokens * size->k, rows = reached ? size->ranks * size->capacity : slots;
    tegroup_ep_windows windows;
    tegroup_layout layout;
    memset(l, 0, sizeof *l);
    l->size = *size;
    windows.ranks = size->ranks;
    windows.rank = size->rank;
    windows.addresses = addresses;
    windows.bytes = ep_window(size, size->capacity, l->at);
    l->window = (char *)addresses[size->rank];
    ep_make_routing(l);

    tegroup_sizes sent = tegroup_sizes_of(l->sizes.send_rows.data, TEGROUP_DTYPE_I64, size->space);
    if (reached) sent.starts = l->sizes.send_starts.data; /* else an expert's rows after another's */
    l->map.struct_size = sizeof l->map;
    l->map.space = size->space;
    l->map.shape = ep_make_snapshot(&l->sent, tegroup_shape_of(size->experts, rows, 1, sent));
    l->map.indices = l->router.indices;
    l->map.row_of_slot = ep_matrix(size->tokens, size->k, TEGROUP_DTYPE_I32);
    ep_must(tegroup_permutation_layout(&l->map, &layout, &ep_error));
    l->map.workspace = ep_memory(layout.total_bytes);
    l->map.workspace_bytes = layout.total_bytes;

    const tegroup_sizes received = tegroup_sizes_of(l->sizes.receive_rows.data, TEGROUP_DTYPE_I64, size->space);
    ep_make_experts(l, ep_make_snapshot(&l->received, tegroup_shape_of(here, size->capacity, size->width, received)),
                    with_gradients);
    if (!reached) {
        if (size->crossing) give_up("tokens and sums cross once where windows are reached alone");
        l->sent_rows = (int64_t *)malloc(sizeof *l->sent_rows * (size_t)size->experts);
        l->placed = (int64_t *)malloc(2 * sizeof *l->placed * (size_t)size->experts);
        windows.bytes = ep_window(size, slots, l->pack_at);
        l->pack_address[0] = l->pack = (char *)ep_memory(windows.bytes);
        windows.ranks = 1;
        windows.rank = 0;
        windows.addresses = l->pack_address;
    }
    ep_make_exchange(l, windows, reached ? l->at : l->pack_at, reached ? size->capacity : slots);
}

/* ---- where windows are not reached: messages ---- */

/* The host has to know how many rows go where: once a step it reads the counts, which waits for them, and works out
 * what each rank sends by the same call that the ranks make. */
static void ep_read_counts(ep_layer *l) {
    const ep_size *s = &l->size;
    const int32_t here = s->experts / s->ranks;
    const size_t count = (size_t)s->ranks * (size_t)s->experts;
    int32_t *counts = (int32_t *)malloc(sizeof *counts * count);
    int64_t *rows = (int64_t *)malloc(3 * sizeof *rows * (size_t)s->experts), *starts = rows + s->experts;
    tegroup_ep_sizes_desc d = l->sizes;
    ep_get(counts, l->sizes.counts.data, sizeof *counts * count);
    d.space = TEGROUP_SPACE_HOST;
    d.counts.data = counts;
    d.send_rows.data = rows;
    d.send_starts.data = starts;
    d.receive_rows.data = starts + s->experts;
    d.report = NULL;
    for (d.rank = 0; d.rank < s->ranks; d.rank++) {
        ep_must(tegroup_ep_sizes(&d, NULL, &ep_error));
        if (d.rank == s->rank) memcpy(l->sent_rows, rows, sizeof *rows * (size_t)s->experts);
        for (int32_t e = 0; e < here; e++) {
            int64_t *placed = l->placed + 2 * (d.rank * here + e);
            placed[0] = starts[s->rank * here + e] - s->rank * s->capacity;
            placed[1] = rows[s->rank * here + e];
        }
    }
    free(counts), free(rows);
}

/* The rows of a piece go from `pack` to their owners' windows, or back. */
static void ep_carry(ep_layer *l, const ep_transport *t, ep_piece piece, int back) {
    const ep_size *s = &l->size;
    const int32_t here = s->experts / s->ranks;
    const size_t bytes = ep_row_bytes(s, piece);
    int64_t next = 0;
    ep_message *outs = (ep_message *)calloc((size_t)s->experts, sizeof *outs),
               *ins = (ep_message *)calloc((size_t)s->experts, sizeof *ins);
    for (int32_t e = 0; e < s->experts; next += l->sent_rows[e++]) {
        outs[e].peer = e / here;
        outs[e].data = l->pack + l->pack_at[piece] + (size_t)next * bytes;
        outs[e].bytes = (size_t)l->sent_rows[e] * bytes;
    }
    for (int32_t i = 0; i < s->experts; i++) {
        ins[i].peer = i / here;
        ins[i].data = l->window + l->at[piece] + (size_t)l->placed[2 * i] * bytes;
        ins[i].bytes = (size_t)l->placed[2 * i + 1] * bytes;
    }
    t->exchange(t->self, back ? ins : outs, back ? outs : ins, s->experts);
    free(outs), free(ins);
}

/* Rows are at their experts when this is over, or back where they came from. */
static void ep_cross(ep_layer *l, const ep_transport *t, ep_piece rows, ep_piece values, int back) {
    if (!t->exchange) {
        t->meet(t->self, l->report);
        return;
    }
    ep_carry(l, t, rows, back);
    if (values != rows) ep_carry(l, t, values, back);
}

/* ---- the layer ---- */

static void ep_forward(ep_layer *l, const ep_transport *t, struct CUstream_st *stream) {
    ep_must(tegroup_router(&l->router, stream, &ep_error));
    t->share_counts(t->self, (const int32_t *)l->router.counts.data, l->size.experts);
    ep_must(tegroup_ep_sizes(&l->sizes, stream, &ep_error));
    ep_must(tegroup_prepare(&l->sent, stream, &ep_error));
    ep_must(tegroup_permutation_make(&l->map, stream, &ep_error));
    ep_must(tegroup_prepare(&l->received, stream, &ep_error));
    ep_must(tegroup_ep_dispatch(&l->dispatch, stream, &ep_error));
    if (t->exchange) ep_read_counts(l);
    ep_cross(l, t, EP_ROWS, EP_WEIGHTS, 0);
    if (l->size.crossing) ep_must(tegroup_ep_expand(&l->expand, stream, &ep_error));
    ep_must(tegroup_mlp_forward(&l->plan, &l->mlp, stream, &ep_error));
    if (l->size.crossing == EP_SUMS_ONCE) ep_must(tegroup_ep_reduce(&l->reduce, stream, &ep_error));
    ep_cross(l, t, EP_OUT, EP_OUT, 1);
    ep_must(tegroup_ep_combine(&l->combine, stream, &ep_error));
}

static void ep_dgrad(ep_layer *l, const ep_transport *t, struct CUstream_st *stream) {
    ep_must(tegroup_ep_dispatch(&l->dispatch_grad, stream, &ep_error));
    ep_cross(l, t, EP_GRAD_ROWS, EP_GRAD_ROWS, 0);
    if (l->size.crossing) ep_must(tegroup_ep_expand(&l->expand_grad, stream, &ep_error));
    ep_must(tegroup_mlp_dgrad(&l->plan, &l->mlp, stream, &ep_error));
    if (l->size.crossing == EP_SUMS_ONCE) ep_must(tegroup_ep_reduce(&l->reduce_grad, stream, &ep_error));
    ep_cross(l, t, EP_DGRAD_OUT, EP_GRAD_WEIGHTS, 1);
    ep_must(tegroup_ep_combine(&l->combine_grad, stream, &ep_error));
    ep_must(tegroup_router_backward(&l->router_backward, stream, &ep_error));
}

static void ep_wgrad(ep_layer *l, struct CUstream_st *stream) {
    ep_must(tegroup_mlp_wgrad(&l->plan, &l->mlp, stream, &ep_error));
}

/* Whether all rows had a place. Waits for the stream. */
static void ep_look(const ep_layer *l) {
    tegroup_ep_report report;
    ep_get(&report, l->report, sizeof report);
    if (report.status & TEGROUP_SNAPSHOT_NEGATIVE)
        give_up("rank %d counts fewer than 0 rows for an expert", report.bad_source);
    if (report.status & TEGROUP_SNAPSHOT_CAPACITY)
        give_up("the window of rank %d is too small: %lld rows have no place, with room for %lld", report.full_owner,
                (long long)report.dropped, (long long)l->size.capacity);
}

#endif
