/* ---- Hopper GEMM of FP8: plan and launch ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/layout_types.h"
#include "core/gemm_types.h"
#include "core/plan_types.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "core/constructors.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/field_names.h"
#include "core/copies.h"
#include "core/problem.h"
#include "core/choice.h"
#include "core/quantised.h"
#include "cuda/sm90_kernels.h"
#include "cuda/decoded.h"
#include "cuda/sm90_fp8_kernels.h"
#include "cuda/sm90_repack.h"
#include "cuda/launch.h"
#include "cuda/call.h"
#include "cuda/codes.h"
#include "cuda/hopper.h"
#include "cuda/sm90_tiles.h"
#include "cuda/sm90_fp8.h"
#include "cuda/sm90_fp8_code.h"
#include "cuda/sm90_plan.h"

/* ---- the tensor maps of a weight gradient, and where its scales are ---- */

/* What makes the maps: those of a group that begins at the copies' first elements. */
typedef struct tegroup_impl_sm90_fp8_maps {
    CUtensorMap map[2];
    tegroup_scaling_facts facts[2];
    CUtensorMap *to; /* [groups][2] */
    tegroup_impl_sm90_scales *scales; /* likewise */
} tegroup_impl_sm90_fp8_maps;

#if TEGROUP_IMPL_HOPPER && TEGROUP_IMPL_SM90_REPLACES
/* A field of the map at `map`, in shared memory (PTX ISA, tensormap.replace). */
#define TEGROUP_IMPL_REPLACE(field, type, constraint, map, value)                                                      \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type ", %1;" ::"r"(map), constraint(value)      \
                 : "memory")
#endif
/* A warp for each group and operand. Of the copies that lie a group after another, that of a group begins where those
 * of the groups before end, and so do its scales. */
static __global__ void __launch_bounds__(32)
    tegroup_impl_sm90_fp8_maps_kernel(const __grid_constant__ tegroup_impl_gpu_call call,
                                      const __grid_constant__ tegroup_impl_sm90_fp8_maps maps) {
#if TEGROUP_IMPL_HOPPER && TEGROUP_IMPL_SM90_REPLACES
    __shared__ __align__(128) CUtensorMap map;
    const int32_t group = (int32_t)blockIdx.x, lane = (int32_t)threadIdx.x;
    const int operand = (int)blockIdx.y;
    const tegroup_tensor &t = operand ? call.desc.b : call.desc.a;
    const tegroup_snapshot_view &view = call.views[operand];
    if (!tegroup_impl_prepared(call)) return; /* and the product has no groups */
    int64_t before = 0, scales = 0;
    if (!tegroup_impl_listed(&t))
        for (int32_t g = lane; g < group; g += 32) {
            const tegroup_impl_sides sides = tegroup_impl_group_sides(&t, &view, g);
            before += tegroup_impl_transposed_count(sides);
            scales += tegroup_impl_scale_grid_alone(&t, &maps.facts[operand], sides, 1).count;
        }
    for (int apart = 16; apart > 0; apart /= 2) {
        before += __shfl_xor_sync(0xffffffffu, before, apart);
        scales += __shfl_xor_sync(0xffffffffu, scales, apart);
    }
    if (lane == 0)
        maps.scales[2 * group + operand] =
            tegroup_impl_sm90_scales_of(&t, &maps.facts[operand], &view, group, 1, scales);
    for (int i = lane; i < (int)(sizeof map / 4); i += 32)
        ((uint32_t *)&map)[i] = ((const uint32_t *)&maps.map[operand])[i];
    __syncwarp();
    const tegroup_impl_elements at = tegroup_impl_elements_after(&t, &view, group, 1, before);
    /* What one operand has beyond the other's rows is not loaded: NaN would show beside the zeros there. */
    const int64_t rows =
        tegroup_impl_min(tegroup_impl_group_sides(&call.desc.a, &call.views[TEGROUP_IMPL_A], group).rows,
                         tegroup_impl_group_sides(&call.desc.b, &call.views[TEGROUP_IMPL_B], group).rows);
    if (lane == 0 && rows > 0) { /* Else nothing is loaded. */
        const uint32_t to = tegroup_impl_shared(&map);
        /* Of a listed buffer that is not at a multiple of 16 bytes results are NaN, but TMA must not see it. */
        const uint64_t address =
            ((uint64_t)(uintptr_t)(tegroup_impl_listed(&t) ? t.pointers[group] : t.data) + (uint64_t)at.first)
            & ~(uint64_t)15;
        TEGROUP_IMPL_REPLACE("global_address", "b64 [%0]", "l", to, address);
        TEGROUP_IMPL_REPLACE("global_dim", "b32 [%0], 0", "r", to, (uint32_t)rows);
        TEGROUP_IMPL_REPLACE("global_stride", "b64 [%0], 0", "l", to, (uint64_t)at.col_stride);
    }
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
                 "[%0], [%1], 128;" ::"l"(maps.to + 2 * group + operand),
                 "r"(tegroup_impl_shared(&map))
                 : "memory");
#else
    __trap();
#endif
}
#if TEGROUP_IMPL_HOPPER && TEGROUP_IMPL_SM90_REPLACES
#undef TEGROUP_IMPL_REPLACE
#endif

/* ---- call ---- */

/* An operand as the kernel reads it: of a dgrad's weights, the transposed copy as a forward product's weights. */
static inline tegroup_tensor tegroup_impl_sm90_fp8_as_read(const tegroup_gemm_desc *desc,
                                                           tegroup_impl_operand operand) {
    const tegroup_tensor t = tegroup_impl_as_read(desc, operand);
    return desc->op == TEGROUP_OP_DGRAD && operand == TEGROUP_IMPL_B ? tegroup_impl_turned(&t) : t;
}

/* Which copies of an operand there are, and what TMA needs of the one that is read. */
static inline tegroup_status tegroup_impl_sm90_fp8_check_operand(const tegroup_gemm_desc *desc,
                                                                 tegroup_impl_operand operand,
                                                                 const tegroup_impl_name *name, tegroup_error *error) {
    const tegroup_tensor *given = operand == TEGROUP_IMPL_A ? &desc->a : &desc->b,
                         read = tegroup_impl_sm90_fp8_as_read(desc, operand);
    const int sums_rows = tegroup_impl_sums_rows(desc->op, operand);
    const char *data = tegroup_impl_copy_paths_of(name, tegroup_impl_listed(&read), sums_rows).data;
    TEGROUP_IMPL_RULE(given->scale_parts <= 1, ERROR_UNSUPPORTED, TEGROUP_IMPL_PATH(SCALE_PARTS),
                      "must be 0 or 1 for this backend", 1, given->scale_parts);
    TEGROUP_IMPL_RULE(!sums_rows || tegroup_impl_reads_columnwise(desc, operand) || tegroup_impl_extent(&read) == 0,
                      ERROR_NULL_ARGUMENT, data, "must not be NULL: SM90's kernels of FP8 read the transposed copy", 1,
                      0);
    return tegroup_impl_sm90_check_operand(&read, name, data, error);
}

/* Notes how scales of a forward product's groups are counted. */
static inline void tegroup_impl_sm90_fp8_count(const tegroup_gemm_desc *desc, tegroup_impl_sm90_fp8 *fp8) {
    const tegroup_tensor *operands[2] = {&desc->a, &desc->b};
    for (int i = 0; i < 2; i++) {
        const tegroup_impl_scale_grid grid = tegroup_impl_scale_grid_alone(
            operands[i], &fp8->facts[i],
            tegroup_impl_sides_of(operands[i]->shape.rows, operands[i]->shape.cols), 0);
        const int in_blocks = tegroup_impl_ragged(&operands[i]->shape) && !tegroup_impl_scaled_as_one(&fp8->facts[i]);
        fp8->each[i] = in_blocks ? grid.inner_extent : grid.count;
        if (i == TEGROUP_IMPL_A) {
            fp8->shift = in_blocks ? grid.outer_shift : -1;
            fp8->pad = grid.pad_outer;
        }
    }
}

static inline int32_t tegroup_impl_sm90_fp8_promotion(const tegroup_impl_sm90_fp8 *fp8) {
    if (fp8->facts[0].block_inner == 0 && fp8->facts[1].block_inner == 0) return TEGROUP_IMPL_SM90_AT_END;
    return fp8->facts[1].block_outer == 1 ? TEGROUP_IMPL_SM90_LINES_BOTH : TEGROUP_IMPL_SM90_SQUARE;
}

/* Makes the maps of A and B of a weight gradient's groups, and finds their scales, in the workspace. */
static inline tegroup_status tegroup_impl_sm90_fp8_map_groups(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                              const tegroup_impl_sm90_fp8_row *row,
                                                              tegroup_impl_sm90_call *call,
                                                              tegroup_impl_sm90_fp8 *fp8, struct CUstream_st *stream,
                                                              tegroup_error *error) {
    tegroup_impl_sm90_fp8_maps maps;
    tegroup_layout layout;
    uint64_t shift;
    tegroup_impl_layout_begin(&layout);
    tegroup_impl_sm90_workspace(plan, &layout);
    maps.to = (CUtensorMap *)tegroup_impl_layout_at(&layout, 0, desc->options.workspace);
    maps.scales = (tegroup_impl_sm90_scales *)tegroup_impl_layout_at(&layout, 1, desc->options.workspace);
    memcpy(maps.facts, fp8->facts, sizeof maps.facts);
    for (int i = 0; i < 2; i++) {
        const tegroup_tensor *t = i ? &call->call.desc.b : &call->call.desc.a;
        tegroup_tensor one = tegroup_tensor_uniform(1, t->shape.cols, TEGROUP_TRANSPOSED_ROWS, t->dtype, maps.to);
        call->listed[i] = tegroup_impl_listed(t); /* for the check of addresses */
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_encode(plan, &one, (tegroup_impl_operand)i, TEGROUP_IMPL_SM90_FP8_K,
                                                  i ? row->tile_n : row->tile_m, &maps.map[i], &shift, error));
    }
    call->of_groups = maps.to;
    fp8->of_groups = maps.scales;
    return tegroup_impl_cuda_status(tegroup_impl_launch(tegroup_impl_sm90_fp8_maps_kernel,
                                                        dim3((unsigned)desc->a.shape.groups, 2), 32, 0, stream,
                                                        call->call, maps),
                                    "stream", "the kernels must launch", error);
}

static inline tegroup_status tegroup_impl_sm90_fp8_gemm(const tegroup_plan *plan, const tegroup_gemm_desc *desc,
                                                        struct CUstream_st *stream, tegroup_error *error) {
    const int wgrad = desc->op == TEGROUP_OP_WGRAD;
    const tegroup_impl_sm90_fp8_row *row =
        tegroup_impl_sm90_fp8_row_of((int32_t)plan->algorithm[TEGROUP_IMPL_PLANNED_ROW]);
    tegroup_gemm_desc read = *desc;
    tegroup_impl_sm90_call call;
    tegroup_impl_sm90_fp8 fp8;
    void *arguments[2];
    if (desc->d.shape.groups == 0 && desc->tail == TEGROUP_TAIL_KEEP) return TEGROUP_OK;
    memset(&call, 0, sizeof call);
    memset(&fp8, 0, sizeof fp8);
    read.a = tegroup_impl_sm90_fp8_as_read(desc, TEGROUP_IMPL_A);
    read.b = tegroup_impl_sm90_fp8_as_read(desc, TEGROUP_IMPL_B);
    if (!wgrad) read.op = TEGROUP_OP_FORWARD;
    fp8.facts[0] = *tegroup_scaling_info(desc->a.scaling);
    fp8.facts[1] = *tegroup_scaling_info(desc->b.scaling);
    fp8.promotion = tegroup_impl_sm90_fp8_promotion(&fp8);
    if (!wgrad) tegroup_impl_sm90_fp8_count(&read, &fp8);
    fp8.a_e5m2 = desc->a.dtype == TEGROUP_DTYPE_F8E5M2;
    fp8.b_e5m2 = desc->b.dtype == TEGROUP_DTYPE_F8E5M2;
    tegroup_impl_sm90_call_of(&read, &call);
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_slabs(plan, &call.call.desc.c, TEGROUP_IMPL_C, &call, error));
    TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_slabs(plan, &call.call.desc.d, TEGROUP_IMPL_D, &call, error));
    if (wgrad) {
        TEGROUP_IMPL_TRY(tegroup_impl_sm90_fp8_map_groups(plan, desc, row, &call, &fp8, stream, error));
    } else {
        TEGROUP_IMPL_TRY(
            tegroup_impl_sm90_map(plan, &read.a, TEGROUP_IMPL_A, TEGROUP_IMPL_SM90_FP8_K, row->tile_m, &call, error));
        if (row->tile_m == TEGROUP_IMPL_SM90_LINES) /* the shape that has SHORT tiles */
            TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_smaller(plan, &read.a, TEGROUP_IMPL_A, TEGROUP_IMPL_SM90_FP8_K,
                                                           TEGROUP_IMPL_SM90_SHORT, 0, &call, error));
        TEGROUP_IMPL_TRY(
            tegroup_impl_sm90_map(plan, &read.b, TEGROUP_IMPL_B, TEGROUP_IMPL_SM90_FP8_K, row->tile_n, &call, error));
        if (row->narrows)
            TEGROUP_IMPL_TRY(tegroup_impl_sm90_map_smaller(plan, &read.b, TEGROUP_IMPL_B, TEGROUP_IMPL_SM90_FP8_K,
                                                           TEGROUP_IMPL_SM90_NARROW, 0, &call, error));
    }
    arguments[0] = &call;
    arguments[1] = &fp8;
    TEGROUP_IMPL_TRY(tegroup_impl_launch_planned(plan, arguments, stream, error));
    TEGROUP_IMPL_TRY(tegroup_impl_cuda_rest(&call.call, stream, error));
    return tegroup_impl_formats_bias_grad(desc, &call.call, stream, error);
}
