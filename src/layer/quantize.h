/* ---- Quantise ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "formats/scaling_types.h"
#include "core/tensor_types.h"
#include "core/snapshot_types.h"
#include "core/activation_types.h"
#include "layer/quantize_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/threads.h"
#include "base/range.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "formats/scale_rule.h"
#include "formats/scale_layout.h"
#include "core/layout.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/checks.h"
#include "core/copies.h"
#include "core/quantize_copies.h"
#include "core/product.h"
#include "cpu/rows.h"
#include "core/activation_formulas.h"
#include "layer/activation.h"
#include "layer/quantize_rules.h"

#if TEGROUP_IMPL_FP8_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_quantize(const tegroup_quantize_desc *desc,
                                                              struct CUstream_st *stream, tegroup_error *error);
#endif

/* A group as the CPU's loops meet it. */
typedef struct tegroup_impl_quantize_group {
    int32_t g, part;
    int64_t rows, cols, part_rows; /* of the group; of one part */
    tegroup_impl_copy copies[TEGROUP_IMPL_COPIES];
} tegroup_impl_quantize_group;

/* A pass over a tensor. A work is a tile of one part of a group, or (spans) all tiles of its part beside each other or
 * above each other. */
typedef struct tegroup_impl_quantize_pass {
    const tegroup_tensor *t;
    const tegroup_scaling_facts *facts;
    tegroup_snapshot_view view;
    const void *desc; /* of the call */
    int spans_cols, spans_rows;
    void (*work)(const struct tegroup_impl_quantize_pass *pass, const tegroup_impl_quantize_group *group, int64_t row,
                 int64_t col);
} tegroup_impl_quantize_pass;

TEGROUP_IMPL_STATIC tegroup_impl_quantize_group tegroup_impl_quantize_group_of(const tegroup_impl_quantize_pass *pass,
                                                                               int32_t g,
                                                                               const tegroup_impl_before *before) {
    const tegroup_impl_sides sides = tegroup_impl_group_sides(pass->t, &pass->view, g);
    tegroup_impl_quantize_group group;
    int copy;
    group.g = g;
    group.part = 0;
    group.rows = sides.rows;
    group.cols = sides.cols;
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++)
        group.copies[copy] = tegroup_impl_copy_of(pass->t, pass->facts, &pass->view, g, copy, before);
    group.part_rows = group.copies[0].grid.part_rows;
    return group;
}

/* Works first .. last - 1 of all; returns how many there are. Without works nothing is done but counting. */
TEGROUP_IMPL_STATIC int64_t tegroup_impl_quantize_works(const tegroup_impl_quantize_pass *pass, int64_t first,
                                                        int64_t last) {
    tegroup_impl_before before;
    int64_t begun = 0, w;
    int32_t g;
    memset(&before, 0, sizeof before);
    for (g = 0; g < pass->t->shape.groups; g++) {
        tegroup_impl_quantize_group group = tegroup_impl_quantize_group_of(pass, g, &before);
        const int64_t across = pass->spans_cols ? 1 : tegroup_impl_blocks(group.cols, TEGROUP_IMPL_QUANTIZE_TILE),
                      down = pass->spans_rows ? 1 : tegroup_impl_blocks(group.part_rows, TEGROUP_IMPL_QUANTIZE_TILE);
        for (group.part = 0; group.part < group.copies[0].grid.parts; group.part++) {
            for (w = tegroup_impl_max(0, first - begun); w < tegroup_impl_min(across * down, last - begun); w++)
                pass->work(pass, &group, w / across * TEGROUP_IMPL_QUANTIZE_TILE,
                           w % across * TEGROUP_IMPL_QUANTIZE_TILE);
            begun += across * down;
        }
        tegroup_impl_pass_group(pass->t, pass->facts, tegroup_impl_sides_of(group.rows, group.cols), &before);
    }
    return begun;
}

/* Each thread takes its share of the works; an element costs some ten steps. */
TEGROUP_IMPL_STATIC void tegroup_impl_quantize_run(const tegroup_impl_quantize_pass *pass, int32_t limit) {
    const int64_t works = tegroup_impl_quantize_works(pass, 0, 0);
    const double steps = 10.0 * (double)(TEGROUP_IMPL_QUANTIZE_TILE * TEGROUP_IMPL_QUANTIZE_TILE) * (double)works;
    const int32_t shares = tegroup_impl_team(tegroup_impl_threads(limit), steps);
    int32_t share;
    TEGROUP_IMPL_OMP(omp parallel for schedule(static) num_threads(shares))
    for (share = 0; share < shares; share++)
        (void)tegroup_impl_quantize_works(pass, tegroup_impl_share_begin(works, share, shares),
                                          tegroup_impl_share_begin(works, share + 1, shares));
}

/* The activation, or the gradient of one, that makes the values. */
TEGROUP_IMPL_STATIC tegroup_activation_desc tegroup_impl_made_forward(const tegroup_quantize_desc *desc) {
    tegroup_activation_desc made;
    memset(&made, 0, sizeof made);
    made.struct_size = sizeof made;
    made.space = desc->space;
    made.activation = desc->activation;
    made.interleaved = desc->interleaved;
    made.alpha = desc->alpha;
    made.limit = desc->limit;
    made.input.dtype = desc->input.dtype;
    made.row_scale = desc->row_scale;
    made.threads = desc->threads;
    return made;
}
TEGROUP_IMPL_STATIC tegroup_activation_backward_desc tegroup_impl_made_backward(const tegroup_quantize_desc *desc) {
    const tegroup_activation_desc forward = tegroup_impl_made_forward(desc);
    tegroup_activation_backward_desc made;
    tegroup_impl_activation_backward_of(&forward, &made);
    made.grad_output.dtype = desc->grad_output.dtype;
    made.grad_row_scale = desc->grad_row_scale;
    return made;
}

/* The values that an activation makes, as they are: the separate call. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_quantize_values(const tegroup_quantize_desc *desc,
                                                                const tegroup_tensor *values,
                                                                struct CUstream_st *stream, tegroup_error *error) {
    tegroup_activation_desc forward = tegroup_impl_made_forward(desc);
    tegroup_activation_backward_desc backward = tegroup_impl_made_backward(desc);
    forward.snapshot = backward.snapshot = desc->output.shape.snapshot;
    forward.input = backward.input = tegroup_impl_rows_matrix(&desc->input);
    forward.output = backward.grad_input = tegroup_impl_rows_matrix(values);
    if (desc->grad_output.dtype == TEGROUP_DTYPE_UNSET) return tegroup_impl_activation_run(&forward, stream, error);
    backward.grad_output = tegroup_impl_rows_matrix(&desc->grad_output);
    backward.grad_output.rows = desc->output.shape.rows; /* which is what a snapshot must fit */
    return tegroup_impl_activation_backward_run(&backward, stream, error);
}

/* What is left to do: to quantise those values. */
TEGROUP_IMPL_STATIC tegroup_quantize_desc tegroup_impl_quantize_rest(const tegroup_quantize_desc *desc,
                                                                     const tegroup_tensor *values) {
    tegroup_quantize_desc rest = *desc;
    rest.input = *values;
    rest.activation = TEGROUP_ACTIVATION_UNSET;
    rest.interleaved = 0;
    rest.alpha = rest.limit = 0;
    memset(&rest.row_scale, 0, sizeof rest.row_scale);
    memset(&rest.grad_output, 0, sizeof rest.grad_output);
    memset(&rest.grad_row_scale, 0, sizeof rest.grad_row_scale);
    return rest;
}

/* Where a row of an operand begins, of which `first` is the first element. */
TEGROUP_IMPL_STATIC const void *tegroup_impl_row_from(const tegroup_tensor *t, const tegroup_impl_block *block,
                                                      int64_t first) {
    return block->base + first * (tegroup_impl_bits(t->dtype) / 8);
}

/* n gradients of a group's row from column `at`: halves are gates, then ups; interleaved ones are whole pairs. */
TEGROUP_IMPL_STATIC void tegroup_impl_quantize_gradients(const tegroup_quantize_desc *desc, const void *x,
                                                         const void *dy, float scale, int64_t at, int64_t n,
                                                         float *to) {
    const tegroup_activation_backward_desc made = tegroup_impl_made_backward(desc);
    const int64_t cols = desc->output.shape.cols, width = tegroup_impl_gated(desc->activation) ? cols / 2 : cols;
    float gate[TEGROUP_IMPL_PIECE], up[TEGROUP_IMPL_PIECE];
    int64_t j, i, took;
    if (desc->interleaved) {
        (void)tegroup_impl_activation_grad_piece_f32(&made, x, dy, scale, width, at / 2, n / 2, 0, gate, up);
        for (j = 0; j < n; j++) to[j] = j % 2 ? up[j / 2] : gate[j / 2];
        return;
    }
    for (j = 0; j < n; j += took) {
        const int ups = at + j >= width;
        const int64_t from = at + j - (ups ? width : 0);
        took = tegroup_impl_min(n - j, width - from);
        (void)tegroup_impl_activation_grad_piece_f32(&made, x, dy, scale, width, from, took, 0, gate, up);
        for (i = 0; i < took; i++) to[j + i] = ups ? up[i] : gate[i];
    }
}

/* n values of a group's row from column `at`: those of input, or what is made of them, as they would be stored. */
TEGROUP_IMPL_STATIC void tegroup_impl_quantize_row(const tegroup_quantize_desc *desc, const tegroup_impl_block *in,
                                                   const tegroup_impl_block *dy, int64_t row, int64_t at, int64_t n,
                                                   float *to) {
    const tegroup_dtype dtype = desc->input.dtype;
    const int64_t first = tegroup_impl_row_at(&desc->gather_input, in, row);
    const void *x = first < 0 ? NULL : tegroup_impl_row_from(&desc->input, in, first);
    int64_t j;
    if (!x) {
        for (j = 0; j < n; j++) to[j] = 0;
        return;
    }
    if (desc->activation == TEGROUP_ACTIVATION_UNSET) {
        tegroup_impl_load_row_f32(dtype, x, at, 1, n, to);
        return;
    }
    if (desc->grad_output.dtype != TEGROUP_DTYPE_UNSET) {
        tegroup_impl_quantize_gradients(desc, x,
                                        tegroup_impl_row_from(&desc->grad_output, dy, dy->first + row * dy->ld),
                                        tegroup_impl_row_scale_f32(&desc->row_scale, in->row0 + row), at, n, to);
    } else {
        const tegroup_activation_desc made = tegroup_impl_made_forward(desc);
        tegroup_impl_activation_piece_f32(&made, x, tegroup_impl_row_scale_f32(&desc->row_scale, in->row0 + row),
                                          desc->output.shape.cols, at, n, to);
    }
    for (j = 0; j < n; j++) to[j] = tegroup_impl_f32_of_code(dtype, tegroup_impl_code_of_f32(dtype, to[j]));
}

/* A tile of values, as far as its part has them: [row][column]. */
typedef struct tegroup_impl_quantize_tile {
    int64_t row, col; /* its first, in the part's rows */
    int32_t rows, cols;
    float value[TEGROUP_IMPL_QUANTIZE_TILE * TEGROUP_IMPL_QUANTIZE_TILE];
} tegroup_impl_quantize_tile;

TEGROUP_IMPL_STATIC void tegroup_impl_quantize_load(const tegroup_impl_quantize_pass *pass,
                                                    const tegroup_impl_quantize_group *group, int64_t row, int64_t col,
                                                    tegroup_impl_quantize_tile *tile) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const tegroup_impl_block in = tegroup_impl_locate(&desc->input, &pass->view, group->g),
                             dy = desc->grad_output.dtype == TEGROUP_DTYPE_UNSET
                                      ? in /* nobody asks */
                                      : tegroup_impl_locate(&desc->grad_output, &pass->view, group->g);
    int32_t r;
    tile->row = row;
    tile->col = col;
    tile->rows = (int32_t)tegroup_impl_min(TEGROUP_IMPL_QUANTIZE_TILE, group->part_rows - row);
    tile->cols = (int32_t)tegroup_impl_min(TEGROUP_IMPL_QUANTIZE_TILE, group->cols - col);
    for (r = 0; r < tile->rows; r++)
        tegroup_impl_quantize_row(desc, &in, &dy, group->part * group->part_rows + row + r, col, tile->cols,
                                  tile->value + r * TEGROUP_IMPL_QUANTIZE_TILE);
}

/* A tile as one copy has it: outer and inner in the place of rows and columns, or the other way round. */
typedef struct tegroup_impl_quantize_side {
    int64_t outer0, inner0;
    int32_t outer, inner, outer_step, inner_step, choice, span; /* choice, span: extents of a block of one amax */
} tegroup_impl_quantize_side;

TEGROUP_IMPL_STATIC tegroup_impl_quantize_side tegroup_impl_quantize_side_of(const tegroup_scaling_facts *facts,
                                                                             const tegroup_impl_quantize_tile *tile,
                                                                             int columnwise) {
    tegroup_impl_quantize_side side;
    side.outer0 = columnwise ? tile->col : tile->row;
    side.inner0 = columnwise ? tile->row : tile->col;
    side.outer = columnwise ? tile->cols : tile->rows;
    side.inner = columnwise ? tile->rows : tile->cols;
    side.outer_step = columnwise ? 1 : TEGROUP_IMPL_QUANTIZE_TILE;
    side.inner_step = columnwise ? TEGROUP_IMPL_QUANTIZE_TILE : 1;
    side.choice = facts->choice_outer > 0 ? facts->choice_outer : TEGROUP_IMPL_QUANTIZE_TILE;
    side.span = facts->block_inner > 0 ? facts->block_inner : TEGROUP_IMPL_QUANTIZE_TILE;
    return side;
}

/* n values of a tile, neighbours along the inner index, from outer x and inner y on: where they lie, or in room. */
TEGROUP_IMPL_STATIC const float *tegroup_impl_quantize_line(const tegroup_impl_quantize_side *side, const float *value,
                                                            int32_t x, int32_t y, int32_t n, float *room) {
    const float *from = value + x * side->outer_step + y * side->inner_step;
    int32_t i;
    if (side->inner_step == 1) return from;
    for (i = 0; i < n; i++) room[i] = from[i * side->inner_step];
    return room;
}

/* Stores n codes, `step` from one to the next. */
TEGROUP_IMPL_STATIC void tegroup_impl_store_codes_of_line(tegroup_dtype dtype, void *data, int64_t at, int64_t step,
                                                          int32_t n, const uint8_t *codes) {
    uint8_t *bytes = (uint8_t *)data;
    int32_t i = 0;
    if (tegroup_impl_bits(dtype) == 8)
        for (; i < n; i++) bytes[at + i * step] = codes[i];
    else if (step == 1 && at % 2 == 0)
        for (; i + 2 <= n; i += 2) bytes[(at + i) / 2] = (uint8_t)(codes[i] | codes[i + 1] << 4);
    for (; i < n; i++) tegroup_impl_store_code(dtype, data, at + i * step, codes[i]);
}

/* amax with the values of one block of a tile more. */
TEGROUP_IMPL_STATIC float tegroup_impl_quantize_amax(const tegroup_scale_rule *rule,
                                                     const tegroup_impl_quantize_side *side, const float *value,
                                                     int32_t o, int32_t i, float amax) {
    const int32_t outer_end = (int32_t)tegroup_impl_min(side->outer, o + side->choice),
                  inner_end = (int32_t)tegroup_impl_min(side->inner, i + side->span);
    float room[TEGROUP_IMPL_QUANTIZE_TILE];
    int32_t x;
    for (x = o; x < outer_end; x++)
        amax = tegroup_impl_amax_of_line(rule, amax, tegroup_impl_quantize_line(side, value, x, i, inner_end - i, room),
                                         inner_end - i);
    return amax;
}

/* The codes of one block of a tile, and its scale: stored once for each block of rows that it is the scale of. That of
 * TENSOR is the group's, and stored elsewhere. */
TEGROUP_IMPL_STATIC void tegroup_impl_quantize_block(const tegroup_impl_quantize_pass *pass,
                                                     const tegroup_impl_quantize_group *group, int columnwise,
                                                     const tegroup_impl_quantize_side *side, const float *value,
                                                     int32_t o, int32_t i, float amax) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const tegroup_impl_copy *copy = &group->copies[columnwise];
    const tegroup_dtype dtype = desc->output.dtype, scale = tegroup_impl_one_scale(&desc->output, pass->facts);
    const tegroup_block_scale block =
        tegroup_impl_scale_block(&desc->rule, dtype, scale, amax, tegroup_impl_group_global(desc, group->g));
    const int32_t outer_end = (int32_t)tegroup_impl_min(side->outer, o + side->choice),
                  inner_end = (int32_t)tegroup_impl_min(side->inner, i + side->span);
    const int64_t row0 = group->part * group->part_rows;
    float room[TEGROUP_IMPL_QUANTIZE_TILE];
    uint8_t codes[TEGROUP_IMPL_QUANTIZE_TILE];
    int32_t x;
    for (x = o; x < outer_end; x++) {
        const int64_t outer = side->outer0 + x, inner = side->inner0 + i;
        tegroup_impl_scaled_codes(dtype, &block, tegroup_impl_quantize_line(side, value, x, i, inner_end - i, room),
                                  inner_end - i, codes);
        tegroup_impl_store_codes_of_line(dtype, copy->data,
                                         columnwise ? tegroup_impl_element_of(copy, row0 + inner, outer)
                                                    : tegroup_impl_element_of(copy, row0 + outer, inner),
                                         columnwise ? copy->at.row_stride : copy->at.col_stride, inner_end - i, codes);
    }
    for (x = o; x < outer_end && !tegroup_impl_scaled_as_one(pass->facts); x += pass->facts->block_outer)
        tegroup_impl_store_code(scale, copy->scales,
                                tegroup_impl_scale_of_block(&copy->grid, group->part,
                                                            (side->outer0 + x) / copy->grid.block_outer,
                                                            (side->inner0 + i) / copy->grid.block_inner),
                                block.bits);
}

/* Zeros for what pads a part's scales beside a tile's: behind the last blocks, outer and inner. */
TEGROUP_IMPL_STATIC void tegroup_impl_pad_scales(const tegroup_impl_quantize_pass *pass,
                                                 const tegroup_impl_quantize_group *group, int columnwise,
                                                 const tegroup_impl_quantize_side *side) {
    const tegroup_impl_copy *copy = &group->copies[columnwise];
    const tegroup_impl_scale_grid *grid = &copy->grid;
    const int64_t outer_begin = side->outer0 / grid->block_outer, inner_begin = side->inner0 / grid->block_inner;
    const int64_t outer_end =
                      tegroup_impl_blocks_end(side->outer0, grid->outer_shift, grid->outer_count, grid->outer_extent),
                  inner_end =
                      tegroup_impl_blocks_end(side->inner0, grid->inner_shift, grid->inner_count, grid->inner_extent);
    int64_t o, i;
    for (o = outer_begin; o < outer_end; o++)
        for (i = o < grid->outer_count ? tegroup_impl_max(inner_begin, grid->inner_count) : inner_begin; i < inner_end;
             i++)
            tegroup_impl_store_code(tegroup_impl_one_scale(pass->t, pass->facts), copy->scales,
                                    tegroup_impl_scale_of_block(grid, group->part, o, i), 0);
}

/* Zeros for what pads the rows of a transposed copy, beside its last tiles. */
TEGROUP_IMPL_STATIC void tegroup_impl_pad_transposed(const tegroup_impl_quantize_pass *pass,
                                                     const tegroup_impl_quantize_group *group,
                                                     const tegroup_impl_quantize_tile *tile) {
    const tegroup_impl_copy *copy = &group->copies[TEGROUP_IMPL_COLUMNWISE];
    int64_t row, col;
    if (group->part * group->part_rows + tile->row + tile->rows < group->rows) return;
    for (col = tile->col; col < tile->col + tile->cols; col++)
        for (row = group->rows; row < copy->at.col_stride; row++)
            tegroup_impl_store_code(pass->t->dtype, copy->data, tegroup_impl_element_of(copy, row, col), 0);
}

/* A tile in one copy. amax: of its outer indices, or of TENSOR one; NULL: each block has its own. */
TEGROUP_IMPL_STATIC void tegroup_impl_quantize_encode(const tegroup_impl_quantize_pass *pass,
                                                      const tegroup_impl_quantize_group *group, int columnwise,
                                                      const tegroup_impl_quantize_tile *tile, const float *amax) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const tegroup_impl_quantize_side side = tegroup_impl_quantize_side_of(pass->facts, tile, columnwise);
    int32_t o, i;
    for (o = 0; o < side.outer; o += side.choice)
        for (i = 0; i < side.inner; i += side.span)
            tegroup_impl_quantize_block(pass, group, columnwise, &side, tile->value, o, i,
                                        amax ? amax[o]
                                             : tegroup_impl_quantize_amax(&desc->rule, &side, tile->value, o, i, 0));
    tegroup_impl_pad_scales(pass, group, columnwise, &side);
    if (tegroup_impl_transposed(pass->t, columnwise)) tegroup_impl_pad_transposed(pass, group, tile);
}

/* Work: a tile in both copies. */
TEGROUP_IMPL_STATIC void tegroup_impl_quantize_work(const tegroup_impl_quantize_pass *pass,
                                                    const tegroup_impl_quantize_group *group, int64_t row,
                                                    int64_t col) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const float amax = desc->output.amax ? desc->output.amax[group->g] : 0;
    tegroup_impl_quantize_tile tile;
    int copy;
    tegroup_impl_quantize_load(pass, group, row, col, &tile);
    for (copy = 0; copy < TEGROUP_IMPL_COPIES; copy++)
        if (group->copies[copy].data)
            tegroup_impl_quantize_encode(pass, group, copy, &tile,
                                         tegroup_impl_scaled_as_one(pass->facts) ? &amax : NULL);
}

/* Work for scaling ROW: all tiles of the rows, or of the columns, whose scales one copy has. */
TEGROUP_IMPL_STATIC void tegroup_impl_quantize_line_work(const tegroup_impl_quantize_pass *pass,
                                                         const tegroup_impl_quantize_group *group, int64_t row,
                                                         int64_t col) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const int columnwise = pass->spans_rows;
    const int64_t inner = columnwise ? group->part_rows : group->cols;
    float amax[TEGROUP_IMPL_QUANTIZE_TILE];
    tegroup_impl_quantize_tile tile;
    int64_t at;
    int32_t o, again;
    for (o = 0; o < TEGROUP_IMPL_QUANTIZE_TILE; o++) amax[o] = 0;
    for (again = 0; again < 2; again++)
        for (at = 0; at < inner; at += TEGROUP_IMPL_QUANTIZE_TILE) {
            tegroup_impl_quantize_side side;
            tegroup_impl_quantize_load(pass, group, columnwise ? at : row, columnwise ? col : at, &tile);
            side = tegroup_impl_quantize_side_of(pass->facts, &tile, columnwise);
            for (o = 0; o < side.outer && !again; o++)
                amax[o] = tegroup_impl_quantize_amax(&desc->rule, &side, tile.value, o, 0, amax[o]);
            if (again) tegroup_impl_quantize_encode(pass, group, columnwise, &tile, amax);
        }
}

/* Raises a group's amax, which several threads may do at once; a lock would be a global. Compilers that have no such
 * operations run this on one thread. */
#if defined(__GNUC__)
#define TEGROUP_IMPL_RAISES_TOGETHER 1
TEGROUP_IMPL_STATIC void tegroup_impl_raise_amax(float *to, float amax) {
    tegroup_impl_any32 *const at = (tegroup_impl_any32 *)(void *)to, is = tegroup_impl_bits_of_f32(amax);
    tegroup_impl_any32 was = __atomic_load_n(at, __ATOMIC_RELAXED); /* bits of magnitudes are in their order */
    while (is > was && !__atomic_compare_exchange_n(at, &was, is, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}
#else
#define TEGROUP_IMPL_RAISES_TOGETHER 0
TEGROUP_IMPL_STATIC void tegroup_impl_raise_amax(float *to, float amax) {
    if (tegroup_impl_bits_of_f32(amax) > tegroup_impl_bits_of_f32(*to)) *to = amax;
}
#endif

/* Work: the largest magnitude of a tile goes to its group. */
TEGROUP_IMPL_STATIC void tegroup_impl_quantize_amax_work(const tegroup_impl_quantize_pass *pass,
                                                         const tegroup_impl_quantize_group *group, int64_t row,
                                                         int64_t col) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const tegroup_scaling_facts *whole = tegroup_scaling_info(TEGROUP_SCALING_TENSOR);
    tegroup_impl_quantize_tile tile;
    tegroup_impl_quantize_side side;
    float amax;
    tegroup_impl_quantize_load(pass, group, row, col, &tile);
    side = tegroup_impl_quantize_side_of(whole, &tile, 0);
    amax = tegroup_impl_quantize_amax(&desc->rule, &side, tile.value, 0, 0, 0);
    if (desc->output.amax) tegroup_impl_raise_amax(&desc->output.amax[group->g], amax);
    if (desc->output.columnwise_amax) tegroup_impl_raise_amax(&desc->output.columnwise_amax[group->g], amax);
}

/* Work: the gradient of a row's scale, for the rows of a tile and all columns. */
TEGROUP_IMPL_STATIC void tegroup_impl_quantize_sum_work(const tegroup_impl_quantize_pass *pass,
                                                        const tegroup_impl_quantize_group *group, int64_t row,
                                                        int64_t col) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    const tegroup_activation_backward_desc made = tegroup_impl_made_backward(desc);
    const tegroup_impl_block in = tegroup_impl_locate(&desc->input, &pass->view, group->g),
                             dy = tegroup_impl_locate(&desc->grad_output, &pass->view, group->g);
    float gate[TEGROUP_IMPL_PIECE], up[TEGROUP_IMPL_PIECE];
    int64_t r, at;
    (void)col;
    for (r = row; r < tegroup_impl_min(row + TEGROUP_IMPL_QUANTIZE_TILE, group->part_rows); r++) {
        const int64_t i = group->part * group->part_rows + r;
        const void *x = tegroup_impl_row_from(&desc->input, &in, in.first + i * in.ld),
                   *grad = tegroup_impl_row_from(&desc->grad_output, &dy, dy.first + i * dy.ld);
        const float scale = tegroup_impl_row_scale_f32(&desc->row_scale, in.row0 + i);
        float sum = 0;
        for (at = 0; at < dy.cols; at += TEGROUP_IMPL_PIECE)
            sum = tegroup_impl_activation_grad_piece_f32(
                &made, x, grad, scale, dy.cols, at, tegroup_impl_min(TEGROUP_IMPL_PIECE, dy.cols - at), sum, gate, up);
        tegroup_impl_store_f32(desc->grad_row_scale.dtype, tegroup_impl_matrix_row(&desc->grad_row_scale, in.row0 + i),
                               0, sum);
    }
}

/* What is one number a group: amax of both copies begins as 0, or the scales are made of it. */
TEGROUP_IMPL_STATIC void tegroup_impl_quantize_groups(const tegroup_impl_quantize_pass *pass, int made) {
    const tegroup_quantize_desc *desc = (const tegroup_quantize_desc *)pass->desc;
    int32_t g;
    for (g = 0; g < pass->t->shape.groups; g++) {
        if (made) {
            const tegroup_block_scale one = tegroup_impl_group_scale(desc, pass->facts, g);
            tegroup_impl_store_group(desc, pass->facts, &one, g);
        } else {
            if (desc->output.amax) desc->output.amax[g] = 0;
            if (desc->output.columnwise_amax) desc->output.columnwise_amax[g] = 0;
        }
    }
}

TEGROUP_IMPL_STATIC tegroup_impl_quantize_pass tegroup_impl_quantize_pass_of(const tegroup_tensor *t,
                                                                             const void *desc) {
    tegroup_impl_quantize_pass pass;
    memset(&pass, 0, sizeof pass);
    pass.t = t;
    pass.facts = tegroup_scaling_info(t->scaling);
    pass.view = tegroup_snapshot_read(tegroup_impl_ragged(&t->shape) ? t->shape.snapshot : NULL);
    pass.desc = desc;
    return pass;
}

/* What has been checked, and keeps no values. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_quantize_codes(const tegroup_quantize_desc *desc,
                                                               struct CUstream_st *stream, tegroup_error *error) {
    tegroup_impl_quantize_pass pass;
    int columnwise;
    (void)stream;
    (void)error;
#if TEGROUP_IMPL_FP8_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_quantize(desc, stream, error);
#endif
    pass = tegroup_impl_quantize_pass_of(&desc->output, desc);
    tegroup_impl_quantize_groups(&pass, 0);
    pass.work = tegroup_impl_quantize_amax_work;
    if (desc->output.amax || desc->output.columnwise_amax)
        tegroup_impl_quantize_run(&pass, TEGROUP_IMPL_RAISES_TOGETHER ? desc->threads : 1);
    tegroup_impl_quantize_groups(&pass, 1);
    pass.work = tegroup_impl_quantize_work;
    if (pass.facts->block_inner > 0 || tegroup_impl_scaled_as_one(pass.facts))
        tegroup_impl_quantize_run(&pass, desc->threads);
    else
        for (columnwise = 0; columnwise < TEGROUP_IMPL_COPIES; columnwise++) {
            pass.work = tegroup_impl_quantize_line_work;
            pass.spans_cols = !columnwise;
            pass.spans_rows = columnwise;
            if (tegroup_impl_has_copy(&desc->output, columnwise)) tegroup_impl_quantize_run(&pass, desc->threads);
        }
    pass.work = tegroup_impl_quantize_sum_work;
    pass.spans_cols = 1;
    pass.spans_rows = 0;
    if (desc->grad_row_scale.dtype != TEGROUP_DTYPE_UNSET) tegroup_impl_quantize_run(&pass, desc->threads);
    return TEGROUP_OK;
}

/* What has been checked. Values that are kept are made first, by a kernel that nothing but memory bounds, and quantised
 * from where they are; so are all others where there is room for them: memory for values of input's type, output's
 * shape and no ld, or NULL. */
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_quantize_through(const tegroup_quantize_desc *desc, void *room,
                                                                 struct CUstream_st *stream, tegroup_error *error) {
    const int keeps = tegroup_impl_keeps_values(&desc->output) && desc->output.columnwise_data;
    tegroup_tensor values;
    tegroup_quantize_desc rest;
    if (!keeps && !room) return tegroup_impl_quantize_codes(desc, stream, error);
    memset(&values, 0, sizeof values);
    values.shape = desc->output.shape;
    values.dtype = desc->input.dtype;
    values.data = room;
    if (keeps) values = tegroup_impl_values_of(&desc->output);
    TEGROUP_IMPL_TRY(tegroup_impl_quantize_values(desc, &values, stream, error));
    rest = tegroup_impl_quantize_rest(desc, &values);
    if (keeps) {
        rest.output.columnwise_data = NULL;
        rest.output.columnwise_order = TEGROUP_COLUMNWISE_AS_DATA;
        if (!tegroup_impl_has_copy(&rest.output, TEGROUP_IMPL_ROWWISE)) return TEGROUP_OK;
    }
    return tegroup_impl_quantize_codes(&rest, stream, error);
}

TEGROUP_API tegroup_status tegroup_quantize(const tegroup_quantize_desc *desc, struct CUstream_st *stream,
                                            tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_quantize")
    tegroup_quantize_desc taken;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_quantize(desc, error));
    return tegroup_impl_quantize_through(desc, NULL, stream, error);
}
