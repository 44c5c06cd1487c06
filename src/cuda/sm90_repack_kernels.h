/* ---- Hopper GEMM: repacking rows ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/field_names.h"
#include "cuda/sm90_repack.h"
#include "cuda/rows.h"
#include "cuda/call.h"

/* What the kernel is given. Ragged rows are numbered as in their buffer, and those of uniform groups one group after
 * another; a copy has the same numbers. */
typedef struct tegroup_impl_sm90_repacking {
    tegroup_tensor from;
    tegroup_impl_gpu_groups groups; /* of `from`, where its rows are not ragged */
    const void *snapshot;           /* of A's rows: groups without any have nothing copied; NULL: all have rows */
    int64_t snapshot_rows;
    char *to;
    int64_t to_row; /* bytes */
} tegroup_impl_sm90_repacking;

/* Loads 16 bytes, of which `there` exist, in pieces of PIECE bytes, to which `from` and `there` are aligned. */
template <int PIECE> static __device__ __forceinline__ uint4 tegroup_impl_sm90_chunk(const char *from, int64_t there) {
    uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i += PIECE) {
        if (i >= there) continue;
        if (PIECE == 8) {
            const uint2 two = *(const uint2 *)(from + i);
            word[i / 4] = two.x;
            word[i / 4 + 1] = two.y;
        } else if (PIECE == 4) word[i / 4] = *(const uint32_t *)(from + i);
        else word[i / 4] |= (uint32_t) * (const uint16_t *)(from + i) << i % 4 * 8;
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Copies the rows of a unit. A thread has one chunk of each of them under way. */
template <int PIECE>
static __device__ __forceinline__ void tegroup_impl_sm90_copy_unit(const char *from, int64_t from_row, char *to,
                                                                   int64_t to_row, int64_t bytes, int32_t rows) {
    for (int64_t at = (int64_t)threadIdx.x * 16; at < bytes; at += (int64_t)blockDim.x * 16) {
        uint4 chunk[TEGROUP_IMPL_ROWS_UNIT];
#pragma unroll
        for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++)
            if (r < rows) chunk[r] = tegroup_impl_sm90_chunk<PIECE>(from + r * from_row + at, bytes - at);
#pragma unroll
        for (int r = 0; r < TEGROUP_IMPL_ROWS_UNIT; r++)
            if (r < rows) *(uint4 *)(to + r * to_row + at) = chunk[r];
    }
}

static __global__ void __launch_bounds__(TEGROUP_IMPL_ROWS_THREADS)
    tegroup_impl_sm90_repack_kernel(const tegroup_impl_sm90_repacking call) {
    const tegroup_tensor &t = call.from;
    const bool ragged = tegroup_impl_ragged(&t.shape);
    const int64_t each = tegroup_impl_ceil_div(t.shape.rows, TEGROUP_IMPL_ROWS_UNIT), bytes = t.shape.cols * 2,
                  from_row = tegroup_impl_ld(&t) * 2;
    const tegroup_impl_units units(call.snapshot, call.snapshot_rows);
    const int64_t count = ragged ? units.count : each * t.shape.groups;
    for (int64_t unit = blockIdx.x; unit < count; unit += gridDim.x) {
        int64_t row;
        int32_t rows;
        const char *from;
        if (ragged) {
            rows = units.at(unit, &row);
            from = (const char *)t.data + row * from_row;
        } else {
            const int32_t g = (int32_t)(unit / each);
            const int64_t within = unit % each * TEGROUP_IMPL_ROWS_UNIT;
            if (call.snapshot && (g >= units.groups || units.rows[g] <= 0)) continue;
            rows = (int32_t)tegroup_impl_min(TEGROUP_IMPL_ROWS_UNIT, t.shape.rows - within);
            row = g * t.shape.rows + within;
            from = tegroup_impl_gpu_group(call.groups, g) + within * from_row;
        }
        char *const to = call.to + row * call.to_row;
        const uint32_t places = (uint32_t)(uintptr_t)from | (uint32_t)from_row;
        if (places % 8 == 0 && bytes % 8 == 0)
            tegroup_impl_sm90_copy_unit<8>(from, from_row, to, call.to_row, bytes, rows);
        else if (places % 4 == 0 && bytes % 4 == 0)
            tegroup_impl_sm90_copy_unit<4>(from, from_row, to, call.to_row, bytes, rows);
        else tegroup_impl_sm90_copy_unit<2>(from, from_row, to, call.to_row, bytes, rows);
    }
}

/* Enqueues the copy of an operand, and makes the call's descriptor have it. */
static inline tegroup_status tegroup_impl_sm90_repack_operand(const tegroup_plan *plan, tegroup_impl_operand operand,
                                                              void *to, tegroup_gemm_desc *desc,
                                                              struct CUstream_st *stream, tegroup_error *error) {
    tegroup_tensor *t = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b;
    const tegroup_shape *sized = tegroup_impl_ragged(&t->shape) ? &t->shape : &desc->a.shape;
    const int64_t ld = tegroup_impl_sm90_repacked_ld(&plan->problem, operand);
    tegroup_impl_sm90_repacking call;
    memset(&call, 0, sizeof call);
    call.from = *t;
    call.groups = tegroup_impl_gpu_groups_of(t);
    call.snapshot = tegroup_impl_ragged(sized) ? sized->snapshot : NULL;
    call.snapshot_rows = sized->rows;
    call.to = (char *)to;
    call.to_row = ld * 2;
    t->data = to;
    t->ld = ld;
    t->group_stride = 0;
    t->pointers = NULL;
    t->pointers_space = TEGROUP_SPACE_UNSET;
    /* Of uniform groups without rows nothing is multiplied, and a list may have no addresses. */
    if (tegroup_impl_sm90_repacked_rows(&plan->problem, operand) == 0 || sized->rows == 0) return TEGROUP_OK;
    return tegroup_impl_cuda_rows(tegroup_impl_sm90_repack_kernel, &call, t->shape.cols, 8,
                                  tegroup_impl_ceil_div(tegroup_impl_sm90_repacked_rows(&plan->problem, operand), 4)
                                      + t->shape.groups,
                                  stream, error);
}

/* Enqueues the copies of the operands that a plan repacks. */
static inline tegroup_status tegroup_impl_sm90_repack(const tegroup_plan *plan, tegroup_gemm_desc *desc,
                                                      struct CUstream_st *stream, tegroup_error *error) {
    tegroup_layout layout;
    int32_t i, item = 0;
    tegroup_impl_layout_begin(&layout);
    tegroup_impl_sm90_workspace(plan, &layout);
    for (i = TEGROUP_IMPL_A; i <= TEGROUP_IMPL_B; i++)
        if (tegroup_impl_sm90_repacks(&plan->problem, (tegroup_impl_operand)i))
            TEGROUP_IMPL_TRY(tegroup_impl_sm90_repack_operand(
                plan, (tegroup_impl_operand)i, tegroup_impl_layout_at(&layout, item++, desc->options.workspace), desc,
                stream, error));
    return TEGROUP_OK;
}
