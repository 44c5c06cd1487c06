/* ---- Prepare kernel ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/layout.h"
#include "core/prepare.h"
#include "cuda/launch.h"

/* The steps of tegroup_impl_prepare_host, a thread to each group or position, in one block: scans and the sorting
 * network give the same integers in any order, so the snapshot equals the host's bit for bit. */
#define TEGROUP_IMPL_PREPARE_THREADS 1024
#define TEGROUP_IMPL_PREPARE_SHARED 1024 /* groups whose order is sorted in shared memory */

/* Exclusive scan over the groups, starting from `first`: visit(g, scan of the terms before g). */
template <typename Term, typename Combine, typename Visit>
static __device__ void tegroup_impl_block_scan(int32_t groups, int64_t first, Term term, Combine combine, Visit visit) {
    __shared__ int64_t warps[TEGROUP_IMPL_PREPARE_THREADS / 32];
    const int32_t thread = (int32_t)threadIdx.x, lane = thread & 31;
    const int32_t each = (groups + TEGROUP_IMPL_PREPARE_THREADS - 1) / TEGROUP_IMPL_PREPARE_THREADS,
                  from = thread * each;
    int64_t mine = 0, before;
    for (int32_t g = from; g < from + each && g < groups; g++) mine = combine(mine, term(g));
    int64_t upto = mine;
    for (int32_t step = 1; step < 32; step *= 2) {
        const int64_t other = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto = combine(upto, other);
    }
    __syncthreads(); /* the last scan's sums are read */
    if (lane == 31) warps[thread / 32] = upto;
    before = __shfl_up_sync(0xffffffffu, upto, 1);
    if (lane == 0) before = 0;
    __syncthreads();
    int64_t carry = first;
    for (int32_t w = 0; w < thread / 32; w++) carry = combine(carry, warps[w]);
    carry = combine(carry, before);
    for (int32_t g = from; g < from + each && g < groups; g++) {
        const int64_t value = term(g);
        visit(g, carry);
        carry = combine(carry, value);
    }
    __syncthreads();
}

static __device__ void tegroup_impl_block_sort(const tegroup_impl_preparation &p, tegroup_impl_sort_key key) {
    const int32_t extent = tegroup_impl_sort_extent(p.groups), thread = (int32_t)threadIdx.x;
    for (int32_t i = thread; i < extent; i += TEGROUP_IMPL_PREPARE_THREADS) p.order[i] = i;
    __syncthreads();
    for (int32_t run = 2; run <= extent; run *= 2)
        for (int32_t distance = run / 2; distance > 0; distance /= 2) {
            for (int32_t i = thread; i < extent; i += TEGROUP_IMPL_PREPARE_THREADS)
                tegroup_impl_sort_compare(&p, key, i, run, distance);
            __syncthreads();
        }
}

/* Status bits of group g, into the header that a block shares. */
static __device__ __forceinline__ void tegroup_impl_block_note(tegroup_snapshot_header &header, int32_t g,
                                                               uint32_t bits) {
    if (!bits) return;
    atomicOr(&header.status, bits);
    atomicMin((uint32_t *)&header.bad_group, (uint32_t)g); /* -1 is the largest */
}

static __device__ __forceinline__ void tegroup_impl_block_disjoin(const tegroup_impl_preparation &p,
                                                                  tegroup_impl_sort_key key,
                                                                  tegroup_snapshot_header &header) {
    __shared__ int32_t owners;
    const int32_t thread = (int32_t)threadIdx.x;
    __syncthreads();
    if (thread == 0) owners = 0;
    __syncthreads();
    for (int32_t g = thread; g < p.groups; g += TEGROUP_IMPL_PREPARE_THREADS)
        if (tegroup_impl_prepare_owns(&p, key, g)) atomicAdd(&owners, 1);
    __syncthreads();
    tegroup_impl_block_sort(p, key);
    for (int32_t i = thread; i < owners; i += TEGROUP_IMPL_PREPARE_THREADS) {
        const int64_t kept = tegroup_impl_prepare_apart(&p, key, owners, i);
        if (kept < p.out_rows[p.order[i]]) tegroup_impl_block_note(header, p.order[i], TEGROUP_SNAPSHOT_OVERLAP);
        p.out_rows[p.order[i]] = kept;
    }
    __syncthreads();
}

/* Where each group's rows begin, and how many they are. */
static __device__ __forceinline__ void tegroup_impl_block_place(const tegroup_impl_preparation &p,
                                                                tegroup_snapshot_header &header) {
    if (p.groups > 0)
        tegroup_impl_block_scan(
            p.groups, tegroup_impl_prepare_first(&p), [&](int32_t g) { return tegroup_impl_prepare_term(&p, g); },
            [&](int64_t a, int64_t b) { return tegroup_impl_prepare_scan(&p, a, b); },
            [&](int32_t g, int64_t carry) {
                tegroup_impl_place x = {0, 0, 0, 0};
                tegroup_impl_block_note(header, g, tegroup_impl_prepare_place(&p, g, carry, &x));
                tegroup_impl_prepare_write(&p, g, &x);
            });
    if (p.rows.starts) tegroup_impl_block_disjoin(p, TEGROUP_IMPL_SORT_BY_START, header);
}

/* The columns and first element of each group of an irregular shape. */
static __device__ __forceinline__ void tegroup_impl_block_place_elements(const tegroup_impl_preparation &p,
                                                                         tegroup_snapshot_header &header) {
    auto sized = [&](int32_t g, uint32_t *bits) {
        tegroup_impl_place x = tegroup_impl_prepare_read(&p, g);
        *bits = tegroup_impl_prepare_cols(&p, g, &x);
        return x;
    };
    tegroup_impl_block_scan(
        p.groups, 0,
        [&](int32_t g) {
            uint32_t bits;
            const tegroup_impl_place x = sized(g, &bits);
            return tegroup_impl_prepare_elements(&x);
        },
        [](int64_t a, int64_t b) { return tegroup_impl_add(a, b); },
        [&](int32_t g, int64_t carry) {
            uint32_t bits;
            tegroup_impl_place x = sized(g, &bits);
            tegroup_impl_block_note(header, g, bits | tegroup_impl_prepare_offset(&p, g, carry, &x));
            tegroup_impl_prepare_write(&p, g, &x);
        });
    if (p.offsets) tegroup_impl_block_disjoin(p, TEGROUP_IMPL_SORT_BY_OFFSET, header);
}

/* The prefix sums, and the sums and extremes of the header. */
static __device__ __forceinline__ void tegroup_impl_block_sum(const tegroup_impl_preparation &p,
                                                              tegroup_snapshot_header &header) {
    tegroup_impl_block_scan(
        p.groups, 0, [&](int32_t g) { return tegroup_impl_prepare_granules(&p, g); },
        [](int64_t a, int64_t b) { return a + b; },
        [&](int32_t g, int64_t before) { p.prefix[g + 1] = before + tegroup_impl_prepare_granules(&p, g); });
    for (int32_t g = (int32_t)threadIdx.x; g < p.groups; g += TEGROUP_IMPL_PREPARE_THREADS) {
        const tegroup_impl_place x = tegroup_impl_prepare_read(&p, g);
        const int64_t r = tegroup_impl_max(0, x.rows), reach = tegroup_impl_prepare_reach(&p, &x);
        atomicAdd((unsigned long long *)&header.rows_total, (unsigned long long)r);
        atomicMax((unsigned long long *)&header.rows_max, (unsigned long long)r);
        if (r > 0) atomicMax((unsigned long long *)&header.rows_end, (unsigned long long)(x.start + r));
        if (reach > 0)
            atomicMax((unsigned long long *)&header.capacity_elements, (unsigned long long)(x.offset + reach));
    }
    __syncthreads();
}

/* The groups by size: few enough are sorted in shared memory. */
static __device__ __forceinline__ void tegroup_impl_block_order(const tegroup_impl_preparation &p) {
    __shared__ int32_t order[TEGROUP_IMPL_PREPARE_SHARED];
    __shared__ int64_t rows[TEGROUP_IMPL_PREPARE_SHARED];
    const int32_t thread = (int32_t)threadIdx.x;
    tegroup_impl_preparation sorted = p;
    if (p.groups <= TEGROUP_IMPL_PREPARE_SHARED) {
        for (int32_t g = thread; g < p.groups; g += TEGROUP_IMPL_PREPARE_THREADS) rows[g] = p.out_rows[g];
        sorted.out_rows = rows;
        sorted.order = order;
        __syncthreads();
    }
    tegroup_impl_block_sort(sorted, TEGROUP_IMPL_SORT_BY_SIZE);
    if (sorted.order != p.order)
        for (int32_t i = thread; i < tegroup_impl_sort_extent(p.groups); i += TEGROUP_IMPL_PREPARE_THREADS)
            p.order[i] = order[i];
}

static __global__ void __launch_bounds__(TEGROUP_IMPL_PREPARE_THREADS, 1)
    tegroup_impl_prepare_kernel(const __grid_constant__ tegroup_impl_preparation given, tegroup_snapshot_header *header,
                                int64_t words) {
    __shared__ tegroup_snapshot_header result;
    const tegroup_impl_preparation &p = given;
    const int32_t thread = (int32_t)threadIdx.x;
    for (int64_t w = thread; w < words; w += TEGROUP_IMPL_PREPARE_THREADS) ((uint32_t *)header)[w] = 0;
    if (thread == 0) {
        tegroup_impl_snapshot_open(&result, &p);
    }
    __syncthreads();
    tegroup_impl_block_place(p, result);
    if (p.irregular) tegroup_impl_block_place_elements(p, result);
    tegroup_impl_block_sum(p, result);
    tegroup_impl_block_order(p);
    if (thread == 0) *header = result;
}

/* The deep check: what the kernel reads and writes is device memory. */
static inline tegroup_status tegroup_impl_cuda_check_prepare(const tegroup_prepare_desc *desc, tegroup_error *error) {
    const tegroup_shape *shape = &desc->shape;
    const int ragged_cols = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(desc->snapshot, "snapshot", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(shape->row_sizes.data, "shape.row_sizes.data", error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(shape->row_sizes.starts, "shape.row_sizes.starts", error));
    TEGROUP_IMPL_TRY(
        tegroup_impl_cuda_check_address(ragged_cols ? shape->col_sizes.data : NULL, "shape.col_sizes.data", error));
    return tegroup_impl_cuda_check_address(shape->offsets, "shape.offsets", error);
}

static inline tegroup_status tegroup_impl_cuda_prepare(const tegroup_impl_preparation *p,
                                                       const tegroup_prepare_desc *desc, const tegroup_layout *layout,
                                                       struct CUstream_st *stream, tegroup_error *error) {
    if (desc->check_level == TEGROUP_CHECK_DEEP) TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_prepare(desc, error));
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_prepare_kernel, 1, TEGROUP_IMPL_PREPARE_THREADS, 0,
                                                        stream, *p, (tegroup_snapshot_header *)desc->snapshot,
                                                        (int64_t)(layout->total_bytes / 4)),
                                    "stream", "the prepare kernel must launch", error);
}
