/* ---- Scale layouts ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "base/linkage.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "formats/dtype.h"

TEGROUP_API const tegroup_scaling_facts *tegroup_scaling_info(tegroup_scaling scaling) {
#define TEGROUP_IMPL_BIT(name) (1u << TEGROUP_DTYPE_##name)
#define TEGROUP_IMPL_FP8 (TEGROUP_IMPL_BIT(F8E4M3) | TEGROUP_IMPL_BIT(F8E5M2))
#define TEGROUP_IMPL_FP4 TEGROUP_IMPL_BIT(F4E2M1)
    static const tegroup_scaling_facts table[TEGROUP_SCALING_COUNT] = {
        /* scaling, name, data types, scale type, block outer, inner, pad outer, inner, outer fastest, swizzled,
         * choice outer */
        {TEGROUP_SCALING_NONE, "none",
         TEGROUP_IMPL_BIT(F64) | TEGROUP_IMPL_BIT(F32) | TEGROUP_IMPL_BIT(F16) | TEGROUP_IMPL_BIT(BF16),
         TEGROUP_DTYPE_UNSET, 0, 0, 1, 1, 0, 0, 0},
        {TEGROUP_SCALING_TENSOR, "tensor", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F32, 0, 0, 1, 1, 0, 0, 0},
        {TEGROUP_SCALING_ROW, "row", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F32, 1, 0, 1, 1, 0, 0, 1},
        {TEGROUP_SCALING_BLOCK_1X128, "1x128", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F32, 1, 128, 4, 1, 1, 0, 1},
        {TEGROUP_SCALING_BLOCK_128X128, "128x128", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F32, 128, 128, 1, 4, 0, 0, 128},
        {TEGROUP_SCALING_MXFP8, "mxfp8", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F8E8M0, 1, 32, 128, 4, 0, 1, 1},
        {TEGROUP_SCALING_NVFP4, "nvfp4", TEGROUP_IMPL_FP4, TEGROUP_DTYPE_F8E4M3, 1, 16, 128, 4, 0, 1, 1},
        {TEGROUP_SCALING_MXFP4, "mxfp4", TEGROUP_IMPL_FP4, TEGROUP_DTYPE_F8E8M0, 1, 32, 128, 4, 0, 1, 1},
        {TEGROUP_SCALING_BLOCK_32X32, "32x32", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F32, 32, 32, 1, 1, 0, 0, 32},
        {TEGROUP_SCALING_MXFP8_32X32, "mxfp8-32x32", TEGROUP_IMPL_FP8, TEGROUP_DTYPE_F8E8M0, 1, 32, 128, 4, 0, 1, 32},
        {TEGROUP_SCALING_NVFP4_16X16, "nvfp4-16x16", TEGROUP_IMPL_FP4, TEGROUP_DTYPE_F8E4M3, 1, 16, 128, 4, 0, 1, 16},
    };
#undef TEGROUP_IMPL_FP4
#undef TEGROUP_IMPL_FP8
#undef TEGROUP_IMPL_BIT
    return (uint32_t)scaling < TEGROUP_SCALING_COUNT ? &table[scaling] : NULL;
}

/* One scale for a whole group, which a group without elements has, too. */
TEGROUP_IMPL_HD int tegroup_impl_scaled_as_one(const tegroup_scaling_facts *facts) {
    return facts->scale_dtype != TEGROUP_DTYPE_UNSET && !facts->block_outer && !facts->block_inner;
}

/* A scale for each row, and in the columnwise copy for each column. */
TEGROUP_IMPL_HD int tegroup_impl_scaled_by_line(const tegroup_scaling_facts *facts) {
    return facts->block_outer == 1 && !facts->block_inner;
}

/* Blocks of `block` elements in `extent`; 0 = one block of all. */
TEGROUP_IMPL_HD int64_t tegroup_impl_blocks(int64_t extent, int32_t block) {
    return block > 0 ? tegroup_impl_ceil_div(extent, block) : 1;
}

/* Tiles of 128 outer x 4 inner, 512 scales each, one row of tiles after another; within one, four strips of 32 rows lie
 * side by side. (cuBLAS documentation, "Narrow precision data types usage".) */
TEGROUP_IMPL_HD int64_t tegroup_impl_swizzled(int64_t inner_extent, int64_t outer, int64_t inner) {
    const int64_t tile = (outer >> 7) * (inner_extent >> 2) + (inner >> 2);
    return tile * 512 + (outer & 31) * 16 + (outer >> 5 & 3) * 4 + (inner & 3);
}

TEGROUP_API tegroup_status tegroup_scale_shape(tegroup_scaling scaling, int32_t columnwise, int64_t rows, int64_t cols,
                                               tegroup_scale_extent *extent, tegroup_error *error) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(scaling);
    tegroup_scale_extent result = {0, 0, 0};
    int64_t outer = columnwise ? cols : rows, inner = columnwise ? rows : cols;
    TEGROUP_IMPL_RULE(extent != NULL, ERROR_NULL_ARGUMENT, "extent", "must not be NULL", 1, 0);
    TEGROUP_IMPL_RULE_ENUM(scaling, TEGROUP_SCALING_COUNT - 1, "scaling", "must be a tegroup_scaling");
    TEGROUP_IMPL_RULE(columnwise == 0 || columnwise == 1, ERROR_VALUE, "columnwise", "must be 0 or 1", 1, columnwise);
    TEGROUP_IMPL_RULE(rows >= 0, ERROR_VALUE, "rows", "must not be negative", 0, rows);
    TEGROUP_IMPL_RULE(cols >= 0, ERROR_VALUE, "cols", "must not be negative", 0, cols);
    if (tegroup_impl_scaled_as_one(facts) || (scaling != TEGROUP_SCALING_NONE && rows > 0 && cols > 0)) {
        int64_t bytes;
        result.outer = tegroup_impl_align(tegroup_impl_blocks(outer, facts->block_outer), facts->pad_outer);
        result.inner = tegroup_impl_align(tegroup_impl_blocks(inner, facts->block_inner), facts->pad_inner);
        bytes =
            tegroup_impl_mul(tegroup_impl_mul(result.outer, result.inner), tegroup_impl_bits(facts->scale_dtype) / 8);
        TEGROUP_IMPL_RULE(bytes <= tegroup_impl_max_bytes(), ERROR_OVERFLOW, "rows", "times cols must be addressable",
                          tegroup_impl_max_bytes(), bytes);
        result.bytes = bytes;
    }
    *extent = result;
    return TEGROUP_OK;
}

TEGROUP_API int64_t tegroup_scale_index(tegroup_scaling scaling, const tegroup_scale_extent *extent, int64_t outer,
                                        int64_t inner) {
    const tegroup_scaling_facts *facts = tegroup_scaling_info(scaling);
    if (facts && facts->swizzled) return tegroup_impl_swizzled(extent->inner, outer, inner);
    return facts && facts->outer_fastest ? inner * extent->outer + outer : outer * extent->inner + inner;
}
