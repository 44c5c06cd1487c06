/* ---- Expert parallelism: kernels for rows of one token in one window ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "core/tensor_types.h"
#include "ep/ep_types.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/checks.h"
#include "moe/router_scheme.h"
#include "ep/places.h"
#include "ep/links.h"
#include "cuda/launch.h"
#include "cuda/rows.h"
#include "ep/ep_cuda.h"

/* A kernel's parameters. A piece is what a thread moves at a time, in bytes. */
typedef struct tegroup_impl_ep_links_call {
    tegroup_ep_links_desc desc;
    int32_t rows_piece, scales_piece;
} tegroup_impl_ep_links_call;

/* A warp has a unit of rows at a time, and calls `work` for each that is the first of a token which has others. */
template <typename WORK>
static __device__ __forceinline__ void tegroup_impl_ep_each_first(const tegroup_ep_links_desc &desc, const WORK &work) {
    const int32_t lane = (int32_t)threadIdx.x % 32, warps = (int32_t)blockDim.x / 32;
    const tegroup_impl_units units(desc.shape.snapshot, desc.shape.rows);
    if (units.groups != desc.shape.groups) return; /* that snapshot is of another shape */
    for (int64_t unit = (int64_t)blockIdx.x * warps + threadIdx.x / 32; unit < units.count;
         unit += (int64_t)gridDim.x * warps) {
        int64_t first;
        const int32_t rows = units.at(unit, &first);
        uint32_t left =
            __ballot_sync(0xffffffffu, lane < rows && tegroup_impl_ep_next(&desc.row_links, first + lane, 1) >= 0);
        for (; left; left &= left - 1) work(first + __ffs((int)left) - 1);
    }
}

/* The other rows of a token lie in shared memory: lane 0 follows the links. */
static __device__ __forceinline__ int32_t tegroup_impl_ep_others_of_warp(const tegroup_matrix &links, int64_t row,
                                                                         int64_t *others) {
    int32_t count = 0;
    __syncwarp(); /* the last token's have been read */
    if (threadIdx.x % 32 == 0) count = tegroup_impl_ep_others(&links, row, others);
    __syncwarp();
    return __shfl_sync(0xffffffffu, count, 0);
}

enum { TEGROUP_IMPL_EP_WARPS = TEGROUP_IMPL_ROWS_THREADS / 32 };

static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_ep_expand_kernel(const __grid_constant__ tegroup_impl_ep_links_call call) {
    __shared__ int64_t of_warps[TEGROUP_IMPL_EP_WARPS][TEGROUP_IMPL_CHOICES];
    __shared__ char *to_of_warps[2][TEGROUP_IMPL_EP_WARPS][TEGROUP_IMPL_CHOICES];
    const tegroup_ep_links_desc &desc = call.desc;
    const int32_t warp = (int32_t)threadIdx.x / 32, lane = (int32_t)threadIdx.x % 32;
    int64_t *const others = of_warps[warp];
    char **const rows = to_of_warps[0][warp], **const scales = to_of_warps[1][warp];
    tegroup_impl_ep_each_first(desc, [&](int64_t row) {
        const int32_t count = tegroup_impl_ep_others_of_warp(desc.row_links, row, others);
        for (int32_t j = lane; j < count; j += 32) {
            rows[j] = tegroup_impl_matrix_row(&desc.rows, others[j]);
            if (tegroup_impl_there(&desc.row_scales)) scales[j] = tegroup_impl_matrix_row(&desc.row_scales, others[j]);
        }
        __syncwarp();
        tegroup_impl_ep_spread_row(desc.rows, row, call.rows_piece, rows, count, 32);
        if (tegroup_impl_there(&desc.row_scales))
            tegroup_impl_ep_spread_row(desc.row_scales, row, (int32_t)tegroup_impl_min(8, call.scales_piece), scales,
                                       count, 32);
    });
}

/* A lane has the same steps of all rows of a token, and reads the first before it writes it. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_ep_reduce_kernel(const __grid_constant__ tegroup_impl_ep_links_call call) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes, BATCH = 4 };
    __shared__ int64_t of_warps[TEGROUP_IMPL_EP_WARPS][TEGROUP_IMPL_CHOICES];
    const tegroup_matrix &rows = call.desc.rows;
    const int64_t steps = rows.cols / lanes;
    int64_t *const others = of_warps[threadIdx.x / 32];
    tegroup_impl_ep_each_first(call.desc, [&](int64_t row) {
        const int32_t count = tegroup_impl_ep_others_of_warp(call.desc.row_links, row, others);
        for (int64_t c = threadIdx.x % 32; c < steps; c += 32) {
            real sum[lanes];
            ACCESS::unpack(ACCESS::load(rows, ACCESS::row(rows, row), c), sum);
            for (int32_t j = 0; j < count; j += BATCH) {
                typename ACCESS::raw x[BATCH];
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    x[b] = typename ACCESS::raw();
                    if (j + b < count) x[b] = ACCESS::load(rows, ACCESS::row(rows, others[j + b]), c);
                }
#pragma unroll
                for (int b = 0; b < BATCH; b++) {
                    real y[lanes];
                    if (j + b >= count) continue;
                    ACCESS::unpack(x[b], y);
#pragma unroll
                    for (int i = 0; i < lanes; i++) sum[i] += y[i];
                }
            }
            ACCESS::store(rows, ACCESS::row(rows, row), c, ACCESS::pack(sum));
        }
    });
}

static inline tegroup_impl_ep_links_call tegroup_impl_ep_links_call_of(const tegroup_ep_links_desc *desc) {
    tegroup_impl_ep_links_call call;
    call.desc = *desc;
    call.desc.rows = tegroup_impl_cuda_matrix(&desc->rows);
    call.rows_piece = tegroup_impl_cuda_piece(&desc->rows);
    call.scales_piece = tegroup_impl_there(&desc->row_scales) ? tegroup_impl_cuda_piece(&desc->row_scales) : 1;
    return call;
}

/* As many warps as the GPU holds, at most one for each unit of rows. */
static inline tegroup_status tegroup_impl_cuda_ep_links(void (*kernel)(const tegroup_impl_ep_links_call),
                                                        const tegroup_ep_links_desc *desc, struct CUstream_st *stream,
                                                        tegroup_error *error) {
    const tegroup_impl_ep_links_call call = tegroup_impl_ep_links_call_of(desc);
    const int64_t units = tegroup_impl_ceil_div(desc->shape.rows, TEGROUP_IMPL_ROWS_UNIT) + desc->shape.groups;
    unsigned blocks;
    if (desc->shape.rows == 0 || (desc->rows.cols == 0 && !tegroup_impl_there(&desc->row_scales))) return TEGROUP_OK;
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_blocks(tegroup_impl_ceil_div(units, TEGROUP_IMPL_EP_WARPS), 8, &blocks, error));
    return tegroup_impl_cuda_status(tegroup_impl_launch(kernel, blocks, TEGROUP_IMPL_ROWS_THREADS, 0, stream, call),
                                    "stream", "the kernel must launch", error);
}

static inline tegroup_status tegroup_impl_cuda_ep_expand(const tegroup_ep_links_desc *desc, struct CUstream_st *stream,
                                                         tegroup_error *error) {
    return tegroup_impl_cuda_ep_links(tegroup_impl_ep_expand_kernel, desc, stream, error);
}

static inline tegroup_status tegroup_impl_cuda_ep_reduce(const tegroup_ep_links_desc *desc, struct CUstream_st *stream,
                                                         tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->rows};
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_ep_links(tegroup_impl_ep_reduce_kernel<__VA_ARGS__>, desc, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 1, desc->rows.cols), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}
