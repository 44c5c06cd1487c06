/* ---- Prepare kernel ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/prepare_group.h"
#include "core/prepare_sort.h"
#include "core/prepare.h"
#include "core/prepare_rules.h"
#include "cuda/launch.h"

/* One block runs the steps of tegroup_impl_prepare_host with a thread for each group, or for four of them where there
 * are more than 1,024. What a thread knows of its groups stays in registers. Scans and sorting give the same integers
 * in whatever order they are evaluated, so the snapshot equals the host's bit for bit. The kernel runs once, most often
 * with cold caches, and then waits for its instructions more than for anything else: loops are not unrolled, and what
 * few shapes need is out of line. */
#define TEGROUP_IMPL_PREPARE_THREADS 1024

/* What of the header is found group by group. */
typedef struct tegroup_impl_row_totals {
    int64_t rows_total, rows_max, rows_end, elements; /* the header's; elements: of an irregular shape */
} tegroup_impl_row_totals;

typedef struct tegroup_impl_findings {
    uint32_t status, bad_group;
    tegroup_impl_row_totals warps[32]; /* of the groups of each warp's threads */
} tegroup_impl_findings;

/* Status bits of group g. */
static __device__ __forceinline__ void tegroup_impl_block_note(tegroup_impl_findings &findings, int32_t g,
                                                               uint32_t bits) {
    if (!bits) return;
    atomicOr(&findings.status, bits);
    atomicMin(&findings.bad_group, (uint32_t)g);
}

/* Sum, or maximum, of the values that the threads before this one have; none is negative. */
static __device__ __forceinline__ int64_t tegroup_impl_block_scan(int64_t value, bool maximum) {
    __shared__ int64_t warps[32];
    const int32_t lane = (int32_t)threadIdx.x & 31, warp = (int32_t)threadIdx.x / 32;
    const auto combine = [=](int64_t a, int64_t b) {
        return maximum ? tegroup_impl_max(a, b) : tegroup_impl_add(a, b);
    };
#pragma unroll 1
    for (int32_t step = 1; step < 32; step *= 2) {
        const int64_t other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value = combine(value, other);
    }
    int64_t before = __shfl_up_sync(0xffffffffu, value, 1);
    if (lane == 0) before = 0;
    if (blockDim.x == 32) return before;
    __syncthreads(); /* what the last scan left has been read */
    if (lane == 31) warps[warp] = value;
    __syncthreads();
    int64_t of_warps = lane < warp ? warps[lane] : 0;
#pragma unroll 1
    for (int32_t step = 16; step > 0; step /= 2)
        of_warps = combine(of_warps, __shfl_xor_sync(0xffffffffu, of_warps, step));
    return combine(before, of_warps);
}

/* Sorts (value, group) pairs by value and then by group with Batcher's bitonic network: position EACH * thread + e of
 * `extent`, a power of two, ends with the pair that belongs there. THREADS: the most that the block has. */
template <int EACH, int THREADS>
static __device__ __forceinline__ void tegroup_impl_block_sort(int32_t extent, int64_t (&value)[EACH],
                                                               int32_t (&group)[EACH]) {
    __shared__ int64_t values[THREADS];
    __shared__ int32_t groups[THREADS];
    const int32_t thread = (int32_t)threadIdx.x;
#pragma unroll 1
    for (int32_t run = 2; run <= extent; run *= 2)
#pragma unroll 1
        for (int32_t distance = run / 2; distance > 0; distance /= 2) {
            const int32_t away = distance / EACH; /* threads between the partners; 0: they are this thread's */
            int64_t value_there[EACH];
            int32_t group_there[EACH];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (away == 0) {
                    value_there[e] = distance == 1 ? value[(e ^ 1) % EACH] : value[(e ^ 2) % EACH];
                    group_there[e] = distance == 1 ? group[(e ^ 1) % EACH] : group[(e ^ 2) % EACH];
                } else if (away < 32) {
                    value_there[e] = __shfl_xor_sync(0xffffffffu, value[e], away);
                    group_there[e] = __shfl_xor_sync(0xffffffffu, group[e], away);
                } else {
                    __syncthreads(); /* what was there has been read */
                    values[thread] = value[e];
                    groups[thread] = group[e];
                    __syncthreads();
                    value_there[e] = values[thread ^ away];
                    group_there[e] = groups[thread ^ away];
                }
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const int32_t i = EACH * thread + e;
                const bool less =
                    value_there[e] < value[e] || (value_there[e] == value[e] && group_there[e] < group[e]);
                const bool keeps_smaller = ((i & distance) == 0) == ((i & run) == 0);
                if (less != keeps_smaller) continue;
                value[e] = value_there[e];
                group[e] = group_there[e];
            }
        }
}

/* Of groups that share rows, or elements, the one that begins first ends where the next begins. Reads and writes the
 * snapshot. */
template <int EACH, int THREADS>
static __device__ void tegroup_impl_block_disjoin(const tegroup_impl_preparation &p, tegroup_impl_sort_key key,
                                                  tegroup_impl_findings &findings) {
    int64_t value[EACH];
    int32_t group[EACH];
    int owners = 0;
    for (int e = 0; e < EACH; e++) {
        group[e] = EACH * (int32_t)threadIdx.x + e;
        value[e] = tegroup_impl_sort_value(&p, key, group[e]);
        owners += group[e] < p.groups && tegroup_impl_prepare_owns(&p, key, group[e]);
    }
    __shared__ int all;
    if (threadIdx.x == 0) all = 0;
    __syncthreads();
    atomicAdd(&all, owners);
    tegroup_impl_block_sort<EACH, THREADS>(p.order_entries, value, group);
    for (int e = 0; e < EACH; e++)
        if (EACH * (int32_t)threadIdx.x + e < p.order_entries) p.order[EACH * threadIdx.x + e] = group[e];
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < all; i += (int32_t)blockDim.x) {
        const int64_t kept = tegroup_impl_prepare_apart(&p, key, all, i);
        if (kept < p.out_rows[p.order[i]]) tegroup_impl_block_note(findings, p.order[i], TEGROUP_SNAPSHOT_OVERLAP);
        p.out_rows[p.order[i]] = kept;
    }
    __syncthreads();
}

/* The columns and first element of each group of an irregular shape. Reads and writes the snapshot. */
template <int EACH, int THREADS>
static __device__ void tegroup_impl_block_place_elements(const tegroup_impl_preparation &p,
                                                         tegroup_impl_findings &findings) {
    const int32_t from = EACH * (int32_t)threadIdx.x, to = (int32_t)tegroup_impl_min(from + EACH, p.groups);
    int64_t mine = 0;
    for (int32_t g = from; g < to; g++) {
        tegroup_impl_place x = tegroup_impl_prepare_read(&p, g);
        tegroup_impl_block_note(findings, g, tegroup_impl_prepare_cols(&p, g, &x));
        mine = tegroup_impl_add(mine, tegroup_impl_prepare_elements(&x));
    }
    int64_t carry = tegroup_impl_block_scan(mine, false);
    for (int32_t g = from; g < to; g++) {
        tegroup_impl_place x = tegroup_impl_prepare_read(&p, g);
        (void)tegroup_impl_prepare_cols(&p, g, &x);
        const int64_t elements = tegroup_impl_prepare_elements(&x); /* of one that is dropped, too */
        tegroup_impl_block_note(findings, g, tegroup_impl_prepare_offset(&p, g, carry, &x));
        tegroup_impl_prepare_write(&p, g, &x);
        carry = tegroup_impl_add(carry, elements);
    }
    __syncthreads();
    if (p.offsets) tegroup_impl_block_disjoin<EACH, THREADS>(p, TEGROUP_IMPL_SORT_BY_OFFSET, findings);
}

/* What only starts that the caller gives, or an irregular shape, ask for: the snapshot has starts and rows before and
 * after. */
template <int EACH, int THREADS>
static __device__ __noinline__ void tegroup_impl_block_place_apart(const tegroup_impl_preparation &p,
                                                                   tegroup_impl_findings &findings) {
    __syncthreads();
    if (p.rows.starts) tegroup_impl_block_disjoin<EACH, THREADS>(p, TEGROUP_IMPL_SORT_BY_START, findings);
    if (p.irregular) tegroup_impl_block_place_elements<EACH, THREADS>(p, findings);
}

/* Where each of the thread's groups begins, and how many rows it has: into x and the snapshot. */
template <int EACH, int THREADS>
static __device__ __forceinline__ void tegroup_impl_block_place(const tegroup_impl_preparation &p,
                                                                tegroup_impl_place (&x)[EACH],
                                                                tegroup_impl_findings &findings) {
    const int32_t from = EACH * (int32_t)threadIdx.x;
    int64_t mine = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (from + e < p.groups) mine = tegroup_impl_prepare_scan(&p, mine, tegroup_impl_prepare_term(&p, from + e));
    const bool counts = p.rows.encoding == TEGROUP_ENCODING_COUNTS;
    int64_t carry = tegroup_impl_block_scan(mine, !counts);
    carry = tegroup_impl_prepare_scan(&p, p.groups > 0 ? tegroup_impl_prepare_first(&p) : 0, carry);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int32_t g = from + e;
        x[e] = {0, 0, 0, 0};
        if (g >= p.groups) continue;
        tegroup_impl_block_note(findings, g, tegroup_impl_prepare_place(&p, g, carry, &x[e]));
        tegroup_impl_prepare_write(&p, g, &x[e]);
        if (e + 1 < EACH) carry = tegroup_impl_prepare_scan(&p, carry, tegroup_impl_prepare_term(&p, g));
    }
    if (!p.rows.starts && !p.irregular) return;
    tegroup_impl_block_place_apart<EACH, THREADS>(p, findings);
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (from + e < p.groups) x[e] = tegroup_impl_prepare_read(&p, from + e);
}

/* Every lane gets the warp's sum and maxima. */
static __device__ __forceinline__ tegroup_impl_row_totals tegroup_impl_warp_totals(tegroup_impl_row_totals x) {
#pragma unroll 1
    for (int32_t step = 16; step > 0; step /= 2) {
        x.rows_total += __shfl_xor_sync(0xffffffffu, x.rows_total, step);
        x.rows_max = tegroup_impl_max(x.rows_max, __shfl_xor_sync(0xffffffffu, x.rows_max, step));
        x.rows_end = tegroup_impl_max(x.rows_end, __shfl_xor_sync(0xffffffffu, x.rows_end, step));
        x.elements = tegroup_impl_max(x.elements, __shfl_xor_sync(0xffffffffu, x.elements, step));
    }
    return x;
}

/* The prefix sums, and the warp's share of the header. */
template <int EACH>
static __device__ __forceinline__ void tegroup_impl_block_sum(const tegroup_impl_preparation &p,
                                                              const tegroup_impl_place (&x)[EACH],
                                                              tegroup_impl_findings &findings) {
    const int32_t from = EACH * (int32_t)threadIdx.x;
    tegroup_impl_row_totals mine = {0, 0, 0, 0};
    int64_t granules = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int64_t rows = tegroup_impl_max(0, x[e].rows);
        granules += tegroup_impl_granules(rows);
        mine.rows_total += rows;
        mine.rows_max = tegroup_impl_max(mine.rows_max, rows);
        if (rows > 0) mine.rows_end = tegroup_impl_max(mine.rows_end, x[e].start + rows);
        const int64_t reach = p.irregular ? tegroup_impl_prepare_reach(&p, &x[e]) : 0;
        if (reach > 0) mine.elements = tegroup_impl_max(mine.elements, x[e].offset + reach);
    }
    int64_t before = tegroup_impl_block_scan(granules, false);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (from + e >= p.groups) continue;
        before += tegroup_impl_granules(tegroup_impl_max(0, x[e].rows));
        p.prefix[from + e + 1] = before;
    }
    findings.warps[threadIdx.x / 32] = tegroup_impl_warp_totals(mine);
}

/* The header, by one warp. */
static __device__ __forceinline__ void tegroup_impl_block_header(const tegroup_impl_preparation &p,
                                                                 const tegroup_impl_findings &findings,
                                                                 tegroup_snapshot_header *header) {
    tegroup_impl_row_totals all = {0, 0, 0, 0};
    if (threadIdx.x < blockDim.x / 32) all = findings.warps[threadIdx.x];
    all = tegroup_impl_warp_totals(all);
    if (threadIdx.x > 0) return;
    tegroup_snapshot_header result;
    tegroup_impl_snapshot_open(&result, &p);
    result.status = findings.status;
    result.bad_group = (int32_t)findings.bad_group;
    result.rows_total = all.rows_total;
    result.rows_max = all.rows_max;
    result.rows_end = all.rows_end;
    if (all.elements > 0) result.capacity_elements = tegroup_impl_max(result.capacity_elements, all.elements);
    *header = result;
}

template <int EACH, int THREADS>
static __device__ __forceinline__ void tegroup_impl_block_prepare(const tegroup_impl_preparation &p,
                                                                  tegroup_snapshot_header *header, int32_t bytes) {
    __shared__ tegroup_impl_findings findings;
    const int32_t thread = (int32_t)threadIdx.x;
    if (thread == 0) {
        findings.status = 0;
        findings.bad_group = ~0u; /* -1, none */
    }
#pragma unroll 1
    for (int32_t at = thread; at < bytes / 16; at += (int32_t)blockDim.x)
        ((uint4 *)header)[at] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    tegroup_impl_place x[EACH];
    tegroup_impl_block_place<EACH, THREADS>(p, x, findings);
    tegroup_impl_block_sum(p, x, findings);
    int64_t value[EACH];
    int32_t group[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        group[e] = EACH * thread + e;
        value[e] = group[e] < p.groups ? -tegroup_impl_max(0, x[e].rows) : INT64_MAX;
    }
    tegroup_impl_block_sort<EACH, THREADS>(p.order_entries, value, group);
#pragma unroll
    for (int e = 0; e < EACH; e++)
        if (EACH * thread + e < p.order_entries) p.order[EACH * thread + e] = group[e];
    __syncthreads();
    if (thread < 32) tegroup_impl_block_header(p, findings, header);
}

/* Counts of groups that lie one behind another in a regular shape, which is what most routers give. */
static inline bool tegroup_impl_prepare_plain(const tegroup_impl_preparation *p) {
    return !p->irregular && p->rows.encoding == TEGROUP_ENCODING_COUNTS && !p->rows.starts && p->rows.stride == 0
           && p->rows.alignment <= 1;
}

/* Such a preparation with that spelt out, so that the compiler leaves out what it does not need. */
static __device__ __forceinline__ tegroup_impl_preparation
tegroup_impl_prepare_as_plain(const tegroup_impl_preparation &p) {
    tegroup_impl_preparation plain = p;
    plain.irregular = 0;
    plain.rows.encoding = TEGROUP_ENCODING_COUNTS;
    plain.rows.starts = NULL;
    plain.rows.stride = plain.rows.alignment = 0;
    plain.offsets = NULL;
    return plain;
}

/* PLAIN is tegroup_impl_prepare_plain. */
template <int EACH, bool PLAIN>
static __global__ void __launch_bounds__(TEGROUP_IMPL_PREPARE_THREADS, 1)
    tegroup_impl_prepare_kernel(const __grid_constant__ tegroup_impl_preparation p, tegroup_snapshot_header *header,
                                int32_t bytes) {
    enum { THREADS = TEGROUP_IMPL_PREPARE_THREADS };
    if (PLAIN) tegroup_impl_block_prepare<EACH, THREADS>(tegroup_impl_prepare_as_plain(p), header, bytes);
    else tegroup_impl_block_prepare<EACH, THREADS>(p, header, bytes);
}

/* The same of sizes that were on the host. Their groups are few enough for a thread each. */
static __global__ void __launch_bounds__(TEGROUP_IMPL_PREPARE_THREADS, 1)
    tegroup_impl_prepare_parcel_kernel(const __grid_constant__ tegroup_impl_preparation p,
                                       const __grid_constant__ tegroup_impl_parcel parcel,
                                       tegroup_snapshot_header *header, int32_t bytes) {
    static_assert(TEGROUP_HOST_SIZES_MAX_BYTES / 4 <= TEGROUP_IMPL_PREPARE_THREADS, "a thread has one group");
    static_assert(sizeof p + sizeof parcel + sizeof header + sizeof bytes <= 4096, "parameters of any CUDA kernel");
    tegroup_impl_block_prepare<1, TEGROUP_IMPL_PREPARE_THREADS>(tegroup_impl_parcel_open(&p, &parcel), header, bytes);
}

/* The deep check: what the kernel reads and writes is device memory. */
static inline tegroup_status tegroup_impl_cuda_check_prepare(const tegroup_prepare_desc *desc, tegroup_error *error) {
    const tegroup_shape *shape = &desc->shape;
    const int ragged_cols = shape->col_sizes.encoding != TEGROUP_ENCODING_UNSET;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_address(desc->snapshot, "snapshot", error));
    if (tegroup_impl_data_space(&shape->row_sizes) == TEGROUP_SPACE_HOST) return TEGROUP_OK;
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
    const int32_t each = p->groups > TEGROUP_IMPL_PREPARE_THREADS ? 4 : 1;
    const unsigned threads = (unsigned)tegroup_impl_max(32, p->order_entries / each);
    if (tegroup_impl_data_space(&p->rows) == TEGROUP_SPACE_HOST) {
        tegroup_impl_parcel parcel;
        TEGROUP_IMPL_TRY(tegroup_impl_cuda_check_capture(desc->host_sizes_final, "host_sizes_final", stream, error));
        tegroup_impl_parcel_pack(p, &parcel);
        return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_prepare_parcel_kernel, 1, threads, 0, stream,
                                                            *p, parcel, (tegroup_snapshot_header *)desc->snapshot,
                                                            (int32_t)layout->total_bytes),
                                        "stream", "the prepare kernel must launch", error);
    }
    return tegroup_impl_cuda_status(
        tegroup_impl_launch(each > 1                        ? tegroup_impl_prepare_kernel<4, false>
                            : tegroup_impl_prepare_plain(p) ? tegroup_impl_prepare_kernel<1, true>
                                                            : tegroup_impl_prepare_kernel<1, false>,
                            1, threads, 0, stream, *p, (tegroup_snapshot_header *)desc->snapshot,
                            (int32_t)layout->total_bytes),
        "stream", "the prepare kernel must launch", error);
}
