/* ---- Prepare: the order of groups ---- */

#pragma once
#include "base/version.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/threads.h"
#include "core/apart.h"
#include "core/prepare_group.h"

/* Sorting. Groups are ordered by where they begin (to find overlaps) or by size, ties by index, padding last. */
typedef enum tegroup_impl_sort_key {
    TEGROUP_IMPL_SORT_BY_START,
    TEGROUP_IMPL_SORT_BY_OFFSET,
    TEGROUP_IMPL_SORT_BY_SIZE
} tegroup_impl_sort_key;

/* Does the group own any row, or any element? */
TEGROUP_IMPL_HD int tegroup_impl_prepare_owns(const tegroup_impl_preparation *p, tegroup_impl_sort_key key, int32_t g) {
    const tegroup_impl_place x = tegroup_impl_prepare_read(p, g);
    return x.rows > 0 && (key == TEGROUP_IMPL_SORT_BY_START || x.cols > 0);
}

TEGROUP_IMPL_HD int64_t tegroup_impl_sort_value(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                int32_t g) {
    if (g >= p->groups) return INT64_MAX;
    if (key == TEGROUP_IMPL_SORT_BY_SIZE) return -tegroup_impl_max(0, tegroup_impl_prepare_read(p, g).rows);
    if (!tegroup_impl_prepare_owns(p, key, g)) return INT64_MAX - 1; /* behind those that do */
    return key == TEGROUP_IMPL_SORT_BY_START ? tegroup_impl_prepare_read(p, g).start
                                             : tegroup_impl_prepare_read(p, g).offset;
}

/* One comparator of Batcher's bitonic network: position i against its partner at this distance, in runs of this
 * length. */
TEGROUP_IMPL_HD void tegroup_impl_sort_compare(const tegroup_impl_preparation *p, tegroup_impl_sort_key key, int32_t i,
                                               int32_t run, int32_t distance) {
    int32_t partner = i ^ distance, a, b;
    int64_t x, y;
    if (partner < i) return;
    a = p->order[i];
    b = p->order[partner];
    x = tegroup_impl_sort_value(p, key, a);
    y = tegroup_impl_sort_value(p, key, b);
    if ((x > y || (x == y && a > b)) == ((i & run) == 0)) {
        p->order[i] = b;
        p->order[partner] = a;
    }
}

/* The comparators that stay within the positions first .. first + block - 1. */
TEGROUP_IMPL_STATIC void tegroup_impl_sort_block(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                 int32_t first, int32_t block, int32_t run, int32_t distance) {
    int32_t i;
    for (; distance > 0; distance /= 2)
        for (i = first; i < first + block; i++) tegroup_impl_sort_compare(p, key, i, run, distance);
}

/* The network, with the positions in a block for each thread, as far as that is a power of two: blocks wait for each
 * other only where a comparator reaches from one to another. */
TEGROUP_IMPL_STATIC void tegroup_impl_sort(const tegroup_impl_preparation *p, tegroup_impl_sort_key key) {
    const int32_t extent = p->order_entries;
    int32_t log = 0, block = extent, threads, run, distance, i;
    while (extent >> log > 1) log++;
    /* extent / 2 comparators in each of log (log + 1) / 2 rounds, some twelve steps each */
    threads = tegroup_impl_team(p->threads, 3.0 * extent * log * (log + 1));
    while (block > 1 && extent / block * 2 <= threads) block /= 2;
    for (i = 0; i < extent; i++) p->order[i] = i;
    TEGROUP_IMPL_OMP(omp parallel private(run, distance, i) num_threads(threads))
    {
        TEGROUP_IMPL_OMP(omp for schedule(static))
        for (i = 0; i < extent; i += block)
            for (run = 2; run <= block; run *= 2) tegroup_impl_sort_block(p, key, i, block, run, run / 2);
        for (run = 2 * block; run <= extent; run *= 2) {
            for (distance = run / 2; distance >= block; distance /= 2) {
                TEGROUP_IMPL_OMP(omp for schedule(static))
                for (i = 0; i < extent / 2; i++) /* the lower position of each pair */
                    tegroup_impl_sort_compare(p, key, 2 * i - (i & (distance - 1)), run, distance);
            }
            TEGROUP_IMPL_OMP(omp for schedule(static))
            for (i = 0; i < extent; i += block) tegroup_impl_sort_block(p, key, i, block, run, block / 2);
        }
    }
}

/* Rows that the group at position i of the sorted ones keeps to itself. Of two groups that share rows, or elements, the
 * one that starts first ends where they meet; `owners` of them own something. Groups side by side in the rows of one
 * buffer share none: each is held against those that begin before it ends, so that many of these take time by their
 * number squared, and others do not. Of the others only where they begin is read, so that positions can be treated in
 * any order. */
TEGROUP_IMPL_HD int64_t tegroup_impl_prepare_apart(const tegroup_impl_preparation *p, tegroup_impl_sort_key key,
                                                   int32_t owners, int32_t i) {
    const int by_start = key == TEGROUP_IMPL_SORT_BY_START;
    tegroup_impl_place x = tegroup_impl_prepare_read(p, p->order[i]);
    int32_t j;
    for (j = i + 1; j < owners && x.rows > 0; j++) {
        const tegroup_impl_place y = tegroup_impl_prepare_read(p, p->order[j]);
        const int64_t ahead = by_start ? y.start - x.start : y.offset - x.offset;
        if (ahead >= (by_start ? x.rows : tegroup_impl_prepare_reach(p, &x))) break;
        x.rows = tegroup_impl_min(
            x.rows, by_start ? ahead : tegroup_impl_room(ahead, p->ld > 0 ? p->ld : x.cols, x.cols, y.cols));
    }
    return x.rows;
}
