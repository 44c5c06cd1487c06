/* ---- Prepare: all groups ---- */

#pragma once
#include "base/version.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/threads.h"
#include "formats/dtype.h"
#include "core/prepare_group.h"
#include "core/prepare_sort.h"

/* Bytes of an array of sizes, or of starts. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_sizes_bytes(const tegroup_sizes *sizes, int32_t groups) {
    const int64_t entries = (int64_t)groups + (sizes->encoding == TEGROUP_ENCODING_OFFSETS);
    return entries * (tegroup_impl_bits(sizes->dtype) / 8);
}

/* Sizes on their way from host memory to a kernel, of which this is a parameter: their arrays one behind another, those
 * of the rows first, each from a whole word on. */
typedef struct tegroup_impl_parcel {
    int64_t words[TEGROUP_HOST_SIZES_MAX_BYTES / 8];
    int32_t starts, cols, offsets, count; /* words before each array; words in all */
} tegroup_impl_parcel;

TEGROUP_IMPL_STATIC int64_t tegroup_impl_parcel_words(int64_t bytes) { return tegroup_impl_ceil_div(bytes, 8); }

/* Appends an array, if there is one. Returns the words before it. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_parcel_add(tegroup_impl_parcel *parcel, const void *array, int64_t bytes) {
    const int32_t before = parcel->count;
    if (!array) return before;
    memcpy(parcel->words + before, array, (size_t)bytes);
    parcel->count += (int32_t)tegroup_impl_parcel_words(bytes);
    return before;
}

/* The check has seen that they have room. */
TEGROUP_IMPL_STATIC void tegroup_impl_parcel_pack(const tegroup_impl_preparation *p, tegroup_impl_parcel *parcel) {
    memset(parcel, 0, sizeof *parcel); /* a captured graph keeps all of it */
    (void)tegroup_impl_parcel_add(parcel, p->rows.data, tegroup_impl_sizes_bytes(&p->rows, p->groups));
    parcel->starts = tegroup_impl_parcel_add(parcel, p->rows.starts, tegroup_impl_sizes_bytes(&p->rows, p->groups));
    parcel->cols = tegroup_impl_parcel_add(parcel, p->cols.data, tegroup_impl_sizes_bytes(&p->cols, p->groups));
    parcel->offsets = tegroup_impl_parcel_add(parcel, p->offsets, 8 * (int64_t)p->groups);
}

/* The same preparation, its sizes read from the parcel. */
TEGROUP_IMPL_HD tegroup_impl_preparation tegroup_impl_parcel_open(const tegroup_impl_preparation *p,
                                                                  const tegroup_impl_parcel *parcel) {
    tegroup_impl_preparation opened = *p;
    opened.rows.data = parcel->words;
    if (p->rows.starts) opened.rows.starts = parcel->words + parcel->starts;
    if (p->cols.data) opened.cols.data = parcel->words + parcel->cols;
    if (p->offsets) opened.offsets = parcel->words + parcel->offsets;
    return opened;
}

/* The header as it is before any group is looked at. */
TEGROUP_IMPL_HD void tegroup_impl_snapshot_open(tegroup_snapshot_header *header, const tegroup_impl_preparation *p) {
    memset(header, 0, sizeof *header);
    header->magic = TEGROUP_SNAPSHOT_MAGIC;
    header->groups = p->groups;
    header->bad_group = -1;
    header->irregular = p->irregular;
    header->capacity_rows = p->capacity_rows;
    header->capacity_cols = p->capacity_cols;
    header->capacity_elements = p->capacity_elements;
    header->ld = p->ld;
}

TEGROUP_IMPL_STATIC void tegroup_impl_prepare_note(tegroup_snapshot_header *header, int32_t g, uint32_t bits) {
    if (!bits) return;
    header->status |= bits;
    if (header->bad_group < 0 || g < header->bad_group) header->bad_group = g;
}

/* Sort the groups, and write what tegroup_impl_prepare_apart says of those that own something. Returns how many these
 * are. */
TEGROUP_IMPL_STATIC int32_t tegroup_impl_prepare_all_apart(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                           int64_t rows[TEGROUP_MAX_GROUPS]) {
    int32_t owners = 0, g, i;
    for (g = 0; g < p->groups; g++) owners += tegroup_impl_prepare_owns(p, key, g);
    tegroup_impl_sort(p, key);
    /* A group is held against the next one or, by offset, against all in its reach; each takes some four steps. */
    TEGROUP_IMPL_OMP(omp parallel for schedule(static, 1) num_threads(
        tegroup_impl_team(p->threads, 4.0 * owners * (key == TEGROUP_IMPL_SORT_BY_START ? 2 : owners))))
    for (i = 0; i < owners; i++) rows[i] = tegroup_impl_prepare_apart(p, key, owners, i);
    return owners;
}

TEGROUP_IMPL_STATIC void tegroup_impl_prepare_disjoin(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                      tegroup_snapshot_header *header) {
    int64_t rows[TEGROUP_MAX_GROUPS];
    const int32_t owners = tegroup_impl_prepare_all_apart(p, key, rows);
    int32_t g, i;
    for (i = 0; i < owners; i++) {
        g = p->order[i];
        if (rows[i] < p->out_rows[g]) tegroup_impl_prepare_note(header, g, TEGROUP_SNAPSHOT_OVERLAP);
        p->out_rows[g] = rows[i];
    }
}

/* All steps in order, on the host. */
TEGROUP_IMPL_STATIC void tegroup_impl_prepare_host(const tegroup_impl_preparation *p, tegroup_snapshot_header *header) {
    tegroup_impl_place x = {0, 0, 0, 0};
    int32_t g;
    int64_t carry = p->groups > 0 ? tegroup_impl_prepare_first(p) : 0;
    for (g = 0; g < p->groups; g++) {
        tegroup_impl_prepare_note(header, g, tegroup_impl_prepare_place(p, g, carry, &x));
        tegroup_impl_prepare_write(p, g, &x);
        carry = tegroup_impl_prepare_scan(p, carry, tegroup_impl_prepare_term(p, g));
    }
    if (p->rows.starts) tegroup_impl_prepare_disjoin(p, TEGROUP_IMPL_SORT_BY_START, header);
    for (g = 0, carry = 0; p->irregular && g < p->groups; g++) {
        const int64_t before = carry;
        x = tegroup_impl_prepare_read(p, g);
        tegroup_impl_prepare_note(header, g, tegroup_impl_prepare_cols(p, g, &x));
        carry = tegroup_impl_add(carry, tegroup_impl_prepare_elements(&x)); /* of one that is dropped, too */
        tegroup_impl_prepare_note(header, g, tegroup_impl_prepare_offset(p, g, before, &x));
        tegroup_impl_prepare_write(p, g, &x);
    }
    if (p->irregular && p->offsets) tegroup_impl_prepare_disjoin(p, TEGROUP_IMPL_SORT_BY_OFFSET, header);
    p->prefix[0] = 0;
    for (g = 0; g < p->groups; g++)
        p->prefix[g + 1] = p->prefix[g] + tegroup_impl_granules(tegroup_impl_max(0, p->out_rows[g]));
    for (g = 0; g < p->groups; g++) {
        const tegroup_impl_place placed = tegroup_impl_prepare_read(p, g);
        const int64_t reach = tegroup_impl_prepare_reach(p, &placed), rows = tegroup_impl_max(0, placed.rows);
        header->rows_total += rows;
        header->rows_max = tegroup_impl_max(header->rows_max, rows);
        if (rows > 0) header->rows_end = tegroup_impl_max(header->rows_end, placed.start + rows);
        if (reach > 0) header->capacity_elements = tegroup_impl_max(header->capacity_elements, placed.offset + reach);
    }
    tegroup_impl_sort(p, TEGROUP_IMPL_SORT_BY_SIZE);
}
