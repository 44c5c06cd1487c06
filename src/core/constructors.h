/* ---- Constructors ---- */

#pragma once
#include "base/version.h"
#include "formats/dtype_types.h"
#include "core/tensor_types.h"
#include "base/linkage.h"
#include "base/build.h"

TEGROUP_API tegroup_sizes tegroup_sizes_of(const void *counts, tegroup_dtype dtype, tegroup_space space) {
    tegroup_sizes sizes;
    memset(&sizes, 0, sizeof sizes);
    sizes.data = counts;
    sizes.encoding = TEGROUP_ENCODING_COUNTS;
    sizes.dtype = dtype;
    sizes.space = space;
    return sizes;
}

TEGROUP_API tegroup_shape tegroup_shape_of(int32_t groups, int64_t rows, int64_t cols, tegroup_sizes sizes) {
    tegroup_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.groups = groups;
    shape.rows = rows;
    shape.cols = cols;
    shape.row_sizes = sizes;
    return shape;
}

TEGROUP_API tegroup_tensor tegroup_tensor_of(tegroup_shape shape, int64_t cols, tegroup_dtype dtype, const void *data) {
    tegroup_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.shape = shape;
    tensor.shape.cols = cols;
    tensor.dtype = dtype;
    tensor.data = (void *)(uintptr_t)data;
    return tensor;
}

TEGROUP_API tegroup_tensor tegroup_tensor_uniform(int32_t groups, int64_t rows, int64_t cols, tegroup_dtype dtype,
                                                  const void *data) {
    tegroup_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.groups = groups;
    shape.rows = rows;
    return tegroup_tensor_of(shape, cols, dtype, data);
}

TEGROUP_API tegroup_matrix tegroup_matrix_of(const void *data, int64_t rows, int64_t cols, tegroup_dtype dtype) {
    tegroup_matrix matrix;
    memset(&matrix, 0, sizeof matrix);
    matrix.data = (void *)(uintptr_t)data;
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.dtype = dtype;
    return matrix;
}
