/* ---- Permute and combine kernels ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "moe/routing_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/checks.h"
#include "cuda/rows.h"

/* The moves of a unit's rows. One lane of a warp computes each move and hands it to all lanes. */
template <typename REAL> struct tegroup_impl_moves {
    int64_t from[TEGROUP_IMPL_ROWS_UNIT], to[TEGROUP_IMPL_ROWS_UNIT]; /* to is -1 if there is nothing to move */
    REAL weight[TEGROUP_IMPL_ROWS_UNIT];

    __device__ void share(int64_t my_from, int64_t my_to, REAL my_weight) {
#pragma unroll
        for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
            from[r] = __shfl_sync(0xffffffffu, my_from, r);
            to[r] = __shfl_sync(0xffffffffu, my_to, r);
            weight[r] = __shfl_sync(0xffffffffu, my_weight, r);
        }
    }
};

/* Moves rows that are no numbers, in pieces of 1, 2, 4 or 8 bytes: as many as the matrix's type has. */
struct tegroup_impl_pieces {
    typedef float real;
    typedef uint64_t raw;
    enum { lanes = 1 };
    static __device__ __forceinline__ char *row(const tegroup_matrix &m, int64_t row) {
        return tegroup_impl_matrix_row(&m, row);
    }
    static __device__ __forceinline__ raw load(const tegroup_matrix &m, const char *row, int64_t step) {
        switch (tegroup_impl_bits(m.dtype)) {
        case 64: return ((const uint64_t *)row)[step];
        case 32: return ((const uint32_t *)row)[step];
        case 16: return ((const uint16_t *)row)[step];
        default: return ((const uint8_t *)row)[step];
        }
    }
    static __device__ __forceinline__ void store(const tegroup_matrix &m, char *row, int64_t step, raw x) {
        switch (tegroup_impl_bits(m.dtype)) {
        case 64: ((uint64_t *)row)[step] = x; break;
        case 32: ((uint32_t *)row)[step] = (uint32_t)x; break;
        case 16: ((uint16_t *)row)[step] = (uint16_t)x; break;
        default: ((uint8_t *)row)[step] = (uint8_t)x; break;
        }
    }
    static __device__ __forceinline__ void unpack(raw, real *) {} /* of weights, which such rows never have */
    static __device__ __forceinline__ raw pack(const real *) { return 0; }
};

/* A matrix of no numbers as one of pieces of `bytes`, whatever type carries them. */
static inline tegroup_matrix tegroup_impl_cuda_pieces(const tegroup_matrix *m, int32_t bytes) {
    const int64_t element = tegroup_impl_bits(m->dtype) / 8;
    tegroup_matrix pieces = *m;
    pieces.ld = tegroup_impl_matrix_ld(m) * element / bytes;
    pieces.cols = m->cols * element / bytes;
    pieces.dtype = bytes == 8   ? TEGROUP_DTYPE_I64
                   : bytes == 4 ? TEGROUP_DTYPE_F32
                   : bytes == 2 ? TEGROUP_DTYPE_BF16
                                : TEGROUP_DTYPE_F8E4M3;
    return pieces;
}

template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_permute_kernel(const __grid_constant__ tegroup_permute_desc desc) {
    typedef typename ACCESS::real real;
    const int lanes = ACCESS::lanes;
    const int64_t steps = desc.permuted.cols / lanes, rows = desc.permuted.rows, slots = desc.tokens.rows * desc.k;
    const bool weighted = desc.weights.dtype != TEGROUP_DTYPE_UNSET;
    for (int64_t first = (int64_t)blockIdx.x * TEGROUP_IMPL_ROWS_UNIT; first < rows;
         first += (int64_t)gridDim.x * TEGROUP_IMPL_ROWS_UNIT) {
        const int64_t row = first + threadIdx.x % TEGROUP_IMPL_ROWS_UNIT;
        const int64_t slot =
            row < rows ? tegroup_impl_load_int(desc.slot_of_row.dtype, desc.slot_of_row.data, row) : -1;
        const bool moves_one = slot >= 0 && slot < slots;
        const int64_t token = moves_one ? slot / desc.k : 0;
        tegroup_impl_moves<real> moves;
        moves.share(token, moves_one ? row : -1,
                    moves_one ? tegroup_impl_weight<real>(desc.weights, token, slot - token * desc.k) : (real)0);
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            typename ACCESS::raw x[TEGROUP_IMPL_ROWS_UNIT];
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                x[r] = typename ACCESS::raw();
                if (moves.to[r] >= 0) x[r] = ACCESS::load(desc.tokens, ACCESS::row(desc.tokens, moves.from[r]), c);
            }
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                if (moves.to[r] < 0) continue;
                if (weighted) {
                    real y[lanes];
                    ACCESS::unpack(x[r], y);
#pragma unroll
                    for (int i = 0; i < lanes; i++) y[i] *= moves.weight[r];
                    x[r] = ACCESS::pack(y);
                }
                ACCESS::store(desc.permuted, ACCESS::row(desc.permuted, moves.to[r]), c, x[r]);
            }
        }
    }
}

/* The same by the other map: one block serves one token at a time, and writes it to each of its rows. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_permute_tokens_kernel(const __grid_constant__ tegroup_permute_desc desc) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes };
    const tegroup_matrix &map = desc.row_of_slot;
    const int64_t steps = desc.permuted.cols / lanes;
    const int32_t lane = (int32_t)threadIdx.x % 32;
    const bool weighted = desc.weights.dtype != TEGROUP_DTYPE_UNSET;
    for (int64_t token = blockIdx.x; token < desc.tokens.rows; token += gridDim.x)
        for (int32_t first = 0; first < desc.k; first += 32) { /* a lane has one of up to 32 choices */
            const int32_t choices = (int32_t)tegroup_impl_min(32, desc.k - first);
            int64_t mine =
                lane < choices ? tegroup_impl_load_int(map.dtype, map.data, token * map.ld + first + lane) : -1;
            if (mine >= desc.permuted.rows) mine = -1;
            const real my_weight = mine >= 0 ? tegroup_impl_weight<real>(desc.weights, token, first + lane) : (real)0;
            for (int64_t c = threadIdx.x; c - lane < steps; c += blockDim.x) { /* a warp stays together */
                typename ACCESS::raw x = typename ACCESS::raw();
                if (c < steps) x = ACCESS::load(desc.tokens, ACCESS::row(desc.tokens, token), c);
                for (int32_t j = 0; j < choices; j++) {
                    const int64_t row = __shfl_sync(0xffffffffu, mine, j);
                    const real weight = __shfl_sync(0xffffffffu, my_weight, j);
                    typename ACCESS::raw scaled = x;
                    if (row < 0 || c >= steps) continue;
                    if (weighted) {
                        real y[lanes];
                        ACCESS::unpack(x, y);
#pragma unroll
                        for (int i = 0; i < lanes; i++) y[i] *= weight;
                        scaled = ACCESS::pack(y);
                    }
                    ACCESS::store(desc.permuted, ACCESS::row(desc.permuted, row), c, scaled);
                }
            }
        }
}

/* The same for rows that are shorter than a warp. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_permute_short_kernel(const __grid_constant__ tegroup_permute_desc desc) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes };
    const tegroup_matrix &map = desc.row_of_slot;
    const int64_t steps = desc.permuted.cols / lanes;
    const tegroup_impl_abreast at(steps);
    int64_t token = (int64_t)blockIdx.x * at.rows + at.row;
    if (at.row == at.rows) return;
    for (; token < desc.tokens.rows; token += (int64_t)gridDim.x * at.rows) {
        const typename ACCESS::raw x = ACCESS::load(desc.tokens, ACCESS::row(desc.tokens, token), at.step);
        for (int32_t j = 0; j < desc.k; j++) {
            const int64_t row = tegroup_impl_load_int(map.dtype, map.data, token * map.ld + j);
            if (row < 0 || row >= desc.permuted.rows) continue;
            typename ACCESS::raw scaled = x;
            if (desc.weights.dtype != TEGROUP_DTYPE_UNSET) {
                const real weight = tegroup_impl_weight<real>(desc.weights, token, j);
                real y[lanes];
                ACCESS::unpack(x, y);
#pragma unroll
                for (int i = 0; i < lanes; i++) y[i] *= weight;
                scaled = ACCESS::pack(y);
            }
            ACCESS::store(desc.permuted, ACCESS::row(desc.permuted, row), at.step, scaled);
        }
    }
}

/* Adds one step of the rows of up to BATCH of a token's slots, from `slot` on. All rows are loaded before the first is
 * added. */
template <typename ACCESS, int BATCH>
static __device__ __forceinline__ void tegroup_impl_combine_batch(const tegroup_combine_desc &desc, int64_t token,
                                                                  int64_t slot, int64_t k, int64_t c,
                                                                  typename ACCESS::real *sum) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes };
    typename ACCESS::raw x[BATCH];
    real weight[BATCH];
    const tegroup_matrix &map = desc.row_of_slot;
    const int64_t at = token * map.ld + slot;
    int64_t row[BATCH];
    uint32_t present = 0;
#pragma unroll
    for (int b = 0; b < BATCH; b++) row[b] = slot + b < k ? tegroup_impl_load_int(map.dtype, map.data, at + b) : -1;
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        x[b] = typename ACCESS::raw();
        weight[b] = 0;
        if (row[b] >= 0 && row[b] < desc.permuted.rows) {
            present |= 1u << b;
            weight[b] = tegroup_impl_weight<real>(desc.weights, token, slot + b);
            x[b] = ACCESS::load(desc.permuted, ACCESS::row(desc.permuted, row[b]), c);
        }
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        if (!(present >> b & 1u)) continue;
        real y[lanes];
        ACCESS::unpack(x[b], y);
#pragma unroll
        for (int i = 0; i < lanes; i++) sum[i] = fma(weight[b], y[i], sum[i]);
    }
}

/* One block serves one token at a time, or several whose rows are short, and adds its slots in batches. */
template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_combine_kernel(const __grid_constant__ tegroup_combine_desc desc) {
    typedef typename ACCESS::real real;
    enum { lanes = ACCESS::lanes, batch = 8 };
    const int64_t steps = desc.tokens.cols / lanes, k = desc.row_of_slot.cols;
    const tegroup_impl_abreast at(steps);
    int64_t token = (int64_t)blockIdx.x * at.rows + at.row;
    if (at.row == at.rows) return;
    for (; token < desc.tokens.rows; token += (int64_t)gridDim.x * at.rows) {
        for (int64_t c = at.step; c < steps; c += at.stride) {
            real sum[lanes];
            tegroup_impl_begin_sum<ACCESS>(desc.tokens, token, c, desc.accumulate, sum);
            for (int64_t j = 0; j < k; j += batch) tegroup_impl_combine_batch<ACCESS, batch>(desc, token, j, k, c, sum);
            ACCESS::store(desc.tokens, ACCESS::row(desc.tokens, token), c, ACCESS::pack(sum));
        }
    }
}

template <typename ACCESS>
static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_combine_grad_kernel(const __grid_constant__ tegroup_combine_backward_desc desc) {
    typedef typename ACCESS::real real;
    const int lanes = ACCESS::lanes;
    const int64_t steps = desc.grad_tokens.cols / lanes, k = desc.row_of_slot.cols, slots = desc.grad_tokens.rows * k;
    const bool wants_weights = desc.grad_weights.dtype != TEGROUP_DTYPE_UNSET;
    for (int64_t first = (int64_t)blockIdx.x * TEGROUP_IMPL_ROWS_UNIT; first < slots;
         first += (int64_t)gridDim.x * TEGROUP_IMPL_ROWS_UNIT) {
        const int64_t slot = first + threadIdx.x % TEGROUP_IMPL_ROWS_UNIT, token = slot < slots ? slot / k : 0,
                      choice = slot < slots ? slot - token * k : 0;
        int64_t row = slot < slots ? tegroup_impl_load_int(desc.row_of_slot.dtype, desc.row_of_slot.data,
                                                           token * desc.row_of_slot.ld + choice)
                                   : -1;
        if (row < 0 || row >= desc.grad_permuted.rows) row = -1;
        tegroup_impl_moves<real> moves;
        moves.share(token, row, row >= 0 ? tegroup_impl_weight<real>(desc.weights, token, choice) : (real)0);
        real sum[TEGROUP_IMPL_ROWS_UNIT] = {0, 0, 0, 0};
        for (int64_t c = threadIdx.x; c < steps; c += blockDim.x) {
            typename ACCESS::raw g[TEGROUP_IMPL_ROWS_UNIT], p[TEGROUP_IMPL_ROWS_UNIT];
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                g[r] = p[r] = typename ACCESS::raw();
                if (moves.to[r] < 0) continue;
                g[r] = ACCESS::load(desc.grad_tokens, ACCESS::row(desc.grad_tokens, moves.from[r]), c);
                if (wants_weights) p[r] = ACCESS::load(desc.permuted, ACCESS::row(desc.permuted, moves.to[r]), c);
            }
#pragma unroll
            for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++) {
                if (moves.to[r] < 0) continue;
                real grad[lanes], x[lanes];
                ACCESS::unpack(g[r], grad);
                ACCESS::unpack(p[r], x);
#pragma unroll
                for (int i = 0; i < lanes; i++) {
                    sum[r] = fma(grad[i], x[i], sum[r]);
                    grad[i] *= moves.weight[r];
                }
                ACCESS::store(desc.grad_permuted, ACCESS::row(desc.grad_permuted, moves.to[r]), c, ACCESS::pack(grad));
            }
        }
        if (wants_weights) {
            const real total = tegroup_impl_block_sums(sum);
            if (threadIdx.x < TEGROUP_IMPL_ROWS_UNIT && slot < slots)
                tegroup_impl_set_weight(desc.grad_weights, token, choice, total);
        }
    }
}

static inline tegroup_status tegroup_impl_cuda_permute(const tegroup_permute_desc *desc, struct CUstream_st *stream,
                                                       tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->tokens, &desc->permuted};
    const int by_slots = desc->row_of_slot.dtype != TEGROUP_DTYPE_UNSET;
    tegroup_permute_desc d = *desc;
    tegroup_dtype access;
    if (desc->permuted.rows == 0 || desc->permuted.cols == 0) return TEGROUP_OK;
    d.tokens = tegroup_impl_cuda_matrix(&desc->tokens);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.permuted = tegroup_impl_cuda_matrix(&desc->permuted);
    d.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    access = tegroup_impl_cuda_access(matrices, 2, desc->permuted.cols);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    if (by_slots && d.permuted.cols / __VA_ARGS__::lanes < 32)                                                         \
        return tegroup_impl_cuda_rows_abreast(tegroup_impl_permute_short_kernel<__VA_ARGS__>, &d, d.permuted.cols,     \
                                              __VA_ARGS__::lanes, d.tokens.rows, stream, error);                       \
    return tegroup_impl_cuda_rows(by_slots ? tegroup_impl_permute_tokens_kernel<__VA_ARGS__>                           \
                                           : tegroup_impl_permute_kernel<__VA_ARGS__>,                                 \
                                  &d, d.permuted.cols, __VA_ARGS__::lanes,                                             \
                                  by_slots ? desc->tokens.rows                                                         \
                                           : tegroup_impl_ceil_div(desc->permuted.rows, TEGROUP_IMPL_ROWS_UNIT),       \
                                  stream, error);
    if (!tegroup_impl_is_float(desc->tokens.dtype)) {
        const int32_t piece =
            (int32_t)tegroup_impl_min(tegroup_impl_cuda_piece(&desc->tokens), tegroup_impl_cuda_piece(&desc->permuted));
        d.tokens = tegroup_impl_cuda_pieces(&desc->tokens, piece == 16 ? 4 : piece);
        d.permuted = tegroup_impl_cuda_pieces(&desc->permuted, piece == 16 ? 4 : piece);
        access = TEGROUP_DTYPE_F32; /* without weights its kernel moves 16 bytes, whatever they are */
        if (piece < 16) {
            TEGROUP_IMPL_LAUNCH(tegroup_impl_pieces)
        }
    }
    TEGROUP_IMPL_BY_ACCESS(access, TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

static inline tegroup_status tegroup_impl_cuda_combine(const tegroup_combine_desc *desc, struct CUstream_st *stream,
                                                       tegroup_error *error) {
    const tegroup_matrix *const matrices[] = {&desc->permuted, &desc->tokens};
    const int64_t width = desc->tokens.cols;
    tegroup_combine_desc d = *desc;
    if (desc->tokens.rows == 0 || width == 0) return TEGROUP_OK;
    d.permuted = tegroup_impl_cuda_matrix(&desc->permuted);
    d.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.tokens = tegroup_impl_cuda_matrix(&desc->tokens);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows_abreast(tegroup_impl_combine_kernel<__VA_ARGS__>, &d, width, __VA_ARGS__::lanes,     \
                                          desc->tokens.rows, stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}

#if !defined(TEGROUP_NO_BACKWARD)
static inline tegroup_status tegroup_impl_cuda_combine_backward(const tegroup_combine_backward_desc *desc,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    const int wants_weights = desc->grad_weights.dtype != TEGROUP_DTYPE_UNSET;
    const tegroup_matrix *const matrices[] = {&desc->grad_tokens, &desc->grad_permuted, &desc->permuted};
    const int64_t width = desc->grad_tokens.cols, slots = desc->grad_tokens.rows * desc->row_of_slot.cols;
    tegroup_combine_backward_desc d = *desc;
    if (slots == 0 || (width == 0 && !wants_weights)) return TEGROUP_OK;
    d.grad_tokens = tegroup_impl_cuda_matrix(&desc->grad_tokens);
    d.permuted = tegroup_impl_cuda_matrix(&desc->permuted);
    d.row_of_slot = tegroup_impl_cuda_matrix(&desc->row_of_slot);
    d.weights = tegroup_impl_cuda_matrix(&desc->weights);
    d.grad_permuted = tegroup_impl_cuda_matrix(&desc->grad_permuted);
    d.grad_weights = tegroup_impl_cuda_matrix(&desc->grad_weights);
#define TEGROUP_IMPL_LAUNCH(...)                                                                                       \
    return tegroup_impl_cuda_rows(tegroup_impl_combine_grad_kernel<__VA_ARGS__>, &d, width, __VA_ARGS__::lanes,        \
                                  tegroup_impl_ceil_div(slots, TEGROUP_IMPL_ROWS_UNIT), stream, error);
    TEGROUP_IMPL_BY_ACCESS(tegroup_impl_cuda_access(matrices, wants_weights ? 3 : 2, width), TEGROUP_IMPL_LAUNCH)
#undef TEGROUP_IMPL_LAUNCH
}
#endif /* TEGROUP_NO_BACKWARD */
