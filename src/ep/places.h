/* ---- Expert parallelism: where rows go ---- */

#pragma once
#include "base/version.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "ep/ep_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/convert.h"
#include "core/checks.h"
#include "moe/permutation.h"

/* What the counts say of one expert, and where its rows begin. All counts are cut at TEGROUP_MAX_ROWS, so that the sum
 * of any of them, 2^40 * 4,096 * 256, is far inside 64 bits. */
typedef struct tegroup_impl_ep_expert {
    int64_t total, before, mine; /* rows of all ranks, of those before this one, of this one */
    int32_t bad_source;          /* lowest rank with a count below 0; ranks = none           */
    uint64_t digest;
} tegroup_impl_ep_expert;

TEGROUP_IMPL_HD int32_t tegroup_impl_ep_experts(const tegroup_ep_sizes_desc *desc) {
    return (int32_t)(desc->counts.cols / desc->ranks);
}

TEGROUP_IMPL_HD int64_t tegroup_impl_ep_align(const tegroup_ep_sizes_desc *desc, int64_t rows) {
    return desc->alignment > 1 ? tegroup_impl_align(rows, desc->alignment) : rows;
}

/* A number and its position as 64 bits that depend on all of theirs: the finaliser of SplitMix64 (Steele, Lea and Flood
 * 2014, "Fast splittable pseudorandom number generators"). Their sum is the same in whatever order it is made. */
TEGROUP_IMPL_HD uint64_t tegroup_impl_ep_mix(uint64_t position, int64_t number) {
    uint64_t x = (uint64_t)number + UINT64_C(0x9e3779b97f4a7c15) * (position + 1);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

TEGROUP_IMPL_HD tegroup_impl_ep_expert tegroup_impl_ep_expert_of(const tegroup_ep_sizes_desc *desc, int64_t e) {
    tegroup_impl_ep_expert x = {0, 0, 0, 0, 0};
    int32_t source;
    x.bad_source = desc->ranks;
    for (source = 0; source < desc->ranks; source++) {
        const int64_t said =
            tegroup_impl_load_int(desc->counts.dtype, tegroup_impl_matrix_row(&desc->counts, source), e);
        const int64_t rows = tegroup_impl_clamp(said, 0, TEGROUP_MAX_ROWS);
        if (said < 0 && x.bad_source == desc->ranks) x.bad_source = source;
        if (source < desc->rank) x.before += rows;
        if (source == desc->rank) x.mine = rows;
        x.total += rows;
        x.digest += tegroup_impl_ep_mix((uint64_t)(source * desc->counts.cols + e), said);
    }
    return x;
}

/* Writes expert e, which begins `start` rows behind the first of its owner's window. Returns how many rows of all ranks
 * have a place. */
TEGROUP_IMPL_HD int64_t tegroup_impl_ep_place(const tegroup_ep_sizes_desc *desc, int64_t e, int64_t start,
                                              const tegroup_impl_ep_expert *x) {
    const int32_t experts = tegroup_impl_ep_experts(desc), owner = (int32_t)(e / experts);
    const int64_t first = tegroup_impl_min(start, desc->capacity),
                  placed = tegroup_impl_min(x->total, desc->capacity - first),
                  before = tegroup_impl_min(x->before, placed), mine = tegroup_impl_min(x->mine, placed - before);
    tegroup_impl_store_int(desc->send_rows.dtype, desc->send_rows.data, e, mine);
    tegroup_impl_store_int(desc->send_starts.dtype, desc->send_starts.data, e, owner * desc->capacity + first + before);
    if (owner == desc->rank)
        tegroup_impl_store_int(desc->receive_rows.dtype, desc->receive_rows.data, e - (int64_t)owner * experts, placed);
    return placed;
}

/* The digest of what the places follow from besides the counts. */
TEGROUP_IMPL_HD uint64_t tegroup_impl_ep_digest(const tegroup_ep_sizes_desc *desc) {
    const uint64_t last = UINT64_MAX - 3; /* positions that no count has */
    return tegroup_impl_ep_mix(last, desc->ranks) + tegroup_impl_ep_mix(last + 1, desc->capacity)
           + tegroup_impl_ep_mix(last + 2, tegroup_impl_max(1, desc->alignment));
}

/* The report: opened before any expert is counted, one added after another, and closed, which sets the status and makes
 * -1 of a rank that is none. */
TEGROUP_IMPL_HD tegroup_ep_report tegroup_impl_ep_report_open(const tegroup_ep_sizes_desc *desc) {
    tegroup_ep_report report;
    memset(&report, 0, sizeof report);
    report.bad_source = report.full_owner = desc->ranks;
    report.digest = tegroup_impl_ep_digest(desc);
    return report;
}

TEGROUP_IMPL_HD void tegroup_impl_ep_report_add(const tegroup_ep_sizes_desc *desc, tegroup_ep_report *report, int64_t e,
                                                const tegroup_impl_ep_expert *x, int64_t placed) {
    const int32_t owner = (int32_t)(e / tegroup_impl_ep_experts(desc));
    report->bad_source = (int32_t)tegroup_impl_min(report->bad_source, x->bad_source);
    if (placed < x->total) report->full_owner = (int32_t)tegroup_impl_min(report->full_owner, owner);
    if (owner == desc->rank) report->received += placed;
    report->dropped += x->total - placed;
    report->digest += x->digest;
}

TEGROUP_IMPL_HD void tegroup_impl_ep_report_close(const tegroup_ep_sizes_desc *desc, tegroup_ep_report *report) {
    if (report->bad_source < desc->ranks) report->status |= TEGROUP_SNAPSHOT_NEGATIVE;
    else report->bad_source = -1;
    if (report->full_owner < desc->ranks) report->status |= TEGROUP_SNAPSHOT_CAPACITY;
    else report->full_owner = -1;
}

/* ---- rows of the windows ---- */

/* What leads from a row's number to its address: a kernel's parameter. */
typedef struct tegroup_impl_ep_reach {
    int64_t capacity;
    int32_t ranks, rank;
    int64_t ahead_bytes[TEGROUP_EP_MAX_RANKS]; /* from this rank's own window to each rank's */
} tegroup_impl_ep_reach;

/* The rank that owns a slot's row; -1 where the slot has none. */
TEGROUP_IMPL_HD int32_t tegroup_impl_ep_owner(const tegroup_impl_ep_reach *reach, int64_t row) {
    int64_t owner;
    if (row < 0 || reach->capacity == 0) return -1;
    owner = row <= INT32_MAX && reach->capacity <= INT32_MAX ? (int32_t)row / (int32_t)reach->capacity
                                                             : row / reach->capacity;
    return owner < reach->ranks ? (int32_t)owner : -1;
}

/* A slot's row of a matrix that lies in the windows; NULL where it has none. */
TEGROUP_IMPL_HD char *tegroup_impl_ep_row(const tegroup_impl_ep_reach *reach, const tegroup_matrix *m, int64_t row) {
    const int32_t owner = tegroup_impl_ep_owner(reach, row);
    if (owner < 0) return NULL;
    return (char *)((uintptr_t)tegroup_impl_matrix_row(m, row - owner * reach->capacity)
                    + (uintptr_t)reach->ahead_bytes[owner]);
}

/* ---- rows of one token in one window ---- */

/* What the row of slot j holds as its link, where `owners` has the owners of the token's k slots. Slot j is the token's
 * first in its owner's window where *first is set. */
TEGROUP_IMPL_HD int32_t tegroup_impl_ep_link(const tegroup_ep_dispatch_desc *desc, const tegroup_impl_ep_reach *reach,
                                             const int32_t *owners, int64_t token, int32_t j, int *first) {
    const int32_t k = (int32_t)desc->row_of_slot.cols;
    int32_t i, next = j, link;
    *first = 1;
    for (i = 0; i < j; i++) *first &= owners[i] != owners[j];
    for (i = k - 1; i > j; i--) next = owners[i] == owners[j] ? i : next;
    if (owners[j] == reach->rank) *first = 0, next = j;
    link = (int32_t)(tegroup_impl_entry(&desc->row_of_slot, token, next) - owners[j] * reach->capacity);
    return *first ? link : -1 - link;
}

TEGROUP_IMPL_HD int32_t tegroup_impl_ep_link_at(const tegroup_matrix *links, int64_t row) {
    return *(const int32_t *)(const void *)tegroup_impl_matrix_row(links, row);
}

/* The row behind `row` among a token's rows, of which `row` is the first or not; -1 = there is none. */
TEGROUP_IMPL_HD int64_t tegroup_impl_ep_next(const tegroup_matrix *links, int64_t row, int first) {
    const int32_t link = tegroup_impl_ep_link_at(links, row);
    const int64_t next = link < 0 ? -1 - (int64_t)link : link;
    if ((link >= 0) != (first != 0) || next == row || next >= links->rows) return -1;
    return tegroup_impl_ep_link_at(links, next) < 0 ? next : -1;
}
