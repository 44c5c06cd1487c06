/* Expert parallelism: several ranks as several windows in one memory, on the CPU or on a GPU. Where rows go is worked out
 * here row by row, by the order that the header promises; what combine adds is held against tegroup_combine on all windows
 * side by side. A program defines before it includes this: EP_SPACE, where calls work; EP_AT(memory), the address there of
 * a guarded buffer; EP_UP(mark) and EP_DOWN(), which bring all buffers there and back. */
#ifndef TEGROUP_TESTS_EP_H
#define TEGROUP_TESTS_EP_H

#include "support.h"
#include "test.h"

enum { MOST_RANKS = 5, MOST_HERE = 20, MOST_TOKENS = 17, MOST_WIDTH = 300, MOST_K = 64 };

/* Ranks with tokens, choices and counts, and windows of so many rows. */
typedef struct world {
    int32_t ranks, experts, k;
    int64_t capacity, alignment;
    int64_t tokens[MOST_RANKS];
    tegroup_matrix indices[MOST_RANKS], counts, maps[MOST_RANKS];
    tegroup_dtype integers;
    void *mark;
} world;

static int64_t whole(const tegroup_matrix *m, int64_t i) {
    return m->dtype == TEGROUP_DTYPE_I32 ? ((int32_t *)m->data)[i] : ((int64_t *)m->data)[i];
}
static void set_whole(const tegroup_matrix *m, int64_t i, int64_t x) {
    if (m->dtype == TEGROUP_DTYPE_I32) ((int32_t *)m->data)[i] = (int32_t)x;
    else ((int64_t *)m->data)[i] = x;
}
static tegroup_matrix fresh(tegroup_dtype dtype, int64_t rows, int64_t cols) {
    return tegroup_matrix_of(guarded((size_t)(rows * cols) * size_of(dtype)), rows, cols, dtype);
}
static tegroup_matrix at(tegroup_matrix m) { /* where calls work */
    if (m.data != NULL) m.data = EP_AT(m.data);
    return m;
}
static void went_well(tegroup_status status, const tegroup_error *error) {
    char text[400];
    if (status == TEGROUP_OK) return;
    tegroup_error_text(error, text, sizeof text);
    TEST_FAIL("%s\n", text);
}

/* Random choices, some of them dropped, and what each rank counts. */
static void choose(const world *w, rng *r) {
    for (int64_t i = 0; i < w->ranks * w->experts; i++) set_whole(&w->counts, i, 0);
    for (int32_t s = 0; s < w->ranks; s++)
        for (int64_t i = 0; i < w->tokens[s] * w->k; i++) {
            const int64_t e = rng_chance(r, 5) ? -1 : rng_int(r, 0, w->experts - 1), to = s * w->experts + e;
            set_whole(&w->indices[s], i, e);
            if (e >= 0) set_whole(&w->counts, to, whole(&w->counts, to) + 1);
        }
}

static world world_make(rng *r) {
    world w;
    memset(&w, 0, sizeof w);
    w.mark = guards_mark();
    w.ranks = (int32_t)rng_int(r, 1, MOST_RANKS);
    const int many = rng_chance(r, 15); /* choices, of many experts */
    w.experts = w.ranks * (int32_t)rng_int(r, 1, many ? MOST_HERE : 4);
    w.k = (int32_t)rng_int(r, 1, w.experts < MOST_K && (many || w.experts < 4) ? w.experts : many ? MOST_K : 4);
    w.capacity = rng_chance(r, 60) ? MOST_RANKS * MOST_TOKENS * w.k + MOST_HERE * 8 : rng_int(r, 0, 40);
    w.alignment = rng_chance(r, 50) ? rng_int(r, 0, 8) : 0;
    w.integers = rng_chance(r, 50) ? TEGROUP_DTYPE_I32 : TEGROUP_DTYPE_I64;
    w.counts = fresh(w.integers, w.ranks, w.experts);
    for (int32_t s = 0; s < w.ranks; s++) {
        w.tokens[s] = rng_int(r, 0, MOST_TOKENS);
        w.indices[s] = fresh(w.integers, w.tokens[s], w.k);
        w.maps[s] = fresh(w.integers, w.tokens[s], w.k);
    }
    choose(&w, r);
    return w;
}

/* The row of each slot of rank `source`, by laying out every window from its first row on. */
static void places(const world *w, int32_t source, int64_t *rows) {
    const int32_t here = w->experts / w->ranks;
    for (int64_t i = 0; i < w->tokens[source] * w->k; i++) rows[i] = -1;
    for (int32_t owner = 0; owner < w->ranks; owner++) {
        int64_t next = 0;
        for (int32_t e = owner * here; e < (owner + 1) * here; e++) {
            while (w->alignment > 1 && next % w->alignment != 0) next++;
            for (int32_t s = 0; s < w->ranks; s++)
                for (int64_t i = 0; i < w->tokens[s] * w->k; i++) {
                    if (whole(&w->indices[s], i) != e) continue;
                    if (s == source && next < w->capacity) rows[i] = owner * w->capacity + next;
                    next++;
                }
        }
    }
}

/* What a rank makes of the counts, and the memory for it. */
typedef struct sized {
    tegroup_ep_sizes_desc desc; /* of guarded buffers on the host */
    void *snapshot, *received, *workspace; /* received: of this rank's experts */
} sized;
enum { SNAPSHOT_BYTES = 65536 };

static sized sized_make(const world *w, int32_t rank) {
    sized x;
    memset(&x, 0, sizeof x);
    x.desc.struct_size = sizeof x.desc;
    x.desc.space = EP_SPACE;
    x.desc.ranks = w->ranks;
    x.desc.rank = rank;
    x.desc.capacity = w->capacity;
    x.desc.alignment = w->alignment;
    x.desc.counts = w->counts;
    x.desc.send_rows = fresh(w->integers, 1, w->experts);
    x.desc.send_starts = fresh(w->integers, 1, w->experts);
    x.desc.receive_rows = fresh(w->integers, 1, w->experts / w->ranks);
    x.desc.report = (tegroup_ep_report *)guarded(sizeof *x.desc.report);
    x.snapshot = scratch(SNAPSHOT_BYTES);
    x.received = scratch(SNAPSHOT_BYTES);
    x.workspace = scratch(SNAPSHOT_BYTES);
    return x;
}
static void sized_run(const sized *x, struct CUstream_st *stream) {
    tegroup_ep_sizes_desc d = x->desc;
    tegroup_error error;
    d.counts = at(d.counts), d.send_rows = at(d.send_rows), d.send_starts = at(d.send_starts), d.receive_rows = at(d.receive_rows);
    d.report = (tegroup_ep_report *)EP_AT(d.report);
    went_well(tegroup_ep_sizes(&d, stream, &error), &error);
}

/* The map of a rank's slots, as a caller makes it. */
static void map_run(const world *w, int32_t rank, const sized *x, struct CUstream_st *stream) {
    tegroup_permutation_desc p;
    tegroup_error error;
    memset(&p, 0, sizeof p);
    tegroup_sizes sizes = tegroup_sizes_of(EP_AT(x->desc.send_rows.data), w->integers, EP_SPACE);
    sizes.starts = EP_AT(x->desc.send_starts.data);
    p.struct_size = sizeof p;
    p.space = EP_SPACE;
    p.shape = tegroup_shape_of(w->experts, w->ranks * w->capacity, 1, sizes);
    p.indices = at(w->indices[rank]);
    p.row_of_slot = at(w->maps[rank]);
    p.workspace = EP_AT(x->workspace);
    p.workspace_bytes = SNAPSHOT_BYTES;
    went_well(tegroup_shape_prepare(&p.shape, EP_AT(x->snapshot), SNAPSHOT_BYTES, stream, &error), &error);
    ASSERT_PASSING();
    went_well(tegroup_permutation_make(&p, stream, &error), &error);
}

static void check_places(const world *w, const sized *sizes) {
    int64_t dropped = 0, rows[MOST_TOKENS * MOST_K];
    for (int32_t rank = 0; rank < w->ranks; rank++) {
        const tegroup_ep_report *report = sizes[rank].desc.report;
        int64_t received = 0, here[MOST_HERE] = {0};
        places(w, rank, rows);
        for (int64_t i = 0; i < w->tokens[rank] * w->k; i++) {
            ASSERT_EQ(rows[i], whole(&w->maps[rank], i));
            dropped += rows[i] < 0 && whole(&w->indices[rank], i) >= 0;
        }
        for (int32_t s = 0; s < w->ranks; s++) {
            places(w, s, rows);
            for (int64_t i = 0; i < w->tokens[s] * w->k; i++) {
                if (rows[i] < 0 || rows[i] / w->capacity != rank) continue;
                here[whole(&w->indices[s], i) - rank * (w->experts / w->ranks)]++;
                received++;
            }
        }
        ASSERT_EQ(received, report->received);
        for (int32_t e = 0; e < w->experts / w->ranks; e++) ASSERT_EQ(here[e], whole(&sizes[rank].desc.receive_rows, e));
        ASSERT_TRUE(report->digest == sizes[0].desc.report->digest);
        ASSERT_EQ(-1, report->bad_source);
    }
    for (int32_t rank = 0; rank < w->ranks; rank++) {
        const tegroup_ep_report *report = sizes[rank].desc.report;
        ASSERT_EQ(dropped, report->dropped);
        ASSERT_EQ(dropped > 0 ? TEGROUP_SNAPSHOT_CAPACITY : 0, report->status);
        ASSERT_EQ(dropped > 0, report->full_owner >= 0);
        ASSERT_EQ(0, report->reserved);
    }
}

TEST(ep, rows_go_by_expert_then_source_then_slot) {
    rng r = rng_seed(1);
    for (int64_t round = 0; round < scaled(300); round++) {
        world w = world_make(&r);
        sized x[MOST_RANKS];
        for (int32_t rank = 0; rank < w.ranks; rank++) x[rank] = sized_make(&w, rank);
        EP_UP(w.mark);
        for (int32_t rank = 0; rank < w.ranks; rank++) {
            sized_run(&x[rank], NULL);
            map_run(&w, rank, &x[rank], NULL);
        }
        EP_DOWN();
        check_places(&w, x);
        ASSERT_PASSING();
        ASSERT_EQ(0, guards_changed());
        guards_release(w.mark);
    }
}

/* Where an expert's rows of all ranks lie: they share none, and none lies outside, whatever counts say. */
TEST(ep, counts_that_lie_stay_inside_the_windows) {
    const int64_t wide[] = {INT64_MIN, INT64_MAX, -1, INT64_MAX / 2, INT64_C(1) << 40, 3}, narrow[] = {INT32_MIN, INT32_MAX, -1, 2, 0, 5};
    rng r = rng_seed(2);
    for (int64_t round = 0; round < scaled(200); round++) {
        world w = world_make(&r);
        sized x[MOST_RANKS];
        int32_t first_bad = -1;
        for (int64_t i = 0; i < w.ranks * w.experts; i++) {
            if (rng_chance(&r, 30)) set_whole(&w.counts, i, (w.integers == TEGROUP_DTYPE_I64 ? wide : narrow)[rng_int(&r, 0, 5)]);
            if (whole(&w.counts, i) < 0 && first_bad < 0) first_bad = (int32_t)(i / w.experts);
        }
        for (int32_t rank = 0; rank < w.ranks; rank++) x[rank] = sized_make(&w, rank);
        EP_UP(w.mark);
        for (int32_t rank = 0; rank < w.ranks; rank++) {
            sized_run(&x[rank], NULL);
            map_run(&w, rank, &x[rank], NULL);
        }
        EP_DOWN();
        unsigned char *taken = (unsigned char *)calloc((size_t)(w.ranks * w.capacity) + 1, 1);
        for (int32_t rank = 0; rank < w.ranks; rank++) {
            const tegroup_ep_sizes_desc *d = &x[rank].desc;
            int64_t sum = 0;
            ASSERT_EQ(first_bad, d->report->bad_source);
            ASSERT_EQ(first_bad >= 0, (d->report->status & TEGROUP_SNAPSHOT_NEGATIVE) != 0);
            for (int32_t e = 0; e < w.experts; e++) {
                const int64_t rows = whole(&d->send_rows, e), start = whole(&d->send_starts, e), owner = e / (w.experts / w.ranks);
                const int64_t said = whole(&w.counts, rank * w.experts + e);
                ASSERT_TRUE(rows >= 0 && rows <= (said > 0 ? said : 0));
                ASSERT_TRUE(start >= owner * w.capacity && start + rows <= (owner + 1) * w.capacity);
                for (int64_t i = 0; i < rows; i++) ASSERT_EQ(0, taken[start + i]++);
            }
            for (int32_t e = 0; e < w.experts / w.ranks; e++) sum += whole(&d->receive_rows, e);
            ASSERT_TRUE(sum <= w.capacity);
            ASSERT_EQ(sum, d->report->received);
        }
        memset(taken, 0, (size_t)(w.ranks * w.capacity));
        for (int32_t rank = 0; rank < w.ranks; rank++) /* slots that counts do not speak of go nowhere */
            for (int64_t i = 0; i < w.tokens[rank] * w.k; i++) {
                const int64_t row = whole(&w.maps[rank], i);
                ASSERT_TRUE(row >= -1 && row < w.ranks * w.capacity);
                if (row >= 0) ASSERT_EQ(0, taken[row]++);
            }
        free(taken);
        ASSERT_EQ(0, guards_changed());
        guards_release(w.mark);
    }
}

/* ---- windows ---- */

/* A window each, poisoned and guarded, and the addresses by which calls reach them. */
typedef struct windows {
    void *host[MOST_RANKS], *addresses[MOST_RANKS];
    size_t bytes;
} windows;

static windows windows_make(const world *w, size_t bytes) {
    windows x;
    memset(&x, 0, sizeof x);
    x.bytes = bytes;
    for (int32_t s = 0; s < w->ranks; s++) x.host[s] = guarded(bytes);
    return x;
}
static tegroup_ep_windows windows_of(windows *x, const world *w, int32_t rank) {
    tegroup_ep_windows of;
    for (int32_t s = 0; s < w->ranks; s++) x->addresses[s] = EP_AT(x->host[s]);
    of.ranks = w->ranks;
    of.rank = rank;
    of.addresses = x->addresses;
    of.bytes = x->bytes;
    return of;
}
static void random_bytes(rng *r, void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)data)[i] = (unsigned char)rng_next(r);
}

/* One dispatch of all ranks: which of tokens, scales and weights go, and where in the windows. */
typedef struct sending {
    int what; /* 1 tokens, 2 scales, 4 weights, 8 links: tokens go to each other rank once */
    tegroup_dtype dtype, real;
    int64_t width, ld, blocks;
    size_t rows_at, scales_at, weights_at, links_at;
    tegroup_matrix tokens[MOST_RANKS], scales[MOST_RANKS], weights[MOST_RANKS];
    windows x;
} sending;

static sending sending_make(const world *w, rng *r) {
    const tegroup_dtype types[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64, TEGROUP_DTYPE_F8E4M3, TEGROUP_DTYPE_F8E5M2, TEGROUP_DTYPE_F8E8M0, TEGROUP_DTYPE_I32};
    sending d;
    memset(&d, 0, sizeof d);
    d.what = (int)rng_int(r, 1, 7);
    if (d.what & 1 && rng_chance(r, 60)) d.what |= 8;
    d.dtype = types[rng_int(r, 0, 6)];
    d.real = rng_chance(r, 50) ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_F64;
    d.width = rng_chance(r, 50) ? 16 * rng_int(r, 1, MOST_WIDTH / 16) : rng_int(r, 1, MOST_WIDTH);
    d.ld = d.width + (rng_chance(r, 50) ? 0 : rng_int(r, 0, 3));
    d.blocks = rng_int(r, 1, 5);
    d.rows_at = rng_chance(r, 50) ? 512 : 8;
    d.scales_at = (d.rows_at + (size_t)(w->capacity * d.ld) * size_of(d.dtype) + 7) / 8 * 8;
    d.weights_at = (d.scales_at + 4 * (size_t)(d.blocks * w->capacity) + 7) / 8 * 8;
    d.links_at = d.weights_at + 8 * (size_t)w->capacity;
    d.x = windows_make(w, d.links_at + 4 * (size_t)w->capacity + 40);
    for (int32_t s = 0; s < w->ranks; s++) {
        d.tokens[s] = fresh(d.dtype, w->tokens[s], d.width);
        d.scales[s] = fresh(TEGROUP_DTYPE_F32, w->tokens[s], d.blocks);
        d.weights[s] = fresh(d.real, w->tokens[s], w->k);
        random_bytes(r, d.tokens[s].data, (size_t)(w->tokens[s] * d.width) * size_of(d.dtype));
        random_bytes(r, d.scales[s].data, 4 * (size_t)(w->tokens[s] * d.blocks));
        random_bytes(r, d.weights[s].data, (size_t)(w->tokens[s] * w->k) * size_of(d.real));
    }
    return d;
}
static void sending_run(sending *d, const world *w, int32_t s, struct CUstream_st *stream) {
    tegroup_ep_dispatch_desc desc;
    tegroup_error error;
    char *own = (char *)d->x.host[s];
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.space = EP_SPACE;
    desc.windows = windows_of(&d->x, w, s);
    desc.row_of_slot = at(w->maps[s]);
    if (d->what & 1) {
        desc.tokens = at(d->tokens[s]);
        desc.rows = at(tegroup_matrix_of(own + d->rows_at, w->capacity, d->width, d->dtype));
        desc.rows.ld = d->ld;
    }
    if (d->what & 2) {
        desc.scales = at(d->scales[s]);
        desc.row_scales = at(tegroup_matrix_of(own + d->scales_at, w->capacity, d->blocks, TEGROUP_DTYPE_F32));
    }
    if (d->what & 4) {
        desc.weights = at(d->weights[s]);
        desc.row_weights = at(tegroup_matrix_of(own + d->weights_at, w->capacity, 1, d->real));
    }
    if (d->what & 8) desc.row_links = at(tegroup_matrix_of(own + d->links_at, w->capacity, 1, TEGROUP_DTYPE_I32));
    went_well(tegroup_ep_dispatch(&desc, stream, &error), &error);
}
/* What expand and reduce of a rank take, but for the rows: the snapshot is made here. */
static tegroup_ep_links_desc links_of(const world *w, const sized *x, tegroup_matrix links, struct CUstream_st *stream) {
    tegroup_ep_links_desc d;
    tegroup_error error;
    tegroup_sizes sizes = tegroup_sizes_of(EP_AT(x->desc.receive_rows.data), w->integers, EP_SPACE);
    memset(&d, 0, sizeof d);
    sizes.alignment = w->alignment;
    d.struct_size = sizeof d;
    d.space = EP_SPACE;
    d.shape = tegroup_shape_of(w->experts / w->ranks, w->capacity, 1, sizes);
    d.row_links = at(links);
    d.threads = (int32_t)(w->capacity % 4);
    went_well(tegroup_shape_prepare(&d.shape, EP_AT(x->received), SNAPSHOT_BYTES, stream, &error), &error);
    return d;
}
static void expand_run(sending *d, const world *w, int32_t s, const sized *x, struct CUstream_st *stream) {
    char *own = (char *)d->x.host[s];
    tegroup_error error;
    tegroup_ep_links_desc desc = links_of(w, x, tegroup_matrix_of(own + d->links_at, w->capacity, 1, TEGROUP_DTYPE_I32), stream);
    ASSERT_PASSING();
    desc.rows = at(tegroup_matrix_of(own + d->rows_at, w->capacity, d->width, d->dtype));
    desc.rows.ld = d->ld;
    if (d->what & 2) desc.row_scales = at(tegroup_matrix_of(own + d->scales_at, w->capacity, d->blocks, TEGROUP_DTYPE_F32));
    went_well(tegroup_ep_expand(&desc, stream, &error), &error);
}
/* The slot after `from` of a token, of whose k slots these are the rows, in the same window: `step` 1, or -1 for the one
 * before; -1 = none. */
static int64_t beside(const world *w, const int64_t *rows, int64_t from, int step) {
    for (int64_t j = from + step; j >= 0 && j < w->k; j += step)
        if (rows[j] >= 0 && rows[j] / w->capacity == rows[from] / w->capacity) return j;
    return -1;
}
/* Writes what the windows, poisoned before, must now be: before tokens with links are expanded, or after. */
static void sending_reference(const sending *d, const world *w, unsigned char *const *want, int expanded) {
    const size_t row = (size_t)d->width * size_of(d->dtype), ld = (size_t)d->ld * size_of(d->dtype), block = 4 * (size_t)d->blocks, real = size_of(d->real);
    for (int32_t s = 0; s < w->ranks; s++) {
        int64_t rows[MOST_TOKENS * MOST_K];
        places(w, s, rows);
        for (int64_t i = 0; i < w->tokens[s] * w->k; i++) {
            if (rows[i] < 0) continue;
            unsigned char *there = want[rows[i] / w->capacity];
            const size_t to = (size_t)(rows[i] % w->capacity), t = (size_t)(i / w->k);
            const int64_t *slots = rows + i / w->k * w->k, j = i % w->k, next = beside(w, slots, j, 1);
            const int own = rows[i] / w->capacity == s, first = beside(w, slots, j, -1) < 0;
            const int goes = expanded || !(d->what & 8) || own || first;
            const int32_t row_of_next = (int32_t)(slots[!own && next >= 0 ? next : j] % w->capacity), link = first && !own ? row_of_next : -1 - row_of_next;
            if (d->what & 8) memcpy(there + d->links_at + 4 * to, &link, 4);
            if (goes && d->what & 1) memcpy(there + d->rows_at + to * ld, (char *)d->tokens[s].data + t * row, row);
            if (goes && d->what & 2) memcpy(there + d->scales_at + to * block, (char *)d->scales[s].data + t * block, block);
            if (d->what & 4) memcpy(there + d->weights_at + to * real, (char *)d->weights[s].data + (size_t)i * real, real);
        }
    }
}

TEST(ep, dispatch_copies_rows_scales_and_weights_and_nothing_else) {
    rng r = rng_seed(4);
    for (int64_t round = 0; round < scaled(200); round++) {
        world w = world_make(&r);
        sized x[MOST_RANKS];
        sending d = sending_make(&w, &r);
        unsigned char *want[MOST_RANKS];
        for (int32_t s = 0; s < w.ranks; s++) x[s] = sized_make(&w, s);
        for (int32_t s = 0; s < w.ranks; s++) memcpy(want[s] = (unsigned char *)malloc(d.x.bytes), d.x.host[s], d.x.bytes);
        EP_UP(w.mark);
        for (int32_t s = 0; s < w.ranks; s++) {
            sized_run(&x[s], NULL);
            map_run(&w, s, &x[s], NULL);
            sending_run(&d, &w, s, NULL);
        }
        EP_DOWN();
        sending_reference(&d, &w, want, 0);
        for (int32_t s = 0; s < w.ranks; s++) ASSERT_EQ(0, memcmp(want[s], d.x.host[s], d.x.bytes));
        EP_UP(w.mark);
        for (int32_t s = 0; s < w.ranks && d.what & 8; s++) expand_run(&d, &w, s, &x[s], NULL);
        EP_DOWN();
        sending_reference(&d, &w, want, 1);
        for (int32_t s = 0; s < w.ranks; s++) {
            ASSERT_EQ(0, memcmp(want[s], d.x.host[s], d.x.bytes));
            free(want[s]);
        }
        ASSERT_PASSING();
        ASSERT_EQ(0, guards_changed());
        guards_release(w.mark);
    }
}

/* All windows side by side are what tegroup_combine reads; values come back bit by bit. */
TEST(ep, combine_has_the_bits_of_one_rank) {
    const tegroup_dtype types[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64};
    rng r = rng_seed(5);
    for (int64_t round = 0; round < scaled(200); round++) {
        world w = world_make(&r);
        const tegroup_dtype dtype = types[rng_int(&r, 0, 3)], real = dtype == TEGROUP_DTYPE_F64 ? dtype : TEGROUP_DTYPE_F32;
        const tegroup_dtype out = rng_chance(&r, 70) ? dtype : dtype == TEGROUP_DTYPE_BF16 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16;
        const int64_t width = rng_chance(&r, 50) ? 16 * rng_int(&r, 1, MOST_WIDTH / 16) : rng_int(&r, 1, MOST_WIDTH);
        const size_t row = (size_t)width * size_of(dtype), values_at = ((size_t)w.capacity * row + 263) / 8 * 8;
        windows x = windows_make(&w, values_at + 8 * (size_t)w.capacity);
        tegroup_matrix all = fresh(dtype, w.ranks * w.capacity, width), tokens[MOST_RANKS], of_one[MOST_RANKS], weights[MOST_RANKS], values[MOST_RANKS];
        const int weighted = rng_chance(&r, 50), what = (int)rng_int(&r, 1, 3), adds = rng_chance(&r, 40) && (what & 1) && (out != TEGROUP_DTYPE_F64 || dtype == TEGROUP_DTYPE_F64); /* 1 tokens, 2 values */
        for (int32_t s = 0; s < w.ranks; s++) {
            for (int64_t i = 0; i < w.capacity * width; i++) store(dtype, (char *)x.host[s] + 256, i, rng_normal(&r));
            for (int64_t i = 0; i < w.capacity; i++) store(real, (char *)x.host[s] + values_at, i, rng_normal(&r));
            memcpy((char *)all.data + (size_t)(s * w.capacity) * row, (char *)x.host[s] + 256, (size_t)w.capacity * row);
            tokens[s] = fresh(out, w.tokens[s], width), of_one[s] = fresh(out, w.tokens[s], width);
            weights[s] = fresh(real, w.tokens[s], w.k), values[s] = fresh(real, w.tokens[s], w.k);
            for (int64_t i = 0; i < w.tokens[s] * w.k; i++) store(real, weights[s].data, i, rng_normal(&r));
            for (int64_t i = 0; adds && i < w.tokens[s] * width; i++) store(out, tokens[s].data, i, rng_normal(&r));
            if (adds) memcpy(of_one[s].data, tokens[s].data, (size_t)(w.tokens[s] * width) * size_of(out));
            for (int64_t i = 0; i < w.tokens[s] * w.k; i++) { /* any rows, of any window, and some that lead outside */
                const int64_t rows = w.ranks * w.capacity;
                set_whole(&w.maps[s], i, rng_chance(&r, 90) && rows > 0 ? rng_int(&r, 0, rows - 1) : rng_chance(&r, 50) ? -1 : rows);
            }
        }
        EP_UP(w.mark);
        for (int32_t s = 0; s < w.ranks; s++) {
            tegroup_ep_combine_desc d;
            tegroup_combine_desc one;
            tegroup_error error;
            memset(&d, 0, sizeof d);
            memset(&one, 0, sizeof one);
            d.struct_size = sizeof d;
            one.struct_size = sizeof one;
            d.space = one.space = EP_SPACE;
            d.windows = windows_of(&x, &w, s);
            d.accumulate = one.accumulate = adds;
            d.row_of_slot = one.row_of_slot = at(w.maps[s]);
            one.permuted = at(all);
            one.tokens = at(of_one[s]);
            if (what & 1) {
                d.rows = at(tegroup_matrix_of((char *)x.host[s] + 256, w.capacity, width, dtype));
                d.tokens = at(tokens[s]);
                if (weighted) d.weights = one.weights = at(weights[s]);
                went_well(tegroup_combine(&one, NULL, &error), &error);
            }
            if (what & 2) {
                d.row_values = at(tegroup_matrix_of((char *)x.host[s] + values_at, w.capacity, 1, real));
                d.values = at(values[s]);
            }
            went_well(tegroup_ep_combine(&d, NULL, &error), &error);
            ASSERT_PASSING();
        }
        EP_DOWN();
        for (int32_t s = 0; s < w.ranks; s++) {
            ASSERT_EQ(0, memcmp(of_one[s].data, tokens[s].data, (size_t)(w.tokens[s] * width) * size_of(out)));
            for (int64_t i = 0; (what & 2) && i < w.tokens[s] * w.k; i++) {
                const int64_t from = whole(&w.maps[s], i), there = from >= 0 && from < w.ranks * w.capacity;
                const double want = there ? load(real, (char *)x.host[from / w.capacity] + values_at, from % w.capacity) : 0;
                ASSERT_TRUE(want == load(real, values[s].data, i));
            }
        }
        ASSERT_EQ(0, guards_changed());
        guards_release(w.mark);
    }
}

/* A column of a token's sum by owner, from the windows' rows before they are reduced. */
static double sum_by_owner(const world *w, const windows *x, tegroup_dtype dtype, int64_t width, const int64_t *slots, int64_t col, double sum) {
    const int wide = dtype == TEGROUP_DTYPE_F64;
    for (int32_t owner = 0; owner < w->ranks; owner++) {
        double of_owner = 0;
        int64_t rows = 0;
        for (int64_t j = 0; j < w->k; j++) {
            if (slots[j] < 0 || slots[j] / w->capacity != owner) continue;
            const double value = load(dtype, (char *)x->host[owner] + 256, slots[j] % w->capacity * width + col);
            of_owner = rows++ == 0 ? value : wide ? of_owner + value : (float)of_owner + (float)value;
        }
        of_owner = rounded(dtype, of_owner);
        if (rows > 0) sum = wide ? sum + of_owner : (float)sum + (float)of_owner;
    }
    return sum;
}

TEST(ep, results_cross_once_as_sums_by_owner) {
    const tegroup_dtype types[] = {TEGROUP_DTYPE_BF16, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F64};
    rng r = rng_seed(12);
    for (int64_t round = 0; round < scaled(200); round++) {
        world w = world_make(&r);
        const tegroup_dtype dtype = types[rng_int(&r, 0, 3)], out = rng_chance(&r, 70) ? dtype : dtype == TEGROUP_DTYPE_BF16 ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_BF16;
        const int64_t width = rng_chance(&r, 50) ? 16 * rng_int(&r, 1, MOST_WIDTH / 16) : rng_int(&r, 1, MOST_WIDTH);
        const size_t rows_bytes = (size_t)(w.capacity * width) * size_of(dtype);
        const size_t marks_at = (rows_bytes + 263) / 8 * 8, links_at = marks_at + 4 * (size_t)w.capacity;
        windows x = windows_make(&w, links_at + 4 * (size_t)w.capacity);
        sized sizes[MOST_RANKS];
        tegroup_matrix tokens[MOST_RANKS], marks[MOST_RANKS];
        double *want[MOST_RANKS];
        const int adds = rng_chance(&r, 40) && (out != TEGROUP_DTYPE_F64 || dtype == TEGROUP_DTYPE_F64);
        for (int32_t s = 0; s < w.ranks; s++) {
            sizes[s] = sized_make(&w, s);
            marks[s] = fresh(TEGROUP_DTYPE_I32, w.tokens[s], 1);
            tokens[s] = fresh(out, w.tokens[s], width);
            for (int64_t i = 0; i < w.capacity * width; i++) store(dtype, (char *)x.host[s] + 256, i, rng_chance(&r, 5) ? -0.0 : rng_normal(&r));
            for (int64_t i = 0; adds && i < w.tokens[s] * width; i++) store(out, tokens[s].data, i, rng_chance(&r, 5) ? -0.0 : rng_normal(&r));
        }
        for (int32_t s = 0; s < w.ranks; s++) {
            int64_t rows[MOST_TOKENS * MOST_K];
            places(&w, s, rows);
            want[s] = (double *)malloc(sizeof **want * (size_t)(w.tokens[s] * width + 1));
            for (int64_t i = 0; i < w.tokens[s] * width; i++)
                want[s][i] = rounded(out, sum_by_owner(&w, &x, dtype, width, rows + i / width * w.k, i % width, adds ? load(out, tokens[s].data, i) : 0));
        }
        EP_UP(w.mark);
        for (int32_t s = 0; s < w.ranks; s++) {
            tegroup_ep_dispatch_desc d;
            tegroup_error error;
            sized_run(&sizes[s], NULL);
            map_run(&w, s, &sizes[s], NULL);
            memset(&d, 0, sizeof d);
            d.struct_size = sizeof d;
            d.space = EP_SPACE;
            d.windows = windows_of(&x, &w, s);
            d.row_of_slot = at(w.maps[s]);
            d.tokens = at(marks[s]);
            d.rows = at(tegroup_matrix_of((char *)x.host[s] + marks_at, w.capacity, 1, TEGROUP_DTYPE_I32));
            d.row_links = at(tegroup_matrix_of((char *)x.host[s] + links_at, w.capacity, 1, TEGROUP_DTYPE_I32));
            went_well(tegroup_ep_dispatch(&d, NULL, &error), &error);
            ASSERT_PASSING();
        }
        for (int32_t s = 0; s < w.ranks; s++) {
            tegroup_error error;
            tegroup_ep_links_desc d = links_of(&w, &sizes[s], tegroup_matrix_of((char *)x.host[s] + links_at, w.capacity, 1, TEGROUP_DTYPE_I32), NULL);
            ASSERT_PASSING();
            d.rows = at(tegroup_matrix_of((char *)x.host[s] + 256, w.capacity, width, dtype));
            went_well(tegroup_ep_reduce(&d, NULL, &error), &error);
            ASSERT_PASSING();
        }
        for (int32_t s = 0; s < w.ranks; s++) {
            tegroup_ep_combine_desc d;
            tegroup_error error;
            memset(&d, 0, sizeof d);
            d.struct_size = sizeof d;
            d.space = EP_SPACE;
            d.windows = windows_of(&x, &w, s);
            d.row_of_slot = at(w.maps[s]);
            d.rows = at(tegroup_matrix_of((char *)x.host[s] + 256, w.capacity, width, dtype));
            d.tokens = at(tokens[s]);
            d.accumulate = adds;
            d.by_owner = 1;
            went_well(tegroup_ep_combine(&d, NULL, &error), &error);
            ASSERT_PASSING();
        }
        EP_DOWN();
        for (int32_t s = 0; s < w.ranks; s++) {
            for (int64_t i = 0; i < w.tokens[s] * width; i++) {
                const double got = load(out, tokens[s].data, i);
                ASSERT_TRUE(want[s][i] == got && !signbit(want[s][i]) == !signbit(got));
            }
            free(want[s]);
        }
        ASSERT_EQ(0, guards_changed());
        guards_release(w.mark);
    }
}

/* Whatever peers have stored as links, only rows of the window change. */
TEST(ep, links_that_lie_stay_inside_the_rows) {
    rng r = rng_seed(13);
    for (int64_t round = 0; round < scaled(100); round++) {
        world w = world_make(&r);
        const int64_t width = rng_int(&r, 1, 40);
        sized x = sized_make(&w, 0);
        tegroup_matrix links = fresh(TEGROUP_DTYPE_I32, w.capacity, 1), rows = fresh(TEGROUP_DTYPE_F32, w.capacity, width);
        const int32_t most = (int32_t)w.capacity, lies[] = {INT32_MIN, INT32_MAX, -1, 0, most - 1, most, -most, -1 - most, most / 2, -most / 2};
        for (int64_t i = 0; i < w.capacity; i++) ((int32_t *)links.data)[i] = rng_chance(&r, 50) ? (int32_t)rng_int(&r, -most, most) : lies[rng_int(&r, 0, 9)];
        for (int64_t i = 0; i < w.capacity * width; i++) store(TEGROUP_DTYPE_F32, rows.data, i, rng_normal(&r));
        EP_UP(w.mark);
        sized_run(&x, NULL);
        tegroup_ep_links_desc d = links_of(&w, &x, links, NULL);
        tegroup_error error;
        ASSERT_PASSING();
        d.rows = at(rows);
        went_well(tegroup_ep_expand(&d, NULL, &error), &error);
        went_well(tegroup_ep_reduce(&d, NULL, &error), &error);
        EP_DOWN();
        ASSERT_PASSING();
        ASSERT_EQ(0, guards_changed());
        guards_release(w.mark);
    }
}

/* Row 0 is a first one whose link leads to row 1, which is another token's first: the list ends before it. A later row
 * that says that it is a first one ends a list, too. Links are every third number of a matrix. */
TEST(ep, a_list_ends_where_another_token_begins) {
    const int32_t links_of_rows[6] = {1, 2, -3, 4, 5, -6};
    const float numbers[6] = {10, 20, 0, 30, 40, 50}, expanded[6] = {10, 20, 20, 30, 40, 40}, reduced[6] = {10, 40, 20, 30, 80, 40};
    rng r = rng_seed(14);
    world w = world_make(&r);
    w.ranks = 1, w.experts = 1, w.capacity = 6, w.alignment = 0, w.integers = TEGROUP_DTYPE_I64;
    w.counts = fresh(w.integers, 1, 1);
    set_whole(&w.counts, 0, 6);
    sized x = sized_make(&w, 0);
    tegroup_matrix links = fresh(TEGROUP_DTYPE_I32, 6, 3), rows = fresh(TEGROUP_DTYPE_F32, 6, 1);
    memcpy(rows.data, numbers, sizeof numbers);
    for (int i = 0; i < 6; i++) ((int32_t *)links.data)[3 * i] = links_of_rows[i];
    links.cols = 1, links.ld = 3;
    EP_UP(w.mark);
    sized_run(&x, NULL);
    tegroup_ep_links_desc d = links_of(&w, &x, links, NULL);
    tegroup_error error;
    ASSERT_PASSING();
    d.rows = at(rows);
    went_well(tegroup_ep_expand(&d, NULL, &error), &error);
    EP_DOWN();
    ASSERT_EQ(0, memcmp(rows.data, expanded, sizeof expanded));
    EP_UP(w.mark);
    went_well(tegroup_ep_reduce(&d, NULL, &error), &error);
    EP_DOWN();
    ASSERT_EQ(0, memcmp(rows.data, reduced, sizeof reduced));
    ASSERT_PASSING();
    ASSERT_EQ(0, guards_changed());
    guards_release(w.mark);
}

#endif
