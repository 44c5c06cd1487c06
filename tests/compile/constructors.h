/* What the constructors return, every field of it, beside the same written out by hand: in C and in C++. Include after
 * tegroup.h. */
#ifndef TEGROUP_TESTS_CONSTRUCTORS_H
#define TEGROUP_TESTS_CONSTRUCTORS_H

#include <string.h>

static int same_sizes(const tegroup_sizes *x, const tegroup_sizes *y) {
    return x->data == y->data && x->encoding == y->encoding && x->dtype == y->dtype && x->space == y->space && x->data_space == y->data_space
        && x->starts == y->starts && x->alignment == y->alignment && x->stride == y->stride;
}

static int same_shape(const tegroup_shape *x, const tegroup_shape *y) {
    return x->groups == y->groups && x->rows == y->rows && x->cols == y->cols
        && same_sizes(&x->row_sizes, &y->row_sizes) && same_sizes(&x->col_sizes, &y->col_sizes)
        && x->offsets == y->offsets && x->elements == y->elements && x->snapshot == y->snapshot;
}

static int same_tensor(const tegroup_tensor *x, const tegroup_tensor *y) {
    return same_shape(&x->shape, &y->shape) && x->dtype == y->dtype && x->scaling == y->scaling && x->ld == y->ld
        && x->group_stride == y->group_stride && x->data == y->data && x->columnwise_data == y->columnwise_data
        && x->scale_inv == y->scale_inv && x->columnwise_scale_inv == y->columnwise_scale_inv && x->scale == y->scale
        && x->amax == y->amax && x->columnwise_amax == y->columnwise_amax && x->pointers == y->pointers
        && x->columnwise_pointers == y->columnwise_pointers && x->scale_pointers == y->scale_pointers
        && x->columnwise_scale_pointers == y->columnwise_scale_pointers && x->pointers_space == y->pointers_space;
}


/* 0, or the number of the first that is not as it should be. */
static int constructors_wrong(void) {
    static const int32_t counts[3] = {2, 0, 1};
    static float memory[12];
    const tegroup_sizes sizes = tegroup_sizes_of(counts, TEGROUP_DTYPE_I32, TEGROUP_SPACE_DEVICE);
    const tegroup_shape shape = tegroup_shape_of(3, INT64_C(5000000000), 4, sizes);
    tegroup_shape routed = shape, other;
    tegroup_tensor tensor, uniform;
    tegroup_matrix matrix;
    tegroup_sizes by_hand;
    tegroup_tensor want;
    memset(&by_hand, 0, sizeof by_hand);
    by_hand.data = counts;
    by_hand.encoding = TEGROUP_ENCODING_COUNTS;
    by_hand.dtype = TEGROUP_DTYPE_I32;
    by_hand.space = TEGROUP_SPACE_DEVICE;
    if (!same_sizes(&sizes, &by_hand)) return 1;

    memset(&want, 0, sizeof want);
    want.shape.groups = 3;
    want.shape.rows = INT64_C(5000000000);
    want.shape.cols = 4;
    want.shape.row_sizes = by_hand;
    if (!same_shape(&shape, &want.shape)) return 2;

    /* a tensor has all that its shape has, but columns of its own */
    routed.snapshot = memory;
    routed.offsets = (const int64_t *)(const void *)memory;
    routed.elements = 77;
    routed.col_sizes = sizes;
    tensor = tegroup_tensor_of(routed, INT64_C(6000000000), TEGROUP_DTYPE_BF16, memory);
    want.shape.snapshot = memory;
    want.shape.offsets = routed.offsets;
    want.shape.elements = 77;
    want.shape.col_sizes = by_hand;
    want.shape.cols = INT64_C(6000000000);
    want.dtype = TEGROUP_DTYPE_BF16;
    want.data = memory;
    if (!same_tensor(&tensor, &want)) return 3;
    if (routed.cols != 4) return 4; /* the shape is passed by value */

    uniform = tegroup_tensor_uniform(7, INT64_C(8000000000), INT64_C(9000000000), TEGROUP_DTYPE_F16, memory);
    memset(&want, 0, sizeof want);
    want.shape.groups = 7;
    want.shape.rows = INT64_C(8000000000);
    want.shape.cols = INT64_C(9000000000);
    want.dtype = TEGROUP_DTYPE_F16;
    want.data = memory;
    if (!same_tensor(&uniform, &want)) return 5;

    matrix = tegroup_matrix_of(memory, INT64_C(5000000001), INT64_C(5000000002), TEGROUP_DTYPE_F64);
    if (matrix.data != memory || matrix.rows != INT64_C(5000000001) || matrix.cols != INT64_C(5000000002)
        || matrix.ld != 0 || matrix.dtype != TEGROUP_DTYPE_F64)
        return 6;

    /* nothing is checked: what is out of range is whoever takes the struct's to refuse */
    other = tegroup_shape_of(-1, -2, -3, tegroup_sizes_of(NULL, TEGROUP_DTYPE_UNSET, TEGROUP_SPACE_UNSET));
    memset(&want, 0, sizeof want);
    want.shape.groups = -1;
    want.shape.rows = -2;
    want.shape.cols = -3;
    want.shape.row_sizes.encoding = TEGROUP_ENCODING_COUNTS;
    if (!same_shape(&other, &want.shape)) return 7;
    tensor = tegroup_tensor_of(other, -4, TEGROUP_DTYPE_UNSET, NULL);
    want.shape.cols = -4;
    if (!same_tensor(&tensor, &want)) return 8;
    return 0;
}
#endif
