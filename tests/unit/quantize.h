/* Random tensors to quantise, and every byte that a call must write, by the tests' own arithmetic: codes and rules of numbers.h,
 * scales where scales.h walks to. Nothing of the library's arithmetic is used. */
#ifndef TEGROUP_TESTS_QUANTIZE_H
#define TEGROUP_TESTS_QUANTIZE_H

#include "numbers.h"
#include "scales.h"

/* What one scale is chosen for, [outer, inner]; 0 = all. docs/formats.md once more. */
SUPPORT int64_t choice_of(tegroup_scaling scaling) {
    switch (scaling) {
    case TEGROUP_SCALING_TENSOR: return 0;
    case TEGROUP_SCALING_BLOCK_128X128: return 128;
    case TEGROUP_SCALING_BLOCK_32X32: case TEGROUP_SCALING_MXFP8_32X32: return 32;
    case TEGROUP_SCALING_NVFP4_16X16: return 16;
    default: return 1;
    }
}

typedef struct quantizing {
    depot scales[2]; /* of the rowwise and of the columnwise copy, in one tensor's memory */
    tegroup_quantize_desc desc;
    tegroup_scale_preset preset;
    int has[2];
    float *value[MOST_GROUPS];   /* [rows][cols] */
    void *in_list[MOST_GROUPS], *list[2][MOST_GROUPS];
    void *made_in[MOST_GROUPS], *made_dy[MOST_GROUPS]; /* of make_activation: groups of its input and of grad_output */
    int64_t in_stride, out_stride; /* elements between groups of uniform buffers */
    int vectors;                   /* 1: all rows begin at multiples of 16 bytes, as kernels like them */
} quantizing;

SUPPORT float magnitude_max(const tegroup_scale_rule *rule, float amax, float x) {
    uint32_t a, b;
    memcpy(&a, &amax, 4), memcpy(&b, &x, 4);
    b = isnan(x) ? 0x7fffffff : b & 0x7fffffff; /* the one NaN that amax has */
    if ((isnan(x) && !rule->nan_shows) || b <= a) return amax;
    memcpy(&amax, &b, 4);
    return amax;
}

/* A preset whose scales can have the type. */
SUPPORT tegroup_scale_preset random_preset(rng *r, tegroup_dtype scale, int whole) {
    static const tegroup_scale_preset powers[] = {TEGROUP_SCALE_TE_BLOCK, TEGROUP_SCALE_TE_MXFP8, TEGROUP_SCALE_DEEPGEMM_UE8M0, TEGROUP_SCALE_OCP_MX},
        any[] = {TEGROUP_SCALE_TE_CURRENT, TEGROUP_SCALE_TE_BLOCK, TEGROUP_SCALE_TE_BLOCK_F32, TEGROUP_SCALE_TE_MXFP8, TEGROUP_SCALE_DEEPGEMM,
                 TEGROUP_SCALE_DEEPGEMM_UE8M0, TEGROUP_SCALE_DEEPSEEK, TEGROUP_SCALE_FBGEMM_ROW, TEGROUP_SCALE_OCP_MX, TEGROUP_SCALE_TE_DELAYED};
    if (scale == TEGROUP_DTYPE_F8E4M3) return TEGROUP_SCALE_TE_NVFP4;
    return scale == TEGROUP_DTYPE_F32 || scale == TEGROUP_DTYPE_BF16 ? any[rng_int(r, 0, whole ? 9 : 8)] : powers[rng_int(r, 0, 3)];
}

/* Values of a group: blocks of unlike sizes, some of zeros, and now and then what is no number, too large or too small. */
SUPPORT double awkward_value(rng *r, int block_exponent, int wild) {
    if (rng_chance(r, 6)) return rng_chance(r, 50) ? 0.0 : -0.0;
    if (wild && rng_chance(r, 1)) return rng_chance(r, 50) ? (double)NAN : rng_chance(r, 50) ? (double)INFINITY : -(double)INFINITY;
    if (wild && rng_chance(r, 2)) return ldexp(rng_normal(r), (int)rng_int(r, -148, 126));
    return ldexp(rng_normal(r), block_exponent);
}

SUPPORT void fill_values(rng *r, tegroup_dtype dtype, char *data, int64_t rows, int64_t cols, int64_t ld, float *value) {
    const int wild = rng_chance(r, 25);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t from = 0; from < cols; from += 16) {
            const int exponent = (int)rng_int(r, -14, 6), zeros = rng_chance(r, 10);
            for (int64_t j = from; j < cols && j < from + 16; j++) {
                store(dtype, data, i * ld + j, zeros ? 0 : awkward_value(r, exponent, wild));
                if (value != NULL) value[i * cols + j] = (float)load(dtype, data, i * ld + j);
            }
        }
}

/* A plain tensor beside q's output, full of values (value NULL: of nobody's interest) or of poison (values = 0). */
SUPPORT tegroup_tensor plain_beside(quantizing *q, rng *r, tegroup_dtype dtype, int64_t cols, int values, float **value, void **list) {
    const depot *s = &q->scales[0];
    tegroup_tensor t;
    const int64_t ld = cols + (rng_chance(r, 50) ? 0 : rng_int(r, 1, 9) * (q->vectors ? 8 : 1));
    memset(&t, 0, sizeof t);
    t.shape = q->desc.output.shape;
    t.shape.cols = cols;
    t.dtype = dtype;
    t.ld = ld == cols ? 0 : ld;
    if (!s->ragged && !s->listed && rng_chance(r, 50)) t.group_stride = t.shape.rows * ld + rng_int(r, 1, 20) * (q->vectors ? 8 : 1);
    const int64_t stride = t.group_stride > 0 ? t.group_stride : t.shape.rows * ld, element = (int64_t)size_of(dtype);
    if (s->listed) {
        void **pointers = (void **)guarded(sizeof(void *) * (size_t)(s->groups + 1));
        t.pointers_space = TEGROUP_SPACE_HOST;
        t.pointers = pointers;
        for (int32_t g = 0; g < s->groups; g++) pointers[g] = list[g] = guarded_skewed((size_t)(t.shape.rows * ld * element), q->vectors || rng_chance(r, 50) ? 0 : (size_t)element);
    } else {
        const int64_t elements = s->ragged ? t.shape.rows * ld : s->groups * stride;
        t.data = guarded_skewed((size_t)(elements * element), q->vectors || rng_chance(r, 50) ? 0 : (size_t)element);
        for (int32_t g = 0; g < s->groups; g++) list[g] = (char *)t.data + (s->ragged ? s->start[g] * ld : g * stride) * element;
    }
    for (int32_t g = 0; g < s->groups && values; g++) {
        if (value != NULL) value[g] = (float *)scratch((size_t)(s->rows[g] * cols) * 4);
        fill_values(r, dtype, (char *)list[g], s->rows[g], cols, ld, value != NULL ? value[g] : NULL);
    }
    return t;
}

/* Memory for a copy: as much as the library says that the tensor needs at its capacity, full of poison. */
SUPPORT void copy_memory(quantizing *q, int columnwise) {
    depot *s = &q->scales[columnwise];
    tegroup_tensor *t = &q->desc.output;
    tegroup_layout layout;
    tegroup_error error;
    if (tegroup_tensor_layout(t, TEGROUP_COPIES_BOTH, &layout, &error) != TEGROUP_OK) {
        fprintf(stderr, "no layout: %s %s (%ld, %ld)\n", error.field, error.rule, (long)error.expected, (long)error.got);
        abort();
    }
    const size_t bytes = layout.items[columnwise ? 2 : 0].bytes;
    s->t = *t;
    s->columnwise = columnwise;
    if (columnwise) s->packing = PACKED_GROUPS;
    (void)depot_memory(s);
    t->scale_inv = s->t.scale_inv, t->columnwise_scale_inv = s->t.columnwise_scale_inv;
    t->scale_pointers = s->t.scale_pointers, t->columnwise_scale_pointers = s->t.columnwise_scale_pointers;
    if (!s->listed) {
        *(columnwise ? &t->columnwise_data : &t->data) = q->list[columnwise][0] = guarded_skewed(bytes, columnwise || q->vectors ? 16 : 1);
        return;
    }
    void **pointers = (void **)guarded(sizeof(void *) * (size_t)(s->groups + 1));
    for (int32_t g = 0; g < s->groups; g++) pointers[g] = q->list[columnwise][g] = guarded_skewed(bytes, columnwise && !q->vectors ? 1 : 16);
    if (columnwise) t->columnwise_pointers = pointers;
    else t->pointers = pointers;
}

/* A scale for each part of a matrix with TENSOR: can be read, and is not made. */
static int tensors_in_parts;

/* scaling: 0 = any. */
SUPPORT void quantizing_make(quantizing *q, rng *r, tegroup_scaling scaling, int64_t most_rows, int64_t most_cols) {
    depot *s = &q->scales[0];
    tegroup_tensor *t = &q->desc.output;
    memset(q, 0, sizeof *q);
    do *s = random_depot(r, most_rows, most_cols);
    while ((scaling != 0 && s->scaling != scaling) || (s->scaling == TEGROUP_SCALING_TENSOR && s->parts > 1 && !tensors_in_parts));
    s->columnwise = 0;
    q->vectors = rng_chance(r, 40);
    if (q->vectors) s->cols = (s->cols + 15) / 16 * 16;
    depot_describe(s, r);
    (void)depot_prepare(s);
    s->t.ld = rng_chance(r, 50) ? 0 : s->cols + (q->vectors ? 16 : 2) * rng_int(r, 0, 5);
    if (row_of(s->scaling).data != TEGROUP_DTYPE_F4E2M1) s->t.dtype = rng_chance(r, 70) ? TEGROUP_DTYPE_F8E4M3 : TEGROUP_DTYPE_F8E5M2;
    *t = s->t;
    q->desc.struct_size = sizeof q->desc;
    q->desc.space = TEGROUP_SPACE_HOST;
    q->desc.threads = (int32_t)rng_int(r, 0, 3);
    q->preset = random_preset(r, s->dtype, s->scaling == TEGROUP_SCALING_TENSOR);
    q->desc.rule = tegroup_scale_rule_of(q->preset);
    q->out_stride = t->shape.rows * (t->ld > 0 ? t->ld : s->cols);
    if (!s->ragged && !s->listed && rng_chance(r, 50)) q->out_stride = t->group_stride = q->out_stride + (q->vectors ? 16 : 2) * rng_int(r, 0, 9);
    if (rng_chance(r, 60) && !(t->dtype == TEGROUP_DTYPE_F4E2M1 && s->parts > 1 && t->shape.rows / s->parts % 2 != 0))
        t->columnwise_order = TEGROUP_COLUMNWISE_TRANSPOSED;
    q->scales[1] = *s;
    const int copies = (int)rng_int(r, 1, 3);
    for (int c = 0; c < 2; c++)
        if ((q->has[c] = copies >> c & 1)) copy_memory(q, c);
    const size_t each = (size_t)s->groups * 4;
    const int whole = s->scaling == TEGROUP_SCALING_TENSOR && q->preset != TEGROUP_SCALE_TE_DELAYED;
    if (s->dtype == TEGROUP_DTYPE_F8E4M3 && rng_chance(r, 80)) t->global_scale_inv = (float *)guarded(each);
    if (whole || t->global_scale_inv != NULL || rng_chance(r, 40)) t->amax = (float *)guarded(each);
    if (rng_chance(r, 40)) t->columnwise_amax = (float *)guarded(each);
    if (q->preset == TEGROUP_SCALE_TE_DELAYED) {
        t->scale = (float *)guarded(each);
        for (int32_t g = 0; g < s->groups; g++) {
            const double sign = rng_chance(r, 10) ? -1 : 1;
            t->scale[g] = (float)ldexp(sign * (1 + rng_unit(r)), (int)rng_int(r, -6, 12));
        }
    }
    static const tegroup_dtype types[] = {TEGROUP_DTYPE_F32, TEGROUP_DTYPE_F16, TEGROUP_DTYPE_BF16};
    q->desc.input = plain_beside(q, r, types[rng_int(r, 0, 2)], s->cols, 1, q->value, q->in_list);
}

/* ---- what is made in passing --------------------------------------------------------------------------------------------- */

/* The matrix of a group's rows in a plain tensor. */
SUPPORT tegroup_matrix group_matrix(const tegroup_tensor *t, void *const *list, int64_t rows, int32_t g) {
    tegroup_matrix m = tegroup_matrix_of(rows > 0 ? list[g] : NULL, rows, t->shape.cols, t->dtype);
    m.ld = t->ld;
    return m;
}
/* Row `row` of a group among those that matrices beside q number. */
SUPPORT int64_t numbered_row(const quantizing *q, int32_t g) {
    return q->scales[0].ragged ? q->scales[0].start[g] : g * q->desc.output.shape.rows;
}
SUPPORT int64_t numbered_rows(const quantizing *q) {
    return q->desc.output.shape.rows * (q->scales[0].ragged ? 1 : q->scales[0].groups);
}
SUPPORT tegroup_matrix row_numbers(const quantizing *q, rng *r, int values) {
    const tegroup_dtype dtype = rng_chance(r, 50) ? TEGROUP_DTYPE_F32 : TEGROUP_DTYPE_F64;
    const int64_t rows = numbered_rows(q), ld = rng_int(r, 1, 3);
    tegroup_matrix m = tegroup_matrix_of(guarded((size_t)(rows * ld) * size_of(dtype)), rows, 1, dtype);
    m.ld = ld;
    for (int64_t i = 0; i < rows && values; i++) store(dtype, m.data, i * ld, rng_normal(r));
    return m;
}
SUPPORT tegroup_matrix matrix_rows(const tegroup_matrix *m, int64_t first, int64_t rows) {
    tegroup_matrix part = *m;
    if (m->dtype == TEGROUP_DTYPE_UNSET) return part;
    part.data = (char *)m->data + first * m->ld * (int64_t)size_of(m->dtype);
    part.rows = rows;
    return part;
}

/* The separate call that makes what `fused` makes of group g in passing: its result goes to q's input. */
typedef struct separate_call {
    tegroup_activation_desc forward;
    tegroup_activation_backward_desc backward;
} separate_call;
SUPPORT separate_call separate_activation(const quantizing *q, const tegroup_quantize_desc *fused, int32_t g) {
    const int64_t rows = q->scales[0].rows[g], first = numbered_row(q, g);
    separate_call call;
    tegroup_activation_desc *f = &call.forward;
    tegroup_activation_backward_desc *b = &call.backward;
    memset(&call, 0, sizeof call);
    f->struct_size = sizeof *f, b->struct_size = sizeof *b;
    f->space = b->space = TEGROUP_SPACE_HOST;
    f->activation = b->activation = fused->activation;
    f->interleaved = b->interleaved = fused->interleaved;
    f->alpha = b->alpha = fused->alpha;
    f->limit = b->limit = fused->limit;
    f->input = b->input = group_matrix(&fused->input, q->made_in, rows, g);
    f->row_scale = b->row_scale = matrix_rows(&fused->row_scale, first, rows);
    f->output = b->grad_input = group_matrix(&q->desc.input, q->in_list, rows, g);
    if (fused->grad_output.dtype != TEGROUP_DTYPE_UNSET) b->grad_output = group_matrix(&fused->grad_output, q->made_dy, rows, g);
    b->grad_row_scale = matrix_rows(&fused->grad_row_scale, first, rows);
    return call;
}

/* Something that makes an activation's output in passing, or (gradient) that of its gradient. */
SUPPORT void make_activation(quantizing *q, rng *r, int gradient, tegroup_quantize_desc *fused) {
    const depot *s = &q->scales[0];
    const tegroup_activation kind = (tegroup_activation)rng_int(r, TEGROUP_ACTIVATION_SWIGLU, TEGROUP_ACTIVATION_IDENTITY);
    const int gated = kind <= TEGROUP_ACTIVATION_SITU_GLU;
    const int64_t width = gradient && gated ? s->cols / 2 : s->cols;
    *fused = q->desc;
    fused->activation = kind;
    fused->interleaved = gated && rng_chance(r, 50);
    fused->alpha = kind >= TEGROUP_ACTIVATION_SWIGLU_CLAMPED && gated ? 1.5 : 0;
    fused->limit = fused->alpha > 0 && rng_chance(r, 50) ? 0.5 + rng_unit(r) : 0; /* which values of a normal distribution pass */
    fused->input = plain_beside(q, r, q->desc.input.dtype, gated ? 2 * width : width, 1, NULL, q->made_in);
    if (!s->listed && rng_chance(r, 70)) fused->row_scale = row_numbers(q, r, 1);
    if (!gradient) return;
    fused->grad_output = plain_beside(q, r, q->desc.input.dtype, width, 1, NULL, q->made_dy);
    if (!s->listed && rng_chance(r, 70)) fused->grad_row_scale = row_numbers(q, r, 0);
}

/* ... rows picked by an index; q's input becomes a copy of them. */
SUPPORT void make_gather(quantizing *q, rng *r, tegroup_quantize_desc *fused) {
    const depot *s = &q->scales[0];
    const int64_t tokens = rng_int(r, 1, 20), slots = rng_int(r, 0, 3), each = slots > 1 ? slots : 1, cols = s->cols, ld = cols + rng_int(r, 0, 5);
    const size_t element = size_of(q->desc.input.dtype), line = (size_t)(q->desc.input.ld > 0 ? q->desc.input.ld : cols) * element;
    int64_t *index = (int64_t *)guarded((size_t)q->desc.input.shape.rows * 8);
    char *data = (char *)guarded((size_t)(tokens * ld) * element);
    fill_values(r, q->desc.input.dtype, data, tokens, cols, ld, NULL);
    *fused = q->desc;
    fused->input.data = data;
    fused->input.ld = ld;
    fused->gather_input.slot_of_row = index;
    fused->gather_input.rows = tokens;
    fused->gather_input.slots = slots;
    for (int64_t i = 0; i < q->desc.input.shape.rows; i++)
        index[i] = rng_chance(r, 10) ? -1 - rng_int(r, 0, 9) : rng_chance(r, 10) ? tokens * each + rng_int(r, 0, 9) : rng_int(r, 0, tokens * each - 1);
    for (int32_t g = 0; g < s->groups; g++)
        for (int64_t row = 0; row < s->rows[g]; row++) {
            const int64_t slot = index[s->start[g] + row];
            char *to = (char *)q->in_list[g] + (size_t)row * line;
            if (slot < 0 || slot >= tokens * each) memset(to, 0, (size_t)cols * element);
            else memcpy(to, data + (size_t)(slot / each * ld) * element, (size_t)cols * element);
        }
}

/* ---- sizes that lie ------------------------------------------------------------------------------------------------------ */

/* Ragged rows, in one buffer each, of sizes that are not known yet: room for `rows` in all of MOST_GROUPS groups. */
SUPPORT void quantizing_make_ragged(quantizing *q, rng *r, int64_t most_rows, int64_t most_cols) {
    void *mark = guards_mark();
    do {
        guards_release(mark);
        quantizing_make(q, r, (tegroup_scaling)0, most_rows, most_cols);
    } while (!q->scales[0].ragged || q->scales[0].listed || q->scales[0].groups == 0);
    fill_values(r, q->desc.input.dtype, (char *)q->desc.input.data, q->desc.input.shape.rows, q->scales[0].cols,
                q->desc.input.ld > 0 ? q->desc.input.ld : q->scales[0].cols, NULL); /* rows that were nobody's, too */
}

/* The groups become what prepare makes of any sizes. */
SUPPORT void quantizing_prepare(quantizing *q, tegroup_encoding encoding, const int64_t *sizes) {
    const int64_t ld = q->desc.input.ld > 0 ? q->desc.input.ld : q->scales[0].cols;
    for (int c = 0; c < 2; c++) depot_clamp(&q->scales[c], encoding, sizes);
    for (int32_t g = 0; g < q->scales[0].groups; g++)
        q->in_list[g] = (char *)q->desc.input.data + q->scales[0].start[g] * ld * (int64_t)size_of(q->desc.input.dtype);
}

/* ---- what must be there afterwards: in the memory that guarded_remember keeps ---------------------------------------------- */

SUPPORT void expect_bytes(const void *data, size_t at, const void *bytes, size_t count) {
    memcpy((char *)(uintptr_t)guarded_memory(data) + at, bytes, count);
}
SUPPORT void expect_element(tegroup_dtype dtype, const void *data, int64_t i, unsigned code) {
    unsigned char *at = (unsigned char *)(uintptr_t)guarded_memory(data) + (dtype == TEGROUP_DTYPE_F4E2M1 ? i / 2 : i);
    if (dtype != TEGROUP_DTYPE_F4E2M1) *at = (unsigned char)code;
    else *at = (unsigned char)(i % 2 == 0 ? (*at & 0xF0) | code : (*at & 0x0F) | code << 4);
}

/* The scales of a copy, of each part by block. */
enum { MOST_PARTS = 3 };
typedef struct expected_scales {
    const quantizing *q;
    int columnwise;
    uint32_t *code[MOST_GROUPS][MOST_PARTS];
} expected_scales;

SUPPORT void expect_scale(void *context, int32_t g, int64_t part, int64_t outer, int64_t inner, int64_t index) {
    const expected_scales *e = (const expected_scales *)context;
    const depot *s = &e->q->scales[e->columnwise];
    const int64_t inners = inner_blocks(s, g);
    const uint32_t code = outer < outer_blocks(s, g) && inner < inners ? e->code[g][part][outer * inners + inner] : 0; /* padding */
    expect_bytes(s->listed ? s->list[g] : s->memory, (size_t)index * scale_size(s->dtype), &code, scale_size(s->dtype));
}

/* small_code by halving. */
SUPPORT unsigned near_code(tegroup_dtype dtype, double x) {
    static double value[TEGROUP_DTYPE_COUNT][256];
    double *of = value[dtype];
    unsigned low = 0, high = small_largest(dtype);
    if (of[1] == 0)
        for (unsigned code = 0; code <= high; code++) of[code] = small_value(dtype, code);
    if (isnan(x) || fabs(x) >= of[high] || fabs(x) == 0) return small_code(dtype, x);
    while (high - low > 1) *(of[(low + high) / 2] <= fabs(x) ? &low : &high) = (low + high) / 2;
    const double under = fabs(x) - of[low], over = of[high] - fabs(x);
    const unsigned best = under < over || (under == over && low % 2 == 0) ? low : high;
    return best | (signbit(x) ? small_codes(dtype) / 2 : 0);
}

SUPPORT uint32_t scale_code(tegroup_dtype dtype, float stored) {
    uint32_t bits;
    memcpy(&bits, &stored, 4);
    if (isnan(stored)) bits = 0x7fffffffu; /* the NaN that a GPU's arithmetic gives */
    if (dtype == TEGROUP_DTYPE_F32) return bits;
    if (dtype == TEGROUP_DTYPE_BF16) return bits >> 16; /* which it was rounded to */
    return small_code(dtype == TEGROUP_DTYPE_I32 ? TEGROUP_DTYPE_F8E8M0 : dtype, (double)stored);
}

/* Element (row, col) of a group in a copy. */
SUPPORT int64_t expected_place(const quantizing *q, int columnwise, int32_t g, int64_t row, int64_t col) {
    const depot *s = &q->scales[columnwise];
    const tegroup_tensor *t = &q->desc.output;
    const int64_t ld = t->ld > 0 ? t->ld : s->cols;
    int64_t before = 0;
    if (!columnwise || t->columnwise_order == TEGROUP_COLUMNWISE_AS_DATA)
        return (s->listed ? 0 : s->ragged ? s->start[g] * ld : g * q->out_stride) + row * ld + col;
    for (int32_t h = 0; h < g && !s->listed; h++) before += to_multiple(s->rows[h], 32) * s->cols;
    return before + col * to_multiple(s->rows[g], 32) + row;
}

/* One part of a group in one copy. */
SUPPORT void expect_part(const quantizing *q, int columnwise, int32_t g, int64_t part, float whole_amax, float global, expected_scales *e) {
    const depot *s = &q->scales[columnwise];
    const tegroup_tensor *t = &q->desc.output;
    const scaling_row row = row_of(s->scaling);
    const void *data = q->list[columnwise][s->listed ? g : 0];
    const int64_t part_rows = s->rows[g] / s->parts, outer = columnwise ? s->cols : part_rows, inner = columnwise ? part_rows : s->cols;
    const int64_t choice = choice_of(s->scaling) > 0 ? choice_of(s->scaling) : outer > 0 ? outer : 1,
                  span = row.block_inner > 0 ? row.block_inner : inner > 0 ? inner : 1;
    const int whole = s->scaling == TEGROUP_SCALING_TENSOR;
    const int64_t inners = inner_blocks(s, g);
    uint32_t *const codes = e->code[g][part] = (uint32_t *)calloc((size_t)(outer_blocks(s, g) * inners) + 1, 4);
    if (whole) codes[0] = scale_code(s->dtype, wanted_stored(wanted_block(q->preset, t->dtype, whole_amax, global), s->dtype, q->preset).stored);
    for (int64_t o = 0; o < outer; o += choice)
        for (int64_t i = 0; i < inner; i += span) {
            float amax = 0;
            for (int64_t x = o; x < outer && x < o + choice; x++)
                for (int64_t y = i; y < inner && y < i + span; y++)
                    amax = magnitude_max(&q->desc.rule, amax, q->value[g][columnwise ? (part * part_rows + y) * s->cols + x : (part * part_rows + x) * s->cols + y]);
            const wanted_scale want = wanted_stored(wanted_block(q->preset, t->dtype, whole ? whole_amax : amax, global), s->dtype, q->preset);
            for (int64_t x = o; x < outer && x < o + choice; x++)
                for (int64_t y = i; y < inner && y < i + span; y++) {
                    const int64_t at_row = part * part_rows + (columnwise ? y : x), at_col = columnwise ? x : y;
                    const float value = q->value[g][at_row * s->cols + at_col];
                    const float scaled_value = want.divide ? value / want.stored : value * want.multiplier;
                    expect_element(t->dtype, data, expected_place(q, columnwise, g, at_row, at_col), near_code(t->dtype, (double)scaled_value));
                    if (!whole) codes[(row.block_outer > 0 ? x / row.block_outer : 0) * inners + (row.block_inner > 0 ? y / row.block_inner : 0)] =
                        scale_code(s->dtype, want.stored);
                }
        }
}

SUPPORT void remember_all(void) {
    for (guarded_node *node = guarded_top; node != NULL; node = node->older) guarded_remember(node->data);
}

SUPPORT void expect_all(const quantizing *q) {
    const depot *s = &q->scales[0];
    const tegroup_tensor *t = &q->desc.output;
    static expected_scales e[2];
    memset(e, 0, sizeof e);
    remember_all();
    for (int32_t g = 0; g < s->groups; g++) {
        float amax = 0, global = 1, inverse;
        for (int64_t i = 0; i < s->rows[g] * s->cols; i++) amax = magnitude_max(&q->desc.rule, amax, q->value[g][i]);
        if (t->global_scale_inv != NULL) { /* core_nvfp4.cuh, compute_global_encode_scaling_factor_FP4 */
            global = 448.0f * 6.0f / amax;
            if (global > FLT_MAX) global = FLT_MAX;
            if (amax == 0 || global == 0) global = 1;
            inverse = 1 / global;
            expect_bytes(t->global_scale_inv, (size_t)g * 4, &inverse, 4);
        }
        if (q->preset == TEGROUP_SCALE_TE_DELAYED) global = t->scale[g];
        if (t->amax != NULL) expect_bytes(t->amax, (size_t)g * 4, &amax, 4);
        if (t->columnwise_amax != NULL) expect_bytes(t->columnwise_amax, (size_t)g * 4, &amax, 4);
        for (int c = 0; c < 2; c++) {
            if (!q->has[c]) continue;
            for (int64_t part = 0; part < s->parts; part++) expect_part(q, c, g, part, amax, global, &e[c]);
            if (c == 0 || t->columnwise_order == TEGROUP_COLUMNWISE_AS_DATA) continue;
            for (int64_t col = 0; col < s->cols; col++)
                for (int64_t row = s->rows[g]; row < to_multiple(s->rows[g], 32); row++)
                    expect_element(t->dtype, q->list[1][s->listed ? g : 0], expected_place(q, 1, g, row, col), 0);
        }
    }
    for (int c = 0; c < 2; c++) {
        e[c].q = q;
        e[c].columnwise = c;
        if (q->has[c]) walk(&q->scales[c], expect_scale, &e[c]);
        for (int32_t g = 0; g < s->groups; g++)
            for (int64_t part = 0; part < s->parts; part++) free(e[c].code[g][part]);
    }
}

/* Poison again in all that a call writes. */
SUPPORT void poison_again(const void *data) {
    if (data != NULL) poison((void *)(uintptr_t)data, guarded_find(data)->bytes);
}
SUPPORT void quantizing_poison(const quantizing *q) {
    const tegroup_tensor *t = &q->desc.output;
    for (int c = 0; c < 2; c++)
        for (int32_t g = 0; g < (q->scales[0].listed ? q->scales[0].groups : 1) && q->has[c]; g++) {
            poison_again(q->list[c][g]);
            poison_again(q->scales[c].listed ? q->scales[c].list[g] : q->scales[c].memory);
        }
    poison_again(t->amax), poison_again(t->columnwise_amax), poison_again(t->global_scale_inv);
}

/* Bytes of any buffer that are not what they must be; of the first it is said where. */
SUPPORT int64_t unexpected_bytes(void) {
    int64_t wrong = 0;
    for (guarded_node *node = guarded_top; node != NULL; node = node->older)
        for (size_t i = 0; i < node->bytes && !node->scratch; i++) {
            if (node->data[i] == node->copy[i]) continue;
            if (wrong++ == 0) fprintf(stderr, "byte %ld of a buffer of %ld: want %02x, got %02x\n", (long)i, (long)node->bytes, node->copy[i], node->data[i]);
        }
    return wrong;
}

#endif
