/* ---- Dequantise ---- */

#pragma once
#include "base/version.h"
#include "base/status_types.h"
#include "formats/dtype_types.h"
#include "layer/quantize_types.h"
#include "base/linkage.h"
#include "base/build.h"
#include "base/arithmetic.h"
#include "base/rules.h"
#include "base/range.h"
#include "formats/dtype.h"
#include "formats/convert.h"
#include "core/tensor.h"
#include "core/scale_grid.h"
#include "core/copies.h"
#include "core/quantize_copies.h"
#include "cpu/rows.h"
#include "layer/quantize_rules.h"
#include "layer/quantize.h"

#if TEGROUP_IMPL_FP8_KERNELS
TEGROUP_IMPL_STATIC tegroup_status tegroup_impl_cuda_dequantize(const tegroup_dequantize_desc *desc,
                                                                struct CUstream_st *stream, tegroup_error *error);
#endif

/* The NaN that a GPU's arithmetic gives. */
TEGROUP_IMPL_STATIC double tegroup_impl_gpu_nan(void) {
    return tegroup_impl_f64_of_f32(tegroup_impl_f32_of_bits(0x7fffffffu));
}

/* The value of each code of a type: 16 of them, or 256. */
TEGROUP_IMPL_STATIC void tegroup_impl_values_of_codes(tegroup_dtype dtype, double *value) {
    uint32_t code;
    for (code = 0; code < 1u << tegroup_impl_bits(dtype); code++) {
        const float x = tegroup_impl_f32_of_code(dtype, code);
        value[code] = tegroup_impl_is_nan(x) ? tegroup_impl_gpu_nan() : tegroup_impl_f64_of_f32(x);
    }
}

/* x[j] = the value of code at + j * step, times factor, which is a scale times the global scale. That is exact: a code
 * has up to 4 bits, either scale up to 24, and a double 53. */
TEGROUP_IMPL_STATIC void tegroup_impl_dequantize_codes(tegroup_dtype dtype, const void *data, int64_t at, int64_t step,
                                                       int64_t n, const double *value, double factor, double *x) {
    const uint8_t *bytes = (const uint8_t *)data;
    int64_t j;
    if (tegroup_impl_bits(dtype) == 8)
        for (j = 0; j < n; j++) x[j] = value[bytes[at + j * step]] * factor;
    else
        for (j = 0; j < n; j++) x[j] = value[tegroup_impl_load_code(dtype, data, at + j * step)] * factor;
}

/* Is a number neither 0 nor infinite nor NaN? (By its bits: a compiler may have been told that there are none.) */
TEGROUP_IMPL_STATIC int tegroup_impl_ordinary(double x) {
    const uint32_t magnitude = tegroup_impl_bits_of_f32(tegroup_impl_f32_odd_of_f64(x)) & 0x7fffffffu;
    return magnitude > 0 && magnitude < 0x7f800000u;
}

/* n neighbours from `first` on along a line, which is a row of the rowwise copy and a column of the columnwise one. A
 * scale is looked up once for all of them that share it. */
TEGROUP_IMPL_STATIC void tegroup_impl_dequantize_line(const tegroup_impl_quantize_pass *pass,
                                                      const tegroup_impl_copy *copy, float global, const double *value,
                                                      int64_t line, int64_t first, int64_t n, double *x) {
    const tegroup_dtype scale_dtype = tegroup_impl_one_scale(pass->t, pass->facts);
    const int columnwise = copy->grid.columnwise;
    int64_t done, run, j;
    for (done = 0; done < n; done += run) {
        const int64_t at = first + done, scale = tegroup_impl_scale_at(&copy->grid, line, at),
                      element = columnwise ? tegroup_impl_element_of(copy, at, line)
                                           : tegroup_impl_element_of(copy, line, at);
        const double factor = tegroup_impl_load_f64(scale_dtype, copy->scales, scale) * tegroup_impl_f64_of_f32(global);
        run = tegroup_impl_min(n - done, tegroup_impl_scale_shared(&copy->grid, at, 0));
        tegroup_impl_dequantize_codes(pass->t->dtype, copy->data, element,
                                      columnwise ? copy->at.row_stride : copy->at.col_stride, run, value, factor,
                                      x + done);
        if (!tegroup_impl_ordinary(factor)) /* infinity times 0, or whatever NaN a scale is */
            for (j = done; j < done + run; j++)
                if (tegroup_impl_is_nan(tegroup_impl_f32_odd_of_f64(x[j]))) x[j] = tegroup_impl_gpu_nan();
    }
}

/* Work: the rows of a tile, and all columns. Columns are dequantised DEEP rows at a time. */
TEGROUP_IMPL_STATIC void tegroup_impl_dequantize_work(const tegroup_impl_quantize_pass *pass,
                                                      const tegroup_impl_quantize_group *group, int64_t row,
                                                      int64_t col) {
    enum { DEEP = 32 };
    const tegroup_dequantize_desc *desc = (const tegroup_dequantize_desc *)pass->desc;
    const tegroup_impl_copy *copy = &group->copies[desc->columnwise];
    const tegroup_impl_block out = tegroup_impl_locate(&desc->output, &pass->view, group->g);
    const float global = pass->t->global_scale_inv ? pass->t->global_scale_inv[group->g] : 1.0f;
    const int64_t first = group->part * group->part_rows,
                  end = tegroup_impl_min(row + TEGROUP_IMPL_QUANTIZE_TILE, group->part_rows);
    double value[256], x[DEEP][TEGROUP_IMPL_PIECE], column[DEEP];
    int64_t rows, at, r, j;
    tegroup_impl_values_of_codes(pass->t->dtype, value);
    for (; row < end; row += rows) {
        rows = desc->columnwise ? tegroup_impl_min(DEEP, end - row) : 1;
        for (at = col; at < group->cols; at += TEGROUP_IMPL_PIECE) {
            const int64_t n = tegroup_impl_min(TEGROUP_IMPL_PIECE, group->cols - at);
            if (!desc->columnwise) tegroup_impl_dequantize_line(pass, copy, global, value, first + row, at, n, x[0]);
            for (j = 0; desc->columnwise && j < n; j++) {
                tegroup_impl_dequantize_line(pass, copy, global, value, at + j, first + row, rows, column);
                for (r = 0; r < rows; r++) x[r][j] = column[r];
            }
            for (r = 0; r < rows; r++)
                tegroup_impl_store_row_f64(desc->output.dtype, out.base, out.first + (first + row + r) * out.ld + at, 1,
                                           n, x[r]);
        }
    }
}

TEGROUP_API tegroup_status tegroup_dequantize(const tegroup_dequantize_desc *desc, struct CUstream_st *stream,
                                              tegroup_error *error) {
    TEGROUP_IMPL_RANGE("tegroup_dequantize")
    tegroup_dequantize_desc taken;
    tegroup_impl_quantize_pass pass;
    (void)stream;
    TEGROUP_IMPL_TAKE(desc, taken);
    TEGROUP_IMPL_TRY(tegroup_impl_check_dequantize(desc, error));
#if TEGROUP_IMPL_FP8_KERNELS
    if (desc->space == TEGROUP_SPACE_DEVICE) return tegroup_impl_cuda_dequantize(desc, stream, error);
#endif
    pass = tegroup_impl_quantize_pass_of(&desc->input, desc);
    pass.work = tegroup_impl_dequantize_work;
    pass.spans_cols = 1;
    tegroup_impl_quantize_run(&pass, desc->threads);
    return TEGROUP_OK;
}
